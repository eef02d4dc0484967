/* What explain tells of a compiled call beyond its kernels: the steps of its plan in their order, the places where calls leave it, and all
 * of it as a text of one screen.
 *
 * A step is what the plan makes at once: a kernel, a product or sort of the library, a host number, an effect, a branch or a loop; those of arms,
 * tests and bodies stand one level further in, below a step that names the part. What lies between two steps that are no kernels is one
 * straight segment, so each such step says why the segment before it ended.
 */
#include <stdio.h>
#include <string.h>

#include "jit/trace/anchors.h"
#include "jit/trace/breaks.h"
#include "jit/trace/pattern.h"
#include "jit/trace/report.h"
#include "jit/trace/trials.h"
#include "lang/error.h"

/* ---- steps ------------------------------------------------------------------------------------------------------------------ */

typedef struct step_said {
  const char *kind, *name, *why, *more; /* more: about `why`, or NULL */
  int depth, nlines, lines[KERNEL_LINES_MOST];
  const plan_kernel *kernel; /* or NULL */
  int64_t count; /* how often the interpreter or the plan has made a block step or a part; -1: not counted */
} step_said;

typedef struct step_walk {
  qn_vm *vm;
  const specialization *e;
  bool (*each)(void *ctx, const step_said *s);
  void *ctx;
} step_walk;

static void say_line(qn_vm *vm, step_said *s, span at) {
  int line;
  place_line(vm, at, &line);
  s->nlines = line_add(s->lines, s->nlines, line);
}

static bool say_steps(const step_walk *w, const plan *p, int depth);

/* A part of a branch or loop; not if it has no steps. */
static bool say_part(const step_walk *w, const plan *p, const char *kind, int depth) {
  if (!p || !p->nsteps) return true;
  step_said s = {.kind = kind, .name = "", .depth = depth, .count = -1};
  return w->each(w->ctx, &s) && say_steps(w, p, depth + 1);
}

static bool say_step(const step_walk *w, const plan *p, const plan_step *x, int depth) {
  step_said s = {.depth = depth, .name = "", .count = -1};
  const plan_region *r = x->kind == STEP_REGIONS ? &p->regions[x->what] : NULL;
  switch ((plan_step_kind)x->kind) {
  case STEP_KERNEL:
    s.kernel = &p->kernels[x->what];
    s.kind = s.kernel->region ? "loop" : "kernel";
    s.name = kernel_name(s.kernel);
    s.nlines = kernel_lines(w->vm, s.kernel, s.lines);
    break;
  case STEP_LIBRARY:
  case STEP_SCALAR:
    s.kind = x->kind == STEP_LIBRARY ? "library" : x->nbuffers ? "read" : "number";
    s.name = op_rows[x->op].name;
    break;
  case STEP_REGIONS:
    s.kind = r->kind == NODE_LOOP ? "loop" : "branch";
    s.why = r->why;
    break;
  case STEP_TAP: {
    s.kind = "effect";
    const tap *t = x->what < w->e->taps.n ? &w->e->taps.list[x->what] : NULL;
    if (t) s.name = t->def->name;
    if (t) say_line(w->vm, &s, t->at);
    break;
  }
  }
  if (!s.nlines) say_line(w->vm, &s, node_place(w->vm, p->graph, x->node));
  if (!w->each(w->ctx, &s)) return false;
  if (!r) return true;
  bool loop = r->kind == NODE_LOOP;
  return say_part(w, r->parts[0], loop ? "test" : "then", depth + 1) &&
         say_part(w, r->parts[1], loop ? "body" : "else", depth + 1);
}

static bool say_steps(const step_walk *w, const plan *p, int depth) {
  for (uint32_t i = 0; i < p->nsteps; i++)
    if (!say_step(w, p, &p->steps[i], depth)) return false;
  return true;
}

/* The lines that a place spans. */
static void say_lines(qn_vm *vm, step_said *s, span at) {
  int line;
  place_line(vm, (span){at.source, at.end ? at.end - 1 : 0, at.end}, &line);
  say_line(vm, s, at);
  s->nlines = line_add(s->lines, s->nlines, line);
}

/* A part of a block that is cut, with the steps of the plan that served it last; or a statement between parts (vm_hooks.steps). */
static bool say_block_step(void *ctx, const void *step) {
  const step_walk *w = ctx;
  const block_step *b = step;
  step_said s = {.depth = b->depth, .name = "", .count = (int64_t)b->runs};
  say_lines(w->vm, &s, b->at);
  if (!b->anchor) {
    s.kind = "block";
    s.why = break_reasons[b->why.number];
    s.more = b->why.text[0] ? b->why.text : NULL;
    return w->each(w->ctx, &s);
  }
  const anchor_specializations *list = b->anchor->entries;
  const specialization *e = list ? list->first : NULL;
  while (e && !e->plan) e = e->next;
  s.kind = "part";
  s.count = e ? (int64_t)e->replays : 0;
  const specialization *first = list ? list->first : NULL;
  if (!e) s.why = !first ? "not recorded yet" : first->why ? break_reasons[first->why] : "its plan is being made";
  step_walk inner = {w->vm, e, w->each, w->ctx};
  return w->each(w->ctx, &s) && (!e || say_steps(&inner, e->plan->plan, b->depth + 1));
}

/* The steps of the call: those of its plan; or, if it has none since it cannot be captured, those of the function's parts. */
static bool say_call(const step_walk *w, const served *s) {
  const specialization *e = s->entry;
  if (e && e->plan) return say_steps(w, e->plan->plan, 0);
  const qn_fn *f = transform_within(s->fn);
  if (f->head.flags != FN_USER) return true;
  return w->vm->hooks.steps(w->vm, value_obj(TAG_FN, (qn_fn *)(uintptr_t)f), say_block_step, (void *)(uintptr_t)w);
}

typedef struct step_list {
  qn_vm *vm;
  qn_list *list;
} step_list;

static qn_value why_value(qn_vm *vm, const step_said *s) {
  char text[160];
  snprintf(text, sizeof text, "%s%s%s", s->why, s->more ? ": " : "", s->more ? s->more : "");
  return text_value(vm, text);
}

static bool add_step(void *ctx, const step_said *s) {
  const step_list *c = ctx;
  int64_t wide[KERNEL_LINES_MOST];
  for (int i = 0; i < s->nlines; i++) wide[i] = s->lines[i];
  qn_value v = FIELDS_RECORD(c->vm, {"kind", text_value(c->vm, s->kind)}, {"name", text_value(c->vm, s->name)},
                             {"lines", list_of_ints(c->vm, wide, (uint32_t)s->nlines)}, {"depth", value_int(s->depth)},
                             {"why", s->why ? why_value(c->vm, s) : value_nil()},
                             {"count", s->count < 0 ? value_nil() : value_int(s->count)});
  return !value_is_error(v) && list_push(c->vm, c->list, v);
}

qn_value step_records(qn_vm *vm, const served *s) {
  step_list c = {vm, list_new(vm, 0)};
  if (!c.list) return value_error();
  step_walk w = {vm, s->entry, add_step, &c};
  if (say_call(&w, s)) return value_obj(TAG_LIST, c.list);
  return value_fail(vm, value_obj(TAG_LIST, c.list));
}

/* ---- exits ------------------------------------------------------------------------------------------------------------------ */

/* Is node i the check that a way which is no part of the graph is not taken (way_expect)? */
static bool is_exit(const graph *g, uint32_t i) {
  if (!graph_is_check(g, i)) return false;
  const graph_node *c = &g->nodes[g->nodes[i].in[1]];
  return c->kind == NODE_OP && c->op == OP_cast && g->nodes[c->in[0]].type.dtype == DTYPE_TEST;
}

/* Adds a place unless it is there, and how many calls have left there. How many places there are then. */
static uint32_t add_exit(exit_count out[EXITS_SHOWN], uint32_t n, exit_count x) {
  for (uint32_t i = 0; i < n; i++)
    if (out[i].at.source == x.at.source && out[i].at.start == x.at.start) {
      out[i].hits += x.hits;
      return n;
    }
  if (n < EXITS_SHOWN) out[n++] = x;
  return n;
}

static uint32_t find_exits(const graph *g, exit_count out[EXITS_SHOWN], uint32_t n) {
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *x = &g->nodes[i];
    for (int k = 0; k < 2 && graph_kind_has_regions(x->kind); k++) n = find_exits(x->payload.regions[k], out, n);
    if (is_exit(g, i) && x->site && x->site < g->nsites) n = add_exit(out, n, (exit_count){.at = g->sites[x->site].at});
  }
  return n;
}

static bool lies_in(span inner, span outer) {
  return inner.source == outer.source && outer.start <= inner.start && inner.end <= outer.end;
}

/* A check of a way that is not taken divides by zero where it is. A kernel of a loop knows the place of the loop alone: then x is counted at the
 * first way in it; or, where that has ended with another error, at the way that has raised it. */
static bool is_way_within(const exit_count *way, const exit_count *x) {
  if (way->id) return false;
  return x->id == E_div_zero ? lies_in(way->at, x->at) : !x->id && lies_in(x->at, way->at);
}

uint32_t exits_find(const specialization *e, exit_count out[EXITS_SHOWN]) {
  uint32_t n = e && e->exits && e->graph ? find_exits(e->graph, out, 0) : 0;
  for (uint32_t i = 0; e && i < e->nleft; i++) {
    uint32_t k = 0;
    while (k < n && !is_way_within(&out[k], &e->left[i])) k++;
    if (k < n)
      out[k].hits += e->left[i].hits;
    else
      n = add_exit(out, n, e->left[i]);
  }
  return n;
}

static const char *exit_reason(const exit_count *x) {
  const error_row *row = x->id ? error_find(x->id) : NULL;
  return row ? row->title : "a way that is not compiled";
}

static qn_value exit_item(qn_vm *vm, const void *ctx, uint32_t i) {
  const exit_count *x = (const exit_count *)ctx + i;
  int line;
  place_line(vm, x->at, &line);
  return FIELDS_RECORD(vm, {"reason", text_value(vm, exit_reason(x))}, {"line", value_int(line)},
                       {"count", value_int((int64_t)x->hits)});
}

qn_value exit_records(qn_vm *vm, const specialization *e) {
  exit_count all[EXITS_SHOWN];
  uint32_t n = exits_find(e, all);
  return list_of_items(vm, n, exit_item, all);
}

/* ---- the report ------------------------------------------------------------------------------------------------------------- */

enum { SCREEN_COLUMNS = 80, GUARD_LINES = 8, STEP_LINES = 14, EXIT_LINES = 5, MISS_LINES = 3 };

static void end_line(text_buf *t, size_t from) {
  report_cut(t, from, SCREEN_COLUMNS);
  text_adds(t, "\n");
}

/* Ends a line that may be long: breaks it between words, where it can be, and goes on behind `indent` blanks. */
static void end_sentence(text_buf *t, size_t from, int indent) {
  text_buf rest TEXT_OWNED = {.vm = t->vm};
  while (!t->failed && utf8_columns(t->text + from, t->len - from) > SCREEN_COLUMNS) {
    size_t at = from, blank = 0;
    for (int used = 0; at < t->len;) {
      uint32_t code;
      int bytes = utf8_decode(t->text + at, &code);
      used += utf8_width(code);
      if (used > SCREEN_COLUMNS) break;
      if (t->text[at] == ' ' && used > SCREEN_COLUMNS / 2) blank = at;
      at += (size_t)bytes;
    }
    if (!blank) break;
    rest.len = 0;
    text_add(&rest, t->text + blank + 1, t->len - blank - 1);
    t->len = blank;
    text_adds(t, "\n");
    from = t->len;
    text_repeat(t, " ", indent);
    text_add(t, rest.text, rest.len);
    t->failed |= rest.failed;
  }
  end_line(t, from);
}

/* Appends a number of bytes: "512 bytes", "1.5 MB". */
static void add_bytes(text_buf *t, int64_t bytes) {
  static const char *const units[] = {"kB", "MB", "GB", "TB"};
  if (bytes < 10000) {
    text_addf(t, "%lld bytes", (long long)bytes);
    return;
  }
  int unit = 0;
  double x = (double)bytes / 1000;
  while (x >= 1000 && unit < 3) x /= 1000, unit++;
  text_decimal(t, x, 'f', x < 10 ? 2 : x < 100 ? 1 : 0);
  text_addf(t, " %s", units[unit]);
}

static void add_time(text_buf *t, int64_t ns) {
  double x = (double)ns / 1000;
  const char *unit = "us";
  if (x >= 1000) x /= 1000, unit = "ms";
  text_decimal(t, x, 'f', x < 10 ? 2 : x < 100 ? 1 : 0);
  text_addf(t, " %s", unit);
}

typedef struct step_printer {
  qn_vm *vm;
  text_buf *out;
  uint32_t said, left;
} step_printer;

static bool print_step_said(void *ctx, const step_said *s) {
  step_printer *c = ctx;
  if (strcmp(s->kind, "number") == 0) return true; /* cheap, and there may be many */
  if (c->said == STEP_LINES) {
    c->left++;
    return true;
  }
  c->said++;
  text_buf *t = c->out;
  size_t from = t->len;
  text_repeat(t, " ", 2 + 2 * (s->depth < 20 ? s->depth : 20));
  text_addf(t, s->nlines || s->name[0] ? "%-7s" : "%s", s->kind);
  for (int i = 0; i < s->nlines; i++) text_addf(t, i ? ", %d" : s->nlines > 1 ? " lines %d" : " line %d", s->lines[i]);
  if (s->name[0]) text_addf(t, "%s%s", s->nlines ? ": " : " ", s->name);
  if (s->kernel && s->kernel->nops > 1) text_addf(t, ", %u operations", s->kernel->nops);
  if (s->kernel && s->kernel->region) text_adds(t, ", one kernel");
  if (s->kernel && s->kernel->statics == STATICS_KNOWN) text_adds(t, ", static");
  if (s->count >= 0 && strcmp(s->kind, "block") == 0) {
    text_addf(t, ", by the interpreter %lld time%s: %s%s%s", (long long)s->count, report_plural((uint64_t)s->count),
              s->why, s->more ? ": " : "", s->more ? s->more : "");
  } else if (s->count >= 0) {
    text_addf(t, ", %s%s", s->why ? "eager: " : "compiled", s->why ? s->why : "");
  } else if (s->why) {
    text_addf(t, " (no kernel: %s)", s->why);
  }
  end_sentence(t, from, 6 + 2 * (s->depth < 20 ? s->depth : 20));
  return true;
}

/* Appends the first lines of a text, each behind two blanks. */
static void add_lines(text_buf *t, const char *title, const text_buf *lines, uint32_t most) {
  uint32_t n = report_lines(lines), said = 0;
  if (!n) return;
  text_addf(t, "%s:\n", title);
  for (size_t i = 0, end; i < lines->len && said < most; i = end + 1, said++) {
    for (end = i; end < lines->len && lines->text[end] != '\n'; end++) {}
    size_t from = t->len;
    text_adds(t, "  ");
    text_add(t, lines->text + i, end - i);
    if (said + 1 == most && n > most) text_addf(t, "; and %u more", n - most);
    end_sentence(t, from, 4);
  }
}

static const char *own_file(qn_vm *vm, const jit_anchor *a) {
  int line;
  return place_line(vm, a->at, &line);
}

/* Appends what became of each plan that was tried (trials.h). */
static void report_trials(text_buf *t, const specialization *e) {
  uint32_t n;
  const trial_result *all = trial_results(e, &n);
  for (uint32_t i = 0; i < n; i++) {
    size_t from = t->len;
    text_addf(t, "tried: %s, %s", all[i].plan, trial_ends[all[i].end]);
    if (all[i].least[1] > 0) {
      text_adds(t, ": ");
      add_time(t, all[i].least[1]);
      text_adds(t, " against ");
      add_time(t, all[i].least[0]);
    }
    end_line(t, from);
  }
}

/* The first lines: "f (line 3): one graph, 2 kernels", or why there is none; calls; time and memory. */
static void add_headline(qn_vm *vm, text_buf *t, const served *s, uint32_t compiled, bool parts) {
  const specialization *e = s->entry;
  const plan *p = e && e->plan ? e->plan->plan : NULL;
  const char *file = own_file(vm, s->anchor);
  size_t from = t->len;
  report_name(vm, t, s->anchor);
  if (s->anchor->at.source) {
    text_adds(t, " (");
    report_place(vm, t, file, s->anchor->at);
    text_adds(t, ")");
  }
  if (p) {
    text_addf(t, ": one graph, %u kernel%s", p->nkernels, report_plural(p->nkernels));
    if (!compiled && p->nkernels) text_adds(t, " (no machine code)");
    if (compiled && compiled < p->nkernels) text_addf(t, " (machine code for %u)", compiled);
  } else {
    text_adds(t, parts ? ": is cut into parts" : ": stays with the interpreter");
  }
  end_line(t, from);
  from = t->len;
  if (!p) {
    text_addf(t, "why: %s (", s->text);
    report_place(vm, t, file, s->at);
    text_adds(t, ")");
    end_sentence(t, from, 2);
    from = t->len;
    if (break_hints[s->why]) text_addf(t, "hint: %s", break_hints[s->why]);
    if (break_hints[s->why]) end_sentence(t, from, 2);
    from = t->len;
  }
  if (e) {
    const uint64_t known = trial_static_calls(e);
    text_addf(t, "calls: %llu, %llu by the plan", (unsigned long long)e->hits, (unsigned long long)e->replays);
    if (known) text_addf(t, " (%llu with static extents)", (unsigned long long)known);
    text_addf(t, ", %llu re-entr%s", (unsigned long long)e->reentries, e->reentries == 1 ? "y" : "ies");
    end_line(t, from);
  }
  if (!p) return;
  from = t->len;
  text_adds(t, "time: ");
  if (race_timed(&e->race)) {
    add_time(t, e->race.least[0]);
    text_adds(t, " compiled, ");
    add_time(t, e->race.least[1]);
    text_addf(t, " eager%s; memory: ", specialization_stays_eager(e) ? " (which stays)" : "");
  } else {
    text_adds(t, "not measured; memory: ");
  }
  const int64_t held = served_held_bytes(e);
  add_bytes(t, p->peak_bytes + held);
  text_adds(t, ", node by node ");
  add_bytes(t, p->eager_peak_bytes + held);
  end_line(t, from);
  from = t->len;
  if (held) text_adds(t, "  of that in loops, for what they keep of their turns and work with: ");
  if (held) add_bytes(t, held), end_line(t, from);
  report_trials(t, e);
}

qn_value explain_report(qn_vm *vm, const served *s, uint32_t compiled) {
  const specialization *e = s->entry;
  const anchor_specializations *list = s->anchor->entries;
  const char *file = own_file(vm, s->anchor);
  text_buf t = {.vm = vm};
  text_buf steps TEXT_OWNED = {.vm = vm};
  step_printer c = {vm, &steps, 0, 0};
  step_walk w = {vm, e, print_step_said, &c};
  if (!say_call(&w, s)) t.failed = true;
  add_headline(vm, &t, s, compiled, c.said != 0);
  text_buf guards TEXT_OWNED = {.vm = vm};
  if (e) specialization_guards(e, &guards);
  add_lines(&t, "guards", &guards, GUARD_LINES);
  if (c.left) text_addf(&steps, "  and %u more, which explain(...).steps lists\n", c.left);
  if (c.said) text_adds(&t, "steps:\n");
  if (c.said) text_add(&t, steps.text, steps.len);
  exit_count exits[EXITS_SHOWN];
  uint32_t nexits = exits_find(e, exits);
  text_buf more TEXT_OWNED = {.vm = vm};
  for (uint32_t i = 0; i < nexits; i++) {
    report_place(vm, &more, file, exits[i].at);
    text_addf(&more, ": %s, %llu time%s\n", exit_reason(&exits[i]), (unsigned long long)exits[i].hits,
              report_plural(exits[i].hits));
  }
  add_lines(&t, "exits", &more, EXIT_LINES);
  more.len = 0;
  for (uint32_t i = 0; e && i < e->rewritten.n; i++) {
    const rewrite_note *x = &e->rewritten.list[i];
    report_place(vm, &more, file, x->at);
    text_addf(&more, ": %s%s%s\n", x->name, x->applied ? "" : " is not applied: ", x->why);
  }
  add_lines(&t, "patterns", &more, EXIT_LINES);
  more.len = 0;
  uint32_t n = misses_of(s), first = n > MISS_LINES ? n - MISS_LINES : 0;
  for (uint32_t i = first; i < n; i++) {
    text_addf(&more, "%s (", miss_of(s, i)->text);
    report_place(vm, &more, file, miss_of(s, i)->at);
    text_adds(&more, ")\n");
  }
  char title[64];
  snprintf(title, sizeof title, first ? "recorded again %u times, last" : "recorded again", n);
  add_lines(&t, title, &more, MISS_LINES);
  more.len = 0;
  report_limits(vm, &more, list);
  add_lines(&t, "limits", &more, MISS_LINES);
  if (t.len && t.text[t.len - 1] == '\n') t.len--;
  return text_take(&t);
}
