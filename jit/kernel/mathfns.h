/* Functions made of kernel primitives; their bodies, per dtype, are in math.def. MATHS(X, T) is X(name, arity, types, kind, T, meaning)
 * for each; T is handed on, for lists by type. A new function needs a row here and its bodies there.
 *
 * types  that eager loops take: REAL f32 f64; NUM also integers; ALL also bool. Kernels use f32 and f64 alone
 * kind   PLAIN: the result has the operands' type
 *        RARE: likewise, and floats have a fast form, for most elements, and a slow one (MATH_RARE1 and 2 in math.def)
 *        POW: likewise, and powers by simple numbers have loops of their own
 *        TEST: the result is bool
 *        WORD: the operand is a u64 word */
#ifndef QUERN_JIT_KERNEL_MATHFNS_H
#define QUERN_JIT_KERNEL_MATHFNS_H
/* clang-format off */
#define MATHS(X, T)                                                                                       \
  X(exp, 1, REAL, PLAIN, T, "e to the power a")                                                           \
  X(exp2, 1, REAL, PLAIN, T, "2 to the power a")                                                          \
  X(expm1, 1, REAL, PLAIN, T, "exp(a) - 1")                                                               \
  X(log, 1, REAL, PLAIN, T, "natural logarithm")                                                          \
  X(log2, 1, REAL, PLAIN, T, "logarithm to base 2")                                                       \
  X(log10, 1, REAL, PLAIN, T, "logarithm to base 10")                                                     \
  X(log1p, 1, REAL, PLAIN, T, "log(1 + a)")                                                               \
  X(sin, 1, REAL, RARE, T, "sine")                                                                        \
  X(cos, 1, REAL, RARE, T, "cosine")                                                                      \
  X(tan, 1, REAL, RARE, T, "tangent")                                                                     \
  X(arcsin, 1, REAL, PLAIN, T, "inverse sine")                                                            \
  X(arccos, 1, REAL, PLAIN, T, "inverse cosine")                                                          \
  X(arctan, 1, REAL, PLAIN, T, "inverse tangent")                                                         \
  X(arctan2, 2, REAL, PLAIN, T, "angle of the point (b, a)")                                              \
  X(sinh, 1, REAL, PLAIN, T, "hyperbolic sine")                                                           \
  X(cosh, 1, REAL, PLAIN, T, "hyperbolic cosine")                                                         \
  X(tanh, 1, REAL, PLAIN, T, "hyperbolic tangent")                                                        \
  X(sigmoid, 1, REAL, PLAIN, T, "1 / (1 + exp(-a))")                                                      \
  X(erf, 1, REAL, PLAIN, T, "error function")                                                             \
  X(silu, 1, REAL, PLAIN, T, "a / (1 + exp(-a))")                                                         \
  X(gelu, 1, REAL, PLAIN, T, "a times the normal distribution function of a")                             \
  X(gelu_slope, 1, REAL, PLAIN, T, "the derivative of gelu")                                              \
  X(gelu_tanh, 1, REAL, PLAIN, T, "a / (1 + exp(-w)), w = 2 sqrt(2/pi) (a + 0.044715 a^3)")               \
  X(rsqrt, 1, REAL, PLAIN, T, "1 / sqrt(a)")                                                              \
  X(pow, 2, NUM, POW, T, "a to the power b")                                                              \
  X(smul, 2, NUM, PLAIN, T, "a * b, 0 where 0 meets inf or nan")                                          \
  X(sign, 1, NUM, PLAIN, T, "-1, 0, 1; nan of nan")                                                       \
  X(floordiv, 2, NUM, PLAIN, T, "floor(a / b)")                                                           \
  X(mod, 2, NUM, RARE, T, "a - b * floor(a / b), with the sign of b")                                     \
  X(isnan, 1, ALL, TEST, T, "a != a, a bool")                                                             \
  X(isinf, 1, ALL, TEST, T, "|a| is inf, a bool")                                                         \
  X(isfinite, 1, ALL, TEST, T, "|a| < inf, a bool")                                                       \
  X(philox_uniform, 1, REAL, WORD, T, "top 24 (f32) or 53 (f64) bits of a u64 word as a float in [0, 1)")
/* clang-format on */
#endif
