/* The folds of reductions (folds.h), on which the simplifier and the lowering to kernels must agree. */
#include "jit/graph/folds.h"

/* Is an extent short enough to be joined? The answer is noted as a fact, since it decides the order and so the bits. */
static bool is_short(dim_table *t, qn_dim extent) {
  bool is = dim_hint(t, extent) < FOLD_JOIN_BELOW;
  int64_t c;
  if (dim_is_const(t, extent, &c)) return is;
  if (is)
    dim_assume(t, extent, DIM_LT, FOLD_JOIN_BELOW);
  else
    dim_assume(t, FOLD_JOIN_BELOW, DIM_LE, extent);
  return is;
}

int reduce_folds(dim_table *d, const graph_type *t, uint8_t axes, bool whole, const uint8_t *joins,
                 reduce_fold *folds) {
  int n = 0;
  /* Does an axis that is not reduced lie further in? Does the axis visited last belong to the last fold? */
  bool behind = false, neighbour = false;
  for (int a = t->rank - 1; a >= 0; a--) {
    if (!(axes >> a & 1)) {
      behind = true;
      neighbour = false;
      continue;
    }
    int64_t one;
    if (dim_is_const(d, t->shape[a], &one) && one == 1) continue;
    bool join = n && whole;
    if (n && neighbour && !whole) join = joins ? *joins >> a & 1 : is_short(d, folds[n - 1].extent);
    if (!join) folds[n++] = (reduce_fold){.outer = behind, .extent = 1};
    reduce_fold *f = &folds[n - 1];
    memmove(f->axes + 1, f->axes, (size_t)f->n * sizeof *f->axes);
    f->axes[0] = a;
    f->n++;
    f->extent = dim_mul(d, f->extent, t->shape[a]);
    neighbour = true;
  }
  return n;
}

void reduces_note(graph *g, uint32_t first) {
  reduce_fold folds[ARRAY_MAX_RANK];
  for (uint32_t i = first; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    if (n->kind != NODE_OP || op_rows[n->op].klass != CLASS_REDUCE) continue;
    bool whole = n->op == OP_argmax || n->op == OP_argmin;
    (void)reduce_folds(&g->dims, &g->nodes[n->in[0]].type, graph_attr(n).axes, whole, NULL, folds);
  }
}
