/* Fusion: which nodes of a graph are computed together. The result is an order of groups, each a kernel, a library step or a
 * host scalar; plan.c lowers, schedules and gives them memory. */
#ifndef JIT_KERNEL_FUSE_H
#define JIT_KERNEL_FUSE_H

#include "jit/kernel/alike.h"
#include "jit/kernel/lower.h"
#include "jit/kernel/schedule.h"

typedef enum fuse_kind {
  FUSE_KERNEL,
  FUSE_LIBRARY, /* one node */
  FUSE_SCALAR,  /* one weak node, or one `fit` whose number is checked */
  FUSE_REGIONS, /* one node with regions */
  FUSE_TAP,     /* one effect */
  FUSE_RESULT   /* one result of such a node, which writes it: nothing runs */
} fuse_kind;

typedef struct fuse_group {
  uint8_t kind; /* fuse_kind */
  uint32_t n;
  const uint32_t *nodes; /* ascending */
} fuse_group;

/* How far fusion goes. FUSE_NOTHING: every node is a group of its own, in program order. FUSE_ALL: everything that makes the graph faster.
 * Any other number: the most bytes that may be live at a time, including inputs and results. */
enum { FUSE_NOTHING = 0 };
#define FUSE_ALL INT64_MAX

typedef struct fusion {
  arena arena;
  graph *g; /* borrowed; fusion adds expressions to its table of dims */
  cancel_flag cancel;
  fuse_group *groups; /* in an order in which they can run, fallible ones in program order */
  uint32_t n;
  uint32_t *group_of; /* by node: 1 + the group that computes it; 0: none */
  /* by node: the node whose buffer holds its elements in row-major order (itself unless it is a view); 0: no buffer does */
  uint32_t *base;
  uint8_t *stored;   /* by node: does a kernel, library or region step write it to a buffer? */
  uint8_t *place;    /* by node: its lower_place for kernels that do not compute it */
  uint32_t *scratch; /* by node: lower_request.scratch */
  /* by node: the operand into whose memory it stores (updates.h), or 0; borrowed */
  const uint32_t *over, *whole;
  bool windows;  /* lower_request.windows */
  int64_t live;  /* the most bytes that are live at a time, by simulation; not set with FUSE_NOTHING */
  uint64_t work; /* how many steps loops of fusion took; tests look at it */
  /* the peak in bytes of running node by node in program order at the recorded sizes, including inputs */
  int64_t eager_peak;
} fusion;

/* Partitions a simplified graph, but not the graphs of its regions. awkward[node] says that a node must read its operands from buffers,
 * never through views, because a kernel of this node alone could not be scheduled. `over` and `whole` are those of updates_request; NULL: all 0. Estimates are kept in `memo` for further calls with the same graph and target. False with a reason (a static text): lower_no_memory,
 * lower_cancelled or a defect. fusion_free in any case. */
QN_MUST_CHECK bool fuse(graph *g, schedule_target target, const int64_t *tune, int64_t limit, const uint8_t *awkward,
                        const uint32_t *over, const uint32_t *whole, alike *memo, cancel_flag cancel, fusion *f,
                        const char **why);
void fusion_free(fusion *f);
/* Lowers a FUSE_KERNEL group. The kernel is owned by the caller; NULL with a reason. */
QN_MUST_CHECK k_kernel *fuse_lower(fusion *f, uint32_t group, const char **why);
/* alike_find for the kernel of a FUSE_KERNEL group. */
int64_t fuse_alike(fusion *f, uint32_t group, alike *memo);

/* The number of elements that a node's buffer needs, where sizes that only data tell count with their upper bounds. */
qn_dim fuse_elements(graph *g, const graph_type *t);
/* The bytes of a node's buffer at the recorded sizes, rounded up to FUSE_ALIGN. */
enum { FUSE_ALIGN = 64 };
int64_t fuse_bytes(graph *g, uint32_t node);

#endif
