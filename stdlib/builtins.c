/* The table of the standard library: builtins.def's rows with their C functions, and the embedded modules. */
#include "stdlib/builtins.h"
#include "stdlib/modules.h"
#include "stdlib/stdlib.h"

static const builtin_def rows[] = {
#define BUILTIN(name, signature, effect, doc) {#name, signature, BUILTIN_##effect, doc, builtin_##name},
#include "stdlib/builtins.def"
#undef BUILTIN
};

static const builtin_example examples[] = {
#define EXAMPLE(name, script) {#name, script},
#include "stdlib/examples.def"
#undef EXAMPLE
};

const builtin_table stdlib_table = {
    .builtins = rows,
    .nbuiltins = sizeof rows / sizeof *rows,
    .examples = examples,
    .nexamples = sizeof examples / sizeof *examples,
    .modules = stdlib_modules,
    .nmodules = STDLIB_MODULE_COUNT,
};
