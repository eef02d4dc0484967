/* Programs over blocks on the block VM and as C give the bits of the reference evaluator (l_blocks_case.h): the golden ones with several
 * sizes, and random ones. QN_TEST_CC says which compiler, QN_TEST_FIRST and QN_TEST_COUNT which programs. */
#include "tests/unit/c_unit.h"
#include "tests/unit/l_blocks_case.h"
#include "tests/unit/seeds.h"

enum { BATCH = 32 };

/* On the block VM, with blocks of some sizes, and, with `compiled`, as C. */
static void run_all(l_case *cases, uint32_t n, bool compiled) {
  const l_program *programs[BATCH];
  const char *names[BATCH];
  char texts[BATCH][16], why[256];
  unit u;
  for (uint32_t k = 0; k < n; k++) {
    programs[k] = cases[k].p;
    snprintf(texts[k], sizeof texts[k], "k%u", k);
    names[k] = texts[k];
  }
  if (compiled) unit_open(&u, programs, names, n);
  bool failed = false;
  for (uint32_t k = 0; k < n; k++) {
    qk_phase *code = compiled ? unit_phases(&u, programs[k], names[k]) : NULL;
    for (int how = 0; how < 3; how++) {
      case_run(&cases[k], bvm_loops_pick(), how == 2 ? code : NULL, how ? 512 : 64, how ? 1 : 3, why, sizeof why);
      if (!why[0]) continue;
      if (getenv("QN_TEST_SHOW")) case_show(&cases[k]);
      fprintf(stderr, "program %llu, %s: %s\n", (unsigned long long)cases[k].seed, how == 2 ? "C" : "block VM", why);
      failed = true;
    }
    free(code);
    case_close(&cases[k]);
  }
  if (compiled) unit_close(&u, failed);
  ck_assert(!failed);
}

START_TEST(golden_programs) {
  l_case cases[BATCH];
  for (uint32_t k = 0; k < BLOCK_GOLDENS; k++) block_golden_open(&cases[k], &block_goldens[k], 2 * k + 2);
  run_all(cases, BLOCK_GOLDENS, true);
}
END_TEST

static void random_range(seeds which, bool compiled) {
  l_case cases[BATCH];
  for (uint64_t i = which.first; i < which.end; i += BATCH) {
    uint32_t n = which.end - i < BATCH ? (uint32_t)(which.end - i) : BATCH;
    for (uint32_t k = 0; k < n; k++) block_random_open(&cases[k], i + k);
    run_all(cases, n, compiled);
  }
}

START_TEST(random_programs) { random_range(seeds_of(1, 600), false); }
END_TEST

START_TEST(random_programs_as_c) { random_range(seeds_of(1, 32), true); }
END_TEST

int main(void) {
  Suite *s = suite_create("blocks_run");
  const struct {
    TCase *c;
    const TTest *test;
  } tests[] = {
      {tcase_create("golden_programs"), golden_programs},
      {tcase_create("random_programs"), random_programs},
      {tcase_create("random_programs_as_c"), random_programs_as_c},
  };
  for (size_t k = 0; k < sizeof tests / sizeof *tests; k++) {
    tcase_set_timeout(tests[k].c, 250);
    tcase_add_test(tests[k].c, tests[k].test);
    suite_add_tcase(s, tests[k].c);
  }
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_ENV);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed != 0;
}
