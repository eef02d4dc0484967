/* The option `backend` of jit (backend.c), for calls of transforms (transform.c). */
#ifndef JIT_TRACE_TRANSFORM_H
#define JIT_TRACE_TRANSFORM_H

#include "jit/trace/rec.h"

/* The code of the device that the option names; -1 if it names none. */
int backend_device(qn_value backend);
/* Moves the arrays in the arguments to a device and makes it the VM's; *before gets the VM's device so far. False with an error raised and
 * nothing changed. */
QN_MUST_CHECK bool backend_enter(qn_vm *vm, int device, qn_value *args, int nargs, int *before);
/* Calls jit(f, backend: a function). Owned, or the error value. */
QN_MUST_CHECK qn_value backend_call(qn_vm *vm, qn_value fn, qn_value backend, bool fullgraph, const qn_value *args,
                                    int nargs, qn_value kwargs);
void backends_close(qn_vm *vm);

#endif
