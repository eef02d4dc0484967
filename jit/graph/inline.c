/* graph_inline (graph.h): copies a graph's nodes into another graph, with other operands in place of its inputs.
 *
 * Sizes are translated when they are met. A symbol for an input's axis becomes the size of that axis of the argument, a symbol of a node
 * that of its copy. A symbol for the value of a host int can be translated only if the argument is an input or a constant of the other
 * graph. Regions inside have symbols of their own and are copied as they are.
 */
#include <stdlib.h>
#include <string.h>

#include "jit/graph/graph.h"

typedef struct inliner {
  graph *to;
  const graph *from;
  const uint32_t *args;
  uint32_t *map; /* by node of `from` */
  qn_dim *dims;  /* by expression of `from`: its translation, where known[] says that there is one */
  bool *known;
  bool failed; /* a size cannot be translated */
} inliner;

static qn_dim size_in(inliner *x, qn_dim d);

static qn_dim symbol_in(inliner *x, const dim_expr *e) {
  graph *to = x->to;
  if (e->source == DIM_FROM_INPUT) return to->nodes[x->args[e->ref]].type.shape[e->axis];
  if (e->source == DIM_FROM_NODE) return to->nodes[x->map[e->ref]].type.shape[e->axis];
  const graph_node *n = &to->nodes[x->args[e->ref]];
  qn_value v;
  if (graph_const_value(to, x->args[e->ref], &v)) return dim_const(&to->dims, v.u.i);
  if (n->kind == NODE_INPUT) return dim_symbol(&to->dims, DIM_FROM_SCALAR, n->payload.input, 0, e->hint, e->name);
  x->failed = true;
  return e->hint;
}

static qn_dim size_in(inliner *x, qn_dim d) {
  if (d >= 0) return d;
  uint32_t i = (uint32_t)~d;
  if (x->known[i]) return x->dims[i];
  const dim_expr e = x->from->dims.exprs[i];
  qn_dim made =
      e.op == DIM_SYMBOL ? symbol_in(x, &e) : dim_make(&x->to->dims, (dim_op)e.op, size_in(x, e.a), size_in(x, e.b));
  x->known[i] = true;
  return x->dims[i] = made;
}

/* Translates size d of a node's own shape, which may be a symbol of this very node: that becomes a symbol of its copy. */
static qn_dim own_size(inliner *x, uint32_t node, qn_dim d) {
  if (d >= 0) return d;
  const dim_expr *e = &x->from->dims.exprs[~d];
  if (e->op != DIM_SYMBOL || e->source != DIM_FROM_NODE || e->ref != node) return size_in(x, d);
  x->known[~d] = true;
  return x->dims[~d] = dim_symbol(&x->to->dims, DIM_FROM_NODE, x->to->n, e->axis, e->hint, e->name);
}

static bool copy_node(inliner *x, uint32_t i) {
  graph *to = x->to;
  graph_node n = x->from->nodes[i];
  uint32_t *in = malloc((n.nin + 1u) * sizeof *in);
  if (!in) return false;
  for (int k = 0; k < n.nin; k++) in[k] = x->map[n.in[k]];
  n.site = 0;
  for (int a = 0; a < n.type.rank; a++) n.type.shape[a] = own_size(x, i, n.type.shape[a]);
  op_attr attr;
  if (n.kind == NODE_OP && n.attr) {
    attr = graph_attr(&n);
    for (int k = 0; k < attr.n; k++)
      if (op_attr_is_dim((op_id)n.op, k)) attr.d[k] = size_in(x, attr.d[k]);
    n.attr = &attr;
  }
  x->map[i] = n.kind == NODE_CONST ? graph_const(to, n.type, n.payload.data, 0) : graph_node_like(to, &n, in);
  free(in);
  return x->map[i] != 0;
}

bool graph_inline(graph *to, const graph *from, const uint32_t *args, uint32_t *outs) {
  inliner x = {.to = to, .from = from, .args = args};
  x.map = calloc(from->n, sizeof *x.map);
  x.dims = calloc(from->dims.n + 1, sizeof *x.dims);
  x.known = calloc(from->dims.n + 1, sizeof *x.known);
  bool ok = x.map && x.dims && x.known;
  for (uint32_t i = 1; i < from->n && ok; i++) {
    if (from->nodes[i].kind == NODE_INPUT)
      x.map[i] = args[from->nodes[i].payload.input];
    else
      ok = copy_node(&x, i);
  }
  for (uint32_t k = 0; k < from->noutputs && ok; k++) outs[k] = x.map[from->outputs[k]];
  for (uint32_t k = 0; k < from->dims.nfacts && ok; k++) {
    const dim_fact *f = &from->dims.facts[k];
    qn_dim a = size_in(&x, f->a), b = size_in(&x, f->b);
    if (a < 0 || b < 0) dim_assume(&to->dims, a, (dim_relation)f->relation, b);
  }
  ok = ok && !x.failed && !to->failed && !to->dims.arena->failed;
  free(x.map);
  free(x.dims);
  free(x.known);
  return ok;
}
