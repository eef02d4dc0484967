/* What the ops of the op table mean, in plain C for tests: every array as doubles (floats, rounded to their dtype after every op)
 * or 64-bit integers, one element at a time, sums left to right in double. Nothing is shared with the compiler's lowering. */
#ifndef TESTS_GRAPH_REF_H
#define TESTS_GRAPH_REF_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "jit/graph/graph.h"

typedef struct ref_array {
  uint8_t dtype;
  int rank;
  int64_t shape[ARRAY_MAX_RANK], n;
  double *f;  /* floats */
  int64_t *i; /* integers and bools */
} ref_array;

static bool ref_is_float(uint8_t d) { return dtype_is_float((qn_dtype)d); }

static ref_array ref_new(uint8_t dtype, int rank, const int64_t *shape) {
  ref_array a = {.dtype = dtype, .rank = rank, .n = 1};
  for (int k = 0; k < rank; k++) {
    a.shape[k] = shape[k];
    a.n *= shape[k];
  }
  if (ref_is_float(dtype))
    a.f = calloc((size_t)a.n + 1, sizeof *a.f);
  else
    a.i = calloc((size_t)a.n + 1, sizeof *a.i);
  return a;
}
static void ref_free(ref_array *a) {
  free(a->f);
  free(a->i);
  *a = (ref_array){0};
}

static double ref_round(uint8_t d, double x) {
  switch (d) {
  case QN_f32: return (float)x;
  case QN_f16: return f16_to_f32(f64_to_f16(x));
  case QN_bf16: return bf16_to_f32(f64_to_bf16(x));
  default: return x;
  }
}
static int64_t ref_wrap(uint8_t d, int64_t x) {
  switch (d) {
  case QN_bool: return x != 0;
  case QN_u8: return (uint8_t)x;
  case QN_i8: return (int8_t)x;
  case QN_i16: return (int16_t)x;
  case QN_i32: return (int32_t)x;
  default: return x;
  }
}
static void ref_set(ref_array *a, int64_t at, double f, int64_t i) {
  if (a->f)
    a->f[at] = ref_round(a->dtype, f);
  else
    a->i[at] = ref_wrap(a->dtype, i);
}
static void ref_unflat(const ref_array *a, int64_t at, int64_t *index) {
  for (int k = a->rank - 1; k >= 0; k--) {
    index[k] = at % a->shape[k];
    at /= a->shape[k];
  }
}
static int64_t ref_flat(const ref_array *a, const int64_t *index) {
  int64_t at = 0;
  for (int k = 0; k < a->rank; k++) at = at * a->shape[k] + index[k];
  return at;
}
/* Element of `a` that broadcasts to `index` of rank r. */
static int64_t ref_broadcast(const ref_array *a, int r, const int64_t *index) {
  int64_t own[ARRAY_MAX_RANK];
  for (int k = 0; k < a->rank; k++) own[k] = a->shape[k] == 1 ? 0 : index[r - a->rank + k];
  return ref_flat(a, own);
}
__attribute__((unused)) static void ref_load(ref_array *a, const void *data) {
  for (int64_t k = 0; k < a->n; k++) {
    qn_value v = dtype_load((qn_dtype)a->dtype, (const char *)data + (size_t)k * dtype_size((qn_dtype)a->dtype));
    if (a->f)
      a->f[k] = v.u.f;
    else
      a->i[k] = v.u.i;
  }
}

static int64_t ref_floordiv(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return (int64_t)(0 - (uint64_t)a);
  return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
}
static int64_t ref_ipow(int64_t a, int64_t b) {
  uint64_t r = 1, x = (uint64_t)a;
  if (b < 0) return 0;
  for (; b; b >>= 1, x *= x)
    if (b & 1) r *= x;
  return (int64_t)r;
}

static double ref_float_op(int op, double a, double b) {
  switch (op) {
  case OP_add: return a + b;
  case OP_sub: return a - b;
  case OP_mul: return a * b;
  case OP_div: return a / b;
  case OP_floordiv: return floor(a / b);
  case OP_mod: return a - b * floor(a / b);
  case OP_pow: return pow(a, b);
  case OP_smul: return a == 0 || b == 0 ? 0 : a * b;
  case OP_neg: return -a;
  case OP_abs: return fabs(a);
  case OP_sign: return a != a ? a : (a > 0) - (a < 0);
  case OP_minimum: return a != a ? a : b != b ? b : a < b ? a : b;
  case OP_maximum: return a != a ? a : b != b ? b : a > b ? a : b;
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
  case OP_stop_gradient: return a;
  default: return NAN;
  }
}
static int64_t ref_int_op(int op, int64_t a, int64_t b, int bits) {
  switch (op) {
  case OP_add: return (int64_t)((uint64_t)a + (uint64_t)b);
  case OP_sub: return (int64_t)((uint64_t)a - (uint64_t)b);
  case OP_mul:
  case OP_smul: return (int64_t)((uint64_t)a * (uint64_t)b);
  case OP_floordiv: return ref_floordiv(a, b);
  case OP_mod: return b == 0 || b == -1 ? 0 : a - b * ref_floordiv(a, b);
  case OP_pow: return ref_ipow(a, b);
  case OP_neg: return (int64_t)(0 - (uint64_t)a);
  case OP_abs: return a < 0 ? (int64_t)(0 - (uint64_t)a) : a;
  case OP_sign: return (a > 0) - (a < 0);
  case OP_minimum: return a < b ? a : b;
  case OP_maximum: return a > b ? a : b;
  case OP_bitand: return a & b;
  case OP_bitor: return a | b;
  case OP_xor: return a ^ b;
  case OP_invert: return bits == 1 ? !a : ~a;
  case OP_shl: return (int64_t)((uint64_t)a << (b & (bits - 1)));
  case OP_shr: return a >> (b & (bits - 1));
  default: return a;
  }
}

static int ref_axis(uint8_t mask) {
  int a = 0;
  while (a < 7 && !(mask >> a & 1)) a++;
  return a;
}

/* Joins x into the running value of a reduction or scan. */
static void ref_join(int op, bool floats, double *f, int64_t *i, double x, int64_t y) {
  switch (op) {
  case OP_sum:
  case OP_cumsum:
    *f += x;
    *i = (int64_t)((uint64_t)*i + (uint64_t)y);
    break;
  case OP_prod:
  case OP_cumprod:
    *f *= x;
    *i = (int64_t)((uint64_t)*i * (uint64_t)y);
    break;
  case OP_max:
  case OP_cummax:
    if (floats)
      *f = *f != *f ? *f : x != x || x > *f ? x : *f;
    else
      *i = y > *i ? y : *i;
    break;
  case OP_min:
  case OP_cummin:
    if (floats)
      *f = *f != *f ? *f : x != x || x < *f ? x : *f;
    else
      *i = y < *i ? y : *i;
    break;
  case OP_any: *i |= y; break;
  case OP_all: *i &= y; break;
  default: break;
  }
}

/* One op. `attr` with plain sizes; `out` made already. */
static void ref_op(int op, const op_attr *attr, const ref_array *in, int nin, ref_array *out) {
  int64_t ix[2 * ARRAY_MAX_RANK], own[ARRAY_MAX_RANK];
  const ref_array *x = nin ? &in[0] : NULL;
  switch ((op_class)op_rows[op].klass) {
  case CLASS_POINTWISE:
    for (int64_t k = 0; k < out->n; k++) {
      ref_unflat(out, k, ix);
      int64_t at[3];
      for (int j = 0; j < nin; j++) at[j] = ref_broadcast(&in[j], out->rank, ix);
      bool floats = x->f != NULL;
      if (op == OP_where) {
        const ref_array *from = x->i[at[0]] ? &in[1] : &in[2];
        int64_t p = x->i[at[0]] ? at[1] : at[2];
        ref_set(out, k, from->f ? from->f[p] : 0, from->i ? from->i[p] : 0);
      } else if (op == OP_cast || op == OP_fit) {
        double f = floats ? x->f[at[0]] : (double)x->i[at[0]];
        int64_t v = floats ? (out->i && out->dtype != QN_bool ? (int64_t)f : f != 0) : x->i[at[0]];
        ref_set(out, k, f, v);
      } else if (op >= OP_eq && op <= OP_ge) {
        double a = floats ? x->f[at[0]] : 0, b = floats ? in[1].f[at[1]] : 0;
        int64_t i = floats ? 0 : x->i[at[0]], j = floats ? 0 : in[1].i[at[1]];
        bool r = false;
        switch (op) {
        case OP_eq: r = floats ? a == b : i == j; break;
        case OP_ne: r = floats ? a != b : i != j; break;
        case OP_lt: r = floats ? a < b : i < j; break;
        case OP_le: r = floats ? a <= b : i <= j; break;
        case OP_gt: r = floats ? a > b : i > j; break;
        default: r = floats ? a >= b : i >= j; break;
        }
        out->i[k] = r;
      } else if (op == OP_isnan || op == OP_isinf || op == OP_isfinite) {
        double a = floats ? x->f[at[0]] : 0;
        out->i[k] = op == OP_isnan ? a != a : op == OP_isinf ? isinf(a) != 0 : isfinite(a);
      } else if (floats) {
        ref_set(out, k, ref_float_op(op, x->f[at[0]], nin > 1 ? in[1].f[at[1]] : 0), 0);
      } else {
        int bits = x->dtype == QN_bool ? 1 : (int)(8 * dtype_size((qn_dtype)x->dtype));
        ref_set(out, k, 0, ref_int_op(op, x->i[at[0]], nin > 1 ? in[1].i[at[1]] : 0, bits));
      }
    }
    return;
  case CLASS_REDUCE: {
    double *f = calloc((size_t)out->n + 1, sizeof *f);
    int64_t *v = calloc((size_t)out->n + 1, sizeof *v), *seen = calloc((size_t)out->n + 1, sizeof *seen);
    bool arg = op == OP_argmax || op == OP_argmin;
    int64_t *best = calloc((size_t)out->n + 1, sizeof *best);
    if (op == OP_all)
      for (int64_t k = 0; k < out->n; k++) v[k] = 1;
    if (op == OP_prod)
      for (int64_t k = 0; k < out->n; k++) f[k] = 1, v[k] = 1;
    for (int64_t k = 0; k < x->n; k++) {
      ref_unflat(x, k, ix);
      int r = 0;
      int64_t number = 0;
      for (int a = 0; a < x->rank; a++) {
        if (attr->axes >> a & 1) {
          number = number * x->shape[a] + ix[a];
          if (attr->keepdims) own[r++] = 0;
        } else {
          own[r++] = ix[a];
        }
      }
      int64_t at = ref_flat(out, own);
      double xf = x->f ? x->f[k] : 0;
      int64_t xi = x->i ? x->i[k] : 0;
      if (arg) {
        bool nan_old = f[at] != f[at], nan_new = xf != xf;
        bool better =
            !seen[at] || (x->f ? (nan_new && !nan_old) || (!nan_old && (op == OP_argmax ? xf > f[at] : xf < f[at]))
                               : (op == OP_argmax ? xi > v[at] : xi < v[at]));
        if (better || (number < best[at] && (x->f ? xf == f[at] || (nan_old && nan_new) : xi == v[at]))) {
          f[at] = xf;
          v[at] = xi;
          best[at] = number;
        }
      } else if (!seen[at] && (op == OP_max || op == OP_min)) {
        f[at] = xf;
        v[at] = xi;
      } else {
        ref_join(op, x->f != NULL, &f[at], &v[at], xf, xi);
      }
      seen[at] = 1;
    }
    for (int64_t k = 0; k < out->n; k++) ref_set(out, k, f[k], arg ? best[k] : v[k]);
    free(f);
    free(v);
    free(seen);
    free(best);
    return;
  }
  case CLASS_SCAN: {
    int axis = ref_axis(attr->axes);
    bool reverse = attr->flags & ATTR_REVERSE, exclusive = attr->flags & ATTR_EXCLUSIVE;
    int64_t len = x->shape[axis], lines = len ? x->n / len : 0, inner = 1;
    for (int a = axis + 1; a < x->rank; a++) inner *= x->shape[a];
    for (int64_t line = 0; line < lines; line++) {
      int64_t base = line / inner * inner * len + line % inner;
      double f = op == OP_cumprod ? 1 : op == OP_cummax ? -INFINITY : op == OP_cummin ? INFINITY : 0;
      int bits = (int)(8 * dtype_size((qn_dtype)out->dtype));
      int64_t top = out->dtype == QN_bool ? 1 : out->dtype == QN_u8 ? 255 : (int64_t)(((uint64_t)1 << (bits - 1)) - 1);
      int64_t low = out->dtype == QN_bool || out->dtype == QN_u8 ? 0 : -top - 1;
      int64_t v = op == OP_cumprod ? 1 : op == OP_cummax ? low : op == OP_cummin ? top : 0;
      for (int64_t q = 0; q < len; q++) {
        int64_t at = base + (reverse ? len - 1 - q : q) * inner;
        if (exclusive) ref_set(out, at, f, v);
        ref_join(op, out->f != NULL, &f, &v, x->f ? x->f[at] : 0, x->i ? x->i[at] : 0);
        if (!exclusive) ref_set(out, at, f, v);
      }
    }
    return;
  }
  case CLASS_DOT: {
    const ref_array *y = &in[1];
    bool row = x->rank == 1, column = y->rank == 1;
    int batch = out->rank - !row - !column;
    int64_t depth = x->shape[x->rank - 1];
    for (int64_t k = 0; k < out->n; k++) {
      ref_unflat(out, k, ix);
      double f = 0;
      int64_t v = 0;
      for (int64_t q = 0; q < depth; q++) {
        int64_t ox[ARRAY_MAX_RANK], oy[ARRAY_MAX_RANK];
        int bx = row ? 0 : x->rank - 2, by = column ? 0 : y->rank - 2;
        for (int a = 0; a < bx; a++) ox[a] = x->shape[a] == 1 ? 0 : ix[batch - bx + a];
        for (int a = 0; a < by; a++) oy[a] = y->shape[a] == 1 ? 0 : ix[batch - by + a];
        if (!row) ox[x->rank - 2] = ix[batch];
        ox[x->rank - 1] = q;
        oy[by] = q;
        if (!column) oy[by + 1] = ix[out->rank - 1];
        int64_t a = ref_flat(x, ox), b = ref_flat(y, oy);
        if (x->f)
          f += x->f[a] * y->f[b];
        else
          v = (int64_t)((uint64_t)v + (uint64_t)x->i[a] * (uint64_t)y->i[b]);
      }
      ref_set(out, k, f, v);
    }
    return;
  }
  default: break;
  }
#define COPY(to, from_array, from)                                                                                     \
  ref_set(out, to, (from_array)->f ? (from_array)->f[from] : 0, (from_array)->i ? (from_array)->i[from] : 0)
  switch (op) {
  case OP_reshape:
    for (int64_t k = 0; k < out->n; k++) COPY(k, x, k);
    return;
  case OP_broadcast:
    for (int64_t k = 0; k < out->n; k++) {
      ref_unflat(out, k, ix);
      COPY(k, x, ref_broadcast(x, out->rank, ix));
    }
    return;
  case OP_permute:
    for (int64_t k = 0; k < out->n; k++) {
      ref_unflat(out, k, ix);
      for (int a = 0; a < out->rank; a++) own[attr->d[a]] = ix[a];
      COPY(k, x, ref_flat(x, own));
    }
    return;
  case OP_slice:
    for (int64_t k = 0; k < out->n; k++) {
      ref_unflat(out, k, ix);
      for (int a = 0; a < out->rank; a++) own[a] = attr->d[3 * a] + ix[a] * attr->d[3 * a + 2];
      COPY(k, x, ref_flat(x, own));
    }
    return;
  case OP_window:
    for (int64_t k = 0; k < out->n; k++) {
      ref_unflat(out, k, own);
      int axis = ref_axis(attr->axes);
      own[axis] = own[axis] * attr->d[1] + own[x->rank] * attr->d[2];
      COPY(k, x, ref_flat(x, own));
    }
    return;
  case OP_slice_put:
  case OP_pad: {
    ref_array cells = {.rank = out->rank, .n = 1};
    for (int64_t k = 0; k < out->n; k++) {
      if (op == OP_pad)
        COPY(k, &in[1], 0);
      else
        COPY(k, x, k);
    }
    for (int a = 0; a < out->rank; a++) {
      cells.shape[a] = op == OP_pad ? x->shape[a] : attr->d[3 * a + 1];
      cells.n *= cells.shape[a];
    }
    for (int64_t k = 0; k < cells.n; k++) {
      ref_unflat(&cells, k, ix);
      for (int a = 0; a < out->rank; a++)
        own[a] = attr->d[3 * a] + ix[a] * (op == OP_pad ? attr->d[3 * a + 2] + 1 : attr->d[3 * a + 2]);
      const ref_array *from = op == OP_pad ? x : &in[1];
      COPY(ref_flat(out, own), from, op == OP_pad ? k : ref_broadcast(from, out->rank, ix));
    }
    return;
  }
  case OP_concat: {
    int axis = ref_axis(attr->axes);
    int64_t start = 0;
    for (int j = 0; j < nin; j++) {
      for (int64_t k = 0; k < in[j].n; k++) {
        ref_unflat(&in[j], k, ix);
        ix[axis] += start;
        COPY(ref_flat(out, ix), &in[j], k);
      }
      start += in[j].shape[axis];
    }
    return;
  }
  case OP_iota:
    for (int64_t k = 0; k < out->n; k++) {
      ref_unflat(out, k, ix);
      int64_t v = out->rank ? ix[ref_axis(attr->axes)] : 0;
      ref_set(out, k, (double)v, v);
    }
    return;
  case OP_index:
  case OP_scatter: {
    int count = (int)attr->d[0], r = 0;
    ref_array b = {.n = 1};
    for (int j = 1; j <= count; j++) r = in[j].rank > r ? in[j].rank : r;
    b.rank = r;
    for (int a = 0; a < r; a++) b.shape[a] = 1;
    for (int j = 1; j <= count; j++)
      for (int a = 0; a < in[j].rank; a++)
        if (in[j].shape[a] != 1) b.shape[r - in[j].rank + a] = in[j].shape[a];
    for (int a = 0; a < r; a++) b.n *= b.shape[a];
    int64_t rest = 1;
    for (int a = count; a < x->rank; a++) rest *= x->shape[a];
    ref_array all = b;
    for (int a = count; a < x->rank; a++) all.shape[all.rank++] = x->shape[a];
    for (int64_t k = 0; op == OP_scatter && k < out->n; k++) COPY(k, x, k);
    for (int64_t k = 0; k < b.n; k++) {
      ref_unflat(&b, k, ix);
      int64_t row = 0;
      for (int j = 1; j <= count; j++) {
        int64_t i = in[j].i[ref_broadcast(&in[j], r, ix)];
        if (i < 0) i += x->shape[j - 1];
        row = row * x->shape[j - 1] + i;
      }
      for (int64_t q = 0; q < rest; q++) {
        if (op == OP_index) {
          COPY(k * rest + q, x, row * rest + q);
          continue;
        }
        const ref_array *v = &in[count + 1];
        int64_t full[2 * ARRAY_MAX_RANK], at = row * rest + q;
        ref_unflat(&all, k * rest + q, full);
        int64_t from = ref_broadcast(v, all.rank, full);
        double f = out->f ? out->f[at] : 0, g = v->f ? v->f[from] : 0;
        int64_t i = out->i ? out->i[at] : 0, h = v->i ? v->i[from] : 0;
        switch (attr->mode) {
        case SCATTER_ADD:
          f += g;
          i += h;
          break;
        case SCATTER_MUL:
          f *= g;
          i *= h;
          break;
        case SCATTER_MIN:
          f = ref_float_op(OP_minimum, f, g);
          i = i < h ? i : h;
          break;
        case SCATTER_MAX:
          f = ref_float_op(OP_maximum, f, g);
          i = i > h ? i : h;
          break;
        default:
          f = g;
          i = h;
          break;
        }
        ref_set(out, at, f, i);
      }
    }
    return;
  }
  case OP_gather:
  case OP_gather_add: {
    int axis = ref_axis(attr->axes);
    const ref_array *index = &in[1];
    for (int64_t k = 0; op == OP_gather_add && k < out->n; k++) COPY(k, x, k);
    for (int64_t k = 0; k < index->n; k++) {
      ref_unflat(index, k, ix);
      memcpy(own, ix, sizeof own);
      int64_t i = index->i[k];
      own[axis] = i < 0 ? i + x->shape[axis] : i;
      for (int a = 0; a < x->rank; a++)
        if (a != axis && x->shape[a] == 1) own[a] = 0;
      int64_t cell = ref_flat(x, own);
      if (op == OP_gather)
        COPY(k, x, cell);
      else {
        int64_t from = ref_broadcast(&in[2], index->rank, ix);
        ref_set(out, cell, out->f ? out->f[cell] + in[2].f[from] : 0, out->i ? out->i[cell] + in[2].i[from] : 0);
      }
    }
    return;
  }
  default: return;
  }
#undef COPY
}

#endif
