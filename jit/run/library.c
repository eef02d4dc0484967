/* Ops that are no kernels, on the device that has their operands (library.h). */
#include "jit/run/library.h"

#include <string.h>

/* Calls the device for sort, argsort or recurrence, with an `out` of the result's type. */
static device_answer store(qn_vm *vm, op_id op, qn_array *const *in, const op_attr *attr, qn_array *out) {
  const device_kernels *d = device_kernels_of(in[0]->device);
  int axis = attr->axes ? __builtin_ctz(attr->axes) : 0;
  if (op != OP_recurrence && d->sort)
    return d->sort(vm, out, in[0], axis, (attr->flags & ATTR_DESCENDING) != 0, op == OP_argsort);
  if (op != OP_recurrence || !d->recurrence) return DEVICE_REFUSES;
  qn_array *by = array_contiguous(vm, in[0]), *plus = by ? array_contiguous(vm, in[1]) : NULL;
  device_answer answer = !plus ? DEVICE_FAILS
                               : d->recurrence(vm, out, by, plus, axis, (attr->flags & ATTR_REVERSE) != 0,
                                               (attr->flags & ATTR_EXCLUSIVE) != 0);
  array_drop(vm, plus);
  array_drop(vm, by);
  return answer;
}

/* Does these three to `out` or, where that is NULL, to a new array, which is returned. NULL: *refused, or with an error raised. */
static qn_array *stored(qn_vm *vm, op_id op, qn_array *const *in, const op_attr *attr, qn_array *out, bool *refused) {
  const qn_array *like = in[op == OP_recurrence];
  qn_array *made = out ? out
                       : array_new_on(vm, like->device, op == OP_argsort ? DTYPE_INDEX : (qn_dtype)like->dtype,
                                      like->rank, like->shape);
  device_answer answer = made ? store(vm, op, in, attr, made) : DEVICE_FAILS;
  *refused = answer == DEVICE_REFUSES;
  if (answer == DEVICE_DONE) return made;
  if (!out) array_drop(vm, made);
  return NULL;
}

/* argsort of which only the first indices are wanted: sorts all, and copies these. */
static qn_array *first_there(qn_vm *vm, qn_array *const *in, const op_attr *attr, qn_array *out, bool *refused) {
  int64_t shape[ARRAY_MAX_RANK];
  memcpy(shape, in[0]->shape, in[0]->rank * sizeof *shape);
  shape[__builtin_ctz(attr->axes)] = attr->d[0];
  qn_array *all = stored(vm, OP_argsort, in, attr, NULL, refused), *made = NULL;
  qn_array *part = all ? array_view(vm, all, DTYPE_INDEX, all->rank, shape, all->strides, 0) : NULL;
  if (part && !out) made = array_duplicate(vm, part);
  if (part && out && array_copy_on(vm, out, part)) made = out;
  array_drop(vm, part);
  array_drop(vm, all);
  return made;
}

/* compress, or (x NULL) nonzero. */
static qn_array *compress_there(qn_vm *vm, qn_array *x, qn_array *mask, qn_array *out, bool *refused) {
  const device_kernels *d = device_kernels_of(mask->device);
  *refused = !d->compress;
  if (*refused) return NULL;
  qn_array *all = x ? array_contiguous(vm, x) : NULL, *dense = !x || all ? array_contiguous(vm, mask) : NULL,
           *made = out;
  device_answer answer = dense ? d->compress(vm, all, dense, out, &made) : DEVICE_FAILS;
  *refused = answer == DEVICE_REFUSES;
  array_drop(vm, dense);
  array_drop(vm, all);
  return answer == DEVICE_DONE ? made : NULL;
}

qn_array *library_there(qn_vm *vm, op_id op, qn_array *const *in, const op_attr *attr, qn_array *out, bool *refused) {
  switch (op) {
  case OP_argsort:
    if (attr->n) return first_there(vm, in, attr, out, refused);
    return stored(vm, op, in, attr, out, refused);
  case OP_sort:
  case OP_recurrence: return stored(vm, op, in, attr, out, refused);
  case OP_compress: return compress_there(vm, in[0], in[1], out, refused);
  case OP_nonzero: return compress_there(vm, NULL, in[0], out, refused);
  default: *refused = true; return NULL;
  }
}
