/* Programs over blocks on the block VM and as C give the bits of the reference evaluator (l_blocks_case.h): the golden ones with several
 * sizes, and random ones. QN_TEST_CC says which compiler, QN_TEST_FIRST and QN_TEST_COUNT which programs. */
#include "tests/unit/c_unit.h"
#include "tests/unit/l_blocks_case.h"
#include "tests/unit/lang.h"
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

/* A tile over windows (l.h) in a program that has blocks, too: its digits are among the operands that change their numbers. */
START_TEST(a_tile_over_windows_beside_blocks) {
  static const char text[] = "program windows_beside_blocks ints=3 scalars=0 {\n"
                             "  schedule par; row of 16; tile\n"
                             "  buffer b0 f32 in\n"
                             "  buffer b1 f32 in\n"
                             "  buffer b2 f32 out\n"
                             "  buffer b3 f32 out\n"
                             "  %1 = int 0\n"
                             "  %2 = int 1\n"
                             "  %3 = param 0\n"
                             "  %4 = param 1\n"
                             "  %5 = param 2\n"
                             "  %6 = imul %3 %4\n"
                             "  phase\n"
                             "  %8 = par %2 grain=1 {\n"
                             "    %9 = f32[1x16] bload b0 base=%1 across=%2 cols=%5\n"
                             "    %10 = f32[1x16] exp %9\n"
                             "    %11 = f32[1x1] breduce.add inner %10\n"
                             "    bstore b3 %11 base=%1\n"
                             "    %13 = iadd %3 %4\n"
                             "    tile x=b0 xbase=%1 xm=%6 xk=%2 y=b1 ybase=%1 yk=%1 yn=%1 rows=%2 cols=%5 depth=%6 "
                             "tilerows=16 tilecols=64 to=b2 tobase=%1 tom=%5 first=%1 deep=%1 "
                             "kdigit=%2 most=%3 step=%2 kdigit=%3 step=%13 ndigit=%2 step=%3\n"
                             "  }\n"
                             "}\n";
  l_case c;
  char why[256];
  l_program *p = l_parse(text, why, sizeof why);
  ck_assert_msg(p != NULL, "%s", why);
  block_case(&c, p, (rnd_info){.elements = 256, .ints = {3, 4, 5}}, 1);
  run_all(&c, 1, true);
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
  TCase *cases[] = {tcase_create("golden_programs"), tcase_create("random_programs"),
                    tcase_create("random_programs_as_c")};
  CASE(cases[0], golden_programs, a_tile_over_windows_beside_blocks);
  CASE(cases[1], random_programs);
  CASE(cases[2], random_programs_as_c);
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) tcase_set_timeout(cases[k], 250);
  return run_suite(s);
}
