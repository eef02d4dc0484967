/* Loops whose turns change, behind conditions on data, what variables are (states.c). */
#ifndef JIT_TRACE_STATES_H
#define JIT_TRACE_STATES_H

#include "jit/trace/recording.h"

/* Does it depend on data whether a loop of r has a next turn? */
bool states_may_be_over(const struct recording *r, const rec_turns *turns);
/* Captures a loop of r in a turn of which branches do not agree, or which changes what variables are and may not happen. `rebinds`: its test rebinds
 * variables, and has done so before the first turn. Answers as rec_loop: REC_NOT_YET: nothing has happened. `again`: then it is tried in another
 * way. */
QN_MUST_CHECK rec_answer states_loop(struct recording *r, span at, const rec_turns *turns, bool rebinds,
                                     rec_slots assigned, rec_tries *tries, bool again);

/* As states_loop, of a loop in a function that is recorded for the lanes of a vmap: its first turn makes arrays without axes of numbers, which the interpreter
 * selects by lane. */
QN_MUST_CHECK rec_answer states_of_lanes(struct recording *r, span at, const rec_turns *turns, rec_slots assigned,
                                         const rec_tries *tries);

#endif
