/* Patterns that programs register: what is found in a recorded graph gives way to something else before it is planned (rewrites.c). */
#ifndef JIT_TRACE_REWRITES_H
#define JIT_TRACE_REWRITES_H

#include "jit/trace/recording.h"
#include "jit/trace/rewrite_notes.h"

void rewrites_close(qn_vm *vm);
/* Are there patterns? */
static inline bool rewrites_any(qn_vm *vm) { return jit_of(vm)->rules != NULL; }
/* Applies the patterns to a graph that is not shared yet, and to the regions in it: *g (owned) becomes another graph with the same inputs and
 * outputs, and `regions`, its parts with derivatives of their own, are numbered anew. Code of the program is run. False with an error raised:
 * one that nothing catches, or memory is short, and then the graph is as it was. */
QN_MUST_CHECK bool rewrites_apply(qn_vm *vm, graph **g, region_list *regions, rewrite_notes *notes);
/* Applies them to what node *root of a recording is made of, from node `from` on: appends it anew, and *root becomes its counterpart. As
 * rewrites_apply otherwise. */
QN_MUST_CHECK bool rewrites_append(struct recording *r, uint32_t from, uint32_t *root);

#endif
