/* The row device_cpu, and launching kernels (cpu.h): phases one after the other, each over the instances [0, n) of its PAR.
 *
 * Threads. All parallel work of an engine is done by one pool of threads (thread_pool.h); one VM at a time may open parallel regions,
 * others run serially and get the same bits. A phase goes parallel when
 * its work passes par.grain. Threads take chunks of instances from a counter; between chunks they look at the interrupt flag.
 * Every thread has a frame of its own (locals, accumulators, registers) in memory that the VM keeps from launch to launch.
 *
 * Failed checks. Each thread keeps the smallest failure it saw (check number, then element), with the offending value; the
 * smallest of all is the error, whatever the number of threads. Compiled code only keeps the number and element, so when the
 * value is wanted the kernel runs once more on the block VM.
 */
#include "jit/cpu/cpu.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "jit/cpu/compile.h"
#include "jit/cpu/library.h"
#include "jit/cpu/opbody.h"
#include "jit/cpu/thread_pool.h"
#include "lang/trace_events.h"

/* ---- state --------------------------------------------------------------------------------------------------------------------- */

enum { MAX_THREADS = 256 };

typedef struct cpu_piece {
  void *data;
  size_t bytes;
} cpu_piece;

struct cpu_state {
  cpu_kept kept;
  int threads;
  cpu_piece frames[MAX_THREADS]; /* memory of each thread's frame */
  cpu_piece slab;                /* the arena of the running plan */
};

bool cpu_open(qn_vm *vm) {
  if (vm->devices[FAMILY_cpu]) return true;
  struct cpu_state *s = mem_zalloc(vm, sizeof *s);
  if (!s) return false;
  s->kept.loops = bvm_loops_pick();
  s->threads = vm->config.threads > 0 ? vm->config.threads : thread_pool_processors();
  if (s->threads > MAX_THREADS) s->threads = MAX_THREADS;
  if (vm->tune[TUNE_schedule_processors] > s->threads) vm->tune[TUNE_schedule_processors] = s->threads;
  vm->devices[FAMILY_cpu] = s;
  void (*none)(qn_engine *) = NULL; /* the tracer's function, which does more, stays if it is there */
  if (vm->engine)
    __atomic_compare_exchange_n(&vm->engine->jit_close, &none, devices_engine_close, false, __ATOMIC_ACQ_REL,
                                __ATOMIC_ACQUIRE);
  return true;
}

static void piece_free(qn_vm *vm, cpu_piece *p) {
  if (p->data) mem_buffer_free(vm, p->data, p->bytes);
  *p = (cpu_piece){0};
}

void cpu_close(qn_vm *vm) {
  struct cpu_state *s = vm->devices[FAMILY_cpu];
  if (!s) return;
  op_programs_free(vm, &s->kept);
  for (int i = 0; i < MAX_THREADS; i++) piece_free(vm, &s->frames[i]);
  piece_free(vm, &s->slab);
  mem_free(vm, s, sizeof *s);
  vm->devices[FAMILY_cpu] = NULL;
}

static void cpu_engine_close(qn_engine *engine) {
  cpu_engine *c = engine->devices[FAMILY_cpu];
  if (!c) return;
  compile_close(c);
  thread_pool_close(c);
  free(c);
  engine->devices[FAMILY_cpu] = NULL;
}

static void cpu_engine_forked(qn_engine *engine) {
  cpu_engine *c = engine->devices[FAMILY_cpu];
  if (!c) return;
  compile_forked(c);
  thread_pool_forked(c);
}

/* One element through the loops of the block VM. */
static bool one_element(op_id op, qn_dtype d, const void *a, const void *b, const void *c, void *out) {
  const bvm_loops *loops = bvm_loops_pick();
  op_body body = op_bodies[op];
  bvm_fn fn = body.kind == BODY_KOP    ? loops->kop[body.which][d]
              : body.kind == BODY_MATH ? loops->math[body.which][d]
                                       : NULL;
  if (fn) fn(out, a, b, c, 0, 1);
  return fn != NULL;
}

_Static_assert(offsetof(struct cpu_state, kept) == 0, "cpu_kept_of finds it there");

int cpu_threads(qn_vm *vm, int64_t work) {
  const struct cpu_state *s = vm->devices[FAMILY_cpu];
  int64_t most = work / vm->tune[TUNE_par_grain];
  return most < 1 ? 1 : most < s->threads ? (int)most : s->threads;
}

/* Makes a piece at least `bytes` large and returns its memory, which holds anything. NULL with an error raised. */
static void *piece_take(qn_vm *vm, cpu_piece *p, size_t bytes) {
  if (p->bytes >= bytes && p->data) return p->data;
  piece_free(vm, p);
  if (!(p->data = mem_buffer(vm, bytes ? bytes : 64))) return NULL;
  p->bytes = bytes ? bytes : 64;
  return p->data;
}

/* After use: memory of at most KEEP_BYTES is kept for the next launch, more is given back. */
enum { KEEP_BYTES = 8 << 20 };
static void piece_leave(qn_vm *vm, cpu_piece *p) {
  if (p->bytes > KEEP_BYTES) piece_free(vm, p);
}

static cpu_piece *slab_of(qn_vm *vm) { return &((struct cpu_state *)vm->devices[FAMILY_cpu])->slab; }
static void *slab(qn_vm *vm, size_t bytes) { return piece_take(vm, slab_of(vm), bytes); }
static void slab_leave(qn_vm *vm) { piece_leave(vm, slab_of(vm)); }

static const device_host cpu_host = {.launch = kernel_launch,
                                     .forget = bvm_code_free,
                                     .slab = slab,
                                     .slab_leave = slab_leave,
                                     .library = cpu_library,
                                     .one = one_element,
                                     .compile = cpu_compile,
                                     .source = cpu_source};

const device_family device_cpu = {.name = "cpu",
                                  .devices = 1,
                                  .host = &cpu_host,
                                  .open = cpu_open,
                                  .close = cpu_close,
                                  .engine_close = cpu_engine_close,
                                  .engine_forked = cpu_engine_forked,
                                  .trouble = compile_trouble};

/* ---- one phase --------------------------------------------------------------------------------------------------------------------- */

typedef struct launch {
  qn_vm *vm;
  struct cpu_state *s;
  vmcode *code;
  qk_phase compiled; /* or NULL */
  bvm_phase *phase;
  qk_args args;
  size_t tables_bytes, regs_bytes;
  int64_t block;
  bool again; /* the sizes of the last launch: what was made from them is still there */
  bool quick; /* all phases so far ran on one thread, each in one piece */
  int64_t n, chunk;
  bvm_frame *own;           /* the launcher's frame: tables in the code, registers in the first thread's memory */
  kernel_failure *failures; /* per thread */
  _Atomic int64_t next;     /* first instance that nobody has taken */
  atomic_bool stop;         /* an interrupt, or a limit, was seen */
  _Atomic uint64_t error;
} launch;

/* What each thread does in a phase (thread 0 is the launcher's): takes chunks until there are none. */
static void work(void *ctx, int thread) {
  launch *l = ctx;
  bvm_frame other, *f = thread ? &other : l->own;
  qk_args args = l->args;
  char *memory = l->s->frames[thread].data;
  if (l->compiled) {
    args.scratch = memory;
    args.error = &l->error;
  } else if (thread) {
    bvm_frame_init(f, l->code, &args, memory, memory + l->tables_bytes, l->block);
    (void)bvm_phase_begin(f, l->phase);
  }
  for (;;) {
    int64_t lo = atomic_fetch_add_explicit(&l->next, l->chunk, memory_order_relaxed);
    if (lo >= l->n || atomic_load_explicit(&l->stop, memory_order_relaxed)) break;
    int64_t hi = l->n - lo < l->chunk ? l->n : lo + l->chunk;
    if (l->compiled)
      l->compiled(&args, lo, hi);
    else if (!bvm_phase_run(f, l->phase, lo, hi))
      atomic_store(&l->stop, true);
    if (cpu_must_stop(l->vm, thread == 0)) atomic_store(&l->stop, true);
  }
  l->failures[thread] = l->compiled ? (kernel_failure){.error = ~(uint64_t)0} : f->failure;
}

/* Returns how many threads share the phase's instances, and sets the size of chunks: several a thread, but not so small that taking
 * them costs much, nor so large that an interrupt waits. grain: the least number of instances for a thread. */
static int64_t share_out(launch *l, int64_t grain) {
  int64_t each = l->phase->work, total, threads = l->s->threads, least = l->vm->tune[TUNE_par_grain];
  if (__builtin_mul_overflow(each, l->n, &total)) total = INT64_MAX;
  if (threads > total / least) threads = total / least;
  if (threads > l->n / grain) threads = l->n / grain;
  if (threads < 1) threads = 1;
  int64_t most = ((int64_t)4 << 20) / each;
  l->chunk = most;
  if (threads > 1) {
    l->chunk = (l->n + threads * 8 - 1) / (threads * 8);
    if (l->chunk < least / 4 / each) l->chunk = least / 4 / each;
    if (l->chunk > most) l->chunk = most;
    if (l->chunk < grain) l->chunk = grain;
  }
  if (l->chunk < 1) l->chunk = 1;
  return threads;
}

/* Sets up the launcher's frame over the first thread's memory. */
static void place_frame(launch *l) {
  vmcode *code = l->code;
  void *regs = l->s->frames[0].data;
  if (code->regs == regs && code->regs_block == l->block) {
    bvm_frame_again(l->own, code, &l->args, code->tables, regs, l->block);
    return;
  }
  bvm_frame_init(l->own, code, &l->args, code->tables, regs, l->block);
  code->regs = regs;
  code->regs_block = l->block;
}

/* Runs one phase. False with an error raised, or *failure set. */
static bool run_phase(launch *l, kernel_failure *failure, size_t scratch_bytes) {
  qn_vm *vm = l->vm;
  struct cpu_state *s = l->s;
  const l_instr *par = l->code->ops[l->phase->par].in;
  if (!l->again) {
    (void)bvm_phase_begin(l->own, l->phase);
    l->phase->work = bvm_phase_work(l->own, l->phase);
    l->phase->bytes = bvm_phase_bytes(l->own, l->phase);
  }
  l->n = l->phase->instances = l->own->idx[par->a];
  if (l->n <= 0) return true;
  int64_t threads = share_out(l, par->imm > 0 ? par->imm : 1);
  l->quick &= threads == 1 && l->n <= l->chunk;
  bool token = threads > 1 && thread_pool_take(vm->engine);
  if (!token) threads = 1;
  size_t bytes = l->compiled ? scratch_bytes : l->regs_bytes + l->phase->bytes;
  kernel_failure failures[MAX_THREADS];
  l->failures = failures;
  bool ok = true;
  for (int t = 0; t < threads && ok; t++) {
    bool moves = t == 0 && s->frames[0].bytes < bytes;
    ok = piece_take(vm, &s->frames[t], bytes + (t ? l->tables_bytes : 0)) != NULL;
    if (ok && moves) place_frame(l);
  }
  if (ok) {
    atomic_init(&l->next, 0);
    atomic_init(&l->stop, false);
    atomic_init(&l->error, ~(uint64_t)0);
    if (threads == 1) {
      work(l, 0);
    } else {
      for (int t = 0; t < threads; t++) failures[t].error = ~(uint64_t)0; /* not all may come */
      thread_pool_run(vm->engine, (int)threads - 1, vm->tune[TUNE_par_spin], work, l);
    }
    for (int t = 0; t < threads; t++)
      if (failures[t].error < failure->error) *failure = failures[t];
    uint64_t error = atomic_load(&l->error);
    if (error < failure->error) *failure = (kernel_failure){.error = error};
    if (atomic_load(&l->stop)) {
      cpu_raise_stopped(vm);
      ok = false;
    }
  }
  if (token) thread_pool_leave(vm->engine);
  return ok && failure->error == ~(uint64_t)0;
}

/* ---- programs -------------------------------------------------------------------------------------------------------------------------- */

enum { FEW_BUFFERS = 24 };

/* Lays the program's scratch buffers one after the other from `base` on and, unless that is NULL, writes their addresses to buffers[b].
 * Returns their bytes in all. The prelude has run in `f`. */
static size_t scratch_buffers(const bvm_frame *f, const l_program *p, char *base, void **buffers) {
  size_t bytes = 0;
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    if (p->buffers[b].mode != BUF_SCRATCH) continue;
    int64_t n = f->idx[p->buffers[b].size];
    if (base) buffers[b] = base + bytes;
    bytes += ((size_t)(n > 0 ? n : 0) * dtype_size((qn_dtype)p->buffers[b].dtype) + 127) & ~(size_t)63;
  }
  return bytes;
}

/* Bytes of scratch that compiled phases want: their last function tells (emit.h). */
static size_t compiled_scratch(const qk_phase *code, uint32_t nphases, const qk_args *args) {
  int64_t bytes = 0;
  qk_args ask = *args;
  ask.scratch = &bytes;
  code[nphases](&ask, 0, 0);
  return (size_t)bytes;
}

/* A launch of compiled code with the sizes of the last one, where that had nothing to share out (vmcode.quick). */
static bool launch_quick(qn_vm *vm, struct cpu_state *s, const vmcode *code, const qk_phase *compiled,
                         void *const *buffers, const int64_t *ints, const qk_scalar *scalars, kernel_failure *failure) {
  void *scratch = piece_take(vm, &s->frames[0], code->scratch);
  if (!scratch) return false;
  _Atomic uint64_t error;
  atomic_init(&error, ~(uint64_t)0);
  qk_args args = {.buf = buffers,
                  .ints = ints,
                  .scalars = scalars,
                  .scratch = scratch,
                  .error = &error,
                  .interrupt = &vm->interrupt,
                  .tile = s->kept.loops->tile};
  bool ok = true;
  for (uint32_t k = 0; k < code->nphases && ok; k++) {
    if (code->phases[k].instances <= 0) continue;
    compiled[k](&args, 0, code->phases[k].instances);
    failure->error = atomic_load_explicit(&error, memory_order_relaxed);
    ok = failure->error == ~(uint64_t)0;
    if (cpu_must_stop(vm, true)) {
      cpu_raise_stopped(vm);
      failure->error = ~(uint64_t)0;
      ok = false;
    }
  }
  piece_leave(vm, &s->frames[0]);
  return ok;
}

bool kernel_launch(qn_vm *vm, const l_program *p, void **bvm_code, const qk_phase *compiled, void *const *buffers,
                   const int64_t *ints, const qk_scalar *scalars, kernel_failure *failure) {
  struct cpu_state *s = vm->devices[FAMILY_cpu];
  *failure = (kernel_failure){.error = ~(uint64_t)0};
  int64_t begin = trace_events_begin(vm->engine);
  if (!*bvm_code && !(*bvm_code = bvm_code_make(p, s->kept.loops))) {
    raise_memory(vm);
    return false;
  }
  vmcode *code = *bvm_code;
  if (compiled && code->quick && (p->nints == 0 || memcmp(code->ints, ints, p->nints * sizeof *ints) == 0)) {
    bool done = launch_quick(vm, s, code, compiled, buffers, ints, scalars, failure);
    trace_events_end(vm->engine, TRACE_EVENTS_kernel, p->name ? p->name : "kernel", begin, "compiled", true);
    return done;
  }
  void *few[FEW_BUFFERS], **all = few;
  if (p->nbuffers > FEW_BUFFERS && !(all = mem_alloc(vm, p->nbuffers * sizeof *all))) return false;
  bvm_frame f;
  launch l = {
      .vm = vm,
      .s = s,
      .code = code,
      .own = &f,
      .quick = compiled != NULL,
      .args = {.buf = all, .ints = ints, .scalars = scalars, .interrupt = &vm->interrupt, .tile = s->kept.loops->tile}};
  l.block = vm->tune[TUNE_vm_block];
  l.tables_bytes = bvm_tables_bytes(p, code->naccs);
  l.regs_bytes = bvm_regs_bytes(code, l.block);
  bool ok = piece_take(vm, &s->frames[0], l.regs_bytes) != NULL;
  size_t scratch = 0;
  char *scratch_data = NULL;
  if (ok) { /* the launcher's frame also tells how large scratch buffers are */
    place_frame(&l);
    l.again =
        code->launched && p->nscalars == 0 && (p->nints == 0 || memcmp(code->ints, ints, p->nints * sizeof *ints) == 0);
    code->launched = l.again;
    code->quick = false;
    bool some = false;
    for (uint32_t b = 0, given = 0; b < p->nbuffers; b++) {
      some |= p->buffers[b].mode == BUF_SCRATCH;
      all[b] = p->buffers[b].mode == BUF_SCRATCH ? NULL : buffers[given++];
    }
    l.quick &= !some;
    if (some) {
      if (!l.again) (void)bvm_phase_begin(&f, &code->phases[0]);
      scratch = scratch_buffers(&f, p, NULL, NULL);
      ok = (scratch_data = mem_buffer(vm, scratch)) != NULL;
      if (ok) (void)scratch_buffers(&f, p, scratch_data, all);
    }
  }
  size_t compiled_bytes = ok && compiled ? compiled_scratch(compiled, code->nphases, &l.args) : 0;
  for (uint32_t k = 0; k < code->nphases && ok; k++) {
    l.phase = &code->phases[k];
    l.compiled = compiled ? compiled[k] : NULL;
    ok = run_phase(&l, failure, compiled_bytes);
  }
  if (ok && !l.again) {
    if (p->nints) memcpy(code->ints, ints, p->nints * sizeof *ints);
    code->launched = p->nscalars == 0;
  }
  code->quick = ok && l.quick && !code->steered;
  code->scratch = compiled_bytes;
  if (scratch_data) mem_buffer_free(vm, scratch_data, scratch);
  for (int t = 0; t < s->threads; t++) piece_leave(vm, &s->frames[t]);
  if (all != few) mem_free(vm, all, p->nbuffers * sizeof *all);
  trace_events_end(vm->engine, TRACE_EVENTS_kernel, p->name ? p->name : "kernel", begin, "compiled", compiled != NULL);
  return ok;
}
