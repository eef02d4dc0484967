/* From graph nodes to a K kernel (k.h), by demand: the value of a node at given coordinates is asked for, and views answer by
 * asking their operand at other coordinates. */
#ifndef JIT_KERNEL_LOWER_H
#define JIT_KERNEL_LOWER_H

#include "jit/graph/graph.h"
#include "jit/kernel/k.h"

/* Where a node's value comes from when the kernel needs it. */
typedef enum lower_place {
  PLACE_BUFFER, /* loaded: an input, an array constant, or what another step stored */
  PLACE_INLINE  /* computed here, from its operands (also constants of one element) */
} lower_place;

typedef struct lower_request {
  graph *g;              /* lowering adds expressions to its table of dims */
  const char *name;      /* of the kernel; NULL: it does not matter */
  const uint8_t *place;  /* by node of the graph: lower_place (host numbers are host scalars whatever it says) */
  const uint32_t *nodes; /* the n nodes that the kernel computes and whose checks it makes, ascending */
  uint32_t n;
  const uint8_t *stored; /* by node of the graph: must it be stored, if it is one of `nodes`? */
  /* by node of the graph: the operand that has its buffer, into which an indexed assignment only stores what it changes; 0: it has its own.
   * NULL: so have all. `whole`: updates_request.whole, where there is `over` */
  const uint32_t *over, *whole;
  const uint32_t *buffers; /* nbuffers nodes whose buffers get the first numbers, in this order */
  uint32_t nbuffers;
  const qn_dim (*strides)[ARRAY_MAX_RANK]; /* by node: the strides of its buffer; NULL: all buffers are row-major */
  /* For REDUCE nodes: `joins` as reduce_folds takes it */
  const uint8_t *joins;
  bool windows;   /* as in k_kernel */
  uint32_t most;  /* lowering is refused when it takes more values and demands for values than this; 0: no limit */
  uint32_t *made; /* NULL, or set to how many it took, also when it was refused */
  cancel_flag cancel;
  uint32_t *scratch; /* as long as the graph, all zero; zero again afterwards */
} lower_request;

/* Makes a kernel, which is owned by the caller, finished (k_finish) and not verified. k->buffers[i].ref is the node that buffer i holds,
 * k->scalars[i] the node of host scalar i. NULL with a reason in *why (a static text): memory is short, it was cancelled, or the nodes
 * cannot be one kernel. */
QN_MUST_CHECK k_kernel *lower(const lower_request *r, const char **why);
extern const char lower_no_memory[]; /* the reason when memory is short */
extern const char lower_cancelled[]; /* the reason when the cancel flag was set */
/* Does a reason end planning, so that no other kernels need to be tried? */
static inline bool lower_ends(const char *why) { return why == lower_no_memory || why == lower_cancelled; }

/* How fusion treats a graph node. */
typedef enum node_role {
  NODE_IS_LEAF,    /* input or array constant: a buffer */
  NODE_IS_SCALAR,  /* weak: a host scalar */
  NODE_IS_VIRTUAL, /* a view, fit, iota: computed wherever it is used */
  NODE_IS_WORK,    /* computed by one kernel */
  NODE_IS_STEP,    /* a library step */
  NODE_IS_REGIONS, /* a step with regions */
  NODE_IS_TAP,     /* an effect: a step that reads, and gives nothing or a number */
  NODE_IS_RESULT   /* a result of a step with regions: a buffer that the step writes */
} node_role;
node_role lower_role(const graph *g, uint32_t node);

#endif
