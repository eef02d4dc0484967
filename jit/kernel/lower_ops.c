/* Elementwise arithmetic of graph ops in kernel primitives: which primitive or function an op is per dtype, how narrow floats
 * round, what a fallible op tests, and random numbers.
 *
 * f16 and bf16. Values of these types are kept in storage form; an op widens its operands to f32, computes, and rounds once.
 * Ops that only move values (where, stop_gradient) do not widen.
 *
 * Random numbers. Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011) with
 *   key      low 32 bits of k0, low 32 bits of k1
 *   counter  element index (low, high word), draw number (low, high word)
 * gives four words w0..w3 per element. From them
 *   bits     w0 + 2^32 w1
 *   uniform  top 53 (f64), 24 (f32), 11 (f16), 8 (bf16) bits of that number as a fraction in [0, 1)
 *   normal   Box-Muller, one number per element: sqrt(-2 log u) cos(2 pi v) with
 *              f32 and narrower: u = (w0 + 1) / 2^32 rounded to f32, in (0, 1]; v = top 24 bits of w1 as a fraction
 *              f64: u = (top 53 bits of w0 + 2^32 w1, plus 1) / 2^53; v = top 53 bits of w2 + 2^32 w3 as a fraction
 * Every step is an exact operation or rounds once, so the numbers are the same on every machine. */
#include <math.h>

#include "jit/kernel/lower_impl.h"
#include "lang/error.h"

/* ---- which primitive an op is -------------------------------------------------------------------------------------------- */

typedef struct body {
  uint8_t kind; /* 0 none, 1 kernel primitive, 2 math function */
  uint8_t id;
} body;

#define K(x)                                                                                                           \
  { 1, KOP_##x }
#define M(x)                                                                                                           \
  { 2, MATH_##x }
#define OP_POINTWISE(name, arity, dtype, grad, raises, body, doc) [OP_##name] = body,
#define OP_REDUCE(name, dtype, grad, raises, body, doc) [OP_##name] = body,
#define OP_SCAN(name, dtype, grad, body, doc) [OP_##name] = body,
static const body bodies[OP_COUNT] = {
#include "lang/ops.def"
};
#undef K
#undef M

kop_id lower_combiner(op_id op) { return (kop_id)bodies[op].id; }

k_val lower_widen(lowering *l, k_val v) { return v ? k_cast(l->k, v, dtype_compute(l->k->nodes[v].dtype)) : 0; }

static bool floating(qn_dtype d) { return dtype_is_float(d); }

/* Ops whose bodies in the table are for floats only, applied to integers and bools. */
static k_val on_integers(lowering *l, op_id op, qn_dtype d, const k_val *in) {
  k_kernel *k = l->k;
  switch (op) {
  case OP_floordiv: return k_op(k, KOP_idiv, d, in[0], in[1], 0);
  case OP_mod: return k_op(k, KOP_imod, d, in[0], in[1], 0);
  case OP_pow: return k_op(k, KOP_ipow, d, in[0], in[1], 0);
  case OP_smul: return k_op(k, KOP_mul, d, in[0], in[1], 0);
  case OP_floor:
  case OP_ceil:
  case OP_round:
  case OP_trunc: return in[0];
  case OP_isnan:
  case OP_isinf: return k_const(k, DTYPE_TEST, 0);
  case OP_isfinite: return k_const(k, DTYPE_TEST, 1);
  case OP_sign: {
    k_val zero = k_const_i(k, d, 0);
    k_val above = k_cast(k, k_op(k, KOP_gt, DTYPE_TEST, in[0], zero, 0), d);
    if (!dtype_is_signed(d)) return above;
    return k_op(k, KOP_sub, d, above, k_cast(k, k_op(k, KOP_lt, DTYPE_TEST, in[0], zero, 0), d), 0);
  }
  default: return lower_refuse(l, "a float function of integers");
  }
}

static bool float_only(op_id op) {
  switch (op) {
  case OP_floor:
  case OP_ceil:
  case OP_round:
  case OP_trunc: return true;
  default: return bodies[op].kind == 2;
  }
}

/* x to the power of a constant for which math.def says which primitives that is, or 0. */
static k_val known_power(k_kernel *k, qn_dtype d, k_val x, k_val by) {
  const k_node *n = &k->nodes[by];
  if (n->code != K_CONST || !dtype_is_float(d)) return 0;
  double b = dtype_load(d, &n->imm).u.f;
  bool root = b == 0.5 || b == -0.5 || b == 1.5 || b == -1.5 || b == 2.5;
  if (!root && b != 1 && b != 2 && b != 3 && b != 4 && b != -1 && b != -2) return 0;
  k_val one = k_const_f(k, d, 1), square = b == 2 || b > 2 ? k_op(k, KOP_mul, d, x, x, 0) : 0;
  if (b == 1) return x;
  if (b == 2) return square;
  if (b == 3) return k_op(k, KOP_mul, d, square, x, 0);
  if (b == 4) return k_op(k, KOP_mul, d, square, square, 0);
  if (!root) {
    k_val q = k_op(k, KOP_div, d, one, x, 0);
    return b == -1 ? q : k_op(k, KOP_mul, d, q, q, 0);
  }
  k_val least = k_op(k, KOP_eq, DTYPE_TEST, x, k_const_f(k, d, -HUGE_VAL), 0);
  x = k_op(k, KOP_select, d, least, k_const_f(k, d, HUGE_VAL), k_op(k, KOP_add, d, x, k_const_f(k, d, 0), 0));
  if (b == -1.5) return k_op(k, KOP_div, d, k_op(k, KOP_sqrt, d, k_op(k, KOP_div, d, one, x, 0), 0, 0), x, 0);
  k_val s = k_op(k, KOP_sqrt, d, x, 0, 0);
  if (b == 0.5) return s;
  if (b == -0.5) return k_op(k, KOP_div, d, one, s, 0);
  return k_op(k, KOP_mul, d, b == 2.5 ? square : x, s, 0);
}

k_val lower_pointwise(lowering *l, op_id op, qn_dtype type, const k_val *in, int nin) {
  k_kernel *k = l->k;
  if (op == OP_stop_gradient) return in[0];
  if (op == OP_cast || op == OP_fit) return k_cast(k, in[0], type);
  if (op == OP_where) return k_op(k, KOP_select, type, in[0], in[1], in[2]);
  k_val wide[3] = {0};
  for (int i = 0; i < nin && i < 3; i++)
    if (!(wide[i] = lower_widen(l, in[i]))) return 0;
  qn_dtype d = (qn_dtype)k->nodes[wide[0]].dtype;
  if (!floating(d) && float_only(op)) return on_integers(l, op, d, wide);
  qn_dtype result = dtype_is_bool(type) ? type : d;
  k_val power = op == OP_pow ? known_power(k, d, wide[0], wide[1]) : 0;
  if (power) return k_cast(k, power, type);
  k_val v = bodies[op].kind == 1 ? k_op(k, (kop_id)bodies[op].id, result, wide[0], wide[1], wide[2])
                                 : k_math(k, (math_id)bodies[op].id, result, wide[0], wide[1], wide[2]);
  return k_cast(k, v, type);
}

/* ---- checks -------------------------------------------------------------------------------------------------------------- */

/* Is float x (f32 or f64) a number whose integer part is a value of the integer type? */
static k_val holds(lowering *l, k_val x, qn_dtype to) {
  k_kernel *k = l->k;
  qn_dtype d = (qn_dtype)k->nodes[x].dtype;
  int bits = (int)(8 * dtype_size(to)), mantissa = dtype_rows[d].digits;
  double top = 2 * (double)((uint64_t)1 << (dtype_rows[to].digits - 1));
  double bottom = dtype_is_signed(to) ? -top : 0;
  /* x > bottom - 1 if the float type has that number; otherwise it has no number between bottom - 1 and bottom, and x >= bottom will do. */
  bool exact = !dtype_is_signed(to) || bits <= mantissa;
  k_val low = exact ? k_op(k, KOP_gt, DTYPE_TEST, x, k_const_f(k, d, bottom - 1), 0)
                    : k_op(k, KOP_ge, DTYPE_TEST, x, k_const_f(k, d, bottom), 0);
  return k_op(k, KOP_and, DTYPE_TEST, low, k_op(k, KOP_lt, DTYPE_TEST, x, k_const_f(k, d, top), 0), 0);
}

k_val lower_succeeds(lowering *l, op_id op, qn_dtype type, const k_val *in, k_val *shows, l_check *check) {
  k_kernel *k = l->k;
  *shows = 0;
  qn_dtype d = (qn_dtype)k->nodes[in[0]].dtype;
  switch ((op_raises)op_rows[op].raises) {
  case RAISES_int_div: check->id = E_div_zero; return k_op(k, KOP_ne, DTYPE_TEST, in[1], k_const_i(k, d, 0), 0);
  case RAISES_int_pow:
    check->id = E_neg_exponent;
    *shows = k_cast(k, in[1], DTYPE_INDEX);
    return k_op(k, KOP_ge, DTYPE_TEST, in[1], k_const_i(k, d, 0), 0);
  case RAISES_shift: {
    check->id = E_shift;
    check->detail = (int64_t)(8 * dtype_size(d));
    *shows = k_cast(k, in[1], DTYPE_INDEX);
    k_val below = k_op(k, KOP_lt, DTYPE_TEST, in[1], k_const_i(k, d, check->detail), 0);
    if (!dtype_is_signed(d)) return below;
    return k_op(k, KOP_and, DTYPE_TEST, k_op(k, KOP_ge, DTYPE_TEST, in[1], k_const_i(k, d, 0), 0), below, 0);
  }
  case RAISES_to_int:
    check->id = E_to_int;
    check->detail = type;
    *shows = in[0];
    return holds(l, lower_widen(l, in[0]), type);
  default: return lower_refuse(l, "an op without a check");
  }
}

k_val lower_index(lowering *l, k_val index, qn_dim size, k_val *ok) {
  k_kernel *k = l->k;
  bool may_be_negative = dtype_is_signed((qn_dtype)k->nodes[index].dtype);
  k_val i = k_cast(k, index, DTYPE_INDEX), n = k_iota(k, DTYPE_INDEX, k_number(k, size)),
        zero = k_const_i(k, DTYPE_INDEX, 0);
  if (may_be_negative)
    i = k_op(k, KOP_select, DTYPE_INDEX, k_op(k, KOP_lt, DTYPE_TEST, i, zero, 0),
             k_op(k, KOP_add, DTYPE_INDEX, i, n, 0), i);
  *ok = k_op(k, KOP_lt, DTYPE_TEST, i, n, 0);
  if (may_be_negative) *ok = k_op(k, KOP_and, DTYPE_TEST, k_op(k, KOP_ge, DTYPE_TEST, i, zero, 0), *ok, 0);
  return i;
}

/* ---- random numbers -------------------------------------------------------------------------------------------------------- */

static k_val word(lowering *l, uint32_t x) { return k_const(l->k, QN_u32, x); }
static k_val u32_op(lowering *l, kop_id op, k_val a, k_val b) { return k_op(l->k, op, QN_u32, a, b, 0); }

/* Sets w to the four random words of an element. */
static void philox(lowering *l, k_form element, bool small, const k_val *keys, k_val w[4]) {
  k_kernel *k = l->k;
  k_val key[2], draw = keys[2];
  for (int i = 0; i < 2; i++) key[i] = k_cast(k, keys[i], QN_u32);
  w[0] = k_iota(k, QN_u32, element);
  w[1] = small ? word(l, 0)
               : k_cast(k, k_op(k, KOP_shr, QN_u64, k_iota(k, QN_u64, element), k_const(k, QN_u64, 32), 0), QN_u32);
  w[2] = k_cast(k, draw, QN_u32);
  w[3] = k_cast(k, k_op(k, KOP_shr, DTYPE_INDEX, draw, k_const_i(k, DTYPE_INDEX, 32), 0), QN_u32);
  for (int round = 0; round < 10; round++) {
    if (round) {
      key[0] = u32_op(l, KOP_add, key[0], word(l, 0x9e3779b9u));
      key[1] = u32_op(l, KOP_add, key[1], word(l, 0xbb67ae85u));
    }
    k_val m0 = word(l, 0xd2511f53u), m1 = word(l, 0xcd9e8d57u);
    k_val high0 = u32_op(l, KOP_mulhi, w[0], m0), low0 = u32_op(l, KOP_mul, w[0], m0);
    k_val high1 = u32_op(l, KOP_mulhi, w[2], m1), low1 = u32_op(l, KOP_mul, w[2], m1);
    w[0] = u32_op(l, KOP_xor, u32_op(l, KOP_xor, high1, w[1]), key[0]);
    w[2] = u32_op(l, KOP_xor, u32_op(l, KOP_xor, high0, w[3]), key[1]);
    w[1] = low1;
    w[3] = low0;
  }
}

static k_val joined(lowering *l, k_val low, k_val high) {
  k_kernel *k = l->k;
  k_val up = k_op(k, KOP_shl, QN_u64, k_cast(k, high, QN_u64), k_const(k, QN_u64, 32), 0);
  return k_op(k, KOP_or, QN_u64, up, k_cast(k, low, QN_u64), 0);
}

/* The top `bits` bits of a u64, plus `plus`, divided by 2^bits. */
static k_val fraction(lowering *l, k_val x, int bits, int plus, qn_dtype d) {
  k_kernel *k = l->k;
  k_val top = k_op(k, KOP_shr, QN_u64, x, k_const(k, QN_u64, (uint64_t)(64 - bits)), 0);
  if (plus) top = k_op(k, KOP_add, QN_u64, top, k_const(k, QN_u64, 1), 0);
  double unit = 1;
  for (int i = 0; i < bits; i++) unit /= 2;
  return k_op(k, KOP_mul, d, k_op(k, KOP_cast, d, top, 0, 0), k_const_f(k, d, unit), 0);
}

static k_val normal(lowering *l, const k_val w[4], qn_dtype d) {
  k_kernel *k = l->k;
  k_val u, v;
  if (dtype_size(d) == 8) {
    u = fraction(l, joined(l, w[0], w[1]), 53, 1, d);
    v = fraction(l, joined(l, w[2], w[3]), 53, 0, d);
  } else {
    k_val more = k_op(k, KOP_add, QN_u64, k_cast(k, w[0], QN_u64), k_const(k, QN_u64, 1), 0);
    u = k_op(k, KOP_mul, d, k_op(k, KOP_cast, d, more, 0, 0), k_const_f(k, d, 0x1p-32), 0);
    k_val top = k_op(k, KOP_shr, QN_u32, w[1], word(l, 8), 0);
    v = k_op(k, KOP_mul, d, k_op(k, KOP_cast, d, top, 0, 0), k_const_f(k, d, 0x1p-24), 0);
  }
  k_val radius =
      k_op(k, KOP_sqrt, d, k_op(k, KOP_mul, d, k_math(k, MATH_log, d, u, 0, 0), k_const_f(k, d, -2), 0), 0, 0);
  k_val angle = k_op(k, KOP_mul, d, v, k_const_f(k, d, 6.283185307179586476925286766559), 0);
  return k_op(k, KOP_mul, d, radius, k_math(k, MATH_cos, d, angle, 0, 0), 0);
}

k_val lower_random(lowering *l, op_id op, qn_dtype type, k_form element, bool small, const k_val *keys) {
  k_kernel *k = l->k;
  k_val w[4];
  philox(l, element, small, keys, w);
  qn_dtype d = dtype_compute(type);
  switch (op) {
  case OP_random_bits: return k_cast(k, joined(l, w[0], w[1]), type);
  case OP_random_uniform: return k_cast(k, fraction(l, joined(l, w[0], w[1]), dtype_rows[type].digits, 0, d), type);
  default: return k_cast(k, normal(l, w, d), type);
  }
}
