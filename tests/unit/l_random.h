/* Random L programs, legal and free of addresses out of bounds, for comparing executors. Every construct of L appears, but no
 * program means anything. rnd_program(seed, &info) gives a program and the ints, scalars and buffer sizes it runs with.
 *
 * One phase of `rows` instances over `cols` columns with a random sequence of VECs, loops and accumulators; and, for some, a
 * reduction over slabs in two phases. Bits of floats are never looked at (all NaNs count as one value). */
#ifndef TESTS_L_RANDOM_H
#define TESTS_L_RANDOM_H

#include <stdlib.h>
#include <string.h>

#include "jit/kernel/layout.h"

enum { RND_INPUTS = 12, RND_BUFFERS = 64, RND_POOL = 400 };

typedef struct rnd_info {
  int64_t ints[4];
  qk_scalar scalars[3];
  int64_t elements; /* of every buffer */
} rnd_info;

typedef struct rnd {
  l_program *p;
  uint64_t s;
  int64_t rows, cols;
  struct {
    l_val v;
    uint8_t type;
  } pool[RND_POOL];
  int npool, outer; /* pool[outer..] are values of the open VEC */
  bool vec, wide;   /* wide: only what layouts of any number of threads take (layout.h) */
  int loops;        /* open loops inside the VEC */
  l_val zero, one, c, r, row, base, from;
} rnd;

static inline uint32_t rnd_below(rnd *g, uint32_t n) {
  g->s = g->s * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((g->s >> 33) % n);
}

static inline l_val rnd_note(rnd *g, l_val v) {
  if (v && g->npool < RND_POOL) {
    g->pool[g->npool].v = v;
    g->pool[g->npool++].type = g->p->code[v].dtype;
  }
  return v;
}

static inline uint8_t rnd_type(rnd *g) {
  static const uint8_t types[] = {QN_f32, QN_f32,  QN_f32, QN_f32, QN_f64, QN_f64, QN_i64, QN_i64,
                                  QN_i32, QN_bool, QN_u8,  QN_i8,  QN_i16, QN_u32, QN_u64};
  return types[rnd_below(g, sizeof types)];
}

static inline l_val rnd_const(rnd *g, uint8_t type) {
  static const float floats[] = {0, 1, -1, 0.5f, 3, -2.75f, 100, 1e-3f};
  uint64_t bits = 0;
  float f = floats[rnd_below(g, 8)];
  double d = f;
  int64_t n = (int64_t)rnd_below(g, 40) - 8;
  if (type == QN_f32)
    memcpy(&bits, &f, 4);
  else if (type == QN_f64)
    memcpy(&bits, &d, 8);
  else if (type == QN_bool)
    bits = n & 1;
  else if (type == QN_f16)
    bits = 0x3c00u + (uint64_t)(n & 7) * 64;
  else if (type == QN_bf16)
    bits = 0x3f80u + (uint64_t)(n & 7) * 16;
  else
    memcpy(&bits, &n, dtype_size((qn_dtype)type));
  return l_const(g->p, (qn_dtype)type, bits);
}

/* A value of the type, often an old one. */
static inline l_val rnd_value(rnd *g, uint8_t type) {
  for (int i = 0; i < 12 && g->npool; i++) {
    int k = (int)rnd_below(g, (uint32_t)g->npool);
    if (rnd_below(g, 3) && g->npool > 4) k = g->npool - 1 - (int)rnd_below(g, 4);
    if (g->pool[k].type == type) return g->pool[k].v;
  }
  for (int i = 0; i < 6 && g->npool; i++) {
    int k = (int)rnd_below(g, (uint32_t)g->npool);
    uint8_t from = g->pool[k].type;
    if (from == QN_f16 || from == QN_bf16 || type == QN_f16 || type == QN_bf16) continue;
    return rnd_note(g, l_kop(g->p, KOP_cast, (qn_dtype)type, g->pool[k].v, 0, 0));
  }
  return rnd_const(g, type);
}

/* An i64 in 0 .. cols-1 (the VEC does not run without columns). */
static inline l_val rnd_column(rnd *g) {
  l_val n = l_emit(g->p, (l_instr){.code = L_IOTA, .dtype = QN_i64, .a = g->c});
  l_val x = rnd_value(g, QN_i64);
  return l_kop(g->p, KOP_imod, QN_i64, x, n, 0);
}

static inline l_val rnd_load(rnd *g) {
  l_program *p = g->p;
  l_instr i = {.code = L_LOAD, .imm = rnd_below(g, RND_INPUTS), .a = g->base};
  i.dtype = p->buffers[i.imm].dtype;
  uint32_t how = rnd_below(g, g->loops ? 6 : 10);
  if (how == 6 && g->vec) { /* reversed */
    i.a = g->from;          /* base + cols - 1, see rnd_vec */
    i.b = l_int(p, -1);
  } else if (how == 7 && g->vec) { /* a column */
    i.a = g->row;
    i.b = g->r;
  } else if (how == 8 && g->vec) { /* one element */
  } else if (how < 2 && g->vec) {  /* gather */
    i.c = rnd_column(g);
    i.d = g->one;
  } else {
    i.b = g->vec ? g->one : 0;
  }
  if (rnd_below(g, 4) == 0) {
    if (g->vec && rnd_below(g, 2)) i.e = g->one;
    if (g->vec && rnd_below(g, 2)) i.f = g->r;
    if ((!i.e && !i.f) || rnd_below(g, 2)) i.g = rnd_value(g, QN_bool);
    i.h = rnd_const(g, i.dtype);
  }
  l_val v = l_emit(p, i);
  if (i.dtype != QN_f16 && i.dtype != QN_bf16) return rnd_note(g, v);
  rnd_note(g, v);
  return rnd_note(g, l_kop(p, KOP_cast, QN_f32, v, 0, 0));
}

static inline void rnd_pure(rnd *g) {
  l_program *p = g->p;
  uint8_t type = rnd_type(g);
  switch (rnd_below(g, 9)) {
  case 0:
  case 1:
    if (g->vec) rnd_load(g);
    break;
  case 2: rnd_note(g, rnd_const(g, type)); break;
  case 3: {
    uint8_t t = dtype_is_float((qn_dtype)type) ? QN_i64 : type;
    rnd_note(g, l_emit(p, (l_instr){.code = L_IOTA, .dtype = t, .a = g->base, .b = g->vec ? g->one : 0}));
    break;
  }
  case 4: {
    static const math_id fs[] = {MATH_exp, MATH_log,     MATH_tanh, MATH_sin,
                                 MATH_cos, MATH_sigmoid, MATH_sign, MATH_rsqrt};
    static const math_id any[] = {MATH_smul, MATH_floordiv, MATH_mod, MATH_pow, MATH_sign};
    type = rnd_below(g, 2) ? QN_f32 : QN_f64;
    if (rnd_below(g, 2)) {
      rnd_note(g, l_math(p, fs[rnd_below(g, 8)], (qn_dtype)type, rnd_value(g, type), 0, 0));
    } else {
      math_id fn = any[rnd_below(g, 5)];
      l_val a = rnd_value(g, type), b = fn == MATH_sign ? 0 : rnd_value(g, type);
      rnd_note(g, l_math(p, fn, (qn_dtype)type, a, b, 0));
    }
    if (rnd_below(g, 4) == 0) rnd_note(g, l_math(p, MATH_isfinite, QN_bool, rnd_value(g, QN_f32), 0, 0));
    break;
  }
  case 5: {
    l_val c = rnd_value(g, QN_bool), a = rnd_value(g, type), b = rnd_value(g, type);
    rnd_note(g, l_kop(p, KOP_select, (qn_dtype)type, c, a, b));
    break;
  }
  default: {
    static const kop_id fs[] = {KOP_add, KOP_sub,   KOP_mul,  KOP_div,  KOP_fma, KOP_neg, KOP_abs, KOP_min,
                                KOP_max, KOP_floor, KOP_sqrt, KOP_rint, KOP_eq,  KOP_lt,  KOP_ge};
    static const kop_id is[] = {KOP_add, KOP_sub, KOP_mul, KOP_neg, KOP_abs,  KOP_min,  KOP_max, KOP_and, KOP_or,
                                KOP_xor, KOP_not, KOP_shl, KOP_shr, KOP_idiv, KOP_imod, KOP_ne,  KOP_lt,  KOP_le};
    static const kop_id bs[] = {KOP_and, KOP_or, KOP_xor, KOP_not, KOP_eq, KOP_max};
    kop_id op = dtype_is_float((qn_dtype)type) ? fs[rnd_below(g, 15)]
                : type == QN_bool              ? bs[rnd_below(g, 6)]
                                               : is[rnd_below(g, 18)];
    l_val in[3] = {0};
    for (int k = 0; k < kop_rows[op].arity; k++) in[k] = rnd_value(g, type);
    rnd_note(g, l_kop(p, op, op >= KOP_eq && op <= KOP_ge ? QN_bool : (qn_dtype)type, in[0], in[1], in[2]));
    break;
  }
  }
}

static inline void rnd_pures(rnd *g, int n) {
  for (int i = 0; i < n; i++) rnd_pure(g);
}

static inline int rnd_out(rnd *g, uint8_t type, l_buffer_mode mode) {
  return l_buffer_add(g->p, (qn_dtype)type, mode, 0);
}

static inline l_val rnd_storable(rnd *g, uint8_t *type) {
  *type = rnd_type(g);
  l_val v = rnd_value(g, *type);
  if (rnd_below(g, 8) == 0) {
    v = rnd_value(g, QN_f32);
    *type = rnd_below(g, 2) ? QN_f16 : QN_bf16;
    v = l_kop(g->p, KOP_cast, (qn_dtype)*type, v, 0, 0);
  }
  return v;
}

static inline void rnd_store(rnd *g) {
  uint8_t type;
  l_val v = rnd_storable(g, &type);
  l_instr i = {.code = L_STORE, .h = v, .a = g->base, .b = g->vec ? g->one : 0};
  if (g->p->nbuffers >= RND_BUFFERS) return;
  uint32_t how = rnd_below(g, g->loops ? 4 : 12);
  if (g->wide && how < 2) how = 11;
  if (g->vec &&
      how < 2) { /* scatter: the last wins; another executor may run iterations of loops in another order: no loops */
    if (g->loops) return;
    i.b = 0;
    i.c = rnd_column(g);
    i.d = g->one;
  } else if (g->vec && how == 5) {
    i.a = g->row;
    i.b = g->r;
  } else if (g->vec && how == 6) {
    i.a = g->from;
    i.b = l_int(g->p, -1);
  }
  if (rnd_below(g, 4) == 0) i.g = rnd_value(g, QN_bool);
  if (rnd_below(g, 6) == 0 && g->vec) i.e = g->one;
  i.imm = rnd_out(g, type, BUF_OUT);
  l_emit(g->p, i);
}

static inline void rnd_rmw(rnd *g) {
  static const kop_id fs[] = {KOP_add, KOP_mul, KOP_min, KOP_max};
  uint8_t type;
  if (g->p->nbuffers >= RND_BUFFERS || g->loops) return;
  do {
    type = rnd_type(g);
  } while (type == QN_bool);
  l_val v = rnd_value(g, type);
  if (type == QN_f32 && rnd_below(g, 3) == 0) {
    type = rnd_below(g, 2) ? QN_f16 : QN_bf16;
    v = l_kop(g->p, KOP_cast, (qn_dtype)type, v, 0, 0);
  }
  l_instr i = {.code = L_RMW, .sub = (uint8_t)fs[rnd_below(g, 4)], .h = v, .a = g->base};
  uint32_t how = rnd_below(g, 4);
  if (g->vec && how < 2) {
    i.c = rnd_column(g);
    i.d = g->one;
  } else if (g->vec && how == 2) {
    i.b = g->one;
  }
  if (rnd_below(g, 4) == 0) i.g = rnd_value(g, QN_bool);
  i.imm = rnd_out(g, type, BUF_INOUT);
  l_emit(g->p, i);
}

static inline void rnd_check(rnd *g) {
  l_val ok = rnd_value(g, QN_bool);
  if (rnd_below(g, 2)) ok = l_kop(g->p, KOP_or, QN_bool, ok, rnd_value(g, QN_bool), 0);
  int number = l_check_add(g->p, (l_check){.id = 303});
  l_val at = g->base, stride = g->vec && rnd_below(g, 4) ? g->one : 0;
  if (stride && rnd_below(g, 5) == 0) {
    at = g->from;
    stride = l_int(g->p, -1);
  }
  l_emit(g->p, (l_instr){.code = L_CHECK, .imm = number, .a = ok, .b = at, .c = stride});
}

/* A loop inside a VEC, with carries. */
static inline void rnd_inner_loop(rnd *g) {
  l_program *p = g->p;
  int pool = g->npool;
  bool is_while = rnd_below(g, 2);
  uint8_t t1 = rnd_below(g, 2) ? QN_f32 : rnd_type(g);
  l_val start = rnd_value(g, t1), c1 = l_emit(p, (l_instr){.code = L_CARRY, .dtype = t1, .a = start}), count = 0,
        go = 0;
  if (is_while) {
    l_val seven = l_const(p, QN_i64, 7), n = l_kop(p, KOP_and, QN_i64, rnd_value(g, QN_i64), seven, 0);
    count = l_emit(p, (l_instr){.code = L_CARRY, .dtype = QN_i64, .a = n});
    l_val yes = l_kop(p, KOP_gt, QN_bool, n, l_const(p, QN_i64, 0), 0);
    go = l_emit(p, (l_instr){.code = L_CARRY, .dtype = QN_bool, .a = yes});
    l_emit(p, (l_instr){.code = L_WHILE, .a = go});
  } else {
    l_val loop = l_emit(p, (l_instr){.code = L_FOR, .a = g->zero, .b = rnd_below(g, 2) ? g->r : g->one});
    l_val x = l_emit(p, (l_instr){.code = L_VAR, .a = loop});
    rnd_note(g, l_emit(p, (l_instr){.code = L_IOTA, .dtype = QN_i64, .a = x, .b = rnd_below(g, 2) ? g->one : 0}));
  }
  g->loops++;
  rnd_note(g, c1);
  rnd_pures(g, 2 + (int)rnd_below(g, 6));
  if (rnd_below(g, 4) == 0) rnd_check(g);
  if (g->loops < 2 && rnd_below(g, 4) == 0) rnd_inner_loop(g);
  rnd_pures(g, (int)rnd_below(g, 3));
  l_val next = rnd_value(g, t1);
  l_emit(p, (l_instr){.code = L_SET, .a = c1, .b = next});
  if (is_while) {
    l_val less = l_kop(p, KOP_sub, QN_i64, count, l_const(p, QN_i64, 1), 0);
    l_emit(p, (l_instr){.code = L_SET, .a = count, .b = less});
    l_val more = l_kop(p, KOP_gt, QN_bool, less, l_const(p, QN_i64, 0), 0);
    l_emit(p, (l_instr){.code = L_SET, .a = go, .b = more});
  }
  l_end(p);
  g->loops--;
  g->npool = pool;
  rnd_note(g, c1);
  if (count) rnd_note(g, count);
}

/* ---- accumulators ---- */

static inline l_instr rnd_acc(rnd *g, bool scan) {
  static const kop_id fs[] = {KOP_add, KOP_add, KOP_mul, KOP_max, KOP_min},
                      is[] = {KOP_add, KOP_mul, KOP_max, KOP_min, KOP_and, KOP_or, KOP_xor},
                      bs[] = {KOP_and, KOP_or, KOP_max, KOP_min, KOP_xor};
  l_instr a = {.code = L_ACC, .dtype = rnd_below(g, 2) ? QN_f32 : rnd_type(g)};
  bool real = dtype_is_float((qn_dtype)a.dtype);
  a.sub = (uint8_t)(real ? fs[rnd_below(g, 5)] : a.dtype == QN_bool ? bs[rnd_below(g, 5)] : is[rnd_below(g, 7)]);
  bool exact = !real || (a.sub != KOP_add && a.sub != KOP_mul);
  a.imm = rnd_below(g, scan ? 2 : 3);
  if (a.imm == ORDER_DOT && (a.sub != KOP_add || a.dtype == QN_bool)) a.imm = ORDER_INNER;
  if (g->wide) a.imm = ORDER_INNER;
  if (exact && rnd_below(g, 2)) a.imm = ORDER_FREE;
  if (!scan && !g->wide && rnd_below(g, 6) == 0) {
    a.sub = rnd_below(g, 2) ? KOP_argmax : KOP_argmin;
    a.imm = ORDER_FREE;
  }
  return a;
}

/* What is reduced: a value, or data as it is, so that not everything ends as NaN. */
static inline l_val rnd_term(rnd *g, uint8_t type) {
  for (int b = 0; b < RND_INPUTS && rnd_below(g, 4); b++)
    if (g->p->buffers[b].dtype == type)
      return l_emit(g->p, (l_instr){.code = L_LOAD, .dtype = type, .imm = b, .a = g->base, .b = g->vec ? g->one : 0});
  return rnd_value(g, type);
}

static inline void rnd_push(rnd *g, l_val acc, l_val k) {
  l_instr a = g->p->code[acc];
  l_val b = rnd_term(g, a.dtype), d = a.imm == ORDER_DOT ? rnd_term(g, a.dtype) : 0;
  l_emit(g->p, (l_instr){.code = L_PUSH, .a = acc, .b = b, .c = k, .d = d});
}

/* ---- VECs ---- */

static inline void rnd_vec_begin(rnd *g) {
  g->from = l_index(g->p, L_IADD, g->base, l_index(g->p, L_ISUB, g->c, g->one));
  l_emit(g->p, (l_instr){.code = L_INT, .imm = -1}); /* numbers stand outside, and near enough to be found */
  l_emit(g->p, (l_instr){.code = L_VEC, .a = g->zero, .b = g->c});
  g->vec = true;
  g->outer = g->npool;
}
static inline void rnd_vec_end(rnd *g) {
  l_end(g->p);
  g->vec = false;
  g->npool = g->outer;
}

static inline void rnd_vec(rnd *g, l_val local, uint8_t local_type) {
  l_program *p = g->p;
  l_val acc[2] = {0}, scan = 0;
  int nacc = (int)rnd_below(g, 3);
  for (int i = 0; i < nacc; i++) {
    l_instr a = rnd_acc(g, false);
    if (rnd_below(g, 2)) a.b = g->c;
    acc[i] = l_emit(p, a);
  }
  if (!g->wide && rnd_below(g, 3) == 0) scan = l_emit(p, rnd_acc(g, true));
  rnd_vec_begin(g);
  rnd_load(g);
  rnd_pures(g, 2 + (int)rnd_below(g, 10));
  if (!g->wide && rnd_below(g, 3) == 0) rnd_inner_loop(g);
  for (int i = 0; i < nacc; i++) {
    rnd_pures(g, (int)rnd_below(g, 3));
    rnd_push(g, acc[i], rnd_below(g, 2) ? g->zero : 0);
  }
  if (scan) {
    l_instr a = p->code[scan];
    rnd_note(g, l_emit(p, (l_instr){.code = L_SCAN,
                                    .dtype = a.dtype,
                                    .flags = rnd_below(g, 2) ? L_EXCLUSIVE : 0,
                                    .a = scan,
                                    .b = rnd_term(g, a.dtype)}));
    rnd_pures(g, (int)rnd_below(g, 3));
  }
  if (rnd_below(g, 3) == 0) rnd_check(g);
  if (!g->wide && rnd_below(g, 4) == 0) rnd_rmw(g);
  if (local && rnd_below(g, 2)) {
    l_val v = rnd_value(g, local_type);
    l_emit(p, (l_instr){.code = L_STORE, .imm = -(int64_t)local, .h = v, .a = g->zero, .b = g->one});
  }
  if (local && rnd_below(g, 2))
    rnd_note(g, l_emit(p, (l_instr){
                              .code = L_LOAD, .imm = -(int64_t)local, .dtype = local_type, .a = g->zero, .b = g->one}));
  for (int i = 0, n = (int)rnd_below(g, 3); i < n; i++) {
    rnd_store(g);
    rnd_pures(g, (int)rnd_below(g, 3));
  }
  rnd_store(g);
  rnd_vec_end(g);
  for (int i = 0; i < nacc; i++) {
    l_instr a = p->code[acc[i]];
    bool arg = a.sub == KOP_argmax || a.sub == KOP_argmin;
    l_val v = rnd_note(g, l_emit(p, (l_instr){.code = L_FINISH, .dtype = arg ? QN_i64 : a.dtype, .a = acc[i]}));
    if (p->nbuffers < RND_BUFFERS) {
      int b = rnd_out(g, p->code[v].dtype, BUF_OUT);
      l_emit(p, (l_instr){.code = L_STORE, .imm = b, .h = v, .a = g->row});
    }
  }
  if (scan && p->code[scan].imm != ORDER_DOT && rnd_below(g, 2)) {
    l_val v = l_emit(p, (l_instr){.code = L_FINISH, .dtype = p->code[scan].dtype, .a = scan});
    if (p->nbuffers < RND_BUFFERS) {
      int b = rnd_out(g, p->code[v].dtype, BUF_OUT);
      l_emit(p, (l_instr){.code = L_STORE, .imm = b, .h = v, .a = g->row});
    }
  }
}

/* Column reductions and scans: a loop over k around a VEC over the results, or inside it. */
static inline void rnd_columns(rnd *g) {
  l_program *p = g->p;
  l_instr a = rnd_acc(g, false);
  a.a = g->c;
  if (g->wide && a.imm == ORDER_INNER) a.imm = ORDER_OUTER;
  bool scanned = !g->wide && a.imm != ORDER_DOT && a.sub != KOP_argmax && a.sub != KOP_argmin && rnd_below(g, 2);
  l_val n = a.imm == ORDER_INNER ? l_param(p, 2) : l_param(p, 3); /* at most 64; more */
  if (rnd_below(g, 2)) a.b = n;
  l_val acc = l_emit(p, a);
  bool inside = !g->wide && rnd_below(g, 3) == 0, finish = !scanned || rnd_below(g, 2);
  l_val loop = 0, k = 0;
  if (!inside) {
    loop = l_emit(p, (l_instr){.code = L_FOR, .a = g->zero, .b = n});
    k = l_emit(p, (l_instr){.code = L_VAR, .a = loop});
  }
  rnd_vec_begin(g);
  rnd_load(g);
  int pool = g->npool;
  if (inside) {
    loop = l_emit(p, (l_instr){.code = L_FOR, .a = g->zero, .b = n});
    k = l_emit(p, (l_instr){.code = L_VAR, .a = loop});
    g->loops++;
  }
  rnd_note(g, l_emit(p, (l_instr){.code = L_IOTA, .dtype = QN_i64, .a = k, .b = g->one}));
  rnd_pures(g, 1 + (int)rnd_below(g, 5));
  if (scanned) {
    l_val v = l_emit(p, (l_instr){.code = L_SCAN,
                                  .dtype = a.dtype,
                                  .flags = rnd_below(g, 2) ? L_EXCLUSIVE : 0,
                                  .a = acc,
                                  .b = rnd_term(g, a.dtype)});
    rnd_note(g, v);
    if (p->nbuffers < RND_BUFFERS) {
      int b = rnd_out(g, a.dtype, BUF_OUT);
      l_emit(p, (l_instr){.code = L_STORE, .imm = b, .h = v, .a = g->base, .b = g->one});
    }
  } else {
    rnd_push(g, acc, rnd_below(g, 2) ? k : 0);
  }
  if (inside) {
    l_end(p);
    g->loops--;
    g->npool = pool;
  }
  l_val v = 0;
  uint8_t type = a.sub == KOP_argmax || a.sub == KOP_argmin ? QN_i64 : a.dtype;
  if (inside && finish && rnd_below(g, 2)) {
    v = rnd_note(g, l_emit(p, (l_instr){.code = L_FINISH, .dtype = type, .a = acc}));
    rnd_store(g);
  }
  rnd_vec_end(g);
  if (!inside) l_end(p);
  if (v || !finish) return;
  rnd_vec_begin(g);
  v = rnd_note(g, l_emit(p, (l_instr){.code = L_FINISH, .dtype = type, .a = acc}));
  rnd_pures(g, (int)rnd_below(g, 4));
  if (p->nbuffers < RND_BUFFERS) {
    int b = rnd_out(g, type, BUF_OUT);
    l_emit(p, (l_instr){.code = L_STORE, .imm = b, .h = v, .a = g->base, .b = g->one});
  }
  rnd_store(g);
  rnd_vec_end(g);
}

/* One k at a time, outside VECs, in a loop with carries. */
static inline void rnd_singles(rnd *g) {
  l_program *p = g->p;
  if (p->nbuffers + 4 >= RND_BUFFERS) return;
  l_instr a = rnd_acc(g, false);
  l_val acc = l_emit(p, a), n = l_param(p, 3);
  uint8_t type = rnd_type(g);
  l_val carry = l_emit(p, (l_instr){.code = L_CARRY, .dtype = type, .a = rnd_value(g, type)});
  int pool = g->npool;
  l_val loop = l_emit(p, (l_instr){.code = L_FOR, .a = g->zero, .b = n});
  l_val k = l_emit(p, (l_instr){.code = L_VAR, .a = loop});
  rnd_note(g, carry);
  rnd_note(g, l_emit(p, (l_instr){.code = L_IOTA, .dtype = QN_i64, .a = k}));
  int input = (int)rnd_below(g, RND_INPUTS - 2);
  rnd_note(g, l_emit(p, (l_instr){.code = L_LOAD, .dtype = p->buffers[input].dtype, .imm = input, .a = k}));
  rnd_pures(g, 3);
  rnd_push(g, acc, 0);
  l_val cond = rnd_value(g, QN_bool), next = rnd_value(g, type);
  l_emit(p, (l_instr){.code = L_SET, .a = carry, .b = next});
  l_emit(p, (l_instr){.code = L_IF, .a = cond});
  rnd_pures(g, 2);
  l_emit(p, (l_instr){.code = L_STORE, .imm = rnd_out(g, type, BUF_OUT), .h = rnd_value(g, type), .a = g->row});
  g->npool = pool;
  l_emit(p, (l_instr){.code = L_ELSE});
  l_emit(p, (l_instr){.code = L_STORE, .imm = rnd_out(g, type, BUF_OUT), .h = carry, .a = g->row});
  l_end(p);
  l_end(p);
  g->npool = pool;
  rnd_note(g, carry);
  l_val v = l_emit(p, (l_instr){.code = L_FINISH, .dtype = a.sub >= KOP_argmax ? QN_i64 : a.dtype, .a = acc});
  int b = rnd_out(g, p->code[v].dtype, BUF_OUT);
  l_emit(p, (l_instr){.code = L_STORE, .imm = b, .h = v, .a = g->row});
  b = rnd_out(g, type, BUF_OUT);
  l_emit(p, (l_instr){.code = L_STORE, .imm = b, .h = carry, .a = g->row});
}

/* Phase 1: slabs of `size` k write partials; phase 2: one instance merges them. Results: one, or the columns. */
static inline void rnd_slabs(rnd *g) {
  l_program *p = g->p;
  l_instr a = rnd_acc(g, false);
  if (g->wide && rnd_below(g, 2)) a.imm = ORDER_OUTER;
  bool many = a.imm != ORDER_INNER && rnd_below(g, 2), arg = a.sub == KOP_argmax || a.sub == KOP_argmin;
  int64_t size = a.imm == ORDER_INNER   ? 1024 << rnd_below(g, 2)
                 : a.imm == ORDER_OUTER ? 64 << rnd_below(g, 2)
                 : a.imm == ORDER_DOT   ? 4096
                                        : 100;
  l_val step = l_int(p, size), total = l_param(p, a.imm == ORDER_INNER && !many ? 1 : 3); /* k */
  if (!many) total = l_param(p, 1);
  l_val slabs = l_index(p, L_IDIV, l_index(p, L_IADD, total, l_int(p, size - 1)), step);
  l_val width = many ? g->c : l_int(p, a.imm == ORDER_INNER ? 64 : 1);
  int part = l_buffer_add(p, (qn_dtype)a.dtype, BUF_SCRATCH, l_index(p, L_IMUL, slabs, width));
  int index = arg ? l_buffer_add(p, QN_i64, BUF_SCRATCH, l_index(p, L_IMUL, slabs, width)) : 0;
  int out = l_buffer_add(p, arg ? QN_i64 : (qn_dtype)a.dtype, BUF_OUT, 0);
  int input = 0;
  while (p->buffers[input].dtype != a.dtype && input < RND_INPUTS) input++;
  if (input == RND_INPUTS) input = 0;
  if (many) a.a = g->c;
  l_emit(p, (l_instr){.code = L_PHASE});
  l_val par = l_emit(p, (l_instr){.code = L_PAR, .a = slabs, .imm = 1});
  l_val slab = l_emit(p, (l_instr){.code = L_VAR, .a = par});
  l_val lo = l_index(p, L_IMUL, slab, step), hi = l_index(p, L_IMIN, total, l_index(p, L_IADD, lo, step));
  l_val at = l_index(p, L_IMUL, slab, width);
  if (rnd_below(g, 2)) a.b = step;
  l_val acc = l_emit(p, a);
  l_val k = 0;
  if (many) {
    l_val loop = l_emit(p, (l_instr){.code = L_FOR, .a = lo, .b = hi});
    k = l_emit(p, (l_instr){.code = L_VAR, .a = loop});
    l_emit(p, (l_instr){.code = L_VEC, .a = g->zero, .b = g->c});
  } else {
    l_emit(p, (l_instr){.code = L_VEC, .a = lo, .b = hi});
  }
  /* many: element (k + column) of the input, so that it stays inside */
  l_val x = l_emit(
      p, (l_instr){.code = L_LOAD, .dtype = p->buffers[input].dtype, .imm = input, .a = many ? k : lo, .b = g->one});
  uint8_t from = p->buffers[input].dtype;
  if (from != a.dtype && (from == QN_f16 || from == QN_bf16)) x = l_kop(p, KOP_cast, QN_f32, x, 0, 0);
  if (p->code[x].dtype != a.dtype) x = l_kop(p, KOP_cast, (qn_dtype)a.dtype, x, 0, 0);
  l_emit(p, (l_instr){.code = L_PUSH, .a = acc, .b = x, .d = a.imm == ORDER_DOT ? x : 0, .c = many ? k : lo});
  l_end(p);
  if (many) l_end(p);
  l_emit(p, (l_instr){.code = L_PARTIAL, .a = acc, .b = at, .imm = part, .d = arg ? at : 0, .imm2 = index});
  l_end(p);
  l_emit(p, (l_instr){.code = L_PHASE});
  l_emit(p, (l_instr){.code = L_PAR, .a = g->one, .imm = 1});
  a.b = a.b ? total : 0;
  acc = l_emit(p, a);
  l_val loop = l_emit(p, (l_instr){.code = L_FOR, .a = g->zero, .b = slabs});
  slab = l_emit(p, (l_instr){.code = L_VAR, .a = loop});
  at = l_index(p, L_IMUL, slab, width);
  l_emit(p, (l_instr){.code = L_MERGE, .a = acc, .b = at, .imm = part, .d = arg ? at : 0, .imm2 = index});
  l_end(p);
  if (many) l_emit(p, (l_instr){.code = L_VEC, .a = g->zero, .b = g->c});
  l_val v = l_emit(p, (l_instr){.code = L_FINISH, .dtype = arg ? QN_i64 : a.dtype, .a = acc});
  l_emit(p, (l_instr){.code = L_STORE, .imm = out, .h = v, .a = g->zero, .b = many ? g->one : 0});
  if (many) l_end(p);
  l_end(p);
}

/* Random layouts for the phases that can have them. */
static inline void rnd_layouts(rnd *g) {
  for (l_val v = 1; v < g->p->n; v++)
    for (int tries = 0; tries < 12 && g->p->code[v].code == L_PAR && !g->p->code[v].imm2; tries++) {
      l_layout l = {16 << rnd_below(g, 5), 1 << rnd_below(g, 4), 1 << rnd_below(g, 5)};
      if (!layout_misfit(g->p, v, l)) g->p->code[v].imm2 = l_layout_word(l);
    }
}

static inline l_program *rnd_program(uint64_t seed, rnd_info *info) {
  static const uint8_t types[RND_INPUTS] = {QN_f32, QN_f32, QN_f64, QN_i64, QN_i32, QN_bool,
                                            QN_u8,  QN_i8,  QN_i16, QN_f32, QN_f16, QN_bf16};
  static const int64_t widths[] = {0,   1,   5,   17,   63,   64,   65,   100,  127,
                                   129, 200, 300, 1000, 1024, 1030, 2049, 4100, 9000};
  rnd g = {.s = seed * 0x9e3779b97f4a7c15u + 12345, .p = l_new("random")};
  for (int i = 0; i < 5; i++) rnd_below(&g, 2);
  g.wide = seed % 3 == 2;
  l_program *p = g.p;
  g.cols = widths[rnd_below(&g, rnd_below(&g, 4) && !g.wide ? 12 : 18)];
  g.rows = 1 + rnd_below(&g, g.cols > 1000 ? 2 : 5);
  memset(info, 0, sizeof *info);
  info->ints[0] = g.rows;
  info->ints[1] = g.cols;
  info->ints[2] = rnd_below(&g, 65);                      /* pushes of short reductions */
  info->ints[3] = rnd_below(&g, g.cols > 300 ? 70 : 300); /* of long ones */
  info->elements = g.rows * g.cols + g.cols + info->ints[3] + 9000 + 64;
  info->scalars[0].i = 12;
  info->scalars[1].f = 0.75;
  info->scalars[2].i = 1;
  for (int i = 0; i < RND_INPUTS; i++) l_buffer_add(p, (qn_dtype)types[i], BUF_IN, 0);
  p->nscalars = 3;
  g.r = l_param(p, 0);
  g.c = l_param(p, 1);
  l_param(p, 2);
  l_param(p, 3);
  g.zero = l_int(p, 0);
  g.one = l_int(p, 1);
  if (rnd_below(&g, 5) == 0) {
    rnd_slabs(&g);
    rnd_layouts(&g);
    return p;
  }
  rnd_note(&g, l_emit(p, (l_instr){.code = L_SCALAR, .dtype = QN_i64, .imm = 0}));
  rnd_note(&g, l_emit(p, (l_instr){.code = L_SCALAR, .dtype = QN_f64, .imm = 1}));
  rnd_note(&g, l_emit(p, (l_instr){.code = L_SCALAR, .dtype = QN_bool, .imm = 2}));
  l_emit(p, (l_instr){.code = L_PHASE});
  l_val par = l_emit(p, (l_instr){.code = L_PAR, .a = g.r, .imm = 1});
  uint8_t local_type = rnd_type(&g);
  l_val local = rnd_below(&g, 2) ? l_emit(p, (l_instr){.code = L_LOCAL, .dtype = local_type, .a = g.c}) : 0;
  g.row = l_emit(p, (l_instr){.code = L_VAR, .a = par});
  g.base = l_index(p, L_IMUL, g.row, g.c);
  if (local) { /* what is read must have been written */
    l_val x = rnd_const(&g, local_type);
    l_emit(p, (l_instr){.code = L_VEC, .a = g.zero, .b = g.c});
    l_emit(p, (l_instr){.code = L_STORE, .imm = -(int64_t)local, .h = x, .a = g.zero, .b = g.one});
    l_end(p);
  }
  rnd_note(&g, l_const(p, QN_f32, 0x3f800000u));
  for (int i = 0, n = 1 + (int)rnd_below(&g, 3); i < n; i++) {
    rnd_pures(&g, (int)rnd_below(&g, 3));
    switch (g.wide ? 5 * (int)rnd_below(&g, 2) : (int)rnd_below(&g, 6)) {
    case 0: rnd_columns(&g); break;
    case 1: rnd_singles(&g); break;
    default: rnd_vec(&g, local, local_type); break;
    }
  }
  l_end(p);
  rnd_layouts(&g);
  return p;
}

#endif
