/* Why a capture broke off: an enum of the rows of breaks.def, and for each the reason in words and a hint. */
#ifndef JIT_TRACE_BREAKS_H
#define JIT_TRACE_BREAKS_H

typedef enum break_reason {
#define BREAK(symbol, reason, hint) BREAK_##symbol,
#include "jit/trace/breaks.def"
#undef BREAK
  BREAK_COUNT
} break_reason;
extern const char *const break_reasons[BREAK_COUNT], *const break_hints[BREAK_COUNT];

#endif
