/* What runs kernels on a device other than the CPU, as eager dispatch and plans see it: vm->hooks.kernels. Memory and copies of
 * the device are in hooks.device (lang/vm.h).
 *
 * Code for a device is made beside execution. Until it is there, and wherever a device cannot do something, the caller takes the
 * operands to the CPU, runs there and brings the result back: the bits are the same. A failed check is treated so, too: the CPU
 * finds the same failure and has the words for it. */
#ifndef JIT_KERNEL_DEVICE_H
#define JIT_KERNEL_DEVICE_H

#include "jit/kernel/l.h"
#include "lang/vm.h"

/* A program as a device knows it: zeroed but for program and hash at first. */
typedef struct device_program {
  const l_program *program;
  uint64_t hash; /* l_hash */
  void *code;    /* the device's; lives as long as the engine */
} device_program;

typedef enum device_answer {
  DEVICE_DONE,    /* the work is in the VM's order of work; for programs with checks: done, and none failed */
  DEVICE_REFUSES, /* a check failed, or the device cannot run this: nothing raised */
  DEVICE_FAILS    /* with the error raised */
} device_answer;

/* A matrix product as a device's library makes it: `batch` products of an m by k and a k by n matrix, m by n results one after
 * the other. All matrices are row-major without gaps. The library's bits are those of its signature: of all that stands here, and
 * of nothing else. */
typedef struct device_product {
  uint8_t dtype; /* of all three: f16, bf16, f32, f64 */
  bool x_across; /* x is stored as k by m */
  bool y_across; /* y is stored as n by k */
  int64_t batch, m, n, k;
  int64_t x_step, y_step; /* elements from one matrix to the next; 0: one for all */
} device_product;

typedef struct device_kernels {
  /* Is there code for all of these? What nobody has asked for yet is handed to the compiler, as one unit. `wait`: until the
   * compiler is done with them. */
  bool (*ready)(qn_vm *vm, int device, device_program *const *programs, uint32_t n, bool wait);
  /* Runs one program whose code is ready: `buffers` are addresses on the device, in order, without scratch. */
  device_answer (*launch)(qn_vm *vm, int device, const device_program *p, void *const *buffers, const int64_t *ints,
                          const qk_scalar *scalars);
  /* Does the device's library make such a product? The answer for a signature stays the same as long as gpu.portable does; the
   * first one may take a while. Where it is no, products are kernels of our own. */
  bool (*has_product)(qn_vm *vm, int device, const device_product *p);
  /* Makes it: x, y, result, at multiples of 16 bytes. Refuses what has_product does not have. */
  device_answer (*product)(qn_vm *vm, int device, const device_product *p, void *const buffers[3]);
} device_kernels;

/* ---- launch-time values (launch.c) ---- */

/* The index values that stand before PARs, by instruction: values[0..p->n). False if one of them needs more than parameters, host
 * scalars and index arithmetic. */
QN_MUST_CHECK bool l_launch_values(const l_program *p, const int64_t *ints, const qk_scalar *scalars, int64_t *values);
/* Does a phase keep something in args->scratch? */
bool l_needs_scratch(const l_program *p);

#endif
