/* What makes lists of lists, of stacked ones (stacked.c): their slices, lists in reverse, joined, numbered or zipped.
 *
 * While a call is recorded, `enumerate(xs)`, `zip(xs, ys)`, `reverse(xs)`, `xs[1:]` and `xs + ys` of lists of any length are stacked lists, made by
 * ops on the arrays that hold the items, where what reads them knows of these (note_stackable). So a loop over one is a loop, and the length stays a
 * symbol. Numbered and zipped arrays are such lists, too: going over `enumerate(x)` is going over the rows of x.
 *
 * The numbers of enumerate are no array: in the item's shape stands a signal in their place (STACKED_COUNT), and an item has the number by which it was asked
 * for. Such a list, and one that is made of an array, is marked: only loops, `map` and their like take it, and all others get the ordinary list.
 */
#include <string.h>

#include "jit/run/door.h"
#include "jit/run/index.h"
#include "jit/trace/rec.h"

enum { JOINED_MAX = 16 /* items of an ordinary list that is joined with a stacked one */ };

/* The number of axes and the sizes of an item's leaf: those of a part but for its first axis. */
static int row_sizes(qn_vm *vm, qn_value part, int64_t *sizes) {
  int64_t all[ARRAY_MAX_RANK];
  rec_sizes(vm, part, all);
  int rank = value_array(part)->rank - 1;
  for (int k = 0; k < rank; k++) sizes[k] = all[k + 1];
  return rank;
}

static int64_t length_of(qn_vm *vm, qn_value x) {
  int64_t sizes[ARRAY_MAX_RANK];
  rec_sizes(vm, value_is_stacked(x) ? stacked_lead(x) : x, sizes);
  return sizes[0];
}

static const qn_list *parts_of(qn_value stacked) { return value_list(value_list(stacked)->items[STACKED_PARTS]); }

/* Does the shape of items have a number in it that counts them? */
static bool counts(qn_value shape) {
  if (value_is(shape, TAG_SIGNAL)) return stacked_is_count(shape);
  if (!value_is(shape, TAG_LIST) && !value_is(shape, TAG_RECORD)) return false;
  uint32_t n;
  const qn_value *items = value_parts(shape.u.p, &n);
  for (uint32_t i = 0; i < n; i++)
    if (counts(items[i])) return true;
  return false;
}

/* A stacked list with the shape (borrowed) of another one and these parts (taken over). Owned, or the error value. */
static qn_value like(qn_vm *vm, qn_value of, qn_list *parts) {
  const qn_value *own = value_list(of)->items;
  return rec_stacked_marked(vm, value_retain(own[STACKED_SHAPE]), value_obj(TAG_LIST, parts), stacked_mark(of));
}

qn_value rec_stacked_slice(qn_vm *vm, qn_value list, const index_item *slice) {
  if (counts(value_list(list)->items[STACKED_SHAPE])) return value_unset();
  const qn_list *l = parts_of(list);
  qn_list *out = list_new(vm, l->len);
  for (uint32_t k = 0; out && k < l->len; k++) {
    qn_value part = op_index(vm, l->items[k], slice, 1);
    if (value_is_error(part)) return value_fail(vm, value_obj(TAG_LIST, out));
    out->items[k] = part;
  }
  return out ? like(vm, list, out) : value_error();
}

qn_value rec_stacked_reversed(qn_vm *vm, qn_value list) {
  return rec_stacked_slice(vm, list, &(index_item){.kind = INDEX_SLICE, .step = -1});
}

/* What a list of rows of an array, or a stacked list, has as items and parts: an unset shape and the array itself, or those that it has. */
typedef struct rows_of_value {
  qn_value shape; /* borrowed */
  const qn_value *parts;
  uint32_t n;
} rows_of_value;

static rows_of_value rows_in(const qn_value *v) {
  if (!value_is_stacked(*v)) return (rows_of_value){value_unset(), v, 1};
  const qn_list *l = parts_of(*v);
  return (rows_of_value){value_list(*v)->items[STACKED_SHAPE], l->items, l->len};
}

/* The mark of what is made of k values. */
static int mark_for(const qn_value *from, uint32_t k) {
  bool rows = true;
  for (uint32_t j = 0; j < k; j++) rows &= !value_is_stacked(from[j]) || (stacked_mark(from[j]) & STACKED_OF_ROWS);
  return STACKED_LOOPED | (rows ? STACKED_OF_ROWS : 0);
}

static bool has_rows(qn_value v) { return value_is_stacked(v) || (value_is(v, TAG_ARRAY) && value_array(v)->rank > 0); }

qn_value rec_stacked_enumerate(qn_vm *vm, qn_value x, int64_t start) {
  if (!op_deferred(vm) || !has_rows(x) || start < 0 || start > STACKED_START_MAX) return value_unset();
  const rows_of_value rows = rows_in(&x);
  qn_list *shape = list_new(vm, 2), *parts = shape ? list_from(vm, rows.parts, rows.n) : NULL;
  if (shape) shape->items[0] = stacked_count(start), shape->items[1] = value_retain(rows.shape);
  if (!parts) {
    if (shape) value_release(vm, value_obj(TAG_LIST, shape));
    return value_error();
  }
  return rec_stacked_marked(vm, value_obj(TAG_LIST, shape), value_obj(TAG_LIST, parts), mark_for(&x, 1));
}

/* The one with the fewest items, in this call. */
static uint32_t shortest_of(qn_vm *vm, const qn_value *lists, uint32_t k) {
  uint32_t best = 0;
  for (uint32_t j = 1; j < k; j++)
    if (rec_size_hint(vm, length_of(vm, lists[j])) < rec_size_hint(vm, length_of(vm, lists[best]))) best = j;
  return best;
}

/* Adds the parts of a list to `to`, from *n on, cut to `most` items. 1; 0: it is not known to have so many; -1 with an error raised. */
static int parts_cut(qn_vm *vm, qn_value v, int64_t most, qn_list *to, uint32_t *n) {
  const rows_of_value rows = rows_in(&v);
  const index_item cut = {.kind = INDEX_SLICE, .has_stop = true, .size_stop = true, .stop = most, .step = 1};
  bool whole = length_of(vm, v) == most;
  for (uint32_t i = 0; i < rows.n; i++) {
    qn_value part = whole ? value_retain(rows.parts[i]) : op_index(vm, rows.parts[i], &cut, 1);
    if (value_is_error(part)) return -1;
    to->items[(*n)++] = part;
    int same = rec_sizes_equal(vm, length_of(vm, part), most);
    if (same <= 0) return same;
  }
  return 1;
}

qn_value rec_stacked_zip(qn_vm *vm, const qn_value *lists, uint32_t k) {
  uint32_t total = 0, n = 0;
  for (uint32_t j = 0; j < k; j++) {
    if (!op_deferred(vm) || !has_rows(lists[j])) return value_unset();
    total += rows_in(&lists[j]).n;
  }
  int64_t most = length_of(vm, lists[shortest_of(vm, lists, k)]), sizes[ARRAY_MAX_RANK];
  for (uint32_t j = 0; j < k; j++) /* which of several lengths is the least must not depend on a turn */
    if (length_of(vm, lists[j]) != most && !rec_sizes_of_call(vm, rows_in(&lists[j]).parts[0], sizes))
      return value_error();
  qn_list *shape = list_new(vm, k), *parts = shape ? list_new(vm, total) : NULL;
  int ok = parts ? 1 : -1;
  for (uint32_t j = 0; j < k && ok > 0; j++) {
    shape->items[j] = value_retain(rows_in(&lists[j]).shape);
    ok = parts_cut(vm, lists[j], most, parts, &n);
  }
  if (ok > 0) return rec_stacked_marked(vm, value_obj(TAG_LIST, shape), value_obj(TAG_LIST, parts), mark_for(lists, k));
  if (shape) value_release(vm, value_obj(TAG_LIST, shape));
  if (parts) value_release(vm, value_obj(TAG_LIST, parts));
  return ok ? value_error() : value_unset();
}

/* ---- joining ------------------------------------------------------------------------------------------------------------------------ */

/* Is a value like a row of a part? `leaf`: what the shape of items has in its place. 1, 0, -1 with an error raised. */
static int like_row(qn_vm *vm, qn_value part, qn_value leaf, qn_value v) {
  if (value_is(leaf, TAG_SIGNAL))
    return value_is(v, TAG_FLOAT) && leaf.u.i == WEAK_FLOAT && value_array(part)->rank == 1 &&
           value_array(part)->dtype == QN_f64;
  if (!value_is(v, TAG_ARRAY) || value_array(v)->dtype != value_array(part)->dtype ||
      value_array(v)->rank + 1 != value_array(part)->rank || value_array(v)->device != value_array(part)->device)
    return 0;
  int64_t sizes[ARRAY_MAX_RANK], own[ARRAY_MAX_RANK];
  int rank = row_sizes(vm, part, sizes), same = 1;
  rec_sizes(vm, v, own);
  for (int k = 0; k < rank && same > 0; k++) same = rec_sizes_equal(vm, sizes[k], own[k]);
  return same;
}

/* Collects the leaves of an item that is like those of a stacked list (borrowed), from leaves[*n] on. 1; 0: it is another one; -1 with an error
 * raised. */
static int item_leaves(qn_vm *vm, const qn_list *parts, qn_value shape, qn_value v, qn_value *leaves, uint32_t *n) {
  if (value_is(shape, TAG_UNSET) || value_is(shape, TAG_SIGNAL)) {
    int same = like_row(vm, parts->items[*n], shape, v);
    leaves[(*n)++] = v;
    return same;
  }
  if (value_tag_of(shape) != value_tag_of(v) || value_node(v) || rec_waits(vm, v)) return 0;
  if (value_is(v, TAG_STR)) return str_equal(value_str(shape), value_str(v));
  bool list = value_is(v, TAG_LIST);
  if (!list && !value_is(v, TAG_RECORD)) return value_is(v, TAG_NIL) || shape.u.i == v.u.i;
  if (list ? value_is_stacked(v) : !record_same_layout(value_record(v), value_record(shape))) return 0;
  uint32_t count, own;
  const qn_value *p = value_parts(shape.u.p, &count), *q = value_parts(v.u.p, &own);
  int same = count == own;
  for (uint32_t i = 0; i < count && same > 0; i++) same = item_leaves(vm, parts, p[i], q[i], leaves, n);
  return same;
}

/* Part k of a few items, whose leaves follow one another: owned, or the error value. */
static qn_value part_of_items(qn_vm *vm, qn_value part, const qn_value *leaves, uint32_t k, uint32_t nparts,
                              uint32_t n) {
  qn_value in[JOINED_MAX];
  for (uint32_t i = 0; i < n; i++) in[i] = leaves[(size_t)i * nparts + k];
  return op_stack(vm, in, (int)n, 0, (qn_dtype)value_array(part)->dtype);
}

/* The parts of an ordinary list with items like those of a stacked one. *out (owned); 1, 0 or -1 as above. */
static int parts_of_list(qn_vm *vm, qn_value stacked, qn_value list, qn_list **out) {
  const qn_list *l = value_list(list), *parts = parts_of(stacked);
  if (!l->len || l->len > JOINED_MAX || l->head.aux == OBJ_PROGRESS) return 0;
  size_t bytes = (size_t)l->len * parts->len * sizeof(qn_value);
  qn_value *leaves = mem_alloc(vm, bytes);
  int same = leaves ? 1 : -1;
  for (uint32_t i = 0; i < l->len && same > 0; i++) {
    uint32_t n = 0;
    same = item_leaves(vm, parts, value_list(stacked)->items[STACKED_SHAPE], l->items[i],
                       leaves + (size_t)i * parts->len, &n);
  }
  *out = same > 0 ? list_new(vm, parts->len) : NULL;
  if (same > 0 && !*out) same = -1;
  for (uint32_t k = 0; k < parts->len && same > 0; k++) {
    qn_value part = part_of_items(vm, parts->items[k], leaves, k, parts->len, l->len);
    if (value_is_error(part))
      same = -1;
    else
      (*out)->items[k] = part;
  }
  if (leaves) mem_free(vm, leaves, bytes);
  if (same <= 0 && *out) value_release(vm, value_obj(TAG_LIST, *out));
  return same;
}

/* Are the shapes of two items the same? */
static bool shapes_alike(qn_value a, qn_value b) {
  if (value_tag_of(a) != value_tag_of(b)) return false;
  if (value_is(a, TAG_STR)) return str_equal(value_str(a), value_str(b));
  bool list = value_is(a, TAG_LIST);
  if (!list && !value_is(a, TAG_RECORD)) return value_is(a, TAG_NIL) || value_is(a, TAG_UNSET) || a.u.i == b.u.i;
  if (!list && !record_same_layout(value_record(a), value_record(b))) return false;
  uint32_t n, m;
  const qn_value *p = value_parts(a.u.p, &n), *q = value_parts(b.u.p, &m);
  for (uint32_t i = 0; i < n && n == m; i++)
    if (!shapes_alike(p[i], q[i])) return false;
  return n == m;
}

/* Are the items of two stacked lists alike? 1, 0, -1 with an error raised. */
static int alike(qn_vm *vm, qn_value a, qn_value b) {
  const qn_list *p = parts_of(a), *q = parts_of(b);
  if (p->len != q->len || !shapes_alike(value_list(a)->items[STACKED_SHAPE], value_list(b)->items[STACKED_SHAPE]))
    return 0;
  int same = 1;
  for (uint32_t k = 0; k < p->len && same > 0; k++) {
    const qn_array *x = value_array(p->items[k]), *y = value_array(q->items[k]);
    if (x->dtype != y->dtype || x->rank != y->rank || x->device != y->device) return 0;
    int64_t sizes[ARRAY_MAX_RANK], others[ARRAY_MAX_RANK];
    int rank = row_sizes(vm, p->items[k], sizes);
    (void)row_sizes(vm, q->items[k], others);
    for (int i = 0; i < rank && same > 0; i++) same = rec_sizes_equal(vm, sizes[i], others[i]);
  }
  return same;
}

/* A counted list with the items of an ordinary one behind its own. */
static qn_value join_counted(qn_vm *vm, qn_value a, qn_value b) {
  if (value_is_stacked(b) || value_list(b)->len > JOINED_MAX) return value_unset();
  qn_value out = value_retain(a);
  for (uint32_t i = 0; i < value_list(b)->len && value_is_counted(out); i++) {
    qn_value more = rec_counted_append(vm, out, value_list(b)->items[i]);
    value_release(vm, out);
    out = more;
  }
  if (value_is_error(out) || value_is_counted(out)) return out;
  value_release(vm, out);
  return value_unset();
}

qn_value rec_stacked_join(qn_vm *vm, qn_value a, qn_value b) {
  if (value_is_counted(a) || value_is_counted(b)) return join_counted(vm, a, b);
  bool first = value_is_stacked(a), both = first && value_is_stacked(b);
  qn_value of = first ? a : b;
  if (counts(value_list(of)->items[STACKED_SHAPE])) return value_unset();
  qn_list *made = NULL;
  int same = both ? alike(vm, a, b) : parts_of_list(vm, of, first ? b : a, &made);
  if (same <= 0) return same ? value_error() : value_unset();
  const qn_list *p = parts_of(of), *q = both ? parts_of(b) : made;
  qn_list *out = list_new(vm, p->len);
  bool ok = out != NULL;
  for (uint32_t k = 0; k < p->len && ok; k++) {
    qn_value in[2] = {first ? p->items[k] : q->items[k], first ? q->items[k] : p->items[k]};
    qn_value part = op_concat(vm, in, 2, 0);
    ok = !value_is_error(part);
    if (ok) out->items[k] = part;
  }
  if (made) value_release(vm, value_obj(TAG_LIST, made));
  if (ok) return like(vm, of, out);
  return out ? value_fail(vm, value_obj(TAG_LIST, out)) : value_error();
}

/* Has a list items? (There is nothing to join in others.) 1, 0, -1 with an error raised: that differs from turn to turn. */
static int has_items(qn_vm *vm, qn_value list) { return rec_size_at_most(vm, 1, length_of(vm, list)); }

qn_value rec_stacked_concat(qn_vm *vm, qn_value list) {
  qn_value whole = stacked_lead(list);
  if (!value_is(value_list(list)->items[STACKED_SHAPE], TAG_UNSET) || value_array(whole)->rank < 2)
    return value_unset();
  int some = has_items(vm, list);
  if (some <= 0) return some ? value_error() : value_unset();
  int64_t sizes[ARRAY_MAX_RANK];
  if (!rec_sizes_of_call(vm, whole, sizes)) return value_error();
  int rank = value_array(whole)->rank;
  sizes[1] = dim_mul(rec_dims(vm), sizes[0], sizes[1]);
  return op_reshape(vm, whole, rank - 1, sizes + 1);
}

/* Floats become f32: one that this does not hold is an error (OP_fit). The largest tells whether there is one. False with an error raised. */
static bool demand_fit(qn_vm *vm, qn_value floats) {
  enum { FINITE, KNOWN, SIZES, LARGEST, NUMBER, FITTED, N };
  qn_value x[N] = {op_unary(vm, OP_isfinite, floats)}; /* the others are nil so far */
  bool ok = !value_is_error(x[FINITE]);
  if (ok) ok = !value_is_error(x[KNOWN] = op_ternary(vm, OP_where, (qn_value[]){x[FINITE], floats, value_float(0)}));
  if (ok) ok = !value_is_error(x[SIZES] = op_unary(vm, OP_abs, x[KNOWN]));
  if (ok) ok = !value_is_error(x[LARGEST] = op_reduce(vm, OP_max, x[SIZES], 1, false));
  if (ok) ok = !value_is_error(x[NUMBER] = rec_host_number(vm, x[LARGEST], WEAK_FLOAT));
  if (ok) ok = !value_is_error(x[FITTED] = op_cast(vm, x[NUMBER], QN_f32));
  for (int i = 0; i < N; i++) value_release(vm, x[i]);
  return ok;
}

qn_value rec_stacked_whole(qn_vm *vm, qn_value list) {
  qn_value shape = value_list(list)->items[STACKED_SHAPE], whole = stacked_lead(list);
  int some = has_items(vm, list);
  if (some <= 0) return some ? value_error() : value_unset();
  if (value_is(shape, TAG_UNSET)) return value_retain(whole);
  bool floats = value_is(shape, TAG_SIGNAL) && shape.u.i == WEAK_FLOAT && value_array(whole)->dtype == QN_f64;
  if (!floats || !op_deferred(vm)) return value_unset();
  return demand_fit(vm, whole) ? op_cast(vm, whole, QN_f32) : value_error();
}
