/* Ops that are no kernels: sort, argsort, recurrence, and the two whose result size depends on data, compress and nonzero. Used by eager
 * dispatch and by the STEP_LIBRARY steps of plans. */
#ifndef JIT_RUN_LIBRARY_H
#define JIT_RUN_LIBRARY_H

#include "jit/run/host.h"
#include "lang/op.h"

/* Is `op` one of these? */
static inline bool library_has(op_id op) {
  return op == OP_sort || op == OP_argsort || op == OP_compress || op == OP_nonzero || op == OP_recurrence;
}

/* Runs one on the CPU, on strict, forced arrays of any layout. A new contiguous array, or NULL with an error raised. */
QN_MUST_CHECK static inline qn_array *library_apply(qn_vm *vm, op_id op, qn_array *const *in, const op_attr *attr) {
  return host()->library(vm, op, in, attr);
}

/* Runs one where the operands are, on a device: to `out`, contiguous and beside them, or, where that is NULL, to a new array. A size that data tell is
 * set in `out`, which has room for all. NULL with *refused: not there, or not yet, and nothing is raised. */
QN_MUST_CHECK qn_array *library_there(qn_vm *vm, op_id op, qn_array *const *in, const op_attr *attr, qn_array *out,
                                      bool *refused);

#endif
