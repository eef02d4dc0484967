/* Differentiation of branches and loops (grad_control of grad.h): the gradient of a region is a region.
 *
 * A branch   if p { A } else { B } on captured values x, with cotangents ct of its results, becomes
 *
 *     if p { x, ct -> A once more, then the cotangents of x by A } else { likewise with B }
 *
 * so only the arm that was taken is differentiated, and nothing is stored between the forward and the backward pass: the arm computes
 * its values once more. Its checks have passed the first time and are left out (ATTR_PROVEN).
 *
 * A loop keeps its carries at the beginning of turns as rows (keep_carries), and with them the values of a turn that cost more to make than
 * to keep (keep.c). Its gradient is a loop over the turns, from the last to the first, whose body computes what else it needs of one turn
 * once more and then differentiates the turn. Where a loop may make more turns than it keeps rows, so that only the carries of every
 * stride-th turn are kept, an outer loop goes over blocks of turns, from the last to the first, and first makes the turns of a block once
 * more, keeping the rows of each. So the gradient's graph has the same size however many turns there are, and holds each loop of the body
 * once: it does not double with each level of nesting.
 *
 * Where sizes of a turn are made of carries, these are host ints to which each turn adds the same: the gradient's loop carries them, too, and takes that
 * from them in each of its turns. Values of such sizes are no rows, so they are made once more; where that must not be, since the gradient will be
 * differentiated, rows have room for the most that a fact says of such a size (dim_most), with zeros behind what a turn has.
 *
 * Regions inside regions are differentiated by graph_vjp when it meets them in the copy.
 *
 * A gradient that will be differentiated itself (graph_rules.derived) makes no value of a turn once more that may have a cotangent: those of what is
 * made twice would be summed apart, and then multiplied apart, where in unrolled turns all uses of a value are uses of one node. There the uses
 * by the gradient, which come last in the graph, are met first, those by turn 0's gradient before those by turn 1's. So
 *
 *     row t of what turn t makes, or begins with, and its gradient reads    is read there; its cotangent is the first that the value has
 *
 * (No value is used in two turns: each begins with copies, parted.c of jit/trace.) Where that gradient is differentiated more than once, rows are read by the
 * gradients of several loops: by that of the loop, and by those of its gradient. All of them read the rows that the loop itself has kept, also where
 * one is the gradient of a turn that has read a row; and what each use contributes is added to the cotangent that this row has so far, not to
 * a sum of its own (graph_presence.rows). So the order is that of unrolled turns here, too,
 * and the bits are those of unrolled turns. Rows are kept of all turns, as the interpreter keeps all values.
 *
 * Of a branch, what an arm makes and its gradient reads becomes a result of the branch (zeros if the other arm is taken), which the gradient captures:
 * its uses by the gradient are then met before those in the arm. Of branches within arms and turns all floats become results first, so that
 * what surrounds them finds these among its own values; results that nobody takes are dropped when the graph is planned. Likewise all floats of the turns of
 * loops within arms and turns become rows first, and their arrays values of what is around the loop, with zeros behind the turns that were made, so that
 * their size is known: for that it must be seen how many turns such a loop makes at most.
 */
#include <stdlib.h>
#include <string.h>

#include <stdio.h>

#include "jit/graph/folds.h"
#include "jit/graph/grad.h"
#include "jit/graph/inline.h"
#include "jit/graph/region_builder.h"
#include "lang/error.h"
#include "lang/vm.h"

static bool short_of_memory(op_refusal *why) {
  *why = (op_refusal){.id = E_memory, .text = "out of memory"};
  return false;
}

/* What the sizes of turns are made of cannot be followed. */
static bool turn_sizes(op_refusal *why) {
  *why = (op_refusal){.id = E_not_diff, .of_turns = true};
  snprintf(why->text, sizeof why->text,
           "not differentiable as a graph: a loop whose turns take parts of different sizes");
  return false;
}

static uint32_t zeros(graph *g, uint32_t like) { return graph_full(g, &g->nodes[like].type, 0, 0); }

/* A region that is being differentiated. */
typedef struct region_vjp {
  graph *g; /* a copy of the region, proven; owned */
  /* as graph_vjp_onto takes them; one allocation, owned by `roots` */
  uint32_t *roots, *seeds, *wrt, *onto, *grads;
  uint32_t *seeds_there, *onto_there, *grads_there;
  bool *plain, *rows; /* one allocation, owned by `plain` */
  int nroots, nwrt;
  graph_rules rules;
  uint32_t facts; /* how many there are of the region's sizes */
} region_vjp;

static void region_vjp_free(region_vjp *x) {
  free(x->roots);
  free(x->plain);
  graph_free(x->g);
}

/* Copies a region of the node. False when memory is short; region_vjp_free in any case. */
static bool region_vjp_begin(const control_grad *c, const graph *region, region_vjp *x) {
  size_t most = (size_t)region->noutputs + region->ninputs + 1;
  *x = (region_vjp){.g = graph_copy(region),
                    .roots = calloc(8 * most, sizeof *x->roots),
                    .plain = calloc(2 * most, sizeof *x->plain),
                    .rules = {.apart = c->apart, .derived = c->derived, .again = c->again}};
  if (!x->g || !x->roots || !x->plain || !graph_prove(x->g) || !graph_drawn_anew(x->g, 1)) return false;
  x->g->grad_bytes = c->g->grad_bytes;
  x->facts = x->g->dims.nfacts;
  x->rows = x->plain + most;
  x->seeds = x->roots + most;
  x->wrt = x->seeds + most;
  x->onto = x->wrt + most;
  x->grads = x->onto + most;
  x->seeds_there = x->grads + most;
  x->onto_there = x->seeds_there + most;
  x->grads_there = x->onto_there + most;
  return true;
}

/* Is the region's result `k` a value that the region makes, and does no result before it give the same one? (A carry that a turn leaves as
 * it was counts, too.) The cotangents of others are added to that of the value behind those of its own uses. */
static bool is_own_result(const graph *region, uint32_t k, bool loop) {
  uint32_t node = region->outputs[k];
  const graph_node *n = &region->nodes[node];
  if (n->kind == NODE_INPUT) return loop && n->payload.input == k;
  for (uint32_t i = 0; i < k; i++)
    if (region->outputs[i] == node) return false;
  return true;
}

/* Sets `order` to the numbers of the region's first n results in the order in which their cotangents are added: own ones first, then the
 * others, from the last to the first. That is the order which variables have that share a value: the recorder gives each but the first a
 * copy (rec_part_values), and the copy made last is met first on the way back. */
static void root_order(const graph *region, uint32_t n, bool loop, uint32_t *order) {
  uint32_t at = 0;
  for (uint32_t k = 0; k < n; k++)
    if (is_own_result(region, k, loop)) order[at++] = k;
  for (uint32_t k = n; k-- > 0;)
    if (!is_own_result(region, k, loop)) order[at++] = k;
}

/* Result `k` of the region has a cotangent: `seed`, a node of the copy, which is there if `there` says so (0: it is). False: `seed` is 0. */
static bool region_vjp_root(region_vjp *x, uint32_t k, uint32_t seed, uint32_t there) {
  x->roots[x->nroots] = x->g->outputs[k];
  x->seeds_there[x->nroots] = there;
  return (x->seeds[x->nroots++] = seed) != 0;
}

/* Result `index` of a node with regions: the node that takes it already, or else a new one. (An array of kept rows must be taken by one
 * node only, since its size is a symbol of that node.) */
static uint32_t result_of(graph *g, uint32_t node, uint32_t index, graph_type type, uint32_t site) {
  for (uint32_t i = node + 1; i < g->n; i++)
    if (g->nodes[i].kind == NODE_PROJ && g->nodes[i].in[0] == node && g->nodes[i].payload.index == index) return i;
  return graph_proj(g, node, index, type, site);
}

/* Marks the first n nodes of a graph that may have cotangents and be results or rows: they depend on its inputs by floats all the way. */
static void mark_kept(const graph *g, uint32_t n, bool *kept) {
  for (uint32_t v = 1; v < n; v++) {
    const graph_node *of = &g->nodes[v];
    kept[v] = of->kind == NODE_INPUT;
    for (int k = 0; k < of->nin; k++) kept[v] |= kept[of->in[k]];
    kept[v] &= dtype_is_float((qn_dtype)of->type.dtype) || graph_kind_has_regions(of->kind);
  }
  for (uint32_t v = 1; v < n; v++) kept[v] &= graph_may_be_result(g, v) && !graph_takes_row(g, v);
}

/* What is kept of value v of a turn: v or, if its sizes are numbers of the turn, v with zeros behind it, so that rows of all turns have one size. 0:
 * memory is short, or there is no such size. */
static uint32_t as_row(graph *g, uint32_t v) {
  const graph_node n = g->nodes[v];
  graph_type row;
  if (!graph_row_type(g, v, &row)) return 0;
  op_attr attr = {.n = (uint8_t)(3 * row.rank)};
  bool same = true;
  for (int a = 0; a < row.rank; a++) {
    same &= row.shape[a] == n.type.shape[a];
    attr.d[3 * a + 1] = dim_sub(&g->dims, row.shape[a], n.type.shape[a]);
  }
  if (same) return v;
  for (uint32_t i = v + 1; i < g->n; i++) {
    const graph_node *pad = &g->nodes[i];
    if (pad->kind == NODE_OP && pad->op == OP_pad && pad->in[0] == v && graph_type_same(&pad->type, &row)) return i;
  }
  const uint32_t in[] = {v, graph_const_scalar(g, (qn_dtype)row.dtype, false, 0, 0, 0)};
  return graph_op(g, OP_pad, in, 2, &attr, n.site);
}

/* The value of type `t` that was kept as a row of as_row. 0: memory is short. */
static uint32_t of_row(graph *g, uint32_t row, const graph_type *t) {
  op_attr attr = {.n = (uint8_t)(3 * t->rank)};
  bool same = true;
  for (int a = 0; a < t->rank && row; a++) {
    same &= t->shape[a] == g->nodes[row].type.shape[a];
    attr.d[3 * a + 1] = t->shape[a];
    attr.d[3 * a + 2] = 1;
  }
  return same || !row ? row : graph_op(g, OP_slice, &row, 1, &attr, g->nodes[row].site);
}

/* Value `v` of arm `a` of a branch becomes a result, unless it is one. The node that takes it; 0 when memory is short. */
static uint32_t arm_result(graph *g, uint32_t node, int a, uint32_t v) {
  const graph_node n = g->nodes[node];
  graph *arm = n.payload.regions[a], *other = n.payload.regions[!a];
  graph_type t;
  uint32_t k = 0;
  while (k < arm->noutputs && arm->outputs[k] != v) k++;
  if (k == arm->noutputs) {
    if (!size_map_type_beside(other, other->inputs, arm, v, &t) || !graph_output(arm, v) ||
        !graph_output(other, graph_full(other, &t, 0, 0)))
      return 0;
  }
  return size_map_type_beside(g, n.in + 1, arm, v, &t) ? result_of(g, node, k, t, n.site) : 0;
}

/* Sets *value to a host int or bool that is known where arm a of branch `node` is taken. `most`: how many branches and comparisons may be looked at. */
static bool known_there(const graph *g, uint32_t node, int a, uint32_t v, int most, int64_t *value) {
  for (; most > 0; most--) {
    const graph_node *n = &g->nodes[v];
    qn_value number;
    int64_t x, y;
    if (n->kind == NODE_OP && n->op == OP_eq) {
      if (!known_there(g, node, a, n->in[0], most - 1, &x) || !known_there(g, node, a, n->in[1], most - 1, &y))
        return false;
      *value = x == y;
      return true;
    }
    if (n->kind != NODE_PROJ) {
      if (!n->type.weak || n->type.dtype == WEAK_FLOAT || !graph_const_value(g, v, &number)) return false;
      *value = number.u.i;
      return true;
    }
    const graph_node *of = &g->nodes[n->in[0]];
    if (of->kind != NODE_IF || (n->in[0] != node && !known_there(g, node, a, of->in[0], most - 1, &x))) return false;
    const graph *arm = of->payload.regions[n->in[0] == node ? a : !x];
    const uint32_t made = arm->outputs[n->payload.index];
    if (graph_const_value(arm, made, &number)) {
      if (dtype_is_float((qn_dtype)n->type.dtype)) return false;
      *value = number.u.i;
      return true;
    }
    if (arm->nodes[made].kind != NODE_INPUT) return false;
    v = of->in[1 + arm->nodes[made].payload.input];
  }
  return false;
}

/* What the code behind the branches after `node` uses in place of its result that node `value` takes: where arm a is taken, the way of some of
 * them is known, as that of the tail of a function behind an arm that does not agree with the other, and they may leave the value as it is. All
 * uses of the value are those of one node, then. *before becomes what stood for it before the last of them. */
static uint32_t passed_on(const graph *g, uint32_t node, int a, uint32_t value, uint32_t *before) {
  enum { MOST = 8 };
  for (uint32_t i = value; i < g->n && value; i++) {
    const graph_node *p = &g->nodes[i];
    if (p->kind != NODE_PROJ || p->in[0] < value || g->nodes[p->in[0]].kind != NODE_IF) continue;
    const graph_node *n = &g->nodes[p->in[0]];
    bool takes = false;
    if (!n->payload.regions[0]->tail) continue;
    for (int k = 1; k < n->nin; k++) takes |= n->in[k] == value;
    int64_t yes;
    if (!takes || !known_there(g, node, a, n->in[0], MOST, &yes)) continue;
    const graph *arm = n->payload.regions[!yes];
    const graph_node *made = &arm->nodes[arm->outputs[p->payload.index]];
    if (made->kind == NODE_INPUT && n->in[1 + made->payload.input] == value &&
        graph_type_same(&p->type, &g->nodes[value].type)) {
      *before = value;
      value = i;
    }
  }
  return value;
}

static uint32_t keep_carries(graph *g, uint32_t node, bool every);
static bool exact_turns(const graph *g, uint32_t node);
static bool expose_regions(graph *g);

/* All floats of the arms of a branch become results of it. False: memory is short. */
static bool expose_arms(graph *g, uint32_t node) {
  for (int a = 0; a < 2; a++) {
    graph *arm = g->nodes[node].payload.regions[a];
    if (!expose_regions(arm)) return false;
    bool *kept = calloc(arm->n, sizeof *kept), ok = kept != NULL;
    if (ok) mark_kept(arm, arm->n, kept);
    for (uint32_t v = 1, most = arm->n; v < most && ok; v++)
      if (kept[v]) ok = arm_result(g, node, a, v) != 0;
    free(kept);
    if (!ok) return false;
  }
  return true;
}

/* Appends the kept rows that `rows` takes with further ones of zeros, so that they have a size that is known before the loop runs. */
static bool pad_rows(graph *g, uint32_t rows, int64_t most) {
  if (!rows) return false;
  graph_type t = g->nodes[rows].type;
  op_attr attr = {.n = (uint8_t)(3 * t.rank)};
  attr.d[1] = dim_sub(&g->dims, most, t.shape[0]);
  const uint32_t in[] = {rows, graph_const_scalar(g, (qn_dtype)t.dtype, false, 0, 0, 0)};
  return graph_op(g, OP_pad, in, 2, &attr, g->nodes[rows].site) != 0;
}

/* What stands for the array of kept rows that `rows` takes: the padded one, if there is one. */
static uint32_t padded(const graph *g, uint32_t rows) {
  for (uint32_t i = rows + 1; i < g->n && rows; i++)
    if (g->nodes[i].kind == NODE_OP && g->nodes[i].op == OP_pad && g->nodes[i].in[0] == rows) return i;
  return rows;
}

/* The array that stands for a number of turns, which may be a row. 0: there is none. */
static uint32_t whole_turns(const graph *g, uint32_t turns) {
  for (uint32_t i = turns + 1; i < g->n; i++)
    if (g->nodes[i].kind == NODE_OP && g->nodes[i].op == OP_fit && g->nodes[i].in[0] == turns) return i;
  return 0;
}

/* All floats of the turns of a loop, which makes few turns at most, become rows of it, and these and its carries values of the graph whose sizes
 * are known. False: memory is short. */
static bool expose_turns(graph *g, uint32_t node) {
  graph *body = g->nodes[node].payload.regions[1];
  int64_t most = graph_most_turns(g, node);
  if (most == INT64_MAX) return true;
  if (!expose_regions(body) || !keep_carries(g, node, true)) return false;
  uint32_t ncarries = graph_loop_carries(&g->nodes[node]), made = body->noutputs;
  bool *kept = calloc(body->n, sizeof *kept), ok = kept != NULL;
  if (ok) mark_kept(body, body->n, kept);
  for (uint32_t v = 1, n = body->n; v < n && ok; v++) {
    const uint32_t row = kept[v] ? as_row(body, v) : v;
    uint32_t k = ncarries;
    while (k < body->noutputs && body->outputs[k] != row) k++;
    if (kept[v] && k == body->noutputs) ok = row && graph_output(body, row);
  }
  free(kept);
  if (!ok) return false;
  graph_rows_added(g, node, made, body->noutputs - made);
  const graph_node n = g->nodes[node];
  for (uint32_t k = 0; k < body->noutputs; k++) {
    graph_type t = body->nodes[body->outputs[k]].type;
    if (!dtype_is_float((qn_dtype)t.dtype) && k < ncarries) continue;
    if (!size_map_type_beside(g, n.in, body, body->outputs[k], &t)) return false;
    uint32_t of = result_of(g, node, k, t, n.site);
    if (!of || (k >= ncarries && padded(g, of) == of && !pad_rows(g, of, most > 2 ? most : 2))) return false;
  }
  if (exact_turns(g, node)) return true;
  uint32_t turns = result_of(g, node, body->noutputs, (graph_type){.dtype = WEAK_INT, .weak = true}, n.site);
  const op_attr whole = {.dtype = QN_i64};
  return whole_turns(g, turns) || graph_op(g, OP_fit, &turns, 1, &whole, n.site) != 0;
}

/* How many turns loop `node` has made, where its gradient will be differentiated itself: a host int. 0: memory is short. */
static uint32_t turns_of(graph *g, uint32_t node) {
  const graph_node n = g->nodes[node];
  int64_t most = graph_most_turns(g, node);
  if (exact_turns(g, node)) return graph_weak_int(g, most);
  uint32_t turns =
      result_of(g, node, n.payload.regions[1]->noutputs, (graph_type){.dtype = WEAK_INT, .weak = true}, n.site);
  uint32_t whole = turns ? whole_turns(g, turns) : 0;
  const op_attr host = {.dtype = QN_i64, .flags = ATTR_WEAK};
  if (whole) turns = graph_op(g, OP_cast, &whole, 1, &host, n.site);
  return most == INT64_MAX ? turns : graph_op2(g, OP_minimum, turns, graph_weak_int(g, most)); /* (for turns_seen) */
}

/* What arms and turns of the branches and loops in a graph make, and their gradients may read, become values of it. False: memory is short. */
static bool expose_regions(graph *g) {
  for (uint32_t i = 1, n = g->n; i < n; i++) {
    if (g->nodes[i].kind == NODE_IF && !graph_is_rule(&g->nodes[i]) && !expose_arms(g, i)) return false;
    if (g->nodes[i].kind == NODE_LOOP && !expose_turns(g, i)) return false;
  }
  return true;
}

bool grad_expose(graph *g, uint32_t node) { return expose_arms(g, node); }

/* Is called with the gradient of a region, whose results are the cotangents of `wrt`, and may add results and inputs. False when memory is short. */
typedef bool region_vjp_made(void *ctx, const region_vjp *x);

/* Is there a cotangent of wrt[i]? A flag. 0: memory is short. */
static uint32_t is_there(const region_vjp *x, int i) {
  return x->grads_there[i] ? x->grads_there[i] : grad_flag(x->g, x->grads[i] != 0);
}

/* Does the gradient, the nodes from `first` on, rely on nothing that is new about sizes which are numbers of turns? (Nobody asks
 * for it.) */
static bool sizes_suffice(graph *g, uint32_t first, uint32_t facts) {
  const dim_table *t = &g->dims;
  if (!t->strict) return true;
  reduces_note(g, first);
  for (uint32_t i = facts; i < t->nfacts; i++)
    if (dim_is_number(t, t->facts[i].a) || dim_is_number(t, t->facts[i].b)) return false;
  return true;
}

/* The cotangents of `wrt` become the copy's results. Returns the copy, owned by the caller; NULL with `why`. Frees everything else. */
static graph *region_vjp_end(region_vjp *x, region_vjp_made *made, void *ctx, op_refusal *why) {
  graph *g = x->g;
  uint32_t culprit, first = g->n;
  const graph_presence there = {x->seeds_there, x->onto_there, x->plain, x->grads_there, x->rows};
  bool ok = graph_vjp_onto(g, 1, x->roots, x->seeds, x->nroots, x->wrt, x->onto, x->nwrt, &x->rules, &there, x->grads,
                           &culprit, why);
  if (ok) {
    g->noutputs = 0;
    for (int i = 0; i < x->nwrt; i++) (void)graph_output(g, x->grads[i] ? x->grads[i] : zeros(g, x->wrt[i]));
    ok = (!g->failed && made(ctx, x)) || short_of_memory(why);
    if (ok && !sizes_suffice(g, first, x->facts)) ok = turn_sizes(why);
    graph_dce(g);
    ok = ok && (!g->failed || short_of_memory(why));
  } else if (why->id == E_memory) {
    short_of_memory(why);
  }
  if (!ok && g->dims.strict && why->id == E_memory && !g->arena.failed)
    (void)turn_sizes(why); /* (sizes that are one in each turn may be written differently) */
  if (ok) x->g = NULL;
  region_vjp_free(x);
  return ok ? g : NULL;
}

/* Sets *input to a new input of the region for a flag of the graph around it, if there is one (0). False when memory is short. */
static bool take_flag(graph *g, uint32_t flag, uint32_t *input) {
  return !flag || (*input = graph_input(g, GRAD_FLAG, 0)) != 0;
}

/* The values of an arm that its gradient reads and, if that will be differentiated itself, takes from the branch's results. */
typedef struct arm_values {
  const graph *arm;
  const struct arm_values *before; /* those of the other arm, which was differentiated first, or NULL */
  bool derived;
  uint32_t *values, n; /* owned */
} arm_values;

/* Inputs of one arm's gradient, which it does not read, for the values that that of the other one takes. */
static bool take_others(graph *g, const arm_values *others) {
  for (uint32_t i = 0; i < others->n; i++) {
    graph_type t;
    if (!size_map_type_beside(g, g->inputs, others->arm, others->values[i], &t) || !graph_input(g, t, 0)) return false;
  }
  return true;
}

/* Is input v of a tail's arm, which its gradient reads, one of its results, too? What comes behind the branch uses that: a value which the arm leaves
 * alone has one cotangent, to which its uses there and by the gradient add. */
static bool is_left_alone(const arm_values *x, uint32_t v) {
  const graph *arm = x->arm;
  const graph_node *n = &arm->nodes[v];
  bool left = false;
  if (!arm->tail) return false;
  for (uint32_t k = 0; k < arm->noutputs; k++) left |= arm->outputs[k] == v;
  if (!left || n->kind != NODE_INPUT || !dtype_is_float((qn_dtype)n->type.dtype) || n->type.rank == ARRAY_MAX_RANK)
    return false;
  for (int a = 0; a < n->type.rank; a++)
    if (dim_is_late(&arm->dims, n->type.shape[a])) return false;
  return true;
}

/* Two inputs change their places. */
static void swap_inputs(graph *g, uint32_t i, uint32_t k) {
  const uint32_t node = g->inputs[i];
  g->inputs[i] = g->inputs[k];
  g->inputs[k] = node;
  g->nodes[g->inputs[i]].payload.input = i;
  g->nodes[node].payload.input = k;
}

/* Node v, an input, becomes the last one; in its place is one that nothing reads. */
static bool input_anew(graph *g, uint32_t v) {
  const uint32_t place = g->nodes[v].payload.input;
  if (!graph_input(g, g->nodes[v].type, 0)) return false;
  swap_inputs(g, place, g->ninputs - 1);
  return true;
}

/* Makes the values that are read inputs of an arm's gradient. */
static bool keep_arm_values(arm_values *a, graph *back) {
  uint32_t n = a->arm->n;
  bool ok = !a->before || take_others(back, a->before); /* (this appends nodes) */
  bool *read = calloc(back->n, sizeof *read), *kept = calloc(n, sizeof *kept);
  a->values = calloc(n, sizeof *a->values);
  ok = ok && read && kept && a->values;
  for (uint32_t k = 0; k < back->noutputs && ok; k++) read[back->outputs[k]] = true;
  for (uint32_t v = back->n; v-- > n && ok;)
    for (int k = 0; read[v] && k < back->nodes[v].nin; k++) read[back->nodes[v].in[k]] = true;
  if (ok) mark_kept(back, n, kept);
  for (uint32_t v = 1; v < n && ok; v++) {
    const bool left = read[v] && is_left_alone(a, v);
    if (!left && (!read[v] || !kept[v])) continue;
    a->values[a->n++] = v;
    bool number = grad_is_number(back, v);
    ok = left ? input_anew(back, v) : graph_make_input(back, v) && (!number || graph_fix_flags(back, v, ATTR_NUMBER));
  }
  free(read);
  free(kept);
  return ok;
}

/* region_vjp_made of an arm: adds whether cotangents are there, where that matters (`plain`). */
static bool arm_made(void *ctx, const region_vjp *x) {
  arm_values *a = ctx;
  for (int i = 0; i < x->nwrt; i++)
    if (x->plain[i] && !graph_output(x->g, is_there(x, i))) return false;
  return !a->derived || keep_arm_values(a, x->g);
}

/* An arm's gradient: its inputs are the arm's, then the cotangents that are given, then those that captured values have so far, each with
 * what says whether it is there, then values that are kept; its results the cotangents of those captured values that are wanted, then whether they are there, where that
 * matters (`plain`). Owned; NULL with `why`. */
static graph *backward_arm(const control_grad *c, const graph *arm, arm_values *kept, op_refusal *why) {
  region_vjp x;
  uint32_t nout = arm->noutputs, *seeds = calloc(3 * ((size_t)nout + 1), sizeof *seeds), *order = seeds + nout + 1,
           *there = order + nout + 1;
  bool ok = region_vjp_begin(c, arm, &x) && seeds;
  for (uint32_t k = 0; k < nout && ok; k++)
    if (c->given[k])
      ok = (seeds[k] = graph_input(x.g, x.g->nodes[x.g->outputs[k]].type, 0)) != 0 &&
           take_flag(x.g, c->given_there[k], &there[k]);
  if (ok) root_order(arm, nout, false, order);
  for (uint32_t k = 0; k < nout && ok; k++)
    if (c->given[order[k]]) ok = region_vjp_root(&x, order[k], seeds[order[k]], there[order[k]]);
  free(seeds);
  for (uint32_t i = 0; i < arm->ninputs && ok; i++) {
    if (!c->wanted[1 + i]) continue; /* operand 0 is the predicate */
    uint32_t input = x.g->inputs[i];
    if (c->so_far[1 + i])
      ok = (x.onto[x.nwrt] = graph_input(x.g, x.g->nodes[input].type, 0)) != 0 &&
           take_flag(x.g, c->so_far_there[1 + i], &x.onto_there[x.nwrt]);
    x.plain[x.nwrt] = c->plain[1 + i];
    x.wrt[x.nwrt++] = input;
  }
  if (ok) return region_vjp_end(&x, arm_made, kept, why);
  short_of_memory(why);
  region_vjp_free(&x);
  return NULL;
}

/* to[i] becomes result first + i of a node with regions, of the type of `like`[i]. False: `node` is 0, or memory is short. */
static bool take_results(graph *g, uint32_t node, uint32_t first, uint32_t n, const uint32_t *like, uint32_t *to) {
  for (uint32_t i = 0; i < n && node; i++)
    if (!(to[i] = graph_proj(g, node, first + i, g->nodes[like[i]].type, 0))) node = 0;
  return node != 0;
}

/* Removes from both arms what says whether cotangents are there (their results from `first` on) where it is known that they are; what
 * is left becomes result number to[k], and to[k] is 0 where nothing is. n: how many there are. */
static void drop_known(graph *const arms[2], uint32_t first, uint32_t n, uint32_t *to) {
  uint32_t left = first;
  for (uint32_t k = 0; k < n; k++) {
    bool known = true;
    for (int a = 0; a < 2; a++) {
      qn_value v;
      known &= graph_const_value(arms[a], arms[a]->outputs[first + k], &v) && v.u.i;
    }
    for (int a = 0; a < 2; a++) arms[a]->outputs[left] = arms[a]->outputs[first + k];
    to[k] = known ? 0 : left++;
  }
  for (int a = 0; a < 2; a++) {
    bool dead = arms[a]->noutputs != left;
    arms[a]->noutputs = left;
    if (dead) graph_dce(arms[a]);
  }
}

/* Makes the gradients of both arms, with the same inputs. Sets `kept` to the values that they take from the branch. False with `why`. */
static bool backward_arms(const control_grad *c, graph *const regions[2], graph *arms[2], arm_values kept[2],
                          op_refusal *why) {
  for (int a = 0; a < 2; a++) {
    if (c->derived && !expose_regions(regions[a])) return short_of_memory(why);
    kept[a] = (arm_values){.arm = regions[a], .before = a ? &kept[0] : NULL, .derived = c->derived};
    if (!(arms[a] = backward_arm(c, regions[a], &kept[a], why))) return false;
  }
  return take_others(arms[0], &kept[1]) || short_of_memory(why);
}

static bool grad_branch(control_grad *c, op_refusal *why) {
  graph *g = c->g;
  graph_node n = g->nodes[c->node]; /* a copy, since the list of nodes moves when it grows */
  uint32_t nout = n.payload.regions[0]->noutputs, nin = n.nin;
  graph *arms[2] = {NULL, NULL};
  arm_values kept[2] = {{0}, {0}};
  bool made = backward_arms(c, n.payload.regions, arms, kept, why);
  uint32_t *in = calloc(4 * (size_t)nin + 2 * (size_t)nout + kept[0].n + kept[1].n + 1, sizeof *in),
           *to = in + 3 * (size_t)nin + 2 * (size_t)nout + kept[0].n + kept[1].n;
  if (!made || !in) {
    graph_free(arms[0]);
    graph_free(arms[1]);
    free(kept[0].values);
    free(kept[1].values);
    free(in);
    return made ? short_of_memory(why) : false;
  }
  in[0] = n.in[0];
  bool ok = true;
  for (uint32_t k = 1; k < nin; k++) ok = (in[k] = c->reads(c->by, c->node, n.in[k], n.in[k])) && ok;
  for (uint32_t k = 0; k < nout; k++) {
    if (c->given[k]) in[nin++] = c->given[k];
    if (c->given[k] && c->given_there[k]) in[nin++] = c->given_there[k];
  }
  uint32_t nwanted = 0, nplain = 0, index = 0, flag = 0;
  for (int k = 1; k < n.nin; k++) {
    if (!c->wanted[k]) continue;
    nwanted++;
    nplain += c->plain[k];
    if (c->so_far[k]) in[nin++] = c->so_far[k];
    if (c->so_far[k] && c->so_far_there[k]) in[nin++] = c->so_far_there[k];
  }
  const uint32_t first = nin;
  for (int a = 0; a < 2; a++) {
    for (uint32_t i = 0; i < kept[a].n; i++) {
      uint32_t of = arm_result(g, c->node, a, kept[a].values[i]);
      const graph_node *value = &n.payload.regions[a]->nodes[kept[a].values[i]];
      uint32_t before = value->kind == NODE_INPUT ? n.in[1 + value->payload.input] : of; /* (is_left_alone) */
      if (of) of = passed_on(g, c->node, a, of, &before);
      if (of) of = c->reads(c->by, c->node, before, of);
      ok = of && ok;
      in[nin++] = of;
    }
    free(kept[a].values);
  }
  /* what both read is read as one input, so that it has one cotangent in both */
  for (uint32_t i = first; i < first + kept[0].n; i++)
    for (uint32_t k = first + kept[0].n; k < nin; k++)
      if (in[i] == in[k]) swap_inputs(arms[1], i - 1, k - 1);
  drop_known(arms, nwanted, nplain, to);
  uint32_t node = graph_regions(g, NODE_IF, in, (int)nin, arms[0], arms[1], NULL, n.site);
  if (!ok) node = 0;
  for (int k = 1; k < n.nin && node; k++) {
    if (!c->wanted[k]) continue;
    uint32_t there = c->plain[k] ? to[flag++] : 0;
    if (!(c->out[k] = graph_proj(g, node, index++, g->nodes[n.in[k]].type, n.site))) node = 0;
    if (node && there && !(c->out_there[k] = graph_proj(g, node, there, GRAD_FLAG, n.site))) node = 0;
  }
  free(in);
  return node || short_of_memory(why);
}

/* ---- loops ---------------------------------------------------------------------------------------------------------------- */

/* What the parts of a loop's gradient share. */
typedef struct loop_grad {
  graph
      *body; /* the loop's, proven; its only results are the carries of the next turn and then the kept values; owned */
  /* The gradient of one turn; owned. Its inputs are the turn's carries and captured values, the cotangents of the float carries that
   * the turn gives, those of its rows, each with whether it is there if it may not be, those that captured values have so far, which of these are
   * there (`flagged`), and the kept values; its results the cotangents of the float carries that it takes, then of captured values, and which of them are there. */
  graph *back;
  uint32_t ncarries, ncaptured, nrows;
  uint32_t *values, nvalues; /* nodes of the loop's body that are kept besides its carries */
  graph_type *types;         /* room for the types that their rows have in the graph at hand */
  bool *numbers;             /* which of them are numbers (grad_is_number) */
  /* carries that have cotangents; captured values whose cotangents are wanted, which are sums over all turns */
  uint32_t ncts, naccs;
  uint32_t *flagged, nflags; /* those of them, counted together, that are not there on all ways where it matters */
  bool *has_ct; /* by carry: is it a float that is differentiated, and on which some result with a cotangent depends? */
  bool *sure;   /* by operand: is its cotangent always there? */
  bool *plain;  /* by operand: does it matter in a turn, or behind the loop, whether its cotangent is there? */
  bool *weak;   /* by carry: is it a host number? */
  int64_t *counts; /* by carry: what each turn adds to it, a host int; 0: it is none, or that is not known */
  bool *sized;     /* by carry: is it a number of the turn that sizes are made of? (These count.) */
  uint32_t nsized;
  bool *fixed;   /* by carry: is it read from one value, since nobody reads it, or it is settled? */
  bool *settled; /* by carry: are all parts of it that are read those of its value behind the loop (settled.c)? */
  bool derived;  /* as in graph_rules; then the carries of all turns are kept */
  int64_t block; /* turns that are computed once more at a time */
} loop_grad;

/* Values that the parts of the gradient work on, as nodes of the graph at hand. */
typedef struct loop_values {
  uint32_t *captured;  /* ncaptured of them */
  uint32_t *row_cts;   /* nrows: arrays of the cotangents of kept rows */
  uint32_t *row_there; /* nrows: flags, are they there? 0: they are, or it does not matter */
  uint32_t stride;     /* how many turns lie between two kept rows */
  /* ncts cotangents of carries, then naccs sums, then nflags flags */
  uint32_t *cts;
} loop_values;

static bool values_make(const loop_grad *l, arena *a, loop_values *v) {
  *v = (loop_values){.captured = arena_alloc(a, l->ncaptured * sizeof *v->captured),
                     .row_cts = arena_alloc(a, l->nrows * sizeof *v->row_cts),
                     .row_there = arena_alloc(a, l->nrows * sizeof *v->row_there),
                     .cts = arena_alloc(a, 2 * ((size_t)l->ncts + l->naccs) * sizeof *v->cts)};
  return !a->failed;
}

/* Makes values operands of a builder (not their `cts`, which the callers do) and sets `to` to what these are inside its region `part`;
 * `to` lasts until builder_close. */
static void capture_values(const loop_grad *l, region_builder *b, const loop_values *v, int part, loop_values *to) {
  uint32_t c = builder_operands(b, v->captured, l->ncaptured), r = builder_operands(b, v->row_cts, l->nrows);
  uint32_t s = builder_operand(b, v->stride);
  b->failed |= !values_make(l, &b->memory, to);
  if (b->failed) return;
  for (uint32_t i = 0; i < l->ncaptured; i++) to->captured[i] = builder_input(b, part, c + i);
  for (uint32_t i = 0; i < l->nrows; i++) {
    to->row_cts[i] = builder_input(b, part, r + i);
    if (v->row_there[i]) to->row_there[i] = builder_input(b, part, builder_operand(b, v->row_there[i]));
  }
  to->stride = builder_input(b, part, s);
}

/* graph_row for a row that the loop has kept. `flags`: ATTR_NUMBER or 0. */
static uint32_t kept_row(const loop_grad *l, graph *g, uint32_t rows, uint32_t at, bool weak, uint8_t flags) {
  uint32_t row = graph_row(g, rows, at, weak), index = row && weak ? g->nodes[row].in[0] : row;
  if (row && l->derived && !graph_fix_flags(g, index, ATTR_PROVEN | ATTR_ROW | flags)) return 0;
  return row;
}

/* What a carry that counts is `turns` turns behind the one in which it is `first`. */
static uint32_t counted(const loop_grad *l, graph *g, uint32_t carry, uint32_t first, uint32_t turns) {
  int64_t by = l->counts[carry];
  return graph_count(g, OP_add, first, by == 1 ? turns : graph_count(g, OP_mul, turns, graph_weak_int(g, by)));
}

/* Appends to g
 *     for t = hi - 1 down to lo: the gradient of turn t
 * where row t - lo of `kept` has the carries of turn t (of one that counts or is fixed it is the carry of turn 0) and its kept values, and v->cts are the
 * cotangents and sums behind turn hi - 1. Sets `cts` to those before turn lo. False: memory is short. */
static bool reverse_block(const loop_grad *l, graph *g, const loop_values *v, uint32_t lo, uint32_t hi,
                          const uint32_t *kept, uint32_t *cts) {
  region_builder b;
  loop_values in;
  uint32_t n = l->ncts + l->naccs + l->nflags;
  builder_open(&b, g);
  (void)builder_operand(&b, hi);
  uint32_t first = builder_operands(&b, v->cts, n), sized = b.n;
  uint32_t last = l->nsized ? graph_count(g, OP_sub, hi, graph_weak_int(g, 1)) : 0;
  for (uint32_t i = 0; i < l->ncarries; i++) /* sizes are made of what is carried, or around the loop */
    if (l->sized[i]) (void)builder_operand(&b, counted(l, g, i, kept[i], last));
  uint32_t from = builder_operand(&b, lo), rows = builder_operands(&b, kept, l->ncarries + l->nvalues);
  capture_values(l, &b, v, 1, &in);
  uint32_t *args = builder_list(&b, (size_t)l->ncarries + l->ncaptured + n + 2 * l->nrows + l->nvalues);
  uint32_t *outs = builder_list(&b, 1 + (size_t)n + l->nsized), carries = 1 + n;
  graph *head = b.part[0], *body = b.part[1];
  if (!b.failed) {
    uint32_t more = graph_op2(head, OP_gt, builder_input(&b, 0, 0), builder_input(&b, 0, from));
    builder_outputs(&b, 0, &more, 1);
    uint32_t t = graph_count(body, OP_sub, builder_input(&b, 1, 0), graph_weak_int(body, 1)), k = 0;
    uint32_t at = graph_count(body, OP_sub, t, builder_input(&b, 1, from));
    for (uint32_t i = 0; i < l->ncarries; i++) {
      uint32_t row = builder_input(&b, 1, rows + i);
      if (l->sized[i]) {
        args[k] = builder_input(&b, 1, sized++);
        outs[carries++] = graph_count(body, OP_sub, args[k++], graph_weak_int(body, l->counts[i]));
      } else {
        args[k++] = l->counts[i]  ? counted(l, body, i, row, t)
                    : l->fixed[i] ? row
                                  : kept_row(l, body, row, at, l->weak[i], 0);
      }
    }
    for (uint32_t i = 0; i < l->ncaptured; i++) args[k++] = in.captured[i];
    for (uint32_t i = 0; i < l->ncts; i++) args[k++] = builder_input(&b, 1, first + i);
    for (uint32_t i = 0; i < l->nrows && l->derived; i++) {
      args[k++] = kept_row(l, body, in.row_cts[i], t, false, 0);
      if (in.row_there[i]) args[k++] = in.row_there[i];
    }
    for (uint32_t i = 0; i < l->nrows && !l->derived; i++) { /* a row was kept of every stride-th turn */
      uint32_t row = graph_row(body, in.row_cts[i], graph_count(body, OP_floordiv, t, in.stride), false);
      uint32_t is = graph_op2(body, OP_eq, graph_count(body, OP_mod, t, in.stride), graph_weak_int(body, 0));
      uint32_t none =
          graph_const_scalar(body, row ? (qn_dtype)body->nodes[row].type.dtype : DTYPE_FLOAT, false, 0, 0, 0);
      args[k++] = graph_op(body, OP_where, (uint32_t[]){is, row, none}, 3, NULL, 0);
      if (in.row_there[i]) args[k++] = graph_op2(body, OP_bitand, in.row_there[i], is);
    }
    for (uint32_t i = l->ncts; i < n; i++) args[k++] = builder_input(&b, 1, first + i);
    for (uint32_t i = 0; i < l->nvalues; i++, k++) {
      graph_type t;
      args[k] = kept_row(l, body, builder_input(&b, 1, rows + l->ncarries + i), at, l->types[i].weak,
                         l->numbers[i] ? ATTR_NUMBER : 0);
      b.failed = b.failed || !size_map_type_beside(body, args, l->back, l->back->inputs[k], &t);
      if (!b.failed) args[k] = of_row(body, args[k], &t);
    }
    for (uint32_t i = 0; i < k; i++) b.failed |= !args[i];
    outs[0] = t;
    b.failed = b.failed || !graph_inline(body, l->back, args, outs + 1, false);
    builder_outputs(&b, 1, outs, carries);
  }
  op_attr attr = graph_loop_attr(1 + n + l->nsized, 0, INT64_MAX);
  return take_results(g, builder_close(&b, 0, &attr, 0), 1, n, v->cts, cts);
}

/* Sets l->types to those that the kept values have in g, where the loop's carries and captured values have the sizes of these nodes. False:
 * memory is short. */
static bool value_types(const loop_grad *l, graph *g, const uint32_t *carries, const uint32_t *captured) {
  const graph *body = l->body;
  size_map m;
  uint32_t *map = calloc(body->n, sizeof *map);
  bool ok = size_map_begin(&m, g, body, map) && map;
  for (uint32_t i = 0; i < body->ninputs && ok; i++)
    map[body->inputs[i]] = i < l->ncarries ? carries[i] : captured[i - l->ncarries];
  for (uint32_t i = 0; i < l->nvalues && ok; i++) {
    uint32_t node = body->outputs[l->ncarries + i];
    l->types[i] = body->nodes[node].type;
    size_map_type(&m, node, &l->types[i]);
  }
  ok = ok && !m.failed && !g->failed && !g->dims.arena->failed;
  free(map);
  size_map_end(&m);
  return ok;
}

/* Appends to g
 *     for t in lo..hi: carries = body(carries)
 * carries[i] becomes the carry behind the last turn or, with `keep`, the array of what it was before each turn, followed by the arrays of the
 * kept values of the turns. False: memory is short. */
static bool forward_block(const loop_grad *l, graph *g, const loop_values *v, uint32_t lo, uint32_t hi, bool keep,
                          uint32_t *carries) {
  region_builder b;
  uint32_t n = l->ncarries, kept = keep ? l->nvalues : 0;
  builder_open(&b, g);
  (void)builder_operand(&b, lo);
  uint32_t first = builder_operands(&b, carries, n), to = builder_operand(&b, hi);
  uint32_t captured = builder_operands(&b, v->captured, l->ncaptured);
  uint32_t *args = builder_list(&b, (size_t)n + l->ncaptured), *outs = builder_list(&b, 1 + n + l->nvalues);
  b.failed = b.failed || !value_types(l, g, carries, v->captured);
  if (!b.failed) {
    graph *head = b.part[0], *body = b.part[1];
    uint32_t more = graph_op2(head, OP_lt, builder_input(&b, 0, 0), builder_input(&b, 0, to));
    builder_outputs(&b, 0, &more, 1);
    for (uint32_t i = 0; i < n; i++) args[i] = builder_input(&b, 1, first + i);
    for (uint32_t i = 0; i < l->ncaptured; i++) args[n + i] = builder_input(&b, 1, captured + i);
    b.failed |= !graph_inline(body, l->body, args, outs + 1, false);
    outs[0] = graph_count(body, OP_add, builder_input(&b, 1, 0), graph_weak_int(body, 1));
    builder_outputs(&b, 1, outs, 1 + n);
    builder_outputs(&b, 1, args, keep ? n : 0);
    builder_outputs(&b, 1, outs + 1 + n, kept);
  }
  op_attr attr = graph_loop_attr(n + 1, 0, INT64_MAX);
  uint32_t node = builder_close(&b, 0, keep ? &attr : NULL, 0);
  if (!take_results(g, node, keep ? 1 + n : 1, n, carries, carries)) return false;
  for (uint32_t i = 0; i < kept; i++)
    if (!(carries[n + i] = graph_proj(g, node, 1 + 2 * n + i, l->types[i], 0))) return false;
  return true;
}

/* Sets *start to the kept turn from which a block of turns that ends before `hi` is computed once more, and *lo to the block's first turn.
 * The block has at most l->block turns and begins at a kept turn, unless fewer turns than that are kept. */
static void block_begins(const loop_grad *l, graph *g, uint32_t hi, uint32_t stride, uint32_t *start, uint32_t *lo) {
  uint32_t last = graph_count(g, OP_sub, hi, graph_weak_int(g, 1));
  uint32_t least =
      graph_op2(g, OP_maximum, graph_count(g, OP_sub, hi, graph_weak_int(g, l->block)), graph_weak_int(g, 0));
  uint32_t up = graph_count(g, OP_add, least, graph_count(g, OP_sub, stride, graph_weak_int(g, 1)));
  uint32_t above = graph_count(g, OP_mul, graph_count(g, OP_floordiv, up, stride), stride);
  uint32_t below = graph_count(g, OP_mul, graph_count(g, OP_floordiv, last, stride), stride);
  *start = graph_op2(g, OP_minimum, above, below);
  *lo = graph_op2(g, OP_maximum, *start, least);
}

/* Appends to g the gradient of turns 0..turns where perhaps not every turn's carries were kept, in `kept` (as in reverse_block, without kept
 * values): a loop, from the last turn to the first, over blocks of turns. Each makes its turns and all of their rows, then its gradient. Sets `cts` to the cotangents and sums before turn 0.
 * False: memory is short. */
static bool reverse_blocks(const loop_grad *l, graph *g, const loop_values *v, uint32_t turns, const uint32_t *kept,
                           uint32_t *cts) {
  region_builder b;
  loop_values in;
  uint32_t n = l->ncts + l->naccs + l->nflags;
  builder_open(&b, g);
  uint32_t *carries = builder_list(&b, l->ncarries + l->nvalues);
  (void)builder_operand(&b, turns);
  uint32_t first = builder_operands(&b, v->cts, n), rows = builder_operands(&b, kept, l->ncarries);
  capture_values(l, &b, v, 1, &in);
  if (!b.failed) {
    graph *head = b.part[0], *body = b.part[1];
    uint32_t more = graph_op2(head, OP_gt, builder_input(&b, 0, 0), graph_weak_int(head, 0)), start, lo;
    builder_outputs(&b, 0, &more, 1);
    uint32_t hi = builder_input(&b, 1, 0);
    block_begins(l, body, hi, in.stride, &start, &lo);
    uint32_t at = graph_count(body, OP_floordiv, start, in.stride);
    for (uint32_t i = 0; i < l->ncarries; i++)
      carries[i] = l->counts[i] ? counted(l, body, i, builder_input(&b, 1, rows + i), start)
                                : graph_row(body, builder_input(&b, 1, rows + i), at, l->weak[i]);
    for (uint32_t i = 0; i < n; i++) in.cts[i] = builder_input(&b, 1, first + i);
    for (uint32_t i = 0; i < l->ncarries; i++) b.failed |= !carries[i];
    b.failed = b.failed || !lo || !forward_block(l, body, &in, start, lo, false, carries) ||
               !forward_block(l, body, &in, lo, hi, true, carries);
    for (uint32_t i = 0; i < l->ncarries && !b.failed; i++)
      if (l->counts[i]) carries[i] = builder_input(&b, 1, rows + i);
    b.failed = b.failed || !reverse_block(l, body, &in, lo, hi, carries, in.cts);
    builder_outputs(&b, 1, &lo, 1);
    builder_outputs(&b, 1, in.cts, n);
  }
  op_attr attr = graph_loop_attr(1 + n, 0, INT64_MAX);
  return take_results(g, builder_close(&b, 0, &attr, 0), 1, n, v->cts, cts);
}

/* Sets *value to a host int that is known: a constant, or where `g` is the region of a loop `of`, an operand that is a constant of `outer` and
 * that the body does not change. */
static bool known_int(const graph *g, uint32_t node, const graph *outer, const graph_node *of, int64_t *value) {
  qn_value v;
  const graph_node *n = &g->nodes[node];
  if (of && n->kind == NODE_INPUT && n->payload.input >= graph_loop_carries(of))
    return known_int(outer, of->in[n->payload.input], NULL, NULL, value);
  if (!n->type.weak || n->type.dtype != WEAK_INT || !graph_const_value(g, node, &v)) return false;
  *value = v.u.i;
  return true;
}

/* Likewise, to what it is at most: it may be the lesser of some number and one that is known. *exact: it is that number. */
static bool known_most(const graph *g, uint32_t node, int64_t *value, bool *exact) {
  const graph_node *n = &g->nodes[node];
  *exact = known_int(g, node, NULL, NULL, value);
  return *exact || (n->kind == NODE_OP && n->op == OP_minimum && known_int(g, n->in[1], NULL, NULL, value));
}

/* graph_counts, where the header compares operand `own` of its test, a carry, with the other one. */
static bool counts_by(const graph *g, const graph_node *n, const graph_node *test, int own, graph_counting *c) {
  const graph *head = n->payload.regions[0], *body = n->payload.regions[1];
  const graph_node *number = &head->nodes[test->in[own]];
  if (number->kind != NODE_INPUT || number->payload.input >= graph_loop_carries(n)) return false;
  uint32_t k = number->payload.input;
  const graph_node *next = &body->nodes[body->outputs[k]];
  c->up = (test->op == OP_lt || test->op == OP_le) == !own;
  c->whole = test->op == OP_le || test->op == OP_ge;
  c->from = n->in[k];
  c->to = test->in[!own];
  return next->kind == NODE_OP && next->op == (c->up ? OP_add : OP_sub) && next->in[0] == body->inputs[k] &&
         known_int(body, next->in[1], g, n, &c->by) && c->by > 0;
}

bool graph_counts(const graph *g, uint32_t node, graph_counting *c) {
  const graph_node *n = &g->nodes[node];
  const graph *head = n->payload.regions[0];
  const graph_node *test = &head->nodes[head->outputs[0]];
  c->left = test->kind == NODE_OP && test->op == OP_bitand;
  if (c->left) test = &head->nodes[test->in[0]];
  if (test->kind != NODE_OP) return false;
  if (test->op != OP_lt && test->op != OP_le && test->op != OP_gt && test->op != OP_ge) return false;
  return counts_by(g, n, test, 0, c) || counts_by(g, n, test, 1, c);
}

int64_t graph_counted(const graph_counting *c, int64_t from, int64_t to) {
  int64_t way;
  if (c->up ? __builtin_sub_overflow(to, from, &way) : __builtin_sub_overflow(from, to, &way)) return INT64_MAX;
  if (way < (c->whole ? 0 : 1)) return 0;
  way = (way - !c->whole) / c->by;
  return way < INT64_MAX ? way + 1 : way;
}

/* How many turns a loop makes at most, where that can be seen: it counts from one number to another, and may be left early. *exact: it makes as many. */
static bool turns_seen(const graph *g, uint32_t node, int64_t *turns, bool *exact) {
  const graph_node *n = &g->nodes[node];
  graph_counting c;
  int64_t from, to;
  if (!graph_counts(g, node, &c) || !known_int(n->payload.regions[0], c.to, g, n, &to) ||
      !known_most(g, c.from, &from, exact) || (c.up && !*exact))
    return false;
  *exact &= !c.left;
  *turns = graph_counted(&c, from, to);
  return *turns < INT64_MAX;
}

int64_t graph_most_turns(const graph *g, uint32_t node) {
  int64_t turns, most = graph_loop_most(&g->nodes[node]);
  bool exact;
  return turns_seen(g, node, &turns, &exact) && turns < most ? turns : most;
}

/* Does a loop whose most turns are known make as many? */
static bool exact_turns(const graph *g, uint32_t node) {
  int64_t turns;
  bool exact;
  return turns_seen(g, node, &turns, &exact) && exact;
}

/* What each turn adds to carry k, a host int; 0: nothing, something else, or that is not known. */
static int64_t turn_adds(const graph *body, uint32_t k) {
  enum { MOST = 1 << 20 };
  const graph_node *next = &body->nodes[body->outputs[k]];
  int64_t by;
  bool is = next->kind == NODE_OP && (next->op == OP_add || next->op == OP_sub) && next->type.weak &&
            next->type.dtype == WEAK_INT && next->in[0] == body->inputs[k] &&
            known_int(body, next->in[1], NULL, NULL, &by) && by >= -MOST && by <= MOST;
  return !is ? 0 : next->op == OP_add ? by : -by;
}

bool graph_counts_up(const graph *body, uint32_t k) { return turn_adds(body, k) == 1; }

bool graph_sizes_count(const graph *body, uint32_t ncarries) {
  bool ok = true;
  for (uint32_t k = 0; k < ncarries && body->dims.strict; k++) ok &= !graph_makes_sizes(body, k) || turn_adds(body, k);
  return ok;
}

enum { KEPT_LEAST = 64, KEPT_MANY = 1 << 12, KEPT_MOST = 1 << 16 };

/* How many rows of `bytes` a loop that makes at most `turns` turns may keep: a power of two, so that they take about as many bytes as the
 * graph may keep. With fewer rows than the square root of the number of turns, the distance between kept turns would be longer than a
 * block, and a turn would be made again for each block behind it; so as many are kept in any case. */
static int64_t slots_for(const graph *g, int64_t bytes, int64_t turns) {
  int64_t most = g->grad_bytes ? g->grad_bytes : tunable_rows[TUNE_grad_bytes].def;
  int64_t least = KEPT_LEAST, slots = KEPT_MOST;
  while (turns != INT64_MAX && least < KEPT_MOST && least * least < turns) least *= 2;
  while (slots > least && slots > most / (bytes + 1)) slots /= 2;
  return slots;
}

/* The bytes of a row of each of these nodes. */
static int64_t rows_bytes(const graph *g, const uint32_t *nodes, uint32_t n) {
  int64_t bytes = 0;
  for (uint32_t i = 0; i < n; i++)
    if (__builtin_add_overflow(bytes, graph_row_bytes(g, nodes[i]), &bytes)) return INT64_MAX - 1;
  return bytes;
}

void graph_rows_added(graph *g, uint32_t node, uint32_t at, uint32_t added) {
  for (uint32_t i = node + 1; i < g->n; i++)
    if (g->nodes[i].kind == NODE_PROJ && g->nodes[i].in[0] == node && g->nodes[i].payload.index >= at)
      g->nodes[i].payload.index += added;
}

/* Makes a loop keep its carries of each turn as rows, unless it does so already; with `every`, of all turns. Returns the number of its result
 * that is the first carry's rows; 0 when memory is short. */
static uint32_t keep_carries(graph *g, uint32_t node, bool every) {
  graph_node *n = &g->nodes[node];
  graph *body = n->payload.regions[1];
  uint32_t carries = graph_loop_carries(n), at = carries;
  for (; at + carries <= body->noutputs; at++) {
    uint32_t same = 0;
    while (same < carries && body->outputs[at + same] == body->inputs[same]) same++;
    if (same < carries || !carries) continue;
    op_attr all = graph_loop_attr(carries, 0, graph_loop_most(n));
    return !every || !graph_loop_slots(n) || graph_set_attr(g, node, &all) ? at : 0;
  }
  int64_t slots = graph_loop_slots(n);
  if (!n->attr && !every) slots = slots_for(g, rows_bytes(g, n->in, carries), graph_most_turns(g, node));
  at = body->noutputs;
  for (uint32_t i = 0; i < carries; i++)
    if (!graph_output(body, body->inputs[i])) return 0;
  graph_rows_added(g, node, at, carries);
  op_attr attr = graph_loop_attr(carries, slots, graph_loop_most(n));
  return graph_set_attr(g, node, &attr) ? at : 0;
}

/* Chooses the values of a turn that are kept, and the flags. */
typedef struct value_choice {
  loop_grad *l;
  /* by number of wrt: what stands for the flag of the cotangent behind the turn, an op; 0: it has none */
  uint32_t *flags;
  bool *asked;       /* by number of wrt: does its flag matter behind the loop? */
  const graph *body; /* of the loop */
  arena *memory;
  int64_t turns, rows; /* the loop makes at most so many; rows of so many of them are kept at a time */
  bool all;            /* are these of all turns? Then carries that are not read, or settled, need no rows */
  const settle_ends *ends;
  settling *settling; /* or NULL */
  int64_t room;       /* rows of what was chosen find room for so many turns */
} value_choice;

/* Marks what the marked nodes are made of. */
static void mark_operands(const graph *g, bool *marks) {
  for (uint32_t i = g->n; i-- > 1;)
    for (int k = 0; k < g->nodes[i].nin && marks[i]; k++) marks[g->nodes[i].in[k]] = true;
}

/* Makes those flags inputs and results of the gradient of a turn that are read, in this turn or behind the loop. */
static bool keep_flags(const value_choice *c, const region_vjp *x) {
  loop_grad *l = c->l;
  graph *g = x->g;
  uint32_t n = (uint32_t)x->nwrt, *there = arena_alloc(c->memory, n * sizeof *there);
  bool any = false, ok = there != NULL;
  for (uint32_t e = 0; e < n && ok; e++)
    if (c->flags[e]) any = ok = (there[e] = is_there(x, (int)e)) != 0;
  if (!ok || !any) return ok;
  bool *marks = arena_alloc(c->memory, g->n * sizeof *marks);
  l->flagged = arena_alloc(c->memory, n * sizeof *l->flagged);
  if (!marks || !l->flagged) return false;
  for (uint32_t k = 0; k < g->noutputs; k++) marks[g->outputs[k]] = true;
  for (bool more = true; more && ok;) {
    mark_operands(g, marks);
    more = false;
    for (uint32_t e = 0; e < n && ok; e++) {
      if (!c->flags[e] || !(marks[c->flags[e]] || c->asked[e])) continue;
      marks[there[e]] = more = true;
      ok = graph_make_input(g, c->flags[e]) && graph_output(g, there[e]);
      l->flagged[l->nflags++] = e;
      c->flags[e] = 0;
    }
  }
  return ok;
}

/* keep_values where the gradient will be differentiated itself: it reads from rows each value of the turn that may have a cotangent, so that none is
 * made from others. `kept`: room by node. */
static bool keep_read_values(const value_choice *c, graph *back, bool *kept) {
  loop_grad *l = c->l;
  const graph *body = c->body;
  uint32_t n = body->n;
  bool *read = arena_alloc(c->memory, back->n * sizeof *read);
  if (!read) return false;
  for (uint32_t k = 0; k < back->noutputs; k++) read[back->outputs[k]] = true;
  for (uint32_t v = back->n; v-- > n;)
    for (int k = 0; read[v] && k < back->nodes[v].nin; k++) read[back->nodes[v].in[k]] = true;
  mark_kept(back, n, kept);
  for (uint32_t v = 1; v < n; v++) {
    if (!read[v] || !kept[v]) continue;
    l->values[l->nvalues++] = v;
    if (!graph_make_input(back, v)) return false;
  }
  memset(kept, 0, n * sizeof *kept);
  if (!graph_keep(back, n, l->ncarries, false, l->settled, kept)) return false;
  for (uint32_t v = 1; v < n; v++) {
    if (!kept[v] || back->nodes[v].kind == NODE_INPUT) continue;
    l->values[l->nvalues++] = v;
    if (!graph_make_input(back, v)) return false;
  }
  return true;
}

/* region_vjp_made of a turn. Values are kept where the bytes that may be kept suffice for rows of all turns or, where these are more than can be kept or
 * nobody knows how many, for many: with blocks of so many turns, a loop makes no turn more than twice before it has made 2^28. */
static bool keep_values(void *ctx, const region_vjp *x) {
  value_choice *c = ctx;
  loop_grad *l = c->l;
  graph *back = x->g;
  uint32_t n = c->body->n;
  bool *kept = arena_alloc(c->memory, n * sizeof *kept);
  l->values = arena_alloc(c->memory, n * sizeof *l->values);
  l->types = arena_alloc(c->memory, n * sizeof *l->types);
  if (!kept || !l->values || !l->types || !keep_flags(c, x)) return false;
  if (l->derived) return keep_read_values(c, back, kept);
  if (c->settling && !settle_end(c->settling, c->memory, l->settled)) return false;
  if (!graph_keep(back, n, l->ncarries, c->all, l->settled, kept)) return false;
  uint32_t nrows = 0, *rows = arena_alloc(c->memory, n * sizeof *rows);
  if (!rows) return false;
  for (uint32_t v = 1; v < n; v++) {
    if (kept[v]) rows[nrows++] = v;
    if (kept[v] && back->nodes[v].kind != NODE_INPUT) l->values[l->nvalues++] = v;
  }
  int64_t room = c->room = slots_for(back, rows_bytes(back, rows, nrows), c->turns), needed = c->rows;
  if (needed > KEPT_MANY && (c->turns == INT64_MAX || needed < c->turns)) needed = KEPT_MANY;
  if (room < needed) l->nvalues = 0;
  if (l->nvalues && room < l->block) l->block = room;
  for (uint32_t i = 0; i < l->nvalues; i++)
    if (!graph_make_input(back, l->values[i])) return false;
  return true;
}

/* Makes the body of a loop give the kept values as rows, too. Sets `result` to the numbers of the loop's results that they are. False:
 * memory is short. */
static bool keep_value_rows(graph *g, uint32_t node, const loop_grad *l, uint32_t *result) {
  graph *body = g->nodes[node].payload.regions[1];
  uint32_t made = body->noutputs;
  for (uint32_t i = 0; i < l->nvalues; i++) {
    const uint32_t row = as_row(body, l->values[i]);
    result[i] = l->ncarries;
    while (result[i] < body->noutputs && body->outputs[result[i]] != row) result[i]++;
    if (!row || (result[i] == body->noutputs && !graph_output(body, row))) return false;
  }
  graph_rows_added(g, node, made, body->noutputs - made);
  return true;
}

/* Sets c->flags for number `e` of wrt to an op that stands for the flag. False when memory is short. */
static bool make_flag(value_choice *c, graph *g, uint32_t e) {
  uint32_t no = grad_flag(g, false);
  return (c->flags[e] = graph_op2(g, OP_bitor, no, no)) != 0;
}

/* Makes loop_grad.back: the gradient of a turn. `rows`: which results of the body are the rows that have cotangents. NULL with `why`. */
static graph *backward_body(const control_grad *c, const graph *body, const loop_grad *l, const uint32_t *rows,
                            value_choice *choice, op_refusal *why) {
  region_vjp x;
  uint32_t *seeds = calloc(3 * ((size_t)l->ncarries + 1), sizeof *seeds), *order = seeds + l->ncarries + 1,
           *there = order + l->ncarries + 1;
  bool ok = region_vjp_begin(c, body, &x) && seeds;
  graph *g = x.g;
  if (ok && choice->all && !l->derived)
    ok = settle_begin(g, l->ncarries, l->counts, choice->ends, choice->memory, &choice->settling);
  for (uint32_t k = 0; k < l->ncarries && ok; k++) {
    if (!l->has_ct[k]) continue;
    ok = (seeds[k] = graph_input(g, g->nodes[g->outputs[k]].type, 0)) != 0;
    if (ok && l->plain[k] && !l->sure[k]) ok = make_flag(choice, g, (uint32_t)x.nwrt);
    there[k] = choice->flags[x.nwrt];
    choice->asked[x.nwrt] = c->plain[k];
    x.plain[x.nwrt] = l->plain[k];
    x.wrt[x.nwrt++] = g->inputs[k];
  }
  for (uint32_t k = 0; k < l->nrows && ok; k++) {
    graph_type t = g->nodes[g->outputs[rows[k]]].type;
    op_attr attr = {.dtype = t.dtype, .flags = ATTR_WEAK};
    bool weak = t.weak;
    t.weak = false;
    uint32_t seed = graph_input(g, t, 0), is_there = 0;
    ok = take_flag(g, c->given_there[rows[k]], &is_there);
    if (weak) seed = graph_op(g, OP_cast, &seed, 1, &attr, 0);
    /* before those of carries: rows are read by gradients, which come last in the graph */
    ok = ok && region_vjp_root(&x, rows[k], seed, is_there);
  }
  if (ok) root_order(body, l->ncarries, true, order);
  for (uint32_t k = 0; k < l->ncarries && ok; k++)
    if (seeds[order[k]]) ok = region_vjp_root(&x, order[k], seeds[order[k]], there[order[k]]);
  free(seeds);
  for (uint32_t i = l->ncarries; i < body->ninputs && ok; i++) {
    if (!c->wanted[i]) continue;
    uint32_t input = g->inputs[i];
    ok = (x.onto[x.nwrt] = graph_input(g, g->nodes[input].type, 0)) != 0;
    if (ok && l->plain[i] && !l->sure[i]) ok = make_flag(choice, g, (uint32_t)x.nwrt);
    x.onto_there[x.nwrt] = choice->flags[x.nwrt];
    x.plain[x.nwrt] = choice->asked[x.nwrt] = l->plain[i];
    x.rows[x.nwrt] = c->so_far[i] != 0;
    x.wrt[x.nwrt++] = input;
  }
  if (ok) return region_vjp_end(&x, keep_values, choice, why);
  short_of_memory(why);
  region_vjp_free(&x);
  return NULL;
}

/* Sets l->has_ct, l->sure and l->plain. Carries that depend on nothing that is differentiated by have no cotangents, as in calls that are not
 * captured: rules ask (grad_div). (A carry that none of them depends on has no cotangent in any turn, and not even zeros go through its products: where these have
 * infinite factors they would become NaN.) False when memory is short. */
static bool note_cotangents(const control_grad *c, loop_grad *l, arena *memory) {
  const graph *g = c->g;
  const graph_node *n = &g->nodes[c->node];
  const graph *body = n->payload.regions[1];
  uint32_t made = body->noutputs;
  bool *results = arena_alloc(memory, (made + (size_t)1) * sizeof *results);
  bool *marks = arena_alloc(memory, body->n * sizeof *marks);
  l->has_ct = arena_alloc(memory, (n->nin + (size_t)1) * sizeof *l->has_ct);
  l->sure = arena_alloc(memory, (n->nin + (size_t)1) * sizeof *l->sure);
  l->plain = arena_alloc(memory, (n->nin + (size_t)1) * sizeof *l->plain);
  if (!results || !marks || !l->has_ct || !l->sure || !l->plain) return false;
  for (uint32_t k = 0; k < made; k++) results[k] = c->given[k] != 0;
  if (!grad_region_needs(n, results, false, l->has_ct)) return false;
  if (!grad_turns_vary(n, c->wanted, marks)) return false;
  for (uint32_t k = 0; k < l->ncarries; k++)
    l->has_ct[k] &= marks[body->inputs[k]] && dtype_is_float((qn_dtype)g->nodes[n->in[k]].type.dtype);
  memset(marks, 0, body->n * sizeof *marks);
  for (uint32_t k = 0; k < n->nin; k++) marks[body->inputs[k]] = c->plain[k];
  for (bool more = true; more;) { /* what comes of a carry's cotangent goes to that of the turn before */
    more = false;
    grad_mark_plain(body, marks);
    for (uint32_t k = 0; k < l->ncarries; k++) {
      more |= marks[body->outputs[k]] && !marks[body->inputs[k]];
      marks[body->inputs[k]] |= marks[body->outputs[k]];
    }
  }
  for (uint32_t k = 0; k < n->nin; k++) l->plain[k] = marks[body->inputs[k]];
  for (uint32_t k = 0; k < made; k++) results[k] = c->given[k] && !c->given_there[k];
  if (!grad_region_needs(n, results, true, l->sure)) return false;
  for (uint32_t k = l->ncarries; k < n->nin; k++) l->sure[k] = c->so_far[k] && !c->so_far_there[k];
  return true;
}

/* Sets unread[k] for carries that the gradient of a turn does not read, as sums of cotangents over the turns. False: memory is short. */
static bool note_unread(const loop_grad *l, arena *memory, bool *unread) {
  const graph *back = l->back;
  bool *read = arena_alloc(memory, back->n * sizeof *read);
  if (!read) return false;
  for (uint32_t i = 1; i < back->n; i++)
    for (int k = 0; k < back->nodes[i].nin; k++) read[back->nodes[i].in[k]] = true;
  for (uint32_t k = 0; k < back->noutputs; k++) read[back->outputs[k]] = true;
  for (uint32_t k = 0; k < l->ncarries; k++) unread[k] = !read[back->inputs[k]];
  return true;
}

/* The loop keeps its carries of some turns: makes l->back as if it kept them of all. True if what is read then finds room. */
static bool keeps_all(const control_grad *c, loop_grad *l, const uint32_t *given_rows, value_choice *choice,
                      op_refusal *why) {
  const value_choice some = *choice;
  choice->all = true;
  choice->rows = l->block = choice->turns;
  l->back = backward_body(c, choice->body, l, given_rows, choice, why);
  if (l->back && choice->room >= choice->turns) return true;
  graph_free(l->back);
  *choice = some;
  for (uint32_t k = 0; k < choice->body->ninputs; k++) choice->flags[k] = choice->asked[k] = 0;
  l->block = some.rows;
  l->nvalues = l->nflags = 0;
  memset(l->settled, 0, l->ncarries * sizeof *l->settled);
  return false;
}

/* What is known of the numbers with which turns begin, of carries that count. NULL: memory is short. */
static const settle_ends *note_ends(const control_grad *c, const loop_grad *l, int64_t most, arena *memory) {
  settle_ends *ends = arena_alloc(memory, l->ncarries * sizeof *ends);
  for (uint32_t k = 0; k < l->ncarries && ends; k++) {
    int64_t from, way, to;
    if (!l->counts[k] || !known_int(c->g, c->g->nodes[c->node].in[k], NULL, NULL, &from)) continue;
    ends[k] = (settle_ends){.has_first = l->counts[k] > 0, .first = from};
    if (most < 1 || most == INT64_MAX || __builtin_mul_overflow(l->counts[k], most - 1, &way) ||
        __builtin_add_overflow(from, way, &to))
      continue;
    ends[k] = (settle_ends){true, true, way < 0 ? to : from, way < 0 ? from : to};
  }
  return ends;
}

static bool loop_gradient(control_grad *c, loop_grad *l, arena *memory, op_refusal *why) {
  graph *g = c->g;
  graph_node n = g->nodes[c->node];
  uint32_t made = n.payload.regions[1]->noutputs;
  l->ncarries = graph_loop_carries(&n);
  l->ncaptured = n.nin - l->ncarries;
  uint32_t *given_rows = arena_alloc(memory, made * sizeof *given_rows);
  uint32_t *float_carries = arena_alloc(memory, l->ncarries * sizeof *float_carries);
  uint32_t *wanted = arena_alloc(memory, n.nin * sizeof *wanted);
  l->weak = arena_alloc(memory, l->ncarries * sizeof *l->weak);
  l->counts = arena_alloc(memory, l->ncarries * sizeof *l->counts);
  l->sized = arena_alloc(memory, l->ncarries * sizeof *l->sized);
  l->fixed = arena_alloc(memory, l->ncarries * sizeof *l->fixed);
  l->settled = arena_alloc(memory, l->ncarries * sizeof *l->settled);
  l->derived = c->derived;
  if (memory->failed || (l->derived && !expose_regions(n.payload.regions[1])) || !note_cotangents(c, l, memory))
    return false;
  for (uint32_t k = l->ncarries; k < made; k++)
    if (c->given[k]) given_rows[l->nrows++] = k;
  for (uint32_t k = 0; k < l->ncarries; k++) {
    l->weak[k] = g->nodes[n.in[k]].type.weak;
    l->counts[k] = turn_adds(n.payload.regions[1], k);
    l->nsized += l->sized[k] = graph_makes_sizes(n.payload.regions[1], k);
    if (l->sized[k] && !l->counts[k]) return turn_sizes(why);
    if (l->has_ct[k]) float_carries[l->ncts++] = k;
  }
  for (uint32_t i = l->ncarries; i < n.nin; i++)
    if (c->wanted[i]) wanted[l->naccs++] = i;
  const bool fresh = !n.attr; /* nobody reads rows of it yet */
  uint32_t rows = keep_carries(g, c->node, l->derived);
  n = g->nodes[c->node];
  loop_values v;
  int64_t slots = graph_loop_slots(&n), most = graph_most_turns(g, c->node);
  bool all = !slots || most <= slots || l->derived; /* does it keep the carries of all turns? */
  value_choice choice = {.l = l,
                         .flags = arena_alloc(memory, (n.nin + (size_t)1) * sizeof *choice.flags),
                         .asked = arena_alloc(memory, (n.nin + (size_t)1) * sizeof *choice.asked),
                         .body = n.payload.regions[1],
                         .memory = memory,
                         .turns = most,
                         .all = all,
                         .ends = note_ends(c, l, most, memory)};
  l->block = choice.rows = all ? most : slots;
  if (!choice.flags || !choice.asked || !choice.ends || !rows || !(l->body = graph_copy(n.payload.regions[1])) ||
      !graph_prove(l->body) || !graph_drawn_anew(l->body, 1))
    return false;
  const bool more = !all && fresh && most <= KEPT_MOST && keeps_all(c, l, given_rows, &choice, why);
  if (!more && !(l->back = backward_body(c, choice.body, l, given_rows, &choice, why))) return false;
  short_of_memory(why);
  if (more && !keep_carries(g, c->node, true)) return false;
  all |= more;
  bool *unread = arena_alloc(memory, l->ncarries * sizeof *unread);
  if (!unread || !note_unread(l, memory, unread) || !values_make(l, memory, &v)) return false;
  l->body->noutputs = l->ncarries;
  if (!(l->numbers = arena_alloc(memory, (l->nvalues + (size_t)1) * sizeof *l->numbers))) return false;
  for (uint32_t i = 0; i < l->nvalues; i++) {
    const uint32_t row = as_row(l->body, l->values[i]);
    l->numbers[i] = grad_is_number(l->body, l->values[i]);
    if (!row || !graph_output(l->body, row)) return false;
  }
  graph_dce(l->body);
  uint32_t *cts = arena_alloc(memory, 2 * ((size_t)l->ncts + l->naccs) * sizeof *cts);
  uint32_t *value_rows = arena_alloc(memory, l->nvalues * sizeof *value_rows);
  uint32_t *kept = arena_alloc(memory, (l->ncarries + l->nvalues) * sizeof *kept);
  if (!cts || !value_rows || !kept || (all && !keep_value_rows(g, c->node, l, value_rows))) return false;
  n = g->nodes[c->node];
  uint32_t results = n.payload.regions[1]->noutputs;
  uint32_t turns = l->derived ? turns_of(g, c->node)
                              : result_of(g, c->node, results, (graph_type){.dtype = WEAK_INT, .weak = true}, n.site);
  v.stride = l->derived ? graph_weak_int(g, 1)
                        : result_of(g, c->node, results + 1, (graph_type){.dtype = WEAK_INT, .weak = true}, n.site);
  for (uint32_t k = 0; k < l->ncarries; k++)
    if (l->counts[k] || (all && unread[k])) {
      l->fixed[k] = true; /* (what is not read may be any value) */
      kept[k] = n.in[k];
    } else if (all && l->settled[k]) {
      l->fixed[k] = true;
      kept[k] = result_of(g, c->node, k, g->nodes[n.in[k]].type, n.site);
      if (!kept[k]) return false;
    } else if (!(kept[k] = padded(g, result_of(g, c->node, rows + k, g->nodes[n.in[k]].type, n.site))))
      return false;
  memcpy(v.captured, n.in + l->ncarries, l->ncaptured * sizeof *v.captured);
  if (!value_types(l, g, n.in, v.captured)) return false;
  for (uint32_t k = 0; k < l->nvalues && all; k++)
    if (!(kept[l->ncarries + k] = padded(g, result_of(g, c->node, value_rows[k], l->types[k], n.site)))) return false;
  for (uint32_t k = 0; k < l->nrows; k++) {
    v.row_cts[k] = c->given[given_rows[k]];
    v.row_there[k] = c->given_there[given_rows[k]];
  }
  for (uint32_t k = 0; k < l->ncts; k++) {
    uint32_t carry = float_carries[k];
    v.cts[k] = c->given[carry] ? c->given[carry] : zeros(g, n.in[carry]);
  }
  for (uint32_t k = 0; k < l->naccs; k++) {
    uint32_t so_far = c->so_far[wanted[k]];
    v.cts[l->ncts + k] = so_far ? so_far : zeros(g, n.in[wanted[k]]);
  }
  uint32_t *flags = cts + l->ncts + l->naccs;
  for (uint32_t k = 0; k < l->nflags; k++) {
    uint32_t e = l->flagged[k], x = e < l->ncts ? float_carries[e] : wanted[e - l->ncts];
    uint32_t ct = e < l->ncts ? c->given[x] : c->so_far[x],
             there = e < l->ncts ? c->given_there[x] : c->so_far_there[x];
    v.cts[l->ncts + l->naccs + k] = ct && there ? there : grad_flag(g, ct != 0);
  }
  if (!turns || !v.stride || g->failed) return false;
  if (all ? !reverse_block(l, g, &v, graph_weak_int(g, 0), turns, kept, cts)
          : !reverse_blocks(l, g, &v, turns, kept, cts))
    return false;
  for (uint32_t k = 0; k < l->ncts; k++)
    if (c->wanted[float_carries[k]]) c->out[float_carries[k]] = cts[k];
  for (uint32_t k = 0; k < l->naccs; k++) c->out[wanted[k]] = cts[l->ncts + k];
  for (uint32_t k = 0; k < l->nflags; k++) {
    uint32_t e = l->flagged[k];
    c->out_there[e < l->ncts ? float_carries[e] : wanted[e - l->ncts]] = flags[k];
  }
  return true;
}

static bool grad_loop(control_grad *c, op_refusal *why) {
  loop_grad l = {0};
  arena memory;
  arena_init(&memory, NULL);
  short_of_memory(why); /* what a failure is unless something else is said */
  bool ok = loop_gradient(c, &l, &memory, why);
  const graph *g = c->g, *body = g->nodes[c->node].payload.regions[1];
  if (!ok && why->id == E_memory && graph_has_turn_sizes(body) && !g->arena.failed && !body->arena.failed &&
      !memory.failed)
    (void)turn_sizes(why); /* (it is not known how large a part is at most) */
  graph_free(l.body);
  graph_free(l.back);
  arena_free(&memory);
  return ok;
}

bool grad_control(control_grad *c, op_refusal *why) {
  const graph_node *n = &c->g->nodes[c->node];
  return n->kind == NODE_IF ? grad_branch(c, why) : grad_loop(c, why);
}
