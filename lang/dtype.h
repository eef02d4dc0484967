/* Element types, promotion, and what a weak host number becomes beside an array. Tables: dtypes.def, promote.def. */
#ifndef LANG_DTYPE_H
#define LANG_DTYPE_H

#include "lang/value.h"

typedef enum dtype_class { DCLASS_BOOL, DCLASS_INT, DCLASS_UINT, DCLASS_FLOAT, DCLASS_COMPLEX } dtype_class;

/* A row of dtypes.def, where the columns are explained. */
typedef struct dtype_row {
  const char *name;
  uint8_t size;    /* bytes */
  uint8_t klass;   /* dtype_class */
  uint8_t compute; /* qn_dtype */
  uint8_t digits;
  int16_t least;
  const char *spelled;
  char npy[3];
  const char *doc;
} dtype_row;
extern const dtype_row dtype_rows[QN_DTYPE_COUNT];
enum { DTYPE_PUBLIC = QN_f64 + 1 }; /* arrays have the dtypes below this one */

enum { /* DTYPE_T is the dtype whose C type in kernels is T, for macros that work on types */
#define DTYPE(name, size, klass, compute, digits, least, spelled, npy, doc) DTYPE_##spelled = QN_##name,
#include "lang/dtypes.def"
#undef DTYPE
};

/* Dtypes by what the language uses them for. Code uses these names instead of naming a type. */
#define DTYPE_TEST QN_bool /* comparisons, conditions and masks */
#define DTYPE_INDEX QN_i64 /* indices, counts and words of random keys */
#define DTYPE_INT QN_i64   /* arrays of host ints, and sums of narrower integers */
#define DTYPE_FLOAT QN_f32 /* arrays of host floats, quotients of ints, and draws for which no dtype is given */
#define DTYPE_WIDE QN_f64  /* the widest float, in which the host computes */
#define DTYPE_BYTE QN_u8   /* bytes of texts, images and memory */
#define DTYPE_DEEP QN_i32  /* images with 16 bits a sample */
/* The types of host numbers beside arrays and in graphs. */
#define WEAK_BOOL QN_bool
#define WEAK_INT QN_i64
#define WEAK_FLOAT QN_f64

static inline size_t dtype_size(qn_dtype d) { return dtype_rows[d].size; }
static inline bool dtype_public(int d) { return d >= 0 && d < DTYPE_PUBLIC; }
static inline bool dtype_is_bool(qn_dtype d) { return d == QN_bool; }
static inline bool dtype_is_float(qn_dtype d) { return d >= QN_f16 && d <= QN_f64; }
static inline bool dtype_is_int(qn_dtype d) { return d >= QN_u8 && d <= QN_i64; } /* public integers */
static inline bool dtype_is_signed(qn_dtype d) { return dtype_rows[d].klass == DCLASS_INT; }
/* The type in which kernels compute values of `d`. A narrow type is one that is computed in another type. */
static inline qn_dtype dtype_compute(qn_dtype d) { return (qn_dtype)dtype_rows[d].compute; }
static inline bool dtype_is_narrow(qn_dtype d) { return dtype_compute(d) != d; }
/* The largest and the smallest value of a bool or integer type. */
static inline uint64_t dtype_max(qn_dtype d) { return ~(uint64_t)0 >> (64 - dtype_rows[d].digits); }
static inline int64_t dtype_min(qn_dtype d) { return dtype_is_signed(d) ? -(int64_t)dtype_max(d) - 1 : 0; }
/* The largest exponent of a float type, and the bits of its infinity. */
static inline int dtype_bias(qn_dtype d) { return 2 - dtype_rows[d].digits - dtype_rows[d].least; }
static inline uint64_t dtype_infinity(qn_dtype d) {
  return (uint64_t)(2 * dtype_bias(d) + 1) << (dtype_rows[d].digits - 1);
}
/* u32 and u64: words of kernels, which compute with the public dtypes and with these. */
static inline bool dtype_is_word(qn_dtype d) { return d == QN_u32 || d == QN_u64; }
static inline bool dtype_in_kernels(qn_dtype d) { return dtype_public((int)d) || dtype_is_word(d); }
/* Is every value of `from` a value of `d`? */
bool dtype_contains(qn_dtype d, qn_dtype from);
/* The dtype of this name, or QN_DTYPE_COUNT. */
qn_dtype dtype_find(const char *name, size_t len);

/* The type of an operand in promotion: an array's dtype, or a weak host kind. Weak scalars in graphs have the storage
 * types bool, i64, f64. */
typedef struct operand_type {
  qn_dtype dtype;
  bool weak;
} operand_type;
/* Type of a host scalar or array value. */
operand_type value_operand_type(qn_value v);

/* Result dtype of combining two operands (the page's promotion table, stored as a matrix in promote.def). Both weak: the
 * weak result. */
operand_type dtype_promote(operand_type a, operand_type b);
/* The float dtype that `mean`, `sqrt`, int / int compute in: floats stay, others become f32 (weak: f64, weak). */
operand_type dtype_to_float(operand_type a);

/* Rounds to a float type, once and to nearest even. */
double dtype_round(qn_dtype d, double x);
/* The dtype of an array of host numbers of a weak type. */
static inline qn_dtype dtype_of_weak(qn_dtype weak) { return dtype_is_float(weak) ? DTYPE_FLOAT : weak; }
static inline bool dtype_is_weak(qn_dtype d) { return d == WEAK_BOOL || d == WEAK_INT || d == WEAK_FLOAT; }
/* A host scalar of a dtype's kind: `f` for a float, `i` for others. */
static inline qn_value dtype_scalar(qn_dtype d, double f, int64_t i) {
  return dtype_is_float(d) ? value_float(f) : dtype_is_bool(d) ? value_bool(i != 0) : value_int(i);
}

/* Does a host scalar fit a dtype's range (rounding is allowed)? */
bool dtype_holds(qn_dtype d, qn_value scalar);

/* Scalar conversions, defined once, used by interpreter, kernels' constants and file code. Round to nearest even. */
float f16_to_f32(uint16_t h);
float bf16_to_f32(uint16_t h);
uint16_t f64_to_f16(double x);  /* rounds once */
uint16_t f64_to_bf16(double x); /* rounds once */
/* Reads element `p` of type d as a host scalar (bool, int or float); writes a host scalar as d (must fit). */
qn_value dtype_load(qn_dtype d, const void *p);
void dtype_store(qn_dtype d, void *p, qn_value scalar);

#endif
