/* Lists of any length as arguments of compiled calls: their items are stacked into arrays (stacked.c). */
#ifndef JIT_TRACE_STACKED_H
#define JIT_TRACE_STACKED_H

#include "jit/trace/anchors.h"
#include "jit/trace/rec.h"

/* What stands in place of lists among the arguments of a call (rec_call_site.stacked). */
enum { STACKED_ARGS = 8 /* further lists stay as they are */ };
typedef struct stacked_args {
  qn_vm *vm;
  struct stacked_arg {
    qn_value *place;
    qn_value before;        /* owned: what was there: the list, or a record with it */
    qn_value list, stacked; /* owned */
  } of[STACKED_ARGS];
  uint32_t n;
  bool filled; /* the arrays hold the items */
} stacked_args;

/* For a site with `stacked`: puts stacked lists, without elements yet, in place of the arguments in the mask `wanted` that are lists of two or more
 * items of one structure. Which these are; perhaps with an error raised, if memory is short. */
uint32_t stack_args(qn_vm *vm, const rec_call_site *site, uint32_t wanted);
/* Likewise for a list in a record. Has it been replaced? */
bool stack_place_of(qn_vm *vm, const rec_call_site *site, const stack_place *p);
/* What an argument has in a place, borrowed; unset: nothing. */
qn_value stack_place_value(const stack_place *p, qn_value v);
/* Gives the arrays their elements. False with an error raised. */
QN_MUST_CHECK bool stack_fill(const rec_call_site *site);
/* Puts the lists back among the arguments, if they are not there. */
void stack_undo(const rec_call_site *site);
/* Runs the call in the interpreter, on the lists. */
QN_MUST_CHECK qn_value site_run(const rec_call_site *site);
/* Stacked lists in the result of a call (taken over; may be the error value), which are what a gradient gives, become ordinary ones. Owned, or the
 * error value. */
QN_MUST_CHECK qn_value stacked_results(qn_vm *vm, qn_value v);
/* Likewise those that functions in the result have captured, or in what an error holds: a function outlives the recording in which it was made. */
QN_MUST_CHECK qn_value stacked_captures(qn_vm *vm, qn_value v);
/* stack_undo for vm_own; `what` is a stacked_args. The arguments are gone. */
void stacked_drop(qn_vm *vm, void *what);

#endif
