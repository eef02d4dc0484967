/* The table of the standard library: builtins.def's rows with their C functions, and the embedded modules. */
#include "stdlib/builtins.h"
#include "stdlib/modules.h"
#include "stdlib/stdlib.h"

/* A TAP is not made again by a call that is made again. (A DRAWS that is no tap ends the capture, so it is never among those that were made.) */
static qn_value call_tap(qn_vm *vm, builtin_fn call, const qn_value *args) {
  if (!rec_tap_due(vm, args)) return value_nil();
  qn_value result = call(vm, args);
  if (value_is_error(result)) taps_failed(vm);
  return result;
}
#define WRAP_PURE(name)
#define WRAP_READ(name)
#define WRAP_STATE(name)
#define WRAP_RAISES(name)
#define WRAP_HIGHER(name)
#define WRAP_CHOICE(name)
#define WRAP_TAP(name)                                                                                                 \
  static qn_value tap_##name(qn_vm *vm, const qn_value *args) { return call_tap(vm, builtin_##name, args); }
#define WRAP_DRAWS(name) WRAP_TAP(name)
#define BUILTIN(name, signature, effect, doc) WRAP_##effect(name)
#include "stdlib/builtins.def"

#define CALL_PURE(name) builtin_##name
#define CALL_READ(name) builtin_##name
#define CALL_STATE(name) builtin_##name
#define CALL_RAISES(name) builtin_##name
#define CALL_HIGHER(name) builtin_##name
#define CALL_CHOICE(name) builtin_##name
#define CALL_TAP(name) tap_##name
#define CALL_DRAWS(name) tap_##name
static const builtin_def rows[] = {
#define BUILTIN(name, signature, effect, doc) {#name, signature, BUILTIN_##effect, doc, CALL_##effect(name), WORK_ANY},
#define BUILTIN_WORK(name, work, signature, effect, doc)                                                               \
  {#name, signature, BUILTIN_##effect, doc, CALL_##effect(name), WORK_##work},
#include "stdlib/builtins.def"
};

enum {
#define BUILTIN(name, signature, effect, doc) ROW_##name,
#define TOPIC(id, title)                                                                                               \
  FIRST_OF_##id, BEFORE_##id = FIRST_OF_##id - 1, /* BEFORE_ steps back, so that the next row gets this number */
#include "stdlib/builtins.def"
};
static const topic_row topics[] = {
#define TOPIC(id, title) {title, FIRST_OF_##id},
#include "stdlib/builtins.def"
};

static const builtin_example examples[] = {
#define EXAMPLE(name, script) {#name, script},
#include "stdlib/examples.def"
#undef EXAMPLE
};

const builtin_table stdlib_table = {
    .builtins = rows,
    .nbuiltins = sizeof rows / sizeof *rows,
    .topics = topics,
    .ntopics = sizeof topics / sizeof *topics,
    .examples = examples,
    .nexamples = sizeof examples / sizeof *examples,
    .modules = stdlib_modules,
    .nmodules = STDLIB_MODULE_COUNT,
};
