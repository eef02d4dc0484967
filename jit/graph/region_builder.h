/* Building a node with regions. Both regions get one input for each operand, in the same order, so operands may be added while the
 * regions are being filled. Where the size of an operand's axis is symbolic, the inputs have symbols of the regions' own; sizes that
 * are equal outside get the same symbol inside.
 *
 * Use: builder_open, then builder_operand and nodes appended to `part`, then builder_close, which must be called in any case. A failed
 * step sets `failed`, later steps do nothing, and builder_close returns 0, so a caller tests once. */
#ifndef JIT_GRAPH_REGION_BUILDER_H
#define JIT_GRAPH_REGION_BUILDER_H

#include "jit/graph/graph.h"

typedef struct region_builder {
  graph *outer;               /* the graph that the node will be in; borrowed */
  graph *part[2];             /* the regions: a branch's two arms, or a loop's header and body */
  uint32_t *operands, n, cap; /* nodes of `outer` */
  struct {
    qn_dim outer, inner;
  } * sizes; /* symbolic sizes of operands, and the symbols that stand for them inside */
  uint32_t nsizes, sizes_cap;
  arena memory; /* owns the lists */
  bool failed;
} region_builder;

/* Begins a node of `outer`. */
void builder_open(region_builder *b, graph *outer);
/* `n` zeros for the caller's use until builder_close. NULL when memory is short (b->failed). */
uint32_t *builder_list(region_builder *b, size_t n);
/* Adds an operand, a node of `outer`, and its input to both regions. Returns the operand's number. */
uint32_t builder_operand(region_builder *b, uint32_t node);
/* Adds n operands. Returns the number of the first. */
uint32_t builder_operands(region_builder *b, const uint32_t *nodes, uint32_t n);
/* Adds n results to region `part`; a node 0 is a failure. */
void builder_outputs(region_builder *b, int part, const uint32_t *nodes, uint32_t n);
/* The node that is operand `number` inside region `part`, 0 or 1. */
static inline uint32_t builder_input(const region_builder *b, int part, uint32_t number) {
  return b->failed ? 0 : b->part[part]->inputs[number];
}
/* Appends the node to `outer` and frees the builder. With a `predicate` the node is a branch and has it as an additional first operand;
 * with 0 it is a loop. `attr` is NULL, or graph_loop_attr. Returns the node; 0 when memory was short. */
uint32_t builder_close(region_builder *b, uint32_t predicate, const op_attr *attr, uint32_t site);

static inline uint32_t graph_weak_int(graph *g, int64_t i) { return graph_const_scalar(g, QN_i64, true, 0, i, 0); }
static inline uint32_t graph_op2(graph *g, op_id op, uint32_t a, uint32_t b) {
  return graph_op(g, op, (uint32_t[]){a, b}, 2, NULL, 0);
}
/* Appends an op of two host ints whose result cannot overflow, as those of counters: it is marked as unable to fail. */
uint32_t graph_count(graph *g, op_id op, uint32_t a, uint32_t b);
/* Appends rows[at] for a host int `at` that is known to be in range; a row of rank 0 as a host number if `weak`. */
uint32_t graph_row(graph *g, uint32_t rows, uint32_t at, bool weak);

#endif
