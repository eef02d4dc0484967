/* Eager execution: one op now, on the device that has its operands.
 *
 * eager_apply runs any op. It asks a form for few elements first, where the class of the op has one (the functions below, each in a file of
 * its class), and else eager_slow, which takes everything and makes a kernel of the op. The door (door.h) asks these forms itself where
 * an op's attribute need not be made for them.
 *
 * A form gives an array that the caller owns, or the error value, with the error raised; or unset: it has done nothing and raised nothing,
 * since the operands are large, on a device, pending, of a kind that it does not take, or wrong. Then the op is for eager_apply or eager_slow,
 * which also word what is wrong. Operands are borrowed. No form looks whether a recording is in progress.
 */
#ifndef JIT_RUN_EAGER_H
#define JIT_RUN_EAGER_H

#include "jit/graph/graph.h"
#include "jit/kernel/plan.h"
#include "jit/run/dispatch.h"
#include "jit/run/door.h"
#include "lang/trace_events.h"
#include "lang/vm.h"

/* For the forms: notes that one which began then (trace_events_begin) has done an op. Gives its result. */
static inline qn_value eager_traced(const qn_vm *vm, op_id op, int64_t begin, qn_value out) {
  if (__builtin_expect(begin != 0, 0) && out.head != TAG_UNSET)
    trace_events_add(vm->engine, TRACE_EVENTS_op, op_rows[op].name, begin, NULL, 0);
  return out;
}

/* Runs one op now. Operands: arrays (forced here) and host scalars, as the language has them: promotion, weak numbers and
 * shapes are resolved here. Borrowed operands, owned result (a new array, a view, or a host scalar when all operands are
 * host scalars). Errors (E201..E210, E303 ...) carry no place. */
QN_MUST_CHECK qn_value eager_apply(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr);

/* As eager_apply, by the op's kernel. */
QN_MUST_CHECK qn_value eager_slow(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr);

/* ---- POINTWISE ops (jit/cpu/eager_pointwise.c): arrays of any shapes and layouts, and host numbers ---- */

/* `to`: the result's dtype if the op is a cast, else 0. */
QN_MUST_CHECK qn_value eager_one(qn_vm *vm, op_id op, qn_value a, qn_dtype to);
QN_MUST_CHECK qn_value eager_two(qn_vm *vm, op_id op, qn_value a, qn_value b);
QN_MUST_CHECK qn_value eager_three(qn_vm *vm, op_id op, const qn_value *in);
/* One of these by the number of operands, 1 to 3, else eager_slow: never unset. */
QN_MUST_CHECK qn_value eager_fast(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr);
/* Copies the elements of an array in the CPU's memory to `to`, in row-major order. */
void eager_write_out(void *to, const qn_array *a);

/* ---- REDUCE and SCAN ops (jit/cpu/eager_reduce.c) of an array ---- */

/* A REDUCE op over a mask of axes, or a SCAN op along the one axis in it, from its first element on. */
QN_MUST_CHECK qn_value eager_reduce(qn_vm *vm, op_id op, qn_value x, uint8_t axes, bool keepdims);
/* The array converted to the dtype `wide`, summed over the axes and divided by the number of elements. */
QN_MUST_CHECK qn_value eager_mean(qn_vm *vm, qn_value x, qn_dtype wide, uint8_t axes, bool keepdims);
/* eager_reduce of any operand, as the attribute says, else eager_slow: never unset. */
QN_MUST_CHECK qn_value eager_along(qn_vm *vm, op_id op, const qn_value *in, const op_attr *attr);

/* ---- products, random numbers, library ops (jit/cpu/eager_gemm.c, eager_random.c, library.c) ---- */

QN_MUST_CHECK qn_value eager_fast_dot(qn_vm *vm, qn_value x, qn_value y);
/* A RANDOM op; in: the words of its key and the draw number. */
QN_MUST_CHECK qn_value eager_fast_draw(qn_vm *vm, op_id op, const qn_value *in, const op_attr *attr);
/* As op_draw (door.h); if `values` is not 0, as op_draw_ints, and then the op is OP_random_bits. */
QN_MUST_CHECK qn_value eager_draw(qn_vm *vm, op_id op, const op_drawing *what, int64_t low, uint64_t values);
QN_MUST_CHECK qn_value eager_fast_nonzero(qn_vm *vm, qn_value in);
/* OP_sort or OP_argsort along an axis; eager_fast_sort takes any LIBRARY op and its attribute. */
QN_MUST_CHECK qn_value eager_sort(qn_vm *vm, op_id op, const qn_array *x, int axis, bool descending);
QN_MUST_CHECK qn_value eager_fast_sort(qn_vm *vm, op_id op, qn_value in, const op_attr *attr);

/* ---- kernels ---- */

/* The one-op kernel of a call; NULL with an error raised. It lives as long as the VM. */
const l_program *eager_program(qn_vm *vm, const op_call *call);

/* ---- VIEW ops (view.c) ---- */

/* As eager_apply: never unset. */
QN_MUST_CHECK qn_value eager_view(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr);
/* A VIEW op that has operands, or slice_put, on arrays of one device that are strict: of the dtypes that the op computes in. `t` is the
 * result's type. A new array or view that the caller owns; NULL with an error raised. */
QN_MUST_CHECK qn_array *eager_run_view(qn_vm *vm, op_id op, qn_array *const *in, int nin, const op_attr *attr,
                                       const graph_type *t);
/* Forms for what the door's functions of the same names make. */
QN_MUST_CHECK qn_value eager_reshape(qn_vm *vm, qn_array *a, int rank, const int64_t *shape);
QN_MUST_CHECK qn_value eager_broadcast(qn_vm *vm, qn_array *a, int rank, const int64_t *shape);
/* Axis order[i] becomes axis i; each is named once. `a` is not pending. Never unset. */
QN_MUST_CHECK qn_value eager_permute(qn_vm *vm, const qn_array *a, const qn_dim *order);
/* d: three numbers for each axis, its first element, how many, and the step between them; they all exist. */
QN_MUST_CHECK qn_value eager_slice(qn_vm *vm, const qn_array *a, const qn_dim *d);
QN_MUST_CHECK qn_value eager_concat(qn_vm *vm, const qn_value *in, int nin, int axis);
/* d: three numbers for each axis, how many copies of `with` before, behind and between its elements. */
QN_MUST_CHECK qn_value eager_pad(qn_vm *vm, const qn_array *x, qn_value with, const qn_dim *d);
QN_MUST_CHECK qn_value eager_full(qn_vm *vm, qn_value v, qn_dtype dtype, int rank, const int64_t *shape);
QN_MUST_CHECK qn_value eager_steps(qn_vm *vm, int64_t n, int64_t first, int64_t step);
/* dtype: of the result; QN_DTYPE_COUNT: the one that all of them have, if they do. */
QN_MUST_CHECK qn_value eager_stack(qn_vm *vm, const qn_value *in, int nin, int axis, qn_dtype dtype);

/* Frees the VM's one-op kernels. */
void eager_close(qn_vm *vm);

#endif
