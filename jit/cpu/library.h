/* The ops of jit/run/library.h on the CPU. */
#ifndef JIT_CPU_LIBRARY_H
#define JIT_CPU_LIBRARY_H

#include "jit/run/library.h"

/* OP_recurrence, of two arrays of one shape (recurrence.c). A new array, or NULL with an error raised. */
QN_MUST_CHECK qn_array *recurrence_apply(qn_vm *vm, qn_array *by, qn_array *plus, const op_attr *attr);

/* device_host.library */
QN_MUST_CHECK qn_array *cpu_library(qn_vm *vm, op_id op, qn_array *const *in, const op_attr *attr);

#endif
