/* x[mask] and nonzero on the device: the launches of compress.cu.
 *
 * The true elements are counted first, and the count is waited for, since it is the result's size. What follows is launched and not waited
 * for. Cells larger than a word need a list of places, 8 bytes a cell. */
#include "jit/gpu/state.h"
#include "jit/gpu/words.h"

enum { COMPRESS_COUNT, COMPRESS_SUMS, COMPRESS_STORE, COMPRESS_CELLS }; /* kernels of compress.cu */
enum { TILES = 4096 };

static bool launch(qn_vm *vm, gpu_stream *s, int kernel, int64_t instances, compress_words *w) {
  return gpu_text_launch(vm, s, TEXT_COMPRESS, kernel, instances, w);
}

/* The largest size of a word, at most 8, that divides both addresses and the bytes of a cell. */
static int word_of(uint64_t bytes, uint64_t x, uint64_t to) {
  uint64_t all = bytes | x | to | 8;
  return 1 << __builtin_ctzll(all);
}

/* Stores the cells of x where the mask is true or, without x, the coordinates. */
static bool store(qn_vm *vm, gpu_stream *s, compress_words *w, const qn_array *x, const qn_array *to) {
  int64_t cell = 1;
  for (int k = w->rank; x && k < x->rank; k++) cell *= x->shape[k];
  size_t bytes = x ? (size_t)cell * dtype_size((qn_dtype)x->dtype) : 0;
  w->to = (uint64_t)(uintptr_t)array_data(to);
  if (!x) return launch(vm, s, COMPRESS_STORE, w->tiles, w);
  if (!bytes) return true;
  w->x = (uint64_t)(uintptr_t)array_data(x);
  w->word = word_of(bytes, w->x, w->to);
  w->cell = (int64_t)bytes / w->word;
  if (w->cell == 1) return launch(vm, s, COMPRESS_STORE, w->tiles, w);
  size_t list = (size_t)to->shape[0] * sizeof(int64_t);
  compress_words places = *w;
  CUdeviceptr memory = gpu_alloc(vm, s, list);
  if (!memory) return false;
  places.to = memory, places.word = 0;
  places.rank = 1, places.shape[0] = w->n;
  w->mask = memory, w->total = to->shape[0] * w->cell;
  bool ok = launch(vm, s, COMPRESS_STORE, w->tiles, &places) &&
            launch(vm, s, COMPRESS_CELLS, (w->total + THREADS - 1) / THREADS, w);
  gpu_free(vm, s, memory, list);
  return ok;
}

/* Counts the true elements, and waits for the number. */
static bool count_true(qn_vm *vm, gpu_stream *s, compress_words *w, int64_t *count) {
  return launch(vm, s, COMPRESS_COUNT, w->tiles, w) && launch(vm, s, COMPRESS_SUMS, 1, w) &&
         gpu_read(vm, s, count, w->counts + (uint64_t)w->tiles * sizeof *count, sizeof *count);
}

device_answer gpu_compress(qn_vm *vm, const qn_array *x, const qn_array *mask, qn_array *to, qn_array **made) {
  device_answer answer;
  gpu_stream *s = gpu_text_enter(vm, mask->device, TEXT_COMPRESS, "x[mask]", &answer);
  if (!s) return answer;
  int64_t shape[ARRAY_MAX_RANK] = {0, mask->rank}, count = 0;
  int rank = x ? x->rank - mask->rank + 1 : 2;
  for (int k = 1; x && k < rank; k++) shape[k] = x->shape[mask->rank + k - 1];
  compress_words w = {.mask = (uint64_t)(uintptr_t)array_data(mask), .n = mask->size, .rank = mask->rank};
  for (int k = 0; k < mask->rank; k++) w.shape[k] = mask->shape[k];
  int64_t steps = (w.n + TILE - 1) / TILE, each = (steps + TILES - 1) / TILES;
  w.tile = each * TILE;
  w.tiles = each ? (steps + each - 1) / each : 0;
  size_t bytes = (size_t)(w.tiles + 1) * sizeof(int64_t);
  bool own = false, ok = !w.n || (w.counts = gpu_alloc(vm, s, bytes)) != 0;
  if (ok && w.n) ok = count_true(vm, s, &w, &count);
  shape[0] = count;
  if (ok && to) {
    to->shape[0] = count;
    to->size = shape_strides(rank, shape, to->strides);
  } else if (ok) {
    to = *made = array_new_on(vm, mask->device, x ? (qn_dtype)x->dtype : DTYPE_INDEX, rank, shape);
    ok = own = to != NULL;
  }
  bool stored = ok && (!count || store(vm, s, &w, x, to));
  if (w.counts) gpu_free(vm, s, w.counts, bytes);
  gpu_leave(s);
  if (own && !stored) {
    value_release(vm, value_obj(TAG_ARRAY, to));
    *made = NULL;
  }
  return stored ? DEVICE_DONE : DEVICE_FAILS;
}
