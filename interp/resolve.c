/* The resolver, which makes a unit of a tree. Here: variables and captures, lvalues, function code, and units as a whole.
 *
 * A local variable gets a slot in the frame of its function; slots are used again when their block has ended. A variable of an enclosing
 * function is captured by value when the function value is made. Any other name is a cell of the module's scope, whether or not it is
 * defined: that is checked when the whole text has been walked (check_pending).
 */
#include "interp/resolve.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- memory of the unit ------------------------------------------------------------------------------------------------ */

void *unit_alloc(resolver *r, size_t bytes) {
  void *p = arena_alloc(&r->unit->nodes, bytes ? bytes : 1);
  if (!p && !error_pending(r->vm)) raise_memory(r->vm);
  return p;
}

void *node_new(resolver *r, size_t bytes, eval_fn eval, const ast_node *at) {
  node *n = unit_alloc(r, bytes);
  if (!n) return NULL;
  n->eval = eval;
  n->at = at->at;
  return n;
}

bool unit_keep(resolver *r, qn_value v) {
  unit *u = r->unit;
  if (!mem_grow(r->vm, (void **)&u->kept, &u->kept_cap, (size_t)u->nkept + 1, sizeof *u->kept)) {
    value_release(r->vm, v);
    return false;
  }
  u->kept[u->nkept++] = v;
  return true;
}

bool unit_layout(resolver *r, record_layout **slot) {
  unit *u = r->unit;
  if (!mem_grow(r->vm, (void **)&u->layouts, &u->layouts_cap, (size_t)u->nlayouts + 1, sizeof *u->layouts))
    return false;
  u->layouts[u->nlayouts++] = slot;
  return true;
}

static void uses_free(qn_vm *vm, const fn_uses *x) {
  mem_free(vm, x->events, x->events_cap * sizeof *x->events);
  mem_free(vm, x->reads, x->reads_cap * sizeof *x->reads);
  mem_free(vm, x->names, x->names_cap * sizeof *x->names);
}

void unit_free(qn_vm *vm, unit *u) {
  for (const fn_code *c = u->codes; c; c = c->next) anchors_forget(vm, c->shared.id);
  for (fn_code *c = u->codes; c; c = c->next) anchor_close(vm, &c->anchor);
  for (turn_code *t = u->loops; t; t = t->next) anchor_close(vm, &t->anchor);
  for (const fn_uses *x = u->uses; x; x = x->next) uses_free(vm, x);
  for (uint32_t i = 0; i < u->nlayouts; i++) {
    record_layout *l = *(record_layout **)u->layouts[i];
    if (l) layout_release(vm, l);
  }
  for (uint32_t i = 0; i < u->nkept; i++) value_release(vm, u->kept[i]);
  mem_free(vm, u->kept, u->kept_cap * sizeof *u->kept);
  mem_free(vm, u->layouts, u->layouts_cap * sizeof *u->layouts);
  arena_free(&u->nodes);
  mem_free(vm, u, sizeof *u);
}

void warn(resolver *r, span at, const char *format, ...) {
  if (r->scope->library) return;
  char line[256];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  text_warning(r->vm, r->warnings, at, line);
}

/* ---- functions being resolved --------------------------------------------------------------------------------------------- */

static void function_begin(resolver *r, function *f) {
  memset(f, 0, sizeof *f);
  f->outer = r->fn;
  r->fn = f;
}

static void function_end(resolver *r) {
  function *f = r->fn;
  qn_vm *vm = r->vm;
  mem_free(vm, f->vars, f->vars_cap * sizeof *f->vars);
  mem_free(vm, f->captures, f->captures_cap * sizeof *f->captures);
  if (f->kept) {
    fn_uses *next = f->kept->next;
    *f->kept = f->uses;
    f->kept->next = next;
  } else {
    uses_free(vm, &f->uses);
  }
  mem_free(vm, f->grown, f->grown_cap * sizeof *f->grown);
  mem_free(vm, f->stored, f->stored_cap * sizeof *f->stored);
  mem_free(vm, f->growing, f->growing_cap * sizeof *f->growing);
  mem_free(vm, f->data, f->data_cap * sizeof *f->data);
  r->fn = f->outer;
}

variable *declare(resolver *r, qn_str *name, span at, bool expects_use) {
  function *f = r->fn;
  fn_uses *u = &f->uses;
  if (!mem_grow(r->vm, (void **)&f->vars, &f->vars_cap, (size_t)f->nvars + 1, sizeof *f->vars) ||
      !mem_grow(r->vm, (void **)&u->names, &u->names_cap, (size_t)u->nnames + 1, sizeof *u->names))
    return NULL;
  u->names[u->nnames++] = (struct slot_name){f->top, name};
  variable *v = &f->vars[f->nvars++];
  *v = (variable){.name = name, .slot = f->top++, .decl = at, .expects_use = expects_use};
  if (f->top > f->most) f->most = f->top;
  return v;
}

variable *find_variable(function *f, const qn_str *name) {
  for (uint32_t i = f->nvars; i > 0; i--)
    if (f->vars[i - 1].name == name) return &f->vars[i - 1];
  return NULL;
}

bool is_self(const function *f, const qn_str *name) { return f->self == name; }

int find_capture(resolver *r, function *f, qn_str *name) {
  if (!f->outer) return -1;
  for (uint32_t i = 0; i < f->ncaptures; i++)
    if (f->captures[i].name == name) return (int)i;
  capture_source source;
  variable *v = find_variable(f->outer, name);
  if (v) {
    v->captured = true;
    if (!note_read(r, f->outer, v)) return -2;
    source = (capture_source){FROM_LOCAL, v->slot};
  } else if (is_self(f->outer, name)) {
    source = (capture_source){FROM_SELF, 0};
  } else {
    int k = find_capture(r, f->outer, name);
    if (k < 0) return k;
    source = (capture_source){FROM_CAPTURE, (uint32_t)k};
  }
  if (!mem_grow(r->vm, (void **)&f->captures, &f->captures_cap, (size_t)f->ncaptures + 1, sizeof *f->captures))
    return -2;
  f->captures[f->ncaptures] = (captured){name, source};
  return (int)f->ncaptures++;
}

void note_made(resolver *r, const qn_str *name, span at) {
  enum { MADE_MAX = 10000 }; /* with more of them, messages are less helpful */
  const global_cell *c = r->nmade < MADE_MAX ? scope_find(r->scope, name) : NULL;
  if (!c) return;
  if (mem_grow(r->vm, (void **)&r->made, &r->made_cap, (size_t)r->nmade + 1, sizeof *r->made))
    r->made[r->nmade++] = (made_global){c, at};
  else
    error_clear(r->vm);
}

span hidden_by(const resolver *r, const qn_str *name, uint32_t before) {
  for (uint32_t i = before; i > 0; i--)
    if (r->fn->vars[i - 1].name == name) return r->fn->vars[i - 1].decl;
  const global_cell *c = at_top(r) ? scope_find(r->scope, name) : NULL;
  if (!c) return SPAN_NONE;
  for (uint32_t i = r->nmade; i > 0; i--)
    if (r->made[i - 1].cell == c) return r->made[i - 1].at;
  /* It was made by an earlier text of the prompt. Only data counts: names of functions and modules may well be used again. */
  bool variable = c->value.head != TAG_UNSET && !value_is(c->value, TAG_FN) && !value_is(c->value, TAG_MODULE);
  return c->declared && variable ? c->decl : SPAN_NONE;
}

/* A let in a block has made a variable that nothing reads. If it hides another one, an assignment was meant, and a warning says so. False
 * if it hides none. */
static bool warn_hiding(resolver *r, const variable *v, uint32_t before) {
  /* in a function's outermost block it is no mistake; lets of the top level are globals */
  if (r->fn->outer && r->fn->blocks <= 1) return false;
  span hidden = hidden_by(r, v->name, before);
  if (!hidden.source) return false;
  warn_hidden(r, v->name, v->decl, hidden);
  return true;
}

void warn_hidden(resolver *r, const qn_str *name, span at, span hidden) {
  int here = 0, row = 0, column = 0;
  const source_text *s = source_get(r->vm, hidden.source);
  source_position(source_get(r->vm, at.source), at.start, &here, &column);
  if (s) source_position(s, hidden.start, &row, &column);
  char where[64] = "the one before the block";
  if (s && hidden.source == at.source && row != here) snprintf(where, sizeof where, "the one of line %d", row);
  warn(r, at, "this let makes a new '%s', which ends with its block; %s stays as it is: write %s = ... to change it",
       name->text, where, name->text);
}

/* The scope of a variable ends: loops in which it grows as a list are told whether it may hold a stacked one behind them. */
static void growing_ends(function *f, const variable *v) {
  bool stacks = v->reads == v->stackable && !v->captured;
  for (uint32_t i = f->ngrowing; i > 0; i--) {
    const struct growing *g = &f->growing[i - 1];
    if (g->slot != v->slot) continue;
    const bool only_result = v->reads - v->returned == g->others; /* behind the loop, which the capture may have left */
    if (stacks && (!v->returned || only_result)) g->site->stacks |= (uint64_t)1 << g->bit;
    if (stacks && v->returned) g->site->returned |= (uint64_t)1 << g->bit;
    f->growing[i - 1] = f->growing[--f->ngrowing];
  }
}

/* The scope of variables ends. One that a let has made and nothing has changed holds a stacked list if its value may be one and all that is done with it
 * is noted as such: that value is read by these. The last ones come first, since they may be made of others. */
static void lets_end(resolver *r, uint32_t first) {
  function *f = r->fn;
  const uint32_t all = f->nvars;
  for (; f->nvars > first; f->nvars--) { /* (what it is made of is looked for among those before) */
    const variable *v = &f->vars[f->nvars - 1];
    if (!v->target || !v->stackable || v->reads != v->stackable || v->captured || rebound_since(r, v->slot, v->made))
      continue;
    v->target->stacks = true;
    if (v->initial) note_stackable(r, v->initial);
  }
  f->nvars = all;
}

void forget(resolver *r, uint32_t first) {
  enum { ENDED_MAX = 10000 }; /* with more of them, messages are less helpful */
  function *f = r->fn;
  lets_end(r, first);
  for (uint32_t i = first; i < f->nvars; i++) {
    const variable *v = &f->vars[i];
    if (f->ngrowing) growing_ends(f, v);
    if (r->nended < ENDED_MAX && (v->expects_use || first > 0 || !f->outer)) { /* not a parameter */
      if (mem_grow(r->vm, (void **)&r->ended, &r->ended_cap, (size_t)r->nended + 1, sizeof *r->ended))
        r->ended[r->nended++] = (ended_name){v->name, v->decl, v->value, f->at};
      else
        error_clear(r->vm);
    }
    if (v->expects_use && v->reads == 0 && v->name->text[0] != '_' && !warn_hiding(r, v, first))
      warn(r, v->decl, "'%s' is never used; the name _%s says that this is meant", v->name->text, v->name->text);
  }
  f->nvars = first;
}

bool note_assigned(resolver *r, global_cell *cell, uint32_t slot) {
  function *f = r->fn;
  fn_uses *u = &f->uses;
  if (!mem_grow(r->vm, (void **)&u->events, &u->events_cap, (size_t)u->nevents + 1, sizeof *u->events)) return false;
  u->events[u->nevents++] = (event){cell, slot, 0};
  return true;
}

bool note_read(resolver *r, function *f, variable *v) {
  v->reads++;
  fn_uses *u = &f->uses;
  if (!mem_grow(r->vm, (void **)&u->reads, &u->reads_cap, (size_t)u->nreads + 1, sizeof *u->reads)) return false;
  u->reads[u->nreads++] = v->slot;
  return true;
}

variable *variable_in(const function *f, uint32_t slot) {
  for (uint32_t i = f->nvars; i > 0; i--)
    if (f->vars[i - 1].slot == slot) return &f->vars[i - 1];
  return NULL;
}

void note_stackable(resolver *r, const node *read) {
  variable *v = read->kind == N_LOCAL ? variable_in(r->fn, read->slot) : NULL;
  if (v) v->stackable++;
  if (read->kind == N_FIELD) ((n_field *)(uintptr_t)read)->stacks = true;
  if (read->eval == eval_index || read->eval == eval_index_one) ((n_index *)(uintptr_t)read)->stacks = true;
  if (read->kind == N_BINARY) ((n_binary *)(uintptr_t)read)->stacks = true;
  if (read->eval == eval_call || read->eval == eval_method) ((n_call *)(uintptr_t)read)->stacks = STACKS_VALUE;
}

/* Notes a local that grows in loops of the function as one of its results. */
static void note_grown_result(resolver *r, const node *value) {
  const function *f = r->fn;
  bool grows = false;
  for (uint32_t i = 0; i < f->ngrowing && value->kind == N_LOCAL && !grows; i++)
    grows = f->growing[i].slot == value->slot;
  for (uint32_t i = 0; i < f->ngrown && value->kind == N_LOCAL && !grows; i++)
    grows = !f->grown[i].cell && f->grown[i].slot == value->slot;
  if (!grows) return;
  note_stackable(r, value);
  variable *v = variable_in(f, value->slot);
  if (v) v->returned++;
}

void note_returned(resolver *r, const node *value) {
  note_grown_result(r, value);
  const n_items *list = value->eval == eval_list ? (const n_items *)value : NULL;
  for (uint32_t i = 0; list && i < list->n; i++) note_grown_result(r, list->items[i]);
}

void note_result(resolver *r, const node *value) {
  const function *f = r->fn;
  enum { OF_BODY = 2 }; /* the function itself, and the block that it has */
  if (!f->outer || f->blocks != OF_BODY) return;
  if (f->returns) {
    note_returned(r, value);
    return;
  }
  note_stackable(r, value);
  if (value->eval == eval_call || value->eval == eval_method) ((n_call *)(uintptr_t)value)->stacks = STACKS_RESULT;
  const n_items *list = value->eval == eval_list ? (const n_items *)value : NULL;
  for (uint32_t i = 0; list && i < list->n; i++) note_stackable(r, list->items[i]);
}

void note_destructured(resolver *r, const node *value) {
  if (value->eval == eval_call || value->eval == eval_method) ((n_call *)(uintptr_t)value)->stacks = STACKS_RESULT;
  const n_items *list = value->eval == eval_list ? (const n_items *)value : NULL;
  for (uint32_t i = 0; list && i < list->n; i++) note_stackable(r, list->items[i]);
}

bool note_grown(resolver *r, global_cell *cell, uint32_t slot, bool noted) {
  function *f = r->fn;
  variable *v = cell || noted ? NULL : variable_in(f, slot);
  if (v) v->stackable++; /* n_grow reads it */
  if (!mem_grow(r->vm, (void **)&f->grown, &f->grown_cap, (size_t)f->ngrown + 1, sizeof *f->grown)) return false;
  f->grown[f->ngrown++] = (event){cell, slot, f->loops && f->blocks > f->loop_block ? f->loops : 0};
  return true;
}

bool rebound_since(const resolver *r, uint32_t slot, uint32_t mark) {
  for (uint32_t i = mark; i < r->fn->uses.nevents; i++)
    if (!r->fn->uses.events[i].cell && r->fn->uses.events[i].slot == slot) return true;
  return false;
}

bool module_defines(const resolver *r, const global_cell *c) { return c->declared || c->unit == r->unit->number; }

/* ---- sites -------------------------------------------------------------------------------------------------------------------- */

site_mark site_here(const resolver *r) {
  return (site_mark){r->fn->uses.nevents, r->fn->top, r->fn->uses.nreads, r->fn->ngrown, r->fn->nstored};
}

site *site_begin(resolver *r, site_mark *mark) {
  *mark = site_here(r);
  return unit_alloc(r, sizeof(site));
}

bool site_end(resolver *r, site *s, const site_mark *mark) {
  const function *f = r->fn;
  uint32_t from = mark->events, outer = mark->top, most = f->uses.nevents - from;
  if (most == 0) return true;
  s->locals = unit_alloc(r, most * sizeof *s->locals);
  s->globals = unit_alloc(r, most * sizeof *s->globals);
  if (!s->locals || !s->globals) return false;
  enum { SEARCHED = 64 }; /* if there are more assignments, a variable may be listed twice, which is allowed */
  for (uint32_t i = from; i < f->uses.nevents; i++) {
    const event *e = &f->uses.events[i];
    bool known = false;
    if (e->cell) {
      for (uint32_t k = 0; k < s->nglobals && k < SEARCHED; k++) known |= s->globals[k] == e->cell;
      if (!known) s->globals[s->nglobals++] = e->cell;
    } else if (e->slot < outer) {
      for (uint32_t k = 0; k < s->nlocals && k < SEARCHED; k++) known |= s->locals[k] == e->slot;
      if (!known) s->locals[s->nlocals++] = e->slot;
    }
  }
  return true;
}

/* Adds a variable, or a global, to those that the turns of a loop begin with, unless it is there or there are too many, or to those whose lists
 * they add to. */
static void turn_variable_add(turn_code *t, turn_variable x, bool grows) {
  if (t->n > TURN_VARIABLES) return;
  for (uint32_t i = 0; i < t->n; i++)
    if (t->variables[i].cell == x.cell && t->variables[i].slot == x.slot) return;
  for (uint32_t i = 0; i < t->ngrown; i++)
    if (t->grown[i].cell == x.cell && t->grown[i].slot == x.slot) return;
  if (grows && t->ngrown < TURN_GROWN) {
    t->grown[t->ngrown++] = x;
    return;
  }
  if (t->n < TURN_VARIABLES) t->variables[t->n] = x;
  t->n++;
}

static uint32_t count_of(const uint32_t *slots, uint32_t from, uint32_t n, uint32_t slot) {
  uint32_t count = 0;
  for (uint32_t i = from; i < n; i++) count += slots[i] == slot;
  return count;
}

static uint32_t count_events(const event *events, uint32_t from, uint32_t n, event e) {
  uint32_t count = 0;
  for (uint32_t i = from; i < n; i++) count += events[i].cell == e.cell && (e.cell || events[i].slot == e.slot);
  return count;
}

/* Does a turn of a loop, of which f->loops are open around it, add items to a list in an arm? */
static bool grows_in_arm(const function *f, const site_mark *mark, event x) {
  for (uint32_t i = mark->grown; i < f->ngrown; i++) {
    const event *e = &f->grown[i];
    if (e->cell == x.cell && (x.cell || e->slot == x.slot) && e->arm == f->loops + 1) return true;
  }
  return false;
}

/* Do the turns of a loop use a variable only to add items to it? Each such assignment reads it once. (Whether something else reads a global is
 * seen when it does: rec_global.) */
static bool only_grows(const function *f, const site_mark *mark, event x) {
  uint32_t n = count_events(f->grown, mark->grown, f->ngrown, x);
  const fn_uses *u = &f->uses;
  return n > 0 && count_events(u->events, mark->events, u->nevents, x) == n &&
         (x.cell || count_of(u->reads, mark->reads, u->nreads, x.slot) == n);
}

bool loop_end(resolver *r, const node *loop, site *s, const site_mark *mark, turn_code **out) {
  const function *f = r->fn;
  if (!site_end(r, s, mark)) return false;
  bool some = f->ngrown > mark->grown || f->nstored > mark->stored;
  for (uint32_t i = 0; i < s->nlocals + s->nglobals && i < 64 && some; i++) {
    bool local = i < s->nlocals;
    event x = {.cell = local ? NULL : s->globals[i - s->nlocals], .slot = local ? s->locals[i] : 0};
    bool stores = local && count_events(f->stored, mark->stored, f->nstored, x);
    if (!stores && !count_events(f->grown, mark->grown, f->ngrown, x)) continue;
    if (stores) s->stores |= (uint64_t)1 << i;
    if (only_grows(f, mark, x)) s->grown |= (uint64_t)1 << i;
    if (!local) continue;
    const variable *v = variable_in(f, s->locals[i]);
    if (!mem_grow(r->vm, (void **)&r->fn->growing, &r->fn->growing_cap, (size_t)f->ngrowing + 1, sizeof *f->growing))
      return false;
    r->fn->growing[r->fn->ngrowing++] = (struct growing){s, s->locals[i], i, v ? v->reads - v->returned : 0};
  }
  turn_code t = {.n = 0};
  turn_variable all[TURN_VARIABLES], grown[TURN_GROWN];
  t.variables = all, t.grown = grown;
  for (uint32_t i = 0; i < s->nlocals; i++)
    turn_variable_add(&t, (turn_variable){.slot = s->locals[i], .kept = true, .rebound = true},
                      i < 64 && (s->grown >> i & 1));
  for (uint32_t k = 0, i = s->nlocals; k < s->nglobals; k++, i++)
    turn_variable_add(
        &t, (turn_variable){.cell = s->globals[k], .kept = true, .rebound = true, .name = s->globals[k]->name},
        i < 64 && (s->grown >> i & 1));
  for (uint32_t i = mark->reads; i < f->uses.nreads; i++)
    if (f->uses.reads[i] < mark->top) turn_variable_add(&t, (turn_variable){.slot = f->uses.reads[i]}, false);
  *out = NULL;
  if (t.n > TURN_VARIABLES || r->looping) return true; /* (turns that are calls are no calls, eval_level) */
  turn_code *made = unit_alloc(r, sizeof *made);
  turn_variable *kept = made ? unit_alloc(r, (t.n + t.ngrown) * sizeof *kept) : NULL;
  if (!kept) return false;
  for (uint32_t i = 0; i < t.n; i++) {
    const variable *v = all[i].cell ? NULL : variable_in(f, all[i].slot);
    kept[i] = all[i];
    if (v) kept[i].name = v->name;
  }
  if (t.ngrown) memcpy(kept + t.n, grown, t.ngrown * sizeof *kept);
  bool in_arms = false;
  for (uint32_t i = 0; i < t.ngrown; i++)
    in_arms |= grows_in_arm(f, mark, (event){.cell = grown[i].cell, .slot = grown[i].slot});
  *made = (turn_code){.anchor = {.name = "loop", .loop = true, .at = loop->at},
                      .variables = kept,
                      .n = t.n,
                      .grown = kept + t.n,
                      .ngrown = t.ngrown,
                      .in_arms = in_arms,
                      .next = r->unit->loops,
                      .unit = r->unit};
  r->unit->loops = made;
  *out = made;
  return true;
}

/* ---- names --------------------------------------------------------------------------------------------------------------------- */

node *global_node(resolver *r, const ast_node *n, global_cell *cell) {
  n_global *g = node_new(r, sizeof *g, eval_global, n);
  if (!g) return NULL;
  g->h.kind = N_GLOBAL;
  g->cell = cell;
  return &g->h;
}

/* Does reading the global give a value, because the module or a builtin defines it? */
static bool is_defined(const resolver *r, const global_cell *c) {
  return module_defines(r, c) || (c->shadow && c->shadow->value.head != TAG_UNSET);
}

static node *capture_node(resolver *r, const ast_node *n, int number) {
  node *c = node_new(r, sizeof *c, eval_capture, n);
  if (c) c->slot = (uint32_t)number;
  return c;
}

static node *local_node(resolver *r, const ast_node *n, variable *v) {
  n_local *l = node_new(r, sizeof *l, eval_local, n);
  if (!l) return NULL;
  if (!note_read(r, r->fn, v)) return NULL;
  l->h.kind = N_LOCAL;
  l->h.slot = v->slot;
  l->name = v->name;
  l->decl = v->decl;
  return &l->h;
}

static bool pend(resolver *r, const n_global *n) {
  if (!mem_grow(r->vm, (void **)&r->pending, &r->pending_cap, (size_t)r->npending + 1, sizeof *r->pending))
    return false;
  r->pending[r->npending++] = (pending_name){n->cell, n->near, n->h.at, n->size};
  return true;
}

/* The names of visible variables that are spelled much like `name`, which nothing defines: a list in the unit's memory that ends with NULL,
 * or NULL if there are none. */
static const char *const *near_variables(resolver *r, const qn_str *name) {
  enum { MOST = 8, ASKED_MAX = 100 }; /* with more of them, messages are less helpful */
  const char *found[MOST];
  size_t n = 0;
  if (r->nasked++ >= ASKED_MAX) return NULL;
  for (const function *f = r->fn; f; f = f->outer)
    for (uint32_t i = f->nvars; i > 0 && n < MOST; i--) {
      text_buf t = {.vm = r->vm};
      const char *other = f->vars[i - 1].name->text;
      bool known = false;
      for (size_t k = 0; k < n; k++) known |= found[k] == other;
      if (!known && text_nearest(&t, "", name->text, &other, 1)) found[n++] = other;
      text_free(&t);
    }
  const char **list = n ? unit_alloc(r, (n + 1) * sizeof *list) : NULL;
  if (n && !list) error_clear(r->vm); /* without memory there are fewer suggestions */
  if (list) memcpy(list, found, n * sizeof *list), list[n] = NULL;
  return list;
}

node *name_node(resolver *r, const ast_node *n, qn_str *name, bool callee) {
  function *f = r->fn;
  if (strcmp(name->text, "_") == 0 && !r->prompt)
    return raise_nothing(r->vm, E_undefined, n->at, "_ binds nothing and has no value");
  variable *v = find_variable(f, name);
  if (v) return local_node(r, n, v);
  if (is_self(f, name)) return node_new(r, sizeof(node), eval_self, n);
  int k = find_capture(r, f, name);
  if (k == -2) return NULL;
  if (k >= 0) return capture_node(r, n, k);
  global_cell *c = scope_cell(r->vm, r->scope, name);
  node *out = c ? global_node(r, n, c) : NULL;
  if (!out) return NULL;
  c->read = true;
  if (!is_defined(r, c)) ((n_global *)out)->near = near_variables(r, name);
  ((n_global *)out)->size = r->sizes;
  if (!pend(r, (n_global *)out)) return NULL;
  if (!callee && f->outer && module_defines(r, c)) {
    bool known = false;
    for (uint32_t i = 0; i < f->ndata; i++) known |= f->data[i] == c;
    if (!known) {
      if (!mem_grow(r->vm, (void **)&f->data, &f->data_cap, (size_t)f->ndata + 1, sizeof *f->data)) return NULL;
      f->data[f->ndata++] = c;
    }
  }
  return out;
}

/* Adds a candidate for a method. False if `c` is NULL, for which an error has been raised. */
static bool add_candidate(n_call *call, node *c) {
  if (c) call->candidates[call->ncandidates++] = c;
  return c != NULL;
}

bool method_candidates(resolver *r, const ast_node *n, n_call *call) {
  function *f = r->fn;
  qn_str *name = n->u.s;
  uint32_t most = 3;
  for (uint32_t i = 0; i < f->nvars; i++) most += f->vars[i].name == name;
  call->candidates = unit_alloc(r, most * sizeof *call->candidates);
  if (!call->candidates) return false;
  for (uint32_t i = f->nvars; i > 0; i--)
    if (f->vars[i - 1].name == name && !add_candidate(call, local_node(r, n, &f->vars[i - 1]))) return false;
  if (is_self(f, name) && !add_candidate(call, node_new(r, sizeof(node), eval_self, n))) return false;
  int k = find_capture(r, f, name);
  if (k == -2 || (k >= 0 && !add_candidate(call, capture_node(r, n, k)))) return false;
  global_cell *cell = scope_cell(r->vm, r->scope, name);
  if (cell) cell->read = true;
  return cell && add_candidate(call, global_node(r, n, cell));
}

/* ---- lvalues ----------------------------------------------------------------------------------------------------------------------- */

static lvalue *lvalue_new(resolver *r, lvalue_kind kind, span at) {
  lvalue *p = unit_alloc(r, sizeof *p);
  if (!p) return NULL;
  p->kind = (uint8_t)kind;
  p->at = at;
  return p;
}

/* The lvalue of a variable: the global `cell`, or else the local `v`. NULL with an error raised. */
static lvalue *lvalue_variable(resolver *r, const ast_node *n, qn_str *name, global_cell *cell, const variable *v) {
  lvalue *p = lvalue_new(r, cell ? LVALUE_GLOBAL : LVALUE_LOCAL, n->at);
  if (!p) return NULL;
  p->name = name;
  p->cell = cell;
  p->slot = v ? v->slot : 0;
  return p;
}

static lvalue *fail_outward(resolver *r, const qn_str *name, span at) {
  return raise_nothing(r->vm, E_assign_outward, at,
                       "a function cannot assign '%s', which lives outside it; return the value and assign it there",
                       name->text);
}

/* The lvalue of a variable that an assignment changes, which is noted for the sites around it. NULL with an error raised, such as E108 or
 * E401 if the variable cannot be assigned. */
static lvalue *variable_lvalue(resolver *r, const ast_node *n, qn_str *name) {
  function *f = r->fn;
  variable *v = find_variable(f, name);
  if (v) {
    if (v->captured && !v->warned) {
      v->warned = true;
      warn(r, n->at, "'%s' is rebound after a function has captured its value; the function keeps the old one",
           name->text);
    }
    return note_assigned(r, NULL, v->slot) ? lvalue_variable(r, n, name, NULL, v) : NULL;
  }
  if (f->outer) {
    int k = is_self(f, name) ? 0 : find_capture(r, f, name);
    if (k == -2) return NULL;
    if (k >= 0) return fail_outward(r, name, n->at);
  }
  global_cell *c = scope_cell(r->vm, r->scope, name);
  if (!c) return NULL;
  bool exists = module_defines(r, c);
  if (f->outer && (exists || (c->shadow && c->shadow->value.head != TAG_UNSET))) return fail_outward(r, name, n->at);
  if (!exists && (!r->prompt || f->outer)) {
    raise_unknown_target(r->vm, f->outer ? NULL : r->scope,
                         &(undefined_name){name, near_variables(r, name), n->at, r->unit->number, false});
    return NULL;
  }
  lvalue *p = note_assigned(r, c, 0) ? lvalue_variable(r, n, name, c, NULL) : NULL;
  if (p) p->defines = r->prompt && defines_global(r);
  return p;
}

static lvalue *let_lvalue(resolver *r, const ast_node *n, bool expects_use) {
  qn_str *name = n->u.s;
  if (strcmp(name->text, "_") == 0) return lvalue_new(r, LVALUE_NONE, n->at);
  if (!defines_global(r)) {
    variable *v = declare(r, name, n->at, expects_use);
    if (!v) return NULL;
    v->made = r->fn->uses.nevents;
    return v->target = lvalue_variable(r, n, name, NULL, v);
  }
  global_cell *c = scope_cell(r->vm, r->scope, name);
  lvalue *p = c && note_assigned(r, c, 0) ? lvalue_variable(r, n, name, c, NULL) : NULL;
  if (p) p->defines = true;
  return p;
}

static lvalue *path_lvalue(resolver *r, const ast_node *n) {
  uint32_t steps = 0;
  const ast_node *at = n;
  while (at->kind == AST_index || at->kind == AST_field) {
    steps++;
    at = at->kids[0];
  }
  if (at->kind != AST_name)
    return raise_nothing(r->vm, E_pattern, n->at,
                         "an assignment changes a variable; this begins with another expression");
  lvalue *root = variable_lvalue(r, at, at->u.s);
  if (!root) return NULL;
  function *f = r->fn;
  if (!root->cell && steps == 1 && n->kind == AST_index) {
    if (!mem_grow(r->vm, (void **)&f->stored, &f->stored_cap, (size_t)f->nstored + 1, sizeof *f->stored)) return NULL;
    f->stored[f->nstored++] = (event){NULL, root->slot, 0};
  }
  root->kind = LVALUE_PATH;
  root->at = n->at;
  root->n = steps;
  root->steps = unit_alloc(r, steps * sizeof *root->steps);
  if (!root->steps) return NULL;
  /* In the tree the last step is the outermost node; but indices are evaluated, and so resolved, from the first step on. */
  const ast_node *level = n;
  const ast_node **chain = unit_alloc(r, steps * sizeof *chain);
  if (!chain) return NULL;
  for (uint32_t i = steps; i > 0; i--, level = level->kids[0]) chain[i - 1] = level;
  for (uint32_t i = 0; i < steps; i++) {
    path_step *s = &root->steps[i];
    level = chain[i];
    s->mark = ast_mark(level);
    if (level->kind == AST_field) {
      s->name = level->u.s;
      if (!unit_layout(r, &s->cache.layout)) return NULL;
      continue;
    }
    s->n = level->n - 1;
    if (s->n > INDEX_MAX)
      return raise_nothing(r->vm, E_index_kind, s->mark, "an index has at most %d items", INDEX_MAX);
    s->items = unit_alloc(r, s->n * sizeof *s->items);
    if (!s->items) return NULL;
    for (uint32_t k = 0; k < s->n; k++) {
      node *item = index_item_node(r, level->kids[k + 1]);
      if (!item) return NULL;
      s->items[k] = item;
      s->nvalues += item->kind == N_SLICE ? 3 : item->kind == N_ELLIPSIS || item->kind == N_NEW ? 0 : 1;
    }
    root->nvalues += s->nvalues;
  }
  return root;
}

static bool repeated(resolver *r, const lvalue *p, const lvalue *in) {
  if (in == p || !in) return false;
  if (in->kind == LVALUE_LIST || in->kind == LVALUE_RECORD) {
    for (uint32_t i = 0; i < in->n && in->items[i]; i++)
      if (repeated(r, p, in->items[i])) return true;
    return false;
  }
  return in->name && in->name == p->name;
}

static bool check_repeated(resolver *r, const lvalue *all, const lvalue *p) {
  if (p->kind == LVALUE_LIST || p->kind == LVALUE_RECORD) {
    for (uint32_t i = 0; i < p->n; i++)
      if (!check_repeated(r, all, p->items[i])) return false;
    return true;
  }
  if (!p->name || !repeated(r, p, all)) return true;
  return raise_nothing(r->vm, E_pattern, p->at, "'%s' stands twice in the pattern", p->name->text);
}

static lvalue *pattern_lvalue(resolver *r, const ast_node *n, bool lets, bool expects_use) {
  if (n->kind == AST_name) {
    if (lets) return let_lvalue(r, n, expects_use);
    if (strcmp(n->u.s->text, "_") == 0) return lvalue_new(r, LVALUE_NONE, n->at);
    return variable_lvalue(r, n, n->u.s);
  }
  if (n->kind == AST_index || n->kind == AST_field) return path_lvalue(r, n);
  bool list = n->kind == AST_pat_list;
  lvalue *p = lvalue_new(r, list ? LVALUE_LIST : LVALUE_RECORD, n->at);
  if (!p) return NULL;
  p->items = unit_alloc(r, n->n * sizeof *p->items);
  p->fields = list ? NULL : unit_alloc(r, n->n * sizeof *p->fields);
  if (!p->items || (!list && !p->fields)) return NULL;
  for (uint32_t i = 0; i < n->n; i++) {
    const ast_node *kid = n->kids[i];
    if (!list) p->fields[i] = kid->u.s;
    p->items[i] = pattern_lvalue(r, list ? kid : kid->kids[AST_pat_field_target], lets, expects_use);
    if (!p->items[i]) return NULL;
    p->n = i + 1;
    p->nvalues += p->items[i]->nvalues;
  }
  return p;
}

lvalue *lvalue_of(resolver *r, const ast_node *target, bool lets, bool expects_use) {
  lvalue *p = pattern_lvalue(r, target, lets, expects_use);
  if (p && lets && !check_repeated(r, p, p)) return NULL;
  return p;
}

/* ---- shape signatures ----------------------------------------------------------------------------------------------------------------- */

static bool fail_type(resolver *r, span at, const qn_str *name) {
  const char *hint = foreign_hint(FOREIGN_TYPE, name->text, name->len);
  if (hint) return raise_nothing(r->vm, E_signature, at, "'%s' is no type; %s", name->text, hint);
  return raise_nothing(
      r->vm, E_signature, at,
      "'%s' is no type; there are dtypes (f32, i64 ...), int float bool str fn list record dtype, number numbers "
      "ints tree any, shapes "
      "f32[n, 3], "
      "lists (T, T) and records {w: T}",
      name->text);
}

static bool host_kind(const char *name, uint8_t *tag) {
  static const struct {
    const char *name;
    uint8_t tag;
  } kinds[] = {{"int", TAG_INT},   {"float", TAG_FLOAT},   {"str", TAG_STR},    {"fn", TAG_FN},
               {"list", TAG_LIST}, {"record", TAG_RECORD}, {"dtype", TAG_DTYPE}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if (strcmp(kinds[i].name, name) != 0) continue;
    *tag = kinds[i].tag;
    return true;
  }
  return false;
}

static bool dtype_named(resolver *r, const qn_str *name, span at, int8_t *out) {
  qn_dtype d = dtype_find(name->text, name->len);
  if (!dtype_public((int)d)) return fail_type(r, at, name);
  *out = (int8_t)d;
  return true;
}

/* The signature that is being resolved. Names of sizes in it are int parameters or dimensions (code->dims). */
typedef struct shape_names {
  fn_code *code;
  const ast_node *fn;
  uint32_t dims_cap;
  /* true in the type of the result: the body has been resolved, so that new names need slots beyond those of all locals */
  bool fresh;
} shape_names;

static const ast_node *param_type(const shape_names *s, uint32_t i) { return s->fn->kids[2 + i]->kids[AST_param_type]; }

static bool dim_name(resolver *r, shape_names *s, const ast_node *n, sig_dim *d) {
  qn_str *name = n->u.s;
  d->name = name;
  for (uint32_t i = 0; i < s->code->nparams; i++) {
    if (s->code->params[i].name != name) continue;
    const ast_node *type = param_type(s, i);
    if (!type || type->kind != AST_type_name || strcmp(type->u.s->text, "int") != 0)
      return raise_nothing(r->vm, E_signature, n->at,
                           "the size '%s' is named like a parameter, which is no int; rename one of them", name->text);
    d->kind = DIM_PARAM;
    d->slot = i;
    return true;
  }
  d->kind = DIM_NAME;
  fn_code *code = s->code;
  for (uint32_t i = 0; i < code->ndims; i++) {
    if (code->dims[i].name != name) continue;
    d->slot = code->dims[i].slot;
    return true;
  }
  if (code->ndims == s->dims_cap)
    return raise_nothing(r->vm, E_signature, n->at, "too many names of sizes in one signature");
  if (s->fresh) {
    d->slot = r->fn->most++;
  } else {
    variable *v = declare(r, name, n->at, false);
    if (!v) return false;
    d->slot = v->slot;
  }
  code->dims[code->ndims++] = (fn_dim){name, d->slot};
  return true;
}

static type_sig *type_of(resolver *r, shape_names *s, const ast_node *n);

static bool array_type(resolver *r, shape_names *s, const ast_node *n, type_sig *t) {
  t->kind = SIG_ARRAY;
  t->dtype = -1;
  if (n->u.s && !dtype_named(r, n->u.s, ast_mark(n), &t->dtype)) return false;
  t->n = n->n;
  t->dims = unit_alloc(r, n->n * sizeof *t->dims);
  if (!t->dims) return false;
  bool rest = false;
  for (uint32_t i = 0; i < n->n; i++) {
    const ast_node *kid = n->kids[i];
    sig_dim *d = &t->dims[i];
    d->at = kid->at;
    if (kid->kind == AST_any_dim) {
      d->kind = DIM_ANY;
    } else if (kid->kind == AST_ellipsis) {
      if (rest) return raise_nothing(r->vm, E_signature, kid->at, "a shape has at most one ...");
      rest = true;
      d->kind = DIM_REST;
    } else if (kid->kind == AST_name) {
      if (!dim_name(r, s, kid, d)) return false;
    } else if (kid->kind == AST_int) {
      d->kind = DIM_SIZE;
      d->size = kid->u.i;
    } else {
      d->kind = DIM_EXPR;
      s->code->checks = true;
    }
  }
  return true;
}

static type_sig *type_of(resolver *r, shape_names *s, const ast_node *n) {
  type_sig *t = unit_alloc(r, sizeof *t);
  if (!t) return NULL;
  t->at = n->at;
  switch ((ast_kind)n->kind) {
  case AST_type_name:
    if (host_kind(n->u.s->text, &t->tag)) {
      t->kind = SIG_HOST;
      return t;
    }
    for (sig_kind kind = 0; kind <= SIG_RECORD; kind++) {
      const char *name = sig_kind_name(kind);
      if (!name || strcmp(n->u.s->text, name) != 0) continue;
      t->kind = (uint8_t)kind;
      t->dtype = -1;
      return t;
    }
    t->kind = SIG_DTYPE;
    return dtype_named(r, n->u.s, n->at, &t->dtype) ? t : NULL;
  case AST_type_array: return array_type(r, s, n, t) ? t : NULL;
  default:
    t->kind = n->kind == AST_type_list ? SIG_LIST : SIG_RECORD;
    t->n = n->n;
    t->items = unit_alloc(r, n->n * sizeof *t->items);
    t->fields = unit_alloc(r, n->n * sizeof *t->fields);
    if (!t->items || !t->fields) return NULL;
    for (uint32_t i = 0; i < n->n; i++) {
      const ast_node *kid = n->kids[i];
      if (t->kind == SIG_RECORD) {
        t->fields[i] = kid->u.s;
        kid = kid->kids[AST_type_field_type];
      }
      t->items[i] = type_of(r, s, kid);
      if (!t->items[i]) return NULL;
    }
    return t;
  }
}

/* Resolves the sizes that are expressions. This comes after all types, since they may use any name of the signature. False with an error
 * raised. */
static bool type_expressions(resolver *r, type_sig *t, const ast_node *n) {
  if (t->kind == SIG_ARRAY) {
    for (uint32_t i = 0; i < t->n; i++) {
      if (t->dims[i].kind != DIM_EXPR) continue;
      r->sizes = true;
      t->dims[i].expr = expression(r, n->kids[i]);
      r->sizes = false;
      if (!t->dims[i].expr) return false;
    }
  } else if (t->kind == SIG_LIST || t->kind == SIG_RECORD) {
    for (uint32_t i = 0; i < t->n; i++) {
      const ast_node *kid = n->kids[i];
      if (!type_expressions(r, t->items[i], t->kind == SIG_RECORD ? kid->kids[AST_type_field_type] : kid)) return false;
    }
  }
  return true;
}

static uint32_t count_dims(const ast_node *type) {
  if (!type) return 0;
  uint32_t n = type->kind == AST_type_array ? type->n : 0;
  if (type->kind == AST_type_list || type->kind == AST_type_record || type->kind == AST_type_field)
    for (uint32_t i = 0; i < type->n; i++) n += count_dims(type->kids[i]);
  return n;
}

/* ---- functions --------------------------------------------------------------------------------------------------------------------------- */

static bool lost_update(resolver *r, const ast_node *block) {
  const ast_node *last = block->n ? block->kids[block->n - 1] : NULL;
  if (!last) return true;
  if (last->kind == AST_if) {
    if (!lost_update(r, last->kids[AST_if_then])) return false;
    const ast_node *other = last->kids[AST_if_otherwise];
    if (!other) return true;
    if (other->kind == AST_block) return lost_update(r, other);
    ast_node *kids[1] = {(ast_node *)other};
    ast_node wrap = {.kind = AST_block, .n = 1, .kids = kids};
    return lost_update(r, &wrap);
  }
  if (last->kind == AST_let) {
    const ast_node *pattern = last->kids[AST_let_pattern];
    if (pattern->kind == AST_name && pattern->u.s->text[0] != '_' && has_no_effect(r, last->kids[AST_let_value]))
      return raise_nothing(r->vm, E_lost_value, last->at, LOST_LET, pattern->u.s->text);
  }
  if (last->kind != AST_assign) return true;
  const ast_node *root = last->kids[AST_assign_target];
  while (root->kind == AST_index || root->kind == AST_field) root = root->kids[0];
  bool named = root->kind == AST_name;
  return raise_nothing(r->vm, E_lost_value, last->at,
                       "this update is lost when the function returns; end with %s to return%s",
                       named ? root->u.s->text : "the value", named ? " it" : "");
}

static bool resolve_params(resolver *r, fn_code *code, const ast_node *n, node **initials) {
  for (uint32_t i = 0; i < code->nparams; i++) {
    const ast_node *kid = n->kids[2 + i];
    fn_param *p = &code->params[i];
    p->name = kid->u.s;
    p->at = kid->at;
    p->initial = -1;
    for (uint32_t k = 0; k < i; k++) {
      if (code->params[k].name != p->name || strcmp(p->name->text, "_") == 0) continue;
      return raise_nothing(r->vm, E_pattern, ast_mark(kid), "'%s' is the name of two parameters", p->name->text);
    }
    if (kid->flags & AST_REST) {
      if (i + 1 < code->nparams)
        return raise_nothing(r->vm, E_pattern, kid->at,
                             "..%s takes all further arguments and must be the last parameter", p->name->text);
      code->rest = true;
    }
    if (!kid->kids[AST_param_initial]) continue;
    node *initial = expression(r, kid->kids[AST_param_initial]); /* it is resolved in the scope around the function */
    if (!initial) return false;
    initials[code->ninitial] = initial;
    p->initial = (int32_t)code->ninitial++;
  }
  return true;
}

static bool resolve_types(resolver *r, shape_names *s) {
  fn_code *code = s->code;
  uint32_t dims = count_dims(s->fn->kids[AST_fn_result]);
  for (uint32_t i = 0; i < code->nparams; i++) dims += count_dims(param_type(s, i));
  s->dims_cap = dims;
  code->dims = unit_alloc(r, dims * sizeof *code->dims);
  if (!code->dims) return false;
  for (uint32_t i = 0; i < code->nparams; i++) {
    const ast_node *type = param_type(s, i);
    if (!type) continue;
    code->typed = true;
    code->params[i].type = type_of(r, s, type);
    if (!code->params[i].type) return false;
  }
  for (uint32_t i = 0; i < code->nparams; i++)
    if (code->params[i].type && !type_expressions(r, code->params[i].type, param_type(s, i))) return false;
  return true;
}

/* Does a type (may be NULL) name sizes, or compute them from named ones? */
static bool names_sizes(const type_sig *t) {
  bool any = false;
  for (uint32_t i = 0; t && t->kind == SIG_ARRAY && i < t->n; i++)
    any |= t->dims[i].kind == DIM_NAME || t->dims[i].kind == DIM_PARAM || t->dims[i].kind == DIM_EXPR;
  for (uint32_t i = 0; t && (t->kind == SIG_LIST || t->kind == SIG_RECORD) && i < t->n; i++)
    any |= names_sizes(t->items[i]);
  return any;
}

/* Makes *out what the compiler is told of the sizes that a type (may be NULL) names; NULL if it names none. False with an error raised. */
static bool sizes_of_type(resolver *r, const fn_code *code, const type_sig *t, const size_names **out) {
  *out = NULL;
  if (!names_sizes(t)) return true;
  size_names *x = unit_alloc(r, sizeof *x);
  if (!x) return false;
  *x = (size_names){.n = t->n, .rest = t->n, .fields = t->kind == SIG_RECORD ? t->fields : NULL};
  if (t->kind == SIG_ARRAY) {
    uint32_t *axes = unit_alloc(r, t->n * sizeof *axes);
    if (!axes) return false;
    for (uint32_t i = 0; i < t->n; i++) {
      const sig_dim *d = &t->dims[i];
      axes[i] = d->kind == DIM_EXPR ? SIZE_COMPUTED : d->kind == DIM_PARAM ? code->ndims + d->slot + 1 : 0;
      if (d->kind == DIM_REST) x->rest = i;
      for (uint32_t k = 0; d->kind == DIM_NAME && k < code->ndims; k++)
        if (code->dims[k].slot == d->slot) axes[i] = k + 1;
    }
    x->axes = axes;
  } else {
    const size_names **items = unit_alloc(r, t->n * sizeof *items);
    if (!items) return false;
    for (uint32_t i = 0; i < t->n; i++)
      if (!sizes_of_type(r, code, t->items[i], &items[i])) return false;
    x->items = items;
  }
  *out = x;
  return true;
}

/* Tells the compiler which sizes of the parameters are named. False with an error raised. */
static bool name_sizes(resolver *r, fn_code *code) {
  bool any = false;
  for (uint32_t i = 0; i < code->nparams; i++) any |= names_sizes(code->params[i].type);
  if (!any) return true;
  named_sizes *s = unit_alloc(r, sizeof *s);
  const size_names **args = s ? unit_alloc(r, code->nparams * sizeof *args) : NULL;
  const char **names = args ? unit_alloc(r, (code->ndims + code->nparams) * sizeof *names) : NULL;
  if (!names) return false;
  for (uint32_t i = 0; i < code->nparams; i++) {
    if (!sizes_of_type(r, code, code->params[i].type, &args[i])) return false;
    names[code->ndims + i] = code->params[i].name->text;
  }
  for (uint32_t i = 0; i < code->ndims; i++) names[i] = code->dims[i].name->text;
  *s = (named_sizes){args, names, code->nparams, code->ndims + code->nparams};
  code->anchor.sizes = s;
  return true;
}

/* Is a variable rebound only where items are added to its list, or stored in it? */
static bool only_updated(const function *f, uint32_t slot) {
  const event x = {.slot = slot};
  return count_events(f->uses.events, 0, f->uses.nevents, x) ==
         count_events(f->grown, 0, f->ngrown, x) + count_events(f->stored, 0, f->nstored, x);
}

/* The parameters that stacked lists may be in: all that is done with them is noted as such, and they have no types. */
static uint32_t stackable(const resolver *r, const fn_code *code) {
  const function *f = r->fn;
  uint32_t mask = 0;
  for (uint32_t i = 0; i < code->nparams && i < STACKABLE_MAX; i++) {
    const variable *v = &f->vars[i];
    if (v->stackable && v->slot == i && v->reads == v->stackable && !v->captured && !code->params[i].type &&
        only_updated(f, i))
      mask |= (uint32_t)1 << i;
  }
  return mask;
}

static bool resolve_body(resolver *r, fn_code *code, const ast_node *n) {
  function *f = r->fn;
  shape_names s = {.code = code, .fn = n};
  for (uint32_t i = 0; i < code->nparams; i++)
    if (!declare(r, code->params[i].name, code->params[i].at, false)) return false;
  if (!resolve_types(r, &s) || !name_sizes(r, code)) return false;
  const ast_node *body = n->kids[AST_fn_body], *result = n->kids[AST_fn_result];
  f->blocks++;
  code->body = block_node(r, body, true, true);
  f->blocks--;
  if (!code->body || (!(n->flags & AST_SHORT) && !lost_update(r, body))) return false;
  if (result) {
    s.fresh = true;
    code->result_at = result->at;
    code->result = type_of(r, &s, result);
    if (!code->result || !type_expressions(r, code->result, result)) return false;
  }
  code->anchor.stackable = stackable(r, code);
  code->anchor.trees = true;
  if (code->rest && code->nparams <= STACKABLE_MAX) code->anchor.rest = (uint8_t)code->nparams;
  code->nslots = f->most;
  code->unit = r->unit;
  code->uses = f->kept;
  code->ncaptures = f->ncaptures;
  code->ndata = f->ndata;
  code->data = unit_alloc(r, f->ndata * sizeof *code->data);
  code->capture_names = unit_alloc(r, f->ncaptures * sizeof *code->capture_names);
  if (!code->data || !code->capture_names) return false;
  if (f->ndata) memcpy(code->data, f->data, f->ndata * sizeof *f->data);
  for (uint32_t i = 0; i < f->ncaptures; i++) code->capture_names[i] = f->captures[i].name;
  code->watched = code->typed || code->result || code->ndata || r->vm->counting;
  return true;
}

/* Makes the code of a function that calls itself by loops, if it can be: only recordings run it, so that it matters not if memory is short. */
static void resolve_recursion(resolver *r, fn_code *code, const ast_node *n, qn_str *name, bool local) {
  recursion loop;
  text_buf *warnings = r->warnings, unseen = {.vm = r->vm};
  if (!name || r->looping) return;
  const ast_node *as_loop = recursion_loop(r, n, name, &loop);
  r->warnings = &unseen; /* all has been said */
  r->looping = true, r->looped = code;
  n_fn *fn = as_loop ? (n_fn *)function_node(r, as_loop, name, local) : NULL;
  r->looping = false, r->looped = NULL;
  r->warnings = warnings;
  text_free(&unseen);
  error_clear(r->vm);
  loop.code = fn ? fn->code : NULL;
  loop.self = local || !fn ? NULL : scope_find(r->scope, name);
  if (!fn || loop.code->ncaptures != code->ncaptures || (!local && !loop.self)) return;
  if ((code->loop = arena_alloc(&r->unit->nodes, sizeof loop))) *code->loop = loop;
}

node *function_node(resolver *r, const ast_node *n, qn_str *name, bool local) {
  n_fn *out = node_new(r, sizeof *out, eval_fn_node, n);
  fn_code *code = out ? unit_alloc(r, sizeof *code) : NULL;
  const fn_code *looped = r->looped;
  r->looped = NULL;
  if (!code) return NULL;
  out->code = code;
  code->name = name ? name : r->ip->lambda;
  code->at = n->at;
  code->nparams = n->n - 2;
  code->params = unit_alloc(r, code->nparams * sizeof *code->params);
  out->initials = unit_alloc(r, code->nparams * sizeof *out->initials);
  if (!code->params || !out->initials || !resolve_params(r, code, n, out->initials)) return NULL;
  code->anchor.name = code->name->text;
  code->anchor.at = n->at;
  code->anchor.composite = r->scope->library && code->name->text[0] != '_' && code->name != r->ip->lambda;
  code->shared.id = ++r->ip->next_code;
  code->shared.home = r->unit;
  code->next = r->unit->codes;
  r->unit->codes = code;
  function f;
  function_begin(r, &f);
  f.self = local ? name : NULL;
  f.at = n->at;
  f.anchor = &code->anchor;
  bool ok = true;
  for (uint32_t i = 0; looped && ok && i < looped->ncaptures; i++) /* in the places where they are */
    ok = find_capture(r, &f, looped->capture_names[i]) == (int)i;
  ok = ok && resolve_body(r, code, n);
  if (ok) {
    forget(r, 0);
    out->captures = unit_alloc(r, f.ncaptures * sizeof *out->captures);
    ok = out->captures != NULL;
    for (uint32_t i = 0; ok && i < f.ncaptures; i++) out->captures[i] = f.captures[i].source;
  }
  function_end(r);
  if (ok) resolve_recursion(r, code, n, name, local);
  return ok ? &out->h : NULL;
}

/* ---- units ---------------------------------------------------------------------------------------------------------------------------------- */

static bool declare_global(resolver *r, qn_str *name) {
  global_cell *c = scope_cell(r->vm, r->scope, name);
  if (c) c->unit = r->unit->number;
  return c != NULL;
}

/* Marks the cells of all names in a pattern as defined by this unit. False with an error raised. */
static bool declare_names(resolver *r, const ast_node *n) {
  if (n->kind == AST_name) return strcmp(n->u.s->text, "_") == 0 || declare_global(r, n->u.s);
  if (!is_pattern(n)) return true;
  for (uint32_t i = 0; i < n->n; i++)
    if (!declare_names(r, n->kids[i])) return false;
  return true;
}

static bool declare_globals(resolver *r, const ast_node *root) {
  for (uint32_t i = 0; i < root->n; i++) {
    const ast_node *s = root->kids[i];
    bool ok = true;
    if (s->kind == AST_let) ok = declare_names(r, s->kids[AST_let_pattern]);
    if (s->kind == AST_assign && r->prompt) ok = declare_names(r, s->kids[AST_assign_target]);
    if (s->kind == AST_import) ok = declare_names(r, s->kids[AST_import_name]);
    if (s->kind == AST_define) ok = declare_global(r, s->u.s);
    if (!ok) return false;
  }
  return true;
}

/* Adds a note to the error about an undefined name, if there is a variable of that name which is not visible at `use`: because its block
 * has ended before, or it is made further down in the function, or it is bound to the function that calls itself by that name. */
static void note_ended(resolver *r, const qn_str *name, span use) {
  const ended_name *later = NULL;
  for (uint32_t i = r->nended; i > 0; i--) {
    const ended_name *e = &r->ended[i - 1];
    if (e->name != name) continue;
    if (e->value.source && e->value.start <= use.start && use.end <= e->value.end) {
      raise_note(r->vm, e->decl,
                 "a function calls itself by the name that fn gives it: fn %s(...) instead of let %s = fn(...)",
                 name->text, name->text);
      return;
    }
    if (e->decl.start < use.start) {
      raise_note(r->vm, e->decl, "this %s ends with its block; let %s = nil before the block makes one that stays",
                 name->text, name->text);
      return;
    }
    if (!e->function.source || (e->function.start <= use.start && use.end <= e->function.end)) later = e;
  }
  if (later)
    raise_note(r->vm, later->decl,
               "this %s is made later: in a block names are seen from there on; only those of the "
               "top level are seen before",
               name->text);
}

/* Raises one error for all names in the text that nothing defines. False if there are any. */
static bool check_pending(resolver *r) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < r->npending; i++) {
    const global_cell *c = r->pending[i].cell;
    if (is_defined(r, c)) continue;
    bool known = false;
    for (uint32_t k = 0; k < n && !known; k++) known = r->pending[k].cell == c;
    if (!known) r->pending[n++] = r->pending[i];
  }
  if (n == 0) return true;
  undefined_name *names = unit_alloc(r, n * sizeof *names);
  if (!names) return false;
  for (uint32_t i = 0; i < n; i++)
    names[i] = (undefined_name){r->pending[i].cell->name, r->pending[i].near, r->pending[i].at, r->unit->number,
                                r->pending[i].size};
  raise_undefined_all(r->vm, r->scope, names, n);
  for (uint32_t i = 0; i < n && i < ERROR_NOTES; i++) note_ended(r, names[i].name, names[i].at);
  return false;
}

static bool resolve_root(resolver *r, const ast_module *tree) {
  for (uint32_t i = 0; i < tree->nstrings; i++)
    if (!unit_keep(r, value_retain(value_obj(TAG_STR, tree->strings[i])))) return false;
  if (!declare_globals(r, tree->root)) return false;
  function f;
  function_begin(r, &f);
  r->unit->body = root_node(r, tree->root);
  bool ok = r->unit->body != NULL;
  if (ok) forget(r, 0);
  r->unit->nslots = f.most;
  function_end(r);
  return ok && (r->prompt || check_pending(r));
}

unit *resolve_unit(qn_vm *vm, scope *s, const ast_module *tree, uint32_t source, bool prompt, text_buf *warnings) {
  interp *ip = interp_of(vm);
  unit *u = mem_zalloc(vm, sizeof *u);
  if (!u) {
    raise_at(vm, tree->root->at);
    return NULL;
  }
  arena_init(&u->nodes, vm);
  u->scope = s;
  u->number = ++ip->next_unit;
  u->source = source;
  resolver r = {.vm = vm, .ip = ip, .scope = s, .unit = u, .prompt = prompt, .root = tree->root, .warnings = warnings};
  bool ok = resolve_root(&r, tree);
  mem_free(vm, r.pending, r.pending_cap * sizeof *r.pending);
  mem_free(vm, r.ended, r.ended_cap * sizeof *r.ended);
  mem_free(vm, r.made, r.made_cap * sizeof *r.made);
  mem_free(vm, r.functions, (tree->root->n + (size_t)1) * sizeof *r.functions);
  if (!ok) {
    raise_at(vm, tree->root->at);
    unit_free(vm, u);
    return NULL;
  }
  for (uint32_t i = 0; i < s->n; i++)
    if (s->cells[i]->unit == u->number) s->cells[i]->declared = true;
  u->next = ip->units;
  ip->units = u;
  ip->nunits++;
  return u;
}
