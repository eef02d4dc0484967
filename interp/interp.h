/* The interpreter: what the floors above use of it. */
#ifndef INTERP_INTERP_H
#define INTERP_INTERP_H

#include "lang/vm.h"

/* Adds the interpreter to a VM from vm_open: binds the builtins of `table` (vm->builtins) and the ops of the op table into the builtin
 * scope, runs the embedded module "prelude" there, and sets hooks.call and the interpreter's other hooks. False with an error raised. */
QN_MUST_CHECK bool interp_open(qn_vm *vm, const builtin_table *table);

/* Runs a text as the top level of the main module. `prompt`: by the rules of qn_eval_prompt; if the text needs more input, nil is returned
 * and *incomplete set. Owned result, or the error value. */
QN_MUST_CHECK qn_value interp_eval(qn_vm *vm, const char *name, const char *text, size_t len, bool prompt,
                                   bool *incomplete);

/* The value of a global of the main scope or of a builtin. Owned, or the error value with E401 raised. */
QN_MUST_CHECK qn_value interp_get_global(qn_vm *vm, const char *name);
QN_MUST_CHECK bool interp_set_global(qn_vm *vm, const char *name, qn_value v);
/* qn_module_drop. */
QN_MUST_CHECK bool interp_module_drop(qn_vm *vm, const char *key);

/* Binds a name that all modules see, like those of the standard library (`args`). Borrows `v`. False with an error raised. */
QN_MUST_CHECK bool interp_set_builtin(qn_vm *vm, const char *name, qn_value v);

/* The names of a module and their present values as a record. Owned, or the error value. */
QN_MUST_CHECK qn_value interp_module_record(qn_vm *vm, qn_value module);

/* Text of a function's signature for help and messages: "f(x, scale = 1.0)". False if v is no function. */
bool interp_signature(qn_vm *vm, qn_value fn, text_buf *out);

/* Converts a host number, which may be traced, to an array of rank 0 of the dtype at once: there is no dtype in which every host number
 * could be stored unrounded on the way. Owned, or the error value with E207 or E309 raised if it does not fit. (literal.c) */
QN_MUST_CHECK qn_value interp_convert_number(qn_vm *vm, qn_dtype dtype, qn_value v);

/* Calls `each` for every name that is visible at the prompt and begins with `prefix`. For completion and suggestions. */
void interp_names(qn_vm *vm, const char *prefix, void (*each)(void *ctx, const char *name), void *ctx);

/* ---- what the prompt asks (inspect.c). Values are borrowed; no code of the program runs. ---- */

/* The value of a name that is visible at the prompt. */
bool interp_lookup(qn_vm *vm, const char *name, size_t len, qn_value *out);
/* Calls `each` for the session's own variables, in the order in which their names were first used. */
void interp_globals(qn_vm *vm, void (*each)(void *ctx, const char *name, qn_value v), void *ctx);
/* Makes the session forget its names. False with an error raised. */
QN_MUST_CHECK bool interp_reset(qn_vm *vm);
/* The value of a field of a record, or of a name in a module; false if there is none. */
bool interp_field(qn_value v, const char *name, size_t len, qn_value *out);
/* Calls `each` for every name that may stand behind the point: of a record, module, array or graph. */
void interp_fields(qn_value v, void (*each)(void *ctx, const char *name), void *ctx);
/* Calls `each` for every parameter that can be given by its name; `position` is its number among positional arguments (INT32_MAX: it has
 * none). */
void interp_parameters(qn_vm *vm, qn_value f, void (*each)(void *ctx, const char *name, int position), void *ctx);
/* vm_hooks.name_of. Defaults, which stand behind what a function captures, have the names of their parameters. */
qn_str *interp_name_of(qn_vm *vm, qn_value f, bool captured, uint32_t i);
/* Where the program defines a function of this name which none of its code mentions; SPAN_NONE if there is none. */
span interp_unread_function(qn_vm *vm, const char *name);
/* How many bytes a value takes with all that it holds. Each shared part counts once. */
size_t interp_bytes(qn_value v);

#endif
