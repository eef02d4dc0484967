/* Evaluators of blocks, branches, loops, try, return and import.
 *
 * break, continue and return travel up as signal values; the value of a return waits in interp.returned. Loops poll for interrupts and
 * limits at each turn. While a call is recorded, branches on traced values and loops are first offered to the recorder, together with the
 * outer variables that they may rebind; and so is the rest of a function, from a statement on that may return (n_tail).
 */
#include <string.h>

#include "interp/node.h"

/* ---- blocks -------------------------------------------------------------------------------------------------------- */

static inline qn_value run_block(qn_vm *vm, n_block *n, qn_value *fp) {
  if (op_deferred(vm)) return block_run(vm, n, fp, 0, n->n);
  uint32_t last = n->n - 1;
  for (uint32_t i = 0; i < last; i++) {
    qn_value v = eval(vm, n->items[i], fp);
    if (__builtin_expect(value_stops(v), 0)) {
      if (value_is_error(v)) raise_at(vm, n->items[i]->at); /* unless something inside has given it a better place */
      return v;
    }
    value_release(vm, v);
  }
  return eval(vm, n->items[last], fp);
}

qn_value eval_block_plain(qn_vm *vm, node *h, qn_value *fp) { return run_block(vm, (n_block *)h, fp); }

/* The variables of a block are cleared when it ends. Else they would go on sharing their values, and updates would have to copy these. */
qn_value eval_block(qn_vm *vm, node *h, qn_value *fp) {
  n_block *n = (n_block *)h;
  qn_value r = run_block(vm, n, fp);
  for (uint32_t i = n->first; i < n->last; i++) slot_set(vm, &fp[i], value_nil());
  return r;
}

/* ---- the recorder's view of a site ------------------------------------------------------------------------------------- */

int site_slots(const site *s, qn_value *fp, qn_value **out) {
  if (s->nlocals + s->nglobals > SITE_MAX - 1) return -1;
  int n = 0;
  for (uint32_t i = 0; i < s->nlocals; i++) out[n++] = &fp[s->locals[i]];
  for (uint32_t i = 0; i < s->nglobals; i++) out[n++] = &s->globals[i]->value;
  return n;
}

typedef struct arm {
  qn_vm *vm;
  node *n;
  qn_value *fp;
} arm;

rec_exit exit_of(qn_vm *vm, qn_value *v) {
  if (!value_stops(*v)) return REC_VALUE;
  if (value_is_error(*v)) return REC_ERROR;
  signal_kind kind = (signal_kind)v->u.i;
  *v = value_nil();
  if (kind != SIGNAL_RETURN) return kind == SIGNAL_BREAK ? REC_BREAK : REC_CONTINUE;
  *v = interp_of(vm)->returned;
  interp_of(vm)->returned = value_nil();
  return REC_RETURN;
}

/* The function returns v, which is taken over: the value that statements up to its end give. */
static qn_value returning(qn_vm *vm, qn_value v) {
  slot_set(vm, &interp_of(vm)->returned, v);
  return value_signal(SIGNAL_RETURN);
}

static qn_value run_arm(void *ctx, rec_exit *how) {
  arm *a = ctx;
  qn_value v = a->n ? eval(a->vm, a->n, a->fp) : value_nil();
  *how = exit_of(a->vm, &v);
  return v;
}

/* The state of a loop that runs inside a vmap (rec.h, lanes). It lies on the heap, so as not to make recursion less deep. */
typedef struct vmap_loop {
  rec_frame frame;
  vm_owned held;
  qn_value *slots[SITE_MAX];
} vmap_loop;

static void vmap_loop_drop(qn_vm *vm, void *what) {
  vmap_loop *l = what;
  rec_frame_drop(&l->frame);
  mem_free(vm, l, sizeof *l);
}

/* Begins a loop. *out is its state inside a vmap, else NULL. False with an error raised. */
static bool vmap_loop_begin(qn_vm *vm, vmap_loop **out, const node *h, const site *s, qn_value *fp) {
  *out = NULL;
  if (!rec_in_vmap(vm)) return true;
  vmap_loop *l = mem_alloc(vm, sizeof *l);
  if (!l) return false;
  int count = site_slots(s, fp, l->slots);
  if (count < 0) {
    mem_free(vm, l, sizeof *l);
    return raise_nothing(vm, E_not_batched, h->at, "vmap: a loop here rebinds at most %d variables", SITE_MAX - 1);
  }
  rec_frame_enter(vm, &l->frame, FRAME_LOOP, (rec_slots){l->slots, count});
  vm_own(vm, &l->held, vmap_loop_drop, l);
  *out = l;
  return true;
}

/* To be called after a body inside a vmap, whose value is *r. False if the loop is over: then *r is nil, or the error value. */
static bool vmap_loop_next(qn_vm *vm, vmap_loop *l, qn_value *r) {
  rec_exit how = exit_of(vm, r);
  int next = rec_loop_next(vm, &l->frame, how, *r);
  *r = next < 0 ? value_error() : value_nil();
  return next > 0;
}

static qn_value vmap_loop_end(qn_vm *vm, vmap_loop *l, qn_value r) {
  if (!l) return r;
  vm_disown(vm, &l->held);
  rec_answer answer = rec_loop_leave(vm, &l->frame, !value_is_error(r));
  mem_free(vm, l, sizeof *l);
  switch (answer) {
  case REC_LEFT: return value_signal(SIGNAL_RETURN);
  case REC_FAILED: return value_error();
  default: return r;
  }
}

/* ---- if ------------------------------------------------------------------------------------------------------------------- */

/* Offers the branch to the recorder, with the variables that it may rebind. Borrows the predicate. */
static rec_answer offer_if(qn_vm *vm, n_if *n, qn_value predicate, qn_value *fp, qn_value *result) {
  qn_value *slots[SITE_MAX];
  int count = site_slots(n->site, fp, slots);
  if (count < 0) return REC_NOT_YET;
  arm then = {vm, n->then, fp}, otherwise = {vm, n->otherwise, fp};
  rec_branch branch = {.at = n->h.at,
                       .then = {run_arm, &then},
                       .otherwise = {run_arm, &otherwise},
                       .assigned = {slots, count},
                       .used = n->h.flag & IF_USED,
                       .asks = true,
                       .leaves = n->h.flag & IF_LEAVES,
                       .last = n->h.flag & IF_LAST};
  vm_owned held;
  vm_own(vm, &held, vm_drop_value, &predicate);
  rec_answer answer = rec_if(vm, &branch, predicate, result);
  vm_disown(vm, &held);
  return answer;
}

static inline qn_value chosen_arm(qn_vm *vm, n_if *n, qn_value *fp, int truth) {
  if (truth) return eval(vm, n->then, fp);
  return n->otherwise ? eval(vm, n->otherwise, fp) : value_nil();
}

/* Does a value that stops say that the function returns? */
static inline bool is_return(qn_value r) { return !value_is_error(r) && r.u.i == SIGNAL_RETURN; }

/* As chosen_arm, for a branch inside a gradient; `from` is what rec_part_from gave. */
static __attribute__((noinline)) qn_value parted_arm(qn_vm *vm, n_if *n, qn_value *fp, int truth, uint32_t from) {
  if (n->h.flag & IF_LEAVES_TURN) rec_part_rest(vm, from);
  qn_value *slots[SITE_MAX], v = chosen_arm(vm, n, fp, truth);
  if (value_stops(v)) { /* what is returned from an arm is told apart */
    bool ok = !is_return(v) || rec_part_arm(vm, from, (rec_slots){NULL, 0}, &interp_of(vm)->returned);
    return ok ? v : value_error();
  }
  int count = site_slots(n->site, fp, slots);
  if (count < 0 || rec_part_arm(vm, from, (rec_slots){slots, count}, &v)) return v;
  value_release(vm, v);
  return value_error();
}

qn_value eval_if(qn_vm *vm, node *h, qn_value *fp) {
  n_if *n = (n_if *)h;
  qn_value c = eval(vm, n->cond, fp);
  int truth;
  if (__builtin_expect(c.head == TAG_BOOL, 1)) {
    truth = c.u.i != 0;
    uint32_t from = __builtin_expect(op_deferred(vm), 0) ? rec_part_from(vm, c, n->h.at) : 0;
    if (__builtin_expect(from != 0, 0)) return parted_arm(vm, n, fp, truth, from);
  } else {
    if (value_stops(c)) return c;
    if (rec_may_branch(vm, c)) {
      qn_value result = value_nil();
      rec_answer answer = offer_if(vm, n, c, fp, &result);
      if (answer == REC_DONE || answer == REC_LEFT || answer == REC_FAILED) {
        value_release(vm, c);
        return answer == REC_DONE ? result : answer == REC_LEFT ? value_signal(SIGNAL_RETURN) : value_error();
      }
      if (answer == REC_THEN || answer == REC_OTHERWISE) {
        uint32_t from = rec_part_from(vm, c, n->h.at);
        truth = answer == REC_THEN;
        value_release(vm, c);
        return from ? parted_arm(vm, n, fp, truth, from) : chosen_arm(vm, n, fp, truth);
      }
    }
    uint32_t from = rec_part_from(vm, c, n->h.at);
    truth = condition(vm, c, n->cond);
    if (truth < 0) return value_error();
    if (__builtin_expect(from != 0, 0)) return parted_arm(vm, n, fp, truth, from);
  }
  return chosen_arm(vm, n, fp, truth);
}

/* ---- the rest of a function ---------------------------------------------------------------------------------------------------- */

static qn_value run_tail(void *ctx, rec_exit *how) {
  arm *a = ctx;
  const n_tail *n = (const n_tail *)a->n;
  qn_value v = eval(a->vm, n->first, a->fp);
  for (uint32_t i = n->next; i < n->block->n && !value_stops(v); i++) {
    value_release(a->vm, v);
    v = eval(a->vm, n->block->items[i], a->fp);
    if (value_is_error(v)) raise_at(a->vm, n->block->items[i]->at);
  }
  *how = exit_of(a->vm, &v);
  return v;
}

static __attribute__((noinline)) rec_answer offer_tail(qn_vm *vm, n_tail *n, qn_value *fp, qn_value *result) {
  qn_value *slots[SITE_MAX];
  int count = site_slots(n->site, fp, slots);
  arm a = {vm, &n->h, fp};
  return count < 0 ? REC_NOT_YET : rec_tail(vm, n->h.at, (rec_arm){run_tail, &a}, (rec_slots){slots, count}, result);
}

/* eval_tail while something is recorded. Inside a gradient what the function returns is told apart, wherever it is that it returns. */
static __attribute__((noinline)) qn_value recorded_tail(qn_vm *vm, n_tail *n, qn_value *fp) {
  uint32_t from = n->leads ? rec_part_tail(vm) : 0;
  qn_value result = value_nil();
  rec_answer answer = offer_tail(vm, n, fp, &result);
  if (answer == REC_FAILED) return value_error();
  if (answer != REC_DONE) {
    if (!from) return eval(vm, n->first, fp);
    arm a = {vm, &n->h, fp};
    rec_exit how;
    result = run_tail(&a, &how);
    if (how == REC_ERROR) return result;
  }
  return rec_part_returned(vm, from, &result) ? returning(vm, result) : value_fail(vm, result);
}

qn_value eval_tail(qn_vm *vm, node *h, qn_value *fp) {
  n_tail *n = (n_tail *)h;
  return __builtin_expect(rec_may_leave(vm), 0) ? recorded_tail(vm, n, fp) : eval(vm, n->first, fp);
}

/* ---- try -------------------------------------------------------------------------------------------------------------------- */

/* Runs the handler on an error (taken over). */
static qn_value handle(qn_vm *vm, n_try *n, qn_value *fp, qn_error_object *e) {
  qn_value record = n->error_slot >= 0 ? error_to_record(vm, e) : value_nil();
  error_free(vm, e);
  if (value_is_error(record)) return record;
  if (n->error_slot >= 0) slot_set(vm, &fp[n->error_slot], record);
  qn_value r = eval(vm, n->handler, fp);
  if (n->error_slot >= 0) slot_set(vm, &fp[n->error_slot], value_nil());
  return r;
}

static qn_value handle_arm(void *ctx, qn_error_object *e, rec_exit *how) {
  arm *a = ctx;
  error_put_back(a->vm, e);
  trace_frame(a->vm, a->fp[-1]);
  qn_value v = handle(a->vm, (n_try *)a->n, a->fp, error_take(a->vm));
  *how = exit_of(a->vm, &v);
  return v;
}

/* A try inside a vmap. */
static __attribute__((noinline)) qn_value try_lanes(qn_vm *vm, n_try *n, qn_value *fp) {
  qn_value *slots[SITE_MAX], result = value_nil();
  int count = site_slots(n->site, fp, slots);
  if (count < 0)
    return raise_error(vm, E_not_batched, n->h.at, "vmap: a try here rebinds at most %d variables", SITE_MAX - 1);
  arm body = {vm, n->body, fp}, whole = {vm, &n->h, fp};
  rec_handler h = {{run_arm, &body},      handle_arm,           &whole,
                   {slots, count},        n->h.flag & TRY_USED, n->h.flag & TRY_SEES,
                   n->h.flag & TRY_LEAVES};
  rec_exit how = REC_VALUE;
  switch (rec_try_lanes(vm, &h, &how, &result)) {
  case REC_DONE: return result;
  case REC_LEFT: return value_signal(SIGNAL_RETURN);
  case REC_FAILED: return value_error();
  default: break;
  }
  switch (how) {
  case REC_RETURN: return returning(vm, result);
  case REC_BREAK: return value_signal(SIGNAL_BREAK);
  case REC_CONTINUE: return value_signal(SIGNAL_CONTINUE);
  default: return result;
  }
}

/* Offers the recorder a try in whose body arms may raise errors. */
static __attribute__((noinline)) rec_answer offer_try(qn_vm *vm, n_try *n, qn_value *fp, qn_value *result) {
  qn_value *slots[SITE_MAX];
  int count = site_slots(n->site, fp, slots);
  if (count < 0) return REC_NOT_YET;
  arm body = {vm, n->body, fp}, whole = {vm, &n->h, fp};
  rec_handler h = {{run_arm, &body},      handle_arm,           &whole,
                   {slots, count},        n->h.flag & TRY_USED, n->h.flag & TRY_SEES,
                   n->h.flag & TRY_LEAVES};
  return rec_try_arms(vm, n->h.at, &h, result);
}

/* What body or handler have given, inside a gradient: told apart as behind an arm (parted_arm). `from` is what rec_part_tail gave. */
static __attribute__((noinline)) qn_value parted_try(qn_vm *vm, n_try *n, qn_value *fp, uint32_t from, qn_value v) {
  qn_value *slots[SITE_MAX];
  if (value_stops(v)) return is_return(v) && !rec_part_returned(vm, from, &interp_of(vm)->returned) ? value_error() : v;
  int count = site_slots(n->site, fp, slots);
  return count < 0 || rec_part_arm(vm, from, (rec_slots){slots, count}, &v) ? v : value_fail(vm, v);
}

static qn_value eval_plain_try(qn_vm *vm, n_try *n, qn_value *fp) {
  qn_value *mark = vm->sp;
  struct recording *in;
  if (!rec_try_begin(vm, &in)) return value_error();
  qn_value r = eval(vm, n->body, fp);
  rec_try_end(vm, in);
  if (!value_is_error(r) || !error_catchable(vm) || !rec_try_catches(vm, in)) return r;
  vm_pop_to(vm, mark);
  trace_frame(vm, fp[-1]);
  qn_error_object *e = error_take(vm);
  if (!rec_try_caught(vm, in, e, n->error_slot >= 0)) {
    error_free(vm, e);
    return value_error();
  }
  return handle(vm, n, fp, e);
}

/* eval_try while something is recorded. */
static __attribute__((noinline)) qn_value recorded_try(qn_vm *vm, n_try *n, qn_value *fp) {
  qn_value result = value_nil();
  if (rec_in_vmap(vm)) return try_lanes(vm, n, fp);
  uint32_t from = rec_part_tail(vm);
  if (rec_may_leave(vm)) {
    rec_answer answer = offer_try(vm, n, fp, &result);
    if (answer == REC_LEFT) return value_signal(SIGNAL_RETURN);
    if (answer != REC_NOT_YET) return answer == REC_DONE ? result : value_error();
  }
  result = eval_plain_try(vm, n, fp);
  return from ? parted_try(vm, n, fp, from, result) : result;
}

qn_value eval_try(qn_vm *vm, node *h, qn_value *fp) {
  n_try *n = (n_try *)h;
  return __builtin_expect(rec_may_leave(vm), 0) ? recorded_try(vm, n, fp) : eval_plain_try(vm, n, fp);
}

/* ---- loops ------------------------------------------------------------------------------------------------------------------- */

/* To be called after a body, whose value is *r (taken over). True if the loop goes on; else *r is the value of the loop. */
static inline bool next_iteration(qn_vm *vm, qn_value *r) {
  if (!value_stops(*r)) {
    value_release(vm, *r);
    return true;
  }
  if (value_is_error(*r) || r->u.i == SIGNAL_RETURN) return false;
  if (r->u.i == SIGNAL_CONTINUE) return true;
  *r = value_nil();
  return false;
}

/* What making a turn of a loop takes, when the recorder asks for one. */
typedef struct turn {
  qn_vm *vm;
  qn_value *fp;
  node *cond, *body;
  lvalue *target;
  qn_value over;          /* what the loop iterates over; nil: `bounds`, or the numbers themselves */
  const qn_value *bounds; /* start, end and step of a range, host ints that may be traced; NULL: there are none */
} turn;

static qn_value turn_test(void *ctx, rec_exit *how) {
  turn *t = ctx;
  qn_value v = eval(t->vm, t->cond, t->fp);
  *how = exit_of(t->vm, &v);
  return v;
}

/* The item of a range of which all items times its step are ints (range_computes), with a number; any of them may be traced. Owned, or the error
 * value. */
static qn_value traced_item(qn_vm *vm, qn_value start, qn_value step, qn_value number) {
  bool one = !value_node(step) && step.u.i == 1, from_0 = !value_node(start) && start.u.i == 0;
  qn_value by = one ? number : op_binary(vm, OP_mul, number, step);
  return value_is_error(by) || from_0 ? by : op_binary(vm, OP_add, by, start);
}

/* Are the items of a range computed without overflow? */
static bool range_computes(const qn_range *r) {
  int64_t last;
  return !__builtin_mul_overflow(range_length(r), r->step, &last);
}

/* The item of the turn with this number; if it is traced, what is gone over is no list but a stacked one. Owned, or the error value. */
static qn_value turn_item(const turn *t, qn_value number) {
  switch (value_tag_of(t->over)) {
  case TAG_ARRAY:
    return value_node(number) ? rec_row(t->vm, t->over, number) : op_index_row(t->vm, t->over, number.u.i);
  case TAG_LIST:
    return value_is_stacked(t->over) ? rec_stacked_item(t->vm, t->over, number)
                                     : value_retain(value_list(t->over)->items[number.u.i]);
  case TAG_RANGE: {
    const qn_range *r = value_range(t->over);
    return value_node(number) ? traced_item(t->vm, value_int(r->start), value_int(r->step), number)
                              : value_int(range_item(r, number.u.i));
  }
  default: return t->bounds ? traced_item(t->vm, t->bounds[0], t->bounds[2], number) : number;
  }
}

static qn_value turn_body(void *ctx, qn_value number, rec_exit *how) {
  turn *t = ctx;
  qn_value item = turn_item(t, number);
  bool bound = !value_is_error(item) && (!t->target || lvalue_bind(t->vm, t->target, t->fp, item));
  qn_value v = bound ? eval(t->vm, t->body, t->fp) : value_error();
  *how = exit_of(t->vm, &v);
  return v;
}

/* Offers the turns that are left to the recorder, with the variables that they may rebind. */
static rec_answer offer_loop(qn_vm *vm, span at, const site *s, turn *t, rec_turns turns, rec_tries *tries) {
  qn_value *slots[SITE_MAX];
  int count = site_slots(s, t->fp, slots);
  if (count < 0) tries->left = 0;
  turns.test = turn_test, turns.body = turn_body, turns.ctx = t, turns.grown = s->grown;
  turns.stacks = s->returned && rec_uses_result(vm) ? s->stacks & ~s->returned : s->stacks;
  turns.stores = s->stores & turns.stacks;
  if (count < 0) return REC_NOT_YET;
  rec_answer answer = tries->left ? rec_loop(vm, at, &turns, (rec_slots){slots, count}, tries) : REC_NOT_YET;
  if (answer == REC_NOT_YET && tries->apart) {
    tries->apart = false;
    answer = rec_unroll(vm, at, &turns, (rec_slots){slots, count}, tries);
  }
  return answer;
}

/* Inside a gradient, before the first turn of a loop that may be captured and after each: tells variables apart that share a value
 * (rec_part_turn). False with an error raised. */
static __attribute__((noinline)) bool part_variables(qn_vm *vm, const site *s, qn_value *fp, rec_tries *tries) {
  qn_value *slots[SITE_MAX];
  int count = site_slots(s, fp, slots);
  return count < 0 || rec_part_turn(vm, (rec_slots){slots, count}, s->grown, tries);
}

static inline bool parted_turn(qn_vm *vm, const site *s, qn_value *fp, rec_tries *tries) {
  return __builtin_expect(tries->parts == NULL, 1) || part_variables(vm, s, fp, tries);
}

/* Likewise after a body that has given *r. If it has left the function what that returns is told apart. If memory is short *r becomes the error
 * value. */
static __attribute__((noinline)) void part_behind(qn_vm *vm, const site *s, qn_value *fp, rec_tries *tries,
                                                  qn_value *r) {
  if (value_is_error(*r)) { /* a handler may read the variables */
    qn_value *slots[SITE_MAX];
    int count = site_slots(s, fp, slots);
    (void)(count < 0 || rec_part_raised(vm, (rec_slots){slots, count}, s->grown, tries));
    return;
  }
  bool returns = value_stops(*r) && is_return(*r);
  if (returns ? !rec_part_returned(vm, tries->from, &interp_of(vm)->returned) : !part_variables(vm, s, fp, tries))
    *r = value_fail(vm, *r);
}

static inline void part_after(qn_vm *vm, const site *s, qn_value *fp, rec_tries *tries, qn_value *r) {
  if (__builtin_expect(tries->parts != NULL, 0)) part_behind(vm, s, fp, tries, r);
}

/* As offer_loop, for a loop over the items of a range with these bounds (NULL: over numbers), or over the rows of an array. */
static __attribute__((noinline)) rec_answer offer_items(qn_vm *vm, n_for *n, qn_value *fp, qn_value over,
                                                        const qn_value *bounds, qn_value first, qn_value end,
                                                        rec_tries *tries) {
  turn t = {.vm = vm, .fp = fp, .body = n->turn, .target = n->target, .over = over, .bounds = bounds};
  rec_turns turns = {.counts = true, .first = first, .end = end};
  return offer_loop(vm, n->h.at, n->site, &t, turns, tries);
}

static rec_answer offer_for(qn_vm *vm, n_for *n, qn_value *fp, qn_value over, qn_value first, qn_value end,
                            rec_tries *tries) {
  return offer_items(vm, n, fp, over, NULL, first, end, tries);
}

/* The array whose rows are counted in a loop over an array or a stacked list. */
static inline qn_value rows_of(qn_value over) { return value_is_stacked(over) ? stacked_lead(over) : over; }

/* offer_for, from row i of an array, or item i of a stacked list, on. How many rows there are need not be known, unless turns are captured one
 * by one. */
static __attribute__((noinline)) rec_answer offer_rows(qn_vm *vm, n_for *n, qn_value *fp, qn_value over, int64_t i,
                                                       rec_tries *tries) {
  bool apart = tries->apart;
  qn_value rows = rows_of(over), end = tries->left ? rec_length(vm, rows) : value_unset();
  if (value_is_error(end)) return REC_FAILED;
  if (value_node(end)) {
    tries->apart = false;
    rec_answer answer = offer_for(vm, n, fp, over, value_int(i), end, tries);
    if (answer != REC_NOT_YET || !apart) return answer;
    tries->apart = true;
  }
  if (!rec_length_seen(vm, rows)) return REC_FAILED;
  return offer_for(vm, n, fp, over, value_int(i), value_int(value_array(rows)->shape[0]), tries);
}

/* The turns of loops as calls. */
static turn_parts for_parts(const n_for *n) {
  return (turn_parts){.target = n->target,
                      .body = n->turn,
                      .at = n->h.at,
                      .run = n->site->grown ? NULL
                                            : n->site, /* a list that is longer after each turn is not like before */
                      .leaves = n->h.flag & (LOOP_LEAVES | LOOP_RETURNS),
                      .returns = n->h.flag & LOOP_RETURNS};
}

static turn_parts while_parts(const n_while *n) {
  return (turn_parts){.body = n->turn,
                      .cond = n->cond,
                      .at = n->h.at,
                      .run = n->site->grown ? NULL : n->site,
                      .leaves = n->h.flag & (LOOP_LEAVES | LOOP_RETURNS),
                      .returns = n->h.flag & LOOP_RETURNS};
}

/* As loop_turns, while something is recorded: offers them to the recorder, and ends a capture that cannot have them. */
static rec_answer offer_turns(qn_vm *vm, turn *t, const turn_parts *parts, qn_value first, qn_value end,
                              rec_ends *ends) {
  rec_tries tries = rec_loop_begins(vm);
  tries.left = tries.left ? 1 : 0;
  const rec_turns turns = {.counts = true, .tests = parts->cond != NULL, .ends = ends, .first = first, .end = end};
  rec_answer answer = offer_loop(vm, parts->at, parts->run, t, turns, &tries);
  rec_loop_ends(vm, &tries);
  return answer == REC_NOT_YET && !rec_loop_refused(vm) ? REC_FAILED : answer;
}

bool loop_turns(qn_vm *vm, const turn_parts *parts, qn_value *fp, qn_value over, qn_value first, qn_value end,
                rec_ends *ends) {
  turn t = {.vm = vm, .fp = fp, .cond = parts->cond, .body = parts->body, .target = parts->target, .over = over};
  *ends = (rec_ends){value_bool(false), value_bool(false), value_bool(true), value_nil()};
  rec_answer answer = op_deferred(vm) ? offer_turns(vm, &t, parts, first, end, ends) : REC_NOT_YET;
  if (answer != REC_NOT_YET) return answer == REC_DONE;
  int64_t i, stop;
  if (!index_int(vm, first, RANGE_START, &i) || !index_int(vm, end, RANGE_END, &stop)) return false;
  for (bool goes = true; i < stop && goes; i++) {
    if (__builtin_expect(vm_poll_between(vm), 0)) return raise_at(vm, parts->at), false;
    rec_exit how;
    qn_value v = turn_body(&t, value_int(i), &how);
    if (parts->cond && (how == REC_VALUE || how == REC_CONTINUE)) {
      value_release(vm, v);
      v = turn_test(&t, &how);
      int truth = how == REC_VALUE ? condition(vm, v, parts->cond) : 0;
      if (truth < 0) return false;
      if (how == REC_VALUE) v = value_nil();
      goes = truth;
    }
    if (how == REC_ERROR) return false;
    if (how == REC_RETURN)
      ends->returned = v;
    else
      value_release(vm, v);
    ends->returns = value_bool(how == REC_RETURN);
    ends->left = value_bool(how == REC_RETURN || how == REC_BREAK);
    goes &= !ends->left.u.i;
    if (parts->cond) ends->goes = value_bool(goes);
  }
  return true;
}

/* Of a loop over `end` items or numbers, the one before which is asked again, when `from` is next. */
static inline int64_t pass_until(const qn_vm *vm, const n_for *n, int64_t from, int64_t end) {
  int64_t pass = turns_pass(vm, n->turns);
  uint64_t left = from < end ? (uint64_t)end - (uint64_t)from : 0;
  return (uint64_t)pass < left ? from + pass : end;
}

/* A bound of a loop while something is recorded: a number that the recording may not know yet. As range_bound, else. */
static bool traced_bound(qn_vm *vm, node *n, qn_value *fp, const char *what, qn_value *out, qn_value *stopped) {
  qn_value v = *stopped = eval(vm, n, fp);
  if (value_stops(v)) return false;
  if (rec_offers_count(vm, v)) {
    *out = value_is(v, TAG_ARRAY) ? rec_host_number(vm, v, WEAK_INT) : v;
    value_release(vm, v);
    if (value_is_error(*out)) *stopped = raise_at(vm, n->at);
    return !value_is_error(*out);
  }
  int64_t i;
  bool ok = index_int(vm, v, what, &i);
  value_release(vm, v);
  if (!ok) *stopped = raise_at(vm, n->at);
  *out = value_int(ok ? i : 0);
  return ok;
}

/* Offers a loop whose bounds are not known, over numbers or over the items of a range with these bounds. Where a turn changes what variables
 * are, it is made as usual, and the loop is offered once more behind it: then *first is the next number. False: the loop is over, with value *r. */
static bool offer_traced(qn_vm *vm, n_for *n, qn_value *fp, const qn_value *bounds, qn_value *first, qn_value end,
                         qn_value *r) {
  rec_tries tries = rec_loop_begins(vm);
  bool rest = false;
  *r = parted_turn(vm, n->site, fp, &tries) ? value_nil() : value_error();
  while (!value_stops(*r)) {
    rec_answer answer = offer_items(vm, n, fp, value_nil(), bounds, *first, end, &tries);
    if (answer == REC_FAILED) *r = value_error();
    rest = answer == REC_NOT_YET && !tries.left;
    if (answer != REC_NOT_YET || rest) break;
    int goes = rec_turn_goes(vm, *first, end);
    if (goes < 0) *r = raise_at(vm, n->h.at);
    if (goes <= 0) break;
    qn_value item = bounds ? traced_item(vm, bounds[0], bounds[2], *first) : *first;
    if (value_is_error(item) || (n->target->kind != LVALUE_NONE && !lvalue_bind(vm, n->target, fp, item))) {
      *r = raise_at(vm, n->h.at);
      break;
    }
    *r = eval(vm, n->turn, fp);
    part_after(vm, n->site, fp, &tries, r);
    if (!next_iteration(vm, r)) break;
    *r = value_nil();
    *first = op_binary(vm, OP_add, *first, value_int(1));
    if (value_is_error(*first)) *r = value_error();
  }
  rec_loop_ends(vm, &tries);
  return rest;
}

/* Evaluates the bounds of a loop while something is recorded, and offers the loop if they are not known; *offered: it was. False: the loop
 * is over, with value *r. */
static __attribute__((noinline)) bool for_traced(qn_vm *vm, n_for *n, qn_value *fp, int64_t *start, int64_t *stop,
                                                 bool *offered, qn_value *r) {
  qn_value first, end;
  if (!traced_bound(vm, n->start, fp, RANGE_START, &first, r) || !traced_bound(vm, n->stop, fp, RANGE_END, &end, r))
    return false;
  *offered = value_node(first) || value_node(end);
  if (*offered && !offer_traced(vm, n, fp, NULL, &first, end, r)) {
    if (n->target->kind == LVALUE_LOCAL) slot_set(vm, &fp[n->target->slot], value_nil());
    return false;
  }
  bool known = index_int(vm, first, RANGE_START, start) && index_int(vm, end, RANGE_END, stop);
  if (!known) *r = raise_at(vm, n->stop->at);
  return known;
}

/* Is this a loop over calls inside a vmap, of which there are more in some lanes than in others? */
static bool calls_differ(qn_vm *vm, const n_for *n, qn_value *fp) {
  if (!(n->h.flag & LOOP_CALLS) || !rec_in_vmap(vm)) return false;
  qn_value end = eval(vm, n->stop, fp); /* a variable that the loop does not rebind */
  bool differ = value_is(end, TAG_INT) && rec_is_lane(vm, end);
  value_release(vm, end);
  return differ;
}

/* Such a loop. The first turn is that of all lanes that make one, and so on, which is the order in which each lane would make its own. */
static __attribute__((noinline)) qn_value for_lanes(qn_vm *vm, n_for *n, qn_value *fp) {
  vmap_loop *lanes;
  if (!vmap_loop_begin(vm, &lanes, &n->h, n->site, fp)) return value_error();
  rec_tries tries = rec_loop_begins(vm);
  qn_value r = parted_turn(vm, n->site, fp, &tries) ? value_nil() : value_error();
  for (int64_t i = 0; !value_is_error(r); i++) {
    qn_value end = eval(vm, n->stop, fp), goes = op_binary(vm, OP_lt, value_int(i), end);
    rec_at(vm, n->stop->at);
    int truth = value_is_error(goes) ? -1 : rec_loop_test(vm, &lanes->frame, goes, 0);
    value_release(vm, end);
    value_release(vm, goes);
    if (truth >= 0 && vm_poll_between(vm)) truth = -1;
    r = truth < 0 ? raise_at(vm, n->h.at) : value_nil();
    if (truth <= 0) break;
    r = lvalue_bind(vm, n->target, fp, value_int(i)) ? eval(vm, n->turn, fp) : value_error();
    part_after(vm, n->site, fp, &tries, &r);
    if (!vmap_loop_next(vm, lanes, &r)) break;
  }
  rec_loop_ends(vm, &tries);
  r = vmap_loop_end(vm, lanes, r);
  for (uint32_t i = n->first; i < n->last; i++) slot_set(vm, &fp[i], value_nil());
  return r;
}

qn_value eval_for_range(qn_vm *vm, node *h, qn_value *fp) {
  n_for *n = (n_for *)h;
  int64_t start, stop;
  qn_value r;
  bool offered = false;
  if (__builtin_expect(op_deferred(vm), 0)) {
    if (calls_differ(vm, n, fp)) return for_lanes(vm, n, fp);
    if (!for_traced(vm, n, fp, &start, &stop, &offered, &r)) return r;
  } else if (!range_bound(vm, n->start, fp, RANGE_START, &start, &r) ||
             !range_bound(vm, n->stop, fp, RANGE_END, &stop, &r)) {
    return r;
  }
  bool local = n->target->kind == LVALUE_LOCAL, unused = n->target->kind == LVALUE_NONE;
  qn_value *variable = local ? &fp[n->target->slot] : NULL;
  node *body = op_deferred(vm) ? n->turn : n->body;
  vmap_loop *lanes;
  if (!vmap_loop_begin(vm, &lanes, h, n->site, fp)) return value_error();
  rec_tries tries = rec_loop_begins(vm);
  if (offered) tries.left = 0;
  tries.apart = op_deferred(vm) && !lanes && (h->flag & LOOP_LEAVES);
  /* Turns before `until` are made without a question: a recording asks before its first ones, and hot loops outside recordings ask. */
  bool recorded = op_deferred(vm);
  int64_t i = start, asked = start,
          until = recorded ? (tries.left || tries.apart ? start : stop) : pass_until(vm, n, start, stop);
  bool parted = parted_turn(vm, n->site, fp, &tries);
  if (!parted) stop = until = start;
  for (;; i++) {
    if (i >= until) {
      r = value_nil();
      if (i >= stop) break;
      if (recorded) {
        rec_answer answer = offer_for(vm, n, fp, value_nil(), value_int(i), value_int(stop), &tries);
        if (answer == REC_FAILED) r = value_error();
        if (answer == REC_LEFT) r = value_signal(SIGNAL_RETURN);
        if (answer != REC_NOT_YET) break;
        until = tries.left ? i + 1 : stop;
      } else if (!vm_poll_between(vm)) {
        turn_parts parts = for_parts(n);
        turns_passed(n->turns, i - asked);
        asked = i + 1;
        int64_t many = turns_may_run(vm) ? turns_run(vm, n->turns, &parts, fp, value_nil(), i, stop, &r, NULL) : 0;
        if (many < 0 || (!many && !turn_called(vm, n->turns, &parts, fp, value_int(i), &r, NULL))) break;
        if (many) i += many - 1, asked = i + 1;
        until = pass_until(vm, n, asked, stop);
        continue;
      } else {
        r = raise_at(vm, h->at);
        break;
      }
    }
    if (__builtin_expect(vm_poll_between(vm), 0)) {
      r = raise_at(vm, h->at);
      break;
    }
    if (local) {
      if (value_is_heap(*variable)) value_release(vm, *variable);
      *variable = value_int(i);
    } else if (!unused && !lvalue_bind(vm, n->target, fp, value_int(i))) {
      r = value_error();
      break;
    }
    r = eval(vm, body, fp);
    if (__builtin_expect(recorded, 0)) {
      part_after(vm, n->site, fp, &tries, &r);
      if (!(lanes ? vmap_loop_next(vm, lanes, &r) : next_iteration(vm, &r))) break;
    } else if (!next_iteration(vm, &r)) {
      break;
    }
  }
  if (n->turns && !recorded && i > asked) turns_passed(n->turns, i - asked);
  rec_loop_ends(vm, &tries);
  if (!parted) r = value_error();
  r = vmap_loop_end(vm, lanes, r);
  if (local) slot_set(vm, variable, value_nil());
  return r;
}

static int64_t iterable_length(qn_value v) {
  switch (value_tag_of(v)) {
  case TAG_LIST: return value_list(v)->len;
  case TAG_RANGE: return range_length(value_range(v));
  case TAG_ARRAY: return value_array(v)->rank ? value_array(v)->shape[0] : -1;
  case TAG_STR: return value_str(v)->len; /* in bytes: the loop advances by the length of each code point */
  default: return -1;
  }
}

static __attribute__((cold)) qn_value fail_iterable(qn_vm *vm, qn_value v, node *at) {
  text_buf t = {.vm = vm};
  text_adds(&t, "cannot loop over ");
  text_kind(&t, v);
  if (value_is(v, TAG_INT)) text_addf(&t, "; 0..%lld counts", (long long)v.u.i);
  if (value_is(v, TAG_RECORD)) text_adds(&t, "; items(r), keys(r) and values(r) are lists");
  return raise_text(vm, E_not_iterable, at->at, &t);
}

/* Evaluates a call in the header of a loop while something is recorded, and offers the loop if it is over a range that need not be known. Gives
 * what the loop goes over, what is left of it; or what stops; or unset: the loop is over, with value *r. */
static __attribute__((noinline)) qn_value range_traced(qn_vm *vm, n_for *n, qn_value *fp, qn_value *r) {
  qn_value bounds[COUNT_VALUES];
  int64_t known[COUNT_FIRST + 1];
  bool counts;
  qn_value it = call_counting(vm, n->iterable, fp, bounds, &counts);
  if (!counts || value_stops(it)) return it;
  if (!offer_traced(vm, n, fp, bounds, &bounds[COUNT_FIRST], bounds[COUNT_END], r)) return value_unset();
  bool ok = true;
  for (int k = 0; k <= COUNT_FIRST && ok; k++) ok = index_int(vm, bounds[k], RANGE_END, &known[k]);
  int64_t next;
  if (ok &&
      (__builtin_mul_overflow(known[COUNT_FIRST], known[2], &next) || __builtin_add_overflow(next, known[0], &next)))
    next = known[1]; /* it would be behind the end */
  qn_range *range = ok ? range_new(vm, next, known[1], known[2]) : NULL;
  return range ? value_obj(TAG_RANGE, range) : raise_at(vm, n->iterable->at);
}

/* The characters of a text (taken over) as a list, for a loop that is offered to the recorder turn by turn. Owned, or the error value. */
static __attribute__((noinline)) qn_value characters(qn_vm *vm, qn_value text) {
  const qn_str *s = value_str(text);
  uint32_t n = 0, code;
  for (uint32_t at = 0; at < s->len; n++) at += (uint32_t)utf8_decode(s->text + at, &code);
  qn_list *l = list_new(vm, n);
  bool ok = l != NULL;
  for (uint32_t i = 0, at = 0; i < n && ok; i++) {
    uint32_t bytes = (uint32_t)utf8_decode(s->text + at, &code);
    qn_str *one = str_new(vm, s->text + at, bytes);
    ok = one != NULL;
    if (ok) l->items[i] = value_obj(TAG_STR, one);
    at += bytes;
  }
  value_release(vm, text);
  if (ok) return value_obj(TAG_LIST, l);
  return l ? value_fail(vm, value_obj(TAG_LIST, l)) : value_error();
}

/* Are the turns of a loop over this value offered one by one, if only it is a list? (Of a longer text most turns would be in vain.) */
static bool offers_text(const qn_vm *vm, const node *h, qn_value it) {
  enum { MOST = 4096 };
  return op_deferred(vm) && value_is(it, TAG_STR) && (h->flag & LOOP_LEAVES) && value_str(it)->len <= MOST &&
         !rec_in_vmap(vm);
}

/* Is it a list that other calls may be given as rows of arrays? Then gradients have the same bits either way if its turns are told apart, too. */
static bool may_be_rows(qn_vm *vm, const n_for *n, qn_value it) {
  const node *of = n->iterable;
  bool may = of->kind == N_FIELD || of->kind == N_BINARY || of->eval == eval_call || of->eval == eval_method ||
             of->eval == eval_index || (n->anchor && (n->anchor->stackable >> of->slot & 1));
  return may && rec_stacks(vm, it);
}

qn_value eval_for(qn_vm *vm, node *h, qn_value *fp) {
  n_for *n = (n_for *)h;
  qn_value it, over;
  if (__builtin_expect(op_deferred(vm), 0) && n->iterable->eval == eval_call) {
    it = range_traced(vm, n, fp, &over);
    if (value_is(it, TAG_UNSET)) {
      for (uint32_t i = n->first; i < n->last; i++) slot_set(vm, &fp[i], value_nil());
      return over;
    }
  } else {
    it = eval(vm, n->iterable, fp);
  }
  if (value_stops(it)) return it;
  if (!rec_look(vm, it) || !rec_iterates(vm, &it)) return value_fail(vm, it);
  if (__builtin_expect(value_is_counted(it), 0) && !rec_counted_cut(vm, &it)) return value_fail(vm, it);
  if (__builtin_expect(value_is_counted(it), 0) && !rec_make_plain(vm, &it)) return value_fail(vm, it);
  if (__builtin_expect(offers_text(vm, h, it), 0) && value_is_error(it = characters(vm, it))) return it;
  bool stacked = value_is_stacked(it);
  int64_t len = iterable_length(stacked ? stacked_lead(it) : it);
  qn_value r = value_nil(), *mark = vm->sp;
  if (len < 0 || !vm_enter(vm, 1)) {
    r = len < 0 ? fail_iterable(vm, it, n->iterable) : value_error();
    raise_at(vm, h->at);
    value_release(vm, it);
    return r;
  }
  *vm->sp++ = it;
  vmap_loop *lanes;
  if (!vmap_loop_begin(vm, &lanes, h, n->site, fp)) return vm_pop_with(vm, mark, value_error());
  bool shown = (value_is(it, TAG_LIST) || value_is(it, TAG_RANGE)) && ((obj_head *)it.u.p)->aux == OBJ_PROGRESS;
  rec_tries tries = rec_loop_begins(vm);
  bool recorded = op_deferred(vm), rows = recorded && (value_is(it, TAG_ARRAY) || stacked);
  tries.apart = recorded && !lanes && !shown && !value_is(it, TAG_STR) && (h->flag & LOOP_LEAVES);
  bool counted = value_is(it, TAG_RANGE) && !shown && range_computes(value_range(it));
  if (!value_is(it, TAG_ARRAY) && !counted && !stacked) {
    tries.left = 0;
    if (!(h->flag & LOOP_LEAVES) && !(tries.parts && may_be_rows(vm, n, it))) tries.parts = NULL;
  }
  /* in texts, `i` counts bytes */
  int64_t i = 0, asked = 0, until = recorded || value_is(it, TAG_STR) ? len : pass_until(vm, n, 0, len);
  if (!parted_turn(vm, n->site, fp, &tries)) len = 0, r = value_error();
  while (i < len) {
    if (__builtin_expect(vm_poll_between(vm), 0)) {
      r = raise_at(vm, h->at);
      break;
    }
    if (__builtin_expect(tries.left | tries.apart, 0)) {
      rec_answer answer =
          rows ? offer_rows(vm, n, fp, it, i, &tries) : offer_for(vm, n, fp, it, value_int(i), value_int(len), &tries);
      if (answer == REC_FAILED) r = value_error();
      if (answer == REC_LEFT) r = value_signal(SIGNAL_RETURN);
      if (answer != REC_NOT_YET) break;
    }
    if (__builtin_expect(rows, 0) && !tries.left && !rec_length_seen(vm, rows_of(it))) { /* it is unrolled */
      r = raise_at(vm, h->at);
      break;
    }
    if (__builtin_expect(i >= until && !shown, 0) && turns_may_run(vm) &&
        (value_is(it, TAG_ARRAY) || value_is(it, TAG_LIST) || counted)) {
      turn_parts parts = for_parts(n);
      int64_t many = turns_run(vm, n->turns, &parts, fp, it, i, len, &r, NULL);
      if (many < 0) break;
      if (many) {
        turns_passed(n->turns, i - asked);
        asked = i += many;
        until = pass_until(vm, n, i, len);
        continue;
      }
    }
    if (__builtin_expect(shown, 0)) vm->hooks.progress(vm, i, len);
    qn_value item;
    int64_t step = 1;
    switch (value_tag_of(it)) {
    case TAG_LIST:
      if (stacked) rec_at(vm, n->iterable->at);
      item = stacked ? rec_stacked_item(vm, it, value_int(i)) : value_retain(value_list(it)->items[i]);
      if (!stacked && !rec_plain_field(vm, &item)) item = value_fail(vm, item);
      break;
    case TAG_RANGE: item = value_int(range_item(value_range(it), i)); break;
    case TAG_ARRAY:
      rec_at(vm, n->iterable->at);
      item = op_index_row(vm, it, i);
      break;
    default: {
      uint32_t code;
      step = utf8_decode(value_str(it)->text + i, &code);
      qn_str *s = str_new(vm, value_str(it)->text + i, (size_t)step);
      item = s ? value_obj(TAG_STR, s) : value_error();
    }
    }
    if (i >= until && !value_is_error(item)) {
      turn_parts parts = for_parts(n);
      turns_passed(n->turns, i - asked);
      asked = ++i;
      if (!turn_called(vm, n->turns, &parts, fp, item, &r, NULL)) break;
      until = pass_until(vm, n, i, len);
      continue;
    }
    if (value_is_error(item) || !lvalue_bind(vm, n->target, fp, item)) {
      r = raise_at(vm, n->iterable->at);
      break;
    }
    i += step;
    r = eval(vm, recorded ? n->turn : n->body, fp);
    if (__builtin_expect(recorded, 0)) {
      part_after(vm, n->site, fp, &tries, &r);
      if (!(lanes ? vmap_loop_next(vm, lanes, &r) : next_iteration(vm, &r))) break;
    } else if (!next_iteration(vm, &r)) {
      break;
    }
    r = value_nil();
  }
  if (n->turns && !recorded && i > asked) turns_passed(n->turns, i - asked);
  if (rows && i == len && !value_is_error(r) && !rec_length_seen(vm, rows_of(it))) r = value_fail(vm, r);
  rec_loop_ends(vm, &tries);
  r = vmap_loop_end(vm, lanes, r);
  if (shown) vm->hooks.progress(vm, len, len);
  vm_pop_to(vm, mark);
  for (uint32_t i = n->first; i < n->last; i++) slot_set(vm, &fp[i], value_nil());
  return r;
}

/* A while loop inside a vmap, whose condition may be true in some lanes only. */
static qn_value while_lanes(qn_vm *vm, n_while *n, qn_value *fp) {
  vmap_loop *lanes;
  if (!vmap_loop_begin(vm, &lanes, &n->h, n->site, fp)) return value_error();
  rec_tries tries = rec_loop_begins(vm);
  qn_value r = value_nil();
  if (!parted_turn(vm, n->site, fp, &tries)) r = value_error();
  while (!value_is_error(r)) {
    qn_value c = eval(vm, n->cond, fp);
    int truth = -1;
    if (value_stops(c)) {
      if (!vmap_loop_next(vm, lanes, &c)) {
        r = c;
        break;
      }
      continue;
    }
    if (rec_is_lane(vm, c)) {
      rec_at(vm, n->cond->at);
      truth = rec_loop_test(vm, &lanes->frame, c, 0);
      if (truth == -1) raise_at(vm, n->cond->at);
      if (truth == -2)
        truth = condition(vm, c, n->cond);
      else
        value_release(vm, c);
    } else {
      truth = condition(vm, c, n->cond);
      if (truth >= 0) truth = rec_loop_test(vm, &lanes->frame, value_bool(truth), truth);
    }
    if (truth >= 0 && vm_poll_between(vm)) {
      raise_at(vm, n->h.at);
      truth = -1;
    }
    r = truth < 0 ? value_error() : value_nil();
    if (truth <= 0) break;
    r = eval(vm, n->turn, fp);
    part_after(vm, n->site, fp, &tries, &r);
    if (!vmap_loop_next(vm, lanes, &r)) break;
  }
  rec_loop_ends(vm, &tries);
  return vmap_loop_end(vm, lanes, r);
}

/* `goes` (borrowed): the condition as it was evaluated. */
static __attribute__((noinline)) rec_answer offer_while(qn_vm *vm, n_while *n, qn_value *fp, qn_value goes,
                                                        rec_tries *tries) {
  turn t = {.vm = vm, .fp = fp, .cond = n->cond, .body = n->turn, .over = value_nil()};
  return offer_loop(vm, n->h.at, n->site, &t, (rec_turns){.breaks = n->h.flag & LOOP_LEAVES, .first = goes}, tries);
}

/* The loop's value. */
static inline qn_value run_while(qn_vm *vm, n_while *n, qn_value *fp, rec_tries *tries) {
  int64_t pass = turns_pass(vm, n->turns), left = pass;
  node *body = op_deferred(vm) ? n->turn : n->body;
  if (!parted_turn(vm, n->site, fp, tries)) return value_error();
  rec_loop_tests(vm, tries);
  qn_value c = eval(vm, n->cond, fp), r = value_nil();
  for (;;) {
    int truth;
    if (__builtin_expect(tries->left | tries->apart, 0) && !value_stops(c)) {
      tries->apart &= c.head == TAG_BOOL && c.u.i;
      rec_answer answer = offer_while(vm, n, fp, c, tries);
      if (answer != REC_NOT_YET) {
        value_release(vm, c);
        if (answer == REC_FAILED) r = value_error();
        if (answer == REC_LEFT) r = value_signal(SIGNAL_RETURN);
        break;
      }
    }
    if (__builtin_expect(c.head == TAG_BOOL, 1)) {
      truth = c.u.i != 0;
    } else {
      truth = value_stops(c) ? -1 : condition(vm, c, n->cond);
      if (truth < 0) r = value_stops(c) ? c : value_error();
    }
    if (truth <= 0) break;
    if (__builtin_expect(vm_poll_between(vm), 0)) {
      r = raise_at(vm, n->h.at);
      break;
    }
    if (__builtin_expect(left <= 0, 0)) {
      turns_passed(n->turns, pass);
      turn_parts parts = while_parts(n);
      int64_t many = turns_may_run(vm) ? turns_run(vm, n->turns, &parts, fp, value_nil(), 0, INT64_MAX, &r, &c) : 0;
      bool on = many ? many > 0 : turn_called(vm, n->turns, &parts, fp, value_nil(), &r, &c);
      pass = left = turns_pass(vm, n->turns);
      if (!on) break;
      continue;
    }
    left--;
    r = eval(vm, body, fp);
    part_after(vm, n->site, fp, tries, &r);
    if (!next_iteration(vm, &r)) break;
    r = value_nil();
    rec_loop_tests(vm, tries);
    c = eval(vm, n->cond, fp);
  }
  if (pass != INT64_MAX && pass > left) turns_passed(n->turns, pass - left);
  return r;
}

qn_value eval_while(qn_vm *vm, node *h, qn_value *fp) {
  n_while *n = (n_while *)h;
  if (rec_in_vmap(vm)) return while_lanes(vm, n, fp);
  rec_tries tries = rec_loop_begins(vm);
  tries.apart = op_deferred(vm) && (h->flag & LOOP_LEAVES);
  qn_value r = run_while(vm, n, fp, &tries);
  rec_loop_ends(vm, &tries);
  return r;
}

/* ---- recursion as a loop ------------------------------------------------------------------------------------------------------ */

static const char nests_too_deep[] = "calls nest too deep; does the recursion end?";

/* In compiled code calls nest CAPTURED deep at most: a call that goes on is made again by the interpreter, whose stack tells whether that is too
 * deep. A loop that is not captured is the recursion of a call that is recorded, and has no stack that would end. */
qn_value eval_depth(qn_vm *vm, node *h, qn_value *fp) {
  enum { CAPTURED = 1000, MOST = 10000 };
  const node *count = ((const n_one *)h)->a;
  qn_value depth = eval(vm, ((n_one *)h)->a, fp);
  if (interp_of(vm)->recursing && count->kind == N_LOCAL) interp_of(vm)->recursing->depth = &fp[count->slot];
  if (!value_node(depth)) {
    if (!value_is(depth, TAG_INT) || depth.u.i < MOST) return value_nil();
    return raise_error(vm, E_recursion, h->at, "%s", nests_too_deep);
  }
  rec_at(vm, h->at);
  bool lanes = rec_in_vmap(vm);
  qn_value less = op_binary(vm, OP_lt, depth, value_int(lanes ? MOST : CAPTURED));
  if (value_is_error(less)) return less;
  int truth = lanes ? rec_all_lanes(vm, less) : rec_expected(vm, less) ? 1 : rec_truth(vm, less, h->at);
  value_release(vm, less);
  if (truth < 0 || error_pending(vm)) return value_error();
  return lanes && !truth ? raise_error(vm, E_recursion, h->at, "%s", nests_too_deep) : value_nil();
}

/* What is noted in an arm may be no part of the call: there may be several. */
qn_value eval_level(qn_vm *vm, node *h, qn_value *fp) {
  const node *count = ((const n_one *)h)->a;
  recursion_calls *calls = interp_of(vm)->recursing;
  if (!calls) return value_nil();
  if (h->flag) {
    calls->path = count->kind == N_LOCAL ? &fp[count->slot] : NULL;
  } else if (count) {
    calls->level = count->kind == N_LOCAL ? &fp[count->slot] : NULL;
  } else if (!calls->level && !rec_in_arm(vm)) {
    calls->n++;
  }
  return value_nil();
}

/* ---- the rest -------------------------------------------------------------------------------------------------------------------- */

qn_value eval_signal(qn_vm *vm, node *n, qn_value *fp) {
  (void)vm, (void)fp;
  return value_signal((signal_kind)n->flag);
}

qn_value eval_return(qn_vm *vm, node *h, qn_value *fp) {
  n_one *n = (n_one *)h;
  qn_value v = n->a ? eval(vm, n->a, fp) : value_nil();
  return value_stops(v) ? v : returning(vm, v);
}

qn_value eval_import(qn_vm *vm, node *h, qn_value *fp) {
  (void)fp;
  n_import *n = (n_import *)h;
  if (memchr(n->name->text, 0, n->name->len))
    return raise_error(vm, E_import, n->mark, "the name of a module holds no NUL");
  qn_value m = import_module(vm, n->from, n->name->text, n->path, n->mark);
  if (value_is_error(m)) {
    raise_at(vm, n->mark);
    raise_outside(vm, n->mark);
    return m;
  }
  if (n->cell) {
    cell_set(vm, n->cell, m);
    cell_defined(vm, n->cell, n->mark);
  } else {
    value_release(vm, m);
  }
  return value_nil();
}
