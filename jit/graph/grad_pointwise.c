/* Rules of differentiation of the POINTWISE rows (grad.h). `y` is the node itself, `a` and `b` its operands. */
#include "jit/graph/grad.h"

static uint32_t y_of(const grad_ctx *c) { return c->node; }

/* Sets the cotangent of the only operand from its derivative. */
static void by(grad_ctx *c, uint32_t derivative) { c->out[0] = make_smul(c, c->ct, derivative); }

static uint32_t square(grad_ctx *c, uint32_t a) { return make2(c, OP_mul, a, a); }
static uint32_t inverse(grad_ctx *c, uint32_t a) { return make2(c, OP_div, make_number(c, 1), a); }
static uint32_t times(grad_ctx *c, double k, uint32_t a) { return make2(c, OP_mul, make_number(c, k), a); }
static uint32_t plus(grad_ctx *c, double k, uint32_t a) { return make2(c, OP_add, make_number(c, k), a); }
static uint32_t minus(grad_ctx *c, double k, uint32_t a) { return make2(c, OP_sub, make_number(c, k), a); }
static uint32_t negative(grad_ctx *c, uint32_t a) { return make1(c, OP_neg, a); }

/* ---- arithmetic ----------------------------------------------------------------------------------------------------- */

void grad_add(grad_ctx *c) { c->out[0] = c->out[1] = c->ct; }

void grad_sub(grad_ctx *c) {
  c->out[0] = c->ct;
  if (grad_wants(c, 1)) c->out[1] = negative(c, c->ct);
}

void grad_mul(grad_ctx *c) {
  for (int i = 0; i < 2; i++)
    if (grad_wants(c, i)) c->out[i] = make_smul(c, c->ct, c->in[1 - i]);
}

/* smul has the rule of mul, whose products have strong zeros, too, so second derivatives of guarded expressions are right as well. */
void grad_smul(grad_ctx *c) { grad_mul(c); }

bool grad_is_number(const graph *g, uint32_t node) {
  const graph_node *nodes = g->nodes, *n = &nodes[node];
  if (n->kind == NODE_INPUT) return n->attr && (n->attr->flags & ATTR_NUMBER);
  if (n->kind != NODE_OP || n->type.weak) return false;
  if (n->op == OP_index) return graph_takes_row(g, node) && (n->attr->flags & ATTR_NUMBER);
  if (n->op == OP_where && n->type.rank == 0) {
    const graph_node *plain = &nodes[n->in[0]];
    bool chosen = plain->kind == NODE_OP && plain->op == OP_bitand && nodes[plain->in[0]].kind == NODE_OP &&
                  nodes[plain->in[0]].op == OP_isfinite;
    return chosen && nodes[plain->in[0]].in[0] == n->in[1] && grad_is_number(g, n->in[1]);
  }
  return (n->op == OP_fit || n->op == OP_cast) && nodes[n->in[0]].type.weak;
}

/* Is such a number known to be finite and not 0, because it is a size? (jit/trace marks them: they fit any dtype.) */
static bool is_size(const grad_ctx *c, uint32_t node) {
  const graph_node *n = &c->g->nodes[node];
  return n->op == OP_fit && n->attr && (n->attr->flags & ATTR_PROVEN) && c->g->nodes[n->in[0]].kind == NODE_INPUT;
}

void grad_div(grad_ctx *c) {
  uint32_t b = c->in[1];
  double k;
  if (grad_wants(c, 0)) {
    bool host = grad_is_number(c->g, b);
    /* What differentiates by it makes no difference, since that may hold for some turns of a loop only. (In derivatives of derivatives a number of
     * data that turns hand on cannot be told from one that the host knows.) */
    if (c->derived && grad_wants(c, 1)) host = false;
    if (grad_finite_constant(c, b, &k) || (host && is_size(c, b))) {
      c->out[0] = make2(c, OP_div, c->ct, b);
    } else if (
        host) { /* what is done for constants, chosen when the number is known: a choice of numbers, so zeros keep their signs */
      uint32_t one = make_number(c, 1);
      uint32_t plain = make2(c, OP_bitand, make1(c, OP_isfinite, b), make2(c, OP_ne, b, make_number(c, 0)));
      uint32_t quotient = make2(c, OP_div, c->ct, make3(c, OP_where, plain, b, one));
      c->out[0] = make_smul(c, quotient, make3(c, OP_where, plain, one, inverse(c, b)));
    } else {
      c->out[0] = make_smul(c, c->ct, inverse(c, b));
    }
  }
  if (grad_wants(c, 1)) c->out[1] = make_smul(c, c->ct, negative(c, make2(c, OP_div, y_of(c), b)));
}

/* a - b * floor(a / b) */
void grad_mod(grad_ctx *c) {
  c->out[0] = c->ct;
  if (grad_wants(c, 1)) c->out[1] = make_smul(c, c->ct, negative(c, make2(c, OP_floordiv, c->in[0], c->in[1])));
}

/* By the base a: b * a^(b-1), and 0 where b = 0 whatever the power is. By the exponent b: a^b * log a, and 0 where a = 0. */
void grad_pow(grad_ctx *c) {
  uint32_t a = c->in[0], b = c->in[1];
  double k;
  if (grad_wants(c, 0)) {
    if (!grad_finite_constant(c, b, &k)) {
      uint32_t less = make2(c, OP_sub, b, make_number(c, 1));
      c->out[0] = make_smul(c, c->ct, make_smul(c, b, make2(c, OP_pow, a, less)));
    } else {
      uint32_t power = k == 2 ? a : make2(c, OP_pow, a, make_number(c, k - 1));
      c->out[0] = make_smul(c, c->ct, times(c, k, power));
    }
  }
  if (grad_wants(c, 1)) {
    uint32_t zero = make2(c, OP_eq, a, make_number(c, 0));
    uint32_t log = make1(c, OP_log, make3(c, OP_where, zero, make_number(c, 1), a));
    c->out[1] = make_smul(c, c->ct, make_smul(c, y_of(c), log));
  }
}

void grad_neg(grad_ctx *c) { c->out[0] = negative(c, c->ct); }

void grad_abs(grad_ctx *c) { by(c, make1(c, OP_sign, c->in[0])); }

/* maximum and minimum: the cotangent goes to the operand that was taken, half to each where they are equal. `wins` compares a with b. */
static void extremum(grad_ctx *c, op_id wins) {
  uint32_t a = c->in[0], b = c->in[1], zero = make_number(c, 0);
  uint32_t tie = make2(c, OP_eq, a, b), first = make2(c, wins, a, b), half = times(c, 0.5, c->ct);
  if (grad_wants(c, 0)) c->out[0] = make3(c, OP_where, tie, half, make3(c, OP_where, first, c->ct, zero));
  if (grad_wants(c, 1)) c->out[1] = make3(c, OP_where, tie, half, make3(c, OP_where, first, zero, c->ct));
}

void grad_minimum(grad_ctx *c) { extremum(c, OP_lt); }
void grad_maximum(grad_ctx *c) { extremum(c, OP_gt); }

/* ---- elementary functions -------------------------------------------------------------------------------------------- */

#define LN2 0.69314718055994530942
#define LN10 2.30258509299404568402
#define TWO_OVER_SQRT_PI 1.12837916709551257390
#define SQRT_HALF 0.70710678118654752440
#define GATE 1.59576912160573071176 /* 2 sqrt(2 / pi) */

void grad_sqrt(grad_ctx *c) { by(c, make2(c, OP_div, make_number(c, 0.5), y_of(c))); }
void grad_rsqrt(grad_ctx *c) { by(c, times(c, -0.5, make2(c, OP_mul, y_of(c), square(c, y_of(c))))); }
void grad_exp(grad_ctx *c) { by(c, y_of(c)); }
void grad_exp2(grad_ctx *c) { by(c, times(c, LN2, y_of(c))); }
void grad_expm1(grad_ctx *c) { by(c, plus(c, 1, y_of(c))); }
void grad_log(grad_ctx *c) { by(c, inverse(c, c->in[0])); }
void grad_log2(grad_ctx *c) { by(c, inverse(c, times(c, LN2, c->in[0]))); }
void grad_log10(grad_ctx *c) { by(c, inverse(c, times(c, LN10, c->in[0]))); }
void grad_log1p(grad_ctx *c) { by(c, inverse(c, plus(c, 1, c->in[0]))); }
void grad_sin(grad_ctx *c) { by(c, make1(c, OP_cos, c->in[0])); }
void grad_cos(grad_ctx *c) { by(c, negative(c, make1(c, OP_sin, c->in[0]))); }
void grad_tan(grad_ctx *c) { by(c, plus(c, 1, square(c, y_of(c)))); }
void grad_arcsin(grad_ctx *c) { by(c, make1(c, OP_rsqrt, minus(c, 1, square(c, c->in[0])))); }
void grad_arccos(grad_ctx *c) { by(c, negative(c, make1(c, OP_rsqrt, minus(c, 1, square(c, c->in[0]))))); }
void grad_arctan(grad_ctx *c) { by(c, inverse(c, plus(c, 1, square(c, c->in[0])))); }
void grad_sinh(grad_ctx *c) { by(c, make1(c, OP_cosh, c->in[0])); }
void grad_cosh(grad_ctx *c) { by(c, make1(c, OP_sinh, c->in[0])); }
void grad_tanh(grad_ctx *c) { by(c, minus(c, 1, square(c, y_of(c)))); }
void grad_sigmoid(grad_ctx *c) { by(c, make2(c, OP_mul, y_of(c), minus(c, 1, y_of(c)))); }
void grad_erf(grad_ctx *c) { by(c, times(c, TWO_OVER_SQRT_PI, make1(c, OP_exp, negative(c, square(c, c->in[0]))))); }

/* The operand, in f32 where the node is f16 or bf16. From then on make_number makes f32 numbers, too; *narrow is the node's own type. */
static uint32_t widened(grad_ctx *c, graph_type *narrow) {
  *narrow = c->type;
  if (c->type.weak || dtype_size((qn_dtype)c->type.dtype) != 2) return c->in[0];
  c->type.dtype = dtype_compute(c->type.dtype);
  return grad_cast_to(c, c->in[0], c->type.dtype);
}

/* Sets the cotangent of the only operand from a derivative that was computed on the widened operand. */
static void by_widened(grad_ctx *c, uint32_t derivative, const graph_type *narrow) {
  bool same = c->type.dtype == narrow->dtype;
  uint32_t out = make_smul(c, same ? c->ct : grad_cast_to(c, c->ct, (qn_dtype)c->type.dtype), derivative);
  c->type = *narrow;
  c->out[0] = same ? out : grad_cast_to(c, out, (qn_dtype)narrow->dtype);
}

/* y = x s with s = sigmoid(w) of w = x or, cubic, GATE (x + 0.044715 x^3): s + x s (1 - s) w'. f16 and bf16 compute in f32, as y does. */
static void by_gate(grad_ctx *c, bool cubic) {
  graph_type narrow;
  uint32_t x = widened(c, &narrow), w = x, slope = 0;
  if (cubic) {
    uint32_t z = square(c, x);
    w = make2(c, OP_mul, x, plus(c, GATE, times(c, GATE * 0.044715, z)));
    slope = plus(c, GATE, times(c, 3 * GATE * 0.044715, z));
  }
  uint32_t s = make1(c, OP_sigmoid, w), bend = make2(c, OP_mul, s, minus(c, 1, s));
  if (slope) bend = make_smul(c, bend, slope);
  by_widened(c, make2(c, OP_add, s, make_smul(c, x, bend)), &narrow);
}

void grad_silu(grad_ctx *c) { by_gate(c, false); }
void grad_gelu_tanh(grad_ctx *c) { by_gate(c, true); }

void grad_gelu(grad_ctx *c) {
  graph_type narrow;
  uint32_t x = widened(c, &narrow);
  by_widened(c, make1(c, OP_gelu_slope, x), &narrow);
}

/* n(x) (2 - x^2), n the density of the normal distribution */
void grad_gelu_slope(grad_ctx *c) {
  graph_type narrow;
  uint32_t z = square(c, widened(c, &narrow));
  uint32_t density = times(c, 0.5 * SQRT_HALF * TWO_OVER_SQRT_PI, make1(c, OP_exp, times(c, -0.5, z)));
  by_widened(c, make_smul(c, density, minus(c, 2, z)), &narrow);
}

/* angle of (x, y), given (y, x) */
void grad_arctan2(grad_ctx *c) {
  uint32_t y = c->in[0], x = c->in[1], r2 = make2(c, OP_add, square(c, x), square(c, y));
  if (grad_wants(c, 0)) c->out[0] = make_smul(c, c->ct, make2(c, OP_div, x, r2));
  if (grad_wants(c, 1)) c->out[1] = make_smul(c, c->ct, negative(c, make2(c, OP_div, y, r2)));
}

/* ---- selection and types ------------------------------------------------------------------------------------------------ */

/* (Where ways are joined, nothing comes of a cotangent on the way that was not taken either: its transpose gives tangents.) */
void grad_where(grad_ctx *c) {
  uint32_t zero = make_number(c, 0);
  const op_attr joins = {.flags = ATTR_JOINS}, *attr = c->attr.flags & ATTR_JOINS ? &joins : NULL;
  const uint32_t then[] = {c->in[0], c->ct, zero}, otherwise[] = {c->in[0], zero, c->ct};
  if (grad_wants(c, 1)) c->out[1] = graph_op(c->g, OP_where, then, 3, attr, c->site);
  if (grad_wants(c, 2)) c->out[2] = graph_op(c->g, OP_where, otherwise, 3, attr, c->site);
}

/* cast and fit: a cast to the operand's type; for a host number one with ATTR_WEAK (graph.h). */
void grad_cast(grad_ctx *c) {
  graph_type t = grad_type_of(c, c->in[0]);
  if (t.weak == c->type.weak && t.dtype == c->type.dtype) {
    c->out[0] = c->ct;
    return;
  }
  op_attr attr = {.dtype = t.dtype, .flags = t.weak ? ATTR_WEAK : 0};
  c->out[0] = make1_attr(c, OP_cast, c->ct, &attr);
}
