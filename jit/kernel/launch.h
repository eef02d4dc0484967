/* Launch-time values of a program: what devices must know before its phases run. */
#ifndef JIT_KERNEL_LAUNCH_H
#define JIT_KERNEL_LAUNCH_H

#include "jit/kernel/l.h"

/* The index values that stand before PARs, by instruction: values[0..p->n). False if one of them needs more than parameters, host
 * scalars and index arithmetic. */
QN_MUST_CHECK bool l_launch_values(const l_program *p, const int64_t *ints, const qk_scalar *scalars, int64_t *values);
/* Does one of them depend on host scalars? */
bool l_launch_scalars(const l_program *p);
/* Do they need no more than that, whatever the parameters? */
bool l_launches(const l_program *p);
/* Does a phase keep something in args->scratch? */
bool l_needs_scratch(const l_program *p);
/* Do data decide how long it runs? */
bool l_unbounded(const l_program *p);

#endif
