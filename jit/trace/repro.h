/* Reproductions of defects: a graph, its inputs and the settings as a text, which can be run again (repro.c). */
#ifndef JIT_TRACE_REPRO_H
#define JIT_TRACE_REPRO_H

#include "jit/trace/calls.h"

/* Hands a reproduction to vm->hooks.repro, if there is one: of a graph that was run with these inputs (NULL: it has no plan) on a device, and
 * `what` is wrong. Gives the name under which it was kept in `name`, which is empty if it was not. Raises nothing, and keeps a pending error. */
void repro_write(qn_vm *vm, const graph *g, const call_inputs *c, int device, const char *what, char *name,
                 size_t size);
/* The same for a call, whose error is pending and becomes `what`; the error gets a note that tells the name. */
void repro_of_call(qn_vm *vm, const specialization *e, const call_inputs *c);

#endif
