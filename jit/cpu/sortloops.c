/* The loops of sortloops.h, compiled once per instruction set: VM_ISA names the table. */
#include "jit/cpu/sortloops.h"

#include <string.h>

#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
#define INLINE static inline __attribute__((always_inline))

/* ---- keys ---------------------------------------------------------------------------------------------------------- */

/* W: an unsigned type of the element's size. TOP: what flips the sign bit (0: unsigned). INFINITY_BITS: those of infinity. `flip`: all bits set
 * where the order descends, else 0. */
#define INT_KEYS(NAME, W, TOP)                                                                                         \
  INLINE W key_##NAME(W x, W flip) { return (W)(x ^ (W)(TOP) ^ flip); }                                                \
  INLINE W element_##NAME(W key, W flip) { return (W)(key ^ flip ^ (W)(TOP)); }                                        \
  INLINE bool nan_##NAME(W x) { return (void)x, false; }                                                               \
  INLINE bool negative_zero_##NAME(W x) { return (void)x, false; }
#define FLOAT_KEYS(NAME, W, TOP, INFINITY_BITS)                                                                        \
  INLINE bool nan_##NAME(W x) { return (W)(x & (W)((W)(TOP)-1)) > (W)(INFINITY_BITS); }                                \
  INLINE bool negative_zero_##NAME(W x) { return x == (W)(TOP); }                                                      \
  INLINE W key_##NAME(W x, W flip) {                                                                                   \
    W z = x == (W)(TOP) ? (W)0 : x;                                                                                    \
    W key = (W)(z ^ (z & (W)(TOP) ? (W) ~(W)0 : (W)(TOP)) ^ flip);                                                     \
    return nan_##NAME(x) ? (W) ~(W)0 : key;                                                                            \
  }                                                                                                                    \
  INLINE W element_##NAME(W key, W flip) {                                                                             \
    W k = (W)(key ^ flip);                                                                                             \
    return (W)(k ^ (k & (W)(TOP) ? (W)(TOP) : (W) ~(W)0));                                                             \
  }
INT_KEYS(u8, u8, 0)
INT_KEYS(i8, u8, 0x80)
INT_KEYS(i16, u16, 0x8000)
INT_KEYS(i32, u32, 0x80000000u)
INT_KEYS(i64, u64, (u64)1 << 63)
FLOAT_KEYS(f16, u16, 0x8000, 0x7c00)
FLOAT_KEYS(bf16, u16, 0x8000, 0x7f80)
FLOAT_KEYS(f32, u32, 0x80000000u, 0x7f800000u)
FLOAT_KEYS(f64, u64, (u64)1 << 63, 0x7ff0000000000000u)

/* clang-format off */
#define EACH_DTYPE(DO) \
  DO(u8, u8, 32) DO(i8, u8, 32) DO(i16, u16, 32) DO(i32, u32, 32) DO(f16, u16, 32) DO(bf16, u16, 32) DO(f32, u32, 32) \
  DO(i64, u64, 64) DO(f64, u64, 64)
#define COUNTED(NAME, W, K) +1
_Static_assert(1 EACH_DTYPE(COUNTED) == DTYPE_PUBLIC, "keys of every public dtype; bool has those of u8");
/* clang-format on */

/* Makes the items of n elements that are `step` bytes apart. */
#define ITEMS_LOOP(NAME, W, ITEM, MAKE)                                                                                \
  {                                                                                                                    \
    ITEM *to = items;                                                                                                  \
    _Pragma("omp simd reduction(| : vary) reduction(+ : zeros, nans)") for (int64_t i = 0; i < n; i++) {               \
      W x;                                                                                                             \
      memcpy(&x, in + i * step, sizeof x);                                                                             \
      W key = key_##NAME(x, flip);                                                                                     \
      vary |= (W)(key ^ like);                                                                                         \
      zeros += negative_zero_##NAME(x);                                                                                \
      nans += nan_##NAME(x);                                                                                           \
      to[i] = MAKE;                                                                                                    \
    }                                                                                                                  \
  }
#define ITEMS_LOOP_PAIR(NAME)                                                                                          \
  {                                                                                                                    \
    sort_indexed *to = items;                                                                                          \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
      u64 x;                                                                                                           \
      memcpy(&x, in + i * step, sizeof x);                                                                             \
      u64 key = key_##NAME(x, flip);                                                                                   \
      vary |= key ^ like;                                                                                              \
      to[i] = (sort_indexed){key, first + i};                                                                          \
    }                                                                                                                  \
  }
#define ITEMS_32(NAME, W)                                                                                              \
  if (kind == SORT_32) ITEMS_LOOP(NAME, W, u32, key) else ITEMS_LOOP(NAME, W, u64, (u64)key << 32 | (u32)(first + i))
#define ITEMS_64(NAME, W)                                                                                              \
  if (kind == SORT_64) ITEMS_LOOP(NAME, W, u64, key) else ITEMS_LOOP_PAIR(NAME)
#define ITEMS(NAME, W, K)                                                                                              \
  INLINE void items_of_##NAME(const sort_elements *e, const char *line, sort_kind kind, void *items, sort_seen *seen,  \
                              int64_t step) {                                                                          \
    const char *in = e->in;                                                                                            \
    const W flip = e->descending ? (W) ~(W)0 : (W)0;                                                                   \
    W vary = 0, one;                                                                                                   \
    memcpy(&one, line, sizeof one);                                                                                    \
    const W like = key_##NAME(one, flip);                                                                              \
    int64_t n = e->n, first = e->first, zeros = 0, nans = 0;                                                           \
    (void)first;                                                                                                       \
    ITEMS_##K(NAME, W);                                                                                                \
    seen->vary |= vary;                                                                                                \
    seen->negative_zeros += zeros, seen->nans += nans;                                                                 \
  }                                                                                                                    \
  static void items_##NAME(const sort_elements *e, const char *line, sort_kind kind, void *items, sort_seen *seen) {   \
    if (e->step == (int64_t)sizeof(W))                                                                                 \
      items_of_##NAME(e, line, kind, items, seen, (int64_t)sizeof(W));                                                 \
    else                                                                                                               \
      items_of_##NAME(e, line, kind, items, seen, e->step);                                                            \
  }
EACH_DTYPE(ITEMS)

/* ---- elements of items ------------------------------------------------------------------------------------------------- */

/* `out` may be the items themselves, in place: a word is read before one of the same size is written there. */
#define ELEMENTS_LOOP(T, VALUE)                                                                                        \
  if (step == (int64_t)sizeof(T)) {                                                                                    \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                              \
      T v = VALUE;                                                                                                     \
      memcpy(out + i * (int64_t)sizeof(T), &v, sizeof v);                                                              \
    }                                                                                                                  \
  } else {                                                                                                             \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
      T v = VALUE;                                                                                                     \
      memcpy(out + i * step, &v, sizeof v);                                                                            \
    }                                                                                                                  \
  }
#define ELEMENTS(NAME, W, K)                                                                                           \
  static void elements_##NAME(const void *items, int64_t n, bool descending, char *out, int64_t step) {                \
    const W flip = descending ? (W) ~(W)0 : (W)0;                                                                      \
    const u##K *from = items;                                                                                          \
    ELEMENTS_LOOP(W, element_##NAME((W)from[i], flip))                                                                 \
  }
EACH_DTYPE(ELEMENTS)

static void indices_packed(const void *items, int64_t n, char *out, int64_t step) {
  const u64 *from = items;
  ELEMENTS_LOOP(u64, from[i] & UINT32_MAX)
}
static void indices_paired(const void *items, int64_t n, char *out, int64_t step) {
  const sort_indexed *from = items;
  ELEMENTS_LOOP(int64_t, from[i].index)
}

#define SPECIALS(NAME, W, K)                                                                                           \
  static void specials_##NAME(const char *in, int64_t step, int64_t n, char *zeros, char *nans, int64_t out_step) {    \
    for (int64_t i = 0; i < n; i++, in += step) {                                                                      \
      W x;                                                                                                             \
      memcpy(&x, in, sizeof x);                                                                                        \
      if (zeros && (x == 0 || negative_zero_##NAME(x))) memcpy(zeros, &x, sizeof x), zeros += out_step;                \
      if (nans && nan_##NAME(x)) memcpy(nans, &x, sizeof x), nans += out_step;                                         \
    }                                                                                                                  \
  }
EACH_DTYPE(SPECIALS)

/* ---- ranks of few elements ----------------------------------------------------------------------------------------- */

/* An element's rank is the number of those that are less, and of those before it that are equal. LANES of them are ranked at once. */
#define RANK(W, S, LANES, MOST, TOP)                                                                                   \
  typedef S v##W __attribute__((vector_size(LANES * sizeof(S))));                                                      \
  static void rank_##W(const W *keys, int64_t n, int32_t *rank) {                                                      \
    S k[MOST + LANES];                                                                                                 \
    for (int64_t i = 0; i < n; i++) k[i] = (S)(keys[i] ^ (TOP));                                                       \
    for (int64_t i = n; i < n + LANES; i++) k[i] = 0;                                                                  \
    v##W lane;                                                                                                         \
    for (int l = 0; l < LANES; l++) lane[l] = l;                                                                       \
    for (int64_t b = 0; b < n; b += LANES) {                                                                           \
      v##W me, less = {0};                                                                                             \
      memcpy(&me, k + b, sizeof me);                                                                                   \
      int64_t i = 0, own = b + LANES < n ? b + LANES : n;                                                              \
      for (; i < b; i++) less -= (v##W)(me >= k[i]);                                                                   \
      for (; i < own; i++) less -= (v##W)((me > k[i]) | ((me == k[i]) & (lane > (S)(i - b))));                         \
      for (; i < n; i++) less -= (v##W)(me > k[i]);                                                                    \
      int count = (int)(own - b);                                                                                      \
      for (int l = 0; l < count; l++) rank[b + l] = (int32_t)less[l];                                                  \
    }                                                                                                                  \
  }
RANK(u32, int32_t, 16, SORT_RANKED_32, 0x80000000u)
RANK(u64, int64_t, 8, SORT_RANKED_64, (u64)1 << 63)

#define RANKS(NAME, W, K)                                                                                              \
  static void ranks_##NAME(const sort_elements *e, int32_t *rank) {                                                    \
    u##K keys[SORT_RANKED_##K];                                                                                        \
    const W flip = e->descending ? (W) ~(W)0 : (W)0;                                                                   \
    const char *in = e->in;                                                                                            \
    for (int64_t i = 0; i < e->n; i++, in += e->step) {                                                                \
      W x;                                                                                                             \
      memcpy(&x, in, sizeof x);                                                                                        \
      keys[i] = key_##NAME(x, flip);                                                                                   \
    }                                                                                                                  \
    rank_u##K(keys, e->n, rank);                                                                                       \
  }
EACH_DTYPE(RANKS)

/* ---- many elements ------------------------------------------------------------------------------------------------- */

enum {
  INSERTED = 16,    /* items that are inserted */
  SHORT = 4096,     /* items below which digits have 8 bits */
  CACHED = 1 << 18, /* items beyond which a step has one digit, and the next works in the cache */
  LOOK = 1 << 14,   /* items from which it is asked whether to stop */
  SPARE_BITS = 4,   /* sorted beyond the logarithm of their number, so that few are equal */
};

#define ITEM u32
#define WORD u32
#define KEY(x) (x)
#define NAME(x) x##_32
#include "jit/cpu/sortradix.h"
#define ITEM u64
#define WORD u64
#define KEY(x) (x)
#define NAME(x) x##_64
#include "jit/cpu/sortradix.h"
#define ITEM sort_indexed
#define WORD u64
#define KEY(x) ((x).key)
#define NAME(x) x##_pair
#include "jit/cpu/sortradix.h"

#define TABLE2(isa) sort_loops_##isa
#define TABLE(isa) TABLE2(isa)
#define BY_DTYPE(NAME, W, K) [DTYPE_##NAME] = PART(NAME),
const sort_loops TABLE(VM_ISA) = {
#define PART(NAME) items_##NAME
    .items = {EACH_DTYPE(BY_DTYPE)[DTYPE_b8] = items_u8},
#undef PART
#define PART(NAME) elements_##NAME
    .elements = {EACH_DTYPE(BY_DTYPE)[DTYPE_b8] = elements_u8},
#undef PART
#define PART(NAME) specials_##NAME
    .specials = {EACH_DTYPE(BY_DTYPE)[DTYPE_b8] = specials_u8},
#undef PART
#define PART(NAME) ranks_##NAME
    .rank = {EACH_DTYPE(BY_DTYPE)[DTYPE_b8] = ranks_u8},
    .indices = {[SORT_64] = indices_packed, [SORT_PAIR] = indices_paired},
    .count = {count_32, count_64, count_pair},
    .place = {place_32, place_64, place_pair},
    .keep = {keep_32, keep_64, keep_pair},
    .below = {below_32, below_64, below_pair},
    .sort = {sort_32, sort_64, sort_pair},
};
