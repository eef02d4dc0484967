/* Simplification keeps every bit: random graphs are evaluated before and after. And it does what the rules say. */
#include <check.h>
#include <stdlib.h>

#include "graph_eval.h"
#include "graph_random.h"
#include "seeds.h"

static char *printed(const graph *g) {
  text_buf t = {0};
  graph_print(g, &t);
  text_add(&t, "", 1);
  char *s = strdup(t.text);
  text_free(&t);
  return s;
}

/* The same data for the inputs of two graphs that have the same inputs. */
static void fill(eval *a, eval *b, uint64_t seed, bool wild) {
  rng r = {seed};
  double data[256];
  for (uint32_t k = 0; k < a->g->ninputs; k++) {
    qn_dtype d = (qn_dtype)a->g->nodes[a->g->inputs[k]].type.dtype;
    for (int i = 0; i < 256; i++) data[i] = random_datum(&r, d, wild);
    eval_input(a, k, data);
    eval_input(b, k, data);
  }
}

START_TEST(random_graphs_keep_their_bits) {
  int compared = 0, raised = 0, shrunk = 0;
  seeds which = seeds_of(1, 1500);
  for (uint64_t seed = which.first; seed < which.end; seed++) {
    random_options o = {.symbolic = seed % 3 == 0, .nodes = 30};
    graph *g = random_graph(seed, &o);
    char why[256] = "";
    ck_assert_msg(graph_verify(g, why, sizeof why), "seed %llu: %s", (unsigned long long)seed, why);
    graph *s = graph_simplify(g, NULL);
    ck_assert_ptr_nonnull(s);
    ck_assert_msg(graph_verify(s, why, sizeof why), "seed %llu: %s\n%s", (unsigned long long)seed, why, printed(s));
    ck_assert_uint_le(s->n, g->n + 8);
    shrunk += s->n < g->n;
    for (int round = 0; round < 3; round++) {
      eval a, b;
      eval_init(&a, g, NULL);
      eval_init(&b, s, NULL);
      fill(&a, &b, seed * 3 + (uint64_t)round, round > 0);
      bool x = eval_run(&a), y = eval_run(&b);
      if (a.misfit || b.misfit) {
        eval_free(&a);
        eval_free(&b);
        continue;
      }
      ck_assert_msg(x == y, "seed %llu: %s\n%s\n%s", (unsigned long long)seed, x ? "raises now" : "raises no more",
                    printed(g), printed(s));
      raised += !x;
      for (uint32_t k = 0; x && k < g->noutputs; k++, compared++)
        ck_assert_msg(eval_same(&a.v[g->outputs[k]], &b.v[s->outputs[k]]),
                      "seed %llu: output %u (%%%u, %%%u) differs\n%s\n%s", (unsigned long long)seed, k, g->outputs[k],
                      s->outputs[k], printed(g), printed(s));
      eval_free(&a);
      eval_free(&b);
    }
    graph *again = graph_simplify(s, NULL);
    ck_assert_ptr_nonnull(again);
    ck_assert_uint_le(again->n, s->n);
    graph_free(again);
    graph_free(s);
    graph_free(g);
  }
  if (!which.own) return;
  ck_assert_int_gt(compared, 3000);
  ck_assert_int_gt(raised, 100);
  ck_assert_int_gt(shrunk, 1000);
}
END_TEST

static void check_simplifies(const char *from, const char *to) {
  char why[256] = "";
  graph *g = graph_parse(from, why, sizeof why);
  ck_assert_msg(g != NULL, "%s\n%s", why, from);
  graph *s = graph_simplify(g, NULL);
  char *text = printed(s);
  ck_assert_str_eq(text, to);
  free(text);
  graph_free(g);
  graph_free(s);
}

START_TEST(rules_do_what_they_say) {
  /* identities, x + 0.0 only where the sign of zero is kept */
  check_simplifies("graph(%1: f32[3]) {\n %2 = const 1.0 : f32[]\n %3 = mul %1, %2 : f32[3]\n %4 = const -0.0 : f32[]\n"
                   "%5 = add %3, %4 : f32[3]\n %6 = const 0.0 : f32[]\n %7 = add %5, %6 : f32[3]\n return %7 }",
                   "graph(%1: f32[3]) {\n  %2 = const 0.0 : f32[]\n  %3 = add %1, %2 : f32[3]\n  return %3\n}\n");
  check_simplifies("fast_math graph(%1: f32[3]) {\n %2 = const 0.0 : f32[]\n %3 = add %1, %2 : f32[3]\n return %3 }",
                   "fast_math\ngraph(%1: f32[3]) {\n  return %1\n}\n");
  /* a quotient by a power of two, and by another number */
  check_simplifies(
      "graph(%1: f32[3]) {\n %2 = const 4.0 : f32[]\n %3 = div %1, %2 : f32[3]\n %4 = const 3.0 : f32[]\n"
      "%5 = div %3, %4 : f32[3]\n return %5 }",
      "graph(%1: f32[3]) {\n  %2 = const 0.25 : f32[]\n  %3 = mul %1, %2 : f32[3]\n  %4 = const 3.0 : f32[]\n"
      "  %5 = div %3, %4 : f32[3]\n  return %5\n}\n");
  /* powers that are products by definition; a half's cube would round twice */
  check_simplifies("graph(%1: f32[3]) {\n %2 = const 2.0 : f32[]\n %3 = pow %1, %2 : f32[3]\n return %3 }",
                   "graph(%1: f32[3]) {\n  %2 = mul %1, %1 : f32[3]\n  return %2\n}\n");
  check_simplifies("graph(%1: f32[3]) {\n %2 = const -1.0 : f32[]\n %3 = pow %1, %2 : f32[3]\n return %3 }",
                   "graph(%1: f32[3]) {\n  %2 = const 1.0 : f32[]\n  %3 = div %2, %1 : f32[3]\n  return %3\n}\n");
  check_simplifies("graph(%1: f16[3]) {\n %2 = const 3.0 : f16[]\n %3 = pow %1, %2 : f16[3]\n return %3 }",
                   "graph(%1: f16[3]) {\n  %2 = const 3.0 : f16[]\n  %3 = pow %1, %2 : f16[3]\n  return %3\n}\n");
  /* the sign of a number whose absolute value is taken; numbers without a sign wrap */
  check_simplifies(
      "graph(%1: i8[3], %2: u8[3]) {\n %3 = neg %1 : i8[3]\n %4 = abs %3 : i8[3]\n %5 = neg %2 : u8[3]\n"
      "%6 = abs %5 : u8[3]\n return %4, %6 }",
      "graph(%1: i8[3], %2: u8[3]) {\n  %3 = abs %1 : i8[3]\n  %4 = neg %2 : u8[3]\n  %5 = abs %4 : u8[3]\n"
      "  return %3, %5\n}\n");
  /* transposes, and common subexpressions with operands in any order */
  check_simplifies(
      "graph(%1: f32[2, 3], %2: f32[2, 3]) {\n %3 = permute %1 order=[1, 0] : f32[3, 2]\n"
      "%4 = permute %3 order=[1, 0] : f32[2, 3]\n %5 = add %4, %2 : f32[2, 3]\n %6 = add %2, %1 : f32[2, 3]\n"
      "%7 = mul %5, %6 : f32[2, 3]\n return %7 }",
      "graph(%1: f32[2, 3], %2: f32[2, 3]) {\n  %3 = add %1, %2 : f32[2, 3]\n  %4 = mul %3, %3 : f32[2, 3]\n"
      "  return %4\n}\n");
  /* explicit broadcasts */
  check_simplifies(
      "graph(%1: f32[3], %2: f32[2, 3]) {\n %3 = reshape %1 shape=[1, 3] : f32[1, 3]\n"
      "%4 = broadcast %3 shape=[2, 3] : f32[2, 3]\n %5 = add %4, %2 : f32[2, 3]\n %6 = exp %4 : f32[2, 3]\n"
      "return %5, %6 }",
      "graph(%1: f32[3], %2: f32[2, 3]) {\n  %3 = add %1, %2 : f32[2, 3]\n  %4 = exp %1 : f32[3]\n"
      "  %5 = broadcast %4 shape=[2, 3] : f32[2, 3]\n  return %3, %5\n}\n");
  /* casts that lose nothing, and one that does */
  check_simplifies(
      "graph(%1: f16[3], %2: f64[3]) {\n %3 = cast %1 dtype=f32 : f32[3]\n %4 = cast %3 dtype=f16 : f16[3]\n"
      "%5 = cast %2 dtype=f32 : f32[3]\n %6 = cast %5 dtype=f64 : f64[3]\n return %4, %6 }",
      "graph(%1: f16[3], %2: f64[3]) {\n  %3 = cast %2 dtype=f32 : f32[3]\n  %4 = cast %3 dtype=f64 : f64[3]\n"
      "  return %1, %4\n}\n");
  /* a check that cannot fail lets its node go; one that can stays, read or not */
  check_simplifies(
      "graph(%1: i64[3]) {\n %2 = const 2 : i64[]\n %3 = floordiv %1, %2 : i64[3]\n %4 = mod %2, %1 : i64[3]\n"
      "return %1 }",
      "graph(%1: i64[3]) {\n  %2 = const 2 : i64[]\n  %3 = mod %2, %1 : i64[3]\n  return %1\n}\n");
  /* constants of scalars */
  check_simplifies(
      "graph(%1: f32[3]) {\n %2 = const 3 : weak i64\n %3 = const 4 : weak i64\n %4 = mul %2, %3 : weak i64\n"
      "%5 = cast %4 weak dtype=f64 : weak f64\n %6 = sqrt %5 : weak f64\n %7 = fit %6 dtype=f32 : f32[]\n"
      "%8 = mul %1, %7 : f32[3]\n return %8 }",
      "graph(%1: f32[3]) {\n  %2 = const 3.4641016 : f32[]\n  %3 = mul %1, %2 : f32[3]\n  return %3\n}\n");
  /* weak integers that overflow are left to raise */
  check_simplifies(
      "graph() {\n %1 = const 9223372036854775807 : weak i64\n %2 = add %1, %1 : weak i64\n return %2 }",
      "graph() {\n  %1 = const 9223372036854775807 : weak i64\n  %2 = add %1, %1 : weak i64\n  return %2\n}\n");
  /* slices of slices, with a reversal */
  check_simplifies(
      "graph(%1: f32[10]) {\n %2 = slice %1 slice=[9:10:-1] : f32[10]\n %3 = slice %2 slice=[2:3:2] : f32[3]\n"
      "return %3 }",
      "graph(%1: f32[10]) {\n  %2 = slice %1 slice=[7:3:-2] : f32[3]\n  return %2\n}\n");
  /* what was stored, behind what was stored apart from it; but not where that lies across it */
  check_simplifies("graph(%1: f32[10], %2: f32[3]) {\n %3 = slice_put %1, %2 slice=[2:3:1] : f32[10]\n"
                   " %4 = slice_put %3, %2 slice=[5:3:1] : f32[10]\n %5 = slice %4 slice=[2:3:1] : f32[3]\n %6 = neg "
                   "%5 : f32[3]\n return %6\n}\n",
                   "graph(%1: f32[10], %2: f32[3]) {\n  %3 = neg %2 : f32[3]\n  return %3\n}\n");
  check_simplifies(
      "graph(%1: f32[10], %2: f32[3]) {\n  %3 = slice_put %1, %2 slice=[2:3:1] : f32[10]\n"
      "  %4 = slice_put %3, %2 slice=[4:3:1] : f32[10]\n  %5 = slice %4 slice=[2:3:1] : f32[3]\n  return %5\n}\n",
      "graph(%1: f32[10], %2: f32[3]) {\n  %3 = slice_put %1, %2 slice=[2:3:1] : f32[10]\n"
      "  %4 = slice_put %3, %2 slice=[4:3:1] : f32[10]\n  %5 = slice %4 slice=[2:3:1] : f32[3]\n  return %5\n}\n");
  /* reductions over axes of one */
  check_simplifies(
      "graph(%1: f32[3, 1]) {\n %2 = sum %1 axes=[1] : f32[3]\n %3 = max %2 axes=[0] : f32[]\n return %3 }",
      "graph(%1: f32[3, 1]) {\n  %2 = reshape %1 shape=[3] : f32[3]\n  %3 = max %2 axes=[0] : f32[]\n  return %3\n}\n");
}
END_TEST

START_TEST(products_of_a_library_take_what_is_stored) {
  static const char *const texts[][2] = {{"graph(%1: f32[5, 4], %2: f32[5, 7]) {\n"
                                          "  %3 = permute %1 order=[1, 0] : f32[4, 5]\n"
                                          "  %4 = dot %3, %2 library x_across : f32[4, 7]\n"
                                          "  return %4\n}\n",
                                          "graph(%1: f32[5, 4], %2: f32[5, 7]) {\n"
                                          "  %3 = gemm %1, %2 x_across : f32[4, 7]\n"
                                          "  return %3\n}\n"},
                                         {"graph(%1: f32[2, 1, 4, 5], %2: f32[3, 7, 5], %3: f32[5]) {\n"
                                          "  %4 = permute %2 order=[0, 2, 1] : f32[3, 5, 7]\n"
                                          "  %5 = dot %1, %4 library y_across : f32[2, 3, 4, 7]\n"
                                          "  %6 = dot %1, %3 library : f32[2, 1, 4]\n"
                                          "  return %5, %6\n}\n",
                                          "graph(%1: f32[2, 1, 4, 5], %2: f32[3, 7, 5], %3: f32[5]) {\n"
                                          "  %4 = permute %2 order=[0, 2, 1] : f32[3, 5, 7]\n"
                                          "  %5 = broadcast %1 shape=[2, 3, 4, 5] : f32[2, 3, 4, 5]\n"
                                          "  %6 = broadcast %4 shape=[2, 3, 5, 7] : f32[2, 3, 5, 7]\n"
                                          "  %7 = permute %6 order=[0, 1, 3, 2] : f32[2, 3, 7, 5]\n"
                                          "  %8 = gemm %5, %7 y_across : f32[2, 3, 4, 7]\n"
                                          "  %9 = gemm %1, %3 : f32[2, 1, 4]\n"
                                          "  return %8, %9\n}\n"}};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    char why[256] = "";
    graph *g = graph_parse(texts[i][0], why, sizeof why);
    ck_assert_msg(g && graph_verify(g, why, sizeof why), "%s", why);
    char *same = printed(g);
    ck_assert_str_eq(same, texts[i][0]);
    graph *s = graph_simplify(g, NULL);
    ck_assert_msg(s && graph_verify(s, why, sizeof why), "%s", why);
    char *text = printed(s);
    ck_assert_str_eq(text, texts[i][1]);
    free(text);
    free(same);
    graph_free(s);
    graph_free(g);
  }
  static const char *const wrong[] = {
      "graph(%1: f32[5, 4]) {\n  %2 = exp %1 library : f32[5, 4]\n  return %2\n}\n",
      "graph(%1: f32[5, 4], %2: f32[4]) {\n  %3 = dot %1, %2 x_across : f32[5]\n  return %3\n}\n",
      "graph(%1: f32[5, 4], %2: f32[4]) {\n  %3 = dot %1, %2 library y_across : f32[5]\n  return %3\n}\n",
      "graph(%1: f32[5, 4], %2: f32[4]) {\n  %3 = gemm %1, %2 x_across : f32[5]\n  return %3\n}\n"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    char why[256] = "";
    graph *g = graph_parse(wrong[i], why, sizeof why);
    ck_assert_msg(!g || !graph_verify(g, why, sizeof why), "%s", wrong[i]);
    if (g) graph_free(g);
  }
}
END_TEST

START_TEST(dims_of_removed_nodes_stay_consistent) {
  char why[256] = "";
  graph *g =
      graph_parse("dim d0 = node %4 axis 0 hint 6\n"
                  "graph(%1: f32[2, 3], %2: bool[2, 3]) {\n %3 = exp %1 : f32[2, 3]\n %4 = compress %1, %2 : f32[d0]\n"
                  "%5 = exp %4 : f32[d0]\n return %5 }",
                  why, sizeof why);
  ck_assert_msg(g != NULL, "%s", why);
  graph *s = graph_simplify(g, NULL);
  char *text = printed(s);
  ck_assert_str_eq(text,
                   "dim d0 = node %3 axis 0 hint 6\n"
                   "graph(%1: f32[2, 3], %2: bool[2, 3]) {\n  %3 = compress %1, %2 : f32[d0]\n  %4 = exp %3 : f32[d0]\n"
                   "  return %4\n}\n");
  free(text);
  graph_free(s);
  graph_free(g);
}
END_TEST

int main(void) {
  Suite *s = suite_create("graph simplify");
  struct {
    TCase *t;
    const TTest *f;
  } cases[] = {
      {tcase_create("random_graphs_keep_their_bits"), random_graphs_keep_their_bits},
      {tcase_create("rules_do_what_they_say"), rules_do_what_they_say},
      {tcase_create("products_of_a_library_take_what_is_stored"), products_of_a_library_take_what_is_stored},
      {tcase_create("dims_of_removed_nodes_stay_consistent"), dims_of_removed_nodes_stay_consistent},
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
