/* Between the rewriter (simplify.c) and its rules (rules.c, rules.def). */
#ifndef JIT_GRAPH_REWRITE_H
#define JIT_GRAPH_REWRITE_H

#include "jit/graph/graph.h"

/* The graph being built, and its nodes by content. */
typedef struct rewriter {
  graph *g;
  arena *scratch;
  cancel_flag cancel;   /* of regions */
  intern_table numbers; /* of nodes by content */
  int depth;            /* of rewrites within rewrites; beyond REWRITE_DEPTH nodes are taken as they are */
} rewriter;
enum { REWRITE_DEPTH = 24 };

/* A rule sees a node that is not in the graph yet (its operands are) and returns the node that takes its place, or 0. The
 * replacement must have the node's type; one that has not is dropped. */
typedef uint32_t rewrite_rule(rewriter *r, const graph_node *n);
enum { EXACT, FAST_MATH };
typedef struct rule_row {
  op_id op;
  uint8_t bits;
  rewrite_rule *apply;
  const char *name, *what;
} rule_row;
extern const rule_row rule_rows[];
extern const int rule_count;

/* Adds a node as the rewriter does: rules, constant folding, common subexpressions. The op's type is inferred; operands are
 * strict. 0 where op_infer refuses or memory is short. */
uint32_t rewrite_op(rewriter *r, op_id op, const uint32_t *in, int nin, const op_attr *attr, uint32_t site);
/* Adds a reshape or broadcast (`op`) of `node` to the shape of `like`. */
uint32_t rewrite_view(rewriter *r, op_id op, uint32_t node, const graph_node *like);
/* Adds a scalar constant with the dtype and weakness of `like`: `f` if it is a float, else `i`. */
uint32_t rewrite_number(rewriter *r, const graph_type *like, double f, int64_t i, uint32_t site);

/* The value of an op on constant scalars, where all executors agree on its bits (fold.c): false for others. `out` gets the
 * element; its dtype is `type`'s. */
bool fold_scalar(op_id op, const graph_type *type, const graph_type *operands, const void *const *data, int nin,
                 void *out);

#endif
