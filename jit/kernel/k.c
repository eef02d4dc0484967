/* Building K kernels (k.h): coordinates, guards and nodes, each hash-consed.
 *
 * Forms. A form is a sum of coef * atom plus a constant, terms in the order of their atoms. Quotients and remainders are taken
 * apart before they become atoms: the terms that the divisor divides leave the remainder alone, and what is left is its own
 * remainder if it lies below the divisor (k_within). In sums the two halves find each other again:
 *   d * floor(x / d) + x mod d = x          n * (floor(x / n) mod m) + x mod n = x mod (n * m)
 * so an address that was split by a reshape and flattened again is plain.
 *
 * Ranges. Axes are 0 <= a < extent. The bounds of a form follow term by term; with symbolic sizes "holds always" means that the
 * normal form of the dims shows it, so a range may be kept that always holds, but none is dropped that does not. */
#include "jit/kernel/k.h"

#include <stdlib.h>
#include <string.h>

enum { TERMS_MAX = 64 };

/* ---- memory --------------------------------------------------------------------------------------------------------- */

/* Makes room for one more element in an array of n. */
static bool grow(k_kernel *k, void **at, uint32_t n, uint32_t *cap, size_t size) {
  if (arena_room(&k->arena, at, cap, (size_t)n + 1, size)) return true;
  k->failed = true;
  return false;
}

static uint64_t mix(uint64_t h, uint64_t x) {
  h = (h ^ x) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 29;
}

static uint32_t *find(k_kernel *k, intern_table *t, uint64_t hash, intern_same *same, const void *x) {
  uint32_t *number = intern_find(&k->arena, t, hash, same, k, x);
  if (!number) k->failed = true;
  return number;
}

static const char *copy_name(k_kernel *k, const char *name) {
  const char *copy = l_take_name(&k->arena, name);
  if (!copy) k->failed = true;
  return copy ? copy : "";
}

k_kernel *k_new(const char *name, dim_table *dims) {
  k_kernel *k = calloc(1, sizeof *k);
  if (!k) return NULL;
  arena_init(&k->arena, NULL);
  dim_table_init(&k->own, &k->arena);
  k->dims = dims ? dims : &k->own;
  k->name = copy_name(k, name);
  k->n = 1;
  if (grow(k, (void **)&k->nodes, 0, &k->cap, sizeof *k->nodes) &&
      grow(k, (void **)&k->forms, 0, &k->forms_cap, sizeof *k->forms) &&
      grow(k, (void **)&k->atoms, 0, &k->atoms_cap,
           sizeof *k->atoms) && /* so that atom 0 can be read where making one has failed */
      grow(k, (void **)&k->guards, 0, &k->guards_cap, sizeof *k->guards)) {
    k->guards[k->nguards++] = (k_condition){0, NULL, 0, 0}; /* guard 0 holds always */
    (void)k_number(k, 0);                                   /* form 0 is the number 0 */
    if (!k->failed) return k;
  }
  k_free(k);
  return NULL;
}

void k_free(k_kernel *k) {
  if (!k) return;
  arena_free(&k->arena);
  free(k);
}

int k_axis_add(k_kernel *k, const char *name, qn_dim extent) {
  if (k->naxes == K_AXES_MAX) return -1;
  k->axes[k->naxes] = (k_axis){copy_name(k, name), extent};
  return (int)k->naxes++;
}

int k_buffer_add(k_kernel *k, qn_dtype dtype, l_buffer_mode mode, uint32_t ref, qn_dim elements) {
  if (!grow(k, (void **)&k->buffers, k->nbuffers, &k->buffers_cap, sizeof *k->buffers)) return -1;
  k->buffers[k->nbuffers] = (k_buffer){(uint8_t)dtype, (uint8_t)mode, ref, elements};
  return (int)k->nbuffers++;
}

int k_check_add(k_kernel *k, l_check c) {
  if (!grow(k, (void **)&k->checks, k->nchecks, &k->checks_cap, sizeof *k->checks)) return -1;
  k->checks[k->nchecks] = c;
  return (int)k->nchecks++;
}

int64_t k_points(const k_kernel *k, k_mask axes) {
  int64_t n = 1;
  for (uint32_t a = 0; a < k->naxes; a++) {
    if (!(axes >> a & 1)) continue;
    int64_t e = dim_hint(k->dims, k->axes[a].extent);
    if (__builtin_mul_overflow(n, e < 0 ? 0 : e, &n)) return INT64_MAX;
  }
  return n;
}

/* ---- dims --------------------------------------------------------------------------------------------------------------- */

enum { FACTORS_MAX = 16 };
typedef struct factors {
  int n;
  int64_t coef;
  qn_dim of[FACTORS_MAX];
} factors;

static bool factor(const dim_table *t, qn_dim d, factors *f) {
  int64_t c;
  if (dim_is_const(t, d, &c)) return !__builtin_mul_overflow(f->coef, c, &f->coef);
  const dim_expr *e = &t->exprs[~d];
  if (e->op == DIM_MUL) return factor(t, e->a, f) && factor(t, e->b, f);
  if (e->op == DIM_SUB && e->a == 0) {
    f->coef = -f->coef;
    return factor(t, e->b, f);
  }
  if (f->n == FACTORS_MAX) return false;
  f->of[f->n++] = d;
  return true;
}

/* Sets *q to a / d, for d > 0, if the normal form of a shows that d divides it. */
static bool quotient(k_kernel *k, qn_dim a, qn_dim d, qn_dim *q) {
  if (d == 1 || a == 0) {
    *q = a;
    return true;
  }
  if (a == d) {
    *q = 1;
    return true;
  }
  factors x = {.coef = 1}, y = {.coef = 1};
  if (!factor(k->dims, a, &x) || !factor(k->dims, d, &y) || y.coef == 0 || x.coef % y.coef) return false;
  for (int j = 0; j < y.n; j++) {
    int i = 0;
    while (i < x.n && x.of[i] != y.of[j]) i++;
    if (i == x.n) return false;
    x.of[i] = x.of[--x.n];
  }
  *q = dim_const(k->dims, x.coef / y.coef);
  for (int i = 0; i < x.n; i++) *q = dim_mul(k->dims, *q, x.of[i]);
  return true;
}

static bool negative(const k_kernel *k, qn_dim d) {
  int64_t c;
  if (dim_is_const(k->dims, d, &c)) return c < 0;
  const dim_expr *e = &k->dims->exprs[~d];
  return e->op == DIM_SUB && e->a == 0 && dim_nonnegative(k->dims, e->b);
}

/* ---- forms -------------------------------------------------------------------------------------------------------------- */

typedef struct sum {
  qn_dim constant;
  uint32_t n;
  k_term terms[TERMS_MAX];
} sum;

static bool same_atom(const void *k, uint32_t i, const void *x) {
  const k_atom *a = &((const k_kernel *)k)->atoms[i], *b = x;
  return a->kind == b->kind && a->ref == b->ref && a->of == b->of && a->by == b->by;
}

static uint32_t atom_find(k_kernel *k, k_atom a) {
  uint64_t hash = mix(mix((uint64_t)a.kind << 32 | a.ref, a.of), (uint64_t)a.by);
  uint32_t *number = find(k, &k->atom_index, hash, same_atom, &a);
  if (!number || *number) return number ? *number - 1 : 0;
  if (!grow(k, (void **)&k->atoms, k->natoms, &k->atoms_cap, sizeof *k->atoms)) return 0;
  k->atoms[k->natoms] = a;
  *number = ++k->natoms;
  return k->natoms - 1;
}

/* Adds coef * atom to s. */
static void sum_term(k_kernel *k, sum *s, uint32_t atom, qn_dim coef) {
  if (coef == 0) return;
  uint32_t i = 0;
  while (i < s->n && s->terms[i].atom < atom) i++;
  if (i < s->n && s->terms[i].atom == atom) {
    s->terms[i].coef = dim_add(k->dims, s->terms[i].coef, coef);
    if (s->terms[i].coef == 0) memmove(&s->terms[i], &s->terms[i + 1], (--s->n - i) * sizeof *s->terms);
    return;
  }
  if (s->n == TERMS_MAX) {
    k->failed = true; /* cannot happen: ranks are at most 8 */
    return;
  }
  memmove(&s->terms[i + 1], &s->terms[i], (s->n - i) * sizeof *s->terms);
  s->terms[i] = (k_term){atom, coef};
  s->n++;
}

static void sum_form(k_kernel *k, sum *s, k_form f, qn_dim scale) {
  k_linear l = k->forms[f];
  s->constant = dim_add(k->dims, s->constant, dim_mul(k->dims, l.constant, scale));
  for (uint32_t i = 0; i < l.n; i++) sum_term(k, s, l.terms[i].atom, dim_mul(k->dims, l.terms[i].coef, scale));
}

static bool same_form(const void *k, uint32_t i, const void *x) {
  const k_linear *a = &((const k_kernel *)k)->forms[i];
  const sum *b = x;
  bool same = a->constant == b->constant && a->n == b->n;
  for (uint32_t t = 0; t < b->n && same; t++)
    same = a->terms[t].atom == b->terms[t].atom && a->terms[t].coef == b->terms[t].coef;
  return same;
}

static k_form form_find(k_kernel *k, const sum *s) {
  uint64_t hash = mix(s->n, (uint64_t)s->constant);
  for (uint32_t i = 0; i < s->n; i++) hash = mix(mix(hash, s->terms[i].atom), (uint64_t)s->terms[i].coef);
  uint32_t *number = find(k, &k->form_index, hash, same_form, s);
  if (!number || *number) return number ? *number - 1 : 0;
  if (!grow(k, (void **)&k->forms, k->nforms, &k->forms_cap, sizeof *k->forms)) return 0;
  k_term *terms = s->n ? arena_alloc(&k->arena, s->n * sizeof *terms) : NULL;
  if (s->n && !terms) {
    k->failed = true;
    return 0;
  }
  k_linear l = {s->constant, s->n, terms, 0};
  for (uint32_t i = 0; i < s->n; i++) {
    terms[i] = s->terms[i];
    l.axes |= k->atoms[terms[i].atom].axes;
  }
  k->forms[k->nforms] = l;
  *number = ++k->nforms;
  return k->nforms - 1;
}

/* Replaces a quotient and a remainder of the same form by that form, as the head of this file says. Was there such a pair? */
static bool rejoin(k_kernel *k, sum *s) {
  for (uint32_t i = 0; i < s->n; i++) {
    k_atom m = k->atoms[s->terms[i].atom];
    if (m.kind != ATOM_MOD) continue;
    qn_dim c = s->terms[i].coef, step = dim_mul(k->dims, c, m.by);
    for (uint32_t j = 0; j < s->n; j++) {
      k_atom o = k->atoms[s->terms[j].atom];
      if (j == i || s->terms[j].coef != step) continue;
      uint32_t mod_atom = s->terms[i].atom, other = s->terms[j].atom;
      if (o.kind == ATOM_DIV && o.of == m.of && o.by == m.by) {
        sum_term(k, s, mod_atom, dim_sub(k->dims, 0, c));
        sum_term(k, s, other, dim_sub(k->dims, 0, step));
        sum_form(k, s, m.of, c);
        return true;
      }
      if (o.kind == ATOM_MOD) {
        k_linear inner = k->forms[o.of];
        if (inner.n != 1 || inner.constant != 0 || inner.terms[0].coef != 1) continue;
        k_atom d = k->atoms[inner.terms[0].atom];
        if (d.kind != ATOM_DIV || d.of != m.of || d.by != m.by) continue;
        sum_term(k, s, mod_atom, dim_sub(k->dims, 0, c));
        sum_term(k, s, other, dim_sub(k->dims, 0, step));
        sum_form(k, s, k_mod(k, m.of, dim_mul(k->dims, m.by, o.by)), c);
        return true;
      }
    }
  }
  return false;
}

static k_form sum_done(k_kernel *k, sum *s) {
  for (int guard = 0; guard < 2 * TERMS_MAX && rejoin(k, s);) guard++;
  return form_find(k, s);
}

k_form k_number(k_kernel *k, qn_dim c) {
  sum s = {.constant = c};
  return form_find(k, &s);
}

k_form k_axis_form(k_kernel *k, uint32_t axis) {
  sum s = {0};
  sum_term(k, &s, atom_find(k, (k_atom){.kind = ATOM_AXIS, .ref = axis, .axes = (k_mask)1 << axis}), 1);
  return form_find(k, &s);
}

k_form k_value_form(k_kernel *k, k_val v) {
  sum s = {0};
  sum_term(k, &s, atom_find(k, (k_atom){.kind = ATOM_VALUE, .ref = v, .axes = k->nodes[v].axes}), 1);
  return form_find(k, &s);
}

k_form k_plus(k_kernel *k, k_form a, k_form b) {
  if (a == 0) return b;
  if (b == 0) return a;
  sum s = {0};
  sum_form(k, &s, a, 1);
  sum_form(k, &s, b, 1);
  return sum_done(k, &s);
}

k_form k_times(k_kernel *k, k_form a, qn_dim d) {
  if (d == 1) return a;
  sum s = {0};
  if (d != 0) sum_form(k, &s, a, d);
  return form_find(k, &s);
}

/* ---- ranges --------------------------------------------------------------------------------------------------------------- */

/* Sets *top to a bound with 0 <= atom < *top. False if none is known. */
static bool atom_bound(k_kernel *k, uint32_t atom, qn_dim *top);

/* Sets bounds *low <= form <= *high. False if none are known. */
static bool bounds(k_kernel *k, k_form f, qn_dim *low, qn_dim *high) {
  k_linear l = k->forms[f];
  dim_table *t = k->dims;
  *low = *high = l.constant;
  for (uint32_t i = 0; i < l.n; i++) {
    qn_dim top, coef = l.terms[i].coef;
    if (!atom_bound(k, l.terms[i].atom, &top)) return false;
    /* coef * (top - 1), multiplied out so that terms of sums cancel */
    qn_dim reach = dim_sub(t, dim_mul(t, coef, top), coef);
    if (negative(k, coef))
      *low = dim_add(t, *low, reach);
    else if (dim_nonnegative(t, coef))
      *high = dim_add(t, *high, reach);
    else
      return false;
  }
  return true;
}

static bool atom_bound(k_kernel *k, uint32_t atom, qn_dim *top) {
  k_atom a = k->atoms[atom];
  qn_dim low, high;
  switch (a.kind) {
  case ATOM_AXIS: *top = k->axes[a.ref].extent; return true;
  case ATOM_MOD: *top = a.by; return true;
  case ATOM_DIV:
    if (!bounds(k, a.of, &low, &high) || !dim_nonnegative(k->dims, low)) return false;
    *top = dim_add(k->dims, dim_make(k->dims, DIM_FLOORDIV, high, a.by), 1);
    return true;
  default: return false;
  }
}

bool k_within(k_kernel *k, k_form f, qn_dim extent) {
  qn_dim low, high;
  if (!bounds(k, f, &low, &high)) return false;
  dim_table *t = k->dims;
  return dim_nonnegative(t, low) && dim_nonnegative(t, dim_sub(t, dim_sub(t, extent, 1), high));
}

bool k_outside(k_kernel *k, k_form f, qn_dim extent) {
  qn_dim low, high;
  dim_table *t = k->dims;
  if (!bounds(k, f, &low, &high)) return false;
  return dim_nonnegative(t, dim_sub(t, dim_const(t, -1), high)) || dim_nonnegative(t, dim_sub(t, low, extent));
}

/* ---- quotients and remainders ------------------------------------------------------------------------------------------------ */

static bool at_least_zero(k_kernel *k, k_form f) {
  qn_dim low, high;
  return bounds(k, f, &low, &high) && dim_nonnegative(k->dims, low);
}

/* Splits a = d * whole + rest by the terms that d divides. If a is known not to be negative, a rest that might be is not split off, since
 * nothing would be known of its quotient. */
static void split(k_kernel *k, k_form a, qn_dim d, sum *whole, sum *rest) {
  k_linear l = k->forms[a];
  int64_t c, by;
  qn_dim q;
  *whole = *rest = (sum){0};
  if (dim_is_const(k->dims, l.constant, &c) && dim_is_const(k->dims, d, &by) && by > 0) {
    int64_t r = c % by;
    if (r < 0) r += by;
    whole->constant = dim_const(k->dims, (c - r) / by);
    rest->constant = r;
  } else if (quotient(k, l.constant, d, &q)) {
    whole->constant = q;
  } else {
    rest->constant = l.constant;
  }
  for (uint32_t i = 0; i < l.n; i++) {
    if (quotient(k, l.terms[i].coef, d, &q))
      sum_term(k, whole, l.terms[i].atom, q);
    else
      sum_term(k, rest, l.terms[i].atom, l.terms[i].coef);
  }
  if (rest->constant != l.constant && at_least_zero(k, a) && !at_least_zero(k, form_find(k, rest))) {
    whole->constant = 0;
    rest->constant = l.constant;
  }
}

/* Is the form a single atom with coefficient 1? */
static bool single(const k_kernel *k, k_form f, k_atom *a) {
  const k_linear *l = &k->forms[f];
  if (l->n != 1 || l->constant != 0 || l->terms[0].coef != 1) return false;
  *a = k->atoms[l->terms[0].atom];
  return true;
}

k_form k_div(k_kernel *k, k_form a, qn_dim d) {
  if (d == 1) return a;
  sum whole, rest;
  split(k, a, d, &whole, &rest);
  k_form r = form_find(k, &rest);
  if (!k_within(k, r, d)) {
    k_linear l = k->forms[r];
    k_atom inner;
    if (l.n == 0) {
      whole.constant = dim_add(k->dims, whole.constant, dim_make(k->dims, DIM_FLOORDIV, l.constant, d));
    } else {
      k_atom q = {.kind = ATOM_DIV, .of = r, .by = d, .axes = l.axes};
      if (single(k, r, &inner) && inner.kind == ATOM_DIV) {
        q.of = inner.of;
        q.by = dim_mul(k->dims, inner.by, d);
        if (k_within(k, q.of, q.by)) return sum_done(k, &whole);
      }
      sum_term(k, &whole, atom_find(k, q), 1);
    }
  }
  return sum_done(k, &whole);
}

k_form k_mod(k_kernel *k, k_form a, qn_dim d) {
  if (d == 1) return 0;
  sum whole, rest;
  split(k, a, d, &whole, &rest);
  k_form r = form_find(k, &rest);
  if (k_within(k, r, d)) return r;
  k_linear l = k->forms[r];
  if (l.n == 0) return k_number(k, dim_make(k->dims, DIM_MOD, l.constant, d));
  k_atom inner;
  qn_dim q;
  if (single(k, r, &inner) && inner.kind == ATOM_MOD && quotient(k, inner.by, d, &q)) return k_mod(k, inner.of, d);
  sum s = {0};
  sum_term(k, &s, atom_find(k, (k_atom){.kind = ATOM_MOD, .of = r, .by = d, .axes = l.axes}), 1);
  return form_find(k, &s);
}

k_form k_substitute(k_kernel *k, k_form f, const k_form to[K_AXES_MAX]) {
  k_linear l = k->forms[f];
  k_mask touched = 0;
  for (uint32_t a = 0; a < K_AXES_MAX; a++)
    if (to[a]) touched |= (k_mask)1 << a;
  if (!(l.axes & touched)) return f;
  k_form out = k_number(k, l.constant);
  for (uint32_t i = 0; i < l.n; i++) {
    k_atom a = k->atoms[l.terms[i].atom];
    sum s = {0};
    k_form with;
    if (a.kind == ATOM_AXIS && to[a.ref]) {
      with = to[a.ref];
    } else if (a.kind == ATOM_DIV || a.kind == ATOM_MOD) {
      k_form of = k_substitute(k, a.of, to);
      with = a.kind == ATOM_DIV ? k_div(k, of, a.by) : k_mod(k, of, a.by);
    } else {
      sum_term(k, &s, l.terms[i].atom, 1);
      with = form_find(k, &s);
    }
    out = k_plus(k, out, k_times(k, with, l.terms[i].coef));
  }
  return out;
}

bool k_coef(const k_kernel *k, k_form f, uint32_t axis, qn_dim *coef) {
  const k_linear *l = &k->forms[f];
  *coef = 0;
  for (uint32_t i = 0; i < l->n; i++) {
    const k_atom *a = &k->atoms[l->terms[i].atom];
    if (!(a->axes >> axis & 1)) continue;
    if (a->kind != ATOM_AXIS) return false;
    *coef = l->terms[i].coef;
  }
  return true;
}

/* ---- guards --------------------------------------------------------------------------------------------------------------- */

static bool same_guard(const void *k, uint32_t i, const void *x) {
  const k_condition *a = &((const k_kernel *)k)->guards[i], *b = x;
  bool same = a->n == b->n && a->where == b->where;
  for (uint32_t r = 0; r < b->n && same; r++)
    same = a->ranges[r].form == b->ranges[r].form && a->ranges[r].extent == b->ranges[r].extent;
  return same;
}

static k_guard guard_find(k_kernel *k, k_range *ranges, uint32_t n, k_val where) {
  if (!n && !where) return 0;
  uint64_t hash = mix(n, where);
  for (uint32_t i = 0; i < n; i++) hash = mix(mix(hash, ranges[i].form), (uint64_t)ranges[i].extent);
  uint32_t *number = find(k, &k->guard_index, hash, same_guard, &(k_condition){n, ranges, where, 0});
  if (!number || *number) return number ? *number - 1 : 0;
  if (!grow(k, (void **)&k->guards, k->nguards, &k->guards_cap, sizeof *k->guards)) return 0;
  k_range *copy = n ? arena_alloc(&k->arena, n * sizeof *copy) : NULL;
  if (n && !copy) {
    k->failed = true;
    return 0;
  }
  k_condition c = {n, copy, where, where ? k->nodes[where].axes : 0};
  for (uint32_t i = 0; i < n; i++) {
    copy[i] = ranges[i];
    c.axes |= k->forms[ranges[i].form].axes;
  }
  k->guards[k->nguards] = c;
  *number = ++k->nguards;
  return k->nguards - 1;
}

enum { RANGES_MAX = 32 };

k_guard k_guard_range(k_kernel *k, k_guard g, k_form f, qn_dim extent) {
  if (k_within(k, f, extent)) return g;
  k_condition c = k->guards[g];
  k_range ranges[RANGES_MAX];
  uint32_t n = 0;
  bool placed = false;
  for (uint32_t i = 0; i < c.n && n + 1 < RANGES_MAX; i++) {
    if (c.ranges[i].form == f && c.ranges[i].extent == extent) return g;
    if (!placed && f <= c.ranges[i].form) {
      ranges[n++] = (k_range){f, extent};
      placed = true;
    }
    ranges[n++] = c.ranges[i];
  }
  if (!placed) ranges[n++] = (k_range){f, extent};
  if (n < c.n + 1) {
    k->failed = true;
    return 0;
  }
  return guard_find(k, ranges, n, c.where);
}

k_guard k_guard_where(k_kernel *k, k_guard g, k_val where) {
  if (!where) return g;
  k_condition c = k->guards[g];
  if (c.where && c.where != where) where = k_op(k, KOP_and, DTYPE_TEST, c.where, where, 0);
  return guard_find(k, c.ranges, c.n, where);
}

/* ---- nodes --------------------------------------------------------------------------------------------------------------- */

static uint64_t node_hash(const k_node *n) {
  uint64_t h = mix((uint64_t)n->code | (uint64_t)n->sub << 8 | (uint64_t)n->dtype << 16 | (uint64_t)n->order << 24 |
                       (uint64_t)n->flags << 32 | (uint64_t)n->axis << 40,
                   (uint64_t)(uint32_t)n->buffer << 32 | n->a);
  return mix(mix(mix(h, (uint64_t)n->b << 32 | n->c), (uint64_t)n->at << 32 | n->guard), n->imm);
}

static bool same_node(const void *k, uint32_t i, const void *other) {
  const k_node *x = &((const k_kernel *)k)->nodes[i], *y = other;
  return x->code == y->code && x->sub == y->sub && x->dtype == y->dtype && x->order == y->order &&
         x->flags == y->flags && x->axis == y->axis && x->buffer == y->buffer && x->a == y->a && x->b == y->b &&
         x->c == y->c && x->at == y->at && x->guard == y->guard && x->imm == y->imm;
}

k_mask k_value_axes(const k_kernel *k, const k_node *n) {
  k_mask own = (k_mask)1 << n->axis;
  k_mask m =
      k->nodes[n->a].axes | k->nodes[n->b].axes | k->nodes[n->c].axes | k->forms[n->at].axes | k->guards[n->guard].axes;
  return n->code == K_REDUCE || n->code == K_DOT ? m & ~own : n->code == K_SCAN ? m | own : m;
}

static k_val append(k_kernel *k, const k_node *n) {
  if (k->failed || !grow(k, (void **)&k->nodes, k->n, &k->cap, sizeof *k->nodes)) return 0;
  k->nodes[k->n] = *n;
  return k->n++;
}

/* The value that equals n, which is added with its axes if there is none. */
static k_val intern(k_kernel *k, const k_node *n) {
  uint32_t *number = find(k, &k->node_index, node_hash(n), same_node, n);
  if (!number || *number) return number ? *number - 1 : 0;
  k_val v = append(k, n);
  if (!v) return 0;
  k->nodes[v].axes = k_value_axes(k, n);
  *number = v + 1;
  return v;
}

k_val k_const(k_kernel *k, qn_dtype dtype, uint64_t bits) {
  return intern(k, &(k_node){.code = K_CONST, .dtype = (uint8_t)dtype, .imm = bits});
}

k_val k_const_i(k_kernel *k, qn_dtype dtype, int64_t value) {
  if (dtype_is_float(dtype)) return k_const_f(k, dtype, (double)value);
  uint64_t bits = 0;
  dtype_store(dtype, &bits, value_int(value));
  return k_const(k, dtype, bits);
}

k_val k_const_f(k_kernel *k, qn_dtype dtype, double value) {
  uint64_t bits = 0;
  dtype_store(dtype, &bits, value_float(value));
  return k_const(k, dtype, bits);
}

k_val k_scalar(k_kernel *k, qn_dtype dtype, uint32_t number) {
  if (number >= k->nscalars) k->nscalars = number + 1;
  return intern(k, &(k_node){.code = K_SCALAR, .dtype = (uint8_t)dtype, .imm = number});
}

int k_scalar_of(k_kernel *k, uint32_t ref) {
  for (uint32_t i = 0; i < k->nscalars && i < k->scalars_cap; i++)
    if (k->scalars[i] == ref) return (int)i;
  if (!grow(k, (void **)&k->scalars, k->nscalars, &k->scalars_cap, sizeof *k->scalars)) return -1;
  k->scalars[k->nscalars] = ref;
  return (int)k->nscalars++;
}

k_val k_iota(k_kernel *k, qn_dtype dtype, k_form at) {
  k_linear l = k->forms[at];
  k_atom a;
  int64_t c;
  if (l.n == 0 && dim_is_const(k->dims, l.constant, &c) && c >= -K_LITERAL_MAX && c <= K_LITERAL_MAX)
    /* larger numbers are likely sizes and stay parameters, so that programs serve all shapes */
    return k_const_i(k, dtype, c);
  if (single(k, at, &a) && a.kind == ATOM_VALUE && k->nodes[a.ref].dtype == dtype) return a.ref;
  return intern(k, &(k_node){.code = K_IOTA, .dtype = (uint8_t)dtype, .at = at});
}

k_val k_load(k_kernel *k, int buffer, k_form at, k_guard guard, k_val otherwise) {
  return intern(k, &(k_node){.code = K_LOAD,
                             .dtype = k->buffers[buffer].dtype,
                             .buffer = buffer,
                             .at = at,
                             .guard = guard,
                             .a = guard ? otherwise : 0});
}

k_val k_op(k_kernel *k, kop_id op, qn_dtype dtype, k_val a, k_val b, k_val c) {
  if (!a || (kop_rows[op].arity > 1 && !b) || (kop_rows[op].arity > 2 && !c)) return 0;
  if (op == KOP_copy) return a;
  if (op == KOP_cast && k->nodes[a].dtype == dtype) return a;
  if (op == KOP_select && b == c) return b;
  if (op == KOP_and && dtype_is_bool(dtype) && a == b) return a;
  return intern(k, &(k_node){.code = K_OP, .sub = (uint8_t)op, .dtype = (uint8_t)dtype, .a = a, .b = b, .c = c});
}

k_val k_math(k_kernel *k, math_id fn, qn_dtype dtype, k_val a, k_val b, k_val c) {
  if (!a || (math_rows[fn].arity > 1 && !b) || (math_rows[fn].arity > 2 && !c)) return 0;
  return intern(k, &(k_node){.code = K_MATH, .sub = (uint8_t)fn, .dtype = (uint8_t)dtype, .a = a, .b = b, .c = c});
}

k_val k_cast(k_kernel *k, k_val v, qn_dtype to) {
  if (!v) return 0;
  qn_dtype from = (qn_dtype)k->nodes[v].dtype;
  if (from == to) return v;
  qn_dtype wide = dtype_compute(from);
  if (wide != from && to != wide) return k_cast(k, k_op(k, KOP_cast, wide, v, 0, 0), to);
  /* by way of a float type that holds it exactly, so that it is rounded only once */
  if (dtype_is_narrow(to) && !dtype_is_float(from)) {
    wide = dtype_contains(dtype_compute(to), from) ? dtype_compute(to) : DTYPE_WIDE;
    return k_op(k, KOP_cast, to, k_op(k, KOP_cast, wide, v, 0, 0), 0, 0);
  }
  return k_op(k, KOP_cast, to, v, 0, 0);
}

k_val k_reduce(k_kernel *k, kop_id op, l_order order, uint32_t axis, k_val a) {
  if (!a) return 0;
  uint8_t dtype = kop_is_arg(op) ? DTYPE_INDEX : k->nodes[a].dtype;
  return intern(k, &(k_node){.code = K_REDUCE,
                             .sub = (uint8_t)op,
                             .order = (uint8_t)order,
                             .axis = (uint8_t)axis,
                             .a = a,
                             .dtype = dtype});
}

k_val k_scan(k_kernel *k, kop_id op, l_order order, uint32_t axis, bool exclusive, k_val a) {
  if (!a) return 0;
  return intern(k, &(k_node){.code = K_SCAN,
                             .sub = (uint8_t)op,
                             .order = (uint8_t)order,
                             .axis = (uint8_t)axis,
                             .a = a,
                             .flags = exclusive ? K_EXCLUSIVE : 0,
                             .dtype = k->nodes[a].dtype});
}

k_val k_dot(k_kernel *k, uint32_t axis, k_val a, k_val b) {
  if (!a || !b) return 0;
  return intern(k, &(k_node){.code = K_DOT, .axis = (uint8_t)axis, .a = a, .b = b, .dtype = k->nodes[a].dtype});
}

/* From here on, nodes are not found that load what is stored to `buffer` (-1: to any buffer of which that may change). */
static void close_loads(k_kernel *k, int buffer) {
  for (k_val v = 1; v < k->n; v++) {
    k_node *n = &k->nodes[v];
    if (n->code != K_LOAD || (buffer >= 0 && n->buffer != buffer)) continue;
    if (buffer >= 0 || k->buffers[n->buffer].mode != BUF_IN) n->flags |= K_CLOSED;
  }
}

k_val k_carry(k_kernel *k, k_val first, k_mask axes) {
  if (!first) return 0;
  return append(k, &(k_node){.code = K_CARRY, .dtype = k->nodes[first].dtype, .a = first, .axes = axes});
}

bool k_while(k_kernel *k, k_val go) {
  if (!go) return false;
  close_loads(k, -1); /* the loop may store to it, and then loads again */
  return append(k, &(k_node){.code = K_WHILE, .a = go}) != 0;
}

bool k_set(k_kernel *k, k_val carry, k_val next) {
  return carry && next && append(k, &(k_node){.code = K_SET, .a = carry, .b = next}) != 0;
}

bool k_end(k_kernel *k) {
  k_val v = k->n;
  for (int depth = 1; depth && v-- > 1;) {
    k_node *n = &k->nodes[v];
    depth += n->code == K_END ? 1 : n->code == K_WHILE ? -1 : 0;
    n->flags |= K_CLOSED;
  }
  return append(k, &(k_node){.code = K_END}) != 0;
}

/* Appends a K_STORE, or a K_STOREF with an op. */
static bool store(k_kernel *k, k_code code, kop_id op, int buffer, k_form at, k_guard guard, k_val v, k_mask over) {
  if (!v || buffer < 0) return false;
  if (k->buffers[buffer].mode != BUF_OUT) close_loads(k, buffer);
  return append(k, &(k_node){.code = (uint8_t)code,
                             .sub = (uint8_t)op,
                             .dtype = k->nodes[v].dtype,
                             .buffer = buffer,
                             .at = at,
                             .guard = guard,
                             .a = v,
                             .axes = over}) != 0;
}

bool k_store(k_kernel *k, int buffer, k_form at, k_guard guard, k_val v, k_mask over) {
  return store(k, K_STORE, (kop_id)0, buffer, at, guard, v, over);
}

bool k_storef(k_kernel *k, kop_id op, int buffer, k_form at, k_guard guard, k_val v, k_mask over) {
  return store(k, K_STOREF, op, buffer, at, guard, v, over);
}

bool k_check(k_kernel *k, int check, k_val ok, k_form element, k_val shows, k_mask over) {
  if (!ok || check < 0) return false;
  return append(k, &(k_node){
                       .code = K_CHECK, .a = ok, .b = shows, .at = element, .imm = (uint64_t)check, .axes = over}) != 0;
}
