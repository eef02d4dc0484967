/* What schedule.c (the shapes of loop nests) and sched_build.c (addresses and values at a point of a nest) share. */
#ifndef JIT_KERNEL_SCHED_IMPL_H
#define JIT_KERNEL_SCHED_IMPL_H

#include "jit/kernel/costs.h"
#include "jit/kernel/schedule.h"

/* An address or bound, prepared outside the VEC in which it is used: base + stride * i plus what is not affine in i. */
typedef struct prepared_form {
  l_val base, stride; /* index values; a stride of 0 means that there is none */
  uint32_t n;         /* how many parts are not affine in the VEC's axis */
  struct prepared_part {
    uint32_t atom;
    l_val coef;       /* its coefficient, an index value */
    l_val coef_value; /* the same as a uniform i64 value, where that is needed */
    l_val by;         /* the divisor, a uniform i64 value */
    struct prepared_form *of;
  } * parts;
} prepared_form;

typedef struct prepared_node {
  prepared_form at;
  l_val lo, hi;     /* of its guard: bounds of the VEC's axis, index values; 0: none */
  l_val where;      /* a uniform bool; 0: none */
  uint32_t nranges; /* how many ranges need a vector comparison */
  struct prepared_range {
    prepared_form form;
    l_val extent; /* a uniform i64 value */
  } * ranges;
} prepared_node;

typedef struct nest_builder {
  const k_kernel *k;
  l_program *p;
  arena *arena; /* the program's, in which prepared forms lie */
  const char *why;
  bool body, phase_open; /* has the prelude ended? Has the PHASE of the next nest been emitted already? */
  struct {
    qn_dim dim;
    l_val value;
  } * dims; /* sizes whose index values have been made in the prelude */
  uint32_t ndims, dims_cap;
  qn_dim *ints;
  uint32_t nints, ints_cap;
  l_val zero, one;
  /* the index of each axis at the current point; of the VEC's axis that of the VEC's first element */
  l_val at[K_AXES_MAX];
  int vec; /* the axis of the VEC that is open or being prepared; -1: none */
  bool in_vec;
  l_val *value;             /* by K node: its value, if it has one that is visible at the current point */
  uint32_t *trail, ntrail;  /* the nodes that have one, in the order in which they got it */
  prepared_node **prepared; /* by K node: what is prepared for the VEC at hand */
  uint32_t *prepared_list, nprepared;
  l_val *acc; /* by K node (REDUCE, SCAN, DOT): its accumulator */
  struct kept {
    int64_t in; /* by K node: minus the local, or the scratch buffer, that a value is kept in; 0: none */
    l_val base, stride;
  } * kept;
  uint32_t *last_load, *first_store; /* by buffer: positions in the code */
  /* by buffer: does one of several instances store to it, while others may still load from it? */
  bool *lone_store;
} nest_builder;

bool nest_begin(nest_builder *nb, const k_kernel *k, l_program *p);
void nest_builder_free(nest_builder *nb);
bool nest_refuse(nest_builder *nb, const char *why); /* notes the reason and returns false */

l_val nest_dim(nest_builder *nb, qn_dim d); /* a size as an index value */
l_val nest_number(nest_builder *nb, int64_t n);
static inline l_val nest_index(nest_builder *nb, l_code c, l_val a, l_val b) { return l_index(nb->p, c, a, b); }
l_val nest_code(nest_builder *nb, l_instr i);
void nest_for(nest_builder *nb, l_val from, l_val to, l_val *loop_variable);

/* Around the building of a block: the mark before it is given to nest_end after it, which forgets the values made inside. */
static inline uint32_t nest_mark(const nest_builder *nb) { return nb->ntrail; }
void nest_forget(nest_builder *nb, uint32_t mark);
void nest_end(nest_builder *nb, uint32_t mark);
void nest_set_value(nest_builder *nb, k_val v, l_val value);

/* A form that does not vary along the VEC's axis, as an index value. */
l_val nest_form(nest_builder *nb, k_form f);
/* Prepares v for a VEC over nb->vec, before that is opened: makes the uniform values and addresses that v needs. */
bool nest_prepare(nest_builder *nb, k_val v);
bool nest_prepare_form(nest_builder *nb, k_form f, prepared_form *to);
bool nest_prepare_effect(nest_builder *nb, k_val effect);
/* Opens a VEC of n elements, whose first one is at index nb->at[nb->vec] of axis nb->vec. */
void nest_vec(nest_builder *nb, l_val n);
void nest_vec_end(nest_builder *nb, uint32_t mark);
/* Makes value v at the current point. Outside a VEC it must not vary along the VEC's axis; inside one it must have been prepared. */
l_val nest_value(nest_builder *nb, k_val v);
/* Makes a store, update or check at the current point. Inside a VEC it must have been prepared. */
bool nest_effect(nest_builder *nb, k_val effect);

/* The order of the accumulator for a REDUCE, SCAN or DOT node. */
l_order nest_order(const k_node *n);

/* ---- nests (the shapes are described in schedule.c) ---------------------------------------------------------------------- */

enum {
  SHORT_AXIS = 16,    /* a VEC over a shorter axis is slow */
  ROWS_FOR_VEC = 256, /* with so many short rows the VEC runs over the rows instead */
  TURN_TILE = 64
};

/* What things take on a machine, in nanoseconds of one of its processors (sched_price.c). */
typedef struct price_numbers {
  double launch_ns, phase_ns;  /* to start a kernel, and each phase of it */
  double pool_ns, pool_points; /* to start a phase that processors share, as they do from so many points on */
  double processors;           /* that share a phase at most, where the machine's number is not known, */
  double saturated;            /* and how many use all of the memory's bandwidth */
  double op_ns,
      fma_ns; /* a simple operation, and a multiplication in a product's tile, per element of a vector of 32-bit values */
  double scalar,
      scalar_more; /* how many times that a value costs that is computed by itself: the first operation, and others */
  double vector_bytes;    /* as much is computed together; 0: any number of elements */
  double left_over;       /* how many elements of a vector one costs that is left over at the end of a VEC */
  double turn;            /* simple operations for each element that goes through a turned tile */
  double gather, scatter; /* simple operations for each element that is loaded or stored by itself, */
  double apart;           /* where neighbours lie so many bytes apart or more: less if they are nearer */
  double guard;           /* for an access with a guard, beside its own; */
  double scan, chain;   /* for a running value, and for a reduction whose elements must be taken one after the other; */
  double many, running; /* for an element of one of many reductions beside each other, and of many running values */
  cost_target costs;    /* whose costs of primitives and functions count */
  double vec_ns, par_ns; /* to begin a VEC, and an instance, */
  double place_ns;       /* with its place along each axis but one; */
  double pass_ns;        /* and what each reduction along a VEC adds, since the next pass waits for it */
  double finish_ns;      /* to end a reduction along a VEC */
  double step_ns; /* an element of a VEC that goes one by one takes at least this, however few instances there are */
  double byte_ns, near_ns; /* a byte from memory, and from the cache behind the nearest; */
  double cache, near;      /* the bytes that do not come from there again */
} price_numbers;

/* The numbers by which schedules differ between machines: a CPU needs few long instances whose data stays in its caches, a GPU thousands of
 * short ones. */
typedef struct schedule_numbers {
  double trust; /* another candidate than the first must have so much less of its price to be taken */
  price_numbers price;
  /* bounds of an instance's elements of c in a plain nest, chosen so that `instances` are left */
  int64_t plain_least, plain_most;
  int64_t instances;
  int64_t split_row; /* rows with at least so many elements are split if there are few */
  int64_t split_rows;
  int64_t split_block; /* the least elements of a row's piece: whole blocks of ORDER_BLOCK */
  int64_t pieces;      /* about how many pieces a row is split into */
  /* how many partials an instance merges if there are more of them; 0: one instance merges all */
  int64_t merges;
  /* elements of an axis whose size is a symbol, where one instance would go through all of them: calls with larger sizes come, and take that much
   * longer. 0: as in the recorded call */
  int64_t grown;
  int64_t slab_work;      /* with fewer elements r is one slab */
  int64_t slabs;          /* about how many slabs r is cut into, */
  int64_t slab_instances; /* or more, where each has tiles of c, for about so many instances */
  int64_t merge_tile;     /* elements of c in an instance that reduces across rows */
  bool slab_tiles;        /* are slabs cut into tiles of c, too? */
  int64_t keep_row;       /* values of longer rows are computed again rather than kept */
  int keep_weight;        /* values that cost more than this are kept between passes */
  /* rows of a product's tile; columns and rows are doubled where that leaves dot_tiles tiles, then rows alone with dot_packs */
  int64_t dot_rows;
  int64_t dot_cols;
  int64_t dot_most_rows;
  int64_t dot_tiles;
  bool dot_packs; /* does each tile pack its columns of the second factor, so that taller ones pack them fewer times? */
  int64_t dot_least; /* the least results of a tile, if the product has so many */
  /* the least depth of a piece, where a product of fewer than dot_spread tiles is cut along its depth */
  int64_t dot_slab;
  int64_t dot_spread;
  bool layouts;  /* do phases get layouts of threads (layout.h)? */
  bool dot_room; /* must a tile's local have room for the sums of chunks? */
} schedule_numbers;
enum { NUMBERS_VM = TARGET_GPU + 1 };
extern const schedule_numbers schedule_numbers_of[]; /* by schedule_target; NUMBERS_VM: of a CPU's block VM */

/* A nest: some effects of a kernel and the loops that make them. */
typedef struct nest {
  const k_kernel *k;
  const schedule_numbers *by;
  double processors;    /* that share a phase at most */
  const k_val *effects; /* s.effects of them */
  bool
      first; /* is it the kernel's first one? Only that may have several phases, since sizes of scratch stand in the prelude */
  bool *needed; /* by node: does an effect need it? */
  k_mask axes;  /* that effects run over, and reductions */
  sched_nest s;
  bool alone; /* do few instances go through an axis that may grow, since they cannot be more? */
  bool
      grows; /* may the cut axis have any number of elements in calls to come? What a launch needs should not depend on it */
  double price;
  uint32_t candidates; /* how many there were */
  const char *why;     /* it has no loops, or these do not fit */
} nest;

/* Gives the nest of s->s.effects effects loops: those with the lowest price, or candidate `pick` - 1 (sched_choose.c). False with s->why. */
bool nest_choose(nest *s, int64_t pick);
/* Sets what follows from a nest's loops, which fit, and its price. */
void nest_settle(nest *s);
/* The text of a nest's loops, and from a text that goes on at *at. False: it is none (sched_text.c). */
void nest_print(const k_kernel *k, const sched_nest *n, text_buf *out);
bool nest_parse(const k_kernel *k, const char **at, sched_nest *n);
/* Can the nest be made by its loops? Else s->why says why not (sched_emit.c). */
bool nest_fits(nest *s);
/* Makes the nest's phases (sched_emit.c). */
bool nest_emit(nest_builder *nb, const nest *s, int64_t grain);
/* Sets seen[node] for all that v is computed from, but not for what reductions over axis `cut` are computed from. */
void nest_reach(const nest *s, int cut, k_val v, bool *seen);
/* Sets rank[node], which is all 0, to how many results of reductions over axis `cut` the node waits for, one after the other: its phase. */
void nest_ranks(const nest *s, int cut, uint8_t *rank);
/* What an element of the node's value costs, in simple operations. */
double nest_weight(const k_kernel *k, const k_node *n, cost_target target);
/* The axes of an update that occur plainly in its address: different points of them are different elements. */
k_mask nest_apart(const k_kernel *k, k_val update);
/* The nest's product, if it is one of plain loads that only elementwise work follows; else 0. */
k_val nest_product(const nest *s);
/* What the nest takes, in nanoseconds, without the launch (sched_price.c). */
double nest_price(const nest *s);
/* Builds the phases of a kernel that has loops, whatever its shape (sched_loop.c). */
bool nest_has_loops(const k_kernel *k);
bool nest_loops(nest_builder *nb, schedule_target target);
void k_each_operand(const k_kernel *k, k_val v, void (*visit)(void *ctx, k_val operand), void *ctx);
/* The load of a product's factor, perhaps behind a cast, if a TILE can read it; else 0. */
k_val nest_factor(const k_kernel *k, k_val v);
/* The digits of numbers of an axis (-1: of any) in a form, as l_tile has them: i / by mod most. Returns how many there are, or -1 if the form
 * has anything else besides axes, or too many. */
typedef struct nest_digit {
  qn_dim by, most /* 0: none */, step;
} nest_digit;
int nest_digits(const k_kernel *k, k_form f, int axis, nest_digit to[L_TILE_DIGITS]);

static inline k_mask axis_bit(int axis) { return axis < 0 ? 0 : (k_mask)1 << axis; }
static inline bool axis_in(k_mask m, int axis) { return axis >= 0 && (m >> axis & 1); }
static inline bool k_folds(const k_node *n) { return n->code == K_REDUCE || n->code == K_SCAN || n->code == K_DOT; }
/* Is a node a reduction over an axis, and no scan? */
static inline bool k_reduces(const k_node *n, int axis) { return k_folds(n) && n->code != K_SCAN && n->axis == axis; }
/* The axes of the operands of a REDUCE, SCAN or DOT. */
static inline k_mask operand_axes(const k_kernel *k, const k_node *n) {
  return k->nodes[n->a].axes | k->nodes[n->b].axes;
}
/* The axes that an effect or a reduction is made along. */
static inline k_mask job_axes(const k_kernel *k, k_val v) {
  const k_node *n = &k->nodes[v];
  return k_is_effect(n) ? n->axes : operand_axes(k, n) | axis_bit(n->axis);
}
static inline int64_t axis_hint(const k_kernel *k, int axis) {
  return axis < 0 ? 1 : dim_hint(k->dims, k->axes[axis].extent);
}
/* How many tiles of `width` an axis has in the recorded call. */
static inline int64_t tiles_hint(const k_kernel *k, int axis, int64_t width) {
  return (axis_hint(k, axis) + width - 1) / width;
}
static inline bool const_at_most(const k_kernel *k, int axis, int64_t most) {
  int64_t c;
  return axis < 0 || (dim_is_const(k->dims, k->axes[axis].extent, &c) && c <= most);
}

static inline const sched_loop *loop_of(const loop_list *l, loop_role role, int axis) {
  for (int i = 0; i < l->n; i++)
    if (l->at[i].role == role && l->at[i].axis == axis) return &l->at[i];
  return NULL;
}
/* The axis of a list's VEC, or -1. */
static inline int vec_axis(const loop_list *l) {
  return l->n && l->at[l->n - 1].role == LOOP_VEC ? l->at[l->n - 1].axis : -1;
}
/* The axis that is reduced and cut, so that results are partial; -1: none. */
int nest_cut(const nest *s);

#endif
