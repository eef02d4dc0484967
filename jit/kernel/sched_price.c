/* What a nest takes on a machine (schedule_numbers_of), at the recorded sizes. */
#include "jit/kernel/sched_impl.h"

#include <stdlib.h>

/* What a division of 64-bit integers costs in simple operations: there is no vector instruction for it. */
enum { DIVISION_WEIGHT = 50 };

double nest_weight(const k_node *n) {
  switch (n->code) {
  case K_CONST:
  case K_SCALAR: return 0;
  case K_MATH: return 8;
  case K_OP:
    return n->sub == KOP_div || n->sub == KOP_sqrt ? 3
           : n->sub == KOP_idiv || n->sub == KOP_imod || n->sub == KOP_ipow
               ? (dtype_size((qn_dtype)n->dtype) == 8 ? DIVISION_WEIGHT : 8)
               : 1;
  case K_SCAN: return 100;
  default: return 1;
  }
}

/* Nanoseconds on a current core with 256-bit vectors and its share of memory bandwidth. Only their ratios matter. */
static const double NS_BYTE = 0.04, NS_OP = 0.03, NS_FMA = 0.02, NS_ROW = 15;

/* The bytes of a buffer that a nest touches, each counted once however often it is loaded. */
static double touched_bytes(const nest *s, int buffer) {
  const k_kernel *k = s->k;
  double most = 0;
  for (k_val v = 1; v < k->n; v++) {
    const k_node *n = &k->nodes[v];
    bool memory = n->code == K_LOAD || n->code == K_STORE || n->code == K_STOREF;
    if (!s->needed[v] || !memory || n->buffer != buffer) continue;
    double bytes = (double)k_points(k, k->forms[n->at].axes) * (double)dtype_size((qn_dtype)n->dtype);
    if (bytes > most) most = bytes;
  }
  return most;
}

/* How many divisions a form's coordinates need for each element of the VEC. */
static int divisions(const nest *s, k_form f) {
  const k_linear *l = &s->k->forms[f];
  int n = 0;
  for (uint32_t i = 0; i < l->n; i++) {
    const k_atom *a = &s->k->atoms[l->terms[i].atom];
    if (a->kind == ATOM_AXIS || a->kind == ATOM_VALUE || !axis_in(a->axes, vec_axis(&s->s.main))) continue;
    n += 1 + divisions(s, a->of);
  }
  return n;
}

typedef struct depends {
  k_mask *on; /* by node: the axes over which what it is computed from is reduced */
  k_mask all;
} depends;

static void gather(void *ctx, k_val v) { ((depends *)ctx)->all |= ((depends *)ctx)->on[v]; }

static double hint_of(const nest *s, const loop_list *l) {
  double n = 1;
  for (int i = 0; i < l->n; i++)
    if (l->at[i].role == LOOP_PAR) n *= (double)tiles_hint(s->k, l->at[i].axis, l->at[i].size);
  return n;
}

double nest_price(const nest *s) {
  const k_kernel *k = s->k;
  const loop_list *l = &s->s.main;
  double bytes = 0, work = 0, nodes = 0;
  for (uint32_t b = 0; b < k->nbuffers; b++) bytes += touched_bytes(s, (int)b);
  int c = vec_axis(l), cut = nest_cut(s), passes = 1, merges = 0;
  bool update = k->nodes[s->effects[0]].code == K_STOREF;
  k_val dot = 0;
  k_mask rows = s->axes & ~axis_bit(c), tile = 0, fors = 0;
  for (int i = 0; i < l->n; i++) {
    if (l->at[i].role == LOOP_TILE) tile = axis_bit(l->at[i].axis);
    if (l->at[i].role == LOOP_FOR) fors |= axis_bit(l->at[i].axis);
  }
  depends d = {calloc(k->n, sizeof *d.on), 0};
  for (k_val v = 1; d.on && v < k->n; v++) {
    const k_node *n = &k->nodes[v];
    if (!s->needed[v]) continue;
    nodes++;
    d.all = 0;
    k_each_operand(k, v, gather, &d);
    if (n->code == K_DOT && axis_in(tile, n->axis)) dot = v;
    k_mask runs = n->axes | (n->axes || k_folds(n) ? rows & ~(d.all & fors) : 0);
    if (update) runs = n->axes;
    if (tile) runs = n->axes | (n->code == K_LOAD || !dot ? 0 : k->nodes[dot].axes & n->axes);
    if (k_folds(n)) runs |= axis_bit(n->axis);
    d.on[v] = d.all | (k_folds(n) && n->code != K_SCAN ? axis_bit(n->axis) : 0);
    double times = (double)k_points(k, runs);
    work += times * (n->code == K_DOT ? NS_FMA : NS_OP * nest_weight(n));
    if (n->code == K_LOAD || n->code == K_STORE) work += times * NS_OP * DIVISION_WEIGHT * divisions(s, n->at);
    if (k_is_effect(n) && (d.all & axis_bit(c)) && passes < 2) passes = 2;
  }
  free(d.on);
  int phases = cut < 0 ? 1 : cut == c ? 2 * passes : 2;
  merges = cut < 0 ? 0 : phases / 2;
  double instances = hint_of(s, l);
  bool pool = k_points(k, s->axes) >= s->by->pool_points;
  double threads = !pool || instances < 1 ? 1 : instances < 4 ? instances : 4;
  double turns = tile ? 0 : passes * (double)k_points(k, s->axes & ~axis_bit(c));
  if (s->alone) turns += (double)s->by->grown; /* so that it is fused with nothing that keeps it from being cut */
  return s->by->phase_ns * phases + (pool ? s->by->pool_ns * (phases - merges) : 0) + NS_BYTE * bytes + work / threads +
         s->by->node_ns * nodes + NS_ROW * turns;
}
