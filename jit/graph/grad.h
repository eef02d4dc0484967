/* What the rules of differentiation are made of. A rule is named by the GRAD(fn) column of ops.def and is the function
 * grad_<fn>; the table of rules is made from the column, so a missing rule does not link.
 *
 * A rule receives the cotangent of its node's result and sets, for each operand that wants one, a node with the operand's
 * cotangent. Its shape may still be the result's: the driver sums over the axes along which the operand was broadcast. Only ops of
 * the table are used, so gradients can be differentiated again.
 *
 * Strong zeros: where a cotangent is multiplied by a derivative, make_smul is used: OP_smul, which is 0 where either is 0.
 * Contractions (dot) are plain.
 */
#ifndef JIT_GRAPH_GRAD_H
#define JIT_GRAPH_GRAD_H

#include "jit/graph/graph.h"

typedef struct grad_ctx {
  graph *g;
  uint32_t node;
  uint32_t site;
  op_id op;
  int nin;
  const uint32_t *in;
  graph_type type; /* of the result */
  op_attr attr;
  uint32_t ct;        /* cotangent of the result, of exactly its type */
  const bool *wanted; /* by operand */
  uint32_t *out;      /* by operand: its cotangent, 0 for none */
} grad_ctx;

typedef void grad_rule(grad_ctx *c);
#define GRAD(fn) grad_rule grad_##fn;
#define NO_GRAD(reason)
#define OP(klass, name, arity, dtype, shape, grad, batch, raises, body, doc) grad
#include "lang/ops.def"
#undef GRAD
#undef NO_GRAD

/* ---- building: 0 (memory is short) passes through, as in graph.h ------------------------------------------------------- */

static inline graph_type grad_type_of(const grad_ctx *c, uint32_t node) { return c->g->nodes[node].type; }

static inline uint32_t make1(grad_ctx *c, op_id op, uint32_t a) { return graph_op(c->g, op, &a, 1, NULL, c->site); }

static inline uint32_t make2(grad_ctx *c, op_id op, uint32_t a, uint32_t b) {
  const uint32_t in[] = {a, b};
  return graph_op(c->g, op, in, 2, NULL, c->site);
}

static inline uint32_t make3(grad_ctx *c, op_id op, uint32_t a, uint32_t b, uint32_t d) {
  const uint32_t in[] = {a, b, d};
  return graph_op(c->g, op, in, 3, NULL, c->site);
}

static inline uint32_t make1_attr(grad_ctx *c, op_id op, uint32_t a, const op_attr *attr) {
  return graph_op(c->g, op, &a, 1, attr, c->site);
}

/* A number of the same dtype (and weakness) as the result. */
static inline uint32_t make_number(grad_ctx *c, double x) {
  return graph_const_scalar(c->g, (qn_dtype)c->type.dtype, c->type.weak, x, (int64_t)x, c->site);
}

/* Is a node a constant scalar, finite and not 0? */
static inline bool grad_finite_constant(const grad_ctx *c, uint32_t node, double *value) {
  qn_value v;
  if (!node || !graph_const_value(c->g, node, &v) || !value_is(v, TAG_FLOAT)) return false;
  *value = v.u.f;
  return v.u.f != 0 && v.u.f - v.u.f == 0;
}

/* Cotangent times derivative, with strong zeros: plain where one of them is a finite constant other than 0. */
static inline uint32_t make_smul(grad_ctx *c, uint32_t ct, uint32_t derivative) {
  double k;
  bool plain = grad_finite_constant(c, ct, &k) || grad_finite_constant(c, derivative, &k);
  return make2(c, plain ? OP_mul : OP_smul, ct, derivative);
}

/* ---- branches and loops (grad_control.c) ------------------------------------------------------------------------------ */

/* The node's results have cotangents `given` (0: none), and operands that are `wanted` get theirs in `out` (0: none), each of its
 * operand's type. */
typedef struct control_grad {
  graph *g;
  uint32_t node;
  uint32_t *given;
  bool *wanted;
  uint32_t *out;
} control_grad;
/* False: not differentiable, as `why` says, or memory is short. */
QN_MUST_CHECK bool grad_control(control_grad *c, op_refusal *why);

/* Reshapes or broadcasts (`op`) a node to the shape of `like`, unless it has that already. */
uint32_t grad_view(grad_ctx *c, op_id op, uint32_t node, const graph_type *like);
static inline uint32_t grad_reshape_to(grad_ctx *c, uint32_t node, const graph_type *like) {
  return grad_view(c, OP_reshape, node, like);
}
static inline uint32_t grad_cast_to(grad_ctx *c, uint32_t node, qn_dtype dtype) {
  return graph_cast(c->g, node, dtype, c->site);
}
static inline uint32_t grad_full(grad_ctx *c, const graph_type *like, double x) {
  return graph_full(c->g, like, x, c->site);
}
/* Sums over the axes along which `like` was broadcast to node's shape; the result has exactly the shape of `like`. */
uint32_t grad_unbroadcast(grad_ctx *c, uint32_t node, const graph_type *like);

static inline bool grad_wants(const grad_ctx *c, int i) { return c->wanted[i]; }

#endif
