/* Nodes with regions in the making: both regions get an input for each operand, so that operands can be added while the regions are
 * being filled. The sizes of these inputs are symbols of theirs where the operands' are; equal sizes are equal symbols.
 *
 * Whatever fails is remembered (`failed`) and told by builder_close, so that a caller asks once. */
#ifndef JIT_GRAPH_REGION_BUILDER_H
#define JIT_GRAPH_REGION_BUILDER_H

#include "jit/graph/graph.h"

typedef struct region_builder {
  graph *outer, *part[2];
  uint32_t *operands, n, cap;
  struct {
    qn_dim outer, inner;
  } * sizes;
  uint32_t nsizes, sizes_cap;
  bool failed;
} region_builder;

/* The node will be one of `outer`. False when memory is short. */
QN_MUST_CHECK bool builder_open(region_builder *b, graph *outer);
/* Adds an operand, a node of `outer`, and its two inputs. Its number. */
uint32_t builder_operand(region_builder *b, uint32_t node);
/* Adds n of them; the number of the first. */
uint32_t builder_operands(region_builder *b, const uint32_t *nodes, uint32_t n);
/* The input for operand `number` in region `part`, 0 or 1. */
static inline uint32_t builder_input(const region_builder *b, int part, uint32_t number) {
  return b->failed ? 0 : b->part[part]->inputs[number];
}
/* Appends the node and gives it; 0 when memory was short. `predicate`: of a branch, which it becomes the first operand of; 0: it is a loop.
 * The builder is over. */
uint32_t builder_close(region_builder *b, uint32_t predicate, const op_attr *attr, uint32_t site);

static inline uint32_t graph_weak_int(graph *g, int64_t i) { return graph_const_scalar(g, QN_i64, true, 0, i, 0); }
static inline uint32_t graph_op2(graph *g, op_id op, uint32_t a, uint32_t b) {
  return graph_op(g, op, (uint32_t[]){a, b}, 2, NULL, 0);
}
/* An op of host ints that are counts, which never overflow: no check is left. */
uint32_t graph_count(graph *g, op_id op, uint32_t a, uint32_t b);
/* Row `at`, a count below their number, of an array; as a host number if `weak`. */
uint32_t graph_row(graph *g, uint32_t rows, uint32_t at, bool weak);

#endif
