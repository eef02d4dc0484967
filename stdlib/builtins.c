/* The table of the standard library: builtins.def's rows with their C functions, and the embedded modules. */
#include "stdlib/builtins.h"
#include "stdlib/modules.h"
#include "stdlib/stdlib.h"

static const builtin_def rows[] = {
#define BUILTIN(name, signature, effect, doc) {#name, signature, BUILTIN_##effect, doc, builtin_##name, WORK_ANY},
#define BUILTIN_WORK(name, work, signature, effect, doc)                                                               \
  {#name, signature, BUILTIN_##effect, doc, builtin_##name, WORK_##work},
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
