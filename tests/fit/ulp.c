/* How far the elementary functions of f32 are from the right values, over every n-th of all 2^32 arguments, or, where STEP is 0, over all
 * from 2^-24 to 128 in size:
 *
 *   gcc -O2 -march=native -ffp-contract=off -fno-math-errno -I. tests/fit/ulp.c -o ulp -lm && ./ulp [STEP [NAME...]]
 *
 * Units are those of the right value; those of 1/4, if they are larger, for gelu_slope from -1.5 on, around its zero. Right values are libm's in f64,
 * which are within a few of its units: less than a billionth of a unit of f32. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TEXT
#include TEXT
#else
#include "jit/kernel/prims.h"
#endif

static double sigmoid_r(double x) { return x > 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x)); }
static double silu_r(double x) { return isinf(x) && x < 0 ? -0.0 : x * sigmoid_r(x); }
static double gelu_r(double x) {
  if (isinf(x)) return x < 0 ? -0.0 : x;
  return (double)(x * (erfcl(-(long double)x * 0.70710678118654752440084436210485L) / 2));
}
static double gelu_tanh_r(double x) {
  if (isinf(x)) return x < 0 ? -0.0 : x;
  return (double)(x / (1 + expl(-1.59576912160573071175978423973752747L * ((long double)x + 0.044715L * x * x * x))));
}
static double gelu_slope_r(double x) {
  if (x < -38) return -0.0;
  return erfc(-x * 0.70710678118654752440) / 2 + x * exp(-x * x / 2) * 0.39894228040143267794;
}
static double rsqrt_r(double x) { return 1 / sqrt(x); }

/* clang-format off */
#define FUNCTIONS(X)                                                                                              \
  X(exp, exp) X(exp2, exp2) X(expm1, expm1) X(log, log) X(log2, log2) X(log10, log10) X(log1p, log1p) X(sin, sin) \
  X(cos, cos) X(tan, tan) X(arcsin, asin) X(arccos, acos) X(arctan, atan) X(sinh, sinh) X(cosh, cosh)             \
  X(tanh, tanh) X(sigmoid, sigmoid_r) X(erf, erf) X(silu, silu_r) X(gelu, gelu_r) X(gelu_tanh, gelu_tanh_r)     \
  X(rsqrt, rsqrt_r) X(gelu_slope, gelu_slope_r)
/* clang-format on */

/* In units of the last place of the right value, of 2^(floor - 1) at least; infinity counts as the power of two after the largest number; 1e9
 * where kinds differ. */
static double ulp(float got, double want, int floor) {
  if (isnan(got) || isnan(want)) return isnan(got) && isnan(want) ? 0 : 1e9;
  double g = isinf(got) ? copysign(0x1p128, got) : got;
  if (fabs(want) > 0x1p128) want = copysign(0x1p128, want);
  int e;
  frexp(want, &e);
  if (fabs(want) == 0x1p128) e--;
  if (want == 0 || e < floor) e = floor;
  return fabs(g - want) / ldexp(1, e - 24);
}

#define MAKE(name, ref)                                                                                                \
  static void run_##name(unsigned long step) {                                                                         \
    double most = 0, mean = 0;                                                                                         \
    float at = 0;                                                                                                      \
    unsigned long n = 0, signs = 0;                                                                                    \
    for (unsigned long b = 0; b < 1ul << 32; b += step ? step : 1, n++) {                                              \
      if (!step && (b & 0x7fffffff) - 0x33800000 >= 0x0f800000) continue;                                              \
      float x = bitcast_u32_f32((u32)b), y = name##_f32(x);                                                            \
      double want = ref(x), u = ulp(y, want, ref == gelu_slope_r && x > -1.5 ? -1 : -125);                             \
      if (want == 0 && !isnan(y) && !signbit(y) != !signbit(want)) signs++;                                            \
      mean += u;                                                                                                       \
      if (u > most) most = u, at = x;                                                                                  \
    }                                                                                                                  \
    printf("%-10s %.3f at %a (gives %a, right %a), mean %.3f, wrong signs of zero %lu\n", #name, most, at,             \
           name##_f32(at), ref(at), mean / (double)n, signs);                                                          \
    fflush(stdout);                                                                                                    \
  }
FUNCTIONS(MAKE)

int main(int argc, char **argv) {
  unsigned long step = argc > 1 ? strtoul(argv[1], NULL, 10) : 1009;
#define RUN(name, ref)                                                                                                 \
  for (int i = 2; i < argc || (argc < 3 && i == 2); i++)                                                               \
    if (argc < 3 || strcmp(argv[i], #name) == 0) run_##name(step);
  FUNCTIONS(RUN)
  return 0;
}
