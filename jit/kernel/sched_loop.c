/* Kernels with loops (WHILE) as programs: their nodes in the order in which they stand.
 *
 * A kernel whose carries are all numbers runs in one instance. What has axes in it (copies of arrays that the loop updates) stands outside of
 * the loops, and becomes a VEC over its whole axis.
 *
 * In a kernel with carries of elements an instance has a tile of the last axis. Numbers are computed in each instance. What varies along the
 * tile is computed in VECs, one for each stretch of nodes between two ends or beginnings of loops (a segment); carries, and what one
 * segment makes for another, lie in locals as long as a tile. So a turn is a uniform WHILE around a few VECs. Effects without axes, which
 * must happen once and even if there are no elements, are a phase of their own, of one instance, before the others.
 *
 * Tried: WHILE in the VEC, so that carries are vectors. Every number of the loop is a vector then, too: counting 64-bit turns took
 * longer than computing with elements of 32 bits. */
#include <stdlib.h>

#include "jit/kernel/lower.h"
#include "jit/kernel/sched_impl.h"

enum { TILE = 1024, TILE_GPU = 256 };

/* What happens to elements in the open segment. */
typedef enum work_kind { WORK_KEEP, WORK_FIRST, WORK_SET, WORK_EFFECT } work_kind;
typedef struct work {
  work_kind kind;
  k_val v; /* the value to keep, the carry to begin, the K_SET, or the effect */
} work;

typedef struct loops {
  nest_builder *nb;
  const k_kernel *k;
  int c;             /* the axis of the tiles; -1: one instance */
  bool once, each;   /* which effects are made: those without axes, those with */
  uint32_t *segment; /* by node */
  bool *apart;       /* by node: is its value used in another segment than it is made in? */
  l_val *local;      /* by node: the local that holds a value */
  work *open;
  uint32_t nopen;
  l_val start, length; /* of the tile */
} loops;

bool nest_has_loops(const k_kernel *k) {
  for (k_val v = 1; v < k->n; v++)
    if (k->nodes[v].code == K_WHILE) return true;
  return false;
}

/* Does node v vary along the axis of the tiles? */
static bool by_element(const loops *x, k_val v) {
  k_mask m = x->k->nodes[v].axes;
  return x->c < 0 ? m != 0 : axis_in(m, x->c);
}

/* Is a value computed again wherever it is used? */
static bool made_again(const loops *x, k_val v) {
  const k_node *n = &x->k->nodes[v];
  if (n->guard || (n->code != K_IOTA && (n->code != K_LOAD || x->k->buffers[n->buffer].mode != BUF_IN))) return false;
  const k_linear *l = &x->k->forms[n->at];
  for (uint32_t i = 0; i < l->n; i++)
    if (x->k->atoms[l->terms[i].atom].kind != ATOM_AXIS) return false;
  return true;
}

typedef struct user {
  loops *x;
  uint32_t segment;
} user;

static void note_use(void *ctx, k_val v) {
  user *u = ctx;
  loops *x = u->x;
  if (by_element(x, v) && x->segment[v] != u->segment && !made_again(x, v)) x->apart[v] = true;
}

static bool begin(loops *x) {
  const k_kernel *k = x->k;
  x->segment = calloc(k->n, sizeof *x->segment);
  x->apart = calloc(k->n, sizeof *x->apart);
  x->local = calloc(k->n, sizeof *x->local);
  x->open = calloc(2 * (size_t)k->n, sizeof *x->open);
  if (!x->segment || !x->apart || !x->local || !x->open) return nest_refuse(x->nb, lower_no_memory);
  uint32_t segment = 0;
  for (k_val v = 1; v < k->n; v++) {
    uint8_t code = k->nodes[v].code;
    segment += code == K_WHILE || code == K_END;
    x->segment[v] = segment;
    k_each_operand(k, v, note_use, &(user){x, segment});
    if (code == K_CARRY && by_element(x, v)) x->apart[v] = true;
    if (k_folds(&k->nodes[v])) return nest_refuse(x->nb, "a reduction beside a loop");
  }
  return true;
}

static void end(loops *x) {
  free(x->segment);
  free(x->apart);
  free(x->local);
  free(x->open);
}

static void do_later(loops *x, work_kind kind, k_val v) { x->open[x->nopen++] = (work){kind, v}; }

static k_val worked_on(const loops *x, const work *w) {
  const k_node *n = &x->k->nodes[w->v];
  return w->kind == WORK_FIRST ? n->a : w->kind == WORK_SET ? n->b : w->v;
}

/* Makes one VEC over `length` elements from `start` on of an axis, with the works first .. end - 1. */
static bool make_vec(loops *x, uint32_t first, uint32_t end, int axis, l_val start, l_val length) {
  nest_builder *nb = x->nb;
  uint32_t mark = nest_mark(nb);
  nb->vec = axis;
  nb->at[axis] = start;
  for (uint32_t i = first; i < end; i++) {
    const work *w = &x->open[i];
    if (w->kind == WORK_EFFECT ? !nest_prepare_effect(nb, w->v) : !nest_prepare(nb, worked_on(x, w))) return false;
  }
  nest_vec(nb, length);
  for (uint32_t i = first; i < end; i++) /* all loads come first */
    if (x->open[i].kind != WORK_EFFECT && !nest_value(nb, worked_on(x, &x->open[i]))) return false;
  for (uint32_t i = first; i < end; i++) {
    const work *w = &x->open[i];
    if (w->kind == WORK_EFFECT) {
      if (!nest_effect(nb, w->v)) return false;
      continue;
    }
    l_val to = x->local[w->kind == WORK_SET ? x->k->nodes[w->v].a : w->v];
    l_val v = nest_value(nb, worked_on(x, w));
    nest_code(nb, (l_instr){.code = L_STORE, .imm = -(int64_t)to, .h = v, .a = nb->zero, .b = nb->one});
  }
  nest_vec_end(nb, mark);
  nb->vec = -1;
  for (uint32_t i = first; i < end; i++) {
    const work *w = &x->open[i];
    if (w->kind == WORK_KEEP || w->kind == WORK_FIRST)
      nb->kept[w->v] = (struct kept){.in = -(int64_t)x->local[w->v], .base = nb->zero, .stride = nb->one};
  }
  return !nb->why;
}

/* Does what is to be done in the open segment. */
static bool flush(loops *x) {
  bool ok = true;
  if (x->c >= 0 && x->nopen) {
    ok = make_vec(x, 0, x->nopen, x->c, x->start, x->length);
  } else {
    for (uint32_t i = 0; i < x->nopen && ok; i++) {
      int axis = __builtin_ctz(x->k->nodes[x->open[i].v].axes);
      ok = make_vec(x, i, i + 1, axis, x->nb->zero, nest_dim(x->nb, x->k->axes[axis].extent));
    }
  }
  x->nopen = 0;
  return ok;
}

static bool block(loops *x, k_val from, k_val to);

static k_val end_of(const k_kernel *k, k_val loop) {
  k_val v = loop + 1;
  for (int depth = 1; depth; v++) depth += k->nodes[v].code == K_END ? -1 : k->nodes[v].code == K_WHILE ? 1 : 0;
  return v - 1;
}

static bool loop(loops *x, k_val v, k_val last) {
  nest_builder *nb = x->nb;
  if (!flush(x)) return false;
  nest_code(nb, (l_instr){.code = L_WHILE, .a = nest_value(nb, x->k->nodes[v].a)});
  uint32_t mark = nest_mark(nb);
  nest_code(nb, (l_instr){.code = L_POLL});
  if (!block(x, v + 1, last) || !flush(x)) return false;
  nest_end(nb, mark);
  return true;
}

static bool number(loops *x, k_val v) {
  nest_builder *nb = x->nb;
  const k_node *n = &x->k->nodes[v];
  switch (n->code) {
  case K_CARRY: {
    l_val first = nest_value(nb, n->a);
    if (first) nest_set_value(nb, v, nest_code(nb, (l_instr){.code = L_CARRY, .dtype = n->dtype, .a = first}));
    return first != 0;
  }
  case K_SET: {
    l_val carry = nest_value(nb, n->a), next = nest_value(nb, n->b);
    nest_code(nb, (l_instr){.code = L_SET, .a = carry, .b = next});
    return next != 0;
  }
  default: return k_is_effect(n) ? !x->once || nest_effect(nb, v) : nest_value(nb, v) != 0;
  }
}

static bool block(loops *x, k_val from, k_val to) {
  const k_kernel *k = x->k;
  for (k_val v = from; v < to; v++) {
    const k_node *n = &k->nodes[v];
    if (n->code == K_WHILE) {
      k_val last = end_of(k, v);
      if (!loop(x, v, last)) return false;
      v = last;
      continue;
    }
    bool elements = by_element(x, n->code == K_SET ? n->a : v);
    if (!elements) {
      /* what is loaded or updated here may just have been copied */
      bool memory = n->code == K_LOAD || n->code == K_STORE;
      if (memory && k->buffers[n->buffer].mode != BUF_IN && !flush(x)) return false;
      if (!number(x, v)) return nest_refuse(x->nb, lower_no_memory);
      continue;
    }
    if (!x->each) continue;
    if (n->code == K_CARRY || n->code == K_SET || k_is_effect(n))
      do_later(x, n->code == K_CARRY ? WORK_FIRST : n->code == K_SET ? WORK_SET : WORK_EFFECT, v);
    else if (x->apart[v])
      do_later(x, WORK_KEEP, v);
  }
  return true;
}

/* Emits a phase of instances: one, or as many as there are tiles times the other axes of `par`. */
static bool phase(loops *x, k_mask par, int64_t tile) {
  nest_builder *nb = x->nb;
  const k_kernel *k = x->k;
  nest_code(nb, (l_instr){.code = L_PHASE});
  nb->body = true;
  l_val n = nb->one, tiles = nb->one, by = nest_number(nb, tile);
  for (int a = 0; a < (int)k->naxes; a++)
    if (axis_in(par, a)) n = nest_index(nb, L_IMUL, n, nest_dim(nb, k->axes[a].extent));
  if (x->c >= 0) {
    l_val more = nest_index(nb, L_IADD, nest_dim(nb, k->axes[x->c].extent), nest_number(nb, tile - 1));
    tiles = nest_index(nb, L_IDIV, more, by);
    n = nest_index(nb, L_IMUL, n, tiles);
  }
  l_val p = nest_code(nb, (l_instr){.code = L_PAR, .a = n, .imm = 1});
  if (x->c >= 0) {
    l_val at = nest_code(nb, (l_instr){.code = L_VAR, .a = p});
    x->start = nest_index(nb, L_IMUL, nest_index(nb, L_IMOD, at, tiles), by);
    l_val left = nest_index(nb, L_ISUB, nest_dim(nb, k->axes[x->c].extent), x->start);
    x->length = nest_index(nb, L_IMIN, left, by);
    at = nest_index(nb, L_IDIV, at, tiles);
    for (int a = (int)k->naxes - 1; a >= 0; a--) {
      if (!axis_in(par, a)) continue;
      par &= ~axis_bit(a);
      nb->at[a] = par ? nest_index(nb, L_IMOD, at, nest_dim(nb, k->axes[a].extent)) : at;
      if (par) at = nest_index(nb, L_IDIV, at, nest_dim(nb, k->axes[a].extent));
    }
  }
  for (k_val v = 1; v < k->n && x->c >= 0; v++) {
    if (!x->apart[v]) continue;
    x->local[v] = nest_code(nb, (l_instr){.code = L_LOCAL, .flags = L_SHARED, .dtype = k->nodes[v].dtype, .a = by});
  }
  bool ok = block(x, 1, k->n) && flush(x);
  nest_forget(nb, 0);
  for (k_val v = 1; v < k->n; v++) nb->kept[v].in = 0;
  l_end(nb->p);
  return ok && !nb->why;
}

bool nest_loops(nest_builder *nb, schedule_target target) {
  const k_kernel *k = nb->k;
  loops x = {.nb = nb, .k = k, .c = -1, .once = true, .each = true};
  k_mask carried = 0;
  bool once = false;
  for (k_val v = 1; v < k->n; v++) {
    if (k->nodes[v].code == K_CARRY) carried |= k->nodes[v].axes;
    once |= k_is_effect(&k->nodes[v]) && !k->nodes[v].axes;
  }
  for (int a = 0; a < (int)k->naxes; a++)
    if (axis_in(carried, a)) x.c = a;
  int c = x.c;
  bool ok = begin(&x);
  if (ok && c >= 0 && once) {
    /* numbers are what does not vary at all */
    x.c = -1;
    x.each = false;
    ok = phase(&x, 0, 0);
    x.c = c;
    x.each = true;
  }
  x.once = c < 0;
  ok = ok && phase(&x, carried & ~axis_bit(c), target == TARGET_GPU ? TILE_GPU : TILE);
  end(&x);
  return ok;
}
