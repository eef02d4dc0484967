/* The state of a running plan, shared by plan_run.c, which runs plans, and region_run.c, which runs the plans that are arms of an `if` or parts of
 * a loop. */
#ifndef JIT_RUN_PLAN_FRAME_H
#define JIT_RUN_PLAN_FRAME_H

#include "jit/kernel/plan.h"
#include "jit/run/device.h"
#include "jit/run/plan_taps.h"

/* Bytes that a running plan holds besides its tables, arrays and arena; the most that it has held at once. */
typedef struct frame_held {
  int64_t now, most;
} frame_held;

typedef struct plan_frame {
  qn_vm *vm;
  plan *p;
  qn_array *const *inputs;
  qn_value *outputs;
  int64_t *symbols; /* per dim expression: the value of a symbol; if the plan is `known`, of every expression */
  qk_scalar *slots;
  void **buffers;    /* per plan buffer */
  qn_array **arrays; /* per output: its new array */
  size_t *late;      /* per plan buffer that is WHERE_LATE: its bytes, 0 while it has none */
  int64_t *ints;
  void **step_buffers;
  qk_scalar *step_scalars;
  int device;
  bool refused; /* by the device; nothing is raised */
  char *slab;   /* the arena, if it is not the VM's slab but a device's memory, or the frame's own */
  size_t slab_bytes;
  device_plan *there;
  bool part;      /* the plan of a region runs, so that its inputs and outputs are memory of the plan around it */
  uint64_t sizes; /* counts how often symbols have changed; never 0 */
  const int64_t *const *step_ints; /* by step: the values of its ints; NULL: they are worked out when it runs */
  struct region_state *
      *regions;     /* by region of the plan: what region_run.c keeps of it; NULL before the first one runs */
  plan_taps *taps;  /* NULL: effects are left out */
  plan_taps *brief; /* plan_taps.brief; NULL: it is not set */
  frame_held *held; /* what frame_take has given to this frame and those of its regions */
} plan_frame;

/* The value of a size expression of the frame's plan. */
static inline int64_t frame_size(const plan_frame *f, qn_dim d) {
  return d >= 0 ? d : f->p->known ? f->symbols[~d] : dim_eval(&f->p->graph->dims, d, f->symbols);
}

/* For tables in one piece of memory: makes room for n items of `size` bytes behind the *at bytes that are taken already. Returns where they begin. */
size_t frame_part(size_t *at, size_t n, size_t size);

/* The bytes of the frame's tables (symbols, slots, buffers ...). If `memory` is not NULL it has so many bytes, and the tables are put there. */
size_t frame_tables(plan_frame *f, char *memory);

/* Reads the values of the dim symbols from the inputs; `scalars` are the values of weak inputs. False with an error raised. */
bool frame_symbols(plan_frame *f, const qk_scalar *scalars);

/* A node's result has this shape: sets the symbols that stand for its sizes. */
void frame_tell(plan_frame *f, uint32_t node, int rank, const int64_t *shape);

/* Sets the address of each buffer; the arena begins at `slab`. Buffers that are WHERE_LATE have none yet. */
void frame_buffers(plan_frame *f, char *slab);

/* Allocates buffer b, if that is WHERE_LATE and has no memory: its size must be known by now. frame_late_free frees all such buffers. */
bool frame_late_make(plan_frame *f, uint32_t b);
void frame_late_free(plan_frame *f);

/* An array header over memory that belongs to somebody else. It is never freed, and valid as long as it and the memory are. */
typedef struct frame_view {
  qn_array a;
  qn_storage s;
} frame_view;

/* Makes `v` an array over the memory at `at` on a device. The sizes in its type are expressions of f's plan. */
void frame_array(const plan_frame *f, frame_view *v, int device, void *at, const graph_type *t);

/* Gives the error that is raised, if it has none yet, the place of a node, with the calls through which that was reached. */
void frame_raise_site(plan_frame *f, uint32_t node);

/* Frees what is kept of regions. */
void frame_regions_free(plan_frame *f);

/* Memory where the plan runs (frame_memory.c): NULL and false with an error raised. Reading copies to the host's memory and waits for what makes the
 * bytes; writing copies from there. */
char *frame_take(plan_frame *f, size_t bytes);
void frame_give(plan_frame *f, void *at, size_t bytes);
QN_MUST_CHECK bool frame_copy(plan_frame *f, void *to, const void *from, size_t bytes);
QN_MUST_CHECK bool frame_read(plan_frame *f, void *to, const void *from, size_t bytes);
QN_MUST_CHECK bool frame_write(plan_frame *f, void *to, const void *from, size_t bytes);
/* Copies rows of `bytes` bytes, which begin `step` bytes apart, to other memory, one behind the other. */
QN_MUST_CHECK bool frame_copy_rows(plan_frame *f, void *to, const void *from, size_t rows, size_t bytes, size_t step);

/* Runs all steps. False with an error raised, or refused by the device. */
bool frame_steps(plan_frame *f);
/* On a device: waits for the checks of the plan's kernels so far. If a step has failed (`ok` is false), a check that failed before it is the error
 * instead. */
bool frame_checks(plan_frame *f, bool ok);
/* Runs a step that is a region. False with an error raised, or refused by the device. */
bool region_step(plan_frame *f, const plan_step *s);

/* A check of a loop that is a kernel has failed: runs the loop, node `node` and region number `region` of the plan, turn by turn, which
 * raises the error. */
void region_raise(plan_frame *f, uint32_t region, uint32_t node);

#endif
