/* Sizes that data decide (recording.h): `x[:int(argmax(x))]`, `zeros(int(sum(m)))`.
 *
 * In a call that is captured, outside of arms, a host int that is made of arrays is known, since what it is made of has been computed by then. Where it is a
 * size it becomes a symbol of the graph (DIM_FROM_NUMBER): a plan finds its value when it comes to that number, and one graph serves all values. Rules of
 * shapes treat such a size as they do one that is a number of a turn: two are equal where that follows from what they are made of, and what more is relied on
 * is noted as a fact of order. What holds now is asked for in later calls: by a check in front of the operation that needs it (way_expect_number), where
 * the call leaves the graph if it fails. An operation on such a size comes behind the checks before it (jit/kernel/fuse.c).
 *
 * In an arm such a number has no value. What is relied on there is known where the conditions of the arms say so (size_proofs.c: `if n > 0 { max(x[:n]) }`);
 * else it is asked for by a check in the arm (data_sizes_ask).
 *
 * What takes sizes of arrays as they are, or says more of two sizes than their order, cannot have such ones: then the call is recorded once more without
 * them, and a number that is a size ends the capture.
 *
 * Sizes that are numbers of turns (sizes.c) are given up in the same way, by recording the call once more; so what does that for them stands here, too
 * (turns_end, turns_note_most).
 */
#include "jit/graph/inline.h"
#include "jit/graph/match.h"
#include "jit/trace/anchors.h"
#include "jit/trace/breaks.h"
#include "jit/trace/forks.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/sizes.h"
#include "jit/trace/vmap.h"
#include "jit/trace/ways.h"

enum {
  DEEPEST = 8,           /* operations that a size is made of, one in another */
  NUMBER_MOST = 1 << 12, /* that is tried for the most of a size that depends on turns */
};

/* May numbers that are data be sizes in r, an arm or not? */
static bool possible(const struct recording *r) {
  const struct recording *base = rec_base((struct recording *)(uintptr_t)r);
  return base->capturing && base->of && !base->of->sizes_apart && !base->symbolic && !base->device && !base->trying &&
         arms_possible(r) && !rec_derivatives(r) && !vmap_aside(r) && way_may_exit(r);
}

/* May they be now, outside of arms? */
static bool may_be_sizes(const struct recording *r) { return r && !r->arm && possible(r); }

bool data_sizes_in_arm(const struct recording *r) { return r->arm && possible(r); }

/* (The same one wherever the number is computed, as for two int(x[0]). 0: there is none.) */
qn_dim data_size_symbol(struct recording *r, uint32_t node, int64_t now) {
  dim_table *t = &r->g->dims;
  for (uint32_t i = 0; i < t->n; i++) {
    const dim_expr *e = &t->exprs[i];
    if (e->op == DIM_SYMBOL && e->source == DIM_FROM_NUMBER && e->ref && graph_same_value(r->g, e->ref, node))
      return ~(qn_dim)i;
  }
  return dim_symbol(t, DIM_FROM_NUMBER, node, 0, now, NULL);
}

/* The size that a host int of r is, `depth` operations down. False: it is none, or an error is raised. */
static bool size_of_node(struct recording *r, uint32_t node, int depth, qn_dim *d) {
  const graph_node *n = &r->g->nodes[node];
  dim_table *t = &r->g->dims;
  qn_value v;
  qn_dim a, b;
  dim_op op;
  if (!n->type.weak || n->type.dtype != WEAK_INT) return false;
  if (graph_const_value(r->g, node, &v)) return *d = dim_const(t, v.u.i), true;
  v = rec_value_of(r, node);
  if (!value_is(v, TAG_INT)) return false;
  if (!rec_is_data(r, v)) {
    if (sizes_of_number(r, node, d)) return true;
    v = sizes_guard(r->vm, v);
    return !value_is_error(v) && (*d = dim_const(t, v.u.i), true);
  }
  n = &r->g->nodes[node];
  if (n->kind == NODE_OP && depth < DEEPEST) {
    const uint32_t in[2] = {n->in[0], n->nin > 1 ? n->in[1] : 0};
    if (n->op == OP_neg) return size_of_node(r, in[0], depth + 1, &a) && (*d = dim_make(t, DIM_SUB, 0, a), true);
    if (n->nin == 2 && sizes_op_of((op_id)n->op, &op))
      return size_of_node(r, in[0], depth + 1, &a) && size_of_node(r, in[1], depth + 1, &b) &&
             (*d = dim_make(t, op, a, b), true);
  }
  return (*d = data_size_symbol(r, node, v.u.i)) < 0;
}

/* data_size_of in arm r. */
static bool size_in_arm(struct recording *r, qn_value v, qn_dim *d) {
  uint32_t node = value_is(v, TAG_INT) && value_node(v) && data_sizes_in_arm(r) ? rec_node(r, v) : 0;
  int64_t c;
  return node && rec_number_of_data(r, node) && sizes_in_arm(r->vm, v, d) && !dim_is_const(&r->g->dims, *d, &c);
}

bool data_size_of(qn_vm *vm, qn_value v, qn_dim *d) {
  struct recording *r = rec_now(vm);
  if (r && r->arm) return size_in_arm(r, v, d);
  if (!may_be_sizes(r) || !value_is(v, TAG_INT) || !rec_is_data(r, v)) return false;
  uint32_t node = rec_traced(r, v);
  int64_t c;
  return node && size_of_node(r, node, 0, d) && !dim_is_const(&r->g->dims, *d, &c) &&
         dim_hint(&r->g->dims, *d) == v.u.i;
}

bool rec_is_data_size(const qn_vm *vm, int64_t size) { return rec_is_number(vm, size) && !rec_now(vm)->arm; }

bool rec_bound_waits(const qn_vm *vm, qn_value v) {
  return value_is(v, TAG_ARRAY) && !value_array(v)->rank && dtype_is_int((qn_dtype)value_array(v)->dtype) &&
         value_array(v)->dtype != QN_u64 && array_pending(value_array(v)) && may_be_sizes(rec_now(vm));
}

/* The call is recorded once more, without what is in the way now, or made by the interpreter (as it is where the capture has ended). False, with an error
 * raised. */
static bool record_again(struct recording *r, break_reason why) {
  struct recording *base = rec_base(r);
  bool told = base->taps.n || base->tap_run.plan.made; /* what has been written out is not written twice */
  if (!error_pending(r->vm)) {
    base->restart = base->capturing && !told && base->of && base->of->restarts < RESTARTS_MAX;
    base->again |= !base->restart;
  }
  return rec_give_up(r, why);
}

bool data_sizes_end(struct recording *r) {
  struct recording *base = rec_base(r);
  if (base->of) base->of->sizes_apart = true;
  return record_again(r, BREAK_host_read);
}

bool turns_may_size(const struct recording *r) {
  const struct recording *base = rec_base((struct recording *)(uintptr_t)r);
  int derivatives = rec_derivatives(r);
  return !derivatives ||
         (derivatives <= 2 && base->capturing && base->of && !base->of->turns_apart && !base->trying && !r->tries);
}

bool turns_end(struct recording *r) {
  struct recording *base = rec_base(r);
  if (!base->capturing || !graph_has_turn_sizes(r->g)) return false;
  if (base->of && !base->of->turns_apart) {
    base->of->turns_apart = true;
    (void)record_again(r, BREAK_branch);
  } else {
    base->again = true;
    (void)rec_give_up(r, BREAK_branch);
  }
  return true;
}

void turns_uncounted(struct recording *r) {
  struct recording *base = rec_base(r);
  if (base->of) base->of->turns_uncounted = true;
  (void)record_again(r, BREAK_branch);
}

int rec_size_at_most(qn_vm *vm, int64_t a, int64_t b) {
  if (rec_size_ordered(vm, a, b)) return 1;
  return rec_size_ordered(vm, dim_add(rec_dims(vm), b, 1), a) ? 0 : -(int)!rec_unknown_size(vm);
}

/* Notes which size, one that does not depend on numbers of turns, size d of arm r never exceeds: the smallest that its values have, or a power of two. False: none
 * is known. */
static bool note_most(struct recording *r, qn_dim d) {
  dim_table *t = &r->g->dims;
  const graph *g = r->g;
  qn_dim most = 0;
  bool found = dim_most(t, d, &most);
  if (found) return true;
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_type of = g->nodes[i].type;
    for (int a = 0; a < of.rank; a++) {
      const qn_dim b = of.shape[a];
      if (dim_is_late(t, b) || (found && dim_hint(t, b) >= dim_hint(t, most)) || dim_hint(t, b) < dim_hint(t, d))
        continue;
      if (sizes_never_negative(r, dim_make(t, DIM_SUB, b, d))) most = b, found = true;
    }
  }
  for (qn_dim c = 2; c <= NUMBER_MOST && (!found || c < dim_hint(t, most)); c *= 2)
    if (c >= dim_hint(t, d) && sizes_never_negative(r, dim_make(t, DIM_SUB, c, d))) most = c, found = true;
  if (found) dim_assume(t, d, DIM_LE, most);
  return found;
}

bool sizes_demand(dim_table *t, qn_dim d, bool asks) {
  if (asks) dim_assume(t, 0, DIM_LE, d);
  return dim_has_fact(t, 0, DIM_LE, d);
}

/* Sizes, each once. */
typedef struct size_list {
  qn_dim *d;
  uint32_t n, cap;
} size_list;

static bool add_size(arena *a, size_list *l, qn_dim d) {
  for (uint32_t i = 0; i < l->n; i++)
    if (l->d[i] == d) return true;
  if (!arena_room(a, (void **)&l->d, &l->cap, l->n + 1, sizeof *l->d)) return false;
  l->d[l->n++] = d;
  return true;
}

static bool add_sizes_of_arm(graph *g, const graph_node *n, graph *arm, arena *a, size_list *l);

/* Adds the sizes of values of g, and of arms in it, that depend on numbers of turns. False: one of an arm cannot be a size of g, or memory is short. */
static bool add_sizes(graph *g, arena *a, size_list *l) {
  bool ok = true;
  for (uint32_t i = 1; i < g->n && ok; i++) {
    const graph_node n = g->nodes[i];
    for (int k = 0; k < n.type.rank && ok; k++)
      if (dim_is_late(&g->dims, n.type.shape[k])) ok = add_size(a, l, n.type.shape[k]);
    for (int k = 0; k < 2 && ok && n.kind == NODE_IF && !graph_is_rule(&n); k++)
      ok = add_sizes_of_arm(g, &n, n.payload.regions[k], a, l);
  }
  return ok;
}

/* add_sizes for an arm of branch n in g. */
static bool add_sizes_of_arm(graph *g, const graph_node *n, graph *arm, arena *a, size_list *l) {
  size_list own = {0};
  size_map m = {.to = g};
  uint32_t *map = arena_alloc(a, arm->n * sizeof *map);
  bool ok = map && add_sizes(arm, a, &own) &&
            size_map_begin(&m, g, arm, map); /* (sizes of arms within it are new to its table) */
  for (uint32_t i = 0; i < arm->ninputs && ok; i++) map[arm->inputs[i]] = n->in[1 + i];
  for (uint32_t i = 0; i < own.n && ok; i++) {
    const qn_dim d = size_map_size(&m, own.d[i]);
    ok = !m.failed && (!dim_is_late(&g->dims, d) || add_size(a, l, d));
  }
  size_map_end(&m);
  return ok;
}

bool turns_note_most(struct recording *r) {
  size_list sizes = {0};
  arena a;
  if (!r->g->dims.strict) return true;
  arena_init(&a, NULL);
  bool ok = add_sizes(r->g, &a, &sizes);
  for (uint32_t i = 0; i < sizes.n && ok; i++) ok = note_most(r, sizes.d[i]);
  arena_free(&a);
  return ok;
}

/* A size of r as one of its numbers. The error value, with or without an error raised. */
static qn_value number_of(struct recording *r, qn_dim d) {
  uint32_t node = sizes_number(r, d);
  return node ? rec_value_of(r, node) : value_error();
}

/* From here on the call goes on only if a fact holds, as it does now. False, perhaps with an error raised. */
static bool expect(struct recording *r, const dim_fact *f) {
  static const op_id ops[] = {[DIM_EQ] = OP_eq, [DIM_NE] = OP_ne, [DIM_LT] = OP_lt, [DIM_LE] = OP_le};
  qn_value a = number_of(r, f->a), b = value_is_error(a) ? a : number_of(r, f->b), c;
  if (value_is_error(b) || value_is_error(c = op_binary(r->vm, ops[f->relation], a, b))) return false;
  return value_is(c, TAG_BOOL) && c.u.i && !value_is_error(way_expect_number(r, c));
}

bool data_sizes_hold(struct recording *r) {
  dim_table *t = &r->g->dims;
  while (r->sized < t->nfacts) {
    const dim_fact f = t->facts[r->sized++];
    const bool number = dim_is_number(t, f.a) || dim_is_number(t, f.b);
    if (number && !expect(r, &f)) return data_sizes_end(r);
    r->settled = r->sized;
  }
  t->cut &= (uint8_t)~DIM_CUT_NUMBER; /* it was asked for */
  return true;
}

static bool is_no_function(void *ctx, qn_value v) {
  (void)ctx;
  return !value_is(v, TAG_FN);
}

bool data_sizes_stay(struct recording *r, qn_value result) {
  if (r->g->dims.numbers_of_data && !data_sizes_hold(r)) return false;
  if (!r->sized_maps || (r->of && r->of->turns_apart)) return true;
  return tree_each_part(r->vm, result, is_no_function, NULL) || (!error_pending(r->vm) && !turns_end(r));
}

bool data_sizes_are_in(struct recording *r, qn_dim d) {
  if (d >= 0) return false;
  const dim_expr *e = &r->g->dims.exprs[~d];
  if (e->op != DIM_SYMBOL) return data_sizes_are_in(r, e->a) || data_sizes_are_in(r, e->b);
  if (e->source == DIM_FROM_INPUT) {
    const graph_node *of = &r->outer->g->nodes[r->captures[e->ref]];
    return r->outer->arm && data_sizes_are_in(r->outer, of->type.shape[e->axis]);
  }
  return e->source == DIM_FROM_NUMBER || (e->source == DIM_FROM_SCALAR && rec_number_of_data(r, r->g->inputs[e->ref]));
}

/* Is what is recorded in r executed in this call, too? */
static bool is_run_now(const struct recording *r) {
  while (r->arm && !r->when && !r->carries) r = r->outer;
  return !r->arm;
}

bool data_sizes_ask(struct recording *r, const dim_fact *f) {
  static const op_id ops[] = {[DIM_LT] = OP_lt, [DIM_LE] = OP_le};
  const dim_table *t = &r->g->dims;
  if (!data_sizes_in_arm(r) || (f->relation != DIM_LT && f->relation != DIM_LE)) return false;
  if (!data_sizes_are_in(r, f->a) && !data_sizes_are_in(r, f->b)) return false;
  if (is_run_now(r) && dim_hint(t, f->a) + (f->relation == DIM_LT) > dim_hint(t, f->b)) return false;
  qn_value a = number_of(r, f->a), b = value_is_error(a) ? a : number_of(r, f->b),
           c = value_is_error(b) ? b : op_binary(r->vm, ops[f->relation], a, b);
  return value_is(c, TAG_BOOL) && (value_node(c) ? way_expect(r, c, true) : c.u.i != 0);
}
