/* What is certain of sizes (dim.h) that are made of numbers with known ends, such as the number of a loop that counts.
 *
 * A proof has a table of its own. Of each symbol in it somebody says between which ends it lies: sizes made of symbols with a smaller
 * index, so that symbols are done away with one after the other, the last one first. In `n - (i + 3)`, where i ends with n - 3, an i that
 * is subtracted becomes n - 3, and 0 is left.
 */
#ifndef JIT_GRAPH_DIM_BOUNDS_H
#define JIT_GRAPH_DIM_BOUNDS_H

#include "jit/graph/dim.h"

typedef enum bound_kind {
  BOUND_UNKNOWN, /* nothing is known of the symbol, but `first` if `has_first` */
  BOUND_SIZE,    /* it is never below `first`, a number, and facts about it can be asked for */
  BOUND_ENDS     /* it lies from `first` to `last` */
} bound_kind;

typedef struct dim_bound {
  uint8_t kind; /* bound_kind */
  bool has_first;
  qn_dim first, last;
} dim_bound;

enum { DIM_DEMANDS = 4 };

typedef struct dim_proof {
  dim_table t;
  dim_bound *bounds; /* by expression of t; of symbols */
  uint32_t cap;
  int left;                    /* steps that it may take yet */
  int each, all;               /* the same: each proof that begins, and all that are made with it together */
  qn_dim demands[DIM_DEMANDS]; /* of dim_demands */
  int ndemands;
} dim_proof;

/* Begins a proof whose memory comes from `a`. */
void dim_proof_init(dim_proof *p, arena *a);
/* Says what is known of a symbol of p's table, which is new to it. Nothing where memory is short. */
void dim_proof_bound(dim_proof *p, qn_dim symbol, dim_bound b);
/* Is d, a size of p's table, certain not to be negative? */
bool dim_proves(dim_proof *p, qn_dim d);
/* Where dim_proves says no: p->demands, sizes made of symbols of BOUND_SIZE alone, must not be negative, so that d is not either. False: there are no
 * such sizes, or one is negative by the hints. */
bool dim_demands(dim_proof *p, qn_dim d);

#endif
