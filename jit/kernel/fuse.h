/* Fusion: which nodes of a graph are computed together. The result is an order of groups, each a kernel, a library step or a
 * host scalar; plan.c lowers, schedules and gives them memory. */
#ifndef JIT_KERNEL_FUSE_H
#define JIT_KERNEL_FUSE_H

#include "jit/kernel/lower.h"
#include "jit/kernel/schedule.h"

typedef enum fuse_kind {
  FUSE_KERNEL,
  FUSE_LIBRARY, /* one node */
  FUSE_SCALAR,  /* one weak node, or one `fit` whose number is checked */
  FUSE_REGIONS, /* one node with regions */
  FUSE_RESULT   /* one result of such a node, which writes it: nothing runs */
} fuse_kind;

typedef struct fuse_group {
  uint8_t kind; /* fuse_kind */
  uint32_t n;
  const uint32_t *nodes; /* ascending */
} fuse_group;

/* How far fusion goes: FUSE_NOTHING makes every node a group of its own, in program order; FUSE_ALL takes whatever makes the
 * graph faster; any other number is the most bytes that may be live at a time, inputs and results included. */
enum { FUSE_NOTHING = 0 };
#define FUSE_ALL INT64_MAX

typedef struct fusion {
  arena arena;
  graph *g; /* borrowed; its table of dims grows */
  cancel_flag cancel;
  fuse_group *groups; /* in an order in which they can run, fallible ones in program order */
  uint32_t n;
  uint32_t *group_of; /* by node: 1 + the group that computes it, 0: none */
  /* by node: the node whose buffer holds its elements in row-major order (itself unless a view), 0: none */
  uint32_t *base;
  uint8_t *stored;    /* by node: a kernel, library or region step writes it to a buffer */
  uint8_t *place;     /* by node: lower_place as seen from a kernel that does not compute it */
  uint32_t *scratch;  /* by node: for lower */
  int64_t live;       /* bytes that are live at most, simulated; not with FUSE_NOTHING */
  uint64_t work;      /* what it took, in steps of its loops */
  int64_t eager_peak; /* bytes at the recorded sizes when run node by node in program order, inputs included */
} fusion;

/* What kernels were estimated to cost: for partitions of one graph with the same `awkward`
 * and target. All zero at first. */
typedef struct fuse_memo {
  struct fuse_estimate {
    uint64_t key; /* 0: free */
    double ns;    /* < 0: no kernel */
  } * slots;
  uint32_t n, cap;
} fuse_memo;
void fuse_memo_free(fuse_memo *m); /* and all zero again */

/* Partition of a simplified graph; its regions are not looked into. `awkward`, by node: read their operands from buffers, never through views
 * (a kernel of such a node alone could not be scheduled). False with a reason (static text): lower_no_memory, lower_cancelled or a defect. `f` may be
 * freed in any case. */
QN_MUST_CHECK bool fuse(graph *g, schedule_target target, const int64_t *tune, int64_t limit, const uint8_t *awkward,
                        fuse_memo *memo, cancel_flag cancel, fusion *f, const char **why);
void fusion_free(fusion *f);
/* The kernel of a FUSE_KERNEL group. NULL with a reason. */
QN_MUST_CHECK k_kernel *fuse_lower(fusion *f, uint32_t group, const char **why);

/* Number of elements that a node's buffer needs: sizes that only data tells count with their upper bound. */
qn_dim fuse_elements(graph *g, const graph_type *t);
/* Bytes at the recorded sizes, rounded to what a buffer takes. */
enum { FUSE_ALIGN = 64 };
int64_t fuse_bytes(graph *g, uint32_t node);

#endif
