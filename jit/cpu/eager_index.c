/* The fast path of eager dispatch (eager.c): what index arrays and masks read, store and combine in small arrays.
 *
 * All of it goes through one list, the offsets of the elements that are named, in the order of the result (eager_find): it begins with
 * the place where the array begins, and is multiplied out with one axis after the other; the joint axes of index arrays are multiplied
 * in like one axis. One loop of the block VM then reads, stores or combines at these offsets, in order, as kernels do it. An index out of
 * bounds is left to the slow way, which says so, before anything is made.
 */
#include "jit/run/eager_index.h"

#include <string.h>

#include "jit/cpu/cpu.h"
#include "jit/run/eager.h"

/* ---- lists of offsets ------------------------------------------------------------------------------------------------ */

/* Multiplies a list out with an axis. The callers know that there is room. */
static inline int64_t with_axis(int64_t *at, int64_t n, int64_t size, int64_t stride) {
  if (n == 1) {
    for (int64_t j = 1; j < size; j++) at[j] = at[j - 1] + stride;
    return size;
  }
  if (size == 1) return n;
  for (int64_t i = n; i-- > 0;) {
    int64_t from = at[i], *to = at + i * size;
    for (int64_t j = 0; j < size; j++, from += stride) to[j] = from;
  }
  return n * size;
}

/* The same with a list. */
static inline int64_t with_list(int64_t *at, int64_t n, const int64_t *list, int64_t size) {
  for (int64_t i = n; i-- > 0;) {
    int64_t from = at[i], *to = at + i * size;
    for (int64_t j = size; j-- > 0;) to[j] = from + list[j];
  }
  return n * size;
}

/* The same with positions along an axis of this stride. */
static inline void with_index(int64_t *at, int64_t n, const int64_t *index, int64_t size, int64_t stride) {
  for (int64_t i = n; i-- > 0;) {
    int64_t from = at[i], *to = at + i * size;
    for (int64_t j = size; j-- > 0;) to[j] = from + index[j] * stride;
  }
}

/* Offsets of a's elements, broadcast to a shape (which it does). */
static int64_t offsets_of(const qn_array *a, int rank, const int64_t *shape, int64_t *at) {
  int64_t n = 1;
  at[0] = 0;
  for (int i = 0; i < rank; i++) {
    int own = i - (rank - a->rank);
    n = with_axis(at, n, shape[i], own >= 0 && a->shape[own] != 1 ? a->strides[own] : 0);
  }
  return n;
}

/* The elements of an integer array, broadcast to a shape of n elements, as i64 in `to`. */
static __attribute__((noinline)) void load_indices(const bvm_loops *l, const qn_array *a, int rank,
                                                   const int64_t *shape, int64_t n, int64_t *to) {
  qn_dtype d = (qn_dtype)a->dtype;
  const char *from = array_data(a);
  _Alignas(8) char dense[EAGER_PLACES * 8];
  if (!a->contiguous || a->size != n) {
    size_t size = dtype_size(d);
    int64_t at[EAGER_PLACES];
    offsets_of(a, rank, shape, at);
    l->gather[bvm_size_class(size)](dense, from, at, 1, n);
    from = dense;
  }
  if (d == QN_i64)
    memcpy(to, from, (size_t)n * sizeof *to);
  else
    l->cast[d][QN_i64](to, from, NULL, NULL, VM_A, n);
}

/* The same, in `to` or where they are. */
static inline const int64_t *indices_of(const bvm_loops *l, const qn_array *a, int rank, const int64_t *shape,
                                        int64_t n, int64_t *to) {
  if (a->dtype == QN_i64 && a->contiguous && a->size == n) return (const int64_t *)(const void *)array_data(a);
  load_indices(l, a, rank, shape, n, to);
  return to;
}

/* to[i] = index[i] * stride, or to[i] += that; false: an index is out of bounds. `to` may be `index`. */
static inline bool index_offsets(const int64_t *index, int64_t n, int64_t size, int64_t stride, bool first,
                                 int64_t *to) {
  for (int64_t i = 0; i < n; i++) {
    int64_t k = index[i];
    k += k < 0 ? size : 0;
    if (__builtin_expect((uint64_t)k >= (uint64_t)size, 0)) return false;
    to[i] = (first ? 0 : to[i]) + k * stride;
  }
  return true;
}

/* The numbers of an index array of at most EAGER_PLACES elements as positions along an axis of this size: where they are, or in `room`. False:
 * one is out of bounds. */
static inline bool bounded(const bvm_loops *l, const qn_array *a, int64_t size, int64_t *room, const int64_t **index) {
  int64_t n = a->size;
  const int64_t *own = indices_of(l, a, a->rank, a->shape, n, room);
  bool outside = false;
  for (int64_t i = 0; i < n; i++) outside |= (uint64_t)own[i] >= (uint64_t)size;
  *index = own;
  return __builtin_expect(!outside, 1) || (*index = room, index_offsets(own, n, size, 1, true, room));
}

/* Offsets of the elements that a mask leaves; their number, or -1: not here. */
static __attribute__((noinline)) int64_t mask_offsets(const qn_array *mask, const int64_t *strides, int64_t *to) {
  const uint8_t *m = (const uint8_t *)array_data(mask);
  int64_t n = 0, all = 1;
  if (mask->size > EAGER_PLACES) return -1;
  if (mask->size == 0) return 0;
  if (mask->rank == 1 && mask->contiguous) {
    for (int64_t i = 0, at = 0; i < mask->size; i++, at += *strides) {
      to[n] = at;
      n += m[i];
    }
    return n;
  }
  to[0] = 0;
  for (int i = 0; i < mask->rank; i++) all = with_axis(to, all, mask->shape[i], strides[i]);
  int64_t own[EAGER_PLACES];
  if (!mask->contiguous) offsets_of(mask, mask->rank, mask->shape, own);
  for (int64_t i = 0; i < all; i++) {
    to[n] = to[i];
    n += m[mask->contiguous ? i : own[i]];
  }
  return n;
}

/* ---- places -------------------------------------------------------------------------------------------------------------- */

/* Offsets of the joint axes of index arrays and masks, and their shape; how many, or -1: not here. */
static int64_t join(const bvm_loops *l, const index_pick *p, int64_t *list, int *rank, int64_t *shape) {
  int64_t counts[ARRAY_MAX_RANK], n = 1;
  int axis = 0;
  *rank = 1;
  for (int i = 0; i < p->n; i++)
    if (p->index[i]->dtype != QN_bool && p->index[i]->rank > *rank) *rank = p->index[i]->rank;
  bool some = false; /* an axis */
  for (int i = 0; i < p->n; i++) some |= p->index[i]->dtype == QN_bool || p->index[i]->rank > 0;
  if (!some) *rank = 0;
  for (int i = 0; i < *rank; i++) shape[i] = 1;
  for (int i = 0; i < p->n; i++) {
    const qn_array *a = p->index[i];
    bool mask = a->dtype == QN_bool;
    if (mask) {
      int64_t at[EAGER_PLACES];
      if ((counts[i] = mask_offsets(a, p->stride + axis, at)) < 0) return -1;
    }
    axis += mask ? a->rank : 1;
    for (int k = 0; k < (mask ? 1 : a->rank); k++) {
      int64_t size = mask ? counts[i] : a->shape[k], *to = &shape[*rank - (mask ? 1 : a->rank) + k];
      if (*to == 1)
        *to = size;
      else if (size != 1 && size != *to)
        return -1;
    }
  }
  for (int i = 0; i < *rank; i++)
    if (shape[i] > EAGER_PLACES || (n *= shape[i]) > EAGER_PLACES) return -1;
  if (n == 0) return -1;
  axis = 0;
  for (int i = 0; i < p->n; i++) {
    const qn_array *a = p->index[i];
    int64_t to[EAGER_PLACES];
    if (a->dtype == QN_bool) {
      int64_t at[EAGER_PLACES], last = shape[*rank - 1];
      if (mask_offsets(a, p->stride + axis, at) < 0) return -1;
      for (int64_t k = 0; k < n; k++) list[k] = (i ? list[k] : 0) + at[counts[i] == 1 ? 0 : k % last];
      axis += a->rank;
    } else {
      const int64_t *index = indices_of(l, a, *rank, shape, n, to);
      if (!index_offsets(index, n, p->size[axis], p->stride[axis], i == 0, list)) return -1;
      axis++;
    }
  }
  return n;
}

/* Multiplies a list of n out with an axis of the pick, which is one of the result. The new number; -1: there are too many, or none. */
static inline int64_t with_own(const index_pick *p, int axis, int64_t *at, int64_t n) {
  int64_t size = p->shape[axis];
  return (uint64_t)size - 1 >= EAGER_PLACES || n * size > EAGER_PLACES ? -1 : with_axis(at, n, size, p->strides[axis]);
}

/* The same with the joint axes, whose shape this gives, too. */
static __attribute__((noinline)) int64_t with_joint(const bvm_loops *l, const index_pick *p, int64_t *at, int64_t n,
                                                    int *rank, int64_t *shape) {
  int64_t list[EAGER_PLACES], all;
  *rank = 1;
  if (p->n == 1 && p->index[0]->dtype == QN_bool)
    all = shape[0] = mask_offsets(p->index[0], p->stride, list);
  else
    all = join(l, p, list, rank, shape);
  return all < 0 || n * all > EAGER_PLACES ? -1 : with_list(at, n, list, all);
}

/* Are all of them index arrays, and of one shape? */
static inline bool is_alike(const index_pick *p) {
  const qn_array *a = p->index[0];
  if (a->dtype == QN_bool) return false;
  for (int i = 1; i < p->n; i++) {
    const qn_array *b = p->index[i];
    if (b != a && (b->dtype == QN_bool || b->rank != a->rank || !shape_equal(a, b))) return false;
  }
  return true;
}

/* with_joint of such, -1 also if they are out of bounds. */
static inline __attribute__((always_inline)) int64_t with_alike(const bvm_loops *l, const index_pick *p, int64_t *at,
                                                                int64_t n) {
  int64_t room[EAGER_PLACES], size = p->index[0]->size;
  const int64_t *index;
  if ((uint64_t)size - 1 >= EAGER_PLACES || n * size > EAGER_PLACES ||
      !bounded(l, p->index[0], p->size[0], room, &index))
    return -1;
  with_index(at, n, index, size, p->stride[0]);
  for (int i = 1; i < p->n; i++) {
    if (!bounded(l, p->index[i], p->size[i], room, &index)) return -1;
    int64_t stride = p->stride[i], *to = at;
    for (int64_t k = n; k > 0; k--)
      for (int64_t j = 0; j < size; j++) *to++ += index[j] * stride;
  }
  return n * size;
}

static inline __attribute__((always_inline)) bool find(const bvm_loops *l, const index_pick *p, eager_places *to) {
  int64_t joint[ARRAY_MAX_RANK], n = 1;
  const int64_t *shape = p->index[0]->shape;
  int rank = p->index[0]->rank, lead = p->lead, i = 0;
  to->at[0] = p->offset;
  for (; i < lead; i++) {
    if ((n = with_own(p, i, to->at, n)) < 0) return false;
    to->shape[i] = p->shape[i];
  }
  if (is_alike(p))
    n = with_alike(l, p, to->at, n);
  else
    n = with_joint(l, p, to->at, n, &rank, joint), shape = joint;
  if (n < 0 || p->rank + rank > ARRAY_MAX_RANK) return false;
  for (int k = 0; k < rank; k++) to->shape[lead + k] = shape[k];
  for (; i < p->rank; i++) {
    if ((n = with_own(p, i, to->at, n)) < 0) return false;
    to->shape[rank + i] = p->shape[i];
  }
  to->rank = p->rank + rank;
  to->n = n;
  return true;
}

__attribute__((noinline)) bool eager_find(qn_vm *vm, const index_pick *p, eager_places *to) {
  const bvm_loops *l = cpu_loops(vm);
  return l && find(l, p, to);
}

typedef void (*gather_fn)(void *out, const void *base, const int64_t *index, int64_t vstride, int64_t n);
static inline gather_fn gather_of(const bvm_loops *l, const qn_array *x) {
  return l->gather[bvm_size_class(dtype_size((qn_dtype)x->dtype))];
}

static inline qn_value read_places(qn_vm *vm, const bvm_loops *l, const qn_array *x, const eager_places *p) {
  qn_array *out = array_new(vm, (qn_dtype)x->dtype, p->rank, p->shape);
  if (!out) return value_error();
  gather_of(l, x)(out->storage->data, x->storage->data, p->at, 1, p->n);
  return value_obj(TAG_ARRAY, out);
}

__attribute__((noinline)) qn_value eager_pick_apply(qn_vm *vm, const qn_array *x, const index_pick *p) {
  const bvm_loops *l = cpu_loops(vm);
  eager_places places;
  if (!l) return value_error();
  return find(l, p, &places) ? read_places(vm, l, x, &places) : value_unset();
}

/* ---- the whole of an axis, or all of them ----------------------------------------------------------------------------- */

/* `bounded` of an index array that is read as it lies. */
static inline bool plain_indices(const bvm_loops *l, const qn_array *a, int64_t size, int64_t *room,
                                 const int64_t **index) {
  return a->dtype == QN_i64 && a->contiguous && (uint64_t)a->size - 1 < EAGER_PLACES &&
         bounded(l, a, size, room, index);
}

/* Rows are what lies behind an element of the axis. */
static inline __attribute__((always_inline)) qn_value read_rows(qn_vm *vm, const bvm_loops *l, const qn_array *x,
                                                                const qn_array *by, int axis) {
  int64_t room[EAGER_PLACES], before = 1, row = 1, shape[ARRAY_MAX_RANK], n = by->size, length = x->shape[axis];
  const int64_t *index;
  int rank = by->rank, all = rank + x->rank - 1;
  if (all > ARRAY_MAX_RANK || !plain_indices(l, by, length, room, &index)) return value_unset();
  for (int i = 0; i < axis; i++) before *= shape[i] = x->shape[i];
  for (int i = 0; i < rank; i++) shape[axis + i] = by->shape[i];
  for (int i = axis + rank; i < all; i++) row *= shape[i] = x->shape[i - rank + 1];
  if ((row != 1 || before != 1) && (!x->contiguous || (uint64_t)(before * row - 1) >= EAGER_PLACES * 8))
    return value_unset();
  qn_array *out = array_new(vm, (qn_dtype)x->dtype, all, shape);
  if (!out) return value_error();
  size_t bytes = dtype_size((qn_dtype)x->dtype) * (size_t)row;
  char *to = out->storage->data;
  const char *from = array_data(x);
  if (row == 1) {
    gather_fn gather = gather_of(l, x);
    for (; before > 0; before--, to += bytes * (size_t)n, from += bytes * (size_t)length)
      gather(to, from, index, x->strides[axis], n);
  } else {
    for (; before > 0; before--, from += bytes * (size_t)length)
      for (int64_t i = 0; i < n; i++, to += bytes) memcpy(to, from + (size_t)index[i] * bytes, bytes);
  }
  return value_obj(TAG_ARRAY, out);
}

/* What a mask of all elements leaves, as offsets in an array without gaps. -1: not here. */
static inline int64_t masked(const qn_array *x, const qn_array *mask, int64_t *at) {
  if (!x->contiguous || !mask->contiguous || mask->rank != x->rank || !x->rank || mask->size > EAGER_PLACES) return -1;
  for (int i = 0; i < x->rank; i++)
    if (mask->shape[i] != x->shape[i]) return -1;
  const uint8_t *m = (const uint8_t *)array_data(mask);
  int64_t n = 0;
  for (int64_t i = 0; i < mask->size; i++) {
    at[n] = i;
    n += m[i];
  }
  return n;
}

static inline qn_value read_masked(qn_vm *vm, const bvm_loops *l, const qn_array *x, const qn_array *mask) {
  int64_t at[EAGER_PLACES], n = masked(x, mask, at);
  if (n < 0) return value_unset();
  qn_array *out = array_new(vm, (qn_dtype)x->dtype, 1, &n);
  if (!out) return value_error();
  gather_of(l, x)(out->storage->data, array_data(x), at, 1, n);
  return value_obj(TAG_ARRAY, out);
}

qn_value eager_named(qn_vm *vm, const qn_array *x, const qn_array *by) {
  if (!eager_here(x) || !eager_here(by) || !x->rank) return value_unset();
  const bvm_loops *l = cpu_loops(vm);
  if (!l) return value_error();
  return by->dtype == QN_bool ? read_masked(vm, l, x, by) : read_rows(vm, l, x, by, 0);
}

static __attribute__((noinline)) qn_value take_apart(qn_vm *vm, const qn_array *x, const qn_array *index, int axis) {
  index_pick p;
  p.rank = 0;
  for (int i = 0; i < x->rank; i++) {
    if (i == axis) continue;
    p.shape[p.rank] = x->shape[i];
    p.strides[p.rank++] = x->strides[i];
  }
  p.offset = x->offset;
  p.lead = axis;
  p.n = 1;
  p.index[0] = index;
  p.size[0] = x->shape[axis];
  p.stride[0] = x->strides[axis];
  return eager_pick_apply(vm, x, &p);
}

qn_value eager_take(qn_vm *vm, const qn_array *x, const qn_array *index, int axis) {
  if (!eager_here(x) || !eager_here(index)) return value_unset();
  const bvm_loops *l = cpu_loops(vm);
  if (!l) return value_error();
  qn_value rows = read_rows(vm, l, x, index, axis);
  return value_is(rows, TAG_UNSET) ? take_apart(vm, x, index, axis) : rows;
}

/* Where the elements are that are stored at n places as they lie: of an array of the places' shape and of this dtype, or in `cell` a number's.
 * NULL: not so. */
static inline const void *plain_elements(qn_value v, qn_dtype d, const qn_array *by, int64_t n, char *cell) {
  if (!value_is(v, TAG_ARRAY)) {
    dtype_store(d, cell, v);
    return cell;
  }
  const qn_array *b = value_array(v);
  bool mask = by->dtype == QN_bool;
  if (!eager_here(b) || b->dtype != d || !b->contiguous || b->size != n || b->rank != (mask ? 1 : by->rank) ||
      (b->rank > 1 && !shape_equal(b, by)))
    return NULL;
  return array_data(b);
}

qn_value eager_add_at(qn_vm *vm, qn_array *x, const qn_array *by, qn_value v) {
  const bvm_loops *l = cpu_loops(vm);
  if (!l) return value_error();
  qn_dtype d = (qn_dtype)x->dtype;
  int64_t room[EAGER_PLACES];
  const int64_t *index;
  const void *from;
  char cell[8];
  if (!eager_here(x) || !eager_here(by) || x->rank != 1 || x->size > EAGER_PLACES * 8 || !l->update[KOP_add][d] ||
      !plain_indices(l, by, x->shape[0], room, &index) || !(from = plain_elements(v, d, by, by->size, cell)))
    return value_unset();
  qn_array *out = array_duplicate(vm, x);
  if (!out) return value_error();
  l->update[KOP_add][d](array_data(out), index, from, value_is(v, TAG_ARRAY), by->size);
  return value_obj(TAG_ARRAY, out);
}

bool eager_put_named(qn_vm *vm, qn_value *x, const qn_array *by, qn_value v, int mode, bool *ok) {
  const qn_array *a = value_array(*x);
  const void *from;
  char cell[8];
  int64_t room[EAGER_PLACES], at[EAGER_PLACES], n = by->size;
  const int64_t *index;
  if (!eager_here(a) || !eager_here(by)) return false;
  const bvm_loops *l = cpu_loops(vm);
  bool mask = by->dtype == QN_bool;
  if (!l) return false;
  if (__builtin_expect(mask, 0) ? mode != SCATTER_SET || (n = masked(a, by, at)) < 0
                                : a->rank != 1 || !plain_indices(l, by, a->shape[0], room, &index))
    return false;
  if (mask) index = at;
  qn_dtype d = (qn_dtype)a->dtype;
  int kop = mode == SCATTER_ADD ? KOP_add : KOP_mul;
  if (mode != SCATTER_SET && !l->update[kop][d]) return false;
  if ((value_is(v, TAG_ARRAY) && value_array(v)->storage == a->storage) || !(from = plain_elements(v, d, by, n, cell)))
    return false;
  *ok = array_own(vm, x);
  if (!*ok) return true;
  a = value_array(*x);
  int64_t stride = mask ? 1 : a->strides[0];
  char *to = array_data(a);
  if (stride != 1) {
    for (int64_t i = 0; i < n; i++) at[i] = index[i] * stride;
    index = at;
  }
  int64_t step = value_is(v, TAG_ARRAY);
  if (mode == SCATTER_SET)
    l->put[bvm_size_class(dtype_size(d))](to, index, from, step, n);
  else
    l->update[kop][d](to, index, from, step, n);
  return true;
}

/* ---- stores ---------------------------------------------------------------------------------------------------------------- */

/* Elements of f16 and bf16 combine as f32, each rounded. */
static void update_narrow(const bvm_loops *l, int kop, qn_dtype d, char *base, const int64_t *at, const char *v,
                          int64_t step, int64_t n) {
  for (int64_t i = 0; i < n; i++, v += 2 * step) {
    float element, other;
    l->cast[d][QN_f32](&element, base + 2 * at[i], NULL, NULL, VM_A, 1);
    l->cast[d][QN_f32](&other, v, NULL, NULL, VM_A, 1);
    l->kop[kop][QN_f32](&element, &element, &other, NULL, VM_A | VM_B, 1);
    l->cast[QN_f32][d](base + 2 * at[i], &element, NULL, NULL, VM_A, 1);
  }
}

bool eager_fits(const eager_places *p, qn_value v) {
  if (p->n == 0) return false;
  if (!value_is(v, TAG_ARRAY)) return true;
  const qn_array *a = value_array(v);
  if (a->rank > p->rank) return false;
  for (int i = 0; i < a->rank; i++)
    if (a->shape[i] != 1 && a->shape[i] != p->shape[p->rank - a->rank + i]) return false;
  return true;
}

static void store(const bvm_loops *l, qn_dtype d, char *base, const eager_places *p, qn_value v, int mode) {
  _Alignas(8) char dense[EAGER_PLACES * 8];
  size_t size = dtype_size(d);
  const char *from = dense;
  int64_t step = 0;
  if (!value_is(v, TAG_ARRAY)) {
    dtype_store(d, dense, v);
  } else {
    const qn_array *a = value_array(v);
    from = array_data(a);
    step = a->size > 1;
    if (step && (a->size != p->n || !a->contiguous)) {
      int64_t at[EAGER_PLACES];
      offsets_of(a, p->rank, p->shape, at);
      l->gather[bvm_size_class(size)](dense, from, at, 1, p->n);
      from = dense;
    }
  }
  static const uint8_t combine[] = {
      [SCATTER_ADD] = KOP_add, [SCATTER_MUL] = KOP_mul, [SCATTER_MIN] = KOP_min, [SCATTER_MAX] = KOP_max};
  int kop = combine[mode];
  if (d == QN_bool) kop = kop == KOP_add ? KOP_max : kop == KOP_mul ? KOP_min : kop;
  if (mode == SCATTER_SET)
    l->put[bvm_size_class(size)](base, p->at, from, step, p->n);
  else if (l->update[kop][d])
    l->update[kop][d](base, p->at, from, step, p->n);
  else
    update_narrow(l, kop, d, base, p->at, from, step, p->n);
}

bool eager_store(qn_vm *vm, const qn_array *x, const eager_places *p, qn_value v, int mode) {
  const bvm_loops *l = cpu_loops(vm);
  if (!l) return false;
  store(l, (qn_dtype)x->dtype, x->storage->data, p, v, mode);
  return true;
}

/* ---- ops ----------------------------------------------------------------------------------------------------------------- */

/* Axes of an array, the first `n` of which are governed by index arrays or masks, which are to be filled in. */
static void pick_leading(const qn_array *x, const int64_t *strides, int64_t offset, int n, index_pick *p) {
  p->rank = x->rank - n;
  p->offset = offset;
  p->lead = p->n = 0;
  for (int i = 0; i < x->rank; i++) {
    *(i < n ? &p->size[i] : &p->shape[i - n]) = x->shape[i];
    *(i < n ? &p->stride[i] : &p->strides[i - n]) = strides[i];
  }
}

/* `in[0..n)` as index arrays of the leading axes. False: not here. */
static bool pick_arrays(const qn_array *x, const int64_t *strides, int64_t offset, const qn_value *in, int n,
                        index_pick *p) {
  if (n > x->rank) return false;
  pick_leading(x, strides, offset, n, p);
  for (; p->n < n; p->n++) {
    if (!value_is(in[p->n], TAG_ARRAY)) return false;
    const qn_array *a = p->index[p->n] = value_array(in[p->n]);
    if (!eager_here(a) || !dtype_is_int((qn_dtype)a->dtype)) return false;
  }
  return true;
}

/* What is stored into an array of x's dtype: of that dtype, or a number that it holds. Owned; unset: not here. */
static qn_value stored(qn_vm *vm, const qn_array *x, qn_value v) {
  qn_dtype d = (qn_dtype)x->dtype;
  if (value_is(v, TAG_ARRAY)) {
    const qn_array *a = value_array(v);
    if (!eager_here(a)) return value_unset();
    if (a->dtype == d) return value_retain(v);
    bool kept = a->dtype == QN_bool || dtype_is_float(d) || (dtype_is_int((qn_dtype)a->dtype) && d != QN_bool);
    op_attr attr = {.dtype = (uint8_t)d};
    return kept && a->size <= EAGER_PLACES ? eager_apply(vm, OP_cast, &v, 1, &attr) : value_unset();
  }
  bool kept = value_is(v, TAG_BOOL) || dtype_is_float(d) || (value_is(v, TAG_INT) && d != QN_bool);
  return value_is_scalar(v) && kept && dtype_holds(d, v) ? v : value_unset();
}

/* Places along one axis by an index array of the same rank, in an array that begins at `offset`. */
static bool find_along(const bvm_loops *l, const qn_array *x, const int64_t *strides, int64_t offset, qn_value by,
                       int axis, eager_places *to) {
  if (!value_is(by, TAG_ARRAY)) return false;
  const qn_array *index = value_array(by);
  int rank = x->rank;
  if (index->rank != rank || axis >= rank || !eager_here(index) || !dtype_is_int((qn_dtype)index->dtype) ||
      (uint64_t)index->size - 1 >= EAGER_PLACES)
    return false;
  int64_t n = 1, loaded[EAGER_PLACES];
  to->at[0] = offset;
  to->rank = rank;
  for (int i = 0; i < rank; i++) {
    if (i != axis && index->shape[i] != x->shape[i]) return false;
    to->shape[i] = index->shape[i];
    n = with_axis(to->at, n, index->shape[i], i == axis ? 0 : strides[i]);
  }
  to->n = n;
  return index_offsets(indices_of(l, index, rank, index->shape, n, loaded), n, x->shape[axis], strides[axis], false,
                       to->at);
}

/* Of rows without gaps, where all of it is read as it lies, each along itself. */
static inline qn_value gather_rows(qn_vm *vm, const bvm_loops *l, const qn_array *x, const qn_array *by) {
  int last = x->rank - 1;
  int64_t at[EAGER_PLACES], *to = at, n = by->size, count, size, row = 0;
  if (by->rank != x->rank || last < 0 || !x->contiguous || by->dtype != QN_i64 || !by->contiguous ||
      (uint64_t)n - 1 >= EAGER_PLACES)
    return value_unset();
  for (int i = 0; i < last; i++)
    if (by->shape[i] != x->shape[i]) return value_unset();
  count = by->shape[last], size = x->shape[last];
  const int64_t *own = (const int64_t *)(const void *)array_data(by);
  for (const int64_t *end = own + n; own != end; row += size)
    for (int64_t i = count; i > 0; i--) {
      int64_t k = *own++;
      k += k < 0 ? size : 0;
      if ((uint64_t)k >= (uint64_t)size) return value_unset();
      *to++ = row + k;
    }
  qn_array *out = array_new_like(vm, (qn_dtype)x->dtype, by);
  if (!out) return value_error();
  gather_of(l, x)(out->storage->data, array_data(x), at, 1, n);
  return value_obj(TAG_ARRAY, out);
}

qn_value eager_fast_gather(qn_vm *vm, qn_value in, qn_value index, int axis) {
  const bvm_loops *l = cpu_loops(vm);
  if (!l) return value_error();
  eager_places places;
  const qn_array *x = value_array(in);
  if (!value_is(in, TAG_ARRAY) || !value_is(index, TAG_ARRAY) || !eager_here(x) || !eager_here(value_array(index)))
    return value_unset();
  if (axis == x->rank - 1) {
    qn_value rows = gather_rows(vm, l, x, value_array(index));
    if (!value_is(rows, TAG_UNSET)) return rows;
  }
  return find_along(l, x, x->strides, x->offset, index, axis, &places) ? read_places(vm, l, x, &places) : value_unset();
}

/* scatter and gather_add: a copy of x with v at the places. */
static qn_value copy_with(qn_vm *vm, const bvm_loops *l, op_id op, const qn_value *in, int nin, const op_attr *attr) {
  qn_array *x = value_array(in[0]);
  int64_t strides[ARRAY_MAX_RANK];
  eager_places places;
  if (x->size > EAGER_PLACES * 8) return value_unset();
  shape_strides(x->rank, x->shape, strides);
  if (op == OP_scatter) {
    index_pick p;
    if (!pick_arrays(x, strides, 0, in + 1, nin - 2, &p) || !eager_find(vm, &p, &places)) return value_unset();
  } else if (!attr->axes || !find_along(l, x, strides, 0, in[1], __builtin_ctz(attr->axes), &places)) {
    return value_unset();
  }
  qn_value v = stored(vm, x, in[nin - 1]);
  if (value_is_error(v) || value_is(v, TAG_UNSET)) return v;
  if (!eager_fits(&places, v)) {
    value_release(vm, v);
    return value_unset();
  }
  qn_array *out = array_duplicate(vm, x);
  if (out) store(l, (qn_dtype)out->dtype, array_data(out), &places, v, op == OP_scatter ? attr->mode : SCATTER_ADD);
  value_release(vm, v);
  return out ? value_obj(TAG_ARRAY, out) : value_error();
}

qn_value eager_fast_index(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr) {
  if (op == OP_nonzero) return eager_fast_nonzero(vm, in[0]);
  if (nin < 2 || !value_is(in[0], TAG_ARRAY)) return value_unset();
  const qn_array *x = value_array(in[0]);
  if (!eager_here(x)) return value_unset();
  const bvm_loops *l = cpu_loops(vm);
  if (!l) return value_error();
  switch (op) {
  case OP_index: {
    index_pick p;
    return pick_arrays(x, x->strides, x->offset, in + 1, nin - 1, &p) ? eager_pick_apply(vm, x, &p) : value_unset();
  }
  case OP_compress: {
    const qn_array *mask = value_is(in[1], TAG_ARRAY) ? value_array(in[1]) : NULL;
    index_pick p;
    if (!mask || !eager_here(mask) || mask->dtype != QN_bool || !mask->rank || mask->rank > x->rank)
      return value_unset();
    pick_leading(x, x->strides, x->offset, mask->rank, &p);
    for (int i = 0; i < mask->rank; i++)
      if (mask->shape[i] != x->shape[i]) return value_unset();
    p.n = 1, p.index[0] = mask;
    return eager_pick_apply(vm, x, &p);
  }
  case OP_gather: return attr->axes ? eager_fast_gather(vm, in[0], in[1], __builtin_ctz(attr->axes)) : value_unset();
  case OP_scatter:
  case OP_gather_add: return nin > 2 ? copy_with(vm, l, op, in, nin, attr) : value_unset();
  default: return value_unset();
  }
}
