/* The row device_gpu of the table of devices (jit/run/device.h), the engine's part, and a VM's streams (state.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "jit/gpu/state.h"

/* ---- the engine ---------------------------------------------------------------------------------------------------- */

static void init(void *part, qn_engine *engine) {
  gpu_engine *e = part;
  e->engine = engine;
  pthread_mutex_init(&e->lock, NULL);
  pthread_cond_init(&e->work, NULL);
  pthread_cond_init(&e->done, NULL);
  troubles_init(&e->troubles);
  e->tail = &e->queue;
}

gpu_engine *gpu_engine_of(qn_engine *engine) {
  return engine_part(engine, &engine->devices[FAMILY_gpu], sizeof(gpu_engine), init);
}

static void engine_close(qn_engine *engine) {
  gpu_engine *e = engine->devices[FAMILY_gpu];
  if (!e) return;
  engine->devices[FAMILY_gpu] = NULL;
  if (!gpu_ours(e)) return;
  gpu_compile_close(e);
  for (int i = 0; i < GPU_DEVICES; i++) gpu_gemms_close(e, &e->devices[i]);
  for (int i = 0; i < GPU_DEVICES; i++)
    if (e->devices[i].context) e->libraries.driver.cuDevicePrimaryCtxRelease_v2(e->devices[i].handle);
  libraries_close(&e->libraries);
  pthread_cond_destroy(&e->work);
  pthread_cond_destroy(&e->done);
  pthread_mutex_destroy(&e->lock);
  free(e);
}

bool gpu_ours(const gpu_engine *e) { return !e->process || e->process == getpid(); }

static CUresult open_device(const cuda_driver *d, gpu_device *g, int number) {
  int major = 0, minor = 0;
  CUresult rc = d->cuDeviceGet(&g->handle, number);
  if (rc == GPU_OK) rc = d->cuDeviceGetAttribute(&major, GPU_CAPABILITY_MAJOR, g->handle);
  if (rc == GPU_OK) rc = d->cuDeviceGetAttribute(&minor, GPU_CAPABILITY_MINOR, g->handle);
  if (rc == GPU_OK) rc = d->cuDeviceGetAttribute(&g->units, GPU_MULTIPROCESSORS, g->handle);
  if (rc == GPU_OK) rc = d->cuDevicePrimaryCtxRetain(&g->context, g->handle);
  if (rc != GPU_OK) g->context = NULL;
  g->arch = 10 * major + minor;
  return rc;
}

gpu_device *gpu_device_of(gpu_engine *e, int number, const char **why) {
  static const char no_number[] = "there are not so many";
  gpu_device *g = NULL;
  pthread_mutex_lock(&e->lock);
  libraries *l = &e->libraries;
  if (!e->opened) {
    libraries_open_driver(l);
    e->process = getpid();
    e->opened = true;
  }
  *why = l->devices ? no_number : l->of[LIBRARY_DRIVER].why;
  if (number < l->devices && number < GPU_DEVICES) {
    g = &e->devices[number];
    if (!g->tried) {
      CUresult rc = open_device(&l->driver, g, number);
      if (rc != GPU_OK)
        snprintf(g->why, sizeof g->why, "the driver says: %s (%d)", gpu_error_text(&l->driver, rc), (int)rc);
      g->tried = true;
    }
    *why = g->why;
    if (g->why[0]) g = NULL;
  }
  pthread_mutex_unlock(&e->lock);
  return g;
}

/* ---- troubles -------------------------------------------------------------------------------------------------------- */

static bool trouble(qn_engine *engine, char *text, size_t size) {
  gpu_engine *e = __atomic_load_n((gpu_engine **)&engine->devices[FAMILY_gpu], __ATOMIC_ACQUIRE);
  return e && troubles_next(&e->troubles, text, size);
}

const char *gpu_error_text(const cuda_driver *d, CUresult rc) {
  const char *text = NULL;
  return d->cuGetErrorString(rc, &text) == GPU_OK && text ? text : "unknown error";
}

bool gpu_raise(qn_vm *vm, const gpu_stream *s, CUresult rc, const char *what) {
  if (rc == GPU_OUT_OF_MEMORY)
    raise_error(vm, E_memory, SPAN_NONE, "gpu(%d) has no memory left for %s", s->number, what);
  else
    raise_error(vm, E_internal, SPAN_NONE, "gpu(%d): %s failed: %s (%d)", s->number, what,
                gpu_error_text(gpu_driver(s), rc), (int)rc);
  return false;
}

/* ---- a VM's part ------------------------------------------------------------------------------------------------------ */

gpu_stream *gpu_stream_of(qn_vm *vm, int device) {
  gpu_vm *g = vm->devices[FAMILY_gpu];
  int number = device_number(device);
  if (g && number < GPU_DEVICES && g->of[number]) return g->of[number];
  gpu_engine *e = gpu_engine_of(vm->engine);
  if (!e || (!g && !(g = mem_zalloc(vm, sizeof *g)))) {
    if (!error_pending(vm)) raise_memory(vm);
    return NULL;
  }
  vm->devices[FAMILY_gpu] = g;
  const char *why;
  gpu_device *d = gpu_device_of(e, number, &why);
  if (!d) {
    raise_error(vm, E_device, SPAN_NONE, "gpu(%d) is not there: %s", number, why);
    return NULL;
  }
  gpu_stream *s = mem_zalloc(vm, sizeof *s);
  if (!s) return NULL;
  s->engine = e;
  s->device = d;
  s->number = number;
  CUresult rc = e->libraries.driver.cuCtxPushCurrent_v2(d->context);
  if (rc == GPU_OK) {
    rc = e->libraries.driver.cuStreamCreate(&s->stream, GPU_STREAM_APART);
    gpu_leave(s);
  }
  if (rc != GPU_OK) {
    gpu_raise(vm, s, rc, "making a stream");
    mem_free(vm, s, sizeof *s);
    return NULL;
  }
  return g->of[number] = s;
}

gpu_stream *gpu_entered(qn_vm *vm, int device, const char *what) {
  gpu_stream *s = gpu_stream_of(vm, device);
  if (!s || gpu_enter(s)) return s;
  gpu_raise(vm, s, GPU_NO_DEVICE, what);
  return NULL;
}

static void vm_part_close(qn_vm *vm) {
  if (!vm->devices[FAMILY_gpu]) return;
  gpu_memory_close(vm);
  mem_free(vm, vm->devices[FAMILY_gpu], sizeof(gpu_vm));
  vm->devices[FAMILY_gpu] = NULL;
}

const device_family device_gpu = {.name = "gpu",
                                  .devices = GPU_DEVICES,
                                  .memory = {.name = "gpu",
                                             .open = gpu_open,
                                             .alloc = gpu_array_alloc,
                                             .free = gpu_array_free,
                                             .copy_elements = gpu_copy_elements,
                                             .read = gpu_array_read,
                                             .write = gpu_array_write,
                                             .wait = gpu_wait_all},
                                  .kernels = &gpu_kernels,
                                  .close = vm_part_close,
                                  .engine_close = engine_close,
                                  .trouble = trouble,
                                  .report = libraries_report};
