/* Dtype and shape rules of the ops: the promotion table of the language over every pair of types, shapes, and the sentences of
 * refusals. */
#include <check.h>
#include <stdlib.h>

#include "jit/graph/graph.h"
#include "lang/vm.h"
#include "tests/unit/graph_case.h"

static graph_type array_type(qn_dtype d, int rank, const int64_t *shape) {
  graph_type t = {.dtype = (uint8_t)d, .rank = (uint8_t)rank};
  if (rank) memcpy(t.shape, shape, (size_t)rank * sizeof *shape);
  return t;
}
#define ARRAY(d, ...)                                                                                                  \
  array_type(QN_##d, (int)(sizeof((int64_t[]){0, ##__VA_ARGS__}) / 8 - 1), &(int64_t[]){0, ##__VA_ARGS__}[1])
static graph_type weak(qn_dtype d) { return (graph_type){.dtype = (uint8_t)d, .weak = true}; }

/* ---- dtypes -------------------------------------------------------------------------------------------------------- */

static int width(qn_dtype d) { return (int)dtype_rows[d].size; }

/* The page's table, row by row; operands are arrays or weak. Weak among themselves: float beats int beats bool. */
static qn_dtype promoted(graph_type a, graph_type b) {
  qn_dtype x = (qn_dtype)a.dtype, y = (qn_dtype)b.dtype;
  if (a.weak && b.weak) return x > y ? x : y;
  if (a.weak) return promoted(b, a);
  if (b.weak) {
    if (dtype_is_float(x) || y == QN_bool) return x; /* float array with weak: the array's */
    if (y == QN_f64) return QN_f32;                  /* int or bool array with weak float */
    return x == QN_bool ? QN_i64 : x;                /* weak int: the array's, bools become i64 */
  }
  if (x == QN_f64 || y == QN_f64) return QN_f64;
  if (dtype_is_float(x) && dtype_is_float(y)) {
    if (x == y) return x;
    return QN_f32; /* f16 with bf16, or one of them with f32 */
  }
  if (dtype_is_float(x)) return x;
  if (dtype_is_float(y)) return y;
  if (x == QN_bool) return y;
  if (y == QN_bool) return x;
  if (x == QN_u8 || y == QN_u8) { /* the smallest that holds both */
    qn_dtype other = x == QN_u8 ? y : x;
    return other == QN_u8 ? QN_u8 : other == QN_i8 ? QN_i16 : other;
  }
  return width(x) > width(y) ? x : y;
}

static const graph_type *all_types(int *n) {
  static graph_type types[16];
  *n = 0;
  for (int d = QN_bool; d <= QN_f64; d++) types[(*n)++] = (graph_type){.dtype = (uint8_t)d, .rank = 1, .shape = {3}};
  types[(*n)++] = weak(QN_bool);
  types[(*n)++] = weak(QN_i64);
  types[(*n)++] = weak(QN_f64);
  return types;
}

static void check_type(op_id op, const graph_type *in, int nin, qn_dtype compute, qn_dtype result) {
  op_types o;
  op_refusal why = {0};
  bool all_weak = true;
  for (int i = 0; i < nin; i++) all_weak &= in[i].weak;
  ck_assert_msg(op_infer(NULL, op, in, nin, NULL, &o, &why), "%s: %s", op_rows[op].name, why.text);
  ck_assert_msg(o.result.dtype == result && o.compute == compute && o.weak == all_weak && o.result.weak == all_weak,
                "%s of %s%s and %s%s: %s by %s, expected %s by %s", op_rows[op].name, in[0].weak ? "weak " : "",
                dtype_rows[in[0].dtype].name, nin > 1 && in[1].weak ? "weak " : "", dtype_rows[in[nin - 1].dtype].name,
                dtype_rows[o.result.dtype].name, dtype_rows[o.compute].name, dtype_rows[result].name,
                dtype_rows[compute].name);
}

START_TEST(dtypes_follow_the_promotion_table) {
  int n;
  const graph_type *types = all_types(&n);
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) {
      graph_type in[] = {types[i], types[j]};
      bool both_weak = in[0].weak && in[1].weak;
      qn_dtype p = promoted(in[0], in[1]), number = p == QN_bool ? QN_i64 : p;
      qn_dtype real = dtype_is_float(p) ? p : both_weak ? QN_f64 : QN_f32;
      static const op_id arith[] = {OP_add, OP_sub, OP_mul, OP_floordiv, OP_mod, OP_pow, OP_smul};
      for (size_t k = 0; k < sizeof arith / sizeof *arith; k++) check_type(arith[k], in, 2, number, number);
      check_type(OP_div, in, 2, real, real);
      check_type(OP_arctan2, in, 2, real, real);
      check_type(OP_minimum, in, 2, p, p);
      check_type(OP_lt, in, 2, p, QN_bool);
      check_type(OP_eq, in, 2, p, QN_bool);
      op_types o;
      op_refusal why;
      bool bits = (in[0].dtype == QN_bool && in[1].dtype == QN_bool) ||
                  (dtype_is_int((qn_dtype)in[0].dtype) && dtype_is_int((qn_dtype)in[1].dtype));
      if (bits)
        check_type(OP_bitand, in, 2, p, p);
      else
        ck_assert(!op_infer(NULL, OP_bitand, in, 2, NULL, &o, &why) && why.id == 206);
      bool ints = bits && in[0].dtype != QN_bool;
      if (ints)
        check_type(OP_shl, in, 2, p, p);
      else
        ck_assert(!op_infer(NULL, OP_shl, in, 2, NULL, &o, &why) && why.id == 206);
      graph_type choice[] = {ARRAY(bool, 3), in[0], in[1]};
      ck_assert(op_infer(NULL, OP_where, choice, 3, NULL, &o, &why));
      ck_assert_int_eq(o.result.dtype, both_weak && p == QN_f64 ? QN_f32 : p);
      ck_assert(!o.weak && !o.result.weak);
    }
}
END_TEST

START_TEST(dtypes_of_one_operand) {
  int n;
  const graph_type *types = all_types(&n);
  for (int i = 0; i < n; i++) {
    qn_dtype d = (qn_dtype)types[i].dtype;
    qn_dtype number = d == QN_bool ? QN_i64 : d, real = dtype_is_float(d) ? d : types[i].weak ? QN_f64 : QN_f32;
    check_type(OP_neg, &types[i], 1, number, number);
    check_type(OP_abs, &types[i], 1, number, number);
    check_type(OP_floor, &types[i], 1, d, d);
    check_type(OP_exp, &types[i], 1, real, real);
    check_type(OP_isnan, &types[i], 1, d, QN_bool);
    check_type(OP_stop_gradient, &types[i], 1, d, d);
    if (types[i].weak) continue;
    op_attr all = {.axes = 1};
    op_types o;
    op_refusal why;
    ck_assert(op_infer(NULL, OP_sum, &types[i], 1, &all, &o, &why));
    ck_assert_int_eq(o.result.dtype, dtype_is_float(d) ? d : QN_i64);
    ck_assert_int_eq(o.compute, o.result.dtype);
    ck_assert(op_infer(NULL, OP_max, &types[i], 1, &all, &o, &why));
    ck_assert_int_eq(o.result.dtype, d);
    ck_assert(op_infer(NULL, OP_argmax, &types[i], 1, &all, &o, &why));
    ck_assert_int_eq(o.result.dtype, QN_i64);
    ck_assert_int_eq(o.compute, d);
    ck_assert(op_infer(NULL, OP_any, &types[i], 1, &all, &o, &why) == (d == QN_bool));
  }
}
END_TEST

START_TEST(graph_op_makes_operands_strict) {
  graph *g = graph_new(NULL);
  char why[256];
  uint32_t x = graph_input(g, ARRAY(u8, 3), 0), y = graph_input(g, ARRAY(i8, 3), 0),
           f = graph_input(g, weak(QN_f64), 0);
  uint32_t b = graph_input(g, ARRAY(bool, 3), 0), i = graph_input(g, weak(QN_i64), 0);
  uint32_t two = graph_const_scalar(g, QN_i64, true, 0, 2, 0);
  uint32_t sum = graph_op(g, OP_add, (uint32_t[]){x, y}, 2, NULL, 0);
  ck_assert_int_eq(g->nodes[g->nodes[sum].in[0]].op, OP_cast);
  ck_assert_int_eq(g->nodes[sum].type.dtype, QN_i16);
  uint32_t scaled = graph_op(g, OP_mul, (uint32_t[]){sum, f}, 2, NULL, 0);
  ck_assert_int_eq(g->nodes[g->nodes[scaled].in[1]].op, OP_fit);
  ck_assert_int_eq(g->nodes[scaled].type.dtype, QN_f32);
  uint32_t twice = graph_op(g, OP_mul, (uint32_t[]){x, two}, 2, NULL, 0);
  ck_assert_int_eq(g->nodes[g->nodes[twice].in[1]].kind, NODE_CONST); /* fitted at once */
  ck_assert_int_eq(g->nodes[twice].type.dtype, QN_u8);
  uint32_t both = graph_op(g, OP_add, (uint32_t[]){f, i}, 2, NULL, 0);
  ck_assert(g->nodes[both].type.weak && g->nodes[both].type.dtype == QN_f64);
  ck_assert(g->nodes[g->nodes[both].in[1]].type.weak);
  uint32_t picked = graph_op(g, OP_where, (uint32_t[]){b, f, i}, 3, NULL, 0);
  ck_assert(!g->nodes[picked].type.weak && g->nodes[picked].type.dtype == QN_f32);
  uint32_t at = graph_op(g, OP_index, (uint32_t[]){x, i}, 2, &(op_attr){.n = 1, .d = {1}}, 0);
  ck_assert_int_eq(g->nodes[at].type.rank, 0);
  ck_assert(!g->nodes[g->nodes[at].in[1]].type.weak);
  uint32_t host = graph_op(g, OP_cast, &at, 1, &(op_attr){.dtype = QN_i64, .flags = ATTR_WEAK}, 0);
  ck_assert(g->nodes[host].type.weak);
  ck_assert_msg(graph_verify(g, why, sizeof why), "%s", why);
  graph_free(g);
}
END_TEST

/* ---- shapes ----------------------------------------------------------------------------------------------------------- */

static void gives(op_id op, const graph_type *in, int nin, op_attr attr, graph_type expected) {
  op_types o;
  op_refusal why = {0};
  ck_assert_msg(op_infer(NULL, op, in, nin, &attr, &o, &why), "%s: %s", op_rows[op].name, why.text);
  ck_assert_msg(graph_type_same(&o.result, &expected), "%s: rank %d, [%lld, %lld, %lld] of %s", op_rows[op].name,
                o.result.rank, (long long)o.result.shape[0], (long long)o.result.shape[1], (long long)o.result.shape[2],
                dtype_rows[o.result.dtype].name);
}

static void refuses(op_id op, const graph_type *in, int nin, op_attr attr, int id, const char *text) {
  op_types o;
  op_refusal why = {0};
  ck_assert_msg(!op_infer(NULL, op, in, nin, &attr, &o, &why), "%s was accepted", op_rows[op].name);
  ck_assert_str_eq(why.text, text);
  ck_assert_int_eq(why.id, id);
}

#define IN(...) (graph_type[]){__VA_ARGS__}, (int)(sizeof((graph_type[]){__VA_ARGS__}) / sizeof(graph_type))
#define ATTR(...) ((op_attr){__VA_ARGS__})

START_TEST(shapes_of_results) {
  gives(OP_add, IN(ARRAY(f32, 4, 3), ARRAY(f32, 3)), ATTR(0), ARRAY(f32, 4, 3));
  gives(OP_add, IN(ARRAY(f32, 4, 1), ARRAY(f32, 2, 1, 3)), ATTR(0), ARRAY(f32, 2, 4, 3));
  gives(OP_add, IN(ARRAY(f32, 0, 3), ARRAY(f32, 1, 3)), ATTR(0), ARRAY(f32, 0, 3));
  gives(OP_sum, IN(ARRAY(f32, 4, 3)), ATTR(.axes = 2), ARRAY(f32, 4));
  gives(OP_sum, IN(ARRAY(f32, 4, 3)), ATTR(.axes = 3, .keepdims = 1), ARRAY(f32, 1, 1));
  gives(OP_sum, IN(ARRAY(f32, 0, 3)), ATTR(.axes = 1), ARRAY(f32, 3));
  gives(OP_max, IN(ARRAY(f32, 0, 3)), ATTR(.axes = 2), ARRAY(f32, 0));
  gives(OP_cumsum, IN(ARRAY(u8, 4, 3)), ATTR(.axes = 2), ARRAY(i64, 4, 3));
  gives(OP_reshape, IN(ARRAY(f32, 4, 3)), ATTR(.n = 3, .d = {2, 1, 6}), ARRAY(f32, 2, 1, 6));
  gives(OP_broadcast, IN(ARRAY(f32, 3, 1)), ATTR(.n = 3, .d = {2, 3, 4}), ARRAY(f32, 2, 3, 4));
  gives(OP_permute, IN(ARRAY(f32, 2, 3, 4)), ATTR(.n = 3, .d = {2, 0, 1}), ARRAY(f32, 4, 2, 3));
  gives(OP_slice, IN(ARRAY(f32, 5)), ATTR(.n = 3, .d = {4, 3, -2}), ARRAY(f32, 3));
  gives(OP_window, IN(ARRAY(f32, 5, 3)), ATTR(.n = 3, .axes = 1, .d = {2, 1, 1}), ARRAY(f32, 4, 3, 2));
  gives(OP_window, IN(ARRAY(f32, 5, 9)), ATTR(.n = 3, .axes = 2, .d = {3, 2, 2}), ARRAY(f32, 5, 3, 3));
  gives(OP_pad, IN(ARRAY(f32, 3), ARRAY(f32)), ATTR(.n = 3, .d = {1, 2, 1}), ARRAY(f32, 8));
  gives(OP_pad, IN(ARRAY(f32, 0), ARRAY(f32)), ATTR(.n = 3, .d = {1, 2, 5}), ARRAY(f32, 3));
  gives(OP_concat, IN(ARRAY(f32, 2, 3), ARRAY(f64, 1, 3)), ATTR(.axes = 1), ARRAY(f64, 3, 3));
  gives(OP_iota, NULL, 0, ATTR(.n = 2, .axes = 2, .dtype = QN_i32, .d = {2, 3}), ARRAY(i32, 2, 3));
  gives(OP_index, IN(ARRAY(f32, 5, 6, 7), ARRAY(i32, 2, 1), ARRAY(u8, 4)), ATTR(.n = 1, .d = {2}), ARRAY(f32, 2, 4, 7));
  gives(OP_index, IN(ARRAY(f32, 5), ARRAY(i64)), ATTR(.n = 1, .d = {1}), ARRAY(f32));
  gives(OP_scatter, IN(ARRAY(f32, 5, 6), ARRAY(i32, 2), ARRAY(f32, 6)), ATTR(.n = 1, .d = {1}), ARRAY(f32, 5, 6));
  gives(OP_gather, IN(ARRAY(f32, 5, 6), ARRAY(i64, 5, 2)), ATTR(.axes = 2), ARRAY(f32, 5, 2));
  gives(OP_gather_add, IN(ARRAY(f32, 5, 6), ARRAY(i64, 5, 2), ARRAY(f32, 5, 2)), ATTR(.axes = 2), ARRAY(f32, 5, 6));
  gives(OP_slice_put, IN(ARRAY(f32, 5), ARRAY(f32)), ATTR(.n = 3, .d = {1, 2, 1}), ARRAY(f32, 5));
  gives(OP_compress, IN(ARRAY(f32, 5, 6), ARRAY(bool, 5)), ATTR(0), ARRAY(f32, 5, 6));
  gives(OP_nonzero, IN(ARRAY(bool, 5, 6)), ATTR(0), ARRAY(i64, 30, 2));
  gives(OP_dot, IN(ARRAY(f32, 4, 3), ARRAY(f32, 3, 5)), ATTR(0), ARRAY(f32, 4, 5));
  gives(OP_dot, IN(ARRAY(f32, 3), ARRAY(f32, 3)), ATTR(0), ARRAY(f32));
  gives(OP_dot, IN(ARRAY(f32, 7, 4, 3), ARRAY(f32, 3)), ATTR(0), ARRAY(f32, 7, 4));
  gives(OP_dot, IN(ARRAY(f32, 3), ARRAY(f32, 7, 3, 5)), ATTR(0), ARRAY(f32, 7, 5));
  gives(OP_dot, IN(ARRAY(bool, 2, 1, 4, 3), ARRAY(bool, 6, 3, 5)), ATTR(0), ARRAY(i64, 2, 6, 4, 5));
  gives(OP_argsort, IN(ARRAY(f32, 4, 3)), ATTR(.axes = 1), ARRAY(i64, 4, 3));
  gives(OP_argsort, IN(ARRAY(f32, 4, 3)), ATTR(.axes = 1, .n = 1, .d = {2}), ARRAY(i64, 2, 3));
}
END_TEST

START_TEST(refusals_say_what_disagrees) {
  refuses(OP_argsort, IN(ARRAY(f32, 4, 3)), ATTR(.axes = 1, .n = 1, .d = {5}), 317,
          "the first 5 of axis 0, which has 4");
  refuses(OP_add, IN(ARRAY(f32, 4, 3), ARRAY(f32, 5)), ATTR(0), 203, "shapes do not broadcast: axis -1 is 3 and 5");
  refuses(OP_add, IN(ARRAY(f32, 4, 3), ARRAY(f32, 5, 3)), ATTR(0), 203, "shapes do not broadcast: axis -2 is 4 and 5");
  refuses(OP_add, IN(ARRAY(f32, 0), ARRAY(f32, 2)), ATTR(0), 203, "shapes do not broadcast: axis -1 is 0 and 2");
  refuses(OP_broadcast, IN(ARRAY(f32, 3)), ATTR(.n = 2, .d = {4, 5}), 203,
          "f32[3] does not broadcast to the shape [4, 5]: axis -1 is 3 and 5");
  refuses(OP_scatter, IN(ARRAY(f32, 5, 6), ARRAY(i32, 2), ARRAY(f32, 3, 6)), ATTR(.n = 1, .d = {1}), 203,
          "f32[3, 6] does not broadcast to the shape [2, 6]: axis -2 is 3 and 2");
  refuses(OP_dot, IN(ARRAY(f32, 4, 3), ARRAY(f32, 4, 5)), ATTR(0), 202,
          "matrix product of f32[4, 3] and f32[4, 5]: axis -1 of the left is 3, axis -2 of the right is 4");
  refuses(OP_dot, IN(ARRAY(f32, 4, 3), weak(QN_f64)), ATTR(0), 202,
          "a matrix product needs arrays with at least one axis, not float");
  refuses(OP_dot, IN(ARRAY(f32, 2, 4, 3), ARRAY(f32, 5, 3, 1)), ATTR(0), 203,
          "batch axes of a matrix product do not broadcast: axis -3 is 2 and 5");
  refuses(OP_reshape, IN(ARRAY(f32, 4, 3)), ATTR(.n = 2, .d = {5, 2}), 201,
          "f32[4, 3] has 12 elements and cannot be reshaped to [5, 2], which has 10");
  refuses(OP_reshape, IN(ARRAY(f32, 4)), ATTR(.n = 1, .d = {-4}), 201, "a size cannot be negative: -4");
  refuses(OP_concat, IN(ARRAY(f32, 2, 3), ARRAY(f32, 2, 4)), ATTR(.axes = 1), 201,
          "concat along axis 0 needs equal sizes on the other axes: axis 1 is 3 and 4");
  refuses(OP_sum, IN(ARRAY(f32, 4, 3)), ATTR(.axes = 4), 204, "sum over axis 2 of f32[4, 3], an array of rank 2");
  refuses(OP_permute, IN(ARRAY(f32, 4, 3)), ATTR(.n = 2, .d = {1, 1}), 204,
          "the axes of an array of rank 2 must be named once each");
  refuses(OP_cumsum, IN(ARRAY(f32)), ATTR(.axes = 1), 205, "cumsum needs an array with at least one axis");
  refuses(OP_index, IN(ARRAY(f32, 4), ARRAY(i64, 2), ARRAY(i64, 2)), ATTR(.n = 1, .d = {2}), 205,
          "2 indices for f32[4], an array of rank 1");
  refuses(OP_concat, IN(ARRAY(f32, 4), ARRAY(f32, 4, 1)), ATTR(.axes = 1), 205,
          "concat needs arrays of one rank, not f32[4] and f32[4, 1]");
  refuses(OP_bitand, IN(ARRAY(bool, 4), ARRAY(f32, 4)), ATTR(0), 206,
          "& needs two bool or two integer operands, not bool[4] and f32[4]");
  refuses(OP_bitor, IN(ARRAY(bool, 4), weak(QN_i64)), ATTR(0), 206,
          "| needs two bool or two integer operands, not bool[4] and int");
  refuses(OP_any, IN(ARRAY(f32, 4)), ATTR(.axes = 1), 206, "any needs bools, not f32[4]; write any(x != 0)");
  refuses(OP_where, IN(ARRAY(i64, 4), ARRAY(f32, 4), ARRAY(f32, 4)), ATTR(0), 206,
          "where needs a bool condition, not i64[4]; write the test, for example x != 0");
  refuses(OP_scatter, IN(ARRAY(i64, 4), ARRAY(i64, 2), ARRAY(f32, 2)), ATTR(.n = 1, .d = {1}), 206,
          "an indexed assignment cannot store f32 in an array of i64; convert one of them first");
  refuses(OP_slice_put, IN(ARRAY(i64, 4), weak(QN_f64)), ATTR(.n = 3, .d = {0, 4, 1}), 206,
          "an indexed assignment cannot store float in an array of i64; convert one of them first");
  refuses(OP_index, IN(ARRAY(f32, 4), ARRAY(f32, 2)), ATTR(.n = 1, .d = {1}), 304,
          "indices must be integers, not f32[2]");
  refuses(OP_max, IN(ARRAY(f32, 2, 0)), ATTR(.axes = 2), 315, "max of no elements: axis 1 of f32[2, 0] is empty");
  refuses(OP_add, IN(ARRAY(f32, 1 << 25, 1), ARRAY(f32, 1 << 25)), ATTR(0), 605,
          "an array of shape [33554432, 33554432] would have more than 2**48 elements");
  refuses(OP_broadcast, IN(ARRAY(f32)), ATTR(.n = 3, .d = {(qn_dim)1 << 40, (qn_dim)1 << 40, 1}), 605,
          "an array of shape [1099511627776, 1099511627776, 1] would have more than 2**48 elements");
}
END_TEST

/* Builds, differentiates and simplifies a graph in a VM whose n-th allocation fails; true if none did. */
static bool build_with_failure(qn_vm *vm, uint64_t n) {
  mem_fail_at(vm, n);
  graph *g = graph_new(vm);
  bool ok = false;
  if (g) {
    qn_dim a = dim_symbol(&g->dims, DIM_FROM_INPUT, 0, 0, 4, "a");
    uint32_t x = graph_input(g, (graph_type){.dtype = QN_f32, .rank = 2, .shape = {a, 3}}, 0);
    uint32_t w = graph_input(g, ARRAY(f32, 3, 5), 0);
    uint32_t h = graph_op(g, OP_dot, (uint32_t[]){x, w}, 2, NULL, graph_site_add(g, (span){1, 2, 3}, 0, "loss", false));
    for (int i = 0; i < 40; i++) h = graph_op(g, i % 2 ? OP_tanh : OP_exp, &h, 1, NULL, 0);
    uint32_t root = graph_op(g, OP_sum, &h, 1, &(op_attr){.axes = 3}, 0), grads[2], culprit, wrt[] = {x, w};
    op_refusal why;
    ok = root && graph_grad(g, 1, root, 0, wrt, 2, grads, &culprit, &why) && graph_output(g, grads[0]) &&
         graph_output(g, grads[1]);
    graph *s = ok ? graph_simplify(g, NULL) : NULL;
    ok = s != NULL;
    graph_free(s);
    graph_free(g);
  }
  mem_fail_at(vm, 0);
  ck_assert(ok || error_pending(vm));
  error_clear(vm);
  return ok;
}

START_TEST(every_allocation_can_fail) {
  qn_vm *vm = vm_open(NULL);
  ck_assert_ptr_nonnull(vm);
  size_t live = mem_stats_of(vm)->live;
  uint64_t n = 1;
  while (!build_with_failure(vm, n)) n++;
  ck_assert_uint_gt(n, 5);
  ck_assert_uint_eq(mem_stats_of(vm)->live, live);
  vm_close(vm);
}
END_TEST

int main(void) {
  Suite *s = suite_create("graph infer");
  struct {
    TCase *t;
    const TTest *f;
  } cases[] = {
      {tcase_create("dtypes_follow_the_promotion_table"), dtypes_follow_the_promotion_table},
      {tcase_create("dtypes_of_one_operand"), dtypes_of_one_operand},
      {tcase_create("graph_op_makes_operands_strict"), graph_op_makes_operands_strict},
      {tcase_create("shapes_of_results"), shapes_of_results},
      {tcase_create("refusals_say_what_disagrees"), refusals_say_what_disagrees},
      {tcase_create("every_allocation_can_fail"), every_allocation_can_fail},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tcase_set_timeout(cases[i].t, 120);
    tcase_add_test(cases[i].t, cases[i].f);
    suite_add_tcase(s, cases[i].t);
  }
  SRunner *runner = srunner_create(s);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
