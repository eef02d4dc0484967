/* Gradients (differentiate.c), regions with a derivative of their own (regions.c), and trees that must look like another one
 * (tree_match.c). */
#ifndef JIT_TRACE_GRADIENTS_H
#define JIT_TRACE_GRADIENTS_H

#include "jit/trace/recording.h"

/* How a region with a rule is differentiated: shared by the copies of the region. */
typedef struct region_rule {
  uint32_t refs;
  /* of the VM's rules; copies have it, too, so that equal graphs can be told (an address may come again) */
  uint64_t number;
  qn_value backward;  /* the function */
  tpl_list cts, args; /* its arguments: outputs are numbers in the region's outs and args */
  tpl_list like;      /* the float leaves of the arguments: numbers in args */
  uint32_t lanes;     /* depth of the vmap that backward has been made for last; 0: none */
  uint32_t levels;    /* how many vmaps it has been made for: leading axes of what it takes and returns */
  bool settled;       /* it is a specialization's (regions_settle): not to be called */
} region_rule;
/* An empty rule with one reference; NULL with an error raised. */
QN_MUST_CHECK region_rule *region_rule_new(qn_vm *vm);
void region_rule_release(qn_vm *vm, region_rule *rule);
/* A rule that others have, too, stays as it is there: the region gets one of its own, which may be called. */
QN_MUST_CHECK bool region_own_rule(qn_vm *vm, graph_region *x);
/* Regions of `from`, the list of g, that begin at node `mark` or later and whose ops have copies, are added to `to` as regions of the
 * copies. map[i]: the copy of node i, or 0; that of an input which came up in a region may stand anywhere. `ends` (may be NULL): where each
 * region's copy ends, if that is beyond its nodes. False with an error raised. */
QN_MUST_CHECK bool regions_copy(qn_vm *vm, const graph *g, const region_list *from, uint32_t mark, region_list *to,
                                const uint32_t *map, const uint32_t *ends);
/* The regions belong to a specialization of code at `home` (as in template_settle). */
QN_MUST_CHECK bool regions_settle(qn_vm *vm, region_list *l, const void *home);
/* graph_rules.apply, for regions with a rule: calls backward(cotangent, args...) in the recording `ctx`. */
QN_MUST_CHECK bool region_apply_rule(void *ctx, const graph_region *x, const uint32_t *cotangents, uint32_t *grads,
                                     op_refusal *why);
/* The call of a function wrapped in checkpoint or custom_grad, and that of one whose derivative is asked for (grad and its like). Owned, or
 * the error value. */
QN_MUST_CHECK qn_value region_call(struct recording *r, const rec_call_site *site);
QN_MUST_CHECK qn_value differentiate_call(struct recording *r, const rec_call_site *site);

/* ---- float leaves of a tree ---- */

/* The differentiated leaves of a call, in tree order. */
typedef struct leaves {
  struct recording *r;
  const char *name;        /* of the transform */
  uint32_t *nodes, *grads; /* alias nodes; what came of them (0: nothing) */
  uint32_t n, cap, grads_cap, at;
} leaves;
void leaves_free(leaves *l);
void leaves_drop(qn_vm *vm, void *l); /* leaves_free, for vm_own */
/* For tree_rebuild, with `leaves` as ctx: float leaves become alias nodes, which are added; others stay. */
qn_value leaves_alias(void *ctx, qn_value v);
/* For tree_rebuild, with the recording as ctx: float leaves stay, and each has a node then; others become nil. */
qn_value leaves_keep(void *ctx, qn_value v);

/* Leaves of a tree as values, borrowed, and the number of their elements. For tree_each: leaf_list_add takes all of them,
 * leaf_list_float those that are floats. */
typedef struct leaf_list {
  qn_vm *vm;
  qn_value *items;
  uint32_t n, cap;
  int64_t elements;
} leaf_list;
QN_MUST_CHECK bool leaf_list_add(void *ctx, qn_value v);
QN_MUST_CHECK bool leaf_list_float(void *ctx, qn_value v);
void leaf_list_drop(qn_vm *vm, void *list); /* frees its memory; for vm_own, too */

/* ---- trees that match ---- */

/* Is `given` a tree like `like`, with the same dtype and shape at every float leaf? nil stands for zeros, of a subtree too; a number
 * may stand for an array of rank 0; what is at other leaves does not matter. `lanes`: how many vmaps `given` was made in, where host floats that differ are f64 arrays, and each
 * lane has given something for those that do not. Calls `leaf` for the float leaves of `like` in order with
 * what is there: an array, a float, or nil. False with an error raised that says at which path: `what` names the tree ("vjp: the
 * cotangent"), `of` what it belongs to ("the result"). */
QN_MUST_CHECK bool tree_match_walk(qn_vm *vm, const char *what, const char *of, qn_value like, qn_value given,
                                   int lanes, bool (*leaf)(void *ctx, qn_value like, qn_value given), void *ctx);
bool is_float_leaf(qn_value v);
/* A tree like v that has arrays without data in the place of float arrays, 0.0 for floats, and nil for all other leaves. Owned. */
QN_MUST_CHECK qn_value tree_match_prototype(qn_vm *vm, qn_value v);
/* Zeros of a prototype's or leaf's dtype and shape. */
QN_MUST_CHECK qn_value tree_match_zeros(qn_vm *vm, qn_value like);

#endif
