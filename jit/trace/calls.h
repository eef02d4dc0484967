/* Calls that a specialization serves: what inputs they have, and the two ways to make them, by the plan alone (calls.c) or, with --jit
 * verify, by the plan and by the interpreter (verify.c). */
#ifndef JIT_TRACE_CALLS_H
#define JIT_TRACE_CALLS_H

#include "jit/trace/specialization.h"

enum { CALL_INPUTS_FEW = 48 };

/* The inputs of a call's graph by their numbers, as pattern_match collects them: arrays[i] is an array (borrowed), or NULL, and then
 * scalars[i] is a host number. Up to CALL_INPUTS_FEW of them lie in the struct itself. */
typedef struct call_inputs {
  qn_array **arrays;
  qn_value *scalars;
  qn_array **copies; /* contiguous copies that a replay makes of inputs that do not lie contiguously */
  qk_scalar *weak;   /* what call_weak fills in */
  uint32_t cap;      /* how many inputs there is room for; 0: the pointers are not set yet */
  bool flat;         /* all inputs are arrays, which lie contiguously */
  qn_array *few_arrays[CALL_INPUTS_FEW], *few_copies[CALL_INPUTS_FEW];
  qn_value few_scalars[CALL_INPUTS_FEW];
  qk_scalar few_weak[CALL_INPUTS_FEW];
} call_inputs;
/* Makes room for n inputs; what c held is lost. False with an error raised. */
QN_MUST_CHECK bool call_inputs_grow(qn_vm *vm, call_inputs *c, uint32_t n);
static inline bool call_inputs_room(qn_vm *vm, call_inputs *c, uint32_t n) {
  return n <= c->cap || call_inputs_grow(vm, c, n);
}
/* Must be called before anything of the program runs, since the exception of a host could skip it. */
void call_inputs_free(qn_vm *vm, call_inputs *c);
/* The host scalars among the first n inputs, in order, as plan_run takes them; they lie in c. */
const qk_scalar *call_weak(call_inputs *c, uint32_t n);

/* Do these arguments fit the pattern, whatever the guards say? 1, 0, or -1 with an error raised. */
int call_fits(qn_vm *vm, const specialization *e, const qn_value *args, int nargs);
/* Runs the plan, which must be ready, on inputs that fit. Owned result, or the error value; in that case nothing else has happened but that
 * taps->plan.made taps have been made. */
QN_MUST_CHECK qn_value call_replay(qn_vm *vm, specialization *e, const rec_call_site *site, call_inputs *c,
                                   tap_run *taps);
/* Makes the call by the plan and by the interpreter, and compares. Gives what the interpreter gives: an owned result, or its error. If the
 * plan gives something else, that is the error E_mismatch, which names the first node that differs. */
QN_MUST_CHECK qn_value call_verified(qn_vm *vm, rec_call_site *site, specialization *e, call_inputs *c);

/* What finds the node to blame, and runs reproductions (verify.c). Simplifies, plans, compiles and runs a graph (taken over); out[] gets the
 * outputs, owned. False if that was not possible; an error may be pending. */
QN_MUST_CHECK bool graph_run_planned(qn_vm *vm, graph *g, const call_inputs *c, const qk_scalar *weak, qn_value *out);
/* The first node of the recorded graph whose compiled value differs from the eager one; 0 if none differs on its own. `what` names it. */
uint32_t first_difference(qn_vm *vm, const specialization *e, call_inputs *c, char *what, size_t size);

/* A call that jit/trace itself makes at an anchor: of a transform, a graph or a builtin. */
typedef struct own_site {
  qn_vm *vm;
  rec_call_site site; /* args: the positional arguments, then the keywords (a record or nil); ctx: this own_site */
} own_site;
/* Fills in *c. The arguments are copied to the value stack, from where the caller removes them by vm_pop_to(vm, *mark). False with an error
 * raised. */
QN_MUST_CHECK bool own_site_begin(own_site *c, qn_vm *vm, qn_value fn, const qn_value *args, int nargs, qn_value kwargs,
                                  span at, qn_value **mark);

#endif
