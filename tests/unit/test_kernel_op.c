/* One-op kernels: every op of the table over random dtypes, shapes and strided operands, run by the plain interpreter of L and
 * compared with the plain meaning of the op. */
#include <check.h>
#include <inttypes.h>

#include "graph_eval.h"
#include "jit/kernel/plan.h"
#include "jit/ref/eval.h"
#include "lang/error.h"

static uint64_t state;
static uint32_t rnd(uint32_t n) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return n ? (uint32_t)(state >> 33) % n : 0;
}

enum { OPERANDS = 8 };

typedef struct operand {
  eval_value plain; /* the values */
  op_operand view;
  char *memory; /* what the view looks at */
  void *first;  /* element 0 */
  int64_t bytes;
} operand;

static bool wild; /* operands may be broadcast, and have sizes of 0 */

/* An operand with random values, laid out with gaps, reversed or transposed. */
static operand make(uint8_t dtype, int rank, const int64_t *shape, double lo, double hi) {
  operand o = {.plain = eval_new((qn_dtype)dtype, rank, shape)};
  size_t size = dtype_size((qn_dtype)dtype);
  int order[ARRAY_MAX_RANK];
  int64_t stride = 1, low = 0;
  for (int a = 0; a < rank; a++) order[a] = a;
  if (rnd(3) == 0)
    for (int a = rank - 1; a > 0; a--) {
      int b = (int)rnd((uint32_t)a + 1), t = order[a];
      order[a] = order[b];
      order[b] = t;
    }
  o.view = (op_operand){.dtype = dtype, .rank = (uint8_t)rank};
  memcpy(o.view.shape, shape, (size_t)rank * sizeof *shape);
  for (int j = rank - 1; j >= 0; j--) {
    int a = order[j];
    int64_t gap = rnd(4) == 0 ? 2 : 1;
    if (wild && rnd(3) == 0) continue;
    o.view.strides[a] = stride * gap;
    stride *= gap * (shape[a] > 0 ? shape[a] : 1);
    if (rnd(5) == 0 && shape[a] > 0) {
      low += o.view.strides[a] * (shape[a] - 1);
      o.view.strides[a] = -o.view.strides[a];
    }
  }
  o.bytes = (stride + 4) * (int64_t)size;
  o.memory = calloc(1, (size_t)o.bytes);
  o.first = o.memory + (low < 0 ? 0 : low) * (int64_t)size;
  for (int64_t k = 0; k < o.plain.n; k++) {
    double x = lo + (hi - lo) * rnd(1000) / 999.0;
    eval_set(&o.plain, k, x, dtype == QN_bool ? (int64_t)rnd(2) : (int64_t)floor(x));
    int64_t ix[ARRAY_MAX_RANK], at = 0;
    eval_coords(shape, rank, k, ix);
    int64_t same = 0; /* the element that lies at the same place */
    for (int a = 0; a < rank; a++) {
      at += ix[a] * o.view.strides[a];
      same = same * shape[a] + (o.view.strides[a] ? ix[a] : 0);
    }
    if (o.plain.f)
      o.plain.f[k] = o.plain.f[same];
    else
      o.plain.i[k] = o.plain.i[same];
    qn_value v = o.plain.f          ? value_float(o.plain.f[k])
                 : dtype == QN_bool ? value_bool(o.plain.i[k] != 0)
                                    : value_int(o.plain.i[k]);
    dtype_store((qn_dtype)dtype, (char *)o.first + at * (int64_t)size, v);
  }
  return o;
}

static bool close_to(uint8_t dtype, double a, double b) {
  double tolerance = dtype == QN_f64 ? 1e-9 : dtype == QN_f32 ? 3e-5 : dtype == QN_f16 ? 8e-3 : 6e-2;
  if (a != a || b != b) return a != a && b != b;
  if (isinf(a) || isinf(b)) return a == b;
  return fabs(a - b) <= tolerance * (1 + fabs(b));
}

/* Runs one op both ways. Returns the error cell. */
static uint64_t both_ways(op_id op, const op_attr *attr, operand *in, int nin) {
  graph_type types[OPERANDS] = {0};
  op_types inferred;
  op_refusal why_not;
  char why[300] = "";
  for (int i = 0; i < nin; i++) {
    types[i] = (graph_type){.dtype = in[i].view.dtype, .rank = in[i].view.rank};
    memcpy(types[i].shape, in[i].view.shape, sizeof types[i].shape);
  }
  ck_assert_msg(op_infer(NULL, op, types, nin, attr, &inferred, &why_not), "%s: %s", op_rows[op].name, why_not.text);
  const graph_type *t = &inferred.result;
  eval_value expected = eval_new((qn_dtype)t->dtype, t->rank, t->shape);
  eval_call plain = {.op = op, .attr = attr, .nin = nin};
  op_operand views[OPERANDS];
  void *buffers[OPERANDS + 1];
  for (int i = 0; i < nin; i++) {
    plain.in[i] = &in[i].plain;
    views[i] = in[i].view;
    buffers[i] = in[i].first;
  }
  bool raises = !eval_op(&plain, &expected);
  op_call call = {.op = op, .nin = nin, .attr = attr, .in = views};
  call.out = (op_operand){.dtype = t->dtype, .rank = t->rank};
  memcpy(call.out.shape, t->shape, sizeof call.out.shape);
  char *out = calloc((size_t)expected.n + 1, dtype_size((qn_dtype)t->dtype));
  buffers[nin] = out;
  op_key key;
  int64_t ints[OP_CALL_INTS];
  ck_assert_msg(op_call_key(&call, &key, ints), "%s has no key", op_rows[op].name);
  const char *refused = "";
  l_program *p = kernel_for_op(&key, TARGET_CPU, &refused);
  ck_assert_msg(p != NULL, "%s has no kernel: %s", op_rows[op].name, refused);
  ck_assert_msg(l_verify(p, why, sizeof why), "%s", why);
  uint64_t error;
  const l_eval_options o = {.why = why, .why_size = sizeof why};
  bool ran = l_eval(p, buffers, NULL, ints, NULL, &o, &error) == L_EVAL_DONE;
  if (!ran) {
    text_buf text = {0};
    l_print(p, &text);
    text_add(&text, "", 1);
    ck_abort_msg("%s: %s\n%s", op_rows[op].name, why, text.text);
  }
  ck_assert_msg((error != ~(uint64_t)0) == raises, "%s: error cell %" PRIx64 ", but %s", op_rows[op].name, error,
                raises ? "it raises" : "it does not");
  for (int64_t k = 0; k < expected.n && !raises; k++) {
    qn_value v = dtype_load((qn_dtype)t->dtype, out + (size_t)k * dtype_size((qn_dtype)t->dtype));
    bool same = expected.f ? close_to(t->dtype, v.u.f, expected.f[k]) : v.u.i == expected.i[k];
    if (same) continue;
    text_buf text = {0};
    l_print(p, &text);
    text_add(&text, "", 1);
    ck_abort_msg("%s of %s: element %" PRId64 " is %g (%" PRId64 ") instead of %g (%" PRId64 ")\n%s", op_rows[op].name,
                 dtype_rows[in[0].view.dtype].name, k, expected.f ? v.u.f : 0, v.u.i, expected.f ? expected.f[k] : 0,
                 expected.i ? expected.i[k] : 0, text.text);
  }
  l_free(p);
  free(out);
  eval_drop(&expected);
  return error;
}

static void drop(operand *in, int nin) {
  for (int i = 0; i < nin; i++) {
    eval_drop(&in[i].plain);
    free(in[i].memory);
  }
}

static const uint8_t floats[] = {QN_f32, QN_f64, QN_f16, QN_bf16}, ints[] = {QN_i64, QN_i32, QN_u8, QN_i8, QN_i16};
static int random_shape(int64_t *shape, int most) {
  if (wild) {
    int axes = (int)rnd(7);
    for (int a = 0; a < axes; a++) shape[a] = rnd(14) == 0 ? 0 : rnd(3) == 0 ? 1 : 1 + rnd(a == axes - 1 ? 20 : 4);
    return axes;
  }
  int rank = (int)rnd((uint32_t)most + 1);
  for (int a = 0; a < rank; a++) shape[a] = rnd(6) == 0 ? 1 : 1 + rnd(a == rank - 1 ? 20 : 5);
  return rank;
}
/* A shape that broadcasts to `shape`. */
static int narrower(const int64_t *shape, int rank, int64_t *to) {
  int drop = rnd(3) == 0 ? (int)rnd((uint32_t)rank + 1) : 0;
  for (int a = drop; a < rank; a++) to[a - drop] = rnd(4) == 0 ? 1 : shape[a];
  return rank - drop;
}

static bool takes_ints(op_id op) {
  switch (op_rows[op].dtype_rule) {
  case DT_float:
  case DT_div: return false;
  default: return true;
  }
}

static void try_pointwise(void) {
  for (int op = 0; op < OP_COUNT; op++) {
    if (op_rows[op].klass != CLASS_POINTWISE || op == OP_fit) continue;
    for (int round = 0; round < (wild ? 40 : 12); round++) {
      state = (uint64_t)op * 1000 + (uint64_t)round;
      bool whole = takes_ints((op_id)op) && rnd(2), bools = false;
      if (op_rows[op].dtype_rule == DT_bits || op_rows[op].dtype_rule == DT_ints) whole = true;
      if ((op_rows[op].dtype_rule == DT_bits || op_rows[op].dtype_rule == DT_compare || op == OP_minimum) &&
          rnd(4) == 0)
        bools = true;
      uint8_t d = bools ? QN_bool : whole ? ints[rnd(5)] : floats[rnd(4)];
      double lo = -3, hi = 3;
      if (d == QN_u8) lo = 0;
      if (op == OP_log || op == OP_log2 || op == OP_log10 || op == OP_sqrt || op == OP_rsqrt || op == OP_log1p)
        lo = 0.1;
      if (op == OP_arcsin || op == OP_arccos) lo = -1, hi = 1;
      if (op == OP_mod || op == OP_floordiv) lo = 1, hi = 9;
      if (op == OP_pow) lo = 0, hi = 3;
      if (op == OP_tan) lo = -1, hi = 1;
      if (op == OP_shl || op == OP_shr) lo = 0, hi = 7;
      int64_t shape[ARRAY_MAX_RANK], other[ARRAY_MAX_RANK];
      int rank = random_shape(shape, 4), arity = op_rows[op].arity;
      operand in[3];
      for (int i = 0; i < arity; i++) {
        int r = i == (int)rnd((uint32_t)arity) ? rank : narrower(shape, rank, other);
        const int64_t *s = r == rank ? shape : other;
        if (i == 0) {
          r = rank;
          s = shape;
        }
        in[i] = make(op == OP_where && i == 0 ? QN_bool : d, r, s, lo, hi);
      }
      op_attr attr = {0};
      if (op == OP_cast) {
        uint32_t pick = rnd(10);
        attr.dtype = pick == 0 ? QN_bool : pick < 5 ? floats[rnd(4)] : ints[rnd(5)];
        if (!whole && attr.dtype == QN_u8) attr.dtype = QN_i32;
        if (d == QN_i8 && attr.dtype == QN_u8) attr.dtype = QN_i32;
      }
      uint64_t error = both_ways((op_id)op, op == OP_cast ? &attr : NULL, in, arity);
      ck_assert_msg(error == ~(uint64_t)0, "%s fails", op_rows[op].name);
      drop(in, arity);
    }
  }
}
START_TEST(pointwise) { try_pointwise(); }
END_TEST
START_TEST(wild_pointwise) {
  wild = true;
  try_pointwise();
  wild = false;
}
END_TEST

static void try_reductions(void) {
  for (int op = 0; op < OP_COUNT; op++) {
    if (op_rows[op].klass != CLASS_REDUCE && op_rows[op].klass != CLASS_SCAN) continue;
    bool scan = op_rows[op].klass == CLASS_SCAN, logic = op == OP_any || op == OP_all;
    for (int round = 0; round < (wild ? 160 : 40); round++) {
      state = (uint64_t)op * 1000 + (uint64_t)round;
      uint8_t d = logic ? QN_bool : rnd(3) ? floats[rnd(4)] : ints[rnd(5)];
      int64_t shape[ARRAY_MAX_RANK];
      int rank;
      do rank = random_shape(shape, 4);
      while (rank == 0);
      if (rnd(wild ? 16 : 4) == 0) shape[rnd((uint32_t)rank)] = 70 + rnd(100);
      if (!wild && rnd(12) == 0 && rank < 3) shape[rank - 1] = 1100 + rnd(3000);
      bool empty = false;
      for (int a = 0; a < rank; a++) empty |= shape[a] == 0;
      if (empty && op_rows[op].raises == RAISES_empty) continue;
      bool product = op == OP_prod || op == OP_cumprod;
      operand in = make(d, rank, shape, product ? 0.9 : d == QN_u8 ? 0 : -2, product ? 1.1 : 2);
      op_attr attr = {.axes = (uint8_t)(1 << rnd((uint32_t)rank))};
      if (!scan)
        for (int a = 0; a < rank; a++) attr.axes |= (uint8_t)(rnd(2) << a);
      if (!scan) attr.keepdims = (uint8_t)rnd(2);
      if (scan) attr.flags = (uint8_t)((rnd(2) ? ATTR_REVERSE : 0) | (rnd(2) ? ATTR_EXCLUSIVE : 0));
      both_ways((op_id)op, &attr, &in, 1);
      drop(&in, 1);
    }
  }
}
START_TEST(reductions) { try_reductions(); }
END_TEST
START_TEST(wild_reductions) {
  wild = true;
  try_reductions();
  wild = false;
}
END_TEST

START_TEST(long_reductions) {
  const int64_t cases[][3] = {{70000, 1, 1}, {1, 1, 70000}, {700, 40, 1}, {3, 1, 66000}, {400, 3, 20}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
    for (int axes = 1; axes < 8; axes++) {
      state = 77 + c;
      operand in = make(QN_f32, 3, cases[c], -1, 1);
      op_attr attr = {.axes = (uint8_t)axes};
      both_ways(OP_sum, &attr, &in, 1);
      both_ways(OP_argmax, &attr, &in, 1);
      drop(&in, 1);
    }
}
END_TEST

START_TEST(nothing_is_reduced) {
  const int64_t shape[] = {3, 0};
  operand in = make(QN_f32, 2, shape, 0, 1);
  op_attr attr = {.axes = 2};
  both_ways(OP_sum, &attr, &in, 1);
  both_ways(OP_prod, &attr, &in, 1);
  drop(&in, 1);
}
END_TEST

static void try_products(void) {
  for (int round = 0; round < (wild ? 600 : 60); round++) {
    state = 9000 + (uint64_t)round;
    int64_t m = 1 + rnd(40), k = rnd(9) == 0 ? 1 : 1 + rnd(70), n = 1 + rnd(40), x[6], y[6];
    if (!wild && round % 20 == 0) k = 5000, m = n = 3;
    if (wild && rnd(3) == 0) *(rnd(3) == 0 ? &m : rnd(2) ? &k : &n) = rnd(2);
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
    operand in[2] = {make(d, rx, x, d == QN_u8 ? 0 : -1, 1), make(d, ry, y, d == QN_u8 ? 0 : -1, 1)};
    both_ways(OP_dot, NULL, in, 2);
    drop(in, 2);
  }
}
START_TEST(products) { try_products(); }
END_TEST
START_TEST(wild_products) {
  wild = true;
  try_products();
  wild = false;
}
END_TEST

static void try_indexing(void) {
  for (int round = 0; round < (wild ? 600 : 80); round++) {
    state = 20000 + (uint64_t)round;
    uint8_t d = rnd(3) ? floats[rnd(4)] : ints[rnd(5)];
    int64_t shape[4], index[3], v[8];
    int rank = 1 + (int)rnd(3), count = 1 + (int)rnd((uint32_t)rank), irank = (int)rnd(3);
    for (int a = 0; a < rank; a++) shape[a] = 2 + rnd(a == rank - 1 ? 30 : 6);
    for (int a = 0; a < irank; a++) index[a] = wild && rnd(5) == 0 ? 0 : 1 + rnd(9);
    operand in[6];
    in[0] = make(d, rank, shape, -2, 2);
    for (int j = 0; j < count; j++)
      in[1 + j] = make(rnd(2) ? QN_i64 : QN_i32, irank, index, -(double)shape[j], (double)shape[j] - 1);
    op_attr attr = {.n = 1, .d = {count}};
    ck_assert(both_ways(OP_index, &attr, in, 1 + count) == ~(uint64_t)0);
    int vrank = 0;
    for (int a = 0; a < irank; a++) v[vrank++] = rnd(5) == 0 ? 1 : index[a];
    for (int a = count; a < rank; a++) v[vrank++] = rnd(5) == 0 ? 1 : shape[a];
    in[1 + count] = make(d, vrank, v, -2, 2);
    attr.mode = (uint8_t)rnd(5);
    ck_assert(both_ways(OP_scatter, &attr, in, 2 + count) == ~(uint64_t)0);
    drop(in, 2 + count);
    /* along an axis */
    int axis = (int)rnd((uint32_t)rank);
    operand along[3];
    memcpy(v, shape, sizeof shape);
    v[axis] = wild && rnd(5) == 0 ? 0 : 1 + rnd(9);
    along[0] = make(d, rank, shape, -2, 2);
    along[1] = make(QN_i64, rank, v, -(double)shape[axis], (double)shape[axis] - 1);
    along[2] = make(d, rank, v, -2, 2);
    op_attr with = {.axes = (uint8_t)(1 << axis)};
    ck_assert(both_ways(OP_gather, &with, along, 2) == ~(uint64_t)0);
    ck_assert(both_ways(OP_gather_add, &with, along, 3) == ~(uint64_t)0);
    drop(along, 3);
  }
}
START_TEST(indexing) { try_indexing(); }
END_TEST
START_TEST(wild_indexing) {
  wild = true;
  try_indexing();
  wild = false;
}
END_TEST

START_TEST(checks_fail_at_the_first_element) {
  const int64_t shape[] = {4, 30};
  operand in[2] = {make(QN_i32, 2, shape, 1, 9), make(QN_i32, 2, shape, 1, 9)};
  int64_t at = 2 * in[1].view.strides[0] + 7 * in[1].view.strides[1];
  memset((char *)in[1].first + at * 4, 0, 4);
  in[1].plain.i[2 * 30 + 7] = in[1].plain.i[3 * 30 + 1] = 0;
  at = 3 * in[1].view.strides[0] + 1 * in[1].view.strides[1];
  memset((char *)in[1].first + at * 4, 0, 4);
  ck_assert_uint_eq(both_ways(OP_floordiv, NULL, in, 2), 2 * 30 + 7);
  drop(in, 2);
  const int64_t rows[] = {50, 40}, index[] = {3, 5};
  operand x[2] = {make(QN_f32, 2, rows, 0, 1), make(QN_i64, 2, index, 0, 49)};
  int64_t bad = 1000;
  memcpy((char *)x[1].first + 8 * (x[1].view.strides[0] * 1 + x[1].view.strides[1] * 2), &bad, 8);
  x[1].plain.i[1 * 5 + 2] = bad;
  op_attr attr = {.n = 1, .d = {1}};
  ck_assert_uint_eq(both_ways(OP_index, &attr, x, 2), 1 * 5 + 2);
  drop(x, 2);
}
END_TEST

/* Philox 4x32-10 known answers (Random123's kat_vectors): counter and key all zero, and the digits of pi. */
START_TEST(random_words) {
  op_attr attr = {.dtype = QN_i64, .n = 1, .d = {3}};
  op_operand keys[3] = {{.dtype = QN_i64}, {.dtype = QN_i64}, {.dtype = QN_i64}};
  op_call call = {.op = OP_random_bits, .nin = 3, .attr = &attr, .in = keys};
  call.out = (op_operand){.dtype = QN_i64, .rank = 1, .shape = {3}};
  op_key key;
  int64_t slots[OP_CALL_INTS];
  ck_assert(op_call_key(&call, &key, slots));
  const char *refused;
  l_program *p = kernel_for_op(&key, TARGET_CPU, &refused);
  ck_assert_ptr_nonnull(p);
  uint64_t out[3], error;
  void *buffers[] = {out};
  qk_scalar zero[3] = {{.i = 0}, {.i = 0}, {.i = 0}};
  ck_assert_int_eq(l_eval(p, buffers, NULL, slots, zero, NULL, &error), L_EVAL_DONE);
  ck_assert_uint_eq(out[0], 0xe169c58d6627e8d5u);
  l_free(p);
}
END_TEST

/* Many small programs are made for calls of one structure: keys must not depend on what does not matter. */
START_TEST(keys_are_shared) {
  op_key keys[2];
  int64_t slots[OP_CALL_INTS];
  for (int i = 0; i < 2; i++) {
    op_operand in[2] = {{.dtype = QN_f32, .rank = 2, .shape = {100 + i, 700}, .strides = {700, 1}},
                        {.dtype = QN_f32, .rank = 1, .shape = {700}, .strides = {1}}};
    op_call call = {.op = OP_add, .nin = 2, .in = in};
    call.out = (op_operand){.dtype = QN_f32, .rank = 2, .shape = {100 + i, 700}};
    ck_assert(op_call_key(&call, &keys[i], slots));
  }
  ck_assert_uint_eq(keys[0].n, keys[1].n);
  ck_assert_int_eq(memcmp(keys[0].bytes, keys[1].bytes, keys[0].n), 0);
  op_operand in[2] = {{.dtype = QN_f32, .rank = 3, .shape = {4, 5, 6}, .strides = {30, 6, 1}},
                      {.dtype = QN_f32, .rank = 3, .shape = {4, 5, 6}, .strides = {30, 6, 1}}};
  op_call call = {.op = OP_add, .nin = 2, .in = in};
  call.out = (op_operand){.dtype = QN_f32, .rank = 3, .shape = {4, 5, 6}};
  ck_assert(op_call_key(&call, &keys[0], slots));
  ck_assert_int_eq(slots[0], 120); /* contiguous operands: one axis */
}
END_TEST

static void add(Suite *s, TCase *t, const TTest *test) {
  tcase_set_timeout(t, 240);
  tcase_add_test(t, test);
  suite_add_tcase(s, t);
}

int main(void) {
  Suite *s = suite_create("kernel_op");
  add(s, tcase_create("pointwise"), pointwise);
  add(s, tcase_create("wild_pointwise"), wild_pointwise);
  add(s, tcase_create("reductions"), reductions);
  add(s, tcase_create("wild_reductions"), wild_reductions);
  add(s, tcase_create("long_reductions"), long_reductions);
  add(s, tcase_create("nothing_is_reduced"), nothing_is_reduced);
  add(s, tcase_create("products"), products);
  add(s, tcase_create("wild_products"), wild_products);
  add(s, tcase_create("indexing"), indexing);
  add(s, tcase_create("wild_indexing"), wild_indexing);
  add(s, tcase_create("checks_fail_at_the_first_element"), checks_fail_at_the_first_element);
  add(s, tcase_create("random_words"), random_words);
  add(s, tcase_create("keys_are_shared"), keys_are_shared);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_ENV);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed != 0;
}
