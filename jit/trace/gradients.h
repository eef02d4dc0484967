/* Gradients (differentiate.c), regions of a graph with a derivative of their own (regions.c), trees that must look like others
 * (tree_match.c). */
#ifndef JIT_TRACE_GRADIENTS_H
#define JIT_TRACE_GRADIENTS_H

#include "jit/trace/recording.h"

/* How the region of a custom_grad call is differentiated: by a function of the program. Shared by the copies of the region (counted). */
typedef struct region_rule {
  uint32_t refs;
  /* counted by the VM. Copies of the rule have the same number, so that equal graphs can be recognised (an address could be reused) */
  uint64_t number;
  qn_value backward; /* the program's backward function */
  /* what it is called on: the cotangent and the call's arguments. Outputs of these templates are numbers in the region's outs and args */
  tpl_list cts, args;
  /* the float leaves of the arguments, as numbers in the region's args: what the function must give gradients for */
  tpl_list like;
  uint32_t lanes; /* depth of the innermost vmap that `backward` has been wrapped for; 0: none */
  /* how many vmaps it has been wrapped for: so many leading axes has each array that it takes and gives */
  uint32_t levels;
  bool settled; /* it belongs to a specialization (regions_settle) and must not be called */
} region_rule;
/* An empty rule with one reference; NULL with an error raised. */
QN_MUST_CHECK region_rule *region_rule_new(qn_vm *vm);
void region_rule_release(qn_vm *vm, region_rule *rule);
/* Makes sure that the region has a rule that nothing else shares and that can be called: copies it if need be. False with an error raised. */
QN_MUST_CHECK bool region_own_rule(qn_vm *vm, graph_region *x);
/* Copies regions along with nodes: those of `from`, the list of graph g, that begin at node `mark` or later and whose nodes have copies are
 * added to `to`. map[i] is the copy of node i, or 0; copies of inputs may stand anywhere. `ends` (may be NULL) says for each region where
 * its copy ends, if that is beyond the copies of its nodes. False with an error raised. */
QN_MUST_CHECK bool regions_copy(qn_vm *vm, const graph *g, const region_list *from, uint32_t mark, region_list *to,
                                const uint32_t *map, const uint32_t *ends);
/* The regions now belong to a specialization of the code at `home`, as templates do by template_settle. False with an error raised. */
QN_MUST_CHECK bool regions_settle(qn_vm *vm, region_list *l, const void *home);
/* graph_rules.apply for regions with a rule: calls backward(cotangent, args...) in the recording `ctx`. */
QN_MUST_CHECK bool region_apply_rule(void *ctx, const graph_region *x, const uint32_t *cotangents, uint32_t *grads,
                                     op_refusal *why);
/* The call of a function wrapped in checkpoint or custom_grad, inside the recording r. Owned, or the error value. */
QN_MUST_CHECK qn_value region_call(struct recording *r, const rec_call_site *site);
/* The call of a function wrapped in a gradient transform (grad, value_and_grad, vjp, jvp, jacobian, hessian), as region_call. */
QN_MUST_CHECK qn_value differentiate_call(struct recording *r, const rec_call_site *site);

/* ---- float leaves of a tree ---- */

/* Leaves of trees that are differentiated, in tree order: their nodes, and what the backward pass gave for them. */
typedef struct leaves {
  struct recording *r;
  const char *name;        /* the transform, for messages */
  uint32_t *nodes, *grads; /* their nodes (for arguments: alias nodes); the nodes of their gradients, 0: none */
  uint32_t n, cap, grads_cap, at;
  bool controls; /* branches, loops or try bodies were run by what is differentiated */
} leaves;
void leaves_free(leaves *l);
void leaves_drop(qn_vm *vm, void *l); /* leaves_free in the form that vm_own needs */
/* For tree_rebuild with `leaves` as ctx: float leaves are replaced by alias nodes and added to `leaves`; other leaves stay. */
qn_value leaves_alias(void *ctx, qn_value v);
/* For tree_rebuild with the recording as ctx: float leaves stay, but get a node if they have none; other leaves become nil. */
qn_value leaves_keep(void *ctx, qn_value v);

/* Leaves of a tree as values (borrowed). For tree_each: leaf_list_add takes all leaves,
 * leaf_list_float only those that are floats. */
typedef struct leaf_list {
  qn_vm *vm;
  qn_value *items;
  uint32_t n, cap;
} leaf_list;
QN_MUST_CHECK bool leaf_list_add(void *ctx, qn_value v);
QN_MUST_CHECK bool leaf_list_float(void *ctx, qn_value v);
void leaf_list_drop(qn_vm *vm, void *list); /* frees its memory */

/* ---- trees that match ---- */

/* Does `given` look like the tree `like`, with the same dtype and shape at every float leaf? nil stands for zeros, also in the place of a
 * subtree; a number may stand for an array of rank 0; what stands at other leaves does not matter. `lanes`: in how many vmaps `given` was
 * made: its arrays have so many more axes, host floats may be f64 arrays with only these, and what is given for a float that all lanes
 * share is summed over the lanes. Calls `leaf` for the float leaves of `like` in order, with what is given there: an array, a float or nil.
 * False with an error raised that names the path: `what` says what the tree is ("vjp: the cotangent"), `of` what it belongs to ("the
 * result"). */
QN_MUST_CHECK bool tree_match_walk(qn_vm *vm, const char *what, const char *of, qn_value like, qn_value given,
                                   int lanes, bool (*leaf)(void *ctx, qn_value like, qn_value given), void *ctx);
bool is_float_leaf(qn_value v);
/* A tree like v with arrays without data for float arrays, 0.0 for floats, and nil for all other leaves. Owned. */
QN_MUST_CHECK qn_value tree_match_prototype(qn_vm *vm, qn_value v);
/* Zeros with the dtype and shape of a leaf, or of its prototype. Owned, or the error value. */
QN_MUST_CHECK qn_value tree_match_zeros(qn_vm *vm, qn_value like);

#endif
