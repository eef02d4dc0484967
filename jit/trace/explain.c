/* explain and code (and graph, graphs.c): what the compiler made of a call.
 *
 * All three make the call (on this thread, waiting for the plan: the one place where somebody who asks waits), whatever --jit
 * says, so that their answers do not depend on timing, and read the entry that served it.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "jit/run/compile.h"
#include "jit/run/plan_run.h"
#include "jit/trace/breaks.h"
#include "jit/trace/jobs.h"
#include "jit/trace/pattern.h"
#include "jit/trace/recording.h"
#include "jit/trace/report.h"
#include "jit/trace/specialization.h"
#include "jit/trace/transform.h"

/* ---- building records ---------------------------------------------------------------------------------------------------------- */

/* Sets a field; takes over `v`. A failure sticks in *ok. */
void put_field(qn_vm *vm, qn_record *r, const char *name, qn_value v, bool *ok) {
  qn_str *s = *ok && !value_is_error(v) ? str_intern(vm, name, strlen(name)) : NULL;
  if (!s) {
    if (!value_is_error(v)) value_release(vm, v);
    *ok = false;
    return;
  }
  if (!record_set(vm, r, s, v)) *ok = false;
  value_release(vm, value_obj(TAG_STR, s));
}

qn_value text_value(qn_vm *vm, const char *s) {
  qn_str *t = str_new(vm, s, strlen(s));
  return t ? value_obj(TAG_STR, t) : value_error();
}

void push_item(qn_vm *vm, qn_list *l, qn_value v, bool *ok) {
  if (value_is_error(v) || !*ok) {
    if (!value_is_error(v)) value_release(vm, v);
    *ok = false;
    return;
  }
  if (!list_push(vm, l, v)) *ok = false;
}

const char *place_line(qn_vm *vm, span at, int *line) {
  const source_text *s = source_get(vm, at.source);
  int column = 0;
  *line = 0;
  if (!s) return "?";
  source_position(s, at.start, line, &column);
  return s->name;
}

static int line_at(qn_vm *vm, span at) {
  int line;
  place_line(vm, at, &line);
  return line;
}

/* ---- reading an entry ------------------------------------------------------------------------------------------------------------- */

/* A builtin has no call of its own that asks its anchor. */
typedef struct builtin_site {
  qn_vm *vm;
  rec_call_site site;
} builtin_site;

static qn_value run_builtin(void *ctx) {
  builtin_site *c = ctx;
  return c->vm->hooks.call(c->vm, c->site.fn, c->site.args, c->site.nargs, value_nil());
}

static qn_value call_builtin(qn_vm *vm, jit_anchor *a, qn_value fn, const qn_value *args, int nargs) {
  if (!vm_enter(vm, (size_t)nargs + 1)) return value_error();
  builtin_site c = {.vm = vm};
  qn_value *mark = vm->sp;
  for (int i = 0; i < nargs; i++) *vm->sp++ = value_retain(args[i]);
  c.site = (rec_call_site){.anchor = a, .fn = fn, .args = mark, .nargs = nargs, .run = run_builtin, .ctx = &c};
  qn_value result = rec_call(vm, &c.site);
  vm_pop_to(vm, mark);
  return result;
}

/* Looking must not change what the program computes, nor when its functions are recorded. */
typedef struct asking {
  qn_vm *vm; /* NULL: it has ended */
  jit_anchor *anchor;
  uint8_t state;
  int32_t countdown;
  bool sync_once;
  uint64_t draw;
} asking;

static void asking_begin(qn_vm *vm, jit_anchor *a, asking *k) {
  *k = (asking){vm, a, a->state, a->countdown, vm->asked.sync_once, vm->draw};
  a->state = ANCHOR_ACTIVE;
  a->countdown = 0;
  vm->asked.sync_once = true;
}

static void asking_end(asking *k) {
  qn_vm *vm = k->vm;
  if (!vm) return;
  k->vm = NULL;
  vm->draw = k->draw;
  vm->asked.sync_once = k->sync_once;
  if (k->state == ANCHOR_ACTIVE) return;
  k->anchor->state = k->state;
  k->anchor->countdown = k->countdown;
}
#define ASKING(name) asking name __attribute__((cleanup(asking_end))) = {.vm = NULL}

bool serve(qn_vm *vm, const char *what, qn_value fn, const qn_value *args, int nargs, served *s) {
  jit_anchor *a = value_is(fn, TAG_FN) ? anchor_of_value(vm, fn) : NULL;
  if (!a) {
    if (error_pending(vm)) return false;
    raise_error(vm, E_type, SPAN_NONE, "%s takes a function within at most eight transforms, not %s", what,
                value_is(fn, TAG_FN) ? "one within more" : value_kind_name(fn));
    return false;
  }
  if (!anchor_entries_of(vm, a)) return false;
  if (vm->rec && !rec_break(vm->rec, BREAK_effect, what)) return false;
  jit_drain(vm);
  ASKING(was);
  asking_begin(vm, a, &was);
  vm->asked.served = NULL;
  /* Calls that the interpreter does not hand over at all. */
  vm->asked.refused = vm->rec ? BREAK_nested : BREAK_no_arguments;
  bool direct = value_fn(fn)->head.flags == FN_BUILTIN && !vm->rec;
  qn_value result = direct ? call_builtin(vm, a, fn, args, nargs) : vm->hooks.call(vm, fn, args, nargs, value_nil());
  asking_end(&was);
  if (value_is_error(result)) return false;
  break_reason refused = (break_reason)vm->asked.refused;
  value_release(vm, result);
  const specialization *waited = vm->asked.served;
  while (waited && waited->state == ENTRY_COMPILING) {
    struct timespec pause = {0, 200000};
    nanosleep(&pause, NULL);
    if (vm_poll(vm)) return false;
    jit_drain(vm);
    waited = vm->asked.served;
  }
  specialization *e = vm->asked.served;
  *s = (served){.anchor = a, .entry = e, .why = !e ? refused : e->state == ENTRY_BROKEN ? e->why : BREAK_none};
  if (s->why == BREAK_memory) {
    raise_memory(vm);
    return false;
  }
  s->at = e ? e->why_at : a->at;
  snprintf(s->text, sizeof s->text, "%s%s%s", break_reasons[s->why], e && e->why_text[0] ? ": " : "",
           e ? e->why_text : "");
  return true;
}

bool place_in_library(qn_vm *vm, span at) {
  const source_text *s = source_get(vm, at.source);
  return !s || s->library;
}

span node_place(qn_vm *vm, const graph *g, uint32_t node) {
  uint32_t made = g->nodes[node].site;
  if (!made || made >= g->nsites) return SPAN_NONE;
  for (uint32_t site = made; site; site = g->sites[site].parent)
    if (!place_in_library(vm, g->sites[site].at)) return g->sites[site].at;
  return g->sites[made].at;
}

int line_add(int lines[KERNEL_LINES_MOST], int n, int line) {
  int at = n;
  if (!line || n == KERNEL_LINES_MOST) return n;
  while (at > 0 && lines[at - 1] > line) at--;
  if (at > 0 && lines[at - 1] == line) return n;
  memmove(lines + at + 1, lines + at, (size_t)(n - at) * sizeof *lines);
  lines[at] = line;
  return n + 1;
}

int kernel_lines(qn_vm *vm, const plan *p, const plan_kernel *k, int lines[KERNEL_LINES_MOST]) {
  int n = 0;
  for (uint32_t i = 0; i < k->nops; i++) n = line_add(lines, n, line_at(vm, node_place(vm, p->graph, k->nodes[i])));
  return n;
}

static const char *kernel_name(const plan_kernel *k) { return k->program->name ? k->program->name : "kernel"; }

static qn_value kernel_record(qn_vm *vm, const plan *p, const plan_kernel *k) {
  qn_record *r = record_new(vm);
  if (!r) return value_error();
  bool ok = true;
  put_field(vm, r, "name", text_value(vm, kernel_name(k)), &ok);
  int lines[KERNEL_LINES_MOST];
  int n = kernel_lines(vm, p, k, lines);
  qn_list *l = list_new(vm, 0);
  if (!l) ok = false;
  for (int i = 0; i < n && ok; i++) push_item(vm, l, value_int(lines[i]), &ok);
  if (l) put_field(vm, r, "lines", value_obj(TAG_LIST, l), &ok);
  put_field(vm, r, "ops", value_int(k->nops), &ok);
  put_field(vm, r, "bytes", value_int(dim_hint(&p->graph->dims, k->bytes)), &ok);
  if (ok) return value_obj(TAG_RECORD, r);
  value_release(vm, value_obj(TAG_RECORD, r));
  return value_error();
}

static qn_value reason_record(qn_vm *vm, const char *reason, int line) {
  qn_record *r = record_new(vm);
  if (!r) return value_error();
  bool ok = true;
  put_field(vm, r, "reason", text_value(vm, reason), &ok);
  put_field(vm, r, "line", value_int(line), &ok);
  if (ok) return value_obj(TAG_RECORD, r);
  value_release(vm, value_obj(TAG_RECORD, r));
  return value_error();
}

static qn_value empty_list(qn_vm *vm) {
  qn_list *l = list_new(vm, 0);
  return l ? value_obj(TAG_LIST, l) : value_error();
}

/* A text for each guard. */
static qn_value guard_list(qn_vm *vm, const specialization *e) {
  text_buf t TEXT_OWNED;
  text_init(&t, vm);
  specialization_guards(e, &t);
  qn_list *l = list_new(vm, 0);
  bool ok = l && !t.failed;
  for (size_t at = 0, end; ok && at < t.len; at = end + 1) {
    for (end = at; end < t.len && t.text[end] != '\n'; end++) {}
    qn_str *s = str_new(vm, t.text + at, end - at);
    push_item(vm, l, s ? value_obj(TAG_STR, s) : value_error(), &ok);
  }
  if (ok) return value_obj(TAG_LIST, l);
  if (t.failed) raise_memory(vm);
  if (l) value_release(vm, value_obj(TAG_LIST, l));
  return value_error();
}

/* More digits of a time say nothing. */
static double three_digits(double x) {
  double unit = 1, parts = 1;
  while (x >= 1000 * unit && unit < 1e12) unit *= 10;
  while (x * parts < 100 && parts < 1e6) parts *= 10;
  return round(x / unit * parts) * unit / parts;
}

qn_value jit_explain(qn_vm *vm, qn_value fn, const qn_value *args, int nargs) {
  served s;
  if (!serve(vm, "explain", fn, args, nargs, &s)) return value_error();
  specialization *e = s.entry;
  plan *p = e && e->plan ? e->plan->plan : NULL;
  qn_record *r = record_new(vm);
  qn_list *kernels = list_new(vm, 0), *breaks = list_new(vm, 0), *recompiles = list_new(vm, 0);
  bool ok = r && kernels && breaks && recompiles;
  bool there = p && e->device && plan_ready(vm, p, &e->there, e->device, false);
  int compiled = there ? (int)p->nkernels : 0;
  for (uint32_t i = 0; p && i < p->nkernels && ok; i++) {
    if (!e->device) compiled += atomic_load_explicit(&p->kernels[i].code, memory_order_acquire) != NULL;
    push_item(vm, kernels, kernel_record(vm, p, &p->kernels[i]), &ok);
  }
  if (ok && s.why != BREAK_none) push_item(vm, breaks, reason_record(vm, s.text, line_at(vm, s.at)), &ok);
  const anchor_specializations *list = s.anchor->entries;
  for (uint32_t i = 0; i < list->nrecompiles && ok; i++)
    push_item(vm, recompiles, reason_record(vm, list->recompiles[i].text, line_at(vm, list->recompiles[i].at)), &ok);
  qn_value guards = e ? guard_list(vm, e) : empty_list(vm);
  ok = ok && !value_is_error(guards);
  if (ok) {
    put_field(vm, r, "graphs", value_int(p ? 1 : 0), &ok);
    put_field(vm, r, "kernels", value_obj(TAG_LIST, kernels), &ok);
    put_field(vm, r, "breaks", value_obj(TAG_LIST, breaks), &ok);
    put_field(vm, r, "recompiles", value_obj(TAG_LIST, recompiles), &ok);
    put_field(vm, r, "guards", guards, &ok);
    put_field(vm, r, "compiled", value_int(compiled), &ok);
    put_field(vm, r, "calls", value_int(e ? (int64_t)e->hits : 0), &ok);
    put_field(vm, r, "replays", value_int(e ? (int64_t)e->replays : 0), &ok);
    put_field(vm, r, "eager_is_faster", value_bool(e && specialization_stays_eager(e)), &ok);
    double ms = e ? e->plan_ms + (e->plan ? (double)atomic_load(&e->plan->compile_us) * 1e-3 : 0) : 0;
    put_field(vm, r, "compile_ms", value_float(three_digits(ms)), &ok);
    put_field(vm, r, "peak_bytes", value_int(p ? p->peak_bytes : 0), &ok);
    put_field(vm, r, "eager_peak_bytes", value_int(p ? p->eager_peak_bytes : 0), &ok);
    if (ok) return value_obj(TAG_RECORD, r);
  } else {
    if (kernels) value_release(vm, value_obj(TAG_LIST, kernels));
    if (breaks) value_release(vm, value_obj(TAG_LIST, breaks));
    if (recompiles) value_release(vm, value_obj(TAG_LIST, recompiles));
    if (!value_is_error(guards)) value_release(vm, guards);
  }
  if (r) value_release(vm, value_obj(TAG_RECORD, r));
  return value_error();
}

qn_value raise_no_graph(qn_vm *vm, const served *s, const char *what) {
  return raise_error(vm, E_no_graph, s->at, "%s has no %s for this call: %s",
                     s->anchor->name ? s->anchor->name : "the function", what, s->text);
}

qn_value jit_code_text(qn_vm *vm, qn_value fn, const qn_value *args, int nargs) {
  served s;
  if (!serve(vm, "code", fn, args, nargs, &s)) return value_error();
  if (!s.entry || !s.entry->plan) return raise_no_graph(vm, &s, "code");
  text_buf t;
  text_init(&t, vm);
  plan_source(s.entry->plan->plan, &t);
  return text_take(&t);
}

/* ---- the log ---------------------------------------------------------------------------------------------------------------------- */

void log_write(qn_vm *vm, const text_buf *text) {
  if (!text->failed && text->text) vm_write_later(vm, text->text, text->len);
}

static void log_text(text_buf *out, log_channel c, const char *name, text_buf *t) {
  while (t->len && t->text && t->text[t->len - 1] == '\n') t->len--;
  text_add(t, "", 1);
  if (!t->failed) log_line(out, c, "%s%s", name ? name : "fn", t->text);
  text_free(t);
}

void log_entry(qn_vm *vm, const jit_anchor *a, const specialization *e, text_buf *out) {
  text_buf t;
  if (e->state == ENTRY_BROKEN) {
    if (!vm_logs(vm, LOG_breaks)) return;
    int line;
    const char *name = place_line(vm, e->why_at.source ? e->why_at : a->at, &line);
    log_line(out, LOG_breaks, "%s stays eager for this call shape: %s%s%s (%s:%d)", a->name ? a->name : "fn",
             break_reasons[e->why], e->why_text[0] ? ": " : "", e->why_text, name, line);
    return;
  }
  if (vm_logs(vm, LOG_guards)) {
    text_init(&t, vm);
    text_adds(&t, ":\n");
    specialization_guards(e, &t);
    log_text(out, LOG_guards, a->name, &t);
  }
  if (vm_logs(vm, LOG_graph) && e->graph) {
    text_init(&t, vm);
    text_adds(&t, ", as recorded:\n");
    graph_print(e->graph, &t);
    log_text(out, LOG_graph, a->name, &t);
  }
}

void log_plan(qn_vm *vm, const char *name, const specialization *e, text_buf *out) {
  const plan *p = e->plan->plan;
  text_buf t;
  if (vm_logs(vm, LOG_graph)) {
    text_init(&t, vm);
    text_adds(&t, ", simplified:\n");
    graph_print(p->graph, &t);
    log_text(out, LOG_graph, name, &t);
  }
  if (vm_logs(vm, LOG_fusion)) {
    text_init(&t, vm);
    text_adds(&t, ":\n");
    plan_print(p, &t);
    log_text(out, LOG_fusion, name, &t);
  }
  for (uint32_t i = 0; vm_logs(vm, LOG_kernels) && i < p->nkernels; i++) {
    const plan_kernel *k = &p->kernels[i];
    int lines[KERNEL_LINES_MOST];
    int n = kernel_lines(vm, p, k, lines);
    text_init(&t, vm);
    text_addf(&t, ": %s, %u operations, %lld bytes, %s", kernel_name(k), k->nops,
              (long long)dim_hint(&p->graph->dims, k->bytes),
              n == 1 ? "line"
              : n    ? "lines"
                     : "no line");
    for (int l = 0; l < n; l++) text_addf(&t, l ? ", %d" : " %d", lines[l]);
    text_adds(&t, "\n");
    l_print(k->program, &t);
    log_text(out, LOG_kernels, name, &t);
  }
  if (vm_logs(vm, LOG_code)) {
    text_init(&t, vm);
    text_adds(&t, ":\n");
    plan_source(p, &t);
    log_text(out, LOG_code, name, &t);
  }
}

void log_compiled(qn_vm *vm, const compile_task *c, text_buf *out) {
  const compile_report *r = &c->report;
  const char *name = c->shown[0] ? c->shown : "fn";
  double ms = (double)atomic_load(&c->plan->compile_us) * 1e-3;
  uint32_t n = c->plan->plan->nkernels;
  if (vm_logs(vm, LOG_kernels)) {
    static const char *const how[] = {[COMPILED_NOT] = "stay on the block VM",
                                      [COMPILED_BEFORE] = "were compiled before",
                                      [COMPILED_CACHED] = "loaded from the cache",
                                      [COMPILED_NOW] = "compiled"};
    text_buf t;
    text_init(&t, vm);
    text_decimal(&t, ms, 'f', 1);
    text_add(&t, "", 1);
    if (!t.failed)
      log_line(out, LOG_kernels, "%s: %u kernel%s %s, %s ms", name, n, n == 1 ? "" : "s", how[r->how], t.text);
    text_free(&t);
  }
  if (vm_logs(vm, LOG_cache) && r->looked) {
    if (r->how == COMPILED_CACHED)
      log_line(out, LOG_cache, "%s: %s found, %zu bytes", name, r->key, r->bytes);
    else
      log_line(out, LOG_cache, "%s: %s not found; %s", name, r->key,
               r->stored ? "compiled and stored" : "nothing to store");
  }
}

void log_copy(qn_vm *vm, const char *name, const specialization *e, uint32_t input) {
  text_buf t;
  text_init(&t, vm);
  pattern_input_name(&e->pattern, input, &t);
  text_add(&t, "", 1);
  if (!t.failed)
    vm_logf(vm, LOG_copies, "%s: %s does not lie contiguously and is copied before each call", name ? name : "fn",
            t.text);
  text_free(&t);
}
