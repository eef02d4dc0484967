/* Launch-time values of a program: what devices must know before its phases run. */
#ifndef JIT_KERNEL_LAUNCH_H
#define JIT_KERNEL_LAUNCH_H

#include "jit/kernel/l.h"

/* Computes the index values that stand before PARs (numbers of instances, sizes of scratch) and writes them by instruction to
 * values[0..p->n); what stands elsewhere is 0. False if one of them needs more than parameters, host scalars and index arithmetic. */
QN_MUST_CHECK bool l_launch_values(const l_program *p, const int64_t *ints, const qk_scalar *scalars, int64_t *values);
/* Does one of these values depend on host scalars? */
bool l_launch_scalars(const l_program *p);
/* Will l_launch_values succeed whatever the parameters and scalars are? */
bool l_launches(const l_program *p);
/* Does a phase keep something in args->scratch? (A local, or an accumulator of many results.) */
bool l_needs_scratch(const l_program *p);
/* Do data decide how long the program runs? (It has a WHILE.) */
bool l_unbounded(const l_program *p);

#endif
