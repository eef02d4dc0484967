/* Graphs run node by node with eager ops: regions of recordings that are executed, and --jit verify. */
#ifndef JIT_TRACE_NODES_H
#define JIT_TRACE_NODES_H

#include "jit/graph/graph.h"
#include "lang/vm.h"

/* Gives the pending error the place of a site of g: its span, and a frame for every call it was made under. */
void nodes_raise_site(qn_vm *vm, const graph *g, uint32_t site);
/* The value of a constant, on a device. Owned, or the error value. */
QN_MUST_CHECK qn_value const_value(qn_vm *vm, const graph_node *n, int device);
/* One node on values of its operands (borrowed), on a device; vals: of the nodes before it, which say what sizes are (unset: that of the
 * recorded call). Of nodes with regions the result is the list of their results. Owned, or the
 * error value with the error raised at the node's site. */
QN_MUST_CHECK qn_value nodes_apply(qn_vm *vm, const graph *g, uint32_t node, const qn_value *in, const qn_value *vals,
                                   int device);
/* All nodes in order, inputs by number (borrowed): vals[i] is the value of node i, owned by the caller, unset where it has none. How many
 * nodes have been done: less than g->n if one has failed, with its error raised. */
QN_MUST_CHECK uint32_t nodes_run(qn_vm *vm, const graph *g, const qn_value *inputs, int device, qn_value *vals);

#endif
