/* sort, argsort, compress, nonzero (library.h).
 *
 * Sorting. A line along the axis becomes pairs of an order-preserving 64-bit key and the element's index: integers are biased,
 * floats have their bits folded so that they compare as unsigned numbers, -0 counts as 0, every NaN gets the largest key. A
 * descending sort complements the keys of numbers, so NaN stays last and equal elements keep their order. The pairs are sorted
 * by a bottom-up merge over runs that insertion sort made: stable, no recursion, 2 n extra pairs.
 *
 * compress counts first, so the result is allocated once.
 */
#include "jit/cpu/library.h"

#include <string.h>

#include "jit/cpu/eager.h"

typedef struct pair {
  uint64_t key;
  int64_t index;
} pair;

static uint64_t fold64(uint64_t bits) { return bits >> 63 ? ~bits : bits | (uint64_t)1 << 63; }

static uint64_t float_key(double x, bool descending) {
  if (x != x) return UINT64_MAX;
  if (x == 0) x = 0;
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  uint64_t key = fold64(bits);
  return descending ? ~key : key;
}

/* The key of element i of a line; widening to f64 or i64 keeps the order. */
static uint64_t key_of(qn_dtype d, const char *p, bool descending) {
  qn_value v = dtype_load(d, p);
  if (value_is(v, TAG_FLOAT)) return float_key(v.u.f, descending);
  uint64_t key = (uint64_t)v.u.i ^ (uint64_t)1 << 63;
  return descending ? ~key : key;
}

/* Pairs of a line whose elements are `step` bytes apart. */
static void keys_of(qn_dtype d, const char *in, int64_t step, int64_t n, bool descending, pair *to) {
  if (d == QN_f32) {
    for (int64_t i = 0; i < n; i++, in += step) {
      float x;
      memcpy(&x, in, sizeof x);
      to[i] = (pair){float_key(x, descending), i};
    }
  } else if (d == QN_i64) {
    for (int64_t i = 0; i < n; i++, in += step) {
      uint64_t x;
      memcpy(&x, in, sizeof x);
      x ^= (uint64_t)1 << 63;
      to[i] = (pair){descending ? ~x : x, i};
    }
  } else {
    for (int64_t i = 0; i < n; i++, in += step) to[i] = (pair){key_of(d, in, descending), i};
  }
}

enum { RUN = 16, PIECE = 1 << 20, FEW = 64 };

/* Sorts few pairs. */
static inline void insert_pairs(pair *a, int64_t from, int64_t to) {
  for (int64_t i = from + 1; i < to; i++) {
    pair x = a[i];
    int64_t k = i;
    for (; k > from && a[k - 1].key > x.key; k--) a[k] = a[k - 1];
    a[k] = x;
  }
}

/* Sorts n pairs by key, stable; `spare` has room for n. Returns where the result is, or NULL if it was interrupted. */
static pair *sort_pairs(qn_vm *vm, pair *a, pair *spare, int64_t n) {
  for (int64_t from = 0; from < n; from += RUN) {
    if (vm_poll_item(vm, from / RUN)) return NULL;
    int64_t to = from + RUN < n ? from + RUN : n;
    insert_pairs(a, from, to);
  }
  for (int64_t width = RUN; width < n; width *= 2) {
    for (int64_t from = 0; from < n; from += 2 * width) {
      int64_t mid = from + width < n ? from + width : n, to = from + 2 * width < n ? from + 2 * width : n;
      int64_t i = from, j = mid;
      for (int64_t k = from; k < to;) { /* in pieces: one merge may be of many millions */
        int64_t stop = to - k < PIECE ? to : k + PIECE;
        for (; k < stop; k++) spare[k] = i < mid && (j >= to || a[i].key <= a[j].key) ? a[i++] : a[j++];
        if (stop - from >= PIECE && vm_poll(vm)) return NULL;
      }
    }
    pair *t = a;
    a = spare;
    spare = t;
  }
  return a;
}

/* The elements of a line in the order of its pairs. Strides in elements. */
static void store_sorted(char *out, int64_t out_stride, const char *in, int64_t stride, size_t size, const pair *sorted,
                         int64_t n) {
  int64_t step = stride * (int64_t)size, out_step = out_stride * (int64_t)size;
  if (size == 4)
    for (int64_t i = 0; i < n; i++, out += out_step) memcpy(out, in + sorted[i].index * step, 4);
  else if (size == 8)
    for (int64_t i = 0; i < n; i++, out += out_step) memcpy(out, in + sorted[i].index * step, 8);
  else
    for (int64_t i = 0; i < n; i++, out += out_step) memcpy(out, in + sorted[i].index * step, size);
}

static qn_array *sort_axis(qn_vm *vm, qn_array *x, const op_attr *attr, bool indices) {
  int axis = attr->axes ? __builtin_ctz(attr->axes) : 0;
  bool descending = (attr->flags & ATTR_DESCENDING) != 0;
  qn_array *out = array_new(vm, indices ? QN_i64 : (qn_dtype)x->dtype, x->rank, x->shape);
  if (!out || x->size == 0) return out;
  int64_t n = x->rank ? x->shape[axis] : 1, stride = x->rank ? x->strides[axis] : 0,
          out_stride = x->rank ? out->strides[axis] : 0;
  size_t bytes = (size_t)n * 2 * sizeof(pair);
  pair few[2 * FEW], *pairs = n <= FEW ? few : mem_alloc(vm, bytes);
  if (!pairs) {
    value_release(vm, value_obj(TAG_ARRAY, out));
    return NULL;
  }
  size_t size = dtype_size((qn_dtype)x->dtype);
  int64_t at[ARRAY_MAX_RANK] = {0}, lines = x->size / n;
  for (int64_t line = 0; line < lines; line++) {
    int64_t from = 0, to = 0;
    for (int k = 0; k < x->rank; k++) {
      from += at[k] * x->strides[k];
      to += at[k] * out->strides[k];
    }
    const char *in = array_data(x) + from * (int64_t)size;
    keys_of((qn_dtype)x->dtype, in, stride * (int64_t)size, n, descending, pairs);
    const pair *sorted = sort_pairs(vm, pairs, pairs + n, n);
    if (sorted && indices) {
      int64_t *at_out = (int64_t *)(void *)array_data(out) + to;
      for (int64_t i = 0; i < n; i++) at_out[i * out_stride] = sorted[i].index;
    } else if (sorted) {
      store_sorted(array_data(out) + to * (int64_t)size, out_stride, in, stride, size, sorted, n);
    }
    for (int k = x->rank - 1; k >= 0; k--) { /* the next line: all axes but the sorted one */
      if (k == axis) continue;
      if (++at[k] < x->shape[k]) break;
      at[k] = 0;
    }
    if (!sorted || vm_poll(vm)) {
      if (pairs != few) mem_free(vm, pairs, bytes);
      value_release(vm, value_obj(TAG_ARRAY, out));
      return NULL;
    }
  }
  if (pairs != few) mem_free(vm, pairs, bytes);
  return out;
}

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
  qn_array *out = array_new(vm, QN_i64, 2, shape);
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

qn_array *library_apply(qn_vm *vm, op_id op, qn_array *const *in, const op_attr *attr) {
  if (op == OP_sort || op == OP_argsort) return sort_axis(vm, in[0], attr, op == OP_argsort);
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
  if (!x->storage || x->device || x->dtype != QN_bool || !x->contiguous) return value_unset();
  qn_array *out = nonzero(vm, x);
  return out ? value_obj(TAG_ARRAY, out) : value_error();
}

/* One line of few elements. */
static qn_array *sort_few(qn_vm *vm, const qn_array *x, bool descending, bool indices) {
  int64_t n = x->shape[0];
  size_t size = dtype_size((qn_dtype)x->dtype);
  const char *in = array_data(x);
  pair pairs[RUN];
  qn_array *out = array_new(vm, indices ? QN_i64 : (qn_dtype)x->dtype, 1, x->shape);
  if (!out) return NULL;
  keys_of((qn_dtype)x->dtype, in, x->strides[0] * (int64_t)size, n, descending, pairs);
  insert_pairs(pairs, 0, n);
  if (indices)
    for (int64_t i = 0; i < n; i++) ((int64_t *)(void *)out->storage->data)[i] = pairs[i].index;
  else
    store_sorted(out->storage->data, 1, in, x->strides[0], size, pairs, n);
  return out;
}

qn_value eager_fast_sort(qn_vm *vm, op_id op, qn_value in, const op_attr *attr) {
  if ((op != OP_sort && op != OP_argsort) || !value_is(in, TAG_ARRAY)) return value_unset();
  qn_array *x = value_array(in);
  if (!x->storage || x->device || !x->rank || !attr->axes || attr->axes >> x->rank) return value_unset();
  bool few = x->rank == 1 && x->size <= RUN;
  qn_array *out = few ? sort_few(vm, x, (attr->flags & ATTR_DESCENDING) != 0, op == OP_argsort)
                      : sort_axis(vm, x, attr, op == OP_argsort);
  return out ? value_obj(TAG_ARRAY, out) : value_error();
}
