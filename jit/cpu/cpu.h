/* What the files of jit/cpu know of each other beyond run.h and eager.h. */
#ifndef JIT_CPU_CPU_H
#define JIT_CPU_CPU_H

#include "jit/cpu/run.h"
#include "jit/cpu/vm.h"

/* The VM's state, made if need be; NULL with an error raised. */
struct cpu_state *cpu_of(qn_vm *vm);

/* The loops of this processor; NULL with an error raised. */
const vm_loops *cpu_loops(qn_vm *vm);

/* The memory of a plan's arena: one piece a VM, as large as the largest plan that runs. */
QN_MUST_CHECK void *cpu_slab(qn_vm *vm, size_t bytes);
void cpu_slab_leave(qn_vm *vm);

/* As kernel_run, with what the failed check showed (block VM only). */
QN_MUST_CHECK bool kernel_launch(qn_vm *vm, const l_program *p, void **vm_code, const qk_phase *compiled,
                                 void *const *buffers, const int64_t *ints, const qk_scalar *scalars,
                                 vm_failure *failure);

#endif
