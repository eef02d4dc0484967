/* sort, argsort, compress, nonzero (library.h).
 *
 * Sorting. A line along the axis becomes pairs of an order-preserving 64-bit key and the element's index: integers are biased,
 * floats have their bits folded so that they compare as unsigned numbers, -0 counts as 0, every NaN gets the largest key. A
 * descending sort complements the keys of numbers, so NaN stays last and equal elements keep their order. The pairs are sorted
 * by a bottom-up merge over runs that insertion sort made: stable, no recursion, 2 n extra pairs. A line of few elements of a common
 * dtype is inserted into the result as it is, in the same order.
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
  } else if (d == QN_f64) {
    for (int64_t i = 0; i < n; i++, in += step) {
      double x;
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

/* Lines of an array, one after the other along another axis. Steps in bytes; out_: of the result. */
typedef struct sorting {
  qn_vm *vm;
  qn_dtype dtype;
  bool descending, indices;
  int64_t size; /* of an element */
  int64_t n, step, out_step;
  int64_t lines, next, out_next;
  pair *pairs; /* room for 2 n, if n > RUN */
} sorting;

/* Writes the elements of a line in their order, or where they were. */
static void store_sorted(const sorting *s, const pair *sorted, const char *in, char *out) {
  int64_t n = s->n, step = s->step, out_step = s->out_step;
  if (s->indices)
    for (int64_t i = 0; i < n; i++, out += out_step) memcpy(out, &sorted[i].index, 8);
  else if (s->size == 4)
    for (int64_t i = 0; i < n; i++, out += out_step) memcpy(out, in + sorted[i].index * step, 4);
  else if (s->size == 8)
    for (int64_t i = 0; i < n; i++, out += out_step) memcpy(out, in + sorted[i].index * step, 8);
  else
    for (int64_t i = 0; i < n; i++, out += out_step) memcpy(out, in + sorted[i].index * step, (size_t)s->size);
}

/* Lines of at most RUN elements of a type: each is inserted behind those that are to stay before it, all if it is nan. False: it was
 * interrupted. */
#define FEW_OF(T)                                                                                                      \
  static inline __attribute__((always_inline)) void insert_##T(const sorting *s, const char *in, char *out, bool down, \
                                                               bool indices) {                                         \
    int64_t step = s->step, out_step = s->out_step, each = indices ? (int64_t)sizeof(int64_t) : (int64_t)sizeof(T);    \
    const char *p = in;                                                                                                \
    char *end = out;                                                                                                   \
    for (int64_t i = 0, n = s->n; i < n; i++, p += step, end += out_step) {                                            \
      T x, before;                                                                                                     \
      char *to = end;                                                                                                  \
      memcpy(&x, p, sizeof x);                                                                                         \
      for (; to != out && x == x; to -= out_step) {                                                                    \
        int64_t at;                                                                                                    \
        memcpy(&at, to - out_step, indices ? sizeof at : 0);                                                           \
        memcpy(&before, indices ? in + at *step : to - out_step, sizeof before);                                       \
        if (down ? before >= x : before <= x) break;                                                                   \
        memcpy(to, to - out_step, (size_t)each);                                                                       \
      }                                                                                                                \
      memcpy(to, indices ? (const void *)&i : &x, (size_t)each);                                                       \
    }                                                                                                                  \
  }                                                                                                                    \
  static __attribute__((noinline)) bool sort_few_##T(const sorting *s, const char *in, char *out) {                    \
    for (int64_t line = 0; line < s->lines; line++, in += s->next, out += s->out_next) {                               \
      if (s->indices)                                                                                                  \
        s->descending ? insert_##T(s, in, out, true, true) : insert_##T(s, in, out, false, true);                      \
      else                                                                                                             \
        s->descending ? insert_##T(s, in, out, true, false) : insert_##T(s, in, out, false, false);                    \
      if (vm_poll_item(s->vm, line)) return false;                                                                     \
    }                                                                                                                  \
    return true;                                                                                                       \
  }
FEW_OF(float)
FEW_OF(double)
FEW_OF(int32_t)
FEW_OF(int64_t)

/* Any lines. False: it was interrupted. */
static __attribute__((noinline)) bool sort_pairwise(const sorting *s, const char *in, char *out) {
  pair few[RUN];
  for (int64_t line = 0; line < s->lines; line++, in += s->next, out += s->out_next) {
    pair *sorted = s->n <= RUN ? few : s->pairs;
    keys_of(s->dtype, in, s->step, s->n, s->descending, sorted);
    if (s->n <= RUN)
      insert_pairs(sorted, 0, s->n);
    else
      sorted = sort_pairs(s->vm, sorted, sorted + s->n, s->n);
    if (!sorted) return false;
    store_sorted(s, sorted, in, out);
    if (s->n <= RUN ? vm_poll_item(s->vm, line) : vm_poll(s->vm)) return false;
  }
  return true;
}

static bool sort_lines(const sorting *s, const char *in, char *out) {
  if (s->n <= RUN) switch ((int)s->dtype) {
    case QN_f32: return sort_few_float(s, in, out);
    case QN_f64: return sort_few_double(s, in, out);
    case QN_i32: return sort_few_int32_t(s, in, out);
    case QN_i64: return sort_few_int64_t(s, in, out);
    }
  return sort_pairwise(s, in, out);
}

/* The lines along `axis` of an array of three or more axes: those of the axis `inner`, at each place of the others. */
static __attribute__((noinline)) bool sort_rows(const sorting *s, const qn_array *x, const qn_array *out, int axis,
                                                int inner) {
  int64_t at[ARRAY_MAX_RANK] = {0}, out_size = s->indices ? (int64_t)sizeof(int64_t) : s->size;
  const char *in = array_data(x);
  char *to = array_data(out);
  for (;;) {
    if (!sort_lines(s, in, to)) return false;
    int k = x->rank - 1;
    for (; k >= 0; k--) {
      if (k == axis || k == inner) continue;
      int64_t step = x->strides[k] * s->size, out_step = out->strides[k] * out_size;
      in += step, to += out_step;
      if (++at[k] < x->shape[k]) break;
      in -= at[k] * step, to -= at[k] * out_step;
      at[k] = 0;
    }
    if (k < 0) return true;
  }
}

static __attribute__((noinline)) bool sort_with_room(sorting *s, const qn_array *x, const qn_array *out, int axis,
                                                     int inner) {
  size_t bytes = (size_t)s->n * 2 * sizeof(pair);
  pair few[2 * FEW], *room = s->n > FEW ? mem_alloc(s->vm, bytes) : few;
  if (!room) return false;
  s->pairs = room;
  bool done = sort_rows(s, x, out, axis, inner);
  if (room != few) mem_free(s->vm, room, bytes);
  return done;
}

static inline __attribute__((always_inline)) qn_array *sort_along(qn_vm *vm, const qn_array *x, int axis,
                                                                  bool descending, bool indices) {
  int rank = x->rank;
  qn_array *out = array_new(vm, indices ? QN_i64 : (qn_dtype)x->dtype, rank, x->shape);
  if (!out || x->size == 0) return out;
  int64_t size = (int64_t)dtype_size((qn_dtype)x->dtype), out_size = indices ? (int64_t)sizeof(int64_t) : size;
  sorting s;
  s.vm = vm, s.dtype = (qn_dtype)x->dtype, s.descending = descending, s.indices = indices, s.size = size;
  s.n = 1, s.step = s.out_step = 0;
  if (rank > 0) s.n = x->shape[axis], s.step = x->strides[axis] * size, s.out_step = out->strides[axis] * out_size;
  int inner = rank - 1 == axis ? rank - 2 : rank - 1;
  s.lines = 1;
  if (rank > 1)
    s.lines = x->shape[inner], s.next = x->strides[inner] * size, s.out_next = out->strides[inner] * out_size;
  else
    s.next = s.out_next = 0;
  bool done = s.n > RUN || rank > 2 ? sort_with_room(&s, x, out, axis, inner)
                                    : sort_lines(&s, x->storage->data + x->offset * size, out->storage->data);
  if (done) return out;
  value_release(vm, value_obj(TAG_ARRAY, out));
  return NULL;
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
  if (!x->storage || x->device || x->dtype != QN_bool || !x->contiguous) return value_unset();
  qn_array *out = nonzero(vm, x);
  return out ? value_obj(TAG_ARRAY, out) : value_error();
}

qn_value eager_sort(qn_vm *vm, op_id op, const qn_value in[3]) {
  if (in[0].head != TAG_ARRAY || in[1].head != TAG_INT || in[2].head != TAG_BOOL) return value_unset();
  const qn_array *x = value_array(in[0]);
  int64_t rank = x->rank, axis = in[1].u.i;
  if (axis < 0) axis += rank;
  if (!x->storage || x->device || (uint64_t)axis >= (uint64_t)rank) return value_unset();
  qn_array *out = sort_along(vm, x, (int)axis, in[2].u.i != 0, op == OP_argsort);
  return out ? value_obj(TAG_ARRAY, out) : value_error();
}

qn_value eager_fast_sort(qn_vm *vm, op_id op, qn_value in, const op_attr *attr) {
  if ((op != OP_sort && op != OP_argsort) || !attr->axes) return value_unset();
  qn_value args[3] = {in, value_int(__builtin_ctz(attr->axes)), value_bool(attr->flags & ATTR_DESCENDING)};
  return eager_sort(vm, op, args);
}
