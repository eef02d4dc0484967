/* K to L: in what order a kernel is computed. Changes bytes and time, never bits (k.h, l.h). */
#ifndef JIT_KERNEL_SCHEDULE_H
#define JIT_KERNEL_SCHEDULE_H

#include "jit/kernel/k.h"

/* The kind of machine that a program is scheduled for. Every machine can run it, with the same bits. */
typedef enum schedule_target { TARGET_CPU, TARGET_GPU } schedule_target;

typedef struct schedule_result {
  l_program *program; /* owned by the caller */
  qn_dim *ints;       /* the sizes that args->ints receives, in program->arena */
  uint32_t nints;
  /* alias[in * nbuffers + out]: may output `out` lie in the memory of input `in`, because every load of an element comes before its
   * store? By the kernel's buffers, which are the program's first ones; in program->arena. */
  uint8_t *alias;
} schedule_result;

/* Makes the program of a finished kernel. `grain` is the tunable par.grain. False with a reason (a static text): lower_no_memory, or the
 * effects do not fit loop nests. */
QN_MUST_CHECK bool schedule(const k_kernel *k, schedule_target target, int64_t grain, schedule_result *out,
                            const char **why);
/* Estimates how long the program would take on such a machine, including its launch, at the recorded sizes. False as schedule. */
QN_MUST_CHECK bool schedule_estimate(const k_kernel *k, schedule_target target, double *nanoseconds, const char **why);

#endif
