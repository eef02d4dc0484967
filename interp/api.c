/* The part of the public API that runs code: evaluating texts, calling functions, globals. */
#include "interp/state.h"

/* Hands a result out, or drops it; the call's status. A failure that nobody described is one all the same. */
static qn_status finish(qn_vm *vm, vm_run *run, qn_value r, qn_value *result) {
  if (value_is_error(r) && !error_pending(vm)) raise(vm, E_internal, SPAN_NONE, "something failed without saying what");
  qn_status status = value_is_error(r) ? vm_status(vm) : QN_OK;
  if (value_node(r)) r.head &= 0xff; /* numbers leave without what the recorder knew of them */
  if (result)
    *result = value_is_error(r) ? value_nil() : r;
  else
    value_release(vm, r);
  vm_run_end(vm, run);
  return status;
}

qn_status qn_eval(qn_vm *vm, const char *name, const char *text, size_t len, qn_value *result) {
  vm_run run;
  vm_run_begin(vm, &run);
  return finish(vm, &run, interp_eval(vm, name ? name : "", text, len, false, NULL), result);
}

qn_status qn_eval_prompt(qn_vm *vm, const char *text, size_t len, qn_value *result) {
  vm_run run;
  vm_run_begin(vm, &run);
  bool incomplete = false;
  qn_status status = finish(vm, &run, interp_eval(vm, "<prompt>", text, len, true, &incomplete), result);
  if (incomplete) error_clear(vm);
  return incomplete ? QN_INCOMPLETE : status;
}

qn_status qn_call(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, qn_value *result) {
  vm_run run;
  vm_run_begin(vm, &run);
  return finish(vm, &run, vm->hooks.call(vm, fn, args, nargs, value_nil()), result);
}

qn_status qn_get_global(qn_vm *vm, const char *name, qn_value *result) {
  vm_run run;
  vm_run_begin(vm, &run);
  return finish(vm, &run, interp_get_global(vm, name), result);
}

qn_status qn_set_global(qn_vm *vm, const char *name, qn_value value) {
  vm_run run;
  vm_run_begin(vm, &run);
  return finish(vm, &run, interp_set_global(vm, name, value) ? value_nil() : value_error(), NULL);
}
