/* What an engine did when: spans of time that `--trace` writes for chrome://tracing and Perfetto.
 *
 * An engine has no timeline unless somebody starts one; then recordings, plans, compilations, runs of plans and kernels add a
 * span each, from whatever thread they happen on. Where there is none, asking costs a load and a test. */
#ifndef LANG_TIMELINE_H
#define LANG_TIMELINE_H

#include "lang/vm.h"

#define TIMELINE_KINDS(X)                                                                                              \
  X(script)    /* a file or text */                                                                                    \
  X(recording) /* a call that is run under the recorder */                                                             \
  X(plan)      /* a graph made into a plan */                                                                          \
  X(compile)   /* a plan's kernels compiled, or found in the cache */                                                  \
  X(run)       /* a plan in the place of a call */                                                                     \
  X(kernel)    /* one kernel; on a device, until it was handed over */
typedef enum timeline_kind {
#define X(name) TIMELINE_##name,
  TIMELINE_KINDS(X)
#undef X
      TIMELINE_KIND_COUNT
} timeline_kind;

/* Begins to collect, before other threads of the engine run. False: memory is short. It ends with the engine. */
QN_MUST_CHECK bool timeline_start(qn_engine *engine);
void timeline_forked(qn_engine *engine); /* in a forked child */
void timeline_close(qn_engine *engine); /* engine_close calls it, after the last thread has ended */

/* Nanoseconds of a clock that only goes forward, never 0. */
int64_t timeline_now(void);
/* A span from `begin` until now. The name is copied and cut to a length; NULL: a function without one. `label` (static, or
 * NULL) names `number` in the span's details. What finds no memory is left out and counted. */
void timeline_add(qn_engine *engine, timeline_kind kind, const char *name, int64_t begin, const char *label,
                  int64_t number);
/* All spans so far in Chrome's trace event format. */
void timeline_text(qn_engine *engine, text_buf *out);

/* For the places that add: when it begins, or 0 where nobody collects; and its end. */
static inline int64_t timeline_begin(const qn_engine *engine) { return engine->timeline ? timeline_now() : 0; }
static inline void timeline_end(qn_engine *engine, timeline_kind kind, const char *name, int64_t begin,
                                const char *label, int64_t number) {
  if (begin) timeline_add(engine, kind, name, begin, label, number);
}

#endif
