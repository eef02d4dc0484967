/* The typed doors to array work (jit/run/door.h): what is more than one op, or one op whose attribute is to be made.
 *
 * Where eager dispatch has a form for few elements that asks no rules (jit/run/eager.h), it is tried first, outside of recordings; unset
 * means that it is not for the case. Everything else is op_apply.
 */
#include "jit/run/door.h"

#include <string.h>

#include "jit/run/eager.h"
#include "jit/run/eager_index.h"
#include "jit/trace/rec.h"
#include "jit/trace/vmap.h"

static inline bool is_array(qn_value v) { return value_is(v, TAG_ARRAY); }
static inline bool is_set(qn_value v) { return v.head != TAG_UNSET; }

/* An attribute with n sizes, which are to be filled in: nobody looks at more. */
static inline void attr_begin(op_attr *attr, int n) {
  memset(attr, 0, offsetof(op_attr, d));
  attr->n = (uint8_t)n;
}

/* The op on operands that are given up, also on failure; an error value among them is the result. */
static qn_value use(qn_vm *vm, op_id op, qn_value x, const op_attr *attr) {
  if (value_is_error(x)) return x;
  qn_value out = op_apply(vm, op, &x, 1, attr);
  value_release(vm, x);
  return out;
}
static qn_value use_both(qn_vm *vm, op_id op, qn_value x, qn_value y) {
  qn_value out = value_is_error(x) || value_is_error(y) ? value_error() : op_binary(vm, op, x, y);
  value_release(vm, x);
  value_release(vm, y);
  return out;
}

/* ---- any op ------------------------------------------------------------------------------------------------------------------ */

static __attribute__((noinline)) qn_value apply(qn_vm *vm, op_id op, const qn_value *in, int nin) {
  return op_apply(vm, op, in, nin, NULL);
}

qn_value op_unary(qn_vm *vm, op_id op, qn_value a) {
  qn_value now = vm->rec ? value_unset() : eager_one(vm, op, a, 0);
  return is_set(now) ? now : apply(vm, op, &a, 1);
}

static __attribute__((noinline)) qn_value apply_two(qn_vm *vm, op_id op, qn_value a, qn_value b) {
  const qn_value in[2] = {a, b};
  return op_apply(vm, op, in, 2, NULL);
}

qn_value op_binary_few(qn_vm *vm, op_id op, qn_value a, qn_value b) {
  return vm->rec ? value_unset() : eager_two(vm, op, a, b);
}

qn_value op_binary(qn_vm *vm, op_id op, qn_value a, qn_value b) {
  qn_value now = op_binary_few(vm, op, a, b);
  return is_set(now) ? now : apply_two(vm, op, a, b);
}

qn_value op_ternary(qn_vm *vm, op_id op, const qn_value in[3]) {
  qn_value now = vm->rec ? value_unset() : eager_three(vm, op, in);
  return is_set(now) ? now : apply(vm, op, in, 3);
}

qn_value op_dot(qn_vm *vm, qn_value x, qn_value y) {
  qn_value now = vm->rec ? value_unset() : eager_fast_dot(vm, x, y);
  return is_set(now) ? now : apply_two(vm, OP_dot, x, y);
}

/* ---- dtypes ------------------------------------------------------------------------------------------------------------------ */

qn_value op_cast(qn_vm *vm, qn_value x, qn_dtype dtype) {
  if (is_array(x) && value_array(x)->dtype == dtype) return value_retain(x);
  qn_value now = vm->rec || !is_array(x) ? value_unset() : eager_one(vm, OP_cast, x, dtype);
  if (is_set(now)) return now;
  const op_attr attr = {.dtype = (uint8_t)dtype};
  bool cut = is_array(x) || dtype_is_bool(dtype) || (dtype_is_int(dtype) && value_is(x, TAG_FLOAT));
  return op_apply(vm, cut ? OP_cast : OP_fit, &x, 1, &attr);
}

static qn_value use_cast(qn_vm *vm, qn_value x, qn_dtype dtype) {
  if (value_is_error(x)) return x;
  qn_value out = op_cast(vm, x, dtype);
  value_release(vm, x);
  return out;
}

qn_value op_number(qn_vm *vm, qn_value x, qn_dtype dtype) {
  qn_value item;
  if (!vm->rec && is_array(x))
    return array_item(vm, value_array(x), 0, &item) ? eager_weak_cast(vm, item, dtype) : value_error();
  const op_attr attr = {.dtype = (uint8_t)dtype, .flags = ATTR_WEAK};
  if (is_array(x) && rec_numbers_wait(vm->rec) && !vmap_reads_value(vm->rec, x)) {
    qn_value flat = op_reshape(vm, x, 0, NULL);
    qn_value number = value_is_error(flat) ? flat : rec_host_number(vm, flat, dtype);
    value_release(vm, flat);
    return number;
  }
  return is_array(x) ? use(vm, OP_cast, op_reshape(vm, x, 0, NULL), &attr) : op_apply(vm, OP_cast, &x, 1, &attr);
}

/* ---- along axes -------------------------------------------------------------------------------------------------------------- */

qn_value op_reduce(qn_vm *vm, op_id op, qn_value x, uint8_t axes, bool keepdims) {
  qn_value now = vm->rec || !is_array(x) ? value_unset() : eager_reduce(vm, op, x, axes, keepdims);
  if (is_set(now)) return now;
  const op_attr attr = {.axes = axes, .keepdims = keepdims};
  return op_apply(vm, op, &x, 1, &attr);
}

int64_t op_count(qn_vm *vm, qn_value x, uint8_t axes) {
  int64_t shape[ARRAY_MAX_RANK];
  qn_dim n = 1;
  rec_sizes(vm, x, shape);
  for (int i = 0; i < value_array(x)->rank; i++)
    if (axes >> i & 1) n = dim_mul(rec_dims(vm), n, shape[i]);
  return n;
}

qn_value op_mean(qn_vm *vm, qn_value x, uint8_t axes, bool keepdims) {
  const qn_array *a = value_array(x);
  qn_dtype dtype = (qn_dtype)a->dtype, wide = dtype_is_int(dtype) ? DTYPE_WIDE : dtype_compute(dtype);
  qn_value out = vm->rec ? value_unset() : eager_mean(vm, x, wide, axes, keepdims);
  if (!is_set(out)) {
    const op_attr attr = {.axes = axes, .keepdims = keepdims};
    qn_value n = rec_size_number(vm, op_count(vm, x, axes));
    out = value_is_error(n) ? n : use_both(vm, OP_div, use(vm, OP_sum, op_cast(vm, x, wide), &attr), n);
    rec_size_fits(vm, out);
  }
  return dtype_is_narrow(dtype) ? use_cast(vm, out, dtype) : out;
}

qn_value op_scan(qn_vm *vm, op_id op, qn_value x, int axis) {
  qn_value now = vm->rec || !is_array(x) ? value_unset() : eager_reduce(vm, op, x, (uint8_t)(1u << axis), false);
  if (is_set(now)) return now;
  const op_attr attr = {.axes = (uint8_t)(1u << axis)};
  return op_apply(vm, op, &x, 1, &attr);
}

qn_value op_sort(qn_vm *vm, op_id op, qn_value x, int axis, bool descending) {
  qn_value now = vm->rec || !is_array(x) ? value_unset() : eager_sort(vm, op, value_array(x), axis, descending);
  if (is_set(now)) return now;
  const op_attr attr = {.axes = (uint8_t)(1u << axis), .flags = descending ? ATTR_DESCENDING : 0};
  return op_apply(vm, op, &x, 1, &attr);
}

/* ---- shapes ------------------------------------------------------------------------------------------------------------------- */

/* Has x that shape? -1 with an error raised. */
static inline int has_shape(qn_vm *vm, qn_value x, int rank, const int64_t *shape) {
  if (!is_array(x) || value_array(x)->rank != rank) return 0;
  int64_t few[ARRAY_MAX_RANK], *own = value_array(x)->shape;
  if (vm->rec) rec_read_sizes(vm, x, own = few);
  for (int i = 0; i < rank; i++)
    if (own[i] != shape[i]) return !vm->rec || rec_shape_differs(vm, rank, own, shape) ? 0 : -1;
  return 1;
}

static __attribute__((noinline)) qn_value to_sizes(qn_vm *vm, op_id op, qn_value x, int rank, const int64_t *shape) {
  op_attr attr;
  attr_begin(&attr, rank);
  for (int i = 0; i < rank; i++) attr.d[i] = shape[i];
  return op_apply(vm, op, &x, 1, &attr);
}

qn_value op_reshape(qn_vm *vm, qn_value x, int rank, const int64_t *shape) {
  int same = has_shape(vm, x, rank, shape);
  if (same) return same < 0 ? value_error() : value_retain(x);
  qn_value now = vm->rec || !is_array(x) ? value_unset() : eager_reshape(vm, value_array(x), rank, shape);
  return is_set(now) ? now : to_sizes(vm, OP_reshape, x, rank, shape);
}

qn_value op_broadcast(qn_vm *vm, qn_value x, int rank, const int64_t *shape) {
  int same = has_shape(vm, x, rank, shape);
  if (same) return same < 0 ? value_error() : value_retain(x);
  qn_value now = vm->rec || !is_array(x) ? value_unset() : eager_broadcast(vm, value_array(x), rank, shape);
  return is_set(now) ? now : to_sizes(vm, OP_broadcast, x, rank, shape);
}

qn_value op_permute(qn_vm *vm, qn_value x, const int *order) {
  int rank = value_array(x)->rank, same = 0;
  while (same < rank && order[same] == same) same++;
  if (same == rank) return value_retain(x);
  op_attr attr;
  attr_begin(&attr, rank);
  for (int i = 0; i < rank; i++) attr.d[i] = order[i];
  if (!vm->rec && value_array(x)->storage) return eager_permute(vm, value_array(x), attr.d);
  return op_apply(vm, OP_permute, &x, 1, &attr);
}

qn_value op_slice(qn_vm *vm, qn_value x, int axis, int64_t start, int64_t size, int64_t step) {
  const qn_array *a = value_array(x);
  op_attr attr;
  int64_t shape[ARRAY_MAX_RANK];
  attr_begin(&attr, 3 * a->rank);
  rec_sizes(vm, x, shape);
  for (int i = 0; i < a->rank; i++) {
    attr.d[3 * i] = i == axis ? start : 0;
    attr.d[3 * i + 1] = i == axis ? size : shape[i];
    attr.d[3 * i + 2] = i == axis ? step : 1;
  }
  qn_value now = vm->rec ? value_unset() : eager_slice(vm, a, attr.d);
  return is_set(now) ? now : op_apply(vm, OP_slice, &x, 1, &attr);
}

qn_value op_pad(qn_vm *vm, qn_value x, qn_value with, const qn_dim *d) {
  qn_value now = vm->rec ? value_unset() : eager_pad(vm, value_array(x), with, d);
  if (is_set(now)) return now;
  op_attr attr;
  attr_begin(&attr, 3 * value_array(x)->rank);
  memcpy(attr.d, d, (size_t)attr.n * sizeof *d);
  const qn_value in[2] = {x, with};
  return op_apply(vm, OP_pad, in, 2, &attr);
}

/* ---- joining ------------------------------------------------------------------------------------------------------------------ */

/* In a recording: if many of these values, from the first on, are rows of one array in order: these rows of it, owned, and how many they are;
 * or the error value. Else unset. */
static qn_value rows_ahead(qn_vm *vm, const qn_value *in, int n, int *rows) {
  enum { MANY = 4 };
  return vm->rec && n >= MANY ? rec_rows(vm, in, n, MANY, rows) : value_unset();
}

/* Rows of an array (taken over), joined along their first axis. */
static qn_value rows_joined(qn_vm *vm, qn_value x) {
  int64_t shape[ARRAY_MAX_RANK];
  if (value_is_error(x)) return x;
  int rank = value_array(x)->rank;
  rec_sizes(vm, x, shape);
  shape[1] = dim_mul(rec_dims(vm), shape[0], shape[1]);
  qn_value out = op_reshape(vm, x, rank - 1, shape + 1);
  value_release(vm, x);
  return out;
}

enum { JOINED_MOST = 1 << 14 /* operands of one node */ };

/* op_concat of more arrays than one node may join. */
static qn_value join_many(qn_vm *vm, const qn_value *in, int n, int axis) {
  const int most = (n + JOINED_MOST - 1) / JOINED_MOST;
  qn_value *parts = mem_alloc(vm, (size_t)most * sizeof *parts), out = value_unset();
  if (!parts) return value_error();
  int made = 0;
  for (int from = 0; from < n && !value_is_error(out); from += JOINED_MOST) {
    out = op_concat(vm, in + from, n - from < JOINED_MOST ? n - from : JOINED_MOST, axis);
    if (!value_is_error(out)) parts[made++] = out;
  }
  if (!value_is_error(out)) out = op_concat(vm, parts, made, axis);
  while (made) value_release(vm, parts[--made]);
  mem_free(vm, parts, (size_t)most * sizeof *parts);
  return out;
}

qn_value op_concat(qn_vm *vm, const qn_value *in, int n, int axis) {
  qn_value now = vm->rec ? value_unset() : eager_concat(vm, in, n, axis);
  if (is_set(now)) return now;
  int rows = 0;
  if (axis == 0 && is_array(in[0]) && value_array(in[0])->rank && is_set(now = rows_ahead(vm, in, n, &rows))) {
    if (rows == n || value_is_error(now)) return rows_joined(vm, now);
    value_release(vm, now);
  }
  if (n > JOINED_MOST) return join_many(vm, in, n, axis);
  const op_attr attr = {.axes = (uint8_t)(1u << axis)};
  return op_apply(vm, OP_concat, in, n, &attr);
}

qn_value op_stack_few(qn_vm *vm, const qn_value *in, int n, int axis, qn_dtype dtype) {
  return vm->rec ? value_unset() : eager_stack(vm, in, n, axis, dtype);
}

/* Ends what rec_hold began, after ops that gave `v` (taken over). That, owned, or the error value. */
static qn_value let_go(qn_vm *vm, struct recording *held, qn_value v) {
  if (rec_let_go(vm, held, !value_is_error(v)) || value_is_error(v)) return v;
  return value_fail(vm, v);
}

/* Rows of an array (taken over) along this axis, in this dtype. */
static qn_value rows_stacked(qn_vm *vm, qn_value x, int axis, qn_dtype dtype) {
  if (value_is_error(x)) return x;
  int order[ARRAY_MAX_RANK], rank = value_array(x)->rank;
  for (int k = 0; k < rank; k++) order[k] = k < axis ? k + 1 : k == axis ? 0 : k;
  qn_value cast = op_cast(vm, x, dtype), out = value_is_error(cast) ? cast : op_permute(vm, cast, order);
  value_release(vm, x);
  value_release(vm, cast);
  return out;
}

/* Item or items `in` on, of which n are left, as a part along the axis; *used: how many it stands for. Owned, or the error value. */
static qn_value stack_part(qn_vm *vm, const qn_value *in, int n, int axis, qn_dtype dtype, int rank,
                           const int64_t *shape, int *used) {
  qn_value rows = rows_ahead(vm, in, n, used);
  if (is_set(rows) && (value_is_error(rows) || is_array(in[0]) || value_array(rows)->dtype == dtype))
    return rows_stacked(vm, rows, axis, dtype);
  if (is_set(rows)) value_release(vm, rows); /* of numbers, each of which must fit */
  *used = 1;
  qn_value item = op_cast(vm, in[0], dtype);
  if (value_is_error(item)) return item;
  qn_value part = op_reshape(vm, item, rank + 1, shape);
  value_release(vm, item);
  return part;
}

static qn_value stack_by_ops(qn_vm *vm, const qn_value *in, int n, int axis, qn_dtype dtype) {
  const qn_array *first = is_array(in[0]) ? value_array(in[0]) : NULL;
  int rank = first ? first->rank : 0, made = 0, done = 0, used = 0;
  int64_t shape[ARRAY_MAX_RANK], sizes[ARRAY_MAX_RANK];
  if (first) rec_sizes(vm, in[0], sizes);
  for (int i = 0; i <= rank; i++) shape[i] = i == axis ? 1 : sizes[i < axis ? i : i - 1];
  qn_value *parts = mem_alloc(vm, (size_t)n * sizeof *parts), out = value_error();
  if (!parts) return out;
  for (; done < n; done += used) {
    qn_value part = stack_part(vm, in + done, n - done, axis, dtype, rank, shape, &used);
    if (value_is_error(part)) break;
    parts[made++] = part;
  }
  if (done == n) out = made == 1 ? value_retain(parts[0]) : op_concat(vm, parts, made, axis);
  while (made) value_release(vm, parts[--made]);
  mem_free(vm, parts, (size_t)n * sizeof *parts);
  return out;
}

qn_value op_stack(qn_vm *vm, const qn_value *in, int n, int axis, qn_dtype dtype) {
  qn_value now = op_stack_few(vm, in, n, axis, dtype);
  if (is_set(now)) return now;
  struct recording *held = rec_hold(vm);
  return let_go(vm, held, stack_by_ops(vm, in, n, axis, dtype));
}

/* ---- new arrays ---------------------------------------------------------------------------------------------------------------- */

qn_value op_full(qn_vm *vm, qn_value v, qn_dtype dtype, int rank, const int64_t *shape) {
  if (!vm->rec) {
    qn_value now = eager_full(vm, v, dtype, rank, shape);
    if (is_set(now)) return now;
  }
  qn_value one = op_cast(vm, v, dtype);
  if (value_is_error(one)) return one;
  qn_value wide = op_broadcast(vm, one, rank, shape);
  value_release(vm, one);
  if (vm->rec || value_is_error(wide)) return wide;
  qn_array *stored = array_contiguous(vm, value_array(wide));
  value_release(vm, wide);
  return stored ? value_obj(TAG_ARRAY, stored) : value_error();
}

qn_value op_iota(qn_vm *vm, qn_dtype dtype, int rank, const int64_t *shape, int axis) {
  if (!vm->rec && rank == 1 && (dtype == DTYPE_INDEX || dtype_is_float(dtype))) {
    qn_value now = eager_steps(vm, *shape, 0, 1);
    if (is_set(now)) return use_cast(vm, now, dtype);
  }
  op_attr attr;
  attr_begin(&attr, rank);
  attr.dtype = (uint8_t)dtype;
  attr.axes = (uint8_t)(1u << axis);
  for (int i = 0; i < rank; i++) attr.d[i] = shape[i];
  return op_apply(vm, OP_iota, NULL, 0, &attr);
}

qn_value op_steps(qn_vm *vm, int64_t n, int64_t start, int64_t step) {
  if (!vm->rec) {
    qn_value now = eager_steps(vm, n, start, step);
    if (is_set(now)) return now;
  }
  qn_value out = op_iota(vm, DTYPE_INDEX, 1, &n, 0);
  if (step != 1) out = use_both(vm, OP_mul, out, value_int(step));
  return start == 0 ? out : use_both(vm, OP_add, out, value_int(start));
}

qn_value op_eye(qn_vm *vm, int64_t n, int64_t m, qn_dtype dtype) {
  enum { SMALL = 128 }; /* rows and columns that are stored without ops */
  int64_t rows[2] = {n, 1}, columns[2] = {1, m}, shape[2] = {n, m};
  qn_value now = vm->rec || n > SMALL || m > SMALL ? value_unset() : eager_full(vm, value_bool(false), dtype, 2, shape);
  if (is_set(now)) {
    if (value_is_error(now)) return now;
    size_t each = dtype_size(dtype);
    char *to = array_data(value_array(now));
    for (int64_t i = 0; i < n && i < m; i++) dtype_store(dtype, to + (size_t)(i * m + i) * each, value_bool(true));
    return now;
  }
  qn_value i = op_iota(vm, DTYPE_INDEX, 2, rows, 0);
  qn_value same = value_is_error(i) ? i : use_both(vm, OP_eq, i, op_iota(vm, DTYPE_INDEX, 2, columns, 1));
  return use_cast(vm, same, dtype);
}

/* ---- indices ------------------------------------------------------------------------------------------------------------------- */

qn_value op_take(qn_vm *vm, qn_value x, qn_value index, int axis) {
  const qn_array *a = value_array(x), *by = value_array(index);
  if (!vm->rec) {
    qn_value few = eager_take(vm, a, by, axis);
    if (is_set(few)) return few;
  }
  const op_attr attr = {.n = 1, .d = {1}};
  int k = by->rank, order[ARRAY_MAX_RANK];
  for (int i = 0; i < a->rank; i++) order[i] = i == 0 ? axis : i <= axis ? i - 1 : i;
  qn_value in[2] = {op_permute(vm, x, order), index};
  if (value_is_error(in[0])) return in[0];
  qn_value found = op_apply(vm, OP_index, in, 2, &attr);
  value_release(vm, in[0]);
  if (value_is_error(found)) return found;
  /* The index's axes lie in front: put the `axis` leading ones of x before them. */
  for (int i = 0; i < value_array(found)->rank; i++) order[i] = i < axis ? k + i : i < axis + k ? i - axis : i;
  qn_value out = op_permute(vm, found, order);
  value_release(vm, found);
  return out;
}

qn_value op_nonzero(qn_vm *vm, qn_value mask) {
  qn_value now = vm->rec ? value_unset() : eager_fast_nonzero(vm, mask);
  return is_set(now) ? now : op_apply(vm, OP_nonzero, &mask, 1, NULL);
}

qn_value op_gather(qn_vm *vm, qn_value x, qn_value index, int axis) {
  qn_value now = vm->rec ? value_unset() : eager_gather(vm, value_array(x), value_array(index), axis);
  if (is_set(now)) return now;
  const op_attr attr = {.axes = (uint8_t)(1u << axis)};
  const qn_value in[2] = {x, index};
  return op_apply(vm, OP_gather, in, 2, &attr);
}

qn_value op_add_at(qn_vm *vm, qn_value x, qn_value index, qn_value v) {
  if (!vm->rec && is_array(x) && is_array(index) && is_array(v)) {
    qn_value now = eager_add_at(vm, value_array(x), value_array(index), v);
    if (is_set(now)) return now;
  }
  const op_attr attr = {.n = 1, .d = {1}, .mode = SCATTER_ADD};
  const qn_value in[3] = {x, index, v};
  return op_apply(vm, OP_scatter, in, 3, &attr);
}

/* ---- random numbers -------------------------------------------------------------------------------------------------------------- */

static qn_value key_word(qn_vm *vm, qn_value key, int i) {
  qn_array *a = value_array(key);
  qn_value word;
  if (!vm->rec && !array_pending(a) && a->device == vm->device)
    return array_item(vm, a, i, &word) ? word : value_error();
  qn_value one = op_slice(vm, key, 0, i, 1, 1);
  if (value_is_error(one)) return one;
  word = op_reshape(vm, one, 0, NULL);
  value_release(vm, one);
  return word;
}

/* The operands of a RANDOM op (owned): key words and draw number. */
static bool draw_operands(qn_vm *vm, const op_drawing *d, qn_value in[3]) {
  if (value_is(d->key, TAG_NIL)) {
    rec_key(vm, &in[0], &in[1]);
    in[2] = rec_draws(vm, 1);
    return !value_is_error(in[2]);
  }
  in[2] = value_int(d->number);
  in[0] = key_word(vm, d->key, 0);
  if (value_is_error(in[0])) return false;
  in[1] = key_word(vm, d->key, 1);
  if (!value_is_error(in[1])) return true;
  value_release(vm, in[0]);
  return false;
}

static __attribute__((noinline)) qn_value draw_op(qn_vm *vm, op_id op, const op_drawing *d, qn_dtype dtype) {
  op_attr attr;
  attr_begin(&attr, d->rank);
  attr.dtype = (uint8_t)dtype;
  attr.mode = value_is(d->key, TAG_NIL) ? DRAW_COUNTED : DRAW_KEYED;
  for (int i = 0; i < d->rank; i++) attr.d[i] = d->shape[i];
  qn_value in[3];
  if (!draw_operands(vm, d, in)) return value_error();
  qn_value out = op_apply(vm, op, in, 3, &attr);
  for (int i = 0; i < 3; i++) value_release(vm, in[i]);
  return out;
}

qn_value op_draw(qn_vm *vm, op_id op, const op_drawing *d) {
  qn_value now = vm->rec ? value_unset() : eager_draw(vm, op, d, 0, 0);
  return is_set(now) ? now : draw_op(vm, op, d, d->dtype);
}

qn_value op_draw_ints_of(qn_vm *vm, const op_drawing *d, qn_value low, qn_value values) {
  qn_value x = use_both(vm, OP_bitand, draw_op(vm, OP_random_bits, d, DTYPE_INDEX), value_int(INT64_MAX));
  return use_cast(vm, use_both(vm, OP_add, use_both(vm, OP_mod, x, values), low), d->dtype);
}

qn_value op_draw_ints(qn_vm *vm, const op_drawing *d, int64_t low, uint64_t values) {
  qn_value x = vm->rec ? value_unset() : eager_draw(vm, OP_random_bits, d, low, values);
  if (is_set(x)) return x;
  x = draw_op(vm, OP_random_bits, d, DTYPE_INDEX);
  x = use_both(vm, OP_bitand, x, value_int(INT64_MAX));
  if (values >> 63 == 0) x = use_both(vm, OP_mod, x, value_int((int64_t)values));
  if (low) x = use_both(vm, OP_add, x, value_int(low));
  return use_cast(vm, x, d->dtype);
}
