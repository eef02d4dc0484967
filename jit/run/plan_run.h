/* Running plans, on whatever device. */
#ifndef JIT_RUN_PLAN_RUN_H
#define JIT_RUN_PLAN_RUN_H

#include "jit/kernel/plan.h"
#include "jit/run/device.h"

/* Runs a plan where its inputs are, or, if it has no arrays as inputs, where the VM makes new arrays. On a device that has no code
 * for it, or where a check fails, it runs on the CPU with copies. *there is what a device keeps of the plan: NULL at first, given
 * with every call of this VM, and freed by plan_forget before the plan is. inputs[i] is a contiguous array with storage of the type of graph input i, or NULL where that input is weak:
 * the weak inputs' values are in `scalars`, in input order. outputs[0..noutputs) receive owned values (arrays, host scalars). False with the error raised (the same error, at the same place, as eager execution would raise). */
QN_MUST_CHECK bool plan_run(qn_vm *vm, plan *p, device_plan **there, qn_array *const *inputs, const qk_scalar *scalars,
                            qn_value *outputs);

/* Do all kernels of a plan have code for a device? Asks its compiler for what is missing; `wait`: until that is done. */
bool plan_ready(qn_vm *vm, plan *p, device_plan **there, int device, bool wait);
void plan_forget(qn_vm *vm, device_plan **there);

#endif
