/* Branches on data, captured: an `if` whose condition depends on data becomes one node of the graph that holds both arms.
 *
 * While a call is captured, a condition that is an array's element has no value. So the interpreter runs both arms, one after the other,
 * each in a recording of its own (an arm; it is hollow: nothing in it is computed), and puts the variables back in between. If both arms
 * come to their ends, and what the variables hold then agrees in structure, dtypes and shapes, an `if` node with the two graphs is
 * appended, and where the arms differ its results become the values of the variables. Values from outside the arms are inputs of their
 * graphs.
 *
 * In the body of a captured loop (loops.c) an arm may leave by break or continue. Then the other arm stays open: it is recorded on to the end of
 * the turn, where both ends are joined as above, with what the loop's variables hold (turn_close).
 *
 * An arm that needs data, has an effect, draws random numbers, fails, or leaves in another way is no region: what has been recorded of it is
 * forgotten, as if it had not been looked at, and the branch ends the capture as before.
 */
#include <string.h>

#include "jit/trace/breaks.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"

enum {
  ARMS_DEEP = 16, /* how deep branches may nest */
  LOOKED_AT = 256 /* nodes, for whether a number is data */
};

/* What an arm has come to at its end. */
typedef struct arm_end {
  struct recording *r; /* owned */
  rec_exit how;
  qn_value value, *slots;  /* owned: its value, and what the variables hold */
  uint32_t *nodes, n, cap; /* of the leaves of the slots and the value that are arrays or numbers; 0 of others */
} arm_end;

/* A branch while its arms are being captured. */
typedef struct branch {
  qn_vm *vm;
  struct recording *r;
  rec_slots assigned;
  qn_value *before; /* owned: what the variables held */
  arm_end arms[2];  /* as they have been run */
  bool turned;      /* the second arm of the branch was run first */
  /* results of the region: the node of each arm; and when it is there their values (owned) */
  uint32_t *outs[2], nouts, outs_cap[2];
  qn_value *values;
  uint32_t leaf, out; /* while trees are walked: the numbers of the next leaf and of the next result */
  bool build;         /* the walk makes the final values; else it only finds out whether the arms agree */
} branch;

/* ---- arms -------------------------------------------------------------------------------------------------------------------- */

static bool note_leaf(void *ctx, qn_value v) {
  arm_end *a = ctx;
  qn_vm *vm = a->r->vm;
  bool number = value_is_operand(v);
  uint32_t node = number ? rec_node(a->r, v) : 0;
  if ((number && !node) || !mem_grow(vm, (void **)&a->nodes, &a->cap, a->n + (size_t)1, sizeof *a->nodes)) return false;
  a->nodes[a->n++] = node;
  return true;
}

/* Notes what the variables hold, and the arm's value, at its end. */
static bool note_end(arm_end *end, rec_slots held) {
  qn_vm *vm = end->r->vm;
  if (!(end->slots = mem_zalloc(vm, ((size_t)held.n + 1) * sizeof *end->slots))) return false;
  for (int i = 0; i < held.n; i++) {
    end->slots[i] = value_retain(*held.slots[i]);
    if (!tree_each(vm, end->slots[i], note_leaf, end)) return false;
  }
  return tree_each(vm, end->value, note_leaf, end);
}

void slots_set(qn_vm *vm, rec_slots s, const qn_value *to) {
  for (int i = 0; i < s.n; i++) {
    qn_value old = *s.slots[i];
    *s.slots[i] = value_retain(to[i]);
    value_release(vm, old);
  }
}

/* The turn that an arm of this recording may leave; NULL: it may leave none. */
static rec_turn *turn_of(const struct recording *r) {
  rec_turn *t = rec_base((struct recording *)(uintptr_t)r)->turn;
  return t && t->r == r && !t->inner ? t : NULL;
}

/* Runs one arm, after `first` where that is not NULL. False: it is no region, or an error is raised that counts. */
static bool run_arm(branch *b, rec_arm arm, const struct recording *first, arm_end *end) {
  qn_vm *vm = b->vm;
  qn_value *mark = vm->sp;
  if (!(end->r = rec_arm_begin(b->r, first))) return false;
  end->how = REC_VALUE;
  end->value = arm.run(arm.ctx, &end->how);
  const rec_turn *t = end->how == REC_BREAK || end->how == REC_CONTINUE ? turn_of(b->r) : NULL;
  bool ok = (end->how == REC_VALUE || t) && vm->rec == end->r && !end->r->regions.n;
  if (end->how == REC_ERROR) end->value = value_nil();
  if (!ok) vm_pop_to(vm, mark);
  if (ok && t) end->value = value_bool(end->how == REC_BREAK);
  ok = ok && note_end(end, t ? t->slots : b->assigned) && !end->r->g->failed;
  rec_arm_end(end->r);
  slots_set(vm, b->assigned, b->before);
  return ok;
}

/* ---- what the arms agree in --------------------------------------------------------------------------------------------------- */

/* Is it a value from outside that both arms have left as it was? */
static bool is_outer(const branch *b, qn_value x, qn_value y) {
  return x.head == y.head && x.u.i == y.u.i && !rec_traced(b->arms[0].r, x) && !rec_traced(b->arms[1].r, y);
}

/* Joins a leaf of the first arm and one of the second. Owned; nil if only looking (`build`). The error value, without an error raised, if
 * the arms do not agree. */
static qn_value join_leaf(branch *b, qn_value x, qn_value y) {
  qn_vm *vm = b->vm;
  uint32_t at = b->leaf++, nodes[2] = {b->arms[0].nodes[at], b->arms[1].nodes[at]};
  if (!nodes[0] || !nodes[1]) {
    bool same = x.head == y.head && (x.u.i == y.u.i || (value_is(x, TAG_STR) && str_equal(value_str(x), value_str(y))));
    return same && !nodes[0] && !nodes[1] ? value_retain(x) : value_error();
  }
  if (is_outer(b, x, y)) return value_retain(x);
  if (b->build) return value_retain(b->values[b->out++]);
  const graph_type *t = &b->arms[0].r->g->nodes[nodes[0]].type, *u = &b->arms[1].r->g->nodes[nodes[1]].type;
  if (!graph_type_same(t, u) || !type_is_fixed(t)) return value_error();
  for (int k = 0; k < 2; k++) {
    if (!mem_grow(vm, (void **)&b->outs[k], &b->outs_cap[k], b->nouts + (size_t)1, sizeof *b->outs[k]))
      return value_error();
    b->outs[k][b->nouts] = nodes[k];
  }
  b->nouts++;
  return value_nil();
}

/* Joins x, a value of the first arm, and y, that of the second. As join_leaf. */
static qn_value join(branch *b, qn_value x, qn_value y) {
  qn_vm *vm = b->vm;
  bool list = value_is(x, TAG_LIST) && value_is(y, TAG_LIST),
       record = value_is(x, TAG_RECORD) && value_is(y, TAG_RECORD);
  if (value_is(x, TAG_LIST) != value_is(y, TAG_LIST) || value_is(x, TAG_RECORD) != value_is(y, TAG_RECORD))
    return value_error();
  if (!list && !record) return join_leaf(b, x, y);
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
    qn_value v = join(b, p[i], q[i]);
    if (value_is_error(v)) {
      value_release(vm, out);
      return v;
    }
    to[i] = v;
  }
  return out;
}

/* Joins all variables and the value of the branch. If values are made (`build`), the variables are set and *result is the value. False if
 * the arms do not agree, or with an error raised. */
static bool join_all(branch *b, bool build, qn_value *result) {
  b->leaf = b->out = 0;
  b->build = build;
  if (b->arms[0].n != b->arms[1].n) return false;
  for (int i = 0; i < b->assigned.n; i++) {
    qn_value v = join(b, b->arms[0].slots[i], b->arms[1].slots[i]);
    if (value_is_error(v)) return false;
    if (build) {
      value_release(b->vm, *b->assigned.slots[i]);
      *b->assigned.slots[i] = v;
    } else {
      value_release(b->vm, v);
    }
  }
  qn_value v = join(b, b->arms[0].value, b->arms[1].value);
  if (value_is_error(v)) return false;
  if (build)
    *result = v;
  else
    value_release(b->vm, v);
  return true;
}

/* ---- the node ------------------------------------------------------------------------------------------------------------------ */

/* The graph of an arm, a copy, with inputs for what only the one that was run last has captured. NULL when memory is short. */
static graph *arm_graph(const struct recording *r, const struct recording *arm, const struct recording *second) {
  for (uint32_t i = arm->g->ninputs; i < second->g->ninputs; i++)
    if (!graph_input(arm->g, r->g->nodes[second->captures[i]].type, 0)) return NULL;
  graph *copy = graph_copy(arm->g);
  if (copy) graph_dce(copy);
  return copy;
}

uint32_t arms_close(struct recording *r, graph_kind kind, uint32_t predicate, struct recording *const arms[2],
                    const op_attr *attr, uint32_t site) {
  qn_vm *vm = r->vm;
  const struct recording *last = arms[0]->g->ninputs > arms[1]->g->ninputs ? arms[0] : arms[1];
  uint32_t n = 0, captured = last->g->ninputs, *in = mem_alloc(vm, (captured + (size_t)1) * sizeof *in);
  if (!in) return 0;
  if (predicate) in[n++] = predicate;
  for (uint32_t i = 0; i < captured; i++) in[n++] = last->captures[i];
  graph *first = arm_graph(r, arms[0], last), *second = first ? arm_graph(r, arms[1], last) : NULL;
  uint32_t node = graph_regions(r->g, kind, in, (int)n, first, second, attr, site);
  mem_free(vm, in, (captured + (size_t)1) * sizeof *in);
  if (!node && !error_pending(vm)) raise_memory(vm);
  return node;
}

static bool make_node(branch *b, uint32_t predicate, uint32_t site) {
  qn_vm *vm = b->vm;
  graph *g = b->r->g;
  for (int which = 0; which < 2; which++)
    for (uint32_t k = 0; k < b->nouts; k++)
      if (!graph_output(b->arms[which].r->g, b->outs[which][k])) return raise_memory(vm), false;
  struct recording *const arms[2] = {b->arms[b->turned].r, b->arms[!b->turned].r};
  uint32_t node = arms_close(b->r, NODE_IF, predicate, arms, NULL, site);
  b->values = mem_zalloc(vm, ((size_t)b->nouts + 1) * sizeof *b->values);
  bool ok = node && b->values;
  for (uint32_t k = 0; k < b->nouts && ok; k++) {
    graph_type type = graph_result_type(&g->nodes[node], k);
    uint32_t proj = graph_proj(g, node, k, type, site);
    b->values[k] = proj ? rec_value_of(b->r, proj) : value_error();
    ok = !value_is_error(b->values[k]);
    if (!ok) b->values[k] = value_nil();
  }
  if (!ok && !error_pending(vm)) raise_memory(vm);
  return ok && rec_appended(b->r);
}

/* `n` variables were noted. */
static void arm_free(qn_vm *vm, arm_end *a, int n) {
  value_release(vm, a->value);
  for (int i = 0; i < n && a->slots; i++) value_release(vm, a->slots[i]);
  if (a->slots) mem_free(vm, a->slots, ((size_t)n + 1) * sizeof *a->slots);
  mem_free(vm, a->nodes, a->cap * sizeof *a->nodes);
  if (a->r) rec_free(a->r);
  *a = (arm_end){.value = value_nil()};
}

static void branch_free(branch *b) {
  qn_vm *vm = b->vm;
  for (int k = 0; k < 2; k++) {
    const rec_turn *t = b->arms[k].how == REC_VALUE ? NULL : turn_of(b->r);
    arm_free(vm, &b->arms[k], t ? t->slots.n : b->assigned.n);
    mem_free(vm, b->outs[k], b->outs_cap[k] * sizeof *b->outs[k]);
  }
  for (int i = 0; i < b->assigned.n && b->before; i++) value_release(vm, b->before[i]);
  if (b->before) mem_free(vm, b->before, ((size_t)b->assigned.n + 1) * sizeof *b->before);
  for (uint32_t k = 0; k < b->nouts && b->values; k++) value_release(vm, b->values[k]);
  if (b->values) mem_free(vm, b->values, ((size_t)b->nouts + 1) * sizeof *b->values);
  if (!b->r->ended) vm->rec = b->r;
}

/* ---- arms that leave a turn -------------------------------------------------------------------------------------------------------- */

/* A branch one of whose arms has left the turn, while the other one is recorded on. */
struct open_branch {
  struct open_branch *outer;
  struct recording *r;    /* that has the branch */
  arm_end gone;           /* owned; its value: does it leave the loop? */
  struct recording *open; /* owned */
  uint32_t predicate, site;
  bool turned; /* the arm that has left is the second one */
};

/* The turn goes on in the second arm that was run, the first one has left it. False with an error raised. */
static bool turn_open(branch *b, uint32_t predicate, uint32_t site, qn_value *result) {
  qn_vm *vm = b->vm;
  rec_turn *t = turn_of(b->r);
  struct open_branch *o = mem_zalloc(vm, sizeof *o);
  if (!o) return false;
  *o = (struct open_branch){t->open, b->r, b->arms[0], b->arms[1].r, predicate, site, b->turned};
  b->arms[0] = (arm_end){.value = value_nil()};
  b->arms[1].r = NULL;
  t->open = o;
  t->r = o->open;
  t->leaves |= o->gone.how == REC_BREAK;
  t->parts = true;
  slots_set(vm, b->assigned, b->arms[1].slots);
  *result = value_retain(b->arms[1].value);
  return true;
}

static void open_free(qn_vm *vm, rec_turn *t) {
  struct open_branch *o = t->open;
  t->open = o->outer;
  t->r = o->r;
  arm_free(vm, &o->gone, t->slots.n);
  rec_free(o->open);
  mem_free(vm, o, sizeof *o);
}

void turn_drop(qn_vm *vm, rec_turn *t) {
  while (t->open) open_free(vm, t);
}

bool turn_close(qn_vm *vm, rec_turn *t, qn_value *leaves) {
  bool ok = true;
  while (t->open && ok) {
    struct open_branch *o = t->open;
    branch b = {.vm = vm, .r = o->r, .assigned = t->slots, .turned = o->turned};
    b.arms[0] = o->gone;
    b.arms[1] = (arm_end){.r = o->open, .value = *leaves};
    ok = vm->rec == o->open && !o->open->regions.n && note_end(&b.arms[1], t->slots) && !o->open->g->failed;
    rec_arm_end(o->open);
    ok = ok && join_all(&b, false, NULL) && make_node(&b, o->predicate, o->site) && join_all(&b, true, leaves);
    b.arms[0] = (arm_end){.value = value_nil()};
    b.arms[1].r = NULL;
    branch_free(&b);
    open_free(vm, t);
  }
  turn_drop(vm, t);
  return ok;
}

/* Does a number come from an array's element, or from a region? Looks at *left nodes at most; of numbers with a longer history it says no. */
static bool is_data(const graph *g, uint32_t node, int *left) {
  const graph_node *n = &g->nodes[node];
  if (--*left < 0) return false;
  if (n->kind == NODE_PROJ || (!n->type.weak && n->kind != NODE_CONST)) return true;
  for (int k = 0; n->kind == NODE_OP && k < n->nin; k++)
    if (is_data(g, n->in[k], left)) return true;
  return false;
}

bool arms_possible(const struct recording *r) {
  const struct recording *base = rec_base((struct recording *)(uintptr_t)r);
  if (!r->vm->tune[TUNE_jit_regions] || !(base->capturing || base->vmap_held.on) || base->device || base->lanes ||
      r->lanes || r->tries || base->tries)
    return false;
  int deep = 0;
  for (const struct recording *x = r; x->arm; x = x->outer) deep++;
  return deep < ARMS_DEEP;
}

bool rec_is_data(const struct recording *r, qn_value v) {
  if (value_is(v, TAG_ARRAY)) return array_pending(value_array(v));
  uint32_t node = rec_traced(r, v);
  return node && (r->arm || is_data(r->g, node, &(int){LOOKED_AT}));
}

rec_answer arms_refused(struct recording *r) {
  qn_vm *vm = r->vm;
  if (!vm->error) return REC_NOT_YET;
  bool memory = vm->error->id == E_memory;
  if (!error_catchable(vm) || (memory && r->arm)) return REC_FAILED;
  error_clear(vm);
  if (memory) rec_stop_capture(r, BREAK_memory, NULL);
  return REC_NOT_YET;
}

/* May the branch be captured with both arms? */
static bool is_captured(const struct recording *r, qn_value predicate) {
  if (!arms_possible(r)) return false;
  bool one = value_is(predicate, TAG_ARRAY)
                 ? value_array(predicate)->dtype == QN_bool && value_array(predicate)->size == 1
                 : value_is(predicate, TAG_BOOL);
  return one && rec_is_data(r, predicate);
}

/* Runs both arms. One that leaves the turn is run first, so that the other one can go on. */
static bool run_arms(branch *b, rec_arm then, rec_arm otherwise) {
  if (!run_arm(b, then, NULL, &b->arms[0]) || !run_arm(b, otherwise, b->arms[0].r, &b->arms[1])) return false;
  if (b->arms[0].how != REC_VALUE) return b->arms[1].how == REC_VALUE;
  if (b->arms[1].how == REC_VALUE) return true;
  const rec_turn *t = turn_of(b->r);
  for (int k = 0; k < 2; k++) arm_free(b->vm, &b->arms[k], k ? t->slots.n : b->assigned.n);
  b->turned = true;
  return run_arm(b, otherwise, NULL, &b->arms[0]) && run_arm(b, then, b->arms[0].r, &b->arms[1]) &&
         b->arms[0].how != REC_VALUE && b->arms[1].how == REC_VALUE;
}

rec_answer branch_capture(struct recording *r, span at, qn_value predicate, rec_arm then, rec_arm otherwise,
                          rec_slots assigned, qn_value *result) {
  qn_vm *vm = r->vm;
  if (!is_captured(r, predicate)) return REC_NOT_YET;
  branch b = {.vm = vm, .r = r, .assigned = assigned};
  for (int k = 0; k < 2; k++) b.arms[k].value = value_nil();
  qn_value condition = value_retain(predicate);
  rec_answer answer = REC_NOT_YET;
  rec_at(vm, at);
  uint32_t site = rec_site(r), predicate_node = 0;
  if (value_is(condition, TAG_ARRAY) && value_array(condition)->rank) {
    qn_value flat = op_reshape(vm, condition, 0, NULL);
    value_release(vm, condition);
    condition = flat;
  }
  bool ok = !value_is_error(condition) && (predicate_node = rec_node(r, condition)) != 0;
  b.before = ok ? mem_zalloc(vm, ((size_t)assigned.n + 1) * sizeof *b.before) : NULL;
  for (int i = 0; i < assigned.n && b.before; i++) b.before[i] = value_retain(*assigned.slots[i]);
  ok = b.before && run_arms(&b, then, otherwise);
  struct recording *now = r;
  if (ok && b.arms[0].how != REC_VALUE) {
    now = b.arms[1].r;
    answer = turn_open(&b, predicate_node, site, result) ? REC_DONE : REC_FAILED;
  } else if (ok && join_all(&b, false, NULL)) {
    answer = make_node(&b, predicate_node, site) && join_all(&b, true, result) ? REC_DONE : REC_FAILED;
    now = vm->rec;
  } else {
    answer = arms_refused(r);
  }
  branch_free(&b);
  if (answer == REC_DONE) /* where the capture has ended, there may be none */
    vm->rec = now;
  else if (!r->ended)
    vm->rec = r;
  value_release(vm, condition);
  return answer;
}
