/* Lists of any length as arguments of compiled calls.
 *
 * A list is a part of what a call looks like, with its length. So where a function only goes over the items of a parameter, counts them, or takes
 * one, stores one or adds some (the interpreter finds this out from the text: jit_anchor.stackable), and calls have brought lists of different lengths, the items are
 * stacked: each array of an item becomes a row of an array with one more axis, and the parameter holds a list of three parts (rec.h) with
 * these arrays, which is traced and guarded like any other argument. The size of the new axis is symbolic from the first such recording
 * on. Loops over the list are loops over rows, and len gives the size.
 *
 * Likewise where such a function is called through jit, grad or value_and_grad. Gradients by a stacked list are a stacked list in the recording, and
 * a list for whoever has called; they have other bits where items are read more than once, and then the list is not stacked (differentiate.c).
 *
 * So are lists in records among the arguments (`p.layers`), as deep as PLACE_DEPTH fields, of any function: the record is copied, and holds the stacked
 * list. Reads of a field that are of these kinds take it as it is (n_field.stacks); at all others, and where a record is handed to a
 * builtin, a text or a comparison, the ordinary list is made (rec_plain), which guards its length, and such lists are not stacked any more.
 *
 * Only what the interpreter cannot tell from the list is stacked: arrays of one dtype and shape, on one device, without gaps, and floats.
 * Other parts of items have to be equal. All else is left to entries for one length. The elements are copied when it is certain that a
 * plan runs, or that the call is recorded; whatever the interpreter runs itself gets the lists.
 */
#include "jit/trace/stacked.h"

#include <string.h>

#include "jit/run/door.h"
#include "jit/run/index.h"
#include "jit/trace/grown.h"
#include "jit/trace/recording.h"

enum { LEAVES_MAX = 64 /* arrays and floats in an item */ };

/* The items of a list while they are looked at and copied. */
typedef struct stacking {
  qn_vm *vm;
  qn_value first[LEAVES_MAX]; /* the leaves of the first item, borrowed */
  uint32_t n, at;
  const qn_list *parts; /* NULL: they are compared */
  bool loose;           /* whatever their layout is, and whether they have been computed or not */
  int64_t row;
} stacking;

/* ---- looking ----------------------------------------------------------------------------------------------------------------------- */

/* A leaf of the first item, as the shape has it. The error value, with nothing raised, if it cannot be stacked. */
static qn_value shape_leaf(void *ctx, qn_value v) {
  stacking *s = ctx;
  bool array = value_is(v, TAG_ARRAY), number = value_is(v, TAG_FLOAT) || (s->loose && value_is(v, TAG_INT));
  if (!array && !number) {
    bool plain = value_is(v, TAG_NIL) || value_is(v, TAG_BOOL) || value_is(v, TAG_STR) || value_is(v, TAG_DTYPE);
    return plain ? value_retain(v) : value_error();
  }
  if (s->n == LEAVES_MAX) return value_error();
  if (array) {
    const qn_array *a = value_array(v);
    if (a->rank == ARRAY_MAX_RANK || (!s->loose && (!a->contiguous || array_pending(a)))) return value_error();
  }
  s->first[s->n++] = v;
  return array ? value_unset() : (qn_value){.head = TAG_SIGNAL, .u.i = WEAK_FLOAT};
}

/* Copies a leaf of item s->row. False with an error raised. */
static bool copy_leaf(stacking *s, qn_value v) {
  qn_array *part = value_array(s->parts->items[s->at]);
  if (value_is(v, TAG_FLOAT)) {
    memcpy(array_data(part) + s->row * (int64_t)sizeof v.u.f, &v.u.f, sizeof v.u.f);
    return true;
  }
  const qn_array *a = value_array(v);
  int64_t bytes = a->size * (int64_t)dtype_rows[a->dtype].size;
  if (!part->device) {
    if (bytes) memcpy(array_data(part) + s->row * bytes, array_data(a), (size_t)bytes);
    return true;
  }
  qn_array *row = array_view(s->vm, part, (qn_dtype)a->dtype, a->rank, a->shape, a->strides, s->row * a->size);
  bool ok = row && array_copy_on(s->vm, row, a);
  array_drop(s->vm, row);
  return ok;
}

static bool like_first(const stacking *s, qn_value v) {
  qn_value first = s->first[s->at];
  if (value_tag_of(v) != value_tag_of(first)) return false;
  if (!value_is(v, TAG_ARRAY)) return true;
  const qn_array *a = value_array(v), *b = value_array(first);
  if (!shape_equal(a, b)) return false;
  return s->loose ? a->dtype == b->dtype : array_form(a) == array_form(b) && !array_pending(a);
}

/* Compares an item with the shape, or copies it. False if they differ, or with an error raised. */
static bool each_leaf(stacking *s, qn_value shape, qn_value v) {
  if (value_is(shape, TAG_UNSET) || value_is(shape, TAG_SIGNAL)) {
    bool ok = s->parts ? copy_leaf(s, v) : like_first(s, v);
    s->at++;
    return ok;
  }
  if (value_tag_of(shape) != value_tag_of(v)) return false;
  if (value_is(v, TAG_STR)) return v.u.p == shape.u.p || str_equal(value_str(shape), value_str(v));
  bool list = value_is(v, TAG_LIST);
  if (!list && !value_is(v, TAG_RECORD)) return value_is(v, TAG_NIL) || shape.u.i == v.u.i;
  if (!list && !record_same_layout(value_record(v), value_record(shape))) return false;
  uint32_t n, m;
  const qn_value *p = value_parts(shape.u.p, &n), *q = value_parts(v.u.p, &m);
  if (n != m) return false;
  for (uint32_t i = 0; i < n; i++)
    if (!each_leaf(s, p[i], q[i])) return false;
  return true;
}

/* A new array with room for n leaves like this one. */
static qn_value part_like(qn_vm *vm, qn_value leaf, int64_t n) {
  int64_t shape[ARRAY_MAX_RANK] = {n};
  bool number = value_is(leaf, TAG_FLOAT);
  const qn_array *a = number ? NULL : value_array(leaf);
  for (int i = 0; a && i < a->rank; i++) shape[i + 1] = a->shape[i];
  qn_array *out =
      a ? array_new_on(vm, a->device, (qn_dtype)a->dtype, a->rank + 1, shape) : array_new(vm, QN_f64, 1, shape);
  return out ? value_obj(TAG_ARRAY, out) : value_error();
}

/* The arrays of a list whose items all look like the first one. Owned, or the error value. */
static qn_value new_parts(const stacking *s, int64_t n) {
  qn_list *parts = list_new(s->vm, s->n);
  if (!parts) return value_error();
  for (uint32_t k = 0; k < s->n; k++) {
    qn_value part = part_like(s->vm, s->first[k], n);
    if (value_is_error(part)) return value_fail(s->vm, value_obj(TAG_LIST, parts));
    parts->items[k] = part;
  }
  return value_obj(TAG_LIST, parts);
}

/* May these leaves be in one graph: is there an array, and do all lie on one device? Floats lie on the CPU. */
static bool one_device(const stacking *s) {
  int device = -1;
  bool arrays = false;
  for (uint32_t k = 0; k < s->n; k++) {
    bool array = value_is(s->first[k], TAG_ARRAY);
    int is = array ? value_array(s->first[k])->device : 0;
    if (device >= 0 && is != device) return false;
    device = is;
    arrays |= array;
  }
  return arrays || (s->n && !s->vm->device);
}

qn_value rec_stacked(qn_vm *vm, qn_value shape, qn_value parts) { return rec_stacked_marked(vm, shape, parts, 0); }

qn_value rec_stacked_marked(qn_vm *vm, qn_value shape, qn_value parts, int mark) {
  qn_list *out = value_is_error(shape) || value_is_error(parts) ? NULL : list_new(vm, STACKED_N);
  if (!out) {
    value_release(vm, shape);
    return value_fail(vm, parts);
  }
  out->items[STACKED_SHAPE] = shape;
  out->items[STACKED_PARTS] = parts;
  out->items[STACKED_MARK] = (qn_value){.head = TAG_SIGNAL, .u.i = mark};
  rec_note_stacked(vm);
  return value_obj(TAG_LIST, out);
}

/* The shape of the items of a list, if all have the same one: *shape, owned. False if they have not, perhaps with an error raised. */
static bool shape_of(stacking *s, qn_value v, qn_value *shape) {
  qn_vm *vm = s->vm;
  const qn_list *l = value_list(v);
  if (l->len < 2 || l->head.aux == OBJ_PROGRESS || value_is_stacked(v)) return false;
  *shape = tree_rebuild(vm, l->items[0], shape_leaf, s);
  bool same = !value_is_error(*shape);
  for (uint32_t i = 0; i < l->len && same; i++) {
    s->at = 0;
    same = each_leaf(s, *shape, l->items[i]);
  }
  if (!same) value_release(vm, *shape);
  return same;
}

/* What stands for a list, without elements. Owned; unset: it cannot be stacked; or the error value. */
static qn_value stacked_of(qn_vm *vm, qn_value v) {
  stacking s = {.vm = vm};
  qn_value shape;
  if (!shape_of(&s, v, &shape)) return error_pending(vm) ? value_error() : value_unset();
  if (one_device(&s)) return rec_stacked(vm, shape, new_parts(&s, value_list(v)->len));
  value_release(vm, shape);
  return value_unset();
}

bool rec_stacks(qn_vm *vm, qn_value list) {
  if (!value_is(list, TAG_LIST)) return false;
  stacking s = {.vm = vm, .loose = true};
  qn_value shape;
  bool ok = shape_of(&s, list, &shape);
  error_clear(vm);
  if (ok) value_release(vm, shape);
  return ok && s.n;
}

/* ---- arguments ---------------------------------------------------------------------------------------------------------------------- */

/* Notes that `v` (taken over), with the stacked list `stacked` (taken over) in it, stands in the place of an argument. */
static void replace_arg(stacked_args *s, qn_value *place, qn_value v, qn_value list, qn_value stacked) {
  s->of[s->n++] =
      (struct stacked_arg){.place = place, .before = *place, .list = value_retain(list), .stacked = stacked};
  *place = v;
}

uint32_t stack_args(qn_vm *vm, const rec_call_site *site, uint32_t wanted) {
  uint32_t stacked = 0;
  stacked_args *s = site->stacked;
  for (int i = 0; i < site->nargs && i < STACKABLE_MAX && s->n < STACKED_ARGS; i++) {
    qn_value *place = &site->args[i];
    if (!(wanted >> i & 1) || !value_is(*place, TAG_LIST)) continue;
    qn_value v = stacked_of(vm, *place);
    if (value_is_error(v)) break;
    if (!value_is(v, TAG_LIST)) continue;
    replace_arg(s, place, value_retain(v), *place, v);
    stacked |= (uint32_t)1 << i;
  }
  return stacked;
}

qn_value stack_place_value(const stack_place *p, qn_value v) {
  for (uint32_t k = 0; k < p->depth; k++) {
    int i = value_is(v, TAG_RECORD) ? record_find(value_record(v), p->names[k]) : -1;
    if (i < 0) return value_unset();
    v = value_record(v)->items[i];
  }
  return v;
}

/* A copy of a record with `stacked` (borrowed) in the place p, from names[k] on. Owned, or the error value. */
static qn_value record_with(qn_vm *vm, const stack_place *p, uint32_t k, qn_value v, qn_value stacked) {
  if (k == p->depth) return value_retain(stacked);
  const qn_record *r = value_record(v);
  qn_record *copy = record_like(vm, r);
  if (!copy) return value_error();
  qn_value out = value_obj(TAG_RECORD, copy);
  int at = record_find(r, p->names[k]);
  for (uint32_t i = 0; i < r->len; i++) {
    qn_value item = (int)i == at ? record_with(vm, p, k + 1, r->items[i], stacked) : value_retain(r->items[i]);
    if (value_is_error(item)) return value_fail(vm, out);
    copy->items[i] = item;
  }
  return out;
}

bool stack_place_of(qn_vm *vm, const rec_call_site *site, const stack_place *p) {
  stacked_args *s = site->stacked;
  if (p->apart || p->arg >= (uint32_t)site->nargs || s->n == STACKED_ARGS) return false;
  qn_value *place = &site->args[p->arg], list = stack_place_value(p, *place);
  if (!value_is(list, TAG_LIST)) return false;
  qn_value v = stacked_of(vm, list), whole = value_is(v, TAG_LIST) ? record_with(vm, p, 0, *place, v) : value_error();
  if (value_is_error(whole)) {
    if (!value_is_error(v)) value_release(vm, v);
    return false;
  }
  replace_arg(s, place, whole, list, v);
  return true;
}

/* Copies the items of a list to the arrays of what stands for it. False with an error raised. */
static bool fill(qn_vm *vm, qn_value list, qn_value stacked) {
  const qn_list *l = value_list(list);
  const qn_value *own = value_list(stacked)->items;
  stacking w = {.vm = vm, .parts = value_list(own[STACKED_PARTS])};
  for (; w.row < l->len; w.row++) {
    w.at = 0;
    if (!each_leaf(&w, own[STACKED_SHAPE], l->items[w.row])) return false;
  }
  return true;
}

bool stack_fill(const rec_call_site *site) {
  stacked_args *s = site->stacked;
  if (!s || s->filled) return true;
  for (uint32_t k = 0; k < s->n; k++)
    if (!fill(s->vm, s->of[k].list, s->of[k].stacked)) return false;
  return s->filled = true;
}

qn_value rec_stack_items(qn_vm *vm, qn_value list, uint32_t from, uint32_t n) {
  qn_list *l = list_from(vm, value_list(list)->items + from, n);
  qn_value part = l ? value_obj(TAG_LIST, l) : value_error(), v = l ? stacked_of(vm, part) : part;
  if (value_is(v, TAG_LIST) && !fill(vm, part, v)) v = value_fail(vm, v);
  if (l) value_release(vm, part);
  if (!value_is_error(v)) return v;
  error_clear(vm);
  return value_unset();
}

void stack_undo(const rec_call_site *site) {
  stacked_args *s = site->stacked;
  if (!s) return;
  while (s->n) { /* the last first: several lists may have been in one argument */
    const struct stacked_arg *x = &s->of[--s->n];
    value_release(s->vm, *x->place);
    *x->place = x->before;
    value_release(s->vm, x->list);
    value_release(s->vm, x->stacked);
  }
}

qn_value site_run(const rec_call_site *site) {
  stack_undo(site);
  return site->run(site->ctx);
}

void stacked_drop(qn_vm *vm, void *what) {
  stacked_args *s = what;
  for (uint32_t k = 0; k < s->n; k++) {
    value_release(vm, s->of[k].before);
    value_release(vm, s->of[k].list);
    value_release(vm, s->of[k].stacked);
  }
  s->n = 0;
}

/* ---- items -------------------------------------------------------------------------------------------------------------------------- */

/* An item while it is put together. */
typedef struct item_walk {
  qn_vm *vm;
  const qn_list *parts;
  uint32_t next;
  qn_value number;
  bool any; /* the number may be below 0, or outside */
} item_walk;

/* Is it a number of the recording in progress? Where a capture has ended, variables still hold numbers that were traced, and stacked lists. */
static bool is_traced(const qn_vm *vm, qn_value number) { return value_node(number) && op_deferred(vm); }

static qn_value row_of(const item_walk *w, qn_value part) {
  bool traced = is_traced(w->vm, w->number);
  if (!w->any) return traced ? rec_row(w->vm, part, w->number) : op_index_row(w->vm, part, w->number.u.i);
  index_item item = {.kind = INDEX_INT, .start = w->number.u.i};
  if (traced) item = (index_item){.kind = INDEX_ARRAY, .array = w->number};
  return op_index(w->vm, part, &item, 1);
}

/* The number of the item, counted from `start` on. */
static qn_value count_from(const item_walk *w, int64_t start) {
  if (!is_traced(w->vm, w->number)) return value_int(w->number.u.i + start);
  return start ? op_binary(w->vm, OP_add, w->number, value_int(start)) : value_retain(w->number);
}

static qn_value item_leaf(void *ctx, qn_value v) {
  item_walk *w = ctx;
  if (stacked_is_count(v)) return count_from(w, -1 - v.u.i);
  bool number = value_is(v, TAG_SIGNAL);
  if (!number && !value_is(v, TAG_UNSET)) return value_retain(v);
  qn_value row = row_of(w, w->parts->items[w->next++]);
  if (value_is_error(row) || !number) return row;
  qn_value out =
      op_deferred(w->vm) ? rec_host_number(w->vm, row, (qn_dtype)v.u.i) : op_number(w->vm, row, (qn_dtype)v.u.i);
  value_release(w->vm, row);
  return out;
}

static qn_value item_of(qn_vm *vm, qn_value list, qn_value number, bool any) {
  const qn_value *own = value_list(list)->items;
  item_walk w = {.vm = vm, .parts = value_list(own[STACKED_PARTS]), .number = number, .any = any};
  qn_value shape = own[STACKED_SHAPE];
  return value_is(shape, TAG_UNSET) ? item_leaf(&w, shape) : tree_rebuild(vm, shape, item_leaf, &w);
}

qn_value rec_stacked_item(qn_vm *vm, qn_value list, qn_value number) { return item_of(vm, list, number, false); }

qn_value rec_unstacked(qn_vm *vm, qn_value list) {
  int64_t n, first = 0;
  if (value_is_counted(list)) {
    n = counted_length(vm, list);
    if (n < 0 || (first = counted_first(vm, list)) < 0) return value_error();
  } else {
    qn_value lead = stacked_lead(list);
    if (!rec_length_seen(vm, lead)) return value_error();
    n = value_array(lead)->shape[0];
  }
  qn_list *out = list_new(vm, (size_t)n);
  for (uint32_t i = 0; out && i < out->len; i++) {
    qn_value item = item_of(vm, list, value_int(first + i), false);
    if (value_is_error(item)) return value_fail(vm, value_obj(TAG_LIST, out));
    out->items[i] = item;
  }
  return out ? value_obj(TAG_LIST, out) : value_error();
}

/* ---- items of ordinary lists, by numbers made of data ---------------------------------------------------------------------------------- */

enum { CHOSEN_ITEMS = 64, CHOSEN_ELEMENTS = 1 << 14 /* all of them are copied each time */ };

bool rec_chosen_by_data(const qn_vm *vm, qn_value i) {
  const struct recording *r = rec_now(vm);
  if (!r) return false;
  const struct recording *base = rec_base((struct recording *)(uintptr_t)r);
  bool number = value_is(i, TAG_INT) && value_node(i);
  bool array = value_is(i, TAG_ARRAY) && dtype_is_int((qn_dtype)value_array(i)->dtype) && !value_array(i)->rank;
  if ((!number && !array) || !base->capturing || base->tries || (base->trying && !r->arm) || base->lanes ||
      base->vmap_held.on)
    return false;
  if (r->arm ? r->lenient : r->hollow) return false;
  return !rec_has_lanes(vm) && !vmap_aside(r) && !rec_derivatives(r) && rec_is_data(r, i);
}

/* The dtype in which items can be stacked: arrays of one dtype and one shape, or numbers of one kind. QN_DTYPE_COUNT: they cannot. */
static qn_dtype dtype_of_items(qn_vm *vm, const qn_list *l) {
  qn_value first = l->items[0];
  int64_t sizes[ARRAY_MAX_RANK], others[ARRAY_MAX_RANK];
  bool array = value_is(first, TAG_ARRAY);
  if (array ? value_array(first)->rank == ARRAY_MAX_RANK || value_array(first)->size > CHOSEN_ELEMENTS / l->len
            : !value_is(first, TAG_FLOAT) && !value_is(first, TAG_INT))
    return QN_DTYPE_COUNT;
  if (array) rec_sizes(vm, first, sizes);
  for (uint32_t k = 1; k < l->len; k++) {
    qn_value v = l->items[k];
    if (value_tag_of(v) != value_tag_of(first)) return QN_DTYPE_COUNT;
    if (!array) continue;
    const qn_array *a = value_array(first), *b = value_array(v);
    if (a->dtype != b->dtype || a->rank != b->rank) return QN_DTYPE_COUNT;
    rec_sizes(vm, v, others);
    if (memcmp(sizes, others, a->rank * sizeof *sizes)) return QN_DTYPE_COUNT;
  }
  return array ? (qn_dtype)value_array(first)->dtype : value_is(first, TAG_INT) ? QN_i64 : QN_f64;
}

/* The item of a list of dtype_of_items' dtype that i names. Owned, or the error value. */
static qn_value item_of_stacked(qn_vm *vm, const qn_list *l, qn_dtype dtype, qn_value i) {
  qn_value all = op_stack(vm, l->items, (int)l->len, 0, dtype);
  if (value_is_error(all)) return all;
  index_item item = {.kind = INDEX_ARRAY, .array = i};
  qn_value out = op_index(vm, all, &item, 1);
  value_release(vm, all);
  if (value_is_error(out) || value_is(l->items[0], TAG_ARRAY)) return out;
  qn_value number = rec_host_number(vm, out, dtype == QN_i64 ? WEAK_INT : WEAK_FLOAT);
  value_release(vm, out);
  return number;
}

qn_value rec_item_by_data(qn_vm *vm, qn_value list, qn_value i) {
  const qn_list *l = value_list(list);
  if (!l->len || l->len > CHOSEN_ITEMS || l->head.aux == OBJ_PROGRESS || !rec_chosen_by_data(vm, i))
    return value_unset();
  qn_dtype dtype = dtype_of_items(vm, l);
  if (dtype == QN_DTYPE_COUNT) return value_unset();
  if (!rec_try_item_asked(vm, l->len, &i)) return value_error();
  struct recording *held = rec_hold(vm); /* i and the items are traced until the item is there */
  qn_value out = item_of_stacked(vm, l, dtype, i);
  if (rec_let_go(vm, held, !value_is_error(out))) return out;
  return value_is_error(out) ? out : value_fail(vm, out);
}

/* How deep in results and arguments stacked lists are looked for, and among how many parts. Results of graphs have no more of them; of values that the
 * interpreter has, in which parts may lie many times over, it is looked at the first levels: value_and_grad gives (value, gradients), and these may be of
 * several arguments that have such lists as deep as places are (stack_place). */
enum { STACKED_LEVELS = 3 + PLACE_DEPTH, STACKED_LOOK = 1 << 16 };

enum within { WITHIN_NONE, WITHIN_SOME, WITHIN_UNKNOWN };

/* Are there stacked lists in v? A container of which it is certain that there are none is marked, and not looked through again; *left is how many of the
 * others are looked through. */
static enum within look_within(qn_value v, int depth, uint32_t *left) {
  if (parts_are_plain(v)) return WITHIN_NONE;
  if (value_is_stacked(v)) return WITHIN_SOME;
  if (!*left) return WITHIN_UNKNOWN;
  uint32_t n;
  const qn_value *items = value_parts(v.u.p, &n);
  enum within all = n && !depth ? WITHIN_UNKNOWN : WITHIN_NONE;
  for (uint32_t i = 0; i < n && depth; i++) {
    enum within one = look_within(items[i], depth - 1, left);
    if (one == WITHIN_SOME) return one;
    if (one == WITHIN_UNKNOWN) all = one;
  }
  if (all == WITHIN_NONE)
    ((obj_head *)v.u.p)->flags |= PARTS_PLAIN;
  else if (*left)
    --*left;
  return all;
}

bool rec_holds_stacked(qn_value v) {
  uint32_t left = STACKED_LOOK, all = UINT32_MAX;
  enum within is = look_within(v, PATTERN_DEPTH, &left);
  return is == WITHIN_SOME || (is == WITHIN_UNKNOWN && !left && look_within(v, STACKED_LEVELS, &all) == WITHIN_SOME);
}

/* Owned, or the error value. */
static qn_value without_stacked(qn_vm *vm, qn_value v) {
  if (!rec_holds_stacked(v)) return value_retain(v);
  if (value_is_stacked(v)) return rec_unstacked(vm, v);
  bool list = value_is(v, TAG_LIST);
  uint32_t n;
  const qn_value *items = value_parts(v.u.p, &n);
  void *copy = list ? (void *)list_new(vm, n) : (void *)record_like(vm, value_record(v));
  if (!copy) return value_error();
  qn_value out = value_obj(list ? TAG_LIST : TAG_RECORD, copy), *to = value_parts(copy, &n);
  for (uint32_t i = 0; i < n; i++) {
    qn_value made = without_stacked(vm, items[i]);
    if (value_is_error(made)) return value_fail(vm, out);
    to[i] = made;
  }
  return out;
}

qn_value stacked_results(qn_vm *vm, qn_value v) {
  if (value_is_error(v) || !rec_holds_stacked(v)) return v;
  qn_value plain = without_stacked(vm, v);
  value_release(vm, v);
  return plain;
}

/* Functions that are looked through for stacked lists among what they have captured. */
typedef struct captures_walk {
  qn_vm *vm;
  int depth;
  uint32_t left; /* how many more, as functions may share what they have captured */
} captures_walk;

/* For tree_each_part: is it no function that has captured stacked lists, or functions that have? */
static bool captures_plain(void *ctx, qn_value v) {
  captures_walk *w = ctx;
  if (!value_is(v, TAG_FN) || w->depth == PATTERN_DEPTH || !w->left) return true;
  const qn_fn *f = value_fn(v);
  bool plain = true;
  w->depth++;
  w->left--;
  for (uint32_t i = 0; i < f->ncaptures && plain; i++)
    plain = !rec_holds_stacked(f->captures[i]) && tree_each_part(w->vm, f->captures[i], captures_plain, w);
  w->depth--;
  return plain;
}

/* For tree_rebuild_parts: a function as it is, or with ordinary lists in what it has captured. It stays the same function. */
static qn_value captures_made_plain(void *ctx, qn_value v) {
  captures_walk *w = ctx, look = *w;
  if (!value_is(v, TAG_FN) || captures_plain(&look, v)) return value_retain(v);
  if (error_pending(w->vm)) return value_error();
  qn_value out = parts_like(w->vm, v);
  if (value_is_error(out)) return out;
  qn_fn *f = value_fn(out);
  w->depth++;
  w->left -= w->left != 0;
  for (uint32_t i = 0; i < f->ncaptures; i++) {
    qn_value plain = without_stacked(w->vm, value_fn(v)->captures[i]);
    qn_value made = value_is_error(plain) ? plain : tree_rebuild_parts(w->vm, plain, captures_made_plain, w);
    if (!value_is_error(plain)) value_release(w->vm, plain);
    if (value_is_error(made)) return value_fail(w->vm, out);
    f->captures[i] = made;
  }
  w->depth--;
  return out;
}

/* Owned, or the error value; takes over `v`. */
static qn_value with_plain_captures(qn_vm *vm, qn_value v) {
  captures_walk w = {.vm = vm, .left = STACKED_LOOK};
  if (tree_each_part(vm, v, captures_plain, &w)) return v;
  w = (captures_walk){.vm = vm, .left = STACKED_LOOK};
  qn_value plain = error_pending(vm) ? value_error() : tree_rebuild_parts(vm, v, captures_made_plain, &w);
  value_release(vm, v);
  return plain;
}

qn_value stacked_captures(qn_vm *vm, qn_value v) {
  if (!value_is_error(v)) return with_plain_captures(vm, v);
  if (!error_catchable(vm) || value_is(vm->error->payload, TAG_NIL)) return v;
  qn_error_object *error = error_take(vm);
  qn_value payload = with_plain_captures(vm, error->payload);
  error->payload = value_is_error(payload) ? value_nil() : payload;
  if (error_catchable(vm)) error_clear(vm); /* memory was short */
  error_put_back(vm, error);                /* or an interrupt has taken its place */
  return v;
}

bool rec_make_plain(qn_vm *vm, qn_value *v) {
  if (!rec_holds_stacked(*v)) return true;
  bool of_rows = value_is_stacked(*v) && (stacked_mark(*v) & (STACKED_OF_ROWS | STACKED_COUNTED));
  qn_value plain = without_stacked(vm, *v);
  if (value_is_error(plain)) return false;
  value_release(vm, *v);
  *v = plain;
  if (of_rows) return true;
  /* how many items there are has become a guard, so stacking them was in vain */
  anchor_specializations *of = rec_call_of(vm);
  for (uint32_t i = 0; of && i < of->nplaces; i++) of->places[i].apart = true;
  return true;
}

qn_value rec_stacked_get(qn_vm *vm, qn_value *list, qn_value i) {
  if (value_is_counted(*list)) {
    qn_value item = rec_counted_get(vm, *list, i);
    if (!value_is(item, TAG_UNSET)) return item;
  } else if (value_is(i, TAG_INT) && !(stacked_mark(*list) & STACKED_LOOPED)) {
    int64_t n = value_array(stacked_lead(*list))->shape[0];
    bool known = !is_traced(vm, i);
    if (!known || (i.u.i >= -n && i.u.i < n)) {
      qn_value item = item_of(vm, *list, i, true);
      if (!value_is_error(item) || !error_catchable(vm) || vm->error->id != E_index) return item;
      error_clear(vm); /* in the words that lists have */
    }
  }
  qn_value plain = rec_unstacked(vm, *list);
  if (value_is_error(plain)) return plain;
  value_release(vm, *list);
  *list = plain;
  return value_unset();
}
