/* The elementary functions of math.def: at most 2 ulp over the whole range in f32 and f64 (tanh, sigmoid, silu, gelu: 4), exact where mathematics
 * is, the special values of IEEE 754; the printed texts compute the same bits. Measured maxima (ulp) over every 1,009th f32 and a million f64
 * values each, against the x87 long double functions; those of the second table over all f32 from 2^-32 to 256 in size:
 *
 *          exp  exp2 expm1 log  log2 log10 log1p sin  cos  tan  arcsin arccos arctan sinh cosh erf  rsqrt pow  arctan2
 *   f32    0.90 0.88 1.29  0.84 1.50 0.70  1.55  0.82 0.85 1.12 1.17   1.11   1.17   1.61 1.43 1.46 1.48  1.91 0.51
 *   f64    0.85 0.87 1.30  0.78 0.73 0.70  1.39  0.92 0.90 1.20 1.07   1.03   1.14   1.56 1.41 0.87 1.49  1.89 1.51
 *
 *          tanh sigmoid silu gelu gelu_tanh gelu_slope
 *   f32    3.70 3.44    3.96 3.86 2.86      3.82
 *   f64    2.50 2.25    2.49 3.82 2.36      3.33
 */
#include <math.h>

#include "jit/cpu/block_vm_loops.h"
#include "jit/kernel/costs.h"
#include "jit/kernel/math.h"
#include "jit/kernel/prims.h"
#include "tests/unit/lang.h"

static uint64_t state = 88172645463325252u;
static uint64_t random_bits(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}
static double unit(void) { return (double)(random_bits() >> 11) * 0x1p-53; }

/* Distance in units of the last place of the right value, or of 2^(floor - 1) if that is larger; 1e9 where kinds differ. */
static double ulp_of(double got, long double want, int digits, int least, int floor) {
  if (isnan(got) || isnan(want)) return isnan(got) && isnan(want) ? 0 : 1e9;
  int e;
  /* beyond the largest number stands infinity, which counts as the next power of two */
  long double far = ldexpl(1, 3 - least), value = isinf(got) ? copysignl(far, got) : (long double)got;
  if (isinf(want) || fabsl(want) > far) want = copysignl(far, want);
  frexpl(want, &e);
  if (fabsl(want) == far) e--;
  if (want == 0 || e < least) e = least;
  if (e < floor) e = floor;
  return (double)(fabsl(value - want) / ldexpl(1, e - digits));
}
static double ulp64(double got, long double want) { return ulp_of(got, want, 53, -1021, -1021); }
static double ulp32(float got, long double want) { return ulp_of(got, want, 24, -125, -125); }

static long double sigmoid_ref(long double x) { return x > 0 ? 1 / (1 + expl(-x)) : expl(x) / (1 + expl(x)); }
static long double silu_ref(long double x) { return isinf(x) && x < 0 ? -0.0L : x / (1 + expl(-x)); }
/* erfc multiplies the error of its argument, which is therefore given in two parts. */
static long double gelu_ref(long double x) {
  const long double c = 0.7071067811865475243818940365159164684883L, cl = 1.895032558893257079655e-20L;
  if (isinf(x)) return x < 0 ? -0.0L : x;
  long double z = -x * c, more = fmal(-x, c, -z) - x * cl;
  long double tail = erfcl(z) - more * 1.12837916709551257390L * expl(-z * z);
  return x * (tail / 2);
}
static long double gelu_tanh_ref(long double x) {
  if (isinf(x)) return x < 0 ? -0.0L : x;
  return x / (1 + expl(-1.59576912160573071175978423973752747L * (x + 0.044715L * x * x * x)));
}
/* The sum of the tail and x times the density, which lets the tail's correction stand. */
static long double gelu_slope_ref(long double x) {
  if (x < -200) return -0.0L;
  if (x > 200) return 1;
  long double s = x * x, e = expl(-s / 2) * (1 - fmal(x, x, -s) / 2);
  return (x == 0 ? 0.5L : gelu_ref(x) / x) + x * e * 0.39894228040143267794L;
}
static long double expm1_ref(long double x) { return x == 0 ? x : expm1l(x); }
static long double rsqrt_ref(long double x) { return 1 / sqrtl(x); }

#define FN1(name, ref)                                                                                                 \
  static float name##_32(float x) { return name##_f32(x); }                                                            \
  static double name##_64(double x) { return name##_f64(x); }                                                          \
  static long double name##_r(long double x) { return ref(x); }
FN1(exp, expl)
FN1(exp2, exp2l)
/* clang-format off */
FN1(expm1, expm1_ref) FN1(log, logl) FN1(log2, log2l) FN1(log10, log10l) FN1(log1p, log1pl) FN1(sin, sinl)
FN1(cos, cosl) FN1(tan, tanl) FN1(arcsin, asinl) FN1(arccos, acosl) FN1(arctan, atanl) FN1(sinh, sinhl)
FN1(cosh, coshl) FN1(tanh, tanhl) FN1(sigmoid, sigmoid_ref) FN1(erf, erfl) FN1(rsqrt, rsqrt_ref) FN1(silu, silu_ref)
FN1(gelu, gelu_ref) FN1(gelu_tanh, gelu_tanh_ref) FN1(gelu_slope, gelu_slope_ref)
    /* clang-format on */
    typedef struct function {
  const char *name;
  float (*f)(float);
  double (*d)(double);
  long double (*ref)(long double);
  double from, to; /* where f64 arguments matter most */
  bool crosses;    /* has it a zero between -1.5 and 0, around which units are at least those of 1/4? */
} function;
static double off64(const function *t, double x) {
  return ulp_of(t->d(x), t->ref(x), 53, -1021, t->crosses && x > -1.5 ? -1 : -1021);
}
static double off32(const function *t, float x) {
  return ulp_of(t->f(x), t->ref(x), 24, -125, t->crosses && x > -1.5f ? -1 : -125);
}
#define ROW(name, from, to)                                                                                            \
  { #name, name##_32, name##_64, name##_r, from, to, name##_64 == gelu_slope_64 }
static const function functions[] = {
    ROW(exp, -750, 750), ROW(exp2, -1080, 1080), ROW(expm1, -50, 750),   ROW(log, 0, 10),         ROW(log2, 0, 10),
    ROW(log10, 0, 10),   ROW(log1p, -1, 10),     ROW(sin, -100, 100),    ROW(cos, -100, 100),     ROW(tan, -100, 100),
    ROW(arcsin, -1, 1),  ROW(arccos, -1, 1),     ROW(arctan, -10, 10),   ROW(sinh, -720, 720),    ROW(cosh, -720, 720),
    ROW(erf, -7, 7),     ROW(rsqrt, 0, 100),     ROW(tanh, -22, 22),     ROW(sigmoid, -750, 750), ROW(silu, -750, 60),
    ROW(gelu, -39, 9),   ROW(gelu_tanh, -22, 9), ROW(gelu_slope, -39, 9)};
enum { WIDE = 6 /* the last ones: within 4 ulp */ };
enum { FUNCTIONS = sizeof functions / sizeof *functions };

/* Functions that need no row above: what tests them is named. */
static const struct {
  const char *name, *by;
} others[] = {{"arctan2", "power_and_angle"},      {"pow", "power_and_angle"},
              {"smul", "minimum_and_maximum"},     {"sign", "minimum_and_maximum"},
              {"floordiv", "division_with_floor"}, {"mod", "division_with_floor"},
              {"isnan", "tests/edges.py"},         {"isinf", "tests/edges.py"},
              {"isfinite", "tests/edges.py"},      {"philox_uniform", "tests/unit/test_eager.c"}};

/* A function of mathfns.h is in one of the two lists, and once. */
START_TEST(every_function_has_a_row) {
#define X(name, ...) #name,
  static const char *const names[] = {MATHS(X, f64)};
#undef X
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    int rows = 0;
    for (int k = 0; k < FUNCTIONS; k++) rows += strcmp(functions[k].name, names[i]) == 0;
    for (size_t k = 0; k < sizeof others / sizeof *others; k++) rows += strcmp(others[k].name, names[i]) == 0;
    ck_assert_msg(rows == 1, "%s has %d rows: one is needed, in `functions`, or in `others` with its test", names[i],
                  rows);
  }
}
END_TEST

/* Of what is not free in every target, costs.def has a row. */
START_TEST(everything_has_a_cost) {
  for (int t = 0; t < COST_TARGETS; t++) {
    for (int i = 0; i < MATH_COUNT; i++)
      ck_assert_msg(math_cost((uint8_t)i, QN_f32, (cost_target)t) > 0 &&
                        math_cost((uint8_t)i, QN_f64, (cost_target)t) > 0,
                    "%s has no cost", math_rows[i].name);
    for (int i = 0; i < KOP_COUNT; i++) {
      bool free = i == KOP_copy || i == KOP_bitcast || i == KOP_neg || i == KOP_abs;
      ck_assert_msg(free || kop_cost((uint8_t)i, QN_i32, (cost_target)t) > 0, "%s has no cost", kop_rows[i].name);
    }
    ck_assert(cast_cost(QN_f32, QN_f32, (cost_target)t) == 0 && cast_cost(QN_f32, QN_f64, (cost_target)t) > 0);
    ck_assert(cast_cost(QN_f16, QN_f32, (cost_target)t) > 0 && cast_cost(QN_f32, QN_bf16, (cost_target)t) > 0);
  }
  ck_assert(kop_cost(KOP_add, QN_f64, COST_AVX512) > kop_cost(KOP_add, QN_f32, COST_AVX512));
  ck_assert(kop_cost(KOP_add, QN_i8, COST_AVX512) < kop_cost(KOP_add, QN_f32, COST_AVX512));
}
END_TEST

START_TEST(within_two_ulp) {
  for (int i = 0; i < FUNCTIONS; i++) {
    const function *t = &functions[i];
    double most = i < FUNCTIONS - WIDE ? 2 : 4;
    for (uint64_t b = random_bits() % 50021; b < (uint64_t)1 << 32; b += 50021) {
      float x = bitcast_u32_f32((u32)b);
      double u = off32(t, x);
      if (u > most) ck_abort_msg("%s(%a) in f32 is %a, %.2f ulp off", t->name, x, t->f(x), u);
    }
    for (int k = 0; k < 120000; k++) {
      double x;
      switch (k & 3) {
      case 0: x = bitcast_u64_f64(random_bits()); break;
      case 1: x = t->from + (t->to - t->from) * unit(); break;
      case 2: x = ldexp(unit(), -(int)(random_bits() % 60)) * (random_bits() & 1 ? 1 : -1); break;
      default: x = (t->from + (t->to - t->from) * unit()) / 16;
      }
      double u = off64(t, x);
      if (u > most) ck_abort_msg("%s(%a) in f64 is %a, %.2f ulp off", t->name, x, t->d(x), u);
    }
  }
}
END_TEST

/* Infinities, nan, zeros with their signs, subnormals, the ends of domains. */
START_TEST(special_values) {
  static const double special[] = {0.0,
                                   -0.0,
                                   INFINITY,
                                   -INFINITY,
                                   NAN,
                                   1,
                                   -1,
                                   2,
                                   0.5,
                                   5e-324,
                                   -5e-324,
                                   1e-310,
                                   1e-40,
                                   1e-45,
                                   1.7976931348623157e308,
                                   -1.7976931348623157e308,
                                   1e22,
                                   0x1.921fb54442d18p0};
  for (int i = 0; i < FUNCTIONS; i++)
    for (size_t k = 0; k < sizeof special / sizeof *special; k++) {
      const function *t = &functions[i];
      double x = special[k], got = t->d(x), most = i < FUNCTIONS - WIDE ? 2 : 4;
      long double want = t->ref(x);
      bool sign = isnan(got) || want != 0 || !signbit(got) == !signbit(want);
      ck_assert_msg(off64(t, x) <= most && sign, "%s(%a) in f64 is %a, not %La: %g ulp, signs %d %d", t->name, x, got,
                    want, off64(t, x), signbit(got) != 0, signbit(want) != 0);
      float xf = (float)x, gotf = t->f(xf);
      want = t->ref(xf);
      sign = isnan(gotf) || want != 0 || !signbit(gotf) == !signbit(want);
      ck_assert_msg(off32(t, xf) <= most && sign, "%s(%a) in f32 is %a", t->name, xf, gotf);
    }
}
END_TEST

START_TEST(exact_values) {
  for (int i = -1074; i < 1024; i++) {
    ck_assert(log2_f64(ldexp(1, i)) == i);
    ck_assert(exp2_f64(i) == ldexp(1, i));
  }
  for (int i = -149; i < 128; i++) {
    ck_assert(log2_f32(ldexpf(1, i)) == (float)i);
    ck_assert(exp2_f32((float)i) == ldexpf(1, i));
  }
  double ten = 1;
  for (int i = 0; i <= 22; i++, ten *= 10) {
    ck_assert(log10_f64(ten) == i);
    if (i <= 10) ck_assert(log10_f32((float)ten) == (float)i);
    ck_assert_msg(pow_f64(10, i) == ten, "10 ** %d", i);
  }
  for (int i = -20; i <= 20; i++)
    for (int n = 0; n <= 10; n++) {
      double want = 1;
      for (int k = 0; k < n; k++) want *= i;
      ck_assert_msg(pow_f64(i, n) == want, "%d ** %d", i, n);
      if (fabs(want) < 0x1p24) ck_assert_msg(pow_f32((float)i, (float)n) == (float)want, "%d ** %d in f32", i, n);
    }
}
END_TEST

static const double pairs[] = {0.0,
                               -0.0,
                               INFINITY,
                               -INFINITY,
                               NAN,
                               1,
                               -1,
                               2,
                               -2,
                               3,
                               -3,
                               0.5,
                               -0.5,
                               2.5,
                               5e-324,
                               -5e-324,
                               1.7976931348623157e308,
                               -1.7976931348623157e308,
                               1e-40,
                               1e-310,
                               1e30,
                               -1e30,
                               9007199254740993.0,
                               4503599627370497.5};
enum { PAIRS = sizeof pairs / sizeof *pairs };

static bool same64(double a, double b) { return (isnan(a) && isnan(b)) || (a == b && !signbit(a) == !signbit(b)); }
static bool same32(float a, float b) { return (isnan(a) && isnan(b)) || (a == b && !signbit(a) == !signbit(b)); }

/* So that eager ops, constant exponents and products agree. */
START_TEST(small_powers_are_products) {
  for (int i = 0; i < 20000 + PAIRS; i++) {
    double a = i < PAIRS ? pairs[i] : ldexp(unit() - 0.5, (int)(unit() * 2000) - 1000);
    float x = i < PAIRS ? (float)a : ldexpf((float)unit() - 0.5f, (int)(unit() * 250) - 125);
    ck_assert(same64(pow_f64(a, 1), a) && same64(pow_f64(a, 2), a * a) && same64(pow_f64(a, 3), a * a * a));
    ck_assert(same64(pow_f64(a, 4), a * a * (a * a)) && same32(pow_f32(x, 4), x * x * (x * x)));
    ck_assert(same64(pow_f64(a, -1), 1 / a) && same32(pow_f32(x, -1), 1 / x));
    ck_assert(same64(pow_f64(a, -2), 1 / a * (1 / a)) && same32(pow_f32(x, -2), 1 / x * (1 / x)));
    ck_assert(same32(pow_f32(x, 1), x) && same32(pow_f32(x, 2), x * x) && same32(pow_f32(x, 3), x * x * x));
    /* roots: of +0 for -0 and of inf for -inf */
    double p = a == -INFINITY ? INFINITY : a + 0, s = sqrt(p);
    float q = x == -INFINITY ? INFINITY : x + 0, r = sqrtf(q);
    ck_assert(same64(pow_f64(a, 0.5), s) && same32(pow_f32(x, 0.5f), r));
    ck_assert(same64(pow_f64(a, -0.5), 1 / s) && same32(pow_f32(x, -0.5f), 1 / r));
    ck_assert(same64(pow_f64(a, 1.5), p * s) && same32(pow_f32(x, 1.5f), q * r));
    ck_assert(same64(pow_f64(a, 2.5), a * a * s) && same32(pow_f32(x, 2.5f), x * x * r));
    ck_assert(same64(pow_f64(a, -1.5), sqrt(1 / p) / p) && same32(pow_f32(x, -1.5f), sqrtf(1 / q) / q));
  }
}
END_TEST

START_TEST(small_powers_are_right) {
  static const double powers[] = {2, 3, 4, -1, -2, 0.5, -0.5, 1.5, -1.5, 2.5};
  for (size_t k = 0; k < sizeof powers / sizeof *powers; k++) {
    double b = powers[k];
    for (int i = 0; i < 300000; i++) {
      double a = bitcast_u64_f64(random_bits() >> 1);
      if (i & 1) a = ldexp(1 + unit(), (int)(random_bits() % 5) - 2);
      double u = ulp64(pow_f64(a, b), powl(a, b));
      if (u > 2) ck_abort_msg("pow(%a, %g): %.2f ulp", a, b, u);
      float x = i & 1 ? (float)a : bitcast_u32_f32((u32)(random_bits() >> 33));
      if ((u = ulp32(pow_f32(x, (float)b), powl(x, b))) > 2) ck_abort_msg("pow(%a, %g) in f32: %.2f ulp", x, b, u);
    }
    for (int i = 0; i < PAIRS; i++) {
      double a = pairs[i], want = pow(a, b), got = pow_f64(a, b);
      ck_assert_msg(ulp64(got, powl(a, b)) <= 2 && (want != 0 || same64(got, want)), "pow(%a, %g) is %a", a, b, got);
    }
  }
}
END_TEST

START_TEST(power_and_angle) {
  for (int i = 0; i < PAIRS; i++)
    for (int k = 0; k < PAIRS; k++) {
      double a = pairs[i], b = pairs[k];
      ck_assert_msg(ulp64(pow_f64(a, b), pow(a, b)) <= 2 && (pow(a, b) != 0 || same64(pow_f64(a, b), pow(a, b))),
                    "pow(%a, %a)", a, b);
      ck_assert_msg(ulp64(arctan2_f64(a, b), atan2l(a, b)) <= 2 &&
                        (atan2(a, b) != 0 || same64(arctan2_f64(a, b), atan2(a, b))),
                    "arctan2(%a, %a)", a, b);
      float x = (float)a, y = (float)b;
      ck_assert_msg(ulp32(pow_f32(x, y), powf(x, y)) <= 2 && (powf(x, y) != 0 || same32(pow_f32(x, y), powf(x, y))),
                    "pow(%a, %a) in f32", x, y);
      ck_assert_msg(ulp32(arctan2_f32(x, y), atan2l(x, y)) <= 2, "arctan2(%a, %a) in f32", x, y);
    }
  for (int k = 0; k < 400000; k++) {
    double a, b;
    switch (k % 4) {
    case 0: a = bitcast_u64_f64(random_bits()), b = bitcast_u64_f64(random_bits()); break;
    case 1: a = exp2(unit() * 60 - 30), b = (unit() - 0.5) * 80; break;
    case 2: /* near 1, to large powers */
      a = 1 + ldexp(unit(), -(int)(random_bits() % 40)) * (random_bits() & 1 ? 1 : -1);
      b = 709 / log(a) * (2 * unit() - 1);
      break;
    default: a = 2 * unit() - 1, b = 2 * unit() - 1;
    }
    double u = ulp64(pow_f64(a, b), powl(a, b));
    if (u > 2) ck_abort_msg("pow(%a, %a): %.2f ulp", a, b, u);
    if ((u = ulp64(arctan2_f64(a, b), atan2l(a, b))) > 2) ck_abort_msg("arctan2(%a, %a): %.2f ulp", a, b, u);
    float x = (float)a, y = (float)b;
    if ((u = ulp32(pow_f32(x, y), powl(x, y))) > 2) ck_abort_msg("pow(%a, %a) in f32: %.2f ulp", x, y, u);
    if ((u = ulp32(arctan2_f32(x, y), atan2l(x, y))) > 2) ck_abort_msg("arctan2(%a, %a) in f32: %.2f ulp", x, y, u);
  }
}
END_TEST

/* The remainder is exact, with the divisor's sign; the quotient is the floor. */
static double mod_ref(double a, double b) {
  double m = fmod(a, b);
  if (isnan(m)) return m;
  if (m == 0) return copysign(0, b);
  return (m < 0) != (b < 0) ? m + b : m;
}
static float mod_ref32(float a, float b) {
  float m = fmodf(a, b);
  if (isnan(m)) return m;
  if (m == 0) return copysignf(0, b);
  return (m < 0) != (b < 0) ? m + b : m;
}

START_TEST(division_with_floor) {
  for (int i = 0; i < PAIRS; i++)
    for (int k = 0; k < PAIRS; k++) {
      double a = pairs[i], b = pairs[k];
      ck_assert_msg(same64(mod_f64(a, b), mod_ref(a, b)), "mod(%a, %a) is %a", a, b, mod_f64(a, b));
      ck_assert_msg(same32(mod_f32((float)a, (float)b), mod_ref32((float)a, (float)b)), "mod(%a, %a) in f32", a, b);
    }
  for (int k = 0; k < 300000; k++) {
    double a = k & 1 ? bitcast_u64_f64(random_bits()) : (double)(int64_t)(random_bits() % 2000000) / 8 - 1e5;
    double b = k & 1 ? bitcast_u64_f64(random_bits()) : (double)(int64_t)(random_bits() % 100) - 50;
    if (!same64(mod_f64(a, b), mod_ref(a, b))) ck_abort_msg("mod(%a, %a) is %a", a, b, mod_f64(a, b));
    float x = (float)a, y = (float)b;
    if (!same32(mod_f32(x, y), mod_ref32(x, y))) ck_abort_msg("mod(%a, %a) in f32 is %a", x, y, mod_f32(x, y));
    if (b != 0 && fabs(a / b) < 0x1p50 && floordiv_f64(a, b) != floor((a - mod_ref(a, b)) / b + 0.5))
      ck_abort_msg("%a // %a", a, b);
  }
  ck_assert(floordiv_f64(1.0, 0.1) == 9);
  ck_assert(floordiv_f64(-1, INFINITY) == -1);
  ck_assert(isnan(floordiv_f64(INFINITY, 3)) && isnan(floordiv_f32(-INFINITY, 3)) &&
            floordiv_f64(INFINITY, 0) == INFINITY);
  ck_assert(mod_f64(-1, INFINITY) == INFINITY);
}
END_TEST

START_TEST(integers) {
  static const int64_t v[] = {INT64_MIN, INT64_MIN + 1, -7, -3, -1, 0, 1, 2, 3, 7, INT64_MAX};
  for (int i = 0; i < 11; i++)
    for (int k = 0; k < 11; k++) {
      int64_t a = v[i], b = v[k], q = 0, r = 0;
      if (b == -1)
        q = (int64_t)(0 - (uint64_t)a);
      else if (b != 0) {
        q = a / b;
        r = a % b;
        if (r != 0 && (r < 0) != (b < 0)) q--, r += b;
      }
      ck_assert_int_eq(idiv_i64(a, b), q);
      ck_assert_int_eq(imod_i64(a, b), r);
      i8 c = (i8)((uint64_t)a * 3 + (uint64_t)i), d = (i8)((uint64_t)b * 5 + (uint64_t)k);
      if (d != 0 && d != -1) {
        int p = c / d, s = c % d;
        if (s != 0 && (s < 0) != (d < 0)) p--, s += d;
        ck_assert_int_eq(idiv_i8(c, d), p);
        ck_assert_int_eq(imod_i8(c, d), s);
      }
    }
  ck_assert_int_eq(ipow_i64(-3, 5), -243);
  ck_assert_int_eq(ipow_i64(7, 0), 1);
  ck_assert_int_eq(ipow_i64(7, -1), 0);
  ck_assert_int_eq(ipow_u8(3, 6), 729 % 256);
  ck_assert_int_eq(abs_i8(-128), -128);
  ck_assert_int_eq(shr_i32(-8, 1), -4);
  ck_assert_int_eq(shl_i16(1, 17), 2);
  ck_assert_uint_eq(mulhi_u64(UINT64_MAX, UINT64_MAX), UINT64_MAX - 1);
}
END_TEST

START_TEST(minimum_and_maximum) {
  ck_assert(signbit(min_f32(-0.0f, 0.0f)) && signbit(min_f32(0.0f, -0.0f)));
  ck_assert(!signbit(max_f32(-0.0f, 0.0f)) && !signbit(max_f32(0.0f, -0.0f)));
  ck_assert(isnan(min_f32(NAN, 1)) && isnan(min_f32(1, NAN)) && isnan(max_f64(NAN, 1)) && isnan(max_f64(1, NAN)));
  ck_assert(min_f64(2, -3) == -3 && max_f64(2, -3) == 2);
  ck_assert(smul_f64(0, INFINITY) == 0 && smul_f64(NAN, 0) == 0 && smul_f64(2, 3) == 6);
  ck_assert(sign_f32(-2) == -1 && sign_f32(0) == 0 && isnan(sign_f32(NAN)));
}
END_TEST

/* Casts: half floats round to nearest even, once; floats to integers truncate, and give 0 where there is none. */
START_TEST(casts) {
  for (u32 h = 0; h < 65536; h++) {
    f32 x = cast_f16_f32((f16)h);
    float y = f16_to_f32((uint16_t)h);
    if (x != y && (x == x || y == y)) ck_abort_msg("f16 %x", h);
    if (x == x && cast_f32_f16(x) != h) ck_abort_msg("f32 %a to f16", x);
    f32 b = cast_bf16_f32((bf16)h);
    if (b == b && cast_f32_bf16(b) != h) ck_abort_msg("f32 %a to bf16", b);
  }
  for (int k = 0; k < 500000; k++) {
    double d = k & 1 ? bitcast_u64_f64(random_bits()) : (unit() - 0.5) * exp2((double)(random_bits() % 300) - 150);
    float x = (float)d;
    bool half = d != d || (cast_f64_f16(d) == f64_to_f16(d) && cast_f64_bf16(d) == f64_to_bf16(d) &&
                           cast_f32_f16(x) == f64_to_f16(x) && cast_f32_bf16(x) == f64_to_bf16(x));
    if (!half) ck_abort_msg("%a or f32 %a to half floats", d, x);
    if (cast_f64_i32(d) != (d > -2147483649.0 && d < 2147483648.0 ? (int32_t)d : 0)) ck_abort_msg("%a to i32", d);
    if (cast_f32_i64(x) != (x >= -0x1p63f && x < 0x1p63f ? (int64_t)x : 0)) ck_abort_msg("f32 %a to i64", x);
    if (cast_f32_u8(x) != (x > -1 && x < 256 ? (uint8_t)(int)x : 0)) ck_abort_msg("f32 %a to u8", x);
  }
  ck_assert_int_eq(cast_f64_i64(-0x1p63), INT64_MIN);
  ck_assert_int_eq(cast_f32_i8(-128.9f), -128);
  ck_assert_int_eq(cast_f32_i8(-129.0f), 0);
  ck_assert_int_eq(cast_f64_b8(NAN), 1);
}
END_TEST

/* Names of functions resolve, what is printed defines everything it uses, each once. */
START_TEST(printed_texts) {
  math_uses u = {0};
  char name[48];
  math_name(name, sizeof name, MATH_sin, QN_f64, QN_f64);
  ck_assert_str_eq(name, "sin_f64");
  math_use(&u, name);
  math_name(name, sizeof name, MATH_philox_uniform, QN_f32, QN_u64);
  ck_assert_str_eq(name, "philox_uniform_f32");
  math_use(&u, name);
  math_name(name, sizeof name, MATH_isnan, QN_bool, QN_f32);
  math_use(&u, name);
  math_use(&u, "cast_i64_bf16");
  ck_assert(!u.failed);
  for (int target = MATH_TARGET_C; target <= MATH_TARGET_CUDA; target++) {
    text_buf out = {0};
    math_print(&u, (math_target)target, &out);
    text_add(&out, "", 1);
    ck_assert(!out.failed);
    ck_assert_ptr_nonnull(strstr(out.text, " sin_slow_f64(f64 a) {"));
    ck_assert_ptr_nonnull(strstr(out.text, " mulhi_u64("));
    ck_assert_ptr_null(strstr(out.text, " exp_f64("));
    const char *once = strstr(out.text, " fma_f64(f64 a");
    ck_assert(once && !strstr(once + 1, " fma_f64(f64 a"));
    text_free(&out);
  }
  math_use(&u, "no_such_thing");
  ck_assert(u.failed);
}
END_TEST

int main(void) {
  Suite *s = suite_create("math");
  CASE(tcase_create("within_two_ulp"), within_two_ulp);
  CASE(tcase_create("special_values"), special_values, exact_values, minimum_and_maximum);
  CASE(tcase_create("two_operands"), small_powers_are_products, small_powers_are_right, power_and_angle,
       division_with_floor);
  CASE(tcase_create("integers_and_casts"), integers, casts);
  CASE(tcase_create("printed_texts"), printed_texts, every_function_has_a_row, everything_has_a_cost);
  return run_suite(s);
}
