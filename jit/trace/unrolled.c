/* Loops whose turns may be left on data, captured turn by turn.
 *
 * A loop over a list, or one whose turns differ, is no loop of the graph: the interpreter makes its turns one after another, and their nodes
 * are appended. Where a branch on data breaks or continues, what follows it in the turn, and the turns behind it, stand in the arm that goes
 * on. So the loop is a way of its own (ways.c), which break leaves, and each turn is a way in it, which continue leaves.
 *
 * All of that is recorded in an arm, whose nodes join the graph when the loop is over. If it cannot be captured like this, the arm is
 * forgotten, and the interpreter makes the turns as usual. When some turns have been made, those that are left may be a loop of the graph
 * (rec_loop), since by then variables are what they stay.
 */
#include "jit/trace/draws.h"
#include "jit/trace/grown.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/ways.h"

typedef struct unrolled {
  qn_vm *vm;
  struct recording *r, *arm; /* where the loop stands; owned: where it is recorded */
  span at;
  rec_turns turns;
  rec_slots assigned;
  rec_tries *tries;
  rec_way *around;  /* the way that the loop stands in, or NULL */
  rec_way *raising; /* that, or the way of a caller, if errors leave it; or NULL */
  rec_way whole;
  qn_value *before; /* owned: what the variables held */
  rec_tries parts;  /* for rec_part_turn */
} unrolled;

/* Tells variables apart that share a value (rec_part_turn), in the recording that what follows stands in. */
static bool part(unrolled *u) {
  qn_vm *vm = u->vm;
  if (u->parts.parts != vm->rec)
    u->parts = (rec_tries){.parts = u->tries->parts && parted_wanted(vm->rec) ? vm->rec : NULL};
  return !u->parts.parts || rec_part_turn(vm, u->assigned, u->turns.grown, &u->parts);
}

/* Is there one more turn? 1; 0; -1: it cannot be captured, or an error is raised. */
static int goes_on(unrolled *u) {
  const rec_turns *t = &u->turns;
  if (vm_poll_between(u->vm)) return -1;
  if (t->counts) return t->first.u.i < t->end.u.i;
  rec_exit how = REC_VALUE;
  rec_loop_tests(u->vm, u->tries);
  qn_value v = t->test(t->ctx, &how);
  bool known = how == REC_VALUE && value_is(v, TAG_BOOL) && !value_node(v) && u->vm->rec == u->whole.r;
  int truth = known ? v.u.i != 0 : -1;
  if (how != REC_ERROR) value_release(u->vm, v);
  u->turns.first = value_bool(true);
  return truth;
}

/* A turn has left the loop in any case: nothing follows in it. */
static void all_left(unrolled *u, qn_value *parts) {
  rec_way *w = &u->whole;
  w->parted[END_VALUE] = value_unset();
  w->parted[END_RETURNED] = value_retain(parts[END_RETURNED]);
  w->parted[END_LEFT] = w->parted[END_LEAVES] = value_bool(true);
  w->parted[END_RETURNS] = value_retain(parts[END_RETURNS]);
  w->parted[END_RAISES] = value_retain(parts[END_RAISES]);
  w->parted[END_WORDS] = value_retain(parts[END_WORDS]);
  w->parted[END_HANDLED] = value_bool(false);
  w->parted[END_MISSED] = value_retain(parts[END_MISSED]);
  w->gone = w->parts = true;
}

/* Makes a turn. *how: REC_ERROR if it cannot be captured or has failed; REC_BREAK if nothing follows. */
static void make_turn(unrolled *u, rec_exit *how) {
  qn_vm *vm = u->vm;
  rec_way turn;
  rec_exit end = REC_ERROR;
  qn_value parts[END_PARTS];
  way_begin(&turn, WAY_TURN, u->whole.r, &u->whole, u->assigned);
  turn.whole = &u->whole;
  qn_value v = u->turns.body(u->turns.ctx, u->turns.counts ? u->turns.first : value_unset(), &end);
  bool ok =
      way_close(vm, &turn, end, v, parts) && vm->rec == u->whole.r && (is_bool(parts[END_RETURNS], true) || part(u));
  *how = REC_ERROR;
  if (ok && is_bool(parts[END_LEAVES], true)) {
    all_left(u, parts);
    *how = REC_BREAK;
  } else if (ok && is_bool(parts[END_LEAVES], false)) {
    *how = REC_VALUE;
  } else if (ok) {
    value_release(vm, parts[END_LEFT]);
    parts[END_LEFT] = parts[END_LEAVES];
    parts[END_LEAVES] = value_bool(true);
    if (way_split(vm, &u->whole, parts)) *how = REC_VALUE;
  }
  end_parts_free(vm, parts);
}

/* Makes all turns. False if they cannot be captured, or with an error raised. parts: those of the end, owned. */
static bool make_turns(unrolled *u, qn_value *parts) {
  qn_vm *vm = u->vm;
  rec_exit how = REC_VALUE;
  way_begin(&u->whole, WAY_TURN, u->arm, u->around, u->assigned);
  u->whole.throws = way_thrower(u->raising);
  if (!part(u)) how = REC_ERROR;
  for (bool first = true; how == REC_VALUE; first = false) {
    int more = first && !u->turns.counts ? 1 : goes_on(u);
    if (more < 0) how = REC_ERROR;
    if (more <= 0) break;
    rec_answer answer = first ? REC_NOT_YET : rec_loop(vm, u->at, &u->turns, u->assigned, u->tries);
    if (answer != REC_NOT_YET) {
      if (answer != REC_DONE) how = REC_ERROR;
      break;
    }
    make_turn(u, &how);
    if (u->turns.counts) u->turns.first.u.i++;
  }
  return way_close(vm, &u->whole, how == REC_ERROR ? REC_ERROR : REC_VALUE, value_nil(), parts) && vm->rec == u->arm;
}

/* As make_turns, of one turn (rec_turns.ends), which sets the condition of the next one. */
static bool make_one(unrolled *u, qn_value *parts) {
  qn_vm *vm = u->vm;
  rec_exit how = REC_VALUE;
  way_begin(&u->whole, WAY_TURN, u->arm, NULL, u->assigned);
  u->whole.may_return = true;
  make_turn(u, &how);
  if (how == REC_VALUE) {
    qn_value goes = u->turns.tests ? way_test(vm, &u->turns, &how) : value_bool(true);
    if (how == REC_VALUE && value_is(goes, TAG_BOOL))
      u->turns.ends->goes = goes;
    else if (how != REC_ERROR)
      how = REC_ERROR, value_release(vm, goes);
  }
  return way_close(vm, &u->whole, how == REC_ERROR ? REC_ERROR : REC_VALUE, value_nil(), parts) && vm->rec == u->arm;
}

/* What arm_values has behind the variables: what is returned and whether, the error that is raised and its words, and is the loop left? */
enum { MADE_RETURNED, MADE_RETURNS, MADE_RAISES, MADE_WORDS, MADE_LEFT, MADE };

/* Tells how a turn that was captured by itself has ended (rec_turns.ends). */
static rec_answer tell_ends(unrolled *u, const qn_value *made) {
  const qn_value *x = made + u->assigned.n;
  rec_ends *ends = u->turns.ends;
  slots_set(u->vm, u->assigned, made);
  bool returns = !value_is(x[MADE_RETURNED], TAG_UNSET);
  ends->left = x[MADE_LEFT];
  ends->returns = x[MADE_RETURNS];
  ends->returned = returns ? value_retain(x[MADE_RETURNED]) : value_nil();
  return rec_appended(u->vm->rec) ? REC_DONE : REC_FAILED;
}

/* The arm has joined the graph, and `joined` are its values there. */
static rec_answer go_on(unrolled *u, qn_value joined) {
  qn_vm *vm = u->vm;
  const qn_value *items = value_list(joined)->items;
  if (u->turns.ends) return tell_ends(u, items);
  int n = u->assigned.n;
  slots_set(vm, u->assigned, items);
  const qn_value parts[END_PARTS] = {
      [END_VALUE] = value_unset(),     [END_RETURNED] = items[n],         [END_LEFT] = items[n + MADE_RETURNS],
      [END_LEAVES] = value_bool(true), [END_RETURNS] = value_bool(true),  [END_RAISES] = value_int(0),
      [END_WORDS] = value_unset(),     [END_HANDLED] = value_bool(false), [END_MISSED] = value_bool(false)};
  const qn_value *made = items + n;
  if (!raises_never(made[MADE_RAISES]) && !way_split_raised(vm, u->raising, made[MADE_RAISES], made[MADE_WORDS]))
    return REC_FAILED;
  if (is_bool(made[MADE_RETURNS], false)) return rec_appended(vm->rec) ? REC_DONE : REC_FAILED;
  rec_way *w = u->around;
  if (!is_bool(made[MADE_RETURNS], true)) return way_split(vm, w, parts) ? REC_DONE : REC_FAILED;
  way_all_left(w, parts);
  return rec_appended(vm->rec) ? REC_LEFT : REC_FAILED;
}

static void unrolled_free(unrolled *u) {
  if (u->before) slots_free(u->vm, u->assigned, u->before);
  if (u->arm) rec_free(u->arm);
}

/* For vm_own: the host has left. */
static void unrolled_drop(qn_vm *vm, void *what) {
  (void)vm;
  unrolled_free(what);
}

static rec_answer unroll_once(struct recording *r, span at, const rec_turns *turns, rec_slots assigned,
                              rec_tries *tries) {
  qn_vm *vm = r->vm;
  unrolled u = {.vm = vm, .r = r, .at = at, .turns = *turns, .assigned = assigned, .tries = tries, .around = way_of(r)};
  u.raising = turns->ends ? NULL : u.around ? u.around : way_catcher(r);
  qn_value parts[END_PARTS], values = value_nil(), *mark = vm->sp;
  for (int i = 0; i < END_PARTS; i++) parts[i] = value_nil();
  vm_owned held, held_values;
  rec_at(vm, at);
  vm_own(vm, &held, unrolled_drop, &u);
  vm_own(vm, &held_values, vm_drop_value, &values);
  bool ok = (u.before = slots_keep(vm, assigned)) && (u.arm = rec_arm_begin(r, NULL)) &&
            (turns->ends ? make_one(&u, parts) : make_turns(&u, parts)) && !u.arm->regions.n && !u.arm->g->failed &&
            arm_may_join(u.arm);
  if (!ok) vm_pop_to(vm, mark);
  if (ok) {
    const qn_value more[MADE] = {[MADE_RETURNED] = parts[END_RETURNED],
                                 [MADE_RETURNS] = parts[END_RETURNS],
                                 [MADE_RAISES] = parts[END_RAISES],
                                 [MADE_WORDS] = parts[END_WORDS],
                                 [MADE_LEFT] = parts[END_LEAVES]};
    ok = arm_values(u.arm, assigned, more, MADE, &values);
  }
  end_parts_free(vm, parts);
  if (u.arm) rec_arm_end(u.arm);
  if (u.before) slots_set(vm, assigned, u.before);
  rec_answer answer = REC_FAILED;
  if (!ok)
    answer = arms_refused(r);
  else if (arm_splice(r, u.arm, &values))
    answer = go_on(&u, values);
  else
    values = value_nil();
  struct recording *now = vm->rec;
  vm_disown(vm, &held);
  value_release(vm, values);
  unrolled_free(&u);
  if (answer == REC_DONE || answer == REC_LEFT)
    vm->rec = now;
  else if (!r->ended)
    vm->rec = r;
  return answer;
}

rec_answer rec_unroll(qn_vm *vm, span at, const rec_turns *turns, rec_slots assigned, rec_tries *tries) {
  struct recording *r = vm->rec;
  if (!r || !branches_possible(r)) return REC_NOT_YET;
  if (turns->counts && (value_node(turns->first) || value_node(turns->end))) return REC_NOT_YET;
  const rec_tries before = *tries;
  drawn_slots s;
  rec_answer answer = REC_FAILED;
  do {
    *tries = before;
    if (draws_begin(r, assigned, &s)) answer = unroll_once(r, at, turns, s.all, tries);
  } while (draws_again(r, answer));
  return answer;
}

rec_answer rec_turn(qn_vm *vm, span at, const rec_turns *turns, rec_slots assigned) {
  struct recording *r = vm->rec;
  if (!r || r->arm || !r->capturing || !branches_possible(r)) return REC_NOT_YET;
  if (!grown_added(r, turns->added, turns->nadded)) return REC_FAILED;
  rec_answer answer = rec_unroll(vm, at, turns, assigned, &(rec_tries){.left = 0});
  r->added = NULL, r->nadded = 0;
  return answer;
}
