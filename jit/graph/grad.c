/* Reverse-mode differentiation inside one graph: appends the nodes of the gradient.
 *
 * A forward pass marks the active nodes: those of a float dtype that depend on one of `wrt` through ops that have a gradient. A backward
 * pass goes over the nodes from the root by descending index: each active node that has a cotangent contributes to those of its
 * operands, by the rule of its op. Users of a node have larger indices, so its cotangent is complete when the node is reached.
 *
 * The order of summation is fixed: contributions are added in the order they arise, that is users by descending index and,
 * within a user, operands from the first to the last: ((u_last + u_before) + ...) + u_first. Equal graphs give equal bits.
 *
 * A region (graph_region in graph.h) is differentiated as a whole when the backward pass reaches its last node: all users of its results
 * come later in the graph, so their cotangents are complete. A region that is computed once more (checkpoint) is copied, and the copy
 * is differentiated by a nested graph_vjp.
 *
 * Where the root depends on a node on some ways through branches and loops only, the node has no cotangent on the others, and nothing is
 * multiplied by it. Here its cotangent is zeros then, and a bool of rank 0 beside it says whether there is one (node_state.there). Most rules have
 * strong zeros and make zeros of zeros. Where a rule multiplies plainly (grad_is_plain, functions of custom_grad), zeros are selected by that bool. It
 * is only made where such a rule comes later (node_state.plain).
 *
 * A cotangent has exactly the type of its node. Nodes of integer or bool dtype have none. An op with NO_GRAD("zero: ...") in the table
 * silently passes none on, one with another NO_GRAD is refused. Nodes below `from` are constants, so a cotangent of a `wrt` node there
 * is not passed on. New nodes have the sites of the nodes that they differentiate.
 *
 * The rules: grad_pointwise.c and grad_array.c.
 */
#include "jit/graph/grad.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/graph/region_builder.h"
#include "lang/error.h"
#include "lang/mem.h"

#define GRAD(fn) grad_##fn
#define NO_GRAD(reason) NULL
static grad_rule *const rules[OP_COUNT] = {
#define OP(klass, name, arity, dtype, shape, grad, batch, raises, body, doc) [OP_##name] = grad,
#include "lang/ops.def"
};
#undef GRAD
#undef NO_GRAD

/* ---- helpers of rules ------------------------------------------------------------------------------------------ */

static bool same_shape(const graph_type *a, const graph_type *b) {
  return a->rank == b->rank && memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) == 0;
}

uint32_t grad_view(grad_ctx *c, op_id op, uint32_t node, const graph_type *like) {
  if (!node || same_shape(&c->g->nodes[node].type, like)) return node;
  op_attr attr = graph_shape_attr(like->rank, like->shape);
  return make1_attr(c, op, node, &attr);
}

uint32_t grad_unbroadcast(grad_ctx *c, uint32_t node, const graph_type *like) {
  if (!node) return 0;
  graph_type t = c->g->nodes[node].type;
  if (same_shape(&t, like)) return node;
  dim_table *dims = &c->g->dims;
  int lead = t.rank - like->rank;
  op_attr attr = {.keepdims = lead == 0};
  for (int i = 0; i < t.rank; i++) {
    qn_dim from = t.shape[i], to = i < lead ? 0 : like->shape[i - lead];
    if (i >= lead && (to == from || (to != 1 && (dim_hint(dims, to) != 1 || dim_hint(dims, from) == 1)))) continue;
    /* An axis of one element is not reduced, which decides how those further out are folded (folds.h), if they have more. */
    bool folds = false;
    for (int j = 0; j < i; j++) folds |= (attr.axes >> j & 1) && t.shape[j] != from;
    if (folds ? !dim_is_one(dims, from) : from != 1) attr.axes |= (uint8_t)(1u << i);
  }
  if (attr.axes) node = make1_attr(c, OP_sum, node, &attr);
  return grad_reshape_to(c, node, like);
}

#ifdef QN_CHECKED
enum {
  CHECKED_NODES = 4000
}; /* larger graphs are not verified after each gradient, which in a loop would take quadratic time */
#endif

/* ---- the driver --------------------------------------------------------------------------------------------------- */

static bool refuse(op_refusal *why, uint32_t *culprit, uint32_t node, const char *text, const char *detail) {
  why->id = E_not_diff;
  snprintf(why->text, sizeof why->text, text, detail);
  *culprit = node;
  return false;
}

static bool out_of_memory(op_refusal *why, uint32_t *culprit) {
  why->id = E_memory;
  snprintf(why->text, sizeof why->text, "out of memory");
  *culprit = 0;
  return false;
}

static int by_number(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

static bool is_float(const graph *g, uint32_t node) { return dtype_is_float((qn_dtype)g->nodes[node].type.dtype); }

bool grad_ends(const graph_node *n) {
  const char *reason = op_rows[n->op].no_grad;
  return n->kind == NODE_OP && reason && strncmp(reason, "zero", 4) == 0;
}

typedef struct node_state {
  bool active;
  bool plain;         /* is its cotangent, or what is made of it, multiplied plainly? */
  bool row;           /* it takes a row of what has cotangents of rows already, and its own has begun with that */
  uint32_t cotangent; /* 0: none */
  uint32_t
      there; /* GRAD_FLAG: is there a cotangent, or is it zeros because there is none? 0: there is, or it does not matter */
} node_state;

/* What gradients read in place of node v behind branch `tail`, which may leave it as it is; before it stands `y` for it. */
typedef struct behind {
  struct behind *next;
  uint32_t v, y, tail, node;
} behind;

/* One differentiation. Its time and memory depend on the nodes [from, last] alone, not on how many there are before them. */
typedef struct backward {
  graph *g;
  uint32_t from, last; /* the nodes that are differentiated are [from, last] */
  node_state *states;  /* of nodes [from, last], then of those in `below` */
  uint32_t *below;     /* nodes of wrt that lie below `from`, ascending */
  node_state *of_below;
  uint32_t nbelow;
  const graph_rules *rules;
  /* lists of results, by node - from: of a branch or loop the last NODE_PROJ, of a NODE_PROJ the one before it */
  uint32_t *proj_of;
  bool **
      varies; /* by node - from: of a branch or loop that is active, which of its results are; NULL: there is none yet */
  graph_region *regions; /* those that begin at `from` or later and lie in no other, by descending end */
  uint32_t nregions;
  bool again;              /* as that of graph_rules */
  uint32_t *tails, ntails; /* branches that are none of the program's (tails, see behind_tails), ascending */
  uint32_t *known;         /* by node - from, if there are tails: 1 + the number of the last that captures it */
  behind *behinds;         /* what stands for nodes behind tails, as far as it has been asked */
  bool sums; /* nodes of wrt have cotangents from outside: these nodes are a region's, and perhaps the turn of a loop */
  uint32_t fresh; /* nodes from here on were made by the step in progress, and none of them is a cotangent yet */
  arena scratch;
  uint32_t *culprit;
  op_refusal *why;
} backward;

/* The state of a node; NULL for a node below `from` that is not one of wrt. */
static node_state *state_of(const backward *b, uint32_t node) {
  if (node >= b->from) return node <= b->last ? &b->states[node - b->from] : NULL;
  uint32_t low = 0, high = b->nbelow;
  while (low < high) {
    uint32_t mid = low + (high - low) / 2;
    if (b->below[mid] < node)
      low = mid + 1;
    else
      high = mid;
  }
  return low < b->nbelow && b->below[low] == node ? &b->of_below[low] : NULL;
}

static bool is_active(const backward *b, uint32_t node) {
  const node_state *s = state_of(b, node);
  return s && s->active;
}

static uint32_t cotangent_of(const backward *b, uint32_t node) {
  const node_state *s = state_of(b, node);
  return s ? s->cotangent : 0;
}

/* Allocates the states and marks the nodes of wrt as active. */
static bool take_states(backward *b, const uint32_t *wrt, int nwrt, const graph_presence *there) {
  size_t n = b->last >= b->from ? b->last - b->from + (size_t)1 : 0;
  b->states = arena_alloc(&b->scratch, (n + 1) * sizeof *b->states);
  b->below = arena_alloc(&b->scratch, ((size_t)nwrt + 1) * sizeof *b->below);
  b->of_below = arena_alloc(&b->scratch, ((size_t)nwrt + 1) * sizeof *b->of_below);
  b->proj_of = arena_alloc(&b->scratch, (n + 1) * sizeof *b->proj_of);
  if (!b->states || !b->proj_of || !b->below || !b->of_below) return out_of_memory(b->why, b->culprit);
  for (int i = 0; i < nwrt; i++)
    if (wrt[i] < b->from) b->below[b->nbelow++] = wrt[i];
  qsort(b->below, b->nbelow, sizeof *b->below, by_number);
  for (int i = 0; i < nwrt; i++) {
    node_state *s = state_of(b, wrt[i]);
    if (s) s->active = true;
    if (s && there) s->plain |= there->plain[i];
  }
  return true;
}

/* The last node to differentiate: the last root or, where that lies in a region, the region's last node, since a region is
 * differentiated as a whole. */
static uint32_t whole_regions(const backward *b) {
  uint32_t last = b->last;
  for (uint32_t i = b->rules ? b->rules->n : 0; i-- > 0;) {
    const graph_region *x = &b->rules->regions[i];
    if (x->end <= b->from) break; /* and so do all regions before it */
    if (b->rules->work) ++*b->rules->work;
    if (x->first >= b->from && x->first <= b->last && x->end > last + 1) last = x->end - 1;
  }
  return last;
}

/* Collects b->regions. Of nested regions only the outermost counts, which comes last in the list. */
static bool take_regions(backward *b) {
  const graph_rules *r = b->rules;
  uint32_t low = r ? r->n : 0;
  while (low && r->regions[low - 1].end > b->from) low--;
  if (!r || low == r->n) return true;
  b->regions = arena_alloc(&b->scratch, (r->n - low) * sizeof *b->regions);
  if (!b->regions) return out_of_memory(b->why, b->culprit);
  for (uint32_t i = r->n; i-- > low;) {
    const graph_region *x = &r->regions[i];
    if (r->work) ++*r->work;
    if (x->first < b->from || x->first > b->last || x->first == x->end) continue;
    if (b->nregions && x->end > b->regions[b->nregions - 1].first) continue;
    b->regions[b->nregions++] = *x;
  }
  return true;
}

/* A map from nodes to numbers: a hash table with open addressing. */
typedef struct node_numbers {
  uint32_t *slots; /* pairs of node (0: free) and number */
  uint32_t mask;
} node_numbers;

/* Makes a map with room for `most` nodes. False when memory is short. */
static bool numbers_make(backward *b, size_t most, node_numbers *t) {
  size_t cap = 4;
  while (cap < 2 * most) cap *= 2;
  t->mask = (uint32_t)(cap - 1);
  return (t->slots = arena_alloc(&b->scratch, 2 * cap * sizeof *t->slots)) != NULL;
}

/* The pair of a node and its number, or a free pair where they may be put. */
static uint32_t *number_slot(const backward *b, const node_numbers *t, uint32_t node) {
  uint32_t i = node * 0x9e3779b1u & t->mask;
  for (;; i = (i + 1) & t->mask) {
    uint32_t *slot = &t->slots[2 * (size_t)i];
    if (b->rules->work) ++*b->rules->work;
    if (!*slot || *slot == node) return slot;
  }
}

/* Marks the results of a region with a rule of its own as active if one of its args is. Nodes inside that no result depends on (those
 * of a lane, beside their counterparts) do not matter. False with why. */
static bool mark_region(backward *b, const graph_region *x) {
  const graph *g = b->g;
  bool any = false, *needed = arena_alloc(&b->scratch, (x->end - x->first) * sizeof *needed);
  node_numbers args;
  if (!needed || !numbers_make(b, x->nargs, &args)) return out_of_memory(b->why, b->culprit);
  for (uint32_t k = 0; k < x->nargs; k++) {
    if (!x->args[k]) continue;
    any |= is_active(b, x->args[k]);
    *number_slot(b, &args, x->args[k]) = x->args[k];
  }
  for (uint32_t k = 0; k < x->nouts; k++)
    if (x->outs[k] >= x->first && x->outs[k] < x->end) needed[x->outs[k] - x->first] = true;
  for (uint32_t i = x->end; i-- > x->first;) {
    const graph_node *n = &g->nodes[i];
    if (!needed[i - x->first] || !is_float(g, i) || n->kind == NODE_TAP || grad_ends(n)) continue;
    for (int k = 0; k < n->nin; k++)
      if (n->in[k] >= x->first) needed[n->in[k] - x->first] = true;
    for (int k = 0; k < n->nin; k++)
      if (n->in[k] < x->first && is_active(b, n->in[k]) && !*number_slot(b, &args, n->in[k]))
        return refuse(
            b->why, b->culprit, i, "%s",
            "the function in custom_grad uses a value that is differentiated and is not one of its arguments, "
            "so backward cannot give its gradient; pass it as an argument");
  }
  for (uint32_t k = 0; k < x->nouts && any; k++)
    if (x->outs[k] >= b->from && is_float(g, x->outs[k]))
      b->states[x->outs[k] - b->from].active = b->states[x->outs[k] - b->from].plain = true;
  return true;
}

/* Is a cotangent multiplied plainly somewhere in the graph, or in its regions? */
static bool has_plain(const graph *g) {
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    if (graph_is_rule(n)) return true;
    if (graph_kind_has_regions(n->kind) ? has_plain(n->payload.regions[0]) || has_plain(n->payload.regions[1])
                                        : n->kind == NODE_OP && grad_is_plain((op_id)n->op))
      return true;
  }
  return false;
}

/* Is the cotangent of a node multiplied plainly by itself, as that of one that depends on it? */
static bool begins_plain(const graph_node *n) {
  if (graph_is_rule(n)) return true;
  if (graph_kind_has_regions(n->kind)) return has_plain(n->payload.regions[0]) || has_plain(n->payload.regions[1]);
  return n->kind == NODE_OP && grad_is_plain((op_id)n->op);
}

void grad_mark_plain(const graph *g, bool *marks) {
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    if (!(is_float(g, i) || graph_kind_has_regions(n->kind)) || n->kind == NODE_TAP || grad_ends(n)) continue;
    marks[i] |= begins_plain(n);
    for (int k = 0; k < n->nin && !marks[i]; k++) marks[i] = marks[n->in[k]];
  }
}

/* Notes which results of an active branch or loop are active. */
static bool mark_results(backward *b, uint32_t i) {
  const graph_node *n = &b->g->nodes[i];
  if (!b->varies) b->varies = arena_alloc(&b->scratch, (b->last - b->from + (size_t)1) * sizeof *b->varies);
  bool *operands = arena_alloc(&b->scratch, n->nin * sizeof *operands);
  bool *results = arena_alloc(&b->scratch, (graph_nresults(n) + (size_t)1) * sizeof *results);
  if (!b->varies || !operands || !results) return out_of_memory(b->why, b->culprit);
  for (uint32_t k = 0; k < n->nin; k++) operands[k] = is_float(b->g, n->in[k]) && is_active(b, n->in[k]);
  if (!grad_control_varies(n, operands, results)) return out_of_memory(b->why, b->culprit);
  b->varies[i - b->from] = results;
  return true;
}

/* Marks the active nodes. */
static bool mark_active(backward *b) {
  const graph *g = b->g;
  uint32_t next = b->nregions; /* of b->regions, from the last, which comes first in the graph */
  for (uint32_t i = b->from; i <= b->last; i++) {
    while (next && b->regions[next - 1].first < i) next--;
    if (next && b->regions[next - 1].first == i && !b->regions[next - 1].again) {
      if (!mark_region(b, &b->regions[next - 1])) return false;
      i = b->regions[next - 1].end - 1;
      continue;
    }
    const graph_node *n = &g->nodes[i];
    bool regions = graph_kind_has_regions(n->kind); /* a branch or loop has no type itself, only its results have */
    if (!(is_float(g, i) || regions) || n->kind == NODE_TAP || grad_ends(n)) continue;
    node_state *s = &b->states[i - b->from];
    if (n->kind == NODE_PROJ && n->in[0] >= b->from) {
      b->proj_of[i - b->from] = b->proj_of[n->in[0] - b->from];
      b->proj_of[n->in[0] - b->from] = i;
    }
    uint32_t first = graph_is_rule(n) ? 1 + 2 * graph_rule_made(n) : 0,
             end = graph_is_rule(n) ? first + graph_rule_by(n) : n->nin;
    for (uint32_t k = first; k < end && !s->active; k++) s->active = is_active(b, n->in[k]);
    if (s->active && n->kind == NODE_PROJ && n->in[0] >= b->from)
      s->active = b->varies[n->in[0] - b->from][n->payload.index];
    if (!s->active) continue;
    if (regions && !mark_results(b, i)) return false;
    s->plain |= begins_plain(n);
    for (int k = 0; k < n->nin && !s->plain; k++) {
      const node_state *x = state_of(b, n->in[k]);
      s->plain = x && x->plain;
    }
  }
  return true;
}

uint32_t grad_flag(graph *g, bool is) { return graph_const_scalar(g, QN_bool, false, is, is, 0); }

/* A cotangent that is there if `there` says so (0: it is), where a rule that multiplies plainly has made it: zeros if not. */
static uint32_t or_zeros(graph *g, uint32_t there, uint32_t ct, uint32_t site) {
  if (!there || !ct) return ct;
  const graph_type t = g->nodes[ct].type;
  const op_attr host = {.dtype = QN_bool, .flags = ATTR_WEAK};
  if (t.weak) there = graph_op(g, OP_cast, &there, 1, &host, site);
  const uint32_t in[] = {there, ct, graph_const_scalar(g, (qn_dtype)t.dtype, t.weak, 0, 0, site)};
  const op_attr joins = {.flags = ATTR_JOINS};
  return graph_op(g, OP_where, in, 3, &joins, site);
}

/* Is there one of two cotangents (0: there always is)? */
static uint32_t either(graph *g, uint32_t a, uint32_t b) {
  const uint32_t in[] = {a, b};
  return a == b ? a : a && b ? graph_op(g, OP_bitor, in, 2, NULL, 0) : 0;
}

/* Where different ways are joined (ATTR_JOINS), operand k has a cotangent if its way was taken. `there`: has the node one? */
static uint32_t in_way(graph *g, const graph_node *n, int k, uint32_t there) {
  bool joins = n->op == OP_where && n->attr && n->attr->flags & ATTR_JOINS;
  if (!joins || g->nodes[n->in[0]].type.rank || g->nodes[n->in[0]].type.weak) return there;
  const uint32_t no = grad_flag(g, false), yes = there ? there : grad_flag(g, true);
  const uint32_t in[] = {n->in[0], k == 1 ? yes : no, k == 1 ? no : yes};
  return graph_op(g, OP_where, in, 3, NULL, 0);
}

/* Adds `ct`, which is there if `there` says so (0: it is), to the cotangent of the active node j; the sum gets `site`. */
static void contribute(backward *b, uint32_t j, uint32_t ct, uint32_t there, uint32_t site) {
  node_state *s = state_of(b, j);
  if (!s->cotangent)
    s->there = s->plain ? there : 0;
  else
    s->there = either(b->g, s->there, there);
  if (b->rules && b->rules->apart && ct < b->fresh) ct = graph_alias(b->g, ct, site);
  if (ct >= b->fresh) b->fresh = ct + 1;
  const uint32_t in[] = {s->cotangent, ct};
  s->cotangent = in[0] ? graph_op(b->g, OP_add, in, 2, NULL, site) : ct;
}

/* Differentiates node i, a call whose derivative is given. */
static bool step_rule(backward *b, uint32_t i) {
  graph *g = b->g;
  graph_node n = g->nodes[i];
  const graph *gives = n.payload.regions[1];
  uint32_t made = graph_rule_made(&n), by = graph_rule_by(&n), there = 0;
  uint32_t *args = arena_alloc(&b->scratch, (gives->ninputs + (size_t)1) * sizeof *args);
  uint32_t *outs = arena_alloc(&b->scratch, (gives->noutputs + (size_t)1) * sizeof *outs);
  if (!args || !outs) return out_of_memory(b->why, b->culprit);
  memcpy(args, n.in + 1, gives->ninputs * sizeof *args);
  bool any = false;
  for (uint32_t x = b->proj_of[i - b->from]; x; x = b->proj_of[x - b->from]) {
    const node_state *s = state_of(b, x);
    if (!s->cotangent || g->nodes[x].payload.index >= made) continue;
    args[made + g->nodes[x].payload.index] = s->cotangent;
    there = any ? either(g, there, s->there) : s->there;
    any = true;
  }
  *b->culprit = i;
  if (!any) return true;
  uint32_t from = g->n;
  if (!graph_inline(g, gives, args, outs, false)) return out_of_memory(b->why, b->culprit);
  for (uint32_t k = from; k < g->n; k++) g->nodes[k].site = n.site;
  b->fresh = g->n;
  for (uint32_t j = 0; j < by; j++) {
    uint32_t arg = n.in[1 + 2 * made + j];
    if (graph_rule_gives(&n, j) && is_active(b, arg))
      contribute(b, arg, or_zeros(g, there, outs[made + j], n.site), there, n.site);
  }
  return !g->failed || out_of_memory(b->why, b->culprit);
}

/* ---- what gradients that will be differentiated read behind tails --------------------------------------------------- */

/* Where a branch that is none of the program's (graph.tail) leaves value v alone, its result y is what comes after it in place of v. For the
 * interpreter both are one value, and the uses by the gradient come after all others: so the gradient of what lies before the branch
 * reads `if p { y } else { v }`. That is v on both ways, but what its own gradient gives it is the first that y's cotangent has where the way
 * that leaves v alone is taken. */

static bool is_tail(const graph_node *n) {
  return n->kind == NODE_IF && !graph_is_rule(n) && n->payload.regions[0]->tail;
}

/* Notes the tails, and what they leave alone. False: memory is short. */
static bool note_tails(backward *b) {
  const graph *g = b->g;
  if (!b->rules || !b->rules->derived) return true;
  uint32_t count = 0;
  for (uint32_t i = b->from; i <= b->last; i++) count += is_tail(&g->nodes[i]);
  if (!count) return true;
  b->tails = arena_alloc(&b->scratch, count * sizeof *b->tails);
  b->known = arena_alloc(&b->scratch, (b->last - b->from + (size_t)1) * sizeof *b->known);
  if (!b->tails || !b->known) return out_of_memory(b->why, b->culprit);
  for (uint32_t i = b->from; i <= b->last; i++)
    if (is_tail(&g->nodes[i])) b->tails[b->ntails++] = i;
  for (uint32_t x = 0; x < b->ntails; x++) {
    const graph_node *n = &g->nodes[b->tails[x]];
    for (int k = 1; k < n->nin; k++)
      if (n->in[k] >= b->from) b->known[n->in[k] - b->from] = x + 1;
  }
  return true;
}

/* The node that takes a result of branch t which arm a leaves as node v is; 0: there is none. */
static uint32_t left_alone(const backward *b, uint32_t t, int a, uint32_t v) {
  const graph_node *n = &b->g->nodes[t];
  const graph *arm = n->payload.regions[a];
  for (uint32_t y = b->proj_of[t - b->from]; y; y = b->proj_of[y - b->from]) {
    const graph_node *of = &arm->nodes[arm->outputs[b->g->nodes[y].payload.index]];
    if (of->kind == NODE_INPUT && n->in[1 + of->payload.input] == v && is_active(b, y) &&
        graph_type_same(&b->g->nodes[y].type, &b->g->nodes[v].type))
      return y;
  }
  return 0;
}

/* Is node v read in arm a of branch t? */
static bool reads_in_arm(const graph *g, uint32_t t, int a, uint32_t v) {
  const graph_node *n = &g->nodes[t];
  const graph *arm = n->payload.regions[a];
  for (uint32_t j = 1; j < n->nin; j++)
    for (uint32_t i = 1; i < arm->n && n->in[j] == v; i++)
      for (int k = 0; k < arm->nodes[i].nin; k++)
        if (arm->nodes[i].in[k] == arm->inputs[j - 1]) return true;
  return false;
}

/* The result of a branch that gives in[a] where arm a is taken. 0: memory is short. */
static uint32_t choose(graph *g, uint32_t predicate, const uint32_t in[2], uint32_t site) {
  region_builder builder;
  builder_open(&builder, g);
  const uint32_t first = builder_operands(&builder, in, 2);
  for (int a = 0; a < 2; a++) {
    const uint32_t of = builder_input(&builder, a, first + a);
    builder_outputs(&builder, a, &of, 1);
  }
  const uint32_t node = builder_close(&builder, predicate, NULL, site);
  return node ? graph_proj(g, node, 0, g->nodes[in[0]].type, site) : 0;
}

/* What stands for node v behind b->tails from number x on, before which y stands for it. Ways that were told apart before y was made know the value
 * as v: arms of theirs leave v alone, or read it, and then the uses by the gradient come before those of v. 0: memory is short. */
static uint32_t behind_tails(backward *b, uint32_t v, uint32_t y, uint32_t x) {
  graph *g = b->g;
  if (v >= b->from && v <= b->last && b->known[v - b->from] <= x) v = y; /* (so that more is shared) */
  for (; x < b->ntails; x++) {
    const uint32_t t = b->tails[x];
    uint32_t in[2];
    for (int a = 0; a < 2; a++) {
      in[a] = left_alone(b, t, a, y);
      if (!in[a] && v != y) in[a] = left_alone(b, t, a, v);
      if (!in[a] && v != y && reads_in_arm(g, t, a, v) && !reads_in_arm(g, t, a, y)) in[a] = v;
    }
    if (!in[0] && !in[1]) continue;
    for (const behind *made = b->behinds; made; made = made->next)
      if (made->v == v && made->y == y && made->tail == t) return made->node;
    behind *made = arena_alloc(&b->scratch, sizeof *made);
    for (int a = 0; a < 2; a++)
      if (!made || !(in[a] = behind_tails(b, v, in[a] ? in[a] : y, x + 1))) return 0;
    const uint32_t node = in[0] == in[1] ? in[0] : choose(g, g->nodes[t].in[0], in, g->nodes[t].site);
    *made = (behind){b->behinds, v, y, t, node};
    b->behinds = made;
    return node;
  }
  return y;
}

/* What the gradient of node i reads in place of node v, for which y stands behind the first tails, or v itself. 0: memory is short. */
static uint32_t read_behind(backward *b, uint32_t i, uint32_t v, uint32_t y) {
  uint32_t x = 0;
  if (!graph_type_same(&b->g->nodes[v].type, &b->g->nodes[y].type)) v = y;
  if (!b->ntails || (v == y && v >= b->from && v <= b->last && !b->known[v - b->from])) return y;
  if (!is_float(b->g, v) || b->g->nodes[v].type.weak || !is_active(b, v)) return y;
  const graph_type type = b->g->nodes[v].type;
  for (int a = 0; a < type.rank; a++)
    if (dim_is_late(&b->g->dims, type.shape[a])) return y;
  if (v != y) i = b->g->nodes[y].in[0];
  while (x < b->ntails && b->tails[x] <= i) x++;
  return behind_tails(b, v, y, x);
}

/* Differentiates a branch or loop, node i: all cotangents of its results are complete. Each of its captured values hands over the cotangent
 * that it has so far, to which uses in the regions are added in the order in which they would be if the arm or the turns were nodes of this
 * graph: then captured and unrolled programs get the same bits. False with why. */
static bool step_control(backward *b, uint32_t i) {
  graph *g = b->g;
  graph_node n = g->nodes[i];
  uint32_t nout = graph_nresults(&n), ncarries = n.kind == NODE_LOOP ? graph_loop_carries(&n) : 0;
  control_grad c = {.g = g, .node = i, .reads = read_behind, .by = b, .apart = b->rules && b->rules->apart};
  c.derived = b->rules && b->rules->derived;
  c.again = b->again;
  c.given = arena_alloc(&b->scratch, 2 * (nout + (size_t)1) * sizeof *c.given);
  c.wanted = arena_alloc(&b->scratch, 2 * (n.nin + (size_t)1) * sizeof *c.wanted);
  c.so_far = arena_alloc(&b->scratch, 2 * (n.nin + (size_t)1) * sizeof *c.so_far);
  c.out = arena_alloc(&b->scratch, 2 * (n.nin + (size_t)1) * sizeof *c.out);
  if (!c.given || !c.wanted || !c.so_far || !c.out) return out_of_memory(b->why, b->culprit);
  c.given_there = c.given + nout + 1;
  c.plain = c.wanted + n.nin + 1;
  c.so_far_there = c.so_far + n.nin + 1;
  c.out_there = c.out + n.nin + 1;
  bool any = false;
  for (uint32_t x = b->proj_of[i - b->from]; x; x = b->proj_of[x - b->from]) {
    const node_state *s = state_of(b, x);
    c.given[g->nodes[x].payload.index] = s->cotangent;
    c.given_there[g->nodes[x].payload.index] = s->there;
    any |= s->cotangent != 0;
  }
  *b->culprit = i;
  if (!any) return true;
  for (uint32_t k = 0; k < n.nin; k++) c.wanted[k] = is_float(g, n.in[k]) && is_active(b, n.in[k]);
  if (!grad_control_wants(g, i, c.given, c.wanted, &any)) return out_of_memory(b->why, b->culprit);
  if (!any) return true;
  for (uint32_t k = 0; k < n.nin; k++) {
    if (k < ncarries || !c.wanted[k]) continue;
    node_state *s = state_of(b, n.in[k]);
    c.so_far[k] = s->cotangent;
    c.so_far_there[k] = s->there;
    s->cotangent = s->there = 0; /* so that a value which is captured twice hands it over once */
  }
  for (uint32_t k = 0; k < n.nin; k++) c.plain[k] = c.wanted[k] && state_of(b, n.in[k])->plain;
  if (!grad_control(&c, b->why)) return false;
  for (uint32_t k = ncarries; k < n.nin; k++)
    if (c.out[k]) contribute(b, n.in[k], c.out[k], c.out_there[k], n.site);
  for (uint32_t k = ncarries; k-- > 0;)
    if (c.out[k]) contribute(b, n.in[k], c.out[k], c.out_there[k], n.site);
  return !g->failed || out_of_memory(b->why, b->culprit);
}

/* Is node n zeros everywhere? */
static bool is_zeros(const graph *g, uint32_t n) {
  qn_value v;
  while (g->nodes[n].kind == NODE_OP && g->nodes[n].op == OP_broadcast) n = g->nodes[n].in[0];
  return graph_const_value(g, n, &v) && (value_is(v, TAG_FLOAT) ? v.u.f == 0 : value_is(v, TAG_INT) && v.u.i == 0);
}

/* Adds what scatter `ct` sets among zeros at one place to the array `sum`. 0: `ct` is no such node, or memory is short. */
static uint32_t add_scattered(graph *g, uint32_t sum, uint32_t ct, uint32_t site) {
  const graph_node *n = &g->nodes[ct];
  if (n->kind != NODE_OP || n->op != OP_scatter || n->attr->mode != SCATTER_SET || !is_zeros(g, n->in[0])) return 0;
  for (int64_t i = 1; i <= n->attr->d[0]; i++)
    if (g->nodes[n->in[i]].type.rank) return 0; /* (of two values for a place the last is set) */
  uint32_t in[ARRAY_MAX_RANK + 2];
  op_attr attr = graph_attr(n);
  attr.mode = SCATTER_ADD;
  memcpy(in, n->in, n->nin * sizeof *in);
  in[0] = sum;
  return graph_op(g, OP_scatter, in, n->nin, &attr, site);
}

/* add_scattered, also where what the scatter gives has been permuted (x[:, j] is an item of a permuted array). */
static uint32_t add_permuted(graph *g, uint32_t sum, uint32_t ct, uint32_t site) {
  const graph_node *n = &g->nodes[ct];
  if (n->kind != NODE_OP || n->op != OP_permute) return add_scattered(g, sum, ct, site);
  const op_attr there = graph_attr(n);
  op_attr back = there;
  const uint32_t of = n->in[0];
  const graph_node *set = &g->nodes[of];
  if (set->kind != NODE_OP || set->op != OP_scatter) return 0;
  for (int i = 0; i < there.n; i++) back.d[there.d[i]] = i;
  uint32_t view = graph_op(g, OP_permute, &sum, 1, &back, site), added = view ? add_scattered(g, view, of, site) : 0;
  return added ? graph_op(g, OP_permute, &added, 1, &there, site) : 0;
}

/* Of an array that is x with zeros in the part that a slice names: x; else 0. */
static uint32_t around_zeros(const graph *g, uint32_t sum, const op_attr *part) {
  const graph_node *n = &g->nodes[sum];
  if (n->kind != NODE_OP || n->op != OP_slice_put || !is_zeros(g, n->in[1])) return 0;
  return memcmp(n->attr->d, part->d, 3 * (size_t)n->type.rank * sizeof *part->d) ? 0 : n->in[0];
}

/* The cotangent of an array of which one part is read, `ct`, where a sum over all turns is made of them: what is added to is that part of the sum,
 * not an array of zeros around it, which would take a time like that of all turns together in each. 0: it is none of these. */
static uint32_t add_to_part(backward *b, const grad_ctx *c, uint32_t ct) {
  graph *g = b->g;
  uint32_t sum = state_of(b, c->in[0])->cotangent;
  if (!b->sums || !sum) return 0;
  if (c->op == OP_index) return g->nodes[c->in[0]].kind == NODE_INPUT ? add_scattered(g, sum, ct, c->site) : 0;
  const graph_node *n = &g->nodes[ct];
  if (c->op != OP_slice || n->kind != NODE_OP || (n->op != OP_pad && n->op != OP_slice_put)) return 0;
  uint32_t put[2] = {around_zeros(g, sum, &c->attr), c->ct};
  if (put[0]) return graph_op(g, OP_slice_put, put, 2, &c->attr, c->site);
  uint32_t part = graph_op(g, OP_slice, &sum, 1, &c->attr, c->site), in[2] = {part, c->ct};
  if (!part) return 0;
  uint32_t added = add_permuted(g, part, c->ct, c->site); /* (x[:i, j] is an item of a slice) */
  if (!added) added = graph_op(g, OP_add, in, 2, NULL, c->site);
  in[0] = sum, in[1] = added;
  return added ? graph_op(g, OP_slice_put, in, 2, &c->attr, c->site) : 0;
}

/* The cotangent of node i, which takes a row, begins with the one that the row has: so each use adds to that. (No two nodes of a turn take the same
 * row of an array, graph_rules.derived.) False: memory is short. */
static bool begin_row(backward *b, uint32_t i) {
  graph *g = b->g;
  const graph_node n = g->nodes[i];
  const node_state *of = state_of(b, n.in[0]);
  op_attr attr = graph_attr(&n);
  attr.flags = ATTR_PROVEN;
  uint32_t in[ARRAY_MAX_RANK + 1], at = i, user = i + 1;
  memcpy(in, n.in, n.nin * sizeof *in);
  in[0] = of->cotangent;
  uint32_t ct = graph_op(g, OP_index, in, n.nin, &attr, n.site);
  while (user <= b->last && !(graph_takes_row(g, user) && g->nodes[user].in[0] == i && g->nodes[user].type.weak))
    user++;
  if (user <= b->last) {
    attr = graph_attr(&g->nodes[at = user]);
    ct = graph_op(g, OP_cast, &ct, 1, &attr, n.site);
  }
  b->states[i - b->from].row = true;
  b->states[at - b->from].cotangent = ct;
  b->states[at - b->from].there = b->states[at - b->from].plain ? of->there : 0;
  return ct != 0;
}

/* begin_row for all rows that are taken of wrt[i]. False: memory is short. */
static bool begin_rows(backward *b, const uint32_t *wrt, int nwrt, const graph_presence *there) {
  for (int k = 0; k < nwrt; k++) {
    if (!there->rows[k] || !cotangent_of(b, wrt[k])) continue;
    for (uint32_t i = b->from; i <= b->last; i++)
      if (is_active(b, i) && graph_takes_row(b->g, i) && b->g->nodes[i].op == OP_index &&
          b->g->nodes[i].in[0] == wrt[k] && !begin_row(b, i))
        return false;
  }
  return true;
}

/* Hands the cotangent of node i, with which it has begun, back to the row. False: memory is short. */
static bool end_row(backward *b, uint32_t i) {
  graph *g = b->g;
  const graph_node n = g->nodes[i];
  node_state *of = state_of(b, n.in[0]), *s = &b->states[i - b->from];
  op_attr attr = graph_attr(&n);
  attr.flags = ATTR_PROVEN;
  attr.mode = SCATTER_SET;
  uint32_t in[ARRAY_MAX_RANK + 2];
  memcpy(in, n.in, n.nin * sizeof *in);
  in[0] = of->cotangent;
  in[n.nin] = s->cotangent;
  of->there = either(g, of->there, of->plain ? s->there : 0);
  return (of->cotangent = graph_op(g, OP_scatter, in, n.nin + 1, &attr, n.site)) != 0;
}

/* Differentiates node i: contributes to its operands' cotangents. False with why. */
static bool step(backward *b, uint32_t i) {
  graph *g = b->g;
  uint32_t *culprit = b->culprit;
  op_refusal *why = b->why;
  arena *scratch = &b->scratch;
  graph_node n = g->nodes[i];           /* a copy, since the list of nodes moves when it grows */
  if (n.kind == NODE_PROJ) return true; /* step_control of the branch or loop sees to it */
  if (graph_kind_has_regions(n.kind)) return graph_is_rule(&n) ? step_rule(b, i) : step_control(b, i);
  if (b->states[i - b->from].row) return end_row(b, i) || out_of_memory(why, culprit);
  if (n.kind != NODE_OP || n.nin == 0) return true;
  if (!rules[n.op])
    return refuse(why, culprit, i, "not differentiable: %s",
                  op_rows[n.op].no_grad ? op_rows[n.op].no_grad : op_rows[n.op].name);
  bool *wanted = arena_alloc(scratch, n.nin * sizeof *wanted);
  uint32_t *out = arena_alloc(scratch, 2 * n.nin * sizeof *out), *read = out + n.nin;
  if (!wanted || !out) return out_of_memory(why, culprit);
  bool any = false;
  for (int k = 0; k < n.nin; k++) any |= wanted[k] = is_active(b, n.in[k]);
  if (!any) return true;
  uint32_t there = b->states[i - b->from].there, plain = grad_is_plain((op_id)n.op) ? there : 0;
  const uint32_t made = read_behind(b, i, i, i);
  for (int k = 0; k < n.nin; k++)
    if (!made || !(read[k] = read_behind(b, i, n.in[k], n.in[k]))) return out_of_memory(why, culprit);
  grad_ctx c = {g,
                made,
                n.site,
                (op_id)n.op,
                n.nin,
                read,
                n.type,
                graph_attr(&n),
                cotangent_of(b, i),
                wanted,
                out,
                (b->rules && b->rules->derived) || b->again};
  rules[n.op](&c);
  c.in = n.in;
  for (int k = 0; k < n.nin; k++) {
    if (!wanted[k] || !out[k]) continue;
    uint32_t j = n.in[k];
    graph_type type = g->nodes[j].type;
    /* Where the gradient will be differentiated, nothing comes of a product with what is not there for its other factor, either. (If j's
     * cotangent is multiplied plainly, that is where zeros are selected.) */
    bool derived = b->rules && b->rules->derived && n.nin > 1 && !state_of(b, j)->plain;
    uint32_t select = derived ? there : plain;
    uint32_t part = k == 0 && !select ? add_to_part(b, &c, out[k]) : 0;
    uint32_t in_its_way = state_of(b, j)->plain ? in_way(g, &n, k, there) : 0;
    if (part)
      state_of(b, j)->cotangent = part, state_of(b, j)->there = either(g, state_of(b, j)->there, in_its_way);
    else
      contribute(b, j, or_zeros(g, select, grad_unbroadcast(&c, out[k], &type), c.site), in_its_way, c.site);
  }
  return !g->failed || out_of_memory(why, culprit);
}

/* ---- regions ------------------------------------------------------------------------------------------------------- */

/* What a region's copy reads in place of node j outside the region: j behind a reshape marked ATTR_ANEW. Without it common
 * subexpressions would make the copy and the original one again. */
static uint32_t mark_anew(graph *g, uint32_t j, uint32_t site) {
  graph_type t = g->nodes[j].type;
  if (t.weak || g->nodes[j].kind == NODE_CONST) return j;
  op_attr attr = graph_shape_attr(t.rank, t.shape);
  attr.flags = ATTR_ANEW;
  return graph_node_raw(g, OP_reshape, &j, 1, &attr, t, site);
}

bool graph_drawn_anew(graph *g, uint32_t from) {
  for (uint32_t i = from; i < g->n; i++) {
    graph_node *n = &g->nodes[i];
    if (n->kind == NODE_OP && op_rows[n->op].klass == CLASS_RANDOM &&
        !graph_fix_flags(g, i, graph_attr(n).flags | ATTR_ANEW))
      return false;
    /* (the derivative that a call brings draws numbers of its own) */
    for (int k = 0; k < (graph_is_rule(n) ? 1 : 2) && graph_kind_has_regions(n->kind); k++)
      if (!graph_drawn_anew(n->payload.regions[k], 1)) return false;
  }
  return true;
}

/* Copies the nodes of a region that its results with cotangents need. Sets map[i - first] to the copy of node i, and *marks to pairs of
 * a node outside and its mark (mark_anew). False when memory is short. */
static bool make_again(backward *b, const graph_region *x, uint32_t *map, uint32_t **marks, uint32_t *nmarks) {
  graph *g = b->g;
  uint32_t n = x->end - x->first, most = 0;
  bool *needed = arena_alloc(&b->scratch, n * sizeof *needed);
  if (!needed) return false;
  for (uint32_t k = 0; k < x->nouts; k++)
    if (x->outs[k] && cotangent_of(b, x->outs[k])) needed[x->outs[k] - x->first] = true;
  for (uint32_t i = n; i-- > 0;) {
    if (!needed[i]) continue;
    const graph_node *node = &g->nodes[x->first + i];
    for (int k = 0; k < node->nin && node->kind != NODE_TAP; k++)
      if (node->in[k] >= x->first)
        needed[node->in[k] - x->first] = true;
      else
        most++;
  }
  *marks = arena_alloc(&b->scratch, (2 * (size_t)most + 1) * sizeof **marks);
  node_numbers marked; /* node outside -> 1 + its pair in *marks */
  if (!*marks || !numbers_make(b, most, &marked)) return false;
  for (uint32_t i = 0; i < n; i++) {
    if (!needed[i]) continue;
    graph_node node = g->nodes[x->first + i];
    if (node.kind == NODE_CONST ||
        node.kind == NODE_TAP) { /* a copy would save no memory; what was read is not read again */
      map[i] = x->first + i;
      continue;
    }
    uint32_t *in = arena_alloc(&b->scratch, (node.nin + 1u) * sizeof *in);
    if (!in) return false;
    for (int k = 0; k < node.nin; k++) {
      uint32_t j = node.in[k];
      if (j >= x->first) {
        in[k] = map[j - x->first];
        continue;
      }
      uint32_t *slot = number_slot(b, &marked, j), m = *nmarks;
      if (!*slot) {
        (*marks)[2 * m] = j;
        if (!((*marks)[2 * m + 1] = mark_anew(g, j, node.site))) return false;
        slot[0] = j;
        slot[1] = ++*nmarks;
      }
      in[k] = (*marks)[2 * (slot[1] - 1) + 1];
    }
    if (node.kind == NODE_INPUT) { /* an input that was first used inside the region */
      map[i] = x->first + i;
      continue;
    }
    map[i] = graph_node_like(g, &node, in);
    if (!map[i] || !graph_node_prove(g, map[i])) return false; /* the original has made its check */
  }
  return true;
}

/* A list of nodes in which those of region x are replaced by their copies. NULL when memory is short. */
static const uint32_t *copied_list(arena *a, const uint32_t *list, uint32_t n, const graph_region *x,
                                   const uint32_t *map) {
  uint32_t *to = arena_alloc(a, (n + 1) * sizeof *to);
  for (uint32_t i = 0; i < n && to; i++)
    to[i] = list[i] >= x->first && list[i] < x->end ? map[list[i] - x->first] : list[i];
  return to;
}

/* Sets `inner` to the regions that the copy of region x has, made from those that lie in x, and reports each to the owner (rules->add).
 * The regions inside x come just before it in the list of regions. False when memory is short. */
static bool copy_regions(backward *b, const graph_region *x, const uint32_t *map, graph_rules *inner) {
  const graph_rules *r = b->rules;
  uint32_t low = 0, high = r->n;
  while (low < high) { /* finds the first region that ends after x's first node */
    uint32_t mid = low + (high - low) / 2;
    if (r->regions[mid].end <= x->first)
      low = mid + 1;
    else
      high = mid;
  }
  while (high < r->n && r->regions[high].end <= x->end) high++;
  graph_region *list = arena_alloc(&b->scratch, (high - low + (size_t)1) * sizeof *list);
  if (!list) return false;
  inner->regions = list;
  inner->n = 0;
  for (uint32_t i = low; i < high; i++) {
    const graph_region *y = &r->regions[i];
    if (y->first < x->first || y->end > x->end || (y->first == x->first && y->end == x->end)) continue;
    graph_region copy = *y;
    copy.first = 0;
    for (uint32_t k = y->first; k < y->end; k++) {
      uint32_t node = map[k - x->first];
      if (!node || (node >= x->first && node < x->end)) continue;
      if (!copy.first) copy.first = node;
      copy.end = node + 1;
    }
    if (!copy.first) continue;
    copy.args = copied_list(&b->scratch, y->args, y->nargs, x, map);
    copy.outs = copied_list(&b->scratch, y->outs, y->nouts, x, map);
    if (!copy.args || !copy.outs) return false;
    list[inner->n++] = copy;
    if (!r->add(r->ctx, &copy)) return false;
  }
  return true;
}

/* Differentiates a region that is computed once more (checkpoint): copies it, then differentiates the copy. False with why. */
static bool region_again(backward *b, const graph_region *x) {
  graph *g = b->g;
  uint32_t n = x->end - x->first, nmarks = 0, *marks = NULL, from = g->n;
  uint32_t *map = arena_alloc(&b->scratch, n * sizeof *map);
  uint32_t *roots = arena_alloc(&b->scratch, (3 * (size_t)x->nouts + 1) * sizeof *roots), *seeds = roots + x->nouts,
           *there = seeds + x->nouts;
  graph_rules inner = *b->rules;
  if (!map || !roots || !make_again(b, x, map, &marks, &nmarks) || !graph_drawn_anew(g, from) ||
      !copy_regions(b, x, map, &inner))
    return out_of_memory(b->why, b->culprit);
  int nroots = 0;
  for (uint32_t k = 0; k < x->nouts; k++) {
    uint32_t o = x->outs[k];
    node_state *s = o ? state_of(b, o) : NULL;
    if (!s || !s->cotangent || !s->active) continue;
    roots[nroots] = map[o - x->first];
    there[nroots] = s->there;
    seeds[nroots++] = s->cotangent;
    s->cotangent = 0; /* so that a result which is listed twice counts once */
  }
  uint32_t *wrt = arena_alloc(&b->scratch, (3 * (size_t)nmarks + 1) * sizeof *wrt), *grads = wrt + nmarks, nwrt = 0;
  bool *plain = arena_alloc(&b->scratch, (nmarks + (size_t)1) * sizeof *plain);
  if (!wrt || !plain) return out_of_memory(b->why, b->culprit);
  for (uint32_t m = 0; m < nmarks; m++)
    if (is_active(b, marks[2 * m])) {
      wrt[nwrt] = marks[2 * m + 1];
      marks[2 * nwrt] = marks[2 * m];
      plain[nwrt++] = state_of(b, marks[2 * m])->plain;
    }
  if (!nwrt || !nroots) return true;
  const graph_presence p = {.seeds = there, .plain = plain, .grads = grads + nmarks};
  if (!graph_vjp_onto(g, from, roots, seeds, nroots, wrt, NULL, (int)nwrt, &inner, &p, grads, b->culprit, b->why))
    return false;
  for (uint32_t k = 0; k < nwrt; k++)
    if (grads[k]) contribute(b, marks[2 * k], grads[k], p.grads[k], g->nodes[grads[k]].site);
  return !g->failed || out_of_memory(b->why, b->culprit);
}

/* Differentiates a region with a rule of its own (custom_grad), which gives the cotangents of its args. False with why. */
static bool region_rule(backward *b, const graph_region *x) {
  graph *g = b->g;
  uint32_t *given = arena_alloc(&b->scratch, (x->nouts + (size_t)x->nargs + 1) * sizeof *given),
           *grads = given + x->nouts;
  if (!given) return out_of_memory(b->why, b->culprit);
  uint32_t there = 0;
  bool any = false;
  for (uint32_t k = 0; k < x->nouts; k++) {
    const node_state *s = x->outs[k] ? state_of(b, x->outs[k]) : NULL;
    if (!s || !(given[k] = s->cotangent)) continue;
    there = any ? either(g, there, s->there) : s->there;
    any = true;
  }
  *b->culprit = x->end - 1;
  if (!b->rules->apply(b->rules->ctx, x, given, grads, b->why)) return false;
  b->fresh = g->n;
  uint32_t site = g->nodes[x->end - 1].site;
  for (uint32_t k = 0; k < x->nargs; k++)
    if (grads[k] && is_active(b, x->args[k]))
      contribute(b, x->args[k], or_zeros(g, there, grads[k], site), there, site);
  return !g->failed || out_of_memory(b->why, b->culprit);
}

static bool step_region(backward *b, const graph_region *x) {
  bool any = false;
  for (uint32_t k = 0; k < x->nouts; k++) {
    uint32_t o = x->outs[k];
    any |= o && is_active(b, o) && cotangent_of(b, o);
  }
  return !any || (x->again ? region_again(b, x) : region_rule(b, x));
}

/* ---- all nodes ------------------------------------------------------------------------------------------------------- */

static bool walk(backward *b) {
  uint32_t next = 0; /* of b->regions: the next one that the walk reaches */
  for (uint32_t i = b->last; i >= b->from && i > 0; i--) {
    b->fresh = b->g->n;
    while (next < b->nregions && b->regions[next].first > i) next++;
    if (next < b->nregions && i < b->regions[next].end) {
      if (!step_region(b, &b->regions[next])) return false;
      i = b->regions[next].first;
    } else if (is_active(b, i) && (cotangent_of(b, i) || graph_kind_has_regions(b->g->nodes[i].kind)) && !step(b, i)) {
      return false;
    }
  }
  return true;
}

/* Runs however a differentiation ends, also when an exception of the region's owner unwinds it (this file is compiled with
 * -fexceptions). */
static void backward_end(backward *b) { arena_free(&b->scratch); }

bool graph_vjp(graph *g, uint32_t from, const uint32_t *roots, const uint32_t *seeds, int nroots, const uint32_t *wrt,
               int nwrt, const graph_rules *rules, uint32_t *grads, uint32_t *culprit, op_refusal *why) {
  return graph_vjp_onto(g, from, roots, seeds, nroots, wrt, NULL, nwrt, rules, NULL, grads, culprit, why);
}

/* Have the graph, from a node on, or its regions, derivatives that were to be differentiated? */
static bool has_derivatives(const graph *g, uint32_t from) {
  bool has = g->derived > from;
  for (uint32_t i = from; i < g->n && !has; i++)
    for (int a = 0; a < 2 && graph_kind_has_regions(g->nodes[i].kind) && !has; a++)
      has = has_derivatives(g->nodes[i].payload.regions[a], 0);
  return has;
}

bool graph_vjp_onto(graph *g, uint32_t from, const uint32_t *roots, const uint32_t *seeds, int nroots,
                    const uint32_t *wrt, const uint32_t *onto, int nwrt, const graph_rules *rules,
                    const graph_presence *there, uint32_t *grads, uint32_t *culprit, op_refusal *why) {
  backward b __attribute__((cleanup(backward_end))) = {
      .g = g, .from = from ? from : 1, .rules = rules, .culprit = culprit, .why = why, .sums = onto != NULL};
  arena_init(&b.scratch, g->arena.vm);
  why->id = 0;
  *culprit = 0;
  for (int i = 0; i < nwrt; i++) {
    grads[i] = 0;
    if (!is_float(g, wrt[i]))
      return refuse(why, culprit, wrt[i], "a gradient needs a float input, not %s",
                    dtype_rows[g->nodes[wrt[i]].type.dtype].name);
  }
  for (int i = 0; i < nroots; i++)
    if (roots[i] > b.last) b.last = roots[i];
  b.last = whole_regions(&b);
  b.again = (rules && rules->again) || has_derivatives(g, b.from);
  bool ok = take_states(&b, wrt, nwrt, there) && take_regions(&b) && mark_active(&b) && note_tails(&b);
  for (int i = 0; i < nwrt && ok && onto; i++) {
    node_state *s = state_of(&b, wrt[i]);
    if (!s) continue;
    s->cotangent = onto[i];
    if (there) s->there = there->onto[i];
  }
  if (ok && onto && there && there->rows) ok = begin_rows(&b, wrt, nwrt, there) || out_of_memory(why, culprit);
  for (int i = 0; i < nroots && ok; i++) {
    uint32_t root = roots[i];
    if (!is_active(&b, root)) continue;
    uint32_t seed = seeds[i] ? seeds[i]
                             : graph_const_scalar(g, (qn_dtype)g->nodes[root].type.dtype, g->nodes[root].type.weak, 1,
                                                  1, g->nodes[root].site);
    contribute(&b, root, seed, there ? there->seeds[i] : 0, g->nodes[root].site);
    ok = cotangent_of(&b, root) || out_of_memory(why, culprit);
  }
  ok = ok && walk(&b);
  if (rules && rules->derived) g->derived = g->n;
  for (int i = 0; i < nwrt && ok; i++) {
    const node_state *s = state_of(&b, wrt[i]);
    grads[i] = s || !onto ? cotangent_of(&b, wrt[i]) : onto[i];
    if (there) there->grads[i] = s ? s->there : onto ? there->onto[i] : 0;
  }
#ifdef QN_CHECKED
  for (uint32_t i = 1; rules && i < rules->n; i++) assert(rules->regions[i - 1].end <= rules->regions[i].end);
  char wrong[160];
  if (ok && g->n < CHECKED_NODES && !graph_verify(g, wrong, sizeof wrong)) {
    why->id = E_internal;
    snprintf(why->text, sizeof why->text, "differentiation made a graph that is none: %s", wrong);
    ok = false;
  }
#endif
  return ok;
}
