/* Eager ops from outside: every op over dtypes, layouts, broadcasting and sizes against its plain meaning (graph_eval.h), the
 * errors and their words, weak numbers, NaN and signed zeros, any number of threads, and every failed allocation. */
#include "jit/cpu/cpu.h"
#include "jit/run/eager.h"
#include "tests/unit/graph_eval.h"
#include "tests/unit/lang.h"

static uint64_t state = 1;
static uint32_t rnd(uint32_t n) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return n ? (uint32_t)(state >> 33) % n : 0;
}

static qn_vm *cpu_make(int threads) {
  qn_config config;
  qn_config_init(&config);
  config.threads = threads;
  qn_vm *vm = vm_open(&config);
  if (!vm || !cpu_open(vm)) ck_abort_msg("no memory");
  return vm;
}
static void cpu_drop(qn_vm *vm) {
  devices_close(vm);
  vm_close(vm);
}

/* ---- operands ---------------------------------------------------------------------------------------------------------- */

enum { OPERANDS = 8 };
typedef struct operand {
  eval_value plain;
  qn_value value;
} operand;

static qn_value number_of(const eval_value *a, int64_t k) {
  return a->f ? value_float(a->f[k]) : a->dtype == QN_bool ? value_bool(a->i[k] != 0) : value_int(a->i[k]);
}

/* Random values between lo and hi in an array with gaps, reversed or transposed axes. */
static operand make(qn_vm *vm, uint8_t dtype, int rank, const int64_t *shape, double lo, double hi) {
  operand o = {.plain = eval_new((qn_dtype)dtype, rank, shape)};
  for (int64_t k = 0; k < o.plain.n; k++) {
    double x = lo + (hi - lo) * rnd(1000) / 999.0;
    eval_set(&o.plain, k, x, dtype == QN_bool ? (int64_t)rnd(2) : (int64_t)floor(x));
  }
  int order[ARRAY_MAX_RANK];
  int64_t strides[ARRAY_MAX_RANK], stride = 1, low = 0;
  for (int a = 0; a < rank; a++) order[a] = a;
  if (rnd(3) == 0)
    for (int a = rank - 1; a > 0; a--) {
      int b = (int)rnd((uint32_t)a + 1), t = order[a];
      order[a] = order[b];
      order[b] = t;
    }
  bool plain = rnd(2) == 0;
  for (int j = rank - 1; j >= 0; j--) {
    int a = plain ? j : order[j];
    int64_t gap = !plain && rnd(4) == 0 ? 2 : 1;
    strides[a] = stride * gap;
    stride *= gap * (shape[a] > 0 ? shape[a] : 1);
    if (!plain && rnd(5) == 0 && shape[a] > 0) {
      low += strides[a] * (shape[a] - 1);
      strides[a] = -strides[a];
    }
  }
  qn_array *base = array_new(vm, (qn_dtype)dtype, 1, &stride);
  if (!base) ck_abort_msg("no memory");
  memset(array_data(base), 0, (size_t)stride * dtype_size((qn_dtype)dtype));
  qn_array *view = array_view(vm, base, (qn_dtype)dtype, rank, shape, strides, low);
  value_release(vm, value_obj(TAG_ARRAY, base));
  if (!view) ck_abort_msg("no memory");
  for (int64_t k = 0; k < o.plain.n; k++) {
    int64_t ix[ARRAY_MAX_RANK], at = 0;
    eval_coords(shape, rank, k, ix);
    for (int a = 0; a < rank; a++) at += ix[a] * view->strides[a];
    dtype_store((qn_dtype)dtype, array_data(view) + at * (int64_t)dtype_size((qn_dtype)dtype), number_of(&o.plain, k));
  }
  o.value = value_obj(TAG_ARRAY, view);
  return o;
}

static void drop(qn_vm *vm, operand *in, int nin) {
  for (int i = 0; i < nin; i++) {
    eval_drop(&in[i].plain);
    value_release(vm, in[i].value);
  }
}

static bool close_to(uint8_t dtype, double a, double b) {
  double tolerance = dtype == QN_f64 ? 1e-9 : dtype == QN_f32 ? 3e-5 : dtype == QN_f16 ? 8e-3 : 6e-2;
  if (a != a || b != b) return a != a && b != b;
  if (isinf(a) || isinf(b)) return a == b;
  return fabs(a - b) <= tolerance * (1 + fabs(b));
}

/* Runs an op on strict operands and compares with its plain meaning. */
static void both_ways(qn_vm *vm, op_id op, const op_attr *attr, operand *in, int nin) {
  graph_type types[OPERANDS] = {{0}};
  qn_value values[OPERANDS];
  eval_call plain = {.op = op, .attr = attr, .nin = nin};
  op_types inferred;
  op_refusal why;
  for (int i = 0; i < nin; i++) {
    ck_assert(value_graph_type(in[i].value, &types[i]));
    values[i] = in[i].value;
    plain.in[i] = &in[i].plain;
  }
  ck_assert_msg(op_infer(NULL, op, types, nin, attr, &inferred, &why), "%s: %s", op_rows[op].name, why.text);
  const graph_type *t = &inferred.result;
  eval_value expected = eval_new((qn_dtype)t->dtype, t->rank, t->shape);
  ck_assert_msg(eval_op(&plain, &expected), "%s has no value", op_rows[op].name);
  qn_value out = eager_apply(vm, op, values, nin, attr);
  ck_assert_msg(!value_is_error(out), "%s: %s", op_rows[op].name, vm->error ? vm->error->message->text : "?");
  const qn_array *a = value_array(out);
  ck_assert_int_eq(a->dtype, t->dtype);
  ck_assert_int_eq(a->rank, t->rank);
  for (int k = 0; k < t->rank; k++) ck_assert_int_eq(a->shape[k], t->shape[k]);
  for (int64_t k = 0; k < expected.n; k++) {
    qn_value v = array_get_flat(a, k);
    if (expected.f ? close_to(t->dtype, v.u.f, expected.f[k]) : v.u.i == expected.i[k]) continue;
    ck_abort_msg("%s of %s: element %lld is %g (%lld), not %g (%lld)", op_rows[op].name,
                 dtype_rows[in[0].plain.dtype].name, (long long)k, expected.f ? v.u.f : 0, (long long)v.u.i,
                 expected.f ? expected.f[k] : 0, (long long)(expected.i ? expected.i[k] : 0));
  }
  value_release(vm, out);
  eval_drop(&expected);
}

static const uint8_t floats[] = {QN_f32, QN_f64, QN_f16, QN_bf16}, ints[] = {QN_i64, QN_i32, QN_u8, QN_i8, QN_i16};

static int random_shape(int64_t *shape, int most, bool big) {
  int rank = (int)rnd((uint32_t)most + 1);
  for (int a = 0; a < rank; a++) shape[a] = rnd(6) == 0 ? 1 : 1 + rnd(a == rank - 1 ? 20 : 5);
  if (rank && rnd(12) == 0) shape[rnd((uint32_t)rank)] = 0;
  if (big && rank) shape[rnd((uint32_t)rank)] = 300 + rnd(700);
  return rank;
}
static int narrower(const int64_t *shape, int rank, int64_t *to) {
  int skip = rnd(3) == 0 ? (int)rnd((uint32_t)rank + 1) : 0;
  for (int a = skip; a < rank; a++) to[a - skip] = rnd(4) == 0 ? 1 : shape[a];
  return rank - skip;
}

/* ---- every op ------------------------------------------------------------------------------------------------------------ */

START_TEST(pointwise) {
  qn_vm *vm = cpu_make(2);
  size_t before = live(vm);
  for (int op = 0; op < OP_COUNT; op++) {
    if (op_rows[op].klass != CLASS_POINTWISE || op == OP_fit) continue;
    for (int round = 0; round < 24; round++) {
      state = (uint64_t)op * 1000 + (uint64_t)round;
      /* small arrays take the fast path unless the grain is 1 */
      vm->tune[TUNE_par_grain] = round % 3 == 0 ? 1 : 32768;
      op_dtype_rule rule = (op_dtype_rule)op_rows[op].dtype_rule;
      bool whole = rule != DT_float && rule != DT_div && rnd(2), bools = false;
      if (rule == DT_bits || rule == DT_ints) whole = true;
      if ((rule == DT_bits || rule == DT_compare || op == OP_minimum) && rnd(4) == 0) bools = true;
      uint8_t d = bools ? QN_bool : whole ? ints[rnd(5)] : floats[rnd(4)];
      double lo = d == QN_u8 ? 0 : -3, hi = 3;
      if (op == OP_log || op == OP_log2 || op == OP_log10 || op == OP_sqrt || op == OP_rsqrt || op == OP_log1p)
        lo = 0.1;
      if (op == OP_arcsin || op == OP_arccos || op == OP_tan) lo = -1, hi = 1;
      if (op == OP_mod || op == OP_floordiv) lo = 1, hi = 9;
      if (op == OP_pow) lo = 0;
      if (op == OP_shl || op == OP_shr) lo = 0, hi = 7;
      int64_t shape[ARRAY_MAX_RANK], other[ARRAY_MAX_RANK];
      int rank = random_shape(shape, round == 5 ? 8 : 4, round % 4 == 0), arity = op_rows[op].arity;
      operand in[3];
      for (int i = 0; i < arity; i++) {
        bool full = i == 0 || rnd(3) == 0;
        int r = full ? rank : narrower(shape, rank, other);
        in[i] = make(vm, op == OP_where && i == 0 ? QN_bool : d, r, full ? shape : other, lo, hi);
      }
      op_attr attr = {0};
      if (op == OP_cast) {
        uint32_t pick = rnd(10);
        attr.dtype = pick == 0 ? QN_bool : pick < 5 ? floats[rnd(4)] : ints[rnd(5)];
        if (attr.dtype == QN_u8 && d != QN_u8) attr.dtype = QN_i32;
      }
      both_ways(vm, (op_id)op, op == OP_cast ? &attr : NULL, in, arity);
      drop(vm, in, arity);
    }
  }
  ck_assert(live(vm) >= before);
  cpu_drop(vm);
}
END_TEST

START_TEST(reductions_and_scans) {
  qn_vm *vm = cpu_make(2);
  for (int op = 0; op < OP_COUNT; op++) {
    bool scan = op_rows[op].klass == CLASS_SCAN, logic = op == OP_any || op == OP_all;
    if (op_rows[op].klass != CLASS_REDUCE && !scan) continue;
    for (int round = 0; round < 30; round++) {
      state = (uint64_t)op * 1000 + (uint64_t)round;
      vm->tune[TUNE_par_grain] = round % 3 == 0 ? 1 : 32768;
      uint8_t d = logic ? QN_bool : rnd(3) ? floats[rnd(4)] : ints[rnd(5)];
      int64_t shape[ARRAY_MAX_RANK];
      int rank;
      do rank = random_shape(shape, 4, false);
      while (rank == 0);
      for (int a = 0; a < rank; a++)
        if (shape[a] == 0 && op_rows[op].raises == RAISES_empty) shape[a] = 2;
      if (rnd(4) == 0) shape[rnd((uint32_t)rank)] = 70 + rnd(100);
      if (rnd(12) == 0 && rank < 3) shape[rank - 1] = 1100 + rnd(3000);
      bool product = op == OP_prod || op == OP_cumprod;
      operand in = make(vm, d, rank, shape, product ? 0.9 : d == QN_u8 ? 0 : -2, product ? 1.1 : 2);
      op_attr attr = {.axes = (uint8_t)(1 << rnd((uint32_t)rank))};
      if (scan) attr.flags = (uint8_t)((rnd(2) ? ATTR_REVERSE : 0) | (rnd(2) ? ATTR_EXCLUSIVE : 0));
      if (!scan) {
        for (int a = 0; a < rank; a++) attr.axes |= (uint8_t)(rnd(2) << a);
        attr.keepdims = (uint8_t)rnd(2);
      }
      both_ways(vm, (op_id)op, &attr, &in, 1);
      drop(vm, &in, 1);
    }
  }
  cpu_drop(vm);
}
END_TEST

START_TEST(products) {
  qn_vm *vm = cpu_make(2);
  for (int round = 0; round < 60; round++) {
    state = 9000 + (uint64_t)round;
    int64_t m = 1 + rnd(40), k = rnd(9) == 0 ? 1 : 1 + rnd(70), n = 1 + rnd(40), x[6], y[6];
    if (round % 20 == 0) k = 5000, m = n = 3;
    if (round % 15 == 7) m = n = 150, k = 40;
    int bx = (int)rnd(3), by = (int)rnd(3), rx = 0, ry = 0;
    int64_t batch[2] = {1 + rnd(3), 1 + rnd(3)};
    if (rnd(6) == 0) bx = -1;
    if (rnd(6) == 0) by = -1;
    for (int a = 0; a < bx; a++) x[rx++] = rnd(4) == 0 ? 1 : batch[2 - bx + a];
    if (bx >= 0) x[rx++] = m;
    x[rx++] = k;
    for (int a = 0; a < by; a++) y[ry++] = rnd(4) == 0 ? 1 : batch[2 - by + a];
    y[ry++] = k;
    if (by >= 0) y[ry++] = n;
    uint8_t d = rnd(4) == 0 ? ints[rnd(5)] : floats[rnd(4)];
    operand in[2] = {make(vm, d, rx, x, d == QN_u8 ? 0 : -1, 1), make(vm, d, ry, y, d == QN_u8 ? 0 : -1, 1)};
    both_ways(vm, OP_dot, NULL, in, 2);
    drop(vm, in, 2);
  }
  cpu_drop(vm);
}
END_TEST

START_TEST(indexing) {
  qn_vm *vm = cpu_make(2);
  for (int round = 0; round < 60; round++) {
    state = 20000 + (uint64_t)round;
    uint8_t d = rnd(3) ? floats[rnd(4)] : ints[rnd(5)];
    int64_t shape[4], index[3], v[8];
    int rank = 1 + (int)rnd(3), count = 1 + (int)rnd((uint32_t)rank), irank = (int)rnd(3), vrank = 0;
    for (int a = 0; a < rank; a++) shape[a] = 2 + rnd(a == rank - 1 ? 30 : 6);
    for (int a = 0; a < irank; a++) index[a] = 1 + rnd(9);
    operand in[6];
    in[0] = make(vm, d, rank, shape, d == QN_u8 ? 0 : -2, 2);
    for (int j = 0; j < count; j++)
      in[1 + j] = make(vm, rnd(2) ? QN_i64 : QN_i32, irank, index, -(double)shape[j], (double)shape[j] - 1);
    op_attr attr = {.n = 1, .d = {count}};
    both_ways(vm, OP_index, &attr, in, 1 + count);
    for (int a = 0; a < irank; a++) v[vrank++] = rnd(5) == 0 ? 1 : index[a];
    for (int a = count; a < rank; a++) v[vrank++] = rnd(5) == 0 ? 1 : shape[a];
    in[1 + count] = make(vm, d, vrank, v, d == QN_u8 ? 0 : -2, 2);
    attr.mode = (uint8_t)rnd(5);
    both_ways(vm, OP_scatter, &attr, in, 2 + count);
    drop(vm, in, 2 + count);
    int axis = (int)rnd((uint32_t)rank);
    operand along[3];
    memcpy(v, shape, sizeof shape);
    v[axis] = 1 + rnd(9);
    along[0] = make(vm, d, rank, shape, d == QN_u8 ? 0 : -2, 2);
    along[1] = make(vm, QN_i64, rank, v, -(double)shape[axis], (double)shape[axis] - 1);
    along[2] = make(vm, d, rank, v, d == QN_u8 ? 0 : -2, 2);
    op_attr with = {.axes = (uint8_t)(1 << axis)};
    both_ways(vm, OP_gather, &with, along, 2);
    both_ways(vm, OP_gather_add, &with, along, 3);
    drop(vm, along, 3);
  }
  cpu_drop(vm);
}
END_TEST

START_TEST(views) {
  qn_vm *vm = cpu_make(1);
  for (int round = 0; round < 200; round++) {
    state = 30000 + (uint64_t)round;
    uint8_t d = rnd(2) ? floats[rnd(4)] : ints[rnd(5)];
    int64_t shape[ARRAY_MAX_RANK];
    int rank = random_shape(shape, 4, false);
    operand in[3] = {make(vm, d, rank, shape, d == QN_u8 ? 0 : -2, 2)};
    op_attr slice = {.n = (uint8_t)(3 * rank)}, pad = slice, permute = {.n = (uint8_t)rank},
            broadcast = {.n = (uint8_t)(rank + 1)};
    int64_t part[ARRAY_MAX_RANK], total = 1;
    broadcast.d[0] = 2;
    for (int a = 0; a < rank; a++) {
      int64_t step = 1 + rnd(3), size = shape[a] ? 1 + rnd((uint32_t)((shape[a] - 1) / step + 1)) : 0;
      int64_t span = size ? (size - 1) * step : 0, first = size ? rnd((uint32_t)(shape[a] - span)) : 0;
      bool back = rnd(2) && size;
      slice.d[3 * a] = back ? first + span : first;
      slice.d[3 * a + 1] = part[a] = size;
      slice.d[3 * a + 2] = back ? -step : step;
      pad.d[3 * a] = rnd(3);
      pad.d[3 * a + 1] = rnd(3);
      pad.d[3 * a + 2] = rnd(3);
      permute.d[a] = (a + 1) % rank;
      broadcast.d[a + 1] = shape[a] == 1 ? 3 : shape[a];
      total *= shape[a];
    }
    op_attr flat = {.n = 1, .d = {total}};
    both_ways(vm, OP_slice, &slice, in, 1);
    for (int a = 0; a < rank; a++) {
      op_attr window = {.n = 3, .axes = (uint8_t)(1 << a), .d = {1 + rnd(3), 1 + rnd(3), 1 + rnd(2)}};
      if ((window.d[0] - 1) * window.d[2] < shape[a]) both_ways(vm, OP_window, &window, in, 1);
    }
    both_ways(vm, OP_permute, &permute, in, 1);
    both_ways(vm, OP_broadcast, &broadcast, in, 1);
    both_ways(vm, OP_reshape, &flat, in, 1);
    in[1] = make(vm, d, 0, NULL, 1, 2);
    both_ways(vm, OP_pad, &pad, in, 2);
    drop(vm, &in[1], 1);
    in[1] = make(vm, d, rank, part, d == QN_u8 ? 0 : -2, 2);
    both_ways(vm, OP_slice_put, &slice, in, 2);
    drop(vm, &in[1], 1);
    if (rank) {
      int axis = (int)rnd((uint32_t)rank);
      op_attr join = {.axes = (uint8_t)(1 << axis)};
      shape[axis] = rnd(4);
      in[1] = make(vm, d, rank, shape, d == QN_u8 ? 0 : -2, 2);
      both_ways(vm, OP_concat, &join, in, 2);
      drop(vm, &in[1], 1);
    }
    drop(vm, in, 1);
  }
  cpu_drop(vm);
}
END_TEST

/* ---- by hand ----------------------------------------------------------------------------------------------------------------- */

static qn_value array_f32(qn_vm *vm, int64_t n, const float *x) { return array_value(vm, QN_f32, 1, &n, x); }
static qn_value array_i64(qn_vm *vm, int64_t n, const int64_t *x) { return array_value(vm, QN_i64, 1, &n, x); }
#define F32(...) array_f32(vm, sizeof(float[]){__VA_ARGS__} / 4, (float[]){__VA_ARGS__})
#define I64(...) array_i64(vm, sizeof(int64_t[]){__VA_ARGS__} / 8, (int64_t[]){__VA_ARGS__})

/* Applies, releasing the operands. */
static qn_value apply(qn_vm *vm, op_id op, const op_attr *attr, int nin, const qn_value *in) {
  qn_value out = eager_apply(vm, op, in, nin, attr);
  for (int i = 0; i < nin; i++) value_release(vm, in[i]);
  return out;
}
#define APPLY(op, attr, ...)                                                                                           \
  apply(vm, op, attr, (int)(sizeof((qn_value[]){__VA_ARGS__}) / sizeof(qn_value)), (qn_value[]){__VA_ARGS__})

static void expect_numbers(qn_vm *vm, qn_value v, qn_dtype d, int n, const double *want) {
  ck_assert_msg(value_is(v, TAG_ARRAY), "%s", vm->error ? vm->error->message->text : "no array");
  const qn_array *a = value_array(v);
  ck_assert_int_eq(a->dtype, d);
  ck_assert_int_eq(a->size, n);
  for (int i = 0; i < n; i++) {
    qn_value x = array_get_flat(a, i);
    double got = value_is(x, TAG_FLOAT) ? x.u.f : (double)x.u.i;
    bool same = (got == want[i] && signbit(got) == signbit(want[i])) || (got != got && want[i] != want[i]);
    ck_assert_msg(same, "element %d is %g, not %g", i, got, want[i]);
  }
  value_release(vm, v);
}
#define EXPECT(v, d, ...) expect_numbers(vm, v, d, (int)(sizeof((double[]){__VA_ARGS__}) / 8), (double[]){__VA_ARGS__})

static void expect_error(qn_vm *vm, qn_value v, int id, const char *part) {
  ck_assert(value_is_error(v));
  ck_assert_ptr_nonnull(vm->error);
  ck_assert_msg((int)vm->error->id == id && strstr(vm->error->message->text, part), "E%d: %s", (int)vm->error->id,
                vm->error->message->text);
  error_clear(vm);
}

START_TEST(weak_numbers) {
  qn_vm *vm = cpu_make(1);
  EXPECT(APPLY(OP_add, NULL, F32(1, 2), value_float(0.5)), QN_f32, 1.5, 2.5);
  EXPECT(APPLY(OP_add, NULL, F32(1, 2), value_int(1)), QN_f32, 2, 3);
  EXPECT(APPLY(OP_mul, NULL, F32(1, 2), value_float(0.1)), QN_f32, 0.1f, 2 * 0.1f);
  EXPECT(APPLY(OP_sub, NULL, value_int(10), I64(1, 2)), QN_i64, 9, 8);
  EXPECT(APPLY(OP_add, NULL, I64(1, 2), value_float(0.5)), QN_f32, 1.5, 2.5);
  EXPECT(APPLY(OP_div, NULL, I64(1, 2), value_int(4)), QN_f32, 0.25, 0.5);
  EXPECT(APPLY(OP_lt, NULL, F32(1, 2), value_float(1.5)), QN_bool, 1, 0);
  EXPECT(APPLY(OP_add, NULL, F32(1, 2), I64(10, 20)), QN_f32, 11, 22);
  int64_t one = 1;
  uint8_t byte = 250;
  qn_value u = array_value(vm, QN_u8, 1, &one, &byte);
  EXPECT(APPLY(OP_add, NULL, value_retain(u), value_int(10)), QN_u8, 4);
  expect_error(vm, APPLY(OP_add, NULL, value_retain(u), value_int(300)), E_weak_range, "300 does not fit u8");
  expect_error(vm, APPLY(OP_add, NULL, u, value_int(-1)), E_weak_range, "-1 does not fit u8");
  expect_error(vm, APPLY(OP_add, NULL, F32(1), value_float(1e300)), E_weak_range, "does not fit f32");
  uint8_t flags[] = {1, 0};
  int64_t two = 2;
  qn_value b = array_value(vm, QN_bool, 1, &two, flags);
  EXPECT(APPLY(OP_add, NULL, value_retain(b), value_retain(b)), QN_i64, 2, 0);
  EXPECT(APPLY(OP_where, NULL, value_retain(b), value_int(1), value_int(0)), QN_i64, 1, 0);
  EXPECT(APPLY(OP_where, NULL, value_retain(b), value_float(1), value_int(0)), QN_f32, 1, 0);
  EXPECT(APPLY(OP_sum, &(op_attr){.axes = 1}, value_retain(b)), QN_i64, 1);
  EXPECT(APPLY(OP_exp, NULL, b), QN_f32, (float)2.718281828459045, 1);
  cpu_drop(vm);
}
END_TEST

START_TEST(nan_and_zeros) {
  qn_vm *vm = cpu_make(1);
  EXPECT(APPLY(OP_minimum, NULL, F32(-0.0f, 0.0f, NAN, 1), F32(0.0f, -0.0f, 1, NAN)), QN_f32, -0.0, -0.0, NAN, NAN);
  EXPECT(APPLY(OP_maximum, NULL, F32(-0.0f, 0.0f, NAN, 1), F32(0.0f, -0.0f, 1, NAN)), QN_f32, 0.0, 0.0, NAN, NAN);
  EXPECT(APPLY(OP_max, &(op_attr){.axes = 1}, F32(1, NAN, 3)), QN_f32, NAN);
  EXPECT(APPLY(OP_argmax, &(op_attr){.axes = 1}, F32(1, NAN, 3, NAN)), QN_i64, 1);
  EXPECT(APPLY(OP_argmin, &(op_attr){.axes = 1}, F32(2, 1, 1, 5)), QN_i64, 1);
  EXPECT(APPLY(OP_sum, &(op_attr){.axes = 1}, F32(-0.0f, -0.0f)), QN_f32, -0.0);
  EXPECT(APPLY(OP_smul, NULL, F32(0, 0, NAN, 2), F32(INFINITY, NAN, 0, 3)), QN_f32, 0, 0, 0, 6);
  EXPECT(APPLY(OP_mod, NULL, F32(5, -5, 5, -5), F32(3, 3, -3, -3)), QN_f32, 2, 1, -1, -2);
  EXPECT(APPLY(OP_floordiv, NULL, I64(5, -5, 5, -5), I64(3, 3, -3, -3)), QN_i64, 1, -2, -2, 1);
  EXPECT(APPLY(OP_div, NULL, F32(1, -1, 0), F32(0, 0, 0)), QN_f32, INFINITY, -INFINITY, NAN);
  EXPECT(APPLY(OP_sort, &(op_attr){.axes = 1}, F32(3, NAN, 1, -INFINITY)), QN_f32, -INFINITY, 1, 3, NAN);
  EXPECT(APPLY(OP_sort, (&(op_attr){.axes = 1, .flags = ATTR_DESCENDING}), F32(3, NAN, 1, -INFINITY)), QN_f32, 3, 1,
         -INFINITY, NAN);
  EXPECT(APPLY(OP_argsort, &(op_attr){.axes = 1}, F32(2, 1, 2, 1)), QN_i64, 1, 3, 0, 2);
  EXPECT(APPLY(OP_argsort, (&(op_attr){.axes = 1, .flags = ATTR_DESCENDING}), F32(2, 1, 2, 1)), QN_i64, 0, 2, 1, 3);
  cpu_drop(vm);
}
END_TEST

START_TEST(masks) {
  qn_vm *vm = cpu_make(1);
  uint8_t flags[] = {1, 0, 1};
  int64_t three = 3, none = 0;
  EXPECT(APPLY(OP_compress, NULL, F32(1, 2, 3), array_value(vm, QN_bool, 1, &three, flags)), QN_f32, 1, 3);
  EXPECT(APPLY(OP_nonzero, NULL, array_value(vm, QN_bool, 1, &three, flags)), QN_i64, 0, 2);
  qn_value empty =
      APPLY(OP_compress, NULL, array_value(vm, QN_f32, 1, &none, ""), array_value(vm, QN_bool, 1, &none, ""));
  ck_assert_int_eq(value_array(empty)->size, 0);
  value_release(vm, empty);
  cpu_drop(vm);
}
END_TEST

START_TEST(errors) {
  qn_vm *vm = cpu_make(1);
  size_t before = live(vm);
  expect_error(vm, APPLY(OP_add, NULL, F32(1, 2, 3), F32(1, 2)), E_broadcast, "axis -1 is 3 and 2");
  expect_error(vm, APPLY(OP_bitand, NULL, F32(1), F32(1)), E_dtype, "integer");
  expect_error(vm, APPLY(OP_floordiv, NULL, I64(1, 2, 3), I64(1, 0, 0)), E_div_zero, "element 1");
  expect_error(vm, APPLY(OP_mod, NULL, I64(1), value_int(0)), E_div_zero, "0");
  expect_error(vm, APPLY(OP_pow, NULL, I64(1, 2), I64(1, -3)), E_neg_exponent, "-3");
  expect_error(vm, APPLY(OP_shl, NULL, I64(1), I64(64)), E_shift, "64");
  expect_error(vm, APPLY(OP_cast, &(op_attr){.dtype = QN_i32}, F32(1, 3e9f)), E_to_int,
               "not representable as i32 (element 1)");
  expect_error(vm, APPLY(OP_cast, &(op_attr){.dtype = QN_u8}, F32(NAN)), E_to_int, "nan");
  expect_error(vm, APPLY(OP_index, (&(op_attr){.n = 1, .d = {1}}), F32(1, 2, 3, 4, 5), I64(0, 7)), E_index,
               "index 7 is out of bounds for axis 0 of size 5");
  expect_error(vm, APPLY(OP_index, (&(op_attr){.n = 1, .d = {1}}), F32(1, 2, 3, 4, 5), I64(-6)), E_index, "index -6");
  expect_error(vm, APPLY(OP_scatter, (&(op_attr){.n = 1, .d = {1}}), F32(1, 2), I64(2), F32(1)), E_index, "index 2");
  expect_error(vm, APPLY(OP_gather, &(op_attr){.axes = 1}, F32(1, 2), I64(5)), E_index,
               "index 5 is out of bounds for axis 0 of size 2");
  int64_t none = 0;
  expect_error(vm, APPLY(OP_max, &(op_attr){.axes = 1}, array_value(vm, QN_f32, 1, &none, "")), E_empty_reduce,
               "empty");
  expect_error(vm, APPLY(OP_dot, NULL, F32(1, 2), F32(1, 2, 3)), E_matmul_shape, "2");
  expect_error(vm, APPLY(OP_add, NULL, F32(1), value_nil()), E_type, "nil");
  ck_assert(live(vm) >= before);
  cpu_drop(vm);
}
END_TEST

START_TEST(host_scalars) {
  qn_vm *vm = cpu_make(1);
  const qn_value two = value_int(2), big = value_int(INT64_MAX);
  ck_assert_int_eq(scalar_apply(vm, OP_add, (qn_value[]){two, two}, 2).u.i, 4);
  ck_assert(scalar_apply(vm, OP_div, (qn_value[]){two, value_int(4)}, 2).u.f == 0.5);
  ck_assert(scalar_apply(vm, OP_sqrt, &two, 1).u.f == sqrt(2));
  ck_assert(value_is(scalar_apply(vm, OP_lt, (qn_value[]){two, value_float(2.5)}, 2), TAG_BOOL));
  ck_assert_int_eq(scalar_apply(vm, OP_floordiv, (qn_value[]){value_int(-7), two}, 2).u.i, -4);
  ck_assert_int_eq(scalar_apply(vm, OP_mod, (qn_value[]){value_int(-7), two}, 2).u.i, 1);
  ck_assert_int_eq(scalar_apply(vm, OP_pow, (qn_value[]){value_int(-3), value_int(5)}, 2).u.i, -243);
  expect_error(vm, scalar_apply(vm, OP_add, (qn_value[]){big, two}, 2), E_overflow, "64 bits");
  expect_error(vm, scalar_apply(vm, OP_pow, (qn_value[]){big, two}, 2), E_overflow, "64 bits");
  expect_error(vm, scalar_apply(vm, OP_floordiv, (qn_value[]){two, value_int(0)}, 2), E_div_zero, "0");
  expect_error(vm, scalar_apply(vm, OP_shl, (qn_value[]){two, value_int(64)}, 2), E_shift, "64");
  expect_error(vm, scalar_apply(vm, OP_pow, (qn_value[]){two, value_int(-1)}, 2), E_neg_exponent, "-1");
  double x[] = {0.5, 2};
  ck_assert(scalar_math(OP_pow, x) == 0.25);
  ck_assert(scalar_math(OP_exp, (double[]){0}) == 1);
  /* host numbers and f64 arrays of one element agree */
  for (int op = 0; op < OP_COUNT; op++) {
    if (op_rows[op].klass != CLASS_POINTWISE || op_rows[op].dtype_rule != DT_float) continue;
    int64_t one = 1;
    double v[2] = {0.3, 0.7};
    qn_value in[2] = {array_value(vm, QN_f64, 1, &one, &v[0]), array_value(vm, QN_f64, 1, &one, &v[1])};
    qn_value out = apply(vm, (op_id)op, NULL, op_rows[op].arity, in);
    ck_assert(array_get_flat(value_array(out), 0).u.f == scalar_math((op_id)op, v));
    value_release(vm, out);
    if (op_rows[op].arity == 1) value_release(vm, in[1]);
  }
  cpu_drop(vm);
}
END_TEST

/* A draw by keys that are arrays is the draws by each key, whatever the layout of the keys. */
START_TEST(draws_by_arrays_of_keys) {
  qn_vm *vm = cpu_make(2);
  static const op_id ops[] = {OP_random_bits, OP_random_uniform, OP_random_normal};
  for (int trial = 0; trial < 40; trial++) {
    op_id op = ops[trial % 3];
    qn_dtype dtype = op == OP_random_bits ? QN_i64 : (qn_dtype[]){QN_f32, QN_f64, QN_f16}[trial / 3 % 3];
    int rank = 1 + trial % 3, inner = trial / 4 % 3;
    int64_t shape[ARRAY_MAX_RANK] = {trial % 5 == 4 ? 1 : 3, trial % 7 == 6 ? 0 : 4, 2};
    op_attr attr = {.dtype = (uint8_t)dtype, .mode = DRAW_KEYED, .n = (uint8_t)(rank + inner)};
    int64_t keys = 1, each = 1;
    for (int i = 0; i < rank; i++) keys *= attr.d[i] = shape[i];
    for (int i = 0; i < inner; i++) each *= attr.d[rank + i] = i ? 700 : 3;
    qn_value in[3];
    for (int k = 0; k < 3; k++) {
      if ((trial >> k & 3) == 3 && k) { /* a number for all */
        in[k] = value_int(trial);
        continue;
      }
      int64_t own[ARRAY_MAX_RANK];
      for (int i = 0; i < rank; i++) own[i] = k == 1 && i == 0 && trial % 2 ? 1 : shape[i];
      qn_array *a = array_new(vm, QN_i64, rank, own);
      int64_t *word = (int64_t *)(void *)array_data(a);
      for (int64_t i = 0; i < a->size; i++) word[i] = 1000 * k + (i * 77) % 901 - (k == 2);
      in[k] = value_obj(TAG_ARRAY, a);
      op_attr order = {.n = (uint8_t)rank};
      if (rank > 1 && own[0] == own[1]) { /* transposed twice: the same shape, and then the strides of another */
        for (int i = 0; i < rank; i++) order.d[i] = i < 2 ? 1 - i : i;
        qn_value t = eager_apply(vm, OP_permute, &in[k], 1, &order);
        value_release(vm, in[k]);
        in[k] = t;
      }
    }
    qn_value all = eager_apply(vm, op, in, 3, &attr);
    ck_assert_msg(!value_is_error(all), "%s", vm->error ? vm->error->message->text : "");
    op_attr part = attr;
    part.n = (uint8_t)inner;
    for (int i = 0; i < inner; i++) part.d[i] = attr.d[rank + i];
    for (int64_t k = 0; k < keys; k++) {
      qn_value own[3];
      for (int i = 0; i < 3; i++) {
        own[i] = in[i];
        if (!value_is(in[i], TAG_ARRAY)) continue;
        op_attr to = {.n = (uint8_t)rank};
        for (int a = 0; a < rank; a++) to.d[a] = shape[a];
        qn_value wide = eager_apply(vm, OP_broadcast, &in[i], 1, &to);
        own[i] = array_get_flat(value_array(wide), k);
        value_release(vm, wide);
      }
      qn_value one = eager_apply(vm, op, own, 3, &part);
      size_t bytes = (size_t)each * dtype_size(dtype);
      ck_assert_msg(memcmp(array_data(value_array(one)), array_data(value_array(all)) + (size_t)k * bytes, bytes) == 0,
                    "trial %d, key %d", trial, (int)k);
      value_release(vm, one);
    }
    value_release(vm, all);
    for (int k = 0; k < 3; k++) value_release(vm, in[k]);
  }
  cpu_drop(vm);
}
END_TEST

START_TEST(random_numbers) {
  qn_vm *vm = cpu_make(2);
  op_attr attr = {.dtype = QN_f32, .n = 2, .d = {300, 200}};
  qn_value keys[] = {value_int(5), value_int(7), value_int(0)};
  qn_value a = eager_apply(vm, OP_random_uniform, keys, 3, &attr),
           b = eager_apply(vm, OP_random_uniform, keys, 3, &attr);
  ck_assert_int_eq(memcmp(array_data(value_array(a)), array_data(value_array(b)), 60000 * 4), 0);
  double sum = 0;
  const float *x = (const float *)(void *)array_data(value_array(a));
  for (int i = 0; i < 60000; i++) {
    ck_assert(x[i] >= 0 && x[i] < 1);
    sum += x[i];
  }
  ck_assert(fabs(sum / 60000 - 0.5) < 0.01);
  keys[2] = value_int(1);
  qn_value c = eager_apply(vm, OP_random_uniform, keys, 3, &attr);
  ck_assert_int_ne(memcmp(array_data(value_array(a)), array_data(value_array(c)), 60000 * 4), 0);
  value_release(vm, a);
  value_release(vm, b);
  value_release(vm, c);
  qn_value n = eager_apply(vm, OP_random_normal, keys, 3, &attr);
  double mean = 0, square = 0;
  for (int i = 0; i < 60000; i++) {
    double v = array_get_flat(value_array(n), i).u.f;
    mean += v;
    square += v * v;
  }
  ck_assert(fabs(mean / 60000) < 0.02 && fabs(square / 60000 - 1) < 0.03);
  value_release(vm, n);
  cpu_drop(vm);
}
END_TEST

/* ---- threads and memory ---------------------------------------------------------------------------------------------------------- */

static uint64_t digest(const qn_array *a) {
  uint64_t h = 1469598103934665603u;
  const uint8_t *p = (const uint8_t *)array_data(a);
  for (size_t i = 0; i < (size_t)a->size * dtype_size((qn_dtype)a->dtype); i++) h = (h ^ p[i]) * 1099511628211u;
  return h;
}

/* Large arrays: the same bits for any number of threads and any block size. */
START_TEST(threads_change_nothing) {
  static const struct {
    op_id op;
    op_attr attr;
  } calls[] = {{OP_exp, {0}},
               {OP_sum, {.axes = 3}},
               {OP_sum, {.axes = 1}},
               {OP_sum, {.axes = 2}},
               {OP_argmax, {.axes = 3}},
               {OP_cumsum, {.axes = 2}},
               {OP_cumsum, {.axes = 1}},
               {OP_prod, {.axes = 2}},
               {OP_dot, {0}}};
  uint64_t first[9];
  static const int settings[][2] = {{1, 512}, {2, 512}, {5, 64}, {3, 1024}};
  for (int s = 0; s < 4; s++) {
    qn_vm *vm = cpu_make(settings[s][0]);
    vm->tune[TUNE_vm_block] = settings[s][1];
    vm->tune[TUNE_par_grain] = 64;
    int64_t shape[] = {301, 403};
    qn_array *x = array_new(vm, QN_f32, 2, shape);
    state = 99;
    for (int64_t i = 0; i < x->size; i++) ((float *)(void *)array_data(x))[i] = (float)(rnd(20001) - 10000.0) / 4096;
    qn_value v = value_obj(TAG_ARRAY, x), t = eager_apply(vm, OP_permute, &v, 1, &(op_attr){.n = 2, .d = {1, 0}});
    for (int c = 0; c < 9; c++) {
      qn_value in[] = {v, t}, out = eager_apply(vm, calls[c].op, in, calls[c].op == OP_dot ? 2 : 1, &calls[c].attr);
      ck_assert(value_is(out, TAG_ARRAY));
      uint64_t h = digest(value_array(out));
      if (s == 0) first[c] = h;
      ck_assert_msg(first[c] == h, "%s differs with %d threads, blocks of %d", op_rows[calls[c].op].name,
                    settings[s][0], settings[s][1]);
      value_release(vm, out);
    }
    value_release(vm, t);
    value_release(vm, v);
    cpu_drop(vm);
  }
}
END_TEST

/* Every allocation fails once: an error, nothing lost, and the next call works. */
START_TEST(failed_allocations) {
  static const struct {
    op_id op;
    op_attr attr;
    int nin;
  } calls[] = {{OP_add, {0}, 2},
               {OP_sum, {.axes = 1}, 1},
               {OP_dot, {0}, 2},
               {OP_concat, {.axes = 1}, 2},
               {OP_sort, {.axes = 2}, 1},
               {OP_permute, {.n = 2, .d = {1, 0}}, 1},
               {OP_cumsum, {.axes = 2}, 1},
               {OP_reshape, {.n = 1, .d = {2500}}, 1}};
  for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
    for (uint64_t n = 1; n < 400; n++) {
      qn_vm *vm = cpu_make(1);
      vm->tune[TUNE_par_grain] = 16;
      int64_t shape[] = {50, 50};
      qn_array *x = array_new(vm, QN_f32, 2, shape);
      memset(array_data(x), 0, 10000);
      qn_value v = value_obj(TAG_ARRAY, x), t = eager_apply(vm, OP_permute, &v, 1, &(op_attr){.n = 2, .d = {1, 0}});
      qn_value in[] = {t, v};
      size_t before = live(vm);
      mem_fail_at(vm, n);
      qn_value out = eager_apply(vm, calls[c].op, in, calls[c].nin, &calls[c].attr);
      mem_fail_at(vm, 0);
      bool done = !value_is_error(out);
      if (!done) {
        ck_assert_int_eq(taken_error(vm), E_memory);
        out = eager_apply(vm, calls[c].op, in, calls[c].nin, &calls[c].attr);
      }
      ck_assert(value_is(out, TAG_ARRAY));
      value_release(vm, out);
      value_release(vm, t);
      value_release(vm, v);
      devices_close(vm);
      ck_assert(live(vm) <= before);
      vm_close(vm);
      if (done) break;
      ck_assert_uint_lt(n, 399);
    }
}
END_TEST

/* ---- tiny reductions ----------------------------------------------------------------------------------------------------- */

/* Any values of a dtype, among them NaNs, zeros of both signs and infinities. */
static qn_array *any_values(qn_vm *vm, qn_dtype dtype, int rank, const int64_t *shape) {
  qn_array *x = array_new(vm, dtype, rank, shape);
  if (!x) ck_abort_msg("no memory");
  size_t size = dtype_size(dtype);
  double rare[] = {0.0, -0.0, NAN, INFINITY, -INFINITY, 1e30, -1e-30};
  uint32_t odd = rnd(3) ? 0 : rnd(4) ? 40 : 2;
  for (int64_t k = 0; k < x->size; k++) {
    double f = odd && rnd(odd) == 0 ? rare[rnd(sizeof rare / sizeof *rare)] : ((double)rnd(2000001) - 1e6) / 7;
    qn_value v = dtype == QN_bool        ? value_bool(rnd(odd ? odd : 2) != 0)
                 : dtype_is_float(dtype) ? value_float(f)
                                         : value_int((int64_t)rnd(100) - (dtype == QN_u8 ? 0 : 50));
    dtype_store(dtype, array_data(x) + (size_t)k * size, v);
  }
  return x;
}

static bool same_number(qn_dtype d, const char *a, const char *b) {
  qn_value v = dtype_load(d, a), w = dtype_load(d, b);
  if (dtype_is_float(d) && isnan(v.u.f)) return isnan(w.u.f);
  return memcmp(a, b, dtype_size(d)) == 0;
}

/* The same with gaps, backwards, repeated or in another order, now and then. */
static qn_value any_view(qn_vm *vm, qn_dtype dtype, int rank, const int64_t *shape) {
  int64_t stored[ARRAY_MAX_RANK] = {0}, strides[ARRAY_MAX_RANK], offset = 0;
  int order[ARRAY_MAX_RANK];
  bool repeated[ARRAY_MAX_RANK];
  if (rank == 0 || rnd(2)) return value_obj(TAG_ARRAY, any_values(vm, dtype, rank, shape));
  for (int a = 0; a < rank; a++) order[a] = a;
  for (int a = rank - 1; a > 0 && rnd(2); a--) {
    int b = (int)rnd((uint32_t)a + 1), t = order[a];
    order[a] = order[b];
    order[b] = t;
  }
  for (int i = 0; i < rank; i++) {
    int a = order[i];
    repeated[a] = rnd(6) == 0;
    stored[i] = repeated[a] ? 1 : shape[a] * (1 + (rnd(4) == 0));
  }
  qn_array *base = any_values(vm, dtype, rank, stored);
  for (int i = 0; i < rank; i++) {
    int a = order[i];
    int64_t step = repeated[a] ? 0 : base->strides[i] * (stored[i] > shape[a] ? 2 : 1);
    bool back = rnd(4) == 0 && shape[a] > 0;
    if (back) offset += step * (shape[a] - 1);
    strides[a] = back ? -step : step;
  }
  qn_array *view = array_view(vm, base, dtype, rank, shape, strides, offset);
  value_release(vm, value_obj(TAG_ARRAY, base));
  if (!view) ck_abort_msg("no memory");
  return value_obj(TAG_ARRAY, view);
}

/* The words of the pending error, which is cleared; empty: none. */
static void words(qn_vm *vm, qn_value v, char out[400]) {
  out[0] = 0;
  if (!value_is_error(v)) return;
  snprintf(out, 400, "%d %s", (int)vm->error->id, vm->error->message->text);
  taken_error(vm);
}

/* Two results are the same: dtype, shape, bits, or the words of the error. Takes them over; returns how many elements there were. */
static int64_t same_results(qn_vm *vm, const char *what, qn_value fast, const char *fast_words, qn_value slow) {
  char slow_words[400];
  int64_t n = 0;
  words(vm, slow, slow_words);
  ck_assert_msg(strcmp(fast_words, slow_words) == 0, "%s: \"%s\", not \"%s\"", what, fast_words, slow_words);
  if (value_is_error(fast)) return 0;
  ck_assert_msg(value_tag_of(fast) == value_tag_of(slow), "%s: another kind of value", what);
  if (value_is(fast, TAG_ARRAY)) {
    const qn_array *a = value_array(fast), *b = value_array(slow);
    ck_assert_msg(a->dtype == b->dtype, "%s: %s, not %s", what, dtype_rows[a->dtype].name, dtype_rows[b->dtype].name);
    ck_assert_msg(shape_equal(a, b) && a->contiguous == b->contiguous, "%s: another shape", what);
    size_t size = dtype_size((qn_dtype)a->dtype);
    for (n = 0; n < a->size && a->contiguous; n++)
      ck_assert_msg(same_number((qn_dtype)a->dtype, array_data(a) + (size_t)n * size, array_data(b) + (size_t)n * size),
                    "%s: element %lld", what, (long long)n);
  } else {
    ck_assert_msg(fast.u.i == slow.u.i || (fast.u.f != fast.u.f && slow.u.f != slow.u.f), "%s: another number", what);
  }
  value_release(vm, fast);
  value_release(vm, slow);
  return n;
}

/* Leaves large words where the frames of the next calls lie: what these do not write and use is seen. */
static __attribute__((noinline)) void soil_stack(void) {
  volatile unsigned char words[8192];
  for (size_t i = 0; i < sizeof words; i++) words[i] = 0x77;
}

/* An op gives by whatever way it takes what its kernel gives. Releases its operands; returns how many elements there were, and counts errors. */
static int64_t as_by_kernel(qn_vm *vm, const char *what, op_id op, qn_value *in, int nin, const op_attr *attr,
                            int64_t *refused) {
  char fast_words[400];
  soil_stack();
  qn_value fast = eager_apply(vm, op, in, nin, attr);
  words(vm, fast, fast_words);
  *refused += fast_words[0] != 0;
  int64_t n = same_results(vm, what, fast, fast_words, eager_slow(vm, op, in, nin, attr));
  for (int i = 0; i < nin; i++) value_release(vm, in[i]);
  return n;
}

static qn_value any_number(void) {
  static const double floats[] = {0.5, -2.0, 1e39, 3.0, -0.0, 70000.0};
  static const int64_t whole[] = {0, 1, 2, 3, -1, 7, 200, 300, 40000, 5000000000};
  switch (rnd(5)) {
  case 0: return value_bool(rnd(2) != 0);
  case 1:
  case 2: return value_float(floats[rnd(6)]);
  default: return value_int(whole[rnd(10)]);
  }
}

/* Elementwise ops of any dtypes, shapes and strides, with numbers among them: as the rules and kernels give them. */
START_TEST(tiny_pointwise) {
  qn_vm *vm = cpu_make(1);
  int64_t compared = 0, refused = 0;
  for (int op = 0; op < OP_COUNT; op++) {
    if (op_rows[op].klass != CLASS_POINTWISE || op == OP_fit) continue;
    int nin = op_rows[op].arity;
    for (int round = 0; round < 400; round++) {
      state = (uint64_t)op * 100003 + (uint64_t)round;
      qn_value in[3];
      int64_t shape[ARRAY_MAX_RANK], other[ARRAY_MAX_RANK];
      int rank = (int)rnd(4);
      for (int a = 0; a < rank; a++) shape[a] = rnd(8) == 0 ? 1 : rnd(20) == 0 ? 0 : 1 + rnd(5);
      if (rank && rnd(20) == 0) shape[rnd((uint32_t)rank)] = 300 + rnd(30);
      qn_dtype one = (qn_dtype)rnd(DTYPE_PUBLIC);
      for (int i = 0; i < nin; i++) {
        qn_dtype d = op == OP_where && i == 0 && rnd(4) ? QN_bool : rnd(3) ? one : (qn_dtype)rnd(DTYPE_PUBLIC);
        if (nin > 1 && rnd(5) == 0) {
          in[i] = any_number();
          continue;
        }
        memcpy(other, shape, sizeof other);
        int skip = rnd(4) == 0 ? (int)rnd((uint32_t)rank + 1) : 0;
        for (int a = 0; a < rank; a++)
          if (rnd(10) == 0) other[a] = rnd(8) ? 1 : 2;
        in[i] = any_view(vm, d, rank - skip, other + skip);
      }
      op_attr attr = {.dtype = op == OP_cast ? (uint8_t)rnd(DTYPE_PUBLIC) : 0};
      char what[200];
      snprintf(what, sizeof what, "%s, round %d", op_rows[op].name, round);
      compared += as_by_kernel(vm, what, (op_id)op, in, nin, &attr, &refused);
    }
  }
  ck_assert_int_gt(compared, 100000);
  ck_assert_int_gt(refused, 1000);
  cpu_drop(vm);
}
END_TEST

/* Products of any two dtypes, of vectors, matrices and many of them, of any strides. */
START_TEST(tiny_products) {
  qn_vm *vm = cpu_make(1);
  int64_t compared = 0, refused = 0;
  for (int round = 0; round < 4000; round++) {
    state = 700000 + (uint64_t)round;
    int64_t batch[3], shape[2][ARRAY_MAX_RANK], size[3]; /* m, k, n */
    for (int a = 0; a < 3; a++) batch[a] = 1 + rnd(3);
    for (int a = 0; a < 3; a++) size[a] = rnd(30) == 0 ? 0 : rnd(12) == 0 ? 1 + rnd(20) : 1 + rnd(5);
    qn_dtype one = (qn_dtype)rnd(DTYPE_PUBLIC);
    qn_value in[2];
    for (int i = 0; i < 2; i++) {
      int more = rnd(3) ? (int)rnd(4) : 0, rank = 0;
      for (int a = 3 - more; a < 3; a++) shape[i][rank++] = rnd(4) == 0 ? 1 : batch[a] + (rnd(60) == 0);
      bool vector = more == 0 && rnd(3) == 0;
      if (i == 0 && !vector) shape[i][rank++] = size[0];
      shape[i][rank++] = size[1] + (rnd(60) == 0);
      if (i == 1 && !vector) shape[i][rank++] = size[2];
      in[i] = any_view(vm, rnd(3) ? one : (qn_dtype)rnd(DTYPE_PUBLIC), rank, shape[i]);
    }
    char what[200];
    snprintf(what, sizeof what, "round %d: %s and %s", round, dtype_rows[value_array(in[0])->dtype].name,
             dtype_rows[value_array(in[1])->dtype].name);
    static const op_attr none;
    compared += as_by_kernel(vm, what, OP_dot, in, 2, &none, &refused);
  }
  ck_assert_int_gt(compared, 50000);
  ck_assert_int_gt(refused, 50);
  cpu_drop(vm);
}
END_TEST

/* Products of two vectors of any lengths and layouts: as their kernel makes them, and as the sum of x * y, whose elements are those of the dtype
 * in which they are summed. */
START_TEST(vectors) {
  static const int64_t lengths[] = {0,    1,     2,     3,      5,      17,     63,     64,    65,   127,
                                    128,  1000,  1023,  1024,   1025,   1088,   2047,   2048,  2049, 3072,
                                    5000, 32768, 40000, 131008, 131071, 131072, 131073, 200000};
  qn_vm *vm = cpu_make(1);
  int64_t compared = 0, sums = 0, refused = 0;
  for (int round = 0; round < 1200; round++) {
    state = 810000 + (uint64_t)round;
    int64_t n =
        rnd(12) ? rnd(3) ? (int64_t)rnd(140) : (int64_t)rnd(5000) : lengths[rnd(sizeof lengths / sizeof *lengths)];
    qn_dtype one = (qn_dtype)rnd(DTYPE_PUBLIC), other = rnd(3) ? one : (qn_dtype)rnd(DTYPE_PUBLIC);
    qn_value in[2] = {any_view(vm, one, 1, &n), any_view(vm, other, 1, &n)};
    char what[200];
    snprintf(what, sizeof what, "round %d: %s and %s of %lld", round, dtype_rows[one].name, dtype_rows[other].name,
             (long long)n);
    static const op_attr none, axis = {.axes = 1};
    if (one == other && (one == QN_f32 || one == QN_f64)) {
      qn_value products = eager_apply(vm, OP_mul, in, 2, NULL);
      sums += same_results(vm, what, eager_apply(vm, OP_dot, in, 2, &none), "",
                           eager_slow(vm, OP_sum, &products, 1, &axis));
      value_release(vm, products);
    }
    compared += as_by_kernel(vm, what, OP_dot, in, 2, &none, &refused);
  }
  ck_assert_int_eq(compared, 1200);
  ck_assert_int_eq(refused, 0);
  ck_assert_int_gt(sums, 100);
  cpu_drop(vm);
}
END_TEST

/* Reductions and scans of any arrays, along any axes. */
START_TEST(tiny_along) {
  qn_vm *vm = cpu_make(1);
  int64_t compared = 0, refused = 0;
  for (int op = 0; op < OP_COUNT; op++) {
    bool scan = op_rows[op].klass == CLASS_SCAN;
    if (!scan && op_rows[op].klass != CLASS_REDUCE) continue;
    for (int round = 0; round < 1000; round++) {
      state = (uint64_t)op * 100003 + (uint64_t)round;
      int64_t shape[ARRAY_MAX_RANK];
      int rank = 1 + (int)rnd(4);
      for (int a = 0; a < rank; a++) shape[a] = rnd(8) == 0 ? 1 : rnd(30) == 0 ? 0 : 1 + rnd(5);
      if (rnd(4) == 0) shape[rnd((uint32_t)rank)] = 1 + rnd(70);
      qn_dtype d = op == OP_any || op == OP_all ? QN_bool : (qn_dtype)rnd(DTYPE_PUBLIC);
      qn_value x = any_view(vm, d, rank, shape);
      op_attr attr = {.axes = (uint8_t)(1 << rnd((uint32_t)rank)), .keepdims = !scan && rnd(2)};
      if (!scan) attr.axes |= (uint8_t)rnd(1u << rank);
      if (scan && rnd(4) == 0) attr.flags = ATTR_REVERSE;
      char what[200];
      snprintf(what, sizeof what, "%s of %s, axes %d of %d, round %d", op_rows[op].name, dtype_rows[d].name, attr.axes,
               rank, round);
      compared += as_by_kernel(vm, what, (op_id)op, &x, 1, &attr, &refused);
    }
  }
  ck_assert_int_gt(compared, 50000);
  cpu_drop(vm);
}
END_TEST

/* The way without a kernel gives what kernels give, of the same dtype and shape, and refuses the same. */
START_TEST(tiny_reductions) {
  static const op_id ops[] = {OP_sum, OP_prod, OP_max, OP_min, OP_any, OP_all, OP_argmax, OP_argmin};
  qn_vm *vm = cpu_make(1);
  int compared = 0, means = 0;
  for (int64_t n = 0; n <= 70; n++)
    for (int d = 0; d < DTYPE_PUBLIC; d++)
      for (int turn = 0; turn < 4; turn++) {
        /* [n], [n] of [2 or 3, n], all of the shape, and two axes that join */
        int64_t shape[3] = {1 + rnd(3), turn == 3 ? 1 + rnd(5) : n, n};
        int rank = turn == 0 ? 1 : turn == 3 ? 3 : 2;
        if (turn < 3) shape[0] = rank == 1 ? n : shape[0];
        qn_value x = value_obj(TAG_ARRAY, any_values(vm, (qn_dtype)d, rank, shape));
        for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
          op_attr attr = {.keepdims = rnd(2) == 0};
          uint8_t all = (uint8_t)((1 << rank) - 1);
          attr.axes = turn == 0 || turn == 2 ? all : turn == 1 ? 1 + (uint8_t)rnd(2) : rnd(2) ? 6 : (uint8_t)rnd(8);
          qn_value fast = eager_apply(vm, ops[k], &x, 1, &attr);
          int error = value_is_error(fast) ? taken_error(vm) : 0;
          qn_value slow = eager_slow(vm, ops[k], &x, 1, &attr);
          ck_assert_int_eq(error, value_is_error(slow) ? taken_error(vm) : 0);
          if (error) continue;
          const qn_array *a = value_array(fast), *b = value_array(slow);
          ck_assert_int_eq(a->dtype, b->dtype);
          ck_assert(shape_equal(a, b) && a->contiguous);
          for (int64_t i = 0; i < a->size; i++, compared++) {
            size_t at = (size_t)i * dtype_size((qn_dtype)a->dtype);
            ck_assert_msg(same_number((qn_dtype)a->dtype, array_data(a) + at, array_data(b) + at),
                          "%s of %s, n = %lld, axes %d of %d, result %lld", op_rows[ops[k]].name, dtype_rows[d].name,
                          (long long)n, attr.axes, rank, (long long)i);
          }
          bool half = d == QN_f16 || d == QN_bf16, whole_numbers = dtype_is_int((qn_dtype)d);
          qn_dtype average = half ? QN_f32 : whole_numbers ? QN_f64 : (qn_dtype)d;
          qn_value mean = ops[k] == OP_sum ? eager_mean(vm, x, average, attr.axes, attr.keepdims) : value_unset();
          if (!value_is(mean, TAG_UNSET)) {
            /* f16 and bf16 are averaged as f32, integers in f64 */
            op_attr widen = {.dtype = (uint8_t)average};
            qn_value wide = half || whole_numbers ? eager_slow(vm, OP_cast, &x, 1, &widen) : value_retain(x);
            qn_value parts[2] = {eager_slow(vm, OP_sum, &wide, 1, &attr), value_int(value_array(x)->size / b->size)},
                     whole = eager_slow(vm, OP_div, parts, 2, &(op_attr){0});
            value_release(vm, wide);
            value_release(vm, parts[0]);
            const qn_array *c = value_array(mean), *e = value_array(whole);
            ck_assert(c->dtype == e->dtype && shape_equal(c, e));
            for (int64_t i = 0; i < c->size; i++, means++) {
              size_t at = (size_t)i * dtype_size((qn_dtype)c->dtype);
              ck_assert(same_number((qn_dtype)c->dtype, array_data(c) + at, array_data(e) + at));
            }
            value_release(vm, mean);
            value_release(vm, whole);
          }
          value_release(vm, fast);
          value_release(vm, slow);
        }
        value_release(vm, x);
      }
  ck_assert_int_gt(compared, 20000);
  ck_assert_int_gt(means, 500);
  cpu_drop(vm);
}
END_TEST

int main(void) {
  Suite *s = suite_create("eager");
  CASE(tcase_create("pointwise"), pointwise, tiny_pointwise);
  CASE(tcase_create("reductions"), reductions_and_scans, tiny_reductions, tiny_along);
  CASE(tcase_create("products"), products, tiny_products, vectors);
  CASE(tcase_create("indexing"), indexing, masks);
  CASE(tcase_create("views"), views);
  CASE(tcase_create("numbers"), weak_numbers, nan_and_zeros, host_scalars, random_numbers, draws_by_arrays_of_keys);
  CASE(tcase_create("errors"), errors);
  CASE(tcase_create("threads"), threads_change_nothing);
  CASE(tcase_create("memory"), failed_allocations);
  return run_suite(s);
}
