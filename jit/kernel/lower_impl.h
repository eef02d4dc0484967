/* What lower.c (coordinates, views, reductions) and lower_ops.c (elementwise arithmetic, checks, random numbers) share. */
#ifndef JIT_KERNEL_LOWER_IMPL_H
#define JIT_KERNEL_LOWER_IMPL_H

#include "jit/kernel/lower.h"

/* A node's value that was asked for at coordinates `at` where `guard` holds, and the answer; 0 while it is being computed. */
typedef struct lower_demand {
  uint32_t node;
  k_guard guard;
  k_val value;
  k_form at[ARRAY_MAX_RANK];
} lower_demand;

/* A node that the kernel computes or reads. */
typedef struct touched {
  uint32_t node;
  int buffer; /* number of its buffer, or -1 */
} touched;

typedef struct lowering {
  const lower_request *r;
  graph *g;
  k_kernel *k;
  const char *why;
  int depth;
  touched *nodes; /* r->scratch[node] - 1 indexes it */
  uint32_t n, cap;
  struct axis_class *classes; /* ARRAY_MAX_RANK per touched inline node */
  uint32_t nclasses;
  lower_demand *demands;
  uint32_t ndemands, demands_cap, answered;
  intern_table numbers; /* of demands by content */
  arena memory;         /* owns all of these lists */
} lowering;

/* The value of node n at coordinates `at` (one per axis), where the guard holds. 0 with l->why set. */
k_val lower_value(lowering *l, uint32_t n, const k_form *at, k_guard guard);
k_val lower_refuse(lowering *l, const char *why); /* 0 */

/* Converts a value of f16 or bf16 to f32; others are returned as they are. */
k_val lower_widen(lowering *l, k_val v);
/* The value of a POINTWISE op of operands that have its compute dtype; `type` is the result's dtype. */
k_val lower_pointwise(lowering *l, op_id op, qn_dtype type, const k_val *in, int nin);
/* The condition (a bool value) under which a fallible POINTWISE op of these operands succeeds. Sets *shows to the value that the error shows
 * (0: none), and the error and detail of *check. */
k_val lower_succeeds(lowering *l, op_id op, qn_dtype type, const k_val *in, k_val *shows, l_check *check);
/* Element number `element` of a RANDOM op; keys[0..2] are its two key words and the number of the draw. `small`: element < 2^32. */
k_val lower_random(lowering *l, op_id op, qn_dtype type, k_form element, bool small, const k_val *keys);
/* Kernel primitive of a REDUCE or SCAN op. */
kop_id lower_combiner(op_id op);
/* An index as it counts from 0, where negative ones count from the end. Sets *ok to the condition that it is in range. */
k_val lower_index(lowering *l, k_val index, qn_dim size, k_val *ok);

#endif
