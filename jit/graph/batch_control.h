/* Batches of branches and loops (batch_control.c), as the walk of batch.c sees them. */
#ifndef JIT_GRAPH_BATCH_CONTROL_H
#define JIT_GRAPH_BATCH_CONTROL_H

#include "jit/graph/batch.h"

/* Appends what stands for node i, of which an operand differs from lane to lane: a branch, a loop, or a result of one. Sets whole[i], which
 * stays 0 for a result that is the same in every lane. False: `why` says what cannot be batched, or memory is short. */
QN_MUST_CHECK bool batch_control(graph_batch *b, uint32_t i, op_refusal *why);

#endif
