/* L programs printed as C, compiled and loaded: random programs, which use every construct, give the same bits as the reference
 * (l_case.h). QN_TEST_COUNT=1000 runs more of them, QN_TEST_FIRST says where to begin, QN_TEST_CC and QN_TEST_CFLAGS
 * change the compiler. */
#include "tests/unit/c_unit.h"
#include "tests/unit/l_case.h"
#include "tests/unit/seeds.h"

enum { BATCH = 32 };

/* ---- random programs -------------------------------------------------------------------------------------------------- */

static void random_batch(uint64_t first, uint32_t n) {
  l_case cases[BATCH];
  const l_program *programs[BATCH] = {0};
  const char *names[BATCH] = {0};
  char texts[BATCH][16], why[256];
  for (uint32_t i = 0; i < n; i++) {
    case_open(&cases[i], first + i);
    programs[i] = cases[i].p;
    snprintf(texts[i], sizeof texts[i], "k%u", i);
    names[i] = texts[i];
  }
  unit u;
  unit_open(&u, programs, names, n);
  bool failed = false;
  for (uint32_t i = 0; i < n; i++) {
    qk_phase *code = unit_phases(&u, programs[i], names[i]);
    for (int threads = 1; threads <= 3; threads += 2) {
      case_run(&cases[i], bvm_loops_pick(), code, 512, threads, why, sizeof why);
      if (!why[0]) continue;
      if (getenv("QN_TEST_SHOW")) case_show(&cases[i]);
      fprintf(stderr, "program %llu (%s/k.c, %s), %d threads: %s\n", (unsigned long long)(first + i), u.folder,
              names[i], threads, why);
      failed = true;
    }
    free(code);
    case_close(&cases[i]);
  }
  unit_close(&u, failed);
  ck_assert(!failed);
}

START_TEST(random_programs) {
  seeds which = seeds_of(1, 40); /* some ten seconds */
  for (uint64_t i = which.first; i < which.end; i += BATCH)
    random_batch(i, which.end - i < BATCH ? (uint32_t)(which.end - i) : BATCH);
}
END_TEST

int main(void) {
  Suite *s = suite_create("emit");
  TCase *t = tcase_create("random_programs");
  tcase_set_timeout(t, 600);
  CASE(t, random_programs);
  return run_suite(s);
}
