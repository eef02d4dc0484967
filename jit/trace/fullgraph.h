/* jit(f, fullgraph: true): a call that must be one graph, and the error that names all that keeps it from being one. */
#ifndef JIT_TRACE_FULLGRAPH_H
#define JIT_TRACE_FULLGRAPH_H

#include "jit/trace/specialization.h"

struct recording;

/* A call that must be one graph begins: forgets what an earlier one came by. */
void fullgraph_begin(qn_vm *vm);
/* While such a call is made: notes what a recording came by that has ended, be it of the call, of a part of it or of a function that it calls. `e`:
 * what was made of it. Where memory is short, something is left out. */
void fullgraph_note(qn_vm *vm, const struct recording *r, const specialization *e);
/* Such a call begins, of a function with this anchor. What ends a recording around it need not be what keeps the call from being a graph, so nobody would
 * know. Unless recordings of the function have become graphs, the recording ends here, and the call is made as one of its own; if there were no
 * recordings yet, the one around it is made once more, the next time. (An arm that is looked at without data makes no call: it goes on.) False with an error
 * raised. */
QN_MUST_CHECK bool fullgraph_apart(qn_vm *vm, const jit_anchor *a);
/* A call that must be one graph and is made in a recording in progress, that of a transform for instance: what it is known by when it ends. */
typedef struct call_within {
  struct recording *base; /* NULL: nobody asks */
  bool arm;               /* it is only looked at */
  uint32_t exits, taps, nodes;
} call_within;

/* Such a call begins, of a function with this anchor. */
void fullgraph_enter(qn_vm *vm, const jit_anchor *a, call_within *c);
/* It ends: raises an error if the capture has ended in it, or would have, were there still one. Takes over and gives the result, or the error value. */
QN_MUST_CHECK qn_value fullgraph_leave(qn_vm *vm, const jit_anchor *a, const call_within *c, qn_value result);
/* In recording r, or an arm of it, something happens that ends every capture: notes it for a call in progress that must be one graph, since r may
 * capture nothing any more. */
void fullgraph_ends(struct recording *r, break_reason why, const char *text);

/* The call has been made: raises an error if its recording has broken off. Takes over and gives the result, or the error value. */
QN_MUST_CHECK qn_value fullgraph_check(qn_vm *vm, const jit_anchor *a, qn_value fn, qn_value result);

#endif
