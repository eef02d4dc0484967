/* Work in pieces that are no kernel's: each is done once, by any thread of the engine's pool, in any order. */
#ifndef JIT_CPU_PIECES_H
#define JIT_CPU_PIECES_H

#include "lang/vm.h"

typedef struct cpu_pieces {
  qn_vm *vm;
  void *ctx;
  void (*work)(struct cpu_pieces *p, int thread, int64_t piece); /* thread: 0 is the caller's */
  _Atomic int64_t next;
  int64_t n;
  atomic_bool stop; /* an interrupt, or a limit, was seen */
} cpu_pieces;

/* Does pieces 0 .. n-1 with at most `threads` threads (cpu_threads). False with an error raised: it was interrupted, and not all are done. */
QN_MUST_CHECK bool pieces_run(qn_vm *vm, int threads, int64_t n, void (*work)(cpu_pieces *p, int thread, int64_t piece),
                              void *ctx);

/* For a piece that takes long: is the work to end? What it does then is of no use. */
bool pieces_stop(cpu_pieces *p, int thread);

#endif
