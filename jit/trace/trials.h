/* Trials: other plans for the graph of a specialization, of which the fastest is kept. One that knows its sizes is made for each specialization whose calls
 * are frequent (jit.static); plans of other kinds where jit's mode is "max-autotune". */
#ifndef JIT_TRACE_TRIALS_H
#define JIT_TRACE_TRIALS_H

#include "jit/trace/specialization.h"

/* What a call has to do with a trial: nothing, or it is timed with the plan in use or with the one that is tried. */
typedef enum trial_turn { TRIAL_NONE, TRIAL_KEPT, TRIAL_OTHER } trial_turn;

/* Asked before a call of a specialization that has a plan and at least `trial_at` hits. Begins the next plan when it is time for it, and sets trial_at
 * to when it is to be asked again. Where no clock is looked at, it puts a plan that is ready in the place of the one in use. */
trial_turn trial_takes(qn_vm *vm, const anchor_specializations *list, specialization *e);
/* Puts the plan that is tried in the place of the one in use, and the other way round. */
void trial_swap(specialization *e);
/* Notes how many nanoseconds a call of the trial took, with the plan in use in its place. The last one decides. */
void trial_note(qn_vm *vm, specialization *e, int64_t took);
/* The plan to be tried is made (taken over), or could not be (NULL). */
void trial_planned(qn_vm *vm, specialization *e, shared_plan *plan);
/* A plan that is tried has got the code that it will get. */
void trial_compiled(const shared_plan *plan);
/* Ends the job that makes a plan to be tried, if there is one; it may be begun again. */
void trial_cancel(qn_vm *vm, specialization *e);

/* Is there a place for another specialization of a function that is made for just the sizes of calls (specialization.exact)? One that has not been called
 * while the function made many calls is dropped for it. */
bool trial_place(qn_vm *vm, anchor_specializations *list);

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
/* How many of a specialization's calls were made by a plan that knows its sizes. */
uint64_t trial_static_calls(const specialization *e);

#endif
