/* Element types: the promotion grid against the language's rules, conversions, ranges. */
#include <math.h>

#include "tests/unit/lang.h"

/* ---- promotion ----------------------------------------------------------------------------------------------- */

static int int_bits(qn_dtype d) { return d == QN_bool ? 0 : (int)dtype_size(d) * 8; }

/* The rules of the language page, in its order, written as rules. */
static operand_type expected(operand_type a, operand_type b) {
  bool fa = dtype_is_float(a.dtype), fb = dtype_is_float(b.dtype);
  if (a.weak && b.weak) {
    qn_dtype d = fa || fb ? QN_f64 : a.dtype == QN_i64 || b.dtype == QN_i64 ? QN_i64 : QN_bool;
    return (operand_type){d, true};
  }
  if (b.weak) return expected(b, a);
  if (a.weak) { /* beside an array of type b */
    if (fb) return b;
    if (fa) return (operand_type){QN_f32, false};
    if (b.dtype == QN_bool && a.dtype == QN_i64) return (operand_type){QN_i64, false};
    return b;
  }
  if (a.dtype == QN_f64 || b.dtype == QN_f64) return (operand_type){QN_f64, false};
  if (fa && fb) {
    if (a.dtype == b.dtype) return a;
    return (operand_type){QN_f32, false}; /* the wider is f32 in all these pairs; f16 with bf16 is f32, too */
  }
  if (fa) return a;
  if (fb) return b;
  if (a.dtype == b.dtype || b.dtype == QN_bool) return a;
  if (a.dtype == QN_bool) return b;
  bool ua = a.dtype == QN_u8, ub = b.dtype == QN_u8;
  int bits = int_bits(a.dtype) > int_bits(b.dtype) ? int_bits(a.dtype) : int_bits(b.dtype);
  if (ua != ub && bits == 8) bits = 16;
  return (operand_type){bits == 8 ? QN_i8 : bits == 16 ? QN_i16 : bits == 32 ? QN_i32 : QN_i64, false};
}

START_TEST(every_pair_promotes_by_the_rules) {
  operand_type all[DTYPE_PUBLIC + 3];
  int n = 0;
  for (int d = 0; d < DTYPE_PUBLIC; d++) all[n++] = (operand_type){(qn_dtype)d, false};
  all[n++] = (operand_type){QN_bool, true};
  all[n++] = (operand_type){QN_i64, true};
  all[n++] = (operand_type){QN_f64, true};
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) {
      operand_type got = dtype_promote(all[i], all[j]), want = expected(all[i], all[j]);
      ck_assert_msg(got.dtype == want.dtype && got.weak == want.weak, "%s%s with %s%s gives %s%s, not %s%s",
                    all[i].weak ? "weak " : "", dtype_rows[all[i].dtype].name, all[j].weak ? "weak " : "",
                    dtype_rows[all[j].dtype].name, got.weak ? "weak " : "", dtype_rows[got.dtype].name,
                    want.weak ? "weak " : "", dtype_rows[want.dtype].name);
      operand_type back = dtype_promote(all[j], all[i]);
      ck_assert(back.dtype == got.dtype && back.weak == got.weak);
    }
}
END_TEST

START_TEST(operands_have_types) {
  qn_vm *vm = vm_make();
  qn_value a = value_obj(TAG_ARRAY, array_new(vm, QN_i16, 0, NULL));
  operand_type t = value_operand_type(a);
  ck_assert(t.dtype == QN_i16 && !t.weak);
  value_release(vm, a);
  t = value_operand_type(value_int(1));
  ck_assert(t.dtype == QN_i64 && t.weak);
  t = value_operand_type(value_float(1));
  ck_assert(t.dtype == QN_f64 && t.weak);
  t = value_operand_type(value_bool(1));
  ck_assert(t.dtype == QN_bool && t.weak);
  t = dtype_to_float((operand_type){QN_i64, false});
  ck_assert(t.dtype == QN_f32 && !t.weak);
  t = dtype_to_float((operand_type){QN_bf16, false});
  ck_assert(t.dtype == QN_bf16);
  t = dtype_to_float((operand_type){QN_i64, true});
  ck_assert(t.dtype == QN_f64 && t.weak);
  ck_assert_int_eq(dtype_find("bf16", 4), QN_bf16);
  ck_assert_int_eq(dtype_find("bool", 4), QN_bool);
  ck_assert_int_eq(dtype_find("f3", 2), QN_DTYPE_COUNT);
  ck_assert_int_eq(dtype_find("u64", 3), QN_DTYPE_COUNT); /* reserved */
  vm_close(vm);
}
END_TEST

/* ---- narrow floats ------------------------------------------------------------------------------------------- */

/* The value of an f16 or bf16 pattern by the definition. */
static double by_definition(uint16_t h, int mantissa, int bias) {
  int e = (h & 0x7fff) >> mantissa, m = h & ((1 << mantissa) - 1), top = 2 * bias + 1;
  double x = e == top ? m ? NAN : INFINITY
             : e      ? ldexp((1 << mantissa) + m, e - bias - mantissa)
                      : ldexp(m, 1 - bias - mantissa);
  return h & 0x8000 ? -x : x;
}

START_TEST(every_half_converts_both_ways) {
  for (uint32_t h = 0; h < 0x10000; h++) {
    double want = by_definition((uint16_t)h, 10, 15), brain = by_definition((uint16_t)h, 7, 127);
    float got = f16_to_f32((uint16_t)h), gotb = bf16_to_f32((uint16_t)h);
    if (want != want) {
      ck_assert(got != got && f64_to_f16(got) == ((h & 0x8000) | 0x7e00));
    } else {
      ck_assert_msg((double)got == want && !signbit(got) == !signbit(want), "%x: %a %a", h, (double)got, want);
      ck_assert_uint_eq(f64_to_f16(got), h);
      ck_assert_uint_eq(f64_to_f16(want), h);
    }
    if (brain != brain) {
      ck_assert(gotb != gotb && f64_to_bf16(gotb) == ((h & 0x8000) | 0x7fc0));
    } else {
      ck_assert((double)gotb == brain && !signbit(gotb) == !signbit(brain));
      ck_assert_uint_eq(f64_to_bf16(gotb), h);
      ck_assert_uint_eq(f64_to_bf16(brain), h);
    }
  }
}
END_TEST

/* Rounding by exact arithmetic: scale so that the last kept bit is worth 1, round half to even there, scale back. */
static double rounded(double x, int mantissa, int bias) {
  if (x != x || isinf(x) || x == 0) return x;
  int e;
  frexp(x, &e);
  e--;
  if (e < 1 - bias) e = 1 - bias;
  double scaled = ldexp(x, mantissa - e); /* exact unless it underflows, and then it is far below 1/2 */
  double r = ldexp(nearbyint(scaled), e - mantissa);
  double max = ldexp(2 - ldexp(1, -mantissa), bias);
  return r > max ? INFINITY : r < -max ? -INFINITY : r;
}

START_TEST(doubles_round_once_to_even) {
  uint64_t state = 88172645463325252u;
  for (int i = 0; i < 300000; i++) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    uint64_t bits = state;
    int span = i % 2 ? 300 : 48; /* exponents around the range of bf16, of f16 */
    bits = (bits & 0x800fffffffffffffu) | (uint64_t)(1023 - span / 2 + (int)(bits >> 52 & 0x7ff) % span) << 52;
    if (i % 3 == 0) bits &= ~(uint64_t)0 << 40; /* ties */
    double x;
    memcpy(&x, &bits, 8);
    double h = (double)f16_to_f32(f64_to_f16(x)), b = (double)bf16_to_f32(f64_to_bf16(x));
    if (h != rounded(x, 10, 15) || !signbit(h) != !signbit(x)) ck_abort_msg("f16(%a) is %a", x, h);
    if (b != rounded(x, 7, 127) || !signbit(b) != !signbit(x)) ck_abort_msg("bf16(%a) is %a", x, b);
    float f = (float)x;
    h = (double)f16_to_f32(f64_to_f16(f));
    b = (double)bf16_to_f32(f64_to_bf16(f));
    if (h != rounded((double)f, 10, 15)) ck_abort_msg("f16(%a) is %a", (double)f, h);
    if (b != rounded((double)f, 7, 127)) ck_abort_msg("bf16(%a) is %a", (double)f, b);
  }
  ck_assert_uint_eq(f64_to_f16(65519.999), 0x7bff);
  ck_assert_uint_eq(f64_to_f16(65520), 0x7c00);
  ck_assert_uint_eq(f64_to_f16(0x1p-25), 0);
  ck_assert_uint_eq(f64_to_f16(0x1.0000001p-25), 1);
  /* 1 + 2^-8 + 2^-40: by way of a float it would be a tie and go down. */
  ck_assert_uint_eq(f64_to_bf16(1 + 0x1p-8 + 0x1p-40), 0x3f81);
}
END_TEST

/* ---- elements ------------------------------------------------------------------------------------------------ */

START_TEST(ranges_of_dtypes) {
  struct {
    qn_dtype d;
    qn_value v;
    bool holds;
  } rows[] = {{QN_u8, value_int(255), true},
              {QN_u8, value_int(256), false},
              {QN_u8, value_int(-1), false},
              {QN_i8, value_int(-128), true},
              {QN_i8, value_int(128), false},
              {QN_i16, value_int(32768), false},
              {QN_i32, value_int(INT32_MIN), true},
              {QN_i32, value_int((int64_t)INT32_MAX + 1), false},
              {QN_i64, value_int(INT64_MIN), true},
              {QN_i64, value_float(0x1p63), false},
              {QN_i32, value_float(2), true},
              {QN_i32, value_float(2.5), false},
              {QN_i32, value_float(__builtin_nan("")), false},
              {QN_bool, value_int(1), true},
              {QN_bool, value_int(2), false},
              {QN_bool, value_bool(true), true},
              {QN_u8, value_bool(true), true},
              {QN_f16, value_int(65519), true},
              {QN_f16, value_int(65520), false},
              {QN_f16, value_float(0.1), true},
              {QN_f16, value_float(__builtin_inf()), true},
              {QN_bf16, value_float(3.4e38), false},
              {QN_bf16, value_float(3.38e38), true},
              {QN_f32, value_float(1e300), false},
              {QN_f32, value_float(0x1.fffffep127), true},
              {QN_f32, value_float(0x1.fffffefffffffp127), true},
              {QN_f32, value_float(0x1.ffffffp127), false},
              {QN_f32, value_float(__builtin_nan("")), true},
              {QN_f32, value_int(INT64_MAX), true},
              {QN_f64, value_float(1e308), true}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    ck_assert_msg(dtype_holds(rows[i].d, rows[i].v) == rows[i].holds, "row %zu", i);
}
END_TEST

START_TEST(elements_are_stored_and_loaded) {
  unsigned char p[16];
  int64_t ints[] = {0, 1, -1, 100, 127, -128, 255, 32767, INT32_MAX, INT64_MIN};
  for (int d = 0; d < QN_c64; d++)
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
      qn_value v = value_int(ints[i]);
      if (!dtype_holds((qn_dtype)d, v)) continue;
      memset(p, 0xaa, sizeof p);
      dtype_store((qn_dtype)d, p, v);
      ck_assert_uint_eq(p[dtype_size((qn_dtype)d)], 0xaa);
      qn_value back = dtype_load((qn_dtype)d, p);
      if (d == QN_bool)
        ck_assert(value_is(back, TAG_BOOL) && back.u.i == ints[i]);
      else if (dtype_is_float((qn_dtype)d))
        ck_assert(value_is(back, TAG_FLOAT));
      else
        ck_assert(value_is(back, TAG_INT) && back.u.i == ints[i]);
    }
  dtype_store(QN_f32, p, value_float(0.1));
  ck_assert(dtype_load(QN_f32, p).u.f == (double)0.1f);
  dtype_store(QN_f64, p, value_bool(true));
  ck_assert(dtype_load(QN_f64, p).u.f == 1.0);
  /* 2^53 + 2^29 + 1 would round to 2^53 by way of a double. */
  int64_t i = ((int64_t)1 << 53) + ((int64_t)1 << 29) + 1;
  dtype_store(QN_f32, p, value_int(i));
  ck_assert(dtype_load(QN_f32, p).u.f == 0x1.000002p53);
  dtype_store(QN_i32, p, value_float(-7.0));
  ck_assert_int_eq(dtype_load(QN_i32, p).u.i, -7);
}
END_TEST

int main(void) {
  Suite *s = suite_create("lang_dtype");
  CASE(tcase_create("promotion"), every_pair_promotes_by_the_rules, operands_have_types);
  CASE(tcase_create("halves"), every_half_converts_both_ways, doubles_round_once_to_even);
  CASE(tcase_create("elements"), ranges_of_dtypes, elements_are_stored_and_loaded);
  return run_suite(s);
}
