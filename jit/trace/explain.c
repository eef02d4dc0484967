/* explain, graph and code: what the compiler made of a call.
 *
 * All three make the call (on this thread, waiting for the plan: the one place where somebody who asks waits), whatever --jit
 * says, so that their answers do not depend on timing, and read the entry that served it.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "jit/trace/trace.h"

/* ---- building records ---------------------------------------------------------------------------------------------------------- */

/* Sets a field; takes over `v`. A failure sticks in *ok. */
static void put(qn_vm *vm, qn_record *r, const char *name, qn_value v, bool *ok) {
  qn_str *s = *ok && !value_is_error(v) ? str_intern(vm, name, strlen(name)) : NULL;
  if (!s) {
    if (!value_is_error(v)) value_release(vm, v);
    *ok = false;
    return;
  }
  if (!record_set(vm, r, s, v)) *ok = false;
  value_release(vm, value_obj(TAG_STR, s));
}

static qn_value text(qn_vm *vm, const char *s) {
  qn_str *t = str_new(vm, s, strlen(s));
  return t ? value_obj(TAG_STR, t) : value_error();
}

static void push(qn_vm *vm, qn_list *l, qn_value v, bool *ok) {
  if (value_is_error(v) || !*ok) {
    if (!value_is_error(v)) value_release(vm, v);
    *ok = false;
    return;
  }
  if (!list_push(vm, l, v)) *ok = false;
}

static int line_at(qn_vm *vm, span at) {
  const source_text *s = source_get(vm, at.source);
  int line = 0, column;
  if (s) source_position(s, at.start, &line, &column);
  return line;
}

/* ---- reading an entry ------------------------------------------------------------------------------------------------------------- */

/* What serves a call: an entry, whose plan is ready unless it is broken; or none, and why. */
typedef struct served {
  jit_anchor *anchor;
  entry *entry;
  break_reason why; /* BREAK_none: there is a plan */
  span at;
  char text[160]; /* the reason in words */
} served;

/* Makes the call and finds what serves it. False with an error raised: the call's, or no memory to compile it with. */
static bool serve(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, served *s) {
  jit_anchor *a = value_is(fn, TAG_FN) ? anchor_of_value(vm, fn) : NULL;
  if (!a) {
    raise(vm, E_type, SPAN_NONE, "explain takes a function written in Quern, not %s", value_is(fn, TAG_FN) ? "a builtin" : value_kind_name(fn));
    return false;
  }
  if (!anchor_entries_of(vm, a)) return false;
  if (vm->rec && !rec_break(vm->rec, BREAK_effect, "explain")) return false;
  jit_drain(vm);
  vm_jit *j = jit_of(vm);
  uint8_t state = a->state;
  int32_t countdown = a->countdown;
  a->state = ANCHOR_ACTIVE;
  a->countdown = 0;
  j->sync_once = true;
  j->served = NULL;
  j->refused = BREAK_nested;
  uint64_t draw = vm->draw; /* looking must not change what the program computes */
  qn_value result = vm->hooks.call(vm, fn, args, nargs, value_nil());
  vm->draw = draw;
  j->sync_once = false;
  if (state != ANCHOR_ACTIVE) {
    a->state = state;
    a->countdown = countdown;
  }
  if (value_is_error(result)) return false;
  entry *e = j->served;
  break_reason refused = j->refused;
  value_release(vm, result);
  while (e && e->state == ENTRY_COMPILING) {
    struct timespec pause = {0, 200000};
    nanosleep(&pause, NULL);
    if (vm_poll(vm)) return false;
    jit_drain(vm);
  }
  *s = (served){.anchor = a, .entry = e, .why = !e ? refused : e->state == ENTRY_BROKEN ? e->why : BREAK_none};
  if (s->why == BREAK_memory) {
    raise_memory(vm);
    return false;
  }
  if (e) s->at = e->why_at;
  snprintf(s->text, sizeof s->text, "%s%s%s", break_reasons[s->why], e && e->why_text[0] ? ": " : "", e ? e->why_text : "");
  return true;
}

static qn_value kernel_record(qn_vm *vm, const plan *p, const plan_kernel *k) {
  qn_record *r = record_new(vm);
  if (!r) return value_error();
  bool ok = true;
  put(vm, r, "name", text(vm, k->program->name ? k->program->name : "kernel"), &ok);
  int lines[64];
  int n = 0;
  for (uint32_t i = 0; i < k->nops; i++) {
    uint32_t site = p->graph->nodes[k->nodes[i]].site;
    if (!site || site >= p->graph->nsites) continue;
    int line = line_at(vm, p->graph->sites[site].at), at = n;
    if (!line || n == 64) continue;
    while (at > 0 && lines[at - 1] > line) at--;
    if (at > 0 && lines[at - 1] == line) continue;
    memmove(lines + at + 1, lines + at, (size_t)(n - at) * sizeof *lines);
    lines[at] = line;
    n++;
  }
  qn_list *l = list_new(vm, 0);
  if (!l) ok = false;
  for (int i = 0; i < n && ok; i++) push(vm, l, value_int(lines[i]), &ok);
  if (l) put(vm, r, "lines", value_obj(TAG_LIST, l), &ok);
  put(vm, r, "ops", value_int(k->nops), &ok);
  put(vm, r, "bytes", value_int(dim_hint(&p->graph->dims, k->bytes)), &ok);
  if (ok) return value_obj(TAG_RECORD, r);
  value_release(vm, value_obj(TAG_RECORD, r));
  return value_error();
}

static qn_value reason_record(qn_vm *vm, const char *reason, int line) {
  qn_record *r = record_new(vm);
  if (!r) return value_error();
  bool ok = true;
  put(vm, r, "reason", text(vm, reason), &ok);
  put(vm, r, "line", value_int(line), &ok);
  if (ok) return value_obj(TAG_RECORD, r);
  value_release(vm, value_obj(TAG_RECORD, r));
  return value_error();
}

qn_value jit_explain(qn_vm *vm, qn_value fn, const qn_value *args, int nargs) {
  served s;
  if (!serve(vm, fn, args, nargs, &s)) return value_error();
  const entry *e = s.entry;
  const plan *p = e && e->plan ? e->plan->plan : NULL;
  qn_record *r = record_new(vm);
  qn_list *kernels = list_new(vm, 0), *breaks = list_new(vm, 0), *recompiles = list_new(vm, 0);
  bool ok = r && kernels && breaks && recompiles;
  int compiled = 0;
  for (uint32_t i = 0; p && i < p->nkernels && ok; i++) {
    compiled += atomic_load_explicit(&p->kernels[i].code, memory_order_acquire) != NULL;
    push(vm, kernels, kernel_record(vm, p, &p->kernels[i]), &ok);
  }
  if (ok && s.why != BREAK_none) push(vm, breaks, reason_record(vm, s.text, line_at(vm, s.at)), &ok);
  const anchor_entries *list = s.anchor->entries;
  for (uint32_t i = 0; i < list->nrecompiles && ok; i++)
    push(vm, recompiles, reason_record(vm, list->recompiles[i].text, line_at(vm, list->recompiles[i].at)), &ok);
  text_buf guards;
  text_init(&guards, vm);
  if (e) pattern_print(&e->pattern, &guards);
  if (guards.len && guards.text && guards.text[guards.len - 1] == '\n') guards.len--;
  qn_value guard_text = text_take(&guards);
  if (ok) {
    put(vm, r, "graphs", value_int(p ? 1 : 0), &ok);
    put(vm, r, "kernels", value_obj(TAG_LIST, kernels), &ok);
    put(vm, r, "breaks", value_obj(TAG_LIST, breaks), &ok);
    put(vm, r, "recompiles", value_obj(TAG_LIST, recompiles), &ok);
    put(vm, r, "guards", guard_text, &ok);
    put(vm, r, "compiled", value_int(compiled), &ok);
    put(vm, r, "compile_ms", value_float(e ? e->compile_ms : 0), &ok);
    put(vm, r, "peak_bytes", value_int(p ? p->peak_bytes : 0), &ok);
    put(vm, r, "eager_peak_bytes", value_int(p ? p->eager_peak_bytes : 0), &ok);
    if (ok) return value_obj(TAG_RECORD, r);
  } else {
    if (kernels) value_release(vm, value_obj(TAG_LIST, kernels));
    if (breaks) value_release(vm, value_obj(TAG_LIST, breaks));
    if (recompiles) value_release(vm, value_obj(TAG_LIST, recompiles));
    if (!value_is_error(guard_text)) value_release(vm, guard_text);
  }
  if (r) value_release(vm, value_obj(TAG_RECORD, r));
  return value_error();
}

qn_value jit_graph_text(qn_vm *vm, qn_value fn, const qn_value *args, int nargs) {
  served s;
  if (!serve(vm, fn, args, nargs, &s)) return value_error();
  if (!s.entry || !s.entry->graph)
    return raise(vm, E_no_graph, s.at, "%s has no graph for this call: %s", s.anchor->name ? s.anchor->name : "the function", s.text);
  text_buf t;
  text_init(&t, vm);
  graph_print(s.entry->graph, &t);
  return text_take(&t);
}

qn_value jit_code_text(qn_vm *vm, qn_value fn, const qn_value *args, int nargs) {
  served s;
  if (!serve(vm, fn, args, nargs, &s)) return value_error();
  if (!s.entry || !s.entry->plan)
    return raise(vm, E_no_graph, s.at, "%s has no code for this call: %s", s.anchor->name ? s.anchor->name : "the function", s.text);
  text_buf t;
  text_init(&t, vm);
  plan_source(s.entry->plan->plan, &t);
  return text_take(&t);
}

/* ---- logs ------------------------------------------------------------------------------------------------------------------- */

void jit_log_plan(qn_vm *vm, const plan *p) {
  static const log_channel channels[] = {LOG_graph, LOG_fusion, LOG_kernels, LOG_code};
  for (size_t i = 0; i < sizeof channels / sizeof *channels; i++) {
    if (!vm_logs(vm, channels[i])) continue;
    text_buf t;
    text_init(&t, vm);
    switch (channels[i]) {
    case LOG_graph: graph_print(p->graph, &t); break;
    case LOG_fusion: plan_print(p, &t); break;
    case LOG_kernels:
      text_addf(&t, "%u\n", p->nkernels);
      for (uint32_t k = 0; k < p->nkernels; k++) l_print(p->kernels[k].program, &t);
      break;
    default: plan_source(p, &t); break;
    }
    text_add(&t, "", 1);
    if (!t.failed) vm_logf(vm, channels[i], "%s", t.text);
    text_free(&t);
  }
}
