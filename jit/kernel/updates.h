/* Updates in place: which nodes of a graph store into the memory of an operand instead of making an array of their own. */
#ifndef JIT_KERNEL_UPDATES_H
#define JIT_KERNEL_UPDATES_H

#include "jit/graph/graph.h"

/* Of a region's graph: the input whose memory output k could be, because all that lies between the two are indexed assignments and regions that
 * do nothing else; -1: there is none. An input that is the output itself counts. */
int64_t updates_input(const graph *g, uint32_t k);
/* Of a branch or loop: the operand whose memory result k could be, in the same sense; -1: there is none. */
int64_t updates_operand(const graph_node *region, uint32_t k);

typedef struct updates_request {
  const graph *g;
  /* Donated arrays of at most so many elements are stored into however large the part is */
  double cached;
  /* By input: 1 + the output that is to be its memory, whose old contents nobody needs afterwards; 0: nobody may write to the input. NULL: so of
   * all */
  const uint32_t *donated;
  /* By node that takes a result of a region: the operand of that region (a node) which the region leaves in its memory, updated; 0: none.
   * NULL: so of all */
  const uint32_t *kept;
  uint32_t *last; /* room, by node */
  /* All 0; set by node: the operand, or the array of which that is a view, into whose memory it stores; 0: it makes an array of its own. */
  uint32_t *over;
  /* All 0; set by a node that stores through a view: the later node that is the whole array, and for which there is nothing left to do; its `over`
   * is this node. Nobody else reads this node. */
  uint32_t *whole;
} updates_request;
/* False when memory is short. */
QN_MUST_CHECK bool updates_find(const updates_request *r);

/* Sets last[node] for all nodes: the last node that reads it, UINT32_MAX if it is a result of the graph. Views read when their readers do. */
void updates_last_readers(const graph *g, uint32_t *last);
/* How often region node n reads the array that its operand i is: itself, or in another shape. */
uint32_t updates_times(const graph *g, uint32_t n, uint32_t i);
/* Is there anything that reads operand i of region node n after it, or a second time in it? */
bool updates_operand_is_free(const graph *g, const uint32_t *last, uint32_t n, uint32_t i);

/* Does the node, an indexed assignment, store one element? */
bool updates_one_element(const graph *g, uint32_t n);

#endif
