/* Branches on data whose arms do not agree: an int or an f32, an array or one of its rows, nil or a list.
 *
 * What follows such a branch needs values of one kind. So a part of the program around it is captured in several ways (ways.h): each takes one arm of
 * every branch that does not agree, and is missed where the program takes another one. The first way comes first; each of the others stands in a
 * branch on whether all before it are missed; and behind the last one the values are those of the way that was not missed. Then nobody may read
 * variables that still differ. So a part is one of these, the first that can be captured:
 *
 *   - one statement of a block, or that and what follows up to the last statement that reads what it assigns, or all that follows (the interpreter
 *     knows who reads what);
 *   - the whole call that is recorded. Then its result may differ, too: the graph has outputs for each kind of result, and one that tells which
 *     of them the call has (TPL_CHOICE). So may that of a part with which the recorded function ends; what it has written out before stands in no way,
 *     each of which would write it.
 *
 * Which parts there are is found while calls are recorded: where ways do not agree, the innermost statement around is marked (fork_wanted), and the call
 * is recorded once more. If the part is no help, its mark says so, and the statement around it is the next.
 */
#include "jit/trace/forks.h"

#include <string.h>

#include "jit/trace/breaks.h"
#include "jit/trace/draws.h"
#include "jit/trace/rec.h"
#include "jit/trace/vmap.h"
#include "jit/trace/ways.h"

/* ---- where parts begin ------------------------------------------------------------------------------------------------------------- */

/* For vm_own, too: the host has left. */
static void block_drop(qn_vm *vm, void *what) {
  (void)vm;
  const rec_block *b = what;
  b->base->block = b->outer;
}

void rec_block_begin(qn_vm *vm, rec_block *b) {
  b->base = rec_base(vm->rec);
  b->outer = b->base->block;
  b->grads = rec_derivatives(vm->rec);
  b->base->block = b;
  vm_own(vm, &b->held, block_drop, b);
}

void rec_block_end(qn_vm *vm, rec_block *b) {
  vm_disown(vm, &b->held);
  block_drop(vm, b);
}

bool fork_wanted(struct recording *r) {
  qn_vm *vm = r->vm;
  struct recording *base = rec_base(r);
  const qn_value *in = base->unlike_in;
  anchor_specializations *of = base->of;
  if (!of || !base->capturing || base->restart || base->retry || error_pending(vm) || vm->tune[TUNE_jit_ways] < 2)
    return false;
  if (of->restarts >= RESTARTS_MAX || ways_enough(r) || rec_derivatives(r) || vmap_aside(r) || !arms_possible(r))
    return false;
  const rec_way *w =
      base->way; /* in a turn of a loop, or a part that is captured in several ways: only statements in it */
  while (w && !w->choices && w->kind != WAY_TURN) w = w->outer;
  if (w && w->choices && !w->choices->fork) return false; /* the turn is recorded in ways of its own (states.c) */
  const rec_block *b = base->block, *end = w ? w->block : NULL;
  while (b != end && (!b->fork || *b->fork != FORK_UNKNOWN || b->grads || (in && b->keeps(b, in)))) b = b->outer;
  if (b != end)
    *b->fork = FORK_TRY;
  else if (!w && !of->forked)
    of->forked = true;
  else
    return false;
  bool told = base->taps.n || base->tap_run.plan.made; /* what has been written out is not written twice */
  base->restart = !told;
  base->retry = told;
  if (told) return false;
  (void)rec_give_up(r, BREAK_branch);
  return true;
}

/* ---- ways -------------------------------------------------------------------------------------------------------------------------- */

enum {
  RESULTS_MAX = 16, /* kinds of results */
  OWN = 3           /* variables of a fork besides these */
};

typedef struct fork {
  qn_vm *vm;
  struct recording *r, *arm; /* owned: in which all ways are recorded */
  const rec_section *part;
  rec_slots assigned;                    /* the variables that matter behind it */
  rec_slots rebound;                     /* all that it may rebind */
  rec_slots all;                         /* owned: these and the following ones */
  qn_value missed, value;                /* owned: is no way taken so far; the part's value */
  qn_value number, results[RESULTS_MAX]; /* owned: of a whole call: which of the results it has */
  uint32_t nresults;
  bool whole, required;
  uint64_t last_fn; /* functions with higher numbers are made in it */
  qn_value *before; /* owned: what `rebound` held */
  qn_value *kept;   /* owned: what all variables hold while a way is recorded, or NULL */
  way_end ends[2];
  way_loop loop; /* owned */
  bool counted;  /* in recording.ways_in */
} fork;

static void kept_free(fork *f) {
  slots_free(f->vm, f->all, f->kept);
  f->kept = NULL;
}

static void fork_free(fork *f) {
  qn_vm *vm = f->vm;
  kept_free(f);
  slots_free(vm, f->loop.slots, f->loop.values);
  for (int k = 0; k < 2; k++) end_free(vm, &f->ends[k]);
  if (f->arm) rec_free(f->arm);
  if (f->counted) ways_end(f->r);
  slots_free(vm, f->rebound, f->before);
  value_release(vm, f->missed);
  value_release(vm, f->value);
  value_release(vm, f->number);
  for (int k = 0; k < RESULTS_MAX; k++) value_release(vm, f->results[k]);
  if (f->all.slots) mem_free(vm, f->all.slots, ((size_t)f->assigned.n + OWN + RESULTS_MAX) * sizeof *f->all.slots);
}

/* For vm_own: the host has left. */
static void fork_drop(qn_vm *vm, void *what) {
  (void)vm;
  fork_free(what);
}

static bool begin(fork *f) {
  rec_slots *all = &f->all;
  if (!(all->slots = mem_alloc(f->vm, ((size_t)f->assigned.n + OWN + RESULTS_MAX) * sizeof *all->slots))) return false;
  for (int i = 0; i < f->assigned.n; i++) all->slots[all->n++] = f->assigned.slots[i];
  all->slots[all->n++] = &f->missed;
  all->slots[all->n++] = &f->value;
  all->slots[all->n++] = &f->number;
  for (int k = 0; k < RESULTS_MAX && f->whole; k++) all->slots[all->n++] = &f->results[k];
  return (f->before = slots_keep(f->vm, f->rebound)) != NULL;
}

static void take(qn_vm *vm, qn_value *to, qn_value v) {
  value_release(vm, *to);
  *to = v;
}

/* For tree_each_part: is it no function that a way has made with values of its own? These would be lost with the arm. */
static bool is_no_closure(void *ctx, qn_value v) {
  const fork *f = ctx;
  return !value_is(v, TAG_FN) || !value_fn(v)->ncaptures || value_fn(v)->id <= f->last_fn;
}

/* Can all that a way has made be handed on? False, perhaps with an error raised. */
static bool may_hand_on(fork *f) {
  bool ok = tree_each_part(f->vm, f->value, is_no_closure, f);
  for (int i = 0; i < f->assigned.n && ok; i++) ok = tree_each_part(f->vm, *f->assigned.slots[i], is_no_closure, f);
  return ok;
}

/* Records one way in the recording in progress: sets the variables. False: it cannot be captured, or an error is raised. */
static bool run_way(fork *f, way_choices *c) {
  qn_vm *vm = f->vm;
  struct recording *r = vm->rec;
  rec_way way;
  rec_exit how = REC_VALUE;
  qn_value parts[END_PARTS], *mark = vm->sp;
  c->r = r;
  c->from = r->g->n;
  c->at = 0;
  c->fork = true;
  c->closed = false;
  way_begin(&way, WAY_TAIL, r, NULL, f->assigned);
  way.choices = c;
  way.may_return = f->part->last;
  rec_at(vm, f->part->at);
  qn_value v = f->part->run.run(f->part->run.ctx, &how);
  if (how == REC_VALUE && !f->part->used) take(vm, &v, value_nil());
  bool ok = way_close(vm, &way, how, v, parts);
  ways_worked(r, r->g->n);
  if (!ok || vm->rec != r) vm_pop_to(vm, mark);
  if (!ok) return false;
  take(vm, &f->value, value_retain(parts[END_VALUE]));
  take(vm, &f->missed, parts[END_MISSED]);
  parts[END_MISSED] = value_nil();
  end_parts_free(vm, parts);
  f->required |= c->required;
  return vm->rec == r && may_hand_on(f) && !r->g->failed && !r->regions.n && !ways_enough(r);
}

/* The way that is being recorded in `arm` (or the first one, in f->arm) has a result: it becomes one of the call's. False: these are too many. */
static bool note_result(fork *f, struct recording *arm) {
  if (!f->whole) return true;
  uint32_t k = 0;
  while (k < f->nresults && (!arm || !way_alike(f->arm, f->kept[f->assigned.n + OWN + (int)k], arm, f->value))) k++;
  if (k == RESULTS_MAX || error_pending(f->vm)) return false;
  if (k == f->nresults) f->nresults++;
  for (int i = 0; i < RESULTS_MAX; i++) take(f->vm, &f->results[i], value_unset());
  f->results[k] = f->value;
  f->value = value_nil();
  take(f->vm, &f->number, value_int((int64_t)k));
  return true;
}

static bool note_end(fork *f, way_end *end) {
  qn_value parts[END_PARTS] = {
      [END_VALUE] = value_nil(),         [END_RETURNED] = value_unset(),    [END_LEFT] = value_bool(false),
      [END_LEAVES] = value_bool(false),  [END_RETURNS] = value_bool(false), [END_RAISES] = value_int(0),
      [END_HANDLED] = value_bool(false), [END_MISSED] = value_bool(false)};
  return end_note(end, f->all, parts, NULL);
}

/* Records one more way, behind a branch on whether the ones before are missed. False as in run_way. */
static bool add_way(fork *f, way_choices *c, uint32_t site) {
  qn_vm *vm = f->vm;
  uint32_t predicate = rec_node(f->arm, f->missed);
  if (!predicate || !(f->kept = slots_keep(vm, f->all)) || !(f->ends[0].r = rec_arm_begin(f->arm, NULL))) return false;
  struct recording *arm = f->ends[0].r;
  slots_set(vm, f->rebound, f->before);
  bool ok = run_way(f, c), counts = ok && !c->again && !is_bool(f->missed, true);
  ok = ok && (!counts || (note_result(f, arm) && note_end(f, &f->ends[0])));
  rec_arm_end(arm);
  slots_set(vm, f->all, f->kept);
  if (ok && counts) {
    ok = (f->ends[1].r = rec_arm_begin(f->arm, arm)) != NULL;
    take(vm, &f->missed, value_bool(false)); /* as it is there */
    ok = ok && note_end(f, &f->ends[1]);
    if (f->ends[1].r) rec_arm_end(f->ends[1].r);
    qn_value *joined = ok ? mem_zalloc(vm, (f->ends[0].nheld + (size_t)1) * sizeof *joined) : NULL;
    way_end *const ends[2] = {&f->ends[0], &f->ends[1]};
    uint32_t n = f->ends[0].nheld;
    ok = joined && ends_join(f->arm, ends, f->all.n, false, predicate, site, joined, NULL) == REC_DONE;
    if (ok) slots_set(vm, f->all, joined);
    for (uint32_t i = 0; i < n && joined; i++) value_release(vm, joined[i]);
    if (joined) mem_free(vm, joined, (n + (size_t)1) * sizeof *joined);
  }
  kept_free(f);
  end_free(vm, &f->ends[0]);
  end_free(vm, &f->ends[1]);
  return ok && !f->arm->g->failed;
}

/* Records all ways. False as in run_way. */
static bool run_ways(fork *f) {
  qn_vm *vm = f->vm;
  way_choices c = {.loop = &f->loop};
  uint32_t site = rec_site(f->arm);
  bool ok = run_way(f, &c) && !is_bool(f->missed, true) && note_result(f, NULL);
  for (int64_t n = 1; ok && !is_bool(f->missed, false) && way_next(&c); n++) {
    const bool more = n >= vm->tune[TUNE_jit_ways];
    if (more && rec_base(f->r)->of) rec_base(f->r)->of->many_ways = true;
    ok = !more && !c.many && add_way(f, &c, site);
  }
  if (!ok || is_bool(f->missed, false) || !f->required) return ok;
  return way_may_exit(f->arm) && way_expect(f->arm, f->missed, false);
}

/* The ways have joined the graph, and `made` are their values there. */
static bool go_on(fork *f, qn_value made, qn_value *result) {
  qn_vm *vm = f->vm;
  const qn_value *items = value_list(made)->items;
  int n = f->assigned.n;
  slots_set(vm, f->assigned, items);
  f->r->choice = f->nresults > 1;
  *result = value_retain(items[f->whole ? n + 1 : n]);
  if (f->r->choice) { /* their number, and all of them */
    qn_list *all = list_from(vm, items + n, 1 + (size_t)f->nresults);
    take(vm, result, all ? value_obj(TAG_LIST, all) : value_nil());
    if (!all) return false;
  }
  return rec_appended(f->r);
}

static rec_answer fork_once(struct recording *r, const rec_section *part, bool whole, const drawn_slots *slots,
                            qn_value *result) {
  qn_vm *vm = r->vm;
  fork f = {.vm = vm, .r = r, .part = part, .whole = whole, .rebound = slots->all, .last_fn = vm->last_fn};
  f.assigned = part->last || whole ? slots->own : slots->all;
  f.missed = f.value = f.number = value_nil();
  for (int k = 0; k < RESULTS_MAX; k++) f.results[k] = value_unset();
  qn_value values = value_nil();
  const uint64_t before = ways_begin(r);
  f.counted = true;
  vm_owned held, held_values;
  vm_own(vm, &held, fork_drop, &f);
  vm_own(vm, &held_values, vm_drop_value, &values);
  bool ok = begin(&f) && (f.arm = rec_arm_begin(r, NULL)) && run_ways(&f) && !f.arm->regions.n && !f.arm->g->failed &&
            !f.arm->g->dims.strict;
  if (ok && whole) {
    qn_value more[1 + RESULTS_MAX] = {f.number};
    memcpy(more + 1, f.results, f.nresults * sizeof *more);
    ok = arm_values(f.arm, f.assigned, more, 1 + (int)f.nresults, &values);
  } else if (ok) {
    ok = arm_values(f.arm, f.assigned, &f.value, 1, &values);
  }
  if (f.arm) rec_arm_end(f.arm);
  if (f.before) slots_set(vm, f.rebound, f.before);
  rec_answer answer = REC_FAILED;
  if (!ok)
    answer = arms_refused(r);
  else if (!arm_splice(r, f.arm, &values))
    values = value_nil();
  else if (go_on(&f, values, result))
    answer = REC_DONE;
  else
    take(vm, result, value_error());
  vm_disown(vm, &held);
  value_release(vm, values);
  fork_free(&f);
  if (answer == REC_DONE) ways_used(r, before);
  return answer;
}

rec_answer fork_capture(struct recording *r, const rec_section *part, bool whole, qn_value *result) {
  if (!arms_possible(r) || rec_derivatives(r) || vmap_aside(r) || r->vm->tune[TUNE_jit_ways] < 2 || ways_enough(r))
    return REC_NOT_YET;
  drawn_slots s;
  rec_answer answer = REC_FAILED;
  do
    if (draws_begin(r, part->assigned, &s)) answer = fork_once(r, part, whole, &s, result);
  while (draws_again(r, answer));
  return answer;
}

/* Does the call that is recorded end with the function in progress, and do what follows and who made it see its result only? */
static bool ends_call(const struct recording *r) {
  return !r->arm && r->of && !r->home && !r->ncalls && !r->cut && !r->tries && !r->trying;
}

rec_answer rec_fork(qn_vm *vm, const rec_section *part, qn_value *result) {
  struct recording *r = vm->rec;
  if (!r || !r->g) return REC_NOT_YET;
  rec_at(vm, part->at);
  return fork_capture(r, part, part->last && ends_call(r), result);
}
