/* Ways through a part of the program that is being captured (ways.h).
 *
 * A branch on data makes two ways, which are recorded one after the other, each in an arm (branches.c). At their ends they are compared and
 * joined: an `if` node gives what differs between them.
 *
 * An arm may leave what is around it: the turn of a loop by break or continue, the function by return. Three cases:
 *   - One arm leaves, the other one comes to its end. Then the way that goes on stays open: whatever follows is recorded in its arm, up to
 *     the end of the part that was left, and both are joined there (way_open, way_close).
 *   - Both leave. The branch is joined, and the interpreter goes to the end of the part at once, as by a return.
 *   - An arm has branches of its own that leave. These are joined at the end of the arm, so that whether what follows is skipped depends on
 *     data: END_LEFT is a number of the recording. What follows then stands in a branch on it (way_split).
 *
 * Where ways do not agree in what variables are, the way that is recorded may be one of several through the turn. The parts that it does not take
 * leave the turn, too: it is missed (way_choose; states.c has the use of it).
 *
 * A way that ends with an error of the program is left out of the graph: a check in its place fails where it is taken, and since nothing has
 * happened by then, the interpreter makes the whole call again and raises the error itself (way_expect).
 *
 * Where one way does not need a value (a variable that nobody reads behind it, or what is returned where nothing is), it gets zeros.
 */
#include "jit/trace/ways.h"

#include <string.h>

#include "jit/graph/grad.h"
#include "jit/trace/breaks.h"
#include "jit/trace/draws.h"
#include "jit/trace/node_copy.h"
#include "jit/trace/rec.h"
#include "jit/trace/sizes.h"
#include "jit/trace/vmap.h"

/* ---- ends ---------------------------------------------------------------------------------------------------------------------- */

void end_parts_free(qn_vm *vm, qn_value *parts) {
  for (int i = 0; i < END_PARTS; i++) {
    value_release(vm, parts[i]);
    parts[i] = value_nil();
  }
}

/* Of a number that the program has written: the way gets its node when ways are joined that have others there. */
enum { NODE_LATER = INT32_MAX };

static bool note_leaf(void *ctx, qn_value v) {
  way_end *a = ctx;
  bool operand = value_is_operand(v), later = operand && value_is_scalar(v) && !value_node(v);
  uint32_t node = later ? NODE_LATER : operand ? rec_node(a->r, v) : 0;
  if ((operand && !node) || !mem_grow(a->r->vm, (void **)&a->nodes, &a->cap, a->n + (size_t)1, sizeof *a->nodes))
    return false;
  a->nodes[a->n++] = node;
  return true;
}

/* Are the variables and parts at an end that has left, seen from way w, of no use? Only what the turn carries on is read, and that only if the
 * function does not return; and all of them behind a try. */
static bool is_idle(const rec_way *w, const qn_value *variable, const qn_value *parts) {
  if (!w || w->catches || !is_bool(parts[END_LEFT], true)) return false;
  if (is_bool(parts[END_MISSED], true)) return true;
  if (draws_is_slot(w->r, variable)) return false;
  if (is_bool(parts[END_RETURNS], true) || !w->turn) return true;
  for (int i = 0; i < w->turn->slots.n; i++)
    if (w->turn->slots.slots[i] == variable) return false;
  return true;
}

static size_t held_bytes(size_t n) { return n * (sizeof(qn_value) + sizeof(uint32_t) + 1); }

/* *part, a bool of an end, becomes part and `only`. False with an error raised. */
static bool bool_only(qn_vm *vm, qn_value *part, qn_value only) {
  if (is_bool(*part, false)) return true;
  *part = is_bool(*part, true) ? only : op_binary(vm, OP_bitand, *part, only);
  return !value_is_error(*part);
}

/* parts_settle for a try: behind it, its value is there if nothing has left it but its handler; else what is around it is left, by an error or not. */
static bool try_settle(qn_vm *vm, const rec_way *w, qn_value *parts) {
  qn_value handled = parts[END_HANDLED], raises = parts[END_RAISES], stays = value_bool(true);
  bool left = is_bool(parts[END_LEFT], true), never = raises_never(raises);
  parts[END_HANDLED] = value_bool(false);
  if (left) {
    value_release(vm, parts[END_VALUE]);
    parts[END_VALUE] = is_bool(handled, false) ? value_unset() : value_retain(parts[END_RETURNED]);
  }
  if (!w->may_return && !w->may_break) parts[END_LEFT] = parts[END_LEAVES] = parts[END_RETURNS] = value_bool(false);
  if (!is_bool(parts[END_LEFT], false) && is_bool(handled, false) && never) return true;
  if (is_bool(parts[END_LEFT], false) || is_bool(handled, true) || (!never && !value_node(raises))) {
    value_release(vm, parts[END_RETURNED]);
    parts[END_RETURNED] = value_unset();
    parts[END_LEFT] = parts[END_LEAVES] = parts[END_RETURNS] = value_bool(false);
    return true;
  }
  if (!is_bool(handled, false)) stays = op_unary(vm, OP_invert, handled);
  if (!value_is_error(stays) && !never) {
    qn_value none = op_binary(vm, OP_eq, raises, value_int(0));
    if (value_is_error(none) || !bool_only(vm, &stays, none)) return false;
  }
  return !value_is_error(stays) && bool_only(vm, &parts[END_LEFT], stays) && bool_only(vm, &parts[END_LEAVES], stays) &&
         bool_only(vm, &parts[END_RETURNS], stays);
}

/* Parts of an end as whatever comes behind way w sees them: a turn that was left is a turn like others, and what the rest of a function
 * returns, or a try is left with, is its value. */
static bool parts_settle(qn_vm *vm, const rec_way *w, qn_value *parts) {
  if (!w || w->kind == WAY_ARM) return true;
  if (w->kind == WAY_TRY) return try_settle(vm, w, parts);
  bool left = is_bool(parts[END_LEFT], true);
  parts[END_LEFT] =
      value_bool(false); /* (what is left with an error is so until that is looked at: way_split_raised) */
  if (w->kind == WAY_TURN || left) {
    value_release(vm, parts[END_VALUE]);
    parts[END_VALUE] = value_nil();
  }
  if (w->kind == WAY_TURN) return true;
  if (left)
    parts[END_VALUE] = parts[END_RETURNED];
  else
    value_release(vm, parts[END_RETURNED]);
  parts[END_RETURNED] = value_unset();
  parts[END_LEAVES] = parts[END_RETURNS] = value_bool(false);
  return true;
}

bool end_note(way_end *end, rec_slots held, qn_value *parts, const rec_way *w) {
  qn_vm *vm = end->r->vm;
  uint32_t n = (uint32_t)held.n + END_PARTS, nslots = (uint32_t)held.n;
  if (!(end->held = mem_zalloc(vm, held_bytes(n)))) return false;
  end->first = (uint32_t *)(end->held + n);
  end->idle = (uint8_t *)(end->first + n);
  end->nheld = n;
  for (uint32_t i = 0; i < nslots; i++) {
    end->held[i] = value_retain(*held.slots[i]);
    end->idle[i] = is_idle(w, held.slots[i], parts) || value_is(*held.slots[i], TAG_UNSET);
  }
  if (!parts_settle(vm, w, parts)) return false;
  for (int i = 0; i < END_PARTS; i++) {
    end->held[nslots + (uint32_t)i] = parts[i];
    end->idle[nslots + (uint32_t)i] = value_is(parts[i], TAG_UNSET);
    parts[i] = value_nil();
  }
  for (uint32_t i = 0; i < n; i++) {
    end->first[i] = end->n;
    if (!value_is(end->held[i], TAG_UNSET) && !tree_each(vm, end->held[i], note_leaf, end)) return false;
  }
  return true;
}

bool end_miss(qn_vm *vm, way_end *end, const rec_way *w) {
  struct recording *r = end->r;
  uint32_t n = (uint32_t)w->slots.n + END_PARTS;
  end->r = NULL;
  end_free(vm, end);
  end->r = r;
  r->g->tail = true;
  end->plain = true;
  if (!(end->held = mem_zalloc(vm, held_bytes(n)))) return false;
  end->first = (uint32_t *)(end->held + n);
  end->idle = (uint8_t *)(end->first + n);
  end->nheld = n;
  for (uint32_t i = 0; i < n; i++) {
    end->held[i] = value_unset();
    end->idle[i] = true;
  }
  qn_value parts[END_PARTS] = {
      [END_VALUE] = value_unset(),      [END_RETURNED] = value_unset(),    [END_LEFT] = value_bool(true),
      [END_LEAVES] = value_bool(false), [END_RETURNS] = value_bool(false), [END_RAISES] = value_int(0),
      [END_WORDS] = value_unset(),      [END_HANDLED] = value_bool(false), [END_MISSED] = value_bool(true)};
  if (!parts_settle(vm, w, parts)) return false;
  for (uint32_t i = 0; i < END_PARTS; i++) {
    uint32_t k = (uint32_t)w->slots.n + i;
    end->held[k] = parts[i];
    end->idle[k] = value_is(parts[i], TAG_UNSET);
    end->first[k] = end->n;
    if (!end->idle[k] && !note_leaf(end, parts[i])) return false;
  }
  return true;
}

void end_free(qn_vm *vm, way_end *end) {
  for (uint32_t i = 0; i < end->nheld; i++) value_release(vm, end->held[i]);
  uint32_t n = end->nheld;
  if (end->held) mem_free(vm, end->held, held_bytes(n));
  mem_free(vm, end->nodes, end->cap * sizeof *end->nodes);
  if (end->r) rec_free(end->r);
  *end = (way_end){.r = NULL};
}

/* ---- joining -------------------------------------------------------------------------------------------------------------------- */

/* way_end.idle */
enum {
  IDLE = 1,
  FILLED = 2, /* of the first way: zeros stand in the place of an idle value */
  DEAD = 4    /* idle, and the end is never come to: what stops the call before is computed with the results */
};

/* Two ways while they are joined. */
typedef struct join {
  qn_vm *vm;
  struct recording *r;
  way_end *const *ends; /* two of them */
  struct join_result {
    uint32_t nodes[2]; /* the node of each way */
    bool filled;       /* one of them is zeros */
  } * results;         /* owned: those of the branch */
  uint32_t nresults, results_cap;
  uint32_t *order, norder, order_cap; /* owned: for each leaf that is a result the number of it */
  qn_value *values;                   /* owned: the values of the results, when the node is there */
  uint32_t leaf[2], out; /* while trees are walked: the numbers of the next leaf of each way, and of the next result */
  int from;              /* while a value is filled in: the way that has it */
  uint32_t held;         /* the number of the value that was joined last */
  uint32_t own;          /* of the variables the first ones, which the ways may rebind */
  bool part, kept;       /* the value is one of the parts of an end, not a variable; it is that or one of `own` */
  bool idle[2];          /* of which way is the value idle, but not dead? */
  bool plain;            /* way_end.plain of one of the ways, */
  bool merges;           /* and inside a gradient: leaves that are one node in each way are one result */
  bool build;            /* the walk makes the final values; else it only finds out whether the ways agree */
} join;

/* Is it a value from outside that both ways have left as it was? Inside a gradient a float that is derived becomes a result all the same, if it
 * is what the ways return or a variable that they may rebind: where other variables hold it in one way only, its uses through this one are
 * summed in their order only if it is a result as they are (parted.c). */
static bool is_outer(const join *j, qn_value x, qn_value y) {
  return x.head == y.head && x.u.i == y.u.i && !rec_traced(j->ends[0]->r, x) && !rec_traced(j->ends[1]->r, y) &&
         !(j->kept && parted_leaf(j->r, x));
}

/* Is it a value from outside that may be derived and that way k has left as it was, where nobody will read what the other one has? Then it is no other
 * value behind both: all its uses add to one cotangent, as they do where only way k is recorded. */
static bool is_only(const join *j, int k, qn_value v) {
  return j->idle[!k] && !rec_traced(j->ends[k]->r, v) && parted_leaf(j->r, v);
}

/* The next leaf is a result of the branch: which has these nodes, of which one is zeros (`filled`, then it may be 0 so far); or one that is there. The
 * result, NULL with an error raised. */
static struct join_result *add_result(join *j, uint32_t first, uint32_t second, bool filled) {
  uint32_t k = j->merges ? 0 : j->nresults;
  for (; k < j->nresults; k++) {
    const struct join_result *x = &j->results[k];
    bool same = x->nodes[0] == first && x->nodes[1] == second;
    if (filled) same = x->filled && x->nodes[j->from] == (j->from ? second : first);
    if (same) break;
  }
  if (!mem_grow(j->vm, (void **)&j->order, &j->order_cap, j->norder + (size_t)1, sizeof *j->order) ||
      !mem_grow(j->vm, (void **)&j->results, &j->results_cap, k + (size_t)1, sizeof *j->results))
    return NULL;
  j->order[j->norder++] = k;
  if (k == j->nresults) j->results[j->nresults++] = (struct join_result){{first, second}, filled};
  return &j->results[k];
}

/* The node of leaf v, a way's next one; 0 with an error raised, or if it has none. */
static uint32_t next_node(way_end *end, uint32_t *leaf, qn_value v) {
  uint32_t *node = &end->nodes[(*leaf)++];
  if (*node == NODE_LATER) *node = rec_node(end->r, v);
  return *node;
}

/* Joins a leaf of the first way and one of the second. Owned; nil if only looking (`build`). The error value, without an error raised, if
 * the ways do not agree. */
static qn_value join_leaf(join *j, qn_value x, qn_value y) {
  if (value_is_operand(x) && value_is_operand(y) && (is_only(j, 0, x) || is_only(j, 1, y) || is_outer(j, x, y))) {
    for (int k = 0; k < 2; k++) j->leaf[k]++;
    return value_retain(is_only(j, 1, y) ? y : x);
  }
  uint32_t nodes[2] = {next_node(j->ends[0], &j->leaf[0], x), next_node(j->ends[1], &j->leaf[1], y)};
  if (!nodes[0] || !nodes[1]) {
    const struct recording *r = j->ends[0]->r;
    bool texts = value_is(x, TAG_STR) && value_is(y, TAG_STR) && !rec_text_of(r, x) && !rec_text_of(r, y);
    bool same = x.head == y.head && (x.u.i == y.u.i || (texts && str_equal(value_str(x), value_str(y))));
    return same && !nodes[0] && !nodes[1] ? value_retain(x) : value_error();
  }
  if (j->build) return value_retain(j->values[j->order[j->out++]]);
  graph_type t = j->ends[0]->r->g->nodes[nodes[0]].type, u = j->ends[1]->r->g->nodes[nodes[1]].type;
  if (!sizes_type_outside(j->ends[0]->r, &t) || !sizes_type_outside(j->ends[1]->r, &u) || !sizes_agree(j->r, &t, &u))
    return value_error();
  return add_result(j, nodes[0], nodes[1], false) ? value_nil() : value_error();
}

/* Joins x, a value of the first way, and y, that of the second. As join_leaf. */
static qn_value join_trees(join *j, qn_value x, qn_value y) {
  qn_vm *vm = j->vm;
  bool list = value_is(x, TAG_LIST) && value_is(y, TAG_LIST),
       record = value_is(x, TAG_RECORD) && value_is(y, TAG_RECORD);
  if (value_is(x, TAG_LIST) != value_is(y, TAG_LIST) || value_is(x, TAG_RECORD) != value_is(y, TAG_RECORD))
    return value_error();
  if (!list && !record) return join_leaf(j, x, y);
  uint32_t n = list ? value_list(x)->len : value_record(x)->len;
  if (n != (list ? value_list(y)->len : value_record(y)->len) || !vm_enter(vm, 0)) return value_error();
  for (uint32_t i = 0; i < n && record; i++)
    if (!str_equal(record_name(value_record(x), i), record_name(value_record(y), i))) return value_error();
  void *copy = list ? (void *)list_new(vm, n) : (void *)record_like(vm, value_record(x));
  if (!copy) return value_error();
  qn_value out = value_obj(list ? TAG_LIST : TAG_RECORD, copy);
  qn_value *to = list ? value_list(out)->items : value_record(out)->items;
  const qn_value *p = list ? value_list(x)->items : value_record(x)->items;
  const qn_value *q = list ? value_list(y)->items : value_record(y)->items;
  for (uint32_t i = 0; i < n; i++) {
    qn_value v = join_trees(j, p[i], q[i]);
    if (value_is_error(v)) {
      value_release(vm, out);
      return v;
    }
    to[i] = v;
  }
  return out;
}

/* Gives an arm inputs for what only `more` has captured. False with an error raised. */
static bool take_inputs(struct recording *arm, const struct recording *more) {
  for (uint32_t i = arm->g->ninputs; i < more->g->ninputs; i++)
    if (!arm_operand(arm, more->captures[i])) return false;
  return true;
}

/* The sizes of a type of one arm as those of another arm with the same inputs. False if one depends on numbers or data of the arm. */
static bool sizes_in_other(struct recording *arm, struct recording *other, graph_type *t) {
  for (int k = 0; k < t->rank; k++)
    if (!sizes_leave(arm, t->shape[k])) return false;
  for (int k = 0; k < t->rank; k++) t->shape[k] = sizes_beside(arm, other, t->shape[k]);
  return true;
}

/* For tree_rebuild: a leaf of the way `from`; the other way has zeros in its place. */
static qn_value fill_leaf(void *ctx, qn_value v) {
  join *j = ctx;
  const way_end *has = j->ends[j->from], *lacks = j->ends[!j->from];
  uint32_t node = has->nodes[j->leaf[j->from]++];
  if (!node || (!rec_traced(has->r, v) && !(j->part && !j->plain && parted_leaf(j->r, v)))) return value_retain(v);
  if (j->build) return value_retain(j->values[j->order[j->out++]]);
  graph_type t = has->r->g->nodes[node].type;
  struct join_result *x = add_result(j, j->from ? 0 : node, j->from ? node : 0, true);
  if (!x) return value_error();
  uint32_t *zeros = &x->nodes[!j->from];
  if (!*zeros && take_inputs(j->ends[0]->r, j->ends[1]->r) && sizes_in_other(has->r, lacks->r, &t) &&
      sizes_can_be(lacks->r, &t)) /* (what is known of the other way need not hold in this one) */
    *zeros = graph_full(lacks->r->g, &t, 0, 0);
  return *zeros ? value_nil() : value_error();
}

/* Joins held value i. Once it has been filled in, it is when the final values are made. */
static qn_value join_held(join *j, uint32_t i) {
  const way_end *const *ends = (const way_end *const *)j->ends;
  qn_value x = ends[0]->held[i], y = ends[1]->held[i];
  const uint32_t before = j->nresults, leaves = j->norder;
  j->part = i + END_PARTS >= ends[0]->nheld;
  j->kept = !j->plain && (j->part || i < j->own);
  for (int k = 0; k < 2; k++) j->idle[k] = (ends[k]->idle[i] & (IDLE | DEAD)) == IDLE;
  for (int k = 0; k < 2; k++) j->leaf[k] = ends[k]->first[i];
  bool unset[2] = {value_is(x, TAG_UNSET), value_is(y, TAG_UNSET)};
  if (unset[0] && unset[1]) return value_unset();
  if (!unset[0] && !unset[1] && !(ends[0]->idle[i] & FILLED)) {
    qn_value v = join_trees(j, x, y);
    if (!value_is_error(v) || error_pending(j->vm) || !(ends[0]->idle[i] || ends[1]->idle[i])) return v;
    j->nresults = before;
    j->norder = leaves;
    ends[0]->idle[i] |= FILLED;
  }
  j->from = ends[0]->idle[i] & IDLE && !unset[1] ? 1 : 0;
  j->leaf[j->from] = ends[j->from]->first[i];
  return tree_rebuild(j->vm, j->from ? y : x, fill_leaf, j);
}

/* Joins all held values. joined[i] gets them if they are made (`build`). */
static bool join_all(join *j, bool build, qn_value *joined) {
  j->out = 0;
  j->build = build;
  for (uint32_t i = 0; i < j->ends[0]->nheld; i++) {
    qn_value v = join_held(j, i);
    j->held = i;
    if (value_is_error(v)) return false;
    if (build)
      joined[i] = v;
    else
      value_release(j->vm, v);
  }
  return true;
}

/* The graph of an arm, moved, with inputs for what only the one that was run last has captured. NULL when memory is short. */
static graph *arm_graph(struct recording *arm, const struct recording *second) {
  if (!take_inputs(arm, second)) return NULL;
  sizes_lift(arm);
  if (arm->g->arena.failed) return NULL; /* sizes may be those of this call */
  graph *g = graph_move(arm->g);
  if (g) graph_dce(g);
  return g;
}

uint32_t arms_close(struct recording *r, graph_kind kind, uint32_t predicate, struct recording *const arms[2],
                    const op_attr *attr, uint32_t site) {
  qn_vm *vm = r->vm;
  const struct recording *last = arms[0]->g->ninputs > arms[1]->g->ninputs ? arms[0] : arms[1];
  uint32_t n = 0, captured = last->g->ninputs, *in = mem_alloc(vm, (captured + (size_t)1) * sizeof *in);
  if (!in) return 0;
  if (predicate) in[n++] = predicate;
  for (uint32_t i = 0; i < captured; i++) in[n++] = last->captures[i];
  graph *first = arm_graph(arms[0], last), *second = first ? arm_graph(arms[1], last) : NULL;
  uint32_t node = graph_regions(r->g, kind, in, (int)n, first, second, attr, site);
  mem_free(vm, in, (captured + (size_t)1) * sizeof *in);
  if (!node && !error_pending(vm)) raise_memory(vm);
  return node;
}

static bool make_node(join *j, bool turned, uint32_t predicate, uint32_t site) {
  qn_vm *vm = j->vm;
  graph *g = j->r->g;
  for (int k = 0; k < 2; k++)
    for (uint32_t i = 0; i < j->nresults; i++)
      if (!graph_output(j->ends[k]->r->g, j->results[i].nodes[k])) return raise_memory(vm), false;
  struct recording *const arms[2] = {j->ends[turned]->r, j->ends[!turned]->r};
  uint32_t node = turns_settled(j->r, arms_close(j->r, NODE_IF, predicate, arms, NULL, site));
  j->values = mem_zalloc(vm, ((size_t)j->nresults + 1) * sizeof *j->values);
  bool ok = node && j->values;
  for (uint32_t k = 0; k < j->nresults && ok; k++) {
    graph_type type = j->ends[0]->r->g->nodes[j->results[k].nodes[0]].type;
    ok = sizes_type_outside(j->ends[0]->r, &type);
    uint32_t proj = graph_proj(g, node, k, type, site);
    j->values[k] = ok && proj ? rec_value_of(j->r, proj) : value_error();
    ok = !value_is_error(j->values[k]);
    if (!ok) j->values[k] = value_nil();
  }
  if (!ok && !error_pending(vm)) raise_memory(vm);
  return ok;
}

rec_answer ends_join(struct recording *r, way_end *const ends[2], int own, bool turned, uint32_t predicate,
                     uint32_t site, qn_value *joined, uint32_t *differs) {
  join j = {.vm = r->vm, .r = r, .ends = ends, .own = (uint32_t)own};
  j.plain = ends[0]->plain || ends[1]->plain;
  j.merges = j.plain && parted_wanted(r);
  uint32_t n = ends[0]->nheld;
  const bool tail = ends[0]->r->g->tail || ends[1]->r->g->tail;
  ends[0]->r->g->tail = ends[1]->r->g->tail = tail;
  for (uint32_t i = 0; i < n; i++) {
    joined[i] = value_nil();
    for (int k = 0; k < 2; k++) ends[k]->idle[i] &= IDLE | DEAD;
  }
  rec_answer answer = REC_NOT_YET;
  bool agree = join_all(&j, false, NULL);
  if (differs) *differs = j.held;
  /* (of arms that cannot be kept, a gradient of the gradient would add up in another order) */
  for (int k = 0; k < 2 && rec_derivatives(r) > 1; k++)
    agree = agree && (turns_may_be_kept(ends[k]->r) || turns_are_counted_around(ends[k]->r));
  if (agree) answer = make_node(&j, turned, predicate, site) && join_all(&j, true, joined) ? REC_DONE : REC_FAILED;
  for (uint32_t k = 0; k < j.nresults && j.values; k++) value_release(j.vm, j.values[k]);
  if (j.values) mem_free(j.vm, j.values, ((size_t)j.nresults + 1) * sizeof *j.values);
  mem_free(j.vm, j.results, j.results_cap * sizeof *j.results);
  mem_free(j.vm, j.order, j.order_cap * sizeof *j.order);
  for (uint32_t i = 0; i < n && answer != REC_DONE; i++) {
    value_release(j.vm, joined[i]);
    joined[i] = value_nil();
  }
  return answer;
}

/* ---- leaving the graph ----------------------------------------------------------------------------------------------------------- */

bool way_raises(const qn_vm *vm) {
  if (!error_catchable(vm)) return false;
  switch (vm->error->id) {
  case E_internal: /* as rec_give_up raises it */
  case E_memory:
  case E_recursion:
  case E_no_graph:
  case E_not_batched:
  case E_not_diff: return false;
  default: return true;
  }
}

bool way_may_exit(const struct recording *r) { return rec_base((struct recording *)(uintptr_t)r)->capturing; }

/* Notes that the graph is left at this place. */
static bool note_exit(struct recording *base, span at) {
  base->exits = true;
  if (!(base->vm->asked.whole || base->asking) || !base->capturing) return true;
  for (uint32_t i = 0; i < base->nexit_places; i++)
    if (span_same_start(base->exit_places[i], at)) return true;
  if (!mem_grow(base->vm, (void **)&base->exit_places, &base->exit_places_cap, base->nexit_places + 1,
                sizeof *base->exit_places))
    return false;
  base->exit_places[base->nexit_places++] = at;
  return true;
}

/* The check that way_expect appends: 1 // condition. False with an error raised. */
static bool append_check(qn_vm *vm, qn_value condition, bool truth) {
  qn_value p = truth ? value_retain(condition) : op_unary(vm, OP_invert, condition), d = value_error(),
           q = value_error();
  if (!value_is_error(p)) d = op_apply(vm, OP_cast, &p, 1, &(op_attr){.dtype = DTYPE_INDEX});
  if (!value_is_error(d)) q = op_binary(vm, OP_floordiv, value_int(1), d);
  value_release(vm, p);
  value_release(vm, d);
  bool ok = !value_is_error(q);
  value_release(vm, q);
  return ok;
}

bool way_expect(struct recording *r, qn_value condition, bool truth) {
  struct recording *held = rec_hold(r->vm); /* what fails is a check of the graph, not one that is made at once */
  bool ok = append_check(r->vm, condition, truth);
  return rec_let_go(r->vm, held, ok) && note_exit(rec_base(r), r->at);
}

qn_value way_expect_number(struct recording *r, qn_value condition) {
  qn_vm *vm = r->vm;
  struct recording *held = rec_hold(vm);
  qn_value n = value_is(condition, TAG_ARRAY) ? op_apply(vm, OP_cast, &condition, 1, &(op_attr){.dtype = DTYPE_INDEX})
                                              : op_number(vm, condition, WEAK_INT),
           one = n;
  if (!value_is_error(n)) one = op_binary(vm, OP_floordiv, value_int(1), n);
  value_release(vm, n);
  if (rec_let_go(vm, held, !value_is_error(one)) && note_exit(rec_base(r), r->at)) return one;
  return value_is_error(one) ? one : value_fail(vm, one);
}

/* ---- ways ---------------------------------------------------------------------------------------------------------------------- */

struct open_branch {
  struct open_branch *outer;
  struct recording *r;  /* that has the branch */
  uint32_t calls;       /* as that of the way was there */
  way_end gone;         /* owned: the arm that has left */
  struct recording *on; /* owned: the arm that goes on */
  uint32_t predicate, site;
  bool turned;        /* the arm that has left is the second one */
  way_choices *among; /* the choices of the way when it was opened, or NULL: */
  uint32_t from;      /* the number of the first one that the arms have made */
  way_made made;      /* by the arm that has left */
};

static uint32_t calls_in(const struct recording *r) { return r->ncalls + r->cut; }

rec_way *way_of(const struct recording *r) {
  rec_way *w = rec_base((struct recording *)(uintptr_t)r)->way;
  return w && w->r == r && w->calls == calls_in(r) ? w : NULL;
}

bool way_calls(const rec_way *w, const struct recording *r) {
  for (; r != w->r && r->arm; r = r->outer)
    if (calls_in(r)) return true;
  return calls_in(r) > w->calls;
}

/* Forgets the innermost calls of r beyond so many: they have ended in an arm that went on. */
static void calls_end(struct recording *r, uint32_t n) {
  while (calls_in(r) > n) {
    if (r->cut)
      r->cut--;
    else
      r->parent = r->calls[--r->ncalls];
  }
}

/* The n innermost calls that are in progress in r end in arm `on`. Without memory their places are lost. */
static void calls_go_on(struct recording *on, const struct recording *r, uint32_t n) {
  qn_vm *vm = on->vm;
  if (!n) return;
  if (r->cut || n > r->ncalls || !mem_grow(vm, (void **)&on->calls, &on->calls_cap, n, sizeof *on->calls) ||
      !mem_grow(vm, (void **)&on->callees, &on->callees_cap, n, sizeof *on->callees)) {
    error_clear(vm);
    on->cut = n;
    return;
  }
  uint32_t parent = on->parent;
  for (uint32_t k = n; k-- > 0;) {
    parent = parent ? on->g->sites[parent].parent : 0;
    on->calls[k] = parent;
    on->callees[k] = r->callees[r->ncalls - n + k];
  }
  on->ncalls = n;
}

static void open_free(qn_vm *vm, rec_way *w) {
  struct open_branch *o = w->open;
  w->open = o->outer;
  w->r = o->r;
  w->calls = o->calls;
  calls_end(o->r, o->calls);
  end_free(vm, &o->gone);
  if (o->on) rec_free(o->on);
  mem_free(vm, o, sizeof *o);
}

/* Frees what a way owns; for vm_own, too. */
static void way_left(qn_vm *vm, void *way) {
  rec_way *w = way;
  while (w->open) open_free(vm, w);
  end_parts_free(vm, w->parted);
}

void way_begin(rec_way *w, way_kind kind, struct recording *r, const rec_way *around, rec_slots slots) {
  struct recording *base = rec_base(r);
  *w = (rec_way){.outer = base->way,
                 .r = r,
                 .slots = slots,
                 .calls = calls_in(r),
                 .block = base->block,
                 .kind = kind,
                 .grads = rec_derivatives(r),
                 .returned = value_unset()};
  if (around) w->returned = around->returned;
  w->own = slots.n;
  bool within = (kind == WAY_ARM || kind == WAY_TRY) && around;
  w->may_return = kind == WAY_TAIL || (around && around->may_return);
  w->may_break = kind == WAY_TURN || (within && around->may_break && !around->inner);
  w->turn = kind == WAY_TURN ? w : within ? around->turn : NULL;
  w->catches = kind == WAY_ARM && around ? around->catches : NULL;
  w->throws = kind == WAY_ARM && around ? around->throws : kind == WAY_TURN ? way_thrower(around) : NULL;
  for (int i = 0; i < END_PARTS; i++) w->parted[i] = value_nil();
  w->sp = r->vm->sp;
  const rec_way *here = r->arm && kind == WAY_ARM ? way_of(r->outer) : NULL;
  if (here) w->choices = here->choices;
  base->way = w;
  vm_own(r->vm, &w->held, way_left, w);
}

void way_drop(qn_vm *vm, rec_way *w) {
  struct recording *base = rec_base(w->r);
  vm_disown(vm, &w->held);
  way_left(vm, w);
  base->way = w->outer;
}

/* The parts of an end that was come to in this manner, with value v (taken over). False: it must not end so. */
static bool parts_of(rec_way *w, rec_exit how, qn_value v, qn_value *parts) {
  bool left = how != REC_VALUE, returns = how == REC_RETURN;
  if (w->gone) {
    memcpy(parts, w->parted, sizeof w->parted);
    for (int i = 0; i < END_PARTS; i++) w->parted[i] = value_nil();
    return true;
  }
  parts[END_VALUE] = left ? value_unset() : v;
  parts[END_RETURNED] = returns ? v : value_retain(w->returned);
  parts[END_LEFT] = value_bool(left);
  parts[END_LEAVES] = value_bool(w->turn && (how == REC_BREAK || returns));
  parts[END_RETURNS] = value_bool(w->turn && returns);
  parts[END_RAISES] = value_int(0);
  parts[END_WORDS] = value_unset();
  parts[END_HANDLED] = value_bool(w->handled);
  parts[END_MISSED] = value_bool(false);
  if (w->handled) {
    value_release(w->r->vm, parts[END_RETURNED]);
    parts[END_RETURNED] = parts[END_VALUE];
    parts[END_VALUE] = value_unset();
    parts[END_LEFT] = value_bool(true);
    parts[END_LEAVES] = value_bool(w->turn != NULL);
  }
  return how != REC_ERROR && (returns ? w->may_return : !left || (w->may_break && !w->inner));
}

bool way_open(qn_vm *vm, rec_way *w, way_end *gone, struct recording *on, uint32_t predicate, uint32_t site,
              bool turned) {
  struct open_branch *o = mem_zalloc(vm, sizeof *o);
  if (!o) {
    end_free(vm, gone);
    rec_free(on);
    return false;
  }
  const uint32_t from = w->choices ? w->choices->at : 0;
  *o =
      (struct open_branch){w->open, w->r, w->calls, *gone, on, predicate, site, turned, w->choices, from, {from, from}};
  calls_go_on(on, w->r, calls_in(w->r) - w->calls);
  *gone = (way_end){.r = NULL};
  w->open = o;
  w->r = on;
  w->calls = 0;
  w->parts = true;
  vm->rec = on;
  return true;
}

bool way_leave(qn_vm *vm, rec_way *w, way_end *gone, struct recording *on, uint32_t predicate, uint32_t site,
               bool turned, uint32_t from, way_made made) {
  rec_way *left = w;
  /* (numbers that the turns count by stay known behind a branch that is joined at the end of the loop) */
  if (w->whole && !w->open && is_bool(gone->held[gone->nheld - END_PARTS + END_LEAVES], true)) left = w->whole;
  if (!way_open(vm, left, gone, on, predicate, site, turned)) return false;
  left->open->from = from;
  left->open->made = made;
  w->r = on;
  w->calls = 0;
  w->parts = true;
  return true;
}

void way_all_left(rec_way *w, const qn_value *parts) {
  for (int i = 0; i < END_PARTS; i++) w->parted[i] = value_retain(parts[i]);
  if (!w->turn) w->parted[END_LEAVES] = w->parted[END_RETURNS] = value_bool(false);
  w->gone = w->parts = true;
}

bool way_split(qn_vm *vm, rec_way *w, const qn_value *parts) {
  struct recording *r = w->r;
  uint32_t predicate = rec_node(r, parts[END_LEFT]);
  way_end gone = {.r = predicate ? rec_arm_begin(r, NULL) : NULL};
  if (!gone.r) return false;
  qn_value own[END_PARTS];
  for (int i = 0; i < END_PARTS; i++) own[i] = value_retain(parts[i]);
  value_release(vm, own[END_VALUE]);
  own[END_VALUE] = value_unset();
  own[END_LEFT] = value_bool(true);
  if (!w->turn) own[END_LEAVES] = own[END_RETURNS] = value_bool(false);
  bool ok = end_note(&gone, w->slots, own, w);
  rec_arm_end(gone.r);
  struct recording *on = ok ? rec_arm_begin(r, gone.r) : NULL;
  if (on) return way_open(vm, w, &gone, on, predicate, rec_site(r), false);
  end_free(vm, &gone);
  return false;
}

/* From here on w is missed unless a condition has this truth. False with an error raised. */
static bool miss_unless(qn_vm *vm, rec_way *w, qn_value condition, bool truth) {
  struct recording *r = w->r;
  uint32_t predicate = rec_node(r, condition);
  way_end gone = {.r = predicate ? rec_arm_begin(r, NULL) : NULL};
  if (!gone.r) return false;
  bool ok = end_miss(vm, &gone, w);
  rec_arm_end(gone.r);
  struct recording *on = ok ? rec_arm_begin(r, gone.r) : NULL;
  if (on) return way_open(vm, w, &gone, on, predicate, rec_site(r), truth);
  end_free(vm, &gone);
  return false;
}

bool way_split_missed(qn_vm *vm, rec_way *w, qn_value missed) { return miss_unless(vm, w, missed, false); }

rec_way *way_catcher(const struct recording *r) {
  rec_way *w = rec_base((struct recording *)(uintptr_t)r)->way;
  if (!w || w->r != r || w->calls >= calls_in(r) || !way_thrower(w)) return NULL;
  /* (who is in the middle of r, such as a gradient that was begun in it, goes on there) */
  return w->grads != rec_derivatives(r) || r->regions.n || r->held ? NULL : w;
}

/* ---- what is recorded in vain ------------------------------------------------------------------------------------------------------ */

/* A function's ways may have WORK_MOST times jit.nodes nodes in vain, where each way counts as WORK_WAY besides its own. */
enum { WORK_MOST = 4, WORK_WAY = 32 };

static uint64_t *in_vain(struct recording *base) { return base->of ? &base->of->in_vain : &base->in_vain; }

uint64_t ways_begin(struct recording *r) {
  struct recording *base = rec_base(r);
  base->ways_in++;
  return *in_vain(base);
}

void ways_end(struct recording *r) { rec_base(r)->ways_in--; }

void ways_worked(struct recording *r, uint32_t nodes) { *in_vain(rec_base(r)) += nodes + (uint64_t)WORK_WAY; }

void ways_used(struct recording *r, uint64_t before) {
  struct recording *base = rec_base(r);
  if (!base->ways_in) *in_vain(base) = before;
}

bool ways_enough(const struct recording *r) {
  struct recording *base = rec_base((struct recording *)(uintptr_t)r);
  return *in_vain(base) > WORK_MOST * (uint64_t)base->vm->tune[TUNE_jit_nodes];
}

/* ---- choices --------------------------------------------------------------------------------------------------------------------- */

rec_way *way_chooser(const struct recording *r) {
  rec_way *w = rec_base((struct recording *)(uintptr_t)r)->way;
  bool here = w && w->r == r && (w->calls == calls_in(r) || (w->choices && w->choices->fork && w->calls < calls_in(r)));
  return here && way_chooses(w) && w->grads == rec_derivatives(r) ? w : NULL;
}

rec_way *way_chooser_here(const struct recording *r) {
  rec_way *w = way_of(r);
  return way_chooses(w) ? w : w ? NULL : way_chooser(r);
}

bool way_next(way_choices *c) {
  uint32_t i = c->at;
  while (i > 0 && c->made[i - 1] + 1 >= c->of[i - 1]) i--;
  if (!i) return false;
  c->made[i - 1]++;
  c->n = i;
  c->again = false;
  return true;
}

/* The node of x, a value of r, while an arm in r is in progress, which may have captured it. 0 with an error raised. */
static uint32_t node_around(struct recording *r, const struct recording *arm, qn_value x) {
  uint32_t captured = rec_traced(arm, x);
  const graph_node *n = &arm->g->nodes[captured];
  return captured && n->kind == NODE_INPUT ? arm->captures[n->payload.input] : rec_node(r, x);
}

bool way_alike(struct recording *r, qn_value x, struct recording *to, qn_value y) {
  if (value_is_operand(x) || value_is_operand(y)) {
    uint32_t n = value_is_operand(x) && value_is_operand(y) ? node_around(r, to, x) : 0, m = n ? rec_node(to, y) : 0;
    graph_type t = to->g->nodes[m].type;
    return m && sizes_type_outside(to, &t) && graph_type_same(&r->g->nodes[n].type, &t);
  }
  if (value_tag_of(x) != value_tag_of(y)) return false;
  if (value_is(x, TAG_STR))
    return x.u.p == y.u.p || (!rec_text_of(r, x) && !rec_text_of(to, y) && str_equal(value_str(x), value_str(y)));
  bool list = value_is(x, TAG_LIST);
  if (!list && !value_is(x, TAG_RECORD)) return x.head == y.head && x.u.i == y.u.i;
  uint32_t n = list ? value_list(x)->len : value_record(x)->len;
  if (n != (list ? value_list(y)->len : value_record(y)->len) || !vm_enter(r->vm, 0)) return false;
  for (uint32_t i = 0; i < n && !list; i++)
    if (!str_equal(record_name(value_record(x), i), record_name(value_record(y), i))) return false;
  const qn_value *p = list ? value_list(x)->items : value_record(x)->items;
  const qn_value *q = list ? value_list(y)->items : value_record(y)->items;
  for (uint32_t i = 0; i < n; i++)
    if (!way_alike(r, p[i], to, q[i])) return false;
  return true;
}

bool way_told(const way_choices *c, const struct recording *r) {
  for (;; r = r->outer) {
    bool last = r == c->r || !r->arm;
    if (graph_has_taps(r->g, last ? c->from : 1)) return true;
    if (last) return false;
  }
}

/* The choices of w, if one can be made now; else NULL. */
static way_choices *choices_of(const rec_way *w) {
  way_choices *c = w ? w->choices : NULL;
  if (!c || vmap_aside(w->r->vm->rec))
    return NULL; /* (of lanes, some take one way and some another: eager ones have no value then) */
  c->wanted = true;
  return c->closed || way_told(c, w->r) ? NULL : c;
}

int way_choose(const rec_way *w, int n) {
  way_choices *c = choices_of(w);
  if (!c) return -1;
  if (c->at == CHOICES_MAX || n > UINT8_MAX) {
    c->many = true;
    return -1;
  }
  const span place = w->r->vm->rec->at;
  if (c->at >= c->n) {
    c->made[c->at] = 0;
    c->places[c->at] = place;
  }
  if (c->made[c->at] >= n || !span_same_start(c->places[c->at], place)) {
    c->many = true; /* made at another place: the turn does not come to the same ones as before */
    return -1;
  }
  c->of[c->at] = (uint8_t)n;
  return c->made[c->at++];
}

bool way_differs(const way_choices *c, way_made made) {
  for (uint32_t i = made.from; i < made.end; i++)
    if (c->made[i]) return true;
  return false;
}

int way_choose_of_two(const rec_way *w, const bool differs[2]) {
  if (!differs[0] && !differs[1]) return way_choose(w, 2);
  way_choices *c = choices_of(w);
  if (!c) return -1;
  c->again |= differs[0] && differs[1];
  return differs[1];
}

bool way_require(qn_vm *vm, rec_way *w, qn_value condition, bool truth) {
  struct recording *r = w->r;
  if (way_told(w->choices, r)) return rec_give_up(r, BREAK_branch);
  w->choices->required = true;
  return miss_unless(vm, w, condition, truth);
}

/* Joins two ends of w, and chooses one of them if they do not agree. Else as ends_join. */
static rec_answer ends_join_or_choose(struct recording *r, rec_way *w, way_end *const ends[2],
                                      const struct open_branch *o, qn_value *joined) {
  qn_vm *vm = r->vm;
  uint32_t differs;
  rec_answer answer = ends_join(r, ends, w->own, o->turned, o->predicate, o->site, joined, &differs);
  if (answer != REC_NOT_YET || error_pending(vm)) return answer;
  fork_unlike(r, differs < (uint32_t)w->slots.n ? w->slots.slots[differs] : NULL);
  const way_choices *c = o->among;
  const way_made before = {o->from, o->made.from}, behind = {o->made.end, c ? c->at : 0};
  const bool known = c && c == w->choices,
             made[2] = {known && way_differs(c, o->made), known && (way_differs(c, before) || way_differs(c, behind))};
  int k = way_choose_of_two(w, made);
  if (k < 0 || graph_has_taps(ends[!k]->r->g, 1)) return answer;
  if (!end_miss(vm, ends[!k], w)) return REC_FAILED;
  return ends_join(r, ends, w->own, o->turned, o->predicate, o->site, joined, NULL);
}

/* Joins the branch that was opened last. parts: those of the arm that goes on, and then those of both. `dead`: the end of the arm that goes on
 * is never come to. */
static bool close_last(qn_vm *vm, rec_way *w, qn_value *parts, bool dead) {
  struct open_branch *o = w->open;
  way_end on = {.r = o->on}, *ends[2] = {&o->gone, &on};
  o->on = NULL;
  bool ok = vm->rec == on.r && !on.r->regions.n && end_note(&on, w->slots, parts, w) && !on.r->g->failed;
  if (ok && dead) memset(on.idle, IDLE | DEAD, on.nheld);
  for (int i = 0; i < END_PARTS && !ok; i++) { /* what end_note has not taken over */
    value_release(vm, parts[i]);
    parts[i] = value_nil();
  }
  rec_arm_end(on.r);
  uint32_t n = on.nheld;
  qn_value *joined = ok ? mem_zalloc(vm, (n + (size_t)1) * sizeof *joined) : NULL;
  ok = joined && ends_join_or_choose(o->r, w, ends, o, joined) == REC_DONE && rec_appended(o->r);
  if (ok) {
    slots_set(vm, w->slots, joined);
    for (int i = 0; i < END_PARTS; i++) parts[i] = value_retain(joined[w->slots.n + i]);
  }
  for (uint32_t i = 0; i < n && joined; i++) value_release(vm, joined[i]);
  if (joined) mem_free(vm, joined, (n + (size_t)1) * sizeof *joined);
  end_free(vm, &on);
  open_free(vm, w);
  return ok;
}

/* The way that goes on, the others having left, ends with an error: whenever that is come to, the call leaves the graph. False: that is not
 * possible, and the error stays. */
static bool raises_in_graph(qn_vm *vm, rec_way *w) {
  if (!w->open || vm->rec != w->r || w->calls != calls_in(w->r) || !way_raises(vm) || !way_may_exit(w->r)) return false;
  error_clear(vm);
  vm_pop_to(vm, w->sp);
  return way_expect(w->r, value_bool(false), true);
}

bool way_close(qn_vm *vm, rec_way *w, rec_exit how, qn_value v, qn_value *parts) {
  for (int i = 0; i < END_PARTS; i++) parts[i] = value_nil();
  qn_value words = value_unset();
  int64_t raises = how == REC_ERROR && (w->open || w->kind == WAY_ARM) ? way_throw(vm, w, &words) : 0;
  bool dead = how == REC_ERROR && !raises;
  if (raises) vm_pop_to(vm, w->sp);
  if (dead && !raises_in_graph(vm, w)) {
    way_drop(vm, w);
    return false;
  }
  if (dead || raises) {
    how = REC_VALUE;
    v = value_unset();
  }
  bool ok = parts_of(w, how, v, parts);
  if (w->gone) value_release(vm, v);
  if (raises) {
    parts[END_LEFT] = value_bool(true);
    parts[END_LEAVES] = value_bool(w->turn != NULL);
    parts[END_RAISES] = value_int(raises);
    parts[END_WORDS] = words;
  }
  for (; w->open && ok; dead = false) ok = close_last(vm, w, parts, dead);
  ok = ok && parts_settle(vm, w, parts);
  if (!ok) end_parts_free(vm, parts);
  way_drop(vm, w);
  return ok;
}

/* ---- tests of loops ------------------------------------------------------------------------------------------------------------- */

qn_value way_test(qn_vm *vm, const rec_turns *turns, rec_exit *how) {
  qn_value v = turns->test(turns->ctx, how);
  if (*how != REC_VALUE || !value_is(v, TAG_ARRAY) || value_array(v)->dtype != QN_bool || value_array(v)->size != 1)
    return v;
  qn_value flat = op_reshape(vm, v, 0, NULL),
           number = value_is_error(flat) ? flat : rec_host_number(vm, flat, WEAK_BOOL);
  value_release(vm, v);
  value_release(vm, flat);
  if (value_is_error(number)) *how = REC_ERROR;
  return number;
}

qn_value way_false(void *ctx, rec_exit *how) {
  (void)ctx, (void)how;
  return value_bool(false);
}
