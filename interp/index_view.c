/* Indices of arrays that have their data, outside of recordings: one walk over the items, without the plan of index.c. Of basic ones
 * (integers, slices, new and ...) the strides of the part that they name are known after it: what is read is that part, what is stored
 * is copied there. Of index arrays and masks it says which axes they govern, and eager_index.c has the places. Whatever is wrong is
 * left to index.c.
 */
#include <string.h>

#include "interp/node.h"
#include "jit/run/eager.h"
#include "jit/run/eager_index.h"

typedef struct region {
  eager_pick p; /* n: 0 where all items are basic */
  int64_t size; /* of the basic axes */
  int governed; /* axes */
} region;

/* The value of a part of an index as it lies there. False: it is to be evaluated. */
static inline __attribute__((always_inline)) bool value_here(const node *a, const qn_value *fp, qn_value *out) {
  if (a->kind == N_CONST)
    *out = ((const n_const *)a)->v;
  else if (a->kind == N_LOCAL)
    *out = fp[a->slot];
  else if (a->kind == N_GLOBAL)
    *out = ((const n_global *)a)->cell->value;
  else
    return false;
  return true;
}

/* The int that a part of a slice is, or nil if it is left out. */
static inline __attribute__((always_inline)) bool int_here(const node *a, const qn_value *fp, qn_value *out) {
  if (a) return value_here(a, fp, out) && out->head == TAG_INT;
  *out = value_nil();
  return true;
}

index_read index_values_read(const qn_vm *vm, node *const *items, uint32_t n, const qn_value *fp, qn_value *out) {
  if (rec_hears_globals(vm) || n > INDEX_READ) return READ_NOT;
  index_read read = READ_INTS;
  for (uint32_t i = 0; i < n; i++) {
    const node *item = items[i];
    if (item->kind == N_SLICE) {
      const n_slice *s = (const n_slice *)item;
      if (!int_here(s->start, fp, out) || !int_here(s->stop, fp, out + 1) || !int_here(s->step, fp, out + 2))
        return READ_NOT;
      out += 3;
    } else if (item->kind != N_ELLIPSIS && item->kind != N_NEW) {
      if (!value_here(item, fp, out)) return READ_NOT;
      if (out->head != TAG_INT) {
        if (out->head != TAG_ARRAY) return READ_NOT;
        read = READ_ARRAYS;
      }
      out++;
    }
  }
  return read;
}

static inline int64_t bound(int64_t v, int64_t size, int64_t lo, int64_t hi) {
  if (v < 0) v += size;
  return v < lo ? lo : v > hi ? hi : v;
}

/* One slice with a step, as slice_clip has it. False: its values are not plain ints, or the step is 0. */
static __attribute__((noinline)) bool stepped(qn_value first, qn_value end, qn_value by, int64_t size, int64_t *start,
                                              int64_t *count, int64_t *step) {
  if (by.head != TAG_INT || (*step = by.u.i) == 0) return false;
  if ((first.head != TAG_NIL && first.head != TAG_INT) || (end.head != TAG_NIL && end.head != TAG_INT)) return false;
  int64_t lo = *step > 0 ? 0 : -1, hi = *step > 0 ? size : size - 1;
  int64_t from = first.head ? bound(first.u.i, size, lo, hi) : *step > 0 ? 0 : size - 1;
  int64_t to = end.head ? bound(end.u.i, size, lo, hi) : *step > 0 ? size : -1;
  uint64_t way = *step > 0 ? (uint64_t)to - (uint64_t)from : (uint64_t)from - (uint64_t)to;
  uint64_t each = *step > 0 ? (uint64_t)*step : 0 - (uint64_t)*step;
  *count = (*step > 0 ? to > from : from > to) ? (int64_t)((way - 1) / each + 1) : 0;
  *start = *count ? from : 0;
  if (*count <= 1) *step = 1;
  return true;
}

/* Does the mask fit the axes of a from `axis` on? They are then the pick's governed axes from `taken` on. */
static __attribute__((noinline)) bool mask_governs(const qn_array *a, const qn_array *mask, int axis, int taken,
                                                   eager_pick *p) {
  if (mask->dtype != QN_bool || mask->rank > a->rank - axis) return false;
  for (int k = 0; k < mask->rank; k++) {
    if (mask->shape[k] != a->shape[axis + k]) return false;
    p->size[taken + k] = a->shape[axis + k];
    p->stride[taken + k] = a->strides[axis + k];
  }
  return true;
}

/* The part that items name, by their values or, if these lie `here` in variables and constants, without. False: index.c is to see to it. */
static inline __attribute__((always_inline)) bool walk(const qn_array *a, node *const *items, uint32_t n, bool here,
                                                       const qn_value *values, const qn_value *fp, region *r) {
  eager_pick *l = &r->p;
  int axis = 0, rank = 0, all = a->rank;
  int64_t size = 1, offset = a->offset;
  uint32_t advanced = 0; /* items: integers, index arrays and masks */
  bool ellipsis = false;
  l->n = r->governed = 0;
  for (uint32_t i = 0; i < n; i++) {
    const node *item = items[i];
    if (item->kind == N_SLICE) {
      const n_slice *s = (const n_slice *)item;
      qn_value first, end, by;
      if (axis >= all || rank == ARRAY_MAX_RANK) return false;
      if (!here)
        first = values[0], end = values[1], by = values[2], values += 3;
      else if (!int_here(s->start, fp, &first) || !int_here(s->stop, fp, &end) || !int_here(s->step, fp, &by))
        return false;
      int64_t full = a->shape[axis], start = 0, count = full, step = 1;
      if (by.head == TAG_NIL) {
        if (first.head != TAG_NIL) {
          if (first.head != TAG_INT) return false;
          start = bound(first.u.i, full, 0, full);
        }
        if (end.head != TAG_NIL) {
          if (end.head != TAG_INT) return false;
          count = bound(end.u.i, full, 0, full);
        }
        if ((count -= start) <= 0) start = count = 0;
      } else {
        int64_t out[3];
        if (!stepped(first, end, by, full, &out[0], &out[1], &out[2])) return false;
        start = out[0], count = out[1], step = out[2];
      }
      offset += start * a->strides[axis];
      l->shape[rank] = count;
      l->strides[rank++] = a->strides[axis++] * step;
      size *= count;
    } else if (item->kind == N_NEW) {
      if (rank == ARRAY_MAX_RANK) return false;
      l->shape[rank] = 1;
      l->strides[rank++] = 0;
    } else if (item->kind == N_ELLIPSIS) {
      int left = all - axis;
      if (ellipsis) return false;
      ellipsis = true;
      for (uint32_t k = i + 1; k < n; k++) left -= items[k]->kind != N_NEW; /* masks behind it have one axis */
      if (left < 0 || rank + left > ARRAY_MAX_RANK) return false;
      for (; left > 0; left--, axis++) {
        size *= l->shape[rank] = a->shape[axis];
        l->strides[rank++] = a->strides[axis];
      }
    } else {
      qn_value v;
      if (!here)
        v = *values++;
      else if (!value_here(item, fp, &v))
        return false;
      if (axis >= all) return false;
      advanced |= 1u << i;
      if (v.head == TAG_INT) {
        int64_t at = v.u.i, full = a->shape[axis];
        if (at < 0) at += full;
        if ((uint64_t)at >= (uint64_t)full) return false;
        offset += at * a->strides[axis++];
        continue;
      }
      if (v.head != TAG_ARRAY) return false;
      const qn_array *by = value_array(v);
      int axes = 1;
      if (!by->rank || !eager_here(by)) return false;
      if (!l->n) l->lead = rank;
      l->index[l->n++] = by;
      if (dtype_is_int((qn_dtype)by->dtype)) {
        l->size[r->governed] = a->shape[axis];
        l->stride[r->governed] = a->strides[axis];
      } else {
        axes = by->rank;
        if ((ellipsis && axes > 1) || !mask_governs(a, by, axis, r->governed, l)) return false;
      }
      r->governed += axes;
      axis += axes;
    }
  }
  if (l->n) { /* neighbours leave their axes in place */
    advanced >>= __builtin_ctz(advanced);
    if (advanced & (advanced + 1)) l->lead = 0;
  }
  if (rank + r->governed + all - axis > ARRAY_MAX_RANK) return false; /* which a plan has all of */
  for (; axis < all; axis++) {
    size *= l->shape[rank] = a->shape[axis];
    l->strides[rank++] = a->strides[axis];
  }
  l->offset = offset;
  l->rank = rank;
  r->size = size;
  return true;
}

static bool region_of(const qn_array *a, node *const *items, uint32_t n, const qn_value *values, region *r) {
  return walk(a, items, n, false, values, NULL, r);
}

bool index_pick(const qn_vm *vm, const qn_array *a, node *const *items, uint32_t n, const qn_value *values,
                eager_pick *to) {
  region r;
  if (op_deferred(vm) || !eager_here(a) || !region_of(a, items, n, values, &r) || !r.p.n) return false;
  *to = r.p;
  return true;
}

/* Is it all of the array? */
static bool is_whole(const qn_array *a, const region *r) {
  for (int i = 0; i < a->rank; i++)
    if (r->p.shape[i] != a->shape[i] || (r->p.strides[i] != a->strides[i] && a->shape[i] > 1)) return false;
  return true;
}

static inline __attribute__((always_inline)) qn_value view_of(qn_vm *vm, qn_value x, const region *r) {
  const qn_array *a = value_array(x);
  if (r->p.n) return a->device ? value_unset() : eager_pick_apply(vm, a, &r->p);
  if (r->size == a->size && r->p.rank == a->rank && r->p.offset == a->offset && is_whole(a, r)) return value_retain(x);
  qn_array *part = array_part(vm, a, r->p.rank, r->p.shape, r->p.strides, r->p.offset);
  return part ? value_obj(TAG_ARRAY, part) : value_error();
}

qn_value index_view(qn_vm *vm, qn_value x, node *const *items, uint32_t n, const qn_value *values) {
  const qn_array *a = value_array(x);
  region r;
  return !op_at_hand(vm, a) || !region_of(a, items, n, values, &r) ? value_unset() : view_of(vm, x, &r);
}

qn_value index_view_here(qn_vm *vm, qn_value x, node *const *items, uint32_t n, const qn_value *fp) {
  const qn_array *a = value_array(x);
  region r;
  return !op_at_hand(vm, a) || !walk(a, items, n, true, NULL, fp, &r) ? value_unset() : view_of(vm, x, &r);
}

/* A header on the caller's stack, for array_copy_watched alone. */
static inline void header_of(qn_array *h, const qn_array *a, const region *l, qn_storage *s, int64_t offset) {
  h->dtype = a->dtype;
  h->rank = (uint8_t)l->p.rank;
  h->contiguous = false;
  h->size = l->size;
  h->offset = offset;
  h->storage = s;
  for (int i = 0; i < l->p.rank; i++) h->shape[i] = l->p.shape[i];
}

enum { FEW = 64 };
static inline void copy_one(char *to, const char *from, size_t size) {
  if (size == 4)
    memcpy(to, from, 4);
  else if (size == 8)
    memcpy(to, from, 8);
  else
    memcpy(to, from, size);
}
static inline void copy_row(char *to, int64_t ts, const char *from, int64_t fs, int64_t n, size_t size) {
  for (; n > 0; n--, to += ts, from += fs) copy_one(to, from, size);
}
/* Few elements, without a plan of the copy. */
static __attribute__((noinline)) void copy_rows(char *to, const int64_t *ts, const char *from, const int64_t *fs,
                                                const int64_t *shape, int rank, size_t size) {
  int64_t each = (int64_t)size;
  for (int64_t i = 0; i < shape[0]; i++, to += ts[0] * each, from += fs[0] * each) {
    if (rank == 2)
      copy_row(to, ts[1] * each, from, fs[1] * each, shape[1], size);
    else
      copy_rows(to, ts + 1, from, fs + 1, shape + 1, rank - 1, size);
  }
}
static inline void copy_few(char *to, const int64_t *ts, const char *from, const int64_t *fs, const int64_t *shape,
                            int rank, size_t size) {
  if (rank == 0)
    copy_one(to, from, size);
  else if (rank == 1)
    copy_row(to, *ts * (int64_t)size, from, *fs * (int64_t)size, *shape, size);
  else
    copy_rows(to, ts, from, fs, shape, rank, size);
}

/* Stores what lies in `from` by these strides, of a's dtype, to the part of *x, which is a. */
static inline __attribute__((always_inline)) bool store(qn_vm *vm, qn_value *x, node *const *items, uint32_t n,
                                                        const qn_value *values, region *l, qn_storage *s,
                                                        int64_t offset, const int64_t *strides, bool *ok) {
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
    copy_few(a->storage->data + l->p.offset * (int64_t)size, l->p.strides, s->data + offset * (int64_t)size, strides,
             l->p.shape, l->p.rank, size);
    return true;
  }
  qn_array from, to;
  header_of(&from, a, l, s, offset);
  header_of(&to, a, l, a->storage, l->p.offset);
  for (int i = 0; i < l->p.rank; i++) {
    from.strides[i] = strides[i];
    to.strides[i] = l->p.strides[i];
  }
  *ok = array_copy_watched(vm, &to, &from);
  return true;
}

/* The same of a value; false: not for this case. */
static bool store_value(qn_vm *vm, qn_value *x, node *const *items, uint32_t n, const qn_value *values, region *l,
                        qn_value v, bool *ok) {
  const qn_array *a = value_array(*x);
  int64_t strides[ARRAY_MAX_RANK] = {0}, offset = 0;
  _Alignas(8) char cell[8];
  qn_storage number, *from = &number;
  if (!index_may_store(a, v)) return false;
  if (value_is(v, TAG_ARRAY)) {
    const qn_array *b = value_array(v);
    int lead = l->p.rank - b->rank;
    if (!eager_here(b) || b->dtype != a->dtype || b->storage == a->storage || lead < 0) return false;
    for (int i = lead; i < l->p.rank; i++) {
      int64_t size = b->shape[i - lead];
      if (size != 1 && size != l->p.shape[i]) return false;
      strides[i] = size == 1 ? 0 : b->strides[i - lead];
    }
    from = b->storage;
    offset = b->offset;
  } else {
    dtype_store((qn_dtype)a->dtype, cell, v);
    number.data = cell;
  }
  return store(vm, x, items, n, values, l, from, offset, strides, ok);
}

bool index_put_view(qn_vm *vm, qn_value *x, node *const *items, uint32_t n, const qn_value *values, qn_value v,
                    bool *ok) {
  region l;
  if (op_deferred(vm) || !eager_here(value_array(*x)) || !region_of(value_array(*x), items, n, values, &l) || l.p.n)
    return false;
  return store_value(vm, x, items, n, values, &l, v, ok);
}

bool index_apply_view(qn_vm *vm, qn_value *x, node *const *items, uint32_t n, const qn_value *values, op_id op,
                      qn_value v, bool *ok) {
  const qn_array *a = value_array(*x);
  region l;
  if (!value_is(v, TAG_ARRAY) && !value_is_scalar(v)) return false;
  if (op_deferred(vm) || !eager_here(a) || !region_of(a, items, n, values, &l) || l.p.n || l.size == 0) return false;
  /* The op is done on a header that lives no longer than it. */
  qn_array old;
  header_of(&old, a, &l, a->storage, l.p.offset);
  old.head = (obj_head){.refs = 1, .tag = TAG_ARRAY};
  old.device = 0;
  old.node = 0;
  int64_t size = 1;
  old.contiguous = true;
  for (int i = l.p.rank - 1; i >= 0; i--) {
    old.strides[i] = l.p.strides[i];
    if (l.p.strides[i] != size) old.contiguous = false;
    size *= l.p.shape[i];
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
  if (in_place && new->dtype == a->dtype &&new->contiguous &&new->rank == l.p.rank &&new->size == l.size &&
      l.size <= FEW) { /* of no larger shape, so of the same */
    size_t each = dtype_size((qn_dtype)a->dtype);
    copy_few(a->storage->data + l.p.offset * (int64_t)each, l.p.strides, array_data(new), new->strides, l.p.shape,
             l.p.rank, each);
    *ok = true;
  } else {
    done = store_value(vm, x, items, n, values, &l, r, ok);
  }
  value_release(vm, r);
  return done;
}
