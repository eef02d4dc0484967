/* Constant folding of scalars: the ops whose bits IEEE 754 or integer arithmetic fix, so that no executor can disagree.
 *
 * f16 and bf16 are computed in f32 and rounded, as kernels do. Elementary functions, division of integers and everything that
 * could raise an error are left to the executors. Weak integers fold only where they do not overflow (E305).
 */
#include <math.h>
#include <string.h>

#include "jit/graph/rewrite.h"

/* Is the integer exactly a value of a float dtype? */
static bool exact_in_float(qn_dtype to, int64_t i) {
  int64_t limit = (int64_t)1 << dtype_rows[to].digits;
  return i >= -limit && i <= limit;
}

static bool fold_cast(op_id op, const graph_type *type, qn_value x, void *out) {
  qn_dtype d = (qn_dtype)type->dtype;
  if (op == OP_fit && !dtype_holds(d, x)) return false;
  if (dtype_is_bool(d)) {
    dtype_store(d, out, value_bool(value_is(x, TAG_FLOAT) ? x.u.f != 0 : x.u.i != 0));
    return true;
  }
  if (value_is(x, TAG_FLOAT)) {
    if (!dtype_is_float(d)) return false;
    dtype_store(d, out, value_float(x.u.f));
    return true;
  }
  if (dtype_is_float(d)) {
    if (!exact_in_float(d, x.u.i)) return false;
    dtype_store(d, out, value_float((double)x.u.i));
    return true;
  }
  if (!dtype_holds(d, value_int(x.u.i))) return false;
  dtype_store(d, out, value_int(x.u.i));
  return true;
}

/* The result of the kernel primitives min and max: NaN if an operand is NaN; -0 is less than +0. */
static double extremum(double a, double b, bool smaller) {
  if (a != a) return a;
  if (b != b) return b;
  if (a == b) return signbit(a) == (smaller ? 1 : 0) ? a : b;
  return (a < b) == smaller ? a : b;
}

static bool fold_float(op_id op, qn_dtype d, const double *x, double *out) {
  /* A quotient or root of f32 values that is computed in f64 and rounded once more is the f32 result: f64 has more than twice
   * the bits and two. */
  switch (op) {
  case OP_add: *out = x[0] + x[1]; break;
  case OP_sub: *out = x[0] - x[1]; break;
  case OP_mul: *out = x[0] * x[1]; break;
  case OP_div: *out = x[0] / x[1]; break;
  case OP_smul: *out = (x[0] == 0 || x[1] == 0) && isnan(x[0] * x[1]) ? 0 : x[0] * x[1]; break;
  case OP_neg: *out = -x[0]; break;
  case OP_abs: *out = fabs(x[0]); break;
  case OP_minimum: *out = extremum(x[0], x[1], true); break;
  case OP_maximum: *out = extremum(x[0], x[1], false); break;
  case OP_floor: *out = floor(x[0]); break;
  case OP_ceil: *out = ceil(x[0]); break;
  case OP_trunc: *out = trunc(x[0]); break;
  case OP_round: *out = rint(x[0]); break;
  case OP_sqrt: *out = sqrt(x[0]); break;
  default: return false;
  }
  *out = dtype_round(d, dtype_round(dtype_compute(d), *out)); /* in two steps, as kernels do */
  return true;
}

static bool fold_int(op_id op, bool weak, const int64_t *x, int64_t *out) {
  bool over = false;
  switch (op) {
  case OP_add: over = __builtin_add_overflow(x[0], x[1], out); break;
  case OP_sub: over = __builtin_sub_overflow(x[0], x[1], out); break;
  case OP_mul: over = __builtin_mul_overflow(x[0], x[1], out); break;
  case OP_neg: over = __builtin_sub_overflow((int64_t)0, x[0], out); break;
  case OP_abs: over = x[0] == INT64_MIN, *out = over || x[0] >= 0 ? x[0] : -x[0]; break;
  case OP_minimum: *out = x[0] < x[1] ? x[0] : x[1]; break;
  case OP_maximum: *out = x[0] > x[1] ? x[0] : x[1]; break;
  case OP_bitand: *out = x[0] & x[1]; break;
  case OP_bitor: *out = x[0] | x[1]; break;
  case OP_xor: *out = x[0] ^ x[1]; break;
  default: return false;
  }
  return !(over && weak);
}

static bool compare(op_id op, int order, bool ordered) {
  switch (op) {
  case OP_eq: return ordered && order == 0;
  case OP_ne: return !ordered || order != 0;
  case OP_lt: return ordered && order < 0;
  case OP_le: return ordered && order <= 0;
  case OP_gt: return ordered && order > 0;
  default: return ordered && order >= 0;
  }
}

/* Stores the low bytes of an integer, which wraps it into the dtype. */
static void store_wrapped(qn_dtype d, int64_t i, void *out) {
  if (dtype_is_bool(d)) i = i != 0;
  memcpy(out, &i, dtype_size(d));
}

bool fold_scalar(op_id op, const graph_type *type, const graph_type *operands, const void *const *data, int nin,
                 void *out) {
  qn_value v[3];
  double f[3] = {0}, result;
  int64_t x[3] = {0}, whole;
  if (nin < 1 || nin > 3) return false;
  for (int i = 0; i < nin; i++) {
    v[i] = dtype_load((qn_dtype)operands[i].dtype, data[i]);
    if (value_is(v[i], TAG_FLOAT))
      f[i] = v[i].u.f;
    else
      x[i] = v[i].u.i;
  }
  qn_dtype compute = (qn_dtype)operands[0].dtype;
  if (op == OP_cast || op == OP_fit) return fold_cast(op, type, v[0], out);
  if (op == OP_where) {
    memcpy(out, data[v[0].u.i ? 1 : 2], dtype_size((qn_dtype)type->dtype));
    return true;
  }
  if (op >= OP_eq && op <= OP_ge) {
    bool isfloat = dtype_is_float(compute), ordered = !isfloat || (f[0] == f[0] && f[1] == f[1]);
    int order = isfloat ? (f[0] > f[1]) - (f[0] < f[1]) : (x[0] > x[1]) - (x[0] < x[1]);
    dtype_store(DTYPE_TEST, out, value_bool(compare(op, order, ordered)));
    return true;
  }
  if (op == OP_invert) {
    store_wrapped(compute, dtype_is_bool(compute) ? !x[0] : ~x[0], out);
    return true;
  }
  if (dtype_is_float(compute)) {
    if (type->dtype != compute || !fold_float(op, compute, f, &result)) return false;
    dtype_store(compute, out, value_float(result));
    return true;
  }
  if (type->dtype != compute || !fold_int(op, type->weak, x, &whole)) return false;
  store_wrapped(compute, whole, out);
  return true;
}
