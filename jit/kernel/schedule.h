/* K to L: in what order a kernel is computed. Changes bytes and time, never bits (k.h, l.h). */
#ifndef JIT_KERNEL_SCHEDULE_H
#define JIT_KERNEL_SCHEDULE_H

#include "jit/kernel/k.h"

/* The kind of machine that a program is scheduled for; any runs it, to the same bits. */
typedef enum schedule_target { TARGET_CPU, TARGET_GPU } schedule_target;

typedef struct schedule_result {
  l_program *program; /* owned by the caller */
  qn_dim *ints;       /* args->ints: sizes and symbols, in program->arena */
  uint32_t nints;
  /* alias[in * nbuffers + out]: output `out` may be stored over input `in` (same memory): every load of an element comes before
   * its store. In program->arena; indexed by the kernel's buffers, which are the program's first ones. */
  uint8_t *alias;
} schedule_result;

/* Makes the program of a finished kernel. False with a reason (static text): memory (lower_no_memory), or the effects do not fit
 * loop nests. `grain`: the tunable par.grain. */
QN_MUST_CHECK bool schedule(const k_kernel *k, schedule_target target, int64_t grain, schedule_result *out,
                            const char **why);
/* Says whether schedule would succeed, and how long the program would take on such a device, its start included, at the recorded
 * sizes. */
QN_MUST_CHECK bool schedule_estimate(const k_kernel *k, schedule_target target, double *nanoseconds, const char **why);

#endif
