/* What tests ask of graphs and the product does not. */
#ifndef TESTS_GRAPH_CASE_H
#define TESTS_GRAPH_CASE_H

#include "jit/graph/graph.h"

/* graph_vjp of one root of rank 0 whose cotangent is node `seed` (0: one). */
static inline bool graph_grad(graph *g, uint32_t from, uint32_t root, uint32_t seed, const uint32_t *wrt, int nwrt,
                              uint32_t *grads, uint32_t *culprit, op_refusal *why) {
  return graph_vjp(g, from, &root, &seed, 1, wrt, nwrt, NULL, grads, culprit, why);
}

/* Do all facts hold for these symbol values? If not, *broken (may be NULL) is the first that does not. */
static inline bool dim_facts_hold(const dim_table *t, const int64_t *symbols, uint32_t *broken) {
  for (uint32_t i = 0; i < t->nfacts; i++) {
    int64_t a = dim_eval(t, t->facts[i].a, symbols), b = dim_eval(t, t->facts[i].b, symbols);
    const bool holds[] = {[DIM_EQ] = a == b, [DIM_NE] = a != b, [DIM_LT] = a < b, [DIM_LE] = a <= b};
    if (holds[t->facts[i].relation]) continue;
    if (broken) *broken = i;
    return false;
  }
  return true;
}

#endif
