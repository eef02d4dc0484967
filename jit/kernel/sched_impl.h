/* What schedule.c (the shapes of loop nests) and sched_build.c (addresses and values at a point of a nest) share. */
#ifndef JIT_KERNEL_SCHED_IMPL_H
#define JIT_KERNEL_SCHED_IMPL_H

#include "jit/kernel/schedule.h"

/* An address or bound, prepared outside the VEC in which it is used: base + stride * i plus what is not affine in i. */
typedef struct prepared_form {
  l_val base, stride; /* index values; stride 0: none */
  uint32_t n;         /* parts that are not affine in the VEC's axis */
  struct prepared_part {
    uint32_t atom;
    l_val coef;       /* index */
    l_val coef_value; /* uniform i64, where it is needed */
    l_val by;         /* uniform i64: the divisor */
    struct prepared_form *of;
  } * parts;
} prepared_form;

typedef struct prepared_node {
  prepared_form at;
  l_val lo, hi;     /* index values, 0: none */
  l_val where;      /* uniform bool, 0: none */
  uint32_t nranges; /* ranges that need a vector comparison */
  struct prepared_range {
    prepared_form form;
    l_val extent; /* uniform i64 */
  } * ranges;
} prepared_node;

typedef struct nest_builder {
  const k_kernel *k;
  l_program *p;
  arena *arena; /* for preparations: the program's */
  const char *why;
  bool body, phase_open; /* past the prelude; a PHASE stands already where the next one begins */
  struct {
    qn_dim dim;
    l_val value;
  } * dims; /* made in the prelude */
  uint32_t ndims, dims_cap;
  qn_dim *ints;
  uint32_t nints, ints_cap;
  l_val zero, one;
  l_val at[K_AXES_MAX]; /* the index of each axis at this point; of the VEC's axis: where the VEC starts */
  int vec;              /* axis of the VEC that is open or being prepared; -1: none */
  bool in_vec;
  l_val *value;             /* by K node: its value, if it is visible here */
  uint32_t *trail, ntrail;  /* nodes in the order in which they got one */
  prepared_node **prepared; /* by K node, for the VEC at hand */
  uint32_t *prepared_list, nprepared;
  l_val *acc; /* by K node (REDUCE, SCAN, DOT): its accumulator */
  struct kept {
    l_val local, base, stride;
  } * kept;                          /* by K node: where a value lies in a local; base and stride per VEC */
  uint32_t *last_load, *first_store; /* by buffer: positions in the code */
  bool *lone_store;                  /* by buffer: stored by one of several instances, while others may still load */
} nest_builder;

bool nest_begin(nest_builder *nb, const k_kernel *k, l_program *p);
void nest_builder_free(nest_builder *nb);
bool nest_refuse(nest_builder *nb, const char *why); /* false */

l_val nest_dim(nest_builder *nb, qn_dim d); /* an index */
l_val nest_number(nest_builder *nb, int64_t n);
static inline l_val nest_index(nest_builder *nb, l_code c, l_val a, l_val b) { return l_index(nb->p, c, a, b); }
l_val nest_code(nest_builder *nb, l_instr i);
void nest_for(nest_builder *nb, l_val from, l_val to, l_val *loop_variable);

/* Blocks: mark, build the block's body, then end it: values made inside are forgotten. */
static inline uint32_t nest_mark(const nest_builder *nb) { return nb->ntrail; }
void nest_forget(nest_builder *nb, uint32_t mark);
void nest_end(nest_builder *nb, uint32_t mark);
void nest_set_value(nest_builder *nb, k_val v, l_val value);

/* A form without the VEC's axis, as an index. */
l_val nest_form(nest_builder *nb, k_form f);
/* Before a VEC over nb->vec: makes the uniform values that v needs and prepares addresses. */
bool nest_prepare(nest_builder *nb, k_val v);
bool nest_prepare_form(nest_builder *nb, k_form f, prepared_form *to);
bool nest_prepare_effect(nest_builder *nb, k_val effect);
/* VEC from 0 to n; values of nb->vec start at nb->at[nb->vec]. */
void nest_vec(nest_builder *nb, l_val n);
void nest_vec_end(nest_builder *nb, uint32_t mark);
/* A value here: uniform outside a VEC (v must lack the VEC's axis), inside one anything that was prepared. */
l_val nest_value(nest_builder *nb, k_val v);
/* A store, update or check here. Inside a VEC it must have been prepared. */
bool nest_effect(nest_builder *nb, k_val effect);

/* Accumulators' order for a REDUCE, SCAN or DOT node. */
l_order nest_order(const k_node *n);

/* ---- nests (the shapes are described in schedule.c) ---------------------------------------------------------------------- */

enum {
  SHORT_AXIS = 16,    /* an axis shorter than this makes no good VEC */
  ROWS_FOR_VEC = 256, /* so many rows that are short make a VEC */
  TURN_TILE = 64
};

/* What differs between machines: a CPU wants few long instances whose data stays in its caches, a GPU thousands of short ones. */
typedef struct schedule_numbers {
  /* what the estimate knows of it, in nanoseconds */
  double launch_ns; /* to start a kernel */
  double phase_ns;  /* and each phase of it */
  double pool_ns;   /* more for a phase that threads share, which those over pool_points points do */
  int64_t pool_points;
  double node_ns; /* an instance takes at least this for each value, however many run beside each other */
  int64_t plain_least, plain_most; /* elements of c in an instance of a plain nest: as many as leave `instances` */
  int64_t instances;
  int64_t split_row; /* elements of a row from which on few rows are split */
  int64_t split_rows;
  int64_t split_block; /* elements of a row's piece at least: whole blocks of ORDER_BLOCK */
  int64_t pieces;      /* of a row, about so many */
  int64_t merges;      /* partials that an instance merges where there are more of them; 0: one instance merges all */
  int64_t slab_work;   /* elements below which r is one slab */
  int64_t slabs;       /* about so many */
  int64_t merge_tile;  /* elements of c in an instance that reduces across rows */
  bool slab_tiles;     /* do slabs have tiles of c, too? */
  int64_t keep_row;    /* longer rows are computed again rather than kept */
  int keep_weight;     /* what weighs more is kept */
  int64_t dot_rows;    /* a tile; with its columns doubled, then its rows, where that leaves dot_tiles of them */
  int64_t dot_cols;
  int64_t dot_most_rows;
  int64_t dot_tiles;
  int64_t dot_least; /* results of a tile, where there are so many */
  /* a product of fewer than dot_spread tiles is cut along its depth, into pieces that are no shorter */
  int64_t dot_slab;
  int64_t dot_spread;
  bool dot_room; /* do sums of chunks lie behind the tile? */
} schedule_numbers;
extern const schedule_numbers schedule_numbers_of[]; /* by schedule_target */

typedef enum shape {
  SHAPE_PLAIN,
  SHAPE_TURNED,
  SHAPE_ROWS,
  SHAPE_SPLIT,
  SHAPE_SLABS,
  SHAPE_PRODUCT,
  SHAPE_UPDATE
} shape;

typedef enum job_kind { JOB_EFFECT, JOB_REDUCE_C, JOB_REDUCE_R } job_kind;
typedef struct job {
  uint8_t kind, stage;
  bool along_c; /* its operands vary along c */
  k_val v;
} job;

typedef struct job_list {
  job *jobs;
  uint32_t n;
  int stages;
} job_list;

typedef struct nest {
  const k_kernel *k;
  const schedule_numbers *by;
  const k_val *effects;
  uint32_t n;
  shape shape;
  k_mask axes, par;
  int r, c;
  int turned; /* the axis that loads of a turned nest run along */
  int inner;  /* an axis of a plain nest looped over around the VEC; -1: none */
  bool one_slab, outer_scan;
  k_val dot;               /* of a product */
  int m, n_axis;           /* its axes; -1: none */
  int64_t tm, tn;          /* its tiles */
  int64_t dot_slab;        /* elements of depth in an instance; 0: all */
  bool *in_rows, *in_rest; /* by node: needed in each row, by what follows */
  bool *needed, *after;    /* by node; after: depends on a reduction over r */
  uint8_t *stage;          /* by node: passes over c before it is known */
  uint8_t *keep;           /* by node: 1 + the pass that keeps it */
  job_list first, second;  /* what is done per row, and after r is reduced */
  const char *why;
} nest;

/* Builds a nest's phases (sched_nest.c). */
bool nest_build(nest_builder *nb, nest *s, int64_t grain);
/* Which values of these passes are kept: fills in s->keep. */
bool nest_plan_passes(nest *s, const job_list *l);
bool nest_load_is_turned(const nest *s, k_val v);
/* Marks v and all that it is made from in seen, by node, but not what a reduction over r is made from. */
void nest_reach(const nest *s, k_val v, bool *seen);
/* The shortest slab of r: whole chains of everything that is reduced over it. */
int64_t nest_slab(const nest *s);
void k_each_operand(const k_kernel *k, k_val v, void (*visit)(void *ctx, k_val operand), void *ctx);

static inline k_mask axis_bit(int axis) { return axis < 0 ? 0 : (k_mask)1 << axis; }
static inline bool axis_in(k_mask m, int axis) { return axis >= 0 && (m >> axis & 1); }
static inline bool k_folds(const k_node *n) { return n->code == K_REDUCE || n->code == K_SCAN || n->code == K_DOT; }
/* Does a node give the results of a reduction over r, not running values? */
static inline bool nest_reduces(const nest *s, const k_node *n) {
  return k_folds(n) && n->code != K_SCAN && n->axis == s->r;
}
/* The axes that a fold's operands have. */
static inline k_mask operand_axes(const k_kernel *k, const k_node *n) {
  return k->nodes[n->a].axes | k->nodes[n->b].axes;
}
static inline int64_t axis_hint(const k_kernel *k, int axis) {
  return axis < 0 ? 1 : dim_hint(k->dims, k->axes[axis].extent);
}
/* How many tiles an axis has in the recorded call. */
static inline int64_t tiles_hint(const k_kernel *k, int axis, int64_t width) {
  return (axis_hint(k, axis) + width - 1) / width;
}
static inline bool const_at_most(const k_kernel *k, int axis, int64_t most) {
  int64_t c;
  return axis < 0 || (dim_is_const(k->dims, k->axes[axis].extent, &c) && c <= most);
}

#endif
