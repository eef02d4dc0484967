/* Ops that are no kernels: sort, argsort, and the two whose result size depends on data, compress and nonzero. Used by eager
 * dispatch and by the STEP_LIBRARY steps of plans. */
#ifndef JIT_CPU_LIBRARY_H
#define JIT_CPU_LIBRARY_H

#include "lang/op.h"
#include "lang/vm.h"

/* Is `op` one of these? */
static inline bool library_has(op_id op) { return op == OP_sort || op == OP_argsort || op == OP_compress || op == OP_nonzero; }

/* Runs one on strict, forced arrays of any layout. A new contiguous array, or NULL with an error raised. */
QN_MUST_CHECK qn_array *library_apply(qn_vm *vm, op_id op, qn_array *const *in, const op_attr *attr);

#endif
