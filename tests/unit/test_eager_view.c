/* Views without rules (jit/run/view.c) against the way that asks them: VIEW ops and slice_put over shapes (empty ones and
 * axes of size 1 among them), layouts, dtypes and attributes, right and wrong. Both give the same bits, dtypes and shapes, or refuse in
 * the same words. */
#include "jit/cpu/cpu.h"
#include "jit/run/eager.h"
#include "tests/unit/lang.h"

static uint64_t state = 1;
static uint32_t rnd(uint32_t n) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return n ? (uint32_t)(state >> 33) % n : 0;
}

static qn_vm *cpu_make(void) {
  qn_vm *vm = vm_make();
  if (!cpu_open(vm)) ck_abort_msg("no memory");
  return vm;
}

static int random_shape(int64_t *shape, int most) {
  int rank = (int)rnd((uint32_t)most + 1);
  for (int i = 0; i < rank; i++) shape[i] = rnd(4) == 0 ? 1 : rnd(14) == 0 ? 0 : 1 + rnd(5);
  return rank;
}

/* An array of random bytes that are numbers of the dtype; its axes may lie in another order, with gaps, backwards or repeated. */
static qn_array *random_array(qn_vm *vm, qn_dtype d, int rank, const int64_t *shape) {
  int64_t strides[ARRAY_MAX_RANK], n = 1, low = 0;
  for (int i = rank - 1; i >= 0; i--) {
    strides[i] = rnd(4) == 0 ? 0 : n;
    n *= (shape[i] ? shape[i] : 1) * (rnd(4) == 0 ? 2 : 1);
    if (rnd(4) || shape[i] == 0) continue;
    low += strides[i] * (shape[i] - 1);
    strides[i] = -strides[i];
  }
  for (int i = 1; i < rank; i++)
    if (shape[i] == shape[i - 1] && rnd(2)) {
      int64_t s = strides[i];
      strides[i] = strides[i - 1];
      strides[i - 1] = s;
    }
  qn_array *base = array_new(vm, d, 1, &n);
  if (!base) ck_abort_msg("no memory");
  for (int64_t i = 0; i < n; i++)
    dtype_store(d, array_data(base) + (size_t)i * dtype_size(d),
                dtype_is_float(d) ? value_float(rnd(2000) * 0.25 - 250) : value_int(rnd(100)));
  if (rnd(3)) {
    for (int64_t size = 1, i = rank - 1; i >= 0; i--) {
      strides[i] = size;
      size *= shape[i] ? shape[i] : 1;
    }
    low = 0;
  }
  qn_array *a = array_view(vm, base, d, rank, shape, strides, low);
  value_release(vm, value_obj(TAG_ARRAY, base));
  if (!a) ck_abort_msg("no memory");
  return a;
}

/* A broadcast may have any number of elements. */
static void same_array(const qn_array *a, const qn_array *b, const char *what) {
  ck_assert_msg(a->dtype == b->dtype && shape_equal(a, b), "%s: types", what);
  ck_assert_msg(a->contiguous == b->contiguous && a->size == b->size, "%s: layouts", what);
  for (int64_t i = 0; i < a->size && i < 2000; i++) {
    qn_value v = array_get_flat(a, i), w = array_get_flat(b, i);
    if (v.head != w.head || v.u.i != w.u.i) ck_abort_msg("%s: element %lld", what, (long long)i);
  }
}

static int compared, refused;

/* `fast` is what the quick way made, or the error value; given up. */
static void as_by_rules(qn_vm *vm, qn_value fast, op_id op, const qn_value *in, int nin, const op_attr *attr) {
  char text[300] = "";
  if (value_is_error(fast)) snprintf(text, sizeof text, "E%d %s", (int)vm->error->id, vm->error->message->text);
  error_clear(vm);
  qn_value slow = eager_slow(vm, op, in, nin, attr);
  ck_assert_msg(value_is_error(fast) == value_is_error(slow), "%s: one way refuses: %s", op_rows[op].name, text);
  if (value_is_error(slow)) {
    char words[300];
    snprintf(words, sizeof words, "E%d %s", (int)vm->error->id, vm->error->message->text);
    ck_assert_str_eq(text, words);
    error_clear(vm);
    refused++;
    return;
  }
  same_array(value_array(fast), value_array(slow), op_rows[op].name);
  compared++;
  value_release(vm, fast);
  value_release(vm, slow);
}

static void both(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr) {
  as_by_rules(vm, eager_apply(vm, op, in, nin, attr), op, in, nin, attr);
}

static qn_dtype random_dtype(void) { return (qn_dtype)rnd(DTYPE_PUBLIC); }

static qn_value random_number(void) {
  return rnd(3) == 0 ? value_bool(rnd(2) != 0)
         : rnd(2)    ? value_int((int64_t)rnd(400) - 100)
                     : value_float(rnd(90) * 1e3);
}

static void maps(qn_vm *vm, qn_array *a) {
  qn_value x = value_obj(TAG_ARRAY, a);
  op_attr attr = {.n = (uint8_t)random_shape(attr.d, 5)};
  both(vm, OP_reshape, &x, 1, &attr);
  attr = (op_attr){.n = 2, .d = {1, a->size}};
  if (a->rank && a->shape[0] > 0) attr = (op_attr){.n = 2, .d = {a->shape[0], a->size / a->shape[0]}};
  both(vm, OP_reshape, &x, 1, &attr);
  attr = (op_attr){.n = (uint8_t)(a->rank + rnd(3))};
  for (int i = 0; i < attr.n; i++) {
    int own = i - (attr.n - a->rank);
    attr.d[i] = own >= 0 && (a->shape[own] != 1 || rnd(2)) ? a->shape[own] : (int64_t)rnd(5) - (rnd(30) == 0);
    if (rnd(30) == 0) attr.d[i] = rnd(2) ? 7 : ARRAY_MAX_ELEMENTS;
  }
  both(vm, OP_broadcast, &x, 1, &attr);
  attr = (op_attr){.n = a->rank};
  for (int i = 0; i < a->rank; i++) attr.d[i] = i;
  for (int i = a->rank - 1; i > 0; i--) {
    int k = (int)rnd((uint32_t)i + 1);
    int64_t t = attr.d[i];
    attr.d[i] = attr.d[k];
    attr.d[k] = t;
  }
  if (a->rank && rnd(10) == 0) attr.d[rnd(a->rank)] = (int64_t)rnd(5) - 1;
  if (rnd(20) == 0) attr.n++;
  both(vm, OP_permute, &x, 1, &attr);
}

/* A slice of the array, which may leave it. */
static op_attr random_slice(const qn_array *a) {
  op_attr attr = {.n = (uint8_t)(3 * a->rank)};
  for (int i = 0; i < a->rank; i++) {
    int64_t n = a->shape[i], step = 1 + rnd(3), size = n ? rnd((uint32_t)((n - 1) / step + 2)) : 0;
    int64_t span = size ? (size - 1) * step : 0, start = size ? rnd((uint32_t)(n - span)) : rnd((uint32_t)n + 1);
    bool back = rnd(2) && size;
    attr.d[3 * i] = back ? start + span : start;
    attr.d[3 * i + 1] = size;
    attr.d[3 * i + 2] = back ? -step : step;
    if (rnd(20) == 0) attr.d[3 * i + rnd(3)] = rnd(4) ? (int64_t)rnd(9) - 3 : INT64_MAX / 2;
  }
  return attr;
}

static void slices(qn_vm *vm, qn_array *a) {
  op_attr attr = random_slice(a);
  qn_value in[2] = {value_obj(TAG_ARRAY, a), random_number()};
  both(vm, OP_slice, in, 1, &attr);
  both(vm, OP_slice_put, in, 2, &attr);
  int64_t shape[ARRAY_MAX_RANK];
  int rank = (int)rnd(a->rank + 1u), skip = a->rank - rank;
  for (int i = 0; i < rank; i++) {
    int64_t n = attr.d[3 * (i + skip) + 1];
    shape[i] = n < 0 || n > 9 || rnd(5) == 0 ? 1 : n;
    if (rnd(20) == 0) shape[i] = 3;
  }
  in[1] = value_obj(TAG_ARRAY, random_array(vm, rnd(4) ? (qn_dtype)a->dtype : random_dtype(), rank, shape));
  both(vm, OP_slice_put, in, 2, &attr);
  value_release(vm, in[1]);
}

static void joins(qn_vm *vm, qn_array *a) {
  qn_value in[4] = {value_retain(value_obj(TAG_ARRAY, a))};
  int n = 1 + (int)rnd(4), axis = (int)rnd(a->rank + (rnd(20) == 0));
  for (int i = 1; i < n; i++) {
    int64_t shape[ARRAY_MAX_RANK];
    memcpy(shape, a->shape, sizeof shape);
    if (axis < a->rank) shape[axis] = rnd(4);
    if (a->rank && rnd(20) == 0) shape[rnd(a->rank)] = 2;
    in[i] = value_obj(TAG_ARRAY, random_array(vm, rnd(8) ? (qn_dtype)a->dtype : random_dtype(), a->rank, shape));
  }
  both(vm, OP_concat, in, n, &(op_attr){.axes = (uint8_t)(1u << axis)});
  for (int i = 0; i < n; i++) value_release(vm, in[i]);
  op_attr attr = {.n = (uint8_t)(3 * a->rank)};
  for (int i = 0; i < attr.n; i++) attr.d[i] = rnd(20) ? (int64_t)rnd(3) : a->rank > 1 || rnd(2) ? -1 : 40000;
  in[0] = value_obj(TAG_ARRAY, a);
  in[1] = random_number();
  both(vm, OP_pad, in, 2, &attr);
  in[1] =
      value_obj(TAG_ARRAY, random_array(vm, rnd(4) ? (qn_dtype)a->dtype : random_dtype(), rnd(9) == 0, &(int64_t){1}));
  both(vm, OP_pad, in, 2, &attr);
  value_release(vm, in[1]);
}

/* Stacked, as reshape and concat do it. */
static void stacks(qn_vm *vm, const qn_array *a) {
  qn_value in[3], parts[3];
  int n = 1 + (int)rnd(3), axis = (int)rnd(a->rank + 1u);
  op_attr attr = {.n = (uint8_t)(a->rank + 1)};
  for (int i = 0; i < attr.n; i++) attr.d[i] = i == axis ? 1 : a->shape[i - (i > axis)];
  for (int i = 0; i < n; i++) {
    in[i] = value_obj(TAG_ARRAY, random_array(vm, (qn_dtype)a->dtype, a->rank, a->shape));
    parts[i] = eager_slow(vm, OP_reshape, &in[i], 1, &attr);
    ck_assert(value_is(parts[i], TAG_ARRAY));
  }
  qn_value fast = eager_stack(vm, in, n, axis, (qn_dtype)a->dtype);
  if (value_is(fast, TAG_UNSET)) {
    ck_assert_int_eq(a->size, 0);
  } else {
    qn_value slow = eager_slow(vm, OP_concat, parts, n, &(op_attr){.axes = (uint8_t)(1u << axis)});
    same_array(value_array(fast), value_array(slow), "stack");
    value_release(vm, fast);
    value_release(vm, slow);
    compared++;
  }
  for (int i = 0; i < n; i++) {
    value_release(vm, in[i]);
    value_release(vm, parts[i]);
  }
}

START_TEST(both_ways) {
  qn_vm *vm = cpu_make();
  for (int round = 0; round < 4000; round++) {
    state = 1000 + (uint64_t)round;
    int64_t shape[ARRAY_MAX_RANK];
    int rank = random_shape(shape, 4);
    qn_array *a = random_array(vm, random_dtype(), rank, shape);
    maps(vm, a);
    slices(vm, a);
    joins(vm, a);
    if (rank < 4) stacks(vm, a);
    value_release(vm, value_obj(TAG_ARRAY, a));
  }
  ck_assert_int_gt(compared, 20000);
  ck_assert_int_gt(refused, 2000);
  size_t before = live(vm);
  qn_array *a = random_array(vm, QN_f32, 2, (int64_t[]){2, 3});
  maps(vm, a);
  slices(vm, a);
  joins(vm, a);
  value_release(vm, value_obj(TAG_ARRAY, a));
  ck_assert_uint_le(live(vm), before + 4096); /* perhaps a kernel more */
  devices_close(vm);
  vm_close(vm);
}
END_TEST

START_TEST(indices) {
  qn_vm *vm = cpu_make();
  compared = 0;
  for (int round = 0; round < 600; round++) {
    state = 77 + (uint64_t)round;
    const qn_dtype dtypes[3] = {QN_i64, QN_f32, QN_f64};
    op_attr attr = {.dtype = (uint8_t)dtypes[rnd(3)], .axes = 1, .n = 1, .d = {rnd(9) ? (int64_t)rnd(400) : -1}};
    if (rnd(9) == 0) {
      attr.n = (uint8_t)(1 + random_shape(attr.d + 1, 3));
      attr.axes = (uint8_t)(1u << rnd(attr.n));
    }
    qn_value quick = op_iota(vm, (qn_dtype)attr.dtype, attr.n, attr.d, __builtin_ctz(attr.axes));
    as_by_rules(vm, quick, OP_iota, NULL, 0, &attr);
  }
  ck_assert_int_gt(compared, 400);
  devices_close(vm);
  vm_close(vm);
}
END_TEST

/* Numbers among the items of a stack: stored where the dtype takes them as they are. Arrays are converted. */
START_TEST(stacked_numbers) {
  qn_vm *vm = cpu_make();
  qn_array *s = array_from_scalar(vm, QN_i32, value_int(7));
  qn_value in[3] = {value_int(-3), value_obj(TAG_ARRAY, s), value_bool(true)};
  qn_value v = eager_stack(vm, in, 3, 0, QN_i32);
  ck_assert(value_is(v, TAG_ARRAY));
  ck_assert_int_eq(value_array(v)->rank, 1);
  const int64_t want[3] = {-3, 7, 1};
  for (int i = 0; i < 3; i++) ck_assert_int_eq(array_get_flat(value_array(v), i).u.i, want[i]);
  value_release(vm, v);
  in[0] = value_float(0.5);
  ck_assert(value_is(eager_stack(vm, in, 3, 0, QN_i32), TAG_UNSET));
  in[0] = value_int((int64_t)1 << 40);
  ck_assert(value_is(eager_stack(vm, in, 3, 0, QN_i32), TAG_UNSET));
  ck_assert(value_is(eager_stack(vm, in, 3, 0, QN_DTYPE_COUNT), TAG_UNSET));
  ck_assert(value_is(eager_stack(vm, in, 3, 1, QN_i32), TAG_UNSET));
  v = eager_stack(vm, in, 3, 0, QN_f32);
  ck_assert(value_is(v, TAG_ARRAY));
  ck_assert_int_eq(value_array(v)->dtype, QN_f32);
  ck_assert(array_get_flat(value_array(v), 0).u.f == 0x1p40);
  ck_assert(array_get_flat(value_array(v), 1).u.f == 7);
  value_release(vm, v);
  value_release(vm, in[1]);
  devices_close(vm);
  vm_close(vm);
}
END_TEST

/* Ctrl-C ends a large array's filling; a small one's does not look at it. */
START_TEST(filled) {
  qn_vm *vm = cpu_make();
  const int64_t sizes[2] = {1000, 3000001};
  for (int i = 0; i < 2; i++) {
    qn_value v = eager_full(vm, value_float(0.5), QN_f16, 1, &sizes[i]);
    ck_assert(value_is(v, TAG_ARRAY));
    for (int64_t k = 0; k < sizes[i]; k++)
      ck_assert_uint_eq(((uint16_t *)(void *)array_data(value_array(v)))[k], 0x3800);
    value_release(vm, v);
    qn_interrupt(vm);
    v = eager_full(vm, value_float(0.5), QN_f16, 1, &sizes[i]);
    ck_assert_int_eq(value_is(v, TAG_ARRAY), i == 0);
    if (i == 0) {
      value_release(vm, v);
      ck_assert(vm_poll(vm)); /* it still is to be noticed */
    }
    ck_assert_str_eq(qn_error_id(vm), "E603");
    error_clear(vm);
  }
  text_free(&vm->report);
  devices_close(vm);
  vm_close(vm);
}
END_TEST

int main(void) {
  Suite *s = suite_create("eager_view");
  CASE(tcase_create("views"), both_ways, indices, stacked_numbers, filled);
  return run_suite(s);
}
