/* The threads of an engine that help to run kernels. */
#ifndef JIT_CPU_THREAD_POOL_H
#define JIT_CPU_THREAD_POOL_H

#include "jit/cpu/engine.h"

typedef void (*thread_pool_work)(void *ctx, int thread);

/* Processors this process may use. */
int thread_pool_processors(void);

/* The right to run parallel regions: one VM of an engine has it at a time. False: another one has it (or memory is short); what is
 * to be done is then done by the caller alone. */
QN_MUST_CHECK bool thread_pool_take(qn_engine *engine);
void thread_pool_leave(qn_engine *engine);

/* For the holder: calls work(ctx, 0) on this thread, and work(ctx, k) for different k in 1..helpers on as many other threads as
 * get there before the first one has returned; ends when all have returned. So work must take its pieces from a shared
 * counter until there are none left. Helpers wait `spin` microseconds for the next region before they sleep. */
void thread_pool_run(qn_engine *engine, int helpers, int64_t spin, thread_pool_work work, void *ctx);

void thread_pool_close(cpu_engine *c);
/* In a forked child: there are no helpers, until some are made. */
void thread_pool_forked(cpu_engine *c);

#endif
