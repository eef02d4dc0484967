/* The `body` column of the op table for POINTWISE, REDUCE and SCAN rows, as kernel primitives and functions. */
#ifndef JIT_CPU_OPBODY_H
#define JIT_CPU_OPBODY_H

#include "jit/kernel/l.h"

typedef enum body_kind { BODY_NONE, BODY_KOP, BODY_MATH } body_kind;
typedef struct op_body {
  uint8_t kind;  /* body_kind */
  uint8_t which; /* kop_id or math_id */
} op_body;
extern const op_body op_bodies[OP_COUNT];

#endif
