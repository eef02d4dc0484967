/* Ranges of integers (ranges.h). From constants on, forward through sums, products, remainders; the number of a loop that counts lies between
 * the first one and the end that its test names. An index whose range lies within the axis needs no check, and neither does a sum that cannot
 * leave 64 bits.
 *
 * A loop counts by carry k if the body makes it from its own carry k by adding a constant c, and the test holds only if the carry is below (or, for
 * c < 0, above) an end: it is that comparison, or an `and` of it and other conditions. In the body the carry is then at least what it was
 * first, and below the end's largest value. Behind the loop it is what it was at the last test.
 *
 * What a condition says narrows ranges, too: in the arm of a branch that it chooses, and of what a loop's test says in its body. So in `if j > 0 and
 * x[j - 1] > v` neither the difference nor the index needs a check. */
#include <stdlib.h>

#include "jit/graph/ranges.h"

enum { ELEMENTS = 4096 /* of a constant array that are looked at */, DEEP = 64 /* regions within regions */ };

typedef struct range {
  bool known;
  int64_t low, high;
} range;

static range one(int64_t x) { return (range){true, x, x}; }

static range constant(const graph_node *n) {
  if (!dtype_is_int((qn_dtype)n->type.dtype)) return (range){0};
  int64_t size = 1;
  for (int a = 0; a < n->type.rank; a++) {
    if (n->type.shape[a] < 0 || n->type.shape[a] > ELEMENTS) return (range){0};
    size *= n->type.shape[a];
    if (size > ELEMENTS) return (range){0};
  }
  range r = {0};
  size_t each = dtype_size((qn_dtype)n->type.dtype);
  for (int64_t i = 0; i < size; i++) {
    int64_t x = dtype_load((qn_dtype)n->type.dtype, (const char *)n->payload.data + (size_t)i * each).u.i;
    if (x < 0 && !dtype_is_signed((qn_dtype)n->type.dtype)) return (range){0}; /* an u64 beyond i64 */
    r = i ? (range){true, x < r.low ? x : r.low, x > r.high ? x : r.high} : one(x);
  }
  return r;
}

static range add(range x, range y) {
  range r = {x.known && y.known, 0, 0};
  if (r.known)
    r.known = !__builtin_add_overflow(x.low, y.low, &r.low) && !__builtin_add_overflow(x.high, y.high, &r.high);
  return r;
}

static range minus(range x) {
  if (!x.known || x.low == INT64_MIN) return (range){0};
  return (range){true, -x.high, -x.low};
}

static range times(range x, range y) {
  range r = {0};
  if (!x.known || !y.known) return r;
  const int64_t a[2] = {x.low, x.high}, b[2] = {y.low, y.high};
  for (int i = 0; i < 4; i++) {
    int64_t z;
    if (__builtin_mul_overflow(a[i & 1], b[i >> 1], &z)) return (range){0};
    r = i ? (range){true, z < r.low ? z : r.low, z > r.high ? z : r.high} : one(z);
  }
  return r;
}

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && a < 0); }

static range lesser(range x, range y, bool larger) {
  if (!x.known || !y.known) return (range){0};
  if (larger) return (range){true, x.low > y.low ? x.low : y.low, x.high > y.high ? x.high : y.high};
  return (range){true, x.low < y.low ? x.low : y.low, x.high < y.high ? x.high : y.high};
}

/* The range of a host int, or of what `fit` makes of one. */
static range of_op(const graph_node *n, const range *r) {
  range x = r[n->in[0]], y = n->nin > 1 ? r[n->in[1]] : (range){0};
  bool positive = y.known && y.low == y.high && y.low > 0;
  if (n->op == OP_fit) return dtype_is_int((qn_dtype)n->type.dtype) ? x : (range){0};
  if (!n->type.weak || n->type.dtype != WEAK_INT) return (range){0};
  switch ((op_id)n->op) {
  case OP_add: return add(x, y);
  case OP_sub: return add(x, minus(y));
  case OP_neg: return minus(x);
  case OP_mul:
  case OP_smul: return times(x, y);
  case OP_minimum:
  case OP_maximum: return lesser(x, y, n->op == OP_maximum);
  case OP_mod: return positive ? (range){true, 0, y.low - 1} : (range){0};
  case OP_floordiv:
    return positive && x.known ? (range){true, floor_div(x.low, y.low), floor_div(x.high, y.low)} : (range){0};
  default: return (range){0};
  }
}

static bool within(range r, qn_dim size) { return r.known && size >= 0 && r.low >= -size && r.high < size; }

/* Is the check of node n, which indexes, known to hold? */
static bool indices_hold(const graph *g, const graph_node *n, const range *r) {
  const graph_type *x = &g->nodes[n->in[0]].type;
  if (n->op == OP_gather || n->op == OP_gather_add) return within(r[n->in[1]], x->shape[__builtin_ctz(n->attr->axes)]);
  if (n->op != OP_index && n->op != OP_scatter) return false;
  for (int i = 0; i < n->attr->d[0]; i++)
    if (!within(r[n->in[1 + i]], x->shape[i])) return false;
  return true;
}

/* Is result `index` of an arm a constant that is `yes`? */
static bool arm_gives(const graph *arm, uint32_t index, bool yes) {
  const graph_node *n = &arm->nodes[arm->outputs[index]];
  return n->kind == NODE_CONST && dtype_is_bool(n->type.dtype) && n->type.rank == 0 &&
         (*(const uint8_t *)n->payload.data != 0) == yes;
}

/* If `test`, a node of a header, holds only as long as carry k is below (up) or above an end: where that lies. */
static range end_of(const graph *header, const range *r, uint32_t test, uint32_t k, bool up, int left) {
  const graph_node *n = &header->nodes[test];
  if (left == 0) return (range){0};
  if (n->kind == NODE_PROJ && header->nodes[n->in[0]].kind == NODE_IF) { /* `a and b` */
    const graph_node *branch = &header->nodes[n->in[0]];
    if (!arm_gives(branch->payload.regions[1], n->payload.index, false)) return (range){0};
    return end_of(header, r, branch->in[0], k, up, left - 1);
  }
  if (n->kind != NODE_OP) return (range){0};
  if (n->op == OP_bitand) {
    range x = end_of(header, r, n->in[0], k, up, left - 1);
    return x.known ? x : end_of(header, r, n->in[1], k, up, left - 1);
  }
  uint32_t carry = header->inputs[k];
  if (n->nin != 2 || !(n->in[0] == carry || n->in[1] == carry)) return (range){0};
  bool turned = n->in[1] == carry;
  range end = r[n->in[!turned]];
  op_id below = turned ? OP_gt : OP_lt, most = turned ? OP_ge : OP_le;
  op_id above = turned ? OP_lt : OP_gt, least = turned ? OP_le : OP_ge;
  if (n->op == (up ? below : above)) return end;
  return n->op == (up ? most : least) ? add(end, one(up ? 1 : -1)) : (range){0};
}

static bool is_host_int(const graph_node *n) { return n->type.weak && n->type.dtype == WEAK_INT; }

static range narrowed(range x, int64_t low, int64_t high) {
  if (!x.known) x = (range){true, INT64_MIN, INT64_MAX};
  range r = {true, x.low > low ? x.low : low, x.high < high ? x.high : high};
  return r.low <= r.high ? r : x; /* (what never happens) */
}

/* The range of host int x, `is` so far, where node `test`, a condition, is `yes`. */
static range where_test(const graph *g, const range *r, uint32_t test, bool yes, uint32_t x, range is, int left) {
  const graph_node *n = &g->nodes[test];
  if (!left || !is_host_int(&g->nodes[x])) return is;
  if (n->kind == NODE_PROJ && g->nodes[n->in[0]].kind == NODE_IF) { /* `a and b`: false unless a holds */
    const graph_node *branch = &g->nodes[n->in[0]];
    bool only = arm_gives(branch->payload.regions[yes], n->payload.index, !yes);
    return only ? where_test(g, r, branch->in[0], yes, x, is, left - 1) : is;
  }
  if (n->kind != NODE_OP) return is;
  if (n->op == (yes ? OP_bitand : OP_bitor) && dtype_is_bool(n->type.dtype)) {
    is = where_test(g, r, n->in[0], yes, x, is, left - 1);
    return where_test(g, r, n->in[1], yes, x, is, left - 1);
  }
  if (n->op != OP_lt && n->op != OP_le && n->op != OP_gt && n->op != OP_ge) return is;
  uint32_t a = n->in[0], b = n->in[1];
  if ((a != x && b != x) || a == b || !is_host_int(&g->nodes[a]) || !is_host_int(&g->nodes[b])) return is;
  /* below: x lies below the other one, or is it, unless `apart` */
  bool less = n->op == OP_lt || n->op == OP_le, apart = (n->op == OP_lt || n->op == OP_gt) == yes;
  bool below = (less == (a == x)) == yes;
  range other = r[a == x ? b : a];
  if (!other.known || (below ? other.high == INT64_MIN : other.low == INT64_MAX)) return is;
  return below ? narrowed(is, INT64_MIN, other.high - apart) : narrowed(is, other.low + apart, INT64_MAX);
}

/* What is added to carry k in each turn; 0: it is no such carry. */
static int64_t step_of(const graph *body, uint32_t k) {
  const graph_node *n = &body->nodes[body->outputs[k]];
  if (n->kind != NODE_OP || (n->op != OP_add && n->op != OP_sub) || n->type.dtype != WEAK_INT || !n->type.weak)
    return 0;
  bool second = n->op == OP_add && n->in[1] == body->inputs[k];
  const graph_node *by = &body->nodes[n->in[!second]];
  if (n->in[second] != body->inputs[k] || by->kind != NODE_CONST) return 0;
  range c = constant(by);
  if (!c.known || c.low < -(1 << 30) || c.low > 1 << 30) return 0;
  return n->op == OP_add ? c.low : -c.low;
}

/* What is asked of a graph: to mark what cannot fail or, with `why`, whether its sizes fit. */
typedef struct question {
  const char **why;
} question;

static bool prove(graph *g, const range *in, int left, const question *q);

static range result_of_loop(const graph *g, const graph_node *proj, const range *r);

/* Works through the graph of a region and sets r[n] of its nodes. */
static void find_ranges(const graph *g, const range *in, range *r) {
  for (uint32_t n = 1; n < g->n; n++) {
    const graph_node *node = &g->nodes[n];
    if (node->kind == NODE_INPUT)
      r[n] = in ? in[node->payload.input] : (range){0};
    else if (node->kind == NODE_CONST)
      r[n] = constant(node);
    else if (node->kind == NODE_PROJ)
      r[n] = result_of_loop(g, node, r);
    else
      r[n] = node->kind == NODE_OP && node->nin ? of_op(node, r) : (range){0};
  }
}

/* Sets the ranges of a loop's carries in its body, and then those in its header; `in` has those of the operands. False when memory is short. */
static bool count(const graph_node *loop, range *in, range *header_in) {
  const graph *header = loop->payload.regions[0], *body = loop->payload.regions[1];
  range *r = calloc(header->n, sizeof *r);
  if (!r) return false;
  uint32_t n = graph_loop_carries(loop);
  for (uint32_t k = 0; k < loop->nin; k++) header_in[k] = k < n ? (range){0} : in[k];
  find_ranges(header, header_in, r);
  for (uint32_t k = 0; k < n; k++) {
    range first = in[k], mine = {0}, test = {0};
    int64_t step = step_of(body, k);
    range end = step ? end_of(header, r, header->outputs[0], k, step > 0, 8) : (range){0};
    if (step > 0 && first.known && end.known && first.low < end.high) {
      mine = (range){true, first.low, end.high - 1};
      test = (range){true, first.low, first.high > end.high ? first.high : end.high};
      test = lesser(test, add(test, one(step)), true);
      test.low = first.low;
    } else if (step < 0 && first.known && end.known && first.high > end.low) {
      mine = (range){true, end.low + 1, first.high};
      test = add(mine, one(step)); /* what a turn leaves */
      test.low = first.low < test.low ? first.low : test.low;
      test.high = first.high;
    } else if (body->outputs[k] == body->inputs[k]) {
      mine = test = first;
    }
    mine = where_test(header, r, header->outputs[0], true, header->inputs[k], mine, 8);
    in[k] = mine;
    header_in[k] = test;
  }
  free(r);
  return true;
}

/* The range of a result of a loop: a carry is what it was when the test failed. */
static range result_of_loop(const graph *g, const graph_node *proj, const range *r) {
  const graph_node *loop = &g->nodes[proj->in[0]];
  if (loop->kind != NODE_LOOP || !is_host_int(proj) || proj->payload.index >= graph_loop_carries(loop))
    return (range){0};
  range *in = calloc(2 * (size_t)loop->nin + 1, sizeof *in), is = {0};
  if (!in) return is; /* (nothing is proven by it) */
  for (uint32_t i = 0; i < loop->nin; i++) in[i] = r[loop->in[i]];
  if (count(loop, in, in + loop->nin)) is = in[loop->nin + proj->payload.index];
  free(in);
  return is;
}

static bool prove_regions(const graph *g, const graph_node *node, const range *r, int left, const question *q) {
  uint32_t nin = node->nin;
  range *in = calloc(2 * (size_t)nin + 1, sizeof *in), *header_in = in + nin;
  if (!in) return false;
  for (uint32_t i = 0; i < nin; i++) in[i] = r[node->in[i]];
  bool ok;
  if (node->kind == NODE_IF) {
    for (uint32_t i = 1; i < nin; i++) {
      range is = in[i];
      in[i] = where_test(g, r, node->in[0], true, node->in[i], is, 8);
      header_in[i] = where_test(g, r, node->in[0], false, node->in[i], is, 8);
    }
    ok = prove(node->payload.regions[0], in + 1, left, q) && prove(node->payload.regions[1], header_in + 1, left, q);
  } else
    ok = count(node, in, header_in) && prove(node->payload.regions[0], header_in, left, q) &&
         prove(node->payload.regions[1], in, left, q);
  free(in);
  return ok;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------------------------ */

static range range_of_size(const graph *g, qn_dim d, const range *r) {
  int64_t c;
  if (dim_is_const(&g->dims, d, &c)) return one(c);
  const dim_expr *e = &g->dims.exprs[~d];
  if (e->op == DIM_SYMBOL)
    return e->source == DIM_FROM_NUMBER   ? r[e->ref]
           : e->source == DIM_FROM_SCALAR ? r[g->inputs[e->ref]]
                                          : (range){true, 0, ARRAY_MAX_ELEMENTS};
  range a = range_of_size(g, e->a, r), b = range_of_size(g, e->b, r);
  bool positive = b.known && b.low == b.high && b.low > 0;
  switch ((dim_op)e->op) {
  case DIM_ADD: return add(a, b);
  case DIM_SUB: return add(a, minus(b));
  case DIM_MUL: return times(a, b);
  case DIM_MIN:
  case DIM_MAX: return lesser(a, b, e->op == DIM_MAX);
  case DIM_MOD: return positive ? (range){true, 0, b.low - 1} : (range){0};
  case DIM_FLOORDIV:
    return positive && a.known ? (range){true, floor_div(a.low, b.low), floor_div(a.high, b.low)} : (range){0};
  case DIM_SYMBOL: break;
  }
  return (range){0};
}

static bool not_below(graph *g, qn_dim d, int64_t least, const range *r) {
  range x = range_of_size(g, d, r);
  return x.known && x.low >= least;
}

/* Does node n fit, whatever numbers its sizes are? */
static bool sizes_fit(graph *g, const graph_node *n, const range *r) {
  dim_table *t = &g->dims;
  for (int a = 0; a < n->type.rank; a++)
    if (dim_is_number(t, n->type.shape[a]) && (n->kind == NODE_INPUT || !not_below(g, n->type.shape[a], 0, r)))
      return false; /* (nobody says that an operand has that size) */
  if (n->kind != NODE_OP || (n->op != OP_slice && n->op != OP_slice_put)) return true;
  const graph_type *x = &g->nodes[n->in[0]].type;
  for (int a = 0; a < x->rank; a++) {
    const qn_dim *d = &n->attr->d[3 * a];
    if (!dim_is_number(t, d[0]) && !dim_is_number(t, d[1]) && !dim_is_number(t, x->shape[a])) continue;
    qn_dim way = dim_make(t, DIM_MUL, dim_make(t, DIM_SUB, d[1], 1), dim_const(t, d[2]));
    qn_dim last = dim_make(t, DIM_ADD, d[0], way), left = dim_make(t, DIM_SUB, x->shape[a], d[2] > 0 ? last : d[0]);
    if (!not_below(g, d[0], 0, r) || !not_below(g, d[1], 0, r) || !not_below(g, left, d[2] > 0 ? 1 : 0, r) ||
        (d[2] < 0 && !not_below(g, last, 0, r)))
      return false;
  }
  return true;
}

static bool prove(graph *g, const range *in, int left, const question *q) {
  range *r = calloc(g->n, sizeof *r);
  if (!r) return false;
  find_ranges(g, in, r);
  bool ok = true;
  for (uint32_t n = 1; n < g->n && ok && q->why && g->dims.strict; n++) {
    ok = sizes_fit(g, &g->nodes[n], r);
    if (!ok) *q->why = "a loop takes parts of arrays that may leave them";
  }
  for (uint32_t n = 1; n < g->n && ok; n++) {
    const graph_node *node = &g->nodes[n];
    if (graph_kind_has_regions(node->kind)) {
      ok = left == 0 || prove_regions(g, node, r, left - 1, q);
    } else if (!q->why && node->kind == NODE_OP && graph_fallible(g, n)) {
      bool holds = host_ints_fail(node) ? r[n].known : indices_hold(g, node, r);
      if (node->op == OP_fit && node->type.dtype == WEAK_INT) holds = r[n].known;
      if (holds) ok = graph_node_prove(g, n);
    }
  }
  free(r);
  return ok;
}

bool ranges_prove(graph *g) { return prove(g, NULL, DEEP, &(question){NULL}); }

bool ranges_fit(const graph *g, const char **why) {
  *why = NULL;
  graph *copy = graph_copy(g); /* sizes are added to its table */
  bool ok = copy && prove(copy, NULL, DEEP, &(question){why});
  graph_free(copy);
  return ok;
}
