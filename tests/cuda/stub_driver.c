/* A driver library without a GPU, for tests. Memory of the "device" is a piece of the address space that the host cannot touch but
 * while the driver works on it, and every copy is checked against the blocks that were allocated. Kernels run if stub_nvrtc.c has
 * compiled them: the threads of a block take turns, from barrier to barrier.
 *
 * The environment tells how it behaves:
 *   STUB_INIT      what cuInit answers (0)
 *   STUB_VERSION   of the driver (13000)
 *   STUB_DEVICES   how many (1)
 *   STUB_MEMORY    bytes that a device has (1 GiB)
 * With STUB_LACKS defined one function is missing. */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE /* its longjmp knows one stack only */
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "tests/cuda/stub.h"

#define EXPORT __attribute__((visibility("default")))

typedef struct block {
  CUdeviceptr at;
  size_t bytes;
  struct block *next; /* at a higher address */
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block *blocks;
static char *arena;
static size_t used, high;       /* `high`: bytes of the arena that were ever in use */
static _Thread_local int depth; /* of contexts */

static long setting(const char *name, long standard) {
  const char *text = getenv(name);
  return text ? atol(text) : standard;
}

static void broken(const char *what) {
  fprintf(stderr, "stub driver: %s\n", what);
  abort();
}

static size_t memory(void) { return (size_t)setting("STUB_MEMORY", 1l << 30); }

/* The driver may touch the arena from here on, under the lock, until close_arena. */
static void open_arena(void) {
  pthread_mutex_lock(&lock);
  if (high && mprotect(arena, high, PROT_READ | PROT_WRITE) != 0) broken("the arena cannot be opened");
}
static void close_arena(void) {
  if (high && mprotect(arena, high, PROT_NONE) != 0) broken("the arena cannot be closed");
  pthread_mutex_unlock(&lock);
}

/* Under the lock. */
static void *host_of(CUdeviceptr p, size_t bytes) {
  const block *b = blocks;
  while (b && !(p >= b->at && p + bytes <= b->at + b->bytes)) b = b->next;
  if (!b) broken("an access outside the device's memory");
  if (!depth) broken("no context is current");
  return (void *)(uintptr_t)p;
}

EXPORT CUresult cuInit(unsigned flags) { return flags ? 1 : (CUresult)setting("STUB_INIT", 0); }
EXPORT CUresult cuDriverGetVersion(int *version) {
  *version = (int)setting("STUB_VERSION", 13000);
  return 0;
}
EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == 2 ? "out of memory" : "an error of the stub";
  return 0;
}
EXPORT CUresult cuDeviceGetCount(int *count) {
  *count = (int)setting("STUB_DEVICES", 1);
  return 0;
}
EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return 0;
}
EXPORT CUresult cuDeviceGetName(char *name, int len, CUdevice device) {
  snprintf(name, (size_t)len, "stub %d", device);
  return 0;
}
EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  (void)device;
  *value = attribute == GPU_CAPABILITY_MAJOR ? 9 : attribute == GPU_CAPABILITY_MINOR ? 0 : 4;
  return 0;
}
EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  (void)device;
  *bytes = (size_t)setting("STUB_MEMORY", 1l << 30);
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

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *data, size_t bytes) {
  enum { PAGE = 4096 };
  if (!depth) broken("no context is current");
  if (!bytes) return 1;
  size_t size = (bytes + PAGE - 1) / PAGE * PAGE, room = 4 * memory(), at = 0;
  pthread_mutex_lock(&lock);
  if (!arena) {
    arena = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED) broken("no address space");
  }
  block **p = &blocks, *b = NULL; /* the first gap that is large enough */
  for (; *p && (CUdeviceptr)(uintptr_t)arena + at + size > (*p)->at; p = &(*p)->next)
    at = (size_t)((*p)->at + ((*p)->bytes + PAGE - 1) / PAGE * PAGE - (CUdeviceptr)(uintptr_t)arena);
  if (used + bytes <= memory() && at + size <= room && (b = malloc(sizeof *b))) {
    *b = (block){(CUdeviceptr)(uintptr_t)arena + at, bytes, *p};
    *p = b;
    used += bytes;
    if (at + size > high) high = at + size;
    *data = b->at;
  }
  pthread_mutex_unlock(&lock);
  if (!b) return 2;
  open_arena();
  memset((void *)(uintptr_t)b->at, 0xa5, bytes);
  close_arena();
  return 0;
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr data) {
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
#ifndef STUB_LACKS
EXPORT CUresult cuMemHostAlloc(void **data, size_t bytes, unsigned flags) {
  (void)flags;
  *data = malloc(bytes);
  return *data ? 0 : 2;
}
#endif
EXPORT CUresult cuMemFreeHost(void *data) {
  free(data);
  return 0;
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
  (void)stream;
  open_arena();
  memcpy(host_of(to, bytes), from, bytes);
  close_arena();
  return 0;
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  (void)stream;
  open_arena();
  memcpy(to, host_of(from, bytes), bytes);
  close_arena();
  return 0;
}
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  (void)stream;
  open_arena();
  memmove(host_of(to, bytes), host_of(from, bytes), bytes);
  close_arena();
  return 0;
}
EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t n, CUstream stream) {
  (void)stream;
  open_arena();
  memset(host_of(to, n), value, n);
  close_arena();
  return 0;
}
EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  (void)flags;
  *stream = malloc(1);
  return *stream ? 0 : 2;
}
EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
  free(stream);
  return 0;
}
EXPORT CUresult cuStreamSynchronize(CUstream stream) { return stream ? 0 : 1; }
EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
  (void)flags;
  *event = malloc(1);
  return *event ? 0 : 2;
}
EXPORT CUresult cuEventDestroy_v2(CUevent event) {
  free(event);
  return 0;
}
EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) { return event && stream ? 0 : 1; }
EXPORT CUresult cuEventSynchronize(CUevent event) { return event ? 0 : 1; }

/* ---- kernels: objects that stub_nvrtc.c made ---------------------------------------------------------------------- */

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  stub_image head;
  memcpy(&head, image, sizeof head);
  if (memcmp(head.magic, stub_magic, sizeof head.magic) != 0) return 209;
  char path[64];
  int fd = memfd_create("stub", MFD_CLOEXEC);
  if (fd < 0 || write(fd, (const char *)image + sizeof head, head.bytes) != (ssize_t)head.bytes) broken("no file");
  /* dlopen knows files by their numbers, too: every module keeps its own */
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!*module) broken(dlerror());
  return 0;
}
EXPORT CUresult cuModuleUnload(CUmodule module) { return dlclose(module) == 0 ? 0 : 1; }
EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  char run[96];
  snprintf(run, sizeof run, "run_%s", name);
  void *f = dlsym(module, run);
  memcpy(function, &f, sizeof f);
  return f ? 0 : 500;
}

enum { MOST_THREADS = 256, STACK = 256 << 10 };
/* A fiber runs kernel after kernel. Its first switch goes through a context, all others through jumps, which ask nothing of the
 * system. ASan is told of each. */
typedef struct fiber {
  ucontext_t beginning;
  jmp_buf at;
  char *stack;
  void *asan; /* its own note of a fiber that waits */
  int done;
} fiber;
static fiber fibers[MOST_THREADS];
static char *stacks;
static jmp_buf scheduler;
static const void *scheduler_stack;
static size_t scheduler_bytes;
static stub_place place;
static int running, votes[2], phase_of[MOST_THREADS];
static void (*kernel)(stub_place *, void **);
static void **kernel_arguments;

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#define LEAVES(note, stack, bytes) __sanitizer_start_switch_fiber(note, stack, bytes)
#define ARRIVES(note, stack, bytes) __sanitizer_finish_switch_fiber(note, stack, bytes)
#else
#define LEAVES(note, stack, bytes) ((void)(note), (void)(stack), (void)(bytes))
#define ARRIVES(note, stack, bytes) ((void)(note), (void)(stack), (void)(bytes))
#endif

static void wait_for_turn(fiber *f) {
  LEAVES(&f->asan, scheduler_stack, scheduler_bytes);
  if (_setjmp(f->at) == 0) _longjmp(scheduler, 1);
  ARRIVES(f->asan, &scheduler_stack, &scheduler_bytes);
}
static void barrier(void) { wait_for_turn(&fibers[running]); }
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
    stacks = mmap(NULL, (size_t)MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) broken("no memory for stacks");
  }
  f->stack = stacks + (size_t)(f - fibers) * STACK;
  getcontext(&f->beginning);
  f->beginning.uc_stack.ss_sp = f->stack;
  f->beginning.uc_stack.ss_size = STACK;
  makecontext(&f->beginning, thread_main, 0);
}
__attribute__((destructor)) static void free_stacks(void) {
  if (stacks) munmap(stacks, (size_t)MOST_THREADS * STACK);
}

/* Lets a fiber run up to its next barrier or its end. */
static void resume(fiber *f) {
  int begins = !f->stack;
  if (begins) make_fiber(f);
  void *asan = NULL;
  LEAVES(&asan, f->stack, STACK);
  if (_setjmp(scheduler) == 0) {
    if (!begins) _longjmp(f->at, 1);
    setcontext(&f->beginning);
  }
  ARRIVES(asan, NULL, NULL);
}

static void run_block(unsigned threads) {
  votes[0] = votes[1] = 0;
  for (unsigned t = 0; t < threads; t++) phase_of[t] = fibers[t].done = 0;
  for (unsigned left = threads; left;) {
    left = 0;
    for (unsigned t = 0; t < threads; t++) {
      if (fibers[t].done) continue;
      running = (int)t;
      place.thread.x = t;
      resume(&fibers[t]);
      left += !fibers[t].done;
    }
  }
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments,
                               void **extra) {
  (void)shared, (void)extra;
  if (!depth || !stream || !grid_x || grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 ||
      block_x > MOST_THREADS)
    return 1;
  open_arena();
  memcpy(&kernel, &function, sizeof kernel);
  kernel_arguments = arguments;
  place = (stub_place){.grid = {grid_x}, .width = {block_x}, .barrier = barrier, .any = barrier_or};
  for (unsigned b = 0; b < grid_x; b++) {
    place.block.x = b;
    run_block(block_x);
  }
  close_arena();
  return 0;
}
