/* Updates in place (updates.h). An indexed assignment is a value: the old array with some elements replaced. Where nobody reads the old array
 * afterwards it needs no copy: the elements are stored into its memory.
 *
 * The operand must be an array that the graph itself makes and stores, or an input that was given for this purpose (donated), and its readers
 * must come before the update. So that they do, fusion orders them, and keeps readers out of the update's kernel unless it stores one element:
 * there everything is read before that is stored.
 *
 * What stores into a part of a view, as x[1:-1, j] = v does, is an assignment to a view of x, put back into x by a node that undoes the view. Then
 * the first stores into x's memory and nothing is left for the second to do.
 *
 * Of a part of an array, updates in place are made where the part is small: a stencil over all but the borders is quicker as one kernel that
 * writes a new array than as one that stores to a temporary and one that copies. In a loop that is one kernel (splice.h) the new array would be
 * copied back in each turn, and temporaries lie in the cache: there all parts are stored in place. Jacobi of 64 x 64, 100 sweeps: 360 us with
 * selects and guards at the borders. Parts whose size is a number of the turn, as of a triangle that is gone through, are stored in place in arrays of
 * any size: they are half of the array or less, taken over all turns, and how much in this turn nobody knows. LU of 256 x 256: 39 ms with the copies. */
#include "jit/kernel/updates.h"

#include <stdlib.h>

#include "jit/kernel/lower.h"

enum { PART = 4 }; /* a slice is stored in place if it has at most 1 / PART of the elements */

static bool is_assignment(const graph_node *n) {
  return n->kind == NODE_OP && !n->type.weak &&
         (n->op == OP_scatter || n->op == OP_gather_add || n->op == OP_slice_put);
}

int64_t updates_input(const graph *g, uint32_t k) {
  uint32_t n = g->outputs[k];
  for (;;) {
    const graph_node *node = &g->nodes[n];
    if (node->type.weak) return -1;
    if (node->kind == NODE_INPUT) return node->payload.input;
    if (is_assignment(node)) {
      n = node->in[0];
    } else if (node->kind == NODE_OP &&
               node->op == OP_permute) { /* perhaps an assignment to a turned array, turned back */
      const graph_node *x = &g->nodes[node->in[0]];
      if (x->kind != NODE_OP || x->op != OP_scatter || g->nodes[x->in[0]].kind != NODE_OP ||
          g->nodes[x->in[0]].op != OP_permute)
        return -1;
      n = g->nodes[x->in[0]].in[0];
    } else if (node->kind == NODE_PROJ) {
      const graph_node *region = &g->nodes[node->in[0]];
      int64_t i = updates_operand(region, node->payload.index);
      if (i < 0) return -1;
      n = region->in[i];
    } else {
      return -1;
    }
  }
}

int64_t updates_operand(const graph_node *region, uint32_t k) {
  const graph *const *parts = (const graph *const *)region->payload.regions;
  if (region->kind == NODE_LOOP) {
    if (k >= graph_loop_carries(region)) return -1;
    return updates_input(parts[1], k) == k ? (int64_t)k : -1;
  }
  int64_t i = updates_input(parts[0], k);
  return i >= 0 && updates_input(parts[1], k) == i ? i + 1 : -1;
}

void updates_last_readers(const graph *g, uint32_t *last) {
  for (uint32_t n = 0; n < g->n; n++) last[n] = 0;
  for (uint32_t i = 0; i < g->noutputs; i++) last[g->outputs[i]] = UINT32_MAX;
  for (uint32_t n = g->n; n-- > 1;) {
    const graph_node *node = &g->nodes[n];
    uint32_t when = lower_role(g, n) == NODE_IS_VIRTUAL && last[n] > n ? last[n] : n;
    for (int i = 0; i < node->nin; i++)
      if (last[node->in[i]] < when) last[node->in[i]] = when;
  }
}

/* The array that node n is, perhaps in another shape: what may lie in one buffer with it (base_of of fuse.c). */
static uint32_t root_of(const graph *g, uint32_t n) {
  while (g->nodes[n].kind == NODE_OP && g->nodes[n].nin &&
         (g->nodes[n].op == OP_reshape || g->nodes[n].op == OP_stop_gradient || g->nodes[n].op == OP_broadcast))
    n = g->nodes[n].in[0];
  return n;
}

uint32_t updates_times(const graph *g, uint32_t n, uint32_t i) {
  const graph_node *node = &g->nodes[n];
  uint32_t times = 0;
  for (int k = 0; k < node->nin; k++) times += root_of(g, node->in[k]) == root_of(g, node->in[i]);
  return times;
}

bool updates_operand_is_free(const graph *g, const uint32_t *last, uint32_t n, uint32_t i) {
  return updates_times(g, n, i) == 1 && last[g->nodes[n].in[i]] == n;
}

/* Is one operand of node n, besides the first, the array `x` itself, perhaps in another shape? */
static bool reads_again(const graph *g, const graph_node *n, uint32_t x) {
  for (int i = 1; i < n->nin; i++)
    if (root_of(g, n->in[i]) == x) return true;
  return false;
}

static double elements_about(const graph *g, const graph_type *t) {
  double n = 1;
  for (int a = 0; a < t->rank; a++) n *= (double)dim_hint(&g->dims, t->shape[a]);
  return n;
}

bool updates_one_element(const graph *g, uint32_t n) {
  const graph_node *node = &g->nodes[n];
  if (node->op == OP_slice_put) {
    for (int a = 0; a < node->type.rank; a++)
      if (node->attr->d[3 * a + 1] != 1) return false;
    return true;
  }
  if (node->op != OP_scatter) return false;
  int count = (int)node->attr->d[0];
  for (int i = 1; i <= count; i++)
    for (int a = 0; a < g->nodes[node->in[i]].type.rank; a++)
      if (g->nodes[node->in[i]].type.shape[a] != 1) return false;
  for (int a = count; a < node->type.rank; a++)
    if (node->type.shape[a] != 1) return false;
  return true;
}

static bool is_worth_it(const updates_request *r, uint32_t n) {
  const graph *g = r->g;
  const graph_node *node = &g->nodes[n];
  if (node->op != OP_slice_put || (r->donated && elements_about(g, &node->type) <= r->cached)) return true;
  double part = 1;
  bool varies = false;
  for (int a = 0; a < node->type.rank; a++) varies |= dim_is_late(&g->dims, node->attr->d[3 * a + 1]);
  if (varies && r->donated && r->cached > 0) return true;
  for (int a = 0; a < node->type.rank; a++) part *= (double)dim_hint(&g->dims, node->attr->d[3 * a + 1]);
  return part * PART <= elements_about(g, &node->type);
}

/* ---- assignments to views ----------------------------------------------------------------------------------------------------- */

/* Who reads which node: users[at[n] .. at[n + 1]) read n; node 0 does if n is a result of the graph. */
typedef struct readers {
  uint32_t *at, *users;
} readers;

static bool find_readers(const graph *g, readers *r) {
  size_t n = g->noutputs;
  for (uint32_t i = 1; i < g->n; i++) n += g->nodes[i].nin;
  r->at = calloc(g->n + 2u, sizeof *r->at);
  r->users = malloc((n + 1) * sizeof *r->users);
  if (!r->at || !r->users) return false;
  for (uint32_t i = 1; i < g->n; i++)
    for (int k = 0; k < g->nodes[i].nin; k++) r->at[g->nodes[i].in[k] + 2]++;
  for (uint32_t o = 0; o < g->noutputs; o++) r->at[g->outputs[o] + 2]++;
  for (uint32_t i = 2; i < g->n + 2u; i++) r->at[i] += r->at[i - 1];
  for (uint32_t i = 1; i < g->n; i++)
    for (int k = 0; k < g->nodes[i].nin; k++) r->users[r->at[g->nodes[i].in[k] + 1]++] = i;
  for (uint32_t o = 0; o < g->noutputs; o++) r->users[r->at[g->outputs[o] + 1]++] = 0;
  return true;
}

/* The only reader of n; 0: there are more, or n is a result. */
static uint32_t only_reader(const readers *r, uint32_t n) {
  return r->at[n + 1] - r->at[n] == 1 ? r->users[r->at[n]] : 0;
}

/* How a view lies in an array of the same rank: coordinate c of its axis i is coordinate start[i] + step[i] * c of axis[i]. */
typedef struct laid {
  int axis[ARRAY_MAX_RANK];
  qn_dim start[ARRAY_MAX_RANK];
  int64_t step[ARRAY_MAX_RANK];
} laid;

static bool is_op(const graph_node *n, op_id op) { return n->kind == NODE_OP && n->op == (uint8_t)op; }

/* The array of which n is a view by at most one slice and one permutation of that, in *v how it lies there; n itself if it is none. */
static uint32_t view_of(const graph *g, uint32_t n, laid *v) {
  const graph_node *turn = is_op(&g->nodes[n], OP_permute) ? &g->nodes[n] : NULL;
  uint32_t x = turn ? turn->in[0] : n;
  const graph_node *part = is_op(&g->nodes[x], OP_slice) ? &g->nodes[x] : NULL;
  for (int i = 0; i < g->nodes[n].type.rank; i++) {
    int a = v->axis[i] = turn ? (int)turn->attr->d[i] : i;
    v->start[i] = part ? part->attr->d[3 * a] : 0;
    v->step[i] = part ? part->attr->d[3 * a + 2] : 1;
  }
  return part ? part->in[0] : x;
}

/* Of a scatter to a view that lies so in array x: the node that is x with the view put back, if that alone reads the scatter; 0: there is none. */
static uint32_t put_back(const graph *g, const readers *r, uint32_t n, uint32_t x, const laid *v) {
  int rank = g->nodes[n].type.rank, at[ARRAY_MAX_RANK]; /* by axis of x: the axis of the scatter */
  uint32_t u = only_reader(r, n), from = n;
  for (int i = 0; i < rank; i++) at[i] = i;
  if (u && is_op(&g->nodes[u], OP_permute)) {
    for (int i = 0; i < rank; i++) at[i] = (int)g->nodes[u].attr->d[i];
    from = u;
  }
  bool whole = graph_type_same(&g->nodes[from].type, &g->nodes[x].type) && from != n;
  for (int i = 0; i < rank; i++) {
    if (v->axis[at[i]] != i) return 0;
    whole = whole && v->start[at[i]] == 0 && v->step[at[i]] == 1;
  }
  if (whole) return from;
  u = from == n ? u : only_reader(r, from);
  if (!u || !is_op(&g->nodes[u], OP_slice_put) || g->nodes[u].in[0] != x || g->nodes[u].in[1] != from) return 0;
  const qn_dim *d = g->nodes[u].attr->d;
  for (int i = 0; i < rank; i++)
    if (d[3 * i] != v->start[at[i]] || d[3 * i + 1] != g->nodes[from].type.shape[i] || d[3 * i + 2] != v->step[at[i]])
      return 0;
  return u;
}

/* Do all readers of x but u come before node n, which is one? */
static bool read_before(const graph *g, const readers *r, const uint32_t *last, uint32_t x, uint32_t n, uint32_t u) {
  if (last[x] == UINT32_MAX) return false;
  for (uint32_t i = r->at[x]; i < r->at[x + 1]; i++) {
    uint32_t user = r->users[i], when = lower_role(g, user) == NODE_IS_VIRTUAL && last[user] > user ? last[user] : user;
    if (user != u && when > n) return false;
  }
  return true;
}

/* Is node x an array in memory of the graph's own, or given for being written to? */
static bool can_be_written(const updates_request *r, uint32_t x) {
  const graph_node *node = &r->g->nodes[x];
  switch (lower_role(r->g, x)) {
  case NODE_IS_WORK:
  case NODE_IS_RESULT: return true;
  case NODE_IS_VIRTUAL: return r->over[x] != 0; /* a view that was assigned to, put back */
  case NODE_IS_LEAF: return node->kind == NODE_INPUT && r->donated && r->donated[node->payload.input];
  default: return false;
  }
}

/* Sets `over` and `whole` of a scatter to a view. */
static void assign_to_view(const updates_request *r, const readers *users, uint32_t n) {
  const graph *g = r->g;
  const graph_node *node = &g->nodes[n];
  laid v;
  if (!is_op(node, OP_scatter) || node->type.weak) return;
  uint32_t x = view_of(g, node->in[0], &v);
  if (x == node->in[0] || !can_be_written(r, x) || reads_again(g, node, x)) return;
  if (r->whole[x]) return; /* (what is in memory there is the view put back, in another layout than x) */
  uint32_t u = put_back(g, users, n, x, &v);
  if (!u || !read_before(g, users, r->last, x, n, u)) return;
  r->over[n] = x;
  r->over[u] = n;
  r->whole[n] = u;
}

/* ---- all of them ---------------------------------------------------------------------------------------------------------------- */

/* The operand into whose memory node n could store, if that can be written to; 0: none. */
static uint32_t operand_of(const updates_request *r, uint32_t n) {
  const graph *g = r->g;
  const graph_node *node = &g->nodes[n];
  uint32_t x;
  if (is_assignment(node)) {
    x = node->in[0];
    if (r->last[x] != n || reads_again(g, node, x) || !is_worth_it(r, n)) return 0;
  } else if (node->kind == NODE_PROJ && r->kept && r->kept[n]) {
    x = r->kept[n];
    if (r->last[x] != node->in[0]) return 0;
  } else {
    return 0;
  }
  return graph_type_same(&node->type, &g->nodes[x].type) && can_be_written(r, x) ? x : 0;
}

/* The input at whose memory a chain of updates that ends at node n begins; -1: it begins elsewhere. */
static int64_t chain_begin(const updates_request *r, uint32_t n) {
  while (r->over[n]) n = r->over[n];
  return r->g->nodes[n].kind == NODE_INPUT ? (int64_t)r->g->nodes[n].payload.input : -1;
}

bool updates_find(const updates_request *r) {
  const graph *g = r->g;
  readers users;
  updates_last_readers(g, r->last);
  bool ok = find_readers(g, &users);
  for (uint32_t n = 1; n < g->n && ok; n++) {
    if (!r->over[n]) assign_to_view(r, &users, n);
    if (!r->over[n]) r->over[n] = operand_of(r, n);
  }
  free(users.at);
  free(users.users);
  if (!r->donated || !ok) return ok;
  /* A chain that begins at an input must end at the output that is to be its memory, and there alone. */
  uint32_t *last = r->last;
  for (uint32_t n = 1; n < g->n; n++) last[n] = 0; /* from here on: 1 + the input that ends rightly here */
  for (uint32_t o = 0; o < g->noutputs; o++) {
    int64_t i = chain_begin(r, g->outputs[o]);
    if (i < 0 || r->donated[i] != o + 1) continue;
    uint32_t times = 0;
    for (uint32_t k = 0; k < g->noutputs; k++) times += g->outputs[k] == g->outputs[o];
    for (uint32_t n = g->outputs[o]; times == 1 && r->over[n]; n = r->over[n]) last[n] = 1;
  }
  for (uint32_t n = 1; n < g->n; n++) {
    if (!r->over[n] || g->nodes[r->over[n]].kind != NODE_INPUT || last[n]) continue;
    if (r->whole[n]) r->over[r->whole[n]] = 0;
    r->over[n] = r->whole[n] = 0;
  }
  return true;
}
