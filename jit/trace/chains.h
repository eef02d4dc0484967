/* The anchors of functions within transforms (chains.c). */
#ifndef JIT_TRACE_CHAINS_H
#define JIT_TRACE_CHAINS_H

#include "jit/trace/anchors.h"

/* A transform's anchor: specializations of transformed functions hang on the code plus the chain of transforms. */
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

void chains_leave(qn_vm *vm, const graph_code *b); /* the graph goes */
/* The anchor where specializations of this function value hang; NULL for builtins and for chains of too many transforms, and with an
 * error raised when there is no memory for it. */
jit_anchor *anchor_of_value(qn_vm *vm, qn_value fn);

#endif
