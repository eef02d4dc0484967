/* Loops in arms and turns, where gradients are differentiated themselves: how many turns they make at most (turns_may_be_kept).
 *
 * All floats of the turns of such a loop become rows, padded to one number of turns, since what is around the loop keeps them (grad_control.c of
 * jit/graph). Where it counts from one known number to another the graph says how many turns these are. Otherwise it is found out here: the number of
 * a loop around it lies between the ends of that loop, and a host int of the call has a value. A later call may have another one there; so in
 * a call that is captured what is said is not this value but the next power of two, and that it is no more becomes a guard: a function is recorded
 * once for all numbers of turns up to that. (Not for graphs that are values: nobody records a call of these once more.)
 *
 * How many turns a loop makes that data end, nobody knows before. So the loop or branch outside of all arms that is around it is run once more, before the
 * one that keeps rows, to count them (turns_counted): each turn and arm gives the most turns that such loops in it have made. What they are in later calls
 * is a check behind which the call leaves the graph; then it is recorded once more, for more turns. An arm that is captured before it is known what is
 * around it relies on that (turns_are_counted_around); where the turns are too many in the end, the call is recorded once more without such loops.
 *
 * So it is with loops in the function of a vmap, which is recorded without data, for any lane: there the turns are said to be as many as the last recording
 * has said, few at first, and a recording in which they are more begins once more.
 */
#include <string.h>

#include "jit/graph/grad.h"
#include "jit/graph/region_builder.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/vmap.h"
#include "jit/trace/ways.h"

enum {
  DEEPEST = 32,         /* numbers and operations that one is made of, one in another */
  ROUNDED_LEAST = 16,   /* a power of two */
  KEPT_TURNS = 1 << 16, /* of loops that may make more, not all turns are kept */
  LEFT_TURNS = 1 << 12  /* likewise of loops that may be left before, since rows for the others are made, too */
};

/* The least power of two, from ROUNDED_LEAST on, that is no less. */
static int64_t rounded(int64_t n) {
  int64_t to = ROUNDED_LEAST;
  while (to < n) to *= 2;
  return to;
}

/* Is it no end that is too large? (So nothing overflows that is made of two.) */
static bool in_range(int64_t n) { return n <= KEPT_TURNS && n >= -KEPT_TURNS; }

/* Is the call recorded for a graph that is a value? Calls of that with more turns fail. */
static bool is_asked(const struct recording *r) { return value_is(r->vm->asked.watched_fn, TAG_FN); }

/* Sets *end to what a host int outside of all arms is at most (`high`) or at least. False: it is not known, or too large; or with an error raised. */
static bool end_outside(struct recording *r, uint32_t node, bool high, int64_t *end) {
  qn_vm *vm = r->vm;
  if (r->hollow || r->lanes || (r->capturing && is_asked(r))) return false;
  qn_value v = rec_value_of(r, node);
  if (!value_is(v, TAG_INT) || rec_is_data(r, v) || !in_range(v.u.i)) return false;
  *end = v.u.i;
  if (!r->capturing) return true;
  *end = high ? rounded(v.u.i) : v.u.i < 0 ? -rounded(-v.u.i) : 0;
  struct recording *active = vm->rec;
  vm->rec = r;
  r->held++; /* it must not end beneath its arms */
  qn_value holds = op_binary(vm, high ? OP_le : OP_ge, v, value_int(*end));
  if (!value_is_error(holds)) holds = rec_guard(vm, holds);
  r->held--;
  vm->rec = active;
  r->limits_turns = true;
  return !value_is_error(holds);
}

/* Where a number stands. */
typedef struct number_place {
  struct recording *r;
  const graph *header; /* of a loop in r: the number is a node of it; NULL: one of r */
  const graph_node *loop;
} number_place;

static bool end_of(number_place at, uint32_t node, bool high, int depth, int64_t *end);

/* As end_of, of an op of two numbers. */
static bool end_of_op(number_place at, const graph_node *n, bool high, int depth, int64_t *end) {
  int64_t a, b;
  const bool minus = n->op == OP_sub, least = n->op == OP_minimum;
  const uint32_t in[] = {n->in[0], n->in[1]}; /* the list of nodes may move */
  const uint8_t op = n->op;
  if (op != OP_add && !minus && !least && op != OP_maximum) return false;
  bool first = end_of(at, in[0], high, depth, &a), second = end_of(at, in[1], high != minus, depth, &b);
  bool either = (least && high) || (op == OP_maximum && !high);
  if (error_pending(at.r->vm) || !(either ? first || second : first && second)) return false;
  if (op == OP_add || minus)
    *end = minus ? a - b : a + b;
  else if (!first || !second)
    *end = first ? a : b;
  else
    *end = least == (a < b) ? a : b;
  return in_range(*end);
}

/* As end_of, of a number times or (`divided`) by a constant. */
static bool end_of_part(number_place at, const graph_node *n, bool high, int depth, int64_t *end) {
  const bool divided = n->op == OP_floordiv;
  qn_value v;
  int64_t a;
  const graph *g = at.header ? at.header : at.r->g;
  const int of = !divided && graph_const_value(g, n->in[0], &v); /* the operand that is no constant */
  if (!of && !graph_const_value(g, n->in[1], &v)) return false;
  const int64_t by = v.u.i;
  if (by == 0 || !in_range(by) || !end_of(at, n->in[of], high == (by > 0), depth, &a)) return false;
  *end = divided ? a / by - (a % by && (a < 0) != (by < 0)) : a * by;
  return in_range(*end);
}

/* Sets *end to what a host int is at most (`high`) or at least, in all turns. False as end_outside. */
static bool end_of(number_place at, uint32_t node, bool high, int depth, int64_t *end) {
  struct recording *r = at.r;
  const graph *g = at.header ? at.header : r->g;
  const graph_node *n = &g->nodes[node];
  qn_value v;
  if (!n->type.weak || n->type.dtype != WEAK_INT || ++depth > DEEPEST) return false;
  if (graph_const_value(g, node, &v)) return *end = v.u.i, in_range(v.u.i);
  if (n->kind == NODE_INPUT && at.header) {
    uint32_t k = n->payload.input;
    return k >= graph_loop_carries(at.loop) && end_of((number_place){r, NULL, NULL}, at.loop->in[k], high, depth, end);
  }
  if (!at.header && !r->arm) return end_outside(r, node, high, end);
  if (n->kind == NODE_OP && n->op == OP_neg) return end_of(at, n->in[0], !high, depth, end) && (*end = -*end, true);
  if (n->kind == NODE_OP && (n->op == OP_floordiv || n->op == OP_mul)) return end_of_part(at, n, high, depth, end);
  if (n->kind == NODE_OP && n->nin == 2) return end_of_op(at, n, high, depth, end);
  if (n->kind != NODE_INPUT) return false;
  uint32_t k = n->payload.input;
  if (r->count != k + 1)
    return k >= r->carries && end_of((number_place){r->outer, NULL, NULL}, r->captures[k], high, depth, end);
  const struct count_end *e = &r->count_ends[high];
  *end = 0;
  if (e->node && !end_of((number_place){(struct recording *)e->in, NULL, NULL}, e->node, high, depth, end))
    return false;
  return !__builtin_add_overflow(*end, e->more, end) && in_range(*end) && in_range(*end -= high);
}

/* Says of a loop in arm r how many turns it makes at most, where that can be found out. False with an error raised. */
static bool bound_turns(struct recording *r, uint32_t node) {
  graph_counting c;
  const graph_node n = r->g->nodes[node];
  const number_place in = {r, NULL, NULL}, in_header = {r, n.payload.regions[0], &n};
  int64_t from, to;
  if (!graph_counts(r->g, node, &c) || !end_of(in_header, c.to, c.up, 0, &to) || !end_of(in, c.from, !c.up, 0, &from))
    return !error_pending(r->vm);
  const int64_t most = graph_counted(&c, from, to);
  if (most > (c.left ? LEFT_TURNS : KEPT_TURNS)) return true;
  const op_attr attr = graph_loop_attr(graph_loop_carries(&n), graph_loop_slots(&n), most);
  return graph_set_attr(r->g, node, &attr) || (raise_memory(r->vm), false);
}

bool turns_may_be_kept(struct recording *r) {
  for (uint32_t i = 1; i < r->g->n; i++)
    if (r->g->nodes[i].kind == NODE_LOOP && graph_most_turns(r->g, i) == INT64_MAX && !bound_turns(r, i)) return false;
  return graph_may_be_kept(r->g, false);
}

/* ---- turns that are counted first ------------------------------------------------------------------------------------------------- */

/* Is it a loop of which nobody knows how many turns it makes? */
static bool is_uncounted(const graph *g, uint32_t node) {
  return g->nodes[node].kind == NODE_LOOP && graph_most_turns(g, node) == INT64_MAX;
}

/* How many such loops lie one in another at most, in arms and turns. */
static int uncounted_deep(const graph *g) {
  int deep = 0;
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    if (!graph_kind_has_regions(n->kind) || graph_is_rule(n)) continue;
    for (int k = n->kind == NODE_LOOP; k < 2; k++) {
      int within = uncounted_deep(n->payload.regions[k]) + is_uncounted(g, i);
      if (within > deep) deep = within;
    }
  }
  return deep;
}

/* May all values be kept of a turn or arm with such loops in it, once their turns are counted? */
static bool may_be_counted(const graph *g) { return !graph_has_taps(g, 1) && graph_may_be_kept(g, true); }

/* Is r an arm that is the function of a vmap, in no arm of another kind? Its nodes will be nodes of the recording around all arms, for all lanes. */
static bool is_of_lanes(const struct recording *r) {
  return r->arm && r->outer->aside && (!r->outer->arm || is_of_lanes(r->outer));
}

bool turns_settle(const struct recording *r) { return !r->arm || is_of_lanes(r); }

/* Could the turns of loops in the body of a loop in r be counted? */
static bool counts_turns(const struct recording *r) {
  const struct recording *base = rec_base((struct recording *)(uintptr_t)r);
  if (!turns_settle(r) || base->hollow || (!r->arm && r->lanes) || base->device) return false;
  const bool whole = r->vm->asked.whole || is_asked(r) || base->trying || (!r->arm && vmap_aside(r));
  return r->arm ? base->capturing && base->of && !base->of->turns_uncounted && !whole
                : !(r->capturing && whole); /* (then nothing may leave the graph) */
}

bool turns_count_in_arms(const struct recording *r) {
  if (!turns_settle(r)) return r->counts_turns;
  const struct recording *base = rec_base((struct recording *)(uintptr_t)r);
  return base->capturing && base->of && !base->of->turns_uncounted && counts_turns(r) && rec_derivatives(r) > 1;
}

bool turns_may_be_counted(const struct recording *r) {
  return !error_pending(r->vm) && counts_turns(r->outer) && uncounted_deep(r->g) > 0 && may_be_counted(r->g);
}

bool turns_are_counted_around(const struct recording *r) {
  return !error_pending(r->vm) && r->counts_turns && may_be_counted(r->g);
}

static uint32_t most_in(graph *g);

/* A host int as an array without axes, and the other way round. 0: memory is short. */
static uint32_t as_array(graph *g, uint32_t number) {
  const op_attr whole = {.dtype = QN_i64};
  return number ? graph_op(g, OP_fit, &number, 1, &whole, 0) : 0;
}
static uint32_t as_number(graph *g, uint32_t array) {
  const op_attr host = {.dtype = QN_i64, .flags = ATTR_WEAK};
  return array ? graph_op(g, OP_cast, &array, 1, &host, 0) : 0;
}

/* A host int of each turn of loop `node`, `made` in its body, becomes rows of it. The most of all, an array without axes; 0: memory is short. */
static uint32_t most_of_rows(graph *g, uint32_t node, uint32_t made) {
  const graph_node n = g->nodes[node];
  graph *body = n.payload.regions[1];
  const op_attr axis = {.axes = 1}, longer = {.n = 3, .d = {1}},
                keeps = graph_loop_attr(graph_loop_carries(&n), 0, graph_loop_most(&n));
  const uint32_t at = body->noutputs, row = as_array(body, made);
  if (!row || !graph_output(body, row)) return 0;
  graph_rows_added(g, node, at, 1);
  if (!graph_set_attr(g, node, &keeps)) return 0;
  const uint32_t rows = graph_proj(g, node, at, body->nodes[row].type, n.site);
  /* (one more, so that there is one where no turn is made) */
  const uint32_t in[] = {rows, graph_const_scalar(g, QN_i64, false, 0, 0, n.site)};
  uint32_t all = graph_op(g, OP_pad, in, 2, &longer, n.site);
  return all ? graph_op(g, OP_max, &all, 1, &axis, n.site) : 0;
}

/* Likewise of branch `node`, in arms of which are such loops. */
static uint32_t most_of_arms(graph *g, uint32_t node) {
  const graph_node n = g->nodes[node];
  graph *const *part = n.payload.regions;
  const uint32_t at = part[0]->noutputs;
  for (int k = 0; k < 2; k++) {
    const uint32_t most = uncounted_deep(part[k]) ? most_in(part[k]) : graph_weak_int(part[k], 0);
    const uint32_t array = as_array(part[k], most);
    if (!array || !graph_output(part[k], array)) return 0;
  }
  return graph_proj(g, node, at, (graph_type){.dtype = QN_i64}, n.site);
}

/* Likewise of a loop, in turns of which are such loops. */
static uint32_t most_of_turns(graph *g, uint32_t node) {
  const uint32_t most = most_in(g->nodes[node].payload.regions[1]);
  return most ? most_of_rows(g, node, most) : 0;
}

/* Are such loops in arms or turns of a node? */
static bool has_uncounted(const graph_node *n) {
  if (!graph_kind_has_regions(n->kind) || graph_is_rule(n)) return false;
  return uncounted_deep(n->payload.regions[1]) || (n->kind == NODE_IF && uncounted_deep(n->payload.regions[0]));
}

/* A host int of g: the most turns that a loop has made whose turns nobody knows, in g and in arms and turns of it. 0: there is none, or memory is short. */
static uint32_t most_in(graph *g) {
  const graph_type count = {.dtype = WEAK_INT, .weak = true};
  uint32_t most = 0;
  for (uint32_t i = 1, end = g->n; i < end; i++) {
    const graph_node n = g->nodes[i];
    const bool within = has_uncounted(&n), own = is_uncounted(g, i);
    uint32_t one = 0;
    if (within) one = as_number(g, n.kind == NODE_IF ? most_of_arms(g, i) : most_of_turns(g, i));
    if (within && !one) return 0;
    if (within) most = most ? graph_op2(g, OP_maximum, most, one) : one;
    if (own) one = graph_proj(g, i, n.payload.regions[1]->noutputs, count, 0);
    if (own && one) most = most ? graph_op2(g, OP_maximum, most, one) : one;
    if ((within || own) && (!one || !most)) return 0;
  }
  return most;
}

/* All such loops in g are said to make so many turns at most. False: memory is short. */
static bool bound_all(graph *g, int64_t end) {
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node n = g->nodes[i];
    if (!graph_kind_has_regions(n.kind) || graph_is_rule(&n)) continue;
    for (int k = n.kind == NODE_LOOP; k < 2; k++)
      if (!bound_all(n.payload.regions[k], end)) return false;
    if (!is_uncounted(g, i)) continue;
    const op_attr attr = graph_loop_attr(graph_loop_carries(&n), graph_loop_slots(&n), end);
    if (!graph_set_attr(g, i, &attr)) return false;
  }
  return true;
}

/* May rows be kept of so many turns of loops, `deep` of which lie in one another? */
static bool few_enough(int64_t end, int deep) {
  int64_t rows = 1;
  for (int i = 0; i < deep && rows <= KEPT_TURNS; i++) rows *= end;
  return rows <= KEPT_TURNS;
}

/* The loop or branch of `first` and `second` with operands `in`, n of them and room for one more. It makes no turn, or takes the second arm, unless `once` (0:
 * it need not be asked), an int, is more than 0: so it waits for that. */
static uint32_t once_more(struct recording *r, graph_kind kind, uint32_t *in, int n, graph *first, graph *second,
                          uint32_t once, uint32_t site) {
  graph *asks = kind == NODE_LOOP ? first : r->g;
  uint32_t is = once;
  if (once && kind == NODE_LOOP) {
    const graph_type number = r->g->nodes[once].type;
    is = graph_input(first, number, 0);
    if (!graph_input(second, number, 0)) is = 0;
    in[n++] = once;
  }
  if (is) is = graph_op2(asks, OP_gt, is, graph_weak_int(asks, 0));
  uint32_t *asked = kind == NODE_LOOP ? &first->outputs[0] : &in[0];
  if (is) *asked = graph_op2(asks, OP_bitand, *asked, is);
  if (once && (!is || !*asked)) r->g->failed = true;
  return graph_regions(r->g, kind, in, n, first, second, NULL, site);
}

uint32_t turns_counted(struct recording *r, uint32_t node) {
  qn_vm *vm = r->vm;
  struct recording *base = rec_base(r);
  const graph_node n = r->g->nodes[node];
  const size_t room = (n.nin + (size_t)1) * sizeof(uint32_t);
  graph *first = graph_copy(n.payload.regions[0]), *second = graph_copy(n.payload.regions[1]);
  uint32_t *in = mem_alloc(vm, room), once = 0, made = 0, most = 0;
  if (first && second && in) most = n.kind == NODE_IF ? most_of_arms(r->g, node) : most_of_turns(r->g, node);
  qn_value all = most ? rec_value_of(r, most) : value_error(), v = all;
  /* (nothing of a lane is known, and it cannot be a number) */
  if (!r->arm && !value_is_error(all)) v = op_number(vm, all, WEAK_INT);
  const int64_t known = value_is(v, TAG_INT) ? v.u.i : 0;
  bool ok = !value_is_error(v) && known <= KEPT_TURNS;
  struct anchor_specializations *of = base->capturing ? base->of : NULL;
  const int64_t end = ok ? rounded(of && of->turns_counted > known ? of->turns_counted : known) : 0;
  ok = ok && few_enough(end, uncounted_deep(second)) && (n.kind != NODE_IF || few_enough(end, uncounted_deep(first)));
  if (ok && base->capturing) {
    qn_value holds = op_binary(vm, OP_le, v, value_int(end)), one = holds;
    if (!value_is_error(holds)) one = way_expect_number(r, holds);
    value_release(vm, holds);
    ok = !value_is_error(one) && (once = rec_node(r, one)) != 0;
    value_release(vm, one);
    base->expects_turns = base->limits_turns = true;
    base->guesses_turns |= r->arm;
    if (of) of->turns_counted = end;
  }
  value_release(vm, all);
  ok = ok && bound_all(second, end) && (n.kind != NODE_IF || bound_all(first, end));
  if (ok) {
    memcpy(in, n.in, n.nin * sizeof *in);
    made = once_more(r, (graph_kind)n.kind, in, n.nin, first, second, once, n.site);
  } else {
    graph_free(first);
    graph_free(second);
  }
  if (in) mem_free(vm, in, room);
  if (!made && r->g->failed && !error_pending(vm)) raise_memory(vm);
  return made;
}

uint32_t turns_settled(struct recording *r, uint32_t node) {
  if (!node || !turns_settle(r) || r->lanes || rec_derivatives(r) < 2 || !has_uncounted(&r->g->nodes[node]))
    return node;
  if (!r->arm && !rec_run_pending(r)) return 0; /* errors of what the count would run are raised */
  const uint32_t made = turns_counted(r, node);
  if (!made && !error_pending(r->vm)) turns_uncounted(r);
  return made;
}
