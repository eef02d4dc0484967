/* A driver library without a GPU, for tests: memory of the "device" is the host's, at addresses that fault when the host touches
 * them, and every copy is checked against the blocks that were allocated. There is no code: modules cannot be loaded.
 *
 * The environment tells how it behaves:
 *   STUB_INIT      what cuInit answers (0)
 *   STUB_VERSION   of the driver (13000)
 *   STUB_DEVICES   how many (1)
 *   STUB_MEMORY    bytes that a device has (1 GiB)
 * With STUB_LACKS defined one function is missing. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/gpu/cuda.h"

#define EXPORT __attribute__((visibility("default")))
#define FOREIGN ((CUdeviceptr)1 << 62) /* no address of the host has this bit */

typedef struct block {
  CUdeviceptr at;
  size_t bytes;
  struct block *next;
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block *blocks;
static size_t used;
static _Thread_local int depth; /* of contexts */

static long setting(const char *name, long standard) {
  const char *text = getenv(name);
  return text ? atol(text) : standard;
}

static void broken(const char *what) {
  fprintf(stderr, "stub driver: %s\n", what);
  abort();
}

static void *host_of(CUdeviceptr p, size_t bytes) {
  pthread_mutex_lock(&lock);
  const block *b = blocks;
  while (b && !(p >= b->at && p + bytes <= b->at + b->bytes)) b = b->next;
  pthread_mutex_unlock(&lock);
  if (!b) broken("an access outside the device's memory");
  if (!depth) broken("no context is current");
  return (void *)(uintptr_t)(p & ~FOREIGN);
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
  if (!depth) broken("no context is current");
  if (!bytes) return 1;
  pthread_mutex_lock(&lock);
  block *b = used + bytes <= (size_t)setting("STUB_MEMORY", 1l << 30) ? malloc(sizeof *b) : NULL;
  void *p = b ? malloc(bytes) : NULL;
  if (p) {
    memset(p, 0xa5, bytes);
    *b = (block){(CUdeviceptr)(uintptr_t)p | FOREIGN, bytes, blocks};
    blocks = b;
    used += bytes;
    *data = b->at;
  } else {
    free(b);
  }
  pthread_mutex_unlock(&lock);
  return p ? 0 : 2;
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr data) {
  pthread_mutex_lock(&lock);
  block **p = &blocks;
  while (*p && (*p)->at != data) p = &(*p)->next;
  block *b = *p;
  if (!b) broken("memory that is not allocated was given back");
  *p = b->next;
  used -= b->bytes;
  free((void *)(uintptr_t)(b->at & ~FOREIGN));
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
  memcpy(host_of(to, bytes), from, bytes);
  return 0;
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  (void)stream;
  memcpy(to, host_of(from, bytes), bytes);
  return 0;
}
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  (void)stream;
  memmove(host_of(to, bytes), host_of(from, bytes), bytes);
  return 0;
}
EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t n, CUstream stream) {
  (void)stream;
  memset(host_of(to, n), value, n);
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
EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  (void)module, (void)image;
  return 209;
}
EXPORT CUresult cuModuleUnload(CUmodule module) {
  (void)module;
  return 1;
}
EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  (void)function, (void)module, (void)name;
  return 500;
}
EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments,
                               void **extra) {
  (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
  (void)shared, (void)stream, (void)arguments, (void)extra;
  return 400;
}
