/* Sizes of one graph as sizes of another, while nodes of the one are copied into the other (inline.c).
 *
 * Sizes are translated when they are met. A symbol for an axis of an input becomes the size of that axis of the node that took the input's
 * place, a symbol of a node that of its copy. A symbol for the value of a host int can be translated only if an input or a constant of the
 * other graph took its place. */
#ifndef JIT_GRAPH_INLINE_H
#define JIT_GRAPH_INLINE_H

#include "jit/graph/graph.h"

typedef struct size_map {
  graph *to;
  const graph *from;
  const uint32_t
      *map;     /* by node of `from`: the node of `to` that took its place, or 0; borrowed, filled in by the caller */
  qn_dim *dims; /* owned: by expression of `from`, its translation, where known[] says that there is one */
  bool *known;
  /* The size that a number has which data or a loop's turn decide, a node of `to`; 0: it has none there. NULL: only an input or a constant can have one. */
  qn_dim (*number)(void *ctx, uint32_t node);
  void *ctx;
  bool plain;  /* sizes of inputs become the numbers that they are in the recorded call */
  bool failed; /* a size could not be translated */
} size_map;

/* Begins. Memory is taken only if `from` has symbolic sizes. False when memory is short; size_map_end in any case. */
QN_MUST_CHECK bool size_map_begin(size_map *m, graph *to, const graph *from, const uint32_t *map);
void size_map_end(size_map *m);
/* Translates the type of node `node` of `from`, whose copy will be the next node of `to`: its own symbols become symbols of the copy. */
void size_map_type(size_map *m, uint32_t node, graph_type *t);
/* Translates the type of a node whose place an input takes that will be the next of `to` and has `lead` axes in front of those of `t`: sizes
 * that are not known yet become symbols for the input's axes. */
void size_map_input(size_map *m, graph_type *t, int lead);
/* Translates a size. */
qn_dim size_map_size(size_map *m, qn_dim d);
/* Translates the attributes of an op. */
void size_map_attr(size_map *m, op_id op, op_attr *attr);
/* Notes in `to` the facts about sizes that `from` relies on. Those about nodes that have not been copied are left out. */
void size_map_facts(size_map *m);
/* Sets *t to the type that node `v` of `from` has in `to`, where the inputs of `from` are these nodes. False: memory is short. */
QN_MUST_CHECK bool size_map_type_beside(graph *to, const uint32_t *inputs, const graph *from, uint32_t v,
                                        graph_type *t);

#endif
