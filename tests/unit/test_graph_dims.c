/* Symbolic sizes: normal form, folding, facts, evaluation, text. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "graph_random.h"
#include "jit/graph/dim_bounds.h"
#include "lang/mem.h"

static arena memory;
static dim_table t;
static qn_dim n, m, k;

static void setup(void) {
  arena_init(&memory, NULL);
  dim_table_init(&t, &memory);
  n = dim_symbol(&t, DIM_FROM_INPUT, 0, 0, 8, "n");
  m = dim_symbol(&t, DIM_FROM_INPUT, 0, 1, 5, "m");
  k = dim_symbol(&t, DIM_FROM_SCALAR, 1, 0, -3, NULL);
}
static void teardown(void) { arena_free(&memory); }

static const char *text(qn_dim d) {
  static char out[400];
  text_buf b = {0};
  dim_print(&t, d, &b);
  snprintf(out, sizeof out, "%.*s", (int)b.len, b.text);
  text_free(&b);
  return out;
}

static qn_dim make(dim_op op, qn_dim a, qn_dim b) { return dim_make(&t, op, a, b); }

START_TEST(equal_expressions_are_equal_numbers) {
  ck_assert_int_eq(dim_add(&t, n, m), dim_add(&t, m, n));
  ck_assert_int_eq(dim_sub(&t, dim_add(&t, n, m), m), n);
  ck_assert_int_eq(dim_add(&t, dim_mul(&t, 2, n), n), dim_mul(&t, n, 3));
  ck_assert_int_eq(dim_mul(&t, n, m), dim_mul(&t, m, n));
  ck_assert_int_eq(dim_mul(&t, dim_mul(&t, 2, n), dim_mul(&t, m, 3)), dim_mul(&t, 6, dim_mul(&t, m, n)));
  ck_assert_int_eq(dim_sub(&t, n, n), 0);
  ck_assert_int_eq(dim_mul(&t, n, 0), 0);
  ck_assert_int_eq(make(DIM_FLOORDIV, dim_mul(&t, n, 6), 3), dim_mul(&t, n, 2));
  ck_assert_int_eq(make(DIM_MOD, dim_add(&t, dim_mul(&t, n, 4), 7), 4), 3);
  ck_assert_int_eq(make(DIM_FLOORDIV, dim_add(&t, dim_mul(&t, n, 4), 7), 4), dim_add(&t, n, 1));
  ck_assert_int_eq(make(DIM_MIN, n, dim_add(&t, n, 1)), n);
  ck_assert_int_eq(make(DIM_MAX, n, 0), n);
  ck_assert_int_eq(make(DIM_MIN, make(DIM_MIN, n, 5), 7), make(DIM_MIN, 5, n));
  ck_assert_int_ne(make(DIM_MAX, k, 0), k); /* a host int may be negative */
  ck_assert_int_eq(dim_symbol(&t, DIM_FROM_INPUT, 0, 1, 99, NULL), m);
}
END_TEST

START_TEST(constants_fold_and_negative_ones_are_kept) {
  int64_t v;
  qn_dim minus2 = make(DIM_SUB, 3, 5);
  ck_assert_int_lt(minus2, 0);
  ck_assert(dim_is_const(&t, minus2, &v));
  ck_assert_int_eq(v, -2);
  ck_assert_int_eq(dim_add(&t, minus2, 7), 5);
  ck_assert_int_eq(dim_add(&t, dim_add(&t, n, minus2), 2), n);
  ck_assert_int_eq(make(DIM_FLOORDIV, dim_const(&t, -7), 2), dim_const(&t, -4));
  ck_assert_int_eq(make(DIM_MOD, dim_const(&t, -7), 2), 1);
  ck_assert_int_eq(make(DIM_FLOORDIV, 7, 0), 0);
  ck_assert_int_eq(make(DIM_FLOORDIV, n, dim_const(&t, -1)), make(DIM_SUB, 0, n));
  ck_assert_int_eq(make(DIM_FLOORDIV, make(DIM_SUB, 0, n), dim_const(&t, -2)), make(DIM_FLOORDIV, n, 2));
  ck_assert_int_eq(dim_mul(&t, (qn_dim)1 << 40, (qn_dim)1 << 40), INT64_MAX); /* saturates */
  ck_assert_int_eq(dim_make(NULL, DIM_SUB, 3, 5), -2);                        /* plain numbers */
}
END_TEST

START_TEST(text_is_what_people_write) {
  ck_assert_str_eq(text(dim_add(&t, dim_mul(&t, 2, n), 1)), "2*n + 1");
  ck_assert_str_eq(text(dim_sub(&t, dim_mul(&t, n, m), 3)), "n*m - 3");
  ck_assert_str_eq(text(make(DIM_FLOORDIV, dim_add(&t, n, 1), 2)), "(n + 1) // 2");
  ck_assert_str_eq(text(make(DIM_MIN, n, m)), "min(n, m)");
  ck_assert_str_eq(text(dim_sub(&t, 5, k)), "5 - d2");
  ck_assert_str_eq(text(dim_mul(&t, dim_add(&t, n, 1), m)), "m*(n + 1)");
  qn_dim other = dim_symbol(&t, DIM_FROM_INPUT, 3, 0, 8, "n");
  ck_assert_str_eq(text(dim_add(&t, other, n)), "n + d3");
}
END_TEST

START_TEST(questions_are_answered_by_hints_and_remembered) {
  ck_assert(!dim_is(&t, n, 1));
  ck_assert(!dim_equal(&t, n, m));
  ck_assert(!dim_equal(&t, m, n));
  ck_assert(dim_equal(&t, n, dim_add(&t, m, 3)));
  ck_assert_uint_eq(t.nfacts, 3);
  ck_assert(!dim_equal(&t, n, dim_add(&t, n, 1))); /* nothing to remember: it is so in every call */
  ck_assert(dim_equal(&t, n, n));
  ck_assert(!dim_equal(&t, 3, 4));
  ck_assert_uint_eq(t.nfacts, 3);
  int64_t symbols[16] = {[0] = 9, [1] = 6};
  uint32_t broken;
  ck_assert(dim_facts_hold(&t, symbols, NULL));
  symbols[1] = 7; /* n == m + 3 fails */
  ck_assert(!dim_facts_hold(&t, symbols, &broken));
  ck_assert_uint_eq(broken, 2);
}
END_TEST

/* A random expression and the value that plain arithmetic gives it. */
static qn_dim random_dim(rng *r, int depth, const int64_t *symbols, int64_t *value) {
  if (depth == 0 || rng_below(r, 4) == 0) {
    int which = rng_below(r, 5);
    if (which < 3) {
      qn_dim d = which == 0 ? n : which == 1 ? m : k;
      *value = symbols[~d];
      return d;
    }
    *value = rng_below(r, 6) - 1;
    return dim_const(&t, *value);
  }
  int64_t a, b;
  qn_dim x = random_dim(r, depth - 1, symbols, &a), y = random_dim(r, depth - 1, symbols, &b);
  dim_op op = (dim_op)(DIM_ADD + rng_below(r, 7));
  *value = dim_make(NULL, op, a, b);
  return dim_make(&t, op, x, y);
}

START_TEST(normal_forms_have_the_same_values) {
  rng r = {3};
  for (int i = 0; i < 3000; i++) {
    int64_t symbols[3] = {rng_below(&r, 6), rng_below(&r, 6), rng_below(&r, 9) - 4}, value;
    int64_t *all = calloc(100000, sizeof *all);
    memcpy(all, symbols, sizeof symbols);
    uint32_t facts = t.nfacts;
    qn_dim d = random_dim(&r, 5, symbols, &value);
    if (t.nfacts == facts) ck_assert_msg(dim_eval(&t, d, all) == value, "%s", text(d));
    uint64_t known[100000 / 64 + 1] = {0};
    for (uint32_t e = t.n > 64 ? t.n - 64 : 3; e < t.n; e++)
      if (t.exprs[e].op != DIM_SYMBOL)
        ck_assert_int_eq(dim_eval_once(&t, ~(qn_dim)e, all, known), dim_eval(&t, ~(qn_dim)e, all));
    free(all);
  }
  ck_assert(!memory.failed);
}
END_TEST

START_TEST(endless_expressions_are_specialised) {
  qn_dim d = n;
  for (int i = 0; i < 2000; i++)
    d = make(i % 2 ? DIM_MIN : DIM_MAX, make(DIM_FLOORDIV, d, m), dim_add(&t, d, dim_mul(&t, d, k)));
  ck_assert(t.nfacts > 0); /* values of the recorded call were relied on */
  int64_t *symbols = calloc(t.n, sizeof *symbols);
  symbols[0] = 8, symbols[1] = 5, symbols[2] = -3;
  ck_assert_int_eq(dim_eval(&t, d, symbols), dim_hint(&t, d));
  free(symbols);
  d = n;
  for (int i = 0; i < 100; i++) { /* a sum of many products stays as written */
    qn_dim s = dim_symbol(&t, DIM_FROM_INPUT, 10, (uint16_t)i, i, NULL);
    d = dim_add(&t, d, s);
  }
  ck_assert_int_eq(dim_hint(&t, d), 8 + 99 * 100 / 2);
  ck_assert_int_eq(t.cut, DIM_CUT); /* guards can ask for all of it */
}
END_TEST

/* Adds up 300 sizes of a source, as long as that holds for all calls if there is a count of those to be set. */
static void add_many(dim_source source, int *any) {
  qn_dim d = 0, sum;
  for (int i = 0; i < 300; i++) {
    qn_dim s = dim_symbol(&t, source, 10 + (uint32_t)i, 0, i, NULL);
    if (!any)
      d = dim_add(&t, d, s);
    else if (dim_add_any(&t, d, s, &sum))
      d = sum, *any = *any + 1;
  }
}

START_TEST(sizes_that_no_guard_knows_are_noted_where_they_get_too_long) {
  int any = 0;
  add_many(DIM_FROM_NODE, &any);
  ck_assert(any > 100 && any < 300 && t.cut == 0 && t.nfacts == 0);
  add_many(DIM_FROM_NODE, NULL);
  ck_assert_int_eq(t.cut, DIM_CUT | DIM_CUT_LATE);
  t.cut = 0;
  add_many(DIM_FROM_NUMBER, NULL);
  ck_assert_int_eq(t.cut, DIM_CUT | DIM_CUT_NUMBER);
  dim_table copy;
  ck_assert(dim_table_copy(&copy, &t, &memory) && copy.cut == t.cut);
}
END_TEST

START_TEST(rules_of_shape_take_symbols) {
  graph *g = graph_new(NULL);
  char why[256];
  qn_dim a = dim_symbol(&g->dims, DIM_FROM_INPUT, 0, 0, 4, "a"), b = dim_symbol(&g->dims, DIM_FROM_INPUT, 1, 0, 4, "b");
  qn_dim one = dim_symbol(&g->dims, DIM_FROM_INPUT, 2, 0, 1, "o");
  uint32_t x = graph_input(g, (graph_type){.dtype = QN_f32, .rank = 2, .shape = {a, 3}}, 0);
  uint32_t y = graph_input(g, (graph_type){.dtype = QN_f32, .rank = 2, .shape = {b, 1}}, 0);
  uint32_t z = graph_input(g, (graph_type){.dtype = QN_f32, .rank = 2, .shape = {one, 3}}, 0);
  const uint32_t xy[] = {x, y}, xz[] = {x, z}, xx[] = {x, x};
  uint32_t sum = graph_op(g, OP_add, xy, 2, NULL, 0); /* relies on a == b */
  ck_assert_int_eq(g->nodes[sum].type.shape[0], a);
  ck_assert_uint_eq(g->dims.nfacts, 1);
  uint32_t mul = graph_op(g, OP_mul, xz, 2, NULL, 0); /* relies on o == 1 */
  ck_assert_int_eq(g->nodes[mul].type.shape[0], a);
  ck_assert_uint_eq(g->dims.nfacts, 2);
  uint32_t both = graph_op(g, OP_concat, xx, 2, &(op_attr){.axes = 1}, 0);
  ck_assert_int_eq(g->nodes[both].type.shape[0], dim_mul(&g->dims, 2, a));
  uint32_t flat = graph_op(g, OP_reshape, &both, 1, &(op_attr){.n = 1, .d = {dim_mul(&g->dims, 6, a)}}, 0);
  uint32_t pad = graph_op(g, OP_pad, (uint32_t[]){flat, graph_const_scalar(g, QN_f64, true, 0, 0, 0)}, 2,
                          &(op_attr){.n = 3, .d = {a, 1, 1}}, 0); /* a + (6a + 6a - 1) + 1 */
  ck_assert_int_eq(g->nodes[pad].type.shape[0],
                   dim_add(&g->dims, dim_add(&g->dims, dim_mul(&g->dims, 7, a), 1),
                           dim_make(&g->dims, DIM_MAX, dim_sub(&g->dims, dim_mul(&g->dims, 6, a), 1), 0)));
  ck_assert_int_eq(dim_hint(&g->dims, g->nodes[pad].type.shape[0]), 4 + 24 + 23 + 1);
  ck_assert_uint_eq(g->dims.nfacts, 2);
  graph_output(g, pad);
  graph_output(g, sum);
  ck_assert_msg(graph_verify(g, why, sizeof why), "%s", why);
  ck_assert_uint_eq(g->dims.nfacts, 2);
  graph_free(g);
}
END_TEST

/* A proof with a size `n`, a number `turn` of a loop that goes from 0 to n, and a number inner of one that goes from 1 to `turn`. */
static dim_proof proof;
static qn_dim extent, turn, inner;

static void begin_proof(void) {
  dim_proof_init(&proof, &memory);
  extent = dim_symbol(&proof.t, DIM_FROM_INPUT, 0, 0, 8, "n");
  turn = dim_symbol(&proof.t, DIM_FROM_NODE, 1, 0, 0, NULL);
  inner = dim_symbol(&proof.t, DIM_FROM_NODE, 2, 0, 0, NULL);
  dim_proof_bound(&proof, extent, (dim_bound){BOUND_SIZE, true, 2, 0});
  dim_proof_bound(&proof, turn, (dim_bound){BOUND_ENDS, true, 0, dim_sub(&proof.t, extent, 1)});
  dim_proof_bound(&proof, inner, (dim_bound){BOUND_ENDS, true, 1, dim_sub(&proof.t, turn, 1)});
}

static qn_dim of(dim_op op, qn_dim a, qn_dim b) { return dim_make(&proof.t, op, a, b); }

START_TEST(numbers_of_loops_lie_within_their_ends) {
  begin_proof();
  qn_dim left = of(DIM_SUB, extent, turn), three = of(DIM_ADD, turn, 3);
  ck_assert(dim_proves(&proof, of(DIM_SUB, left, 1)));
  ck_assert(!dim_proves(&proof, of(DIM_SUB, left, 2)));
  ck_assert(dim_proves(&proof, of(DIM_SUB, of(DIM_SUB, turn, inner), 1)));
  ck_assert(dim_proves(&proof, of(DIM_SUB, of(DIM_MIN, three, extent), turn)));
  ck_assert(dim_proves(&proof, of(DIM_SUB, of(DIM_MUL, turn, turn), turn)) ==
            false); /* (it is so of ints, not of all between them) */
  ck_assert(dim_proves(&proof, of(DIM_MUL, of(DIM_SUB, left, 1), of(DIM_ADD, inner, 1))));
  qn_dim last = of(DIM_SUB, of(DIM_FLOORDIV, of(DIM_ADD, extent, 3), 4), 1);
  ck_assert(dim_proves(&proof, of(DIM_SUB, of(DIM_SUB, extent, of(DIM_MUL, last, 4)), 1)));
  ck_assert(dim_demands(&proof, of(DIM_SUB, left, 3)) == false); /* 8 - 7 is less */
  ck_assert(dim_demands(&proof, of(DIM_SUB, of(DIM_FLOORDIV, extent, 2), 3)));
  ck_assert_int_eq(proof.ndemands, 1);
}
END_TEST

static qn_dim random_size(rng *r, int depth) {
  static const uint8_t ops[] = {DIM_ADD, DIM_SUB, DIM_SUB, DIM_MUL, DIM_FLOORDIV, DIM_MOD, DIM_MIN, DIM_MAX};
  const qn_dim leaves[] = {extent, extent, turn, turn, inner, 1, 2, 3};
  dim_op op = (dim_op)ops[rng_below(r, 8)];
  if (!depth || rng_below(r, 4) == 0) return leaves[rng_below(r, 8)];
  qn_dim a = random_size(r, depth - 1);
  return of(op, a, op == DIM_FLOORDIV || op == DIM_MOD ? 1 + rng_below(r, 4) : random_size(r, depth - 1));
}

START_TEST(what_is_proved_holds_for_all_numbers) {
  rng r = {7};
  int proved = 0;
  for (int times = 0; times < 4000; times++) {
    begin_proof();
    qn_dim d = of(DIM_SUB, random_size(&r, 3), random_size(&r, 2));
    if (!dim_proves(&proof, d)) continue;
    proved++;
    int64_t values[64] = {0};
    for (int64_t x = 2; x < 10; x++)
      for (int64_t y = 0; y < x; y++)
        for (int64_t z = 1; z < y; z++) {
          values[~extent] = x;
          values[~turn] = y;
          values[~inner] = z;
          ck_assert_msg(dim_eval(&proof.t, d, values) >= 0, "n = %d, i = %d, j = %d", (int)x, (int)y, (int)z);
        }
  }
  ck_assert_int_gt(proved, 500);
}
END_TEST

int main(void) {
  Suite *s = suite_create("graph dims");
  struct {
    TCase *t;
    const TTest *f;
  } cases[] = {
      {tcase_create("equal_expressions_are_equal_numbers"), equal_expressions_are_equal_numbers},
      {tcase_create("constants_fold_and_negative_ones_are_kept"), constants_fold_and_negative_ones_are_kept},
      {tcase_create("text_is_what_people_write"), text_is_what_people_write},
      {tcase_create("questions_are_answered_by_hints_and_remembered"), questions_are_answered_by_hints_and_remembered},
      {tcase_create("normal_forms_have_the_same_values"), normal_forms_have_the_same_values},
      {tcase_create("endless_expressions_are_specialised"), endless_expressions_are_specialised},
      {tcase_create("sizes_that_no_guard_knows_are_noted_where_they_get_too_long"),
       sizes_that_no_guard_knows_are_noted_where_they_get_too_long},
      {tcase_create("rules_of_shape_take_symbols"), rules_of_shape_take_symbols},
      {tcase_create("numbers_of_loops_lie_within_their_ends"), numbers_of_loops_lie_within_their_ends},
      {tcase_create("what_is_proved_holds_for_all_numbers"), what_is_proved_holds_for_all_numbers},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tcase_add_checked_fixture(cases[i].t, setup, teardown);
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
