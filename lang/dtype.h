/* Element types, promotion, and what a weak host number becomes beside an array. Tables: dtypes.def, promote.def. */
#ifndef LANG_DTYPE_H
#define LANG_DTYPE_H

#include "lang/value.h"

typedef enum dtype_class { DCLASS_BOOL, DCLASS_INT, DCLASS_UINT, DCLASS_FLOAT, DCLASS_COMPLEX } dtype_class;

typedef struct dtype_row {
  const char *name;
  uint8_t size;    /* bytes */
  uint8_t klass;   /* dtype_class */
  uint8_t compute; /* qn_dtype in which kernels compute it */
  const char *doc;
} dtype_row;
extern const dtype_row dtype_rows[QN_DTYPE_COUNT];
enum { DTYPE_PUBLIC = QN_f64 + 1 }; /* arrays have the dtypes below this one */

_Static_assert(QN_bool == 0 && QN_f16 < QN_bf16 && QN_bf16 < QN_f32 && QN_f32 < QN_f64 && QN_f64 < QN_u16,
               "dtypes.def and the enum in quern.h list the same types in the same order");

static inline size_t dtype_size(qn_dtype d) { return dtype_rows[d].size; }
static inline bool dtype_is_float(qn_dtype d) { return d >= QN_f16 && d <= QN_f64; }
static inline bool dtype_is_int(qn_dtype d) { return d >= QN_u8 && d <= QN_i64; } /* public integers */
/* dtype of a name, or QN_DTYPE_COUNT. */
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

/* Does a host scalar fit a dtype's range (rounding is allowed)? */
bool dtype_holds(qn_dtype d, qn_value scalar);

/* Scalar conversions, defined once, used by interpreter, kernels' constants and file code. Round to nearest even. */
uint16_t f32_to_f16(float x);
float f16_to_f32(uint16_t h);
uint16_t f32_to_bf16(float x);
float bf16_to_f32(uint16_t h);
uint16_t f64_to_f16(double x);  /* rounds once */
uint16_t f64_to_bf16(double x); /* rounds once */
/* Reads element `p` of type d as a host scalar (bool, int or float); writes a host scalar as d (must fit). */
qn_value dtype_load(qn_dtype d, const void *p);
void dtype_store(qn_dtype d, void *p, qn_value scalar);

#endif
