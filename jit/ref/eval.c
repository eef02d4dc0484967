/* A slow, plain interpreter of L (eval.h): one element at a time, every accumulator a list that is combined at the end exactly
 * as l.h says. It shares nothing with the executors but the scalar primitives (prims.h). */
#include "jit/ref/eval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/kernel/prims.h"

typedef struct ev_leaf {
  uint64_t v[64];
  int64_t at[64];
} ev_leaf;
typedef struct ev_result {
  uint64_t *v, *w; /* pushed values (and factors) */
  int64_t *k;
  size_t n, cap;
  ev_leaf *leaves; /* merged */
  size_t nleaves, leaves_cap;
  bool lacks; /* memory ran out: what it gives means nothing */
} ev_result;
typedef struct ev_acc {
  int64_t results; /* 0: one */
  ev_result *r;
} ev_acc;

typedef struct ev {
  const l_program *p;
  void **buf;        /* args, then scratch */
  int64_t *buf_size; /* elements, for bounds checks; -1 unknown */
  const int64_t *ints;
  const qk_scalar *scalars;
  uint64_t *val; /* by instruction: bits, or an index */
  void **local;
  int64_t *local_size;
  ev_acc *acc;
  uint64_t error;
  l_val *match; /* END of each opener; ELSE of each IF */
  l_val *orelse;
  char why[200];
  bool lacks, stopped;
  uint32_t steps;
  bool (*stop)(void *ctx);
  void *ctx;
} ev;

enum { LOOK = 1024 }; /* steps between two looks at `stop` */

static inline float ev_f32(uint64_t x) {
  float f;
  uint32_t u = (uint32_t)x;
  memcpy(&f, &u, 4);
  return f;
}
static inline double ev_f64(uint64_t x) {
  double f;
  memcpy(&f, &x, 8);
  return f;
}
static inline uint64_t ev_bf32(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}
static inline uint64_t ev_bf64(double f) {
  uint64_t u;
  memcpy(&u, &f, 8);
  return u;
}
/* clang-format off */
/* bits to a C value of type T and back, by dtype */
#define EV_GET_f32(x) ev_f32(x)
#define EV_GET_f64(x) ev_f64(x)
#define EV_PUT_f32(x) ev_bf32(x)
#define EV_PUT_f64(x) ev_bf64(x)
#define EV_INT(T) \
  static inline T EV_G_##T(uint64_t x) { return (T)x; } \
  static inline uint64_t EV_P_##T(T x) { uint64_t r = 0; memcpy(&r, &x, sizeof x); return r; }
EV_INT(b8) EV_INT(i8) EV_INT(i16) EV_INT(i32) EV_INT(i64) EV_INT(u8) EV_INT(u32) EV_INT(u64)
static inline f32 EV_G_f32(uint64_t x) { return ev_f32(x); }
static inline f64 EV_G_f64(uint64_t x) { return ev_f64(x); }
static inline uint64_t EV_P_f32(f32 x) { return ev_bf32(x); }
static inline uint64_t EV_P_f64(f64 x) { return ev_bf64(x); }

#define EV1(op, T) case KOP_##op: return EV_P_##T(op##_##T(EV_G_##T(a)));
#define EV2(op, T) case KOP_##op: return EV_P_##T(op##_##T(EV_G_##T(a), EV_G_##T(b)));
#define EVC(op, T) case KOP_##op: return op##_##T(EV_G_##T(a), EV_G_##T(b));
#define EV_COMPARE(T) EVC(eq, T) EVC(ne, T) EVC(lt, T) EVC(le, T) EVC(gt, T) EVC(ge, T) \
  case KOP_select: return (b8)a ? b : c; case KOP_copy: return a;
#define EV_FLOAT(T) EV2(add, T) EV2(sub, T) EV2(mul, T) EV2(div, T) EV1(neg, T) EV1(abs, T) EV2(min, T) EV2(max, T) \
  EV1(floor, T) EV1(ceil, T) EV1(rint, T) EV1(trunc, T) EV1(sqrt, T) EV_COMPARE(T) \
  case KOP_fma: return EV_P_##T(fma_##T(EV_G_##T(a), EV_G_##T(b), EV_G_##T(c)));
#define EV_INTEGER(T) EV2(add, T) EV2(sub, T) EV2(mul, T) EV1(neg, T) EV1(abs, T) EV2(min, T) EV2(max, T) EV2(and, T) \
  EV2(or, T) EV2(xor, T) EV1(not, T) EV2(shl, T) EV2(shr, T) EV2(idiv, T) EV2(imod, T) EV2(ipow, T) EV_COMPARE(T)
/* clang-format on */

static uint64_t ev_cast(qn_dtype from, qn_dtype to, uint64_t a) {
  if (from == to) return a;
  double wide = 0;
  bool is_float = dtype_is_float(from);
  switch (from) {
  case QN_f16: return to == QN_f32 ? ev_bf32(cast_f16_f32((f16)a)) : 0;
  case QN_bf16: return to == QN_f32 ? ev_bf32(cast_bf16_f32((bf16)a)) : 0;
  case QN_f32: wide = ev_f32(a); break;
  case QN_f64: wide = ev_f64(a); break;
  default: break;
  }
  if (is_float) {
    switch (to) {
    case QN_bool: return wide != 0;
    case QN_f16: return from == QN_f32 ? cast_f32_f16(ev_f32(a)) : cast_f64_f16(wide);
    case QN_bf16: return from == QN_f32 ? cast_f32_bf16(ev_f32(a)) : cast_f64_bf16(wide);
    case QN_f32: return ev_bf32((float)wide);
    case QN_f64: return ev_bf64(wide);
    default: break;
    }
    double t = trunc(wide);
    int bits = (int)(8 * dtype_size(to));
    bool is_unsigned = to == QN_u8 || to == QN_u32 || to == QN_u64;
    double top = ldexp(1, is_unsigned ? bits : bits - 1), low = is_unsigned ? 0 : -top;
    if (!(t >= low && t < top)) return 0;
    uint64_t r = is_unsigned ? (uint64_t)t : (uint64_t)(int64_t)t;
    return bits == 64 ? r : r & (((uint64_t)1 << bits) - 1);
  }
  bool neg = false;
  uint64_t mag;
  int64_t s = 0;
  switch (from) {
  case QN_i8: s = (i8)a; break;
  case QN_i16: s = (i16)a; break;
  case QN_i32: s = (i32)a; break;
  case QN_i64: s = (i64)a; break;
  default: break;
  }
  bool is_signed = from == QN_i8 || from == QN_i16 || from == QN_i32 || from == QN_i64;
  mag = is_signed ? (uint64_t)s : a;
  neg = is_signed && s < 0;
  switch (to) {
  case QN_bool: return mag != 0;
  case QN_f32: return ev_bf32(is_signed ? (float)s : (float)mag);
  case QN_f64: return ev_bf64(is_signed ? (double)s : (double)mag);
  default: break;
  }
  (void)neg;
  size_t bits = 8 * dtype_size(to);
  return bits == 64 ? mag : mag & (((uint64_t)1 << bits) - 1);
}

static uint64_t ev_kop(kop_id op, qn_dtype result, qn_dtype t, qn_dtype first, uint64_t a, uint64_t b, uint64_t c) {
  if (op == KOP_cast) return ev_cast(first, result, a);
  if (op == KOP_bitcast) return a;
  if (op == KOP_mulhi) return t == QN_u32 ? mulhi_u32((u32)a, (u32)b) : mulhi_u64(a, b);
  switch (t) {
  case QN_f32:
    switch (op) { EV_FLOAT(f32) default : return 0; }
  case QN_f64:
    switch (op) { EV_FLOAT(f64) default : return 0; }
  case QN_i8:
    switch (op) { EV_INTEGER(i8) default : return 0; }
  case QN_i16:
    switch (op) { EV_INTEGER(i16) default : return 0; }
  case QN_i32:
    switch (op) { EV_INTEGER(i32) default : return 0; }
  case QN_i64:
    switch (op) { EV_INTEGER(i64) default : return 0; }
  case QN_u8:
    switch (op) { EV_INTEGER(u8) default : return 0; }
  case QN_u32:
    switch (op) { EV_INTEGER(u32) default : return 0; }
  case QN_u64:
    switch (op) { EV_INTEGER(u64) default : return 0; }
  case QN_bool:
    switch (op) {
      EV2(min, b8) EV2(max, b8) EV2(and, b8) EV2(or, b8) EV2(xor, b8) EV1(not, b8) EV_COMPARE(b8) default : return 0;
    }
  default: return op == KOP_select ? ((b8)a ? b : c) : a; /* f16, bf16: moved only */
  }
}

#define EV_PLAIN1(F, T) EV_P_##T(F##_##T(x))
#define EV_PLAIN2(F, T) EV_P_##T(F##_##T(x, y))
#define EV_RARE1 EV_PLAIN1
#define EV_RARE2 EV_PLAIN2
#define EV_POW2 EV_PLAIN2
#define EV_TEST1(F, T) F##_##T(x)
#define EV_WORD1(F, T) 0 /* the operand is no float */
#define EV_MATH(F, n, types, kind, T, meaning)                                                                         \
  case MATH_##F:                                                                                                       \
    return EV_##kind##n(F, T);
#define EV_MATHS(T)                                                                                                    \
  switch (fn) { MATHS(EV_MATH, T) default : return 0; }

static uint64_t ev_math(math_id fn, qn_dtype t, uint64_t a, uint64_t b) {
  if (t == QN_f64) {
    f64 x = ev_f64(a), y = ev_f64(b);
    EV_MATHS(f64)
  }
  f32 x = ev_f32(a), y = ev_f32(b);
  EV_MATHS(f32)
}

/* ---- accumulators ---------------------------------------------------------------------------------------------------- */

static bool ev_is_arg(uint8_t sub) { return sub == KOP_argmax || sub == KOP_argmin; }
/* One combination. For arg reductions the better of two (value, index) pairs. */
static void ev_join(const l_instr *acc, uint64_t *v, int64_t *k, uint64_t w, int64_t j) {
  qn_dtype d = (qn_dtype)acc->dtype;
  if (!ev_is_arg(acc->sub)) {
    *v = ev_kop((kop_id)acc->sub, d, d, d, *v, w, 0);
    return;
  }
  bool floats = dtype_is_float(d);
  bool nan_v = floats && ev_kop(KOP_ne, QN_bool, d, d, *v, *v, 0),
       nan_w = floats && ev_kop(KOP_ne, QN_bool, d, d, w, w, 0);
  bool better = ev_kop(acc->sub == KOP_argmax ? KOP_gt : KOP_lt, QN_bool, d, d, w, *v, 0) != 0;
  bool equal = ev_kop(KOP_eq, QN_bool, d, d, w, *v, 0) != 0 || (nan_v && nan_w);
  if ((nan_w && !nan_v) || (!nan_v && better) || (equal && j < *k)) {
    *v = w;
    *k = j;
  }
}

static void ev_tree(const l_instr *acc, ev_leaf *leaf, size_t n, int lanes) {
  while (n > 1) {
    size_t m = 0;
    for (size_t i = 0; i < n; i += 2) {
      ev_leaf x = leaf[i];
      if (i + 1 < n)
        for (int l = 0; l < lanes; l++) ev_join(acc, &x.v[l], &x.at[l], leaf[i + 1].v[l], leaf[i + 1].at[l]);
      leaf[m++] = x;
    }
    n = m;
  }
}

static uint64_t ev_identity(const l_instr *acc) {
  qn_dtype d = (qn_dtype)acc->dtype;
  bool f = dtype_is_float(d);
  size_t bits = 8 * dtype_size(d);
  uint64_t ones = d == QN_bool ? 1 : bits == 64 ? ~(uint64_t)0 : ((uint64_t)1 << bits) - 1;
  bool is_unsigned = d == QN_u8 || d == QN_u32 || d == QN_u64 || d == QN_bool;
  uint64_t top = is_unsigned ? ones : ones >> 1, low = is_unsigned ? 0 : (ones >> 1) + 1;
  switch (acc->sub) {
  case KOP_add: return f ? (d == QN_f32 ? ev_bf32(-0.0f) : ev_bf64(-0.0)) : 0;
  case KOP_mul: return f ? (d == QN_f32 ? ev_bf32(1) : ev_bf64(1)) : 1;
  case KOP_max: return f ? (d == QN_f32 ? ev_bf32(-INFINITY) : ev_bf64(-INFINITY)) : low;
  case KOP_min: return f ? (d == QN_f32 ? ev_bf32(INFINITY) : ev_bf64(INFINITY)) : top;
  case KOP_and: return ones;
  default: return 0;
  }
}

/* The state of a result as one root: 64 lanes for INNER, one otherwise. False: nothing was pushed. */
static bool ev_root(const l_instr *acc, ev_result *r, ev_leaf *out) {
  int lanes = acc->imm == ORDER_INNER ? 64 : 1;
  qn_dtype d = (qn_dtype)acc->dtype;
  if (r->nleaves) {
    ev_tree(acc, r->leaves, r->nleaves, lanes);
    *out = r->leaves[0];
    return true;
  }
  if (!r->n) return false;
  size_t per = acc->imm == ORDER_INNER   ? ORDER_BLOCK
               : acc->imm == ORDER_OUTER ? ORDER_OUTER_CHAIN
               : acc->imm == ORDER_DOT   ? ORDER_DOT_CHUNK
                                         : 1;
  if (acc->imm == ORDER_FREE) per = r->n;
  size_t n = (r->n + per - 1) / per;
  ev_leaf *leaf = calloc(n, sizeof *leaf);
  if (!leaf) {
    r->lacks = true;
    return false;
  }
  for (size_t b = 0; b < n; b++) {
    bool some[64] = {0};
    for (int l = 0; l < 64; l++) leaf[b].v[l] = ev_identity(acc);
    for (size_t i = b * per; i < r->n && i < (b + 1) * per; i++) {
      int l = lanes == 64 ? (int)(i % 64) : 0;
      if (acc->imm == ORDER_DOT) {
        uint64_t start = some[l] ? leaf[b].v[l] : d == QN_f32 ? ev_bf32(-0.0f) : d == QN_f64 ? ev_bf64(-0.0) : 0;
        if (dtype_is_float(d))
          leaf[b].v[l] = ev_kop(KOP_fma, d, d, d, r->v[i], r->w[i], start);
        else
          leaf[b].v[l] = ev_kop(KOP_add, d, d, d, ev_kop(KOP_mul, d, d, d, r->v[i], r->w[i], 0), start, 0);
      } else if (!some[l]) {
        leaf[b].v[l] = r->v[i];
        leaf[b].at[l] = r->k[i];
      } else {
        ev_join(acc, &leaf[b].v[l], &leaf[b].at[l], r->v[i], r->k[i]);
      }
      some[l] = true;
    }
  }
  ev_tree(acc, leaf, n, lanes);
  *out = leaf[0];
  free(leaf);
  return true;
}

static uint64_t ev_finish(const l_instr *acc, ev_result *r) {
  ev_leaf x;
  if (!ev_root(acc, r, &x)) return ev_is_arg(acc->sub) ? ~(uint64_t)0 : acc->imm == ORDER_DOT ? 0 : ev_identity(acc);
  if (acc->imm == ORDER_INNER)
    for (int h = 32; h; h /= 2)
      for (int l = 0; l < h; l++) ev_join(acc, &x.v[l], &x.at[l], x.v[l + h], x.at[l + h]);
  return ev_is_arg(acc->sub) ? (uint64_t)x.at[0] : x.v[0];
}

/* Room for one more in a list that grows by doubling; false when memory is short. */
static bool ev_grow(void **list, size_t cap, size_t size) {
  void *grown = realloc(*list, cap * size);
  if (grown) *list = grown;
  return grown != NULL;
}

static bool ev_push(ev_result *r, uint64_t v, uint64_t w, int64_t k) {
  if (r->n == r->cap) {
    size_t cap = r->cap ? 2 * r->cap : 64;
    if (!ev_grow((void **)&r->v, cap, sizeof *r->v) || !ev_grow((void **)&r->w, cap, sizeof *r->w) ||
        !ev_grow((void **)&r->k, cap, sizeof *r->k))
      return false;
    r->cap = cap;
  }
  r->v[r->n] = v;
  r->w[r->n] = w;
  r->k[r->n++] = k;
  return true;
}

static uint64_t ev_scan(const l_instr *acc, ev_result *r, bool exclusive) {
  size_t n = exclusive ? r->n - 1 : r->n;
  qn_dtype d = (qn_dtype)acc->dtype;
  if (n == 0) {
    uint64_t x = ev_identity(acc);
    return acc->sub == KOP_add ? 0 : x;
  }
  size_t i = n - 1;
#define J(a, b) ev_kop((kop_id)acc->sub, d, d, d, a, b, 0)
  if (acc->imm == ORDER_INNER) {
    /* group-local by steps */
    size_t group = i / 64 * 64, block = i / 4096 * 4096;
    uint64_t l[64], m[64];
    uint64_t result = 0;
    bool has_b = false, has_g = false;
    uint64_t B = 0, G = 0;
#define LOCAL_LAST(from, to, res)                                                                                      \
  do {                                                                                                                 \
    size_t cnt = (to) - (from);                                                                                        \
    for (size_t q = 0; q < cnt; q++) l[q] = r->v[(from) + q];                                                          \
    for (size_t h = 1; h < 64; h *= 2) {                                                                               \
      memcpy(m, l, sizeof l);                                                                                          \
      for (size_t q = h; q < cnt; q++) l[q] = J(m[q - h], m[q]);                                                       \
    }                                                                                                                  \
    res = l[cnt - 1];                                                                                                  \
  } while (0)
    for (size_t b = 0; b < block; b += 4096) {
      uint64_t total = 0, g2 = 0;
      bool hg = false;
      for (size_t g = b; g < b + 4096; g += 64) {
        uint64_t t;
        LOCAL_LAST(g, g + 64, t);
        total = hg ? J(g2, t) : t;
        g2 = total;
        hg = true;
      }
      B = has_b ? J(B, total) : total;
      has_b = true;
    }
    for (size_t g = block; g < group; g += 64) {
      uint64_t t;
      LOCAL_LAST(g, g + 64, t);
      G = has_g ? J(G, t) : t;
      has_g = true;
    }
    LOCAL_LAST(group, i + 1, result);
    if (has_g) result = J(G, result);
    if (has_b) result = J(B, result);
    return result;
  }
  if (acc->imm == ORDER_OUTER) {
    uint64_t C = 0, x = 0;
    bool has = false;
    for (size_t s = 0; s <= i; s += 64) {
      x = r->v[s];
      for (size_t q = s + 1; q < s + 64 && q <= i; q++) x = J(x, r->v[q]);
      if (s + 64 <= i) {
        C = has ? J(C, x) : x;
        has = true;
      }
    }
    return has ? J(C, x) : x;
  }
  uint64_t x = r->v[0];
  for (size_t q = 1; q <= i; q++) x = J(x, r->v[q]);
  return x;
#undef J
}

static void ev_acc_clear(ev_acc *a) {
  int64_t n = a->results ? a->results : 1;
  for (int64_t i = 0; a->r && i < n; i++) {
    free(a->r[i].v);
    free(a->r[i].w);
    free(a->r[i].k);
    free(a->r[i].leaves);
  }
  free(a->r);
  a->r = NULL;
}

/* ---- running ------------------------------------------------------------------------------------------------------------ */

static bool ev_bad(ev *e, l_val at, const char *what, int64_t x) {
  if (!e->why[0]) snprintf(e->why, sizeof e->why, "%%%u: %s (%lld)", at, what, (long long)x);
  return false;
}

static bool ev_lacks(ev *e) {
  e->lacks = true;
  return false;
}

static void *ev_memory(ev *e, int64_t b, int64_t *size) {
  if (b < 0) {
    *size = e->local_size[-b];
    return e->local[-b];
  }
  *size = e->buf_size[b];
  return e->buf[b];
}

static qn_dtype ev_memory_type(const ev *e, int64_t b) {
  return (qn_dtype)(b < 0 ? e->p->code[-b].dtype : e->p->buffers[b].dtype);
}

typedef struct ev_vec {
  bool on;
  int64_t i, from;
} ev_vec;

/* The end of an iteration: the SETs directly in the loop at `loop`, all at once. */
static void ev_sets(ev *e, l_val loop) {
  uint64_t next[64];
  for (int pass = 0; pass < 2; pass++)
    for (l_val n = loop + 1, i = 0; n < e->match[loop] && i < 64; n++) {
      const l_instr *c = &e->p->code[n];
      if (e->match[n])
        n = e->match[n];
      else if (c->code == L_SET && pass == 0)
        next[i++] = e->val[c->b];
      else if (c->code == L_SET)
        e->val[c->a] = next[i++];
    }
}

static bool ev_run(ev *e, l_val from, l_val to, ev_vec vec);

static int64_t ev_index(const ev *e, l_val v) { return (int64_t)e->val[v]; }

static bool ev_guard(ev *e, const l_instr *c, ev_vec v) {
  if (c->e && v.i < ev_index(e, c->e)) return false;
  if (c->f && v.i >= ev_index(e, c->f)) return false;
  return !c->g || (e->val[c->g] & 1);
}

static int64_t ev_address(ev *e, const l_instr *c, ev_vec v) {
  int64_t at = ev_index(e, c->a);
  if (c->b) at += ev_index(e, c->b) * (v.i - v.from);
  if (c->c) at += (int64_t)e->val[c->c] * ev_index(e, c->d);
  return at;
}

static bool ev_instr(ev *e, l_val n, ev_vec v) {
  const l_program *p = e->p;
  const l_instr *c = &p->code[n];
  uint64_t *to = &e->val[n];
  int64_t x, y, size;
  switch (c->code) {
  case L_INT: *to = (uint64_t)c->imm; return true;
  case L_PARAM: *to = (uint64_t)e->ints[c->imm]; return true;
  case L_VAR: *to = e->val[c->a]; return true;
  case L_IADD: *to = e->val[c->a] + e->val[c->b]; return true;
  case L_ISUB: *to = e->val[c->a] - e->val[c->b]; return true;
  case L_IMUL: *to = e->val[c->a] * e->val[c->b]; return true;
  case L_IDIV:
  case L_IMOD:
    x = ev_index(e, c->a);
    y = ev_index(e, c->b);
    if (y <= 0)
      *to = 0;
    else {
      int64_t q = x / y - (x % y < 0);
      *to = (uint64_t)(c->code == L_IDIV ? q : x - q * y);
    }
    return true;
  case L_IMIN:
    *to = (uint64_t)(ev_index(e, c->a) < ev_index(e, c->b) ? ev_index(e, c->a) : ev_index(e, c->b));
    return true;
  case L_IMAX:
    *to = (uint64_t)(ev_index(e, c->a) > ev_index(e, c->b) ? ev_index(e, c->a) : ev_index(e, c->b));
    return true;
  case L_IVALUE: *to = ev_cast((qn_dtype)p->code[c->a].dtype, QN_i64, e->val[c->a]); return true;
  case L_CONST: *to = (uint64_t)c->imm; return true;
  case L_SCALAR:
    *to = c->dtype == QN_bool ? (uint64_t)(e->scalars[c->imm].i != 0) : (uint64_t)e->scalars[c->imm].i;
    return true;
  case L_IOTA:
    x = ev_index(e, c->a) + (c->b ? ev_index(e, c->b) * (v.i - v.from) : 0);
    *to = ev_cast(QN_i64, (qn_dtype)c->dtype, (uint64_t)x);
    return true;
  case L_KOP:
    *to = ev_kop((kop_id)c->sub, (qn_dtype)c->dtype, (qn_dtype)c->type2, (qn_dtype)p->code[c->a].dtype, e->val[c->a],
                 e->val[c->b], e->val[c->c]);
    return true;
  case L_MATH:
    if (c->sub == MATH_philox_uniform)
      *to = c->dtype == QN_f64 ? ev_bf64(philox_uniform_f64(e->val[c->a])) : ev_bf32(philox_uniform_f32(e->val[c->a]));
    else
      *to = ev_math((math_id)c->sub, (qn_dtype)c->type2, e->val[c->a], e->val[c->b]);
    return true;
  case L_LOAD: {
    if (!ev_guard(e, c, v)) {
      *to = e->val[c->h];
      return true;
    }
    void *m = ev_memory(e, c->imm, &size);
    x = ev_address(e, c, v);
    if (size >= 0 && (x < 0 || x >= size)) return ev_bad(e, n, "load out of bounds", x);
    *to = ev_read((qn_dtype)c->dtype, m, x);
    return true;
  }
  case L_STORE:
  case L_RMW: {
    if (!ev_guard(e, c, v)) return true;
    void *m = ev_memory(e, c->imm, &size);
    qn_dtype d = ev_memory_type(e, c->imm);
    x = ev_address(e, c, v);
    if (size >= 0 && (x < 0 || x >= size)) return ev_bad(e, n, "store out of bounds", x);
    uint64_t w = e->val[c->h];
    if (c->code == L_RMW) {
      uint64_t old = ev_read(d, m, x);
      bool half = d == QN_f16 || d == QN_bf16;
      if (half) {
        uint64_t s = ev_kop((kop_id)c->sub, QN_f32, QN_f32, QN_f32, ev_cast(d, QN_f32, old), ev_cast(d, QN_f32, w), 0);
        w = ev_cast(QN_f32, d, s);
      } else {
        w = ev_kop((kop_id)c->sub, d, d, d, old, w, 0);
      }
    }
    ev_write(d, m, x, w);
    return true;
  }
  case L_LOCAL:
    size = ev_index(e, c->a);
    free(e->local[n]);
    if (!(e->local[n] = malloc((size_t)(size < 0 ? 0 : size) * dtype_size((qn_dtype)c->dtype) + 8))) return ev_lacks(e);
    memset(e->local[n], 0xa5, (size_t)(size < 0 ? 0 : size) * dtype_size((qn_dtype)c->dtype));
    e->local_size[n] = size;
    return true;
  case L_ACC:
    ev_acc_clear(&e->acc[n]);
    e->acc[n].results = c->a ? ev_index(e, c->a) : 0;
    e->acc[n].r = calloc((size_t)(e->acc[n].results ? e->acc[n].results : 1), sizeof *e->acc[n].r);
    return e->acc[n].r || ev_lacks(e);
  case L_PUSH:
  case L_SCAN: {
    ev_acc *a = &e->acc[c->a];
    const l_instr *ai = &p->code[c->a];
    if (ai->a && (v.i < 0 || v.i >= a->results)) return ev_bad(e, n, "no such result", v.i);
    ev_result *r = &a->r[ai->a ? v.i : 0];
    int64_t k = (int64_t)r->n;
    if (c->code == L_PUSH && c->c) k = ev_index(e, c->c) + (ai->a || !v.on ? 0 : v.i - v.from);
    if (r->nleaves) return ev_bad(e, n, "push after merge", 0);
    if (ai->imm == ORDER_INNER && ai->a && r->n >= 64) return ev_bad(e, n, "too many pushes", (int64_t)r->n);
    if (!ev_push(r, e->val[c->b], c->code == L_PUSH && c->d ? e->val[c->d] : 0, k)) return ev_lacks(e);
    if (c->code == L_SCAN) *to = ev_scan(ai, r, c->flags & L_EXCLUSIVE);
    return true;
  }
  case L_PARTIAL:
  case L_MERGE: {
    ev_acc *a = &e->acc[c->a];
    const l_instr *ai = &p->code[c->a];
    int lanes = ai->imm == ORDER_INNER ? 64 : 1;
    int64_t results = ai->a ? a->results : 1, isize = 0;
    void *m = ev_memory(e, c->imm, &size), *im = c->d ? ev_memory(e, c->imm2, &isize) : NULL;
    for (int64_t q = 0; q < results; q++) {
      ev_result *r = &a->r[q];
      ev_leaf leaf;
      for (int l = 0; l < 64; l++) {
        leaf.v[l] = ev_identity(ai);
        leaf.at[l] = 0;
      }
      int64_t at = ev_index(e, c->b) + q * lanes, iat = c->d ? ev_index(e, c->d) + q * lanes : 0;
      if (at < 0 || at + lanes > size) return ev_bad(e, n, "partial out of bounds", at);
      if (c->code == L_PARTIAL) {
        (void)ev_root(ai, r, &leaf);
        if (r->lacks) return ev_lacks(e);
        for (int l = 0; l < lanes; l++) ev_write((qn_dtype)ai->dtype, m, at + l, leaf.v[l]);
        for (int l = 0; l < lanes && im; l++) ev_write(QN_i64, im, iat + l, (uint64_t)leaf.at[l]);
      } else {
        for (int l = 0; l < lanes; l++) leaf.v[l] = ev_read((qn_dtype)ai->dtype, m, at + l);
        for (int l = 0; l < lanes && im; l++) leaf.at[l] = (int64_t)ev_read(QN_i64, im, iat + l);
        if (r->n) return ev_bad(e, n, "merge after push", 0);
        if (r->nleaves == r->leaves_cap) {
          size_t cap = r->leaves_cap ? 2 * r->leaves_cap : 4;
          if (!ev_grow((void **)&r->leaves, cap, sizeof *r->leaves)) return ev_lacks(e);
          r->leaves_cap = cap;
        }
        r->leaves[r->nleaves++] = leaf;
      }
    }
    return true;
  }
  case L_FINISH: {
    ev_acc *a = &e->acc[c->a];
    const l_instr *ai = &p->code[c->a];
    if (ai->a && (v.i < 0 || v.i >= a->results)) return ev_bad(e, n, "no such result", v.i);
    *to = ev_finish(ai, &a->r[ai->a ? v.i : 0]);
    return !a->r[ai->a ? v.i : 0].lacks || ev_lacks(e);
  }
  case L_TILE: {
    const l_tile *t = &p->tiles[c->imm];
    int64_t rows = ev_index(e, t->rows), cols = ev_index(e, t->cols), depth = ev_index(e, t->depth), xs, ys, os;
    void *xm = ev_memory(e, t->x, &xs), *ym = ev_memory(e, t->y, &ys), *om = ev_memory(e, -(int64_t)t->out, &os);
    qn_dtype d = ev_memory_type(e, t->x), od = ev_memory_type(e, -(int64_t)t->out);
    if (rows > t->tile_rows || cols > t->tile_cols) return ev_bad(e, n, "tile too large", rows);
    l_instr acc = {.code = L_ACC, .sub = KOP_add, .dtype = (uint8_t)od, .imm = ORDER_DOT};
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = 0; j < cols; j++) {
        ev_result r = {0};
        for (int64_t k = 0; k < depth; k++) {
          int64_t xa = ev_index(e, t->x_base) + i * ev_index(e, t->x_m) + k * ev_index(e, t->x_k);
          int64_t ya = ev_index(e, t->y_base) + k * ev_index(e, t->y_k) + j * ev_index(e, t->y_n);
          if ((xs >= 0 && (xa < 0 || xa >= xs)) || (ys >= 0 && (ya < 0 || ya >= ys))) {
            free(r.v);
            free(r.w);
            free(r.k);
            return ev_bad(e, n, "tile out of bounds", xa);
          }
          r.lacks |= !ev_push(&r, ev_cast(d, od, ev_read(d, xm, xa)), ev_cast(d, od, ev_read(d, ym, ya)), k);
        }
        uint64_t sum = ev_finish(&acc, &r);
        e->lacks |= r.lacks;
        if (!r.lacks) ev_write(od, om, i * t->tile_cols + j, sum);
        free(r.v);
        free(r.w);
        free(r.k);
        if (e->lacks) return false;
      }
    return true;
  }
  case L_CARRY: *to = e->val[c->a]; return true;
  case L_SET: return true; /* ev_sets */
  case L_CHECK:
    if (!(e->val[c->a] & 1)) {
      x = ev_index(e, c->b) + (c->c ? ev_index(e, c->c) * (v.i - v.from) : 0);
      uint64_t cell = (uint64_t)c->imm << 48 | (uint64_t)x;
      if (cell < e->error) e->error = cell;
    }
    return true;
  default: return true; /* SYNC, POLL */
  }
}

static bool ev_run(ev *e, l_val from, l_val to, ev_vec vec) {
  const l_program *p = e->p;
  for (l_val n = from; n < to; n++) {
    const l_instr *c = &p->code[n];
    if (++e->steps % LOOK == 0 && e->stop && e->stop(e->ctx)) {
      e->stopped = true;
      return false;
    }
    switch (c->code) {
    case L_FOR:
      for (int64_t i = ev_index(e, c->a); i < ev_index(e, c->b); i += c->c ? ev_index(e, c->c) : 1) {
        e->val[n] = (uint64_t)i;
        if (!ev_run(e, n + 1, e->match[n], vec)) return false;
        ev_sets(e, n);
      }
      n = e->match[n];
      break;
    case L_VEC:
      for (int64_t i = ev_index(e, c->a); i < ev_index(e, c->b); i++)
        if (!ev_run(e, n + 1, e->match[n], (ev_vec){true, i, ev_index(e, c->a)})) return false;
      n = e->match[n];
      break;
    case L_IF: {
      bool yes = e->val[c->a] != 0;
      l_val other = e->orelse[n];
      if (yes ? !ev_run(e, n + 1, other ? other : e->match[n], vec) : other && !ev_run(e, other + 1, e->match[n], vec))
        return false;
      n = e->match[n];
      break;
    }
    case L_WHILE:
      while (e->val[c->a] & 1) {
        if (!ev_run(e, n + 1, e->match[n], vec)) return false;
        ev_sets(e, n);
      }
      n = e->match[n];
      break;
    default:
      if (!ev_instr(e, n, vec)) return false;
    }
  }
  return true;
}

l_eval_end l_eval(const l_program *p, void *const *buffers, const int64_t *sizes, const int64_t *ints,
                  const qk_scalar *scalars, const l_eval_options *o, uint64_t *error) {
  ev e = {.p = p,
          .ints = ints,
          .scalars = scalars,
          .error = ~(uint64_t)0,
          .stop = o ? o->stop : NULL,
          .ctx = o ? o->ctx : NULL};
  e.val = calloc(p->n, sizeof *e.val);
  e.local = calloc(p->n, sizeof *e.local);
  e.local_size = calloc(p->n, sizeof *e.local_size);
  e.acc = calloc(p->n, sizeof *e.acc);
  e.match = calloc(p->n, sizeof *e.match);
  e.orelse = calloc(p->n, sizeof *e.orelse);
  e.buf = calloc(p->nbuffers + 1, sizeof *e.buf);
  e.buf_size = calloc(p->nbuffers + 1, sizeof *e.buf_size);
  l_val stack[64];
  int depth = 0;
  bool ok = e.val && e.local && e.local_size && e.acc && e.match && e.orelse && e.buf && e.buf_size;
  e.lacks = !ok;
  for (l_val n = 1; n < p->n && ok; n++) {
    uint8_t code = p->code[n].code;
    if (code == L_PAR || code == L_FOR || code == L_VEC || code == L_IF || code == L_WHILE) stack[depth++] = n;
    if (code == L_ELSE) e.orelse[stack[depth - 1]] = n;
    if (code == L_END) e.match[stack[--depth]] = n;
  }
  l_val n = 1;
  ev_vec none = {0};
  for (; ok && n < p->n && p->code[n].code != L_PHASE; n++) ok = ev_instr(&e, n, none);
  uint32_t given = 0;
  for (uint32_t b = 0; b < p->nbuffers && ok; b++) {
    if (p->buffers[b].mode == BUF_SCRATCH) {
      int64_t size = ev_index(&e, p->buffers[b].size);
      e.buf_size[b] = size;
      e.buf[b] = malloc((size_t)(size < 0 ? 0 : size) * dtype_size((qn_dtype)p->buffers[b].dtype) + 8);
      if (!e.buf[b]) {
        ok = ev_lacks(&e);
        break;
      }
      memset(e.buf[b], 0x5a, (size_t)(size < 0 ? 0 : size) * dtype_size((qn_dtype)p->buffers[b].dtype));
    } else {
      e.buf[b] = buffers[given];
      e.buf_size[b] = sizes ? sizes[given] : -1;
      given++;
    }
  }
  for (; ok && n < p->n; n++) {
    if (p->code[n].code != L_PAR) {
      if (p->code[n].code != L_PHASE) ok = ev_instr(&e, n, none);
      continue;
    }
    /* Instances backwards: they are independent. */
    for (int64_t i = ev_index(&e, p->code[n].a) - 1; ok && i >= 0; i--) {
      e.val[n] = (uint64_t)i;
      ok = ev_run(&e, n + 1, e.match[n], none);
    }
    n = e.match[n];
  }
  for (l_val i = 0; i < p->n && e.local && e.acc; i++) {
    free(e.local[i]);
    ev_acc_clear(&e.acc[i]);
  }
  for (uint32_t b = 0; b < p->nbuffers && e.buf; b++)
    if (p->buffers[b].mode == BUF_SCRATCH) free(e.buf[b]);
  if (o && o->why_size) snprintf(o->why, o->why_size, "%s", e.why);
  *error = e.error;
  free(e.val);
  free(e.local);
  free(e.local_size);
  free(e.acc);
  free(e.match);
  free(e.orelse);
  free(e.buf);
  free(e.buf_size);
  return ok ? L_EVAL_DONE : e.lacks ? L_EVAL_LACKS_MEMORY : e.stopped ? L_EVAL_STOPPED : L_EVAL_WRONG;
}

bool l_eval_outer(const l_program *p, const int64_t *ints, const qk_scalar *scalars, int64_t *values) {
  ev e = {.p = p, .ints = ints, .scalars = scalars};
  int depth = 0;
  bool ok = (e.val = calloc(p->n, sizeof *e.val)) != NULL;
  for (l_val v = 1; v < p->n && ok; v++) {
    uint8_t code = p->code[v].code;
    if (depth == 0 && code != L_PHASE && code != L_PAR) ok = ev_instr(&e, v, (ev_vec){0});
    depth += code == L_PAR || code == L_FOR || code == L_VEC || code == L_IF || code == L_WHILE;
    depth -= code == L_END;
  }
  if (ok) memcpy(values, e.val, p->n * sizeof *values);
  free(e.val);
  return ok;
}
