/* Making plans (plan_data.h says what they are), and the one-op kernels of eager dispatch. */
#ifndef JIT_KERNEL_PLAN_H
#define JIT_KERNEL_PLAN_H

#include "jit/kernel/plan_data.h"

/* Fuses, schedules and plans a verified, simplified graph, which it takes over, also on failure. `tune` is a copy of the VM's tunables
 * (vm.h). The plan is owned by the caller. NULL when memory is short, when cancelled, or, for a defect, with a text in `why`. */
QN_MUST_CHECK plan *plan_make(graph *g, schedule_target target, const int64_t *tune, cancel_flag cancel, char *why,
                              size_t size);
void plan_free(plan *p);
/* Replaces sizes that facts say are equal (to a number, or to each other) by one size. This is right since guards check the facts before
 * the plan runs; an axis that facts say has size 1 is then treated as one that broadcasts. False when memory is short. */
QN_MUST_CHECK bool plan_settle_sizes(graph *g);
/* Makes plans of the header and the body of a loop that is a kernel, region number `region` of the plan; the caller frees them. False when
 * memory is short, or with `why`. */
QN_MUST_CHECK bool plan_parts(const plan *p, uint32_t region, const int64_t *tune, plan *parts[2], char *why,
                              size_t size);
/* Fusion decisions as text, for QUERN_LOG=fusion and explain. */
void plan_print(const plan *p, text_buf *out);

/* ---- one-op kernels of eager dispatch ---------------------------------------------------------------------------------
 *
 * Eager execution runs each op as a program of its own, whose sizes and strides are ints; except VIEW, LIBRARY and data-dependent ops
 * (compress, nonzero), concat and slice_put. The same lowering and scheduling as for fused kernels makes them, so the bits are the same.
 * Programs are shared by all calls of the same structure: op, dtypes, ranks, which strides are 0 or 1, sizes by magnitude
 * where the order of loops depends on them. Eager dispatch does per call
 *
 *     op_call_key(&call, &key, ints);             fast; no allocation
 *     program = cached by key, else kernel_for_op(&key, &why)
 *     launch(program, ..., buffers, ints, scalars)
 *
 * with buffers = the strict operands' elements 0 in order, then the result's; of RANDOM ops only the result's, and
 * scalars = key words k0, k1 and the draw number (i64). Others have no scalars. What ints mean is between op_call_key and
 * kernel_for_op: there are at most OP_CALL_INTS.
 * A check's element is the flat row-major index in the result (of REDUCE, SCAN and DOT ops there are none); for index,
 * scatter, gather and gather_add it is the flat row-major index in the broadcast index operands. */

enum { OP_CALL_OPERANDS = 12, OP_CALL_INTS = 256, OP_KEY_BYTES = 320 };

typedef struct op_operand {
  uint8_t dtype; /* the strict one: operands have been cast and fitted */
  uint8_t rank;
  int64_t shape[ARRAY_MAX_RANK];   /* the operand's own shape, before broadcasting */
  int64_t strides[ARRAY_MAX_RANK]; /* in elements; may be negative or 0 */
} op_operand;

typedef struct op_call {
  op_id op;
  int nin;
  const op_attr *attr;
  const op_operand *in;
  op_operand out; /* contiguous: strides are not read */
} op_call;

typedef struct op_key {
  uint16_t n; /* bytes in use; keys are equal if they and their bytes are */
  uint8_t bytes[OP_KEY_BYTES];
} op_key;

/* Makes the key of a call's program and the ints to launch it with. False if the call has no one-op kernel (too many operands or axes). */
bool op_call_key(const op_call *call, op_key *key, int64_t ints[OP_CALL_INTS]);
/* Makes the program for a key; owned by the caller. NULL with a reason: lower_no_memory, or a defect. */
QN_MUST_CHECK l_program *kernel_for_op(const op_key *key, schedule_target target, const char **why);

#endif
