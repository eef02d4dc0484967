/* Products within regions (products.h).
 *
 * By which signature a device's library makes a product depends on how its operands lie in memory (jit/run/gemm.h). Outside regions that is
 * seen when the product is executed; regions are recorded without being executed, and one that is executed may have another arm that is
 * not. So it is worked out, from how the region's operands lie: what an op computes has no gaps, and views follow what they are views of.
 * Turns of a loop are gone through until what it carries lies as it did before: that is the second one, unless carries are exchanged. A product
 * that would be made in two ways, or of whose operands a size is not known, cannot be fixed. */
#include "jit/trace/products.h"

#include <string.h>

#include "jit/run/gemm.h"

/* A product, and what is to be written to it. */
typedef struct product {
  graph *g;
  uint32_t node;
  uint8_t flags;
} product;

typedef struct layouts {
  qn_vm *vm;
  int device;
  product *products;
  uint32_t n, cap;
  bool varies, sized;
} layouts;

enum { TURNS = 16 /* that are gone through at most */ };

/* A header without data; where its size is negative, nothing is known. */
typedef qn_array header;

static void unknown(header *a) { *a = (header){.rank = 0, .size = -1}; }
static bool is_known(const header *a) { return a->size >= 0; }

/* Sets *a to an array of this type without gaps. */
static void fresh(const layouts *l, const graph_type *t, header *a) {
  *a = (header){.dtype = t->dtype, .rank = t->rank, .device = (uint8_t)l->device, .contiguous = 1};
  for (int i = 0; i < t->rank; i++) {
    if (t->shape[i] < 0) {
      unknown(a);
      return;
    }
    a->shape[i] = t->shape[i];
  }
  a->size = shape_strides(t->rank, a->shape, a->strides);
}

static void note_gaps(header *a) {
  int64_t shape[ARRAY_MAX_RANK], strides[ARRAY_MAX_RANK];
  memcpy(shape, a->shape, sizeof shape);
  shape_strides(a->rank, shape, strides);
  a->contiguous = 1;
  for (int i = 0; i < a->rank; i++) a->contiguous &= a->shape[i] == 1 || a->strides[i] == strides[i];
}

static bool same_layout(const header *a, const header *b) {
  if (!is_known(a) && !is_known(b)) return true;
  if (!is_known(a) || !is_known(b) || a->rank != b->rank) return false;
  for (int i = 0; i < a->rank; i++)
    if (a->shape[i] != b->shape[i] || (a->shape[i] != 1 && a->strides[i] != b->strides[i])) return false;
  return true;
}

/* Sets *to to how the result of an op lies whose first operand lies like *x. */
static void result_layout(const layouts *l, const graph_node *n, const header *x, header *to) {
  op_attr attr = graph_attr(n);
  fresh(l, &n->type, to);
  bool view = true;
  switch (n->op) {
  case OP_stop_gradient:
  case OP_reshape:
  case OP_broadcast:
  case OP_permute:
  case OP_slice:
  case OP_window: break;
  case OP_cast: view = x->dtype == to->dtype; break;
  case OP_index:
  case OP_slice_put: /* an item of an array is a view for the interpreter; an update leaves an array where it lies */
    if (!is_known(x) || !x->contiguous) unknown(to);
    return;
  default: view = false;
  }
  if (!view || !is_known(to)) return;
  if (!is_known(x)) {
    unknown(to);
    return;
  }
  switch (n->op) {
  case OP_reshape:
    if (!x->contiguous && !shape_reshape_strides(x, to->rank, to->shape, to->strides)) fresh(l, &n->type, to);
    break;
  case OP_broadcast:
    for (int i = 0; i < to->rank; i++) {
      int own = i - (to->rank - x->rank);
      to->strides[i] = own >= 0 && x->shape[own] != 1 ? x->strides[own] : 0;
    }
    break;
  case OP_permute:
    for (int i = 0; i < to->rank; i++) to->strides[i] = x->strides[attr.d[i]];
    break;
  case OP_slice:
    for (int i = 0; i < to->rank; i++)
      to->strides[i] = to->shape[i] > 1 ? x->strides[i] * attr.d[3 * i + 2] : x->strides[i];
    break;
  case OP_window: {
    int axis = __builtin_ctz(attr.axes);
    memcpy(to->strides, x->strides, sizeof to->strides);
    to->strides[x->rank] = attr.d[2] * x->strides[axis];
    to->strides[axis] *= attr.d[1];
    break;
  }
  default: memcpy(to->strides, x->strides, sizeof to->strides);
  }
  note_gaps(to);
}

static bool walk(layouts *l, graph *g, const header *in, header *out);

/* Goes through a loop: `in` are its operands, and out[k] becomes how result k of the body lies. A carry of two axes or more that lies in another
 * way before a turn than after the last one is unknown: nobody knows how many turns there are. */
static bool walk_loop(layouts *l, const graph_node *n, const header *in, header *out) {
  uint32_t carries = graph_loop_carries(n);
  header *now = mem_alloc(l->vm, (n->nin + 1u) * sizeof *now), test;
  bool ok = now != NULL, moves = true;
  if (!ok) return false;
  memcpy((void *)now, (const void *)in, n->nin * sizeof *now);
  for (int turn = 0; ok && moves; turn++) {
    moves = false;
    ok = walk(l, n->payload.regions[0], now, &test) && walk(l, n->payload.regions[1], now, out);
    for (uint32_t k = 0; k < carries && ok; k++) {
      moves |= !same_layout(&now[k], &out[k]);
      now[k] = out[k];
    }
    l->varies |= turn == TURNS;
    moves = moves && !l->varies;
  }
  for (uint32_t k = 0; k < carries && ok; k++)
    if (in[k].rank > 1 && !same_layout(&in[k], &out[k])) unknown(&out[k]);
  mem_free(l->vm, (void *)now, (n->nin + 1u) * sizeof *now);
  return ok;
}

/* Goes through both arms; results that lie differently are unknown. */
static bool walk_branch(layouts *l, const graph_node *n, const header *in, header *out) {
  uint32_t results = n->payload.regions[0]->noutputs;
  header *other = mem_alloc(l->vm, (results + 1u) * sizeof *other);
  bool ok = other && walk(l, n->payload.regions[0], in + 1, out) && walk(l, n->payload.regions[1], in + 1, other);
  for (uint32_t k = 0; k < results && ok; k++)
    if (!same_layout(&out[k], &other[k])) unknown(&out[k]);
  if (other) mem_free(l->vm, (void *)other, (results + 1u) * sizeof *other);
  return ok;
}

/* How many results the arms or the body of a node make. */
static uint32_t made(const graph_node *n) { return n->payload.regions[n->kind == NODE_LOOP]->noutputs; }

/* Goes through node n of a graph whose values lie like `at`. *results: how those of its arms or body lie. False when memory is short. */
static bool walk_region(layouts *l, const graph_node *n, const header *at, header **results) {
  header *in = mem_alloc(l->vm, (n->nin + 1u) * sizeof *in);
  bool ok = in && (*results = mem_alloc(l->vm, (made(n) + 1u) * sizeof **results)) != NULL;
  for (int k = 0; k < n->nin && ok; k++) in[k] = at[n->in[k]];
  ok = ok && (n->kind == NODE_LOOP ? walk_loop : walk_branch)(l, n, in, *results);
  if (in) mem_free(l->vm, (void *)in, (n->nin + 1u) * sizeof *in);
  return ok;
}

/* Notes how the product, a node of g, is made. False when memory is short. */
static bool note(layouts *l, graph *g, uint32_t node, const header *at) {
  const graph_node *n = &g->nodes[node];
  const header *x = &at[n->in[0]], *y = &at[n->in[1]];
  if (graph_attr(n).flags || !dtype_is_float((qn_dtype)n->type.dtype)) return true;
  header small[2];
  for (int k = 0; k < 2; k++) fresh(l, &g->nodes[n->in[k]].type, &small[k]);
  if (is_known(&small[0]) && is_known(&small[1]) && gemm_is_small(l->vm, &small[0], &small[1])) return true;
  l->sized |= !is_known(&small[0]) || !is_known(&small[1]);
  if (!is_known(x) || !is_known(y)) {
    l->varies = true;
    return true;
  }
  uint8_t flags = gemm_flags(l->vm, x, y);
  uint32_t k = 0;
  while (k < l->n && (l->products[k].g != g || l->products[k].node != node)) k++;
  l->varies |= k < l->n && l->products[k].flags != flags;
  if (k < l->n) return true;
  if (!mem_grow(l->vm, (void **)&l->products, &l->cap, l->n + (size_t)1, sizeof *l->products)) return false;
  l->products[l->n++] = (product){g, node, flags};
  return true;
}

/* Goes through a region whose inputs lie like `in`; out[k] becomes how its result k lies. False when memory is short. */
static bool walk(layouts *l, graph *g, const header *in, header *out) {
  header *at = mem_zalloc(l->vm, g->n * sizeof *at);
  header **results = at ? mem_zalloc(l->vm, g->n * sizeof *results) : NULL;
  bool ok = results != NULL;
  for (uint32_t k = 0; k < g->ninputs && ok; k++) at[g->inputs[k]] = in[k];
  for (uint32_t i = 1; i < g->n && ok; i++) {
    const graph_node *n = &g->nodes[i];
    if (graph_kind_has_regions(n->kind)) {
      ok = walk_region(l, n, at, &results[i]);
    } else if (n->kind == NODE_PROJ) {
      const graph_node *of = &g->nodes[n->in[0]];
      bool carried = n->payload.index < (of->kind == NODE_LOOP ? graph_loop_carries(of) : made(of));
      if (carried)
        at[i] = results[n->in[0]][n->payload.index];
      else
        fresh(l, &n->type, &at[i]);
    } else if (n->kind == NODE_OP) {
      result_layout(l, n, &at[n->nin ? n->in[0] : 0], &at[i]);
      if (n->op == OP_dot) ok = note(l, g, i, at);
    } else if (n->kind != NODE_INPUT) {
      fresh(l, &n->type, &at[i]);
    }
  }
  for (uint32_t k = 0; k < g->noutputs && ok; k++) out[k] = at[g->outputs[k]];
  for (uint32_t i = 1; i < g->n && results; i++)
    if (results[i]) mem_free(l->vm, (void *)results[i], (made(&g->nodes[i]) + 1u) * sizeof **results);
  if (results) mem_free(l->vm, (void *)results, g->n * sizeof *results);
  if (at) mem_free(l->vm, (void *)at, g->n * sizeof *at);
  return ok;
}

/* Is there a product of floats of which it is written (`fixed`) or not yet written how the library makes it? */
static bool has_product(const graph *g, bool fixed) {
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    if (n->kind == NODE_OP && n->op == OP_dot && dtype_is_float((qn_dtype)n->type.dtype) &&
        fixed == (graph_attr(n).flags != 0))
      return true;
    if (graph_kind_has_regions(n->kind) &&
        (has_product(n->payload.regions[0], fixed) || has_product(n->payload.regions[1], fixed)))
      return true;
  }
  return false;
}

bool products_any(const graph *g) { return has_product(g, true); }

bool products_in_regions(const graph *g, int device) {
  bool any = false;
  for (uint32_t i = 1; device && device_kernels_of(device)->has_gemm && i < g->n; i++)
    for (int k = 0; k < 2 && graph_kind_has_regions(g->nodes[i].kind); k++)
      any |= has_product(g->nodes[i].payload.regions[k], false);
  return any;
}

products_answer products_fix(qn_vm *vm, graph *g, uint32_t node, const qn_value *in, bool *sized) {
  const graph_node *n = &g->nodes[node];
  layouts l = {.vm = vm};
  *sized = false;
  for (int k = 0; k < n->nin && !l.device; k++)
    if (value_is(in[k], TAG_ARRAY)) l.device = value_array(in[k])->device;
  if (!l.device || !device_kernels_of(l.device)->has_gemm ||
      (!has_product(n->payload.regions[0], false) && !has_product(n->payload.regions[1], false)))
    return PRODUCTS_FIXED;
  header *at = mem_zalloc(vm, (n->nin + 1u) * sizeof *at), *out = mem_zalloc(vm, (made(n) + 1u) * sizeof *out);
  bool ok = at && out;
  for (int k = 0; k < n->nin && ok; k++)
    if (value_is(in[k], TAG_ARRAY)) at[k] = *value_array(in[k]);
  ok = ok && (n->kind == NODE_LOOP ? walk_loop : walk_branch)(&l, n, at, out);
  for (uint32_t k = 0; k < l.n && ok && !l.varies; k++)
    if (l.products[k].flags && !graph_fix_gemm(l.products[k].g, l.products[k].node, l.products[k].flags))
      ok = (raise_memory(vm), false);
  *sized = l.sized;
  mem_free(vm, l.products, l.cap * sizeof *l.products);
  if (at) mem_free(vm, (void *)at, (n->nin + 1u) * sizeof *at);
  if (out) mem_free(vm, (void *)out, (made(n) + 1u) * sizeof *out);
  return !ok ? PRODUCTS_FAIL : l.varies ? PRODUCTS_VARY : PRODUCTS_FIXED;
}
