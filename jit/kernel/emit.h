/* Printers of L: C and CUDA C. Same program, same bits as on the block VM: explicit fma, no contraction, the orders of l.h.
 *
 * The text needs no header. It begins with the types (qk_args as in l.h), the kernel primitives and the functions of math.def that
 * are used, each once; then phase j of program i is the function <names[i]>_<j>.
 */
#ifndef JIT_KERNEL_EMIT_H
#define JIT_KERNEL_EMIT_H

#include "jit/kernel/l.h"
#include "lang/cancel.h"

/* C11 with GNU extensions: void NAME_J(const qk_args *a, long long lo, long long hi), of type qk_phase. Behind a program's last
 * phase comes one more function of this type, which stores the bytes of scratch that its phases need for these ints and
 * scalars to *(int64_t *)a->scratch: see emit_scratch. When cancelled, `out` has failed. */
void emit_c(const l_program *const *programs, const char *const *names, uint32_t n, cancel_flag cancel, text_buf *out);
/* CUDA C for NVRTC (sm_90): extern "C" __global__ void NAME_J(const u64 *block, i64 instances, NAME_words words): a block of
 * threads runs instances blockIdx.x, blockIdx.x + gridDim.x, ... below n; the text says in a comment per phase how many threads a
 * block has and how much shared memory it takes, in the form `// launch NAME_J threads T shared BYTES`.
 *
 * What qk_args has on the CPU are words of 64 bits here: addresses of scratch, of the error cell and of the interrupt flag (each may
 * be 0 where the program needs none), the number that its checks count from, then the buffers' addresses, the ints and the scalars.
 * They lie in memory of the device at `block`, or, where that is NULL, in the kernel's own parameters: only if there are at most
 * EMIT_WORDS_BY_VALUE, else NAME_words has one word. A phase does nothing when the error cell tells of a check with a lower
 * number than it counts from: programs that run in a row share the cell. */
enum { EMIT_WORDS_HEAD = 4, EMIT_WORDS_BY_VALUE = 480 };
uint32_t emit_cuda_words(const l_program *p);
void emit_cuda(const l_program *const *programs, const char *const *names, uint32_t n, text_buf *out);
/* Number of phases of a program. */
uint32_t emit_phases(const l_program *p);

/* Bytes of args->scratch (64-byte aligned, one piece for each thread) that compiled phases need: code[nphases] answers. */
static inline size_t emit_scratch(const qk_phase *code, uint32_t nphases, const qk_args *args) {
  int64_t bytes = 0;
  qk_args ask = *args;
  ask.scratch = &bytes;
  code[nphases](&ask, 0, 0);
  return (size_t)bytes;
}

#endif
