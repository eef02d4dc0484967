/* What a loop keeps of its turns for their gradient (graph_keep of grad.h): a minimum cut.
 *
 * The gradient of a turn reads values of the turn. A value is either read from a row that the forward pass kept, or made once more from
 * its operands, which are then read in the same way; captured values are there anyway. A row costs its bytes, written and
 * read; making a value costs what its op costs. The cheapest choice is a minimum cut of a network with two vertices for each value v:
 *
 *     source ── inf ──> need(v)        if the gradient itself reads v
 *     need(v) ── bytes ──> make(v)     cut: v is kept
 *     make(v) ── work ──> sink         cut: v is made once more
 *     make(v) ── inf ──> need(u)       for each operand u of v
 *     need(v) ── bytes ──> sink        of a carry; cut: its rows are read
 *
 * (PyTorch's AOTAutograd partitions straight-line graphs so.) The flow is found by Dinic's algorithm. Values that are the same in all turns are
 * never kept: their rows would hold copies. Nor are permuted values, but what they are permuted from: a row would lie otherwise than the view that
 * the interpreter has, and by how its operands lie a device's library chooses the order of a product's sums.
 *
 * Costs are in bytes of a row: what one costs to write and read back within the processor's caches is 2 of them, and in the time of that
 * a processor does about as many multiplications and additions. Only their order of magnitude matters. */
#include <string.h>

#include "jit/graph/grad.h"

enum {
  ROW_COST = 32,        /* of any row, besides its bytes */
  FUNCTION_COST = 16,   /* of exp and its like, an element */
  LIBRARY_COST = 64,    /* of sorting and its like, an element */
  INNER_TURNS = 16,     /* that a loop in the turn is taken to make */
  MOST_NODES = 1 << 14, /* of a turn; a longer one keeps its carries alone */
};
#define ENDLESS ((int64_t)1 << 60)

/* An edge of the network; edge e ^ 1 is its way back. */
typedef struct edge {
  uint32_t to;
  uint32_t next; /* of the same vertex; 0: none */
  int64_t room;
} edge;

typedef struct network {
  edge *edges;
  uint32_t n, cap;
  uint32_t *first; /* by vertex; 0: none */
  uint32_t *level; /* by vertex: its distance from the source, 1 for the source itself; 0: out of reach */
  uint32_t *at;    /* by vertex: the edge that is tried next */
  uint32_t *queue; /* vertices to visit; then the edges of a path */
  arena memory;
} network;

enum { SOURCE, SINK, VERTICES };
static inline uint32_t need(uint32_t v) { return VERTICES + 2 * v; }
static inline uint32_t make(uint32_t v) { return VERTICES + 2 * v + 1; }

static bool add_edge(network *w, uint32_t from, uint32_t to, int64_t room) {
  if (!arena_room(&w->memory, (void **)&w->edges, &w->cap, w->n + 2, sizeof *w->edges)) return false;
  w->edges[w->n] = (edge){.to = to, .next = w->first[from], .room = room};
  w->first[from] = w->n++;
  w->edges[w->n] = (edge){.to = from, .next = w->first[to]};
  w->first[to] = w->n++;
  return true;
}

/* Sets the distances of the vertices that flow can still reach. Is the sink among them? */
static bool set_levels(network *w, uint32_t vertices) {
  memset(w->level, 0, vertices * sizeof *w->level);
  uint32_t head = 0, tail = 0;
  w->queue[tail++] = SOURCE;
  w->level[SOURCE] = 1;
  while (head < tail) {
    uint32_t v = w->queue[head++];
    for (uint32_t e = w->first[v]; e; e = w->edges[e].next) {
      uint32_t to = w->edges[e].to;
      if (!w->edges[e].room || w->level[to]) continue;
      w->level[to] = w->level[v] + 1;
      w->queue[tail++] = to;
    }
  }
  return w->level[SINK] != 0;
}

/* Sends flow along one shortest way to the sink. False: there is none any more. */
static bool send(network *w) {
  uint32_t v = SOURCE, depth = 0;
  while (v != SINK) {
    uint32_t e = w->at[v];
    while (e && !(w->edges[e].room && w->level[w->edges[e].to] == w->level[v] + 1)) e = w->edges[e].next;
    w->at[v] = e;
    if (e) {
      w->queue[depth++] = e;
      v = w->edges[e].to;
    } else if (depth) { /* a dead end: back, and on with the next edge */
      uint32_t back = w->queue[--depth];
      v = w->edges[back ^ 1].to;
      w->at[v] = w->edges[back].next;
    } else {
      return false;
    }
  }
  int64_t room = ENDLESS;
  for (uint32_t i = 0; i < depth; i++)
    if (w->edges[w->queue[i]].room < room) room = w->edges[w->queue[i]].room;
  for (uint32_t i = 0; i < depth; i++) {
    w->edges[w->queue[i]].room -= room;
    w->edges[w->queue[i] ^ 1].room += room;
  }
  return true;
}

static int64_t times(int64_t a, int64_t b) {
  int64_t r;
  return __builtin_mul_overflow(a, b, &r) || r > ENDLESS / 4 ? ENDLESS / 4 : r;
}

static int64_t plus(int64_t a, int64_t b) { return a + b > ENDLESS / 4 ? ENDLESS / 4 : a + b; }

static int64_t elements(const graph *g, uint32_t v) {
  const graph_type *t = &g->nodes[v].type;
  int64_t n = 1;
  for (int a = 0; a < t->rank; a++) n = times(n, dim_hint(&g->dims, t->shape[a]));
  return n;
}

int64_t graph_row_bytes(const graph *g, uint32_t v) {
  return times(elements(g, v), (int64_t)dtype_size((qn_dtype)g->nodes[v].type.dtype));
}

/* Elements of the largest of a node's operands and its value. */
static int64_t most_elements(const graph *g, uint32_t v) {
  const graph_node *n = &g->nodes[v];
  int64_t most = elements(g, v);
  for (int k = 0; k < n->nin; k++)
    if (elements(g, n->in[k]) > most) most = elements(g, n->in[k]);
  return most;
}

/* Multiplications and additions of a matrix product. */
static int64_t product_work(const graph *g, uint32_t v) {
  const graph_type *x = &g->nodes[g->nodes[v].in[0]].type;
  return times(times(elements(g, v), dim_hint(&g->dims, x->shape[x->rank - 1])), 2);
}

static const bool is_function[OP_COUNT] = {
#define K(prim) false
#define M(function) true
#define OP_POINTWISE(name, arity, dtype, grad, raises, body, doc) [OP_##name] = body,
#include "lang/ops.def"
#undef K
#undef M
};
bool op_is_function(op_id op) { return is_function[op] || op_rows[op].klass == CLASS_RANDOM; }

static int64_t op_work(const graph *g, uint32_t v) {
  op_id op = (op_id)g->nodes[v].op;
  switch ((op_class)op_rows[op].klass) {
  case CLASS_POINTWISE: return times(elements(g, v), is_function[op] ? FUNCTION_COST : 1);
  case CLASS_VIEW: return op == OP_pad || op == OP_concat ? elements(g, v) : 0;
  case CLASS_INDEX:
    return times(op == OP_index || op == OP_gather || op == OP_iota ? elements(g, v) : most_elements(g, v), 2);
  case CLASS_REDUCE:
  case CLASS_SCAN: return times(most_elements(g, v), 2);
  case CLASS_DOT: return product_work(g, v);
  case CLASS_LIBRARY: return op == OP_gemm ? product_work(g, v) : times(most_elements(g, v), LIBRARY_COST);
  case CLASS_RANDOM: return times(elements(g, v), 2 * FUNCTION_COST);
  }
  return 0;
}

int64_t graph_node_work(const graph *g, uint32_t v) {
  const graph_node *n = &g->nodes[v];
  if (!graph_kind_has_regions(n->kind)) return n->kind == NODE_OP ? op_work(g, v) : 0;
  if (graph_is_rule(n)) return 0;
  int64_t work = 0;
  for (int k = 0; k < 2; k++) {
    const graph *region = n->payload.regions[k];
    for (uint32_t i = 1; i < region->n; i++) work = plus(work, graph_node_work(region, i));
  }
  return n->kind == NODE_LOOP ? times(work, INNER_TURNS) : work;
}

bool graph_may_be_kept(const graph *g, bool counted) {
  bool may = true;
  for (uint32_t i = 1; i < g->n && may; i++) {
    const graph_node *n = &g->nodes[i];
    if (n->kind == NODE_LOOP)
      may = (counted || graph_most_turns(g, i) != INT64_MAX) && graph_may_be_kept(n->payload.regions[1], counted);
    if (n->kind == NODE_IF && !graph_is_rule(n))
      may = graph_may_be_kept(n->payload.regions[0], counted) && graph_may_be_kept(n->payload.regions[1], counted);
    if ((n->kind == NODE_OP || n->kind == NODE_PROJ) && dtype_is_float((qn_dtype)n->type.dtype))
      may &= graph_may_be_result(g, i);
  }
  return may;
}

bool graph_may_be_result(const graph *g, uint32_t v) {
  const graph_node *n = &g->nodes[v];
  if ((n->kind != NODE_OP && n->kind != NODE_PROJ) || n->type.rank == ARRAY_MAX_RANK) return false;
  for (int a = 0; a < n->type.rank; a++)
    if (dim_is_late(&g->dims, n->type.shape[a]) && !dim_is_number(&g->dims, n->type.shape[a])) return false;
  return true;
}

bool graph_row_type(const graph *g, uint32_t v, graph_type *row) {
  const graph_node *n = &g->nodes[v];
  bool may = (n->kind == NODE_OP || n->kind == NODE_PROJ) && n->type.rank < ARRAY_MAX_RANK;
  *row = n->type;
  for (int a = 0; a < n->type.rank && may; a++) may = dim_most(&g->dims, n->type.shape[a], &row->shape[a]);
  return may;
}

bool graph_may_be_row(const graph *g, uint32_t v) {
  graph_type row;
  return graph_row_type(g, v, &row) && !memcmp(row.shape, g->nodes[v].type.shape, row.rank * sizeof *row.shape);
}

/* A turn and its gradient. */
typedef struct turn_nodes {
  const graph *g;
  uint32_t first; /* of the gradient's nodes */
  bool *read;     /* by node: do the results depend on it? */
  bool *varies;   /* by node of the turn: does it depend on what was carried, and is it no input? */
  bool *carried;  /* by node of the turn: is it a carry whose rows cost something? */
  network w;
  bool ok;
} turn_nodes;

static void read_size_node(void *ctx, uint32_t node) {
  turn_nodes *t = ctx;
  t->read[node] = true;
}

static void mark_nodes(turn_nodes *t, uint32_t ncarries, bool carries_cost, const bool *settled) {
  const graph *g = t->g;
  for (uint32_t k = 0; k < ncarries && carries_cost; k++)
    t->carried[g->inputs[k]] = !settled[k] && !g->nodes[g->inputs[k]].type.weak; /* (host numbers are too cheap) */
  for (uint32_t k = 0; k < g->noutputs; k++) t->read[g->outputs[k]] = true;
  for (uint32_t v = g->n - 1; v > 0; v--) {
    if (!t->read[v]) continue;
    for (int k = 0; k < g->nodes[v].nin; k++) t->read[g->nodes[v].in[k]] = true;
    graph_each_size_node(g, v, read_size_node, t);
  }
  for (uint32_t v = 1; v < t->first; v++) {
    const graph_node *n = &g->nodes[v];
    if (n->kind == NODE_INPUT) t->varies[v] = n->payload.input < ncarries;
    for (int k = 0; k < n->nin; k++) t->varies[v] |= t->varies[n->in[k]];
  }
  for (uint32_t v = 1; v < t->first; v++) t->varies[v] &= graph_is_run(&g->nodes[v]);
}

/* Node `user` needs value v, if that is one of the turn that must be made or kept. */
static void edge_to(turn_nodes *t, uint32_t user, uint32_t v) {
  if (t->ok && v < t->first && (t->varies[v] || t->carried[v]))
    t->ok = add_edge(&t->w, user < t->first ? make(user) : SOURCE, need(v), ENDLESS);
}

typedef struct size_user {
  turn_nodes *t;
  uint32_t user;
} size_user;

static void edge_to_size_node(void *ctx, uint32_t node) {
  const size_user *u = ctx;
  edge_to(u->t, u->user, node);
}

static void add_edges(turn_nodes *t) {
  const graph *g = t->g;
  for (uint32_t v = 1; v < g->n && t->ok; v++) {
    if (t->read[v] && v < t->first && t->carried[v])
      t->ok = add_edge(&t->w, need(v), SINK, plus(times(graph_row_bytes(g, v), 2), ROW_COST));
    if (!t->read[v] || (v < t->first && !t->varies[v])) continue;
    if (v < t->first) {
      bool view = g->nodes[v].kind == NODE_OP && g->nodes[v].op == OP_permute;
      bool number = g->nodes[v].type.weak; /* too cheap */
      bool may = !number && !view && graph_may_be_row(g, v) && !graph_takes_row(g, v);
      int64_t row = may ? times(graph_row_bytes(g, v), 2) + ROW_COST : ENDLESS, work = graph_node_work(g, v);
      t->ok = add_edge(&t->w, need(v), make(v), row) && (!work || add_edge(&t->w, make(v), SINK, work));
    }
    for (int k = 0; k < g->nodes[v].nin; k++) edge_to(t, v, g->nodes[v].in[k]);
    graph_each_size_node(g, v, edge_to_size_node, &(size_user){t, v});
  }
  for (uint32_t k = 0; k < g->noutputs; k++)
    if (g->outputs[k] < t->first) edge_to(t, t->first, g->outputs[k]);
}

bool graph_keep(const graph *g, uint32_t first, uint32_t ncarries, bool carries_cost, const bool *settled, bool *kept) {
  uint32_t vertices = VERTICES + 2 * first;
  turn_nodes t = {.g = g, .first = first, .ok = true};
  network *w = &t.w;
  for (uint32_t k = 0; k < ncarries; k++) kept[g->inputs[k]] = !settled[k];
  if (first > MOST_NODES) return true;
  arena_init(&w->memory, NULL);
  t.read = arena_alloc(&w->memory, g->n * sizeof *t.read);
  t.varies = arena_alloc(&w->memory, first * sizeof *t.varies);
  t.carried = arena_alloc(&w->memory, first * sizeof *t.carried);
  w->first = arena_alloc(&w->memory, vertices * sizeof *w->first);
  w->level = arena_alloc(&w->memory, vertices * sizeof *w->level);
  w->at = arena_alloc(&w->memory, vertices * sizeof *w->at);
  w->queue = arena_alloc(&w->memory, vertices * sizeof *w->queue);
  w->n = 2; /* edge 0 is none, and 1 its way back */
  t.ok = !w->memory.failed;
  if (t.ok) mark_nodes(&t, ncarries, carries_cost, settled);
  if (t.ok) add_edges(&t);
  if (t.ok) {
    while (set_levels(w, vertices)) {
      memcpy(w->at, w->first, vertices * sizeof *w->at);
      while (send(w)) {}
    }
    for (uint32_t v = 1; v < first; v++)
      if (g->nodes[v].kind != NODE_INPUT)
        kept[v] = w->level[need(v)] && !w->level[make(v)];
      else if (t.carried[v])
        kept[v] = w->level[need(v)];
  }
  arena_free(&w->memory);
  return t.ok;
}
