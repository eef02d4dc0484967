/* What the compiler did with a program, in two screens; `quern explain FILE` prints it when the script has ended. (The long form is in
 * report.c.)
 *
 * Things that are alike stand together: places that keep functions eager, by their reason; the call shapes of a function, of which only the
 * one called most is shown; kernels, by their names; and in one list each, functions that ran inside others, that had no arrays, and that
 * were called too seldom. Functions of the library are only counted. The text is as short as the program allows, and never longer than
 * SUMMARY_LINES: if it would be, compiled functions lose their details, the last ones first.
 */
#include <stdlib.h>
#include <string.h>

#include "jit/trace/anchors.h"
#include "jit/trace/breaks.h"
#include "jit/trace/pattern.h"
#include "jit/trace/rec.h"
#include "jit/trace/report.h"
#include "jit/trace/specialization.h"

/* What became of the calls of a function, as far as the summary tells it. */
typedef struct fn_report {
  const anchor_specializations *a;
  bool library;
  uint32_t compiled, slower, eager,
      idle; /* how many of its call shapes are compiled; compiled, but eager calls are faster; eager; without arrays */
  uint64_t calls, runs;     /* how many calls compiled shapes have served; how many of these by their plans */
  const jit_anchor *within; /* a compiled function inside of which it ran, or NULL */
} fn_report;

typedef struct summary {
  qn_vm *vm;
  const char *file;
  fn_report *list;
  uint32_t n;
} summary;

static const plan *plan_of(const specialization *e) { return e->plan ? e->plan->plan : NULL; }

static bool is_idle(const specialization *e) { return e->why == BREAK_no_arrays || e->why == BREAK_no_arguments; }

/* Was a function called with arrays only inside graphs of others, or never? */
static bool is_scalar(const anchor_specializations *a) { return !a->begun && !a->first; }

/* ---- lines that fit -------------------------------------------------------------------------------------------------------- */

/* Ends the line that began at `from`, and cuts it to so many columns, between words if one ends in its second half. */
void report_cut(text_buf *t, size_t from, int columns) {
  if (t->failed || utf8_columns(t->text + from, t->len - from) <= columns) return;
  size_t at = from;
  for (int used = 0; at < t->len;) {
    uint32_t code;
    int bytes = utf8_decode(t->text + at, &code), width = utf8_width(code);
    if (used + width > columns - 4) break; /* " ..." */
    used += width;
    at += (size_t)bytes;
  }
  size_t blank = at;
  while (blank > from && t->text[blank] != ' ') blank--;
  t->len = blank - from > (at - from) / 2 ? blank : at;
  text_adds(t, t->len == blank ? " ..." : "...");
}

static void end_line(text_buf *t, size_t from) {
  report_cut(t, from, SUMMARY_COLUMNS);
  text_adds(t, "\n");
}

/* A list of items behind a title, in two lines at most. Items for which there is no room are only counted. */
typedef struct items {
  text_buf *out;
  size_t from; /* where the line begins */
  uint32_t n, rows, left;
} items;

enum { MORE_COLUMNS = 16 }; /* room for " and 10000 more" */

static void items_add(items *l, const char *title, const text_buf *item) {
  if (l->out->failed || item->failed) return;
  if (!l->n++) {
    l->from = l->out->len;
    l->rows = 1;
    text_adds(l->out, title);
  }
  if (l->left) {
    l->left++;
    return;
  }
  int64_t used = utf8_columns(l->out->text + l->from, l->out->len - l->from);
  int64_t wide = utf8_columns(item->text ? item->text : "", item->len) + 2;
  bool fits = used + wide <= SUMMARY_COLUMNS - (l->rows == 2 ? MORE_COLUMNS : 0);
  if (l->n > 1 && !fits && l->rows == 2) {
    l->left = 1;
    return;
  }
  if (l->n > 1) text_adds(l->out, ",");
  if (l->n > 1 && !fits) {
    text_adds(l->out, "\n ");
    l->from = l->out->len - 1;
    l->rows = 2;
  }
  if (l->n > 1) text_adds(l->out, " ");
  text_add(l->out, item->text, item->len);
  if (l->rows == 2) report_cut(l->out, l->from, SUMMARY_COLUMNS - MORE_COLUMNS);
}

static void items_end(items *l) {
  if (!l->n) return;
  if (l->left) text_addf(l->out, " and %u more", l->left);
  end_line(l->out, l->from);
}

static void add_place(const summary *s, text_buf *t, span at) { report_place(s->vm, t, s->file, at); }

static void add_function(const summary *s, text_buf *t, const jit_anchor *a) {
  report_name(s->vm, t, a);
  text_adds(t, " (");
  add_place(s, t, a->at);
  text_adds(t, ")");
}

/* ---- gathering ------------------------------------------------------------------------------------------------------------- */

static bool holds(span outer, span inner) {
  return outer.source && outer.source == inner.source && outer.start <= inner.start && inner.end <= outer.end;
}

/* Was some node of the plan's graph made by the code at this place? */
static bool computes(const plan *p, span at) {
  for (uint32_t i = 1; i < p->graph->nsites; i++)
    if (holds(at, p->graph->sites[i].at)) return true;
  return false;
}

static void find_within(const summary *s, fn_report *x) {
  for (uint32_t i = 0; i < s->n && !x->within; i++) {
    const jit_anchor *other = s->list[i].a->anchor;
    if (!s->list[i].compiled && !s->list[i].slower) continue;
    if (other == x->a->anchor || holds(other->at, x->a->anchor->at)) continue;
    for (const specialization *e = s->list[i].a->first; e && !x->within; e = e->next)
      if (plan_of(e) && computes(plan_of(e), x->a->anchor->at)) x->within = other;
  }
}

/* Is the function reported under some transforms? Then it is not mentioned without them. */
static bool reported_elsewhere(const summary *s, const fn_report *x) {
  for (uint32_t i = 0; i < s->n; i++) {
    const jit_anchor *a = s->list[i].a->anchor;
    if (a != x->a->anchor && s->list[i].a->first && holds(a->at, x->a->anchor->at) && holds(x->a->anchor->at, a->at))
      return true;
  }
  return false;
}

static void gather(summary *s, const anchor_specializations *const *list) {
  for (uint32_t i = 0; i < s->n; i++) {
    fn_report *x = &s->list[i];
    x->a = list[i];
    x->library = place_in_library(s->vm, list[i]->anchor->at);
    x->idle = !list[i]->first && list[i]->quiet > 0;
    for (const specialization *e = list[i]->first; e; e = e->next) {
      if (!plan_of(e)) {
        *(is_idle(e) ? &x->idle : &x->eager) += 1;
      } else {
        *(specialization_stays_eager(e) || list[i]->rests ? &x->slower : &x->compiled) += 1;
        x->calls += e->hits;
        x->runs += e->replays + e->verified;
      }
    }
  }
  for (uint32_t i = 0; i < s->n; i++)
    if (!s->list[i].library) find_within(s, &s->list[i]);
}

/* ---- what stays eager ------------------------------------------------------------------------------------------------------ */

/* A place that keeps a function eager, with the specialization that broke off there. */
typedef struct broken {
  const specialization *e;
  uint32_t number; /* which function of the summary */
} broken;

static int by_place(const void *a, const void *b) {
  const broken *x = a, *y = b;
  const span at = x->e->why_at, other = y->e->why_at;
  if (x->e->why != y->e->why) return x->e->why < y->e->why ? -1 : 1;
  if (at.source != other.source) return at.source < other.source ? -1 : 1;
  if (at.start != other.start) return at.start < other.start ? -1 : 1;
  int text = strcmp(x->e->why_text, y->e->why_text);
  return text ? text : x->number < y->number ? -1 : x->number > y->number;
}

/* Are two reasons put on one line of the summary? */
static bool same_place(const summary *s, const specialization *a, const specialization *b) {
  int line, other;
  const char *file = place_line(s->vm, a->why_at, &line);
  return a->why == b->why && strcmp(a->why_text, b->why_text) == 0 && file == place_line(s->vm, b->why_at, &other) &&
         line == other;
}

/* Appends a line for the first n places of a list: " line 20: time, in seconds_per_call (5 call shapes), in f". */
static void add_broken(const summary *s, text_buf *t, const broken *list, uint32_t n) {
  size_t from = t->len;
  text_adds(t, "  ");
  add_place(s, t, list->e->why_at);
  if (list->e->why_text[0]) text_addf(t, ": %s", list->e->why_text);
  for (uint32_t i = 0, shapes; i < n; i += shapes) {
    for (shapes = 1; i + shapes < n && list[i + shapes].number == list[i].number; shapes++) {}
    text_adds(t, i || list->e->why_text[0] ? ", in " : " in ");
    report_name(s->vm, t, s->list[list[i].number].a->anchor);
    if (shapes > 1) text_addf(t, " (%u call shapes)", shapes);
  }
  end_line(t, from);
}

/* Appends what to do about a reason, on two lines at most. */
static void add_hint(text_buf *t, const char *hint) {
  static const char title[] = "  hint: ";
  size_t len = hint ? strlen(hint) : 0, room = SUMMARY_COLUMNS - (sizeof title - 1), cut = len;
  if (!len) return;
  if (len > room)
    for (cut = room; cut > 0 && hint[cut] != ' '; cut--) {}
  text_adds(t, title);
  text_add(t, hint, cut ? cut : len);
  if (cut && cut < len) text_addf(t, "\n    %s", hint + cut + 1);
  text_adds(t, "\n");
}

/* no reason begins after line EAGER_LINES; PLACES_MOST places of each are shown */
enum { EAGER_LINES = 16, PLACES_MOST = 4 };

static bool add_eager(const summary *s, text_buf *t) {
  uint32_t n = 0, most = 0;
  for (uint32_t i = 0; i < s->n; i++)
    if (!s->list[i].library) most += s->list[i].eager;
  broken *list = mem_alloc(s->vm, (most + 1) * sizeof *list);
  if (!list) return false;
  for (uint32_t i = 0; i < s->n; i++)
    for (const specialization *e = s->list[i].library ? NULL : s->list[i].a->first; e; e = e->next)
      if (!plan_of(e) && !is_idle(e)) list[n++] = (broken){e, i};
  qsort(list, n, sizeof *list, by_place);
  uint32_t left = 0;
  for (uint32_t i = 0, end; i < n; i = end) {
    break_reason why = list[i].e->why;
    for (end = i; end < n && list[end].e->why == why; end++) {}
    if (report_lines(t) >= EAGER_LINES) {
      left++;
      continue;
    }
    text_addf(t, "stays eager: %s\n", break_reasons[why]);
    uint32_t places = 0;
    for (uint32_t k = i, next; k < end; k = next) {
      for (next = k; next < end && same_place(s, list[next].e, list[k].e); next++) {}
      if (places++ < PLACES_MOST) add_broken(s, t, list + k, next - k);
    }
    if (places > PLACES_MOST) text_addf(t, "  and in %u more places\n", places - PLACES_MOST);
    add_hint(t, break_hints[why]);
  }
  if (left) text_addf(t, "and for %u more reason%s\n", left, report_plural(left));
  mem_free(s->vm, list, (most + 1) * sizeof *list);
  return true;
}

/* ---- what is compiled ------------------------------------------------------------------------------------------------------ */

static int64_t kernel_bytes(const plan *p, uint32_t i) {
  return dim_hint(&p->kernels[i].graph->dims, p->kernels[i].bytes);
}

/* Appends kernels to the line that begins at `from`: "4 x dot_f32, dot_add_f32 and 3 more". Those that move most bytes come first, as many
 * as fit. */
static void add_kernels(text_buf *t, size_t from, const plan *p) {
  enum { NAMES = 8, NAMED_ROOM = 24 /* "NNN x ", " and NNN more" */ };
  const char *said[NAMES];
  uint32_t nsaid = 0, left = p->nkernels;
  while (nsaid < NAMES && left && !t->failed) {
    const char *best = NULL;
    int64_t most = -1;
    uint32_t same = 0;
    for (uint32_t i = 0; i < p->nkernels; i++) {
      bool before = false;
      for (uint32_t k = 0; k < nsaid; k++) before |= strcmp(said[k], kernel_name(&p->kernels[i])) == 0;
      if (before || kernel_bytes(p, i) <= most) continue;
      most = kernel_bytes(p, i);
      best = kernel_name(&p->kernels[i]);
    }
    if (!best) return;
    int64_t used = utf8_columns(t->text + from, t->len - from);
    if (nsaid && used + (int64_t)strlen(best) + NAMED_ROOM > SUMMARY_COLUMNS) break;
    for (uint32_t i = 0; i < p->nkernels; i++) same += strcmp(best, kernel_name(&p->kernels[i])) == 0;
    text_adds(t, nsaid ? ", " : "");
    if (same > 1) text_addf(t, "%u x ", same);
    text_adds(t, best);
    said[nsaid++] = best;
    left -= same;
  }
  if (left) text_addf(t, " and %u more", left);
}

/* Appends which lines of the function's own file the plan computes: "lines 3, 7-9"; nothing if it has none there. */
static void add_lines(const summary *s, text_buf *t, const plan *p, span function) {
  int lines[KERNEL_LINES_MOST], n = 0;
  for (uint32_t i = 0; i < p->nkernels; i++)
    for (uint32_t k = 0; k < p->kernels[i].nops; k++) {
      span at = node_place(s->vm, p->kernels[i].graph, p->kernels[i].nodes[k]);
      int line = 0;
      if (at.source == function.source) place_line(s->vm, at, &line);
      n = line_add(lines, n, line);
    }
  for (int i = 0, end; i < n; i = end) {
    for (end = i + 1; end < n && lines[end] == lines[end - 1] + 1; end++) {}
    text_addf(t, "%s%d", i ? ", " : n == 1 ? "line " : "lines ", lines[i]);
    if (end > i + 1) text_addf(t, "-%d", lines[end - 1]);
  }
  if (n) text_adds(t, ": ");
}

static const specialization *most_called(const anchor_specializations *a) {
  const specialization *best = NULL;
  for (const specialization *e = a->first; e; e = e->next)
    if (plan_of(e) && !specialization_stays_eager(e) && (!best || e->hits > best->hits)) best = e;
  return best;
}

/* The paragraph of a function with compiled call shapes: at most DETAIL_LINES lines, the most important one first. */
enum { DETAIL_LINES = 4, ARGUMENT_COLUMNS = 12 /* how many columns the argument's description gets at least */ };
static void add_compiled(const summary *s, text_buf *t, const fn_report *x, bool details) {
  const specialization *e = most_called(x->a);
  const plan *p = plan_of(e);
  size_t from = t->len;
  text_adds(t, "  ");
  add_function(s, t, x->a->anchor);
  text_addf(t, ": one graph, %u kernel%s, %llu call%s", p->nkernels, report_plural(p->nkernels),
            (unsigned long long)x->runs, report_plural(x->runs));
  if (x->compiled + x->slower > 1) text_addf(t, "; %u call shapes", x->compiled + x->slower);
  if (x->slower) text_addf(t, ", %u faster eager", x->slower);
  if (x->a->full)
    text_addf(t, "; more stay eager (%s)",
              x->a->count >= (uint64_t)s->vm->tune[TUNE_jit_entries] ? "jit.entries" : "jit.misses");
  if (x->within) {
    text_adds(t, "; also a part of ");
    report_name(s->vm, t, x->within);
  }
  end_line(t, from);
  if (!details) return;
  from = t->len;
  text_adds(t, x->compiled > 1 ? "    mostly for (" : "    for (");
  int room = SUMMARY_COLUMNS - 18; /* what is left beside " mostly for (" and ")" */
  for (uint32_t i = 0, n = e->pattern.nargs; i < n; i++) {
    if (i) text_adds(t, ", ");
    size_t begin = t->len;
    pattern_print_arg(&e->pattern, i, t);
    int most = room / (int)(n - i);
    report_cut(t, begin, most > ARGUMENT_COLUMNS ? most : ARGUMENT_COLUMNS);
    room -= t->failed ? 0 : (int)utf8_columns(t->text + begin, t->len - begin) + 2;
  }
  text_adds(t, ")");
  end_line(t, from);
  from = t->len;
  text_adds(t, "    ");
  add_lines(s, t, p, x->a->anchor->at);
  add_kernels(t, from, p);
  end_line(t, from);
  if (!x->a->nrecompiles) return;
  from = t->len;
  uint32_t n = x->a->nrecompiles;
  text_adds(t, "    recorded again");
  if (n > 1) text_addf(t, " %u times, last", n);
  text_addf(t, ": %s (", x->a->recompiles[n - 1].text);
  add_place(s, t, x->a->recompiles[n - 1].at);
  text_adds(t, ")");
  end_line(t, from);
}

/* Does a function get a paragraph? Not if it is only called inside others. */
static bool has_paragraph(const fn_report *x) { return !x->library && x->compiled && !(x->within && !x->calls); }

/* Appends the paragraphs of compiled functions in at most `room` lines. Functions that are no parts of others come first; as many of them
 * as there is room for have details. */
static void add_all_compiled(const summary *s, text_buf *t, uint32_t room) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < s->n; i++) n += has_paragraph(&s->list[i]);
  if (!n) return;
  room--;
  uint32_t headlines = n <= room ? n : room - 1, said = 0;
  uint32_t detailed = n <= room ? (room - n) / (DETAIL_LINES - 1) : 0;
  text_adds(t, "compiled:\n");
  for (int within = 0; within < 2; within++)
    for (uint32_t i = 0; i < s->n && said < headlines; i++) {
      const fn_report *x = &s->list[i];
      if (!has_paragraph(x) || (x->within != NULL) != within) continue;
      add_compiled(s, t, x, !within && said < detailed);
      said++;
    }
  if (headlines < n) text_addf(t, "  and %u more functions\n", n - headlines);
}

/* ---- the rest ---------------------------------------------------------------------------------------------------------------- */

typedef enum fate { FATE_none, FATE_slower, FATE_within, FATE_idle, FATE_failed, FATE_seldom } fate;

/* In which list a function stands that has no paragraph. */
static fate fate_of(const summary *s, const fn_report *x) {
  if (x->library || x->eager || has_paragraph(x) || (is_scalar(x->a) && !x->within)) return FATE_none;
  if (x->compiled) return FATE_within;
  if (x->slower) return FATE_slower;
  if (x->idle && !x->within) return FATE_idle;
  if (reported_elsewhere(s, x)) return FATE_none;
  if (x->within) return FATE_within;
  return x->a->calls[CALL_recorded] ? FATE_failed : FATE_seldom;
}

static void add_rest(const summary *s, text_buf *t) {
  static const char *const titles[] = {[FATE_slower] = "compiled, but calls stay eager, which is faster: ",
                                       [FATE_within] = "compiled as parts of others: ",
                                       [FATE_idle] = "compute nothing with arrays: ",
                                       [FATE_failed] = "recorded calls ended in errors: ",
                                       [FATE_seldom] = "not recorded: "};
  for (fate which = FATE_slower; which <= FATE_seldom; which++) {
    items l = {.out = t};
    for (uint32_t i = 0; i < s->n; i++) {
      const fn_report *x = &s->list[i];
      if (fate_of(s, x) != which) continue;
      text_buf item = {.vm = s->vm};
      add_function(s, &item, x->a->anchor);
      if (which == FATE_within) {
        text_adds(&item, " in ");
        report_name(s->vm, &item, x->within);
      }
      items_add(&l, titles[which], &item);
      text_free(&item);
    }
    items_end(&l);
    if (which == FATE_seldom && l.n) {
      size_t from = t->len;
      text_addf(t,
                "A function is recorded when it is called with arrays for the %lld%s time; --set jit.hot=1: at once.",
                (long long)s->vm->tune[TUNE_jit_hot], report_ordinal(s->vm->tune[TUNE_jit_hot]));
      end_line(t, from);
    }
  }
}

/* If no function of the program was ever called with arrays: says why nothing was recorded, and what would be. */
static void add_none(const summary *s, text_buf *t) {
  for (uint32_t i = 0; i < s->n; i++)
    if (!s->list[i].library && !is_scalar(s->list[i].a)) return;
  text_addf(
      t,
      "No function of the program was called with an array, a list or a record; only such calls are recorded (from\n"
      "the %lld%s on; --set jit.hot=1: at once). ",
      (long long)s->vm->tune[TUNE_jit_hot], report_ordinal(s->vm->tune[TUNE_jit_hot]));
  if (s->vm->tune[TUNE_jit_turns])
    text_addf(t, "Turns of a loop are, too, when it has made %lld (jit.turns).\n",
              (long long)s->vm->tune[TUNE_jit_turns]);
  else
    text_adds(t, "Turns of loops are not, whatever they compute (jit.turns=0).\n");
  text_adds(t, "hint: put what the loop repeats into a function of its arrays: fn step(u) = ..., then u = step(u)\n");
}

/* Names the compiled functions that also have calls which stay eager. True if there are any. */
static bool add_mixed(const summary *s, text_buf *t) {
  uint32_t mixed = 0;
  for (uint32_t i = 0; i < s->n; i++)
    mixed += !s->list[i].library && s->list[i].eager && (s->list[i].compiled || s->list[i].slower);
  if (mixed) text_addf(t, "  %u of the compiled stay%s eager for other calls\n", mixed, mixed == 1 ? "s" : "");
  return mixed != 0;
}

/* Appends how many functions and loops of the program, and functions of the library, were compiled, and how many stayed eager. */
static void add_counts(const summary *s, text_buf *t) {
  uint32_t compiled[2] = {0}, eager[2] = {0}, slower = 0, loops = 0;
  for (uint32_t i = 0; i < s->n; i++) {
    const fn_report *x = &s->list[i];
    bool loop = !x->library && x->a->anchor->loop && (x->compiled || x->slower);
    loops += loop;
    compiled[x->library] += !loop && (x->compiled || x->slower);
    eager[x->library] += x->eager && !x->compiled && !x->slower;
    slower += !x->library && x->slower && !x->compiled;
  }
  size_t from = t->len;
  if (!compiled[0] && !compiled[1] && !eager[0] && !eager[1] && !loops) {
    text_adds(t, "Nothing was compiled.\n");
    return;
  }
  text_addf(t, "%s: ", s->file);
  if (compiled[0] || !loops) text_addf(t, "%u function%s", compiled[0], report_plural(compiled[0]));
  if (loops) text_addf(t, "%s%u loop%s", compiled[0] ? " and " : "", loops, report_plural(loops));
  text_adds(t, " compiled, ");
  if (slower) text_addf(t, "%u of them %s faster eager, ", slower, slower == 1 ? "is" : "are");
  text_addf(t, "%u stay%s eager", eager[0], eager[0] == 1 ? "s" : "");
  if (compiled[1] || eager[1]) text_addf(t, " (of the library %u and %u)", compiled[1], eager[1]);
  end_line(t, from);
}

bool report_summary(qn_vm *vm, const char *file, const anchor_specializations *const *list, uint32_t n, uint32_t lines,
                    text_buf *out) {
  summary s = {.vm = vm, .file = file, .n = n, .list = mem_zalloc(vm, (n + 1) * sizeof *s.list)};
  if (!s.list) return false;
  gather(&s, list);
  enum { CALL_LINES = 12 };
  text_buf eager = {.vm = vm}, rest = {.vm = vm};
  bool good = add_eager(&s, &eager);
  add_rest(&s, &rest);
  add_counts(&s, out);
  uint32_t mixed = add_mixed(&s, out);
  add_none(&s, &rest);
  good = good && report_calls(vm, file, list, n, CALL_LINES, &rest);
  text_add(out, eager.text, eager.len);
  add_all_compiled(&s, out, SUMMARY_LINES - 3 - mixed - report_lines(&eager) - report_lines(&rest));
  text_add(out, rest.text, rest.len);
  if (n)
    text_addf(out, "In all %u line%s (call shapes, guards, kernels, the library's functions): quern explain --all %s\n",
              lines, report_plural(lines), file);
  text_free(&eager);
  text_free(&rest);
  mem_free(vm, s.list, (n + 1) * sizeof *s.list);
  return good;
}
