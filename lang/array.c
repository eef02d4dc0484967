/* Arrays: headers, storage, views, copies.
 *
 * Eager ops on small arrays spend their time here, so a small array is two blocks from the VM's free lists: the header,
 * and one cell that holds the storage's header followed by the data. When both end together they wait together, for the next
 * small array. Larger data comes from the buffer pool.
 */
#include "lang/array.h"

#include <string.h>

#include "lang/internal.h"

enum {
  INLINE_HEAD = 64,
  INLINE_MAX = MEM_CELL_MAX - INLINE_HEAD,
  HEADER_CLASS = (sizeof(qn_array) + SMALL_STEP - 1) / SMALL_STEP,
  FEW_AXES = 7 /* of at most INLINE_MAX each, whose product has 63 bits */
};
_Static_assert(INLINE_MAX <= 1 << 9, "sizes of FEW_AXES are multiplied before they are looked at");
_Static_assert(sizeof(qn_array) <= SMALL_MAX, "headers come from the free lists");
_Static_assert(sizeof(qn_storage) <= INLINE_HEAD, "the data behind a storage header is aligned to 64");

/* ---- shapes -------------------------------------------------------------------------------------------------- */

int64_t shape_strides(int rank, const int64_t *shape, int64_t *strides) {
  int64_t size = 1;
  bool empty = false;
  for (int i = rank - 1; i >= 0; i--) {
    if (shape[i] < 0) return -1;
    strides[i] = size;
    if (shape[i] == 0)
      empty = true; /* the strides are those of an axis with one element */
    else if (__builtin_mul_overflow(size, shape[i], &size) || size > ARRAY_MAX_ELEMENTS)
      return -1;
  }
  return empty ? 0 : size;
}

bool shape_equal(const qn_array *a, const qn_array *b) {
  if (a->rank != b->rank) return false;
  for (int i = 0; i < a->rank; i++)
    if (a->shape[i] != b->shape[i]) return false;
  return true;
}

bool shape_reshape_strides(const qn_array *a, int rank, const int64_t *shape, int64_t *strides) {
  int64_t size = shape_strides(rank, shape, strides);
  if (size != a->size) return false;
  if (a->contiguous || size <= 1) return true;
  /* Axes of size 1 are ignored. The others are matched from the left, in groups of old and new axes that have equal products of sizes. */
  int64_t from[ARRAY_MAX_RANK], step[ARRAY_MAX_RANK];
  int n = 0;
  for (int i = 0; i < a->rank; i++)
    if (a->shape[i] != 1) {
      from[n] = a->shape[i];
      step[n++] = a->strides[i];
    }
  int i = 0, j = 0;
  while (i < n && j < rank) {
    int i0 = i, j0 = j;
    int64_t old = from[i++], new = shape[j++];
    while (old != new)
      if (old < new)
        old *= from[i++];
      else
        new *= shape[j++];
    /* The old axes of a group must follow each other without gaps. */
    for (int k = i0; k + 1 < i; k++)
      if (step[k] != step[k + 1] * from[k + 1]) return false;
    int64_t stride = step[i - 1];
    for (int k = j - 1; k >= j0; k--) {
      strides[k] = stride;
      stride *= shape[k];
    }
  }
  for (; j < rank; j++) strides[j] = 1; /* axes of size 1 */
  return true;
}

static void *raise_shape(qn_vm *vm, qn_dtype dtype, int rank, const int64_t *shape) {
  if (rank > ARRAY_MAX_RANK || rank < 0)
    return raise_nothing(vm, E_rank, SPAN_NONE, "an array of rank %d: arrays have at most %d axes", rank,
                         ARRAY_MAX_RANK);
  bool negative = false;
  for (int i = 0; i < rank; i++) negative |= shape[i] < 0;
  text_buf t = {.vm = vm};
  text_shape(&t, dtype, rank, shape);
  text_adds(&t, negative ? ": a size is negative" : ": arrays have at most 2**48 elements");
  raise_text(vm, negative ? E_shape : E_too_large, SPAN_NONE, &t);
  return NULL;
}

/* ---- making -------------------------------------------------------------------------------------------------- */

/* Fills in a new header, except for size, shape, strides and storage. */
static inline void header_begin(qn_vm *vm, qn_array *a, qn_dtype dtype, int rank) {
  vm->arrays_made++;
  a->head = (obj_head){.refs = 1, .tag = TAG_ARRAY};
  a->dtype = (uint8_t)dtype;
  a->rank = (uint8_t)rank;
  a->device = 0;
  a->contiguous = true;
  a->node = 0;
  a->offset = 0;
}

static inline __attribute__((always_inline)) qn_array *new_header(qn_vm *vm, qn_dtype dtype, int rank,
                                                                  const int64_t *shape) {
  if (__builtin_expect((unsigned)rank > ARRAY_MAX_RANK, 0)) return raise_shape(vm, dtype, rank, shape);
  qn_array *a = list_take(lists_of(vm), &lists_of(vm)->small[HEADER_CLASS], HEADER_CLASS * SMALL_STEP);
  if (__builtin_expect(!a, 0) && !(a = mem_alloc(vm, sizeof *a))) return NULL;
  header_begin(vm, a, dtype, rank);
  a->storage = NULL;
  int64_t size = 1;
  for (int i = rank - 1; i >= 0; i--) {
    a->shape[i] = shape[i];
    a->strides[i] = size;
    if (shape[i] <= 0 || __builtin_mul_overflow(size, shape[i], &size) || size > ARRAY_MAX_ELEMENTS) {
      /* The array is empty or impossible, which the general routine tells apart. */
      size = shape_strides(rank, shape, a->strides);
      if (size < 0) {
        mem_free(vm, a, sizeof *a);
        return raise_shape(vm, dtype, rank, shape);
      }
      memcpy(a->shape, shape, (size_t)rank * sizeof *shape);
      break;
    }
  }
  a->size = size;
  return a;
}

qn_array *array_new_header(qn_vm *vm, qn_dtype dtype, int rank, const int64_t *shape) {
  return new_header(vm, dtype, rank, shape);
}

/* Storage and data for a few elements on the CPU, in one cell. NULL with an error raised. */
static inline qn_storage *small_storage(qn_vm *vm, size_t bytes) {
  size_t k = cell_class(INLINE_HEAD + bytes);
  qn_storage *s = list_take(lists_of(vm), &lists_of(vm)->cells[k], k * CELL_STEP);
  if (__builtin_expect(!s, 0) && !(s = mem_cell(vm, INLINE_HEAD + bytes))) return NULL;
  s->refs = 1;
  s->device = s->foreign = 0;
  s->bytes = bytes;
  s->data = (char *)s + INLINE_HEAD;
  s->deleter = NULL;
  s->ctx = NULL;
  return s;
}

/* Adds to the out-of-memory error which array was to be made, if there is memory for that. */
static void explain_memory(qn_vm *vm, const qn_array *a, size_t bytes) {
  if (vm->error != vm->memory_error) return;
  error_clear(vm);
  raise_error(vm, E_memory, SPAN_NONE, "out of memory: %s needs %zu bytes", phrase_shape(a).text, bytes);
}

bool array_allocate(qn_vm *vm, qn_array *a) {
  size_t bytes = (size_t)a->size * dtype_size((qn_dtype)a->dtype);
  qn_storage *s;
  if (a->device) {
    const device_memory *d = device_memory_of(vm, a->device);
    void *data;
    if (!d) return raise_false(vm, E_device, "this device is not there");
    if (!(s = mem_alloc(vm, sizeof *s))) return false;
    if (!(data = d->alloc(vm, a->device, bytes))) {
      mem_free(vm, s, sizeof *s);
      return false;
    }
    *s = (qn_storage){.refs = 1, .device = a->device, .bytes = bytes, .data = data};
  } else if (bytes <= INLINE_MAX) {
    if (!(s = small_storage(vm, bytes))) return false;
  } else {
    if (!(s = mem_alloc(vm, sizeof *s))) return false;
    void *data = mem_buffer(vm, bytes);
    if (!data) {
      mem_free(vm, s, sizeof *s);
      explain_memory(vm, a, bytes);
      return false;
    }
    *s = (qn_storage){.refs = 1, .bytes = bytes, .data = data};
  }
  a->storage = s;
  return true;
}

qn_storage *storage_retain(qn_storage *s) {
  s->refs++;
  return s;
}

static void storage_free(qn_vm *vm, qn_storage *s) {
  if (s->deleter)
    s->deleter(s->ctx);
  else if (s->device)
    device_memory_of(vm, s->device)->free(vm, s->device, s->data, s->bytes);
  else
    mem_buffer_free(vm, s->data, s->bytes);
  mem_free(vm, s, sizeof *s);
}

/* Does the data lie in one cell with the storage's header? A device's memory may lie behind a header by chance. */
static inline bool is_inline(const qn_storage *s) { return s->data == (const char *)s + INLINE_HEAD && !s->device; }

static inline void release_storage(qn_vm *vm, qn_storage *s) {
  if (!s || --s->refs) return;
  if (is_inline(s)) {
    size_t k = cell_class(INLINE_HEAD + s->bytes);
    if (MEM_DIRECT)
      mem_cell_free(vm, s, INLINE_HEAD + s->bytes);
    else
      list_give(lists_of(vm), &lists_of(vm)->cells[k], s, k * CELL_STEP);
  } else {
    storage_free(vm, s);
  }
}

/* ---- small arrays as a whole: a header and its cell ---- */

/* Takes a header with a cell for `bytes` of data from the free list; its storage has one owner. NULL, without an error, if there is none, or
 * if a test wants this allocation to fail. */
static inline qn_array *pair_take(qn_vm *vm, size_t bytes) {
  mem_lists *m = lists_of(vm);
  size_t k = (INLINE_HEAD + bytes + CELL_STEP - 1) / CELL_STEP;
  qn_array *a = (qn_array *)(void *)m->pairs[k];
  if (MEM_DIRECT || __builtin_expect(!a, 0) || __builtin_expect(m->fail_at != 0, 0)) return NULL;
  m->pairs[k] = m->pairs[k]->next;
  m->stats.allocations += 2;
  count_live(m, HEADER_CLASS * SMALL_STEP + k * CELL_STEP);
  a->storage->bytes = bytes;
  return a;
}

/* Fills in the header and storage of a pair, except for shape and strides. */
static inline void pair_begin(qn_vm *vm, qn_array *a, qn_dtype dtype, int rank, int64_t size) {
  header_begin(vm, a, dtype, rank);
  a->size = size;
}

static inline void pair_give(qn_vm *vm, qn_array *a) {
  mem_lists *m = lists_of(vm);
  size_t k = (INLINE_HEAD + a->storage->bytes + CELL_STEP - 1) / CELL_STEP;
  list_give(m, &m->pairs[k], a, HEADER_CLASS * SMALL_STEP + k * CELL_STEP);
}

static void pair_part(mem_lists *m, size_t k) {
  qn_array *a = (qn_array *)(void *)m->pairs[k];
  m->pairs[k] = m->pairs[k]->next;
  list_give(m, &m->cells[k], a->storage, 0);
  list_give(m, &m->small[HEADER_CLASS], a, 0);
}

void array_pairs_part(mem_lists *m) {
  for (size_t k = 0; k < CELL_CLASSES; k++)
    while (m->pairs[k]) pair_part(m, k);
}

bool array_pair_part(mem_lists *m, free_block **list) {
  for (size_t k = 0; k < CELL_CLASSES; k++) {
    if (!m->pairs[k] || (list != &m->cells[k] && list != &m->small[HEADER_CLASS])) continue;
    pair_part(m, k);
    return true;
  }
  return false;
}

static __attribute__((noinline)) void free_parts(qn_vm *vm, qn_array *a) {
  release_storage(vm, a->storage);
  if (MEM_DIRECT)
    mem_free(vm, a, sizeof *a);
  else
    list_give(lists_of(vm), &lists_of(vm)->small[HEADER_CLASS], a, HEADER_CLASS * SMALL_STEP);
}

void array_free(qn_vm *vm, qn_array *a) {
  const qn_storage *s = a->storage;
  if (!MEM_DIRECT && s && s->refs == 1 && is_inline(s) && !s->foreign)
    pair_give(vm, a);
  else
    free_parts(vm, a);
}

void array_drop(qn_vm *vm, qn_array *a) {
  if (a) value_release(vm, value_obj(TAG_ARRAY, a));
}

static __attribute__((noinline)) qn_array *new_array(qn_vm *vm, qn_dtype dtype, int rank, const int64_t *shape) {
  qn_array *a = new_header(vm, dtype, rank, shape);
  if (__builtin_expect(!a, 0)) return NULL;
  size_t bytes = (size_t)a->size * dtype_size(dtype);
  if (bytes <= INLINE_MAX ? (a->storage = small_storage(vm, bytes)) != NULL : array_allocate(vm, a)) return a;
  array_drop(vm, a);
  return NULL;
}

qn_array *array_new(qn_vm *vm, qn_dtype dtype, int rank, const int64_t *shape) {
  uint64_t size = 1;
  if (rank == 1) { /* the most common rank */
    size = (uint64_t)shape[0];
  } else {
    if (__builtin_expect((unsigned)rank > FEW_AXES, 0)) return new_array(vm, dtype, rank, shape);
    for (int i = 0; i < rank; i++) {
      if ((uint64_t)shape[i] - 1 >= INLINE_MAX) return new_array(vm, dtype, rank, shape);
      size *= (uint64_t)shape[i];
    }
  }
  if (size - 1 >= INLINE_MAX) return new_array(vm, dtype, rank, shape); /* the array is empty, large or impossible */
  size_t bytes = size * dtype_size(dtype);
  qn_array *a = bytes <= INLINE_MAX ? pair_take(vm, bytes) : NULL;
  if (__builtin_expect(!a, 0)) return new_array(vm, dtype, rank, shape);
  pair_begin(vm, a, dtype, rank, (int64_t)size);
  a->shape[0] = (int64_t)size;
  a->strides[0] = 1;
  if (rank == 1) return a;
  int64_t step = 1;
  for (int i = rank - 1; i >= 0; i--) {
    a->shape[i] = shape[i];
    a->strides[i] = step;
    step *= shape[i];
  }
  return a;
}

qn_array *array_new_like(qn_vm *vm, qn_dtype dtype, const qn_array *x) {
  size_t bytes = (size_t)x->size * dtype_size(dtype);
  qn_array *a = x->contiguous && bytes - 1 < INLINE_MAX ? pair_take(vm, bytes) : NULL;
  if (__builtin_expect(!a, 0)) return array_new(vm, dtype, x->rank, x->shape);
  pair_begin(vm, a, dtype, x->rank, x->size);
  for (int i = 0, rank = x->rank; i < rank; i++) {
    a->shape[i] = x->shape[i];
    a->strides[i] = x->strides[i];
  }
  return a;
}

/* array_view for views without elements, and for shapes that are impossible. */
static __attribute__((noinline)) qn_array *unusual_view(qn_vm *vm, const qn_array *base, qn_dtype dtype, int rank,
                                                        const int64_t *shape, int64_t offset) {
  qn_array *a = new_header(vm, dtype, rank, shape);
  if (!a) return NULL;
  a->offset = offset;
  a->device = base->device;
  a->storage = storage_retain(base->storage);
  return a;
}

qn_array *array_view(qn_vm *vm, const qn_array *base, qn_dtype dtype, int rank, const int64_t *shape,
                     const int64_t *strides, int64_t offset) {
  if (__builtin_expect((unsigned)rank > ARRAY_MAX_RANK, 0)) return unusual_view(vm, base, dtype, rank, shape, offset);
  qn_array *a = list_take(lists_of(vm), &lists_of(vm)->small[HEADER_CLASS], HEADER_CLASS * SMALL_STEP);
  if (__builtin_expect(!a, 0) && !(a = mem_alloc(vm, sizeof *a))) return NULL;
  int64_t size = 1, least = 1;
  bool gaps = false, odd = false, over = false;
  for (int i = rank - 1; i >= 0; i--) {
    int64_t n = shape[i], s = strides[i];
    a->shape[i] = n;
    a->strides[i] = s;
    gaps |= s != size && n != 1;
    odd |= s != size;
    least = n < least ? n : least;
    over |= __builtin_mul_overflow(size, n, &size);
  }
  if (__builtin_expect(over | (least <= 0) | (size > ARRAY_MAX_ELEMENTS), 0)) {
    mem_free(vm, a, sizeof *a);
    return unusual_view(vm, base, dtype, rank, shape, offset);
  }
  /* A contiguous view keeps the strides of its shape, also along axes of size 1, where any would do. */
  if (odd && !gaps) shape_strides(rank, shape, a->strides);
  header_begin(vm, a, dtype, rank);
  a->device = base->device;
  a->contiguous = !gaps;
  a->size = size;
  a->offset = offset;
  a->storage = storage_retain(base->storage);
  return a;
}

qn_array *array_part(qn_vm *vm, const qn_array *base, int rank, const int64_t *shape, const int64_t *strides,
                     int64_t offset) {
  size_t each = dtype_size((qn_dtype)base->dtype);
  int64_t size = 1;
  bool run = !base->device;
  for (int i = rank - 1; i >= 0 && run; i--) {
    run = (strides[i] == size || shape[i] == 1) && shape[i] <= INLINE_MAX;
    size *= shape[i];
  }
  size_t bytes = (size_t)size * each;
  if (!run || size <= 0 || bytes > INLINE_MAX)
    return array_view(vm, base, (qn_dtype)base->dtype, rank, shape, strides, offset);
  qn_array *a = array_new(vm, (qn_dtype)base->dtype, rank, shape);
  if (!a) return NULL;
  const char *from = base->storage->data + (size_t)offset * each;
  switch (bytes) {
  case 4: memcpy(array_data(a), from, 4); break;
  case 8: memcpy(array_data(a), from, 8); break;
  default: memcpy(array_data(a), from, bytes);
  }
  return a;
}

qn_array *array_from_scalar(qn_vm *vm, qn_dtype dtype, qn_value scalar) {
  qn_array *a = array_new(vm, dtype, 0, NULL);
  if (a) dtype_store(dtype, array_data(a), scalar);
  return a;
}

qn_array *array_new_on(qn_vm *vm, int device, qn_dtype dtype, int rank, const int64_t *shape) {
  if (!device) return array_new(vm, dtype, rank, shape);
  qn_array *a = new_header(vm, dtype, rank, shape);
  if (!a) return NULL;
  a->device = (uint8_t)device;
  if (array_allocate(vm, a)) return a;
  array_drop(vm, a);
  return NULL;
}

bool array_force(qn_vm *vm, qn_array *a) {
  if (a->storage) return true;
  if (vm->hooks.force) return vm->hooks.force(vm, a);
  return raise_false(vm, E_internal, "an array is pending and nothing can run it");
}

/* ---- copying elements ---------------------------------------------------------------------------------------- */

/* A copy between two strided layouts, reduced to as few axes as possible. Strides are in bytes. */
typedef struct copy_plan {
  int rank;
  int64_t shape[ARRAY_MAX_RANK], to[ARRAY_MAX_RANK], from[ARRAY_MAX_RANK];
} copy_plan;

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

/* Drops axes of size 1, orders the rest by the destination's strides and joins neighbours that follow without gaps. */
static void plan_copy(copy_plan *p, const qn_array *to, const qn_array *from, int64_t size) {
  int n = 0;
  for (int i = 0; i < to->rank; i++) {
    if (to->shape[i] == 1) continue;
    int64_t t = to->strides[i] * size, f = from->strides[i] * size;
    int k = n++;
    for (; k > 0 && magnitude(p->to[k - 1]) < magnitude(t); k--) {
      p->shape[k] = p->shape[k - 1];
      p->to[k] = p->to[k - 1];
      p->from[k] = p->from[k - 1];
    }
    p->shape[k] = to->shape[i];
    p->to[k] = t;
    p->from[k] = f;
  }
  int m = 0;
  for (int i = 0; i < n; i++) {
    if (m && p->to[m - 1] == p->to[i] * p->shape[i] && p->from[m - 1] == p->from[i] * p->shape[i]) {
      p->shape[m - 1] *= p->shape[i];
    } else {
      p->shape[m] = p->shape[i];
      p->to[m] = p->to[i];
      p->from[m] = p->from[i];
      m++;
      continue;
    }
    p->to[m - 1] = p->to[i];
    p->from[m - 1] = p->from[i];
  }
  p->rank = m;
}

/* Copies one row of n elements. */
static void copy_row(char *to, int64_t ts, const char *from, int64_t fs, int64_t n, int size) {
  if (ts == size && fs == size) {
    memcpy(to, from, (size_t)(n * size));
    return;
  }
#define ROW(type)                                                                                                      \
  for (int64_t i = 0; i < n; i++) {                                                                                    \
    type e;                                                                                                            \
    memcpy(&e, from + i * fs, sizeof e);                                                                               \
    memcpy(to + i * ts, &e, sizeof e);                                                                                 \
  }                                                                                                                    \
  return
  switch (size) {
  case 1: ROW(uint8_t);
  case 2: ROW(uint16_t);
  case 4: ROW(uint32_t);
  case 8: ROW(uint64_t);
  default: ROW(unsigned __int128);
  }
#undef ROW
}

/* A long copy polls every LOOK bytes whether it must stop. Without a VM it never stops. */
enum { LOOK = 1 << 22 };
typedef struct copy_watch {
  qn_vm *vm;
  int64_t left; /* bytes until the next look */
} copy_watch;

/* Counts bytes that have been copied, and polls when it is time. False, with an error raised, if the copy must stop. */
static inline bool go_on(copy_watch *w, int64_t bytes) {
  w->left -= bytes;
  if (__builtin_expect(w->left > 0, 1)) return true;
  w->left = LOOK;
  return !w->vm || !vm_poll(w->vm);
}

/* Copies a row that may be long, and polls between its parts. */
static bool copy_long_row(copy_watch *w, char *to, int64_t ts, const char *from, int64_t fs, int64_t n, int size) {
  for (int64_t piece = LOOK / size; n > piece; n -= piece) {
    copy_row(to, ts, from, fs, piece, size);
    if (!go_on(w, LOOK)) return false;
    to += piece * ts;
    from += piece * fs;
  }
  copy_row(to, ts, from, fs, n, size);
  return go_on(w, n * size);
}

/* Copies a plane of two axes in tiles. One side is read or written across cache lines, and within a tile those lines stay in the cache. */
static bool copy_plane(copy_watch *w, char *to, const char *from, int64_t rows, int64_t trow, int64_t frow,
                       int64_t cols, int64_t tcol, int64_t fcol, int size) {
  enum { TILE = 32 };
  for (int64_t r = 0; r < rows; r += TILE)
    for (int64_t c = 0; c < cols; c += TILE) {
      int64_t r1 = rows - r < TILE ? rows - r : TILE, c1 = cols - c < TILE ? cols - c : TILE;
      for (int64_t i = 0; i < r1; i++)
        copy_row(to + (r + i) * trow + c * tcol, tcol, from + (r + i) * frow + c * fcol, fcol, c1, size);
      if (!go_on(w, r1 * c1 * size)) return false;
    }
  return true;
}

static bool copy_elements(copy_watch *w, qn_array *to, const qn_array *from) {
  if (to->size == 0) return true;
  int size = (int)dtype_size((qn_dtype)to->dtype);
  char *t = array_data(to);
  const char *f = array_data(from);
  if (to->contiguous && from->contiguous) return copy_long_row(w, t, size, f, size, to->size, size);
  copy_plan p;
  plan_copy(&p, to, from, size);
  if (p.rank == 0) {
    copy_row(t, size, f, size, 1, size);
    return true;
  }
  /* The destination is densest along the last axis. If the source is denser along another axis, the two are copied as planes. */
  int last = p.rank - 1, other = -1;
  for (int i = 0; i < last; i++)
    if (p.from[i] && magnitude(p.from[i]) < magnitude(p.from[last]) &&
        (other < 0 || magnitude(p.from[i]) < magnitude(p.from[other])))
      other = i;
  int64_t index[ARRAY_MAX_RANK] = {0};
  for (;;) {
    if (other >= 0 ? !copy_plane(w, t, f, p.shape[other], p.to[other], p.from[other], p.shape[last], p.to[last],
                                 p.from[last], size)
                   : !copy_long_row(w, t, p.to[last], f, p.from[last], p.shape[last], size))
      return false;
    int i = last - 1;
    for (; i >= 0; i--) {
      if (i == other) continue;
      t += p.to[i];
      f += p.from[i];
      if (++index[i] < p.shape[i]) break;
      t -= p.to[i] * p.shape[i];
      f -= p.from[i] * p.shape[i];
      index[i] = 0;
    }
    if (i < 0) return true;
  }
}

void array_copy_elements(qn_array *to, const qn_array *from) {
  copy_watch w = {NULL, LOOK};
  copy_elements(&w, to, from);
}

bool array_copy_watched(qn_vm *vm, qn_array *to, const qn_array *from) {
  copy_watch w = {vm, LOOK};
  return copy_elements(&w, to, from);
}

bool array_copy_on(qn_vm *vm, qn_array *to, const qn_array *from) {
  return to->device ? device_memory_of(vm, to->device)->copy_elements(vm, to, from) : array_copy_watched(vm, to, from);
}

qn_array *array_duplicate(qn_vm *vm, qn_array *a) {
  size_t bytes = (size_t)a->size * dtype_size((qn_dtype)a->dtype);
  if (a->storage && a->contiguous && !a->device && bytes - 1 < INLINE_MAX) {
    qn_array *few = array_new_like(vm, (qn_dtype)a->dtype, a);
    if (few) memcpy(array_data(few), array_data(a), bytes);
    return few;
  }
  if (!array_force(vm, a)) return NULL;
  qn_array *copy = array_new_on(vm, a->device, (qn_dtype)a->dtype, a->rank, a->shape);
  if (!copy || array_copy_on(vm, copy, a)) return copy;
  array_drop(vm, copy);
  return NULL;
}

qn_array *array_contiguous(qn_vm *vm, qn_array *a) {
  if (!array_force(vm, a)) return NULL;
  if (!a->contiguous) return array_duplicate(vm, a);
  a->head.refs++;
  return a;
}

qn_array *array_copy(qn_vm *vm, qn_array *a) {
  qn_array *copy = array_duplicate(vm, a);
  if (copy) mem_count_copy(vm, copy->storage->bytes);
  return copy;
}

qn_array *array_to_cpu(qn_vm *vm, qn_array *a) {
  qn_array *c = array_contiguous(vm, a);
  if (!c || !c->device) return c;
  qn_array *out = array_new(vm, (qn_dtype)c->dtype, c->rank, c->shape);
  if (out && !device_memory_of(vm, c->device)->read(vm, c, array_data(out))) {
    array_drop(vm, out);
    out = NULL;
  }
  array_drop(vm, c);
  return out;
}

qn_array *array_to_device(qn_vm *vm, qn_array *a, int device) {
  if (!array_force(vm, a)) return NULL;
  if (a->device == device) {
    a->head.refs++;
    return a;
  }
  qn_array *c = array_to_cpu(vm, a);
  if (!c || !device) return c;
  qn_array *out = array_new_on(vm, device, (qn_dtype)c->dtype, c->rank, c->shape);
  if (out && !device_memory_of(vm, device)->write(vm, out, array_data(c))) {
    array_drop(vm, out);
    out = NULL;
  }
  array_drop(vm, c);
  return out;
}

qn_array *array_settle(qn_vm *vm, qn_array *a) {
  if (!a || a->device == vm->device) return a;
  qn_array *out = array_to_device(vm, a, vm->device);
  array_drop(vm, a);
  return out;
}

/* A header for one element of an array that has storage. It is a value on the caller's stack and is not freed. */
static qn_array element_at(const qn_array *a, int64_t at) {
  qn_array one = *a;
  one.rank = 0;
  one.size = 1;
  one.offset = at;
  one.contiguous = true;
  return one;
}

static int64_t flat_offset(const qn_array *a, int64_t index) {
  int64_t at = a->offset;
  for (int i = a->rank - 1; i >= 0; i--) {
    at += index % a->shape[i] * a->strides[i];
    index /= a->shape[i];
  }
  return at;
}

bool array_item(qn_vm *vm, qn_array *a, int64_t index, qn_value *out) {
  if (!array_force(vm, a)) return false;
  if (!a->device) {
    *out = array_get_flat(a, index);
    return true;
  }
  _Alignas(16) char bytes[16];
  qn_array one = element_at(a, flat_offset(a, index));
  if (!device_memory_of(vm, a->device)->read(vm, &one, bytes)) return false;
  *out = dtype_load((qn_dtype)a->dtype, bytes);
  return true;
}

bool array_store(qn_vm *vm, qn_array *a, int64_t at, qn_value v) {
  size_t size = dtype_size((qn_dtype)a->dtype);
  if (!a->device) {
    dtype_store((qn_dtype)a->dtype, a->storage->data + (size_t)at * size, v);
    return true;
  }
  _Alignas(16) char bytes[16];
  qn_array one = element_at(a, at);
  dtype_store((qn_dtype)a->dtype, bytes, v);
  return device_memory_of(vm, a->device)->write(vm, &one, bytes);
}

/* Does every element have a place of its own in the storage? In broadcasts and in windows that overlap some share a place. An axis cannot
 * cause that if its step is longer than all axes with shorter steps reach together, and this is what is checked. It holds for all views that
 * rearrange, cut or reverse. */
static bool elements_apart(const qn_array *a) {
  uint8_t seen = 0;
  int64_t reach = 0; /* how far the axes with shorter steps reach together */
  for (int n = 0; n < a->rank; n++) {
    int64_t least = INT64_MAX;
    int at = 0;
    for (int i = 0; i < a->rank; i++) {
      int64_t step = a->shape[i] < 2 ? 0 : a->strides[i] < 0 ? -a->strides[i] : a->strides[i];
      if (seen >> i & 1 || step >= least) continue;
      least = step;
      at = i;
    }
    seen |= (uint8_t)(1u << at);
    if (a->shape[at] < 2) continue;
    if (least <= reach) return false;
    reach += (a->shape[at] - 1) * least;
  }
  return true;
}

/* Can elements be written in place? Nobody else may own the array or its storage, and no two elements may share a place. */
static bool array_writable(const qn_array *a) {
  if (a->head.refs != 1 || a->storage->refs != 1 || a->storage->foreign) return false;
  return a->contiguous || elements_apart(a);
}

bool array_own(qn_vm *vm, qn_value *v) {
  qn_array *a = value_array(*v);
  if (!array_force(vm, a)) return false;
  vm->arrays_made++;
  if (array_writable(a)) return true;
  qn_array *copy = array_copy(vm, a);
  if (!copy) return false;
  value_release(vm, *v);
  *v = value_obj(TAG_ARRAY, copy);
  return true;
}

qn_value array_get_flat(const qn_array *a, int64_t index) {
  int64_t at = a->contiguous ? a->offset + index : flat_offset(a, index);
  return dtype_load((qn_dtype)a->dtype, a->storage->data + at * (int64_t)dtype_size((qn_dtype)a->dtype));
}
