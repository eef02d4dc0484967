/* What eager dispatch and the steps of plans share, so that they raise the same errors: host scalars, checks, refusals. What is named
 * eager_ or op_ is defined beside eager dispatch. */
#ifndef JIT_RUN_DISPATCH_H
#define JIT_RUN_DISPATCH_H

#include "jit/graph/graph.h"
#include "lang/vm.h"

/* ---- host scalars (scalar.c) ---- */

/* The op on host scalars only: the weak arithmetic of the language (E305..E308), also used by kernels' constant folding. */
QN_MUST_CHECK qn_value scalar_apply(qn_vm *vm, op_id op, const qn_value *in, int nin);
/* The float part of it without a VM, for folding: an op on f64 operands; op must be POINTWISE and result f64. */
double scalar_math(op_id op, const double *in);

/* ---- errors and operands ---- */

/* A failed check: its element (flat), the offending value (or unset), for indices the axis and its size; dtype: the result's. */
qn_value eager_raise_check(qn_vm *vm, op_id op, qn_dtype dtype, int64_t element, qn_value shown, int axis,
                           int64_t size);
/* Does a host number fit a dtype? False with E207 raised. */
QN_MUST_CHECK bool eager_check_fit(qn_vm *vm, qn_value v, qn_dtype to);
/* A number as a weak scalar of a type (bool, i64, f64). */
QN_MUST_CHECK qn_value eager_weak_cast(qn_vm *vm, qn_value v, qn_dtype to);

/* OP_gemm of arrays that are stored as the flags say (gemm.h). Owned; NULL with an error raised. */
QN_MUST_CHECK qn_array *eager_gemm(qn_vm *vm, qn_array *const in[2], const op_attr *attr);

/* Raises the error of a refused op with operand texts as notes. */
qn_value op_refuse(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_refusal *why);

/* Raises E210: operands on two devices (codes). */
qn_value op_raise_devices(qn_vm *vm, const char *what, int one, int other);

/* graph_type of a value: concrete sizes. False if it is neither array nor host scalar. */
bool value_graph_type(qn_value v, graph_type *out);

#endif
