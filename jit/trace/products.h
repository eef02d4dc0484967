/* How matrix products are computed on a device: for all sizes that symbols stand for. */
#ifndef JIT_TRACE_PRODUCTS_H
#define JIT_TRACE_PRODUCTS_H

#include "jit/graph/graph.h"
#include "lang/vm.h"

typedef enum products_answer {
  PRODUCTS_FIXED,
  PRODUCTS_SIZED, /* a product is made in several ways, by sizes that are symbols, and nothing has been written: sizes of operands must be fixed */
  PRODUCTS_VARY,  /* the operands of one lie differently from turn to turn, so that nothing has been written */
  PRODUCTS_FAIL   /* with an error raised: memory is short */
} products_answer;

/* Node `node` of g, a recording's graph whose nodes have these values, is a branch or loop, which is going to be executed on operands `in`. Writes to
 * each product in it, and in the regions in it, how the device's library computes it (graph_fix_gemm): as it would if the interpreter ran the
 * region. What that relies on becomes facts. `fixed`: the sizes of operands are guarded. */
products_answer products_fix(qn_vm *vm, graph *g, uint32_t node, const qn_value *in, const qn_value *vals, bool fixed);
/* Node `node` of g is a product of floats, which is going to be computed with these flags (gemm_flags) for operands `in`. PRODUCTS_FIXED: so it is for all
 * sizes, given what has become facts. */
products_answer products_hold(qn_vm *vm, graph *g, uint32_t node, const qn_value *in, const qn_value *vals,
                              uint8_t flags);
/* Is a product in a graph, or in its regions, computed by a device's library? */
bool products_any(const graph *g);
/* Are there products in the regions of g that the library of this device (0: the CPU) is going to compute? */
bool products_in_regions(const graph *g, int device);

#endif
