/* Looking for a small graph inside of a large one (match.c). */
#ifndef JIT_GRAPH_MATCH_H
#define JIT_GRAPH_MATCH_H

#include "jit/graph/graph.h"

enum { MATCH_WAITING = 512 };
struct match_pair {
  uint32_t find, in;
};

/* A search for the nodes of `find` that its node `root` is made of. Inputs of `find` stand for any node. */
typedef struct graph_search {
  const graph *find;
  uint32_t root;
  const graph *in;
  /* Types, attributes and constants must be the same, too, where sizes have the same numbers in both graphs. Else ops alone tell. */
  bool strict;
  uint32_t *map; /* room for find->n: by node of `find` the node that it was found as; 0: none */
  /* Asked for each way in which it was found, with the map filled in: true ends the search. */
  bool (*accept)(void *ctx, const uint32_t *map);
  void *ctx;
  struct match_pair *waiting; /* room for MATCH_WAITING pairs */
  uint32_t nwaiting, steps;   /* the caller need not set these */
} graph_search;

/* Do two nodes of a graph have the same value since they are made in the same way of the same nodes? */
bool graph_same_value(const graph *g, uint32_t i, uint32_t j);

/* Looks for it with node `at` in the place of `root`. `bound` (or NULL): room for find->ninputs, the nodes that inputs must be (0: any). Ops whose
 * operands commute match in both orders. A search that takes too many steps finds nothing. */
QN_MUST_CHECK bool graph_search_at(graph_search *s, uint32_t at, const uint32_t *bound);

#endif
