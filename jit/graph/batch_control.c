/* Batches of branches and loops (batch_control of batch.h): the counterpart of a branch or loop is a branch or loop.
 *
 * Where all lanes take the same way (they share a branch's predicate, or a loop's), the branch or loop stays one, and its regions work on
 * all lanes: a region's graph is inlined into a new graph, on tracers of one lane, and batched there.
 *
 * Where lanes take different ways, they are computed one after the other,
 *
 *     for lane in 0..lanes { the branch or loop on this lane's operands }
 *
 * and the rows that this loop keeps are the results of all lanes. So each lane runs only its own arm or turns, fails only where it would
 * fail alone, and gets the bits that it would get alone.
 */
#include "jit/graph/batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/graph/inline.h"
#include "jit/graph/region_builder.h"
#include "lang/error.h"

static bool refuse(op_refusal *why, const char *what) {
  why->id = E_not_batched;
  snprintf(why->text, sizeof why->text, "vmap: %s", what);
  return false;
}
static bool short_of_memory(graph_batch *b) {
  b->g->failed = true; /* batch.c makes the error of it */
  return false;
}

/* The counterpart of a branch or loop; NULL before it has one. */
static batched_regions *results_of(const graph_batch *b, uint32_t node) {
  batched_regions *x = b->regions;
  while (x && x->node != node) x = x->next;
  return x;
}

/* Notes `made`, the counterpart of branch or loop `node` with n results. NULL when memory is short. */
static batched_regions *results_new(graph_batch *b, uint32_t node, uint32_t made, uint32_t n) {
  batched_regions *x = made ? results_of(b, node) : NULL;
  if (!x && made && (x = arena_alloc(&b->memory, sizeof *x))) {
    *x = (batched_regions){.node = node, .next = b->regions};
    b->regions = x;
  }
  if (!x) return NULL;
  x->made = made;
  x->in_turn = false;
  x->n = n;
  x->whole = arena_alloc(&b->memory, (n + 1) * sizeof *x->whole);
  x->differs = arena_alloc(&b->memory, (n + 1) * sizeof *x->differs);
  return x->whole && x->differs ? x : NULL;
}

/* Sets *t to the type [lanes, shape] for a value of one lane. False: it would have too many axes. */
static bool whole_type(qn_dim lanes, const graph_type *lane, graph_type *t) {
  *t = *lane;
  t->weak = false;
  if (lane->rank == ARRAY_MAX_RANK) return false;
  memmove(t->shape + 1, lane->shape, lane->rank * sizeof *t->shape);
  t->shape[0] = lanes;
  t->rank++;
  return true;
}

/* The counterpart of a node; 0 where all lanes have the same value. */
static uint32_t whole(const graph_batch *b, uint32_t node) {
  uint32_t w = node < b->cap ? b->whole[node] : 0;
  return w & BATCH_SHARED ? 0 : w;
}

/* ---- all lanes take the same way ---------------------------------------------------------------------------------------------- */

/* A region for all lanes, while it is being made. */
typedef struct lane_arm {
  graph *g; /* owned; the batch is one of this graph */
  graph_batch batch;
  uint32_t *outs; /* owned: nodes of one lane's results, then of its inputs */
} lane_arm;

static void lane_arm_free(lane_arm *a) {
  if (a->batch.g) batch_end(&a->batch);
  graph_free(a->g);
  free(a->outs);
  *a = (lane_arm){0};
}

/* Gives the region's graph an input for each input of `arm` and sets args[] to what stands for these in one lane. */
static bool lane_arm_inputs(const graph_batch *b, size_map *sizes, const bool *inputs, lane_arm *a, uint32_t *args,
                            op_refusal *why) {
  const graph *arm = sizes->from;
  qn_dim lanes = b->lanes;
  for (uint32_t i = 0; i < arm->ninputs && lanes < 0;
       i++) /* how many lanes there are is a size of the first input that differs */
    if (inputs[i]) lanes = dim_symbol(&a->g->dims, DIM_FROM_INPUT, i, 0, dim_hint(&b->g->dims, b->lanes), NULL);
  batch_begin(&a->batch, a->g, NULL, lanes, 1);
  for (uint32_t i = 0; i < arm->ninputs; i++) {
    graph_type t = arm->nodes[arm->inputs[i]].type, all;
    size_map_input(sizes, &t, inputs[i]);
    if (!inputs[i]) {
      if (!(args[i] = graph_input(a->g, t, 0))) return false;
      continue;
    }
    if (!whole_type(lanes, &t, &all)) return refuse(why, "a value in a branch would have too many axes");
    uint32_t input = graph_input(a->g, all, 0);
    args[i] = t.weak ? graph_const_scalar(a->g, (qn_dtype)t.dtype, true, 0, 0, 0) : batch_lane(&a->batch, input, 0);
    if (!args[i] || (t.weak && !batch_bind(&a->batch, args[i], input))) return false;
  }
  return true;
}

/* Inlines a region and batches it; `inputs` says which of its inputs differ from lane to lane. False with `why` or when memory is
 * short; lane_arm_free in any case. */
static bool lane_arm_make(const graph_batch *b, const graph *arm, const bool *inputs, lane_arm *a, op_refusal *why) {
  a->g = graph_new(NULL);
  a->outs = calloc((size_t)arm->noutputs + arm->ninputs + 1, sizeof *a->outs);
  uint32_t *none = calloc(arm->n, sizeof *none), *args = a->outs + arm->noutputs, culprit;
  size_map sizes = {0};
  bool ok = a->g && a->outs && none && size_map_begin(&sizes, a->g, arm, none) &&
            lane_arm_inputs(b, &sizes, inputs, a, args, why) && graph_inline(a->g, arm, args, a->outs) &&
            batch_advance(&a->batch, &culprit, why);
  size_map_end(&sizes);
  free(none);
  return ok;
}

/* Ends the batch and returns the region, whose results the caller has added; owned. NULL when memory is short. */
static graph *lane_arm_done(lane_arm *a) {
  graph *g = a->g;
  batch_end(&a->batch);
  graph_dce(g);
  a->g = NULL;
  if (!g->failed) return g;
  graph_free(g);
  return NULL;
}

/* The counterpart of a branch or loop that stays one, while it is being made. */
typedef struct same_way {
  graph_node n; /* the lane's branch or loop, a copy */
  /* how many results the regions have; how many operands of the node are no inputs of the regions (the predicate) */
  uint32_t nresults, before;
  bool *inputs, *results; /* by input of the regions, and by result: does it differ from lane to lane? */
  uint32_t *in;           /* operands of the counterpart */
  lane_arm arms[2];
  graph *parts[2];
} same_way;

static void same_way_free(same_way *s) {
  for (int k = 0; k < 2; k++) lane_arm_free(&s->arms[k]);
  free(s->inputs);
  free(s->in);
}

static bool same_way_begin(const graph_batch *b, uint32_t node, same_way *s) {
  *s = (same_way){.n = b->g->nodes[node]};
  s->before = s->n.kind == NODE_IF;
  s->nresults = s->n.payload.regions[1]->noutputs;
  s->inputs = calloc((size_t)s->n.nin + s->nresults + 1, sizeof *s->inputs);
  s->in = calloc(s->n.nin + (size_t)1, sizeof *s->in);
  if (!s->inputs || !s->in) return false;
  s->results = s->inputs + s->n.nin;
  for (uint32_t k = s->before; k < s->n.nin; k++) s->inputs[k - s->before] = whole(b, s->n.in[k]) != 0;
  return true;
}

/* Makes region `part` for all lanes, and sets results[i] where result i differs from lane to lane. False as lane_arm_make. */
static bool same_way_part(const graph_batch *b, same_way *s, int part, bool *results, op_refusal *why) {
  const graph *region = s->n.payload.regions[part];
  lane_arm_free(&s->arms[part]);
  if (!lane_arm_make(b, region, s->inputs, &s->arms[part], why)) return false;
  for (uint32_t i = 0; i < region->noutputs; i++)
    results[i] |= batch_whole(&s->arms[part].batch, s->arms[part].outs[i]) != 0;
  return true;
}

/* Appends the counterpart, of the finished regions `parts`, which it takes over. Returns 0 when memory is short. */
static uint32_t same_way_node(graph_batch *b, same_way *s) {
  for (uint32_t k = 0; k < s->n.nin; k++) {
    bool all = k >= s->before && s->inputs[k - s->before];
    s->in[k] = all ? batch_whole_always(b, s->n.in[k]) : batch_shared_node(b, s->n.in[k]);
    if (!s->in[k]) s->parts[0] = (graph_free(s->parts[0]), NULL);
  }
  return graph_regions(b->g, (graph_kind)s->n.kind, s->in, s->n.nin, s->parts[0], s->parts[1], s->n.attr, s->n.site);
}

static bool same_branch(graph_batch *b, uint32_t node, op_refusal *why) {
  same_way s;
  uint32_t made = 0;
  bool ok = same_way_begin(b, node, &s);
  for (int part = 0; part < 2 && ok; part++) {
    lane_arm *a = &s.arms[part];
    ok = same_way_part(b, &s, part, s.results, why);
    /* Results that all lanes share become results of the counterpart, too, so that nothing depends on the lane's own node. */
    for (uint32_t k = 0; k < s.nresults && ok; k++) ok = graph_output(a->g, batch_whole_always(&a->batch, a->outs[k]));
    ok = ok && (s.parts[part] = lane_arm_done(a)) != NULL;
  }
  if (ok)
    made = same_way_node(b, &s);
  else
    graph_free(s.parts[0]);
  batched_regions *r = results_new(b, node, made, s.nresults);
  for (uint32_t k = 0; k < s.nresults && r; k++) r->differs[k] = true;
  same_way_free(&s);
  if (!r && !why->id) return short_of_memory(b);
  return r != NULL;
}

/* Permutes the rows that a loop for all lanes has kept from [turns, lanes, ..] to [lanes, turns, ..]. */
static uint32_t rows_of_lanes(graph_batch *b, uint32_t rows) {
  graph *g = b->g;
  op_attr attr = {.n = g->nodes[rows].type.rank, .d = {1, 0}};
  for (int i = 2; i < attr.n; i++) attr.d[i] = i;
  return graph_op(g, OP_permute, &rows, 1, &attr, g->nodes[rows].site);
}

/* Has something been refused that only all lanes at once cannot do, such as a host int that differs between them? Then `why` is emptied. */
static bool one_lane_can(op_refusal *why) {
  if (why->id != E_not_batched && why->id != E_rank) return false;
  *why = (op_refusal){0};
  return true;
}

/* Makes a loop whose lanes all make the same number of turns. Where they do not, nothing is made and *parted is set. */
static bool same_loop(graph_batch *b, uint32_t node, bool *parted, op_refusal *why) {
  same_way s;
  bool ok = same_way_begin(b, node, &s), more = ok, header = false;
  uint32_t carries = ok ? graph_loop_carries(&s.n) : 0, made = 0;
  /* a carry that is shared before a turn may differ after it, and then so may others after the next one */
  while (more && ok) {
    more = false;
    ok = same_way_part(b, &s, 1, s.results, why);
    for (uint32_t k = 0; k < carries && ok; k++) {
      more |= s.results[k] && !s.inputs[k];
      s.inputs[k] |= s.results[k];
      s.results[k] = s.inputs[k];
    }
  }
  ok = ok && same_way_part(b, &s, 0, &header, why);
  if ((ok && header) || (!ok && one_lane_can(why))) {
    *parted = true;
    same_way_free(&s);
    return true;
  }
  if (ok) { /* results keep their numbers, so those that all lanes share become results of the body as they are */
    graph *body = s.arms[1].g;
    for (uint32_t k = 0; k < s.nresults && ok; k++)
      ok = graph_output(body,
                        s.results[k] ? batch_whole_always(&s.arms[1].batch, s.arms[1].outs[k]) : s.arms[1].outs[k]);
    ok = ok && (s.parts[1] = lane_arm_done(&s.arms[1])) != NULL && graph_output(s.arms[0].g, s.arms[0].outs[0]) &&
         (s.parts[0] = lane_arm_done(&s.arms[0])) != NULL;
  }
  if (ok)
    made = same_way_node(b, &s);
  else
    graph_free(s.parts[1]);
  batched_regions *r = results_new(b, node, made, s.nresults + 2);
  if (r) memcpy(r->differs, s.results, s.nresults * sizeof *r->differs);
  same_way_free(&s);
  if (!r && !why->id) return short_of_memory(b);
  return r != NULL;
}

/* ---- lanes that take different ways ----------------------------------------------------------------------------------------- */

/* Sets `in` to the operands of branch or loop `n` inside the body of the loop over the lanes: row `lane` of an operand that differs
 * from lane to lane, else the operand itself. They are the body's operands from number 1 on. False: memory is short. */
static bool lane_operands(const graph_batch *b, region_builder *body, const graph_node *n, uint32_t lane,
                          uint32_t *in) {
  for (int k = 0; k < n->nin; k++) {
    in[k] = builder_input(body, 1, 1 + (uint32_t)k);
    if (whole(b, n->in[k])) in[k] = graph_row(body->part[1], in[k], lane, b->g->nodes[n->in[k]].type.weak);
    if (!in[k]) return false;
  }
  return true;
}

/* How many lanes there are, as a host int. */
static uint32_t number_of_lanes(graph_batch *b, uint32_t site) {
  graph *g = b->g;
  if (b->lanes >= 0) return graph_weak_int(g, b->lanes);
  uint32_t one = graph_const_scalar(g, DTYPE_INDEX, false, 0, 1, site); /* the sum of as many ones */
  op_attr shape = graph_shape_attr(1, &b->lanes), sum = {.axes = 1}, weak = {.dtype = WEAK_INT, .flags = ATTR_WEAK};
  uint32_t ones = one ? graph_op(g, OP_broadcast, &one, 1, &shape, site) : 0;
  uint32_t total = ones ? graph_op(g, OP_sum, &ones, 1, &sum, site) : 0;
  return total ? graph_op(g, OP_cast, &total, 1, &weak, site) : 0;
}

/* Makes a branch or loop whose lanes take different ways: a loop over the lanes. */
static bool lanes_in_turn(graph_batch *b, uint32_t node) {
  graph *g = b->g;
  graph_node n = g->nodes[node];
  uint32_t carries = n.kind == NODE_LOOP ? graph_loop_carries(&n) : graph_nresults(&n);
  region_builder body;
  builder_open(&body, g);
  uint32_t *in = builder_list(&body, n.nin);
  (void)builder_operand(&body, graph_weak_int(g, 0));
  for (int k = 0; k < n.nin; k++)
    (void)builder_operand(&body, whole(b, n.in[k]) ? whole(b, n.in[k]) : batch_shared_node(b, n.in[k]));
  uint32_t last = builder_operand(&body, number_of_lanes(b, n.site));
  if (!body.failed) {
    graph *head = body.part[0], *turn = body.part[1];
    uint32_t lane = builder_input(&body, 1, 0), inner = 0;
    uint32_t more = graph_op2(head, OP_lt, builder_input(&body, 0, 0), builder_input(&body, 0, last));
    uint32_t next = graph_count(turn, OP_add, lane, graph_weak_int(turn, 1));
    builder_outputs(&body, 0, &more, 1);
    builder_outputs(&body, 1, &next, 1);
    if (!body.failed && lane_operands(b, &body, &n, lane, in))
      inner = graph_regions(turn, (graph_kind)n.kind, in, n.nin, graph_copy(n.payload.regions[0]),
                            graph_copy(n.payload.regions[1]), n.attr, 0);
    for (uint32_t k = 0; k < carries && inner; k++) {
      graph_type t = n.kind == NODE_LOOP ? turn->nodes[in[k]].type : graph_result_type(&n, k);
      if (!graph_output(turn, graph_proj(turn, inner, k, t, 0))) inner = 0;
    }
    body.failed |= !inner;
  }
  op_attr attr = graph_loop_attr(1, 0);
  batched_regions *r =
      results_new(b, node, builder_close(&body, 0, &attr, n.site), carries + (n.kind == NODE_LOOP ? 2 : 0));
  for (uint32_t k = 0; k < carries && r; k++) r->differs[k] = true;
  if (r) r->in_turn = true;
  return r || short_of_memory(b);
}

/* ---- the rules ------------------------------------------------------------------------------------------------------------------ */

/* Are all sizes of the results of a branch known? (Those of a loop's carries are those of its operands.) */
static bool known_sizes(const graph_node *n) {
  bool known = true;
  for (uint32_t k = 0; n->kind == NODE_IF && k < graph_nresults(n) && known; k++) {
    graph_type t = graph_result_type(n, k);
    for (int a = 0; a < t.rank; a++) known &= t.shape[a] >= 0;
  }
  return known;
}

static bool batch_regions(graph_batch *b, uint32_t node, op_refusal *why) {
  const graph_node *n = &b->g->nodes[node];
  if (n->kind == NODE_IF && !whole(b, n->in[0])) return same_branch(b, node, why);
  bool parted = n->kind == NODE_IF;
  if (parted && !known_sizes(n)) return refuse(why, "the sizes of what a branch gives are not known");
  if (!parted && !same_loop(b, node, &parted, why)) return false;
  return !parted || lanes_in_turn(b, node);
}

/* The rows that the lane's loop keeps as node i are as many as those that the loop for all lanes keeps as node `made`. */
static bool same_number_of_rows(graph_batch *b, uint32_t i, uint32_t made) {
  return batch_same_size(b, b->g->nodes[i].type.shape[0], b->g->nodes[made].type.shape[0]);
}

/* Sets r->whole[k], as graph_batch.whole, for node i, which takes result k of a branch or loop. False as batch_control. */
static bool batch_result(graph_batch *b, uint32_t i, uint32_t k, batched_regions *r, op_refusal *why) {
  graph *g = b->g;
  const graph_node n = g->nodes[r->node];
  graph_type t = g->nodes[i].type, all;
  uint32_t site = g->nodes[i].site, made = 0, carries = n.kind == NODE_LOOP ? graph_loop_carries(&n) : r->n;
  bool row = n.kind == NODE_LOOP && k >= carries && k < n.payload.regions[1]->noutputs;
  if (r->whole[k]) return true;
  if (r->in_turn && !r->differs[k])
    return refuse(why, "how many turns a loop makes differs from lane to lane, and so do the rows that it keeps");
  if (row) memmove(t.shape, t.shape + 1, --t.rank * sizeof *t.shape);
  if (r->in_turn) { /* indexed with 0 .. lanes - 1, the rows get an axis of known size */
    op_attr iota = {.dtype = DTYPE_INDEX, .axes = 1, .n = 1, .d = {b->lanes}};
    uint32_t rows = graph_proj(g, r->made, 1 + k, t, site);
    uint32_t lanes = rows ? graph_op(g, OP_iota, NULL, 0, &iota, site) : 0;
    made = lanes ? graph_row(g, rows, lanes, false) : 0;
  } else if (!r->differs[k]) {
    made = graph_proj(g, r->made, k, t, site);
    if (made && row && !same_number_of_rows(b, i, made)) made = 0;
    if (made) made |= BATCH_SHARED;
  } else {
    if (!whole_type(b->lanes, &t, &all)) return refuse(why, "a value in a branch would have too many axes");
    made = graph_proj(g, r->made, k, all, site);
    if (made && row) made = same_number_of_rows(b, i, made) ? rows_of_lanes(b, made) : 0;
  }
  return (r->whole[k] = made) || short_of_memory(b);
}

bool batch_control(graph_batch *b, uint32_t i, op_refusal *why) {
  graph *g = b->g;
  const graph_node n = g->nodes[i];
  if (n.kind == NODE_TAP) return refuse(why, "an effect cannot be batched");
  bool result = n.kind == NODE_PROJ;
  uint32_t node = result ? n.in[0] : i;
  batched_regions *r = results_of(b, node);
  /* a loop may have come to keep more rows since its counterpart was made: then another one is made */
  if (!r || r->n != graph_nresults(&g->nodes[node])) {
    if (!batch_regions(b, node, why) || !(r = results_of(b, node))) return false;
  }
  if (result && !batch_result(b, i, n.payload.index, r, why)) return false;
  if (!arena_room(&b->memory, (void **)&b->whole, &b->cap, g->n, sizeof *b->whole)) return short_of_memory(b);
  b->whole[i] = result ? r->whole[n.payload.index] : r->made;
  return true;
}
