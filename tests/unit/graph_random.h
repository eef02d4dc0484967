/* Random graphs for tests: every op of the table on operands that fit, found by asking op_infer. */
#ifndef TESTS_GRAPH_RANDOM_H
#define TESTS_GRAPH_RANDOM_H

#include <math.h>
#include <string.h>

#include "tests/unit/graph_case.h"

typedef struct rng {
  uint64_t s;
} rng;

static inline uint64_t rng_next(rng *r) {
  r->s += 0x9e3779b97f4a7c15u;
  uint64_t z = r->s;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}
static inline int rng_below(rng *r, int n) { return (int)(rng_next(r) % (uint64_t)n); }
static inline double rng_uniform(rng *r) { return (double)(rng_next(r) >> 11) * 0x1p-53; }

typedef struct random_options {
  bool symbolic;    /* sizes of inputs are symbols */
  bool floats_only; /* f64 inputs, ops with a gradient, no weak scalars */
  int nodes;
  int64_t shape[4]; /* that of inputs, of which some axes are 1 or left out, so that many pairs broadcast */
  int64_t most;     /* elements of a result; 0: 200, and the shape is [2, 1, 3, 2] */
} random_options;

static inline graph_type random_type(rng *r, graph *g, const random_options *o, uint32_t input) {
  static const int64_t usual[] = {2, 1, 3, 2};
  const int64_t *base = o->most ? o->shape : usual;
  graph_type t = {.dtype = QN_f64};
  if (!o->floats_only) {
    if (rng_below(r, 6) == 0) {
      static const uint8_t weak[] = {QN_bool, QN_i64, QN_f64};
      return (graph_type){.dtype = weak[rng_below(r, 3)], .weak = true};
    }
    static const uint8_t dtypes[] = {QN_bool, QN_u8,  QN_i8,  QN_i32, QN_i64, QN_f16,
                                     QN_bf16, QN_f32, QN_f32, QN_f64, QN_i64, QN_f32};
    t.dtype = dtypes[rng_below(r, 12)];
  }
  t.rank = (uint8_t)rng_below(r, 4);
  for (int k = 0; k < t.rank; k++) {
    int64_t size = base[4 - t.rank + k];
    t.shape[k] = rng_below(r, 4) == 0 ? 1 : size;
    if (o->symbolic && rng_below(r, 2))
      t.shape[k] = dim_symbol(&g->dims, DIM_FROM_INPUT, input, (uint16_t)k, t.shape[k], rng_below(r, 2) ? "n" : NULL);
  }
  return t;
}

static inline void random_attr(rng *r, graph *g, op_id op, const graph_type *in, int nin, op_attr *a) {
  const graph_type *x = &in[0];
  dim_table *t = &g->dims;
  static const uint8_t dtypes[] = {QN_bool, QN_u8, QN_i16, QN_i32, QN_i64, QN_f16, QN_bf16, QN_f32, QN_f64};
  *a = (op_attr){0};
  int axis = nin && x->rank ? rng_below(r, x->rank) : 0;
  if (op_rows[op].klass == CLASS_REDUCE) {
    a->axes = nin && x->rank ? (uint8_t)rng_below(r, 1 << x->rank) : 0;
    a->keepdims = (uint8_t)rng_below(r, 2);
    return;
  }
  if (op_rows[op].klass == CLASS_SCAN) {
    a->axes = (uint8_t)(1 << axis);
    a->flags = (uint8_t)rng_below(r, 4);
    return;
  }
  switch (op) {
  case OP_cast:
    a->dtype = dtypes[rng_below(r, 9)];
    if (x->rank == 0 && rng_below(r, 2)) {
      a->dtype = rng_below(r, 2) ? QN_f64 : QN_i64;
      a->flags = ATTR_WEAK;
    }
    break;
  case OP_fit: a->dtype = dtypes[rng_below(r, 9)]; break;
  case OP_recurrence:
    a->axes = (uint8_t)(1 << axis);
    a->flags = (uint8_t)rng_below(r, 4);
    break;
  case OP_sort:
  case OP_argsort:
    a->axes = (uint8_t)(1 << axis);
    a->flags = rng_below(r, 2) ? ATTR_DESCENDING : 0;
    break;
  case OP_gather:
  case OP_gather_add:
  case OP_concat: a->axes = (uint8_t)(1 << axis); break;
  case OP_iota:
    a->dtype = dtypes[1 + rng_below(r, 8)];
    a->n = (uint8_t)(1 + rng_below(r, 2));
    a->axes = (uint8_t)(1 << rng_below(r, a->n));
    a->d[0] = 1 + rng_below(r, 3);
    a->d[1] = 3;
    break;
  case OP_random_bits:
  case OP_random_uniform:
  case OP_random_normal:
    a->dtype = op == OP_random_bits ? QN_i64 : QN_f32;
    a->mode = (uint8_t)rng_below(r, 2);
    a->n = 2;
    a->d[0] = 2;
    a->d[1] = 3;
    break;
  case OP_reshape: {
    qn_dim all = graph_elements(g, x);
    int form = rng_below(r, 3);
    a->n = (uint8_t)(form + 1);
    for (int k = 0; k < a->n; k++) a->d[k] = 1;
    a->d[rng_below(r, a->n)] = all;
    if (form == 2 && x->rank == 2) a->d[0] = 1, a->d[1] = x->shape[1], a->d[2] = x->shape[0];
    break;
  }
  case OP_broadcast:
    a->n = (uint8_t)(x->rank + (x->rank < 3 ? rng_below(r, 2) : 0));
    for (int k = 0; k < a->n; k++) {
      int j = k - (a->n - x->rank);
      a->d[k] = j < 0 ? 2 : x->shape[j] == 1 && rng_below(r, 2) ? 3 : x->shape[j];
    }
    break;
  case OP_permute:
    a->n = x->rank;
    for (int k = 0; k < x->rank; k++) a->d[k] = k;
    for (int k = 0; k + 1 < x->rank; k++) {
      int j = k + rng_below(r, x->rank - k);
      qn_dim swap = a->d[k];
      a->d[k] = a->d[j];
      a->d[j] = swap;
    }
    break;
  case OP_slice:
  case OP_slice_put:
    a->n = (uint8_t)(3 * x->rank);
    for (int k = 0; k < x->rank; k++) {
      qn_dim n = x->shape[k], *d = &a->d[3 * k];
      int form = rng_below(r, 5);
      d[0] = 0, d[1] = n, d[2] = 1;
      if (dim_hint(t, n) < 1) continue;
      if (form == 0) d[0] = dim_sub(t, n, 1), d[2] = -1; /* all, backwards */
      if (form == 1) d[0] = 1, d[1] = dim_sub(t, n, 1);  /* all but the first */
      if (form == 2) d[1] = dim_make(t, DIM_FLOORDIV, dim_add(t, n, 1), 2), d[2] = 2;
      if (form == 3) d[1] = 1;
    }
    break;
  case OP_window:
    a->n = 3;
    a->axes = (uint8_t)(1 << (x->rank ? rng_below(r, x->rank) : 0));
    for (int k = 0; k < 3; k++) a->d[k] = 1 + rng_below(r, k ? 2 : 3);
    break;
  case OP_pad:
    a->n = (uint8_t)(3 * x->rank);
    for (int k = 0; k < a->n; k++) a->d[k] = rng_below(r, 2);
    break;
  case OP_index: a->n = 1, a->d[0] = nin - 1; break;
  case OP_scatter: a->n = 1, a->d[0] = nin - 2, a->mode = (uint8_t)rng_below(r, 5); break;
  default: break;
  }
}

/* Appends a random op on random nodes; 0 if what was drawn does not fit. */
static inline uint32_t random_op(rng *r, graph *g, const random_options *o) {
  op_id op = (op_id)rng_below(r, OP_COUNT - 1);
  op = (op_id)(op + (op >= OP_gemm)); /* which graphs get for a device only, when they are simplified */
  uint32_t in[8];
  graph_type types[8];
  op_attr attr;
  op_types out;
  op_refusal why;
  if (o->floats_only && op_rows[op].no_grad) return 0;
  if (op_rows[op].shape_rule == SH_data && rng_below(r, 4)) return 0;
  int nin = op_rows[op].arity;
  if (nin < 0)
    nin = op == OP_scatter ? 3 + rng_below(r, 2) : op == OP_index ? 2 + rng_below(r, 2) : 1 + rng_below(r, 3);
  for (int k = 0; k < nin; k++) {
    for (int tries = 0; tries < 20; tries++) { /* prefer what the role needs */
      in[k] = 1 + (uint32_t)rng_below(r, (int)g->n - 1);
      if (rng_below(r, 2)) in[k] = g->n - 1 - (uint32_t)rng_below(r, (int)(g->n < 8 ? g->n - 1 : 7));
      const graph_node *n = &g->nodes[in[k]];
      op_role role = op_operand_role(op, k, nin);
      bool isint = dtype_is_int((qn_dtype)n->type.dtype), isbool = n->type.dtype == QN_bool;
      if (role == ROLE_INDEX ? isint : role == ROLE_CONDITION ? isbool : role == ROLE_KEY ? isint : true) break;
    }
    types[k] = g->nodes[in[k]].type;
  }
  random_attr(r, g, op, types, nin, &attr);
  if (!op_infer(&g->dims, op, types, nin, &attr, &out, &why)) return 0;
  int64_t all = 1;
  for (int k = 0; k < out.result.rank; k++) all *= dim_hint(&g->dims, out.result.shape[k]);
  if (all > (o->most ? o->most : 200)) return 0;
  span at = {1, (uint32_t)rng_below(r, 100), 100};
  uint32_t site = rng_below(r, 4) ? (uint32_t)rng_below(r, (int)g->nsites)
                                  : graph_site_add(g, at, (uint32_t)rng_below(r, (int)g->nsites),
                                                   rng_below(r, 2) ? "f \"x\"" : NULL, at.start & 1);
  return graph_op(g, op, in, nin, &attr, site);
}

static inline uint32_t random_const(rng *r, graph *g, const random_options *o) {
  static const double special[] = {0, -0.0, 1, -1, 2, 0.5, 3, 0.1, INFINITY, NAN, 1e-40, 255, 4, -2.5};
  int which = rng_below(r, o->floats_only ? 8 : 14);
  qn_dtype d = o->floats_only ? QN_f64 : (qn_dtype)rng_below(r, QN_f64 + 1);
  bool weak = !o->floats_only && rng_below(r, 2);
  if (weak) d = rng_below(r, 3) ? rng_below(r, 2) ? QN_f64 : QN_i64 : QN_bool;
  double f = special[which];
  int64_t i = f - f == 0 ? (int64_t)f : 1;
  if (rng_below(r, 4) == 0 && !weak) {
    char data[6 * 8] = {0};
    graph_type t = {.dtype = (uint8_t)d, .rank = 2, .shape = {2, 3}};
    for (int k = 0; k < 6; k++)
      dtype_store(d, data + (size_t)k * dtype_size(d),
                  dtype_is_float(d) ? value_float(f + k)
                  : d == QN_bool    ? value_bool(k & 1)
                                    : value_int(k & 3));
    return graph_const(g, t, data, 0);
  }
  if (d == QN_u8 && i < 0) i = 3;
  return graph_const_scalar(g, d, weak, f, d == QN_i8 && i > 127 ? 127 : i, 0);
}

static inline graph *random_graph(uint64_t seed, const random_options *o) {
  rng r = {seed * 7919 + 1};
  graph *g = graph_new(NULL);
  int inputs = 2 + rng_below(&r, 4);
  for (int k = 0; k < inputs; k++) graph_input(g, random_type(&r, g, o, g->ninputs), 0);
  for (int made = 0, tries = 0; made < o->nodes && tries < 40 * o->nodes; tries++) {
    if (rng_below(&r, 12) == 0)
      random_const(&r, g, o);
    else if (!o->symbolic && !o->floats_only && rng_below(&r, 40) == 0)
      graph_input(g, random_type(&r, g, o, g->ninputs), 0);
    else if (random_op(&r, g, o))
      made++;
  }
  for (int k = 0; k < 3; k++) graph_output(g, g->n - 1 - (uint32_t)rng_below(&r, (int)(g->n < 10 ? g->n - 1 : 9)));
  return g;
}

/* Data for an input: many small whole numbers, so that values meet and ties occur. */
static inline double random_datum(rng *r, qn_dtype d, bool wild) {
  if (d == QN_bool) return rng_below(r, 2);
  if (d == QN_u8) return rng_below(r, 4);
  if (!dtype_is_float(d)) return rng_below(r, 5) - 2;
  if (wild && rng_below(r, 8) == 0) {
    static const double special[] = {0, -0.0, INFINITY, -INFINITY, NAN, 1e30, -1e-40};
    return special[rng_below(r, 7)];
  }
  return rng_below(r, 2) ? rng_below(r, 7) - 3 : 4 * rng_uniform(r) - 2;
}

#endif
