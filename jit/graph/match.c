/* Matching: pairs of nodes that must correspond wait on a list; the last one is taken, compared, and gives way to the pairs of its operands. Where
 * operands commute both orders are tried, with all that waits behind them, so that a match is found if there is one. */
#include "jit/graph/match.h"

#include <string.h>

enum { MATCH_STEPS = 20000 };

static bool same_attr(const graph_node *a, const graph_node *b) {
  /* how a product was made on a device, and what is known of failures, are no part of what is computed */
  enum { ASIDE = ATTR_PROVEN | ATTR_LIBRARY };
  op_attr x = graph_attr(a), y = graph_attr(b);
  uint8_t aside = a->op == OP_dot ? ASIDE | ATTR_X_ACROSS | ATTR_Y_ACROSS : ATTR_PROVEN;
  x.flags &= (uint8_t)~aside;
  y.flags &= (uint8_t)~aside;
  if (x.dtype != y.dtype || x.axes != y.axes || x.keepdims != y.keepdims || x.mode != y.mode || x.flags != y.flags ||
      x.n != y.n)
    return false;
  for (int i = 0; i < x.n; i++)
    if (x.d[i] != y.d[i]) return false;
  return true;
}

/* May node i of the large graph be node f of the small one, whatever their operands are? */
static bool alike(const graph_search *s, uint32_t f, uint32_t i) {
  const graph_node *a = &s->find->nodes[f], *b = &s->in->nodes[i];
  if (a->kind == NODE_INPUT) {
    if (graph_kind_has_regions(b->kind) || b->kind == NODE_TAP) return false;
    return !s->strict || graph_type_same(&a->type, &b->type);
  }
  if (a->kind != b->kind) return false;
  if (s->strict && !graph_type_same(&a->type, &b->type)) return false;
  if (a->kind == NODE_CONST)
    return !s->strict || memcmp(a->payload.data, b->payload.data, graph_const_bytes(&a->type)) == 0;
  return a->kind == NODE_OP && a->op == b->op && a->nin == b->nin && (!s->strict || same_attr(a, b));
}

enum { SAME_DEPTH = 6 };

/* NOLINTNEXTLINE(misc-no-recursion): at most SAME_DEPTH deep */
static bool same_value(const graph *g, uint32_t i, uint32_t j, int depth) {
  const graph_node *a = &g->nodes[i], *b = &g->nodes[j];
  if (i == j) return true;
  if (depth == SAME_DEPTH || a->kind != b->kind || !graph_type_same(&a->type, &b->type)) return false;
  if (a->kind == NODE_CONST) return memcmp(a->payload.data, b->payload.data, graph_const_bytes(&a->type)) == 0;
  if (a->kind != NODE_OP || a->op != b->op || a->nin != b->nin || !same_attr(a, b)) return false;
  for (int k = 0; k < a->nin; k++)
    if (!same_value(g, a->in[k], b->in[k], depth + 1)) return false;
  return true;
}

bool graph_same_value(const graph *g, uint32_t i, uint32_t j) { return same_value(g, i, j, 0); }

static bool push(graph_search *s, uint32_t f, uint32_t i) {
  if (s->nwaiting == MATCH_WAITING) return false;
  s->waiting[s->nwaiting++] = (struct match_pair){f, i};
  return true;
}

/* NOLINTNEXTLINE(misc-no-recursion): as deep as there are pairs, at most MATCH_WAITING, since each level takes one away */
static bool solve(graph_search *s, uint32_t depth) {
  if (!s->nwaiting) return s->accept(s->ctx, s->map);
  if (++s->steps > MATCH_STEPS || depth > MATCH_WAITING) return false;
  const struct match_pair p = s->waiting[--s->nwaiting];
  const uint32_t left = s->nwaiting, had = s->map[p.find];
  bool found = false;
  if (had) {
    found = graph_same_value(s->in, had, p.in) && solve(s, depth + 1);
  } else if (alike(s, p.find, p.in)) {
    const graph_node *a = &s->find->nodes[p.find], *b = &s->in->nodes[p.in];
    bool turned = graph_commutes(a) && b->in[0] != b->in[1];
    s->map[p.find] = p.in;
    for (int order = 0; order <= turned && !found; order++) {
      bool ok = true;
      s->nwaiting = left;
      for (int k = a->kind == NODE_OP ? a->nin : 0; k-- > 0 && ok;) ok = push(s, a->in[k], b->in[order ? !k : k]);
      found = ok && solve(s, depth + 1);
    }
    if (!found) s->map[p.find] = 0;
  }
  if (!found) { /* as it was, for who tries another order */
    s->nwaiting = left;
    s->waiting[s->nwaiting++] = p;
  }
  return found;
}

bool graph_search_at(graph_search *s, uint32_t at, const uint32_t *bound) {
  const graph *f = s->find;
  memset(s->map, 0, f->n * sizeof *s->map);
  for (uint32_t i = 0; i < f->ninputs && bound; i++) {
    if (!bound[i]) continue;
    if (!alike(s, f->inputs[i], bound[i])) return false;
    s->map[f->inputs[i]] = bound[i];
  }
  s->steps = s->nwaiting = 0;
  return push(s, s->root, at) && solve(s, 0);
}
