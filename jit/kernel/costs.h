/* What kernel primitives, functions and casts cost on a kind of processor, as measured (costs.def): the price model of schedules. */
#ifndef JIT_KERNEL_COSTS_H
#define JIT_KERNEL_COSTS_H

#include "jit/kernel/l.h"

typedef enum cost_target { COST_AVX512, COST_AVX2, COST_GPU, COST_TARGETS } cost_target;
/* Of one element: cycles of a core in vector code, or issue slots of a warp (in which each of 32 threads has an element). `op` is a kop_id other
 * than KOP_cast, `dtype` the dtype of its operands, narrow floats as f32. arg* cost what a compare and two selects do. */
double kop_cost(uint8_t op, uint8_t dtype, cost_target target);
/* `fn` is a math_id; integers, which a few functions have, cost what floats of their size do. */
double math_cost(uint8_t fn, uint8_t dtype, cost_target target);
double cast_cost(uint8_t from, uint8_t to, cost_target target);

#endif
