/* A plan: what a graph became after fusion, scheduling and memory planning. Immutable but for `code` of its kernels, which
 * a compiler fills in beside execution. Made without a VM (worker threads make plans), run by a device (jit/cpu/run.h).
 *
 *   graph --fuse--> K kernels --schedule--> L programs --plan--> steps over buffers
 *
 * Buffers are inputs, constants, outputs (allocated for each call, or an alias of an input), or places in one arena whose
 * size is an expression over the input sizes. All buffers are row-major and contiguous; views inside the graph have become
 * address arithmetic. Peak (live inputs + arena + outputs) is at most the simulated peak of running the graph node by node.
 */
#ifndef JIT_KERNEL_PLAN_H
#define JIT_KERNEL_PLAN_H

#include "jit/graph/graph.h"
#include "jit/kernel/l.h"

typedef struct plan_kernel {
  l_program *program;
  uint64_t hash;               /* l_hash */
  uint32_t nphases;
  _Atomic(const qk_phase *) code; /* compiled phases, or NULL: the block VM runs `program` */
  void *vm_code;               /* what the block VM made of `program` (jit/cpu), released by it */
  uint32_t node_first, node_last; /* for people: which graph nodes it computes */
  uint32_t nops;
  qn_dim bytes;                /* compulsory bytes: inputs read once, outputs written once */
  const uint32_t *nodes;       /* the graph nodes, nops of them */
} plan_kernel;

typedef enum plan_where { WHERE_INPUT, WHERE_CONST, WHERE_OUTPUT, WHERE_ARENA } plan_where;
typedef struct plan_buffer {
  uint8_t where;    /* plan_where */
  uint8_t dtype;
  uint32_t index;   /* input, output number */
  const void *data; /* of a constant */
  qn_dim elements;
  qn_dim offset;    /* in the arena, bytes, a multiple of 64 */
} plan_buffer;

typedef enum plan_step_kind {
  STEP_KERNEL,  /* launch kernels[what] */
  STEP_LIBRARY, /* a LIBRARY or data-dependent INDEX node: op, attr; operands and result are buffers */
  STEP_SCALAR   /* a weak host scalar computed from others: op on scalar slots `args` into slot `out` */
} plan_step_kind;
typedef struct plan_step {
  uint8_t kind;
  uint8_t op;             /* op_id */
  uint32_t what;          /* kernel number */
  uint32_t node;          /* graph node, for errors and --jit verify */
  const op_attr *attr;
  const uint32_t *buffers; /* one per l_buffer that is no scratch, in order; LIBRARY: operands, then the result */
  uint32_t nbuffers;
  const qn_dim *ints;      /* args->ints */
  uint32_t nints;
  const uint32_t *scalars; /* scalar slots: args->scalars, or the operands of a STEP_SCALAR */
  uint32_t nscalars;
  uint32_t out;            /* scalar slot written by STEP_SCALAR */
} plan_step;

typedef struct plan_output {
  enum { OUT_BUFFER, OUT_INPUT, OUT_SCALAR } kind; /* a new array, input `index` itself, or scalar slot `index` */
  uint32_t index;
  graph_type type;
} plan_output;

typedef struct plan {
  graph *graph; /* owned: types, places, dims; its input order is the plan's */
  arena arena;
  plan_kernel *kernels; uint32_t nkernels;
  plan_buffer *buffers; uint32_t nbuffers;
  plan_step *steps; uint32_t nsteps;
  plan_output *outputs; uint32_t noutputs;
  uint32_t nscalars;        /* slots; the weak inputs come first, in input order */
  graph_type *scalar_types; /* weak types of the slots */
  qn_dim arena_bytes;
  int64_t peak_bytes, eager_peak_bytes; /* at the recorded sizes */
} plan;

/* Fuses, schedules and plans a verified, simplified graph (taken over, also on failure). `tune` is a copy of the VM's
 * tunables (vm.h). NULL when memory is short, or with `why` filled in for a defect. */
QN_MUST_CHECK plan *plan_make(graph *g, const int64_t *tune, char *why, size_t size);
void plan_free(plan *p);
/* Fusion decisions as text, for QUERN_LOG=fusion and explain. */
void plan_print(const plan *p, text_buf *out);

/* The one-op kernel of eager dispatch: a program for op over operands of these strict types with symbolic sizes and strides.
 * `classes[i]` says per operand how it is laid out; the caller collapses axes first (jit/cpu/eager.c). */
#endif
