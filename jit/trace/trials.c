/* Trials (trials.h).
 *
 * A plan is what fusion and the schedule make of a graph by estimates, which the machine, the caches and other threads may prove wrong. Where a
 * program asks for the fastest code, whatever it costs to find it, the same graph is planned again with other tunables, one after the other, by
 * the compiler threads, so nobody waits. When such a plan has its code, calls are made by it and by the plan in use in turn, and timed; the
 * one whose fastest call took less stays. All plans give the same bits: which reductions there are and in which order they add is the
 * graph's, not the plan's.
 *
 * Only plans on the CPU are tried (on a device launches return before the work is done), for graphs whose sizes are numbers: code for any sizes
 * relies on facts that are guards, and sizes that come often have a specialization of their own.
 */
#include "jit/trace/trials.h"

#include "jit/trace/jobs.h"

enum {
  TRIAL_CALLS = 40, /* calls that are timed, by both plans together */
  TRIAL_GAIN = 98   /* percent of the other's time that a plan may take to be put in its place */
};

static const struct candidate {
  const char *plan;
  tune_change change;
} candidates[] = {{"one thread", {TUNE_par_grain, 1000000000}},
                  {"fewer threads", {TUNE_par_grain, 1 << 18}},
                  {"smaller kernels", {TUNE_fuse_nodes, 8}},
                  {"turns of loops one by one", {TUNE_fuse_loops, 0}}};
enum { CANDIDATES = sizeof candidates / sizeof *candidates };

const char *const trial_ends[] = {[TRIAL_SAME_CODE] = "the same code",
                                  [TRIAL_FAILED] = "not made",
                                  [TRIAL_SLOWER] = "no faster",
                                  [TRIAL_TAKEN] = "taken"};

struct trials {
  uint32_t n; /* how many candidates have ended; the next one is being made or tried */
  uint32_t calls;
  bool stopped;      /* memory was short: no more */
  shared_plan *plan; /* the one that is tried; NULL: it is not made yet */
  trial_result results[CANDIDATES];
};

bool trials_go_on(const specialization *e) {
  return e->mode == REC_TUNED && !e->device && !e->pattern.sizes &&
         (!e->trials || (e->trials->n < CANDIDATES && !e->trials->stopped));
}

static void trial_ends_as(specialization *e, trial_end end) {
  struct trials *t = e->trials;
  t->results[t->n].plan = candidates[t->n].plan;
  t->results[t->n].end = (uint8_t)end;
  if (t->plan) {
    atomic_store(&t->plan->abandoned, true);
    shared_plan_release(t->plan);
  }
  t->plan = NULL;
  t->calls = 0;
  t->n++;
}

/* Have two plans the same kernels? */
static bool same_code(const plan *a, const plan *b) {
  bool same = a->nkernels == b->nkernels && a->nsteps == b->nsteps;
  for (uint32_t i = 0; same && i < a->nkernels; i++) same = a->kernels[i].hash == b->kernels[i].hash;
  return same;
}

void trial_planned(specialization *e, shared_plan *plan) {
  struct trials *t = e->trials;
  if (!plan) {
    trial_ends_as(e, TRIAL_FAILED);
    return;
  }
  t->plan = plan;
  if (same_code(plan->plan, e->plan->plan)) trial_ends_as(e, TRIAL_SAME_CODE);
}

/* Hands the graph to the compiler threads once more. */
static void begin(qn_vm *vm, const char *name, specialization *e) {
  e->trials->stopped = !job_submit(vm, e, graph_share(e->graph), name, false, &candidates[e->trials->n].change);
  if (e->trials->stopped) error_clear(vm);
}

trial_turn trial_takes(qn_vm *vm, const char *name, specialization *e) {
  if (!trials_go_on(e) || e->running > 1 || vm->config.jit != QN_JIT_ON || vm->asked.sync_once || !e->race.code)
    return TRIAL_NONE;
  if (!e->trials && !(e->trials = mem_zalloc(vm, sizeof *e->trials))) {
    error_clear(vm);
    return TRIAL_NONE;
  }
  struct trials *t = e->trials;
  if (!t->plan) {
    if (!e->job) begin(vm, name, e);
    return TRIAL_NONE;
  }
  if (!plan_has_best_code(vm, t->plan)) return TRIAL_NONE;
  return t->calls % 2 ? TRIAL_OTHER : TRIAL_KEPT;
}

void trial_swap(specialization *e) {
  shared_plan *kept = e->plan;
  e->plan = e->trials->plan;
  e->trials->plan = kept;
}

void trial_note(specialization *e, int64_t took) {
  struct trials *t = e->trials;
  if (!t || !t->plan || t->n >= CANDIDATES) return; /* a call within this one has ended it */
  int64_t *least = &t->results[t->n].least[t->calls % 2];
  if (t->calls < 2 || took < *least) *least = took;
  if (++t->calls < TRIAL_CALLS) return;
  const int64_t *both = t->results[t->n].least;
  bool faster = (double)both[1] * 100 < (double)both[0] * TRIAL_GAIN;
  if (faster) {
    trial_swap(e);
    e->race = (race){.code = true}; /* is it faster than the interpreter? */
  }
  trial_ends_as(e, faster ? TRIAL_TAKEN : TRIAL_SLOWER);
}

void trials_free(qn_vm *vm, specialization *e) {
  if (!e->trials) return;
  if (e->trials->plan) {
    atomic_store(&e->trials->plan->abandoned, true);
    shared_plan_release(e->trials->plan);
  }
  mem_free(vm, e->trials, sizeof *e->trials);
  e->trials = NULL;
}

const trial_result *trial_results(const specialization *e, uint32_t *n) {
  *n = e && e->trials ? e->trials->n : 0;
  return *n ? e->trials->results : NULL;
}
