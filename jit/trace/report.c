/* What the compiler did with a program, as text: `quern explain --all FILE` prints it when the script has ended.
 *
 * One paragraph a function that was recorded: its compiled call shapes with their kernels, why other shapes stay eager, and
 * what made it be recorded again. Functions that were never recorded are named at the end. What `quern explain FILE` prints of
 * this is summary.c's.
 */
#include <time.h>

#include "jit/trace/trace.h"

/* Plans that are being made are waited for; their kernels' compilers are not. False: interrupted. */
static bool plans_made(qn_vm *vm) {
  for (anchor_entries *a = jit_of(vm)->anchors; a; a = a->next)
    for (entry *e = a->first; e; e = e->next)
      while (e->state == ENTRY_COMPILING && e->job) {
        struct timespec pause = {0, 200000};
        nanosleep(&pause, NULL);
        if (vm_poll(vm)) return false;
        jit_drain(vm);
      }
  return true;
}

static void add_place(qn_vm *vm, text_buf *t, span at) {
  int line;
  const char *file = place_line(vm, at, &line);
  if (line) text_addf(t, " (%s:%d)", file, line);
}

void report_name(qn_vm *vm, text_buf *t, const jit_anchor *a) {
  const chain_anchor *c = jit_of(vm)->chains;
  while (c && &c->anchor != a) c = c->next;
  uint32_t depth = c ? c->depth : 0;
  for (uint32_t i = 0; i < depth; i++) text_addf(t, "%s(", ((const transform_def *)c->chain[i])->name);
  text_adds(t, a->name ? a->name : "fn");
  for (uint32_t i = 0; i < depth; i++) text_adds(t, ")");
}

const char *report_plural(uint64_t n) { return n == 1 ? "" : "s"; }

const char *report_ordinal(int64_t n) {
  static const char *const endings[] = {"th", "st", "nd", "rd"};
  return n % 10 > 3 || n / 10 % 10 == 1 ? "th" : endings[n % 10];
}

/* Lines of a text, each with an indentation. */
static void add_indented(text_buf *t, const text_buf *lines, const char *indent) {
  for (size_t i = 0, end; i < lines->len; i = end + 1) {
    for (end = i; end < lines->len && lines->text[end] != '\n'; end++) {}
    text_adds(t, indent);
    text_add(t, lines->text + i, end - i);
    text_adds(t, "\n");
  }
}

static void add_entry(qn_vm *vm, text_buf *t, const entry *e) {
  const plan *p = e->plan && e->plan->plan ? e->plan->plan : NULL;
  if (!p) {
    text_addf(t, "  stays eager: %s%s%s", break_reasons[e->why], e->why_text[0] ? ": " : "", e->why_text);
    add_place(vm, t, e->why_at);
    text_adds(t, "\n");
  } else {
    text_addf(t, "  one graph, %u kernel%s, %llu call%s%s:\n", p->nkernels, report_plural(p->nkernels),
              (unsigned long long)e->hits, report_plural(e->hits),
              entry_stays_eager(e) ? "; stays eager, which is faster" : "");
  }
  text_buf guards;
  text_init(&guards, vm);
  entry_guards(e, &guards);
  if (!guards.failed) add_indented(t, &guards, p ? "    where " : "    for ");
  text_free(&guards);
  for (uint32_t i = 0; p && i < p->nkernels; i++) {
    const plan_kernel *k = &p->kernels[i];
    int lines[KERNEL_LINES_MOST];
    int n = kernel_lines(vm, p, k, lines);
    text_addf(t, "    %s: %u operation%s, %lld bytes", k->program->name ? k->program->name : "kernel", k->nops,
              report_plural(k->nops), (long long)dim_hint(&p->graph->dims, k->bytes));
    for (int l = 0; l < n; l++) text_addf(t, "%s%d", l ? ", " : n == 1 ? ", line " : ", lines ", lines[l]);
    text_adds(t, "\n");
  }
}

static void add_function(qn_vm *vm, text_buf *t, const anchor_entries *a) {
  report_name(vm, t, a->anchor);
  add_place(vm, t, a->anchor->at);
  text_adds(t, "\n");
  for (const entry *e = a->first; e; e = e->next) add_entry(vm, t, e);
  for (uint32_t i = 0; i < a->nrecompiles; i++) {
    text_addf(t, "  recorded again: %s", a->recompiles[i].text);
    add_place(vm, t, a->recompiles[i].at);
    text_adds(t, "\n");
  }
  if (a->rests) text_adds(t, "  its calls are short and stay eager, which is faster\n");
  if (a->full) text_adds(t, "  too many call shapes: others stay eager (jit.entries, jit.misses)\n");
}

static void add_all(qn_vm *vm, text_buf *out, const anchor_entries *const *list, uint32_t n) {
  bool recorded = false, named = false;
  for (uint32_t i = 0; i < n; i++) {
    if (!list[i]->first) continue;
    if (recorded) text_adds(out, "\n");
    recorded = true;
    add_function(vm, out, list[i]);
  }
  static const char *const titles[] = {"compute nothing with arrays: ", "not recorded: "};
  for (int cold = 0; cold < 2; cold++) {
    bool listed = false;
    for (uint32_t i = 0; i < n; i++) {
      if (list[i]->first || (list[i]->quiet == 0) != cold) continue;
      if (listed)
        text_adds(out, ", ");
      else
        text_addf(out, "%s%s", recorded && !named ? "\n" : "", titles[cold]);
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
}

bool jit_report(qn_vm *vm, const char *file, bool all, text_buf *out) {
  if (!plans_made(vm)) return false;
  uint32_t n = 0;
  for (const anchor_entries *a = jit_of(vm)->anchors; a; a = a->next) n++;
  /* In the order of their first calls: the VM's list has the latest first. */
  const anchor_entries **list = mem_alloc(vm, (n + 1) * sizeof *list);
  if (!list) return false;
  uint32_t i = n;
  for (const anchor_entries *a = jit_of(vm)->anchors; a; a = a->next) list[--i] = a;
  bool good = true;
  if (all) {
    add_all(vm, out, list, n);
  } else {
    text_buf full;
    text_init(&full, vm);
    add_all(vm, &full, list, n);
    uint32_t lines = 0;
    for (size_t at = 0; at < full.len; at++) lines += full.text[at] == '\n';
    text_free(&full);
    good = report_summary(vm, file, list, n, lines, out);
  }
  mem_free(vm, list, (n + 1) * sizeof *list);
  return good;
}
