/* Programs in which rows of a few elements are numbers (small_rows.c). */
#ifndef JIT_KERNEL_SMALL_ROWS_H
#define JIT_KERNEL_SMALL_ROWS_H

#include "jit/kernel/l.h"

/* Replaces *p, a valid program, by one that computes the same bits with its short rows as numbers. Where memory is short, or the code would
 * grow too much, *p stays what it is. */
void small_rows(l_program **p);

#endif
