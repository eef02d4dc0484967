/* Transforms: functions made from functions. A transform value is an FN_TRANSFORM whose captures are the inner function and the
 * options; calling it comes here, and so does calling a graph. What differentiates is in differentiate.c.
 *
 * Compiled entries of a transformed function hang on an anchor of its own: the inner code plus the chain of transforms.
 */
#include <stdio.h>
#include <string.h>

#include "jit/trace/breaks.h"
#include "jit/trace/gradients.h"
#include "jit/trace/graphs.h"
#include "jit/trace/recording.h"
#include "jit/trace/report.h"
#include "jit/trace/specialization.h"
#include "jit/trace/transform.h"
#include "jit/trace/vmap.h"

const transform_def transform_defs[] = {
    [TRANSFORM_GRAD] = {TRANSFORM_GRAD, "grad"},
    [TRANSFORM_VALUE_AND_GRAD] = {TRANSFORM_VALUE_AND_GRAD, "value_and_grad"},
    [TRANSFORM_JIT] = {TRANSFORM_JIT, "jit"},
    [TRANSFORM_NOJIT] = {TRANSFORM_NOJIT, "nojit"},
    [TRANSFORM_CHECKPOINT] = {TRANSFORM_CHECKPOINT, "checkpoint"},
    [TRANSFORM_VJP] = {TRANSFORM_VJP, "vjp"},
    [TRANSFORM_JVP] = {TRANSFORM_JVP, "jvp"},
    [TRANSFORM_CUSTOM_GRAD] = {TRANSFORM_CUSTOM_GRAD, "custom_grad"},
    [TRANSFORM_VMAP] = {TRANSFORM_VMAP, "vmap"},
    [TRANSFORM_JACOBIAN] = {TRANSFORM_JACOBIAN, "jacobian"},
    [TRANSFORM_HESSIAN] = {TRANSFORM_HESSIAN, "hessian"},
};

qn_value transform_new(qn_vm *vm, transform_kind kind, const qn_value *captures, int n) {
  if (!value_is(captures[0], TAG_FN))
    return raise_error(vm, E_type, SPAN_NONE, "%s takes a function, not %s", transform_defs[kind].name,
                       value_kind_name(captures[0]));
  qn_fn *f = fn_new(vm, FN_TRANSFORM, (void *)(uintptr_t)&transform_defs[kind], (uint32_t)n);
  if (!f) return value_error();
  for (int i = 0; i < n; i++) f->captures[i] = value_retain(captures[i]);
  return value_obj(TAG_FN, f);
}

const qn_fn *transform_within(qn_value fn) {
  const qn_fn *f = value_fn(fn);
  while (f->head.flags == FN_TRANSFORM) {
    transform_kind kind = ((const transform_def *)f->code)->kind;
    if (kind == TRANSFORM_JVP || kind == TRANSFORM_VJP || kind == TRANSFORM_CUSTOM_GRAD)
      break; /* they take no keywords */
    f = value_fn(f->captures[0]);
  }
  return f;
}

/* Chains of graphs are kept when their last graph goes, as one like it may come; when there are many such, all of them go. */
enum { CHAINS_LEFT = 8 };

/* Takes a chain out of the VM's list to the front of `gone`. */
static void chain_take(vm_jit *j, chain_anchor **at, chain_anchor **gone) {
  chain_anchor *c = *at;
  *at = c->next;
  if (c->graph && !c->live) j->chains_left--;
  c->next = *gone;
  *gone = c;
}

/* Of chains that have been taken out: with what their entries hold, functions and graphs may go, and with these chains of the list. */
static void chains_free(qn_vm *vm, chain_anchor *gone) {
  for (chain_anchor *c; (c = gone);) {
    gone = c->next;
    anchor_close(vm, &c->anchor);
    mem_free(vm, c, sizeof *c);
  }
}

static void chains_sweep(qn_vm *vm) {
  vm_jit *j = jit_of(vm);
  if (j->chains_left < CHAINS_LEFT) return;
  chain_anchor *gone = NULL;
  for (chain_anchor **at = &j->chains; *at;)
    if ((*at)->graph && !(*at)->live)
      chain_take(j, at, &gone);
    else
      at = &(*at)->next;
  chains_free(vm, gone);
}

/* Graphs of this hash become more or fewer by one. How many there are then, as far as chains know. */
static uint32_t chains_count(qn_vm *vm, uint64_t hash, int more) {
  vm_jit *j = jit_of(vm);
  uint32_t live = 0;
  for (chain_anchor *c = j->chains; c; c = c->next) {
    if (!c->graph || (uint64_t)(uintptr_t)c->code != hash) continue;
    if (more > 0 && !c->live) j->chains_left--;
    c->live += (uint32_t)more;
    if (more < 0 && !c->live) j->chains_left++;
    live = c->live;
  }
  return live;
}

/* The graph is looked up. How many of its hash have been and are there. */
static uint32_t chains_join(qn_vm *vm, graph_body *b) {
  uint32_t live = chains_count(vm, b->hash, !b->chained);
  b->chained = true;
  return live ? live : 1;
}

void chains_leave(qn_vm *vm, const graph_body *b) {
  if (b->chained && vm->jit) chains_count(vm, b->hash, -1);
}

jit_anchor *anchor_of_value(qn_vm *vm, qn_value fn) {
  const void *chain[8];
  uint32_t depth = 0;
  uint64_t hash = 14695981039346656037u;
  while (value_fn(fn)->head.flags == FN_TRANSFORM) {
    if (depth == 8) return NULL;
    chain[depth++] = value_fn(fn)->code;
    hash = (hash ^ (uint64_t)(uintptr_t)value_fn(fn)->code) * 1099511628211u;
    fn = value_fn(fn)->captures[0];
  }
  const qn_fn *f = value_fn(fn);
  bool graph = f->head.flags == FN_GRAPH;
  jit_anchor *inner = graph ? &((graph_body *)f->code)->anchor : f->head.flags == FN_USER ? vm->hooks.anchor(fn) : NULL;
  bool builtin = f->head.flags == FN_BUILTIN; /* it keeps no anchor */
  if (!builtin && (!depth || !inner)) return inner;
  void *code = graph ? (void *)(uintptr_t)((graph_body *)f->code)->hash /* graphs and units come and go */
               : f->head.flags == FN_USER ? (void *)(uintptr_t)((const fn_shared *)f->code)->id
                                          : f->code;
  hash ^= (uint64_t)(uintptr_t)code;
  vm_jit *j = jit_of(vm);
  graph_body *body = graph ? f->code : NULL;
  for (chain_anchor *c = j->chains; c; c = c->next)
    if (c->hash == hash && c->code == code && c->graph == graph && c->depth == depth &&
        memcmp(c->chain, chain, depth * sizeof *chain) == 0) {
      if (graph) chains_join(vm, body);
      return &c->anchor;
    }
  chains_sweep(vm);
  chain_anchor *c = mem_zalloc(vm, sizeof *c);
  if (!c) return NULL;
  if (graph) c->live = chains_join(vm, body);
  c->graph = graph;
  c->hash = hash;
  c->code = code;
  c->depth = depth;
  memcpy(c->chain, chain, depth * sizeof *chain);
  c->anchor.name = builtin ? ((const builtin_def *)code)->name : inner->name;
  if (inner) c->anchor.at = inner->at;
  c->next = j->chains;
  j->chains = c;
  return &c->anchor;
}

void anchors_forget(qn_vm *vm, uint64_t code) {
  if (!vm->jit) return;
  chain_anchor *gone = NULL;
  for (chain_anchor **at = &jit_of(vm)->chains, *c; (c = *at);) {
    if (c->graph || (uint64_t)(uintptr_t)c->code != code)
      at = &c->next;
    else
      chain_take(jit_of(vm), at, &gone);
  }
  chains_free(vm, gone);
}

/* The same for a call that can go without: what has no memory for its anchor is simply not compiled. */
static jit_anchor *anchor_if_any(qn_vm *vm, qn_value fn) {
  jit_anchor *a = anchor_of_value(vm, fn);
  if (!a) error_clear(vm);
  return a;
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

typedef struct transform_site {
  qn_vm *vm;
  rec_call_site site; /* args: positional ones, then the keywords (a record or nil) */
} transform_site;

static qn_value differentiate_run(void *ctx) {
  transform_site *c = ctx;
  return rec_within(c->vm, &c->site, differentiate_call);
}

static qn_value inner_run(void *ctx) {
  transform_site *c = ctx;
  int n = c->site.nargs - 1;
  return c->vm->hooks.call(c->vm, value_fn(c->site.fn)->captures[0], c->site.args, n, c->site.args[n]);
}

/* Outside a recording nothing differentiates. */
static qn_value region_run(void *ctx) {
  transform_site *c = ctx;
  return c->vm->rec ? region_call(c->vm->rec, &c->site) : inner_run(ctx);
}

static qn_value vmap_run(void *ctx) {
  transform_site *c = ctx;
  return vmap_call(c->vm, &c->site);
}

static bool option_is(qn_vm *vm, qn_value options, const char *name, qn_value *out) {
  (void)vm;
  if (!value_is(options, TAG_RECORD)) return false;
  const qn_record *r = value_record(options);
  for (uint32_t i = 0; i < r->len; i++)
    if (strcmp(record_name(r, i)->text, name) == 0) {
      *out = r->items[i];
      return true;
    }
  return false;
}

/* jit(f, fullgraph: true): the entry of the call must not be broken. */
static qn_value check_fullgraph(qn_vm *vm, const jit_anchor *a, qn_value result) {
  const specialization *e = vm->asked.served;
  break_reason why = !e ? (break_reason)vm->asked.refused : e->state == ENTRY_BROKEN ? e->why : BREAK_none;
  if (why == BREAK_none || why == BREAK_memory) return result; /* memory may be there next time */
  value_release(vm, result);
  raise_error(vm, E_no_graph, e ? e->why_at : SPAN_NONE, "%s cannot be captured as one graph: %s%s%s",
              a->name ? a->name : "the function", break_reasons[why], e && e->why_text[0] ? ": " : "",
              e ? e->why_text : "");
  if (break_hints[why]) raise_note(vm, SPAN_NONE, "%s", break_hints[why]);
  return value_error();
}

qn_value transform_call(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, qn_value kwargs, span at) {
  const qn_fn *f = value_fn(fn);
  if (f->head.flags == FN_GRAPH) return body_call(vm, fn, args, nargs, kwargs, at);
  const transform_def *def = f->code;
  if (!vm_enter(vm, (size_t)nargs + 1)) return value_error();
  transform_site c = {.vm = vm};
  qn_value *mark = vm->sp;
  for (int i = 0; i < nargs; i++) *vm->sp++ = value_retain(args[i]);
  *vm->sp++ = value_retain(kwargs);
  c.site.fn = fn;
  c.site.args = mark;
  c.site.nargs = nargs + 1;
  c.site.ctx = &c;
  qn_value (*run)(void *) = differentiate_run;
  if (def->kind == TRANSFORM_JIT || def->kind == TRANSFORM_NOJIT) run = inner_run;
  if (def->kind == TRANSFORM_CHECKPOINT || def->kind == TRANSFORM_CUSTOM_GRAD) run = region_run;
  if (def->kind == TRANSFORM_VMAP) run = vmap_run;
  c.site.run = run;
  c.site.at = at;
  qn_value result;
  jit_anchor *a = NULL;
  qn_value option;
  switch (def->kind) {
  case TRANSFORM_NOJIT:
    if (vm->rec && !rec_break(vm->rec, BREAK_effect, "nojit")) {
      result = value_error();
      break;
    }
    vm->asked.nojit++;
    result = inner_run(&c);
    vm->asked.nojit--;
    vm->asked.served = NULL;
    vm->asked.refused = BREAK_nojit;
    break;
  case TRANSFORM_JIT: {
    qn_value options = f->ncaptures > 1 ? f->captures[1] : value_nil(), backend = value_nil();
    option_is(vm, options, "backend", &backend);
    bool eager = value_is(backend, TAG_STR) && strcmp(value_str(backend)->text, "eager") == 0;
    bool full = option_is(vm, options, "fullgraph", &option) && value_is(option, TAG_BOOL) && option.u.i;
    if (value_is(backend, TAG_FN) && !vm->rec && !vm->asked.nojit && !vm->asked.alone) {
      result = backend_call(vm, fn, backend, full, mark, nargs, kwargs);
      vm->asked.served = NULL;
      vm->asked.refused = BREAK_backend_function;
      break;
    }
    int device = vm->rec ? -1 : backend_device(backend), before = 0;
    if (device >= 0 && !backend_enter(vm, device, mark, nargs + 1, &before)) {
      result = value_error();
      break;
    }
    a = eager ? NULL : anchor_if_any(vm, fn);
    if (a && vm->rec) {
      rec_part(vm->rec, a);
      a = NULL;
    }
    if (!a) {
      result = inner_run(&c);
      if (eager) {
        vm->asked.served = NULL;
        vm->asked.refused = BREAK_backend;
      }
      if (device >= 0) backend_leave(vm, before);
      break;
    }
    c.site.anchor = a;
    if (a->state == ANCHOR_COLD) { /* asked for: no need to get hot */
      if (anchor_entries_of(vm, a))
        a->state = ANCHOR_ACTIVE;
      else
        error_clear(vm);
    }
    result = rec_call(vm, &c.site);
    if (!value_is_error(result) && full) result = check_fullgraph(vm, a, result);
    if (device >= 0) backend_leave(vm, before);
    break;
  }
  default:
    a = anchor_if_any(vm, fn);
    c.site.anchor = a;
    if (a && anchor_wants(vm, a)) {
      result = rec_call(vm, &c.site);
      break;
    }
    if (a && vm->rec)
      rec_part(vm->rec, a);
    else if (a)
      anchor_passed(a);
    result = run(&c);
    break;
  }
  vm_pop_to(vm, mark);
  return result;
}
