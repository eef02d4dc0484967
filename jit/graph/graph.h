/* The graph IR: SSA over the primitives of lang/ops.def, with symbolic sizes, region nodes and a place on every node.
 *
 * A graph owns an arena and refers to nothing in a VM (no values, no AST), so it can be handed to a worker thread as it is.
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
  NODE_IF,    /* operands: predicate, captured values; regions[0], regions[1]; results by NODE_PROJ */
  /* operands: initial carries, captured values; regions[0] header (gives the predicate), regions[1] body (gives the carries of the next
     turn, then rows that are kept: graph_loop_carries); results: the carries at the end, the kept rows as arrays with the turns in
     front, how many turns there were, and the distance of turns whose rows were kept (both weak i64) */
  NODE_LOOP,
  NODE_PROJ, /* payload.index-th result of operand 0 */
  NODE_TAP   /* an effect that returns nothing: payload.tap names a row of the recorder's taps */
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

/* A place: a span and the site of the call it was reached through (0 at the outermost). */
typedef struct graph_site {
  span at;
  uint32_t parent;
  const char *function; /* of the enclosing function, or NULL; in the arena */
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
  bool failed;    /* out of memory while building: the graph must not be used */
};

enum { GRAPH_MAX_NODES = INT32_MAX - 1 };

static inline bool graph_type_same(const graph_type *a, const graph_type *b) {
  if (a->dtype != b->dtype || a->rank != b->rank || a->weak != b->weak) return false;
  for (int i = 0; i < a->rank; i++)
    if (a->shape[i] != b->shape[i]) return false;
  return true;
}
/* A node's attributes in full; the stored ones end after d[n - 1]. */
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
/* Do nodes of this op always have attributes? Others have them only for ATTR_PROVEN, and dot for ATTR_LIBRARY. */
static inline bool op_has_attr(op_id op) {
  if (op_rows[op].klass == CLASS_POINTWISE) return op_rows[op].dtype_rule == DT_attr;
  return op != OP_dot && op != OP_compress && op != OP_nonzero;
}
/* Is it the mark before what is made once more? */
static inline bool graph_node_anew(const graph_node *n) {
  return n->kind == NODE_OP && n->op == OP_reshape && (n->attr->flags & ATTR_ANEW);
}
/* Is entry k of an op's d a dim (else a plain integer)? */
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
/* Number of elements. */
qn_dim graph_elements(graph *g, const graph_type *t);
/* Bytes of the elements of a type whose sizes are plain numbers, as those of constants are. */
static inline size_t graph_const_bytes(const graph_type *t) {
  size_t n = dtype_size((qn_dtype)t->dtype);
  for (int i = 0; i < t->rank; i++) n *= (size_t)t->shape[i];
  return n;
}
/* Calls `visit` for each node whose result has a size that the sizes of node n speak of, in its shape and its attributes. */
void graph_each_size_node(const graph *g, uint32_t n, void (*visit)(void *ctx, uint32_t node), void *ctx);

/* An empty graph; `vm` (may be NULL) is where its memory is accounted. */
QN_MUST_CHECK graph *graph_new(qn_vm *vm);
void graph_free(graph *g);
/* A copy with its own arena, without a VM: what a worker thread gets. NULL when memory is short. */
QN_MUST_CHECK graph *graph_copy(const graph *g);
/* Drops the nodes from `n` on, which nothing names. */
void graph_cut(graph *g, uint32_t n);

/* Builders return the node's index, or 0 when memory is short (and g->failed is set). An operand 0 gives 0, so that
 * builders nest and one look at g->failed at the end is enough. Inputs may be added at any time. */
uint32_t graph_site_add(graph *g, span at, uint32_t parent, const char *function);
uint32_t graph_input(graph *g, graph_type type, uint32_t site);
uint32_t graph_const(graph *g, graph_type type, const void *data, uint32_t site); /* copies the elements */
uint32_t graph_const_scalar(graph *g, qn_dtype dtype, bool weak, double f, int64_t i, uint32_t site);
/* Appends an op with strict operands and a type that is already inferred. */
uint32_t graph_node_raw(graph *g, op_id op, const uint32_t *in, int nin, const op_attr *attr, graph_type type,
                        uint32_t site);
/* Appends an op as the language means it: promotes, fits and casts operands, infers the type. For differentiation and the
 * recorder. Operands' errors must have been excluded by the caller or by op_infer. A constant scalar that is cast or fitted
 * becomes a constant of that type where this is exact or in range. */
uint32_t graph_op(graph *g, op_id op, const uint32_t *in, int nin, const op_attr *attr, uint32_t site);
/* Appends an array of one number in every element, with the dtype and shape of `like`. */
uint32_t graph_full(graph *g, const graph_type *like, double x, uint32_t site);
/* Gives a node's attributes these flags. False when memory is short. */
bool graph_fix_flags(graph *g, uint32_t node, uint8_t flags);
/* Gives a node other attributes, which are copied. False when memory is short. */
QN_MUST_CHECK bool graph_set_attr(graph *g, uint32_t node, const op_attr *attr);
/* Says of a dot how a device's library made it (op.h). False when memory is short. */
QN_MUST_CHECK bool graph_fix_gemm(graph *g, uint32_t node, uint8_t flags);
uint32_t graph_cast(graph *g, uint32_t node, qn_dtype dtype,
                    uint32_t site); /* the node itself if it has the dtype, not weak */
bool graph_output(graph *g, uint32_t node);
static inline bool graph_kind_has_regions(uint8_t kind) { return kind == NODE_IF || kind == NODE_LOOP; }
/* Is the node's value made by running it? An input and a constant have theirs. */
static inline bool graph_is_run(const graph_node *n) { return n->kind != NODE_INPUT && n->kind != NODE_CONST; }
/* Appends a node with regions, which it takes over, also on failure. Operands and regions as graph_kind says; attr: NULL, or of a
 * loop that keeps rows graph_loop_attr. */
uint32_t graph_regions(graph *g, graph_kind kind, const uint32_t *in, int nin, graph *first, graph *second,
                       const op_attr *attr, uint32_t site);
/* A loop's body gives `carries` carries, and behind them rows. Those of every turn are kept, or with slots (a power of two) of
 * so many turns at most: when there are more, every second row goes and the distance of the turns whose rows are kept doubles. */
static inline op_attr graph_loop_attr(uint32_t carries, int64_t slots) {
  return (op_attr){.n = 2, .d = {carries, slots}};
}
static inline uint32_t graph_loop_carries(const graph_node *n) {
  return n->attr ? (uint32_t)n->attr->d[0] : n->payload.regions[1]->noutputs;
}
static inline int64_t graph_loop_slots(const graph_node *n) { return n->attr ? n->attr->d[1] : 0; }
/* How many results it has. */
static inline uint32_t graph_nresults(const graph_node *n) {
  return n->kind == NODE_LOOP ? n->payload.regions[1]->noutputs + 2 : n->payload.regions[0]->noutputs;
}
/* The type of a result, in the words of the region that makes it; a kept row's array has its rows as axis 0, whose size is left 0. */
graph_type graph_result_type(const graph_node *n, uint32_t index);
/* The result `index` of a node with regions; `type`: the same with sizes of this graph. Of kept rows that of one row: axis 0 is added, with
 * a symbol as its size. */
uint32_t graph_proj(graph *g, uint32_t node, uint32_t index, graph_type type, uint32_t site);
/* Appends a node like `n`, which may be another graph's and is no input or constant, with other operands; attributes and regions are copied. */
uint32_t graph_node_like(graph *g, const graph_node *n, const uint32_t *in);
/* Appends a copy of a node whose operands are map[..] of the old ones. Dims keep their numbers: `to` has a copy of from's
 * table. Regions are copied. Inputs are appended to `to`'s. */
uint32_t graph_node_copy(graph *to, const graph *from, uint32_t node, const uint32_t *map);
/* Appends what `from` computes of nodes args[i], which have the types of its inputs; its sizes are said in words of `to`. outs[k] becomes the
 * node of output k. Copies have no places. False when memory is short, or a size cannot be said in `to` (which is not marked as failed
 * then). */
QN_MUST_CHECK bool graph_inline(graph *to, const graph *from, const uint32_t *args, uint32_t *outs);
/* Copies dims, sites and flags into an empty graph: what graph_node_copy and a copy's sites need. */
QN_MUST_CHECK bool graph_copy_frame(graph *to, const graph *from);
/* The value of a constant of one element as a host scalar. */
bool graph_const_value(const graph *g, uint32_t node, qn_value *value);

/* Ops of host ints that are errors where the result does not fit 64 bits. (Arrays of ints wrap.) */
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

/* Can this node fail on data (the `raises` column, given its types)? Such nodes stay even when nothing reads them. A `fit` of a
 * constant cannot: whoever makes the constant has checked it. */
bool graph_regions_fallible(const graph_node *n);
/* A node's checks have been made elsewhere: it cannot fail any more (ATTR_PROVEN), nor can what is in its regions. Of all nodes:
 * graph_prove. False when memory is short. */
QN_MUST_CHECK bool graph_node_prove(graph *g, uint32_t node);
QN_MUST_CHECK bool graph_prove(graph *g);
static inline bool graph_node_fallible(const graph *g, const graph_node *n) {
  if (graph_kind_has_regions(n->kind)) return graph_regions_fallible(n);
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

/* ---- dtype and shape rules (shape.c): one implementation for eager dispatch, recorder and differentiation ---------------- */

typedef struct op_types {
  graph_type result;
  qn_dtype compute; /* strict dtype of the data operands */
  bool weak;        /* all operands are weak: computed as host scalars (compute is bool, i64 or f64) */
} op_types;

/* Why a rule refused; the caller turns it into an error with places and operands' texts. */
typedef struct op_refusal {
  int id;         /* error_id */
  char text[256]; /* the sentence */
} op_refusal;

/* What an operand is to its op, which says how it is made strict. */
typedef enum op_role {
  ROLE_DATA,      /* cast or fitted to the compute dtype */
  ROLE_AS_IS,     /* of cast and fit */
  ROLE_CONDITION, /* bool; a weak one is fitted unless the result is weak */
  ROLE_INDEX,     /* any integer dtype; a weak one is fitted to i64 */
  ROLE_KEY        /* a weak i64, or an i64 array over the result's first axes */
} op_role;
op_role op_operand_role(op_id op, int i, int nin);

/* Result type of an op. `dims` may be NULL when all sizes are plain numbers. A size that only data tells (compress, nonzero:
 * axis 0) is its upper bound here; graph_op gives the node a symbol. False fills in `why`; arguments are not changed. */
QN_MUST_CHECK bool op_infer(dim_table *dims, op_id op, const graph_type *in, int nin, const op_attr *attr,
                            op_types *out, op_refusal *why);

/* ---- passes ------------------------------------------------------------------------------------------------------------ */

/* Checks every invariant above; false fills in `why` with the node and the rule (a defect of Quern, never of a program). */
QN_MUST_CHECK bool graph_verify(const graph *g, char *why, size_t size);
/* Rows of rewrite rules, constant folding, common subexpressions, dead nodes. Keeps bits. Fallible nodes stay unless their
 * checks are proven. Returns a new graph or NULL (memory, or cancelled). */
QN_MUST_CHECK graph *graph_simplify(const graph *g, cancel_flag cancel);
/* Removes nodes that no output, tap, input or fallible node needs (in place; the others are renumbered in order). */
void graph_dce(graph *g);

/* A part of a graph whose derivative is not that of its nodes one by one. Its nodes are [first, end); nothing outside reads them
 * but the results `outs`, which are nodes of its own (0: nobody needs it).
 *   again  differentiated after its nodes have been made once more, so that nothing of the first time is kept (checkpoint)
 *   else   `rules` says what the cotangents of `args` are, nodes below `first` and all that the part may depend on (custom_grad) */
typedef struct graph_region {
  uint32_t first, end;
  uint32_t nargs, nouts;
  const uint32_t *args, *outs;
  bool again;
  void *rule; /* the owner's */
} graph_region;

/* The regions that differentiation meets, in the order of their nodes: of nested ones the inner one first. */
typedef struct graph_rules {
  const graph_region *regions;
  uint32_t n;
  void *ctx;
  /* Appends what computes the cotangents of a region's args (grads; 0: none) from those of its outs (0: none). False: refused in
   * `why`, or with why->id 0 and the error raised. */
  bool (*apply)(void *ctx, const graph_region *region, const uint32_t *cotangents, uint32_t *grads, op_refusal *why);
  /* A region was made once more as part of another one. False: memory is short. */
  bool (*add)(void *ctx, const graph_region *copy);
  uint64_t *work; /* to which is added what regions took, in steps of loops that no node pays for; NULL: nobody asks */
} graph_rules;

/* Removes dead nodes of a graph with regions. What a region's rule needs stays where its results are needed. The regions, their lists
 * included, get the nodes' new numbers; one of which nothing is left has no nodes (first and end 0). */
void graph_dce_regions(graph *g, graph_region *regions, uint32_t nregions);

/* Reverse-mode differentiation inside one graph: appends the nodes that compute, for each wrt[i], the sum over k of the cotangents
 * that it gets when root k, a float node, has the cotangent seeds[k] of its very type; writes their indices to grads[i] (0: no
 * root depends on it). Nodes with index < `from` are constants unless listed in wrt. `rules` may be NULL: no regions; those that
 * begin below `from` do not count. False: not differentiable; `why` and `*culprit` say at which node. */
QN_MUST_CHECK bool graph_vjp(graph *g, uint32_t from, const uint32_t *roots, const uint32_t *seeds, int nroots,
                             const uint32_t *wrt, int nwrt, const graph_rules *rules, uint32_t *grads,
                             uint32_t *culprit, op_refusal *why);

/* ---- text ---------------------------------------------------------------------------------------------------------------- */

void graph_print(const graph *g, text_buf *out);
/* What a node is called there: its op's name, "input", "const", "if", ... */
const char *graph_node_word(const graph_node *n);
/* The attributes of an op by name, for those who walk a graph: `each` gets a list of n numbers, or (n -1) a text, or (no text) a
 * flag that is set. */
void graph_attr_each(op_id op, const op_attr *a,
                     void (*each)(void *ctx, const char *name, const char *text, const int64_t *d, int n), void *ctx);
/* Parses what graph_print writes; NULL with a message in `why`. */
QN_MUST_CHECK graph *graph_parse(const char *text, char *why, size_t size);
/* For texts that leave their program: places stay behind, and elements of constants of at least `least` bytes stand elsewhere
 * ("const data"). */
typedef struct graph_store {
  size_t least;
  void *ctx;
  bool (*put)(void *ctx, const void *data, size_t bytes); /* printing; false: memory is short */
  const void *(*take)(void *ctx, size_t bytes); /* parsing: the same in the same order; NULL: there are not so many */
} graph_store;
void graph_print_apart(const graph *g, const graph_store *elements, text_buf *out);
QN_MUST_CHECK graph *graph_parse_apart(const char *text, const graph_store *elements, char *why, size_t size);
/* 64-bit content hash of structure, types and attributes; places and names do not count. */
uint64_t graph_hash(const graph *g);
uint64_t graph_attr_hash(const graph *g, op_id op, const op_attr *attr, uint64_t seed);

#endif
