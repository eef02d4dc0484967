/* Compiling kernels by the system's C compiler: the CPU's part of jit/run/compile.h. */
#ifndef JIT_CPU_COMPILE_H
#define JIT_CPU_COMPILE_H

#include "jit/cpu/engine.h"
#include "jit/run/code.h"
#include "jit/run/compile.h"

/* compile_plan and plan_source of jit/run/compile.h. */
void cpu_compile(qn_engine *engine, plan *p, const compile_options *options);
void cpu_source(const plan *p, text_buf *out);

/* Something that the user should be told once (no compiler found, the cache folder cannot be written, a damaged cache file
 * was dropped): copies the next unreported sentence and returns true. Any thread. */
bool compile_trouble(qn_engine *engine, char *text, size_t size);

/* The options that the compiler gets: *n of them, never freed. */
const char *const *compile_flags(int *n);

void compile_close(cpu_engine *c);
void compile_forked(cpu_engine *c); /* in a forked child: nobody compiles there yet */

#endif
