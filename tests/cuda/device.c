/* Random L programs (l_case.h) on a GPU: the same bits as the reference gives, as CUDA C with one block and with many, and on the
 * block VM.
 *
 *   device LIBNVRTC [FIRST N]
 *
 * Status 77 where there is no GPU, 1 if a program fails. */
#include "tests/cuda/nvrtc.h"
#include "tests/unit/block_vm_case.h"

#include "jit/kernel/emit.h"

enum { UNIT = 16, SKIPPED = 77 };

/* ---- the driver ------------------------------------------------------------------------------------------------------- */

typedef unsigned long long device_ptr;
typedef struct driver {
  int (*init)(unsigned);
  int (*device)(int *, int);
  int (*context)(void **, int);
  int (*current)(void *);
  int (*load)(void **, const void *);
  int (*unload)(void *);
  int (*function)(void **, void *, const char *);
  int (*alloc)(device_ptr *, size_t);
  int (*release)(device_ptr);
  int (*to)(device_ptr, const void *, size_t);
  int (*from)(void *, device_ptr, size_t);
  int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
  int (*wait)(void);
} driver;

static bool driver_open(driver *d) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *context;
  int device;
  return library && symbol_of(library, "cuInit", &d->init) && symbol_of(library, "cuDeviceGet", &d->device) &&
         symbol_of(library, "cuDevicePrimaryCtxRetain", &d->context) &&
         symbol_of(library, "cuCtxSetCurrent", &d->current) && symbol_of(library, "cuModuleLoadData", &d->load) &&
         symbol_of(library, "cuModuleUnload", &d->unload) && symbol_of(library, "cuModuleGetFunction", &d->function) &&
         symbol_of(library, "cuMemAlloc_v2", &d->alloc) && symbol_of(library, "cuMemFree_v2", &d->release) &&
         symbol_of(library, "cuMemcpyHtoD_v2", &d->to) && symbol_of(library, "cuMemcpyDtoH_v2", &d->from) &&
         symbol_of(library, "cuLaunchKernel", &d->launch) && symbol_of(library, "cuCtxSynchronize", &d->wait) &&
         d->init(0) == 0 && d->device(&device, 0) == 0 && d->context(&context, device) == 0 && d->current(context) == 0;
}

static void fatal(const char *what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

static void check(int rc, const char *what) {
  if (rc == 0) return;
  fprintf(stderr, "%s: error %d\n", what, rc);
  exit(1);
}

static device_ptr upload(const driver *d, const void *data, size_t n) {
  device_ptr p = 0;
  check(d->alloc(&p, n ? n : 16), "allocation");
  if (n && data) check(d->to(p, data, n), "copy to the device");
  return p;
}

/* ---- programs ----------------------------------------------------------------------------------------------------------- */

static void run_case(const driver *d, void *module, const l_case *c, const char *name, unsigned blocks, char *why,
                     size_t size) {
  void *ours[CASE_BUFFERS];
  device_ptr buffers[CASE_BUFFERS] = {0};
  const l_program *p = c->p;
  const int64_t *values = c->outer;
  case_begin(c, ours);
  for (uint32_t b = 0, k = 0; b < p->nbuffers; b++) {
    bool scratch = p->buffers[b].mode == BUF_SCRATCH;
    int64_t elements = scratch ? values[p->buffers[b].size] : c->info.elements;
    buffers[b] = upload(d, scratch ? NULL : ours[k++],
                        (size_t)(elements > 0 ? elements : 0) * dtype_size((qn_dtype)p->buffers[b].dtype));
  }
  uint64_t error = ~0ull;
  int64_t scratch = 0;
  device_ptr cell = upload(d, &error, sizeof error), answer = upload(d, &scratch, sizeof scratch), memory = 0;
  uint64_t words[EMIT_WORDS_BY_VALUE] = {answer, cell, 0, 0}, *at = words + EMIT_WORDS_HEAD;
  for (uint32_t b = 0; b < p->nbuffers; b++) *at++ = buffers[b];
  for (uint32_t i = 0; i < p->nints; i++) *at++ = (uint64_t)c->info.ints[i];
  for (uint32_t i = 0; i < p->nscalars; i++) *at++ = (uint64_t)c->info.scalars[i].i;
  device_ptr block = 0;
  int64_t instances = 0;
  void *parameters[] = {&block, &instances, words}, *f;
  uint32_t phases = emit_phases(p);
  char symbol[64];
  snprintf(symbol, sizeof symbol, "%s_%u", name, phases);
  check(d->function(&f, module, symbol), symbol);
  check(d->launch(f, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), symbol);
  check(d->from(&scratch, answer, sizeof scratch), symbol);
  words[0] = memory = upload(d, NULL, (size_t)scratch * blocks);
  if (blocks > 1) block = upload(d, words, sizeof words); /* the other way to hand them over */
  for (uint32_t j = 0, v = 1; j < phases; j++, v++) {
    while (p->code[v].code != L_PAR) v++;
    instances = values[p->code[v].a];
    snprintf(symbol, sizeof symbol, "%s_%u", name, j);
    check(d->function(&f, module, symbol), symbol);
    l_layout l = l_layout_of(&p->code[v]);
    unsigned threads = (unsigned)(l.threads * l.groups);
    if (instances > 0) check(d->launch(f, blocks, 1, 1, threads, 1, 1, 0, NULL, parameters, NULL), symbol);
    check(d->wait(), symbol);
  }
  check(d->from(&error, cell, sizeof error), "the error cell");
  for (uint32_t b = 0, k = 0; b < p->nbuffers; b++) {
    if (p->buffers[b].mode != BUF_SCRATCH) {
      check(d->from(ours[k], buffers[b], (size_t)c->info.elements * dtype_size((qn_dtype)c->dtype[k])), "results");
      k++;
    }
    d->release(buffers[b]);
  }
  const device_ptr others[] = {cell, answer, memory, block};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) d->release(others[i]);
  case_end(c, ours, error, why, size);
}

static int run_unit(const nvrtc *n, const driver *d, uint64_t first, uint32_t count) {
  l_case cases[UNIT];
  const l_program *programs[UNIT];
  const char *names[UNIT];
  char texts[UNIT][16], why[256];
  for (uint32_t i = 0; i < count; i++) {
    case_open(&cases[i], first + i);
    programs[i] = cases[i].p;
    snprintf(texts[i], sizeof texts[i], "k%u", i);
    names[i] = texts[i];
  }
  text_buf out = {0};
  emit_cuda(programs, names, count, &out);
  text_add(&out, "", 1);
  size_t size = 0;
  void *module = NULL;
  char *cubin = out.failed ? NULL : nvrtc_cubin(n, "unit", out.text, false, &size);
  if (!cubin) fatal("no cubin");
  check(d->load(&module, cubin), "loading");
  int failed = 0;
  for (uint32_t i = 0; i < count; i++) {
    bool bad = false;
    for (unsigned blocks = 1; blocks < 10 && !bad; blocks += 6) {
      run_case(d, module, &cases[i], names[i], blocks, why, sizeof why);
      bad = why[0] != 0;
      if (!bad) continue;
      if (getenv("QN_TEST_SHOW")) case_show(&cases[i]);
      printf("program %llu, %u blocks: %s\n", (unsigned long long)(first + i), blocks, why);
    }
    failed += bad;
    case_close(&cases[i]);
  }
  d->unload(module);
  free(cubin);
  text_free(&out);
  return failed;
}

/* How many fail on the block VM. */
static int interpret(uint64_t first, uint64_t count) {
  qn_vm *vm = qn_vm_open(NULL);
  gpu_stream *s = vm ? gpu_stream_of(vm, device_code(FAMILY_gpu, 0)) : NULL;
  int failed = 0, ran = 0;
  if (!s) fatal("no VM on the device");
  for (uint64_t seed = first; seed < first + count; seed++) {
    l_case c;
    char why[256];
    case_open(&c, seed);
    ran += vm_case_run(vm, s, &c, why, sizeof why);
    failed += why[0] != 0;
    if (why[0] && getenv("QN_TEST_SHOW")) case_show(&c);
    if (why[0]) printf("program %llu on the block VM: %s\n", (unsigned long long)seed, why);
    case_close(&c);
  }
  printf("%d programs on the block VM, %d fail\n", ran, failed);
  qn_vm_close(vm);
  return failed;
}

int main(int argc, char **argv) {
  nvrtc n;
  driver d;
  uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, count = argc > 3 ? strtoull(argv[3], NULL, 10) : 160;
  if (argc < 2 || !nvrtc_open(&n, argv[1])) fatal("usage: device LIBNVRTC [FIRST N]");
  if (!driver_open(&d)) {
    printf("no GPU\n");
    return SKIPPED;
  }
  int failed = 0;
  for (uint64_t i = 0; i < count; i += UNIT)
    failed += run_unit(&n, &d, first + i, count - i < UNIT ? (uint32_t)(count - i) : UNIT);
  printf("%llu programs, %d fail\n", (unsigned long long)count, failed);
  failed += interpret(first, count);
  return failed ? 1 : 0;
}
