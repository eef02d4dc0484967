/* Matrix products on register tiles, one variant per instruction set; included by block_vm_loops.c alone.
 *
 * out[m][n] = sum over k of x[m][k] * y[k][n]: the first product, then one chain of fma upward in k, in chunks of
 * 4,096 that combine by the balanced tree (l.h, order DOT). Every element is a chain of its own, so rows, columns,
 * blocking, packing and vector width cannot change a bit.
 *
 * The depth is cut into slices (512 bytes of a row); between slices the chains rest in `out`. Of a slice, x is packed
 * into panels of up to TILE_M rows (x[k][row]: one pointer, broadcasts at constant offsets) and y, TILE_COLS columns
 * at a time, into panels of TILE_N columns, padded with zeros; a panel of y that is contiguous and used once is read
 * in place. The kernel keeps TILE_M x TILE_N sums in registers (14 x 2 of 512 bits, 6 x 2 of 256). Columns beyond the
 * edge are computed on the padding and not stored.
 *
 * So a panel of y stays in the first cache while all panels of x pass by from the second, and of large tiles (whose y
 * is far away) y is read in long pieces; small ones pack a panel when it is needed.
 * A vector times a matrix has up to 8 vectors of sums at a time (tile_row).
 * A matrix times a vector, where rows of the matrix lie along k, has 8 rows in the lanes of a vector, turned in registers (tile_column): to
 * pack them for one use costs more than the product. A turn of gradient descent with 32 x 32 takes 2,630 instructions, 3,960 with packing.
 * With few results, as in a vector times a vector, the processor would wait for each step of a chain: so several chunks of a result are
 * computed side by side (tile_few), and their sums then go into the tree in the usual order.
 * Tried: packing one panel of y at a time always (short pieces of memory far apart, slower by about a third at
 * 2048), and never (slower by about a fifth at 256); packed operands on the stack (hosts have small ones).
 */
enum { TILE_SLICE_f32 = 128, TILE_SLICE_f64 = 64, TILE_ROWS = 256, TILE_COLS = 256 };
enum { TILE_TURNED = 128, TILE_LEVELS = 24, TILE_FEW = 4, TILE_FEW_DEEP = 16, TILE_BESIDE = 8, TILE_WIDE = 8 };

#if defined(__AVX512F__)
#include <immintrin.h>
enum { TILE_M = 14 };
#define TILE_VEC_f32 __m512
#define TILE_VEC_f64 __m512d
#define TILE_FMA_f32 _mm512_fmadd_ps
#define TILE_FMA_f64 _mm512_fmadd_pd
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
enum { TILE_M = 6 };
#define TILE_VEC_f32 __m256
#define TILE_VEC_f64 __m256d
#define TILE_FMA_f32 _mm256_fmadd_ps
#define TILE_FMA_f64 _mm256_fmadd_pd
#else
enum { TILE_M = 4 };
#define TILE_VECTOR(T)                                                                                                 \
  typedef T tile_vec_##T __attribute__((vector_size(16)));                                                             \
  static inline tile_vec_##T tile_fma_##T(tile_vec_##T a, tile_vec_##T b, tile_vec_##T c) {                            \
    for (size_t i = 0; i < 16 / sizeof(T); i++) c[i] = fma_##T(a[i], b[i], c[i]);                                      \
    return c;                                                                                                          \
  }
TILE_VECTOR(f32)
TILE_VECTOR(f64)
#define TILE_VEC_f32 tile_vec_f32
#define TILE_VEC_f64 tile_vec_f64
#define TILE_FMA_f32 tile_fma_f32
#define TILE_FMA_f64 tile_fma_f64
#endif

/* Subtracting zero keeps every value, -0 included. */
#define TILE_SPLAT(T, v) ((v) - (tile_v_##T){0})

/* panel[k][i] = p[i * stride + k] for i < width, at least 8: blocks of 8 x 8 are turned in registers, the last of which overlaps
 * the one before where the width is no multiple of 8 (panels of 14 rows). */
#if defined(__AVX__)
static inline __attribute__((always_inline)) void tile_turn_rows(__m256 r[8], __m256 to[8]) {
  __m256 s[8];
  for (int i = 0; i < 8; i += 2) {
    s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; j++) {
      r[i + 2 * j] = _mm256_shuffle_ps(s[i + j], s[i + j + 2], 0x44);
      r[i + 2 * j + 1] = _mm256_shuffle_ps(s[i + j], s[i + j + 2], 0xee);
    }
  for (int i = 0; i < 4; i++) {
    to[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
    to[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
  }
}
static inline __attribute__((always_inline)) void tile_turned8(const f32 *p, int64_t stride, __m256 to[8]) {
  __m256 r[8];
  for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(p + i * stride);
  tile_turn_rows(r, to);
}
/* With those elements of each row that `these` says; the others are 0. */
static inline __attribute__((always_inline)) void tile_turned8_of(const f32 *p, int64_t stride, __m256i these,
                                                                  __m256 to[8]) {
  __m256 r[8];
  for (int i = 0; i < 8; i++) r[i] = _mm256_maskload_ps(p + i * stride, these);
  tile_turn_rows(r, to);
}
static inline void tile_turn8(const f32 *p, int64_t stride, f32 *to, int64_t width) {
  __m256 r[8];
  tile_turned8(p, stride, r);
  for (int i = 0; i < 8; i++) _mm256_storeu_ps(to + i * width, r[i]);
}
static inline bool tile_turn_f32(const f32 *p, int64_t stride, f32 *panel, int64_t width, int64_t depth) {
  int64_t k = 0;
  for (; k + 8 <= depth; k += 8)
    for (int64_t i = 0; i < width; i += 8) {
      int64_t from = i + 8 <= width ? i : width - 8;
      tile_turn8(p + from * stride + k, stride, panel + k * width + from, width);
    }
  for (; k < depth; k++)
    for (int64_t i = 0; i < width; i++) panel[k * width + i] = p[i * stride + k];
  return true;
}
#else
#define tile_turn_f32(...) false
#endif
#define tile_turn_f64(...) false /* there is none */

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

/* tile_pack1 for panels of this width, by the dtype d. */
#define TILE_PACK(T, NAME, WIDTH)                                                                                      \
  static void NAME(T *panel, const void *p, int64_t at, int64_t si, int64_t sk, int n, int64_t depth, int d) {         \
    switch (d) {                                                                                                       \
    case QN_f16: tile_pack1_##T(panel, p, at, si, sk, n, WIDTH, depth, QN_f16); return;                                \
    case QN_bf16: tile_pack1_##T(panel, p, at, si, sk, n, WIDTH, depth, QN_bf16); return;                              \
    default: tile_pack1_##T(panel, p, at, si, sk, n, WIDTH, depth, DTYPE_##T);                                         \
    }                                                                                                                  \
  }
#define TILE_FLOAT(T)                                                                                                                              \
  typedef TILE_VEC_##T tile_v_##T;                                                                                                                 \
  typedef TILE_VEC_##T tile_u_##T __attribute__((aligned(1)));                                                                                     \
  enum { TILE_V_##T = sizeof(tile_v_##T) / sizeof(T), TILE_N_##T = 2 * TILE_V_##T };                                                               \
  /* mr rows of x (panel with xs rows a step) by one panel of y (row stride ys) into out; `first` starts the chains */                             \
  static inline __attribute__((always_inline)) void tile_kernel_##T(                                                                               \
      const int mr, const T *x, int64_t xs, const T *y, int64_t ys, T *out, int64_t ld, int64_t depth, bool first) {                               \
    tile_v_##T s[TILE_M][2];                                                                                                                       \
    int64_t k = 0;                                                                                                                                 \
    if (first) {                                                                                                                                   \
      tile_v_##T y0 = *(const tile_u_##T *)y, y1 = *(const tile_u_##T *)(y + TILE_V_##T);                                                          \
      for (int m = 0; m < mr; m++) {                                                                                                               \
        tile_v_##T b = TILE_SPLAT(T, x[m]);                                                                                                        \
        s[m][0] = b * y0;                                                                                                                          \
        s[m][1] = b * y1;                                                                                                                          \
      }                                                                                                                                            \
      k = 1;                                                                                                                                       \
    } else {                                                                                                                                       \
      for (int m = 0; m < mr; m++) {                                                                                                               \
        s[m][0] = *(const tile_u_##T *)(out + m * ld);                                                                                             \
        s[m][1] = *(const tile_u_##T *)(out + m * ld + TILE_V_##T);                                                                                \
      }                                                                                                                                            \
    }                                                                                                                                              \
    const T *px = x + k * xs, *py = y + k * ys;                                                                                                    \
    for (; k < depth; k++, px += xs, py += ys) {                                                                                                   \
      tile_v_##T y0 = *(const tile_u_##T *)py, y1 = *(const tile_u_##T *)(py + TILE_V_##T);                                                        \
      _Pragma("GCC unroll 16") for (int m = 0; m < mr; m++) {                                                                                      \
        tile_v_##T b = TILE_SPLAT(T, px[m]);                                                                                                       \
        s[m][0] = TILE_FMA_##T(b, y0, s[m][0]);                                                                                                    \
        s[m][1] = TILE_FMA_##T(b, y1, s[m][1]);                                                                                                    \
      }                                                                                                                                            \
    }                                                                                                                                              \
    for (int m = 0; m < mr; m++) {                                                                                                                 \
      *(tile_u_##T *)(out + m * ld) = s[m][0];                                                                                                     \
      *(tile_u_##T *)(out + m * ld + TILE_V_##T) = s[m][1];                                                                                        \
    }                                                                                                                                              \
  }                                                                                                                                                \
  static void tile_rows_##T(int mr, const T *x, int64_t xs, const T *y, int64_t ys, T *out, int64_t ld, int64_t depth,                             \
                            bool first) {                                                                                                          \
    switch (mr) {                                                                                                                                  \
      TILE_CASES(T)                                                                                                                                \
    default: tile_kernel_##T(TILE_M, x, xs, y, ys, out, ld, depth, first);                                                                         \
    }                                                                                                                                              \
  }                                                                                                                                                \
  /* Element `at` of an array of the float type d, as T. */                                                                                        \
  static inline __attribute__((always_inline)) T tile_at_##T(const void *p, int64_t at, int d) {                                                   \
    switch (d) {                                                                                                                                   \
    case QN_f16: return cast_f16_##T(((const f16 *)p)[at]);                                                                                        \
    case QN_bf16: return cast_bf16_##T(((const bf16 *)p)[at]);                                                                                     \
    default: return ((const T *)p)[at];                                                                                                            \
    }                                                                                                                                              \
  }                                                                                                                                                \
  /* panel[k][i] = p[i * si + k * sk] for i < n, zero up to width */                                                                               \
  static inline __attribute__((always_inline)) void tile_pack1_##T(                                                                                \
      T *panel, const void *p, int64_t at, int64_t si, int64_t sk, int n, int width, int64_t depth, int d) {                                       \
    if (si == 1 && n == width)                                                                                                                     \
      for (int64_t k = 0; k < depth; k++)                                                                                                          \
        for (int i = 0; i < width; i++) panel[k * width + i] = tile_at_##T(p, at + k * sk + i, d);                                                 \
    else if (sk == 1 && n == width && width >= 8 && d == DTYPE_##T &&                                                                              \
             tile_turn_##T((const T *)p + at, si, panel, width, depth))                                                                            \
      return;                                                                                                                                      \
    else                                                                                                                                           \
      for (int i = 0; i < width; i++) {                                                                                                            \
        if (i < n)                                                                                                                                 \
          for (int64_t k = 0; k < depth; k++) panel[k * width + i] = tile_at_##T(p, at + i * si + k * sk, d);                                      \
        else                                                                                                                                       \
          for (int64_t k = 0; k < depth; k++) panel[k * width + i] = 0;                                                                            \
      }                                                                                                                                            \
  }                                                                                                                                                \
  TILE_PACK(T, tile_pack_x_##T, n)                                                                                                                 \
  TILE_PACK(T, tile_pack_y_##T, TILE_N_##T)                                                                                                        \
  /* Packs `cols` columns of y from element `at` on: full panels together, row by row, a narrower last one by itself. */                           \
  static void tile_pack_cols_##T(T *py, const qk_tile *t, int64_t at, int64_t cols, int64_t depth) {                                               \
    int64_t whole = t->y_n == 1 && t->yd == DTYPE_##T ? cols / TILE_N_##T * TILE_N_##T : 0;                                                        \
    for (int64_t k = 0; k < depth && whole; k++) {                                                                                                 \
      const tile_u_##T *from = (const tile_u_##T *)((const T *)t->y + at + k * t->y_k);                                                            \
      T *to = py + k * TILE_N_##T;                                                                                                                 \
      for (int64_t n = 0; n < whole; n += TILE_N_##T, from += 2, to += TILE_SLICE_##T * TILE_N_##T) {                                              \
        *(tile_u_##T *)to = from[0];                                                                                                               \
        *(tile_u_##T *)(to + TILE_V_##T) = from[1];                                                                                                \
      }                                                                                                                                            \
    }                                                                                                                                              \
    for (int64_t n = whole; n < cols; n += TILE_N_##T)                                                                                             \
      tile_pack_y_##T(py + n * TILE_SLICE_##T, t->y, at + n * t->y_n, t->y_n, t->y_k,                                                              \
                      cols - n < TILE_N_##T ? (int)(cols - n) : TILE_N_##T, depth, t->yd);                                                         \
  }                                                                                                                                                \
  /* One chunk, at most 4,096 deep, of at most TILE_ROWS rows. */                                                                                  \
  static void tile_chunk_##T(const qk_tile *t, int64_t m0, int64_t n0, int64_t k0, int rows, int64_t cols,                                         \
                             int64_t depth, T *out, int64_t ld) {                                                                                  \
    T *px = t->work, *py = px + TILE_SLICE_##T * TILE_ROWS;                                                                                        \
    T edge[TILE_M * TILE_N_##T] __attribute__((aligned(64)));                                                                                      \
    /* panels of equal height, so that none is too low to keep the multipliers busy */                                                             \
    int panels = (rows + TILE_M - 1) / TILE_M, high = (rows + panels - 1) / panels;                                                                \
    for (int64_t k = 0; k < depth; k += TILE_SLICE_##T) {                                                                                          \
      int64_t d = depth - k < TILE_SLICE_##T ? depth - k : TILE_SLICE_##T;                                                                         \
      const T *x = px;                                                                                                                             \
      if (rows == 1 && t->x_k == 1 && t->xd == DTYPE_##T)                                                                                          \
        x = (const T *)t->x + m0 * t->x_m + k0 + k;                                                                                                \
      else                                                                                                                                         \
        for (int m = 0; m < rows; m += high)                                                                                                       \
          tile_pack_x_##T(px + m * TILE_SLICE_##T, t->x, (m0 + m) * t->x_m + (k0 + k) * t->x_k, t->x_m, t->x_k,                                    \
                          rows - m < high ? rows - m : high, d, t->xd);                                                                            \
      const int64_t wide = cols > 128 ? TILE_COLS : TILE_N_##T;                                                                                    \
      bool once = t->y_n == 1 && t->yd == DTYPE_##T && rows <= TILE_M;                                                                             \
      for (int64_t n = 0; n < cols; n += TILE_N_##T) {                                                                                             \
        int nc = cols - n < TILE_N_##T ? (int)(cols - n) : TILE_N_##T;                                                                             \
        int64_t at = (n0 + n) * t->y_n + (k0 + k) * t->y_k, ys = TILE_N_##T;                                                                       \
        const T *y = py + n % wide * TILE_SLICE_##T;                                                                                               \
        if (once && nc == TILE_N_##T) {                                                                                                            \
          y = (const T *)t->y + at;                                                                                                                \
          ys = t->y_k;                                                                                                                             \
        } else if (once || n % wide == 0) {                                                                                                        \
          int64_t most = once ? nc : cols - n < wide ? cols - n : wide;                                                                            \
          tile_pack_cols_##T(py + n % wide * TILE_SLICE_##T, t, at, most, d);                                                                      \
        }                                                                                                                                          \
        for (int m = 0; m < rows; m += high) {                                                                                                     \
          int mr = rows - m < high ? rows - m : high;                                                                                              \
          const T *xm = x + m * TILE_SLICE_##T;                                                                                                    \
          if (nc == TILE_N_##T) {                                                                                                                  \
            tile_rows_##T(mr, xm, mr, y, ys, out + m * ld + n, ld, d, k == 0);                                                                     \
            continue;                                                                                                                              \
          }                                                                                                                                        \
          for (int r = 0; r < mr; r++)                                                                                                             \
            for (int c = 0; c < nc; c++) edge[r * TILE_N_##T + c] = k == 0 ? 0 : out[(m + r) * ld + n + c];                                        \
          tile_rows_##T(mr, xm, mr, y, ys, edge, TILE_N_##T, d, k == 0);                                                                           \
          for (int r = 0; r < mr; r++)                                                                                                             \
            for (int c = 0; c < nc; c++) out[(m + r) * ld + n + c] = edge[r * TILE_N_##T + c];                                                     \
        }                                                                                                                                          \
      }                                                                                                                                            \
    }                                                                                                                                              \
  }                                                                                                                                                \
  /* Deeper products: chunks as leaves of the balanced tree, kept as a binary counter of subtrees. */                                              \
  static void tile_deep_##T(const qk_tile *t, int64_t m0, int64_t n0, int rows, int cols, T *out) {                                                \
    T(*tree)[TILE_M * TILE_N_##T] = (void *)((T *)t->work + TILE_SLICE_##T * (TILE_ROWS + TILE_COLS));                                             \
    T *leaf = tree[TILE_LEVELS];                                                                                                                   \
    _Static_assert(sizeof(T) * (TILE_SLICE_##T * (TILE_ROWS + TILE_COLS) + (TILE_LEVELS + 1) * TILE_M * TILE_N_##T) <=                             \
                       QK_TILE_WORK,                                                                                                               \
                   "packed operands and a tree");                                                                                                  \
    uint64_t n = 0;                                                                                                                                \
    for (int64_t k = 0; k < t->depth; k += ORDER_DOT_CHUNK, n++) {                                                                                 \
      int64_t d = t->depth - k < ORDER_DOT_CHUNK ? t->depth - k : ORDER_DOT_CHUNK;                                                                 \
      tile_chunk_##T(t, m0, n0, k, rows, cols, d, leaf, TILE_N_##T);                                                                               \
      int l = 0;                                                                                                                                   \
      for (; n >> l & 1; l++)                                                                                                                      \
        for (int i = 0; i < TILE_M * TILE_N_##T; i++) leaf[i] = tree[l][i] + leaf[i];                                                              \
      memcpy(tree[l], leaf, sizeof tree[l]);                                                                                                       \
    }                                                                                                                                              \
    bool any = false;                                                                                                                              \
    for (int l = 0; n >> l; l++) {                                                                                                                 \
      if (!(n >> l & 1)) continue;                                                                                                                 \
      for (int i = 0; i < TILE_M * TILE_N_##T; i++) leaf[i] = any ? tree[l][i] + leaf[i] : tree[l][i];                                             \
      any = true;                                                                                                                                  \
    }                                                                                                                                              \
    for (int r = 0; r < rows; r++)                                                                                                                 \
      for (int c = 0; c < cols; c++) out[(m0 + r) * t->ld + n0 + c] = leaf[r * TILE_N_##T + c];                                                    \
  }                                                                                                                                                \
  /* `many` chunks of one result side by side, each `depth` deep: a chain of fma alone waits for itself most of the time. */                       \
  static inline __attribute__((always_inline)) void tile_beside_##T(                                                                               \
      const int many, const void *x, int64_t xk, int xd, const void *y, int64_t yk, int yd, int64_t depth, T *sums) {                              \
    T s[TILE_BESIDE];                                                                                                                              \
    for (int c = 0; c < many; c++)                                                                                                                 \
      s[c] = tile_at_##T(x, c * ORDER_DOT_CHUNK * xk, xd) * tile_at_##T(y, c * ORDER_DOT_CHUNK * yk, yd);                                          \
    for (int64_t k = 1; k < depth; k++)                                                                                                            \
      _Pragma("GCC unroll 8") for (int c = 0; c < many; c++) s[c] =                                                                                \
          fma_##T(tile_at_##T(x, (c * ORDER_DOT_CHUNK + k) * xk, xd),                                                                              \
                  tile_at_##T(y, (c * ORDER_DOT_CHUNK + k) * yk, yd), s[c]);                                                                       \
    for (int c = 0; c < many; c++) sums[c] = s[c];                                                                                                 \
  }                                                                                                                                                \
  static inline __attribute__((always_inline)) void tile_some_##T(                                                                                 \
      int many, const void *x, int64_t xk, int xd, const void *y, int64_t yk, int yd, int64_t depth, T *sums) {                                    \
    switch (many) {                                                                                                                                \
    case TILE_BESIDE: tile_beside_##T(TILE_BESIDE, x, xk, xd, y, yk, yd, depth, sums); break;                                                      \
    case TILE_BESIDE / 2: tile_beside_##T(TILE_BESIDE / 2, x, xk, xd, y, yk, yd, depth, sums); break;                                              \
    case TILE_BESIDE / 4: tile_beside_##T(TILE_BESIDE / 4, x, xk, xd, y, yk, yd, depth, sums); break;                                              \
    default: tile_beside_##T(1, x, xk, xd, y, yk, yd, depth, sums);                                                                                \
    }                                                                                                                                              \
  }                                                                                                                                                \
  static void tile_chunks_##T(const qk_tile *t, int64_t x, int64_t y, int many, int64_t depth, T *sums) {                                          \
    const void *px = (const char *)t->x + x * (int64_t)dtype_rows[t->xd].size,                                                                     \
               *py = (const char *)t->y + y * (int64_t)dtype_rows[t->yd].size;                                                                     \
    if (t->xd != DTYPE_##T || t->yd != DTYPE_##T)                                                                                                  \
      tile_some_##T(many, px, t->x_k, t->xd, py, t->y_k, t->yd, depth, sums);                                                                      \
    else if (t->x_k != 1 || t->y_k != 1)                                                                                                           \
      tile_some_##T(many, px, t->x_k, DTYPE_##T, py, t->y_k, DTYPE_##T, depth, sums);                                                              \
    else if (many < TILE_BESIDE || !tile_lanes_##T(px, py, depth, sums))                                                                           \
      tile_some_##T(many, px, 1, DTYPE_##T, py, 1, DTYPE_##T, depth, sums);                                                                        \
  }                                                                                                                                                \
  /* Few results, as of a vector times a vector: nothing is packed. */                                                                             \
  static void tile_few_##T(const qk_tile *t) {                                                                                                     \
    for (int64_t i = 0; i < t->rows * t->cols; i++) {                                                                                              \
      int64_t m = i / t->cols, n = i % t->cols, x = m * t->x_m, y = n * t->y_n, whole = t->depth / ORDER_DOT_CHUNK;                                \
      T tree[TILE_LEVELS], sums[TILE_BESIDE];                                                                                                      \
      int64_t leaves = 0;                                                                                                                          \
      for (int64_t k = 0; k < t->depth;) {                                                                                                         \
        int many = TILE_BESIDE;                                                                                                                    \
        while (many > 1 && many > whole - leaves) many /= 2;                                                                                       \
        int64_t depth = leaves < whole ? ORDER_DOT_CHUNK : t->depth - k;                                                                           \
        tile_chunks_##T(t, x + k * t->x_k, y + k * t->y_k, many, depth, sums);                                                                     \
        k += many * depth;                                                                                                                         \
        for (int c = 0; c < many; c++, leaves++) {                                                                                                 \
          T leaf = sums[c];                                                                                                                        \
          int l = 0;                                                                                                                               \
          for (; leaves >> l & 1; l++) leaf = tree[l] + leaf;                                                                                      \
          tree[l] = leaf;                                                                                                                          \
        }                                                                                                                                          \
      }                                                                                                                                            \
      T sum = 0;                                                                                                                                   \
      bool any = false;                                                                                                                            \
      for (int l = 0; leaves >> l; l++) {                                                                                                          \
        if (!(leaves >> l & 1)) continue;                                                                                                          \
        sum = any ? tree[l] + sum : tree[l];                                                                                                       \
        any = true;                                                                                                                                \
      }                                                                                                                                            \
      ((T *)t->out)[m * t->ld + n] = sum;                                                                                                          \
    }                                                                                                                                              \
  }                                                                                                                                                \
  /* `many` vectors of one row of sums: so many chains at a time, since one alone waits for itself */                                              \
  static inline __attribute__((always_inline)) void tile_wide_##T(const int many, const T *x, int64_t xk, const T *y,                              \
                                                                  int64_t yk, int64_t depth, T *out) {                                             \
    tile_v_##T s[TILE_WIDE], b = TILE_SPLAT(T, x[0]);                                                                                              \
    for (int c = 0; c < many; c++) s[c] = b * *(const tile_u_##T *)(y + c * TILE_V_##T);                                                           \
    for (int64_t k = 1; k < depth; k++) {                                                                                                          \
      const T *py = y + k * yk;                                                                                                                    \
      b = TILE_SPLAT(T, x[k * xk]);                                                                                                                \
      _Pragma("GCC unroll 8") for (int c = 0; c < many; c++) s[c] =                                                                                \
          TILE_FMA_##T(b, *(const tile_u_##T *)(py + c * TILE_V_##T), s[c]);                                                                       \
    }                                                                                                                                              \
    for (int c = 0; c < many; c++) *(tile_u_##T *)(out + c * TILE_V_##T) = s[c];                                                                   \
  }                                                                                                                                                \
  /* One row of x by at least a vector of columns of y, which lie side by side: nothing is packed. The last vector may lie over the one before. */ \
  static void tile_row_##T(const qk_tile *t) {                                                                                                     \
    const T *x = t->x, *y = t->y;                                                                                                                  \
    T *out = t->out;                                                                                                                               \
    int64_t n = 0, cols = t->cols;                                                                                                                 \
    for (; cols - n >= TILE_WIDE * TILE_V_##T; n += TILE_WIDE * TILE_V_##T)                                                                        \
      tile_wide_##T(TILE_WIDE, x, t->x_k, y + n, t->y_k, t->depth, out + n);                                                                       \
    if (cols - n >= TILE_WIDE / 2 * TILE_V_##T) {                                                                                                  \
      tile_wide_##T(TILE_WIDE / 2, x, t->x_k, y + n, t->y_k, t->depth, out + n);                                                                   \
      n += TILE_WIDE / 2 * TILE_V_##T;                                                                                                             \
    }                                                                                                                                              \
    if (cols - n >= TILE_WIDE / 4 * TILE_V_##T) {                                                                                                  \
      tile_wide_##T(TILE_WIDE / 4, x, t->x_k, y + n, t->y_k, t->depth, out + n);                                                                   \
      n += TILE_WIDE / 4 * TILE_V_##T;                                                                                                             \
    }                                                                                                                                              \
    for (; n < cols; n += TILE_V_##T) {                                                                                                            \
      if (cols - n < TILE_V_##T) n = cols - TILE_V_##T;                                                                                            \
      tile_wide_##T(1, x, t->x_k, y + n, t->y_k, t->depth, out + n);                                                                               \
    }                                                                                                                                              \
  }                                                                                                                                                \
  static void tile_##T(const qk_tile *t) {                                                                                                         \
    T *out = t->out;                                                                                                                               \
    if (t->depth <= 0) {                                                                                                                           \
      for (int64_t m = 0; m < t->rows; m++)                                                                                                        \
        for (int64_t n = 0; n < t->cols; n++) out[m * t->ld + n] = 0;                                                                              \
      return;                                                                                                                                      \
    }                                                                                                                                              \
    if (t->rows * t->cols <= (t->depth <= ORDER_DOT_CHUNK ? TILE_FEW : TILE_FEW_DEEP)) {                                                           \
      tile_few_##T(t);                                                                                                                             \
      return;                                                                                                                                      \
    }                                                                                                                                              \
    if (t->xd == DTYPE_##T && t->yd == DTYPE_##T &&                                                                                                \
        t->depth <= ORDER_DOT_CHUNK) { /* a matrix, whose rows lie along k, times a vector */                                                      \
      if (t->cols == 1 && t->x_k == 1 && t->x_m != 1 &&                                                                                            \
          tile_column_##T(t->x, t->x_m, t->y, t->y_k, t->rows, t->depth, out, t->ld))                                                              \
        return;                                                                                                                                    \
      if (t->rows == 1 && t->y_k == 1 && t->y_n != 1 &&                                                                                            \
          tile_column_##T(t->y, t->y_n, t->x, t->x_k, t->cols, t->depth, out, 1))                                                                  \
        return;                                                                                                                                    \
    }                                                                                                                                              \
    if (t->cols < TILE_V_##T && t->rows > 2 * t->cols) { /* the wide side across vectors: transposed */                                            \
      tile_turned_##T(t);                                                                                                                          \
      return;                                                                                                                                      \
    }                                                                                                                                              \
    if (t->rows == 1 && t->y_n == 1 && t->xd == DTYPE_##T && t->yd == DTYPE_##T && t->cols >= TILE_V_##T &&                                        \
        t->depth <= ORDER_DOT_CHUNK) {                                                                                                             \
      tile_row_##T(t);                                                                                                                             \
      return;                                                                                                                                      \
    }                                                                                                                                              \
    bool deep = t->depth > ORDER_DOT_CHUNK;                                                                                                        \
    int mb = deep ? (int)TILE_M : (int)TILE_ROWS;                                                                                                  \
    for (int64_t m = 0; m < t->rows; m += mb) {                                                                                                    \
      int rows = t->rows - m < mb ? (int)(t->rows - m) : mb;                                                                                       \
      if (!deep)                                                                                                                                   \
        tile_chunk_##T(t, m, 0, 0, rows, t->cols, t->depth, out + m * t->ld, t->ld);                                                               \
      else                                                                                                                                         \
        for (int64_t n = 0; n < t->cols; n += TILE_N_##T)                                                                                          \
          tile_deep_##T(t, m, n, rows, t->cols - n < TILE_N_##T ? (int)(t->cols - n) : TILE_N_##T, out);                                           \
    }                                                                                                                                              \
  }                                                                                                                                                \
  static void tile_turned_##T(const qk_tile *t) {                                                                                                  \
    if (t->cols == 1 && t->ld == 1) { /* the results lie as wanted */                                                                              \
      qk_tile u = *t;                                                                                                                              \
      u.x = t->y, u.y = t->x, u.x_k = t->y_k, u.y_k = t->x_k, u.y_n = t->x_m, u.rows = 1, u.cols = t->rows,                                        \
      u.xd = t->yd, u.yd = t->xd;                                                                                                                  \
      tile_##T(&u);                                                                                                                                \
      return;                                                                                                                                      \
    }                                                                                                                                              \
    T turned[TILE_V_##T * TILE_TURNED];                                                                                                            \
    for (int64_t m = 0; m < t->rows; m += TILE_TURNED) {                                                                                           \
      int64_t rows = t->rows - m < TILE_TURNED ? t->rows - m : TILE_TURNED;                                                                        \
      qk_tile u = {t->y,     (const char *)t->x + m * t->x_m * (int64_t)dtype_rows[t->xd].size,                                                    \
                   turned,   t->work,                                                                                                              \
                   t->y_n,   t->y_k,                                                                                                               \
                   t->x_k,   t->x_m,                                                                                                               \
                   t->cols,  rows,                                                                                                                 \
                   t->depth, TILE_TURNED,                                                                                                          \
                   t->yd,    t->xd,                                                                                                                \
                   t->od};                                                                                                                         \
      tile_##T(&u);                                                                                                                                \
      for (int64_t r = 0; r < rows; r++)                                                                                                           \
        for (int64_t c = 0; c < t->cols; c++) ((T *)t->out)[(m + r) * t->ld + c] = turned[c * TILE_TURNED + r];                                    \
    }                                                                                                                                              \
  }

#define TILE_CASE(T, n)                                                                                                \
  case n:                                                                                                              \
    tile_kernel_##T(n, x, xs, y, ys, out, ld, depth, first);                                                           \
    break;
#if defined(__AVX512F__)
/* clang-format off */
#define TILE_CASES(T)                                                                                                  \
  TILE_CASE(T, 1) TILE_CASE(T, 2) TILE_CASE(T, 3) TILE_CASE(T, 4) TILE_CASE(T, 5) TILE_CASE(T, 6) TILE_CASE(T, 7)      \
  TILE_CASE(T, 8) TILE_CASE(T, 9) TILE_CASE(T, 10) TILE_CASE(T, 11) TILE_CASE(T, 12) TILE_CASE(T, 13)
/* clang-format on */
#elif defined(__AVX2__) && defined(__FMA__)
#define TILE_CASES(T) TILE_CASE(T, 1) TILE_CASE(T, 2) TILE_CASE(T, 3) TILE_CASE(T, 4) TILE_CASE(T, 5)
#else
#define TILE_CASES(T) TILE_CASE(T, 1) TILE_CASE(T, 2) TILE_CASE(T, 3)
#endif

static void tile_turned_f32(const qk_tile *t);
static void tile_turned_f64(const qk_tile *t);
TILE_FLOAT(f32)
TILE_FLOAT(f64)

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
