/* The kernel primitive or function of each POINTWISE, REDUCE and SCAN op: the column `body` of the op table. */
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
