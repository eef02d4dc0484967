/* Simplification: a graph is built anew, node by node in order, each node going through rewrite().
 *
 *   1. explicit broadcasts of operands are dropped where the op broadcasts anyway; where that leaves a smaller result, the op is
 *      done on the small operands and its result is broadcast
 *   2. an op on constant scalars becomes a constant, where its bits are fixed (fold.c)
 *   3. the rules of rules.def for its op, in their order
 *   4. a node that the new graph has already takes its place (equal op, operands, attributes and type; operands of commutative
 *      ops in any order)
 *   5. what is the same in all turns of a loop is made before it (invariants.c), and rows that nobody takes are not kept
 *
 * Rules build their results through the same door, so what they make is simplified too. In the end nodes that nothing needs are
 * removed. Bits are kept, fallible nodes stay where they are in the order, unless a rule proves that they cannot fail.
 * The rules do not look at users; a result is a fixed point for all but a few graphs, and simplifying again is cheap.
 */
#include <stdlib.h>
#include <string.h>

#include "jit/graph/rewrite.h"
#include "lang/mem.h"

/* ---- common subexpressions ------------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t h, uint64_t x) {
  h = (h ^ x) * 0xff51afd7ed558ccdu;
  return h ^ h >> 32;
}

enum { SHARED_CONST_BYTES = 64 };

static uint64_t node_hash(const rewriter *r, const graph_node *n) {
  uint64_t h =
      mix((uint64_t)n->kind << 8 | n->op, (uint64_t)n->type.dtype << 16 | (uint64_t)n->type.rank << 8 | n->type.weak);
  for (int i = 0; i < n->type.rank; i++) h = mix(h, (uint64_t)n->type.shape[i]);
  if (n->kind == NODE_CONST) {
    const unsigned char *p = n->payload.data;
    for (size_t i = 0; i < graph_const_bytes(&n->type); i++) h = mix(h, p[i]);
    return h;
  }
  if (n->kind == NODE_PROJ) return mix(mix(h, n->in[0]), n->payload.index);
  if (graph_commutes(n))
    h = mix(mix(h, n->in[0] ^ n->in[1]), n->in[0] + n->in[1]);
  else
    for (int i = 0; i < n->nin; i++) h = mix(h, n->in[i]);
  return graph_attr_hash(r->g, (op_id)n->op, n->attr, h);
}

static bool same_node(const void *g, uint32_t node, const void *other) {
  const graph_node *a = &((const graph *)g)->nodes[node], *b = other;
  if (a->kind != b->kind || a->op != b->op || a->nin != b->nin || !graph_type_same(&a->type, &b->type)) return false;
  if (a->kind == NODE_CONST) return memcmp(a->payload.data, b->payload.data, graph_const_bytes(&a->type)) == 0;
  bool swapped = graph_commutes(a) && a->in[0] == b->in[1] && a->in[1] == b->in[0];
  if (!swapped && memcmp(a->in, b->in, a->nin * sizeof *a->in) != 0) return false;
  if (a->kind == NODE_PROJ && a->payload.index != b->payload.index) return false;
  if (!a->attr || !b->attr) return a->attr == b->attr;
  return memcmp(a->attr, b->attr, offsetof(op_attr, d)) == 0 &&
         memcmp(a->attr->d, b->attr->d, a->attr->n * sizeof(qn_dim)) == 0;
}

/* The node of the new graph that equals n, which is appended if there is none. */
static uint32_t share(rewriter *r, const graph_node *n) {
  uint32_t *number = intern_find(r->scratch, &r->numbers, node_hash(r, n), same_node, r->g, n);
  if (!number) r->g->failed = true;
  if (!number || *number) return number ? *number - 1 : 0;
  uint32_t node = n->kind == NODE_CONST  ? graph_const(r->g, n->type, n->payload.data, n->site)
                  : n->kind == NODE_PROJ ? graph_node_like(r->g, n, n->in)
                                         : graph_node_raw(r->g, (op_id)n->op, n->in, n->nin, n->attr, n->type, n->site);
  if (node) *number = node + 1;
  return node;
}

/* ---- broadcasts ------------------------------------------------------------------------------------------------------- */

/* The first of the operands that broadcast without a node: all operands of POINTWISE ops, and the value that an op stores, which is the
 * last operand. nin if there is none. */
static int first_broadcasting(const graph_node *n) {
  switch ((op_id)n->op) {
  case OP_scatter:
  case OP_gather_add:
  case OP_slice_put: return n->nin - 1;
  default: return op_rows[n->op].klass == CLASS_POINTWISE ? 0 : n->nin;
  }
}

static uint32_t rewrite(rewriter *r, const graph_node *n);

/* Step 1 of the head comment. Returns 0 if nothing was dropped. */
static uint32_t drop_broadcasts(rewriter *r, const graph_node *n) {
  uint32_t in[4];
  graph_type types[4];
  int from = first_broadcasting(n);
  bool any = false, stores = from > 0;
  if (n->nin > 4 || from == n->nin) return 0;
  for (int i = 0; i < n->nin; i++) {
    const graph_node *x = &r->g->nodes[in[i] = n->in[i]];
    if (i >= from && x->kind == NODE_OP && x->op == OP_broadcast) {
      in[i] = x->in[0];
      any = true;
    }
    types[i] = r->g->nodes[in[i]].type;
  }
  op_types o;
  op_refusal why;
  op_attr attr = graph_attr(n);
  if (!any || !op_infer(&r->g->dims, (op_id)n->op, types, n->nin, &attr, &o, &why)) return 0;
  graph_node small = *n;
  small.in = in;
  small.type = o.result;
  if (graph_type_same(&o.result, &n->type)) return rewrite(r, &small);
  if (stores || graph_node_fallible(r->g, n)) return 0;
  uint32_t result = rewrite(r, &small);
  if (!result) return 0;
  return rewrite_view(r, OP_broadcast, result, n);
}

/* ---- one node -------------------------------------------------------------------------------------------------------------- */

static uint32_t fold(rewriter *r, const graph_node *n) {
  const void *data[3];
  graph_type types[3];
  char out[16] = {0};
  if (op_rows[n->op].klass != CLASS_POINTWISE || n->type.rank || n->nin > 3) return 0;
  for (int i = 0; i < n->nin; i++) {
    const graph_node *x = &r->g->nodes[n->in[i]];
    if (x->kind != NODE_CONST || x->type.rank) return 0;
    types[i] = x->type;
    data[i] = x->payload.data;
  }
  if (!fold_scalar((op_id)n->op, &n->type, types, data, n->nin, out)) return 0;
  graph_node c = {.kind = NODE_CONST, .site = n->site, .type = n->type, .payload.data = out};
  return share(r, &c);
}

static uint32_t apply_rules(rewriter *r, const graph_node *n) {
  for (int i = 0; i < rule_count; i++) {
    const rule_row *row = &rule_rows[i];
    if (row->op != (op_id)n->op || (row->bits == FAST_MATH && !r->g->fast_math)) continue;
    uint32_t other = row->apply(r, n);
    if (other && graph_type_same(&r->g->nodes[other].type, &n->type)) return other;
  }
  return 0;
}

static uint32_t rewrite(rewriter *r, const graph_node *n) {
  if (r->depth >= REWRITE_DEPTH || r->g->failed || graph_node_anew(n)) return share(r, n);
  r->depth++;
  uint32_t other = drop_broadcasts(r, n);
  if (!other || !graph_type_same(&r->g->nodes[other].type, &n->type)) other = fold(r, n);
  if (!other) other = apply_rules(r, n);
  r->depth--;
  return other ? other : share(r, n);
}

uint32_t rewrite_node(rewriter *r, const graph_node *n) {
  bool large = n->kind == NODE_CONST && graph_const_bytes(&n->type) > SHARED_CONST_BYTES;
  if (large) return graph_const(r->g, n->type, n->payload.data, n->site);
  return n->kind == NODE_CONST ? share(r, n) : rewrite(r, n);
}

uint32_t rewrite_op(rewriter *r, op_id op, const uint32_t *in, int nin, const op_attr *attr, uint32_t site) {
  graph_type types[4];
  op_types o;
  op_refusal why;
  if (nin > 4) return 0;
  for (int i = 0; i < nin; i++) {
    if (!in[i]) return 0;
    types[i] = r->g->nodes[in[i]].type;
  }
  if (!op_infer(&r->g->dims, op, types, nin, attr, &o, &why)) return 0;
  graph_node n = {.kind = NODE_OP, .op = (uint8_t)op, .nin = (uint16_t)nin, .site = site, .in = in, .type = o.result};
  op_attr copy;
  if (attr) { /* copied, since `attr` may be that of a node and end after d[n - 1] */
    memcpy(&copy, attr, offsetof(op_attr, d));
    memcpy(copy.d, attr->d, attr->n * sizeof *attr->d);
    n.attr = &copy;
  }
  return rewrite(r, &n);
}

uint32_t rewrite_view(rewriter *r, op_id op, uint32_t node, const graph_node *like) {
  op_attr attr = graph_shape_attr(like->type.rank, like->type.shape);
  return rewrite_op(r, op, &node, 1, &attr, like->site);
}

uint32_t rewrite_number(rewriter *r, const graph_type *like, double f, int64_t i, uint32_t site) {
  char data[16] = {0};
  qn_dtype d = (qn_dtype)like->dtype;
  dtype_store(d, data, dtype_scalar(d, f, i));
  graph_node c = {
      .kind = NODE_CONST, .site = site, .type = {.dtype = like->dtype, .weak = like->weak}, .payload.data = data};
  return share(r, &c);
}

/* ---- products of a device's library ------------------------------------------------------------------------------------ */

/* An operand of a dot in the form in which the library takes it (as jit/run/gemm.c makes it): with the batch axes of the result or as
 * one matrix, and transposed if the flags say so. Returns 0 when memory is short. */
static uint32_t stored_operand(rewriter *r, const graph_node *n, int which) {
  dim_table *t = &r->g->dims;
  uint32_t x = n->in[which];
  graph_type own = r->g->nodes[x].type;
  int rank = n->type.rank - (r->g->nodes[n->in[0]].type.rank > 1) - (r->g->nodes[n->in[1]].type.rank > 1);
  bool one = true, all = true;
  for (int i = 0; i < rank; i++) {
    int k = i - (rank - (own.rank - 2));
    one = one && (k < 0 || dim_is(t, own.shape[k], 1));
    all = all && (k < 0 ? dim_is(t, n->type.shape[i], 1) : dim_equal(t, own.shape[k], n->type.shape[i]));
  }
  if (!one && !all) {
    op_attr to = graph_shape_attr(rank, n->type.shape);
    to.n = (uint8_t)(rank + 2);
    to.d[rank] = own.shape[own.rank - 2];
    to.d[rank + 1] = own.shape[own.rank - 1];
    if (!(x = rewrite_op(r, OP_broadcast, &x, 1, &to, n->site))) return 0;
    own = r->g->nodes[x].type;
  }
  if (!(n->attr->flags & (which ? ATTR_Y_ACROSS : ATTR_X_ACROSS))) return x;
  op_attr order = {.n = own.rank};
  for (int i = 0; i < own.rank; i++) order.d[i] = i;
  order.d[own.rank - 1] = own.rank - 2;
  order.d[own.rank - 2] = own.rank - 1;
  return rewrite_op(r, OP_permute, &x, 1, &order, n->site);
}

/* Replaces a dot that a device's library computed by gemm on operands as they are stored, so that views of these disappear. */
static uint32_t library_gemm(rewriter *r, const graph_node *n) {
  uint32_t in[2] = {stored_operand(r, n, 0), stored_operand(r, n, 1)};
  op_attr attr = {.flags = n->attr->flags & (ATTR_X_ACROSS | ATTR_Y_ACROSS)};
  uint32_t p = in[0] && in[1] ? rewrite_op(r, OP_gemm, in, 2, &attr, n->site) : 0;
  return p && graph_type_same(&r->g->nodes[p].type, &n->type) ? p : share(r, n);
}

/* ---- all nodes ---------------------------------------------------------------------------------------------------------------- */

static uint32_t renew_regions(rewriter *r, const graph_node *n, const uint32_t *map) {
  graph *parts[2] = {graph_simplify(n->payload.regions[0], r->cancel), NULL};
  if (parts[0]) parts[1] = graph_simplify(n->payload.regions[1], r->cancel);
  uint32_t *in = arena_alloc(r->scratch, (n->nin + 1u) * sizeof *in), nin = n->nin;
  for (uint32_t k = 0; in && k < nin; k++) in[k] = map[n->in[k]];
  if (in && parts[1] &&
      (n->kind != NODE_LOOP || (invariants_move(r, n, &in, &nin, parts) && graph_readers_first(parts[1]))))
    return graph_regions(r->g, (graph_kind)n->kind, in, (int)nin, parts[0], parts[1], n->attr, n->site);
  graph_free(parts[0]);
  graph_free(parts[1]);
  return 0;
}

/* Where a node takes a result of a call whose derivative is given (what gradients needed of it they have taken): that result as it was computed;
 * else 0. */
static uint32_t passed_on(const graph_node *of, const graph_node *n) {
  uint32_t k = n->payload.index;
  return graph_is_rule(of) && k < graph_rule_made(of) ? of->in[1 + k] : 0;
}

/* Adds node i of the old graph to the new one; map[k] is what operand k has become. Returns the new node; 0 when memory is short. */
static uint32_t renew(rewriter *r, const graph *from, uint32_t i, const uint32_t *map) {
  graph_node n = from->nodes[i];
  if (graph_kind_has_regions(n.kind)) return renew_regions(r, &n, map);
  uint32_t passed = n.kind == NODE_PROJ ? passed_on(&r->g->nodes[map[n.in[0]]], &n) : 0;
  if (passed) return passed;
  bool large = n.kind == NODE_CONST && graph_const_bytes(&n.type) > SHARED_CONST_BYTES;
  /* where its size is a symbol of this node no other can replace it */
  bool data_shaped = n.kind == NODE_OP && op_rows[n.op].shape_rule == SH_data;
  if ((n.kind != NODE_OP && n.kind != NODE_CONST && n.kind != NODE_PROJ) || large || data_shaped)
    return graph_node_copy(r->g, from, i, map);
  uint32_t few[8], *in = n.nin <= 8 ? few : arena_alloc(r->scratch, n.nin * sizeof *in);
  if (!in) {
    r->g->failed = true;
    return 0;
  }
  for (int k = 0; k < n.nin; k++) in[k] = map[n.in[k]];
  n.in = in;
  if (n.kind == NODE_OP && n.op == OP_dot && n.attr && (n.attr->flags & ATTR_LIBRARY)) return library_gemm(r, &n);
  return n.kind == NODE_OP ? rewrite(r, &n) : share(r, &n);
}

/* Removes the rows of a loop that nobody takes, and what only they need: a carry that is a row as well would be copied in each turn. False when
 * memory is short. */
static bool drop_rows(graph *g, uint32_t loop) {
  graph_node *n = &g->nodes[loop];
  graph *body = n->payload.regions[1];
  uint32_t made = body->noutputs, left = graph_loop_carries(n), *to = calloc(made + (size_t)1, sizeof *to);
  bool stride = false;
  if (!to) return false;
  for (uint32_t x = loop + 1; x < g->n; x++) {
    if (g->nodes[x].kind != NODE_PROJ || g->nodes[x].in[0] != loop) continue;
    stride |= g->nodes[x].payload.index == made + 1;
    if (g->nodes[x].payload.index < made) to[g->nodes[x].payload.index] = 1;
  }
  for (uint32_t k = left; k < made; k++) {
    if (!to[k]) continue;
    body->outputs[left] = body->outputs[k];
    to[k] = left++;
  }
  for (uint32_t x = loop + 1; x < g->n && left < made; x++) {
    graph_node *p = &g->nodes[x];
    if (p->kind != NODE_PROJ || p->in[0] != loop || p->payload.index < graph_loop_carries(n)) continue;
    p->payload.index = p->payload.index < made ? to[p->payload.index] : p->payload.index - (made - left);
  }
  free(to);
  body->noutputs = left;
  if (left == graph_loop_carries(n) && !stride && graph_loop_most(n) == INT64_MAX) n->attr = NULL;
  if (left < made) graph_dce(body);
  return !body->failed;
}

graph *graph_simplify(const graph *from, cancel_flag cancel) {
  graph *g = graph_new(from->arena.vm);
  if (!g) return NULL;
  arena scratch;
  arena_init(&scratch, from->arena.vm);
  rewriter r = {.g = g, .scratch = &scratch, .cancel = cancel};
  uint32_t *map = arena_alloc(&scratch, from->n * sizeof *map);
  bool ok = map && graph_copy_frame(g, from);
  for (uint32_t i = 1; ok && i < from->n; i++)
    ok = !cancelled(cancel) && (map[i] = renew(&r, from, i, map)) != 0 && !g->failed;
  for (uint32_t i = 0; ok && i < from->ninputs; i++) {
    g->inputs[i] = map[from->inputs[i]];
    g->nodes[g->inputs[i]].payload.input = i;
  }
  for (uint32_t i = 0; ok && i < from->noutputs; i++) ok = graph_output(g, map[from->outputs[i]]);
  if (ok) {
    dim_rename_nodes(&g->dims, map, from->n);
    graph_dce(g);
    for (uint32_t i = 1; ok && i < g->n; i++)
      if (g->nodes[i].kind == NODE_LOOP && g->nodes[i].attr) ok = drop_rows(g, i);
    graph_dce(g); /* (what only rows read that were dropped) */
  }
  arena_free(&scratch);
  if (ok && !g->failed && !g->arena.failed) {
#ifdef QN_CHECKED
    char why[160];
    if (graph_verify(from, why, sizeof why) && !graph_verify(g, why, sizeof why))
      __builtin_trap(); /* a rewrite rule has a defect */
#endif
    return g;
  }
  graph_free(g);
  return NULL;
}
