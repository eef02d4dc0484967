/* A driver library without a GPU, for tests. Memory of the "device" is a piece of the address space that the host cannot touch but
 * while a kernel runs; the driver itself reaches it through a second view, so that copies change no page's protection. Every copy is
 * checked against the blocks that were allocated. Kernels run if fake_nvrtc.c has compiled them: the threads of a block take turns,
 * from barrier to barrier.
 *
 * The environment tells how it behaves:
 *   FAKE_INIT      what cuInit answers (0)
 *   FAKE_VERSION   of the driver (13000)
 *   FAKE_DEVICES   how many (1)
 *   FAKE_MEMORY    bytes that a device has (1 GiB)
 *   FAKE_LATE      1: work is done when somebody asks for it, not before
 *   FAKE_STUCK     1: nor then, until this is taken back
 *   FAKE_REVERSED  1: between barriers the last thread of a block is the first. What depends on a barrier that is not there
 *                  differs from what it is in the other order
 *   FAKE_CAPTURE   "begin", "library", "end": fails there
 * With FAKE_LACKS defined one function is missing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "tests/cuda/fake.h"

#define EXPORT __attribute__((visibility("default")))

typedef struct block {
  CUdeviceptr at;
  size_t bytes;
  struct block *next; /* at a higher address */
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block *blocks;
static char *arena, *inside; /* the same memory: at the device's addresses, and as the driver sees it */
static size_t used, high;    /* `high`: bytes of the arena that were ever in use */
/* Of contexts. Initial-exec: LeakSanitizer guesses where thread storage of loaded libraries lies, wrongly for some addresses. */
static _Thread_local __attribute__((tls_model("initial-exec"))) int depth;

static long setting(const char *name, long standard) {
  const char *text = getenv(name);
  return text ? atol(text) : standard;
}

static void broken(const char *what) {
  fprintf(stderr, "fake driver: %s\n", what);
  abort();
}

static size_t memory(void) { return (size_t)setting("FAKE_MEMORY", 1l << 30); }

/* Kernels may touch the arena from here on, under the lock, until close_arena. That one maps it anew rather than to change its protection:
 * nothing is left then of the pages that kernels have touched, which a change of protection would walk through each time, and the next
 * kernel finds those that it needs by itself. */
static size_t opened; /* bytes that are open now */
static int file;      /* which the arena shows */
static void open_arena(void) {
  if (high && mprotect(arena, high, PROT_READ | PROT_WRITE) != 0) broken("the arena cannot be opened");
  opened = high;
}
static void close_arena(void) {
  if (opened && mmap(arena, opened, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file, 0) == MAP_FAILED)
    broken("the arena cannot be closed");
  opened = 0;
}

static void make_arena(size_t room) {
  file = memfd_create("fake", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, (off_t)room) != 0) broken("no memory for the device");
  arena = mmap(NULL, room, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
  inside = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (arena == MAP_FAILED || inside == MAP_FAILED) broken("no address space");
}

/* Where the driver sees it. Under the lock. */
static void *host_of(CUdeviceptr p, size_t bytes) {
  const block *b = blocks;
  while (b && !(p >= b->at && p + bytes <= b->at + b->bytes)) b = b->next;
  if (!b) broken("an access outside the device's memory");
  return inside + (p - (CUdeviceptr)(uintptr_t)arena);
}

static CUresult enqueue(void (*run)(const void *task), const void *task, size_t bytes, CUstream stream);
EXPORT const fake_memory *fake_memory_of(void) {
  static const fake_memory m = {host_of, enqueue};
  return &m;
}

EXPORT CUresult cuInit(unsigned flags) { return flags ? 1 : (CUresult)setting("FAKE_INIT", 0); }
EXPORT CUresult cuDriverGetVersion(int *version) {
  *version = (int)setting("FAKE_VERSION", 13000);
  return 0;
}
EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == 2 ? "out of memory" : "an error of the fake";
  return 0;
}
EXPORT CUresult cuDeviceGetCount(int *count) {
  *count = (int)setting("FAKE_DEVICES", 1);
  return 0;
}
EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return 0;
}
EXPORT CUresult cuDeviceGetName(char *name, int len, CUdevice device) {
  snprintf(name, (size_t)len, "fake %d", device);
  return 0;
}
EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  (void)device;
  *value = attribute == GPU_CAPABILITY_MAJOR ? 9 : attribute == GPU_CAPABILITY_MINOR ? 0 : 4;
  return 0;
}
EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  (void)device;
  *bytes = (size_t)setting("FAKE_MEMORY", 1l << 30);
  return 0;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  *context = (CUcontext)(uintptr_t)(0x1000 + device);
  return 0;
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  (void)device;
  if (blocks) broken("memory of the device was not given back");
  return 0;
}
EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
  if (!context) broken("a context that is none");
  depth++;
  return 0;
}
EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  *context = NULL;
  if (depth-- == 0) broken("a context too many was popped");
  return 0;
}

EXPORT fake_count fake_counts;
static int finish(void);

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *data, size_t bytes) {
  enum { PAGE = 4096 };
  if (!depth) broken("no context is current");
  if (!bytes) return 1;
  size_t size = (bytes + PAGE - 1) / PAGE * PAGE, room = 4 * memory(), at = 0;
  pthread_mutex_lock(&lock);
  if (!arena) make_arena(room);
  block **p = &blocks, *b = NULL; /* the first gap that is large enough */
  for (; *p && (CUdeviceptr)(uintptr_t)arena + at + size > (*p)->at; p = &(*p)->next)
    at = (size_t)((*p)->at + ((*p)->bytes + PAGE - 1) / PAGE * PAGE - (CUdeviceptr)(uintptr_t)arena);
  if (used + bytes <= memory() && at + size <= room && (b = malloc(sizeof *b))) {
    *b = (block){(CUdeviceptr)(uintptr_t)arena + at, bytes, *p};
    *p = b;
    used += bytes;
    if (at + size > high) high = at + size;
    *data = b->at;
    memset(host_of(b->at, bytes), 0xa5, bytes);
  }
  pthread_mutex_unlock(&lock);
  if (!b) return 2;
  fake_counts.allocations++;
  return 0;
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr data) {
  if (!finish()) broken("memory that is in use was given back");
  pthread_mutex_lock(&lock);
  block **p = &blocks;
  while (*p && (*p)->at != data) p = &(*p)->next;
  block *b = *p;
  if (!b) broken("memory that is not allocated was given back");
  *p = b->next;
  used -= b->bytes;
  free(b);
  pthread_mutex_unlock(&lock);
  return 0;
}

/* ---- memory of the host that the driver knows ------------------------------------------------------------------------ */

typedef struct pinned {
  char *at;
  size_t bytes;
  struct pinned *next;
} pinned;
static pinned *pinned_blocks;

static int is_pinned(const void *p, size_t bytes) {
  pthread_mutex_lock(&lock);
  const pinned *b = pinned_blocks;
  while (b && !((const char *)p >= b->at && (const char *)p + bytes <= b->at + b->bytes)) b = b->next;
  pthread_mutex_unlock(&lock);
  return b != NULL;
}

#ifndef FAKE_LACKS
EXPORT CUresult cuMemHostAlloc(void **data, size_t bytes, unsigned flags) {
  (void)flags;
  pinned *b = malloc(sizeof *b);
  *data = b ? malloc(bytes) : NULL;
  if (!*data) {
    free(b);
    return 2;
  }
  pthread_mutex_lock(&lock);
  *b = (pinned){*data, bytes, pinned_blocks};
  pinned_blocks = b;
  pthread_mutex_unlock(&lock);
  return 0;
}
#endif
EXPORT CUresult cuMemFreeHost(void *data) {
  if (!finish()) broken("memory of the host that is in use was given back");
  pthread_mutex_lock(&lock);
  pinned **p = &pinned_blocks;
  while (*p && (*p)->at != data) p = &(*p)->next;
  pinned *b = *p;
  if (!b) broken("memory of the host that is not allocated was given back");
  *p = b->next;
  pthread_mutex_unlock(&lock);
  free(b);
  free(data);
  return 0;
}
EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *there, void *data, unsigned flags) {
  *there = (CUdeviceptr)(uintptr_t)data;
  return flags || !is_pinned(data, 1) ? 1 : 0;
}

/* ---- kernels: objects that fake_nvrtc.c made ---------------------------------------------------------------------- */

struct CUfunc_st {
  void (*run)(fake_place *, void **);
  const unsigned *sizes;
  CUfunction next;
};
struct CUmod_st {
  void *library; /* open until the process ends */
  CUfunction functions;
};

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  fake_image head;
  memcpy(&head, image, sizeof head);
  if (memcmp(head.magic, fake_magic, sizeof head.magic) != 0) return 209;
  char path[64];
  int fd = memfd_create("fake", MFD_CLOEXEC);
  if (fd < 0 || write(fd, (const char *)image + sizeof head, head.bytes) != (ssize_t)head.bytes) broken("no file");
  /* dlopen knows files by their numbers, too: every module keeps its own */
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) broken(dlerror());
  if (!(*module = calloc(1, sizeof **module))) return 2;
  (*module)->library = library;
  return 0;
}
EXPORT CUresult cuModuleUnload(CUmodule module) {
  for (CUfunction f = module->functions, next; f; f = next) {
    next = f->next;
    free(f);
  }
  free(module); /* its library stays open: at each one that closes the loader walks all the others, thousands here */
  return 0;
}
EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  (void)function;
  return attribute == GPU_MOST_SHARED && value <= 65536 ? 0 : 1;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  char run[96], sizes[96];
  snprintf(run, sizeof run, "run_%s", name);
  snprintf(sizes, sizeof sizes, "sizes_%s", name);
  void *f = dlsym(module->library, run), *s = dlsym(module->library, sizes);
  if (!f || !s || !(*function = calloc(1, sizeof **function))) return 500;
  memcpy(&(*function)->run, &f, sizeof f);
  (*function)->sizes = s;
  (*function)->next = module->functions;
  module->functions = *function;
  return 0;
}

/* STRIDE: from stack to stack. Were it a power of two, the ends of all stacks would share a few lines of the caches. */
enum { MOST_THREADS = 1024, STACK = 256 << 10, STRIDE = STACK + 17 * 64 };
/* A fiber runs kernel after kernel. Its first switch goes through a context, all others through jumps, which ask nothing of the
 * system: the compiler's own, since most of the time of small kernels goes here. At a barrier a fiber hands on to the next one itself;
 * the scheduler begins each round, and is asked where the next one has ended or not begun. ASan is told of each switch. */
typedef void *jump[5];
typedef struct fiber {
  ucontext_t beginning;
  jump at;
  char *stack;
  void *asan; /* its own note of a fiber that waits */
  int done;
} fiber;
static fiber fibers[MOST_THREADS];
static char *stacks;
static jump scheduler;
static const void *scheduler_stack;
static size_t scheduler_bytes;
static fake_place place;
static int running, votes[2], phase_of[MOST_THREADS];
static int step, beyond,
    waiting;               /* of a round: from thread to thread, behind the last one; how many came to the barrier */
static int from_scheduler; /* a fiber was resumed by it and not by another fiber */
static void (*kernel)(fake_place *, void **);
enum { MOST_ARGUMENTS = 3 };
static void *kernel_arguments[MOST_ARGUMENTS];

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#define LEAVES(note, stack, bytes) __sanitizer_start_switch_fiber(note, stack, bytes)
#define ARRIVES(note, stack, bytes) __sanitizer_finish_switch_fiber(note, stack, bytes)
#else
#define LEAVES(note, stack, bytes) ((void)(note), (void)(stack), (void)(bytes))
#define ARRIVES(note, stack, bytes) ((void)(note), (void)(stack), (void)(bytes))
#endif

/* Functions of their own, as the compiler wants it: where a jump ends, all registers are lost, which callers must not see through.
 * Jumps from stack to stack leave no frames for ASan to clean up. */
#ifdef __clang__
#define SWITCHES __attribute__((noinline, no_sanitize("address")))
#else
#define SWITCHES __attribute__((noipa, no_sanitize("address")))
#endif
static SWITCHES __attribute__((noreturn)) void leap(void **to) { __builtin_longjmp(to, 1); }
static SWITCHES void wait_for_turn(fiber *f) {
  int after = running + step;
  fiber *next = after != beyond && fibers[after].stack && !fibers[after].done ? &fibers[after] : NULL;
  if (next) {
    running = after;
    place.thread.x = (unsigned)after;
    LEAVES(&f->asan, next->stack, STACK);
  } else {
    LEAVES(&f->asan, scheduler_stack, scheduler_bytes);
  }
  if (__builtin_setjmp(f->at) == 0) leap(next ? next->at : scheduler);
  if (from_scheduler)
    ARRIVES(f->asan, &scheduler_stack, &scheduler_bytes);
  else
    ARRIVES(f->asan, NULL, NULL);
  from_scheduler = 0;
}
static void barrier(void) {
  waiting++;
  wait_for_turn(&fibers[running]);
}
/* A barrier of threads first .. first + count - 1 alone: each gives the others their turns until all have come. */
static unsigned arrived[MOST_THREADS], met[MOST_THREADS];
static int together, moved; /* of a round: how many wait for their group; has any group met? */
static void group(unsigned first, unsigned count) {
  unsigned turn = met[first];
  if (++arrived[first] == count) {
    arrived[first] = 0;
    met[first]++;
    moved = 1;
  }
  do {
    together++;
    wait_for_turn(&fibers[running]);
  } while (met[first] == turn);
}
/* Votes are counted in two cells by turns, the other one being cleared once all have read it. */
static int barrier_or(int vote) {
  int me = running, cell = phase_of[me]++ & 1;
  votes[cell] |= vote != 0;
  barrier();
  int result = votes[cell];
  barrier();
  votes[cell] = 0;
  return result;
}
static void thread_main(void) {
  from_scheduler = 0;
  ARRIVES(NULL, &scheduler_stack, &scheduler_bytes);
  for (fiber *f = &fibers[running];;) {
    kernel(&place, kernel_arguments);
    f->done = 1;
    wait_for_turn(f);
  }
}

/* A function of its own: no value lives across. */
static void make_fiber(fiber *f) {
  if (!stacks) {
    stacks = mmap(NULL, (size_t)MOST_THREADS * STRIDE, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) broken("no memory for stacks");
  }
  f->stack = stacks + (size_t)(f - fibers) * STRIDE;
  getcontext(&f->beginning);
  f->beginning.uc_stack.ss_sp = f->stack;
  f->beginning.uc_stack.ss_size = STACK;
  makecontext(&f->beginning, thread_main, 0);
}
__attribute__((destructor)) static void free_stacks(void) {
  if (stacks) munmap(stacks, (size_t)MOST_THREADS * STRIDE);
}

/* Lets a fiber run up to its next barrier or its end, and those that it hands on to. */
static SWITCHES void resume(fiber *f) {
  int begins = !f->stack;
  if (begins) make_fiber(f);
  void *asan = NULL;
  from_scheduler = 1;
  LEAVES(&asan, f->stack, STACK);
  if (__builtin_setjmp(scheduler) == 0) {
    if (!begins) leap(f->at);
    setcontext(&f->beginning);
  }
  ARRIVES(asan, NULL, NULL);
}

static void run_block(unsigned threads, int reversed) {
  votes[0] = votes[1] = 0;
  for (unsigned t = 0; t < threads; t++) phase_of[t] = fibers[t].done = 0;
  step = reversed ? -1 : 1;
  beyond = reversed ? -1 : (int)threads;
  memset(arrived, 0, sizeof arrived);
  do {
    waiting = together = moved = 0;
    for (int t = reversed ? (int)threads - 1 : 0; t != beyond; t = running + step) {
      running = t;
      if (fibers[t].done) continue;
      place.thread.x = (unsigned)t;
      resume(&fibers[t]);
    }
    if (waiting && waiting < (int)threads && !together) broken("threads wait at a barrier for others that have ended");
    if (together && !moved && !waiting) broken("threads wait for others of their group that do not come");
  } while (waiting || together);
}

/* ---- work: done when it is asked for, or late -------------------------------------------------------------------------- */

struct CUevent_st {
  int recorded, done; /* counts */
};
typedef struct launch {
  struct CUfunc_st *function;
  unsigned grid, width;
  void *arguments[MOST_ARGUMENTS];
} launch;
typedef enum work_kind { TO_DEVICE, TO_HOST, ON_DEVICE, SET, KERNEL, TASK, GRAPH, EVENT } work_kind;
typedef struct work {
  work_kind kind;
  void *to, *own; /* `own`: a copy of ordinary memory, or of a task */
  const void *from;
  size_t bytes;
  int value;
  launch launch;
  void (*run)(const void *task);
  CUgraphExec graph;
  CUevent event;
  struct work *next;
} work;
/* Nodes are kernels, tasks, copies on the device; those of children are the graph's own. */
struct CUgraph_st {
  work *nodes;
  size_t n;
};
struct CUgraphExec_st {
  work *nodes;
  size_t n, waiting; /* launches that are not done */
  int destroyed;
};
struct CUstream_st {
  CUgraph captures; /* NULL: nothing, what is asked for is done */
};
static work *queue, **queue_end = &queue;

static launch copy_launch(const launch *l) {
  launch copy = *l;
  for (int i = 0; i < MOST_ARGUMENTS; i++) {
    copy.arguments[i] = NULL;
    if (!l->arguments[i]) continue;
    if (!(copy.arguments[i] = malloc(l->function->sizes[i]))) broken("no memory");
    memcpy(copy.arguments[i], l->arguments[i], l->function->sizes[i]);
  }
  return copy;
}
static void free_launch(launch *l) {
  for (int i = 0; i < MOST_ARGUMENTS; i++) free(l->arguments[i]);
}
static work copy_node(const work *w) {
  work copy = *w;
  if (w->kind == KERNEL) copy.launch = copy_launch(&w->launch);
  if (w->own && !(copy.own = malloc(w->bytes))) broken("no memory");
  if (w->own) memcpy(copy.own, w->own, w->bytes);
  return copy;
}
static void free_nodes(work *w, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (w[i].kind == KERNEL) free_launch(&w[i].launch);
    free(w[i].own);
  }
  free(w);
}
/* Takes the node over. */
static void add_node(CUgraph graph, work w) {
  work *more = realloc(graph->nodes, (graph->n + 1) * sizeof *more);
  if (!more) broken("no memory");
  graph->nodes = more;
  more[graph->n++] = w;
}

static void run_launch(const launch *l) {
  memcpy(kernel_arguments, l->arguments, sizeof kernel_arguments);
  kernel = l->function->run;
  place = (fake_place){.grid = {l->grid}, .width = {l->width}, .barrier = barrier, .group = group, .any = barrier_or};
  int reversed = setting("FAKE_REVERSED", 0) != 0;
  for (unsigned b = 0; b < l->grid; b++) {
    place.block.x = b;
    run_block(l->width, reversed);
  }
}

static void exec_free(CUgraphExec g) {
  free_nodes(g->nodes, g->n);
  free(g);
}

/* Under the lock. */
static void do_work(const work *w) {
  switch (w->kind) {
  case TO_DEVICE: memcpy(host_of((CUdeviceptr)(uintptr_t)w->to, w->bytes), w->from, w->bytes); break;
  case TO_HOST: memcpy(w->to, host_of((CUdeviceptr)(uintptr_t)w->from, w->bytes), w->bytes); break;
  case ON_DEVICE:
    memmove(host_of((CUdeviceptr)(uintptr_t)w->to, w->bytes), host_of((CUdeviceptr)(uintptr_t)w->from, w->bytes),
            w->bytes);
    break;
  case SET: memset(host_of((CUdeviceptr)(uintptr_t)w->to, w->bytes), w->value, w->bytes); break;
  case KERNEL:
    open_arena();
    run_launch(&w->launch);
    close_arena();
    break;
  case TASK: w->run(w->own); break;
  case GRAPH:
    for (size_t i = 0; i < w->graph->n; i++) do_work(&w->graph->nodes[i]);
    if (--w->graph->waiting == 0 && w->graph->destroyed) exec_free(w->graph);
    break;
  default: w->event->done++; break;
  }
}

/* Does what waits; false if it is stuck. */
static int finish(void) {
  if (setting("FAKE_STUCK", 0)) return 0;
  if (!queue) return 1;
  pthread_mutex_lock(&lock);
  while (queue) {
    work *w = queue;
    queue = w->next;
    do_work(w);
    free_nodes(w, 1);
  }
  queue_end = &queue;
  pthread_mutex_unlock(&lock);
  return 1;
}

static CUresult ask_for(work w, CUstream stream) {
  if (!depth) broken("no context is current");
  if (!stream) return 1;
  if (stream->captures) {
    if (w.kind != ON_DEVICE && w.kind != KERNEL && w.kind != TASK) broken("what no graph has is captured");
    add_node(stream->captures, w);
    return 0;
  }
  work *copy = malloc(sizeof *copy);
  if (!copy) return 2;
  *copy = w;
  copy->next = NULL;
  pthread_mutex_lock(&lock);
  *queue_end = copy;
  queue_end = &copy->next;
  pthread_mutex_unlock(&lock);
  if (!setting("FAKE_LATE", 0)) finish();
  return 0;
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
  void *own = NULL;
  fake_counts.to_device++;
  if (!is_pinned(from, bytes)) {
    if (!(own = malloc(bytes))) return 2;
    from = memcpy(own, from, bytes);
  }
  return ask_for((work){.kind = TO_DEVICE, .to = (void *)(uintptr_t)to, .own = own, .from = from, .bytes = bytes},
                 stream);
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  fake_counts.to_host++;
  CUresult rc =
      ask_for((work){.kind = TO_HOST, .to = to, .from = (const void *)(uintptr_t)from, .bytes = bytes}, stream);
  if (rc == 0 && !is_pinned(to, bytes) && !finish()) broken("a copy to ordinary memory would wait for ever");
  return rc;
}
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return ask_for(
      (work){.kind = ON_DEVICE, .to = (void *)(uintptr_t)to, .from = (const void *)(uintptr_t)from, .bytes = bytes},
      stream);
}
EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t n, CUstream stream) {
  return ask_for((work){.kind = SET, .to = (void *)(uintptr_t)to, .value = value, .bytes = n}, stream);
}
EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  (void)flags;
  *stream = calloc(1, sizeof **stream);
  return *stream ? 0 : 2;
}
EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
  if (stream->captures) broken("a stream was destroyed that is captured");
  free(stream);
  return 0;
}
static int capture_fails(const char *where) {
  const char *text = getenv("FAKE_CAPTURE");
  return text && strcmp(text, where) == 0;
}
static CUresult enqueue(void (*run)(const void *task), const void *task, size_t bytes, CUstream stream) {
  if (stream && stream->captures && capture_fails("library")) return 900;
  void *own = malloc(bytes);
  if (!own) return 2;
  fake_counts.products++;
  return ask_for((work){.kind = TASK, .own = memcpy(own, task, bytes), .bytes = bytes, .run = run}, stream);
}
EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  if (!depth || stream->captures || mode != GPU_CAPTURE_RELAXED) broken("a capture that cannot begin");
  if (capture_fails("begin")) return 900;
  fake_counts.captures++;
  return (stream->captures = calloc(1, sizeof *stream->captures)) ? 0 : 2;
}
EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  if (!depth || !stream->captures) broken("a capture ends that has not begun");
  *graph = stream->captures;
  stream->captures = NULL;
  if (!capture_fails("end")) return 0;
  free_nodes((*graph)->nodes, (*graph)->n);
  free(*graph);
  *graph = NULL;
  return 901;
}
EXPORT CUresult cuStreamSynchronize(CUstream stream) {
  if (!finish()) broken("a stream would be waited for for ever");
  return stream ? 0 : 1;
}
EXPORT CUresult cuStreamQuery(CUstream stream) {
  fake_counts.questions++;
  return !stream ? 1 : finish() ? 0 : 600;
}
EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
  (void)flags;
  *event = calloc(1, sizeof **event);
  return *event ? 0 : 2;
}
EXPORT CUresult cuEventDestroy_v2(CUevent event) {
  if (event->done != event->recorded) broken("an event was destroyed that is waited for");
  free(event);
  return 0;
}
EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
  event->recorded++;
  return ask_for((work){.kind = EVENT, .event = event}, stream);
}
EXPORT CUresult cuEventQuery(CUevent event) {
  fake_counts.questions++;
  if (event->done != event->recorded) finish();
  return event->done == event->recorded ? 0 : 600;
}

static int launchable(unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                      unsigned block_z) {
  return depth && grid_x && grid_y == 1 && grid_z == 1 && block_y == 1 && block_z == 1 && block_x <= MOST_THREADS;
}

static launch launch_of(CUfunction function, unsigned grid, unsigned width, void **arguments) {
  launch l = {.function = function, .grid = grid, .width = width};
  for (int i = 0; i < MOST_ARGUMENTS && function->sizes[i]; i++) l.arguments[i] = arguments[i];
  return copy_launch(&l);
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments,
                               void **extra) {
  (void)extra;
  if (shared > 48 << 10) broken("a launch asks for more shared memory than there is");
  if (!launchable(grid_x, grid_y, grid_z, block_x, block_y, block_z)) return 1;
  fake_counts.launches++;
  return ask_for((work){.kind = KERNEL, .launch = launch_of(function, grid_x, block_x, arguments)}, stream);
}

/* ---- graphs whose nodes are in a line -------------------------------------------------------------------------------------- */

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned flags) {
  *graph = flags ? NULL : calloc(1, sizeof **graph);
  return *graph ? 0 : 2;
}
EXPORT CUresult cuGraphDestroy(CUgraph graph) {
  free_nodes(graph->nodes, graph->n);
  free(graph);
  return 0;
}
static void check_line(CUgraph graph, const CUgraphNode *after, size_t nafter) {
  if (nafter != (graph->n > 0) || (nafter && (uintptr_t)*after != graph->n)) broken("nodes that are not in a line");
}
EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t nafter,
                                        const CUDA_KERNEL_NODE_PARAMS_v2 *what) {
  check_line(graph, after, nafter);
  if (!launchable(what->gridDimX, what->gridDimY, what->gridDimZ, what->blockDimX, what->blockDimY, what->blockDimZ))
    return 1;
  launch l = launch_of(what->func, what->gridDimX, what->blockDimX, what->kernelParams);
  add_node(graph, (work){.kind = KERNEL, .launch = l});
  *node = (CUgraphNode)(uintptr_t)graph->n;
  return 0;
}
EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t nafter,
                                         CUgraph child) {
  check_line(graph, after, nafter);
  if (!child->n) broken("nothing was captured");
  for (size_t i = 0; i < child->n; i++) add_node(graph, copy_node(&child->nodes[i]));
  *node = (CUgraphNode)(uintptr_t)graph->n;
  return 0;
}
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
  CUgraphExec g = flags ? NULL : calloc(1, sizeof *g);
  if (!g || !(g->nodes = calloc(graph->n, sizeof *g->nodes))) return 2;
  for (; g->n < graph->n; g->n++) g->nodes[g->n] = copy_node(&graph->nodes[g->n]);
  fake_counts.instantiations++;
  *exec = g;
  return 0;
}
EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  fake_counts.graphs++;
  fake_counts.nodes += exec->n;
  exec->waiting++;
  return ask_for((work){.kind = GRAPH, .graph = exec}, stream);
}
EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
  exec->destroyed = 1;
  if (!exec->waiting) exec_free(exec);
  return 0;
}
