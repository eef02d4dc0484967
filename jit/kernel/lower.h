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
  graph *g;              /* its table of dims grows */
  const char *name;      /* of the kernel; NULL: made from the nodes' ops */
  const uint8_t *place;  /* lower_place of every node of the graph; weak nodes are host scalars whatever it says */
  const uint32_t *nodes; /* what the kernel computes, ascending: their checks are made here */
  uint32_t n;
  const uint8_t *stored;   /* of every node of the graph: whether it is to be stored, if it is one of `nodes` */
  const uint32_t *buffers; /* nodes whose buffers come first, in this order; NULL if nbuffers is 0 */
  uint32_t nbuffers;
  const qn_dim (*strides)[ARRAY_MAX_RANK]; /* of buffers, by node; NULL: all are row-major */
  /* NULL, or of REDUCE nodes: a bit per axis that is joined with the reduced axis behind it; instead
     of what the sizes of the recorded call say */
  const uint8_t *joins;
  uint32_t most;  /* values and demands for them that it may take; 0: any number */
  uint32_t *made; /* NULL, or set to how many it took, also when it is refused */
  cancel_flag cancel;
  uint32_t *scratch; /* as long as the graph, all zero; zero again afterwards */
} lower_request;

/* Owned, finished (k_finish), not verified. k->buffers[i].ref is the node that buffer i holds, k->scalars[i] the weak node of
 * host scalar i. NULL with a reason in *why (a static text): memory, or the nodes do not make one kernel. */
QN_MUST_CHECK k_kernel *lower(const lower_request *r, const char **why);
extern const char lower_no_memory[]; /* the reason that means memory */
extern const char lower_cancelled[]; /* the reason that means that nobody wants the result any more */
/* Does the reason end a plan, so that no other kernels need to be tried? */
static inline bool lower_ends(const char *why) { return why == lower_no_memory || why == lower_cancelled; }

/* What a graph node is to fusion. */
typedef enum node_role {
  NODE_IS_LEAF,    /* input or array constant: a buffer */
  NODE_IS_SCALAR,  /* weak: a host scalar */
  NODE_IS_VIRTUAL, /* a view, fit, iota: computed wherever it is used */
  NODE_IS_WORK,    /* computed by one kernel */
  NODE_IS_STEP,    /* a library step */
  NODE_IS_REGIONS, /* a step with regions */
  NODE_IS_RESULT   /* of such a step: a buffer that it writes */
} node_role;
node_role lower_role(const graph *g, uint32_t node);

#endif
