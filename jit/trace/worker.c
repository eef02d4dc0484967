/* Compiler threads: the queues of an engine, and the mailboxes of its VMs.
 *
 * A job is a graph (with no values, AST or VM in it) and a copy of the tunables. Planners simplify the graph, make a plan and put it into
 * the VM's mailbox; from then on the block VM can run it. The kernels of the plan become a task for the compilers, which set the code
 * pointer of each kernel when it is ready. So plans never wait behind slow compilers. All of these threads, and the compilers that they
 * start, run at SCHED_IDLE: they only take time that nobody else wants. A VM that closes forgets its jobs; a plan whose VM is gone is
 * abandoned, and whoever lets go of it last frees it.
 *
 * Nobody waits behind a slow job either. Of what is queued, the smallest is taken first, unless something has waited long. Each of the two
 * crews of threads has a member in reserve, who takes what the others have left waiting for some time; then another one stands by. A job
 * that is cancelled ends within milliseconds (lang/cancel.h). Second tiers (parcel.second) come behind all else: they are taken when nothing else
 * is queued, and where a thread is at work on one, the member in reserve takes what comes at once.
 *
 * On a busy machine a thread of the idle class may not run for seconds, whatever lock it holds. So threads of the host never wait for the
 * queues' lock: if it is taken, they queue a job later (job_submit) or leave it where it is (job_cancel). Mailboxes have no lock. Only
 * closing an engine waits.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "jit/run/compile.h"
#include "jit/run/device.h"
#include "jit/run/plan_run.h"
#include "jit/trace/anchors.h"
#include "jit/trace/jobs.h"
#include "jit/trace/specialization.h"
#include "lang/trace_events.h"

enum {
  CREW_MOST = 64,
  CREW_RESERVES = 3, /* how many members may be in reserve; they are started one by one */
  /* How long something waits before a member in reserve takes it. If there were as many compilers as processors, each step of the program's
   * own threads would wait for one of them to give way, idle class or not (a training of 1.3 s took 2.2 s with 50 ms here, and 1.6 s with
   * one compiler). */
  PLAN_PATIENCE_MS = 500,
  CC_PATIENCE_MS = 2000,
  LONG_WAIT_MS = 1000 /* and before it is taken before smaller ones */
};

/* The threads that do one kind of work, planning or compiling, and the queue of what is to be done. */
typedef struct crew {
  void (*run)(qn_engine *engine, void *what);    /* what a member does with a parcel, without the lock */
  void (*finish)(qn_engine *engine, void *what); /* and then under the lock: hands the parcel on */
  pthread_cond_t work;    /* signalled when something is queued: wakes a member that has nothing to do */
  pthread_cond_t reserve; /* the same for the member in reserve */
  atomic_int n;           /* threads */
  int wanted;             /* how many members are not in reserve */
  int patience;           /* milliseconds */
  parcel *queue;
  pthread_t threads[CREW_MOST];
  void *at[CREW_MOST]; /* what each member is working on, or NULL */
} crew;

typedef struct engine_jit {
  pthread_mutex_t lock; /* protects the crews and their queues; the first member, since tests hold it */
  crew planners, compilers;
  bool closing;
  pid_t process; /* the process that has the threads; a forked child has none of them */
} engine_jit;

void shared_plan_release(shared_plan *s) {
  if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
  for (uint32_t i = 0; i < s->plan->nkernels; i++)
    if (s->plan->kernels[i].host_code) host()->forget(s->plan->kernels[i].host_code);
  plan_free(s->plan);
  free(s);
}

static void mailbox_release(mailbox *b) {
  if (!b || atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1) return;
  parcel *jobs = atomic_load(&b->jobs), *reports = atomic_load(&b->reports);
  for (parcel *p; (p = parcel_pop(&jobs));) job_free((job *)p);
  for (parcel *p; (p = parcel_pop(&reports));) compile_task_free((compile_task *)p);
  free(b);
}

static mailbox *mailbox_hold(mailbox *b) {
  atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
  return b;
}

void job_free(job *j) {
  if (j->graph) graph_free(j->graph);
  if (j->plan) {
    atomic_store(&j->plan->abandoned, true);
    shared_plan_release(j->plan);
  }
  mailbox_release(j->line.box);
  free(j);
}

void compile_task_free(compile_task *t) {
  shared_plan_release(t->plan);
  mailbox_release(t->line.box);
  free(t);
}

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Makes the plan of a job and frees its graph. If that fails, the job has no plan, and in `why` the reason, unless memory was short. */
static void make_plan(qn_engine *engine, job *j) {
  double start = now_ms();
  int64_t begin = trace_events_begin(engine);
  graph *simple = graph_simplify(j->graph, &j->cancelled);
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
  s->tries = NULL;
  s->plan = plan_make(simple, j->device ? TARGET_GPU : TARGET_CPU, j->tune, &j->cancelled, j->why, sizeof j->why);
  if (!s->plan) {
    free(s);
    return;
  }
  j->plan = s;
  j->ms = now_ms() - start;
  trace_events_end(engine, TRACE_EVENTS_plan, j->shown, begin, "kernels", s->plan->nkernels);
}

/* The task of compiling a finished job's kernels. NULL if there is nothing to compile, or memory is short: then the block VM goes on
 * running them. */
static compile_task *task_of(const job *j) {
  if (!j->plan || !j->tune[TUNE_jit_cc] || j->device) return NULL;
  compile_task *t = calloc(1, sizeof *t);
  if (!t) { /* says that there will be no better code */
    atomic_store(&j->plan->compile_us, 1);
    return NULL;
  }
  t->line.box = mailbox_hold(j->line.box);
  t->line.second = j->line.second;
  t->plan = j->plan;
  atomic_fetch_add(&t->plan->refs, 1);
  memcpy(t->tune, j->tune, sizeof t->tune);
  t->spawn = j->spawn;
  memcpy(t->shown, j->shown, sizeof t->shown);
  return t;
}

static void compile(qn_engine *engine, compile_task *t) {
  double start = now_ms();
  int64_t begin = trace_events_begin(engine);
  compile_options o = {.tune = t->tune, .spawn = t->spawn, .abandon = &t->plan->abandoned, .report = &t->report};
  compile_plan(engine, t->plan->plan, &o);
  atomic_store(&t->plan->compile_us, (long)((now_ms() - start) * 1e3) + 1);
  trace_events_end(engine, TRACE_EVENTS_compile, t->shown, begin, "kernels", t->plan->plan->nkernels);
}

static void push(_Atomic(parcel *) *list, parcel *p) {
  p->after = atomic_load(list);
  while (!atomic_compare_exchange_weak(list, &p->after, p)) {}
}

/* Puts a finished job, or task (`report`), into the mailbox that it is for: it is the VM's own from then on. */
static void deliver(parcel *p, bool report) {
  mailbox *b = p->box;
  p->box = NULL;
  push(report ? &b->reports : &b->jobs, p);
  atomic_store(&b->mail, 1);
  mailbox_release(b);
}

/* ---- crews ------------------------------------------------------------------------------------------------------------ */

typedef struct recruit {
  qn_engine *engine;
  crew *crew;
  int number;
} recruit;

static void *member(void *arg);

/* Starts one more thread; called under the lock. False if there are as many as there can be. */
static bool crew_grow(qn_engine *engine, crew *c) {
  recruit *r = c->n < CREW_MOST ? malloc(sizeof *r) : NULL;
  if (!r) return false;
  *r = (recruit){engine, c, c->n};
  if (!vm_thread(&c->threads[c->n], 0, member, r)) {
    free(r);
    return false;
  }
  c->n++;
  return true;
}

/* Takes a parcel out of its queue; called under the lock. False if it is in none. */
static bool crew_withdraw(parcel *w) {
  parcel **link = w->link;
  if (!link) return false;
  w->link = NULL; /* before the rest: a fork in between leaves links that crew_inherit can mend */
  *link = w->next;
  if (w->next) w->next->link = link;
  return true;
}

/* Queues a parcel and makes sure that there are threads, one of them in reserve; called under the lock. False if there are no threads: then
 * the parcel is not queued. */
static bool crew_submit(qn_engine *engine, crew *c, int64_t wanted, parcel *w, size_t size) {
  w->next = c->queue;
  w->link = &c->queue;
  w->since = now_ms();
  w->size = size;
  if (w->next) w->next->link = &w->next;
  c->queue = w;
  if (wanted > CREW_MOST - CREW_RESERVES) wanted = CREW_MOST - CREW_RESERVES;
  if (c->wanted < wanted) c->wanted = (int)wanted;
  while (c->n <= c->wanted && crew_grow(engine, c)) {}
  pthread_cond_signal(&c->work);
  pthread_cond_signal(&c->reserve);
  return c->n > 0 || !crew_withdraw(w);
}

/* Since when the oldest parcel of the queue waits that is not for a second tier; 0 if there is none. */
static double crew_oldest(const crew *c) {
  double since = 0;
  for (const parcel *w = c->queue; w; w = w->next)
    if (!w->second && (since <= 0 || w->since < since)) since = w->since;
  return since;
}

/* Takes the next parcel out of a queue, which is not empty: the smallest one, or the smallest of those that have waited long. Those for a second tier
 * come last. */
static void *crew_take(crew *c) {
  parcel *best = NULL;
  int best_rank = 0;
  double now = now_ms();
  for (parcel *w = c->queue; w; w = w->next) {
    int rank = w->second ? 0 : now - w->since > LONG_WAIT_MS ? 2 : 1;
    if (best && (rank != best_rank ? rank < best_rank : w->size >= best->size)) continue;
    best = w;
    best_rank = rank;
  }
  crew_withdraw(best);
  return best;
}

/* Sets the scheduling class of a thread: idle, or back to normal when threads must end soon. (If it may not be set, the thread stays as it
 * is.) */
static void crew_class(pthread_t thread, int policy) {
  struct sched_param p = {0};
  (void)pthread_setschedparam(thread, policy, &p);
}

/* Is a member that is not in reserve at work on a second tier, for which nobody waits? */
static bool crew_on_second(const crew *c) {
  bool any = false;
  for (int i = 0; i < c->wanted && i < c->n; i++) any |= c->at[i] && ((const parcel *)c->at[i])->second;
  return any;
}

/* Waits until member `me` has something to do; called under the lock. False if the engine closes. */
static bool crew_wait(engine_jit *ej, crew *c, int me) {
  while (!ej->closing) {
    double since = crew_oldest(c), now = now_ms();
    if (me < c->wanted) {
      if (c->queue) return true;
      pthread_cond_wait(&c->work, &ej->lock);
    } else if (since <= 0) {
      pthread_cond_wait(&c->reserve, &ej->lock);
    } else if (now - since >= c->patience || crew_on_second(c)) {
      return true;
    } else {
      double until = since + c->patience;
      struct timespec t = {(time_t)(until / 1e3), (long)((until - 1e3 * (double)(time_t)(until / 1e3)) * 1e6)};
      pthread_cond_timedwait(&c->reserve, &ej->lock, &t);
    }
  }
  return false;
}

/* The main function of a crew's thread. When the last member in reserve has got something to do, another one is started. */
static void *member(void *arg) {
  recruit r = *(recruit *)arg;
  engine_jit *ej = r.engine->jit;
  crew *c = r.crew;
  int me = r.number;
  free(arg);
  crew_class(pthread_self(), SCHED_IDLE);
  pthread_mutex_lock(&ej->lock);
  while (crew_wait(ej, c, me)) {
    void *what = c->at[me] = crew_take(c);
    if (me == c->n - 1 && me >= c->wanted && c->n < c->wanted + CREW_RESERVES) crew_grow(r.engine, c);
    if (c->queue) pthread_cond_signal(&c->reserve);
    pthread_mutex_unlock(&ej->lock);
    c->run(r.engine, what);
    pthread_mutex_lock(&ej->lock);
    c->at[me] = NULL;
    c->finish(r.engine, what);
  }
  pthread_mutex_unlock(&ej->lock);
  return NULL;
}

static void crew_init(crew *c, int patience, void (*run)(qn_engine *, void *), void (*finish)(qn_engine *, void *)) {
  pthread_condattr_t a;
  *c = (crew){.patience = patience, .run = run, .finish = finish};
  pthread_condattr_init(&a);
  pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
  pthread_cond_init(&c->work, NULL);
  pthread_cond_init(&c->reserve, &a);
  pthread_condattr_destroy(&a);
}

static void crew_free(crew *c) {
  pthread_cond_destroy(&c->work);
  pthread_cond_destroy(&c->reserve);
}

/* Lets the threads run at the priority of the host, because somebody waits for them now. */
static void crew_hurry(const crew *c) {
  for (int i = 0, n = atomic_load(&c->n); i < n; i++) crew_class(c->threads[i], SCHED_OTHER);
}

/* Waits until the threads have ended; they must have been told to. */
static void crew_join(crew *c) {
  crew_hurry(c);
  for (int i = 0; i < c->n; i++) pthread_join(c->threads[i], NULL);
}

/* ---- planning and compiling ------------------------------------------------------------------------------------------- */

static void work_on_task(qn_engine *engine, void *what) {
  compile_task *t = what;
  if (!atomic_load(&t->plan->abandoned) && !atomic_load(&t->line.box->closed)) compile(engine, t);
}

static void finish_task(qn_engine *engine, void *what) {
  (void)engine;
  deliver(what, true);
}

static void work_on_job(qn_engine *engine, void *what) {
  job *j = what;
  if (!atomic_load(&j->line.box->closed)) make_plan(engine, j);
  bool wanted = !atomic_load(&j->cancelled);
  if (j->plan && !wanted) atomic_store(&j->plan->abandoned, true);
  j->task = wanted ? task_of(j) : NULL;
}

/* Sends the plan to the VM, and its kernels to the compilers. */
static void finish_job(qn_engine *engine, void *what) {
  job *j = what;
  compile_task *t = j->task;
  j->task = NULL;
  /* in case it was cancelled while this thread waited for the lock */
  if (t && (atomic_load(&j->cancelled) || atomic_load(&j->line.box->closed))) {
    compile_task_free(t);
    t = NULL;
  }
  deliver(&j->line, false);
  if (!t) return;
  crew *c = &((engine_jit *)engine->jit)->compilers;
  if (!crew_submit(engine, c, t->tune[TUNE_jit_workers], &t->line, t->plan->plan->nkernels)) compile_task_free(t);
}

static void crews_init(engine_jit *ej) {
  crew_init(&ej->planners, PLAN_PATIENCE_MS, work_on_job, finish_job);
  crew_init(&ej->compilers, CC_PATIENCE_MS, work_on_task, finish_task);
}

/* Takes over a queue from before a fork, which may have come in the middle of a change: sets the links anew. */
static void crew_inherit(crew *c, parcel *queue) {
  c->queue = queue;
  for (parcel **at = &c->queue; *at; at = &(*at)->next) (*at)->link = at;
}

/* In a forked child the threads are gone, and with them what they were working on: kernels that were being compiled stay with the block VM,
 * what was being planned stays eager. */
static void engine_jit_forked(qn_engine *engine) {
  engine_jit *ej = engine->jit;
  pid_t process = getpid();
  if (ej->process == process) return;
  ej->process = process;
  pthread_mutex_init(&ej->lock, NULL); /* whoever had it is gone */
  crew planners = ej->planners;
  parcel *tasks = ej->compilers.queue;
  crews_init(ej);
  crew_inherit(&ej->planners, planners.queue);
  crew_inherit(&ej->compilers, tasks);
  devices_engine_forked(engine);
  for (int i = 0; i < planners.n; i++) {
    job *j = planners.at[i];
    if (!j || !j->line.box) continue;
    j->task = NULL;
    j->graph = NULL; /* not freed: the thread that is gone may have freed it */
    j->plan = NULL;
    j->why[0] = 0;
    deliver(&j->line, false);
  }
}

/* Takes the queues' lock for a thread of the host, which never waits for it: a thread that holds it may be of the idle class and not run
 * for seconds. False if it is taken. */
static bool try_lock_jit(qn_engine *engine) {
  engine_jit_forked(engine);
  return pthread_mutex_trylock(&((engine_jit *)engine->jit)->lock) == 0;
}

/* ---- the engine -------------------------------------------------------------------------------------------------------- */

static void engine_jit_free(engine_jit *ej) {
  crew_free(&ej->planners);
  crew_free(&ej->compilers);
  pthread_mutex_destroy(&ej->lock);
  free(ej);
}

static void engine_jit_close(qn_engine *engine) {
  engine_jit *ej = engine->jit;
  if (!ej) return;
  engine_jit_forked(engine);
  crew_hurry(&ej->planners);
  crew_hurry(&ej->compilers);
  pthread_mutex_lock(&ej->lock);
  ej->closing = true;
  for (int i = 0; i < ej->planners.n; i++)
    if (ej->planners.at[i]) atomic_store(&((job *)ej->planners.at[i])->cancelled, true);
  for (int i = 0; i < ej->compilers.n; i++)
    if (ej->compilers.at[i]) atomic_store(&((compile_task *)ej->compilers.at[i])->plan->abandoned, true);
  pthread_cond_broadcast(&ej->planners.work);
  pthread_cond_broadcast(&ej->planners.reserve);
  pthread_cond_broadcast(&ej->compilers.work);
  pthread_cond_broadcast(&ej->compilers.reserve);
  pthread_mutex_unlock(&ej->lock);
  crew_join(&ej->planners); /* once they have ended, nothing more is compiled */
  crew_join(&ej->compilers);
  for (parcel *w; (w = ej->planners.queue); job_free((job *)w)) crew_withdraw(w);
  for (parcel *w; (w = ej->compilers.queue); compile_task_free((compile_task *)w)) crew_withdraw(w);
  devices_engine_close(engine);
  engine_jit_free(ej);
  engine->jit = NULL;
}

bool engine_jit_open(qn_vm *vm) {
  qn_engine *engine = vm->engine;
  if (!(jit_of(vm)->box = calloc(1, sizeof(mailbox)))) return fail_memory(vm);
  atomic_init(&jit_of(vm)->box->refs, 1);
  if (__atomic_load_n(&engine->jit, __ATOMIC_ACQUIRE)) return true;
  engine_jit *ej = calloc(1, sizeof *ej);
  if (!ej) return fail_memory(vm);
  pthread_mutex_init(&ej->lock, NULL);
  crews_init(ej);
  ej->process = getpid();
  void *none = NULL; /* another VM may have been quicker */
  if (!__atomic_compare_exchange_n(&engine->jit, &none, ej, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    engine_jit_free(ej);
    return true;
  }
  __atomic_store_n(&engine->jit_forked, engine_jit_forked, __ATOMIC_RELEASE);
  __atomic_store_n(&engine->jit_close, engine_jit_close, __ATOMIC_RELEASE);
  return true;
}

bool job_submit(qn_vm *vm, specialization *e, graph *g, const char *name, bool sync, const tune_change *trial,
                uint32_t changes) {
  job *j = calloc(1, sizeof *j);
  if (!j) {
    graph_free(g);
    return false;
  }
  j->line.box = mailbox_hold(jit_of(vm)->box);
  j->entry = e;
  j->graph = g;
  j->name = name;
  snprintf(j->shown, sizeof j->shown, "%s", name ? name : "");
  j->device = e->device;
  j->spawn = (vm->config.capabilities & QN_CAP_SPAWN) != 0;
  memcpy(j->tune, vm->tune, sizeof j->tune);
  j->trial = trial != NULL;
  j->line.second = j->trial || e->exact;
  for (uint32_t i = 0; i < changes; i++) j->tune[trial[i].tunable] = trial[i].value;
  if (e->exact) j->tune[TUNE_fuse_static] = vm->tune[TUNE_jit_static] != 0;
  e->job = j;
  engine_jit *ej = vm->engine->jit;
  if (sync) {
    make_plan(vm->engine, j);
    compile_task *t = vm->config.jit == QN_JIT_OFF ? NULL : task_of(j);
    if (t) compile(vm->engine, t);
    deliver(&j->line, false);
    if (t) deliver(&t->line, true);
    return true;
  }
  if (!try_lock_jit(vm->engine)) { /* jit_drain will queue it */
    j->line.after = jit_of(vm)->unsent;
    jit_of(vm)->unsent = &j->line;
    atomic_store(&j->line.box->mail, 1);
    return true;
  }
  bool ok = crew_submit(vm->engine, &ej->planners, 1, &j->line, g->n);
  pthread_mutex_unlock(&ej->lock);
  if (!ok) {
    e->job = NULL;
    job_free(j);
  }
  return ok;
}

/* Queues the jobs that could not be queued when they were made, if the lock is free now. */
static void send_again(qn_vm *vm) {
  vm_jit *jit = jit_of(vm);
  engine_jit *ej = vm->engine->jit;
  if (!jit->unsent) return;
  if (!try_lock_jit(vm->engine)) {
    atomic_store(&jit->box->mail, 1);
    return;
  }
  for (parcel *p; (p = parcel_pop(&jit->unsent));) {
    job *j = (job *)p;
    if (!j->entry)
      job_free(j);
    else if (!crew_submit(vm->engine, &ej->planners, 1, p, j->graph->n))
      deliver(p, false);
  }
  pthread_mutex_unlock(&ej->lock);
}

void job_cancel(qn_vm *vm, specialization *e) {
  job *j = e->job;
  if (!j) {
    if (e->plan) atomic_store(&e->plan->abandoned, true);
    return;
  }
  e->job = NULL;
  j->entry = NULL;
  atomic_store(&j->cancelled, true);
  /* If it is not queued, or on its way to the mailbox, jobs_drop frees it there. */
  atomic_store(&jit_of(vm)->box->mail, 1);
  if (!try_lock_jit(vm->engine)) return;
  bool mine = crew_withdraw(&j->line);
  pthread_mutex_unlock(&((engine_jit *)vm->engine->jit)->lock);
  if (mine) job_free(j);
}

/* Frees those jobs of a list that nobody wants any more; gives a list of the others. */
static parcel *jobs_wanted(parcel *list) {
  parcel *wanted = NULL, **end = &wanted;
  for (parcel *p; (p = parcel_pop(&list));) {
    if (!((job *)p)->entry) {
      job_free((job *)p);
      continue;
    }
    *end = p;
    end = &p->after;
  }
  *end = NULL;
  return wanted;
}

void jobs_drop(qn_vm *vm) {
  vm_jit *jit = jit_of(vm);
  jit->unsent = jobs_wanted(jit->unsent);
  parcel *wanted = jobs_wanted(atomic_exchange(&jit->box->jobs, NULL));
  for (parcel *p; (p = parcel_pop(&wanted));) push(&jit->box->jobs, p);
}

parcel *job_take_mail(qn_vm *vm, parcel **reports) {
  mailbox *b = jit_of(vm)->box;
  engine_jit_forked(vm->engine);
  atomic_store(&b->mail, 0);
  send_again(vm);
  *reports = atomic_exchange(&b->reports, NULL);
  return atomic_exchange(&b->jobs, NULL);
}

void engine_jit_forget(qn_vm *vm) {
  mailbox *b = jit_of(vm)->box;
  if (!b) return;
  for (anchor_specializations *a = jit_of(vm)->anchors; a; a = a->next)
    for (specialization *e = a->first; e; e = e->next) job_cancel(vm, e);
  jobs_drop(vm);
  atomic_store(&b->closed, true);
  jit_of(vm)->box = NULL;
  mailbox_release(b);
}
