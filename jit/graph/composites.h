/* Calls in a graph: the nodes that one call of a function has made stand together and can be seen as one (composites.c). */
#ifndef JIT_GRAPH_COMPOSITES_H
#define JIT_GRAPH_COMPOSITES_H

#include "jit/graph/graph.h"

typedef struct graph_call {
  uint32_t site;       /* of the call; of all nodes in it, this is where the function was called */
  const char *name;    /* the function's */
  uint32_t first, end; /* its nodes */
} graph_call;
enum { GRAPH_CALLS_NESTED = 32 };
/* The calls of functions that stay visible (graph_site.whole) that begin with node i, the outermost first; how many there are. To be asked for
 * all nodes in order, with *newest 0 before the first. Of calls that are nested deeper than GRAPH_CALLS_NESTED the innermost are left out. */
uint32_t graph_calls_at(const graph *g, uint32_t i, uint32_t *newest, graph_call out[GRAPH_CALLS_NESTED]);
/* The name of the outermost call that node i is a part of; NULL: it is part of none. */
const char *graph_call_around(const graph *g, uint32_t i);
/* For each node the last one that has it as an operand; UINT32_MAX for outputs of the graph; 0: nobody. `last` has room for g->n. */
void graph_last_uses(const graph *g, uint32_t *last);
/* The operands of a call: nodes before it that its nodes read, each once, in the order in which they are first read. Fills at most `most`.
 * How many there are; if these are more than `most`, those beyond may have been counted several times. */
uint32_t graph_call_operands(const graph *g, const graph_call *c, uint32_t *out, uint32_t most);
/* The results of a call: its nodes that something behind it uses, in order. Fills at most `most`; how many there are. */
uint32_t graph_call_results(const graph *g, const graph_call *c, const uint32_t *last, uint32_t *out, uint32_t most);

#endif
