/* Calls. A call pushes the function and its arguments onto the value stack; for a user function these become its frame:
 *
 *   fp[-1] the function value   fp[0..nparams) arguments   then dimensions of its signature, then locals
 *
 * so that a positional call of the right arity copies nothing. Keywords, spreads, defaults and rest parameters go through
 * `bind`, which fills one value per parameter for user functions and builtins alike. Keyword arguments wait on the stack
 * as pairs of name and value behind the positional ones.
 *
 * A user call with arrays asks its anchor whether the compiler wants it (rec_call); inside a recording it is announced by
 * rec_enter and rec_leave. An assignment `xs = f(xs, ...)` or `r.a = f(r.a, ...)` may lend the place's own reference to the
 * call, so that the callee finds a value with one owner and updates it in place.
 */
#include <stdio.h>
#include <string.h>

#include "interp/signature.h"
#include "jit/run/eager.h"

/* ---- errors ------------------------------------------------------------------------------------------------------------- */

void raise_last(qn_vm *vm, node *body) {
  while (body->eval == eval_block || body->eval == eval_block_plain)
    body = ((n_block *)body)->items[((n_block *)body)->n - 1];
  raise_at(vm, body->at);
}

void trace_frame(qn_vm *vm, qn_value fn) {
  interp *ip = interp_of(vm);
  if (!vm->error) return;
  if (ip->place.rethrown) {
    ip->place.rethrown = false;
    return;
  }
  span place = vm->error->nframes ? ip->place.error_place : vm->error->at;
  qn_str *name = NULL;
  if (value_is(fn, TAG_FN) && value_fn(fn)->head.flags == FN_USER) name = ((fn_code *)value_fn(fn)->code)->name;
  raise_frame(vm, place, name);
}

static void arity_text(qn_vm *vm, qn_value f, text_buf *t) {
  text_adds(t, "; ");
  if (!interp_signature(vm, f, t)) text_adds(t, "it takes one value");
}

static bool fail_arity(qn_vm *vm, qn_value f, uint32_t given, const qn_str *missing) {
  text_buf t;
  text_init(&t, vm);
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

static __attribute__((cold)) qn_value fail_callable(qn_vm *vm, qn_value f, span at) {
  text_buf t;
  text_init(&t, vm);
  text_kind(&t, f);
  text_adds(&t, " is not a function");
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
  case TAG_FLOAT: /* 2(x + 1), (a + b)(c + d) */
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
  r->fp[-1] = value_retain(r->site->fn); /* perhaps a tracer with traced captures */
  qn_value v = run_body(r->vm, r->code, r->fp);
  vm_disown(r->vm, &held);
  value_release(r->vm, r->fp[-1]);
  r->fp[-1] = own;
  return v;
}

/* Is there an array or container among what the call works on? */
static bool call_has_data(const fn_code *code, const qn_value *fp) {
  for (uint32_t i = 0; i < code->nparams; i++)
    if (value_is_data(fp[i])) return true;
  if (value_fn(fp[-1])->head.aux) return true;
  for (uint32_t i = 0; i < code->ndata; i++)
    if (value_is_data(code->data[i]->value)) return true;
  return false;
}

/* Elements of the arrays among the arguments. */
static int64_t call_elements(const fn_code *code, const qn_value *fp) {
  int64_t n = 0;
  for (uint32_t i = 0; i < code->nparams; i++)
    if (value_is(fp[i], TAG_ARRAY)) n += value_array(fp[i])->size;
  return n;
}

/* Does this call of a function that has to do with arrays go through its anchor? */
static inline bool call_asks(qn_vm *vm, fn_code *code, const qn_value *fp) {
  if (anchor_wants(vm, &code->anchor)) return true;
  if (code->anchor.state == ANCHOR_RESTING && anchor_wakes(&code->anchor, call_elements(code, fp))) return true;
  anchor_passed(&code->anchor);
  return false;
}

static __attribute__((noinline)) qn_value run_watched(qn_vm *vm, fn_code *code, qn_value *fp, span at) {
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
      rec_frame_enter(vm, &frame, false, (rec_slots){NULL, 0});
      r = rec_call_leave(vm, &frame, run_body(vm, code, fp));
    } else {
      r = run_body(vm, code, fp);
    }
    rec_leave(vm);
  } else if (!call_has_data(code, fp)) {
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
  } else {
    r = run_body(vm, code, fp);
  }
  if (code->result && !value_is_error(r)) {
    vm_owned held;
    vm_own(vm, &held, vm_drop_value, &r); /* sizes of its type may be expressions */
    bool fits = signature_result(vm, code, fp, r);
    vm_disown(vm, &held);
    if (!fits) {
      value_release(vm, r);
      r = value_error();
      raise_at(vm, code->result_at);
    }
  }
  return r;
}

/* The expression that a call gives parameter i; NULL: a default, a part of what is spread, or `n` is. */
static const node *argument_of(const n_call *n, const fn_code *code, uint32_t extra, uint32_t i) {
  if (n && i < extra) return n->callee;
  for (uint32_t k = 0, next = extra; n && k < n->n; k++) {
    const call_arg *a = &n->args[k];
    if (a->spread) return NULL;
    if (a->keyword ? str_equal(a->keyword, code->params[i].name) : next++ == i) return a->value;
  }
  return NULL;
}

/* "{w: f32[3, 2], b: f32[2]}": the shapes in a tree, the first few of each level. */
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

/* What the argument `arg` was, under its text: shapes, also those in a tree. */
static void note_argument(qn_vm *vm, const node *arg, qn_value v) {
  if (!arg) return;
  if (value_is(v, TAG_ARRAY)) note_operand(vm, arg->at, v, arg);
  if (!value_is(v, TAG_LIST) && !value_is(v, TAG_RECORD)) return;
  text_buf t;
  text_init(&t, vm);
  text_tree(&t, v, 0);
  if (!t.failed && t.text) raise_note(vm, arg->at, "%s", t.text);
  text_free(&t);
}

/* Is the error one of the shapes and dtypes of operands, which a recording meets where the interpreter does? */
static bool about_shapes(error_id id) { return id >= E_shape && id <= E_ragged && id != E_weak_range; }

/* A call of the function in fp[-1] at `at` has failed: `n` with `extra` receivers where the program's text made it. An error
 * of the call itself (its arguments, an interrupt) lies in the caller. */
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
  if (!own) {
    trace_frame(vm, fp[-1]);
    ip->place.error_place = at;
  }
  if (!raise_through(vm, at, code->name->text) || !n || !about_shapes(vm->error->id)) return;
  for (uint32_t i = 0; i < code->nparams; i++) note_argument(vm, argument_of(n, code, extra, i), fp[i]);
}

/* Runs a function whose frame holds its function value and arguments; vm->sp is the end of these. Pops the frame. `heads` is
 * the union of the arguments' header words. */
static inline __attribute__((always_inline)) qn_value run_frame(qn_vm *vm, fn_code *code, qn_value *fp, uint64_t heads,
                                                                span at, const n_call *n, uint32_t extra) {
  for (uint32_t i = code->nparams; i < code->nslots; i++) fp[i] = value_nil();
  vm->sp = fp + code->nslots;
  qn_value r;
  if (__builtin_expect(vm_poll_between(vm), 0)) {
    r = value_error();
    raise_at(vm, at);
  } else if ((heads & TAG_HEAP) | (uint64_t)code->watched | (uint64_t)rec_hears_calls(vm) |
             value_fn(fp[-1])->head.aux) {
    r = run_watched(vm, code, fp, at);
  } else {
    r = run_body(vm, code, fp);
  }
  if (value_is_error(r)) leave_failed(vm, fp, at, n, extra);
  vm_pop_to(vm, fp - 1);
  return r;
}

/* ---- builtins ------------------------------------------------------------------------------------------------------------------ */

static __attribute__((noinline, cold)) void builtin_failed(qn_vm *vm, const builtin_info *info, span at) {
  interp *ip = interp_of(vm);
  ip->place.rethrown = false;
  if (!vm->error || !vm->error->nframes) return;
  /* A function that the builtin called has failed, or the builtin raised an error that came with its trace. */
  ip->place.error_place = at;
  raise_through(vm, at, NULL);
  ip->place.rethrown = info->def.effect == BUILTIN_STATE;
}

/* Calls a builtin whose arguments lie on the stack, one per parameter. */
static qn_value run_builtin(qn_vm *vm, const builtin_info *info, qn_value *args, span at) {
  bool lossy;
  if (!rec_builtin(vm, &info->def, &info->sig, args, at, &lossy)) return value_error();
  span outer = interp_of(vm)->place.calling;
  interp_of(vm)->place.calling = at;
  if (info->moves && at.source) vm->updating = at;
  qn_value r = info->def.call(vm, args);
  interp_of(vm)->place.calling = outer;
  if (lossy && !value_is_error(r) && !rec_carries(vm, info->def.name, r, info->def.effect == BUILTIN_READ)) {
    value_release(vm, r);
    r = value_error();
  }
  if (__builtin_expect(value_is_error(r), 0)) builtin_failed(vm, info, at);
  return r;
}

/* ---- binding -------------------------------------------------------------------------------------------------------------------- */

/* The parameters of a callee as `bind` sees them. */
typedef struct params {
  qn_value f;
  uint32_t n;
  const fn_code *code; /* one of these */
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
  text_buf t, near;
  text_init(&t, vm);
  text_init(&near, vm);
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
  else if (!repeated && text_nearest(&near, name->text, names, n) && !near.failed)
    text_addf(&t, "; nearest: %s", near.text);
  arity_text(vm, p->f, &t);
  text_free(&near);
  raise_text(vm, E_keyword, SPAN_NONE, &t);
  return false;
}

/* Fills out[0..p->n) (room on the stack above everything) from positional values and keyword pairs, which it moves out of
 * their places. vm->sp is raised step by step, so that an error leaves the stack poppable. */
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

/* Takes the own reference of what the result will replace away for the time of a call, so that the argument is the only owner. NULL:
 * that cannot be done. */
static qn_value *lend(const qn_vm *vm, const n_call *n, qn_value *fp, qn_value arg) {
  if (!value_is_heap(arg)) return NULL;
  qn_value *var = n->moved->kind == N_GLOBAL ? &((n_global *)n->moved)->cell->value : peek(vm, n->moved, fp, true);
  if (!var || var->head != arg.head || var->u.p != arg.u.p) return NULL;
  *var = value_nil();
  ((obj_head *)arg.u.p)->refs--; /* the argument's reference remains */
  return var;
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
    if (record_set(vm, r, value_str(kw[2 * k]), value_retain(kw[2 * k + 1]))) continue;
    value_release(vm, value_obj(TAG_RECORD, r));
    return value_error();
  }
  return value_obj(TAG_RECORD, r);
}

/* Calls base[0] on base[1..npos] and nkw pairs behind them; pops all of it. `n` may be NULL (calls from builtins). */
static qn_value call_bound(qn_vm *vm, qn_value *base, uint32_t npos, uint32_t nkw, span at, const n_call *n,
                           qn_value *fp) {
  qn_value f = base[0], *pos = base + 1, *kw = pos + npos, r = value_error();
  if (value_is(f, TAG_DTYPE)) {
    if (npos == 1 && nkw == 0) {
      rec_at(vm, at);
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
    r = run_frame(vm, code, frame + 1, heads_of(frame + 1, code->nparams), at, n, n && n->method && npos > n->n);
    break;
  }
  case FN_BUILTIN: {
    builtin_info *info = builtin_of(vm, fn);
    if (!info) break;
    params p = {.f = f, .n = (uint32_t)info->sig.nparams, .info = info};
    if (!vm_enter(vm, (size_t)p.n + 1)) break;
    qn_value *args = vm->sp;
    if (!bind(vm, &p, pos, npos, kw, nkw)) break;
    bool moves = n && n->moved && n->moved_arg < p.n && info->sig.params[n->moved_arg].move;
    qn_value *lent = moves ? lend(vm, n, fp, args[n->moved_arg]) : NULL;
    r = run_builtin(vm, info, args, at);
    if (value_is_error(r)) {
      if (lent) *lent = value_retain(args[n->moved_arg]);
      raise_at(vm, at);
      if (n && !(n->h.flag & CALL_MIXED) && vm->error && vm->error->id < 300) {
        uint32_t skip = n->method && npos > n->n;
        if (skip) note_operand(vm, n->callee->at, args[0], n->callee);
        for (uint32_t i = 0; i < n->n && i + skip < p.n; i++)
          if (value_is(args[i + skip], TAG_ARRAY))
            note_operand(vm, n->args[i].value->at, args[i + skip], n->args[i].value);
      }
    }
    break;
  }
  case FN_TRANSFORM:
  case FN_GRAPH: {
    qn_value kwargs = kwargs_record(vm, kw, nkw);
    if (value_is_error(kwargs)) break;
    rec_at(vm, at);
    vm_owned held;
    vm_own(vm, &held, vm_drop_value, &kwargs);
    r = transform_call(vm, f, pos, (int)npos, kwargs, at.source ? at : interp_of(vm)->place.calling);
    vm_disown(vm, &held);
    value_release(vm, kwargs);
    if (value_is_error(r)) {
      interp_of(vm)->place.error_place = at;
      raise_through(vm, at, NULL);
    }
    break;
  }
  }
out:
  if (value_is_error(r)) raise_at(vm, at);
  vm_pop_to(vm, base);
  return r;
}

static bool positional_first(qn_vm *vm, span at) {
  raise_error(vm, E_keyword, at, "positional arguments stand before keywords");
  return false;
}

/* Pushes `..v` as positional arguments (lists, ranges, arrays) or keywords (records). */
static bool push_argument_spread(qn_vm *vm, qn_value v, span at, uint32_t *npos, uint32_t *nkw) {
  bool ok = true;
  if (value_is(v, TAG_RECORD)) {
    const qn_record *r = value_record(v);
    ok = vm_enter(vm, 2 * (size_t)r->len + 2);
    for (uint32_t i = 0; ok && i < r->len; i++) {
      *vm->sp++ = value_retain(value_obj(TAG_STR, record_name(r, i)));
      *vm->sp++ = value_retain(r->items[i]);
      ++*nkw;
    }
    value_release(vm, v);
    return ok;
  }
  int64_t n = value_is(v, TAG_LIST)                            ? value_list(v)->len
              : value_is(v, TAG_RANGE)                         ? range_length(value_range(v))
              : value_is(v, TAG_ARRAY) && value_array(v)->rank ? value_array(v)->shape[0]
                                                               : -1;
  if (n < 0) {
    text_buf t;
    text_init(&t, vm);
    text_adds(&t, "lists spread as arguments and records as keywords, not ");
    text_kind(&t, v);
    raise_text(vm, E_not_iterable, at, &t);
    ok = false;
  } else if (n > 0 && *nkw > 0) {
    ok = positional_first(vm, at);
  }
  ok = ok && vm_enter(vm, n > INT32_MAX ? SIZE_MAX / 64 : (size_t)n + 2);
  for (int64_t i = 0; ok && i < n; i++) {
    qn_value item = value_is(v, TAG_LIST)    ? value_retain(value_list(v)->items[i])
                    : value_is(v, TAG_RANGE) ? value_int(range_item(value_range(v), i))
                                             : op_index_row(vm, v, i);
    ok = !value_is_error(item);
    if (ok) *vm->sp++ = item;
    *npos += ok;
  }
  value_release(vm, v);
  return ok;
}

/* Evaluates arguments behind the function (and receiver) on the stack, whatever they are, and calls. */
static __attribute__((noinline)) qn_value call_mixed(qn_vm *vm, n_call *n, qn_value *base, uint32_t npos,
                                                     qn_value *fp) {
  uint32_t nkw = 0;
  for (uint32_t i = 0; i < n->n; i++) {
    const call_arg *a = &n->args[i];
    if (!vm_enter(vm, 2)) goto error;
    if (a->keyword) *vm->sp++ = value_retain(value_obj(TAG_STR, a->keyword));
    qn_value v = value_is(*base, TAG_DTYPE) && a->value->kind == N_ARRAY && n->n == 1 && !n->method
                     ? array_literal(vm, (n_items *)a->value, fp, (int)base->u.i)
                     : eval(vm, a->value, fp);
    if (value_stops(v)) {
      vm_pop_to(vm, base);
      return v;
    }
    if (a->spread) {
      if (!push_argument_spread(vm, v, a->value->at, &npos, &nkw)) goto error;
      continue;
    }
    *vm->sp++ = v;
    if (a->keyword) {
      nkw++;
      continue;
    }
    if (nkw && !positional_first(vm, a->value->at)) goto error; /* behind a spread record: the parser sees the rest */
    npos++;
  }
  return call_bound(vm, base, npos, nkw, n->h.at, n, fp);
error:
  vm_pop_to(vm, base);
  return value_error();
}

/* Evaluates positional arguments onto the stack, where there is room; `heads`: the union of their header words. False: `*stopped` says
 * what ended it, and the stack is popped to `base`. */
static inline __attribute__((always_inline)) bool push_arguments(qn_vm *vm, const n_call *n, qn_value *fp,
                                                                 qn_value *base, uint64_t *heads, qn_value *stopped) {
  uint64_t all = 0;
  for (uint32_t i = 0, count = n->n; i < count; i++) {
    node *a = n->args[i].value;
    qn_value v = a->kind == N_LOCAL ? value_retain(fp[a->slot]) : eval(vm, a, fp);
    if (value_stops(v)) {
      vm_pop_to(vm, base);
      *stopped = v;
      return false;
    }
    all |= v.head;
    *vm->sp++ = v;
  }
  *heads = all;
  return true;
}

/* A builtin has failed on these positional arguments (a method's receiver first): the place, and the shapes of arrays. */
static __attribute__((noinline, cold)) void note_arguments(qn_vm *vm, const n_call *n, const qn_value *args,
                                                           uint32_t given) {
  raise_at(vm, n->h.at);
  if (!vm->error || vm->error->id >= 300) return;
  uint32_t extra = given - n->n;
  if (extra) note_operand(vm, n->callee->at, args[0], n->callee);
  for (uint32_t i = 0; i < n->n; i++)
    if (value_is(args[extra + i], TAG_ARRAY)) note_operand(vm, n->args[i].value->at, args[extra + i], n->args[i].value);
}

/* The same of a call that is laid out. */
static __attribute__((noinline, cold)) void note_laid(qn_vm *vm, const n_call *n, const qn_value *args,
                                                      uint32_t extra) {
  raise_at(vm, n->h.at);
  if (!vm->error || vm->error->id >= 300) return;
  if (extra) note_operand(vm, n->callee->at, args[0], n->callee);
  for (uint32_t i = 0; i < n->n; i++) {
    qn_value v = args[n->args[i].slot];
    if (value_is(v, TAG_ARRAY)) note_operand(vm, n->args[i].value->at, v, n->args[i].value);
  }
}

/* The positional call of a builtin whose `given` arguments are on the stack; pops down to `base`. */
static inline __attribute__((always_inline)) qn_value
finish_builtin(qn_vm *vm, const n_call *n, qn_value *fp, const builtin_info *info, uint32_t given, qn_value *base) {
  qn_value *args = vm->sp - given, r = value_error(), *lent = NULL;
  for (uint32_t i = given; i < (uint32_t)info->sig.nparams; i++) {
    qn_value v = info->sig.params[i].def;
    if (v.head == TAG_UNSET) {
      qn_fn f = {.head = {.refs = 1, .tag = TAG_FN, .flags = FN_BUILTIN}, .code = (void *)info};
      fail_arity(vm, value_obj(TAG_FN, &f), given, info->sig.params[i].name);
      goto out;
    }
    *vm->sp++ = value_retain(v);
  }
  if (n->moved && info->moves && info->sig.params[n->moved_arg].move) lent = lend(vm, n, fp, args[n->moved_arg]);
  r = run_builtin(vm, info, args, n->h.at);
  if (__builtin_expect(value_is_error(r), 0)) {
    if (lent) *lent = value_retain(args[n->moved_arg]);
  out:
    note_arguments(vm, n, args, given);
  }
  vm_pop_to(vm, base);
  return r;
}

static bool takes(const builtin_info *info, uint32_t given) {
  return info && info->plain && given <= (uint32_t)info->sig.nparams;
}

static __attribute__((noinline, cold)) qn_value fail_overflow(qn_vm *vm, const n_call *n) {
  raise_at(vm, n->h.at);
  return value_error();
}

/* ---- builtins whose arguments are laid out -------------------------------------------------------------------------------------- */

/* Gives the node's arguments the numbers of the parameters that they are, `extra` receivers before them. False: there are spreads, or
 * the call is wrong, which binding says better. */
static bool reads_only(const n_call *n);
static uint8_t borrows(const n_call *n);
static __attribute__((noinline)) bool lay_out(n_call *n, const builtin_info *info, uint32_t extra) {
  enum { MOST = 64 };
  uint32_t nparams = (uint32_t)info->sig.nparams, next = extra, rest = info->rest ? info->rest - 1u : nparams;
  if ((!info->plain && !info->rest) || nparams > MOST || extra > rest) return false;
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
  n->laid = info;
  n->operation = info->operands ? info : NULL;
  n->reads_only = reads_only(n);
  n->pure = info->pure && !(info->chooses && given >> (info->chooses - 1) & 1);
  n->borrows = borrows(n);
  n->defaults = __builtin_popcountll(given | (rest < nparams ? (uint64_t)1 << rest : 0)) < (int)nparams;
  return true;
}

/* Is it a variable or a constant? */
static bool readable(const node *a) { return a->kind == N_LOCAL || a->kind == N_GLOBAL || a->kind == N_CONST; }

/* Are these all that the node's arguments are, a method's receiver included? */
static bool reads_only(const n_call *n) {
  bool only = !n->method || readable(n->callee);
  for (uint32_t i = 0; i < n->n && only; i++) only = readable(n->args[i].value);
  return only;
}

/* How call_borrowing calls the node, if it does: one list, of few variables and constants, may be an argument. */
static uint8_t borrows(const n_call *n) {
  if (!n->pure || (n->method && !readable(n->callee))) return BORROWS_NOT;
  uint32_t lists = n->laid->rest != 0;
  if (n->nrest > REST_KEPT) return BORROWS_NOT;
  for (uint32_t i = 0; i < n->n; i++) {
    const node *a = n->args[i].value;
    if (a->eval != eval_list) {
      if (!readable(a)) return BORROWS_NOT;
      continue;
    }
    const n_items *items = (const n_items *)a;
    if (++lists > 1 || items->n > REST_KEPT) return BORROWS_NOT;
    for (uint32_t k = 0; k < items->n; k++)
      if (!readable(items->items[k])) return BORROWS_NOT;
  }
  return lists ? BORROWS_LIST : BORROWS_VALUES;
}

/* A node is laid out once, so that numbers which a call uses do not change below it: where another builtin is called later, it binds. A
 * call has a receiver or none for good, but for `r.f(...)` with a field f, which binds. */
static inline bool laid_out(n_call *n, const builtin_info *info, uint32_t extra) {
  return n->laid ? n->laid == info : lay_out(n, info, extra);
}

/* The axis an int means as a mask; 0: none. */
static inline uint8_t axis_mask(qn_value v, int64_t rank) {
  int64_t axis = v.u.i;
  if (v.head != TAG_INT || (uint64_t)axis + (uint64_t)rank >= 2 * (uint64_t)rank) return 0;
  return (uint8_t)(1u << (axis < 0 ? axis + rank : axis));
}

/* The axes of a reduction, if there is nothing to say about them; else 0. */
static inline uint8_t axes_mask(qn_value v, int64_t rank) {
  if (v.head == TAG_NIL) return (uint8_t)((1u << rank) - 1);
  if (v.head != TAG_LIST) return axis_mask(v, rank);
  const qn_list *l = value_list(v);
  uint8_t mask = 0;
  for (uint32_t i = 0; i < l->len; i++) {
    uint8_t one = axis_mask(l->items[i], rank);
    if (!one || mask & one) return 0;
    mask |= one;
  }
  return mask;
}

/* Reductions, scans and conversions as `operate` has them. */
static inline __attribute__((always_inline)) qn_value operate_along(qn_vm *vm, const builtin_info *info,
                                                                    const qn_value *args) {
  if (args[0].head != TAG_ARRAY) return value_unset();
  int64_t rank = value_array(args[0])->rank;
  op_id op = (op_id)info->def.op;
  if (info->def.work == WORK_CAST)
    return args[1].head == TAG_DTYPE ? eager_convert(vm, args[0], (qn_dtype)args[1].u.i) : value_unset();
  if (info->def.work == WORK_SCAN)
    return eager_scan(vm, op, args[0], args[1].head == TAG_NIL && rank == 1 ? 1 : axis_mask(args[1], rank));
  if (args[2].head != TAG_BOOL) return value_unset();
  uint8_t axes = axes_mask(args[1], rank);
  bool keepdims = args[2].u.i != 0;
  return info->def.work == WORK_MEAN ? eager_mean(vm, args[0], axes, keepdims)
                                     : eager_reduce(vm, op, args[0], axes, keepdims);
}

/* The builtin as the op that it is on these arguments, one per parameter, outside of recordings; unset: it is more than that here. */
static inline __attribute__((always_inline)) qn_value operate(qn_vm *vm, const builtin_info *info,
                                                              const qn_value *args) {
  if (info->def.work != WORK_POINTWISE) return operate_along(vm, info, args);
  static const op_attr none;
  op_id op = (op_id)info->def.op;
  qn_value r = info->operands == 2   ? eager_two(vm, op, args[0], args[1])
               : info->operands == 1 ? eager_one(vm, op, args[0])
                                     : eager_three(vm, op, args);
  if (__builtin_expect(r.head != TAG_UNSET, 1)) return r;
  for (int i = 0; i < info->operands; i++)
    if (args[i].head != TAG_ARRAY && !value_is_scalar(args[i])) return r;
  return eager_slow(vm, op, args, info->operands, &none);
}

/* The value of an argument. */
static inline __attribute__((always_inline)) qn_value argument(qn_vm *vm, node *a, qn_value *fp) {
  if (a->kind == N_LOCAL) return value_retain(fp[a->slot]);
  if (a->kind == N_CONST) return value_retain(((n_const *)a)->v);
  if (a->kind == N_GLOBAL && !rec_hears_globals(vm)) {
    qn_value v = ((n_global *)a)->cell->value;
    if (v.head == TAG_ARRAY) return value_retain(v);
  }
  return eval(vm, a, fp);
}

/* An operand list that no op takes, or that a recording looks at: the builtin on the stack. Takes over the operands. */
static __attribute__((noinline)) qn_value run_operation(qn_vm *vm, const n_call *n, const builtin_info *info,
                                                        const qn_value *in, uint32_t extra) {
  qn_value *base = vm->sp;
  for (int i = 0; i < info->sig.nparams; i++) *vm->sp++ = in[i];
  qn_value r = run_builtin(vm, info, base, n->h.at);
  if (value_is_error(r)) note_laid(vm, n, base, extra);
  vm_pop_to(vm, base);
  return r;
}

/* The call of a builtin that is an op by a node that is laid out for it; takes over the receiver (unset: none). The op calls nothing and
 * observes nothing, so it needs none of a builtin's surroundings, and its operands need not lie on the stack. */
static __attribute__((noinline)) qn_value call_operation(qn_vm *vm, n_call *n, const builtin_info *info,
                                                         qn_value receiver, qn_value *fp) {
  if (!vm_enter(vm, 12)) { /* more than twice as many parameters as such builtins have */
    value_release(vm, receiver);
    return fail_overflow(vm, n);
  }
  /* Here the operands are found when an exception of a host passes. What a reduction has where nothing is given: */
  qn_value *in = vm->sp, r;
  in[0] = receiver;
  in[1] = value_nil();
  in[2] = value_bool(false);
  vm->sp = in + 3;
  const call_arg *arg = n->args, *end = arg + n->n;
  for (; arg < end; arg++) {
    r = argument(vm, arg->value, fp);
    if (__builtin_expect(value_stops(r), 0)) goto out;
    in[arg->slot] = r;
  }
  r = op_deferred(vm) ? value_unset() : operate(vm, info, in);
  if (__builtin_expect(r.head == TAG_UNSET, 0)) {
    vm->sp = in;
    const qn_value operands[3] = {in[0], in[1], in[2]};
    return run_operation(vm, n, info, operands, receiver.head != TAG_UNSET);
  }
  if (__builtin_expect(value_is_error(r), 0)) note_laid(vm, n, in, receiver.head != TAG_UNSET);
out:
  vm->sp = in;
  value_release(vm, in[0]);
  if ((in[1].head | in[2].head) & TAG_HEAP) {
    value_release(vm, in[1]);
    value_release(vm, in[2]);
  }
  return r;
}

/* A call_reading that has more to do: `r` is an error, a number, or unset. */
static __attribute__((noinline)) qn_value call_read(qn_vm *vm, n_call *n, const builtin_info *info, const qn_value *in,
                                                    qn_value r) {
  bool extra = n->method != NULL;
  if (value_is_error(r)) note_laid(vm, n, in, extra);
  if (r.head != TAG_UNSET) return r;
  if (!vm_enter(vm, 8)) return fail_overflow(vm, n);
  for (int i = 0; i < 3; i++) value_retain(in[i]);
  r = run_operation(vm, n, info, in, extra);
  for (int i = info->sig.nparams; i < 3; i++) value_release(vm, in[i]);
  return r;
}

/* As call_operation, of a node whose arguments are variables and constants, outside of recordings: they are read as they lie there, since
 * reading the others changes none of them. The receiver is borrowed. */
static inline __attribute__((always_inline)) qn_value read_here(const node *a, const qn_value *fp) {
  if (a->kind == N_LOCAL) return fp[a->slot];
  return a->kind == N_CONST ? ((const n_const *)a)->v : ((const n_global *)a)->cell->value;
}
static __attribute__((noinline)) qn_value call_reading(qn_vm *vm, n_call *n, const builtin_info *info,
                                                       qn_value receiver, qn_value *fp) {
  qn_value in[3] = {receiver, value_nil(), value_bool(false)};
  for (const call_arg *arg = n->args, *end = arg + n->n; arg < end; arg++) {
    qn_value v = arg->at ? *arg->at : fp[arg->value->slot];
    if (__builtin_expect(v.head == TAG_UNSET, 0)) return call_operation(vm, n, info, value_retain(receiver), fp);
    in[arg->slot] = v;
  }
  qn_value r = operate(vm, info, in);
  return __builtin_expect(r.head == TAG_ARRAY, 1) ? r : call_read(vm, n, info, in, r);
}

/* A list for the arguments of a rest parameter: mostly the one that the last such call has left. */
static qn_list *rest_list(qn_vm *vm, uint32_t n) {
  interp *ip = interp_of(vm);
  qn_list *l = ip->rest;
  if (n > REST_KEPT) return list_new(vm, n);
  ip->rest = NULL;
  if (!l && !(l = list_new(vm, REST_KEPT))) return NULL;
  l->len = n;
  return l;
}

/* Leaves it, if nobody else has it, to the next call. Takes over the list. */
static void rest_leave(qn_vm *vm, qn_value rest) {
  interp *ip = interp_of(vm);
  qn_list *l = value_is(rest, TAG_LIST) ? value_list(rest) : NULL;
  if (!l || l->head.refs != 1 || ip->rest || l->cap != REST_KEPT) {
    value_release(vm, rest);
    return;
  }
  uint64_t heads = 0;
  for (uint32_t i = 0, len = l->len; i < len; i++) heads |= l->items[i].head;
  for (uint32_t i = 0; heads & TAG_HEAP && i < l->len; i++) value_release(vm, l->items[i]);
  l->len = 0;
  ip->rest = l;
}

/* A list literal that is an argument, in the list of rest_list where it only reads. */
static qn_value few_items(qn_vm *vm, n_items *n, qn_value *fp) {
  if (n->n == 0 || n->n > REST_KEPT || !interp_of(vm)->rest) return eval(vm, &n->h, fp);
  for (uint32_t i = 0; i < n->n; i++) {
    const node *a = n->items[i];
    if (a->kind != N_LOCAL && a->kind != N_CONST && (a->kind != N_GLOBAL || read_here(a, fp).head == TAG_UNSET))
      return eval(vm, &n->h, fp);
  }
  qn_list *l = rest_list(vm, n->n);
  if (!l) return value_error();
  for (uint32_t i = 0; i < n->n; i++) l->items[i] = value_retain(read_here(n->items[i], fp));
  return value_obj(TAG_LIST, l);
}

/* A pure builtin on these arguments, `extra` receivers before those of the node. */
static inline __attribute__((always_inline)) qn_value
run_pure(qn_vm *vm, interp *ip, const n_call *n, const builtin_info *info, const qn_value *in, uint32_t extra) {
  span outer = ip->place.calling;
  ip->place.calling = n->h.at;
  qn_value r = info->def.call(vm, in);
  ip->place.calling = outer;
  if (__builtin_expect(value_is_error(r), 0)) {
    builtin_failed(vm, info, n->h.at);
    note_laid(vm, n, in, extra);
  }
  return r;
}

/* The call of a pure builtin of few parameters by a node that is laid out for it, outside of recordings: it calls no function, so
 * what it is told need not lie on the stack in order, only somewhere while the other arguments are evaluated. Takes over the receiver
 * (unset: none). */
static __attribute__((noinline)) qn_value call_pure(qn_vm *vm, n_call *n, const builtin_info *info, qn_value receiver,
                                                    qn_value *fp) {
  qn_value in[PURE_PARAMS], r, *mark = vm->sp;
  uint32_t nparams = (uint32_t)info->sig.nparams, rest = info->rest ? info->rest - 1u : nparams;
  qn_list *l = NULL;
  if (!vm_enter(vm, PURE_PARAMS + 1) || (rest < nparams && !(l = rest_list(vm, n->nrest)))) {
    value_release(vm, receiver);
    return fail_overflow(vm, n);
  }
  for (uint32_t i = 0; i < nparams; i++) in[i] = info->sig.params[i].def;
  if (receiver.head != TAG_UNSET) *vm->sp++ = in[0] = receiver;
  if (l) {
    l->len = 0;
    *vm->sp++ = in[rest] = value_obj(TAG_LIST, l);
  }
  const call_arg *arg = n->args, *end = arg + n->n;
  for (; arg < end; arg++) {
    qn_value v =
        arg->value->eval == eval_list ? few_items(vm, (n_items *)arg->value, fp) : argument(vm, arg->value, fp);
    if (__builtin_expect(value_stops(v), 0)) {
      r = v;
      goto out;
    }
    if (arg->slot == rest)
      l->items[l->len++] = v;
    else
      *vm->sp++ = in[arg->slot] = v;
  }
  r = run_pure(vm, interp_of(vm), n, info, in, receiver.head != TAG_UNSET);
out:
  vm->sp = mark;
  if (l) rest_leave(vm, in[rest]);
  value_release(vm, receiver);
  for (const call_arg *done = n->args; done < arg; done++)
    if (done->slot != rest) rest_leave(vm, in[done->slot]);
  return r;
}

/* As call_pure, of a node that only borrows (n->borrows): variables and constants are read as they lie there, and stand in the list of
 * rest_list, too, without a reference, since the builtin changes nothing. The receiver is borrowed (unset: none). */
static inline __attribute__((always_inline)) qn_value borrow(qn_vm *vm, n_call *n, const builtin_info *info,
                                                             qn_value receiver, qn_value *fp, bool list) {
  qn_value in[PURE_PARAMS], v;
  interp *ip = interp_of(vm);
  const param_def *params = info->sig.params;
  qn_list *l = list ? ip->rest : NULL;
  if (__builtin_expect(list && !l, 0)) return call_pure(vm, n, info, value_retain(receiver), fp);
  if (!vm_enter(vm, 8)) return fail_overflow(vm, n);
  _Static_assert(PURE_PARAMS == 8, "the cases below are all that there are");
  if (n->defaults) switch (info->sig.nparams) {
    case 8: in[7] = params[7].def; /* fall through */
    case 7: in[6] = params[6].def; /* fall through */
    case 6: in[5] = params[5].def; /* fall through */
    case 5: in[4] = params[4].def; /* fall through */
    case 4: in[3] = params[3].def; /* fall through */
    case 3: in[2] = params[2].def; /* fall through */
    case 2: in[1] = params[1].def; /* fall through */
    default: in[0] = params[0].def;
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
    if (__builtin_expect(v.head == TAG_UNSET, 0)) goto unset; /* the name means a builtin, or has no value */
    *(arg->slot == rest ? &l->items[held++] : &in[arg->slot]) = v;
  }
  if (list) {
    l->len = held;
    ip->rest = NULL;
  }
  v = run_pure(vm, ip, n, info, in, receiver.head != TAG_UNSET);
  if (!list) return v;
  if (__builtin_expect(l->head.refs == 1 && !ip->rest, 1)) {
    l->len = 0;
    ip->rest = l;
    return v;
  }
  for (uint32_t i = 0; i < l->len; i++) value_retain(l->items[i]); /* the result has the list, too */
  value_release(vm, value_obj(TAG_LIST, l));
  return v;
unset:
  return call_pure(vm, n, info, value_retain(receiver), fp);
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

/* The call of another builtin by a node that is laid out for it; takes over the receiver (unset: none). */
static __attribute__((noinline)) qn_value call_laid(qn_vm *vm, n_call *n, const builtin_info *info, qn_value receiver,
                                                    qn_value *fp) {
  uint32_t nparams = (uint32_t)info->sig.nparams, extra = receiver.head != TAG_UNSET;
  if (n->pure && !rec_hears_calls(vm)) return call_pure(vm, n, info, receiver, fp);
  if (!vm_enter(vm, (size_t)nparams + 4)) {
    value_release(vm, receiver);
    return fail_overflow(vm, n);
  }
  qn_value *args = vm->sp, *lent = NULL;
  for (uint32_t i = 0; i < nparams; i++) args[i] = value_retain(info->sig.params[i].def);
  if (extra) args[0] = receiver;
  vm->sp = args + nparams;
  qn_value *rest = info->rest ? &args[info->rest - 1] : NULL;
  qn_value *items = NULL; /* of the rest parameter */
  if (rest) {
    qn_list *l = rest_list(vm, n->nrest);
    if (!l) {
      vm_pop_to(vm, args);
      return fail_overflow(vm, n);
    }
    *rest = value_obj(TAG_LIST, l);
    items = l->items;
    for (uint32_t i = 0; i < n->nrest; i++) items[i] = value_nil();
  }
  for (uint32_t i = 0; i < n->n; i++) {
    qn_value v = argument(vm, n->args[i].value, fp);
    if (value_stops(v)) {
      vm_pop_to(vm, args);
      return v;
    }
    if (rest == &args[n->args[i].slot])
      *items++ = v;
    else
      slot_set(vm, &args[n->args[i].slot], v);
  }
  if (n->moved && info->moves && info->sig.params[n->moved_arg].move) lent = lend(vm, n, fp, args[n->moved_arg]);
  qn_value r = run_builtin(vm, info, args, n->h.at);
  if (__builtin_expect(value_is_error(r), 0)) {
    if (lent) *lent = value_retain(args[n->moved_arg]);
    note_laid(vm, n, args, extra);
  }
  if (rest) {
    rest_leave(vm, *rest);
    *rest = value_nil();
  }
  vm_pop_to(vm, args);
  return r;
}

/* ---- any callee ------------------------------------------------------------------------------------------------------------------ */

/* Calls `f` (taken over) with the node's arguments, `receiver` (taken over; unset: none) before them. */
static __attribute__((noinline)) qn_value call_node(qn_vm *vm, n_call *n, qn_value f, qn_value receiver, qn_value *fp) {
  uint32_t extra = receiver.head != TAG_UNSET;
  uint32_t total = n->n + extra;
  fn_code *code = NULL;
  builtin_info *info = NULL;
  size_t room = total;
  if (f.head == TAG_FN && !(n->h.flag & CALL_MIXED)) {
    qn_fn *fn = value_fn(f);
    if (fn->head.flags == FN_USER) {
      code = fn->code;
      if (code->nparams != total || code->rest)
        code = NULL;
      else
        room = code->nslots;
    } else if (fn->head.flags == FN_BUILTIN) {
      info = builtin_of(vm, fn);
      if (!takes(info, total)) info = NULL;
      if (info) room = (size_t)info->sig.nparams;
    }
  }
  if (!vm_enter(vm, room + 4)) {
    raise_at(vm, n->h.at);
    value_release(vm, f);
    value_release(vm, receiver);
    return value_error();
  }
  qn_value *base = vm->sp, stopped;
  *vm->sp++ = f;
  if (extra) *vm->sp++ = receiver;
  if (!code && !info) return call_mixed(vm, n, base, extra, fp);
  uint64_t heads;
  if (!push_arguments(vm, n, fp, base, &heads, &stopped)) return stopped;
  if (info) return finish_builtin(vm, n, fp, info, total, base);
  if (n->h.flag & CALL_MOVES) lend(vm, n, fp, base[1 + n->moved_arg]);
  return run_frame(vm, code, base + 1, heads | receiver.head, n->h.at, n, extra);
}

static __attribute__((noinline)) qn_value call_any(qn_vm *vm, n_call *n, qn_value *fp) {
  qn_value f = eval(vm, n->callee, fp);
  return value_stops(f) ? f : call_node(vm, n, f, value_unset(), fp);
}

static __attribute__((noinline)) qn_value call_positional(qn_vm *vm, n_call *n, qn_fn *fn, qn_value *fp) {
  const builtin_info *info = fn->head.flags == FN_BUILTIN ? builtin_of(vm, fn) : NULL;
  if (!takes(info, n->n)) return call_any(vm, n, fp);
  if (!vm_enter(vm, (size_t)info->sig.nparams + 4)) return fail_overflow(vm, n);
  qn_value *base = vm->sp, stopped;
  uint64_t heads;
  if (!push_arguments(vm, n, fp, base, &heads, &stopped)) return stopped;
  return finish_builtin(vm, n, fp, info, n->n, base);
}

/* A builtin, named with keywords or an op, by a node that may be laid out for it. */
static __attribute__((noinline)) qn_value call_to_lay_out(qn_vm *vm, n_call *n, qn_fn *fn, qn_value *fp) {
  const builtin_info *info = fn->head.flags == FN_BUILTIN ? builtin_of(vm, fn) : NULL;
  if (info && laid_out(n, info, 0))
    return (info->operands ? call_operation : call_laid)(vm, n, info, value_unset(), fp);
  return n->h.flag & CALL_MIXED ? call_any(vm, n, fp) : call_positional(vm, n, fn, fp);
}

/* A builtin that a name of the top level or of the builtin scope means. */
static __attribute__((noinline)) qn_value call_named_builtin(qn_vm *vm, n_call *n, qn_fn *fn, qn_value *fp) {
  const interp *ip = interp_of(vm);
  const builtin_info *info = fn->code;
  bool row = fn->head.flags == FN_BUILTIN && (uintptr_t)info - (uintptr_t)ip->builtins < ip->nbuiltins * sizeof *info;
  return (n->h.flag & CALL_MIXED) || (row && (info->operands || info->rest || info->pure))
             ? call_to_lay_out(vm, n, fn, fp)
             : call_positional(vm, n, fn, fp);
}

static __attribute__((noinline)) qn_value call_global(qn_vm *vm, n_call *n, qn_value f, qn_value *fp) {
  fn_code *code = value_fn(f)->code;
  if (code->nparams != n->n || code->rest || (n->h.flag & CALL_MIXED)) return call_any(vm, n, fp);
  if (!vm_enter(vm, (size_t)code->nslots + 4)) return fail_overflow(vm, n);
  qn_value *base = vm->sp, stopped;
  uint64_t heads;
  ((obj_head *)f.u.p)->refs++;
  *base = f;
  vm->sp = base + 1;
  if (!push_arguments(vm, n, fp, base, &heads, &stopped)) return stopped;
  if (n->h.flag & CALL_MOVES) lend(vm, n, fp, base[1 + n->moved_arg]);
  return run_frame(vm, code, base + 1, heads, n->h.at, n, 0);
}

/* The common conversions: of an array in a variable, and of a literal, whose numbers are stored in the dtype at once. */
static __attribute__((noinline)) qn_value call_dtype(qn_vm *vm, n_call *n, qn_value f, qn_value *fp) {
  if (n->n != 1 || n->h.flag & CALL_MIXED) return call_any(vm, n, fp);
  const node *a = n->args[0].value;
  if (a->kind == N_ARRAY && f.u.i < DTYPE_PUBLIC) return array_literal(vm, (const n_items *)a, fp, (int)f.u.i);
  if (a->kind != N_LOCAL && a->kind != N_GLOBAL) return call_any(vm, n, fp);
  qn_value x = read_here(a, fp), r = value_unset();
  if (x.head == TAG_ARRAY && f.u.i < DTYPE_PUBLIC) r = eager_convert(vm, x, (qn_dtype)f.u.i);
  if (value_is_error(r)) raise_at(vm, n->h.at);
  return r.head == TAG_UNSET ? call_any(vm, n, fp) : r;
}

/* The common call, a global function with the right number of positional arguments, is done in one piece. */
qn_value eval_call(qn_vm *vm, node *h, qn_value *fp) {
  n_call *n = (n_call *)h;
  if (!n->direct || rec_hears_globals(vm)) return call_any(vm, n, fp);
  qn_value f = cell_get(n->direct);
  if (f.head != TAG_FN) return f.head == TAG_DTYPE ? call_dtype(vm, n, f, fp) : call_any(vm, n, fp);
  const builtin_info *laid = n->laid;
  if (laid && laid == value_fn(f)->code) {
    if (n->operation) return (n->reads_only ? call_reading : call_operation)(vm, n, laid, value_unset(), fp);
    if (n->borrows) return call_borrowing(vm, n, laid, value_unset(), fp);
    if (n->pure) return call_pure(vm, n, laid, value_unset(), fp);
  }
  if (value_fn(f)->head.flags == FN_USER) return call_global(vm, n, f, fp);
  return call_named_builtin(vm, n, value_fn(f), fp);
}

/* ---- methods ------------------------------------------------------------------------------------------------------------------------ */

static bool callable(qn_value v) { return value_is(v, TAG_FN) || value_is(v, TAG_DTYPE); }

/* The nearest binding of the method's name whose value is a function; owned, unset if there is none. */
static qn_value find_method(qn_vm *vm, const n_call *n, qn_value *fp) {
  for (uint32_t i = 0; i < n->ncandidates; i++) {
    node *c = n->candidates[i];
    if (c->kind == N_GLOBAL) {
      global_cell *cell = ((n_global *)c)->cell;
      if (callable(cell->value)) return eval(vm, c, fp);
      qn_value seen = rec_global(vm, &cell->rec, &cell->value, cell->name); /* that it is no function decided */
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

/* Is this the builtin of the method's name? */
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
  text_buf t, near;
  text_init(&t, vm);
  text_init(&near, vm);
  const char *hint = NULL;
  bool field = value_is(receiver, TAG_ARRAY) && is_array_field(n->method);
  if (field) {
    text_addf(&t, "'%s' is a field of arrays, not a function: x.%s, without parentheses", n->method->text,
              n->method->text);
  } else {
    text_adds(&t, "neither a field of ");
    text_kind(&t, receiver);
    text_addf(&t, " nor a function is named '%s'", n->method->text);
    hint = foreign_hint(foreign_member(receiver), n->method->text, n->method->len);
  }
  if (hint)
    text_addf(&t, ": %s", hint);
  else if (!field && text_nearest(&near, n->method->text, l.names, l.n) && !near.failed)
    text_addf(&t, "; nearest: %s", near.text);
  text_free(&near);
  span at = {n->h.at.source, n->args_at.start, n->args_at.end};
  return raise_text(vm, E_undefined, at, &t);
}

qn_value eval_method(qn_vm *vm, node *h, qn_value *fp) {
  n_call *n = (n_call *)h;
  if (n->operation && n->reads_only && !rec_hears_globals(vm) && n->candidates[0]->kind == N_GLOBAL) {
    qn_value x = read_here(n->callee, fp), same = cell_get(((n_global *)n->candidates[0])->cell);
    if (x.head == TAG_ARRAY && same.head == TAG_FN && value_fn(same)->code == n->operation)
      return call_reading(vm, n, n->operation, x, fp);
  }
  if (n->borrows && !n->operation && !rec_hears_globals(vm) && n->candidates[0]->kind == N_GLOBAL) {
    qn_value x = read_here(n->callee, fp), same = cell_get(((n_global *)n->candidates[0])->cell);
    if (x.head == TAG_ARRAY && same.head == TAG_FN && value_fn(same)->code == n->laid)
      return call_borrowing(vm, n, n->laid, x, fp);
  }
  qn_value receiver = eval(vm, n->callee, fp);
  if (value_stops(receiver)) return receiver;
  qn_value f = value_unset();
  if (n->operation && receiver.head == TAG_ARRAY && !rec_hears_globals(vm) && n->candidates[0]->kind == N_GLOBAL) {
    f = cell_get(((n_global *)n->candidates[0])->cell); /* the same as the last time? */
    if (f.head == TAG_FN && value_fn(f)->code == n->operation) return call_operation(vm, n, n->operation, receiver, fp);
    f = value_unset();
  }
  if (value_is(receiver, TAG_RECORD)) {
    int i = record_find(value_record(receiver), n->method);
    if (i >= 0) f = value_retain(value_record(receiver)->items[i]);
  } else if (value_is(receiver, TAG_MODULE)) {
    global_cell *c = scope_find(((qn_module *)receiver.u.p)->scope, n->method);
    if (c && c->declared) {
      f = field_of(vm, receiver, n->method, n->args_at, NULL);
      if (value_is_error(f)) {
        value_release(vm, receiver);
        return f;
      }
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
  if (f.head == TAG_UNSET) {
    fail_method(vm, n, receiver);
    value_release(vm, receiver);
    return value_error();
  }
  if (value_is_error(f)) {
    value_release(vm, receiver);
    return f;
  }
  if (f.head == TAG_FN && value_fn(f)->head.flags == FN_BUILTIN) {
    const builtin_info *info = builtin_of(vm, value_fn(f));
    if (info && laid_out(n, info, 1)) {
      value_release(vm, f); /* the table's own reference remains */
      return (info->operands ? call_operation : call_laid)(vm, n, info, receiver, fp);
    }
  }
  return call_node(vm, n, f, receiver, fp);
}

/* The function of the library, written in Quern, that a call has called, or NULL. Only by names: variables of the top level, and what
 * modules have. */
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

/* The call gave a value that nothing takes. Names of the hint are those of the call where they are variables. */
static __attribute__((noinline, cold)) qn_value fail_lost_result(qn_vm *vm, const n_call *c, const fn_code *code) {
  text_buf t, call;
  text_init(&t, vm);
  text_init(&call, vm);
  text_span(vm, &call, c->h.at);
  const char *written = call.text && !call.failed ? call.text : "f(x)";
  bool steps = code->nparams > 2 && c->n > 2 && strcmp(code->params[2].name->text, "state") == 0;
  const node *first = c->n && !c->args[0].keyword ? c->args[0].value : NULL, *third = NULL;
  for (uint32_t i = 0; i < c->n && steps; i++) {
    const qn_str *keyword = c->args[i].keyword;
    if (keyword ? strcmp(keyword->text, "state") == 0 : i == 2) third = c->args[i].value;
  }
  const qn_str *x = first && first->kind == N_LOCAL    ? ((const n_local *)first)->name
                    : first && first->kind == N_GLOBAL ? ((const n_global *)first)->cell->name
                                                       : NULL;
  const qn_str *s = third && third->kind == N_LOCAL    ? ((const n_local *)third)->name
                    : third && third->kind == N_GLOBAL ? ((const n_global *)third)->cell->name
                                                       : NULL;
  if (steps)
    text_addf(&t, "values do not change: %s gives new ones, which are lost here; write (%s, %s) = %s", code->name->text,
              x ? x->text : "params", s ? s->text : "state", written);
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
      return run_frame(vm, code, frame, heads_of(frame, code->nparams), SPAN_NONE, NULL, 0);
    }
  }
  if (!vm_enter(vm, (size_t)nargs + 2 * (size_t)nkw + 2)) return value_error();
  qn_value *base = vm->sp;
  *vm->sp++ = value_retain(fn);
  for (int i = 0; i < nargs; i++) *vm->sp++ = value_retain(args[i]);
  for (uint32_t i = 0; i < nkw; i++) {
    *vm->sp++ = value_retain(value_obj(TAG_STR, record_name(value_record(kwargs), i)));
    *vm->sp++ = value_retain(value_record(kwargs)->items[i]);
  }
  return call_bound(vm, base, (uint32_t)nargs, nkw, SPAN_NONE, NULL, NULL);
}
