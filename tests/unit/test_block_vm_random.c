/* Random L programs, which use every construct, on the block VM: the same bits as the reference gives (l_case.h), for every
 * instruction set of this processor, several block sizes and numbers of threads. QN_TEST_COUNT=1000 runs more of them,
 * QN_TEST_FIRST says where to begin. */
#include "tests/unit/lang.h"
#include "tests/unit/l_case.h"
#include "tests/unit/seeds.h"

static int check_program(uint64_t seed) {
  l_case c;
  case_open(&c, seed);
  const bvm_loops *tables[3] = {bvm_loops_pick()};
  int n = 1, failures = 0;
#if defined(__x86_64__)
  if (tables[0] == &bvm_loops_v4) tables[n++] = &bvm_loops_v3;
  if (tables[0] != &bvm_loops_base) tables[n++] = &bvm_loops_base;
#endif
  static const int64_t blocks[] = {512, 64, 256};
  for (int t = 0; t < n; t++)
    for (int b = 0; b < (t ? 1 : 3); b++)
      for (int threads = 1; threads <= (b ? 1 : 3); threads += 2) {
        char why[256];
        case_run(&c, tables[t], NULL, blocks[b], threads, why, sizeof why);
        if (!why[0]) continue;
        if (!failures++) {
          if (getenv("QN_TEST_SHOW")) case_show(&c);
          fprintf(stderr, "program %llu, %s, block %lld, %d threads: %s\n", (unsigned long long)seed, tables[t]->name,
                  (long long)blocks[b], threads, why);
        }
      }
  case_close(&c);
  return failures != 0;
}

START_TEST(random_programs) {
  seeds which = seeds_of(1, 150);
  int failed = 0;
  for (uint64_t seed = which.first; seed < which.end; seed++) failed += check_program(seed);
  ck_assert_int_eq(failed, 0);
}
END_TEST

int main(void) {
  Suite *s = suite_create("vm_random");
  CASE(tcase_create("random_programs"), random_programs);
  return run_suite(s);
}
