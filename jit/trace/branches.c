/* Branches on data, captured: an `if` whose condition depends on data becomes one node of the graph that holds both arms.
 *
 * While a call is captured, a condition that is an array's element has no value. So the interpreter runs both arms, one after the other,
 * each in a recording of its own (an arm; it is hollow: nothing in it is computed), and puts the variables back in between. If both arms
 * come to their ends, and what the variables hold then agrees in structure, dtypes and shapes, an `if` node with the two graphs is
 * appended, and where the arms differ its results become the values of the variables. Values from outside the arms are inputs of their
 * graphs.
 *
 * An arm may leave the turn of a captured loop, the function, or a try (by an error; tries.c): ways.c tells how. A function can only be
 * left if all that follows is captured, too; so where something may return, the rest of the function is tried first, in an arm of its own,
 * whose nodes then join the graph (rec_tail).
 *
 * Where an arm raises an error, the branch becomes a check that the other one is taken, which then is run in its place.
 *
 * An arm that needs data or has an effect is no region: what has been recorded of it is forgotten, as if it had not been looked at, and the
 * branch ends the capture as before. (The state of the random numbers is a variable: draws.c.)
 */
#include <string.h>

#include "jit/graph/grad.h"
#include "jit/trace/breaks.h"
#include "jit/trace/draws.h"
#include "jit/trace/forks.h"
#include "jit/trace/node_copy.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/sizes.h"
#include "jit/trace/ways.h"

enum {
  ARMS_DEEP = 64, /* how deep branches may nest */
  LOOKED_AT = 256 /* nodes, for whether a number is data */
};

void slots_set(qn_vm *vm, rec_slots s, const qn_value *to) {
  for (int i = 0; i < s.n; i++) {
    qn_value old = *s.slots[i];
    *s.slots[i] = value_retain(to[i]);
    value_release(vm, old);
  }
}

qn_value *slots_keep(qn_vm *vm, rec_slots s) {
  qn_value *kept = mem_zalloc(vm, ((size_t)s.n + 1) * sizeof *kept);
  for (int i = 0; i < s.n && kept; i++) kept[i] = value_retain(*s.slots[i]);
  return kept;
}
void slots_free(qn_vm *vm, rec_slots s, qn_value *kept) {
  for (int i = 0; i < s.n && kept; i++) value_release(vm, kept[i]);
  if (kept) mem_free(vm, kept, ((size_t)s.n + 1) * sizeof *kept);
}

/* ---- what is data --------------------------------------------------------------------------------------------------------------- */

/* Does a number come from an array's element, from a region, or (`turns`) from what changes from turn to turn? Looks at *left nodes at most, also of the
 * recordings around an arm; of numbers with a longer history it says no. */
static bool is_data(const struct recording *r, uint32_t node, bool turns, int *left) {
  const graph_node *n = &r->g->nodes[node];
  if (--*left < 0) return false;
  if (n->kind == NODE_PROJ || n->kind == NODE_TAP || (!n->type.weak && n->kind != NODE_CONST)) return true;
  if (n->kind == NODE_INPUT && r->arm) {
    uint32_t number = n->payload.input, outer = number < r->carries ? 0 : r->captures[number];
    return outer ? is_data(r->outer, outer, turns, left) : turns;
  }
  for (int k = 0; n->kind == NODE_OP && k < n->nin; k++)
    if (is_data(r, n->in[k], turns, left)) return true;
  return false;
}

/* Branches and loops are captured inside so many gradients. (Each is a branch or loop more.) */
enum { DERIVED_MOST = 4 };

bool arms_possible(const struct recording *r) {
  const struct recording *base = rec_base((struct recording *)(uintptr_t)r);
  if (rec_derivatives(r) > DERIVED_MOST) return false;
  if (!r->vm->tune[TUNE_jit_regions] || !(base->capturing || base->vmap_held.on) || base->lanes || r->lanes ||
      r->tries || base->tries)
    return false;
  int deep = 0;
  for (const struct recording *x = r; x->arm; x = x->outer) deep++;
  return deep < ARMS_DEEP;
}

bool branches_possible(const struct recording *r) { return arms_possible(r); }

bool loops_possible(const struct recording *r) { return arms_possible(r); }

bool rec_recursion(const qn_vm *vm) { return vm->rec && arms_possible(vm->rec) && !rec_base(vm->rec)->trying; }

bool rec_derives(const qn_vm *vm) {
  const struct recording *r = vm->rec, *base = r ? rec_base((struct recording *)(uintptr_t)r) : NULL;
  bool lanes = r && (r->lanes || base->lanes || base->vmap_held.on);
  return r && rec_derivatives(r) > 0 && !(lanes && (base->trying || vmap_catches(r) || vmap_catches(base)));
}

bool rec_recursion_failed(qn_vm *vm) {
  struct recording *r = vm->rec;
  if (r && !r->arm && r->capturing && error_catchable(vm)) r->again = true;
  return r && (r->arm || r->again);
}

bool rec_in_arm(const qn_vm *vm) { return vm->rec && vm->rec->arm; }

uint32_t rec_effects(const qn_vm *vm) { return vm->rec ? rec_base(vm->rec)->effects : 0; }

bool rec_recursion_begins(qn_vm *vm) { return !vm->rec || vm->rec->arm || rec_run_pending(vm->rec); }

bool rec_recursion_again(qn_vm *vm, uint32_t effects) {
  bool own =
      way_raises(vm) || (error_catchable(vm) && (vm->error->id == E_recursion || vm->error->id == E_not_batched));
  if (!vm->rec || !own || rec_effects(vm) != effects) return false;
  if (vm->error->id == E_div_zero && rec_base(vm->rec)->exits)
    return false; /* a check from before has failed, perhaps */
  error_clear(vm);
  vm->rec->vmap_failed = false;
  return true;
}

bool rec_is_data(const struct recording *r, qn_value v) {
  if (value_is(v, TAG_ARRAY)) return array_pending(value_array(v));
  uint32_t node = 0;
  while (!(node = rec_traced(r, v)) && r->arm) r = r->outer;
  return node && is_data(r, node, true, &(int){LOOKED_AT});
}

bool rec_number_of_data(const struct recording *r, uint32_t node) { return is_data(r, node, false, &(int){LOOKED_AT}); }

rec_answer arms_refused(struct recording *r) {
  qn_vm *vm = r->vm;
  if (!vm->error) return REC_NOT_YET;
  if (rec_base(r)->restart && vm->error->id == E_internal) return REC_FAILED; /* (fork_wanted) */
  bool memory = vm->error->id == E_memory;
  if (!error_catchable(vm) || (memory && r->arm)) return REC_FAILED;
  error_clear(vm);
  return !memory || rec_stop_capture(r, BREAK_memory, NULL) ? REC_NOT_YET : REC_FAILED;
}

/* May the branch be captured with both arms? */
static bool is_captured(const struct recording *r, qn_value predicate) {
  if (!branches_possible(r)) return false;
  bool one = value_is(predicate, TAG_ARRAY)
                 ? value_array(predicate)->dtype == QN_bool && value_array(predicate)->size == 1
                 : value_is(predicate, TAG_BOOL);
  return one && rec_is_data(r, predicate);
}

/* ---- branches -------------------------------------------------------------------------------------------------------------------- */

/* A branch while its arms are being captured. */
typedef struct branch {
  qn_vm *vm;
  struct recording *r;
  const rec_branch *of;
  rec_way *around; /* the way that the arms may leave, or NULL */
  bool called;     /* in a function that is called in it: they may only be missed, */
  bool catching;   /* or left by errors */
  rec_slots held;  /* owned: the variables that are joined, with room for so many */
  size_t room;
  qn_value *before; /* owned: what the variables held that may be rebound */
  way_end ends[2];  /* as they have been run */
  qn_value left[2]; /* owned: has the arm left what is around the branch? */
  bool turned;      /* the second arm of the branch was run first */
  bool ran[2];      /* for each arm of the branch: has it been run; and the choices of the way that it has made */
  way_made made[2];
  bool raises;        /* the arm that was run last has ended with an error of the program */
  uint32_t from;      /* rec_next_id when it began */
  uint32_t predicate; /* the node of its condition */
} branch;

/* Has the arm left in any case? */
static bool is_gone(const branch *b, int k) { return is_bool(b->left[k], true); }

/* How many of the joined variables, the first ones, the arms may rebind. */
static int own_slots(const branch *b) { return b->of->last ? 0 : b->of->assigned.n; }

/* May arms leave what is around? */
static bool may_leave(const branch *b) { return !b->called || b->catching; }

/* The variables that the arms may rebind; so may the handlers of what is around. */
static rec_slots slots_within(const branch *b) {
  return b->around && b->around->catches && may_leave(b) ? b->held : b->of->assigned;
}

/* Runs arm k, the first or the second that is run. False: it is no region, or an error is raised that counts. */
static bool run_arm(branch *b, int k, rec_arm arm) {
  qn_vm *vm = b->vm;
  qn_value *mark = vm->sp, parts[END_PARTS];
  way_end *end = &b->ends[k];
  rec_way way;
  const rec_way *here = b->called ? b->around : way_of(b->r);
  way_choices *c = here ? here->choices : NULL;
  int which = b->turned ? !k : k;
  uint32_t behind = c ? c->at : 0; /* an arm that is run once more makes the choices that it has made */
  if (c && b->ran[which]) c->at = b->made[which].from;
  if (c && !b->ran[which]) b->made[which].from = c->at;
  if (!(end->r = rec_arm_begin(b->r, k ? b->ends[0].r : NULL))) return false;
  end->r->when = b->predicate;
  end->r->when_truth = which == 0;
  way_begin(&way, WAY_ARM, end->r, b->around, b->held);
  way.own = own_slots(b);
  if (b->called) {
    way.may_return = way.may_break = false;
    if (!b->catching) way.turn = NULL, way.catches = way.throws = NULL;
    way.choices = b->around->choices;
  }
  rec_exit how = REC_VALUE;
  qn_value v = arm.run(arm.ctx, &how);
  bool caught = how == REC_ERROR && vm->rec == way.r && way_catches(vm, &way);
  if (caught) {
    vm_pop_to(vm, mark);
    how = REC_VALUE;
    v = way_catch(vm, &way, &how);
    way.handled = how == REC_VALUE;
    way.may_return = b->around->may_return; /* the handler stands there */
    way.may_break = b->around->may_break && !b->around->inner;
  }
  if (how == REC_RETURN && b->of->last && !caught) how = REC_VALUE;
  if (how == REC_VALUE && !way.handled && !b->of->used) {
    value_release(vm, v);
    v = value_nil();
  }
  bool ok = way_close(vm, &way, how, v, parts);
  b->raises = !ok && how == REC_ERROR && way_raises(vm);
  if (ok) b->left[k] = value_retain(parts[END_LEFT]);
  ok = ok && vm->rec == end->r && !end->r->regions.n;
  ok = ok && (rec_derivatives(b->r) < 2 || turns_may_be_kept(end->r) || turns_are_counted_around(end->r));
  if (!ok) vm_pop_to(vm, mark);
  ok = ok && end_note(end, is_gone(b, k) ? b->around->slots : b->held, parts, is_gone(b, k) ? b->around : NULL);
  end_parts_free(vm, parts);
  rec_arm_end(end->r);
  slots_set(vm, slots_within(b), b->before);
  if (c) b->made[which].end = c->at;
  if (c && c->at < behind) c->at = behind;
  b->ran[which] = true;
  return ok && !end->r->g->failed;
}

static void arms_free(branch *b) {
  for (int k = 0; k < 2; k++) {
    end_free(b->vm, &b->ends[k]);
    value_release(b->vm, b->left[k]);
    b->left[k] = value_bool(false);
  }
}

/* Runs both arms. If one of them leaves and the other one does not, the one that leaves is the first that is run. */
static bool run_arms(branch *b) {
  const rec_arm arms[2] = {b->of->then, b->of->otherwise};
  if (!run_arm(b, 0, arms[0]) || !run_arm(b, 1, arms[1])) return false;
  if (is_gone(b, 0) || !is_gone(b, 1)) return true;
  arms_free(b);
  b->turned = true;
  return run_arm(b, 0, arms[1]) && run_arm(b, 1, arms[0]) && is_gone(b, 0) && !is_gone(b, 1);
}

/* Adds to the variables that are joined those that are not there yet. */
static void hold(branch *b, rec_slots more) {
  for (int i = 0; i < more.n; i++) {
    bool known = false;
    for (int k = 0; k < b->held.n && !known; k++) known = b->held.slots[k] == more.slots[i];
    if (!known) b->held.slots[b->held.n++] = more.slots[i];
  }
}

/* The variables that are joined: those that the arms may rebind and, if an arm may leave the turn or the try around, those of these. Behind the last
 * statement of a function nobody reads its variables. */
static bool find_held(branch *b) {
  const rec_slots own = b->of->assigned, none = {NULL, 0};
  const rec_way *w = may_leave(b) && (!b->of->last || b->catching) ? b->around : NULL;
  const rec_slots turn = w && w->turn ? w->turn->slots : none,
                  tried = w && w->catches ? w->catches->of->assigned : none;
  b->room = (size_t)own.n + (size_t)turn.n + (size_t)tried.n + 1;
  if (!(b->held.slots = mem_alloc(b->vm, b->room * sizeof *b->held.slots))) return false;
  for (int i = 0; i < own.n; i++)
    if (!b->of->last || b->catching || draws_is_slot(b->r, own.slots[i])) b->held.slots[b->held.n++] = own.slots[i];
  hold(b, turn);
  hold(b, tried);
  return true;
}

static void branch_free(branch *b) {
  arms_free(b);
  slots_free(b->vm, slots_within(b), b->before);
  if (b->held.slots) mem_free(b->vm, b->held.slots, b->room * sizeof *b->held.slots);
}

/* For vm_own: the host has left. */
static void branch_drop(qn_vm *vm, void *what) {
  (void)vm;
  branch_free(what);
}

/* One arm has left, the other one goes on: what follows is recorded there. False with an error raised. */
static bool go_on(branch *b, uint32_t site, qn_value *result) {
  qn_vm *vm = b->vm;
  way_end *end = &b->ends[1];
  qn_value parts[END_PARTS];
  for (int i = 0; i < END_PARTS; i++) parts[i] = end->held[end->nheld - END_PARTS + (uint32_t)i];
  slots_set(vm, b->held, end->held);
  *result = value_retain(parts[END_VALUE]);
  struct recording *on = end->r;
  if (!parted_arm(on, b->from, b->of->assigned, result)) return false;
  end->r = NULL;
  const way_made *made = b->made;
  uint32_t from = made[0].from < made[1].from ? made[0].from : made[1].from;
  if (!way_leave(vm, b->around, &b->ends[0], on, b->predicate, site, b->turned, from, made[b->turned])) return false;
  if (is_bool(parts[END_LEFT], false)) return true;
  rec_at(vm, b->of->at); /* the arm has sites of its own */
  return way_split(vm, b->around, parts);
}

/* Joins the arms. *unlike: the variable in which they do not agree, or NULL. */
static rec_answer join_arms(branch *b, uint32_t site, qn_value *result, const qn_value **unlike) {
  qn_vm *vm = b->vm;
  rec_way *w = b->around;
  bool gone = is_gone(b, 0);
  rec_slots slots = gone ? w->slots : b->held;
  way_end *ends[2] = {&b->ends[0], &b->ends[1]};
  uint32_t n = ends[0]->nheld;
  qn_value *joined = mem_zalloc(vm, n * sizeof *joined);
  if (!joined) return REC_FAILED;
  uint32_t differs = 0;
  rec_answer answer =
      ends_join(b->r, ends, gone ? w->own : own_slots(b), b->turned, b->predicate, site, joined, &differs);
  *unlike = differs < (uint32_t)slots.n ? slots.slots[differs] : NULL;
  qn_value *parts = joined + slots.n;
  if (answer == REC_DONE) {
    slots_set(vm, slots, joined);
    if (gone && b->called) { /* no signal leaves a function */
      answer = rec_give_up(b->r, BREAK_branch) ? REC_NOT_YET : REC_FAILED;
    } else if (gone) {
      way_all_left(w, parts);
      answer = rec_appended(b->r) ? REC_LEFT : REC_FAILED;
    } else {
      *result = value_retain(parts[END_VALUE]);
      bool ok = parted_arm(b->r, b->from, b->of->assigned, result);
      ok = ok && (is_bool(parts[END_LEFT], false) ? rec_appended(b->r) : way_split(vm, w, parts));
      answer = ok ? REC_DONE : REC_FAILED;
    }
  }
  for (uint32_t i = 0; i < n; i++) value_release(vm, joined[i]);
  mem_free(vm, joined, n * sizeof *joined);
  return answer;
}

/* The arms do not agree, in *unlike if that is not NULL. If one of them may be chosen, the way that is recorded goes on there, and the other one misses the turn. */
static rec_answer choose_arm(branch *b, const qn_value *unlike, uint32_t site, qn_value *result) {
  qn_vm *vm = b->vm;
  if (!error_pending(vm)) fork_unlike(b->r, unlike);
  if (!error_pending(vm) && fork_wanted(b->r)) return REC_FAILED;
  const rec_way *w = b->called ? b->around : way_of(b->r);
  const bool chooses = !error_pending(vm) && w && w->choices,
             differs[2] = {chooses && way_differs(w->choices, b->made[0]),
                           chooses && way_differs(w->choices, b->made[1])};
  int k = error_pending(vm) ? -1 : way_choose_of_two(w, differs);
  if (k < 0) return arms_refused(b->r);
  /* What the other arm has made is of no use, and this one goes on where its recording has ended. */
  const int at = b->turned ? !k : k;
  const way_end taken = b->ends[at];
  const bool gone = is_gone(b, at);
  b->ends[at] = (way_end){.r = NULL};
  arms_free(b);
  b->ends[1] = taken;
  b->left[1] = value_bool(gone);
  b->turned = k == 0;
  if (!(b->ends[0].r = rec_arm_begin(b->r, taken.r))) return REC_FAILED;
  bool ok = end_miss(vm, &b->ends[0], b->around);
  rec_arm_end(b->ends[0].r);
  if (!ok) return REC_FAILED;
  b->left[0] = value_bool(true);
  if (!is_gone(b, 1)) return go_on(b, site, result) ? REC_DONE : REC_FAILED;
  if (b->called) return arms_refused(b->r);
  rec_answer answer = join_arms(b, site, result, &unlike);
  return answer == REC_NOT_YET ? arms_refused(b->r) : answer;
}

bool rec_expect(qn_vm *vm, qn_value condition) {
  struct recording *r = vm->rec;
  if (!is_captured(r, condition) || !way_may_exit(r)) return false;
  (void)(way_expect(r, condition, true) || error_pending(vm));
  return true;
}

static rec_answer capture_once(struct recording *r, const rec_branch *of, qn_value predicate, qn_value *result) {
  qn_vm *vm = r->vm;
  rec_way *here = way_of(r);
  branch b = {.vm = vm, .r = r, .of = of, .from = rec_next_id(r)};
  if (of->leaves || way_chooses(here) || way_thrower(here)) b.around = here;
  if (!here && ((b.around = way_chooser(r)) || (b.around = way_catcher(r)))) b.called = true;
  b.catching = b.called && b.around == way_catcher(r);
  uint32_t unlikes = rec_base(r)->unlike;
  const qn_value *unlike = NULL;
  for (int k = 0; k < 2; k++) b.left[k] = value_bool(false);
  qn_value condition = value_retain(predicate);
  rec_answer answer;
  vm_owned held, held_condition;
  vm_own(vm, &held, branch_drop, &b);
  vm_own(vm, &held_condition, vm_drop_value, &condition);
  rec_at(vm, of->at);
  uint32_t site = rec_site(r);
  if (value_is(condition, TAG_ARRAY) && value_array(condition)->rank) {
    qn_value flat = op_reshape(vm, condition, 0, NULL);
    value_release(vm, condition);
    condition = flat;
  }
  bool ok = !value_is_error(condition) && (b.predicate = rec_node(r, condition)) != 0 && find_held(&b) &&
            (b.before = slots_keep(vm, slots_within(&b))) && run_arms(&b);
  if (!ok && b.raises && of->asks && way_may_exit(r)) { /* then the other arm is the one that is captured */
    bool truth = b.turned != (b.ends[1].r != NULL);     /* has the second arm raised it? */
    error_clear(vm);
    vm->rec = r;
    answer = !way_expect(r, condition, truth) ? REC_FAILED : truth ? REC_THEN : REC_OTHERWISE;
  } else if (!ok)
    answer = arms_refused(r);
  else if (is_gone(&b, 0) && !is_gone(&b, 1))
    answer = go_on(&b, site, result) ? REC_DONE : REC_FAILED;
  else if ((answer = join_arms(&b, site, result, &unlike)) == REC_NOT_YET)
    answer = choose_arm(&b, unlike, site, result);
  if (answer == REC_NOT_YET && rec_base(r)->unlike != unlikes && fork_wanted(r)) answer = REC_FAILED;
  struct recording *now = vm->rec; /* where the capture has ended, there may be none */
  vm_disown(vm, &held);
  branch_free(&b);
  if (answer == REC_DONE || answer == REC_LEFT)
    vm->rec = now;
  else if (!r->ended)
    vm->rec = r;
  value_release(vm, condition);
  return answer;
}

rec_answer branch_capture(struct recording *r, const rec_branch *of, qn_value predicate, qn_value *result) {
  if (!is_captured(r, predicate)) return REC_NOT_YET;
  drawn_slots s;
  rec_branch with = *of;
  rec_answer answer = REC_FAILED;
  do {
    if (draws_begin(r, of->assigned, &s)) {
      with.assigned = s.all;
      answer = capture_once(r, &with, predicate, result);
    }
  } while (draws_again(r, answer));
  return answer;
}

/* ---- an arm that becomes a part of the graph around it ---------------------------------------------------------------------------------- */

typedef struct spliced {
  struct recording *r, *arm;
  uint32_t *nodes, *copies, n, cap, next; /* of the leaves of the result that the arm has made: in the arm, and in r */
} spliced;

static bool note_result(void *ctx, qn_value v) {
  spliced *s = ctx;
  uint32_t node = value_is_operand(v) ? rec_traced(s->arm, v) : 0;
  if (!node) return true;
  if (!mem_grow(s->r->vm, (void **)&s->nodes, &s->cap, s->n + (size_t)1, sizeof *s->nodes)) return false;
  s->nodes[s->n++] = node;
  return graph_output(s->arm->g, node) || (raise_memory(s->r->vm), false);
}

static qn_value result_leaf(void *ctx, qn_value v) {
  spliced *s = ctx;
  bool made = value_is_operand(v) && rec_traced(s->arm, v);
  return made ? rec_value_of(s->r, s->copies[s->next++]) : value_retain(v);
}

bool arm_values(struct recording *arm, rec_slots s, const qn_value *more, int n, qn_value *values) {
  qn_vm *vm = arm->vm;
  qn_list *l = list_new(vm, (uint32_t)(s.n + n));
  *values = value_nil();
  if (!l) return false;
  for (int i = 0; i < s.n; i++) l->items[i] = value_retain(*s.slots[i]);
  for (int i = 0; i < n; i++) l->items[s.n + i] = value_retain(more[i]);
  qn_value made = value_obj(TAG_LIST, l);
  if (tree_each_part(vm, made, rec_no_text_waits, arm))
    *values = made;
  else
    value_release(vm, made);
  return value_is(*values, TAG_LIST);
}

static uint32_t settled(void *r, uint32_t node) { return turns_settled(r, node); }

/* The size that a node of r, a host int, has: for size_map. */
static qn_dim number_size(void *ctx, uint32_t node) {
  struct recording *r = ctx;
  qn_dim d;
  if (r->arm) return sizes_number_in_arm(r, node, &d) ? d : 0;
  const qn_value v = rec_value_of(r, node);
  return value_is(v, TAG_INT) ? data_size_symbol(r, node, v.u.i) : 0;
}

/* Can all nodes of r from this one on have the sizes that data give them in this call? (Where they cannot, a check among them fails.) */
static bool sizes_are_possible(const struct recording *r, uint32_t from) {
  for (uint32_t i = from; i < r->g->n; i++) {
    const graph_type *t = &r->g->nodes[i].type;
    int64_t elements = 1;
    for (int k = 0; k < t->rank; k++) {
      const int64_t size = dim_hint(&r->g->dims, t->shape[k]);
      if (size < 0 || size > ARRAY_MAX_ELEMENTS || __builtin_mul_overflow(elements, size > 1 ? size : 1, &elements))
        return false;
    }
    if (elements > ARRAY_MAX_ELEMENTS) return false;
  }
  return true;
}

bool arm_may_join(const struct recording *arm) {
  if (!arm->g->dims.strict) return true;
  /* Numbers that it makes are computed while it joins, which must not write anything out. */
  return data_sizes_in_arm(arm) && !(arm->g->dims.numbers_of_data && graph_has_taps(arm->g, 1));
}

bool arm_splice(struct recording *r, struct recording *arm, qn_value *v) {
  qn_vm *vm = r->vm;
  spliced s = {.r = r, .arm = arm};
  const bool sized = arm->g->dims.strict;
  bool ok = (!sized || sizes_hold(r, true)) && tree_each(vm, *v, note_result, &s);
  graph *copy = ok ? graph_copy(arm->g) : NULL;
  if (ok && !copy) raise_memory(vm);
  /* A number of the result, or that is a size, is computed now, which is no read: what is behind it stays captured. */
  bool handing = r->handing_out;
  r->handing_out = true;
  if (copy) {
    const uint32_t from = r->g->n;
    graph_dce(copy);
    s.copies = mem_zalloc(vm, (s.n + (size_t)1) * sizeof *s.copies);
    ok = s.copies && copy_all(vm, r->g, copy, arm->captures, s.copies, settled, number_size, r);
    graph_free(copy);
    const bool unable =
        !ok && sized && error_catchable(vm) && vm->error->id == E_internal; /* a number is no size there */
    if (unable) error_clear(vm);
    if (unable || (ok && sized && !r->arm && !sizes_are_possible(r, from)))
      ok = r->arm ? rec_give_up(r, BREAK_branch) : data_sizes_end(r);
    if (ok && sized) r->sized = r->settled = r->g->dims.nfacts; /* the arm has made sure of them */
  }
  qn_value result = ok && copy ? tree_rebuild(vm, *v, result_leaf, &s) : value_error();
  r->handing_out = handing;
  mem_free(vm, s.nodes, s.cap * sizeof *s.nodes);
  if (s.copies) mem_free(vm, s.copies, (s.n + (size_t)1) * sizeof *s.copies);
  value_release(vm, *v);
  *v = result;
  return !value_is_error(result);
}

/* ---- and, or ------------------------------------------------------------------------------------------------------------------------ */

/* Is running the graph of an arm, which cannot fail, about as cheap as deciding whether to run it? */
static bool is_cheap(const graph *g) {
  enum { CHEAP_NODES = 16, CHEAP_ELEMENTS = 256 };
  if (g->n - g->ninputs > CHEAP_NODES) return false;
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    int64_t elements = 1;
    for (int k = 0; k < n->type.rank; k++) elements *= n->type.shape[k] < 0 ? CHEAP_ELEMENTS + 1 : n->type.shape[k];
    if (elements > CHEAP_ELEMENTS || graph_kind_has_regions(n->kind) || graph_fallible(g, i)) return false;
    if (n->kind == NODE_OP && op_rows[n->op].klass != CLASS_POINTWISE && op_rows[n->op].klass != CLASS_VIEW &&
        op_rows[n->op].klass != CLASS_REDUCE && n->op != OP_index)
      return false;
  }
  return true;
}

/* a and b, a or b, where both are there; b has no axes, and a bool of one element loses those that it has. Owned, or the error value. */
static qn_value both(qn_vm *vm, bool is_or, qn_value a, qn_value b) {
  qn_value one = value_is(a, TAG_ARRAY) ? op_reshape(vm, a, 0, NULL) : value_retain(a), all = one;
  if (!value_is_error(one)) all = op_binary(vm, is_or ? OP_bitor : OP_bitand, one, b);
  value_release(vm, one);
  return all;
}

/* For vm_own: the host has left. */
static void arm_left(qn_vm *vm, void *arm) {
  (void)vm;
  rec_free(arm);
}

rec_answer rec_logic(qn_vm *vm, const rec_branch *branch, qn_value a, bool is_or, qn_value *result) {
  struct recording *r = vm->rec;
  if (!r || !is_captured(r, a)) return REC_NOT_YET;
  if (!r->arm && !draws_gather(r)) return REC_FAILED;
  rec_arm other = is_or ? branch->otherwise : branch->then;
  qn_value *mark = vm->sp, b = value_nil();
  struct recording *arm = rec_arm_begin(r, NULL);
  if (!arm) return arms_refused(r);
  rec_exit how = REC_VALUE;
  drawn_kept random = draws_keep(r);
  vm_owned held;
  vm_own(vm, &held, arm_left, arm);
  b = other.run(other.ctx, &how);
  bool drawn = draws_put_back(r, &random);
  bool ok = how == REC_VALUE && !drawn && vm->rec == arm && !arm->regions.n && !arm->g->failed && is_cheap(arm->g);
  if (!ok) vm_pop_to(vm, mark);
  rec_arm_end(arm);
  rec_answer answer = REC_NOT_YET;
  if (how == REC_ERROR) {
    answer = arms_refused(r);
  } else if (ok && value_tag_of(a) == value_tag_of(b)) {
    *result = arm_splice(r, arm, &b) ? both(vm, is_or, a, b) : value_error();
    answer = value_is_error(*result) ? REC_FAILED : REC_DONE;
  }
  if (!value_is_error(b)) value_release(vm, b);
  struct recording *now = vm->rec;
  vm_disown(vm, &held);
  rec_free(arm);
  if (answer == REC_DONE)
    vm->rec = now;
  else if (!r->ended)
    vm->rec = r;
  bool again = how != REC_ERROR || (!r->arm && r->drawn_wanted > r->drawn_slots);
  return answer == REC_NOT_YET && again ? rec_if(vm, branch, a, result) : answer;
}

/* ---- the rest of a function ----------------------------------------------------------------------------------------------------------- */

/* Runs the rest of a function as a way of r; `slots`: the state of the random numbers. */
static bool run_tail(struct recording *r, rec_arm tail, rec_slots slots, qn_value *result) {
  qn_vm *vm = r->vm;
  rec_way way;
  rec_exit how = REC_VALUE;
  qn_value *mark = vm->sp, parts[END_PARTS];
  rec_way *around = way_chooser(r); /* of the caller, perhaps */
  way_begin(&way, WAY_TAIL, r, NULL, slots);
  if (around) way.choices = around->choices;
  rec_way *catcher = way_catcher(r); /* (the same one, if there are both) */
  way.throws = way_thrower(catcher);
  qn_value v = tail.run(tail.ctx, &how);
  bool ok = way_close(vm, &way, how, v, parts);
  if (ok) *result = value_retain(parts[END_VALUE]);
  ok = ok && vm->rec == r;
  if (ok && !raises_never(parts[END_RAISES])) {
    ok = way_split_raised(vm, catcher, parts[END_RAISES], parts[END_WORDS]);
    if (value_is(*result, TAG_UNSET)) *result = value_nil();
  }
  if (ok && around && !is_bool(parts[END_MISSED], false))
    ok = !is_bool(parts[END_MISSED], true) && way_split_missed(vm, around, parts[END_MISSED]);
  end_parts_free(vm, parts);
  if (!ok) vm_pop_to(vm, mark);
  return ok;
}

/* What rec_tail owns while the rest of a function is recorded. */
typedef struct tail_owned {
  rec_slots assigned;
  qn_value *before; /* what the variables held */
  struct recording *arm;
} tail_owned;

/* Frees it; for vm_own, too. */
static void tail_left(qn_vm *vm, void *what) {
  tail_owned *o = what;
  slots_free(vm, o->assigned, o->before);
  if (o->arm) rec_free(o->arm);
}

static rec_answer tail_failed(qn_vm *vm, qn_value *result) {
  value_release(vm, *result);
  *result = value_error();
  return REC_FAILED;
}

static rec_answer tail_once(struct recording *r, span at, rec_arm tail, const drawn_slots *slots, qn_value *result) {
  qn_vm *vm = r->vm;
  const rec_slots assigned = slots->all, drawn = slots->own;
  *result = value_nil();
  uint32_t unlikes = rec_base(r)->unlike;
  if (r->arm) { /* if it cannot be captured, nor can what the arm is a part of */
    if (run_tail(r, tail, drawn, result)) return REC_DONE;
    value_release(vm, *result);
    if (!error_pending(vm) && !(rec_base(r)->unlike != unlikes && fork_wanted(r))) (void)rec_give_up(r, BREAK_branch);
    return REC_FAILED;
  }
  rec_at(vm, at);
  tail_owned own = {assigned, slots_keep(vm, assigned), NULL};
  struct recording *arm = own.arm = own.before ? rec_arm_begin(r, NULL) : NULL;
  qn_value values = value_nil();
  vm_owned held, held_result, held_values;
  vm_own(vm, &held, tail_left, &own);
  vm_own(vm, &held_result, vm_drop_value, result);
  vm_own(vm, &held_values, vm_drop_value, &values);
  if (arm) arm->joins = true;
  bool ok = arm && run_tail(arm, tail, drawn, result) && !arm->regions.n && !arm->g->failed && arm_may_join(arm);
  ok = ok && arm_values(arm, drawn, result, 1, &values);
  value_release(vm, *result);
  *result = value_nil();
  if (arm) rec_arm_end(arm);
  if (own.before) slots_set(vm, assigned, own.before);
  rec_answer answer = REC_FAILED;
  if (!ok) {
    answer = arms_refused(r);
    if (answer == REC_NOT_YET && rec_base(r)->unlike != unlikes && fork_wanted(r)) answer = REC_FAILED;
  } else if (!arm_splice(r, arm, &values)) {
    values = value_nil();
  } else {
    slots_set(vm, drawn, value_list(values)->items);
    *result = value_retain(value_list(values)->items[drawn.n]);
    answer = REC_DONE;
  }
  struct recording *now = vm->rec;
  vm_disown(vm, &held);
  value_release(vm, values);
  tail_left(vm, &own);
  if (answer == REC_DONE)
    vm->rec = now;
  else if (!r->ended)
    vm->rec = r;
  if (answer != REC_DONE || !vm_enter(vm, 1)) return answer == REC_DONE ? tail_failed(vm, result) : answer;
  *vm->sp++ = *result; /* what is executed now may leave through the host */
  bool on = rec_appended(r);
  vm->sp--;
  return on ? REC_DONE : tail_failed(vm, result);
}

rec_answer rec_tail(qn_vm *vm, span at, rec_arm tail, rec_slots assigned, qn_value *result) {
  struct recording *r = vm->rec;
  if (!r || !branches_possible(r)) return REC_NOT_YET;
  const rec_way *around = way_of(r);
  if (around && around->kind == WAY_TAIL && around->may_return) return REC_NOT_YET; /* it is a part of that */
  drawn_slots s;
  rec_answer answer = REC_FAILED;
  do
    if (draws_begin(r, assigned, &s)) answer = tail_once(r, at, tail, &s, result);
  while (draws_again(r, answer));
  return answer;
}
