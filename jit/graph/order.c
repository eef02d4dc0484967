/* The order of a turn's nodes (graph_readers_first of graph.h).
 *
 * What reads an array must come before what stores into it, or the store needs a copy of the array. A gradient's turn takes the cotangent of a part
 * and stores into the others first, as it is written; here readers change places with stores that they do not depend on. So as not to make circles, stores
 * are looked at one after the other, and what has been settled counts as a dependence from then on. Nodes that can fail and effects keep their order,
 * and everything else as much of it as it can. */
#include <string.h>

#include "jit/graph/graph.h"

enum { MOST_NODES = 1 << 12, MOST_STORES = 1 << 8 };

/* A node that must come before another one, besides its operands. */
typedef struct before {
  uint32_t node, next; /* next: of the same later node; 0: none */
} before;

typedef struct ordering {
  graph *g;
  uint32_t *root;  /* by node: the array of which it is a view, or the node itself */
  uint32_t *first; /* by node: what must come before it */
  before *edges;
  uint32_t nedges, edges_cap;
  bool *behind;   /* by node: does it depend on the store that is looked at? */
  uint32_t *map;  /* by node: its place; 0: it has none yet */
  uint32_t *from; /* by place: the node */
  uint32_t placed;
  arena memory;
} ordering;

/* Is it read where its readers are? */
static bool is_view(const graph_node *n) {
  return n->kind == NODE_OP && (n->op == OP_slice || n->op == OP_permute || n->op == OP_reshape ||
                                n->op == OP_broadcast || n->op == OP_index);
}

static bool is_store(const graph_node *n) {
  return n->kind == NODE_OP && !n->type.weak &&
         (n->op == OP_slice_put || n->op == OP_scatter || n->op == OP_gather_add);
}

static bool add_before(ordering *o, uint32_t node, uint32_t later) {
  if (!arena_room(&o->memory, (void **)&o->edges, &o->edges_cap, o->nedges + 1, sizeof *o->edges)) return false;
  o->edges[o->nedges] = (before){node, o->first[later]};
  o->first[later] = o->nedges++;
  return true;
}

/* Marks what depends on node u. */
static void mark_behind(ordering *o, uint32_t u) {
  const graph *g = o->g;
  memset(o->behind, 0, g->n * sizeof *o->behind);
  o->behind[u] = true;
  for (bool more = true; more;) {
    more = false;
    for (uint32_t v = 1; v < g->n; v++) {
      if (o->behind[v]) continue;
      bool is = false;
      for (int k = 0; k < g->nodes[v].nin; k++) is |= o->behind[g->nodes[v].in[k]];
      for (uint32_t e = o->first[v]; e; e = o->edges[e].next) is |= o->behind[o->edges[e].node];
      o->behind[v] = is;
      more |= is; /* (what must come before a node may stand behind it) */
    }
  }
}

static bool reads(const ordering *o, uint32_t v, uint32_t array) {
  const graph_node *n = &o->g->nodes[v];
  bool is = false;
  for (int k = 0; k < n->nin && !is; k++) is = o->root[n->in[k]] == array;
  return is && !is_view(n);
}

/* Puts what reads the array that node u stores into before it, if that can be for all. False: memory is short. */
static bool readers_before(ordering *o, uint32_t u) {
  const graph *g = o->g;
  const uint32_t array = o->root[g->nodes[u].in[0]];
  bool any = false, can = g->nodes[array].kind != NODE_CONST;
  for (uint32_t k = 0; k < g->noutputs; k++) can &= o->root[g->outputs[k]] != array;
  for (uint32_t v = u + 1; v < g->n && can && !any; v++) any = reads(o, v, array);
  if (!can || !any) return true;
  mark_behind(o, u);
  for (uint32_t v = u + 1; v < g->n && can; v++) can = !reads(o, v, array) || !o->behind[v];
  for (uint32_t v = u + 1; v < g->n && can; v++)
    if (reads(o, v, array) && !add_before(o, v, u)) return false;
  return true;
}

static void place(ordering *o, uint32_t v) {
  const graph_node *n = &o->g->nodes[v];
  if (o->map[v]) return;
  for (int k = 0; k < n->nin; k++) place(o, n->in[k]);
  for (uint32_t e = o->first[v]; e; e = o->edges[e].next) place(o, o->edges[e].node);
  o->from[o->map[v] = ++o->placed] = v;
}

static bool keeps_order(const graph *g, uint32_t v) {
  return g->nodes[v].kind == NODE_TAP || graph_kind_has_regions(g->nodes[v].kind) || graph_fallible(g, v);
}

static bool find_order(ordering *o) {
  graph *g = o->g;
  uint32_t last = 0, stores = 0;
  for (uint32_t v = 1; v < g->n; v++) {
    o->root[v] = is_view(&g->nodes[v]) ? o->root[g->nodes[v].in[0]] : v;
    if (!keeps_order(g, v)) continue;
    if (last && !add_before(o, last, v)) return false;
    last = v;
  }
  for (uint32_t v = 1; v < g->n && stores < MOST_STORES; v++) {
    if (!is_store(&g->nodes[v])) continue;
    stores++;
    if (!readers_before(o, v)) return false;
  }
  return true;
}

bool graph_readers_first(graph *g) {
  bool stores = false, late = false;
  for (uint32_t v = 1; v < g->n; v++) stores |= is_store(&g->nodes[v]);
  for (uint32_t i = 0; i < g->dims.n; i++)
    late |= g->dims.exprs[i].op == DIM_SYMBOL && dim_of_node(g->dims.exprs[i].source);
  if (!stores || late || g->n > MOST_NODES) return true; /* (sizes that nodes make would have to be followed) */
  ordering o = {.g = g, .nedges = 1};
  arena_init(&o.memory, g->arena.vm);
  o.root = arena_alloc(&o.memory, g->n * sizeof *o.root);
  o.first = arena_alloc(&o.memory, g->n * sizeof *o.first);
  o.behind = arena_alloc(&o.memory, g->n * sizeof *o.behind);
  o.map = arena_alloc(&o.memory, g->n * sizeof *o.map);
  o.from = arena_alloc(&o.memory, (g->n + (size_t)1) * sizeof *o.from);
  graph_node *old = arena_alloc(&o.memory, g->n * sizeof *old);
  bool ok = !o.memory.failed && find_order(&o);
  for (uint32_t v = 1; v < g->n && ok; v++) place(&o, v);
  for (uint32_t i = 1; i < g->n && ok; i++) old[i] = g->nodes[i];
  for (uint32_t i = 1; i < g->n && ok; i++) {
    g->nodes[i] = old[o.from[i]];
    uint32_t *in = (uint32_t *)g->nodes[i].in; /* no other node shares the list */
    for (int k = 0; k < g->nodes[i].nin; k++) in[k] = o.map[in[k]];
  }
  for (uint32_t i = 0; i < g->ninputs && ok; i++) g->inputs[i] = o.map[g->inputs[i]];
  for (uint32_t i = 0; i < g->noutputs && ok; i++) g->outputs[i] = o.map[g->outputs[i]];
  arena_free(&o.memory);
  return ok;
}
