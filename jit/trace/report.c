/* What the compiler did with a program, as text; `quern explain --all FILE` prints it when the script has ended.
 *
 * Each function that was recorded has a paragraph: its compiled call shapes with their kernels, why other call shapes stay eager, and why
 * calls were recorded again. Functions that were never recorded are named at the end. The short form, which `quern explain FILE` prints, is
 * in summary.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/trace/anchors.h"
#include "jit/trace/breaks.h"
#include "jit/trace/rec.h"
#include "jit/trace/report.h"
#include "jit/trace/specialization.h"

/* Waits until all plans are made, but not until their kernels are compiled. False with an error raised if it was interrupted. */
static bool plans_made(qn_vm *vm) {
  for (anchor_specializations *a = jit_of(vm)->anchors; a; a = a->next)
    for (specialization *e = a->first; e; e = e->next)
      if (!plan_wait(vm, &(void *){e})) return false;
  return true;
}

uint32_t misses_of(const served *s) {
  const anchor_specializations *list = s->anchor->entries;
  uint64_t asked = jit_asked(s->fn);
  uint32_t n = 0;
  for (uint32_t k = 0; k < list->nrecompiles; k++) n += list->recompiles[k].asked == asked;
  return n;
}

const struct miss *miss_of(const served *s, uint32_t i) {
  const struct miss *m = ((const anchor_specializations *)s->anchor->entries)->recompiles;
  uint64_t asked = jit_asked(s->fn);
  while (m->asked != asked || i--) m++;
  return m;
}

static void add_place(qn_vm *vm, text_buf *t, span at) {
  int line;
  const char *file = place_line(vm, at, &line);
  if (line) text_addf(t, " (%s:%d)", file, line);
}

void report_place(qn_vm *vm, text_buf *t, const char *file, span at) {
  int line;
  const char *name = place_line(vm, at, &line);
  if (!line)
    text_adds(t, "nowhere");
  else if (file && strcmp(name, file) == 0)
    text_addf(t, "line %d", line);
  else
    text_addf(t, "%s:%d", name, line);
}

void report_name(qn_vm *vm, text_buf *t, const jit_anchor *a) {
  const chain_anchor *c = jit_of(vm)->chains;
  while (c && &c->anchor != a) c = c->next;
  uint32_t depth = c ? c->depth : 0;
  for (uint32_t i = 0; i < depth; i++) text_addf(t, "%s(", ((const transform_def *)c->chain[i])->name);
  text_adds(t, a->name ? a->name : "fn");
  for (uint32_t i = 0; i < depth; i++) text_adds(t, ")");
}

void report_limits(qn_vm *vm, text_buf *t, const anchor_specializations *a) {
  long long entries = (long long)vm->tune[TUNE_jit_entries], misses = (long long)vm->tune[TUNE_jit_misses];
  if (a->full && a->count >= (uint64_t)entries)
    text_addf(t, "%lld call shapes are compiled, as many as may be (jit.entries): others stay eager\n", entries);
  else if (a->full)
    text_addf(t, "recorded again %lld times, as often as may be (jit.misses): other call shapes stay eager\n", misses);
  if (a->many_ways)
    text_addf(t, "arms that do not agree make more than %lld ways (jit.ways)\n", (long long)vm->tune[TUNE_jit_ways]);
  if (a->numbers && a->first && a->first->plan && vm->tune[TUNE_jit_turns])
    text_addf(t,
              "called without arrays it stays with the interpreter until a loop in it makes arrays in %lld turns "
              "(jit.turns)\n",
              (long long)vm->tune[TUNE_jit_turns]);
  else if (a->numbers && a->first && a->first->plan)
    text_adds(t, "called without arrays it stays with the interpreter (jit.turns=0)\n");
  if (a->gave_up) text_addf(t, "not recorded any more, calls stay eager: %s\n", break_reasons[a->gave_up]);
}

const char *report_plural(uint64_t n) { return n == 1 ? "" : "s"; }

const char *report_ordinal(int64_t n) {
  static const char *const endings[] = {"th", "st", "nd", "rd"};
  return n % 10 > 3 || n / 10 % 10 == 1 ? "th" : endings[n % 10];
}

uint32_t report_lines(const text_buf *t) {
  uint32_t n = 0;
  for (size_t i = 0; i < t->len; i++) n += t->text[i] == '\n';
  return n;
}

/* Appends the lines of a text, each behind `indent`. */
static void add_indented(text_buf *t, const text_buf *lines, const char *indent) {
  for (size_t i = 0, end; i < lines->len; i = end + 1) {
    for (end = i; end < lines->len && lines->text[end] != '\n'; end++) {}
    text_adds(t, indent);
    text_add(t, lines->text + i, end - i);
    text_adds(t, "\n");
  }
}

/* ---- calls ------------------------------------------------------------------------------------------------------------------ */

/* A line of numbers of calls, "120 compiled, 3 eager: ...", which goes on in further lines when it is full; and their sum. */
typedef struct call_sum {
  text_buf *out;
  size_t from; /* where the present line begins in `out` */
  uint64_t total;
} call_sum;

enum { CALLS_COLUMNS = 8 /* width of the column with the sums */, CALLERS_MOST = 3 };

static void sum_add(call_sum *s, uint64_t calls, const char *text, const char *more) {
  if (!calls) return;
  char number[24];
  snprintf(number, sizeof number, "%llu", (unsigned long long)calls);
  size_t wide = strlen(number) + strlen(text) + strlen(more) + 4; /* ", ", a blank and the comma that may follow */
  if (s->total && !s->out->failed) {
    text_adds(s->out, ",");
    if (utf8_columns(s->out->text + s->from, s->out->len - s->from) + (int64_t)wide > SUMMARY_COLUMNS) {
      text_adds(s->out, "\n");
      s->from = s->out->len;
      text_addf(s->out, "%*s ", CALLS_COLUMNS, "");
    }
  }
  text_addf(s->out, " %s %s%s", number, text, more);
  s->total += calls;
}

/* How many calls of the function with this id were made inside recordings and graphs of `outer`. */
static uint64_t calls_within(const anchor_specializations *outer, uint32_t id) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < outer->parts.n; i++)
    if (outer->parts.list[i].id == id) n += outer->parts.list[i].calls;
  for (const specialization *e = outer->first; e; e = e->next)
    for (uint32_t i = 0; i < e->parts.n; i++)
      if (e->parts.list[i].id == id) n += e->parts.list[i].calls * e->replays;
  return n;
}

/* Adds the calls of a function that were made inside graphs of others, and names the callers with most of them. */
static void add_within(call_sum *s, qn_vm *vm, const anchor_specializations *a) {
  const anchor_specializations *said[CALLERS_MOST];
  uint64_t left = a->calls[CALL_part];
  for (const anchor_specializations *o = jit_of(vm)->anchors; o; o = o->next) left += calls_within(o, a->id);
  for (int n = 0; n < CALLERS_MOST && left; n++) {
    const anchor_specializations *best = NULL;
    uint64_t most = 0;
    for (const anchor_specializations *o = jit_of(vm)->anchors; o; o = o->next) {
      uint64_t calls = calls_within(o, a->id);
      bool before = false;
      for (int i = 0; i < n; i++) before |= said[i] == o;
      if (before || calls <= most) continue;
      best = o;
      most = calls;
    }
    if (!best) break;
    said[n] = best;
    left -= most;
    text_buf name = {.vm = vm};
    report_name(vm, &name, best->anchor);
    text_add(&name, "", 1);
    if (best == a)
      sum_add(s, most, "in graphs of its own calls", "");
    else
      sum_add(s, most, "in graphs of ", name.failed ? "a function" : name.text);
    text_free(&name);
  }
  sum_add(s, left, call_fates[CALL_part], "");
}

/* Adds all calls of a function, each in one item. */
static void add_sum(call_sum *s, qn_vm *vm, const anchor_specializations *a) {
  uint64_t calls[CALL_FATES], refused[BREAK_COUNT];
  memcpy(calls, a->calls, sizeof calls);
  memcpy(refused, a->refused, sizeof refused);
  for (const specialization *e = a->first; e; e = e->next) {
    uint64_t left = specialization_calls(e, calls);
    if (e->state == SPEC_BROKEN)
      refused[e->why] += left;
    else
      calls[CALL_slower] += left;
  }
  const uint64_t *passed = a->anchor->passed;
  calls[CALL_early] += passed[ANCHOR_COLD];
  calls[CALL_resting] += passed[ANCHOR_RESTING];
  calls[CALL_within] += passed[ANCHOR_NEVER];
  refused[a->gave_up] += passed[ANCHOR_EAGER];
  if (!a->first && a->quiet) {
    refused[BREAK_no_arrays] += calls[CALL_early];
    calls[CALL_early] = 0;
  }
  bool off = vm->config.jit == QN_JIT_OFF;
  for (int i = 0; i < CALL_FATES; i++)
    if (i == CALL_part)
      add_within(s, vm, a);
    else
      sum_add(s, calls[i], i == CALL_early && off ? "with --jit off" : call_fates[i], "");
  for (int i = 0; i < BREAK_COUNT; i++) sum_add(s, refused[i], "eager: ", break_reasons[i]);
}

typedef struct called {
  uint64_t calls;
  uint32_t number;  /* which function of the list */
  size_t from, len; /* where its lines stand in the whole text */
} called;

static int by_calls(const void *a, const void *b) {
  const called *x = a, *y = b;
  if (x->calls != y->calls) return x->calls > y->calls ? -1 : 1;
  return x->number < y->number ? -1 : x->number > y->number;
}

bool report_calls(qn_vm *vm, const char *file, const anchor_specializations *const *list, uint32_t n, uint32_t most,
                  text_buf *out) {
  size_t bytes = (n + 1) * sizeof(called);
  called *sums = mem_alloc(vm, bytes);
  if (!sums) return false;
  text_buf all = {.vm = vm};
  uint32_t count = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (file && place_in_library(vm, list[i]->anchor->at)) continue;
    called *c = &sums[count];
    *c = (called){.number = i, .from = all.len};
    text_addf(&all, "%*s ", CALLS_COLUMNS, "");
    report_name(vm, &all, list[i]->anchor);
    text_adds(&all, " (");
    report_place(vm, &all, file, list[i]->anchor->at);
    text_adds(&all, "):");
    call_sum s = {.out = &all, .from = c->from};
    add_sum(&s, vm, list[i]);
    text_adds(&all, "\n");
    c->calls = s.total;
    c->len = all.len - c->from;
    count += s.total > 0;
  }
  qsort(sums, count, sizeof *sums, by_calls);
  uint32_t used = 1, said = 0;
  if (count) text_adds(out, "calls:\n");
  for (; said < count && !all.failed; said++) {
    uint32_t lines = 0;
    for (size_t k = 0; k < sums[said].len; k++) lines += all.text[sums[said].from + k] == '\n';
    if (used + lines > most - (said + 1 < count)) break;
    used += lines;
    text_addf(out, "%*llu", CALLS_COLUMNS, (unsigned long long)sums[said].calls);
    text_add(out, all.text + sums[said].from + CALLS_COLUMNS, sums[said].len - CALLS_COLUMNS);
  }
  if (said < count) text_addf(out, "  and those of %u more functions\n", count - said);
  text_free(&all);
  mem_free(vm, sums, bytes);
  return true;
}

/* ---- all of it ---------------------------------------------------------------------------------------------------------------- */

static void add_specialization(qn_vm *vm, text_buf *t, const specialization *e) {
  const plan *p = e->plan && e->plan->plan ? e->plan->plan : NULL;
  if (!p) {
    text_addf(t, "  stays eager: %s%s%s", break_reasons[e->why], e->why_text[0] ? ": " : "", e->why_text);
    add_place(vm, t, e->why_at);
    text_addf(t, ", %llu call%s\n", (unsigned long long)e->hits, report_plural(e->hits));
  } else {
    uint64_t calls = e->replays + e->verified;
    text_addf(t, "  one graph, %u kernel%s, %llu call%s", p->nkernels, report_plural(p->nkernels),
              (unsigned long long)calls, report_plural(calls));
    if (e->hits > calls) text_addf(t, ", %llu more eager", (unsigned long long)(e->hits - calls));
    text_addf(t, "%s:\n", specialization_stays_eager(e) ? "; stays eager, which is faster" : "");
  }
  text_buf guards = {.vm = vm};
  specialization_guards(e, &guards);
  if (!guards.failed) add_indented(t, &guards, p ? "    where " : "    for ");
  text_free(&guards);
  for (uint32_t i = 0; p && i < p->nkernels; i++) {
    const plan_kernel *k = &p->kernels[i];
    int lines[KERNEL_LINES_MOST];
    int n = kernel_lines(vm, k, lines);
    text_addf(t, "    %s: %u operation%s, %lld bytes", kernel_name(k), k->nops, report_plural(k->nops),
              (long long)dim_hint(&k->graph->dims, k->bytes));
    for (int l = 0; l < n; l++) text_addf(t, "%s%d", l ? ", " : n == 1 ? ", line " : ", lines ", lines[l]);
    text_adds(t, "\n");
  }
}

static void add_function(qn_vm *vm, text_buf *t, const anchor_specializations *a) {
  report_name(vm, t, a->anchor);
  add_place(vm, t, a->anchor->at);
  text_adds(t, "\n");
  for (const specialization *e = a->first; e; e = e->next) add_specialization(vm, t, e);
  for (uint32_t i = 0; i < a->nrecompiles; i++) {
    text_addf(t, "  recorded again: %s", a->recompiles[i].text);
    add_place(vm, t, a->recompiles[i].at);
    text_adds(t, "\n");
  }
  if (a->rests) text_adds(t, "  its calls are short and stay eager, which is faster\n");
  text_buf limits TEXT_OWNED = {.vm = vm};
  report_limits(vm, &limits, a);
  add_indented(t, &limits, "  ");
}

static bool add_all(qn_vm *vm, text_buf *out, const anchor_specializations *const *list, uint32_t n) {
  bool recorded = false, named = false;
  for (uint32_t i = 0; i < n; i++) {
    if (!list[i]->first) continue;
    if (recorded) text_adds(out, "\n");
    recorded = true;
    add_function(vm, out, list[i]);
  }
  static const char *const titles[] = {
      "compute nothing with arrays: ", "recorded calls ended in errors: ", "not recorded: "};
  for (int title = 0; title < 3; title++) {
    bool listed = false;
    for (uint32_t i = 0; i < n; i++) {
      if (list[i]->first || !list[i]->begun) continue;
      if (title != (list[i]->quiet ? 0 : list[i]->calls[CALL_recorded] ? 1 : 2)) continue;
      if (listed)
        text_adds(out, ", ");
      else
        text_addf(out, "%s%s", recorded && !named ? "\n" : "", titles[title]);
      listed = named = true;
      report_name(vm, out, list[i]->anchor);
      add_place(vm, out, list[i]->anchor->at);
    }
    if (listed) text_adds(out, "\n");
  }
  if (!recorded)
    text_addf(out,
              "Nothing was compiled. A function is recorded when it is called with arrays for the %lld%s time; --set "
              "jit.hot=1 records the first call.\n",
              (long long)vm->tune[TUNE_jit_hot], report_ordinal(vm->tune[TUNE_jit_hot]));
  text_adds(out, n ? "\n" : "");
  return report_calls(vm, NULL, list, n, UINT32_MAX, out);
}

bool jit_report(qn_vm *vm, const char *file, bool all, text_buf *out) {
  if (!plans_made(vm)) return false;
  uint32_t n = 0;
  for (const anchor_specializations *a = jit_of(vm)->anchors; a; a = a->next) n++;
  /* In the order of the first calls; the list of the VM has the latest first. */
  const anchor_specializations **list = mem_alloc(vm, (n + 1) * sizeof *list);
  if (!list) return false;
  uint32_t i = n;
  for (const anchor_specializations *a = jit_of(vm)->anchors; a; a = a->next) list[--i] = a;
  bool good = true;
  if (all) {
    good = add_all(vm, out, list, n);
  } else {
    text_buf full = {.vm = vm};
    good = add_all(vm, &full, list, n);
    uint32_t lines = report_lines(&full);
    text_free(&full);
    good = good && report_summary(vm, file, list, n, lines, out);
  }
  mem_free(vm, list, (n + 1) * sizeof *list);
  return good;
}
