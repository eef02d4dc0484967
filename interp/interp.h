/* The interpreter: what the floors above use of it. */
#ifndef INTERP_INTERP_H
#define INTERP_INTERP_H

#include "lang/vm.h"

/* Adds the interpreter to a VM from vm_open: binds the builtins of `table` (vm->builtins) and the ops of the op table into the
 * builtin scope, runs the embedded module "prelude" there, installs hooks.call. False with an error raised. */
QN_MUST_CHECK bool interp_open(qn_vm *vm, const builtin_table *table);

/* Runs a text as the main module's top level. `prompt`: qn_eval_prompt's rules. Owned result or error; *incomplete is set
 * (and nil returned) when a prompt's text needs more input. */
QN_MUST_CHECK qn_value interp_eval(qn_vm *vm, const char *name, const char *text, size_t len, bool prompt,
                                   bool *incomplete);

/* A global of the main scope: owned value, or E401 raised. */
QN_MUST_CHECK qn_value interp_get_global(qn_vm *vm, const char *name);
QN_MUST_CHECK bool interp_set_global(qn_vm *vm, const char *name, qn_value v);

/* Binds a name for all modules, as the standard library's are (`args`). Borrows `v`. */
QN_MUST_CHECK bool interp_set_builtin(qn_vm *vm, const char *name, qn_value v);

/* A module's names and their present values as a record (owned), or the error value. */
QN_MUST_CHECK qn_value interp_module_record(qn_vm *vm, qn_value module);

/* Text of a function's signature for help and messages: "f(x, scale = 1.0)". False if v is no function. */
bool interp_signature(qn_vm *vm, qn_value fn, text_buf *out);

/* The names visible at the prompt that begin with `prefix`, for completion and "nearest name": calls `each` for every one. */
void interp_names(qn_vm *vm, const char *prefix, void (*each)(void *ctx, const char *name), void *ctx);

/* What `quern help topic` says: a function, module or name in one (optim.adam), dtype, keyword or subject (topics.def), error
 * id, "functions", "errors", "tunables", or "topics", which lists them. False: there is none, and the text says what comes nearest. */
bool interp_help(qn_vm *vm, const char *topic, text_buf *out);

/* The command line and the prompt (cli.c, repl.c: part of the binary, not of the library). */
int interp_main(int argc, char **argv);

#endif
