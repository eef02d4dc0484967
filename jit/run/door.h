/* The door: the one way from the interpreter and the builtins to work on arrays.
 *
 * Each of these functions decides by itself how the work is done. While a recording is in progress (rec.h) it appends to the graph,
 * and shapes and dtypes are known, data is not; else it runs at once: in a form made for few elements where there is one, otherwise
 * by the op's own kernel. Callers see no difference: values, dtypes, shapes and errors are the same, bit by bit.
 *
 * For all of them: operands are borrowed, the result is owned, or it is the error value and the error is raised. Errors carry no
 * place; the interpreter adds it. Arrays may be pending, on devices, of any layout. Unless somewhat else is said, operands that do
 * not fit (shapes, dtypes, devices) are an error that is raised here; what a caller must have seen to is said. An axis is counted
 * from the front and exists.
 */
#ifndef JIT_RUN_DOOR_H
#define JIT_RUN_DOOR_H

#include "lang/op.h"
#include "lang/vm.h"

/* ---- any op ---------------------------------------------------------------------------------------------------------------- */

/* Applies an op to arrays and host scalars. All scalars: a host scalar results. `attr` may be NULL. */
QN_MUST_CHECK qn_value op_apply(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr);

/* POINTWISE ops without attributes, by the number of their operands: as op_apply, and quicker for few elements. */
QN_MUST_CHECK qn_value op_unary(qn_vm *vm, op_id op, qn_value a);
QN_MUST_CHECK qn_value op_binary(qn_vm *vm, op_id op, qn_value a, qn_value b);
QN_MUST_CHECK qn_value op_ternary(qn_vm *vm, op_id op, const qn_value in[3]);
/* What op_binary does of few elements outside of recordings, of any two values; unset: nothing is done. For a caller that keeps its
 * operands, and so can call op_binary then. */
QN_MUST_CHECK qn_value op_binary_few(qn_vm *vm, op_id op, qn_value a, qn_value b);

/* ---- dtypes ----------------------------------------------------------------------------------------------------------------- */

/* x, an array or a host number, as an array of this dtype; an array that has it is the result itself. Fractions are cut off; what an
 * integer dtype cannot represent is E309, and a host number that the dtype does not hold E207. */
QN_MUST_CHECK qn_value op_cast(qn_vm *vm, qn_value x, qn_dtype dtype);
/* The host scalar that a host number, or an array of one element, is in this weak dtype. */
QN_MUST_CHECK qn_value op_number(qn_vm *vm, qn_value x, qn_dtype dtype);

/* ---- along axes ------------------------------------------------------------------------------------------------------------- */

/* A REDUCE op over the axes in the mask, which the result has as axes of size 1 if keepdims. */
QN_MUST_CHECK qn_value op_reduce(qn_vm *vm, op_id op, qn_value x, uint8_t axes, bool keepdims);
/* The mean over these axes of an array. Integers are summed in f64, since the sum of a few large ones is beyond what f32 tells apart
 * or i64 holds; f16 and bf16 as f32 and rounded once, since their sums leave the range soon. */
/* How many elements the axes in the mask hold: a size (rec_sizes). */
int64_t op_count(qn_vm *vm, qn_value x, uint8_t axes);
QN_MUST_CHECK qn_value op_mean(qn_vm *vm, qn_value x, uint8_t axes, bool keepdims);
/* A SCAN op along an axis, from its first element on. */
QN_MUST_CHECK qn_value op_scan(qn_vm *vm, op_id op, qn_value x, int axis);
/* OP_sort or OP_argsort along an axis. */
QN_MUST_CHECK qn_value op_sort(qn_vm *vm, op_id op, qn_value x, int axis, bool descending);

/* ---- products --------------------------------------------------------------------------------------------------------------- */

/* The product of two arrays as the op has it: the last axis of x with the last but one of y, or the only one, for each of the axes before
 * them. */
QN_MUST_CHECK qn_value op_dot(qn_vm *vm, qn_value x, qn_value y);

/* ---- shapes ----------------------------------------------------------------------------------------------------------------- */

/* x in another shape of as many elements; x itself where it has this shape. Of a host number an array of its dtype. */
QN_MUST_CHECK qn_value op_reshape(qn_vm *vm, qn_value x, int rank, const int64_t *shape);
/* x repeated to this shape; x itself where it has it. */
QN_MUST_CHECK qn_value op_broadcast(qn_vm *vm, qn_value x, int rank, const int64_t *shape);
/* An array with its axes in another order, which names each axis once: axis order[i] becomes axis i. x itself where they stay. */
QN_MUST_CHECK qn_value op_permute(qn_vm *vm, qn_value x, const int *order);
/* Elements start, start + step ... of one axis of an array, `size` of them; they all exist, and step is not 0. */
QN_MUST_CHECK qn_value op_slice(qn_vm *vm, qn_value x, int axis, int64_t start, int64_t size, int64_t step);
/* An array between copies of a number; d has three numbers for each axis: how many before, behind and between its elements, none
 * negative. `with`: a host number that x's dtype holds, or an array of rank 0. */
QN_MUST_CHECK qn_value op_pad(qn_vm *vm, qn_value x, qn_value with, const qn_dim *d);

/* ---- joining ---------------------------------------------------------------------------------------------------------------- */

/* Arrays behind one another along an axis, in the dtype that they promote to; n > 0. */
QN_MUST_CHECK qn_value op_concat(qn_vm *vm, const qn_value *in, int n, int axis);
/* Arrays of one shape, or arrays of rank 0 and host numbers, behind one another along a new axis, each converted to this dtype as
 * op_cast does; 0 < n <= INT32_MAX. The caller has looked: the shapes are the same, of a rank below ARRAY_MAX_RANK. */
QN_MUST_CHECK qn_value op_stack(qn_vm *vm, const qn_value *in, int n, int axis, qn_dtype dtype);
/* What op_stack does of few small parts outside of recordings, which need not be of one shape; unset: nothing is done. */
QN_MUST_CHECK qn_value op_stack_few(qn_vm *vm, const qn_value *in, int n, int axis, qn_dtype dtype);

/* ---- new arrays ------------------------------------------------------------------------------------------------------------- */

/* v, a host number or an array that broadcasts to the shape, in every element, converted as op_cast does. Outside of recordings all
 * elements are stored: what does not fit memory is an error here. */
QN_MUST_CHECK qn_value op_full(qn_vm *vm, qn_value v, qn_dtype dtype, int rank, const int64_t *shape);
/* The place of each element along an axis, in an integer dtype, f32 or f64. */
QN_MUST_CHECK qn_value op_iota(qn_vm *vm, qn_dtype dtype, int rank, const int64_t *shape, int axis);
/* i64[n] of start, start + step ... */
QN_MUST_CHECK qn_value op_steps(qn_vm *vm, int64_t n, int64_t start, int64_t step);
/* n rows and m columns of 0, with 1 where their numbers are the same. */
QN_MUST_CHECK qn_value op_eye(qn_vm *vm, int64_t n, int64_t m, qn_dtype dtype);

/* ---- indices ---------------------------------------------------------------------------------------------------------------- */

/* What an integer array takes along an axis of an array: its axes stand where that axis was. At most ARRAY_MAX_RANK in all. */
QN_MUST_CHECK qn_value op_take(qn_vm *vm, qn_value x, qn_value index, int axis);
/* Element index[i, j ..] along an axis and i, j .. along the others. */
QN_MUST_CHECK qn_value op_gather(qn_vm *vm, qn_value x, qn_value index, int axis);
/* A copy of x with v, which broadcasts to x[index], added to it there; along the first axis, once for each time that it is named. */
QN_MUST_CHECK qn_value op_add_at(qn_vm *vm, qn_value x, qn_value index, qn_value v);
/* Where a bool array is true: i64[n, rank]. */
QN_MUST_CHECK qn_value op_nonzero(qn_vm *vm, qn_value mask);

/* ---- random numbers --------------------------------------------------------------------------------------------------------- */

/* Numbers that are drawn: their dtype and shape, and what they depend on. */
typedef struct op_drawing {
  qn_value key;   /* nil: the VM's seed, and its next draw number, which is used up; else i64[2] */
  int64_t number; /* of the draw, with a key */
  qn_dtype dtype;
  int rank;
  int64_t shape[ARRAY_MAX_RANK]; /* less than 2**48 elements */
} op_drawing;
/* A RANDOM op: bits as i64, the others in a float dtype. */
QN_MUST_CHECK qn_value op_draw(qn_vm *vm, op_id op, const op_drawing *d);
/* Integers from `low` on, as many as `values` (1 to 2**63): 63 bits of each element modulo `values`. Their dtype, one of integers,
 * holds them. */
QN_MUST_CHECK qn_value op_draw_ints(qn_vm *vm, const op_drawing *d, int64_t low, uint64_t values);
/* The same in a recording, of host ints that may be traced: `values` from 1 to 2**63 - 1. */
QN_MUST_CHECK qn_value op_draw_ints_of(qn_vm *vm, const op_drawing *d, qn_value low, qn_value values);

#endif
