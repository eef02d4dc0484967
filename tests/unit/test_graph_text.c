/* Text form and verifier: what prints reads back as the identical graph; a graph that was tampered with is refused. */
#include <check.h>
#include <stdlib.h>

#include "graph_random.h"

static char *printed(const graph *g) {
  text_buf t = {0};
  graph_print(g, &t);
  text_add(&t, "", 1);
  ck_assert(!t.failed);
  char *s = strdup(t.text);
  text_free(&t);
  return s;
}

static void check_round_trip(const graph *g, uint64_t seed) {
  char why[256] = "";
  ck_assert_msg(graph_verify(g, why, sizeof why), "seed %llu: %s\n%s", (unsigned long long)seed, why, printed(g));
  char *text = printed(g);
  graph *back = graph_parse(text, why, sizeof why);
  ck_assert_msg(back != NULL, "seed %llu: %s\n%s", (unsigned long long)seed, why, text);
  char *again = printed(back);
  ck_assert_str_eq(text, again);
  ck_assert_uint_eq(graph_hash(g), graph_hash(back));
  free(text);
  free(again);
  graph_free(back);
}

START_TEST(random_graphs_print_and_parse_back) {
  for (uint64_t seed = 1; seed <= 600; seed++) {
    random_options o = {.symbolic = seed % 2, .nodes = 25};
    graph *g = random_graph(seed, &o);
    ck_assert(!g->failed);
    check_round_trip(g, seed);
    graph *copy = graph_copy(g);
    ck_assert_ptr_nonnull(copy);
    ck_assert_uint_eq(graph_hash(g), graph_hash(copy));
    check_round_trip(copy, seed);
    graph_dce(copy);
    check_round_trip(copy, seed);
    graph_free(copy);
    graph_free(g);
  }
}
END_TEST

START_TEST(a_graph_reads_as_documented) {
  const char *text = "dim n = input 0 axis 0 hint 32\n"
                     "dim d1 = node %5 axis 0 hint 9 name \"n\"\n"
                     "fact n != 1\n"
                     "site 1 = source 1 12..17 in \"loss\"\n"
                     "site 2 = source 1 40..52 under 1\n"
                     "graph(%1: f32[n, 64], %2: weak f64 @1) {\n"
                     "  %3 = exp %1 : f32[n, 64] @2\n"
                     "  %4 = sum %3 axes=[1] keepdims : f32[n, 1]\n"
                     "  %5 = slice %4 slice=[n - 1:n:-1, 0:1:1] : f32[n, 1]\n"
                     "  %6 = const [1.5, bits(7f800001), -0.0, inf, nan, 1e-45] : f32[6]\n"
                     "  %7 = const true : weak bool\n"
                     "  return %4, %5\n"
                     "}\n";
  char why[256] = "";
  graph *g = graph_parse(text, why, sizeof why);
  ck_assert_msg(g != NULL, "%s", why);
  char *back = printed(g);
  ck_assert_str_eq(text, back);
  free(back);
  graph_free(g);
}
END_TEST

START_TEST(regions_print_and_parse_back) {
  const char *text = "graph(%1: weak bool, %2: f32[3]) {\n"
                     "  %3 = if %1, %2 : bool[] {\n"
                     "    graph(%1: f32[3]) {\n"
                     "      %2 = exp %1 : f32[3]\n"
                     "      return %2\n"
                     "    }\n"
                     "  } {\n"
                     "    graph(%1: f32[3]) {\n"
                     "      return %1\n"
                     "    }\n"
                     "  }\n"
                     "  %4 = proj %3 number=0 : f32[3]\n"
                     "  %5 = tap %4 number=2 : bool[]\n"
                     "  return %4\n"
                     "}\n";
  char why[256] = "";
  graph *g = graph_parse(text, why, sizeof why);
  ck_assert_msg(g != NULL, "%s", why);
  char *back = printed(g);
  ck_assert_str_eq(text, back);
  graph *s = graph_simplify(g, NULL);
  char *same = printed(s);
  ck_assert_str_eq(text, same);
  free(back);
  free(same);
  graph_free(s);
  graph_free(g);
}
END_TEST

START_TEST(bad_text_is_refused_with_a_line) {
  static const struct {
    const char *text, *why;
  } bad[] = {
      {"", "line 1: expected graph"},
      {"graph(%1: f32[3]) {\n %2 = exp %2 : f32[3]\n return %2 }", "line 2: %2 is not defined yet"},
      {"graph(%1: f32[3]) {\n %3 = exp %1 : f32[3]\n return %3 }", "line 2: expected %2: nodes are numbered in order"},
      {"graph(%1: f32[3]) {\n %2 = nope %1 : f32[3]\n return %2 }", "line 2: unknown op nope"},
      {"graph(%1: f32[3]) {\n %2 = exp %1 : f32[4]\n return %2 }", "%2: exp has another type than its operands give"},
      {"graph(%1: f32[3]) {\n %2 = add %1, %1 : f32[3] @7\n return %2 }", "%2: unknown site"},
      {"graph(%1: i64[3], %2: f32[3]) {\n %3 = add %1, %2 : f32[3]\n return %3 }",
       "%3: operand 0 of add is not strict"},
      {"graph(%1: f32[n]) { return %1 }", "line 1: unknown dim n"},
      {"graph(%1: f32[3]) { %2 = const [1.0, 2.0] : f32[3] return %2 }", "line 1: expected ,"},
      {"graph(%1: f32[3]) { %2 = const [1.0, 2.0] : f32[1000000000] return %2 }",
       "line 1: fewer elements than the type says"},
      {"graph(%1: f32[3]) { %2 = const 300 : u8[] return %2 }", "line 1: number out of range"},
      {"graph(%9: f32[3]) { return }", "line 1: input %9 has no place among the nodes"},
      {"graph() { return } x", "line 1: expected the end of the text"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char why[256] = "";
    graph *g = graph_parse(bad[i].text, why, sizeof why);
    ck_assert_ptr_null(g);
    ck_assert_str_eq(why, bad[i].why);
  }
}
END_TEST

START_TEST(damaged_text_never_crashes) {
  rng r = {42};
  for (uint64_t seed = 1; seed <= 60; seed++) {
    random_options o = {.symbolic = seed % 2, .nodes = 12};
    graph *g = random_graph(seed, &o);
    char *text = printed(g), why[256];
    size_t len = strlen(text);
    for (int k = 0; k < 120; k++) {
      char *copy = strdup(text);
      int hits = 1 + rng_below(&r, 3);
      for (int h = 0; h < hits; h++) {
        static const char marks[] = "%0123456789[](){}:,=@ndxf-*/ \n";
        copy[rng_next(&r) % len] = marks[rng_below(&r, sizeof marks - 1)];
      }
      if (rng_below(&r, 8) == 0) copy[rng_next(&r) % len] = 0;
      graph *back = graph_parse(copy, why, sizeof why);
      if (back) check_round_trip(back, seed);
      graph_free(back);
      free(copy);
    }
    free(text);
    graph_free(g);
  }
}
END_TEST

/* Changes something of a node that matters; returns whether it did. */
static bool mutate(rng *r, graph *g, uint32_t i) {
  graph_node *n = &g->nodes[i];
  uint32_t *in = (uint32_t *)n->in;
  switch (rng_below(r, 7)) {
  case 0:
    if (!n->nin) return false;
    in[rng_below(r, n->nin)] = i + (uint32_t)rng_below(r, 3);
    return true;
  case 1:
    if (n->kind != NODE_OP || n->op == OP_cast || n->op == OP_fit) return false;
    n->type.dtype = (uint8_t)((n->type.dtype + 1) % DTYPE_PUBLIC);
    n->type.weak = false;
    return true;
  case 2:
    if (n->kind != NODE_OP || n->type.rank == 8) return false;
    n->type.shape[n->type.rank++] = 7;
    return true;
  case 3: n->site = g->nsites + 3; return true;
  case 4: n->type.shape[0] = ~(qn_dim)(g->dims.n + 5); return n->type.rank > 0;
  case 5: n->kind = 77; return true;
  default:
    if (n->kind != NODE_OP || op_rows[n->op].arity < 0) return false;
    n->nin++;
    return n->nin > 0;
  }
}

START_TEST(verifier_rejects_mutated_graphs) {
  rng r = {7};
  int rejected = 0;
  for (uint64_t seed = 1; seed <= 400; seed++) {
    random_options o = {.symbolic = seed % 2, .nodes = 10};
    graph *g = random_graph(seed, &o);
    uint32_t at = 1 + (uint32_t)rng_below(&r, (int)g->n - 1);
    char why[256] = "";
    graph_node before = g->nodes[at];
    if (mutate(&r, g, at)) {
      ck_assert_msg(!graph_verify(g, why, sizeof why), "seed %llu: a change of node %u was not seen",
                    (unsigned long long)seed, at);
      ck_assert_int_gt((int)strlen(why), 0);
      rejected++;
    }
    g->nodes[at].kind = before.kind;
    graph_free(g);
  }
  ck_assert_int_gt(rejected, 100);
}
END_TEST

int main(void) {
  Suite *s = suite_create("graph text");
  struct {
    TCase *t;
    const TTest *f;
  } cases[] = {
      {tcase_create("random_graphs_print_and_parse_back"), random_graphs_print_and_parse_back},
      {tcase_create("a_graph_reads_as_documented"), a_graph_reads_as_documented},
      {tcase_create("regions_print_and_parse_back"), regions_print_and_parse_back},
      {tcase_create("bad_text_is_refused_with_a_line"), bad_text_is_refused_with_a_line},
      {tcase_create("damaged_text_never_crashes"), damaged_text_never_crashes},
      {tcase_create("verifier_rejects_mutated_graphs"), verifier_rejects_mutated_graphs},
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
