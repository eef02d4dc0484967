/* What an engine did when: spans of time that `--trace` writes for chrome://tracing and Perfetto.
 *
 * An engine has no trace_events unless somebody starts one; then calls, ops, recordings, plans, compilations, runs of plans and kernels add a
 * span each, from whatever thread they happen on. Where there is none, asking costs a load and a test, and the ops that cost least do not even
 * ask: the CPU looks their programs up in a table that stays empty meanwhile. */
#ifndef LANG_TRACE_EVENTS_H
#define LANG_TRACE_EVENTS_H

#include "lang/vm.h"

#define TRACE_EVENTS_KINDS(X)                                                                                          \
  X(script)    /* a file or text */                                                                                    \
  X(call)      /* a call of a function with arrays that the interpreter makes */                                       \
  X(op)        /* an op on few elements, at once */                                                                    \
  X(recording) /* a call that is run under the recorder */                                                             \
  X(plan)      /* a graph made into a plan */                                                                          \
  X(compile)   /* a plan's kernels compiled, or found in the cache */                                                  \
  X(run)       /* a plan in the place of a call */                                                                     \
  X(kernel)    /* one kernel; on a device, until it was handed over */
typedef enum trace_events_kind {
#define X(name) TRACE_EVENTS_##name,
  TRACE_EVENTS_KINDS(X)
#undef X
      TRACE_EVENTS_KIND_COUNT
} trace_events_kind;

/* Begins to collect, before other threads of the engine run. False: memory is short. It ends with the engine. */
QN_MUST_CHECK bool trace_events_start(qn_engine *engine);
void trace_events_forked(qn_engine *engine); /* makes it usable in a forked child */
void trace_events_close(qn_engine *engine);  /* engine_close calls it, after the last thread has ended */

/* Nanoseconds of a clock that only goes forward, never 0. */
int64_t trace_events_now(void);
/* A span from `begin` until now. The name is copied and cut to a length; NULL: a function without one. `label` (static, or
 * NULL) names `number` in the span's details. What finds no memory is left out and counted. */
void trace_events_add(qn_engine *engine, trace_events_kind kind, const char *name, int64_t begin, const char *label,
                      int64_t number);
/* All spans so far in Chrome's trace event format. */
void trace_events_text(qn_engine *engine, text_buf *out);

/* For code that adds spans: trace_events_begin gives the time, or 0 if nothing is collected, and trace_events_end adds the span that began
 * then. */
static inline int64_t trace_events_begin(const qn_engine *engine) {
  return engine->trace_events ? trace_events_now() : 0;
}
static inline void trace_events_end(qn_engine *engine, trace_events_kind kind, const char *name, int64_t begin,
                                    const char *label, int64_t number) {
  if (begin) trace_events_add(engine, kind, name, begin, label, number);
}

#endif
