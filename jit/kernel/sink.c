/* Loops as kernels (sink.h): one NODE_LOOP, with all loops and branches in it, becomes values, carries and WHILEs of K.
 *
 * There are two kinds.
 *   one point     The loop computes with numbers: host numbers, and arrays of one element. It may read elements of larger arrays, and
 *                 arrays that it carries may be updated, an element at a time: they are copied to their result's buffer before the loop
 *                 and updated there. The kernel is one instance.
 *   many points   The carried arrays have one shape, and the loop's body is elementwise over it. Each element of that shape (a point) has
 *                 its own carries; numbers are the same for all points, and so is how often the loop runs.
 * What fits neither is refused and stays a loop of plans (jit/run/region_run.c).
 *
 * The nodes of a region are gone through in order, each once; what a node is in the kernel is a `sunk`. Arrays that do not lie in a value
 * are named by the buffer they lie in, and views of them are followed when an element is asked for. An array that is updated in place has
 * a version, which each update counts up: who would read an old version is refused.
 *
 * Branches. Both arms are computed, and a select chooses. Where that could be seen (checks, updates, inner loops) the arm's condition is
 * asked: `mask`.
 *
 * Errors. The interpreter stops at the first node that fails. `alive` becomes false there, and from then on nothing is checked, updated
 * or repeated any more. It is a carry of each loop around it.
 *
 * Numbers. Arithmetic of host numbers is that of jit/run/scalar.c: the same primitives as for arrays, but integers that do not fit 64 bits
 * are errors. */
#include "jit/kernel/sink.h"

#include <string.h>

#include "jit/kernel/lower_impl.h"
#include "lang/error.h"

enum { VALUES_MAX = 4096, NESTED_MAX = 24 };

typedef struct place place;

/* What a node of a region is in the kernel. */
typedef struct sunk {
  enum {
    SUNK_NONE,
    SUNK_VALUE, /* `value`: its element at the point at hand */
    SUNK_ARRAY, /* array number `array`, as it was at `version` */
    SUNK_VIEW   /* a view, node `node` of `in`, of an array */
  } is;
  k_val value;
  uint32_t array, version;
  uint32_t node;
  const place *in;
  graph_type type; /* with sizes of the outer graph */
} sunk;

/* An array in a buffer. */
typedef struct sunk_array {
  int buffer;
  bool carried; /* may it be updated? */
  uint32_t version;
} sunk_array;

/* A region while it is gone through. */
struct place {
  const graph *g;
  sunk *of;    /* by node */
  qn_dim *dim; /* by expression of g's dims: the size in the outer graph, if known[] */
  bool *known;
};

typedef struct sinker {
  lowering low; /* for the arithmetic of lower_ops.c: its graph, kernel and reason */
  const sink_request *r;
  k_kernel *k;
  arena memory;
  sunk_array *arrays; /* one for each operand of the loop */
  uint32_t narrays;
  k_val mask, alive; /* bools; 0: always true */
  int depth;
  /* of a loop with many points: their shape, and the coordinates of the point at hand */
  bool many;
  graph_type points;
  k_form at[ARRAY_MAX_RANK];
  k_mask axes;
} sinker;

static const char no_elements[] = "arrays of several elements are neither carried by element nor all of one shape";

static bool refuse(sinker *s, const char *why) {
  lower_refuse(&s->low, why);
  return false;
}

static bool out_of_memory(sinker *s) { return refuse(s, lower_no_memory); }

/* ---- sizes ---------------------------------------------------------------------------------------------------------------------- */

/* Sets *to to a size of a region as a size of the outer graph. */
static bool outer_size(sinker *s, place *p, qn_dim d, qn_dim *to) {
  *to = d;
  if (d >= 0) return true;
  uint32_t i = (uint32_t)~d;
  if (p->known[i]) {
    *to = p->dim[i];
    return true;
  }
  const dim_expr e = p->g->dims.exprs[i];
  if (e.op == DIM_SYMBOL) {
    const sunk *x = dim_of_node(e.source) ? NULL : &p->of[p->g->inputs[e.ref]];
    if (!x) return refuse(s, "a size that is found in the loop");
    if (e.source == DIM_FROM_SCALAR) {
      const k_node *n = &s->k->nodes[x->is == SUNK_VALUE ? x->value : 0];
      if (n->code != K_CONST || !dtype_is_int((qn_dtype)n->dtype))
        return refuse(s, "a size that is a number of the loop");
      *to = dim_const(&s->r->g->dims, (int64_t)n->imm);
    } else {
      *to = x->type.shape[e.axis];
    }
  } else {
    qn_dim a, b;
    if (!outer_size(s, p, e.a, &a) || !outer_size(s, p, e.b, &b)) return false;
    *to = dim_make(&s->r->g->dims, (dim_op)e.op, a, b);
  }
  p->known[i] = true;
  p->dim[i] = *to;
  return true;
}

static bool outer_type(sinker *s, place *p, const graph_type *t, graph_type *to) {
  *to = *t;
  for (int a = 0; a < t->rank; a++)
    if (!outer_size(s, p, t->shape[a], &to->shape[a])) return false;
  return true;
}

static bool is_one(const sinker *s, qn_dim d) {
  int64_t c;
  return dim_is_const(&s->r->g->dims, d, &c) && c == 1;
}

static bool one_element(const sinker *s, const graph_type *t) {
  for (int a = 0; a < t->rank; a++)
    if (!is_one(s, t->shape[a])) return false;
  return true;
}

static bool same_shape(const graph_type *a, const graph_type *b) {
  if (a->rank != b->rank) return false;
  for (int i = 0; i < a->rank; i++)
    if (a->shape[i] != b->shape[i]) return false;
  return true;
}

/* ---- elements -------------------------------------------------------------------------------------------------------------------- */

static k_form flat(sinker *s, const graph_type *t, const k_form *at) {
  k_form f = 0;
  for (int a = 0; a < t->rank; a++) f = k_plus(s->k, k_times(s->k, f, t->shape[a]), at[a]);
  return f;
}

/* Sets `at` to the coordinates in an array of this type of the point at hand, where it broadcasts to the points. */
static bool own_coordinates(sinker *s, const graph_type *t, k_form *at) {
  for (int a = 0; a < t->rank; a++) {
    int to = s->points.rank - t->rank + a;
    at[a] = 0;
    if (is_one(s, t->shape[a])) continue;
    if (!s->many || to < 0 || s->points.shape[to] != t->shape[a]) return refuse(s, no_elements);
    at[a] = s->at[to];
  }
  return true;
}

static k_val element(sinker *s, const sunk *x, const k_form *at, k_guard guard);

/* The element at coordinates `at` of a view of an array. */
static k_val view_element(sinker *s, const sunk *x, const k_form *at, k_guard guard) {
  place *p = (place *)(uintptr_t)x->in;
  const graph_node *n = &p->g->nodes[x->node];
  const sunk *of = &p->of[n->in[0]];
  k_kernel *k = s->k;
  op_attr attr = graph_attr(n);
  k_form own[ARRAY_MAX_RANK] = {0};
  int rank = x->type.rank, from = of->type.rank;
  qn_dim start;
  switch (n->op) {
  case OP_stop_gradient: memcpy(own, at, sizeof own); break;
  case OP_slice:
    for (int a = 0; a < rank; a++) {
      if (!outer_size(s, p, attr.d[3 * a], &start)) return 0;
      k_form step = k_times(k, at[a], dim_const(&s->r->g->dims, attr.d[3 * a + 2]));
      own[a] = k_plus(k, k_number(k, start), step);
    }
    break;
  case OP_permute:
    for (int a = 0; a < rank; a++) own[attr.d[a]] = at[a];
    break;
  case OP_broadcast:
    for (int a = 0; a < from; a++)
      if (!is_one(s, of->type.shape[a])) own[a] = at[rank - from + a];
    break;
  case OP_reshape: {
    k_form f = flat(s, &x->type, at);
    for (int a = from; a-- > 0;) {
      if (is_one(s, of->type.shape[a])) continue;
      bool first = true;
      for (int b = 0; b < a; b++) first &= is_one(s, of->type.shape[b]);
      own[a] = first ? f : k_mod(k, f, of->type.shape[a]);
      if (!first) f = k_div(k, f, of->type.shape[a]);
    }
    break;
  }
  default: return refuse(s, "a view of another kind");
  }
  return element(s, of, own, guard);
}

/* The element of an array or view at coordinates `at` where `guard` holds, else 0. */
static k_val element(sinker *s, const sunk *x, const k_form *at, k_guard guard) {
  if (x->is == SUNK_VIEW) return view_element(s, x, at, guard);
  if (x->is == SUNK_VALUE) {
    if (one_element(s, &x->type)) return x->value;
    return refuse(s, "an array that is carried by element is read at other elements");
  }
  const sunk_array *a = &s->arrays[x->array];
  if (a->version != x->version) return refuse(s, "an array is read after it has been updated");
  k_val zero = guard ? k_const(s->k, (qn_dtype)x->type.dtype, 0) : 0;
  return k_load(s->k, a->buffer, flat(s, &x->type, at), guard, zero);
}

/* The element of x at the point at hand. */
static k_val value_of(sinker *s, const sunk *x) {
  k_form at[ARRAY_MAX_RANK];
  if (s->low.why || !own_coordinates(s, &x->type, at)) return 0;
  return x->is == SUNK_VALUE ? x->value : element(s, x, at, 0);
}

static bool is_value(sunk *to, k_val v) {
  to->is = SUNK_VALUE;
  to->value = v;
  return v != 0;
}

/* ---- conditions and checks ------------------------------------------------------------------------------------------------------ */

static k_val test(sinker *s, kop_id op, k_val a, k_val b) { return k_op(s->k, op, DTYPE_TEST, a, b, 0); }
static k_val both(sinker *s, k_val a, k_val b) { return !a ? b : !b ? a : test(s, KOP_and, a, b); }
static k_val not_(sinker *s, k_val a) { return k_op(s->k, KOP_not, DTYPE_TEST, a, 0, 0); }
/* Does what the nodes at hand do count? 0: always. */
static k_val active(sinker *s) { return both(s, s->mask, s->alive); }

/* Node n of a region fails unless `ok`. */
static bool check(sinker *s, k_val ok, int id) {
  if (!ok) return false;
  const k_node *c = &s->k->nodes[ok];
  if (c->code == K_CONST && c->imm) return true;
  if (s->k->nodes[ok].axes) return refuse(s, "elements of arrays that may fail");
  k_val now = active(s);
  if (now) ok = test(s, KOP_or, ok, not_(s, now));
  const graph_node *loop = &s->r->g->nodes[s->r->node];
  int number = k_check_add(s->k, (l_check){.id = id, .site = loop->site, .node = s->r->node});
  if (number < 0 || !k_check(s->k, number, ok, 0, 0, 0)) return out_of_memory(s);
  s->alive = both(s, s->alive, ok);
  return true;
}

static k_val int_const(sinker *s, int64_t x) { return k_const_i(s->k, WEAK_INT, x); }
static k_val int_op(sinker *s, kop_id op, k_val a, k_val b) { return k_op(s->k, op, WEAK_INT, a, b, 0); }

/* The condition that an op of host ints with result r fits 64 bits. */
static k_val int_fits(sinker *s, op_id op, k_val a, k_val b, k_val r) {
  k_kernel *k = s->k;
  k_val zero = int_const(s, 0), x, y;
  switch (op) {
  case OP_add:
  case OP_sub: /* the sign of the result is wrong if a and b (for sub: not b) have another one both */
    x = int_op(s, KOP_xor, a, op == OP_add ? r : b);
    y = int_op(s, KOP_xor, op == OP_add ? b : a, r);
    return test(s, KOP_ge, int_op(s, KOP_and, x, y), zero);
  case OP_mul:
  case OP_smul: { /* the high half of the product is all sign */
    k_val ua = k_op(k, KOP_bitcast, QN_u64, a, 0, 0), ub = k_op(k, KOP_bitcast, QN_u64, b, 0, 0);
    k_val high = k_op(k, KOP_bitcast, WEAK_INT, k_op(k, KOP_mulhi, QN_u64, ua, ub, 0), 0, 0), top = int_const(s, 63);
    high = int_op(s, KOP_sub, high, int_op(s, KOP_and, int_op(s, KOP_shr, a, top), b));
    high = int_op(s, KOP_sub, high, int_op(s, KOP_and, int_op(s, KOP_shr, b, top), a));
    return test(s, KOP_eq, high, int_op(s, KOP_shr, r, top));
  }
  case OP_neg:
  case OP_abs: return test(s, KOP_ne, a, int_const(s, INT64_MIN));
  case OP_floordiv:
    if (k->nodes[b].code == K_CONST && (int64_t)k->nodes[b].imm != -1) return k_const_i(k, DTYPE_TEST, 1);
    return test(s, KOP_or, test(s, KOP_ne, a, int_const(s, INT64_MIN)), test(s, KOP_ne, b, int_const(s, -1)));
  case OP_shl: return test(s, KOP_eq, int_op(s, KOP_shr, r, b), a);
  default: return k_const_i(k, DTYPE_TEST, 1);
  }
}

/* The condition that a host number fits a dtype (dtype_holds). */
static k_val number_fits(sinker *s, k_val x, qn_dtype to) {
  k_kernel *k = s->k;
  qn_dtype from = (qn_dtype)k->nodes[x].dtype;
  bool wide_enough = dtype_is_int(from) && dtype_is_float(to) && dtype_holds(to, value_int(INT64_MIN));
  if (dtype_is_bool(from) || wide_enough) return k_const_i(k, DTYPE_TEST, 1);
  if (dtype_is_float(to)) {
    k_val wide = k_cast(k, x, DTYPE_WIDE), there = k_cast(k, k_cast(k, wide, to), DTYPE_WIDE);
    k_val odd = not_(s, k_math(k, MATH_isfinite, DTYPE_TEST, wide, 0, 0));
    return test(s, KOP_or, odd, k_math(k, MATH_isfinite, DTYPE_TEST, there, 0, 0));
  }
  if (dtype_is_float(from)) return refuse(s, "a float that must fit an integer type");
  k_val low = test(s, KOP_ge, x, int_const(s, dtype_min(to)));
  if (dtype_max(to) > INT64_MAX) return low;
  return both(s, low, test(s, KOP_le, x, int_const(s, (int64_t)dtype_max(to))));
}

/* Is v, the divisor of an integer division, a constant other than 0? */
static bool nonzero(const sinker *s, op_id op, k_val v) {
  return op_rows[op].raises == RAISES_int_div && s->k->nodes[v].code == K_CONST && s->k->nodes[v].imm != 0;
}

/* ---- ops -------------------------------------------------------------------------------------------------------------------------- */

/* The value of elementwise node n, which may fail if `fails`, of these operands. 0: it is refused. */
static k_val arithmetic(sinker *s, const graph_node *n, bool fails, const k_val *in) {
  k_val shows;
  op_id op = (op_id)n->op;
  qn_dtype type = (qn_dtype)n->type.dtype;
  bool ints = n->type.weak && type == WEAK_INT;
  k_val v = lower_pointwise(&s->low, op, type, in, n->nin);
  if (!v) return 0;
  if (fails && op == OP_fit) {
    if (!check(s, number_fits(s, in[0], type), E_weak_range)) return 0;
  } else if (fails && op_rows[op].raises != RAISES_never) {
    if (ints && op == OP_pow) return lower_refuse(&s->low, "powers of host ints");
    l_check c = {0};
    k_val ok =
        nonzero(s, op, in[1]) ? k_const_i(s->k, DTYPE_TEST, 1) : lower_succeeds(&s->low, op, type, in, &shows, &c);
    if (!check(s, ok, c.id)) return 0;
  }
  if (fails && ints && n->op != OP_cast && n->op != OP_fit && !check(s, int_fits(s, op, in[0], in[1], v), E_overflow))
    return 0;
  return v;
}

static bool pointwise(sinker *s, place *p, const graph_node *n, sunk *to) {
  k_val in[3] = {0};
  for (int i = 0; i < n->nin && i < 3; i++)
    if (!(in[i] = value_of(s, &p->of[n->in[i]]))) return false;
  return is_value(to, arithmetic(s, n, graph_node_fallible(p->g, n), in));
}

bool sink_number(const sink_request *r, const graph *g, const graph_node *n, k_kernel *k, const k_val *in, k_val *to,
                 const char **why) {
  sinker s = {.r = r, .k = k, .low = {.g = r->g, .k = k}};
  if (op_rows[n->op].klass != CLASS_POINTWISE)
    lower_refuse(&s.low, "an op that is not elementwise");
  else
    *to = arithmetic(&s, n, graph_node_fallible(g, n), in);
  if (!s.low.why && !k->failed && *to) return true;
  *why = k->failed || !s.low.why ? lower_no_memory : s.low.why;
  return false;
}

/* A view of a value is that value, if it has the same element at each point. */
static bool view(sinker *s, place *p, uint32_t node, sunk *to) {
  const graph_node *n = &p->g->nodes[node];
  const sunk *x = &p->of[n->in[0]];
  if (x->is != SUNK_VALUE) {
    to->is = SUNK_VIEW;
    to->node = node;
    to->in = p;
    /* an element is read at once, so that the array may change afterwards */
    return !one_element(s, &to->type) || is_value(to, value_of(s, to));
  }
  bool same = n->op == OP_stop_gradient || one_element(s, &x->type);
  if (n->op == OP_broadcast || n->op == OP_reshape) { /* are the sizes the same, aligned at the right, but for ones? */
    bool fits = true;
    for (int a = 1; a <= x->type.rank; a++) {
      qn_dim size = x->type.shape[x->type.rank - a];
      fits &= is_one(s, size) || (a <= to->type.rank && to->type.shape[to->type.rank - a] == size);
    }
    for (int a = 1; a <= to->type.rank && n->op == OP_reshape; a++) {
      qn_dim size = to->type.shape[to->type.rank - a];
      fits &= is_one(s, size) || (a <= x->type.rank && x->type.shape[x->type.rank - a] == size);
    }
    same |= fits;
  }
  return same ? is_value(to, x->value) : refuse(s, "a view of an array that is carried by element");
}

/* Coordinates that index operands 1 .. count select on the first axes of x, and *in_range: 0, or the condition that they are in range. */
static bool indices(sinker *s, place *p, const graph_node *n, int count, k_form *at, k_val *in_range) {
  const sunk *x = &p->of[n->in[0]];
  *in_range = 0;
  for (int i = 0; i < count; i++) {
    const sunk *index = &p->of[n->in[1 + i]];
    k_val ok, v = one_element(s, &index->type) ? value_of(s, index) : refuse(s, "an array of indices"), c;
    if (!v || !(c = lower_index(&s->low, v, x->type.shape[i], &ok))) return false;
    at[i] = k_value_form(s->k, c);
    if (!graph_node_fallible(p->g, n)) { /* in this arm, if it is one: both are computed */
      *in_range = both(s, *in_range, s->mask);
      continue;
    }
    *in_range = both(s, *in_range, ok);
    if (!check(s, ok, E_index)) return false;
  }
  return true;
}

static bool index_(sinker *s, place *p, const graph_node *n, sunk *to) {
  const sunk *x = &p->of[n->in[0]];
  int count = (int)n->attr->d[0], rank = to->type.rank;
  k_form at[ARRAY_MAX_RANK] = {0}, own[ARRAY_MAX_RANK] = {0};
  k_val in_range;
  if (!indices(s, p, n, count, at, &in_range) || !own_coordinates(s, &to->type, own)) return false;
  int behind = x->type.rank - count; /* axes that are not indexed are the result's last ones */
  for (int a = 0; a < behind; a++) at[count + a] = own[rank - behind + a];
  return is_value(to, element(s, x, at, k_guard_where(s->k, 0, in_range)));
}

/* Stores v, or what it makes with the old element, at `at` of a carried array: node n is that array. */
static bool update(sinker *s, const sunk *x, const k_form *at, k_val in_range, int mode, k_val v, sunk *to) {
  static const kop_id combine[] = {
      [SCATTER_ADD] = KOP_add, [SCATTER_MUL] = KOP_mul, [SCATTER_MIN] = KOP_min, [SCATTER_MAX] = KOP_max};
  k_kernel *k = s->k;
  if (x->is != SUNK_ARRAY || !s->arrays[x->array].carried)
    return refuse(s, "an update of an array that is not carried");
  sunk_array *a = &s->arrays[x->array];
  if (a->version != x->version) return refuse(s, "an array is updated after it has been updated");
  k_guard guard = k_guard_where(k, 0, both(s, active(s), in_range));
  v = k_cast(k, v, (qn_dtype)x->type.dtype);
  if (mode != SCATTER_SET) {
    k_val old = element(s, x, at, guard);
    kop_id op = combine[mode];
    if (dtype_is_bool(x->type.dtype) && op == KOP_add) op = KOP_max;
    if (dtype_is_bool(x->type.dtype) && op == KOP_mul) op = KOP_min;
    old = lower_widen(&s->low, old);
    v = lower_widen(&s->low, v);
    if (!old || !v) return false;
    v = k_cast(k, k_op(k, op, (qn_dtype)k->nodes[old].dtype, old, v, 0), (qn_dtype)x->type.dtype);
  }
  if (!k_store(k, a->buffer, flat(s, &x->type, at), guard, v, 0)) return out_of_memory(s);
  to->is = SUNK_ARRAY;
  to->array = x->array;
  to->version = ++a->version;
  return true;
}

static bool scatter(sinker *s, place *p, const graph_node *n, sunk *to) {
  const sunk *x = &p->of[n->in[0]], *v = &p->of[n->in[n->nin - 1]];
  int count = (int)n->attr->d[0];
  k_form at[ARRAY_MAX_RANK] = {0};
  k_val in_range;
  for (int a = count; a < x->type.rank; a++)
    if (!is_one(s, x->type.shape[a])) return refuse(s, "an update of several elements");
  if (!one_element(s, &v->type)) return refuse(s, "an update by several elements");
  if (!indices(s, p, n, count, at, &in_range)) return false;
  k_val value = value_of(s, v);
  return value && update(s, x, at, in_range, n->attr->mode, value, to);
}

static bool slice_put(sinker *s, place *p, const graph_node *n, sunk *to) {
  const sunk *x = &p->of[n->in[0]], *v = &p->of[n->in[1]];
  op_attr attr = graph_attr(n);
  k_form at[ARRAY_MAX_RANK] = {0};
  qn_dim start, size;
  for (int a = 0; a < x->type.rank; a++) {
    if (!outer_size(s, p, attr.d[3 * a], &start) || !outer_size(s, p, attr.d[3 * a + 1], &size)) return false;
    if (!is_one(s, size)) return refuse(s, "an update of several elements");
    at[a] = k_number(s->k, start);
  }
  k_val value = value_of(s, v);
  return value && update(s, x, at, 0, SCATTER_SET, value, to);
}

static bool random_(sinker *s, place *p, const graph_node *n, sunk *to) {
  k_val keys[3];
  k_form at[ARRAY_MAX_RANK];
  for (int i = 0; i < 3; i++) {
    const sunk *x = &p->of[n->in[i]];
    if (!one_element(s, &x->type)) return refuse(s, "random numbers of several keys");
    if (!(keys[i] = value_of(s, x))) return false;
  }
  if (!own_coordinates(s, &to->type, at)) return false;
  int64_t size;
  bool small = dim_is_const(&s->r->g->dims, graph_elements(s->r->g, &to->type), &size) && size <= (int64_t)1 << 32;
  return is_value(to,
                  lower_random(&s->low, (op_id)n->op, (qn_dtype)n->type.dtype, flat(s, &to->type, at), small, keys));
}

static bool iota(sinker *s, const graph_node *n, sunk *to) {
  k_form at[ARRAY_MAX_RANK];
  qn_dtype d = (qn_dtype)n->type.dtype;
  if (!own_coordinates(s, &to->type, at)) return false;
  k_form f = n->type.rank ? at[__builtin_ctz(n->attr->axes)] : 0;
  return is_value(to, dtype_is_int(d) ? k_iota(s->k, d, f) : k_cast(s->k, k_iota(s->k, DTYPE_INDEX, f), d));
}

static bool sink_op(sinker *s, place *p, uint32_t node, sunk *to) {
  const graph_node *n = &p->g->nodes[node];
  switch ((op_class)op_rows[n->op].klass) {
  case CLASS_POINTWISE: return n->op == OP_stop_gradient ? view(s, p, node, to) : pointwise(s, p, n, to);
  case CLASS_RANDOM: return random_(s, p, n, to);
  default: break;
  }
  switch (n->op) {
  case OP_reshape:
  case OP_broadcast:
  case OP_permute:
  case OP_slice: return view(s, p, node, to);
  case OP_index: return index_(s, p, n, to);
  case OP_scatter: return scatter(s, p, n, to);
  case OP_slice_put: return slice_put(s, p, n, to);
  case OP_iota: return iota(s, n, to);
  default: break;
  }
  if (op_rows[n->op].klass == CLASS_REDUCE) return refuse(s, "a reduction in the loop");
  return refuse(s, "an op that is not elementwise");
}

/* ---- regions ---------------------------------------------------------------------------------------------------------------------- */

static bool sink_node(sinker *s, place *p, uint32_t n);

/* Goes through region g, whose inputs are given, and sets out[k] to its results. */
static bool sink_region(sinker *s, const graph *g, const sunk *in, sunk *out) {
  place *p = arena_alloc(&s->memory, sizeof *p);
  if (!p) return out_of_memory(s);
  *p = (place){.g = g};
  p->of = arena_alloc(&s->memory, g->n * sizeof *p->of);
  p->dim = arena_alloc(&s->memory, (g->dims.n + 1) * sizeof *p->dim);
  p->known = arena_alloc(&s->memory, g->dims.n + 1);
  if (!p->of || !p->dim || !p->known) return out_of_memory(s);
  for (uint32_t i = 0; i < g->ninputs; i++) p->of[g->inputs[i]] = in[i];
  for (uint32_t n = 1; n < g->n; n++) {
    /* (behind a check of sizes that has failed there may be no elements to load) */
    if (g->dims.strict && graph_is_check(g, n)) return refuse(s, "what follows relies on a check of sizes");
    if (g->nodes[n].kind != NODE_INPUT && !sink_node(s, p, n)) return false;
  }
  for (uint32_t k = 0; k < g->noutputs; k++) out[k] = p->of[g->outputs[k]];
  return true;
}

/* x as what a carry or a result of a branch can be: a value, or an array that is up to date. */
static bool settle(sinker *s, sunk *x) {
  if (x->is == SUNK_ARRAY && !one_element(s, &x->type) && !s->many) {
    if (s->arrays[x->array].version == x->version) return true;
    return refuse(s, "an array is needed as it was before an update");
  }
  return is_value(x, value_of(s, x));
}

/* The axes along which a value of this type varies, if it is carried. */
static bool carry_axes(sinker *s, const graph_type *t, k_mask *axes) {
  *axes = one_element(s, t) ? 0 : s->axes;
  return one_element(s, t) || same_shape(t, &s->points) ||
         refuse(s, "a carried array has another shape than the others");
}

/* Sinks a loop with operands `in`. Sets out[k] to its carries at the end and, if `turns` is not NULL, *turns to their number. */
static bool sink_loop(sinker *s, const graph_node *node, sunk *in, sunk *out, k_val *turns) {
  k_kernel *k = s->k;
  const graph *header = node->payload.regions[0], *body = node->payload.regions[1];
  uint32_t carries = graph_loop_carries(node);
  if (body->noutputs != carries) return refuse(s, "the loop keeps rows");
  if (s->depth == NESTED_MAX) return refuse(s, "loops and branches nest too deep");
  k_val *carry = arena_alloc(&s->memory, (carries + 1u) * sizeof *carry);
  sunk *now = arena_alloc(&s->memory, (node->nin + 1u) * sizeof *now);
  if (!carry || !now) return out_of_memory(s);
  for (uint32_t i = 0; i < carries; i++) {
    if (!settle(s, &in[i])) return false;
    if (in[i].is == SUNK_ARRAY)
      in[i].version = ++s->arrays[in[i].array].version; /* another operand that is the array is not it */
  }
  sunk go;
  if (!sink_region(s, header, in, &go)) return false;
  k_val on = value_of(s, &go), fails = 0, count = 0;
  if (!on) return false;
  if (k->nodes[on].axes) return refuse(s, "each element runs for its own number of turns");
  on = k_carry(k, both(s, on, active(s)), 0);
  bool fallible = graph_regions_fallible(node);
  if (fallible) fails = k_carry(k, s->alive ? s->alive : k_const_i(k, DTYPE_TEST, 1), 0);
  if (turns) count = k_carry(k, int_const(s, 0), 0);
  memcpy(now, in, node->nin * sizeof *now);
  for (uint32_t i = 0; i < carries; i++) {
    k_mask axes;
    if (in[i].is == SUNK_ARRAY) continue;
    if (!carry_axes(s, &in[i].type, &axes)) return false;
    if (!(carry[i] = k_carry(k, in[i].value, axes))) return out_of_memory(s);
    now[i].value = carry[i];
  }
  if (!k_while(k, on)) return out_of_memory(s);
  k_val mask = s->mask;
  s->mask = 0;
  if (fallible) s->alive = fails;
  s->depth++;
  if (!sink_region(s, body, now, out)) return false;
  for (uint32_t i = 0; i < carries; i++) {
    if (!settle(s, &out[i])) return false;
    if (out[i].is != now[i].is || (out[i].is == SUNK_ARRAY && out[i].array != now[i].array))
      return refuse(s, "carried arrays change places");
    if (out[i].is == SUNK_VALUE && !same_shape(&out[i].type, &in[i].type) &&
        !(one_element(s, &out[i].type) && one_element(s, &in[i].type)))
      return refuse(s, "a carried array changes its shape");
    out[i].type = in[i].type;
    now[i] = out[i];
  }
  if (!sink_region(s, header, now, &go)) return false;
  s->depth--;
  k_val again = value_of(s, &go);
  if (!again || k->nodes[again].axes) return refuse(s, "each element runs for its own number of turns");
  again = both(s, again, fallible ? s->alive : 0);
  k_val next = turns ? int_op(s, KOP_add, count, int_const(s, 1)) : 0;
  bool ok = true;
  for (uint32_t i = 0; i < carries; i++)
    if (carry[i]) {
      ok = ok && k_set(k, carry[i], out[i].value);
      out[i].value = carry[i];
    }
  ok = ok && (!turns || k_set(k, count, next)) && (!fallible || k_set(k, fails, s->alive)) && k_set(k, on, again) &&
       k_end(k);
  if (fallible) s->alive = fails;
  if (turns) *turns = count;
  s->mask = mask;
  return ok || out_of_memory(s);
}

/* Makes x, a result of the first arm of a branch, the branch's: that of the arm which is taken. */
static bool join(sinker *s, k_val yes, sunk *x, sunk *y) {
  if (!settle(s, y)) return false;
  if (x->is == SUNK_ARRAY || y->is == SUNK_ARRAY) {
    if (x->is == y->is && x->array == y->array) return true;
    return refuse(s, "a branch gives one array or another");
  }
  bool ones = one_element(s, &x->type) && one_element(s, &y->type);
  if (!ones && !same_shape(&x->type, &y->type)) return refuse(s, "arms give arrays of different shapes");
  if (one_element(s, &x->type)) x->type = y->type;
  return is_value(x, k_op(s->k, KOP_select, (qn_dtype)y->type.dtype, yes, x->value, y->value));
}

static bool sink_if(sinker *s, const graph_node *node, sunk *in, sunk *out) {
  const graph *const *arms = (const graph *const *)node->payload.regions;
  uint32_t n = arms[0]->noutputs;
  sunk *other = arena_alloc(&s->memory, (n + 1u) * sizeof *other);
  if (!other) return out_of_memory(s);
  if (s->depth == NESTED_MAX) return refuse(s, "loops and branches nest too deep");
  k_val yes = value_of(s, &in[0]), mask = s->mask;
  if (!yes) return false;
  if (s->k->nodes[yes].axes) return refuse(s, "a branch on each element");
  s->depth++;
  s->mask = both(s, mask, yes);
  if (!sink_region(s, arms[0], in + 1, out)) return false;
  for (uint32_t i = 0; i < n; i++)
    if (!settle(s, &out[i])) return false;
  for (int i = 1; i < node->nin; i++) /* for the other arm, arrays that this one has updated are as they were */
    if (in[i].is == SUNK_ARRAY) in[i].version = s->arrays[in[i].array].version;
  s->mask = both(s, mask, not_(s, yes));
  if (!sink_region(s, arms[1], in + 1, other)) return false;
  s->depth--;
  s->mask = mask;
  for (uint32_t i = 0; i < n; i++)
    if (!join(s, yes, &out[i], &other[i])) return false;
  return true;
}

/* Sinks a branch or loop within a region; its results are kept for the nodes that take them. */
static bool sink_inner(sinker *s, place *p, uint32_t n) {
  const graph_node *node = &p->g->nodes[n];
  uint32_t results = graph_nresults(node);
  sunk *in = arena_alloc(&s->memory, (node->nin + 1u) * sizeof *in);
  sunk *out = arena_alloc(&s->memory, (results + 1u) * sizeof *out);
  if (!in || !out) return out_of_memory(s);
  for (int i = 0; i < node->nin; i++) in[i] = p->of[node->in[i]];
  k_val turns = 0;
  bool counted = false;
  for (uint32_t x = n + 1; x < p->g->n && node->kind == NODE_LOOP; x++) {
    const graph_node *proj = &p->g->nodes[x];
    counted |= proj->kind == NODE_PROJ && proj->in[0] == n && proj->payload.index == results - 2;
  }
  bool ok = node->kind == NODE_IF ? sink_if(s, node, in, out) : sink_loop(s, node, in, out, counted ? &turns : NULL);
  if (!ok) return false;
  if (node->kind == NODE_LOOP) {
    out[results - 2] = (sunk){.is = SUNK_VALUE, .value = turns, .type = {.dtype = WEAK_INT, .weak = true}};
    out[results - 1] = (sunk){.is = SUNK_VALUE, .value = int_const(s, 1), .type = {.dtype = WEAK_INT, .weak = true}};
  }
  for (uint32_t x = n + 1; x < p->g->n; x++) {
    const graph_node *proj = &p->g->nodes[x];
    if (proj->kind != NODE_PROJ || proj->in[0] != n) continue;
    p->of[x] = out[proj->payload.index];
    if (p->of[x].is == SUNK_ARRAY) p->of[x].version = s->arrays[p->of[x].array].version;
  }
  return true;
}

static bool sink_node(sinker *s, place *p, uint32_t n) {
  const graph_node *node = &p->g->nodes[n];
  sunk *to = &p->of[n];
  if (s->low.why) return false;
  if (s->k->failed) return out_of_memory(s);
  if (cancelled(s->r->cancel)) return refuse(s, lower_cancelled);
  if (s->k->n > VALUES_MAX) return refuse(s, "a kernel of very many values");
  switch ((graph_kind)node->kind) {
  case NODE_PROJ: return true;
  case NODE_IF:
  case NODE_LOOP: return sink_inner(s, p, n);
  case NODE_TAP: return refuse(s, "an effect in the loop");
  default: break;
  }
  if (!outer_type(s, p, &node->type, &to->type)) return false;
  if (node->kind == NODE_OP) return sink_op(s, p, n, to) || out_of_memory(s);
  if (!one_element(s, &to->type)) return refuse(s, "a constant array");
  uint64_t bits = 0;
  memcpy(&bits, node->payload.data, dtype_size((qn_dtype)node->type.dtype));
  return is_value(to, k_const(s->k, (qn_dtype)node->type.dtype, bits)) || out_of_memory(s);
}

/* ---- the loop -------------------------------------------------------------------------------------------------------------------- */

static bool add_axis(sinker *s, qn_dim extent, k_form *to) {
  char name[2] = {(char)('a' + s->k->naxes % 26), 0};
  int a = k_axis_add(s->k, name, extent);
  if (a < 0) return refuse(s, "too many axes");
  *to = k_axis_form(s->k, (uint32_t)a);
  return true;
}

/* Copies an operand to the buffer in which the loop updates it. */
static bool copy_array(sinker *s, const graph_type *t, int from, int to) {
  k_form at;
  if (!add_axis(s, graph_elements(s->r->g, t), &at)) return false;
  k_val v = k_load(s->k, from, at, 0, 0);
  return k_store(s->k, to, at, 0, v, k_linear_of(s->k, at)->axes) || out_of_memory(s);
}

/* Sets *x to operand i of the loop. */
static bool operand(sinker *s, uint32_t i, const int *buffers, sunk *x) {
  graph *g = s->r->g;
  k_kernel *k = s->k;
  const graph_node *loop = &g->nodes[s->r->node];
  uint32_t node = loop->in[i], proj = i < graph_loop_carries(loop) ? s->r->proj[i] : 0;
  const graph_node *n = &g->nodes[node];
  *x = (sunk){.type = n->type};
  bool one = one_element(s, &n->type), carried = i < graph_loop_carries(loop) && !one && !s->many;
  if (n->kind == NODE_CONST && one) {
    uint64_t bits = 0;
    memcpy(&bits, n->payload.data, dtype_size((qn_dtype)n->type.dtype));
    return is_value(x, k_const(k, (qn_dtype)n->type.dtype, bits)) || out_of_memory(s);
  }
  if (n->type.weak) {
    int number = k_scalar_of(k, node);
    if (number < 0) return out_of_memory(s);
    return is_value(x, k_scalar(k, (qn_dtype)n->type.dtype, (uint32_t)number)) || out_of_memory(s);
  }
  sunk_array *a = &s->arrays[i];
  *a = (sunk_array){.buffer = buffers[i], .carried = carried};
  if (carried) {
    qn_dim elements = graph_elements(g, &n->type);
    a->buffer = k_buffer_add(k, (qn_dtype)n->type.dtype, proj ? BUF_INOUT : BUF_SCRATCH, proj, elements);
    if (a->buffer < 0) return out_of_memory(s);
    if (!copy_array(s, &n->type, buffers[i], a->buffer)) return false;
  }
  x->is = SUNK_ARRAY;
  x->array = i;
  return !one || is_value(x, k_load(k, buffers[i], 0, 0, 0)) || out_of_memory(s);
}

/* Stores result x where the node `proj` takes it. */
static bool give(sinker *s, uint32_t proj, const sunk *x) {
  k_form at[ARRAY_MAX_RANK];
  if (!proj || x->is != SUNK_VALUE) return true;
  int b = k_buffer_add(s->k, (qn_dtype)x->type.dtype, BUF_OUT, proj, graph_elements(s->r->g, &x->type));
  if (b < 0) return out_of_memory(s);
  if (!own_coordinates(s, &x->type, at)) return false;
  k_mask axes = 0; /* of all coordinates: the place of an element has none for an axis without elements */
  for (int a = 0; a < x->type.rank; a++) axes |= k_linear_of(s->k, at[a])->axes;
  return k_store(s->k, b, flat(s, &x->type, at), 0, x->value, axes) || out_of_memory(s);
}

/* The shape of the points: that of the largest carried array. */
static bool find_points(sinker *s) {
  const graph_node *loop = &s->r->g->nodes[s->r->node];
  for (uint32_t i = 0; i < graph_loop_carries(loop); i++) {
    const graph_type *t = &s->r->g->nodes[loop->in[i]].type;
    if (t->rank >= s->points.rank && !one_element(s, t)) s->points = *t;
  }
  for (int a = 0; a < s->points.rank; a++) {
    s->at[a] = 0;
    if (is_one(s, s->points.shape[a])) continue;
    if (!add_axis(s, s->points.shape[a], &s->at[a])) return false;
    s->axes |= k_linear_of(s->k, s->at[a])->axes;
  }
  return s->axes != 0 || refuse(s, no_elements);
}

static bool sink_all(sinker *s) {
  graph *g = s->r->g;
  const graph_node *loop = &g->nodes[s->r->node];
  uint32_t carries = graph_loop_carries(loop), results = graph_nresults(loop);
  int *buffers = arena_alloc(&s->memory, (loop->nin + 1u) * sizeof *buffers);
  sunk *in = arena_alloc(&s->memory, (loop->nin + 1u) * sizeof *in),
       *out = arena_alloc(&s->memory, results * sizeof *out);
  s->arrays = arena_alloc(&s->memory, (loop->nin + 1u) * sizeof *s->arrays);
  if (!buffers || !in || !out || !s->arrays) return out_of_memory(s);
  for (uint32_t i = 0; i < loop->nin; i++) { /* all operands, for who runs the loop again to find an error */
    const graph_type *t = &g->nodes[loop->in[i]].type;
    buffers[i] = -1;
    for (uint32_t k = 0; k < i; k++)
      if (loop->in[k] == loop->in[i]) buffers[i] = buffers[k];
    if (t->weak || buffers[i] >= 0) continue;
    buffers[i] = k_buffer_add(s->k, (qn_dtype)t->dtype, BUF_IN, loop->in[i], graph_elements(g, t));
    if (buffers[i] < 0) return out_of_memory(s);
  }
  if (s->many && !find_points(s)) return false;
  for (uint32_t i = 0; i < loop->nin; i++)
    if (!operand(s, i, buffers, &in[i])) return false;
  k_val turns = 0;
  if (!sink_loop(s, loop, in, out, s->r->proj[results - 2] ? &turns : NULL)) return false;
  for (uint32_t i = 0; i < carries; i++)
    if (!give(s, s->r->proj[i], &out[i])) return false;
  sunk number = {.is = SUNK_VALUE, .value = turns, .type = {.dtype = WEAK_INT, .weak = true}};
  if (!give(s, s->r->proj[results - 2], &number)) return false;
  number.value = int_const(s, 1);
  return give(s, s->r->proj[results - 1], &number);
}

static k_kernel *attempt(const sink_request *r, bool many, const char **why) {
  sinker s = {.r = r, .many = many, .k = k_new("loop", &r->g->dims)};
  s.low = (lowering){.g = r->g, .k = s.k};
  arena_init(&s.memory, NULL);
  bool ok = s.k && sink_all(&s) && !s.low.why;
  arena_free(&s.memory);
  if (ok) k_finish(s.k);
  if (ok && !s.k->failed) return s.k;
  *why = !s.k || s.k->failed || !s.low.why ? lower_no_memory : s.low.why;
  k_free(s.k);
  return NULL;
}

k_kernel *sink(const sink_request *r, const char **why) {
  k_kernel *k = attempt(r, false, why);
  return k || *why != no_elements ? k : attempt(r, true, why);
}
