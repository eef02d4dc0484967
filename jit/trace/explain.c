/* explain and code (and graph, in graphs.c): what the compiler made of a call.
 *
 * All three make the call and read the specialization that served it. They do so on this thread, whatever --jit says, and wait for the
 * plan, so that their answers do not depend on timing. It is the one place where a program waits for its compiler: because it asks.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "jit/run/compile.h"
#include "jit/run/plan_run.h"
#include "jit/trace/anchors.h"
#include "jit/trace/breaks.h"
#include "jit/trace/calls.h"
#include "jit/trace/jobs.h"
#include "jit/trace/node_records.h"
#include "jit/trace/pattern.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/report.h"
#include "jit/trace/specialization.h"
#include "jit/trace/trials.h"

/* ---- building records ---------------------------------------------------------------------------------------------------------- */

qn_value text_value(qn_vm *vm, const char *s) {
  qn_str *t = str_new(vm, s, strlen(s));
  return t ? value_obj(TAG_STR, t) : value_error();
}

qn_value fields_record(qn_vm *vm, const field *fields, size_t n) {
  qn_record *r = record_new(vm);
  bool ok = r != NULL;
  for (size_t i = 0; i < n; i++) {
    qn_value v = fields[i].v;
    qn_str *name = ok && !value_is_error(v) ? str_intern(vm, fields[i].name, strlen(fields[i].name)) : NULL;
    ok = name && record_set(vm, r, name, v);
    if (name)
      value_release(vm, value_obj(TAG_STR, name));
    else
      value_release(vm, v);
  }
  if (ok) return value_obj(TAG_RECORD, r);
  if (r) value_release(vm, value_obj(TAG_RECORD, r));
  return value_error();
}

qn_value list_of_items(qn_vm *vm, uint32_t n, qn_value (*item)(qn_vm *vm, const void *ctx, uint32_t i),
                       const void *ctx) {
  qn_list *l = list_new(vm, n);
  for (uint32_t i = 0; l && i < n; i++) {
    qn_value v = item(vm, ctx, i);
    if (value_is_error(v)) return value_fail(vm, value_obj(TAG_LIST, l));
    l->items[i] = v;
  }
  return l ? value_obj(TAG_LIST, l) : value_error();
}

static qn_value int_item(qn_vm *vm, const void *ctx, uint32_t i) {
  (void)vm;
  return value_int(((const int64_t *)ctx)[i]);
}

qn_value list_of_ints(qn_vm *vm, const int64_t *d, uint32_t n) { return list_of_items(vm, n, int_item, d); }

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

/* ---- reading a specialization ------------------------------------------------------------------------------------------------------------- */

static qn_value run_builtin(void *ctx) {
  const own_site *c = ctx;
  return c->vm->hooks.call(c->vm, c->site.fn, c->site.args, c->site.nargs, value_nil());
}

/* Calls a builtin at an anchor. (Ordinary calls of builtins ask no anchor.) */
static qn_value call_builtin(qn_vm *vm, jit_anchor *a, qn_value fn, const qn_value *args, int nargs) {
  own_site c;
  qn_value *mark;
  if (!own_site_begin(&c, vm, fn, args, nargs, value_nil(), SPAN_NONE, &mark)) return value_error();
  c.site.anchor = a;
  c.site.run = run_builtin;
  c.site.nargs = nargs; /* without the keywords, which are nil */
  qn_value result = rec_call(vm, &c.site);
  vm_pop_to(vm, mark);
  return result;
}

/* What explain, code and graph put back after the call: asking must change neither what the program computes nor when its functions are
 * recorded. */
typedef struct asking {
  qn_vm *vm; /* NULL once everything has been put back */
  jit_anchor *anchor;
  uint8_t state;
  int32_t countdown;
  bool sync_once;
  random_state random;
  const void *about;
} asking;

static void asking_begin(qn_vm *vm, jit_anchor *a, asking *k) {
  *k = (asking){vm, a, a->state, a->countdown, vm->asked.sync_once, random_kept(vm), vm->asked.about};
  a->state = ANCHOR_ACTIVE;
  a->countdown = 0;
  vm->asked.sync_once = true;
  vm->asked.about = a;
}

static void asking_end(asking *k) {
  qn_vm *vm = k->vm;
  if (!vm) return;
  k->vm = NULL;
  random_restore(vm, k->random);
  vm->asked.sync_once = k->sync_once;
  vm->asked.about = k->about;
  if (k->state == ANCHOR_ACTIVE) return;
  k->anchor->state = k->state;
  k->anchor->countdown = k->countdown;
}
#define ASKING(name) asking name __attribute__((cleanup(asking_end))) = {.vm = NULL}

bool plan_wait(qn_vm *vm, void *const *served) {
  for (const specialization *e; (e = *served) && e->state == SPEC_COMPILING && e->job;) {
    struct timespec pause = {0, 200000};
    nanosleep(&pause, NULL);
    if (vm_poll(vm)) return false;
    jit_drain(vm);
  }
  return true;
}

/* The call has failed. Is it one without arguments of a function that needs some, which asks for the call that was served last? Then the error is
 * cleared. */
static bool asks_last(qn_vm *vm, const jit_anchor *a, int nargs) {
  const anchor_specializations *list = a->entries;
  if (nargs || !list->first || !error_catchable(vm) || vm->error->id != E_arity || vm->error->at.source) return false;
  error_clear(vm);
  return true;
}

bool serve(qn_vm *vm, const char *what, qn_value fn, const qn_value *args, int nargs, served *s) {
  jit_anchor *a = value_is(fn, TAG_FN) ? anchor_of_value(vm, fn) : NULL;
  if (!a) {
    if (error_pending(vm)) return false;
    return raise_false(vm, E_type, "%s takes a function within at most eight transforms, not %s", what,
                       value_is(fn, TAG_FN) ? "one within more" : value_kind_name(fn));
  }
  if (!anchor_specializations_of(vm, a)) return false;
  if (!rec_effect(vm, what)) return false;
  jit_drain(vm);
  ASKING(was);
  asking_begin(vm, a, &was);
  vm->asked.served = NULL;
  vm->asked.numbers = false;
  /* The reason that stands if the call never reaches rec_call. */
  vm->asked.refused = op_deferred(vm) ? BREAK_nested : BREAK_no_arguments;
  bool direct = value_fn(fn)->head.flags == FN_BUILTIN && !op_deferred(vm);
  qn_value result = direct ? call_builtin(vm, a, fn, args, nargs) : vm->hooks.call(vm, fn, args, nargs, value_nil());
  asking_end(&was);
  const bool last = value_is_error(result) && asks_last(vm, a, nargs);
  if (last) vm->asked.served = ((anchor_specializations *)a->entries)->first, result = value_nil();
  if (value_is_error(result)) return false;
  break_reason refused = (break_reason)vm->asked.refused;
  if (!last) ((anchor_specializations *)a->entries)->numbers = vm->asked.numbers;
  value_release(vm, result);
  if (!plan_wait(vm, &vm->asked.served)) return false;
  specialization *e = vm->asked.served;
  *s = (served){.fn = fn, .anchor = a, .entry = e, .why = !e ? refused : e->state == SPEC_BROKEN ? e->why : BREAK_none};
  if (s->why == BREAK_memory) return fail_memory(vm);
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

int kernel_lines(qn_vm *vm, const plan_kernel *k, int lines[KERNEL_LINES_MOST]) {
  int n = 0;
  for (uint32_t i = 0; i < k->nops; i++) n = line_add(lines, n, line_at(vm, node_place(vm, k->graph, k->nodes[i])));
  return n;
}

const char *kernel_name(const plan_kernel *k) { return k->program->name ? k->program->name : "kernel"; }

static qn_value kernel_item(qn_vm *vm, const void *ctx, uint32_t i) {
  const plan *p = ctx;
  const plan_kernel *k = &p->kernels[i];
  int lines[KERNEL_LINES_MOST], n = kernel_lines(vm, k, lines);
  int64_t wide[KERNEL_LINES_MOST];
  for (int l = 0; l < n; l++) wide[l] = lines[l];
  return FIELDS_RECORD(vm, {"name", text_value(vm, kernel_name(k))}, {"lines", list_of_ints(vm, wide, (uint32_t)n)},
                       {"ops", value_int(k->nops)}, {"bytes", value_int(k->bytes)},
                       {"static", value_bool(k->statics == STATICS_KNOWN)});
}

static qn_value reason_record(qn_vm *vm, const char *reason, span at) {
  return FIELDS_RECORD(vm, {"reason", text_value(vm, reason)}, {"line", value_int(line_at(vm, at))});
}

static qn_value tap_item(qn_vm *vm, const void *ctx, uint32_t i) {
  const tap *x = &((const tap_list *)ctx)->list[i];
  return FIELDS_RECORD(vm, {"name", text_value(vm, x->def->name)}, {"line", value_int(line_at(vm, x->at))});
}

static qn_value break_item(qn_vm *vm, const void *ctx, uint32_t i) {
  const served *s = ctx;
  (void)i;
  return reason_record(vm, s->text, s->at);
}

static qn_value pattern_item(qn_vm *vm, const void *ctx, uint32_t i) {
  const rewrite_note *x = &((const rewrite_notes *)ctx)->list[i];
  return FIELDS_RECORD(vm, {"name", text_value(vm, x->name)}, {"line", value_int(line_at(vm, x->at))},
                       {"reason", x->applied ? value_nil() : text_value(vm, x->why)});
}

static qn_value recompile_item(qn_vm *vm, const void *ctx, uint32_t i) {
  const struct miss *m = miss_of(ctx, i);
  return reason_record(vm, m->text, m->at);
}

/* A list of the lines of a text. Owned, or the error value. */
static qn_value line_list(qn_vm *vm, const text_buf *t) {
  if (t->failed) return raise_memory(vm);
  qn_list *l = list_new(vm, report_lines(t));
  const char *at = t->text;
  for (uint32_t i = 0; l && i < l->len; i++) {
    const char *end = memchr(at, '\n', t->len);
    qn_str *s = str_new(vm, at, (size_t)(end - at));
    if (!s) return value_fail(vm, value_obj(TAG_LIST, l));
    l->items[i] = value_obj(TAG_STR, s);
    at = end + 1;
  }
  return l ? value_obj(TAG_LIST, l) : value_error();
}

static qn_value guard_list(qn_vm *vm, const specialization *e) {
  text_buf t TEXT_OWNED = {.vm = vm};
  if (e) specialization_guards(e, &t);
  return line_list(vm, &t);
}

static qn_value limit_list(qn_vm *vm, const anchor_specializations *a) {
  text_buf t TEXT_OWNED = {.vm = vm};
  report_limits(vm, &t, a);
  return line_list(vm, &t);
}

/* A time rounded to three significant digits. */
static double three_digits(double x) {
  double unit = 1, parts = 1;
  while (x >= 1000 * unit && unit < 1e12) unit *= 10;
  while (x * parts < 100 && parts < 1e6) parts *= 10;
  return round(x / unit * parts) * unit / parts;
}

static qn_value trial_item(qn_vm *vm, const void *ctx, uint32_t i) {
  const trial_result *x = (const trial_result *)ctx + i;
  bool timed = x->least[1] > 0;
  return FIELDS_RECORD(vm, {"plan", text_value(vm, x->plan)}, {"end", text_value(vm, trial_ends[x->end])},
                       {"us", timed ? value_float(three_digits((double)x->least[1] * 1e-3)) : value_nil()},
                       {"against_us", timed ? value_float(three_digits((double)x->least[0] * 1e-3)) : value_nil()});
}

/* How many kernels of the plan have compiled code. */
static uint32_t kernels_compiled(qn_vm *vm, specialization *e) {
  plan *p = e->plan->plan;
  uint32_t compiled = 0;
  if (e->device) return plan_ready(vm, p, &e->there, e->device, false) ? p->nkernels : 0;
  for (uint32_t i = 0; i < p->nkernels; i++)
    compiled += atomic_load_explicit(&p->kernels[i].code, memory_order_acquire) != NULL;
  return compiled;
}

int64_t served_held_bytes(const specialization *e) {
  const plan *p = e && e->plan ? e->plan->plan : NULL;
  return !p ? 0 : p->held_bytes ? p->held_bytes - 1 : e->kept_bytes;
}

qn_value jit_explain(qn_vm *vm, qn_value fn, const qn_value *args, int nargs) {
  served s;
  if (!serve(vm, "explain", fn, args, nargs, &s)) return value_error();
  specialization *e = s.entry;
  plan *p = e && e->plan ? e->plan->plan : NULL;
  const anchor_specializations *list = s.anchor->entries;
  double ms = e ? e->plan_ms + (e->plan ? (double)atomic_load(&e->plan->compile_us) * 1e-3 : 0) : 0;
  uint32_t compiled = p ? kernels_compiled(vm, e) : 0;
  bool timed = e && race_timed(&e->race);
  const int64_t held = served_held_bytes(e);
  uint32_t ntrials;
  const trial_result *trials = trial_results(e, &ntrials);
  qn_value result = FIELDS_RECORD(
      vm, {"graphs", value_int(p != NULL)}, {"kernels", list_of_items(vm, p ? p->nkernels : 0, kernel_item, p)},
      {"steps", step_records(vm, &s)}, {"breaks", list_of_items(vm, s.why != BREAK_none, break_item, &s)},
      {"effects", list_of_items(vm, p ? e->taps.n : 0, tap_item, p ? &e->taps : NULL)}, {"exits", exit_records(vm, e)},
      {"patterns", list_of_items(vm, e ? e->rewritten.n : 0, pattern_item, e ? &e->rewritten : NULL)},
      {"recompiles", list_of_items(vm, misses_of(&s), recompile_item, &s)}, {"guards", guard_list(vm, e)},
      {"limits", limit_list(vm, list)}, {"compiled", value_int(compiled)},
      {"calls", value_int(e ? (int64_t)e->hits : 0)}, {"replays", value_int(e ? (int64_t)e->replays : 0)},
      {"reentries", value_int(e ? (int64_t)e->reentries : 0)},
      {"static_calls", value_int((int64_t)trial_static_calls(e))},
      {"compiled_us", timed ? value_float(three_digits((double)e->race.least[0] * 1e-3)) : value_nil()},
      {"eager_us", timed ? value_float(three_digits((double)e->race.least[1] * 1e-3)) : value_nil()},
      {"trials", list_of_items(vm, ntrials, trial_item, trials)},
      {"eager_is_faster", value_bool(e && specialization_stays_eager(e))},
      {"compile_ms", value_float(three_digits(ms))}, {"peak_bytes", value_int(p ? p->peak_bytes + held : 0)},
      {"eager_peak_bytes", value_int(p ? p->eager_peak_bytes + held : 0)}, {"loop_bytes", value_int(held)},
      {"graph", e && e->graph ? graph_record(vm, e->graph) : value_nil()},
      {"report", explain_report(vm, &s, compiled)});
  if (!value_is_error(result)) record_make_report(value_record(result));
  return result;
}

qn_value raise_no_graph(qn_vm *vm, const served *s, const char *what) {
  return raise_error(vm, E_no_graph, s->at, "%s has no %s for this call: %s",
                     s->anchor->name ? s->anchor->name : "the function", what, s->text);
}

qn_value jit_code_text(qn_vm *vm, qn_value fn, const qn_value *args, int nargs) {
  served s;
  if (!serve(vm, "code", fn, args, nargs, &s)) return value_error();
  if (!s.entry || !s.entry->plan) return raise_no_graph(vm, &s, "code");
  text_buf t = {.vm = vm};
  plan_source(s.entry->plan->plan, &t);
  return text_take(&t);
}

/* ---- the log ---------------------------------------------------------------------------------------------------------------------- */

void log_write(qn_vm *vm, const text_buf *text) {
  if (!text->failed && text->text) vm_write_later(vm, text->text, text->len);
}

/* Appends a part of the log, which `print` makes from `what`, under a title such as "f, as recorded:". Nothing if the channel is off. */
static void log_part(qn_vm *vm, text_buf *out, log_channel c, const char *name, const char *title,
                     void (*print)(const void *what, text_buf *t), const void *what) {
  if (!vm_logs(vm, c)) return;
  text_buf t TEXT_OWNED = {.vm = vm};
  print(what, &t);
  while (t.len && t.text && t.text[t.len - 1] == '\n') t.len--;
  text_add(&t, "", 1);
  if (!t.failed) log_line(out, c, "%s%s%s%s", name ? name : "fn", title, t.text[0] ? "\n" : "", t.text);
}

static void print_guards(const void *what, text_buf *t) { specialization_guards(what, t); }
static void print_graph(const void *what, text_buf *t) { graph_print(what, t); }
static void print_plan(const void *what, text_buf *t) { plan_print(what, t); }
static void print_source(const void *what, text_buf *t) { plan_source(what, t); }
static void print_kernel(const void *what, text_buf *t) { l_print(what, t); }

void log_specialization(qn_vm *vm, const jit_anchor *a, const specialization *e, text_buf *out) {
  if (e->state != SPEC_BROKEN) {
    log_part(vm, out, LOG_guards, a->name, ":", print_guards, e);
    if (e->graph) log_part(vm, out, LOG_graph, a->name, ", as recorded:", print_graph, e->graph);
  } else if (vm_logs(vm, LOG_breaks)) {
    int line;
    const char *name = place_line(vm, e->why_at.source ? e->why_at : a->at, &line);
    log_line(out, LOG_breaks, "%s stays eager for this call shape: %s%s%s (%s:%d)", a->name ? a->name : "fn",
             break_reasons[e->why], e->why_text[0] ? ": " : "", e->why_text, name, line);
  }
}

void log_plan(qn_vm *vm, const char *name, const specialization *e, text_buf *out) {
  const plan *p = e->plan->plan;
  log_part(vm, out, LOG_graph, name, ", simplified:", print_graph, p->graph);
  log_part(vm, out, LOG_fusion, name, ":", print_plan, p);
  for (uint32_t i = 0; vm_logs(vm, LOG_kernels) && i < p->nkernels; i++) {
    const plan_kernel *k = &p->kernels[i];
    int lines[KERNEL_LINES_MOST];
    int n = kernel_lines(vm, k, lines);
    text_buf t TEXT_OWNED = {.vm = vm};
    text_addf(&t, ": %s, %u operations, %lld bytes, %s", kernel_name(k), k->nops, (long long)k->bytes,
              n == 1 ? "line"
              : n    ? "lines"
                     : "no line");
    for (int l = 0; l < n; l++) text_addf(&t, l ? ", %d" : " %d", lines[l]);
    text_add(&t, "", 1);
    if (!t.failed) log_part(vm, out, LOG_kernels, name, t.text, print_kernel, k->program);
  }
  log_part(vm, out, LOG_code, name, ":", print_source, p);
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
    text_buf t = {.vm = vm};
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
  text_buf t = {.vm = vm};
  pattern_input_name(&e->pattern, input, &t);
  text_add(&t, "", 1);
  if (!t.failed)
    vm_logf(vm, LOG_copies, "%s: %s does not lie contiguously and is copied before each call", name ? name : "fn",
            t.text);
  text_free(&t);
}
