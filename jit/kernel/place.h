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
  int64_t exact;        /* the bytes before rounding, which is the size of an output's array */
  bool output;          /* is it an output? It lies at offset 0 of its region and lives to the end */
  uint32_t region;      /* set by place; of an output it is given */
  int64_t offset;
  /* used while places are looked for */
  uint32_t number, next;
  uint32_t pairs[2]; /* 1 + the first pair in which it is `by`, and 1 + the first in which it is `over` */
  uint32_t block;
} place_life;

/* `by` may be placed over `over`: they have one size, and the step that writes `by` is the last one to read `over`, element by element. */
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
  arena *arena;  /* for working memory */
  uint64_t work; /* how many steps loops took; tests look at it */
} placing;

/* Sets the region and offset of every life, and *arena_bytes to the size of the arena. False when memory is short, or cancelled. */
QN_MUST_CHECK bool place(placing *p, int64_t *arena_bytes);

#endif
