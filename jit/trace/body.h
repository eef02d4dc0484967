/* Graphs as values: functions whose code is a graph (body.c). */
#ifndef JIT_TRACE_BODY_H
#define JIT_TRACE_BODY_H

#include "jit/trace/recording.h"
#include "jit/trace/specialization.h"

/* The code of an FN_GRAPH function. */
typedef struct graph_body {
  graph_code code; /* code.shared.id is the hash of all the other fields */
  uint32_t nbound; /* how many captures of the function are values of inputs */
  uint32_t *bound; /* the numbers of these inputs; NULL: they are the first ones, in order */
  /* it was made within a vmap, so what it draws once more (ATTR_ANEW) may be what the lanes have drawn */
  bool of_lanes;
  bool rest; /* the last argument of the pattern is a list that takes all further arguments of a call */
  /* a specialization without a plan, for its graph, regions, pattern of the arguments, guards, result template and random inputs */
  specialization call;
  qn_value params; /* a list of the names of the arguments, but for the rest; nil: they have no names */
  /* So many arguments, the last ones but for the rest, may be left out; their values are the captures behind the bound ones. */
  uint32_t ndefaults;
  /* For one that was cut out of a recording with symbolic sizes: the same graph node by node, with these sizes as symbols of its inputs. It is what
   * calls in such a recording append; `call.graph` has the sizes of one call. NULL: there are none. Then code.sized is set. */
  graph *symbolic;
  /* for a pullback: a tree of prototypes that its one argument must look like, used instead of the pattern; else unset */
  qn_value like;
} graph_body;
static inline graph_body *body_of(qn_value fn) { return (graph_body *)value_fn(fn)->code; }

/* An empty body with one reference. */
QN_MUST_CHECK graph_body *body_new(qn_vm *vm);
void body_release(qn_vm *vm, graph_body *b);
/* Fills in the hash; to be called when all the rest is filled in. */
void body_finish(graph_body *b);
/* Makes the body's graph of nodes of the recording: those from `mark` on that `outs` depend on. Its inputs are first the nodes before
 * `mark` that these read (their values are to be bound; listed in *bound), then `params`. False with an error raised. */
QN_MUST_CHECK bool body_cut(struct recording *r, graph_body *b, uint32_t mark, const uint32_t *params, uint32_t nparams,
                            const uint32_t *outs, uint32_t nouts, node_list *bound);
/* Appends a copy of the body's graph to the recording, reading the nodes `inputs`; out[i] becomes the node of output i. False with an error
 * raised. */
QN_MUST_CHECK bool body_append(struct recording *r, const graph_body *b, const uint32_t *inputs, uint32_t *out);
/* Calls a graph value, inside the recording in progress or one of its own. Owned result, or the error value. */
QN_MUST_CHECK qn_value body_call(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, qn_value kwargs, span at);
void body_open(qn_vm *vm);

/* Finishes a body (body_finish) and makes a function of it. `values`: those of the bound inputs, then the defaults; retained. Owned, or the
 * error value. */
QN_MUST_CHECK qn_value body_value(qn_vm *vm, graph_body *b, const qn_value *values);
/* Names the body's arguments; `params` is a list of texts (retained). */
void body_name_params(graph_body *b, qn_value params);
/* The name of argument i of a graph, borrowed; NULL: it has none. */
static inline qn_str *body_param_name(const qn_fn *graph, uint32_t i) {
  const graph_body *b = graph->code;
  bool named = value_is(b->params, TAG_LIST) && i < value_list(b->params)->len;
  return named ? value_str(value_list(b->params)->items[i]) : NULL;
}

#endif
