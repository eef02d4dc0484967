/* Numbers that a while loop counts by, as its test bounds them (counts.c). */
#ifndef JIT_TRACE_COUNTS_H
#define JIT_TRACE_COUNTS_H

#include "jit/trace/recording.h"

/* A loop whose header has been recorded, and whose body is about to be. */
typedef struct count_test {
  struct recording *r, *header, *body; /* r: where the loop stands */
  const uint32_t *outer;               /* what is carried, n values: nodes of r */
  uint32_t n;
} count_test;

/* Finds a carry that the test bounds where it holds, and notes it in the body (recording.count). *down: the loop counts down. False: there is none. */
bool count_find(const count_test *t, bool *down);
/* Is a node of g, a loop's body, what input `from` of it is, or that and something in the direction in which the loop counts? */
bool count_keeps(const graph *g, uint32_t node, uint32_t from, bool down);

#endif
