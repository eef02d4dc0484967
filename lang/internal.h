/* What the files of lang share among themselves; no other room includes this. */
#ifndef LANG_INTERNAL_H
#define LANG_INTERNAL_H

#include <stdarg.h>

#include "lang/vm.h"

/* Each frees an object whose last reference went away (value_free calls them). */
void str_free(qn_vm *vm, qn_str *s);
void array_free(qn_vm *vm, qn_array *a);

/* Parts of a VM that is being opened or closed. Opening raises nothing but out of memory; closing takes what is there. */
bool intern_open(qn_vm *vm);
void intern_close(qn_vm *vm);
bool layouts_open(qn_vm *vm);
void layouts_close(qn_vm *vm);
bool sources_open(qn_vm *vm);
void sources_close(qn_vm *vm);
bool error_open(qn_vm *vm); /* the out-of-memory error */
void error_close(qn_vm *vm);

void text_addv(text_buf *t, const char *format, va_list args);
uint32_t str_hash(const char *text, size_t len);

#endif
