/* Work that is not a kernel's, cut into pieces: each is done once, by any thread of the engine's pool, in any order. */
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

/* Calls work for pieces 0 .. n - 1, on at most `threads` threads (cpu_threads), and returns when all are done. False with an error raised: it
 * was interrupted, and some pieces are missing. */
QN_MUST_CHECK bool pieces_run(qn_vm *vm, int threads, int64_t n, void (*work)(cpu_pieces *p, int thread, int64_t piece),
                              void *ctx);

/* Must the work stop? For pieces that take long, which then return: their results are dropped. */
bool pieces_stop(cpu_pieces *p, int thread);

#endif
