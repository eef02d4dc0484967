/* What kernels of our own are given, as C and, pasted in front of their texts, as CUDA C. Addresses are u64; sizes and steps are in elements. */
#ifndef JIT_GPU_WORDS_H
#define JIT_GPU_WORDS_H

#ifndef GPU_TEXT
#include <stdint.h>
typedef uint64_t u64;
typedef int64_t i64;
#endif

enum {
  THREADS = 256, /* of a block, in WARPS */
  WARPS = 8,
  ROUNDS = 8,              /* elements that a thread has at a time, */
  TILE = THREADS * ROUNDS, /* and a block */
  OWN = 16,                /* elements that a thread keeps, of lines that a block sorts at once */
  FEW_TILES = 64           /* of a line: counts of so many are added up by one thread a digit */
};

/* Copies between layouts: element i of n has axes of these sizes, and steps along them. */
typedef struct copy_words {
  u64 to, from;
  i64 n, shape[8], to_step[8], from_step[8];
  int rank;
  int size; /* bytes of an element: 1, 2, 4, 8 */
} copy_words;

typedef struct report_words {
  u64 cell, to; /* the error cell; two words of the host: 1 once the second has what the cell held */
} report_words;

typedef struct sort_words {
  u64 x, out, keys, keys_to, index, index_to, counts, totals;
  u64 infinity; /* bits; 0: elements are integers */
  i64 n, lines, tiles;
  i64 x_step, out_step; /* along a line */
  i64 shape[8], x_at[8], out_at[8];
  int rank; /* of the axes that lines are numbered along */
  int size, is_signed, descending, indices;
  int padded;             /* n and what is added to it: a power of two */
  int shift, first, last; /* a pass: its digit, and whether it is the first or the last one */
} sort_words;

typedef struct compress_words {
  u64 mask, x, to, counts; /* a count for each tile, and behind the last one that of all */
  i64 n, tile, tiles;      /* elements of the mask, in a tile */
  i64 cell, total;         /* words of a cell; of all cells that are copied */
  i64 shape[8];            /* of the mask */
  int rank;
  int word; /* bytes: 1, 2, 4, 8; 0: coordinates */
} compress_words;

typedef struct recurrence_words {
  u64 a, b, to;
  i64 n, inner, chains; /* elements of a chain, `inner` apart; as many chains lie beside each other */
  int wide;             /* f64 */
  int reverse, exclusive;
} recurrence_words;

#endif
