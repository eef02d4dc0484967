/* Between the rewriter (simplify.c) and its rules (rules.c, rules.def). */
#ifndef JIT_GRAPH_REWRITE_H
#define JIT_GRAPH_REWRITE_H

#include "jit/graph/graph.h"

typedef struct rewriter {
  graph *g;
  arena *scratch;
  cancel_flag cancel;   /* for simplifying regions */
  intern_table numbers; /* of nodes by content */
  int depth;            /* of rewrites inside rewrites; at REWRITE_DEPTH nodes are added without rewriting */
} rewriter;
enum { REWRITE_DEPTH = 24 };

/* A rule receives a node that is not in the graph yet (its operands are) and returns the node that replaces it, or 0 if the rule does
 * not apply. A replacement of another type than the node's is ignored. */
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

/* Adds an op of strict operands with all rewriting: rules, constant folding, common subexpressions. Infers its type. Returns 0 where
 * op_infer refuses or memory is short. */
uint32_t rewrite_op(rewriter *r, op_id op, const uint32_t *in, int nin, const op_attr *attr, uint32_t site);
/* Adds an op or a constant, whose operands are in the graph, with all rewriting. Returns 0 when memory is short. */
uint32_t rewrite_node(rewriter *r, const graph_node *n);
/* Moves what is the same in all turns of a loop (invariants.c) to before it, which is where r's graph ends: `parts` are its header and body, which
 * are replaced, and *in its *nin operands. False when memory is short. */
QN_MUST_CHECK bool invariants_move(rewriter *r, const graph_node *loop, uint32_t **in, uint32_t *nin, graph *parts[2]);
/* Adds a reshape or broadcast (`op`) of `node` to the shape of `like`. */
uint32_t rewrite_view(rewriter *r, op_id op, uint32_t node, const graph_node *like);
/* Adds a scalar constant with the dtype and weakness of `like`: `f` if it is a float, else `i`. */
uint32_t rewrite_number(rewriter *r, const graph_type *like, double f, int64_t i, uint32_t site);

/* Computes an op of constant scalars (fold.c) and writes the element, of dtype type->dtype, to `out`. False for an op whose bits could
 * differ between executors. */
bool fold_scalar(op_id op, const graph_type *type, const graph_type *operands, const void *const *data, int nin,
                 void *out);

#endif
