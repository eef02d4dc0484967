/* The host: what the CPU does for every device. It runs plans whose arrays are in its memory, does what a device refuses, and computes with host
 * scalars. Only the CPU's row of the table of devices has it. */
#ifndef JIT_RUN_HOST_H
#define JIT_RUN_HOST_H

#include "jit/kernel/plan.h"
#include "jit/run/device.h"

/* A failed check: the smallest error so far and, if it is known, the offending value. */
typedef struct kernel_failure {
  uint64_t error; /* check number << 48 | element; ~0: none */
  bool shown;     /* the value is known: */
  uint8_t dtype;  /* its dtype */
  uint64_t bits;  /* its bits */
} kernel_failure;

struct compile_options;

typedef struct device_host {
  /* Runs one L program once. buffers: those that are not scratch. *kept is NULL at first and then what the host keeps of the program, freed by
   * `forget`. compiled: the program's compiled phases; without them (NULL) it is interpreted, and only then a failure shows its value. False:
   * a check failed and nothing is raised; or, after an interrupt or without memory, an error is raised and failure->error is ~0. */
  bool (*launch)(qn_vm *vm, const l_program *p, void **kept, const qk_phase *compiled, void *const *buffers,
                 const int64_t *ints, const qk_scalar *scalars, kernel_failure *failure);
  void (*forget)(void *kept);
  /* Memory for the arena of the plan that runs, which stays the VM's. NULL with an error raised. slab_leave says that the plan has ended. */
  void *(*slab)(qn_vm *vm, size_t bytes);
  void (*slab_leave)(qn_vm *vm);
  /* One of the ops of library.h, on strict, forced arrays of any layout. A new contiguous array, or NULL with an error raised. */
  qn_array *(*library)(qn_vm *vm, op_id op, qn_array *const *in, const op_attr *attr);
  /* One element of a POINTWISE op on operands of one dtype, by the functions that kernels have. False: it has none. */
  bool (*one)(op_id op, qn_dtype dtype, const void *a, const void *b, const void *c, void *out);
  /* compile_plan and plan_source of compile.h. */
  void (*compile)(qn_engine *engine, plan *p, const struct compile_options *options);
  void (*source)(const plan *p, text_buf *out);
} device_host;

static inline const device_host *host(void) { return device_cpu.host; }

#endif
