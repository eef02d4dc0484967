/* Loops that are one kernel because the programs of their plans are put together (splice.c). */
#ifndef JIT_KERNEL_SPLICE_H
#define JIT_KERNEL_SPLICE_H

#include "jit/kernel/plan_data.h"
#include "jit/kernel/schedule.h"

typedef struct splice_request {
  graph *g;             /* around the loop; expressions are added to its table of dims */
  uint32_t node;        /* the loop */
  plan *const *parts;   /* the plans of its header and its body */
  const uint32_t *proj; /* by result of the loop: the node that takes it; 0: none does */
  schedule_target target;
  const int64_t *tune;
  arena *arena; /* for the lists below */
  cancel_flag cancel;
} splice_request;

/* A program, which is the caller's, and what its launch takes: the node of g whose elements each of its buffers holds, the size that each of
 * its ints is, the node that each of its scalars is. */
typedef struct spliced {
  l_program *program;
  const uint32_t *buffers;
  uint32_t nbuffers;
  const qn_dim *ints;
  uint32_t nints;
  const uint32_t *scalars;
  uint32_t nscalars;
  /* Rows that the loop keeps: the nodes that take them. Each needs memory for as many rows as there may be turns, which is `room` and, unless
   * that is 0, the number that node room_node is. How many there were is result results - 2 of the loop, which is taken then. */
  const uint32_t *rows;
  uint32_t nrows, room_node;
  int64_t room;
} spliced;

/* Makes the program of a loop. Its checks say only that the loop fails: whoever runs it finds the error by running the loop turn by turn.
 * False with a reason in *why (a static text): memory is short, it was cancelled, or the loop cannot be one kernel. */
QN_MUST_CHECK bool splice(const splice_request *r, spliced *to, const char **why);

#endif
