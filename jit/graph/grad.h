/* What rules of differentiation are made of. The GRAD(fn) column of ops.def names an op's rule, the function grad_<fn>; the table of
 * rules is made from the column, so code with a rule missing does not link.
 *
 * A rule receives the cotangent of its node and sets, for each operand that wants one, the operand's cotangent. This may still have the
 * shape of the node: the caller (grad.c) sums over the axes along which the operand was broadcast. Rules use ops of the table only, so
 * gradients can be differentiated again.
 *
 * Strong zeros: a cotangent is multiplied by a derivative with make_smul, that is OP_smul, which is 0 where one factor is 0 even if the
 * other is inf or NaN, and the plain product otherwise, with the sign of its zeros. So whether a factor is known to be finite while the
 * rule is applied (a constant) or only later (a host number that is an input) makes no difference. Contractions (dot) multiply plainly.
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
  graph_type type; /* of the node */
  op_attr attr;
  uint32_t ct;        /* the node's cotangent, of exactly its type */
  const bool *wanted; /* by operand: does it want a cotangent? */
  uint32_t *out;      /* by operand: its cotangent, to be set; 0: none */
  bool derived;       /* is this a derivative of a derivative, or will it be differentiated itself? */
} grad_ctx;

typedef void grad_rule(grad_ctx *c);
#define GRAD(fn) grad_rule grad_##fn;
#define NO_GRAD(reason)
#define OP(klass, name, arity, dtype, shape, grad, batch, raises, body, doc) grad
#include "lang/ops.def"
#undef GRAD
#undef NO_GRAD

/* ---- building: where an operand is 0 (memory was short) so is the result, as in graph.h ------------------------------------- */

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

/* A scalar constant with the dtype (and weakness) of the node. */
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

/* Cotangent times derivative with strong zeros. Where one of them is a finite constant other than 0, a plain product gives the same. */
static inline uint32_t make_smul(grad_ctx *c, uint32_t ct, uint32_t derivative) {
  double k;
  bool plain = grad_finite_constant(c, ct, &k) || grad_finite_constant(c, derivative, &k);
  return make2(c, plain ? OP_mul : OP_smul, ct, derivative);
}

/* ---- cotangents that there are on some ways only (head of grad.c) ---------------------------------------------------------- */

/* Does the rule of an op multiply plainly, so that a cotangent of zeros does not always give zeros? */
static inline bool grad_is_plain(op_id op) { return op == OP_dot || op == OP_recurrence || op == OP_cumprod; }
/* Is the gradient of this op zero by NO_GRAD("zero: ...")? */
bool grad_ends(const graph_node *n);
/* Marks the nodes on whose operands, by floats all the way, the cotangent is multiplied plainly: the marked ones, ops whose rules do, and what
 * depends on these. */
void grad_mark_plain(const graph *g, bool *marks);
/* What says whether there is a cotangent: a bool of rank 0. */
#define GRAD_FLAG ((graph_type){.dtype = QN_bool})
uint32_t grad_flag(graph *g, bool is);

/* ---- branches and loops (grad_control.c) ------------------------------------------------------------------------------ */

struct backward; /* one differentiation (grad.c) */

/* The gradient of branch or loop `node`: `given` are the cotangents of its results (0: none), `wanted` says which operands want theirs,
 * `so_far` what captured ones have already (0: none), `out` receives these, `so_far` included, each of its operand's type (0: none). `..._there`
 * are bools of rank 0 that say whether there is such a cotangent (0: there always is); `plain` says for which operands it matters. All by number
 * of result or operand, owned by the caller. */
typedef struct control_grad {
  graph *g;
  uint32_t node;
  uint32_t *given, *given_there;
  bool *wanted, *plain;
  uint32_t *so_far, *so_far_there;
  uint32_t *out, *out_there;
  /* what the gradient of `node` reads in place of v, for which y stands behind branches right after it, or v itself; 0: memory is short */
  uint32_t (*reads)(struct backward *by, uint32_t node, uint32_t v, uint32_t y);
  struct backward *by;
  bool apart, derived; /* those of graph_rules */
  bool again;          /* is a derivative differentiated? */
} control_grad;
/* Of the operands of `node` that are `wanted`, leaves those on which a result with a cotangent depends by floats all the way: what only decides
 * how long a loop runs, or which arm, has none, not even zeros, as where the turns are nodes of the graph. *any: is one left? False: memory
 * is short. */
QN_MUST_CHECK bool grad_control_wants(const graph *g, uint32_t node, const uint32_t *given, bool *wanted, bool *any);
/* Sets results[k] to whether result k of a branch or loop depends, by floats all the way, on an operand that `operands` marks. False: memory is
 * short. */
QN_MUST_CHECK bool grad_control_varies(const graph_node *n, const bool *operands, bool *results);
/* Sets operands[k] to whether some of these results of a branch or loop depend on operand k by floats all the way (`sure`: whatever arms are taken,
 * and however many turns are made). False: memory is short. */
QN_MUST_CHECK bool grad_region_needs(const graph_node *n, const bool *results, bool sure, bool *operands);
/* Marks the nodes of a loop's body that depend on these operands in some turn. `marks` are false before. */
QN_MUST_CHECK bool grad_turns_vary(const graph_node *n, const bool *operands, bool *marks);
/* False: not differentiable, as `why` says, or memory is short. */
QN_MUST_CHECK bool grad_control(control_grad *c, op_refusal *why);
/* All floats of the arms of branch `node`, and of the branches and loops in them, become results of it. False: memory is short. */
QN_MUST_CHECK bool grad_expose(graph *g, uint32_t node);

/* Is carry k of a loop with this body a host int that goes up by one each turn? */
bool graph_counts_up(const graph *body, uint32_t k);

/* A loop that counts from one host int up to another or, as those of gradients do, down to it. */
typedef struct graph_counting {
  uint32_t from, to;    /* nodes: of the graph that the loop is in, and of the loop's header */
  int64_t by;           /* more than 0 */
  bool up, whole, left; /* whole: it counts up to `to` itself; left: it may end before that */
} graph_counting;
/* Is loop `node` such a one? */
bool graph_counts(const graph *g, uint32_t node, graph_counting *c);
/* How many turns it makes from one number to another. */
int64_t graph_counted(const graph_counting *c, int64_t from, int64_t to);
/* Is each carry of which a loop with this body makes sizes a host int to which all turns add the same number? Then a gradient can follow them. */
bool graph_sizes_count(const graph *body, uint32_t ncarries);

/* How many turns a loop makes at most, where that can be seen, as it counts from one known number to another, or has been said (graph_loop_attr).
 * INT64_MAX: neither. */
int64_t graph_most_turns(const graph *g, uint32_t node);

/* The body of a loop has come to give `added` more rows behind its result `at`: the number of turns and the stride come after all rows. */
void graph_rows_added(graph *g, uint32_t node, uint32_t at, uint32_t added);

/* What is known of the number with which a turn begins, of a carry that counts. */
typedef struct settle_ends {
  bool has_first, has_last; /* (has_last: both) */
  int64_t first, last;
} settle_ends;
/* Carries whose parts that a gradient reads are in the array at the end of the loop, too (settled.c). settle_begin looks at the turn, the graph of which the gradient
 * is to be made, and appends what such reads need; *s, in `memory`, is NULL where there is no such carry. `counts`: what each turn adds to a
 * carry, a host int, or 0. settle_end is for the graph with the gradient: the inputs of the carries for which it sets settled[k] stand for the
 * arrays at the end from then on. False: memory is short. */
typedef struct settling settling;
QN_MUST_CHECK bool settle_begin(graph *g, uint32_t ncarries, const int64_t *counts, const settle_ends *ends,
                                arena *memory, settling **s);
QN_MUST_CHECK bool settle_end(settling *s, arena *memory, bool *settled);

/* Chooses what a loop keeps of each turn for its gradient (keep.c). g is the gradient of a turn: its inputs are first the turn's `ncarries`
 * carries, nodes below `first` are those of the turn. Sets kept[v], which is false before, for the nodes below `first` that are better kept as
 * rows than made once more, and for carries whose rows are then read; of these it may say so although nobody reads them. `carries_cost`: a carry that
 * is not read needs no rows, which is better. settled[k]: carry k is there anyway, as captured values are. False: memory is short. */
QN_MUST_CHECK bool graph_keep(const graph *g, uint32_t first, uint32_t ncarries, bool carries_cost, const bool *settled,
                              bool *kept);
/* May a value be a row? It is one of an op or a region, and its sizes are known before it is there. */
bool graph_may_be_row(const graph *g, uint32_t v);
/* May a value of an arm be a result of its branch? Its sizes are known before it is there, or numbers of the turn that the branch is in. */
bool graph_may_be_result(const graph *g, uint32_t v);
/* Sets *row to the type of a row that has room for the value in all turns: sizes that are numbers of turns become the most that they are (dim_most).
 * False: that is not known, or the value cannot be a row. */
bool graph_row_type(const graph *g, uint32_t v, graph_type *row);
/* May a gradient that will be differentiated itself keep all floats of an arm or a turn? Of a loop in it, it must be seen how many turns it makes
 * at most; `counted`: or this will be known. */
bool graph_may_be_kept(const graph *g, bool counted);
/* Marks the random numbers that are drawn by nodes from `from` on as such that are made once more (ATTR_ANEW). False: memory is short. */
QN_MUST_CHECK bool graph_drawn_anew(graph *g, uint32_t from);
/* The bytes of a node's value, or of one like it in the recorded call. */
int64_t graph_row_bytes(const graph *g, uint32_t v);
/* Is an op one of the elementary functions (exp, sin, pow ...), each element of which takes many instructions, or does it draw random numbers? */
bool op_is_function(op_id op);
/* What it costs to make a node's value from its operands, in bytes that are written or read. */
int64_t graph_node_work(const graph *g, uint32_t v);

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
/* Sums a node over the axes along which a value of type `like` was broadcast to its shape; the result has the shape of `like`. */
uint32_t grad_unbroadcast(grad_ctx *c, uint32_t node, const graph_type *like);

/* Is a node a host number that was made an array, or what grad_div divides by in its place? In a call that is not captured it is a constant, unless
 * something differentiates by it. */
bool grad_is_number(const graph *g, uint32_t node);

static inline bool grad_wants(const grad_ctx *c, int i) { return c->wanted[i]; }

#endif
