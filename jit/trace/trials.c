/* Trials (trials.h).
 *
 * A plan is what fusion and the schedule make of a graph by estimates, which the machine, the caches and other threads may prove wrong; and its kernels
 * take their sizes as parameters, so that the code is there soon and serves all. So the same graph is planned again with other tunables by the compiler
 * threads, and nobody waits. When such a plan has its code, calls are made by it and by the plan in use in turn, and timed; the one whose fastest call
 * took less stays. All plans give the same bits: which reductions there are and in which order they add is the graph's, not the plan's.
 *
 * Static extents are the second tier: a plan whose kernels know their sizes (jit/kernel/statics.h), for graphs whose sizes are numbers (the pattern is
 * their guard, so a call asks no more than before; sizes that are symbols get a specialization of their own when they come often, calls.c, whose
 * first plan is of this kind). It is begun when calls were frequent and took a while, since compiling costs some hundred milliseconds, and not for plans
 * none of whose kernels would gain. It is planned and compiled behind all that others wait for (worker.c). A function has it for some of its
 * specializations only; those that are called no more make room for others.
 *
 * Where a program asks for the fastest code, whatever it costs to find it, plans of other kinds are tried one after the other. Only on the CPU: on a
 * device launches return before the work is done.
 *
 * Where no clock is looked at (--jit sync and verify, devices, mode "reduce-overhead") the second tier is put in place when it is there.
 */
#include "jit/trace/trials.h"

#include "jit/run/plan_run.h"
#include "jit/trace/anchors.h"
#include "jit/trace/jobs.h"

enum {
  TRIAL_CALLS = 40, /* calls that are timed, by both plans together */
  TRIAL_GAIN = 98,  /* percent of the other's time that a plan may take to be put in its place */
  ASK_AGAIN = 64,   /* calls until a device is asked again for its code */
  IDLE_TIMES =
      8 /* so many times the calls that give a specialization a place, and none of them its own, take it away */
};

static const struct candidate {
  const char *plan;
  tune_change change;
} candidates[] = {{"static extents", {TUNE_fuse_static, 1}},
                  {"one thread", {TUNE_par_grain, 1000000000}},
                  {"fewer threads", {TUNE_par_grain, 1 << 18}},
                  {"smaller kernels", {TUNE_fuse_nodes, 8}},
                  {"turns of loops one by one", {TUNE_fuse_loops, 0}}};
enum { STATIC_EXTENTS, CANDIDATES = sizeof candidates / sizeof *candidates };

const char *const trial_ends[] = {[TRIAL_SAME_CODE] = "the same code",
                                  [TRIAL_FAILED] = "not made",
                                  [TRIAL_SLOWER] = "no faster",
                                  [TRIAL_TAKEN] = "taken"};

struct trials {
  uint32_t at; /* the candidate that is being made or tried, or the next one */
  uint32_t n;  /* how many have ended */
  uint32_t calls;
  bool stopped;       /* memory was short: no more */
  shared_plan *plan;  /* the one that is tried; NULL: it is not made yet */
  device_plan *there; /* what the device keeps for it */
  bool is_static;     /* does the plan in use know its sizes? */
  uint64_t before;    /* if so, the replays before that */
  bool idle;          /* it does not count among the static plans of the function any more */
  trial_result results[CANDIDATES];
};

/* ---- which plans are tried, and when ------------------------------------------------------------------------------------ */

/* May a kernel of the plan in use gain by knowing its sizes? */
static bool may_gain(const plan *p) {
  for (uint32_t i = 0; i < p->nkernels; i++)
    if (p->kernels[i].statics == STATICS_PAY) return true;
  return false;
}

static bool suits(const qn_vm *vm, const specialization *e, uint32_t candidate) {
  if (e->pattern.sizes) return false;
  if (candidate != STATIC_EXTENTS) return e->mode == REC_TUNED && !e->device && vm->config.jit == QN_JIT_ON;
  return vm->tune[TUNE_jit_static] && (e->device || vm->tune[TUNE_jit_cc]) && may_gain(e->plan->plan);
}

static bool looks_at_clock(const qn_vm *vm, const specialization *e) {
  return vm->config.jit == QN_JIT_ON && !e->device && e->mode != REC_AT_HAND && !specialization_rewritten(e);
}

/* The hits from which on a specialization is frequent enough for a second tier, as far as its times are known. */
static uint64_t frequent_at(const qn_vm *vm, const specialization *e) {
  if (e->mode == REC_TUNED) return 0;
  uint64_t calls = (uint64_t)vm->tune[TUNE_jit_static];
  double ns = (double)vm->tune[TUNE_jit_static_ms] * 1e6, each = (double)e->race.least[0];
  bool timed = looks_at_clock(vm, e) && race_timed(&e->race) && each > 0;
  return timed && ns / each > (double)calls ? (uint64_t)(ns / each) : calls;
}

/* Does a specialization have a static plan for good or on trial? */
static bool has_place(const specialization *e) {
  const struct trials *t = e->trials;
  return t && !t->idle && (t->is_static || (t->at == STATIC_EXTENTS && (e->job || t->plan)));
}

/* The calls that the specializations of a function have served. */
static uint64_t calls_of(const anchor_specializations *list) {
  uint64_t n = 0;
  for (const specialization *e = list->first; e; e = e->next) n += e->hits;
  return n;
}

/* Has a specialization not been called, while those of the same function served so many calls? */
static bool is_idle(specialization *e, uint64_t calls, int64_t many) {
  if (e->seen != e->hits || e->seen_at > calls) e->seen = e->hits, e->seen_at = calls;
  return calls - e->seen_at >= (uint64_t)many;
}

/* Is there room for the static plan of a specialization among those of the others? One that is called no more gives its place (it keeps its code). */
static bool takes_place(const qn_vm *vm, const anchor_specializations *list, const specialization *of) {
  int64_t taken = (int64_t)list->exact;
  uint64_t calls = calls_of(list);
  specialization *idle = NULL;
  for (specialization *e = list->first; e; e = e->next) {
    if (!has_place(e) || e == of || e->exact) continue;
    taken++;
    if (is_idle(e, calls, IDLE_TIMES * vm->tune[TUNE_jit_static])) idle = e;
  }
  if (taken >= vm->tune[TUNE_jit_static_sets] && idle) idle->trials->idle = true, taken--;
  return taken < vm->tune[TUNE_jit_static_sets];
}

bool trial_place(qn_vm *vm, anchor_specializations *list) {
  specialization **idle = NULL;
  uint64_t calls = calls_of(list);
  for (specialization **at = &list->first; *at; at = &(*at)->next)
    if ((*at)->exact && is_idle(*at, calls, IDLE_TIMES * vm->tune[TUNE_jit_hot_sizes]) && !(*at)->running) idle = at;
  if ((int64_t)list->exact < vm->tune[TUNE_jit_static_sets]) return true;
  if (idle) anchor_drop(vm, list, idle);
  return idle != NULL;
}

/* ---- how a trial goes --------------------------------------------------------------------------------------------------- */

static void trial_drop(qn_vm *vm, struct trials *t) {
  plan_forget(vm, &t->there);
  if (!t->plan) return;
  t->plan->tries = NULL;
  atomic_store(&t->plan->abandoned, true);
  shared_plan_release(t->plan);
  t->plan = NULL;
}

static void trial_ends_as(qn_vm *vm, specialization *e, trial_end end) {
  struct trials *t = e->trials;
  t->results[t->n].plan = candidates[t->at].plan;
  t->results[t->n++].end = (uint8_t)end;
  t->at++;
  t->calls = 0;
  trial_drop(vm, t);
  e->trial_at = e->quick_until = 0;
}

/* Have two plans the same kernels? */
static bool same_code(const plan *a, const plan *b) {
  bool same = a->nkernels == b->nkernels && a->nsteps == b->nsteps;
  for (uint32_t i = 0; same && i < a->nkernels; i++) same = a->kernels[i].hash == b->kernels[i].hash;
  return same;
}

static void woken(specialization *e) { e->trial_at = e->quick_until = 0; }

void trial_planned(qn_vm *vm, specialization *e, shared_plan *plan) {
  struct trials *t = e->trials;
  t->plan = plan;
  if (!plan) {
    trial_ends_as(vm, e, TRIAL_FAILED);
  } else if (same_code(plan->plan, e->plan->plan)) {
    trial_ends_as(vm, e, TRIAL_SAME_CODE);
  } else {
    plan->tries = e;
    if (e->device || plan_has_best_code(vm, plan)) woken(e);
  }
}

void trial_compiled(const shared_plan *plan) {
  if (plan->tries) woken(plan->tries);
}

/* Hands the graph to the compiler threads once more. */
static void begin(qn_vm *vm, const char *name, specialization *e) {
  bool sync = vm->config.jit == QN_JIT_SYNC || vm->config.jit == QN_JIT_VERIFY;
  tune_change changes[] = {candidates[e->trials->at].change, candidates[STATIC_EXTENTS].change};
  e->trials->stopped = !job_submit(vm, e, graph_share(e->graph), name, sync, changes, e->trials->is_static ? 2 : 1);
  if (e->trials->stopped)
    error_clear(vm);
  else if (sync)
    jit_drain(vm);
}

void trial_cancel(qn_vm *vm, specialization *e) {
  if (!e->job || !e->trials) return;
  job_cancel(vm, e);
  woken(e);
}

/* Puts the plan that was tried in the place of the one in use for good. */
static void trial_taken(qn_vm *vm, specialization *e) {
  struct trials *t = e->trials;
  t->plan->tries = NULL;
  trial_swap(e);
  if (t->at == STATIC_EXTENTS) t->is_static = true, t->before = e->replays;
  if (looks_at_clock(vm, e)) e->race = (race){.code = true}; /* is it faster than the interpreter? */
  trial_ends_as(vm, e, TRIAL_TAKEN);
}

/* The next candidate is not begun yet: begins it if it is time. */
static void next(qn_vm *vm, const anchor_specializations *list, specialization *e) {
  uint32_t at = e->trials ? e->trials->at : 0;
  e->trial_at = UINT64_MAX;
  while (at < CANDIDATES && !suits(vm, e, at)) at++;
  if (at == CANDIDATES || (e->trials && e->trials->stopped)) return;
  if (at == STATIC_EXTENTS && e->hits < frequent_at(vm, e)) {
    e->trial_at = frequent_at(vm, e);
    return;
  }
  if (at == STATIC_EXTENTS && !e->exact && !takes_place(vm, list, e)) {
    e->trial_at = 2 * e->hits;
    return;
  }
  if (!e->trials && !(e->trials = mem_zalloc(vm, sizeof *e->trials))) {
    error_clear(vm);
    return;
  }
  e->trials->at = at;
  begin(vm, list->anchor->name, e);
}

/* Has the plan that is tried all the code that it will get? */
static bool has_code(qn_vm *vm, specialization *e) {
  struct trials *t = e->trials;
  if (!e->device) return plan_has_best_code(vm, t->plan);
  bool wait = vm->config.jit == QN_JIT_SYNC || vm->config.jit == QN_JIT_VERIFY;
  return plan_ready(vm, t->plan->plan, &t->there, e->device, wait) && t->there->compiled;
}

trial_turn trial_takes(qn_vm *vm, const anchor_specializations *list, specialization *e) {
  if (e->running > 1 || vm->asked.sync_once) return TRIAL_NONE;
  if (looks_at_clock(vm, e) && !e->race.code) return TRIAL_NONE; /* its first code is not there yet */
  if (e->job) {
    e->trial_at = UINT64_MAX;
    return TRIAL_NONE;
  }
  if (!e->trials || !e->trials->plan) next(vm, list, e);
  struct trials *t = e->trials;
  if (!t || !t->plan) return TRIAL_NONE;
  if (!has_code(vm, e)) {
    e->trial_at = e->device ? e->hits + ASK_AGAIN : UINT64_MAX;
    return TRIAL_NONE;
  }
  e->trial_at = 0;
  if (looks_at_clock(vm, e)) return t->calls % 2 ? TRIAL_OTHER : TRIAL_KEPT;
  trial_taken(vm, e);
  return TRIAL_NONE;
}

void trial_swap(specialization *e) {
  struct trials *t = e->trials;
  shared_plan *kept = e->plan;
  device_plan *there = e->there;
  e->plan = t->plan;
  e->there = t->there;
  t->plan = kept;
  t->there = there;
}

void trial_note(qn_vm *vm, specialization *e, int64_t took) {
  struct trials *t = e->trials;
  if (!t || !t->plan) return; /* a call within this one has ended it */
  int64_t *least = &t->results[t->n].least[t->calls % 2];
  if (t->calls < 2 || took < *least) *least = took;
  if (++t->calls < TRIAL_CALLS) return;
  const int64_t *both = t->results[t->n].least;
  if ((double)both[1] * 100 < (double)both[0] * TRIAL_GAIN)
    trial_taken(vm, e);
  else
    trial_ends_as(vm, e, TRIAL_SLOWER);
}

void trials_free(qn_vm *vm, specialization *e) {
  if (!e->trials) return;
  trial_drop(vm, e->trials);
  mem_free(vm, e->trials, sizeof *e->trials);
  e->trials = NULL;
}

/* ---- what is told of them ----------------------------------------------------------------------------------------------- */

const trial_result *trial_results(const specialization *e, uint32_t *n) {
  *n = e && e->trials ? e->trials->n : 0;
  return *n ? e->trials->results : NULL;
}

uint64_t trial_static_calls(const specialization *e) {
  if (!e || !e->plan) return 0;
  if (e->trials && e->trials->is_static) return e->replays - e->trials->before;
  for (uint32_t i = 0; i < e->plan->plan->nkernels; i++)
    if (e->plan->plan->kernels[i].statics == STATICS_KNOWN) return e->replays;
  return 0;
}
