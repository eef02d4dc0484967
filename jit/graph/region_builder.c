/* Building nodes with regions (region_builder.h). */
#include "jit/graph/region_builder.h"

#include <string.h>

void builder_open(region_builder *b, graph *outer) {
  *b = (region_builder){.outer = outer, .part = {graph_new(NULL), graph_new(NULL)}};
  arena_init(&b->memory, NULL);
  b->failed =
      !b->part[0] || !b->part[1] || !arena_room(&b->memory, (void **)&b->operands, &b->cap, 1, sizeof *b->operands);
}

uint32_t *builder_list(region_builder *b, size_t n) {
  uint32_t *list = arena_alloc(&b->memory, n * sizeof *list);
  b->failed |= !list;
  return list;
}

/* What the outer size `d` of axis `axis` of input `i` is inside the regions. */
static qn_dim inner_size(region_builder *b, uint32_t i, int axis, qn_dim d) {
  if (d >= 0) return d;
  for (uint32_t k = 0; k < b->nsizes; k++)
    if (b->sizes[k].outer == d) return b->sizes[k].inner;
  qn_dim made = d;
  for (int k = 0; k < 2; k++) /* the regions have the same inputs, so both give the symbol the same number */
    made = dim_symbol(&b->part[k]->dims, DIM_FROM_INPUT, i, (uint16_t)axis, dim_hint(&b->outer->dims, d), NULL);
  if (!arena_room(&b->memory, (void **)&b->sizes, &b->sizes_cap, b->nsizes + 1, sizeof *b->sizes)) {
    b->failed = true;
    return made;
  }
  b->sizes[b->nsizes].outer = d;
  b->sizes[b->nsizes++].inner = made;
  return made;
}

uint32_t builder_operand(region_builder *b, uint32_t node) {
  if (b->failed || !node || !arena_room(&b->memory, (void **)&b->operands, &b->cap, b->n + 2, sizeof *b->operands)) {
    b->failed = true;
    return 0;
  }
  graph_type t = b->outer->nodes[node].type;
  for (int a = 0; a < t.rank; a++) t.shape[a] = inner_size(b, b->n, a, t.shape[a]);
  for (int k = 0; k < 2; k++) b->failed |= !graph_input(b->part[k], t, 0);
  b->operands[b->n] = node;
  return b->n++;
}

uint32_t builder_operands(region_builder *b, const uint32_t *nodes, uint32_t n) {
  uint32_t first = b->n;
  for (uint32_t i = 0; i < n; i++) (void)builder_operand(b, nodes[i]);
  return first;
}

void builder_outputs(region_builder *b, int part, const uint32_t *nodes, uint32_t n) {
  for (uint32_t i = 0; i < n && !b->failed; i++) b->failed |= !graph_output(b->part[part], nodes[i]);
}

uint32_t builder_close(region_builder *b, uint32_t predicate, const op_attr *attr, uint32_t site) {
  uint32_t node = 0, *in = b->operands;
  if (!b->failed && !b->part[0]->failed && !b->part[1]->failed) {
    if (predicate) { /* builder_operand has left room for it */
      memmove(in + 1, in, b->n++ * sizeof *in);
      in[0] = predicate;
    }
    graph_dce(b->part[0]);
    graph_dce(b->part[1]);
    node = graph_regions(b->outer, predicate ? NODE_IF : NODE_LOOP, in, (int)b->n, b->part[0], b->part[1], attr, site);
  } else {
    graph_free(b->part[0]);
    graph_free(b->part[1]);
  }
  arena_free(&b->memory);
  return node;
}

uint32_t graph_count(graph *g, op_id op, uint32_t a, uint32_t b) {
  uint32_t n = graph_op2(g, op, a, b);
  if (n && graph_fallible(g, n) && !graph_fix_flags(g, n, graph_attr(&g->nodes[n]).flags | ATTR_PROVEN)) return 0;
  return n;
}

uint32_t graph_row(graph *g, uint32_t rows, uint32_t at, bool weak) {
  op_attr attr = {.n = 1, .flags = ATTR_PROVEN, .d = {1}};
  uint32_t row = graph_op(g, OP_index, (uint32_t[]){rows, at}, 2, &attr, 0);
  if (!row || !weak) return row;
  attr = (op_attr){.dtype = g->nodes[row].type.dtype, .flags = ATTR_WEAK};
  return graph_op(g, OP_cast, &row, 1, &attr, 0);
}
