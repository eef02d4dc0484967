/* Nodes of graphs as records, which programs read: g.nodes, what a rule of rewrite is asked about, explain(...).graph. */
#include "jit/trace/node_records.h"

#include "jit/graph/composites.h"
#include "jit/trace/nodes.h"

static qn_value id_item(qn_vm *vm, const void *ctx, uint32_t i) {
  (void)vm;
  return value_int(((const uint32_t *)ctx)[i]);
}

qn_value node_ids(qn_vm *vm, const uint32_t *ids, uint32_t n) { return list_of_items(vm, n, id_item, ids); }

qn_value next_id(qn_vm *vm, const void *ctx, uint32_t i) {
  (void)vm;
  return value_int(*(const uint32_t *)ctx + (int64_t)i);
}

/* Sizes of a graph, for list_of_items. */
typedef struct sizes {
  const graph *g;
  const qn_dim *d;
  op_id op; /* of whose attributes they are; else OP_COUNT */
} sizes;

/* A size; one that is a symbol is its text. */
static qn_value size_item(qn_vm *vm, const void *ctx, uint32_t i) {
  const sizes *c = ctx;
  if (c->d[i] >= 0 || (c->op != OP_COUNT && !op_attr_is_dim(c->op, (int)i))) return value_int(c->d[i]);
  text_buf t = {.vm = vm};
  dim_print(&c->g->dims, c->d[i], &t);
  return text_take(&t);
}

/* The fields of a record with the attributes of a node. */
typedef struct attr_fields {
  qn_vm *vm;
  const graph *g;
  const graph_node *node;
  field fields[16];
  size_t n;
} attr_fields;

static void add_attr(void *ctx, const char *name, const char *text, const int64_t *d, int n) {
  attr_fields *c = ctx;
  if (c->n == sizeof c->fields / sizeof *c->fields) return; /* no op has so many attributes */
  bool axes = strcmp(name, "axes") == 0;                    /* all other lists are the attributes' own */
  sizes s = {c->g, d, (op_id)c->node->op};
  c->fields[c->n++] = (field){name, n < 0  ? text ? text_value(c->vm, text) : value_bool(true)
                                     : axes ? list_of_ints(c->vm, d, (uint32_t)n)
                                           : list_of_items(c->vm, (uint32_t)n, size_item, &s)};
}

qn_value graph_record(qn_vm *vm, const graph *g) {
  return FIELDS_RECORD(vm, {"nodes", list_of_items(vm, g->n - 1, node_item, g)},
                       {"inputs", node_ids(vm, g->inputs, g->ninputs)},
                       {"outputs", node_ids(vm, g->outputs, g->noutputs)});
}

static qn_value region_item(qn_vm *vm, const void *ctx, uint32_t i) {
  return graph_record(vm, ((const graph_node *)ctx)->payload.regions[i]);
}

static qn_value attr_record(qn_vm *vm, const graph *g, const graph_node *n) {
  attr_fields c = {.vm = vm, .g = g, .node = n};
  if (graph_kind_has_regions(n->kind)) c.fields[c.n++] = (field){"regions", list_of_items(vm, 2, region_item, n)};
  if (n->kind == NODE_PROJ) c.fields[c.n++] = (field){"number", value_int(n->payload.index)};
  if (n->kind == NODE_TAP && n->payload.tap != GRAPH_TAP_MADE)
    c.fields[c.n++] = (field){"number", value_int(n->payload.tap)};
  if (n->kind == NODE_CONST) c.fields[c.n++] = (field){"value", const_value(vm, n, 0)};
  if (n->kind == NODE_OP && n->attr) {
    op_attr a = graph_attr(n);
    graph_attr_each((op_id)n->op, &a, add_attr, &c);
  }
  return fields_record(vm, c.fields, c.n);
}

qn_value told_record(qn_vm *vm, const graph *g, uint32_t i, const told *x) {
  const graph_type *type = &g->nodes[i].type;
  int line = 0;
  if (x->site && x->site < g->nsites) place_line(vm, g->sites[x->site].at, &line);
  return FIELDS_RECORD(vm, {"id", value_int(i)}, {"op", text_value(vm, x->op)}, {"inputs", node_ids(vm, x->in, x->nin)},
                       {"dtype", value_dtype((qn_dtype)type->dtype)},
                       {"shape", list_of_items(vm, type->rank, size_item, &(sizes){g, type->shape, OP_COUNT})},
                       {"host", value_bool(type->weak)}, {"attrs", x->attrs},
                       {"line", line ? value_int(line) : value_nil()},
                       {"call", x->call ? text_value(vm, x->call) : value_nil()}, {"parts", x->parts});
}

qn_value node_record(qn_vm *vm, const graph *g, uint32_t i) {
  const graph_node *n = &g->nodes[i];
  told x = {graph_node_word(n), n->in, n->nin, n->site, graph_call_around(g, i), attr_record(vm, g, n), value_nil()};
  return told_record(vm, g, i, &x);
}

qn_value node_item(qn_vm *vm, const void *ctx, uint32_t i) { return node_record(vm, ctx, i + 1); }
