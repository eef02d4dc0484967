/* Graphs as values of the language: made from a call, from text or from bytes, looked at and rewritten (graphs.c, serialize.c). */
#ifndef JIT_TRACE_GRAPHS_H
#define JIT_TRACE_GRAPHS_H

#include "jit/graph/graph.h"
#include "lang/vm.h"

void graphs_open(qn_vm *vm);
/* Can a graph from elsewhere be run like a recorded one? Else `why` says what is against it. */
QN_MUST_CHECK bool graph_runnable(const graph *g, char *why, size_t size);
/* What comes from elsewhere proves nothing: whatever can fail on data is checked, and no node has a place. False when memory is
 * short. */
QN_MUST_CHECK bool graph_distrust(graph *g);
#endif
