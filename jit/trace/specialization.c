/* Anchors and entries: counting, recording, look-up, replay.
 *
 * rec_call is the one way in. A cold anchor counts down and runs; that of a function whose calls neither make nor change
 * arrays stays cold. An active one looks for an entry whose pattern and scalar guards fit (the entry used last is tried
 * first, others by the hash of the call's static facts) and runs its plan where that is faster than the interpreter; while
 * it is still being compiled the body simply runs.
 * When nothing fits, the call is recorded, which costs about as much as running it, and the graph goes to the compiler
 * threads. Recordings that break off leave an entry too, behind all others: calls like that one run eagerly without being recorded
 * again. Anchors whose calls are short and stay eager rest: they are asked for a few of them only.
 * After jit.entries entries or jit.misses recordings the function stays eager and the log says so.
 */
#include <stdio.h>
#include <string.h>

#include "jit/cpu/eager.h"
#include "jit/run/compile.h"
#include "jit/run/device.h"
#include "jit/run/plan_run.h"
#include "jit/trace/breaks.h"
#include "jit/trace/gradients.h"
#include "jit/trace/jobs.h"
#include "jit/trace/pattern.h"
#include "jit/trace/recording.h"
#include "jit/trace/report.h"
#include "jit/trace/specialization.h"
#include "lang/trace_events.h"

static void guards_drop(qn_vm *vm, specialization *e);

anchor_specializations *anchor_entries_of(qn_vm *vm, jit_anchor *a) {
  if (a->entries) return a->entries;
  anchor_specializations *e = mem_zalloc(vm, sizeof *e);
  if (!e) return NULL;
  e->anchor = a;
  e->id = ++jit_of(vm)->last_id;
  e->next = jit_of(vm)->anchors;
  jit_of(vm)->anchors = e;
  a->entries = e;
  return e;
}

/* ---- counting calls ---------------------------------------------------------------------------------------------------------- */

bool parts_add(qn_vm *vm, part_list *l, uint32_t id, uint64_t calls) {
  uint32_t i = 0;
  while (i < l->n && l->list[i].id != id) i++;
  if (i == l->n) {
    qn_error_object *pending = error_take(vm); /* this may be done while a call that has failed is left */
    if (!mem_grow(vm, (void **)&l->list, &l->cap, l->n + 1, sizeof *l->list)) {
      error_clear(vm);
      error_put_back(vm, pending);
      return false;
    }
    error_put_back(vm, pending);
    l->list[l->n++] = (struct part){.id = id};
  }
  l->list[i].calls += calls;
  return true;
}

void parts_count(qn_vm *vm, part_list *l, uint32_t id, uint64_t calls) {
  if (parts_add(vm, l, id, calls)) return;
  for (anchor_specializations *a = jit_of(vm)->anchors; a; a = a->next)
    if (a->id == id) a->calls[CALL_part] += calls;
}

static void parts_forget(part_list *l, uint32_t id) {
  uint32_t i = 0;
  while (i < l->n && l->list[i].id != id) i++;
  if (i < l->n) l->list[i] = l->list[--l->n];
}

/* The function with this id has gone: nobody asks for its calls any more. */
static void part_gone(qn_vm *vm, uint32_t id) {
  for (anchor_specializations *a = jit_of(vm)->anchors; a; a = a->next) {
    parts_forget(&a->parts, id);
    for (specialization *e = a->first; e; e = e->next) parts_forget(&e->parts, id);
  }
  for (struct recording *r = vm->rec; r; r = r->outer) parts_forget(&r->parts, id);
  for (const vm_host *h = vm->host; h; h = h->outer)
    for (struct recording *r = h->rec; r; r = r->outer) parts_forget(&r->parts, id);
}

void parts_free(qn_vm *vm, part_list *l) {
  mem_free(vm, l->list, l->cap * sizeof *l->list);
  *l = (part_list){0};
}

/* The calls of an entry that goes are counted on. */
static void keep_counts(qn_vm *vm, anchor_specializations *list, const specialization *e) {
  list->calls[CALL_compiled] += e->replays;
  list->calls[CALL_verified] += e->verified;
  list->calls[CALL_waited] += e->waited;
  list->calls[CALL_timed] += e->timed;
  list->calls[CALL_eager] += e->hits - e->replays - e->verified - e->waited - e->timed;
  for (uint32_t i = 0; i < e->parts.n; i++)
    parts_count(vm, &list->parts, e->parts.list[i].id, e->parts.list[i].calls * e->replays);
}

void anchor_passed_idle(qn_vm *vm, jit_anchor *a) {
  anchor_specializations *list = vm->jit ? anchor_entries_of(vm, a) : NULL;
  if (list) {
    list->calls[CALL_idle]++;
  } else {
    error_clear(vm);
    anchor_passed(a);
  }
}

/* Of a call that is made in the interpreter. */
static void count_plain(qn_vm *vm, jit_anchor *a, break_reason why) {
  anchor_specializations *list = anchor_entries_of(vm, a);
  if (!list) {
    error_clear(vm);
    anchor_passed(a);
  } else if (why != BREAK_none) {
    list->refused[why]++;
  } else {
    list->calls[a->state == ANCHOR_NEVER ? CALL_within : vm->asked.alone ? CALL_around : CALL_early]++;
  }
}

/* ---- entries' life --------------------------------------------------------------------------------------------------------------- */

void specialization_free(qn_vm *vm, specialization *e) {
  if (vm->asked.served == e) vm->asked.served = NULL;
  for (vm_host *h = vm->host; h; h = h->outer)
    if (h->asked.served == e) h->asked.served = NULL;
  job_cancel(vm, e);
  pattern_free(vm, &e->pattern);
  template_free(vm, &e->result);
  guards_drop(vm, e);
  plan_forget(vm, &e->there);
  if (e->plan) shared_plan_release(e->plan);
  if (e->graph) graph_free(e->graph);
  regions_cut(vm, &e->regions, 0);
  mem_free(vm, e->regions.list, e->regions.cap * sizeof *e->regions.list);
  parts_free(vm, &e->parts);
  mem_free(vm, e, sizeof *e);
}

void anchor_close(qn_vm *vm, jit_anchor *a) {
  anchor_specializations *e = a->entries;
  if (!e || !vm->jit) return;
  a->entries = NULL;
  a->state = ANCHOR_NEVER;
  for (anchor_specializations **p = &jit_of(vm)->anchors; *p; p = &(*p)->next)
    if (*p == e) {
      *p = e->next;
      break;
    }
  for (specialization *x = e->first, *next; x; x = next) {
    next = x->next;
    keep_counts(vm, e, x);
    specialization_free(vm, x);
  }
  for (anchor_specializations *other = jit_of(vm)->anchors; other && e->parts.n; other = other->next)
    for (uint32_t i = 0; i < e->parts.n; i++)
      if (e->parts.list[i].id == other->id) other->calls[CALL_part] += e->parts.list[i].calls;
  if (e->part && !vm->closing) part_gone(vm, e->id);
  parts_free(vm, &e->parts);
  mem_free(vm, e->recompiles, e->recompiles_cap * sizeof *e->recompiles);
  mem_free(vm, e, sizeof *e);
}

/* ---- scalar guards ----------------------------------------------------------------------------------------------------------- */

/* Builds the guards for the observed scalars: the weak nodes they depend on, in order. False: `*broken` says why; then the guards
 * are those that can be computed, which tell the calls that break off like this one from others. */
static bool guards_make(struct recording *r, specialization *e, break_reason *broken) {
  enum { NEEDED = UINT32_MAX };
  qn_vm *vm = r->vm;
  const graph *g = r->g;
  *broken = BREAK_none;
  if (!r->nobserved) return true;
  *broken = BREAK_memory;
  size_t bytes = g->n * sizeof(uint32_t);
  uint32_t *number = mem_zalloc(vm, bytes);             /* guard number + 1 per node; or NEEDED */
  uint8_t *data = number ? mem_zalloc(vm, g->n) : NULL; /* the number was made from an array's element */
  if (!data) {
    if (number) mem_free(vm, number, bytes);
    return false;
  }
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    bool known = n->kind == NODE_CONST || n->kind == NODE_INPUT || (n->kind == NODE_OP && n->nin <= 3);
    data[i] = !n->type.weak || !known;
    for (int k = 0; n->kind == NODE_OP && !data[i] && k < n->nin; k++) data[i] = data[n->in[k]];
  }
  bool reads = false;
  for (uint32_t i = 0; i < r->nobserved; i++)
    if (data[r->observed[i].node])
      reads = true;
    else
      number[r->observed[i].node] = NEEDED;
  uint32_t count = 0;
  for (uint32_t i = g->n - 1; i > 0; i--) {
    if (!number[i]) continue;
    count++;
    if (g->nodes[i].kind == NODE_OP)
      for (int k = 0; k < g->nodes[i].nin; k++) number[g->nodes[i].in[k]] = NEEDED;
  }
  if (count > GUARDS_MAX)
    *broken = BREAK_too_many_guards;
  else if (!count || (e->guards = mem_zalloc(vm, count * sizeof *e->guards)) != NULL)
    *broken = reads ? BREAK_host_read : BREAK_none;
  if (e->guards) e->nguards = count;
  uint32_t at = 0;
  for (uint32_t i = 1; i < g->n && e->guards; i++) {
    if (!number[i]) continue;
    const graph_node *n = &g->nodes[i];
    scalar_guard *x = &e->guards[at];
    x->value = value_nil();
    if (n->kind == NODE_INPUT) {
      x->op = GUARD_INPUT;
      x->in[0] = n->payload.input;
    } else if (n->kind == NODE_CONST) {
      x->op = GUARD_CONST;
      x->value = dtype_load((qn_dtype)n->type.dtype, n->payload.data);
    } else {
      x->op = n->op;
      x->nin = (uint8_t)n->nin;
      x->dtype = n->type.dtype;
      for (int k = 0; k < n->nin; k++) x->in[k] = number[n->in[k]] - 1;
    }
    number[i] = ++at;
  }
  for (uint32_t i = 0; i < r->nobserved && e->guards; i++) {
    if (data[r->observed[i].node]) continue;
    scalar_guard *x = &e->guards[number[r->observed[i].node] - 1];
    x->compare = true;
    x->value = r->observed[i].value;
  }
  mem_free(vm, data, g->n);
  mem_free(vm, number, bytes);
  return *broken == BREAK_none;
}

static void guards_drop(qn_vm *vm, specialization *e) {
  mem_free(vm, e->guards, e->nguards * sizeof *e->guards);
  e->guards = NULL;
  e->nguards = 0;
}

static bool same_scalar(qn_value a, qn_value b) {
  return (a.head & 0xff) == (b.head & 0xff) &&
         (a.u.i == b.u.i || (value_is(a, TAG_FLOAT) && a.u.f == b.u.f && a.u.f != 0));
}

/* A guard's expression: "argument 2", "add(argument 2, int 1)". */
static void print_guard(const specialization *e, uint32_t i, text_buf *out, int depth) {
  const scalar_guard *x = &e->guards[i];
  if (x->op == GUARD_INPUT) {
    pattern_input_name(&e->pattern, x->in[0], out);
  } else if (x->op == GUARD_CONST) {
    text_kind(out, x->value);
  } else if (depth > 8) {
    text_adds(out, "...");
  } else {
    text_addf(out, "%s(", op_rows[x->op].name);
    for (int k = 0; k < x->nin; k++) {
      if (k) text_adds(out, ", ");
      print_guard(e, x->in[k], out, depth + 1);
    }
    text_adds(out, ")");
  }
}

void specialization_number_guard(const specialization *e, uint32_t i, text_buf *out) {
  print_guard(e, i, out, 0);
  text_adds(out, " is ");
  text_kind(out, e->guards[i].value);
}

void specialization_guards(const specialization *e, text_buf *out) {
  pattern_print(&e->pattern, out);
  for (uint32_t i = 0; i < e->nguards; i++) {
    if (!e->guards[i].compare) continue;
    specialization_number_guard(e, i, out);
    text_adds(out, "\n");
  }
}

bool specialization_guards_hold(qn_vm *vm, const specialization *e, const qn_value *scalars, text_buf *why) {
  qn_value vals[GUARDS_MAX];
  for (uint32_t i = 0; i < e->nguards; i++) {
    const scalar_guard *x = &e->guards[i];
    if (x->op == GUARD_INPUT) {
      vals[i] = scalars[x->in[0]];
    } else if (x->op == GUARD_CONST) {
      vals[i] = x->value;
      continue;
    } else {
      qn_value in[3];
      for (int k = 0; k < x->nin; k++) in[k] = vals[x->in[k]];
      vals[i] = x->op == OP_cast ? eager_weak_cast(vm, in[0], (qn_dtype)x->dtype)
                                 : scalar_apply(vm, (op_id)x->op, in, x->nin);
      if (value_is_error(vals[i])) {
        error_clear(vm);
        if (why) {
          print_guard(e, i, why, 0);
          text_adds(why, " cannot be computed");
        }
        return false;
      }
    }
    if (x->compare && !same_scalar(vals[i], x->value)) {
      if (why) {
        print_guard(e, i, why, 0);
        text_adds(why, " is ");
        text_kind(why, vals[i]);
        text_adds(why, " instead of ");
        text_kind(why, x->value);
      }
      return false;
    }
  }
  return true;
}

/* ---- replay --------------------------------------------------------------------------------------------------------------------- */

enum { FEW = 48 };

/* The inputs of a call, collected by a match. */
typedef struct call_inputs {
  qn_array *few_arrays[FEW];
  qn_value few_scalars[FEW];
  qn_array **arrays;
  qn_value *scalars;
  uint32_t cap;
} call_inputs;

static bool inputs_grow(qn_vm *vm, call_inputs *c, uint32_t n);
static inline bool inputs_room(qn_vm *vm, call_inputs *c, uint32_t n) { return n <= c->cap || inputs_grow(vm, c, n); }

static bool inputs_grow(qn_vm *vm, call_inputs *c, uint32_t n) {
  if (n <= FEW) {
    c->arrays = c->few_arrays;
    c->scalars = c->few_scalars;
    c->cap = FEW;
    return true;
  }
  if (c->cap > FEW) {
    mem_free(vm, c->arrays, c->cap * sizeof *c->arrays);
    mem_free(vm, c->scalars, c->cap * sizeof *c->scalars);
  }
  c->cap = 0;
  c->arrays = mem_alloc(vm, n * sizeof *c->arrays);
  c->scalars = c->arrays ? mem_alloc(vm, n * sizeof *c->scalars) : NULL;
  if (!c->scalars) {
    if (c->arrays) mem_free(vm, c->arrays, n * sizeof *c->arrays);
    return false;
  }
  c->cap = n;
  return true;
}

/* Before the program goes on: a host may leave from there. */
static void inputs_free(qn_vm *vm, call_inputs *c) {
  if (c->cap <= FEW) return;
  mem_free(vm, c->arrays, c->cap * sizeof *c->arrays);
  mem_free(vm, c->scalars, c->cap * sizeof *c->scalars);
  c->cap = 0;
}

static bool specialization_fits(qn_vm *vm, specialization *e, const rec_call_site *site, call_inputs *c,
                                text_buf *why) {
  uint64_t epoch = jit_of(vm)->epoch;
  if (!pattern_match(&e->pattern, e->epoch != epoch, site->fn, site->args, site->nargs, c->arrays, c->scalars, why))
    return false;
  if (e->draw_input) {
    c->arrays[e->draw_input - 1] = NULL;
    c->scalars[e->draw_input - 1] = value_int((int64_t)vm->draw);
  }
  for (int i = 0; i < 2; i++)
    if (e->key_inputs[i]) {
      c->arrays[e->key_inputs[i] - 1] = NULL;
      c->scalars[e->key_inputs[i] - 1] = value_int((int64_t)(i ? vm->seed >> 32 : vm->seed & 0xffffffffu));
    }
  if (e->nguards && !specialization_guards_hold(vm, e, c->scalars, why)) return false;
  e->epoch = epoch;
  return true;
}

static qn_value replay(qn_vm *vm, specialization *e, const rec_call_site *site, call_inputs *c) {
  const char *name = site->anchor->name;
  plan *p = e->plan->plan;
  uint32_t n = e->pattern.ninputs;
  qk_scalar few_weak[FEW], *weak = few_weak;
  qn_value few_out[16], *out = few_out;
  uint32_t nout = p->noutputs, nweak = 0, copies = 0;
  qn_value result = value_error();
  if (n > FEW && !(weak = mem_alloc(vm, n * sizeof *weak))) return result;
  if (nout > 16 && !(out = mem_alloc(vm, nout * sizeof *out))) goto done;
  bool ok = true;
  uint64_t few_owned[FEW / 64 + 1];
  uint64_t *owned = few_owned;
  size_t owned_bytes = (n / 64 + 1) * sizeof *owned;
  if (n > FEW && !(owned = mem_alloc(vm, owned_bytes))) {
    owned = few_owned;
    ok = false;
  } else {
    for (uint32_t i = 0; i <= n / 64; i++) owned[i] = 0;
  }
  for (uint32_t i = 0; i < n && ok; i++) {
    qn_array *a = c->arrays[i];
    if (!a) {
      if (value_is(c->scalars[i], TAG_FLOAT))
        weak[nweak++].f = c->scalars[i].u.f;
      else
        weak[nweak++].i = c->scalars[i].u.i;
    } else if (!a->contiguous) {
      qn_array *flat = array_contiguous(vm, a);
      if (!flat) {
        ok = false;
        break;
      }
      c->arrays[i] = flat;
      owned[i / 64] |= (uint64_t)1 << (i % 64);
      copies++;
      if (vm_logs(vm, LOG_copies) && !e->reported_copies) log_copy(vm, name, e, i);
    }
  }
  e->reported_copies |= copies != 0;
  if (ok && plan_run(vm, p, &e->there, c->arrays, weak, out)) {
    call_values call = {&e->pattern, site->fn, site->args};
    result = template_build(vm, &e->result, out, &call);
    if (!value_is_error(result)) vm->draw += e->ndraws; /* else the call is made again, with the same numbers */
    for (uint32_t i = 0; i < nout; i++) value_release(vm, out[i]);
  }
  for (uint32_t i = 0; i < n && copies; i++)
    if (owned[i / 64] >> (i % 64) & 1) {
      value_release(vm, value_obj(TAG_ARRAY, c->arrays[i]));
      copies--;
    }
  if (owned != few_owned) mem_free(vm, owned, owned_bytes);
done:
  if (out != few_out && out) mem_free(vm, out, nout * sizeof *out);
  if (weak != few_weak) mem_free(vm, weak, n * sizeof *weak);
  return result;
}

/* ---- recording a call -------------------------------------------------------------------------------------------------------------- */

/* What the code belongs to on which entries of this function hang (anchor_of_value); NULL: it is nobody's. */
static const void *home_of(qn_value fn) {
  const qn_fn *f = value_fn(fn);
  while (f->head.flags == FN_TRANSFORM) f = value_fn(f->captures[0]);
  return f->head.flags == FN_USER ? ((const fn_shared *)f->code)->home : NULL;
}

/* Turns a finished recording of a call of `fn` into an entry. The recording gives up its pattern and graph. */
static specialization *specialization_make(struct recording *r, qn_value fn, qn_value result) {
  qn_vm *vm = r->vm;
  specialization *e = mem_zalloc(vm, sizeof *e);
  if (!e) return NULL;
  e->why = r->why;
  e->why_at = r->why_at;
  memcpy(e->why_text, r->why_text, sizeof e->why_text);
  bool capture = r->capturing;
  if (capture) {
    bool any = value_is(vm->asked.watched_fn, TAG_FN); /* somebody asks for the graph, whatever it computes */
    for (uint32_t i = 1; i < r->g->n && !any; i++) any = r->g->nodes[i].kind == NODE_OP && !r->g->nodes[i].type.weak;
    break_reason broken = any ? BREAK_none : BREAK_no_arrays;
    if (capture && broken == BREAK_none && !template_make(r, result, &e->result, &broken) && error_pending(vm))
      broken = BREAK_memory;
    if (broken == BREAK_none && !guards_make(r, e, &broken)) e->why_at = r->at;
    if (broken == BREAK_none && !pattern_fix_layouts(r)) broken = BREAK_memory;
    if (broken != BREAK_none) {
      error_clear(vm);
      capture = false;
      e->why = broken;
    }
  }
  if (!capture && !e->guards) { /* what led to the break: other numbers may lead past it */
    break_reason none;
    if (!guards_make(r, e, &none)) error_clear(vm);
  }
  template_settle(&e->result, home_of(fn));
  for (uint32_t i = 0; i < r->pattern.nroots; i++) {
    value_release(vm, r->pattern.roots[i].tracer);
    r->pattern.roots[i].tracer = value_nil();
  }
  e->pattern = r->pattern;
  memset(&r->pattern, 0, sizeof r->pattern);
  e->epoch = jit_of(vm)->epoch;
  const graph *g = r->g;
  if (r->draw_input) e->draw_input = g->nodes[r->draw_input].payload.input + 1;
  for (int i = 0; i < 2; i++)
    if (r->key_inputs[i]) e->key_inputs[i] = g->nodes[r->key_inputs[i]].payload.input + 1;
  e->ndraws = r->ndraws;
  e->device = r->device;
  e->state = capture ? ENTRY_COMPILING : ENTRY_BROKEN;
  if (capture) {
    if (r->had_lanes) { /* the lanes themselves say nothing any more */
      graph_dce_regions(r->g, r->regions.list, r->regions.n);
      regions_drop_empty(vm, &r->regions);
    }
    e->graph = r->g;
    e->regions = r->regions;
    r->g = NULL;
    r->regions = (region_list){0};
    if (!regions_settle(vm, &e->regions, home_of(fn))) error_clear(vm); /* the code stays with the entry, then */
  }
  return e;
}

/* Can the call be made again in the interpreter? That raises the pending error again, with more to say about it; and where
 * a plan was short of memory, the interpreter may get along with what there is. Clears the error then. */
static bool error_repeats(qn_vm *vm) {
  if (!error_catchable(vm)) return false;
  error_clear(vm);
  return true;
}

/* What explain asks for: the entry that belongs to the call that ends now, or why there is none. */
static void answer(qn_vm *vm, specialization *served, break_reason refused) {
  vm->asked.served = served;
  vm->asked.refused = refused;
}

/* Makes the call in the interpreter; there is no entry for it. */
static qn_value run_plain(qn_vm *vm, const rec_call_site *site, break_reason why) {
  count_plain(vm, site->anchor, why);
  qn_value result = site->run(site->ctx);
  answer(vm, NULL, why);
  return result;
}

/* Do two recordings break off at one place for calls of one shape? */
static bool same_break(const specialization *a, const specialization *b) {
  return a->state == ENTRY_BROKEN && b->state == ENTRY_BROKEN && a->hash && a->hash == b->hash && a->why == b->why &&
         a->why_at.source == b->why_at.source && a->why_at.start == b->why_at.start;
}

/* A new entry (taken over) is the first to be looked at next; one that stays eager the last of all, so that it serves only what no
 * plan does. Where numbers of many values lead to one break, one entry without guards on numbers serves all of them. What serves
 * calls like this one. */
static specialization *list_add(qn_vm *vm, anchor_specializations *list, specialization *e) {
  enum { ALIKE = 4 };
  specialization **at = &list->first, *first = NULL;
  uint32_t alike = 1;
  for (; e->state == ENTRY_BROKEN && *at; at = &(*at)->next) {
    if (!same_break(*at, e)) continue;
    if (!first) first = *at;
    alike++;
  }
  if (alike == ALIKE) {
    guards_drop(vm, first);
    specialization_free(vm, e);
    return first;
  }
  list->count++;
  e->next = *at;
  *at = e;
  return e;
}

/* Runs the body under the recorder and, when that worked, leaves an entry. */
static qn_value record(qn_vm *vm, rec_call_site *site, anchor_specializations *list) {
  uint64_t hash = pattern_hash(site->fn, site->args, site->nargs);
  struct recording *r = rec_begin(vm, true);
  if (!r) { /* the interpreter may get along with what memory there is */
    error_clear(vm);
    return run_plain(vm, site, BREAK_memory);
  }
  list->calls[CALL_recorded]++;
  r->of = list;
  r->at = site->at;
  qn_value fn = site->fn;
  qn_value stand = pattern_root(r, ROOT_FN, fn, NULL, NULL, NULL);
  bool ok = !value_is_error(stand);
  for (int i = 0; i < site->nargs && ok; i++) {
    qn_value s = pattern_root(r, ROOT_ARG, site->args[i], NULL, NULL, NULL);
    if (value_is_error(s)) {
      ok = false;
    } else {
      value_release(vm, site->args[i]);
      site->args[i] = s;
    }
  }
  if (!ok) {
    rec_free(r);
    value_release(vm, stand);
    return value_error();
  }
  bool complete = r->capturing; /* the pattern describes the whole call */
  uint64_t draw = vm->draw;
  vm_owned held, held_stand;
  vm_own(vm, &held, rec_drop, r);
  vm_own(vm, &held_stand, vm_drop_value, &stand);
  site->fn = stand;
  qn_value result = site->run(site->ctx);
  site->fn = fn;
  vm_disown(vm, &held);
  value_release(vm, stand);
  if (value_is_error(result)) {
    /* Earlier pending work may have failed first; then that is the error. */
    qn_error_object *later = error_take(vm);
    if (rec_end(r)) {
      error_put_back(vm, later);
    } else {
      error_free(vm, later);
    }
    rec_free(r);
    return result;
  }
  if (!rec_end(r)) {
    bool again = r->capturing && error_repeats(vm); /* nothing else has happened */
    value_release(vm, result);
    for (uint32_t i = 0; i < r->pattern.nroots && again; i++) { /* the body may have assigned its parameters */
      const root *x = &r->pattern.roots[i];
      if (x->kind != ROOT_ARG) continue;
      value_release(vm, site->args[x->arg]);
      site->args[x->arg] = value_retain(x->tracer);
    }
    rec_free(r);
    if (!again) return value_error();
    vm->draw = draw;
    result = site->run(site->ctx); /* any error but that of memory comes again */
    answer(vm, NULL, BREAK_memory);
    return result;
  }
  specialization *e = complete ? specialization_make(r, fn, result) : NULL;
  for (uint32_t i = 0; e && e->state != ENTRY_BROKEN && i < r->parts.n; i++) {
    if (parts_add(vm, &e->parts, r->parts.list[i].id, r->parts.list[i].calls)) continue;
    e->state = ENTRY_BROKEN;
    e->why = BREAK_memory;
  }
  if (value_is_scalar(result)) result.head &= 0xff;
  if (!e) {
    if (complete) {
      error_clear(vm); /* no memory for an entry: the call itself went well */
    } else {
      list->anchor->state = ANCHOR_EAGER;
      list->gave_up = (uint8_t)r->why;
      list->anchor->countdown = INT32_MAX;
    }
    break_reason why = r->why;
    rec_free(r);
    if (!complete && vm_logs(vm, LOG_breaks))
      vm_logf(vm, LOG_breaks, "%s stays eager: %s", list->anchor->name ? list->anchor->name : "fn", break_reasons[why]);
    answer(vm, NULL, complete ? BREAK_memory : why);
    return result;
  }
  rec_free(r);
  if (!e->why_at.source) e->why_at = list->anchor->at; /* the reason lies in no one place */
  e->hash = e->why == BREAK_no_arrays && pattern_any_text(&e->pattern) ? 0 : hash;
  e = list_add(vm, list, e);
  answer(vm, e, BREAK_none);
  text_buf log TEXT_OWNED;
  text_init(&log, NULL);
  if (e->state == ENTRY_BROKEN) {
    log_entry(vm, list->anchor, e, &log);
    log_write(vm, &log);
    return result;
  }
  bool sync = vm->config.jit == QN_JIT_SYNC || vm->config.jit == QN_JIT_VERIFY || vm->asked.sync_once;
  graph *copy = graph_copy(e->graph);
  if (!copy || !job_submit(vm, e, copy, list->anchor->name, sync)) {
    e->state = ENTRY_BROKEN;
    e->why = BREAK_memory;
    error_clear(vm);
  }
  if (e->state != ENTRY_BROKEN) log_entry(vm, list->anchor, e, &log);
  log_write(vm, &log);
  if (sync) jit_drain(vm);
  return result;
}

/* ---- the call ------------------------------------------------------------------------------------------------------------------------- */

static bool same_bits(qn_vm *vm, qn_value a, qn_value b, char *where, size_t size);

typedef struct bits_walk {
  qn_vm *vm;
  qn_value *leaves;
  uint32_t n, cap;
  bool failed;
} bits_walk;
static bool collect_leaf(void *ctx, const char *path, qn_value v) {
  (void)path;
  bits_walk *w = ctx;
  if (!mem_grow(w->vm, (void **)&w->leaves, &w->cap, w->n + 1, sizeof *w->leaves)) return false;
  w->leaves[w->n++] = v;
  return true;
}

static bool same_leaf(qn_vm *vm, qn_value a, qn_value b) {
  if ((a.head & 0xff) != (b.head & 0xff)) return false;
  if (value_is(a, TAG_FLOAT)) return a.u.i == b.u.i || (a.u.f != a.u.f && b.u.f != b.u.f);
  if (value_is(a, TAG_ARRAY)) {
    qn_array *x = value_array(a), *y = value_array(b);
    if (x->dtype != y->dtype || !shape_equal(x, y) || !(x = array_to_device(vm, x, 0))) return false;
    bool same = (y = array_to_device(vm, y, 0)) != NULL;
    for (int64_t i = 0; i < x->size && same; i++) {
      qn_value p = array_get_flat(x, i), q = array_get_flat(y, i);
      same = p.u.i == q.u.i || (value_is(p, TAG_FLOAT) && p.u.f != p.u.f && q.u.f != q.u.f);
    }
    value_release(vm, value_obj(TAG_ARRAY, x));
    if (y) value_release(vm, value_obj(TAG_ARRAY, y));
    return same;
  }
  return value_is_heap(a) || a.u.i == b.u.i;
}

static bool same_bits(qn_vm *vm, qn_value a, qn_value b, char *where, size_t size) {
  bits_walk x = {.vm = vm}, y = {.vm = vm};
  bool ok = tree_each(vm, a, collect_leaf, &x) && tree_each(vm, b, collect_leaf, &y) && x.n == y.n;
  for (uint32_t i = 0; i < x.n && ok; i++)
    if (!same_leaf(vm, x.leaves[i], y.leaves[i])) {
      snprintf(where, size, "leaf %u of the result", i + 1);
      ok = false;
    }
  mem_free(vm, x.leaves, x.cap * sizeof *x.leaves);
  mem_free(vm, y.leaves, y.cap * sizeof *y.leaves);
  return ok;
}

/* ---- --jit verify -------------------------------------------------------------------------------------------------------- */

/* Simplifies, plans, compiles and runs a graph (taken over). False: that did not work out; an error may be pending. */
static bool run_graph(qn_vm *vm, graph *g, const call_inputs *c, const qk_scalar *weak, qn_value *out) {
  graph *simple = graph_simplify(g, NULL);
  graph_free(g);
  char why[256];
  int device = vm->device;
  for (uint32_t i = 0; simple && i < simple->ninputs; i++)
    if (c->arrays[i]) device = c->arrays[i]->device;
  plan *p = simple ? plan_make(simple, device ? TARGET_GPU : TARGET_CPU, vm->tune, NULL, why, sizeof why) : NULL;
  if (!p) return false;
  atomic_bool go_on = false;
  compile_options o = {.tune = vm->tune, .spawn = (vm->config.capabilities & QN_CAP_SPAWN) != 0, .abandon = &go_on};
  if (vm->tune[TUNE_jit_cc]) compile_plan(vm->engine, p, &o);
  device_plan *there = NULL;
  bool ok = plan_run(vm, p, &there, c->arrays, weak, out);
  plan_forget(vm, &there);
  for (uint32_t k = 0; k < p->nkernels; k++)
    if (p->kernels[k].bvm_code) host()->forget(p->kernels[k].bvm_code);
  plan_free(p);
  return ok;
}

/* The graph's values node by node, as far as they can be computed: vals[i] of inputs, constants and ops. Their number. */
static uint32_t run_nodes(qn_vm *vm, const graph *g, int device, const call_inputs *c, qn_value *vals) {
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    if (n->kind == NODE_INPUT) {
      qn_array *a = c->arrays[n->payload.input];
      vals[i] = a ? value_retain(value_obj(TAG_ARRAY, a)) : c->scalars[n->payload.input];
    } else if (n->kind == NODE_CONST && n->type.weak) {
      vals[i] = dtype_load((qn_dtype)n->type.dtype, n->payload.data);
    } else if (n->kind == NODE_CONST) {
      qn_array *a = array_new(vm, (qn_dtype)n->type.dtype, n->type.rank, n->type.shape);
      if (!a) return i;
      memcpy(array_data(a), n->payload.data, (size_t)a->size * dtype_size((qn_dtype)n->type.dtype));
      qn_array *there = array_to_device(vm, a, device);
      value_release(vm, value_obj(TAG_ARRAY, a));
      if (!there) return i;
      vals[i] = value_obj(TAG_ARRAY, there);
    } else if (n->type.weak && value_is(vals[n->in[0]], TAG_ARRAY)) {
      if (!array_item(vm, value_array(vals[n->in[0]]), 0, &vals[i])) return i;
      vals[i] = eager_weak_cast(vm, vals[i], (qn_dtype)n->type.dtype);
      if (value_is_error(vals[i])) return i;
    } else {
      qn_value *in = mem_alloc(vm, n->nin * sizeof *in + 1);
      if (!in) return i;
      for (int k = 0; k < n->nin; k++) in[k] = vals[n->in[k]];
      op_attr attr = graph_attr(n);
      vals[i] = eager_apply(vm, (op_id)n->op, in, n->nin, &attr);
      mem_free(vm, in, n->nin * sizeof *in + 1);
      if (value_is_error(vals[i])) return i;
    }
  }
  return g->n;
}

/* The first node of the entry's graph whose compiled value differs from the eager one; 0 if none does alone. First all nodes
 * are results of one plan, which is quick; where that hides the difference, as it fuses otherwise, each is one's only result. */
static uint32_t first_difference(qn_vm *vm, const specialization *e, const call_inputs *c, char *what, size_t size) {
  enum { MOST_PLANS = 256 };
  const graph *g = e->graph;
  uint32_t found = 0, inputs = e->pattern.ninputs, nweak = 0;
  size_t bytes = g->n * sizeof(qn_value);
  qn_value *vals = mem_zalloc(vm, bytes), *outs = mem_zalloc(vm, bytes);
  qk_scalar *weak = mem_zalloc(vm, (inputs + 1) * sizeof *weak);
  graph *all = graph_copy(g);
  if (!vals || !outs || !weak || !all) {
    if (all) graph_free(all);
    goto done;
  }
  for (uint32_t i = 0; i < g->n; i++) vals[i] = outs[i] = value_unset();
  for (uint32_t k = 0; k < inputs; k++)
    if (!c->arrays[k])
      weak[nweak++] = value_is(c->scalars[k], TAG_FLOAT) ? (qk_scalar){.f = c->scalars[k].u.f}
                                                         : (qk_scalar){.i = c->scalars[k].u.i};
  uint32_t n = run_nodes(vm, g, e->device, c, vals), nout = 0;
  all->noutputs = 0;
  for (uint32_t i = 1; i < n; i++)
    if (g->nodes[i].kind == NODE_OP && !g->nodes[i].type.weak && graph_output(all, i)) nout++;
  if (run_graph(vm, all, c, weak, outs)) {
    for (uint32_t i = 1, k = 0; i < n && k < nout && !found; i++)
      if (g->nodes[i].kind == NODE_OP && !g->nodes[i].type.weak && !same_leaf(vm, outs[k++], vals[i])) found = i;
    for (uint32_t k = 0; k < nout; k++) value_release(vm, outs[k]);
  }
  for (uint32_t i = 1, plans = 0; i < n && !found && plans < MOST_PLANS; i++) {
    if (g->nodes[i].kind != NODE_OP || g->nodes[i].type.weak) continue;
    graph *part = graph_copy(g);
    if (!part) break;
    part->noutputs = 0;
    plans++;
    error_clear(vm);
    if (!graph_output(part, i)) {
      graph_free(part);
    } else if (run_graph(vm, part, c, weak, outs)) {
      if (!same_leaf(vm, outs[0], vals[i])) found = i;
      value_release(vm, outs[0]);
    }
  }
  if (found) {
    int line;
    uint32_t site = g->nodes[found].site;
    const char *name = place_line(vm, site < g->nsites ? g->sites[site].at : SPAN_NONE, &line);
    snprintf(what, size, "%%%u, %s (%s:%d)", found, op_rows[g->nodes[found].op].name, name, line);
  }
  for (uint32_t i = 0; i < g->n; i++) value_release(vm, vals[i]);
done:
  if (vals) mem_free(vm, vals, bytes);
  if (outs) mem_free(vm, outs, bytes);
  if (weak) mem_free(vm, weak, (inputs + 1) * sizeof *weak);
  error_clear(vm);
  return found;
}

/* What a verified call owns while the interpreter makes it. */
typedef struct verified_call {
  call_inputs *inputs; /* of which so many are held */
  uint32_t held;
  qn_value compiled;
  qn_error_object *error;
} verified_call;

static void verified_release(qn_vm *vm, const verified_call *v) {
  for (uint32_t i = 0; i < v->held; i++)
    if (v->inputs->arrays[i]) value_release(vm, value_obj(TAG_ARRAY, v->inputs->arrays[i]));
}

/* An exception passes. */
static void verified_drop(qn_vm *vm, void *what) {
  verified_call *v = what;
  verified_release(vm, v);
  inputs_free(vm, v->inputs);
  value_release(vm, v->compiled);
  if (v->error) error_free(vm, v->error);
}

/* Both ways, with the same inputs: they are held, since the interpreter may release or overwrite the call's arguments. */
static qn_value both_ways(qn_vm *vm, rec_call_site *site, specialization *e, verified_call *v) {
  call_inputs *c = v->inputs;
  const char *name = site->anchor->name ? site->anchor->name : "fn";
  uint64_t draw = vm->draw;
  qn_value compiled = replay(vm, e, site, c);
  uint64_t after = vm->draw;
  if (value_is_error(compiled) && (!error_catchable(vm) || vm->error->id == E_memory)) return compiled;
  qn_error_object *error = value_is_error(compiled) ? error_take(vm) : NULL;
  vm->draw = draw;
  ANCHOR_LENT(lent, site->anchor);
  site->anchor->state = ANCHOR_NEVER; /* recursion below this call runs eagerly too */
  v->compiled = compiled;
  v->error = error;
  vm_owned held;
  vm_own(vm, &held, verified_drop, v);
  qn_value eager = site->run(site->ctx);
  vm_disown(vm, &held);
  anchor_give_back(&lent);
  char where[160] = "", node[200] = "";
  if (error) {
    /* The message is the interpreter's, as it is without --jit verify: compiled code only has to fail at the same place. */
    bool same = value_is_error(eager) && vm->error && vm->error->id == error->id &&
                vm->error->at.source == error->at.source && vm->error->at.start == error->at.start;
    if (same || (value_is_error(eager) && !error_catchable(vm))) {
      error_free(vm, error);
      return eager;
    }
    int line;
    const char *file = place_line(vm, error->at, &line);
    snprintf(where, sizeof where, "%s (%s:%d)", error->message ? error->message->text : "", file, line);
    bool none = !value_is_error(eager);
    error_free(vm, error);
    value_release(vm, eager);
    error_clear(vm);
    return raise_error(vm, E_mismatch, site->at, "compiled execution of %s fails with: %s; eager execution %s", name,
                       where, none ? "does not" : "fails otherwise");
  }
  if (value_is_error(eager)) {
    value_release(vm, compiled);
    if (!error_catchable(vm) || vm->error->id == E_memory || vm->error->id == E_recursion) return eager;
    snprintf(where, sizeof where, "%s", vm->error->message ? vm->error->message->text : "");
    error_clear(vm);
    return raise_error(vm, E_mismatch, site->at, "eager execution of %s fails with: %s; compiled execution does not",
                       name, where);
  }
  if (after == vm->draw && same_bits(vm, compiled, eager, where, sizeof where)) {
    value_release(vm, compiled);
    return eager;
  }
  value_release(vm, compiled);
  value_release(vm, eager);
  if (error_pending(vm)) return value_error();
  first_difference(vm, e, c, node, sizeof node);
  return raise_error(vm, E_mismatch, site->at, "compiled and eager results of %s differ at %s%s%s", name,
                     where[0] ? where : "the random counter", node[0] ? "; the first node that differs is " : "", node);
}

static qn_value verified(qn_vm *vm, rec_call_site *site, specialization *e, call_inputs *c) {
  uint32_t n = e->pattern.ninputs;
  verified_call v = {.inputs = c, .compiled = value_nil()};
  qn_value result = value_error();
  for (; v.held < n; v.held++) {
    if (!c->arrays[v.held]) continue;
    qn_array *flat = array_contiguous(vm, c->arrays[v.held]);
    if (!flat) break;
    c->arrays[v.held] = flat;
  }
  if (v.held == n) result = both_ways(vm, site, e, &v);
  verified_release(vm, &v);
  return result;
}

/* Counts a re-recording and its reason. False: the function has had too many and stays eager. */
static bool note_miss(qn_vm *vm, const rec_call_site *site, anchor_specializations *list, const char *why) {
  jit_anchor *a = site->anchor;
  int line;
  span at = site->at.source ? site->at : a->at;
  const char *name = place_line(vm, at, &line);
  if (mem_grow(vm, (void **)&list->recompiles, &list->recompiles_cap, list->nrecompiles + 1,
               sizeof *list->recompiles)) {
    struct miss *m = &list->recompiles[list->nrecompiles++];
    m->at = at;
    snprintf(m->text, sizeof m->text, "%s", why);
  } else {
    error_clear(vm);
  }
  if (vm_logs(vm, LOG_recompiles))
    vm_logf(vm, LOG_recompiles, "%s is recorded again: %s (%s:%d)", a->name ? a->name : "fn", why, name, line);
  if (list->count < (uint64_t)vm->tune[TUNE_jit_entries] && ++list->misses <= (uint64_t)vm->tune[TUNE_jit_misses])
    return true;
  list->full = true;
  if (vm_logs(vm, LOG_recompiles))
    vm_logf(vm, LOG_recompiles, "%s has too many call shapes (jit.entries, jit.misses): others stay eager",
            a->name ? a->name : "fn");
  return false;
}

/* Its kernels are compiled together. */
static bool compiled(plan *p) {
  return p->nkernels == 0 || atomic_load_explicit(&p->kernels[0].code, memory_order_relaxed);
}

/* There will be no better code than there is. */
static bool best_code(const qn_vm *vm, const shared_plan *s) {
  return compiled(s->plan) || !vm->tune[TUNE_jit_cc] || atomic_load_explicit(&s->compile_us, memory_order_relaxed);
}

/* ---- which way a call takes ---------------------------------------------------------------------------------------------
 *
 * The JIT may not make a program slower, so a plan has to earn its place: calls are done in both ways in turn, and timed; the way
 * whose fastest call took less stays. A round of this begins when the plan is there (the block VM runs it), again when its
 * kernels are compiled, and from time to time after that, the more seldom the clearer and the older the outcome: what rounds
 * after the first take more than the faster way alone is a hundredth of the calls between them.
 *
 * --jit sync and --jit verify run every plan that there is and never look at a clock. On a device launches return before the
 * work is done, so time tells nothing: its plans run as soon as their kernels are compiled, and not before. */

enum {
  RACE_CALLS = 8,     /* of a round at most */
  RACE_CLEAR = 50000, /* ns: of calls that take longer, fewer show which way is faster */
  RACE_REST = 128     /* hits of the entry between rounds, at first and where both ways take as long */
};

static void race_over(const qn_vm *vm, specialization *e, int64_t fast, int64_t slow) {
  race *r = &e->race;
  r->calls = RACE_CALLS;
  r->eager = (double)r->least[0] * 100 > (double)r->least[1] * (double)vm->tune[TUNE_jit_earn];
  double wait = (double)((uint64_t)RACE_REST << r->rounds) * ((double)slow / (double)(fast > 0 ? fast : 1));
  r->again = wait < 1e15 ? e->hits + (uint64_t)wait : UINT64_MAX;
  if (r->rounds < 20) r->rounds++;
}

/* A call of the round took so long. */
static void race_note(const qn_vm *vm, specialization *e, int64_t took) {
  race *r = &e->race;
  int64_t *least = &r->least[r->calls % 2];
  if (r->calls < 2 || took < *least) *least = took;
  if (++r->calls % 2) return;
  bool eager = r->least[1] < r->least[0];
  int64_t fast = r->least[eager], slow = r->least[!eager];
  /* the first run of a plan makes what later ones find */
  bool clear = slow > RACE_CLEAR && slow > 2 * fast && (!eager || r->calls >= 4);
  if (clear || r->calls >= RACE_CALLS) race_over(vm, e, fast, slow);
}

static bool race_on(const qn_vm *vm, const specialization *e) {
  return vm->config.jit == QN_JIT_ON && e->state == ENTRY_READY && !e->device && e->race.calls < RACE_CALLS;
}

/* Does the plan run, or does the call stay eager? `*timed`: the round goes on, so the call is to be timed. */
static bool runs_now(qn_vm *vm, const anchor_specializations *list, specialization *e, bool *timed) {
  bool wait = vm->config.jit == QN_JIT_SYNC || vm->config.jit == QN_JIT_VERIFY;
  *timed = false;
  if (e->device) return plan_ready(vm, e->plan->plan, &e->there, e->device, wait);
  if (wait) return true;
  race *r = &e->race;
  if (!r->code && best_code(vm, e->plan)) *r = (race){.code = true};
  if (!r->code && list->streak) return false; /* short calls: what the block VM wants at first they do not earn back */
  *timed = r->calls < RACE_CALLS;
  return *timed ? r->calls % 2 == 0 : !r->eager;
}

bool specialization_stays_eager(const specialization *e) { return e->race.code && e->race.eager; }

/* Short calls (jit.short) that stay eager should not even be looked up, which may take longer than they do: after a streak of
 * them the anchor rests for so many calls, unless a larger one comes. */
enum {
  REST_STREAK = 16,
  REST_CALLS = 64, /* at first; each time that nothing has changed twice as many */
  REST_DOUBLED = 4
};

typedef struct short_call {
  int64_t begin, elements; /* when it began; in arrays among its arguments */
} short_call;

/* To be asked before a call that stays eager: may the anchor rest if it turns out short? */
static bool rest_begin(const qn_vm *vm, const rec_call_site *site, short_call *c) {
  if (vm->config.jit != QN_JIT_ON || !site->rests) return false;
  c->elements = 0;
  for (int i = 0; i < site->nargs; i++) {
    if (!value_is(site->args[i], TAG_ARRAY)) continue;
    if (value_array(site->args[i])->device) return false; /* as for races: the clock tells nothing */
    c->elements += value_array(site->args[i])->size;
  }
  if (!c->elements && vm->device) return false;
  c->begin = trace_events_now();
  return true;
}

static void rest_end(const qn_vm *vm, jit_anchor *a, anchor_specializations *list, const short_call *c) {
  if (a->state != ANCHOR_ACTIVE) return;
  if (trace_events_now() - c->begin >= vm->tune[TUNE_jit_short] * 1000) {
    list->streak = list->rests = 0;
    return;
  }
  if (++list->streak < REST_STREAK) return;
  a->state = ANCHOR_RESTING;
  a->most = c->elements;
  a->countdown = REST_CALLS << list->rests;
  if (list->rests < REST_DOUBLED) list->rests++;
}

static bool keep_call(qn_vm *vm, const rec_call_site *site) {
  qn_list *l = list_from(vm, site->args, (size_t)site->nargs);
  if (!l) return false;
  vm->asked.watched = NULL; /* the outermost call is the one */
  vm->asked.watched_fn = value_retain(site->fn);
  vm->asked.watched_args = value_obj(TAG_LIST, l);
  return true;
}

/* Makes a call of a function of which nothing is recorded yet, and sees whether it has to do with arrays. */
static qn_value run_watched(qn_vm *vm, const rec_call_site *site, anchor_specializations *list) {
  uint64_t before = vm->arrays_made;
  list->calls[CALL_early]++;
  qn_value result = site->run(site->ctx);
  list->watched = true;
  list->computes |= vm->arrays_made != before;
  return result;
}

/* A hot function has not been seen to do anything with arrays: its calls are looked at now and then. */
static qn_value run_quiet(qn_vm *vm, const rec_call_site *site, anchor_specializations *list) {
  enum { QUIET_DOUBLED = 6 };
  site->anchor->countdown = 1 << list->quiet;
  qn_value result = run_watched(vm, site, list);
  if (list->computes)
    site->anchor->countdown = 0;
  else if (list->quiet < QUIET_DOUBLED)
    list->quiet++;
  answer(vm, NULL, BREAK_no_arrays);
  return result;
}

/* The rules of its derivatives hold what their functions captured when it was recorded, so they are not those of every call that it serves:
 * who asks for a graph gets one with its own. Code has no rules. */
static bool specialization_has_rules(const specialization *e) {
  bool any = false;
  for (uint32_t i = 0; i < e->regions.n; i++) any |= e->regions.list[i].rule != NULL;
  return any;
}

qn_value rec_call(qn_vm *vm, rec_call_site *site) {
  jit_anchor *a = site->anchor;
  vm_jit *j = jit_of(vm);
  if (vm->asked.watched == a && !keep_call(vm, site)) {
    ((anchor_specializations *)a->entries)->refused[BREAK_memory]++; /* who watches has made them */
    return value_error();
  }
  if (!vm->asked.sync_once && (vm->config.jit == QN_JIT_OFF || a->state == ANCHOR_NEVER)) {
    a->countdown = INT32_MAX;
    return run_plain(vm, site, BREAK_none); /* nobody wanted a graph */
  }
  if (vm->asked.nojit || vm->asked.alone) return run_plain(vm, site, vm->asked.nojit ? BREAK_nojit : BREAK_none);
  if (a->state == ANCHOR_COLD) {
    anchor_specializations *list = anchor_entries_of(vm, a);
    if (!list) {
      error_clear(vm);
      return run_plain(vm, site, BREAK_memory);
    }
    if (!list->begun) { /* the first call */
      list->begun = true;
      a->countdown = (int32_t)vm->tune[TUNE_jit_hot] - 1;
    }
    if (a->countdown > 0) return run_watched(vm, site, list);
    if (list->watched && !list->computes && !vm->asked.sync_once) return run_quiet(vm, site, list);
    a->state = ANCHOR_ACTIVE;
  }
  if (a->state == ANCHOR_RESTING) a->state = ANCHOR_ACTIVE;
  if (atomic_load_explicit(&j->box->mail, memory_order_relaxed)) jit_drain(vm);
  anchor_specializations *list = a->entries;
  int64_t came = list->first && race_on(vm, list->first) ? trace_events_now() : 0;
  call_inputs inputs;
  inputs.cap = 0;
  uint64_t hash = 0;
  bool again = false, own_rules = false;
  specialization **last = &list->first;
  for (specialization *e = list->first; e; last = &e->next, e = e->next) {
    if (!inputs_room(vm, &inputs, e->pattern.ninputs)) {
      error_clear(vm);
      inputs_free(vm, &inputs);
      return run_plain(vm, site, BREAK_memory);
    }
    if (e != list->first) {
      if (!hash) hash = pattern_hash(site->fn, site->args, site->nargs);
      if (e->hash && e->hash != hash) continue;
    }
    if (!specialization_fits(vm, e, site, &inputs, NULL)) continue;
    /* Perhaps there is more memory by now; and who asks for a graph gets one that computes nothing, too. */
    bool asked = value_is(vm->asked.watched_fn, TAG_FN);
    bool retry =
        e->state == ENTRY_BROKEN && !list->full && (e->why == BREAK_memory || (e->why == BREAK_no_arrays && asked));
    own_rules = asked && specialization_has_rules(e);
    if ((retry || own_rules) && !e->running) {
      *last = e->next;
      list->count--;
      keep_counts(vm, list, e);
      specialization_free(vm, e);
      again = true;
      break;
    }
    if (e != list->first && e->state != ENTRY_BROKEN) { /* most recently used first */
      *last = e->next;
      e->next = list->first;
      list->first = e;
    }
    e->hits++;
    e->running++;
    qn_value result;
    bool ready = e->state == ENTRY_READY && vm->config.jit != QN_JIT_OFF, timed = false;
    bool now = ready && runs_now(vm, list, e, &timed);
    /* what stays eager need not be looked up */
    int64_t start = !timed ? 0 : now && came ? came : trace_events_now();
    if (!now) {
      bool alone =
          ready && !e->device && !specialization_stays_eager(e); /* what it calls has its graph in this one's */
      bool late = ready && (e->device || !e->race.code);
      e->timed += timed;
      e->waited += !timed && (late || e->state == ENTRY_COMPILING);
      short_call c;
      bool rests = !timed && rest_begin(vm, site, &c);
      j->calls_eager++;
      inputs_free(vm, &inputs);
      vm->asked.alone += alone;
      result = site->run(site->ctx);
      vm->asked.alone -= alone;
      if (rests) rest_end(vm, a, list, &c);
    } else if (vm->config.jit == QN_JIT_VERIFY) {
      e->verified++;
      result = verified(vm, site, e, &inputs);
    } else {
      j->calls_compiled++;
      e->replays++;
      list->streak = list->rests = 0;
      int64_t begin = trace_events_begin(vm->engine);
      result = replay(vm, e, site, &inputs);
      trace_events_end(vm->engine, TRACE_EVENTS_run, a->name, begin, "kernels", e->plan->plan->nkernels);
      /* What compiled code could not do the interpreter does again from the start (nothing has happened yet), so that the
       * error comes with its operands and its trace. */
      if (value_is_error(result)) {
        e->hits--, e->replays--;
        list->calls[CALL_again]++;
        if (error_repeats(vm)) {
          inputs_free(vm, &inputs);
          result = site->run(site->ctx);
        }
      }
    }
    if (timed)
      race_note(vm, e, trace_events_now() - start);
    else if (ready && e->hits >= e->race.again)
      e->race.calls = 0;
    e->running--;
    answer(vm, e, BREAK_none);
    inputs_free(vm, &inputs);
    return result;
  }
  bool go_on = !list->full;
  if (own_rules) {
    go_on = true;
  } else if (go_on && again) {
    go_on = note_miss(vm, site, list, break_reasons[BREAK_memory]);
  } else if (go_on && list->first) { /* only now, as telling the reason takes longer than looking */
    text_buf why TEXT_OWNED;
    text_init(&why, vm);
    if (inputs_room(vm, &inputs, list->first->pattern.ninputs))
      specialization_fits(vm, list->first, site, &inputs, &why);
    text_add(&why, "", 1);
    error_clear(vm);
    go_on = note_miss(vm, site, list, why.failed ? "another call shape" : why.text);
  }
  inputs_free(vm, &inputs);
  if (!go_on) {
    short_call c;
    bool rests = rest_begin(vm, site, &c);
    qn_value result = run_plain(vm, site, BREAK_too_many_shapes);
    if (rests) rest_end(vm, a, list, &c);
    return result;
  }
  list->streak = list->rests = 0;
  int64_t begin = trace_events_begin(vm->engine);
  qn_value result = record(vm, site, list);
  trace_events_end(vm->engine, TRACE_EVENTS_recording, a->name, begin, NULL, 0);
  return result;
}

/* ---- finished jobs ------------------------------------------------------------------------------------------------------------------------ */

void jit_drain(qn_vm *vm) {
  compile_task *reports;
  job *done = job_take_mail(vm, &reports);
  text_buf log TEXT_OWNED;
  text_init(&log, NULL);
  while (done) {
    job *next = done->next;
    specialization *e = done->entry;
    if (!e) {
      job_free(done);
      done = next;
      continue;
    }
    e->job = NULL;
    e->plan_ms = done->ms;
    if (done->plan) {
      e->plan = done->plan;
      done->plan = NULL;
      e->state = ENTRY_READY;
      log_plan(vm, done->name, e, &log);
    } else {
      e->state = ENTRY_BROKEN;
      e->why = done->why[0] ? BREAK_compile : BREAK_memory;
      snprintf(e->why_text, sizeof e->why_text, "%.60s", done->why);
      if (vm_logs(vm, LOG_breaks))
        log_line(&log, LOG_breaks, "%s stays eager for this call shape: %s%s%s", done->name ? done->name : "fn",
                 break_reasons[e->why], done->why[0] ? ": " : "", done->why);
    }
    job_free(done);
    done = next;
  }
  while (reports) {
    compile_task *next = reports->next;
    log_compiled(vm, reports, &log);
    compile_task_free(reports);
    reports = next;
  }
  log_write(vm, &log);
  char text[256];
  while (devices_trouble(vm->engine, text, sizeof text)) {
    vm_write_later(vm, text, strlen(text));
    vm_write_later(vm, "\n", 1);
  }
}

void jit_cancel(qn_vm *vm) {
  for (anchor_specializations *a = jit_of(vm)->anchors; a; a = a->next)
    for (specialization **p = &a->first; *p;) {
      specialization *e = *p;
      bool compiling = e->plan && !e->device && !best_code(vm, e->plan);
      if (!e->job && !compiling) {
        p = &e->next;
        continue;
      }
      *p = e->next;
      a->count--;
      a->misses = 0; /* what is dropped may come again */
      a->full = false;
      keep_counts(vm, a, e);
      specialization_free(vm, e);
    }
  jobs_drop(vm);
}
