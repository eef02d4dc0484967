/* compress, nonzero, and the door to sorting (library.h).
 *
 * compress counts first, so the result is allocated once.
 */
#include "jit/cpu/library.h"

#include <string.h>

#include "jit/run/eager.h"
#include "jit/cpu/sort.h"

enum { PIECE = 1 << 20 }; /* elements between two looks at interrupts */

static int64_t count_true(const qn_array *mask) {
  const uint8_t *m = (const uint8_t *)array_data(mask);
  int64_t n = 0;
  for (int64_t i = 0; i < mask->size; i++) n += m[i] != 0;
  return n;
}

static qn_array *compress(qn_vm *vm, qn_array *x, qn_array *mask) {
  int rank = x->rank - mask->rank + 1;
  int64_t shape[ARRAY_MAX_RANK] = {count_true(mask)}, cell = 1;
  for (int k = 1; k < rank; k++) cell *= shape[k] = x->shape[mask->rank + k - 1];
  qn_array *out = array_new(vm, (qn_dtype)x->dtype, rank, shape);
  if (!out) return NULL;
  size_t bytes = (size_t)cell * dtype_size((qn_dtype)x->dtype);
  const uint8_t *m = (const uint8_t *)array_data(mask);
  char *to = array_data(out);
  for (int64_t i = 0; i < mask->size && bytes; i++) {
    if ((i & (PIECE - 1)) == PIECE - 1 && vm_poll(vm)) {
      value_release(vm, value_obj(TAG_ARRAY, out));
      return NULL;
    }
    if (!m[i]) continue;
    memcpy(to, array_data(x) + (size_t)i * bytes, bytes);
    to += bytes;
  }
  return out;
}

static qn_array *nonzero(qn_vm *vm, const qn_array *x) {
  int64_t shape[2] = {count_true(x), x->rank};
  qn_array *out = array_new(vm, DTYPE_INDEX, 2, shape);
  if (!out) return NULL;
  const uint8_t *m = (const uint8_t *)array_data(x);
  int64_t *to = (int64_t *)(void *)array_data(out), at[ARRAY_MAX_RANK] = {0};
  if (x->rank == 1 && x->size < PIECE) {
    for (int64_t i = 0; i < x->size; i++)
      if (m[i]) *to++ = i;
    return out;
  }
  for (int64_t i = 0; i < x->size; i++) {
    if ((i & (PIECE - 1)) == PIECE - 1 && vm_poll(vm)) {
      value_release(vm, value_obj(TAG_ARRAY, out));
      return NULL;
    }
    if (m[i])
      for (int k = 0; k < x->rank; k++) *to++ = at[k];
    for (int k = x->rank - 1; k >= 0; k--) {
      if (++at[k] < x->shape[k]) break;
      at[k] = 0;
    }
  }
  return out;
}

qn_array *cpu_library(qn_vm *vm, op_id op, qn_array *const *in, const op_attr *attr) {
  if (op == OP_recurrence) return recurrence_apply(vm, in[0], in[1], attr);
  if (op == OP_argsort && attr->n)
    return sort_first(vm, in[0], __builtin_ctz(attr->axes), (attr->flags & ATTR_DESCENDING) != 0, attr->d[0]);
  if (op == OP_sort || op == OP_argsort)
    return sort_along(vm, in[0], attr->axes ? __builtin_ctz(attr->axes) : 0, (attr->flags & ATTR_DESCENDING) != 0,
                      op == OP_argsort);
  qn_array *x = array_contiguous(vm, in[0]), *mask = NULL, *out = NULL;
  if (!x) return NULL;
  if (op == OP_nonzero) {
    out = nonzero(vm, x);
  } else if ((mask = array_contiguous(vm, in[1]))) {
    out = compress(vm, x, mask);
    value_release(vm, value_obj(TAG_ARRAY, mask));
  }
  value_release(vm, value_obj(TAG_ARRAY, x));
  return out;
}

qn_value eager_fast_nonzero(qn_vm *vm, qn_value in) {
  if (!value_is(in, TAG_ARRAY)) return value_unset();
  const qn_array *x = value_array(in);
  if (!x->storage || x->device || !dtype_is_bool(x->dtype) || !x->contiguous) return value_unset();
  qn_array *out = nonzero(vm, x);
  return out ? value_obj(TAG_ARRAY, out) : value_error();
}

qn_value eager_sort(qn_vm *vm, op_id op, const qn_array *x, int axis, bool descending) {
  if (!x->storage || x->device || axis >= x->rank) return value_unset();
  int64_t begin = trace_events_begin(vm->engine);
  qn_array *out = sort_along(vm, x, axis, descending, op == OP_argsort);
  return eager_traced(vm, op, begin, out ? value_obj(TAG_ARRAY, out) : value_error());
}

qn_value eager_fast_sort(qn_vm *vm, op_id op, qn_value in, const op_attr *attr) {
  if ((op != OP_sort && op != OP_argsort) || in.head != TAG_ARRAY || !attr->axes || attr->n) return value_unset();
  return eager_sort(vm, op, value_array(in), __builtin_ctz(attr->axes), (attr->flags & ATTR_DESCENDING) != 0);
}
