/* Reads and stores of few elements in the CPU's memory that index arrays and masks name, without a kernel (jit/run/eager_index.h).
 *
 * What an index names becomes a list: the offsets of its elements in the storage, in the order of the result (eager_places). One loop of the
 * block VM reads, stores or combines the elements at these offsets, one after the other, as a kernel would. There are four ways to a list or
 * past it:
 *
 *   find        any index: a list that begins with the offset of the array is multiplied out with one axis of the result after the other
 *   find_by     one index array of an array of rank 1, or a mask of the whole array
 *   find_along  the ops gather and gather_add: an index array of the array's own rank, along one axis
 *   read_rows   one index array of an array of higher rank: whole rows are copied, without a list
 *
 * Nothing is made or stored before all positions have been checked. An index out of bounds is refused, so that the general way reports it.
 *
 * Measured by tests/cost.py on arrays of four elements, in instructions of a statement with the interpreter's share: 580 to 800 here; 5,500 to
 * 9,600 (masks 2,200 to 2,500) if everything is refused and kernels do it. The special ways pay for themselves, too: by `find` alone x[i] costs 860
 * instead of 600, y[i] = v 1,100 instead of 740, x[c] 1,250 instead of 650; without read_rows m[i] costs 990 instead of 740; without with_alike
 * m[i, i] 1,195 instead of 800; with gather as an op 950 instead of 790. A store of its own for what find_by names saved 60 to 110
 * instructions more, and was given up.
 */
#include "jit/run/eager_index.h"

#include <string.h>

#include "jit/cpu/cpu.h"
#include "jit/run/eager.h"

/* ---- lists of offsets ------------------------------------------------------------------------------------------------ */

/* Replaces each of the n offsets in `at` by `size` offsets, `stride` apart. Returns how many there are then; the caller has made sure that
 * they have room. */
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

/* Replaces each of the n offsets in `at` by `size` offsets: itself plus each position times the stride of the axis. */
static inline void with_index(int64_t *at, int64_t n, const int64_t *index, int64_t size, int64_t stride) {
  for (int64_t i = n; i-- > 0;) {
    int64_t from = at[i], *to = at + i * size;
    for (int64_t j = size; j-- > 0;) to[j] = from + index[j] * stride;
  }
}

/* Writes the offsets of an array's elements to `at`, counted from its first element, in row-major order of the shape that it is broadcast to.
 * `own` and `strides` are the array's layout. */
static int64_t offsets_of(int own_rank, const int64_t *own, const int64_t *strides, int rank, const int64_t *shape,
                          int64_t *at) {
  int64_t n = 1;
  at[0] = 0;
  for (int i = 0, k = own_rank - rank; i < rank; i++, k++)
    n = with_axis(at, n, shape[i], k >= 0 && own[k] != 1 ? strides[k] : 0);
  return n;
}

/* Converts the elements of an index array of at most EAGER_PLACES, of any layout and integer dtype, to i64. */
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

/* The positions that an index array names along an axis of this size, as numbers from 0 on: the array's own elements if they are that, else
 * written to `room`, which holds EAGER_PLACES. NULL: there are none or too many, or one is out of bounds. */
static inline const int64_t *positions(const bvm_loops *l, const qn_array *a, int64_t size, int64_t *room) {
  int64_t n = a->size;
  const int64_t *own = room;
  bool outside = false;
  if ((uint64_t)n - 1 >= EAGER_PLACES) return NULL;
  if (__builtin_expect(a->dtype == DTYPE_INDEX && a->contiguous, 1))
    own = (const int64_t *)(const void *)array_data(a);
  else
    load_indices(l, a, room);
  for (int64_t i = 0; i < n; i++) outside |= (uint64_t)own[i] >= (uint64_t)size;
  if (__builtin_expect(!outside, 1)) return own;
  for (int64_t i = 0; i < n; i++) {
    int64_t k = own[i];
    k += k < 0 ? size : 0;
    if ((uint64_t)k >= (uint64_t)size) return NULL;
    room[i] = k;
  }
  return room;
}

/* Writes the offsets of the elements where a mask is true; `offset` is that of its first element, the strides are those of the axes that it
 * covers. Returns how many there are; -1: the mask is too large, or has no axes. */
static inline int64_t mask_list(const qn_array *mask, const int64_t *strides, int64_t offset, int64_t *to) {
  const uint8_t *m = (const uint8_t *)array_data(mask);
  int64_t n = 0, all = 1, last = mask->rank - 1;
  bool run = mask->contiguous; /* and the axes that it covers lie as one run */
  if (mask->size > EAGER_PLACES || last < 0) return -1;
  if (!mask->size) return 0; /* its axes may be long */
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

/* Is the pick by index arrays of one shape, without masks? */
static inline bool is_alike(const index_pick *p) {
  const qn_array *a = p->index[0];
  if (dtype_is_bool(a->dtype)) return false;
  for (int i = 1; i < p->n; i++) {
    const qn_array *b = p->index[i];
    if (b != a && (dtype_is_bool(b->dtype) || !shape_equal(a, b))) return false;
  }
  return true;
}

/* The shape that the index arrays and masks of a pick broadcast to, a mask as the list of its true elements. Returns how many elements it has;
 * -1: they do not broadcast, or are too many. */
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

/* Replaces each of the n offsets in `at` by as many as the index arrays and masks name together, which have this joint shape. Returns how many
 * there are then; -1: refused. */
static __attribute__((noinline, cold)) int64_t with_joint(const bvm_loops *l, const index_pick *p, int64_t *at,
                                                          int64_t n, int *rank, int64_t *shape) {
  int64_t joint[EAGER_PLACES], list[EAGER_PLACES], from[EAGER_PLACES], strides[ARRAY_MAX_RANK];
  int64_t size = joint_shape(p, rank, shape), count;
  if (size < 0 || n * size > EAGER_PLACES) return -1;
  memset(joint, 0, (size_t)size * sizeof *joint);
  for (int i = 0, axis = 0; i < p->n; i++) {
    const qn_array *a = p->index[i];
    bool mask = dtype_is_bool(a->dtype);
    const int64_t *index = list;
    int64_t stride = mask ? 1 : p->stride[axis];
    if (mask)
      count = mask_list(a, p->stride + axis, 0, list);
    else if (!(index = positions(l, a, p->size[axis], list)))
      return -1;
    axis += mask ? a->rank : 1;
    int own = mask ? 1 : a->rank;
    const int64_t *own_shape = mask ? &count : a->shape;
    shape_strides(own, own_shape, strides);
    offsets_of(own, own_shape, strides, *rank, shape, from);
    for (int64_t k = 0; k < size; k++) joint[k] += index[from[k]] * stride;
  }
  with_index(at, n, joint, size, 1);
  return n * size;
}

/* As with_joint, for index arrays of one shape, the most common case: nothing needs to be broadcast. */
static inline __attribute__((always_inline)) int64_t with_alike(const bvm_loops *l, const index_pick *p, int64_t *at,
                                                                int64_t n) {
  int64_t room[EAGER_PLACES], size = p->index[0]->size;
  const int64_t *index = positions(l, p->index[0], p->size[0], room);
  if (!index || n * size > EAGER_PLACES) return -1;
  with_index(at, n, index, size, p->stride[0]);
  for (int i = 1; i < p->n; i++) {
    if (!(index = positions(l, p->index[i], p->size[i], room))) return -1;
    int64_t stride = p->stride[i];
    for (int64_t *to = at, *end = at + n * size; to < end; to += size)
      for (int64_t j = 0; j < size; j++) to[j] += index[j] * stride;
  }
  return n * size;
}

/* As with_axis, by an axis that no index governs; -1: the axis is empty, or there would be too many offsets. */
static inline int64_t with_own(const index_pick *p, int axis, int64_t *at, int64_t n) {
  int64_t size = p->shape[axis];
  return size == 0 || n * size > EAGER_PLACES ? -1 : with_axis(at, n, size, p->strides[axis]);
}

/* As eager_find, but leaves to->shape and to->at unset: the caller points them into `to`. */
static inline __attribute__((always_inline)) bool find(const bvm_loops *l, const index_pick *p, eager_places *to) {
  int64_t joint[ARRAY_MAX_RANK], n = 1;
  const int64_t *shape = p->index[0]->shape;
  int rank = p->index[0]->rank, lead = p->lead, i = 0;
  to->room[0] = p->offset;
  for (; i < lead; i++) {
    if ((n = with_own(p, i, to->room, n)) < 0) return false;
    to->own_shape[i] = p->shape[i];
  }
  if (__builtin_expect(is_alike(p), 1))
    n = with_alike(l, p, to->room, n);
  else
    n = with_joint(l, p, to->room, n, &rank, joint), shape = joint;
  if (n < 0 || p->rank + rank > ARRAY_MAX_RANK) return false;
  for (int k = 0; k < rank; k++) to->own_shape[lead + k] = shape[k];
  for (; i < p->rank; i++) {
    if ((n = with_own(p, i, to->room, n)) < 0) return false;
    to->own_shape[rank + i] = p->shape[i];
  }
  to->rank = p->rank + rank;
  to->n = n;
  return true;
}

__attribute__((noinline)) bool eager_find(qn_vm *vm, const index_pick *p, eager_places *to) {
  const bvm_loops *l = cpu_loops(vm);
  to->at = to->room;
  to->shape = to->own_shape;
  return l && find(l, p, to);
}

/* The pick that the operands of an op make: index arrays for the leading axes of x, or masks over them. The elements of x lie, or will lie, at
 * this offset with these strides. False: an operand is not such an array in the CPU's memory, or does not fit x. */
static bool pick_of(const qn_array *x, const int64_t *strides, int64_t offset, const qn_value *in, int n,
                    index_pick *p) {
  int axis = 0;
  p->offset = offset;
  p->rank = p->lead = 0;
  for (p->n = 0; p->n < n; p->n++) {
    if (!value_is(in[p->n], TAG_ARRAY)) return false;
    const qn_array *a = p->index[p->n] = value_array(in[p->n]);
    bool mask = dtype_is_bool(a->dtype);
    int end = axis + (mask ? a->rank : 1);
    if (!eager_here(a) || end > x->rank || (!mask && !dtype_is_int((qn_dtype)a->dtype))) return false;
    for (int k = 0; axis < end; axis++, k++) {
      if (mask && a->shape[k] != x->shape[axis]) return false;
      p->size[axis] = x->shape[axis];
      p->stride[axis] = strides[axis];
    }
  }
  for (; axis < x->rank; axis++) p->shape[p->rank] = x->shape[axis], p->strides[p->rank++] = strides[axis];
  return true;
}

/* ---- places by one array ----------------------------------------------------------------------------------------------------- */

/* As eager_find_by. */
static inline __attribute__((always_inline)) bool find_by(const bvm_loops *l, const qn_array *x, const qn_array *by,
                                                          eager_places *to) {
  to->at = to->room;
  to->shape = to->own_shape;
  if (dtype_is_bool(by->dtype)) {
    to->rank = 1;
    return shape_equal(x, by) && (to->own_shape[0] = to->n = mask_list(by, x->strides, x->offset, to->room)) >= 0;
  }
  const int64_t *index = x->rank == 1 ? positions(l, by, x->shape[0], to->room) : NULL;
  int64_t n = to->n = by->size, offset = x->offset, stride = x->strides[0];
  if (!index) return false;
  to->rank = by->rank;
  to->shape = by->shape;
  if (__builtin_expect(stride == 1 && offset == 0, 1))
    to->at = index;
  else
    for (int64_t i = 0; i < n; i++) to->room[i] = offset + index[i] * stride;
  return true;
}

bool eager_find_by(qn_vm *vm, const qn_array *x, const qn_array *by, eager_places *to) {
  const bvm_loops *l = cpu_loops(vm);
  return l && find_by(l, x, by, to);
}

/* The places that gather names: element [i, j ...] of the index array is a position along the axis, its other positions are i, j ...
 * The elements of x lie, or will lie, at this offset with these strides. Writes one offset to `at` for each element of the index array. False:
 * refused. */
static inline bool find_along(const bvm_loops *l, const qn_array *x, const int64_t *strides, int64_t offset,
                              const qn_array *a, int axis, int64_t *at) {
  int64_t n = 1, room[EAGER_PLACES];
  if (a->rank != x->rank || axis >= x->rank || !eager_here(a) || !dtype_is_int((qn_dtype)a->dtype)) return false;
  const int64_t *index = positions(l, a, x->shape[axis], room);
  if (!index) return false;
  at[0] = offset;
  for (int i = 0; i < a->rank; i++) {
    if (i != axis && a->shape[i] != x->shape[i]) return false;
    n = with_axis(at, n, a->shape[i], i == axis ? 0 : strides[i]);
  }
  for (int64_t i = 0; i < n; i++) at[i] += index[i] * strides[axis];
  return true;
}

/* ---- reads ----------------------------------------------------------------------------------------------------------------- */

/* A new array of this shape with the n elements of x at these offsets. */
static inline qn_value read_at(qn_vm *vm, const bvm_loops *l, const qn_array *x, int rank, const int64_t *shape,
                               const int64_t *at, int64_t n) {
  size_t size = dtype_size((qn_dtype)x->dtype);
  qn_array *out = array_new(vm, (qn_dtype)x->dtype, rank, shape);
  if (!out) return value_error();
  l->gather[bvm_size_class(size)](out->storage->data, x->storage->data, at, 1, n);
  return value_obj(TAG_ARRAY, out);
}

static inline qn_value read_places(qn_vm *vm, const bvm_loops *l, const qn_array *x, const eager_places *p) {
  return read_at(vm, l, x, p->rank, p->shape, p->at, p->n);
}

__attribute__((noinline)) qn_value eager_pick_apply(qn_vm *vm, const qn_array *x, const index_pick *p) {
  const bvm_loops *l = cpu_loops(vm);
  eager_places places;
  if (!l) return value_error();
  if (!find(l, p, &places)) return value_unset();
  return read_at(vm, l, x, places.rank, places.own_shape, places.room, places.n);
}

/* As eager_take by an index array, of an array that lies without gaps. A row is what the axes behind `axis` hold; it is copied as one run, so the
 * result may have more elements than EAGER_PLACES. */
static inline qn_value read_rows(qn_vm *vm, const bvm_loops *l, const qn_array *x, const qn_array *by, int axis) {
  int64_t room[EAGER_PLACES], before = 1, row = 1, shape[ARRAY_MAX_RANK], n = by->size, length = x->shape[axis];
  int rank = by->rank, all = rank + x->rank - 1;
  const int64_t *index = all <= ARRAY_MAX_RANK && x->contiguous ? positions(l, by, length, room) : NULL;
  if (!index) return value_unset();
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

qn_value eager_take(qn_vm *vm, const qn_array *x, const qn_array *by, int axis) {
  const bvm_loops *l = cpu_loops(vm);
  eager_places places;
  if (!l) return value_error();
  if (!eager_here(x) || !eager_here(by) || !x->rank) return value_unset();
  if (x->rank > 1 && !dtype_is_bool(by->dtype)) return read_rows(vm, l, x, by, axis);
  return find_by(l, x, by, &places) ? read_places(vm, l, x, &places) : value_unset();
}

qn_value eager_gather(qn_vm *vm, const qn_array *x, const qn_array *by, int axis) {
  const bvm_loops *l = cpu_loops(vm);
  int64_t room[EAGER_PLACES];
  if (!l) return value_error();
  if (!eager_here(x) || !find_along(l, x, x->strides, x->offset, by, axis, room)) return value_unset();
  return read_at(vm, l, x, by->rank, by->shape, room, by->size);
}

/* ---- stores ---------------------------------------------------------------------------------------------------------------- */

/* Combines elements of f16 or bf16, for which the block VM has no loop: as f32, rounded after each step. */
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

/* Does an array broadcast to the shape of the places? */
static inline bool fits(const eager_places *p, const qn_array *a) {
  int before = p->rank - a->rank;
  for (int i = 0; before >= 0 && i < a->rank; i++)
    if (a->shape[i] != p->shape[before + i] && a->shape[i] != 1) return false;
  return before >= 0;
}

/* As eager_store. */
static inline __attribute__((always_inline)) bool store(qn_vm *vm, const bvm_loops *l, const qn_array *x,
                                                        const eager_places *p, qn_value v, int mode) {
  static const uint8_t combine[] = {
      [SCATTER_ADD] = KOP_add, [SCATTER_MUL] = KOP_mul, [SCATTER_MIN] = KOP_min, [SCATTER_MAX] = KOP_max};
  qn_dtype d = (qn_dtype)x->dtype;
  _Alignas(8) char dense[EAGER_PLACES * 8];
  const char *from = dense;
  size_t size = dtype_size(d);
  char *base = x->storage->data;
  int64_t step = 0;
  if (!value_is(v, TAG_ARRAY)) {
    dtype_store(d, dense, v);
  } else {
    const qn_array *a = value_array(v);
    if (!eager_here(a) || !fits(p, a)) return false;
    if (__builtin_expect(a->dtype != d, 0)) {
      qn_value same = eager_one(vm, OP_cast, v, d);
      bool ok = value_is(same, TAG_ARRAY) && eager_store(vm, x, p, same, mode);
      value_release(vm, same);
      return ok;
    }
    from = array_data(a);
    step = a->size > 1;
    if (step && (a->size != p->n || !a->contiguous)) {
      int64_t at[EAGER_PLACES];
      offsets_of(a->rank, a->shape, a->strides, p->rank, p->shape, at);
      l->gather[bvm_size_class(size)](dense, from, at, 1, p->n);
      from = dense;
    }
  }
  if (mode == SCATTER_SET) {
    l->put[bvm_size_class(size)](base, p->at, from, step, p->n);
    return true;
  }
  int kop = combine[mode];
  if (dtype_is_bool(d)) kop = kop == KOP_add ? KOP_max : kop == KOP_mul ? KOP_min : kop;
  if (l->update[kop][d])
    l->update[kop][d](base, p->at, from, step, p->n);
  else
    update_narrow(l, kop, d, base, p->at, from, step, p->n);
  return true;
}

bool eager_store(qn_vm *vm, const qn_array *x, const eager_places *p, qn_value v, int mode) {
  const bvm_loops *l = cpu_loops(vm);
  return l && store(vm, l, x, p, v, mode);
}

/* ---- ops ----------------------------------------------------------------------------------------------------------------- */

/* A copy of x, without gaps, with v stored as a scatter_mode says at places that were found for such a copy; unset: refused. */
static qn_value copy_with(qn_vm *vm, const bvm_loops *l, qn_array *x, const eager_places *p, qn_value v, int mode) {
  if (x->size > EAGER_PLACES * 8 || !eager_may_store(x, v)) return value_unset();
  qn_array *out = array_duplicate(vm, x);
  if (out && store(vm, l, out, p, v, mode)) return value_obj(TAG_ARRAY, out);
  if (out) value_release(vm, value_obj(TAG_ARRAY, out));
  return vm->error ? value_error() : value_unset();
}

qn_value eager_add_at(qn_vm *vm, qn_array *x, const qn_array *by, qn_value v) {
  const bvm_loops *l = cpu_loops(vm);
  eager_places places;
  if (!l) return value_error();
  bool here = eager_here(x) && eager_here(by) && x->contiguous && x->offset == 0 && !dtype_is_bool(by->dtype);
  return here && find_by(l, x, by, &places) ? copy_with(vm, l, x, &places, v, SCATTER_ADD) : value_unset();
}

qn_value eager_fast_index(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr) {
  if (op == OP_nonzero) return eager_fast_nonzero(vm, in[0]);
  bool along = op == OP_gather || op == OP_gather_add, updates = op == OP_scatter || op == OP_gather_add;
  if ((!along && !updates && op != OP_index && op != OP_compress) || nin < 2 + updates) return value_unset();
  const bvm_loops *l = cpu_loops(vm);
  qn_array *x = value_array(in[0]), *by = value_array(in[1]);
  eager_places places;
  index_pick p;
  if (!l) return value_error();
  if (!value_is(in[0], TAG_ARRAY) || !value_is(in[1], TAG_ARRAY) || !eager_here(x)) return value_unset();
  int64_t dense[ARRAY_MAX_RANK], offset = updates ? 0 : x->offset;
  const int64_t *strides = updates ? dense : x->strides;
  if (updates) shape_strides(x->rank, x->shape, dense);
  places.rank = by->rank, places.shape = by->shape, places.n = by->size, places.at = places.room; /* of find_along */
  bool found = along ? attr->axes && find_along(l, x, strides, offset, by, __builtin_ctz(attr->axes), places.room)
                     : dtype_is_bool(by->dtype) == (op == OP_compress) &&
                           pick_of(x, strides, offset, in + 1, nin - 1 - updates, &p) && eager_find(vm, &p, &places);
  if (!found) return value_unset();
  if (!updates) return read_places(vm, l, x, &places);
  return copy_with(vm, l, x, &places, in[nin - 1], op == OP_scatter ? attr->mode : SCATTER_ADD);
}

/* ---- ops that store in their operand ------------------------------------------------------------------------------------------ */

/* Stores v, which broadcasts to it, in a part of x without index arrays. False: refused, or an error is raised. */
static bool put_part(qn_vm *vm, qn_array *x, int rank, const int64_t *shape, const int64_t *strides, int64_t offset,
                     qn_value number) {
  qn_array *v = value_is(number, TAG_ARRAY) ? value_array(number) : NULL;
  int64_t from[ARRAY_MAX_RANK], n = 1, each = (int64_t)dtype_size((qn_dtype)x->dtype);
  char cell[8];
  if (v && (!eager_here(v) || v->dtype != x->dtype || v->rank > rank)) return false;
  for (int i = rank - 1, k = v ? v->rank - 1 : -1; i >= 0; i--, k--) {
    n *= shape[i];
    from[i] = k < 0 || v->shape[k] == 1 ? 0 : v->strides[k];
    if (k >= 0 && v->shape[k] != 1 && v->shape[k] != shape[i]) return false;
  }
  if (n <= EAGER_PLACES) {
    if (!v) dtype_store((qn_dtype)x->dtype, cell, number);
    eager_copy_few(x->storage->data + offset * each, strides, v ? array_data(v) : cell, from, shape, rank, each);
    return true;
  }
  if (!v) return false;
  qn_array *to = array_view(vm, x, (qn_dtype)x->dtype, rank, shape, strides, offset);
  qn_array *all = to ? array_view(vm, v, (qn_dtype)v->dtype, rank, shape, from, v->offset) : NULL;
  bool ok = all && array_copy_on(vm, to, all);
  array_drop(vm, all);
  array_drop(vm, to);
  return ok;
}

/* Stores v in the part of x that n numbers name along its first axes. False: refused, or an error is raised. */
static bool put_row(qn_vm *vm, qn_array *x, const qn_value *numbers, int n, qn_value v) {
  int64_t offset = x->offset;
  for (int k = 0; k < n; k++) {
    qn_value at = numbers[k];
    if (value_is(at, TAG_ARRAY)) {
      const qn_array *a = value_array(at);
      if (a->rank || !eager_here(a)) return false;
      at = array_get_flat(a, 0);
    }
    if (!value_is(at, TAG_INT)) return false;
    int64_t i = at.u.i < 0 ? at.u.i + x->shape[k] : at.u.i;
    if (i < 0 || i >= x->shape[k]) return false;
    offset += i * x->strides[k];
  }
  return put_part(vm, x, x->rank - n, x->shape + n, x->strides + n, offset, v);
}

bool eager_update(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr) {
  qn_array *x = value_array(in[0]);
  const bvm_loops *l = cpu_loops(vm);
  qn_value v = in[nin - 1];
  eager_places places;
  index_pick p;
  if (!l || !eager_may_store(x, v)) return false;
  if (op == OP_slice_put) {
    int64_t strides[ARRAY_MAX_RANK], shape[ARRAY_MAX_RANK], offset = x->offset;
    for (int i = 0; i < x->rank; i++) {
      const int64_t *s = attr->d + 3 * i; /* start, size, step */
      shape[i] = s[1];
      strides[i] = x->strides[i] * s[2];
      offset += s[0] * x->strides[i];
      if (s[1] &&
          (s[0] < 0 || s[0] >= x->shape[i] || s[0] + (s[1] - 1) * s[2] < 0 || s[0] + (s[1] - 1) * s[2] >= x->shape[i]))
        return false;
    }
    return put_part(vm, x, x->rank, shape, strides, offset, v);
  }
  if (op == OP_gather_add) {
    if (!value_is(in[1], TAG_ARRAY) || !attr->axes) return false;
    const qn_array *by = value_array(in[1]);
    places.rank = by->rank, places.shape = by->shape, places.n = by->size, places.at = places.room;
    return eager_here(by) && find_along(l, x, x->strides, x->offset, by, __builtin_ctz(attr->axes), places.room) &&
           store(vm, l, x, &places, v, SCATTER_ADD);
  }
  if (attr->mode == SCATTER_SET && put_row(vm, x, in + 1, nin - 2, v)) return true;
  return !vm->error && pick_of(x, x->strides, x->offset, in + 1, nin - 2, &p) && eager_find(vm, &p, &places) &&
         store(vm, l, x, &places, v, attr->mode);
}
