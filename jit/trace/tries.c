/* Errors that a try catches, captured: an arm in which the program raises an error of its own is an arm that leaves the try.
 *
 * What stands in a try may fail on data: `error` and `assert` do, on a condition, which a branch can test; so does an operation (an index out of
 * bounds), if the interpreter asks for its condition before it makes it (rec_try_index and its like), where the words of the error show numbers of the
 * call and wait until these are there. So the body becomes a part that its arms may leave, as the rest of a function is one that they leave by return
 * (ways.c): an arm that raises runs the handler at once, as its own last statements, and leaves the try with the handler's value. The ways
 * come together behind the try, handlers and all.
 *
 *   s = try { assert(t > 0, "low"); log(t) } catch e { 0.0 }       if t > 0 { s = log(t) } else { s = 0.0 }
 *
 * In a function that the body calls it is the same: what follows in that function, and in its callers up to the end of the try, is recorded in the
 * arm that goes on. But the turns of a loop are joined at its end, and so is the rest of a function that may return early, and with an error for
 * the handler in hand they would have to carry all that the handler makes. So they are left with a number that stands for the error (way_throw,
 * END_RAISES), and behind them the way around is left where that is not 0 (way_split_raised). The same is done with an error of a handler that stands
 * in another try. What the error's words wait for, and what its record holds, is handed on with the number (END_WORDS), for one error of a try.
 *
 * A body or handler may also break or continue the turn around, or return: then the parts of the end of the try say so, as those of an arm do, and
 * END_HANDLED tells its own handler's value from what is returned.
 *
 * Operations that nobody asked for have no value to ask for: they leave the graph, and the interpreter makes the call again (recorder.c).
 *
 * The body is tried in an arm of its own, whose nodes then join the graph, and which is forgotten where this cannot be captured: then the
 * interpreter runs the body in the recording itself (rec_try_begin). The same is done inside two gradients, as with other branches. Inside one, what
 * variables hold behind the try is told apart as behind a branch (parted.c).
 */
#include <stdio.h>
#include <string.h>

#include "jit/run/index.h"
#include "jit/trace/breaks.h"
#include "jit/trace/draws.h"
#include "jit/trace/forks.h"
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
  rec_way *raising; /* the way around it, perhaps of a caller, that errors of the handler leave; or NULL */
  rec_way *chooser; /* the one, perhaps of a caller, that is missed where its ends do not agree; or NULL */
  qn_value *before; /* owned: what the variables held */
  uint32_t from;    /* rec_next_id when it began */
} caught;

/* How many calls are in progress at a place in r, also around the arms. */
static uint32_t calls_around(const struct recording *r) {
  uint32_t n = 0;
  for (uint32_t s = r->parent; s; s = r->g->sites[s].parent) n++;
  return n;
}

/* The pending error leaves the calls in progress in r that have been begun in the body of a try, as it would when the interpreter left them. */
static void leave_calls(struct recording *r, const way_handler *h) {
  qn_vm *vm = r->vm;
  uint32_t n = calls_around(r);
  for (uint32_t call = r->parent, site = n > h->calls ? rec_site(r) : 0; n > h->calls; n--) {
    const char *function = r->g->sites[site].function;
    qn_error_object *e = error_take(vm); /* a name that finds no memory is left out */
    span place = e->outer.source ? e->outer : e->at;
    qn_str *name = function ? str_intern(vm, function, strlen(function)) : NULL;
    error_clear(vm);
    bool later = e->later > 0, told = later || e->rethrown; /* (as the interpreter has it) */
    if (later) e->later--;
    if (!later) e->settled = e->rethrown = false;
    error_put_back(vm, e);
    if (!told) raise_frame(vm, place, name);
    if (name) value_release(vm, value_obj(TAG_STR, name));
    if (!later) raise_outside(vm, r->g->sites[call].at);
    raise_through(vm, r->g->sites[call].at, function);
    site = call;
    call = r->g->sites[call].parent;
  }
}

/* May the pending error, with which way w ends, be seen by handler h of the program? */
static bool is_seen(const qn_vm *vm, const rec_way *w, const way_handler *h) {
  const struct recording *base = rec_base(w->r);
  const way_handler *innermost = way_thrower(w);
  if (!h || base->trying != innermost->trying || base->again || !way_raises(vm) || w->r->cut || vm->error->unseen)
    return false;
  /* (the words of other errors may depend on the recorded call, unless they wait) */
  return vm->error->id == E_user || vm->error->id == E_assertion || value_is(vm->error->payload, TAG_RECORD) ||
         (vm->error->message->head.flags & STR_WAITS);
}

/* The handler of h runs in r, or has run there: of the calls in progress those in its try are left. */
static void calls_left(struct recording *r, const way_handler *h) {
  for (uint32_t n = calls_around(r); n > h->calls; n--) r->parent = r->g->sites[r->parent].parent;
  r->handler = h->function;
  r->handling = r->ncalls + 1;
}

bool way_catches(const qn_vm *vm, const rec_way *w) { return w->catches && is_seen(vm, w, w->catches); }

qn_value way_catch(qn_vm *vm, rec_way *w, rec_exit *how) {
  way_handler *catcher = w->catches;
  const rec_handler *h = catcher->of;
  struct recording *r = w->r, *base = rec_base(r);
  const char *handler = r->handler;
  uint32_t parent = r->parent, handling = r->handling;
  leave_calls(r, catcher);
  calls_left(r, catcher);
  base->trying--; /* errors of the handler are for others */
  catcher->caught = true;
  w->catches = NULL;
  qn_value v = h->handle(h->ctx, error_take(vm), how);
  w->catches = catcher;
  base->trying++;
  if (*how != REC_ERROR) { /* (an error of the handler is none of the calls that have been left) */
    r->parent = parent;
    r->handler = handler;
    r->handling = handling;
  }
  if (*how == REC_VALUE && !h->used) {
    value_release(vm, v);
    v = value_nil();
  }
  return v;
}

/* ---- errors that leave loops and functions ------------------------------------------------------------------------------------------ */

static bool same_frames(const qn_error_object *a, const qn_error_object *b) {
  if (a->nframes != b->nframes || a->frames_dropped != b->frames_dropped) return false;
  for (int i = 0; i < a->nframes; i++) {
    const error_frame *x = &a->frames[i], *y = &b->frames[i];
    if (memcmp(&x->at, &y->at, sizeof x->at) != 0 || x->function != y->function) return false;
  }
  return true;
}

/* How many items a list or record has; *items: these. -1: it is neither. */
static int64_t items_of(qn_value v, qn_value **items) {
  bool list = value_is(v, TAG_LIST);
  *items = NULL;
  if (!list && !value_is(v, TAG_RECORD)) return -1;
  *items = list ? value_list(v)->items : value_record(v)->items;
  return list ? value_list(v)->len : value_record(v)->len;
}

/* A list or record like `v` with so many items, which are nil. Owned, or the error value. */
static qn_value items_like(qn_vm *vm, qn_value v, int64_t n) {
  bool list = value_is(v, TAG_LIST);
  void *made = list ? (void *)list_new(vm, (uint32_t)n) : (void *)record_like(vm, value_record(v));
  return made ? value_obj(list ? TAG_LIST : TAG_RECORD, made) : value_error();
}

/* `v` with what its texts that wait are made of in their place. Owned, or the error value with an error raised. */
static qn_value take_apart(struct recording *r, qn_value v) {
  qn_vm *vm = r->vm;
  const struct waiting_text *text = rec_text_of(r, v);
  if (text) v = text->parts;
  qn_value *from, *to;
  int64_t n = items_of(v, &from);
  if (n < 0) return value_retain(v);
  qn_value apart = vm_enter(vm, 0) ? items_like(vm, v, n) : value_error();
  if (value_is_error(apart)) return apart;
  (void)items_of(apart, &to);
  for (int64_t i = 0; i < n; i++)
    if (value_is_error(to[i] = take_apart(r, from[i]))) {
      to[i] = value_nil();
      return value_fail(vm, apart);
    }
  return apart;
}

/* The other way round: texts that wait as those in `like`, made of what take_apart has given, now values of r. */
static qn_value put_together(struct recording *r, qn_value like, qn_value apart) {
  qn_vm *vm = r->vm;
  const struct waiting_text *text = rec_text_of(r, like);
  const builtin_def *def = text ? text->def : NULL;
  if (text) like = text->parts;
  qn_value *from, *to, *likes;
  int64_t n = items_of(apart, &from);
  if (n < 0 || items_of(like, &likes) != n) return value_retain(apart);
  qn_value whole = vm_enter(vm, 0) ? items_like(vm, apart, n) : value_error();
  if (value_is_error(whole)) return whole;
  (void)items_of(whole, &to);
  for (int64_t i = 0; i < n; i++)
    if (value_is_error(to[i] = put_together(r, likes[i], from[i]))) {
      to[i] = value_nil();
      return value_fail(vm, whole);
    }
  if (!text) return whole;
  qn_str *none = str_new(vm, "", 0);
  qn_value made = none ? value_obj(TAG_STR, none) : value_error();
  if (none && !rec_text_made(vm, &made, def, whole)) made = value_fail(vm, made);
  value_release(vm, whole);
  return made;
}

/* Would two values be handed on alike: have they the same structure, texts, dtypes and shapes? */
static bool alike(struct recording *r, qn_value a, qn_value b) {
  const struct waiting_text *text = rec_text_of(r, a), *other = rec_text_of(r, b);
  if ((text == NULL) != (other == NULL)) return false;
  if (text && text->def != other->def) return false;
  if (text) a = text->parts, b = other->parts;
  qn_value *p, *q;
  int64_t n = items_of(a, &p);
  if (n != items_of(b, &q) || value_tag_of(a) != value_tag_of(b)) return false;
  if (value_is(a, TAG_STR)) return str_equal(value_str(a), value_str(b));
  if (value_is(a, TAG_ARRAY)) {
    const qn_array *x = value_array(a), *y = value_array(b);
    return x->dtype == y->dtype && x->rank == y->rank && memcmp(x->shape, y->shape, x->rank * sizeof *x->shape) == 0;
  }
  if (n < 0) return value_is_scalar(a) || (a.head == b.head && a.u.i == b.u.i);
  if (!vm_enter(r->vm, 0)) return false;
  for (int64_t i = 0; i < n; i++) {
    bool named = value_is(a, TAG_RECORD);
    if (named && !str_equal(record_name(value_record(a), (uint32_t)i), record_name(value_record(b), (uint32_t)i)))
      return false;
    if (!alike(r, p[i], q[i])) return false;
  }
  return true;
}

/* Is error k of h raised at the place of e, and as that, whose message and payload are `said` if they wait for something? */
static bool same_error(struct recording *r, const struct thrown *k, const qn_error_object *e, qn_value said) {
  const qn_error_object *a = k->error;
  if (a->id != e->id || memcmp(&a->at, &e->at, sizeof a->at) != 0 || !same_frames(a, e)) return false;
  if (value_is(said, TAG_NIL)) return value_is(k->said, TAG_NIL) && str_equal(a->message, e->message);
  return !value_is(k->said, TAG_NIL) && alike(r, k->said, said);
}

/* The number of an error among those of h: a new one if need be. -1: it cannot be handed on, or an error is raised. Takes over `said`. */
static int64_t thrown_number(struct recording *r, way_handler *h, const qn_error_object *e, qn_value said) {
  qn_vm *vm = r->vm;
  uint32_t k = 0;
  bool worded = false;
  while (k < h->nthrown && h->of->sees && !same_error(r, &h->thrown[k], e, said)) /* (unseen errors are all the same) */
    worded |= !value_is(h->thrown[k++].said, TAG_NIL);
  if (k < h->nthrown || (worded && !value_is(said, TAG_NIL))) {
    value_release(vm, said);
    return k < h->nthrown ? (int64_t)k : -1;
  }
  qn_error_object *own =
      mem_grow(vm, (void **)&h->thrown, &h->thrown_cap, k + (size_t)1, sizeof *h->thrown) ? error_copy(vm, e) : NULL;
  if (!own) {
    value_release(vm, said);
    return -1;
  }
  value_release(vm, own->payload); /* what it holds belongs to the arm */
  own->payload = value_nil();
  h->thrown[h->nthrown++] = (struct thrown){own, said, false};
  return (int64_t)k;
}

int64_t way_throw(qn_vm *vm, rec_way *w, qn_value *words) {
  way_handler *h = w->throws;
  struct recording *r = w->r;
  if (!vm->error || vm->rec != r || !is_seen(vm, w, h)) return 0;
  bool waits = !value_is(vm->error->payload, TAG_NIL) || (vm->error->message->head.flags & STR_WAITS);
  waits = waits && h->of->sees;
  if (waits && parted_wanted(r)) return 0; /* (a result of a region, which what is raised is not elsewhere) */
  leave_calls(r, h);
  qn_error_object *e = error_take(vm);
  const qn_value both[] = {value_obj(TAG_STR, e->message), e->payload};
  qn_list *l = waits ? list_from(vm, both, 2) : NULL;
  qn_value said = l ? value_obj(TAG_LIST, l) : value_nil(), apart = l ? take_apart(r, said) : value_unset();
  int64_t k = (waits && !l) || value_is_error(apart) ? -1 : thrown_number(r, h, e, value_retain(said));
  value_release(vm, said);
  if (k < 0) {
    if (!value_is_error(apart)) value_release(vm, apart);
    if (error_pending(vm))
      error_free(vm, e);
    else
      error_put_back(vm, e);
    return 0;
  }
  error_free(vm, e);
  *words = apart;
  h->thrown[k].pending = h->caught = true;
  return k + 1;
}

static void thrown_free(qn_vm *vm, way_handler *h) {
  for (uint32_t k = 0; k < h->nthrown; k++) {
    error_free(vm, h->thrown[k].error);
    value_release(vm, h->thrown[k].said);
  }
  mem_free(vm, h->thrown, h->thrown_cap * sizeof *h->thrown);
}

/* Error number k of h is raised again, with these words. It has the frames of all calls in the try. */
static void raise_thrown(qn_vm *vm, const way_handler *h, uint32_t k, qn_value words) {
  uint32_t calls = calls_around(vm->rec);
  qn_value said = h->thrown[k].said;
  bool waits = !value_is(said, TAG_NIL);
  qn_error_object *e = error_copy(vm, h->thrown[k].error);
  qn_value both = e && waits ? put_together(vm->rec, said, words) : value_nil();
  if (e && waits && !value_is(both, TAG_LIST) && !value_is_error(both)) both = value_error(); /* no way raises it */
  if (value_is_error(both)) error_free(vm, e);
  if (!e || value_is_error(both)) return;
  if (waits) {
    const qn_value *items = value_list(both)->items;
    value_release(vm, value_obj(TAG_STR, e->message));
    e->message = value_str(value_retain(items[0]));
    e->payload = value_retain(items[1]);
    value_release(vm, both);
  }
  e->later = calls > h->calls ? calls - h->calls : 0;
  error_put_back(vm, e);
}

/* Runs the handler on error k, with these words, as an arm of w, which it leaves: *gone gets its end. False: it cannot be captured, or an error is
 * raised. */
static bool run_handler(qn_vm *vm, rec_way *w, uint32_t k, qn_value words, way_end *gone) {
  rec_way arm;
  rec_exit how = REC_ERROR;
  qn_value parts[END_PARTS], *mark = vm->sp, v = value_nil();
  if (!(gone->r = rec_arm_begin(w->r, NULL))) return false;
  calls_left(gone->r, w->catches);
  way_begin(&arm, WAY_ARM, gone->r, w, w->slots);
  raise_thrown(vm, w->catches, k, words);
  if (way_raises(vm)) v = way_catch(vm, &arm, &how);
  arm.handled = how == REC_VALUE;
  bool ok = way_close(vm, &arm, how, v, parts) && vm->rec == gone->r && !gone->r->regions.n;
  if (!ok) vm_pop_to(vm, mark);
  ok = ok && is_bool(parts[END_LEFT], true) && end_note(gone, w->slots, parts, w) && !gone->r->g->failed;
  end_parts_free(vm, parts);
  rec_arm_end(gone->r);
  return ok;
}

/* Where `raises` is the number of error k, way w is left by the handler, which runs on it. False as before. */
static bool split_handled(qn_vm *vm, rec_way *w, uint32_t k, qn_value raises, qn_value words) {
  struct recording *r = w->r;
  qn_value raised = op_binary(vm, OP_eq, raises, value_int((int64_t)k + 1));
  uint32_t predicate = value_is_error(raised) ? 0 : rec_node(r, raised);
  qn_value *before = predicate ? slots_keep(vm, w->slots) : NULL;
  way_end gone = {.r = NULL};
  bool ok = before && run_handler(vm, w, k, words, &gone);
  if (before) {
    slots_set(vm, w->slots, before);
    slots_free(vm, w->slots, before);
  }
  struct recording *on = ok ? rec_arm_begin(r, gone.r) : NULL;
  if (on) return way_open(vm, w, &gone, on, predicate, rec_site(r), false);
  end_free(vm, &gone);
  return false;
}

bool way_split_raised(qn_vm *vm, rec_way *w, qn_value raises, qn_value words) {
  way_handler *h = way_thrower(w);
  if (!value_node(raises)) { /* it is left in any case: as by an error that the interpreter meets */
    raise_thrown(vm, h, (uint32_t)raises.u.i - 1, words);
    return false;
  }
  if (!w->catches) {
    qn_value left = op_binary(vm, OP_ne, raises, value_int(0));
    const qn_value parts[END_PARTS] = {[END_VALUE] = value_unset(),
                                       [END_RETURNED] = value_unset(),
                                       [END_LEFT] = left,
                                       [END_LEAVES] = value_bool(true),
                                       [END_RETURNS] = value_bool(false),
                                       [END_RAISES] = raises,
                                       [END_WORDS] = words,
                                       [END_HANDLED] = value_bool(false),
                                       [END_MISSED] = value_bool(false)};
    return !value_is_error(left) && way_split(vm, w, parts);
  }
  for (uint32_t k = 0; k < h->nthrown; k++) {
    if (!h->thrown[k].pending) continue;
    h->thrown[k].pending = false;
    rec_at(vm, w->r->at);
    if (!split_handled(vm, w, k, raises, words)) return error_pending(vm) ? false : rec_give_up(w->r, BREAK_branch);
  }
  return true;
}

/* Runs the body as a way of the arm. False: it cannot be captured so, or nothing was caught, or an error is raised. */
static bool run_body(caught *c, qn_value *parts) {
  qn_vm *vm = c->vm;
  rec_way way;
  rec_exit how = REC_VALUE;
  qn_value *mark = vm->sp;
  struct recording *base = rec_base(c->r);
  way_begin(&way, WAY_TRY, c->arm, c->of->leaves ? way_of(c->r) : NULL, c->of->assigned);
  base->trying++;
  c->handler = (way_handler){
      .of = c->of, .trying = base->trying, .calls = calls_around(c->arm), .function = rec_function(c->arm)};
  way.catches = &c->handler;
  way.throws = way_thrower(c->raising);
  if (c->chooser) way.choices = c->chooser->choices;
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
  bool ends = c->handler.caught || how != REC_ERROR;
  bool ok = ends && way_close(vm, &way, how, v, parts) && vm->rec == c->arm;
  if (!ends) way_drop(vm, &way);
  base->trying--;
  return ok;
}

static void caught_free(caught *c) {
  thrown_free(c->vm, &c->handler);
  if (c->before) slots_free(c->vm, c->of->assigned, c->before);
  if (c->arm) rec_free(c->arm);
}

/* For vm_own: the host has left. */
static void caught_drop(qn_vm *vm, void *what) {
  (void)vm;
  caught_free(what);
}

/* The try has joined the graph, with these parts of its end (which inside a gradient are told apart): what is around it may be left. */
static rec_answer go_on(caught *c, qn_value *parts, qn_value *result) {
  qn_vm *vm = c->vm;
  if (!parted_arm(c->r, c->from, c->of->assigned, &parts[END_VALUE]) ||
      !parted_arm(c->r, c->from, (rec_slots){NULL, 0}, &parts[END_RETURNED]))
    return REC_FAILED;
  rec_way *around = way_of(c->r);
  if (!is_bool(parts[END_MISSED], false)) {
    if (is_bool(parts[END_MISSED], true)) return rec_give_up(c->r, BREAK_branch) ? REC_NOT_YET : REC_FAILED;
    if (!way_split_missed(vm, c->chooser, parts[END_MISSED])) return REC_FAILED;
  }
  if (!raises_never(parts[END_RAISES]) && !way_split_raised(vm, c->raising, parts[END_RAISES], parts[END_WORDS]))
    return REC_FAILED;
  qn_value gone[END_PARTS];
  memcpy(gone, parts, sizeof gone);
  gone[END_RAISES] = value_int(0);
  gone[END_WORDS] = value_unset();
  if (is_bool(parts[END_LEFT], true)) {
    way_all_left(around, gone);
    return rec_appended(vm->rec) ? REC_LEFT : REC_FAILED;
  }
  bool stays = is_bool(parts[END_LEFT], false);
  if (!(stays ? rec_appended(vm->rec) : way_split(vm, around, gone))) return REC_FAILED;
  *result = value_is(parts[END_VALUE], TAG_UNSET) ? value_nil() : value_retain(parts[END_VALUE]);
  return REC_DONE;
}

static rec_answer try_once(struct recording *r, span at, const rec_handler *h, qn_value *result) {
  qn_vm *vm = r->vm;
  caught c = {.vm = vm, .r = r, .of = h, .raising = way_of(r) ? way_of(r) : way_catcher(r), .from = rec_next_id(r)};
  c.chooser = way_of(r) ? way_of(r) : way_chooser(r);
  way_choices *choices = c.chooser ? c.chooser->choices : NULL;
  uint32_t chosen = choices ? choices->at : 0, unlikes = rec_base(r)->unlike;
  qn_value parts[END_PARTS], values = value_nil(), *mark = vm->sp;
  for (int i = 0; i < END_PARTS; i++) parts[i] = value_nil();
  vm_owned held, held_values;
  rec_at(vm, at);
  vm_own(vm, &held, caught_drop, &c);
  vm_own(vm, &held_values, vm_drop_value, &values);
  bool ok = (c.before = slots_keep(vm, h->assigned)) && (c.arm = rec_arm_begin(r, NULL)) && run_body(&c, parts) &&
            !c.arm->regions.n && !c.arm->g->failed && arm_may_join(c.arm);
  if (!ok) vm_pop_to(vm, mark);
  ok = ok && arm_values(c.arm, h->assigned, parts, END_PARTS, &values);
  end_parts_free(vm, parts);
  if (c.arm) rec_arm_end(c.arm);
  if (c.before) slots_set(vm, h->assigned, c.before);
  rec_answer answer = REC_FAILED;
  if (!ok) {
    /* Of ends among which this way has chosen, another one could be taken, but not this one: then the turn of a loop takes none (states.c). In
     * another part the try is left plain, which is for all ends that are left; nothing behind it may be chosen by what was given for it. */
    bool differs = choices && way_differs(choices, (way_made){chosen, choices->at}), stuck = differs && !choices->fork;
    if (choices) choices->at = chosen; /* the body is run once more, in the recording itself */
    rec_base(r)->untried++;
    answer = arms_refused(r);
    bool unlike = answer == REC_NOT_YET && rec_base(r)->unlike != unlikes;
    if (unlike && fork_wanted(r)) answer = REC_FAILED;
    bool split = unlike && choices && choices->closed && !rec_base(r)->whole_turns; /* the turn is to be split first */
    if (answer == REC_NOT_YET && (stuck || split)) {
      choices->tried = true;
      (void)rec_give_up(r, BREAK_branch);
      answer = REC_FAILED;
    }
    if (differs && choices->fork) choices->closed = true;
  } else if (!arm_splice(r, c.arm, &values)) {
    values = value_nil();
  } else {
    slots_set(vm, h->assigned, value_list(values)->items);
    answer = go_on(&c, value_list(values)->items + h->assigned.n, result);
  }
  struct recording *now = vm->rec;
  vm_disown(vm, &held);
  value_release(vm, values);
  caught_free(&c);
  if (answer == REC_DONE || answer == REC_LEFT)
    vm->rec = now;
  else if (!r->ended)
    vm->rec = r;
  return answer;
}

rec_answer rec_try_arms(qn_vm *vm, span at, const rec_handler *h, qn_value *result) {
  struct recording *r = vm->rec;
  enum { IN_VAIN = 32 }; /* bodies of a recording that are recorded twice */
  if (!r || !branches_possible(r) || !try_possible(r) || rec_base(r)->untried >= IN_VAIN) return REC_NOT_YET;
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

/* ---- operations that fail on data ----------------------------------------------------------------------------------------------- */

enum { WORDS_MOST = 3 /* numbers in the words of an error */ };

/* The arm in which an operation fails. Its words show numbers of the call, so they wait. */
typedef struct refused {
  qn_vm *vm;
  error_id id;
  span at;
  const char *words; /* as for raise_error, with a conversion for each number */
  qn_value numbers[WORDS_MOST];
} refused;

/* Adds a piece of words that stand as they are to a list of what a text is made of. */
static bool add_piece(qn_vm *vm, qn_list *parts, const char *piece, size_t len) {
  qn_str *s = str_new(vm, piece, len);
  return s && list_push(vm, parts, value_obj(TAG_STR, s)) && list_push(vm, parts, value_nil());
}

/* What the words are made of, as rec_text_made has it. NULL with an error raised. */
static qn_list *pieces(const refused *f) {
  qn_vm *vm = f->vm;
  qn_list *parts = list_new(vm, 0);
  const qn_value *number = f->numbers;
  bool ok = parts != NULL;
  for (const char *p = f->words; *p && ok;) {
    size_t len = strcspn(p, "%");
    bool percent = p[len] == '%' && p[len + 1] == '%';
    if (percent) len++;
    if (len) ok = add_piece(vm, parts, p, len);
    p += len;
    if (percent) {
      p++;
    } else if (*p) {
      ok = ok && list_push(vm, parts, *number++) && list_push(vm, parts, value_nil());
      p += strcspn(p, "sd") + 1;
    }
  }
  if (ok) return parts;
  if (parts) value_release(vm, value_obj(TAG_LIST, parts));
  return NULL;
}

static qn_value run_refused(void *ctx, rec_exit *how) {
  const refused *f = ctx;
  qn_vm *vm = f->vm;
  *how = REC_ERROR;
  qn_list *l = pieces(f);
  qn_str *empty = l ? str_new(vm, "", 0) : NULL;
  qn_value text = empty ? value_obj(TAG_STR, empty) : value_nil();
  if (empty && rec_text_made(vm, &text, NULL, value_obj(TAG_LIST, l))) {
    raise_error(vm, f->id, f->at, "in words that wait");
    if (way_raises(vm)) {
      value_release(vm, value_obj(TAG_STR, vm->error->message));
      vm->error->message = value_str(value_retain(text));
    }
  }
  value_release(vm, text);
  if (l) value_release(vm, value_obj(TAG_LIST, l));
  return value_error();
}

/* Does a number come from an element of an array? Not if it is made of arguments and of the numbers of turns, which are seldom wrong. Looks at *left
 * nodes at most. */
static bool from_elements(const struct recording *r, uint32_t node, int *left) {
  const graph_node *n = &r->g->nodes[node];
  if (--*left < 0) return false;
  if (!n->type.weak) return n->kind != NODE_CONST;
  if (n->kind == NODE_PROJ || n->kind == NODE_TAP) return true;
  if (n->kind == NODE_INPUT && r->arm) {
    uint32_t number = n->payload.input;
    if (number < r->carries) return r->count != number + 1 || r->count_tested;
    return from_elements(r->outer, r->captures[number], left);
  }
  for (int k = 0; n->kind == NODE_OP && k < n->nin; k++)
    if (from_elements(r, n->in[k], left)) return true;
  return false;
}

/* Is v a number of the recording in progress that an operation may fail on, where a captured try would catch that? */
static bool may_refuse(const qn_vm *vm, qn_value v) {
  enum { LOOKED_AT = 64 };
  const struct recording *r = vm->rec;
  if (!r->arm || !value_is_scalar(v) || !value_node(v)) return false;
  const rec_way *w = way_of(r) ? way_of(r) : way_catcher(r);
  if (!way_thrower(w)) return false;
  uint32_t node = 0;
  while (!(node = rec_traced(r, v)) && r->arm) r = r->outer;
  return node && from_elements(r, node, &(int){LOOKED_AT});
}

/* From here on `good` holds, or the operation fails. False with an error raised. */
static bool refuse_unless(refused *f, qn_value good) {
  f->at = f->vm->rec->at;
  return !value_is_error(good) && rec_assert(f->vm, good, (rec_arm){run_refused, f}) != REC_FAILED;
}

static qn_value both(qn_vm *vm, qn_value a, qn_value b) {
  return value_is_error(a) || value_is_error(b) ? value_error() : op_binary(vm, OP_bitand, a, b);
}

bool rec_try_divide_asked(qn_vm *vm, op_id op, qn_value a, qn_value b) {
  if (!value_is(a, TAG_INT) || !value_is(b, TAG_INT) || !may_refuse(vm, b)) return true;
  refused f = {.vm = vm,
               .id = E_div_zero,
               .words = op == OP_div   ? WORDS_DIV_ZERO
                        : op == OP_mod ? WORDS_MOD_ZERO
                                       : WORDS_FLOORDIV_ZERO,
               .numbers = {a, a}};
  return refuse_unless(&f, op_binary(vm, OP_ne, b, value_int(0)));
}

bool rec_try_int_asked(qn_vm *vm, qn_value x) {
  const struct recording *r = vm->rec;
  bool array = value_is(x, TAG_ARRAY);
  if (!r->arm ||
      (array ? value_array(x)->size != 1 || !dtype_is_float((qn_dtype)value_array(x)->dtype) : !value_is(x, TAG_FLOAT)))
    return true;
  const rec_way *w = way_of(r) ? way_of(r) : way_catcher(r);
  if (!way_thrower(w)) return true;
  qn_value v = array ? op_number(vm, x, WEAK_FLOAT) : x;
  if (value_is_error(v)) return false;
  if (!may_refuse(vm, v)) return true;
  refused f = {.vm = vm, .id = E_to_int, .words = array ? WORDS_NOT_INT : WORDS_NO_INT, .numbers = {v}};
  qn_value low = op_binary(vm, OP_ge, v, value_float(-0x1p63));
  return refuse_unless(&f, both(vm, low, op_binary(vm, OP_lt, v, value_float(0x1p63))));
}

/* Item number i of an index along an axis of so many elements. */
static bool try_item(qn_vm *vm, qn_value i, int axis, int64_t size) {
  refused f = {.vm = vm, .id = E_index, .words = WORDS_BOUNDS, .numbers = {i, value_int(axis), value_int(size)}};
  return refuse_unless(&f,
                       both(vm, op_binary(vm, OP_ge, i, value_int(-size)), op_binary(vm, OP_lt, i, value_int(size))));
}

bool rec_try_item_asked(qn_vm *vm, int64_t len, qn_value *item) {
  if (value_is(*item, TAG_ARRAY) && rec_base(vm->rec)->trying) *item = op_number(vm, *item, WEAK_INT);
  if (value_is_error(*item)) return false;
  const qn_value i = *item;
  if (!may_refuse(vm, i)) return true;
  const qn_value n = value_int(len);
  refused next = {.vm = vm, .id = E_index, .words = WORDS_LIST_NEXT, .numbers = {i, n}}, other = next;
  other.words = WORDS_LIST;
  return refuse_unless(&next, op_binary(vm, OP_ne, i, n)) &&
         refuse_unless(&other, both(vm, op_binary(vm, OP_ge, i, value_int(-len)), op_binary(vm, OP_lt, i, n)));
}

bool rec_try_index_asked(qn_vm *vm, qn_value x, const index_item *items, int n) {
  const qn_array *a = value_array(x);
  bool any = false;
  for (int k = 0; k < n; k++) { /* each item has an axis, in their order */
    if (items[k].kind == INDEX_ELLIPSIS || items[k].kind == INDEX_NEW ||
        (items[k].kind == INDEX_ARRAY && !value_is(items[k].array, TAG_INT)))
      return true;
    any |= items[k].kind == INDEX_ARRAY && may_refuse(vm, items[k].array);
  }
  if (!any || n > a->rank) return true;
  for (int k = 0; k < n; k++) {
    if (items[k].kind != INDEX_ARRAY || !may_refuse(vm, items[k].array)) continue;
    uint32_t node = rec_node(vm->rec, x);
    if (!node) return false;
    qn_dim size = vm->rec->g->nodes[node].type.shape[k];
    if (size >= 0 && !try_item(vm, items[k].array, k, size)) return false; /* (a symbolic one may be another one) */
  }
  return true;
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
  const rec_way *w = r && way_of(r) ? way_of(r) : r ? way_catcher(r) : NULL;
  if (!way_thrower(w) || value_is(condition, TAG_UNSET)) return REC_NOT_YET;
  failing f = {vm, raise, r->at};
  rec_branch of = {.at = r->at, .then = {run_nothing, NULL}, .otherwise = {run_failing, &f}, .leaves = true};
  qn_value nothing = value_nil();
  return branch_capture(r, &of, condition, &nothing);
}
