/* The parameters of the kernels of our own. This file is C, and is also pasted in front of their texts as CUDA C. Addresses are u64; sizes and
 * steps are in elements. */
#ifndef JIT_GPU_WORDS_H
#define JIT_GPU_WORDS_H

#ifndef GPU_TEXT
#include <stdint.h>
typedef uint64_t u64;
typedef int64_t i64;
#endif

enum {
  THREADS = 256,           /* of a block */
  WARPS = 8,               /* of a block */
  ROUNDS = 8,              /* elements that a thread takes at a time */
  TILE = THREADS * ROUNDS, /* elements that a block takes at a time */
  OWN = 16,                /* elements that a thread keeps when a block sorts short lines */
  FEW_TILES = 64           /* tiles of a line whose counts one thread adds up for each digit */
};

/* Copies between layouts: n elements with axes of these sizes, and the steps along them on both sides. */
typedef struct copy_words {
  u64 to, from;
  i64 n, shape[8], to_step[8], from_step[8];
  int rank;
  int size; /* bytes of an element: 1, 2, 4, 8 */
} copy_words;

typedef struct report_words {
  u64 cell,
      to; /* the error cell; two words of the host's memory: the second gets what the cell held, then the first becomes 1 */
} report_words;

typedef struct sort_words {
  u64 x, out, keys, keys_to, index, index_to, counts, totals;
  u64 infinity; /* the bits of infinity; 0: elements are integers */
  i64 n, lines, tiles;
  i64 x_step, out_step; /* along a line */
  i64 shape[8], x_at[8], out_at[8];
  int rank; /* of the axes that lines are numbered along */
  int size, is_signed, descending, indices;
  int padded;             /* the power of two to which short lines are padded */
  int shift, first, last; /* of a pass: the bit at which its digit begins; is it the first or the last one? */
} sort_words;

typedef struct compress_words {
  u64 mask, x, to, counts; /* counts: one for each tile, then that of all */
  i64 n, tile, tiles;      /* elements of the mask; of a tile; tiles */
  i64 cell, total;         /* words of a cell; of all cells that are copied */
  i64 shape[8];            /* of the mask */
  int rank;
  int word; /* bytes of a word: 1, 2, 4, 8; 0: coordinates are wanted */
} compress_words;

typedef struct recurrence_words {
  u64 a, b, to;
  i64 n, inner,
      chains; /* elements of a chain; their distance, which is the number of chains side by side; chains in all */
  int wide;   /* elements are f64, else f32 */
  int reverse, exclusive;
} recurrence_words;

#endif
