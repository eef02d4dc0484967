/* Rules of differentiation of reductions, scans, views, indexing, dot and sort (grad.h).
 *
 * A node that indexes with indices which the forward pass has checked carries ATTR_PROVEN, so it makes no check of its own.
 */
#include <string.h>

#include "jit/graph/grad.h"

static dim_table *dims_of(grad_ctx *c) { return &c->g->dims; }

/* ---- reductions ------------------------------------------------------------------------------------------------- */

/* Reshapes a reduction's result (or its cotangent) so that reduced axes have size 1 and it broadcasts over the operand. */
static uint32_t keep_axes(grad_ctx *c, uint32_t reduced) {
  graph_type t = grad_type_of(c, c->in[0]);
  for (int i = 0; i < t.rank; i++)
    if (c->attr.axes >> i & 1) t.shape[i] = 1;
  return grad_reshape_to(c, reduced, &t);
}

void grad_sum(grad_ctx *c) {
  graph_type x = grad_type_of(c, c->in[0]);
  c->out[0] = grad_view(c, OP_broadcast, keep_axes(c, c->ct), &x);
}

/* An element's derivative is the product of all others: an exclusive running product from the left times one from the right. There is
 * no division, so zeros are no special case. Several reduced axes are first moved to the end and made one. */
void grad_prod(grad_ctx *c) {
  graph_type x = grad_type_of(c, c->in[0]), flat = {.dtype = x.dtype}, moved = x;
  uint32_t node = c->in[0], ct = c->ct;
  int count = __builtin_popcount(c->attr.axes), axis;
  op_attr order = {.n = x.rank}, back = {.n = x.rank};
  if (count == 0) {
    c->out[0] = c->ct;
    return;
  }
  if (count == 1) {
    axis = __builtin_ctz(c->attr.axes);
    ct = keep_axes(c, ct);
  } else {
    int at = 0;
    for (int reduced = 0; reduced < 2; reduced++)
      for (int i = 0; i < x.rank; i++)
        if ((int)(c->attr.axes >> i & 1) == reduced) order.d[at++] = i;
    qn_dim together = 1;
    for (int i = 0; i < x.rank; i++) {
      back.d[order.d[i]] = i;
      moved.shape[i] = x.shape[order.d[i]];
      if (i < x.rank - count)
        flat.shape[flat.rank++] = moved.shape[i];
      else
        together = dim_mul(dims_of(c), together, moved.shape[i]);
    }
    axis = flat.rank;
    flat.shape[flat.rank++] = together;
    node = grad_reshape_to(c, make1_attr(c, OP_permute, node, &order), &flat);
    graph_type kept = flat;
    kept.shape[axis] = 1;
    ct = grad_reshape_to(c, ct, &kept);
  }
  op_attr left = {.axes = (uint8_t)(1u << axis), .flags = ATTR_EXCLUSIVE}, right = left;
  right.flags |= ATTR_REVERSE;
  uint32_t others = make_smul(c, make1_attr(c, OP_cumprod, node, &left), make1_attr(c, OP_cumprod, node, &right));
  uint32_t out = make_smul(c, ct, others);
  if (count > 1 && out) out = make1_attr(c, OP_permute, grad_reshape_to(c, out, &moved), &back);
  c->out[0] = out;
}

/* All elements that equal the extremum get equal shares of the cotangent, computed in f32 for f16 and bf16. */
void grad_max(grad_ctx *c) {
  qn_dtype d = (qn_dtype)c->type.dtype, wide = dtype_compute(d);
  uint32_t taken = make2(c, OP_eq, c->in[0], keep_axes(c, c->node));
  op_attr attr = {.axes = c->attr.axes, .keepdims = 1};
  uint32_t count = make1_attr(c, OP_sum, grad_cast_to(c, taken, wide), &attr);
  uint32_t share = make2(c, OP_div, grad_cast_to(c, keep_axes(c, c->ct), wide), count);
  c->out[0] = make3(c, OP_where, taken, grad_cast_to(c, share, d), make_number(c, 0));
}

/* The attributes of a slice that takes all of an array; callers change some axes. */
static op_attr whole_slice(const graph_type *x) {
  op_attr a = {.n = (uint8_t)(3 * x->rank)};
  for (int i = 0; i < x->rank; i++) {
    a.d[3 * i + 1] = x->shape[i];
    a.d[3 * i + 2] = 1;
  }
  return a;
}

/* ---- scans ------------------------------------------------------------------------------------------------------------ */

/* The attributes of a scan in the opposite direction. */
static op_attr reversed(const grad_ctx *c) {
  op_attr attr = c->attr;
  attr.flags ^= ATTR_REVERSE;
  return attr;
}

void grad_cumsum(grad_ctx *c) {
  op_attr attr = reversed(c);
  c->out[0] = make1_attr(c, OP_cumsum, c->ct, &attr);
}

/* x shifted by one element along the scan's axis, in its direction or `against` it; a 0 moves in. */
static uint32_t moved_by_one(grad_ctx *c, uint32_t x, bool against) {
  graph_type t = grad_type_of(c, x);
  int axis = __builtin_ctz(c->attr.axes);
  bool up = against == ((c->attr.flags & ATTR_REVERSE) != 0);
  op_attr pad = {.n = (uint8_t)(3 * t.rank)}, slice = whole_slice(&t);
  pad.d[3 * axis + (up ? 0 : 1)] = 1;
  slice.d[3 * axis] = up ? 0 : 1;
  const uint32_t in[] = {x, make_number(c, 0)};
  return make1_attr(c, OP_slice, graph_op(c->g, OP_pad, in, 2, &pad, c->site), &slice);
}

static uint32_t recurrence(grad_ctx *c, uint32_t by, uint32_t plus, uint8_t flags) {
  op_attr attr = {.axes = c->attr.axes, .flags = flags};
  const uint32_t in[] = {by, plus};
  return graph_op(c->g, OP_recurrence, in, 2, &attr, c->site);
}

/* Element j is a factor of every y[i] from i = j on: the derivative of y[i] is the product of the elements before j times that of the
 * elements from j + 1 to i. The sum over i, times ct[i], is a recurrence that runs backwards: S[j] = ct[j] + x[j + 1] S[j + 1]. There is
 * no division, so zeros are no special case, not in second derivatives either, and it takes time linear in the length. */
void grad_cumprod(grad_ctx *c) {
  uint8_t back = (c->attr.flags ^ ATTR_REVERSE) & ATTR_REVERSE;
  bool exclusive = c->attr.flags & ATTR_EXCLUSIVE;
  op_attr before = c->attr;
  before.flags |= ATTR_EXCLUSIVE;
  uint32_t s = recurrence(c, c->in[0], c->ct, exclusive ? back : back | ATTR_EXCLUSIVE);
  if (exclusive) s = moved_by_one(c, s, true);
  c->out[0] = make_smul(c, exclusive ? c->node : make1_attr(c, OP_cumprod, c->in[0], &before), s);
}

/* s[i] = a[i] s[i - 1] + b[i]. The cotangent of b is a recurrence in the opposite direction, whose coefficient at each element is the
 * one that led from there to the next; the cotangent of a[i] is that of b[i] times s[i - 1]. */
void grad_recurrence(grad_ctx *c) {
  uint8_t turned = c->attr.flags ^ (ATTR_REVERSE | ATTR_EXCLUSIVE);
  bool exclusive = c->attr.flags & ATTR_EXCLUSIVE;
  uint32_t t = recurrence(c, c->in[0], c->ct, turned);
  c->out[1] = t;
  if (!grad_wants(c, 0)) return;
  c->out[0] =
      exclusive ? make_smul(c, moved_by_one(c, t, true), c->node) : make_smul(c, t, moved_by_one(c, c->node, false));
}

/* cummax and cummin. The cotangent of each result goes to the element that the running extremum came from, among equal ones the last in
 * the direction of the scan. Its position is a running maximum over the positions where x equals the running extremum (a running
 * minimum where the scan runs from the end). */
void grad_cummax(grad_ctx *c) {
  graph_type x = grad_type_of(c, c->in[0]);
  bool reverse = c->attr.flags & ATTR_REVERSE;
  op_attr inclusive = c->attr, scan = c->attr, where = {.dtype = DTYPE_INDEX, .axes = c->attr.axes, .n = x.rank};
  inclusive.flags &= (uint8_t)~ATTR_EXCLUSIVE;
  memcpy(where.d, x.shape, x.rank * sizeof *where.d);
  uint32_t extremum = c->attr.flags & ATTR_EXCLUSIVE ? make1_attr(c, c->op, c->in[0], &inclusive) : c->node;
  uint32_t position = graph_op(c->g, OP_iota, NULL, 0, &where, c->site);
  if (reverse) position = make1(c, OP_neg, position);
  uint32_t nowhere = graph_const_scalar(c->g, DTYPE_INDEX, false, 0, -((int64_t)1 << 62), c->site);
  uint32_t start = graph_const_scalar(c->g, DTYPE_INDEX, false, 0, 0, c->site);
  position = make3(c, OP_where, make2(c, OP_eq, c->in[0], extremum), position, nowhere);
  position = make1_attr(c, OP_cummax, position, &scan);
  uint32_t known = make2(c, OP_gt, position, nowhere); /* false before the first such element, and after a NaN */
  if (reverse) position = make1(c, OP_neg, position);
  position = make3(c, OP_where, known, position, start);
  uint32_t in[] = {grad_full(c, &x, 0), position, make3(c, OP_where, known, c->ct, make_number(c, 0))};
  op_attr add = {.axes = c->attr.axes, .flags = ATTR_PROVEN};
  c->out[0] = graph_op(c->g, OP_gather_add, in, 3, &add, c->site);
}

/* ---- views ---------------------------------------------------------------------------------------------------------------- */

void grad_reshape(grad_ctx *c) {
  graph_type x = grad_type_of(c, c->in[0]);
  c->out[0] = grad_reshape_to(c, c->ct, &x);
}

void grad_broadcast(grad_ctx *c) { c->out[0] = c->ct; }

static uint32_t permute(grad_ctx *c, uint32_t node, const int *order, int rank) {
  op_attr attr = {.n = (uint8_t)rank};
  for (int i = 0; i < rank; i++) attr.d[i] = order[i];
  return make1_attr(c, OP_permute, node, &attr);
}

void grad_permute(grad_ctx *c) {
  int order[ARRAY_MAX_RANK];
  for (int i = 0; i < c->type.rank; i++) order[c->attr.d[i]] = i;
  c->out[0] = permute(c, c->ct, order, c->type.rank);
}

/* Reverses a node along the axes of a mask. */
static uint32_t flip(grad_ctx *c, uint32_t node, unsigned axes) {
  graph_type t = grad_type_of(c, node);
  op_attr attr = whole_slice(&t);
  for (int i = 0; i < t.rank; i++) {
    if (!(axes >> i & 1)) continue;
    attr.d[3 * i] = dim_sub(dims_of(c), t.shape[i], 1);
    attr.d[3 * i + 2] = -1;
  }
  return make1_attr(c, OP_slice, node, &attr);
}

/* Pads the cotangent to the operand's shape: each element goes where the slice took it from, zeros elsewhere. */
void grad_slice(grad_ctx *c) {
  graph_type x = grad_type_of(c, c->in[0]);
  dim_table *t = dims_of(c);
  op_attr pad = {.n = (uint8_t)(3 * x.rank)};
  uint32_t ct = c->ct;
  unsigned backwards = 0;
  for (int i = 0; i < x.rank; i++) {
    qn_dim start = c->attr.d[3 * i], size = c->attr.d[3 * i + 1], step = c->attr.d[3 * i + 2];
    qn_dim stride = step < 0 ? -step : step;
    if (size == 0) { /* the slice is empty, and so is the cotangent */
      c->out[0] = grad_full(c, &x, 0);
      return;
    }
    if (stride != 1 && dim_is_number(t, size)) { /* (that a padded one has the size of x cannot be seen) */
      c->out[0] = graph_op(c->g, OP_slice_put, (uint32_t[]){grad_full(c, &x, 0), c->ct}, 2, &c->attr, c->site);
      return;
    }
    qn_dim extent = stride == 1 ? size : dim_add(t, dim_mul(t, dim_sub(t, size, 1), stride), 1);
    if (size < 0 && stride != 1) extent = dim_make(t, DIM_MAX, extent, 0);
    if (step < 0) {
      backwards |= 1u << i;
      start = dim_add(t, dim_sub(t, start, extent), 1);
    }
    pad.d[3 * i] = start;
    pad.d[3 * i + 1] = dim_sub(t, dim_sub(t, x.shape[i], start), extent);
    pad.d[3 * i + 2] = stride - 1;
  }
  if (backwards) ct = flip(c, ct, backwards);
  const uint32_t in[] = {ct, make_number(c, 0)};
  c->out[0] = graph_op(c->g, OP_pad, in, 2, &pad, c->site);
}

/* The gradient of window adds element k of each window to where it came from. For windows of at most WINDOW_UNROLLED elements it is a
 * sum of padded slices, one for each k, otherwise one gather_add at computed positions. f16 and bf16 are added in f32. */
enum { WINDOW_UNROLLED = 32 };

static uint32_t window_slices(grad_ctx *c, const graph_type *x, uint32_t ct, int axis) {
  dim_table *t = dims_of(c);
  int64_t size = c->attr.d[0], step = c->attr.d[1], apart = c->attr.d[2];
  graph_type part = grad_type_of(c, ct);
  qn_dim extent = dim_add(t, dim_mul(t, dim_sub(t, part.shape[axis], 1), step), 1);
  uint32_t sum = 0;
  op_attr one = whole_slice(&part);
  part.rank--;
  one.d[3 * part.rank + 1] = 1;
  for (int64_t k = 0; k < size; k++) {
    op_attr pad = {.n = (uint8_t)(3 * part.rank)};
    one.d[3 * part.rank] = k;
    pad.d[3 * axis] = k * apart;
    pad.d[3 * axis + 1] = dim_sub(t, dim_sub(t, x->shape[axis], k * apart), extent);
    pad.d[3 * axis + 2] = step - 1;
    const uint32_t in[] = {grad_reshape_to(c, make1_attr(c, OP_slice, ct, &one), &part),
                           graph_const_scalar(c->g, (qn_dtype)part.dtype, false, 0, 0, c->site)};
    uint32_t padded = graph_op(c->g, OP_pad, in, 2, &pad, c->site);
    sum = k ? make2(c, OP_add, sum, padded) : padded;
  }
  return sum;
}

/* The gradient of long windows: the windows' elements one after the other in place of the axis, added at the positions that they came
 * from. */
static uint32_t window_places(grad_ctx *c, const graph_type *x, uint32_t ct, int axis) {
  graph_type rows = grad_type_of(c, ct), places = {.dtype = DTYPE_INDEX, .rank = 2}, column;
  qn_dim windows = rows.shape[axis], all = dim_mul(dims_of(c), windows, c->attr.d[0]);
  int order[ARRAY_MAX_RANK], last = rows.rank - 1;
  for (int i = 0, from = 0; i < rows.rank; i++) order[i] = i == axis + 1 ? last : from++;
  ct = permute(c, ct, order, rows.rank);
  rows = *x;
  rows.dtype = grad_type_of(c, ct).dtype;
  rows.shape[axis] = all;
  places.shape[0] = windows;
  places.shape[1] = c->attr.d[0];
  uint32_t at[2];
  for (int i = 0; i < 2; i++) {
    op_attr number = {.dtype = DTYPE_INDEX, .axes = (uint8_t)(1 << i), .n = 2, .d = {places.shape[0], places.shape[1]}};
    uint32_t step = graph_const_scalar(c->g, DTYPE_INDEX, false, 0, c->attr.d[1 + i], c->site);
    at[i] = make2(c, OP_mul, graph_op(c->g, OP_iota, NULL, 0, &number, c->site), step);
  }
  column = (graph_type){.dtype = DTYPE_INDEX, .rank = x->rank};
  for (int i = 0; i < x->rank; i++) column.shape[i] = i == axis ? all : 1;
  uint32_t place = grad_view(c, OP_broadcast, grad_reshape_to(c, make2(c, OP_add, at[0], at[1]), &column), &rows);
  graph_type wide = *x;
  wide.dtype = rows.dtype;
  uint32_t in[] = {grad_full(c, &wide, 0), place, grad_reshape_to(c, ct, &rows)};
  op_attr add = {.axes = c->attr.axes, .flags = ATTR_PROVEN};
  return graph_op(c->g, OP_gather_add, in, 3, &add, c->site);
}

void grad_window(grad_ctx *c) {
  graph_type x = grad_type_of(c, c->in[0]);
  qn_dtype d = (qn_dtype)x.dtype;
  int axis = __builtin_ctz(c->attr.axes);
  uint32_t ct = grad_cast_to(c, c->ct, dtype_compute(d));
  if (!ct) return;
  uint32_t sum = c->attr.d[0] <= WINDOW_UNROLLED ? window_slices(c, &x, ct, axis) : window_places(c, &x, ct, axis);
  c->out[0] = grad_cast_to(c, sum, d);
}

void grad_pad(grad_ctx *c) {
  graph_type x = grad_type_of(c, c->in[0]), inside = x;
  op_attr slice = whole_slice(&x);
  for (int i = 0; i < x.rank; i++) {
    slice.d[3 * i] = c->attr.d[3 * i];
    slice.d[3 * i + 2] += c->attr.d[3 * i + 2];
  }
  if (grad_wants(c, 0)) c->out[0] = make1_attr(c, OP_slice, c->ct, &slice);
  if (grad_wants(c, 1)) { /* the cotangent of the number that was filled in: the sum over all filled elements */
    inside.dtype = DTYPE_TEST;
    const uint32_t in[] = {grad_full(c, &inside, 0), graph_const_scalar(c->g, DTYPE_TEST, false, 1, 1, c->site)};
    uint32_t added = graph_op(c->g, OP_pad, in, 2, &c->attr, c->site);
    c->out[1] = make3(c, OP_where, added, c->ct, make_number(c, 0)); /* grad.c sums over it */
  }
}

void grad_concat(grad_ctx *c) {
  int axis = __builtin_ctz(c->attr.axes);
  qn_dim start = 0;
  for (int k = 0; k < c->nin; k++) {
    graph_type x = grad_type_of(c, c->in[k]);
    if (grad_wants(c, k)) {
      op_attr slice = whole_slice(&x);
      slice.d[3 * axis] = start;
      c->out[k] = make1_attr(c, OP_slice, c->ct, &slice);
    }
    start = dim_add(dims_of(c), start, x.shape[axis]);
  }
}

/* ---- indexing ------------------------------------------------------------------------------------------------------------- */

/* Appends index or scatter (`op`) on x with the k indices of the node at hand and, for scatter, value v and a mode. */
static uint32_t indexed(grad_ctx *c, op_id op, uint32_t x, int k, uint32_t v, scatter_mode mode) {
  uint32_t in[ARRAY_MAX_RANK + 2];
  op_attr attr = {.n = 1, .mode = (uint8_t)mode, .flags = ATTR_PROVEN, .d = {k}};
  in[0] = x;
  memcpy(in + 1, c->in + 1, (size_t)k * sizeof *in);
  in[1 + k] = v;
  return graph_op(c->g, op, in, 1 + k + (op == OP_scatter), &attr, c->site);
}

static uint32_t picked(grad_ctx *c, uint32_t x, int k) { return indexed(c, OP_index, x, k, 0, SCATTER_SET); }

/* Adds each cotangent to the place that it was taken from. Where that is one place the cotangent is stored, which keeps the signs of its zeros
 * as grad_slice does: whether a number that names a place is known (a slice) or an operand makes no difference. */
void grad_index(grad_ctx *c) {
  graph_type x = grad_type_of(c, c->in[0]);
  bool one = true;
  for (int i = 1; i < c->nin; i++) one &= grad_type_of(c, c->in[i]).rank == 0;
  c->out[0] = indexed(c, OP_scatter, grad_full(c, &x, 0), c->nin - 1, c->ct, one ? SCATTER_SET : SCATTER_ADD);
}

/* A bool array that says which of the values stored by a scatter are still there afterwards: the last one stored to each place. It
 * broadcasts over the values, whose shape all together is that of `values`. Returns 0 where there is only one value. */
static uint32_t last_stored(grad_ctx *c, int k, const graph_type *values) {
  graph_type x = grad_type_of(c, c->in[0]), places = {.dtype = DTYPE_INDEX, .rank = (uint8_t)k},
             shape = {.dtype = DTYPE_INDEX};
  shape.rank = (uint8_t)(values->rank - (x.rank - k));
  if (shape.rank == 0) return 0;
  memcpy(places.shape, x.shape, (size_t)k * sizeof *x.shape);
  memcpy(shape.shape, values->shape, shape.rank * sizeof *shape.shape);
  op_attr count = {.dtype = DTYPE_INDEX, .axes = 1, .n = 1, .d = {graph_elements(c->g, &shape)}};
  uint32_t number = grad_reshape_to(c, graph_op(c->g, OP_iota, NULL, 0, &count, c->site), &shape);
  uint32_t stored = indexed(c, OP_scatter, grad_full(c, &places, 0), k, number, SCATTER_SET);
  uint32_t stays = make2(c, OP_eq, picked(c, stored, k), number);
  shape.rank = values->rank;
  for (int i = values->rank - (x.rank - k); i < shape.rank; i++) shape.shape[i] = 1;
  return grad_reshape_to(c, stays, &shape);
}

static void scatter_set(grad_ctx *c, int k, uint32_t none) {
  if (grad_wants(c, 0)) c->out[0] = indexed(c, OP_scatter, c->ct, k, none, SCATTER_SET);
  if (grad_wants(c, k + 1)) {
    uint32_t ct = picked(c, c->ct, k);
    if (!ct) return;
    graph_type values = grad_type_of(c, ct);
    uint32_t stays = last_stored(c, k, &values);
    c->out[k + 1] = stays ? make3(c, OP_where, stays, ct, none) : ct;
  }
}

/* The derivative of a product at a place by value v is y / v where v is not 0 and, where v is the only 0 at its place, the product of
 * the others. This is right everywhere; its own derivatives are right where at most one value at a place is 0. */
static void scatter_mul(grad_ctx *c, int k, uint32_t none) {
  graph_type x = grad_type_of(c, c->in[0]), counts = x;
  uint32_t v = c->in[k + 1];
  if (grad_wants(c, 0)) c->out[0] = make_smul(c, c->ct, indexed(c, OP_scatter, grad_full(c, &x, 1), k, v, SCATTER_MUL));
  if (!grad_wants(c, k + 1)) return;
  counts.dtype = DTYPE_INDEX;
  uint32_t zero = make2(c, OP_eq, v, none), safe = make3(c, OP_where, zero, make_number(c, 1), v);
  uint32_t zeros = indexed(c, OP_scatter, grad_full(c, &counts, 0), k, grad_cast_to(c, zero, DTYPE_INDEX), SCATTER_ADD);
  uint32_t nonzero = indexed(c, OP_scatter, c->in[0], k, safe, SCATTER_MUL);
  uint32_t one = graph_const_scalar(c->g, DTYPE_INDEX, false, 0, 1, c->site);
  uint32_t single = make3(c, OP_where, make2(c, OP_eq, picked(c, zeros, k), one), picked(c, nonzero, k), none);
  uint32_t others = make3(c, OP_where, zero, single, make2(c, OP_div, picked(c, c->node, k), safe));
  c->out[k + 1] = make_smul(c, picked(c, c->ct, k), others);
}

/* The old element and all values that equal the extremum get equal shares of the cotangent. */
static void scatter_extremum(grad_ctx *c, int k, uint32_t none) {
  qn_dtype d = (qn_dtype)c->type.dtype, wide = dtype_compute(d);
  uint32_t old = make2(c, OP_eq, c->in[0], c->node), new = make2(c, OP_eq, c->in[k + 1], picked(c, c->node, k));
  uint32_t count = indexed(c, OP_scatter, grad_cast_to(c, old, wide), k, grad_cast_to(c, new, wide), SCATTER_ADD);
  uint32_t share = grad_cast_to(c, make2(c, OP_div, grad_cast_to(c, c->ct, wide), count), d);
  if (grad_wants(c, 0)) c->out[0] = make3(c, OP_where, old, share, none);
  if (grad_wants(c, k + 1)) c->out[k + 1] = make3(c, OP_where, new, picked(c, share, k), none);
}

void grad_scatter(grad_ctx *c) {
  int k = c->nin - 2;
  uint32_t none = make_number(c, 0);
  switch ((scatter_mode)c->attr.mode) {
  case SCATTER_SET: scatter_set(c, k, none); break;
  case SCATTER_ADD:
    c->out[0] = c->ct;
    if (grad_wants(c, k + 1)) c->out[k + 1] = picked(c, c->ct, k);
    break;
  case SCATTER_MUL: scatter_mul(c, k, none); break;
  case SCATTER_MIN:
  case SCATTER_MAX: scatter_extremum(c, k, none); break;
  }
}

static uint32_t gather_back(grad_ctx *c, uint32_t index) {
  graph_type x = grad_type_of(c, c->in[0]);
  const uint32_t in[] = {grad_full(c, &x, 0), index, c->ct};
  op_attr attr = {.axes = c->attr.axes, .flags = ATTR_PROVEN};
  return graph_op(c->g, OP_gather_add, in, 3, &attr, c->site);
}

void grad_gather(grad_ctx *c) { c->out[0] = gather_back(c, c->in[1]); }

void grad_gather_add(grad_ctx *c) {
  c->out[0] = c->ct;
  if (!grad_wants(c, 2)) return;
  const uint32_t in[] = {c->ct, c->in[1]};
  op_attr attr = {.axes = c->attr.axes, .flags = ATTR_PROVEN};
  c->out[2] = graph_op(c->g, OP_gather, in, 2, &attr, c->site);
}

void grad_slice_put(grad_ctx *c) {
  const uint32_t in[] = {c->ct, make_number(c, 0)};
  if (grad_wants(c, 0)) c->out[0] = graph_op(c->g, OP_slice_put, in, 2, &c->attr, c->site);
  if (grad_wants(c, 1)) c->out[1] = make1_attr(c, OP_slice, c->ct, &c->attr);
}

/* Scatters the cotangent to the coordinates where the mask is true. nonzero finds as many as compress did, so its size is the same
 * symbol. */
void grad_compress(grad_ctx *c) {
  graph_type x = grad_type_of(c, c->in[0]), mask = grad_type_of(c, c->in[1]);
  graph_type rows = {.dtype = DTYPE_INDEX, .rank = 2, .shape = {c->type.shape[0], mask.rank}}, column = {.rank = 1};
  uint32_t in[ARRAY_MAX_RANK + 2] = {grad_full(c, &x, 0)};
  uint32_t where = graph_node_raw(c->g, OP_nonzero, &c->in[1], 1, NULL, rows, c->site);
  column.shape[0] = c->type.shape[0];
  for (int i = 0; i < mask.rank; i++) {
    op_attr slice = {.n = 6, .d = {0, c->type.shape[0], 1, i, 1, 1}};
    in[1 + i] = grad_reshape_to(c, make1_attr(c, OP_slice, where, &slice), &column);
  }
  in[1 + mask.rank] = c->ct;
  op_attr attr = {.n = 1, .mode = SCATTER_ADD, .flags = ATTR_PROVEN, .d = {mask.rank}};
  c->out[0] = graph_op(c->g, OP_scatter, in, mask.rank + 2, &attr, c->site);
}

/* ---- dot -------------------------------------------------------------------------------------------------------------------- */

/* The node with its last two axes swapped. */
static uint32_t swapped(grad_ctx *c, uint32_t node) {
  if (!node) return 0;
  int order[ARRAY_MAX_RANK], rank = grad_type_of(c, node).rank;
  for (int i = 0; i < rank; i++) order[i] = i;
  order[rank - 2] = rank - 1;
  order[rank - 1] = rank - 2;
  return permute(c, node, order, rank);
}

/* Reshapes a node to a matrix: all axes but the last become one or, with `keep_first`, all axes but the first. */
static uint32_t as_matrix(grad_ctx *c, uint32_t node, bool keep_first) {
  if (!node) return 0;
  graph_type t = grad_type_of(c, node), m = {.dtype = t.dtype, .rank = 2};
  qn_dim rest = 1;
  int from = keep_first ? 1 : 0, to = keep_first ? t.rank : t.rank - 1;
  for (int i = from; i < to; i++) rest = dim_mul(dims_of(c), rest, t.shape[i]);
  m.shape[0] = keep_first ? t.shape[0] : rest;
  m.shape[1] = keep_first ? rest : t.shape[t.rank - 1];
  return grad_reshape_to(c, node, &m);
}

/* For x[.., m, k] @ y[.., k, n] the cotangents are ct @ y' and x' @ ct, summed over batch axes that were broadcast. Where an operand
 * has no batch axes at all, this sum becomes part of the contraction: one product of matrices instead of a batch of products. */
void grad_dot(grad_ctx *c) {
  graph_type x = grad_type_of(c, c->in[0]), y = grad_type_of(c, c->in[1]);
  graph_type x2 = x, y2 = y, full = c->type;
  if (x.rank == 1) x2 = (graph_type){.dtype = x.dtype, .rank = 2, .shape = {1, x.shape[0]}};
  if (y.rank == 1) y2 = (graph_type){.dtype = y.dtype, .rank = 2, .shape = {y.shape[0], 1}};
  if (x.rank == 1 || y.rank == 1) {
    int batch = c->type.rank - (x.rank > 1) - (y.rank > 1);
    full.rank = (uint8_t)(batch + 2);
    full.shape[batch] = x2.shape[x2.rank - 2];
    full.shape[batch + 1] = y2.shape[y2.rank - 1];
  }
  uint32_t a = grad_reshape_to(c, c->in[0], &x2), b = grad_reshape_to(c, c->in[1], &y2),
           ct = grad_reshape_to(c, c->ct, &full);
  if (!a || !b || !ct) return;
  if (grad_wants(c, 0)) {
    uint32_t out;
    if (x2.rank == 2 && full.rank > 2) { /* [m, batch n] @ [batch n, k] */
      int order[ARRAY_MAX_RANK];
      order[0] = full.rank - 2;
      for (int i = 1; i < full.rank - 1; i++) order[i] = i - 1;
      order[full.rank - 1] = full.rank - 1;
      out = make2(c, OP_dot, as_matrix(c, permute(c, ct, order, full.rank), true), as_matrix(c, swapped(c, b), false));
    } else {
      out = grad_unbroadcast(c, make2(c, OP_dot, ct, swapped(c, b)), &x2);
    }
    c->out[0] = grad_reshape_to(c, out, &x);
  }
  if (grad_wants(c, 1)) {
    uint32_t out;
    if (y2.rank == 2 && full.rank > 2) /* [k, batch m] @ [batch m, n] */
      out = make2(c, OP_dot, swapped(c, as_matrix(c, a, false)), as_matrix(c, ct, false));
    else
      out = grad_unbroadcast(c, make2(c, OP_dot, swapped(c, a), ct), &y2);
    c->out[1] = grad_reshape_to(c, out, &y);
  }
}

/* ---- library ------------------------------------------------------------------------------------------------------------------- */

void grad_sort(grad_ctx *c) { c->out[0] = gather_back(c, make1_attr(c, OP_argsort, c->in[0], &c->attr)); }
