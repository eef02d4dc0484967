/* The kernel primitives and elementary functions as C: every row of prims.def and math.def is a static inline function here.
 * For code that computes with them (the block VM's loops, host scalars, tests); printers use the texts of math.h instead. */
#ifndef JIT_KERNEL_PRIMS_H
#define JIT_KERNEL_PRIMS_H

#include <stdint.h>

typedef unsigned char b8;
typedef uint8_t u8;
typedef int8_t i8;
typedef uint16_t u16;
typedef int16_t i16;
typedef uint32_t u32;
typedef int32_t i32;
typedef uint64_t u64;
typedef int64_t i64;
typedef uint16_t f16;
typedef uint16_t bf16;
typedef float f32;
typedef double f64;

/* The target's words (math.c has those of the printed targets). */
#define FMA32 __builtin_fmaf
#define FMA64 __builtin_fma
#define FLOOR32 __builtin_floorf
#define FLOOR64 __builtin_floor
#define CEIL32 __builtin_ceilf
#define CEIL64 __builtin_ceil
#define RINT32 __builtin_rintf
#define RINT64 __builtin_rint
#define TRUNC32 __builtin_truncf
#define TRUNC64 __builtin_trunc
#define SQRT32 __builtin_sqrtf
#define SQRT64 __builtin_sqrt
#define MULHI64(a, b) ((u64)((unsigned __int128)(a) * (b) >> 64))
#define INF32 __builtin_inff()
#define INF64 __builtin_inf()
#define NAN32 __builtin_nanf("")
#define NAN64 __builtin_nan("")
#define F32(x) x##f
#define F64(x) x
#define I32(x) x
#define U32(x) x##u
#define U64(x) x##ull

/* Whole bodies must come together in a loop for it to become vector code, whatever the compiler thinks of its size. */
#define FN static inline __attribute__((always_inline))
#define FN_SLOW static __attribute__((noinline, unused))
#define PRIM(R, name, params, ...)                                                                                     \
  FN R name params { __VA_ARGS__ }
#include "jit/kernel/prims.def"

#define HELPER(R, name, params, ...)                                                                                   \
  FN R name params { __VA_ARGS__ }
#define SLOW(R, name, params, ...)                                                                                     \
  FN_SLOW R name params { __VA_ARGS__ }
#define MATH1(R, name, T, ...)                                                                                         \
  FN R name##_##T(T a) { __VA_ARGS__ }
#define MATH2(R, name, T, ...)                                                                                         \
  FN R name##_##T(T a, T b) { __VA_ARGS__ }
#define MATH_RARE1(name, T)                                                                                            \
  FN T name##_##T(T a) { return name##_rare_##T(a) ? name##_slow_##T(a) : name##_fast_##T(a); }
#define MATH_RARE2(name, T)                                                                                            \
  FN T name##_##T(T a, T b) { return name##_rare_##T(a, b) ? name##_slow_##T(a, b) : name##_fast_##T(a, b); }
#include "jit/kernel/math.def"

#endif
