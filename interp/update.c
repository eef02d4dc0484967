/* Assignments: variables, paths (`r.a.b[2].c = v`), destructuring, and op=.
 *
 * Indices of the target are evaluated first and wait on the value stack, then the right side, then the store. A path is
 * stored into in place: each container on the way is made the only owner of itself (copied if it is shared), which no
 * program can see, and the innermost store checks everything before it changes anything. So an update of a value with one
 * owner costs what it stores, and a variable keeps its old value when there is an error. Each step of a path remembers where
 * it found its field; while every container has one owner and looks as it did, path_to walks there without a question, and only
 * what it refuses goes the long way (put). A view that is stored into its own array is copied before that (detach), not the array.
 */
#include <string.h>

#include "interp/node.h"

/* ---- paths ------------------------------------------------------------------------------------------------------------ */

/* What is stored at a path's end: a value, or the old one combined with it. */
typedef struct store {
  qn_value v;             /* owned; taken by the store */
  const n_assign *assign; /* of op=; NULL: plain */
  bool stacked;           /* there are stacked lists in v, so the containers along the path are PARTS_PLAIN no more */
} store;

/* Must a store tell the containers along its path what it brings? */
static inline bool brings_stacked(const qn_vm *vm, qn_value v) {
  return __builtin_expect(vm->asked.stacked, 0) && value_is_container(v) && rec_holds_stacked(v);
}

static qn_value take(store *s) {
  qn_value v = s->v;
  s->v = value_nil();
  return v;
}

/* The binary operation that an assignment with an operator applies, as a node with its places for errors. */
static n_binary binary_of(const n_assign *a) {
  return (n_binary){.h.at = a->h.at, .mark = a->mark, .b = a->value, .op = a->op, .row = a->row};
}

/* What an assignment makes of the old value (taken over): the new value, or both combined. Owned, or the error value. */
static qn_value combined(qn_vm *vm, store *s, qn_value old) {
  const n_assign *a = s->assign;
  if (!a) {
    value_release(vm, old);
    return take(s);
  }
  n_binary n = binary_of(a);
  return binary_values(vm, &n, old, take(s));
}

static bool fail_kind(qn_vm *vm, qn_value x, const char *what) {
  text_buf t = {.vm = vm};
  text_kind(&t, x);
  text_addf(&t, " %s", what);
  raise_text(vm, E_type, SPAN_NONE, &t);
  return false;
}

static bool put(qn_vm *vm, qn_value *x, path_step *steps, uint32_t n, const qn_value *values, store *s);

/* Stores in, or combines with, the item that a path ends at. False with an error raised. */
static bool put_here(qn_vm *vm, qn_value *item, store *s) {
  if (s->assign) {
    n_binary n = binary_of(s->assign);
    return binary_into(vm, &n, item, take(s));
  }
  slot_set(vm, item, take(s));
  return true;
}

/* Stores at an item of a container, if the path ends there, or goes on along the path. */
static bool put_item(qn_vm *vm, qn_value *item, path_step *steps, uint32_t n, const qn_value *values, store *s) {
  return n > 1 ? put(vm, item, steps + 1, n - 1, values + steps->nvalues, s) : put_here(vm, item, s);
}

static bool put_field(qn_vm *vm, qn_value *x, qn_str *name, bool adds, path_step *steps, uint32_t n,
                      const qn_value *values, store *s) {
  if (value_is(*x, TAG_MODULE)) {
    raise_error(vm, E_module_assign, SPAN_NONE, "a module's names are set by its own code only");
    return false;
  }
  if (value_is(*x, TAG_ARRAY))
    return fail_kind(vm, *x, "has no fields to assign: reshape(x, 2, -1) and x.to(f16) give new arrays");
  if (!value_is(*x, TAG_RECORD)) return fail_kind(vm, *x, "has no fields to assign");
  int i = record_find(value_record(*x), name);
  if (i < 0) {
    if (adds && n == 1 && !s->assign) return record_own(vm, x) && record_set(vm, value_record(*x), name, take(s));
    qn_value missing = field_of(vm, *x, name, SPAN_NONE, NULL);
    value_release(vm, missing);
    if (n == 1 && !adds && vm->error && vm->error->refs == 1)
      raise_note(vm, SPAN_NONE, "r[\"%s\"] = v adds a field", name->text);
    if (n == 1 && adds && vm->error && vm->error->refs == 1)
      raise_note(vm, SPAN_NONE, "r[\"%s\"] = get(r, \"%s\", 0) + v begins at 0", name->text, name->text);
    return false;
  }
  if (!record_own(vm, x)) return false;
  if (!adds) field_cache_set(vm, &steps->cache, value_record(*x), (uint32_t)i);
  if ((n > 1 || s->assign) && !rec_plain_field(vm, &value_record(*x)->items[i])) return false;
  return put_item(vm, &value_record(*x)->items[i], steps, n, values, s);
}

/* Stores at the part of an array that these items name, if the path ends there, or goes on along it: `n` steps are left, the first of which has the
 * items. False with an error raised. */
static bool put_array(qn_vm *vm, qn_value *x, const index_item *items, path_step *steps, uint32_t n,
                      const qn_value *values, store *s) {
  op_part part;
  bool ok = true;
  if (n == 1 && steps->n == 1 && items->kind == INDEX_ARRAY &&
      op_put_at(vm, x, items->array, s->assign ? (op_id)s->assign->row : OP_COUNT, s->v, &ok))
    return ok;
  if (items->kind == INDEX_INT && n == 1 && !s->assign && op_put_element(vm, *x, items, (int)steps->n, s->v))
    return true;
  if (!op_part_of(vm, *x, items, (int)steps->n, &part)) {
    if (n == 1 && !s->assign) op_put_refused(vm, *x, s->v);
    return false;
  }
  if (n == 1 && !s->assign) return op_detach(vm, value_array(*x), &s->v) && op_part_put(vm, x, &part, s->v);
  if (n == 1 && op_part_repeats(&part)) return op_part_combine(vm, x, &part, (op_id)s->assign->row, s->v);
  if (n == 1 && s->assign->op != AST_OP_matmul && op_part_apply(vm, x, &part, (op_id)s->assign->row, s->v)) return true;
  qn_value item = op_part_get(vm, *x, &part);
  if (value_is_error(item)) return false;
  if (n == 1)
    ok = !value_is_error(item = combined(vm, s, item));
  else
    ok = put(vm, &item, steps + 1, n - 1, values + steps->nvalues, s);
  ok = ok && op_part_put(vm, x, &part, item);
  value_release(vm, item);
  return ok;
}

/* x[i] = v or x[i] op= v of a stacked list, as rec_counted_set. */
static int put_stacked(qn_vm *vm, qn_value *x, qn_value i, store *s) {
  if (!s->assign) return rec_counted_set(vm, x, i, s->v);
  if (!value_is(i, TAG_INT)) return 0;
  qn_value item = rec_stacked_get(vm, x, i);
  if (value_is_error(item)) return -1;
  if (value_is(item, TAG_UNSET)) return 0;
  item = combined(vm, s, item);
  if (value_is_error(item)) return -1;
  s->v = item;
  s->assign = NULL;
  return rec_counted_set(vm, x, i, item);
}

static bool put(qn_vm *vm, qn_value *x, path_step *steps, uint32_t n, const qn_value *values, store *s) {
  bool ok;
  if (s->stacked && value_is_container(*x)) ((obj_head *)x->u.p)->flags &= (uint8_t)~PARTS_PLAIN;
  if (steps->name) {
    ok = put_field(vm, x, steps->name, false, steps, n, values, s);
  } else if (value_is(*x, TAG_ARRAY)) {
    index_item items[INDEX_MAX];
    rec_at(vm, steps->mark);
    ok = index_items_tried(vm, *x, steps->items, steps->n, values, items) &&
         put_array(vm, x, items, steps, n, values, s);
  } else if (value_is(*x, TAG_RECORD) && steps->nvalues == 1 && value_is(values[0], TAG_STR)) {
    qn_value name = values[0];
    qn_str *key = rec_look(vm, name) ? str_intern(vm, value_str(name)->text, value_str(name)->len) : NULL;
    ok = key && put_field(vm, x, key, true, steps, n, values, s);
    if (key) value_release(vm, value_obj(TAG_STR, key));
  } else if (value_is_stacked(*x) && n == 1 && steps->n == 1 && steps->nvalues == 1) {
    rec_at(vm, steps->mark);
    int stored = put_stacked(vm, x, values[0], s);
    ok = stored > 0 || (!stored && rec_make_plain(vm, x) && put(vm, x, steps, n, values, s));
  } else if (value_is_stacked(*x)) {
    rec_at(vm, steps->mark);
    ok = rec_make_plain(vm, x) && put(vm, x, steps, n, values, s);
  } else if (value_is(*x, TAG_LIST)) {
    index_item item;
    int64_t at;
    if (steps->n != 1) {
      ok = fail_kind(vm, *x, "takes one index");
    } else if (!index_items_of(vm, steps->items, 1, values, true, &item)) {
      ok = false;
    } else if (item.kind != INDEX_INT) {
      raise_error(vm, E_index_kind, SPAN_NONE, "a list is assigned one item at a time; join slices with +");
      ok = false;
    } else {
      ok = index_position(vm, item.start, value_list(*x)->len, "list", &at) && list_own(vm, x) &&
           (n == 1 || rec_plain_field(vm, &value_list(*x)->items[at])) &&
           put_item(vm, &value_list(*x)->items[at], steps, n, values, s);
    }
  } else {
    ok = fail_kind(vm, *x,
                   value_is(*x, TAG_STR) ? "does not change; build a new string"
                   : value_is(*x, TAG_RECORD)
                       ? "has fields with names or texts: r[\"name\"] = v, and r[str(i)] = v by a number"
                       : "has no items to assign");
  }
  if (!ok) raise_at(vm, steps->mark);
  return ok;
}

/* ---- places ------------------------------------------------------------------------------------------------------------- */

static bool unset_variable(qn_vm *vm, const lvalue *p) {
  const global_cell *c = p->cell;
  raise_error(vm, c->declared ? E_unset : E_undefined, p->at,
              c->declared ? "'%s' is used before it has a value" : "'%s' is not defined", c->name->text);
  return false;
}

/* The item of a container that a step leads to, if the container has one owner and a record is as it was the last time: nothing needs to
 * be copied, looked up or told. NULL: not so. Goes on from the step's index values. */
static inline __attribute__((always_inline)) qn_value *step_to(const path_step *step, const qn_value *x,
                                                               const qn_value **values) {
  if (step->name) {
    if (x->head != TAG_RECORD) return NULL;
    qn_record *r = value_record(*x);
    return r->layout == step->cache.layout && r->head.refs == 1 ? &r->items[step->cache.index] : NULL;
  }
  if (x->head != TAG_LIST || step->nvalues != 1 || step->n != 1 || (*values)->head != TAG_INT || value_is_stacked(*x))
    return NULL;
  qn_list *l = value_list(*x);
  int64_t i = (*values)++->u.i;
  uint64_t at = (uint64_t)(i < 0 ? i + (int64_t)l->len : i);
  return at < l->len && l->head.refs == 1 ? &l->items[at] : NULL;
}

/* Where the first `steps` steps of a path lead if step_to can take each of them. NULL: it cannot, and path_put walks the path. */
static qn_value *path_to(qn_vm *vm, const lvalue *p, uint32_t steps, qn_value *fp, const qn_value *values) {
  qn_value *x = &fp[p->slot];
  if (p->cell) {
    x = &p->cell->value;
    if (rec_hears_globals(vm) || p->cell->rec.watched) return NULL;
  }
  for (const path_step *step = p->steps, *end = step + steps; step < end; step++)
    if (!(x = step_to(step, x, &values))) return NULL;
  return x;
}

static inline qn_value *path_item(qn_vm *vm, const lvalue *p, qn_value *fp, const qn_value *values) {
  return path_to(vm, p, p->n, fp, values);
}

/* Updates the variable at the root of a path. `s->v` is released by the caller. */
static bool path_put(qn_vm *vm, const lvalue *p, qn_value *fp, const qn_value *values, store *s) {
  vm->updating = p->at;
  if (!p->cell) return put(vm, &fp[p->slot], p->steps, p->n, values, s);
  global_cell *c = p->cell;
  bool unset = c->value.head == TAG_UNSET;
  if (unset && (!c->shadow || c->shadow->value.head == TAG_UNSET)) return unset_variable(vm, p);
  if (unset || rec_hears_globals(vm)) {
    qn_value now = unset ? value_retain(c->shadow->value) : rec_global(vm, &c->rec, &c->value, c->name);
    if (value_is_error(now)) return false;
    bool ok = put(vm, &now, p->steps, p->n, values, s);
    if (ok)
      cell_set(vm, c, now);
    else
      value_release(vm, now);
    return ok;
  }
  if (!put(vm, &c->value, p->steps, p->n, values, s)) return false;
  if (c->rec.watched) rec_global_changed(vm, &c->rec, value_unset(), c->value);
  return true;
}

/* Evaluates the indices of a target, and of the targets within it from left to right, onto the value stack. False: *stopped is the error or
 * signal. */
static bool lvalue_push(qn_vm *vm, const lvalue *p, qn_value *fp, qn_value *stopped) {
  qn_value *mark = vm->sp;
  if (p->kind == LVALUE_PATH) {
    for (uint32_t i = 0; i < p->n; i++) {
      const path_step *step = &p->steps[i];
      if (!step->name && !index_values_push(vm, step->items, step->n, fp, stopped)) {
        vm_pop_to(vm, mark);
        return false;
      }
    }
  } else if (p->kind == LVALUE_LIST || p->kind == LVALUE_RECORD) {
    for (uint32_t i = 0; i < p->n; i++) {
      if (lvalue_push(vm, p->items[i], fp, stopped)) continue;
      vm_pop_to(vm, mark);
      return false;
    }
  }
  return true;
}

static bool lvalue_put(qn_vm *vm, const lvalue *p, qn_value *fp, const qn_value *values, qn_value v);

/* (x[i], x[j]) = (x[j], x[i]): the views on the right are detached from x before any of them is stored. */
static bool detach_items(qn_vm *vm, const lvalue *p, qn_value *fp, const qn_value *values, qn_value v) {
  if (!value_is(v, TAG_LIST) || !value_unique(v)) return true;
  for (uint32_t i = 0; i < p->n; i++) {
    const lvalue *to = p->items[i];
    const qn_value *x = to->kind == LVALUE_PATH ? path_to(vm, to, to->n - 1, fp, values) : NULL;
    if (x && value_is(*x, TAG_ARRAY) && !op_detach(vm, value_array(*x), &value_list(v)->items[i])) return false;
    values += to->nvalues;
  }
  return true;
}

/* Binds an item (taken over; may be the error value) of what a pattern takes apart. */
static bool item_put(qn_vm *vm, const lvalue *to, qn_value *fp, const qn_value *values, qn_value item) {
  if (value_is_error(item)) return false;
  if (to->stacks || rec_plain_field(vm, &item)) return lvalue_put(vm, to, fp, values, item);
  value_release(vm, item);
  return false;
}

static bool list_put(qn_vm *vm, const lvalue *p, qn_value *fp, const qn_value *values, qn_value v) {
  if (!rec_plain_field(vm, &v)) return value_release(vm, v), false;
  if (!rec_length_seen(vm, v)) return false;
  int64_t n = value_is(v, TAG_LIST)                                ? value_list(v)->len
              : value_is(v, TAG_RANGE)                             ? range_length(value_range(v))
              : value_is(v, TAG_ARRAY) && value_array(v)->rank > 0 ? value_array(v)->shape[0]
                                                                   : -1;
  bool ok = n == (int64_t)p->n;
  if (!ok) {
    text_buf t = {.vm = vm};
    text_addf(&t, "the pattern has %u item%s, the value is ", p->n, p->n == 1 ? "" : "s");
    text_kind(&t, v);
    raise_text(vm, E_destructure, p->at, &t);
  }
  ok = ok && detach_items(vm, p, fp, values, v);
  for (uint32_t i = 0; ok && i < p->n; i++) {
    qn_value item = value_is(v, TAG_LIST)    ? value_retain(value_list(v)->items[i])
                    : value_is(v, TAG_RANGE) ? value_int(range_item(value_range(v), i))
                                             : op_index_row(vm, v, i);
    ok = item_put(vm, p->items[i], fp, values, item);
    values += p->items[i]->nvalues;
  }
  if (!ok) raise_at(vm, p->at);
  value_release(vm, v);
  return ok;
}

static bool record_put(qn_vm *vm, const lvalue *p, qn_value *fp, const qn_value *values, qn_value v) {
  if (!rec_plain_field(vm, &v)) return value_release(vm, v), false;
  bool ok = value_is(v, TAG_RECORD) || value_is(v, TAG_MODULE);
  if (!ok) {
    text_buf t = {.vm = vm};
    text_adds(&t, "the pattern needs a record or module, the value is ");
    text_kind(&t, v);
    raise_text(vm, E_destructure, p->at, &t);
  }
  for (uint32_t i = 0; ok && i < p->n; i++) {
    qn_value item = field_of(vm, v, p->fields[i], p->items[i]->at, NULL);
    ok = item_put(vm, p->items[i], fp, values, item);
    values += p->items[i]->nvalues;
  }
  if (!ok) raise_at(vm, p->at);
  value_release(vm, v);
  return ok;
}

/* Binds a value (taken over) to any target; `values` are the indices that lvalue_push left on the stack. False with an error raised. */
static bool lvalue_put(qn_vm *vm, const lvalue *p, qn_value *fp, const qn_value *values, qn_value v) {
  switch ((lvalue_kind)p->kind) {
  case LVALUE_NONE: value_release(vm, v); return true;
  case LVALUE_LOCAL: slot_set(vm, &fp[p->slot], v); return true;
  case LVALUE_GLOBAL:
    if (!p->defines && p->cell->value.head == TAG_UNSET) {
      value_release(vm, v);
      return unset_variable(vm, p);
    }
    cell_set(vm, p->cell, v);
    cell_defined(vm, p->cell, p->at);
    return true;
  case LVALUE_PATH: {
    store s = {.v = v, .stacked = brings_stacked(vm, v)};
    bool ok = path_put(vm, p, fp, values, &s);
    value_release(vm, s.v);
    return ok;
  }
  case LVALUE_LIST: return list_put(vm, p, fp, values, v);
  case LVALUE_RECORD: return record_put(vm, p, fp, values, v);
  }
  return true;
}

bool lvalue_bind(qn_vm *vm, const lvalue *p, qn_value *fp, qn_value v) { return lvalue_put(vm, p, fp, NULL, v); }

/* ---- statements --------------------------------------------------------------------------------------------------------------- */

qn_value eval_set_local(qn_vm *vm, node *h, qn_value *fp) {
  n_assign *n = (n_assign *)h;
  qn_value v = eval(vm, n->value, fp);
  if (value_stops(v)) return v;
  slot_set(vm, &fp[h->slot], v);
  return value_nil();
}

/* As eval_grow, where the list in *x grows in a recording. */
static __attribute__((noinline, cold)) qn_value grow(qn_vm *vm, n_grow *n, qn_value *fp, qn_value *x) {
  qn_value f = n->callee ? cell_get(n->callee) : value_nil();
  bool known = !n->callee || (value_is(f, TAG_FN) && value_fn(f)->code == n->def);
  for (uint32_t i = 0; i < n->n; i++) {
    qn_value v = known ? eval(vm, n->items[i], fp) : value_unset();
    if (value_stops(v)) return v;
    if (!rec_append(vm, x, v)) return raise_at(vm, n->h.at);
  }
  return value_nil();
}

/* xs = (..xs, v), where xs holds a counted list. */
static __attribute__((noinline, cold)) qn_value grow_counted(qn_vm *vm, n_grow *n, qn_value *fp) {
  qn_value *mark = vm->sp;
  if (!vm_enter(vm, n->n)) return raise_at(vm, n->h.at);
  for (uint32_t i = 0; i < n->n; i++) { /* they may read the list */
    qn_value v = eval(vm, n->items[i], fp);
    if (value_stops(v)) return vm_pop_with(vm, mark, v);
    *vm->sp++ = v;
  }
  qn_value all = value_retain(fp[n->h.slot]);
  bool ok = true;
  for (uint32_t i = 0; i < n->n && ok; i++) {
    if (!value_is_counted(all)) { /* the capture has ended */
      ok = list_own(vm, &all) && list_push(vm, value_list(all), value_retain(mark[i]));
      continue;
    }
    qn_value more = rec_counted_append(vm, all, mark[i]);
    ok = !value_is_error(more);
    value_release(vm, all);
    all = ok ? more : value_nil();
  }
  if (!ok) {
    value_release(vm, all);
    return vm_pop_with(vm, mark, raise_at(vm, n->h.at));
  }
  slot_set(vm, &fp[n->h.slot], all);
  return vm_pop_with(vm, mark, value_nil());
}

qn_value eval_grow(qn_vm *vm, node *h, qn_value *fp) {
  const n_grow *n = (const n_grow *)h;
  bool spread = ((const n_assign *)n->plain)->value->eval == eval_list_spread;
  if (spread && value_is_counted(fp[h->slot])) return grow_counted(vm, (n_grow *)h, fp);
  if (spread && value_is_stacked(fp[h->slot])) { /* append and + know of these */
    qn_value list = rec_unstacked(vm, fp[h->slot]);
    if (value_is_error(list)) return raise_at(vm, h->at);
    slot_set(vm, &fp[h->slot], list);
  }
  return rec_grows(vm, fp[h->slot]) ? grow(vm, (n_grow *)h, fp, &fp[h->slot]) : eval(vm, n->plain, fp);
}

/* Adds items to the list of a global, whose length is nothing that the recording in progress knows. */
static __attribute__((noinline, cold)) qn_value grow_unseen(qn_vm *vm, n_grow *n, qn_value *fp) {
  qn_value *mark = vm->sp;
  if (!vm_enter(vm, n->n)) return raise_at(vm, n->h.at);
  for (uint32_t i = 0; i < n->n; i++) {
    qn_value v = eval(vm, n->items[i], fp);
    if (value_stops(v)) return vm_pop_with(vm, mark, v);
    *vm->sp++ = v;
  }
  global_cell *c = n->cell;
  bool ok = list_own(vm, &c->value);
  for (uint32_t i = 0; i < n->n && ok; i++) ok = list_push(vm, value_list(c->value), value_retain(mark[i]));
  if (c->rec.watched) rec_global_changed(vm, &c->rec, value_unset(), c->value);
  return vm_pop_with(vm, mark, ok ? value_nil() : raise_at(vm, n->h.at));
}

qn_value eval_grow_global(qn_vm *vm, node *h, qn_value *fp) {
  n_grow *n = (n_grow *)h;
  qn_value *x = &n->cell->value;
  if (__builtin_expect(!rec_hears_globals(vm), 1) || !value_is(*x, TAG_LIST)) return eval(vm, n->plain, fp);
  if (rec_grows(vm, *x)) return grow(vm, n, fp, x);
  qn_value f = n->callee ? cell_get(n->callee) : value_nil();
  bool known = !n->callee || (value_is(f, TAG_FN) && value_fn(f)->code == n->def);
  return known && rec_grows_unseen(vm, x) ? grow_unseen(vm, n, fp) : eval(vm, n->plain, fp);
}

qn_value eval_set_global(qn_vm *vm, node *h, qn_value *fp) {
  n_assign *n = (n_assign *)h;
  qn_value v = eval(vm, n->value, fp);
  if (value_stops(v)) return v;
  const lvalue *p = n->target;
  global_cell *c = p->cell;
  if (!p->defines && c->value.head == TAG_UNSET) {
    value_release(vm, v);
    unset_variable(vm, p);
    return value_error();
  }
  cell_set(vm, c, v);
  cell_defined(vm, c, p->at);
  return value_nil();
}

qn_value eval_destructure(qn_vm *vm, node *h, qn_value *fp) {
  n_assign *n = (n_assign *)h;
  qn_value *mark = vm->sp, stopped;
  if (!lvalue_push(vm, n->target, fp, &stopped)) {
    if (value_is_error(stopped)) raise_at(vm, n->mark);
    return stopped;
  }
  qn_value v = eval(vm, n->value, fp);
  if (!value_stops(v)) v = lvalue_put(vm, n->target, fp, mark, v) ? value_nil() : value_error();
  vm_pop_to(vm, mark);
  return v;
}

/* A store failed. If its value has the wrong dtype, that concerns the whole path: an error placed at the last step is moved to the path's
 * beginning. */
static void place_error(qn_vm *vm, const lvalue *p) {
  const path_step *last = p->n ? &p->steps[p->n - 1] : NULL;
  bool here = last && vm->error->refs == 1 && vm->error->at.source == last->mark.source &&
              vm->error->at.start == last->mark.start;
  if (here) vm->error->at.start = p->at.start;
}

/* The result of an assignment that has stored, or not, what is left of `s`, which is released. */
static qn_value finish_update(qn_vm *vm, const n_assign *n, bool ok, store *s) {
  if (!ok) {
    raise_at(vm, n->mark);
    if (vm->error && vm->error->id == E_dtype) place_error(vm, n->target);
    bool index = vm->error && (vm->error->id == E_index || vm->error->id == E_index_kind); /* no fault of the value */
    if (!index) note_operand(vm, n->value->at, s->v, n->value);
  }
  value_release(vm, s->v);
  return ok ? value_nil() : value_error();
}

/* Stores `v` (taken over) at the path of an assignment, whose index values are given. */
static qn_value update(qn_vm *vm, n_assign *n, qn_value *fp, const qn_value *values, qn_value v) {
  const lvalue *p = n->target;
  store s = {.v = v, .assign = n->op == AST_OP_none ? NULL : n, .stacked = brings_stacked(vm, v)};
  path_step *last = &p->steps[p->n - 1];
  const qn_value *of_last = values + (p->nvalues - last->nvalues), *at = of_last;
  qn_value *x = s.stacked ? NULL : path_to(vm, p, last->name ? p->n : p->n - 1, fp, values), *item = x;
  if (x && !last->name) item = step_to(last, x, &at);
  vm->updating = p->at;
  bool ok = item                           ? put_here(vm, item, &s)
            : x && value_is(*x, TAG_ARRAY) ? put(vm, x, last, 1, of_last, &s)
                                           : path_put(vm, p, fp, values, &s);
  return finish_update(vm, n, ok, &s);
}

/* Stores `v` (taken over) at the items of a variable that holds an array. */
static __attribute__((noinline)) qn_value update_array(qn_vm *vm, n_assign *n, qn_value *x, const index_item *items,
                                                       qn_value v) {
  path_step *step = n->target->steps;
  store s = {.v = v, .assign = n->op == AST_OP_none ? NULL : n};
  vm->updating = n->target->at;
  rec_at(vm, step->mark);
  bool ok = put_array(vm, x, items, step, 1, NULL, &s);
  if (!ok) raise_at(vm, step->mark);
  return finish_update(vm, n, ok, &s);
}

/* The index values are evaluated, then the right side, which may change the variables that they came from. */
qn_value eval_update_path(qn_vm *vm, node *h, qn_value *fp) {
  n_assign *n = (n_assign *)h;
  qn_value *mark = vm->sp, stopped;
  if (!lvalue_push(vm, n->target, fp, &stopped)) {
    if (value_is_error(stopped)) raise_at(vm, n->mark);
    return stopped;
  }
  qn_value v = eval(vm, n->value, fp);
  if (!value_stops(v)) v = update(vm, n, fp, mark, v);
  vm_pop_to(vm, mark);
  return v;
}

/* The right side has made something else of the variable than an array: the store goes by the values of the items. */
static __attribute__((noinline)) qn_value update_other(qn_vm *vm, n_assign *n, qn_value *fp, const index_item *items,
                                                       qn_value v) {
  qn_value values[3 * INDEX_READ], *to = values;
  for (uint32_t i = 0; i < n->target->steps->n; i++) {
    if (items[i].kind == INDEX_INT) *to++ = value_int(items[i].start);
    if (items[i].kind == INDEX_ARRAY) *to++ = items[i].array;
    if (items[i].kind != INDEX_SLICE) continue;
    *to++ = items[i].has_start ? value_int(items[i].start) : value_nil();
    *to++ = items[i].has_stop ? value_int(items[i].stop) : value_nil();
    *to++ = value_int(items[i].step);
  }
  return update(vm, n, fp, values, v);
}

/* Index arrays in items wait on the stack, since the right side may change the variables that hold them. */
static bool hold_arrays(qn_vm *vm, const index_item *items, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    if (items[i].kind != INDEX_ARRAY) continue;
    if (!vm_enter(vm, 1)) return false;
    *vm->sp++ = value_retain(items[i].array);
  }
  return true;
}

qn_value eval_update(qn_vm *vm, node *h, qn_value *fp) {
  n_assign *n = (n_assign *)h;
  const lvalue *p = n->target;
  const path_step *step = p->steps;
  index_item items[INDEX_READ];
  if (p->n > 1 || step->name || !index_items_here(vm, step->items, step->n, fp, items))
    return eval_update_path(vm, h, fp);
  qn_value *mark = vm->sp, v;
  if (hold_arrays(vm, items, step->n)) {
    v = eval(vm, n->value, fp);
    if (!value_stops(v)) {
      qn_value *x = path_to(vm, p, 0, fp, NULL);
      v = x && x->head == TAG_ARRAY ? update_array(vm, n, x, items, v) : update_other(vm, n, fp, items, v);
    }
  } else {
    raise_at(vm, n->mark);
    v = value_error();
  }
  if (vm->sp != mark) vm_pop_to(vm, mark);
  return v;
}

/* x.name = v with a local x. */
static qn_value eval_update_field(qn_vm *vm, node *h, qn_value *fp) {
  n_assign *n = (n_assign *)h;
  const path_step *step = n->target->steps;
  qn_value v = eval(vm, n->value, fp), *x = &fp[n->target->slot];
  if (value_stops(v)) return v;
  if (x->head == TAG_RECORD && value_unique(*x) && value_record(*x)->layout == step->cache.layout &&
      !vm->asked.stacked) {
    slot_set(vm, &value_record(*x)->items[step->cache.index], v);
    return value_nil();
  }
  return update(vm, n, fp, NULL, v);
}

static inline qn_value update_fields(qn_vm *vm, n_assign *n, qn_value *fp, qn_value v) {
  if (value_stops(v)) return v;
  qn_value *item = vm->asked.stacked ? NULL : path_item(vm, n->target, fp, NULL);
  if (!item) return update(vm, n, fp, NULL, v);
  slot_set(vm, item, v);
  return value_nil();
}

static qn_value eval_update_fields(qn_vm *vm, node *h, qn_value *fp) {
  n_assign *n = (n_assign *)h;
  return update_fields(vm, n, fp, eval(vm, n->value, fp));
}

eval_fn fields_eval(const lvalue *p) { return p->n == 1 && !p->cell ? eval_update_field : eval_update_fields; }

/* x.a.b = x.a.b + e where a text or list was seen there: it grows in place. */
static qn_value eval_join_fields(qn_vm *vm, node *h, qn_value *fp) {
  n_assign *n = (n_assign *)h;
  const n_binary *sum = (const n_binary *)n->value;
  const qn_value *old = path_item(vm, n->target, fp, NULL);
  if (!old || (old->head != TAG_STR && old->head != TAG_LIST) || value_is_stacked(*old))
    return eval_update_fields(vm, h, fp);
  qn_value v = eval(vm, sum->b, fp);
  if (value_stops(v)) return v;
  qn_value *item = brings_stacked(vm, v) ? NULL : path_item(vm, n->target, fp, NULL);
  if (item) return binary_into(vm, sum, item, v) ? value_nil() : value_error();
  /* A function that captured the variable has made it shared. */
  qn_value now = eval(vm, sum->a, fp);
  if (value_stops(now)) {
    value_release(vm, v);
    return now;
  }
  v = binary_values(vm, sum, now, v);
  return value_is_error(v) ? v : update(vm, n, fp, NULL, v);
}

/* The first evaluation of x.a.b = x.a.b + e: chooses the evaluator for texts and lists or the plain one, and stores. */
qn_value eval_add_fields(qn_vm *vm, node *h, qn_value *fp) {
  n_assign *n = (n_assign *)h;
  qn_value v = eval(vm, n->value, fp);
  bool joins = v.head == TAG_STR || v.head == TAG_LIST;
  h->eval = joins ? eval_join_fields : fields_eval(n->target);
  return update_fields(vm, n, fp, v);
}

/* x[i] = v with one index. List items and array elements are stored at once; the index stays in a C variable instead of the value stack. */
qn_value eval_update_one(qn_vm *vm, node *h, qn_value *fp) {
  n_assign *n = (n_assign *)h;
  const lvalue *p = n->target;
  qn_value i = eval(vm, p->steps[0].items[0], fp);
  if (value_stops(i)) return i;
  qn_value v = eval_beside(vm, n->value, fp, i);
  if (value_stops(v)) {
    value_release(vm, i);
    return v;
  }
  qn_value *x = p->cell ? path_to(vm, p, 0, fp, NULL) : &fp[p->slot];
  if (x && x->head == TAG_LIST && i.head == TAG_INT && value_unique(*x)) {
    qn_list *l = value_list(*x);
    uint64_t at = (uint64_t)(i.u.i < 0 ? i.u.i + (int64_t)l->len : i.u.i);
    if (at < l->len && !vm->asked.stacked) {
      slot_set(vm, &l->items[at], v);
      return value_nil();
    }
  }
  if (x && x->head == TAG_ARRAY) {
    index_item item;
    if (i.head == TAG_INT && op_put_item(vm, *x, i.u.i, v)) {
      value_release(vm, v);
      return value_nil();
    }
    bool array =
        i.head == TAG_ARRAY && (dtype_is_bool(value_array(i)->dtype) || dtype_is_int((qn_dtype)value_array(i)->dtype));
    if ((array || i.head == TAG_INT) && index_item_of(vm, i, false, &item)) {
      qn_value r = update_array(vm, n, x, &item, v);
      value_release(vm, i);
      return r;
    }
  }
  qn_value r = update(vm, n, fp, &i, v);
  value_release(vm, i);
  return r;
}
