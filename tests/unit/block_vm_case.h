/* A random L program (l_case.h) on a device, whose block VM or compiler the VM's tunable gpu.vm names. */
#ifndef TESTS_BLOCK_VM_CASE_H
#define TESTS_BLOCK_VM_CASE_H

#include "jit/gpu/block_vm.h"
#include "jit/kernel/launch.h"
#include "tests/unit/l_case.h"

/* `why` is empty, or says what is wrong. False: the device does not run it. */
static bool vm_case_run(qn_vm *vm, gpu_stream *s, const l_case *c, char *why, size_t size) {
  void *ours[CASE_BUFFERS], *there[CASE_BUFFERS];
  size_t bytes[CASE_BUFFERS];
  device_program p = {.program = c->p, .hash = l_hash(c->p)}, *list = &p;
  bool compiled = vm->tune[TUNE_gpu_vm] == 0;
  why[0] = 0;
  if (compiled ? !l_launches(c->p) || !gpu_kernels.ready(vm, device_code(FAMILY_gpu, s->number), &list, 1, true)
               : !block_vm_ready(vm, s, &p, true))
    return false;
  case_begin(c, ours);
  case_need(gpu_enter(s), c->seed, "no context");
  for (uint32_t b = 0; b < c->n; b++) {
    bytes[b] = (size_t)c->info.elements * dtype_size((qn_dtype)c->dtype[b]);
    CUdeviceptr at = gpu_alloc(vm, s, bytes[b] + 1);
    case_need(at && gpu_write(vm, s, at, ours[b], bytes[b]), c->seed, "no memory");
    there[b] = (void *)(uintptr_t)at;
  }
  gpu_leave(s);
  device_answer answer =
      gpu_kernels.launch(vm, device_code(FAMILY_gpu, s->number), &p, there, c->info.ints, c->info.scalars);
  case_need(answer != DEVICE_FAILS && gpu_enter(s), c->seed, "the launch fails");
  for (uint32_t b = 0; b < c->n; b++) {
    case_need(gpu_read(vm, s, ours[b], (CUdeviceptr)(uintptr_t)there[b], bytes[b]), c->seed, "nothing can be read");
    gpu_free(vm, s, (CUdeviceptr)(uintptr_t)there[b], bytes[b] + 1);
  }
  gpu_leave(s);
  bool fails = c->error != ~(uint64_t)0; /* which error it is, the CPU finds out */
  case_end(c, ours, answer == DEVICE_DONE ? ~(uint64_t)0 : fails ? c->error : 0, why, size);
  return true;
}

#endif
