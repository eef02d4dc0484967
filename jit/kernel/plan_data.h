/* A plan: what a graph became after fusion, scheduling and memory planning. Immutable but for `code` of its kernels, which
 * a compiler fills in beside execution. Made without a VM (compiler threads make plans), run by a device (jit/run/plan_run.h).
 *
 *   graph --fuse--> K kernels --schedule--> L programs --plan--> steps over buffers
 *
 * Buffers are inputs, constants, outputs (allocated for each call, or an alias of an input), or places in one arena whose
 * size is an expression over the input sizes. All buffers are row-major and contiguous; views inside the graph have become
 * address arithmetic. Steps run in order; a fallible step comes after the fallible ones before it in the program. Sizes that a
 * data-dependent step finds (dim symbols from nodes) are known once it has run; its buffer has room for the upper bound. Peak
 * (live inputs + arena + outputs) is at most the simulated peak of running the graph node by node, or PLAN_PEAK_LEAST.
 *
 * Regions. A node with regions is a step with plans of its own: one for each arm, or for a loop's header and body. Their kernels are
 * among those of the outermost plan, which owns all of it; their sizes and steps are theirs. A loop that can be one kernel (sink.h, splice.h) is
 * a step like other kernels. If its checks fail, plans of its parts are made then (plan_parts), to find out how it fails.
 *
 * A plan is right for all sizes for which the facts of its graph's dims hold; it adds some (which axes a reduction joins).
 */
#ifndef JIT_KERNEL_PLAN_DATA_H
#define JIT_KERNEL_PLAN_DATA_H

#include "jit/graph/graph.h"
#include "jit/kernel/schedule.h"

/* A peak up to this many bytes is always allowed: what rounding adds to tiny arrays is not worth another kernel. */
enum { PLAN_PEAK_LEAST = 16384 };

/* Rows that a loop which is a kernel keeps: memory for them is made before it is launched, as much as its turns may need, and how many there are is
 * told behind it. */
typedef struct kernel_rows {
  const uint32_t *nodes;   /* that take them, n */
  const uint32_t *buffers; /* by row: the plan's buffer, WHERE_LATE */
  uint32_t n;
  uint32_t turns; /* the buffer that holds how many turns there were */
  int64_t room;   /* the most turns, and */
  uint32_t slot;  /* 1 + the scalar slot whose number is added to `room`; 0: none */
} kernel_rows;

/* Does a program know its sizes (statics.h)? */
typedef enum plan_statics {
  STATICS_NONE, /* no, and it would hardly be faster if it did */
  STATICS_PAY,  /* no, but it may be faster if it did */
  STATICS_KNOWN
} plan_statics;

typedef struct plan_kernel {
  l_program *program;
  bool shares;   /* is the program that of an earlier kernel of the plan, which owns it? */
  uint64_t hash; /* l_hash */
  uint32_t nphases;
  _Atomic(const qk_phase *) code; /* compiled phases, or NULL: the block VM runs `program` */
  void *host_code;                /* the program prepared for the host (jit/run/host.h), which owns it */
  uint32_t node_first, node_last; /* the first and last graph node that it computes, for messages */
  uint32_t nops;
  int64_t bytes;           /* compulsory bytes, at the recorded sizes: inputs read once, outputs written once */
  const uint32_t *nodes;   /* the graph nodes, nops of them */
  const graph *graph;      /* whose nodes and sizes these are: the plan's, or a region's */
  uint8_t statics;         /* plan_statics */
  uint32_t region;         /* of a kernel that is a loop: 1 + its number in the plan's `regions`; else 0 */
  const kernel_rows *rows; /* NULL: it keeps none */
} plan_kernel;

typedef enum plan_where {
  WHERE_INPUT,
  WHERE_CONST,
  WHERE_OUTPUT,
  WHERE_ARENA,
  /* memory of its own, allocated by the step that writes it, since its size is known only when a loop has run */
  WHERE_LATE
} plan_where;
typedef struct plan_buffer {
  uint8_t where; /* plan_where */
  uint8_t dtype;
  /* WHERE_INPUT: the input's number. WHERE_OUTPUT: the output whose new array holds it; besides the output itself (offset 0) these
     may be temporaries of any dtype that are dead before the output is written */
  uint32_t index;
  const void *data; /* of a constant */
  qn_dim elements;  /* of a data-dependent node: the upper bound */
  qn_dim offset;    /* in the arena or the output's memory, bytes, a multiple of 64 */
} plan_buffer;

typedef enum plan_step_kind {
  STEP_KERNEL,  /* launch kernels[what] */
  STEP_LIBRARY, /* a LIBRARY or data-dependent INDEX node: op, attr; operands and result are buffers */
  STEP_SCALAR, /* a host number: op of scalar slots `scalars` into slot `out`, with the errors of eager execution; a `fit` checks that
                   the number fits attr->dtype and copies it. A `cast` with nbuffers 1 reads its operand, one element, from a buffer */
  STEP_REGIONS, /* regions[what] */
  STEP_TAP      /* effect `what`, with the values that `in` names; one that reads a number writes it to slot `out` */
} plan_step_kind;
typedef struct plan_region plan_region;
typedef struct plan_step {
  uint8_t kind;
  uint8_t op;    /* op_id */
  uint32_t what; /* the number of the kernel or region */
  uint32_t node; /* graph node, for errors and --jit verify */
  const op_attr *attr;
  /* KERNEL: one for each l_buffer that is no scratch, in order; LIBRARY: operands, then the result; REGIONS: all that are read or written */
  const uint32_t *buffers;
  uint32_t nbuffers;
  const qn_dim *ints; /* args->ints */
  uint32_t nints;
  const uint32_t *scalars; /* scalar slots: args->scalars, or the operands of a STEP_SCALAR */
  uint32_t nscalars;
  uint32_t out;       /* scalar slot written by STEP_SCALAR, and by some STEP_TAP */
  const uint32_t *in; /* TAP: by operand, its scalar slot if it is a host number, else its buffer */
} plan_step;

typedef struct plan_output {
  /* BUFFER: a new array, plan buffer `index` in the shape of `type`. Several outputs that are one node have one buffer and are the same
   * array; the buffer's own `index` is the first of these outputs. INPUT: input `index` itself. SCALAR: scalar slot `index` */
  enum { OUT_BUFFER, OUT_INPUT, OUT_SCALAR } kind;
  uint32_t index;
  graph_type type;
  uint32_t
      may_be; /* of a BUFFER: 1 + the input that it may be instead, handed on by a branch (plan_region.pass); 0: none */
  /* Of a BUFFER in a region's plan: output k may be given the memory of input k, whose last reader comes before the writer or reads each
   * element before it is written. */
  bool over;
} plan_output;

/* A branch or loop. Operands and results are numbers of scalar slots if they are host numbers, else of buffers. */
struct plan_region {
  uint8_t kind;    /* graph_kind */
  bool sunk;       /* is it a loop that is a kernel? */
  bool spliced;    /* is it one that is made of the programs of its parts? */
  const char *why; /* if not, why not (a static text); NULL for branches */
  uint64_t over;   /* if it is: bit k is set if the result of carry k may lie in the memory of operand k (k < 64) */
  struct plan *parts[2]; /* NULL if it is sunk and not spliced */
  uint32_t nin, nmade;   /* how many operands, and how many results of the arms or the body, there are */
  uint32_t ncarries;     /* of a loop: how many of these are carries; the others are rows that are kept */
  int64_t slots;         /* of a loop: graph_loop_slots */
  /* how many results there are, including a loop's number of turns and distance of kept turns */
  uint32_t nout;
  const uint32_t *in;   /* by operand: slot or buffer */
  const uint32_t *proj; /* by result: the node that takes it; 0: none does */
  const uint32_t *out;  /* by result that is taken: slot or buffer */
  /* Of a branch, by result: the operand that an arm may hand on as this result, so that nothing is copied; it lives as long as the result.
   * 0: none (operand 0 is the predicate) */
  const uint32_t *pass;
};

enum { PLAN_FEW = 24, PLAN_SIZES = 64 };

typedef struct plan {
  schedule_target target; /* the machine that its kernels are scheduled for; they run on any */
  graph *graph;           /* owned: types, sites, dims; its inputs are the plan's, in this order */
  arena arena;
  plan_kernel *kernels; /* its own, then those of the plans of its regions */
  uint32_t nkernels;
  bool part;   /* is it the plan of a region? */
  bool within; /* is it the plan of a region, whose kernels the outer plan owns? */
  plan_region *regions;
  uint32_t nregions;
  plan_buffer *buffers;
  uint32_t nbuffers;
  plan_step *steps;
  uint32_t nsteps;
  plan_output *outputs;
  uint32_t noutputs;
  /* Of a region's plan, by input: is it updated in place? Then it is an output, too. Whoever runs the plan gives it memory that may be written to.
   * NULL of others */
  const bool *updates;
  uint32_t nscalars;            /* slots; the weak inputs come first, in input order */
  const qk_scalar *scalar_init; /* their values before the first step: constants; those of inputs are 0 */
  graph_type *scalar_types;     /* weak types of the slots */
  /* how many steps, those of regions included, are products by a device's library; with any, the plan is for a device only */
  uint32_t nproducts;
  bool here_only; /* is there a kernel that cannot be launched on a device (l_launches)? */
  uint32_t most_ints, most_buffers, most_scalars; /* the most that one step has */
  bool taps;                                      /* has it or one of its regions effects? */
  bool late;                                      /* has it buffers that are WHERE_LATE? */
  bool few;   /* are tables of PLAN_FEW and PLAN_SIZES entries large enough to run it? */
  bool fixed; /* `few`, and all sizes are plain numbers */
  /* `fixed`, all steps are kernels, which take their sizes and numbers as they are, and each output is an array of its own or an input */
  bool straight;
  bool known; /* do all sizes follow from those of the inputs? Then they are computed once, before the steps */
  qn_dim arena_bytes;
  int64_t peak_bytes,
      eager_peak_bytes; /* at the recorded sizes, without what only runs know: rows that loops keep, their parts' arenas */
  int64_t held_bytes; /* 1 + the most bytes that the last run took for these at once; 0: it has not run yet */
  /* how many steps loops of planning took, about linear in the graph; tests look at it */
  uint64_t work;
} plan;

/* Does a kernel's step store this buffer (which it may read as well)? */
static inline bool plan_step_stores(const plan *p, const plan_step *s, uint32_t buffer) {
  const l_program *l = s->kind == STEP_KERNEL ? p->kernels[s->what].program : NULL;
  uint32_t at = 0;
  for (uint32_t i = 0; l && i < l->nbuffers; i++)
    if (l->buffers[i].mode != BUF_SCRATCH && s->buffers[at++] == buffer && l->buffers[i].mode != BUF_IN) return true;
  return false;
}

#endif
