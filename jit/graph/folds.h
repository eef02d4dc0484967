/* In which steps a reduction over several axes goes: part of the reduction order, and so of the bits.
 *
 * Axes are folded from the innermost out. A reduced axis is joined with the reduced axis right behind it where that is short, so
 * that both are one row; else it is a fold of its own, over the results of the fold before. Folds are of inner order, or of outer
 * order where an axis that stays lies behind them.
 */
#ifndef JIT_GRAPH_FOLDS_H
#define JIT_GRAPH_FOLDS_H

#include "jit/graph/graph.h"

enum { FOLD_JOIN_BELOW = 64 }; /* elements: what is joined with the axis before it */

typedef struct reduce_fold {
  int n, axes[ARRAY_MAX_RANK]; /* ascending */
  bool outer;
  qn_dim extent;
} reduce_fold;

/* The folds of a reduction of `t` over `axes` (a mask), innermost first; returns how many. Axes of one element are left out:
 * reducing one element gives it. `whole`: all axes are one fold (an index into them is the result). `joins`: NULL, or a bit per
 * axis that is joined with the reduced axis behind it, instead of what sizes say. What sizes say holds in every run: it is
 * assumed in `d`. */
int reduce_folds(dim_table *d, const graph_type *t, uint8_t axes, bool whole, const uint8_t *joins, reduce_fold *folds);

/* How many of n folds one nest of loops does: rows, and then across rows. */
static inline int reduce_nest(const reduce_fold *folds, int n) { return n > 1 && !folds[0].outer ? 2 : n > 0; }

#endif
