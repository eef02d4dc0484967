/* Errors that a try catches, captured: an arm in which the program raises an error of its own is an arm that leaves the try.
 *
 * What stands in a try may fail on data in two ways. Operations that fail (an index out of bounds) have no value to ask for it: they leave the
 * graph, and the interpreter makes the call again (recorder.c). But what `error` and `assert` raise depends on a condition, which a branch can
 * test. So the body becomes a part that its arms may leave, as the rest of a function is one that they leave by return (ways.c): an arm that
 * raises runs the handler at once, as its own last statements, and leaves the try with the handler's value. The ways come together behind the
 * try, handlers and all.
 *
 *   s = try { assert(t > 0, "low"); log(t) } catch e { 0.0 }       if t > 0 { s = log(t) } else { s = 0.0 }
 *
 * The body is tried in an arm of its own, whose nodes then join the graph, and which is forgotten where this cannot be captured or no error was
 * caught: then the interpreter runs the body in the recording itself (rec_try_begin). The same is done inside gradients, where a handler that
 * was not run must not count for the order of sums, and for errors of functions that the body calls, as ways end with their function.
 */
#include <string.h>

#include "jit/trace/breaks.h"
#include "jit/trace/draws.h"
#include "jit/trace/node_copy.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/ways.h"

/* A try while its body is being recorded. */
typedef struct caught {
  qn_vm *vm;
  struct recording *r, *arm; /* arm owned */
  const rec_handler *of;
  way_handler handler;
  qn_value *before; /* owned: what the variables held */
} caught;

bool way_catches(const qn_vm *vm, const rec_way *w) {
  const struct recording *base = rec_base(w->r);
  if (!w->catches || base->trying != w->catches->trying || base->again || !way_raises(vm)) return false;
  /* (the words of other errors may depend on the recorded call, and what waits for its words has no payload yet) */
  return (vm->error->id == E_user || vm->error->id == E_assertion) && !value_is(vm->error->payload, TAG_UNSET);
}

qn_value way_catch(qn_vm *vm, rec_way *w, rec_exit *how) {
  way_handler *catcher = w->catches;
  const rec_handler *h = catcher->of;
  struct recording *base = rec_base(w->r);
  base->trying--; /* errors of the handler are for others */
  catcher->caught = true;
  w->catches = NULL;
  qn_value v = h->handle(h->ctx, error_take(vm), how);
  w->catches = catcher;
  base->trying++;
  if (*how == REC_VALUE && !h->used) {
    value_release(vm, v);
    v = value_nil();
  }
  return v;
}

/* Runs the body as a way of the arm. False: it cannot be captured so, or nothing was caught, or an error is raised. */
static bool run_body(caught *c, qn_value *parts) {
  qn_vm *vm = c->vm;
  rec_way way;
  rec_exit how = REC_VALUE;
  qn_value *mark = vm->sp;
  struct recording *base = rec_base(c->r);
  way_begin(&way, WAY_TRY, c->arm, NULL, c->of->assigned);
  base->trying++;
  c->handler = (way_handler){c->of, base->trying, false};
  way.catches = &c->handler;
  base->tried = true;
  qn_value v = c->of->body.run(c->of->body.ctx, &how);
  if (how == REC_ERROR && way.open && vm->rec == way.r &&
      way_catches(vm, &way)) { /* what is left of it raises in any case */
    vm_pop_to(vm, mark);
    how = REC_VALUE;
    v = way_catch(vm, &way, &how);
  } else if (how == REC_VALUE && !c->of->used) {
    value_release(vm, v);
    v = value_nil();
  }
  base->trying--;
  if (!c->handler.caught) {
    if (how != REC_ERROR) value_release(vm, v);
    way_drop(vm, &way);
    return false;
  }
  return way_close(vm, &way, how, v, parts) && vm->rec == c->arm;
}

static void caught_free(caught *c) {
  if (c->before) slots_free(c->vm, c->of->assigned, c->before);
  if (c->arm) rec_free(c->arm);
}

/* For vm_own: the host has left. */
static void caught_drop(qn_vm *vm, void *what) {
  (void)vm;
  caught_free(what);
}

static rec_answer try_once(struct recording *r, span at, const rec_handler *h, qn_value *result) {
  qn_vm *vm = r->vm;
  caught c = {.vm = vm, .r = r, .of = h};
  qn_value parts[END_PARTS], values = value_nil(), *mark = vm->sp;
  for (int i = 0; i < END_PARTS; i++) parts[i] = value_nil();
  vm_owned held, held_values;
  rec_at(vm, at);
  vm_own(vm, &held, caught_drop, &c);
  vm_own(vm, &held_values, vm_drop_value, &values);
  bool ok = (c.before = slots_keep(vm, h->assigned)) && (c.arm = rec_arm_begin(r, NULL)) && run_body(&c, parts) &&
            !c.arm->regions.n && !c.arm->g->failed && !c.arm->g->dims.strict;
  if (!ok) vm_pop_to(vm, mark);
  ok = ok && arm_values(c.arm, h->assigned, &parts[END_VALUE], 1, &values);
  end_parts_free(vm, parts);
  if (c.arm) rec_arm_end(c.arm);
  if (c.before) slots_set(vm, h->assigned, c.before);
  rec_answer answer = REC_FAILED;
  if (!ok) {
    answer = arms_refused(r);
  } else if (!arm_splice(r, c.arm, &values)) {
    values = value_nil();
  } else {
    slots_set(vm, h->assigned, value_list(values)->items);
    *result = value_retain(value_list(values)->items[h->assigned.n]);
    answer = rec_appended(r) ? REC_DONE : REC_FAILED;
  }
  struct recording *now = vm->rec;
  vm_disown(vm, &held);
  value_release(vm, values);
  caught_free(&c);
  if (answer == REC_DONE)
    vm->rec = now;
  else if (!r->ended)
    vm->rec = r;
  return answer;
}

rec_answer rec_try_arms(qn_vm *vm, span at, const rec_handler *h, qn_value *result) {
  struct recording *r = vm->rec;
  if (!r || !arms_possible(r) || !try_possible(r) || parted_wanted(r) || way_chooses(way_of(r))) return REC_NOT_YET;
  drawn_slots s;
  rec_handler with = *h;
  rec_answer answer = REC_FAILED;
  do {
    if (draws_begin(r, h->assigned, &s)) {
      with.assigned = s.all;
      answer = try_once(r, at, &with, result);
    }
  } while (draws_again(r, answer));
  return answer;
}

/* ---- assert ----------------------------------------------------------------------------------------------------------------------- */

/* The arm in which an assertion fails: its error, at the place of the call. */
typedef struct failing {
  qn_vm *vm;
  rec_arm raise;
  span at;
} failing;

static qn_value run_failing(void *ctx, rec_exit *how) {
  failing *f = ctx;
  qn_value v = f->raise.run(f->raise.ctx, how);
  raise_at(f->vm, f->at);
  return v;
}

static qn_value run_nothing(void *ctx, rec_exit *how) {
  (void)ctx, (void)how;
  return value_nil();
}

rec_answer rec_assert(qn_vm *vm, qn_value condition, rec_arm raise) {
  struct recording *r = vm->rec;
  const rec_way *w = way_of(r);
  if (!w || !w->catches || value_is(condition, TAG_UNSET)) return REC_NOT_YET;
  failing f = {vm, raise, r->at};
  rec_branch of = {.at = r->at, .then = {run_nothing, NULL}, .otherwise = {run_failing, &f}, .leaves = true};
  qn_value nothing = value_nil();
  return branch_capture(r, &of, condition, &nothing);
}
