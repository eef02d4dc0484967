/* Basic indices (integers, slices, new and ...) of arrays that have their data, outside of recordings: the strides of the part that
 * they name are known after one walk over the items, without the plan of index.c. What is read is that part, what is stored is
 * copied there. Index arrays, and whatever is wrong, are left to index.c.
 */
#include <string.h>

#include "interp/node.h"
#include "jit/cpu/eager.h"
#include "jit/cpu/eager_index.h"

typedef struct region {
  int rank;
  bool whole; /* it is all of the array */
  int64_t size, offset;
  int64_t shape[ARRAY_MAX_RANK], strides[ARRAY_MAX_RANK];
} region;

/* The int that a part of an index is as it lies there, or nil if it is left out. */
static inline __attribute__((always_inline)) bool int_here(const node *a, const qn_value *fp, qn_value *out) {
  if (!a) {
    *out = value_nil();
    return true;
  }
  if (a->kind == N_CONST)
    *out = ((const n_const *)a)->v;
  else if (a->kind == N_LOCAL)
    *out = fp[a->slot];
  else if (a->kind == N_GLOBAL)
    *out = ((const n_global *)a)->cell->value;
  else
    return false;
  return out->head == TAG_INT;
}

bool index_values_read(const qn_vm *vm, node *const *items, uint32_t n, const qn_value *fp, qn_value *out) {
  if (vm->rec || n > INDEX_READ) return false;
  for (uint32_t i = 0; i < n; i++) {
    const node *item = items[i];
    if (item->kind == N_ELLIPSIS || item->kind == N_NEW) continue;
    const n_slice *s = item->kind == N_SLICE ? (const n_slice *)item : NULL;
    if (!s) {
      if (!int_here(item, fp, out++)) return false;
    } else {
      if (!int_here(s->start, fp, out) || !int_here(s->stop, fp, out + 1) || !int_here(s->step, fp, out + 2))
        return false;
      out += 3;
    }
  }
  return true;
}

static inline int64_t bound(int64_t v, int64_t size, int64_t lo, int64_t hi) {
  if (v < 0) v += size;
  return v < lo ? lo : v > hi ? hi : v;
}

/* One slice, as slice_clip has it. False: its values are not plain ints, or the step is 0. */
static inline bool slice_of(const qn_value *v, int64_t size, int64_t *start, int64_t *count, int64_t *step) {
  bool from_start = v[0].head == TAG_NIL, to_end = v[1].head == TAG_NIL;
  if ((!from_start && v[0].head != TAG_INT) || (!to_end && v[1].head != TAG_INT)) return false;
  *step = 1;
  if (v[2].head == TAG_NIL) {
    int64_t from = from_start ? 0 : bound(v[0].u.i, size, 0, size);
    int64_t n = (to_end ? size : bound(v[1].u.i, size, 0, size)) - from;
    *count = n > 0 ? n : 0;
    *start = n > 0 ? from : 0;
    return true;
  }
  if (v[2].head != TAG_INT) return false;
  if ((*step = v[2].u.i) <= 0) {
    if (*step == 0) return false;
    int64_t from = v[0].head ? bound(v[0].u.i, size, -1, size - 1) : size - 1;
    int64_t to = v[1].head ? bound(v[1].u.i, size, -1, size - 1) : -1;
    *count = from > to ? (int64_t)(((uint64_t)from - (uint64_t)to - 1) / (0 - (uint64_t)*step) + 1) : 0;
    *start = *count ? from : 0;
    if (*count <= 1) *step = 1;
    return true;
  }
  int64_t from = v[0].head ? bound(v[0].u.i, size, 0, size) : 0;
  int64_t to = v[1].head ? bound(v[1].u.i, size, 0, size) : size;
  *count = to > from ? to - from : 0;
  if (*step != 1 && *count) *count = (int64_t)(((uint64_t)to - (uint64_t)from - 1) / (uint64_t)*step + 1);
  *start = *count ? from : 0;
  if (*count <= 1) *step = 1;
  return true;
}

/* The part that items with these values name. False: index.c is to see to it. */
static bool region_of(const qn_array *a, node *const *items, uint32_t n, const qn_value *values, region *l) {
  int axis = 0, rank = 0;
  int64_t size = 1;
  bool whole = true, ellipsis = false;
  l->offset = a->offset;
  for (uint32_t i = 0; i < n; i++) {
    int64_t start, count, step, i0;
    switch (items[i]->kind) {
    case N_SLICE:
      if (axis >= a->rank || rank == ARRAY_MAX_RANK) return false;
      if (!slice_of(values, a->shape[axis], &start, &count, &step)) return false;
      values += 3;
      whole &= count == a->shape[axis] && step == 1;
      l->offset += start * a->strides[axis];
      l->shape[rank] = count;
      l->strides[rank++] = a->strides[axis++] * step;
      size *= count;
      break;
    case N_NEW:
      if (rank == ARRAY_MAX_RANK) return false;
      whole = false;
      l->shape[rank] = 1;
      l->strides[rank++] = 0;
      break;
    case N_ELLIPSIS: {
      int left = a->rank - axis;
      if (ellipsis) return false;
      ellipsis = true;
      for (uint32_t k = i + 1; k < n; k++) left -= items[k]->kind != N_NEW;
      if (left < 0 || rank + left > ARRAY_MAX_RANK) return false;
      for (; left > 0; left--, axis++) {
        size *= l->shape[rank] = a->shape[axis];
        l->strides[rank++] = a->strides[axis];
      }
      break;
    }
    default:
      if (axis >= a->rank || values->head != TAG_INT) return false;
      i0 = values++->u.i;
      if (i0 < 0) i0 += a->shape[axis];
      if ((uint64_t)i0 >= (uint64_t)a->shape[axis]) return false;
      whole = false;
      l->offset += i0 * a->strides[axis++];
    }
  }
  if (rank + a->rank - axis > ARRAY_MAX_RANK) return false;
  for (; axis < a->rank; axis++) {
    size *= l->shape[rank] = a->shape[axis];
    l->strides[rank++] = a->strides[axis];
  }
  l->rank = rank;
  l->size = size;
  l->whole = whole;
  return true;
}

qn_value index_view(qn_vm *vm, qn_value x, node *const *items, uint32_t n, const qn_value *values) {
  const qn_array *a = value_array(x);
  region l;
  if (vm->rec || array_pending(a) || !region_of(a, items, n, values, &l)) return value_unset();
  if (l.whole) return value_retain(x);
  qn_array *part = array_part(vm, a, l.rank, l.shape, l.strides, l.offset);
  return part ? value_obj(TAG_ARRAY, part) : value_error();
}

/* A header on the caller's stack, for array_copy_watched alone. */
static inline void header_of(qn_array *h, const qn_array *a, const region *l, qn_storage *s, int64_t offset) {
  h->dtype = a->dtype;
  h->rank = (uint8_t)l->rank;
  h->contiguous = false;
  h->size = l->size;
  h->offset = offset;
  h->storage = s;
  for (int i = 0; i < l->rank; i++) h->shape[i] = l->shape[i];
}

enum { FEW = 64 };
/* Few elements, without a plan of the copy. */
static void copy_few(char *to, const int64_t *ts, const char *from, const int64_t *fs, const int64_t *shape, int rank,
                     size_t size) {
  if (rank == 0) {
    memcpy(to, from, size);
    return;
  }
  for (int64_t i = 0; i < shape[0]; i++, to += ts[0] * (int64_t)size, from += fs[0] * (int64_t)size) {
    if (rank > 1)
      copy_few(to, ts + 1, from, fs + 1, shape + 1, rank - 1, size);
    else if (size == 4)
      memcpy(to, from, 4);
    else if (size == 8)
      memcpy(to, from, 8);
    else
      memcpy(to, from, size);
  }
}

/* Stores what lies in `from` by these strides, of a's dtype, to the part of *x, which is a. */
static bool store(qn_vm *vm, qn_value *x, node *const *items, uint32_t n, const qn_value *values, region *l,
                  qn_storage *s, int64_t offset, const int64_t *strides, bool *ok) {
  qn_array *a = value_array(*x);
  *ok = array_own(vm, x);
  if (!*ok) return true;
  if (value_array(*x) != a) { /* a copy, which may lie in another way */
    a = value_array(*x);
    if (!region_of(a, items, n, values, l)) return false;
  }
  if (l->size == 0) return true;
  if (l->size <= FEW) {
    size_t size = dtype_size((qn_dtype)a->dtype);
    copy_few(a->storage->data + l->offset * (int64_t)size, l->strides, s->data + offset * (int64_t)size, strides,
             l->shape, l->rank, size);
    return true;
  }
  qn_array from, to;
  header_of(&from, a, l, s, offset);
  header_of(&to, a, l, a->storage, l->offset);
  for (int i = 0; i < l->rank; i++) {
    from.strides[i] = strides[i];
    to.strides[i] = l->strides[i];
  }
  *ok = array_copy_watched(vm, &to, &from);
  return true;
}

/* The same of a value; false: not for this case. */
static bool store_value(qn_vm *vm, qn_value *x, node *const *items, uint32_t n, const qn_value *values, region *l,
                        qn_value v, bool *ok) {
  const qn_array *a = value_array(*x);
  int64_t strides[ARRAY_MAX_RANK];
  if (!index_may_store(a, v)) return false;
  if (value_is(v, TAG_ARRAY)) {
    const qn_array *b = value_array(v);
    int lead = l->rank - b->rank;
    if (!eager_here(b) || b->dtype != a->dtype || b->storage == a->storage || lead < 0) return false;
    for (int i = 0; i < l->rank; i++) {
      int64_t size = i < lead ? 1 : b->shape[i - lead];
      if (size != 1 && size != l->shape[i]) return false;
      strides[i] = size == 1 ? 0 : b->strides[i - lead];
    }
    return store(vm, x, items, n, values, l, b->storage, b->offset, strides, ok);
  }
  _Alignas(8) char cell[8];
  qn_storage number;
  dtype_store((qn_dtype)a->dtype, cell, v);
  number.data = cell;
  memset(strides, 0, sizeof strides);
  return store(vm, x, items, n, values, l, &number, 0, strides, ok);
}

bool index_put_view(qn_vm *vm, qn_value *x, node *const *items, uint32_t n, const qn_value *values, qn_value v,
                    bool *ok) {
  region l;
  if (vm->rec || !eager_here(value_array(*x)) || !region_of(value_array(*x), items, n, values, &l)) return false;
  return store_value(vm, x, items, n, values, &l, v, ok);
}

bool index_apply_view(qn_vm *vm, qn_value *x, node *const *items, uint32_t n, const qn_value *values, op_id op,
                      qn_value v, bool *ok) {
  const qn_array *a = value_array(*x);
  region l;
  if (!value_is(v, TAG_ARRAY) && !value_is_scalar(v)) return false;
  if (vm->rec || !eager_here(a) || !region_of(a, items, n, values, &l) || l.size == 0) return false;
  /* The op is done on a header that lives no longer than it. */
  qn_array old;
  header_of(&old, a, &l, a->storage, l.offset);
  old.head = (obj_head){.refs = 1, .tag = TAG_ARRAY};
  old.device = 0;
  old.node = 0;
  int64_t size = 1;
  old.contiguous = true;
  for (int i = l.rank - 1; i >= 0; i--) {
    old.strides[i] = l.strides[i];
    if (l.strides[i] != size) old.contiguous = false;
    size *= l.shape[i];
  }
  qn_value r = eager_two(vm, op, value_obj(TAG_ARRAY, &old), v);
  if (value_is_error(r)) {
    error_clear(vm); /* it is said by who does it again */
    return false;
  }
  if (!value_is(r, TAG_ARRAY) || value_array(r) == &old) return false;
  const qn_array *new = value_array(r);
  bool in_place = a->head.refs == 1 && a->storage->refs == 1 && !a->storage->foreign && a->contiguous;
  bool done = true;
  if (in_place && new->dtype == a->dtype &&new->contiguous &&new->rank == l.rank &&new->size == l.size &&
      l.size <= FEW) { /* of no larger shape, so of the same */
    size_t each = dtype_size((qn_dtype)a->dtype);
    copy_few(a->storage->data + l.offset * (int64_t)each, l.strides, array_data(new), new->strides, l.shape, l.rank,
             each);
    *ok = true;
  } else {
    done = store_value(vm, x, items, n, values, &l, r, ok);
  }
  value_release(vm, r);
  return done;
}
