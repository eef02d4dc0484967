/* Launching kernels, and copies between layouts, which are a kernel too (state.h).
 *
 * What a launch hands over lies in one block of the device, written by one copy: the error cell, the cell that scratch sizes are
 * answered in, the table of buffers, ints and scalars. Phases run in order on the VM's stream; blocks share out the instances. All
 * of it is asked for, not waited for, but for programs with checks, whose error cell is read at the end, and those that keep
 * something in scratch, whose size the last function of the program tells.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/gpu/state.h"
#include "jit/kernel/emit.h"

enum { THREADS = 64, BLOCKS_PER_UNIT = 32 };
#define SCRATCH_MOST ((size_t)256 << 20)

static const cuda_driver *driver(const gpu_stream *s) { return &s->engine->libraries.driver; }

/* ---- code ---------------------------------------------------------------------------------------------------------------- */

/* Hands the programs that nobody has asked for to the compiler, as one unit. False when memory is short. */
static bool ask(qn_vm *vm, gpu_stream *s, device_program *const *programs, uint32_t n) {
  const l_program **list = calloc(n, sizeof *list);
  uint64_t *hashes = calloc(n, sizeof *hashes);
  uint32_t *functions = calloc(n, sizeof *functions), count = 0;
  char(*texts)[24] = calloc(n, sizeof *texts);
  const char **names = calloc(n, sizeof *names);
  text_buf text;
  text_init(&text, NULL);
  bool ok = list && hashes && functions && texts && names;
  for (uint32_t i = 0; i < n && ok; i++) {
    const device_program *p = programs[i];
    bool known = p->code != NULL || gpu_code_find(s->engine, s->number, p->hash) != NULL;
    for (uint32_t k = 0; k < count && !known; k++) known = hashes[k] == p->hash;
    if (known) continue;
    list[count] = p->program;
    hashes[count] = p->hash;
    functions[count] = emit_phases(p->program) + 1;
    snprintf(texts[count], sizeof *texts, "k%016llx", (unsigned long long)p->hash);
    names[count] = texts[count];
    count++;
  }
  if (ok && count) {
    emit_cuda(list, names, count, &text);
    text_add(&text, "", 1);
    char *copy = text.failed ? NULL : malloc(text.len);
    if (copy) memcpy(copy, text.text, text.len);
    gpu_unit u = {.text = copy,
                  .len = text.len - 1,
                  .n = count,
                  .hashes = hashes,
                  .nfunctions = functions,
                  .cache_bytes = vm->tune[TUNE_cache_bytes]};
    ok = copy && gpu_compile(s->engine, s->number, &u);
  }
  text_free(&text);
  free(list);
  free(hashes);
  free(functions);
  free(texts);
  free(names);
  return ok;
}

static bool ready(qn_vm *vm, int device, device_program *const *programs, uint32_t n, bool wait) {
  bool all = true;
  for (uint32_t i = 0; i < n && all; i++)
    all = programs[i]->code &&
          atomic_load_explicit(&((gpu_code *)programs[i]->code)->state, memory_order_acquire) == CODE_READY;
  if (all) return true;
  gpu_stream *s = gpu_stream_of(vm, device);
  if (!s) {
    error_clear(vm);
    return false;
  }
  for (uint32_t i = 0; i < n; i++)
    if (!programs[i]->code && !(programs[i]->code = gpu_code_find(s->engine, s->number, programs[i]->hash))) {
      if (!ask(vm, s, programs + i, n - i)) return false;
      programs[i]->code = gpu_code_find(s->engine, s->number, programs[i]->hash);
    }
  all = true;
  for (uint32_t i = 0; i < n; i++) {
    gpu_code *c = programs[i]->code;
    if (c && wait) gpu_code_wait(s->engine, c);
    all = all && c && atomic_load_explicit(&c->state, memory_order_acquire) == CODE_READY;
  }
  return all;
}

/* ---- launching -------------------------------------------------------------------------------------------------------------- */

/* qk_args as the device has it: addresses. */
typedef struct device_args {
  CUdeviceptr buf, ints, scalars, scratch, error, interrupt, tile;
} device_args;

typedef struct run {
  qn_vm *vm;
  gpu_stream *s;
  const l_program *p;
  const gpu_code *code;
  const int64_t *ints;
  int64_t *values; /* at launch time, by instruction */
  CUdeviceptr block;
  size_t block_bytes;
  CUdeviceptr *buffers; /* by number; scratch ones are ours */
  device_args args;
  size_t scratch; /* bytes of args.scratch for one block */
} run;

static size_t scratch_bytes(const run *r, uint32_t b) {
  int64_t n = r->values[r->p->buffers[b].size];
  return (size_t)(n > 0 ? n : 0) * dtype_size((qn_dtype)r->p->buffers[b].dtype);
}

static unsigned blocks_for(const run *r, int64_t instances) {
  int64_t most = (int64_t)r->s->device->units * BLOCKS_PER_UNIT;
  if (r->scratch && (int64_t)(SCRATCH_MOST / r->scratch) < most) most = (int64_t)(SCRATCH_MOST / r->scratch);
  if (most < 1) most = 1;
  return (unsigned)(instances < most ? instances : most);
}

static CUresult launch_function(run *r, uint32_t number, unsigned blocks, unsigned threads, int64_t instances) {
  void *arguments[] = {&r->args, &instances};
  return driver(r->s)->cuLaunchKernel(r->code->functions[number], blocks, 1, 1, threads, 1, 1, 0, r->s->stream,
                                      arguments, NULL);
}

/* Scratch buffers and the block of parameters. */
static bool place(run *r, void *const *buffers, const int64_t *ints, const qk_scalar *scalars) {
  const l_program *p = r->p;
  for (uint32_t b = 0, given = 0; b < p->nbuffers; b++) {
    if (p->buffers[b].mode != BUF_SCRATCH)
      r->buffers[b] = (CUdeviceptr)(uintptr_t)buffers[given++];
    else if (!(r->buffers[b] = gpu_alloc(r->vm, r->s, scratch_bytes(r, b))))
      return false;
  }
  size_t at_buffers = 16, at_ints = at_buffers + 8 * (size_t)p->nbuffers, at_scalars = at_ints + 8 * (size_t)p->nints,
         bytes = at_scalars + 8 * (size_t)p->nscalars;
  char few[1024], *host = bytes <= sizeof few ? few : mem_alloc(r->vm, bytes);
  if (!host) return false;
  memset(host, 0xff, 16); /* the error cell: none */
  memcpy(host + at_buffers, r->buffers, 8 * (size_t)p->nbuffers);
  if (p->nints) memcpy(host + at_ints, ints, 8 * (size_t)p->nints);
  if (p->nscalars) memcpy(host + at_scalars, scalars, 8 * (size_t)p->nscalars);
  r->block_bytes = bytes;
  bool ok = (r->block = gpu_alloc(r->vm, r->s, bytes)) && gpu_write(r->vm, r->s, r->block, host, bytes);
  if (host != few) mem_free(r->vm, host, bytes);
  r->args = (device_args){.error = r->block,
                          .scratch = r->block + 8,
                          .buf = r->block + at_buffers,
                          .ints = r->block + at_ints,
                          .scalars = r->block + at_scalars};
  return ok;
}

/* Bytes of scratch that a block needs: the last function of the program tells, for its ints and scalars. */
static bool ask_scratch(run *r) {
  const l_program *p = r->p;
  uint64_t hash = (uint64_t)(uintptr_t)r->code >> 4;
  for (uint32_t i = 0; i < p->nints; i++) hash = (hash ^ (uint64_t)r->ints[i]) * 0x9e3779b97f4a7c15u;
  bool keeps = p->nints <= GPU_MEMO_INTS && p->nscalars == 0;
  size_t bytes = (size_t)p->nints * sizeof *r->ints;
  gpu_memo *m = &r->s->memos[hash >> 32 & (GPU_MEMOS - 1)];
  if (keeps && m->code == r->code && (!bytes || memcmp(m->ints, r->ints, bytes) == 0)) {
    r->scratch = m->scratch;
    return true;
  }
  int64_t answer = 0;
  CUresult rc = launch_function(r, r->code->nfunctions - 1, 1, 1, 0);
  if (rc != GPU_OK) return gpu_raise(r->vm, r->s, rc, "a launch");
  if (!gpu_read(r->vm, r->s, &answer, r->block + 8, sizeof answer)) return false;
  r->scratch = (size_t)answer;
  if (keeps) {
    m->code = r->code;
    m->scratch = r->scratch;
    if (bytes) memcpy(m->ints, r->ints, bytes);
  }
  return true;
}

static bool phases(run *r, uint64_t *error) {
  const l_program *p = r->p;
  uint32_t n = r->code->nfunctions - 1;
  CUdeviceptr scratch = 0;
  size_t bytes = 0;
  CUresult rc = GPU_OK;
  if (l_needs_scratch(p)) {
    if (!ask_scratch(r)) return false;
    int64_t most = 1;
    for (l_val v = 1; v < p->n; v++)
      if (p->code[v].code == L_PAR && r->values[p->code[v].a] > most) most = r->values[p->code[v].a];
    bytes = r->scratch * blocks_for(r, most);
    if (bytes && !(scratch = gpu_alloc(r->vm, r->s, bytes))) return false;
    r->args.scratch = scratch;
  }
  for (uint32_t j = 0, v = 1; j < n && rc == GPU_OK; j++, v++) {
    while (p->code[v].code != L_PAR) v++;
    int64_t instances = r->values[p->code[v].a];
    if (instances > 0) rc = launch_function(r, j, blocks_for(r, instances), THREADS, instances);
  }
  if (scratch) gpu_free(r->s, scratch, bytes);
  if (rc != GPU_OK) return gpu_raise(r->vm, r->s, rc, "a launch");
  *error = ~(uint64_t)0;
  return !p->nchecks || gpu_read(r->vm, r->s, error, r->block, sizeof *error);
}

static device_answer launch(qn_vm *vm, int device, const device_program *program, void *const *buffers,
                            const int64_t *ints, const qk_scalar *scalars) {
  const l_program *p = program->program;
  gpu_stream *s = gpu_stream_of(vm, device);
  size_t bytes = ((size_t)p->n + p->nbuffers + 1) * 8;
  int64_t few[512], *memory = bytes <= sizeof few ? few : s ? mem_alloc(vm, bytes) : NULL;
  if (!s || !memory) return DEVICE_FAILS;
  run r = {.vm = vm,
           .s = s,
           .p = p,
           .code = program->code,
           .ints = ints,
           .values = memory,
           .buffers = (CUdeviceptr *)(memory + p->n)};
  device_answer answer = DEVICE_REFUSES;
  memset(memory, 0, bytes);
  if (l_launch_values(p, ints, scalars, r.values) && gpu_enter(s)) {
    uint64_t error = 0;
    answer = DEVICE_FAILS;
    if (place(&r, buffers, ints, scalars) && phases(&r, &error))
      answer = error == ~(uint64_t)0 ? DEVICE_DONE : DEVICE_REFUSES;
    for (uint32_t b = 0; b < p->nbuffers; b++)
      if (p->buffers[b].mode == BUF_SCRATCH && r.buffers[b]) gpu_free(s, r.buffers[b], scratch_bytes(&r, b));
    if (r.block) gpu_free(s, r.block, r.block_bytes);
    gpu_leave(s);
  }
  if (memory != few) mem_free(vm, memory, bytes);
  return answer;
}

const device_kernels gpu_kernels = {
    .ready = ready, .launch = launch, .has_product = gpu_has_product, .product = gpu_product};

/* ---- copies between layouts -------------------------------------------------------------------------------------------------- */

/* k<COPY_HASH>_0 .. _3 move elements of 1, 2, 4 and 8 bytes; strides in elements, as many axes as there can be. */
#define COPY_HASH 0x636f707920616c6cull
#define COPY_NAME "k636f707920616c6c"
static const char copy_text[] =
    "typedef long long i64; typedef struct plan { i64 n, shape[8], to[8], from[8]; int rank; } plan;\n"
    "#define COPY(name, T) extern \"C\" __global__ void name(T *to, const T *from, plan p) { \\\n"
    "  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < p.n; i += (i64)gridDim.x * blockDim.x) { \\\n"
    "    i64 r = i, a = 0, b = 0; \\\n"
    "    for (int k = p.rank - 1; k >= 0; k--) { const i64 q = r / p.shape[k], m = r - q * p.shape[k]; \\\n"
    "      a += m * p.to[k]; b += m * p.from[k]; r = q; } \\\n"
    "    to[a] = from[b]; } }\n"
    "COPY(" COPY_NAME "_0, unsigned char) COPY(" COPY_NAME "_1, unsigned short) COPY(" COPY_NAME
    "_2, unsigned) COPY(" COPY_NAME "_3, unsigned long long)\n";
typedef struct copy_plan {
  int64_t n, shape[8], to[8], from[8];
  int rank;
} copy_plan;
_Static_assert(ARRAY_MAX_RANK == 8, "the kernels' plan has 8 axes");

static gpu_code *copy_code(qn_vm *vm, gpu_stream *s) {
  gpu_code *c = gpu_code_find(s->engine, s->number, COPY_HASH);
  if (!c) {
    static const uint64_t hash = COPY_HASH;
    static const uint32_t functions = 4;
    gpu_unit u = {.text = malloc(sizeof copy_text),
                  .len = sizeof copy_text - 1,
                  .n = 1,
                  .hashes = &hash,
                  .nfunctions = &functions,
                  .cache_bytes = vm->tune[TUNE_cache_bytes]};
    if (u.text) memcpy(u.text, copy_text, sizeof copy_text);
    if (!u.text || !gpu_compile(s->engine, s->number, &u)) return NULL;
    c = gpu_code_find(s->engine, s->number, COPY_HASH);
  }
  if (c && (vm->config.jit == QN_JIT_SYNC || vm->config.jit == QN_JIT_VERIFY)) gpu_code_wait(s->engine, c);
  return c && atomic_load_explicit(&c->state, memory_order_acquire) == CODE_READY ? c : NULL;
}

/* The elements that a layout reaches, from the first to behind the last. */
static void extent(const qn_array *a, int64_t *low, int64_t *high) {
  *low = *high = a->offset;
  for (int i = 0; i < a->rank; i++) *(a->strides[i] < 0 ? low : high) += (a->shape[i] - 1) * a->strides[i];
  ++*high;
}

/* A header for the same layout over a copy, in the CPU's memory, of what it reaches. False when it cannot be had. */
static bool fetch(qn_vm *vm, gpu_stream *s, const qn_array *a, qn_array *header, qn_storage *storage, size_t *bytes) {
  int64_t low, high, size = (int64_t)dtype_size((qn_dtype)a->dtype);
  extent(a, &low, &high);
  *bytes = (size_t)((high - low) * size);
  char *data = mem_buffer(vm, *bytes);
  if (!data) return false;
  *header = *a;
  *storage = (qn_storage){.refs = 1, .bytes = *bytes, .data = data};
  header->storage = storage;
  header->offset = a->offset - low;
  header->device = 0;
  if (gpu_read(vm, s, data, (CUdeviceptr)(uintptr_t)(a->storage->data + low * size), *bytes)) return true;
  mem_buffer_free(vm, data, *bytes);
  return false;
}

/* The slow way, while there is no kernel. */
static bool copy_on_host(qn_vm *vm, gpu_stream *s, qn_array *to, const qn_array *from) {
  qn_array a, b;
  qn_storage x, y;
  size_t a_bytes, b_bytes;
  int64_t low, high;
  if (!fetch(vm, s, from, &b, &y, &b_bytes)) return false;
  bool ok = fetch(vm, s, to, &a, &x, &a_bytes);
  if (ok) {
    array_copy_elements(&a, &b);
    extent(to, &low, &high);
    char *data = to->storage->data + low * (int64_t)dtype_size((qn_dtype)to->dtype);
    ok = gpu_write(vm, s, (CUdeviceptr)(uintptr_t)data, x.data, a_bytes);
    mem_buffer_free(vm, x.data, a_bytes);
  }
  mem_buffer_free(vm, y.data, b_bytes);
  return ok;
}

static bool copy(qn_vm *vm, gpu_stream *s, qn_array *to, const qn_array *from) {
  int size = (int)dtype_size((qn_dtype)to->dtype);
  CUdeviceptr t = (CUdeviceptr)(uintptr_t)array_data(to), f = (CUdeviceptr)(uintptr_t)array_data(from);
  CUresult rc;
  if (to->contiguous && from->contiguous) {
    rc = driver(s)->cuMemcpyDtoDAsync_v2(t, f, (size_t)to->size * (size_t)size, s->stream);
    return rc == GPU_OK || gpu_raise(vm, s, rc, "a copy");
  }
  const gpu_code *code = copy_code(vm, s);
  if (!code || size > 8) return copy_on_host(vm, s, to, from);
  copy_plan p = {.n = to->size};
  for (int i = 0; i < to->rank; i++) { /* neighbours that follow each other without gaps are one axis */
    if (to->shape[i] == 1) continue;
    int k = p.rank;
    if (k && p.to[k - 1] == to->strides[i] * to->shape[i] && p.from[k - 1] == from->strides[i] * to->shape[i])
      p.shape[--k] *= to->shape[i];
    else
      p.shape[k] = to->shape[i];
    p.to[k] = to->strides[i];
    p.from[k] = from->strides[i];
    p.rank = k + 1;
  }
  void *arguments[] = {&t, &f, &p};
  int64_t blocks = (p.n + 255) / 256, most = (int64_t)s->device->units * 16;
  rc = driver(s)->cuLaunchKernel(code->functions[__builtin_ctz((unsigned)size)],
                                 (unsigned)(blocks < most ? blocks : most), 1, 1, 256, 1, 1, 0, s->stream, arguments,
                                 NULL);
  return rc == GPU_OK || gpu_raise(vm, s, rc, "a copy");
}

bool gpu_copy_elements(qn_vm *vm, qn_array *to, const qn_array *from) {
  if (to->size == 0) return true;
  gpu_stream *s = gpu_stream_of(vm, to->device);
  if (!s) return false;
  if (!gpu_enter(s)) return gpu_raise(vm, s, GPU_NO_DEVICE, "a copy");
  bool ok = copy(vm, s, to, from);
  gpu_leave(s);
  return ok;
}
