/* Batches of branches and loops (batch_control of batch.h): the counterpart of a branch or loop is a branch or loop.
 *
 * Where all lanes take the same way (they share a branch's predicate, or a loop's), the branch or loop stays one, and its regions work on
 * all lanes: a region's graph is inlined into a new graph, on tracers of one lane, and batched there.
 *
 * Where lanes take different ways:
 *
 * - Of a branch whose arms are cheap and cannot fail, all lanes compute both arms, and select. So they do with other arms where what comes of them is
 *   differentiated (graph_batch.together); what could fail there gets operands with which it does not, in lanes that do not take the arm.
 * - Other arms are computed by the lanes that take them: their operands are gathered, and the results are stored in the rows of these
 *   lanes. An arm that no lane takes is not run.
 * - A loop makes turns until all lanes are done. A carry of a lane that is done keeps its value. What the body computes from such values
 *   is not used, so nothing in it may fail there. Carries that do not differ as long as lanes are at work stay one for all lanes, and
 *   beside each goes what it was when a lane was done. Rows that are kept, as for gradients, are those of all turns; a lane's own are the
 *   first of them, as many as the turns that it has made, which are counted. (Nothing reads others: the number of rows is no size that a
 *   lane's results have; but the most turns that loops in it have made, which are none in a lane that is done.)
 * - Where that is not possible, the lanes are computed one after the other,
 *
 *       for lane in 0..lanes { the branch or loop on this lane's operands }
 *
 *   and the rows that this loop keeps are the results of all lanes.
 *
 * So each lane has the effects of its own arm or turns alone, fails only where it would fail alone, and gets the bits that it would get
 * alone.
 */
#include "jit/graph/batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/graph/grad.h"
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
  x->in_turn = x->parted = x->rows = false;
  x->at = NULL;
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

/* As batch_whole_always, also of nodes that are being batched. */
static uint32_t whole_always(graph_batch *b, uint32_t node) {
  uint32_t w = whole(b, node);
  return w ? w : batch_whole_always(b, node);
}

/* ---- all lanes take the same way ---------------------------------------------------------------------------------------------- */

/* A region for all lanes, while it is being made. */
typedef struct lane_arm {
  graph *g; /* owned; the batch is one of this graph */
  graph_batch batch;
  uint32_t *outs; /* owned: nodes of one lane's results, then of its inputs */
} lane_arm;

/* A region may have an input more, behind the others, with an element for each lane. */
typedef enum more_input {
  MORE_NONE,   /* (but which lanes are at work, if the batch around it knows) */
  MORE_ACTIVE, /* a bool: is the lane at work? */
  MORE_NUMBER  /* an i64: which lane of the batch around it is it? The region is for some of them */
} more_input;

static void lane_arm_free(lane_arm *a) {
  if (a->batch.g) batch_end(&a->batch);
  graph_free(a->g);
  free(a->outs);
  *a = (lane_arm){0};
}

/* Gives the region's graph an input for each input of `arm` and sets args[] to what stands for these in one lane. */
static bool lane_arm_inputs(const graph_batch *b, size_map *sizes, const bool *inputs, more_input more, lane_arm *a,
                            uint32_t *args, op_refusal *why) {
  const graph *arm = sizes->from;
  const bool masked = more == MORE_NONE && b->masked;
  if (more == MORE_NONE && b->active) more = MORE_ACTIVE;
  qn_dim lanes = more == MORE_NUMBER ? -1 : b->lanes;
  for (uint32_t i = 0; i < arm->ninputs + (more != MORE_NONE) && lanes < 0;
       i++) /* how many lanes there are is a size of the first input that differs */
    if (i == arm->ninputs || inputs[i])
      lanes = dim_symbol(&a->g->dims, DIM_FROM_INPUT, i, 0, dim_hint(&b->g->dims, b->lanes), NULL);
  batch_begin(&a->batch, a->g, NULL, lanes, 1);
  a->batch.region = true;
  a->batch.together = b->together;
  a->batch.bounds = b->bounds;
  a->batch.shared_first = b->shared_first;
  a->batch.linear = b->linear;
  a->batch.drawn = b->drawn;
  a->batch.masked = masked;
  for (uint32_t i = 0; i < arm->ninputs; i++) {
    graph_type t = arm->nodes[arm->inputs[i]].type, all;
    size_map_input(sizes, &t, inputs[i]);
    if (!inputs[i]) {
      if (!(args[i] = graph_input(a->g, t, 0))) return false;
      continue;
    }
    if (t.weak && graph_makes_sizes(arm, i)) return refuse(why, "a size differs from lane to lane");
    if (!whole_type(lanes, &t, &all)) return refuse(why, "a value in a branch would have too many axes");
    uint32_t input = graph_input(a->g, all, 0);
    args[i] = t.weak ? graph_const_scalar(a->g, (qn_dtype)t.dtype, true, 0, 0, 0) : batch_lane(&a->batch, input, 0);
    if (!args[i] || (t.weak && !batch_bind(&a->batch, args[i], input))) return false;
  }
  if (more == MORE_NONE) return true;
  graph_type each = {.dtype = more == MORE_ACTIVE ? QN_bool : DTYPE_INDEX, .rank = 1, .shape = {lanes}};
  uint32_t input = graph_input(a->g, each, 0);
  if (more == MORE_ACTIVE) a->batch.active = input;
  return input != 0;
}

/* Inlines a region and batches it; `inputs` says which of its inputs differ from lane to lane. False with `why` or when memory is
 * short; lane_arm_free in any case. */
static bool lane_arm_make(const graph_batch *b, const graph *arm, const bool *inputs, more_input more, lane_arm *a,
                          op_refusal *why) {
  a->g = graph_new(NULL);
  a->outs = calloc((size_t)arm->noutputs + arm->ninputs + 1, sizeof *a->outs);
  uint32_t *none = calloc(arm->n, sizeof *none), *args = a->outs + arm->noutputs, culprit;
  size_map sizes = {0};
  if (a->g) a->g->tail = arm->tail;
  bool ok = a->g && a->outs && none && size_map_begin(&sizes, a->g, arm, none) &&
            lane_arm_inputs(b, &sizes, inputs, more, a, args, why) && graph_inline(a->g, arm, args, a->outs, true) &&
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
  bool *inputs, *results;    /* by input of the regions, and by result: does it differ from lane to lane? */
  uint32_t *in;              /* operands of the counterpart */
  uint32_t *shared, nshared; /* owned: further operands, results of the lane's node (take_shared) */
  lane_arm arms[2];
  graph *parts[2];
} same_way;

static void same_way_free(same_way *s) {
  for (int k = 0; k < 2; k++) lane_arm_free(&s->arms[k]);
  free(s->inputs);
  free(s->in);
  free(s->shared);
}

static bool same_way_begin(const graph_batch *b, uint32_t node, same_way *s) {
  *s = (same_way){.n = b->g->nodes[node]};
  s->before = s->n.kind == NODE_IF;
  s->nresults = s->n.payload.regions[1]->noutputs;
  s->inputs = calloc((size_t)s->n.nin + s->nresults + 1, sizeof *s->inputs);
  s->in = calloc(s->n.nin + 2 * (size_t)s->nresults + 2, sizeof *s->in);
  s->shared = calloc(2 * (size_t)s->nresults + 1, sizeof *s->shared);
  if (!s->inputs || !s->in || !s->shared) return false;
  s->results = s->inputs + s->n.nin;
  for (uint32_t k = s->before; k < s->n.nin; k++) s->inputs[k - s->before] = whole(b, s->n.in[k]) != 0;
  return true;
}

/* Makes region `part` for all lanes, and sets results[i] where result i differs from lane to lane. False as lane_arm_make. */
static bool same_way_part(const graph_batch *b, same_way *s, int part, bool *results, op_refusal *why) {
  const graph *region = s->n.payload.regions[part];
  lane_arm_free(&s->arms[part]);
  if (!lane_arm_make(b, region, s->inputs, MORE_NONE, &s->arms[part], why)) return false;
  for (uint32_t i = 0; i < region->noutputs; i++)
    results[i] |= batch_whole(&s->arms[part].batch, s->arms[part].outs[i]) != 0;
  return true;
}

/* Appends the counterpart, of the finished regions `parts`, which it takes over. Returns 0 when memory is short. */
static uint32_t same_way_node(graph_batch *b, same_way *s) {
  for (uint32_t k = 0; k < s->n.nin; k++) {
    bool all = k >= s->before && s->inputs[k - s->before];
    s->in[k] = all ? whole_always(b, s->n.in[k]) : batch_shared_node(b, s->n.in[k]);
    if (!s->in[k]) s->parts[0] = (graph_free(s->parts[0]), NULL);
  }
  uint32_t nin = s->n.nin;
  if (b->active) s->in[nin++] = b->active;
  for (uint32_t k = 0; k < s->nshared; k++) s->in[nin++] = s->shared[k];
  return graph_regions(b->g, (graph_kind)s->n.kind, s->in, (int)nin, s->parts[0], s->parts[1], s->n.attr, s->n.site);
}

/* May the lane's branch give what its lanes share (shared_first)? */
static bool gives_shared(const graph_batch *b, uint32_t node) {
  const graph_node *n = &b->g->nodes[node];
  bool gives = b->shared_first && !graph_is_rule(n);
  for (int k = 0; k < n->nin && gives; k++) gives = n->in[k] >= b->cap || !(b->whole[n->in[k]] & BATCH_SHARED);
  return gives;
}

/* Appends inputs, which the region does not read, for n shared results of arm `from` of the lane's branch, whose numbers are given. False: memory
 * is short. */
static bool take_others(const same_way *s, int from, lane_arm *a, const uint32_t *taken, uint32_t n) {
  const graph *arm = s->n.payload.regions[from];
  for (uint32_t k = 0; k < n; k++) {
    graph_type t;
    if (!size_map_type_beside(a->g, a->outs + s->nresults, arm, arm->outputs[taken[k]], &t) || !graph_input(a->g, t, 0))
      return false;
  }
  return true;
}

/* The node that takes result `k` of the lane's branch, of its arm `part`. 0: memory is short. */
static uint32_t lane_result(graph *g, uint32_t node, int part, uint32_t k) {
  const graph_node n = g->nodes[node];
  const graph *arm = n.payload.regions[part];
  graph_type t;
  for (uint32_t i = node + 1; i < g->n; i++)
    if (g->nodes[i].kind == NODE_PROJ && g->nodes[i].in[0] == node && g->nodes[i].payload.index == k) return i;
  return size_map_type_beside(g, n.in + 1, arm, arm->outputs[k], &t) ? graph_proj(g, node, k, t, n.site) : 0;
}

/* What lanes share in arm `part`, and its results for all lanes read, becomes inputs of it: it is computed in the lane's arm, whose results have it.
 * Their numbers are appended to `taken`. False: memory is short. */
static bool take_shared(graph_batch *b, uint32_t node, same_way *s, int part, uint32_t *taken) {
  lane_arm *a = &s->arms[part];
  graph *g = a->g;
  const uint32_t before = s->nshared; /* those of the other arm */
  if (!take_others(s, 0, a, taken, before)) return false;
  const uint32_t n = g->n;
  uint32_t *of = calloc(n, sizeof *of); /* by node: 1 + which result it is */
  bool *read = calloc(n, sizeof *read), ok = of && read;
  for (uint32_t k = 0; k < s->nresults && ok; k++) {
    const uint32_t v = a->outs[k];
    const graph_type *t = &g->nodes[v].type;
    bool may = !(v < a->batch.cap && a->batch.whole[v]) && dtype_is_float((qn_dtype)t->dtype) && !t->weak &&
               g->nodes[v].kind != NODE_INPUT && g->nodes[v].kind != NODE_CONST;
    for (int i = 0; i < t->rank && may; i++) may = !dim_is_late(&g->dims, t->shape[i]);
    if (may) of[v] = 1 + k;
  }
  for (uint32_t k = 0; k < g->noutputs && ok; k++) read[g->outputs[k]] = true;
  for (uint32_t v = n; v-- > 1 && ok;)
    for (int k = 0; read[v] && !of[v] && k < g->nodes[v].nin; k++) read[g->nodes[v].in[k]] = true;
  for (uint32_t v = 1; v < n && ok; v++) {
    if (!read[v] || !of[v]) continue;
    taken[s->nshared] = of[v] - 1;
    const uint32_t from = lane_result(b->g, node, part, of[v] - 1);
    ok = from && graph_make_input(g, v);
    s->shared[s->nshared++] = from;
  }
  free(of);
  free(read);
  return ok && (part == 0 || take_others(s, 1, &s->arms[0], taken + before, s->nshared - before));
}

static bool same_branch(graph_batch *b, uint32_t node, op_refusal *why) {
  same_way s = {0};
  uint32_t made = 0, nresults = graph_nresults(&b->g->nodes[node]);
  const bool gives = gives_shared(b, node);
  bool ok = (!gives || grad_expose(b->g, node)) && same_way_begin(b, node, &s);
  uint32_t *taken = ok ? calloc(2 * (size_t)s.nresults + 1, sizeof *taken) : NULL;
  ok = taken != NULL;
  for (int part = 0; part < 2 && ok; part++) ok = same_way_part(b, &s, part, s.results, why);
  for (int part = 0; part < 2 && ok; part++) {
    lane_arm *a = &s.arms[part];
    /* Results that all lanes share become results of the counterpart, too, so that nothing depends on the lane's own node. They get the axis of the
     * lanes; but a host number stays one, which must fit the dtype of an array beside it. */
    for (uint32_t k = 0; k < nresults && ok; k++) {
      s.results[k] |= b->shared_first || graph_is_rule(&s.n) || !a->g->nodes[a->outs[k]].type.weak;
      ok = graph_output(a->g, s.results[k] ? batch_whole_always(&a->batch, a->outs[k])
                                           : batch_shared_node(&a->batch, a->outs[k]));
    }
    ok = ok && (!gives || take_shared(b, node, &s, part, taken));
  }
  free(taken);
  for (int part = 0; part < 2 && ok; part++) ok = (s.parts[part] = lane_arm_done(&s.arms[part])) != NULL;
  if (ok)
    made = same_way_node(b, &s);
  else
    for (int part = 0; part < 2; part++) graph_free(s.parts[part]);
  batched_regions *r = results_new(b, node, made, s.nresults);
  for (uint32_t k = 0; k < s.nresults && r; k++) r->differs[k] = k >= nresults || s.results[k];
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

/* Is any lane in the mask? As a condition. */
static uint32_t any_lane(graph *g, uint32_t mask) {
  op_attr all = {.axes = 1};
  return graph_op(g, OP_any, &mask, 1, &all, 0);
}

/* Condition `x` and whether any lane is in the mask: where none is, a loop need not end. */
static uint32_t and_any(graph *g, uint32_t x, uint32_t mask) {
  op_attr test = {.dtype = DTYPE_TEST};
  if (g->nodes[x].type.weak) x = graph_op(g, OP_fit, &x, 1, &test, 0);
  uint32_t any = x ? any_lane(g, mask) : 0;
  return any ? graph_op2(g, OP_bitand, x, any) : 0;
}

/* How many turns the counterpart of loop `node` makes at most: as many as each of its lanes. INT64_MAX: nobody has said, or asks for it. */
static int64_t most_turns(const graph_batch *b, uint32_t node) {
  return b->bounds ? graph_most_turns(b->g, node) : graph_loop_most(&b->g->nodes[node]);
}

static bool until_all_done(graph_batch *b, uint32_t node, const bool *inputs, bool *parted, op_refusal *why);

/* Makes a loop whose lanes all make the same number of turns, or which makes turns until all of them are done. Where that cannot be, nothing is
 * made and *parted is set. */
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
    bool made_or_not = !header || until_all_done(b, node, s.inputs, parted, why);
    same_way_free(&s);
    return made_or_not;
  }
  if (ok) { /* results keep their numbers, so those that all lanes share become results of the body as they are */
    graph *body = s.arms[1].g;
    for (uint32_t k = 0; k < s.nresults && ok; k++)
      ok = graph_output(body, s.results[k] ? batch_whole_always(&s.arms[1].batch, s.arms[1].outs[k])
                                           : batch_shared_node(&s.arms[1].batch, s.arms[1].outs[k]));
    uint32_t more_turns = batch_shared_node(&s.arms[0].batch, s.arms[0].outs[0]);
    if (b->masked) more_turns = and_any(s.arms[0].g, more_turns, s.arms[0].batch.active);
    ok = ok && (s.parts[1] = lane_arm_done(&s.arms[1])) != NULL && graph_output(s.arms[0].g, more_turns) &&
         (s.parts[0] = lane_arm_done(&s.arms[0])) != NULL;
  }
  const op_attr said = graph_loop_attr(carries, ok ? graph_loop_slots(&s.n) : 0, most_turns(b, node));
  if (ok && b->masked && said.n > 2) s.n.attr = &said;
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

/* where(mask, a, b) for a mask with an element for each lane; `a` and `b` may have no axis of the lanes. */
static uint32_t select_lanes(graph *g, uint32_t mask, uint32_t a, uint32_t b) {
  if (!a || !b) return 0;
  graph_type t = g->nodes[b].type;
  qn_dim shape[ARRAY_MAX_RANK] = {g->nodes[mask].type.shape[0]};
  for (int i = 1; i < t.rank; i++) shape[i] = 1;
  op_attr attr = graph_shape_attr(t.rank, shape);
  uint32_t wide = t.rank == 1 ? mask : graph_op(g, OP_reshape, &mask, 1, &attr, 0);
  return wide ? graph_op(g, OP_where, (uint32_t[]){wide, a, b}, 3, NULL, 0) : 0;
}

static double elements(const graph *g, uint32_t node) {
  const graph_type *t = &g->nodes[node].type;
  double n = 1;
  for (int a = 0; a < t->rank; a++) n *= (double)dim_hint(&g->dims, t->shape[a]);
  return n;
}

/* May a region of a node be inlined beside it? Numbers that are sizes in it must be constants or inputs there, the same for all lanes. */
static bool can_inline(const graph_batch *b, const graph_node *n, int part) {
  const graph *g = b->g;
  const dim_table *dims = &n->payload.regions[part]->dims;
  for (uint32_t i = 0; i < dims->n; i++) {
    const dim_expr *e = &dims->exprs[i];
    if (e->op != DIM_SYMBOL || e->source != DIM_FROM_SCALAR) continue;
    const uint32_t number = n->in[e->ref + (n->kind == NODE_IF)];
    const uint8_t kind = g->nodes[number].kind;
    if ((kind != NODE_CONST && kind != NODE_INPUT) || whole(b, number)) return false;
  }
  return true;
}

/* Can an arm be computed by lanes that do not take it, and if none takes it? (Sums of host ints do not count: where they fail, the call is made
 * again. Places that are known to lie inside are so where the arm is taken.) */
static bool is_plain(const graph *g) {
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    if (graph_kind_has_regions(n->kind) || n->kind == NODE_TAP) return false;
    const op_raises raises = n->kind == NODE_OP ? (op_raises)op_rows[n->op].raises : RAISES_never;
    if (raises == RAISES_bounds) return false;
    if (graph_fallible(g, i) && raises != RAISES_weak_range && !(n->type.weak && raises == RAISES_never)) return false;
  }
  return true;
}

/* Can an arm be computed by lanes that do not take it where these are told from the others? */
static bool is_maskable(const graph *g) {
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    const bool never =
        n->kind != NODE_OP || op_rows[n->op].raises == RAISES_never || op_rows[n->op].raises == RAISES_weak_range;
    if (n->kind == NODE_TAP || (n->type.weak && !never && graph_fallible(g, i))) return false;
    for (int k = 0; k < 2 && graph_kind_has_regions(n->kind); k++)
      if (!is_maskable(n->payload.regions[k])) return false;
  }
  return true;
}

/* Does computing an arm cost about as much as gathering its operands and storing its results, or less? */
static bool is_cheap(const graph *g) {
  enum { LEAST = 16, OPS = 16 }; /* elements that are moved, at the least; how many ops cost as much as moving one */
  double moved = LEAST, work = 0;
  if (!is_plain(g)) return false;
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    if (n->kind == NODE_INPUT) moved += elements(g, i);
    if (n->kind == NODE_INPUT || n->kind == NODE_CONST) continue;
    switch (op_rows[n->op].klass) {
    case CLASS_VIEW: break;
    case CLASS_REDUCE: work += elements(g, n->in[0]); break;
    case CLASS_POINTWISE: work += elements(g, i); break;
    default:
      if (n->op != OP_iota && n->op != OP_index) return false;
      work += elements(g, i);
    }
  }
  for (uint32_t k = 0; k < g->noutputs; k++) moved += elements(g, g->outputs[k]);
  return work <= OPS * moved;
}

/* Is result k of a branch the same value on both ways, and do all lanes share it? Then so is it for all lanes, whichever way each of them takes. Its
 * counterpart, as graph_batch.whole; 0: it is not, or memory is short. */
static uint32_t same_both_ways(graph_batch *b, const graph_node *n, uint32_t k) {
  uint32_t from[2];
  for (int part = 0; part < 2; part++) {
    const graph *arm = n->payload.regions[part];
    const graph_node *out = &arm->nodes[arm->outputs[k]];
    if (out->kind != NODE_INPUT) return 0;
    from[part] = n->in[1 + out->payload.input];
  }
  if (from[0] != from[1] || whole(b, from[0]) || !dtype_is_float((qn_dtype)b->g->nodes[from[0]].type.dtype)) return 0;
  uint32_t made = graph_alias(b->g, batch_shared_node(b, from[0]), n->site);
  return made ? made | BATCH_SHARED : 0;
}

/* Both arms are computed by all lanes, which select. False as batch_control. */
static bool select_arms(graph_batch *b, uint32_t node, op_refusal *why) {
  graph *g = b->g;
  const graph_node n = g->nodes[node];
  uint32_t nouts = graph_nresults(&n), *outs = arena_alloc(&b->memory, 2 * (nouts + (size_t)1) * sizeof *outs);
  if (!outs) return short_of_memory(b);
  uint32_t mask = whole(b, n.in[0]);
  for (int k = 0; k < 2; k++) {
    const uint32_t around = b->active, from = g->n;
    const bool masked = b->masked;
    if (!graph_inline(g, n.payload.regions[k], n.in + 1, outs + (size_t)k * nouts, true)) return short_of_memory(b);
    uint32_t end = g->n, taken = mask;
    if (!is_plain(n.payload.regions[k])) {
      if (k == 1) taken = graph_op(g, OP_invert, &mask, 1, NULL, 0);
      if (taken && around) taken = graph_op2(g, OP_bitand, taken, around);
      if (!taken) return short_of_memory(b);
      b->active = taken;
      b->masked = true;
    }
    bool ok = batch_nodes(b, from, end, why);
    b->active = around;
    b->masked = masked;
    if (!ok) return why->id ? false : short_of_memory(b);
  }
  batched_regions *r = results_new(b, node, mask, nouts);
  for (uint32_t k = 0; k < nouts && r; k++) {
    if ((r->whole[k] = same_both_ways(b, &n, k))) continue;
    uint32_t yes = whole_always(b, outs[k]), no = whole_always(b, outs[nouts + k]);
    r->differs[k] = true;
    if (!(r->whole[k] = select_lanes(g, mask, yes, no))) r = NULL;
  }
  return r || short_of_memory(b);
}

/* Makes region `arm` for a part of the lanes, or for those that are at work, with all results as arrays of all its lanes. NULL: `why` says what
 * cannot be batched, or memory is short. Owned. */
static graph *arm_of_lanes(graph_batch *b, const graph *arm, const bool *inputs, more_input more, const bool *shared,
                           op_refusal *why) {
  lane_arm a = {0};
  bool ok = lane_arm_make(b, arm, inputs, more, &a, why);
  for (uint32_t k = 0; k < arm->noutputs && ok; k++)
    ok = graph_output(a.g, shared && shared[k] ? batch_shared_node(&a.batch, a.outs[k])
                                               : batch_whole_always(&a.batch, a.outs[k]));
  graph *made = ok ? lane_arm_done(&a) : NULL;
  lane_arm_free(&a);
  if (!made && !why->id) b->g->failed = true;
  return made;
}

/* One arm of a branch, computed by the lanes of a mask; `results` has what the others have, and gets the results of these. */
static bool arm_of_some(graph_batch *b, const graph_node *n, graph *arm, const bool *inputs, uint32_t mask,
                        uint32_t *results) {
  graph *g = b->g;
  region_builder body;
  builder_open(&body, g);
  uint32_t nouts = arm->noutputs, *args = builder_list(&body, n->nin + (size_t)1),
           *outs = builder_list(&body, nouts + 1);
  uint32_t first = builder_operand(&body, mask);
  for (int k = 1; k < n->nin; k++)
    (void)builder_operand(&body, inputs[k - 1] ? whole(b, n->in[k]) : batch_shared_node(b, n->in[k]));
  uint32_t base = builder_operands(&body, results, nouts);
  graph *part = body.part[0];
  if (!body.failed) {
    uint32_t at = builder_input(&body, 0, first), number = graph_op(part, OP_nonzero, &at, 1, NULL, 0);
    op_attr flat = {.n = 1, .d = {number ? part->nodes[number].type.shape[0] : 0}};
    op_attr one = {.n = 1, .flags = ATTR_PROVEN, .d = {1}}, set = one;
    set.mode = SCATTER_SET;
    if (number) number = graph_op(part, OP_reshape, &number, 1, &flat, 0);
    for (int k = 1; k < n->nin && number; k++) {
      args[k - 1] = builder_input(&body, 0, first + (uint32_t)k);
      if (inputs[k - 1]) args[k - 1] = graph_op(part, OP_index, (uint32_t[]){args[k - 1], number}, 2, &one, 0);
      if (!args[k - 1]) number = 0;
    }
    if (number) args[n->nin - 1] = number;
    body.failed |= !number || !graph_inline(part, arm, args, outs, true);
    for (uint32_t k = 0; k < nouts && !body.failed; k++) {
      uint32_t rows = builder_input(&body, 0, base + k);
      rows = graph_op(part, OP_scatter, (uint32_t[]){rows, number, outs[k]}, 3, &set, 0);
      uint32_t none = builder_input(&body, 1, base + k);
      builder_outputs(&body, 0, &rows, 1);
      builder_outputs(&body, 1, &none, 1);
    }
  }
  uint32_t any = any_lane(g, mask), made = builder_close(&body, any, NULL, n->site);
  for (uint32_t k = 0; k < nouts && made && any; k++)
    if (!(results[k] = graph_proj(g, made, k, g->nodes[results[k]].type, n->site))) return false;
  return made && any;
}

/* Each arm is computed by the lanes that take it. *parted: that cannot be. False as batch_control. */
static bool arms_of_lanes(graph_batch *b, uint32_t node, bool *parted, op_refusal *why) {
  graph *g = b->g;
  const graph_node n = g->nodes[node];
  uint32_t nouts = graph_nresults(&n), *results = arena_alloc(&b->memory, (nouts + (size_t)1) * sizeof *results);
  bool *inputs = arena_alloc(&b->memory, n.nin * sizeof *inputs);
  if (!results || !inputs) return short_of_memory(b);
  for (int k = 1; k < n.nin; k++) inputs[k - 1] = whole(b, n.in[k]) != 0;
  graph *arms[2] = {NULL, NULL};
  bool ok = true;
  for (int k = 0; k < 2 && ok; k++)
    ok = (arms[k] = arm_of_lanes(b, n.payload.regions[k], inputs, MORE_NUMBER, NULL, why)) != NULL;
  for (uint32_t k = 0; k < nouts && ok; k++) {
    graph_type lane = graph_result_type(&n, k), all;
    if (!whole_type(b->lanes, &lane, &all)) {
      ok = refuse(why, "a value in a branch would have too many axes");
      break;
    }
    uint32_t zero = graph_const_scalar(g, (qn_dtype)all.dtype, false, 0, 0, 0);
    op_attr shape = graph_shape_attr(all.rank, all.shape);
    ok = zero && (results[k] = graph_op(g, OP_broadcast, &zero, 1, &shape, n.site)) != 0;
  }
  uint32_t mask = whole(b, n.in[0]);
  for (int k = 0; k < 2 && ok; k++) {
    uint32_t taken = k == 0 ? mask : graph_op(g, OP_invert, &mask, 1, NULL, 0);
    if (taken && b->active) taken = graph_op2(g, OP_bitand, taken, b->active);
    ok = taken && arm_of_some(b, &n, arms[k], inputs, taken, results);
  }
  graph_free(arms[0]);
  graph_free(arms[1]);
  if (!ok && one_lane_can(why)) {
    *parted = true;
    return true;
  }
  batched_regions *r = ok ? results_new(b, node, mask, nouts) : NULL;
  for (uint32_t k = 0; k < nouts && r; k++) {
    if ((r->whole[k] = same_both_ways(b, &n, k))) continue;
    r->differs[k] = true;
    r->whole[k] = results[k];
  }
  return r || why->id ? r != NULL : short_of_memory(b);
}

/* Does some node take the number of turns of loop `node`, of so many results of its body? */
static bool turns_taken(const graph *g, uint32_t node, uint32_t results) {
  for (uint32_t i = node + 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    if (n->kind == NODE_PROJ && n->in[0] == node && n->payload.index == results) return true;
  }
  return false;
}

/* Appends the loop that makes turns until all lanes are done, at most `most`, of a header and a body for those at work. `shared`: carries that are one for all
 * lanes; `counted`: the turns of each lane are counted. The number of a result is at[its number among those of `n`]; where they are counted the number of turns
 * is that of each lane. Returns 0 when memory is short. */
static uint32_t loop_until_done(graph_batch *b, const graph_node *n, graph *const parts[2], const bool *inputs,
                                const bool *shared, bool counted, int64_t most, uint32_t *at) {
  graph *g = b->g;
  uint32_t carries = graph_loop_carries(n), nin = n->nin, all = b->active, mask, total = 0;
  uint32_t rows = n->payload.regions[1]->noutputs - carries;
  region_builder loop;
  builder_open(&loop, g);
  uint32_t *in = builder_list(&loop, nin + (size_t)1), *args = builder_list(&loop, nin + (size_t)1);
  uint32_t *outs = builder_list(&loop, 2 * carries + rows + (size_t)3), *kept = builder_list(&loop, rows + (size_t)1);
  for (uint32_t k = 0; k < nin && !loop.failed; k++)
    loop.failed = !(in[k] = inputs[k] ? whole_always(b, n->in[k]) : batch_shared_node(b, n->in[k]));
  if (!loop.failed && !all) { /* to begin with, all lanes are at work */
    op_attr shape = {.n = 1, .d = {b->lanes}};
    uint32_t yes = graph_const_scalar(g, QN_bool, false, 0, 1, 0);
    all = yes ? graph_op(g, OP_broadcast, &yes, 1, &shape, n->site) : 0;
  }
  if (!loop.failed) {
    in[nin] = all;
    loop.failed = !all || !graph_inline(g, parts[0], in, &mask, true) ||
                  (b->active && !(mask = graph_op2(g, OP_bitand, mask, all)));
  }
  if (!loop.failed) {
    (void)builder_operands(&loop, in, carries);
    uint32_t active = builder_operand(&loop, mask), ends = loop.n;
    for (uint32_t k = 0; k < carries && !loop.failed; k++) {
      at[k] = shared[k] ? loop.n : k;
      if (shared[k]) (void)builder_operand(&loop, whole_always(b, n->in[k]));
    }
    uint32_t turns = loop.n;
    if (counted && !loop.failed) {
      uint32_t zero = graph_const_scalar(g, DTYPE_INDEX, false, 0, 0, 0);
      op_attr shape = {.n = 1, .d = {b->lanes}};
      (void)builder_operand(&loop, zero ? graph_op(g, OP_broadcast, &zero, 1, &shape, n->site) : 0);
    }
    uint32_t rest = builder_operands(&loop, in + carries, nin - carries);
    graph *turn = loop.part[1];
    uint32_t more = loop.failed ? 0 : any_lane(loop.part[0], builder_input(&loop, 0, active));
    builder_outputs(&loop, 0, &more, 1);
    for (uint32_t k = 0; k < nin; k++) args[k] = builder_input(&loop, 1, k < carries ? k : rest + k - carries);
    uint32_t before = args[nin] = builder_input(&loop, 1, active), go = 0;
    loop.failed = loop.failed || !graph_inline(turn, parts[1], args, outs, true);
    if (!loop.failed) {
      memcpy(args, outs, carries * sizeof *args);
      memcpy(kept, outs + carries, rows * sizeof *kept);
    }
    loop.failed =
        loop.failed || !graph_inline(turn, parts[0], args, &go, true) || !(go = graph_op2(turn, OP_bitand, before, go));
    total = ends;
    for (uint32_t k = 0; k < carries && !loop.failed; k++) {
      uint32_t made = outs[k], old = builder_input(&loop, 1, at[k]);
      const graph_type *t = &turn->nodes[made].type;
      op_attr fit = {.dtype = t->dtype};
      if (shared[k] && t->weak) made = graph_op(turn, OP_fit, &made, 1, &fit, 0);
      made = made ? select_lanes(turn, before, made, old) : 0;
      loop.failed |= !made;
      outs[shared[k] ? total++ : k] = made;
      if (shared[k]) outs[k] = args[k];
    }
    if (!loop.failed) outs[active] = go;
    if (counted && !loop.failed) {
      op_attr count = {.dtype = DTYPE_INDEX};
      uint32_t one = graph_op(turn, OP_cast, &before, 1, &count, 0);
      outs[total++] = one ? graph_op2(turn, OP_add, builder_input(&loop, 1, turns), one) : 0;
      loop.failed |= !outs[turns];
      for (uint32_t k = 0; k < rows; k++) at[carries + k] = total + k;
      at[carries + rows] = turns;
      at[carries + rows + 1] = total + rows + 1;
    }
    builder_outputs(&loop, 1, outs, total);
    builder_outputs(&loop, 1, kept, rows);
  }
  op_attr attr = graph_loop_attr(total, graph_loop_slots(n), most);
  return builder_close(&loop, 0, rows || attr.n > 2 ? &attr : NULL, n->site);
}

/* Makes a loop that goes on until all lanes are done; `inputs` says which inputs of its regions differ while lanes are at work. Where that
 * cannot be, *parted stays set. False as batch_control. */
static bool until_all_done(graph_batch *b, uint32_t node, const bool *inputs, bool *parted, op_refusal *why) {
  const graph_node n = b->g->nodes[node];
  if (!can_inline(b, &n, 0)) return true;
  uint32_t carries = graph_loop_carries(&n), results = n.payload.regions[1]->noutputs;
  bool *shared = arena_alloc(&b->memory, (results + (size_t)1) * sizeof *shared);
  if (!shared) return short_of_memory(b);
  for (uint32_t k = 0; k < carries; k++) shared[k] = !inputs[k];
  const bool counted = results > carries || turns_taken(b->g, node, results);
  graph *parts[2] = {arm_of_lanes(b, n.payload.regions[0], inputs, MORE_ACTIVE, NULL, why), NULL};
  if (parts[0]) parts[1] = arm_of_lanes(b, n.payload.regions[1], inputs, MORE_ACTIVE, shared, why);
  bool ok = parts[1] != NULL;
  uint32_t *at = ok ? arena_alloc(&b->memory, (results + (size_t)2) * sizeof *at) : NULL;
  batched_regions *r = NULL;
  const uint32_t made = at ? loop_until_done(b, &n, parts, inputs, shared, counted, most_turns(b, node), at) : 0;
  if (at) r = results_new(b, node, made, results + 2);
  graph_free(parts[0]);
  graph_free(parts[1]);
  if (!ok && one_lane_can(why)) return true;
  if (!r) return why->id ? false : short_of_memory(b);
  for (uint32_t k = 0; k < results + counted; k++) r->differs[k] = true;
  r->at = at;
  r->parted = true;
  r->rows = results > carries;
  *parted = false;
  return true;
}

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
  op_attr attr = graph_loop_attr(1, 0, INT64_MAX);
  batched_regions *r = results_new(b, node, builder_close(&body, 0, &attr, n.site), graph_nresults(&n));
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
  bool select = parted;
  for (int k = 0; k < 2; k++) select = select && (b->together ? is_maskable : is_cheap)(n->payload.regions[k]);
  if (select && can_inline(b, n, 0) && can_inline(b, n, 1)) return select_arms(b, node, why);
  const char *apart = "lanes that differ here would be differentiated one by one";
  if (parted && b->together) return refuse(why, apart);
  if (parted) {
    parted = false;
    if (!arms_of_lanes(b, node, &parted, why)) return false;
  } else if (!same_loop(b, node, &parted, why)) {
    return false;
  }
  if (parted && b->together) return refuse(why, apart);
  if (parted && b->active) return refuse(why, "lanes that wait cannot be told from others");
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
  if ((r->in_turn || r->parted) && !r->differs[k] && !(r->rows && k + 1 == r->n))
    return refuse(why, "how many turns a loop makes differs from lane to lane, and so do the rows that it keeps");
  if (row) memmove(t.shape, t.shape + 1, --t.rank * sizeof *t.shape);
  if (r->in_turn) { /* indexed with 0 .. lanes - 1, the rows get an axis of known size */
    op_attr iota = {.dtype = DTYPE_INDEX, .axes = 1, .n = 1, .d = {b->lanes}};
    uint32_t rows = graph_proj(g, r->made, 1 + k, t, site);
    uint32_t lanes = rows ? graph_op(g, OP_iota, NULL, 0, &iota, site) : 0;
    made = lanes ? graph_row(g, rows, lanes, false) : 0;
  } else if (!r->differs[k]) {
    made = graph_proj(g, r->made, r->at ? r->at[k] : k, t, site);
    if (made && row && !same_number_of_rows(b, i, made)) made = 0;
    if (made) made |= BATCH_SHARED;
  } else {
    if (!whole_type(b->lanes, &t, &all)) return refuse(why, "a value in a branch would have too many axes");
    made = graph_proj(g, r->made, r->at ? r->at[k] : k, all, site);
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
