/* The loops of block_vm_loops.h, made from the rows of prims.def and math.def by macros. Compiled once per instruction set: VM_ISA
 * names the table, and the compiler's vectoriser does the rest (`omp simd`: iterations are independent, see the contract on
 * aliasing). Elements that need the slow form of a function are repaired after the fast form ran over 64 of them. */
#include "jit/cpu/block_vm_loops.h"

#include <string.h>

#include "jit/cpu/sortloops.h"
#include "jit/kernel/prims.h"

#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"
#endif
#if defined(__F16C__) || defined(__AVX2__)
#include <immintrin.h>
#endif

/* Macros over macros, whose rows the formatter does not know. */
/* clang-format off */

#define SIMD _Pragma("omp simd")
/* In the body of a loop with few turns: keeps compilers from vectorising it, since preparing vectors costs more than the turns. */
#define SCALAR __asm__ volatile("");

/* ---- one operand ---- */
#define LOOP1(NAME, T, R, F)                                                                                           \
  static void NAME(void *o, const void *a, const void *b, const void *c, int mode, int64_t n) {                        \
    R *out = o;                                                                                                        \
    const T *x = a;                                                                                                    \
    (void)b, (void)c;                                                                                                  \
    if (!(mode & VM_A)) {                                                                                              \
      R v = F(x[0]);                                                                                                   \
      SIMD for (int64_t i = 0; i < n; i++) out[i] = v;                                                                 \
      return;                                                                                                          \
    }                                                                                                                  \
    SIMD for (int64_t i = 0; i < n; i++) out[i] = F(x[i]);                                                             \
  }
/* ---- two operands, one loop per mode: for cheap operations ---- */
#define LOOP2(NAME, T, R, F)                                                                                           \
  static void NAME(void *o, const void *a, const void *b, const void *c, int mode, int64_t n) {                        \
    R *out = o;                                                                                                        \
    const T *x = a, *y = b;                                                                                            \
    (void)c;                                                                                                           \
    if ((mode & (VM_A | VM_B)) == (VM_A | VM_B)) {                                                                     \
      SIMD for (int64_t i = 0; i < n; i++) out[i] = F(x[i], y[i]);                                                     \
    } else if (mode & VM_A) {                                                                                          \
      T v = y[0];                                                                                                      \
      SIMD for (int64_t i = 0; i < n; i++) out[i] = F(x[i], v);                                                        \
    } else if (mode & VM_B) {                                                                                          \
      T u = x[0];                                                                                                      \
      SIMD for (int64_t i = 0; i < n; i++) out[i] = F(u, y[i]);                                                        \
    } else {                                                                                                           \
      R v = F(x[0], y[0]);                                                                                             \
      if (n == 1) {                                                                                                    \
        out[0] = v;                                                                                                    \
        return;                                                                                                        \
      }                                                                                                                \
      SIMD for (int64_t i = 0; i < n; i++) out[i] = v;                                                                 \
    }                                                                                                                  \
  }
/* ---- two and three operands, scalars repeated in a small array: one loop ---- */
enum { SPLAT = 256 };
#define SPLAT_OF(T, name, p, bit)                                                                                      \
  T name##_splat[SPLAT];                                                                                               \
  const T *name = p;                                                                                                   \
  if (!(mode & bit)) {                                                                                                 \
    T v = name[0];                                                                                                     \
    SIMD for (int64_t i = 0; i < (n < SPLAT ? n : SPLAT); i++) name##_splat[i] = v;                                    \
    name = name##_splat;                                                                                               \
  }
#define LOOP2_SPLAT(NAME, T, R, F, HOW)                                                                                \
  static void NAME(void *o, const void *a, const void *b, const void *c, int mode, int64_t n) {                        \
    R *out = o;                                                                                                        \
    (void)c;                                                                                                           \
    SPLAT_OF(T, x, a, VM_A)                                                                                            \
    SPLAT_OF(T, y, b, VM_B)                                                                                            \
    for (int64_t j = 0; j < n; j += SPLAT) {                                                                           \
      int64_t m = n - j < SPLAT ? n - j : SPLAT;                                                                       \
      HOW for (int64_t i = 0; i < m; i++) out[i] = F(x[i], y[i]);                                                      \
      out += SPLAT, x += mode & VM_A ? SPLAT : 0, y += mode & VM_B ? SPLAT : 0;                                        \
    }                                                                                                                  \
  }
#define LOOP3_SPLAT(NAME, S, T, R, F)                                                                                  \
  static void NAME(void *o, const void *a, const void *b, const void *c, int mode, int64_t n) {                        \
    R *out = o;                                                                                                        \
    if (n <= 8) {                                                                                                      \
      const S *p = a;                                                                                                  \
      const T *q = b, *s = c;                                                                                          \
      int sp = mode & VM_A ? 1 : 0, sq = mode & VM_B ? 1 : 0, ss = mode & VM_C ? 1 : 0;                                \
      for (int64_t i = 0; i < n; i++, p += sp, q += sq, s += ss) { SCALAR out[i] = F(*p, *q, *s); }                    \
      return;                                                                                                          \
    }                                                                                                                  \
    SPLAT_OF(S, x, a, VM_A)                                                                                            \
    SPLAT_OF(T, y, b, VM_B)                                                                                            \
    SPLAT_OF(T, z, c, VM_C)                                                                                            \
    for (int64_t j = 0; j < n; j += SPLAT) {                                                                           \
      int64_t m = n - j < SPLAT ? n - j : SPLAT;                                                                       \
      SIMD for (int64_t i = 0; i < m; i++) out[i] = F(x[i], y[i], z[i]);                                               \
      out += SPLAT, x += mode & VM_A ? SPLAT : 0, y += mode & VM_B ? SPLAT : 0, z += mode & VM_C ? SPLAT : 0;          \
    }                                                                                                                  \
  }
/* ---- functions with a slow form for rare elements: 64 at a time, so that operands may be overwritten ---- */
enum { RARE = 64 };
#define REPAIR1(F, T)                                                                                                  \
  static __attribute__((noinline)) void repair_##F##_##T(T *out, const T *x, int64_t n) {                              \
    for (int64_t i = 0; i < n; i++)                                                                                    \
      if (F##_rare_##T(x[i])) out[i] = F##_slow_##T(x[i]);                                                             \
  }
#define REPAIR2(F, T)                                                                                                  \
  static __attribute__((noinline)) void repair_##F##_##T(T *out, const T *x, const T *y, int64_t n) {                  \
    for (int64_t i = 0; i < n; i++)                                                                                    \
      if (F##_rare_##T(x[i], y[i])) out[i] = F##_slow_##T(x[i], y[i]);                                                 \
  }
#define LOOP1_RARE(NAME, T, F)                                                                                         \
  static void NAME(void *o, const void *a, const void *b, const void *c, int mode, int64_t n) {                        \
    T *out = o;                                                                                                        \
    const T *x = a;                                                                                                    \
    (void)b, (void)c;                                                                                                  \
    for (int64_t j = 0; j < n; j += RARE, out += RARE) {                                                               \
      int64_t m = n - j < RARE ? n - j : RARE;                                                                         \
      T t[RARE];                                                                                                       \
      int rare = 0;                                                                                                    \
      for (int64_t i = 0; i < m; i++) t[i] = x[mode & VM_A ? i : 0];                                                   \
      _Pragma("omp simd reduction(| : rare)") for (int64_t i = 0; i < m; i++) rare |= F##_rare_##T(t[i]);              \
      SIMD for (int64_t i = 0; i < m; i++) out[i] = F##_fast_##T(t[i]);                                                \
      if (rare) repair_##F##_##T(out, t, m);                                                                           \
      if (mode & VM_A) x += RARE;                                                                                      \
    }                                                                                                                  \
  }
#define LOOP2_RARE(NAME, T, F)                                                                                         \
  static void NAME(void *o, const void *a, const void *b, const void *c, int mode, int64_t n) {                        \
    T *out = o;                                                                                                        \
    const T *x = a, *y = b;                                                                                            \
    (void)c;                                                                                                           \
    for (int64_t j = 0; j < n; j += RARE, out += RARE) {                                                               \
      int64_t m = n - j < RARE ? n - j : RARE;                                                                         \
      T t[RARE], u[RARE];                                                                                              \
      int rare = 0;                                                                                                    \
      for (int64_t i = 0; i < m; i++) t[i] = x[mode & VM_A ? i : 0], u[i] = y[mode & VM_B ? i : 0];                    \
      _Pragma("omp simd reduction(| : rare)") for (int64_t i = 0; i < m; i++) rare |= F##_rare_##T(t[i], u[i]);        \
      SIMD for (int64_t i = 0; i < m; i++) out[i] = F##_fast_##T(t[i], u[i]);                                          \
      if (rare) repair_##F##_##T(out, t, u, m);                                                                        \
      if (mode & VM_A) x += RARE;                                                                                      \
      if (mode & VM_B) y += RARE;                                                                                      \
    }                                                                                                                  \
  }

/* ---- which primitives have which types ---- */
#define REALS(X) X(f32) X(f64)
#define WORDS(X) X(u8) X(i8) X(i16) X(i32) X(i64) X(u32) X(u64)
#define NUMBERS(X) REALS(X) WORDS(X)
#define COMPUTED(X) NUMBERS(X) X(b8)
#define COUNTED(T) +1
_Static_assert(0 COMPUTED(COUNTED) COUNTED(f16) COUNTED(bf16) == DTYPE_PUBLIC + 2, "loops for every public dtype, u32 and u64");

#define KOPS_ALL2(X, T) X(min, T, T) X(max, T, T) X(eq, T, b8) X(ne, T, b8) X(lt, T, b8) X(le, T, b8) X(gt, T, b8) X(ge, T, b8)
#define KOPS_NUM2(X, T) X(add, T, T) X(sub, T, T) X(mul, T, T)
#define KOPS_NUM1(X, T) X(neg, T, T) X(abs, T, T)
#define KOPS_BIT2(X, T) X(and, T, T) X(or, T, T) X(xor, T, T)
#define KOPS_REAL1(X, T) X(floor, T, T) X(ceil, T, T) X(rint, T, T) X(trunc, T, T) X(sqrt, T, T)
#define KOPS_INT2(X, T) X(shl, T, T) X(shr, T, T)
#define KOPS_SLOW2(X, T) X(idiv, T, T) X(imod, T, T) X(ipow, T, T)

#define NAME1(F, T, R) LOOP1(kop_##F##_##T, T, R, F##_##T)
#define NAME2(F, T, R) LOOP2(kop_##F##_##T, T, R, F##_##T)
#define NAME2S(F, T, R) LOOP2_SPLAT(kop_##F##_##T, T, R, F##_##T, SIMD)
#define NAME2P(F, T, R) LOOP2_SPLAT(kop_##F##_##T, T, R, F##_##T, )

/* common types have a loop for each mode, the others one for all modes */
#define NAME2_f32 NAME2
#define NAME2_f64 NAME2
#define NAME2_i32 NAME2
#define NAME2_i64 NAME2
#define NAME2_b8 NAME2
#define NAME2_u8 NAME2S
#define NAME2_i8 NAME2S
#define NAME2_i16 NAME2S
#define NAME2_u32 NAME2S
#define NAME2_u64 NAME2S
#define MAKE_ALL(T) KOPS_ALL2(NAME2_##T, T)
#define MAKE_NUM(T) KOPS_NUM2(NAME2_##T, T) KOPS_NUM1(NAME1, T)
#define MAKE_REAL(T)                                                                                                   \
  KOPS_REAL1(NAME1, T) NAME2(div, T, T) LOOP3_SPLAT(kop_fma_##T, T, T, T, fma_##T)
#define MAKE_INT(T) KOPS_BIT2(NAME2_##T, T) NAME1(not, T, T) KOPS_INT2(NAME2_##T, T) KOPS_SLOW2(NAME2P, T)
COMPUTED(MAKE_ALL)
NUMBERS(MAKE_NUM)
REALS(MAKE_REAL)
WORDS(MAKE_INT)
KOPS_BIT2(NAME2, b8)
NAME1(not, b8, b8)
NAME2S(mulhi, u32, u32)
NAME2P(mulhi, u64, u64)

#define SELECT_BITS(c, a, b) ((c) ? (a) : (b))
#define BITS_OF(a) (a)
#define SIZES(X) X(u8) X(u16) X(u32) X(u64)
#define MAKE_SIZE(U)                                                                                                   \
  LOOP1(bits_copy_##U, U, U, BITS_OF)                                                                                       \
  static void bits_fill_##U(void *o, const void *a, const void *b, const void *c, int mode, int64_t n) {                    \
    bits_copy_##U(o, a, b, c, mode & 0, n);                                                                                 \
  }                                                                                                                    \
  LOOP3_SPLAT(bits_select_##U, b8, U, U, SELECT_BITS)                                                                       \
  static void bits_load_##U(void *o, const void *from, int64_t stride, int64_t n) {                                         \
    U *out = o;                                                                                                        \
    const U *x = from;                                                                                                 \
    for (int64_t i = 0; i < n; i++) out[i] = x[i * stride];                                                            \
  }                                                                                                                    \
  static void bits_store_##U(void *to, const void *from, int64_t stride, int64_t n) {                                       \
    U *out = to;                                                                                                       \
    const U *x = from;                                                                                                 \
    for (int64_t i = 0; i < n; i++) out[i * stride] = x[i];                                                            \
  }                                                                                                                    \
  static void bits_gather_##U(void *o, const void *base, const int64_t *index, int64_t vstride, int64_t n) {                \
    U *out = o;                                                                                                        \
    const U *x = base;                                                                                                 \
    for (int64_t i = 0; i < n; i++) out[i] = x[index[i] * vstride];                                                    \
  }
SIZES(MAKE_SIZE)
#define MAKE_PUT(U)                                                                                                    \
  static void bits_put_##U(void *base, const int64_t *at, const void *v, int64_t step, int64_t n) {                    \
    U *out = base;                                                                                                     \
    const U *x = v;                                                                                                    \
    for (int64_t i = 0; i < n; i++, x += step) { SCALAR out[at[i]] = *x; }                                             \
  }
SIZES(MAKE_PUT)

/* ---- conversions ---- */
#define CAST(S, T) LOOP1(cast_loop_##S##_##T, S, T, cast_##S##_##T)
#define CASTS_INT(X, S) X(S, u8) X(S, i8) X(S, i16) X(S, i32) X(S, i64) X(S, u32) X(S, u64)
#define CASTS_OTHER(X, S) X(S, b8) X(S, f32) X(S, f64)
#define CASTS_HALF(X, S) X(S, f16) X(S, bf16)
#define EACH_CAST(X)                                                                                                   \
  CASTS_INT(X, b8) X(b8, f32) X(b8, f64) CASTS_HALF(X, b8)                                                             \
  CASTS_INT(X, u8) CASTS_OTHER(X, u8) CASTS_HALF(X, u8)                                                                \
  CASTS_INT(X, i8) CASTS_OTHER(X, i8) CASTS_HALF(X, i8)                                                                \
  CASTS_INT(X, i16) CASTS_OTHER(X, i16) CASTS_HALF(X, i16)                                                             \
  CASTS_INT(X, i32) CASTS_OTHER(X, i32) CASTS_HALF(X, i32)                                                             \
  CASTS_INT(X, i64) CASTS_OTHER(X, i64) CASTS_HALF(X, i64)                                                             \
  CASTS_INT(X, u32) CASTS_OTHER(X, u32) CASTS_HALF(X, u32)                                                             \
  CASTS_INT(X, u64) CASTS_OTHER(X, u64) CASTS_HALF(X, u64)                                                             \
  CASTS_INT(X, f32) X(f32, b8) X(f32, f64)                                                                             \
  CASTS_INT(X, f64) X(f64, b8) X(f64, f32) CASTS_HALF(X, f64)                                                          \
  CASTS_INT(X, f16) X(f16, b8) X(f16, f64) X(f16, bf16)                                                                \
  CASTS_INT(X, bf16) X(bf16, b8) X(bf16, f64) X(bf16, f16)
EACH_CAST(CAST)

/* Up to 16 conversions between bf16 and f32 go four at a time: the vectorised loop for many prepares longer than they take. */
#define CAST_FOURS(S, T)                                                                                               \
  LOOP1(cast_many_##S##_##T, S, T, cast_##S##_##T)                                                                     \
  static void cast_loop_##S##_##T(void *o, const void *a, const void *b, const void *c, int mode, int64_t n) {         \
    T *out = o;                                                                                                        \
    const S *x = a;                                                                                                    \
    if (n > 16 || !(mode & VM_A)) {                                                                                    \
      cast_many_##S##_##T(o, a, b, c, mode, n);                                                                        \
      return;                                                                                                          \
    }                                                                                                                  \
    for (; n >= 4; n -= 4, x += 4, out += 4) {                                                                         \
      SCALAR S from[4];                                                                                                \
      T to[4];                                                                                                         \
      memcpy(from, x, sizeof from);                                                                                    \
      SIMD for (int i = 0; i < 4; i++) to[i] = cast_##S##_##T(from[i]);                                                \
      memcpy(out, to, sizeof to);                                                                                      \
    }                                                                                                                  \
    for (; n > 0; n--) { SCALAR *out++ = cast_##S##_##T(*x++); }                                                       \
  }
CAST_FOURS(f32, bf16)
CAST_FOURS(bf16, f32)

#if defined(__F16C__)
#define NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define ROUND_F16(v) _cvtss_sh(v, NEAREST)
/* EIGHT converts elements i .. i + 7, ONE one element. */
#define CAST_EIGHTS(S, T, EIGHT, ONE)                                                                                  \
  static void cast_loop_##S##_##T(void *o, const void *a, const void *b, const void *c, int mode, int64_t n) {         \
    T *out = o;                                                                                                        \
    const S *x = a;                                                                                                    \
    (void)b, (void)c;                                                                                                  \
    int64_t i = 0;                                                                                                     \
    for (; mode & VM_A && i + 8 <= n; i += 8) EIGHT;                                                                   \
    for (; i < n; i++) out[i] = ONE(x[mode & VM_A ? i : 0]);                                                           \
  }
CAST_EIGHTS(f16, f32, _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i)))), _cvtsh_ss)
CAST_EIGHTS(f32, f16, _mm_storeu_si128((__m128i *)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), NEAREST)), ROUND_F16)
#else
CAST(f16, f32)
CAST(f32, f16)
#endif

#define MAKE_IOTA(T, ...)                                                                                              \
  static void iota_##T(void *o, const void *a, const void *b, const void *c, int mode, int64_t n) {                    \
    T *out = o;                                                                                                        \
    uint64_t first = *(const uint64_t *)a, step = *(const uint64_t *)b;                                                \
    (void)c, (void)mode;                                                                                               \
    SIMD for (int64_t i = 0; i < n; i++) out[i] = (T)(first + step * (uint64_t)i __VA_ARGS__);                         \
  }
WORDS(MAKE_IOTA)
MAKE_IOTA(b8, != 0)

/* ---- functions: a loop for each type of each row of mathfns.h ---- */
#define MATH_INTS(X) X(u8) X(i8) X(i16) X(i32) X(i64)
/* pow by one exponent for which it is simple (math.def): of pow with this constant compilers leave only the simple case. */
#define POW_BY(T, EXPONENT)                                                                                            \
  if (!(mode & VM_B) && *(const T *)b == (EXPONENT)) {                                                                 \
    if (mode & VM_A) {                                                                                                 \
      SIMD for (int64_t i = 0; i < n; i++) out[i] = pow_##T(x[i], (EXPONENT));                                         \
      return;                                                                                                          \
    }                                                                                                                  \
  }
#define MAKE_POW(T)                                                                                                    \
  LOOP2_SPLAT(math_pow_any_##T, T, T, pow_##T, SIMD)                                                                   \
  static void math_pow_##T(void *o, const void *a, const void *b, const void *c, int mode, int64_t n) {                \
    T *out = o;                                                                                                        \
    const T *x = a;                                                                                                    \
    POW_BY(T, 2) POW_BY(T, 3) POW_BY(T, -1) POW_BY(T, 1) POW_BY(T, 4) POW_BY(T, -2) POW_BY(T, (T)0.5)                  \
    POW_BY(T, (T)-0.5) POW_BY(T, (T)1.5) POW_BY(T, (T)-1.5) POW_BY(T, (T)2.5)                                          \
    math_pow_any_##T(o, a, b, c, mode, n);                                                                             \
  }
#define REAL_PLAIN1(F, T) LOOP1(math_##F##_##T, T, T, F##_##T)
#define REAL_PLAIN2(F, T) LOOP2_SPLAT(math_##F##_##T, T, T, F##_##T, SIMD)
#define REAL_RARE1(F, T) REPAIR1(F, T) LOOP1_RARE(math_##F##_##T, T, F)
#define REAL_RARE2(F, T) REPAIR2(F, T) LOOP2_RARE(math_##F##_##T, T, F)
#define REAL_POW2(F, T) MAKE_POW(T)
#define REAL_TEST1(F, T) LOOP1(math_##F##_##T, T, b8, F##_##T)
#define REAL_WORD1(F, T) LOOP1(math_##F##_##T, u64, T, F##_##T)
#define INT_PLAIN1 REAL_PLAIN1
#define INT_PLAIN2(F, T) LOOP2_SPLAT(math_##F##_##T, T, T, F##_##T, )
#define INT_RARE2 INT_PLAIN2
#define INT_POW2 INT_PLAIN2
#define INT_TEST1 REAL_TEST1

/* IF_INT_<types>(m) is m if a row of these types has integers, else NO_LOOP, which makes nothing; so is IF_BOOL_ for bool. */
#define NO_LOOP(F, T)
#define IF_INT_REAL(m) NO_LOOP
#define IF_INT_NUM(m) m
#define IF_INT_ALL(m) m
#define IF_BOOL_REAL(m) NO_LOOP
#define IF_BOOL_NUM(m) NO_LOOP
#define IF_BOOL_ALL(m) m
#define APPLY(m, F, T) m(F, T)

#define REAL_LOOP(F, n, types, kind, T, meaning) REAL_##kind##n(F, T)
#define INT_LOOP(F, n, types, kind, T, meaning) APPLY(IF_INT_##types(INT_##kind##n), F, T)
#define BOOL_LOOP(F, n, types, kind, T, meaning) APPLY(IF_BOOL_##types(REAL_##kind##n), F, T)
#define REAL_LOOPS(T) MATHS(REAL_LOOP, T)
#define INT_LOOPS(T) MATHS(INT_LOOP, T)
REALS(REAL_LOOPS)
MATH_INTS(INT_LOOPS)
MATHS(BOOL_LOOP, b8)

/* ---- reductions ---- */
#define ROWS(F, T)                                                                                                     \
  static void rows_##F##_##T(void *lanes, const void *a, int64_t nrows, bool first) {                                  \
    T *l = lanes;                                                                                                      \
    const T *x = a;                                                                                                    \
    if (first) memcpy(l, x, sizeof(T) * ORDER_LANES), x += ORDER_LANES, nrows--;                                       \
    /* 4 vectors of lanes at a time stay in registers */                                                               \
    enum { AT_ONCE = VECTOR_BYTES * 4 / sizeof(T) < ORDER_LANES ? VECTOR_BYTES * 4 / sizeof(T) : ORDER_LANES };        \
    for (int j = 0; j < ORDER_LANES; j += AT_ONCE) {                                                                   \
      T s[AT_ONCE];                                                                                                       \
      const T *p = x + j;                                                                                              \
      SIMD for (int i = 0; i < AT_ONCE; i++) s[i] = l[j + i];                                                          \
      for (int64_t r = 0; r < nrows; r++, p += ORDER_LANES) {                                                          \
        SIMD for (int i = 0; i < AT_ONCE; i++) s[i] = F##_##T(s[i], p[i]);                                             \
      }                                                                                                                \
      SIMD for (int i = 0; i < AT_ONCE; i++) l[j + i] = s[i];                                                          \
    }                                                                                                                  \
  }
#define CHAIN(F, T)                                                                                                    \
  static void chain_##F##_##T(void *value, const void *a, int64_t n, bool first) {                                     \
    const T *x = a;                                                                                                    \
    T v = first ? x[0] : *(T *)value;                                                                                  \
    for (int64_t i = first; i < n; i++) v = F##_##T(v, x[i]);                                                          \
    *(T *)value = v;                                                                                                   \
  }
#define SCAN64(F, T)                                                                                                   \
  static void scan64_##F##_##T(void *a, int64_t n) {                                                                   \
    T *x = a, t[ORDER_LANES];                                                                                          \
    for (int64_t h = 1; h < n; h *= 2) {                                                                               \
      memcpy(t, x, sizeof(T) * (size_t)n);                                                                             \
      for (int64_t i = h; i < n; i++) x[i] = F##_##T(t[i - h], t[i]);                                                  \
    }                                                                                                                  \
  }
#define TREE(F, T)                                                                                                     \
  static __attribute__((noinline)) void tree_##F##_##T(void *o, const void *a, int64_t rows, int64_t n) {                \
    T *out = o, l[ORDER_LANES];                                                                                        \
    const T *x = a;                                                                                                    \
    if (n <= 4) { /* the same order, written out */                                                                          \
      for (int64_t r = 0; r < rows; r++, x += n) {                                                                     \
        SCALAR T v = x[0];                                                                                             \
        if (n > 2) v = F##_##T(v, x[2]);                                                                               \
        if (n > 1) v = F##_##T(v, n == 4 ? F##_##T(x[1], x[3]) : x[1]);                                                \
        out[r] = v;                                                                                                    \
      }                                                                                                                \
      return;                                                                                                          \
    }                                                                                                                  \
    if (n == ORDER_LANES) { /* steps of vectors */                                                                     \
      for (int64_t r = 0; r < rows; r++, x += n) {                                                                     \
        SIMD for (int i = 0; i < 32; i++) l[i] = F##_##T(x[i], x[i + 32]);                                             \
        SIMD for (int i = 0; i < 16; i++) l[i] = F##_##T(l[i], l[i + 16]);                                             \
        SIMD for (int i = 0; i < 8; i++) l[i] = F##_##T(l[i], l[i + 8]);                                               \
        SIMD for (int i = 0; i < 4; i++) l[i] = F##_##T(l[i], l[i + 4]);                                               \
        out[r] = F##_##T(F##_##T(l[0], l[2]), F##_##T(l[1], l[3]));                                                    \
      }                                                                                                                \
      return;                                                                                                          \
    }                                                                                                                  \
    int64_t top = (int64_t)1 << (63 - __builtin_clzll((uint64_t)n - 1)); /* top < n <= 2 top */                        \
    for (int64_t r = 0; r < rows; r++, x += n) {                                                                       \
      for (int64_t i = n - top; i < top; i++) { SCALAR l[i] = x[i]; }                                                  \
      for (int64_t i = n - top; i-- > 0;) { SCALAR l[i] = F##_##T(x[i], x[i + top]); }                     \
      for (int64_t h = top / 2; h; h /= 2)                                                                             \
        for (int64_t i = 0; i < h; i++) { SCALAR l[i] = F##_##T(l[i], l[i + h]); }                                     \
      out[r] = l[0];                                                                                                   \
    }                                                                                                                  \
  }
#define CHAINS(F, T)                                                                                                   \
  static void chains_##F##_##T(void *o, const void *a, int64_t outer, int64_t n, int64_t inner) {                      \
    T *out = o;                                                                                                        \
    const T *x = a;                                                                                                    \
    for (int64_t r = 0; r < outer; r++, x += (n - 1) * inner)                                                          \
      for (int64_t j = 0; j < inner; j++, x++) {                                                                       \
        T v = *x;                                                                                                      \
        for (int64_t i = 1; i < n; i++) { SCALAR v = F##_##T(v, x[i * inner]); }                                       \
        *out++ = v;                                                                                                    \
      }                                                                                                                \
  }
#define UPDATE(F, T)                                                                                                   \
  static void update_##F##_##T(void *base, const int64_t *at, const void *v, int64_t step, int64_t n) {                \
    T *out = base;                                                                                                     \
    const T *x = v;                                                                                                    \
    for (int64_t i = 0; i < n; i++, x += step) { SCALAR out[at[i]] = F##_##T(out[at[i]], *x); }                        \
  }
#define FOLDS(F, T) ROWS(F, T) CHAIN(F, T) SCAN64(F, T) TREE(F, T) CHAINS(F, T) UPDATE(F, T)
#define FOLDS_NUM(X, T) X(add, T) X(mul, T)
#define FOLDS_ALL(X, T) X(min, T) X(max, T)
#define FOLDS_BIT(X, T) X(and, T) X(or, T) X(xor, T)
#if defined(__AVX512F__)
enum { VECTOR_BYTES = 64 };
#elif defined(__AVX__)
enum { VECTOR_BYTES = 32 };
#else
enum { VECTOR_BYTES = 16 };
#endif
#define MAKE_FOLDS_ALL(T) FOLDS_ALL(FOLDS, T)
#define MAKE_FOLDS_NUM(T) FOLDS_NUM(FOLDS, T)
#define MAKE_FOLDS_BIT(T) FOLDS_BIT(FOLDS, T)
COMPUTED(MAKE_FOLDS_ALL)
NUMBERS(MAKE_FOLDS_NUM)
WORDS(MAKE_FOLDS_BIT)
MAKE_FOLDS_BIT(b8)

#define madd_f32 fma_f32
#define madd_f64 fma_f64
#define MADD_INT(T)                                                                                                    \
  static inline T madd_##T(T x, T y, T s) { return add_##T(s, mul_##T(x, y)); }
WORDS(MADD_INT)
#define DOTS(T)                                                                                                        \
  static void dot_##T(void *value, const void *a, const void *b, int mode, int64_t n, bool first) {                    \
    const T *x = a, *y = b;                                                                                            \
    int64_t sx = mode & VM_A ? 1 : 0, sy = mode & VM_B ? 1 : 0;                                                        \
    T v = first ? mul_##T(x[0], y[0]) : *(T *)value;                                                                   \
    for (int64_t i = first; i < n; i++) v = madd_##T(x[i * sx], y[i * sy], v);                                         \
    *(T *)value = v;                                                                                                   \
  }                                                                                                                    \
  static void dots_##T(void *acc, const void *a, const void *b, int mode, int64_t n, bool first) {                     \
    T *s = acc;                                                                                                        \
    if (first) {                                                                                                       \
      kop_mul_##T(s, a, b, NULL, mode, n);                                                                             \
      return;                                                                                                          \
    }                                                                                                                  \
    SPLAT_OF(T, x, a, VM_A)                                                                                            \
    SPLAT_OF(T, y, b, VM_B)                                                                                            \
    for (int64_t j = 0; j < n; j += SPLAT) {                                                                           \
      int64_t m = n - j < SPLAT ? n - j : SPLAT;                                                                       \
      SIMD for (int64_t i = 0; i < m; i++) s[i] = madd_##T(x[i], y[i], s[i]);                                          \
      s += SPLAT, x += mode & VM_A ? SPLAT : 0, y += mode & VM_B ? SPLAT : 0;                                          \
    }                                                                                                                  \
  }
NUMBERS(DOTS)

/* bvm_loops.product for elements T, computed as C: GET and PUT convert. `kept`: the elements of a row of x if these are at most 4, so that they
 * are read once and kept in variables; else 0. */
#define PRODUCT(T, C, GET, PUT)                                                                                        \
  static inline __attribute__((always_inline)) void product_of_##T(T *out, const T *first, const T *start,             \
                                                                   const bvm_gemm *p, int kept) {                    \
    int64_t sx = p->x_step, sy = p->y_step, depth = p->k, columns = p->n, next = p->y_column;                          \
    for (int64_t b = p->count; b > 0; b--, first += p->x_next, start += p->y_next) {                                   \
      const T *row = first;                                                                                            \
      for (int64_t i = p->m; i > 0; i--, row += p->x_row) {                                                            \
        const T *column = start;                                                                                       \
        C of[4];                                                                                                       \
        for (int k = 0; k < kept; k++) of[k] = GET(row[k * sx]);                                                       \
        for (int64_t j = columns; j > 0; j--, column += next) {                                                        \
          SCALAR C v = mul_##C(kept ? of[0] : GET(*row), GET(*column));                                                \
          for (int k = 1; k < kept; k++) v = madd_##C(of[k], GET(column[k * sy]), v);                                  \
          if (!kept) {                                                                                                 \
            const T *x = row, *y = column;                                                                             \
            for (int64_t k = depth; k > 1; k--) {                                                                      \
              SCALAR x += sx, y += sy;                                                                                 \
              v = madd_##C(GET(*x), GET(*y), v);                                                                       \
            }                                                                                                          \
          }                                                                                                            \
          *out++ = PUT(v);                                                                                             \
        }                                                                                                              \
      }                                                                                                                \
    }                                                                                                                  \
  }                                                                                                                    \
  static void product_##T(void *out, const void *x, const void *y, const bvm_gemm *p) {                              \
    switch (p->k) {                                                                                                    \
    case 1: product_of_##T(out, x, y, p, 1); return;                                                                   \
    case 2: product_of_##T(out, x, y, p, 2); return;                                                                   \
    case 3: product_of_##T(out, x, y, p, 3); return;                                                                   \
    case 4: product_of_##T(out, x, y, p, 4); return;                                                                   \
    default: product_of_##T(out, x, y, p, 0); return;                                                                  \
    }                                                                                                                  \
  }

/* bvm_loops.inner of such elements. */
#define INNER(T, C, GET, PUT)                                                                                          \
  static inline void inner_few_##T(C *l, const T *x, int64_t sx, const T *y, int64_t sy, int64_t n) {                  \
    for (int64_t i = 0; i < n; i++) { SCALAR l[i] = mul_##C(GET(x[i * sx]), GET(y[i * sy])); }                         \
  }                                                                                                                    \
  static inline void inner_block_##T(C *l, const T *x, int64_t sx, const T *y, int64_t sy, int64_t n) {                \
    enum { AT_ONCE = VECTOR_BYTES * 4 / sizeof(C) < ORDER_LANES ? VECTOR_BYTES * 4 / sizeof(C) : ORDER_LANES };        \
    if (n < ORDER_LANES) {                                                                                             \
      for (int i = 0; i < ORDER_LANES; i++) l[i] = (C)-0.0; /* the identity */                                         \
      inner_few_##T(l, x, sx, y, sy, n);                                                                               \
      return;                                                                                                          \
    }                                                                                                                  \
    if (sx != 1 || sy != 1) {                                                                                          \
      inner_few_##T(l, x, sx, y, sy, ORDER_LANES);                                                                     \
      for (int64_t k = ORDER_LANES; k < n; k++)                                                                        \
        l[k % ORDER_LANES] = add_##C(l[k % ORDER_LANES], mul_##C(GET(x[k * sx]), GET(y[k * sy])));                     \
      return;                                                                                                          \
    }                                                                                                                  \
    int64_t whole = n - n % ORDER_LANES;                                                                               \
    for (int j = 0; j < ORDER_LANES; j += AT_ONCE) {                                                                   \
      C s[AT_ONCE];                                                                                                    \
      const T *p = x + j, *q = y + j;                                                                                  \
      SIMD for (int i = 0; i < AT_ONCE; i++) s[i] = mul_##C(GET(p[i]), GET(q[i]));                                     \
      for (int64_t k = ORDER_LANES; k < whole; k += ORDER_LANES) {                                                     \
        SIMD for (int i = 0; i < AT_ONCE; i++) s[i] = add_##C(s[i], mul_##C(GET(p[k + i]), GET(q[k + i])));            \
      }                                                                                                                \
      SIMD for (int i = 0; i < AT_ONCE; i++) l[j + i] = s[i];                                                          \
    }                                                                                                                  \
    x += whole, y += whole;                                                                                            \
    SIMD for (int64_t i = 0; i < n - whole; i++) l[i] = add_##C(l[i], mul_##C(GET(x[i]), GET(y[i])));                  \
  }                                                                                                                    \
  static void inner_##T(void *out, const void *a, int64_t sx, const void *b, int64_t sy, int64_t n) {                  \
    enum { LEVELS = 8 };                                                                                               \
    _Static_assert(BVM_INNER_MOST < ORDER_BLOCK << LEVELS, "a subtree for each level");                                \
    C tree[LEVELS][ORDER_LANES], sum; /* the subtrees without a right neighbour of their size */                       \
    const T *x = a, *y = b;                                                                                            \
    if (n < ORDER_LANES) inner_few_##T(tree[0], x, sx, y, sy, n);                                                      \
    for (int64_t at = n < ORDER_LANES ? n : 0, top = 0; at < n;) {                                                     \
      inner_block_##T(tree[top++], x + at * sx, sx, y + at * sy, sy, n - at < ORDER_BLOCK ? n - at : ORDER_BLOCK);     \
      at += ORDER_BLOCK;                                                                                               \
      for (int64_t size = at; at < n ? size / ORDER_BLOCK % 2 == 0 : top > 1; size /= 2, top--)                        \
        SIMD for (int i = 0; i < ORDER_LANES; i++) tree[top - 2][i] = add_##C(tree[top - 2][i], tree[top - 1][i]);     \
    }                                                                                                                  \
    tree_add_##C(&sum, tree[0], 1, n < ORDER_LANES ? n : ORDER_LANES);                                                 \
    *(T *)out = PUT(sum);                                                                                              \
  }

#define AS_IS(v) (v)
#define PRODUCTS(T, C, GET, PUT) PRODUCT(T, C, GET, PUT) INNER(T, C, GET, PUT)
#define SAME_PRODUCTS(T) PRODUCTS(T, T, AS_IS, AS_IS)
NUMBERS(SAME_PRODUCTS)
PRODUCTS(bf16, f32, cast_bf16_f32, cast_f32_bf16)
#if defined(__F16C__)
PRODUCTS(f16, f32, _cvtsh_ss, ROUND_F16)
#else
PRODUCTS(f16, f32, cast_f16_f32, cast_f32_f16)
#endif

/* A candidate replaces the best one if it is strictly better, or the first nan. */
#define BETTER_max(v, best) ((v) > (best) || ((v) != (v) && (best) == (best)))
#define BETTER_min(v, best) ((v) < (best) || ((v) != (v) && (best) == (best)))
#define ARG(F, T)                                                                                                      \
  static void arg_##F##_##T(void *value, int64_t *at, const void *a, int64_t index, int64_t n) {                       \
    const T *x = a;                                                                                                    \
    T best = *(T *)value;                                                                                              \
    int64_t w = *at;                                                                                                   \
    for (int64_t i = 0; i < n; i++)                                                                                    \
      if (w < 0 || BETTER_##F(x[i], best)) best = x[i], w = index + i;                                                 \
    *(T *)value = best;                                                                                                \
    *at = w;                                                                                                           \
  }                                                                                                                    \
  /* many results: candidate i has the index index[i] or, without `index`, k */                                                             \
  static void args_##F##_##T(void *value, int64_t *at, const void *a, const int64_t *index, int64_t k, int64_t n) {    \
    const T *x = a;                                                                                                    \
    T *best = value;                                                                                                   \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
      b8 take = at[i] < 0 || BETTER_##F(x[i], best[i]);                                                                \
      best[i] = take ? x[i] : best[i];                                                                                 \
      at[i] = take ? (index ? index[i] : k) : at[i];                                                                   \
    }                                                                                                                  \
  }
#define MAKE_ARGS(T) ARG(max, T) ARG(min, T)
COMPUTED(MAKE_ARGS)

#include "jit/cpu/block_vm_draw.h"
#include "jit/cpu/block_vm_tile.h"

/* ---- the table ---- */
#define ROW(F, T, R) [KOP_##F][DTYPE_##T] = kop_##F##_##T,
#define ROWS_ALL(T) KOPS_ALL2(ROW, T) [KOP_select][DTYPE_##T] = sizeof(T) == 1 ? bits_select_u8 : sizeof(T) == 2 ? bits_select_u16 : sizeof(T) == 4 ? bits_select_u32 : bits_select_u64, \
  [KOP_copy][DTYPE_##T] = sizeof(T) == 1 ? bits_copy_u8 : sizeof(T) == 2 ? bits_copy_u16 : sizeof(T) == 4 ? bits_copy_u32 : bits_copy_u64, \
  [KOP_bitcast][DTYPE_##T] = sizeof(T) == 1 ? bits_copy_u8 : sizeof(T) == 2 ? bits_copy_u16 : sizeof(T) == 4 ? bits_copy_u32 : bits_copy_u64,
#define ROWS_NUM(T) KOPS_NUM2(ROW, T) KOPS_NUM1(ROW, T)
#define ROWS_REAL(T) KOPS_REAL1(ROW, T) ROW(div, T, T) ROW(fma, T, T)
#define ROWS_INT(T) KOPS_BIT2(ROW, T) ROW(not, T, T) KOPS_INT2(ROW, T) KOPS_SLOW2(ROW, T)
#define ROW_CAST(S, T) [DTYPE_##S][DTYPE_##T] = cast_loop_##S##_##T,
#define ROW_MATH(F, T) [MATH_##F][DTYPE_##T] = math_##F##_##T,
#define REAL_ROW(F, n, types, kind, T, meaning) ROW_MATH(F, T)
#define INT_ROW(F, n, types, kind, T, meaning) APPLY(IF_INT_##types(ROW_MATH), F, T)
#define BOOL_ROW(F, n, types, kind, T, meaning) APPLY(IF_BOOL_##types(ROW_MATH), F, T)
#define REAL_ROWS(T) MATHS(REAL_ROW, T)
#define INT_ROWS(T) MATHS(INT_ROW, T)
#define ROW_IOTA(T) [DTYPE_##T] = iota_##T,
#define ROW_DOT(T) [DTYPE_##T] = dot_##T,
#define ROW_DOTS(T) [DTYPE_##T] = dots_##T,
#define ROW_PRODUCT(T) [DTYPE_##T] = product_##T,
#define ROW_UPDATE(F, T) [KOP_##F][DTYPE_##T] = update_##F##_##T,
#define ROW_ROWS(F, T) [KOP_##F][DTYPE_##T] = rows_##F##_##T,
#define ROW_CHAIN(F, T) [KOP_##F][DTYPE_##T] = chain_##F##_##T,
#define ROW_TREE(F, T) [KOP_##F][DTYPE_##T] = tree_##F##_##T,
#define ROW_CHAINS(F, T) [KOP_##F][DTYPE_##T] = chains_##F##_##T,
#define ROW_SCAN(F, T) [KOP_##F][DTYPE_##T] = scan64_##F##_##T,
#define FOLD_TABLE(ROW)                                                                                                \
  FOLDS_ALL(ROW, b8) FOLDS_BIT(ROW, b8) FOLD_NUMBERS(ROW, f32) FOLD_NUMBERS(ROW, f64) FOLD_WORDS(ROW, u8)               \
  FOLD_WORDS(ROW, i8) FOLD_WORDS(ROW, i16) FOLD_WORDS(ROW, i32) FOLD_WORDS(ROW, i64) FOLD_WORDS(ROW, u32) FOLD_WORDS(ROW, u64)
#define FOLD_NUMBERS(ROW, T) FOLDS_ALL(ROW, T) FOLDS_NUM(ROW, T)
#define FOLD_WORDS(ROW, T) FOLD_NUMBERS(ROW, T) FOLDS_BIT(ROW, T)
#define ROW_ARGMAX(T) [DTYPE_##T] = arg_max_##T,
#define ROW_INNER(T) [DTYPE_##T] = inner_##T,
#define ROW_ARGMIN(T) [DTYPE_##T] = arg_min_##T,
#define ROW_ARGSMAX(T) [DTYPE_##T] = args_max_##T,
#define ROW_ARGSMIN(T) [DTYPE_##T] = args_min_##T,

#define TABLE2(isa) bvm_loops_##isa
#define TABLE(isa) TABLE2(isa)
#define SORTS2(isa) sort_loops_##isa
#define SORTS(isa) SORTS2(isa)
#define TEXT2(isa) #isa
#define TEXT(isa) TEXT2(isa)
const bvm_loops TABLE(VM_ISA) = {
    .name = TEXT(VM_ISA),
    .kop = {COMPUTED(ROWS_ALL) NUMBERS(ROWS_NUM) REALS(ROWS_REAL) WORDS(ROWS_INT) KOPS_BIT2(ROW, b8) ROW(not, b8, b8)
            ROW(mulhi, u32, u32) ROW(mulhi, u64, u64)
            [KOP_select][DTYPE_f16] = bits_select_u16, [KOP_select][DTYPE_bf16] = bits_select_u16,
            [KOP_copy][DTYPE_f16] = bits_copy_u16, [KOP_copy][DTYPE_bf16] = bits_copy_u16,
            [KOP_bitcast][DTYPE_f16] = bits_copy_u16, [KOP_bitcast][DTYPE_bf16] = bits_copy_u16},
    .math = {REALS(REAL_ROWS) MATH_INTS(INT_ROWS) MATHS(BOOL_ROW, b8)},
    .cast = {EACH_CAST(ROW_CAST) ROW_CAST(f16, f32) ROW_CAST(f32, f16) ROW_CAST(f32, bf16) ROW_CAST(bf16, f32)},
    .iota = {WORDS(ROW_IOTA) ROW_IOTA(b8)},
    .fill = {bits_fill_u8, bits_fill_u16, bits_fill_u32, bits_fill_u64},
    .copy = {bits_copy_u8, bits_copy_u16, bits_copy_u32, bits_copy_u64},
    .select = {bits_select_u8, bits_select_u16, bits_select_u32, bits_select_u64},
    .load = {bits_load_u8, bits_load_u16, bits_load_u32, bits_load_u64},
    .store = {bits_store_u8, bits_store_u16, bits_store_u32, bits_store_u64},
    .gather = {bits_gather_u8, bits_gather_u16, bits_gather_u32, bits_gather_u64},
    .rows = {FOLD_TABLE(ROW_ROWS)},
    .chain = {FOLD_TABLE(ROW_CHAIN)},
    .tree = {FOLD_TABLE(ROW_TREE)},
    .chains = {FOLD_TABLE(ROW_CHAINS)},
    .dot = {NUMBERS(ROW_DOT)},
    .dots = {NUMBERS(ROW_DOTS)},
    .product = {NUMBERS(ROW_PRODUCT) ROW_PRODUCT(f16) ROW_PRODUCT(bf16)},
    .inner = {NUMBERS(ROW_INNER) ROW_INNER(f16) ROW_INNER(bf16)},
    .update = {FOLD_TABLE(ROW_UPDATE)},
    .put = {bits_put_u8, bits_put_u16, bits_put_u32, bits_put_u64},
    .draw = {{[DTYPE_i64] = draw_bits_of},
             {[DTYPE_f64] = draw_uniform_f64, [DTYPE_f32] = draw_uniform_f32, [DTYPE_f16] = draw_uniform_f16, [DTYPE_bf16] = draw_uniform_bf16},
             {[DTYPE_f64] = draw_normal_f64, [DTYPE_f32] = draw_normal_f32, [DTYPE_f16] = draw_normal_f32, [DTYPE_bf16] = draw_normal_f32}},
    .below = draw_below,
    .arg = {{COMPUTED(ROW_ARGMAX)}, {COMPUTED(ROW_ARGMIN)}},
    .args = {{COMPUTED(ROW_ARGSMAX)}, {COMPUTED(ROW_ARGSMIN)}},
    .scan64 = {FOLD_TABLE(ROW_SCAN)},
    .tile = tile_any,
    .sorts = &SORTS(VM_ISA),
};

#if defined(VM_ISA_base)
const bvm_loops *bvm_loops_pick(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
    return &bvm_loops_v4;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
      __builtin_cpu_supports("bmi2"))
    return &bvm_loops_v3;
#endif
  return &bvm_loops_base;
}
#endif
