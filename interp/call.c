/* Calls. A call pushes the function and its arguments onto the value stack; if it is a function of the program, these become its frame:
 *
 *   fp[-1] the function value   fp[0..nparams) arguments   then dimensions of its signature, then locals
 *
 * so that a positional call with the right number of arguments copies nothing. Keywords, spreads, defaults and rest parameters go through
 * `bind`, which makes one value for each parameter, for functions of the program and builtins alike. Keyword arguments wait on the stack,
 * behind the positional ones, as pairs of name and value.
 *
 * A builtin is called generally (call_bound), or, by a node that has called it before, as the call was laid out at that site. README.md
 * describes both ways, and how `xs = f(xs, ...)` lends the variable's own reference to the call (lend).
 *
 * A call of a function of the program with arrays asks the function's anchor whether the compiler wants it (rec_call); inside a recording
 * it is announced by rec_enter and rec_leave.
 */
#include <stdio.h>
#include <string.h>

#include "interp/signature.h"
#include "lang/trace_events.h"

/* ---- errors ------------------------------------------------------------------------------------------------------------- */

void raise_last(qn_vm *vm, node *body) {
  while (body->eval == eval_block || body->eval == eval_block_plain || body->eval == eval_block_parts)
    body = ((n_block *)body)->items[((n_block *)body)->n - 1];
  raise_at(vm, body->at);
}

void trace_frame(qn_vm *vm, qn_value fn) {
  if (!vm->error) return;
  if (vm->error->rethrown) {
    vm->error->rethrown = false;
    return;
  }
  span place = vm->error->outer.source ? vm->error->outer : vm->error->at;
  vm->error->settled = false;
  qn_str *name = NULL;
  if (value_is(fn, TAG_FN) && value_fn(fn)->head.flags == FN_USER) name = ((fn_code *)value_fn(fn)->code)->name;
  raise_frame(vm, place, name);
}

static void arity_text(qn_vm *vm, qn_value f, text_buf *t) {
  text_adds(t, "; ");
  if (!interp_signature(vm, f, t)) text_adds(t, "it takes one value");
}

static bool fail_arity(qn_vm *vm, qn_value f, uint32_t given, const qn_str *missing) {
  text_buf t = {.vm = vm};
  if (missing)
    text_addf(&t, "argument '%s' is missing", missing->text);
  else
    text_addf(&t, "%u argument%s given, which is more than it takes", given, given == 1 ? "" : "s");
  arity_text(vm, f, &t);
  if (value_fn(f)->head.flags == FN_BUILTIN) {
    const char *name = ((const builtin_def *)value_fn(f)->code)->name,
               *hint = foreign_hint(FOREIGN_CALL, name, strlen(name));
    if (hint) text_addf(&t, "; %s", hint);
  }
  const builtin_info *info = !missing && value_fn(f)->head.flags == FN_BUILTIN ? builtin_of(vm, value_fn(f)) : NULL;
  if (info && info->def.effect == BUILTIN_PURE && strcmp(info->sig.params[0].name->text, "f") == 0) {
    text_addf(&t, "; it gives a function, which takes the arguments: %s(f", info->def.name);
    for (int i = 1; i < info->sig.nparams && info->sig.params[i].def.head == TAG_UNSET; i++)
      text_addf(&t, ", %s", info->sig.params[i].name->text);
    text_adds(&t, ")(x)");
  }
  raise_text(vm, E_arity, SPAN_NONE, &t);
  return false;
}

static __attribute__((noinline, cold)) qn_value fail_callable(qn_vm *vm, qn_value f, span at) {
  text_buf t = {.vm = vm};
  text_addf(&t, "%s is not a function", phrase_kind(f).text);
  const source_text *s = source_get(vm, at.source);
  const global_cell *hidden = NULL;
  if (s && at.start < at.end && at.end <= s->len) { /* `let sum = 0` and then sum(x) */
    qn_str *name = str_intern(vm, s->text + at.start, at.end - at.start);
    if (name) hidden = scope_find(interp_of(vm)->builtin, name);
    if (hidden && value_is(hidden->value, TAG_FN))
      text_addf(&t, "; the variable '%s' hides the function of this name", name->text);
    else
      hidden = NULL;
    if (name)
      value_release(vm, value_obj(TAG_STR, name));
    else
      error_clear(vm);
  }
  if (hidden) return raise_text(vm, E_not_callable, at, &t);
  switch ((int)value_tag_of(f)) {
  case TAG_LIST:
  case TAG_ARRAY:
  case TAG_STR:
  case TAG_RANGE: text_adds(&t, "; items are taken with brackets, as in x[0]"); break;
  case TAG_RECORD: text_adds(&t, "; fields are taken as in r.name or r[\"name\"]"); break;
  case TAG_INT:
  case TAG_FLOAT: /* products as written in mathematics: 2(x + 1), (a + b)(c + d) */
    if (s && strchr("0123456789(", s->text[at.start])) text_adds(&t, "; a product is written a * b");
    break;
  case TAG_NIL: text_adds(&t, nil_origin); break;
  default: break;
  }
  return raise_text(vm, E_not_callable, at, &t);
}

/* ---- user functions ---------------------------------------------------------------------------------------------------------- */

static inline qn_value run_body(qn_vm *vm, fn_code *code, qn_value *fp) {
  qn_value r = eval(vm, code->body, fp);
  if (__builtin_expect(r.head == TAG_SIGNAL, 0)) {
    interp *ip = interp_of(vm);
    r = ip->returned;
    ip->returned = value_nil();
  }
  return r;
}

/* For vm_own. */
static void calls_made(qn_vm *vm, void *what) {
  (void)vm;
  ((recursion *)what)->failed = false;
}

static void calls_begin(qn_vm *vm, recursion_calls *calls) {
  *calls = (recursion_calls){.outer = interp_of(vm)->recursing};
  interp_of(vm)->recursing = calls;
}

/* For vm_own. */
static void calls_end(qn_vm *vm, void *what) { interp_of(vm)->recursing = ((const recursion_calls *)what)->outer; }

static void leave_failed(qn_vm *vm, const qn_value *fp, span at, const n_call *n, uint32_t extra);

/* As calls_failed, where turns have told by a number which calls they stand for. */
static void failed_on_path(qn_vm *vm, const recursion *loop, const recursion_calls *calls, const qn_value *fp) {
  if (!value_is(*calls->path, TAG_INT) || !calls->depth || !value_is(*calls->depth, TAG_INT)) return;
  int64_t path = calls->path->u.i, depth = calls->depth->u.i, known = path_digits(loop->nsites);
  if (path <= 0) return;
  if (depth < known) { /* else the 1 before the digits may be gone */
    known = 0;
    for (int64_t rest = path; rest > 1; rest /= loop->nsites) known++;
  }
  if (calls->level && value_is(*calls->level, TAG_INT)) {
    int64_t returned = (depth < known ? known : depth) - calls->level->u.i;
    for (; returned > 0 && known > 0; returned--, known--) path /= loop->nsites;
  }
  for (; known > 0; known--, path /= loop->nsites) leave_failed(vm, fp, loop->sites[path % loop->nsites], NULL, 0);
}

/* The pending error gets the frames of the calls that turns have stood for, where it is known which these are. */
static void calls_failed(qn_vm *vm, const recursion *loop, const recursion_calls *calls, const qn_value *fp) {
  enum { CALLS_MOST = 10000 }; /* as in eval_depth */
  int64_t n = calls->n;
  if (calls->path) {
    failed_on_path(vm, loop, calls, fp);
    return;
  }
  if (calls->level) n = value_is(*calls->level, TAG_INT) ? calls->level->u.i : 0;
  if (n > CALLS_MOST || !loop->site.source) return;
  while (n-- > 0) leave_failed(vm, fp, loop->site, NULL, 0);
}

static qn_value run_loop_held(qn_vm *vm, recursion *loop, qn_value *fp) {
  fn_code *code = loop->code;
  if (!vm_enter(vm, (size_t)code->nslots + 2)) return value_error();
  qn_value *base = vm->sp;
  for (uint32_t i = 0; i <= code->nparams; i++) *vm->sp++ = value_retain(fp[(int64_t)i - 1]);
  while (vm->sp < base + 1 + code->nslots) *vm->sp++ = value_nil();
  bool derives = rec_derives(vm);
  if (derives && !rec_recursion_begins(vm)) return vm_pop_with(vm, base, value_error());
  uint32_t effects = rec_effects(vm);
  recursion_calls calls;
  vm_owned told;
  calls_begin(vm, &calls);
  vm_own(vm, &told, calls_end, &calls);
  qn_value r = run_body(vm, code, base + 1);
  if (derives) {
    vm_disown(vm, &told);
    calls_end(vm, &calls);
    r = vm_pop_with(vm, base, r);
    if (!value_is_error(r) || !rec_recursion_again(vm, effects)) return r; /* the calls fail as well, and say where */
    vm_owned held;
    vm_own(vm, &held, calls_made, loop);
    loop->failed = true;
    r = run_body(vm, value_fn(fp[-1])->code, fp);
    vm_disown(vm, &held);
    loop->failed = false;
    return r;
  }
  /* Where the recording has ended on the way, nobody makes the call again. */
  bool alone = value_is_error(r) && !rec_recursion_failed(vm) && error_catchable(vm);
  if (alone && !loop->computes) calls_failed(vm, loop, &calls, fp);
  vm_disown(vm, &told);
  calls_end(vm, &calls);
  if (!rec_recursion(vm)) loop->off = true;
  r = vm_pop_with(vm, base, r);
  if (!alone || !loop->computes) return r;
  error_clear(vm);
  return run_body(vm, value_fn(fp[-1])->code, fp); /* the calls say themselves how many of them there were */
}

/* Runs a function that calls itself as one that makes these calls in loops. No limit ends a recording within. */
static __attribute__((noinline)) qn_value run_loop(qn_vm *vm, recursion *loop, qn_value *fp) {
  struct recording *held = rec_hold(vm);
  qn_value r = run_loop_held(vm, loop, fp);
  if (rec_let_go(vm, held, !value_is_error(r))) return r;
  return value_is_error(r) ? r : value_fail(vm, r);
}

/* Does a global hold the function with this code, or that is defined there? This is guarded, as by a call in the program. 1, 0, or -1 with an error raised. */
static int holds(qn_vm *vm, const global_cell *global, const void *code, span at) {
  rec_cell *cell = (rec_cell *)(uintptr_t)&global->rec;
  qn_value now = rec_global(vm, cell, (qn_value *)(uintptr_t)&global->value, global->name);
  if (value_is_error(now)) return -1;
  bool same = value_is(now, TAG_FN) && value_fn(now)->head.flags == FN_USER;
  if (same && code) same = value_fn(now)->code == code;
  if (same && at.source) same = span_same_start(((const fn_code *)value_fn(now)->code)->at, at);
  value_release(vm, now);
  return same;
}

/* Can recursion be run so now, with these arguments? 1, 0, or -1 with an error raised. */
static __attribute__((noinline)) int takes_loop(qn_vm *vm, const recursion *loop, const qn_value *fp) {
  const fn_code *code = loop->code;
  bool traced = false, plain = false, derives = rec_derives(vm);
  if (derives ? loop->failed : loop->off || !rec_recursion(vm)) return 0;
  for (uint32_t i = 0; i < code->nparams; i++) {
    bool number = value_is(fp[i], TAG_INT);
    traced |= number && value_node(fp[i]);
    plain |= number && !value_node(fp[i]);
    if (loop->returns && (loop->varies >> i & 1) && !number && (loop->computed || !loop->shrinks)) return 0;
  }
  if (plain && !traced && !derives) return 0; /* how deep it goes is known, likely */
  if (derives && loop->npartners) return 0;   /* calls of several functions keep the order of their sums */
  int same = !loop->self ? 1 : holds(vm, loop->self, value_fn(fp[-1])->code, SPAN_NONE);
  for (uint32_t i = 0; i < loop->npartners && same > 0; i++)
    same = holds(vm, loop->partners[i].cell, NULL, loop->partners[i].at);
  return same;
}

/* As run_body, as a span of --trace. */
static __attribute__((noinline, cold)) qn_value run_traced(qn_vm *vm, fn_code *code, qn_value *fp) {
  int64_t begin = trace_events_begin(vm->engine);
  qn_value r = run_body(vm, code, fp);
  trace_events_end(vm->engine, TRACE_EVENTS_call, code->name->text, begin, NULL, 0);
  return r;
}

/* As run_body, while something is recorded. */
static inline qn_value run_recording(qn_vm *vm, fn_code *code, qn_value *fp) {
  int loop = code->loop ? takes_loop(vm, code->loop, fp) : 0;
  return loop < 0 ? value_error() : loop ? run_loop(vm, code->loop, fp) : run_body(vm, code, fp);
}

typedef struct recorded_run {
  qn_vm *vm;
  fn_code *code;
  qn_value *fp;
  rec_call_site *site;
} recorded_run;

static qn_value run_recorded(void *ctx) {
  recorded_run *r = ctx;
  qn_value own = r->fp[-1];
  vm_owned held;
  vm_own(r->vm, &held, vm_drop_value, &own);
  r->fp[-1] = value_retain(r->site->fn); /* rec_call may have put a tracer there, whose captures are traced */
  if (r->code->typed && rec_symbolic(r->vm)) signature_sizes(r->vm, r->code, r->fp);
  qn_value v = run_recording(r->vm, r->code, r->fp);
  vm_disown(r->vm, &held);
  value_release(r->vm, r->fp[-1]);
  r->fp[-1] = own;
  return v;
}

/* Is there an array, list or record among the arguments, the captures, or the globals that the function reads? Or does it make arrays? */
static bool call_has_data(const fn_code *code, const qn_value *fp) {
  for (uint32_t i = 0; i < code->nparams; i++)
    if (value_is_data(fp[i])) return true;
  if (value_fn(fp[-1])->head.aux) return true;
  for (uint32_t i = 0; i < code->ndata; i++)
    if (value_is_data(code->data[i]->value)) return true;
  return code->computes;
}

/* How many elements the arrays among the arguments have. */
static int64_t call_elements(const fn_code *code, const qn_value *fp) {
  int64_t n = 0;
  for (uint32_t i = 0; i < code->nparams; i++)
    if (value_is(fp[i], TAG_ARRAY)) n += value_array(fp[i])->size;
  return n;
}

/* Is rec_call to make this call? If not, the call is counted at its anchor. */
static inline bool call_asks(qn_vm *vm, fn_code *code, const qn_value *fp) {
  if (anchor_wants(vm, &code->anchor)) return true;
  if (code->anchor.state == ANCHOR_RESTING && anchor_wakes(&code->anchor, call_elements(code, fp))) return true;
  anchor_passed(&code->anchor);
  return false;
}

/* A call that lanes of a vmap leave with an error. */
typedef struct failing {
  qn_vm *vm;
  fn_code *code;
  qn_value *fp;
  span at;
} failing;

static void call_failed(void *ctx) {
  const failing *c = ctx;
  leave_failed(c->vm, c->fp, c->at, NULL, 0);
}

/* The arguments of a function of the program become ordinary ones where it does not know of stacked lists. False with an error raised. */
static __attribute__((noinline, cold)) bool plain_arguments(qn_vm *vm, const fn_code *code, qn_value *fp) {
  for (uint32_t i = 0; i < code->nparams; i++) {
    bool takes = i < STACKABLE_MAX && (code->anchor.stackable >> i & 1) && op_deferred(vm);
    if (takes && !rec_counted_cut(vm, &fp[i])) return false;
    if (takes && value_is_stacked(fp[i]) && stacked_mark(fp[i])) takes = false;
    if (code->typed || !op_deferred(vm) ? !rec_plain(vm, &fp[i]) : !takes && !rec_plain_field(vm, &fp[i])) return false;
  }
  return true;
}

/* The result of a function of the program (owned), in a recording with stacked lists: those that the reader of the call `n` (NULL: C) does not know of
 * become ordinary ones, but for fields of a record. Owned, or the error value. */
static __attribute__((noinline, cold)) qn_value known_result(qn_vm *vm, const fn_code *code, const n_call *n,
                                                             bool hands_on, qn_value r) {
  enum call_stacks known = code->result || !op_deferred(vm) ? STACKS_NONE
                           : hands_on                       ? STACKS_RESULT
                           : n                              ? n->stacks
                                                            : STACKS_NONE;
  if (known == STACKS_RESULT || (known == STACKS_VALUE && value_is_stacked(r)) || (n && value_is(r, TAG_RECORD)))
    return r;
  return rec_plain(vm, &r) ? r : value_fail(vm, r);
}

static __attribute__((noinline)) qn_value run_watched(qn_vm *vm, fn_code *code, qn_value *fp, span at,
                                                      const n_call *n) {
  bool hands_on = vm->asked.hands_on;
  vm->asked.hands_on = false;
  if (__builtin_expect(vm->asked.stacked, 0) && !plain_arguments(vm, code, fp)) return value_error();
  uint32_t refused;
  if (code->typed && !signature_bind(vm, code, fp, &refused)) {
    interp_of(vm)->place.refused = 1 + refused;
    return value_error();
  }
  qn_value r;
  if (!at.source) at = interp_of(vm)->place.calling;
  if (rec_enter(vm, at, &code->anchor)) {
    if (rec_in_vmap(vm)) {
      rec_frame frame;
      rec_frame_enter(vm, &frame, FRAME_CALL, (rec_slots){NULL, 0});
      failing of = {vm, code, fp, at};
      frame.failed = call_failed;
      frame.ctx = &of;
      r = rec_call_leave(vm, &frame, rec_derives(vm) ? run_recording(vm, code, fp) : run_body(vm, code, fp));
    } else {
      r = run_recording(vm, code, fp);
    }
    rec_leave(vm);
  } else if (!call_has_data(code, fp) && !rec_asked_for(vm, &code->anchor)) {
    if (vm->counting) anchor_passed_idle(vm, &code->anchor);
    r = run_body(vm, code, fp);
  } else if (call_asks(vm, code, fp)) {
    recorded_run run = {vm, code, fp, NULL};
    rec_call_site site = {.anchor = &code->anchor,
                          .fn = fp[-1],
                          .args = fp,
                          .nargs = (int)code->nparams,
                          .rests = true,
                          .at = at,
                          .run = run_recorded,
                          .ctx = &run};
    run.site = &site;
    r = rec_call(vm, &site);
  } else if (__builtin_expect(vm->engine->trace_events != NULL, 0)) {
    r = run_traced(vm, code, fp);
  } else {
    r = run_body(vm, code, fp);
  }
  if (__builtin_expect(vm->asked.stacked, 0) && !value_is_error(r)) r = known_result(vm, code, n, hands_on, r);
  if (code->result && !value_is_error(r)) {
    vm_owned held;
    vm_own(vm, &held, vm_drop_value, &r); /* checking it may evaluate sizes that are expressions */
    bool fits = signature_result(vm, code, fp, r);
    vm_disown(vm, &held);
    if (!fits) {
      value_release(vm, r);
      r = raise_at(vm, code->result_at);
    }
  }
  return r;
}

/* The expression that parameter i gets its value from. NULL if that is a default or part of something spread, or if `n` is NULL. `extra`:
 * how many receivers stand before the arguments. */
static const node *argument_of(const n_call *n, const fn_code *code, uint32_t extra, uint32_t i) {
  if (n && i < extra) return n->callee;
  for (uint32_t k = 0, next = extra; n && k < n->n; k++) {
    const call_arg *a = &n->args[k];
    if (a->spread) return NULL;
    if (a->keyword ? str_equal(a->keyword, code->params[i].name) : next++ == i) return a->value;
  }
  return NULL;
}

/* Appends the shapes in a tree, the first few of each level: "{w: f32[3, 2], b: f32[2]}". */
static void text_tree(text_buf *t, qn_value v, int depth) {
  enum { SHOWN = 4, DEEPEST = 3 };
  bool list = value_is(v, TAG_LIST);
  if ((!list && !value_is(v, TAG_RECORD)) || depth == DEEPEST) {
    text_kind(t, v);
    return;
  }
  uint32_t n = list ? value_list(v)->len : value_record(v)->len;
  text_adds(t, list ? "(" : "{");
  for (uint32_t i = 0; i < n && i < SHOWN; i++) {
    if (i) text_adds(t, ", ");
    if (!list) text_addf(t, "%s: ", record_name(value_record(v), i)->text);
    text_tree(t, list ? value_list(v)->items[i] : value_record(v)->items[i], depth + 1);
  }
  text_adds(t, n > SHOWN ? ", ..." : "");
  text_adds(t, list ? n == 1 ? ",)" : ")" : "}");
}

/* Adds a note to the pending error, at the text of an argument: its shape, or the shapes in the tree that it is. */
static void note_argument(qn_vm *vm, const node *arg, qn_value v) {
  if (!arg) return;
  if (value_is(v, TAG_ARRAY)) note_operand(vm, arg->at, v, arg);
  if (!value_is(v, TAG_LIST) && !value_is(v, TAG_RECORD)) return;
  text_buf t = {.vm = vm};
  text_tree(&t, v, 0);
  if (!t.failed && t.text) raise_note(vm, arg->at, "%s", t.text);
  text_free(&t);
}

/* Is the error about shapes or dtypes of operands? */
static bool about_shapes(error_id id) { return id >= E_shape && id <= E_ragged && id != E_weak_range; }

/* The call of the function in fp[-1], made at `at`, has failed: gives the pending error its place, a frame of the trace, and notes. `n` is
 * the call's node (NULL: called from C), with `extra` receivers. Errors of the call itself (a refused argument, an interrupt) are placed at
 * the call, in the caller. */
static __attribute__((noinline, cold)) void leave_failed(qn_vm *vm, const qn_value *fp, span at, const n_call *n,
                                                         uint32_t extra) {
  interp *ip = interp_of(vm);
  uint32_t refused = ip->place.refused;
  ip->place.refused = 0;
  const qn_error_object *e = vm->error;
  if (!e) return;
  const fn_code *code = value_fn(fp[-1])->code;
  if (refused && !e->at.source) {
    const node *arg = argument_of(n, code, extra, refused - 1);
    raise_at(vm, arg ? arg->at : at);
    return;
  }
  raise_last(vm, code->body);
  bool own = e->nframes == 0 && e->at.source == at.source && e->at.start == at.start && e->at.end == at.end;
  if (e->later) { /* what failed was written before this call */
    vm->error->later--;
  } else if (!own) {
    trace_frame(vm, fp[-1]);
    raise_outside(vm, at);
  }
  if (!raise_through(vm, at, code->name->text) || !n || !about_shapes(vm->error->id)) return;
  for (uint32_t i = 0; i < code->nparams; i++) note_argument(vm, argument_of(n, code, extra, i), fp[i]);
}

/* What a call from C adds to `heads` of run_frame, so that one that explain asks for is looked at whatever it is given (rec_asked_for). */
static inline uint64_t heads_asked(const qn_vm *vm) { return vm->asked.about ? TAG_HEAP : 0; }

/* Runs a function of the program and pops its frame. The frame at `fp` holds the function value and the arguments, which end at vm->sp.
 * `heads`: the header words of all arguments, or-ed. `at`, `n` and `extra` as for leave_failed. Owned, or the error value. */
static inline __attribute__((always_inline)) qn_value run_frame(qn_vm *vm, fn_code *code, qn_value *fp, uint64_t heads,
                                                                span at, const n_call *n, uint32_t extra) {
  for (uint32_t i = code->nparams; i < code->nslots; i++) fp[i] = value_nil();
  vm->sp = fp + code->nslots;
  qn_value r;
  if (__builtin_expect(vm_poll_between(vm), 0)) {
    r = raise_at(vm, at);
  } else if ((heads & TAG_HEAP) | (uint64_t)code->watched | (uint64_t)rec_hears_calls(vm) |
             value_fn(fp[-1])->head.aux) {
    r = run_watched(vm, code, fp, at, n);
  } else {
    r = run_body(vm, code, fp);
  }
  if (value_is_error(r)) leave_failed(vm, fp, at, n, extra);
  return vm_pop_with(vm, fp - 1, r);
}

/* ---- builtins ------------------------------------------------------------------------------------------------------------------ */

static __attribute__((noinline, cold)) void builtin_failed(qn_vm *vm, const builtin_info *info, span at) {
  if (!vm->error || !vm->error->nframes) return;
  /* The error already has a trace: it comes from a function that the builtin called, or the builtin rethrew it. */
  raise_outside(vm, at);
  raise_through(vm, at, NULL);
  vm->error->rethrown =
      info->def.effect == BUILTIN_STATE || info->def.effect == BUILTIN_DRAWS || info->def.effect == BUILTIN_RAISES;
}

/* The lists that a rest parameter has collected, where the builtin knows of stacked ones: those whose number of items is data get a length, or become
 * ordinary ones. False with an error raised. */
static bool plain_rest(qn_vm *vm, qn_value *rest) {
  for (uint32_t k = 0; k < value_list(*rest)->len; k++) {
    if (!value_is_counted(value_list(*rest)->items[k])) continue;
    if (!list_own(vm, rest)) return false;
    qn_value *list = &value_list(*rest)->items[k];
    if (!rec_counted_cut(vm, list) || (value_is_counted(*list) && !rec_plain(vm, list))) return false;
  }
  return true;
}

static __attribute__((noinline, cold)) bool plain_for_builtin(qn_vm *vm, const builtin_info *info, qn_value *args) {
  for (int i = 0; i < info->sig.nparams; i++) {
    bool takes = info->sig.params[i].stacks && op_deferred(vm);
    if (takes && !info->sig.params[i].counted && !rec_counted_cut(vm, &args[i])) return false;
    takes = takes && (info->sig.params[i].counted || !value_is_counted(args[i]));
    if (!takes && !rec_plain(vm, &args[i])) return false;
    if (takes && info->sig.params[i].rest && !plain_rest(vm, &args[i])) return false;
  }
  return true;
}

/* Calls a builtin on arguments that lie on the stack, one for each parameter, and tells the recorder. `n` is the call's node; NULL: C calls. Owned, or the
 * error value. */
static qn_value run_builtin(qn_vm *vm, const builtin_info *info, qn_value *args, span at, const n_call *n) {
  int told;
  qn_value r;
  if (__builtin_expect(vm->asked.stacked, 0) && !plain_for_builtin(vm, info, args)) return value_error();
  rec_answer answer = rec_builtin(vm, &info->def, &info->sig, args, at, n && n->unused, &told, &r);
  if (answer != REC_NOT_YET) return answer == REC_DONE ? r : value_error();
  span outer = interp_of(vm)->place.calling;
  interp_of(vm)->place.calling = at;
  if (info->moves && at.source) vm->updating = at;
  struct recording *held = info->pure ? rec_hold(vm) : NULL;
  r = info->def.call(vm, args);
  if (__builtin_expect(held != NULL, 0) && !rec_let_go(vm, held, !value_is_error(r)) && !value_is_error(r))
    r = value_fail(vm, r);
  interp_of(vm)->place.calling = outer;
  if (told) r = rec_told(vm, &info->def, told, r);
  if (__builtin_expect(value_is_error(r), 0)) {
    builtin_failed(vm, info, at);
    rec_builtin_failed(vm, args, info->sig.nparams);
    if (rec_in_vmap(vm)) {
      raise_at(vm, at);
      if (rec_lanes_raise(vm) == REC_DONE) r = value_nil();
    }
  }
  return r;
}

/* ---- binding -------------------------------------------------------------------------------------------------------------------- */

/* The parameters of a callee as `bind` sees them. */
typedef struct params {
  qn_value f;
  uint32_t n;
  const fn_code *code; /* exactly one of these is set */
  const builtin_info *info;
} params;

static qn_str *param_name(const params *p, uint32_t i) {
  return p->code ? p->code->params[i].name : p->info->sig.params[i].name;
}
static bool param_rest(const params *p, uint32_t i) {
  return p->code ? p->code->rest && i + 1 == p->n : p->info->sig.params[i].rest;
}
static bool param_keyword_only(const params *p, uint32_t i) { return !p->code && p->info->sig.params[i].keyword_only; }
static qn_value param_initial(const params *p, uint32_t i) {
  if (p->info) return p->info->sig.params[i].def;
  int32_t k = p->code->params[i].initial;
  return k < 0 ? value_unset() : value_fn(p->f)->captures[p->code->ncaptures + (uint32_t)k];
}

static bool fail_keyword(qn_vm *vm, const params *p, const qn_str *name, bool repeated) {
  enum { MOST = 64 };
  const char *names[MOST];
  int n = 0;
  text_buf t = {.vm = vm};
  for (uint32_t i = 0; i < p->n && n < MOST; i++)
    if (!param_rest(p, i)) names[n++] = param_name(p, i)->text;
  text_addf(&t, repeated ? "argument '%s' is given twice" : "there is no parameter '%s'", name->text);
  const char *hint = NULL;
  if (!repeated && p->info) {
    char own[64];
    int len = snprintf(own, sizeof own, "%s.%s", p->info->def.name, name->text);
    if (len > 0 && (size_t)len < sizeof own) hint = foreign_hint(FOREIGN_KEYWORD, own, (size_t)len);
  }
  if (!repeated && !hint) hint = foreign_hint(FOREIGN_KEYWORD, name->text, name->len);
  if (hint)
    text_addf(&t, ": %s", hint);
  else if (!repeated)
    text_nearest(&t, "; nearest: ", name->text, names, n);
  arity_text(vm, p->f, &t);
  raise_text(vm, E_keyword, SPAN_NONE, &t);
  return false;
}

/* Pushes one value for each parameter, from npos positional values and nkw keyword pairs, which are moved out of their places. vm->sp goes
 * up step by step, so that after an error the stack can be popped as it is. False with an error raised. */
static bool bind(qn_vm *vm, const params *p, qn_value *pos, uint32_t npos, qn_value *kw, uint32_t nkw) {
  qn_value *out = vm->sp;
  uint32_t next = 0;
  for (uint32_t i = 0; i < p->n; i++) {
    qn_value v = value_unset();
    if (param_rest(p, i)) {
      uint32_t rest = npos - next;
      qn_list *l = list_new(vm, rest);
      if (!l) return false;
      for (uint32_t k = 0; k < rest; k++) {
        l->items[k] = pos[next + k];
        pos[next + k] = value_nil();
        if ((p->info && p->info->sig.params[i].stacks) || rec_plain_field(vm, &l->items[k])) continue;
        value_release(vm, value_obj(TAG_LIST, l));
        return false;
      }
      next = npos;
      v = value_obj(TAG_LIST, l);
    } else if (next < npos && !param_keyword_only(p, i)) {
      v = pos[next];
      pos[next++] = value_nil();
    }
    *vm->sp++ = v;
  }
  if (next < npos) return fail_arity(vm, p->f, npos, NULL);
  for (uint32_t k = 0; k < nkw; k++) {
    const qn_str *name = value_str(kw[2 * k]);
    uint32_t i = 0;
    while (i < p->n && (param_rest(p, i) || !str_equal(param_name(p, i), name))) i++;
    if (i == p->n || out[i].head != TAG_UNSET) return fail_keyword(vm, p, name, i < p->n);
    out[i] = kw[2 * k + 1];
    kw[2 * k + 1] = value_nil();
  }
  for (uint32_t i = 0; i < p->n; i++) {
    if (out[i].head != TAG_UNSET) continue;
    qn_value v = param_initial(p, i);
    if (v.head == TAG_UNSET) return fail_arity(vm, p->f, npos, param_name(p, i));
    out[i] = value_retain(v);
  }
  return true;
}

/* ---- any call --------------------------------------------------------------------------------------------------------------------- */

/* Before a call whose result will replace a variable (or field, or item): takes that variable's own reference away, so that the argument
 * `arg` is the only owner of the value. Returns where the reference was taken from, so that the value can be put back if the call fails;
 * NULL if nothing could be taken. */
static qn_value *lend(const qn_vm *vm, const n_call *n, qn_value *fp, qn_value arg) {
  if (!value_is_heap(arg)) return NULL;
  qn_value *var = n->moved->kind == N_GLOBAL ? &((n_global *)n->moved)->cell->value : peek(vm, n->moved, fp, true);
  if (!var || var->head != arg.head || var->u.p != arg.u.p) return NULL;
  *var = value_nil();
  ((obj_head *)arg.u.p)->refs--; /* the reference of the argument remains */
  return var;
}

/* As lend, for a builtin: only if the parameter is one that takes its value over. */
static qn_value *lend_moved(const qn_vm *vm, const n_call *n, qn_value *fp, const builtin_info *info,
                            const qn_value *args) {
  bool moves = n && n->moved && n->moved_arg < (uint32_t)info->sig.nparams && info->sig.params[n->moved_arg].move;
  return moves ? lend(vm, n, fp, args[n->moved_arg]) : NULL;
}

/* A builtin has failed on these arguments, one for each parameter: the error gets the place of the call, and, if it is about shapes or
 * dtypes, notes on the arrays among them. `extra`: the first argument is the receiver of a method call. */
static __attribute__((noinline, cold)) void note_arguments(qn_vm *vm, const n_call *n, const builtin_info *info,
                                                           const qn_value *args, bool extra) {
  raise_at(vm, n->h.at);
  bool laid = n->laid == info && extra == (n->method != NULL);
  if (!vm->error || vm->error->id >= 300 || (!laid && n->h.flag & CALL_MIXED)) return;
  if (extra) note_operand(vm, n->callee->at, args[0], n->callee);
  for (uint32_t i = 0; i < n->n; i++) {
    uint32_t slot = laid ? n->args[i].slot : i + extra;
    if (slot < (uint32_t)info->sig.nparams && value_is(args[slot], TAG_ARRAY))
      note_operand(vm, n->args[i].value->at, args[slot], n->args[i].value);
  }
}

/* The stack has no room for a call of `f` (an error is raised): releases `f` and the receiver. The error value. */
static __attribute__((noinline, cold)) qn_value fail_call(qn_vm *vm, const n_call *n, qn_value f, qn_value receiver) {
  value_release(vm, f);
  value_release(vm, receiver);
  return raise_at(vm, n->h.at);
}

/* Evaluates an argument. Owned, or a value that stops. */
static inline __attribute__((always_inline)) qn_value argument(qn_vm *vm, node *a, qn_value *fp) {
  return a->kind == N_LOCAL ? value_retain(fp[a->slot]) : eval(vm, a, fp);
}

static uint64_t heads_of(const qn_value *v, uint32_t n) {
  uint64_t heads = 0;
  for (uint32_t i = 0; i < n; i++) heads |= v[i].head;
  return heads;
}

static qn_value kwargs_record(qn_vm *vm, qn_value *kw, uint32_t nkw) {
  if (!nkw) return value_nil();
  qn_record *r = record_new(vm);
  if (!r) return value_error();
  for (uint32_t k = 0; k < nkw; k++) {
    if (!record_set(vm, r, value_str(kw[2 * k]), value_retain(kw[2 * k + 1])))
      return value_fail(vm, value_obj(TAG_RECORD, r));
  }
  return value_obj(TAG_RECORD, r);
}

/* The general call, of base[0] on the positional arguments base[1..npos] and the nkw keyword pairs behind them; pops all of these. `n` and
 * `fp` are the call's node and the frame of the caller; NULL for a call from C. Owned, or the error value. */
static qn_value call_bound(qn_vm *vm, qn_value *base, uint32_t npos, uint32_t nkw, span at, const n_call *n,
                           qn_value *fp) {
  qn_value f = base[0], *pos = base + 1, *kw = pos + npos, r = value_error();
  if (value_is(f, TAG_DTYPE)) {
    if (npos == 1 && nkw == 0) {
      rec_at(vm, at);
      if (!rec_plain(vm, pos)) goto out;
      r = convert_dtype(vm, (qn_dtype)f.u.i, *pos);
    } else {
      raise_error(vm, E_arity, SPAN_NONE, "%s(x) converts one value", dtype_rows[f.u.i].name);
    }
    goto out;
  }
  if (!value_is(f, TAG_FN)) {
    fail_callable(vm, f, n && !n->method ? n->callee->at : at);
    goto out;
  }
  qn_fn *fn = value_fn(f);
  switch ((fn_kind)fn->head.flags) {
  case FN_USER: {
    fn_code *code = fn->code;
    params p = {.f = f, .n = code->nparams, .code = code};
    if (!vm_enter(vm, (size_t)code->nslots + 2)) break;
    qn_value *frame = vm->sp;
    *vm->sp++ = value_retain(f);
    if (!bind(vm, &p, pos, npos, kw, nkw)) break;
    if (n && (n->h.flag & CALL_MOVES) && n->moved_arg < code->nparams) lend(vm, n, fp, frame[1 + n->moved_arg]);
    uint64_t heads = heads_of(frame + 1, code->nparams) | (n ? 0 : heads_asked(vm));
    r = run_frame(vm, code, frame + 1, heads, at, n, n && n->method && npos > n->n);
    break;
  }
  case FN_BUILTIN: {
    builtin_info *info = builtin_of(vm, fn);
    if (!info) break;
    params p = {.f = f, .n = (uint32_t)info->sig.nparams, .info = info};
    if (!vm_enter(vm, (size_t)p.n + 1)) break;
    qn_value *args = vm->sp;
    if (!bind(vm, &p, pos, npos, kw, nkw)) break;
    qn_value *lent = lend_moved(vm, n, fp, info, args);
    r = run_builtin(vm, info, args, at, n);
    if (!(n && n->stacks) && !value_is_error(r) && !rec_plain_field(vm, &r)) r = value_fail(vm, r);
    if (value_is_error(r)) {
      if (lent) *lent = value_retain(args[n->moved_arg]);
      if (n) note_arguments(vm, n, info, args, n->method && npos > n->n);
    }
    break;
  }
  case FN_TRANSFORM:
  case FN_GRAPH: {
    qn_value kwargs = kwargs_record(vm, kw, nkw);
    if (value_is_error(kwargs)) break;
    if (at.source) rec_at(vm, at); /* else a transform makes the call, whose place was the last one */
    vm_owned held;
    vm_own(vm, &held, vm_drop_value, &kwargs);
    r = transform_call(vm, f, pos, (int)npos, kwargs, at.source ? at : interp_of(vm)->place.calling);
    vm_disown(vm, &held);
    value_release(vm, kwargs);
    if (value_is_error(r)) {
      raise_outside(vm, at);
      raise_through(vm, at, NULL);
    }
    break;
  }
  }
out:
  if (value_is_error(r)) raise_at(vm, at);
  return vm_pop_with(vm, base, r);
}

static bool positional_first(qn_vm *vm, span at) {
  return raise_nothing(vm, E_keyword, at, "positional arguments stand before keywords");
}

/* Pushes the fields of a record as keyword pairs, for which the stack has room. */
static void push_keywords(qn_vm *vm, const qn_record *r) {
  for (uint32_t i = 0; i < r->len; i++) {
    *vm->sp++ = value_retain(value_obj(TAG_STR, record_name(r, i)));
    *vm->sp++ = value_retain(r->items[i]);
  }
}

/* Pushes what `..v` stands for: positional arguments (of a list, range or array) or keyword pairs (of a record). False with an error
 * raised. */
static bool push_argument_spread(qn_vm *vm, qn_value v, span at, uint32_t *npos, uint32_t *nkw) {
  bool ok = true;
  if (value_is(v, TAG_RECORD)) {
    const qn_record *r = value_record(v);
    ok = vm_enter(vm, 2 * (size_t)r->len + 2);
    if (ok) push_keywords(vm, r);
    if (ok) *nkw += r->len;
    value_release(vm, v);
    return ok;
  }
  int64_t n = spread_length(vm, v);
  if (n < 0)
    ok = fail_spread(vm, E_not_iterable, at, "lists spread as arguments and records as keywords", v);
  else if (n > 0 && *nkw > 0)
    ok = positional_first(vm, at);
  ok = ok && vm_enter(vm, n > INT32_MAX ? SIZE_MAX / 64 : (size_t)n + 2);
  for (int64_t i = 0; ok && i < n; i++) {
    qn_value item = spread_item(vm, v, i);
    ok = !value_is_error(item);
    if (ok) *vm->sp++ = item;
    *npos += ok;
  }
  value_release(vm, v);
  return ok;
}

/* Evaluates the arguments and pushes them behind the function and its receiver, which lie on the stack; then makes the general call. */
static __attribute__((noinline)) qn_value call_mixed(qn_vm *vm, n_call *n, qn_value *base, uint32_t npos,
                                                     qn_value *fp) {
  uint32_t nkw = 0;
  for (uint32_t i = 0; i < n->n; i++) {
    const call_arg *a = &n->args[i];
    if (!vm_enter(vm, 2)) goto error;
    if (a->keyword) *vm->sp++ = value_retain(value_obj(TAG_STR, a->keyword));
    qn_value v = eval(vm, a->value, fp);
    if (value_stops(v)) return vm_pop_with(vm, base, v);
    if (a->spread) {
      if (!push_argument_spread(vm, v, a->value->at, &npos, &nkw)) goto error;
      continue;
    }
    *vm->sp++ = v;
    if (a->keyword) {
      nkw++;
      continue;
    }
    /* only possible behind a spread record: all other cases are syntax errors */
    if (nkw && !positional_first(vm, a->value->at)) goto error;
    npos++;
  }
  return call_bound(vm, base, npos, nkw, n->h.at, n, fp);
error:
  return vm_pop_with(vm, base, value_error());
}

/* As call_mixed where all arguments are positional. */
static __attribute__((noinline)) qn_value call_plain(qn_vm *vm, n_call *n, qn_value *base, uint32_t npos,
                                                     qn_value *fp) {
  if (!vm_enter(vm, (size_t)n->n + 2)) return vm_pop_with(vm, base, value_error());
  for (uint32_t i = 0, count = n->n; i < count; i++) {
    qn_value v = argument(vm, n->args[i].value, fp);
    if (value_stops(v)) return vm_pop_with(vm, base, v);
    *vm->sp++ = v;
  }
  return call_bound(vm, base, npos + n->n, 0, n->h.at, n, fp);
}

/* ---- calls of builtins that are laid out ---------------------------------------------------------------------------------------- */

/* Is it a variable or a constant, whose value can be read without evaluating anything? */
static bool readable(const node *a) { return a->kind == N_LOCAL || a->kind == N_GLOBAL || a->kind == N_CONST; }
static inline __attribute__((always_inline)) qn_value read_here(const node *a, const qn_value *fp) {
  if (a->kind == N_LOCAL) return fp[a->slot];
  return a->kind == N_CONST ? ((const n_const *)a)->v : ((const n_global *)a)->cell->value;
}

/* How call_borrowing can make the call: BORROWS_VALUES if all arguments are variables and constants; BORROWS_LIST if one of them is a list
 * of at most LIST_KEPT such, or if a rest parameter collects them into a list; else BORROWS_NOT. */
static uint8_t borrows(const n_call *n, const builtin_info *info) {
  uint32_t lists = info->rest != 0;
  if (n->nrest > LIST_KEPT) return BORROWS_NOT;
  for (uint32_t i = 0; i < n->n; i++) {
    const node *a = n->args[i].value;
    if (readable(a)) continue;
    const n_items *items = (const n_items *)a;
    if (a->eval != eval_list || ++lists > 1 || items->n > LIST_KEPT) return BORROWS_NOT;
    for (uint32_t k = 0; k < items->n; k++)
      if (!readable(items->items[k])) return BORROWS_NOT;
  }
  return lists ? BORROWS_LIST : BORROWS_VALUES;
}

/* Lays the call out for a builtin: gives each argument the number of its parameter, with `extra` receivers before them. False if there are
 * spreads, or if the arguments do not fit; then the general call words the error. */
static __attribute__((noinline)) bool lay_out(n_call *n, const builtin_info *info, uint32_t extra) {
  enum { MOST = 64 };
  uint32_t nparams = (uint32_t)info->sig.nparams, next = extra, rest = info->rest ? info->rest - 1u : nparams;
  if ((info->named && !info->rest) || nparams > MOST || extra > rest) return false;
  uint64_t given = extra;
  n->nrest = 0;
  for (uint32_t i = 0; i < n->n; i++) {
    call_arg *a = &n->args[i];
    uint32_t slot = next;
    if (a->spread) return false;
    if (a->keyword)
      for (slot = 0; slot < nparams && !str_equal(info->sig.params[slot].name, a->keyword);) slot++;
    else if (next == rest)
      n->nrest++;
    else
      next++;
    if (slot >= nparams || (a->keyword ? slot == rest || given >> slot & 1 : slot != rest && given >> slot & 1))
      return false;
    given |= (uint64_t)1 << slot;
    a->slot = (uint8_t)slot;
    a->at = a->value->kind == N_CONST    ? &((const n_const *)a->value)->v
            : a->value->kind == N_GLOBAL ? &((const n_global *)a->value)->cell->value
                                         : NULL;
  }
  for (uint32_t i = 0; i < nparams; i++)
    if (i != rest && !(given >> i & 1) && info->sig.params[i].def.head == TAG_UNSET) return false;
  bool pure = info->pure && !(info->chooses && given >> (info->chooses - 1) & 1);
  n->laid = info;
  n->borrows = pure ? borrows(n, info) : BORROWS_NOT;
  /* only used if the builtin has at most PURE_PARAMS parameters */
  n->missing = (uint8_t)(~given & ((1u << (nparams & 31)) - 1));
  return true;
}

/* Is the node laid out for this builtin, perhaps only now? A node is laid out once, because calls in progress use its numbers; other
 * builtins that it calls later are called generally. So is a function in a field, `r.f(...)`, which takes no receiver. */
static inline bool laid_out(n_call *n, const builtin_info *info, uint32_t extra) {
  if (extra != (n->method != NULL)) return false;
  return n->laid ? n->laid == info : lay_out(n, info, extra);
}

/* Evaluates the arguments of a node that is laid out for a builtin to the places of its parameters, which have their defaults; those of
 * parameter `rest` to `items`, if that is not NULL. Nil, or what has stopped it. */
static inline __attribute__((always_inline)) qn_value
evaluate_arguments(qn_vm *vm, const n_call *n, qn_value *fp, qn_value *args, uint32_t rest, qn_value *items) {
  for (const call_arg *a = n->args, *end = a + n->n; a < end; a++) {
    qn_value v = argument(vm, a->value, fp);
    if (value_stops(v)) return v;
    if (items && a->slot == rest)
      *items++ = v;
    else
      slot_set(vm, &args[a->slot], v);
  }
  return value_nil();
}

/* Calls the builtin that the node is laid out for: evaluates the arguments into a frame with one value for each parameter. Takes over the
 * receiver (unset: there is none). */
static __attribute__((noinline)) qn_value call_evaluating(qn_vm *vm, n_call *n, const builtin_info *info,
                                                          qn_value receiver, qn_value *fp) {
  uint32_t nparams = (uint32_t)info->sig.nparams;
  bool extra = receiver.head != TAG_UNSET;
  if (!vm_enter(vm, (size_t)nparams + 4)) return fail_call(vm, n, receiver, value_nil());
  qn_value *args = vm->sp, *items = NULL, *lent = NULL;
  for (uint32_t i = 0; i < nparams; i++) args[i] = value_retain(info->defaults[i]);
  if (extra) args[0] = receiver;
  vm->sp = args + nparams;
  if (info->rest) {
    qn_list *l = list_new(vm, n->nrest);
    if (!l) return vm_pop_with(vm, args, raise_at(vm, n->h.at));
    args[info->rest - 1] = value_obj(TAG_LIST, l);
    items = l->items;
  }
  qn_value stopped = items ? evaluate_arguments(vm, n, fp, args, info->rest - 1u, items)
                           : evaluate_arguments(vm, n, fp, args, 0, NULL);
  if (value_stops(stopped)) return vm_pop_with(vm, args, stopped);
  if (info->moves) lent = lend_moved(vm, n, fp, info, args);
  qn_value r = run_builtin(vm, info, args, n->h.at, n);
  if (__builtin_expect(vm->asked.stacked, 0) && !n->stacks && !value_is_error(r) && !rec_plain_field(vm, &r))
    r = value_fail(vm, r);
  if (__builtin_expect(value_is_error(r), 0)) {
    if (lent) *lent = value_retain(args[n->moved_arg]);
    note_arguments(vm, n, info, args, extra);
  }
  return vm_pop_with(vm, args, r);
}

/* Calls the pure builtin that the node is laid out for, outside of recordings, if all arguments are variables and constants (n->borrows).
 * Nothing is evaluated, and the builtin changes nothing, so the arguments are passed without references. A list among them is made in
 * interp.list, which is kept for that. Borrows the receiver (unset: there is none). `list`: n->borrows is BORROWS_LIST. */
static inline __attribute__((always_inline)) qn_value borrow(qn_vm *vm, n_call *n, const builtin_info *info,
                                                             qn_value receiver, qn_value *fp, bool list) {
  qn_value in[PURE_PARAMS], v;
  interp *ip = interp_of(vm);
  qn_list *l = list ? ip->list : NULL;
  if (__builtin_expect(list && !l, 0)) {
    if (!(l = ip->list = list_new(vm, LIST_KEPT))) return raise_at(vm, n->h.at);
    l->len = 0;
  }
  for (uint32_t missing = n->missing; missing; missing &= missing - 1) {
    uint32_t k = (uint32_t)__builtin_ctz(missing);
    in[k] = info->defaults[k];
  }
  if (receiver.head != TAG_UNSET) in[0] = receiver;
  uint32_t rest = list ? info->rest - 1u : UINT32_MAX, held = 0;
  if (rest != UINT32_MAX) in[rest] = value_obj(TAG_LIST, l);
  for (const call_arg *arg = n->args, *end = arg + n->n; arg < end; arg++) {
    const node *a = arg->value;
    if (arg->at) {
      v = *arg->at;
    } else if (!list || a->kind == N_LOCAL) {
      v = fp[a->slot];
    } else {
      const n_items *items = (const n_items *)a;
      qn_value *to = l->items;
      for (node *const *item = items->items, *const *last = item + items->n; item < last; item++, to++) {
        v = read_here(*item, fp);
        if (__builtin_expect(v.head == TAG_UNSET, 0)) goto unset;
        *to = v;
      }
      held = items->n;
      in[arg->slot] = value_obj(TAG_LIST, l);
      continue;
    }
    /* the cell has no value: it is a name of the builtin scope, such as f32, or has none at all */
    if (__builtin_expect(v.head == TAG_UNSET, 0)) {
      v = a->kind == N_GLOBAL ? cell_get(((const n_global *)a)->cell) : v;
      if (v.head == TAG_UNSET) goto unset;
    }
    *(arg->slot == rest ? &l->items[held++] : &in[arg->slot]) = v;
  }
  if (list) {
    l->len = held;
    ip->list = NULL;
  }
  span outer = ip->place.calling;
  ip->place.calling = n->h.at;
  v = info->def.call(vm, in);
  ip->place.calling = outer;
  if (__builtin_expect(value_is_error(v), 0)) {
    builtin_failed(vm, info, n->h.at);
    note_arguments(vm, n, info, in, receiver.head != TAG_UNSET);
  }
  if (!list) return v;
  if (__builtin_expect(l->head.refs == 1 && !ip->list, 1)) {
    l->len = 0;
    ip->list = l;
    return v;
  }
  /* the result holds the list, too, so it needs references of its own */
  for (uint32_t i = 0; i < l->len; i++) value_retain(l->items[i]);
  value_release(vm, value_obj(TAG_LIST, l));
  return v;
unset:
  return call_evaluating(vm, n, info, value_retain(receiver), fp);
}
static __attribute__((noinline)) qn_value borrow_values(qn_vm *vm, n_call *n, const builtin_info *info,
                                                        qn_value receiver, qn_value *fp) {
  return borrow(vm, n, info, receiver, fp, false);
}
static __attribute__((noinline)) qn_value borrow_list(qn_vm *vm, n_call *n, const builtin_info *info, qn_value receiver,
                                                      qn_value *fp) {
  return borrow(vm, n, info, receiver, fp, true);
}
static inline qn_value call_borrowing(qn_vm *vm, n_call *n, const builtin_info *info, qn_value receiver, qn_value *fp) {
  return n->borrows == BORROWS_LIST ? borrow_list(vm, n, info, receiver, fp) : borrow_values(vm, n, info, receiver, fp);
}

/* Calls the builtin that the node is laid out for, outside of recordings, in the better of the two ways. Takes over the receiver (unset:
 * there is none). */
static inline qn_value call_laid(qn_vm *vm, n_call *n, const builtin_info *info, qn_value receiver, qn_value *fp) {
  if (!n->borrows || vm->asked.stacked) return call_evaluating(vm, n, info, receiver, fp);
  qn_value r = call_borrowing(vm, n, info, receiver, fp);
  value_release(vm, receiver);
  return r;
}

/* ---- any callee ------------------------------------------------------------------------------------------------------------------ */

/* Is `f` a function of the program that takes `given` positional arguments as they are? */
static inline bool takes_positional(const n_call *n, qn_value f, uint32_t given) {
  if (f.head != TAG_FN || value_fn(f)->head.flags != FN_USER || n->h.flag & CALL_MIXED) return false;
  const fn_code *code = value_fn(f)->code;
  return code->nparams == given && !code->rest;
}

/* Calls such a function. Takes over `f` and the receiver (unset: there is none). */
static inline __attribute__((always_inline)) qn_value call_positional(qn_vm *vm, n_call *n, qn_value f,
                                                                      qn_value receiver, qn_value *fp) {
  fn_code *code = value_fn(f)->code;
  bool extra = receiver.head != TAG_UNSET;
  if (!vm_enter(vm, (size_t)code->nslots + 4)) return fail_call(vm, n, f, receiver);
  qn_value *base = vm->sp;
  uint64_t heads = extra ? receiver.head : 0;
  *vm->sp++ = f;
  if (extra) *vm->sp++ = receiver;
  for (uint32_t i = 0, count = n->n; i < count; i++) {
    qn_value v = argument(vm, n->args[i].value, fp);
    if (value_stops(v)) return vm_pop_with(vm, base, v);
    heads |= v.head;
    *vm->sp++ = v;
  }
  if (n->h.flag & CALL_MOVES) lend(vm, n, fp, base[1 + n->moved_arg]);
  return run_frame(vm, code, base + 1, heads, n->h.at, n, extra);
}

/* dtype(x). An array literal as the argument is made in that dtype at once. */
static __attribute__((noinline)) qn_value call_dtype(qn_vm *vm, n_call *n, qn_dtype dtype, qn_value *fp) {
  node *a = n->args[0].value;
  if (a->kind == N_ARRAY && dtype_public((int)dtype)) return array_literal(vm, (const n_items *)a, fp, (int)dtype);
  qn_value x = argument(vm, a, fp);
  if (value_stops(x)) return x;
  rec_at(vm, n->h.at);
  qn_value r = convert_dtype(vm, dtype, x);
  if (value_is_error(r)) raise_at(vm, n->h.at);
  value_release(vm, x);
  return r;
}

/* Calls `f` (taken over) with the arguments of the node; `receiver` (taken over; unset: none) is the first one. */
static __attribute__((noinline)) qn_value call_node(qn_vm *vm, n_call *n, qn_value f, qn_value receiver, qn_value *fp) {
  bool extra = receiver.head != TAG_UNSET;
  if (takes_positional(n, f, n->n + extra)) return call_positional(vm, n, f, receiver, fp);
  if (f.head == TAG_DTYPE && n->n == 1 && !extra && !(n->h.flag & CALL_MIXED))
    return call_dtype(vm, n, (qn_dtype)f.u.i, fp);
  const builtin_info *info = NULL;
  if (f.head == TAG_FN && value_fn(f)->head.flags == FN_BUILTIN && (info = builtin_of(vm, value_fn(f))) &&
      laid_out(n, info, extra)) {
    value_release(vm, f); /* the table keeps it alive */
    return rec_hears_globals(vm) ? call_evaluating(vm, n, info, receiver, fp) : call_laid(vm, n, info, receiver, fp);
  }
  if (!vm_enter(vm, 4)) return fail_call(vm, n, f, receiver);
  qn_value *base = vm->sp;
  *vm->sp++ = f;
  if (extra) *vm->sp++ = receiver;
  return (n->h.flag & CALL_MIXED ? call_mixed : call_plain)(vm, n, base, extra, fp);
}

qn_value call_counting(qn_vm *vm, node *h, qn_value *fp, qn_value *bounds, bool *counts) {
  n_call *n = (n_call *)h;
  qn_value f = eval(vm, n->callee, fp);
  *counts = false;
  if (value_stops(f)) return f;
  bool builtin = value_is(f, TAG_FN) && value_fn(f)->head.flags == FN_BUILTIN;
  const builtin_info *info = builtin ? builtin_of(vm, value_fn(f)) : NULL;
  if (!info || info->def.work != WORK_COUNT || info->sig.nparams != COUNT_BOUNDS || !laid_out(n, info, 0))
    return call_node(vm, n, f, value_unset(), fp);
  value_release(vm, f); /* the table keeps it alive */
  if (!vm_enter(vm, COUNT_BOUNDS)) return raise_at(vm, h->at);
  qn_value *args = vm->sp, r = value_nil();
  for (int i = 0; i < COUNT_BOUNDS; i++) args[i] = value_retain(info->defaults[i]);
  vm->sp = args + COUNT_BOUNDS;
  qn_value stopped = evaluate_arguments(vm, n, fp, args, 0, NULL);
  if (value_stops(stopped)) return vm_pop_with(vm, args, stopped);
  rec_at(vm, h->at);
  bool one = value_is(args[1], TAG_NIL);
  bounds[0] = one ? value_int(0) : args[0], bounds[1] = args[one ? 0 : 1], bounds[2] = args[2];
  int offers = rec_range(vm, bounds, &bounds[COUNT_FIRST], &bounds[COUNT_END]);
  *counts = offers > 0;
  if (offers < 0) r = raise_at(vm, h->at);
  if (offers == 0 && value_is_error(r = run_builtin(vm, info, args, h->at, n)))
    note_arguments(vm, n, info, args, false);
  return vm_pop_with(vm, args, r);
}

static __attribute__((noinline)) qn_value call_any(qn_vm *vm, n_call *n, qn_value *fp) {
  qn_value f = eval(vm, n->callee, fp);
  return value_stops(f) ? f : call_node(vm, n, f, value_unset(), fp);
}

static __attribute__((noinline)) qn_value call_global(qn_vm *vm, n_call *n, qn_value f, qn_value *fp) {
  return call_positional(vm, n, value_retain(f), value_unset(), fp);
}

/* The common cases come first: the callee is a global that holds the builtin for which the node is laid out, or a function of the program. */
qn_value eval_call(qn_vm *vm, node *h, qn_value *fp) {
  n_call *n = (n_call *)h;
  if (!n->direct || rec_hears_globals(vm)) return call_any(vm, n, fp);
  qn_value f = cell_get(n->direct);
  if (f.head == TAG_DTYPE && n->n == 1 && !(n->h.flag & CALL_MIXED)) return call_dtype(vm, n, (qn_dtype)f.u.i, fp);
  if (f.head != TAG_FN) return call_any(vm, n, fp);
  const builtin_info *laid = n->laid;
  if (laid && laid == value_fn(f)->code)
    return (n->borrows && !vm->asked.stacked ? call_borrowing : call_evaluating)(vm, n, laid, value_unset(), fp);
  return takes_positional(n, f, n->n) ? call_global(vm, n, f, fp) : call_any(vm, n, fp);
}

/* ---- methods ------------------------------------------------------------------------------------------------------------------------ */

static bool callable(qn_value v) { return value_is(v, TAG_FN) || value_is(v, TAG_DTYPE); }

/* The nearest variable with the method's name whose value is a function. Owned; unset if there is none; or the error value. */
static qn_value find_method(qn_vm *vm, const n_call *n, qn_value *fp) {
  for (uint32_t i = 0; i < n->ncandidates; i++) {
    node *c = n->candidates[i];
    if (c->kind == N_GLOBAL) {
      global_cell *cell = ((n_global *)c)->cell;
      if (callable(cell->value)) return eval(vm, c, fp);
      /* the program depends on its being no function */
      qn_value seen = rec_global(vm, &cell->rec, &cell->value, cell->name);
      if (value_is_error(seen)) return seen;
      value_release(vm, seen);
      if (cell->shadow && callable(cell->shadow->value)) return value_retain(cell->shadow->value);
      continue;
    }
    qn_value v = eval(vm, c, fp);
    if (callable(v)) return v;
    value_release(vm, v);
  }
  return value_unset();
}

/* Is `f` the builtin with the method's name? */
static bool is_builtin_method(const n_call *n, qn_value f) {
  if (f.head != TAG_FN) return false;
  for (uint32_t i = 0; i < n->ncandidates; i++) {
    const global_cell *c =
        n->candidates[i]->kind == N_GLOBAL ? ((const n_global *)n->candidates[i])->cell->shadow : NULL;
    if (c && c->value.head == TAG_FN && c->value.u.p == f.u.p) return true;
  }
  return false;
}

typedef struct name_list {
  const char *names[512];
  int n;
} name_list;

static void add_global_name(void *ctx, const char *name) {
  name_list *l = ctx;
  if (l->n < (int)(sizeof l->names / sizeof *l->names)) l->names[l->n++] = name;
}

static __attribute__((noinline, cold)) qn_value fail_method(qn_vm *vm, n_call *n, qn_value receiver) {
  name_list l = {.n = 0};
  if (value_is(receiver, TAG_RECORD))
    for (uint32_t i = 0; i < value_record(receiver)->len && l.n < 200; i++)
      l.names[l.n++] = record_name(value_record(receiver), i)->text;
  if (value_is(receiver, TAG_MODULE)) {
    const scope *s = ((qn_module *)receiver.u.p)->scope;
    for (uint32_t i = 0; i < s->n; i++)
      if (s->cells[i]->declared) add_global_name(&l, s->cells[i]->name->text);
  } else {
    interp_names(vm, "", add_global_name, &l);
  }
  text_buf t = {.vm = vm};
  const char *hint = NULL;
  bool field = value_is(receiver, TAG_ARRAY) && is_array_field(n->method);
  if (field) {
    text_addf(&t, "'%s' is a field of arrays, not a function: x.%s, without parentheses", n->method->text,
              n->method->text);
  } else {
    text_addf(&t, "neither a field of %s nor a function is named '%s'", phrase_kind(receiver).text, n->method->text);
    hint = foreign_hint(foreign_member(receiver), n->method->text, n->method->len);
  }
  if (hint)
    text_addf(&t, ": %s", hint);
  else if (!field)
    text_nearest(&t, "; nearest: ", n->method->text, l.names, l.n);
  span at = {n->h.at.source, n->args_at.start, n->args_at.end};
  return raise_text(vm, E_undefined, at, &t);
}

/* Does the method's name still mean the builtin that the node is laid out for? This is only known if the nearest candidate is a global. The
 * caller must know that the receiver has no field of that name. */
static inline bool means_laid(const qn_vm *vm, const n_call *n) {
  if (!n->laid || rec_hears_globals(vm) || n->candidates[0]->kind != N_GLOBAL) return false;
  qn_value f = cell_get(((n_global *)n->candidates[0])->cell);
  return f.head == TAG_FN && value_fn(f)->code == n->laid;
}

qn_value eval_method(qn_vm *vm, node *h, qn_value *fp) {
  n_call *n = (n_call *)h;
  bool laid = means_laid(vm, n);
  if (laid && n->borrows && readable(n->callee)) {
    qn_value x = read_here(n->callee, fp);
    if (x.head == TAG_ARRAY) return call_borrowing(vm, n, n->laid, x, fp);
  }
  qn_value receiver = eval(vm, n->callee, fp), f = value_unset();
  if (value_stops(receiver)) return receiver;
  if (laid && receiver.head == TAG_ARRAY && means_laid(vm, n)) return call_laid(vm, n, n->laid, receiver, fp);
  if (value_is(receiver, TAG_RECORD)) {
    int i = record_find(value_record(receiver), n->method);
    if (i >= 0) f = value_retain(value_record(receiver)->items[i]);
    if (i >= 0 && !rec_plain_field(vm, &f)) return value_release(vm, f), value_fail(vm, receiver);
  } else if (value_is(receiver, TAG_MODULE)) {
    global_cell *c = scope_find(((qn_module *)receiver.u.p)->scope, n->method);
    if (c && c->declared) {
      f = field_of(vm, receiver, n->method, n->args_at, NULL);
      if (value_is_error(f)) return value_fail(vm, receiver);
    }
  }
  if (f.head != TAG_UNSET) {
    value_release(vm, receiver);
    return call_node(vm, n, f, value_unset(), fp);
  }
  if (!value_is(receiver, TAG_MODULE)) f = find_method(vm, n, fp);
  if (n->lost && is_builtin_method(n, f)) {
    value_release(vm, f);
    value_release(vm, receiver);
    return raise_error(vm, E_lost_value, n->h.at, "%s", n->lost->text);
  }
  if (f.head == TAG_UNSET) fail_method(vm, n, receiver);
  if (f.head == TAG_UNSET || value_is_error(f)) return value_fail(vm, receiver);
  return call_node(vm, n, f, receiver, fp);
}

/* The code of the function that a call has called, if it is one of the library that is written in Quern; else NULL. Only callees that are
 * globals, or names in a module that is one, are recognised. */
static const fn_code *library_code(qn_vm *vm, const n_call *c) {
  if (c->callee->kind != N_GLOBAL) return NULL;
  qn_value f = cell_get(((const n_global *)c->callee)->cell);
  if (c->method) {
    if (!value_is(f, TAG_MODULE)) return NULL;
    const global_cell *cell = scope_find(((const qn_module *)f.u.p)->scope, c->method);
    f = cell ? cell->value : value_unset();
  }
  if (!value_is(f, TAG_FN) || value_fn(f)->head.flags != FN_USER) return NULL;
  const fn_code *code = value_fn(f)->code;
  const source_text *s = source_get(vm, code->at.source);
  return s && s->library ? code : NULL;
}

/* The name of the variable that an argument reads; `other` if it is no variable. */
static const char *variable_name(const node *n, const char *other) {
  if (n && n->kind == N_LOCAL) return ((const n_local *)n)->name->text;
  return n && n->kind == N_GLOBAL ? ((const n_global *)n)->cell->name->text : other;
}

/* Raises that the value of a library function's call is lost. The hint shows the call with the program's own variables. */
static __attribute__((noinline, cold)) qn_value fail_lost_result(qn_vm *vm, const n_call *c, const fn_code *code) {
  text_buf t = {.vm = vm}, call = {.vm = vm};
  text_span(vm, &call, c->h.at);
  const char *written = call.text && !call.failed ? call.text : "f(x)";
  bool steps = code->nparams > 2 && c->n > 2 && strcmp(code->params[2].name->text, "state") == 0;
  const node *first = c->n && !c->args[0].keyword ? c->args[0].value : NULL, *third = NULL;
  for (uint32_t i = 0; i < c->n && steps; i++) {
    const qn_str *keyword = c->args[i].keyword;
    if (keyword ? strcmp(keyword->text, "state") == 0 : i == 2) third = c->args[i].value;
  }
  if (steps)
    text_addf(&t, "values do not change: %s gives new ones, which are lost here; write (%s, %s) = %s", code->name->text,
              variable_name(first, "params"), variable_name(third, "state"), written);
  else
    text_addf(&t, "the result of %s is lost here; write let y = %s, or remove it", code->name->text, written);
  text_free(&call);
  return raise_text(vm, E_lost_value, c->h.at, &t);
}

qn_value eval_lost_builtin(qn_vm *vm, node *h, qn_value *fp) {
  const n_lost *n = (const n_lost *)h;
  if (n->cell->value.head == TAG_UNSET) return raise_error(vm, E_lost_value, n->h.at, "%s", n->lost->text);
  return eval(vm, n->call, fp);
}

qn_value eval_lost(qn_vm *vm, node *h, qn_value *fp) {
  const n_one *n = (const n_one *)h;
  qn_value r = eval(vm, n->a, fp);
  if (r.head == TAG_NIL || value_stops(r) || (n->a->eval != eval_call && n->a->eval != eval_method)) return r;
  const fn_code *code = library_code(vm, (const n_call *)n->a);
  if (__builtin_expect(!code, 1)) return r;
  value_release(vm, r);
  return fail_lost_result(vm, (const n_call *)n->a, code);
}

/* ---- calls from C --------------------------------------------------------------------------------------------------------------------- */

qn_value call_value(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, qn_value kwargs) {
  uint32_t nkw = value_is(kwargs, TAG_RECORD) ? value_record(kwargs)->len : 0;
  if (nkw == 0 && fn.head == TAG_FN && value_fn(fn)->head.flags == FN_USER) {
    fn_code *code = value_fn(fn)->code;
    if (code->nparams == (uint32_t)nargs && !code->rest) {
      if (!vm_enter(vm, (size_t)code->nslots + 4)) return value_error();
      qn_value *frame = vm->sp + 1;
      *vm->sp++ = value_retain(fn);
      for (int i = 0; i < nargs; i++) *vm->sp++ = value_retain(args[i]);
      return run_frame(vm, code, frame, heads_of(frame, code->nparams) | heads_asked(vm), SPAN_NONE, NULL, 0);
    }
  }
  if (!vm_enter(vm, (size_t)nargs + 2 * (size_t)nkw + 2)) return value_error();
  qn_value *base = vm->sp;
  *vm->sp++ = value_retain(fn);
  for (int i = 0; i < nargs; i++) *vm->sp++ = value_retain(args[i]);
  if (nkw) push_keywords(vm, value_record(kwargs));
  return call_bound(vm, base, (uint32_t)nargs, nkw, SPAN_NONE, NULL, NULL);
}
