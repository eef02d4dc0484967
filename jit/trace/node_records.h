/* Nodes of graphs as records of the language (node_records.c). */
#ifndef JIT_TRACE_NODE_RECORDS_H
#define JIT_TRACE_NODE_RECORDS_H

#include "jit/trace/report.h"

/* What a rule and g.nodes tell of node i, or of a call whose last result it is: the fields that both have, but for these two. */
typedef struct told {
  const char *op;
  const uint32_t *in;
  uint32_t nin, site;
  const char *call;      /* the call that it is a part of, or NULL */
  qn_value attrs, parts; /* owned */
} told;
/* The record of node i; of a call whose last result is node i, with what `x` tells (taken over). Owned, or the error value. */
QN_MUST_CHECK qn_value node_record(qn_vm *vm, const graph *g, uint32_t i);
QN_MUST_CHECK qn_value told_record(qn_vm *vm, const graph *g, uint32_t i, const told *x);
/* A list of node numbers; and items for list_of_items: `ctx` is a graph, whose node i + 1 this is; or a uint32_t, the first of some numbers. */
QN_MUST_CHECK qn_value node_ids(qn_vm *vm, const uint32_t *ids, uint32_t n);
QN_MUST_CHECK qn_value node_item(qn_vm *vm, const void *ctx, uint32_t i);
QN_MUST_CHECK qn_value next_id(qn_vm *vm, const void *ctx, uint32_t i);
/* A graph, or a region of one, as a record {nodes, inputs, outputs}; the latter are ids. Owned, or the error value. */
QN_MUST_CHECK qn_value graph_record(qn_vm *vm, const graph *g);

#endif
