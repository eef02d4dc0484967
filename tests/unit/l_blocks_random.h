/* Random programs over blocks: loads with guards, arithmetic that spreads rows and columns, reductions both ways, products, carries that change
 * places, many results, detours through a local. */
#ifndef TESTS_L_BLOCKS_RANDOM_H
#define TESTS_L_BLOCKS_RANDOM_H

#include "tests/unit/l_random.h"

enum { BLOCK_POOL = 64, BLOCK_ELEMENTS = 4096, BLOCK_INPUTS = 6 };
typedef struct block_random {
  l_program *p;
  uint64_t s;
  l_val pool[BLOCK_POOL];
  uint32_t n;
  l_val at, zero, one, ints[8], top, cols, local;
  l_block shapes[7]; /* R x C, 1 x C, R x 1, 1 x 1, R x K, K x C, C x R */
} block_random;

static uint32_t block_below(block_random *g, uint32_t n) {
  g->s = g->s * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((g->s >> 33) % n);
}
static l_val block_emit(block_random *g, l_instr i, const l_block *b) {
  if (b) i.block = l_block_add(g->p, *b);
  return l_emit(g->p, i);
}
static void block_add(block_random *g, l_val v) {
  if (g->n < BLOCK_POOL) g->pool[g->n++] = v;
}
/* A value of the pool of this dtype that spreads to the shape, or 0. `exact`: that has it. */
static l_val block_any(block_random *g, uint8_t dtype, const l_block *to, bool exact) {
  for (uint32_t k = 0, from = g->n ? block_below(g, g->n) : 0; k < g->n; k++) {
    l_val v = g->pool[(from + k) % g->n];
    const l_block *b = l_block_of(g->p, v);
    if (g->p->code[v].dtype != dtype) continue;
    bool same = b && b->rows == to->rows && b->cols == to->cols;
    if (same || (!exact && (!b || ((b->rows == to->rows || b->rows == 1) && (b->cols == to->cols || b->cols == 1)))))
      return v;
  }
  return 0;
}
static l_val block_int(block_random *g) { return g->ints[block_below(g, 8)]; }

static const uint8_t block_dtypes[BLOCK_INPUTS] = {QN_f32, QN_f64, QN_i64, QN_f16, QN_bf16, QN_i32};

static l_val block_load(block_random *g, uint32_t buffer, const l_block *b) {
  l_instr i = {.code = L_BLOAD, .dtype = block_dtypes[buffer], .imm = buffer, .a = g->at, .b = g->one};
  if (block_below(g, 4)) i.d = block_int(g);
  if (!block_below(g, 4)) i.b = block_int(g);
  if (!block_below(g, 2)) i.e = block_int(g);
  if (!block_below(g, 2)) i.f = block_int(g);
  if (!block_below(g, 3)) i.g = block_any(g, QN_bool, b, false);
  if (!block_below(g, 2)) i.h = block_any(g, i.dtype, b, false);
  return block_emit(g, i, b);
}

/* One instruction, of values of the pool. */
static void block_step(block_random *g) {
  static const uint8_t binary[] = {KOP_add, KOP_sub, KOP_mul, KOP_min, KOP_max};
  const l_block *b = &g->shapes[block_below(g, 7)];
  uint8_t dtype = block_dtypes[block_below(g, BLOCK_INPUTS)], compute = dtype_rows[dtype].compute;
  l_val x = block_any(g, dtype, b, false), y = block_any(g, dtype, b, false), v = 0;
  bool narrow = compute != dtype;
  switch (block_below(g, 15)) {
  case 0: block_add(g, block_load(g, block_below(g, BLOCK_INPUTS), b)); return;
  case 1:
    v = block_emit(g,
                   (l_instr){.code = L_IOTA,
                             .dtype = QN_i64,
                             .a = block_int(g),
                             .b = block_below(g, 3) ? block_int(g) : 0,
                             .c = block_below(g, 2) ? block_int(g) : 0},
                   b);
    break;
  case 2:
    if (x && !narrow) v = block_emit(g, (l_instr){.code = L_KOP, .sub = KOP_lt, .dtype = QN_bool, .a = x, .b = y}, b);
    break;
  case 3: {
    l_val test = block_any(g, QN_bool, b, false);
    if (x && test)
      v = block_emit(g, (l_instr){.code = L_KOP, .sub = KOP_select, .dtype = dtype, .a = test, .b = x, .c = y}, b);
    break;
  }
  case 4: {
    static const uint8_t to[] = {QN_f32, QN_f64};
    uint8_t other = narrow ? compute : to[block_below(g, 2)];
    if (!narrow && dtype_is_float(dtype) && block_below(g, 2)) other = block_below(g, 2) ? QN_f16 : QN_bf16;
    if (x && other != dtype) v = block_emit(g, (l_instr){.code = L_KOP, .sub = KOP_cast, .dtype = other, .a = x}, b);
    break;
  }
  case 5:
    if (x && !narrow && dtype_is_float(dtype))
      v = block_emit(
          g, (l_instr){.code = L_MATH, .sub = block_below(g, 2) ? MATH_exp : MATH_sin, .dtype = dtype, .a = x}, b);
    break;
  case 6:
  case 7: {
    static const uint8_t ops[] = {KOP_add, KOP_max, KOP_min, KOP_mul, KOP_argmax, KOP_argmin};
    l_instr i = {.code = L_BREDUCE, .sub = ops[block_below(g, 6)], .a = block_any(g, dtype, b, true)};
    const l_block *of = i.a ? l_block_of(g->p, i.a) : NULL;
    bool arg = i.sub == KOP_argmax || i.sub == KOP_argmin, down = block_below(g, 2);
    if (!of || narrow) break;
    i.dtype = arg ? (uint8_t)DTYPE_INDEX : dtype;
    static const uint8_t orders[] = {ORDER_INNER, ORDER_OUTER, ORDER_TREE};
    i.imm =
        arg || !dtype_is_float(dtype) || i.sub == KOP_min || i.sub == KOP_max ? ORDER_FREE : orders[block_below(g, 3)];
    if (down) i.flags = L_DOWN;
    l_block to = *of;
    *(down ? &to.rows : &to.cols) = 1;
    v = block_emit(g, i, &to);
    break;
  }
  case 8: {
    const l_block *to = &g->shapes[0];
    l_instr i = {.code = L_BDOT,
                 .dtype = compute,
                 .b = block_any(g, dtype, &g->shapes[4], true),
                 .c = block_any(g, dtype, &g->shapes[5], true),
                 .a = block_any(g, compute, to, true)};
    if (i.a && i.b && i.c) v = block_emit(g, i, to);
    break;
  }
  case 12:
    if (!(x = block_any(g, dtype, &g->shapes[3], true)) || narrow) break;
    v = l_emit(g->p, (l_instr){.code = L_BVALUE, .dtype = dtype, .a = x});
    break;
  case 13: { /* through a local, the other way round */
    const l_block *from = &g->shapes[0], *to = &g->shapes[6];
    if (dtype != QN_f32 || !(x = block_any(g, dtype, from, true))) break;
    (void)l_emit(
        g->p, (l_instr){.code = L_BSTORE, .imm = -(int64_t)g->local, .h = x, .a = g->zero, .b = g->one, .d = g->cols});
    v = block_emit(
        g,
        (l_instr){.code = L_BLOAD, .dtype = dtype, .imm = -(int64_t)g->local, .a = g->zero, .b = g->cols, .d = g->one},
        to);
    break;
  }
  case 9: { /* many results */
    if (!(x = block_any(g, dtype, b, true)) || narrow || g->top == 0) break;
    bool real = dtype_is_float(dtype);
    l_val acc = l_emit(
        g->p,
        (l_instr){.code = L_ACC, .sub = KOP_add, .dtype = dtype, .imm = real ? ORDER_OUTER : ORDER_FREE, .a = g->top});
    l_val loop = l_emit(g->p, (l_instr){.code = L_FOR, .a = g->zero, .b = block_int(g)});
    (void)loop;
    (void)l_emit(g->p, (l_instr){.code = L_PUSH, .a = acc, .b = x});
    l_end(g->p);
    v = block_emit(g, (l_instr){.code = L_FINISH, .dtype = dtype, .a = acc}, b);
    break;
  }
  default:
    if (x && !narrow)
      v = block_emit(g, (l_instr){.code = L_KOP, .sub = binary[block_below(g, 5)], .dtype = dtype, .a = x, .b = y}, b);
    break;
  }
  if (v) block_add(g, v);
}

static void block_steps(block_random *g, uint32_t n) {
  while (n--) block_step(g);
}

static inline l_program *block_random_program(uint64_t seed, rnd_info *info) {
  static const uint16_t rows[] = {1, 2, 3, 5, 66}, cols[] = {1, 3, 8, 17, 64, 130};
  block_random r = {.p = l_new("random_blocks"), .s = seed * 0x9e3779b97f4a7c15u + 99}, *g = &r;
  l_program *p = g->p;
  for (int k = 0; k < 5; k++) (void)block_below(g, 2);
  uint16_t R = rows[block_below(g, block_below(g, 4) ? 4 : 5)], C = cols[block_below(g, R > 60 ? 4 : 6)],
           K = cols[block_below(g, 4)];
  const uint16_t shapes[7][2] = {{R, C}, {1, C}, {R, 1}, {1, 1}, {R, K}, {K, C}, {C, R}};
  for (int k = 0; k < 7; k++)
    g->shapes[k] = (l_block){.rows = shapes[k][0], .cols = shapes[k][1], .across = 1, .down = 1, .each = 1};
  for (uint32_t k = 0; k < BLOCK_INPUTS; k++) (void)l_buffer_add(p, block_dtypes[k], BUF_IN, 0);
  g->zero = l_int(p, 0);
  g->one = l_int(p, 1);
  l_val n = l_param(p, 0), step = l_int(p, 500);
  const int64_t ints[8] = {0, 1, 2, 3, 5, R, C, -1};
  for (int k = 0; k < 8; k++) g->ints[k] = l_int(p, ints[k]);
  g->ints[7] = g->ints[1]; /* nothing is before a buffer */
  g->top = l_int(p, (int64_t)(R > K ? R : K) * C > (int64_t)R * K ? (int64_t)(R > K ? R : K) * C : (int64_t)R * K);
  g->cols = l_int(p, C);
  (void)l_emit(p, (l_instr){.code = L_PHASE});
  l_val par = l_emit(p, (l_instr){.code = L_PAR, .a = n, .imm = 1});
  g->local = l_emit(p, (l_instr){.code = L_LOCAL, .dtype = QN_f32, .a = g->top});
  l_val me = l_emit(p, (l_instr){.code = L_VAR, .a = par});
  g->at = l_index(p, L_IMUL, me, step);
  /* what goes far may read 66 * 66 elements on: only from the first instance */
  if ((int64_t)R * C + (int64_t)C * R > 900) g->at = g->zero;
  block_add(g, l_const(p, QN_f32, 0x3fc00000));
  for (uint32_t k = 0; k < BLOCK_INPUTS; k++) block_add(g, block_load(g, k, &g->shapes[block_below(g, 7)]));
  if (!block_below(g, 3)) /* a product */
    for (int k = 0; k < 3; k++) block_add(g, block_load(g, block_below(g, 2) ? 0 : 2, &g->shapes[k ? 3 + k : 0]));
  block_steps(g, 4 + block_below(g, 16));
  if (block_below(g, 2)) { /* a loop whose carries change places */
    uint8_t dtype = block_dtypes[block_below(g, 3)];
    const l_block *b = &g->shapes[block_below(g, 7)];
    l_val x = block_any(g, dtype, b, true), y = block_any(g, dtype, b, true);
    if (x && y) {
      l_val cx = block_emit(g, (l_instr){.code = L_CARRY, .dtype = dtype, .a = x}, b);
      l_val cy = block_emit(g, (l_instr){.code = L_CARRY, .dtype = dtype, .a = y}, b);
      block_add(g, cx);
      block_add(g, cy);
      (void)l_emit(p, (l_instr){.code = L_FOR, .a = g->zero, .b = block_int(g)});
      uint32_t outside = g->n;
      block_steps(g, block_below(g, 8));
      l_val next = block_any(g, dtype, b, true);
      (void)l_emit(p, (l_instr){.code = L_SET, .a = cx, .b = block_below(g, 2) ? cy : next});
      (void)l_emit(p, (l_instr){.code = L_SET, .a = cy, .b = block_below(g, 2) ? cx : next});
      l_end(p);
      g->n = outside;
    }
  }
  block_steps(g, block_below(g, 8));
  uint32_t stored = 0;
  for (uint32_t k = g->n; k-- > 1 && stored < 8;) {
    const l_block *b = l_block_of(p, g->pool[k]);
    if (!b || (stored > 3 && block_below(g, 2))) continue;
    int64_t size = (int64_t)b->rows * b->cols;
    if (size > BLOCK_ELEMENTS / 3) continue;
    int buffer = l_buffer_add(p, (qn_dtype)p->code[g->pool[k]].dtype, BUF_OUT, 0);
    l_val each = l_int(p, size), width = l_int(p, b->cols);
    l_instr i = {
        .code = L_BSTORE, .imm = buffer, .h = g->pool[k], .a = l_index(p, L_IMUL, me, each), .b = g->one, .d = width};
    if (!block_below(g, 3)) i.e = block_int(g);
    if (!block_below(g, 3)) i.f = block_int(g);
    if (!block_below(g, 3)) i.g = block_any(g, QN_bool, b, false);
    (void)l_emit(p, i);
    stored++;
  }
  l_end(p);
  *info = (rnd_info){.ints = {3}, .elements = 8 * BLOCK_ELEMENTS};
  return p;
}

#endif
