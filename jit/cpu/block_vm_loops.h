/* The loops of the block VM: every kernel primitive, function, conversion, memory access and reduction step over a run of
 * elements. block_vm_loops.c is compiled once per instruction set; all tables give the same bits.
 *
 * A loop computes n elements; operand i is a vector if bit i of `mode` is set, else one element that is repeated. Results may
 * be written over an operand exactly (same address), never shifted. Booleans are bytes 0 or 1. */
#ifndef JIT_CPU_BLOCK_VM_LOOPS_H
#define JIT_CPU_BLOCK_VM_LOOPS_H

#include "jit/kernel/l.h"

enum { VM_A = 1, VM_B = 2, VM_C = 4 };
typedef void (*bvm_fn)(void *out, const void *a, const void *b, const void *c, int mode, int64_t n);

/* A batch of small matrix products, out[b][i][j] = x[b][i][0] * y[b][0][j] + ...: `count` pairs of matrices, m rows, n columns, k >= 1
 * products an element. The distances are in elements: to the next matrix, to the next row of x or column of y, and along k. */
typedef struct bvm_gemm {
  int64_t count, m, n, k;
  int64_t x_next, x_row, x_step;
  int64_t y_next, y_step, y_column;
} bvm_gemm;

enum { BVM_INNER_MOST = 128 * ORDER_BLOCK }; /* more are worth threads */

#if defined(__AVX512F__) && defined(__AVX512DQ__)
enum { VM_WORDS = 8 }; /* random numbers made at a time */
#else
enum { VM_WORDS = 4 };
#endif

enum { VM_SIZES = 4 }; /* element sizes 1, 2, 4, 8 are numbered 0..3 */
static inline int bvm_size_class(size_t bytes) { return bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : 3; }

/* The table of one instruction set. */
typedef struct bvm_loops {
  const char *name;
  /* Missing entries are NULL. kop and math by the last operand's dtype (MATH_IS_WORD: by the result's). */
  bvm_fn kop[KOP_COUNT][QN_DTYPE_COUNT];
  bvm_fn math[MATH_COUNT][QN_DTYPE_COUNT];
  bvm_fn cast[QN_DTYPE_COUNT][QN_DTYPE_COUNT]; /* from, to */
  bvm_fn iota[QN_DTYPE_COUNT];                 /* a: first, b: step (both i64) */
  bvm_fn fill[VM_SIZES];                       /* out = a repeated */
  bvm_fn copy[VM_SIZES];
  bvm_fn select[VM_SIZES];
  /* stride in elements */
  void (*load[VM_SIZES])(void *out, const void *from, int64_t stride, int64_t n);
  void (*store[VM_SIZES])(void *to, const void *from, int64_t stride, int64_t n);
  void (*gather[VM_SIZES])(void *out, const void *base, const int64_t *index, int64_t vstride, int64_t n);
  /* Folds rows of 64 elements into 64 lanes, in order; `first`: the first row starts the lanes. */
  void (*rows[KOP_COUNT][QN_DTYPE_COUNT])(void *lanes, const void *x, int64_t nrows, bool first);
  /* Folds elements into one value, in order. */
  void (*chain[KOP_COUNT][QN_DTYPE_COUNT])(void *value, const void *x, int64_t n, bool first);
  /* Folds each of `rows` rows of n elements (1..64) to one, as order INNER ends: 64 lanes, of which those from n on are the identity, are
   * halved to 1. `out` may be `x`. */
  void (*tree[KOP_COUNT][QN_DTYPE_COUNT])(void *out, const void *x, int64_t rows, int64_t n);
  /* Folds x[outer][n][inner] along n, in order, to out[outer][inner]; for small n. `out` may be `x`. */
  void (*chains[KOP_COUNT][QN_DTYPE_COUNT])(void *out, const void *x, int64_t outer, int64_t n, int64_t inner);
  /* One chain of fma (integers: multiply and add) upward; x and y by mode. */
  void (*dot[QN_DTYPE_COUNT])(void *value, const void *x, const void *y, int mode, int64_t n, bool first);
  /* acc[i] = fma(x[i], y[i], acc[i]), or x[i] * y[i] when first. */
  void (*dots[QN_DTYPE_COUNT])(void *acc, const void *x, const void *y, int mode, int64_t n, bool first);
  /* Small products, one chain after the other; f16 and bf16 are computed in f32 and rounded at the end. */
  void (*product[QN_DTYPE_COUNT])(void *out, const void *x, const void *y, const bvm_gemm *p);
  /* The sum of n products, 1 to BVM_INNER_MOST, in order INNER: out = x[0] * y[0] + .., stepping sx and sy elements along x and y; f16 and bf16
   * are computed in f32 and rounded at the end. */
  void (*inner[QN_DTYPE_COUNT])(void *out, const void *x, int64_t sx, const void *y, int64_t sy, int64_t n);
  /* base[at[i]] = f(base[at[i]], v[i * step]), one after the other; put stores v. Offsets in elements. */
  void (*update[KOP_COUNT][QN_DTYPE_COUNT])(void *base, const int64_t *at, const void *v, int64_t step, int64_t n);
  void (*put[VM_SIZES])(void *base, const int64_t *at, const void *v, int64_t step, int64_t n);
  /* The n random numbers from the one numbered `first` on of a draw (words: those of the key, and the draw number), by RANDOM op (bits,
   * uniform, normal) and dtype; for f16 and bf16 they are f32, to be rounded. */
  void (*draw[3][QN_DTYPE_COUNT])(void *out, const uint64_t words[3], uint64_t first, uint64_t n);
  /* Makes random integers of random bits, in place: low + (the low 63 bits) modulo values, which is at most 2^63. */
  void (*below)(void *bits, uint64_t values, int64_t low, uint64_t n);
  /* argmax, argmin: update the best value and its index (below 0: none yet). arg has one result and candidates numbered from `index` on;
   * args has n results, and candidate i has the index index[i] or, where that is NULL, k. */
  void (*arg[2][QN_DTYPE_COUNT])(void *best, int64_t *at, const void *x, int64_t index, int64_t n);
  void (*args[2][QN_DTYPE_COUNT])(void *best, int64_t *at, const void *x, const int64_t *index, int64_t k, int64_t n);
  /* The running values of one group of at most 64 elements, in the steps of order INNER, in place. */
  void (*scan64[KOP_COUNT][QN_DTYPE_COUNT])(void *x, int64_t n);
  void (*tile)(const qk_tile *t); /* the instruction TILE */
  const struct sort_loops *sorts; /* sortloops.h */
} bvm_loops;

extern const bvm_loops bvm_loops_base;
#if defined(__x86_64__)
extern const bvm_loops bvm_loops_v3, bvm_loops_v4;
#endif
/* The table for this processor. */
const bvm_loops *bvm_loops_pick(void);

#endif
