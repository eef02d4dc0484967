/* What the block VM's interpreter (vm_exec.c) and its reductions (vm_acc.c) know of each other. */
#ifndef JIT_CPU_VM_EXEC_H
#define JIT_CPU_VM_EXEC_H

#include "jit/cpu/vm.h"

/* Temporary blocks of a frame: these for single instructions, then masks of WHILEs in a VEC (vmcode.nmasks), then carries that
 * change places (vmcode.nswaps). */
enum { TEMP_MASKS = 4 };

/* Runs ops[pc..end). False: interrupted. */
QN_MUST_CHECK bool frame_run(vm_frame *f, uint32_t pc, uint32_t end);
const void *vm_vector(vm_frame *f, l_val v, int slot);

/* ---- accumulators (vm_acc.c) ---- */
size_t vm_acc_bytes(const vm_frame *f, const vm_acc_plan *a);
char *vm_acc_place(vm_frame *f, const vm_acc_plan *a, char *at); /* returns what follows */
void vm_acc_reset(vm_frame *f, const vm_op *o);
void vm_acc_push(vm_frame *f, const vm_op *o);
void vm_acc_scan(vm_frame *f, const vm_op *o);
void vm_acc_partial(vm_frame *f, const vm_op *o);
void vm_acc_merge(vm_frame *f, const vm_op *o);
void vm_acc_finish(vm_frame *f, const vm_op *o);
/* A VEC begins that pushes to accumulators with many results: each of its blocks starts with the same counts. */
void vm_acc_vec_begin(vm_frame *f, uint32_t pc, uint32_t end);
void vm_acc_vec_block(vm_frame *f, uint32_t pc, uint32_t end);

#endif
