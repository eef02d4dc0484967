/* Reverse-mode differentiation inside one graph: appends the nodes of the gradient.
 *
 * Forward, a node is active if it is of a float dtype and depends on one of wrt through rows that have a gradient. Backward,
 * from the root down in the order of node indices, each active node with a cotangent hands its operands theirs by its row's
 * rule. Every user of a node has a larger index, so a cotangent is complete when its node's turn comes.
 *
 * The order of summation is fixed: contributions are added in the order they arise, that is users by descending index and,
 * within a user, operands from the first to the last: ((u_last + u_before) + ...) + u_first. Equal graphs give equal bits.
 *
 * A cotangent has exactly the type of its node. A node of integer or bool dtype has none; a row with NO_GRAD("zero: ...")
 * ends the flow silently, another NO_GRAD refuses. Nodes below `from` are constants, so a cotangent that arrives at one of wrt
 * there goes no further. Sites of new nodes are those of the nodes they differentiate.
 *
 * The rules: grad_pointwise.c and grad_array.c.
 */
#include "jit/graph/grad.h"

#include <stdio.h>
#include <string.h>

#include "lang/error.h"
#include "lang/mem.h"

#define GRAD(fn) grad_##fn
#define NO_GRAD(reason) NULL
static grad_rule *const rules[OP_COUNT] = {
#define OP(klass, name, arity, dtype, shape, grad, batch, raises, body, doc) [OP_##name] = grad,
#include "lang/ops.def"
};
#undef GRAD
#undef NO_GRAD

/* ---- helpers of rules ------------------------------------------------------------------------------------------ */

static bool same_shape(const graph_type *a, const graph_type *b) {
  return a->rank == b->rank && memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) == 0;
}

static op_attr shape_attr(const graph_type *like) {
  op_attr attr = {.n = like->rank};
  memcpy(attr.d, like->shape, like->rank * sizeof *attr.d);
  return attr;
}

uint32_t grad_reshape_to(grad_ctx *c, uint32_t node, const graph_type *like) {
  if (!node || same_shape(&c->g->nodes[node].type, like)) return node;
  op_attr attr = shape_attr(like);
  return make1_attr(c, OP_reshape, node, &attr);
}

uint32_t grad_cast_to(grad_ctx *c, uint32_t node, qn_dtype dtype) { return graph_cast(c->g, node, dtype, c->site); }

uint32_t grad_full(grad_ctx *c, const graph_type *like, double x) {
  uint32_t number = graph_const_scalar(c->g, (qn_dtype)like->dtype, like->weak, x, (int64_t)x, c->site);
  if (!number || like->rank == 0) return number;
  op_attr attr = shape_attr(like);
  return make1_attr(c, OP_broadcast, number, &attr);
}

uint32_t grad_unbroadcast(grad_ctx *c, uint32_t node, const graph_type *like) {
  if (!node) return 0;
  graph_type t = c->g->nodes[node].type;
  if (same_shape(&t, like)) return node;
  const dim_table *dims = &c->g->dims;
  int lead = t.rank - like->rank;
  op_attr attr = {.keepdims = lead == 0};
  for (int i = 0; i < t.rank; i++) {
    qn_dim from = t.shape[i], to = i < lead ? 0 : like->shape[i - lead];
    if (i >= lead && (to == from || (to != 1 && (dim_hint(dims, to) != 1 || dim_hint(dims, from) == 1)))) continue;
    if (from != 1) attr.axes |= (uint8_t)(1u << i);
  }
  if (attr.axes) node = make1_attr(c, OP_sum, node, &attr);
  return grad_reshape_to(c, node, like);
}

#ifdef QN_CHECKED
enum {
  CHECKED_NODES = 4000
}; /* the whole graph is verified after each gradient, which in a loop costs quadratic time */
#endif

/* ---- the driver --------------------------------------------------------------------------------------------------- */

static bool refuse(op_refusal *why, uint32_t *culprit, uint32_t node, const char *text, const char *detail) {
  why->id = E_not_diff;
  snprintf(why->text, sizeof why->text, text, detail);
  *culprit = node;
  return false;
}

static bool out_of_memory(op_refusal *why, uint32_t *culprit) {
  why->id = E_memory;
  snprintf(why->text, sizeof why->text, "out of memory");
  *culprit = 0;
  return false;
}

static bool is_float(const graph *g, uint32_t node) { return dtype_is_float((qn_dtype)g->nodes[node].type.dtype); }

/* "zero: ..." */
static bool ends_silently(const graph_node *n) {
  const char *reason = op_rows[n->op].no_grad;
  return n->kind == NODE_OP && reason && strncmp(reason, "zero", 4) == 0;
}

/* Which nodes up to root depend on wrt. */
static void mark_active(const graph *g, uint32_t from, uint32_t root, const uint32_t *wrt, int nwrt, bool *active) {
  for (int i = 0; i < nwrt; i++)
    if (wrt[i] <= root) active[wrt[i]] = true;
  for (uint32_t i = from; i <= root; i++) {
    const graph_node *n = &g->nodes[i];
    bool regions = n->kind == NODE_IF || n->kind == NODE_LOOP; /* they have no type of their own */
    if (!(is_float(g, i) || regions) || n->kind == NODE_TAP || ends_silently(n)) continue;
    for (int k = 0; k < n->nin && !active[i]; k++) active[i] = active[n->in[k]];
  }
}

/* Hands out the cotangent of node i. */
static bool step(graph *g, uint32_t i, const bool *active, uint32_t *cotangents, arena *scratch, uint32_t *culprit,
                 op_refusal *why) {
  graph_node n = g->nodes[i]; /* the list moves while nodes are appended */
  if (n.kind == NODE_PROJ)
    return refuse(why, culprit, i, "%s", "a branch or loop that was captured as a region has no gradient rule");
  if (n.kind != NODE_OP || n.nin == 0) return true;
  if (!rules[n.op])
    return refuse(why, culprit, i, "not differentiable: %s",
                  op_rows[n.op].no_grad ? op_rows[n.op].no_grad : op_rows[n.op].name);
  bool *wanted = arena_alloc(scratch, n.nin * sizeof *wanted);
  uint32_t *out = arena_alloc(scratch, n.nin * sizeof *out);
  if (!wanted || !out) return out_of_memory(why, culprit);
  bool any = false;
  for (int k = 0; k < n.nin; k++) any |= wanted[k] = active[n.in[k]];
  if (!any) return true;
  grad_ctx c = {g, i, n.site, (op_id)n.op, n.nin, n.in, n.type, graph_attr(&n), cotangents[i], wanted, out};
  rules[n.op](&c);
  for (int k = 0; k < n.nin; k++) {
    if (!wanted[k] || !out[k]) continue;
    uint32_t j = n.in[k];
    graph_type type = g->nodes[j].type;
    uint32_t ct = grad_unbroadcast(&c, out[k], &type);
    cotangents[j] = cotangents[j] ? make2(&c, OP_add, cotangents[j], ct) : ct;
  }
  return !g->failed || out_of_memory(why, culprit);
}

bool graph_grad(graph *g, uint32_t from, uint32_t root, uint32_t seed, const uint32_t *wrt, int nwrt, uint32_t *grads,
                uint32_t *culprit, op_refusal *why) {
  *culprit = root;
  if (!is_float(g, root) || g->nodes[root].type.rank)
    return refuse(why, culprit, root, "grad needs a float scalar as the result, not %s",
                  g->nodes[root].type.rank ? "an array" : dtype_rows[g->nodes[root].type.dtype].name);
  for (int i = 0; i < nwrt; i++)
    if (!is_float(g, wrt[i]))
      return refuse(why, culprit, wrt[i], "a gradient needs a float input, not %s",
                    dtype_rows[g->nodes[wrt[i]].type.dtype].name);
  arena scratch;
  arena_init(&scratch, g->arena.vm);
  bool *active = arena_alloc(&scratch, (root + 1) * sizeof *active);
  uint32_t *cotangents = arena_alloc(&scratch, (root + 1) * sizeof *cotangents);
  bool ok = active && cotangents;
  if (!ok) out_of_memory(why, culprit);
  if (ok) {
    mark_active(g, from ? from : 1, root, wrt, nwrt, active);
    if (active[root]) {
      graph_node r = g->nodes[root];
      if (!seed) seed = graph_const_scalar(g, (qn_dtype)r.type.dtype, r.type.weak, 1, 1, r.site);
      cotangents[root] = seed;
      ok = seed || out_of_memory(why, culprit);
    }
    for (uint32_t i = root; i >= from && i > 0 && ok; i--)
      if (cotangents[i] && active[i]) ok = step(g, i, active, cotangents, &scratch, culprit, why);
    for (int i = 0; i < nwrt && ok; i++) grads[i] = wrt[i] <= root ? cotangents[wrt[i]] : 0;
  }
  arena_free(&scratch);
#ifdef QN_CHECKED
  char wrong[160];
  if (ok && g->n < CHECKED_NODES && !graph_verify(g, wrong, sizeof wrong)) {
    why->id = E_internal;
    snprintf(why->text, sizeof why->text, "differentiation made a graph that is none: %s", wrong);
    ok = false;
  }
#endif
  return ok;
}
