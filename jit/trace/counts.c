/* Numbers that a while loop counts by.
 *
 * In `while i < n { ...; i += 2 }` i lies from what it is before the loop up to n, as the number of a loop that counts does: slices that it bounds have
 * sizes of which that much is known. That a turn never makes it less is seen when the body has been recorded; if it does, the
 * body is recorded once more without (loops.c).
 *
 * And ranges whose bounds are such numbers.
 */
#include "jit/trace/counts.h"

#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/ways.h"

/* A number of the header's graph, or (0) of none, and what is added to it. */
typedef struct number_sum {
  uint32_t node;
  int64_t more;
} number_sum;

/* Takes node of g apart, the header's graph or that of an arm of `branch`, a node of it. False: it is something else. */
static bool sum_of(const graph *header, const graph_node *branch, const graph *g, uint32_t node, number_sum *s) {
  enum { MOST = 1 << 30 };
  qn_value v;
  for (int depth = 0; depth < 8; depth++) {
    const graph_node *n = &g->nodes[node];
    if (!n->type.weak || n->type.dtype != WEAK_INT || s->more > MOST || s->more < -MOST) return false;
    if (graph_const_value(g, node, &v)) {
      s->node = 0;
      s->more += v.u.i < MOST && v.u.i > -MOST ? v.u.i : 0;
      return v.u.i < MOST && v.u.i > -MOST;
    }
    bool sub = n->kind == NODE_OP && n->op == OP_sub, add = n->kind == NODE_OP && n->op == OP_add;
    int other = add && graph_const_value(g, n->in[0], &v) ? 1 : 0;
    if ((add || sub) && (other || graph_const_value(g, n->in[1], &v)) && v.u.i < MOST && v.u.i > -MOST) {
      s->more += sub ? -v.u.i : v.u.i;
      node = n->in[other];
      continue;
    }
    if (g == header) return s->node = node, true;
    if (n->kind != NODE_INPUT) return false;
    node = branch->in[1 + n->payload.input];
    g = header;
  }
  return false;
}

/* Is it a carry of the loop? */
static bool is_carry(const count_test *t, const number_sum *s) {
  const graph_node *n = &t->header->g->nodes[s->node];
  return s->node && n->kind == NODE_INPUT && n->payload.input < t->n;
}

static bool is_false(const graph *g, uint32_t node) {
  qn_value v;
  return graph_const_value(g, node, &v) && is_bool(v, false);
}

/* Finds a carry that the test bounds where it holds: node of g, as sum_of takes it. Notes it in the body. */
static bool by_test(const count_test *t, bool *down, const graph_node *branch, const graph *g, uint32_t node,
                    int depth) {
  const graph *header = t->header->g;
  const graph_node *n = &g->nodes[node];
  if (depth > 8) return false;
  if (n->kind == NODE_PROJ && g == header && g->nodes[n->in[0]].kind == NODE_IF) {
    const graph_node *of = &g->nodes[n->in[0]];
    const graph *yes = of->payload.regions[0], *no = of->payload.regions[1];
    uint32_t k = n->payload.index;
    if (is_false(no, no->outputs[k]) && by_test(t, down, NULL, g, of->in[0], depth + 1)) return true;
    return (is_false(no, no->outputs[k]) && by_test(t, down, of, yes, yes->outputs[k], depth + 1)) ||
           (is_false(yes, yes->outputs[k]) && by_test(t, down, of, no, no->outputs[k], depth + 1));
  }
  if (n->kind != NODE_OP || n->nin != 2) return false;
  if (n->op == OP_bitand)
    return by_test(t, down, branch, g, n->in[0], depth + 1) || by_test(t, down, branch, g, n->in[1], depth + 1);
  bool swapped = n->op == OP_gt || n->op == OP_ge, equal = n->op == OP_le || n->op == OP_ge;
  if (n->op != OP_lt && !swapped && !equal) return false;
  number_sum low = {0}, high = {0};
  if (!sum_of(header, branch, g, n->in[swapped], &low) || !sum_of(header, branch, g, n->in[!swapped], &high))
    return false;
  *down = !is_carry(t, &low);
  const number_sum *carry = *down ? &high : &low, *other = *down ? &low : &high;
  if (!is_carry(t, carry) || is_carry(t, other)) return false;
  uint32_t k = header->nodes[carry->node].payload.input;
  const struct count_end before = {t->r, t->outer[k], *down}, /* what the carry is before the loop */
      of_test = {t->header, other->node, other->more - carry->more + (*down ? !equal : equal)};
  t->body->count = k + 1;
  t->body->count_tested = true;
  t->body->count_ends[0] = *down ? of_test : before;
  t->body->count_ends[1] = *down ? before : of_test;
  return true;
}

/* Is node of g what input `from` of it is, or that and something in the direction in which the loop counts? */
static bool counts_on(const graph *g, uint32_t node, uint32_t from, bool down, int depth) {
  const graph_node *n = &g->nodes[node];
  qn_value v;
  if (node == g->inputs[from]) return true;
  if (depth > 8) return false;
  if (n->kind == NODE_PROJ && g->nodes[n->in[0]].kind == NODE_IF) {
    const graph_node *of = &g->nodes[n->in[0]];
    for (int i = 0; i < 2; i++) {
      const graph *arm = of->payload.regions[i];
      bool some = false;
      for (uint32_t k = 0; k < arm->ninputs && !some; k++)
        some = counts_on(g, of->in[1 + k], from, down, depth + 1) &&
               counts_on(arm, arm->outputs[n->payload.index], k, down, depth + 1);
      if (!some) return false;
    }
    return true;
  }
  if (n->kind != NODE_OP || (n->op != OP_add && n->op != OP_sub)) return false;
  for (int i = 0; i < (n->op == OP_add ? 2 : 1); i++)
    if (graph_const_value(g, n->in[!i], &v) && counts_on(g, n->in[i], from, down, depth + 1))
      return v.u.i == 0 || (v.u.i > 0) == (down == (n->op == OP_sub));
  return false;
}

bool count_find(const count_test *t, bool *down) {
  return by_test(t, down, NULL, t->header->g, t->header->g->outputs[0], 0);
}

bool count_keeps(const graph *g, uint32_t node, uint32_t from, bool down) { return counts_on(g, node, from, down, 0); }

/* ---- ranges ---------------------------------------------------------------------------------------------------------------------- */

/* Bounds of ranges have at most so many bits: then neither their difference nor a multiple of the step overflows. */
enum { BOUND_BITS = 62 };

/* *all becomes *all and (a op b); unset is true. False with an error raised. */
static bool and_condition(qn_vm *vm, qn_value *all, op_id op, qn_value a, int64_t b) {
  qn_value c = op_binary(vm, op, a, value_int(b));
  if (!value_is_error(c) && !value_is(*all, TAG_UNSET)) c = op_binary(vm, OP_bitand, *all, c);
  *all = c;
  return !value_is_error(c);
}

/* What must hold of the bounds of a range so that it can be computed with; unset: nothing, it does. */
static qn_value range_condition(qn_vm *vm, const qn_value *bounds) {
  const int64_t most = (int64_t)1 << BOUND_BITS;
  qn_value all = value_unset();
  for (int k = 0; k < 2; k++)
    if (value_node(bounds[k]) &&
        !(and_condition(vm, &all, OP_lt, bounds[k], most) && and_condition(vm, &all, OP_gt, bounds[k], -most)))
      return all;
  if (value_node(bounds[2])) (void)!and_condition(vm, &all, OP_ne, bounds[2], 0);
  return all;
}

int rec_range(qn_vm *vm, qn_value *bounds, qn_value *first, qn_value *end) {
  struct recording *r = vm->rec;
  if (!r) return 0; /* the arguments have ended the capture when they were evaluated */
  bool traced = false;
  for (int k = 0; k < 3; k++) {
    if (!value_is(bounds[k], TAG_INT)) return 0;
    traced |= value_node(bounds[k]) && rec_count_traced(vm, bounds[k]);
    if (!value_node(bounds[k]) && k < 2 && (uint64_t)((bounds[k].u.i >> BOUND_BITS) + 1) > 1) return 0;
  }
  bool known = !value_node(bounds[2]);
  if (!traced || !way_may_exit(r) || (known && bounds[2].u.i == 0)) return 0;
  if (known && bounds[2].u.i == 1) {
    *first = bounds[0], *end = bounds[1], bounds[0] = value_int(0);
    return 1;
  }
  qn_value c = range_condition(vm, bounds);
  if (value_is_error(c)) return -1;
  bool here = !r->arm && !rec_is_data(r, c); /* then its value is known */
  if (here && is_bool(c, false)) return 0;
  if (!value_is(c, TAG_UNSET) && !way_expect(r, c, true)) return -1;
  qn_value n = op_binary(vm, OP_sub, bounds[0], bounds[1]);
  if (!value_is_error(n)) n = op_binary(vm, OP_floordiv, n, bounds[2]);
  if (!value_is_error(n)) n = op_unary(vm, OP_neg, n);
  *first = value_int(0), *end = n;
  return value_is_error(n) ? -1 : 1;
}

bool rec_ends_range(const qn_vm *vm, int64_t start, qn_value end) {
  return rec_count_traced(vm, end) && (uint64_t)((start >> BOUND_BITS) + 1) <= 1 && way_may_exit(vm->rec);
}
