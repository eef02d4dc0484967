/* jit's backends (backend.c), for calls of transformed functions (transform.c). */
#ifndef JIT_TRACE_TRANSFORM_H
#define JIT_TRACE_TRANSFORM_H

#include "jit/trace/rec.h"

/* The code of the device that jit's option names; -1: it names none. */
int backend_device(qn_value backend);
/* Moves the arguments' arrays there and makes it the VM's device, which was *before. False with an error raised and nothing changed. */
QN_MUST_CHECK bool backend_enter(qn_vm *vm, int device, qn_value *args, int nargs, int *before);
/* A call of jit(f, backend: a function). */
QN_MUST_CHECK qn_value backend_call(qn_vm *vm, qn_value fn, qn_value backend, bool fullgraph, const qn_value *args,
                                    int nargs, qn_value kwargs);
void backends_close(qn_vm *vm);

#endif
