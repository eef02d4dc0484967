/* Loops in arms and turns, where gradients are differentiated themselves: how many turns they make at most (turns_may_be_kept).
 *
 * All floats of the turns of such a loop become rows, padded to one number of turns, since what is around the loop keeps them (grad_control.c of
 * jit/graph). Where it counts from one known number to another the graph says how many turns these are. Otherwise it is found out here: the number of
 * a loop around it lies between the ends of that loop, and a host int of the call has a value. A later call may have another one there; so in
 * a call that is captured what is said is not this value but the next power of two, and that it is no more becomes a guard: a function is recorded
 * once for all numbers of turns up to that.
 */
#include "jit/graph/grad.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"

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

/* Sets *end to what a host int outside of all arms is at most (`high`) or at least. False: it is not known, or too large; or with an error raised. */
static bool end_outside(struct recording *r, uint32_t node, bool high, int64_t *end) {
  qn_vm *vm = r->vm;
  if (r->hollow || r->lanes) return false;
  qn_value v = rec_value_of(r, node);
  if (!value_is(v, TAG_INT) || rec_is_data(r, v) || v.u.i > KEPT_TURNS || v.u.i < -KEPT_TURNS) return false;
  *end = v.u.i;
  if (!r->capturing) return true;
  *end = high ? rounded(v.u.i) : v.u.i < 0 ? -rounded(-v.u.i) : 0;
  struct recording *active = vm->rec;
  vm->rec = r;
  qn_value holds = op_binary(vm, high ? OP_le : OP_ge, v, value_int(*end));
  if (!value_is_error(holds)) holds = rec_guard(vm, holds);
  vm->rec = active;
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
  bool minus = n->op == OP_sub, least = n->op == OP_minimum;
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
  return *end <= KEPT_TURNS && *end >= -KEPT_TURNS;
}

/* Sets *end to what a host int is at most (`high`) or at least, in all turns. False as end_outside. */
static bool end_of(number_place at, uint32_t node, bool high, int depth, int64_t *end) {
  struct recording *r = at.r;
  const graph *g = at.header ? at.header : r->g;
  const graph_node *n = &g->nodes[node];
  qn_value v;
  if (!n->type.weak || n->type.dtype != WEAK_INT || ++depth > DEEPEST) return false;
  if (graph_const_value(g, node, &v)) return *end = v.u.i, v.u.i <= KEPT_TURNS && v.u.i >= -KEPT_TURNS;
  if (n->kind == NODE_INPUT && at.header) {
    uint32_t k = n->payload.input;
    return k >= graph_loop_carries(at.loop) && end_of((number_place){r, NULL, NULL}, at.loop->in[k], high, depth, end);
  }
  if (!at.header && !r->arm) return end_outside(r, node, high, end);
  if (n->kind == NODE_OP && n->op == OP_neg) return end_of(at, n->in[0], !high, depth, end) && (*end = -*end, true);
  if (n->kind == NODE_OP && n->nin == 2) return end_of_op(at, n, high, depth, end);
  if (n->kind != NODE_INPUT) return false;
  uint32_t k = n->payload.input;
  if (r->count != k + 1)
    return k >= r->carries && end_of((number_place){r->outer, NULL, NULL}, r->captures[k], high, depth, end);
  const struct count_end *e = &r->count_ends[high];
  *end = 0;
  if (e->node && !end_of((number_place){(struct recording *)e->in, NULL, NULL}, e->node, high, depth, end))
    return false;
  return !__builtin_add_overflow(*end, e->more - high, end);
}

/* Says of a loop in arm r how many turns it makes at most, where that can be found out. False with an error raised. */
static bool bound_turns(struct recording *r, uint32_t node) {
  graph_counting c;
  const graph_node n = r->g->nodes[node];
  const number_place in = {r, NULL, NULL}, in_header = {r, n.payload.regions[0], &n};
  int64_t from, to;
  if (!graph_counts(r->g, node, &c) || !end_of(in_header, c.to, c.up, 0, &to) || !end_of(in, c.from, !c.up, 0, &from))
    return !error_pending(r->vm);
  int64_t most = c.up ? to - from : from - to;
  if (most < 0) most = 0;
  if (most > (c.left ? LEFT_TURNS : KEPT_TURNS)) return true;
  const op_attr attr = graph_loop_attr(graph_loop_carries(&n), graph_loop_slots(&n), most);
  return graph_set_attr(r->g, node, &attr) || (raise_memory(r->vm), false);
}

bool turns_may_be_kept(struct recording *r) {
  for (uint32_t i = 1; i < r->g->n; i++)
    if (r->g->nodes[i].kind == NODE_LOOP && graph_most_turns(r->g, i) == INT64_MAX && !bound_turns(r, i)) return false;
  return graph_may_be_kept(r->g);
}
