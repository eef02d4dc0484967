/* Making patterns and templates of the values of a call that is being recorded (tracers.c). */
#ifndef JIT_TRACE_TRACERS_H
#define JIT_TRACE_TRACERS_H

#include "jit/trace/recording.h"

/* Appends the pattern of `v` as a root and returns its tracer: the same value whose arrays and numbers are graph inputs of
 * the recording. Owned; error value when memory is short. A value that cannot be guarded breaks the capture. */
QN_MUST_CHECK qn_value pattern_root(struct recording *r, root_kind kind, qn_value v, qn_value *slot, rec_cell *cell,
                                    qn_str *name);
/* Products by a device's library depend on how the inputs lie that they see through views: says so of these. False when memory is
 * short. */
QN_MUST_CHECK bool pattern_fix_layouts(struct recording *r);
/* Template of a result; marks outputs in the graph. False: `*broken` says why (or an error is raised). */
QN_MUST_CHECK bool template_make(struct recording *r, qn_value v, tpl_list *out, break_reason *broken);
/* As template_make, but outputs are numbers in a list of nodes, which grows: nothing is marked in the graph. */
QN_MUST_CHECK bool template_of_nodes(struct recording *r, qn_value v, tpl_list *out, node_list *nodes);

#endif
