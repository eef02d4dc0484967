/* Compiling a plan's kernels to machine code with the system's C compiler, beside execution, through a cache on disk.
 *
 * All kernels of a plan go into one header-free C translation unit; it is compiled with posix_spawn at the lowest scheduling
 * class, loaded, and its phases are put into plan->kernels[i].code. Objects are kept by content: in the engine's table in
 * memory (by l_hash) and in the cache folder ($QUERN_CACHE, else $XDG_CACHE_HOME/quern, else ~/.cache/quern), where a file is
 * read whole and checked against its hash before it is loaded. Nothing here touches a VM: compiler threads call it.
 */
#ifndef JIT_RUN_COMPILE_H
#define JIT_RUN_COMPILE_H

#include "jit/kernel/cache.h"
#include "jit/run/host.h"

/* Where a plan's code came from, for the log. */
typedef struct compile_report {
  enum { COMPILED_NOT, COMPILED_BEFORE /* all kernels were in memory */, COMPILED_CACHED, COMPILED_NOW } how;
  bool looked, stored; /* in the cache folder */
  char key[CACHE_KEY]; /* what names the object there */
  size_t bytes;        /* of the object */
} compile_report;

typedef struct compile_options {
  const int64_t *tune;        /* tunables of the VM that asked */
  bool spawn;                 /* may a compiler be started? else only the caches are looked at */
  const atomic_bool *abandon; /* becomes true when nobody wants the result: stop soon (the child is killed) */
  compile_report *report;     /* filled in; may be NULL */
} compile_options;

/* Compiles what has no code yet. Failure leaves kernels to the block VM; devices_trouble then says why. */
static inline void compile_plan(qn_engine *engine, plan *p, const compile_options *options) {
  host()->compile(engine, p, options);
}

/* The C source of a plan's kernels, as it is compiled: for code(f, ...) and QUERN_LOG=code. */
static inline void plan_source(const plan *p, text_buf *out) { host()->source(p, out); }

#endif
