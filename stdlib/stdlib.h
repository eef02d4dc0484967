/* The standard library as a VM receives it: C builtins (stdlib/builtins.c and the files by topic) and the modules
 * written in Quern (the .qn files of stdlib, embedded at build time by embed.cmake). */
#ifndef STDLIB_STDLIB_H
#define STDLIB_STDLIB_H

#include "lang/builtin.h"

extern const embedded_module stdlib_modules[]; /* generated; their number is in the generated stdlib/modules.h */
extern const builtin_table stdlib_table;

#endif
