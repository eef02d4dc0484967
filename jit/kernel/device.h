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

/* A program as one VM knows it on devices: zeroed but for program and hash at first. */
typedef struct device_program {
  const l_program *program;
  uint64_t hash; /* l_hash */
  void *code;    /* the device's, of one device at a time; lives as long as the engine */
} device_program;

typedef enum device_answer {
  DEVICE_DONE,    /* the work is in the VM's order of work */
  DEVICE_REFUSES, /* a check failed, or the device cannot run this: nothing raised */
  DEVICE_FAILS    /* with the error raised */
} device_answer;

/* A matrix product as a device's library makes it: `batch` products of an m by k and a k by n matrix, m by n results one after
 * the other. All matrices are row-major without gaps. The library's bits are those of its signature: of all that stands here, and
 * of nothing else. */
typedef struct device_gemm {
  uint8_t dtype; /* of all three: f16, bf16, f32, f64 */
  bool x_across; /* x is stored as k by m */
  bool y_across; /* y is stored as n by k */
  int64_t batch, m, n, k;
  int64_t x_step, y_step; /* elements from one matrix to the next; 0: one for all */
} device_gemm;

struct plan;

/* What a device keeps of a plan for one VM: code, constants, and what is known about sizes that have come before. */
typedef struct device_plan {
  const struct plan *plan;
  int device;
  void **constants; /* by plan buffer: the copy on the device; NULL of others */
} device_plan;

/* A call of a plan: what its steps refer to, by number. Symbols and slots may change from step to step. */
typedef struct device_call device_call;
struct device_call {
  const int64_t *symbols; /* values of dim expressions */
  void *const *buffers;   /* addresses on the device */
  const qk_scalar *slots; /* host scalars */
  /* What a step that is a product asks for; its operands lie as the signature says, but maybe not at multiples of 16 bytes. An
   * empty result has batch, m or n 0. False: the device cannot make it so. */
  bool (*product)(const device_call *call, uint32_t step, device_gemm *p);
  const void *caller; /* what that needs */
};

typedef struct device_kernels {
  /* ---- one program at a time ---- */

  /* Can all of these run there now: is there code for them, or an interpreter? What nobody has asked for yet is handed to the compiler, as one unit. `wait`: until the
   * compiler is done with them. */
  bool (*ready)(qn_vm *vm, int device, device_program *const *programs, uint32_t n, bool wait);
  /* Runs one program whose code is ready: `buffers` are addresses on the device, in order, without scratch. A program with checks
   * is waited for: DONE says that none failed. */
  device_answer (*launch)(qn_vm *vm, int device, const device_program *p, void *const *buffers, const int64_t *ints,
                          const qk_scalar *scalars);
  /* Does the device's library make such a product? The answer for a signature stays the same as long as gpu.portable does; the
   * first one may take a while. Where it is no, products are kernels of our own. */
  bool (*has_gemm)(qn_vm *vm, int device, const device_gemm *p);
  /* Makes it: x, y, result, at multiples of 16 bytes. Refuses what has_gemm does not have. */
  device_answer (*product)(qn_vm *vm, int device, const device_gemm *p, void *const buffers[3]);

  /* Stores x sorted along an axis, or (`indices`) the i64 indices that sort it, to `out`, a contiguous array beside it. Stable, nan last. Not waited
   * for. REFUSES: there is no code for it, or not yet. */
  device_answer (*sort)(qn_vm *vm, qn_array *out, const qn_array *x, int axis, bool descending, bool indices);
  /* The cells of x for which `mask` is true, in order; or, where x is NULL, the coordinates of these, i64[n, rank]. Both are contiguous. Stored to
   * `to`, contiguous and with room for all of them, whose size is then set; where that is NULL, to a new array, *made. Their number is
   * waited for. REFUSES: as of sort. */
  device_answer (*compress)(qn_vm *vm, const qn_array *x, const qn_array *mask, qn_array *to, qn_array **made);
  /* OP_recurrence of two contiguous arrays, stored to `to`, which is one, too. Not waited for. REFUSES: as of sort, and few long chains, and
   * f16 and bf16. */
  device_answer (*recurrence)(qn_vm *vm, qn_array *to, const qn_array *by, const qn_array *plus, int axis, bool reverse,
                              bool exclusive);

  /* ---- plans ---- */

  /* Is there code for all kernels of the plan? As `ready`. *there is NULL at first, and the same for one plan, VM and device from
   * then on; of another device it is made anew. */
  bool (*plan_ready)(qn_vm *vm, int device, const struct plan *p, device_plan **there, bool wait);
  /* Begins a call: constants are there and no check has failed. */
  QN_MUST_CHECK bool (*plan_begin)(qn_vm *vm, device_plan *there);
  /* Runs the kernels among the steps first .. first + n - 1, without waiting for their checks. Once a check has failed, kernels
   * behind it do nothing. */
  device_answer (*plan_kernels)(qn_vm *vm, device_plan *there, const device_call *call, uint32_t first, uint32_t n);
  /* May products go along with kernels? Then plan_kernels is given stretches that have both, and what it refuses has not run: the
   * caller gives it the kernels between products instead, and makes these one by one. */
  bool (*plan_joins)(qn_vm *vm, device_plan *there);
  /* Waits for the checks of all kernels of this call so far, if they have any: REFUSES if one failed. With an error pending it does
   * not wait. Every call that has begun ends so. */
  device_answer (*plan_checks)(qn_vm *vm, device_plan *there);
  /* Frees it; NULL is ignored. */
  void (*plan_close)(qn_vm *vm, device_plan *there);
} device_kernels;

/* ---- launch-time values (launch.c) ---- */

/* The index values that stand before PARs, by instruction: values[0..p->n). False if one of them needs more than parameters, host
 * scalars and index arithmetic. */
QN_MUST_CHECK bool l_launch_values(const l_program *p, const int64_t *ints, const qk_scalar *scalars, int64_t *values);
/* Does one of them depend on host scalars? */
bool l_launch_scalars(const l_program *p);
/* Do they need no more than that, whatever the parameters? */
bool l_launches(const l_program *p);
/* Does a phase keep something in args->scratch? */
bool l_needs_scratch(const l_program *p);
/* Do data decide how long it runs? */
bool l_unbounded(const l_program *p);

#endif
