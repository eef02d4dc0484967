/* A host with functions and data of the same names as some of the library's own: they neither collide in the link nor replace
 * anything. Linked with what hosts link, libquern.a. */
#include <stdio.h>
#include <string.h>

#include "lang/quern.h"

#define OURS(name)                                                                                                     \
  int name(void);                                                                                                      \
  int name(void) { return ++called; }
static int called;
OURS(str_free)
OURS(png_read)
OURS(list_new)
OURS(serve)
OURS(value_free)
OURS(vm_open)
OURS(array_new)
OURS(parse_text)
extern int dtype_rows, tunable_rows;
int dtype_rows = 7, tunable_rows = 8;

int main(void) {
  qn_vm *vm = qn_vm_open(NULL);
  if (!vm) return 1;
  const char *text = "let xs = [1.0, 2.0]\nlet words = split(\"a b\", \" \")\n\"{sum(xs * 2)} {words}\"";
  qn_value r;
  if (qn_eval(vm, "collide.qn", text, strlen(text), &r) != QN_OK) {
    fputs(qn_error_report(vm), stderr);
    return 1;
  }
  puts(qn_as_string(r, NULL));
  qn_release(vm, r);
  qn_vm_close(vm);
  return called || dtype_rows != 7 || tunable_rows != 8;
}
