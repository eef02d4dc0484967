/* Running L programs on the CPU, and what else the files of jit/cpu share: a VM's state, its threads, interrupts. */
#ifndef JIT_CPU_CPU_H
#define JIT_CPU_CPU_H

#include "jit/cpu/block_vm.h"
#include "jit/run/host.h"

/* Makes the VM's state, when the VM opens (devices_open). False with an error raised. */
QN_MUST_CHECK bool cpu_open(qn_vm *vm);
void cpu_close(qn_vm *vm);

/* The first member of a VM's state: what every eager op looks at. */
typedef struct cpu_kept {
  const bvm_loops *loops;                          /* of this processor */
  const struct op_program **op_programs[OP_COUNT]; /* op_program.h's; NULL: none of the op so far */
  /* The same for ops that need not look whether they are traced (trace_events.h): all NULL while they are. */
  const struct op_program **quick[OP_COUNT];
} cpu_kept;
static inline cpu_kept *cpu_kept_of(qn_vm *vm) { return vm->devices[FAMILY_cpu]; }

/* Frees what op_program.c keeps there. */
void op_programs_free(qn_vm *vm, cpu_kept *k);

/* The loops of this processor. */
static inline const bvm_loops *cpu_loops(qn_vm *vm) { return cpu_kept_of(vm)->loops; }

/* How many threads may share work that takes as long as a pointwise op on `work` elements: at least 1. */
int cpu_threads(qn_vm *vm, int64_t work);

/* Must running work stop, because of an interrupt or, if the VM's `own` thread asks, the time limit? */
static inline bool cpu_must_stop(qn_vm *vm, bool own) {
  if (atomic_load_explicit(&vm->interrupt, memory_order_relaxed)) return true;
  return own && vm->config.time_limit > 0 && !error_pending(vm) && vm_poll_slow(vm);
}
/* Raises the error of work that was stopped, if none is pending. */
static inline void cpu_raise_stopped(qn_vm *vm) {
  if (!error_pending(vm) && !vm_poll_slow(vm)) raise_error(vm, E_interrupted, SPAN_NONE, "interrupted");
}

/* The end of order INNER (l.h): 64 lanes, of which the first n (1..64) are x[0..n) and the others the identity, folded by halving
 * to one value, `out`. `lanes` is room for 64 elements; it may be `x`, and `out` may be the start of it. */
void bvm_fold_lanes(bvm_fn fold, size_t size, void *out, char *lanes, const char *x, int64_t n);

/* Runs one L program once: device_host.launch, whose `kept` is the block VM's translation, *bvm_code. */
QN_MUST_CHECK bool kernel_launch(qn_vm *vm, const l_program *p, void **bvm_code, const qk_phase *compiled,
                                 void *const *buffers, const int64_t *ints, const qk_scalar *scalars,
                                 kernel_failure *failure);

#endif
