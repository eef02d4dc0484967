/* Views and what is joined of arrays: the VIEW ops and slice_put, on any device, without a kernel (eager.h).
 *
 * What only maps coordinates is a new header on the same storage; reshape copies where the elements do not lie as one run. What joins
 * (concat, stack, pad, slice_put, full) makes an array and copies each operand to its part of it.
 *
 * Each op has two ways in, and one way of doing it. The eager_ functions that the door calls, and eager_view, take operands as programs have
 * them and look themselves at what the rules of the ops would look at. What they are not made for (parts of different dtypes without a given one,
 * some empty results, all that is wrong) they leave to eager_slow, which applies the rules and comes to eager_run_view with strict operands and
 * the type of the result.
 *
 * Measured by tests/cost.py on arrays of four elements, in instructions of a statement with the interpreter's share, by the first way and, with it
 * switched off, by the second: reshape and broadcast_to 690 and 1,400; flip 700 and 1,300; pad 740 and 1,780; concat 680 to 750 and 2,000 to 2,150;
 * stack and [x, y] 710 to 800 and 4,500 to 4,900; zeros and full 670 to 750 and 2,800; arange 580 and 2,900.
 */
#include <string.h>

#include "jit/run/eager.h"
#include "jit/run/eager_index.h"

static inline qn_value as_value(qn_array *a) { return a ? value_obj(TAG_ARRAY, a) : value_error(); }

/* ---- maps ----------------------------------------------------------------------------------------------------------- */

/* The stride of a sliced axis. The step of a slice of one element or none says nothing, and could be too large to multiply. */
static inline int64_t stride_of(int64_t stride, const qn_dim *slice) {
  return slice[1] > 1 ? stride * slice[2] : stride;
}

static qn_array *view_slice(qn_vm *vm, const qn_array *a, const qn_dim *d) {
  int64_t shape[ARRAY_MAX_RANK], strides[ARRAY_MAX_RANK], offset = a->offset;
  for (int i = 0; i < a->rank; i++) {
    offset += d[3 * i] * a->strides[i];
    shape[i] = d[3 * i + 1];
    strides[i] = stride_of(a->strides[i], d + 3 * i);
  }
  return array_view(vm, a, (qn_dtype)a->dtype, a->rank, shape, strides, offset);
}

static inline void broadcast_strides(const qn_array *a, int rank, int64_t *strides) {
  for (int k = 0; k < rank; k++) {
    int own = k - (rank - a->rank);
    strides[k] = own >= 0 && a->shape[own] != 1 ? a->strides[own] : 0;
  }
}

static inline __attribute__((always_inline)) qn_array *view_broadcast(qn_vm *vm, const qn_array *a, int rank,
                                                                      const int64_t *shape) {
  int64_t strides[ARRAY_MAX_RANK];
  broadcast_strides(a, rank, strides);
  return array_view(vm, a, (qn_dtype)a->dtype, rank, shape, strides, a->offset);
}

static qn_array *view_window(qn_vm *vm, const qn_array *a, const op_attr *attr, const graph_type *t) {
  int64_t strides[ARRAY_MAX_RANK];
  int axis = __builtin_ctz(attr->axes);
  memcpy(strides, a->strides, a->rank * sizeof *strides);
  strides[a->rank] = attr->d[2] * strides[axis];
  strides[axis] *= attr->d[1];
  return array_view(vm, a, (qn_dtype)a->dtype, t->rank, t->shape, strides, a->offset);
}

static inline __attribute__((always_inline)) qn_array *view_reshape(qn_vm *vm, qn_array *a, int rank,
                                                                    const int64_t *shape) {
  int64_t strides[ARRAY_MAX_RANK];
  if (a->contiguous) {
    for (int64_t i = rank - 1, size = 1; i >= 0; size *= shape[i--]) strides[i] = size;
    return array_view(vm, a, (qn_dtype)a->dtype, rank, shape, strides, a->offset);
  }
  if (shape_reshape_strides(a, rank, shape, strides))
    return array_view(vm, a, (qn_dtype)a->dtype, rank, shape, strides, a->offset);
  qn_array *flat = array_contiguous(vm, a);
  if (!flat) return NULL;
  shape_strides(rank, shape, strides);
  qn_array *out = array_view(vm, flat, (qn_dtype)a->dtype, rank, shape, strides, flat->offset);
  value_release(vm, value_obj(TAG_ARRAY, flat));
  return out;
}

qn_value eager_reshape(qn_vm *vm, qn_array *a, int rank, const int64_t *shape) {
  int64_t size = 1;
  if (rank > ARRAY_MAX_RANK || !a->storage) return value_unset();
  for (int i = 0; i < rank; i++)
    if (shape[i] <= 0 || __builtin_mul_overflow(size, shape[i], &size)) return value_unset();
  return size == a->size ? as_value(view_reshape(vm, a, rank, shape)) : value_unset();
}

qn_value eager_broadcast(qn_vm *vm, qn_array *a, int rank, const int64_t *shape) {
  int lead = rank - a->rank;
  int64_t size = 1;
  if (rank > ARRAY_MAX_RANK || lead < 0 || !a->storage) return value_unset();
  for (int k = 0; k < rank; k++) {
    int64_t n = shape[k];
    if (k >= lead && a->shape[k - lead] != n && a->shape[k - lead] != 1) return value_unset();
    if (n <= 0 || __builtin_mul_overflow(size, n, &size) || size > ARRAY_MAX_ELEMENTS) return value_unset();
  }
  return as_value(view_broadcast(vm, a, rank, shape));
}

qn_value eager_permute(qn_vm *vm, const qn_array *a, const qn_dim *order) {
  int64_t shape[ARRAY_MAX_RANK], strides[ARRAY_MAX_RANK];
  for (int i = 0, rank = a->rank; i < rank; i++) {
    shape[i] = a->shape[order[i]];
    strides[i] = a->strides[order[i]];
  }
  return as_value(array_view(vm, a, (qn_dtype)a->dtype, a->rank, shape, strides, a->offset));
}

/* ---- joined ---------------------------------------------------------------------------------------------------------- */

/* Copies runs of bytes, most often of one to four elements: a call would cost more than they do. */
static inline void copy_runs(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t run,
                             int64_t runs) {
#define EACH_RUN(n)                                                                                                    \
  for (; runs > 0; runs--, to += to_step, from += from_step) memcpy(to, from, n)
  switch (run) {
  case 4: EACH_RUN(4); return;
  case 8: EACH_RUN(8); return;
  case 16: EACH_RUN(16); return;
  default: EACH_RUN((size_t)run);
  }
#undef EACH_RUN
}

void eager_copy_few(char *to, const int64_t *to_step, const char *from, const int64_t *from_step, const int64_t *shape,
                    int axes, int64_t size) {
  int64_t n = axes ? *shape : 1, t = axes ? *to_step * size : size, f = axes ? *from_step * size : size;
  if (axes == 2 && to_step[1] == 1 && from_step[1] == 1)
    copy_runs(to, t, from, f, shape[1] * size, n);
  else if (axes > 1)
    for (; n > 0; n--, to += t, from += f)
      eager_copy_few(to, to_step + 1, from, from_step + 1, shape + 1, axes - 1, size);
  else if (t == size && f == size)
    copy_runs(to, 0, from, 0, n * size, 1);
  else
    copy_runs(to, t, from, f, size, n);
}

/* May an array of this size be copied by eager_copy_few? Larger ones must look at interrupts on the way, those on devices are copied there. */
static inline bool in_runs(const qn_vm *vm, int device, int64_t size) {
  return !device && size <= vm->tune[TUNE_par_grain];
}

/* Copies an array, broadcast, to the part of `to`, an array of its dtype on its device, that a slice names: start, size and step of each
 * axis. The headers of both are on the stack, where only array_copy_on sees them. */
static bool store_slice(qn_vm *vm, const qn_array *to, const qn_dim *d, const qn_array *from) {
  enum { FEW = 256 };
  qn_array part, wide;
  int rank = to->rank;
  part.offset = to->offset;
  part.size = 1;
  for (int i = 0; i < rank; i++) {
    part.offset += d[3 * i] * to->strides[i];
    part.size *= part.shape[i] = wide.shape[i] = d[3 * i + 1];
    part.strides[i] = stride_of(to->strides[i], d + 3 * i);
  }
  broadcast_strides(from, rank, wide.strides);
  int64_t size = (int64_t)dtype_size((qn_dtype)to->dtype);
  if (!to->device && part.size <= FEW) {
    eager_copy_few(to->storage->data + part.offset * size, part.strides, array_data(from), wide.strides, part.shape,
                   rank, size);
    return true;
  }
  part.dtype = wide.dtype = to->dtype;
  part.device = wide.device = to->device;
  part.rank = wide.rank = (uint8_t)rank;
  part.contiguous = wide.contiguous = false;
  part.storage = to->storage;
  wide.storage = from->storage;
  wide.offset = from->offset;
  wide.size = part.size;
  return array_copy_on(vm, &part, &wide);
}

/* How parts lie in a new array, behind one another along an axis. */
typedef struct joint {
  int axis;
  bool new_axis;       /* the parts do not have it: each is one place along it */
  bool runs;           /* of one dtype, contiguous, and not large: each is copied in `rows` runs */
  int64_t rows, inner; /* elements before the axis and behind it */
} joint;

/* Copies a part of any layout into `out`, from place `at` of the axis on. False with the error raised. */
static __attribute__((noinline)) bool put_part(qn_vm *vm, joint j, const qn_array *out, int64_t at, const qn_array *a) {
  qn_dim d[3 * ARRAY_MAX_RANK];
  qn_array part;
  for (int k = 0; k < out->rank; k++) d[3 * k] = 0, d[3 * k + 1] = out->shape[k], d[3 * k + 2] = 1;
  d[3 * j.axis] = at;
  d[3 * j.axis + 1] = j.new_axis ? 1 : a->shape[j.axis];
  if (!j.new_axis) return store_slice(vm, out, d, a);
  part.dtype = a->dtype;
  part.rank = out->rank;
  part.storage = a->storage;
  part.offset = a->offset;
  for (int k = 0, own = 0; k < out->rank; k++) {
    part.shape[k] = k == j.axis ? 1 : a->shape[own];
    part.strides[k] = k == j.axis ? 0 : a->strides[own++];
  }
  return store_slice(vm, out, d, &part);
}

/* Converts a part to the dtype of `out` and copies it. False: an error is raised, or the part is too large to be converted here. */
static __attribute__((noinline)) bool put_converted(qn_vm *vm, joint j, const qn_array *out, int64_t at, qn_value v) {
  qn_value same = eager_one(vm, OP_cast, v, (qn_dtype)out->dtype);
  bool ok = value_is(same, TAG_ARRAY) && put_part(vm, j, out, at, value_array(same));
  value_release(vm, same);
  return ok;
}

/* A new array with the parts: arrays of one device and of fitting shapes, or, along a new axis, numbers that the dtype holds. Unset: a part
 * is not to be converted here. */
static inline __attribute__((always_inline)) qn_value join(qn_vm *vm, joint j, int device, qn_dtype dtype, int rank,
                                                           const int64_t *shape, const qn_value *in, int nin) {
  qn_array *out = device ? array_new_on(vm, device, dtype, rank, shape) : array_new(vm, dtype, rank, shape);
  if (__builtin_expect(!out, 0)) return value_error();
  size_t size = dtype_size(dtype), each = (size_t)j.inner * size, row = (size_t)shape[j.axis] * each;
  char *to = out->storage->data;
  if (j.runs) {
    for (int i = 0; i < nin; i++) {
      const qn_array *a = value_array(in[i]);
      size_t run = j.new_axis ? each : each * (size_t)a->shape[j.axis];
      copy_runs(to, (int64_t)row, a->storage->data + (size_t)a->offset * size, (int64_t)run, (int64_t)run, j.rows);
      to += run;
    }
    return value_obj(TAG_ARRAY, out);
  }
  for (int64_t i = 0, at = 0; i < nin; i++) {
    const qn_array *a = value_array(in[i]);
    bool ok = true;
    if (j.new_axis && !value_is(in[i], TAG_ARRAY))
      dtype_store(dtype, to + (size_t)at * size, in[i]);
    else
      ok = a->dtype == dtype ? put_part(vm, j, out, at, a) : put_converted(vm, j, out, at, in[i]);
    at += j.new_axis ? 1 : a->shape[j.axis];
    if (ok) continue;
    value_release(vm, value_obj(TAG_ARRAY, out));
    return vm->error ? value_error() : value_unset();
  }
  return value_obj(TAG_ARRAY, out);
}

/* The bits in which the forms (array_form) of arrays of different rank or device differ. */
static inline uint32_t form_place(void) {
  static const uint8_t bytes[4] = {0, 0xff, 0xff, 0};
  uint32_t mask;
  memcpy(&mask, bytes, sizeof mask);
  return mask;
}

qn_value eager_concat(qn_vm *vm, const qn_value *in, int nin, int axis) {
  const qn_array *first = value_array(in[0]);
  if (!value_is(in[0], TAG_ARRAY) || !first->storage || axis >= first->rank) return value_unset();
  joint j = {.axis = axis, .rows = 1, .inner = 1};
  int rank = first->rank;
  int64_t shape[ARRAY_MAX_RANK], total = first->shape[axis];
  for (int k = 0; k < axis; k++) j.rows *= shape[k] = first->shape[k];
  for (int k = axis + 1; k < rank; k++) j.inner *= shape[k] = first->shape[k];
  uint32_t form = array_form(first), differ = !first->contiguous;
  operand_type type = {(qn_dtype)first->dtype, false};
  for (int i = 1; i < nin; i++) {
    const qn_array *a = value_array(in[i]);
    if (!value_is(in[i], TAG_ARRAY) || !a->storage) return value_unset();
    uint32_t other = array_form(a) ^ form;
    if (other & form_place()) return value_unset();
    differ |= other;
    if (a->dtype != first->dtype) type = dtype_promote(type, (operand_type){(qn_dtype)a->dtype, false});
    for (int k = 0; k < axis; k++)
      if (a->shape[k] != shape[k]) return value_unset();
    for (int k = axis + 1; k < rank; k++)
      if (a->shape[k] != shape[k]) return value_unset();
    if (__builtin_add_overflow(total, a->shape[axis], &total)) return value_unset();
  }
  int64_t size = j.rows * j.inner;
  if (!size || __builtin_mul_overflow(total, size, &size) || size > ARRAY_MAX_ELEMENTS) return value_unset();
  shape[axis] = total;
  j.runs = !differ && in_runs(vm, first->device, size);
  return join(vm, j, first->device, type.dtype, rank, shape, in, nin);
}

qn_value eager_stack(qn_vm *vm, const qn_value *in, int nin, int axis, qn_dtype dtype) {
  const qn_array *first = value_is(in[0], TAG_ARRAY) ? value_array(in[0]) : NULL;
  int rank = first ? first->rank : 0, device = first ? first->device : vm->device;
  uint32_t form = first ? array_form(first) : 0, differ = !first || !first->contiguous;
  if (rank == ARRAY_MAX_RANK || axis > rank || (first && !first->storage)) return value_unset();
  for (int i = first != NULL; i < nin; i++) {
    const qn_array *a = value_array(in[i]);
    if (!value_is(in[i], TAG_ARRAY)) {
      if (rank || device || dtype == QN_DTYPE_COUNT || !eager_number_fits(in[i], dtype)) return value_unset();
      differ = true;
      continue;
    }
    uint32_t other = array_form(a) ^ form;
    if (first && other & form_place()) return value_unset();
    if (!a->storage || (!first && (a->rank || a->device != device))) return value_unset();
    differ |= other;
    for (int k = 0; k < rank; k++)
      if (a->shape[k] != first->shape[k]) return value_unset();
  }
  if (differ && dtype == QN_DTYPE_COUNT) return value_unset();
  if (dtype == QN_DTYPE_COUNT) dtype = (qn_dtype)first->dtype;
  joint j = {.axis = axis, .new_axis = true, .rows = 1, .inner = 1};
  int64_t shape[ARRAY_MAX_RANK], size = nin;
  for (int k = 0; k < axis; k++) j.rows *= shape[k] = first->shape[k];
  for (int k = axis; k < rank; k++) j.inner *= shape[k + 1] = first->shape[k];
  shape[axis] = nin;
  if (first && (__builtin_mul_overflow(size, first->size, &size) || size > ARRAY_MAX_ELEMENTS)) return value_unset();
  j.runs = !differ && dtype == first->dtype && in_runs(vm, device, size);
  return join(vm, j, device, dtype, rank + 1, shape, in, nin);
}

/* Fills a new array of the CPU's memory with an element; looks at Ctrl-C and limits on the way. False with the error raised. The first
 * elements are stored one by one; the rest is set to 0 bytes, or else copied from what is filled already, in pieces that double up to one
 * that caches hold. */
static bool fill(qn_vm *vm, const qn_array *out, const char *element) {
  enum { FIRST = 32, MOST = 1 << 9, WATCH = 1 << 20 };
#define FILL(T)                                                                                                        \
  for (T e, *p = (T *)(void *)to, *end = (memcpy(&e, element, sizeof e), p + done); p < end;) *p++ = e
  char *to = array_data(out);
  int64_t size = (int64_t)dtype_size((qn_dtype)out->dtype), done = out->size < FIRST ? out->size : FIRST;
  switch (size) {
  case 1: FILL(uint8_t); break;
  case 2: FILL(uint16_t); break;
  case 4: FILL(uint32_t); break;
  default: FILL(uint64_t);
  }
#undef FILL
  bool zero = done < out->size && !memcmp(element, (char[8]){0}, (size_t)size);
  for (int64_t n, left; (left = out->size - done) > 0; done += n) {
    n = zero ? WATCH - done % WATCH : done < MOST ? done : MOST;
    if (n > left) n = left;
    if (done % WATCH == 0 && vm_poll(vm)) return false;
    if (zero)
      memset(to + done * size, 0, (size_t)(n * size));
    else
      memcpy(to + done * size, to, (size_t)(n * size));
  }
  return true;
}

/* Fills an array on a device with the element of an array of rank 0 that lies there. False with the error raised. */
static __attribute__((noinline)) bool fill_there(qn_vm *vm, qn_array *out, const qn_array *number) {
  qn_array *wide = view_broadcast(vm, number, out->rank, out->shape);
  bool ok = wide && array_copy_on(vm, out, wide);
  if (wide) value_release(vm, value_obj(TAG_ARRAY, wide));
  return ok;
}

/* An array of this shape of x between copies of an element, which is at `element` or, on a device, an array of rank 0. */
static inline __attribute__((always_inline)) qn_array *
pad(qn_vm *vm, const qn_array *x, const char *element, const qn_array *number, const int64_t *shape, const qn_dim *d) {
  qn_dtype dtype = (qn_dtype)x->dtype;
  int rank = x->rank;
  qn_array *out = x->device ? array_new_on(vm, x->device, dtype, rank, shape) : array_new(vm, dtype, rank, shape);
  if (!out) return NULL;
  if (in_runs(vm, x->device, out->size) && fill(vm, out, element)) {
    int64_t steps[ARRAY_MAX_RANK], at = 0, size = (int64_t)dtype_size(dtype);
    for (int i = 0; i < rank; i++) {
      at += d[3 * i] * out->strides[i];
      steps[i] = out->strides[i] * (d[3 * i + 2] + 1);
    }
    if (x->size) eager_copy_few(out->storage->data + at * size, steps, array_data(x), x->strides, x->shape, rank, size);
    return out;
  }
  qn_dim inside[3 * ARRAY_MAX_RANK];
  for (int i = 0; i < rank; i++)
    inside[3 * i] = d[3 * i], inside[3 * i + 1] = x->shape[i], inside[3 * i + 2] = d[3 * i + 2] + 1;
  bool filled = x->device ? fill_there(vm, out, number) : fill(vm, out, element);
  if (filled && store_slice(vm, out, inside, x)) return out;
  value_release(vm, value_obj(TAG_ARRAY, out));
  return NULL;
}

qn_value eager_pad(qn_vm *vm, const qn_array *x, qn_value with, const qn_dim *d) {
  _Alignas(8) char cell[8];
  const char *element = cell;
  int64_t shape[ARRAY_MAX_RANK], total = 1, most = vm->tune[TUNE_par_grain];
  if (!x->storage || x->device) return value_unset();
  if (value_is(with, TAG_ARRAY)) {
    const qn_array *a = value_array(with);
    if (a->rank || a->dtype != x->dtype || !a->storage || a->device) return value_unset();
    element = array_data(a);
  } else {
    if (!eager_number_fits(with, (qn_dtype)x->dtype)) return value_unset();
    dtype_store((qn_dtype)x->dtype, cell, with);
  }
  for (int i = x->rank - 1; i >= 0; i--) {
    int64_t low = d[3 * i], high = d[3 * i + 1], between = d[3 * i + 2], n = x->shape[i];
    if ((uint64_t)(low | high | between | n) > (uint64_t)most) return value_unset();
    shape[i] = low + high + n + (n ? n - 1 : 0) * between;
    if (__builtin_mul_overflow(total, shape[i], &total) || (uint64_t)total - 1 >= (uint64_t)most) return value_unset();
  }
  return as_value(pad(vm, x, element, NULL, shape, d));
}

qn_value eager_full(qn_vm *vm, qn_value v, qn_dtype dtype, int rank, const int64_t *shape) {
  _Alignas(8) char cell[8];
  if (vm->device || !eager_number_fits(v, dtype)) return value_unset();
  qn_array *out = array_new(vm, dtype, rank, shape);
  if (!out) return value_error();
  dtype_store(dtype, cell, v);
  if (fill(vm, out, cell)) return value_obj(TAG_ARRAY, out);
  value_release(vm, value_obj(TAG_ARRAY, out));
  return value_error();
}

qn_value eager_steps(qn_vm *vm, int64_t n, int64_t first, int64_t step) {
  if (vm->device || (uint64_t)n > (uint64_t)vm->tune[TUNE_par_grain]) return value_unset();
  qn_array *out = array_new(vm, DTYPE_INDEX, 1, &n);
  if (!out) return value_error();
  int64_t *to = (int64_t *)(void *)array_data(out);
  uint64_t at = (uint64_t)first, by = (uint64_t)step, ahead[4] = {0, by, 2 * by, 3 * by};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4, at += 4 * by)
    for (int k = 0; k < 4; k++) to[i + k] = (int64_t)(at + ahead[k]);
  for (; i < n; i++, at += by) to[i] = (int64_t)at;
  return value_obj(TAG_ARRAY, out);
}

/* ---- ops ------------------------------------------------------------------------------------------------------------- */

static qn_array *run_concat(qn_vm *vm, qn_array *const *in, int nin, const op_attr *attr, const graph_type *t) {
  qn_array *out = array_new_on(vm, in[0]->device, (qn_dtype)t->dtype, t->rank, t->shape);
  joint j = {.axis = __builtin_ctz(attr->axes)};
  for (int64_t i = 0, at = 0; i < nin && out; at += in[i++]->shape[j.axis])
    if (!put_part(vm, j, out, at, in[i])) {
      value_release(vm, value_obj(TAG_ARRAY, out));
      return NULL;
    }
  return out;
}

static qn_array *run_slice_put(qn_vm *vm, qn_array *const *in, const op_attr *attr) {
  qn_array *out = array_duplicate(vm, in[0]);
  if (!out || store_slice(vm, out, attr->d, in[1])) return out;
  value_release(vm, value_obj(TAG_ARRAY, out));
  return NULL;
}

qn_array *eager_run_view(qn_vm *vm, op_id op, qn_array *const *in, int nin, const op_attr *attr, const graph_type *t) {
  switch (op) {
  case OP_reshape: return view_reshape(vm, in[0], t->rank, t->shape);
  case OP_broadcast: return view_broadcast(vm, in[0], t->rank, t->shape);
  case OP_permute: {
    qn_value out = eager_permute(vm, in[0], attr->d);
    return value_is_error(out) ? NULL : value_array(out);
  }
  case OP_slice: return view_slice(vm, in[0], attr->d);
  case OP_window: return view_window(vm, in[0], attr, t);
  case OP_pad: return pad(vm, in[0], in[0]->device ? NULL : array_data(in[1]), in[1], t->shape, attr->d);
  case OP_slice_put: return run_slice_put(vm, in, attr);
  default: return run_concat(vm, in, nin, attr, t);
  }
}

/* Does an order name each axis once? */
static inline bool order_fits(const qn_array *a, const op_attr *attr) {
  unsigned seen = 0;
  if (attr->n != a->rank) return false;
  for (int i = 0; i < a->rank; i++) {
    if ((uint64_t)attr->d[i] >= a->rank) return false;
    seen |= 1u << attr->d[i];
  }
  return seen == (1u << a->rank) - 1;
}

/* Does the slice lie in the array? An empty one begins at its end at most. */
static inline bool slice_fits(const qn_array *a, const op_attr *attr) {
  if (attr->n != 3 * a->rank) return false;
  for (int i = 0; i < a->rank; i++) {
    int64_t start = attr->d[3 * i], size = attr->d[3 * i + 1], step = attr->d[3 * i + 2], n = a->shape[i], last = 0;
    if (start < 0 || size < 0 || step == 0) return false;
    if (size == 0) {
      if (start > n) return false;
      continue;
    }
    if (__builtin_mul_overflow(size - 1, step, &last) || __builtin_add_overflow(start, last, &last)) return false;
    if (start >= n || (uint64_t)last >= (uint64_t)n) return false;
  }
  return true;
}

static inline __attribute__((always_inline)) qn_value view(qn_vm *vm, op_id op, const qn_value *in, int nin,
                                                           const op_attr *attr) {
  if (nin < 1 || !value_is(in[0], TAG_ARRAY)) return value_unset();
  qn_array *a = value_array(in[0]);
  if (!a->storage) return value_unset();
  if (op == OP_concat) {
    int axis = __builtin_ctz(attr->axes | 256u);
    return attr->axes == 1u << axis ? eager_concat(vm, in, nin, axis) : value_unset();
  }
  if (nin == 2 && op == OP_pad && attr->n == 3 * a->rank) return eager_pad(vm, a, in[1], attr->d);
  if (nin > 1) return value_unset();
  switch (op) {
  case OP_reshape: return eager_reshape(vm, a, attr->n, attr->d);
  case OP_broadcast: return eager_broadcast(vm, a, attr->n, attr->d);
  case OP_permute: return order_fits(a, attr) ? eager_permute(vm, a, attr->d) : value_unset();
  case OP_slice: return slice_fits(a, attr) ? as_value(view_slice(vm, a, attr->d)) : value_unset();
  default: return value_unset();
  }
}

qn_value eager_view(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr) {
  qn_value out = view(vm, op, in, nin, attr);
  return __builtin_expect(value_is(out, TAG_UNSET), 0) ? eager_slow(vm, op, in, nin, attr) : out;
}

qn_value eager_slice(qn_vm *vm, const qn_array *a, const qn_dim *d) {
  return a->storage ? as_value(view_slice(vm, a, d)) : value_unset();
}
