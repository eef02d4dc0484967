/* The text forms of K and L beyond what the product has of them (l_print): goldens and hand-written programs of tests. Both parse back
 * to the identical kernel or program. */
#ifndef TESTS_UNIT_KERNEL_TEXT_H
#define TESTS_UNIT_KERNEL_TEXT_H

#include "jit/kernel/k.h"

/* Appends a kernel's text; k.h shows an example. */
void k_print(const k_kernel *k, text_buf *out);
/* Verified; to be freed by the caller. NULL with a message in `why`. */
QN_MUST_CHECK k_kernel *k_parse(const char *text, char *why, size_t size);
/* Verified; to be freed by the caller. NULL with a message in `why`. */
QN_MUST_CHECK l_program *l_parse(const char *text, char *why, size_t size);

#endif
