/* The table of the standard library: builtins.def's rows with their C functions, and the embedded modules. */
#include "stdlib/builtins.h"
#include "stdlib/modules.h"
#include "stdlib/stdlib.h"

static const builtin_def rows[] = {
#define BUILTIN(name, signature, effect, doc) {#name, signature, BUILTIN_##effect, doc, builtin_##name},
#include "stdlib/builtins.def"
#undef BUILTIN
};

const builtin_table stdlib_table = {
    .builtins = rows,
    .nbuiltins = sizeof rows / sizeof *rows,
    .modules = stdlib_modules,
    .nmodules = STDLIB_MODULE_COUNT,
};
