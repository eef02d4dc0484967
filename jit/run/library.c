/* Ops that are no kernels, where their operands are: by the device, to an array beside them (library.h). */
#include "jit/run/library.h"

#include <string.h>

static qn_array *sort_there(qn_vm *vm, op_id op, const qn_array *x, const op_attr *attr, qn_array *out, bool *refused) {
  bool indices = op == OP_argsort;
  qn_array *made =
      out ? NULL : array_new_on(vm, x->device, indices ? DTYPE_INDEX : (qn_dtype)x->dtype, x->rank, x->shape);
  *refused = false;
  if (!out && !made) return NULL;
  int axis = attr->axes ? __builtin_ctz(attr->axes) : 0;
  device_answer answer =
      device_kernels_of(x->device)->sort(vm, out ? out : made, x, axis, (attr->flags & ATTR_DESCENDING) != 0, indices);
  if (answer == DEVICE_DONE) return out ? out : made;
  *refused = answer == DEVICE_REFUSES;
  if (made) value_release(vm, value_obj(TAG_ARRAY, made));
  return NULL;
}

/* An argsort of which the first few are wanted: all of it, and a copy of these. */
static qn_array *first_there(qn_vm *vm, const qn_array *x, const op_attr *attr, qn_array *out, bool *refused) {
  int64_t shape[ARRAY_MAX_RANK];
  memcpy(shape, x->shape, x->rank * sizeof *shape);
  shape[__builtin_ctz(attr->axes)] = attr->d[0];
  qn_array *all = sort_there(vm, OP_argsort, x, attr, NULL, refused), *made = NULL;
  qn_array *part = all ? array_view(vm, all, DTYPE_INDEX, all->rank, shape, all->strides, 0) : NULL;
  if (part && !out) made = array_duplicate(vm, part);
  if (part && out && array_copy_on(vm, out, part)) made = out;
  if (part) value_release(vm, value_obj(TAG_ARRAY, part));
  if (all) value_release(vm, value_obj(TAG_ARRAY, all));
  return made;
}

/* compress, or (x NULL) nonzero. */
static qn_array *compress_there(qn_vm *vm, qn_array *x, qn_array *mask, qn_array *out, bool *refused) {
  qn_array *all = x ? array_contiguous(vm, x) : NULL, *dense = !x || all ? array_contiguous(vm, mask) : NULL,
           *made = out;
  *refused = false;
  if (dense) {
    device_answer answer = device_kernels_of(mask->device)->compress(vm, all, dense, out, &made);
    *refused = answer == DEVICE_REFUSES;
    if (answer != DEVICE_DONE) made = NULL;
    value_release(vm, value_obj(TAG_ARRAY, dense));
  }
  if (all) value_release(vm, value_obj(TAG_ARRAY, all));
  return dense ? made : NULL;
}

static qn_array *recurrence_there(qn_vm *vm, qn_array *by, qn_array *plus, const op_attr *attr, qn_array *out,
                                  bool *refused) {
  qn_array *a = array_contiguous(vm, by), *b = a ? array_contiguous(vm, plus) : NULL;
  qn_array *made = b && !out ? array_new_on(vm, b->device, (qn_dtype)b->dtype, b->rank, b->shape) : NULL;
  device_answer answer = DEVICE_FAILS;
  if (b && (out || made))
    answer = device_kernels_of(by->device)
                 ->recurrence(vm, out ? out : made, a, b, __builtin_ctz(attr->axes), (attr->flags & ATTR_REVERSE) != 0,
                              (attr->flags & ATTR_EXCLUSIVE) != 0);
  *refused = answer == DEVICE_REFUSES;
  if (b) value_release(vm, value_obj(TAG_ARRAY, b));
  if (a) value_release(vm, value_obj(TAG_ARRAY, a));
  if (answer == DEVICE_DONE) return out ? out : made;
  if (made) value_release(vm, value_obj(TAG_ARRAY, made));
  return NULL;
}

qn_array *library_there(qn_vm *vm, op_id op, qn_array *const *in, const op_attr *attr, qn_array *out, bool *refused) {
  switch (op) {
  case OP_sort:
  case OP_argsort:
    return attr->n ? first_there(vm, in[0], attr, out, refused) : sort_there(vm, op, in[0], attr, out, refused);
  case OP_compress: return compress_there(vm, in[0], in[1], out, refused);
  case OP_nonzero: return compress_there(vm, NULL, in[0], out, refused);
  case OP_recurrence: return recurrence_there(vm, in[0], in[1], attr, out, refused);
  default: *refused = true; return NULL;
  }
}
