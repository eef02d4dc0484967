/* Which kernels are the same but for the numbers of their nodes, as those of equal layers of a net are: they have the same estimate and the
 * same program. */
#ifndef JIT_KERNEL_ALIKE_H
#define JIT_KERNEL_ALIKE_H

#include "jit/graph/intern.h"
#include "jit/kernel/lower.h"

/* What is known of a graph's kernels. Zeroed before the first use, and then for one graph, which does not change. */
typedef struct alike {
  arena arena;
  const graph *g;
  uint32_t *types, *ops; /* by node: 1 + the first node of its type; of its op, attributes and type; 0: not known yet */
  uint32_t *number;      /* by node: 1 + its index in `nodes`, for the request that is looked up */
  uint32_t *type_list, *op_list, ntypes, nops, types_cap, ops_cap; /* first nodes, which the tables number */
  intern_table type_table, op_table, table;
  struct alike_kernel {
    const uint32_t *words;
    uint32_t n;
    double ns; /* for the owner: an estimate; NAN at first */
  } * kernels;
  uint32_t nkernels, kernels_cap;
  uint32_t *nodes, n, nodes_cap; /* of the last request that was looked up, as lower() meets them */
  uint32_t *words, nwords, words_cap;
} alike;

/* The number of the kernel that lower() makes of a request: the same for requests whose kernels differ only in nodes, where in all numbers of nodes
 * t->nodes[i] of one is t->nodes[i] of the other. Their programs differ in nothing if they have no checks. Requests have neither buffers, strides
 * nor joins. -1 when memory is short. */
int64_t alike_find(alike *t, const lower_request *r);
void alike_free(alike *t); /* also zeroes it */

#endif
