/* The state of the random numbers in captured regions (draws.c), and other variables of these that have no name: what a turn adds to lists. */
#ifndef JIT_TRACE_DRAWS_H
#define JIT_TRACE_DRAWS_H

#include "jit/trace/recording.h"

/* The variables that a region may rebind, and behind them those without a name. It lies in the frame of whoever captures the region. */
enum { DRAWN_ROOM = 144 };
typedef struct drawn_slots {
  rec_slots all,
      own; /* all of them; those that are the state (of the recording around all arms), or what is added to lists (rec_added) */
  qn_value *room[DRAWN_ROOM];
} drawn_slots;

/* A region is going to be captured in r that may rebind these variables. False with an error raised. */
QN_MUST_CHECK bool draws_begin(struct recording *r, rec_slots assigned, drawn_slots *s);
/* It has been answered for. True: in it the state was met, which was no variable; so it is to be captured again, from draws_begin on. */
QN_MUST_CHECK bool draws_again(struct recording *r, rec_answer answer);
/* Parts of the state that are variables have values of their own, as whoever looks at them in an arm expects. r: no arm. False with an error raised. */
QN_MUST_CHECK bool draws_gather(struct recording *r);
/* Is a variable a part of the state, or of what is added to a list? Whatever way ends, these are read. */
bool draws_is_slot(const struct recording *r, const qn_value *slot);
/* The state as it is, in an arm that may be forgotten; and puts it back: has it changed? */
typedef struct drawn_kept {
  qn_value drawn[RANDOM_INPUTS];
  uint64_t ahead;
} drawn_kept;
drawn_kept draws_keep(struct recording *r);
bool draws_put_back(struct recording *r, const drawn_kept *k);
/* Sets the state to this number, by which it is part i of RANDOM_INPUTS. False with an error raised. */
QN_MUST_CHECK bool draws_set(qn_vm *vm, int i, qn_value v);

#endif
