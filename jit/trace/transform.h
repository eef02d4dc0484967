/* Calls of transformed functions (transform.c): the anchors of chains of transforms, and jit's backends (backend.c). */
#ifndef JIT_TRACE_TRANSFORM_H
#define JIT_TRACE_TRANSFORM_H

#include "jit/trace/graphs.h"
#include "jit/trace/rec.h"

/* A transform's anchor: entries of transformed functions hang on the code plus the chain of transforms. */
typedef struct chain_anchor {
  struct chain_anchor *next;
  uint64_t hash;
  uint32_t depth;
  void *code;           /* of the innermost function: where it lies, or its id or hash where it may go */
  const void *chain[8]; /* transform_defs, outermost first */
  jit_anchor anchor;
  /* Of a graph's code: values with a graph of this hash that have been looked up. Where there are none it goes some time (jit.chains_left). */
  bool graph;
  uint32_t live;
} chain_anchor;

void chains_leave(qn_vm *vm, const graph_body *b); /* the graph goes */
/* The anchor where entries of this function value hang; NULL for builtins and for chains of too many transforms, and with an
 * error raised when there is no memory for it. */
jit_anchor *anchor_of_value(qn_vm *vm, qn_value fn);

/* ---- backends ---- */

/* The code of the device that jit's option names; -1: it names none. */
int backend_device(qn_value backend);
/* Moves the arguments' arrays there and makes it the place of new ones. False with an error raised and nothing to leave. */
QN_MUST_CHECK bool backend_enter(qn_vm *vm, int device, qn_value *args, int nargs, int *before);
void backend_leave(qn_vm *vm, int before);
/* A call of jit(f, backend: a function). */
QN_MUST_CHECK qn_value backend_call(qn_vm *vm, qn_value fn, qn_value backend, bool fullgraph, const qn_value *args,
                                    int nargs, qn_value kwargs);
void backends_close(qn_vm *vm);

#endif
