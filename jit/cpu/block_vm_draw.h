/* Random numbers, a part of block_vm_loops.c: the words of Philox 4x32-10 and what is made of them, VM_WORDS elements at a time.
 *
 * They follow lower_ops.c step by step: all steps of uniform numbers are exact, those of normal ones round once each. An integer of more
 * than 31 bits goes to a float by way of parts that are exact in f64, so that it is vector code without instructions for 64 bits. */

/* Makes w[k][i], word k of element first + i. `words`: the two words of the key, and the number of the draw. */
#if defined(__AVX512F__) && defined(__AVX512DQ__)
FN __m512i even_odd(__m512i a, __m512i b, bool odd) {
  __m512 x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
  return _mm512_castps_si512(odd ? _mm512_shuffle_ps(x, y, 0xdd) : _mm512_shuffle_ps(x, y, 0x88));
}
FN void philox_words(u32 w[4][VM_WORDS], const u64 words[3], u64 first) {
  /* of two elements in each quarter: words 0 and 2 in x, 1 and 3 in y, the key words in k */
  __m512i i = _mm512_add_epi64(_mm512_set1_epi64((i64)first), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
  __m512i draw = _mm512_set1_epi64((i64)words[2]), x = even_odd(i, draw, false), y = even_odd(i, draw, true);
  __m512i k = _mm512_mask_blend_epi32(0xcccc, _mm512_set1_epi32((i32)words[0]), _mm512_set1_epi32((i32)words[1]));
  const __m512i m0 = _mm512_set1_epi64(0xd2511f53), m1 = _mm512_set1_epi64(0xcd9e8d57);
  const __m512i steps =
      _mm512_mask_blend_epi32(0xcccc, _mm512_set1_epi32((i32)0x9e3779b9u), _mm512_set1_epi32((i32)0xbb67ae85u));
#define ROUND                                                                                                          \
  {                                                                                                                    \
    __m512i p0 = _mm512_mul_epu32(_mm512_unpacklo_epi32(x, x), m0);                                                    \
    __m512i p1 = _mm512_mul_epu32(_mm512_unpackhi_epi32(x, x), m1);                                                    \
    x = _mm512_ternarylogic_epi32(even_odd(p1, p0, true), y, k, 0x96);                                                 \
    y = even_odd(p1, p0, false);                                                                                       \
    k = _mm512_add_epi32(k, steps);                                                                                    \
  }
  ROUND ROUND ROUND ROUND ROUND ROUND ROUND ROUND ROUND ROUND
#undef ROUND
      const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  x = _mm512_permutexvar_epi64(order, x), y = _mm512_permutexvar_epi64(order, y);
  _mm256_storeu_si256((__m256i *)w[0], _mm512_castsi512_si256(x));
  _mm256_storeu_si256((__m256i *)w[1], _mm512_castsi512_si256(y));
  _mm256_storeu_si256((__m256i *)w[2], _mm512_extracti64x4_epi64(x, 1));
  _mm256_storeu_si256((__m256i *)w[3], _mm512_extracti64x4_epi64(y, 1));
}
#elif defined(__AVX2__)
FN __m256i even_odd(__m256i a, __m256i b, bool odd) {
  __m256 x = _mm256_castsi256_ps(a), y = _mm256_castsi256_ps(b);
  return _mm256_castps_si256(odd ? _mm256_shuffle_ps(x, y, 0xdd) : _mm256_shuffle_ps(x, y, 0x88));
}
FN void philox_words(u32 w[4][VM_WORDS], const u64 words[3], u64 first) {
  /* of two elements in each half: words 0 and 2 in x, 1 and 3 in y, the key words in k */
  __m256i i = _mm256_add_epi64(_mm256_set1_epi64x((i64)first), _mm256_setr_epi64x(0, 1, 2, 3));
  __m256i draw = _mm256_set1_epi64x((i64)words[2]), x = even_odd(i, draw, false), y = even_odd(i, draw, true);
  __m256i k = _mm256_blend_epi32(_mm256_set1_epi32((i32)words[0]), _mm256_set1_epi32((i32)words[1]), 0xcc);
  const __m256i m0 = _mm256_set1_epi64x(0xd2511f53), m1 = _mm256_set1_epi64x(0xcd9e8d57);
  const i32 s0 = (i32)0x9e3779b9u, s1 = (i32)0xbb67ae85u;
  const __m256i steps = _mm256_setr_epi32(s0, s0, s1, s1, s0, s0, s1, s1);
#define ROUND                                                                                                          \
  {                                                                                                                    \
    __m256i p0 = _mm256_mul_epu32(_mm256_unpacklo_epi32(x, x), m0);                                                    \
    __m256i p1 = _mm256_mul_epu32(_mm256_unpackhi_epi32(x, x), m1);                                                    \
    x = _mm256_xor_si256(_mm256_xor_si256(even_odd(p1, p0, true), y), k);                                              \
    y = even_odd(p1, p0, false);                                                                                       \
    k = _mm256_add_epi32(k, steps);                                                                                    \
  }
  ROUND ROUND ROUND ROUND ROUND ROUND ROUND ROUND ROUND ROUND
#undef ROUND
      x = _mm256_permute4x64_epi64(x, 0xd8),
      y = _mm256_permute4x64_epi64(y, 0xd8);
  _mm_storeu_si128((__m128i *)w[0], _mm256_castsi256_si128(x));
  _mm_storeu_si128((__m128i *)w[1], _mm256_castsi256_si128(y));
  _mm_storeu_si128((__m128i *)w[2], _mm256_extracti128_si256(x, 1));
  _mm_storeu_si128((__m128i *)w[3], _mm256_extracti128_si256(y, 1));
}
#else
FN void philox_words(u32 w[4][VM_WORDS], const u64 words[3], u64 first) {
  for (int i = 0; i < VM_WORDS; i++) {
    u64 element = first + (u64)i;
    u32 a = (u32)element, b = (u32)(element >> 32), c = (u32)words[2], d = (u32)(words[2] >> 32);
    u32 k0 = (u32)words[0], k1 = (u32)words[1];
    for (int round = 0; round < 10; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
      u64 p0 = (u64)a * 0xd2511f53u, p1 = (u64)c * 0xcd9e8d57u;
      a = (u32)(p1 >> 32) ^ b ^ k0, c = (u32)(p0 >> 32) ^ d ^ k1;
      b = (u32)p1, d = (u32)p0;
    }
    w[0][i] = a, w[1][i] = b, w[2][i] = c, w[3][i] = d;
  }
}
#endif

/* x + plus, without rounding; plus is a small integer. */
FN f64 word_f64(u32 x, f64 plus) { return (f64)(i32)(x ^ 0x80000000u) + (0x1p31 + plus); }
/* The top 53 bits of two words as a fraction; `plus` is added before the division. */
FN f64 fraction_f64(u32 low, u32 high, f64 plus) {
  return word_f64(high, 0) * 0x1p-32 + ((f64)(i32)(low >> 11) + plus) * 0x1p-53;
}
/* The top `bits` bits of a word, times `unit`. */
FN f32 fraction_f32(u32 high, int bits, f32 unit) { return (f32)(i32)(high >> (32 - bits)) * unit; }
/* log (math.def) without its special cases: for arguments that are positive, finite and not subnormal. */
FN f32 log_plain_f32(f32 a) {
  i32 i = logi_f32(a);
  return logv_f32((f32)i, logf_f32(a, i));
}
FN f64 log_plain_f64(f64 a) {
  u64 i = logi_f64(a);
  return logv_f64(logk_f64(i), logf_f64(a, i));
}

FN u64 bits_of(u32 a, u32 b, u32 c, u32 d) { return (void)c, (void)d, a | (u64)b << 32; }
FN f64 uniform_f64(u32 a, u32 b, u32 c, u32 d) { return (void)c, (void)d, fraction_f64(a, b, 0); }
FN f32 uniform_f32(u32 a, u32 b, u32 c, u32 d) { return (void)a, (void)c, (void)d, fraction_f32(b, 24, 0x1p-24f); }
FN f32 uniform_f16(u32 a, u32 b, u32 c, u32 d) { return (void)a, (void)c, (void)d, fraction_f32(b, 11, 0x1p-11f); }
FN f32 uniform_bf16(u32 a, u32 b, u32 c, u32 d) { return (void)a, (void)c, (void)d, fraction_f32(b, 8, 0x1p-8f); }
/* The angles are so small that cos_fast needs no repair. */
FN f32 normal_f32(u32 a, u32 b, u32 c, u32 d) {
  f32 u = (f32)word_f64(a, 1) * 0x1p-32f;
  f32 angle = fraction_f32(b, 24, 0x1p-24f * (f32)6.283185307179586476925286766559);
  return (void)c, (void)d, sqrt_f32(log_plain_f32(u) * -2.0f) * cos_fast_f32(angle);
}
FN f64 normal_f64(u32 a, u32 b, u32 c, u32 d) {
  f64 u = fraction_f64(a, b, 1), angle = fraction_f64(c, d, 0) * 6.283185307179586476925286766559;
  return sqrt_f64(log_plain_f64(u) * -2.0) * cos_fast_f64(angle);
}

#define DRAW(NAME, T)                                                                                                  \
  static void draw_##NAME(void *o, const u64 words[3], u64 first, u64 n) {                                             \
    T *out = o;                                                                                                        \
    for (u64 at = 0; at < n; at += VM_WORDS) {                                                                         \
      u32 w[4][VM_WORDS];                                                                                              \
      T few[VM_WORDS], *to = n - at < VM_WORDS ? few : out + at;                                                       \
      philox_words(w, words, first + at);                                                                              \
      SIMD for (int i = 0; i < VM_WORDS; i++) to[i] = NAME(w[0][i], w[1][i], w[2][i], w[3][i]);                        \
      for (int i = 0; to == few && at + (u64)i < n; i++) {                                                             \
        SCALAR out[at + (u64)i] = few[i];                                                                              \
      }                                                                                                                \
    }                                                                                                                  \
  }
DRAW(bits_of, u64)
DRAW(uniform_f64, f64)
DRAW(uniform_f32, f32)
DRAW(uniform_f16, f32)
DRAW(uniform_bf16, f32)
DRAW(normal_f64, f64)
DRAW(normal_f32, f32)

/* x[i] = low + (the low 63 bits of x[i]) modulo `values`, which is at most 2^63. Exact in both ways:
 *   - by a 64-bit reciprocal the quotient is less than 3/2 too small, so the remainder needs at most one subtraction
 *   - by f64, for values below 2^61 so that no difference wraps: the first quotient is off by 2^12 and a rounding at most, that of its
 *     remainder by one. This way is vector code where the processor has the instructions */
static void draw_below(void *o, u64 values, i64 low, u64 n) {
  u64 *x = o;
  if (n < VM_WORDS) { /* cheaper than a reciprocal */
    for (u64 i = 0; i < n; i++) {
      SCALAR x[i] = (x[i] & ~(u64)0 >> 1) % values + (u64)low;
    }
    return;
  }
  const u64 reciprocal = ~(u64)0 / values;
  u64 at = 0;
#if defined(__AVX512F__) && defined(__AVX512DQ__)
  const i64 d = (i64)values;
  const f64 over = 1 / (f64)d;
  if (values < (u64)1 << 61) {
    SIMD for (u64 i = 0; i < n; i++) {
      i64 r = (i64)(x[i] & ~(u64)0 >> 1);
      r -= (i64)((f64)r * over) * d;
      r -= (i64)((f64)r * over) * d;
      r += r < 0 ? d : 0;
      r -= r >= d ? d : 0;
      x[i] = (u64)r + (u64)low;
    }
    at = n;
  }
#endif
  for (; at < n; at++) {
    u64 b = x[at] & ~(u64)0 >> 1, r = b - (u64)((unsigned __int128)b * reciprocal >> 64) * values;
    x[at] = r - (r >= values ? values : 0) + (u64)low;
  }
}
