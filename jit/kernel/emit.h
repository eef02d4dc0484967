/* Printers of L: C and CUDA C. Same program, same bits as on the block VM: explicit fma, no contraction, the orders of l.h.
 *
 * The text needs no header. It begins with the types (qk_args as in l.h), the kernel primitives and the functions of math.def that
 * are used, each once; then phase j of program i is the function <names[i]>_<j>.
 */
#ifndef JIT_KERNEL_EMIT_H
#define JIT_KERNEL_EMIT_H

#include "jit/kernel/l.h"
#include "lang/cancel.h"

/* Prints C11 with GNU extensions. A phase is a function void NAME_J(const qk_args *a, long long lo, long long hi), of type qk_phase.
 * After a program's phases comes one more function of this type: it stores how many bytes of scratch the phases need, for the ints and
 * scalars of `a`, to *(int64_t *)a->scratch. When cancelled, `out` has failed. */
void emit_c(const l_program *const *programs, const char *const *names, uint32_t n, cancel_flag cancel, text_buf *out);
/* Prints CUDA C for NVRTC (sm_90). A phase is extern "C" __global__ void NAME_J(const u64 *block, i64 instances, NAME_words words): a
 * block of threads runs the instances blockIdx.x, blockIdx.x + gridDim.x, ... below `instances`. A comment before each phase says how
 * many threads a block has and how much shared memory it needs: `// launch NAME_J threads T shared BYTES`.
 *
 * In place of qk_args a kernel receives words of 64 bits: the addresses of scratch, of the error cell and of the interrupt flag (0 where
 * the program needs none), the number of its first check, then the addresses of buffers, the ints and the scalars. They lie in device
 * memory at `block` or, where that is NULL, in the parameter `words`; the latter only if there are at most EMIT_WORDS_BY_VALUE,
 * otherwise NAME_words has one word. Programs that run one after the other share the error cell, so a phase does nothing when the cell
 * has a check with a lower number than the program's first. */
enum { EMIT_WORDS_HEAD = 4, EMIT_WORDS_BY_VALUE = 480 };
uint32_t emit_cuda_words(const l_program *p);
/* Sets sizes[v], of p->n bytes that are 0, for each index value outside PARs that the bytes of scratch are computed from which the last function of a
 * program tells. False when memory is short. */
QN_MUST_CHECK bool emit_cuda_sizes(const l_program *p, uint8_t *sizes);
void emit_cuda(const l_program *const *programs, const char *const *names, uint32_t n, text_buf *out);
uint32_t emit_phases(const l_program *p);

#endif
