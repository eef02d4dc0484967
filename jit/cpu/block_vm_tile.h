/* Matrix products on register tiles, one variant per instruction set; included by block_vm_loops.c alone.
 *
 * out[m][n] = sum over k of x[m][k] * y[k][n]: the first product, then one chain of fma upward in k, in chunks of
 * 4,096 that combine by the balanced tree (l.h, order DOT). Every element is a chain of its own, so rows, columns,
 * blocking, packing and vector width cannot change a bit.
 *
 * The depth is cut into slices of equal size (at most 1 KiB of a row); between slices the chains rest in `out`. The kernel keeps TILE_M x TILE_N
 * sums in registers (14 x 2 vectors of 512 bits, 6 x 2 of 256): each step loads a row of a panel of y and broadcasts an element of each row of x.
 *
 * x is read in place where a slice of each row lies in one piece, since broadcasts do not mind how far apart rows are; but rows that would
 * fall into the same set of the cache are copied, and columns that lie in one piece go to panels (x[k][row]). y is copied to panels, as columns
 * TILE_BLOCK panels at a time, unless it is near (a small matrix) or met by one panel of x only. Columns beyond the edge are masked.
 * A panel of y passes all panels of x before the next is taken, so large tiles need both slices in the second cache, and packing costs
 * least in tiles with many rows.
 *
 * Windows (of a convolution) are read from the array in which they lie, by the offsets of their columns and of their rows. Where each vector of a
 * panel is a run of elements that lie in one piece, or the end of one and the beginning of the next, kernels read them in place, which costs nothing
 * and half a multiplication a vector; elsewhere they are packed. Where neighbours lie two elements apart, each second of two vectors is taken. Stored
 * first, windows of 3 x 3 would be nine times the array.
 *
 * A vector times a matrix has up to 8 vectors of sums at a time (tile_row).
 * A matrix times a vector, where rows of the matrix lie along k, has 8 rows in the lanes of a vector, turned in registers (tile_column): to
 * pack them for one use costs more than the product. A turn of gradient descent with 32 x 32 takes 2,630 instructions, 3,960 with packing.
 * With few results, as in a vector times a vector, the processor would wait for each step of a chain: so several chunks of a result are
 * computed side by side (tile_few), and their sums then go into the tree in the usual order.
 *
 * Measured on a Xeon with AVX-512, one thread at about 3.2 GHz, of 205 GFLOP/s that are possible: 190 to 205 with 64 x 64 x 64 to 256 x 256 x 256.
 * Tried: x packed into panels always (64 x 64 x 64: 4.2 us, 2.8 read in place); y packed by the first panel of x that meets it, as it is
 * loaded (1 ns an element instead of .15: so few loads are on their way at a time that each waits for memory); slices of 512 bytes
 * (2 % slower) and of 2 KiB (as fast); packed operands on the stack (hosts have small ones); the next columns of y prefetched into the second
 * cache between kernels (the prefetches wait for as long as they save); 64 and 256 columns of y at a time (as fast as 128); the next panel of x
 * prefetched by the kernel, a line a step (1 to 2 % faster, 4 % slower on a processor that is shared); panels of x 16 KiB apart (512 x 512 x 512
 * with x transposed: 2.6 ms, 2.2 with TILE_PAD between them).
 * What is left: packing takes a fifth of 1024 x 1024 x 1024, since each tile reads its operands from far away and packs them again.
 */
enum { TILE_SLICE_f32 = 256, TILE_SLICE_f64 = 128 };
enum { TILE_BLOCK = 4, TILE_NEAR = 32 << 10, TILE_TREE_BYTES = 512 << 10 };
enum { TILE_TURNED = 128, TILE_LEVELS = 24, TILE_FEW = 4, TILE_FEW_DEEP = 16, TILE_BESIDE = 8, TILE_WIDE = 8 };
enum { TILE_PIECED = 8 /* panels of x that read y in two pieces a vector, rather than packed */ };
/* Kernels by their panels of y: packed and whole, part, at most one vector; windows in place, a run or two of each vector. */
enum { TILE_IS_WHOLE, TILE_IS_PART, TILE_IS_NARROW, TILE_IS_RUNS, TILE_IS_PIECES, TILE_KINDS };

/* By instruction set: rows of sums in registers (TILE_M, and the pitch of packed panels, TILE_PITCH), rows for which y is packed once (a
 * slice of them should lie in the second cache), vectors, masks that say which first elements of a vector are loaded and stored, what reads the
 * elements after those from another place, and each second element of two vectors. A masked load takes the place of a multiplication, 4 % of a
 * kernel's time, so whole panels have kernels without. */
#if defined(__AVX512F__)
#include <immintrin.h>
enum { TILE_M = 14, TILE_PITCH = 16, TILE_ROWS = 512 };
#define TILE_VEC_f32 __m512
#define TILE_VEC_f64 __m512d
#define TILE_FMA_f32 _mm512_fmadd_ps
#define TILE_FMA_f64 _mm512_fmadd_pd
#define TILE_MASK_f32 __mmask16
#define TILE_MASK_f64 __mmask8
#define TILE_SOME_f32(n) ((__mmask16)(0xffffu >> (16 - (n))))
#define TILE_SOME_f64(n) ((__mmask8)(0xffu >> (8 - (n))))
#define TILE_LOAD_SOME_f32(p, some) _mm512_maskz_loadu_ps(some, p)
#define TILE_LOAD_SOME_f64(p, some) _mm512_maskz_loadu_pd(some, p)
#define TILE_STORE_SOME_f32(p, some, v) _mm512_mask_storeu_ps(p, some, v)
#define TILE_STORE_SOME_f64(p, some, v) _mm512_mask_storeu_pd(p, some, v)
#define TILE_THEN_f32(v, some, p) _mm512_mask_loadu_ps(v, (__mmask16) ~(some), p)
#define TILE_THEN_f64(v, some, p) _mm512_mask_loadu_pd(v, (__mmask8) ~(some), p)
#define TILE_EVEN_f32(a, b)                                                                                            \
  _mm512_permutex2var_ps(a, _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0), b)
#define TILE_EVEN_f64(a, b) _mm512_permutex2var_pd(a, _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0), b)
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
enum { TILE_M = 6, TILE_PITCH = 8, TILE_ROWS = 256 };
#define TILE_VEC_f32 __m256
#define TILE_VEC_f64 __m256d
#define TILE_FMA_f32 _mm256_fmadd_ps
#define TILE_FMA_f64 _mm256_fmadd_pd
#define TILE_MASK_f32 __m256i
#define TILE_MASK_f64 __m256i
static const int32_t tile_ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
#define TILE_SOME_f32(n) _mm256_loadu_si256((const __m256i_u *)(tile_ones + 8 - (n)))
#define TILE_SOME_f64(n) _mm256_loadu_si256((const __m256i_u *)(tile_ones + 8 - 2 * (n)))
#define TILE_LOAD_SOME_f32(p, some) _mm256_maskload_ps(p, some)
#define TILE_LOAD_SOME_f64(p, some) _mm256_maskload_pd(p, some)
#define TILE_STORE_SOME_f32(p, some, v) _mm256_maskstore_ps(p, some, v)
#define TILE_STORE_SOME_f64(p, some, v) _mm256_maskstore_pd(p, some, v)
#define TILE_THEN_f32(v, some, p) _mm256_blendv_ps(_mm256_loadu_ps(p), v, _mm256_castsi256_ps(some))
#define TILE_THEN_f64(v, some, p) _mm256_blendv_pd(_mm256_loadu_pd(p), v, _mm256_castsi256_pd(some))
#define TILE_EVEN_f32(a, b)                                                                                            \
  _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)), 0xd8))
#define TILE_EVEN_f64(a, b) _mm256_permute4x64_pd(_mm256_unpacklo_pd(a, b), 0xd8)
#else
enum { TILE_M = 4, TILE_PITCH = 4, TILE_ROWS = 256 };
#define TILE_VECTOR(T)                                                                                                 \
  typedef T tile_vec_##T __attribute__((vector_size(16)));                                                             \
  static inline tile_vec_##T tile_fma_##T(tile_vec_##T a, tile_vec_##T b, tile_vec_##T c) {                            \
    for (size_t i = 0; i < 16 / sizeof(T); i++) c[i] = fma_##T(a[i], b[i], c[i]);                                      \
    return c;                                                                                                          \
  }                                                                                                                    \
  static inline tile_vec_##T tile_load_some_##T(const T *p, int n) {                                                   \
    tile_vec_##T v = {0};                                                                                              \
    for (int i = 0; i < n; i++) v[i] = p[i];                                                                           \
    return v;                                                                                                          \
  }                                                                                                                    \
  static inline void tile_store_some_##T(T *p, int n, tile_vec_##T v) {                                                \
    for (int i = 0; i < n; i++) p[i] = v[i];                                                                           \
  }                                                                                                                    \
  static inline tile_vec_##T tile_then_##T(tile_vec_##T v, int n, const T *p) {                                        \
    for (int i = n; i < (int)(16 / sizeof(T)); i++) v[i] = p[i];                                                       \
    return v;                                                                                                          \
  }                                                                                                                    \
  static inline tile_vec_##T tile_even_##T(tile_vec_##T a, tile_vec_##T b) {                                           \
    enum { N = 16 / sizeof(T) };                                                                                       \
    tile_vec_##T v = a;                                                                                                \
    for (int i = 0; i < N; i++) v[i] = i < N / 2 ? a[2 * i] : b[2 * i - N];                                            \
    return v;                                                                                                          \
  }
TILE_VECTOR(f32)
TILE_VECTOR(f64)
#define TILE_VEC_f32 tile_vec_f32
#define TILE_VEC_f64 tile_vec_f64
#define TILE_FMA_f32 tile_fma_f32
#define TILE_FMA_f64 tile_fma_f64
#define TILE_MASK_f32 int
#define TILE_MASK_f64 int
#define TILE_SOME_f32(n) (n)
#define TILE_SOME_f64(n) (n)
#define TILE_LOAD_SOME_f32 tile_load_some_f32
#define TILE_LOAD_SOME_f64 tile_load_some_f64
#define TILE_STORE_SOME_f32 tile_store_some_f32
#define TILE_STORE_SOME_f64 tile_store_some_f64
#define TILE_THEN_f32 tile_then_f32
#define TILE_THEN_f64 tile_then_f64
#define TILE_EVEN_f32 tile_even_f32
#define TILE_EVEN_f64 tile_even_f64
#endif
typedef TILE_VEC_f32 tile_v_f32;
typedef TILE_VEC_f64 tile_v_f64;
typedef TILE_VEC_f32 tile_u_f32 __attribute__((aligned(1)));
typedef TILE_VEC_f64 tile_u_f64 __attribute__((aligned(1)));
enum { TILE_V_f32 = sizeof(tile_v_f32) / sizeof(f32), TILE_N_f32 = 2 * TILE_V_f32 };
enum { TILE_V_f64 = sizeof(tile_v_f64) / sizeof(f64), TILE_N_f64 = 2 * TILE_V_f64 };

/* Turning blocks in registers: to[k][i] = from[i][k]. Halves of two rows are loaded into each vector, so that what is left stays within halves. */
#if defined(__AVX__)
static inline __attribute__((always_inline)) void tile_turn_halves(__m256 r[4], __m256 to[4]) {
  __m256 a = _mm256_unpacklo_ps(r[0], r[1]), b = _mm256_unpackhi_ps(r[0], r[1]);
  __m256 c = _mm256_unpacklo_ps(r[2], r[3]), d = _mm256_unpackhi_ps(r[2], r[3]);
  to[0] = _mm256_shuffle_ps(a, c, 0x44);
  to[1] = _mm256_shuffle_ps(a, c, 0xee);
  to[2] = _mm256_shuffle_ps(b, d, 0x44);
  to[3] = _mm256_shuffle_ps(b, d, 0xee);
}
static inline __attribute__((always_inline)) void tile_turned8(const f32 *p, int64_t stride, __m256 to[8]) {
  for (int half = 0; half < 8; half += 4) {
    __m256 r[4];
    for (int i = 0; i < 4; i++)
      r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + i * stride + half)),
                                  _mm_loadu_ps(p + (i + 4) * stride + half), 1);
    tile_turn_halves(r, to + half);
  }
}
/* With those elements of each row that `these` says; the others are 0. */
static inline __attribute__((always_inline)) void tile_turned8_of(const f32 *p, int64_t stride, __m256i these,
                                                                  __m256 to[8]) {
  __m256 r[8], of[4];
  for (int i = 0; i < 8; i++) r[i] = _mm256_maskload_ps(p + i * stride, these);
  for (int half = 0; half < 2; half++) {
    for (int i = 0; i < 4; i++)
      of[i] = half ? _mm256_permute2f128_ps(r[i], r[i + 4], 0x31) : _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
    tile_turn_halves(of, to + 4 * half);
  }
}
/* panel[k * pitch + i] = p[i * stride + k] for i < n. Blocks of 8 x 8 (f64: 4 x 4) overlap at the end of the depth; panels have room for whole
 * blocks, whose rows beyond n are copies of the last. */
static inline void tile_turn_f32(f32 *panel, int64_t pitch, const f32 *p, int64_t stride, int n, int64_t depth) {
  for (int i = 0; i < n; i += 8) {
    const f32 *row[8];
    for (int r = 0; r < 8; r++) row[r] = p + (i + r < n ? i + r : n - 1) * stride;
    int64_t k = 0;
    for (; depth >= 8 && k < depth; k += 8) {
      if (k > depth - 8) k = depth - 8;
      for (int half = 0; half < 8; half += 4) {
        __m256 r[4], to[4];
        for (int j = 0; j < 4; j++)
          r[j] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(row[j] + k + half)),
                                      _mm_loadu_ps(row[j + 4] + k + half), 1);
        tile_turn_halves(r, to);
        for (int j = 0; j < 4; j++) _mm256_storeu_ps(panel + (k + half + j) * pitch + i, to[j]);
      }
    }
    for (; k < depth; k++)
      for (int r = 0; r < 8; r++) panel[k * pitch + i + r] = row[r][k];
  }
}
static inline void tile_turn_f64(f64 *panel, int64_t pitch, const f64 *p, int64_t stride, int n, int64_t depth) {
  for (int i = 0; i < n; i += 4) {
    const f64 *row[4];
    for (int r = 0; r < 4; r++) row[r] = p + (i + r < n ? i + r : n - 1) * stride;
    int64_t k = 0;
    for (; depth >= 4 && k < depth; k += 4) {
      if (k > depth - 4) k = depth - 4;
      for (int half = 0; half < 4; half += 2) {
        __m256d r[2];
        for (int j = 0; j < 2; j++)
          r[j] = _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(row[j] + k + half)),
                                      _mm_loadu_pd(row[j + 2] + k + half), 1);
        _mm256_storeu_pd(panel + (k + half) * pitch + i, _mm256_unpacklo_pd(r[0], r[1]));
        _mm256_storeu_pd(panel + (k + half + 1) * pitch + i, _mm256_unpackhi_pd(r[0], r[1]));
      }
    }
    for (; k < depth; k++)
      for (int r = 0; r < 4; r++) panel[k * pitch + i + r] = row[r][k];
  }
}
#else
#define TILE_TURN(T)                                                                                                   \
  static inline void tile_turn_##T(T *panel, int64_t pitch, const T *p, int64_t stride, int n, int64_t depth) {        \
    for (int i = 0; i < n; i++)                                                                                        \
      for (int64_t k = 0; k < depth; k++) panel[k * pitch + i] = p[i * stride + k];                                    \
  }
TILE_TURN(f32)
TILE_TURN(f64)
#endif

/* Sums of TILE_BESIDE chunks of `depth` products, in the lanes of a vector: blocks of 8 x 8 of both operands are turned in registers.
 * Chunks lie a multiple of 4 KiB apart, where the first cache has room for few lines: so whole lines are read, 16 elements.
 * A million elements take 12.7 ms as one chain after the other, 1.05 as eight scalar chains, .28 with 8 elements at a time, .20 with 16. */
#if defined(__AVX2__) && defined(__FMA__)
static inline bool tile_lanes_f32(const f32 *x, const f32 *y, int64_t depth, f32 *sums) {
  _Static_assert(TILE_BESIDE == 8, "lanes of a vector");
  __m256 s = _mm256_set1_ps(-0.0f), a[16], b[16];
  int64_t k = 0;
  for (; k + 16 <= depth; k += 16) {
    tile_turned8(x + k, ORDER_DOT_CHUNK, a);
    tile_turned8(x + k + 8, ORDER_DOT_CHUNK, a + 8);
    tile_turned8(y + k, ORDER_DOT_CHUNK, b);
    tile_turned8(y + k + 8, ORDER_DOT_CHUNK, b + 8);
    for (int i = 0; i < 16; i++) s = _mm256_fmadd_ps(a[i], b[i], s);
  }
  _mm256_storeu_ps(sums, s);
  for (int c = 0; c < 8 && k < depth; c++)
    for (int64_t i = c * ORDER_DOT_CHUNK + k, end = c * ORDER_DOT_CHUNK + depth; i < end; i++)
      sums[c] = fma_f32(x[i], y[i], sums[c]);
  return true;
}
/* out[m * ld] = sum over k of x[m * stride + k] * y[k * yk] for 8 * many rows. Chains wait for themselves: so there are some side by side. */
static inline __attribute__((always_inline)) void tile_columns8(const int many, const f32 *x, int64_t stride,
                                                                const f32 *y, int64_t yk, int64_t depth, f32 *out,
                                                                int64_t ld) {
  static const int32_t ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
  __m256 s[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()}, a[8];
  for (int64_t k = 0; k < depth; k += 8) {
    const int n = depth - k < 8 ? (int)(depth - k) : 8;
    const f32 *py = y + k * yk;
    _Pragma("GCC unroll 4") for (int g = 0; g < many; g++) {
      const f32 *p = x + 8 * g * stride + k;
      if (n == 8)
        tile_turned8(p, stride, a);
      else /* what lies behind the rows is not read */
        tile_turned8_of(p, stride, _mm256_loadu_si256((const __m256i_u *)(ones + 8 - n)), a);
      __m256 b = _mm256_broadcast_ss(py);
      s[g] = k ? _mm256_fmadd_ps(a[0], b, s[g]) : _mm256_mul_ps(a[0], b);
      if (n == 8) {
        _Pragma("GCC unroll 8") for (int i = 1; i < 8; i++) s[g] =
            _mm256_fmadd_ps(a[i], _mm256_broadcast_ss(py + i * yk), s[g]);
      } else {
        for (int i = 1; i < n; i++) s[g] = _mm256_fmadd_ps(a[i], _mm256_broadcast_ss(py + i * yk), s[g]);
      }
    }
  }
  f32 of[8];
  for (int g = 0; g < many; g++) {
    if (ld == 1) {
      _mm256_storeu_ps(out + 8 * g, s[g]);
      continue;
    }
    _mm256_storeu_ps(of, s[g]);
    for (int i = 0; i < 8; i++) out[(8 * g + i) * ld] = of[i];
  }
}
/* The same for at least 8 rows; the last 8 may lie over those before. */
static inline bool tile_column_f32(const f32 *x, int64_t stride, const f32 *y, int64_t yk, int64_t rows, int64_t depth,
                                   f32 *out, int64_t ld) {
  if (rows < 8) return false;
  int64_t m = 0;
  for (; rows - m >= 32; m += 32) tile_columns8(4, x + m * stride, stride, y, yk, depth, out + m * ld, ld);
  for (; rows - m >= 16; m += 16) tile_columns8(2, x + m * stride, stride, y, yk, depth, out + m * ld, ld);
  for (; m < rows; m += 8) {
    if (rows - m < 8) m = rows - 8;
    tile_columns8(1, x + m * stride, stride, y, yk, depth, out + m * ld, ld);
  }
  return true;
}
#else
#define tile_lanes_f32(...) false
#define tile_column_f32(...) false
#endif
#define tile_lanes_f64(...) false
#define tile_column_f64(...) false

/* The heights of kernels. */
#if defined(__AVX512F__)
#define TILE_KERNELS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#elif defined(__AVX2__) && defined(__FMA__)
#define TILE_KERNELS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#else
#define TILE_KERNELS(X) X(1) X(2) X(3) X(4)
#endif

/* How many numbers of a digit's kind (of rows or of columns) it takes until all digits come again but the largest, which then is one more; 0: there
 * is no such number, or there are several digits without end. */
static int64_t tile_period(const qk_tile *t, bool deep, int64_t *step) {
  int64_t period = 0;
  for (int32_t k = 0; k < t->ndigits; k++) {
    const qk_digit *d = &t->digits[k];
    if (deep != (d->deep != 0) || d->most) continue;
    if (period) return 0;
    period = d->by;
    *step = d->step;
  }
  for (int32_t k = 0; k < t->ndigits && period; k++) {
    const qk_digit *d = &t->digits[k];
    if (deep == (d->deep != 0) && d->most && period % (d->by * d->most)) return 0;
  }
  return period;
}
/* Offsets of n rows of windows along the depth, or of n columns, of which the first has number `at`, from the element where y begins. */
static void tile_offsets(const qk_tile *t, bool deep, int64_t at, int64_t n, int64_t *to) {
  const int64_t step = deep ? t->y_k : t->y_n, all = n;
  int64_t again = 0, period = tile_period(t, deep, &again);
  if (period && period < n) n = period;
  for (int64_t i = 0; i < n; i++) to[i] = (at + i) * step;
  for (int32_t k = 0; k < t->ndigits; k++) {
    const qk_digit *d = &t->digits[k];
    if (deep != (d->deep != 0)) continue;
    const int64_t first = deep ? t->k_first : t->n_first, start = qk_digit_of(d, first);
    int64_t digit = qk_digit_of(d, first + at), within = (first + at) % d->by;
    for (int64_t i = 0; i < n; i++) {
      to[i] += (digit - start) * d->step;
      if (++within < d->by) continue;
      within = 0;
      if (++digit == d->most) digit = 0;
    }
  }
  for (int64_t i = n; i < all; i++) to[i] = to[i - period] + again + period * step;
}
/* How many runs of elements `step` apart n offsets are, and how many of them are the first. */
static int64_t tile_runs(const int64_t *offsets, int64_t n, int64_t step) {
  int64_t runs = 1;
  for (int64_t i = 1; i < n; i++) runs += offsets[i] != offsets[i - 1] + step;
  return runs;
}
static int64_t tile_run(const int64_t *offsets, int64_t n, int64_t step) {
  int64_t i = 1;
  while (i < n && offsets[i] == offsets[i - 1] + step) i++;
  return i;
}

#define TILE_JOIN_(a, b) a##_##b
#define TILE_JOIN(a, b) TILE_JOIN_(a, b)
#define T f32
#include "jit/cpu/block_vm_tile_float.h"
#undef T
#define T f64
#include "jit/cpu/block_vm_tile_float.h"
#undef T

/* Integers wrap: any order. Row by row, so that compilers vectorise over the columns. */
#define TILE_INT(T)                                                                                                    \
  static void tile_##T(const qk_tile *t) {                                                                             \
    const T *x = t->x, *y = t->y;                                                                                      \
    for (int64_t m = 0; m < t->rows; m++) {                                                                            \
      T *out = (T *)t->out + m * t->ld;                                                                                \
      for (int64_t n = 0; n < t->cols; n++) out[n] = 0;                                                                \
      for (int64_t k = 0; k < t->depth; k++) {                                                                         \
        T b = x[m * t->x_m + k * t->x_k];                                                                              \
        const T *p = y + k * t->y_k;                                                                                   \
        if (t->y_n == 1)                                                                                               \
          for (int64_t n = 0; n < t->cols; n++) out[n] = add_##T(out[n], mul_##T(b, p[n]));                            \
        else                                                                                                           \
          for (int64_t n = 0; n < t->cols; n++) out[n] = add_##T(out[n], mul_##T(b, p[n * t->y_n]));                   \
      }                                                                                                                \
    }                                                                                                                  \
  }
TILE_INT(u8)
TILE_INT(i8)
TILE_INT(i16)
TILE_INT(i32)
TILE_INT(i64)

static void tile_any(const qk_tile *t) {
  switch (t->od) {
  case QN_f32: tile_f32(t); break;
  case QN_f64: tile_f64(t); break;
  case QN_u8: tile_u8(t); break;
  case QN_i8: tile_i8(t); break;
  case QN_i16: tile_i16(t); break;
  case QN_i32: tile_i32(t); break;
  default: tile_i64(t); break;
  }
}
