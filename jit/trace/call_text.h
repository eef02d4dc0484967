/* How a graph value is called, as a line of its text (call_text.c). */
#ifndef JIT_TRACE_CALL_TEXT_H
#define JIT_TRACE_CALL_TEXT_H

#include "jit/trace/body.h"

/* Appends the line, with its end, if calls are more than a graph says by itself: an argument for each input, in order, and the outputs as a result. Nothing
 * is appended where no line can tell it. */
void call_text_write(qn_value graph, text_buf *out);
/* Reads such a line (without its end) for a body that has its graph and nothing else. values[i] becomes the number that is bound to the body's i-th bound input;
 * there is room for one of each input. False: `why` (of `size` bytes) has the reason, or an error is raised. */
QN_MUST_CHECK bool call_text_read(qn_vm *vm, const char *line, graph_body *b, qn_value *values, char *why, size_t size);

#endif
