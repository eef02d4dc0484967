/* Static extents: programs that know their sizes.
 *
 * Sizes above K_LITERAL_MAX are parameters of a program, so that calls of all sizes share its code (k.h). Where a graph's sizes are numbers and its calls
 * are frequent, the same kernels may be made again with literals in the place of parameters (`fuse.static`): trip counts are known, short loops are
 * unrolled, ends of vectors are not asked for. A schedule changes no bits, so neither does this. The price is code for each vector of sizes.
 */
#ifndef JIT_KERNEL_STATICS_H
#define JIT_KERNEL_STATICS_H

#include "jit/kernel/k.h"

/* May a finished kernel's program be faster if it knows the kernel's sizes, beyond what compiling it costs? */
bool statics_pay(const k_kernel *k);

#endif
