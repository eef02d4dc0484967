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

/* Runs one on the device that has the operands: to `out`, a contiguous array there, or, where `out` is NULL, to a new array. Where the size
 * depends on data, `out` has room for the largest result and gets its size. NULL: with *refused, where the device cannot do it (yet) and nothing
 * is raised; else with an error raised. */
QN_MUST_CHECK qn_array *library_there(qn_vm *vm, op_id op, qn_array *const *in, const op_attr *attr, qn_array *out,
                                      bool *refused);

#endif
