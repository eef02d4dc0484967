/* Graphs as values of the language: made from a call, from text or from bytes, read and rewritten (graphs.c, serialize.c). */
#ifndef JIT_TRACE_GRAPHS_H
#define JIT_TRACE_GRAPHS_H

#include "jit/graph/graph.h"
#include "lang/vm.h"

void graphs_open(qn_vm *vm);
/* Can a graph that was not recorded here be run like one that was? If not, `why` gets the reason. */
QN_MUST_CHECK bool graph_runnable(const graph *g, char *why, size_t size);
/* Removes from a graph that was not recorded here what it claims: ops count as failing wherever they can, for all that can be shown, and nodes have no place in a
 * program, though the calls that stay visible remain. False if memory is short. */
QN_MUST_CHECK bool graph_distrust(graph *g);
/* Of that what is said of ops. */
QN_MUST_CHECK bool graph_unprove(graph *g);
#endif
