/* Graphs run node by node with eager ops: for regions of a recording that is executed, and for --jit verify. */
#ifndef JIT_TRACE_NODES_H
#define JIT_TRACE_NODES_H

#include "jit/graph/graph.h"
#include "jit/run/plan_taps.h"
#include "lang/vm.h"

/* Gives the pending error the place of a site of g, and a frame of the trace for each call that the site is in. */
void nodes_raise_site(qn_vm *vm, const graph *g, uint32_t site);
/* The value of a constant, on a device. Owned, or the error value. */
QN_MUST_CHECK qn_value const_value(qn_vm *vm, const graph_node *n, int device);
/* Computes one node from the values of its operands (borrowed), on a device. vals[i] is the value of node i before it, from which sizes are
 * read (unset: the size in the recorded call). A node with regions gives the list of its results. Owned; or the error value, with the error
 * raised at the node's site. An effect is made by `taps` (NULL: it is left out), and gives nil. */
QN_MUST_CHECK qn_value nodes_apply(qn_vm *vm, const graph *g, uint32_t node, const qn_value *in, const qn_value *vals,
                                   int device, plan_taps *taps);
/* Computes all nodes in order; inputs[i] is the value of input i (borrowed). vals[i] becomes the value of node i, owned by the caller, or
 * unset if the node has none. Returns how many nodes were computed: fewer than g->n if one has failed, with its error raised. */
QN_MUST_CHECK uint32_t nodes_run(qn_vm *vm, const graph *g, const qn_value *inputs, int device, plan_taps *taps,
                                 qn_value *vals);

#endif
