/* The fast path of eager dispatch (eager.c): what index arrays and masks read, store and combine in small arrays.
 *
 * Whatever names the elements, they become one list, their offsets in the order of the result (eager_places): by eager_find of a pick, which
 * multiplies the list out with one axis after the other, by find_one where one index array or mask names all, and by find_along for gather.
 * One loop of the block VM then reads (read_places), stores or combines (eager_store) at these offsets, in order, as kernels do it. Whole rows
 * are read without a list. An index out of bounds is left to the slow way, which says so, before anything is made.
 *
 * Why it is there: on arrays of four elements, in instructions with the call, the rules, strict operands and a kernel cost 6,300 to 10,300,
 * and this 570 to 800. What one array names has forms of its own (find_one, read_rows, eager_put_named, gather_rows) because x[i], take and
 * gather cost 930 to 1,130 as picks, and updates 820 to 880 by find_one and eager_store.
 */
#include "jit/run/eager_index.h"

#include <string.h>

#include "jit/cpu/cpu.h"
#include "jit/run/eager.h"

/* ---- lists of offsets ------------------------------------------------------------------------------------------------ */

/* Multiplies a list of n out with an axis: each becomes `size`, which are `stride` apart. The new number; the callers know that there is
 * room. */
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

/* Multiplies a list of n out with positions along an axis of this stride. */
static inline void with_index(int64_t *at, int64_t n, const int64_t *index, int64_t size, int64_t stride) {
  for (int64_t i = n; i-- > 0;) {
    int64_t from = at[i], *to = at + i * size;
    for (int64_t j = size; j-- > 0;) to[j] = from + index[j] * stride;
  }
}

/* Offsets of the elements of an array of this layout, broadcast to a shape (which it does). */
static int64_t offsets_of(int own_rank, const int64_t *own, const int64_t *strides, int rank, const int64_t *shape,
                          int64_t *at) {
  int64_t n = 1;
  at[0] = 0;
  for (int i = 0, k = own_rank - rank; i < rank; i++, k++)
    n = with_axis(at, n, shape[i], k >= 0 && own[k] != 1 ? strides[k] : 0);
  return n;
}

/* The elements of an integer array as i64, in row-major order. */
static __attribute__((noinline)) void load_indices(const bvm_loops *l, const qn_array *a, int64_t *to) {
  qn_dtype d = (qn_dtype)a->dtype;
  _Alignas(8) char dense[EAGER_PLACES * 8];
  const char *from = array_data(a);
  if (!a->contiguous) {
    int64_t at[EAGER_PLACES];
    offsets_of(a->rank, a->shape, a->strides, a->rank, a->shape, at);
    l->gather[bvm_size_class(dtype_size(d))](dense, from, at, 1, a->size);
    from = dense;
  }
  if (d == DTYPE_INDEX)
    memcpy(to, from, (size_t)a->size * sizeof *to);
  else
    l->cast[d][DTYPE_INDEX](to, from, NULL, NULL, VM_A, a->size);
}

/* to[i] = offset + index[i] * stride, where negative indices count from the end of the axis, of this size. False: one is out of bounds. `to` may be
 * `index`. */
static inline bool place(const int64_t *index, int64_t n, int64_t size, int64_t stride, int64_t offset, int64_t *to) {
  for (int64_t i = 0; i < n; i++) {
    int64_t k = index[i];
    k += k < 0 ? size : 0;
    if (__builtin_expect((uint64_t)k >= (uint64_t)size, 0)) return false;
    to[i] = offset + k * stride;
  }
  return true;
}

/* The elements of an index array of at most EAGER_PLACES: where they are, or in `room`. */
static inline const int64_t *indices_of(const bvm_loops *l, const qn_array *a, int64_t *room) {
  if (__builtin_expect(a->dtype == DTYPE_INDEX && a->contiguous, 1))
    return (const int64_t *)(const void *)array_data(a);
  load_indices(l, a, room);
  return room;
}

/* Offsets, from `offset` on, of the elements that an index array names along an axis of this size and stride. False: there are none or too many,
 * or one is out of bounds. */
static inline bool index_list(const bvm_loops *l, const qn_array *a, int64_t size, int64_t stride, int64_t offset,
                              int64_t *to) {
  return (uint64_t)a->size - 1 < EAGER_PLACES && place(indices_of(l, a, to), a->size, size, stride, offset, to);
}

/* The numbers of an index array of at most EAGER_PLACES elements as positions along an axis of this size: where they are, or in `room`. False:
 * one is out of bounds. */
static inline bool bounded(const bvm_loops *l, const qn_array *a, int64_t size, int64_t *room, const int64_t **index) {
  int64_t n = a->size;
  const int64_t *own = indices_of(l, a, room);
  bool outside = false;
  for (int64_t i = 0; i < n; i++) outside |= (uint64_t)own[i] >= (uint64_t)size;
  *index = own;
  return __builtin_expect(!outside, 1) || (*index = room, place(own, n, size, 1, 0, room));
}

/* Offsets, from `offset` on, of the elements that a mask leaves of axes of these strides; their number, or -1: not here. */
static inline int64_t mask_list(const qn_array *mask, const int64_t *strides, int64_t offset, int64_t *to) {
  const uint8_t *m = (const uint8_t *)array_data(mask);
  int64_t n = 0, all = 1, last = mask->rank - 1;
  bool run = mask->contiguous; /* both lie as one run */
  if (mask->size > EAGER_PLACES || last < 0) return -1;
  for (int i = 0; i < last; i++) run &= strides[i] == strides[i + 1] * mask->shape[i + 1];
  if (run) {
    for (int64_t i = 0; i < mask->size; i++, offset += strides[last]) {
      to[n] = offset;
      n += m[i];
    }
    return n;
  }
  int64_t own[EAGER_PLACES];
  to[0] = offset;
  for (int i = 0; i <= last; i++) all = with_axis(to, all, mask->shape[i], strides[i]);
  offsets_of(mask->rank, mask->shape, mask->strides, mask->rank, mask->shape, own);
  for (int64_t i = 0; i < all; i++) {
    to[n] = to[i];
    n += m[own[i]];
  }
  return n;
}

/* ---- places of a pick ------------------------------------------------------------------------------------------------------ */

/* Are all of them index arrays, and of one shape? */
static inline bool is_alike(const index_pick *p) {
  const qn_array *a = p->index[0];
  if (dtype_is_bool(a->dtype)) return false;
  for (int i = 1; i < p->n; i++) {
    const qn_array *b = p->index[i];
    if (b != a && (dtype_is_bool(b->dtype) || !shape_equal(a, b))) return false;
  }
  return true;
}

/* The shape of the joint axes; how many elements, or -1: not here. */
static int64_t joint_shape(const index_pick *p, int *rank, int64_t *shape) {
  int64_t n = 1, count, room[EAGER_PLACES];
  *rank = 0;
  for (int i = 0; i < p->n; i++) {
    int own = dtype_is_bool(p->index[i]->dtype) ? 1 : p->index[i]->rank;
    if (own > *rank) *rank = own;
  }
  for (int k = 0; k < *rank; k++) shape[k] = 1;
  for (int i = 0, axis = 0; i < p->n; i++) {
    const qn_array *a = p->index[i];
    bool mask = dtype_is_bool(a->dtype);
    if (mask && (count = mask_list(a, p->stride + axis, 0, room)) < 0) return -1;
    axis += mask ? a->rank : 1;
    for (int k = mask ? 1 : a->rank, at = *rank; k > 0;) {
      int64_t size = mask ? count : a->shape[k - 1];
      if (shape[--at] == 1)
        shape[at] = size;
      else if (size != 1 && size != shape[at])
        return -1;
      k--;
    }
  }
  for (int k = 0; k < *rank; k++)
    if (shape[k] > EAGER_PLACES || (n *= shape[k]) > EAGER_PLACES) return -1;
  return n || p->n == 1 ? n : -1;
}

/* Multiplies a list of n out with the joint axes, whose shape this gives, too. The new number; -1: not here. */
static __attribute__((noinline, cold)) int64_t with_joint(const bvm_loops *l, const index_pick *p, int64_t *at,
                                                          int64_t n, int *rank, int64_t *shape) {
  int64_t joint[EAGER_PLACES], list[EAGER_PLACES], from[EAGER_PLACES], strides[ARRAY_MAX_RANK];
  int64_t size = joint_shape(p, rank, shape), count;
  if (size < 0 || n * size > EAGER_PLACES) return -1;
  memset(joint, 0, (size_t)size * sizeof *joint);
  for (int i = 0, axis = 0; i < p->n; i++) {
    const qn_array *a = p->index[i];
    bool mask = dtype_is_bool(a->dtype);
    if (mask)
      count = mask_list(a, p->stride + axis, 0, list);
    else if (!index_list(l, a, p->size[axis], p->stride[axis], 0, list))
      return -1;
    axis += mask ? a->rank : 1;
    int own = mask ? 1 : a->rank;
    const int64_t *own_shape = mask ? &count : a->shape;
    shape_strides(own, own_shape, strides);
    offsets_of(own, own_shape, strides, *rank, shape, from);
    for (int64_t k = 0; k < size; k++) joint[k] += list[from[k]];
  }
  with_index(at, n, joint, size, 1);
  return n * size;
}

/* with_joint of index arrays of one shape. */
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

/* Multiplies a list of n out with an axis of the pick, which is one of the result. The new number; -1: there are too many, or none. */
static inline int64_t with_own(const index_pick *p, int axis, int64_t *at, int64_t n) {
  int64_t size = p->shape[axis];
  return (uint64_t)size - 1 >= EAGER_PLACES || n * size > EAGER_PLACES ? -1 : with_axis(at, n, size, p->strides[axis]);
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
  if (__builtin_expect(is_alike(p), 1))
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

/* The pick of x, as an array of these strides and offset, by index arrays or masks of the axes from `first` on. False: they are not such, or
 * not here. */
static bool pick_of(const qn_array *x, const int64_t *strides, int64_t offset, int first, const qn_value *in, int n,
                    index_pick *p) {
  int axis = 0, governed = 0;
  p->rank = p->n = 0;
  p->offset = offset;
  for (; axis < first; axis++) p->shape[p->rank] = x->shape[axis], p->strides[p->rank++] = strides[axis];
  for (p->lead = first; p->n < n; p->n++) {
    if (!value_is(in[p->n], TAG_ARRAY)) return false;
    const qn_array *a = p->index[p->n] = value_array(in[p->n]);
    bool mask = dtype_is_bool(a->dtype);
    int end = axis + (mask ? a->rank : 1);
    if (!eager_here(a) || end > x->rank || (!mask && !dtype_is_int((qn_dtype)a->dtype))) return false;
    for (int k = 0; axis < end; axis++, k++) {
      if (mask && a->shape[k] != x->shape[axis]) return false;
      p->size[governed] = x->shape[axis];
      p->stride[governed++] = strides[axis];
    }
  }
  for (; axis < x->rank; axis++) p->shape[p->rank] = x->shape[axis], p->strides[p->rank++] = strides[axis];
  return true;
}

/* ---- places by one array ----------------------------------------------------------------------------------------------------- */

/* Where an index array names elements of an array of rank 1, or a mask of any array. */
static inline __attribute__((always_inline)) bool find_one(const bvm_loops *l, const qn_array *x, const qn_array *by,
                                                           eager_places *to) {
  if (dtype_is_bool(by->dtype)) {
    if (!shape_equal(x, by) || (to->n = mask_list(by, x->strides, x->offset, to->at)) < 0) return false;
    to->rank = 1;
    to->shape[0] = to->n;
    return true;
  }
  if (x->rank != 1 || !index_list(l, by, x->shape[0], x->strides[0], x->offset, to->at)) return false;
  to->n = by->size;
  to->rank = by->rank;
  for (int i = 0; i < by->rank; i++) to->shape[i] = by->shape[i];
  return true;
}

/* `bounded` of an index array that is read as it lies. */
static inline bool plain_indices(const bvm_loops *l, const qn_array *a, int64_t size, int64_t *room,
                                 const int64_t **index) {
  return a->dtype == QN_i64 && a->contiguous && (uint64_t)a->size - 1 < EAGER_PLACES &&
         bounded(l, a, size, room, index);
}

/* Where an index array of x's rank names one position along an axis for each of its elements; x lies as told. */
static inline bool find_along(const bvm_loops *l, const qn_array *x, const int64_t *strides, int64_t offset,
                              qn_value by, int axis, eager_places *to) {
  if (!value_is(by, TAG_ARRAY)) return false;
  const qn_array *a = value_array(by);
  int64_t n = 1, room[EAGER_PLACES];
  if (a->rank != x->rank || axis >= x->rank || !eager_here(a) || !dtype_is_int((qn_dtype)a->dtype) ||
      !index_list(l, a, x->shape[axis], strides[axis], 0, room))
    return false;
  to->at[0] = offset;
  for (int i = 0; i < a->rank; i++) {
    if (i != axis && a->shape[i] != x->shape[i]) return false;
    n = with_axis(to->at, n, to->shape[i] = a->shape[i], i == axis ? 0 : strides[i]);
  }
  for (int64_t i = 0; i < n; i++) to->at[i] += room[i];
  to->rank = a->rank;
  to->n = n;
  return true;
}

/* ---- reads ----------------------------------------------------------------------------------------------------------------- */

static inline qn_value read_places(qn_vm *vm, const bvm_loops *l, const qn_array *x, const eager_places *p) {
  qn_dtype d = (qn_dtype)x->dtype;
  qn_array *out = array_new(vm, d, p->rank, p->shape);
  if (!out) return value_error();
  l->gather[bvm_size_class(dtype_size(d))](out->storage->data, x->storage->data, p->at, 1, p->n);
  return value_obj(TAG_ARRAY, out);
}

__attribute__((noinline)) qn_value eager_pick_apply(qn_vm *vm, const qn_array *x, const index_pick *p) {
  const bvm_loops *l = cpu_loops(vm);
  eager_places places;
  if (!l) return value_error();
  return find(l, p, &places) ? read_places(vm, l, x, &places) : value_unset();
}

/* What an index array takes along an axis of an array without gaps, in rows: what lies behind an element of the axis. More elements than
 * lists name are read so. */
static inline qn_value read_rows(qn_vm *vm, const bvm_loops *l, const qn_array *x, const qn_array *by, int axis) {
  int64_t room[EAGER_PLACES], before = 1, row = 1, shape[ARRAY_MAX_RANK], n = by->size, length = x->shape[axis];
  const int64_t *index;
  int rank = by->rank, all = rank + x->rank - 1;
  if (all > ARRAY_MAX_RANK || !x->contiguous || (uint64_t)n - 1 >= EAGER_PLACES ||
      !bounded(l, by, length, room, &index))
    return value_unset();
  for (int i = 0; i < axis; i++) before *= shape[i] = x->shape[i];
  for (int i = 0; i < rank; i++) shape[axis + i] = by->shape[i];
  for (int i = axis + rank; i < all; i++) row *= shape[i] = x->shape[i - rank + 1];
  if ((uint64_t)(before * row - 1) >= EAGER_PLACES * 8) return value_unset();
  qn_array *out = array_new(vm, (qn_dtype)x->dtype, all, shape);
  if (!out) return value_error();
  size_t size = dtype_size((qn_dtype)x->dtype), bytes = size * (size_t)row;
  char *to = out->storage->data;
  for (const char *from = array_data(x); before > 0; before--, from += bytes * (size_t)length) {
    if (row == 1) {
      l->gather[bvm_size_class(size)](to, from, index, 1, n);
      to += size * (size_t)n;
    } else {
      for (int64_t i = 0; i < n; i++, to += bytes) memcpy(to, from + (size_t)index[i] * bytes, bytes);
    }
  }
  return value_obj(TAG_ARRAY, out);
}

static __attribute__((noinline)) qn_value take_apart(qn_vm *vm, const qn_array *x, const qn_array *by, int axis) {
  index_pick p;
  qn_value in = value_obj(TAG_ARRAY, (void *)by);
  return pick_of(x, x->strides, x->offset, axis, &in, 1, &p) ? eager_pick_apply(vm, x, &p) : value_unset();
}

qn_value eager_take(qn_vm *vm, const qn_array *x, const qn_array *by, int axis) {
  const bvm_loops *l = cpu_loops(vm);
  eager_places places;
  if (!l) return value_error();
  if (!eager_here(x) || !eager_here(by) || !x->rank) return value_unset();
  if (x->rank == 1 || dtype_is_bool(by->dtype))
    return find_one(l, x, by, &places) ? read_places(vm, l, x, &places) : value_unset();
  qn_value rows = read_rows(vm, l, x, by, axis);
  return value_is(rows, TAG_UNSET) ? take_apart(vm, x, by, axis) : rows;
}

/* ---- stores ---------------------------------------------------------------------------------------------------------------- */

bool eager_fits(const eager_places *p, qn_value v) {
  if (p->n == 0) return false;
  if (!value_is(v, TAG_ARRAY)) return true;
  const qn_array *a = value_array(v);
  if (a->rank > p->rank) return false;
  for (int i = 0; i < a->rank; i++)
    if (a->shape[i] != 1 && a->shape[i] != p->shape[p->rank - a->rank + i]) return false;
  return true;
}

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

bool eager_store(qn_vm *vm, const qn_array *x, const eager_places *p, qn_value v, int mode) {
  static const uint8_t combine[] = {
      [SCATTER_ADD] = KOP_add, [SCATTER_MUL] = KOP_mul, [SCATTER_MIN] = KOP_min, [SCATTER_MAX] = KOP_max};
  const bvm_loops *l = cpu_loops(vm);
  qn_dtype d = (qn_dtype)x->dtype;
  _Alignas(8) char dense[EAGER_PLACES * 8];
  const char *from = dense;
  char *base = x->storage->data;
  int64_t step = 0;
  if (!l) return false;
  if (!value_is(v, TAG_ARRAY)) {
    dtype_store(d, dense, v);
  } else {
    const qn_array *a = value_array(v);
    from = array_data(a);
    step = a->size > 1;
    if (step && (a->size != p->n || !a->contiguous)) {
      int64_t at[EAGER_PLACES];
      offsets_of(a->rank, a->shape, a->strides, p->rank, p->shape, at);
      l->gather[bvm_size_class(dtype_size(d))](dense, from, at, 1, p->n);
      from = dense;
    }
  }
  int kop = combine[mode];
  if (dtype_is_bool(d)) kop = kop == KOP_add ? KOP_max : kop == KOP_mul ? KOP_min : kop;
  if (mode == SCATTER_SET)
    l->put[bvm_size_class(dtype_size(d))](base, p->at, from, step, p->n);
  else if (l->update[kop][d])
    l->update[kop][d](base, p->at, from, step, p->n);
  else
    update_narrow(l, kop, d, base, p->at, from, step, p->n);
  return true;
}

/* A copy of x with v at places of it, as a scatter_mode says; unset: not here. The places are those of the copy, which has no gaps. */
static qn_value copy_with(qn_vm *vm, qn_array *x, const eager_places *p, qn_value v, int mode) {
  qn_value cast = value_nil();
  if (x->size > EAGER_PLACES * 8 || !eager_fits(p, v) || !eager_may_store(x, v)) return value_unset();
  if (value_is(v, TAG_ARRAY)) {
    if (!eager_here(value_array(v))) return value_unset();
    if (value_array(v)->dtype != x->dtype) v = cast = eager_convert(vm, v, (qn_dtype)x->dtype);
    if (!value_is(v, TAG_ARRAY)) return v;
  }
  qn_array *out = array_duplicate(vm, x);
  bool ok = out && eager_store(vm, out, p, v, mode);
  value_release(vm, cast);
  if (ok) return value_obj(TAG_ARRAY, out);
  if (out) value_release(vm, value_obj(TAG_ARRAY, out));
  return value_error();
}

/* ---- updates by one array ---- */

/* Where the elements are that are stored at n places as they lie: of an array of the places' shape and of this dtype, or in `cell` a number's.
 * NULL: not so. */
static inline const void *plain_elements(qn_value v, qn_dtype d, const qn_array *by, int64_t n, char *cell) {
  if (!value_is(v, TAG_ARRAY)) {
    dtype_store(d, cell, v);
    return cell;
  }
  const qn_array *b = value_array(v);
  bool mask = dtype_is_bool(by->dtype);
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
  bool mask = dtype_is_bool(by->dtype);
  if (!l) return false;
  if (__builtin_expect(mask, 0)
          ? mode != SCATTER_SET || !a->contiguous || !shape_equal(a, by) || (n = mask_list(by, a->strides, 0, at)) < 0
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

/* ---- ops ----------------------------------------------------------------------------------------------------------------- */

/* Of rows without gaps, where all of it is read as it lies, each along itself. */
static inline qn_value gather_rows(qn_vm *vm, const bvm_loops *l, const qn_array *x, const qn_array *by) {
  int last = x->rank - 1;
  int64_t at[EAGER_PLACES], *to = at, n = by->size, count, size, row = 0;
  if (by->rank != x->rank || last < 0 || !x->contiguous || by->dtype != DTYPE_INDEX || !by->contiguous ||
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
  qn_dtype d = (qn_dtype)x->dtype;
  qn_array *out = array_new_like(vm, d, by);
  if (!out) return value_error();
  l->gather[bvm_size_class(dtype_size(d))](out->storage->data, array_data(x), at, 1, n);
  return value_obj(TAG_ARRAY, out);
}

qn_value eager_gather(qn_vm *vm, qn_value in, qn_value index, int axis) {
  const bvm_loops *l = cpu_loops(vm);
  const qn_array *x = value_array(in);
  eager_places places;
  if (!l) return value_error();
  if (!value_is(in, TAG_ARRAY) || !value_is(index, TAG_ARRAY) || !eager_here(x) || !eager_here(value_array(index)))
    return value_unset();
  if (axis == x->rank - 1) {
    qn_value rows = gather_rows(vm, l, x, value_array(index));
    if (!value_is(rows, TAG_UNSET)) return rows;
  }
  return find_along(l, x, x->strides, x->offset, index, axis, &places) ? read_places(vm, l, x, &places) : value_unset();
}

qn_value eager_fast_index(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr) {
  if (op == OP_nonzero) return eager_fast_nonzero(vm, in[0]);
  bool reads = op == OP_index || op == OP_compress, updates = op == OP_scatter || op == OP_gather_add;
  bool along = op == OP_gather || op == OP_gather_add;
  if ((!reads && !updates && !along) || nin < 2 + updates || (along && !attr->axes)) return value_unset();
  if (op == OP_gather) return eager_gather(vm, in[0], in[1], __builtin_ctz(attr->axes));
  qn_array *x = value_array(in[0]);
  const bvm_loops *l = cpu_loops(vm);
  eager_places places;
  index_pick p;
  if (!l) return value_error();
  if (!value_is(in[0], TAG_ARRAY) || !eager_here(x)) return value_unset();
  int64_t dense[ARRAY_MAX_RANK], offset = updates ? 0 : x->offset;
  const int64_t *strides = updates ? dense : x->strides;
  if (updates) shape_strides(x->rank, x->shape, dense);
  if (along ? !find_along(l, x, strides, offset, in[1], __builtin_ctz(attr->axes), &places)
            : !pick_of(x, strides, offset, 0, in + 1, nin - 1 - updates, &p) ||
                  dtype_is_bool(p.index[0]->dtype) != (op == OP_compress) || !eager_find(vm, &p, &places))
    return value_unset();
  if (!updates) return read_places(vm, l, x, &places);
  return copy_with(vm, x, &places, in[nin - 1], op == OP_scatter ? attr->mode : SCATTER_ADD);
}
