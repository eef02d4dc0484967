/* How patterns and templates are made of the values of a call that is being recorded (tracers.c). */
#ifndef JIT_TRACE_TRACERS_H
#define JIT_TRACE_TRACERS_H

#include "jit/trace/recording.h"

/* Adds the pattern of v as a root, and gives the tracer of v: the same value with graph inputs for its arrays and numbers. Owned; the error
 * value if memory is short. A value that cannot be guarded breaks the capture. */
QN_MUST_CHECK qn_value pattern_root(struct recording *r, root_kind kind, qn_value v, qn_value *slot, rec_cell *cell,
                                    qn_str *name);
/* How a product is computed by a device's library depends on how its operands lie in memory. So the layout of inputs that such products
 * read, perhaps through views, becomes a part of their patterns. False if memory is short. */
QN_MUST_CHECK bool pattern_fix_layouts(struct recording *r);
/* Makes the template of a result, and the outputs of the graph. False: *broken says why it cannot be done, or an error is raised. */
QN_MUST_CHECK bool template_make(struct recording *r, qn_value v, tpl_list *out, break_reason *broken);
/* A node becomes an output of the graph, if it is none: *number is 1 + its number. False with an error raised. */
QN_MUST_CHECK bool template_output(struct recording *r, uint32_t node, uint32_t *number);
/* As template_make, but outputs are numbers of a list of nodes, which grows; the graph gets none. */
QN_MUST_CHECK bool template_of_nodes(struct recording *r, qn_value v, tpl_list *out, node_list *nodes);
/* As template_of_nodes for the arguments of a tap, a list; the nodes become its operands. False: *broken says why it cannot be done, or an error
 * is raised. */
QN_MUST_CHECK bool template_of_tap(struct recording *r, qn_value v, tpl_list *out, node_list *nodes,
                                   break_reason *broken);

#endif
