/* The loops of sorting. sortloops.c is compiled once per instruction set, as block_vm_loops.c is; all tables give the same order.
 *
 * What is sorted are keys: unsigned numbers in the order of the elements. Integers are biased. Floats have their bits folded; -0 counts
 * as 0, every NaN has the largest key. A descending sort complements the keys of numbers, so NaN stays last. Three kinds of items carry
 * keys:
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
  SORT_RANKED_32 = 128, /* elements of lines that are ranked, by size of the key */
  SORT_RANKED_64 = 96,
  SORT_DIGIT = 11, /* most bits of a digit */
  SORT_DIGITS = 3, /* most digits of one step */
  SORT_COUNTS = SORT_DIGITS << SORT_DIGIT
};

/* Elements of a line; step in bytes. The first has the index `first`. */
typedef struct sort_elements {
  const char *in;
  int64_t step, n, first;
  bool descending;
} sort_elements;

/* What was seen while items were made. */
typedef struct sort_seen {
  uint64_t vary; /* bits in which keys differ from that of the line's first element */
  int64_t negative_zeros, nans;
} sort_seen;

/* Memory of a thread that sorts, and when it is to give up: what is sorted is then of no use. */
typedef struct sort_room {
  uint32_t counts[SORT_COUNTS];
  bool (*stops)(struct sort_room *r);
  void *ctx;
  int thread;
  bool stopped;
} sort_room;

typedef struct sort_loops { /* of a bvm_loops */
  /* Items of elements, by dtype; `line` is the line's first element. Adds to what was seen. */
  void (*items[QN_DTYPE_COUNT])(const sort_elements *e, const char *line, sort_kind kind, void *items, sort_seen *seen);
  /* Elements of items, or their indices; step in bytes. All zeros are positive and NaNs are any: `specials` mends that. `out` may be
   * `items` where both have the same size. */
  void (*elements[QN_DTYPE_COUNT])(const void *items, int64_t n, bool descending, char *out, int64_t step);
  void (*indices[SORT_KINDS])(const void *items, int64_t n, char *out, int64_t step);
  /* Stores the zeros of a line behind each other, and its NaNs; NULL: not wanted. Steps in bytes. */
  void (*specials[QN_DTYPE_COUNT])(const char *in, int64_t step, int64_t n, char *zeros, char *nans, int64_t out_step);
  /* The index in sorted order of each of few elements, stable. */
  void (*rank[QN_DTYPE_COUNT])(const sort_elements *e, int32_t *rank);
  /* counts[digit]: how often it is there; digit: the bits from `shift` on, below 2^SORT_DIGIT */
  void (*count[SORT_KINDS])(const void *items, int64_t n, unsigned shift, int64_t *counts);
  /* Places items by their digits; at[digit] is where the next one goes. */
  void (*place[SORT_KINDS])(const void *items, int64_t n, unsigned shift, int64_t *at, void *to);
  /* The items whose keys are below that of `limit`, in their order, to `to`, which has room for all. Returns how many. */
  int64_t (*below[SORT_KINDS])(const void *items, int64_t n, const void *limit, void *to);
  /* Inserts items into `best`, sorted ones of which there are `have`; the first k stay. Returns how many there are then. */
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
