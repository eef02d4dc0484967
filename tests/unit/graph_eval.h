/* What ops mean, for tests: every op of the table in plain C, one element at a time, floats in double precision and rounded to
 * their dtype after each op (each element of a sum is added in double), integers in 64 bits and wrapped. Slow and plain on purpose, and
 * nothing is shared with the compiler's lowering: kernels and eager calls (test_kernel_op.c, test_eager.c) and what passes do to graphs
 * (test_graph_*.c) are measured against it.
 *
 * One op, with sizes that are numbers:
 *   eval_value x = eval_new(QN_f32, 1, (int64_t[]){3}), y = eval_new(type and shape of the result);
 *   eval_set(&x, k, 1.5, 0)                    element k: a double in an array of floats, an integer in others
 *   eval_op(&(eval_call){.op = OP_exp, .in = {&x}, .nin = 1}, &y)     false if the op raises an error on these data
 *   y.f[k], y.i[k]; eval_drop(&x), eval_drop(&y)
 *
 * A graph:
 *   eval e; eval_init(&e, g, NULL);            sizes are the hints, or values of symbols (indexed like g->dims.exprs)
 *   eval_input(&e, 0, data)                    doubles, in row-major order, for input 0
 *   eval_run(&e)                               false if a node raises an error: e.raised
 *   e.v[node].f / .i                           results
 *   eval_free(&e)
 */
#ifndef TESTS_GRAPH_EVAL_H
#define TESTS_GRAPH_EVAL_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/graph_case.h"

enum { EVAL_RANK = 2 * ARRAY_MAX_RANK, EVAL_OPERANDS = 32 };

/* An array in row-major order: of floats in f, of integers and bools in i; the other one is NULL. It owns them. */
typedef struct eval_value {
  qn_dtype dtype;
  int rank;
  int64_t shape[EVAL_RANK], n;
  double *f;
  int64_t *i;
} eval_value;

/* An op with its operands. Where attributes hold sizes that are symbols, dims and symbols say what these are; else both are NULL. */
typedef struct eval_call {
  op_id op;
  const op_attr *attr; /* NULL: none */
  const eval_value *in[EVAL_OPERANDS];
  int nin;
  const dim_table *dims;
  const int64_t *symbols;
  bool
      misfit; /* set if a slice of fixed size is of an axis that data have made shorter: it is no graph of these data */
} eval_call;

typedef struct eval {
  const graph *g;
  int64_t *symbols;
  eval_value *v;
  uint32_t raised; /* the first node that raised */
  bool misfit;     /* a size that data tell is not as a fact of the graph's dims says: it is no graph of these data */
} eval;

/* ---- values ---- */

/* An array of zeros. */
static inline eval_value eval_new(qn_dtype d, int rank, const int64_t *shape) {
  eval_value v = {.dtype = d, .rank = rank, .n = 1};
  for (int k = 0; k < rank; k++) v.n *= v.shape[k] = shape[k];
  if (dtype_is_float(d))
    v.f = calloc((size_t)v.n + 1, sizeof *v.f);
  else
    v.i = calloc((size_t)v.n + 1, sizeof *v.i);
  return v;
}

static inline void eval_drop(eval_value *v) {
  free(v->f);
  free(v->i);
  memset(v, 0, sizeof *v);
}

static inline double eval_num(const eval_value *v, int64_t at) { return v->f ? v->f[at] : (double)v->i[at]; }

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

/* Element `at` becomes f, rounded, in an array of floats, and i, wrapped, in any other. */
static inline void eval_set(eval_value *v, int64_t at, double f, int64_t i) {
  if (v->f)
    v->f[at] = eval_round(v->dtype, f);
  else
    v->i[at] = eval_wrap(v->dtype, i);
}

/* Copies an element between arrays of one kind, floats or integers. */
static inline void eval_copy(eval_value *to, int64_t at, const eval_value *from, int64_t k) {
  eval_set(to, at, from->f ? from->f[k] : 0, from->i ? from->i[k] : 0);
}

static inline void eval_copy_all(eval_value *to, const eval_value *from) {
  for (int64_t k = 0; k < from->n; k++) eval_copy(to, k, from, k);
}

/* Does element a of v come before element b in ascending (or descending) order? Nans come last, equal elements not at all. */
static inline bool eval_before(const eval_value *v, int64_t a, int64_t b, bool descending) {
  if (v->i) return descending ? v->i[a] > v->i[b] : v->i[a] < v->i[b];
  double x = v->f[a], y = v->f[b];
  return x == x && (y != y || (descending ? x > y : x < y));
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

/* A size among a call's attributes. */
static inline int64_t eval_dim(const eval_call *c, qn_dim d) { return c->dims ? dim_eval(c->dims, d, c->symbols) : d; }

/* The one axis of a scan, a sort, a join... */
static inline int eval_axis(const eval_call *c) { return c->attr && c->attr->axes ? __builtin_ctz(c->attr->axes) : 0; }

/* Is there an element at these coordinates? */
static inline bool eval_within(eval_call *c, const eval_value *v, const int64_t *at) {
  for (int k = 0; k < v->rank; k++)
    if (at[k] < 0 || at[k] >= v->shape[k]) c->misfit = true;
  return !c->misfit;
}

/* Element of `v` that broadcasts to coordinates c of a shape with `rank` axes. */
static inline int64_t eval_broadcast(const eval_value *v, int rank, const int64_t *c) {
  int64_t at = 0;
  for (int k = 0; k < v->rank; k++) at = at * v->shape[k] + (v->shape[k] == 1 ? 0 : c[rank - v->rank + k]);
  return at;
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
  if (a == b) return !signbit(a) == !smaller ? a : b;
  return (a < b) == smaller ? a : b;
}

/* Some powers are products by definition (jit/kernel/math.def), each rounded. */
static inline double eval_pow(qn_dtype d, double a, double b) {
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
  case OP_smul: return (a == 0 || b == 0) && isnan(a * b) ? 0 : a * b;
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
  case OP_gelu_slope: return 0.5 * erfc(-a * 0.70710678118654752440) + a * exp(-0.5 * a * a) * 0.39894228040143267794;
  case OP_gelu_tanh: return a * 0.5 * (1 + tanh(0.79788456080286535588 * (a + 0.044715 * a * a * a)));
  case OP_stop_gradient: return a;
  default: return NAN;
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
  case OP_floor:
  case OP_ceil:
  case OP_round:
  case OP_trunc:
  case OP_stop_gradient: return a;
  default: return INT64_MIN / 7; /* nothing that an op gives */
  }
}

static inline bool eval_compare(op_id op, const eval_value *x, int64_t p, const eval_value *y, int64_t q) {
  bool lt = x->f ? x->f[p] < y->f[q] : x->i[p] < y->i[q], gt = x->f ? x->f[p] > y->f[q] : x->i[p] > y->i[q];
  bool eq = x->f ? x->f[p] == y->f[q] : x->i[p] == y->i[q];
  switch (op) {
  case OP_eq: return eq;
  case OP_ne: return !eq;
  case OP_lt: return lt;
  case OP_le: return lt || eq;
  case OP_gt: return gt;
  default: return gt || eq;
  }
}

/* Element p of x becomes element `at` of out; false if it does not fit where it must. */
static inline bool eval_cast(eval_value *out, int64_t at, const eval_value *x, int64_t p, bool proven) {
  if (!x->f) {
    eval_set(out, at, (double)x->i[p], x->i[p]);
  } else if (out->f || out->dtype == QN_bool) {
    eval_set(out, at, x->f[p], x->f[p] != 0);
  } else {
    double whole = trunc(x->f[p]);
    int64_t i = whole >= -9e18 && whole <= 9e18 ? (int64_t)whole : 0;
    if (!proven && ((double)i != whole || eval_wrap(out->dtype, i) != i)) return false;
    eval_set(out, at, 0, i);
  }
  return true;
}

/* May an op of integers have these operands? */
static inline bool eval_int_allowed(op_id op, qn_dtype d, int64_t b) {
  switch (op) {
  case OP_floordiv:
  case OP_mod: return b != 0;
  case OP_pow: return b >= 0;
  case OP_shl:
  case OP_shr: return b >= 0 && b < 8 * (int64_t)dtype_size(d);
  default: return true;
  }
}

static inline bool eval_pointwise(eval_call *c, eval_value *out) {
  const eval_value *x = c->in[0], *y = c->nin > 1 ? c->in[1] : NULL;
  bool proven = c->attr && (c->attr->flags & ATTR_PROVEN);
  for (int64_t at = 0; at < out->n; at++) {
    int64_t ix[EVAL_RANK], p[3] = {0};
    eval_coords(out->shape, out->rank, at, ix);
    for (int k = 0; k < c->nin; k++) p[k] = eval_broadcast(c->in[k], out->rank, ix);
    if (c->op >= OP_eq && c->op <= OP_ge) {
      out->i[at] = eval_compare(c->op, x, p[0], y, p[1]);
    } else if (c->op == OP_where) {
      eval_copy(out, at, c->in[x->i[p[0]] ? 1 : 2], p[x->i[p[0]] ? 1 : 2]);
    } else if (c->op == OP_isnan || c->op == OP_isinf || c->op == OP_isfinite) {
      double a = eval_num(x, p[0]);
      out->i[at] = c->op == OP_isnan ? a != a : c->op == OP_isinf ? isinf(a) != 0 : isfinite(a) != 0;
    } else if (c->op == OP_cast || c->op == OP_fit) {
      if (!eval_cast(out, at, x, p[0], proven)) return false;
    } else if (x->f) {
      eval_set(out, at, eval_float_op(out->dtype, c->op, x->f[p[0]], y ? y->f[p[1]] : 0), 0);
    } else {
      int64_t b = y ? y->i[p[1]] : 0;
      if (!proven && !eval_int_allowed(c->op, x->dtype, b)) return false;
      eval_set(out, at, 0, eval_int_op(c->op, x->i[p[0]], b, x->dtype == QN_bool));
    }
  }
  return true;
}

/* ---- reductions and scans ---- */

/* Element k of x joins what reduces to element `at`; the first one is taken as it is. */
static inline void eval_combine(op_id op, eval_value *to, int64_t at, const eval_value *x, int64_t k, bool first) {
  if (x->f) {
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

/* What nothing reduces to. */
static inline void eval_identity(op_id op, eval_value *v, int64_t at) {
  bool low = op == OP_max || op == OP_cummax, high = op == OP_min || op == OP_cummin;
  if (v->f) {
    v->f[at] = op == OP_sum || op == OP_cumsum ? -0.0 : low ? -INFINITY : high ? INFINITY : 1;
    return;
  }
  qn_dtype d = v->dtype;
  int bits = 8 * (int)dtype_size(d);
  int64_t most = d == QN_u8 ? 255 : d == QN_bool ? 1 : (int64_t)(((uint64_t)1 << (bits - 1)) - 1);
  int64_t least = d == QN_u8 || d == QN_bool ? 0 : -most - 1;
  v->i[at] = low ? least : high ? most : op == OP_sum || op == OP_cumsum || op == OP_any ? 0 : 1;
}

static inline void eval_reduce(eval_call *c, eval_value *out) {
  const eval_value *x = c->in[0];
  bool arg = c->op == OP_argmax || c->op == OP_argmin;
  int64_t *count = calloc((size_t)out->n + 1, sizeof *count), *best = calloc((size_t)out->n + 1, sizeof *best);
  for (int64_t k = 0; k < out->n && !arg; k++) eval_identity(c->op, out, k);
  for (int64_t k = 0; k < x->n; k++) {
    int64_t ix[EVAL_RANK], own[EVAL_RANK], index = 0;
    int m = 0;
    eval_coords(x->shape, x->rank, k, ix);
    for (int a = 0; a < x->rank; a++) {
      bool reduced = c->attr->axes >> a & 1;
      if (reduced) index = index * x->shape[a] + ix[a];
      if (!reduced || c->attr->keepdims) own[m++] = reduced ? 0 : ix[a];
    }
    int64_t at = eval_flat(out, own);
    if (!arg) {
      eval_combine(c->op, out, at, x, k, count[at] == 0);
    } else {
      bool nan = x->f && x->f[k] != x->f[k], had = x->f && count[at] && x->f[best[at]] != x->f[best[at]];
      if (count[at] == 0 || (!had && (nan || eval_before(x, k, best[at], c->op == OP_argmax)))) {
        best[at] = k;
        out->i[at] = index;
      }
    }
    count[at]++;
  }
  for (int64_t k = 0; k < out->n; k++) eval_set(out, k, out->f ? out->f[k] : 0, out->i ? out->i[k] : 0);
  free(count);
  free(best);
}

static inline void eval_scan(eval_call *c, eval_value *out) {
  const eval_value *x = c->in[0];
  int axis = eval_axis(c);
  bool reverse = c->attr->flags & ATTR_REVERSE, exclusive = c->attr->flags & ATTR_EXCLUSIVE;
  eval_value acc = eval_new(out->dtype, 0, NULL);
  for (int64_t k = 0; k < x->n; k++) {
    int64_t ix[EVAL_RANK], len = x->shape[axis];
    eval_coords(x->shape, x->rank, k, ix);
    if (ix[axis] != 0) continue;
    eval_identity(c->op, &acc, 0);
    for (int64_t s = 0; s < len; s++) {
      ix[axis] = reverse ? len - 1 - s : s;
      int64_t at = eval_flat(x, ix);
      if (exclusive) eval_copy(out, at, &acc, 0);
      eval_combine(c->op, &acc, 0, x, at, s == 0);
      if (acc.dtype == QN_f32) acc.f[0] = (float)acc.f[0]; /* the only ones whose running value is as narrow as they */
      if (!exclusive) eval_copy(out, at, &acc, 0);
    }
  }
  eval_drop(&acc);
}

/* ---- views, iota ---- */

/* Where an element of a slice lies in what it is a slice of. */
static inline void eval_slice_at(const eval_call *c, int rank, const int64_t *ix, int64_t *own) {
  for (int a = 0; a < rank; a++) own[a] = eval_dim(c, c->attr->d[3 * a]) + ix[a] * c->attr->d[3 * a + 2];
}

static inline void eval_concat(eval_call *c, eval_value *out) {
  int axis = eval_axis(c);
  int64_t start = 0, ix[EVAL_RANK];
  for (int m = 0; m < c->nin; m++) {
    const eval_value *x = c->in[m];
    for (int64_t k = 0; k < x->n; k++) {
      eval_coords(x->shape, x->rank, k, ix);
      ix[axis] += start;
      eval_copy(out, eval_flat(out, ix), x, k);
    }
    start += x->shape[axis];
  }
}

static inline void eval_pad(eval_call *c, eval_value *out) {
  const eval_value *x = c->in[0];
  int64_t ix[EVAL_RANK];
  for (int64_t k = 0; k < out->n; k++) eval_copy(out, k, c->in[1], 0);
  for (int64_t k = 0; k < x->n; k++) {
    eval_coords(x->shape, x->rank, k, ix);
    for (int a = 0; a < x->rank; a++) ix[a] = eval_dim(c, c->attr->d[3 * a]) + ix[a] * (c->attr->d[3 * a + 2] + 1);
    eval_copy(out, eval_flat(out, ix), x, k);
  }
}

static inline bool eval_view(eval_call *c, eval_value *out) {
  const eval_value *x = c->in[0];
  const qn_dim *d = c->attr ? c->attr->d : NULL;
  int64_t ix[EVAL_RANK], own[EVAL_RANK];
  if (c->op == OP_concat || c->op == OP_pad) {
    (c->op == OP_concat ? eval_concat : eval_pad)(c, out);
    return true;
  }
  for (int64_t k = 0; k < out->n; k++) {
    int64_t from = k;
    eval_coords(out->shape, out->rank, k, ix);
    switch (c->op) {
    case OP_reshape: break;
    case OP_broadcast: from = eval_broadcast(x, out->rank, ix); break;
    case OP_permute:
      for (int a = 0; a < out->rank; a++) own[d[a]] = ix[a];
      from = eval_flat(x, own);
      break;
    case OP_slice:
      eval_slice_at(c, out->rank, ix, own);
      if (!eval_within(c, x, own)) return false;
      from = eval_flat(x, own);
      break;
    case OP_window:
      ix[eval_axis(c)] = ix[eval_axis(c)] * d[1] + ix[x->rank] * d[2];
      from = eval_flat(x, ix);
      break;
    default: return false;
    }
    eval_copy(out, k, x, from);
  }
  return true;
}

static inline void eval_iota(eval_call *c, eval_value *out) {
  int64_t ix[EVAL_RANK] = {0};
  for (int64_t k = 0; k < out->n; k++) {
    eval_coords(out->shape, out->rank, k, ix);
    eval_set(out, k, (double)ix[eval_axis(c)], ix[eval_axis(c)]);
  }
}

/* ---- indexing ---- */

/* Element k of v is stored at an element of `to` in one of the modes of scatter. */
static inline void eval_store(eval_value *to, int64_t at, const eval_value *v, int64_t k, int mode) {
  op_id op = mode == SCATTER_ADD   ? OP_add
             : mode == SCATTER_MUL ? OP_mul
             : mode == SCATTER_MIN ? OP_minimum
                                   : OP_maximum;
  if (mode == SCATTER_SET)
    eval_copy(to, at, v, k);
  else if (to->f)
    eval_set(to, at, eval_float_op(to->dtype, op, to->f[at], v->f[k]), 0);
  else
    eval_set(to, at, 0, eval_int_op(op, to->i[at], v->i[k], to->dtype == QN_bool));
}

/* An index counts from the end if it is negative; false if it is out of bounds. */
static inline bool eval_at(int64_t *i, int64_t size) {
  if (*i < -size || *i >= size) return false;
  if (*i < 0) *i += size;
  return true;
}

/* index and scatter: the first axes of x by index arrays that broadcast to one shape, its other axes whole. */
static inline bool eval_index(eval_call *c, eval_value *out) {
  const eval_value *x = c->in[0];
  int count = (int)c->attr->d[0];
  eval_value all = {.n = 1}; /* the shape of what is read or stored: that of the indices, then the other axes */
  for (int m = 1; m <= count; m++)
    if (c->in[m]->rank > all.rank) all.rank = c->in[m]->rank;
  int rank = all.rank;
  for (int a = 0; a < rank; a++) all.shape[a] = 1;
  for (int m = 1; m <= count; m++)
    for (int a = 0; a < c->in[m]->rank; a++)
      if (c->in[m]->shape[a] != 1) all.shape[rank - c->in[m]->rank + a] = c->in[m]->shape[a];
  for (int a = count; a < x->rank; a++) all.shape[all.rank++] = x->shape[a];
  for (int a = 0; a < all.rank; a++) all.n *= all.shape[a];
  if (c->op == OP_scatter) eval_copy_all(out, x);
  for (int64_t m = 0; m < all.n; m++) {
    int64_t ix[EVAL_RANK], own[EVAL_RANK];
    eval_coords(all.shape, all.rank, m, ix);
    for (int a = 0; a < count; a++) {
      own[a] = c->in[1 + a]->i[eval_broadcast(c->in[1 + a], rank, ix)];
      if (!eval_at(&own[a], x->shape[a])) return false;
    }
    for (int a = count; a < x->rank; a++) own[a] = ix[rank + a - count];
    if (c->op == OP_index)
      eval_copy(out, m, x, eval_flat(x, own));
    else
      eval_store(out, eval_flat(x, own), c->in[1 + count], eval_broadcast(c->in[1 + count], all.rank, ix),
                 c->attr->mode);
  }
  return true;
}

/* gather and gather_add: along one axis, by an array of x's rank. */
static inline bool eval_gather(eval_call *c, eval_value *out) {
  const eval_value *x = c->in[0], *index = c->in[1];
  int axis = eval_axis(c);
  if (c->op == OP_gather_add) eval_copy_all(out, x);
  for (int64_t m = 0; m < index->n; m++) {
    int64_t ix[EVAL_RANK] = {0}, own[EVAL_RANK];
    eval_coords(index->shape, index->rank, m, ix);
    memcpy(own, ix, sizeof ix);
    own[axis] = index->i[m];
    if (!eval_at(&own[axis], x->shape[axis])) return false;
    for (int a = 0; a < x->rank; a++)
      if (a != axis && x->shape[a] == 1) own[a] = 0;
    if (c->op == OP_gather)
      eval_copy(out, m, x, eval_flat(x, own));
    else
      eval_store(out, eval_flat(x, own), c->in[2], eval_broadcast(c->in[2], index->rank, ix), SCATTER_ADD);
  }
  return true;
}

static inline bool eval_slice_put(eval_call *c, eval_value *out) {
  const eval_value *x = c->in[0], *v = c->in[1];
  int64_t shape[EVAL_RANK], ix[EVAL_RANK], own[EVAL_RANK], count = 1;
  for (int a = 0; a < x->rank; a++) count *= shape[a] = eval_dim(c, c->attr->d[3 * a + 1]);
  eval_copy_all(out, x);
  for (int64_t m = 0; m < count; m++) {
    eval_coords(shape, x->rank, m, ix);
    eval_slice_at(c, x->rank, ix, own);
    if (!eval_within(c, x, own)) return false;
    eval_copy(out, eval_flat(x, own), v, eval_broadcast(v, x->rank, ix));
  }
  return true;
}

/* ---- dot, sort, recurrence ---- */

static inline void eval_dot(eval_call *c, eval_value *out) {
  eval_value x = *c->in[0], y = *c->in[1], o = *out; /* with rank 2 at least */
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
    int64_t ix[EVAL_RANK] = {0}, left[EVAL_RANK], right[EVAL_RANK];
    eval_coords(o.shape, o.rank, k, ix);
    memcpy(left, ix, sizeof ix);
    memcpy(right, ix, sizeof ix);
    double sum = 0;
    uint64_t whole = 0;
    for (int64_t m = 0; m < inner; m++) {
      left[o.rank - 1] = right[o.rank - 2] = m;
      int64_t p = eval_broadcast(&x, o.rank, left), q = eval_broadcast(&y, o.rank, right);
      if (x.f)
        sum += x.f[p] * y.f[q];
      else
        whole += (uint64_t)x.i[p] * (uint64_t)y.i[q];
    }
    eval_set(out, k, sum, (int64_t)whole);
  }
}

static inline void eval_recurrence(eval_call *c, eval_value *out) {
  const eval_value *a = c->in[0], *b = c->in[1];
  int axis = eval_axis(c);
  bool reverse = c->attr->flags & ATTR_REVERSE, exclusive = c->attr->flags & ATTR_EXCLUSIVE;
  for (int64_t k = 0; k < out->n; k++) {
    int64_t at = reverse ? out->n - 1 - k : k, ix[EVAL_RANK] = {0}, before[EVAL_RANK];
    eval_coords(out->shape, out->rank, at, ix);
    memcpy(before, ix, sizeof ix);
    before[axis] += reverse ? 1 : -1;
    out->f[at] = b->f[at];
    if (before[axis] < 0 || before[axis] >= out->shape[axis]) continue;
    double s = out->f[eval_flat(out, before)], by = a->f[exclusive ? eval_flat(out, before) : at];
    if (s != 0 && by != 0) out->f[at] += by * s;
  }
  for (int64_t k = 0; k < out->n; k++) out->f[k] = eval_round(out->dtype, out->f[k]); /* the chain itself is not */
}

/* sort and argsort, by insertion, which keeps equal elements in order. */
static inline void eval_sort(eval_call *c, eval_value *out) {
  const eval_value *x = c->in[0];
  int axis = eval_axis(c);
  bool down = c->attr->flags & ATTR_DESCENDING;
  int64_t len = x->shape[axis], stride = 1;
  for (int a = axis + 1; a < x->rank; a++) stride *= x->shape[a];
  int64_t *order = calloc((size_t)len + 1, sizeof *order);
  for (int64_t k = 0; k < x->n; k++) {
    int64_t ix[EVAL_RANK];
    eval_coords(x->shape, x->rank, k, ix);
    if (ix[axis] != 0) continue; /* k begins a row */
    for (int64_t s = 0; s < len; s++) {
      int64_t p = s;
      for (; p > 0 && eval_before(x, k + s * stride, k + order[p - 1] * stride, down); p--) order[p] = order[p - 1];
      order[p] = s;
    }
    for (int64_t s = 0; s < len; s++) {
      if (c->op == OP_argsort)
        out->i[k + s * stride] = order[s];
      else
        eval_copy(out, k + s * stride, x, k + order[s] * stride);
    }
  }
  free(order);
}

/* ---- random numbers: not Philox, some function of keys and element ---- */

static inline void eval_random(eval_call *c, eval_value *out) {
  int rank = 0;
  int64_t each = 1; /* elements that a key draws */
  for (int m = 0; m < c->nin; m++)
    if (c->in[m]->rank > rank) rank = c->in[m]->rank;
  for (int a = rank; a < out->rank; a++) each *= out->shape[a];
  for (int64_t k = 0; k < out->n; k++) {
    uint64_t h = (uint64_t)(k % each) * 0x9e3779b97f4a7c15u + 1;
    int64_t ix[EVAL_RANK];
    eval_coords(out->shape, out->rank, k, ix);
    for (int m = 0; m < c->nin; m++)
      h = (h ^ (uint64_t)c->in[m]->i[eval_broadcast(c->in[m], rank, ix)]) * 0xff51afd7ed558ccdu;
    eval_set(out, k, (double)(h >> 40) * 0x1p-24, (int64_t)h);
  }
}

/* ---- one op ---- */

/* Fills `out`, which has the type and the shape of the result. Not for ops whose data tell the shape: eval_data. */
static inline bool eval_op(eval_call *c, eval_value *out) {
  switch ((op_class)op_rows[c->op].klass) {
  case CLASS_POINTWISE: return eval_pointwise(c, out);
  case CLASS_REDUCE: eval_reduce(c, out); return true;
  case CLASS_SCAN: eval_scan(c, out); return true;
  case CLASS_VIEW: return eval_view(c, out);
  case CLASS_DOT: eval_dot(c, out); return true;
  case CLASS_LIBRARY: (c->op == OP_recurrence ? eval_recurrence : eval_sort)(c, out); return true;
  case CLASS_RANDOM: eval_random(c, out); return true;
  case CLASS_INDEX: break;
  }
  switch (c->op) {
  case OP_iota: eval_iota(c, out); return true;
  case OP_index:
  case OP_scatter: return eval_index(c, out);
  case OP_gather:
  case OP_gather_add: return eval_gather(c, out);
  case OP_slice_put: return eval_slice_put(c, out);
  default: return false;
  }
}

/* nonzero and compress: makes `out`, whose first axis is as long as there are true elements. Returns that number. */
static inline int64_t eval_data(const eval_call *c, qn_dtype d, eval_value *out) {
  const eval_value *x = c->in[0], *mask = c->op == OP_nonzero ? x : c->in[1];
  int64_t count = 0, cell = mask->n ? x->n / mask->n : 1, shape[EVAL_RANK], ix[EVAL_RANK], at = 0;
  int rank = c->op == OP_nonzero ? 2 : 1 + x->rank - mask->rank;
  for (int64_t k = 0; k < mask->n; k++) count += mask->i[k];
  shape[0] = count;
  if (c->op == OP_nonzero)
    shape[1] = x->rank;
  else
    memcpy(shape + 1, x->shape + mask->rank, (size_t)(x->rank - mask->rank) * sizeof *shape);
  *out = eval_new(d, rank, shape);
  for (int64_t k = 0; k < mask->n; k++) {
    if (!mask->i[k]) continue;
    eval_coords(x->shape, x->rank, k, ix);
    if (c->op == OP_nonzero)
      for (int a = 0; a < x->rank; a++) out->i[at++] = ix[a];
    else
      for (int64_t m = 0; m < cell; m++) eval_copy(out, at++, x, k * cell + m);
  }
  return count;
}

/* ---- graphs ---- */

static inline void eval_init(eval *e, const graph *g, const int64_t *symbols) {
  memset(e, 0, sizeof *e);
  e->g = g;
  e->symbols = calloc(g->dims.n + 1, sizeof *e->symbols);
  for (uint32_t k = 0; k < g->dims.n; k++) e->symbols[k] = symbols ? symbols[k] : g->dims.exprs[k].hint;
  e->v = calloc(g->n, sizeof *e->v);
}

static inline void eval_free(eval *e) {
  for (uint32_t k = 0; k < e->g->n; k++) eval_drop(&e->v[k]);
  free(e->v);
  free(e->symbols);
}

/* An array of zeros for a node. */
static inline eval_value eval_made(const eval *e, uint32_t node) {
  const graph_type *t = &e->g->nodes[node].type;
  int64_t shape[ARRAY_MAX_RANK];
  for (int k = 0; k < t->rank; k++) shape[k] = dim_eval(&e->g->dims, t->shape[k], e->symbols);
  return eval_new((qn_dtype)t->dtype, t->rank, shape);
}

static inline void eval_input(eval *e, uint32_t input, const double *data) {
  eval_value *v = &e->v[e->g->inputs[input]];
  eval_drop(v);
  *v = eval_made(e, e->g->inputs[input]);
  for (int64_t k = 0; k < v->n; k++) eval_set(v, k, data[k], v->i ? (int64_t)data[k] : 0);
}

static inline void eval_constant(eval_value *v, const void *data) {
  for (int64_t k = 0; k < v->n; k++) {
    qn_value x = dtype_load(v->dtype, (const char *)data + (size_t)k * dtype_size(v->dtype));
    eval_set(v, k, v->f ? x.u.f : 0, v->i ? x.u.i : 0);
  }
}

/* False if the node raises an error, or if sizes do not fit the data. */
static inline bool eval_node(eval *e, uint32_t at) {
  const graph_node *n = &e->g->nodes[at];
  eval_value *out = &e->v[at];
  if (n->kind == NODE_INPUT) return out->f || out->i;
  if (n->kind == NODE_CONST) {
    *out = eval_made(e, at);
    eval_constant(out, n->payload.data);
    return true;
  }
  if (n->kind != NODE_OP || n->nin > EVAL_OPERANDS) return false;
  eval_call call = {.op = (op_id)n->op, .attr = n->attr, .nin = n->nin, .dims = &e->g->dims, .symbols = e->symbols};
  for (int k = 0; k < n->nin; k++) call.in[k] = &e->v[n->in[k]];
  if (op_rows[n->op].shape_rule == SH_data) { /* a size is made here: the symbol of the result gets its value */
    int64_t count = eval_data(&call, (qn_dtype)n->type.dtype, out);
    if (n->type.shape[0] < 0) e->symbols[~n->type.shape[0]] = count;
    e->misfit |= !dim_facts_hold(&e->g->dims, e->symbols, NULL);
    return !e->misfit;
  }
  *out = eval_made(e, at);
  bool ran = eval_op(&call, out);
  e->misfit |= call.misfit;
  return ran;
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
static inline bool eval_same_element(const eval_value *a, int64_t i, const eval_value *b, int64_t j) {
  if (!a->f != !b->f) return false;
  if (!a->f) return a->i[i] == b->i[j];
  return (a->f[i] != a->f[i] && b->f[j] != b->f[j]) || memcmp(&a->f[i], &b->f[j], 8) == 0;
}

static inline bool eval_same(const eval_value *a, const eval_value *b) {
  if (a->rank != b->rank || a->n != b->n || memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) != 0)
    return false;
  for (int64_t k = 0; k < a->n; k++)
    if (!eval_same_element(a, k, b, k)) return false;
  return true;
}

#endif
