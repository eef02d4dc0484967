/* Batching inside one graph: what vmap is made of.
 *
 * The function is recorded for one lane as any other code, on tracers: nodes with the type of one lane's value (batch_lane). For
 * every tracer there is a node that holds the values of all lanes, with the axis of the lanes first. batch_advance walks over the
 * nodes that were recorded since it was called last and appends, for each that depends on a tracer, its counterpart: the node that
 * computes it for all lanes, by the op's BATCH_ rule (lang/op.h). The lane's own nodes only carry types. Nothing that is executed
 * depends on them, so they are removed as dead nodes. (A node with a counterpart is marked ATTR_PROVEN, since its counterpart makes
 * the check.)
 *
 * A batch may be advanced whenever somebody needs a counterpart; before pending nodes are executed, all batches must be. Only ops of
 * the table are appended, so the result can be differentiated, and nodes that graph_vjp appends in a lane are batched like all others.
 * Batches nest: an inner batch is begun on the same graph and ended before the outer one. Its counterparts may depend on a tracer of
 * the outer batch, which therefore advances after it; batch_advance sees to that.
 *
 * The counterpart of a node has the bits that the lanes would get one after the other, with three exceptions: random draws without a
 * key, where each lane gets numbers of its own (REFERENCE.md has the mapping); products by a device's library, which sums in an order
 * of its own; and host floats that differ from lane to lane (gradients by a host float), which are f64 arrays [lanes], so that a
 * number too large for the array beside it becomes inf instead of raising E207.
 */
#ifndef JIT_GRAPH_BATCH_H
#define JIT_GRAPH_BATCH_H

#include "jit/graph/graph.h"
#include "lang/mem.h"

/* The counterpart of a branch or loop (batch_control.c). */
typedef struct batched_regions {
  uint32_t node, made; /* the branch or loop of the lane, and the one for all lanes */
  bool in_turn;        /* `made` is a loop over the lanes, which keeps their results as rows behind its one carry */
  uint32_t n;          /* how many results `node` had when this was made */
  bool parted;         /* `made` is a loop that the lanes leave at different turns */
  bool rows;           /* and which keeps rows, and counts the turns of each lane */
  bool *differs;       /* by result, n of them: does it differ from lane to lane? */
  uint32_t *at;        /* NULL, or likewise: which result of `made` it is */
  uint32_t *whole;     /* likewise: its counterpart, or 0 before somebody takes it */
  struct batched_regions *next;
} batched_regions;

typedef struct graph_batch {
  graph *g;
  struct graph_batch *outer, *inner; /* the batches around it and inside it; NULL: none */
  arena memory;                      /* owns the lists; accounted to the graph's VM */
  qn_dim lanes;                      /* how many lanes there are; at least 0 */
  uint32_t *whole; /* by node: its counterpart; 0: the same in every lane; or BATCH_INNER, BATCH_SHARED */
  uint32_t cap;
  uint32_t from, done; /* nodes below `from` are the same in every lane, nodes below `done` have been batched */
  uint32_t told;       /* nodes below have been marked BATCH_INNER in `outer` */
  batched_regions *regions;
  bool
      region; /* its nodes are those of a region, where a host bool may be the test of a loop, and becomes a bool array */
  /* It is differentiated, and sums of cotangents come in the order of the lanes and of the program; or it is batched once more, for which there is no
   * rule for some of the lanes. So all lanes compute everything, and what they share is computed once more between their counterparts. */
  bool together;
  /* It is differentiated more than once, for which it must be known how many turns loops in turns and arms make at most (grad_control.c). That is found out of
   * the lane's loop, as it counts, and said of its counterpart, whose header asks the lanes. */
  bool bounds;
  /* The lane is a linear map that will be differentiated: eager calls make what its lanes share before all that they do not share, where the gradients of
   * branches are no branches. So here the lane's own branch gives what is shared in its arms. */
  bool shared_first;
  /* What is drawn once more for a gradient (ATTR_ANEW) was drawn outside the lanes: they share it. `linear`: the lane is a linear map, which draws
   * nothing of its own. Otherwise so it is in lanes that have not drawn themselves (`drawn`). */
  bool linear, drawn;
  /* In the body of a loop that lanes leave at different turns, and in an arm that all lanes compute: which lanes are at work, bool[lanes]; 0: all.
   * In others nothing may fail, and what is computed from their values is not used. */
  uint32_t active;
  bool masked; /* `active` may be no lane at all */
  struct batched_size {
    qn_dim lane, whole;
    struct batched_size *next;
  } * sizes; /* sizes that a lane's loop gives, each beside the same size of the loop for all lanes */
} graph_batch;

/* In graph_batch.whole: the node depends on a tracer of a batch inside this one, so only its counterpart in that one is batched here. */
enum { BATCH_INNER = (int)0x7fffffff };
/* Added to a node in graph_batch.whole: all lanes have the same value, but that node gives it, since the lane's own depends on a branch or
 * loop of which the lanes have another one. */
#define BATCH_SHARED 0x80000000u

/* Begins a batch over the nodes from `from` on, inside `outer` (NULL: inside none). */
void batch_begin(graph_batch *b, graph *g, graph_batch *outer, qn_dim lanes, uint32_t from);
void batch_end(graph_batch *b);
/* Appends a tracer: a node for one lane of `whole`, whose axis 0 is `lanes` long, with the other axes. Returns 0 when memory is short. */
QN_MUST_CHECK uint32_t batch_lane(graph_batch *b, uint32_t whole, uint32_t site);
/* Makes `whole` the counterpart of node `lane`, which was made otherwise than by batch_lane. False when memory is short. */
QN_MUST_CHECK bool batch_bind(graph_batch *b, uint32_t lane, uint32_t whole);
/* Appends the counterparts of all nodes up to now, those of inner batches first. False: memory is short (g->failed), or `why` says why
 * node `*culprit` cannot be batched. */
QN_MUST_CHECK bool batch_advance(graph_batch *b, uint32_t *culprit, op_refusal *why);
/* After batch_advance has refused a node: gives up the nodes that have no counterparts yet, of which `from` is the first or lies before it,
 * because nothing will read them. They are not looked at again, and never executed. False when memory is short. */
QN_MUST_CHECK bool batch_skip(graph_batch *b, uint32_t from);
/* After batch_advance: the counterpart of a node, or 0 where all lanes have the same value. The counterpart of a host number is an
 * array of f64 or bool. */
static inline uint32_t batch_whole(const graph_batch *b, uint32_t node) {
  return node < b->done && node < b->cap && b->whole[node] < BATCH_INNER ? b->whole[node] : 0;
}
/* The node that gives the value of `node` where all lanes share it. */
static inline uint32_t batch_shared_node(const graph_batch *b, uint32_t node) {
  return node < b->cap && b->whole[node] & BATCH_SHARED ? b->whole[node] & ~BATCH_SHARED : node;
}
/* After batch_advance: an array [lanes, ..] in any case. A value that all lanes share is broadcast over the axis of the lanes, a host
 * number as an array of f64, i64 or bool. Returns 0 when memory is short, or the result would have too many axes (then g->failed is
 * not set). */
uint32_t batch_whole_always(graph_batch *b, uint32_t node);

/* ---- between batch.c and batch_control.c ---- */

/* Notes that size `lane`, which a node of a lane gives, is `whole` for all lanes. False when memory is short. */
QN_MUST_CHECK bool batch_same_size(graph_batch *b, qn_dim lane, qn_dim whole);

/* Appends the counterparts of the nodes from..end, which belong to a lane and were appended for one that is being batched. False: `why` says
 * what cannot be batched, or memory is short. */
QN_MUST_CHECK bool batch_nodes(graph_batch *b, uint32_t from, uint32_t end, op_refusal *why);
/* Appends the counterpart of node i, a branch, a loop, or a result of one, of which an operand differs from lane to lane. Sets whole[i],
 * with BATCH_SHARED for a result that is the same in every lane. False: `why` says what cannot be batched, or memory is short. */
QN_MUST_CHECK bool batch_control(graph_batch *b, uint32_t i, op_refusal *why);

#endif
