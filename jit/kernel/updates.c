/* Updates in place (updates.h). An indexed assignment is a value: the old array with some elements replaced. Where nobody reads the old array
 * afterwards it needs no copy: the elements are stored into its memory.
 *
 * The operand must be an array that the graph itself makes and stores, or an input that was given for this purpose (donated), and its readers
 * must come before the update. So that they do, fusion orders them, and keeps readers out of the update's kernel unless it stores one element:
 * there everything is read before that is stored.
 *
 * Of a part of an array, updates in place are made where the part is small: a stencil over all but the borders is quicker as one kernel that
 * writes a new array than as one that stores to a temporary and one that copies. */
#include "jit/kernel/updates.h"

#include "jit/kernel/lower.h"

enum { PART = 4 }; /* a slice is stored in place if it has at most 1 / PART of the elements */

static bool is_assignment(const graph_node *n) {
  return n->kind == NODE_OP && !n->type.weak &&
         (n->op == OP_scatter || n->op == OP_gather_add || n->op == OP_slice_put);
}

int64_t updates_input(const graph *g, uint32_t k) {
  uint32_t n = g->outputs[k];
  for (;;) {
    const graph_node *node = &g->nodes[n];
    if (node->type.weak) return -1;
    if (node->kind == NODE_INPUT) return node->payload.input;
    if (is_assignment(node)) {
      n = node->in[0];
    } else if (node->kind == NODE_PROJ) {
      const graph_node *region = &g->nodes[node->in[0]];
      int64_t i = updates_operand(region, node->payload.index);
      if (i < 0) return -1;
      n = region->in[i];
    } else {
      return -1;
    }
  }
}

int64_t updates_operand(const graph_node *region, uint32_t k) {
  const graph *const *parts = (const graph *const *)region->payload.regions;
  if (region->kind == NODE_LOOP) {
    if (k >= graph_loop_carries(region)) return -1;
    return updates_input(parts[1], k) == k ? (int64_t)k : -1;
  }
  int64_t i = updates_input(parts[0], k);
  return i >= 0 && updates_input(parts[1], k) == i ? i + 1 : -1;
}

void updates_last_readers(const graph *g, uint32_t *last) {
  for (uint32_t n = 0; n < g->n; n++) last[n] = 0;
  for (uint32_t i = 0; i < g->noutputs; i++) last[g->outputs[i]] = UINT32_MAX;
  for (uint32_t n = g->n; n-- > 1;) {
    const graph_node *node = &g->nodes[n];
    uint32_t when = lower_role(g, n) == NODE_IS_VIRTUAL && last[n] > n ? last[n] : n;
    for (int i = 0; i < node->nin; i++)
      if (last[node->in[i]] < when) last[node->in[i]] = when;
  }
}

bool updates_operand_is_free(const graph *g, const uint32_t *last, uint32_t n, uint32_t i) {
  const graph_node *node = &g->nodes[n];
  uint32_t times = 0;
  for (int k = 0; k < node->nin; k++) times += node->in[k] == node->in[i];
  return times == 1 && last[node->in[i]] == n;
}

/* Is one operand of node n, besides the first, the array `x` itself, perhaps in another shape? */
static bool reads_again(const graph *g, const graph_node *n, uint32_t x) {
  for (int i = 1; i < n->nin; i++) {
    uint32_t y = n->in[i];
    while (g->nodes[y].kind == NODE_OP && (g->nodes[y].op == OP_reshape || g->nodes[y].op == OP_stop_gradient))
      y = g->nodes[y].in[0];
    if (y == x) return true;
  }
  return false;
}

static double elements_about(const graph *g, const graph_type *t) {
  double n = 1;
  for (int a = 0; a < t->rank; a++) n *= (double)dim_hint(&g->dims, t->shape[a]);
  return n;
}

bool updates_one_element(const graph *g, uint32_t n) {
  const graph_node *node = &g->nodes[n];
  if (node->op == OP_slice_put) {
    for (int a = 0; a < node->type.rank; a++)
      if (node->attr->d[3 * a + 1] != 1) return false;
    return true;
  }
  if (node->op != OP_scatter) return false;
  int count = (int)node->attr->d[0];
  for (int i = 1; i <= count; i++)
    for (int a = 0; a < g->nodes[node->in[i]].type.rank; a++)
      if (g->nodes[node->in[i]].type.shape[a] != 1) return false;
  for (int a = count; a < node->type.rank; a++)
    if (node->type.shape[a] != 1) return false;
  return true;
}

static bool is_worth_it(const graph *g, uint32_t n) {
  const graph_node *node = &g->nodes[n];
  if (node->op != OP_slice_put) return true;
  double part = 1;
  for (int a = 0; a < node->type.rank; a++) part *= (double)dim_hint(&g->dims, node->attr->d[3 * a + 1]);
  return part * PART <= elements_about(g, &node->type);
}

/* The operand into whose memory node n could store, if that can be written to; 0: none. */
static uint32_t operand_of(const updates_request *r, uint32_t n) {
  const graph *g = r->g;
  const graph_node *node = &g->nodes[n];
  uint32_t x;
  if (is_assignment(node)) {
    x = node->in[0];
    if (r->last[x] != n || reads_again(g, node, x) || !is_worth_it(g, n)) return 0;
  } else if (node->kind == NODE_PROJ && r->kept && r->kept[n]) {
    x = r->kept[n];
    if (r->last[x] != node->in[0]) return 0;
  } else {
    return 0;
  }
  if (!graph_type_same(&node->type, &g->nodes[x].type)) return 0;
  switch (lower_role(g, x)) {
  case NODE_IS_WORK:
  case NODE_IS_RESULT: return x;
  case NODE_IS_LEAF:
    return g->nodes[x].kind == NODE_INPUT && r->donated && r->donated[g->nodes[x].payload.input] ? x : 0;
  default: return 0;
  }
}

/* The input at whose memory a chain of updates that ends at node n begins; -1: it begins elsewhere. */
static int64_t chain_begin(const updates_request *r, uint32_t n) {
  while (r->over[n]) n = r->over[n];
  return r->g->nodes[n].kind == NODE_INPUT ? (int64_t)r->g->nodes[n].payload.input : -1;
}

void updates_find(const updates_request *r) {
  const graph *g = r->g;
  updates_last_readers(g, r->last);
  for (uint32_t n = 1; n < g->n; n++) r->over[n] = operand_of(r, n);
  if (!r->donated) return;
  /* A chain that begins at an input must end at the output that is to be its memory, and there alone. */
  uint32_t *last = r->last;
  for (uint32_t n = 1; n < g->n; n++) last[n] = 0; /* from here on: 1 + the input that ends rightly here */
  for (uint32_t o = 0; o < g->noutputs; o++) {
    int64_t i = chain_begin(r, g->outputs[o]);
    if (i < 0 || r->donated[i] != o + 1) continue;
    uint32_t times = 0;
    for (uint32_t k = 0; k < g->noutputs; k++) times += g->outputs[k] == g->outputs[o];
    for (uint32_t n = g->outputs[o]; times == 1 && r->over[n]; n = r->over[n]) last[n] = 1;
  }
  for (uint32_t n = 1; n < g->n; n++)
    if (r->over[n] && g->nodes[r->over[n]].kind == NODE_INPUT && !last[n]) r->over[n] = 0;
}
