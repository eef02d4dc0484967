/* Batching of graphs (batch.h): the walk over a lane's nodes, and the rule of each op.
 *
 * A rule receives a node of the lane and returns the node for all lanes, of type [lanes, the lane's shape]. At least one operand of
 * the node differs from lane to lane (or the node draws random numbers, which always differ). Such an operand has a counterpart for
 * all lanes, an array [lanes, its shape]; other operands are the same nodes for all lanes. The table of rules is made from the list in
 * lang/op.h, so code with a rule missing does not compile.
 *
 * Alignment. Operands of a lane broadcast from the last axis. With the lanes in front, an operand that differs and has fewer axes
 * than the result gets axes of 1 between the lanes and its own; one that all lanes share broadcasts as it is.
 *
 * Bits. The order of a reduction depends on its axis and that axis' length alone, so rules may move the axis of the lanes anywhere
 * but onto a reduced one. A scatter stores in row-major order; with the lanes first, each lane keeps its own order.
 *
 * Batches inside this one. A node that depends on a tracer of an inner batch has no counterpart here: the inner batch marks its nodes
 * BATCH_INNER in the outer one whenever the outer one advances, and when the inner one ends. Nodes that a batch appends itself belong
 * to no lane, so `done` of it and of the batches inside it is moved beyond them (a draw has no operand that would show it).
 */
#include "jit/graph/batch.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lang/error.h"

typedef struct batching {
  graph_batch *b;
  graph *g;
  uint32_t site;
  op_id op;
  int nin;
  const uint32_t *in; /* operands of the lane's node */
  graph_type type;    /* of the lane's node */
  op_attr attr;
  op_refusal *why;
} batching;

typedef uint32_t batch_rule(batching *c);
#define RULE(name) static batch_rule batch_##name;
BATCH_RULES(RULE)
#undef RULE
static batch_rule *const rules[] = {
#define RULE(name) [BATCH_##name] = batch_##name,
    BATCH_RULES(RULE)
#undef RULE
};

#ifdef QN_CHECKED
enum { CHECKED_NODES = 500 }; /* larger graphs are not verified after every step, which would take quadratic time */
#endif

/* ---- refusals -------------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static uint32_t refuse(batching *c, int id, const char *format, ...) {
  va_list args;
  va_start(args, format);
  c->why->id = id;
  vsnprintf(c->why->text, sizeof c->why->text, format, args);
  va_end(args);
  return 0;
}

static uint32_t refuse_rank(batching *c, int rank) {
  return refuse(c, E_rank,
                "vmap: with the axis of the lanes %s would need an array of %d axes; at most %d are possible",
                op_rows[c->op].name, rank, ARRAY_MAX_RANK);
}

/* ---- building ---------------------------------------------------------------------------------------------------------- */

/* Appends an op. Returns 0 where an operand is 0, memory is short, or op_infer refuses (then c->why says why). */
static uint32_t make(batching *c, op_id op, const uint32_t *in, int nin, const op_attr *attr) {
  graph_type few[8], *types = few;
  for (int i = 0; i < nin; i++)
    if (!in[i]) return 0;
  if (nin > 8 && !(types = arena_alloc(&c->b->memory, (size_t)nin * sizeof *types))) {
    c->g->failed = true;
    return 0;
  }
  for (int i = 0; i < nin; i++) types[i] = c->g->nodes[in[i]].type;
  op_types t;
  return op_infer(&c->g->dims, op, types, nin, attr, &t, c->why) ? graph_op(c->g, op, in, nin, attr, c->site) : 0;
}

static uint32_t make1(batching *c, op_id op, uint32_t x, const op_attr *attr) { return make(c, op, &x, 1, attr); }

static uint32_t make2(batching *c, op_id op, uint32_t x, uint32_t y, const op_attr *attr) {
  const uint32_t in[] = {x, y};
  return make(c, op, in, 2, attr);
}

/* Reshapes or broadcasts (`op`) a node to a shape, unless it has that already. */
static uint32_t shaped(batching *c, op_id op, uint32_t node, int rank, const qn_dim *shape) {
  if (!node) return 0;
  if (rank > ARRAY_MAX_RANK) return refuse_rank(c, rank);
  graph_type t = c->g->nodes[node].type;
  if (!t.weak && t.rank == rank && memcmp(t.shape, shape, (size_t)rank * sizeof *shape) == 0) return node;
  op_attr attr = graph_shape_attr(rank, shape);
  return make1(c, op, node, &attr);
}

/* Permutes an array: its axis `from` becomes axis `to`, the others keep their order. */
static uint32_t moved(batching *c, uint32_t node, int from, int to) {
  if (!node || from == to) return node;
  op_attr attr = {.n = c->g->nodes[node].type.rank};
  for (int i = 0, k = 0; i < attr.n; i++) {
    if (k == from) k++;
    attr.d[i] = i == to ? from : k++;
  }
  return make1(c, OP_permute, node, &attr);
}

static const graph_type *lane_type(const batching *c, int k) { return &c->g->nodes[c->in[k]].type; }

/* The node that holds operand k for all lanes; 0 where the operand is the same in every lane. */
static uint32_t whole(const batching *c, int k) {
  uint32_t w = c->in[k] < c->b->cap ? c->b->whole[c->in[k]] : 0;
  return w & BATCH_SHARED ? 0 : w;
}

static uint32_t operand(const batching *c, int k) {
  uint32_t w = whole(c, k);
  return w ? w : c->in[k];
}

/* Operand k for an op whose lane's result has `rank` axes: the counterpart gets axes of size 1 behind the lanes' axis, so that its
 * other axes are aligned from the right. An operand that all lanes share needs none. */
static uint32_t aligned(batching *c, int k, int rank) {
  uint32_t w = whole(c, k);
  graph_type t = *lane_type(c, k);
  if (!w || t.rank >= rank) return operand(c, k);
  if (rank + 1 > ARRAY_MAX_RANK) return refuse_rank(c, rank + 1);
  qn_dim shape[ARRAY_MAX_RANK + 1] = {c->b->lanes};
  for (int i = 0; i < rank; i++) shape[1 + i] = i < rank - t.rank ? 1 : t.shape[i - (rank - t.rank)];
  return shaped(c, OP_reshape, w, rank + 1, shape);
}

/* Broadcasts a node that all lanes share to [lanes, its shape]. */
static uint32_t repeated(batching *c, uint32_t node) {
  if (!node) return 0;
  graph_type t = c->g->nodes[node].type;
  qn_dim shape[ARRAY_MAX_RANK + 1] = {c->b->lanes};
  memcpy(shape + 1, t.shape, t.rank * sizeof *shape);
  return shaped(c, OP_broadcast, node, t.rank + 1, shape);
}

/* Operand k as an array [lanes, its shape], whether it differs from lane to lane or not. */
static uint32_t expanded(batching *c, int k) {
  uint32_t w = whole(c, k);
  return w ? w : repeated(c, c->in[k]);
}

/* The array 0, 1, .. lanes - 1 of shape [lanes, 1, ..] with `rank` axes of 1: an index operand that selects each lane's own row. */
static uint32_t lane_number(batching *c, int rank) {
  if (rank + 1 > ARRAY_MAX_RANK) return refuse_rank(c, rank + 1);
  op_attr attr = {.dtype = DTYPE_INDEX, .axes = 1, .n = (uint8_t)(rank + 1), .d = {c->b->lanes}};
  for (int i = 0; i < rank; i++) attr.d[1 + i] = 1;
  return make(c, OP_iota, NULL, 0, &attr);
}

/* ---- rules: elements, axes, views ---------------------------------------------------------------------------------------------- */

/* POINTWISE ops. A host float that differs from lane to lane is an f64 array here, a host int an i64 array (and a comparison of such numbers a bool
 * array), so what converts between host numbers and arrays in a lane becomes a plain cast. */
static uint32_t batch_elementwise(batching *c) {
  uint32_t in[3] = {0};
  bool read = c->op == OP_cast && (c->attr.flags & ATTR_WEAK) && !lane_type(c, 0)->weak;
  if (read && dtype_is_bool(c->type.dtype) && !c->b->region)
    return refuse(c, E_not_batched, "vmap: a host bool cannot differ from lane to lane; keep it in an array");
  for (int k = 0; k < c->nin; k++) in[k] = aligned(c, k, c->type.rank);
  if (c->op != OP_cast && c->op != OP_fit) return make(c, c->op, in, c->nin, &c->attr);
  if (!in[0]) return 0;
  if (c->g->nodes[in[0]].type.dtype == c->attr.dtype) return in[0];
  c->attr.flags &= (uint8_t)~ATTR_WEAK;
  return make(c, OP_cast, in, 1, &c->attr);
}

static uint32_t batch_axes(batching *c) {
  if (c->type.rank + 1 > ARRAY_MAX_RANK || lane_type(c, 0)->rank + 1 > ARRAY_MAX_RANK)
    return refuse_rank(c, ARRAY_MAX_RANK + 1);
  c->attr.axes = (uint8_t)(c->attr.axes << 1);
  return make1(c, c->op, whole(c, 0), &c->attr);
}

/* concat (x ..), gather (x, i), gather_add (x, i, v): all operands need the axis of the lanes, but v, which broadcasts. */
static uint32_t batch_axes_of_all(batching *c) {
  uint32_t few[4], *in = few;
  if (c->nin > 4 && !(in = arena_alloc(&c->b->memory, (size_t)c->nin * sizeof *in))) {
    c->g->failed = true;
    return 0;
  }
  int rank = lane_type(c, 0)->rank;
  if (rank + 1 > ARRAY_MAX_RANK) return refuse_rank(c, rank + 1);
  for (int k = 0; k < c->nin; k++) {
    in[k] = c->op == OP_gather_add && k == 2 ? aligned(c, k, rank) : expanded(c, k);
    if (!in[k]) return 0;
  }
  c->attr.axes = (uint8_t)(c->attr.axes << 1);
  return make(c, c->op, in, c->nin, &c->attr);
}

/* Puts the entry for the axis of the lanes in front of a list attribute with `width` numbers for each axis. */
static void give_entry(batching *c, int width, const qn_dim *entry) {
  memmove(c->attr.d + width, c->attr.d, c->attr.n * sizeof *c->attr.d);
  memcpy(c->attr.d, entry, (size_t)width * sizeof *entry);
  c->attr.n = (uint8_t)(c->attr.n + width);
}

static uint32_t batch_per_axis(batching *c) {
  const qn_dim all[3] = {0, c->b->lanes, 1};
  int rank = lane_type(c, 0)->rank;
  if (c->type.rank + 1 > ARRAY_MAX_RANK || rank + 1 > ARRAY_MAX_RANK) return refuse_rank(c, ARRAY_MAX_RANK + 1);
  switch (c->op) {
  case OP_slice: give_entry(c, 3, all); break;
  case OP_slice_put: give_entry(c, 3, all); return make2(c, c->op, expanded(c, 0), aligned(c, 1, rank), &c->attr);
  case OP_permute:
    for (int i = 0; i < c->attr.n; i++) c->attr.d[i]++;
    give_entry(c, 1, (const qn_dim[]){0});
    break;
  case OP_broadcast: give_entry(c, 1, &c->b->lanes); return make1(c, c->op, aligned(c, 0, c->type.rank), &c->attr);
  default: give_entry(c, 1, &c->b->lanes); /* reshape */
  }
  return make1(c, c->op, whole(c, 0), &c->attr);
}

static uint32_t batch_pad(batching *c) {
  graph_type x = *lane_type(c, 0);
  op_attr lane = c->attr;
  const qn_dim none[3] = {0};
  if (x.rank + 1 > ARRAY_MAX_RANK) return refuse_rank(c, x.rank + 1);
  uint32_t number = c->in[1];
  if (whole(c, 1)) number = graph_const_scalar(c->g, (qn_dtype)x.dtype, false, 0, 0, c->site);
  if (whole(c, 0)) give_entry(c, 3, none);
  uint32_t padded = make2(c, OP_pad, operand(c, 0), number, &c->attr);
  if (!whole(c, 1)) return padded;
  uint32_t off = graph_const_scalar(c->g, DTYPE_TEST, false, 0, 0, c->site),
           on = graph_const_scalar(c->g, DTYPE_TEST, false, 1, 1, c->site);
  uint32_t added = make2(c, OP_pad, shaped(c, OP_broadcast, off, x.rank, x.shape), on, &lane);
  const uint32_t in[] = {added, aligned(c, 1, c->type.rank), padded};
  return make(c, OP_where, in, 3, NULL);
}

/* ---- rules: indexing ----------------------------------------------------------------------------------------------------------------- */

/* The rank to which the k index operands of a lane's node (operands 1..k) broadcast. */
static int index_rank(const batching *c, int k) {
  int rank = 0;
  for (int i = 1; i <= k; i++)
    if (lane_type(c, i)->rank > rank) rank = lane_type(c, i)->rank;
  return rank;
}

static bool any_whole(const batching *c, int from, int to) {
  for (int i = from; i < to; i++)
    if (whole(c, i)) return true;
  return false;
}

/* Sets in[0..k) to the index operands for all lanes, aligned with each other. */
static bool indices(batching *c, int k, uint32_t *in) {
  int rank = index_rank(c, k);
  for (int i = 0; i < k; i++) {
    in[i] = aligned(c, 1 + i, rank);
    if (!in[i]) return false;
  }
  return true;
}

/* Where only x differs from lane to lane, the axis of the lanes is moved behind the indexed axes and the result's back to the front.
 * Where indices differ, the number of the lane becomes an additional first index if x differs, too. */
static uint32_t batch_index(batching *c) {
  int k = c->nin - 1, rank = index_rank(c, k);
  uint32_t in[ARRAY_MAX_RANK + 2] = {whole(c, 0)};
  if (c->type.rank + 1 > ARRAY_MAX_RANK || lane_type(c, 0)->rank + 1 > ARRAY_MAX_RANK)
    return refuse_rank(c, ARRAY_MAX_RANK + 1);
  if (!any_whole(c, 1, c->nin)) {
    in[0] = moved(c, in[0], 0, k);
    memcpy(in + 1, c->in + 1, (size_t)k * sizeof *in);
    return moved(c, make(c, OP_index, in, 1 + k, &c->attr), rank, 0);
  }
  if (!in[0]) {
    in[0] = c->in[0];
    return indices(c, k, in + 1) ? make(c, OP_index, in, 1 + k, &c->attr) : 0;
  }
  c->attr.d[0] = k + 1;
  in[1] = lane_number(c, rank);
  return indices(c, k, in + 2) ? make(c, OP_index, in, 2 + k, &c->attr) : 0;
}

static uint32_t batch_scatter(batching *c) {
  int k = c->nin - 2, rank = index_rank(c, k), of_x = lane_type(c, 0)->rank;
  uint32_t in[ARRAY_MAX_RANK + 3];
  if (of_x + 1 > ARRAY_MAX_RANK || rank + of_x - k + 1 > ARRAY_MAX_RANK) return refuse_rank(c, ARRAY_MAX_RANK + 1);
  c->attr.d[0] = k + 1;
  in[0] = expanded(c, 0);
  in[1] = lane_number(c, rank);
  if (!indices(c, k, in + 2)) return 0;
  in[2 + k] = aligned(c, 1 + k, rank + of_x - k);
  return make(c, OP_scatter, in, 3 + k, &c->attr);
}

/* ---- rules: products, draws, refusals -------------------------------------------------------------------------------------------------- */

static uint32_t transposed(batching *c, uint32_t matrix) { return moved(c, matrix, 1, 0); }

/* Operand k of a product as [lanes, 1 .., its batch axes, rows, columns], with `batch` axes between lanes and rows: a vector becomes a
 * matrix of one row as operand 0, of one column as operand 1. */
static uint32_t as_batch(batching *c, int k, int batch) {
  graph_type t = *lane_type(c, k);
  if (!whole(c, k)) return c->in[k];
  qn_dim shape[ARRAY_MAX_RANK + 3] = {c->b->lanes};
  int own = t.rank > 1 ? t.rank - 2 : 0, at = 1;
  if (batch + 3 > ARRAY_MAX_RANK) return refuse_rank(c, batch + 3);
  for (int i = own; i < batch; i++) shape[at++] = 1;
  if (t.rank == 1 && k == 0) shape[at++] = 1;
  for (int i = 0; i < t.rank; i++) shape[at++] = t.shape[i];
  if (t.rank == 1 && k == 1) shape[at++] = 1;
  return shaped(c, OP_reshape, whole(c, k), at, shape);
}

/* Where all lanes share one operand and that has no batch axes, the lanes become rows of one product of matrices. This holds for w @ x
 * with vectors x, too: it is the matrix of rows x times the transpose of w, since each step of a sum multiplies the same two numbers. (Of two
 * vectors there is no dot, dot_is_sum.) */
static uint32_t batch_dot(batching *c) {
  const graph_type x = *lane_type(c, 0), y = *lane_type(c, 1);
  bool of_x = whole(c, 0) != 0, of_y = whole(c, 1) != 0;
  if (c->type.rank + 1 > ARRAY_MAX_RANK) return refuse_rank(c, c->type.rank + 1);
  if (!of_y && y.rank <= 2) return make2(c, OP_dot, whole(c, 0), c->in[1], NULL);
  if (!of_x && y.rank == 1 && x.rank == 2) return make2(c, OP_dot, whole(c, 1), transposed(c, c->in[0]), NULL);
  int bx = x.rank > 1 ? x.rank - 2 : 0, by = y.rank > 1 ? y.rank - 2 : 0, batch = bx > by ? bx : by;
  uint32_t out = make2(c, OP_dot, as_batch(c, 0, batch), as_batch(c, 1, batch), NULL);
  qn_dim shape[ARRAY_MAX_RANK + 1] = {c->b->lanes};
  memcpy(shape + 1, c->type.shape, c->type.rank * sizeof *shape);
  return shaped(c, OP_reshape, out, c->type.rank + 1, shape);
}

/* Without keys that differ, one draw makes the numbers of all lanes. With such keys the axes of the keys come first in the result,
 * and each key draws the remaining axes. */
static uint32_t batch_draw(batching *c) {
  uint32_t in[3];
  int rank = 0;
  if (c->type.rank + 1 > ARRAY_MAX_RANK) return refuse_rank(c, c->type.rank + 1);
  for (int k = 0; k < 3; k++)
    if (lane_type(c, k)->rank > rank) rank = lane_type(c, k)->rank;
  for (int k = 0; k < 3; k++) in[k] = aligned(c, k, rank);
  give_entry(c, 1, &c->b->lanes);
  return make(c, c->op, in, 3, &c->attr);
}

static uint32_t batch_shared(batching *c) {
  return refuse(c, E_internal, "%s differs from lane to lane", op_rows[c->op].name);
}

/* compress (x, mask) where only x differs from lane to lane: the axis of the lanes is moved behind those of the mask. The number of
 * true elements is the same in all lanes, so the result keeps the lane's symbol for it. */
static uint32_t batch_mask(batching *c) {
  if (c->op == OP_nonzero)
    return refuse(c, E_not_batched, "vmap: %s would give another number of elements in each lane", op_rows[c->op].name);
  if (whole(c, 1))
    return refuse(c, E_not_batched,
                  "vmap: x[mask] would have another size in each lane; use where(mask, x, 0), which keeps the size");
  if (lane_type(c, 0)->rank + 1 > ARRAY_MAX_RANK) return refuse_rank(c, lane_type(c, 0)->rank + 1);
  uint32_t in[] = {moved(c, whole(c, 0), 0, lane_type(c, 1)->rank), c->in[1]};
  if (!in[0]) return 0;
  graph_type t = c->type;
  memmove(t.shape + 2, t.shape + 1, (size_t)(t.rank - 1) * sizeof *t.shape);
  t.shape[1] = c->b->lanes;
  t.rank++;
  return moved(c, graph_node_raw(c->g, OP_compress, in, 2, &c->attr, t, c->site), 1, 0);
}

static uint32_t batch_made_later(batching *c) {
  return refuse(c, E_internal, "%s comes after batching", op_rows[c->op].name);
}

/* ---- the walk -------------------------------------------------------------------------------------------------------------------------- */

void batch_begin(graph_batch *b, graph *g, graph_batch *outer, qn_dim lanes, uint32_t from) {
  *b = (graph_batch){.g = g, .outer = outer, .lanes = lanes, .from = from, .done = from, .told = from};
  arena_init(&b->memory, g->arena.vm);
  if (outer) outer->inner = b;
}

/* Makes b->whole as long as the list of nodes. */
static bool room(graph_batch *b) {
  if (arena_room(&b->memory, (void **)&b->whole, &b->cap, b->g->n, sizeof *b->whole)) return true;
  b->g->failed = true;
  return false;
}

/* Marks the nodes of this batch's lanes as BATCH_INNER in the batch around it. */
static bool tell_outer(graph_batch *b) {
  graph_batch *outer = b->outer;
  if (!room(outer)) return false;
  for (; b->told < b->done; b->told++)
    if (b->told < b->cap && b->whole[b->told] && !outer->whole[b->told]) outer->whole[b->told] = BATCH_INNER;
  return true;
}

void batch_end(graph_batch *b) {
  if (b->outer) {
    if (!tell_outer(b)) b->g->failed = true;
    b->outer->inner = NULL;
  }
  arena_free(&b->memory);
  *b = (graph_batch){.g = NULL};
}

bool batch_bind(graph_batch *b, uint32_t lane, uint32_t node) {
  if (!lane || !node || !room(b)) return false;
  b->whole[lane] = node;
  if (lane < b->told) b->told = lane;
  return true;
}

/* The tracer is an array of zeros, since a node needs a value; nothing that runs depends on it. */
uint32_t batch_lane(graph_batch *b, uint32_t node, uint32_t site) {
  if (!node) return 0;
  graph_type t = b->g->nodes[node].type;
  op_attr attr = graph_shape_attr(t.rank - 1, t.shape + 1);
  uint32_t zero = graph_const_scalar(b->g, (qn_dtype)t.dtype, false, 0, 0, site);
  uint32_t lane = graph_op(b->g, OP_broadcast, &zero, 1, &attr, site);
  return lane && batch_bind(b, lane, node) ? lane : 0;
}

static bool out_of_memory(op_refusal *why, uint32_t *culprit) {
  why->id = E_memory;
  snprintf(why->text, sizeof why->text, "out of memory");
  *culprit = 0;
  return false;
}

static bool is_counted_draw(const graph_node *n) {
  return n->kind == NODE_OP && op_rows[n->op].klass == CLASS_RANDOM && n->attr->mode == DRAW_COUNTED;
}

/* Does a node differ from lane to lane though no operand does? A draw that counts its numbers does, unless it makes those once more that were
 * drawn outside the lanes. */
static bool is_lanes_draw(const graph_batch *b, const graph_node *n) {
  return is_counted_draw(n) && (!(n->attr->flags & ATTR_ANEW) || (b->drawn && !b->linear));
}

/* Do nodes from..end draw numbers, other than once more? */
static bool draws(const graph *g, uint32_t from, uint32_t end) {
  bool any = false;
  for (uint32_t i = from; i < end && !any; i++) {
    const graph_node *n = &g->nodes[i];
    any = is_counted_draw(n) && !(n->attr->flags & ATTR_ANEW);
    for (int k = 0; k < 2 && graph_kind_has_regions(n->kind); k++)
      any |= draws(n->payload.regions[k], 1, n->payload.regions[k]->n);
  }
  return any;
}

bool batch_same_size(graph_batch *b, qn_dim lane, qn_dim whole) {
  struct batched_size *x = arena_alloc(&b->memory, sizeof *x);
  if (!x) return false;
  *x = (struct batched_size){lane, whole, b->sizes};
  b->sizes = x;
  return true;
}

/* If *d is a size that node i of a lane gives itself, it becomes that of the node which will be appended next. False when memory is short. */
static bool own_size(graph_batch *b, uint32_t i, qn_dim *d) {
  dim_table *t = &b->g->dims;
  const dim_expr e = *d < 0 ? t->exprs[~*d] : (dim_expr){.op = DIM_ADD};
  if (e.op != DIM_SYMBOL || e.source != DIM_FROM_NODE || e.ref != i) return true;
  qn_dim own = dim_symbol(t, DIM_FROM_NODE, b->g->n, e.axis, e.hint, e.name);
  return batch_same_size(b, *d, own) && (*d = own, true);
}

/* A size of a lane as one of all lanes. */
static qn_dim size_for_all(const graph_batch *b, qn_dim d) {
  if (d >= 0) return d;
  for (const struct batched_size *x = b->sizes; x; x = x->next)
    if (x->lane == d) return x->whole;
  dim_table *t = &b->g->dims;
  const dim_expr e = t->exprs[~d];
  if (e.op == DIM_SYMBOL) return d;
  qn_dim x = size_for_all(b, e.a), y = size_for_all(b, e.b);
  return x == e.a && y == e.b ? d : dim_make(t, (dim_op)e.op, x, y);
}

/* Replaces the sizes in a lane's node by those of all lanes. Is any of them another one? */
static bool sizes_for_all(const graph_batch *b, graph_node *n, op_attr *attr) {
  bool other = false;
  for (int a = 0; a < n->type.rank && b->sizes; a++) {
    qn_dim d = n->type.shape[a];
    other |= (n->type.shape[a] = size_for_all(b, d)) != d;
  }
  for (int k = 0; n->kind == NODE_OP && k < attr->n && b->sizes; k++) {
    qn_dim d = attr->d[k];
    if (op_attr_is_dim((op_id)n->op, k)) other |= (attr->d[k] = size_for_all(b, d)) != d;
  }
  return other;
}

/* With what number as operand k does an op that may fail on that operand never fail? -1: it does not fail on that operand. An index that has been
 * found to lie inside (ATTR_PROVEN) is so for lanes at work only, and counts. */
static int harmless(const graph *g, const graph_node *n, int k) {
  op_raises raises = (op_raises)op_rows[n->op].raises;
  if (raises == RAISES_bounds) return op_operand_role((op_id)n->op, k, n->nin) == ROLE_INDEX ? 0 : -1;
  if (!graph_node_fallible(g, n)) return -1;
  switch (raises) {
  case RAISES_int_div: return k == 1 ? 1 : -1;
  case RAISES_int_pow:
  case RAISES_shift: return k == 1 ? 0 : -1;
  case RAISES_to_int: return k == 0 ? 0 : -1;
  default: return -1;
  }
}

/* Operands on which node i can fail get such a number in place of what they are in lanes that are not at work: in[] becomes theirs, where one of a
 * lane is a tracer. An operand that all lanes share gets it where no lane at all is at work. False when memory is short. */
static bool make_harmless(graph_batch *b, const graph_node *n, uint32_t *in) {
  graph *g = b->g;
  for (int k = 0; k < n->nin; k++) {
    int number = harmless(g, n, k);
    const graph_type lane = g->nodes[in[k]].type;
    uint32_t all = b->whole[in[k]], mask = b->active;
    bool shared = !all || all & BATCH_SHARED;
    if (number < 0 || (shared && (!b->masked || lane.weak))) continue;
    uint32_t x = shared ? batch_shared_node(b, in[k]) : all;
    const graph_type t = g->nodes[x].type;
    qn_dim shape[ARRAY_MAX_RANK + 1] = {b->lanes};
    for (int a = 1; a < t.rank; a++) shape[a] = 1;
    op_attr any = {.axes = 1}, wide = graph_shape_attr(t.rank, shape);
    if (shared)
      mask = graph_op(g, OP_any, &mask, 1, &any, n->site);
    else if (t.rank > 1)
      mask = graph_op(g, OP_reshape, &mask, 1, &wide, n->site);
    uint32_t other = graph_const_scalar(g, (qn_dtype)t.dtype, false, number, number, n->site);
    x = mask && other ? graph_op(g, OP_where, (uint32_t[]){mask, x, other}, 3, NULL, n->site) : 0;
    if (!x || !room(b)) return false;
    if (shared) {
      in[k] = x;
    } else if (!lane.weak) {
      in[k] = batch_lane(b, x, n->site);
    } else {
      in[k] = graph_const_scalar(g, (qn_dtype)lane.dtype, true, 0, 0, n->site);
      if (!batch_bind(b, in[k], x)) return false;
    }
    if (!in[k]) return false;
  }
  return room(b);
}

/* Appends the counterpart of node i if an operand differs from lane to lane. False as in batch_advance. */
static bool step(graph_batch *b, uint32_t i, uint32_t *culprit, op_refusal *why) {
  graph *g = b->g;
  graph_node n = g->nodes[i]; /* a copy, since the list of nodes moves when it grows */
  bool any = is_lanes_draw(b, &n), anew = false;
  if (b->whole[i]) return true;
  for (int k = 0; k < n.nin; k++) {
    uint32_t w = b->whole[n.in[k]];
    if (w == BATCH_INNER) {
      b->whole[i] = w;
      return true;
    }
    any |= w && !(w & BATCH_SHARED);
    anew |= (w & BATCH_SHARED) != 0;
  }
  anew |= b->together && !b->shared_first && n.nin && !any;
  op_attr attr = graph_attr(&n);
  bool guarded = false;
  for (int k = 0; k < n.nin && b->active && n.kind == NODE_OP && (any || b->masked); k++)
    guarded |= harmless(g, &n, k) >= 0;
  anew |= guarded && b->masked;
  if (anew || guarded) {
    uint32_t *in = arena_alloc(&b->memory, n.nin * sizeof *in);
    for (int k = 0; k < n.nin && in; k++) in[k] = n.in[k];
    bool ok = in && (!guarded || make_harmless(b, &n, in));
    for (int k = 0; k < n.nin && ok && anew; k++) in[k] = batch_shared_node(b, in[k]);
    n.in = in;
    if (!ok) {
      g->failed = true;
      return out_of_memory(why, culprit);
    }
  }
  if (sizes_for_all(b, &n, &attr)) {
    anew = true;
    g->nodes[i].type = n.type;
  }
  if (!any && !anew) return true;
  if (!any) {
    if (n.attr) n.attr = &attr;
    for (int a = 0; a < n.type.rank; a++) /* what is a size of its own gets one of the copy */
      if (!own_size(b, i, &n.type.shape[a])) return out_of_memory(why, culprit);
    uint32_t made = graph_node_like(g, &n, n.in);
    if (!made || !room(b) || !graph_node_prove(g, i)) return out_of_memory(why, culprit);
    b->whole[i] = made | BATCH_SHARED;
    return true;
  }
  *culprit = i;
  *why = (op_refusal){0};
  if (n.kind != NODE_OP) {
    bool ok = batch_control(b, i, why);
    if (g->failed || b->memory.failed || !graph_node_prove(g, i)) return out_of_memory(why, culprit);
    return ok;
  }
  batching c = {b, g, n.site, (op_id)n.op, n.nin, n.in, n.type, attr, why};
  uint32_t made = rules[op_rows[n.op].batch_rule](&c);
  if (g->failed || b->memory.failed) return out_of_memory(why, culprit);
  if (!made) return false;
  if (!room(b) || !graph_node_prove(g, i)) return out_of_memory(why, culprit);
  b->whole[i] = made;
  return true;
}

bool batch_nodes(graph_batch *b, uint32_t from, uint32_t end, op_refusal *why) {
  uint32_t culprit;
  if (!room(b)) return false;
  for (uint32_t i = from; i < end; i++)
    if (!step(b, i, &culprit, why)) return false;
  return true;
}

bool batch_advance(graph_batch *b, uint32_t *culprit, op_refusal *why) {
  if (b->inner && !(batch_advance(b->inner, culprit, why) && tell_outer(b->inner))) {
    if (b->g->failed) out_of_memory(why, culprit);
    return false;
  }
  uint32_t n = b->g->n;
  if (!room(b)) return out_of_memory(why, culprit);
  b->drawn = b->drawn || draws(b->g, b->done, n);
  for (; b->done < n; b->done++)
    if (!step(b, b->done, culprit, why)) return false;
  for (graph_batch *x = b; x; x = x->inner) x->done = b->g->n; /* nodes that were appended here belong to no lane */
#ifdef QN_CHECKED
  char wrong[160];
  if (b->g->n > n && b->g->n < CHECKED_NODES && !graph_verify(b->g, wrong, sizeof wrong)) {
    why->id = E_internal;
    snprintf(why->text, sizeof why->text, "batching made a graph that is none: %s", wrong);
    return false;
  }
#endif
  return true;
}

bool batch_skip(graph_batch *b, uint32_t from) {
  for (graph_batch *x = b; x; x = x->inner) {
    if (!room(x)) return false;
    x->done = x->g->n;
  }
  for (uint32_t i = from; i < b->g->n; i++)
    if (b->g->nodes[i].kind != NODE_TAP && !graph_node_prove(b->g, i)) return false;
  return true;
}

uint32_t batch_whole_always(graph_batch *b, uint32_t node) {
  uint32_t w = batch_whole(b, node);
  if (w || !node) return w;
  node = batch_shared_node(b, node);
  graph *g = b->g;
  graph_type t = g->nodes[node].type;
  if (t.rank + 1 > ARRAY_MAX_RANK) return 0;
  op_refusal why;
  batching c = {.b = b, .g = g, .site = g->nodes[node].site, .op = OP_broadcast, .why = &why};
  if (t.weak) {
    op_attr attr = {.dtype = t.dtype};
    node = make1(&c, OP_fit, node, &attr);
  }
  return repeated(&c, node);
}
