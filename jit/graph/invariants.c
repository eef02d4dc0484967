/* Invariants of loops (rewrite.h): what a body computes from nothing but captured values, constants and carries that stay as they are is
 * computed once, before the loop, and captured.
 *
 * Only ops that cannot fail move, since a loop may make no turn at all, and none that rely on a check in the body (ATTR_PROVEN). What such
 * a loop computed in vain is then lost. Nor do ops move out of branches, which may not be taken.
 *
 * A moved value is memory that every turn reads, so it must cost more to make than to read (graph_node_work); else its operands are
 * asked, and views are left to the turns. Its sizes must be numbers. */
#include <string.h>

#include "jit/graph/grad.h"
#include "jit/graph/rewrite.h"

enum {
  MOVED_MOST = 64, /* how many values of one loop are moved */
  /* where larger ones are made they must be no larger than a captured value that they are made of: a loop of no turns needs none of them */
  LARGE_BYTES = 64 << 10,
};

typedef struct mover {
  rewriter *r;
  const graph *body;
  bool *fixed;     /* by node: is it the same in all turns, and may it be made before? */
  bool *needed;    /* by node that is fixed: do turns need it? */
  bool *before;    /* by node: is it made before the loop? */
  int64_t *work;   /* by node that is fixed: to make it and what it is made of */
  int64_t *bytes;  /* the same: of the largest captured value that it is made of */
  int64_t *most;   /* the same: of the largest value on the way to it, itself included */
  uint32_t *outer; /* by node: what it is before the loop; 0: nothing yet */
  uint32_t moved[MOVED_MOST], nmoved;
} mover;

static bool sizes_are_numbers(const graph_node *n) {
  for (int a = 0; a < n->type.rank; a++)
    if (n->type.shape[a] < 0) return false;
  for (int k = 0; n->attr && k < n->attr->n; k++)
    if (op_attr_is_dim((op_id)n->op, k) && n->attr->d[k] < 0) return false;
  return true;
}

static bool may_move(const mover *m, uint32_t v) {
  const graph_node *n = &m->body->nodes[v];
  if (n->kind == NODE_CONST) return true;
  if (n->kind != NODE_OP || graph_node_fallible(m->body, n) || graph_node_anew(n) || !sizes_are_numbers(n))
    return false;
  if (n->attr && (n->attr->flags & ATTR_PROVEN)) return false;
  for (int k = 0; k < n->nin; k++)
    if (!m->fixed[n->in[k]]) return false;
  switch ((op_class)op_rows[n->op].klass) {
  case CLASS_POINTWISE:
  case CLASS_VIEW:
  case CLASS_REDUCE:
  case CLASS_SCAN:
  case CLASS_DOT: return true;
  default: return n->op == OP_iota;
  }
}

/* Finds out which nodes are the same in all turns; `in` are the loop's operands. */
static void find_fixed(mover *m, uint32_t carries, const uint32_t *in) {
  const graph *b = m->body;
  for (uint32_t k = 0; k < b->ninputs; k++) {
    const graph_node *n = &b->nodes[b->inputs[k]];
    bool stays = k >= carries || b->outputs[k] == b->inputs[k];
    m->fixed[b->inputs[k]] = stays && sizes_are_numbers(n) && graph_type_same(&n->type, &m->r->g->nodes[in[k]].type);
    m->bytes[b->inputs[k]] = graph_row_bytes(b, b->inputs[k]);
    m->outer[b->inputs[k]] = in[k];
  }
  for (uint32_t v = 1; v < b->n; v++) {
    const graph_node *n = &b->nodes[v];
    if (n->kind == NODE_INPUT || !may_move(m, v)) continue;
    m->fixed[v] = true;
    m->work[v] = graph_node_work(b, v);
    m->most[v] = n->kind == NODE_CONST || op_rows[n->op].klass == CLASS_VIEW ? 0 : graph_row_bytes(b, v);
    for (int k = 0; k < n->nin; k++) {
      m->work[v] += m->work[n->in[k]];
      if (m->bytes[n->in[k]] > m->bytes[v]) m->bytes[v] = m->bytes[n->in[k]];
      if (m->most[n->in[k]] > m->most[v]) m->most[v] = m->most[n->in[k]];
    }
    if (m->work[v] > INT64_MAX / 1024) m->work[v] = INT64_MAX / 1024;
  }
}

static bool is_worth_it(const mover *m, uint32_t v) {
  const graph_node *n = &m->body->nodes[v];
  int64_t bytes = graph_row_bytes(m->body, v);
  return op_rows[n->op].klass != CLASS_VIEW && !n->type.weak && m->work[v] > 2 * bytes &&
         (m->most[v] <= LARGE_BYTES || m->most[v] <= m->bytes[v]);
}

/* Chooses what is moved: what turns need if it is worth it, else what is of its operands. */
static void choose(mover *m) {
  const graph *b = m->body;
  for (uint32_t k = 0; k < b->noutputs; k++) m->needed[b->outputs[k]] = true;
  for (uint32_t v = b->n; v-- > 1;) {
    const graph_node *n = &b->nodes[v];
    if (m->fixed[v] && (n->kind != NODE_OP || !(m->needed[v] || m->before[v]))) continue;
    if (m->fixed[v] && m->needed[v] && m->nmoved < MOVED_MOST && is_worth_it(m, v)) {
      m->moved[m->nmoved++] = v;
      m->before[v] = true;
    }
    for (int k = 0; k < n->nin; k++) *(m->before[v] ? &m->before[n->in[k]] : &m->needed[n->in[k]]) = true;
  }
}

/* Makes what is moved, and what that is made of, before the loop. False when memory is short. */
static bool make_before(mover *m, uint32_t site) {
  const graph *b = m->body;
  for (uint32_t v = 1; v < b->n; v++) {
    graph_node n = b->nodes[v];
    if (!m->before[v] || m->outer[v]) continue;
    uint32_t *in = arena_alloc(m->r->scratch, (n.nin + 1u) * sizeof *in);
    for (int k = 0; in && k < n.nin; k++) in[k] = m->outer[n.in[k]];
    n.in = in;
    n.site = site;
    if (!in || !(m->outer[v] = rewrite_node(m->r, &n))) return false;
  }
  return true;
}

/* The body with inputs in place of the nodes that have moved, which are input place[k] each. */
static graph *body_without(const mover *m, const uint32_t *place, uint32_t ninputs) {
  const graph *b = m->body;
  graph *to = graph_new(b->arena.vm);
  if (!to) return NULL;
  uint32_t *map = arena_alloc(m->r->scratch, b->n * sizeof *map);
  bool ok = map && graph_copy_frame(to, b);
  for (uint32_t k = 0; ok && k < b->ninputs; k++) {
    const graph_node *n = &b->nodes[b->inputs[k]];
    ok = (map[b->inputs[k]] = graph_input(to, n->type, n->site)) != 0;
  }
  for (uint32_t k = 0; ok && k < m->nmoved; k++) {
    const graph_node *n = &b->nodes[m->moved[k]];
    if (place[k] == to->ninputs) ok = graph_input(to, n->type, n->site) != 0;
    if (ok) map[m->moved[k]] = to->inputs[place[k]];
  }
  ok = ok && to->ninputs == ninputs;
  for (uint32_t v = 1; ok && v < b->n; v++)
    if (!map[v]) ok = (map[v] = graph_node_copy(to, b, v, map)) != 0;
  for (uint32_t k = 0; ok && k < b->noutputs; k++) ok = graph_output(to, map[b->outputs[k]]);
  if (ok) {
    dim_rename_nodes(&to->dims, map, b->n);
    graph_dce(to);
  }
  if (ok && !to->failed && !to->arena.failed) return to;
  graph_free(to);
  return NULL;
}

bool invariants_move(rewriter *r, const graph_node *loop, uint32_t **in, uint32_t *nin, graph *parts[2]) {
  const graph *b = parts[1];
  uint32_t carries = loop->attr ? graph_loop_carries(loop) : b->noutputs, place[MOVED_MOST], n = *nin;
  mover m = {.r = r, .body = b};
  m.fixed = arena_alloc(r->scratch, b->n);
  m.needed = arena_alloc(r->scratch, b->n);
  m.before = arena_alloc(r->scratch, b->n);
  m.work = arena_alloc(r->scratch, b->n * sizeof *m.work);
  m.most = arena_alloc(r->scratch, b->n * sizeof *m.most);
  m.bytes = arena_alloc(r->scratch, b->n * sizeof *m.bytes);
  m.outer = arena_alloc(r->scratch, b->n * sizeof *m.outer);
  if (!m.fixed || !m.needed || !m.before || !m.work || !m.most || !m.bytes || !m.outer) return false;
  find_fixed(&m, carries, *in);
  choose(&m);
  if (!m.nmoved) return true;
  uint32_t *more = arena_alloc(r->scratch, (n + m.nmoved) * sizeof *more);
  if (!more || !make_before(&m, loop->site)) return false;
  memcpy(more, *in, n * sizeof *more);
  for (uint32_t k = 0; k < m.nmoved; k++) { /* two of them may have become one node, or an operand that there was */
    uint32_t x = m.outer[m.moved[k]], i = 0;
    while (i < n && !(more[i] == x && (i >= b->ninputs || m.fixed[b->inputs[i]]))) i++;
    place[k] = i;
    if (i < n) continue;
    if (!graph_input(parts[0], b->nodes[m.moved[k]].type, 0)) return false;
    more[n++] = x;
  }
  graph *body = body_without(&m, place, n);
  if (!body) return false;
  graph_free(parts[1]);
  parts[1] = body;
  *in = more;
  *nin = n;
  return true;
}
