/* embed.c: a host application with Quern inside. It gives a script an array, calls one of the script's functions, reads
 * the result back, and shows what an error looks like from C.
 *
 *   cc embed.c -I. build/libquern.a -lz -lm -ldl -lpthread
 */
#include <stdio.h>
#include <string.h>

#include "lang/quern.h"

static const char script[] = "fn smooth(x: f32[n], times: int) {\n"
                             "  for _ in 0..times { x = (concat((x[1:], x[:1])) + x) / 2 }\n"
                             "  x\n"
                             "}\n"
                             "let total = sum(signal)\n";

/* Prints the VM's error and gives the exit status for it. */
static int complain(qn_vm *vm) {
  fputs(qn_error_report(vm), stderr);
  qn_vm_close(vm);
  return 1;
}

int main(void) {
  qn_config config;
  qn_config_init(&config);
  config.memory_limit = 64 << 20;                       /* bytes that the script may hold */
  config.capabilities &= ~(QN_CAP_READ | QN_CAP_WRITE); /* it has no files */
  qn_vm *vm = qn_vm_open(&config);
  if (!vm) return 1;

  /* An array goes in as a global ... */
  float signal[8] = {0, 0, 0, 8, 0, 0, 0, 0};
  int64_t shape[1] = {8};
  qn_value array, smooth, result;
  if (qn_array_from(vm, QN_f32, 1, shape, signal, &array) != QN_OK) return complain(vm);
  if (qn_set_global(vm, "signal", array) != QN_OK) return complain(vm);
  if (qn_eval(vm, "embedded.qn", script, strlen(script), NULL) != QN_OK) return complain(vm);

  /* ... and is an argument of the script's function. */
  if (qn_get_global(vm, "smooth", &smooth) != QN_OK) return complain(vm);
  if (qn_call(vm, smooth, (qn_value[]){array, qn_int(3)}, 2, &result) != QN_OK) return complain(vm);
  float smoothed[8];
  if (qn_array_read(vm, result, smoothed, sizeof smoothed) != QN_OK) return complain(vm);
  for (int i = 0; i < 8; i++) printf("%g%c", smoothed[i], i < 7 ? ' ' : '\n');

  /* An error is a value of the VM; the VM goes on. */
  qn_value none;
  if (qn_call(vm, smooth, (qn_value[]){qn_int(1), qn_int(3)}, 2, &none) == QN_ERROR)
    printf("%s: %s\n", qn_error_id(vm), qn_error_message(vm));

  qn_release(vm, array);
  qn_release(vm, smooth);
  qn_release(vm, result);
  qn_vm_close(vm);
  return 0;
}
