/* Trials: other plans for the graph of a specialization, of which the fastest is kept (jit's mode "max-autotune"). */
#ifndef JIT_TRACE_TRIALS_H
#define JIT_TRACE_TRIALS_H

#include "jit/trace/specialization.h"

/* What a call has to do with a trial: nothing, or it is timed with the plan in use or with the one that is tried. */
typedef enum trial_turn { TRIAL_NONE, TRIAL_KEPT, TRIAL_OTHER } trial_turn;

/* Asked before a call of a specialization that has a plan, and is called `name` in the log. Begins the next plan when it is time for it. */
trial_turn trial_takes(qn_vm *vm, const char *name, specialization *e);
/* Puts the plan that is tried in the place of the one in use, and the other way round. */
void trial_swap(specialization *e);
/* Notes how many nanoseconds a call of the trial took, with the plan in use in its place. The last one decides. */
void trial_note(specialization *e, int64_t took);
/* The plan to be tried is made (taken over), or could not be (NULL). */
void trial_planned(specialization *e, shared_plan *plan);
/* May there be more trials, so that calls have to be looked at? */
bool trials_go_on(const specialization *e);

/* What became of a plan that was tried. */
typedef enum trial_end { TRIAL_SAME_CODE, TRIAL_FAILED, TRIAL_SLOWER, TRIAL_TAKEN } trial_end;
typedef struct trial_result {
  const char *plan; /* what it was */
  uint8_t end;      /* trial_end */
  int64_t least[2]; /* the fastest call in nanoseconds, of the plan in use then and of this one; 0: not timed */
} trial_result;
extern const char *const trial_ends[];
/* The results so far, NULL where there are none. */
const trial_result *trial_results(const specialization *e, uint32_t *n);

#endif
