/* Work in pieces (pieces.h). Threads take the numbers of pieces from a counter. Between two pieces they look at the interrupt flag, and the
 * caller's thread also at the time limit. */
#include "jit/cpu/pieces.h"

#include "jit/cpu/cpu.h"
#include "jit/cpu/thread_pool.h"

bool pieces_stop(cpu_pieces *p, int thread) {
  if (atomic_load_explicit(&p->stop, memory_order_relaxed)) return true;
  bool stop = cpu_must_stop(p->vm, thread == 0);
  if (stop) atomic_store(&p->stop, true);
  return stop;
}

static void take(void *ctx, int thread) {
  cpu_pieces *p = ctx;
  for (;;) {
    int64_t k = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
    if (k >= p->n || (k && pieces_stop(p, thread))) return;
    p->work(p, thread, k);
  }
}

bool pieces_run(qn_vm *vm, int threads, int64_t n, void (*work)(cpu_pieces *p, int thread, int64_t piece), void *ctx) {
  cpu_pieces p = {.vm = vm, .ctx = ctx, .work = work, .n = n};
  atomic_init(&p.next, 0);
  atomic_init(&p.stop, false);
  bool token = threads > 1 && n > 1 && thread_pool_take(vm->engine);
  if (token) {
    thread_pool_run(vm->engine, threads - 1, vm->tune[TUNE_par_spin], take, &p);
    thread_pool_leave(vm->engine);
  } else {
    take(&p, 0);
  }
  if (!atomic_load(&p.stop)) return true;
  cpu_raise_stopped(vm);
  return false;
}
