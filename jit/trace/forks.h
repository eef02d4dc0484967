/* Parts of the program that are captured in several ways, since branches on data in them do not agree (forks.c). */
#ifndef JIT_TRACE_FORKS_H
#define JIT_TRACE_FORKS_H

#include "jit/trace/recording.h"

enum { RESTARTS_MAX = 64 /* how often recordings of one function are begun once more */ };

/* Ways of a branch in r do not agree (fork_unlike). True with an error raised: the call is recorded once more, in which the statement around is captured
 * in several ways. False: it cannot be, or only in the next call. */
bool fork_wanted(struct recording *r);
/* As rec_fork. `whole`: the part is the call that is recorded, and its results may differ: then r->choice is set, and *result is a list of the number of
 * the one that this call has (an int of r), and all of them. */
QN_MUST_CHECK rec_answer fork_capture(struct recording *r, const rec_section *part, bool whole, qn_value *result);

#endif
