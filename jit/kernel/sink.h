/* Loops that are one kernel: from a NODE_LOOP to a K kernel with WHILE. */
#ifndef JIT_KERNEL_SINK_H
#define JIT_KERNEL_SINK_H

#include "jit/kernel/lower.h"

typedef struct sink_request {
  graph *g;             /* lowering adds expressions to its table of dims */
  uint32_t node;        /* the loop */
  const uint32_t *proj; /* by result of the loop: the node that takes it; 0: none does */
  cancel_flag cancel;
} sink_request;

/* Makes the kernel of a loop, which is owned by the caller, finished and not verified. Its buffers are the operands that are arrays, and a
 * result each, where host numbers are arrays of one element: k->buffers[i].ref is the operand or the node that takes the result. Its checks
 * say only that the loop fails, and how they are counted is not in the order in which they fail: whoever runs it finds the error by
 * running the loop turn by turn. NULL with a reason in *why (a static text): memory is short, it was cancelled, or the loop cannot be
 * one kernel. */
QN_MUST_CHECK k_kernel *sink(const sink_request *r, const char **why);

/* Appends to kernel k what computes elementwise node n of graph g from these values, and sets *to to its value; with host ints that do not fit, and
 * what else fails, as checks. Of the request only the graph and the node of the loop are read. False with a reason, as above. */
QN_MUST_CHECK bool sink_number(const sink_request *r, const graph *g, const graph_node *n, k_kernel *k, const k_val *in,
                               k_val *to, const char **why);

#endif
