/* Batching inside one graph: what vmap is made of.
 *
 * A computation of one lane is recorded as always, on tracers: nodes with the type of one lane's value (batch_lane). For every
 * tracer there is a node that holds all lanes, the batch axis first. batch_advance walks the nodes that came since and appends,
 * for each that depends on a tracer, its counterpart for all lanes by the op's BATCH_ rule (lang/op.h). The lane's own nodes
 * only carry types: nothing that is executed depends on them, so they go with the dead nodes. (A node that has got its
 * counterpart is marked ATTR_PROVEN: the check is the counterpart's.)
 *
 * A batch may be advanced as often as anybody needs a counterpart: before a pending node is executed all batches must have been.
 * Only ops of the table are appended, so the result differentiates, and what graph_vjp appended in a lane is batched like
 * everything else. Batches nest: a batch is begun inside another one, on the same graph, and ended before it. What the inner
 * one appends may depend on a tracer of the outer one, which therefore advances after it; batch_advance sees to that.
 *
 * The counterpart of a node equals the lane's results one after the other, bit for bit, with three exceptions: draws without a
 * key, whose lanes get numbers of their own (REFERENCE.md has the mapping); products by a device's library, whose order of
 * summation is the library's; and host floats that differ from lane to lane (gradients by a host float), which are f64 arrays
 * [lanes], so that one which is too large for the array beside it becomes inf instead of E207.
 */
#ifndef JIT_GRAPH_BATCH_H
#define JIT_GRAPH_BATCH_H

#include "jit/graph/graph.h"
#include "lang/mem.h"

/* What stands for a branch or loop that differs from lane to lane (batch_control.c). */
typedef struct batched_regions {
  uint32_t node, made; /* in the lane, and for all lanes */
  uint32_t n, *whole;  /* by result, as graph_batch.whole */
  struct batched_regions *next;
} batched_regions;

typedef struct graph_batch {
  graph *g;
  struct graph_batch *outer, *inner; /* the batches around it and inside it, while these last */
  arena memory;                      /* accounted where the graph's is */
  qn_dim lanes;                      /* how many; at least 0 */
  uint32_t *whole;                   /* by node: [lanes, ...]; 0: the same in every lane; BATCH_INNER */
  uint32_t cap;
  uint32_t from, done; /* nodes below `from` are the same in every lane, nodes below `done` have been looked at */
  uint32_t told;       /* `outer` knows of the nodes below */
  batched_regions *regions;
} graph_batch;

/* The node depends on a tracer of a batch inside this one: only its counterpart there counts. */
enum { BATCH_INNER = (int)0x7fffffff };

/* A batch over the nodes from `from` on, inside `outer` (NULL: inside none). */
void batch_begin(graph_batch *b, graph *g, graph_batch *outer, qn_dim lanes, uint32_t from);
void batch_end(graph_batch *b);
/* A new node that stands for one lane of `whole`, whose axis 0 is `lanes` long; it has the other axes. 0: memory is short. */
QN_MUST_CHECK uint32_t batch_lane(graph_batch *b, uint32_t whole, uint32_t site);
/* Says that node `lane` stands for one lane of `whole`, for nodes that were made otherwise. False: memory is short. */
QN_MUST_CHECK bool batch_bind(graph_batch *b, uint32_t lane, uint32_t whole);
/* Appends the counterparts of all nodes up to now, of batches inside this one first. False: memory is short (g->failed), or `why`
 * and `*culprit` say which node has no counterpart. */
QN_MUST_CHECK bool batch_advance(graph_batch *b, uint32_t *culprit, op_refusal *why);
/* After batch_advance: the counterpart of a node, or 0 where all lanes have the same. The counterpart of a weak node is an array
 * of f64 or bool. */
static inline uint32_t batch_whole(const graph_batch *b, uint32_t node) {
  return node < b->done && node < b->cap && b->whole[node] != BATCH_INNER ? b->whole[node] : 0;
}
/* After batch_advance: a node for all lanes in any case. What all lanes share is broadcast over the axis of the lanes, a weak number
 * as an array of f64, i64 or bool. 0: memory is short, or the result would have too many axes (then g->failed is not set). */
uint32_t batch_whole_always(graph_batch *b, uint32_t node);

/* ---- for batch.c: branches and loops (batch_control.c) ---- */

/* Appends what stands for node i, of which an operand differs from lane to lane: a branch, a loop, or a result of one. Sets whole[i], which
 * stays 0 for a result that is the same in every lane. False: `why` says what cannot be batched, or memory is short. */
QN_MUST_CHECK bool batch_control(graph_batch *b, uint32_t i, op_refusal *why);

#endif
