/* K to L: in what order a kernel is computed. Changes bytes and time, never bits (k.h, l.h).
 *
 * A schedule is data. A kernel's effects, in their order, are split into nests, whose texts "||" parts, and a nest is two lists of loops, the
 * outermost first:
 *
 *   par a, c/1024; for b; vec c              every axis has loops: an instance of the PAR has one element of a and 1,024 of c
 *   par b/64; for b; vec c | par c/64; vec c a reduction over b, of which an instance has 64 elements: its results are partial, and
 *                                            the second list merges them and does what follows
 *   par m/64, n/128; tile k; for m; vec n    a product: a tile of 64 x 128 results, all of k at once, then what follows it
 *   par i/64, j/64; for i; vec j; turn       what lies along i in memory goes through a local array of 64 x 64
 *   par c/65536; vec c | once; group 64      partial results are merged by 64 at a time before
 *   rep c; par a/512; for b; vec a           a short axis is unrolled (k_unroll.c): values along it are as many values without it
 *
 * Roles are those of L: PAR spreads instances over threads, FOR runs one element after the other, VEC any number of elements at a time. An
 * axis is cut where a PAR has `/size`; what an instance has of it is the business of a later FOR, VEC or TILE. An axis without a loop has one
 * element. Which values are kept in arrays between passes over an axis follows from what they cost. sched_emit.c makes the program of any
 * such list that fits (schedule_fits); sched_choose.c lists candidates and takes the one with the lowest price (sched_price.c). */
#ifndef JIT_KERNEL_SCHEDULE_H
#define JIT_KERNEL_SCHEDULE_H

#include "jit/kernel/k.h"

/* The kind of machine that a program is scheduled for. Every machine can run it, with the same bits. */
typedef enum schedule_target { TARGET_CPU, TARGET_GPU } schedule_target;

typedef enum loop_role { LOOP_PAR, LOOP_FOR, LOOP_VEC, LOOP_TILE, LOOP_ROLES } loop_role;
typedef struct sched_loop {
  uint8_t role;
  int8_t axis;
  int64_t size; /* of a PAR: the elements of its axis that an instance has */
} sched_loop;

enum { SCHED_LOOPS = 40 };
typedef struct loop_list {
  sched_loop at[SCHED_LOOPS];
  int n;
} loop_list;

typedef struct sched_nest {
  uint32_t effects; /* how many of the kernel's effects it makes: the next ones in their order */
  loop_list main, after;
  int64_t group; /* partial results that an instance merges at a time, where there are more; 0: all */
  bool turn;     /* do loads along the first of the two last axes go through a local array? */
} sched_nest;

/* How a schedule is found: by price; or candidate `pick` - 1 of each nest, counted around, whatever it costs; or the text. */
typedef struct schedule_how {
  int64_t grain; /* the tunable par.grain */
  int64_t pick;  /* the tunable schedule.pick; 0: by price */
  const char *text;
  int64_t processors; /* the tunable schedule.processors; 0: four, or what a GPU has */
  bool interpreted;   /* will a CPU's block VM run it? (It always runs the one-op kernels of eager dispatch.) */
} schedule_how;

typedef struct schedule_result {
  l_program *program; /* owned by the caller */
  qn_dim *ints;       /* the sizes that args->ints receives, in program->arena */
  uint32_t nints;
  /* alias[in * nbuffers + out]: may output `out` lie in the memory of input `in`, because every load of an element comes before its
   * store? By the kernel's buffers, which are the program's first ones; in program->arena. */
  uint8_t *alias;
  double price;        /* nanoseconds, with the launch */
  uint32_t candidates; /* how many the nest with most had */
} schedule_result;

/* Makes the program of a finished kernel. False with a reason (a static text): lower_no_memory, the effects do not fit loop nests, or the text is no
 * schedule that fits. */
QN_MUST_CHECK bool schedule(const k_kernel *k, schedule_target target, const schedule_how *how, schedule_result *out,
                            const char **why);
/* What the tunables say about schedules. */
schedule_how schedule_how_of(const int64_t *tune);
/* Estimates how long the program by price would take on such a machine, including its launch, at the recorded sizes. False as schedule. */
QN_MUST_CHECK bool schedule_estimate(const k_kernel *k, schedule_target target, const schedule_how *how,
                                     double *nanoseconds, const char **why);

#endif
