/* Numbers as text and back. The C library's conversions (in the C locale) are the yardstick; the shortest form is checked
 * against every shorter precision. */
#include <locale.h>
#include <math.h>

#include "tests/unit/lang.h"

static uint64_t state = 0x9e3779b97f4a7c15u;
static uint64_t random_bits(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

static double random_double(int i) {
  uint64_t bits = random_bits();
  if (i % 4 == 0) bits &= ~((uint64_t)0x7ff << 52) | (bits >> 3 & 0x7ff) << 52;   /* whatever exponent */
  if (i % 16 == 1) bits &= 0x801fffffffffffff;                                    /* subnormal or nearly */
  if (i % 16 == 2) bits &= ~(uint64_t)0xfffffffffffff;                            /* a power of two */
  if (i % 16 == 3) bits = (bits & 0x800fffffffffffff) | (1023 + bits % 60) << 52; /* of everyday size */
  double x;
  memcpy(&x, &bits, 8);
  return x;
}

static const char *float_text(text_buf *t, double x, bool f32) {
  text_free(t);
  text_float(t, x, f32 ? QN_f32 : QN_f64);
  return t->text;
}

START_TEST(floats_print_in_the_languages_form) {
  struct {
    double x;
    const char *text;
  } rows[] = {{1, "1.0"},
              {-1, "-1.0"},
              {0, "0.0"},
              {-0.0, "-0.0"},
              {0.1, "0.1"},
              {0.5, "0.5"},
              {100, "100.0"},
              {1e-4, "0.0001"},
              {1.25e-4, "0.000125"},
              {1e-5, "1e-5"},
              {1e-7, "1e-7"},
              {1.5e-7, "1.5e-7"},
              {1e15, "1000000000000000.0"},
              {1e16, "1e16"},
              {1e20, "1e20"},
              {1.25e20, "1.25e20"},
              {123456789.125, "123456789.125"},
              {1.0 / 3, "0.3333333333333333"},
              {2.0 / 3, "0.6666666666666666"},
              {5e-324, "5e-324"},
              {0x1.fffffffffffffp1023, "1.7976931348623157e308"},
              {0x1p-1022, "2.2250738585072014e-308"},
              {0x1p53, "9007199254740992.0"},
              {1e22, "1e22"},
              {1e23, "1e23"},
              {5.684341886080802e-14, "5.684341886080802e-14"}, /* 2**-44: nearer below than above */
              {9.5367431640625e-07, "9.5367431640625e-7"},
              {__builtin_inf(), "inf"},
              {-__builtin_inf(), "-inf"},
              {__builtin_nan(""), "nan"}};
  text_buf t = {0};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    ck_assert_str_eq(float_text(&t, rows[i].x, false), rows[i].text);
  ck_assert_str_eq(float_text(&t, 0.1f, true), "0.1");
  ck_assert_str_eq(float_text(&t, 0.1f, false), "0.10000000149011612");
  ck_assert_str_eq(float_text(&t, 16777216.0f, true), "16777216.0");
  ck_assert_str_eq(float_text(&t, 3.4028235e38f, true), "3.4028235e38");
  ck_assert_str_eq(float_text(&t, 1e-45f, true), "1e-45");
  ck_assert_str_eq(float_text(&t, 1.1754944e-38f, true), "1.1754944e-38");
  text_free(&t);
}
END_TEST

/* Significant digits of a text as text_float writes it. */
static int significant(const char *s) {
  char digits[40];
  int n = 0;
  for (; *s && *s != 'e'; s++)
    if (*s >= '0' && *s <= '9' && (n || *s != '0')) digits[n++] = *s;
  while (n && digits[n - 1] == '0') n--;
  return n;
}

START_TEST(doubles_read_back_and_are_shortest) {
  text_buf t = {0};
  for (int i = 0; i < 100000; i++) {
    double x = random_double(i), y;
    if (!isfinite(x) || x == 0) continue;
    const char *s = float_text(&t, x, false);
    if (strtod(s, NULL) != x) ck_abort_msg("%a prints as %s", x, s);
    if (!float_parse(s, strlen(s), &y) || y != x) ck_abort_msg("%s reads as %a, not %a", s, y, x);
    int n = significant(s);
    char shorter[64];
    if (n > 1) {
      snprintf(shorter, sizeof shorter, "%.*e", n - 2, x);
      if (strtod(shorter, NULL) == x) ck_abort_msg("%s is longer than %s", s, shorter);
    }
    snprintf(shorter, sizeof shorter, "%.*e", n - 1, x); /* the nearest of its length */
    if (strtod(shorter, NULL) == x && strtod(shorter, NULL) != strtod(s, NULL)) ck_abort_msg("%s, %s", s, shorter);
  }
  text_free(&t);
}
END_TEST

START_TEST(floats_read_back_and_are_shortest) {
  text_buf t = {0};
  for (int i = 0; i < 200000; i++) {
    uint32_t bits = (uint32_t)random_bits();
    if (i % 8 == 0) bits &= 0x807fffff;
    if (i % 8 == 1) bits &= 0xff800000;
    float x;
    memcpy(&x, &bits, 4);
    if (!isfinite(x) || x == 0) continue;
    const char *s = float_text(&t, x, true);
    if (strtof(s, NULL) != x) ck_abort_msg("%a prints as %s", (double)x, s);
    int n = significant(s);
    char shorter[64];
    if (n > 1) {
      snprintf(shorter, sizeof shorter, "%.*e", n - 2, (double)x);
      if (strtof(shorter, NULL) == x) ck_abort_msg("%s is longer than %s", s, shorter);
    }
  }
  text_free(&t);
}
END_TEST

/* Every f16 and bf16 there is. */
START_TEST(halves_read_back_and_are_shortest) {
  text_buf t = {0};
  for (int wide = 0; wide < 2; wide++) {
    for (uint32_t bits = 1; bits < 0x8000; bits++) {
      double x = wide ? bf16_to_f32((uint16_t)bits) : f16_to_f32((uint16_t)bits), y;
      if (!isfinite(x)) continue;
      text_free(&t);
      text_float(&t, x, wide ? QN_bf16 : QN_f16);
      if (!float_parse(t.text, strlen(t.text), &y) || (wide ? f64_to_bf16(y) : f64_to_f16(y)) != bits)
        ck_abort_msg("%a prints as %s", x, t.text);
      int n = significant(t.text);
      if (n == 1) continue;
      char shorter[64];
      snprintf(shorter, sizeof shorter, "%.*e", n - 2, x);
      y = strtod(shorter, NULL);
      if ((wide ? f64_to_bf16(y) : f64_to_f16(y)) == bits) ck_abort_msg("%s is longer than %s", t.text, shorter);
    }
  }
  text_free(&t);
}
END_TEST

START_TEST(decimals_are_read_correctly_rounded) {
  char s[1600];
  double y;
  for (int i = 0; i < 100000; i++) {
    int n = 1 + (int)(random_bits() % 25), len = 0;
    for (int k = 0; k < n; k++) s[len++] = (char)('0' + random_bits() % 10);
    if (i % 2) {
      s[len++] = '.';
      n = 1 + (int)(random_bits() % 25);
      for (int k = 0; k < n; k++) s[len++] = (char)('0' + random_bits() % 10);
    }
    snprintf(s + len, sizeof s - (size_t)len, "e%d", (int)(random_bits() % 700) - 360);
    if (!float_parse(s, strlen(s), &y) || y != strtod(s, NULL)) ck_abort_msg("%s reads as %a", s, y);
  }
  /* Midpoints between two doubles, exactly and a little to either side. */
  for (int i = 0; i < 20000; i++) {
    double x = fabs(random_double(i));
    if (!isfinite(x) || x > 0x1p1000) continue;
    uint64_t bits;
    memcpy(&bits, &x, 8);
    bits++;
    double above;
    memcpy(&above, &bits, 8);
    int n = snprintf(s, sizeof s, "%.1080f", x / 2 + above / 2);
    if (x < 0x1p-1000) continue; /* the midpoint is no double's sum here */
    for (int k = 0; k < 3; k++) {
      if (k == 1) s[n - 1] = '1';
      if (k == 2) strcpy(s + n, "9");
      if (!float_parse(s, strlen(s), &y) || y != strtod(s, NULL)) ck_abort_msg("%s reads as %a", s, y);
      s[n] = 0;
    }
  }
  const char *edge[] = {
      "2.4703282292062327208e-324",
      "2.47032822920623272088284396434110686182e-324",
      "2.4703282292062328e-324",
      "1.7976931348623158e308",
      "1.7976931348623159e308",
      "1e309",
      "1e-400",
      "0e999999999999999999999",
      "1e99999999999999999999",
      "9007199254740993",
      "9007199254740992.99999999999999999999999999999999999999999999999999",
      "0.000000000000000000000000000000000000000000000000000000000000000001",
      "100000000000000000000000000000000000000000000000000000",
      "179769313486231580793728971405303415079934132710037826936173778980444968292764750946649017977587"
      "207096330286416692887910946555547851940402630657488671505820681908902000708383676273854845817711"
      "531764475730270069855571366959622842914819860834936475292719074168444365510704342711559699508093"
      "042880177904174497791"};
  for (size_t i = 0; i < sizeof edge / sizeof *edge; i++) {
    ck_assert(float_parse(edge[i], strlen(edge[i]), &y));
    ck_assert_msg(y == strtod(edge[i], NULL), "%s reads as %a, not %a", edge[i], y, strtod(edge[i], NULL));
  }
  ck_assert(float_parse("1_000.5", 7, &y) && y == 1000.5);
  ck_assert(float_parse("-inf", 4, &y) && y < 0 && isinf(y));
  ck_assert(float_parse("nan", 3, &y) && y != y);
  ck_assert(float_parse("+2", 2, &y) && y == 2);
  ck_assert(float_parse("-0.0", 4, &y) && y == 0 && signbit(y));
  const char *bad[] = {"",   "-",  "1.",   ".5", "1e",   "1e+", "1.5x",    " 1",
                       "1 ", "_1", "1__0", "1_", "0x10", "1,5", "infinity"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    ck_assert_msg(!float_parse(bad[i], strlen(bad[i]), &y), "%s", bad[i]);
}
END_TEST

START_TEST(precision_is_kept_as_asked) {
  text_buf t = {0};
  for (int i = 0; i < 30000; i++) {
    double x = random_double(i);
    if (!isfinite(x)) continue;
    char want[1600], form[8];
    for (const char *style = "efg"; *style; style++) {
      int precision = (int)(random_bits() % 25);
      snprintf(form, sizeof form, "%%.*%c", *style);
      snprintf(want, sizeof want, form, precision, x);
      text_free(&t);
      text_decimal(&t, x, *style, precision);
      if (strcmp(t.text, want) != 0) ck_abort_msg("%a with %.*s%d: %s, not %s", x, 1, style, precision, t.text, want);
    }
  }
  struct {
    double x;
    char style;
    int precision;
    const char *text;
  } rows[] = {{0.5, 'f', 0, "0"},          {1.5, 'f', 0, "2"},
              {2.5, 'f', 0, "2"},          {0.06, 'f', 1, "0.1"},
              {0.04, 'f', 1, "0.0"},       {9.996, 'f', 2, "10.00"},
              {0, 'e', 3, "0.000e+00"},    {0, 'g', 4, "0"},
              {-0.0, 'f', 1, "-0.0"},      {1e100, 'g', 5, "1e+100"},
              {999999.5, 'g', 6, "1e+06"}, {0.0001, 'g', 6, "0.0001"},
              {123, 'f', 2, "123.00"},     {__builtin_inf(), 'f', 2, "inf"},
              {1e-5, 'g', 3, "1e-05"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    text_free(&t);
    text_decimal(&t, rows[i].x, rows[i].style, rows[i].precision);
    ck_assert_str_eq(t.text, rows[i].text);
  }
  text_free(&t);
}
END_TEST

START_TEST(the_locale_does_not_matter) {
  const char *names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (setlocale(LC_ALL, names[i])) break;
  text_buf t = {0};
  text_float(&t, 1.5, WEAK_FLOAT);
  text_decimal(&t, 2.25, 'f', 1);
  ck_assert_str_eq(t.text, "1.52.2");
  double x;
  ck_assert(float_parse("1.5", 3, &x) && x == 1.5);
  text_free(&t);
}
END_TEST

START_TEST(integers_are_written_and_read) {
  text_buf t = {0};
  int64_t all[] = {0, 1, -1, 42, INT64_MAX, INT64_MIN, 1000000000000};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    char want[32];
    snprintf(want, sizeof want, "%lld", (long long)all[i]);
    text_free(&t);
    text_int(&t, all[i]);
    ck_assert_str_eq(t.text, want);
    int64_t back;
    ck_assert(int_parse(want, strlen(want), &back) && back == all[i]);
  }
  text_free(&t);
  int64_t v;
  ck_assert(int_parse("0xff", 4, &v) && v == 255);
  ck_assert(int_parse("-0x8000000000000000", 19, &v) && v == INT64_MIN);
  ck_assert(int_parse("1_000_000", 9, &v) && v == 1000000);
  ck_assert(int_parse("+7", 2, &v) && v == 7);
  const char *bad[] = {"",
                       "-",
                       "9223372036854775808",
                       "-9223372036854775809",
                       "99999999999999999999999",
                       "1a",
                       "0x",
                       "0xg",
                       "1__0",
                       "_1",
                       "1_",
                       "1.0",
                       " 1"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    ck_assert_msg(!int_parse(bad[i], strlen(bad[i]), &v), "%s", bad[i]);
}
END_TEST

START_TEST(texts_grow_and_stick_when_they_fail) {
  qn_vm *vm = vm_make();
  size_t start = live(vm);
  text_buf t = {.vm = vm};
  for (int i = 0; i < 1000; i++) text_addf(&t, "%d,", i);
  text_repeat(&t, "ab", 3);
  text_repeat(&t, "x", 0);
  qn_value v = text_take(&t);
  ck_assert_uint_eq(value_str(v)->len, 3890 + 6);
  ck_assert_str_eq(value_str(v)->text + 3890, "ababab");
  value_release(vm, v);
  mem_fail_at(vm, 1);
  text_adds(&t, "lost");
  text_adds(&t, "and the rest");
  ck_assert(t.failed && !error_pending(vm));
  ck_assert(value_is_error(text_take(&t)));
  ck_assert_int_eq(taken_error(vm), E_memory);
  v = text_take(&t);
  ck_assert_uint_eq(value_str(v)->len, 0);
  value_release(vm, v);
  char big[1000];
  memset(big, 'y', sizeof big);
  text_addf(&t, "%.*s|", 1000, big);
  ck_assert_uint_eq(t.len, 1001);
  text_free(&t);
  ck_assert_uint_eq(live(vm), start);
  vm_close(vm);
}
END_TEST

int main(void) {
  Suite *s = suite_create("lang_number");
  CASE(tcase_create("shortest"), floats_print_in_the_languages_form, doubles_read_back_and_are_shortest,
       floats_read_back_and_are_shortest, halves_read_back_and_are_shortest);
  CASE(tcase_create("reading"), decimals_are_read_correctly_rounded);
  CASE(tcase_create("precision"), precision_is_kept_as_asked);
  CASE(tcase_create("locale"), the_locale_does_not_matter);
  CASE(tcase_create("integers"), integers_are_written_and_read);
  CASE(tcase_create("texts"), texts_grow_and_stick_when_they_fail);
  return run_suite(s);
}
