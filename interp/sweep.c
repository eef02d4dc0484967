/* Freeing units and scopes that nothing refers to any more.
 *
 * A unit is dead when it does not run and no function value refers to code of it. (One with compiled loops lives on if there is to be a report.)
 *
 * A module that was dropped, failed, or was loaded again is dead when nothing outside of it refers to it or to one of its functions. Its
 * own cells mostly do, so reference counts alone never become zero. Therefore the references from within are counted: those from the cells,
 * and from the lists, records and functions that these reach. An object with more references than that can be reached from outside, and so
 * can everything that it holds.
 */
#include <string.h>

#include "interp/state.h"

static bool unit_is_dead(const qn_vm *vm, const unit *u) {
  for (const fn_code *c = u->codes; c; c = c->next)
    if (c->shared.refs) return false;
  for (const turn_code *t = u->loops; t && vm->counting; t = t->next)
    if (t->anchor.entries) return false; /* the report tells of them */
  return !u->running;
}

/* Takes the unit *at off the list and frees it, with its text. */
static void unit_drop(qn_vm *vm, unit **at) {
  unit *u = *at;
  *at = u->next;
  interp_of(vm)->nunits--;
  source_drop(vm, u->source);
  unit_free(vm, u);
}

void unit_done(qn_vm *vm, unit *u) {
  if (vm->error || !unit_is_dead(vm, u)) return;
  for (unit **at = &interp_of(vm)->units; *at; at = &(*at)->next)
    if (*at == u) {
      unit_drop(vm, at);
      return;
    }
}

/* ---- scopes -------------------------------------------------------------------------------------------------------------- */

/* A list, record or function that the cells of a scope reach; or the scope's module. */
typedef struct reached {
  obj_head *object;
  uint32_t within; /* how many references to it come from within */
  bool outside;    /* it can be reached from outside */
} reached;

typedef struct search {
  qn_vm *vm;
  const scope *s;
  reached *list;
  uint32_t n, cap;
  uint32_t *index, index_cap; /* a hash table from objects to their numbers + 1 */
  uint32_t *outside,
      noutside; /* the numbers of those that can be reached from outside, in the order in which they were found */
  uint32_t outside_cap;
} search;

enum { REACHED_MOST = 1 << 20 }; /* a scope from which more objects are reached is not searched, and stays */

static uint32_t *place_of(search *w, const obj_head *o) {
  uint32_t mask = w->index_cap - 1, i = (uint32_t)(((uintptr_t)o >> 4) * 0x9e3779b9u) & mask;
  while (w->index[i] && w->list[w->index[i] - 1].object != o) i = (i + 1) & mask;
  return &w->index[i];
}

/* Counts a reference from within to an object. False if memory is short, or there are too many objects. */
static bool reach(search *w, obj_head *o) {
  if ((w->n + 1) * 2 > w->index_cap) {
    uint32_t old = w->index_cap, cap = old ? old * 2 : 64;
    uint32_t *index = w->n < REACHED_MOST ? mem_zalloc(w->vm, cap * sizeof *index) : NULL;
    if (!index) return false;
    mem_free(w->vm, w->index, old * sizeof *index);
    w->index = index;
    w->index_cap = cap;
    for (uint32_t i = 0; i < w->n; i++) *place_of(w, w->list[i].object) = i + 1;
  }
  uint32_t *place = place_of(w, o);
  if (!*place) {
    if (!mem_grow(w->vm, (void **)&w->list, &w->cap, (size_t)w->n + 1, sizeof *w->list)) return false;
    w->list[w->n++] = (reached){.object = o};
    *place = w->n;
  }
  w->list[*place - 1].within++;
  return true;
}

/* As reach, for a value. Only values that can hold functions count. */
static bool reach_value(search *w, qn_value v) {
  if (!value_is_heap(v)) return true;
  switch (value_tag_of(v)) {
  case TAG_LIST:
  case TAG_RECORD:
  case TAG_FN: return reach(w, v.u.p);
  case TAG_MODULE: return v.u.p != w->s->module || reach(w, v.u.p);
  default: return true;
  }
}

static bool reach_all(search *w) {
  if (!reach(w, &w->s->module->head)) return false; /* the reference that the scope has */
  for (uint32_t i = 0; i < w->s->n; i++)
    if (!reach_value(w, w->s->cells[i]->value)) return false;
  for (uint32_t i = 0, n; i < w->n; i++) {
    const qn_value *items = value_parts(w->list[i].object, &n);
    for (uint32_t k = 0; k < n; k++)
      if (!reach_value(w, items[k])) return false;
  }
  return true;
}

static void found_outside(search *w, uint32_t number) {
  reached *x = &w->list[number];
  if (x->outside) return;
  x->outside = true;
  w->outside[w->noutside++] = number;
}

static bool find_outside(search *w) {
  if (!(w->outside = mem_alloc(w->vm, w->n * sizeof *w->outside))) return false;
  w->outside_cap = w->n;
  for (uint32_t i = 0; i < w->n; i++)
    if (w->list[i].object->refs != w->list[i].within) found_outside(w, i);
  for (uint32_t i = 0, n; i < w->noutside; i++) {
    const qn_value *items = value_parts(w->list[w->outside[i]].object, &n);
    for (uint32_t k = 0; k < n; k++) {
      uint32_t at = value_is_heap(items[k]) ? *place_of(w, items[k].u.p) : 0;
      if (at) found_outside(w, at - 1);
    }
  }
  return true;
}

/* Is the object the module of the scope, or a function of it? */
static bool is_own(const scope *s, const obj_head *o) {
  if (o == &s->module->head) return true;
  if (o->tag != TAG_FN || o->flags != FN_USER) return false;
  const fn_shared *code = ((const qn_fn *)o)->code;
  return ((const unit *)code->home)->scope == s;
}

static bool scope_is_dead(qn_vm *vm, const scope *s) {
  uint64_t functions = 0, own = 0;
  for (const unit *u = interp_of(vm)->units; u; u = u->next) {
    if (u->scope != s) continue;
    if (u->running) return false;
    for (const fn_code *c = u->codes; c; c = c->next) functions += c->shared.refs;
  }
  search w = {.vm = vm, .s = s};
  bool dead = reach_all(&w) && find_outside(&w);
  for (uint32_t i = 0; i < w.n && dead; i++) {
    if (!is_own(s, w.list[i].object)) continue;
    own++;
    dead = !w.list[i].outside;
  }
  mem_free(vm, w.list, w.cap * sizeof *w.list);
  mem_free(vm, w.index, w.index_cap * sizeof *w.index);
  if (w.outside) mem_free(vm, w.outside, w.outside_cap * sizeof *w.outside);
  if (vm->error) error_clear(vm); /* if memory was short, the scope stays for now */
  return dead && own == functions + 1;
}

/* Does the scope still have values or units? */
static bool scope_is_full(qn_vm *vm, const scope *s) {
  for (uint32_t i = 0; i < s->n; i++)
    if (s->cells[i]->value.head != TAG_UNSET) return true;
  for (const unit *u = interp_of(vm)->units; u; u = u->next)
    if (u->scope == s) return true;
  return false;
}

/* Do guards of compiled code still watch a cell of the scope? */
static bool scope_is_looked_at(const scope *s) {
  for (uint32_t i = 0; i < s->n; i++)
    if (s->cells[i]->rec.roots) return true;
  return false;
}

/* Frees scopes without a key that are dead, and their units. Freeing one can make another one dead, so this repeats. */
static void scopes_sweep(qn_vm *vm) {
  interp *ip = interp_of(vm);
  if (ip->ndropped < ip->drop_at && ip->nunits < ip->sweep_at) return;
  for (bool again = true; again;) {
    again = false;
    ip->ndropped = 0;
    for (scope **at = &ip->scopes, *s; (s = *at);) {
      bool dropped = s != ip->main && s != ip->builtin && !s->key && s->state == SCOPE_READY;
      if (dropped && scope_is_dead(vm, s)) {
        again |= scope_is_full(vm, s);
        scope_drop_values(vm, s);
        for (unit **u = &ip->units; *u;)
          if ((*u)->scope == s && unit_is_dead(vm, *u))
            unit_drop(vm, u);
          else
            u = &(*u)->next;
        if (!scope_is_looked_at(s)) {
          *at = s->next;
          scope_free(vm, s);
          continue;
        }
      }
      ip->ndropped += dropped;
      at = &s->next;
    }
  }
  ip->drop_at = 2 * ip->ndropped + 1;
}

void units_sweep(qn_vm *vm) {
  interp *ip = interp_of(vm);
  if (ip->nunits < ip->sweep_at && ip->ndropped < ip->drop_at) return;
  for (const vm_host *h = vm->host; h; h = h->outer)
    if (h->error) return; /* the pending error of an outer evaluation may refer to a text that would be freed */
  scopes_sweep(vm);
  if (ip->nunits < ip->sweep_at) return;
  for (unit **at = &ip->units; *at;) {
    if (unit_is_dead(vm, *at))
      unit_drop(vm, at);
    else
      at = &(*at)->next;
  }
  ip->sweep_at = 2 * ip->nunits + UNITS_FEW;
}
