/* Specializations: how they are made of recordings, kept at anchors, and freed; and the guards that say which calls one of them serves.
 * (How a call finds its specialization and is made is in calls.c.)
 *
 * A specialization is what one recorded call leaves: the pattern of its values, guards on the host numbers that steered it, the template of
 * its result, and a plan, which the compiler threads make. A recording that broke off leaves a specialization without a plan, so that calls
 * of that kind are not recorded again.
 */
#include <stdio.h>
#include <string.h>

#include "jit/graph/region_builder.h"
#include "jit/run/eager.h"
#include "jit/run/plan_run.h"
#include "jit/trace/anchors.h"
#include "jit/trace/breaks.h"
#include "jit/trace/gradients.h"
#include "jit/trace/pattern.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/sizes.h"
#include "jit/trace/specialization.h"
#include "jit/trace/tracers.h"

/* The function with this id is freed: removes it from all part lists. */
static void part_gone(qn_vm *vm, uint32_t id) {
  for (anchor_specializations *a = jit_of(vm)->anchors; a; a = a->next) {
    parts_forget(&a->parts, id);
    for (specialization *e = a->first; e; e = e->next) parts_forget(&e->parts, id);
  }
  recs_forget_part(vm, id);
}

uint64_t specialization_calls(const specialization *e, uint64_t calls[CALL_FATES]) {
  calls[CALL_compiled] += e->replays;
  calls[CALL_verified] += e->verified;
  calls[CALL_waited] += e->waited;
  calls[CALL_timed] += e->timed;
  return e->hits - e->replays - e->verified - e->waited - e->timed;
}

void anchor_keep_counts(qn_vm *vm, anchor_specializations *list, const specialization *e) {
  list->calls[CALL_eager] += specialization_calls(e, list->calls);
  for (uint32_t i = 0; i < e->parts.n; i++)
    parts_count(vm, &list->parts, e->parts.list[i].id, e->parts.list[i].calls * e->replays);
}

int64_t anchor_plans_gained(const anchor_specializations *list) {
  int64_t gained = 0;
  for (specialization *e = list->first; e; e = e->next) {
    int64_t each = race_timed(&e->race) ? e->race.least[1] - e->race.least[0] : 0;
    if (each > 0) gained += each * (int64_t)(e->replays - e->weighed);
    e->weighed = e->replays;
  }
  return gained;
}

/* ---- specializations' life --------------------------------------------------------------------------------------------------------------- */

static void guards_drop(qn_vm *vm, specialization *e) {
  mem_free(vm, e->guards, e->nguards * sizeof *e->guards);
  e->guards = NULL;
  e->nguards = 0;
}

void specialization_clear(qn_vm *vm, specialization *e) {
  pattern_free(vm, &e->pattern);
  template_free(vm, &e->result);
  taps_free(vm, &e->taps);
  guards_drop(vm, e);
  if (e->graph) graph_free(e->graph);
  regions_cut(vm, &e->regions, 0);
  mem_free(vm, e->regions.list, e->regions.cap * sizeof *e->regions.list);
}

void specialization_free(qn_vm *vm, specialization *e) {
  if (vm->asked.served == e) vm->asked.served = NULL;
  for (vm_host *h = vm->host; h; h = h->outer)
    if (h->asked.served == e) h->asked.served = NULL;
  job_cancel(vm, e);
  trials_free(vm, e);
  plan_forget(vm, &e->there);
  if (e->plan) shared_plan_release(e->plan);
  specialization_clear(vm, e);
  rewrite_notes_free(vm, &e->rewritten);
  parts_free(vm, &e->parts);
  if (e->left) mem_free(vm, e->left, EXITS_KEPT * sizeof *e->left);
  mem_free(vm, e->met.all, e->met.capacity * sizeof *e->met.all);
  mem_free(vm, e, sizeof *e);
}

bool specialization_comes_often(specialization *e, uint64_t hash, int64_t often) {
  hot_sizes *room = NULL;
  for (int i = 0; i < HOT_SIZES; i++) {
    hot_sizes *x = &e->hot[i];
    if (x->hash == hash && ++x->calls < often) return false;
    if (x->hash == hash) return x->calls = 0, true;
    if (!x->calls) room = x;
  }
  if (room)
    *room = (hot_sizes){hash, 1};
  else
    for (int i = 0; i < HOT_SIZES; i++) e->hot[i].calls--;
  return often <= 1;
}

void anchor_drop(qn_vm *vm, anchor_specializations *list, specialization **at) {
  specialization *e = *at;
  *at = e->next;
  list->count--;
  list->exact -= e->exact != 0;
  anchor_keep_counts(vm, list, e);
  specialization_free(vm, e);
}

void specializations_outdated(qn_vm *vm) {
  jit_of(vm)->epoch++;
  for (anchor_specializations *a = jit_of(vm)->anchors; a; a = a->next)
    for (specialization **at = &a->first; *at;) {
      specialization *e = *at;
      e->outdated = e->state != SPEC_BROKEN;
      if (e->running || !e->outdated) {
        at = &e->next;
        continue;
      }
      *at = e->next;
      a->count--;
      a->misses = 0;
      a->full = false;
      anchor_keep_counts(vm, a, e);
      specialization_free(vm, e);
    }
}

void anchor_specializations_free(qn_vm *vm, anchor_specializations *e) {
  for (specialization *x = e->first, *next; x; x = next) {
    next = x->next;
    specialization_free(vm, x);
  }
  mem_free(vm, e->recompiles, e->recompiles_cap * sizeof *e->recompiles);
  parts_free(vm, &e->parts);
  for (uint32_t i = 0; i < e->nplaces; i++)
    for (uint32_t k = 0; k < e->places[i].depth; k++) value_release(vm, value_obj(TAG_STR, e->places[i].names[k]));
  if (e->places) mem_free(vm, e->places, PLACES_MAX * sizeof *e->places);
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
  for (specialization *x = e->first; x; x = x->next) anchor_keep_counts(vm, e, x);
  for (anchor_specializations *other = jit_of(vm)->anchors; other && e->parts.n; other = other->next)
    for (uint32_t i = 0; i < e->parts.n; i++)
      if (e->parts.list[i].id == other->id) other->calls[CALL_part] += e->parts.list[i].calls;
  if (e->part && !vm->closing) part_gone(vm, e->id);
  anchor_specializations_free(vm, e);
}

/* ---- scalar guards ----------------------------------------------------------------------------------------------------------- */

/* Makes the guards of a recording: the host numbers that steered it, and those that they are computed from, in order. False if one cannot
 * be made; *broken says why. Then the guards are those that can be made, and tell calls that break off in the same way from others. */
static bool guards_make(struct recording *r, specialization *e, break_reason *broken) {
  enum { NEEDED = UINT32_MAX };
  qn_vm *vm = r->vm;
  const graph *g = r->g;
  *broken = BREAK_none;
  if (!r->nobserved && !r->nmade) return true;
  *broken = BREAK_memory;
  size_t bytes = g->n * sizeof(uint32_t);
  uint32_t *number = mem_zalloc(vm, bytes);             /* for each node: the number of its guard + 1, or NEEDED */
  uint8_t *data = number ? mem_zalloc(vm, g->n) : NULL; /* for each node: it is made from an array's element */
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
  for (uint32_t i = 0; i < r->nmade; i++) number[r->made[i].node] = NEEDED;
  uint32_t count = 0;
  for (uint32_t i = g->n - 1; i > 0; i--) {
    if (!number[i]) continue;
    count++;
    if (g->nodes[i].kind == NODE_OP)
      for (int k = 0; k < g->nodes[i].nin; k++) number[g->nodes[i].in[k]] = NEEDED;
  }
  /* Too many: in place of what is computed from the numbers of the call these themselves must be as they are. */
  const bool given = count > GUARDS_MAX;
  if (given) count = 0;
  for (uint32_t i = 1; i < g->n && given; i++) {
    if (!number[i] || g->nodes[i].kind != NODE_INPUT)
      number[i] = 0;
    else
      count += value_is_scalar(r->vals[i]) ? 1 : GUARDS_MAX + 1;
  }
  if (count > GUARDS_MAX || (given && r->nmade)) /* (these would have to be computed) */
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
      x->compare = given;
      if (given) x->value = value_plain(r->vals[i]);
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
  for (uint32_t i = 0; i < r->nobserved && e->guards && !given; i++) {
    if (data[r->observed[i].node]) continue;
    scalar_guard *x = &e->guards[number[r->observed[i].node] - 1];
    x->compare = true;
    x->value = r->observed[i].value;
  }
  for (uint32_t i = 0; i < r->nmade && e->guards; i++)
    e->guards[number[r->made[i].node] - 1].sets = r->made[i].input + 1;
  mem_free(vm, data, g->n);
  mem_free(vm, number, bytes);
  return *broken == BREAK_none;
}

static bool same_scalar(qn_value a, qn_value b) {
  return (a.head & 0xff) == (b.head & 0xff) &&
         (a.u.i == b.u.i || (value_is(a, TAG_FLOAT) && a.u.f == b.u.f && a.u.f != 0));
}

/* A number as it is written in programs. */
static void print_number(text_buf *out, qn_value v) {
  if (value_is(v, TAG_FLOAT))
    text_float(out, v.u.f, WEAK_FLOAT);
  else if (value_is(v, TAG_BOOL))
    text_adds(out, v.u.i ? "true" : "false");
  else
    text_addf(out, "%lld", (long long)v.u.i);
}

/* Appends guard i as it is written in programs: "(n + 1) % 2 == 0". */
static void print_guard(const specialization *e, uint32_t i, text_buf *out, int depth) {
  const scalar_guard *x = &e->guards[i];
  const char *sign = x->op == GUARD_INPUT || x->op == GUARD_CONST || x->nin != 2 ? NULL : op_operator((op_id)x->op);
  if (x->op == GUARD_INPUT) {
    pattern_input_name(&e->pattern, x->in[0], out);
  } else if (x->op == GUARD_CONST) {
    print_number(out, x->value);
  } else if (depth > 8) {
    text_adds(out, "...");
  } else if (sign) {
    for (int k = 0; k < 2; k++) {
      const scalar_guard *in = &e->guards[x->in[k]];
      bool apart = in->op != GUARD_INPUT && in->op != GUARD_CONST && in->nin == 2 && op_operator((op_id)in->op) &&
                   !strchr("=!<>", *sign); /* comparisons bind less than all others */
      if (k) text_addf(out, " %s ", sign);
      if (apart) text_adds(out, "(");
      print_guard(e, x->in[k], out, depth + 1);
      if (apart) text_adds(out, ")");
    }
  } else {
    text_addf(out, "%s(", op_rows[x->op].name);
    for (int k = 0; k < x->nin; k++) {
      if (k) text_adds(out, ", ");
      print_guard(e, x->in[k], out, depth + 1);
    }
    text_adds(out, ")");
  }
}

/* Appends a value that guard i has or must have: "int 3" of a number that was given, "true" of what is computed. */
static void print_guarded(const specialization *e, uint32_t i, qn_value v, text_buf *out) {
  if (e->guards[i].op == GUARD_INPUT)
    text_kind(out, v);
  else
    print_number(out, v);
}

void specialization_number_guard(const specialization *e, uint32_t i, text_buf *out) {
  print_guard(e, i, out, 0);
  text_adds(out, " is ");
  print_guarded(e, i, e->guards[i].value, out);
}

/* Are guards i and j the same expression? first[k] is the first one that is the same as k, for all before these. */
static bool guards_same(const specialization *e, uint32_t i, uint32_t j, const uint32_t *first) {
  const scalar_guard *x = &e->guards[i], *y = &e->guards[j];
  if (x->op != y->op || x->nin != y->nin || x->dtype != y->dtype) return false;
  if (x->op == GUARD_INPUT) return x->in[0] == y->in[0];
  if (x->op == GUARD_CONST) return same_scalar(x->value, y->value);
  bool same = true;
  for (int k = 0; k < x->nin && same; k++) same = first[x->in[k]] == first[y->in[k]];
  return same;
}

void specialization_guards(const specialization *e, text_buf *out) {
  uint32_t first[GUARDS_MAX];
  bool said[GUARDS_MAX] = {false};
  pattern_print(&e->pattern, out);
  for (uint32_t i = 0; i < e->nguards; i++) {
    first[i] = 0;
    while (first[i] < i && !guards_same(e, i, first[i], first)) first[i]++;
    if (!e->guards[i].compare || said[first[i]]) continue;
    said[first[i]] = true;
    specialization_number_guard(e, i, out);
    text_adds(out, "\n");
  }
}

/* The value of guard i, given those before it. The error value, with no error raised: it cannot be computed. */
static qn_value guard_value(qn_vm *vm, const specialization *e, const qn_value *scalars, const qn_value *vals,
                            uint32_t i) {
  const scalar_guard *x = &e->guards[i];
  qn_value in[3];
  if (x->op == GUARD_INPUT) return scalars[x->in[0]];
  if (x->op == GUARD_CONST) return x->value;
  for (int k = 0; k < x->nin; k++) in[k] = vals[x->in[k]];
  qn_value v =
      x->op == OP_cast ? eager_weak_cast(vm, in[0], (qn_dtype)x->dtype) : scalar_apply(vm, (op_id)x->op, in, x->nin);
  if (value_is_error(v)) error_clear(vm);
  return v;
}

bool specialization_sizes_made(qn_vm *vm, const specialization *e, qn_array **inputs, qn_value *scalars) {
  qn_value vals[GUARDS_MAX];
  bool made = false;
  for (uint32_t i = 0; i < e->nguards; i++) {
    if (!e->guards[i].sets) continue;
    scalars[e->guards[i].sets - 1] =
        value_int(2); /* until it is computed, perhaps of sizes that depend on others of these */
    inputs[e->guards[i].sets - 1] = NULL;
    made = true;
  }
  for (uint32_t last = 0, i; made && last < e->nguards; last = i + 1) {
    if (!pattern_sizes_fill(vm, &e->pattern, inputs, scalars)) return false;
    for (i = 0; i < e->nguards; i++) {
      if (value_is_error(vals[i] = guard_value(vm, e, scalars, vals, i))) return false;
      if (!e->guards[i].sets || i < last) continue;
      if (!value_is(vals[i], TAG_INT)) return false;
      scalars[e->guards[i].sets - 1] = value_plain(vals[i]);
      break;
    }
  }
  return true;
}

bool specialization_guards_hold(qn_vm *vm, const specialization *e, const qn_value *scalars, text_buf *why) {
  qn_value vals[GUARDS_MAX];
  for (uint32_t i = 0; i < e->nguards; i++) {
    const scalar_guard *x = &e->guards[i];
    vals[i] = guard_value(vm, e, scalars, vals, i);
    if (x->op == GUARD_CONST) continue;
    if (value_is_error(vals[i])) {
      if (why) {
        print_guard(e, i, why, 0);
        text_adds(why, " cannot be computed");
      }
      return false;
    }
    if (x->compare && !same_scalar(vals[i], x->value)) {
      if (why) {
        print_guard(e, i, why, 0);
        text_adds(why, " is ");
        print_guarded(e, i, vals[i], why);
        text_adds(why, " instead of ");
        print_guarded(e, i, x->value, why);
      }
      return false;
    }
  }
  return true;
}

/* ---- what a recording leaves ---------------------------------------------------------------------------------------------- */

/* The unit (fn_shared.home) of the code on which specializations of this function hang; NULL if it belongs to none. */
static const void *home_of(const struct recording *r, qn_value fn) {
  if (!value_is(fn, TAG_FN)) return r->home;
  const qn_fn *f = value_fn(fn);
  while (f->head.flags == FN_TRANSFORM) f = value_fn(f->captures[0]);
  return f->head.flags == FN_USER ? ((const fn_shared *)f->code)->home : NULL;
}

/* What the call leaves of the random numbers: how many it draws, or the state as outputs of the graph. False with an error raised. */
static bool draws_of(struct recording *r, specialization *e) {
  for (int i = 0; i < RANDOM_INPUTS; i++) {
    qn_value v = r->drawn[i];
    if (value_is(v, TAG_UNSET)) continue;
    uint64_t ahead = i == RANDOM_DRAW ? r->ahead : 0;
    uint32_t node = rec_node(r, v);
    if (node && node == r->random[i]) {
      e->ndraws += ahead;
      continue;
    }
    if (node && ahead) node = graph_count(r->g, OP_add, node, graph_weak_int(r->g, (int64_t)ahead));
    if (!node || !rec_room(r) || !template_output(r, node, &e->drawn[i])) return fail_memory(r->vm);
  }
  return true;
}

specialization *specialization_make(struct recording *r, qn_value fn, qn_value result) {
  qn_vm *vm = r->vm;
  specialization *e = mem_zalloc(vm, sizeof *e);
  if (!e) return NULL;
  e->why = r->why;
  e->rooms = r->rooms;
  e->exits = r->exits;
  e->tried = r->tried;
  e->why_at = r->why_at;
  memcpy(e->why_text, r->why_text, sizeof e->why_text);
  bool capture = r->capturing;
  if (!sizes_settle(r)) {
    mem_free(vm, e, sizeof *e);
    raise_memory(vm);
    return NULL;
  }
  if (capture) {
    bool any = value_is(vm->asked.watched_fn, TAG_FN); /* somebody asks for the graph, even one that computes nothing */
    for (uint32_t i = 1; i < r->g->n && !any; i++) {
      const graph_node *n = &r->g->nodes[i];
      any = graph_is_run(n) && n->kind != NODE_TAP && !n->type.weak;
    }
    break_reason broken = any ? BREAK_none : BREAK_no_arrays;
    if (capture && broken == BREAK_none && !template_make(r, result, &e->result, &broken) && error_pending(vm))
      broken = BREAK_memory;
    if (broken == BREAK_none && !draws_of(r, e)) broken = BREAK_memory;
    if (broken == BREAK_none && !guards_make(r, e, &broken)) e->why_at = r->at;
    if (broken == BREAK_none && !pattern_fix_layouts(r)) broken = BREAK_memory;
    if (broken != BREAK_none) {
      error_clear(vm);
      capture = false;
      e->why = broken;
    }
  }
  if (!capture && !e->guards) { /* the numbers that led to the break: with others the recording may succeed */
    break_reason none;
    if (!guards_make(r, e, &none)) error_clear(vm);
  }
  template_settle(&e->result, home_of(r, fn));
  for (uint32_t i = 0; i < r->pattern.nroots; i++) {
    value_release(vm, r->pattern.roots[i].tracer);
    value_release(vm, r->pattern.roots[i].given);
    r->pattern.roots[i].tracer = r->pattern.roots[i].given = value_nil();
  }
  if (capture) pattern_settle(vm, &r->pattern, fn);
  e->pattern = r->pattern;
  memset(&r->pattern, 0, sizeof r->pattern);
  e->epoch = jit_of(vm)->epoch;
  e->asked = jit_asked(fn);
  for (int i = 0; i < RANDOM_INPUTS; i++)
    if (r->random[i]) e->random[i] = r->g->nodes[r->random[i]].payload.input + 1;
  e->device = r->device;
  e->state = capture ? SPEC_COMPILING : SPEC_BROKEN;
  if (capture) {
    if (r->had_lanes) { /* nodes of single lanes are not part of any result */
      graph_dce_regions(r->g, r->regions.list, r->regions.n);
      regions_drop_empty(vm, &r->regions);
    }
    e->graph = r->g;
    e->regions = r->regions;
    e->rewritten = r->rewritten;
    r->rewritten = (rewrite_notes){0};
    if (!taps_settle(vm, &r->taps, r->g)) error_clear(vm); /* then some may be listed that are never made */
    e->taps = r->taps;
    r->g = NULL;
    r->taps = (tap_list){0};
    r->regions = (region_list){0};
    if (!regions_settle(vm, &e->regions, home_of(r, fn)))
      error_clear(vm); /* without memory the code simply lives as long as the specialization */
    for (uint32_t i = 0; i < r->parts.n && e->state != SPEC_BROKEN; i++) {
      if (parts_add(vm, &e->parts, r->parts.list[i].id, r->parts.list[i].calls)) continue;
      e->state = SPEC_BROKEN;
      e->why = BREAK_memory;
    }
  } else { /* what was told on the way, for those who ask (fullgraph) */
    for (uint32_t i = 0; i < r->taps.n; i++) template_free(vm, &r->taps.list[i].args);
    e->taps = r->taps;
    r->taps = (tap_list){0};
  }
  if (!e->why_at.source && r->of) e->why_at = r->of->anchor->at; /* the reason has no place of its own */
  return e;
}

/* Did two recordings of calls of one shape break off at the same place? */
static bool same_break(const specialization *a, const specialization *b) {
  return a->state == SPEC_BROKEN && b->state == SPEC_BROKEN && a->hash && a->hash == b->hash && a->why == b->why &&
         a->why_at.source == b->why_at.source && a->why_at.start == b->why_at.start;
}

specialization *anchor_add(qn_vm *vm, anchor_specializations *list, specialization *e) {
  enum { ALIKE = 4 };
  specialization **at = &list->first, *first = NULL;
  uint32_t alike = 1;
  for (; e->state == SPEC_BROKEN && *at; at = &(*at)->next) {
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
  list->exact += e->exact != 0;
  e->next = *at;
  *at = e;
  return e;
}
