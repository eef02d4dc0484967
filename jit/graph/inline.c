/* Copying nodes from one graph to another: sizes (inline.h), and graph_inline (graph.h), which copies all of a graph's nodes with other
 * operands in place of its inputs.
 *
 * Regions inside have symbols of their own and are copied as they are. */
#include "jit/graph/inline.h"

#include <stdlib.h>
#include <string.h>

bool size_map_begin(size_map *m, graph *to, const graph *from, const uint32_t *map) {
  *m = (size_map){.to = to, .from = from, .map = map};
  if (!from->dims.n) return true;
  m->dims = calloc(from->dims.n, sizeof *m->dims);
  m->known = calloc(from->dims.n, sizeof *m->known);
  return m->dims && m->known;
}

void size_map_end(size_map *m) {
  free(m->dims);
  free(m->known);
  m->dims = NULL;
  m->known = NULL;
}

static qn_dim symbol_in(size_map *m, const dim_expr *e) {
  graph *to = m->to;
  if (m->plain && !dim_of_node(e->source)) return e->hint;
  uint32_t node = m->map[dim_of_node(e->source) ? e->ref : m->from->inputs[e->ref]];
  const graph_node *n = &to->nodes[node];
  qn_value v;
  const bool number = e->source == DIM_FROM_NUMBER || (e->source == DIM_FROM_SCALAR && m->from->dims.strict);
  if (node && number && m->number && !graph_const_value(to, node, &v)) {
    const qn_dim d = m->number(m->ctx, node);
    m->failed |= d >= 0;
    return d < 0 ? d : 0;
  }
  if (node && e->source == DIM_FROM_NUMBER) return dim_symbol(&to->dims, DIM_FROM_NUMBER, node, 0, e->hint, e->name);
  if (node && e->source != DIM_FROM_SCALAR) return n->type.shape[e->axis];
  if (node && graph_const_value(to, node, &v)) return dim_const(&to->dims, v.u.i);
  if (node && n->kind == NODE_INPUT) {
    to->dims.strict |= m->from->dims.strict;
    return dim_symbol(&to->dims, DIM_FROM_SCALAR, n->payload.input, 0, e->hint, e->name);
  }
  m->failed = true;
  return 0;
}

static qn_dim size_in(size_map *m, qn_dim d) {
  if (d >= 0) return d;
  uint32_t i = (uint32_t)~d;
  if (m->known[i]) return m->dims[i];
  const dim_expr e = m->from->dims.exprs[i];
  qn_dim made =
      e.op == DIM_SYMBOL ? symbol_in(m, &e) : dim_make(&m->to->dims, (dim_op)e.op, size_in(m, e.a), size_in(m, e.b));
  m->known[i] = true;
  return m->dims[i] = made;
}

qn_dim size_map_size(size_map *m, qn_dim d) { return size_in(m, d); }

void size_map_type(size_map *m, uint32_t node, graph_type *t) {
  for (int a = 0; a < t->rank; a++) {
    qn_dim d = t->shape[a];
    const dim_expr *e = d < 0 ? &m->from->dims.exprs[~d] : NULL;
    if (e && e->op == DIM_SYMBOL && e->source == DIM_FROM_NODE && e->ref == node) {
      m->known[~d] = true;
      m->dims[~d] = dim_symbol(&m->to->dims, DIM_FROM_NODE, m->to->n, e->axis, e->hint, e->name);
    }
    t->shape[a] = size_in(m, d);
  }
}

void size_map_input(size_map *m, graph_type *t, int lead) {
  for (int a = 0; a < t->rank; a++) {
    qn_dim d = t->shape[a];
    if (d < 0 && !m->known[~d] && !(m->plain && !dim_is_late(&m->from->dims, d))) {
      m->known[~d] = true;
      m->dims[~d] = dim_symbol(&m->to->dims, DIM_FROM_INPUT, m->to->ninputs, (uint16_t)(lead + a),
                               dim_hint(&m->from->dims, d), m->from->dims.exprs[~d].name);
    }
    t->shape[a] = size_in(m, d);
  }
}

void size_map_attr(size_map *m, op_id op, op_attr *attr) {
  for (int k = 0; k < attr->n; k++)
    if (op_attr_is_dim(op, k)) attr->d[k] = size_in(m, attr->d[k]);
}

/* Can a size be translated? */
static bool can_translate(const size_map *m, qn_dim d) {
  if (d >= 0 || m->known[~d]) return true;
  const dim_expr *e = &m->from->dims.exprs[~d];
  if (e->op != DIM_SYMBOL) return can_translate(m, e->a) && can_translate(m, e->b);
  if (m->plain && !dim_of_node(e->source)) return true;
  return m->map[dim_of_node(e->source) ? e->ref : m->from->inputs[e->ref]] != 0;
}

void size_map_facts(size_map *m) {
  m->to->dims.cut |= m->from->dims.cut;
  for (uint32_t k = 0; k < m->from->dims.nfacts; k++) {
    const dim_fact *f = &m->from->dims.facts[k];
    if (!can_translate(m, f->a) || !can_translate(m, f->b)) continue;
    qn_dim a = size_in(m, f->a), b = size_in(m, f->b);
    if (a < 0 || b < 0) dim_assume(&m->to->dims, a, (dim_relation)f->relation, b);
  }
}

bool size_map_type_beside(graph *to, const uint32_t *inputs, const graph *from, uint32_t v, graph_type *t) {
  *t = from->nodes[v].type;
  bool known = true;
  for (int a = 0; a < t->rank; a++) known &= t->shape[a] >= 0;
  if (known) return true;
  size_map m;
  uint32_t *map = calloc(from->n, sizeof *map);
  bool ok = size_map_begin(&m, to, from, map) && map;
  for (uint32_t i = 0; i < from->ninputs && ok; i++) map[from->inputs[i]] = inputs[i];
  if (ok) size_map_type(&m, v, t);
  ok = ok && !m.failed && !to->failed && !to->dims.arena->failed;
  free(map);
  size_map_end(&m);
  return ok;
}

static bool copy_node(size_map *m, uint32_t *map, uint32_t i) {
  graph *to = m->to;
  graph_node n = m->from->nodes[i];
  uint32_t *in = malloc((n.nin + 1u) * sizeof *in);
  if (!in) return false;
  for (int k = 0; k < n.nin; k++) in[k] = map[n.in[k]];
  n.site = 0;
  size_map_type(m, i, &n.type);
  op_attr attr;
  if (n.kind == NODE_OP && n.attr) {
    attr = graph_attr(&n);
    size_map_attr(m, (op_id)n.op, &attr);
    n.attr = &attr;
  }
  map[i] = n.kind == NODE_CONST ? graph_const(to, n.type, n.payload.data, 0) : graph_node_like(to, &n, in);
  free(in);
  return map[i] != 0;
}

bool graph_inline(graph *to, const graph *from, const uint32_t *args, uint32_t *outs, bool sites) {
  size_map m;
  uint32_t *map = calloc(from->n, sizeof *map), nsites = to->nsites - 1, first = to->n;
  bool ok = size_map_begin(&m, to, from, map) && map;
  for (uint32_t s = 1; s < from->nsites && sites && ok; s++) {
    const graph_site x = from->sites[s];
    ok = graph_site_add(to, x.at, x.parent ? x.parent + nsites : 0, x.function, x.whole) == s + nsites;
  }
  for (uint32_t k = 0; k < from->ninputs && ok; k++) /* sizes of one may be those of nodes before it, too */
    map[from->inputs[k]] = args[k];
  for (uint32_t i = 1; i < from->n && ok; i++) {
    if (from->nodes[i].kind != NODE_INPUT) ok = copy_node(&m, map, i);
    if (ok && sites && from->nodes[i].site && from->nodes[i].kind != NODE_INPUT && map[i] >= first)
      to->nodes[map[i]].site = from->nodes[i].site + nsites;
  }
  for (uint32_t k = 0; k < from->noutputs && ok; k++) outs[k] = map[from->outputs[k]];
  if (ok) size_map_facts(&m);
  ok = ok && !m.failed && !to->failed && !to->dims.arena->failed;
  free(map);
  size_map_end(&m);
  return ok;
}
