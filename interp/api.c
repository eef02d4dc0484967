/* The part of the public API that runs code: evaluating texts, calling functions, globals. */
#include "interp/state.h"

/* A call of the API: its evaluation, and what errors must know of the one around it, in case a host function that a program called has made
 * the call. */
typedef struct api_run {
  vm_run run;
  interp_place was;
} api_run;

static inline void begin(qn_vm *vm, api_run *r) {
  r->was = interp_of(vm)->place;
  vm_run_begin(vm, &r->run);
  interp_of(vm)->place = (interp_place){.calling = SPAN_NONE};
}

static void end(api_run *r) {
  qn_vm *vm = r->run.vm;
  if (__builtin_expect(!vm, 1)) return; /* finish has ended it */
  interp_of(vm)->place = r->was;
  vm_run_unwound(&r->run);
}
/* Must be followed by `begin`, which initialises it. */
#define API_RUN(name) api_run name __attribute__((cleanup(end)))

/* Ends a call of the API and gives its status. The result `r` (taken over) goes to *result, or is released if that is NULL. */
static qn_status finish(qn_vm *vm, api_run *run, qn_value r, qn_value *result) {
  if (value_is_error(r) && !error_pending(vm))
    raise_error(vm, E_internal, SPAN_NONE, "something failed without saying what");
  qn_status status = value_is_error(r) ? vm_status(vm) : QN_OK;
  if (value_node(r)) r.head &= 0xff; /* hosts get numbers without the node ids of recordings */
  vm_write_last(vm, &r);
  if (result)
    *result = value_is_error(r) ? value_nil() : r;
  else
    value_release(vm, r);
  interp_of(vm)->place = run->was;
  vm_run_end(vm, &run->run);
  return status;
}

qn_status qn_eval(qn_vm *vm, const char *name, const char *text, size_t len, qn_value *result) {
  API_RUN(run);
  begin(vm, &run);
  return finish(vm, &run, interp_eval(vm, name ? name : "", text, len, false, NULL), result);
}

qn_status qn_eval_prompt(qn_vm *vm, const char *text, size_t len, qn_value *result) {
  API_RUN(run);
  begin(vm, &run);
  bool incomplete = false;
  qn_status status = finish(vm, &run, interp_eval(vm, "<prompt>", text, len, true, &incomplete), result);
  if (incomplete) error_clear(vm);
  return incomplete ? QN_INCOMPLETE : status;
}

qn_status qn_call(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, qn_value *result) {
  API_RUN(run);
  begin(vm, &run);
  bool ours = vm_takes(vm, &fn, 1) && vm_takes(vm, args, nargs > 0 ? (size_t)nargs : 0);
  return finish(vm, &run, ours ? vm->hooks.call(vm, fn, args, nargs, value_nil()) : value_error(), result);
}

qn_status qn_get_global(qn_vm *vm, const char *name, qn_value *result) {
  API_RUN(run);
  begin(vm, &run);
  return finish(vm, &run, interp_get_global(vm, name), result);
}

qn_status qn_set_global(qn_vm *vm, const char *name, qn_value value) {
  API_RUN(run);
  begin(vm, &run);
  return finish(vm, &run, vm_takes(vm, &value, 1) && interp_set_global(vm, name, value) ? value_nil() : value_error(),
                NULL);
}

qn_status qn_module_drop(qn_vm *vm, const char *key) {
  API_RUN(run);
  begin(vm, &run);
  return finish(vm, &run, interp_module_drop(vm, key) ? value_nil() : value_error(), NULL);
}
