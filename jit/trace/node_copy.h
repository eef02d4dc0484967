/* Copying nodes from one graph to another, with the places in the source that they come from. */
#ifndef JIT_TRACE_NODE_COPY_H
#define JIT_TRACE_NODE_COPY_H

#include "jit/graph/inline.h"
#include "lang/vm.h"

typedef struct node_copy {
  qn_vm *vm;
  graph *to;
  const graph *from;
  uint32_t *map, *sites; /* for each node and site of `from` its copy, or 0. The caller stores the copies of nodes */
  size_map dims;         /* owned; `plain` may be set behind copy_begin */
  uint32_t parent;       /* the site that becomes the parent of copied sites which have none */
  uint32_t *in;          /* scratch space for operands */
  uint32_t in_cap;
} node_copy;
/* Begins copying nodes of `from` to `to`. False with an error raised. copy_end must be called in either case. */
QN_MUST_CHECK bool copy_begin(node_copy *c, qn_vm *vm, graph *to, const graph *from, uint32_t parent);
/* Copies node i, no input, whose operands have been copied; does not store it in the map. 0 if memory is short (no error is
 * raised). A size that cannot be expressed in the other graph sets dims.failed. */
uint32_t copy_node(node_copy *c, uint32_t i);
/* Makes an input of the other graph that takes the place of node i, and stores it in the map. False when memory is short. */
QN_MUST_CHECK bool copy_input(node_copy *c, uint32_t i);
/* To be called when all nodes have been copied: notes the facts about sizes that they rely on. False with an error raised. */
QN_MUST_CHECK bool copy_done(node_copy *c);
void copy_end(node_copy *c);
/* Appends copies of all nodes of `from` to `to`, with nodes in[i] of `to` in place of its inputs, and what `settled` gives for each in place of those with
 * regions (0: it has raised an error). `number`: as size_map.number. outs[k] becomes the node of output k. False with an error raised. */
QN_MUST_CHECK bool copy_all(qn_vm *vm, graph *to, const graph *from, const uint32_t *in, uint32_t *outs,
                            uint32_t (*settled)(void *ctx, uint32_t node), qn_dim (*number)(void *ctx, uint32_t node),
                            void *ctx);

#endif
