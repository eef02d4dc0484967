/* Running L programs and plans on the CPU: one pool of threads per engine, the block VM, compiled code when it is there. */
#ifndef JIT_CPU_RUN_H
#define JIT_CPU_RUN_H

#include "jit/kernel/plan.h"
#include "jit/run/device.h"
#include "lang/vm.h"

/* Runs one L program once: `args` without scratch, error and interrupt (filled in here). `bvm_code` caches the block VM's
 * translation (*bvm_code NULL at first; freed by bvm_code_free). `code` may be NULL. On a failed check: false, with *error set
 * (check number << 48 | element) and nothing raised. On an interrupt or short memory: false with the error raised and *error ~0. */
QN_MUST_CHECK bool kernel_run(qn_vm *vm, const l_program *p, void **bvm_code, const qk_phase *code,
                              void *const *buffers, const int64_t *ints, const qk_scalar *scalars, uint64_t *error);
void bvm_code_free(void *bvm_code);

/* Runs a plan where its inputs are, or, if it has no arrays as inputs, where the VM makes new arrays. On a device that has no code
 * for it, or where a check fails, it runs on the CPU with copies. *there is what a device keeps of the plan: NULL at first, given
 * with every call of this VM, and freed by plan_forget before the plan is. inputs[i] is a contiguous array with storage of the type of graph input i, or NULL where that input is weak:
 * the weak inputs' values are in `scalars`, in input order. outputs[0..noutputs) receive owned values (arrays, host scalars). False with the error raised (the same error, at the same place, as eager execution would raise). */
QN_MUST_CHECK bool plan_run(qn_vm *vm, plan *p, device_plan **there, qn_array *const *inputs, const qk_scalar *scalars,
                            qn_value *outputs);

/* Do all kernels of a plan have code for a device? Asks its compiler for what is missing; `wait`: until that is done. */
bool plan_ready(qn_vm *vm, plan *p, device_plan **there, int device, bool wait);
void plan_forget(qn_vm *vm, device_plan **there);

/* The VM's state, made if need be. False with an error raised. Everything that runs kernels does so by itself. */
QN_MUST_CHECK bool cpu_open(qn_vm *vm);
void cpu_close(qn_vm *vm);

/* The functions of one instruction set: chosen when an engine opens. */
const char *cpu_isa_name(void);

#endif
