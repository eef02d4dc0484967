/* Waiting for a device (state.h), which an interrupt or a limit of the VM ends. By turns the driver is asked whether the work is done, and the
 * VM whether it was interrupted or is out of time: without a pause at first, then with pauses that are short beside the time that has
 * passed. Work that is not waited for any more goes on by itself; what it writes to is given to nobody before it is done.
 *
 * Checks. Kernels with checks share an error cell on the device. A kernel of our own copies it to the host's memory and empties it, in
 * the stream's order: looking at that memory is quicker than asking the driver.
 */
#define _GNU_SOURCE
#include <time.h>

#include "jit/gpu/state.h"
#include "jit/gpu/words.h"

enum { SPINS = 400, LOOKS = 64 }; /* turns without a pause; looks at the report in each */

/* Pauses between two turns. False with an error raised when the VM must not wait any longer. */
static bool pause_for(qn_vm *vm, uint32_t turn) {
  bool asked = atomic_load_explicit(&vm->interrupt, memory_order_relaxed) != 0;
  if ((asked || (vm->config.time_limit > 0 && turn % 8 == 7)) && vm_poll_slow(vm)) return false;
  if (turn >= SPINS) nanosleep(&(struct timespec){.tv_nsec = turn < 4 * SPINS ? 20000 : 200000}, NULL);
  return true;
}

bool gpu_wait_event(qn_vm *vm, gpu_stream *s, CUevent event, const char *what) {
  const cuda_driver *d = gpu_driver(s);
  CUresult rc;
  for (uint32_t turn = 0; (rc = event ? d->cuEventQuery(event) : d->cuStreamQuery(s->stream)) == GPU_NOT_READY; turn++)
    if (!pause_for(vm, turn)) return false;
  return rc == GPU_OK || gpu_raise(vm, s, rc, what);
}

bool gpu_wait(qn_vm *vm, gpu_stream *s, const char *what) { return gpu_wait_event(vm, s, NULL, what); }

/* Empties the error cell, in the stream's order: no check has failed. */
static CUresult empty_cell(const gpu_stream *s, CUdeviceptr cell) {
  return gpu_driver(s)->cuMemsetD8Async(cell, 0xff, sizeof(uint64_t), s->stream);
}

bool gpu_cells(qn_vm *vm, gpu_stream *s) {
  const cuda_driver *d = gpu_driver(s);
  if (!s->mapped) {
    void *data = NULL;
    CUresult rc = d->cuMemHostAlloc(&data, sizeof *s->mapped, GPU_HOST_MAPPED);
    if (rc == GPU_OK) {
      s->mapped = data;
      *s->mapped = (gpu_mapped){0};
      rc = d->cuMemHostGetDevicePointer_v2(&s->mapped_there, data, 0);
    }
    if (rc != GPU_OK) {
      if (data) d->cuMemFreeHost(data);
      s->mapped = NULL;
      return gpu_raise(vm, s, rc, "memory that the device shares");
    }
  }
  if (!s->cell) {
    CUdeviceptr cell = gpu_alloc(vm, s, sizeof(uint64_t));
    if (!cell) return false;
    CUresult rc = empty_cell(s, cell);
    if (rc != GPU_OK) {
      gpu_free(vm, s, cell, sizeof(uint64_t));
      return gpu_raise(vm, s, rc, "the error cell");
    }
    s->cell = cell;
  }
  if (s->abandoned) {
    if (!gpu_wait(vm, s, "work that was interrupted")) return false;
    s->mapped->stop = 0;
    CUresult rc = empty_cell(s, s->cell);
    if (rc != GPU_OK) return gpu_raise(vm, s, rc, "the error cell");
    s->abandoned = false;
  }
  return true;
}

/* Waits for the report. It never comes if the device fails, so the driver is asked now and then. */
static bool wait_for_report(qn_vm *vm, gpu_stream *s) {
  for (uint32_t turn = 0;; turn++) {
    for (int i = 0; i < LOOKS; i++)
      if (__atomic_load_n(&s->mapped->reported, __ATOMIC_ACQUIRE)) return true;
    CUresult rc = turn % 16 == 15 ? gpu_driver(s)->cuStreamQuery(s->stream) : GPU_NOT_READY;
    if (rc == GPU_OK && __atomic_load_n(&s->mapped->reported, __ATOMIC_ACQUIRE)) return true;
    if (rc != GPU_NOT_READY) return gpu_raise(vm, s, rc, "a kernel");
    if (!pause_for(vm, turn)) return false;
  }
}

bool gpu_checked(qn_vm *vm, gpu_stream *s, uint64_t *error) {
  const cuda_driver *d = gpu_driver(s);
  bool own = gpu_text_code(vm, s, TEXT_OWN) != NULL, asked;
  gpu_mapped *m = s->mapped;
  __atomic_store_n(&m->reported, 0, __ATOMIC_RELEASE);
  if (own) {
    asked = gpu_text_launch(vm, s, TEXT_OWN, OWN_REPORT, 1, &(report_words){s->cell, s->mapped_there});
  } else {
    CUresult rc = d->cuMemcpyDtoHAsync_v2(&m->error, s->cell, sizeof m->error, s->stream);
    if (rc == GPU_OK) rc = empty_cell(s, s->cell);
    asked = rc == GPU_OK || gpu_raise(vm, s, rc, "a launch");
  }
  if (!asked) {
    s->abandoned = true;
    return false;
  }
  if (!(own ? wait_for_report(vm, s) : gpu_wait(vm, s, "a kernel"))) {
    s->abandoned = true;
    __atomic_store_n(&m->stop, 1, __ATOMIC_RELEASE);
    return false;
  }
  *error = m->error;
  return true;
}
