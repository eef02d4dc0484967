/* Loops whose turns change, behind conditions on data, what variables are (states.c). */
#ifndef JIT_TRACE_STATES_H
#define JIT_TRACE_STATES_H

#include "jit/trace/recording.h"

/* Captures a loop of r in a turn of which branches do not agree. Answers as rec_loop: REC_NOT_YET: nothing has happened. `again`: then it is
 * tried in another way. */
QN_MUST_CHECK rec_answer states_loop(struct recording *r, span at, const rec_turns *turns, rec_slots assigned,
                                     rec_tries *tries, bool again);

#endif
