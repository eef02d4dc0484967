/* sort and argsort on the device: the launches of sort.cu, none of which is waited for.
 *
 * Long lines need two sets of keys and indices, and counts of at most a byte for each element. All of it is one block of memory, which is
 * given back at once, since its next user comes later in the stream. There is a pass for each byte of an element, since it is not known
 * here which bytes are equal everywhere. The first and the last pass need only one of the sets. */
#include "jit/gpu/state.h"
#include "jit/gpu/words.h"

enum { SORT_FEW, SORT_SHORT, SORT_SHORT_WIDE, SORT_COUNT, SORT_SUMS, SORT_PLACE }; /* kernels of sort.cu */
enum { RANKED = 16, SHORT_LINE = THREADS * OWN };                                  /* elements at most */

static bool launch(qn_vm *vm, gpu_stream *s, int kernel, int64_t instances, sort_words *w) {
  return gpu_text_launch(vm, s, TEXT_SORT, kernel, instances, w);
}

static size_t rounded(int64_t bytes) { return ((size_t)bytes + 255) & ~(size_t)255; }

static bool sort_long(qn_vm *vm, gpu_stream *s, sort_words *w) {
  int64_t total = w->n * w->lines;
  w->tiles = (w->n + TILE - 1) / TILE;
  size_t sets = w->size == 1   ? 0
                : w->size == 2 ? 1
                               : 2,
         keys = rounded(total * (w->size == 8 ? 8 : 4)), indices = rounded(total * 4),
         totals = rounded(w->lines * 256 * 4), counts = rounded(w->lines * 256 * w->tiles * 4),
         bytes = sets * (keys + indices) + totals + counts;
  CUdeviceptr memory = gpu_alloc(vm, s, bytes);
  if (!memory) return false;
  w->totals = memory, w->counts = w->totals + totals;
  w->keys_to = w->counts + counts, w->index_to = w->keys_to + keys;
  w->keys = w->index_to + indices, w->index = w->keys + keys;
  bool ok = true;
  for (w->shift = 0; ok && w->shift < 8 * w->size; w->shift += 8) {
    w->first = w->shift == 0, w->last = w->shift == 8 * (w->size - 1);
    ok = launch(vm, s, SORT_COUNT, w->lines * w->tiles, w) &&
         launch(vm, s, SORT_SUMS, w->tiles <= FEW_TILES ? w->lines : w->lines * 256, w) &&
         launch(vm, s, SORT_PLACE, w->lines * w->tiles, w);
    uint64_t k = w->keys, i = w->index;
    w->keys = w->keys_to, w->keys_to = k;
    w->index = w->index_to, w->index_to = i;
  }
  gpu_free(vm, s, memory, bytes);
  return ok;
}

/* A block sorts as many lines as fill it, each padded to a power of two. */
static bool sort_short(qn_vm *vm, gpu_stream *s, sort_words *w) {
  for (w->padded = OWN; w->padded < w->n;) w->padded *= 2;
  int64_t group = SHORT_LINE / w->padded;
  return launch(vm, s, w->size == 8 ? SORT_SHORT_WIDE : SORT_SHORT, (w->lines + group - 1) / group, w);
}

static bool sort_few(qn_vm *vm, gpu_stream *s, sort_words *w) {
  int64_t group = THREADS / w->n;
  return launch(vm, s, SORT_FEW, (w->lines + group - 1) / group, w);
}

device_answer gpu_sort(qn_vm *vm, qn_array *out, const qn_array *x, int axis, bool descending, bool indices) {
  if (x->size == 0) return DEVICE_DONE;
  if (x->size > (int64_t)1 << 40 || (x->rank && x->shape[axis] > INT32_MAX)) return DEVICE_REFUSES;
  device_answer answer;
  gpu_stream *s = gpu_text_enter(vm, x->device, TEXT_SORT, "sorting", &answer);
  if (!s) return answer;
  sort_words w = {.x = (uint64_t)(uintptr_t)array_data(x),
                  .out = (uint64_t)(uintptr_t)array_data(out),
                  .infinity = dtype_is_float((qn_dtype)x->dtype) ? dtype_infinity((qn_dtype)x->dtype) : 0,
                  .n = 1,
                  .size = (int)dtype_size((qn_dtype)x->dtype),
                  .is_signed = dtype_is_signed(x->dtype) || dtype_is_float(x->dtype),
                  .descending = descending,
                  .indices = indices};
  for (int k = 0; k < x->rank; k++) {
    if (k == axis) {
      w.n = x->shape[k], w.x_step = x->strides[k], w.out_step = out->strides[k];
    } else {
      w.shape[w.rank] = x->shape[k], w.x_at[w.rank] = x->strides[k], w.out_at[w.rank++] = out->strides[k];
    }
  }
  w.lines = x->size / w.n;
  bool ok = w.n <= RANKED ? sort_few(vm, s, &w) : w.n <= SHORT_LINE ? sort_short(vm, s, &w) : sort_long(vm, s, &w);
  gpu_leave(s);
  return ok ? DEVICE_DONE : DEVICE_FAILS;
}
