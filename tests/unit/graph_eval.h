/* A small evaluator of graphs for tests: every op of the table, element by element, in double precision, rounded to the node's
 * dtype after each op; integers in 64 bits, wrapped. Slow and plain on purpose: it is what the passes are measured against.
 *
 *   eval e; eval_init(&e, g, NULL);            sizes are the hints, or values of symbols (indexed like g->dims.exprs)
 *   eval_input(&e, 0, data)                    doubles, in row-major order, for input 0
 *   eval_run(&e)                               false if a node would raise an error
 *   e.v[node].f / .i                           results: f for float nodes, i for integer and bool nodes
 *   eval_free(&e)
 */
#ifndef TESTS_GRAPH_EVAL_H
#define TESTS_GRAPH_EVAL_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/graph/graph.h"

typedef struct eval_value {
  int rank;
  int64_t shape[16], n;
  bool isfloat;
  double *f;
  int64_t *i;
} eval_value;

typedef struct eval {
  const graph *g;
  int64_t *symbols;
  eval_value *v;
  uint32_t raised; /* the first node that raised */
  bool misfit;     /* a size that data tell is not as a fact of the graph's dims says: it is no graph of these data */
} eval;

static inline int64_t eval_dim(const eval *e, qn_dim d) { return dim_eval(&e->g->dims, d, e->symbols); }

static inline void eval_new(eval_value *v, qn_dtype d, int rank, const int64_t *shape) {
  v->rank = rank;
  v->n = 1;
  v->isfloat = dtype_is_float(d);
  for (int k = 0; k < rank; k++) v->n *= v->shape[k] = shape[k];
  v->f = v->isfloat ? calloc((size_t)v->n + 1, sizeof *v->f) : NULL;
  v->i = v->isfloat ? NULL : calloc((size_t)v->n + 1, sizeof *v->i);
}

static inline void eval_drop(eval_value *v) {
  free(v->f);
  free(v->i);
  memset(v, 0, sizeof *v);
}

static inline double eval_num(const eval_value *v, int64_t at) { return v->isfloat ? v->f[at] : (double)v->i[at]; }

static inline double eval_round(qn_dtype d, double x) {
  switch (d) {
  case QN_f16: return f16_to_f32(f64_to_f16(x));
  case QN_bf16: return bf16_to_f32(f64_to_bf16(x));
  case QN_f32: return (double)(float)x;
  default: return x;
  }
}

static inline int64_t eval_wrap(qn_dtype d, int64_t i) {
  switch (d) {
  case QN_bool: return i != 0;
  case QN_u8: return (uint8_t)i;
  case QN_i8: return (int8_t)i;
  case QN_i16: return (int16_t)i;
  case QN_i32: return (int32_t)i;
  default: return i;
  }
}

static inline void eval_init(eval *e, const graph *g, const int64_t *symbols) {
  memset(e, 0, sizeof *e);
  e->g = g;
  e->symbols = calloc(g->dims.n + 1, sizeof *e->symbols);
  for (uint32_t k = 0; k < g->dims.n; k++) e->symbols[k] = symbols ? symbols[k] : g->dims.exprs[k].hint;
  e->v = calloc(g->n, sizeof *e->v);
}

static inline void eval_shape(const eval *e, const graph_type *t, int64_t *shape) {
  for (int k = 0; k < t->rank; k++) shape[k] = eval_dim(e, t->shape[k]);
}

static inline void eval_input(eval *e, uint32_t input, const double *data) {
  uint32_t node = e->g->inputs[input];
  const graph_type *t = &e->g->nodes[node].type;
  int64_t shape[8];
  eval_value *v = &e->v[node];
  eval_drop(v);
  eval_shape(e, t, shape);
  eval_new(v, (qn_dtype)t->dtype, t->rank, shape);
  for (int64_t k = 0; k < v->n; k++) {
    if (v->isfloat)
      v->f[k] = eval_round((qn_dtype)t->dtype, data[k]);
    else
      v->i[k] = eval_wrap((qn_dtype)t->dtype, (int64_t)data[k]);
  }
}

static inline void eval_free(eval *e) {
  for (uint32_t k = 0; k < e->g->n; k++) eval_drop(&e->v[k]);
  free(e->v);
  free(e->symbols);
}

/* ---- coordinates ---- */

static inline void eval_coords(const int64_t *shape, int rank, int64_t flat, int64_t *c) {
  for (int k = rank - 1; k >= 0; k--) {
    c[k] = shape[k] ? flat % shape[k] : 0;
    flat = shape[k] ? flat / shape[k] : 0;
  }
}

static inline int64_t eval_flat(const eval_value *v, const int64_t *c) {
  int64_t at = 0;
  for (int k = 0; k < v->rank; k++) at = at * v->shape[k] + c[k];
  return at;
}

/* Is there an element at these coordinates? A slice of fixed size may be of an axis that data have made shorter: no graph of these data. */
static inline bool eval_within(eval *e, const eval_value *v, const int64_t *c) {
  for (int k = 0; k < v->rank; k++)
    if (c[k] < 0 || c[k] >= v->shape[k]) e->misfit = true;
  return !e->misfit;
}

/* Element of `v` that broadcasts to coordinates c of a shape with `rank` axes. */
static inline int64_t eval_broadcast(const eval_value *v, int rank, const int64_t *c) {
  int64_t at = 0;
  for (int k = 0; k < v->rank; k++) at = at * v->shape[k] + (v->shape[k] == 1 ? 0 : c[rank - v->rank + k]);
  return at;
}

static inline void eval_copy(eval_value *to, int64_t at, const eval_value *from, int64_t k) {
  if (to->isfloat)
    to->f[at] = eval_num(from, k);
  else
    to->i[at] = from->isfloat ? (int64_t)from->f[k] : from->i[k];
}

/* ---- pointwise ---- */

static inline int64_t eval_floordiv(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return (int64_t)(0 - (uint64_t)a);
  int64_t q = a / b;
  return q - (a % b && (a < 0) != (b < 0));
}

static inline double eval_extremum(double a, double b, bool smaller) {
  if (a != a || b != b) return NAN;
  if (a == b) return signbit(a) == smaller ? a : b;
  return (a < b) == smaller ? a : b;
}

/* Some powers are products by definition (jit/kernel/math.def), each rounded. */
static double eval_pow(qn_dtype d, double a, double b) {
  double square = d == QN_f32 ? (float)(a * a) : a * a;
  return b == 1 ? a : b == 2 ? square : b == 3 ? square * a : b == -1 ? 1 / a : pow(a, b);
}

static inline double eval_float_op(qn_dtype d, op_id op, double a, double b) {
  switch (op) {
  case OP_add: return a + b;
  case OP_sub: return a - b;
  case OP_mul: return a * b;
  case OP_div: return a / b;
  case OP_floordiv: return floor(a / b);
  case OP_mod: return a - b * floor(a / b);
  case OP_pow: return eval_pow(d, a, b);
  case OP_smul: return a == 0 || b == 0 ? 0 : a * b;
  case OP_neg: return -a;
  case OP_abs: return fabs(a);
  case OP_sign: return a > 0 ? 1 : a < 0 ? -1 : a;
  case OP_minimum: return eval_extremum(a, b, true);
  case OP_maximum: return eval_extremum(a, b, false);
  case OP_floor: return floor(a);
  case OP_ceil: return ceil(a);
  case OP_round: return rint(a);
  case OP_trunc: return trunc(a);
  case OP_sqrt: return sqrt(a);
  case OP_rsqrt: return 1 / sqrt(a);
  case OP_exp: return exp(a);
  case OP_exp2: return exp2(a);
  case OP_expm1: return expm1(a);
  case OP_log: return log(a);
  case OP_log2: return log2(a);
  case OP_log10: return log10(a);
  case OP_log1p: return log1p(a);
  case OP_sin: return sin(a);
  case OP_cos: return cos(a);
  case OP_tan: return tan(a);
  case OP_arcsin: return asin(a);
  case OP_arccos: return acos(a);
  case OP_arctan: return atan(a);
  case OP_arctan2: return atan2(a, b);
  case OP_sinh: return sinh(a);
  case OP_cosh: return cosh(a);
  case OP_tanh: return tanh(a);
  case OP_sigmoid: return 1 / (1 + exp(-a));
  case OP_erf: return erf(a);
  case OP_silu: return a / (1 + exp(-a));
  case OP_gelu: return a * 0.5 * erfc(-a * 0.70710678118654752440);
  case OP_gelu_tanh: return a * 0.5 * (1 + tanh(0.79788456080286535588 * (a + 0.044715 * a * a * a)));
  default: return a;
  }
}

static inline int64_t eval_int_op(op_id op, int64_t a, int64_t b, bool isbool) {
  uint64_t x = (uint64_t)a, y = (uint64_t)b;
  switch (op) {
  case OP_add: return (int64_t)(x + y);
  case OP_sub: return (int64_t)(x - y);
  case OP_mul:
  case OP_smul: return (int64_t)(x * y);
  case OP_floordiv: return eval_floordiv(a, b);
  case OP_mod: return b == 0 ? 0 : (int64_t)(x - y * (uint64_t)eval_floordiv(a, b));
  case OP_pow: {
    uint64_t r = 1;
    if (b < 0) return 0;
    for (; y; y >>= 1, x *= x)
      if (y & 1) r *= x;
    return (int64_t)r;
  }
  case OP_neg: return (int64_t)(0 - x);
  case OP_abs: return a < 0 ? (int64_t)(0 - x) : a;
  case OP_sign: return (a > 0) - (a < 0);
  case OP_minimum: return a < b ? a : b;
  case OP_maximum: return a > b ? a : b;
  case OP_bitand: return a & b;
  case OP_bitor: return a | b;
  case OP_xor: return a ^ b;
  case OP_invert: return isbool ? !a : ~a;
  case OP_shl: return (int64_t)(x << (y & 63));
  case OP_shr: return a >> (y & 63);
  default: return a;
  }
}

static inline bool eval_pointwise(eval *e, const graph_node *n, eval_value *out) {
  op_id op = (op_id)n->op;
  qn_dtype d = (qn_dtype)n->type.dtype;
  const eval_value *in[3] = {0};
  for (int k = 0; k < n->nin; k++) in[k] = &e->v[n->in[k]];
  qn_dtype from = (qn_dtype)e->g->nodes[n->in[0]].type.dtype;
  bool isfloat = in[0]->isfloat, proven = n->attr && (n->attr->flags & ATTR_PROVEN);
  for (int64_t at = 0; at < out->n; at++) {
    int64_t c[16], p[3] = {0};
    eval_coords(out->shape, out->rank, at, c);
    for (int k = 0; k < n->nin; k++) p[k] = eval_broadcast(in[k], out->rank, c);
    if (op >= OP_eq && op <= OP_ge) {
      bool lt, eq, un = false;
      if (isfloat) {
        double a = in[0]->f[p[0]], b = in[1]->f[p[1]];
        lt = a < b, eq = a == b, un = a != a || b != b;
      } else {
        lt = in[0]->i[p[0]] < in[1]->i[p[1]], eq = in[0]->i[p[0]] == in[1]->i[p[1]];
      }
      const bool r[] = {eq, !eq, lt, lt || eq, !lt && !eq && !un, !lt && !un};
      out->i[at] = r[op - OP_eq];
    } else if (op == OP_where) {
      eval_copy(out, at, in[in[0]->i[p[0]] ? 1 : 2], p[in[0]->i[p[0]] ? 1 : 2]);
    } else if (op == OP_isnan || op == OP_isinf || op == OP_isfinite) {
      double a = eval_num(in[0], p[0]);
      out->i[at] = op == OP_isnan ? a != a : op == OP_isinf ? isinf(a) != 0 : isfinite(a) != 0;
    } else if (op == OP_cast || op == OP_fit) {
      if (!isfloat && out->isfloat)
        out->f[at] = eval_round(d, (double)in[0]->i[p[0]]);
      else if (!isfloat)
        out->i[at] = eval_wrap(d, in[0]->i[p[0]]);
      else if (out->isfloat)
        out->f[at] = eval_round(d, in[0]->f[p[0]]);
      else if (d == QN_bool)
        out->i[at] = in[0]->f[p[0]] != 0;
      else {
        double a = trunc(in[0]->f[p[0]]);
        int64_t i = a >= -9e18 && a <= 9e18 ? (int64_t)a : 0;
        if (!proven && ((double)i != a || eval_wrap(d, i) != i)) return false;
        out->i[at] = eval_wrap(d, i);
      }
    } else if (isfloat) {
      out->f[at] = eval_round(d, eval_float_op(d, op, in[0]->f[p[0]], n->nin > 1 ? in[1]->f[p[1]] : 0));
    } else {
      int64_t a = in[0]->i[p[0]], b = n->nin > 1 ? in[1]->i[p[1]] : 0;
      if (!proven && (op == OP_floordiv || op == OP_mod) && b == 0) return false;
      if (!proven && op == OP_pow && b < 0) return false;
      if (!proven && (op == OP_shl || op == OP_shr) && (b < 0 || b >= 8 * (int64_t)dtype_size(from))) return false;
      out->i[at] = eval_wrap(d, eval_int_op(op, a, b, from == QN_bool));
    }
  }
  return true;
}

/* ---- reductions and scans ---- */

static inline void eval_combine(op_id op, qn_dtype d, eval_value *to, int64_t at, const eval_value *x, int64_t k,
                                bool first) {
  (void)d;
  if (x->isfloat) {
    double a = to->f[at], b = x->f[k];
    switch (op) {
    case OP_sum:
    case OP_cumsum: to->f[at] = first ? b : a + b; break;
    case OP_prod:
    case OP_cumprod: to->f[at] = first ? b : a * b; break;
    case OP_max:
    case OP_cummax: to->f[at] = first ? b : eval_extremum(a, b, false); break;
    default: to->f[at] = first ? b : eval_extremum(a, b, true);
    }
    return;
  }
  int64_t a = to->i[at], b = x->i[k];
  switch (op) {
  case OP_sum:
  case OP_cumsum: to->i[at] = first ? b : (int64_t)((uint64_t)a + (uint64_t)b); break;
  case OP_prod:
  case OP_cumprod: to->i[at] = first ? b : (int64_t)((uint64_t)a * (uint64_t)b); break;
  case OP_max:
  case OP_cummax:
  case OP_any: to->i[at] = first || b > a ? b : a; break;
  default: to->i[at] = first || b < a ? b : a;
  }
}

static inline void eval_identity(op_id op, qn_dtype d, eval_value *v, int64_t at) {
  bool low = op == OP_max || op == OP_cummax, high = op == OP_min || op == OP_cummin;
  if (v->isfloat) {
    v->f[at] = op == OP_sum || op == OP_cumsum ? -0.0 : low ? -INFINITY : high ? INFINITY : 1;
    return;
  }
  int bits = 8 * (int)dtype_size(d);
  int64_t most = d == QN_u8 ? 255 : d == QN_bool ? 1 : (int64_t)(((uint64_t)1 << (bits - 1)) - 1);
  int64_t least = d == QN_u8 || d == QN_bool ? 0 : -most - 1;
  v->i[at] = low ? least : high ? most : op == OP_sum || op == OP_cumsum || op == OP_any ? 0 : 1;
}

static inline void eval_reduce(eval *e, const graph_node *n, eval_value *out) {
  const eval_value *x = &e->v[n->in[0]];
  op_id op = (op_id)n->op;
  qn_dtype d = (qn_dtype)n->type.dtype;
  bool arg = op == OP_argmax || op == OP_argmin;
  int64_t *count = calloc((size_t)out->n + 1, sizeof *count), *best = calloc((size_t)out->n + 1, sizeof *best);
  if (!arg)
    for (int64_t k = 0; k < out->n; k++) eval_identity(op, d, out, k);
  for (int64_t k = 0; k < x->n; k++) {
    int64_t c[16], o[16], at = 0, index = 0;
    int m = 0;
    eval_coords(x->shape, x->rank, k, c);
    for (int a = 0; a < x->rank; a++) {
      bool reduced = n->attr->axes >> a & 1;
      if (reduced) index = index * x->shape[a] + c[a];
      if (!reduced)
        o[m++] = c[a];
      else if (n->attr->keepdims)
        o[m++] = 0;
    }
    at = eval_flat(out, o);
    if (!arg) {
      eval_combine(op, d, out, at, x, k, count[at] == 0);
    } else {
      double a = eval_num(x, k), b = count[at] ? eval_num(x, best[at]) : 0;
      bool wins = b == b && (a != a || (op == OP_argmax ? a > b : a < b));
      if (count[at] == 0 || wins) {
        best[at] = k;
        out->i[at] = index;
      }
    }
    count[at]++;
  }
  if (out->isfloat)
    for (int64_t k = 0; k < out->n; k++) out->f[k] = eval_round(d, out->f[k]);
  else if (!arg)
    for (int64_t k = 0; k < out->n; k++) out->i[k] = eval_wrap(d, out->i[k]);
  free(count);
  free(best);
}

static inline void eval_scan(eval *e, const graph_node *n, eval_value *out) {
  const eval_value *x = &e->v[n->in[0]];
  int axis = __builtin_ctz(n->attr->axes);
  qn_dtype d = (qn_dtype)n->type.dtype;
  bool reverse = n->attr->flags & ATTR_REVERSE, exclusive = n->attr->flags & ATTR_EXCLUSIVE;
  eval_value acc;
  eval_new(&acc, d, 0, NULL);
  for (int64_t k = 0; k < x->n; k++) {
    int64_t c[16], len = x->shape[axis];
    eval_coords(x->shape, x->rank, k, c);
    if (c[axis] != 0) continue;
    eval_identity((op_id)n->op, d, &acc, 0);
    for (int64_t s = 0; s < len; s++) {
      c[axis] = reverse ? len - 1 - s : s;
      int64_t at = eval_flat(x, c);
      if (exclusive) eval_copy(out, at, &acc, 0);
      eval_combine((op_id)n->op, d, &acc, 0, x, at, s == 0);
      if (acc.isfloat && d == QN_f32) acc.f[0] = (float)acc.f[0];
      if (!exclusive) eval_copy(out, at, &acc, 0);
      if (out->isfloat)
        out->f[at] = eval_round(d, out->f[at]);
      else
        out->i[at] = eval_wrap(d, out->i[at]);
    }
  }
  eval_drop(&acc);
}

/* ---- views and indexing ---- */

static inline void eval_view(eval *e, const graph_node *n, eval_value *out) {
  const eval_value *x = &e->v[n->in[0]];
  const qn_dim *d = n->attr->d;
  int64_t c[16], o[16];
  switch ((op_id)n->op) {
  case OP_reshape:
    for (int64_t k = 0; k < out->n; k++) eval_copy(out, k, x, k);
    break;
  case OP_broadcast:
    for (int64_t k = 0; k < out->n; k++) {
      eval_coords(out->shape, out->rank, k, c);
      eval_copy(out, k, x, eval_broadcast(x, out->rank, c));
    }
    break;
  case OP_permute:
    for (int64_t k = 0; k < out->n; k++) {
      eval_coords(out->shape, out->rank, k, c);
      for (int a = 0; a < out->rank; a++) o[d[a]] = c[a];
      eval_copy(out, k, x, eval_flat(x, o));
    }
    break;
  case OP_slice:
    for (int64_t k = 0; k < out->n; k++) {
      eval_coords(out->shape, out->rank, k, c);
      for (int a = 0; a < out->rank; a++) o[a] = eval_dim(e, d[3 * a]) + c[a] * d[3 * a + 2];
      if (!eval_within(e, x, o)) return;
      eval_copy(out, k, x, eval_flat(x, o));
    }
    break;
  case OP_window:
    for (int64_t k = 0; k < out->n; k++) {
      int axis = __builtin_ctz(n->attr->axes);
      eval_coords(out->shape, out->rank, k, c);
      c[axis] = c[axis] * d[1] + c[x->rank] * d[2];
      eval_copy(out, k, x, eval_flat(x, c));
    }
    break;
  case OP_pad:
    for (int64_t k = 0; k < out->n; k++) eval_copy(out, k, &e->v[n->in[1]], 0);
    for (int64_t k = 0; k < x->n; k++) {
      eval_coords(x->shape, x->rank, k, c);
      for (int a = 0; a < x->rank; a++) o[a] = eval_dim(e, d[3 * a]) + c[a] * (d[3 * a + 2] + 1);
      eval_copy(out, eval_flat(out, o), x, k);
    }
    break;
  default: { /* concat */
    int axis = __builtin_ctz(n->attr->axes);
    int64_t start = 0;
    for (int m = 0; m < n->nin; m++) {
      x = &e->v[n->in[m]];
      for (int64_t k = 0; k < x->n; k++) {
        eval_coords(x->shape, x->rank, k, c);
        c[axis] += start;
        eval_copy(out, eval_flat(out, c), x, k);
      }
      start += x->shape[axis];
    }
  }
  }
}

static inline void eval_store(eval_value *to, qn_dtype d, int64_t at, const eval_value *v, int64_t k, int mode) {
  if (to->isfloat) {
    double a = to->f[at], b = v->f[k];
    a = mode == SCATTER_SET   ? b
        : mode == SCATTER_ADD ? a + b
        : mode == SCATTER_MUL ? a * b
                              : eval_extremum(a, b, mode == SCATTER_MIN);
    to->f[at] = eval_round(d, a);
  } else {
    op_id op = mode == SCATTER_ADD   ? OP_add
               : mode == SCATTER_MUL ? OP_mul
               : mode == SCATTER_MIN ? OP_minimum
                                     : OP_maximum;
    to->i[at] = eval_wrap(d, mode == SCATTER_SET ? v->i[k] : eval_int_op(op, to->i[at], v->i[k], false));
  }
}

static inline bool eval_at(int64_t *i, int64_t size) {
  if (*i < -size || *i >= size) return false;
  if (*i < 0) *i += size;
  return true;
}

/* Shape that k index operands (from operand 1) broadcast to. */
static inline int eval_index_shape(eval *e, const graph_node *n, int k, int64_t *shape) {
  int rank = 0;
  for (int m = 1; m <= k; m++)
    if (e->v[n->in[m]].rank > rank) rank = e->v[n->in[m]].rank;
  for (int a = 0; a < rank; a++) shape[a] = 1;
  for (int m = 1; m <= k; m++) {
    const eval_value *v = &e->v[n->in[m]];
    for (int a = 0; a < v->rank; a++)
      if (v->shape[a] != 1) shape[rank - v->rank + a] = v->shape[a];
  }
  return rank;
}

static inline bool eval_index(eval *e, const graph_node *n, eval_value *out) {
  const eval_value *x = &e->v[n->in[0]];
  bool scatter = n->op == OP_scatter;
  int k = (int)n->attr->d[0];
  eval_value all = {0};
  int rank = all.rank = eval_index_shape(e, n, k, all.shape);
  for (int a = k; a < x->rank; a++) all.shape[all.rank++] = x->shape[a];
  all.n = 1;
  for (int a = 0; a < all.rank; a++) all.n *= all.shape[a];
  if (scatter)
    for (int64_t m = 0; m < x->n; m++) eval_copy(out, m, x, m);
  for (int64_t m = 0; m < all.n; m++) {
    int64_t c[16], o[16];
    eval_coords(all.shape, all.rank, m, c);
    for (int a = 0; a < k; a++) {
      const eval_value *index = &e->v[n->in[1 + a]];
      o[a] = index->i[eval_broadcast(index, rank, c)];
      if (!eval_at(&o[a], x->shape[a])) return false;
    }
    for (int a = k; a < x->rank; a++) o[a] = c[rank + a - k];
    if (scatter) {
      const eval_value *v = &e->v[n->in[1 + k]];
      eval_store(out, (qn_dtype)n->type.dtype, eval_flat(x, o), v, eval_broadcast(v, all.rank, c), n->attr->mode);
    } else {
      eval_copy(out, m, x, eval_flat(x, o));
    }
  }
  return true;
}

static inline bool eval_gather(eval *e, const graph_node *n, eval_value *out) {
  const eval_value *x = &e->v[n->in[0]], *index = &e->v[n->in[1]];
  int axis = __builtin_ctz(n->attr->axes);
  bool add = n->op == OP_gather_add;
  if (add)
    for (int64_t m = 0; m < x->n; m++) eval_copy(out, m, x, m);
  for (int64_t m = 0; m < index->n; m++) {
    int64_t c[16], from[16];
    eval_coords(index->shape, index->rank, m, c);
    memcpy(from, c, sizeof c);
    from[axis] = index->i[m];
    if (!eval_at(&from[axis], x->shape[axis])) return false;
    if (add)
      eval_store(out, (qn_dtype)n->type.dtype, eval_flat(x, from), &e->v[n->in[2]],
                 eval_broadcast(&e->v[n->in[2]], index->rank, c), SCATTER_ADD);
    else
      eval_copy(out, m, x, eval_flat(x, from));
  }
  return true;
}

static inline void eval_slice_put(eval *e, const graph_node *n, eval_value *out) {
  const eval_value *x = &e->v[n->in[0]], *v = &e->v[n->in[1]];
  int64_t shape[8], c[16], o[16], count = 1;
  for (int a = 0; a < x->rank; a++) count *= shape[a] = eval_dim(e, n->attr->d[3 * a + 1]);
  for (int64_t m = 0; m < x->n; m++) eval_copy(out, m, x, m);
  for (int64_t m = 0; m < count; m++) {
    eval_coords(shape, x->rank, m, c);
    for (int a = 0; a < x->rank; a++) o[a] = eval_dim(e, n->attr->d[3 * a]) + c[a] * n->attr->d[3 * a + 2];
    if (!eval_within(e, x, o)) return;
    eval_copy(out, eval_flat(x, o), v, eval_broadcast(v, x->rank, c));
  }
}

/* Sizes are made here: the symbol of the result gets its value. */
static inline void eval_data(eval *e, const graph_node *n, eval_value *out) {
  const eval_value *x = &e->v[n->in[0]], *mask = n->op == OP_nonzero ? x : &e->v[n->in[1]];
  int64_t count = 0, cell = mask->n ? x->n / mask->n : 1, shape[16], at = 0;
  for (int64_t k = 0; k < mask->n; k++) count += mask->i[k];
  if (n->type.shape[0] < 0) e->symbols[~n->type.shape[0]] = count;
  shape[0] = count;
  if (n->op == OP_nonzero)
    shape[1] = x->rank;
  else
    memcpy(shape + 1, x->shape + mask->rank, (size_t)(x->rank - mask->rank) * sizeof *shape);
  eval_new(out, (qn_dtype)n->type.dtype, n->type.rank, shape);
  for (int64_t k = 0; k < mask->n; k++) {
    if (!mask->i[k]) continue;
    if (n->op == OP_nonzero) {
      int64_t c[16];
      eval_coords(x->shape, x->rank, k, c);
      for (int a = 0; a < x->rank; a++) out->i[at++] = c[a];
    } else {
      for (int64_t m = 0; m < cell; m++) eval_copy(out, at++, x, k * cell + m);
    }
  }
}

/* ---- dot, sort ---- */

static inline void eval_dot(eval *e, const graph_node *n, eval_value *out) {
  eval_value x = e->v[n->in[0]], y = e->v[n->in[1]], o = *out; /* with rank 2 at least */
  if (x.rank == 1) {
    x.shape[1] = x.shape[0];
    x.shape[0] = 1;
    x.rank = 2;
  }
  if (y.rank == 1) y.shape[y.rank++] = 1;
  int64_t rows = x.shape[x.rank - 2], inner = x.shape[x.rank - 1], cols = y.shape[y.rank - 1];
  int batch = (x.rank > y.rank ? x.rank : y.rank) - 2;
  o.rank = batch + 2;
  o.shape[batch] = rows;
  o.shape[batch + 1] = cols;
  for (int64_t k = 0; k < o.n; k++) {
    int64_t c[16], cx[16], cy[16];
    eval_coords(o.shape, o.rank, k, c);
    double sum = 0;
    int64_t whole = 0;
    for (int64_t m = 0; m < inner; m++) {
      memcpy(cx, c, sizeof c);
      memcpy(cy, c, sizeof c);
      cx[o.rank - 1] = m;
      cy[o.rank - 2] = m;
      int64_t px = eval_broadcast(&x, o.rank, cx), py = eval_broadcast(&y, o.rank, cy);
      if (out->isfloat)
        sum += x.f[px] * y.f[py];
      else
        whole = (int64_t)((uint64_t)whole + (uint64_t)x.i[px] * (uint64_t)y.i[py]);
    }
    if (out->isfloat)
      out->f[k] = eval_round((qn_dtype)n->type.dtype, sum);
    else
      out->i[k] = eval_wrap((qn_dtype)n->type.dtype, whole);
  }
}

static inline void eval_recurrence(eval *e, const graph_node *n, eval_value *out) {
  const eval_value *a = &e->v[n->in[0]], *b = &e->v[n->in[1]];
  int axis = __builtin_ctz(n->attr->axes);
  bool reverse = n->attr->flags & ATTR_REVERSE, exclusive = n->attr->flags & ATTR_EXCLUSIVE;
  for (int64_t k = 0; k < out->n; k++) {
    int64_t at = reverse ? out->n - 1 - k : k, c[16] = {0}, before[16];
    eval_coords(out->shape, out->rank, at, c);
    memcpy(before, c, sizeof c);
    before[axis] += reverse ? 1 : -1;
    out->f[at] = b->f[at];
    if (before[axis] < 0 || before[axis] >= out->shape[axis]) continue;
    double s = out->f[eval_flat(out, before)], by = a->f[exclusive ? eval_flat(out, before) : at];
    if (s != 0 && by != 0) out->f[at] += by * s;
  }
}

static inline void eval_sort(eval *e, const graph_node *n, eval_value *out) {
  const eval_value *x = &e->v[n->in[0]];
  int axis = __builtin_ctz(n->attr->axes);
  int64_t len = x->shape[axis];
  bool down = n->attr->flags & ATTR_DESCENDING;
  int64_t *order = calloc((size_t)len + 1, sizeof *order);
  for (int64_t k = 0; k < x->n; k++) {
    int64_t c[16], o[16];
    eval_coords(x->shape, x->rank, k, c);
    if (c[axis] != 0) continue;
    memcpy(o, c, sizeof c);
    for (int64_t s = 0; s < len; s++) { /* insertion keeps equal elements in order */
      o[axis] = s;
      double a = eval_num(x, eval_flat(x, o));
      int64_t p = s;
      for (; p > 0; p--) {
        o[axis] = order[p - 1];
        double b = eval_num(x, eval_flat(x, o));
        bool before = a == a && (b != b || (down ? a > b : a < b));
        if (!before) break;
        order[p] = order[p - 1];
      }
      order[p] = s;
    }
    for (int64_t s = 0; s < len; s++) {
      c[axis] = s;
      o[axis] = order[s];
      if (n->op == OP_argsort)
        out->i[eval_flat(out, c)] = order[s];
      else
        eval_copy(out, eval_flat(out, c), x, eval_flat(x, o));
    }
  }
  free(order);
}

/* ---- random numbers: not Philox, some function of keys and element ---- */

static inline void eval_random(eval *e, const graph_node *n, eval_value *out) {
  int rank = 0;
  int64_t each = 1; /* elements that a key draws */
  for (int m = 0; m < n->nin; m++)
    if (e->v[n->in[m]].rank > rank) rank = e->v[n->in[m]].rank;
  for (int a = rank; a < out->rank; a++) each *= out->shape[a];
  for (int64_t k = 0; k < out->n; k++) {
    uint64_t h = (uint64_t)(k % each) * 0x9e3779b97f4a7c15u + 1;
    int64_t c[16];
    eval_coords(out->shape, out->rank, k, c);
    for (int m = 0; m < n->nin; m++) {
      const eval_value *key = &e->v[n->in[m]];
      h = (h ^ (uint64_t)key->i[eval_broadcast(key, rank, c)]) * 0xff51afd7ed558ccdu;
    }
    if (out->isfloat)
      out->f[k] = eval_round((qn_dtype)n->type.dtype, (double)(h >> 40) * 0x1p-24);
    else
      out->i[k] = (int64_t)h;
  }
}

/* ---- graphs ---- */

static inline bool eval_node(eval *e, uint32_t at) {
  const graph_node *n = &e->g->nodes[at];
  eval_value *out = &e->v[at];
  int64_t shape[8];
  if (n->kind == NODE_INPUT) return out->f || out->i;
  if (n->kind == NODE_OP && op_rows[n->op].shape_rule == SH_data) {
    eval_data(e, n, out);
    e->misfit |= !dim_facts_hold(&e->g->dims, e->symbols, NULL);
    return !e->misfit;
  }
  eval_shape(e, &n->type, shape);
  eval_new(out, (qn_dtype)n->type.dtype, n->type.rank, shape);
  if (n->kind == NODE_CONST) {
    for (int64_t k = 0; k < out->n; k++) {
      qn_value v = dtype_load((qn_dtype)n->type.dtype,
                              (const char *)n->payload.data + (size_t)k * dtype_size((qn_dtype)n->type.dtype));
      if (out->isfloat)
        out->f[k] = v.u.f;
      else
        out->i[k] = v.u.i;
    }
    return true;
  }
  if (n->kind != NODE_OP) return false;
  switch ((op_class)op_rows[n->op].klass) {
  case CLASS_POINTWISE: return eval_pointwise(e, n, out);
  case CLASS_REDUCE: eval_reduce(e, n, out); return true;
  case CLASS_SCAN: eval_scan(e, n, out); return true;
  case CLASS_VIEW: eval_view(e, n, out); return !e->misfit;
  case CLASS_DOT: eval_dot(e, n, out); return true;
  case CLASS_LIBRARY: (n->op == OP_recurrence ? eval_recurrence : eval_sort)(e, n, out); return true;
  case CLASS_RANDOM: eval_random(e, n, out); return true;
  case CLASS_INDEX: break;
  }
  switch ((op_id)n->op) {
  case OP_iota:
    for (int64_t k = 0; k < out->n; k++) {
      int64_t c[16], i;
      eval_coords(out->shape, out->rank, k, c);
      i = c[__builtin_ctz(n->attr->axes)];
      if (out->isfloat)
        out->f[k] = eval_round((qn_dtype)n->type.dtype, (double)i);
      else
        out->i[k] = eval_wrap((qn_dtype)n->type.dtype, i);
    }
    return true;
  case OP_index:
  case OP_scatter: return eval_index(e, n, out);
  case OP_gather:
  case OP_gather_add: return eval_gather(e, n, out);
  case OP_slice_put: eval_slice_put(e, n, out); return !e->misfit;
  default: return false;
  }
}

static inline bool eval_run(eval *e) {
  e->raised = 0;
  e->misfit = false;
  for (uint32_t at = 1; at < e->g->n; at++) {
    if (e->g->nodes[at].kind != NODE_INPUT) eval_drop(&e->v[at]);
    if (eval_node(e, at)) continue;
    e->raised = at;
    return false;
  }
  return true;
}

/* Equal bits, all nans being one value. */
static inline bool eval_same(const eval_value *a, const eval_value *b) {
  if (a->rank != b->rank || a->n != b->n || a->isfloat != b->isfloat) return false;
  for (int k = 0; k < a->rank; k++)
    if (a->shape[k] != b->shape[k]) return false;
  for (int64_t k = 0; k < a->n; k++) {
    if (!a->isfloat) {
      if (a->i[k] != b->i[k]) return false;
    } else if (!(a->f[k] != a->f[k] && b->f[k] != b->f[k]) && memcmp(&a->f[k], &b->f[k], 8) != 0) {
      return false;
    }
  }
  return true;
}

#endif
