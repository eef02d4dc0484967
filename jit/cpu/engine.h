/* The CPU's part of an engine: what its VMs share. */
#ifndef JIT_CPU_ENGINE_H
#define JIT_CPU_ENGINE_H

#include "jit/run/device.h"

typedef struct cpu_engine {
  void *pool; /* thread_pool.c's: threads */
  void *code; /* compile.c's: compiled kernels */
} cpu_engine;

/* Made when first asked for; NULL when memory is short. Its members are made in the same way, by the files that they belong to. */
static inline cpu_engine *cpu_engine_of(qn_engine *engine) {
  return engine_part(engine, &engine->devices[FAMILY_cpu], sizeof(cpu_engine), NULL);
}

#endif
