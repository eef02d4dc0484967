/* Graphs: memory, builders, copies, hashes, dead nodes (graph.h).
 *
 * Everything lies in the graph's arena, the graph itself, too. Lists grow by doubling; old copies stay in the arena, since a
 * node may be read while others are appended. Each node has an
 * operand list of its own, so passes may renumber it in place.
 *
 * graph_op makes nodes strict: it asks op_infer and then inserts `cast`, `fit` or a constant for each operand according to its role.
 */
#include "jit/graph/graph.h"

#include <stddef.h>
#include <string.h>

#include "lang/mem.h"

/* ---- memory ---------------------------------------------------------------------------------------------------- */

graph *graph_new(qn_vm *vm) {
  arena a;
  arena_init(&a, vm);
  graph *g = arena_alloc(&a, sizeof *g);
  if (!g) {
    arena_free(&a);
    return NULL;
  }
  g->arena = a;
  g->n = 1;
  g->nsites = 1;
  dim_table_init(&g->dims, &g->arena);
  return g;
}

void graph_cut(graph *g, uint32_t n) {
  while (g->n > n) {
    const graph_node *last = &g->nodes[--g->n];
    for (int k = 0; graph_kind_has_regions(last->kind) && k < 2; k++) graph_free(last->payload.regions[k]);
  }
  if (g->dims.n && n > 1) dim_rename_nodes(&g->dims, NULL, n);
}

graph *graph_share(graph *g) {
  atomic_fetch_add_explicit(&g->sharers, 1, memory_order_relaxed);
  return g;
}

void graph_free(graph *g) {
  if (!g) return;
  if (atomic_load_explicit(&g->sharers, memory_order_acquire) &&
      atomic_fetch_sub_explicit(&g->sharers, 1, memory_order_acq_rel) > 0)
    return;
  graph_cut(g, 1);
  arena a = g->arena; /* a copy, since the graph itself lies in this memory */
  arena_free(&a);
}

static uint32_t fail(graph *g) {
  g->failed = true;
  return 0;
}

static void *take(graph *g, size_t bytes) {
  void *p = arena_alloc(&g->arena, bytes ? bytes : 1);
  if (!p) g->failed = true;
  return p;
}

/* The same for what is filled in at once. */
static void *take_unset(graph *g, size_t bytes) {
  void *p = arena_take(&g->arena, bytes);
  if (!p) g->failed = true;
  return p;
}

/* Makes room for one more element in a list of n. */
static bool grow(graph *g, void **list, uint32_t *cap, uint32_t n, size_t size) {
  if (n < *cap) return true;
  bool first = !*cap;
  if (!arena_room_unset(&g->arena, list, cap, (size_t)n + 1, size)) return fail(g);
  if (first) memset(*list, 0, size); /* node 0 and site 0 are none */
  return true;
}

static const char *take_text(graph *g, const char *text) {
  if (!text) return NULL;
  size_t len = strlen(text) + 1;
  char *p = take(g, len);
  return p ? memcpy(p, text, len) : NULL;
}

/* ---- builders ------------------------------------------------------------------------------------------------------ */

uint32_t graph_site_add(graph *g, span at, uint32_t parent, const char *function, bool whole) {
  if (!grow(g, (void **)&g->sites, &g->sites_cap, g->nsites, sizeof *g->sites)) return 0;
  const char *copy = NULL;
  if (function && g->nsites > 1) { /* most sites can share the name of the site before */
    const char *last = g->sites[g->nsites - 1].function;
    if (last && strcmp(last, function) == 0) copy = last;
  }
  if (function && !copy && !(copy = take_text(g, function))) return 0;
  g->sites[g->nsites] = (graph_site){at, parent, copy, whole};
  return g->nsites++;
}

/* Appends a node whose parts lie in the arena already. */
static uint32_t append(graph *g, const graph_node *n) {
  if (g->arena.failed || g->n >= GRAPH_MAX_NODES) return fail(g);
  if (!grow(g, (void **)&g->nodes, &g->cap, g->n, sizeof *g->nodes)) return 0;
  g->nodes[g->n] = *n;
  return g->n++;
}

static const uint32_t *take_operands(graph *g, const uint32_t *in, int nin) {
  uint32_t *copy = take_unset(g, (size_t)nin * sizeof *copy);
  return copy && nin ? memcpy(copy, in, (size_t)nin * sizeof *copy) : copy;
}

static const op_attr *take_attr(graph *g, const op_attr *attr) {
  size_t bytes = offsetof(op_attr, d) + attr->n * sizeof *attr->d;
  op_attr *copy = take_unset(g, bytes);
  return copy ? memcpy(copy, attr, bytes) : NULL;
}

uint32_t graph_input(graph *g, graph_type type, uint32_t site) {
  graph_node n = {.kind = NODE_INPUT, .site = site, .type = type, .payload.input = g->ninputs};
  if (!grow(g, (void **)&g->inputs, &g->inputs_cap, g->ninputs, sizeof *g->inputs)) return 0;
  uint32_t node = append(g, &n);
  if (node) g->inputs[g->ninputs++] = node;
  return node;
}

bool graph_make_input(graph *g, uint32_t node) {
  graph_node *n = &g->nodes[node];
  if (!grow(g, (void **)&g->inputs, &g->inputs_cap, g->ninputs, sizeof *g->inputs)) return false;
  *n = (graph_node){.kind = NODE_INPUT, .site = n->site, .type = n->type, .payload.input = g->ninputs};
  g->inputs[g->ninputs++] = node;
  return true;
}

uint32_t graph_const(graph *g, graph_type type, const void *data, uint32_t site) {
  size_t bytes = graph_const_bytes(&type);
  void *copy = take(g, bytes + ARRAY_TAIL);
  if (!copy) return 0;
  if (bytes) memcpy(copy, data, bytes);
  graph_node n = {.kind = NODE_CONST, .site = site, .type = type, .payload.data = copy};
  return append(g, &n);
}

uint32_t graph_const_scalar(graph *g, qn_dtype dtype, bool weak, double f, int64_t i, uint32_t site) {
  char data[16] = {0};
  dtype_store(dtype, data, dtype_scalar(dtype, f, i));
  return graph_const(g, (graph_type){.dtype = (uint8_t)dtype, .weak = weak}, data, site);
}

uint32_t graph_full(graph *g, const graph_type *like, double x, uint32_t site) {
  op_attr attr = graph_shape_attr(like->rank, like->shape); /* `like` may lie in the list of nodes, which moves */
  uint32_t number = graph_const_scalar(g, (qn_dtype)like->dtype, like->weak, x, (int64_t)x, site);
  return number && attr.n ? graph_op(g, OP_broadcast, &number, 1, &attr, site) : number;
}

uint32_t graph_alias(graph *g, uint32_t node, uint32_t site) {
  if (!node) return 0;
  graph_type t = g->nodes[node].type;
  if (t.weak) {
    const uint32_t in[] = {node, graph_const_scalar(g, (qn_dtype)t.dtype, true, 1.0, 0, 0)};
    return graph_op(g, OP_mul, in, 2, NULL, site);
  }
  op_attr attr = graph_shape_attr(t.rank, t.shape);
  return graph_node_raw(g, OP_reshape, &node, 1, &attr, t, site);
}

bool graph_const_value(const graph *g, uint32_t node, qn_value *value) {
  const graph_node *n = &g->nodes[node];
  if (n->kind != NODE_CONST) return false;
  for (int i = 0; i < n->type.rank; i++)
    if (n->type.shape[i] != 1) return false;
  *value = dtype_load((qn_dtype)n->type.dtype, n->payload.data);
  return true;
}

uint32_t graph_node_raw(graph *g, op_id op, const uint32_t *in, int nin, const op_attr *attr, graph_type type,
                        uint32_t site) {
  for (int i = 0; i < nin; i++)
    if (!in[i]) return fail(g);
  static const op_attr none;
  if (nin > UINT16_MAX) return fail(g);
  if (op_has_attr(op) && !attr) attr = &none;
  if (!op_has_attr(op) && attr && memcmp(attr, &none, offsetof(op_attr, d)) == 0) attr = NULL;
  graph_node n = {.kind = NODE_OP, .op = (uint8_t)op, .nin = (uint16_t)nin, .site = site, .type = type};
  if (!(n.in = take_operands(g, in, nin)) || (attr && !(n.attr = take_attr(g, attr)))) return 0;
  return append(g, &n);
}

bool graph_fix_operand(graph *g, uint32_t node, int k, uint32_t with) {
  graph_node *n = &g->nodes[node];
  uint32_t *in = take_unset(g, n->nin * sizeof *in);
  if (!in) return false;
  memcpy(in, n->in, n->nin * sizeof *in);
  in[k] = with;
  n->in = in;
  return true;
}

bool graph_fix_flags(graph *g, uint32_t node, uint8_t flags) {
  op_attr full = graph_attr(&g->nodes[node]);
  full.flags = flags;
  const op_attr *attr = take_attr(g, &full);
  if (attr) g->nodes[node].attr = attr;
  return attr != NULL;
}

bool graph_set_attr(graph *g, uint32_t node, const op_attr *attr) {
  const op_attr *copy = take_attr(g, attr);
  if (copy) g->nodes[node].attr = copy;
  return copy != NULL;
}

bool graph_fix_gemm(graph *g, uint32_t node, uint8_t flags) {
  return graph_set_attr(g, node, &(op_attr){.flags = flags});
}

graph_type graph_result_type(const graph_node *n, uint32_t index) {
  const graph *r = n->payload.regions[n->kind == NODE_LOOP];
  if (index >= r->noutputs) return (graph_type){.dtype = WEAK_INT, .weak = true};
  graph_type t = r->nodes[r->outputs[index]].type;
  if (n->kind != NODE_LOOP || index < graph_loop_carries(n) || t.rank == ARRAY_MAX_RANK) return t;
  memmove(t.shape + 1, t.shape, t.rank * sizeof *t.shape);
  t.shape[0] = 0;
  t.rank++;
  t.weak = false;
  return t;
}

uint32_t graph_regions(graph *g, graph_kind kind, const uint32_t *in, int nin, graph *first, graph *second,
                       const op_attr *attr, uint32_t site) {
  graph_node n = {.kind = (uint8_t)kind, .nin = (uint16_t)nin, .site = site, .type = {.dtype = DTYPE_TEST}};
  n.payload.regions[0] = first;
  n.payload.regions[1] = second;
  bool ok = first && second && nin <= UINT16_MAX && (!attr || (n.attr = take_attr(g, attr)));
  for (int i = 0; i < nin; i++) ok = ok && in[i];
  uint32_t node = ok && (n.in = take_operands(g, in, nin)) ? append(g, &n) : fail(g);
  if (node) return node;
  graph_free(first);
  graph_free(second);
  return 0;
}

uint32_t graph_tap(graph *g, uint32_t number, const uint32_t *in, int nin, bool reads, uint32_t site) {
  graph_node n = {
      .kind = NODE_TAP, .nin = (uint16_t)nin, .site = site, .type = {.dtype = DTYPE_TEST}, .payload.tap = number};
  if (reads) n.type = (graph_type){.dtype = WEAK_FLOAT, .weak = true};
  bool ok = nin <= UINT16_MAX;
  for (int i = 0; i < nin; i++) ok = ok && in[i];
  return ok && (n.in = take_operands(g, in, nin)) ? append(g, &n) : fail(g);
}

uint32_t graph_proj(graph *g, uint32_t node, uint32_t index, graph_type type, uint32_t site) {
  graph_node n = {.kind = NODE_PROJ, .nin = 1, .site = site, .type = type, .payload.index = index};
  const graph_node *of = &g->nodes[node];
  if (node && of->kind == NODE_LOOP && index >= graph_loop_carries(of) && index < of->payload.regions[1]->noutputs) {
    if (type.rank == ARRAY_MAX_RANK) return fail(g);
    memmove(n.type.shape + 1, type.shape, type.rank * sizeof *type.shape);
    /* the hint is no size that broadcasts */
    n.type.shape[0] = dim_symbol(&g->dims, DIM_FROM_NODE, g->n, 0, 2, NULL);
    n.type.rank++;
    n.type.weak = false;
  }
  return node && (n.in = take_operands(g, &node, 1)) ? append(g, &n) : fail(g);
}

uint32_t graph_proj_again(graph *g, const graph_node *n) {
  const graph_node *of = &g->nodes[n->in[0]];
  graph_type t = n->type;
  bool row = of->kind == NODE_LOOP && n->payload.index >= graph_loop_carries(of) &&
             n->payload.index < of->payload.regions[1]->noutputs;
  if (row) memmove(t.shape, t.shape + 1, --t.rank * sizeof *t.shape);
  return graph_proj(g, n->in[0], n->payload.index, t, n->site);
}

bool graph_regions_fallible(const graph_node *n) {
  for (int k = 0; k < 2; k++) {
    const graph *r = n->payload.regions[k];
    for (uint32_t i = 1; i < r->n; i++)
      if (graph_fallible(r, i)) return true;
  }
  return false;
}

bool graph_prove(graph *g) {
  for (uint32_t i = 1; i < g->n; i++)
    if (!graph_node_prove(g, i)) return false;
  return true;
}

bool graph_node_prove(graph *g, uint32_t node) {
  graph_node *n = &g->nodes[node];
  if (graph_kind_has_regions(n->kind)) return graph_prove(n->payload.regions[0]) && graph_prove(n->payload.regions[1]);
  if (n->kind == NODE_TAP && n->type.weak) return true; /* others read what it gives */
  if (n->kind == NODE_TAP) {
    n->payload.tap = GRAPH_TAP_MADE;
    n->nin = 0;
    return true;
  }
  return !graph_fallible(g, node) || graph_fix_flags(g, node, graph_attr(n).flags | ATTR_PROVEN);
}

bool graph_output(graph *g, uint32_t node) {
  if (!node || !grow(g, (void **)&g->outputs, &g->outputs_cap, g->noutputs, sizeof *g->outputs)) {
    g->failed = true;
    return false;
  }
  g->outputs[g->noutputs++] = node;
  return true;
}

qn_dim graph_elements(graph *g, const graph_type *t) {
  qn_dim n = 1;
  for (int i = 0; i < t->rank; i++) n = dim_mul(&g->dims, n, t->shape[i]);
  return n;
}

/* ---- ops as the language means them -------------------------------------------------------------------------------------- */

/* A constant scalar converted to another type, if every executor would convert it to the same value. Returns 0 if the node is no
 * constant scalar or the value does not fit. */
static uint32_t const_as(graph *g, uint32_t node, qn_dtype dtype, bool weak, uint32_t site) {
  const graph_node *n = &g->nodes[node];
  qn_value v;
  if (n->type.rank || !n->type.weak || !graph_const_value(g, node, &v)) return 0;
  if (dtype_is_float((qn_dtype)n->type.dtype) && !dtype_is_float(dtype)) return 0;
  if (n->type.dtype == WEAK_INT &&
      (dtype_is_bool(dtype) ||
       ((v.u.i < 0 ? -(uint64_t)v.u.i : (uint64_t)v.u.i) > (1 << 24) && dtype_is_narrow(dtype))))
    return 0; /* executors convert to f16 and bf16 by way of f32, which would round twice */
  if (!dtype_holds(dtype, v)) return 0;
  double f = value_is(v, TAG_FLOAT) ? v.u.f : (double)v.u.i;
  if (dtype_is_float(dtype) && dtype_size(dtype) == 4 && !value_is(v, TAG_FLOAT))
    f = (double)(float)v.u.i; /* directly, so that it is rounded only once */
  return graph_const_scalar(g, dtype, weak, f, value_is(v, TAG_FLOAT) ? 0 : v.u.i, site);
}

/* Makes a node a strict operand of this dtype: a host number if `weak`, else an array. */
static uint32_t convert(graph *g, uint32_t node, qn_dtype dtype, bool weak, uint32_t site) {
  graph_type t = g->nodes[node].type;
  if (t.dtype == dtype && t.weak == weak) return node;
  op_attr attr = {.dtype = (uint8_t)dtype};
  op_id op = OP_cast;
  if (t.weak) {
    uint32_t c = const_as(g, node, dtype, weak, site);
    if (c || g->failed) return c;
    if (!weak) op = OP_fit;
  }
  if (weak) attr.flags = ATTR_WEAK;
  t.dtype = (uint8_t)dtype;
  t.weak = weak;
  return graph_node_raw(g, op, &node, 1, &attr, t, site);
}

uint32_t graph_cast(graph *g, uint32_t node, qn_dtype dtype, uint32_t site) {
  if (!node) return fail(g);
  graph_type t = g->nodes[node].type;
  if (t.dtype == dtype && !t.weak) return node;
  op_attr attr = {.dtype = (uint8_t)dtype};
  t.dtype = (uint8_t)dtype;
  t.weak = false;
  return graph_node_raw(g, OP_cast, &node, 1, &attr, t, site);
}

/* Is weak node n a constant of magnitude below 2^53, or 2^53 itself? */
static bool below_2_53(const graph *g, uint32_t n) {
  qn_value v;
  if (!graph_const_value(g, n, &v)) return false;
  return value_is(v, TAG_FLOAT) ? v.u.f > -0x1p53 && v.u.f < 0x1p53 : v.u.i >= -(1LL << 53) && v.u.i <= 1LL << 53;
}

/* Compares a host int i with a host float f by their exact values. Let r be i rounded to a float. Where r and f differ, they are in the
 * order of i and f; where they are equal, the sign of i - r decides. That difference is computed exactly: the upper 53 bits of i are a
 * float, so are the lower 11, and so is the difference of r and the upper ones. Returns 0 where one operand is a constant so small that
 * rounding the int cannot matter, and a plain comparison will do. */
static uint32_t compare_mixed(graph *g, op_id op, const uint32_t *in, uint32_t site) {
  bool turned = g->nodes[in[0]].type.dtype == WEAK_FLOAT;
  uint32_t i = in[turned], f = in[!turned];
  if (below_2_53(g, i) || below_2_53(g, f)) return 0;
  if (turned) op = op == OP_lt ? OP_gt : op == OP_gt ? OP_lt : op == OP_le ? OP_ge : op == OP_ge ? OP_le : op;
  op_id strictly = op == OP_le ? OP_lt : op == OP_ge ? OP_gt : op;
#define OP2(op, a, b) graph_op(g, op, (uint32_t[2]){a, b}, 2, NULL, site)
  uint32_t r = convert(g, i, WEAK_FLOAT, true, site);
  uint32_t low = OP2(OP_bitand, i, graph_const_scalar(g, WEAK_INT, true, 0, 2047, site));
  uint32_t high = OP2(OP_bitand, i, graph_const_scalar(g, WEAK_INT, true, 0, ~(int64_t)2047, site));
  if (!r || !low || !high) return fail(g);
  uint32_t lost =
      OP2(OP_sub, convert(g, low, WEAK_FLOAT, true, site), OP2(OP_sub, r, convert(g, high, WEAK_FLOAT, true, site)));
  uint32_t lost_test = OP2(op, lost, graph_const_scalar(g, WEAK_FLOAT, true, 0.0, 0, site));
  if (op == OP_ne) return OP2(OP_bitor, OP2(OP_ne, r, f), lost_test);
  uint32_t tie = OP2(OP_bitand, OP2(OP_eq, r, f), lost_test);
  return op == OP_eq ? tie : OP2(OP_bitor, OP2(strictly, r, f), tie);
#undef OP2
}

/* Makes an operand strict. */
static uint32_t strict(graph *g, op_role role, uint32_t node, const op_types *t, uint32_t site) {
  switch (role) {
  case ROLE_DATA: return convert(g, node, t->compute, t->weak, site);
  case ROLE_CONDITION: return convert(g, node, DTYPE_TEST, t->weak, site);
  case ROLE_INDEX: return g->nodes[node].type.weak ? convert(g, node, DTYPE_INDEX, false, site) : node;
  case ROLE_AS_IS:
  case ROLE_KEY: break;
  }
  return node;
}

/* The product of two vectors is the sum of the products of their elements, as x * y and sum make it, in the order of sums: a node of dot
 * would be one chain of fma, in which each waits for the one before. f16 and bf16 are multiplied and summed in f32 and rounded once, as in
 * other products. The nodes are seen as a call of dot (composites.h). */
static uint32_t vector_product(graph *g, const uint32_t in[2], qn_dtype dtype, uint32_t site) {
  qn_dtype wide = dtype_is_float(dtype) ? dtype_compute(dtype) : dtype;
  if (site) {
    const graph_site at = g->sites[site]; /* each call has a site of its own */
    uint32_t call = graph_site_add(g, at.at, at.parent, at.function, at.whole);
    if (!call || !(site = graph_site_add(g, at.at, call, op_rows[OP_dot].name, true))) return fail(g);
  }
  uint32_t factors[2];
  for (int i = 0; i < 2; i++)
    if (!(factors[i] = graph_cast(g, in[i], wide, site))) return 0;
  uint32_t products = graph_op(g, OP_mul, factors, 2, NULL, site);
  const op_attr axis = {.axes = 1};
  return products ? graph_cast(g, graph_op(g, OP_sum, &products, 1, &axis, site), dtype, site) : 0;
}

uint32_t graph_op_typed(graph *g, op_id op, const uint32_t *in, int nin, const op_attr *attr, const op_types *t,
                        uint32_t site) {
  uint32_t few_nodes[8], *nodes = few_nodes;
  if (nin > 8 && !(nodes = take(g, (size_t)nin * sizeof *nodes))) return 0;
  if (t->weak && op_rows[op].dtype_rule == DT_compare && t->compute == WEAK_FLOAT) {
    qn_dtype a = (qn_dtype)g->nodes[in[0]].type.dtype, b = (qn_dtype)g->nodes[in[1]].type.dtype;
    if (a != b && (a == WEAK_INT || b == WEAK_INT)) {
      uint32_t exact = compare_mixed(g, op, in, site);
      if (exact || g->failed) return exact;
    }
  }
  for (int i = 0; i < nin; i++)
    if (!(nodes[i] = strict(g, op_operand_role(op, i, nin), in[i], t, site))) return fail(g);
  if (op == OP_dot && dot_is_sum(g->nodes[nodes[0]].type.rank, g->nodes[nodes[1]].type.rank))
    return vector_product(g, nodes, (qn_dtype)t->result.dtype, site);
  graph_type result = t->result;
  if (op_rows[op].shape_rule == SH_data) {
    int64_t bound = dim_hint(&g->dims, result.shape[0]);
    result.shape[0] = dim_symbol(&g->dims, DIM_FROM_NODE, g->n, 0, bound, NULL);
  }
  return graph_node_raw(g, op, nodes, nin, attr, result, site);
}

uint32_t graph_op(graph *g, op_id op, const uint32_t *in, int nin, const op_attr *attr, uint32_t site) {
  graph_type few_types[8], *types = few_types;
  few_types[0] = (graph_type){0}; /* for ops without operands */
  for (int i = 0; i < nin; i++)
    if (!in[i]) return fail(g);
  if (nin > 8 && !(types = take(g, (size_t)nin * sizeof *types))) return 0;
  for (int i = 0; i < nin; i++) types[i] = g->nodes[in[i]].type;
  op_types t;
  op_refusal why;
  if (!op_infer(&g->dims, op, types, nin, attr, &t, &why)) return fail(g);
  return graph_op_typed(g, op, in, nin, attr, &t, site);
}

bool graph_commutes(const graph_node *n) {
  switch ((op_id)n->op) {
  case OP_add:
  case OP_mul:
  case OP_smul:
  case OP_minimum:
  case OP_maximum:
  case OP_eq:
  case OP_ne:
  case OP_bitand:
  case OP_bitor:
  case OP_xor: return n->kind == NODE_OP;
  default: return false;
  }
}

/* ---- copies ---------------------------------------------------------------------------------------------------------------- */

uint32_t graph_node_like(graph *to, const graph_node *of, const uint32_t *in) {
  graph_node n = *of;
  if (!(n.in = take_operands(to, in, n.nin)) || (n.attr && !(n.attr = take_attr(to, n.attr)))) return 0;
  if (!graph_kind_has_regions(n.kind)) return append(to, &n);
  n.payload.regions[0] = graph_copy(of->payload.regions[0]);
  n.payload.regions[1] = n.payload.regions[0] ? graph_copy(of->payload.regions[1]) : NULL;
  uint32_t copy = n.payload.regions[1] ? append(to, &n) : fail(to);
  if (!copy) {
    graph_free(n.payload.regions[0]);
    graph_free(n.payload.regions[1]);
  }
  return copy;
}

uint32_t graph_node_copy(graph *to, const graph *from, uint32_t node, const uint32_t *map) {
  const graph_node *n = &from->nodes[node];
  if (n->kind == NODE_INPUT) return graph_input(to, n->type, n->site);
  if (n->kind == NODE_CONST) return graph_const(to, n->type, n->payload.data, n->site);
  uint32_t *in = take(to, n->nin * sizeof *in);
  for (int i = 0; in && i < n->nin; i++) in[i] = map[n->in[i]];
  return in ? graph_node_like(to, n, in) : 0;
}

/* Makes a list, which is empty, one of just n elements, in a block of its own if it is long. */
static bool list_exact(graph *g, void **list, uint32_t *cap, uint32_t n, size_t size) {
  enum { LONG = 4096 };
  if (n * size >= LONG && !arena_reserve(&g->arena, n * size, 1)) return fail(g);
  if (!(*list = take_unset(g, n * size))) return false;
  *cap = n;
  if (n) memset(*list, 0, size);
  return true;
}

bool graph_copy_frame(graph *to, const graph *from) {
  to->fast_math = from->fast_math;
  to->tail = from->tail;
  to->derived = from->derived;
  if (!dim_table_copy(&to->dims, &from->dims, &to->arena)) to->failed = true;
  if (to->failed || from->nsites <= 1) return !to->failed;
  if (!list_exact(to, (void **)&to->sites, &to->sites_cap, from->nsites, sizeof *to->sites)) return false;
  memcpy(to->sites + 1, from->sites + 1, (from->nsites - 1) * sizeof *to->sites);
  const char *last = NULL, *copy = NULL; /* most sites can share the name of the site before */
  for (uint32_t i = 1; i < from->nsites && !to->failed; i++) {
    const char *function = from->sites[i].function;
    if (function && function != last) copy = take_text(to, last = function);
    to->sites[i].function = function ? copy : NULL;
  }
  to->nsites = from->nsites;
  return !to->failed;
}

static size_t rounded(size_t bytes) { return bytes ? (bytes + 15) & ~(size_t)15 : 16; } /* as arenas do */

/* The parts of all nodes go into one block. */
static size_t parts_bytes(const graph *g) {
  size_t bytes = 0;
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    bytes += rounded(n->nin * sizeof *n->in);
    if (n->attr) bytes += rounded(offsetof(op_attr, d) + n->attr->n * sizeof *n->attr->d);
    if (n->kind == NODE_CONST) bytes += rounded(graph_const_bytes(&n->type) + ARRAY_TAIL);
  }
  return bytes;
}

/* Gives a node, a copy with the parts of another graph's node, parts of its own. `from`: that node, if its regions move; else NULL. */
static bool own_parts(graph *to, graph_node *n, graph_node *from) {
  if (graph_kind_has_regions(n->kind) && from) {
    from->payload.regions[0] = from->payload.regions[1] = NULL;
  } else if (graph_kind_has_regions(n->kind)) { /* a graph that is given up frees what its nodes have */
    const graph *first = n->payload.regions[0], *second = n->payload.regions[1];
    n->payload.regions[0] = graph_copy(first);
    n->payload.regions[1] = graph_copy(second);
    if (!n->payload.regions[0] || !n->payload.regions[1]) return fail(to);
  } else if (n->kind == NODE_CONST) {
    size_t bytes = graph_const_bytes(&n->type);
    char *data = take_unset(to, bytes + ARRAY_TAIL);
    if (!data) return false;
    if (bytes) memcpy(data, n->payload.data, bytes);
    memset(data + bytes, 0, ARRAY_TAIL);
    n->payload.data = data;
  }
  return (n->in = take_operands(to, n->in, n->nin)) && (!n->attr || (n->attr = take_attr(to, n->attr)));
}

/* graph_copy of g; or graph_move of `from`, which is g. */
static graph *copy_or_move(const graph *g, graph *from) {
  graph *to = graph_new(NULL);
  if (!to) return NULL;
  to->grad_bytes = g->grad_bytes;
  bool ok = graph_copy_frame(to, g) && list_exact(to, (void **)&to->nodes, &to->cap, g->n, sizeof *to->nodes) &&
            arena_reserve(&to->arena, parts_bytes(g), 0);
  if (ok && g->n > 1) memcpy(to->nodes + 1, g->nodes + 1, (g->n - 1) * sizeof *to->nodes);
  for (uint32_t i = 1; ok && i < g->n; i++) { /* all nodes keep their numbers */
    ok = own_parts(to, &to->nodes[i], from ? &from->nodes[i] : NULL);
    to->n = i + 1;
  }
  if (ok && g->ninputs) {
    ok = list_exact(to, (void **)&to->inputs, &to->inputs_cap, g->ninputs, sizeof *to->inputs);
    if (ok) memcpy(to->inputs, g->inputs, g->ninputs * sizeof *to->inputs);
    if (ok) to->ninputs = g->ninputs;
  }
  for (uint32_t i = 0; ok && i < g->noutputs; i++) ok = graph_output(to, g->outputs[i]);
  to->failed |= g->failed || to->arena.failed;
  if (ok && !to->arena.failed) return to;
  graph_free(to);
  return NULL;
}

graph *graph_copy(const graph *g) { return copy_or_move(g, NULL); }

graph *graph_move(graph *g) { return copy_or_move(g, g); }

/* ---- dead nodes ---------------------------------------------------------------------------------------------------------------- */

static void each_node_of_dim(const dim_table *t, qn_dim d, void (*visit)(void *ctx, uint32_t node), void *ctx) {
  if (d >= 0) return;
  const dim_expr e = t->exprs[~d];
  if (e.op == DIM_SYMBOL) {
    if (dim_of_node(e.source) && e.ref) visit(ctx, e.ref);
    return;
  }
  each_node_of_dim(t, e.a, visit, ctx);
  each_node_of_dim(t, e.b, visit, ctx);
}

bool graph_is_check(const graph *g, uint32_t n) {
  const graph_node *node = &g->nodes[n];
  qn_value one;
  return node->kind == NODE_OP && node->op == OP_floordiv && graph_const_value(g, node->in[0], &one) &&
         value_is(one, TAG_INT) && one.u.i == 1;
}

bool graph_makes_sizes(const graph *region, uint32_t k) {
  for (uint32_t i = 0; i < region->dims.n; i++) {
    const dim_expr *e = &region->dims.exprs[i];
    if (e->op == DIM_SYMBOL && e->source == DIM_FROM_SCALAR && e->ref == k) return true;
  }
  return false;
}

bool graph_has_turn_sizes(const graph *g) {
  bool any = g->dims.strict;
  for (uint32_t i = 1; i < g->n && !any; i++)
    for (int k = 0; k < 2 && graph_kind_has_regions(g->nodes[i].kind); k++)
      any |= graph_has_turn_sizes(g->nodes[i].payload.regions[k]);
  return any;
}

void graph_each_size_node(const graph *g, uint32_t n, void (*visit)(void *ctx, uint32_t node), void *ctx) {
  const graph_node *node = &g->nodes[n];
  for (int a = 0; a < node->type.rank; a++) each_node_of_dim(&g->dims, node->type.shape[a], visit, ctx);
  for (int k = 0; node->attr && k < node->attr->n; k++)
    if (op_attr_is_dim((op_id)node->op, k)) each_node_of_dim(&g->dims, node->attr->d[k], visit, ctx);
}

static void mark_live(void *live, uint32_t node) { ((bool *)live)[node] = true; }

/* Marks all nodes of a region, and the args of its rule, as live if one of its results is. */
static void mark_region(const graph_region *x, bool *live) {
  bool any = false;
  for (uint32_t k = 0; k < x->nouts; k++) any |= x->outs[k] && live[x->outs[k]];
  for (uint32_t k = 0; k < x->nargs && any; k++) live[x->args[k]] = true;
  for (uint32_t k = 0; k < x->nouts && any; k++) live[x->outs[k]] = true;
}

static void renumber_region(graph_region *x, const uint32_t *map) {
  /* the owner has made them to be renumbered here */
  uint32_t *args = (uint32_t *)x->args, *outs = (uint32_t *)x->outs;
  uint32_t first = 0, end = 0;
  for (uint32_t k = x->first; k < x->end; k++) {
    if (!map[k]) continue;
    if (!first) first = map[k];
    end = map[k] + 1;
  }
  x->first = first;
  x->end = end;
  for (uint32_t k = 0; k < x->nargs; k++) args[k] = map[args[k]];
  for (uint32_t k = 0; k < x->nouts; k++) outs[k] = map[outs[k]];
}

void graph_dce(graph *g) { graph_dce_regions(g, NULL, 0); }

void graph_dce_regions(graph *g, graph_region *regions, uint32_t nregions) {
  uint32_t n = g->n, left = nregions;
  bool *live = take(g, n * sizeof *live);
  uint32_t *map = take(g, n * sizeof *map);
  if (!live || !map) return;
  for (uint32_t i = 0; i < g->noutputs; i++) live[g->outputs[i]] = true;
  for (uint32_t i = 1; i < n; i++) live[i] |= g->nodes[i].kind == NODE_INPUT || graph_fallible(g, i);
  for (uint32_t i = n - 1; i > 0; i--) {
    while (left && regions[left - 1].end > i) mark_region(&regions[--left], live);
    if (!live[i]) continue;
    const graph_node *node = &g->nodes[i];
    for (int k = 0; k < node->nin; k++) live[node->in[k]] = true;
    graph_each_size_node(g, i, mark_live, live);
  }
  uint32_t next = 1;
  for (uint32_t i = 1; i < n; i++) {
    graph_node node = g->nodes[i];
    if (!live[i]) {
      if (node.kind == NODE_IF || node.kind == NODE_LOOP) {
        graph_free(node.payload.regions[0]);
        graph_free(node.payload.regions[1]);
      }
      continue;
    }
    uint32_t *in = (uint32_t *)node.in; /* no other node shares the list */
    for (int k = 0; k < node.nin; k++) in[k] = map[in[k]];
    map[i] = next;
    g->nodes[next++] = node;
  }
  g->n = next;
  for (uint32_t i = 0; i < g->ninputs; i++) g->inputs[i] = map[g->inputs[i]];
  for (uint32_t i = 0; i < g->noutputs; i++) g->outputs[i] = map[g->outputs[i]];
  dim_rename_nodes(&g->dims, map, n);
  for (uint32_t i = 0; i < nregions; i++) renumber_region(&regions[i], map);
}

/* ---- hash ------------------------------------------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t h, uint64_t x) {
  h = (h ^ x) * 0xff51afd7ed558ccdu;
  return h ^ h >> 32;
}

static uint64_t mix_bytes(uint64_t h, const void *data, size_t bytes) {
  const unsigned char *p = data;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    uint64_t word;
    memcpy(&word, p, 8);
    h = mix(h, word);
  }
  uint64_t rest = bytes;
  for (; bytes; bytes--) rest = rest << 8 | *p++;
  return mix(h, rest);
}

static uint64_t hash_type(const graph *g, uint64_t h, const graph_type *t) {
  h = mix(h, (uint64_t)t->dtype << 16 | (uint64_t)t->rank << 8 | t->weak);
  for (int i = 0; i < t->rank; i++) h = mix(h, dim_hash(&g->dims, t->shape[i]));
  return h;
}

uint64_t graph_attr_hash(const graph *g, op_id op, const op_attr *a, uint64_t h) {
  if (!a) return mix(h, 0);
  const uint8_t head[] = {a->dtype, a->axes, a->keepdims, a->mode, a->flags, a->n};
  h = mix_bytes(h, head, sizeof head);
  for (int i = 0; i < a->n; i++) h = mix(h, op_attr_is_dim(op, i) ? dim_hash(&g->dims, a->d[i]) : (uint64_t)a->d[i]);
  return h;
}

uint64_t graph_hash(const graph *g) {
  uint64_t h = g->fast_math;
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    h = mix(h, (uint64_t)n->kind << 32 | (uint64_t)(n->kind == NODE_OP ? n->op : 0) << 16 | n->nin);
    for (int k = 0; k < n->nin; k++) h = mix(h, n->in[k]);
    h = hash_type(g, h, &n->type);
    switch ((graph_kind)n->kind) {
    case NODE_OP: h = graph_attr_hash(g, (op_id)n->op, n->attr, h); break;
    case NODE_INPUT: h = mix(h, n->payload.input); break;
    case NODE_CONST: h = mix_bytes(h, n->payload.data, graph_const_bytes(&n->type)); break;
    case NODE_IF:
    case NODE_LOOP:
      if (n->attr) h = mix(mix(h, (uint64_t)n->attr->d[0]), (uint64_t)n->attr->d[1]);
      h = mix(h, graph_hash(n->payload.regions[0]));
      h = mix(h, graph_hash(n->payload.regions[1]));
      break;
    case NODE_PROJ: h = mix(h, n->payload.index); break;
    case NODE_TAP: h = mix(h, n->payload.tap); break;
    }
  }
  for (uint32_t i = 0; i < g->ninputs; i++) h = mix(h, g->inputs[i]);
  h = mix(h, g->ninputs);
  for (uint32_t i = 0; i < g->noutputs; i++) h = mix(h, g->outputs[i]);
  return mix(h, g->noutputs);
}

bool graph_has_taps(const graph *g, uint32_t from) {
  for (uint32_t i = from; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    if (n->kind == NODE_TAP) return true;
    for (int k = 0; k < 2 && graph_kind_has_regions(n->kind); k++)
      if (graph_has_taps(n->payload.regions[k], 1)) return true;
  }
  return false;
}
