/* How matrix products within regions are computed on a device. */
#ifndef JIT_TRACE_PRODUCTS_H
#define JIT_TRACE_PRODUCTS_H

#include "jit/graph/graph.h"
#include "lang/vm.h"

typedef enum products_answer {
  PRODUCTS_FIXED,
  PRODUCTS_VARY, /* the operands of one lie differently from turn to turn, so that nothing has been written */
  PRODUCTS_FAIL  /* with an error raised: memory is short */
} products_answer;

/* Node `node` of g is a branch or loop, which is going to be executed on these operands. Writes to each product in it, and in the regions in
 * it, how the device's library computes it (graph_fix_gemm): as it would if the interpreter ran the region. *sized: this
 * follows from sizes that are symbols, so those of the node's operands must stay what they are. */
products_answer products_fix(qn_vm *vm, graph *g, uint32_t node, const qn_value *in, bool *sized);
/* Is a product in a graph, or in its regions, computed by a device's library? */
bool products_any(const graph *g);
/* Are there products in the regions of g that the library of this device (0: the CPU) is going to compute? */
bool products_in_regions(const graph *g, int device);

#endif
