/* What the block VM's interpreter (block_vm_exec.c) and its reductions (block_vm_acc.c) share. */
#ifndef JIT_CPU_BLOCK_VM_EXEC_H
#define JIT_CPU_BLOCK_VM_EXEC_H

#include "jit/cpu/block_vm.h"

/* Temporary blocks of a frame: these for single instructions, then masks of WHILEs in a VEC (vmcode.nmasks), then carries that
 * change places (vmcode.nswaps). */
enum { TEMP_MASKS = 4 };

/* Runs ops[pc..end). False: interrupted. */
QN_MUST_CHECK bool frame_run(bvm_frame *f, uint32_t pc, uint32_t end);
/* Value v as f->n elements: where it lies, or a scalar repeated in temporary `slot`. */
const void *bvm_vector(bvm_frame *f, l_val v, int slot);

/* ---- accumulators (block_vm_acc.c) ---- */
/* Gives an accumulator its memory, from `at` on; returns what follows. */
char *bvm_acc_place(bvm_frame *f, const bvm_acc_plan *a, char *at);
/* The instructions ACC, PUSH, SCAN, PARTIAL, MERGE, FINISH. */
void bvm_acc_reset(bvm_frame *f, const bvm_op *o);
void bvm_acc_push(bvm_frame *f, const bvm_op *o);
void bvm_acc_scan(bvm_frame *f, const bvm_op *o);
void bvm_acc_partial(bvm_frame *f, const bvm_op *o);
void bvm_acc_merge(bvm_frame *f, const bvm_op *o);
void bvm_acc_finish(bvm_frame *f, const bvm_op *o);
/* Before each block of a VEC that pushes to accumulators with many results: all its blocks begin with the counts that the `first` one found. */
void bvm_acc_vec_block(bvm_frame *f, uint32_t pc, uint32_t end, bool first);

#endif
