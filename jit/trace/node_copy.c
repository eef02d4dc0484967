/* Copying nodes from one graph to another (node_copy.h). A site is copied with the sites of the calls around it, each once; the sites that
 * have none around them get the caller's `parent`. */
#include "jit/trace/node_copy.h"

bool copy_begin(node_copy *c, qn_vm *vm, graph *to, const graph *from, uint32_t parent) {
  *c = (node_copy){.vm = vm, .to = to, .from = from, .parent = parent};
  c->map = mem_zalloc(vm, from->n * sizeof *c->map);
  c->sites = c->map ? mem_zalloc(vm, from->nsites * sizeof *c->sites) : NULL;
  return c->sites && (size_map_begin(&c->dims, to, from, c->map) || (raise_memory(vm), false));
}

void copy_end(node_copy *c) {
  if (c->map) mem_free(c->vm, c->map, c->from->n * sizeof *c->map);
  if (c->sites) mem_free(c->vm, c->sites, c->from->nsites * sizeof *c->sites);
  mem_free(c->vm, c->in, c->in_cap * sizeof *c->in);
  size_map_end(&c->dims);
}

static uint32_t copy_site(node_copy *c, uint32_t site) {
  if (!site || site >= c->from->nsites) return c->parent;
  while (!c->sites[site]) {
    uint32_t s = site;
    for (uint32_t up; (up = c->from->sites[s].parent) != 0 && !c->sites[up];) s = up;
    const graph_site *x = &c->from->sites[s];
    c->sites[s] = graph_site_add(c->to, x->at, x->parent ? c->sites[x->parent] : c->parent, x->function, x->whole);
    if (!c->sites[s]) return 0; /* memory was short; the graph is marked as failed */
  }
  return c->sites[site];
}

uint32_t copy_node(node_copy *c, uint32_t i) {
  graph_node n = c->from->nodes[i];
  uint32_t site = copy_site(c, n.site);
  if (n.kind == NODE_CONST) return graph_const(c->to, n.type, n.payload.data, site);
  if (!mem_grow(c->vm, (void **)&c->in, &c->in_cap, n.nin + 1u, sizeof *c->in)) return 0;
  for (int k = 0; k < n.nin; k++) c->in[k] = c->map[n.in[k]];
  n.site = site;
  size_map_type(&c->dims, i, &n.type);
  op_attr attr;
  if (n.kind == NODE_OP && n.attr) {
    attr = graph_attr(&n);
    size_map_attr(&c->dims, (op_id)n.op, &attr);
    n.attr = &attr;
  }
  return graph_node_like(c->to, &n, c->in);
}

bool copy_input(node_copy *c, uint32_t i) {
  graph_type t = c->from->nodes[i].type;
  size_map_input(&c->dims, &t, 0);
  return (c->map[i] = graph_input(c->to, t, 0)) != 0;
}

bool copy_done(node_copy *c) {
  size_map_facts(&c->dims);
  return !c->dims.failed ||
         raise_false(c->vm, E_internal, "a size of a copied graph depends on a node that is not in it");
}

bool copy_all(qn_vm *vm, graph *to, const graph *from, const uint32_t *in, uint32_t *outs,
              uint32_t (*settled)(void *ctx, uint32_t node), qn_dim (*number)(void *ctx, uint32_t node), void *ctx) {
  node_copy c;
  bool ok = copy_begin(&c, vm, to, from, 0);
  c.dims.number = number;
  c.dims.ctx = ctx;
  for (uint32_t i = 1; i < from->n && ok; i++) {
    const graph_node *n = &from->nodes[i];
    c.map[i] = n->kind == NODE_INPUT ? in[n->payload.input] : copy_node(&c, i);
    if (c.map[i] && graph_kind_has_regions(n->kind)) c.map[i] = settled(ctx, c.map[i]);
    ok = c.map[i] != 0;
  }
  for (uint32_t k = 0; k < from->noutputs && ok; k++) outs[k] = c.map[from->outputs[k]];
  ok = ok && copy_done(&c);
  copy_end(&c);
  if (!ok && !error_pending(vm)) raise_memory(vm);
  return ok;
}
