/* Kernels of our own (state.h), which no L program stands for: texts embedded in the library. Each is compiled, once for a device, when it is first
 * wanted. */
#include <string.h>

#include "jit/gpu/state.h"
#include "jit/gpu/words.h"

extern const char own_source[], sort_source[], compress_source[],
    recurrence_source[]; /* made of prelude.cu, words.h and the .cu files */

/* The kernels of a text are called k<hash>_0 and so on. */
static const struct {
  const char *name, *source;
  uint64_t hash;
  uint32_t functions;
} texts[TEXT_COUNT] = {[TEXT_OWN] = {"own", own_source, 0x6f776e206b65726eu, OWN_COUNT},
                       [TEXT_SORT] = {"sort", sort_source, 0x736f7274206c696eu, 6},
                       [TEXT_COMPRESS] = {"compress", compress_source, 0x636f6d7072657373u, 4},
                       [TEXT_RECURRENCE] = {"recurrence", recurrence_source, 0x7265637572726e63u, 1}};
_Static_assert((int)TEXT_COUNT == sizeof((gpu_stream *)0)->texts / sizeof(gpu_code *), "a stream has a place for each");
_Static_assert(ARRAY_MAX_RANK == 8, "words have 8 axes");
_Static_assert(offsetof(gpu_mapped, reported) == 0 && offsetof(gpu_mapped, error) == 8, "where the report goes");

const char *gpu_text_source(gpu_text text, const char **name) {
  *name = texts[text].name;
  return texts[text].source;
}

const gpu_code *gpu_text_code(qn_vm *vm, gpu_stream *s, gpu_text text) {
  if (s->texts[text]) return s->texts[text];
  const uint64_t hash = texts[text].hash;
  bool wait = vm->config.jit == QN_JIT_SYNC || vm->config.jit == QN_JIT_VERIFY;
  gpu_code *c = gpu_code_find(s->engine, s->number, hash);
  if (!c) {
    gpu_unit u = {.text = texts[text].source,
                  .len = strlen(texts[text].source),
                  .n = 1,
                  .hashes = &hash,
                  .nfunctions = &texts[text].functions,
                  .cache_bytes = vm->tune[TUNE_cache_bytes],
                  .here = wait};
    if (!gpu_compile(s->engine, s->number, &u)) return NULL;
    c = gpu_code_find(s->engine, s->number, hash);
  }
  if (c && wait) gpu_code_wait(s->engine, c);
  if (c && atomic_load_explicit(&c->state, memory_order_acquire) == CODE_READY) s->texts[text] = c;
  return s->texts[text];
}

gpu_stream *gpu_text_enter(qn_vm *vm, int device, gpu_text text, const char *what, device_answer *answer) {
  gpu_stream *s = gpu_stream_of(vm, device);
  bool refused = s && !gpu_text_code(vm, s, text);
  *answer = refused ? DEVICE_REFUSES : DEVICE_FAILS;
  return s && !refused ? gpu_entered(vm, device, what) : NULL;
}

bool gpu_text_launch(qn_vm *vm, gpu_stream *s, gpu_text text, int kernel, int64_t instances, void *words) {
  enum { BLOCKS_PER_UNIT = 16 };
  int64_t most = (int64_t)s->device->units * BLOCKS_PER_UNIT;
  return gpu_launch(vm, s, s->texts[text]->functions[kernel], (unsigned)(instances < most ? instances : most), THREADS,
                    0, 0, instances, words);
}
