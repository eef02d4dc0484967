/* The table of costs.def, by element. */
#include "jit/kernel/costs.h"

typedef struct cost {
  float by[2][COST_TARGETS]; /* by 4 and 8 bytes */
} cost;
#define NUMBERS(a, b, c, d, e, f)                                                                                      \
  {                                                                                                                    \
    {                                                                                                                  \
      {a, b, c}, { d, e, f }                                                                                           \
    }                                                                                                                  \
  }
#define COST_KOP(name, ...) [KOP_##name] = NUMBERS(__VA_ARGS__),
#define COST_MATH(name, ...)
#define COST_CAST(name, ...)
static const cost kops[KOP_COUNT] = {
#include "jit/kernel/costs.def"
};
#undef COST_KOP
#undef COST_MATH
#define COST_KOP(name, ...)
#define COST_MATH(name, ...) [MATH_##name] = NUMBERS(__VA_ARGS__),
static const cost maths[MATH_COUNT] = {
#include "jit/kernel/costs.def"
};
#undef COST_MATH
#undef COST_CAST
#define COST_MATH(name, ...)
#define COST_CAST(name, ...) [QN_##name] = NUMBERS(__VA_ARGS__),
static const cost casts[QN_DTYPE_COUNT] = {
#include "jit/kernel/costs.def"
};

/* Of a table's row, for elements of `size` bytes: a GPU's threads have one each, whatever its size. */
static double of(const cost *c, size_t size, cost_target target) {
  double v = (double)c->by[size == 8][target];
  return target == COST_GPU ? v : v * (double)size / 64;
}

static size_t size_of(uint8_t dtype) { return dtype_size(dtype_compute((qn_dtype)dtype)); }

double kop_cost(uint8_t op, uint8_t dtype, cost_target target) {
  size_t size = size_of(dtype);
  if (kop_is_arg(op)) return of(&kops[KOP_lt], size, target) + 2 * of(&kops[KOP_select], size, target);
  return of(&kops[op], size, target);
}

double math_cost(uint8_t fn, uint8_t dtype, cost_target target) { return of(&maths[fn], size_of(dtype), target); }

double cast_cost(uint8_t from, uint8_t to, cost_target target) {
  if (from == to) return 0;
  uint8_t narrow = casts[from].by[0][0] > 0 ? from : casts[to].by[0][0] > 0 ? to : QN_DTYPE_COUNT;
  size_t size = size_of(dtype_size((qn_dtype)from) > dtype_size((qn_dtype)to) ? from : to);
  if (narrow != QN_DTYPE_COUNT) return of(&casts[narrow], size, target) / 2;
  return of(&kops[KOP_cast], size, target);
}
