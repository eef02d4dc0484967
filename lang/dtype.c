/* Element types: the tables, promotion, and conversions of single elements.
 *
 * Narrow floats are made by one routine that rounds a double once, to nearest even, to a format given by its number of
 * mantissa bits and its smallest exponent; a float is a double first, exactly.
 */
#include "lang/dtype.h"

#include <string.h>

#include "lang/internal.h"

const dtype_row dtype_rows[QN_DTYPE_COUNT] = {
#define DTYPE(name, size, klass, compute, digits, least, spelled, npy, doc)                                            \
  {#name, size, DCLASS_##klass, QN_##compute, digits, least, #spelled, npy, doc},
#include "lang/dtypes.def"
#undef DTYPE
};

enum {
#define DTYPE(name, ...) ROW_##name,
#include "lang/dtypes.def"
#undef DTYPE
  ROWS
};
_Static_assert((int)ROWS == (int)QN_DTYPE_COUNT, "dtypes.def has a row for every dtype of quern.h");

/* Static checks that the columns of dtypes.def fit each class, and that the order of rows is as the predicates of dtype.h assume. */
#define IS_BOOL(d, size, digits, least) (d == QN_bool && size == 1 && digits == 1 && !least)
#define IS_INT(d, size, digits, least) (d >= QN_u8 && d <= QN_i64 && digits == 8 * size - 1 && !least)
#define IS_UINT(d, size, digits, least) (((d >= QN_u8 && d <= QN_i64) || d > QN_f64) && digits == 8 * size && !least)
#define IS_FLOAT(d, size, digits, least) (d >= QN_f16 && d <= QN_f64 && digits < 8 * size && least < 0)
#define IS_COMPLEX(d, size, digits, least) (d > QN_f64 && digits < 4 * size && least < 0)
#define DTYPE(name, size, klass, compute, digits, least, ...)                                                          \
  _Static_assert((int)ROW_##name == (int)QN_##name, "dtypes.def and quern.h agree on " #name);                         \
  _Static_assert(IS_##klass(QN_##name, size, digits, (least)), "the columns of " #name " agree");
#include "lang/dtypes.def"
#undef DTYPE

bool dtype_contains(qn_dtype d, qn_dtype from) {
  const dtype_row *to = &dtype_rows[d], *of = &dtype_rows[from];
  if (dtype_is_float(from) && !dtype_is_float(d)) return false;
  if (dtype_is_signed(from) && to->klass < DCLASS_INT) return false;
  if (dtype_is_signed(from) && to->klass == DCLASS_UINT) return false;
  return of->digits <= to->digits && (!dtype_is_float(from) || of->least >= to->least);
}

qn_dtype dtype_find(const char *name, size_t len) {
  for (int d = 0; d < DTYPE_PUBLIC; d++)
    if (strlen(dtype_rows[d].name) == len && memcmp(dtype_rows[d].name, name, len) == 0) return (qn_dtype)d;
  return QN_DTYPE_COUNT;
}

/* ---- promotion ----------------------------------------------------------------------------------------------- */

/* Rows and columns of the promotion table: the public dtypes, then the weak kinds. */
enum {
#define DTYPE(name, ...) T_##name,
#include "lang/dtypes.def"
#undef DTYPE
};
enum { W_bool = DTYPE_PUBLIC, W_int, W_float, T_COUNT };

static const uint8_t promotions[T_COUNT][T_COUNT] = {
#define PROMOTE(row, ...) [row] = {[row] = __VA_ARGS__},
#include "lang/promote.def"
#undef PROMOTE
};
#define PROMOTE(row, ...)                                                                                              \
  _Static_assert(sizeof((uint8_t[]){__VA_ARGS__}) == T_COUNT - row, "a result for " #row " with every later type");
#include "lang/promote.def"
#undef PROMOTE
#define PROMOTE(row, ...) +1
_Static_assert(0
#include "lang/promote.def"
                   == T_COUNT,
               "promote.def has a row for every public dtype and every weak kind");
#undef PROMOTE

static int promotion_row(operand_type a) {
  if (!a.weak) return (int)a.dtype;
  return dtype_is_bool(a.dtype) ? W_bool : dtype_is_float(a.dtype) ? W_float : W_int;
}

operand_type dtype_promote(operand_type a, operand_type b) {
  int i = promotion_row(a), j = promotion_row(b);
  int r = i <= j ? promotions[i][j] : promotions[j][i];
  switch (r) {
  case W_bool: return (operand_type){WEAK_BOOL, true};
  case W_int: return (operand_type){WEAK_INT, true};
  case W_float: return (operand_type){WEAK_FLOAT, true};
  default: return (operand_type){(qn_dtype)r, false};
  }
}

operand_type dtype_to_float(operand_type a) {
  if (a.weak) return (operand_type){WEAK_FLOAT, true};
  return (operand_type){dtype_is_float(a.dtype) ? a.dtype : DTYPE_FLOAT, false};
}

operand_type value_operand_type(qn_value v) {
  switch (value_tag_of(v)) {
  case TAG_ARRAY: return (operand_type){(qn_dtype)value_array(v)->dtype, false};
  case TAG_BOOL: return (operand_type){WEAK_BOOL, true};
  case TAG_INT: return (operand_type){WEAK_INT, true};
  default: return (operand_type){WEAK_FLOAT, true};
  }
}

/* ---- narrow floats ------------------------------------------------------------------------------------------- */

/* The bits of |x| in a format whose mantissa has `mantissa` stored bits and whose exponent has this bias. If rounding carries out of the
 * mantissa the exponent grows by one, which is right, up to infinity. */
static uint32_t round_narrow(double x, int mantissa, int bias) {
  uint64_t bits;
  memcpy(&bits, &x, 8);
  bits &= ~((uint64_t)1 << 63);
  uint32_t infinity = (uint32_t)(2 * bias + 1) << mantissa;
  if (bits > (uint64_t)0x7ff << 52) return infinity | 1u << (mantissa - 1); /* the one quiet NaN */
  int e = (int)(bits >> 52) - 1023;
  if (e > bias) return infinity;
  uint64_t m = (bits & 0xfffffffffffff) | (uint64_t)1 << 52;
  int drop = 52 - mantissa;
  int smallest = 1 - bias; /* exponent of the smallest normal number */
  if (e < smallest) {
    drop += smallest - e;
    if (drop > 53) return 0; /* less than half the smallest number */
  }
  uint64_t kept = m >> drop, rest = m & (((uint64_t)1 << drop) - 1), half = (uint64_t)1 << (drop - 1);
  kept += rest > half || (rest == half && (kept & 1));
  if (e < smallest) return (uint32_t)kept;
  return ((uint32_t)(e + bias - 1) << mantissa) + (uint32_t)kept;
}

static uint16_t sign_bit(double x) { return __builtin_signbit(x) ? 0x8000 : 0; }

uint16_t f64_to_f16(double x) { return (uint16_t)(round_narrow(x, 10, 15) | sign_bit(x)); }
uint16_t f64_to_bf16(double x) { return (uint16_t)(round_narrow(x, 7, 127) | sign_bit(x)); }
float bf16_to_f32(uint16_t h) {
  uint32_t bits = (uint32_t)h << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

float f16_to_f32(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff, bits;
  if (e == 31) {
    bits = sign | 0x7f800000 | m << 13;
  } else if (e) {
    bits = sign | (e + 112) << 23 | m << 13;
  } else if (m) {
    int shift = __builtin_clz(m) - 21; /* brings the top bit to bit 10 */
    bits = sign | (uint32_t)(113 - shift) << 23 | (m << shift & 0x3ff) << 13;
  } else {
    bits = sign;
  }
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

/* ---- elements ------------------------------------------------------------------------------------------------ */

double dtype_round(qn_dtype d, double x) {
  uint64_t element;
  if (!dtype_is_narrow(d)) return dtype_size(d) == 4 ? (float)x : x;
  dtype_store(d, &element, value_float(x));
  return dtype_load(d, &element).u.f;
}

bool dtype_holds(qn_dtype d, qn_value scalar) {
  if (value_is(scalar, TAG_BOOL)) return true;
  if (dtype_rows[d].klass < DCLASS_FLOAT) {
    int64_t i = scalar.u.i;
    if (value_is(scalar, TAG_FLOAT)) {
      double f = scalar.u.f;
      if (!(f >= -0x1p63 && f < 0x1p63) || (double)(int64_t)f != f) return false;
      i = (int64_t)f;
    }
    return i >= dtype_min(d) && (i < 0 || (uint64_t)i <= dtype_max(d));
  }
  double f = value_is(scalar, TAG_FLOAT) ? scalar.u.f : (double)scalar.u.i;
  if (f - f != 0) return true; /* NaN and infinities exist in every float type */
  double rounded = dtype_round(d, f);
  return rounded - rounded == 0;
}

#define LOAD(type, make)                                                                                               \
  do {                                                                                                                 \
    type e;                                                                                                            \
    memcpy(&e, p, sizeof e);                                                                                           \
    return make;                                                                                                       \
  } while (0)

qn_value dtype_load(qn_dtype d, const void *p) {
  switch (d) {
  case QN_bool: LOAD(uint8_t, value_bool(e != 0));
  case QN_u8: LOAD(uint8_t, value_int(e));
  case QN_i8: LOAD(int8_t, value_int(e));
  case QN_i16: LOAD(int16_t, value_int(e));
  case QN_i32: LOAD(int32_t, value_int(e));
  case QN_i64: LOAD(int64_t, value_int(e));
  case QN_f16: LOAD(uint16_t, value_float((double)f16_to_f32(e)));
  case QN_bf16: LOAD(uint16_t, value_float((double)bf16_to_f32(e)));
  case QN_f32: LOAD(float, value_float((double)e));
  case QN_f64: LOAD(double, value_float(e));
  case QN_u16: LOAD(uint16_t, value_int(e));
  case QN_u32: LOAD(uint32_t, value_int(e));
  case QN_u64: LOAD(uint64_t, value_int((int64_t)e));
  case QN_c64:
  case QN_c128:
  case QN_DTYPE_COUNT: break;
  }
  return value_nil();
}

#define STORE(type, x)                                                                                                 \
  do {                                                                                                                 \
    type e = (type)(x);                                                                                                \
    memcpy(p, &e, sizeof e);                                                                                           \
    return;                                                                                                            \
  } while (0)

void dtype_store(qn_dtype d, void *p, qn_value scalar) {
  bool is_float = value_is(scalar, TAG_FLOAT);
  int64_t i = is_float && !dtype_is_float(d) ? (int64_t)scalar.u.f : scalar.u.i;
  double f = is_float ? scalar.u.f : (double)scalar.u.i;
  switch (d) {
  case QN_bool: STORE(uint8_t, i != 0);
  case QN_u8: STORE(uint8_t, i);
  case QN_i8: STORE(int8_t, i);
  case QN_i16: STORE(int16_t, i);
  case QN_i32: STORE(int32_t, i);
  case QN_i64: STORE(int64_t, i);
  case QN_f16: STORE(uint16_t, f64_to_f16(f));
  case QN_bf16: STORE(uint16_t, f64_to_bf16(f));
  /* A 64-bit integer is rounded once, not by way of a double. */
  case QN_f32: STORE(float, is_float ? (float)f : (float)i);
  case QN_f64: STORE(double, f);
  case QN_u16: STORE(uint16_t, i);
  case QN_u32: STORE(uint32_t, i);
  case QN_u64: STORE(uint64_t, i);
  case QN_c64:
  case QN_c128:
  case QN_DTYPE_COUNT: return;
  }
}
