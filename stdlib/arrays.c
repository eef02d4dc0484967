/* Builtins that make arrays, and conversion between dtypes. Constants are a broadcast number and sequences are iota, so that
 * everything can be recorded. */
#include <math.h>
#include <stdlib.h>

#include "jit/run/device.h"
#include "stdlib/builtins.h"

/* A new array with `v`, a number or an array of rank 0 (borrowed), in every element. Raises an error if the dtype does not hold `v`. */
static qn_value filled(qn_vm *vm, qn_value v, qn_dtype dtype, int rank, const int64_t *shape) {
  if (is_array(v) || dtype_holds(dtype, v)) return op_full(vm, v, dtype, rank, shape);
  qn_value one = to_dtype(vm, v, dtype);
  return value_is_error(one) ? one : used(vm, one, op_full(vm, one, dtype, rank, shape));
}

static qn_value constant(qn_vm *vm, const char *fn, const qn_value *args, int64_t number) {
  int64_t shape[ARRAY_MAX_RANK];
  int rank;
  qn_dtype dtype;
  if (!arg_shape(vm, fn, args[0], shape, &rank) || !arg_dtype(vm, fn, args[1], DTYPE_FLOAT, &dtype))
    return value_error();
  return filled(vm, dtype_is_bool(dtype) ? value_bool(number) : value_int(number), dtype, rank, shape);
}

qn_value builtin_zeros(qn_vm *vm, const qn_value *args) { return constant(vm, "zeros", args, 0); }
qn_value builtin_ones(qn_vm *vm, const qn_value *args) { return constant(vm, "ones", args, 1); }

qn_value builtin_full(qn_vm *vm, const qn_value *args) {
  int64_t shape[ARRAY_MAX_RANK];
  int rank;
  qn_value v = args[1];
  if (!is_array(v) && !value_is_scalar(v)) return arg_refuse(vm, "full", "a number or an array as value", v);
  qn_dtype dtype = is_array(v) ? (qn_dtype)value_array(v)->dtype : dtype_of_number(v);
  if (!arg_shape(vm, "full", args[0], shape, &rank) || !arg_dtype(vm, "full", args[2], dtype, &dtype))
    return value_error();
  return filled(vm, v, dtype, rank, shape);
}

static qn_value constant_like(qn_vm *vm, const char *fn, const qn_value *args, int64_t number) {
  qn_value x = args[0];
  if (value_is_scalar(x) && value_is(args[1], TAG_NIL))
    return value_is(x, TAG_FLOAT) ? value_float((double)number)
           : value_is(x, TAG_INT) ? value_int(number)
                                  : value_bool(number);
  if (!is_array(x) && !value_is_scalar(x)) return arg_refuse(vm, fn, "an array or a number", x);
  qn_dtype dtype = is_array(x) ? (qn_dtype)value_array(x)->dtype : dtype_of_number(x);
  if (!arg_dtype(vm, fn, args[1], dtype, &dtype)) return value_error();
  int64_t shape[ARRAY_MAX_RANK];
  if (is_array(x)) rec_sizes(vm, x, shape);
  return filled(vm, dtype_is_bool(dtype) ? value_bool(number) : value_int(number), dtype,
                is_array(x) ? value_array(x)->rank : 0, shape);
}

qn_value builtin_zeros_like(qn_vm *vm, const qn_value *args) { return constant_like(vm, "zeros_like", args, 0); }
qn_value builtin_ones_like(qn_vm *vm, const qn_value *args) { return constant_like(vm, "ones_like", args, 1); }

qn_value builtin_eye(qn_vm *vm, const qn_value *args) {
  int64_t n, m;
  qn_dtype dtype;
  if (!arg_int(vm, "eye", "an int as number of rows", args[0], &n)) return value_error();
  m = n;
  if (!value_is(args[1], TAG_NIL) && !arg_int(vm, "eye", "an int as number of columns", args[1], &m))
    return value_error();
  if (!arg_dtype(vm, "eye", args[2], DTYPE_FLOAT, &dtype)) return value_error();
  if (n < 0 || m < 0)
    return raise_error(vm, E_shape, SPAN_NONE, "eye: size %lld is negative", (long long)(n < 0 ? n : m));
  if (!rec_size(vm, args[0], &n)) return value_error();
  m = n;
  if (!value_is(args[1], TAG_NIL) && !rec_size(vm, args[1], &m)) return value_error();
  return op_eye(vm, n, m, dtype);
}

static qn_value too_many(qn_vm *vm, const char *fn) {
  return raise_error(vm, E_too_large, SPAN_NONE, "%s: more than 2**48 elements", fn);
}

/* Prepares start, stop and step of arange, n[0] to n[2], for a call that is recorded. Ints are observed. Floats stay data, of which nothing may be
 * read (in an arm they have no values): only how many steps there are is asked, since the shape of the result depends on it, and *size, which may be a
 * symbol, is that. *steps stays nil where all numbers are known, since they were or because one may be an error. False with an error raised. */
static bool observe_steps(qn_vm *vm, qn_value *n, qn_value *steps, int64_t *size) {
  bool traced = false;
  for (int i = 0; i < 3; i++) {
    if (value_is(n[i], TAG_INT)) n[i] = rec_observe(vm, n[i]);
    if (value_is_error(n[i])) return false;
    traced |= value_node(n[i]) != 0;
  }
  if (!traced) return true;
  qn_value distance = op2(vm, OP_sub, n[1], n[0], NULL), finite = value_error();
  qn_value count = value_is_error(distance) ? distance : op2(vm, OP_div, distance, n[2], NULL);
  if (!value_is_error(count)) count = op1(vm, OP_ceil, count, NULL);
  if (!value_is_error(count))
    finite = op1(vm, OP_isfinite, n[2], NULL); /* steps without end are none, from a finite start */
  if (!value_is_error(finite)) finite = rec_observe(vm, finite);
  if (value_is_error(finite)) return false;
  if (!rec_whole_size(vm, &count, size))
    return false; /* last: what is observed may end the recording, and its symbols */
  if (isfinite(count.u.f) && finite.u.i) return *steps = count, true;
  for (int i = 0; i < 3; i++)
    if (value_is_error(n[i] = rec_observe(vm, n[i]))) return false;
  return true;
}

/* start, start + step ... before stop, where one of the ends is a size that may differ in later calls, and step does not. *counted: there is
 * one, and *this is the array, owned, or the error value. */
static qn_value steps_between(qn_vm *vm, qn_value start, qn_value stop, qn_value step, bool *counted) {
  bool from_symbol, to_symbol;
  int64_t from, to;
  *counted = true;
  if (!rec_bound(vm, start, &from_symbol, &from) || !rec_bound(vm, stop, &to_symbol, &to)) return value_error();
  dim_table *t = rec_dims(vm);
  *counted = (from_symbol || to_symbol) && !value_node(step) && step.u.i && llabs(step.u.i) < ARRAY_MAX_ELEMENTS;
  if (!*counted) return value_nil();
  int64_t by = step.u.i;
  qn_dim low = from_symbol ? from : dim_const(t, from), high = to_symbol ? to : dim_const(t, to);
  qn_dim way = by > 0 ? dim_sub(t, high, low) : dim_sub(t, low, high);
  *counted = rec_size_ordered(vm, rec_is_data_size(vm, way) ? 0 : 1, way);
  if (!*counted) return value_nil();
  by = by < 0 ? -by : by;
  qn_dim n = dim_make(t, DIM_FLOORDIV, dim_add(t, way, by - 1), dim_const(t, by));
  if (!from_symbol) return op_steps(vm, n, from, step.u.i);
  return use2(vm, OP_add, op_steps(vm, n, 0, step.u.i), start, NULL);
}

qn_value builtin_arange(qn_vm *vm, const qn_value *args) {
  qn_value start = args[0], stop = args[1], step = args[2];
  if (value_is(stop, TAG_NIL)) {
    stop = start;
    start = value_int(0);
  }
  qn_value numbers[3] = {start, stop, step};
  bool floats = false;
  for (int i = 0; i < 3; i++) {
    if (!value_is_number(numbers[i])) return arg_refuse(vm, "arange", "numbers", numbers[i]);
    floats |= value_is(numbers[i], TAG_FLOAT);
  }
  qn_dtype dtype;
  if (!arg_dtype(vm, "arange", args[3], floats ? DTYPE_FLOAT : DTYPE_INT, &dtype)) return value_error();
  bool traced = value_node(start) || value_node(stop) || value_node(step);
  if (traced && !floats) {
    bool counted;
    qn_value out = steps_between(vm, start, stop, step, &counted);
    if (counted) return use_dtype(vm, out, dtype);
  }
  qn_value steps = value_nil();
  int64_t n = 0;
  if (traced && !observe_steps(vm, numbers, &steps, &n)) return value_error();
  start = numbers[0], stop = numbers[1], step = numbers[2];
  if (!floats) {
    if (step.u.i == 0) return raise_error(vm, E_argument, SPAN_NONE, "arange: the step is 0");
    n = range_length(&(qn_range){.start = start.u.i, .stop = stop.u.i, .step = step.u.i});
    if (n > ARRAY_MAX_ELEMENTS) return too_many(vm, "arange");
    return use_dtype(vm, op_steps(vm, n, start.u.i, step.u.i), dtype);
  }
  double from = qn_as_float(start), to = qn_as_float(stop), by = qn_as_float(step);
  bool known = value_is(steps, TAG_NIL);
  if (known && (by == 0 || !isfinite(from) || !isfinite(to) || !isfinite(by)))
    return raise_error(vm, E_argument, SPAN_NONE,
                       "arange: start and stop must be finite, and the step finite and not 0");
  double count = known ? ceil((to - from) / by) : steps.u.f;
  if (count > (double)ARRAY_MAX_ELEMENTS) return too_many(vm, "arange");
  if (known) n = count > 0 ? (int64_t)count : 0;
  qn_value out = op_iota(vm, DTYPE_WIDE, 1, &n, 0);
  if (value_is(step, TAG_INT)) step = value_float(by);
  if (value_is(start, TAG_INT)) start = value_float(from);
  out = use2(vm, OP_add, use2(vm, OP_mul, out, step, NULL), start, NULL);
  return use_dtype(vm, out, dtype);
}

qn_value builtin_array(qn_vm *vm, const qn_value *args) {
  qn_dtype dtype;
  if (!arg_dtype(vm, "array", args[1], QN_DTYPE_COUNT, &dtype)) return value_error();
  return arg_array(vm, "array", args[0], dtype);
}

qn_value builtin_to(qn_vm *vm, const qn_value *args) {
  qn_value x = args[0], target = args[1];
  if (!is_array(x) && !value_is_scalar(x)) return arg_refuse(vm, "to", "an array or a number", x);
  if (value_is(target, TAG_DTYPE)) {
    qn_dtype dtype;
    return arg_dtype(vm, "to", target, DTYPE_FLOAT, &dtype) ? to_dtype(vm, x, dtype) : value_error();
  }
  if (value_is(target, TAG_FN) && value_fn(target)->head.flags == FN_BUILTIN &&
      ((const builtin_def *)value_fn(target)->code)->call == builtin_gpu)
    target = value_device(device_code(device_family_find("gpu"), 0)); /* x.to(gpu) means the first one */
  if (value_is(target, TAG_STR) && (dtype_public((int)dtype_find(value_str(target)->text, value_str(target)->len)) ||
                                    device_shown(device_family_find(value_str(target)->text))))
    return raise_error(vm, E_type, SPAN_NONE, "to: dtypes and devices have no quotes: write %s",
                       value_str(target)->text);
  if (!value_is(target, TAG_DEVICE)) return arg_refuse(vm, "to", "a dtype like f32 or i64, or cpu or gpu", target);
  if (!device_open(vm, (int)target.u.i)) return value_error();
  if (is_array(x) && value_array(x)->device == target.u.i) return value_retain(x);
  qn_value here = arg_array(vm, "to", x, QN_DTYPE_COUNT);
  if (value_is_error(here)) return here;
  return used(vm, here, value_new(TAG_ARRAY, array_to_device(vm, value_array(here), (int)target.u.i)));
}

qn_value builtin_gpu(qn_vm *vm, const qn_value *args) {
  int64_t n;
  if (!arg_int(vm, "gpu", "an int as number", args[0], &n)) return value_error();
  if (n < 0 || n > 200)
    return raise_error(vm, E_argument, SPAN_NONE, "gpu: there is no device of number %lld", (long long)n);
  if (n >= DEVICE_NUMBERS) return raise_error(vm, E_device, SPAN_NONE, "gpu(%lld) is not there", (long long)n);
  return value_device(device_code(device_family_find("gpu"), (int)n));
}
