/* Golden texts: for every graph tests/golden/NAME.graph, what its kernels compute (NAME.k) and in what order (NAME.l).
 *
 * Each text also parses back to itself, and every program verifies. QUERN_BLESS=1 in the environment writes the files anew instead
 * of comparing: look at the difference before committing it. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/kernel/fuse.h"
#include "jit/kernel/schedule.h"
#include "jit/kernel/sink.h"
#include "lang/vm.h"
#include "tests/unit/kernel_text.h"

static char *read_file(const char *name, const char *end) {
  char path[600];
  snprintf(path, sizeof path, "%s/golden/%s%s", TESTS_DIR, name, end);
  FILE *f = fopen(path, "rb");
  if (!f) return NULL;
  char *text = calloc(1, 1 << 20);
  size_t n = fread(text, 1, (1 << 20) - 1, f);
  text[n] = 0;
  fclose(f);
  return text;
}

static char *taken(text_buf *t) {
  text_add(t, "", 1);
  ck_assert(!t->failed);
  return t->text;
}

/* Compares with the file or, when blessing, writes it. */
static void golden(const char *name, const char *end, const char *text) {
  const char *bless = getenv("QUERN_BLESS");
  if (bless && *bless) {
    char path[600];
    snprintf(path, sizeof path, "%s/golden/%s%s", TESTS_DIR, name, end);
    FILE *f = fopen(path, "wb");
    ck_assert_msg(f != NULL, "cannot write %s", path);
    fputs(text, f);
    fclose(f);
    return;
  }
  char *expected = read_file(name, end);
  ck_assert_msg(expected != NULL, "%s%s is missing: run with QUERN_BLESS=1", name, end);
  if (strcmp(expected, text) != 0) {
    size_t i = 0, line = 1, start = 0;
    for (; expected[i] && expected[i] == text[i]; i++)
      if (text[i] == '\n') {
        line++;
        start = i + 1;
      }
    ck_abort_msg("%s%s differs in line %zu:\n  is     %.*s\n  should %.*s", name, end, line,
                 (int)strcspn(text + start, "\n"), text + start, (int)strcspn(expected + start, "\n"),
                 expected + start);
  }
  free(expected);
}

static void k_round_trip(const k_kernel *k) {
  char why[300] = "";
  text_buf first = {0}, second = {0};
  k_print(k, &first);
  k_kernel *again = k_parse(taken(&first), why, sizeof why);
  ck_assert_msg(again != NULL, "%s\n%s", why, first.text);
  k_print(again, &second);
  ck_assert_str_eq(taken(&second), first.text);
  k_free(again);
  text_free(&first);
  text_free(&second);
}

static void l_round_trip(const l_program *p) {
  char why[300] = "";
  text_buf first = {0}, second = {0};
  l_print(p, &first);
  l_program *again = l_parse(taken(&first), why, sizeof why);
  ck_assert_msg(again != NULL, "%s\n%s", why, first.text);
  ck_assert_uint_eq(l_hash(again), l_hash(p));
  l_print(again, &second);
  ck_assert_str_eq(taken(&second), first.text);
  l_free(again);
  text_free(&first);
  text_free(&second);
}

/* The kernel of a loop. */
static k_kernel *lower_loop(fusion *f, uint32_t node, const char **why) {
  uint32_t *proj = calloc(graph_nresults(&f->g->nodes[node]), sizeof *proj);
  for (uint32_t x = node + 1; x < f->g->n; x++)
    if (f->g->nodes[x].kind == NODE_PROJ && f->g->nodes[x].in[0] == node && f->group_of[x])
      proj[f->g->nodes[x].payload.index] = x;
  k_kernel *k = sink(&(sink_request){.g = f->g, .node = node, .proj = proj}, why);
  free(proj);
  return k;
}

/* For GPUs only the order is another: NAME.gpu.l. */
static void check_graph_on(const char *name, schedule_target target) {
  static const int64_t tune[] = {
#define TUNABLE(symbol, name, def, min, max, meaning) def,
#include "lang/tunables.def"
#undef TUNABLE
  };
  char why_text[300] = "";
  const char *why = NULL;
  char *source = read_file(name, ".graph");
  ck_assert_msg(source != NULL, "no %s.graph", name);
  graph *g = graph_parse(source, why_text, sizeof why_text);
  ck_assert_msg(g != NULL, "%s: %s", name, why_text);
  ck_assert_msg(graph_verify(g, why_text, sizeof why_text), "%s: %s", name, why_text);
  fusion f;
  uint8_t *awkward = calloc(g->n, 1);
  alike memo = {0};
  ck_assert_msg(fuse(g, TARGET_CPU, tune, FUSE_ALL, awkward, NULL, NULL, &memo, NULL, &f, &why), "%s: %s", name, why);
  alike_free(&memo);
  text_buf k_text = {0}, l_text = {0};
  for (uint32_t i = 0; i < f.n; i++) {
    if (f.groups[i].kind != FUSE_KERNEL && f.groups[i].kind != FUSE_REGIONS) continue;
    k_kernel *k =
        f.groups[i].kind == FUSE_KERNEL ? fuse_lower(&f, i, &why) : lower_loop(&f, f.groups[i].nodes[0], &why);
    ck_assert_msg(k != NULL, "%s: %s", name, why);
    ck_assert_msg(k_verify(k, why_text, sizeof why_text), "%s: %s", name, why_text);
    schedule_result s;
    ck_assert_msg(schedule(k, target, &(schedule_how){.grain = tune[TUNE_par_grain]}, &s, &why), "%s: %s", name, why);
    ck_assert_msg(l_verify(s.program, why_text, sizeof why_text), "%s: %s", name, why_text);
    k_print(k, &k_text);
    l_print(s.program, &l_text);
    k_round_trip(k);
    l_round_trip(s.program);
    l_free(s.program);
    k_free(k);
  }
  golden(name, ".k", taken(&k_text));
  golden(name, target == TARGET_GPU ? ".gpu.l" : ".l", taken(&l_text));
  text_free(&k_text);
  text_free(&l_text);
  fusion_free(&f);
  graph_free(g);
  free(awkward);
  free(source);
}

static void check_graph(const char *name) { check_graph_on(name, TARGET_CPU); }

#define GOLDEN(name)                                                                                                   \
  START_TEST(test_##name) { check_graph(#name); }                                                                      \
  END_TEST
GOLDEN(softmax)
GOLDEN(long_softmax)
GOLDEN(layer_norm)
GOLDEN(layer_norm_grad)
GOLDEN(column_and_full_sum)
START_TEST(test_column_and_full_sum_gpu) { check_graph_on("column_and_full_sum", TARGET_GPU); }
END_TEST
GOLDEN(transpose)
GOLDEN(matmul_gelu)
GOLDEN(convolution)
GOLDEN(convolution_steps)
GOLDEN(stencil)
GOLDEN(gather)
GOLDEN(scatter)
GOLDEN(tinyops)
GOLDEN(masked_sum)
GOLDEN(cross_entropy)
GOLDEN(cumsum)
GOLDEN(half_precision)
GOLDEN(random_normal)
GOLDEN(pairs)
GOLDEN(long_dot)
GOLDEN(scalar_loop)
GOLDEN(elementwise_loop)

static void add(Suite *s, TCase *t, const TTest *test) {
  tcase_set_timeout(t, 60);
  tcase_add_test(t, test);
  suite_add_tcase(s, t);
}

int main(void) {
  Suite *s = suite_create("kernel_golden");
  add(s, tcase_create("softmax"), test_softmax);
  add(s, tcase_create("long_softmax"), test_long_softmax);
  add(s, tcase_create("layer_norm"), test_layer_norm);
  add(s, tcase_create("layer_norm_grad"), test_layer_norm_grad);
  add(s, tcase_create("column_and_full_sum"), test_column_and_full_sum);
  add(s, tcase_create("column_and_full_sum_gpu"), test_column_and_full_sum_gpu);
  add(s, tcase_create("transpose"), test_transpose);
  add(s, tcase_create("matmul_gelu"), test_matmul_gelu);
  add(s, tcase_create("convolution"), test_convolution);
  add(s, tcase_create("convolution_steps"), test_convolution_steps);
  add(s, tcase_create("stencil"), test_stencil);
  add(s, tcase_create("gather"), test_gather);
  add(s, tcase_create("scatter"), test_scatter);
  add(s, tcase_create("tinyops"), test_tinyops);
  add(s, tcase_create("masked_sum"), test_masked_sum);
  add(s, tcase_create("cross_entropy"), test_cross_entropy);
  add(s, tcase_create("cumsum"), test_cumsum);
  add(s, tcase_create("half_precision"), test_half_precision);
  add(s, tcase_create("random_normal"), test_random_normal);
  add(s, tcase_create("pairs"), test_pairs);
  add(s, tcase_create("long_dot"), test_long_dot);
  add(s, tcase_create("scalar_loop"), test_scalar_loop);
  add(s, tcase_create("elementwise_loop"), test_elementwise_loop);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_ENV);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed != 0;
}
