/* Calls that a specialization serves (calls.c): their inputs, and the two ways to make one, by the plan alone and, with --jit verify, by
 * the plan and the interpreter (verify.c). */
#ifndef JIT_TRACE_CALLS_H
#define JIT_TRACE_CALLS_H

#include "jit/trace/specialization.h"

enum { CALL_INPUTS_FEW = 48 };

/* The inputs of a call's graph, by their numbers, as pattern_match collects them: an array, borrowed, or NULL and a host scalar. Up to
 * CALL_INPUTS_FEW of them lie in the struct. */
typedef struct call_inputs {
  qn_array **arrays;
  qn_value *scalars;
  qn_array **copies; /* room for the arrays that a replay makes because inputs do not lie contiguously */
  qk_scalar *weak;   /* room for call_weak */
  uint32_t cap;      /* how many there is room for; 0: the pointers are not set yet */
  qn_array *few_arrays[CALL_INPUTS_FEW], *few_copies[CALL_INPUTS_FEW];
  qn_value few_scalars[CALL_INPUTS_FEW];
  qk_scalar few_weak[CALL_INPUTS_FEW];
} call_inputs;
/* Makes room for n inputs; what was in c is gone. False with an error raised. */
QN_MUST_CHECK bool call_inputs_grow(qn_vm *vm, call_inputs *c, uint32_t n);
static inline bool call_inputs_room(qn_vm *vm, call_inputs *c, uint32_t n) {
  return n <= c->cap || call_inputs_grow(vm, c, n);
}
/* Must be called before the program goes on: a host's exception may leave from there. */
void call_inputs_free(qn_vm *vm, call_inputs *c);
/* The host scalars among the first n inputs, in order, as plan_run takes them; they lie in c. */
const qk_scalar *call_weak(call_inputs *c, uint32_t n);

/* Are these arguments what a graph's pattern says, whatever its guards do? 1; 0; -1 with an error raised. */
int call_fits(qn_vm *vm, const specialization *e, const qn_value *args, int nargs);
/* Runs the plan, which is ready, on inputs that fit. Owned result, or an error; then nothing has happened but what the error says. */
QN_MUST_CHECK qn_value call_replay(qn_vm *vm, specialization *e, const rec_call_site *site, call_inputs *c);
/* Makes the call both ways and compares: the result of the interpreter, owned, or its error; E_mismatch, with the first node that
 * differs, where the compiled call does otherwise. */
QN_MUST_CHECK qn_value call_verified(qn_vm *vm, rec_call_site *site, specialization *e, call_inputs *c);

/* A call that is made at an anchor of jit/trace's own: of a transform, a graph, a builtin. */
typedef struct own_site {
  qn_vm *vm;
  rec_call_site site; /* args: the positional ones, then the keywords (a record or nil); its ctx is the own_site */
} own_site;
/* Fills it in, with copies of the arguments on the value stack, which the caller pops: to *mark. False with an error raised. */
QN_MUST_CHECK bool own_site_begin(own_site *c, qn_vm *vm, qn_value fn, const qn_value *args, int nargs, qn_value kwargs,
                                  span at, qn_value **mark);

#endif
