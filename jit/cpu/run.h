/* Running L programs on the CPU: one pool of threads per engine, the block VM, compiled code when it is there. */
#ifndef JIT_CPU_RUN_H
#define JIT_CPU_RUN_H

#include "jit/run/host.h"
#include "lang/vm.h"

/* Runs one L program once: `args` without scratch, error and interrupt (filled in here). `bvm_code` caches the block VM's
 * translation (*bvm_code NULL at first; freed by bvm_code_free). `code` may be NULL. On a failed check: false, with *error set
 * (check number << 48 | element) and nothing raised. On an interrupt or short memory: false with the error raised and *error ~0. */
QN_MUST_CHECK bool kernel_run(qn_vm *vm, const l_program *p, void **bvm_code, const qk_phase *code,
                              void *const *buffers, const int64_t *ints, const qk_scalar *scalars, uint64_t *error);
void bvm_code_free(void *bvm_code);

/* The VM's state, made if need be. False with an error raised. Everything that runs kernels does so by itself. */
QN_MUST_CHECK bool cpu_open(qn_vm *vm);
void cpu_close(qn_vm *vm);

/* The functions of one instruction set: chosen when an engine opens. */
const char *cpu_isa_name(void);

#endif
