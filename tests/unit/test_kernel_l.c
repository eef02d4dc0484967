/* L programs: the text form parses back identically, the verifier refuses what l.h forbids, and the hash sees everything but
 * names. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/kernel/l.h"
#include "tests/unit/kernel_text.h"

/* Row sums of exp(x), with a check on every element. */
static const char *const sample = "program sample ints=2 scalars=1 {\n"
                                  "  buffer b0 f32 in\n"
                                  "  buffer b1 f32 out\n"
                                  "  buffer b2 f32 scratch size=%3\n"
                                  "  check c0 E309 site=4 node=9 detail=-1\n"
                                  "  %1 = param 0\n"
                                  "  %2 = param 1\n"
                                  "  %3 = imul %1 %2\n"
                                  "  %4 = int 0\n"
                                  "  %5 = int 1\n"
                                  "  phase\n"
                                  "  %7 = par %1 grain=8 {\n"
                                  "    %8 = var %7\n"
                                  "    %9 = imul %8 %2\n"
                                  "    %10 = f32 local.shared size=%2\n"
                                  "    %11 = f32 acc.add inner\n"
                                  "    %12 = f32 const 0x3fc00000 (1.5)\n"
                                  "    %13 = vec %4 %2 {\n"
                                  "      %14 = f32 load b0 base=%9 stride=%5 lo=%5 hi=%2 else=%12\n"
                                  "      %15 = f32 exp %14\n"
                                  "      %16 = bool lt %14 %15\n"
                                  "      check c0 %16 at=%9 stride=%5\n"
                                  "      push %11 %15\n"
                                  "      store %10 %15 base=%4 stride=%5\n"
                                  "    }\n"
                                  "    %21 = f32 finish %11\n"
                                  "    if %2 {\n"
                                  "      store b2 %21 base=%8\n"
                                  "    } else {\n"
                                  "      rmw.add b2 %21 base=%8\n"
                                  "    }\n"
                                  "    %27 = for %4 %2 step=%5 {\n"
                                  "      poll\n"
                                  "    }\n"
                                  "    store b1 %21 base=%8\n"
                                  "  }\n"
                                  "}\n";

static char why[256];

START_TEST(text_round_trip) {
  l_program *p = l_parse(sample, why, sizeof why);
  ck_assert_msg(p != NULL, "%s", why);
  text_buf out = {0};
  l_print(p, &out);
  ck_assert(!out.failed);
  text_add(&out, "", 1);
  ck_assert_str_eq(out.text, sample);
  text_free(&out);
  l_free(p);
}
END_TEST

/* Replaces the first `from` in the sample. */
static char *edited(const char *from, const char *to) {
  const char *at = strstr(sample, from);
  ck_assert_ptr_nonnull(at);
  size_t head = (size_t)(at - sample);
  char *text = calloc(strlen(sample) + strlen(to) + 1, 1);
  memcpy(text, sample, head);
  strcat(text, to);
  strcat(text, at + strlen(from));
  return text;
}

static void refused(const char *from, const char *to, const char *reason) {
  char *text = edited(from, to);
  why[0] = 0;
  l_program *p = l_parse(text, why, sizeof why);
  ck_assert_msg(p == NULL, "accepted: %s", to);
  ck_assert_msg(strstr(why, reason) != NULL, "'%s' is refused with: %s", to, why);
  free(text);
}

START_TEST(verifier_refuses) {
  refused("f32 exp %14", "f32 exp %21", "not defined before");
  refused("store b2 %21 base=%8", "store b0 %21 base=%8", "writes the input");
  refused("store b1 %21 base=%8", "store b1 %15 base=%8", "not visible");
  refused("size=%2\n    %11", "size=%9\n    %11", "known before the PAR");
  refused("bool lt %14 %15", "f32 lt %14 %15", "wrong dtype of the result");
  refused("f32 acc.add inner", "f32 acc.add free", "have an order");
  refused("push %11 %15", "push %11 %16", "dtype differs");
  refused("lo=%5 hi=%2 else=%12", "lo=%5 hi=%2", "belong together");
  refused("size=%3", "size=%9", "no index of the prelude");
  refused("step=%5 {\n      poll", "step=%5 {\n      phase", "not inside a PAR");
  refused("    store b1", "    %30 = var %27\n    store b1", "the loop has ended");
}
END_TEST

/* Row maxima, in a layout of their own. */
static const char *const rows = "program rows ints=2 scalars=0 {\n"
                                "  buffer b0 f32 in\n"
                                "  buffer b1 f32 out\n"
                                "  %1 = param 0\n"
                                "  %2 = param 1\n"
                                "  %3 = int 0\n"
                                "  %4 = int 1\n"
                                "  phase\n"
                                "  %6 = par %1 grain=8 threads=32 lanes=2 groups=8 {\n"
                                "    %7 = var %6\n"
                                "    %8 = imul %7 %2\n"
                                "    %9 = f32 acc.max free\n"
                                "    %10 = vec %3 %2 {\n"
                                "      %11 = f32 load b0 base=%8 stride=%4\n"
                                "      push %9 %11\n"
                                "    }\n"
                                "    %14 = f32 finish %9\n"
                                "    store b1 %14 base=%7\n"
                                "  }\n"
                                "}\n";

static void misfit(const char *layout, const char *body, const char *reason) {
  static const char from[] = "threads=32 lanes=2 groups=8";
  const char *at = strstr(rows, from), *end = strstr(rows, "    store b1");
  char text[2048];
  snprintf(text, sizeof text, "%.*s%s%.*s%s%s", (int)(at - rows), rows, layout, (int)(end - at - strlen(from)),
           at + strlen(from), body, end);
  why[0] = 0;
  l_program *p = l_parse(text, why, sizeof why);
  ck_assert_msg((p == NULL) == (reason != NULL), "%s %s: %s", layout, body, why);
  if (reason) ck_assert_msg(strstr(why, reason) != NULL, "%s %s: %s", layout, body, why);
  if (!p) return;
  text_buf out = {0};
  l_print(p, &out);
  text_add(&out, "", 1);
  ck_assert(!out.failed);
  ck_assert_str_eq(out.text, text);
  text_free(&out);
  l_free(p);
}

START_TEST(layouts_fit_what_a_phase_does) {
  misfit("threads=32 lanes=2 groups=8", "", NULL);
  misfit("threads=256 lanes=4 groups=1", "", NULL);
  misfit("threads=48 lanes=2 groups=1", "", "no power of two");
  misfit("threads=64 lanes=2 groups=8", "", "too many threads");
  misfit("threads=16 lanes=2 groups=8", "", "do not fit the threads");
  misfit("threads=32 lanes=2 groups=1", "    poll\n", NULL);
  misfit("threads=32 lanes=2 groups=2", "    poll\n", "left by all threads of a block");
  misfit("threads=32 lanes=2 groups=8", "    sync\n", "64 threads do together");
  refused("grain=8 {", "grain=8 threads=32 lanes=2 groups=8 {", "a shared local");
}
END_TEST

START_TEST(parser_refuses) {
  refused("param 1", "param x", "expected a number");
  refused("f32 exp", "f32 expo", "unknown instruction");
  refused("ints=2", "ints=1", "no such parameter");
  refused("%12 = f32 const", "%13 = f32 const", "this is instruction");
  refused("    store b1 %21 base=%8\n  }\n}\n", "", "no end");
  refused("grain=8 {", "grain=8", "expected '{'");
}
END_TEST

START_TEST(hash_ignores_names_only) {
  l_program *p = l_parse(sample, why, sizeof why);
  char *text = edited("program sample", "program other");
  l_program *q = l_parse(text, why, sizeof why);
  ck_assert_uint_eq(l_hash(p), l_hash(q));
  free(text);
  l_free(q);
  text = edited("0x3fc00000 (1.5)", "0x3fc00001");
  q = l_parse(text, why, sizeof why);
  ck_assert_uint_ne(l_hash(p), l_hash(q));
  free(text);
  l_free(q);
  l_free(p);
}
END_TEST

START_TEST(index_arithmetic_folds) {
  l_program *p = l_new("folds");
  l_val n = l_param(p, 0), zero = l_int(p, 0), one = l_int(p, 1);
  ck_assert_uint_eq(l_index(p, L_IADD, n, zero), n);
  ck_assert_uint_eq(l_index(p, L_IADD, zero, n), n);
  ck_assert_uint_eq(l_index(p, L_IMUL, one, n), n);
  ck_assert_uint_eq(l_index(p, L_IMUL, n, zero), zero);
  ck_assert_uint_eq(l_index(p, L_IMOD, n, one), zero);
  ck_assert_uint_eq(l_index(p, L_ISUB, n, n), zero);
  ck_assert_int_eq(p->code[l_index(p, L_IDIV, l_int(p, -7), l_int(p, 2))].imm, -4);
  ck_assert_int_eq(p->code[l_index(p, L_IMOD, l_int(p, -7), l_int(p, 2))].imm, 1);
  l_val sum = l_index(p, L_IADD, n, l_int(p, 5));
  ck_assert_uint_eq(l_index(p, L_IADD, n, l_int(p, 5)), sum);
  /* Values of a closed block and of an earlier phase are not found again. */
  l_emit(p, (l_instr){.code = L_PHASE});
  l_val par = l_emit(p, (l_instr){.code = L_PAR, .a = n});
  l_val var = l_emit(p, (l_instr){.code = L_VAR, .a = par});
  l_val inner = l_index(p, L_IADD, var, one);
  l_end(p);
  l_emit(p, (l_instr){.code = L_PHASE});
  ck_assert_uint_ne(l_index(p, L_IADD, var, one), inner);
  ck_assert_uint_eq(l_index(p, L_IADD, n, l_int(p, 5)), sum);
  l_free(p);
}
END_TEST

int main(void) {
  Suite *s = suite_create("kernel_l");
  TCase *t = tcase_create("text_round_trip");
  tcase_add_test(t, text_round_trip);
  suite_add_tcase(s, t);
  t = tcase_create("verifier_refuses");
  tcase_add_test(t, verifier_refuses);
  suite_add_tcase(s, t);
  t = tcase_create("layouts");
  tcase_add_test(t, layouts_fit_what_a_phase_does);
  suite_add_tcase(s, t);
  t = tcase_create("parser_refuses");
  tcase_add_test(t, parser_refuses);
  suite_add_tcase(s, t);
  t = tcase_create("hash_ignores_names_only");
  tcase_add_test(t, hash_ignores_names_only);
  suite_add_tcase(s, t);
  t = tcase_create("index_arithmetic_folds");
  tcase_add_test(t, index_arithmetic_folds);
  suite_add_tcase(s, t);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_ENV);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed != 0;
}
