/* Sizes that are known to be equal. */
#include <stdlib.h>

#include "jit/kernel/plan.h"
#include "lang/vm.h"

static bool from_data(const dim_table *t, qn_dim d, int depth) {
  if (d >= 0 || depth > DIM_MAX_SIZE) return d < 0;
  const dim_expr *e = &t->exprs[~d];
  return e->op == DIM_SYMBOL ? dim_of_node(e->source) : from_data(t, e->a, depth + 1) || from_data(t, e->b, depth + 1);
}

typedef struct sizes {
  dim_table *t;
  uint32_t n; /* how many expressions there are before new ones are made */
  qn_dim *to; /* by expression: what has replaced it */
  struct {
    qn_dim d;
    bool is;
  } * known; /* by expression: the size that facts say it equals */
} sizes;

static qn_dim settled(const sizes *s, qn_dim d) { return d >= 0 || (uint32_t)~d >= s->n ? d : s->to[~d]; }

/* Learns from a fact that two sizes are equal. Was that new? */
static bool learn(sizes *s, const dim_fact *f) {
  qn_dim x = settled(s, f->a), y = settled(s, f->b);
  if (f->relation != DIM_EQ || x == y || from_data(s->t, f->a, 0) || from_data(s->t, f->b, 0)) return false;
  if (x >= 0 || (y < 0 && ~y > ~x)) { /* the expression with the higher number is replaced by the other size */
    qn_dim z = x;
    x = y;
    y = z;
  }
  if (x >= 0 || (uint32_t)~x >= s->n || s->known[~x].is) return false;
  s->known[~x].d = y;
  s->known[~x].is = true;
  return true;
}

bool plan_settle_sizes(graph *g) {
  sizes s = {.t = &g->dims, .n = g->dims.n};
  if (g->dims.nfacts == 0) return true;
  s.to = calloc(s.n + 1, sizeof *s.to);
  s.known = calloc(s.n + 1, sizeof *s.known);
  bool ok = s.to && s.known, again = ok;
  for (int rounds = 0; again && rounds < 8; rounds++) {
    for (uint32_t i = 0; i < s.n; i++) {
      const dim_expr e = g->dims.exprs[i];
      if (s.known[i].is)
        s.to[i] = settled(&s, s.known[i].d);
      else
        s.to[i] =
            e.op == DIM_SYMBOL ? ~(qn_dim)i : dim_make(&g->dims, (dim_op)e.op, settled(&s, e.a), settled(&s, e.b));
    }
    again = false;
    for (uint32_t i = 0; i < g->dims.nfacts; i++) again |= learn(&s, &g->dims.facts[i]);
  }
  for (uint32_t n = 1; n < g->n && ok; n++) {
    graph_node *node = &g->nodes[n];
    for (int a = 0; a < node->type.rank; a++) node->type.shape[a] = settled(&s, node->type.shape[a]);
    if (!node->attr || node->kind != NODE_OP) continue;
    op_attr attr = graph_attr(node);
    bool changed = false;
    for (int k = 0; k < attr.n; k++) {
      if (!op_attr_is_dim((op_id)node->op, k)) continue;
      qn_dim d = settled(&s, attr.d[k]);
      changed |= d != attr.d[k];
      attr.d[k] = d;
    }
    if (!changed) continue;
    op_attr *copy = arena_alloc(&g->arena, sizeof *copy);
    ok = copy != NULL;
    if (ok) *copy = attr;
    node->attr = copy;
  }
  free(s.to);
  free(s.known);
  return ok && !g->arena.failed;
}
