/* Printers of L: C and CUDA C. Same program, same bits as on the block VM: explicit fma, no contraction, the orders of l.h.
 *
 * The text needs no header. It begins with the types (qk_args as in l.h), the kernel primitives and the functions of math.def that
 * are used, each once; then phase j of program i is the function <names[i]>_<j>.
 */
#ifndef JIT_KERNEL_EMIT_H
#define JIT_KERNEL_EMIT_H

#include "jit/kernel/l.h"

/* C11 with GNU extensions: void NAME_J(const qk_args *a, long lo, long hi). */
void emit_c(const l_program *const *programs, const char *const *names, uint32_t n, text_buf *out);
/* CUDA C for NVRTC (sm_90): extern "C" __global__ void NAME_J(qk_args, long n): a block runs instances blockIdx.x,
 * blockIdx.x + gridDim.x, ... below n; the text says in a comment per phase how many threads a block has and how much
 * shared memory it takes, in the form `// launch NAME_J threads T shared BYTES`. */
void emit_cuda(const l_program *const *programs, const char *const *names, uint32_t n, text_buf *out);
/* Number of phases of a program. */
uint32_t emit_phases(const l_program *p);

#endif
