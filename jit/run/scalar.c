/* Host scalars: the weak arithmetic of the language, by the same primitives and functions as kernels (never libm).
 *
 * Operands are converted to the compute type that the op's dtype rule gives (bool, i64 or f64) and go through the loops of kernels with
 * one element. Ops that host integers check are computed here: overflow, division by zero, negative exponents and shift counts are
 * errors (E305 to E308), where integer arrays wrap.
 */
#include "jit/run/dispatch.h"
#include "jit/run/host.h"

static qn_value overflow(qn_vm *vm, const char *what) {
  return raise_error(vm, E_overflow, SPAN_NONE, "the %s does not fit 64 bits; use floats for larger numbers", what);
}

/* The interpreter's text, so that an error reads the same whether a call is recorded or not. */
static qn_value overflow2(qn_vm *vm, int64_t a, const char *op, int64_t b) {
  return raise_error(vm, E_overflow, SPAN_NONE, "%lld %s %lld does not fit 64 bits", (long long)a, op, (long long)b);
}

static int64_t floor_div(int64_t a, int64_t b) {
  int64_t q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

/* a - b * floor_div(a, b), where that product may not fit. */
static int64_t floor_mod(int64_t a, int64_t b) {
  int64_t r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static qn_value int_pow(qn_vm *vm, int64_t base, int64_t n) {
  if (n < 0)
    return raise_error(vm, E_neg_exponent, SPAN_NONE, "%lld ** %lld: a negative exponent needs a float, %lld.0 ** %lld",
                       (long long)base, (long long)n, (long long)base, (long long)n);
  int64_t r = 1, square = base;
  for (int64_t bits = n;; bits >>= 1) {
    if (bits & 1 && __builtin_mul_overflow(r, square, &r)) return overflow2(vm, base, "**", n);
    if (bits <= 1) return value_int(r);
    if (__builtin_mul_overflow(square, square, &square)) return overflow2(vm, base, "**", n);
  }
}

/* Ops of integers that are checked; unset: the op is none of these, and is computed as in kernels. */
static qn_value checked(qn_vm *vm, op_id op, int64_t a, int64_t b) {
  int64_t r = 0;
  switch (op) {
  case OP_add: return __builtin_add_overflow(a, b, &r) ? overflow2(vm, a, "+", b) : value_int(r);
  case OP_sub: return __builtin_sub_overflow(a, b, &r) ? overflow2(vm, a, "-", b) : value_int(r);
  case OP_mul: return __builtin_mul_overflow(a, b, &r) ? overflow2(vm, a, "*", b) : value_int(r);
  case OP_smul:
    return a == 0 || b == 0 ? value_int(0) : __builtin_mul_overflow(a, b, &r) ? overflow2(vm, a, "*", b) : value_int(r);
  case OP_neg:
    if (!__builtin_sub_overflow((int64_t)0, a, &r)) return value_int(r);
    return raise_error(vm, E_overflow, SPAN_NONE, "-(%lld) does not fit 64 bits", (long long)a);
  case OP_abs:
    return a < 0 && __builtin_sub_overflow((int64_t)0, a, &a) ? overflow(vm, "absolute value") : value_int(a);
  case OP_floordiv:
  case OP_mod:
    if (b == 0)
      return raise_error(vm, E_div_zero, SPAN_NONE, op == OP_mod ? WORDS_MOD_ZERO : WORDS_FLOORDIV_ZERO, (long long)a);
    if (b == -1 && op == OP_mod) return value_int(0);
    if (b == -1) return __builtin_sub_overflow((int64_t)0, a, &r) ? overflow2(vm, a, "//", b) : value_int(r);
    return value_int(op == OP_mod ? floor_mod(a, b) : floor_div(a, b));
  case OP_pow: return int_pow(vm, a, b);
  case OP_shl:
  case OP_shr:
    if (b < 0 || b > 63)
      return raise_error(vm, E_shift, SPAN_NONE, "a shift by %lld; 64-bit integers shift by 0 to 63", (long long)b);
    if (op == OP_shr) return value_int(a >> b);
    r = (int64_t)((uint64_t)a << b);
    if (r >> b == a) return value_int(r);
    return raise_error(vm, E_overflow, SPAN_NONE,
                       "shl(%lld, %lld) does not fit 64 bits; elements of arrays lose the bits above: shl([x], n)",
                       (long long)a, (long long)b);
  default: return value_unset();
  }
}

double scalar_math(op_id op, const double *in) {
  double out = 0;
  int n = op_rows[op].arity;
  host()->one(op, WEAK_FLOAT, in, n > 1 ? in + 1 : in, n > 2 ? in + 2 : in, &out);
  return out;
}

/* Compares an int with a float by their exact values: the compute type, f64, would round the int. */
static qn_value compare_mixed(op_id op, qn_value a, qn_value b) {
  bool turned = value_is(a, TAG_FLOAT);
  int order = turned ? number_order(b.u.i, a.u.f) : number_order(a.u.i, b.u.f);
  if (order == ORDER_NONE) return value_bool(op == OP_ne);
  if (turned) order = -order;
  switch (op) {
  case OP_eq: return value_bool(order == 0);
  case OP_ne: return value_bool(order != 0);
  case OP_lt: return value_bool(order < 0);
  case OP_le: return value_bool(order <= 0);
  case OP_gt: return value_bool(order > 0);
  default: return value_bool(order >= 0);
  }
}

#define COMPARED(x, y)                                                                                                 \
  case OP_eq: r.i = (x) == (y); break;                                                                                 \
  case OP_ne: r.i = (x) != (y); break;                                                                                 \
  case OP_lt: r.i = (x) < (y); break;                                                                                  \
  case OP_le: r.i = (x) <= (y); break;                                                                                 \
  case OP_gt: r.i = (x) > (y); break;                                                                                  \
  case OP_ge: r.i = (x) >= (y); break;

bool scalar_quick(op_id op, qn_dtype type, qk_scalar a, qk_scalar b, qk_scalar *out) {
  qk_scalar r = {.i = 0};
  if (type == WEAK_INT) {
    switch (op) {
    case OP_add:
      if (__builtin_add_overflow(a.i, b.i, &r.i)) return false;
      break;
    case OP_sub:
      if (__builtin_sub_overflow(a.i, b.i, &r.i)) return false;
      break;
    case OP_mul:
      if (__builtin_mul_overflow(a.i, b.i, &r.i)) return false;
      break;
    case OP_floordiv:
    case OP_mod:
      if (b.i <= 0) return false;
      r.i = op == OP_mod ? floor_mod(a.i, b.i) : floor_div(a.i, b.i);
      break;
      COMPARED(a.i, b.i)
    default: return false;
    }
  } else if (type == WEAK_FLOAT) {
    switch (op) {
    case OP_add: r.f = a.f + b.f; break;
    case OP_sub: r.f = a.f - b.f; break;
    case OP_mul: r.f = a.f * b.f; break;
    case OP_div:
      r.f = a.f / b.f;
      break;
      COMPARED(a.f, b.f)
    default: return false;
    }
  } else {
    switch (op) {
    case OP_bitand: r.i = a.i != 0 && b.i != 0; break;
    case OP_bitor: r.i = a.i != 0 || b.i != 0; break;
    case OP_invert: r.i = a.i == 0; break;
    default: return false;
    }
  }
  *out = r;
  return true;
}

/* scalar_quick of values. Unset: scalar_apply is to do it. */
static qn_value apply_quick(op_id op, const qn_value *in, int nin) {
  const qn_value a = in[0], b = nin == 2 ? in[1] : a;
  if (nin > 2 || value_tag_of(a) != value_tag_of(b)) return value_unset();
  qk_scalar x = {.i = 0}, y = {.i = 0}, out;
  const bool compares = op_rows[op].dtype_rule == DT_compare;
  switch (value_tag_of(a)) {
  case TAG_INT:
    x.i = a.u.i, y.i = b.u.i;
    if (!scalar_quick(op, WEAK_INT, x, y, &out)) break;
    return compares ? value_bool(out.i) : value_int(out.i);
  case TAG_FLOAT:
    x.f = a.u.f, y.f = b.u.f;
    if (!scalar_quick(op, WEAK_FLOAT, x, y, &out)) break;
    return compares ? value_bool(out.i) : value_float(out.f);
  case TAG_BOOL:
    x.i = a.u.i, y.i = b.u.i;
    if (!scalar_quick(op, WEAK_BOOL, x, y, &out)) break;
    return value_bool(out.i);
  default: break;
  }
  return value_unset();
}

static double as_double(qn_value v) { return value_is(v, TAG_FLOAT) ? v.u.f : (double)v.u.i; }

qn_value scalar_apply(qn_vm *vm, op_id op, const qn_value *in, int nin) {
  graph_type types[3];
  op_types t;
  op_refusal why;
  if (nin < 1 || nin > 3) return raise_error(vm, E_arity, SPAN_NONE, "%s of %d numbers", op_rows[op].name, nin);
  const qn_value quick = apply_quick(op, in, nin);
  if (!value_is(quick, TAG_UNSET)) return quick;
  for (int i = 0; i < nin; i++)
    if (!value_graph_type(in[i], &types[i])) {
      why.id = E_type;
      return op_refuse(vm, op, in, nin, NULL);
    }
  op_attr none = {0};
  if (!op_infer(NULL, op, types, nin, &none, &t, &why)) return op_refuse(vm, op, in, nin, &why);
  bool floats = dtype_is_float((qn_dtype)t.compute), ints = !floats && !dtype_is_bool(t.compute);
  if (floats && op_rows[op].dtype_rule == DT_compare && value_tag_of(in[0]) != value_tag_of(in[1]) &&
      (value_is(in[0], TAG_INT) || value_is(in[1], TAG_INT)))
    return compare_mixed(op, in[0], in[1]);
  if (op == OP_div && !value_is(in[0], TAG_FLOAT) && !value_is(in[1], TAG_FLOAT) && in[1].u.i == 0)
    return raise_error(vm, E_div_zero, SPAN_NONE, WORDS_DIV_ZERO, (long long)in[0].u.i, (long long)in[0].u.i);
  qn_value done = ints ? checked(vm, op, in[0].u.i, nin > 1 ? in[1].u.i : 0) : value_unset();
  if (!value_is(done, TAG_UNSET)) return done;
  union {
    uint8_t b;
    int64_t i;
    double f;
  } x[3] = {{.i = 0}}, out;
  for (int i = 0; i < nin; i++) {
    if (floats)
      x[i].f = as_double(in[i]);
    else if (ints)
      x[i].i = in[i].u.i;
    else
      x[i].b = in[i].u.i != 0;
  }
  out = x[0];
  if (op == OP_where)
    out = x[in[0].u.i ? 1 : 2];
  else if (!host()->one(op, (qn_dtype)t.compute, &x[0], &x[1], &x[2], &out))
    out = x[0]; /* rounding and stop_gradient leave integers as they are */
  return dtype_load((qn_dtype)t.result.dtype, &out);
}
