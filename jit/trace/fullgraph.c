/* What keeps a call from being one graph (fullgraph.h).
 *
 * The capture of such a call ends at the first thing that cannot be captured, but the call goes on, and what lies behind is recorded as parts
 * (interp/parts.c), in the functions that it calls, too. So all that lies on the way of this call is met: places where captures end, what the
 * host makes, numbers that it reads, and ways that would leave the graph. Each recording that ends notes what it came by, which stays with the
 * broken specialization, since later calls of it record nothing. Parts that were recorded before are looked up.
 *
 * Inside gradients and vmap a call is a part of the recording around it: see "calls within recordings".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/trace/anchors.h"
#include "jit/trace/breaks.h"
#include "jit/trace/fullgraph.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/report.h"
#include "jit/trace/vmap.h"
#include "lang/mem.h"
#include "lang/source.h"

/* ---- what recordings came by ------------------------------------------------------------------------------------------------ */

/* Adds something at a place, each once. */
static void add(qn_vm *vm, met_list *l, met x) {
  for (uint32_t i = 0; i < l->n; i++)
    if (l->all[i].kind == x.kind && span_same_start(l->all[i].why.at, x.why.at)) return;
  if (l->n == l->capacity) {
    uint32_t more = l->capacity ? 2 * l->capacity : 16;
    void *p = mem_try_realloc(vm, l->all, l->capacity * sizeof *l->all, more * sizeof *l->all);
    if (!p) return;
    l->all = p;
    l->capacity = more;
  }
  l->all[l->n++] = x;
}

static void add_place(qn_vm *vm, met_list *l, met_kind kind, span at) {
  if (source_get(vm, at.source)) add(vm, l, (met){.kind = (uint8_t)kind, .why = {.at = at}});
}

/* Adds the numbers that a graph, which may be an arm or a body, reads from arrays, from node `from` on. */
static void add_reads(qn_vm *vm, met_list *l, const graph *g, uint32_t from) {
  for (uint32_t i = from; i < g->n; i++) {
    const graph_node *x = &g->nodes[i];
    for (int k = 0; k < 2 && graph_kind_has_regions(x->kind); k++) add_reads(vm, l, x->payload.regions[k], 1);
    if (x->kind == NODE_OP && x->type.weak && x->nin && !g->nodes[x->in[0]].type.weak)
      add_place(vm, l, MET_READ, node_place(vm, g, i));
  }
}

/* Adds effects, from number `from` on. */
static void add_effects(qn_vm *vm, met_list *l, const tap_list *taps, uint32_t from) {
  for (uint32_t i = from; i < taps->n; i++)
    add(vm, l, (met){.kind = MET_EFFECT, .name = taps->list[i].def->name, .why = {.at = taps->list[i].at}});
}

/* Adds what the recording of a call or of a part has come by. `g`: what it has recorded, or NULL. */
static void add_recorded(qn_vm *vm, met_list *l, const specialization *e, const graph *g) {
  add_effects(vm, l, &e->taps, 0);
  if (g) add_reads(vm, l, g, 1);
  if (e->state != SPEC_BROKEN || e->why == BREAK_no_arrays || e->why == BREAK_memory) return;
  met x = {.kind = MET_BREAK, .why = {.number = (int)e->why, .at = e->why_at}};
  memcpy(x.why.text, e->why_text, sizeof x.why.text);
  add(vm, l, x);
}

void fullgraph_begin(qn_vm *vm) { jit_of(vm)->met.n = 0; }

void fullgraph_note(qn_vm *vm, const struct recording *r, const specialization *e) {
  met_list *l = &jit_of(vm)->met;
  for (uint32_t i = 0; i < r->nexit_places; i++) add_place(vm, l, MET_EXIT, r->exit_places[i]);
  add_recorded(vm, l, e, e->graph ? e->graph : r->g);
}

/* For vm_hooks.steps: parts that were recorded before, and statements between them. */
typedef struct found_steps {
  qn_vm *vm;
  met_list *list;
} found_steps;

static bool add_step(void *ctx, const void *step) {
  const found_steps *f = ctx;
  const block_step *s = step;
  const anchor_specializations *part = s->anchor ? s->anchor->entries : NULL;
  for (const specialization *e = part ? part->first : NULL; e; e = e->next) {
    exit_count exits[EXITS_SHOWN];
    uint32_t n = exits_find(e, exits);
    for (uint32_t i = 0; i < n; i++) add_place(f->vm, f->list, MET_EXIT, exits[i].at);
    add_recorded(f->vm, f->list, e, e->graph);
  }
  if (!s->anchor) add(f->vm, f->list, (met){.kind = MET_BREAK, .why = s->why});
  return true;
}

static int by_place(const void *a, const void *b) {
  const span x = ((const met *)a)->why.at, y = ((const met *)b)->why.at;
  if (x.source != y.source) return x.source < y.source ? -1 : 1;
  return x.start < y.start ? -1 : x.start > y.start;
}

/* ---- the error -------------------------------------------------------------------------------------------------------------------- */

/* What is met, in the order of the text, for an error about something at `about`. */
typedef struct told {
  qn_vm *vm;
  met_list *list;
  span about;
} told;

/* Have the notes of the error to speak of this? Not of the break that it is about. */
static bool is_told(const told *t, const met *x, met_kind kind) {
  if (x->kind != (uint8_t)kind || !source_get(t->vm, x->why.at.source)) return false;
  return kind != MET_BREAK || !span_same_start(x->why.at, t->about);
}

static uint32_t count_of(const told *t, met_kind kind) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < t->list->n; i++) n += is_told(t, &t->list->all[i], kind);
  return n;
}

/* Notes places of one kind: "numbers that the host reads: in line 3, at FILE:7 and 2 more". Places in one line that look alike are named once. */
static void note_places(const told *t, met_kind kind, const char *what) {
  enum { SAID = 24 };
  text_buf text = {.vm = t->vm}, last = {.vm = t->vm}, one = {.vm = t->vm};
  uint32_t said = 0, left = 0;
  for (uint32_t i = 0; i < t->list->n; i++) {
    const met *x = &t->list->all[i];
    if (!is_told(t, x, kind)) continue;
    const source_text *s = source_get(t->vm, x->why.at.source);
    const uint32_t line = source_line_of(s, x->why.at.start) + 1;
    one.len = 0;
    if (x->name) text_addf(&one, "%s ", x->name);
    if (x->why.at.source == t->about.source)
      text_addf(&one, "in line %u", line);
    else
      text_addf(&one, "at %s:%u", s->name, line);
    if (one.failed || (last.len == one.len && memcmp(last.text, one.text, one.len) == 0)) continue;
    last.len = 0;
    text_add(&last, one.text, one.len);
    if (said == SAID) {
      left++;
      continue;
    }
    if (said++) text_adds(&text, ", ");
    text_add(&text, one.text, one.len);
  }
  if (left) text_addf(&text, " and %u more", left);
  text_add(&text, "", 1);
  if (said && !text.failed) raise_note(t->vm, SPAN_NONE, "%s: %s", what, text.text);
  text_free(&text);
  text_free(&last);
  text_free(&one);
}

/* Notes the other places where captures end, of which `room` more notes are left: what does not find room is named by its line in the last one. */
static void note_breaks(const told *t, uint32_t room) {
  const uint32_t n = count_of(t, MET_BREAK), whole = n <= room ? n : room - 1;
  text_buf lines = {.vm = t->vm};
  uint32_t seen = 0;
  for (uint32_t i = 0; i < t->list->n; i++) {
    const met *x = &t->list->all[i];
    if (!is_told(t, x, MET_BREAK)) continue;
    if (seen++ < whole) {
      raise_note(t->vm, x->why.at, "%s%s%s", break_reasons[x->why.number], x->why.text[0] ? ": " : "", x->why.text);
      continue;
    }
    const source_text *s = source_get(t->vm, x->why.at.source);
    text_adds(&lines, lines.len ? ", " : "");
    if (x->why.at.source != t->about.source) text_addf(&lines, "%s:", s->name);
    text_addf(&lines, "%u", source_line_of(s, x->why.at.start) + 1);
  }
  text_add(&lines, "", 1);
  if (n > whole && !lines.failed) raise_note(t->vm, SPAN_NONE, "%u more places: lines %s", n - whole, lines.text);
  text_free(&lines);
}

bool fullgraph_apart(qn_vm *vm, const jit_anchor *a) {
  struct recording *r = rec_now(vm), *base = r ? rec_base(r) : NULL;
  if (!base || r != base || !a || !base->capturing || base->grads || vmap_around(r) || vm->asked.whole ||
      vm->asked.sync_once || value_is(vm->asked.watched_fn, TAG_FN)) /* (explain and graph ask about the call around) */
    return true;
  const anchor_specializations *list = a->entries;
  bool broken = false;
  for (const specialization *e = list ? list->first : NULL; e; e = e->next) {
    if (e->state != SPEC_BROKEN) return true;
    broken |= e->why != BREAK_memory && e->why != BREAK_no_arrays;
  }
  base->retry |= !broken;
  return rec_break(r, BREAK_apart, a->name);
}

/* Raises the error of a call of a function with this anchor: why it is no graph, and, if `list` is not NULL, what was met on the way. */
static void raise_broken(qn_vm *vm, const jit_anchor *a, const rec_reason *why, met_list *list) {
  static const struct {
    met_kind kind;
    const char *what;
  } places[] = {{MET_EFFECT, "made by the host on the way"},
                {MET_READ, "numbers that the host reads on the way"},
                {MET_EXIT, "ways that would be no part of the graph"}};
  enum { KINDS = sizeof places / sizeof *places };
  const char *hint = break_hints[why->number];
  raise_error(vm, E_no_graph, why->at, "%s cannot be captured as one graph: %s%s%s", a->name ? a->name : "the function",
              break_reasons[why->number], why->text[0] ? ": " : "", why->text);
  if (hint) raise_note(vm, SPAN_NONE, "%s", hint);
  told t = {.vm = vm, .list = list, .about = why->at};
  if (list->n) qsort(list->all, list->n, sizeof *list->all, by_place);
  uint32_t noted = hint != NULL;
  for (int k = 0; k < KINDS; k++) noted += count_of(&t, places[k].kind) != 0;
  for (int k = 0; k < KINDS; k++) note_places(&t, places[k].kind, places[k].what);
  note_breaks(&t, ERROR_NOTES - noted);
}

qn_value fullgraph_check(qn_vm *vm, const jit_anchor *a, qn_value fn, qn_value result) {
  specialization *e = vm->asked.served;
  rec_reason why = {.number = !e ? vm->asked.refused : e->state == SPEC_BROKEN ? (int)e->why : BREAK_none};
  if (why.number == BREAK_none || why.number == BREAK_memory) return result; /* memory may be available next time */
  if (e) why.at = e->why_at, memcpy(why.text, e->why_text, sizeof why.text);
  value_release(vm, result);
  const qn_fn *within = transform_within(fn);
  met_list *now = &jit_of(vm)->met, *list = e ? &e->met : now;
  for (uint32_t i = 0; e && i < now->n; i++) add(vm, list, now->all[i]);
  found_steps found = {vm, list};
  if (e) add_recorded(vm, list, e, NULL);
  if (within->head.flags == FN_USER)
    vm->hooks.steps(vm, value_obj(TAG_FN, (qn_fn *)(uintptr_t)within), add_step, &found);
  raise_broken(vm, a, &why, list);
  return value_error();
}

/* ---- calls within recordings ----------------------------------------------------------------------------------------------------
 *
 * A call that is made in a recording, as all are inside gradients and vmap, is a part of its graph, or the capture of that ends in it. What the interpreter
 * does from there on is not recorded as parts: of what lies behind, only that is known which ends every capture.
 */

void fullgraph_enter(qn_vm *vm, const jit_anchor *a, call_within *c) {
  struct recording *r = rec_now(vm), *base = r ? rec_base(r) : NULL;
  *c = (call_within){.base = NULL};
  const bool explained = vm->asked.sync_once || value_is(vm->asked.watched_fn, TAG_FN);
  if (!base || !a || base->asking || vm->asked.whole || vm->asked.nojit || vm->asked.alone || explained ||
      vm->config.jit == QN_JIT_OFF)
    return;
  jit_of(vm)->met.n = 0;
  base->asking = a;
  *c = (call_within){base, r->arm, base->nexit_places, base->taps.n, base->g->n};
}

void fullgraph_ends(struct recording *r, break_reason why, const char *text) {
  const struct recording *base = rec_base(r);
  if (!base->asking || base->capturing || r->arm) return;
  met x = {.kind = MET_BREAK, .why = {.number = (int)why, .at = r->at}};
  snprintf(x.why.text, sizeof x.why.text, "%s", text);
  add(r->vm, &jit_of(r->vm)->met, x);
}

qn_value fullgraph_leave(qn_vm *vm, const jit_anchor *a, const call_within *c, qn_value result) {
  struct recording *base = c->base;
  if (!base) return result;
  base->asking = NULL;
  if (value_is_error(result) || c->arm) return result;
  met_list *list = &jit_of(vm)->met;
  rec_reason why = {.number = BREAK_none};
  if (!base->capturing && base->why_asking == a) {
    why = (rec_reason){.number = (int)base->why, .at = base->why_at.source ? base->why_at : a->at};
    memcpy(why.text, base->why_text, sizeof why.text);
  } else if (list->n) { /* nothing was captured when it began */
    why = list->all[0].why;
  }
  if (why.number == BREAK_none || why.number == BREAK_memory) return result;
  value_release(vm, result);
  for (uint32_t i = c->exits; i < base->nexit_places; i++) add_place(vm, list, MET_EXIT, base->exit_places[i]);
  add_effects(vm, list, &base->taps, c->taps);
  add_reads(vm, list, base->g, c->nodes);
  raise_broken(vm, a, &why, list);
  return value_error();
}
