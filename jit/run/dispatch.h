/* What eager dispatch and the steps of plans share, so that they raise the same errors: host scalars, checks, refusals. Functions called eager_ or
 * op_ are defined in eager.c. */
#ifndef JIT_RUN_DISPATCH_H
#define JIT_RUN_DISPATCH_H

#include "jit/graph/graph.h"
#include "jit/kernel/l.h"
#include "lang/vm.h"

/* ---- host scalars (scalar.c) ---- */

/* An op on host scalars alone: the weak arithmetic of the language. Errors are raised (E305 to E308). Constant folding uses it, too. */
QN_MUST_CHECK qn_value scalar_apply(qn_vm *vm, op_id op, const qn_value *in, int nin);
/* The same on operands of one weak type (b is ignored where the op has one), for the ops that loops count and test with, where no error is raised.
 * False: scalar_apply is to do it. */
bool scalar_quick(op_id op, qn_dtype type, qk_scalar a, qk_scalar b, qk_scalar *out);
/* The float part of it without a VM, for folding: an op on f64 operands; op must be POINTWISE and result f64. */
double scalar_math(op_id op, const double *in);

/* ---- errors and operands ---- */

/* Raises the error of a failed check: `element` counts the result's elements in order, `shown` is the offending value or unset; for an index, its axis
 * and that axis's size. dtype: the result's. */
qn_value eager_raise_check(qn_vm *vm, op_id op, qn_dtype dtype, int64_t element, qn_value shown, int axis,
                           int64_t size);
/* False with E207 raised: the host number v does not fit the dtype. */
QN_MUST_CHECK bool eager_check_fit(qn_vm *vm, qn_value v, qn_dtype to);
/* A number as a weak scalar of a type (bool, i64, f64). */
QN_MUST_CHECK qn_value eager_weak_cast(qn_vm *vm, qn_value v, qn_dtype to);

/* OP_gemm of arrays that are stored as the flags in attr say (gemm.h). A new array; NULL with an error raised. */
QN_MUST_CHECK qn_array *eager_gemm(qn_vm *vm, qn_array *const in[2], const op_attr *attr);

/* Raises the error of an op that refuses its operands, with these as notes. */
qn_value op_refuse(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_refusal *why);

/* Raises E210: operands on two devices (codes). */
qn_value op_raise_devices(qn_vm *vm, const char *what, int one, int other);

/* graph_type of a value: concrete sizes. False if it is neither array nor host scalar. */
bool value_graph_type(qn_value v, graph_type *out);

#endif
