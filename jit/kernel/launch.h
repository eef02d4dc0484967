/* Launch-time values of a program: what devices must know before its phases run. */
#ifndef JIT_KERNEL_LAUNCH_H
#define JIT_KERNEL_LAUNCH_H

#include "jit/kernel/l.h"

/* Evaluates the index values outside PARs (numbers of instances, sizes of scratch): sets values[v] for each such instruction v, and 0 for
 * all others. False if one of them needs more than parameters, host scalars and index arithmetic. */
QN_MUST_CHECK bool l_launch_values(const l_program *p, const int64_t *ints, const qk_scalar *scalars, int64_t *values);
/* Does a launch-time value depend on host scalars? */
bool l_launch_scalars(const l_program *p);
/* Will l_launch_values succeed whatever the parameters and scalars are? */
bool l_launches(const l_program *p);
/* Does a phase need args->scratch, because it has a local or an accumulator of many results? */
bool l_needs_scratch(const l_program *p);
/* May sizes or the bounds of loops depend on host scalars? `from_values`: room for p->n bytes. */
bool l_scalars_steer(const l_program *p, uint8_t *from_values);
/* Has the program a WHILE, so that data decide how long it runs? */
bool l_unbounded(const l_program *p);

#endif
