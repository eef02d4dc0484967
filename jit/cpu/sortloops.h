/* The loops of sorting. sortloops.c is compiled once per instruction set, as block_vm_loops.c is; all tables give the same order.
 *
 * Sorted are keys: unsigned numbers whose order is that of the elements. -0 has the key of 0, every NaN the largest key. A descending sort
 * complements the keys of numbers, so that NaN stays last. Three kinds of items carry keys:
 *
 *   SORT_32     the key, of elements of up to 4 bytes: for values
 *   SORT_64     the key of 8 bytes: for values. Or a key of 4 bytes above the element's index: for indices, in lines of less than 2^32
 *   SORT_PAIR   the key of 8 bytes, and the index: for indices
 */
#ifndef JIT_CPU_SORTLOOPS_H
#define JIT_CPU_SORTLOOPS_H

#include "lang/dtype.h"

typedef enum sort_kind { SORT_32, SORT_64, SORT_PAIR, SORT_KINDS } sort_kind;

typedef struct sort_indexed {
  uint64_t key;
  int64_t index;
} sort_indexed;

static inline size_t sort_item_size(sort_kind k) { return k == SORT_32 ? 4 : k == SORT_64 ? 8 : sizeof(sort_indexed); }

enum {
  SORT_RANKED_32 = 128, /* most elements of a line that `rank` takes, by bits of the key */
  SORT_RANKED_64 = 96,
  SORT_DIGIT = 11, /* most bits of a digit */
  SORT_DIGITS = 3, /* most digits of one step */
  SORT_COUNTS = SORT_DIGITS << SORT_DIGIT
};

/* n elements of a line, `step` bytes apart, the first of which has the index `first`. */
typedef struct sort_elements {
  const char *in;
  int64_t step, n, first;
  bool descending;
} sort_elements;

/* What was noticed while items were made. */
typedef struct sort_seen {
  uint64_t vary; /* bits in which keys differ from that of the line's first element */
  int64_t negative_zeros, nans;
} sort_seen;

/* A thread's memory for sorting. `stops` is asked now and then whether to give up; then `stopped` is set, and the items have no order. */
typedef struct sort_room {
  uint32_t counts[SORT_COUNTS];
  bool (*stops)(struct sort_room *r);
  void *ctx;
  int thread;
  bool stopped;
} sort_room;

typedef struct sort_loops { /* of a bvm_loops */
  /* Makes the items of elements, by dtype; `line` is the line's first element. Adds to what was seen. */
  void (*items[QN_DTYPE_COUNT])(const sort_elements *e, const char *line, sort_kind kind, void *items, sort_seen *seen);
  /* Stores the elements, or indices, of items, `step` bytes apart. Zeros come out positive and NaNs with any bits, until `specials` has run.
   * `out` may be `items` where both have the same size. */
  void (*elements[QN_DTYPE_COUNT])(const void *items, int64_t n, bool descending, char *out, int64_t step);
  void (*indices[SORT_KINDS])(const void *items, int64_t n, char *out, int64_t step);
  /* Copies the zeros of a line to `zeros`, in their order, and its NaNs to `nans`; NULL: not wanted. Steps in bytes. */
  void (*specials[QN_DTYPE_COUNT])(const char *in, int64_t step, int64_t n, char *zeros, char *nans, int64_t out_step);
  /* rank[i]: the place of element i in sorted order, stable. For short lines (SORT_RANKED_32, SORT_RANKED_64). */
  void (*rank[QN_DTYPE_COUNT])(const sort_elements *e, int32_t *rank);
  /* Adds to counts[digit] how many items have it. A digit is SORT_DIGIT bits of the key, from bit `shift` on. */
  void (*count[SORT_KINDS])(const void *items, int64_t n, unsigned shift, int64_t *counts);
  /* Copies items to to[at[digit]++]. */
  void (*place[SORT_KINDS])(const void *items, int64_t n, unsigned shift, int64_t *at, void *to);
  /* Copies the items whose keys are below that of `limit`, in their order, to `to`, which has room for all. Returns how many. */
  int64_t (*below[SORT_KINDS])(const void *items, int64_t n, const void *limit, void *to);
  /* Inserts items into `best`, which has `have` sorted ones, and drops all behind the first k. Returns how many there are then. */
  int64_t (*keep[SORT_KINDS])(void *best, int64_t have, int64_t k, const void *items, int64_t n);
  /* Sorts items, stable by the bits of their keys from `low` on; items that are equal there must be in the order of the bits below.
   * Returns where they are then: in `a` or in `b`. */
  void *(*sort[SORT_KINDS])(sort_room *r, void *a, void *b, int64_t n, unsigned low);
} sort_loops;

extern const sort_loops sort_loops_base;
#if defined(__x86_64__)
extern const sort_loops sort_loops_v3, sort_loops_v4;
#endif

#endif
