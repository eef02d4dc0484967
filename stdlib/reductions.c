/* Builtins made of reductions, sorting and products. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stdlib/builtins.h"

qn_value builtin_count(qn_vm *vm, const qn_value *args) {
  if (value_is_scalar(args[0]) && value_is(args[1], TAG_NIL)) return value_int(1);
  if (!is_array(args[0])) return arg_refuse(vm, "count", "an array", args[0]);
  uint8_t mask;
  if (!arg_axes(vm, "count", args[1], value_array(args[0])->rank, &mask)) return value_error();
  return rec_size_number(vm, op_count(vm, args[0], mask));
}

qn_value builtin_mean(qn_vm *vm, const qn_value *args) {
  bool keepdims;
  uint8_t axes;
  if (reduces_at_once(args, &axes)) return op_mean(vm, args[0], axes, args[2].u.i != 0);
  if (!arg_bool(vm, "mean", "true or false as keepdims", args[2], &keepdims)) return value_error();
  qn_value x = args[0];
  if (is_array(x))
    return arg_axes(vm, "mean", args[1], value_array(x)->rank, &axes) ? op_mean(vm, x, axes, keepdims) : value_error();
  if (value_is_scalar(x) && value_is(args[1], TAG_NIL)) return op2(vm, OP_div, x, value_int(1), NULL);
  x = arg_array(vm, "mean", x, QN_DTYPE_COUNT);
  if (value_is_error(x)) return x;
  bool good = arg_axes(vm, "mean", args[1], value_array(x)->rank, &axes);
  return good ? used(vm, x, op_mean(vm, x, axes, keepdims)) : value_fail(vm, x);
}

qn_value builtin_gelu(qn_vm *vm, const qn_value *args) {
  qn_str *form;
  if (!arg_operands(vm, "gelu", args, 1) || !arg_str(vm, "gelu", "\"none\" or \"tanh\" as approximate", args[1], &form))
    return value_error();
  bool named = form->len == 4, exact = named && memcmp(form->text, "none", 4) == 0;
  if (!exact && !(named && memcmp(form->text, "tanh", 4) == 0))
    return raise_error(vm, E_argument, SPAN_NONE, "gelu: approximate is \"none\" or \"tanh\", not \"%s\"", form->text);
  return op1(vm, exact ? OP_gelu : OP_gelu_tanh, args[0], NULL);
}

/* Rounds integers to a multiple of 10**-digits, ties to the even multiple, in their own dtype: by quotient and remainder, so that nothing is
 * lost in floats. */
static qn_value round_ints(qn_vm *vm, qn_value x, int64_t digits) {
  if (!is_array(x) && value_is(x, TAG_BOOL)) return op2(vm, OP_mul, x, value_int(0), NULL);
  int64_t power = 1;
  for (; digits < 0 && power <= INT64_MAX / 10; digits++) power *= 10;
  bool held = !is_array(x) || dtype_holds((qn_dtype)value_array(x)->dtype, value_int(power));
  if (digits == -1 &&
      (!is_array(x) ||
       value_array(x)->dtype ==
           DTYPE_INT)) { /* 10**19 is no i64; products that leave i64 wrap or are an error, as everywhere */
    const int64_t half = INT64_C(5000000000000000000);
    qn_value above = op2(vm, OP_gt, x, value_int(half), NULL), below = op2(vm, OP_lt, x, value_int(-half), NULL);
    qn_value whole = use2(vm, OP_sub, use2(vm, OP_mul, above, value_int(10), NULL),
                          use2(vm, OP_mul, below, value_int(10), NULL), NULL);
    return use2(vm, OP_mul, whole, value_int(power), NULL);
  }
  if (digits < 0 || !held)
    return op2(vm, OP_mul, x, value_int(0), NULL); /* all numbers of the dtype are less than half the power of ten */
  qn_value unit = value_int(power), one = value_int(1);
  qn_value whole = op2(vm, OP_floordiv, x, unit, NULL);
  if (value_is_error(whole)) return whole;
  qn_value rest = op2(vm, OP_mod, x, unit, NULL), out = value_error(), up = value_error();
  if (!value_is_error(rest)) {
    qn_value odd = use2(vm, OP_eq, op2(vm, OP_mod, whole, value_int(2), NULL), one, NULL);
    qn_value tie = use2(vm, OP_eq, op2(vm, OP_sub, unit, rest, NULL), value_retain(rest), NULL);
    qn_value more = use2(vm, OP_lt, op2(vm, OP_sub, unit, rest, NULL), value_retain(rest), NULL);
    up = use2(vm, OP_bitor, more, use2(vm, OP_bitand, tie, odd, NULL), NULL);
    value_release(vm, rest);
  }
  if (!value_is_error(up)) {
    qn_value next = op2(vm, OP_add, whole, one, NULL);
    out = use2(vm, OP_mul, use3(vm, OP_where, up, next, value_retain(whole), NULL), unit, NULL);
  }
  value_release(vm, whole);
  return out;
}

/* Rounds floats to a multiple of 10**-digits, ties to the even multiple. f16 and bf16 are computed in f32 and rounded to their dtype once.
 * Numbers that are too large to be scaled have no digits behind the point and stay. */
static qn_value round_floats(qn_vm *vm, qn_value x, int64_t digits) {
  qn_dtype dtype = is_array(x) ? (qn_dtype)value_array(x)->dtype : WEAK_FLOAT;
  if (dtype_is_narrow(dtype)) {
    qn_value wide = to_dtype(vm, x, dtype_compute(dtype));
    if (value_is_error(wide)) return wide;
    return use_dtype(vm, used(vm, wide, round_floats(vm, wide, digits)), dtype);
  }
  char text[16];
  snprintf(text, sizeof text, "1e%d", (int)(digits < 0 ? -digits : digits));
  qn_value scale = value_float(strtod(text, NULL)); /* rounded once */
  if (!dtype_holds(dtype, scale)) {                 /* the dtype has no number of this size */
    if (digits > 0) return op1(vm, OP_stop_gradient, x, NULL);
    qn_value none = op2(vm, OP_mul, x, value_float(0), NULL);
    return use3(vm, OP_where, op1(vm, OP_isfinite, x, NULL), none, op1(vm, OP_stop_gradient, x, NULL), NULL);
  }
  if (digits < 0) return use2(vm, OP_mul, use1(vm, OP_round, op2(vm, OP_div, x, scale, NULL), NULL), scale, NULL);
  qn_value scaled = op2(vm, OP_mul, x, scale, NULL);
  if (value_is_error(scaled)) return scaled;
  qn_value whole =
      value_float((double)((int64_t)1 << (dtype_rows[dtype].digits - 1))); /* floats from this one on are integers */
  qn_value inside = use2(vm, OP_lt, op1(vm, OP_abs, scaled, NULL), whole, NULL);
  qn_value rounded = use2(vm, OP_div, use1(vm, OP_round, scaled, NULL), scale, NULL);
  return use3(vm, OP_where, inside, rounded, op1(vm, OP_stop_gradient, x, NULL), NULL);
}

qn_value builtin_round(qn_vm *vm, const qn_value *args) {
  qn_value x = args[0];
  int64_t digits;
  if (!is_array(x) && !value_is_scalar(x)) return arg_refuse(vm, "round", "a number or an array", x);
  if (!arg_int(vm, "round", "an int as number of digits", args[1], &digits)) return value_error();
  if (digits == 0) return op1(vm, OP_round, x, NULL);
  if (digits < -300 || digits > 300) return raise_error(vm, E_argument, SPAN_NONE, "round: digits go from -300 to 300");
  bool ints = is_array(x) ? !dtype_is_float((qn_dtype)value_array(x)->dtype) : !value_is(x, TAG_FLOAT);
  if (ints && digits > 0) return value_retain(x);
  if (ints) return round_ints(vm, x, digits);
  return round_floats(vm, x, digits);
}

qn_value builtin_argsort(qn_vm *vm, const qn_value *args) {
  bool descending;
  int axis;
  if (!is_array(args[0])) return arg_refuse(vm, "argsort", "an array", args[0]);
  if (!arg_axis(vm, "argsort", args[1], value_array(args[0])->rank, &axis) ||
      !arg_bool(vm, "argsort", "true or false as descending", args[2], &descending))
    return value_error();
  return op_sort(vm, OP_argsort, args[0], axis, descending);
}

/* The first `count` items of an array (taken over) along an axis; a size that may differ in later calls. */
static qn_value first_of(qn_vm *vm, qn_value x, int axis, int64_t count) {
  if (value_is_error(x)) return x;
  int64_t sizes[ARRAY_MAX_RANK];
  int rank = value_array(x)->rank;
  op_attr attr = {.n = (uint8_t)(3 * rank)};
  rec_sizes(vm, x, sizes);
  for (int i = 0; i < rank; i++) {
    attr.d[3 * i + 1] = i == axis ? count : sizes[i];
    attr.d[3 * i + 2] = 1;
  }
  qn_value out = op1(vm, OP_slice, x, &attr);
  value_release(vm, x);
  return out;
}

qn_value builtin_topk(qn_vm *vm, const qn_value *args) {
  qn_value x = args[0];
  int64_t k, count;
  int axis;
  if (!is_array(x)) return arg_refuse(vm, "topk", "an array", x);
  if (!value_is(args[1], TAG_INT)) return arg_refuse(vm, "topk", "an int as k", args[1]);
  if (!rec_size(vm, args[1], &count) || !arg_axis(vm, "topk", args[2], value_array(x)->rank, &axis))
    return value_error();
  bool symbolic = count < 0 && count != args[1].u.i;
  k = symbolic ? rec_size_hint(vm, count) : count;
  int64_t sizes[ARRAY_MAX_RANK], n = value_array(x)->shape[axis];
  if (!rec_sizes_of_call(vm, x, sizes)) return value_error();
  if (k < 0 || (k > n && !rec_is_number(vm, count)) || !rec_size_ordered(vm, count, sizes[axis]))
    return raise_error(vm, E_argument, SPAN_NONE, "topk: k is %lld, but axis %d has the size %lld", (long long)k, axis,
                       (long long)n);
  op_attr attr = {.axes = (uint8_t)(1u << axis), .flags = ATTR_DESCENDING, .n = 1, .d = {k}};
  qn_value indices = symbolic ? op_sort(vm, OP_argsort, x, axis, true) : op1(vm, OP_argsort, x, &attr);
  if (symbolic) indices = first_of(vm, indices, axis, count);
  if (value_is_error(indices)) return indices;
  attr = (op_attr){.axes = (uint8_t)(1u << axis)};
  return use_pair(vm, op2(vm, OP_gather, x, indices, &attr), indices);
}

qn_value builtin_matmul(qn_vm *vm, const qn_value *args) {
  return arg_operands(vm, "matmul", args, 2) ? op2(vm, OP_dot, args[0], args[1], NULL) : value_error();
}
