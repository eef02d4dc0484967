/* L programs, run from their definitions (l.h, lcodes.def): one element after the other, every push remembered, every order of
 * reduction computed from the list of pushes. Slow and plain on purpose: executors are compared with it bit for bit.
 *
 *   ref_run(p, &args)   runs all phases
 *
 * Addresses are not checked: programs must be right. Allocation failure ends the test. */
#ifndef TESTS_L_REFERENCE_H
#define TESTS_L_REFERENCE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/kernel/l.h"
#include "jit/kernel/prims.h"

typedef uint64_t ref_bits; /* a typed value: its bits, zero-extended */

static inline ref_bits ref_read(const void *p, uint8_t dtype) {
  ref_bits r = 0;
  memcpy(&r, p, dtype_size((qn_dtype)dtype));
  return r;
}
static inline void ref_write(void *p, uint8_t dtype, ref_bits r) { memcpy(p, &r, dtype_size((qn_dtype)dtype)); }
static inline void *ref_alloc(size_t n) {
  void *p = calloc(1, n ? n : 1);
  if (!p) {
    fprintf(stderr, "out of memory\n");
    _Exit(3);
  }
  return p;
}

/* ---- primitives ------------------------------------------------------------------------------------------------------ */

#define REF_OF(T, name, bits)                                                                                          \
  T name;                                                                                                              \
  memcpy(&name, &bits, sizeof name)
#define REF_RETURN(T, value)                                                                                           \
  do {                                                                                                                 \
    T y_ = value;                                                                                                      \
    ref_bits r_ = 0;                                                                                                   \
    memcpy(&r_, &y_, sizeof y_);                                                                                       \
    return r_;                                                                                                         \
  } while (0)
/* clang-format off */
#define REF_1(T, op, R) case KOP_##op: REF_RETURN(R, op##_##T(x));
#define REF_2(T, op, R) case KOP_##op: REF_RETURN(R, op##_##T(x, y));
/* clang-format on */
#define REF_COMPARES(T)                                                                                                \
  REF_2(T, eq, b8) REF_2(T, ne, b8) REF_2(T, lt, b8) REF_2(T, le, b8) REF_2(T, gt, b8) REF_2(T, ge, b8)
#define REF_BEGIN(T)                                                                                                   \
  static inline ref_bits ref_kop_##T(int op, ref_bits a, ref_bits b, ref_bits c) {                                     \
    REF_OF(T, x, a);                                                                                                   \
    REF_OF(T, y, b);                                                                                                   \
    REF_OF(T, z, c);                                                                                                   \
    (void)y, (void)z;                                                                                                  \
    if (op == KOP_select) return (a & 1) ? b : c;                                                                      \
    if (op == KOP_copy) return a;                                                                                      \
    switch (op) {
#define REF_END                                                                                                        \
  default: return 0;                                                                                                   \
    }                                                                                                                  \
    }
#define REF_FLOAT(T)                                                                                                   \
  REF_BEGIN(T)                                                                                                         \
  REF_2(T, add, T) REF_2(T, sub, T) REF_2(T, mul, T) REF_2(T, div, T) case KOP_fma : REF_RETURN(T, fma_##T(x, y, z));  \
  REF_1(T, neg, T)                                                                                                     \
  REF_1(T, abs, T)                                                                                                     \
  REF_2(T, min, T) REF_2(T, max, T) REF_1(T, floor, T) REF_1(T, ceil, T) REF_1(T, rint, T) REF_1(T, trunc, T)          \
      REF_1(T, sqrt, T) REF_COMPARES(T) REF_END
#define REF_INT(T)                                                                                                     \
  REF_BEGIN(T)                                                                                                         \
  REF_2(T, add, T)                                                                                                     \
  REF_2(T, sub, T)                                                                                                     \
  REF_2(T, mul, T) REF_1(T, neg, T) REF_1(T, abs, T) REF_2(T, min, T) REF_2(T, max, T) REF_2(T, and, T)                \
      REF_2(T, or, T) REF_2(T, xor, T) REF_1(T, not, T) REF_2(T, shl, T) REF_2(T, shr, T) REF_2(T, idiv, T)            \
          REF_2(T, imod, T) REF_2(T, ipow, T) REF_COMPARES(T) REF_END
REF_FLOAT(f32)
REF_FLOAT(f64)
REF_INT(u8)
REF_INT(i8)
REF_INT(i16)
REF_INT(i32)
REF_INT(i64)
REF_INT(u32)
REF_INT(u64)
REF_BEGIN(b8)
REF_2(b8, min, b8)
REF_2(b8, max, b8)
REF_2(b8, and, b8) REF_2(b8, or, b8) REF_2(b8, xor, b8) REF_1(b8, not, b8) REF_COMPARES(b8) REF_END

#define REF_TO(F, T, DT)                                                                                               \
  case DT:                                                                                                             \
    REF_RETURN(T, cast_##F##_##T(x));
#define REF_TO_INTS(F)                                                                                                 \
  REF_TO(F, u8, QN_u8)                                                                                                 \
  REF_TO(F, i8, QN_i8)                                                                                                 \
  REF_TO(F, i16, QN_i16) REF_TO(F, i32, QN_i32) REF_TO(F, i64, QN_i64) REF_TO(F, u32, QN_u32) REF_TO(F, u64, QN_u64)
#define REF_FROM(F, ...)                                                                                               \
  static inline ref_bits ref_from_##F(uint8_t to, ref_bits a) {                                                        \
    REF_OF(F, x, a);                                                                                                   \
    switch (to) { __VA_ARGS__ default : return a; }                                                                    \
  }
#define REF_TO_FLOATS(F) REF_TO(F, f32, QN_f32) REF_TO(F, f64, QN_f64)
    REF_FROM(b8, REF_TO_INTS(b8) REF_TO_FLOATS(b8))
#define REF_FROM_INT(F) REF_FROM(F, REF_TO_INTS(F) REF_TO_FLOATS(F) REF_TO(F, b8, QN_bool))
        REF_FROM_INT(u8) REF_FROM_INT(i8) REF_FROM_INT(i16) REF_FROM_INT(i32) REF_FROM_INT(i64) REF_FROM_INT(u32)
            REF_FROM_INT(u64) REF_FROM(f16, REF_TO(f16, f32, QN_f32)) REF_FROM(bf16, REF_TO(bf16, f32, QN_f32))
                REF_FROM(f32, REF_TO_INTS(f32) REF_TO(f32, f64, QN_f64) REF_TO(f32, b8, QN_bool)
                                  REF_TO(f32, f16, QN_f16) REF_TO(f32, bf16, QN_bf16))
                    REF_FROM(f64, REF_TO_INTS(f64) REF_TO(f64, f32, QN_f32) REF_TO(f64, b8, QN_bool)
                                      REF_TO(f64, f16, QN_f16) REF_TO(f64, bf16, QN_bf16))

                        static inline ref_bits ref_cast(uint8_t from, uint8_t to, ref_bits a) {
  switch (from) {
  case QN_bool: return ref_from_b8(to, a);
  case QN_u8: return ref_from_u8(to, a);
  case QN_i8: return ref_from_i8(to, a);
  case QN_i16: return ref_from_i16(to, a);
  case QN_i32: return ref_from_i32(to, a);
  case QN_i64: return ref_from_i64(to, a);
  case QN_u32: return ref_from_u32(to, a);
  case QN_u64: return ref_from_u64(to, a);
  case QN_f16: return ref_from_f16(to, a);
  case QN_bf16: return ref_from_bf16(to, a);
  case QN_f32: return ref_from_f32(to, a);
  default: return ref_from_f64(to, a);
  }
}

/* `type` is the last operand's dtype, `to` the result's. */
static inline ref_bits ref_kop(int op, uint8_t to, uint8_t type, ref_bits a, ref_bits b, ref_bits c) {
  if (op == KOP_cast) return type == to ? a : ref_cast(type, to, a);
  if (op == KOP_bitcast || op == KOP_copy) return a;
  if (op == KOP_select) return (a & 1) ? b : c;
  if (op == KOP_mulhi) return type == QN_u32 ? mulhi_u32((u32)a, (u32)b) : mulhi_u64(a, b);
  switch (type) {
  case QN_bool: return ref_kop_b8(op, a, b, c);
  case QN_u8: return ref_kop_u8(op, a, b, c);
  case QN_i8: return ref_kop_i8(op, a, b, c);
  case QN_i16: return ref_kop_i16(op, a, b, c);
  case QN_i32: return ref_kop_i32(op, a, b, c);
  case QN_i64: return ref_kop_i64(op, a, b, c);
  case QN_u32: return ref_kop_u32(op, a, b, c);
  case QN_u64: return ref_kop_u64(op, a, b, c);
  case QN_f32: return ref_kop_f32(op, a, b, c);
  default: return ref_kop_f64(op, a, b, c);
  }
}

/* clang-format off */
#define REF_MATH1(T, fn, R) case MATH_##fn: REF_RETURN(R, fn##_##T(x));
#define REF_MATH2(T, fn, R) case MATH_##fn: REF_RETURN(R, fn##_##T(x, y));
/* clang-format on */
#define REF_MATH(T, ...)                                                                                               \
  static inline ref_bits ref_math_##T(int fn, ref_bits a, ref_bits b) {                                                \
    REF_OF(T, x, a);                                                                                                   \
    REF_OF(T, y, b);                                                                                                   \
    switch (fn) { __VA_ARGS__ default : return 0; }                                                                    \
  }
#define REF_TESTS(T) REF_MATH1(T, isnan, b8) REF_MATH1(T, isinf, b8) REF_MATH1(T, isfinite, b8)
#define REF_MATH_ANY(T)                                                                                                \
  REF_MATH1(T, sign, T)                                                                                                \
  REF_MATH2(T, smul, T) REF_MATH2(T, floordiv, T) REF_MATH2(T, mod, T) REF_MATH2(T, pow, T) REF_TESTS(T)
#define REF_MATH_FLOAT(T)                                                                                              \
  REF_MATH(T,                                                                                                          \
           REF_MATH_ANY(T) REF_MATH1(T, exp, T) REF_MATH1(T, exp2, T) REF_MATH1(T, expm1, T) REF_MATH1(T, log, T)      \
               REF_MATH1(T, log2, T) REF_MATH1(T, log10, T) REF_MATH1(T, log1p, T) REF_MATH1(T, sin, T)                \
                   REF_MATH1(T, cos, T) REF_MATH1(T, tan, T) REF_MATH1(T, arcsin, T) REF_MATH1(T, arccos, T)           \
                       REF_MATH1(T, arctan, T) REF_MATH2(T, arctan2, T) REF_MATH1(T, sinh, T) REF_MATH1(T, cosh, T)    \
                           REF_MATH1(T, tanh, T) REF_MATH1(T, sigmoid, T) REF_MATH1(T, erf, T) REF_MATH1(T, rsqrt, T))
REF_MATH(u8, REF_MATH_ANY(u8))
REF_MATH(i8, REF_MATH_ANY(i8))
REF_MATH(i16, REF_MATH_ANY(i16))
REF_MATH(i32, REF_MATH_ANY(i32))
REF_MATH(i64, REF_MATH_ANY(i64))
REF_MATH_FLOAT(f32)
REF_MATH_FLOAT(f64)
REF_MATH(b8, REF_TESTS(b8))

static inline ref_bits ref_math(int fn, uint8_t to, uint8_t type, ref_bits a, ref_bits b) {
  switch (type) {
  case QN_bool: return ref_math_b8(fn, a, b);
  case QN_u8: return ref_math_u8(fn, a, b);
  case QN_i8: return ref_math_i8(fn, a, b);
  case QN_i16: return ref_math_i16(fn, a, b);
  case QN_i32: return ref_math_i32(fn, a, b);
  case QN_i64: return ref_math_i64(fn, a, b);
  case QN_f32: return ref_math_f32(fn, a, b);
  case QN_f64: return ref_math_f64(fn, a, b);
  default:
    if (to == QN_f32) REF_RETURN(f32, philox_uniform_f32(a));
    REF_RETURN(f64, philox_uniform_f64(a));
  }
}

/* ---- accumulators: lists of pushes ------------------------------------------------------------------------------------------ */

typedef struct ref_push {
  ref_bits value, times;
  int64_t k;
} ref_push;
typedef struct ref_list {
  ref_push *push;
  int64_t n, cap;
  int64_t counted; /* groups whose totals are known */
  ref_bits *totals;
} ref_list;
typedef struct ref_acc {
  int64_t results;
  ref_list *lists;  /* one a result */
  ref_bits *leaves; /* merged: nleaves x width */
  int64_t *indices; /* merged indices, nleaves x width */
  int64_t nleaves, width;
} ref_acc;

static inline bool ref_is_arg(const l_instr *a) { return a->sub == KOP_argmax || a->sub == KOP_argmin; }
static inline ref_bits ref_f(const l_instr *a, ref_bits x, ref_bits y) {
  return ref_kop(a->sub, a->dtype, a->dtype, x, y, 0);
}

/* Before the first value of an exclusive scan; `sum` of floats: -0.0 is the identity, +0.0 stands there. */
static inline ref_bits ref_zero(const l_instr *a, bool identity) {
  bool top = a->sub == KOP_min || a->sub == KOP_argmin, bottom = a->sub == KOP_max || a->sub == KOP_argmax;
  int size = (int)dtype_size((qn_dtype)a->dtype) * 8;
  ref_bits ones = size == 64 ? ~0ull : (1ull << size) - 1, sign = 1ull << (size - 1);
  if (a->sub == KOP_add && identity && a->dtype == QN_f32) return 0x80000000u;
  if (a->sub == KOP_add && identity && a->dtype == QN_f64) return sign;
  if (a->sub == KOP_mul) return ref_cast(QN_i64, a->dtype, 1) & ones;
  if (a->sub == KOP_and) return a->dtype == QN_bool ? 1 : ones;
  if (!top && !bottom) return 0;
  switch (a->dtype) {
  case QN_bool: return top;
  case QN_f32: return top ? 0x7f800000u : 0xff800000u;
  case QN_f64: return top ? 0x7ff0000000000000u : 0xfff0000000000000u;
  case QN_u8:
  case QN_u32:
  case QN_u64: return top ? ones : 0;
  default: return top ? ones >> 1 : sign;
  }
}

static inline ref_bits ref_tree(const l_instr *a, ref_bits *x, int64_t m) {
  if (m == 0) return ref_zero(a, a->imm != ORDER_DOT);
  for (; m > 1; m = (m + 1) / 2)
    for (int64_t i = 0; i < m; i += 2) x[i / 2] = i + 1 < m ? ref_f(a, x[i], x[i + 1]) : x[i];
  return x[0];
}

static inline bool ref_better(const l_instr *a, ref_bits x, int64_t i, ref_bits best, int64_t at) {
  if (at < 0) return true;
  if (i < 0) return false;
  bool xn = ref_kop(KOP_ne, QN_bool, a->dtype, x, x, 0) != 0,
       bn = ref_kop(KOP_ne, QN_bool, a->dtype, best, best, 0) != 0;
  if (xn != bn) return xn;
  if (!xn && ref_kop(a->sub == KOP_argmax ? KOP_gt : KOP_lt, QN_bool, a->dtype, x, best, 0)) return true;
  if (!xn && !ref_kop(KOP_eq, QN_bool, a->dtype, x, best, 0)) return false;
  return i < at;
}

/* The state of one result before lanes are folded: 64 lanes, or one value. */
static inline int ref_state(const l_instr *a, const ref_list *l, ref_bits out[64], int64_t *index) {
  if (ref_is_arg(a)) {
    out[0] = ref_zero(a, true);
    *index = -1;
    for (int64_t i = 0; i < l->n; i++)
      if (ref_better(a, l->push[i].value, l->push[i].k, out[0], *index)) {
        out[0] = l->push[i].value;
        *index = l->push[i].k;
      }
    return 1;
  }
  ref_bits *leaf = ref_alloc((size_t)(l->n + 1) * 8);
  int64_t m = 0;
  if (a->imm == ORDER_INNER) {
    for (int lane = 0; lane < 64; lane++) {
      m = 0;
      for (int64_t block = 0; block < l->n; block += ORDER_BLOCK) {
        ref_bits x = ref_zero(a, true);
        bool any = false;
        for (int64_t k = block + lane; k < l->n && k < block + ORDER_BLOCK; k += 64) {
          x = any ? ref_f(a, x, l->push[k].value) : l->push[k].value;
          any = true;
        }
        leaf[m++] = x;
      }
      out[lane] = ref_tree(a, leaf, m);
    }
    free(leaf);
    return 64;
  }
  int64_t chain = a->imm == ORDER_OUTER  ? ORDER_OUTER_CHAIN
                  : a->imm == ORDER_DOT  ? ORDER_DOT_CHUNK
                  : a->imm == ORDER_TREE ? 1
                                         : INT64_MAX;
  for (int64_t k = 0; k < l->n; k++) {
    ref_bits x = l->push[k].value, y = l->push[k].times;
    bool first = k % chain == 0;
    if (a->imm != ORDER_DOT)
      x = first ? x : ref_f(a, leaf[m - 1], x);
    else if (first)
      x = ref_kop(KOP_mul, a->dtype, a->dtype, x, y, 0);
    else if (dtype_is_float((qn_dtype)a->dtype))
      x = ref_kop(KOP_fma, a->dtype, a->dtype, x, y, leaf[m - 1]);
    else
      x = ref_f(a, leaf[m - 1], ref_kop(KOP_mul, a->dtype, a->dtype, x, y, 0));
    if (first) m++;
    leaf[m - 1] = x;
  }
  out[0] = ref_tree(a, leaf, m);
  free(leaf);
  return 1;
}

/* The state of result r, merged or pushed. */
static inline int ref_root(const l_instr *a, const ref_acc *acc, int64_t r, ref_bits out[64], int64_t *index) {
  *index = -1;
  if (!acc->nleaves) return ref_state(a, &acc->lists[r], out, index);
  int lanes = a->imm == ORDER_INNER && !a->a ? 64 : 1;
  ref_bits *leaf = ref_alloc((size_t)acc->nleaves * 8);
  for (int l = 0; l < lanes; l++) {
    for (int64_t i = 0; i < acc->nleaves; i++) leaf[i] = acc->leaves[i * acc->width + r + l];
    if (ref_is_arg(a)) {
      out[0] = ref_zero(a, true);
      for (int64_t i = 0; i < acc->nleaves; i++)
        if (ref_better(a, leaf[i], acc->indices[i * acc->width + r], out[0], *index)) {
          out[0] = leaf[i];
          *index = acc->indices[i * acc->width + r];
        }
    } else {
      out[l] = ref_tree(a, leaf, acc->nleaves);
    }
  }
  free(leaf);
  return lanes;
}

static inline ref_bits ref_finish(const l_instr *a, const ref_acc *acc, int64_t r) {
  ref_bits lanes[64];
  int64_t index;
  int n = ref_root(a, acc, r, lanes, &index);
  if (ref_is_arg(a)) return index < 0 ? 0 : (ref_bits)index;
  for (int h = n / 2; h > 0; h /= 2)
    for (int l = 0; l < h; l++) lanes[l] = ref_f(a, lanes[l], lanes[l + h]);
  return lanes[0];
}

static inline void ref_add(ref_list *l, ref_push p) {
  if (l->n == l->cap) {
    l->cap = l->cap ? l->cap * 2 : 8;
    l->push = realloc(l->push, (size_t)l->cap * sizeof *l->push);
    l->totals = realloc(l->totals, (size_t)l->cap * sizeof *l->totals);
    if (!l->push || !l->totals) _Exit(3);
  }
  l->push[l->n++] = p;
}

/* Running value of element i of its group or chain (elements g * 64 ..). */
static inline ref_bits ref_group(const l_instr *a, const ref_list *l, int64_t i) {
  int64_t g = i / 64 * 64;
  ref_bits x[64], y[64];
  for (int64_t k = g; k <= i; k++) x[k - g] = l->push[k].value;
  if (a->imm != ORDER_INNER) {
    for (int64_t k = 1; k <= i - g; k++) x[k] = ref_f(a, x[k - 1], x[k]);
    return x[i - g];
  }
  for (int h = 1; h <= 32; h *= 2) {
    for (int64_t k = 0; k <= i - g; k++) y[k] = k >= h ? ref_f(a, x[k - h], x[k]) : x[k];
    memcpy(x, y, sizeof x);
  }
  return x[i - g];
}

static inline ref_bits ref_running(const l_instr *a, ref_list *l, int64_t i) {
  if (i < 0) return ref_zero(a, false);
  if (a->imm == ORDER_FREE) {
    ref_bits x = l->push[0].value;
    for (int64_t k = 1; k <= i; k++) x = ref_f(a, x, l->push[k].value);
    return x;
  }
  for (; l->counted < i / 64; l->counted++) l->totals[l->counted] = ref_group(a, l, l->counted * 64 + 63);
  ref_bits x = ref_group(a, l, i);
  int64_t group = i / 64, per = a->imm == ORDER_INNER ? 64 : INT64_MAX, block = group / per;
  if (group > block * per) {
    ref_bits before = l->totals[block * per];
    for (int64_t g = block * per + 1; g < group; g++) before = ref_f(a, before, l->totals[g]);
    x = ref_f(a, before, x);
  }
  ref_bits blocks = 0;
  for (int64_t b = 0; b < block; b++) {
    ref_bits total = l->totals[b * per];
    for (int64_t g = b * per + 1; g < (b + 1) * per - 1; g++) total = ref_f(a, total, l->totals[g]);
    total = ref_f(a, total, l->totals[(b + 1) * per - 1]);
    blocks = b ? ref_f(a, blocks, total) : total;
  }
  return block ? ref_f(a, blocks, x) : x;
}

/* ---- running ------------------------------------------------------------------------------------------------------------------ */

typedef struct ref_machine {
  const l_program *p;
  const qk_args *args;
  uint32_t *end;
  ref_bits *value; /* typed values and index values */
  int64_t *var;    /* of loops */
  void **local;
  ref_acc *acc;
  int64_t j; /* i - from in a VEC */
  l_val vec;
} ref_machine;

static inline int64_t ref_index(const ref_machine *m, l_val v) { return (int64_t)m->value[v]; }
static inline char *ref_address(const ref_machine *m, const l_instr *i, uint8_t *dtype) {
  int64_t at = ref_index(m, i->a);
  if (i->b) at += ref_index(m, i->b) * m->j;
  if (i->c) at += ref_index(m, i->c) * ref_index(m, i->d);
  *dtype = i->imm >= 0 ? m->p->buffers[i->imm].dtype : m->p->code[-i->imm].dtype;
  char *base = i->imm >= 0 ? m->args->buf[i->imm] : m->local[-i->imm];
  return base + at * (int64_t)dtype_size((qn_dtype)*dtype);
}
static inline bool ref_guard(const ref_machine *m, const l_instr *i) {
  int64_t n = m->vec ? m->j + ref_index(m, m->p->code[m->vec].a) : 0;
  return !(i->e && n < ref_index(m, i->e)) && !(i->f && n >= ref_index(m, i->f)) && !(i->g && !(m->value[i->g] & 1));
}

static inline void ref_acc_free(ref_acc *a) {
  for (int64_t r = 0; r < a->results; r++) {
    free(a->lists[r].push);
    free(a->lists[r].totals);
  }
  free(a->lists);
  free(a->leaves);
  free(a->indices);
  *a = (ref_acc){0};
}

static inline void ref_fail(const qk_args *args, uint64_t check, int64_t element) {
  uint64_t now = check << 48 | (uint64_t)element;
  if (now < *args->error) *args->error = now;
}

static inline void ref_tile(ref_machine *m, const l_tile *t) {
  uint8_t out = m->p->code[t->out].dtype;
  l_instr acc = {.code = L_ACC, .sub = KOP_add, .dtype = out, .imm = ORDER_DOT};
  for (int64_t r = 0; r < ref_index(m, t->rows); r++)
    for (int64_t c = 0; c < ref_index(m, t->cols); c++) {
      ref_list list = {0};
      for (int64_t k = 0; k < ref_index(m, t->depth); k++) {
        uint8_t dtype;
        l_instr x = {.imm = t->x, .a = t->x_base}, y = {.imm = t->y, .a = t->y_base};
        char *px = ref_address(m, &x, &dtype), *py = ref_address(m, &y, &dtype);
        int64_t size = (int64_t)dtype_size((qn_dtype)dtype);
        px += (r * ref_index(m, t->x_m) + k * ref_index(m, t->x_k)) * size;
        py += (k * ref_index(m, t->y_k) + c * ref_index(m, t->y_n)) * size;
        ref_add(&list, (ref_push){ref_kop(KOP_cast, out, dtype, ref_read(px, dtype), 0, 0),
                                  ref_kop(KOP_cast, out, dtype, ref_read(py, dtype), 0, 0), k});
      }
      ref_bits state[64];
      int64_t index;
      ref_state(&acc, &list, state, &index);
      ref_write((char *)m->local[t->out] + (r * t->tile_cols + c) * (int64_t)dtype_size((qn_dtype)out), out, state[0]);
      free(list.push);
      free(list.totals);
    }
}

static inline int64_t ref_div(int64_t a, int64_t b) { return b <= 0 ? 0 : a / b - (a % b < 0); }

static inline void ref_block(ref_machine *m, l_val from, l_val to);

/* One iteration of a loop's body; its SETs take effect behind it. */
static inline void ref_iteration(ref_machine *m, l_val loop) {
  const l_program *p = m->p;
  ref_bits *next = ref_alloc((size_t)p->n * 8);
  for (l_val k = loop; k < m->end[loop]; k++) next[k] = 0;
  ref_block(m, loop + 1, m->end[loop]);
  for (l_val k = loop + 1; k < m->end[loop]; k++) { /* SETs that ran left a mark in var[] */
    if (p->code[k].code == L_SET && m->var[k]) next[k] = m->value[p->code[k].b];
  }
  for (l_val k = loop + 1; k < m->end[loop]; k++)
    if (p->code[k].code == L_SET && m->var[k]) {
      m->value[p->code[k].a] = next[k];
      m->var[k] = 0;
    }
  free(next);
}

static inline void ref_push_to(ref_machine *m, const l_instr *i) {
  const l_instr *a = &m->p->code[i->a];
  int64_t r = a->a ? m->j + ref_index(m, m->p->code[m->vec].a) : 0;
  ref_list *list = &m->acc[i->a].lists[r];
  int64_t k = i->code == L_PUSH && i->c ? ref_index(m, i->c) + (a->a || !m->vec ? 0 : m->j) : list->n;
  ref_add(list, (ref_push){m->value[i->b], i->code == L_PUSH && i->d ? m->value[i->d] : 0, k});
}

static inline void ref_partial(ref_machine *m, const l_instr *i, bool merge) {
  const l_instr *a = &m->p->code[i->a];
  ref_acc *acc = &m->acc[i->a];
  uint8_t dtype;
  l_instr at = {.imm = i->imm, .a = i->b}, iat = {.imm = i->imm2, .a = i->d};
  int64_t size = (int64_t)dtype_size((qn_dtype)a->dtype);
  char *to = ref_address(m, &at, &dtype);
  int64_t *indices = i->d ? (int64_t *)(void *)ref_address(m, &iat, &dtype) : NULL;
  int64_t width = a->a ? acc->results : a->imm == ORDER_INNER ? 64 : 1;
  if (merge) {
    acc->width = width;
    acc->leaves = realloc(acc->leaves, (size_t)((acc->nleaves + 1) * width) * 8);
    acc->indices = realloc(acc->indices, (size_t)((acc->nleaves + 1) * width) * 8);
    for (int64_t r = 0; r < width; r++) {
      acc->leaves[acc->nleaves * width + r] = ref_read(to + r * size, a->dtype);
      acc->indices[acc->nleaves * width + r] = indices ? indices[r] : -1;
    }
    acc->nleaves++;
    return;
  }
  for (int64_t r = 0; r < (a->a ? acc->results : 1); r++) {
    ref_bits lanes[64];
    int64_t index;
    int n = ref_root(a, acc, r, lanes, &index);
    for (int l = 0; l < n; l++) ref_write(to + (r + l) * size, a->dtype, lanes[l]);
    if (indices) indices[r] = index;
  }
}

static inline void ref_one(ref_machine *m, l_val v) {
  const l_instr *i = &m->p->code[v];
  const qk_args *args = m->args;
  int64_t x = i->a ? ref_index(m, i->a) : 0, y = i->b ? ref_index(m, i->b) : 0;
  ref_bits a = i->a ? m->value[i->a] : 0, b = i->b ? m->value[i->b] : 0, c = i->c ? m->value[i->c] : 0;
  uint8_t dtype;
  switch (i->code) {
  case L_INT: m->value[v] = (ref_bits)i->imm; break;
  case L_PARAM: m->value[v] = (ref_bits)args->ints[i->imm]; break;
  case L_VAR: m->value[v] = (ref_bits)m->var[i->a]; break;
  case L_IADD: m->value[v] = a + b; break;
  case L_ISUB: m->value[v] = a - b; break;
  case L_IMUL: m->value[v] = a * b; break;
  case L_IDIV: m->value[v] = (ref_bits)ref_div(x, y); break;
  case L_IMOD: m->value[v] = y <= 0 ? 0 : a - b * (ref_bits)ref_div(x, y); break;
  case L_IMIN: m->value[v] = x < y ? a : b; break;
  case L_IMAX: m->value[v] = x > y ? a : b; break;
  case L_IVALUE: m->value[v] = ref_cast(m->p->code[i->a].dtype, QN_i64, a); break;
  case L_CONST: m->value[v] = (ref_bits)i->imm; break;
  case L_SCALAR:
    memcpy(&m->value[v], &args->scalars[i->imm], 8);
    if (i->dtype == QN_bool) m->value[v] = m->value[v] != 0;
    break;
  case L_IOTA: m->value[v] = ref_cast(QN_i64, i->dtype, a + (i->b && m->vec ? b * (ref_bits)m->j : 0)); break;
  case L_KOP: m->value[v] = ref_kop(i->sub, i->dtype, i->type2, a, b, c); break;
  case L_MATH: m->value[v] = ref_math(i->sub, i->dtype, i->type2, a, b); break;
  case L_LOAD: m->value[v] = ref_guard(m, i) ? ref_read(ref_address(m, i, &dtype), i->dtype) : m->value[i->h]; break;
  case L_STORE:
    if (ref_guard(m, i)) {
      char *to = ref_address(m, i, &dtype);
      ref_write(to, dtype, m->value[i->h]);
    }
    break;
  case L_RMW:
    if (ref_guard(m, i)) {
      char *to = ref_address(m, i, &dtype);
      ref_bits old = ref_read(to, dtype), h = m->value[i->h];
      if (dtype == QN_f16 || dtype == QN_bf16) {
        old = ref_kop(i->sub, QN_f32, QN_f32, ref_cast(dtype, QN_f32, old), ref_cast(dtype, QN_f32, h), 0);
        ref_write(to, dtype, ref_cast(QN_f32, dtype, old));
      } else {
        ref_write(to, dtype, ref_kop(i->sub, dtype, dtype, old, h, 0));
      }
    }
    break;
  case L_LOCAL:
    free(m->local[v]);
    m->local[v] = ref_alloc((size_t)(x > 0 ? x : 0) * dtype_size((qn_dtype)i->dtype));
    break;
  case L_ACC:
    ref_acc_free(&m->acc[v]);
    m->acc[v].results = i->a ? x : 1;
    m->acc[v].lists = ref_alloc((size_t)(m->acc[v].results > 0 ? m->acc[v].results : 0) * sizeof(ref_list));
    break;
  case L_PUSH: ref_push_to(m, i); break;
  case L_SCAN: {
    ref_push_to(m, i);
    const l_instr *acc = &m->p->code[i->a];
    int64_t r = acc->a ? m->j + ref_index(m, m->p->code[m->vec].a) : 0;
    ref_list *list = &m->acc[i->a].lists[r];
    m->value[v] = ref_running(acc, list, list->n - (i->flags & L_EXCLUSIVE ? 2 : 1));
    break;
  }
  case L_PARTIAL: ref_partial(m, i, false); break;
  case L_MERGE: ref_partial(m, i, true); break;
  case L_FINISH: {
    int64_t r = m->p->code[i->a].a ? m->j + ref_index(m, m->p->code[m->vec].a) : 0;
    m->value[v] = ref_finish(&m->p->code[i->a], &m->acc[i->a], r);
    break;
  }
  case L_TILE: ref_tile(m, &m->p->tiles[i->imm]); break;
  case L_CARRY: m->value[v] = a; break;
  case L_SET: m->var[v] = 1; break;
  case L_CHECK:
    if (!(a & 1)) ref_fail(args, (uint64_t)i->imm, y + (i->c ? ref_index(m, i->c) * m->j : 0));
    break;
  default: break;
  }
}

static inline void ref_block(ref_machine *m, l_val from, l_val to) {
  for (l_val v = from; v < to; v++) {
    const l_instr *i = &m->p->code[v];
    switch (i->code) {
    case L_FOR: {
      int64_t step = i->c ? ref_index(m, i->c) : 1, last = ref_index(m, i->b);
      for (int64_t x = ref_index(m, i->a); x < last; x += step) {
        m->var[v] = x;
        ref_iteration(m, v);
      }
      v = m->end[v];
      break;
    }
    case L_WHILE:
      while (m->value[i->a] & 1) ref_iteration(m, v);
      v = m->end[v];
      break;
    case L_VEC: {
      int64_t n = ref_index(m, i->b) - ref_index(m, i->a);
      m->vec = v;
      for (m->j = 0; m->j < n; m->j++) ref_block(m, v + 1, m->end[v]);
      m->vec = 0;
      m->j = 0;
      v = m->end[v];
      break;
    }
    case L_IF: {
      l_val otherwise = 0;
      for (l_val k = v + 1, depth = 0; k < m->end[v]; k++) {
        uint8_t code = m->p->code[k].code;
        if (code == L_IF || code == L_FOR || code == L_WHILE || code == L_VEC) depth++;
        if (code == L_END) depth--;
        if (code == L_ELSE && depth == 0) otherwise = k;
      }
      bool is_index = l_rows[m->p->code[i->a].code].result == 'I';
      bool yes = is_index ? m->value[i->a] != 0 : (m->value[i->a] & 1) != 0;
      if (yes)
        ref_block(m, v + 1, otherwise ? otherwise : m->end[v]);
      else if (otherwise)
        ref_block(m, otherwise + 1, m->end[v]);
      v = m->end[v];
      break;
    }
    default: ref_one(m, v); break;
    }
  }
}

/* Runs a verified program. args: buffers (SCRATCH ones, too), ints, scalars, error. */
static inline void ref_run(const l_program *p, const qk_args *args) {
  ref_machine m = {.p = p, .args = args};
  m.end = ref_alloc(p->n * sizeof *m.end);
  m.value = ref_alloc(p->n * sizeof *m.value);
  m.var = ref_alloc(p->n * sizeof *m.var);
  m.local = ref_alloc(p->n * sizeof *m.local);
  m.acc = ref_alloc(p->n * sizeof *m.acc);
  l_val *open = ref_alloc(p->n * sizeof *open);
  uint32_t depth = 0;
  for (l_val v = 1; v < p->n; v++) {
    uint8_t code = p->code[v].code;
    if (code == L_PAR || code == L_FOR || code == L_VEC || code == L_IF || code == L_WHILE) open[depth++] = v;
    if (code == L_END) m.end[open[--depth]] = v;
  }
  for (l_val v = 1; v < p->n; v++) {
    if (p->code[v].code != L_PAR) {
      ref_one(&m, v);
      continue;
    }
    for (int64_t n = ref_index(&m, p->code[v].a), x = 0; x < n; x++) {
      m.var[v] = x;
      ref_block(&m, v + 1, m.end[v]);
    }
    v = m.end[v];
  }
  for (l_val v = 1; v < p->n; v++) {
    ref_acc_free(&m.acc[v]);
    free(m.local[v]);
  }
  free(m.end);
  free(m.value);
  free(m.var);
  free(m.local);
  free(m.acc);
  free(open);
}

#endif
