/* Indexing. An index is brought into a plan: for each axis of the array a start, a size and a step, the axes of the result,
 * and which of those axes are governed by index arrays or masks.
 *
 *   x[1:5, 0, new, idx]  ->  slice [1:5, 0:1, :]  ->  reshape (drops the axis of 0, adds new)  ->  index along idx's axis
 *
 * The basic part (slice and reshape) of an array that has its data is one strided view. While a call is recorded it is an
 * OP_slice and an OP_reshape. Index arrays then need their axes in front: permute, OP_index, and permute back where NumPy's
 * rule for neighbouring index arrays puts the result's axes elsewhere. A single mask is OP_compress; beside other index
 * arrays it is its coordinates (OP_nonzero).
 *
 * Updates run the same plan backwards. Basic ones write into the view of an array that has one owner, so that they cost
 * what they store; the others are OP_scatter on the basic part, or a select where a mask takes a single value.
 */
#include <string.h>

#include "interp/node.h"
#include "jit/run/eager.h"
#include "jit/run/eager_index.h"
#include "jit/trace/rec.h"

/* ---- items ---------------------------------------------------------------------------------------------------------- */

static bool is_int_array(qn_value v) { return value_is(v, TAG_ARRAY) && dtype_is_int((qn_dtype)value_array(v)->dtype); }

bool index_int(qn_vm *vm, qn_value v, const char *what, int64_t *out) {
  if (value_is(v, TAG_INT)) {
    v = rec_observe(vm, v);
    if (value_is_error(v)) return false;
    *out = v.u.i;
    return true;
  }
  if (is_int_array(v) && value_array(v)->rank == 0) {
    qn_value number;
    if (!array_item(vm, value_array(v), 0, &number)) return false;
    *out = number.u.i;
    return true;
  }
  text_buf t;
  text_init(&t, vm);
  text_addf(&t, "%s is ", what);
  text_kind(&t, v);
  text_adds(&t, ", not an int");
  bool range = strstr(what, "range") != NULL;
  if (value_is(v, TAG_FLOAT))
    text_adds(&t, "; int(x) and a // b give ints");
  else if (value_is(v, TAG_NIL) && !range)
    text_adds(&t, "; find gives nil where nothing is found; a new axis is written new: x[:, new], a whole one x[:]");
  else if (value_is(v, TAG_LIST) && !range)
    text_adds(&t, "; several items are taken by an array, x[[0, 2]], one item along several axes by x[0, 2]");
  else if (is_int_array(v) && !range)
    text_adds(&t, "; index arrays pick from arrays: of a list map((0, 2), fn(i) xs[i])");
  else if (value_is(v, TAG_STR) && range)
    text_adds(&t, "; strings are joined by +");
  raise_text(vm, E_index_kind, SPAN_NONE, &t);
  return false;
}

bool index_item_of(qn_vm *vm, qn_value v, bool host, index_item *out) {
  if (v.head == TAG_ARRAY && !host && value_array(v)->rank > 0 &&
      (value_array(v)->dtype == QN_i64 || value_array(v)->dtype == QN_bool)) {
    out->kind = value_array(v)->dtype == QN_bool ? INDEX_MASK : INDEX_ARRAY;
    out->array = v;
    return true;
  }
  *out = (index_item){.kind = INDEX_INT, .step = 1, .array = value_nil()};
  if (v.head == TAG_INT) {
    out->start = v.u.i;
    return true;
  }
  if (value_is(v, TAG_RANGE)) {
    const qn_range *r = value_range(v);
    out->kind = INDEX_SLICE;
    out->has_start = out->has_stop = true;
    out->start = r->start, out->stop = r->stop, out->step = r->step;
    return true;
  }
  if (!host && value_is(v, TAG_INT) && rec_number(vm, v)) {
    out->kind = INDEX_ARRAY;
    out->array = v;
    return true;
  }
  if (value_is(v, TAG_ARRAY) && (!host || value_array(v)->rank == 0)) {
    const qn_array *a = value_array(v);
    if (!host && a->dtype == QN_bool) {
      out->kind = INDEX_MASK;
      out->array = v;
      return true;
    }
    if (is_int_array(v) && !host && (a->rank > 0 || op_deferred(vm))) {
      out->kind = INDEX_ARRAY;
      out->array = v;
      return true;
    }
  }
  if (value_is(v, TAG_ARRAY) && !is_int_array(v)) {
    text_buf t;
    text_init(&t, vm);
    text_kind(&t, v);
    text_adds(&t, !host                              ? " is not an index; indices are integers or bools"
                  : value_array(v)->dtype == QN_bool ? " is no index of a list or text: a mask picks from arrays; of a "
                                                       "list filter(xs, fn(v) v > 0) keeps items"
                                                     : " is no index of a list or text, which is an int or a slice");
    raise_text(vm, E_index_kind, SPAN_NONE, &t);
    return false;
  }
  return index_int(vm, v, "the index", &out->start);
}

bool index_slice_of(qn_vm *vm, qn_value start, qn_value stop, qn_value step, index_item *out) {
  *out = (index_item){.kind = INDEX_SLICE, .step = 1, .array = value_nil()};
  if (!value_is(start, TAG_NIL)) {
    out->has_start = true;
    if (!index_int(vm, start, "a slice's start", &out->start)) return false;
  }
  if (!value_is(stop, TAG_NIL)) {
    out->has_stop = true;
    if (!index_int(vm, stop, "a slice's stop", &out->stop)) return false;
  }
  if (!value_is(step, TAG_NIL)) {
    if (!index_int(vm, step, "a slice's step", &out->step)) return false;
    if (out->step == 0) {
      raise_error(vm, E_index_kind, SPAN_NONE, "a slice's step cannot be 0");
      return false;
    }
  }
  return true;
}

static int64_t clamp(int64_t v, int64_t lo, int64_t hi) { return v < lo ? lo : v > hi ? hi : v; }

void slice_clip(const index_item *s, int64_t size, int64_t *start, int64_t *count) {
  int64_t lo = s->step > 0 ? 0 : -1, hi = s->step > 0 ? size : size - 1;
  int64_t from = s->step > 0 ? 0 : size - 1, to = s->step > 0 ? size : -1;
  if (s->has_start) from = clamp(s->start < 0 ? s->start + size : s->start, lo, hi);
  if (s->has_stop) to = clamp(s->stop < 0 ? s->stop + size : s->stop, lo, hi);
  *start = from;
  if (s->step > 0)
    *count = to > from ? (int64_t)(((uint64_t)to - (uint64_t)from - 1) / (uint64_t)s->step + 1) : 0;
  else
    *count = from > to ? (int64_t)(((uint64_t)from - (uint64_t)to - 1) / (0 - (uint64_t)s->step) + 1) : 0;
}

bool index_position(qn_vm *vm, int64_t i, int64_t n, const char *what, int64_t *out) {
  *out = i < 0 ? i + n : i;
  if (*out >= 0 && *out < n) return true;
  bool next = i == n && strcmp(what, "list") == 0;
  raise_error(vm, E_index, SPAN_NONE, "index %lld is out of bounds for a %s of %lld%s", (long long)i, what,
              (long long)n, next ? ", whose items count from 0; xs = append(xs, v) adds one" : "");
  return false;
}

bool index_repeats(const index_item *items, int n) {
  for (int i = 0; i < n; i++)
    if (items[i].kind == INDEX_ARRAY && value_is(items[i].array, TAG_ARRAY) && value_array(items[i].array)->rank > 0)
      return true;
  return false;
}

/* ---- plans ------------------------------------------------------------------------------------------------------------ */

typedef struct index_plan {
  /* per axis of x: the slice */
  int64_t start[ARRAY_MAX_RANK], size[ARRAY_MAX_RANK], step[ARRAY_MAX_RANK];
  bool whole; /* the slice is all of x */
  /* axes after the basic part: where each comes from (-1: new) */
  int rank;
  int from[2 * ARRAY_MAX_RANK];
  int64_t shape[2 * ARRAY_MAX_RANK];
  bool same; /* the basic part drops and adds no axis */
  /* index arrays and masks, in order; `axis` is the first axis of the basic part that they govern */
  int nadvanced;
  struct advanced {
    qn_value v;
    bool mask;
    int axis, axes;
  } advanced[ARRAY_MAX_RANK];
  bool together; /* no slice, new or ... between them (integers count as neighbours): their result axes stay in place */
  int lead;      /* how many axes of the result come before theirs then */
} index_plan;

static bool too_many(qn_vm *vm, const qn_array *x, int given) {
  raise_error(vm, E_index_kind, SPAN_NONE, "an array of rank %d takes at most %d ind%s, not %d", x->rank, x->rank,
              x->rank == 1 ? "ex" : "ices", given);
  return false;
}

static bool plan_int(qn_vm *vm, const qn_array *x, int axis, int64_t i, index_plan *p) {
  int64_t n = x->shape[axis], at = i < 0 ? i + n : i;
  if (at < 0 || at >= n) {
    raise_error(vm, E_index, SPAN_NONE, "index %lld is out of bounds for axis %d of size %lld", (long long)i, axis,
                (long long)n);
    return false;
  }
  p->start[axis] = at, p->size[axis] = 1, p->step[axis] = 1;
  return true;
}

static bool plan_items(qn_vm *vm, const qn_array *x, const index_item *items, int n, index_plan *p) {
  memset(p, 0, sizeof *p);
  int used = 0, ellipses = 0;
  bool has_arrays = false;
  for (int i = 0; i < n; i++) {
    uint8_t kind = items[i].kind;
    if (kind == INDEX_ELLIPSIS) ellipses++;
    if (kind == INDEX_INT || kind == INDEX_SLICE || kind == INDEX_ARRAY) used++;
    if (kind == INDEX_MASK) used += value_array(items[i].array)->rank;
    has_arrays |= kind == INDEX_ARRAY || kind == INDEX_MASK;
  }
  if (used > x->rank) return too_many(vm, x, used);
  if (ellipses > 1) {
    raise_error(vm, E_index_kind, SPAN_NONE, "an index has at most one ...");
    return false;
  }
  int axis = 0, runs = 0;
  bool in_run = false;
  p->whole = p->same = true;
  for (int i = 0; i <= n; i++) {
    index_item rest = {.kind = INDEX_ELLIPSIS};
    const index_item *item = i < n ? &items[i] : &rest;
    if (i == n && ellipses) break;
    bool advanced = item->kind == INDEX_INT || item->kind == INDEX_ARRAY || item->kind == INDEX_MASK;
    if (has_arrays && i < n) {
      if (advanced && !in_run && runs++ == 0) p->lead = p->rank;
      in_run = advanced;
    }
    switch (item->kind) {
    case INDEX_INT:
      if (!plan_int(vm, x, axis++, item->start, p)) return false;
      p->whole = p->same = false;
      break;
    case INDEX_SLICE:
      slice_clip(item, x->shape[axis], &p->start[axis], &p->size[axis]);
      p->step[axis] = p->size[axis] > 1 ? item->step : 1;
      if (p->size[axis] == 0) p->start[axis] = 0;
      p->whole &= p->start[axis] == 0 && p->step[axis] == 1 && p->size[axis] == x->shape[axis];
      p->from[p->rank] = axis;
      p->shape[p->rank++] = p->size[axis++];
      break;
    case INDEX_NEW:
      p->same = false;
      p->from[p->rank] = -1;
      p->shape[p->rank++] = 1;
      break;
    default: {
      int axes = item->kind == INDEX_ELLIPSIS ? x->rank - used
                 : item->kind == INDEX_MASK   ? value_array(item->array)->rank
                                              : 1;
      if (item->kind != INDEX_ELLIPSIS) {
        if (item->kind == INDEX_MASK) {
          const qn_array *m = value_array(item->array);
          if (axes == 0) {
            raise_error(vm, E_index_kind, SPAN_NONE, "a bool without axes is not an index; where(c, a, b) chooses");
            return false;
          }
          for (int k = 0; k < axes; k++) {
            if (m->shape[k] == x->shape[axis + k]) continue;
            raise_error(vm, E_index, SPAN_NONE, "the mask has size %lld along axis %d, where the array has %lld",
                        (long long)m->shape[k], axis + k, (long long)x->shape[axis + k]);
            return false;
          }
        }
        p->advanced[p->nadvanced++] = (struct advanced){item->array, item->kind == INDEX_MASK, p->rank, axes};
      }
      for (int k = 0; k < axes; k++, axis++) {
        p->start[axis] = 0, p->size[axis] = x->shape[axis], p->step[axis] = 1;
        p->from[p->rank] = axis;
        p->shape[p->rank++] = x->shape[axis];
      }
    }
    }
    if (p->rank > ARRAY_MAX_RANK) {
      raise_error(vm, E_rank, SPAN_NONE, "the result would have more than %d axes", ARRAY_MAX_RANK);
      return false;
    }
  }
  p->together = runs <= 1;
  return true;
}

/* ---- ops ---------------------------------------------------------------------------------------------------------------- */

static qn_value shape_op(qn_vm *vm, op_id op, qn_value x, int rank, const int64_t *shape) {
  op_attr attr = {.n = (uint8_t)rank};
  if (rank) memcpy(attr.d, shape, (size_t)rank * sizeof *shape);
  return op_apply(vm, op, &x, 1, &attr);
}

static bool has_shape(const qn_array *a, int rank, const int64_t *shape) {
  return a->rank == rank && (rank == 0 || memcmp(a->shape, shape, (size_t)rank * sizeof *shape) == 0);
}

qn_value array_reshaped(qn_vm *vm, qn_value x, int rank, const int64_t *shape) {
  if (has_shape(value_array(x), rank, shape)) return value_retain(x);
  return shape_op(vm, OP_reshape, x, rank, shape);
}

/* As the functions without `_take`, but take over the array. */
static qn_value reshape_take(qn_vm *vm, qn_value x, int rank, const int64_t *shape) {
  if (value_is_error(x)) return x;
  qn_value r = array_reshaped(vm, x, rank, shape);
  value_release(vm, x);
  return r;
}

static qn_value broadcast_take(qn_vm *vm, qn_value x, int rank, const int64_t *shape) {
  if (value_is_error(x) || has_shape(value_array(x), rank, shape)) return x;
  qn_value r = shape_op(vm, OP_broadcast, x, rank, shape);
  value_release(vm, x);
  return r;
}

static qn_value permute_take(qn_vm *vm, qn_value x, const int *order) {
  if (value_is_error(x)) return x;
  op_attr attr = {.n = value_array(x)->rank};
  bool same = true;
  for (int i = 0; i < attr.n; i++) {
    attr.d[i] = order[i];
    same &= order[i] == i;
  }
  if (same) return x;
  qn_value r = op_apply(vm, OP_permute, &x, 1, &attr);
  value_release(vm, x);
  return r;
}

static void slice_attr(const index_plan *p, int rank, op_attr *attr) {
  memset(attr, 0, sizeof *attr);
  attr->n = (uint8_t)(3 * rank);
  for (int i = 0; i < rank; i++) {
    attr->d[3 * i] = p->start[i];
    attr->d[3 * i + 1] = p->size[i];
    attr->d[3 * i + 2] = p->step[i];
  }
}

/* Where the basic part begins, and its strides. */
static int64_t basic_layout(const qn_array *x, const index_plan *p, int64_t *strides) {
  int64_t offset = x->offset;
  for (int i = 0; i < x->rank; i++) offset += p->start[i] * x->strides[i];
  for (int i = 0; i < p->rank; i++) strides[i] = p->from[i] < 0 ? 0 : x->strides[p->from[i]] * p->step[p->from[i]];
  return offset;
}

/* The basic part of x; owned. */
static qn_value basic_get(qn_vm *vm, qn_value x, const index_plan *p) {
  const qn_array *a = value_array(x);
  if (p->whole && p->same) return value_retain(x);
  if (op_at_hand(vm, a)) {
    int64_t strides[ARRAY_MAX_RANK], offset = basic_layout(a, p, strides);
    qn_array *part = array_part(vm, a, p->rank, p->shape, strides, offset);
    return part ? value_obj(TAG_ARRAY, part) : value_error();
  }
  qn_value r = value_retain(x);
  if (!p->whole) {
    op_attr attr;
    slice_attr(p, a->rank, &attr);
    value_release(vm, r);
    r = op_apply(vm, OP_slice, &x, 1, &attr);
  }
  return p->same ? r : reshape_take(vm, r, p->rank, p->shape);
}

/* ---- index arrays and masks ------------------------------------------------------------------------------------------------ */

/* The axes that index arrays govern first, the others behind them. */
static int advanced_order(const index_plan *p, int order[ARRAY_MAX_RANK]) {
  bool governed[2 * ARRAY_MAX_RANK] = {false};
  int n = 0;
  for (int i = 0; i < p->nadvanced; i++)
    for (int k = 0; k < p->advanced[i].axes; k++) governed[order[n++] = p->advanced[i].axis + k] = true;
  int count = n;
  for (int i = 0; i < p->rank; i++)
    if (!governed[i]) order[n++] = i;
  return count;
}

/* How the result of OP_index or OP_compress ([joint..., rest...]) is permuted into place: axes of the joint shape stand after
 * the first `lead` others if the index arrays are neighbours. `order[i]` is the axis that becomes axis i. */
static void result_order(const index_plan *p, int joint, int rank, int order[ARRAY_MAX_RANK]) {
  int lead = p->together ? p->lead : 0, n = 0;
  for (int i = 0; i < lead; i++) order[n++] = joint + i;
  for (int i = 0; i < joint; i++) order[n++] = i;
  for (int i = joint + lead; i < rank; i++) order[n++] = i;
}

static void invert_order(const int *order, int rank, int *inverse) {
  for (int i = 0; i < rank; i++) inverse[order[i]] = i;
}

typedef struct operands {
  qn_value v[1 + 2 * ARRAY_MAX_RANK + 1];
  int n;
} operands;

static void operands_release(qn_vm *vm, operands *o) {
  for (int i = 0; i < o->n; i++) value_release(vm, o->v[i]);
  o->n = 0;
}

/* Adds the index arrays of the plan; a mask becomes one array of coordinates for each of its axes. */
static bool add_index_arrays(qn_vm *vm, const index_plan *p, operands *o) {
  for (int i = 0; i < p->nadvanced; i++) {
    if (!p->advanced[i].mask) {
      o->v[o->n++] = value_retain(p->advanced[i].v);
      continue;
    }
    qn_value where = op_apply(vm, OP_nonzero, &p->advanced[i].v, 1, NULL);
    if (value_is_error(where)) return false;
    int64_t count = value_array(where)->shape[0];
    for (int k = 0; k < p->advanced[i].axes; k++) {
      op_attr attr = {.n = 6, .d = {0, count, 1, k, 1, 1}};
      qn_value column = reshape_take(vm, op_apply(vm, OP_slice, &where, 1, &attr), 1, &count);
      if (value_is_error(column)) {
        value_release(vm, where);
        return false;
      }
      o->v[o->n++] = column;
    }
    value_release(vm, where);
  }
  return true;
}

/* Bounds of index arrays that exist are checked by the op; what is checked here is that they broadcast. */
static int joint_rank(const operands *o, int first) {
  int rank = 0;
  for (int i = first; i < o->n; i++) {
    int r = value_is(o->v[i], TAG_ARRAY) ? value_array(o->v[i])->rank : 0;
    if (r > rank) rank = r;
  }
  return rank;
}

/* Do the joint axes and `others` behind them make an array? */
static bool check_rank(qn_vm *vm, int joint, int others) {
  if (joint + others <= ARRAY_MAX_RANK) return true;
  raise_error(vm, E_rank, SPAN_NONE, "the result would have more than %d axes", ARRAY_MAX_RANK);
  return false;
}

/* The shape that the index arrays from operand `first` on broadcast to, of `joint` axes. */
static bool joint_shape(qn_vm *vm, const operands *o, int first, int joint, int64_t *shape) {
  for (int i = 0; i < joint; i++) shape[i] = 1;
  for (int k = first; k < o->n; k++) {
    if (!value_is(o->v[k], TAG_ARRAY)) continue;
    const qn_array *a = value_array(o->v[k]);
    for (int i = 0; i < a->rank; i++) {
      int64_t *at = &shape[joint - a->rank + i];
      if (*at == 1) {
        *at = a->shape[i];
      } else if (a->shape[i] != 1 && a->shape[i] != *at) {
        raise_error(vm, E_broadcast, SPAN_NONE, "the index arrays do not broadcast together");
        return false;
      }
    }
  }
  return true;
}

/* The plan as the fast way has it, while nothing is recorded. False: an array is not in the CPU's memory. */
static bool pick_of(const qn_vm *vm, const qn_array *x, const index_plan *p, eager_pick *to) {
  int64_t strides[ARRAY_MAX_RANK];
  if (op_deferred(vm) || !eager_here(x)) return false;
  to->rank = to->n = 0;
  to->offset = basic_layout(x, p, strides);
  to->lead = p->together ? p->lead : 0;
  int taken = 0, axis = 0;
  for (; to->n < p->nadvanced; to->n++) {
    const struct advanced *by = &p->advanced[to->n];
    if (!value_is(by->v, TAG_ARRAY) || !eager_here(value_array(by->v))) return false;
    to->index[to->n] = value_array(by->v);
    for (; axis < by->axis; axis++) to->shape[to->rank] = p->shape[axis], to->strides[to->rank++] = strides[axis];
    for (; axis < by->axis + by->axes; axis++) to->size[taken] = p->shape[axis], to->stride[taken++] = strides[axis];
  }
  for (; axis < p->rank; axis++) to->shape[to->rank] = p->shape[axis], to->strides[to->rank++] = strides[axis];
  return true;
}

static qn_value advanced_get(qn_vm *vm, qn_value x, const index_plan *p) {
  eager_pick pick;
  if (pick_of(vm, value_array(x), p, &pick)) {
    qn_value fast = eager_pick_apply(vm, value_array(x), &pick);
    if (!value_is(fast, TAG_UNSET)) return fast;
  }
  int order[ARRAY_MAX_RANK], back[ARRAY_MAX_RANK];
  int governed = advanced_order(p, order);
  qn_value base = permute_take(vm, basic_get(vm, x, p), order);
  if (value_is_error(base)) return base;
  operands o = {.v = {base}, .n = 1};
  qn_value r = value_error();
  int joint = 1;
  if (p->nadvanced == 1 && p->advanced[0].mask) {
    qn_value in[2] = {base, p->advanced[0].v};
    r = op_apply(vm, OP_compress, in, 2, NULL);
  } else if (add_index_arrays(vm, p, &o)) {
    joint = joint_rank(&o, 1);
    op_attr attr = {.n = 1, .d = {o.n - 1}};
    if (check_rank(vm, joint, p->rank - governed)) r = op_apply(vm, OP_index, o.v, o.n, &attr);
  }
  operands_release(vm, &o);
  if (value_is_error(r)) return r;
  result_order(p, joint, value_array(r)->rank, back);
  return permute_take(vm, r, back);
}

/* ---- reading -------------------------------------------------------------------------------------------------------------- */

static qn_value list_get(qn_vm *vm, const qn_list *l, const index_item *item) {
  int64_t at, count;
  if (item->kind == INDEX_INT) {
    if (!index_position(vm, item->start, l->len, "list", &at)) return value_error();
    return value_retain(l->items[at]);
  }
  slice_clip(item, l->len, &at, &count);
  qn_list *r = list_new(vm, (size_t)count);
  if (!r) return value_error();
  for (int64_t i = 0; i < count; i++) {
    r->items[i] = value_retain(l->items[at + i * item->step]);
    if (!vm_poll_item(vm, i)) continue;
    value_release(vm, value_obj(TAG_LIST, r));
    return value_error();
  }
  return value_obj(TAG_LIST, r);
}

static qn_value str_get(qn_vm *vm, const qn_str *s, const index_item *item) {
  int64_t n = str_length(s), at, count;
  if (item->kind == INDEX_INT) {
    if (!index_position(vm, item->start, n, "string", &at)) return value_error();
    uint32_t from = (uint32_t)str_offset(s, at), to = from + 1;
    while (to < s->len && ((unsigned char)s->text[to] & 0xc0) == 0x80) to++;
    qn_str *r = str_new(vm, s->text + from, to - from);
    return r ? value_obj(TAG_STR, r) : value_error();
  }
  slice_clip(item, n, &at, &count);
  if (item->step == 1 || count == 0) {
    size_t from = str_offset(s, count ? at : 0), to = str_offset(s, count ? at + count : 0);
    qn_str *r = str_new(vm, s->text + from, to - from);
    return r ? value_obj(TAG_STR, r) : value_error();
  }
  /* Any other step: the offsets of all code points, once. */
  uint32_t *offsets = mem_alloc(vm, (size_t)(n + 1) * sizeof *offsets);
  if (!offsets) return value_error();
  uint32_t byte = 0;
  for (int64_t i = 0; i < n; i++) {
    if (vm_poll_item(vm, i)) {
      mem_free(vm, offsets, (size_t)(n + 1) * sizeof *offsets);
      return value_error();
    }
    offsets[i] = byte++;
    while (byte < s->len && ((unsigned char)s->text[byte] & 0xc0) == 0x80) byte++;
  }
  offsets[n] = s->len;
  text_buf t;
  text_init(&t, vm);
  bool stop = false;
  for (int64_t i = 0; i < count && !stop && !t.failed; i++) {
    int64_t k = at + i * item->step;
    text_add(&t, s->text + offsets[k], offsets[k + 1] - offsets[k]);
    stop = vm_poll_item(vm, i);
  }
  mem_free(vm, offsets, (size_t)(n + 1) * sizeof *offsets);
  if (!stop) return text_take(&t);
  text_free(&t);
  return value_error();
}

static qn_value range_get(qn_vm *vm, const qn_range *r, const index_item *item) {
  int64_t n = range_length(r), at, count;
  if (item->kind == INDEX_INT) {
    if (!index_position(vm, item->start, n, "range", &at)) return value_error();
    return value_int(range_item(r, at));
  }
  slice_clip(item, n, &at, &count);
  qn_range *out = range_slice(vm, r, at, count, item->step);
  return out ? value_obj(TAG_RANGE, out) : value_error();
}

static qn_value fail_index(qn_vm *vm, qn_value x, int n) {
  text_buf t;
  text_init(&t, vm);
  text_kind(&t, x);
  bool indexed = value_is(x, TAG_LIST) || value_is(x, TAG_STR) || value_is(x, TAG_RANGE);
  text_adds(&t, !indexed ? " cannot be indexed" : n == 1 ? " cannot be indexed like this" : " takes one index");
  return raise_text(vm, E_index_kind, SPAN_NONE, &t);
}

qn_value index_get(qn_vm *vm, qn_value x, const index_item *items, int n) {
  if (value_is(x, TAG_ARRAY)) {
    index_plan p;
    if (!plan_items(vm, value_array(x), items, n, &p)) return value_error();
    return p.nadvanced ? advanced_get(vm, x, &p) : basic_get(vm, x, &p);
  }
  bool one = n == 1 && (items->kind == INDEX_INT || items->kind == INDEX_SLICE);
  if (one && value_is(x, TAG_LIST)) return list_get(vm, value_list(x), items);
  if (one && value_is(x, TAG_STR)) return str_get(vm, value_str(x), items);
  if (one && value_is(x, TAG_RANGE)) return range_get(vm, value_range(x), items);
  return fail_index(vm, x, n);
}

qn_value index_row(qn_vm *vm, qn_value x, int64_t i) {
  const qn_array *a = value_array(x);
  if (op_at_hand(vm, a)) {
    qn_array *v = array_part(vm, a, a->rank - 1, a->shape + 1, a->strides + 1, a->offset + i * a->strides[0]);
    return v ? value_obj(TAG_ARRAY, v) : value_error();
  }
  index_item item = {.kind = INDEX_INT, .start = i, .step = 1, .array = value_nil()};
  return index_get(vm, x, &item, 1);
}

/* ---- updates ------------------------------------------------------------------------------------------------------------------ */

/* Order of kinds: bool < int < float. A value goes into an array of its kind or of a later one. */
static int kind_order(qn_dtype d) { return d == QN_bool ? 0 : dtype_is_int(d) ? 1 : 2; }

bool index_may_store(const qn_array *x, qn_value v) {
  if (value_is(v, TAG_ARRAY))
    return value_array(v)->device == x->device &&
           (value_array(v)->dtype == x->dtype ||
            kind_order((qn_dtype)value_array(v)->dtype) <= kind_order((qn_dtype)x->dtype));
  return v.head == TAG_INT     ? kind_order((qn_dtype)x->dtype) >= 1 && dtype_holds((qn_dtype)x->dtype, v)
         : v.head == TAG_FLOAT ? kind_order((qn_dtype)x->dtype) == 2 && dtype_holds((qn_dtype)x->dtype, v)
                               : v.head == TAG_BOOL;
}

static bool storable(qn_vm *vm, const qn_array *x, qn_value v) {
  if (index_may_store(x, v)) return true;
  bool array = value_is(v, TAG_ARRAY);
  if (!array && !value_is_scalar(v)) {
    text_buf t;
    text_init(&t, vm);
    text_kind(&t, v);
    text_adds(&t, " cannot be stored in an array");
    if (value_is(v, TAG_LIST)) text_adds(&t, "; array(xs) makes one of a list of numbers");
    raise_text(vm, E_type, SPAN_NONE, &t);
    return false;
  }
  if (array && value_array(v)->device != x->device) {
    op_raise_devices(vm, op_rows[OP_slice_put].name, x->device, value_array(v)->device);
    return false;
  }
  qn_dtype from = array                   ? (qn_dtype)value_array(v)->dtype
                  : value_is(v, TAG_BOOL) ? QN_bool
                  : value_is(v, TAG_INT)  ? QN_i64
                                          : QN_f64;
  if (kind_order(from) > kind_order((qn_dtype)x->dtype)) {
    text_buf t;
    text_init(&t, vm);
    text_kind(&t, v);
    qn_dtype holds = array || from != QN_f64 ? from : QN_f32;
    text_addf(&t, " cannot be stored in an array of %s, which keeps its dtype; x = %s(x) makes one that can hold it",
              dtype_rows[x->dtype].name, dtype_rows[holds].name);
    raise_text(vm, E_dtype, SPAN_NONE, &t);
    return false;
  }
  if (!array && !dtype_holds((qn_dtype)x->dtype, v)) {
    text_buf t;
    text_init(&t, vm);
    text_kind(&t, v);
    text_addf(&t, " does not fit %s", dtype_rows[x->dtype].name);
    raise_text(vm, E_weak_range, SPAN_NONE, &t);
    return false;
  }
  return true;
}

/* `v` as an array of x's dtype (checked to be storable); owned. */
static qn_value as_dtype(qn_vm *vm, const qn_array *x, qn_value v) {
  op_attr attr = {.dtype = x->dtype};
  if (value_is(v, TAG_ARRAY))
    return value_array(v)->dtype == x->dtype ? value_retain(v) : op_apply(vm, OP_cast, &v, 1, &attr);
  if (rec_number(vm, v)) return op_apply(vm, OP_fit, &v, 1, &attr);
  qn_array *a = array_from_scalar(vm, (qn_dtype)x->dtype, (qn_value){.head = v.head & 0xff, .u = v.u});
  if (a && x->device) {
    qn_array *there = array_to_device(vm, a, x->device);
    value_release(vm, value_obj(TAG_ARRAY, a));
    a = there;
  }
  return a ? rec_literal(vm, a) : value_error();
}

static bool check_broadcast(qn_vm *vm, const qn_array *v, int rank, const int64_t *shape) {
  bool fits = true;
  /* Leading axes of size 1 beyond the place's rank are dropped, as in NumPy. */
  for (int i = 0; i < v->rank && fits; i++) {
    int at = rank - v->rank + i;
    fits = v->shape[i] == 1 || (at >= 0 && v->shape[i] == shape[at]);
  }
  if (fits) return true;
  text_buf t;
  text_init(&t, vm);
  text_shape(&t, (qn_dtype)v->dtype, v->rank, v->shape);
  text_adds(&t, " does not fit the place, which is ");
  text_shape(&t, (qn_dtype)v->dtype, rank, shape);
  raise_text(vm, E_broadcast, SPAN_NONE, &t);
  return false;
}

/* `v` (taken over) broadcast to a shape that it fits. */
static qn_value fit_shape_take(qn_vm *vm, qn_value v, int rank, const int64_t *shape) {
  if (value_is_error(v)) return v;
  const qn_array *a = value_array(v);
  if (!check_broadcast(vm, a, rank, shape)) {
    value_release(vm, v);
    return value_error();
  }
  if (a->rank > rank) v = reshape_take(vm, v, rank, value_array(v)->shape + (a->rank - rank));
  return broadcast_take(vm, v, rank, shape);
}

/* Stores into the basic part of `*x`. `v`: an array of x's dtype that broadcasts to the part's shape, taken over. */
static bool basic_put(qn_vm *vm, qn_value *x, const index_plan *p, qn_value v) {
  v = fit_shape_take(vm, v, p->rank, p->shape);
  if (value_is_error(v)) return false;
  qn_array *a = value_array(*x);
  if (op_at_hand(vm, a)) {
    if (!array_force(vm, value_array(v)) || !array_own(vm, x)) {
      value_release(vm, v);
      return false;
    }
    a = value_array(*x);
    int64_t strides[ARRAY_MAX_RANK], offset = basic_layout(a, p, strides);
    qn_array *to = array_view(vm, a, (qn_dtype)a->dtype, p->rank, p->shape, strides, offset);
    bool ok = to && array_copy_on(vm, to, value_array(v));
    value_release(vm, v);
    if (to) value_release(vm, value_obj(TAG_ARRAY, to));
    return ok;
  }
  qn_value r;
  if (p->whole && p->same) {
    r = v;
  } else {
    int64_t sizes[ARRAY_MAX_RANK];
    memcpy(sizes, p->size, sizeof sizes);
    v = reshape_take(vm, v, a->rank, sizes);
    if (value_is_error(v)) return false;
    op_attr attr;
    slice_attr(p, a->rank, &attr);
    qn_value in[2] = {*x, v};
    r = op_apply(vm, OP_slice_put, in, 2, &attr);
    value_release(vm, v);
    if (value_is_error(r)) return false;
  }
  value_release(vm, *x);
  *x = r;
  return true;
}

/* The plan's basic part without its index arrays: what the outer store of an advanced update uses. */
static bool store_part(qn_vm *vm, qn_value *x, const index_plan *p, qn_value part) { return basic_put(vm, x, p, part); }

/* A mask over the leading axes takes one value everywhere: a select. `v` is rank 0 or broadcasts over the axes behind the mask. */
static qn_value select_masked(qn_vm *vm, qn_value base, qn_value mask, qn_value v) {
  const qn_array *m = value_array(mask), *b = value_array(base);
  int64_t shape[ARRAY_MAX_RANK];
  for (int i = 0; i < b->rank; i++) shape[i] = i < m->rank ? m->shape[i] : 1;
  qn_value wide = array_reshaped(vm, mask, b->rank, shape);
  if (value_is_error(wide)) return wide;
  qn_value in[3] = {wide, v, base};
  qn_value r = op_apply(vm, OP_where, in, 3, NULL);
  value_release(vm, wide);
  return r;
}

/* Items as they are written, and their values. */
typedef struct written {
  node *const *items;
  uint32_t n;
  const qn_value *values;
} written;

/* Few places at index arrays and masks are stored to in place, so that an update costs what it stores. `v` is storable. By a plan, or
 * without one by the items. False: not this case, nothing is done: *x is the array that it was. */
static bool put_places(qn_vm *vm, qn_value *x, const index_plan *p, const written *w, qn_value v, scatter_mode mode,
                       bool *ok) {
  eager_pick pick;
  eager_places places;
  qn_array *a = value_array(*x);
  *ok = false;
  if (!(p ? pick_of(vm, a, p, &pick) : index_pick(vm, a, w->items, w->n, w->values, &pick))) return false;
  if (!eager_find(vm, &pick, &places)) return vm->error != NULL;
  if (!eager_fits(&places, v)) return false;
  qn_value cast = value_nil();
  if (value_is(v, TAG_ARRAY)) {
    if (!eager_here(value_array(v)) || value_array(v)->storage == a->storage) return false;
    if (value_array(v)->dtype != a->dtype) {
      op_attr attr = {.dtype = a->dtype};
      cast = op_apply(vm, OP_cast, &v, 1, &attr);
      if (value_is_error(cast)) return true;
      v = cast;
    }
  }
  *ok = array_own(vm, x);
  if (*ok && value_array(*x) != a) { /* a copy, which may lie in another way, but has the same places */
    a = value_array(*x);
    *ok = (p ? pick_of(vm, a, p, &pick) : index_pick(vm, a, w->items, w->n, w->values, &pick)) &&
          eager_find(vm, &pick, &places);
  }
  *ok = *ok && eager_store(vm, a, &places, v, mode);
  value_release(vm, cast);
  return true;
}

/* Updates at index arrays and masks. `v` is storable; mode says how repeated positions combine. */
static bool advanced_put(qn_vm *vm, qn_value *x, const index_plan *p, qn_value v, scatter_mode mode) {
  bool ok;
  if (put_places(vm, x, p, NULL, v, mode, &ok)) return ok;
  int order[ARRAY_MAX_RANK], inverse[ARRAY_MAX_RANK], back[ARRAY_MAX_RANK];
  int governed = advanced_order(p, order);
  v = as_dtype(vm, value_array(*x), v);
  if (value_is_error(v)) return false;
  qn_value base = permute_take(vm, basic_get(vm, *x, p), order);
  if (value_is_error(base)) {
    value_release(vm, v);
    return false;
  }
  const qn_array *b = value_array(base);
  qn_value r = value_error();
  bool single_mask = p->nadvanced == 1 && p->advanced[0].mask && mode == SCATTER_SET;
  if (single_mask && value_array(v)->rank == 0) {
    r = select_masked(vm, base, p->advanced[0].v, v);
  } else {
    operands o = {.v = {base}, .n = 1};
    value_retain(base);
    if (add_index_arrays(vm, p, &o)) {
      int joint = joint_rank(&o, 1), rank = joint + p->rank - governed;
      int64_t shape[ARRAY_MAX_RANK], placed[ARRAY_MAX_RANK];
      /* The shape of what OP_index would give: the broadcast shape of the index arrays, then the other axes. */
      if (check_rank(vm, joint, p->rank - governed) && joint_shape(vm, &o, 1, joint, shape)) {
        for (int i = governed; i < p->rank; i++) shape[joint + i - governed] = b->shape[i];
        result_order(p, joint, rank, back);
        for (int i = 0; i < rank; i++) placed[i] = shape[back[i]];
        invert_order(back, rank, inverse);
        v = permute_take(vm, fit_shape_take(vm, v, rank, placed), inverse);
        if (!value_is_error(v)) {
          o.v[o.n++] = value_retain(v);
          op_attr attr = {.n = 1, .mode = (uint8_t)mode, .d = {o.n - 2}};
          r = op_apply(vm, OP_scatter, o.v, o.n, &attr);
        }
      }
    }
    operands_release(vm, &o);
  }
  value_release(vm, base);
  value_release(vm, v);
  if (value_is_error(r)) return false;
  invert_order(order, p->rank, inverse);
  r = permute_take(vm, r, inverse);
  return !value_is_error(r) && store_part(vm, x, p, r);
}

/* One element of an array that has its data and one owner: no views. False: not this case. */
static bool element_put(qn_vm *vm, qn_value *x, const index_item *items, int n, qn_value v, bool *ok) {
  qn_array *a = value_array(*x);
  if (!op_at_hand(vm, a) || n != a->rank || !value_is_scalar(v)) return false;
  for (int i = 0; i < n; i++)
    if (items[i].kind != INDEX_INT) return false;
  *ok = false;
  v.head &= 0xff;
  if (!storable(vm, a, v)) return true;
  int64_t at[ARRAY_MAX_RANK];
  for (int i = 0; i < n; i++) {
    int64_t size = a->shape[i];
    at[i] = items[i].start < 0 ? items[i].start + size : items[i].start;
    if (at[i] < 0 || at[i] >= size) {
      raise_error(vm, E_index, SPAN_NONE, "index %lld is out of bounds for axis %d of size %lld",
                  (long long)items[i].start, i, (long long)size);
      return true;
    }
  }
  if (!array_own(vm, x)) return true;
  a = value_array(*x);
  int64_t offset = 0;
  for (int i = 0; i < n; i++) offset += at[i] * a->strides[i];
  *ok = array_store(vm, a, a->offset + offset, v);
  return true;
}

bool index_put_number(const qn_vm *vm, qn_value x, int64_t i, qn_value v) {
  const qn_array *a = value_array(x);
  const qn_storage *s = a->storage;
  if (op_deferred(vm) || !s || a->rank != 1 || a->device || a->head.refs != 1 || s->refs != 1 || s->foreign)
    return false;
  if (i < 0) i += a->shape[0];
  if (i < 0 || i >= a->shape[0] || (a->strides[0] == 0 && a->size > 1)) return false;
  char *to = s->data + (a->offset + i * a->strides[0]) * (int64_t)dtype_size((qn_dtype)a->dtype);
  bool f = v.head == TAG_FLOAT;
  if (!f && v.head != TAG_INT) return false;
  switch (a->dtype) {
  case QN_f64: {
    double x64 = f ? v.u.f : (double)v.u.i;
    memcpy(to, &x64, sizeof x64);
    return true;
  }
  case QN_f32: {
    if (f && (v.u.f > 0x1.fffffep127 || v.u.f < -0x1.fffffep127)) return false;
    float x32 = f ? (float)v.u.f : (float)v.u.i;
    memcpy(to, &x32, sizeof x32);
    return true;
  }
  case QN_i64:
    if (f) return false;
    memcpy(to, &v.u.i, sizeof v.u.i);
    return true;
  default: return false;
  }
}

bool index_takes_number(const qn_vm *vm, qn_value x, int64_t i, qn_value v) {
  const qn_array *a = value_array(x);
  if (op_deferred(vm) || !eager_here(a) || a->rank != 1 || (a->head.refs == 1 && a->storage->refs == 1)) return false;
  if (i < 0) i += a->shape[0];
  return (uint64_t)i < (uint64_t)a->shape[0] && (v.head == TAG_INT || v.head == TAG_FLOAT) && index_may_store(a, v);
}

/* Is a mask among the values of items? */
static bool has_mask(node *const *items, uint32_t n, const qn_value *values) {
  for (uint32_t i = 0; i < n; i++) {
    if (items[i]->kind == N_ELLIPSIS || items[i]->kind == N_NEW) continue;
    if (values->head == TAG_ARRAY && value_array(*values)->dtype == QN_bool) return true;
    values += items[i]->kind == N_SLICE ? 3 : 1;
  }
  return false;
}

bool index_put_places(qn_vm *vm, qn_value *x, node *const *items, uint32_t n, const qn_value *values, op_id op,
                      qn_value v, bool *ok) {
  const qn_array *a = value_array(*x);
  bool set = op == OP_COUNT;
  scatter_mode mode = set ? SCATTER_SET : op == OP_add ? SCATTER_ADD : SCATTER_MUL;
  if (op_deferred(vm) || !index_may_store(a, v) || (!set && a->dtype == QN_bool)) return false;
  if (n == 1 && items[0]->kind != N_SLICE && value_array(*values)->rank > 0 &&
      eager_put_named(vm, x, value_array(*values), v, mode, ok))
    return true;
  if (!set && has_mask(items, n, values)) return false;
  return put_places(vm, x, NULL, &(written){items, n, values}, v, mode, ok);
}

bool index_put(qn_vm *vm, qn_value *x, const index_item *items, int n, qn_value v) {
  bool ok;
  if (element_put(vm, x, items, n, v, &ok)) return ok;
  const qn_array *a = value_array(*x);
  index_plan p;
  if (!plan_items(vm, a, items, n, &p) || !storable(vm, a, v)) return false;
  if (p.nadvanced) return advanced_put(vm, x, &p, v, SCATTER_SET);
  qn_value w = as_dtype(vm, a, v);
  return !value_is_error(w) && basic_put(vm, x, &p, w);
}

/* `x[i] = x[i] op v` for one position after the other: index arrays with operators that scatter has no mode for. The positions
 * are the rows of the flattened index arrays. */
static bool combine_one_by_one(qn_vm *vm, qn_value *x, const index_plan *p, op_id op, qn_value v) {
  operands o = {.n = 0};
  int governed = 0;
  for (int i = 0; i < p->nadvanced; i++) governed += p->advanced[i].axes;
  bool ok = add_index_arrays(vm, p, &o);
  int joint = ok ? joint_rank(&o, 0) : 0;
  int64_t shape[ARRAY_MAX_RANK], total = 1;
  ok = ok && check_rank(vm, joint, p->rank - governed) && joint_shape(vm, &o, 0, joint, shape);
  for (int i = 0; ok && i < joint; i++) total *= shape[i];
  for (int k = 0; ok && k < o.n; k++) {
    if (!value_is(o.v[k], TAG_ARRAY)) {
      o.v[k].head &= 0xff;
      continue;
    }
    o.v[k] = fit_shape_take(vm, o.v[k], joint, shape);
    ok = !value_is_error(o.v[k]) && array_force(vm, value_array(o.v[k]));
  }
  qn_value base = ok ? value_retain(*x) : value_error(), rows = value_error();
  int order[ARRAY_MAX_RANK], inverse[ARRAY_MAX_RANK];
  advanced_order(p, order);
  if (ok) {
    value_release(vm, base);
    base = permute_take(vm, basic_get(vm, *x, p), order);
    ok = !value_is_error(base);
  }
  /* v, broadcast to [joint..., rest...] in the same order of axes. */
  int rank = joint + p->rank - governed;
  if (ok) {
    int64_t wide[ARRAY_MAX_RANK], placed[ARRAY_MAX_RANK];
    int back[ARRAY_MAX_RANK];
    memcpy(wide, shape, sizeof(int64_t) * (size_t)joint);
    for (int i = governed; i < p->rank; i++) wide[joint + i - governed] = value_array(base)->shape[i];
    result_order(p, joint, rank, back);
    for (int i = 0; i < rank; i++) placed[i] = wide[back[i]];
    invert_order(back, rank, inverse);
    rows = value_is(v, TAG_ARRAY) ? permute_take(vm, fit_shape_take(vm, value_retain(v), rank, placed), inverse) : v;
    ok = !value_is_error(rows);
    if (ok && value_is(rows, TAG_ARRAY)) {
      int64_t flat[ARRAY_MAX_RANK] = {total};
      memcpy(flat + 1, wide + joint, sizeof(int64_t) * (size_t)(rank - joint));
      rows = reshape_take(vm, rows, rank - joint + 1, flat);
      ok = !value_is_error(rows);
    }
  }
  for (int64_t i = 0; ok && i < total; i++) {
    index_item at[ARRAY_MAX_RANK];
    for (int k = 0; k < o.n; k++) {
      at[k] = (index_item){.kind = INDEX_INT, .step = 1, .array = value_nil()};
      qn_value number = o.v[k];
      ok = ok && (!value_is(number, TAG_ARRAY) || array_item(vm, value_array(number), i, &number));
      at[k].start = number.u.i;
    }
    if (!ok) break;
    qn_value in[2] = {index_get(vm, base, at, o.n), value_is(rows, TAG_ARRAY) ? index_row(vm, rows, i) : rows};
    qn_value r = value_is_error(in[0]) || value_is_error(in[1]) ? value_error() : op_apply(vm, op, in, 2, NULL);
    value_release(vm, in[0]);
    if (value_is(rows, TAG_ARRAY)) value_release(vm, in[1]);
    ok = !value_is_error(r) && index_put(vm, &base, at, o.n, r);
    value_release(vm, r);
    if (ok && vm_poll(vm)) ok = false;
  }
  operands_release(vm, &o);
  if (value_is(rows, TAG_ARRAY)) value_release(vm, rows);
  if (!ok) {
    value_release(vm, base);
    return false;
  }
  invert_order(order, p->rank, inverse);
  base = permute_take(vm, base, inverse);
  return !value_is_error(base) && store_part(vm, x, p, base);
}

bool index_combine(qn_vm *vm, qn_value *x, const index_item *items, int n, op_id op, qn_value v) {
  index_plan p;
  const qn_array *a = value_array(*x);
  if (!plan_items(vm, a, items, n, &p)) return false;
  /* Sums of bools are integers, which one by one are refused. */
  if ((op == OP_add || op == OP_mul || op == OP_sub) && a->dtype != QN_bool) {
    if (!storable(vm, a, v)) return false;
    if (op != OP_sub) return advanced_put(vm, x, &p, v, op == OP_add ? SCATTER_ADD : SCATTER_MUL);
    qn_value w = as_dtype(vm, a, v);
    if (value_is_error(w)) return false;
    qn_value minus = op_apply(vm, OP_neg, &w, 1, NULL);
    value_release(vm, w);
    bool ok = !value_is_error(minus) && advanced_put(vm, x, &p, minus, SCATTER_ADD);
    value_release(vm, minus);
    return ok;
  }
  return combine_one_by_one(vm, x, &p, op, v);
}
