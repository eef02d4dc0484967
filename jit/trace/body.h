/* What a graph as a value is: a function whose code is a graph (body.c). */
#ifndef JIT_TRACE_BODY_H
#define JIT_TRACE_BODY_H

#include "jit/trace/recording.h"
#include "jit/trace/specialization.h"

/* What a graph as a value is made of: FN_GRAPH's code. */
typedef struct graph_body {
  graph_code code; /* its id is the hash of all the rest */
  uint32_t nbound; /* captures of the function */
  uint32_t *bound; /* the inputs of the graph that they are; NULL: the first ones, in order */
  bool rest;       /* the last argument of the pattern is the list of all that are left */
  /* graph and its regions; pattern of the arguments (whose inputs follow), guards, result, random inputs; no plan */
  specialization call;
  qn_value params; /* a list of the names of the pattern's arguments (but the rest); nil: they have none */
  /* So many of these (but the rest) may be left out, from the last on: the captures behind the bound ones. */
  uint32_t ndefaults;
  qn_value like; /* of a pullback: a tree of prototypes for its one argument, in place of the pattern; else unset */
} graph_body;
static inline graph_body *body_of(qn_value fn) { return (graph_body *)value_fn(fn)->code; }

/* An empty body with one reference. */
QN_MUST_CHECK graph_body *body_new(qn_vm *vm);
void body_release(qn_vm *vm, graph_body *b);
/* Fills in the hash, when all else is there. */
void body_finish(graph_body *b);
/* Cuts the nodes from `mark` on that make `outs` out of the recording, as the body's graph. Its inputs are first the nodes below
 * `mark` that they need (bound, listed in *bound), then `params`. False with an error raised. */
QN_MUST_CHECK bool body_cut(struct recording *r, graph_body *b, uint32_t mark, const uint32_t *params, uint32_t nparams,
                            const uint32_t *outs, uint32_t nouts, node_list *bound);
/* A body's graph once more at the end of the recording, on nodes for its inputs; out[i] is output i. */
QN_MUST_CHECK bool body_append(struct recording *r, const graph_body *b, const uint32_t *inputs, uint32_t *out);
/* Calls a graph value, inside the recording that is on or in one of its own. Owned, or the error value. */
QN_MUST_CHECK qn_value body_call(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, qn_value kwargs, span at);
void body_open(qn_vm *vm);

/* The function value of a body that has all else; `values` are what it is bound to, then its defaults. Borrows. */
QN_MUST_CHECK qn_value body_value(qn_vm *vm, graph_body *b, const qn_value *values);
/* Gives the body's arguments these names, a list (retained). */
void body_name_params(graph_body *b, qn_value params);

/* ---- copying nodes from one graph to another ---- */

typedef struct node_copy {
  qn_vm *vm;
  graph *to;
  const graph *from;
  uint32_t *map, *sites; /* the copies of `from`'s nodes and sites; 0: none yet. The caller fills in the map */
  uint32_t parent;       /* the site under which the copies' sites lie */
  uint32_t *in;          /* room for operands */
  uint32_t in_cap;
} node_copy;
/* False with an error raised; to be ended in any case. */
QN_MUST_CHECK bool copy_begin(node_copy *c, qn_vm *vm, graph *to, const graph *from, uint32_t parent);
/* Copies a constant, or an op whose operands are in the map. 0 where memory is short (no error is raised). */
uint32_t copy_node(node_copy *c, uint32_t i);
void copy_end(node_copy *c);

#endif
