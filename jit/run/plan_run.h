/* Running plans, on any device. */
#ifndef JIT_RUN_PLAN_RUN_H
#define JIT_RUN_PLAN_RUN_H

#include "jit/kernel/plan.h"
#include "jit/run/device.h"
#include "jit/run/plan_taps.h"

/* Runs a plan where its inputs are, or, if it has no arrays as inputs, where the VM makes new arrays. On a device that has no code
 * for it, or where a check fails, it runs on the CPU with copies.
 *
 * there    what a device keeps of the plan for this VM: *there is NULL at first, handed in with every call, and freed by plan_forget before
 *          the plan is
 * inputs   inputs[i] is a contiguous array with storage, of the type of graph input i; NULL where that input is weak
 * scalars  the values of weak inputs, in input order
 * taps     NULL: effects are left out
 * outputs  room for p->noutputs values, arrays and host scalars; they are the caller's
 *
 * False with an error raised: the one that eager execution raises, at its place. */
QN_MUST_CHECK bool plan_run(qn_vm *vm, plan *p, device_plan **there, qn_array *const *inputs, const qk_scalar *scalars,
                            plan_taps *taps, qn_value *outputs);

/* Runs a plan that is `straight` (plan_data.h) on inputs in the CPU's memory, in the quickest way. REFUSES: a check has failed; nothing has been
 * done, and plan_run finds it again and says what it is. */
QN_MUST_CHECK device_answer plan_run_straight(qn_vm *vm, const plan *p, qn_array *const *inputs,
                                              const qk_scalar *scalars, qn_value *outputs);

/* Do all kernels of a plan have code for a device? Asks its compiler for what is missing; `wait`: until that is done. */
bool plan_ready(qn_vm *vm, plan *p, device_plan **there, int device, bool wait);
void plan_forget(qn_vm *vm, device_plan **there);
/* What the device keeps of a region's part, for plan_ready; it is forgotten with the plan's. NULL with an error raised. */
device_plan **plan_region_part(qn_vm *vm, device_plan *there, uint32_t region, int part);

#endif
