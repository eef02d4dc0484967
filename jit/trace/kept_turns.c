/* Loops in arms and turns, where gradients are differentiated themselves: how many turns they make at most (turns_may_be_kept).
 *
 * All floats of the turns of such a loop become rows, padded to one number of turns, since what is around the loop keeps them (grad_control.c of
 * jit/graph). Where it counts from one known number to another the graph says how many turns these are. Otherwise it is found out here: the number of
 * a loop around it lies between the ends of that loop, and a host int of the call has a value. A later call may have another one there; so in
 * a call that is captured what is said is not this value but the next power of two, and that it is no more becomes a guard: a function is recorded
 * once for all numbers of turns up to that. (Not for graphs that are values: nobody records a call of these once more.)
 *
 * How many turns a loop makes that data end, nobody knows before. If it is in a loop outside of all arms, that one is run once more, before the one that
 * keeps rows, to count them (turns_counted): what they are in later calls is a check behind which the call leaves the graph; then it is recorded once more, for more turns.
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
  qn_value holds = op_binary(vm, high ? OP_le : OP_ge, v, value_int(*end));
  if (!value_is_error(holds)) holds = rec_guard(vm, holds);
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

bool turns_may_be_counted(const struct recording *r) {
  const struct recording *outer = r->outer;
  bool any = false;
  for (uint32_t i = 1; i < r->g->n; i++) any |= is_uncounted(r->g, i);
  if (!any || error_pending(r->vm) || outer->arm || outer->hollow || outer->lanes || outer->device) return false;
  const bool whole = r->vm->asked.whole || is_asked(r) || outer->trying || vmap_aside(outer);
  if (outer->capturing && whole) return false; /* nothing may leave the graph */
  return !graph_has_taps(r->g, 1) && graph_may_be_kept(r->g, true);
}

/* A loop, which nobody takes anything from yet, keeps as a row how many turns the loops in it have made whose turns nobody knows: the most of them. A
 * number, the most of all rows. 0: memory is short. */
static uint32_t most_made(graph *g, uint32_t node) {
  const graph_node n = g->nodes[node];
  const graph_type count = {.dtype = WEAK_INT, .weak = true};
  graph *body = n.payload.regions[1];
  uint32_t most = 0, carries = graph_loop_carries(&n);
  for (uint32_t i = 1, end = body->n; i < end; i++) {
    if (!is_uncounted(body, i)) continue;
    uint32_t turns = graph_proj(body, i, body->nodes[i].payload.regions[1]->noutputs, count, 0);
    most = most ? graph_op2(body, OP_maximum, most, turns) : turns;
  }
  const op_attr whole = {.dtype = QN_i64}, keeps = graph_loop_attr(carries, 0, INT64_MAX), axis = {.axes = 1},
                longer = {.n = 3, .d = {1}};
  most = most ? graph_op(body, OP_fit, &most, 1, &whole, 0) : 0;
  if (!most || !graph_output(body, most) || !graph_set_attr(g, node, &keeps)) return 0;
  const uint32_t rows = graph_proj(g, node, carries, body->nodes[most].type, n.site);
  /* (one more, so that there is one where no turn is made) */
  const uint32_t in[] = {rows, graph_const_scalar(g, QN_i64, false, 0, 0, n.site)};
  uint32_t all = graph_op(g, OP_pad, in, 2, &longer, n.site);
  return all ? graph_op(g, OP_max, &all, 1, &axis, n.site) : 0;
}

/* The loop of `first` and `second` with operands `in`, n of them and room for one more, which runs only if `once` (0: it does), a host int, is more than 0. */
static uint32_t loop_once_more(struct recording *r, uint32_t *in, int n, graph *first, graph *second, uint32_t once,
                               uint32_t site) {
  if (once && first && second) {
    const graph_type number = {.dtype = WEAK_INT, .weak = true};
    uint32_t is = graph_op2(first, OP_gt, graph_input(first, number, 0), graph_weak_int(first, 0));
    if (is) first->outputs[0] = graph_op2(first, OP_bitand, first->outputs[0], is);
    if (!is || !first->outputs[0] || !graph_input(second, number, 0)) r->g->failed = true;
    in[n++] = once;
  }
  return graph_regions(r->g, NODE_LOOP, in, n, first, second, NULL, site);
}

uint32_t turns_counted(struct recording *r, uint32_t node) {
  qn_vm *vm = r->vm;
  const graph_node n = r->g->nodes[node];
  const size_t room = (n.nin + (size_t)1) * sizeof(uint32_t);
  graph *first = graph_copy(n.payload.regions[0]), *second = graph_copy(n.payload.regions[1]);
  uint32_t *in = mem_alloc(vm, room), most = first && second && in ? most_made(r->g, node) : 0, once = 0, made = 0;
  qn_value all = most ? rec_value_of(r, most) : value_error(), v = all;
  if (!value_is_error(all)) v = op_number(vm, all, WEAK_INT);
  value_release(vm, all);
  bool ok = value_is(v, TAG_INT) && v.u.i <= KEPT_TURNS;
  struct anchor_specializations *of = r->capturing ? r->of : NULL;
  const int64_t end = ok ? rounded(of && of->turns_counted > v.u.i ? of->turns_counted : v.u.i) : 0;
  if (ok && r->capturing) {
    qn_value holds = op_binary(vm, OP_le, v, value_int(end));
    if (!value_is_error(holds)) holds = way_expect_number(r, holds);
    ok = !value_is_error(holds) && (once = rec_node(r, holds)) != 0;
    r->expects_turns = r->limits_turns = true;
    if (of) of->turns_counted = end;
  }
  for (uint32_t i = 1; ok && i < second->n; i++) {
    if (!is_uncounted(second, i)) continue;
    const graph_node *x = &second->nodes[i];
    const op_attr attr = graph_loop_attr(graph_loop_carries(x), graph_loop_slots(x), end);
    ok = graph_set_attr(second, i, &attr);
  }
  if (ok) {
    memcpy(in, n.in, n.nin * sizeof *in);
    made = loop_once_more(r, in, n.nin, first, second, once, n.site);
  } else {
    graph_free(first);
    graph_free(second);
  }
  if (in) mem_free(vm, in, room);
  if (!made && r->g->failed && !error_pending(vm)) raise_memory(vm);
  return made;
}
