/* Compiler threads: an engine's queues, and the mailboxes of its VMs.
 *
 * A job is a graph (no values, no AST, no VM inside) and a copy of the tunables. One thread plans: it simplifies the graph,
 * makes the plan and puts that into the VM's mailbox; the block VM can run it from then on. The others compile: a plan's
 * kernels make a task, and each kernel's code pointer is set when it is ready. So a slow compiler keeps no plan waiting. All
 * of these threads and the compilers they start run at SCHED_IDLE: they take only time that nobody else wants. A VM that
 * closes forgets its jobs; a plan whose VM is gone is abandoned and freed by whoever lets go last.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "jit/gpu/gpu.h"
#include "jit/trace/trace.h"
#include "lang/timeline.h"

enum { MAX_WORKERS = 64 };

typedef struct engine_jit {
  pthread_mutex_t lock;
  pthread_cond_t plans, kernels; /* something is in the queue of that name */
  job *queue, **tail;
  compile_task *tasks, **last_task;
  bool closing, planning; /* `planning`: the planner runs */
  pthread_t planner;
  int nthreads;
  pthread_t threads[MAX_WORKERS];
  compile_task *compiling[MAX_WORKERS];
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

void compile_task_free(compile_task *t) {
  shared_plan_release(t->plan);
  free(t);
}

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Graph to plan; the job gives up its graph. */
static void make_plan(qn_engine *engine, job *j) {
  double start = now_ms();
  int64_t begin = timeline_begin(engine);
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
  atomic_init(&s->compile_us, 0);
  s->plan = plan_make(simple, j->device ? TARGET_GPU : TARGET_CPU, j->tune, j->why, sizeof j->why);
  if (!s->plan) {
    free(s);
    return;
  }
  j->plan = s;
  j->ms = now_ms() - start;
  timeline_end(engine, TIMELINE_plan, j->shown, begin, "kernels", s->plan->nkernels);
}

/* What is to be compiled of a job whose plan is made; NULL: nothing, or memory is short (the block VM runs the kernels). */
static compile_task *task_of(const job *j) {
  if (!j->plan || !j->tune[TUNE_jit_cc] || j->device) return NULL;
  compile_task *t = calloc(1, sizeof *t);
  if (!t) return NULL;
  t->vm = j->vm;
  t->plan = j->plan;
  atomic_fetch_add(&t->plan->refs, 1);
  memcpy(t->tune, j->tune, sizeof t->tune);
  t->spawn = j->spawn;
  t->name = j->name;
  memcpy(t->shown, j->shown, sizeof t->shown);
  return t;
}

static void compile(qn_engine *engine, compile_task *t) {
  double start = now_ms();
  int64_t begin = timeline_begin(engine);
  compile_options o = {.tune = t->tune, .spawn = t->spawn, .abandon = &t->plan->abandoned, .report = &t->report};
  compile_plan(engine, t->plan->plan, &o);
  atomic_store(&t->plan->compile_us, (long)((now_ms() - start) * 1e3));
  timeline_end(engine, TIMELINE_compile, t->shown, begin, "kernels", t->plan->plan->nkernels);
}

/* Into the VM's mailbox, under the lock. */
static void deliver(job *j) {
  vm_jit *box = jit_of(j->vm);
  j->next = box->mailbox;
  box->mailbox = j;
  atomic_store(&box->mail, 1);
}

static void report(compile_task *t) {
  vm_jit *box = jit_of(t->vm);
  t->next = box->reports;
  box->reports = t;
  atomic_store(&box->mail, 1);
}

static void *compiler(void *arg) {
  qn_engine *engine = arg;
  engine_jit *ej = engine->jit;
  struct sched_param idle = {0};
  pthread_setschedparam(pthread_self(), SCHED_IDLE, &idle);
  pthread_mutex_lock(&ej->lock);
  int me = 0;
  while (me < ej->nthreads && !pthread_equal(ej->threads[me], pthread_self())) me++;
  for (;;) {
    while (!ej->tasks && !ej->closing) pthread_cond_wait(&ej->kernels, &ej->lock);
    if (ej->closing) break;
    compile_task *t = ej->tasks;
    ej->tasks = t->next;
    if (!ej->tasks) ej->last_task = &ej->tasks;
    t->next = NULL;
    ej->compiling[me] = t;
    pthread_mutex_unlock(&ej->lock);
    if (!atomic_load(&t->plan->abandoned)) compile(engine, t);
    pthread_mutex_lock(&ej->lock);
    ej->compiling[me] = NULL;
    if (t->vm)
      report(t);
    else
      compile_task_free(t);
  }
  pthread_mutex_unlock(&ej->lock);
  return NULL;
}

/* Queues the task, under the lock. The first one starts the threads. */
static void submit_task(qn_engine *engine, compile_task *t) {
  engine_jit *ej = engine->jit;
  int64_t want = t->tune[TUNE_jit_workers];
  if (want > MAX_WORKERS) want = MAX_WORKERS;
  while (ej->nthreads < want) {
    if (pthread_create(&ej->threads[ej->nthreads], NULL, compiler, engine) != 0) break;
    ej->nthreads++;
  }
  if (!ej->nthreads) {
    compile_task_free(t);
    return;
  }
  *ej->last_task = t;
  ej->last_task = &t->next;
  pthread_cond_signal(&ej->kernels);
}

static void *planner(void *arg) {
  qn_engine *engine = arg;
  engine_jit *ej = engine->jit;
  struct sched_param idle = {0};
  pthread_setschedparam(pthread_self(), SCHED_IDLE, &idle);
  pthread_mutex_lock(&ej->lock);
  for (;;) {
    while (!ej->queue && !ej->closing) pthread_cond_wait(&ej->plans, &ej->lock);
    if (ej->closing) break;
    job *j = ej->queue;
    ej->queue = j->next;
    if (!ej->queue) ej->tail = &ej->queue;
    j->next = NULL;
    pthread_mutex_unlock(&ej->lock);
    make_plan(engine, j);
    pthread_mutex_lock(&ej->lock);
    if (j->vm) {
      compile_task *t = task_of(j);
      deliver(j);
      if (t) submit_task(engine, t);
    } else { /* nobody waits any more */
      if (j->plan) shared_plan_release(j->plan);
      job_free(j);
    }
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
    if (ej->compiling[i]) atomic_store(&ej->compiling[i]->plan->abandoned, true);
  pthread_cond_broadcast(&ej->plans);
  pthread_cond_broadcast(&ej->kernels);
  pthread_mutex_unlock(&ej->lock);
  if (ej->planning) pthread_join(ej->planner, NULL); /* then no more threads are started */
  for (int i = 0; i < ej->nthreads; i++) pthread_join(ej->threads[i], NULL);
  for (job *j = ej->queue, *next; j; j = next) {
    next = j->next;
    job_free(j);
  }
  for (compile_task *t = ej->tasks, *next; t; t = next) {
    next = t->next;
    compile_task_free(t);
  }
  compile_engine_close(engine);
  gpu_engine_close(engine);
  cpu_engine_close(engine);
  pthread_cond_destroy(&ej->plans);
  pthread_cond_destroy(&ej->kernels);
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
  pthread_cond_init(&ej->plans, NULL);
  pthread_cond_init(&ej->kernels, NULL);
  ej->tail = &ej->queue;
  ej->last_task = &ej->tasks;
  void *none = NULL; /* two VMs may open at once */
  if (!__atomic_compare_exchange_n(&engine->jit, &none, ej, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    pthread_cond_destroy(&ej->plans);
    pthread_cond_destroy(&ej->kernels);
    pthread_mutex_destroy(&ej->lock);
    free(ej);
    return true;
  }
  __atomic_store_n(&engine->jit_close, engine_jit_close, __ATOMIC_RELEASE);
  return true;
}

bool job_submit(qn_vm *vm, entry *e, graph *g, const char *name, bool sync) {
  job *j = calloc(1, sizeof *j);
  if (!j) {
    graph_free(g);
    return false;
  }
  j->vm = vm;
  j->entry = e;
  j->graph = g;
  j->name = name;
  snprintf(j->shown, sizeof j->shown, "%s", name ? name : "");
  j->device = e->device;
  j->spawn = (vm->config.capabilities & QN_CAP_SPAWN) != 0;
  memcpy(j->tune, vm->tune, sizeof j->tune);
  e->job = j;
  engine_jit *ej = vm->engine->jit;
  if (sync) {
    make_plan(vm->engine, j);
    compile_task *t = vm->config.jit == QN_JIT_OFF ? NULL : task_of(j);
    if (t) compile(vm->engine, t);
    pthread_mutex_lock(&ej->lock);
    deliver(j);
    if (t) report(t);
    pthread_mutex_unlock(&ej->lock);
    return true;
  }
  pthread_mutex_lock(&ej->lock);
  if (!ej->planning) ej->planning = pthread_create(&ej->planner, NULL, planner, vm->engine) == 0;
  bool ok = ej->planning;
  if (ok) {
    *ej->tail = j;
    ej->tail = &j->next;
    pthread_cond_signal(&ej->plans);
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

job *job_take_mail(qn_vm *vm, bool wait, compile_task **reports) {
  engine_jit *ej = vm->engine->jit;
  vm_jit *box = jit_of(vm);
  *reports = NULL;
  if (wait)
    pthread_mutex_lock(&ej->lock);
  else if (pthread_mutex_trylock(&ej->lock) != 0)
    return NULL;
  job *list = box->mailbox;
  *reports = box->reports;
  box->mailbox = NULL;
  box->reports = NULL;
  atomic_store(&box->mail, 0);
  pthread_mutex_unlock(&ej->lock);
  return list;
}

void engine_jit_forget(qn_vm *vm) {
  for (anchor_entries *a = jit_of(vm)->anchors; a; a = a->next)
    for (entry *e = a->first; e; e = e->next) job_cancel(vm, e);
  engine_jit *ej = vm->engine->jit;
  if (!ej) return;
  pthread_mutex_lock(&ej->lock);
  for (compile_task *t = ej->tasks; t; t = t->next)
    if (t->vm == vm) t->vm = NULL;
  for (int i = 0; i < ej->nthreads; i++)
    if (ej->compiling[i] && ej->compiling[i]->vm == vm) ej->compiling[i]->vm = NULL;
  compile_task *reports = jit_of(vm)->reports;
  jit_of(vm)->reports = NULL;
  pthread_mutex_unlock(&ej->lock);
  while (reports) {
    compile_task *next = reports->next;
    compile_task_free(reports);
    reports = next;
  }
}
