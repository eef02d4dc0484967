/* Launching one program, and copies between layouts, which are a kernel too (state.h).
 *
 * A launch hands over the words of emit.h: as the kernels' parameters if they are few enough, else in a block of the device's memory. Phases
 * run in order on the VM's stream; blocks of threads share the instances. A launch does not wait, but for two things: the error cell of
 * programs with checks, at the end; and, once for sizes that come again, how much scratch the program needs, which its last function
 * answers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/gpu/block_vm.h"
#include "jit/gpu/words.h"
#include "jit/kernel/emit.h"
#include "jit/kernel/launch.h"

/* A multiprocessor has UNIT_THREADS threads at a time. Blocks are so many that each has TURNS times that many: what a block begins with is shared
 * by a few instances, and the device still deals blocks out as others end (an H200 moves 8 % less where as many blocks as fit at a
 * time take turns). */
enum { BLOCKS_PER_UNIT = 32, UNIT_THREADS = 2048, TURNS = 8 };
#define SCRATCH_MOST ((size_t)256 << 20)

/* ---- code ---------------------------------------------------------------------------------------------------------------- */

/* Hands the programs that nobody has asked for yet to the compiler, as one unit. `wait`: compiles them on this thread. False when memory is
 * short. */
static bool ask(qn_vm *vm, gpu_stream *s, device_program *const *programs, uint32_t n, bool wait) {
  code_unit asked;
  text_buf text = {0};
  bool ok = code_unit_open(&asked, n), second = true;
  for (uint32_t i = 0; i < n && ok; i++) {
    if (gpu_code_find(s->engine, s->number, programs[i]->hash)) continue;
    ok = code_unit_add(&asked, programs[i]->program, programs[i]->hash);
    second &= programs[i]->second;
  }
  if (ok && asked.n) {
    emit_cuda(asked.programs, asked.names, asked.n, &text);
    gpu_unit u = {.text = text.text,
                  .len = text.len,
                  .n = asked.n,
                  .hashes = asked.hashes,
                  .nfunctions = asked.functions,
                  .cache_bytes = vm->tune[TUNE_cache_bytes],
                  .second = second,
                  .here = wait};
    ok = !text.failed && gpu_compile(s->engine, s->number, &u);
  }
  text_free(&text);
  code_unit_close(&asked);
  return ok;
}

/* The program's code on this device, if that is known already. */
static gpu_code *code_of(const device_program *p, int number) {
  gpu_code *c = p->code;
  return c && c->device == number ? c : NULL;
}

static bool has_code(const device_program *p, int number) {
  const gpu_code *c = code_of(p, number);
  return c && atomic_load_explicit(&c->state, memory_order_acquire) == CODE_READY;
}

/* How the block VM is used: the tunable gpu.vm. */
enum { BLOCK_VM_NEVER, BLOCK_VM_UNTIL_CODE, BLOCK_VM_ALONE };

/* May the block VM run the program now? `wait`: for the interpreter. */
static bool interprets(qn_vm *vm, gpu_stream *s, const device_program *p, bool wait) {
  return vm->tune[TUNE_gpu_vm] != BLOCK_VM_NEVER && block_vm_ready(vm, s, p, wait);
}

gpu_runs gpu_ready(qn_vm *vm, int device, device_program *const *programs, uint32_t n, bool wait) {
  bool all = true, alone = vm->tune[TUNE_gpu_vm] == BLOCK_VM_ALONE;
  for (uint32_t i = 0; i < n && all; i++) all = has_code(programs[i], device_number(device));
  if (all && !alone) return RUNS_COMPILED;
  gpu_stream *s = gpu_stream_of(vm, device);
  if (!s) {
    error_clear(vm);
    return RUNS_NOT;
  }
  all = alone;
  for (uint32_t i = 0; i < n && all; i++) all = interprets(vm, s, programs[i], true);
  if (all) return RUNS_INTERPRETED;
  for (uint32_t i = 0; i < n; i++) {
    device_program *p = programs[i];
    if (code_of(p, s->number) || (p->code = gpu_code_find(s->engine, s->number, p->hash))) continue;
    if (!ask(vm, s, programs + i, n - i, wait)) return RUNS_NOT;
    p->code = gpu_code_find(s->engine, s->number, p->hash);
  }
  gpu_runs how = RUNS_COMPILED;
  for (uint32_t i = 0; i < n && how != RUNS_NOT; i++) {
    if (programs[i]->code && wait) gpu_code_wait(s->engine, programs[i]->code);
    if (!has_code(programs[i], s->number)) how = interprets(vm, s, programs[i], false) ? RUNS_INTERPRETED : RUNS_NOT;
  }
  if (how == RUNS_INTERPRETED) /* then all must be: programs of a plan run one way */
    for (uint32_t i = 0; i < n && how; i++) how = interprets(vm, s, programs[i], false) ? how : RUNS_NOT;
  return how;
}

static bool ready(qn_vm *vm, int device, device_program *const *programs, uint32_t n, bool wait) {
  return gpu_ready(vm, device, programs, n, wait) != RUNS_NOT;
}

/* ---- launching -------------------------------------------------------------------------------------------------------------- */

unsigned gpu_few_blocks(const gpu_stream *s, size_t piece, int64_t blocks) {
  int64_t most = (int64_t)s->device->units * BLOCKS_PER_UNIT;
  if (piece && (int64_t)(SCRATCH_MOST / piece) < most) most = (int64_t)(SCRATCH_MOST / piece);
  if (most < 1) most = 1;
  return (unsigned)(blocks < most ? blocks : most);
}

unsigned gpu_blocks(const gpu_stream *s, const gpu_setup *u, l_layout l, int64_t instances) {
  int64_t blocks = instances / l.groups + (instances % l.groups != 0);
  if (u->piece) return gpu_few_blocks(s, u->piece, blocks);
  int64_t most = (int64_t)s->device->units * (TURNS * UNIT_THREADS / (l.threads * l.groups));
  return (unsigned)(blocks < most ? blocks : most);
}

bool gpu_launch(qn_vm *vm, const gpu_stream *s, CUfunction f, unsigned blocks, unsigned threads, unsigned shared,
                CUdeviceptr block, int64_t instances, void *words) {
  void *arguments[] = {&block, &instances, words};
  CUresult rc = gpu_driver(s)->cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, shared, s->stream, arguments, NULL);
  return rc == GPU_OK || gpu_raise(vm, s, rc, "a launch");
}

bool gpu_words_open(qn_vm *vm, gpu_words *w, uint32_t n) {
  w->n = n;
  w->block = 0;
  w->all = n <= EMIT_WORDS_BY_VALUE ? w->few : mem_alloc(vm, n * sizeof *w->all);
  return w->all != NULL;
}

bool gpu_words_send(qn_vm *vm, gpu_stream *s, gpu_words *w) {
  size_t bytes = w->n * sizeof *w->all;
  return w->all == w->few || ((w->block = gpu_alloc(vm, s, bytes)) != 0 && gpu_write(vm, s, w->block, w->all, bytes));
}

void gpu_words_close(qn_vm *vm, gpu_stream *s, gpu_words *w) {
  if (w->block) gpu_free(vm, s, w->block, w->n * sizeof *w->all);
  if (w->all != w->few) mem_free(vm, w->all, w->n * sizeof *w->all);
}

enum { ASKS_MORE = 63 }; /* the bit that says that scratch depends on more than ints */

/* The ints that the program's scratch depends on, a bit each, and ASKS_MORE. Few or none, as a rule, where calls have other sizes each time. */
static uint64_t scratch_from(qn_vm *vm, gpu_stream *s, const l_program *p, const gpu_code *code) {
  gpu_rule *r = &s->rules[((uint64_t)(uintptr_t)code >> 4) * 0x9e3779b97f4a7c15u >> 32 & (GPU_MEMOS - 1)];
  if (r->code == code) return r->of;
  uint64_t of = p->nints > GPU_MEMO_INTS ? (uint64_t)1 << ASKS_MORE : 0;
  uint8_t *sizes = mem_zalloc(vm, p->n);
  if (!sizes || !emit_cuda_sizes(p, sizes)) of = (uint64_t)1 << ASKS_MORE;
  for (l_val v = 1; v < p->n && sizes; v++) {
    const l_instr *i = &p->code[v];
    if (!sizes[v] || i->code == L_INT || l_is_index_op(i->code)) continue;
    of |= (uint64_t)1 << (i->code == L_PARAM && i->imm < GPU_MEMO_INTS ? i->imm : ASKS_MORE);
  }
  if (sizes) {
    mem_free(vm, sizes, p->n);
    *r = (gpu_rule){code, of};
  } else {
    error_clear(vm);
  }
  return of;
}

/* Sets u->piece, the bytes of scratch that a block of threads needs. The program's last function answers for its ints and scalars, and is waited
 * for; answers are kept in s->memos, by the ints that they depend on. */
static bool ask_scratch(qn_vm *vm, gpu_stream *s, gpu_setup *u, const int64_t *ints, const qk_scalar *scalars) {
  const l_program *p = u->p;
  uint64_t hash = ((uint64_t)(uintptr_t)u->code >> 4) * 0x9e3779b97f4a7c15u;
  uint64_t of = scratch_from(vm, s, p, u->code);
  bool keeps = !(of >> ASKS_MORE);
  int64_t key[GPU_MEMO_INTS] = {0};
  for (uint32_t i = 0; i < p->nints && keeps; i++) {
    if (of >> i & 1) key[i] = ints[i];
    hash = (hash ^ (uint64_t)key[i]) * 0x9e3779b97f4a7c15u;
  }
  size_t bytes = (size_t)p->nints * sizeof *ints;
  gpu_memo *m = &s->memos[hash >> 32 & (GPU_MEMOS - 1)];
  if (keeps && m->code == u->code && memcmp(m->ints, key, sizeof key) == 0) {
    u->piece = m->scratch;
    return true;
  }
  if (!gpu_cells(vm, s)) return false;
  gpu_words w;
  if (!gpu_words_open(vm, &w, u->words)) return false;
  memset(w.all, 0, u->words * sizeof *w.all);
  w.all[0] = s->mapped_there + offsetof(gpu_mapped, scratch);
  if (bytes) memcpy(w.all + EMIT_WORDS_HEAD + p->nbuffers, ints, bytes);
  if (p->nscalars) memcpy(w.all + EMIT_WORDS_HEAD + p->nbuffers + p->nints, scalars, p->nscalars * sizeof *scalars);
  bool ok = gpu_words_send(vm, s, &w) &&
            gpu_launch(vm, s, u->code->functions[u->code->nfunctions - 1], 1, 1, 0, w.block, 0, w.all);
  if (ok && !(ok = gpu_wait(vm, s, "a kernel"))) s->abandoned = true;
  gpu_words_close(vm, s, &w);
  if (!ok) return false;
  u->piece = (size_t)s->mapped->scratch;
  if (keeps) {
    m->code = u->code;
    m->scratch = u->piece;
    memcpy(m->ints, key, sizeof key);
  }
  return true;
}

size_t gpu_scratch_buffers(const l_program *p, const int64_t *values, CUdeviceptr base, uint64_t *addresses) {
  size_t bytes = 0;
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    if (p->buffers[b].mode != BUF_SCRATCH) continue;
    int64_t n = values[p->buffers[b].size];
    if (addresses) addresses[b] = base + bytes;
    bytes += ((size_t)(n > 0 ? n : 0) * dtype_size((qn_dtype)p->buffers[b].dtype) + 255) & ~(size_t)255;
  }
  return bytes;
}

bool gpu_set_up(qn_vm *vm, gpu_stream *s, gpu_setup *u, const l_program *p, const gpu_code *code, const int64_t *ints,
                const qk_scalar *scalars, const int64_t *values) {
  *u = (gpu_setup){.p = p, .code = code, .words = emit_cuda_words(p)};
  u->by_value = u->words <= EMIT_WORDS_BY_VALUE;
  u->scratch = u->pieces_at = gpu_scratch_buffers(p, values, 0, NULL);
  if (!l_needs_scratch(p)) return true;
  if (!ask_scratch(vm, s, u, ints, scalars)) return false;
  if (u->piece <= GPU_SHARED && code->shares) {
    u->shared = (unsigned)u->piece;
    u->piece = 0;
    return true;
  }
  unsigned most = 1;
  for (l_val v = 1; v < p->n; v++) {
    if (p->code[v].code != L_PAR || values[p->code[v].a] <= 0) continue;
    unsigned blocks = gpu_blocks(s, u, l_layout_of(&p->code[v]), values[p->code[v].a]);
    if (blocks > most) most = blocks;
  }
  u->scratch += u->piece * most;
  return true;
}

void gpu_place_scratch(const gpu_setup *u, const int64_t *values, CUdeviceptr base, uint64_t *words) {
  words[0] = u->piece ? base + u->pieces_at : 0;
  (void)gpu_scratch_buffers(u->p, values, base, words + EMIT_WORDS_HEAD);
}

/* Launches the phases with their words. */
static bool phases(qn_vm *vm, gpu_stream *s, const gpu_setup *u, const int64_t *values, gpu_words *words) {
  const l_program *p = u->p;
  bool ok = gpu_words_send(vm, s, words);
  for (uint32_t j = 0, v = 1; j + 1 < u->code->nfunctions && ok; j++, v++) {
    while (p->code[v].code != L_PAR) v++;
    int64_t instances = values[p->code[v].a];
    l_layout l = l_layout_of(&p->code[v]);
    if (instances > 0)
      ok = gpu_launch(vm, s, u->code->functions[j], gpu_blocks(s, u, l, instances), (unsigned)(l.threads * l.groups),
                      u->shared, words->block, instances, words->all);
  }
  return ok;
}

/* Launches compiled code, and waits for nothing. */
static bool run(qn_vm *vm, gpu_stream *s, const gpu_setup *u, void *const *buffers, const int64_t *ints,
                const qk_scalar *scalars, const int64_t *values, bool waits) {
  const l_program *p = u->p;
  gpu_words w;
  if (u->scratch && !gpu_scratch(vm, s, u->scratch)) return false;
  if (!gpu_words_open(vm, &w, u->words)) return false;
  uint64_t *at = w.all + EMIT_WORDS_HEAD;
  w.all[1] = waits ? s->cell : 0;
  w.all[2] = waits ? s->mapped_there + offsetof(gpu_mapped, stop) : 0;
  w.all[3] = 1;
  for (uint32_t b = 0; b < p->nbuffers; b++)
    *at++ = p->buffers[b].mode == BUF_SCRATCH ? 0 : (uint64_t)(uintptr_t)*buffers++;
  for (uint32_t i = 0; i < p->nints; i++) *at++ = (uint64_t)ints[i];
  for (uint32_t i = 0; i < p->nscalars; i++) *at++ = (uint64_t)scalars[i].i;
  gpu_place_scratch(u, values, s->scratch, w.all);
  bool ok = phases(vm, s, u, values, &w);
  gpu_words_close(vm, s, &w);
  return ok;
}

static device_answer launch(qn_vm *vm, int device, const device_program *program, void *const *buffers,
                            const int64_t *ints, const qk_scalar *scalars) {
  const l_program *p = program->program;
  gpu_stream *s = gpu_stream_of(vm, device);
  if (!s) return DEVICE_FAILS;
  bool compiled =
      has_code(program, s->number) && !(vm->tune[TUNE_gpu_vm] == BLOCK_VM_ALONE && interprets(vm, s, program, true));
  size_t bytes = ((size_t)p->n + p->nbuffers) * sizeof(int64_t);
  int64_t few[512], *values = bytes <= sizeof few ? few : mem_alloc(vm, bytes);
  if (!values) return DEVICE_FAILS;
  bool waits = p->nchecks || l_unbounded(p);
  device_answer answer = DEVICE_REFUSES;
  uint64_t error = ~(uint64_t)0;
  gpu_setup u;
  if (l_launch_values(p, ints, scalars, values) && gpu_enter(s)) {
    answer = DEVICE_FAILS;
    if (!waits || gpu_cells(vm, s)) {
      if (!compiled)
        answer = block_vm_run(vm, s, program, buffers, ints, scalars, values, waits, 1);
      else if (gpu_set_up(vm, s, &u, p, program->code, ints, scalars, values) &&
               run(vm, s, &u, buffers, ints, scalars, values, waits))
        answer = DEVICE_DONE;
      s->abandoned |= waits && answer == DEVICE_FAILS;
      if (answer == DEVICE_DONE && waits && !gpu_checked(vm, s, &error)) answer = DEVICE_FAILS;
    }
    gpu_scratch_leave(s);
    gpu_leave(s);
  }
  if (values != few) mem_free(vm, values, bytes);
  return answer == DEVICE_DONE && error != ~(uint64_t)0 ? DEVICE_REFUSES : answer;
}

const device_kernels gpu_kernels = {.ready = ready,
                                    .launch = launch,
                                    .plan_ready = gpu_plan_ready,
                                    .plan_begin = gpu_plan_begin,
                                    .plan_kernels = gpu_plan_kernels,
                                    .plan_joins = gpu_plan_joins,
                                    .plan_checks = gpu_plan_checks,
                                    .plan_close = gpu_plan_close,
                                    .has_gemm = gpu_has_gemm,
                                    .product = gpu_gemm,
                                    .sort = gpu_sort,
                                    .compress = gpu_compress,
                                    .recurrence = gpu_recurrence};

/* ---- copies between layouts -------------------------------------------------------------------------------------------------- */

/* The range of elements of the storage that the array's layout reaches: *low .. *high - 1. */
static void extent(const qn_array *a, int64_t *low, int64_t *high) {
  *low = *high = a->offset;
  for (int i = 0; i < a->rank; i++) *(a->strides[i] < 0 ? low : high) += (a->shape[i] - 1) * a->strides[i];
  ++*high;
}

/* Copies what the array's layout reaches to the CPU's memory (freed by the caller: `bytes` at storage->data), and makes `header` an array of the
 * same layout over it. False with an error raised. */
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

/* Copies elements by way of the CPU, while there is no kernel for it. */
static bool copy_on_host(qn_vm *vm, gpu_stream *s, qn_array *to, const qn_array *from) {
  qn_array a, b;
  qn_storage x, y;
  size_t a_bytes, b_bytes;
  int64_t low, high;
  if (!fetch(vm, s, from, &b, &y, &b_bytes)) return false;
  bool ok = fetch(vm, s, to, &a, &x, &a_bytes);
  if (ok) {
    extent(to, &low, &high);
    char *data = to->storage->data + low * (int64_t)dtype_size((qn_dtype)to->dtype);
    ok = array_copy_watched(vm, &a, &b) && gpu_write(vm, s, (CUdeviceptr)(uintptr_t)data, x.data, a_bytes);
    mem_buffer_free(vm, x.data, a_bytes);
  }
  mem_buffer_free(vm, y.data, b_bytes);
  return ok;
}

static bool copy(qn_vm *vm, gpu_stream *s, qn_array *to, const qn_array *from) {
  int size = (int)dtype_size((qn_dtype)to->dtype);
  CUdeviceptr t = (CUdeviceptr)(uintptr_t)array_data(to), f = (CUdeviceptr)(uintptr_t)array_data(from);
  if (to->contiguous && from->contiguous) {
    CUresult rc = gpu_driver(s)->cuMemcpyDtoDAsync_v2(t, f, (size_t)to->size * (size_t)size, s->stream);
    return rc == GPU_OK || gpu_raise(vm, s, rc, "a copy");
  }
  if (size > 8 || !gpu_text_code(vm, s, TEXT_OWN)) return copy_on_host(vm, s, to, from);
  copy_words p = {.to = t, .from = f, .n = to->size, .size = size};
  for (int i = 0; i < to->rank; i++) { /* neighbours that follow each other without gaps are one axis */
    if (to->shape[i] == 1) continue;
    int k = p.rank;
    if (k && p.to_step[k - 1] == to->strides[i] * to->shape[i] && p.from_step[k - 1] == from->strides[i] * to->shape[i])
      p.shape[--k] *= to->shape[i];
    else
      p.shape[k] = to->shape[i];
    p.to_step[k] = to->strides[i];
    p.from_step[k] = from->strides[i];
    p.rank = k + 1;
  }
  return gpu_text_launch(vm, s, TEXT_OWN, OWN_COPY, (p.n + THREADS - 1) / THREADS, &p);
}

bool gpu_copy_elements(qn_vm *vm, qn_array *to, const qn_array *from) {
  if (to->size == 0) return true;
  gpu_stream *s = gpu_entered(vm, to->device, "a copy");
  if (!s) return false;
  bool ok = copy(vm, s, to, from);
  gpu_leave(s);
  return ok;
}
