/* Texts of the kernel primitives (prims.def) and elementary functions (math.def) for printed kernels, and their names.
 *
 * A printer notes the names it uses (math_use), then math_print writes what these need, each definition once, in order. The
 * text expects the types b8 u8 i8 u16 i16 u32 i32 u64 i64 f16 bf16 f32 f64 to be defined before it. */
#ifndef JIT_KERNEL_MATH_H
#define JIT_KERNEL_MATH_H

#include "jit/kernel/l.h"

typedef enum math_target { MATH_TARGET_C, MATH_TARGET_CUDA } math_target;

enum { MATH_TEXTS_MAX = 1536 };
/* The names that a printer has used. Zero it at first. */
typedef struct math_uses {
  uint64_t bits[MATH_TEXTS_MAX / 64];
  bool failed; /* an unknown name was used (a defect) */
} math_uses;
/* Notes the use of a primitive or function: add_f32, cast_i64_f32, exp_f64 ... */
void math_use(math_uses *u, const char *name);
/* Is there a definition with this name? */
bool math_known(const char *name);
void math_print(const math_uses *u, math_target target, text_buf *out);

/* The name of a type in these texts: b8 for bool, else the dtype's name. */
const char *math_type(qn_dtype dtype);
/* Writes the name of an L_MATH's function: exp_f32, isnan_f64, philox_uniform_f32 ... `operand` is the dtype of its last operand. */
void math_name(char *name, size_t size, math_id fn, qn_dtype dtype, qn_dtype operand);

#endif
