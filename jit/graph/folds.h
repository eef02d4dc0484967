/* In which steps a reduction over several axes goes: part of the reduction order, and so of the bits.
 *
 * Axes are folded from the innermost to the outermost. A reduced axis whose inner neighbour is reduced and short is joined with it, so
 * that both are one row. Otherwise it is a fold of its own, over the results of the fold before. A fold has inner order (l.h), or outer
 * order where an axis that is not reduced lies further in.
 */
#ifndef JIT_GRAPH_FOLDS_H
#define JIT_GRAPH_FOLDS_H

#include "jit/graph/graph.h"

enum { FOLD_JOIN_BELOW = 64 }; /* an axis with fewer elements is joined with its outer neighbour */

typedef struct reduce_fold {
  int n, axes[ARRAY_MAX_RANK]; /* ascending */
  bool outer;
  qn_dim extent;
} reduce_fold;

/* Sets `folds` to those of a reduction of `t` over the mask `axes`, innermost first, and returns how many there are. Axes of one element
 * are left out, since reducing one element gives that element. `whole`: all axes are one fold, as in an arg reduction, whose result
 * is an index into all of them. `joins`: NULL, or a bit for each axis that is joined with its inner neighbour, in place of the rule by
 * size. What the rule decides by recorded sizes is noted in `d` as facts. */
int reduce_folds(dim_table *d, const graph_type *t, uint8_t axes, bool whole, const uint8_t *joins, reduce_fold *folds);

/* Notes what the rule decides for all reductions of a graph from node `first` on. */
void reduces_note(graph *g, uint32_t first);

/* How many of n folds one nest of loops can do: one within rows and then one across rows, or just one. */
static inline int reduce_nest(const reduce_fold *folds, int n) { return n > 1 && !folds[0].outer ? 2 : n > 0; }

#endif
