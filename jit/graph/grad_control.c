/* Differentiation of branches and loops: the backward of a region is a region.
 *
 * A branch   if p { A } else { B } on captured values x, with cotangents ct of its results, becomes
 *
 *     if p { x, ct -> A once more, then A's cotangents of x } else { the same of B }
 *
 * so only the arm that was taken is differentiated, what it keeps lives only within it, and nothing is kept between. The arm is made
 * once more: its checks have been made by the first time, and are left out (ATTR_PROVEN).
 *
 * Regions within regions are met by graph_vjp inside the arm, and become regions within the backward arm.
 */
#include <stdlib.h>
#include <string.h>

#include "jit/graph/grad.h"
#include "jit/graph/region_builder.h"
#include "lang/error.h"

static bool short_of_memory(op_refusal *why) {
  *why = (op_refusal){.id = E_memory, .text = "out of memory"};
  return false;
}

/* Zeros of a node's type. */
static uint32_t zeros(graph *g, uint32_t like) {
  graph_type t = g->nodes[like].type;
  uint32_t zero = graph_const_scalar(g, (qn_dtype)t.dtype, t.weak, 0, 0, 0);
  if (!zero || !t.rank) return zero;
  op_attr attr = {.n = t.rank};
  memcpy(attr.d, t.shape, t.rank * sizeof *attr.d);
  return graph_op(g, OP_broadcast, &zero, 1, &attr, 0);
}

/* The arm that is differentiated: its inputs are x and then the cotangents that are given, its results the cotangents of those x
 * that are wanted. `inputs`: how many operands of the node come before x. Owned; NULL with `why`. */
static graph *backward_arm(const control_grad *c, const graph *arm, int before, op_refusal *why) {
  graph *g = graph_copy(arm);
  uint32_t n = arm->noutputs, *roots = calloc(4 * (size_t)n + 2 * (size_t)arm->ninputs + 1, sizeof *roots), culprit;
  uint32_t *seeds = roots + n, *wrt = seeds + n, *grads = wrt + arm->ninputs;
  int nroots = 0, nwrt = 0;
  if (!g || !roots || !graph_prove(g)) goto memory;
  for (uint32_t k = 0; k < n; k++) {
    if (!c->given[k]) continue;
    uint32_t result = g->outputs[k], seed = graph_input(g, g->nodes[result].type, 0);
    if (!seed) goto memory;
    roots[nroots] = result;
    seeds[nroots++] = seed;
  }
  for (uint32_t i = 0; i < arm->ninputs; i++)
    if (c->wanted[before + (int)i]) wrt[nwrt++] = g->inputs[i];
  if (!graph_vjp(g, 1, roots, seeds, nroots, wrt, nwrt, NULL, grads, &culprit, why)) {
    if (why->id == E_memory) goto memory;
    goto fail;
  }
  g->noutputs = 0;
  for (int i = 0; i < nwrt; i++)
    if (!graph_output(g, grads[i] ? grads[i] : zeros(g, wrt[i]))) goto memory;
  if (g->failed) goto memory;
  graph_dce(g);
  if (g->failed) goto memory;
  free(roots);
  return g;
memory:
  short_of_memory(why);
fail:
  free(roots);
  graph_free(g);
  return NULL;
}

static bool grad_branch(control_grad *c, op_refusal *why) {
  graph *g = c->g;
  graph_node n = g->nodes[c->node]; /* the list moves while nodes are appended */
  uint32_t nout = n.payload.regions[0]->noutputs, nin = n.nin;
  graph *arms[2] = {backward_arm(c, n.payload.regions[0], 1, why), NULL};
  if (arms[0]) arms[1] = backward_arm(c, n.payload.regions[1], 1, why);
  uint32_t *in = calloc((size_t)nin + nout + 1, sizeof *in);
  if (!arms[1] || !in) {
    graph_free(arms[0]);
    graph_free(arms[1]);
    free(in);
    return arms[1] ? short_of_memory(why) : false;
  }
  memcpy(in, n.in, nin * sizeof *in);
  for (uint32_t k = 0; k < nout; k++)
    if (c->given[k]) in[nin++] = c->given[k];
  uint32_t node = graph_regions(g, NODE_IF, in, (int)nin, arms[0], arms[1], NULL, n.site), index = 0;
  free(in);
  for (int k = 1; k < n.nin && node; k++)
    if (c->wanted[k] && !(c->out[k] = graph_proj(g, node, index++, g->nodes[n.in[k]].type, n.site))) node = 0;
  return node || short_of_memory(why);
}

/* ---- loops ---------------------------------------------------------------------------------------------------------------- */

/* What the parts of a loop's gradient share. */
typedef struct loop_grad {
  const graph *body; /* the loop's body, its carries as its only results, proven */
  graph *
      back; /* of carries, captured values, cotangents of float carries and of rows: cotangents of float carries, of captured values */
  uint32_t ncarries, ncaptured;
  bool *weak;                /* by carry */
  uint32_t ncts, naccs;      /* float carries; captured values that are wanted */
  uint32_t *captured, *rows; /* nodes: captured values; cotangents of rows */
  uint32_t nrows;
  int64_t block; /* turns that are made again at a time */
} loop_grad;

enum { LOOP_FEW = 4096 };

/* Nodes of the values that a part of the gradient works on, in the graph where it lies. */
typedef struct loop_values {
  uint32_t *captured; /* ncaptured */
  uint32_t *row_cts;  /* nrows: cotangents of rows that were kept, by the distance `stride` */
  uint32_t stride;
  uint32_t *cts; /* ncts, then naccs: cotangents, sums */
} loop_values;

/* The operands of a region_builder for values, after its carries; their inputs in part k are in `to`. */
static void capture_values(const loop_grad *l, region_builder *b, const loop_values *v, int part, loop_values *to) {
  uint32_t c = builder_operands(b, v->captured, l->ncaptured), r = builder_operands(b, v->row_cts, l->nrows);
  uint32_t s = builder_operand(b, v->stride);
  if (b->failed) return;
  for (uint32_t i = 0; i < l->ncaptured; i++) to->captured[i] = builder_input(b, part, c + i);
  for (uint32_t i = 0; i < l->nrows; i++) to->row_cts[i] = builder_input(b, part, r + i);
  to->stride = builder_input(b, part, s);
}

static bool values_open(const loop_grad *l, loop_values *v) {
  uint32_t *at = calloc((size_t)l->ncaptured + l->nrows + l->ncts + l->naccs + 1, sizeof *at);
  *v = (loop_values){.captured = at, .row_cts = at + l->ncaptured, .cts = at + l->ncaptured + l->nrows};
  return at != NULL;
}
static void values_close(loop_values *v) { free(v->captured); }

/* for t = hi - 1 down to lo: the carries of turn t are row t - lo of `kept`; their cotangents and the sums go on. False: memory. */
static bool reverse_block(const loop_grad *l, graph *g, const loop_values *v, uint32_t lo, uint32_t hi,
                          const uint32_t *kept, uint32_t *cts) {
  region_builder b;
  loop_values in;
  uint32_t n = l->ncts + l->naccs, *args = NULL, *outs = NULL;
  if (!builder_open(&b, g) || !values_open(l, &in)) b.failed = true;
  (void)builder_operand(&b, hi);
  uint32_t first = builder_operands(&b, v->cts, n), from = builder_operand(&b, lo),
           rows = builder_operands(&b, kept, l->ncarries);
  if (!b.failed) capture_values(l, &b, v, 1, &in);
  graph *body = b.part[1];
  args = calloc((size_t)l->ncarries + l->ncaptured + l->ncts + l->nrows + 1, sizeof *args);
  outs = calloc(n + 1, sizeof *outs);
  b.failed |= !args || !outs;
  if (!b.failed) {
    b.failed |=
        !graph_output(b.part[0], graph_op2(b.part[0], OP_gt, builder_input(&b, 0, 0), builder_input(&b, 0, from)));
    uint32_t t = graph_count(body, OP_sub, builder_input(&b, 1, 0), graph_weak_int(body, 1)), k = 0;
    uint32_t at = graph_count(body, OP_sub, t, builder_input(&b, 1, from));
    for (uint32_t i = 0; i < l->ncarries; i++)
      args[k++] = graph_row(body, builder_input(&b, 1, rows + i), at, l->weak[i]);
    for (uint32_t i = 0; i < l->ncaptured; i++) args[k++] = in.captured[i];
    for (uint32_t i = 0; i < l->ncts; i++) args[k++] = builder_input(&b, 1, first + i);
    for (uint32_t i = 0; i < l->nrows; i++) { /* a row was kept of every stride-th turn */
      uint32_t row = graph_row(body, in.row_cts[i], graph_count(body, OP_floordiv, t, in.stride), false);
      uint32_t is = graph_op2(body, OP_eq, graph_count(body, OP_mod, t, in.stride), graph_weak_int(body, 0));
      uint32_t none =
          graph_const_scalar(body, row ? (qn_dtype)body->nodes[row].type.dtype : DTYPE_FLOAT, false, 0, 0, 0);
      args[k++] = graph_op(body, OP_where, (uint32_t[]){is, row, none}, 3, NULL, 0);
    }
    for (uint32_t i = 0; i < k; i++) b.failed |= !args[i];
    b.failed = b.failed || !graph_inline(body, l->back, args, outs) || !graph_output(body, t);
    for (uint32_t i = 0; i < n && !b.failed; i++) {
      if (i >= l->ncts) outs[i] = graph_op2(body, OP_add, builder_input(&b, 1, first + i), outs[i]);
      b.failed |= !graph_output(body, outs[i]);
    }
  }
  free(args);
  free(outs);
  values_close(&in);
  uint32_t node = builder_close(&b, 0, NULL, 0);
  for (uint32_t i = 0; i < n && node; i++)
    if (!(cts[i] = graph_proj(g, node, 1 + i, g->nodes[v->cts[i]].type, 0))) node = 0;
  return node != 0;
}

/* for t in lo..hi: carries = body(carries); `keep`: the carries of each turn are kept. carries[i] becomes the carry at the end, or its rows. */
static bool forward_block(const loop_grad *l, graph *g, const loop_values *v, uint32_t lo, uint32_t hi, bool keep,
                          uint32_t *carries) {
  region_builder b;
  uint32_t n = l->ncarries, *outs = calloc(n + 1, sizeof *outs),
           *args = calloc((size_t)n + l->ncaptured + 1, sizeof *args);
  if (!builder_open(&b, g) || !outs || !args) b.failed = true;
  (void)builder_operand(&b, lo);
  uint32_t first = builder_operands(&b, carries, n), to = builder_operand(&b, hi);
  uint32_t captured = builder_operands(&b, v->captured, l->ncaptured);
  if (!b.failed) {
    graph *body = b.part[1];
    b.failed |=
        !graph_output(b.part[0], graph_op2(b.part[0], OP_lt, builder_input(&b, 0, 0), builder_input(&b, 0, to)));
    for (uint32_t i = 0; i < n; i++) args[i] = builder_input(&b, 1, first + i);
    for (uint32_t i = 0; i < l->ncaptured; i++) args[n + i] = builder_input(&b, 1, captured + i);
    b.failed = b.failed || !graph_inline(body, l->body, args, outs) ||
               !graph_output(body, graph_count(body, OP_add, builder_input(&b, 1, 0), graph_weak_int(body, 1)));
    for (uint32_t i = 0; i < n && !b.failed; i++) b.failed |= !graph_output(body, outs[i]);
    for (uint32_t i = 0; i < n && keep && !b.failed; i++) b.failed |= !graph_output(body, args[i]);
  }
  op_attr attr = graph_loop_attr(n + 1, 0);
  uint32_t node = builder_close(&b, 0, keep ? &attr : NULL, 0);
  for (uint32_t i = 0; i < n && node; i++)
    if (!(carries[i] = graph_proj(g, node, 1 + i + (keep ? n : 0), g->nodes[carries[i]].type, 0))) node = 0;
  free(outs);
  free(args);
  return node != 0;
}

/* All turns, from the last to the first, where not all rows were kept: blocks that lie between two that were, and are no longer than
 * l->block, are made again with all of theirs. */
static bool reverse_blocks(const loop_grad *l, graph *g, const loop_values *v, uint32_t turns, const uint32_t *kept,
                           uint32_t *cts) {
  region_builder b;
  loop_values in;
  uint32_t n = l->ncts + l->naccs, *carries = calloc(l->ncarries + 1, sizeof *carries);
  if (!builder_open(&b, g) || !values_open(l, &in) || !carries) b.failed = true;
  (void)builder_operand(&b, turns);
  uint32_t first = builder_operands(&b, v->cts, n), rows = builder_operands(&b, kept, l->ncarries);
  if (!b.failed) capture_values(l, &b, v, 1, &in);
  if (!b.failed) {
    graph *h = b.part[0], *body = b.part[1];
    b.failed |= !graph_output(h, graph_op2(h, OP_gt, builder_input(&b, 0, 0), graph_weak_int(h, 0)));
    uint32_t hi = builder_input(&b, 1, 0), last = graph_count(body, OP_sub, hi, graph_weak_int(body, 1));
    uint32_t at = graph_count(body, OP_floordiv, last, in.stride), start = graph_count(body, OP_mul, at, in.stride);
    uint32_t lo = graph_op2(body, OP_maximum, start, graph_count(body, OP_sub, hi, graph_weak_int(body, l->block)));
    for (uint32_t i = 0; i < l->ncarries; i++)
      carries[i] = graph_row(body, builder_input(&b, 1, rows + i), at, l->weak[i]);
    for (uint32_t i = 0; i < n; i++) in.cts[i] = builder_input(&b, 1, first + i);
    for (uint32_t i = 0; i < l->ncarries; i++) b.failed |= !carries[i];
    b.failed = b.failed || !lo || !forward_block(l, body, &in, start, lo, false, carries) ||
               !forward_block(l, body, &in, lo, hi, true, carries) ||
               !reverse_block(l, body, &in, lo, hi, carries, in.cts) || !graph_output(body, lo);
    for (uint32_t i = 0; i < n && !b.failed; i++) b.failed |= !graph_output(body, in.cts[i]);
  }
  values_close(&in);
  free(carries);
  uint32_t node = builder_close(&b, 0, NULL, 0);
  for (uint32_t i = 0; i < n && node; i++)
    if (!(cts[i] = graph_proj(g, node, 1 + i, g->nodes[v->cts[i]].type, 0))) node = 0;
  return node != 0;
}

/* if stride == 1 { every row is there } else { blocks are made again }. */
static bool reverse_loop(const loop_grad *l, graph *g, const loop_values *v, uint32_t turns, const uint32_t *kept,
                         uint32_t *cts) {
  region_builder b;
  uint32_t n = l->ncts + l->naccs;
  uint32_t predicate = graph_op2(g, OP_eq, v->stride, graph_weak_int(g, 1));
  if (!builder_open(&b, g) || !predicate) b.failed = true;
  uint32_t t = builder_operand(&b, turns), first = builder_operands(&b, v->cts, n),
           rows = builder_operands(&b, kept, l->ncarries);
  loop_values none = {0};
  uint32_t from = b.n;
  uint32_t *to = calloc((size_t)l->ncarries + n + 1, sizeof *to);
  if (!values_open(l, &none) || !to) b.failed = true;
  for (int arm = 0; arm < 2; arm++) {
    loop_values in = none;
    if (arm == 0 && !b.failed) capture_values(l, &b, v, 0, &in);
    if (b.failed) break;
    graph *g2 = b.part[arm];
    for (uint32_t i = 0; i < l->ncaptured; i++) in.captured[i] = builder_input(&b, arm, from + i);
    for (uint32_t i = 0; i < l->nrows; i++) in.row_cts[i] = builder_input(&b, arm, from + l->ncaptured + i);
    in.stride = builder_input(&b, arm, from + l->ncaptured + l->nrows);
    for (uint32_t i = 0; i < n; i++) in.cts[i] = builder_input(&b, arm, first + i);
    for (uint32_t i = 0; i < l->ncarries; i++) to[n + i] = builder_input(&b, arm, rows + i);
    bool ok = arm == 0 ? reverse_block(l, g2, &in, graph_weak_int(g2, 0), builder_input(&b, arm, t), to + n, to)
                       : reverse_blocks(l, g2, &in, builder_input(&b, arm, t), to + n, to);
    b.failed |= !ok;
    for (uint32_t i = 0; i < n && !b.failed; i++) b.failed |= !graph_output(g2, to[i]);
  }
  values_close(&none);
  free(to);
  uint32_t node = builder_close(&b, predicate, NULL, 0);
  for (uint32_t i = 0; i < n && node; i++)
    if (!(cts[i] = graph_proj(g, node, i, g->nodes[v->cts[i]].type, 0))) node = 0;
  return node != 0;
}

/* How many rows of these carries may be kept: a power of two. */
enum { KEPT_BYTES = 256 << 20, KEPT_LEAST = 64, KEPT_MOST = 1 << 16 };
static int64_t slots_for(graph *g, const uint32_t *carries, uint32_t n) {
  int64_t bytes = 1, slots = KEPT_MOST;
  for (uint32_t i = 0; i < n; i++) {
    const graph_type *t = &g->nodes[carries[i]].type;
    int64_t elements = 1;
    for (int a = 0; a < t->rank; a++)
      if (__builtin_mul_overflow(elements, dim_hint(&g->dims, t->shape[a]), &elements)) return KEPT_LEAST;
    bytes += elements * (int64_t)dtype_size((qn_dtype)t->dtype);
  }
  while (slots > KEPT_LEAST && slots > KEPT_BYTES / bytes) slots /= 2;
  return slots;
}

/* The loop keeps its carries from now on. Where their rows begin among its results; 0: memory is short. */
static uint32_t keep_carries(graph *g, uint32_t node) {
  graph_node *n = &g->nodes[node];
  graph *body = n->payload.regions[1];
  uint32_t carries = graph_loop_carries(n), at = carries;
  for (; at + carries <= body->noutputs; at++) {
    uint32_t same = 0;
    while (same < carries && body->outputs[at + same] == body->inputs[same]) same++;
    if (same == carries && carries) return at;
  }
  int64_t slots = graph_loop_slots(n);
  if (!n->attr) slots = slots_for(g, n->in, carries);
  at = body->noutputs;
  for (uint32_t i = 0; i < carries; i++)
    if (!graph_output(body, body->inputs[i])) return 0;
  for (uint32_t i = node + 1; i < g->n; i++) /* the number of turns and the stride lie behind all rows */
    if (g->nodes[i].kind == NODE_PROJ && g->nodes[i].in[0] == node && g->nodes[i].payload.index >= at)
      g->nodes[i].payload.index += carries;
  op_attr attr = graph_loop_attr(carries, slots);
  return graph_set_attr(g, node, &attr) ? at : 0;
}

/* The body's backward pass (loop_grad.back), its first results cut to the carries' cotangents. */
static graph *backward_body(const control_grad *c, const graph *body, loop_grad *l, const uint32_t *rows,
                            op_refusal *why) {
  graph *g = graph_copy(body);
  uint32_t most = body->noutputs + body->ninputs, culprit;
  uint32_t *roots = calloc(4 * (size_t)most + 4, sizeof *roots), *seeds = roots + most, *wrt = seeds + most,
           *grads = wrt + most;
  int n = 0, nwrt = 0;
  *why = (op_refusal){.id = E_memory, .text = "out of memory"};
  if (!g || !roots || !graph_prove(g)) goto fail;
  for (uint32_t k = 0; k < l->ncarries; k++) {
    if (!dtype_is_float((qn_dtype)g->nodes[g->inputs[k]].type.dtype)) continue;
    roots[n] = g->outputs[k];
    if (!(seeds[n++] = graph_input(g, g->nodes[g->outputs[k]].type, 0))) goto fail;
    wrt[nwrt++] = g->inputs[k];
  }
  for (uint32_t k = 0; k < l->nrows; k++) {
    roots[n] = g->outputs[rows[k]];
    graph_type t = g->nodes[roots[n]].type;
    t.weak = false;
    uint32_t seed = graph_input(g, t, 0);
    if (seed && g->nodes[roots[n]].type.weak) {
      op_attr attr = {.dtype = t.dtype, .flags = ATTR_WEAK};
      seed = graph_op(g, OP_cast, &seed, 1, &attr, 0);
    }
    if (!(seeds[n++] = seed)) goto fail;
  }
  for (uint32_t i = l->ncarries; i < body->ninputs; i++)
    if (c->wanted[i]) wrt[nwrt++] = g->inputs[i];
  if (!graph_vjp(g, 1, roots, seeds, n, wrt, nwrt, NULL, grads, &culprit, why)) goto fail;
  *why = (op_refusal){.id = E_memory, .text = "out of memory"};
  g->noutputs = 0;
  for (int i = 0; i < nwrt; i++)
    if (!graph_output(g, grads[i] ? grads[i] : zeros(g, wrt[i]))) goto fail;
  graph_dce(g);
  if (g->failed) goto fail;
  free(roots);
  return g;
fail:
  free(roots);
  graph_free(g);
  return NULL;
}

/* A result of a node: the node that takes it already, or a new one. (Rows are taken by one node only, whose size is a symbol of it.) */
static uint32_t result_of(graph *g, uint32_t node, uint32_t index, graph_type type, uint32_t site) {
  for (uint32_t i = node + 1; i < g->n; i++)
    if (g->nodes[i].kind == NODE_PROJ && g->nodes[i].in[0] == node && g->nodes[i].payload.index == index) return i;
  return graph_proj(g, node, index, type, site);
}

static bool grad_loop(control_grad *c, op_refusal *why) {
  graph *g = c->g;
  graph_node n = g->nodes[c->node];
  uint32_t made = n.payload.regions[1]->noutputs;
  loop_grad l = {.ncarries = graph_loop_carries(&n)};
  l.ncaptured = n.nin - l.ncarries;
  size_t most = (size_t)n.nin + made + 1;
  uint32_t *lists = calloc(8 * most, sizeof *lists), *kept = lists, *given_rows = lists + most, *cts = lists + 2 * most;
  uint32_t *float_carries = lists + 4 * most, *wanted = lists + 5 * most;
  graph *body = NULL;
  loop_values v = {0};
  bool ok = false;
  *why = (op_refusal){.id = E_memory, .text = "out of memory"};
  l.weak = calloc(l.ncarries + 1, sizeof *l.weak);
  if (!lists || !l.weak) goto done;
  for (uint32_t k = l.ncarries; k < made; k++)
    if (c->given[k]) given_rows[l.nrows++] = k;
  for (uint32_t k = 0; k < l.ncarries; k++) {
    l.weak[k] = g->nodes[n.in[k]].type.weak;
    if (dtype_is_float((qn_dtype)g->nodes[n.in[k]].type.dtype)) float_carries[l.ncts++] = k;
  }
  for (uint32_t i = l.ncarries; i < n.nin; i++)
    if (c->wanted[i]) wanted[l.naccs++] = i;
  uint32_t rows = keep_carries(g, c->node);
  n = g->nodes[c->node];
  if (!rows || !values_open(&l, &v) || !(body = graph_copy(n.payload.regions[1])) || !graph_prove(body)) goto done;
  l.body = body;
  body->noutputs = l.ncarries;
  graph_dce(body);
  l.block = graph_loop_slots(&n) ? graph_loop_slots(&n) : KEPT_LEAST;
  if (!(l.back = backward_body(c, n.payload.regions[1], &l, given_rows, why))) goto done;
  *why = (op_refusal){.id = E_memory, .text = "out of memory"};
  uint32_t results = n.payload.regions[1]->noutputs;
  uint32_t turns = result_of(g, c->node, results, (graph_type){.dtype = WEAK_INT, .weak = true}, n.site);
  v.stride = result_of(g, c->node, results + 1, (graph_type){.dtype = WEAK_INT, .weak = true}, n.site);
  for (uint32_t k = 0; k < l.ncarries; k++)
    if (!(kept[k] = result_of(g, c->node, rows + k, g->nodes[n.in[k]].type, n.site))) goto done;
  memcpy(v.captured, n.in + l.ncarries, l.ncaptured * sizeof *v.captured);
  for (uint32_t k = 0; k < l.nrows; k++) v.row_cts[k] = c->given[given_rows[k]];
  for (uint32_t k = 0; k < l.ncts; k++) {
    uint32_t carry = float_carries[k];
    v.cts[k] = c->given[carry] ? c->given[carry] : zeros(g, n.in[carry]);
  }
  for (uint32_t k = 0; k < l.naccs; k++) v.cts[l.ncts + k] = zeros(g, n.in[wanted[k]]);
  if (!turns || !v.stride || g->failed || !reverse_loop(&l, g, &v, turns, kept, cts)) goto done;
  for (uint32_t k = 0; k < l.ncts; k++)
    if (c->wanted[float_carries[k]]) c->out[float_carries[k]] = cts[k];
  for (uint32_t k = 0; k < l.naccs; k++) c->out[wanted[k]] = cts[l.ncts + k];
  ok = true;
done:
  if (l.back) graph_free(l.back);
  graph_free(body);
  values_close(&v);
  free(lists);
  free(l.weak);
  return ok;
}

bool grad_control(control_grad *c, op_refusal *why) {
  return c->g->nodes[c->node].kind == NODE_IF ? grad_branch(c, why) : grad_loop(c, why);
}
