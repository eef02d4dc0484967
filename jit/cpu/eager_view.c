/* Views of eager dispatch (eager.c): the VIEW ops, slice_put and iota, without a kernel.
 *
 * What only maps coordinates is a new header on the same storage, on any device; reshape copies where the elements do not lie as
 * one run. What joins (concat, pad, slice_put) copies its operands into a new array.
 *
 * Each op has two ways in. eager_view takes operands as programs have them and asks no rules: it looks at what the rules would
 * look at, and makes small results in the CPU's memory itself. Whatever is different (operands of several dtypes or without
 * data, empty or large results, devices, and all that is wrong) it leaves to eager_slow, which comes back to eager_run_view with strict
 * operands and the result's type.
 */
#include <math.h>
#include <string.h>

#include "jit/cpu/cpu.h"
#include "jit/cpu/eager.h"
#include "jit/cpu/op_program.h"

static inline qn_value as_value(qn_array *a) { return a ? value_obj(TAG_ARRAY, a) : value_error(); }

/* ---- maps ----------------------------------------------------------------------------------------------------------- */

/* A slice of one element or none may have any step. */
static inline int64_t stride_of(int64_t stride, const qn_dim *slice) {
  return slice[1] > 1 ? stride * slice[2] : stride;
}

static qn_array *view_slice(qn_vm *vm, const qn_array *a, const op_attr *attr) {
  int64_t shape[ARRAY_MAX_RANK], strides[ARRAY_MAX_RANK], offset = a->offset;
  for (int i = 0; i < a->rank; i++) {
    offset += attr->d[3 * i] * a->strides[i];
    shape[i] = attr->d[3 * i + 1];
    strides[i] = stride_of(a->strides[i], attr->d + 3 * i);
  }
  return array_view(vm, a, (qn_dtype)a->dtype, a->rank, shape, strides, offset);
}

static inline __attribute__((always_inline)) qn_array *view_broadcast(qn_vm *vm, const qn_array *a, int rank,
                                                                      const int64_t *shape) {
  int64_t strides[ARRAY_MAX_RANK];
  for (int k = 0; k < rank; k++) {
    int own = k - (rank - a->rank);
    strides[k] = own >= 0 && a->shape[own] != 1 ? a->strides[own] : 0;
  }
  return array_view(vm, a, (qn_dtype)a->dtype, rank, shape, strides, a->offset);
}

static qn_array *view_permute(qn_vm *vm, const qn_array *a, const op_attr *attr) {
  int64_t shape[ARRAY_MAX_RANK], strides[ARRAY_MAX_RANK];
  for (int i = 0; i < a->rank; i++) {
    shape[i] = a->shape[attr->d[i]];
    strides[i] = a->strides[attr->d[i]];
  }
  return array_view(vm, a, (qn_dtype)a->dtype, a->rank, shape, strides, a->offset);
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

/* ---- joined ---------------------------------------------------------------------------------------------------------- */

/* Copies `from`, broadcast, into the part of `to` that a slice names. */
static bool store_slice(qn_vm *vm, qn_array *to, const op_attr *attr, const qn_array *from) {
  qn_array *part = view_slice(vm, to, attr);
  qn_array *wide = part ? view_broadcast(vm, from, part->rank, part->shape) : NULL;
  bool ok = wide && array_copy_on(vm, part, wide);
  if (part) value_release(vm, value_obj(TAG_ARRAY, part));
  if (wide) value_release(vm, value_obj(TAG_ARRAY, wide));
  return ok;
}

static qn_array *run_concat(qn_vm *vm, qn_array *const *in, int nin, const op_attr *attr, const graph_type *t) {
  qn_array *out = array_new_on(vm, in[0]->device, (qn_dtype)t->dtype, t->rank, t->shape);
  int axis = __builtin_ctz(attr->axes);
  op_attr slice = {.n = (uint8_t)(3 * t->rank)};
  for (int k = 0; k < t->rank; k++) {
    slice.d[3 * k + 1] = t->shape[k];
    slice.d[3 * k + 2] = 1;
  }
  for (int i = 0; i < nin && out; i++) {
    slice.d[3 * axis + 1] = in[i]->shape[axis];
    if (!store_slice(vm, out, &slice, in[i])) {
      value_release(vm, value_obj(TAG_ARRAY, out));
      return NULL;
    }
    slice.d[3 * axis] += in[i]->shape[axis];
  }
  return out;
}

static qn_array *run_pad(qn_vm *vm, qn_array *const *in, const op_attr *attr, const graph_type *t) {
  qn_array *fill = view_broadcast(vm, in[1], t->rank, t->shape);
  qn_array *out = fill ? array_new_on(vm, in[0]->device, (qn_dtype)t->dtype, t->rank, t->shape) : NULL;
  if (out) {
    bool filled = array_copy_on(vm, out, fill);
    op_attr slice = {.n = (uint8_t)(3 * t->rank)};
    for (int k = 0; k < t->rank; k++) {
      slice.d[3 * k] = attr->d[3 * k];
      slice.d[3 * k + 1] = in[0]->shape[k];
      slice.d[3 * k + 2] = attr->d[3 * k + 2] + 1;
    }
    if (!filled || !store_slice(vm, out, &slice, in[0])) {
      value_release(vm, value_obj(TAG_ARRAY, out));
      out = NULL;
    }
  }
  if (fill) value_release(vm, value_obj(TAG_ARRAY, fill));
  return out;
}

static qn_array *run_slice_put(qn_vm *vm, qn_array *const *in, const op_attr *attr) {
  qn_array *out = array_new_on(vm, in[0]->device, (qn_dtype)in[0]->dtype, in[0]->rank, in[0]->shape);
  if (!out) return NULL;
  if (array_copy_on(vm, out, in[0]) && store_slice(vm, out, attr, in[1])) return out;
  value_release(vm, value_obj(TAG_ARRAY, out));
  return NULL;
}

qn_array *eager_run_view(qn_vm *vm, op_id op, qn_array *const *in, int nin, const op_attr *attr, const graph_type *t) {
  switch (op) {
  case OP_reshape: return view_reshape(vm, in[0], t->rank, t->shape);
  case OP_broadcast: return view_broadcast(vm, in[0], t->rank, t->shape);
  case OP_permute: return view_permute(vm, in[0], attr);
  case OP_slice: return view_slice(vm, in[0], attr);
  case OP_window: return view_window(vm, in[0], attr, t);
  case OP_pad: return run_pad(vm, in, attr, t);
  case OP_slice_put: return run_slice_put(vm, in, attr);
  default: return run_concat(vm, in, nin, attr, t);
  }
}

/* ---- without rules: maps ------------------------------------------------------------------------------------------------ */

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

static inline qn_value permute(qn_vm *vm, const qn_array *a, const op_attr *attr) {
  unsigned seen = 0;
  if (attr->n != a->rank) return value_unset();
  for (int i = 0; i < a->rank; i++) {
    if ((uint64_t)attr->d[i] >= a->rank) return value_unset();
    seen |= 1u << attr->d[i];
  }
  return seen == (1u << a->rank) - 1 ? as_value(view_permute(vm, a, attr)) : value_unset();
}

qn_value eager_permute(qn_vm *vm, const qn_array *a, const int *order) {
  int64_t shape[ARRAY_MAX_RANK], strides[ARRAY_MAX_RANK];
  for (int i = 0, rank = a->rank; i < rank; i++) {
    shape[i] = a->shape[order[i]];
    strides[i] = a->strides[order[i]];
  }
  return as_value(array_view(vm, a, (qn_dtype)a->dtype, a->rank, shape, strides, a->offset));
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

/* ---- without rules: joined ------------------------------------------------------------------------------------------------ */

static inline bool small(const qn_vm *vm, int64_t elements) { return elements <= vm->tune[TUNE_par_grain]; }
static inline bool on_cpu(const qn_array *a) { return a->storage && !a->device; }

/* An array on the caller's stack, for array_copy_elements alone: a part of `base`, which has data, or another map of it. */
typedef struct part {
  qn_array a;
} part;

static inline void part_of(part *p, const qn_array *base, int rank, const int64_t *shape, int64_t size) {
  p->a.dtype = base->dtype;
  p->a.rank = (uint8_t)rank;
  p->a.contiguous = false;
  p->a.size = size;
  p->a.offset = base->offset;
  p->a.storage = base->storage;
  for (int i = 0; i < rank; i++) p->a.shape[i] = shape[i];
}

/* Copies `rows` runs of bytes, which lie behind one another, to places that are `row` bytes apart. */
static inline void copy_runs(char *to, size_t row, const char *from, size_t run, int64_t rows) {
  switch (run) {
  case 4:
    for (; rows > 0; rows--, to += row, from += 4) memcpy(to, from, 4);
    return;
  case 8:
    for (; rows > 0; rows--, to += row, from += 8) memcpy(to, from, 8);
    return;
  case 16:
    for (; rows > 0; rows--, to += row, from += 16) memcpy(to, from, 16);
    return;
  default:
    for (; rows > 0; rows--, to += row, from += run) memcpy(to, from, run);
  }
}

/* The elements of an array of at most a block in one piece and in dtype d: where they lie or in `held`. NULL: not here, or with an
 * error raised. */
static const char *in_one_piece(qn_vm *vm, const qn_array *a, qn_dtype d, char held[2][PROGRAM_BLOCK * 8]) {
  const char *at = array_data(a);
  if (!a->contiguous) {
    eager_write_out(held[0], a);
    at = held[0];
  }
  if (a->dtype == d) return at;
  const op_program *s = op_program_of(vm, OP_cast, op_program_number(a->dtype, d));
  const void *from[PROGRAM_SLOTS] = {at};
  return s && s->usable && op_program_run(s, from, 1, held[1], a->size) ? held[1] : NULL;
}

/* How parts lie in a new array, behind one another along an axis. */
typedef struct joint {
  int axis;
  bool new_axis; /* the parts do not have it: each is one place along it */
  /* all parts lie in one piece and have the array's dtype; else there may be numbers among parts of one element */
  bool plain;
  int64_t rows;  /* runs of each part, one before all of the others' */
  int64_t inner; /* elements behind the axis */
} joint;

/* A part with gaps or of another dtype, at `to`, its runs `row` bytes apart. False: not here, or with an error raised. */
static __attribute__((noinline)) bool put_converted(qn_vm *vm, joint j, qn_array *out, char *to, size_t row,
                                                    const qn_array *a, size_t run) {
  _Alignas(64) char held[2][PROGRAM_BLOCK * 8];
  if (a->size <= PROGRAM_BLOCK) {
    const char *from = in_one_piece(vm, a, (qn_dtype)out->dtype, held);
    if (from) copy_runs(to, row, from, run, j.rows);
    return from != NULL;
  }
  part p;
  part_of(&p, out, a->rank, a->shape, a->size);
  p.a.offset += (to - out->storage->data) / (int64_t)dtype_size((qn_dtype)out->dtype);
  for (int i = 0; i < a->rank; i++) p.a.strides[i] = out->strides[i + (j.new_axis && i >= j.axis)];
  array_copy_elements(&p.a, a);
  return true;
}

/* Can a part be put into an array of dtype d? */
static inline bool may_join(const qn_array *a, qn_dtype d) { return a->dtype == d || a->size <= PROGRAM_BLOCK; }

/* A new array with the parts, which have been looked at. */
static inline __attribute__((always_inline)) qn_value join(qn_vm *vm, joint j, qn_dtype d, int rank,
                                                           const int64_t *shape, const qn_value *in, int nin) {
  qn_array *out = array_new(vm, d, rank, shape);
  if (__builtin_expect(!out, 0)) return value_error();
  size_t size = dtype_size(d), each = (size_t)j.inner * size, row = (size_t)shape[j.axis] * each;
  char *to = out->storage->data;
  const qn_value *end = in + nin;
  for (; j.plain && in < end; in++) {
    const qn_array *a = value_array(*in);
    size_t run = j.new_axis ? each : each * (size_t)a->shape[j.axis];
    copy_runs(to, row, a->storage->data + (size_t)a->offset * size, run, j.rows);
    to += run;
  }
  for (; in < end; in++) {
    const qn_array *a = value_array(*in);
    size_t run = j.new_axis ? each : each * (size_t)a->shape[j.axis];
    if (j.new_axis && !value_is(*in, TAG_ARRAY)) {
      dtype_store(d, to, *in);
    } else if (a->contiguous && a->dtype == d) {
      copy_runs(to, row, array_data(a), run, j.rows);
    } else if (a->size && !put_converted(vm, j, out, to, row, a, run)) {
      value_release(vm, value_obj(TAG_ARRAY, out));
      return vm->error ? value_error() : value_unset();
    }
    to += run;
  }
  return value_obj(TAG_ARRAY, out);
}

/* Bits of the difference of two forms that say that ranks or devices differ. */
static inline uint32_t form_place(void) {
  static const uint8_t bytes[4] = {0, 0xff, 0xff, 0};
  uint32_t mask;
  memcpy(&mask, bytes, sizeof mask);
  return mask;
}

/* The dtype of arrays of several, joined. QN_DTYPE_COUNT: not here. */
static __attribute__((noinline)) qn_dtype joined_dtype(const qn_value *in, int nin) {
  operand_type t = {(qn_dtype)value_array(in[0])->dtype, false};
  for (int i = 1; i < nin; i++) t = dtype_promote(t, (operand_type){(qn_dtype)value_array(in[i])->dtype, false});
  for (int i = 0; i < nin; i++)
    if (!may_join(value_array(in[i]), t.dtype)) return QN_DTYPE_COUNT;
  return t.dtype;
}

qn_value eager_concat(qn_vm *vm, const qn_value *in, int nin, int64_t along) {
  const qn_array *first = value_array(in[0]);
  if (!value_is(in[0], TAG_ARRAY) || !on_cpu(first)) return value_unset();
  int rank = first->rank;
  if (along < 0) along += rank;
  if ((uint64_t)along >= (uint64_t)rank) return value_unset();
  int axis = (int)along;
  int64_t shape[ARRAY_MAX_RANK], total = first->shape[axis];
  joint j = {.axis = axis, .rows = 1, .inner = 1};
  for (int k = 0; k < axis; k++) j.rows *= shape[k] = first->shape[k];
  for (int k = axis + 1; k < rank; k++) j.inner *= shape[k] = first->shape[k];
  uint32_t form = array_form(first), differ = 0;
  for (int i = 1; i < nin; i++) {
    const qn_array *a = value_array(in[i]);
    if (!value_is(in[i], TAG_ARRAY) || !a->storage) return value_unset();
    uint32_t other = array_form(a) ^ form;
    if (other & form_place()) return value_unset();
    differ |= other;
    for (int k = 0; k < axis; k++)
      if (a->shape[k] != shape[k]) return value_unset();
    for (int k = axis + 1; k < rank; k++)
      if (a->shape[k] != shape[k]) return value_unset();
    if (__builtin_add_overflow(total, a->shape[axis], &total)) return value_unset();
  }
  int64_t size = j.rows * j.inner;
  if (!size || __builtin_mul_overflow(total, size, &size) || !small(vm, size)) return value_unset();
  j.plain = !differ && first->contiguous;
  qn_dtype d = differ ? joined_dtype(in, nin) : (qn_dtype)first->dtype;
  if (d == QN_DTYPE_COUNT) return value_unset();
  shape[axis] = total;
  return join(vm, j, d, rank, shape, in, nin);
}

static qn_value concat(qn_vm *vm, const qn_value *in, int nin, const op_attr *attr) {
  int axis = __builtin_ctz(attr->axes | 256u);
  return attr->axes == 1u << axis ? eager_concat(vm, in, nin, axis) : value_unset();
}

/* May a host number be stored as dtype d as it is, whatever is said about it otherwise? Then it is, in `cell`. */
static inline bool cell_of(qn_value v, qn_dtype d, char cell[8]) {
  if (d == QN_f32 &&
      ((v.head == TAG_INT && (uint64_t)v.u.i <= 1 << 24) || (v.head == TAG_FLOAT && fabs(v.u.f) <= 1e38))) {
    float f = v.head == TAG_INT ? (float)v.u.i : (float)v.u.f;
    memcpy(cell, &f, sizeof f);
    return true;
  }
  bool kind = dtype_is_float(d) || value_is(v, TAG_BOOL) || (value_is(v, TAG_INT) && d != QN_bool);
  if (!value_is_scalar(v) || !kind || !dtype_holds(d, v)) return false;
  dtype_store(d, cell, v);
  return true;
}

/* The number that a second operand of rank 0 is, in dtype d; NULL: not here. */
static const char *number_of(qn_value v, qn_dtype d, char cell[8]) {
  if (!value_is(v, TAG_ARRAY)) return cell_of(v, d, cell) ? cell : NULL;
  const qn_array *a = value_array(v);
  return a->rank == 0 && a->dtype == d && on_cpu(a) ? array_data(a) : NULL;
}

/* Puts the elements of x, which lie at `from` in one piece, to where its axes step by so many bytes, the last one by an element. */
static void put_box(char *to, const int64_t *steps, const qn_array *x, const char *from, size_t size) {
  int last = x->rank - 1, i;
  size_t run = (size_t)x->shape[last] * size;
  if (last == 0) {
    copy_runs(to, 0, from, run, 1);
    return;
  }
  int64_t index[ARRAY_MAX_RANK] = {0}, rows = x->shape[last - 1];
  do {
    copy_runs(to, (size_t)steps[last - 1], from, run, rows);
    from += (size_t)rows * run;
    for (i = last - 2; i >= 0; i--) {
      to += steps[i];
      if (++index[i] < x->shape[i]) break;
      to -= steps[i] * x->shape[i];
      index[i] = 0;
    }
  } while (i >= 0);
}

/* The same of an array with gaps, or where the last axis steps further. `at`: elements. */
static __attribute__((noinline)) void put_gappy(const qn_array *out, int64_t at, const int64_t *steps,
                                                const qn_array *x, size_t size) {
  if (!x->contiguous && x->size <= PROGRAM_BLOCK && x->rank && steps[x->rank - 1] == (int64_t)size) {
    _Alignas(64) char held[PROGRAM_BLOCK * 8];
    eager_write_out(held, x);
    put_box(array_data(out) + at * (int64_t)size, steps, x, held, size);
    return;
  }
  part p;
  part_of(&p, out, x->rank, x->shape, x->size);
  p.a.offset += at;
  for (int i = 0; i < x->rank; i++) p.a.strides[i] = steps[i] / (int64_t)size;
  array_copy_elements(&p.a, x);
}

qn_value eager_pad(qn_vm *vm, const qn_array *x, qn_value with, const qn_dim *d) {
  _Alignas(8) char cell[8];
  if (!on_cpu(x)) return value_unset();
  const char *number = number_of(with, (qn_dtype)x->dtype, cell);
  int64_t shape[ARRAY_MAX_RANK], steps[ARRAY_MAX_RANK], total = 1, at = 0, most = vm->tune[TUNE_par_grain];
  if (!number) return value_unset();
  for (int i = x->rank - 1; i >= 0; i--) {
    int64_t low = d[3 * i], high = d[3 * i + 1], between = d[3 * i + 2], n = x->shape[i];
    if ((uint64_t)(low | high | between | n) > (uint64_t)most) return value_unset();
    shape[i] = low + high + n + (n ? n - 1 : 0) * between;
    at += low * total;
    steps[i] = total * (between + 1);
    if (__builtin_mul_overflow(total, shape[i], &total) || (uint64_t)total - 1 >= (uint64_t)most) return value_unset();
  }
  const bvm_loops *l = cpu_loops(vm);
  size_t size = dtype_size((qn_dtype)x->dtype);
  qn_array *out = l ? array_new(vm, (qn_dtype)x->dtype, x->rank, shape) : NULL;
  if (!out) return value_error();
  l->fill[bvm_size_class(size)](out->storage->data, number, NULL, NULL, 0, total);
  if (!x->size) return value_obj(TAG_ARRAY, out);
  bool dense = x->contiguous && x->rank && steps[x->rank - 1] == 1;
  for (int i = 0; i < x->rank; i++) steps[i] *= (int64_t)size;
  if (dense)
    put_box(out->storage->data + (size_t)at * size, steps, x, array_data(x), size);
  else
    put_gappy(out, at, steps, x, size);
  return value_obj(TAG_ARRAY, out);
}

static qn_value pad(qn_vm *vm, const qn_value *in, const op_attr *attr) {
  const qn_array *x = value_array(in[0]);
  return attr->n == 3 * x->rank ? eager_pad(vm, x, in[1], attr->d) : value_unset();
}

static qn_value slice_put(qn_vm *vm, const qn_value *in, const op_attr *attr) {
  const qn_array *x = value_array(in[0]);
  if (!on_cpu(x) || !small(vm, x->size) || !slice_fits(x, attr)) return value_unset();
  _Alignas(8) char cell[8];
  qn_storage own;
  part to, from;
  from.a.rank = 0;
  if (value_is(in[1], TAG_ARRAY)) {
    from.a = *value_array(in[1]);
    if (!on_cpu(&from.a) || from.a.dtype != x->dtype || from.a.rank > x->rank) return value_unset();
  } else {
    if (!cell_of(in[1], (qn_dtype)x->dtype, cell)) return value_unset();
    own.data = cell;
    from.a.storage = &own;
    from.a.offset = 0;
    from.a.dtype = x->dtype;
  }
  int64_t shape[ARRAY_MAX_RANK], strides[ARRAY_MAX_RANK], size = 1;
  int lead = x->rank - from.a.rank;
  for (int i = 0; i < x->rank; i++) {
    int64_t n = i < lead ? 1 : from.a.shape[i - lead];
    shape[i] = attr->d[3 * i + 1];
    if (n != shape[i] && n != 1) return value_unset();
    strides[i] = n == 1 ? 0 : from.a.strides[i - lead];
    size *= shape[i];
  }
  qn_array *out = array_new(vm, (qn_dtype)x->dtype, x->rank, x->shape);
  if (!out) return value_error();
  array_copy_elements(out, x);
  if (!size) return value_obj(TAG_ARRAY, out);
  part_of(&to, out, x->rank, shape, size);
  from.a.rank = x->rank;
  from.a.contiguous = false;
  from.a.size = size;
  for (int i = 0; i < x->rank; i++) {
    to.a.offset += attr->d[3 * i] * out->strides[i];
    to.a.strides[i] = stride_of(out->strides[i], attr->d + 3 * i);
    from.a.shape[i] = shape[i];
    from.a.strides[i] = strides[i];
  }
  array_copy_elements(&to.a, &from.a);
  return value_obj(TAG_ARRAY, out);
}

static qn_value iota(qn_vm *vm, const op_attr *attr) {
  int rank = attr->n, axis = __builtin_ctz(attr->axes | 256u);
  qn_dtype d = (qn_dtype)attr->dtype;
  if (vm->device || rank > ARRAY_MAX_RANK || axis >= rank || attr->axes != 1u << axis) return value_unset();
  if (!dtype_is_int(d) && d != QN_f32 && d != QN_f64) return value_unset();
  int64_t outer = 1, inner = 1, size = 1, n = attr->d[axis];
  for (int i = 0; i < rank; i++) {
    if (attr->d[i] <= 0 || !small(vm, attr->d[i]) || !small(vm, size *= attr->d[i])) return value_unset();
    if (i < axis) outer *= attr->d[i];
    if (i > axis) inner *= attr->d[i];
  }
  const bvm_loops *l = cpu_loops(vm);
  if (!l) return value_error();
  if ((int)d >= DTYPE_PUBLIC || (dtype_is_int(d) && !l->iota[d])) return value_unset();
  qn_array *out = array_new(vm, d, rank, attr->d);
  if (!out) return value_error();
  char *to = array_data(out);
  if (dtype_is_int(d)) {
    static const int64_t first = 0, step = 1;
    l->iota[d](to, &first, &step, NULL, 0, n);
  } else if (d == QN_f32) {
    for (int64_t i = 0; i < n; i++) ((float *)(void *)to)[i] = (float)i;
  } else {
    for (int64_t i = 0; i < n; i++) ((double *)(void *)to)[i] = (double)i;
  }
  /* The numbers lie at the beginning: each becomes a run, from the last on, and all runs are repeated. */
  size_t each = dtype_size(d), run = (size_t)inner * each, row = (size_t)n * run;
  for (int64_t i = n; inner > 1 && i-- > 0;) {
    char number[8];
    memcpy(number, to + (size_t)i * each, each);
    for (size_t k = 0; k < run; k += each) memcpy(to + (size_t)i * run + k, number, each);
  }
  for (int64_t i = 1; i < outer; i++) memcpy(to + (size_t)i * row, to, row);
  return value_obj(TAG_ARRAY, out);
}

/* ---- without rules --------------------------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) qn_value view(qn_vm *vm, op_id op, const qn_value *in, int nin,
                                                           const op_attr *attr) {
  if (op == OP_iota) return nin == 0 ? iota(vm, attr) : value_unset();
  if (nin < 1 || !value_is(in[0], TAG_ARRAY)) return value_unset();
  qn_array *a = value_array(in[0]);
  if (!a->storage) return value_unset();
  if (nin == 1) {
    switch (op) {
    case OP_reshape: return eager_reshape(vm, a, attr->n, attr->d);
    case OP_broadcast: return eager_broadcast(vm, a, attr->n, attr->d);
    case OP_permute: return permute(vm, a, attr);
    case OP_slice: return slice_fits(a, attr) ? as_value(view_slice(vm, a, attr)) : value_unset();
    case OP_concat: return concat(vm, in, nin, attr);
    default: return value_unset();
    }
  }
  if (op == OP_concat) return concat(vm, in, nin, attr);
  if (nin != 2) return value_unset();
  return op == OP_pad ? pad(vm, in, attr) : op == OP_slice_put ? slice_put(vm, in, attr) : value_unset();
}

qn_value eager_view(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr) {
  qn_value out = view(vm, op, in, nin, attr);
  return __builtin_expect(value_is(out, TAG_UNSET), 0) ? eager_slow(vm, op, in, nin, attr) : out;
}

/* Can all parts be stacked in dtype d? Numbers can beside rank 0. */
static __attribute__((noinline)) bool may_stack(const qn_value *in, int nin, const qn_array *first, qn_dtype d) {
  int rank = first ? first->rank : 0;
  for (int i = 0; i < nin; i++) {
    if (!value_is(in[i], TAG_ARRAY)) {
      _Alignas(8) char cell[8];
      if (rank || !cell_of(in[i], d, cell)) return false;
      continue;
    }
    const qn_array *a = value_array(in[i]);
    if (!on_cpu(a) || a->rank != rank || !may_join(a, d)) return false;
    for (int k = 0; k < rank; k++)
      if (a->shape[k] != first->shape[k]) return false;
  }
  return true;
}

/* The same of arrays alone, which are all contiguous and have the dtype and shape of the first. */
static inline bool all_alike(const qn_value *in, int nin, const qn_array *first) {
  uint32_t form = array_form(first);
  if (!first->contiguous || !on_cpu(first)) return false;
  for (int i = 1; i < nin; i++) {
    const qn_array *a = value_array(in[i]);
    if (!value_is(in[i], TAG_ARRAY) || !a->storage || array_form(a) != form) return false;
    for (int k = 0, rank = first->rank; k < rank; k++)
      if (a->shape[k] != first->shape[k]) return false;
  }
  return true;
}

qn_value eager_stack(qn_vm *vm, const qn_value *in, int nin, int64_t along, qn_dtype dtype) {
  const qn_array *first = value_is(in[0], TAG_ARRAY) ? value_array(in[0]) : NULL;
  int rank = first ? first->rank : 0;
  if (along < 0) along += rank + 1;
  if (vm->device || rank == ARRAY_MAX_RANK || (uint64_t)along > (uint64_t)rank) return value_unset();
  int axis = (int)along;
  int64_t shape[ARRAY_MAX_RANK], size = nin;
  if (first && __builtin_mul_overflow(size, first->size, &size)) return value_unset();
  if (size == 0 || !small(vm, size)) return value_unset();
  joint j = {.axis = axis, .new_axis = true, .rows = 1, .inner = 1};
  for (int k = 0; k < axis; k++) j.rows *= shape[k] = first->shape[k];
  for (int k = axis; k < rank; k++) j.inner *= shape[k + 1] = first->shape[k];
  shape[axis] = nin;
  j.plain = first && (dtype == QN_DTYPE_COUNT || dtype == first->dtype) && all_alike(in, nin, first);
  if (j.plain)
    dtype = (qn_dtype)first->dtype;
  else if (dtype == QN_DTYPE_COUNT || !may_stack(in, nin, first, dtype))
    return value_unset();
  return join(vm, j, dtype, rank + 1, shape, in, nin);
}

qn_value eager_full(qn_vm *vm, qn_value v, qn_dtype dtype, int rank, const int64_t *shape) {
  _Alignas(8) char cell[8];
  if (vm->device || !cell_of(v, dtype, cell)) return value_unset();
  const bvm_loops *l = cpu_loops(vm);
  qn_array *out = l ? array_new(vm, dtype, rank, shape) : NULL;
  if (!out) return value_error();
  size_t size = dtype_size(dtype);
  enum { PIECE = 1 << 20 }; /* elements between two looks at Ctrl-C and limits */
  for (int64_t i = 0, left = out->size; left > 0; i += PIECE, left -= PIECE) {
    if (i && vm_poll(vm)) {
      value_release(vm, value_obj(TAG_ARRAY, out));
      return value_error();
    }
    l->fill[bvm_size_class(size)](array_data(out) + (size_t)i * size, cell, NULL, NULL, 0, left < PIECE ? left : PIECE);
  }
  return value_obj(TAG_ARRAY, out);
}

qn_value eager_steps(qn_vm *vm, int64_t n, int64_t first, int64_t step) {
  if (vm->device || !small(vm, n)) return value_unset();
  const bvm_loops *l = cpu_loops(vm);
  qn_array *out = l ? array_new(vm, QN_i64, 1, &n) : NULL;
  if (!out) return value_error();
  l->iota[QN_i64](array_data(out), &first, &step, NULL, 0, n);
  return value_obj(TAG_ARRAY, out);
}
