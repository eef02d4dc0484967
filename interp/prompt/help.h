/* Help on functions, modules, values, words of the language and errors, made from tables and texts. All functions append to `out`. */
#ifndef INTERP_PROMPT_HELP_H
#define INTERP_PROMPT_HELP_H

#include "interp/interp.h"

/* Appends what `quern help topic` prints. A topic is a function, a module or a name in one (optim.adam), a dtype, a keyword or subject
 * (topics.def), an error id, "functions", "errors", "tunables", or "topics", which lists them. Lists of names are set in lines of so many
 * columns; 0: the width is not known. False if there is no such topic: then the text says what comes nearest. */
bool help_about(qn_vm *vm, const char *topic, int columns, text_buf *out);
/* Calls `each` for every part of the language and every list that help_about knows beside names. */
void help_subjects(void (*each)(void *ctx, const char *name), void *ctx);
/* Appends help on a value of the session that is called `name`: a function or module; of others, the kind. */
void help_value(qn_vm *vm, const char *name, qn_value v, text_buf *out);
/* Appends the text of a function's definition, as it was run. False if the value is no function that is written in Quern. */
bool help_source(qn_vm *vm, qn_value v, text_buf *out);

#endif
