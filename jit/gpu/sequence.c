/* Plans on a device: consecutive kernels, and products between them, are launched as one sequence.
 *
 *   device plan ── programs, constants
 *        └─ sequences: kernels (joined: and products) from a step on
 *                └─ instances, for the last size vectors: words, grids, scratch, a graph
 *
 * What depends on sizes is computed once and kept in an instance: the ints, the numbers of blocks, where scratch lies. A later
 * call with these sizes writes addresses and host scalars into the instance's words (emit.h) and
 *   - launches the functions one by one, with the words as their parameters: sizes that are seen for the first time, and single
 *     functions; or
 *   - sends the words to their block on the device, all with one copy, and launches a graph, whose kernels find their words in the
 *     block. So a graph never changes; it is made when sizes come for the second time. In a loop addresses take turns: a few blocks
 *     are kept, each with its graph, and one that holds these words already needs no copy.
 * Kernels come one after the other, so all of them share the stream's scratch.
 *
 * Products (by the device's library, gemm.c) are captured and become children of the graph. Their addresses cannot be patched:
 * those of operands, results and of the scratch. So these stand behind the words that are sent, and a graph runs only where they
 * are what it was made with; otherwise it is made anew. That is worth it for addresses that come again, as they do in a loop, since
 * memory that is given back is used again. `debt` tells whether they do: making a graph counts in it, running one takes off. A plan
 * with too much of it, or one whose products cannot be captured, is given up: from then on it is called with kernels alone, and
 * products are asked for one by one.
 *
 * Checks. Kernels of a plan share an error cell and count their checks on, so that the lowest number is the first failure in the
 * program's order; kernels behind it do nothing. It is asked for once, at the end of a call.
 */
#include <stdlib.h>
#include <string.h>

#include "jit/gpu/block_vm.h"
#include "jit/kernel/emit.h"
#include "jit/kernel/launch.h"
#include "jit/kernel/plan.h"

enum { INSTANCES = 8, BLOCKS = 4, BLOCK_NODES = 256, MOST_CHECKS = 65535 /* a number has 16 bits */ };
enum { CAPTURE_DEBT = 16, MOST_DEBT = 16 * CAPTURE_DEBT };

typedef struct function {
  CUfunction f; /* NULL: a product */
  unsigned blocks, threads, shared;
  uint32_t at; /* the first of its program's words, or of the product's addresses */
  int64_t instances;
  const gpu_made *product;
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
  CUdeviceptr at;    /* on the device; 0: none */
  CUgraphExec graph; /* reads the block; made for the words behind those that are sent */
  uint64_t *words;   /* what the block holds, if `sent` */
  bool sent;
  uint64_t used; /* instance.calls when it was used last */
} block;

typedef struct instance {
  struct instance *next; /* the one that was used before this one */
  size_t bytes;          /* of the piece of memory that all tables lie in */
  int64_t *key;
  uint64_t *words;
  function *functions;
  pointer *pointers;
  number *scalars;
  place *places;
  uint32_t nwords,
      nsent; /* all words; those that are sent. Behind these: three addresses for each product, and that of the scratch */
  uint32_t nfunctions, npointers, nnumbers, nplaces, nproducts;
  size_t scratch;
  CUdeviceptr base; /* address of the scratch, as the words have it */
  bool by_value;    /* every program's words can be parameters */
  bool no_graph;    /* a graph could not be made */
  bool numbers;     /* host scalars have changed since the last call: no words will come again */
  uint64_t calls;
  uint32_t nblocks;
  block blocks[BLOCKS];
} instance;

typedef struct sequence {
  uint32_t first, n;
  bool fallible;       /* kernels have checks, or may run without end */
  bool varies;         /* grids or scratch depend on host scalars, which then are a part of the key */
  uint32_t nkey;       /* words of an instance's key: sizes, and those scalars */
  instance *instances; /* used last first */
} sequence;

typedef struct gpu_plan {
  device_plan shown;
  size_t bytes; /* of the piece of memory that all tables lie in */
  gpu_stream *stream;
  bool ready, placed;
  bool fallible; /* calls are waited for; an interrupt may stop their kernels, since their results are dropped then */
  bool pending;  /* fallible kernels of this call have run */
  device_program *programs, **list;
  sequence **of_step;    /* by step: the sequence of kernels that begins with it */
  sequence **joined;     /* by step: the sequence of kernels and products that begins with it */
  uint32_t debt;         /* what making graphs with products has cost (see above) */
  bool apart;            /* no graphs with products are made any more */
  uint32_t *first_check; /* by step: the number that its checks count from */
  uint32_t checks;       /* one more than the number of the last check */
} gpu_plan;

/* ---- making and freeing ------------------------------------------------------------------------------------------------- */

static size_t sent_bytes(const instance *i) { return i->nsent * sizeof *i->words; }

/* Frees the block's graph. A launch of it that is running goes on. */
static void drop_graph(const gpu_stream *s, block *b) {
  if (b->graph && gpu_ours(s->engine)) gpu_driver(s)->cuGraphExecDestroy(b->graph);
  b->graph = NULL;
}

static void instance_free(qn_vm *vm, gpu_stream *s, instance *i) {
  for (uint32_t k = 0; k < i->nblocks; k++) {
    drop_graph(s, &i->blocks[k]);
    if (i->blocks[k].at) gpu_free(vm, s, i->blocks[k].at, sent_bytes(i));
    mem_free(vm, i->blocks[k].words, i->nwords * sizeof *i->words);
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

static void sequences_free(qn_vm *vm, gpu_plan *g, sequence **list) {
  for (uint32_t k = 0; k < g->shown.plan->nsteps && list; k++) {
    if (list[k]) sequence_free(vm, g->stream, list[k]);
    list[k] = NULL;
  }
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
  sequences_free(vm, g, g->of_step);
  sequences_free(vm, g, g->joined);
  for (uint32_t b = 0; b < p->nbuffers; b++)
    if (there->constants[b]) gpu_free(vm, g->stream, (CUdeviceptr)(uintptr_t)there->constants[b], constant_bytes(p, b));
  if (entered) gpu_leave(g->stream);
  mem_free(vm, g, g->bytes);
}

static gpu_plan *open_plan(qn_vm *vm, int device, const plan *p) {
  gpu_stream *s = gpu_stream_of(vm, device);
  size_t pointers = p->nbuffers + 2 * (size_t)p->nsteps + p->nkernels;
  size_t bytes = sizeof(gpu_plan) + pointers * sizeof(void *) + p->nkernels * sizeof(device_program) +
                 p->nsteps * sizeof(uint32_t);
  gpu_plan *g = s ? mem_zalloc(vm, bytes) : NULL;
  if (!g) return NULL;
  g->bytes = bytes;
  g->shown = (device_plan){.plan = p, .device = device, .constants = (void **)(void *)(g + 1)};
  g->stream = s;
  g->of_step = (sequence **)(void *)(g->shown.constants + p->nbuffers);
  g->joined = g->of_step + p->nsteps;
  g->list = (device_program **)(void *)(g->joined + p->nsteps);
  g->programs = (device_program *)(void *)(g->list + p->nkernels);
  g->first_check = (uint32_t *)(void *)(g->programs + p->nkernels);
  for (uint32_t k = 0; k < p->nkernels; k++) {
    g->programs[k] = (device_program){.program = p->kernels[k].program, .hash = p->kernels[k].hash};
    g->programs[k].second = p->kernels[k].statics == STATICS_KNOWN;
    g->list[k] = &g->programs[k];
  }
  g->checks = 1; /* number 0 stands for a kernel that was stopped */
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
  g->ready = g->shown.compiled = how == RUNS_COMPILED;
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

/* The program of a step; NULL: it is not a kernel. */
static const l_program *program_of(const plan *p, uint32_t step) {
  return p->steps[step].kind == STEP_KERNEL ? p->kernels[p->steps[step].what].program : NULL;
}

static bool is_product(const plan *p, uint32_t step) {
  return p->steps[step].kind == STEP_LIBRARY && p->steps[step].op == OP_gemm;
}

/* The sequence of n steps from `first` on, made when it is first wanted. NULL with an error raised. */
static sequence *sequence_of(qn_vm *vm, gpu_plan *g, uint32_t first, uint32_t n, bool joined) {
  sequence **list = joined ? g->joined : g->of_step, *q = list[first];
  if (q && q->n == n) return q;
  if (q) sequence_free(vm, g->stream, q);
  if (!(list[first] = q = mem_zalloc(vm, sizeof *q))) return NULL;
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

/* Is the instance for the call's sizes (and scalars, if these matter)? */
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
  size_t words = 0, functions = 0, pointers = 0, numbers = 0, places = 0, products = 0;
  for (uint32_t k = q->first; k < q->first + q->n; k++) {
    const plan_step *step = &p->steps[k];
    const l_program *l = program_of(p, k);
    products += is_product(p, k);
    if (!l) continue;
    const gpu_code *code = g->programs[step->what].code;
    words += emit_cuda_words(l);
    functions += code->nfunctions - 1;
    pointers += l->nbuffers;
    numbers += l->nscalars;
    places += 1 + l->nbuffers - step->nbuffers;
  }
  uint32_t sent = (uint32_t)words;
  functions += products;
  pointers += 3 * products;
  if (products) words += 3 * products + 1;
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
  i->nsent = sent;
  i->by_value = true;
  return i;
}

typedef struct tables { /* room for the numbers of one step at a time */
  int64_t *ints, *values;
  qk_scalar *scalars;
} tables;

/* Adds a step that is a kernel: its phases, and its words from `at` on. */
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
    l_layout layout = l_layout_of(&l->code[v]);
    if (instances > 0)
      i->functions[i->nfunctions++] = (function){code->functions[j],
                                                 gpu_blocks(s, &u, layout, instances),
                                                 (unsigned)(layout.threads * layout.groups),
                                                 u.shared,
                                                 at,
                                                 instances,
                                                 NULL};
  }
  return DEVICE_DONE;
}

/* Adds a step that is a product. */
static device_answer add_product(qn_vm *vm, const gpu_plan *g, instance *i, uint32_t step_number,
                                 const device_call *call) {
  static const uint64_t nowhere[3];
  device_gemm p;
  if (!call->product(call, step_number, &p)) return DEVICE_REFUSES;
  if (p.batch < 1 || p.m < 1 || p.n < 1) return DEVICE_DONE;
  const gpu_made *made = gpu_gemm_made(vm, g->stream, &p);
  if (!made) return DEVICE_REFUSES;
  uint32_t at = i->nsent + 3 * i->nproducts++;
  for (uint32_t k = 0; k < 3; k++)
    i->pointers[i->npointers++] = (pointer){at + k, g->shown.plan->steps[step_number].buffers[k]};
  size_t scratch = gpu_gemm_scratch(made, nowhere);
  if (scratch > i->scratch) i->scratch = scratch;
  i->functions[i->nfunctions++] = (function){.at = at, .product = made};
  return DEVICE_DONE;
}

/* Makes an instance for the call's sizes and puts it in front of the others, of which the last may go. */
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
      if (is_product(p, k)) answer = add_product(vm, g, i, k, call);
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
  if (p->graph->dims.n) memcpy(i->key, call->symbols, p->graph->dims.n * sizeof *i->key);
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

static bool add_kernel(const gpu_stream *s, instance *i, CUdeviceptr block, const function *f, CUgraph graph,
                       CUgraphNode *last) {
  CUdeviceptr words = block + f->at * sizeof *i->words;
  int64_t instances = f->instances;
  void *arguments[] = {&words, &instances, i->words + f->at};
  CUDA_KERNEL_NODE_PARAMS_v2 node = {.func = f->f,
                                     .gridDimX = f->blocks,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = f->threads,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .sharedMemBytes = f->shared,
                                     .kernelParams = arguments};
  return gpu_driver(s)->cuGraphAddKernelNode_v2(last, graph, *last ? last : NULL, *last != NULL, &node) == GPU_OK;
}

static bool add_captured(gpu_stream *s, const instance *i, const function *f, CUgraph graph, CUgraphNode *last) {
  CUgraph child = gpu_gemm_capture(s, f->product, i->words + f->at, i->base);
  if (!child) return false;
  CUresult rc = gpu_driver(s)->cuGraphAddChildGraphNode(last, graph, *last ? last : NULL, *last != NULL, child);
  gpu_driver(s)->cuGraphDestroy(child); /* the node has a copy */
  return rc == GPU_OK;
}

/* Makes the block's graph of the instance's functions, or notes that it cannot be made. */
static void make_graph(gpu_stream *s, instance *i, block *b) {
  const cuda_driver *d = gpu_driver(s);
  CUgraph graph = NULL;
  CUgraphNode last = NULL;
  bool ok = d->cuGraphCreate(&graph, 0) == GPU_OK;
  for (uint32_t k = 0; k < i->nfunctions && ok; k++) {
    const function *f = &i->functions[k];
    ok = f->product ? add_captured(s, i, f, graph, &last) : add_kernel(s, i, b->at, f, graph, &last);
  }
  if (!ok || d->cuGraphInstantiateWithFlags(&b->graph, graph, 0) != GPU_OK) {
    b->graph = NULL;
    i->no_graph = true;
  }
  if (graph) d->cuGraphDestroy(graph);
}

/* A new block of the instance; NULL with an error raised. */
static block *new_block(qn_vm *vm, gpu_stream *s, instance *i) {
  size_t bytes = i->nwords * sizeof *i->words;
  block *b = &i->blocks[i->nblocks];
  if (!(b->words = mem_zalloc(vm, bytes))) return NULL;
  if (i->nsent && !(b->at = gpu_alloc(vm, s, sent_bytes(i)))) {
    mem_free(vm, b->words, bytes);
    return NULL;
  }
  i->nblocks++;
  return b;
}

/* Would a graph made for the block's words do for the instance's? What is sent may differ. */
static bool like(const instance *i, const block *b) {
  return memcmp(b->words + i->nsent, i->words + i->nsent, (i->nwords - i->nsent) * sizeof *i->words) == 0;
}

/* A block that holds the instance's words; NULL with an error raised. One that holds them already is best. Else a new one, if there may be more
 * and the words may come again; else the one that was used longest ago, if possible of those whose graph will do. */
static block *block_of(qn_vm *vm, gpu_stream *s, instance *i) {
  size_t bytes = i->nwords * sizeof *i->words;
  block *b = NULL, *fit = NULL;
  for (uint32_t k = 0; k < i->nblocks; k++) {
    block *x = &i->blocks[k];
    if (!i->numbers && x->sent && memcmp(x->words, i->words, bytes) == 0) {
      x->used = i->calls;
      return x;
    }
    if (!b || x->used < b->used) b = x;
    if (like(i, x) && (!fit || x->used < fit->used)) fit = x;
  }
  bool room = i->nblocks < BLOCKS && i->nfunctions <= BLOCK_NODES;
  if (!i->nblocks || (room && (!fit || !i->numbers)))
    b = new_block(vm, s, i);
  else if (fit)
    b = fit;
  if (!b) return NULL;
  if (!like(i, b)) drop_graph(s, b);
  memcpy(b->words, i->words, bytes);
  b->used = i->calls;
  b->sent = gpu_write(vm, s, b->at, b->words, sent_bytes(i));
  return b->sent ? b : NULL;
}

/* ---- running --------------------------------------------------------------------------------------------------------------- */

/* Writes the call's addresses and host scalars to the words. */
static void write_words(instance *i, const device_call *call) {
  for (uint32_t k = 0; k < i->npointers; k++)
    i->words[i->pointers[k].word] = (uint64_t)(uintptr_t)call->buffers[i->pointers[k].buffer];
  i->numbers = false;
  for (uint32_t k = 0; k < i->nnumbers; k++) {
    uint64_t *w = &i->words[i->scalars[k].word], x = (uint64_t)call->slots[i->scalars[k].slot].i;
    i->numbers |= *w != x;
    *w = x;
  }
}

/* Makes the scratch large enough and writes its address to the words. */
static bool place_scratch(qn_vm *vm, gpu_stream *s, instance *i) {
  size_t most = i->scratch;
  for (uint32_t k = 0; k < i->nfunctions && i->nproducts; k++) {
    const function *f = &i->functions[k];
    size_t bytes = f->product ? gpu_gemm_scratch(f->product, i->words + f->at) : 0;
    if (bytes > most) most = bytes;
  }
  if (most && !gpu_scratch(vm, s, most)) return false;
  CUdeviceptr base = most ? s->scratch : 0;
  if (i->base != base)
    for (uint32_t k = 0; k < i->nplaces; k++) i->words[i->places[k].word] = base + i->places[k].offset;
  if (i->nwords > i->nsent) i->words[i->nwords - 1] = base;
  i->base = base;
  return true;
}

static bool run_function(qn_vm *vm, gpu_stream *s, const instance *i, const function *f, CUdeviceptr block) {
  if (f->product) return gpu_gemm_run(vm, s, f->product, i->words + f->at, i->base);
  CUdeviceptr words = block ? block + f->at * sizeof *i->words : 0;
  return gpu_launch(vm, s, f->f, f->blocks, f->threads, f->shared, words, f->instances, i->words + f->at);
}

/* From now on no graphs with products are made; the log says why. */
static void give_up(qn_vm *vm, gpu_plan *g, const char *why) {
  if (!g->apart && vm_logs(vm, LOG_kernels))
    vm_logf(vm, LOG_kernels, "gpu(%d): the plan of %u kernels and %u products is several graphs: %s", g->stream->number,
            g->shown.plan->nkernels, g->shown.plan->nproducts, why);
  g->apart = true;
}

static bool launch(qn_vm *vm, gpu_plan *g, instance *i) {
  gpu_stream *s = g->stream;
  bool graph = i->calls++ && i->nfunctions > 1 && !i->no_graph && !(i->nproducts && g->apart);
  block *b = graph || !i->by_value ? block_of(vm, s, i) : NULL;
  if (!b && (graph || !i->by_value)) return false;
  if (graph && !b->graph) {
    make_graph(s, i, b);
    if (i->nproducts && i->no_graph)
      give_up(vm, g, "the products cannot be captured");
    else if (i->nproducts && (g->debt += CAPTURE_DEBT) > MOST_DEBT)
      give_up(vm, g, "its products' addresses keep changing");
  } else if (graph && g->debt) {
    g->debt--;
  }
  if (graph && b->graph) {
    CUresult rc = gpu_driver(s)->cuGraphLaunch(b->graph, s->stream);
    return rc == GPU_OK || gpu_raise(vm, s, rc, "a launch");
  }
  bool ok = true;
  for (uint32_t k = 0; k < i->nfunctions && ok; k++) ok = run_function(vm, s, i, &i->functions[k], b ? b->at : 0);
  return ok;
}

/* Runs one kernel by the block VM, while the plan's kernels are being compiled. */
static device_answer interpret(qn_vm *vm, gpu_plan *g, const device_call *call, uint32_t number) {
  const plan *p = g->shown.plan;
  const plan_step *step = &p->steps[number];
  const l_program *l = p->kernels[step->what].program;
  if (l->nints != step->nints || l->nscalars != step->nscalars || l->nbuffers < step->nbuffers) return DEVICE_REFUSES;
  size_t bytes = ((size_t)step->nints + step->nscalars + step->nbuffers + l->n + l->nbuffers) * sizeof(int64_t);
  int64_t *ints = mem_alloc(vm, bytes);
  if (!ints) return DEVICE_FAILS;
  qk_scalar *scalars = (qk_scalar *)(ints + step->nints);
  void **buffers = (void **)(void *)(scalars + step->nscalars);
  int64_t *values = (int64_t *)(void *)(buffers + step->nbuffers);
  for (uint32_t k = 0; k < step->nints; k++) ints[k] = dim_eval(&p->graph->dims, step->ints[k], call->symbols);
  for (uint32_t k = 0; k < step->nscalars; k++) scalars[k] = call->slots[step->scalars[k]];
  for (uint32_t k = 0; k < step->nbuffers; k++) buffers[k] = call->buffers[step->buffers[k]];
  g->pending |= l->nchecks > 0 || l_unbounded(l);
  device_answer answer = DEVICE_REFUSES;
  if (l_launch_values(l, ints, scalars, values))
    answer = block_vm_run(vm, g->stream, g->list[step->what], buffers, ints, scalars, values, g->fallible,
                          g->first_check[number]);
  mem_free(vm, ints, bytes);
  return answer;
}

/* Runs the sequence's steps by the instance for the call's sizes. */
static device_answer run_sequence(qn_vm *vm, gpu_plan *g, const device_call *call, sequence *q) {
  instance *i = find(g, q, call);
  device_answer answer = i ? DEVICE_DONE : make(vm, g, q, call);
  if (answer != DEVICE_DONE) return answer;
  i = q->instances;
  write_words(i, call);
  if (!place_scratch(vm, g->stream, i)) return DEVICE_FAILS;
  g->pending |= q->fallible;
  return launch(vm, g, i) ? DEVICE_DONE : DEVICE_FAILS;
}

device_answer gpu_plan_kernels(qn_vm *vm, device_plan *there, const device_call *call, uint32_t first, uint32_t n) {
  gpu_plan *g = (gpu_plan *)there;
  gpu_stream *s = g->stream;
  bool joined = false;
  for (uint32_t k = first; k < first + n && !joined; k++) joined = is_product(there->plan, k);
  if (joined && !g->ready) return DEVICE_REFUSES;
  sequence *q = g->ready ? sequence_of(vm, g, first, n, joined) : NULL;
  if (g->ready && !q) return DEVICE_FAILS;
  if (!gpu_enter(s)) return DEVICE_REFUSES;
  device_answer answer = DEVICE_DONE;
  if (g->fallible && !g->pending && !gpu_cells(vm, s)) answer = DEVICE_FAILS;
  for (uint32_t k = first; k < first + n && !g->ready && answer == DEVICE_DONE; k++)
    if (there->plan->steps[k].kind == STEP_KERNEL) answer = interpret(vm, g, call, k);
  if (g->ready && answer == DEVICE_DONE) answer = run_sequence(vm, g, call, q);
  if (joined && answer == DEVICE_REFUSES) give_up(vm, g, "the device refuses them together");
  gpu_scratch_leave(s);
  gpu_leave(s);
  return answer;
}

bool gpu_plan_joins(qn_vm *vm, device_plan *there) {
  gpu_plan *g = (gpu_plan *)there;
  if (!g->ready || !g->apart) return g->ready;
  if (g->joined && gpu_enter(g->stream)) {
    sequences_free(vm, g, g->joined);
    g->joined = NULL;
    gpu_leave(g->stream);
  }
  return false;
}

device_answer gpu_plan_checks(qn_vm *vm, device_plan *there) {
  gpu_plan *g = (gpu_plan *)there;
  gpu_stream *s = g->stream;
  uint64_t error = ~(uint64_t)0;
  if (!g->pending) return DEVICE_DONE;
  g->pending = false;
  if (error_pending(vm)) { /* the call has failed: its kernels are stopped, and not waited for */
    s->abandoned = true;
    __atomic_store_n(&s->mapped->stop, 1, __ATOMIC_RELEASE);
    return DEVICE_FAILS;
  }
  if (!gpu_enter(s)) return DEVICE_REFUSES;
  bool ok = gpu_checked(vm, s, &error);
  gpu_leave(s);
  return !ok ? DEVICE_FAILS : error == ~(uint64_t)0 ? DEVICE_DONE : DEVICE_REFUSES;
}
