/* Turns of loops as calls, so that a loop which is in no hot function is compiled, too: one at the top level, or in a function that is called
 * only once.
 *
 * A loop that makes many turns outside recordings (jit.turns) hands each further one to rec_call: the item and the variables that the body
 * reads or may rebind are its arguments; how the turn has ended, the condition of the next one and the variables that the body may rebind
 * are its result. So a turn has patterns, guards and a plan like any call, and stays with the interpreter where that is faster.
 *
 * The interpreter makes a turn in the variables themselves. Those that the body may rebind are moved into the arguments and, when the
 * interpreter makes the turn, back again: an update in place finds the only owner of a value. `held` keeps the values meanwhile, so that the
 * variables have them again if the turn does not even begin, or if memory is too short to compute what a recorded turn has left in them. A turn of which nothing is recorded or compared leaves its results where they
 * are instead of packing them into a list.
 *
 * A list to which the turns only add items is no argument: it stays where it is, whatever its length, and the items that a turn adds are a part of
 * its result. While a turn is recorded `held` keeps the list, too: a loop in the turn that is captured leaves another list in the variable, whose items lie
 * in arrays of the recording, and with a recording that is given up they are gone.
 *
 * A turn that may break, continue or return, or adds items to lists in arms, is recorded in an arm, so that branches on data which do are captured with what
 * follows them (rec_turn). How it ends, and which items it adds, are then bools of the result.
 *
 * A call that has left its plan is made again by the interpreter, from its beginning (jit/trace/calls.c), and may have to make a loop of a
 * million turns up to the one that fails. So its loops hand many turns at once to rec_call (jit.run): a call with the numbers of the first turn
 * and the end among its arguments, whatever these are, which is captured as a loop. Its result begins with how the loop has ended: whether a
 * turn has left it, and in a while loop the next condition. The items of a list are stacked for it, if they are alike. One that fails is made again in its turn, by the interpreter, which thus makes no
 * more turns than these.
 */
#include "interp/node.h"

#include <string.h>

typedef struct turn_call {
  qn_vm *vm;
  turn_code *code;
  const turn_parts *parts;
  qn_value *fp;
  rec_call_site site;
  int lead; /* how many arguments come before the variables: the item; of many turns RUN_ARGS */
  qn_value *
      held; /* for each variable what it was before the turn; nil once a variable that the body may rebind has been given back. Behind these for each of
             * code->grown the list as it was before a turn that is recorded; else nil */
  uint32_t had[TURN_GROWN]; /* how long the lists were to which the turn adds items */
  bool noted;               /* `had` has been */
  bool begun;               /* the interpreter has begun to make the turn */
  bool recorded;            /* it has made it with a recording on */
  bool packed;              /* the last one that it made has given a list */
  bool wide;                /* results begin with RUN_ENDS values */
  qn_value
      added; /* owned: if `wide`, what a recorded turn adds to each of code->grown, as added_items gives it; or nil */
  rec_exit how;
  qn_value more; /* what is returned, or the next condition; owned */
  qn_value
      list;     /* of many turns over the items of a list, which are stacked in the arguments: it, borrowed; else nil */
  int64_t from; /* the number of the first of these items */
} turn_call;

/* What many turns begin with, besides the variables: what the loop goes over, the first number, and the end. */
enum { RUN_OVER, RUN_FIRST, RUN_END, RUN_ARGS };
/* What the list of results begins with: how a turn has ended, and what is returned or the next condition; of many turns, and of one that may leave
 * its loop, what rec_ends has. */
enum { END_HOW, END_MORE, TURN_ENDS, END_RETURNS = TURN_ENDS, END_GOES, RUN_ENDS };

#define NOTHING .more = value_nil(), .added = value_nil() /* that a turn_call owns */

static inline qn_value *place_of(const turn_variable *x, qn_value *fp) {
  return x->cell ? &x->cell->value : &fp[x->slot];
}

/* Does somebody ask now what the compiler makes of a call? */
static bool at_once(const qn_vm *vm) { return vm->asked.sync_once || vm->asked.whole; }

bool part_asks(qn_vm *vm, turn_code *code) {
  jit_anchor *a = &code->anchor;
  bool off = vm->config.jit == QN_JIT_OFF && !vm->asked.sync_once;
  if (op_deferred(vm) || off || vm->asked.nojit || vm->asked.alone) return false;
  if (a->state == ANCHOR_NEVER) return false;
  if (a->state == ANCHOR_ACTIVE || --a->countdown <= 0) return true;
  a->passed[a->state]++;
  return false;
}

int64_t turns_pass(const qn_vm *vm, turn_code *t) {
  if (!t || op_deferred(vm) || vm->config.jit == QN_JIT_OFF || !vm->tune[TUNE_jit_turns]) return INT64_MAX;
  if (vm->asked.nojit || vm->asked.alone || vm->asked.sync_once) return INT64_MAX;
  jit_anchor *a = &t->anchor;
  if (a->state == ANCHOR_NEVER) return INT64_MAX;
  if (!a->countdown && !t->quiet) a->countdown = (int32_t)vm->tune[TUNE_jit_turns];
  return a->state == ANCHOR_ACTIVE ? 0 : a->countdown;
}

void turns_passed(turn_code *t, int64_t n) {
  jit_anchor *a = &t->anchor;
  a->passed[a->state] += (uint64_t)n;
  a->countdown = n < a->countdown ? a->countdown - (int32_t)n : 0;
}

/* What a turn has added to a list: the items; of a turn that may leave its loop each behind a bool, has it been added? */
static qn_value added_items(const turn_call *t, const qn_value *items, uint32_t n) {
  uint32_t each = t->wide ? 2 : 1;
  qn_list *l = list_new(t->vm, n * each);
  for (uint32_t i = 0; l && i < n; i++) {
    if (t->wide) l->items[i * each] = value_bool(true);
    l->items[i * each + each - 1] = value_retain(items[i]);
  }
  return l ? value_obj(TAG_LIST, l) : value_error();
}

/* The results of a turn as a list: n values (taken over), which say how it has ended, and the variables. */
static qn_value pack(turn_call *t, const qn_value *ends, uint32_t n) {
  qn_vm *vm = t->vm;
  qn_value all[RUN_ENDS + TURN_VARIABLES + TURN_GROWN], *mark = vm->sp;
  memcpy(all, ends, n * sizeof *ends);
  for (uint32_t i = 0; i < t->code->n && t->code->variables[i].kept; i++)
    all[n++] = *place_of(&t->code->variables[i], t->fp);
  bool ok = vm_enter(vm, t->code->ngrown);
  for (uint32_t i = 0; i < t->code->ngrown && ok; i++) {
    qn_value *place = place_of(&t->code->grown[i], t->fp);
    bool aside = value_is(t->added, TAG_LIST);
    if (!aside && value_is_stacked(*place) && !rec_make_plain(vm, place)) { /* a loop in the turn has added items */
      ok = false;
      break;
    }
    const qn_list *grown = value_list(*place);
    qn_value added = aside ? value_retain(value_list(t->added)->items[i])
                           : added_items(t, grown->items + t->had[i], grown->len - t->had[i]);
    ok = !value_is_error(added);
    if (ok) *vm->sp++ = all[n++] = added;
  }
  qn_list *l = ok ? list_from(vm, all, n) : NULL;
  vm_pop_to(vm, mark);
  value_release(vm, ends[END_MORE]);
  if (t->wide) {
    value_release(vm, ends[END_GOES]);
    slot_set(vm, &t->added, value_nil());
  }
  t->packed = true;
  return l ? value_obj(TAG_LIST, l) : value_error();
}

/* A variable's list becomes what it was before the turn, and gets what was added (n values, as added_items gives them). False with an error
 * raised. */
static bool set_grown(turn_call *t, uint32_t i, const qn_value *added, uint32_t n) {
  qn_vm *vm = t->vm;
  global_cell *cell = t->code->grown[i].cell;
  qn_value *place = place_of(&t->code->grown[i], t->fp), *kept = &t->held[t->code->n + i];
  if (value_is(*kept, TAG_LIST)) {
    slot_set(vm, place, *kept);
    *kept = value_nil();
  }
  bool ok = (value_list(*place)->len == t->had[i] && !n) || list_own(vm, place);
  qn_list *l = value_list(*place);
  while (ok && l->len > t->had[i]) value_release(vm, l->items[--l->len]);
  for (uint32_t k = t->wide, each = 1 + t->wide; k < n && ok; k += each)
    if (!t->wide || added[k - 1].u.i) ok = list_push(vm, l, value_retain(added[k]));
  if (cell && cell->rec.watched) rec_global_changed(vm, &cell->rec, value_unset(), *place);
  return ok;
}

/* note_ends of a turn that may leave its loop, or many. */
static __attribute__((noinline)) void note_wide_ends(turn_call *t, const qn_value *ends) {
  bool returns = ends[END_RETURNS].u.i != 0;
  t->how = returns ? REC_RETURN : ends[END_HOW].u.i ? REC_BREAK : REC_VALUE;
  if (returns) return;
  value_release(t->vm, t->more); /* (something like what is returned, from the compiler) */
  t->more = value_retain(ends[END_GOES]);
}

/* Notes how a turn, or many, have ended; takes over what is returned, and retains the condition. */
static inline void note_ends(turn_call *t, const qn_value *ends) {
  t->more = ends[END_MORE];
  if (__builtin_expect(t->wide, 0))
    note_wide_ends(t, ends);
  else
    t->how = (rec_exit)ends[END_HOW].u.i;
}

static void put_ends(qn_value *ends, const rec_ends *e) {
  ends[END_HOW] = e->left;
  ends[END_MORE] = e->returned;
  ends[END_RETURNS] = e->returns;
  ends[END_GOES] = e->goes;
}

/* Makes many turns, over `over` (borrowed). False with an error raised. */
static bool run_turns(turn_call *t, qn_value over, qn_value *ends) {
  const qn_value *args = t->site.args;
  rec_ends e;
  qn_value first = args[RUN_FIRST], end = args[RUN_END];
  if (value_is(t->list, TAG_LIST) && !op_deferred(t->vm)) { /* the items themselves */
    over = t->list;
    first = value_int(t->from), end = value_int(t->from + end.u.i);
  }
  if (!loop_turns(t->vm, t->parts, t->fp, over, first, end, &e)) return false;
  put_ends(ends, &e);
  return true;
}

/* Evaluates the body of a turn, or a part; takes over the item. Gives what evaluating its statements gives. */
static inline qn_value eval_body(turn_call *t, qn_value item) {
  const turn_parts *parts = t->parts;
  if (parts->block) return block_run(t->vm, parts->block, t->fp, parts->from, parts->to);
  if (parts->target && !lvalue_bind(t->vm, parts->target, t->fp, item)) return value_error();
  return eval(t->vm, parts->body, t->fp);
}

/* The body of a turn, and the condition of the next one. */
typedef struct turn_body {
  turn_call *t;
  qn_value item; /* borrowed */
} turn_body;

static qn_value run_body(void *ctx, qn_value number, rec_exit *how) {
  const turn_body *b = ctx;
  (void)number;
  qn_value v = eval_body(b->t, value_retain(b->item));
  *how = exit_of(b->t->vm, &v);
  return v;
}

static qn_value run_cond(void *ctx, rec_exit *how) {
  const turn_body *b = ctx;
  qn_value v = eval(b->t->vm, b->t->parts->cond, b->t->fp);
  *how = exit_of(b->t->vm, &v);
  return v;
}

/* A turn that is recorded, and may leave its loop: offers it as a whole, with what follows the branches that do. Borrows the item. */
static rec_answer offer_turn(turn_call *t, qn_value item, rec_ends *ends, rec_added *added) {
  const turn_parts *parts = t->parts;
  /* Whatever the compiler gives in place of what is not returned, evaluated or added, it is not what is compared. */
  bool compared = t->vm->config.jit == QN_JIT_VERIFY;
  if (compared && (parts->returns || parts->cond || t->code->ngrown)) return REC_NOT_YET;
  turn_body b = {t, item};
  qn_value *slots[1 + TURN_VARIABLES + TURN_GROWN * 2 * ADDED_MOST];
  int n = 0;
  ends->goes = value_bool(false);
  slots[n++] = &ends->goes;
  for (uint32_t i = 0; i < t->code->n && t->code->variables[i].kept; i++)
    slots[n++] = place_of(&t->code->variables[i], t->fp);
  for (uint32_t i = 0; i < t->code->ngrown; i++)
    for (int k = 0; k < ADDED_MOST; k++) slots[n++] = &added[i].flags[k], slots[n++] = &added[i].items[k];
  const rec_turns turn = {.test = run_cond,
                          .body = run_body,
                          .ctx = &b,
                          .tests = parts->cond != NULL,
                          .ends = ends,
                          .added = added,
                          .nadded = t->code->ngrown};
  return rec_turn(t->vm, parts->at, &turn, (rec_slots){slots, n});
}

/* A condition (taken over) in the form that --jit verify compares: `or` gives a host bool or an array, whichever decides, and compiled code always the
 * same; the loop only asks for the truth. Owned, or the error value. */
static qn_value compared_condition(qn_vm *vm, qn_value v) {
  if (!value_is(v, TAG_ARRAY) || !dtype_is_bool(value_array(v)->dtype) || value_array(v)->size != 1) return v;
  qn_value flat = op_reshape(vm, v, 0, NULL), number = flat;
  if (!value_is_error(flat))
    number = op_deferred(vm) ? rec_host_number(vm, flat, WEAK_BOOL) : op_number(vm, flat, WEAK_BOOL);
  value_release(vm, flat);
  value_release(vm, v);
  return number;
}

/* Makes one turn, or a part; *v, owned: what is returned, or the next condition; the error value. */
static rec_exit one_turn(turn_call *t, qn_value item, qn_value *result) {
  qn_vm *vm = t->vm;
  const turn_parts *parts = t->parts;
  qn_value v = eval_body(t, item);
  rec_exit how = exit_of(vm, &v);
  if (parts->cond && (how == REC_VALUE || how == REC_CONTINUE)) {
    value_release(vm, v);
    v = eval(vm, parts->cond, t->fp);
    if (vm->config.jit == QN_JIT_VERIFY) v = compared_condition(vm, v);
    if (value_stops(v)) how = exit_of(vm, &v);
  } else if (how != REC_RETURN && how != REC_ERROR &&
             !(how == REC_VALUE && parts->block && parts->to == parts->block->n)) {
    value_release(vm, v);
    v = value_nil();
  }
  /* What a function ends with is returned, whether it says so or not: a captured rest of a function always says so. */
  if (how == REC_RETURN && parts->block && parts->block->code->tail && parts->to == parts->block->n) how = REC_VALUE;
  *result = v;
  return how;
}

static bool plain_turn(turn_call *t, qn_value item, qn_value *ends) {
  qn_value v;
  rec_exit how = one_turn(t, item, &v);
  ends[END_HOW] = value_int(how), ends[END_MORE] = v;
  return how != REC_ERROR;
}

/* A recorded turn that may leave its loop, and the lists to which it only adds items, aside. */
typedef struct leaving {
  turn_call *t;
  rec_added added[TURN_GROWN];
  qn_value lists[TURN_GROWN];
} leaving;

/* The variables have their lists again. For vm_own, too. */
static void lists_back(qn_vm *vm, void *what) {
  leaving *l = what;
  for (uint32_t i = 0; i < l->t->code->ngrown; i++) {
    slot_set(vm, place_of(&l->t->code->grown[i], l->t->fp), l->lists[i]);
    for (int k = 0; k < ADDED_MOST; k++) value_release(vm, l->added[i].items[k]);
  }
}

/* What has been added, as turn_call.added. */
static qn_value take_added(const leaving *l) {
  const turn_call *t = l->t;
  qn_list *all = list_new(t->vm, t->code->ngrown);
  for (uint32_t i = 0; all && i < t->code->ngrown; i++) {
    const rec_added *a = &l->added[i];
    uint32_t n = 0;
    while (n < ADDED_MOST && !value_is(a->items[n], TAG_UNSET)) n++;
    all->items[i] = added_items(t, a->items, n);
    if (value_is_error(all->items[i])) {
      all->items[i] = value_nil();
      value_release(t->vm, value_obj(TAG_LIST, all));
      return value_error();
    }
    for (uint32_t k = 0; k < n; k++) value_list(all->items[i])->items[2 * k] = a->flags[k];
  }
  return all ? value_obj(TAG_LIST, all) : value_error();
}

/* Offers a recorded turn that may leave its loop; borrows the item. */
static __attribute__((noinline)) rec_answer offer_leaving(turn_call *t, qn_value item, rec_ends *ends) {
  qn_vm *vm = t->vm;
  leaving l = {.t = t};
  vm_owned held;
  for (uint32_t i = 0; i < t->code->ngrown; i++) {
    qn_value *place = place_of(&t->code->grown[i], t->fp);
    l.lists[i] = *place;
    *place = value_nil();
    l.added[i].list = place;
    for (int k = 0; k < ADDED_MOST; k++) l.added[i].flags[k] = value_bool(false), l.added[i].items[k] = value_unset();
  }
  vm_own(vm, &held, lists_back, &l);
  rec_answer answer = offer_turn(t, item, ends, l.added);
  if (answer == REC_DONE && t->code->ngrown) {
    t->added = take_added(&l);
    if (value_is_error(t->added)) t->added = value_nil(), answer = REC_FAILED;
  }
  vm_disown(vm, &held);
  lists_back(vm, &l);
  return answer;
}

/* As plain_turn, of a turn that may leave its loop. */
static bool leaving_turn(turn_call *t, qn_value item, bool recorded, qn_value *ends) {
  rec_ends e = {value_bool(false), value_bool(false), value_bool(true), value_nil()};
  rec_answer answer = recorded ? offer_leaving(t, item, &e) : REC_NOT_YET;
  if (answer == REC_NOT_YET) {
    qn_value v;
    rec_exit how = one_turn(t, item, &v);
    if (how == REC_ERROR) return false;
    bool left = how == REC_BREAK || how == REC_RETURN;
    e.left = value_bool(left);
    e.returns = value_bool(how == REC_RETURN);
    if (left || !t->parts->cond)
      e.returned = v, e.goes = value_bool(!left);
    else
      e.goes = v;
  } else {
    value_release(t->vm, item);
    if (answer != REC_DONE) {
      value_release(t->vm, e.returned);
      return false;
    }
  }
  put_ends(ends, &e);
  return true;
}

/* Makes the turn in the interpreter: rec_call_site.run. */
static qn_value make_turn(void *ctx) {
  turn_call *t = ctx;
  qn_vm *vm = t->vm;
  bool recorded = rec_hears_calls(vm), whole = t->noted || !t->code->ngrown,
       packs = recorded || (vm->config.jit == QN_JIT_VERIFY && whole);
  for (uint32_t i = 0; t->noted && i < t->code->ngrown; i++) {
    if (t->begun && !set_grown(t, i, NULL, 0)) return value_error(); /* what was added before is given up */
    if (recorded) t->held[t->code->n + i] = value_retain(*place_of(&t->code->grown[i], t->fp));
  }
  t->begun = true;
  t->recorded |= recorded;
  for (uint32_t i = 0; i < t->code->n; i++) {
    const turn_variable *x = &t->code->variables[i];
    qn_value *arg = &t->site.args[t->lead + (int)i];
    if (x->rebound) {
      if (!recorded) slot_set(vm, &t->held[i], value_nil());
      slot_set(vm, place_of(x, t->fp), *arg);
      *arg = value_nil();
    } else if (t->recorded) { /* (or it has been, and the variable has a tracer) */
      slot_set(vm, place_of(x, t->fp), value_retain(*arg));
    }
  }
  bool many = t->lead == RUN_ARGS;
  qn_value own = t->fp[-1], item = t->site.args[0];
  if (!many) t->site.args[0] = value_nil();
  vm_owned held;
  vm_own(vm, &held, vm_drop_value, &own);
  t->fp[-1] = value_retain(t->site.fn); /* rec_call may have put a tracer there, whose captures are traced */
  qn_value ends[RUN_ENDS];
  bool made = false;
  if (many)
    made = run_turns(t, item, ends);
  else if (t->wide)
    made = leaving_turn(t, item, recorded, ends);
  else
    made = plain_turn(t, item, ends);
  vm_disown(vm, &held);
  value_release(vm, t->fp[-1]);
  t->fp[-1] = own;
  t->packed = false;
  if (!made) return value_error();
  if (packs) return pack(t, ends, t->wide ? RUN_ENDS : TURN_ENDS);
  note_ends(t, ends);
  if (t->wide) value_release(vm, ends[END_GOES]);
  return value_nil();
}

static bool has_data(void *ctx, qn_value v) {
  (void)ctx;
  if (value_is(v, TAG_ARRAY)) return !array_pending(value_array(v));
  if (!value_is(v, TAG_FN)) return true;
  for (uint32_t i = 0; i < value_fn(v)->ncaptures; i++)
    if (value_is(value_fn(v)->captures[i], TAG_ARRAY) && array_pending(value_array(value_fn(v)->captures[i])))
      return false;
  return true;
}

/* A recorded turn has failed. Has an array of this value no data, because computing it has failed, too (memory was short)? */
static bool is_lost(qn_vm *vm, qn_value v) {
  qn_error_object *error = error_take(vm);
  bool lost = !tree_each_part(vm, v, has_data, NULL);
  error_clear(vm);
  if (error) error_put_back(vm, error);
  return lost;
}

/* Lists that only recordings know become ordinary ones in a variable of a recorded turn that has failed. False: what it holds is lost. */
static bool left_whole(qn_vm *vm, qn_value *place) {
  if (is_lost(vm, *place)) return false;
  qn_error_object *error = error_take(vm);
  bool ok = rec_make_plain(vm, place);
  error_clear(vm);
  if (error) error_put_back(vm, error);
  return ok;
}

/* Gives the variables the values that they had before the turn: all of them if the interpreter has not begun it; else those that the body only
 * reads, which have been tracers meanwhile, and those whose values are lost. */
static void give_back(turn_call *t, bool failed) {
  const turn_variable *variables = t->code->variables;
  qn_value *fp = t->fp, *held = t->held;
  bool begun = t->begun, looks = failed && t->recorded;
  for (uint32_t i = 0, n = t->code->n; i < n; i++) {
    const turn_variable *x = &variables[i];
    qn_value *to = place_of(x, fp);
    if (x->rebound && begun && (!looks || left_whole(t->vm, to))) continue;
    slot_set(t->vm, to, held[i]);
    held[i] = value_nil();
  }
  for (uint32_t i = 0; looks && begun && i < t->code->ngrown; i++)
    if (!left_whole(t->vm, place_of(&t->code->grown[i], fp))) (void)!set_grown(t, i, NULL, 0);
}

/* An exception of a host passes. */
static void turn_drop(qn_vm *vm, void *what) {
  turn_call *t = what;
  give_back(t, true);
  value_release(vm, t->more);
  value_release(vm, t->added);
}

/* Stores the results of a turn, a list, which is taken over, in the variables. False with an error raised. */
static bool unpack(turn_call *t, qn_value result) {
  qn_vm *vm = t->vm;
  const qn_list *l = value_list(result);
  value_retain(l->items[END_MORE]);
  note_ends(t, l->items);
  uint32_t at = t->wide ? RUN_ENDS : TURN_ENDS, end = l->len - t->code->ngrown;
  for (uint32_t i = 0; at < end; i++, at++) {
    const turn_variable *x = &t->code->variables[i];
    if (x->cell)
      cell_set(vm, x->cell, value_retain(l->items[at]));
    else
      slot_set(vm, &t->fp[x->slot], value_retain(l->items[at]));
  }
  bool ok = true;
  for (uint32_t i = 0; i < t->code->ngrown && ok; i++, at++) {
    const qn_list *added = value_list(l->items[at]);
    ok = set_grown(t, i, added->items, added->len);
  }
  value_release(vm, result);
  return ok;
}

/* Takes what the turn begins with: the arguments, from the value stack on, and `held` behind them. */
static void take(turn_call *t, const qn_value *lead) {
  qn_vm *vm = t->vm;
  qn_value *arg = vm->sp, *fp = t->fp;
  const turn_variable *variables = t->code->variables;
  uint32_t n = t->code->n;
  t->site.args = arg;
  for (int i = 0; i < t->lead; i++) *arg++ = lead[i];
  qn_value *held = t->held = arg + n;
  for (uint32_t i = 0; i < n; i++) {
    const turn_variable *x = &variables[i];
    qn_value *from = place_of(x, fp);
    if (x->made) slot_set(vm, from, value_nil());
    arg[i] = value_retain(*from);
    held[i] = x->rebound ? *from : value_retain(*from);
    if (x->rebound) *from = value_nil();
  }
  vm->sp = held + n;
}

/* Notes how long the lists are that the turn adds items to, and makes room for them behind what is `held`. False if one of the variables holds something
 * else, or with an error raised. */
static bool note_grown_lists(turn_call *t) {
  if (!vm_enter(t->vm, t->code->ngrown)) return false;
  for (uint32_t i = 0; i < t->code->ngrown; i++) *t->vm->sp++ = value_nil();
  for (uint32_t i = 0; i < t->code->ngrown; i++) {
    qn_value *place = place_of(&t->code->grown[i], t->fp), v;
    if (value_is_stacked(*place) && !rec_make_plain(t->vm, place)) return false; /* from a capture that has ended */
    v = *place;
    if (!value_is(v, TAG_LIST) || value_list(v)->head.aux == OBJ_PROGRESS) return false;
    t->had[i] = value_list(v)->len;
  }
  return true;
}

/* Makes a turn of a loop none of whose turns has made or changed an array while it was watched: as long as that is so the compiler hears
 * nothing of the loop, and the next turn that is watched comes after twice as many others. */
static qn_value watch(turn_call *t) {
  enum { QUIET_MOST = 1 << 20 };
  turn_code *code = t->code;
  uint64_t before = t->vm->arrays_made;
  qn_value result = make_turn(t);
  code->computes = t->vm->arrays_made != before;
  code->quiet = code->quiet < QUIET_MOST ? 2 * code->quiet + 1 : QUIET_MOST;
  code->anchor.passed[ANCHOR_COLD]++;
  code->anchor.countdown = code->computes ? 0 : code->quiet;
  qn_value fn = t->fp[-1]; /* calls of the function around the loop are worth compiling, too, whatever they are given */
  if (code->computes && value_is(fn, TAG_FN) && value_fn(fn)->head.flags == FN_USER) {
    fn_code *around = value_fn(fn)->code;
    around->computes = true;
    around->watched = 1;
  }
  return result;
}

/* What messages call argument i of the call. */
static qn_str *name_of_argument(const void *call, int i) {
  const turn_call *t = call;
  if (i >= t->lead) return t->code->variables[i - t->lead].name;
  return t->lead == 1 ? t->code->item : NULL;
}

/* Makes a turn, many turns or a part as a call. Takes over the first arguments. False with an error raised; else t->how and t->more say how it
 * has ended. */
static bool make_call(turn_call *t, const qn_value *lead) {
  qn_vm *vm = t->vm;
  turn_code *code = t->code;
  qn_value *mark = vm->sp;
  if (!vm_enter(vm, 2 * (size_t)code->n + (size_t)t->lead)) {
    for (int i = 0; i < t->lead; i++) value_release(vm, lead[i]);
    return false;
  }
  take(t, lead);
  qn_value *cells[TURN_VARIABLES + TURN_GROWN];
  int ncells = 0;
  uint8_t ngrown = 0;
  const turn_variable *variables = code->variables;
  for (uint32_t i = 0, n = code->n; i < n; i++)
    if (variables[i].cell) cells[ncells++] = &variables[i].cell->value;
  bool lists = true;
  if (__builtin_expect(code->ngrown, 0)) {
    lists = t->noted = note_grown_lists(t);
    for (uint32_t i = 0; i < code->ngrown; i++)
      if (code->grown[i].cell) cells[ncells + ngrown++] = &code->grown[i].cell->value;
  }
  t->site = (rec_call_site){.anchor = &code->anchor,
                            .fn = t->fp[-1],
                            .home = code->unit,
                            .args = t->site.args,
                            .nargs = (int)code->n + t->lead,
                            .name = name_of_argument,
                            .cells = {cells, ncells},
                            .ngrown = ngrown,
                            .rests = t->lead == 1,
                            .at = t->parts->at,
                            .run = make_turn,
                            .ctx = t};
  vm_owned held;
  vm_own(vm, &held, turn_drop, t);
  qn_value result = value_error();
  if (__builtin_expect(!lists, 0)) {
    if (!error_pending(vm)) result = make_turn(t);
  } else {
    result = code->computes || at_once(vm) ? rec_call(vm, &t->site) : watch(t);
  }
  vm_disown(vm, &held);
  bool failed = value_is_error(result);
  give_back(t, failed);
  if (!failed && value_is(result, TAG_LIST)) failed = !unpack(t, result);
  vm_pop_to(vm, mark);
  return !failed;
}

qn_value part_called(qn_vm *vm, turn_code *code, const turn_parts *parts, qn_value *fp) {
  /* The function around it is hot already: a part that computes with arrays is recorded as soon as that is known. */
  if ((code->computes || at_once(vm)) && code->anchor.state == ANCHOR_COLD) code->anchor.state = ANCHOR_ACTIVE;
  turn_call t = {.vm = vm, .code = code, .parts = parts, .fp = fp, .lead = 1, NOTHING};
  bool none = !vm->asked.served; /* what explain is told is not about parts */
  int refused = vm->asked.refused;
  qn_value item = value_nil();
  bool made = make_call(&t, &item);
  if (none) vm->asked.served = NULL, vm->asked.refused = refused;
  if (!made) return value_error();
  switch (t.how) {
  case REC_RETURN: slot_set(vm, &interp_of(vm)->returned, t.more); return value_signal(SIGNAL_RETURN);
  case REC_BREAK: return value_signal(SIGNAL_BREAK);
  case REC_CONTINUE: return value_signal(SIGNAL_CONTINUE);
  default: return t.more;
  }
}

bool turn_called(qn_vm *vm, turn_code *code, const turn_parts *parts, qn_value *fp, qn_value item, qn_value *r,
                 qn_value *next) {
  turn_call t = {
      .vm = vm, .code = code, .parts = parts, .fp = fp, .lead = 1, .wide = parts->leaves || code->in_arms, NOTHING};
  if (!make_call(&t, &item)) {
    *r = value_error();
    return false;
  }
  *r = value_nil();
  bool on = t.how == REC_VALUE || t.how == REC_CONTINUE;
  if (on && next) {
    *next = t.more;
    return true;
  }
  if (t.how == REC_RETURN) {
    slot_set(vm, &interp_of(vm)->returned, t.more);
    *r = value_signal(SIGNAL_RETURN);
    return false;
  }
  value_release(vm, t.more);
  return on;
}

/* The turns of a loop, many at once, as calls. NULL: they are made one by one. */
static turn_code *run_of(qn_vm *vm, turn_code *code) {
  static const char name[] = "turns";
  turn_code *run = code->run;
  if (!run) {
    if (!(run = arena_alloc(&code->unit->nodes, sizeof *run))) {
      error_clear(vm);
      return NULL;
    }
    *run = (turn_code){.anchor = {.state = ANCHOR_ACTIVE, .loop = true, .name = name, .at = code->anchor.at},
                       .variables = code->variables,
                       .n = code->n,
                       .computes = true,
                       .next = code->unit->loops,
                       .unit = code->unit};
    code->unit->loops = code->run = run;
  }
  return run->anchor.state == ANCHOR_ACTIVE ? run : NULL;
}

int64_t turns_run(qn_vm *vm, turn_code *code, const turn_parts *parts, qn_value *fp, qn_value over, int64_t first,
                  int64_t end, qn_value *r, qn_value *next) {
  int64_t most = vm->tune[TUNE_jit_run];
  uint64_t left = end > first ? (uint64_t)end - (uint64_t)first : 0;
  if (!parts->run || !most || left < 2 * (uint64_t)most || !code->computes || at_once(vm)) return 0;
  /* Whatever the compiler gives in place of what is not returned, it is not what is compared. */
  if (parts->returns && vm->config.jit == QN_JIT_VERIFY) return 0;
  turn_code *run = run_of(vm, code);
  if (!run) return 0;
  turn_call t = {
      .vm = vm, .code = run, .parts = parts, .fp = fp, .lead = RUN_ARGS, .wide = true, .list = value_nil(), NOTHING};
  qn_value lead[RUN_ARGS] = {over, value_int(first), value_int(first + most)};
  if (value_is(over, TAG_LIST)) {
    if (run->quiet > 0 && run->quiet--) return 0;
    lead[RUN_OVER] = most <= INT32_MAX ? rec_stack_items(vm, over, (uint32_t)first, (uint32_t)most) : value_unset();
    if (value_is(lead[RUN_OVER], TAG_UNSET)) {
      run->quiet = (int32_t)most; /* so many turns pass before items are looked at again */
      return 0;
    }
    lead[RUN_FIRST] = value_int(0), lead[RUN_END] = value_int(most);
    t.list = over, t.from = first;
  } else {
    value_retain(over);
  }
  *r = value_error();
  if (!make_call(&t, lead)) return -1;
  *r = value_nil();
  if (t.how == REC_RETURN) {
    slot_set(vm, &interp_of(vm)->returned, t.more);
    *r = value_signal(SIGNAL_RETURN);
    return -1;
  }
  if (next) *next = value_bool(t.more.u.i != 0);
  return t.how == REC_VALUE ? most : -1;
}
