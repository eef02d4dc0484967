/* Fusion: a greedy partition of a graph into kernels.
 *
 * Units. What has to be computed somewhere is a unit: a node that does work, a library step, a host scalar, or a view whose
 * elements must lie in a buffer (an output, an operand of a library step). Other views are address arithmetic of whoever reads
 * them. Units are numbered in program order; edges say who reads whom, and through what. Edges without data keep fallible
 * units in program order, put what was proven by such a one (an index that an earlier node checks) behind it, and put a unit
 * behind the step that finds one of its sizes.
 *
 * Groups. At first every unit is a group. A merge must keep the graph of groups free of cycles, must be one that lower.c and
 * schedule.c can express, and must not cost time by their estimate:
 *   1. Chains. A pointwise unit whose only readers are in one group, over the same points, joins it, unasked: nothing is
 *      stored, read or computed twice that was not before. In reverse program order, so a unit meets its readers' final group.
 *   2. Pairs of groups, those that save most bytes first: a value that is read where it was made (and not stored at all if
 *      nobody else reads it), a buffer that two groups read. The estimate of the merged kernel against the two apart decides; it
 *      knows of recomputation and of passes over memory. A merged group is a new candidate with all its neighbours.
 * A product may be followed by elementwise work over its own points and by nothing else, and its operands are buffers that it steps
 * through evenly. The result of a scatter is stored before it is read. What stores into the memory of an operand (updates.h) runs after all
 * that reads the operand, and is in a kernel with such a reader only if it stores one element.
 *
 * The number of values in estimated kernels is bounded by a multiple of the graph's units, and that of one kernel by a multiple
 * of its own, so planning is linear.
 *
 * Order. A group runs at the time of its last node, or of the latest group that it reads. A merge takes the later of two times
 * and puts back what follows the earlier one, so searches for cycles are among groups between two times only. A forward and a
 * backward kernel of a deep net have most of it between them: once such moves have taken long, merges that need them are refused early,
 * also because groups that were put back to one time make searches long (64 layers of a transformer: 165 instead of 239 M
 * instructions, for 2,045 instead of 2,028 kernels).
 *
 * Memory. Where a limit is given (plan.c, when a plan needs more memory than running node by node), what is live when is kept
 * up to date, and a merge that takes the most of it beyond the limit is taken back.
 *
 * Tried: simulating the whole graph for every merge (right, but quadratic: 95 ms for a recurrent net of 1,000 nodes; now 20);
 * comparing with the peak of the whole graph instead of what is live while the merged groups' values live (then a lower limit
 * changes nothing once one place is above it); offering the first readers of a value as siblings instead of the nearest (in
 * unrolled loops they are far apart, and each search for a cycle goes through all in between: 1,160 ms instead of 185 for
 * 10,000 nodes of y = y - mean(y) + x); looking for cycles among all groups (2,500 nodes of that took 463 ms). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/kernel/fuse.h"
#include "jit/kernel/heap.h"
#include "jit/kernel/schedule.h"
#include "jit/kernel/statics.h"
#include "jit/kernel/updates.h"
#include "lang/vm.h"

enum {
  BUDGET_PER_UNIT = 400, /* values in estimated kernels, per unit of the graph */
  BUDGET_LEAST = 40000,
  VALUES_PER_UNIT = 48, /* of a kernel, at most: values that are computed again at other places make more */
  VALUES_LEAST = 512,
  SEARCH_LIMIT = 2048, /* edges followed when looking for a cycle, or when moving what follows a merged group; */
  MOVES_LIMIT = 256,   /* when moving, once all moves together have */
  MOVES_BUDGET = 16 * SEARCH_LIMIT, /* followed as many as this */
  SIBLINGS_LIMIT = 12               /* readers of one value that are considered as its sibling */
};

enum {
  EDGE_DATA = 1,
  EDGE_VIEW = 2,    /* read at other coordinates than the reader's own */
  EDGE_GROW = 4,    /* read several times, since a node between broadcasts it */
  EDGE_DOT = 8,     /* an operand of a product */
  EDGE_SOURCE = 16, /* read at coordinates that are data */
  EDGE_FORCED = 32, /* the reader is no kernel, so the value must be stored */
  EDGE_ORDER = 64,  /* no value is read: the reader must only come later, */
  EDGE_APART = 128  /* and in another kernel, since one goes on where a check in it has failed */
};

typedef struct edge {
  uint32_t unit;
  uint32_t flags;
} edge;

typedef struct unit {
  uint32_t node;
  uint32_t group;
  uint8_t kind;           /* fuse_kind */
  bool root;              /* must its value be stored, whoever reads it? */
  bool output;            /* is it a result of the graph, so that it lives to the end? */
  bool value;             /* does it make the node's value, and not only its check? */
  uint32_t in, nin;       /* in f->in */
  uint32_t out, nout;     /* in f->out */
  uint32_t leaf, nleaves; /* in f->leaves */
  int64_t elements;       /* of its value */
  int64_t space;          /* points that its loops run over, not counting the axis that a product sums over */
  int64_t bytes;
  int64_t counted;   /* its bytes in the profile: 0 if it is not stored */
  uint32_t from, to; /* the times between which it lives */
} unit;

typedef struct group {
  uint32_t n;
  uint32_t *units; /* ascending */
  double ns;       /* estimated time, including the launch; < 0: not known yet */
  int64_t space;
  uint32_t time; /* when it runs: not before its last node, and after the groups that it reads */
  uint8_t kind;
  bool alive;
  bool dot, scatter;
  bool empty;    /* does a unit of it run over no points? */
  uint32_t seen; /* the number of the last search that reached it */
} group;

/* Where the walk over the operands of a unit has met a node. */
typedef struct walked {
  uint32_t unit; /* 1 + unit */
  uint32_t flags;
  uint32_t edge; /* 1 + index in f->in */
} walked;

/* A unit that reads a node; the next one in the list of this node's readers. */
typedef struct reading_unit {
  uint32_t unit, next;
} reading_unit;

/* A node of the profile, a tree of sums: the sum of its leaves, and the largest sum of its first k leaves for any k. */
typedef struct profile {
  int64_t sum, most;
} profile;

/* The time of a group before a merge moved it, so that the merge can be taken back. */
typedef struct moved {
  uint32_t group, time;
} moved;

typedef struct old_life {
  uint32_t unit, from, to;
  int64_t counted;
} old_life;

typedef struct fuser {
  fusion *to;
  graph *g;
  arena arena; /* for everything that is not part of the result */
  schedule_target target;
  const int64_t *tune;
  int64_t limit;           /* FUSE_NOTHING .. FUSE_ALL */
  profile *profile;        /* by time: f->times leaves, from index f->times on */
  uint32_t times;          /* a power of two */
  int64_t inputs, results; /* bytes */
  uint32_t first, last;    /* the times between which the last merge has changed lives */
  moved *moved;            /* groups that the last merge has moved */
  uint32_t nmoved;
  uint64_t moves;  /* edges that were followed to move groups */
  old_life *lives; /* lives before the last merge changed them */
  uint32_t nlives, lives_cap;
  const uint8_t *awkward;
  const uint32_t *over; /* by node: updates_request.over */
  uint32_t *writer;     /* by node: the node that stores into its memory, or has a result that does; 0: none */
  uint32_t *reads_at;   /* by node that has a writer: 1 + the first in the list of units that read it */
  reading_unit *reads;
  uint32_t nreads, reads_cap;
  alike *memo;
  cancel_flag cancel;
  const char *why;
  bool by_number; /* does the unit whose operands are walked depend on a size that is DIM_FROM_NUMBER; */
  bool
      by_turn; /* behind a check: in an arm, on a number that the arm has captured, or has it such a unit in a region? */
  uint32_t check; /* 1 + the last unit whose edges are there that is a check of the recording */
  uint8_t *live;
  uint32_t *unit_of; /* by node: 1 + unit of its value */
  unit *units;
  uint32_t n, cap;
  edge *in;
  uint32_t nin, in_cap;
  edge *out;
  uint32_t *leaves;
  uint32_t nleaves, leaves_cap;
  uint32_t *reader_at, *readers; /* units that read leaf `node`: readers[reader_at[node] .. reader_at[node + 1]) */
  group *groups;
  uint32_t ngroups;
  heap_item *heap; /* pairs of groups; .tie is the lower group << 32 | the higher one */
  uint32_t nheap, heap_cap;
  walked *walked;
  uint32_t *stack;   /* groups that a search has still to visit, */
  uint32_t *behind;  /* from its other end */
  uint32_t search;   /* the number of the last search */
  uint32_t *touched; /* by node: the number (f->touch) of the last sum of bytes that counted it */
  uint32_t touch;
  uint32_t *nodes; /* the nodes of a kernel that is being estimated */
  int64_t budget;
} fuser;

/* ---- small things ------------------------------------------------------------------------------------------------------------ */

static bool out_of_memory(fuser *f) {
  f->why = lower_no_memory;
  return false;
}

/* False, with f->why set, if planning was cancelled. Called so often that planning then ends within milliseconds. */
static bool goes_on(fuser *f) {
  if (!cancelled(f->cancel)) return true;
  f->why = lower_cancelled;
  return false;
}

/* Makes room for `need` elements in an array of the arena. */
static bool room(fuser *f, void **p, uint32_t *cap, uint32_t need, size_t size) {
  return need <= *cap || arena_room(&f->arena, p, cap, need, size) || out_of_memory(f);
}

static const graph_node *node_of(const fuser *f, uint32_t n) { return &f->g->nodes[n]; }

static int64_t hint_elements(graph *g, const graph_type *t) {
  int64_t n = 1;
  for (int a = 0; a < t->rank; a++)
    if (__builtin_mul_overflow(n, dim_hint(&g->dims, t->shape[a]), &n)) return INT64_MAX / 64;
  return n;
}

static int64_t rounded(int64_t elements, uint8_t dtype) {
  int64_t bytes;
  if (__builtin_mul_overflow(elements, (int64_t)dtype_size((qn_dtype)dtype), &bytes) || bytes > INT64_MAX - FUSE_ALIGN)
    return INT64_MAX / 64;
  return (bytes + FUSE_ALIGN - 1) / FUSE_ALIGN * FUSE_ALIGN;
}

int64_t fuse_bytes(graph *g, uint32_t node) {
  const graph_type *t = &g->nodes[node].type;
  return t->weak ? 0 : rounded(hint_elements(g, t), t->dtype);
}

/* A size that is at least d in every call and does not depend on sizes that only data tell. */
static qn_dim dim_bound(graph *g, qn_dim d, int depth) {
  if (d >= 0) return d;
  const dim_expr e = g->dims.exprs[~d];
  dim_table *t = &g->dims;
  if (e.op == DIM_SYMBOL) {
    if (e.source != DIM_FROM_NODE || depth == DIM_MAX_SIZE) return d;
    const graph_node *n = &g->nodes[e.ref];
    if (n->kind == NODE_PROJ) return d; /* how often a loop runs has no bound */
    const graph_type *mask = &g->nodes[n->in[n->op == OP_compress ? 1 : 0]].type;
    qn_dim all = 1;
    for (int a = 0; a < mask->rank; a++) all = dim_mul(t, all, dim_bound(g, mask->shape[a], depth + 1));
    return all;
  }
  qn_dim a = dim_bound(g, e.a, depth + 1);
  int64_t c;
  switch ((dim_op)e.op) {
  case DIM_SUB:
    return dim_is_const(t, e.b, &c) || dim_bound(g, e.b, depth + 1) == e.b ? dim_make(t, DIM_SUB, a, e.b) : a;
  case DIM_FLOORDIV: return dim_is_const(t, e.b, &c) && c > 0 ? dim_make(t, DIM_FLOORDIV, a, e.b) : a;
  case DIM_MOD: return dim_bound(g, e.b, depth + 1);
  default: return dim_make(t, (dim_op)e.op, a, dim_bound(g, e.b, depth + 1));
  }
}

qn_dim fuse_elements(graph *g, const graph_type *t) {
  qn_dim n = 1;
  for (int a = 0; a < t->rank; a++) n = dim_mul(&g->dims, n, dim_bound(g, t->shape[a], 0));
  return n;
}

/* ---- what is live, and what lies in a buffer ---------------------------------------------------------------------------------- */

static bool size_is(graph *g, qn_dim d, int64_t value) {
  int64_t c;
  return dim_is_const(&g->dims, d, &c) && c == value;
}

static bool one_element(graph *g, const graph_type *t) {
  for (int a = 0; a < t->rank; a++)
    if (!size_is(g, t->shape[a], 1)) return false;
  return true;
}

/* The operand of a view that has the same elements in the same row-major order, or 0. */
static uint32_t same_elements(graph *g, uint32_t n) {
  const graph_node *v = &g->nodes[n];
  if (v->kind != NODE_OP || v->nin == 0 || lower_role(g, n) != NODE_IS_VIRTUAL) return 0;
  const graph_type *x = &g->nodes[v->in[0]].type;
  if (v->op == OP_reshape || v->op == OP_stop_gradient) return v->in[0];
  if (v->op != OP_broadcast) return 0;
  for (int a = 0; a < v->type.rank; a++) {
    int from = a - (v->type.rank - x->rank);
    if (from < 0 ? !size_is(g, v->type.shape[a], 1) : v->type.shape[a] != x->shape[from]) return 0;
  }
  return v->in[0];
}

static void mark_live(void *live, uint32_t node) { ((uint8_t *)live)[node] = 1; }

static bool find_live(fuser *f) {
  graph *g = f->g;
  for (uint32_t i = 0; i < g->noutputs; i++) f->live[g->outputs[i]] = 1;
  for (uint32_t n = g->n; n-- > 1;) {
    const graph_node *node = &g->nodes[n];
    if (graph_fallible(g, n)) f->live[n] = 1;
    if (!f->live[n]) continue;
    for (int i = 0; i < node->nin; i++) f->live[node->in[i]] = 1;
    graph_each_size_node(g, n, mark_live, f->live);
  }
  return true;
}

/* Chooses the node whose buffer holds n's elements: n itself, or one of which n is a view with the same elements in the same order. */
static uint32_t base_of(fuser *f, uint32_t n) {
  uint32_t b = n, x;
  while (!f->to->base[b] && (x = same_elements(f->g, b)) != 0) b = x;
  return f->to->base[b] ? f->to->base[b] : b;
}

/* Notes that n's elements must lie in a buffer: chooses its base and sets root[base]. */
static void require(fuser *f, uint32_t n, uint8_t *root) {
  uint32_t b = base_of(f, n);
  f->to->base[n] = f->to->base[b] = b;
  root[b] = 1;
}

/* Does the reshape only add or drop axes of size 1? */
static bool drops_ones(graph *g, const graph_type *from, const graph_type *to) {
  int i = 0, k = 0;
  for (;;) {
    while (i < from->rank && size_is(g, from->shape[i], 1)) i++;
    while (k < to->rank && size_is(g, to->shape[k], 1)) k++;
    if (i == from->rank || k == to->rank) return i == from->rank && k == to->rank;
    if (from->shape[i++] != to->shape[k++]) return false;
  }
}

/* The view between operand n of a product and its buffer that must be stored, or 0 if none must. A tile of a product steps through memory
 * evenly along each axis, which is not possible for a reshape of a rearranged array. */
static uint32_t uneven_view(graph *g, uint32_t n) {
  uint32_t reshaped = 0;
  for (; lower_role(g, n) == NODE_IS_VIRTUAL; n = g->nodes[n].in[0]) {
    const graph_node *v = &g->nodes[n];
    if (!v->nin) return 0;
    if (v->op == OP_stop_gradient) continue;
    if (v->op != OP_reshape) {
      if (reshaped && (v->op == OP_permute || v->op == OP_slice || v->op == OP_index || v->op == OP_window ||
                       v->op == OP_broadcast))
        return reshaped;
    } else if (!reshaped && !drops_ones(g, &g->nodes[v->in[0]].type, &v->type)) {
      reshaped = n;
    }
  }
  return 0;
}

/* Does the reshape only merge neighbouring axes? Adds the axes that become digits of others to *digits. */
static bool merges_axes(graph *g, const graph_type *from, const graph_type *to, int *digits) {
  int i = 0;
  for (int k = 0; k < to->rank; k++) {
    if (size_is(g, to->shape[k], 1)) continue;
    qn_dim size = 1;
    int n = 0;
    for (; i < from->rank && (n == 0 || size != to->shape[k]); i++) {
      if (size_is(g, from->shape[i], 1)) continue;
      size = dim_mul(&g->dims, size, from->shape[i]);
      n++;
    }
    if (size != to->shape[k]) return false;
    if (n > 1) *digits += n;
  }
  for (; i < from->rank; i++)
    if (!size_is(g, from->shape[i], 1)) return false;
  return true;
}

/* Is operand n of a product windows of an array that a tile can read where that lies (l_tile), so that they need not be stored? Not where windows go in
 * steps of more than 2 along the last axis (of narrow floats: more than 1): a tile then packs element after element, which takes longer than storing
 * them. */
static bool reads_windows(graph *g, uint32_t n) {
  int digits = 0;
  bool reshaped = false;
  if (!dtype_is_float((qn_dtype)g->nodes[n].type.dtype)) return false;
  for (; lower_role(g, n) == NODE_IS_VIRTUAL; n = g->nodes[n].in[0]) {
    const graph_node *v = &g->nodes[n];
    if (!v->nin) return false;
    const graph_type *from = &g->nodes[v->in[0]].type;
    if (v->op == OP_window && __builtin_ctz(v->attr->axes) == from->rank - 1 && v->attr->d[1] != 1 &&
        (v->attr->d[1] != 2 || dtype_rows[from->dtype].size < 4))
      return false;
    if (v->op != OP_reshape || drops_ones(g, &g->nodes[v->in[0]].type, &v->type)) continue;
    if (reshaped || !merges_axes(g, &g->nodes[v->in[0]].type, &v->type, &digits)) return false;
    reshaped = true;
  }
  return digits <= L_TILE_DIGITS;
}

/* Node n stores into the memory of an operand: that must be in a buffer, and so must what it stores if it reads the same memory. */
static void require_for_update(fuser *f, uint32_t n, uint8_t *root) {
  const graph *g = f->g;
  const graph_node *node = &g->nodes[n];
  if (root[f->over[n]] < 1) require(f, f->over[n], root);
  if (root[n] < 1) require(f, n, root);
  if (f->to->whole[f->over[n]] == n) return; /* nothing is left to be stored */
  for (int i = 1; i < node->nin && !updates_one_element(g, n); i++) {
    uint32_t x = node->in[i];
    while (lower_role(g, x) == NODE_IS_VIRTUAL && g->nodes[x].nin) x = g->nodes[x].in[0];
    if (x == f->over[n]) require(f, node->in[i], root);
  }
}

static bool choose_buffers(fuser *f, uint8_t *root) {
  graph *g = f->g;
  uint32_t *claimed = arena_alloc(&f->arena, g->n * sizeof *claimed); /* 1 + the output that has the node's buffer */
  if (!claimed) return out_of_memory(f);
  /* A buffer serves several outputs only if they have one type, an input's only outputs of the input's type, a constant's none. */
  for (int pass = 0; pass < 2; pass++) {
    for (uint32_t i = 0; i < g->noutputs; i++) {
      uint32_t n = g->outputs[i], b = base_of(f, n);
      if (g->nodes[n].type.weak || (pass == 0) != (lower_role(g, n) != NODE_IS_VIRTUAL)) continue;
      if (f->to->base[n] && root[f->to->base[n]] == 2) continue;
      bool same = graph_type_same(&g->nodes[n].type, &g->nodes[b].type);
      bool leaf = lower_role(g, b) == NODE_IS_LEAF;
      if (leaf ? !same || g->nodes[b].kind == NODE_CONST
               : claimed[b] && !graph_type_same(&g->nodes[g->outputs[claimed[b] - 1]].type, &g->nodes[n].type))
        b = n;
      f->to->base[n] = f->to->base[b] = b;
      root[b] = 2;
      if (!claimed[b]) claimed[b] = i + 1;
    }
  }
  for (uint32_t n = 1; n < g->n; n++) {
    const graph_node *node = &g->nodes[n];
    if (!f->live[n] || (node->kind != NODE_OP && node->kind != NODE_TAP && !graph_kind_has_regions(node->kind)))
      continue;
    bool step = lower_role(g, n) == NODE_IS_STEP || node->kind != NODE_OP;
    bool read = node->type.weak && node->op == OP_cast && !g->nodes[node->in[0]].type.weak;
    for (int i = 0; (step || read || f->awkward[n]) && i < node->nin; i++)
      if (!g->nodes[node->in[i]].type.weak) require(f, node->in[i], root);
    for (int i = 0; node->op == OP_dot && !f->awkward[n] && i < node->nin; i++) {
      uint32_t stored = uneven_view(g, node->in[i]);
      bool windows = stored && i == 1 && f->to->windows && reads_windows(g, node->in[i]);
      if (stored && !windows) require(f, stored, root);
    }
    if (node->kind == NODE_OP && f->over[n]) require_for_update(f, n, root);
  }
  return true;
}

/* ---- units and edges ---------------------------------------------------------------------------------------------------------- */

static bool is_scatter(const graph_node *n) {
  return n->kind == NODE_OP && (n->op == OP_scatter || n->op == OP_gather_add);
}

static bool add_unit(fuser *f, uint32_t n, fuse_kind kind, bool value, uint8_t root) {
  if (!room(f, (void **)&f->units, &f->cap, f->n + 1, sizeof *f->units)) return false;
  const graph_node *node = node_of(f, n);
  unit *u = &f->units[f->n++];
  *u = (unit){.node = n, .kind = (uint8_t)kind, .value = value, .root = root != 0, .output = root == 2};
  u->elements = hint_elements(f->g, &node->type);
  u->space = u->elements;
  f->unit_of[n] = value || kind == FUSE_REGIONS ? f->n : f->unit_of[n];
  u->bytes = value ? fuse_bytes(f->g, n) : 0;
  if (node->kind != NODE_OP) return true;
  op_class klass = (op_class)op_rows[node->op].klass;
  if (f->over[n]) u->space = hint_elements(f->g, &node_of(f, node->in[node->nin - 1])->type);
  if (klass == CLASS_REDUCE || klass == CLASS_SCAN || is_scatter(node)) {
    for (int i = f->over[n] != 0; i < node->nin; i++) {
      int64_t x = hint_elements(f->g, &node_of(f, node->in[i])->type);
      if (x > u->space) u->space = x;
    }
  }
  return true;
}

static bool make_units(fuser *f, const uint8_t *root) {
  graph *g = f->g;
  for (uint32_t n = 1; n < g->n; n++) {
    const graph_node *node = &g->nodes[n];
    if (!f->live[n]) continue;
    bool ok = true;
    switch (lower_role(g, n)) {
    case NODE_IS_LEAF: break;
    case NODE_IS_SCALAR:
      if (node->kind == NODE_OP) ok = add_unit(f, n, FUSE_SCALAR, true, root[n]);
      if (node->kind == NODE_PROJ) ok = add_unit(f, n, FUSE_RESULT, true, root[n]);
      break;
    case NODE_IS_VIRTUAL:
      if (node->op == OP_fit && graph_fallible(g, n)) ok = add_unit(f, n, FUSE_SCALAR, false, 0);
      if (ok && root[n] && f->to->base[n] == n) ok = add_unit(f, n, FUSE_KERNEL, true, root[n]);
      break;
    case NODE_IS_WORK: ok = add_unit(f, n, FUSE_KERNEL, true, root[n]); break;
    case NODE_IS_STEP: ok = add_unit(f, n, FUSE_LIBRARY, true, root[n] ? root[n] : 1); break;
    case NODE_IS_REGIONS: ok = add_unit(f, n, FUSE_REGIONS, false, 0); break;
    case NODE_IS_TAP: ok = add_unit(f, n, FUSE_TAP, node->type.weak, 0); break;
    case NODE_IS_RESULT: ok = add_unit(f, n, FUSE_RESULT, true, root[n] ? root[n] : 1); break;
    }
    if (!ok) return false;
  }
  return true;
}

static bool add_edge(fuser *f, uint32_t from, uint32_t flags, uint32_t *index) {
  if (!room(f, (void **)&f->in, &f->in_cap, f->nin + 1, sizeof *f->in)) return false;
  f->in[f->nin++] = (edge){from, flags};
  if (index) *index = f->nin;
  return true;
}

/* How node n reads its operand i: EDGE_ bits. */
static uint32_t reading(graph *g, uint32_t n, int i) {
  const graph_node *node = &g->nodes[n];
  if (node->kind != NODE_OP) return EDGE_FORCED;
  switch (node->op) {
  case OP_dot: return EDGE_DOT;
  case OP_index:
  case OP_gather: return i == 0 ? EDGE_SOURCE : 0;
  case OP_reshape:
  case OP_permute:
  case OP_slice:
  case OP_window:
  case OP_pad:
  case OP_concat:
  case OP_slice_put: return EDGE_VIEW;
  case OP_broadcast: return EDGE_GROW;
  default: break;
  }
  if (op_rows[node->op].klass == CLASS_RANDOM) return EDGE_GROW; /* a key is read for many elements */
  return lower_role(g, n) == NODE_IS_STEP || node->type.weak ? EDGE_FORCED : 0;
}

typedef struct walk {
  uint32_t *stack, cap, n; /* pairs of a node and EDGE_ bits */
} walk;

static bool push(fuser *f, walk *w, uint32_t node, uint32_t flags) {
  if (!room(f, (void **)&w->stack, &w->cap, w->n + 2, sizeof *w->stack)) return false;
  w->stack[w->n++] = node;
  w->stack[w->n++] = flags;
  return true;
}

typedef struct ordered {
  fuser *f;
  uint32_t self;
} ordered;

static void order_behind(void *ctx, uint32_t node) {
  const ordered *o = ctx;
  o->f->by_number |= node < o->f->g->n && o->f->g->nodes[node].type.weak;
  uint32_t u = node < o->f->g->n ? o->f->unit_of[node] : 0;
  if (u && u - 1 < o->self && !o->f->why) (void)add_edge(o->f, u - 1, EDGE_ORDER, NULL);
}

/* Does node n of an arm, or one in its regions, depend on a size that is a number? */
static bool is_turn_sized(const graph *g, uint32_t n) {
  const graph_node *node = &g->nodes[n];
  bool any = false;
  for (int k = 0; k < 2 && graph_kind_has_regions(node->kind); k++)
    any |= graph_has_turn_sizes(node->payload.regions[k]);
  for (int a = 0; a < node->type.rank && g->dims.strict; a++) any |= dim_is_number(&g->dims, node->type.shape[a]);
  for (int k = 0; node->attr && k < node->attr->n && g->dims.strict; k++)
    any |= op_attr_is_dim((op_id)node->op, k) && dim_is_number(&g->dims, node->attr->d[k]);
  return any;
}

/* Makes unit `self` run after the units that find out the sizes of node n. */
static bool order_sizes(fuser *f, uint32_t self, uint32_t n) {
  graph_each_size_node(f->g, n, order_behind, &(ordered){f, self});
  f->by_turn |= f->check && is_turn_sized(f->g, n);
  return !f->why;
}

/* Unit `self` reads node n. */
static bool note_read(fuser *f, uint32_t self, uint32_t n) {
  if (!f->writer[n]) return true;
  if (!room(f, (void **)&f->reads, &f->reads_cap, f->nreads + 1, sizeof *f->reads)) return false;
  f->reads[f->nreads] = (reading_unit){self, f->reads_at[n]};
  f->reads_at[n] = ++f->nreads;
  return true;
}

/* Makes unit `self`, which stores into the memory of operands, run after the other units that read them. */
static bool order_update(fuser *f, uint32_t self) {
  const graph_node *node = node_of(f, f->units[self].node);
  uint32_t over = node->kind == NODE_OP ? f->over[f->units[self].node] : 0;
  for (int i = 0; i < (over ? 1 : node->nin); i++) {
    uint32_t x = over ? over : node->in[i];
    if (f->writer[x] != f->units[self].node) continue;
    for (uint32_t r = f->reads_at[x]; r; r = f->reads[r - 1].next)
      if (f->reads[r - 1].unit != self && !add_edge(f, f->reads[r - 1].unit, EDGE_ORDER, NULL)) return false;
  }
  return true;
}

static bool walk_operands(fuser *f, uint32_t self, walk *w) {
  graph *g = f->g;
  uint32_t first = f->units[self].node;
  for (int i = 0; i < g->nodes[first].nin; i++)
    if (!push(f, w, g->nodes[first].in[i], EDGE_DATA | reading(g, first, i))) return false;
  if (!order_sizes(f, self, first)) return false;
  while (w->n) {
    f->to->work++;
    uint32_t flags = w->stack[--w->n], n = w->stack[--w->n];
    walked *m = &f->walked[n];
    bool again = m->unit == self + 1;
    if (again && (m->flags & flags) == flags) continue;
    if (!again) *m = (walked){.unit = self + 1};
    m->flags |= flags;
    const graph_node *node = &g->nodes[n];
    node_role role = lower_role(g, n);
    bool renamed = (flags & EDGE_FORCED) && f->to->base[n] && f->to->base[n] != n;
    if (renamed) {
      if (!push(f, w, f->to->base[n], flags)) return false;
    } else if (f->unit_of[n]) {
      if (m->edge)
        f->in[m->edge - 1].flags |= flags;
      else if (!add_edge(f, f->unit_of[n] - 1, m->flags, &m->edge) || !note_read(f, self, n))
        return false;
    } else if (role == NODE_IS_LEAF) {
      if (again || f->to->place[n] == PLACE_INLINE) continue;
      if (!room(f, (void **)&f->leaves, &f->leaves_cap, f->nleaves + 1, sizeof *f->leaves)) return false;
      f->leaves[f->nleaves++] = n;
      if (!note_read(f, self, n)) return false;
    } else if (role == NODE_IS_VIRTUAL) {
      if (!again && !order_sizes(f, self, n)) return false;
      for (int i = 0; i < node->nin; i++)
        if (!push(f, w, node->in[i], flags | reading(g, n, i))) return false;
    }
  }
  return true;
}

/* Would the node do harm, and not just give some value, if a check before it, by which it was proven, had not been made yet? (So would all that
 * depends on a size which data decide: that parts lie within arrays may be such a check.) */
static bool relies_on_checks(const graph_node *n) {
  op_raises raises =
      n->kind == NODE_OP && n->attr && (n->attr->flags & ATTR_PROVEN) ? (op_raises)op_rows[n->op].raises : RAISES_never;
  return raises == RAISES_bounds || raises == RAISES_int_div;
}

static bool make_edges(fuser *f) {
  graph *g = f->g;
  walk w = {0};
  uint32_t fallible = 0;
  f->walked = arena_alloc(&f->arena, g->n * sizeof *f->walked);
  if (!f->walked) return out_of_memory(f);
  for (uint32_t i = 0; i < f->n; i++) {
    f->units[i].in = f->nin;
    f->units[i].leaf = f->nleaves;
    f->by_number = f->by_turn = false;
    if (!goes_on(f) || !walk_operands(f, i, &w) || !order_update(f, i)) return false;
    uint32_t n = f->units[i].node;
    /* A checked fit that is also stored is two units; the first makes the check. */
    if (graph_fallible(g, n) && !(g->nodes[n].op == OP_fit && f->units[i].kind == FUSE_KERNEL)) {
      if (fallible && !add_edge(f, fallible - 1, EDGE_ORDER, NULL)) return false;
      fallible = i + 1;
      if (graph_is_check(g, n)) f->check = i + 1;
    } else if (f->by_turn && !f->by_number) {
      if (!add_edge(f, f->check - 1, EDGE_ORDER | EDGE_APART, NULL)) return false;
    } else if (fallible && (f->by_number || relies_on_checks(&g->nodes[n])) &&
               !add_edge(f, fallible - 1, EDGE_ORDER | EDGE_APART, NULL)) {
      return false;
    }
    f->units[i].nin = f->nin - f->units[i].in;
    f->units[i].nleaves = f->nleaves - f->units[i].leaf;
  }
  f->out = arena_alloc(&f->arena, (f->nin + 1) * sizeof *f->out);
  f->reader_at = arena_alloc(&f->arena, (g->n + 1) * sizeof *f->reader_at);
  f->readers = arena_alloc(&f->arena, (f->nleaves + 1) * sizeof *f->readers);
  if (!f->out || !f->reader_at || !f->readers) return out_of_memory(f);
  for (uint32_t e = 0; e < f->nin; e++) f->units[f->in[e].unit].nout++;
  uint32_t at = 0;
  for (uint32_t i = 0; i < f->n; i++) {
    f->units[i].out = at;
    at += f->units[i].nout;
    f->units[i].nout = 0;
  }
  for (uint32_t e = 0; e < f->nleaves; e++) f->reader_at[f->leaves[e] + 1]++;
  for (uint32_t n = 0; n < g->n; n++) f->reader_at[n + 1] += f->reader_at[n];
  for (uint32_t i = 0; i < f->n; i++) {
    const unit *u = &f->units[i];
    for (uint32_t e = u->in; e < u->in + u->nin; e++) {
      unit *x = &f->units[f->in[e].unit];
      f->out[x->out + x->nout++] = (edge){i, f->in[e].flags};
    }
    for (uint32_t e = u->leaf; e < u->leaf + u->nleaves; e++) f->readers[f->reader_at[f->leaves[e]]++] = i;
  }
  memmove(f->reader_at + 1, f->reader_at, g->n * sizeof *f->reader_at);
  f->reader_at[0] = 0;
  return true;
}

/* Computes the peak of running unit by unit in program order, where a value is allocated when it is computed and freed after its last
 * reader. */
static bool simulate_eager(fuser *f) {
  graph *g = f->g;
  int64_t live = 0;
  uint32_t *dies = arena_alloc(&f->arena, (f->n + 1) * sizeof *dies),
           *next = arena_alloc(&f->arena, (f->n + 1) * sizeof *next);
  if (!dies || !next) return out_of_memory(f);
  for (uint32_t i = 0; i < g->ninputs; i++) live += fuse_bytes(g, g->inputs[i]);
  int64_t peak = live;
  for (uint32_t i = 0; i < f->n; i++) {
    const unit *u = &f->units[i];
    uint32_t last = i;
    for (uint32_t e = u->out; e < u->out + u->nout; e++)
      if ((f->out[e].flags & EDGE_DATA) && f->out[e].unit > last) last = f->out[e].unit;
    if (u->output) last = f->n;
    next[i] = dies[last];
    dies[last] = i + 1;
    live += u->bytes;
    if (live > peak) peak = live;
    for (uint32_t d = dies[i]; d; d = next[d - 1]) live -= f->units[d - 1].bytes;
  }
  f->to->eager_peak = peak;
  return true;
}

/* ---- questions about sets of units ---------------------------------------------------------------------------------------------- */

static bool in_pair(const fuser *f, uint32_t u, uint32_t a, uint32_t b) {
  return f->units[u].group == a || f->units[u].group == b;
}

/* Is the unit's value stored if groups a and b become one (a == b: as things are)? */
static bool stored_in(const fuser *f, const unit *u, uint32_t a, uint32_t b) {
  if (!u->value) return false;
  if (u->root) return true;
  for (uint32_t e = u->out; e < u->out + u->nout; e++)
    if ((f->out[e].flags & EDGE_DATA) && !in_pair(f, f->out[e].unit, a, b)) return true;
  return false;
}

static void unplace(fuser *f, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    f->to->place[f->nodes[i]] = PLACE_BUFFER;
    f->to->stored[f->nodes[i]] = 0;
  }
}

/* Estimates the time in nanoseconds of groups a and b as one kernel (a == b: of one group). False: they cannot be one kernel, or planning
 * ends (f->why is set). */
static bool estimate(fuser *f, uint32_t a, uint32_t b, double *ns) {
  graph *g = f->g;
  fusion *to = f->to;
  const group *x = &f->groups[a], *y = &f->groups[b];
  uint32_t n = 0, i = 0, j = 0;
  while (i < x->n || (a != b && j < y->n)) {
    bool left = i < x->n && (a == b || j == y->n || x->units[i] < y->units[j]);
    const unit *u = &f->units[left ? x->units[i++] : y->units[j++]];
    f->nodes[n++] = u->node;
    to->place[u->node] = PLACE_INLINE;
    to->stored[u->node] = stored_in(f, u, a, b);
  }
  lower_request r = {.g = g,
                     .place = to->place,
                     .nodes = f->nodes,
                     .n = n,
                     .stored = to->stored,
                     .over = to->over,
                     .whole = to->whole,
                     .scratch = to->scratch,
                     .windows = to->windows,
                     .most = VALUES_LEAST + VALUES_PER_UNIT * n,
                     .cancel = f->cancel};
  int64_t number = f->tune[TUNE_fuse_reuse] ? alike_find(f->memo, &r) : f->memo->nkernels;
  if (number < 0) out_of_memory(f);
  if (f->why || !goes_on(f)) {
    unplace(f, n);
    return false;
  }
  bool known = number < f->memo->nkernels && !isnan(f->memo->kernels[number].ns);
  if (known) {
    unplace(f, n);
    *ns = f->memo->kernels[number].ns;
    return *ns >= 0;
  }
  const char *why = NULL;
  uint32_t made = 0;
  r.made = &made;
  const schedule_how how = {.interpreted = !f->tune[TUNE_jit_cc]}; /* groups are the same for any number of threads */
  k_kernel *k = lower(&r, &why);
  if (k) k->statics = f->tune[TUNE_fuse_static] && statics_pay(k);
  f->budget -= n + made;
  f->to->work += n + made;
  double cost = 0;
  bool effects = false;
  for (k_val v = 1; k && v < k->n && !effects; v++) effects = k_is_effect(&k->nodes[v]);
  bool ok =
      k && (!effects || schedule_estimate(k, f->target, &how, &cost, &why)); /* none: all checks are known to hold */
  k_free(k);
  unplace(f, n);
  if (!ok && why == lower_no_memory) return out_of_memory(f);
  if (!goes_on(f)) return false;
  *ns = ok ? cost : -1;
  if (number < f->memo->nkernels) f->memo->kernels[number].ns = *ns;
  return ok;
}

static bool cost_of(fuser *f, uint32_t a, double *ns) {
  group *x = &f->groups[a];
  if (x->ns < 0 && !estimate(f, a, a, &x->ns)) return false;
  *ns = x->ns;
  return true;
}

/* One end of a search for a path between two groups. */
typedef struct search_end {
  uint32_t from, to, mark; /* group.seen of what it has reached */
  uint32_t n, *stack;      /* groups that it has still to visit */
  uint32_t edges;          /* that it has followed */
} search_end;

/* Visits one more group. Is there a path from one end to the other through another group, because this end has come to what that one has reached? */
static bool search_on(fuser *f, search_end *s, bool back, uint32_t other, uint32_t least, uint32_t most) {
  uint32_t x = s->stack[--s->n];
  group *groups = f->groups;
  const unit *units = f->units;
  const edge *edges = back ? f->in : f->out;
  for (const uint32_t *i = groups[x].units, *last = i + groups[x].n; i < last; i++) {
    const unit *u = &units[*i];
    const edge *e = edges + (back ? u->in : u->out), *end = e + (back ? u->nin : u->nout);
    f->to->work += (uint32_t)(end - e);
    if ((s->edges += (uint32_t)(end - e)) > SEARCH_LIMIT) {
      s->stack[s->n++] = x; /* there is more to visit */
      return false;
    }
    for (; e < end; e++) {
      uint32_t y = units[e->unit].group;
      if (y == s->to) {
        if (x != s->from) return true;
        continue;
      }
      group *to = &groups[y];
      if (to->seen == other) return true;
      if (to->seen == s->mark || to->time < least || to->time > most) continue;
      to->seen = s->mark;
      s->stack[s->n++] = y;
    }
  }
  return false;
}

/* Is there a path of edges from group a to group b through another group? Both ends look for the other in turn, among the groups whose times lie
 * between theirs, until one has no way left. If they take long the answer is yes. */
static bool detour(fuser *f, uint32_t a, uint32_t b) {
  uint32_t least = f->groups[a].time, most = f->groups[b].time;
  if (least > most) return false;
  f->search += 2;
  search_end ends[2] = {{a, b, f->search - 1, 1, f->stack, 0}, {b, a, f->search, 1, f->behind, 0}};
  for (int i = 0; i < 2; i++) {
    ends[i].stack[0] = ends[i].from;
    f->groups[ends[i].from].seen = ends[i].mark;
  }
  while (ends[0].n && ends[1].n) {
    int i = ends[1].edges < ends[0].edges;
    if (ends[i].edges > SEARCH_LIMIT) return true;
    if (search_on(f, &ends[i], i == 1, ends[!i].mark, least, most)) return true;
  }
  return false;
}

static bool elementwise(const fuser *f, const unit *u) {
  const graph_node *node = node_of(f, u->node);
  return op_rows[node->op].klass == CLASS_POINTWISE && u->kind == FUSE_KERNEL && node->op != OP_stop_gradient;
}

static bool costly(const fuser *f, const unit *u) {
  switch ((op_class)op_rows[node_of(f, u->node)->op].klass) {
  case CLASS_REDUCE:
  case CLASS_SCAN:
  case CLASS_DOT:
  case CLASS_RANDOM: return true;
  default: return false;
  }
}

/* Do all ways from unit u lead to unit `to`, so that nothing but that asks for its value? */
static bool feeds_only(const fuser *f, const unit *u, uint32_t to, int left) {
  for (uint32_t e = u->out; e < u->out + u->nout; e++) {
    const edge *x = &f->out[e];
    if (!(x->flags & EDGE_DATA) || x->unit == to) continue;
    if (left == 0 || !f->units[x->unit].nout || !feeds_only(f, &f->units[x->unit], to, left - 1)) return false;
  }
  return !u->output;
}

/* May unit u, which reads node x, not be in the kernel that groups a and b would become, because that stores into x's memory? */
static bool clobbers(const fuser *f, const unit *u, uint32_t x, uint32_t a, uint32_t b) {
  uint32_t writer = f->writer[x], by = writer ? f->unit_of[writer] : 0;
  if (!by || !in_pair(f, by - 1, a, b)) return false;
  if (f->units[by - 1].node == u->node) return f->unit_of[x] && in_pair(f, f->unit_of[x] - 1, a, b);
  const graph_node *node = node_of(f, u->node);
  bool checks = graph_fallible(f->g, u->node) && node->op != OP_index && node->op != OP_gather;
  return checks || stored_in(f, u, a, b) || !updates_one_element(f->g, writer) || !feeds_only(f, u, by - 1, 8);
}

/* Do the rules of the head comment forbid that the groups become one? */
static bool forbidden(const fuser *f, uint32_t a, uint32_t b) {
  const group *x = &f->groups[a], *y = &f->groups[b];
  if (x->kind != FUSE_KERNEL || y->kind != FUSE_KERNEL) return true;
  if ((int64_t)x->n + y->n > f->tune[TUNE_fuse_nodes]) return true;
  if (x->empty || y->empty) return true; /* loops over no points do not run, so other work must not be put in them */
  bool dot = x->dot || y->dot;
  if ((x->dot && y->dot) || (x->scatter && y->scatter) || (dot && (x->scatter || y->scatter))) return true;
  int64_t space = dot ? (x->dot ? x : y)->space : 0;
  for (int side = 0; side < 2; side++) {
    const group *s = side ? y : x;
    for (uint32_t i = 0; i < s->n; i++) {
      const unit *u = &f->units[s->units[i]];
      const graph_node *node = node_of(f, u->node);
      if (dot && node->op != OP_dot &&
          (u->elements != space || u->space != space || !(elementwise(f, u) || op_rows[node->op].klass == CLASS_VIEW)))
        return true;
      for (uint32_t e = u->in; e < u->in + u->nin; e++) {
        const unit *from = &f->units[f->in[e].unit];
        uint32_t flags = f->in[e].flags;
        if (f->writer[from->node] && flags & EDGE_DATA && clobbers(f, u, from->node, a, b)) return true;
        if (from->group == u->group || !in_pair(f, f->in[e].unit, a, b)) continue;
        if (flags & (EDGE_DOT | EDGE_APART) || is_scatter(node_of(f, from->node)) ||
            (f->over[from->node] && flags & EDGE_DATA))
          return true;
        if (costly(f, from) && (flags & EDGE_SOURCE || (flags & EDGE_VIEW && from->elements != u->elements)))
          return true;
        if (flags & EDGE_SOURCE && from->elements < u->elements) return true;
      }
      for (uint32_t e = u->leaf; e < u->leaf + u->nleaves; e++)
        if (f->writer[f->leaves[e]] && clobbers(f, u, f->leaves[e], a, b)) return true;
    }
  }
  return false;
}

/* How many bytes are not read or written if groups a and b become one kernel. */
static int64_t saved_bytes(fuser *f, uint32_t a, uint32_t b) {
  int64_t saved = 0;
  f->touch++;
  f->to->work += f->groups[a].n + f->groups[b].n;
  for (int side = 0; side < 2; side++) {
    const group *s = &f->groups[side ? b : a];
    uint32_t other = side ? a : b;
    for (uint32_t i = 0; i < s->n; i++) {
      const unit *u = &f->units[s->units[i]];
      for (uint32_t e = u->in; e < u->in + u->nin; e++) {
        const unit *from = &f->units[f->in[e].unit];
        if (!(f->in[e].flags & EDGE_DATA) || from->group == u->group) continue;
        uint32_t *mark = &f->touched[from->node];
        if (from->group == other) {
          if (*mark == f->touch) continue;
          *mark = f->touch;
          saved += from->bytes;
          if (!stored_in(f, from, a, b)) saved += from->bytes;
        } else if (side == 0) {
          *mark = f->touch;
        } else if (*mark == f->touch) {
          saved += from->bytes;
          *mark = 0;
        }
      }
      for (uint32_t e = u->leaf; e < u->leaf + u->nleaves; e++) {
        uint32_t *mark = &f->touched[f->leaves[e]];
        if (side == 0) {
          *mark = f->touch;
        } else if (*mark == f->touch) {
          saved += fuse_bytes(f->g, f->leaves[e]);
          *mark = 0;
        }
      }
    }
  }
  return saved;
}

static uint32_t last_node(const fuser *f, uint32_t a) { return f->units[f->groups[a].units[f->groups[a].n - 1]].node; }

/* ---- what is live when ---------------------------------------------------------------------------------------------------------- */

/* Adds `bytes` to a leaf of the profile: bytes that become live at time `at` less those that end there. Then the `most` of the root is
 * the most that is live at any time. */
static void profile_add(fuser *f, uint32_t at, int64_t bytes) {
  profile *p = f->profile;
  uint32_t i = f->times + at;
  p[i].sum += bytes;
  p[i].most = p[i].sum;
  while (i /= 2) {
    const profile *l = &p[2 * i], *r = l + 1;
    p[i].sum = l->sum + r->sum;
    p[i].most = l->most > l->sum + r->most ? l->most : l->sum + r->most;
  }
}

static void profile_unit(fuser *f, const unit *u, int sign) {
  if (!u->counted) return;
  profile_add(f, u->from, sign * u->counted);
  if (!u->output) profile_add(f, u->to + 1, -sign * u->counted);
}

/* The most bytes that are live at a time from `first` to `last`. Node i of the tree covers the n times from `at` on, before which `before`
 * bytes are live. */
static int64_t most_between(const fuser *f, uint32_t first, uint32_t last, uint32_t i, uint32_t at, uint32_t n,
                            int64_t before) {
  const profile *p = f->profile;
  if (first <= at && at + n - 1 <= last) return before + p[i].most;
  if (last < at || at + n - 1 < first) return 0;
  int64_t x = most_between(f, first, last, 2 * i, at, n / 2, before);
  int64_t y = most_between(f, first, last, 2 * i + 1, at + n / 2, n / 2, before + p[2 * i].sum);
  return x > y ? x : y;
}

/* The most bytes that are live at the times that the last merge changed. Inputs live all the time, a value from the group that stores it to
 * its last reader, a result to the end; the memory of all results counts from the start. */
static int64_t live_bytes(const fuser *f) {
  int64_t most = most_between(f, f->first, f->last, 1, 0, f->times, 0);
  return f->inputs + (most > f->results ? most : f->results);
}

/* Updates the life of unit i after its group, or a reader's, moved to `time`. Times only grow, except when a merge is taken back. False
 * when memory is short. */
static bool recount(fuser *f, uint32_t i, uint32_t time) {
  unit *u = &f->units[i];
  f->to->work += 1 + u->nout;
  uint32_t from = f->groups[u->group].time, to = time > u->to ? time : u->to;
  int64_t counted = u->bytes && stored_in(f, u, u->group, u->group) ? u->bytes : 0;
  if (from == u->from && to == u->to && counted == u->counted) return true;
  if (!room(f, (void **)&f->lives, &f->lives_cap, f->nlives + 1, sizeof *f->lives)) return false;
  f->lives[f->nlives++] = (old_life){i, u->from, u->to, u->counted};
  if (from < f->first) f->first = from;
  if (u->counted && u->from < f->first) f->first = u->from;
  if (to > f->last) f->last = to;
  profile_unit(f, u, -1);
  if (u->output) f->results += counted - u->counted;
  u->from = from;
  u->to = to;
  u->counted = counted;
  profile_unit(f, u, 1);
  return true;
}

static bool recount_group(fuser *f, uint32_t a) {
  const group *x = &f->groups[a];
  for (uint32_t i = 0; i < x->n; i++) {
    const unit *u = &f->units[x->units[i]];
    if (!recount(f, x->units[i], x->time)) return false;
    for (uint32_t e = u->in; e < u->in + u->nin; e++)
      if ((f->in[e].flags & EDGE_DATA) && !recount(f, f->in[e].unit, x->time)) return false;
  }
  return true;
}

static bool make_profile(fuser *f) {
  graph *g = f->g;
  for (f->times = 1; f->times < g->n + 1; f->times *= 2) {}
  f->profile = arena_alloc(&f->arena, 2 * (size_t)f->times * sizeof *f->profile);
  if (!f->profile) return out_of_memory(f);
  for (uint32_t i = 0; i < g->ninputs; i++) f->inputs += fuse_bytes(g, g->inputs[i]);
  for (uint32_t a = 0; a < f->ngroups; a++)
    if (f->groups[a].alive && (!goes_on(f) || !recount_group(f, a))) return false;
  return true;
}

/* ---- merging -------------------------------------------------------------------------------------------------------------------- */

/* Moves all groups that follow group a to its time or later. False if that takes long. */
static bool push_back(fuser *f, uint32_t a) {
  uint32_t n = 0, time = f->groups[a].time, edges = 0;
  uint32_t limit = f->moves < MOVES_BUDGET ? SEARCH_LIMIT : MOVES_LIMIT;
  f->nmoved = 0;
  f->stack[n++] = a;
  while (n) {
    const group *x = &f->groups[f->stack[--n]];
    for (uint32_t i = 0; i < x->n; i++) {
      const unit *u = &f->units[x->units[i]];
      f->to->work += u->nout;
      f->moves += u->nout;
      if ((edges += u->nout) > limit) return false;
      for (uint32_t e = u->out; e < u->out + u->nout; e++) {
        uint32_t b = f->units[f->out[e].unit].group;
        if (f->groups[b].time >= time) continue;
        f->moved[f->nmoved++] = (moved){b, f->groups[b].time};
        f->groups[b].time = time;
        f->stack[n++] = b;
      }
    }
  }
  return true;
}

static void unmerge(fuser *f, uint32_t a, uint32_t b) {
  f->ngroups--;
  for (int side = 0; side < 2; side++) {
    group *x = &f->groups[side ? b : a];
    x->alive = true;
    for (uint32_t i = 0; i < x->n; i++) f->units[x->units[i]].group = side ? b : a;
  }
  while (f->nmoved) {
    const moved *m = &f->moved[--f->nmoved];
    f->groups[m->group].time = m->time;
  }
  while (f->nlives) {
    const old_life *o = &f->lives[--f->nlives];
    unit *u = &f->units[o->unit];
    profile_unit(f, u, -1);
    if (u->output) f->results += o->counted - u->counted;
    u->from = o->from;
    u->to = o->to;
    u->counted = o->counted;
    profile_unit(f, u, 1);
  }
}

/* Updates lives after a merge into group a. *fits: at the times that it changed no more is live than the limit allows, or than before
 * (`before`; -1: not known). False when memory is short. */
static bool recount_merged(fuser *f, uint32_t a, int64_t before, bool *fits) {
  if (!recount_group(f, a)) return false;
  for (uint32_t i = 0; i < f->nmoved; i++)
    if (!recount_group(f, f->moved[i].group)) return false;
  int64_t live = f->nlives ? live_bytes(f) : 0;
  *fits = live <= f->limit || live <= before;
  return true;
}

/* Appends a group of all units of a and b. */
static void merge_units(fuser *f, uint32_t a, uint32_t b, uint32_t *units) {
  group *x = &f->groups[a], *y = &f->groups[b], *m = &f->groups[f->ngroups];
  uint32_t i = 0, j = 0, n = 0;
  f->to->work += x->n + y->n;
  while (i < x->n || j < y->n)
    units[n++] = j == y->n || (i < x->n && x->units[i] < y->units[j]) ? x->units[i++] : y->units[j++];
  *m = (group){.n = n, .units = units, .ns = -1, .kind = FUSE_KERNEL, .alive = true};
  m->dot = x->dot || y->dot;
  m->scatter = x->scatter || y->scatter;
  m->space = x->space > y->space ? x->space : y->space;
  m->time = x->time > y->time ? x->time : y->time;
  x->alive = y->alive = false;
  for (i = 0; i < n; i++) f->units[units[i]].group = f->ngroups;
  f->ngroups++;
}

/* Merges groups a and b into a new one, *to, or sets that to 0 if the result would have too much live. False: planning ends (f->why). */
static bool merge(fuser *f, uint32_t a, uint32_t b, double ns, uint32_t *to) {
  uint32_t *units = arena_alloc(&f->arena, (f->groups[a].n + f->groups[b].n) * sizeof *units);
  if (!units) return out_of_memory(f);
  int64_t before = -1;
  for (int tries = 0; tries < 2; tries++) {
    merge_units(f, a, b, units);
    *to = f->ngroups - 1;
    f->groups[*to].ns = ns;
    f->nlives = f->last = 0;
    f->first = UINT32_MAX;
    bool moves = push_back(f, *to), fits = moves;
    if (moves && f->limit != FUSE_ALL && !recount_merged(f, *to, before, &fits)) return false;
    if (fits) return true;
    unmerge(f, a, b);
    *to = 0;
    if (!moves) break;
    before = live_bytes(f);
    if (before <= f->limit) break;
  }
  return true;
}

static bool make_groups(fuser *f) {
  /* Each merge ends two groups and makes one; chains that cannot be a kernel are taken apart once. */
  f->groups = arena_alloc(&f->arena, (4 * (size_t)f->n + 1) * sizeof *f->groups);
  f->stack = arena_alloc(&f->arena, (4 * (size_t)f->n + 1) * sizeof *f->stack);
  uint32_t *own = arena_alloc(&f->arena, (f->n + 1) * sizeof *own);
  f->moved = arena_alloc(&f->arena, (f->n + 1) * sizeof *f->moved);
  f->behind = arena_alloc(&f->arena, (4 * (size_t)f->n + 1) * sizeof *f->behind);
  if (!f->groups || !f->stack || !f->behind || !f->moved || !own) return out_of_memory(f);
  for (uint32_t i = 0; i < f->n; i++) {
    unit *u = &f->units[i];
    own[i] = i;
    u->group = i;
    f->groups[i] = (group){.n = 1, .units = &own[i], .ns = -1, .kind = u->kind, .alive = true, .space = u->space};
    f->groups[i].time = u->node;
    f->groups[i].dot = u->kind == FUSE_KERNEL && node_of(f, u->node)->op == OP_dot;
    f->groups[i].scatter = is_scatter(node_of(f, u->node)) || (u->value && f->over[u->node]);
    f->groups[i].empty = u->space == 0 || u->elements == 0;
  }
  f->ngroups = f->n;
  return true;
}

/* Does a node read an array at other coordinates than its own? */
static bool reads_views(fuser *f, uint32_t n) {
  const graph_node *node = node_of(f, n);
  for (int i = 0; i < node->nin; i++)
    for (uint32_t x = node->in[i]; lower_role(f->g, x) == NODE_IS_VIRTUAL && node_of(f, x)->nin;
         x = node_of(f, x)->in[0]) {
      op_id op = (op_id)node_of(f, x)->op;
      bool spread = op == OP_broadcast && !one_element(f->g, &node_of(f, node_of(f, x)->in[0])->type);
      if (spread || op == OP_slice || op == OP_index || op == OP_window || op == OP_permute) return true;
    }
  return false;
}

/* Does a node reduce several axes? Their points may be numbered as one row, and coordinates then cost divisions. */
static bool reduces_axes(fuser *f, uint32_t n) {
  const graph_node *node = node_of(f, n);
  if (op_rows[node->op].klass != CLASS_REDUCE) return false;
  const graph_type *x = &node_of(f, node->in[0])->type;
  int axes = 0;
  for (int a = 0; a < x->rank; a++) axes += (graph_attr(node).axes >> a & 1) && !size_is(f->g, x->shape[a], 1);
  return axes > 1;
}

/* The group that has all readers of unit i, if each reads it elementwise over the same points, else the unit's own group. A unit that is
 * made from views and reduced over several axes is left to the estimate. */
static uint32_t only_reader(fuser *f, uint32_t i) {
  const unit *u = &f->units[i];
  uint32_t g = u->group;
  if (u->root || !elementwise(f, u)) return u->group;
  for (uint32_t e = u->out; e < u->out + u->nout; e++) {
    const unit *r = &f->units[f->out[e].unit];
    if (!(f->out[e].flags & EDGE_DATA)) continue;
    if (f->out[e].flags & ~(uint32_t)EDGE_DATA || r->space != u->elements || f->groups[r->group].kind != FUSE_KERNEL ||
        is_scatter(node_of(f, r->node)) || f->over[r->node] || (reduces_axes(f, r->node) && reads_views(f, u->node)))
      return u->group;
    if (g != u->group && g != r->group) return u->group;
    g = r->group;
  }
  return g;
}

static bool dissolve(fuser *f, uint32_t a) {
  group *x = &f->groups[a];
  uint32_t first = f->ngroups;
  x->alive = false;
  for (uint32_t i = 0; i < x->n; i++) {
    group *own = &f->groups[f->ngroups];
    *own = f->groups[x->units[i]];
    own->alive = true;
    own->time = x->time;
    f->units[x->units[i]].group = f->ngroups++;
  }
  for (uint32_t b = first; b < f->ngroups && f->limit != FUSE_ALL; b++)
    if (!recount_group(f, b)) return false;
  return true;
}

static bool join_chains(fuser *f) {
  for (uint32_t i = f->n; i-- > 0;) {
    uint32_t a = f->units[i].group, b = only_reader(f, i), m;
    if (!goes_on(f)) return false;
    if (a == b || forbidden(f, a, b) || (graph_fallible(f->g, f->units[i].node) && detour(f, a, b))) continue;
    if (!merge(f, a, b, -1, &m)) return false;
  }
  for (uint32_t a = f->n, end = f->ngroups; a < end; a++) {
    double ns;
    if (f->groups[a].alive && !cost_of(f, a, &ns)) {
      if (f->why || !dissolve(f, a)) return false;
    }
  }
  return true;
}

/* ---- candidates: pairs of groups in a heap, those that save most bytes first ------------------------------------------------------ */

static bool offer(fuser *f, uint32_t a, uint32_t b) {
  if (a == b || !f->groups[a].alive || !f->groups[b].alive || forbidden(f, a, b)) return true;
  if (!room(f, (void **)&f->heap, &f->heap_cap, f->nheap + 1, sizeof *f->heap)) return false;
  uint64_t pair = a < b ? (uint64_t)a << 32 | b : (uint64_t)b << 32 | a;
  heap_add(f->heap, f->nheap++, (heap_item){.key = -saved_bytes(f, a, b), .tie = pair});
  return true;
}

/* Offers pairs of group a with groups that read the same value as its unit `self`, those nearest to it in the program. The value is unit
 * `from`'s, or with NULL that of node `leaf`. `later` as in offer_all. */
static bool offer_siblings(fuser *f, uint32_t a, uint32_t self, const unit *from, uint32_t leaf, bool later) {
  uint32_t first = from ? from->out : f->reader_at[leaf], end = from ? from->out + from->nout : f->reader_at[leaf + 1];
  uint32_t low = first, high = end;
  while (low < high) { /* finds `self` among the readers, which are in program order */
    uint32_t mid = low + (high - low) / 2;
    if ((from ? f->out[mid].unit : f->readers[mid]) < self)
      low = mid + 1;
    else
      high = mid;
  }
  uint32_t below = low, above = low, tried = 0, looked = 0;
  while ((below > first || above < end) && tried < SIBLINGS_LIMIT && looked++ < 4 * SIBLINGS_LIMIT) {
    bool down = below > first && (above == end || (looked & 1));
    uint32_t r = down ? --below : above++;
    uint32_t b = f->units[from ? f->out[r].unit : f->readers[r]].group;
    if (from && !(f->out[r].flags & EDGE_DATA)) continue;
    if (f->groups[b].seen == f->search || (later && b < a) || f->groups[b].space != f->groups[a].space) continue;
    f->groups[b].seen = f->search;
    tried++;
    if (!offer(f, a, b)) return false;
  }
  return true;
}

/* Offers pairs of group a with all of its neighbours; with `later` only with those of higher numbers, so that each pair is offered once. */
static bool offer_all(fuser *f, uint32_t a, bool later) {
  const group *x = &f->groups[a];
  if (x->kind != FUSE_KERNEL) return true;
  f->search++;
  f->groups[a].seen = f->search;
  for (uint32_t i = 0; i < x->n; i++) {
    const unit *u = &f->units[x->units[i]];
    for (int side = 0; side < 2; side++) {
      const edge *edges = side ? f->out + u->out : f->in + u->in;
      for (uint32_t e = 0; e < (side ? u->nout : u->nin); e++) {
        uint32_t b = f->units[edges[e].unit].group;
        if (!(edges[e].flags & EDGE_DATA) || f->groups[b].seen == f->search || (later && b < a)) continue;
        f->groups[b].seen = f->search;
        if (!offer(f, a, b)) return false;
      }
    }
    for (uint32_t e = 0; e < u->nin + u->nleaves; e++) {
      bool leaf = e >= u->nin;
      const unit *from = leaf ? NULL : &f->units[f->in[u->in + e].unit];
      uint32_t node = leaf ? f->leaves[u->leaf + e - u->nin] : from->node;
      if (!leaf && (!(f->in[u->in + e].flags & EDGE_DATA) || f->in[u->in + e].flags & EDGE_DOT)) continue;
      int64_t elements = leaf ? hint_elements(f->g, &node_of(f, node)->type) : from->elements;
      if (elements < x->space) continue;
      if (!offer_siblings(f, a, x->units[i], leaf ? NULL : from, node, later)) return false;
    }
  }
  return true;
}

static bool join_pairs(fuser *f) {
  for (uint32_t a = 0, end = f->ngroups; a < end; a++)
    if (f->groups[a].alive && (!goes_on(f) || !offer_all(f, a, true))) return false;
  while (f->nheap && f->budget > 0) {
    uint64_t pair = heap_take(f->heap, &f->nheap).tie;
    uint32_t a = (uint32_t)(pair >> 32), b = (uint32_t)pair;
    if (!goes_on(f)) return false;
    if (!f->groups[a].alive || !f->groups[b].alive) continue;
    if (detour(f, a, b) || detour(f, b, a)) continue;
    double x, y, both;
    uint32_t m;
    bool known = cost_of(f, a, &x) && cost_of(f, b, &y);
    if (!known || !estimate(f, a, b, &both)) {
      if (f->why) return false;
      continue;
    }
    if (both > x + y) continue;
    if (!merge(f, a, b, both, &m) || (m && !offer_all(f, m, false))) return false;
  }
  return true;
}

/* ---- result ---------------------------------------------------------------------------------------------------------------------- */

static bool write_group(fuser *f, uint32_t a) {
  fusion *to = f->to;
  const group *x = &f->groups[a];
  uint32_t *nodes = arena_alloc(&to->arena, x->n * sizeof *nodes);
  if (!nodes) return out_of_memory(f);
  for (uint32_t i = 0; i < x->n; i++) {
    const unit *u = &f->units[x->units[i]];
    nodes[i] = u->node;
    if (!u->value) continue;
    to->group_of[u->node] = to->n + 1;
    to->stored[u->node] = !node_of(f, u->node)->type.weak && stored_in(f, u, a, a);
    if (to->stored[u->node]) to->base[u->node] = u->node;
  }
  to->groups[to->n++] = (fuse_group){x->kind, x->n, nodes};
  return true;
}

static void make_ready(const fuser *f, heap_item *ready, uint32_t *n, uint32_t a) {
  heap_add(ready, (*n)++, (heap_item){.key = last_node(f, a), .what = a});
}

/* Writes the groups in the order in which they run: of those that can, the one whose last node comes first in the program. */
static bool write_groups(fuser *f) {
  fusion *to = f->to;
  uint32_t *waits = arena_alloc(&f->arena, (f->ngroups + 1) * sizeof *waits), alive = 0;
  heap_item *ready = arena_alloc(&f->arena, (f->ngroups + 1) * sizeof *ready);
  uint32_t nready = 0;
  for (uint32_t a = 0; a < f->ngroups; a++) alive += f->groups[a].alive;
  to->groups = arena_alloc(&to->arena, (alive + 1) * sizeof *to->groups);
  if (!waits || !ready || !to->groups) return out_of_memory(f);
  for (uint32_t i = 0; i < f->n; i++)
    for (uint32_t e = f->units[i].in; e < f->units[i].in + f->units[i].nin; e++)
      waits[f->units[i].group] += f->units[f->in[e].unit].group != f->units[i].group;
  for (uint32_t a = 0; a < f->ngroups; a++)
    if (f->groups[a].alive && !waits[a]) make_ready(f, ready, &nready, a);
  while (nready) {
    uint32_t a = heap_take(ready, &nready).what;
    if (!goes_on(f) || !write_group(f, a)) return false;
    const group *x = &f->groups[a];
    for (uint32_t i = 0; i < x->n; i++) {
      const unit *u = &f->units[x->units[i]];
      for (uint32_t e = u->out; e < u->out + u->nout; e++) {
        uint32_t b = f->units[f->out[e].unit].group;
        if (b != a && --waits[b] == 0) make_ready(f, ready, &nready, b);
      }
    }
  }
  if (to->n == alive) return true;
  f->why = "groups of nodes wait for each other";
  return false;
}

static bool run(fuser *f) {
  graph *g = f->g;
  fusion *to = f->to;
  to->group_of = arena_alloc(&to->arena, g->n * sizeof *to->group_of);
  to->base = arena_alloc(&to->arena, g->n * sizeof *to->base);
  to->stored = arena_alloc(&to->arena, g->n);
  to->place = arena_alloc(&to->arena, g->n);
  to->scratch = arena_alloc(&to->arena, g->n * sizeof *to->scratch);
  f->live = arena_alloc(&f->arena, g->n);
  f->unit_of = arena_alloc(&f->arena, g->n * sizeof *f->unit_of);
  f->touched = arena_alloc(&f->arena, g->n * sizeof *f->touched);
  f->nodes = arena_alloc(&f->arena, g->n * sizeof *f->nodes);
  f->writer = arena_alloc(&f->arena, g->n * sizeof *f->writer);
  f->reads_at = arena_alloc(&f->arena, g->n * sizeof *f->reads_at);
  uint8_t *root = arena_alloc(&f->arena, g->n);
  if (!f->over) f->over = to->over = to->whole = arena_alloc(&to->arena, g->n * sizeof *to->over);
  if (to->arena.failed || f->arena.failed) return out_of_memory(f);
  for (uint32_t n = 1; n < g->n; n++)
    if (f->over[n]) f->writer[f->over[n]] = g->nodes[n].kind == NODE_PROJ ? g->nodes[n].in[0] : n;
  if (!find_live(f) || !choose_buffers(f, root) || !make_units(f, root)) return false;
  for (uint32_t n = 1; n < g->n; n++) {
    const graph_node *node = &g->nodes[n];
    node_role role = lower_role(g, n);
    bool constant = node->kind == NODE_CONST && one_element(g, &node->type);
    to->place[n] = constant || (role == NODE_IS_VIRTUAL && !f->unit_of[n]) ? PLACE_INLINE : PLACE_BUFFER;
  }
  if (!make_edges(f) || !simulate_eager(f) || !make_groups(f)) return false;
  f->budget = BUDGET_LEAST + (int64_t)BUDGET_PER_UNIT * f->n;
  if (f->tune[TUNE_fuse_enabled] && f->limit != FUSE_NOTHING) {
    if (f->limit != FUSE_ALL && !make_profile(f)) return false;
    if (!join_chains(f) || !join_pairs(f)) return false;
  }
  if (!f->profile && f->limit == FUSE_ALL && !make_profile(f)) return false;
  to->live = f->inputs + (!f->profile ? 0 : f->profile[1].most > f->results ? f->profile[1].most : f->results);
  if (!write_groups(f)) return false;
  return !g->dims.arena->failed || out_of_memory(f);
}

bool fuse(graph *g, schedule_target target, const int64_t *tune, int64_t limit, const uint8_t *awkward,
          const uint32_t *over, const uint32_t *whole, alike *memo, cancel_flag cancel, fusion *f, const char **why) {
  *f = (fusion){.g = g, .cancel = cancel, .over = over, .whole = whole, .windows = target == TARGET_CPU};
  arena_init(&f->arena, NULL);
  fuser s = {.to = f,
             .g = g,
             .target = target,
             .tune = tune,
             .limit = limit,
             .awkward = awkward,
             .over = over,
             .memo = memo,
             .cancel = cancel};
  arena_init(&s.arena, NULL);
  bool ok = run(&s);
  arena_free(&s.arena);
  if (!ok) *why = s.why ? s.why : lower_no_memory;
  return ok;
}

void fusion_free(fusion *f) { arena_free(&f->arena); }

/* "exp_sum_div_f32": the names of a group's ops without repetition, and the dtype of what it stores last. */
static void kernel_name(const fusion *f, const fuse_group *x, char *name, size_t size) {
  size_t len = 0;
  const char *dtype = "";
  uint8_t seen[OP_COUNT] = {0};
  name[0] = 0;
  for (uint32_t i = 0; i < x->n; i++) {
    const graph_node *n = &f->g->nodes[x->nodes[i]];
    if (f->stored[x->nodes[i]]) dtype = dtype_rows[n->type.dtype].name;
    const char *word = n->kind != NODE_OP || n->op == OP_stop_gradient ? "copy" : op_rows[n->op].name;
    if (seen[n->op] || len + strlen(word) + 12 > size) continue;
    seen[n->op] = 1;
    len += (size_t)snprintf(name + len, size - len, "%s%s", len ? "_" : "", word);
  }
  snprintf(name + len, size - len, "%s%s", dtype[0] ? "_" : "", dtype);
}

/* The request for a group's kernel, whose nodes are placed until `end_request`. */
static lower_request group_request(fusion *f, uint32_t number, const char *name) {
  const fuse_group *x = &f->groups[number];
  for (uint32_t i = 0; i < x->n; i++) f->place[x->nodes[i]] = PLACE_INLINE;
  return (lower_request){.g = f->g,
                         .name = name,
                         .place = f->place,
                         .nodes = x->nodes,
                         .n = x->n,
                         .stored = f->stored,
                         .over = f->over,
                         .whole = f->whole,
                         .windows = f->windows,
                         .scratch = f->scratch,
                         .cancel = f->cancel};
}

static void end_request(fusion *f, uint32_t number) {
  const fuse_group *x = &f->groups[number];
  for (uint32_t i = 0; i < x->n; i++) f->place[x->nodes[i]] = PLACE_BUFFER;
}

k_kernel *fuse_lower(fusion *f, uint32_t number, const char **why) {
  char name[64];
  kernel_name(f, &f->groups[number], name, sizeof name);
  lower_request r = group_request(f, number, name);
  k_kernel *k = lower(&r, why);
  end_request(f, number);
  return k;
}

int64_t fuse_alike(fusion *f, uint32_t number, alike *memo) {
  lower_request r = group_request(f, number, NULL);
  int64_t k = alike_find(memo, &r);
  end_request(f, number);
  return k;
}
