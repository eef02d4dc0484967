/* From graph nodes to a K kernel: coordinates, views, indexing, reductions, products, and the driver (lower.h).
 *
 * Demand. lower_value(n, coordinates, guard) is node n's element at those coordinates. Elementwise ops ask their operands at
 * the same coordinates (broadcast axes: 0), views at transformed ones, and a buffer answers with a load whose address is the
 * coordinates times the strides. A guard travels with the demand, so that what is padded or out of bounds is never touched.
 * Equal demands are answered once; depth is bounded (a kernel that would need more is refused).
 *
 * Named axes. Before anything is asked, the axes of the nodes that the kernel computes are sorted into classes: axis i of an
 * operand and the axis of the result that it becomes are one class, and each class gets one axis of K. So max over columns,
 * the columns that exp runs over and the columns of the stored result are the same axis. A reshape that splits or joins
 * axes makes the joined class a mixed-radix number of the others (but not where a scan runs over it). Classes are only a preference: where
 * a node is asked for at a coordinate that is no plain axis, or at an axis that is in use already, it is computed at what was asked.
 *
 * Reductions. Order and nesting depend on the logical axes and their lengths alone: innermost axis first; inner order if no
 * axis remains behind it, outer order otherwise; an axis shorter than 64 is joined with its neighbour before it if that is
 * reduced, too (arg reductions join all axes, since their index runs over all). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "jit/graph/folds.h"
#include "jit/kernel/lower_impl.h"
#include "lang/error.h"

enum { DEPTH_MAX = 400 };

const char lower_no_memory[] = "out of memory";
const char lower_cancelled[] = "cancelled";

typedef struct axis_class {
  uint32_t parent;
  uint32_t next; /* the members of a class form a ring */
  uint32_t members;
  qn_dim extent;
  k_form form; /* the class's coordinate, once `made` */
  bool made, reversed;
  bool whole;     /* must it be a single axis, because a scan runs over it? */
  uint8_t nparts; /* of a joined class: how many classes it is made of, from the outermost */
  uint32_t parts[ARRAY_MAX_RANK];
} axis_class;

k_val lower_refuse(lowering *l, const char *why) {
  if (!l->why) l->why = why;
  return 0;
}

static const graph_node *node_of(const lowering *l, uint32_t n) { return &l->g->nodes[n]; }
static bool size_one(const graph *g, qn_dim d) {
  int64_t c;
  return dim_is_const(&g->dims, d, &c) && c == 1;
}

/* Does the node pick a part of an array by host numbers that are known to be in range? That is a view that begins where they say. */
static bool picks_by_numbers(const graph *g, const graph_node *n) {
  if (!n->attr || !(n->attr->flags & ATTR_PROVEN)) return false;
  for (int i = 1; i < n->nin; i++) {
    const graph_node *at = &g->nodes[n->in[i]];
    if (at->type.rank || at->kind != NODE_OP || at->op != OP_fit || !g->nodes[at->in[0]].type.weak) return false;
  }
  return true;
}

node_role lower_role(const graph *g, uint32_t node) {
  const graph_node *n = &g->nodes[node];
  if (n->kind == NODE_TAP) return NODE_IS_TAP;
  if (n->type.weak) return NODE_IS_SCALAR;
  if (graph_kind_has_regions(n->kind)) return NODE_IS_REGIONS;
  if (n->kind == NODE_PROJ) return NODE_IS_RESULT;
  if (n->kind != NODE_OP) return NODE_IS_LEAF;
  switch (n->op) {
  case OP_reshape:
  case OP_broadcast:
  case OP_permute:
  case OP_slice:
  case OP_window:
  case OP_stop_gradient:
  case OP_iota:
  case OP_fit: return NODE_IS_VIRTUAL;
  case OP_index: return picks_by_numbers(g, n) ? NODE_IS_VIRTUAL : NODE_IS_WORK;
  case OP_compress:
  case OP_nonzero: return NODE_IS_STEP;
  default: return op_rows[n->op].klass == CLASS_LIBRARY ? NODE_IS_STEP : NODE_IS_WORK;
  }
}

/* ---- nodes that are touched ------------------------------------------------------------------------------------------------ */

static touched *touch(lowering *l, uint32_t n) {
  if (l->r->scratch[n]) return &l->nodes[l->r->scratch[n] - 1];
  if (!arena_room(&l->memory, (void **)&l->nodes, &l->cap, l->n + 1, sizeof *l->nodes)) {
    lower_refuse(l, lower_no_memory);
    return NULL;
  }
  l->nodes[l->n] = (touched){n, -1};
  l->r->scratch[n] = ++l->n;
  return &l->nodes[l->n - 1];
}

static bool is_inline(const lowering *l, uint32_t n) {
  return l->r->place[n] == PLACE_INLINE && node_of(l, n)->kind == NODE_OP && !node_of(l, n)->type.weak;
}

/* Lists all nodes that take part: the requested ones, those that they are computed from, and those that are read from buffers. */
static bool collect(lowering *l) {
  for (uint32_t i = 0; i < l->r->n; i++)
    if (!touch(l, l->r->nodes[i])) return false;
  for (uint32_t i = 0; i < l->n; i++) {
    uint32_t n = l->nodes[i].node;
    if (i >= l->r->n && !is_inline(l, n)) continue;
    for (int j = 0; j < node_of(l, n)->nin; j++)
      if (!touch(l, node_of(l, n)->in[j])) return false;
  }
  return true;
}

/* ---- classes of axes --------------------------------------------------------------------------------------------------------- */

static uint32_t slot_of(const lowering *l, uint32_t n, int axis) {
  return (l->r->scratch[n] - 1) * ARRAY_MAX_RANK + (uint32_t)axis;
}
static bool has_slots(const lowering *l, uint32_t n) {
  return l->r->scratch[n] && l->r->scratch[n] * ARRAY_MAX_RANK <= l->nclasses;
}

static uint32_t root(lowering *l, uint32_t s) {
  axis_class *c = l->classes;
  while (c[s].parent != s) s = c[s].parent = c[c[s].parent].parent;
  return s;
}

static bool make_classes(lowering *l) {
  l->nclasses = l->n * ARRAY_MAX_RANK;
  l->classes = arena_alloc(&l->memory, l->nclasses * sizeof *l->classes);
  if (!l->classes) {
    lower_refuse(l, lower_no_memory);
    return false;
  }
  for (uint32_t i = 0; i < l->n; i++) {
    const graph_type *t = &node_of(l, l->nodes[i].node)->type;
    for (int a = 0; a < t->rank; a++) {
      uint32_t s = i * ARRAY_MAX_RANK + (uint32_t)a;
      l->classes[s].parent = l->classes[s].next = s;
      l->classes[s].members = 1;
      l->classes[s].extent = t->shape[a];
    }
  }
  return true;
}

/* Would joining two classes make two axes of one node the same, as for x + transpose(x)? Such classes are not joined. */
static bool collide(lowering *l, uint32_t a, uint32_t b) {
  const axis_class *c = l->classes;
  if (c[a].members > c[b].members) { /* so that the loop runs over the smaller class */
    uint32_t t = a;
    a = b;
    b = t;
  }
  uint32_t s = a;
  do {
    uint32_t node = s / ARRAY_MAX_RANK;
    int rank = node_of(l, l->nodes[node].node)->type.rank;
    for (int i = 0; i < rank; i++)
      if (root(l, node * ARRAY_MAX_RANK + (uint32_t)i) == b) return true;
    s = c[s].next;
  } while (s != a);
  return false;
}

/* Is one class, of which two nodes are reshapes, split by both in the same way? (8 elements are 4 x 2, or 2 x 4.) */
static bool same_parts(lowering *l, const uint32_t *a, const uint32_t *b, int n) {
  for (int i = 0; i < n; i++)
    if (l->classes[root(l, a[i])].extent != l->classes[root(l, b[i])].extent) return false;
  return true;
}

static void link_slots(lowering *l, uint32_t a, uint32_t b, int depth) {
  axis_class *c = l->classes;
  a = root(l, a);
  b = root(l, b);
  if (a == b || depth > ARRAY_MAX_RANK || collide(l, a, b)) return;
  if (b < a) {
    uint32_t t = a;
    a = b;
    b = t;
  }
  uint32_t next = c[a].next; /* joins the two rings */
  c[a].next = c[b].next;
  c[b].next = next;
  c[b].parent = a;
  c[a].members += c[b].members;
  c[a].reversed |= c[b].reversed;
  c[a].whole |= c[b].whole;
  if (!c[b].nparts) return;
  if (!c[a].nparts) {
    c[a].nparts = c[b].nparts;
    memcpy(c[a].parts, c[b].parts, sizeof c[a].parts);
  } else if (c[a].nparts == c[b].nparts && same_parts(l, c[a].parts, c[b].parts, c[a].nparts)) {
    for (int i = 0; i < c[a].nparts; i++) link_slots(l, c[a].parts[i], c[b].parts[i], depth + 1);
  }
}

static void link_axes(lowering *l, uint32_t n, int axis, uint32_t m, int to) {
  if (!has_slots(l, n) || !has_slots(l, m)) return;
  if (size_one(l->g, node_of(l, n)->type.shape[axis]) || size_one(l->g, node_of(l, m)->type.shape[to])) return;
  link_slots(l, slot_of(l, n, axis), slot_of(l, m, to), 0);
}

/* Links the axes of n with those of m, aligned from the right; m_rank is the rank to which n broadcasts. */
static void link_broadcast(lowering *l, uint32_t n, uint32_t m, int m_rank) {
  int rank = node_of(l, n)->type.rank;
  for (int a = 0; a < rank; a++)
    if (m_rank - rank + a >= 0) link_axes(l, n, a, m, m_rank - rank + a);
}

/* A reshape splits into groups: neighbouring axes of both shapes with the same number of elements, as few as the sizes show. There are none where
 * there are no elements: [0, 3, 6] and [0, 6] fit, and 3 and 6 are not 6. */
typedef struct reshape_group {
  int n, m;
  int in[ARRAY_MAX_RANK], out[ARRAY_MAX_RANK]; /* n axes of one shape and m of the other, without those of size 1 */
} reshape_group;

static int reshape_groups(graph *g, const graph_type *in, const graph_type *out, reshape_group *groups) {
  int i = 0, j = 0, count = 0;
  dim_table *t = &g->dims;
  for (int a = 0; a < in->rank; a++)
    if (in->shape[a] == 0) return 0;
  for (;;) {
    while (i < in->rank && size_one(g, in->shape[i])) i++;
    while (j < out->rank && size_one(g, out->shape[j])) j++;
    if (i == in->rank || j == out->rank) break;
    reshape_group *r = &groups[count++];
    *r = (reshape_group){1, 1, {i}, {j}};
    qn_dim a = in->shape[i++], b = out->shape[j++];
    while (a != b) {
      bool left = i < in->rank, right = j < out->rank;
      if (!left && !right) break;
      if (left && (!right || dim_hint(t, a) <= dim_hint(t, b))) {
        a = dim_mul(t, a, in->shape[i]);
        if (!size_one(g, in->shape[i])) r->in[r->n++] = i;
        i++;
      } else {
        b = dim_mul(t, b, out->shape[j]);
        if (!size_one(g, out->shape[j])) r->out[r->m++] = j;
        j++;
      }
    }
  }
  /* Axes that are left over on one side belong to the last group: the sizes are equal, but their normal forms do not show it. */
  for (; count && i < in->rank; i++)
    if (!size_one(g, in->shape[i])) groups[count - 1].in[groups[count - 1].n++] = i;
  for (; count && j < out->rank; j++)
    if (!size_one(g, out->shape[j])) groups[count - 1].out[groups[count - 1].m++] = j;
  return count;
}

static void join_parts(lowering *l, uint32_t whole, const uint32_t *parts, int n) {
  axis_class *c = &l->classes[root(l, whole)];
  if (c->nparts) {
    if (c->nparts != n || !same_parts(l, c->parts, parts, n)) return;
    for (int i = 0; i < n; i++) link_slots(l, c->parts[i], parts[i], 0);
  } else {
    c->nparts = (uint8_t)n;
    memcpy(c->parts, parts, (size_t)n * sizeof *parts);
  }
}

static void link_reshape(lowering *l, uint32_t x, uint32_t n) {
  reshape_group groups[ARRAY_MAX_RANK];
  if (!has_slots(l, x) || !has_slots(l, n)) return;
  int count = reshape_groups(l->g, &node_of(l, x)->type, &node_of(l, n)->type, groups);
  for (int i = 0; i < count; i++) {
    const reshape_group *r = &groups[i];
    uint32_t parts[ARRAY_MAX_RANK];
    if (r->n == 1 && r->m == 1) {
      link_axes(l, x, r->in[0], n, r->out[0]);
    } else if (r->n == 1) {
      for (int j = 0; j < r->m; j++) parts[j] = slot_of(l, n, r->out[j]);
      join_parts(l, slot_of(l, x, r->in[0]), parts, r->m);
    } else if (r->m == 1) {
      for (int j = 0; j < r->n; j++) parts[j] = slot_of(l, x, r->in[j]);
      join_parts(l, slot_of(l, n, r->out[0]), parts, r->n);
    }
  }
}

/* Sets `shape` to the broadcast shape of the index operands 1..count of a node and returns its rank. */
static int index_rank(const lowering *l, const graph_node *n, int count, qn_dim *shape) {
  int rank = 0;
  for (int i = 1; i <= count; i++)
    if (node_of(l, n->in[i])->type.rank > rank) rank = node_of(l, n->in[i])->type.rank;
  for (int a = 0; a < rank; a++) shape[a] = 1;
  for (int i = 1; i <= count; i++) {
    const graph_type *t = &node_of(l, n->in[i])->type;
    for (int a = 0; a < t->rank; a++)
      if (!size_one(l->g, t->shape[a])) shape[rank - t->rank + a] = t->shape[a];
  }
  return rank;
}

/* The roles of axes in a product. */
typedef struct dot_axes {
  bool row, column;          /* has the left operand rank 1, has the right one? Then the result has no axis for it */
  int batch;                 /* batch axes of the result */
  int x_batch, y_batch, y_k; /* batch axes of the operands; the axis of y that is summed over */
} dot_axes;

static dot_axes dot_axes_of(const lowering *l, const graph_node *node) {
  int x = node_of(l, node->in[0])->type.rank, y = node_of(l, node->in[1])->type.rank;
  dot_axes d = {.row = x == 1, .column = y == 1};
  d.batch = node->type.rank - !d.row - !d.column;
  d.x_batch = d.row ? 0 : x - 2;
  d.y_batch = d.column ? 0 : y - 2;
  d.y_k = d.column ? 0 : y - 2;
  return d;
}

/* The rank to which the keys of a draw broadcast: so many first axes of the draw are those of the keys. */
static int keys_rank(const lowering *l, const graph_node *node) {
  int rank = 0;
  for (int i = 0; i < node->nin; i++)
    if (node_of(l, node->in[i])->type.rank > rank) rank = node_of(l, node->in[i])->type.rank;
  return rank;
}

static void link_node(lowering *l, uint32_t n) {
  const graph_node *node = node_of(l, n);
  op_attr attr = graph_attr(node);
  int rank = node->type.rank;
  if (node->nin == 0) return;
  uint32_t x = node->in[0];
  int x_rank = node_of(l, x)->type.rank;
  switch ((op_class)op_rows[node->op].klass) {
  case CLASS_POINTWISE:
    for (int i = 0; i < node->nin; i++) link_broadcast(l, node->in[i], n, rank);
    return;
  case CLASS_REDUCE:
    for (int a = 0, to = 0; a < x_rank; a++) {
      if (attr.axes >> a & 1)
        to += attr.keepdims;
      else
        link_axes(l, x, a, n, to++);
    }
    return;
  case CLASS_SCAN:
    for (int a = 0; a < rank; a++) link_axes(l, x, a, n, a);
    if (has_slots(l, n)) {
      axis_class *c = &l->classes[root(l, slot_of(l, n, __builtin_ctz(attr.axes)))];
      c->whole = true;
      c->reversed |= (attr.flags & ATTR_REVERSE) != 0;
    }
    return;
  case CLASS_DOT: {
    uint32_t y = node->in[1];
    dot_axes d = dot_axes_of(l, node);
    for (int a = 0; a < d.x_batch; a++) link_axes(l, x, a, n, d.batch - d.x_batch + a);
    for (int a = 0; a < d.y_batch; a++) link_axes(l, y, a, n, d.batch - d.y_batch + a);
    if (!d.row) link_axes(l, x, x_rank - 2, n, d.batch);
    if (!d.column) link_axes(l, y, d.y_k + 1, n, rank - 1);
    link_axes(l, x, x_rank - 1, y, d.y_k);
    return;
  }
  case CLASS_RANDOM:
    for (int i = 0; i < node->nin; i++) link_broadcast(l, node->in[i], n, keys_rank(l, node));
    return;
  default: break;
  }
  qn_dim shape[ARRAY_MAX_RANK];
  switch (node->op) {
  case OP_reshape: link_reshape(l, x, n); return;
  case OP_broadcast: link_broadcast(l, x, n, rank); return;
  case OP_permute:
    for (int a = 0; a < rank; a++) link_axes(l, x, (int)attr.d[a], n, a);
    return;
  case OP_slice:
    for (int a = 0; a < rank; a++)
      if (attr.d[3 * a] == 0 && attr.d[3 * a + 2] == 1 && attr.d[3 * a + 1] == node_of(l, x)->type.shape[a])
        link_axes(l, x, a, n, a);
    return;
  case OP_window:
    for (int a = 0; a < x_rank; a++)
      if (a != __builtin_ctz(attr.axes)) link_axes(l, x, a, n, a);
    return;
  case OP_pad:
    for (int a = 0; a < rank; a++)
      if (attr.d[3 * a] == 0 && attr.d[3 * a + 1] == 0 && attr.d[3 * a + 2] == 0) link_axes(l, x, a, n, a);
    return;
  case OP_concat:
    for (int i = 0; i < node->nin; i++)
      for (int a = 0; a < rank; a++)
        if (a != __builtin_ctz(attr.axes)) link_axes(l, node->in[i], a, n, a);
    return;
  case OP_slice_put: link_broadcast(l, x, n, rank); return;
  case OP_index: {
    int count = (int)attr.d[0], irank = index_rank(l, node, count, shape);
    for (int i = 1; i <= count; i++) link_broadcast(l, node->in[i], n, irank);
    for (int a = count; a < x_rank; a++) link_axes(l, x, a, n, irank + a - count);
    return;
  }
  case OP_gather: link_broadcast(l, node->in[1], n, rank); return;
  default: return;
  }
}

/* Adds an axis to the kernel and returns it as a coordinate; *axis is its number. */
static k_form fresh_axis(lowering *l, qn_dim extent, uint32_t *axis) {
  char name[8] = {(char)('a' + l->k->naxes % 26), 0};
  if (l->k->naxes >= 26) name[1] = '1';
  int a = k_axis_add(l->k, name, extent);
  if (a < 0) return lower_refuse(l, "too many axes");
  *axis = (uint32_t)a;
  return k_axis_form(l->k, (uint32_t)a);
}

/* The coordinate of an axis class: an axis of the kernel (counted from the end where a scan runs backwards), or the number that the
 * coordinates of its parts make. */
static k_form class_form(lowering *l, uint32_t slot, int depth) {
  axis_class *c = &l->classes[root(l, slot)];
  if (c->made) return c->form;
  k_kernel *k = l->k;
  if (size_one(l->g, c->extent)) {
    c->form = 0;
  } else if (c->nparts && !c->whole && depth < ARRAY_MAX_RANK) {
    k_form f = 0;
    for (int i = 0; i < c->nparts; i++) {
      axis_class *part = &l->classes[root(l, c->parts[i])];
      f = k_plus(k, k_times(k, f, part->extent), class_form(l, c->parts[i], depth + 1));
    }
    c->form = f;
  } else {
    uint32_t axis;
    c->form = fresh_axis(l, c->extent, &axis);
    if (l->why) return 0;
    if (c->reversed) {
      dim_table *t = &l->g->dims;
      c->form = k_plus(k, k_times(k, c->form, dim_const(t, -1)), k_number(k, dim_sub(t, c->extent, 1)));
    }
  }
  c->made = true;
  return c->form;
}

/* Is the coordinate a plain axis that counts 0, 1, .. or (*backwards) size - 1, size - 2, ..? The axis may be shorter than `size`. */
static bool plain_axis(const lowering *l, k_form f, qn_dim size, uint32_t *axis, bool *backwards) {
  const k_linear *lin = k_linear_of(l->k, f);
  int64_t c;
  if (lin->n != 1) return false;
  const k_atom *a = &l->k->atoms[lin->terms[0].atom];
  if (a->kind != ATOM_AXIS || !dim_is_const(&l->g->dims, lin->terms[0].coef, &c)) return false;
  *axis = a->ref;
  *backwards = c == -1;
  if (c == 1) return lin->constant == 0;
  return c == -1 && lin->constant == dim_sub(&l->g->dims, size, 1);
}

/* Sets `at` to the coordinates at which a node is stored and checked: a different axis for each axis of the node. */
static bool own_coordinates(lowering *l, uint32_t n, k_form *at) {
  const graph_type *t = &node_of(l, n)->type;
  k_mask seen = 0;
  for (int a = 0; a < t->rank; a++) {
    at[a] = 0;
    if (size_one(l->g, t->shape[a])) continue;
    k_form f = class_form(l, slot_of(l, n, a), 0);
    uint32_t axis;
    if (k_linear_of(l->k, f)->axes & seen || l->why) f = fresh_axis(l, t->shape[a], &axis);
    seen |= k_linear_of(l->k, f)->axes;
    at[a] = f;
    if (l->why) return false;
  }
  return true;
}

/* ---- buffers --------------------------------------------------------------------------------------------------------------- */

static k_form flat(lowering *l, const graph_type *t, const k_form *at) {
  k_form f = 0;
  for (int a = 0; a < t->rank; a++) f = k_plus(l->k, k_times(l->k, f, t->shape[a]), at[a]);
  return f;
}

static k_form address(lowering *l, uint32_t n, const k_form *at) {
  const graph_type *t = &node_of(l, n)->type;
  if (!l->r->strides) return flat(l, t, at);
  k_form f = 0;
  for (int a = 0; a < t->rank; a++) f = k_plus(l->k, f, k_times(l->k, at[a], l->r->strides[n][a]));
  return f;
}

/* The number of a node's buffer, which is added if need be; -1 with a reason. */
static int buffer_of(lowering *l, uint32_t n, l_buffer_mode mode) {
  touched *t = touch(l, n);
  if (!t) return -1;
  if (t->buffer < 0) {
    const graph_type *type = &node_of(l, n)->type;
    qn_dim elements = graph_elements(l->g, type);
    t->buffer = k_buffer_add(l->k, (qn_dtype)type->dtype, mode, n, elements);
    if (t->buffer < 0) lower_refuse(l, lower_no_memory);
  }
  return t->buffer;
}

static k_val zero_of(lowering *l, uint8_t dtype) { return k_const(l->k, (qn_dtype)dtype, 0); }

static k_val load(lowering *l, uint32_t n, k_form at, k_guard guard) {
  const graph_type *t = &node_of(l, n)->type;
  for (int a = 0; a < t->rank; a++) /* nobody uses it, but it might be loaded before a loop that does not run */
    if (t->shape[a] == 0) return zero_of(l, t->dtype);
  int b = buffer_of(l, n, BUF_IN);
  if (b < 0) return 0;
  return k_load(l->k, b, at, guard, guard ? zero_of(l, t->dtype) : 0);
}

/* ---- views ------------------------------------------------------------------------------------------------------------------ */

/* The value `inner` (made under guard g) where g holds, else `otherwise`: a select or, if inner is a load, a load with that alternative. */
static k_val guarded(lowering *l, k_guard g, k_val inner, k_val otherwise) {
  k_kernel *k = l->k;
  if (!inner || !otherwise) return 0;
  if (inner == otherwise) return inner;
  const k_node n = k->nodes[inner];
  if (n.code == K_LOAD && n.guard == g && k->nodes[n.a].code == K_CONST && k->nodes[n.a].imm == 0)
    return k_load(k, n.buffer, n.at, g, otherwise);
  const k_condition c = k->guards[g];
  k_val holds = c.where;
  for (uint32_t i = 0; i < c.n; i++) {
    k_val v = k_iota(k, DTYPE_INDEX, c.ranges[i].form);
    k_val low = k_op(k, KOP_ge, DTYPE_TEST, v, k_const_i(k, DTYPE_INDEX, 0), 0);
    k_val high = k_op(k, KOP_lt, DTYPE_TEST, v, k_iota(k, DTYPE_INDEX, k_number(k, c.ranges[i].extent)), 0);
    k_val both = k_op(k, KOP_and, DTYPE_TEST, low, high, 0);
    holds = holds ? k_op(k, KOP_and, DTYPE_TEST, holds, both, 0) : both;
  }
  return k_op(k, KOP_select, (qn_dtype)n.dtype, holds, inner, otherwise);
}

/* The value of operand x, which broadcasts to `rank` axes, at coordinates `at`. */
static k_val broadcast_value(lowering *l, uint32_t x, int rank, const k_form *at, k_guard guard) {
  const graph_type *t = &node_of(l, x)->type;
  k_form own[ARRAY_MAX_RANK] = {0};
  for (int a = 0; a < t->rank; a++)
    if (rank - t->rank + a >= 0 && !size_one(l->g, t->shape[a])) own[a] = at[rank - t->rank + a];
  return lower_value(l, x, own, guard);
}

static k_val value_reshape(lowering *l, uint32_t n, const k_form *at, k_guard guard) {
  const graph_node *node = node_of(l, n);
  uint32_t base = node->in[0];
  while (is_inline(l, base) && (node_of(l, base)->op == OP_reshape || node_of(l, base)->op == OP_stop_gradient))
    base = node_of(l, base)->in[0];
  if (l->r->place[base] == PLACE_BUFFER && !l->r->strides && !node_of(l, base)->type.weak)
    return load(l, base, flat(l, &node->type, at), guard);
  k_kernel *k = l->k;
  reshape_group groups[ARRAY_MAX_RANK];
  const graph_type *from = &node_of(l, node->in[0])->type;
  int count = reshape_groups(l->g, from, &node->type, groups);
  k_form own[ARRAY_MAX_RANK] = {0};
  for (int i = 0; i < count; i++) {
    const reshape_group *r = &groups[i];
    k_form f = 0;
    for (int j = 0; j < r->m; j++) f = k_plus(k, k_times(k, f, node->type.shape[r->out[j]]), at[r->out[j]]);
    for (int j = r->n - 1; j > 0; j--) {
      own[r->in[j]] = k_mod(k, f, from->shape[r->in[j]]);
      f = k_div(k, f, from->shape[r->in[j]]);
    }
    own[r->in[0]] = f;
  }
  return lower_value(l, node->in[0], own, guard);
}

static k_val value_permute(lowering *l, uint32_t n, const k_form *at, k_guard guard) {
  const graph_node *node = node_of(l, n);
  k_form own[ARRAY_MAX_RANK] = {0};
  for (int a = 0; a < node->type.rank; a++) own[node->attr->d[a]] = at[a];
  return lower_value(l, node->in[0], own, guard);
}

static k_form stepped(lowering *l, k_form at, qn_dim start, int64_t step) {
  return k_plus(l->k, k_number(l->k, start), k_times(l->k, at, dim_const(&l->g->dims, step)));
}

static k_val value_slice(lowering *l, uint32_t n, const k_form *at, k_guard guard) {
  const graph_node *node = node_of(l, n);
  op_attr attr = graph_attr(node);
  k_form own[ARRAY_MAX_RANK] = {0};
  for (int a = 0; a < node->type.rank; a++) own[a] = stepped(l, at[a], attr.d[3 * a], attr.d[3 * a + 2]);
  return lower_value(l, node->in[0], own, guard);
}

static k_val value_window(lowering *l, uint32_t n, const k_form *at, k_guard guard) {
  const graph_node *node = node_of(l, n);
  dim_table *t = &l->g->dims;
  k_form own[ARRAY_MAX_RANK] = {0};
  int x_rank = node->type.rank - 1, axis = __builtin_ctz(node->attr->axes);
  for (int a = 0; a < x_rank; a++) own[a] = at[a];
  k_form within = k_times(l->k, at[x_rank], dim_const(t, node->attr->d[2]));
  own[axis] = k_plus(l->k, k_times(l->k, at[axis], dim_const(t, node->attr->d[1])), within);
  return lower_value(l, node->in[0], own, guard);
}

/* Sets *c so that at = low + every * *c, and returns guard g extended by the condition that there is such a c with 0 <= c < size. */
static k_guard within(lowering *l, k_guard g, k_form at, qn_dim low, int64_t every, qn_dim size, k_form *c) {
  k_kernel *k = l->k;
  k_form f = k_plus(k, at, k_number(k, dim_sub(&l->g->dims, 0, low)));
  if (every > 1) {
    k_form rest = k_mod(k, f, every);
    f = k_div(k, f, every);
    g = k_guard_range(k, g, rest, 1);
  }
  *c = size_one(l->g, size) ? 0 : f; /* an axis of size 1 has the coordinate 0 */
  return k_guard_range(k, g, f, size);
}

/* The guard to which an op adds its own ranges: of the demand's guard it keeps the condition on indices that are data. The ranges need not
 * be repeated, since a value is not used where they do not hold, and operands are guarded by the bounds of their own coordinates. */
static k_guard begin_guard(const lowering *l, k_guard guard) { return l->k->guards[guard].where ? guard : 0; }

/* Does the guard hold nowhere? */
static bool nowhere(const lowering *l, k_guard g) {
  const k_condition *c = &l->k->guards[g];
  for (uint32_t i = 0; i < c->n; i++)
    if (k_outside(l->k, c->ranges[i].form, c->ranges[i].extent)) return true;
  return false;
}

static k_val value_pad(lowering *l, uint32_t n, const k_form *at, k_guard guard) {
  const graph_node *node = node_of(l, n);
  op_attr attr = graph_attr(node);
  const graph_type *from = &node_of(l, node->in[0])->type;
  k_form own[ARRAY_MAX_RANK] = {0};
  k_guard first = begin_guard(l, guard), g = first;
  for (int a = 0; a < from->rank; a++)
    g = within(l, g, at[a], attr.d[3 * a], 1 + attr.d[3 * a + 2], from->shape[a], &own[a]);
  if (nowhere(l, g)) return lower_value(l, node->in[1], NULL, guard);
  k_val inner = lower_value(l, node->in[0], own, g);
  if (!inner || g == first) return inner;
  return guarded(l, g, inner, lower_value(l, node->in[1], NULL, guard));
}

static k_val value_concat(lowering *l, uint32_t n, const k_form *at, k_guard guard) {
  const graph_node *node = node_of(l, n);
  int axis = __builtin_ctz(node->attr->axes);
  dim_table *t = &l->g->dims;
  qn_dim *starts = arena_alloc(&l->memory, (node->nin + (size_t)1) * sizeof *starts), end = 0;
  if (!starts) return lower_refuse(l, lower_no_memory);
  for (int i = 0; i < node->nin; i++) { /* (what is left when parts are taken away would be longer sums) */
    starts[i] = end;
    end = dim_add(t, end, node_of(l, node->in[i])->type.shape[axis]);
  }
  k_val v = zero_of(l, node->type.dtype);
  for (int i = node->nin; i-- > 0 && v;) {
    const graph_type *from = &node_of(l, node->in[i])->type;
    qn_dim start = starts[i];
    k_form own[ARRAY_MAX_RANK] = {0};
    for (int a = 0; a < from->rank; a++) own[a] = at[a];
    k_guard first = begin_guard(l, guard), g = within(l, first, at[axis], start, 1, from->shape[axis], &own[axis]);
    if (nowhere(l, g)) continue;
    k_val inner = lower_value(l, node->in[i], own, g);
    v = !inner || g == first ? inner : guarded(l, g, inner, v);
  }
  return v;
}

static k_val value_slice_put(lowering *l, uint32_t n, const k_form *at, k_guard guard) {
  const graph_node *node = node_of(l, n);
  op_attr attr = graph_attr(node);
  k_form own[ARRAY_MAX_RANK] = {0};
  k_guard first = begin_guard(l, guard), g = first;
  for (int a = 0; a < node->type.rank; a++) {
    qn_dim start = attr.d[3 * a], size = attr.d[3 * a + 1];
    int64_t step = attr.d[3 * a + 2];
    if (step > 0) {
      g = within(l, g, at[a], start, step, size, &own[a]);
    } else { /* at = start - |step| * c, that is start - at = |step| * c */
      k_form back = k_plus(l->k, k_number(l->k, start), k_times(l->k, at[a], dim_const(&l->g->dims, -1)));
      g = within(l, g, back, 0, -step, size, &own[a]);
    }
  }
  if (nowhere(l, g)) return lower_value(l, node->in[0], at, guard);
  k_val inner = broadcast_value(l, node->in[1], node->type.rank, own, g);
  if (!inner || g == first) return inner;
  return guarded(l, g, inner, lower_value(l, node->in[0], at, guard));
}

/* ---- indexing ---------------------------------------------------------------------------------------------------------------- */

static bool proven(const graph_node *n) { return n->attr && (n->attr->flags & ATTR_PROVEN); }

/* The coordinate that index value `index` selects on an axis. Sets *ok (may be NULL) to the condition that it is in range, and adds that
 * to *guard (may be NULL). */
static k_form index_coordinate(lowering *l, const graph_node *node, k_val index, qn_dim size, k_guard *guard,
                               k_val *ok) {
  k_val in_range;
  if (!index) return 0;
  k_val i = lower_index(l, index, size, &in_range);
  if (!proven(node) && guard) *guard = k_guard_where(l->k, *guard, in_range);
  if (ok) *ok = in_range;
  return i ? k_value_form(l->k, i) : lower_refuse(l, lower_no_memory);
}

/* The element of operand 0 at `own` where g holds, else 0. g implies the demand's `guard`. */
static k_val picked(lowering *l, const graph_node *node, const k_form *own, k_guard g, k_guard guard) {
  k_val inner = lower_value(l, node->in[0], own, g);
  return !inner || g == guard ? inner : guarded(l, g, inner, zero_of(l, node->type.dtype));
}

static k_val value_index(lowering *l, uint32_t n, const k_form *at, k_guard guard) {
  const graph_node *node = node_of(l, n);
  int count = (int)node->attr->d[0];
  const graph_type *from = &node_of(l, node->in[0])->type;
  qn_dim shape[ARRAY_MAX_RANK];
  int rank = index_rank(l, node, count, shape);
  k_form own[ARRAY_MAX_RANK] = {0};
  k_guard g = guard;
  for (int i = 0; i < count; i++) {
    k_val v = broadcast_value(l, node->in[1 + i], rank, at, guard);
    if (!v) return 0;
    own[i] = index_coordinate(l, node, v, from->shape[i], &g, NULL);
  }
  for (int a = count; a < from->rank; a++) own[a] = at[rank + a - count];
  return picked(l, node, own, g, guard);
}

static k_val value_gather(lowering *l, uint32_t n, const k_form *at, k_guard guard) {
  const graph_node *node = node_of(l, n);
  int axis = __builtin_ctz(node->attr->axes);
  const graph_type *from = &node_of(l, node->in[0])->type;
  k_form own[ARRAY_MAX_RANK] = {0};
  k_guard g = guard;
  for (int a = 0; a < from->rank; a++)
    if (!size_one(l->g, from->shape[a])) own[a] = at[a];
  k_val v = broadcast_value(l, node->in[1], node->type.rank, at, guard);
  if (!v) return 0;
  own[axis] = index_coordinate(l, node, v, from->shape[axis], &g, NULL);
  return picked(l, node, own, g, guard);
}

static k_val value_iota(lowering *l, uint32_t n, const k_form *at) {
  const graph_node *node = node_of(l, n);
  qn_dtype d = (qn_dtype)node->type.dtype;
  k_form f = node->type.rank ? at[__builtin_ctz(node->attr->axes)] : 0;
  return dtype_is_int(d) ? k_iota(l->k, d, f) : k_cast(l->k, k_iota(l->k, DTYPE_INDEX, f), d);
}

/* ---- reductions, scans, products -------------------------------------------------------------------------------------------- */

/* The axis over which a reduction runs along axis `axis` of operand x: that of its class if it is plain and not in use, else a new one. */
static k_form bound_axis(lowering *l, uint32_t x, int axis, k_mask in_use, uint32_t *to) {
  bool backwards;
  qn_dim extent = node_of(l, x)->type.shape[axis];
  if (has_slots(l, x)) {
    k_form f = class_form(l, slot_of(l, x, axis), 0);
    if (!l->why && plain_axis(l, f, extent, to, &backwards) && !backwards && !(in_use >> *to & 1)) return f;
  }
  return fresh_axis(l, extent, to);
}

/* The set of axes that occur in some coordinates. */
static k_mask over(const lowering *l, const k_form *at, int rank) {
  k_mask m = 0;
  for (int a = 0; a < rank; a++) m |= k_linear_of(l->k, at[a])->axes;
  return m;
}

/* Corrects a sum over an axis that may be empty: a sum of nothing is 0, but the reduction gives its identity -0.0. */
static k_val sum_of_some(lowering *l, k_val v, qn_dim extent) {
  k_kernel *k = l->k;
  qn_dtype d = v ? (qn_dtype)k->nodes[v].dtype : DTYPE_TEST;
  if (!v || !dtype_is_float(d)) return v;
  k_val none =
      k_op(k, KOP_eq, DTYPE_TEST, k_iota(k, DTYPE_INDEX, k_number(k, extent)), k_const_i(k, DTYPE_INDEX, 0), 0);
  return k_op(k, KOP_select, d, none, k_const(k, d, 0), v);
}

/* Stores a value to scratch and loads it again, so that a reduction of it runs in another nest of loops. Only in kernels of one node. */
static k_val by_way_of_scratch(lowering *l, k_val v) {
  k_kernel *k = l->k;
  if (!v) return 0;
  if (l->r->n != 1) return lower_refuse(l, "reductions over several axes");
  k_mask axes = k->nodes[v].axes;
  qn_dim elements = 1;
  k_form at = 0;
  for (uint32_t a = 0; a < k->naxes; a++) {
    if (!(axes >> a & 1)) continue;
    at = k_plus(k, k_times(k, at, k->axes[a].extent), k_axis_form(k, a));
    elements = dim_mul(&l->g->dims, elements, k->axes[a].extent);
  }
  int b = k_buffer_add(k, (qn_dtype)k->nodes[v].dtype, BUF_SCRATCH, 0, elements);
  if (b < 0 || !k_store(k, b, at, 0, v, axes)) return lower_refuse(l, lower_no_memory);
  return k_load(k, b, at, 0, 0);
}

static k_val value_reduce(lowering *l, uint32_t n, const k_form *at, k_guard guard) {
  const graph_node *node = node_of(l, n);
  k_kernel *k = l->k;
  uint32_t x = node->in[0];
  const graph_type *t = &node_of(l, x)->type;
  op_attr attr = graph_attr(node);
  qn_dtype type = (qn_dtype)node->type.dtype;
  bool index = node->op == OP_argmax || node->op == OP_argmin;
  k_form own[ARRAY_MAX_RANK] = {0};
  for (int a = 0, from = 0; a < t->rank; a++) {
    if (attr.axes >> a & 1)
      from += attr.keepdims;
    else
      own[a] = at[from++];
  }
  k_mask in_use = over(l, at, node->type.rank) | k->guards[guard].axes;
  reduce_fold folds[ARRAY_MAX_RANK];
  uint32_t over[ARRAY_MAX_RANK]; /* by fold: the axis that it runs over */
  int count = reduce_folds(&l->g->dims, t, attr.axes, index, l->r->joins, folds);
  for (int i = count; i-- > 0;) { /* from the outermost fold, so that axes are numbered from the outside */
    const reduce_fold *f = &folds[i];
    k_form c = f->n == 1 ? bound_axis(l, x, f->axes[0], in_use, &over[i]) : fresh_axis(l, f->extent, &over[i]);
    if (l->why) return 0;
    in_use |= (k_mask)1 << over[i];
    for (int j = f->n - 1; j > 0; j--) {
      own[f->axes[j]] = k_mod(k, c, t->shape[f->axes[j]]);
      c = k_div(k, c, t->shape[f->axes[j]]);
    }
    own[f->axes[0]] = c;
  }
  if (index && !count) return k_const(k, type, 0);
  for (int i = 0; i < count && node->op == OP_sum; i++)
    if (folds[i].extent == 0) return zero_of(l, node->type.dtype);
  k_val v = lower_value(l, x, own, guard);

  if (!v) return 0;
  if ((node->op == OP_sum || node->op == OP_prod) && !dtype_is_float(type)) v = k_cast(k, v, type);
  v = lower_widen(l, v);
  for (int i = 0, nest = reduce_nest(folds, count); i < count && v; i++) {
    v = k_reduce(k, lower_combiner((op_id)node->op), folds[i].outer ? ORDER_OUTER : ORDER_INNER, over[i], v);
    if (node->op == OP_sum && folds[i].extent < 0) v = sum_of_some(l, v, folds[i].extent);
    if (i + 1 < nest || i + 1 == count) continue;
    v = by_way_of_scratch(l, v);
    nest += reduce_nest(folds + i + 1, count - i - 1);
  }
  return k_cast(k, v, type);
}

/* The first value of an exclusive scan: 0, 1, or the type's bound. */
static k_val before_first(lowering *l, kop_id op, qn_dtype d) {
  if (op == KOP_add) return k_const(l->k, d, 0);
  if (!dtype_is_narrow(d)) return k_const(l->k, d, l_identity(op, d));
  return k_const_f(l->k, d, op == KOP_mul ? 1 : op == KOP_max ? -(double)INFINITY : (double)INFINITY);
}

static k_val value_scan(lowering *l, uint32_t n, const k_form *at, k_guard guard) {
  const graph_node *node = node_of(l, n);
  k_kernel *k = l->k;
  int a = __builtin_ctz(node->attr->axes);
  uint32_t axis;
  bool backwards = false, reverse = (node->attr->flags & ATTR_REVERSE) != 0;
  k_form own[ARRAY_MAX_RANK];
  memcpy(own, at, sizeof own);
  qn_dtype type = (qn_dtype)node->type.dtype;
  bool one = size_one(l->g, node->type.shape[a]), exclusive = (node->attr->flags & ATTR_EXCLUSIVE) != 0;
  if (!one && (guard || !plain_axis(l, at[a], node->type.shape[a], &axis, &backwards) || backwards != reverse))
    return lower_refuse(l, "a scan is asked out of order");
  for (int b = 0; b < node->type.rank; b++)
    if (!one && b != a && (k_linear_of(k, at[b])->axes >> axis & 1))
      return lower_refuse(l, "a scan is asked out of order");
  k_val v = lower_value(l, node->in[0], own, guard);
  if (!v) return 0;
  kop_id op = lower_combiner((op_id)node->op);
  if (one) return exclusive ? before_first(l, op, type) : k_cast(k, v, type);
  if (!dtype_is_float(type)) v = k_cast(k, v, type);
  bool last = a == node->type.rank - 1;
  return k_cast(k, k_scan(k, op, last ? ORDER_INNER : ORDER_OUTER, axis, exclusive, lower_widen(l, v)), type);
}

static k_val value_dot(lowering *l, uint32_t n, const k_form *at, k_guard guard) {
  const graph_node *node = node_of(l, n);
  k_kernel *k = l->k;
  uint32_t x = node->in[0], y = node->in[1], axis = 0;
  const graph_type *tx = &node_of(l, x)->type, *ty = &node_of(l, y)->type;
  int rank = node->type.rank;
  dot_axes d = dot_axes_of(l, node);
  k_mask in_use = over(l, at, rank) | k->guards[guard].axes;
  bool one = size_one(l->g, tx->shape[tx->rank - 1]);
  k_form c = one ? 0 : bound_axis(l, x, tx->rank - 1, in_use, &axis);
  if (l->why) return 0;
  k_form ox[ARRAY_MAX_RANK] = {0}, oy[ARRAY_MAX_RANK] = {0};
  for (int a = 0; a < d.x_batch; a++)
    if (!size_one(l->g, tx->shape[a])) ox[a] = at[d.batch - d.x_batch + a];
  for (int a = 0; a < d.y_batch; a++)
    if (!size_one(l->g, ty->shape[a])) oy[a] = at[d.batch - d.y_batch + a];
  if (!d.row) ox[tx->rank - 2] = at[d.batch];
  if (!d.column) oy[ty->rank - 1] = at[rank - 1];
  ox[tx->rank - 1] = c;
  oy[d.y_k] = c;
  k_val a = lower_value(l, x, ox, guard), b = a ? lower_value(l, y, oy, guard) : 0;
  if (!b) return 0;
  qn_dtype type = (qn_dtype)node->type.dtype;
  if (!dtype_is_float(type)) {
    a = k_cast(k, a, type);
    b = k_cast(k, b, type);
  }
  a = lower_widen(l, a);
  b = lower_widen(l, b);
  /* a chain of one product is that product: of a column and a row, as in gradients, no more than a multiplication of elements */
  k_val v = one ? k_op(k, KOP_mul, a ? (qn_dtype)k->nodes[a].dtype : type, a, b, 0) : k_dot(k, axis, a, b);
  return k_cast(k, v, type);
}

/* ---- any node ---------------------------------------------------------------------------------------------------------------- */

static k_val value_scalar(lowering *l, uint32_t n) {
  const graph_node *node = node_of(l, n);
  qn_dtype d = (qn_dtype)node->type.dtype;
  if (node->kind == NODE_CONST) {
    uint64_t bits = 0;
    memcpy(&bits, node->payload.data, dtype_size(d));
    return k_const(l->k, d, bits);
  }
  int number = k_scalar_of(l->k, n);
  if (number < 0) return lower_refuse(l, lower_no_memory);
  return k_scalar(l->k, d, (uint32_t)number);
}

static k_val value_random(lowering *l, uint32_t n, const k_form *at, k_guard guard) {
  const graph_node *node = node_of(l, n);
  k_val keys[3];
  int rank = keys_rank(l, node);
  for (int i = 0; i < 3; i++)
    if (!(keys[i] = broadcast_value(l, node->in[i], rank, at, guard))) return 0;
  graph_type each = {.rank = (uint8_t)(node->type.rank - rank)}; /* the shape that one key draws */
  memcpy(each.shape, node->type.shape + rank, each.rank * sizeof *each.shape);
  int64_t size;
  bool small = dim_is_const(&l->g->dims, graph_elements(l->g, &each), &size) && size <= (int64_t)1 << 32;
  return lower_random(l, (op_id)node->op, (qn_dtype)node->type.dtype, flat(l, &each, at + rank), small, keys);
}

static k_val compute(lowering *l, uint32_t n, const k_form *at, k_guard guard) {
  const graph_node *node = node_of(l, n);
  switch ((op_class)op_rows[node->op].klass) {
  case CLASS_POINTWISE: {
    k_val in[3] = {0};
    for (int i = 0; i < node->nin && i < 3; i++)
      if (!(in[i] = broadcast_value(l, node->in[i], node->type.rank, at, guard))) return 0;
    return lower_pointwise(l, (op_id)node->op, (qn_dtype)node->type.dtype, in, node->nin);
  }
  case CLASS_REDUCE: return value_reduce(l, n, at, guard);
  case CLASS_SCAN: return value_scan(l, n, at, guard);
  case CLASS_DOT: return value_dot(l, n, at, guard);
  case CLASS_RANDOM: return value_random(l, n, at, guard);
  default: break;
  }
  switch (node->op) {
  case OP_reshape: return value_reshape(l, n, at, guard);
  case OP_broadcast: return broadcast_value(l, node->in[0], node->type.rank, at, guard);
  case OP_permute: return value_permute(l, n, at, guard);
  case OP_slice: return value_slice(l, n, at, guard);
  case OP_window: return value_window(l, n, at, guard);
  case OP_pad: return value_pad(l, n, at, guard);
  case OP_concat: return value_concat(l, n, at, guard);
  case OP_slice_put: return value_slice_put(l, n, at, guard);
  case OP_index: return value_index(l, n, at, guard);
  case OP_gather: return value_gather(l, n, at, guard);
  case OP_iota: return value_iota(l, n, at);
  default: return lower_refuse(l, "this op is stored before it is used");
  }
}

static bool same_demand(const void *l, uint32_t i, const void *x) {
  const lower_demand *a = &((const lowering *)l)->demands[i], *b = x;
  return a->node == b->node && a->guard == b->guard && memcmp(a->at, b->at, sizeof a->at) == 0;
}

/* The answer to a demand, which is noted if it is new; 0 in .value: there is none yet. NULL when memory is short. */
static lower_demand *find_demand(lowering *l, uint32_t n, const k_form *at, int rank, k_guard guard) {
  lower_demand d = {.node = n, .guard = guard};
  uint64_t hash = (uint64_t)n << 32 | guard;
  for (int a = 0; a < rank; a++) {
    d.at[a] = at[a];
    hash = (hash ^ at[a]) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 31;
  }
  hash *= 0x9e3779b97f4a7c15u;
  uint32_t *number = intern_find(&l->memory, &l->numbers, hash, same_demand, l, &d);
  if (!number || (!*number && !arena_room(&l->memory, (void **)&l->demands, &l->demands_cap, l->ndemands + 1,
                                          sizeof *l->demands))) {
    lower_refuse(l, lower_no_memory);
    return NULL;
  }
  if (*number) return &l->demands[*number - 1];
  l->demands[l->ndemands] = d;
  *number = ++l->ndemands;
  return &l->demands[l->ndemands - 1];
}

/* The guard that a demand needs: only that its coordinates are in range, however they came about. So an element that is asked for along
 * many ways (through the base and the values of a chain of slice updates) is one value. Ranges that always hold are left out. Indices
 * that are data are in range by a condition in the guard, so a guard with a condition is kept as it is, unless all coordinates are in
 * range anyway. */
static k_guard needed_guard(lowering *l, const graph_type *t, const k_form *at, k_guard guard) {
  k_guard g = 0;
  for (int a = 0; a < t->rank && guard; a++) g = k_guard_range(l->k, g, at[a], t->shape[a]);
  return g && l->k->guards[guard].where ? guard : g;
}

k_val lower_value(lowering *l, uint32_t n, const k_form *at, k_guard guard) {
  const graph_node *node = node_of(l, n);
  int rank = node->type.rank;
  if (l->why) return 0;
  if (l->k->failed) return lower_refuse(l, lower_no_memory);
  if (cancelled(l->r->cancel)) return lower_refuse(l, lower_cancelled);
  if (l->r->most && l->k->n + l->answered > l->r->most) return lower_refuse(l, "a kernel of very many values");
  if (node->type.weak) return value_scalar(l, n);
  guard = needed_guard(l, &node->type, at, guard);
  if (node->kind == NODE_CONST && l->r->place[n] == PLACE_INLINE) return value_scalar(l, n);
  if (!is_inline(l, n)) return load(l, n, address(l, n, at), guard);
  const lower_demand *d = find_demand(l, n, at, rank, guard);
  if (!d || d->value) return d ? d->value : 0;
  uint32_t number = (uint32_t)(d - l->demands);
  if (l->depth == DEPTH_MAX) return lower_refuse(l, "views and operations nest too deep");
  l->depth++;
  k_val v = compute(l, n, at, guard);
  l->depth--;
  if (!v) return lower_refuse(l, l->k->failed ? lower_no_memory : "the value has no form");
  l->answered++;
  return l->demands[number].value = v;
}

/* ---- effects ------------------------------------------------------------------------------------------------------------------ */

static bool add_check(lowering *l, uint32_t n, l_check check, k_val ok, k_form element, k_val shows, k_mask runs) {
  const graph_node *node = node_of(l, n);
  check.node = n;
  check.site = node->site;
  const k_node *c = &l->k->nodes[ok];
  if (c->code == K_CONST && c->imm) return true;
  int number = k_check_add(l->k, check);
  return (number >= 0 && k_check(l->k, number, ok, element, shows, runs)) || lower_refuse(l, lower_no_memory);
}

/* Adds the checks of n's index operands first .. first + count - 1, which index axes[..] of operand 0. They run at coordinates `at` over the
 * operands' broadcast shape. */
static bool check_indices(lowering *l, uint32_t n, const k_form *at, int rank, const qn_dim *shape, int first,
                          int count, const int *axes) {
  const graph_node *node = node_of(l, n);
  const graph_type *from = &node_of(l, node->in[0])->type;
  graph_type whole = {.rank = (uint8_t)rank};
  memcpy(whole.shape, shape, (size_t)rank * sizeof *shape);
  for (int i = 0; i < count; i++) {
    k_val v = broadcast_value(l, node->in[first + i], rank, at, 0), ok;
    if (!v) return false;
    (void)index_coordinate(l, node, v, from->shape[axes[i]], NULL, &ok);
    l_check check = {.id = E_index, .detail = axes[i]};
    if (!ok || !add_check(l, n, check, ok, flat(l, &whole, at), k_cast(l->k, v, DTYPE_INDEX), over(l, at, rank)))
      return false;
  }
  return true;
}

static bool check_node(lowering *l, uint32_t n) {
  const graph_node *node = node_of(l, n);
  k_form at[ARRAY_MAX_RANK];
  if (!own_coordinates(l, n, at)) return false;
  int axes[ARRAY_MAX_RANK];
  qn_dim shape[ARRAY_MAX_RANK];
  if (node->op == OP_index) {
    int count = (int)node->attr->d[0], rank = index_rank(l, node, count, shape);
    for (int i = 0; i < count; i++) axes[i] = i;
    return check_indices(l, n, at, rank, shape, 1, count, axes);
  }
  if (node->op == OP_gather) {
    axes[0] = __builtin_ctz(node->attr->axes);
    return check_indices(l, n, at, node->type.rank, node->type.shape, 1, 1, axes);
  }
  k_val in[3] = {0}, shows;
  for (int i = 0; i < node->nin && i < 3; i++)
    if (!(in[i] = broadcast_value(l, node->in[i], node->type.rank, at, 0))) return false;
  l_check check = {0};
  k_val ok = lower_succeeds(l, (op_id)node->op, (qn_dtype)node->type.dtype, in, &shows, &check);
  return ok && add_check(l, n, check, ok, flat(l, &node->type, at), shows, over(l, at, node->type.rank));
}

/* The index operands of scatter (which index the first axes) or of gather_add (one axis), and the axes that their loops run over. */
typedef struct scatter_axes {
  bool along;               /* is it gather_add? */
  int count;                /* how many index operands there are */
  int axes[ARRAY_MAX_RANK]; /* by index operand: the axis of the result that it indexes */
  int rank;                 /* of the operands' broadcast shape */
  qn_dim shape[ARRAY_MAX_RANK];
  /* coordinates of the stored values: the operands' axes, then those of the result that are not indexed */
  k_form at[ARRAY_MAX_RANK];
} scatter_axes;

/* Sets *s. The axes are new ones, so that no other work shares the loops, which must go in row-major order. */
static bool scatter_axes_of(lowering *l, const graph_node *node, scatter_axes *s) {
  uint32_t axis;
  *s = (scatter_axes){.along = node->op == OP_gather_add};
  if (s->along) {
    s->count = 1;
    s->axes[0] = __builtin_ctz(node->attr->axes);
    s->rank = node->type.rank;
    memcpy(s->shape, node_of(l, node->in[1])->type.shape, sizeof s->shape);
  } else {
    s->count = (int)node->attr->d[0];
    for (int i = 0; i < s->count; i++) s->axes[i] = i;
    s->rank = index_rank(l, node, s->count, s->shape);
  }
  for (int a = 0; a < s->rank; a++) s->at[a] = size_one(l->g, s->shape[a]) ? 0 : fresh_axis(l, s->shape[a], &axis);
  return !l->why;
}

static bool check_scatter(lowering *l, uint32_t n, const scatter_axes *s) {
  return !graph_fallible(l->g, n) || check_indices(l, n, s->at, s->rank, s->shape, 1, s->count, s->axes);
}

/* Turns coordinates of n, a view of x by slices and permutations, into those of x. */
static void view_coordinates(lowering *l, uint32_t n, uint32_t x, k_form *at) {
  for (; n != x; n = node_of(l, n)->in[0]) {
    const graph_node *node = node_of(l, n);
    k_form own[ARRAY_MAX_RANK] = {0};
    for (int a = 0; a < node->type.rank; a++) {
      if (node->op == OP_permute)
        own[node->attr->d[a]] = at[a];
      else
        own[a] = stepped(l, at[a], node->attr->d[3 * a], node->attr->d[3 * a + 2]);
    }
    memcpy(at, own, sizeof own);
  }
}

/* Does node n only store what it changes, since it has the buffer of its operand 0? */
static bool in_place(const lowering *l, uint32_t n) { return l->r->over && l->r->over[n]; }

/* Stores a slice_put into its operand's buffer. */
static bool store_slice(lowering *l, uint32_t n) {
  const graph_node *node = node_of(l, n);
  const graph_type *t = &node->type, *v = &node_of(l, node->in[1])->type;
  op_attr attr = graph_attr(node);
  k_form at[ARRAY_MAX_RANK] = {0}, place[ARRAY_MAX_RANK];
  uint32_t axis;
  int b = buffer_of(l, n, BUF_INOUT);
  bool same = v->rank == t->rank; /* the values have the axes of the slice */
  for (int a = 0; a < t->rank && same; a++) same = v->shape[a] == attr.d[3 * a + 1];
  if (b < 0 || (same && !own_coordinates(l, node->in[1], at))) return false;
  for (int a = 0; a < t->rank; a++) {
    if (!same && !size_one(l->g, attr.d[3 * a + 1])) at[a] = fresh_axis(l, attr.d[3 * a + 1], &axis);
    place[a] =
        k_plus(l->k, k_number(l->k, attr.d[3 * a]), k_times(l->k, at[a], dim_const(&l->g->dims, attr.d[3 * a + 2])));
    if (l->why) return false;
  }
  k_val value = broadcast_value(l, node->in[1], t->rank, at, 0);
  if (!value) return false;
  return k_store(l->k, b, flat(l, t, place), 0, value, over(l, at, t->rank)) || lower_refuse(l, lower_no_memory);
}

/* Stores a scatter or gather_add: a copy of operand 0 (unless it is in_place), then an update for each of the values. */
static bool store_scatter(lowering *l, uint32_t n) {
  const graph_node *node = node_of(l, n);
  k_kernel *k = l->k;
  const graph_type *t = &node->type;
  k_form at[ARRAY_MAX_RANK], place[ARRAY_MAX_RANK] = {0};
  scatter_axes s;
  uint32_t axis;
  uint32_t array = in_place(l, n) && l->r->whole[n] ? l->r->whole[n] : n;
  int b = buffer_of(l, array, BUF_INOUT);
  if (b < 0 || !own_coordinates(l, n, at)) return false;
  if (!in_place(l, n)) {
    k_val old = lower_value(l, node->in[0], at, 0);
    if (!old) return false;
    if (!k_store(k, b, flat(l, t, at), 0, old, over(l, at, t->rank))) return lower_refuse(l, lower_no_memory);
  }
  if (!scatter_axes_of(l, node, &s) || !check_scatter(l, n, &s)) return false;
  k_guard g = 0;
  for (int i = 0; i < s.count; i++) {
    k_val index = broadcast_value(l, node->in[1 + i], s.rank, s.at, 0);
    if (!index) return false;
    place[s.axes[i]] = index_coordinate(l, node, index, t->shape[s.axes[i]], &g, NULL);
  }
  int whole = s.rank;
  for (int a = 0; a < t->rank; a++) {
    if (s.along) {
      if (a != s.axes[0]) place[a] = s.at[a];
    } else if (a >= s.count) {
      s.at[whole] = size_one(l->g, t->shape[a]) ? 0 : fresh_axis(l, t->shape[a], &axis);
      place[a] = s.at[whole++];
    }
  }
  if (l->why) return false;
  k_val update = broadcast_value(l, node->in[node->nin - 1], whole, s.at, g);
  if (!update) return false;
  static const kop_id combine[] = {[SCATTER_SET] = KOP_copy,
                                   [SCATTER_ADD] = KOP_add,
                                   [SCATTER_MUL] = KOP_mul,
                                   [SCATTER_MIN] = KOP_min,
                                   [SCATTER_MAX] = KOP_max};
  kop_id op = s.along ? KOP_add : combine[node->attr->mode];
  update = k_cast(k, update, (qn_dtype)t->dtype);
  if (dtype_is_bool(t->dtype) && op == KOP_add) op = KOP_max;
  if (dtype_is_bool(t->dtype) && op == KOP_mul) op = KOP_min;
  if (array != n) {
    view_coordinates(l, node->in[0], l->r->over[n], place);
    t = &node_of(l, array)->type;
  }
  return k_storef(k, op, b, flat(l, t, place), g, update, over(l, s.at, whole)) || lower_refuse(l, lower_no_memory);
}

static bool store_node(lowering *l, uint32_t n) {
  k_form at[ARRAY_MAX_RANK];
  int op = node_of(l, n)->op;
  if (op == OP_scatter || op == OP_gather_add) return store_scatter(l, n);
  if (in_place(l, n)) return l->r->whole[l->r->over[n]] == n || store_slice(l, n);
  if (!own_coordinates(l, n, at)) return false;
  k_val v = lower_value(l, n, at, 0);
  if (!v) return false;
  const graph_type *t = &node_of(l, n)->type;
  int b = buffer_of(l, n, BUF_OUT);
  return b >= 0 && (k_store(l->k, b, flat(l, t, at), 0, v, over(l, at, t->rank)) || lower_refuse(l, lower_no_memory));
}

static bool lower_all(lowering *l) {
  const lower_request *r = l->r;
  if (!collect(l) || !make_classes(l)) return false;
  for (uint32_t i = 0; i < l->nclasses / ARRAY_MAX_RANK; i++)
    if (i < r->n || is_inline(l, l->nodes[i].node)) link_node(l, l->nodes[i].node);
  for (uint32_t i = 0; i < r->nbuffers; i++)
    if (buffer_of(l, r->buffers[i], BUF_IN) < 0) return false;
  for (uint32_t i = 0; i < r->n; i++) {
    uint32_t n = r->nodes[i];
    int op = node_of(l, n)->kind == NODE_OP ? node_of(l, n)->op : OP_fit;
    bool scatters = op == OP_scatter || op == OP_gather_add, stored = r->stored[n];
    scatter_axes s;
    if (op != OP_fit && !(scatters && stored) && graph_fallible(l->g, n)) {
      if (scatters ? !scatter_axes_of(l, node_of(l, n), &s) || !check_scatter(l, n, &s) : !check_node(l, n))
        return false;
    }
    if (stored && !store_node(l, n)) return false;
  }
  return true;
}

k_kernel *lower(const lower_request *r, const char **why) {
  lowering l = {.r = r, .g = r->g, .k = k_new(r->name ? r->name : "kernel", &r->g->dims)};
  arena_init(&l.memory, NULL);
  bool ok = l.k != NULL && lower_all(&l);
  for (uint32_t i = 0; i < l.n; i++) r->scratch[l.nodes[i].node] = 0;
  if (r->made) *r->made = l.k ? l.k->n + l.answered : 0;
  arena_free(&l.memory);
  if (ok) l.k->windows = r->windows;
  if (ok) k_finish(l.k);
  if (ok && !l.k->failed) return l.k;
  *why = !l.k || l.k->failed || !l.why ? lower_no_memory : l.why;
  k_free(l.k);
  return NULL;
}
