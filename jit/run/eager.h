/* Eager execution on any device: every op as a one-op kernel on the device that has the operands, and host scalars by the same scalar code. */
#ifndef JIT_RUN_EAGER_H
#define JIT_RUN_EAGER_H

#include "jit/graph/graph.h"
#include "jit/kernel/plan.h"
#include "jit/run/dispatch.h"
#include "jit/run/door.h"
#include "lang/vm.h"

/* Runs one op now. Operands: arrays (forced here) and host scalars, as the language has them: promotion, weak numbers and
 * shapes are resolved here. Borrowed operands, owned result (a new array, a view, or a host scalar when all operands are
 * host scalars). Errors (E201..E210, E303 ...) carry no place. */
QN_MUST_CHECK qn_value eager_apply(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr);

/* What eager_apply goes through: POINTWISE ops with one to three operands, REDUCE and SCAN ops (one operand), which do small arrays
 * themselves if there is nothing to ask, and else go on to the way that takes everything. */
QN_MUST_CHECK qn_value eager_fast(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr);
/* What eager_fast does itself of one, two and three operands; unset: nothing is done, go on to what takes everything. */
QN_MUST_CHECK qn_value eager_one(qn_vm *vm, op_id op, qn_value a);
QN_MUST_CHECK qn_value eager_two(qn_vm *vm, op_id op, qn_value a, qn_value b);
QN_MUST_CHECK qn_value eager_three(qn_vm *vm, op_id op, const qn_value *in);
/* A conversion of an array. Unset as above. */
QN_MUST_CHECK qn_value eager_convert(qn_vm *vm, qn_value a, qn_dtype to);
QN_MUST_CHECK qn_value eager_along(qn_vm *vm, op_id op, const qn_value *in, const op_attr *attr);
/* What it does itself of arrays: reductions over a mask of axes, scans along one. */
QN_MUST_CHECK qn_value eager_reduce(qn_vm *vm, op_id op, qn_value x, uint8_t axes, bool keepdims);
/* Products, random numbers, nonzero, sorting. Unset: not here, the slow way does it. */
QN_MUST_CHECK qn_value eager_fast_dot(qn_vm *vm, const qn_array *x, const qn_array *y);
QN_MUST_CHECK qn_value eager_fast_draw(qn_vm *vm, op_id op, const qn_value *in, const op_attr *attr);
/* As op_draw; with `values` as op_draw_ints, of bits. */
QN_MUST_CHECK qn_value eager_draw(qn_vm *vm, op_id op, const op_drawing *what, int64_t low, uint64_t values);
QN_MUST_CHECK qn_value eager_fast_nonzero(qn_vm *vm, qn_value in);
QN_MUST_CHECK qn_value eager_fast_sort(qn_vm *vm, op_id op, qn_value in, const op_attr *attr);
/* sort or argsort of an array along an axis. */
QN_MUST_CHECK qn_value eager_sort(qn_vm *vm, op_id op, const qn_array *x, int axis, bool descending);
/* Copies the elements of an array in the CPU's memory, in row-major order. */
void eager_write_out(void *to, const qn_array *a);
/* The sum of an array's elements, converted to the dtype `wide`, divided by their number. */
QN_MUST_CHECK qn_value eager_mean(qn_vm *vm, qn_value x, qn_dtype wide, uint8_t axes, bool keepdims);
QN_MUST_CHECK qn_value eager_slow(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr);

/* The one-op kernel of a call; NULL with an error raised. It lives as long as the VM. */
const l_program *eager_program(qn_vm *vm, const op_call *call);

/* VIEW ops, with the same meaning (view.c); and those of them that have operands, and slice_put, on strict ones of one device (owned; NULL
 * with an error raised). */
QN_MUST_CHECK qn_value eager_view(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr);
QN_MUST_CHECK qn_array *eager_run_view(qn_vm *vm, op_id op, qn_array *const *in, int nin, const op_attr *attr,
                                       const graph_type *t);
/* What the doors of the same names make (jit/run/door.h), outside of recordings, without rules. Unset: not here, the op says or does it. */
QN_MUST_CHECK qn_value eager_reshape(qn_vm *vm, qn_array *a, int rank, const int64_t *shape);
QN_MUST_CHECK qn_value eager_broadcast(qn_vm *vm, qn_array *a, int rank, const int64_t *shape);
/* Of an array that has data; the order names each axis once. */
QN_MUST_CHECK qn_value eager_permute(qn_vm *vm, const qn_array *a, const qn_dim *order);
/* d: start, size and step of each axis, which lie in the array. */
QN_MUST_CHECK qn_value eager_slice(qn_vm *vm, const qn_array *a, const qn_dim *d);
QN_MUST_CHECK qn_value eager_concat(qn_vm *vm, const qn_value *in, int nin, int axis);
/* d: for each axis how many copies before, behind and between its elements. */
QN_MUST_CHECK qn_value eager_pad(qn_vm *vm, const qn_array *x, qn_value with, const qn_dim *d);
QN_MUST_CHECK qn_value eager_full(qn_vm *vm, qn_value v, qn_dtype dtype, int rank, const int64_t *shape);
QN_MUST_CHECK qn_value eager_steps(qn_vm *vm, int64_t n, int64_t first, int64_t step);
/* QN_DTYPE_COUNT: in the one dtype that all have. Unset also if shapes or dtypes differ or numbers do not fit. */
QN_MUST_CHECK qn_value eager_stack(qn_vm *vm, const qn_value *in, int nin, int axis, qn_dtype dtype);

/* Frees the VM's one-op kernels. */
void eager_close(qn_vm *vm);

#endif
