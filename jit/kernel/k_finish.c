/* The last step of building a K kernel (k.h): dead nodes go, axes merge, numbers close up.
 *
 * Two axes x and y merge when they are one index in disguise: every value and effect has both or neither, no reduction, scan
 * or product runs over one of them, and wherever they occur in a form the coefficient of x is extent(y) times that of y. Then y
 * stands for x * extent(y) + y: the terms of x are dropped and y's extent becomes the product. Contiguous pointwise kernels
 * end with one axis this way, whatever the rank of the arrays. An update in place runs over its axes in order, the first the
 * outermost: there x must be the axis just before y.
 *
 * Where the tiles of products can read windows, the second factor of a product of floats, of which both axes are columns, may be an exception: it
 * keeps its own steps along x and y, as those of the quotient and the remainder of the merged axis by extent(y). */
#include <string.h>

#include "jit/kernel/k.h"

/* ---- what is used ---------------------------------------------------------------------------------------------------- */

typedef struct use {
  k_kernel *k;
  bool *node;
  bool *form;
  k_val windows; /* the second factor of the only product, if it may be windows; else 0 */
  bool *others;  /* the forms that something else uses */
} use;

static bool is_marker(uint8_t code) { return code >= K_WHILE && code <= K_END; }

static void use_form(use *u, k_form f);

static void use_guard(use *u, k_guard g) {
  const k_condition *c = &u->k->guards[g];
  for (uint32_t i = 0; i < c->n; i++) use_form(u, c->ranges[i].form);
  if (c->where) u->node[c->where] = true;
}

static void use_form(use *u, k_form f) {
  if (u->form[f]) return;
  u->form[f] = true;
  const k_linear *l = &u->k->forms[f];
  for (uint32_t i = 0; i < l->n; i++) {
    const k_atom *a = &u->k->atoms[l->terms[i].atom];
    if (a->kind == ATOM_VALUE) u->node[a->ref] = true;
    if (a->kind == ATOM_DIV || a->kind == ATOM_MOD) use_form(u, a->of);
  }
}

/* The load that is the second factor of a kernel's only product, of floats; else 0. */
static k_val find_windows(const use *u) {
  const k_kernel *k = u->k;
  k_val load = 0;
  for (uint32_t i = 1; i < k->n && k->windows; i++) {
    const k_node *n = &k->nodes[i];
    if (!u->node[i] || n->code != K_DOT) continue;
    if (load || !dtype_is_float((qn_dtype)n->dtype)) return 0;
    load = n->b;
    if (k->nodes[load].code == K_OP && k->nodes[load].sub == KOP_cast) load = k->nodes[load].a;
    if (k->nodes[load].code != K_LOAD || k->nodes[load].guard) return 0;
  }
  return load;
}

/* Marks the nodes, forms, guards and axes that effects need. Operands have smaller numbers, so one walk from the end is enough. False when
 * memory is short. */
static bool find_uses(use *u) {
  k_kernel *k = u->k;
  u->node = arena_alloc(&k->arena, k->n * sizeof *u->node);
  u->form = arena_alloc(&k->arena, k->nforms * sizeof *u->form);
  u->others = NULL;
  if (!u->node || !u->form) return false;
  for (uint32_t i = k->n; i-- > 1;) {
    const k_node *n = &k->nodes[i];
    if (k_is_effect(n) || is_marker(n->code)) u->node[i] = true;
    if (!u->node[i]) continue;
    u->node[n->a] = u->node[n->b] = u->node[n->c] = true;
    use_form(u, n->at);
    use_guard(u, n->guard);
  }
  u->windows = find_windows(u);
  if (!u->windows) return true;
  use but = {.k = k, .node = u->node, .form = arena_alloc(&k->arena, k->nforms * sizeof *u->form)};
  if (!but.form) return false;
  for (uint32_t i = 1; i < k->n; i++) {
    if (!u->node[i]) continue;
    if (i != u->windows) use_form(&but, k->nodes[i].at);
    use_guard(&but, k->nodes[i].guard);
  }
  u->others = but.form;
  return true;
}

/* ---- merging axes ------------------------------------------------------------------------------------------------------ */

static k_mask axis_bit(uint32_t a) { return (k_mask)1 << a; }

static bool both_or_neither(k_mask m, uint32_t x, uint32_t y) { return (m >> x & 1) == (m >> y & 1); }

/* Is x the last axis before y among those of the mask? */
static bool just_before(k_mask m, uint32_t x, uint32_t y) {
  return x < y && !(m & (axis_bit(y) - 1) & ~(axis_bit(x + 1) - 1));
}

/* May axes x and y merge, as far as values, effects and these forms are concerned? */
static bool mergeable(const use *u, const bool *forms, uint32_t x, uint32_t y) {
  k_kernel *k = u->k;
  for (uint32_t i = 1; i < k->n; i++) {
    const k_node *n = &k->nodes[i];
    if (!u->node[i]) continue;
    if (!both_or_neither(n->axes, x, y)) return false;
    bool over = n->code == K_REDUCE || n->code == K_SCAN || n->code == K_DOT;
    if (over && (n->axis == x || n->axis == y)) return false;
    if (n->code == K_STOREF && (n->axes >> x & 1) && !just_before(n->axes, x, y)) return false;
  }
  for (k_form f = 1; f < k->nforms; f++) {
    if (!forms[f] || !((k->forms[f].axes >> x | k->forms[f].axes >> y) & 1)) continue;
    qn_dim cx = 0, cy = 0;
    for (uint32_t i = 0; i < k->forms[f].n; i++) {
      const k_atom *a = &k->atoms[k->forms[f].terms[i].atom];
      if (a->kind == ATOM_AXIS && a->ref == x) cx = k->forms[f].terms[i].coef;
      if (a->kind == ATOM_AXIS && a->ref == y) cy = k->forms[f].terms[i].coef;
    }
    if (cx != dim_mul(k->dims, cy, k->axes[y].extent)) return false;
  }
  return true;
}

/* Merges axis x into y: x is removed everywhere, and the extent of y becomes the product of both. */
static void merge(k_kernel *k, uint32_t x, uint32_t y) {
  k->axes[y].extent = dim_mul(k->dims, k->axes[x].extent, k->axes[y].extent);
  k->axes[x].extent = 1;
  for (k_form f = 1; f < k->nforms; f++) {
    k_linear *l = &k->forms[f];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < l->n; i++) {
      const k_atom *a = &k->atoms[l->terms[i].atom];
      if (a->kind != ATOM_AXIS || a->ref != x) l->terms[kept++] = l->terms[i];
    }
    l->n = kept;
    l->axes &= ~axis_bit(x);
  }
  for (uint32_t a = 0; a < k->natoms; a++) k->atoms[a].axes &= ~axis_bit(x);
  for (uint32_t g = 0; g < k->nguards; g++) k->guards[g].axes &= ~axis_bit(x);
  for (uint32_t i = 1; i < k->n; i++) k->nodes[i].axes &= ~axis_bit(x);
}

static k_mask used_axes(const use *u) {
  k_mask all = 0;
  for (uint32_t i = 1; i < u->k->n; i++) {
    const k_node *n = &u->k->nodes[i];
    if (!u->node[i]) continue;
    all |= n->axes;
    if (n->code == K_REDUCE || n->code == K_SCAN || n->code == K_DOT) all |= axis_bit(n->axis);
  }
  return all;
}

/* May axes x and y merge because only windows, of which both are columns, have other steps along them? */
static bool windows_merge(const use *u, uint32_t x, uint32_t y) {
  const k_kernel *k = u->k;
  if (!u->windows) return false;
  const k_linear *l = &k->forms[k->nodes[u->windows].at];
  uint32_t digits = 2;
  for (uint32_t i = 1; i < k->n; i++)
    if (u->node[i] && k->nodes[i].code == K_DOT && (k->nodes[k->nodes[i].a].axes & (axis_bit(x) | axis_bit(y))))
      return false;
  for (uint32_t i = 0; i < l->n; i++) {
    const k_atom *a = &k->atoms[l->terms[i].atom];
    if (a->kind == ATOM_VALUE && (a->axes & (axis_bit(x) | axis_bit(y)))) return false;
    digits += a->kind != ATOM_AXIS;
  }
  return digits <= L_TILE_DIGITS && mergeable(u, u->others, x, y);
}

/* Merges x into y, and makes both digits of y where the windows lie. False when memory is short. */
static bool merge_windows(use *u, uint32_t x, uint32_t y) {
  k_kernel *k = u->k;
  k_node *load = &k->nodes[u->windows];
  qn_dim size = k->axes[y].extent;
  k_form to[K_AXES_MAX] = {0}, both = k_axis_form(k, y);
  k->axes[y].extent = dim_mul(k->dims, k->axes[x].extent, size); /* so that quotients become no simpler than they may */
  to[x] = k_div(k, both, size);
  to[y] = k_mod(k, both, size);
  load->at = k_substitute(k, load->at, to);
  k->axes[y].extent = size;
  merge(k, x, y);
  return !k->failed && find_uses(u);
}

static bool merge_axes(use *u) {
  k_kernel *k = u->k;
  k_mask used = used_axes(u);
  for (uint32_t x = 0; x < k->naxes; x++)
    for (uint32_t y = 0; y < k->naxes; y++) {
      if (x == y || !(used >> x & 1) || !(used >> y & 1)) continue;
      if (mergeable(u, u->form, x, y))
        merge(k, x, y);
      else if (!windows_merge(u, x, y))
        continue;
      else if (!merge_windows(u, x, y))
        return false;
      used &= ~axis_bit(x);
    }
  return true;
}

/* ---- closing up ---------------------------------------------------------------------------------------------------------- */

static k_mask renamed(k_mask m, const uint8_t *to) {
  k_mask out = 0;
  for (uint32_t a = 0; a < K_AXES_MAX; a++)
    if (m >> a & 1) out |= axis_bit(to[a]);
  return out;
}

static void close_axes(const use *u) {
  k_kernel *k = u->k;
  k_mask used = used_axes(u);
  uint8_t to[K_AXES_MAX] = {0};
  uint32_t n = 0;
  for (uint32_t a = 0; a < k->naxes; a++) {
    if (!(used >> a & 1)) continue;
    to[a] = (uint8_t)n;
    k->axes[n++] = k->axes[a];
  }
  k->naxes = n;
  for (uint32_t a = 0; a < k->natoms; a++) {
    k_atom *atom = &k->atoms[a];
    if (atom->kind == ATOM_AXIS) atom->ref = to[atom->ref];
    atom->axes = renamed(atom->axes & used, to);
  }
  for (k_form f = 0; f < k->nforms; f++) k->forms[f].axes = renamed(k->forms[f].axes & used, to);
  for (uint32_t g = 0; g < k->nguards; g++) k->guards[g].axes = renamed(k->guards[g].axes & used, to);
  for (uint32_t i = 1; i < k->n; i++) {
    k->nodes[i].axes = renamed(k->nodes[i].axes & used, to);
    k->nodes[i].axis = to[k->nodes[i].axis];
  }
}

static bool close_nodes(const use *u) {
  k_kernel *k = u->k;
  k_val *to = arena_alloc(&k->arena, k->n * sizeof *to);
  if (!to) return false;
  uint32_t n = 1;
  for (uint32_t i = 1; i < k->n; i++) {
    if (!u->node[i]) continue;
    k_node c = k->nodes[i];
    c.a = to[c.a];
    c.b = to[c.b];
    c.c = to[c.c];
    to[i] = n;
    k->nodes[n++] = c;
  }
  for (uint32_t a = 0; a < k->natoms; a++)
    if (k->atoms[a].kind == ATOM_VALUE) k->atoms[a].ref = to[k->atoms[a].ref];
  for (uint32_t g = 0; g < k->nguards; g++) k->guards[g].where = to[k->guards[g].where];
  k->n = n;
  k->node_index = k->atom_index = k->form_index = k->guard_index = (intern_table){0};
  return true;
}

void k_finish(k_kernel *k) {
  use u = {.k = k};
  if (k->failed) return;
  if (!find_uses(&u)) {
    k->failed = true;
    return;
  }
  if (!merge_axes(&u)) {
    k->failed = true;
    return;
  }
  close_axes(&u);
  if (!close_nodes(&u)) k->failed = true;
}
