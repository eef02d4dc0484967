/* The linear recurrence s[i] = a[i] s[i - 1] + b[i] along an axis (library.h), which gradients of running products are made of.
 *
 * s[0] is b[0]. A product with a zero is zero, whatever the other factor is, as in gradients. ATTR_REVERSE goes from the end; with
 * ATTR_EXCLUSIVE the coefficient is that of the element before, a[i - 1]. f16 and bf16 are computed in f32, and what is stored is rounded.
 */
#include <string.h>

#include "jit/cpu/library.h"

/* The array as [outer][n][inner], with chains along n. */
typedef struct nest {
  int64_t outer, n, inner;
  bool reverse, exclusive;
} nest;

#define STRONG(a, s) ((a) == 0 || (s) == 0 ? 0 : (a) * (s))

/* All `inner` chains go on by one element together; the elements before are read from the result. */
#define ROWS_OF(T)                                                                                                     \
  static bool rows_##T(qn_vm *vm, const nest *f, T *s, const T *a, const T *b) {                                       \
    int64_t row = f->inner, step = f->reverse ? -row : row, size = f->n * row;                                         \
    for (int64_t o = 0; o < f->outer; o++, s += size, a += size, b += size) {                                          \
      int64_t at = f->reverse ? size - row : 0;                                                                        \
      memcpy(s + at, b + at, (size_t)row * sizeof *s);                                                                 \
      for (int64_t i = 1; i < f->n; i++) {                                                                             \
        const T *before = s + at, *by = f->exclusive ? a + at : a + at + step;                                         \
        at += step;                                                                                                    \
        for (int64_t k = 0; k < row; k++) s[at + k] = STRONG(by[k], before[k]) + b[at + k];                            \
        if (vm_poll_item(vm, i)) return false;                                                                         \
      }                                                                                                                \
    }                                                                                                                  \
    return true;                                                                                                       \
  }
ROWS_OF(float)
ROWS_OF(double)

/* One chain after the other. */
static bool chains_half(qn_vm *vm, qn_dtype d, const nest *f, uint16_t *s, const uint16_t *a, const uint16_t *b) {
  int64_t step = f->reverse ? -f->inner : f->inner, size = f->n * f->inner;
  for (int64_t o = 0; o < f->outer; o++, s += size, a += size, b += size)
    for (int64_t k = 0; k < f->inner; k++) {
      int64_t at = k + (f->reverse ? size - f->inner : 0);
      float last = 0;
      for (int64_t i = 0; i < f->n; i++, at += step) {
        float by = i ? (float)dtype_load(d, a + (f->exclusive ? at - step : at)).u.f : 0;
        last = STRONG(by, last) + (float)dtype_load(d, b + at).u.f;
        dtype_store(d, s + at, value_float(last));
      }
      if (vm_poll_item(vm, k)) return false;
    }
  return true;
}

static bool fill(qn_vm *vm, qn_dtype d, const nest *f, void *s, const void *a, const void *b) {
  if (dtype_is_narrow(d)) return chains_half(vm, d, f, s, a, b);
  if (dtype_is_float(d)) return dtype_size(d) == 8 ? rows_double(vm, f, s, a, b) : rows_float(vm, f, s, a, b);
  raise_error(vm, E_internal, SPAN_NONE, "a recurrence of %s", dtype_rows[d].name);
  return false;
}

qn_array *recurrence_apply(qn_vm *vm, qn_array *by, qn_array *plus, const op_attr *attr) {
  qn_array *a = array_contiguous(vm, by), *b = a ? array_contiguous(vm, plus) : NULL;
  qn_array *out = b ? array_new(vm, (qn_dtype)b->dtype, b->rank, b->shape) : NULL;
  if (out && out->size) {
    int axis = __builtin_ctz(attr->axes);
    nest f = {1, b->shape[axis], 1, attr->flags & ATTR_REVERSE, attr->flags & ATTR_EXCLUSIVE};
    for (int i = 0; i < axis; i++) f.outer *= b->shape[i];
    for (int i = axis + 1; i < b->rank; i++) f.inner *= b->shape[i];
    if (!fill(vm, (qn_dtype)b->dtype, &f, array_data(out), array_data(a), array_data(b))) {
      value_release(vm, value_obj(TAG_ARRAY, out));
      out = NULL;
    }
  }
  if (b) value_release(vm, value_obj(TAG_ARRAY, b));
  if (a) value_release(vm, value_obj(TAG_ARRAY, a));
  return out;
}
