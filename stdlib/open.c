/* Opening and closing a VM: each floor adds its part, from the bottom up. A part that fails leaves its error behind with the
 * VM, which is closed with it; the host sees NULL. */
#include "interp/interp.h"
#include "jit/trace/rec.h"
#include "lang/format.h"
#include "stdlib/stdlib.h"

qn_vm *qn_vm_open(const qn_config *config) {
  qn_vm *vm = vm_open(config);
  if (!vm) return NULL;
  vm_run run;
  vm_run_begin(vm, &run);
  bool good = jit_open(vm) && interp_open(vm, &stdlib_table);
  vm_run_end(vm, &run);
  if (good) return vm;
  vm_close(vm);
  return NULL;
}

void qn_vm_close(qn_vm *vm) { vm_close(vm); }

qn_status qn_to_text(qn_vm *vm, qn_value v, qn_value *result) {
  VM_RUN(run);
  text_buf t = {.vm = vm};
  *result = value_nil();
  vm_run_begin(vm, &run);
  qn_value text = value_error();
  if (vm_takes(vm, &v, 1) && format_print(vm, v, NULL, &t))
    text = text_take(&t);
  else
    text_free(&t);
  vm_write_last(vm, &text);
  vm_run_end(vm, &run);
  if (!value_is_error(text)) *result = text;
  return vm_status(vm);
}
