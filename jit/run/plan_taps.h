/* Effects of plans. */
#ifndef JIT_RUN_PLAN_TAPS_H
#define JIT_RUN_PLAN_TAPS_H

#include "lang/value.h"

/* Who makes the effects of a plan (STEP_TAP). A run may begin again, on the CPU, when a device refuses the plan: `seen` counts the effects that
 * this run has come to, and `made` those that have been made, which are not made again. Effects are made in the order of the program, each
 * after the checks before it have passed; so of a run that fails those are made that the interpreter makes before the error, or the first
 * ones of these. */
typedef struct plan_taps {
  /* Makes effect `number` with the values of its operands: host scalars, and arrays over memory of the plan that are valid during the call
   * only. May call the host. *result: what it gives, nil or a number, which is a reading. False with an error raised. */
  bool (*make)(struct plan_taps *taps, uint32_t number, const qn_value *values, uint32_t n, qn_value *result);
  uint64_t seen, made;
  /* Effects that read a number (a clock): those that were read, in order, and how many of them this run has come to. They are no part of `seen` and
   * `made`, and a run that begins again, or a call that is made again, reads the same numbers. */
  struct readings {
    double *list;
    uint32_t n, cap;
  } read;
  uint32_t came;
  /* Whoever runs the plan only wants to know that a check fails, and of which kind, since the call is made again for the error: then a loop that
   * is a kernel is not run once more, turn by turn, to find the place. `vague`: the error has that of the loop in place of its own. */
  bool brief, vague;
} plan_taps;

#endif
