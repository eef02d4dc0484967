/* Compiling a plan's kernels to machine code with the system's C compiler, beside execution, through a cache on disk.
 *
 * All kernels of a plan go into one header-free C translation unit; it is compiled with posix_spawn at the lowest scheduling
 * class, loaded, and its phases are put into plan->kernels[i].code. Objects are kept by content: in the engine's table in
 * memory (by l_hash) and in the cache folder ($QUERN_CACHE, else $XDG_CACHE_HOME/quern, else ~/.cache/quern), where a file is
 * read whole and checked against its hash before it is loaded. Nothing here touches a VM: worker threads call it.
 */
#ifndef JIT_CPU_COMPILE_H
#define JIT_CPU_COMPILE_H

#include "jit/kernel/cache.h"
#include "jit/kernel/plan.h"
#include "lang/vm.h"

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

/* Compiles what has no code yet. Failure leaves kernels to the block VM; compile_trouble then says why. */
void compile_plan(qn_engine *engine, plan *p, const compile_options *options);

/* Something that the user should be told once (no compiler found, the cache folder cannot be written, a damaged cache file
 * was dropped): copies the next unreported sentence and returns true. Any thread. */
bool compile_trouble(qn_engine *engine, char *text, size_t size);

/* The C source of a plan's kernels, as it is compiled: for code(f, ...) and QUERN_LOG=code. */
void plan_source(const plan *p, text_buf *out);

/* The options that the compiler gets; borrowed, *n of them. */
const char *const *compile_flags(int *n);

void compile_engine_close(qn_engine *engine);
void compile_engine_forked(qn_engine *engine); /* in a forked child: nobody compiles there yet */

#endif
