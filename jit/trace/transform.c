/* Transforms: functions made from functions. A transform value is an FN_TRANSFORM whose captures are the inner function and the options.
 * Calls of transforms and of graph values come here. (What differentiates is in differentiate.c.)
 *
 * The compiled specializations of a transformed function hang on an anchor of its own, which belongs to the inner code and the chain of
 * transforms.
 */
#include <stdio.h>
#include <string.h>

#include "jit/trace/anchors.h"
#include "jit/trace/body.h"
#include "jit/trace/breaks.h"
#include "jit/trace/calls.h"
#include "jit/trace/fullgraph.h"
#include "jit/trace/gradients.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/specialization.h"
#include "jit/trace/transform.h"
#include "jit/trace/vmap.h"
#include "lang/mem.h"
#include "lang/source.h"

/* The options of jit, as its calls look at them: bits of the function's head.aux. */
enum {
  JIT_WHOLE = 1,    /* fullgraph */
  JIT_DYNAMIC = 2,  /* dynamic: true */
  JIT_FIXED = 4,    /* dynamic: false */
  JIT_BACKEND = 8,  /* there is a backend */
  JIT_AT_HAND = 16, /* mode: "reduce-overhead" */
  JIT_TUNED = 32    /* mode: "max-autotune" */
};

static bool option_is(qn_value options, const char *name, qn_value *out) {
  if (!value_is(options, TAG_RECORD)) return false;
  const qn_record *r = value_record(options);
  for (uint32_t i = 0; i < r->len; i++)
    if (strcmp(record_name(r, i)->text, name) == 0) {
      *out = r->items[i];
      return true;
    }
  return false;
}

static uint16_t jit_bits(qn_value options) {
  uint16_t bits = 0;
  qn_value v;
  if (option_is(options, "fullgraph", &v) && value_is(v, TAG_BOOL) && v.u.i) bits |= JIT_WHOLE;
  if (option_is(options, "dynamic", &v) && value_is(v, TAG_BOOL)) bits |= v.u.i ? JIT_DYNAMIC : JIT_FIXED;
  if (option_is(options, "backend", &v) && !value_is(v, TAG_NIL)) bits |= JIT_BACKEND;
  if (!option_is(options, "mode", &v) || !value_is(v, TAG_STR)) return bits;
  if (strcmp(value_str(v)->text, "reduce-overhead") == 0) bits |= JIT_AT_HAND;
  if (strcmp(value_str(v)->text, "max-autotune") == 0) bits |= JIT_TUNED;
  return bits;
}

qn_value transform_new(qn_vm *vm, transform_kind kind, const qn_value *captures, int n) {
  if (!value_is(captures[0], TAG_FN))
    return raise_error(vm, E_type, SPAN_NONE, "%s takes a function, not %s", transform_defs[kind].name,
                       value_kind_name(captures[0]));
  qn_fn *f = fn_new(vm, FN_TRANSFORM, (void *)(uintptr_t)&transform_defs[kind], (uint32_t)n);
  if (!f) return value_error();
  for (int i = 0; i < n; i++) f->captures[i] = value_retain(captures[i]);
  if (kind == TRANSFORM_JIT && n > 1) f->head.aux = jit_bits(captures[1]);
  if (kind == TRANSFORM_JIT && f->head.aux & JIT_WHOLE) jit_of(vm)->asks_for_whole = true;
  return value_obj(TAG_FN, f);
}

const qn_fn *transform_within(qn_value fn) {
  const qn_fn *f = value_fn(fn);
  while (f->head.flags == FN_TRANSFORM) {
    transform_kind kind = ((const transform_def *)f->code)->kind;
    if (kind == TRANSFORM_JVP || kind == TRANSFORM_VJP || kind == TRANSFORM_CUSTOM_GRAD)
      break; /* these take no keywords */
    f = value_fn(f->captures[0]);
  }
  return f;
}

uint64_t jit_asked(qn_value fn) {
  uint64_t asked = 0;
  while (value_is(fn, TAG_FN) && value_fn(fn)->head.flags == FN_TRANSFORM) {
    asked = asked * 31 + value_fn(fn)->head.aux;
    fn = value_fn(fn)->captures[0];
  }
  return asked;
}

/* Calls of a transform have what is given by keywords in an argument of its own, the last one. */
qn_str *argument_name(qn_vm *vm, qn_value fn, int i, int nargs) {
  if (i < 0 || !value_is(fn, TAG_FN)) return NULL;
  const qn_fn *f = value_fn(fn);
  if (f->head.flags == FN_TRANSFORM && i + 1 == nargs) return jit_of(vm)->keywords;
  f = transform_within(fn);
  if (f->head.flags == FN_GRAPH) return body_param_name(f, (uint32_t)i);
  if (f->head.flags == FN_TRANSFORM) return NULL;
  return vm->hooks.name_of(vm, value_obj(TAG_FN, (qn_fn *)(uintptr_t)f), false, (uint32_t)i);
}

argument_text argument_said(qn_vm *vm, qn_value fn, int i, int nargs) {
  argument_text t;
  const qn_str *name = argument_name(vm, fn, i, nargs);
  if (name)
    snprintf(t.text, sizeof t.text, "argument %.*s",
             (int)utf8_valid_prefix(name->text, name->len < 48 ? name->len : 48), name->text);
  else
    snprintf(t.text, sizeof t.text, "argument %d", i + 1);
  return t;
}

/* The anchor of a function value, or NULL: without memory for one the call is simply not compiled. */
static jit_anchor *anchor_if_any(qn_vm *vm, qn_value fn) {
  jit_anchor *a = anchor_of_value(vm, fn);
  if (!a) error_clear(vm);
  return a;
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

/* Does what the transform does in a recording: the one in progress, or one of its own. */
static qn_value within_run(void *ctx) {
  own_site *c = ctx;
  return rec_within(c->vm, &c->site, ((const transform_def *)value_fn(c->site.fn)->code)->work);
}

/* Is what the inner function gives the result of the call that is recorded? */
static bool gives_result(const own_site *c, qn_value inner) {
  struct recording *now = rec_now(c->vm);
  const struct recording *r = now ? rec_base(now) : NULL;
  return r && r->of && r->of->anchor == c->site.anchor && r->capturing && r->ncalls == 0 &&
         value_fn(inner)->head.flags == FN_USER && value_fn(c->site.fn)->code == &transform_defs[TRANSFORM_JIT];
}

static qn_value inner_run(void *ctx) {
  own_site *c = ctx;
  qn_vm *vm = c->vm;
  int n = c->site.nargs - 1;
  qn_value inner = value_fn(c->site.fn)->captures[0];
  vm->asked.hands_on = gives_result(c, inner);
  qn_value v = vm->hooks.call(vm, inner, c->site.args, n, c->site.args[n]);
  vm->asked.hands_on = false;
  return v;
}

/* A call of checkpoint or custom_grad, which differ from the inner function only where something may differentiate them: in a recording. */
static qn_value region_run(void *ctx) { return op_deferred(((own_site *)ctx)->vm) ? within_run(ctx) : inner_run(ctx); }

const transform_def transform_defs[] = {
    [TRANSFORM_GRAD] = {TRANSFORM_GRAD, "grad", {NULL, "wrt", "aux", "inner"}, within_run, differentiate_call},
    [TRANSFORM_VALUE_AND_GRAD] =
        {TRANSFORM_VALUE_AND_GRAD, "value_and_grad", {NULL, "wrt", "aux"}, within_run, differentiate_call},
    [TRANSFORM_JIT] = {TRANSFORM_JIT, "jit", {NULL, "options"}, inner_run, NULL},
    [TRANSFORM_NOJIT] = {TRANSFORM_NOJIT, "nojit", {NULL}, inner_run, NULL},
    [TRANSFORM_CHECKPOINT] = {TRANSFORM_CHECKPOINT, "checkpoint", {NULL}, region_run, region_call},
    [TRANSFORM_VJP] = {TRANSFORM_VJP, "vjp", {NULL}, within_run, differentiate_call},
    [TRANSFORM_JVP] = {TRANSFORM_JVP, "jvp", {NULL}, within_run, differentiate_call},
    [TRANSFORM_CUSTOM_GRAD] = {TRANSFORM_CUSTOM_GRAD, "custom_grad", {NULL, "backward"}, region_run, region_call},
    [TRANSFORM_VMAP] = {TRANSFORM_VMAP, "vmap", {NULL, "in_axes", "out_axes", "dtype"}, within_run, vmap_call},
    [TRANSFORM_JACOBIAN] = {TRANSFORM_JACOBIAN, "jacobian", {NULL, "wrt"}, within_run, differentiate_call},
    [TRANSFORM_HESSIAN] = {TRANSFORM_HESSIAN, "hessian", {NULL, "wrt"}, within_run, differentiate_call},
};

/* Calls nojit(f): nothing inside is compiled. */
static qn_value call_nojit(own_site *c) {
  qn_vm *vm = c->vm;
  if (rec_now(vm)) fullgraph_ends(rec_now(vm), BREAK_effect, "nojit");
  if (!rec_effect(vm, "nojit")) return value_error();
  vm->asked.nojit++;
  qn_value result = inner_run(c);
  vm->asked.nojit--;
  vm->asked.served = NULL;
  vm->asked.refused = BREAK_nojit;
  return result;
}

/* Calls at this anchor are recorded, without waiting until it is hot. */
static void make_hot(qn_vm *vm, jit_anchor *a) {
  if (a->state != ANCHOR_COLD) return;
  if (anchor_specializations_of(vm, a))
    a->state = ANCHOR_ACTIVE;
  else
    error_clear(vm);
}

/* Calls jit(f) on the VM's device: at its anchor, and without waiting until it is hot. `full`: the call must be one graph. */
static qn_value call_compiled(own_site *c, bool full) {
  qn_vm *vm = c->vm;
  jit_anchor *a = anchor_if_any(vm, c->site.fn);
  if (full && !fullgraph_apart(vm, a)) return value_error();
  if (!a || op_deferred(vm)) {
    (void)rec_callee(vm, a);
    call_within within = {.base = NULL};
    if (full) fullgraph_enter(vm, a, &within);
    qn_value result = inner_run(c);
    return full ? fullgraph_leave(vm, a, &within, result) : result;
  }
  c->site.anchor = a;
  make_hot(vm, a);
  if (full && !vm->asked.whole) fullgraph_begin(vm);
  vm->asked.whole += full;
  qn_value result = rec_call(vm, &c->site);
  vm->asked.whole -= full;
  return full && !value_is_error(result) ? fullgraph_check(vm, a, c->site.fn, result) : result;
}

/* Calls jit(f, backend: ...): on the device, or by the function, that the option names. */
static qn_value call_on_backend(own_site *c, bool full) {
  qn_vm *vm = c->vm;
  const qn_fn *f = value_fn(c->site.fn);
  qn_value backend = value_nil(), result;
  int nargs = c->site.nargs - 1, before = 0;
  option_is(f->captures[1], "backend", &backend);
  int device = op_deferred(vm) ? -1 : backend_device(backend);
  if (value_is(backend, TAG_FN) && !op_deferred(vm) && !vm->asked.nojit && !vm->asked.alone) {
    result = backend_call(vm, c->site.fn, backend, full, c->site.args, nargs, c->site.args[nargs]);
    vm->asked.served = NULL;
    vm->asked.refused = BREAK_backend_function;
    return result;
  }
  if (device >= 0 && !backend_enter(vm, device, c->site.args, nargs + 1, &before)) return value_error();
  if (value_is(backend, TAG_STR) && strcmp(value_str(backend)->text, "eager") == 0) {
    result = inner_run(c);
    vm->asked.served = NULL;
    vm->asked.refused = BREAK_backend;
  } else {
    result = call_compiled(c, full);
  }
  if (device >= 0) vm->device = (uint8_t)before;
  return result;
}

/* Calls jit(f, options). */
static qn_value call_jit(own_site *c) {
  uint16_t asks = value_fn(c->site.fn)->head.aux;
  bool full = (asks & JIT_WHOLE) != 0;
  c->site.symbolic = asks & JIT_DYNAMIC ? REC_AT_ONCE : asks & JIT_FIXED ? REC_NEVER : REC_CHANGED;
  c->site.mode = asks & JIT_AT_HAND ? REC_AT_HAND : asks & JIT_TUNED ? REC_TUNED : REC_EARN;
  return asks & JIT_BACKEND ? call_on_backend(c, full) : call_compiled(c, full);
}

/* Calls a transform that makes a new function (grad and the like): at its anchor if that wants it, else directly. Where functions must be one graph it
 * does: what is recorded and differentiated at once does not tell what would end a capture. */
static qn_value call_derived(own_site *c) {
  c->site.anchor = anchor_if_any(c->vm, c->site.fn);
  if (jit_of(c->vm)->asks_for_whole && c->site.anchor && c->site.run == within_run) make_hot(c->vm, c->site.anchor);
  return rec_callee(c->vm, c->site.anchor) ? rec_call(c->vm, &c->site) : c->site.run(c);
}

/* The arguments of a graph or transform become ordinary ones where it does not know of stacked lists. False with an error raised. */
static __attribute__((noinline, cold)) bool plain_arguments(qn_vm *vm, const qn_fn *f, qn_value *args, int nargs) {
  const transform_def *def = f->head.flags == FN_GRAPH ? NULL : f->code;
  if (def && rec_no_gradient(vm) &&
      (def->kind == TRANSFORM_JIT || def->kind == TRANSFORM_GRAD || def->kind == TRANSFORM_VALUE_AND_GRAD))
    return true;
  for (int i = 0; i < nargs; i++)
    if (!rec_plain(vm, &args[i])) return false;
  return true;
}

qn_value transform_call(qn_vm *vm, qn_value fn, qn_value *args, int nargs, qn_value kwargs, span at) {
  const qn_fn *f = value_fn(fn);
  if (__builtin_expect(vm->asked.stacked, 0) && !plain_arguments(vm, f, args, nargs)) return value_error();
  if (f->head.flags == FN_GRAPH) return body_call(vm, fn, args, nargs, kwargs, at);
  const transform_def *def = f->code;
  own_site c;
  qn_value *mark = vm->sp, result;
  if (args + nargs == vm->sp) { /* they need not be copied: the keywords come behind them */
    if (!vm_enter(vm, 1)) return value_error();
    *vm->sp++ = value_retain(kwargs);
    c.vm = vm;
    c.site = (rec_call_site){.fn = fn, .args = args, .nargs = nargs + 1, .at = at, .ctx = &c};
  } else if (!own_site_begin(&c, vm, fn, args, nargs, kwargs, at, &mark)) {
    return value_error();
  }
  c.site.run = def->run;
  if (def->kind == TRANSFORM_NOJIT)
    result = call_nojit(&c);
  else
    result = def->kind == TRANSFORM_JIT ? call_jit(&c) : call_derived(&c);
  vm_pop_to(vm, mark);
  return result;
}
