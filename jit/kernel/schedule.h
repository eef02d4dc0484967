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

/* What a schedule costs, estimated at the recorded sizes. */
typedef struct schedule_cost {
  double nanoseconds;
  int64_t bytes;   /* moved to and from memory, at least: every element that is touched once */
  int64_t scratch; /* bytes of partials */
  int32_t phases;
} schedule_cost;

/* Makes the program of a finished kernel. False with a reason (static text): memory (lower_no_memory), or the effects do not fit
 * loop nests. `grain`: the tunable par.grain. */
QN_MUST_CHECK bool schedule(const k_kernel *k, schedule_target target, int64_t grain, schedule_result *out,
                            const char **why);
/* Says whether schedule would succeed, and what the program would cost on such a device, its start included. */
QN_MUST_CHECK bool schedule_estimate(const k_kernel *k, schedule_target target, schedule_cost *cost, const char **why);

#endif
