/* Compiler threads: an engine's queue of jobs, and the mailboxes of its VMs.
 *
 * A job is a graph (no values, no AST, no VM inside) and a copy of the tunables. A worker simplifies it and makes the plan,
 * puts that into the VM's mailbox (the block VM can run it from then on), and goes on compiling the plan's kernels; each
 * kernel's code pointer is set when it is ready. Workers and the compilers they start run at SCHED_IDLE, so that they take
 * only time that nobody else wants. A VM that closes forgets its jobs; a plan whose VM is gone is abandoned and freed by
 * whoever lets go last.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "jit/trace/trace.h"

enum { MAX_WORKERS = 64 };

typedef struct engine_jit {
  pthread_mutex_t lock;
  pthread_cond_t work;
  job *queue, **tail;
  bool closing;
  int nthreads;
  pthread_t threads[MAX_WORKERS];
  shared_plan *compiling[MAX_WORKERS];
} engine_jit;

void shared_plan_release(shared_plan *s) {
  if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
  for (uint32_t i = 0; i < s->plan->nkernels; i++)
    if (s->plan->kernels[i].vm_code) vmcode_free(s->plan->kernels[i].vm_code);
  plan_free(s->plan);
  free(s);
}

void job_free(job *j) {
  if (j->graph) graph_free(j->graph);
  free(j);
}

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Graph to plan; the job gives up its graph. */
static void make_plan(job *j) {
  double start = now_ms();
  graph *simple = graph_simplify(j->graph);
  graph_free(j->graph);
  j->graph = NULL;
  shared_plan *s = simple ? malloc(sizeof *s) : NULL;
  if (!s) {
    if (simple) graph_free(simple);
    return;
  }
  atomic_init(&s->refs, 1);
  atomic_init(&s->abandoned, false);
  s->plan = plan_make(simple, j->tune, j->why, sizeof j->why);
  if (!s->plan) {
    free(s);
    return;
  }
  j->plan = s;
  j->ms = now_ms() - start;
}

static void compile(qn_engine *engine, const int64_t *tune, bool spawn, shared_plan *s) {
  if (!tune[TUNE_jit_cc]) return;
  compile_options o = {.tune = tune, .spawn = spawn, .abandon = &s->abandoned};
  compile_plan(engine, s->plan, &o);
}

static void *worker(void *arg) {
  qn_engine *engine = arg;
  engine_jit *ej = engine->jit;
  struct sched_param idle = {0};
  pthread_setschedparam(pthread_self(), SCHED_IDLE, &idle);
  pthread_mutex_lock(&ej->lock);
  int me = 0;
  while (me < ej->nthreads && !pthread_equal(ej->threads[me], pthread_self())) me++;
  for (;;) {
    while (!ej->queue && !ej->closing) pthread_cond_wait(&ej->work, &ej->lock);
    if (ej->closing) break;
    job *j = ej->queue;
    ej->queue = j->next;
    if (!ej->queue) ej->tail = &ej->queue;
    j->next = NULL;
    pthread_mutex_unlock(&ej->lock);

    make_plan(j);
    int64_t tune[TUNABLE_COUNT];
    memcpy(tune, j->tune, sizeof tune);
    bool spawn = j->spawn;
    shared_plan *s = j->plan;
    if (s) atomic_fetch_add(&s->refs, 1); /* the worker's own */

    pthread_mutex_lock(&ej->lock);
    ej->compiling[me] = s;
    if (j->vm) {
      vm_jit *box = jit_of(j->vm);
      j->next = box->mailbox;
      box->mailbox = j;
      atomic_store(&box->mail, 1);
    } else { /* nobody waits any more */
      if (s) atomic_store(&s->abandoned, true);
      if (s) shared_plan_release(s);
      job_free(j);
    }
    pthread_mutex_unlock(&ej->lock);

    if (s && !atomic_load(&s->abandoned)) compile(engine, tune, spawn, s);

    pthread_mutex_lock(&ej->lock);
    ej->compiling[me] = NULL;
    if (s) shared_plan_release(s);
  }
  pthread_mutex_unlock(&ej->lock);
  return NULL;
}

static void engine_jit_close(qn_engine *engine) {
  engine_jit *ej = engine->jit;
  if (!ej) return;
  pthread_mutex_lock(&ej->lock);
  ej->closing = true;
  for (int i = 0; i < ej->nthreads; i++)
    if (ej->compiling[i]) atomic_store(&ej->compiling[i]->abandoned, true);
  pthread_cond_broadcast(&ej->work);
  pthread_mutex_unlock(&ej->lock);
  for (int i = 0; i < ej->nthreads; i++) pthread_join(ej->threads[i], NULL);
  for (job *j = ej->queue, *next; j; j = next) {
    next = j->next;
    job_free(j);
  }
  compile_engine_close(engine);
  cpu_engine_close(engine);
  pthread_cond_destroy(&ej->work);
  pthread_mutex_destroy(&ej->lock);
  free(ej);
  engine->jit = NULL;
}

bool engine_jit_open(qn_vm *vm) {
  qn_engine *engine = vm->engine;
  if (__atomic_load_n(&engine->jit, __ATOMIC_ACQUIRE)) return true;
  engine_jit *ej = calloc(1, sizeof *ej);
  if (!ej) {
    raise_memory(vm);
    return false;
  }
  pthread_mutex_init(&ej->lock, NULL);
  pthread_cond_init(&ej->work, NULL);
  ej->tail = &ej->queue;
  void *none = NULL; /* two VMs may open at once */
  if (!__atomic_compare_exchange_n(&engine->jit, &none, ej, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    pthread_cond_destroy(&ej->work);
    pthread_mutex_destroy(&ej->lock);
    free(ej);
    return true;
  }
  engine->jit_close = engine_jit_close;
  return true;
}

bool job_submit(qn_vm *vm, entry *e, graph *g, bool sync) {
  job *j = calloc(1, sizeof *j);
  if (!j) {
    graph_free(g);
    return false;
  }
  j->vm = vm;
  j->entry = e;
  j->graph = g;
  j->log = vm->log;
  j->spawn = (vm->config.capabilities & QN_CAP_SPAWN) != 0;
  memcpy(j->tune, vm->tune, sizeof j->tune);
  e->job = j;
  engine_jit *ej = vm->engine->jit;
  if (sync) {
    make_plan(j);
    if (j->plan && vm->config.jit != QN_JIT_OFF) compile(vm->engine, j->tune, j->spawn, j->plan);
    pthread_mutex_lock(&ej->lock);
    vm_jit *box = jit_of(vm);
    j->next = box->mailbox;
    box->mailbox = j;
    atomic_store(&box->mail, 1);
    pthread_mutex_unlock(&ej->lock);
    return true;
  }
  pthread_mutex_lock(&ej->lock);
  int64_t want = vm->tune[TUNE_jit_workers];
  if (want > MAX_WORKERS) want = MAX_WORKERS;
  while (ej->nthreads < want) {
    if (pthread_create(&ej->threads[ej->nthreads], NULL, worker, vm->engine) != 0) break;
    ej->nthreads++;
  }
  bool ok = ej->nthreads > 0;
  if (ok) {
    *ej->tail = j;
    ej->tail = &j->next;
    pthread_cond_signal(&ej->work);
  }
  pthread_mutex_unlock(&ej->lock);
  if (!ok) {
    e->job = NULL;
    job_free(j);
  }
  return ok;
}

/* Takes `j` out of a list; true if it was there. */
static bool unlink_job(job **list, const job *j) {
  for (job **p = list; *p; p = &(*p)->next)
    if (*p == j) {
      *p = j->next;
      return true;
    }
  return false;
}

void job_cancel(qn_vm *vm, entry *e) {
  job *j = e->job;
  if (!j) {
    if (e->plan) atomic_store(&e->plan->abandoned, true);
    return;
  }
  engine_jit *ej = vm->engine->jit;
  pthread_mutex_lock(&ej->lock);
  bool mine = unlink_job(&jit_of(vm)->mailbox, j);
  if (!mine && unlink_job(&ej->queue, j)) {
    mine = true;
    ej->tail = &ej->queue;
    while (*ej->tail) ej->tail = &(*ej->tail)->next;
  }
  if (!mine) j->vm = NULL; /* a worker has it and frees it */
  pthread_mutex_unlock(&ej->lock);
  if (mine) {
    if (j->plan) {
      atomic_store(&j->plan->abandoned, true);
      shared_plan_release(j->plan);
    }
    job_free(j);
  }
  e->job = NULL;
}

job *job_take_mail(qn_vm *vm) {
  engine_jit *ej = vm->engine->jit;
  vm_jit *box = jit_of(vm);
  pthread_mutex_lock(&ej->lock);
  job *list = box->mailbox;
  box->mailbox = NULL;
  atomic_store(&box->mail, 0);
  pthread_mutex_unlock(&ej->lock);
  return list;
}

void engine_jit_forget(qn_vm *vm) {
  for (anchor_entries *a = jit_of(vm)->anchors; a; a = a->next)
    for (entry *e = a->first; e; e = e->next) job_cancel(vm, e);
}
