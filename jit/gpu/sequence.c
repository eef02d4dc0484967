/* Plans on a device: consecutive kernels run as one.
 *
 *   device plan ── programs, constants
 *        └─ sequences: kernels from a step on
 *                └─ instances, for the last size vectors: words, grids, scratch, a graph
 *
 * All that sizes decide is found out once and kept in an instance: the ints, the numbers of blocks, where scratch lies. A later
 * call with these sizes writes addresses and host scalars into the instance's words (emit.h) and
 *   - launches the functions one by one, with the words as their parameters: sizes that are seen for the first time, and single
 *     functions; or
 *   - sends the words to their block on the device, all with one copy, and launches a graph, whose kernels find their words in the
 *     block. So nothing of the graph itself ever changes; it is made when sizes come for the second time. In a loop addresses
 *     take turns: a few blocks are kept, each with its graph, and one that holds these words already needs no copy.
 * Kernels come one after the other, so all of them share the stream's scratch.
 *
 * Checks. Kernels of a plan share an error cell and count their checks on, so that the lowest number is the first failure in the
 * program's order; kernels behind it do nothing. It is asked for once, at the end of a call.
 */
#include <stdlib.h>
#include <string.h>

#include "jit/gpu/block_vm.h"
#include "jit/kernel/emit.h"
#include "jit/kernel/plan.h"

enum { INSTANCES = 8, BLOCKS = 4, BLOCK_NODES = 256, MOST_CHECKS = 65535 /* a number has 16 bits */ };

typedef struct function {
  CUfunction f;
  unsigned blocks, shared;
  uint32_t at; /* the first of its program's words */
  int64_t instances;
} function;
typedef struct pointer {
  uint32_t word, buffer;
} pointer;
typedef struct number {
  uint32_t word, slot;
} number;
typedef struct place { /* in scratch */
  uint32_t word;
  size_t offset;
} place;

typedef struct block {
  CUdeviceptr at;    /* 0: none */
  CUgraphExec graph; /* that reads it */
  uint64_t *words;   /* what it holds, if `sent` */
  bool sent;
  uint64_t used; /* when: a number of instance.calls */
} block;

typedef struct instance {
  struct instance *next; /* used before this one */
  size_t bytes;          /* of the piece of memory that all tables lie in */
  int64_t *key;
  uint64_t *words;
  function *functions;
  pointer *pointers;
  number *scalars;
  place *places;
  uint32_t nwords, nfunctions, npointers, nnumbers, nplaces;
  size_t scratch;
  CUdeviceptr base; /* of the scratch that the words tell */
  bool by_value;    /* every program's words can be parameters */
  bool no_graph;    /* it could not be made */
  bool numbers;     /* host scalars have changed since the last call: no words will come again */
  uint64_t calls;
  uint32_t nblocks;
  block blocks[BLOCKS];
} instance;

typedef struct sequence {
  uint32_t first, n;
  bool fallible; /* kernels have checks, or may run without end */
  bool varies;   /* host scalars decide about grids or scratch: they are a part of the key */
  uint32_t nkey;
  instance *instances; /* used last first */
} sequence;

typedef struct gpu_plan {
  device_plan shown;
  gpu_stream *stream;
  bool ready, placed;
  bool fallible; /* calls are waited for; an interrupt may stop their kernels, since their results are dropped then */
  bool pending;  /* fallible kernels of this call have run */
  device_program *programs, **list;
  sequence **of_step;    /* that begins with the step */
  uint32_t *first_check; /* by step: the number that its checks count from */
  uint32_t checks;       /* behind the last one */
} gpu_plan;

static const cuda_driver *driver(const gpu_stream *s) { return &s->engine->libraries.driver; }

/* ---- making and freeing ------------------------------------------------------------------------------------------------- */

static void instance_free(qn_vm *vm, gpu_stream *s, instance *i) {
  size_t bytes = i->nwords * sizeof *i->words;
  for (uint32_t k = 0; k < i->nblocks; k++) {
    if (i->blocks[k].graph && gpu_ours(s->engine)) driver(s)->cuGraphExecDestroy(i->blocks[k].graph);
    gpu_free(vm, s, i->blocks[k].at, bytes);
    mem_free(vm, i->blocks[k].words, bytes);
  }
  mem_free(vm, i, i->bytes);
}

static void sequence_free(qn_vm *vm, gpu_stream *s, sequence *q) {
  for (instance *i = q->instances, *next; i; i = next) {
    next = i->next;
    instance_free(vm, s, i);
  }
  mem_free(vm, q, sizeof *q);
}

static size_t constant_bytes(const plan *p, uint32_t b) {
  qn_dim n = p->buffers[b].elements; /* a number: constants have no symbolic sizes */
  return (size_t)(n > 0 ? n : 0) * dtype_size((qn_dtype)p->buffers[b].dtype);
}

void gpu_plan_close(qn_vm *vm, device_plan *there) {
  if (!there) return;
  gpu_plan *g = (gpu_plan *)there;
  const plan *p = there->plan;
  bool entered = gpu_ours(g->stream->engine) && gpu_enter(g->stream);
  for (uint32_t k = 0; k < p->nsteps && g->of_step; k++)
    if (g->of_step[k]) sequence_free(vm, g->stream, g->of_step[k]);
  for (uint32_t b = 0; b < p->nbuffers && there->constants; b++)
    if (there->constants[b]) gpu_free(vm, g->stream, (CUdeviceptr)(uintptr_t)there->constants[b], constant_bytes(p, b));
  if (entered) gpu_leave(g->stream);
  mem_free(vm, there->constants, (p->nbuffers + 1) * sizeof *there->constants);
  mem_free(vm, g->of_step, (p->nsteps + 1) * sizeof *g->of_step);
  mem_free(vm, g->first_check, (p->nsteps + 1) * sizeof *g->first_check);
  mem_free(vm, g->programs, (p->nkernels + 1) * sizeof *g->programs);
  mem_free(vm, g->list, (p->nkernels + 1) * sizeof *g->list);
  mem_free(vm, g, sizeof *g);
}

static gpu_plan *open_plan(qn_vm *vm, int device, const plan *p) {
  gpu_stream *s = gpu_stream_of(vm, device);
  gpu_plan *g = s ? mem_zalloc(vm, sizeof *g) : NULL;
  if (!g) return NULL;
  g->shown = (device_plan){.plan = p, .device = device};
  g->stream = s;
  if (!(g->shown.constants = mem_zalloc(vm, (p->nbuffers + 1) * sizeof *g->shown.constants)) ||
      !(g->of_step = mem_zalloc(vm, (p->nsteps + 1) * sizeof *g->of_step)) ||
      !(g->first_check = mem_zalloc(vm, (p->nsteps + 1) * sizeof *g->first_check)) ||
      !(g->programs = mem_zalloc(vm, (p->nkernels + 1) * sizeof *g->programs)) ||
      !(g->list = mem_zalloc(vm, (p->nkernels + 1) * sizeof *g->list))) {
    gpu_plan_close(vm, &g->shown);
    return NULL;
  }
  for (uint32_t k = 0; k < p->nkernels; k++) {
    g->programs[k] = (device_program){.program = p->kernels[k].program, .hash = p->kernels[k].hash};
    g->list[k] = &g->programs[k];
  }
  g->checks = 1; /* 0 is that of kernels that were stopped */
  for (uint32_t k = 0; k < p->nsteps; k++) {
    g->first_check[k] = g->checks;
    if (p->steps[k].kind != STEP_KERNEL) continue;
    const l_program *l = p->kernels[p->steps[k].what].program;
    g->checks += l->nchecks + l_unbounded(l);
    g->fallible = g->checks > 1;
  }
  return g;
}

bool gpu_plan_ready(qn_vm *vm, int device, const plan *p, device_plan **there, bool wait) {
  gpu_plan *g = (gpu_plan *)*there;
  if (g && g->shown.device != device) {
    gpu_plan_close(vm, *there);
    *there = NULL;
    g = NULL;
  }
  if (g && g->ready) return true;
  if (!g) {
    if (!(g = open_plan(vm, device, p))) {
      error_clear(vm);
      return false;
    }
    *there = &g->shown;
  }
  if (g->checks > MOST_CHECKS) return false;
  gpu_runs how = gpu_ready(vm, device, g->list, p->nkernels, wait);
  g->ready = how == RUNS_COMPILED;
  return how != RUNS_NOT;
}

bool gpu_plan_begin(qn_vm *vm, device_plan *there) {
  gpu_plan *g = (gpu_plan *)there;
  gpu_stream *s = g->stream;
  const plan *p = there->plan;
  g->pending = false;
  if (g->placed) return true;
  if (!gpu_enter(s)) return gpu_raise(vm, s, GPU_NO_DEVICE, "a plan");
  bool ok = true;
  for (uint32_t b = 0; b < p->nbuffers && ok; b++) {
    if (p->buffers[b].where != WHERE_CONST || there->constants[b]) continue;
    size_t bytes = constant_bytes(p, b);
    CUdeviceptr at = gpu_alloc(vm, s, bytes);
    ok = at && gpu_write(vm, s, at, p->buffers[b].data, bytes);
    if (ok)
      there->constants[b] = (void *)(uintptr_t)at;
    else if (at)
      gpu_free(vm, s, at, bytes);
  }
  gpu_leave(s);
  return g->placed = ok;
}

/* The program of a step; NULL: it is no kernel. */
static const l_program *program_of(const plan *p, uint32_t step) {
  return p->steps[step].kind == STEP_KERNEL ? p->kernels[p->steps[step].what].program : NULL;
}

static sequence *sequence_of(qn_vm *vm, gpu_plan *g, uint32_t first, uint32_t n) {
  sequence *q = g->of_step[first];
  if (q && q->n == n) return q;
  if (q) sequence_free(vm, g->stream, q);
  if (!(g->of_step[first] = q = mem_zalloc(vm, sizeof *q))) return NULL;
  const plan *p = g->shown.plan;
  q->first = first;
  q->n = n;
  for (uint32_t k = first; k < first + n; k++) {
    const l_program *l = program_of(p, k);
    if (!l) continue;
    q->fallible |= l->nchecks > 0 || l_unbounded(l);
    q->varies |= l_launch_scalars(l) || (l->nscalars && l_needs_scratch(l));
  }
  q->nkey = p->graph->dims.n + (q->varies ? p->nscalars : 0);
  return q;
}

/* ---- instances ------------------------------------------------------------------------------------------------------------- */

static bool fits(const gpu_plan *g, const sequence *q, const instance *i, const device_call *call) {
  size_t symbols = g->shown.plan->graph->dims.n * sizeof *i->key;
  return (!symbols || memcmp(i->key, call->symbols, symbols) == 0) &&
         (!q->varies || memcmp(i->key + g->shown.plan->graph->dims.n, call->slots,
                               g->shown.plan->nscalars * sizeof *call->slots) == 0);
}

/* The instance for the call's sizes, moved to the front; NULL: there is none. */
static instance *find(const gpu_plan *g, sequence *q, const device_call *call) {
  for (instance **at = &q->instances; *at; at = &(*at)->next) {
    instance *i = *at;
    if (!fits(g, q, i, call)) continue;
    *at = i->next;
    i->next = q->instances;
    return q->instances = i;
  }
  return NULL;
}

/* Memory for the largest instance that the sequence can have. */
static instance *empty_instance(qn_vm *vm, const gpu_plan *g, const sequence *q) {
  const plan *p = g->shown.plan;
  size_t words = 0, functions = 0, pointers = 0, numbers = 0, places = 0;
  for (uint32_t k = q->first; k < q->first + q->n; k++) {
    const plan_step *step = &p->steps[k];
    const l_program *l = program_of(p, k);
    if (!l) continue;
    const gpu_code *code = g->programs[step->what].code;
    words += emit_cuda_words(l);
    functions += code->nfunctions - 1;
    pointers += l->nbuffers;
    numbers += l->nscalars;
    places += 1 + l->nbuffers - step->nbuffers;
  }
  size_t bytes = sizeof(instance) + q->nkey * sizeof(int64_t) + words * sizeof(uint64_t) +
                 functions * sizeof(function) + places * sizeof(place) + pointers * sizeof(pointer) +
                 numbers * sizeof(number);
  instance *i = mem_zalloc(vm, bytes);
  if (!i) return NULL;
  i->bytes = bytes;
  i->key = (int64_t *)(void *)(i + 1);
  i->words = (uint64_t *)(void *)(i->key + q->nkey);
  i->functions = (function *)(void *)(i->words + words);
  i->places = (place *)(void *)(i->functions + functions);
  i->pointers = (pointer *)(void *)(i->places + places);
  i->scalars = (number *)(void *)(i->pointers + pointers);
  i->nwords = (uint32_t)words;
  i->by_value = true;
  return i;
}

typedef struct tables { /* for one step at a time */
  int64_t *ints, *values;
  qk_scalar *scalars;
} tables;

/* Adds a step, its words from `at` on. */
static device_answer add_step(qn_vm *vm, const gpu_plan *g, instance *i, uint32_t step_number, uint32_t at,
                              const device_call *call, const tables *t) {
  const plan *p = g->shown.plan;
  gpu_stream *s = g->stream;
  const plan_step *step = &p->steps[step_number];
  const l_program *l = p->kernels[step->what].program;
  const gpu_code *code = g->programs[step->what].code;
  uint64_t *words = i->words + at;
  uint32_t w = at + EMIT_WORDS_HEAD, given = 0;
  gpu_setup u;
  for (uint32_t k = 0; k < step->nints; k++) t->ints[k] = dim_eval(&p->graph->dims, step->ints[k], call->symbols);
  for (uint32_t k = 0; k < step->nscalars; k++) t->scalars[k] = call->slots[step->scalars[k]];
  t->values[0] = 0;
  if (!l_launch_values(l, t->ints, t->scalars, t->values)) return DEVICE_REFUSES;
  if (!gpu_set_up(vm, s, &u, l, code, t->ints, t->scalars, t->values)) return DEVICE_FAILS;
  i->by_value &= u.by_value;
  if (u.scratch > i->scratch) i->scratch = u.scratch;
  gpu_place_scratch(&u, t->values, 0, words);
  if (u.piece) i->places[i->nplaces++] = (place){at, u.pieces_at};
  for (uint32_t b = 0; b < l->nbuffers; b++, w++) {
    if (l->buffers[b].mode == BUF_SCRATCH)
      i->places[i->nplaces++] = (place){w, words[EMIT_WORDS_HEAD + b]};
    else
      i->pointers[i->npointers++] = (pointer){w, step->buffers[given++]};
  }
  for (uint32_t k = 0; k < step->nints; k++) i->words[w++] = (uint64_t)t->ints[k];
  for (uint32_t k = 0; k < step->nscalars; k++) i->scalars[i->nnumbers++] = (number){w++, step->scalars[k]};
  words[3] = g->first_check[step_number];
  for (uint32_t j = 0, v = 1; j + 1 < code->nfunctions; j++, v++) {
    while (l->code[v].code != L_PAR) v++;
    int64_t instances = t->values[l->code[v].a];
    if (instances > 0)
      i->functions[i->nfunctions++] =
          (function){code->functions[j], gpu_blocks(s, &u, instances), u.shared, at, instances};
  }
  return DEVICE_DONE;
}

/* An instance for the call's sizes, in front of the others. */
static device_answer make(qn_vm *vm, gpu_plan *g, sequence *q, const device_call *call) {
  const plan *p = g->shown.plan;
  gpu_stream *s = g->stream;
  uint32_t ints = 0, scalars = 0, values = 0;
  for (uint32_t k = q->first; k < q->first + q->n; k++) {
    const plan_step *step = &p->steps[k];
    const l_program *l = program_of(p, k);
    if (!l) continue;
    if (l->nints != step->nints || l->nscalars != step->nscalars || l->nbuffers < step->nbuffers) return DEVICE_REFUSES;
    if (step->nints > ints) ints = step->nints;
    if (step->nscalars > scalars) scalars = step->nscalars;
    if (l->n > values) values = l->n;
  }
  instance *i = empty_instance(vm, g, q);
  size_t bytes = ((size_t)ints + scalars + values) * sizeof(int64_t);
  int64_t *memory = i ? mem_alloc(vm, bytes) : NULL;
  device_answer answer = memory ? DEVICE_DONE : DEVICE_FAILS;
  if (memory) {
    tables t = {memory, memory + ints, (qk_scalar *)(memory + ints + values)};
    uint32_t at = 0;
    for (uint32_t k = q->first; k < q->first + q->n && answer == DEVICE_DONE; k++) {
      if (!program_of(p, k)) continue;
      answer = add_step(vm, g, i, k, at, call, &t);
      at += emit_cuda_words(program_of(p, k));
    }
    mem_free(vm, memory, bytes);
  }
  if (answer != DEVICE_DONE) {
    if (i) instance_free(vm, s, i);
    return answer;
  }
  for (uint32_t k = q->first, at = 0; k < q->first + q->n; k++) {
    const l_program *l = program_of(p, k);
    if (!l) continue;
    if (g->fallible) i->words[at + 1] = s->cell;
    if (g->fallible) i->words[at + 2] = s->mapped_there + offsetof(gpu_mapped, stop);
    at += emit_cuda_words(l);
  }
  memcpy(i->key, call->symbols, p->graph->dims.n * sizeof *i->key);
  if (q->varies) memcpy(i->key + p->graph->dims.n, call->slots, p->nscalars * sizeof *call->slots);
  i->next = q->instances;
  q->instances = i;
  uint32_t count = 1;
  for (instance **x = &i->next; *x; count++) {
    if (count < INSTANCES) {
      x = &(*x)->next;
      continue;
    }
    instance *old = *x;
    *x = old->next;
    instance_free(vm, s, old);
  }
  return DEVICE_DONE;
}

/* ---- graphs ----------------------------------------------------------------------------------------------------------------- */

static bool add_nodes(const gpu_stream *s, const instance *i, CUdeviceptr at, CUgraph graph) {
  CUgraphNode last = NULL;
  for (uint32_t k = 0; k < i->nfunctions; k++) {
    const function *f = &i->functions[k];
    CUdeviceptr words = at + f->at * sizeof *i->words;
    int64_t instances = f->instances;
    void *arguments[] = {&words, &instances, i->words + f->at};
    CUDA_KERNEL_NODE_PARAMS_v2 node = {.func = f->f,
                                       .gridDimX = f->blocks,
                                       .gridDimY = 1,
                                       .gridDimZ = 1,
                                       .blockDimX = GPU_THREADS,
                                       .blockDimY = 1,
                                       .blockDimZ = 1,
                                       .sharedMemBytes = f->shared,
                                       .kernelParams = arguments};
    if (driver(s)->cuGraphAddKernelNode_v2(&last, graph, k ? &last : NULL, k > 0, &node) != GPU_OK) return false;
  }
  return true;
}

/* A graph of the instance's functions that reads the block, if that can be had. */
static void make_graph(const gpu_stream *s, instance *i, block *b) {
  const cuda_driver *d = driver(s);
  CUgraph graph = NULL;
  if (d->cuGraphCreate(&graph, 0) != GPU_OK || !add_nodes(s, i, b->at, graph) ||
      d->cuGraphInstantiateWithFlags(&b->graph, graph, 0) != GPU_OK) {
    b->graph = NULL;
    i->no_graph = true;
  }
  if (graph) d->cuGraphDestroy(graph);
}

/* Another block; NULL with an error raised. */
static block *new_block(qn_vm *vm, gpu_stream *s, instance *i) {
  size_t bytes = i->nwords * sizeof *i->words;
  block *b = &i->blocks[i->nblocks];
  if (!(b->words = mem_alloc(vm, bytes))) return NULL;
  if (!(b->at = gpu_alloc(vm, s, bytes))) {
    mem_free(vm, b->words, bytes);
    return NULL;
  }
  i->nblocks++;
  return b;
}

/* A block that holds the words; NULL with an error raised. */
static block *block_of(qn_vm *vm, gpu_stream *s, instance *i) {
  size_t bytes = i->nwords * sizeof *i->words;
  block *b = NULL;
  for (uint32_t k = 0; k < i->nblocks && !i->numbers; k++) {
    b = &i->blocks[k];
    if (!b->sent || memcmp(b->words, i->words, bytes) != 0) continue;
    b->used = i->calls;
    return b;
  }
  bool more = !i->nblocks || (i->nblocks < BLOCKS && !i->numbers && i->nfunctions <= BLOCK_NODES);
  if (more && !(b = new_block(vm, s, i))) return NULL;
  for (uint32_t k = 0; k < i->nblocks && !more; k++)
    if (k == 0 || i->blocks[k].used < b->used) b = &i->blocks[k];
  memcpy(b->words, i->words, bytes);
  b->used = i->calls;
  b->sent = gpu_write(vm, s, b->at, b->words, bytes);
  return b->sent ? b : NULL;
}

/* ---- running --------------------------------------------------------------------------------------------------------------- */

static void write_words(instance *i, const device_call *call, CUdeviceptr scratch) {
  for (uint32_t k = 0; k < i->npointers; k++)
    i->words[i->pointers[k].word] = (uint64_t)(uintptr_t)call->buffers[i->pointers[k].buffer];
  i->numbers = false;
  for (uint32_t k = 0; k < i->nnumbers; k++) {
    uint64_t *w = &i->words[i->scalars[k].word], x = (uint64_t)call->slots[i->scalars[k].slot].i;
    i->numbers |= *w != x;
    *w = x;
  }
  if (i->base != scratch)
    for (uint32_t k = 0; k < i->nplaces; k++) i->words[i->places[k].word] = scratch + i->places[k].offset;
  i->base = scratch;
}

static bool launch(qn_vm *vm, gpu_stream *s, instance *i) {
  CUresult rc = GPU_OK;
  bool graph = i->calls++ && i->nfunctions > 1 && !i->no_graph;
  block *b = graph || !i->by_value ? block_of(vm, s, i) : NULL;
  if (!b && (graph || !i->by_value)) return false;
  if (graph && !b->graph) make_graph(s, i, b);
  if (graph && b->graph) {
    rc = driver(s)->cuGraphLaunch(b->graph, s->stream);
    return rc == GPU_OK || gpu_raise(vm, s, rc, "a launch");
  }
  for (uint32_t k = 0; k < i->nfunctions && rc == GPU_OK; k++) {
    const function *f = &i->functions[k];
    CUdeviceptr words = b ? b->at + f->at * sizeof *i->words : 0;
    int64_t instances = f->instances;
    void *arguments[] = {&words, &instances, i->words + f->at};
    rc = driver(s)->cuLaunchKernel(f->f, f->blocks, 1, 1, GPU_THREADS, 1, 1, f->shared, s->stream, arguments, NULL);
  }
  return rc == GPU_OK || gpu_raise(vm, s, rc, "a launch");
}

/* The block VM takes the kernels one by one, while they are compiled. */
static device_answer interpret(qn_vm *vm, gpu_plan *g, const device_call *call, uint32_t number) {
  const plan *p = g->shown.plan;
  const plan_step *step = &p->steps[number];
  const l_program *l = p->kernels[step->what].program;
  if (l->nints != step->nints || l->nscalars != step->nscalars || l->nbuffers < step->nbuffers) return DEVICE_REFUSES;
  bool checks = l->nchecks > 0 || l_unbounded(l);
  size_t bytes = ((size_t)step->nints + step->nscalars + step->nbuffers + 1) * sizeof(int64_t);
  int64_t *ints = mem_alloc(vm, bytes);
  if (!ints) return DEVICE_FAILS;
  qk_scalar *scalars = (qk_scalar *)(ints + step->nints);
  void **buffers = (void **)(void *)(scalars + step->nscalars);
  for (uint32_t k = 0; k < step->nints; k++) ints[k] = dim_eval(&p->graph->dims, step->ints[k], call->symbols);
  for (uint32_t k = 0; k < step->nscalars; k++) scalars[k] = call->slots[step->scalars[k]];
  for (uint32_t k = 0; k < step->nbuffers; k++) buffers[k] = call->buffers[step->buffers[k]];
  g->pending |= checks;
  device_answer answer =
      block_vm_run(vm, g->stream, g->list[step->what], buffers, ints, scalars, g->fallible, g->first_check[number]);
  mem_free(vm, ints, bytes);
  return answer;
}

device_answer gpu_plan_kernels(qn_vm *vm, device_plan *there, const device_call *call, uint32_t first, uint32_t n) {
  gpu_plan *g = (gpu_plan *)there;
  gpu_stream *s = g->stream;
  sequence *q = g->ready ? sequence_of(vm, g, first, n) : NULL;
  if (g->ready && !q) return DEVICE_FAILS;
  if (!gpu_enter(s)) return DEVICE_REFUSES;
  device_answer answer = DEVICE_DONE;
  if (g->fallible && !g->pending && !gpu_cells(vm, s)) answer = DEVICE_FAILS;
  for (uint32_t k = first; k < first + n && !g->ready && answer == DEVICE_DONE; k++)
    if (there->plan->steps[k].kind == STEP_KERNEL) answer = interpret(vm, g, call, k);
  instance *i = g->ready && answer == DEVICE_DONE ? find(g, q, call) : NULL;
  if (g->ready && answer == DEVICE_DONE && !i && (answer = make(vm, g, q, call)) == DEVICE_DONE) i = q->instances;
  if (i && i->scratch && !gpu_scratch(vm, s, i->scratch)) answer = DEVICE_FAILS;
  if (i && answer == DEVICE_DONE) {
    g->pending |= q->fallible;
    write_words(i, call, i->scratch ? s->scratch : 0);
    if (!launch(vm, s, i)) answer = DEVICE_FAILS;
  }
  gpu_scratch_leave(s);
  gpu_leave(s);
  return answer;
}

device_answer gpu_plan_checks(qn_vm *vm, device_plan *there) {
  gpu_plan *g = (gpu_plan *)there;
  gpu_stream *s = g->stream;
  uint64_t error = ~(uint64_t)0;
  if (!g->pending) return DEVICE_DONE;
  g->pending = false;
  if (error_pending(vm)) { /* interrupted: nobody waits */
    s->abandoned = true;
    __atomic_store_n(&s->mapped->stop, 1, __ATOMIC_RELEASE);
    return DEVICE_FAILS;
  }
  if (!gpu_enter(s)) return DEVICE_REFUSES;
  bool ok = gpu_checked(vm, s, &error);
  gpu_leave(s);
  return !ok ? DEVICE_FAILS : error == ~(uint64_t)0 ? DEVICE_DONE : DEVICE_REFUSES;
}
