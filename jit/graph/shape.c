/* The dtype and shape rules of the op table (op.h), written once for concrete and symbolic sizes: eager dispatch, recorder,
 * differentiation and verifier all ask op_infer.
 *
 * A rule of dtypes decides the compute type, the result's dtype and whether it is weak; then a rule of shapes decides the
 * result's shape. With symbolic sizes a rule that has to know whether two sizes are equal asks dim_equal, which answers for the
 * recorded call and remembers the fact. Sentences show sizes as they are in the recorded call: what a user sees does not
 * depend on how a function runs.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "jit/graph/graph.h"
#include "lang/error.h"

typedef struct infer {
  dim_table *dims; /* NULL: plain numbers */
  op_id op;
  const op_row *row;
  const graph_type *in;
  int nin;
  const op_attr *attr;
  op_types *out;
  op_refusal *why;
} infer;

/* ---- words --------------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static bool refuse(const infer *f, int id, const char *format, ...) {
  va_list args;
  va_start(args, format);
  f->why->id = id;
  vsnprintf(f->why->text, sizeof f->why->text, format, args);
  va_end(args);
  return false;
}

enum { WORDS = 128 };

static void put(char *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(char *to, const char *format, ...) {
  size_t len = strlen(to);
  va_list args;
  va_start(args, format);
  vsnprintf(to + len, WORDS - len, format, args);
  va_end(args);
}

static long long hint(const infer *f, qn_dim d) { return (long long)dim_hint(f->dims, d); }

/* "[4, 3]" */
static const char *shape_words(const infer *f, int rank, const qn_dim *shape, char *to) {
  to[0] = 0;
  put(to, "[");
  for (int i = 0; i < rank; i++) put(to, i ? ", %lld" : "%lld", hint(f, shape[i]));
  put(to, "]");
  return to;
}

/* "f32[4, 3]", or "float" for a weak operand */
static const char *type_words(const infer *f, const graph_type *t, char *to) {
  if (t->weak) return dtype_is_bool(t->dtype) ? "bool" : t->dtype == WEAK_INT ? "int" : "float";
  char shape[WORDS];
  snprintf(to, WORDS, "%s%s", dtype_rows[t->dtype].name, shape_words(f, t->rank, t->shape, shape));
  return to;
}

/* "f32", or "float" for a weak operand */
static const char *dtype_words(const graph_type *t) {
  if (t->weak) return dtype_is_bool(t->dtype) ? "bool" : t->dtype == WEAK_INT ? "int" : "float";
  return dtype_rows[t->dtype].name;
}

const char *op_operator(op_id op) {
  switch (op) {
  case OP_add: return "+";
  case OP_sub: return "-";
  case OP_mul: return "*";
  case OP_div: return "/";
  case OP_floordiv: return "//";
  case OP_mod: return "%";
  case OP_pow: return "**";
  case OP_bitand: return "&";
  case OP_bitor: return "|";
  case OP_dot: return "@";
  case OP_eq: return "==";
  case OP_ne: return "!=";
  case OP_lt: return "<";
  case OP_le: return "<=";
  case OP_gt: return ">";
  case OP_ge: return ">=";
  default: return NULL;
  }
}

static bool op_compares(op_id op) {
  return op == OP_eq || op == OP_ne || op == OP_lt || op == OP_le || op == OP_gt || op == OP_ge;
}

/* How an op is written in programs, as messages call it: its operator, or its name. */
static const char *op_words(op_id op) {
  const char *sign = op_compares(op) ? NULL : op_operator(op);
  if (sign) return sign;
  switch (op) {
  case OP_neg: return "-";
  case OP_invert: return "~";
  case OP_index: return "indexing";
  case OP_scatter:
  case OP_slice_put: return "an indexed assignment";
  case OP_compress: return "indexing by a mask";
  default: return op_rows[op].name;
  }
}

/* ---- operands ------------------------------------------------------------------------------------------------------------ */

op_role op_operand_role(op_id op, int i, int nin) {
  switch (op) {
  case OP_cast:
  case OP_fit: return ROLE_AS_IS;
  case OP_where: return i == 0 ? ROLE_CONDITION : ROLE_DATA;
  case OP_compress: return i == 1 ? ROLE_CONDITION : ROLE_DATA;
  case OP_index: return i > 0 ? ROLE_INDEX : ROLE_DATA;
  case OP_scatter: return i > 0 && i < nin - 1 ? ROLE_INDEX : ROLE_DATA;
  case OP_gather:
  case OP_gather_add: return i == 1 ? ROLE_INDEX : ROLE_DATA;
  default: return op_rows[op].klass == CLASS_RANDOM ? ROLE_KEY : ROLE_DATA;
  }
}

static operand_type operand(const infer *f, int i) { return (operand_type){(qn_dtype)f->in[i].dtype, f->in[i].weak}; }

/* The promoted type of the data operands. */
static operand_type promotion(const infer *f) {
  operand_type p = {WEAK_BOOL, true};
  bool any = false;
  for (int i = 0; i < f->nin; i++) {
    if (op_operand_role(f->op, i, f->nin) != ROLE_DATA) continue;
    operand_type x = operand(f, i);
    if (any && p.dtype == x.dtype && p.weak == x.weak) continue;
    p = any ? dtype_promote(p, x) : x;
    any = true;
  }
  return p;
}

/* Sets the result of a dtype rule. The result is a host number only for POINTWISE ops whose operands all are. */
static bool answer(const infer *f, operand_type compute, qn_dtype result) {
  bool weak = compute.weak && f->row->klass == CLASS_POINTWISE;
  for (int i = 0; i < f->nin; i++) weak &= f->in[i].weak;
  f->out->weak = f->out->result.weak = weak;
  f->out->compute = compute.weak && !weak ? dtype_of_weak(compute.dtype) : compute.dtype;
  if (compute.weak && !weak && result == compute.dtype) result = dtype_of_weak(result);
  f->out->result.dtype = (uint8_t)result;
  return true;
}

static bool answer_same(const infer *f, operand_type compute) { return answer(f, compute, compute.dtype); }

/* ---- rules of dtypes ------------------------------------------------------------------------------------------------------- */

static bool dtype_arith(const infer *f) {
  operand_type p = promotion(f);
  if (dtype_is_bool(p.dtype)) p.dtype = DTYPE_INT;
  return answer_same(f, p);
}

static bool dtype_arith_keep(const infer *f) { return answer_same(f, promotion(f)); }

static bool dtype_div(const infer *f) { return answer_same(f, dtype_to_float(promotion(f))); }

static bool dtype_compare(const infer *f) { return answer(f, promotion(f), DTYPE_TEST); }

static bool dtype_bits(const infer *f) {
  bool bools = true, ints = true;
  for (int i = 0; i < f->nin; i++) {
    bools &= dtype_is_bool(f->in[i].dtype);
    ints &= dtype_is_int((qn_dtype)f->in[i].dtype);
  }
  if (bools || ints) return answer_same(f, promotion(f));
  char a[WORDS], b[WORDS];
  if (f->nin == 1)
    return refuse(f, E_dtype, "%s needs bools or integers, not %s", op_words(f->op), type_words(f, &f->in[0], a));
  return refuse(f, E_dtype, "%s needs two bool or two integer operands, not %s and %s", op_words(f->op),
                type_words(f, &f->in[0], a), type_words(f, &f->in[1], b));
}

static bool dtype_ints(const infer *f) {
  char a[WORDS];
  for (int i = 0; i < f->nin; i++)
    if (!dtype_is_int((qn_dtype)f->in[i].dtype))
      return refuse(f, E_dtype, "%s needs integers, not %s", op_words(f->op), type_words(f, &f->in[i], a));
  return answer_same(f, promotion(f));
}

static bool dtype_test(const infer *f) { return answer(f, operand(f, 0), DTYPE_TEST); }

static bool check_condition(const infer *f, int i) {
  char a[WORDS];
  if (dtype_is_bool(f->in[i].dtype)) return true;
  return refuse(f, E_dtype, "%s needs a bool condition, not %s; write the test, for example x != 0", op_words(f->op),
                type_words(f, &f->in[i], a));
}

static bool dtype_select(const infer *f) { return check_condition(f, 0) && answer_same(f, promotion(f)); }

/* Refuses operand i if its elements cannot be stored in an array of operand 0's dtype. */
static bool check_store(const infer *f, int i) {
  qn_dtype to = (qn_dtype)f->in[0].dtype, from = (qn_dtype)f->in[i].dtype;
  if (f->in[0].weak) to = dtype_of_weak(to);
  if (dtype_is_bool(from) || dtype_is_float(to) || (dtype_is_int(from) && !dtype_is_bool(to))) return true;
  if (dtype_is_bool(to))
    return refuse(f, E_dtype, "%s cannot store %s in a bool array; write the test, for example x != 0", op_words(f->op),
                  dtype_words(&f->in[i]));
  return refuse(f, E_dtype, "%s cannot store %s in an array of %s; convert one of them first", op_words(f->op),
                dtype_words(&f->in[i]), dtype_rows[to].name);
}

static bool dtype_first(const infer *f) {
  for (int i = 1; i < f->nin; i++) {
    switch (op_operand_role(f->op, i, f->nin)) {
    case ROLE_DATA:
      if (!check_store(f, i)) return false;
      break;
    case ROLE_CONDITION:
      if (!check_condition(f, i)) return false;
      break;
    default:
      if (!dtype_is_int((qn_dtype)f->in[i].dtype)) {
        char a[WORDS];
        return refuse(f, E_index_kind, "indices must be integers, not %s", type_words(f, &f->in[i], a));
      }
    }
  }
  return answer_same(f, operand(f, 0));
}

static bool dtype_same(const infer *f) {
  if (f->op == OP_concat) return answer_same(f, promotion(f));
  if (f->op == OP_pad && !check_store(f, 1)) return false;
  return answer_same(f, operand(f, 0));
}

static bool dtype_sum(const infer *f) {
  operand_type p = operand(f, 0);
  if (!dtype_is_float(p.dtype)) p.dtype = DTYPE_INT;
  return answer_same(f, p);
}

static bool dtype_index(const infer *f) {
  if (f->op == OP_nonzero && !check_condition(f, 0)) return false;
  return answer(f, operand(f, 0), DTYPE_INDEX);
}

static bool dtype_test_bool(const infer *f) {
  char a[WORDS];
  if (dtype_is_bool(f->in[0].dtype)) return answer_same(f, operand(f, 0));
  return refuse(f, E_dtype, "%s needs bools, not %s; write %s(x != 0)", f->row->name, type_words(f, &f->in[0], a),
                f->row->name);
}

static bool dtype_attr(const infer *f) {
  qn_dtype d = (qn_dtype)f->attr->dtype;
  char a[WORDS];
  if (!dtype_public((int)d)) return refuse(f, E_dtype, "arrays cannot have the dtype number %d", (int)d);
  f->out->result = (graph_type){.dtype = (uint8_t)d};
  f->out->compute = f->nin ? (qn_dtype)f->in[0].dtype : d;
  f->out->weak = false;
  if (f->op == OP_cast && (f->attr->flags & ATTR_WEAK)) {
    if (!dtype_is_weak(d)) return refuse(f, E_dtype, "a host number cannot be of dtype %s", dtype_rows[d].name);
    if (f->in[0].rank)
      return refuse(f, E_rank, "a host number can be made from an array of rank 0, not from %s",
                    type_words(f, &f->in[0], a));
    f->out->weak = f->in[0].weak;
    f->out->result.weak = true;
  }
  if (f->op == OP_fit) {
    bool fits = dtype_is_bool(f->in[0].dtype) || dtype_is_float(d) || (f->in[0].dtype == WEAK_INT && !dtype_is_bool(d));
    if (!f->in[0].weak || !fits)
      return refuse(f, E_dtype, "%s cannot take the dtype %s", type_words(f, &f->in[0], a), dtype_rows[d].name);
  }
  if (f->op == OP_iota && dtype_is_bool(d)) return refuse(f, E_dtype, "an index cannot be a bool");
  if (f->op == OP_random_bits && d != DTYPE_INDEX)
    return refuse(f, E_dtype, "random bits are i64, not %s", dtype_rows[d].name);
  if ((f->op == OP_random_uniform || f->op == OP_random_normal) && !dtype_is_float(d))
    return refuse(f, E_dtype, "random numbers need a float dtype, not %s", dtype_rows[d].name);
  if (f->row->klass == CLASS_RANDOM)
    for (int i = 0; i < f->nin; i++)
      if (f->in[i].dtype != DTYPE_INDEX)
        return refuse(f, E_dtype, "the words of a key are i64 numbers, not %s", type_words(f, &f->in[i], a));
  return true;
}

static bool (*const dtype_rules[])(const infer *) = {
    [DT_arith] = dtype_arith,     [DT_arith_keep] = dtype_arith_keep,
    [DT_num] = dtype_arith,       [DT_div] = dtype_div,
    [DT_float] = dtype_div,       [DT_round] = dtype_arith_keep,
    [DT_compare] = dtype_compare, [DT_bits] = dtype_bits,
    [DT_ints] = dtype_ints,       [DT_test] = dtype_test,
    [DT_select] = dtype_select,   [DT_attr] = dtype_attr,
    [DT_same] = dtype_same,       [DT_first] = dtype_first,
    [DT_sum] = dtype_sum,         [DT_arg] = dtype_index,
    [DT_index] = dtype_index,     [DT_test_bool] = dtype_test_bool,
    [DT_dot] = dtype_arith,
};

/* ---- sizes ---------------------------------------------------------------------------------------------------------------- */

/* Broadcasts two sizes of one axis. False if they differ and neither is 1. */
static bool broadcast_size(dim_table *dims, qn_dim a, qn_dim b, qn_dim *out) {
  if (a == b || b == 1)
    *out = a;
  else if (a == 1)
    *out = b;
  else if (dim_hint(dims, a) == dim_hint(dims, b)) {
    if (!dim_equal(dims, a, b)) return false;
    *out = b >= 0 ? b : a;
  } else if (dim_hint(dims, a) == 1 && dim_is(dims, a, 1))
    *out = b;
  else if (dim_hint(dims, b) == 1 && dim_is(dims, b, 1))
    *out = a;
  else
    return false;
  return true;
}

/* Broadcasts `shape` into out[0..*out_rank), the broadcast of the shapes before. False: *axis is the axis where sizes disagree, counted
 * from the end (-1 is the last), and the two sizes are returned. */
static bool broadcast_into(dim_table *dims, int rank, const qn_dim *shape, int *out_rank, qn_dim *out, int *axis,
                           qn_dim sizes[2]) {
  if (rank > *out_rank) {
    memmove(out + (rank - *out_rank), out, (size_t)*out_rank * sizeof *out);
    for (int i = 0; i < rank - *out_rank; i++) out[i] = 1;
    *out_rank = rank;
  }
  for (int k = 1; k <= rank; k++) {
    qn_dim *o = &out[*out_rank - k], a = *o, b = shape[rank - k];
    if (broadcast_size(dims, a, b, o)) continue;
    *axis = -k;
    sizes[0] = a;
    sizes[1] = b;
    return false;
  }
  return true;
}

/* Refuses operand i if it does not broadcast to exactly this shape. */
static bool check_broadcast_to(const infer *f, int i, int rank, const qn_dim *shape) {
  const graph_type *t = &f->in[i];
  char a[WORDS], b[WORDS];
  if (t->rank > rank)
    return refuse(f, E_broadcast, "%s does not broadcast to the shape %s, which has fewer axes", type_words(f, t, a),
                  shape_words(f, rank, shape, b));
  for (int k = 1; k <= t->rank; k++) {
    qn_dim from = t->shape[t->rank - k], to = shape[rank - k];
    if (from == to || from == 1 || (dim_hint(f->dims, from) == dim_hint(f->dims, to) && dim_equal(f->dims, from, to)))
      continue;
    if (dim_hint(f->dims, from) == 1 && dim_is(f->dims, from, 1)) continue;
    return refuse(f, E_broadcast, "%s does not broadcast to the shape %s: axis -%d is %lld and %lld",
                  type_words(f, t, a), shape_words(f, rank, shape, b), k, hint(f, from), hint(f, to));
  }
  return true;
}

/* Refuses a size below 0. */
static bool check_size(const infer *f, qn_dim d) {
  if (d < 0 && (!f->dims || ~d >= (qn_dim)f->dims->n))
    return refuse(f, E_shape, "a size cannot be negative: %lld", (long long)d);
  if (hint(f, d) < 0) return refuse(f, E_shape, "a size cannot be negative: %lld", hint(f, d));
  return true;
}

static bool set_shape(const infer *f, int rank, const qn_dim *shape) {
  graph_type *r = &f->out->result;
  if (rank > ARRAY_MAX_RANK)
    return refuse(f, E_rank, "the result of %s would have %d axes; at most %d are possible", op_words(f->op), rank,
                  ARRAY_MAX_RANK);
  r->rank = (uint8_t)rank;
  if (rank) memcpy(r->shape, shape, (size_t)rank * sizeof *shape);
  int64_t elements = 1;
  for (int i = 0; i < rank; i++) {
    int64_t size = shape[i];
    if (size < 0) { /* a symbol, or a mistake */
      if (!check_size(f, size)) return false;
      size = dim_hint(f->dims, size);
    }
    if (__builtin_mul_overflow(elements, size > 1 ? size : 1, &elements) || elements > ARRAY_MAX_ELEMENTS) {
      char a[WORDS];
      return refuse(f, E_too_large, "an array of shape %s would have more than 2**48 elements",
                    shape_words(f, rank, shape, a));
    }
  }
  return true;
}

static bool check_attr_count(const infer *f, int n) {
  if (f->attr->n == n) return true;
  return refuse(f, E_rank, "%s has %d entries for an array of rank %d", op_words(f->op), f->attr->n, f->in[0].rank);
}

/* The axis of a scan, gather, concat, ..., which must be exactly one below `rank`; -1 when refused. */
static int one_axis(const infer *f, int rank) {
  unsigned axes = f->attr->axes;
  if (rank == 0) {
    refuse(f, E_rank, "%s needs an array with at least one axis", op_words(f->op));
    return -1;
  }
  if (axes == 0 || (axes & (axes - 1)) || axes >> rank) {
    refuse(f, E_axis, "%s needs one axis of an array of rank %d", op_words(f->op), rank);
    return -1;
  }
  return __builtin_ctz(axes);
}

/* ---- rules of shapes ---------------------------------------------------------------------------------------------------------- */

static bool shape_broadcast(const infer *f) {
  const graph_type *x = &f->in[0];
  bool same = true;
  for (int i = 1; i < f->nin && same; i++)
    same = f->in[i].rank == x->rank && memcmp(f->in[i].shape, x->shape, x->rank * sizeof *x->shape) == 0;
  if (same) return set_shape(f, x->rank, x->shape);
  qn_dim shape[ARRAY_MAX_RANK], sizes[2];
  int rank = 0, axis;
  for (int i = 0; i < f->nin; i++)
    if (!broadcast_into(f->dims, f->in[i].rank, f->in[i].shape, &rank, shape, &axis, sizes))
      return refuse(f, E_broadcast, "shapes do not broadcast: axis %d is %lld and %lld", axis, hint(f, sizes[0]),
                    hint(f, sizes[1]));
  return set_shape(f, rank, shape);
}

static bool shape_reduce(const infer *f) {
  const graph_type *x = &f->in[0];
  qn_dim shape[ARRAY_MAX_RANK];
  int rank = 0, empty = -1;
  bool some = true; /* does the result have an element? */
  char a[WORDS];
  if (f->attr->axes >> x->rank)
    return refuse(f, E_axis, "%s over axis %d of %s, an array of rank %d", f->row->name,
                  31 - __builtin_clz(f->attr->axes), type_words(f, x, a), x->rank);
  for (int i = 0; i < x->rank; i++) {
    bool reduced = f->attr->axes >> i & 1;
    if (f->row->raises == RAISES_empty && dim_is_empty(f->dims, x->shape[i])) {
      if (reduced)
        empty = i;
      else
        some = false;
    }
    if (!reduced)
      shape[rank++] = x->shape[i];
    else if (f->attr->keepdims)
      shape[rank++] = 1;
  }
  if (empty >= 0 && some)
    return refuse(f, E_empty_reduce, "%s of no elements: axis %d of %s is empty", f->row->name, empty,
                  type_words(f, x, a));
  return set_shape(f, rank, shape);
}

/* The shape of what operands 1..k select from operand 0: the indices' broadcast shape, then the axes of operand 0 that are not indexed. */
static bool indexed_shape(const infer *f, int k, int *rank, qn_dim *shape) {
  const graph_type *x = &f->in[0];
  qn_dim sizes[2], picked[ARRAY_MAX_RANK];
  int axis, n = 0;
  char a[WORDS];
  if (k < 1 || k > x->rank)
    return refuse(f, E_rank, "%d indices for %s, an array of rank %d", k, type_words(f, x, a), x->rank);
  for (int i = 1; i <= k; i++)
    if (!broadcast_into(f->dims, f->in[i].rank, f->in[i].shape, &n, picked, &axis, sizes))
      return refuse(f, E_broadcast, "shapes of index arrays do not broadcast: axis %d is %lld and %lld", axis,
                    hint(f, sizes[0]), hint(f, sizes[1]));
  *rank = n + x->rank - k;
  if (*rank > ARRAY_MAX_RANK)
    return refuse(f, E_rank, "the elements picked would have %d axes; at most %d are possible", *rank, ARRAY_MAX_RANK);
  if (n) memcpy(shape, picked, (size_t)n * sizeof *shape);
  memcpy(shape + n, x->shape + k, (size_t)(x->rank - k) * sizeof *shape);
  return true;
}

static bool shape_index(const infer *f) {
  int rank, k = f->nin - 1;
  qn_dim shape[ARRAY_MAX_RANK];
  if (f->attr->n != 1 || f->attr->d[0] != k) return refuse(f, E_internal, "indexing counts %d operands", k);
  return indexed_shape(f, k, &rank, shape) && set_shape(f, rank, shape);
}

/* Refuses a slice that reaches outside operand 0 in the recorded call. */
static bool check_slice(const infer *f) {
  const graph_type *x = &f->in[0];
  if (!check_attr_count(f, 3 * x->rank)) return false;
  for (int i = 0; i < x->rank; i++) {
    const qn_dim *d = &f->attr->d[3 * i];
    if (!check_size(f, d[0]) || !check_size(f, d[1])) return false;
    int64_t start = dim_hint(f->dims, d[0]), size = dim_hint(f->dims, d[1]), step = d[2],
            n = dim_hint(f->dims, x->shape[i]);
    if (step == 0) return refuse(f, E_argument, "a slice cannot have the step 0");
    int64_t last = start;
    bool over =
        size > 0 && (__builtin_mul_overflow(size - 1, step, &last) || __builtin_add_overflow(start, last, &last));
    if (over || (size == 0 ? start > n : start >= n || last < 0 || last >= n))
      return refuse(f, E_shape, "a slice of %lld elements from %lld by steps of %lld leaves axis %d, which has %lld",
                    (long long)size, (long long)start, (long long)step, i, (long long)n);
  }
  return true;
}

static bool shape_slice(const infer *f) {
  qn_dim shape[ARRAY_MAX_RANK];
  if (!check_slice(f)) return false;
  for (int i = 0; i < f->in[0].rank; i++) shape[i] = f->attr->d[3 * i + 1];
  return set_shape(f, f->in[0].rank, shape);
}

/* Refuses operands a and b if their sizes differ on an axis other than `except` (negative: on any axis). */
static bool check_same_sizes(const infer *f, int a, int b, int except) {
  char x[WORDS], y[WORDS];
  const graph_type *s = &f->in[a], *t = &f->in[b];
  if (s->rank != t->rank)
    return refuse(f, E_rank, "%s needs arrays of one rank, not %s and %s", op_words(f->op), type_words(f, s, x),
                  type_words(f, t, y));
  for (int i = 0; i < s->rank; i++)
    if (i != except && !dim_equal(f->dims, s->shape[i], t->shape[i]))
      return except < 0
                 ? refuse(f, E_shape, "%s needs equal sizes: axis %d is %lld and %lld", op_words(f->op), i,
                          hint(f, s->shape[i]), hint(f, t->shape[i]))
                 : refuse(f, E_shape, "%s along axis %d needs equal sizes on the other axes: axis %d is %lld and %lld",
                          op_words(f->op), except, i, hint(f, s->shape[i]), hint(f, t->shape[i]));
  return true;
}

static bool shape_same(const infer *f) {
  const graph_type *x = &f->in[0];
  int axis, rank;
  qn_dim shape[ARRAY_MAX_RANK];
  switch (f->op) {
  case OP_scatter:
    if (f->attr->n != 1 || f->attr->d[0] != f->nin - 2 || f->attr->mode > SCATTER_MAX)
      return refuse(f, E_internal, "scatter counts %d operands", f->nin);
    if (!indexed_shape(f, f->nin - 2, &rank, shape) || !check_broadcast_to(f, f->nin - 1, rank, shape)) return false;
    break;
  case OP_gather_add:
    if ((axis = one_axis(f, x->rank)) < 0 || !check_same_sizes(f, 0, 1, axis)) return false;
    if (!check_broadcast_to(f, 2, f->in[1].rank, f->in[1].shape)) return false;
    break;
  case OP_slice_put:
    if (!check_slice(f)) return false;
    for (int i = 0; i < x->rank; i++) shape[i] = f->attr->d[3 * i + 1];
    if (!check_broadcast_to(f, 1, x->rank, shape)) return false;
    break;
  case OP_recurrence:
    if ((axis = one_axis(f, x->rank)) < 0 || !check_same_sizes(f, 0, 1, -1)) return false;
    break;
  case OP_argsort:
    if ((axis = one_axis(f, x->rank)) < 0) return false;
    if (!f->attr->n) break;
    if (!check_attr_count(f, 1)) return false;
    if (f->attr->d[0] < 0 || f->attr->d[0] > dim_hint(f->dims, x->shape[axis]))
      return refuse(f, E_argument, "the first %lld of axis %d, which has %lld", (long long)f->attr->d[0], axis,
                    hint(f, x->shape[axis]));
    memcpy(shape, x->shape, x->rank * sizeof *shape);
    shape[axis] = f->attr->d[0];
    return set_shape(f, x->rank, shape);
  default: /* scans and sort */
    if (one_axis(f, x->rank) < 0) return false;
  }
  return set_shape(f, x->rank, x->shape);
}

static qn_dim elements_of(dim_table *dims, int rank, const qn_dim *shape) {
  qn_dim n = 1;
  for (int i = 0; i < rank; i++) n = dim_mul(dims, n, shape[i]);
  return n;
}

/* Refuses keys of a draw that do not broadcast to the draw's first axes. */
static bool check_keys(const infer *f) {
  int rank = 0;
  for (int i = 0; i < f->nin; i++)
    if (f->in[i].rank > rank) rank = f->in[i].rank;
  if (rank > f->attr->n) return refuse(f, E_rank, "%s of %d axes by keys of %d", f->row->name, f->attr->n, rank);
  for (int i = 0; i < f->nin; i++)
    if (!check_broadcast_to(f, i, rank, f->attr->d)) return false;
  return true;
}

static bool shape_attr(const infer *f) {
  const op_attr *attr = f->attr;
  char a[WORDS], b[WORDS];
  if (attr->n > ARRAY_MAX_RANK)
    return refuse(f, E_rank, "the result of %s would have %d axes; at most %d are possible", op_words(f->op), attr->n,
                  ARRAY_MAX_RANK);
  if (f->op == OP_iota && one_axis(f, attr->n) < 0) return false;
  if (!set_shape(f, attr->n, attr->d)) return false;
  if (f->row->klass == CLASS_RANDOM) return check_keys(f);
  if (f->op != OP_reshape) return true;
  const graph_type *x = &f->in[0];
  qn_dim old = elements_of(f->dims, x->rank, x->shape), new = elements_of(f->dims, attr->n, attr->d);
  if (dim_equal(f->dims, old, new)) return true;
  return refuse(f, E_shape, "%s has %lld elements and cannot be reshaped to %s, which has %lld", type_words(f, x, a),
                hint(f, old), shape_words(f, attr->n, attr->d, b), hint(f, new));
}

static bool shape_broadcast_to(const infer *f) {
  if (f->attr->n > ARRAY_MAX_RANK)
    return refuse(f, E_rank, "the result would have %d axes; at most %d are possible", f->attr->n, ARRAY_MAX_RANK);
  return set_shape(f, f->attr->n, f->attr->d) && check_broadcast_to(f, 0, f->attr->n, f->attr->d);
}

static bool shape_permute(const infer *f) {
  const graph_type *x = &f->in[0];
  qn_dim shape[ARRAY_MAX_RANK];
  unsigned seen = 0;
  if (!check_attr_count(f, x->rank)) return false;
  for (int i = 0; i < x->rank; i++) {
    qn_dim from = f->attr->d[i];
    if (from < 0 || from >= x->rank || (seen >> from & 1))
      return refuse(f, E_axis, "the axes of an array of rank %d must be named once each", x->rank);
    seen |= 1u << from;
    shape[i] = x->shape[from];
  }
  return set_shape(f, x->rank, shape);
}

static bool shape_window(const infer *f) {
  const graph_type *x = &f->in[0];
  qn_dim shape[ARRAY_MAX_RANK];
  int axis = one_axis(f, x->rank);
  int64_t span, size = f->attr->d[0], step = f->attr->d[1], apart = f->attr->d[2];
  if (axis < 0 || !check_attr_count(f, 3)) return false;
  if (x->rank == ARRAY_MAX_RANK)
    return refuse(f, E_rank, "windows of an array of rank %d would have %d axes; at most %d are possible", x->rank,
                  x->rank + 1, ARRAY_MAX_RANK);
  if (size < 1 || step < 1 || apart < 1)
    return refuse(f, E_argument, "a window has a size, a step and a dilation of 1 or more, not %lld, %lld and %lld",
                  (long long)size, (long long)step, (long long)apart);
  if (__builtin_mul_overflow(size - 1, apart, &span) || span >= dim_hint(f->dims, x->shape[axis]))
    return refuse(f, E_shape, "a window of %lld elements, each %lld from the next, leaves axis %d, which has %lld",
                  (long long)size, (long long)apart, axis, hint(f, x->shape[axis]));
  if (f->dims && x->shape[axis] < 0)
    dim_assume(f->dims, span, DIM_LT, x->shape[axis]); /* a fact, so that a call with other sizes makes the error */
  memcpy(shape, x->shape, x->rank * sizeof *shape);
  qn_dim last = dim_sub(f->dims, shape[axis], span + 1); /* the last position where a window can begin */
  if (step != 1) last = f->dims ? dim_make(f->dims, DIM_FLOORDIV, last, step) : last / step;
  shape[axis] = dim_add(f->dims, last, 1);
  shape[x->rank] = size;
  return set_shape(f, x->rank + 1, shape);
}

static bool shape_pad(const infer *f) {
  const graph_type *x = &f->in[0];
  dim_table *t = f->dims;
  qn_dim shape[ARRAY_MAX_RANK];
  char a[WORDS];
  if (f->in[1].rank) return refuse(f, E_rank, "padding needs one number, not %s", type_words(f, &f->in[1], a));
  if (!check_attr_count(f, 3 * x->rank)) return false;
  for (int i = 0; i < x->rank; i++) {
    const qn_dim *d = &f->attr->d[3 * i];
    if (!check_size(f, d[0]) || !check_size(f, d[1])) return false;
    if (d[2] < 0) return refuse(f, E_shape, "a size cannot be negative: %lld", (long long)d[2]);
    qn_dim inner = x->shape[i];
    if (d[2]) {
      qn_dim gaps = t ? dim_make(t, DIM_MAX, dim_sub(t, inner, 1), 0) : inner > 1 ? inner - 1 : 0;
      inner = dim_add(t, inner, dim_mul(t, gaps, d[2]));
    }
    shape[i] = dim_add(t, dim_add(t, inner, d[0]), d[1]);
  }
  return set_shape(f, x->rank, shape);
}

static bool shape_concat(const infer *f) {
  qn_dim shape[ARRAY_MAX_RANK];
  if (f->nin == 0) return refuse(f, E_argument, "concat needs at least one array");
  const graph_type *x = &f->in[0];
  int axis = one_axis(f, x->rank);
  if (axis < 0) return false;
  memcpy(shape, x->shape, x->rank * sizeof *shape);
  for (int i = 1; i < f->nin; i++) {
    if (!check_same_sizes(f, 0, i, axis)) return false;
    shape[axis] = dim_add(f->dims, shape[axis], f->in[i].shape[axis]);
  }
  return set_shape(f, x->rank, shape);
}

static bool shape_gather(const infer *f) {
  int axis = one_axis(f, f->in[0].rank);
  return axis >= 0 && check_same_sizes(f, 0, 1, axis) && set_shape(f, f->in[1].rank, f->in[1].shape);
}

/* compress and nonzero: only data tell the size of axis 0, so it is given as its upper bound (op_infer in graph.h). */
static bool shape_data(const infer *f) {
  const graph_type *x = &f->in[0];
  qn_dim shape[ARRAY_MAX_RANK + 1];
  char a[WORDS], b[WORDS];
  if (f->op == OP_nonzero) {
    shape[0] = elements_of(f->dims, x->rank, x->shape);
    shape[1] = x->rank;
    return set_shape(f, 2, shape);
  }
  const graph_type *mask = &f->in[1];
  if (mask->rank == 0 || mask->rank > x->rank)
    return refuse(f, E_rank, "a mask of type %s cannot pick from %s", type_words(f, mask, a), type_words(f, x, b));
  for (int i = 0; i < mask->rank; i++)
    if (!dim_equal(f->dims, mask->shape[i], x->shape[i]))
      return refuse(f, E_shape, "a mask of type %s cannot pick from %s: axis %d is %lld and %lld",
                    type_words(f, mask, a), type_words(f, x, b), i, hint(f, mask->shape[i]), hint(f, x->shape[i]));
  shape[0] = elements_of(f->dims, mask->rank, mask->shape);
  memcpy(shape + 1, x->shape + mask->rank, (size_t)(x->rank - mask->rank) * sizeof *shape);
  return set_shape(f, 1 + x->rank - mask->rank, shape);
}

static bool shape_dot(const infer *f) {
  const graph_type *x = &f->in[0], *y = &f->in[1];
  qn_dim shape[ARRAY_MAX_RANK + 2], sizes[2];
  int rank = 0, axis;
  char a[WORDS], b[WORDS];
  for (int i = 0; i < 2; i++)
    if (f->in[i].rank == 0)
      return refuse(f, E_matmul_shape, "a matrix product needs arrays with at least one axis, not %s",
                    type_words(f, &f->in[i], a));
  qn_dim inner_x = x->shape[x->rank - 1], inner_y = y->shape[y->rank > 1 ? y->rank - 2 : 0];
  if (!dim_equal(f->dims, inner_x, inner_y))
    return refuse(f, E_matmul_shape,
                  "matrix product of %s and %s: axis -1 of the left is %lld, axis %d of the right is %lld",
                  type_words(f, x, a), type_words(f, y, b), hint(f, inner_x), y->rank > 1 ? -2 : -1, hint(f, inner_y));
  int bx = x->rank > 2 ? x->rank - 2 : 0, by = y->rank > 2 ? y->rank - 2 : 0;
  bool ok = broadcast_into(f->dims, bx, x->shape, &rank, shape, &axis, sizes) &&
            broadcast_into(f->dims, by, y->shape, &rank, shape, &axis, sizes);
  if (!ok)
    return refuse(f, E_broadcast, "batch axes of a matrix product do not broadcast: axis %d is %lld and %lld", axis - 2,
                  hint(f, sizes[0]), hint(f, sizes[1]));
  if (x->rank > 1) shape[rank++] = x->shape[x->rank - 2];
  if (y->rank > 1) shape[rank++] = y->shape[y->rank - 1];
  return set_shape(f, rank, shape);
}

/* gemm: flags say which operands are given as their transposes. */
static bool shape_gemm(const infer *f) {
  graph_type in[2] = {f->in[0], f->in[1]};
  for (int i = 0; i < 2; i++) {
    int r = in[i].rank;
    if (!(f->attr->flags & (i ? ATTR_Y_ACROSS : ATTR_X_ACROSS))) continue;
    if (r < 2) return refuse(f, E_rank, "a vector has no transpose");
    in[i].shape[r - 1] = f->in[i].shape[r - 2];
    in[i].shape[r - 2] = f->in[i].shape[r - 1];
  }
  infer dot = *f;
  dot.in = in;
  return shape_dot(&dot);
}

static bool (*const shape_rules[])(const infer *) = {
    [SH_broadcast] = shape_broadcast,
    [SH_reduce] = shape_reduce,
    [SH_same] = shape_same,
    [SH_attr] = shape_attr,
    [SH_broadcast_to] = shape_broadcast_to,
    [SH_permute] = shape_permute,
    [SH_slice] = shape_slice,
    [SH_window] = shape_window,
    [SH_pad] = shape_pad,
    [SH_concat] = shape_concat,
    [SH_index] = shape_index,
    [SH_gather] = shape_gather,
    [SH_data] = shape_data,
    [SH_dot] = shape_dot,
    [SH_gemm] = shape_gemm,
};

bool op_infer(dim_table *dims, op_id op, const graph_type *in, int nin, const op_attr *attr, op_types *out,
              op_refusal *why) {
  static const op_attr none;
  const op_row *row = &op_rows[op];
  infer f = {dims, op, row, in, nin, attr ? attr : &none, out, why};
  *out = (op_types){0};
  int least = op == OP_scatter ? 3 : op == OP_index ? 2 : 1;
  if (row->arity >= 0 ? nin != row->arity : nin < least)
    return refuse(&f, E_internal, "%s has %d operand%s and takes %d%s", row->name, nin, nin == 1 ? "" : "s",
                  row->arity >= 0 ? row->arity : least, row->arity >= 0 ? "" : " or more");
  return dtype_rules[row->dtype_rule](&f) && shape_rules[row->shape_rule](&f);
}
