/* Help: what tables and texts say about functions, modules, values, words and errors. Texts are added to `out`. */
#ifndef INTERP_PROMPT_HELP_H
#define INTERP_PROMPT_HELP_H

#include "interp/interp.h"

/* What `quern help topic` says: a function, module or name in one (optim.adam), dtype, keyword or subject (topics.def), error
 * id, "functions", "errors", "tunables", or "topics", which lists them. Lists of names have lines of so many columns (0: nobody knows).
 * False: there is none, and the text says what comes nearest. */
bool help_about(qn_vm *vm, const char *topic, int columns, text_buf *out);
/* Calls `each` for every part of the language and every list that help_about knows beside names. */
void help_subjects(void (*each)(void *ctx, const char *name), void *ctx);
/* The same about a value of the session: a function, module, or what kind of value it is. */
void help_value(qn_vm *vm, const char *name, qn_value v, text_buf *out);
/* The text of a function's definition, as it was run; false if it is none that is written in Quern. */
bool help_source(qn_vm *vm, qn_value v, text_buf *out);

#endif
