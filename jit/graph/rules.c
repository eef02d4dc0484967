/* The rewrite rules (rules.def), each a few lines: what it looks for, what it puts there. */
#include <math.h>

#include "jit/graph/folds.h"
#include "jit/graph/rewrite.h"

/* A reduction of at least REDUCE_MANY elements that would leave fewer than REDUCE_FEW_ROWS results after two folds is split. */
enum { REDUCE_FEW_ROWS = 4096, REDUCE_MANY = 1 << 18 };

/* ---- looking ------------------------------------------------------------------------------------------------------ */

static const graph_node *at(const rewriter *r, uint32_t node) { return &r->g->nodes[node]; }

/* The node if it is this op (and no mark of grad.c), else NULL. */
static const graph_node *is_op(const rewriter *r, uint32_t node, op_id op) {
  const graph_node *n = at(r, node);
  return n->kind == NODE_OP && n->op == op && !graph_node_anew(n) ? n : NULL;
}

/* Is the node a constant of one element with value f (a float; the sign of 0 counts) or i (an integer)? */
static bool is_number(const rewriter *r, uint32_t node, double f, int64_t i) {
  qn_value v;
  if (!graph_const_value(r->g, node, &v)) return false;
  if (value_is(v, TAG_FLOAT)) return v.u.f == f && signbit(v.u.f) == signbit(f);
  return v.u.i == i;
}

static bool is_float(const graph_node *n) { return dtype_is_float((qn_dtype)n->type.dtype); }

/* Can the node overflow? Host ints raise an error then, so rules must not add or remove a step of their arithmetic. */
static bool can_overflow(const graph_node *n) { return n->type.weak && !is_float(n); }

/* Broadcasts a node to the shape of n, unless it has that already. Returns 0 where its dtype is not n's. */
static uint32_t shaped(rewriter *r, const graph_node *n, uint32_t node) {
  const graph_type *t = &at(r, node)->type;
  if (graph_type_same(t, &n->type)) return node;
  if (t->dtype != n->type.dtype || t->weak != n->type.weak) return 0;
  return rewrite_view(r, OP_broadcast, node, n);
}

static uint32_t number(rewriter *r, const graph_node *n, double f, int64_t i) {
  uint32_t c = rewrite_number(r, &n->type, f, i, n->site);
  return c ? shaped(r, n, c) : 0;
}

static uint32_t binary(rewriter *r, const graph_node *n, op_id op, uint32_t a, uint32_t b) {
  const uint32_t in[] = {a, b};
  return rewrite_op(r, op, in, 2, NULL, n->site);
}

/* The other operand of a commutative op if one is this number, else 0. */
static uint32_t other_of_number(const rewriter *r, const graph_node *n, double f, int64_t i) {
  for (int k = 0; k < 2; k++)
    if (is_number(r, n->in[k], f, i)) return n->in[1 - k];
  return 0;
}

static uint32_t shaped_if(rewriter *r, const graph_node *n, uint32_t node) { return node ? shaped(r, n, node) : 0; }

/* ---- arithmetic --------------------------------------------------------------------------------------------------------- */

static uint32_t rule_add_zero(rewriter *r, const graph_node *n) {
  return shaped_if(r, n, other_of_number(r, n, -0.0, 0));
}
static uint32_t rule_add_plus_zero(rewriter *r, const graph_node *n) {
  return shaped_if(r, n, other_of_number(r, n, 0.0, 0));
}

static uint32_t rule_add_negative(rewriter *r, const graph_node *n) {
  for (int k = 1; k >= 0; k--) {
    const graph_node *negative = is_op(r, n->in[k], OP_neg);
    if (negative && !can_overflow(n)) return binary(r, n, OP_sub, n->in[1 - k], negative->in[0]);
  }
  return 0;
}

static uint32_t rule_sub_zero(rewriter *r, const graph_node *n) {
  return is_number(r, n->in[1], 0.0, 0) ? shaped(r, n, n->in[0]) : 0;
}

static uint32_t rule_sub_negative(rewriter *r, const graph_node *n) {
  const graph_node *negative = is_op(r, n->in[1], OP_neg);
  return negative && !can_overflow(n) ? binary(r, n, OP_add, n->in[0], negative->in[0]) : 0;
}

static uint32_t rule_sub_same(rewriter *r, const graph_node *n) {
  return n->in[0] == n->in[1] ? number(r, n, 0, 0) : 0;
}
static uint32_t rule_sub_same_int(rewriter *r, const graph_node *n) { return is_float(n) ? 0 : rule_sub_same(r, n); }

static uint32_t rule_mul_one(rewriter *r, const graph_node *n) {
  uint32_t x = other_of_number(r, n, 1, 1);
  if (x) return shaped(r, n, x);
  x = can_overflow(n) ? 0 : other_of_number(r, n, -1, -1);
  if (x) x = rewrite_op(r, OP_neg, &x, 1, NULL, n->site);
  return shaped_if(r, n, x);
}

static uint32_t rule_mul_zero(rewriter *r, const graph_node *n) {
  return other_of_number(r, n, 0.0, 0) || other_of_number(r, n, -0.0, 0) ? number(r, n, 0, 0) : 0;
}
static uint32_t rule_mul_zero_int(rewriter *r, const graph_node *n) { return is_float(n) ? 0 : rule_mul_zero(r, n); }

static uint32_t rule_mul_negatives(rewriter *r, const graph_node *n) {
  const graph_node *a = is_op(r, n->in[0], OP_neg), *b = is_op(r, n->in[1], OP_neg);
  return a && b && !can_overflow(n) ? binary(r, n, OP_mul, a->in[0], b->in[0]) : 0;
}

static uint32_t rule_div_one(rewriter *r, const graph_node *n) {
  return is_number(r, n->in[1], 1, 1) ? shaped(r, n, n->in[0]) : 0;
}

/* The divisor of a float division if it is constant and finite, else 0. */
static double divisor(const rewriter *r, const graph_node *n) {
  qn_value v;
  if (!graph_const_value(r->g, n->in[1], &v) || !value_is(v, TAG_FLOAT)) return 0;
  return v.u.f - v.u.f == 0 ? v.u.f : 0;
}

static uint32_t times_inverse(rewriter *r, const graph_node *n, double c) {
  return binary(r, n, OP_mul, n->in[0], rewrite_number(r, &at(r, n->in[1])->type, 1 / c, 0, n->site));
}

static uint32_t rule_div_power_of_two(rewriter *r, const graph_node *n) {
  double c = divisor(r, n);
  int exponent, most = dtype_bias(n->type.dtype) - 1;
  if (c == 0 || fabs(frexp(c, &exponent)) != 0.5) return 0;
  return exponent - 1 >= -most && exponent - 1 <= most ? times_inverse(r, n, c) : 0;
}

static uint32_t rule_div_constant(rewriter *r, const graph_node *n) {
  double c = divisor(r, n);
  return c != 0 && 1 / c - 1 / c == 0 ? times_inverse(r, n, c) : 0;
}

/* pow with these exponents is defined as this product (math.def). f16 and bf16 round after every op, so their cube stays a pow. */
static uint32_t rule_pow_small(rewriter *r, const graph_node *n) {
  uint32_t x = n->in[0];
  if (n->type.weak && !is_float(n)) return 0; /* the text of its overflow error names pow */
  if (is_number(r, n->in[1], 1, 1)) return shaped_if(r, n, x);
  if (is_number(r, n->in[1], 2, 2)) return shaped_if(r, n, binary(r, n, OP_mul, x, x));
  if (!is_float(n)) return 0;
  if (is_number(r, n->in[1], -1, -1)) {
    uint32_t one = rewrite_number(r, &at(r, x)->type, 1, 1, n->site);
    return one ? shaped_if(r, n, binary(r, n, OP_div, one, x)) : 0;
  }
  if (!is_number(r, n->in[1], 3, 3) || dtype_size((qn_dtype)n->type.dtype) == 2) return 0;
  uint32_t square = binary(r, n, OP_mul, x, x);
  return square ? shaped_if(r, n, binary(r, n, OP_mul, square, x)) : 0;
}

static uint32_t rule_neg_neg(rewriter *r, const graph_node *n) {
  const graph_node *x = is_op(r, n->in[0], OP_neg);
  return x && !can_overflow(n) ? x->in[0] : 0;
}

/* Not for unsigned integers, where -x is another number. */
static uint32_t rule_abs_sign(rewriter *r, const graph_node *n) {
  if (is_op(r, n->in[0], OP_abs)) return n->in[0];
  const graph_node *x = is_op(r, n->in[0], OP_neg);
  uint32_t inner = x && !can_overflow(n) && (is_float(n) || dtype_is_signed(n->type.dtype)) ? x->in[0] : 0;
  return inner ? rewrite_op(r, OP_abs, &inner, 1, NULL, n->site) : 0;
}

static uint32_t rule_same_operands(rewriter *r, const graph_node *n) {
  (void)r;
  return n->in[0] == n->in[1] ? n->in[0] : 0;
}

static uint32_t rule_round_again(rewriter *r, const graph_node *n) {
  uint32_t x = n->in[0];
  bool whole = is_op(r, x, OP_floor) || is_op(r, x, OP_ceil) || is_op(r, x, OP_round) || is_op(r, x, OP_trunc);
  return whole || !is_float(n) ? x : 0;
}

/* ---- bits and choices ------------------------------------------------------------------------------------------------------ */

static uint32_t rule_bitand_ones(rewriter *r, const graph_node *n) {
  int64_t ones = dtype_is_signed(n->type.dtype) ? -1 : (int64_t)dtype_max(n->type.dtype);
  return shaped_if(r, n, other_of_number(r, n, 0, ones));
}

static uint32_t rule_bitor_zero(rewriter *r, const graph_node *n) {
  return shaped_if(r, n, other_of_number(r, n, 0, 0));
}

static uint32_t rule_invert_invert(rewriter *r, const graph_node *n) {
  const graph_node *x = is_op(r, n->in[0], OP_invert);
  return x ? x->in[0] : 0;
}

static uint32_t rule_where_constant(rewriter *r, const graph_node *n) {
  qn_value v;
  return graph_const_value(r->g, n->in[0], &v) ? shaped(r, n, n->in[v.u.i ? 1 : 2]) : 0;
}

static uint32_t rule_where_same(rewriter *r, const graph_node *n) {
  return n->in[1] == n->in[2] ? shaped(r, n, n->in[1]) : 0;
}

static uint32_t choose(rewriter *r, const graph_node *n, uint32_t condition, uint32_t a, uint32_t b) {
  const uint32_t in[] = {condition, a, b};
  return shaped_if(r, n, rewrite_op(r, OP_where, in, 3, NULL, n->site));
}

static uint32_t rule_where_inverted(rewriter *r, const graph_node *n) {
  const graph_node *c = is_op(r, n->in[0], OP_invert);
  return c ? choose(r, n, c->in[0], n->in[2], n->in[1]) : 0;
}

static uint32_t rule_where_nested(rewriter *r, const graph_node *n) {
  const graph_node *a = is_op(r, n->in[1], OP_where), *b = is_op(r, n->in[2], OP_where);
  if (a && a->in[0] == n->in[0]) return choose(r, n, n->in[0], a->in[1], n->in[2]);
  if (b && b->in[0] == n->in[0]) return choose(r, n, n->in[0], n->in[1], b->in[2]);
  return 0;
}

/* ---- casts ------------------------------------------------------------------------------------------------------------------ */

static uint32_t rule_cast_same(rewriter *r, const graph_node *n) {
  return graph_type_same(&at(r, n->in[0])->type, &n->type) ? n->in[0] : 0;
}

static uint32_t rule_cast_exact(rewriter *r, const graph_node *n) {
  const graph_node *inner = is_op(r, n->in[0], OP_cast);
  if (!inner) return 0;
  uint32_t x = inner->in[0];
  qn_dtype from = (qn_dtype)at(r, x)->type.dtype, to = (qn_dtype)n->type.dtype;
  qn_dtype between = (qn_dtype)inner->type.dtype;
  if (!dtype_contains(between, from)) return 0;
  /* A cast from float to integer makes a check, which may be dropped only where it cannot fail. Between integers there is none. */
  if (dtype_is_float(between) && dtype_is_int(to) && !dtype_contains(to, from)) return 0;
  if (at(r, x)->type.weak && !n->type.weak && from == to) return 0; /* x is a host number but the node is an array */
  return rewrite_op(r, OP_cast, &x, 1, n->attr, n->site);
}

static uint32_t rule_fit_exact(rewriter *r, const graph_node *n) {
  const graph_node *inner = is_op(r, n->in[0], OP_cast);
  if (!inner || !inner->type.weak) return 0;
  uint32_t x = inner->in[0];
  const graph_type from = at(r, x)->type;
  qn_dtype to = (qn_dtype)n->type.dtype, between = (qn_dtype)inner->type.dtype;
  if (from.weak || from.rank || dtype_is_float((qn_dtype)from.dtype) != dtype_is_float(to)) return 0;
  if (!dtype_contains(between, (qn_dtype)from.dtype) || !dtype_contains(to, (qn_dtype)from.dtype)) return 0;
  const op_attr attr = {.dtype = (uint8_t)to};
  return shaped(r, n, rewrite_op(r, OP_cast, &x, 1, &attr, n->site));
}

/* ---- checks that cannot fail ---------------------------------------------------------------------------------------------------- */

/* Marks an integer op as unable to fail (ATTR_PROVEN) if its second operand is a constant in lo..hi, other than 0 unless `zero` says
 * that 0 is allowed. */
static uint32_t proven(rewriter *r, const graph_node *n, int64_t lo, int64_t hi, bool zero) {
  qn_value v;
  op_attr attr = graph_attr(n);
  if (is_float(n) || n->type.weak || (attr.flags & ATTR_PROVEN)) return 0;
  if (!graph_const_value(r->g, n->in[1], &v) || v.u.i < lo || v.u.i > hi || (v.u.i == 0 && !zero)) return 0;
  attr.flags |= ATTR_PROVEN;
  return rewrite_op(r, (op_id)n->op, n->in, n->nin, &attr, n->site);
}

static uint32_t rule_proven_divisor(rewriter *r, const graph_node *n) {
  return proven(r, n, INT64_MIN, INT64_MAX, false);
}
static uint32_t rule_proven_exponent(rewriter *r, const graph_node *n) { return proven(r, n, 0, INT64_MAX, true); }
static uint32_t rule_proven_shift(rewriter *r, const graph_node *n) {
  return proven(r, n, 0, 8 * (int64_t)dtype_size((qn_dtype)n->type.dtype) - 1, true);
}

/* ---- reductions ---------------------------------------------------------------------------------------------------------------------- */

static uint32_t reshaped(rewriter *r, const graph_node *n, uint32_t node) {
  return graph_type_same(&at(r, node)->type, &n->type) ? node : rewrite_view(r, OP_reshape, node, n);
}

static uint32_t rule_reduce_single(rewriter *r, const graph_node *n) {
  const graph_type *x = &at(r, n->in[0])->type;
  for (int i = 0; i < x->rank; i++)
    if ((n->attr->axes >> i & 1) && x->shape[i] != 1) return 0;
  return reshaped(r, n, n->in[0]);
}

/* The number of elements in the recorded call. */
static double elements_hint(const rewriter *r, const graph_type *t) {
  double n = 1;
  for (int i = 0; i < t->rank; i++) n *= (double)dim_hint(&r->g->dims, t->shape[i]);
  return n;
}

/* Splits a reduction over several axes into two nodes, where one nest of loops cannot do all folds, or where doing both would leave too
 * few rows to work on in parallel. Partial results have the dtype in which a sum is computed (f32 for f16). */
static uint32_t rule_reduce_in_turn(rewriter *r, const graph_node *n) {
  uint32_t x = n->in[0];
  graph_type t = at(r, x)->type, first = t;
  op_attr attr = graph_attr(n), now = {.axes = 0}, then = {.axes = 0};
  reduce_fold folds[ARRAY_MAX_RANK];
  int count = reduce_folds(&r->g->dims, &t, attr.axes, false, NULL, folds);
  int nest = reduce_nest(folds, count);
  if (nest == 2) {
    double rows = elements_hint(r, &t) / (double)dim_hint(&r->g->dims, folds[0].extent);
    double left = rows / (double)dim_hint(&r->g->dims, folds[1].extent);
    if (left < REDUCE_FEW_ROWS && elements_hint(r, &t) >= REDUCE_MANY) nest = 1;
  }
  if (nest == count) return 0;
  for (int f = 0; f < nest; f++)
    for (int i = 0; i < folds[f].n; i++) now.axes |= (uint8_t)(1 << folds[f].axes[i]);
  first.rank = 0;
  for (int a = 0; a < t.rank; a++) {
    if (now.axes >> a & 1) continue;
    if (attr.axes >> a & 1) then.axes |= (uint8_t)(1 << first.rank);
    first.shape[first.rank++] = t.shape[a];
  }
  qn_dtype d = (qn_dtype)n->type.dtype, partial = d;
  if (n->op == OP_sum || n->op == OP_prod) partial = dtype_compute(d);
  op_attr to = {.dtype = partial};
  if (t.dtype != partial) x = rewrite_op(r, OP_cast, &x, 1, &to, n->site);
  if (x) x = rewrite_op(r, (op_id)n->op, &x, 1, &now, n->site);
  if (x) x = rewrite_op(r, (op_id)n->op, &x, 1, &then, n->site);
  to.dtype = (uint8_t)d;
  if (x && partial != d) x = rewrite_op(r, OP_cast, &x, 1, &to, n->site);
  return x ? reshaped(r, n, x) : 0;
}

/* ---- views ------------------------------------------------------------------------------------------------------------------------------ */

static uint32_t rule_reshape_same(rewriter *r, const graph_node *n) { return rule_cast_same(r, n); }
static uint32_t rule_broadcast_same(rewriter *r, const graph_node *n) { return rule_cast_same(r, n); }

static uint32_t rule_reshape_reshape(rewriter *r, const graph_node *n) {
  const graph_node *inner = is_op(r, n->in[0], OP_reshape);
  return inner ? reshaped(r, n, inner->in[0]) : 0;
}

static uint32_t rule_broadcast_broadcast(rewriter *r, const graph_node *n) {
  const graph_node *inner = is_op(r, n->in[0], OP_broadcast);
  uint32_t x = inner ? inner->in[0] : 0;
  if (!x && (inner = is_op(r, n->in[0], OP_reshape))) {
    const graph_type *t = &at(r, inner->in[0])->type;
    int lead = inner->type.rank - t->rank;
    bool adds = lead > 0;
    for (int i = 0; i < inner->type.rank && adds; i++)
      adds = inner->type.shape[i] == (i < lead ? 1 : t->shape[i - lead]);
    if (adds) x = inner->in[0];
  }
  return x ? rewrite_op(r, OP_broadcast, &x, 1, n->attr, n->site) : 0;
}

static uint32_t rule_permute_same(rewriter *r, const graph_node *n) {
  (void)r;
  for (int i = 0; i < n->attr->n; i++)
    if (n->attr->d[i] != i) return 0;
  return n->in[0];
}

static uint32_t rule_permute_permute(rewriter *r, const graph_node *n) {
  const graph_node *inner = is_op(r, n->in[0], OP_permute);
  if (!inner) return 0;
  op_attr attr = {.n = n->attr->n};
  for (int i = 0; i < attr.n; i++) attr.d[i] = inner->attr->d[n->attr->d[i]];
  uint32_t x = inner->in[0];
  return rewrite_op(r, OP_permute, &x, 1, &attr, n->site);
}

static uint32_t rule_slice_whole(rewriter *r, const graph_node *n) {
  const graph_type *x = &at(r, n->in[0])->type;
  for (int i = 0; i < x->rank; i++)
    if (n->attr->d[3 * i] != 0 || n->attr->d[3 * i + 1] != x->shape[i] || n->attr->d[3 * i + 2] != 1) return 0;
  return n->in[0];
}

static uint32_t rule_slice_slice(rewriter *r, const graph_node *n) {
  const graph_node *inner = is_op(r, n->in[0], OP_slice);
  dim_table *t = &r->g->dims;
  if (!inner) return 0;
  op_attr attr = graph_attr(n);
  for (int i = 0; i < attr.n; i += 3) {
    const qn_dim *d = &inner->attr->d[i];
    int64_t step;
    if (__builtin_mul_overflow(attr.d[i + 2], d[2], &step)) return 0;
    qn_dim moved =
        d[2] >= 0 ? dim_add(t, d[0], dim_mul(t, attr.d[i], d[2])) : dim_sub(t, d[0], dim_mul(t, attr.d[i], -d[2]));
    if (moved < 0 && dim_hint(t, moved) < 0) return 0; /* an empty slice may start outside */
    attr.d[i] = moved;
    attr.d[i + 2] = step;
  }
  uint32_t x = inner->in[0];
  return rewrite_op(r, OP_slice, &x, 1, &attr, n->site);
}

/* Do two slices with steps of 1 lie apart in some axis? Entries of attributes. */
static bool lie_apart(dim_table *t, const qn_dim *a, const qn_dim *b, int n) {
  for (int i = 0; i < n; i += 3)
    if (dim_nonnegative(t, dim_sub(t, b[i], dim_add(t, a[i], a[i + 1]))) ||
        dim_nonnegative(t, dim_sub(t, a[i], dim_add(t, b[i], b[i + 1]))))
      return true;
  return false;
}

/* (A slice that no put has stored stays one of the last array: the one before would have to be kept for it.) */
static uint32_t rule_slice_stored(rewriter *r, const graph_node *n) {
  const qn_dim *d = n->attr->d;
  for (int i = 0; i < n->attr->n; i += 3)
    if (d[i + 2] != 1) return 0;
  for (uint32_t x = n->in[0];;) {
    const graph_node *put = is_op(r, x, OP_slice_put);
    if (!put) return 0;
    const qn_dim *to = put->attr->d;
    const uint32_t v = put->in[1];
    x = put->in[0];
    const graph_node *stored = &r->g->nodes[v];
    if (stored->kind == NODE_OP && op_rows[stored->op].klass == CLASS_VIEW)
      return 0; /* (what it is of is updated, perhaps) */
    if (!memcmp(to, d, n->attr->n * sizeof *d))
      return graph_type_same(&at(r, v)->type, &n->type) ? v : rewrite_view(r, OP_broadcast, v, n);
    for (int i = 0; i < n->attr->n; i += 3)
      if (to[i + 2] != 1) return 0;
    if (!lie_apart(&r->g->dims, d, to, n->attr->n)) return 0;
  }
}

static uint32_t rule_pad_nothing(rewriter *r, const graph_node *n) {
  (void)r;
  for (int i = 0; i < n->attr->n; i++)
    if (n->attr->d[i] != 0) return 0;
  return n->in[0];
}

static uint32_t rule_concat_one(rewriter *r, const graph_node *n) {
  (void)r;
  return n->nin == 1 ? n->in[0] : 0;
}

const rule_row rule_rows[] = {
#define RULE(op, name, bits, what) {OP_##op, bits, rule_##name, #name, what},
#include "jit/graph/rules.def"
#undef RULE
};
const int rule_count = sizeof rule_rows / sizeof *rule_rows;
