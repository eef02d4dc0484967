/* Copying nodes from one graph to another, with the places in the source that they come from. */
#ifndef JIT_TRACE_NODE_COPY_H
#define JIT_TRACE_NODE_COPY_H

#include "jit/graph/graph.h"
#include "lang/vm.h"

typedef struct node_copy {
  qn_vm *vm;
  graph *to;
  const graph *from;
  uint32_t *map, *sites; /* for each node and site of `from` its copy, or 0. The caller stores the copies of nodes */
  uint32_t parent;       /* the site that becomes the parent of copied sites which have none */
  uint32_t *in;          /* scratch space for operands */
  uint32_t in_cap;
  bool plain; /* copies get the sizes that symbolic ones are in this call */
} node_copy;
/* Gives a type the plain numbers that its sizes are in the recorded call. */
graph_type plain_type(const dim_table *t, graph_type type);
/* Begins copying nodes of `from` to `to`. False with an error raised. copy_end must be called in either case. */
QN_MUST_CHECK bool copy_begin(node_copy *c, qn_vm *vm, graph *to, const graph *from, uint32_t parent);
/* Copies node i, no input, whose operands have been copied; does not store it in the map. 0 if memory is short (no error is
 * raised). */
uint32_t copy_node(node_copy *c, uint32_t i);
void copy_end(node_copy *c);
/* Appends copies of all nodes of `from` to `to`, with nodes in[i] of `to` in place of its inputs. outs[k] becomes the node of output k. The
 * sizes in `from` are numbers. False with an error raised. */
QN_MUST_CHECK bool copy_all(qn_vm *vm, graph *to, const graph *from, const uint32_t *in, uint32_t *outs);

#endif
