/* Checks that cannot fail, because loops count between numbers that are known. */
#ifndef JIT_GRAPH_RANGES_H
#define JIT_GRAPH_RANGES_H

#include "jit/graph/graph.h"

/* Marks nodes, also in regions, as unable to fail where the values of host ints and index arrays are known well enough. False when memory is
 * short. */
QN_MUST_CHECK bool ranges_prove(graph *g);

/* In graphs that come from outside: do all sizes that are numbers of turns lie where they may, so that no part leaves its array? Looks at
 * regions, too. `why` (static): what is wrong; or NULL, if memory is short. */
QN_MUST_CHECK bool ranges_fit(const graph *g, const char **why);

#endif
