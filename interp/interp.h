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
/* qn_module_drop. */
QN_MUST_CHECK bool interp_module_drop(qn_vm *vm, const char *key);

/* Binds a name for all modules, as the standard library's are (`args`). Borrows `v`. */
QN_MUST_CHECK bool interp_set_builtin(qn_vm *vm, const char *name, qn_value v);

/* A module's names and their present values as a record (owned), or the error value. */
QN_MUST_CHECK qn_value interp_module_record(qn_vm *vm, qn_value module);

/* Text of a function's signature for help and messages: "f(x, scale = 1.0)". False if v is no function. */
bool interp_signature(qn_vm *vm, qn_value fn, text_buf *out);

/* A host number, which may be traced, as an array of rank 0: straight into the dtype, as the dtype of its own has no array that would
 * hold it unrounded. Owned, or E207 or E309 where it does not fit. literal.c */
QN_MUST_CHECK qn_value interp_convert_number(qn_vm *vm, qn_dtype dtype, qn_value v);

/* The names visible at the prompt that begin with `prefix`, for completion and "nearest name": calls `each` for every one. */
void interp_names(qn_vm *vm, const char *prefix, void (*each)(void *ctx, const char *name), void *ctx);

/* ---- what the prompt asks (inspect.c); values are borrowed, no code of the program runs ---- */

/* The value of a name that is visible at the prompt. */
bool interp_lookup(qn_vm *vm, const char *name, size_t len, qn_value *out);
/* The session's own names, in the order in which they were first used. */
void interp_globals(qn_vm *vm, void (*each)(void *ctx, const char *name, qn_value v), void *ctx);
/* Forgets the session's names. False with an error raised. */
QN_MUST_CHECK bool interp_reset(qn_vm *vm);
/* A field of a record or a name of a module. */
bool interp_field(qn_value v, const char *name, size_t len, qn_value *out);
/* The names behind the point of a record, module or array. */
void interp_fields(qn_value v, void (*each)(void *ctx, const char *name), void *ctx);
/* The parameters that can be given by name; `position` is where they can be given without it (INT32_MAX: nowhere). */
void interp_parameters(qn_vm *vm, qn_value f, void (*each)(void *ctx, const char *name, int position), void *ctx);
/* Where the program defines a function of this name that its own code never mentions; SPAN_NONE if there is none. */
span interp_unread_function(qn_vm *vm, const char *name);
/* Bytes that a value and what it consists of take, each shared part once. */
size_t interp_bytes(qn_value v);

#endif
