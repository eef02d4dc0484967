/* Batching inside one graph: what vmap is made of.
 *
 * A computation of one lane is recorded as always, on stand-ins: nodes with the type of one lane's value. For every stand-in
 * there is a node that holds all lanes, the batch axis first. batch_advance walks the nodes that came since and appends, for
 * each that depends on a stand-in, its counterpart for all lanes by the op's BATCH_ rule (lang/ops.def). The lane's own nodes
 * only carry types: nothing that is executed depends on them, so they go with the dead nodes.
 *
 * A batch may be advanced as often as anybody needs a counterpart, and batches nest: the counterpart that an inner batch
 * appends may itself depend on a stand-in of an outer one, which advances after it. Only ops of the table are appended, so the
 * result differentiates, and what graph_grad appended in a lane is batched like everything else.
 *
 * The counterpart of a node equals the lane's results one after the other, bit for bit, with two exceptions: draws, whose lanes
 * get numbers of their own, and products by a device's library, whose order of summation is the library's.
 */
#ifndef JIT_GRAPH_BATCH_H
#define JIT_GRAPH_BATCH_H

#include "jit/graph/graph.h"

typedef struct graph_batch {
  graph *g;
  qn_dim lanes;    /* how many; at least 0 */
  uint32_t *whole; /* by node: [lanes, ...], or 0: the same in every lane */
  uint32_t cap;
  uint32_t done; /* nodes below have been looked at */
} graph_batch;

/* A batch over the nodes from `from` on. Memory is accounted where the graph's is. */
void batch_begin(graph_batch *b, graph *g, qn_dim lanes, uint32_t from);
void batch_end(graph_batch *b);
/* Node `lane` stands for one lane of `whole`, whose axis 0 is `lanes` long and whose other axes are the lane's. */
QN_MUST_CHECK bool batch_bind(graph_batch *b, uint32_t lane, uint32_t whole);
/* Appends the counterparts of all nodes up to now. False: memory is short (g->failed), or `why` and `*culprit` say which node has
 * no counterpart. */
QN_MUST_CHECK bool batch_advance(graph_batch *b, uint32_t *culprit, op_refusal *why);
/* After batch_advance: the counterpart of a node, or 0 where all lanes have the same. */
static inline uint32_t batch_whole(const graph_batch *b, uint32_t node) {
  return node < b->done && node < b->cap ? b->whole[node] : 0;
}
/* The same with the axis in any case: what all lanes share is broadcast. 0: memory is short. */
uint32_t batch_whole_always(graph_batch *b, uint32_t node);

#endif
