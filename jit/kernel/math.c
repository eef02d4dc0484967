/* The texts of prims.def and math.def (math.h): every row becomes a name and the C text of its function. A definition uses
 * only rows before its own, so one backward pass over the rows finds all that is needed. */
#include "jit/kernel/math.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

typedef struct math_text {
  const char *name, *head, *body;
} math_text;

static const math_text texts[] = {
#define PRIM(R, name, params, ...) {#name, "FN " #R " " #name #params, #__VA_ARGS__},
#include "jit/kernel/prims.def"
#define HELPER(R, name, params, ...) {#name, "FN " #R " " #name #params, #__VA_ARGS__},
#define SLOW(R, name, params, ...) {#name, "FN_SLOW " #R " " #name #params, #__VA_ARGS__},
#define MATH1(R, name, T, ...) {#name "_" #T, "FN " #R " " #name "_" #T "(" #T " a)", #__VA_ARGS__},
#define MATH2(R, name, T, ...) {#name "_" #T, "FN " #R " " #name "_" #T "(" #T " a, " #T " b)", #__VA_ARGS__},
#define MATH_RARE1(name, T)                                                                                            \
  {#name "_" #T, "FN " #T " " #name "_" #T "(" #T " a)",                                                               \
   "return " #name "_rare_" #T "(a) ? " #name "_slow_" #T "(a) : " #name "_fast_" #T "(a);"},
#define MATH_RARE2(name, T)                                                                                            \
  {#name "_" #T, "FN " #T " " #name "_" #T "(" #T " a, " #T " b)",                                                     \
   "return " #name "_rare_" #T "(a, b) ? " #name "_slow_" #T "(a, b) : " #name "_fast_" #T "(a, b);"},
#include "jit/kernel/math.def"
};
enum { TEXTS = sizeof texts / sizeof *texts };
_Static_assert((int)TEXTS <= (int)MATH_TEXTS_MAX, "math_uses has a bit for every text");

static const char words_c[] =
    "#define FN static inline __attribute__((always_inline))\n#define FN_SLOW static __attribute__((noinline))\n"
    "#define FMA32 __builtin_fmaf\n#define FMA64 __builtin_fma\n#define FLOOR32 __builtin_floorf\n#define FLOOR64 "
    "__builtin_floor\n"
    "#define CEIL32 __builtin_ceilf\n#define CEIL64 __builtin_ceil\n#define RINT32 __builtin_rintf\n#define RINT64 "
    "__builtin_rint\n"
    "#define TRUNC32 __builtin_truncf\n#define TRUNC64 __builtin_trunc\n#define SQRT32 __builtin_sqrtf\n#define SQRT64 "
    "__builtin_sqrt\n"
    "#define MULHI64(a, b) ((u64)((unsigned __int128)(a) * (b) >> 64))\n"
    "#define INF32 __builtin_inff()\n#define INF64 __builtin_inf()\n#define NAN32 __builtin_nanf(\"\")\n#define NAN64 "
    "__builtin_nan(\"\")\n";
static const char words_cuda[] =
    "#define FN static __device__ __forceinline__\n#define FN_SLOW static __device__ __noinline__\n"
    "#define FMA32 __fmaf_rn\n#define FMA64 __fma_rn\n#define FLOOR32 floorf\n#define FLOOR64 floor\n"
    "#define CEIL32 ceilf\n#define CEIL64 ceil\n#define RINT32 rintf\n#define RINT64 rint\n"
    "#define TRUNC32 truncf\n#define TRUNC64 trunc\n#define SQRT32 __fsqrt_rn\n#define SQRT64 __dsqrt_rn\n"
    "#define MULHI64(a, b) __umul64hi(a, b)\n"
    "#define INF32 __int_as_float(0x7f800000)\n#define INF64 __longlong_as_double(0x7ff0000000000000ll)\n"
    "#define NAN32 __int_as_float(0x7fc00000)\n#define NAN64 __longlong_as_double(0x7ff8000000000000ll)\n";
static const char words[] =
    "#define F32(x) x##f\n#define F64(x) x\n#define I32(x) x\n#define U32(x) x##u\n#define U64(x) x##ull\n";

/* What a GPU does in fewer instructions than the definition asks for, in place of it, with the same bits (of nan, too, where these matter):
 * - casts, which convert pairs, since the instruction for one number uses the slow unit of special functions;
 * - min, max, also of an operand that is a number, and abs;
 * - the reciprocal of a number of moderate size: one step of Newton from the unit's estimate is rounded to nearest, which the compiler's
 *   1 / x does, too, behind a test of the range (seen for all of them on an H200). */
static const struct cuda_text {
  const char *name, *body;
} cuda_texts[] = {
    {"cast_f32_bf16", "u32 r; asm(\"cvt.rn.bf16x2.f32 %0, %1, %2;\" : \"=r\"(r) : \"f\"(0.0f), \"f\"(a));"
                      " return (bf16)(a != a ? 0x7fc0u : r);"},
    {"cast_f32_f16", "u32 r; asm(\"cvt.rn.f16x2.f32 %0, %1, %2;\" : \"=r\"(r) : \"f\"(0.0f), \"f\"(a));"
                     " return (f16)(a != a ? 0x7e00u | (bitcast_f32_u32(a) >> 16 & 0x8000u) : r);"},
    {"abs_f32", "return fabsf(a);"},
    {"abs_f64", "return fabs(a);"},
    {"min_f32", "f32 r; asm(\"min.NaN.f32 %0, %1, %2;\" : \"=f\"(r) : \"f\"(a), \"f\"(b)); return r;"},
    {"max_f32", "f32 r; asm(\"max.NaN.f32 %0, %1, %2;\" : \"=f\"(r) : \"f\"(a), \"f\"(b)); return r;"},
    {"atmost_f32", "f32 r; asm(\"min.NaN.f32 %0, %1, %2;\" : \"=f\"(r) : \"f\"(a), \"f\"(b)); return r;"},
    {"atleast_f32", "f32 r; asm(\"max.NaN.f32 %0, %1, %2;\" : \"=f\"(r) : \"f\"(a), \"f\"(b)); return r;"},
    {"recip_f32", "f32 r; asm(\"rcp.approx.ftz.f32 %0, %1;\" : \"=f\"(r) : \"f\"(a));"
                  " return __fmaf_rn(r, __fmaf_rn(-a, r, 1.0f), r);"},
};

static void print_body(const math_text *m, math_target target, text_buf *out) {
  const char *own = NULL;
  for (size_t i = 0; i < sizeof cuda_texts / sizeof *cuda_texts && target == MATH_TARGET_CUDA; i++)
    if (strcmp(cuda_texts[i].name, m->name) == 0) own = cuda_texts[i].body;
  if (own) {
    text_adds(out, "\n#if __CUDA_ARCH__ >= 800\n");
    text_adds(out, own);
    text_adds(out, "\n#else\n");
  }
  text_adds(out, m->body);
  if (own) text_adds(out, "\n#endif\n");
}

static int text_find(const char *name, size_t len) {
  for (int i = 0; i < TEXTS; i++)
    if (strncmp(texts[i].name, name, len) == 0 && texts[i].name[len] == 0) return i;
  return -1;
}

static void mark(math_uses *u, int i) { u->bits[i / 64] |= (uint64_t)1 << (i % 64); }
static bool marked(const math_uses *u, int i) { return (u->bits[i / 64] >> (i % 64) & 1) != 0; }

bool math_known(const char *name) { return text_find(name, strlen(name)) >= 0; }

void math_use(math_uses *u, const char *name) {
  int i = text_find(name, strlen(name));
  if (i < 0)
    u->failed = true;
  else
    mark(u, i);
}

/* Marks every row whose function a body calls. */
static void mark_calls(math_uses *u, const char *s) {
  while (*s) {
    if (isalpha((unsigned char)*s) || *s == '_') {
      const char *begin = s;
      while (isalnum((unsigned char)*s) || *s == '_') s++;
      int i = *s == '(' ? text_find(begin, (size_t)(s - begin)) : -1;
      if (i >= 0) mark(u, i);
    } else if (isdigit((unsigned char)*s)) { /* skips a number with its suffix */
      while (isalnum((unsigned char)*s) || *s == '.') s++;
    } else {
      s++;
    }
  }
}

void math_print(const math_uses *u, math_target target, text_buf *out) {
  math_uses all = *u;
  for (int i = TEXTS - 1; i >= 0; i--)
    if (marked(&all, i)) mark_calls(&all, texts[i].body);
  text_adds(out, target == MATH_TARGET_C ? words_c : words_cuda);
  text_adds(out, words);
  for (int i = 0; i < TEXTS; i++)
    if (marked(&all, i)) {
      text_adds(out, texts[i].head);
      text_adds(out, " { ");
      print_body(&texts[i], target, out);
      text_adds(out, " }\n");
    }
}

const char *math_type(qn_dtype dtype) { return dtype_rows[dtype].spelled; }

void math_name(char *name, size_t size, math_id fn, qn_dtype dtype, qn_dtype operand) {
  snprintf(name, size, "%s_%s", math_rows[fn].name, math_type(math_rows[fn].kind == MATH_IS_WORD ? dtype : operand));
}
