/* The graph IR: SSA over the primitives of lang/ops.def, with symbolic sizes, region nodes and a place on every node.
 *
 * A graph owns an arena and refers to nothing in a VM (no values, no AST), so it can be handed to a compiler thread as it is.
 * Node 0 is unused; an operand is a node index smaller than the node's own. Constants of any rank sit in the graph.
 *
 * Types. Every node has a type: dtype, rank, sizes, and `weak` for host scalars (rank 0; dtype bool, i64 or f64). Nodes are
 * strict: data operands have the compute dtype already, and outside POINTWISE and RANDOM ops no operand is weak; graph_op
 * inserts `cast` and `fit`. Shapes of POINTWISE operands (and of values that are stored) broadcast without a node.
 *
 * Weak scalars and arrays. `fit` makes an array of rank 0 from a weak scalar (E207 where it is out of range). The way back is
 * `cast` with ATTR_WEAK: a weak result (bool, i64, f64) from a weak scalar or an array of rank 0. From an array it is a host
 * read inside the graph, which a plan executes as a scalar step. The gradient of `fit` and of `cast` is such a cast to the
 * operand's type, so the gradient for a weak f64 is a weak f64.
 *
 * Places. A node has a site: the span of the expression that made it and the chain of calls it was made under.
 *
 * Text form (text.c): one node a line, parses back to the identical graph. Symbols, facts and sites that exist come first.
 *   dim n = input 0 axis 0 hint 32
 *   fact n != 1
 *   site 1 = source 1 12..17 in "loss"
 *   graph(%1: f32[n, 64], %2: weak f64) {
 *     %3 = exp %1 : f32[n, 64] @1
 *     %4 = sum %3 axes=[1] keepdims : f32[n, 1]
 *     return %4
 *   }
 */
#ifndef JIT_GRAPH_GRAPH_H
#define JIT_GRAPH_GRAPH_H

#include <stdatomic.h>
#include <string.h>

#include "jit/graph/dim.h"
#include "lang/cancel.h"
#include "lang/source.h"

typedef struct graph_type {
  uint8_t dtype; /* qn_dtype */
  uint8_t rank;
  bool weak;
  qn_dim shape[ARRAY_MAX_RANK];
} graph_type;

/* What a node is: an op of the table, or one of these. */
typedef enum graph_kind {
  NODE_OP,    /* op, operands, attr */
  NODE_INPUT, /* payload.input: position among the graph's inputs */
  NODE_CONST, /* payload.data: elements, row-major; rank 0 for scalars */
  /* operands: predicate, captured values; regions[0] if it is true, regions[1] if not; results by NODE_PROJ. With attributes: a call whose
     derivative is given (graph_rule_attr) */
  NODE_IF,
  /* Operands: initial carries, captured values, which are the inputs of both regions. regions[0] is the header, whose result is the
     predicate of the next turn; regions[1] the body, whose results are the carries of the next turn (graph_loop_carries of them), then
     rows that are kept. Results: the carries at the end; for each row an array of those that were kept, with the turns as axis 0; the
     number of turns; and the distance between two kept turns (both weak i64). */
  NODE_LOOP,
  NODE_PROJ, /* payload.index-th result of operand 0 */
  /* An effect, made with the values of the operands: payload.tap is the number of a tap of the recorder's. Taps and nodes that can fail
     keep their order. It returns nothing, and its type is DTYPE_TEST; or it reads a number, of a weak type, such as a clock: then operands
     are what must be computed before. GRAPH_TAP_MADE: it is made elsewhere, and the node does nothing. */
  NODE_TAP
} graph_kind;

typedef struct graph graph;

typedef struct graph_node {
  uint8_t kind; /* graph_kind */
  uint8_t op;   /* op_id of NODE_OP */
  uint16_t nin;
  uint32_t site; /* index into graph->sites; 0 unknown */
  const uint32_t *in;
  const op_attr *attr; /* NULL when the op has none (op_has_attr); only the used part of d is stored */
  graph_type type;
  union {
    uint32_t input;
    uint32_t index;
    uint32_t tap;
    const void *data;
    graph *regions[2];
  } payload;
} graph_node;

/* A place in the program: a span, and the site of the call through which it was reached (0: not inside a call). */
typedef struct graph_site {
  span at;
  uint32_t parent;
  const char *function; /* of the enclosing function, or NULL; in the arena */
  bool whole;           /* calls of that function are seen as one (composites.h) */
} graph_site;

struct graph {
  arena arena;
  graph_node *nodes;
  uint32_t n, cap; /* nodes 1..n-1 */
  uint32_t *inputs;
  uint32_t ninputs, inputs_cap;
  uint32_t *outputs;
  uint32_t noutputs, outputs_cap;
  graph_site *sites;
  uint32_t nsites, sites_cap;
  dim_table dims;
  bool fast_math; /* simplification may use rows that change bits */
  /* of an arm: its branch is none of the program's, but says whether a way is the one that was recorded, so a result that it leaves as it was is no
   * other variable's value */
  bool tail;
  uint32_t
      derived; /* nodes below it are, among others, of a gradient that was to be differentiated itself; 0: there is none */
  int64_t
      grad_bytes; /* how many bytes of carries a loop may keep for its gradient (grad.bytes); 0: the tunable's default */
  bool failed;    /* out of memory while building: the graph must not be used */
  atomic_int sharers; /* owners beside one (graph_share) */
};

enum { GRAPH_MAX_NODES = INT32_MAX - 1 };
#define GRAPH_TAP_MADE UINT32_MAX

static inline bool graph_type_same(const graph_type *a, const graph_type *b) {
  if (a->dtype != b->dtype || a->rank != b->rank || a->weak != b->weak) return false;
  for (int i = 0; i < a->rank; i++)
    if (a->shape[i] != b->shape[i]) return false;
  return true;
}
/* A copy of a node's attributes, all zero where it has none. (Stored attributes end after d[n - 1].) */
static inline op_attr graph_attr(const graph_node *n) {
  op_attr a = {0};
  if (!n->attr) return a;
  memcpy(&a, n->attr, offsetof(op_attr, d));
  for (int i = 0; i < a.n; i++) a.d[i] = n->attr->d[i];
  return a;
}
/* A shape as the attribute of reshape and broadcast. */
static inline op_attr graph_shape_attr(int rank, const qn_dim *shape) {
  op_attr a = {.n = (uint8_t)rank};
  memcpy(a.d, shape, (size_t)rank * sizeof *shape);
  return a;
}
/* Do nodes of this op always have attributes? Other ops have them only to carry a flag: ATTR_PROVEN, or ATTR_LIBRARY of dot. */
static inline bool op_has_attr(op_id op) {
  if (op_rows[op].klass == CLASS_POINTWISE) return op_rows[op].dtype_rule == DT_attr;
  return op != OP_dot && op != OP_compress && op != OP_nonzero;
}
/* Is the node the reshape with which grad.c marks values that a copied region reads (ATTR_ANEW)? */
static inline bool graph_node_anew(const graph_node *n) {
  return n->kind == NODE_OP && n->op == OP_reshape && (n->attr->flags & ATTR_ANEW);
}
/* Does a node take a row that a loop has kept (ATTR_ROW), or is it the host number of that? */
static inline bool graph_takes_row(const graph *g, uint32_t node) {
  const graph_node *n = &g->nodes[node];
  if (n->kind == NODE_OP && n->op == OP_cast && n->type.weak) n = &g->nodes[n->in[0]];
  return n->kind == NODE_OP && n->op == OP_index && (n->attr->flags & ATTR_ROW);
}
/* Is entry k of an op's list d a size, which may be symbolic? Other entries are plain integers. */
static inline bool op_attr_is_dim(op_id op, int k) {
  switch (op) {
  case OP_slice:
  case OP_slice_put:
  case OP_pad: return k % 3 != 2;
  case OP_reshape:
  case OP_broadcast:
  case OP_iota: return true;
  default: return op_rows[op].klass == CLASS_RANDOM;
  }
}
qn_dim graph_elements(graph *g, const graph_type *t);
/* The size in bytes of an array whose type has only plain numbers as sizes, as constants have. */
static inline size_t graph_const_bytes(const graph_type *t) {
  size_t n = dtype_size((qn_dtype)t->dtype);
  for (int i = 0; i < t->rank; i++) n *= (size_t)t->shape[i];
  return n;
}
/* Is the node a check that a recording makes of a condition, which divides 1 by it? */
bool graph_is_check(const graph *g, uint32_t n);
/* Is input k of a region, as a loop's body, a number that sizes in it are made of? */
bool graph_makes_sizes(const graph *region, uint32_t k);
/* Do sizes of the graph, which is a region, or of regions in it depend on numbers of turns? */
bool graph_has_turn_sizes(const graph *g);
/* Calls `visit` for each node that a size in the shape or attributes of node n depends on: one whose result's size only data tell. */
void graph_each_size_node(const graph *g, uint32_t n, void (*visit)(void *ctx, uint32_t node), void *ctx);

/* An empty graph; `vm` (may be NULL) is where its memory is accounted. */
QN_MUST_CHECK graph *graph_new(qn_vm *vm);
void graph_free(graph *g);
/* A copy with its own arena, without a VM. NULL when memory is short. */
QN_MUST_CHECK graph *graph_copy(const graph *g);
/* As graph_copy, of a graph that is only freed afterwards: the graphs of its branches and loops are not copied, but move. */
QN_MUST_CHECK graph *graph_move(graph *g);
/* Makes another owner of a graph without a VM, who frees it, too; on any thread. Nobody changes it from now on. Returns it. */
graph *graph_share(graph *g);
/* Removes the nodes from `n` on. Nothing else may refer to them. */
void graph_cut(graph *g, uint32_t n);

/* Builders return the node's index, or 0 when memory is short (and g->failed is set). With an operand 0 they return 0, so that calls
 * nest and one test of g->failed at the end is enough. Inputs may be added at any time. */
uint32_t graph_site_add(graph *g, span at, uint32_t parent, const char *function, bool whole);
uint32_t graph_input(graph *g, graph_type type, uint32_t site);
/* Makes an op, or a result of a region, an input, the last one, whose value will be given instead. False when memory is short. */
QN_MUST_CHECK bool graph_make_input(graph *g, uint32_t node);
uint32_t graph_const(graph *g, graph_type type, const void *data, uint32_t site); /* copies the elements */
uint32_t graph_const_scalar(graph *g, qn_dtype dtype, bool weak, double f, int64_t i, uint32_t site);
/* Appends an op with strict operands and a type that is already inferred. */
uint32_t graph_node_raw(graph *g, op_id op, const uint32_t *in, int nin, const op_attr *attr, graph_type type,
                        uint32_t site);
/* Appends an op as the language means it: promotes, fits and casts operands, and infers the type. The caller has made sure, by op_infer
 * or otherwise, that the op takes these operands. A constant scalar operand that has to be cast or fitted becomes a constant of the
 * other type where that is exact or in range. */
uint32_t graph_op(graph *g, op_id op, const uint32_t *in, int nin, const op_attr *attr, uint32_t site);
/* Appends an array of one number in every element, with the dtype and shape of `like`. */
uint32_t graph_full(graph *g, const graph_type *like, double x, uint32_t site);
/* A node that is the same float value as this one (0: it is 0, too). */
uint32_t graph_alias(graph *g, uint32_t node, uint32_t site);
/* Replaces the flags of a node's attributes. False when memory is short. */
bool graph_fix_flags(graph *g, uint32_t node, uint8_t flags);
/* Operand k of a node becomes `with`, a node before it of the same type. False when memory is short. */
QN_MUST_CHECK bool graph_fix_operand(graph *g, uint32_t node, int k, uint32_t with);
/* Replaces a node's attributes by a copy of `attr`. False when memory is short. */
QN_MUST_CHECK bool graph_set_attr(graph *g, uint32_t node, const op_attr *attr);
/* Sets the flags of a dot that say how a device's library computed it (op.h). False when memory is short. */
QN_MUST_CHECK bool graph_fix_gemm(graph *g, uint32_t node, uint8_t flags);
uint32_t graph_cast(graph *g, uint32_t node, qn_dtype dtype,
                    uint32_t site); /* the node itself if it has the dtype, not weak */
bool graph_output(graph *g, uint32_t node);
static inline bool graph_kind_has_regions(uint8_t kind) { return kind == NODE_IF || kind == NODE_LOOP; }
/* Is it an op with two operands that may be exchanged? */
bool graph_commutes(const graph_node *n);
/* Must the node be run to have its value, as it is no input or constant? */
static inline bool graph_is_run(const graph_node *n) { return n->kind != NODE_INPUT && n->kind != NODE_CONST; }
/* Appends a branch or loop with operands and regions as graph_kind says. Takes the regions over, also on failure. `attr` is NULL or, of a
 * loop that keeps rows, or of which it is known how many turns it makes at most, graph_loop_attr. */
uint32_t graph_regions(graph *g, graph_kind kind, const uint32_t *in, int nin, graph *first, graph *second,
                       const op_attr *attr, uint32_t site);
/* The attributes of a loop whose body gives `carries` carries and then rows. With slots 0 the rows of every turn are kept. Otherwise rows
 * of at most `slots` turns are (a power of two): when there are more turns, every second row is dropped and the distance between kept
 * turns doubles. The loop never makes more than `most` turns; INT64_MAX: nobody has said how many it may make. */
static inline op_attr graph_loop_attr(uint32_t carries, int64_t slots, int64_t most) {
  return (op_attr){.n = most == INT64_MAX ? 2 : 3, .d = {carries, slots, most}};
}
static inline uint32_t graph_loop_carries(const graph_node *n) {
  return n->attr ? (uint32_t)n->attr->d[0] : n->payload.regions[1]->noutputs;
}
static inline int64_t graph_loop_slots(const graph_node *n) { return n->attr ? n->attr->d[1] : 0; }
static inline int64_t graph_loop_most(const graph_node *n) {
  return n->attr && n->attr->n > 2 ? n->attr->d[2] : INT64_MAX;
}
/* A call whose derivative the program gives (custom_grad) is a branch whose predicate is the constant true, with these attributes. It captures the
 * call's `made` results as they have been computed, a stand-in for the cotangent of each, `by` float arguments, and what else its derivative reads.
 * The first arm passes the results on; the second, which is never run, makes of their cotangents those of the arguments, which are its results behind
 * the first `made`. (The first arm gives zeros there or, where there is no cotangent, passes the argument on.) */
static inline op_attr graph_rule_attr(uint32_t made, uint32_t by) { return (op_attr){.n = 2, .d = {made, by}}; }
static inline bool graph_is_rule(const graph_node *n) { return n->kind == NODE_IF && n->attr; }
static inline uint32_t graph_rule_made(const graph_node *n) { return (uint32_t)n->attr->d[0]; }
static inline uint32_t graph_rule_by(const graph_node *n) { return (uint32_t)n->attr->d[1]; }
/* Does the derivative give a cotangent of argument j? */
static inline bool graph_rule_gives(const graph_node *n, uint32_t j) {
  const graph *passes = n->payload.regions[0];
  uint32_t made = graph_rule_made(n);
  return passes->outputs[made + j] != passes->inputs[2 * made + j];
}
/* The number of results of a branch or loop. */
static inline uint32_t graph_nresults(const graph_node *n) {
  return n->kind == NODE_LOOP ? n->payload.regions[1]->noutputs + 2 : n->payload.regions[0]->noutputs;
}
/* The type of a result, with the symbols of the region that makes it. The array of a kept row has the rows as axis 0, whose size is
 * given as 0. */
graph_type graph_result_type(const graph_node *n, uint32_t index);
/* Appends a node that takes result `index` of a branch or loop. `type` is the result's, with sizes of this graph; for kept rows it is the
 * type of one row, to which an axis 0 is added whose size is a new symbol. */
uint32_t graph_proj(graph *g, uint32_t node, uint32_t index, graph_type type, uint32_t site);
/* Appends an effect, which is made with the values of these nodes; or which `reads` a float when they are computed. */
uint32_t graph_tap(graph *g, uint32_t number, const uint32_t *in, int nin, bool reads, uint32_t site);
/* Are there taps among the nodes from this one on, or in their regions? */
bool graph_has_taps(const graph *g, uint32_t from);
/* Appends a node that takes the result which n took, a node that has been removed from this graph. */
uint32_t graph_proj_again(graph *g, const graph_node *n);
/* Appends a copy of n with other operands; attributes and regions are copied. n may lie in another graph and is no input or constant. */
uint32_t graph_node_like(graph *g, const graph_node *n, const uint32_t *in);
/* Appends to `to` a copy of a node of `from`; operand i becomes map[i]. Sizes keep their numbers, since `to` has a copy of the table of
 * dims (graph_copy_frame). Regions are copied; an input becomes the next input of `to`. */
uint32_t graph_node_copy(graph *to, const graph *from, uint32_t node, const uint32_t *map);
/* Appends copies of the nodes of `from` to `to`, with nodes args[i] of `to` in place of its inputs, whose types they have. Its sizes are
 * expressed by those of `to`. Sets outs[k] to the node of output k. Copies have site 0, or with `sites` copies of their sites. False when memory is short, or a size cannot
 * be expressed in `to` (whose `failed` is not set then). */
QN_MUST_CHECK bool graph_inline(graph *to, const graph *from, const uint32_t *args, uint32_t *outs, bool sites);
/* Copies dims, sites and flags into an empty graph, as graph_node_copy needs them. */
QN_MUST_CHECK bool graph_copy_frame(graph *to, const graph *from);
/* Sets *value if the node is a constant of one element; false otherwise. */
bool graph_const_value(const graph *g, uint32_t node, qn_value *value);

/* Is the node an op of host ints that raises an error where its result does not fit 64 bits? (Arrays of ints wrap.) */
static inline bool host_ints_fail(const graph_node *n) {
  if (!n->type.weak || n->type.dtype != WEAK_INT) return false;
  switch ((op_id)n->op) {
  case OP_add:
  case OP_sub:
  case OP_mul:
  case OP_smul:
  case OP_neg:
  case OP_abs: return true;
  default: return false;
  }
}

/* Can this node raise an error that depends on data (by the `raises` column and its types), or is it an effect? Such nodes stay even when
 * nothing reads them, and keep their order. A `fit` of a constant cannot fail, since whoever made the constant has checked it. */
bool graph_regions_fallible(const graph_node *n);
/* Marks a node, and all nodes in its regions, as unable to fail (ATTR_PROVEN), because the checks are made elsewhere, as are its effects
 * (GRAPH_TAP_MADE). graph_prove marks all nodes of a graph. False when memory is short. */
QN_MUST_CHECK bool graph_node_prove(graph *g, uint32_t node);
QN_MUST_CHECK bool graph_prove(graph *g);
static inline bool graph_node_fallible(const graph *g, const graph_node *n) {
  if (graph_kind_has_regions(n->kind)) return graph_regions_fallible(n);
  if (n->kind == NODE_TAP) return n->payload.tap != GRAPH_TAP_MADE;
  if (n->kind != NODE_OP || n->nin == 0 || (n->attr && (n->attr->flags & ATTR_PROVEN))) return false;
  const graph_node *x = &g->nodes[n->in[0]];
  switch ((op_raises)op_rows[n->op].raises) {
  case RAISES_never: return host_ints_fail(n);
  case RAISES_empty: return false;
  case RAISES_int_div:
  case RAISES_int_pow: return !dtype_is_float((qn_dtype)x->type.dtype);
  case RAISES_shift:
  case RAISES_bounds: return true;
  case RAISES_to_int: return dtype_is_float((qn_dtype)x->type.dtype) && dtype_is_int((qn_dtype)n->type.dtype);
  case RAISES_weak_range: return x->kind != NODE_CONST && n->type.dtype != x->type.dtype && n->type.dtype != WEAK_FLOAT;
  }
  return false;
}

static inline bool graph_fallible(const graph *g, uint32_t node) { return graph_node_fallible(g, &g->nodes[node]); }

/* Orders the nodes of a turn anew: what reads an array comes before what stores into it, where that can be (order.c). False when memory is short. */
QN_MUST_CHECK bool graph_readers_first(graph *g);

/* ---- dtype and shape rules (shape.c): one implementation for eager dispatch, recorder and differentiation ---------------- */

typedef struct op_types {
  graph_type result;
  qn_dtype compute; /* the dtype that all data operands must have */
  bool weak;        /* all operands are host numbers, and so is the result (compute is bool, i64 or f64) */
} op_types;

/* Why something was refused. The caller makes an error of it and adds the place and the texts of operands. */
typedef struct op_refusal {
  int id;         /* error_id */
  bool of_turns;  /* sizes are in the way that are numbers of a loop's turns */
  char text[256]; /* the sentence */
} op_refusal;

/* What an operand is to its op; this decides how graph_op makes it strict. */
typedef enum op_role {
  ROLE_DATA,      /* cast or fitted to the compute dtype */
  ROLE_AS_IS,     /* taken as it is: the operand of cast and fit */
  ROLE_CONDITION, /* bool; a host bool is fitted unless the result is a host number */
  ROLE_INDEX,     /* any integer dtype; a host int is fitted to i64 */
  ROLE_KEY        /* a weak i64, or an i64 array over the result's first axes */
} op_role;
op_role op_operand_role(op_id op, int i, int nin);
/* The operator that stands for an op between its two operands, as "+" and "=="; NULL if none does. */
const char *op_operator(op_id op);

/* Infers the types of an op. `dims` may be NULL when all sizes are plain numbers. A size that only data tell (axis 0 of compress and
 * nonzero) is given as its upper bound; graph_op makes it a symbol. False with `why` if the op does not take such operands. */
QN_MUST_CHECK bool op_infer(dim_table *dims, op_id op, const graph_type *in, int nin, const op_attr *attr,
                            op_types *out, op_refusal *why);
/* graph_op for an op whose types have been inferred from those of its operands. */
uint32_t graph_op_typed(graph *g, op_id op, const uint32_t *in, int nin, const op_attr *attr, const op_types *t,
                        uint32_t site);

/* ---- passes ------------------------------------------------------------------------------------------------------------ */

/* Checks every invariant above. False: `why` names the node and the rule that it breaks (a defect of Quern, never of a program). */
QN_MUST_CHECK bool graph_verify(const graph *g, char *why, size_t size);
/* Returns a new graph that computes the same bits with less work: rewrite rules, constant folding, common subexpressions, no dead nodes.
 * Nodes that may fail stay unless they are proven not to. NULL when memory is short, or cancelled. */
QN_MUST_CHECK graph *graph_simplify(const graph *g, cancel_flag cancel);
/* Removes the nodes that no output, tap, input or fallible node needs. The others are renumbered in order, in place. */
void graph_dce(graph *g);

/* A part of a graph that is differentiated as a whole: the nodes [first, end). Of these, nodes outside read only the results `outs`
 * (0: a result that nobody needs).
 *   again  the gradient computes the nodes once more, so that none of their values is kept for it (checkpoint)
 *   else   graph_rules.apply makes the gradient (custom_grad). The part depends only on the nodes `args`, which lie below `first` */
typedef struct graph_region {
  uint32_t first, end;
  uint32_t nargs, nouts;
  const uint32_t *args, *outs;
  bool again;
  void *rule; /* for the owner's use */
} graph_region;

/* The regions of a graph by ascending end, so that of nested ones the inner one comes first, and what their owner does for them. */
typedef struct graph_rules {
  const graph_region *regions;
  uint32_t n;
  void *ctx;
  /* Appends nodes that compute the cotangents of a region's args from those of its outs (0: none), and sets `grads` to them (0: none).
   * False: refused with `why`, or an error has been raised and why->id is 0. */
  bool (*apply)(void *ctx, const graph_region *region, const uint32_t *cotangents, uint32_t *grads, op_refusal *why);
  /* Told of a copy of a region, made because a region around it is computed once more. False: memory is short. */
  bool (*add)(void *ctx, const graph_region *copy);
  /* Each node gets a cotangent of its own, also where a rule passes on that of its user. So in the transpose of what is appended, which computes
   * tangents, contributions meet at the node that they belong to, and their sums have the order of its rule, whatever else the graph holds. */
  bool apart;
  /* What is appended will be differentiated, too. So what a loop's gradient reads of a turn comes from rows that the loop keeps, and is not made once
   * more: the cotangents of a value that is made twice would be summed apart, in another order than if the turns were nodes of the graph. */
  bool derived;
  bool
      again; /* what is differentiated is part of something that has derivatives in it (graph_vjp finds those in the graph at hand itself) */
  uint64_t *work; /* NULL, or a count to which steps of loops over regions are added (tests look at it) */
} graph_rules;

/* graph_dce for a graph with regions. A region whose results are needed keeps all of its nodes and args. The regions and their lists are
 * renumbered; a region that was removed has first and end 0. */
void graph_dce_regions(graph *g, graph_region *regions, uint32_t nregions);

/* Reverse-mode differentiation inside one graph. Root k is a float node whose cotangent is seeds[k], of exactly its type (0: the number
 * 1). Appends nodes that compute the resulting cotangents of wrt[i], and sets grads[i] to them (0: no root depends on wrt[i]). Nodes
 * below `from` are constants unless listed in wrt. `rules`: the regions, or NULL; those that begin below `from` are ignored. False: not
 * differentiable, as `why` says of node `*culprit`, or memory is short. */
QN_MUST_CHECK bool graph_vjp(graph *g, uint32_t from, const uint32_t *roots, const uint32_t *seeds, int nroots,
                             const uint32_t *wrt, int nwrt, const graph_rules *rules, uint32_t *grads,
                             uint32_t *culprit, op_refusal *why);
/* Which cotangents there are on some ways through branches and loops only (head of grad.c): bools of rank 0 that say whether there is one, where it
 * is zeros if not. 0: there always is. */
typedef struct graph_presence {
  const uint32_t *seeds, *onto; /* by root, by wrt: of those that are given */
  const bool *plain;            /* by wrt: does it matter outside of these nodes? */
  uint32_t *grads;              /* by wrt: of those that are made, where it matters; set by graph_vjp_onto */
  const bool *
      rows; /* by wrt, or NULL: do its rows (ATTR_ROW) have cotangents already? Then each use adds to that of the row */
} graph_presence;
/* As graph_vjp; onto[i] is a cotangent that wrt[i] has already, from users outside of these nodes (0: none). What they contribute is added to
 * it, one after the other, and grads[i] is the sum. `there` may be NULL: what is given is there, and nothing matters outside. */
QN_MUST_CHECK bool graph_vjp_onto(graph *g, uint32_t from, const uint32_t *roots, const uint32_t *seeds, int nroots,
                                  const uint32_t *wrt, const uint32_t *onto, int nwrt, const graph_rules *rules,
                                  const graph_presence *there, uint32_t *grads, uint32_t *culprit, op_refusal *why);

/* ---- text ---------------------------------------------------------------------------------------------------------------- */

void graph_print(const graph *g, text_buf *out);
/* A node's word in texts: its op's name, "input", "const", "if", ... */
const char *graph_node_word(const graph_node *n);
/* Calls `each` for every attribute of an op, by name: with a list of n numbers; with n = -1 and a text; or, for a flag that is set, with
 * n = -1 and no text. */
void graph_attr_each(op_id op, const op_attr *a,
                     void (*each)(void *ctx, const char *name, const char *text, const int64_t *d, int n), void *ctx);
/* Parses a text that graph_print wrote. NULL with a message in `why`. */
QN_MUST_CHECK graph *graph_parse(const char *text, char *why, size_t size);
/* How texts are written that leave their program, as exported functions do: without places (of sites the calls that stay visible remain), and with the elements of constants of at
 * least `least` bytes outside the text ("const data"). */
typedef struct graph_store {
  size_t least;
  void *ctx;
  bool (*put)(void *ctx, const void *data, size_t bytes); /* receives a constant's elements; false: no memory */
  const void *(*take)(void *ctx, size_t bytes); /* gives them back in the order of put; NULL: there are no more */
} graph_store;
void graph_print_apart(const graph *g, const graph_store *elements, text_buf *out);
QN_MUST_CHECK graph *graph_parse_apart(const char *text, const graph_store *elements, char *why, size_t size);
/* 64-bit content hash of structure, types and attributes; places and names do not count. */
uint64_t graph_hash(const graph *g);
uint64_t graph_attr_hash(const graph *g, op_id op, const op_attr *attr, uint64_t seed);

#endif
