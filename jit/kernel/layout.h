/* Layouts of threads over the instances of a phase (l_layout in l.h): which a phase can have, and which is good. */
#ifndef JIT_KERNEL_LAYOUT_H
#define JIT_KERNEL_LAYOUT_H

#include "jit/kernel/l.h"

/* Does a row of so many elements of at most 4 bytes, a number of the program, lie in registers, 16 or 32 elements in a thread? */
static inline bool layout_in_registers(int64_t row) {
  return row >= ORDER_BLOCK && row <= 8 * ORDER_BLOCK && !(row & (row - 1));
}
/* Why the phase of PAR `par` cannot have the layout: a static text; NULL if it can. Every phase can have none, which is 64
 * threads, one lane each and one instance a block. Another layout takes phases whose instances load, compute, store, keep locals of their threads' own and reduce rows
 * (accumulators of one result, pushed by one VEC): no products, scans, merges, updates, ordered stores or loops inside VECs, and nothing that
 * is loaded after the phase has stored it. A row's 64 lanes are then held by 64 / lanes threads, and each further 64 / lanes threads
 * have blocks of the row of their own. Phases that merge partial results of columns take 128 to 1,024 threads: each 64 of them read leaves of
 * their own. */
const char *layout_misfit(const l_program *p, l_val par, l_layout l);
/* Declares a layout for each phase of a program that is for a GPU, for sizes about those of a call with args->ints `ints`. */
void layout_choose(l_program *p, const int64_t *ints);

#endif
