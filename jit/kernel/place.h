/* Places of buffers in memory: what lives at different times may lie in the same bytes. */
#ifndef JIT_KERNEL_PLACE_H
#define JIT_KERNEL_PLACE_H

#include <stdint.h>

#include "lang/cancel.h"
#include "lang/mem.h"

enum { PLACE_NOWHERE, PLACE_ARENA, PLACE_OUTPUTS }; /* regions; PLACE_OUTPUTS + k: the memory of output k */

/* A buffer. It lives from the step that writes it to the last one that reads it. */
typedef struct place_life {
  uint32_t first, last; /* steps */
  int64_t bytes;        /* a multiple of 64 */
  int64_t exact;        /* not rounded: an output's array is no larger */
  bool output;          /* lies at the begin of its region, and lives to the end */
  uint32_t region;      /* of an output: given */
  int64_t offset;
  /* used while places are looked for */
  uint32_t number, next;
  uint32_t pairs[2]; /* 1 + the first pair in which it is `by`, and is `over` */
  uint32_t block;
} place_life;

/* Step `by->first` reads `over` for the last time, and may write `by` over it: both are of one size. */
typedef struct place_pair {
  uint32_t over, by; /* lives */
  uint32_t next[2];  /* used while places are looked for */
} place_pair;

typedef struct placing {
  place_life *lives;
  uint32_t n;
  place_pair *pairs;
  uint32_t npairs;
  uint32_t steps;
  cancel_flag cancel;
  arena *arena;  /* for what is needed meanwhile */
  uint64_t work; /* what it took, in steps of its loops */
} placing;

/* Gives every life a region and an offset, and says how large the arena is. False: memory is short, or cancelled. */
QN_MUST_CHECK bool place(placing *p, int64_t *arena_bytes);

#endif
