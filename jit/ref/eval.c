/* A slow, plain interpreter of L (eval.h): one element at a time. An accumulator keeps the list of everything that was pushed to it, and
 * results are made of that list exactly as l.h says. Executors share nothing with it but the scalar primitives (prims.h).
 *
 * All values are 64-bit words: the bits of a typed value, zero-extended, or an index. */
#include "jit/ref/eval.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/kernel/prims.h"

/* A leaf or a subtree of the balanced tree: one lane, or 64 of order INNER. `at` are the indices of arg reductions. */
typedef struct ev_leaf {
  uint64_t v[ORDER_LANES];
  int64_t at[ORDER_LANES];
} ev_leaf;

typedef struct ev_push {
  uint64_t value, times;
  int64_t k;
} ev_push;

/* One result of an accumulator: what was pushed, or else what was merged into it. */
typedef struct ev_result {
  ev_push *pushed;
  ev_leaf *merged;
  size_t npushed, pushed_cap, nmerged, merged_cap;
} ev_result;

typedef struct ev_memory {
  char *data;
  int64_t size; /* elements; -1: unknown */
  qn_dtype dtype;
} ev_memory;

/* The state of an instruction: its value at the moment, and of an opener where its block goes on. */
typedef struct ev_slot {
  uint64_t value;
  uint64_t *block;    /* the elements of a block, by rows */
  ev_memory local;    /* of a LOCAL */
  ev_result *results; /* of an ACC */
  int64_t nresults;
  l_val end, other; /* the END of an opener; the ELSE of an IF, or 0 */
} ev_slot;

typedef struct ev {
  const l_program *p;
  const int64_t *ints;
  const qk_scalar *scalars;
  ev_slot *at;    /* by instruction */
  ev_memory *buf; /* by buffer of the program */
  bool in_vec;
  int64_t i, from; /* the variable of the VEC that runs, and its first value */
  uint64_t error;
  char why[200];
  bool lacks, stopped;
  uint32_t steps;
  bool (*stop)(void *ctx);
  void *ctx;
} ev;

enum { LOOK = 1024 }; /* instructions between two questions whether to stop */

static bool ev_bad(ev *e, l_val at, const char *what, int64_t x) {
  if (!e->why[0]) snprintf(e->why, sizeof e->why, "%%%u: %s (%lld)", at, what, (long long)x);
  return false;
}

static bool ev_lacks(ev *e) {
  e->lacks = true;
  return false;
}

/* ---- scalar primitives on words ------------------------------------------------------------------------------------------ */

/* clang-format off */
#define FLOATS(X) X(f32) X(f64)
#define INTS(X) X(u8) X(i8) X(i16) X(i32) X(i64) X(u32) X(u64)
#define HALVES(X) X(f16) X(bf16)
#define COUNTED(T) +1
_Static_assert(1 FLOATS(COUNTED) INTS(COUNTED) HALVES(COUNTED) == DTYPE_PUBLIC + 2, "words of every public dtype, of u32 and u64");

#define WORD(T) \
  static inline T get_##T(uint64_t x) { T v; memcpy(&v, &x, sizeof v); return v; } \
  static inline uint64_t put_##T(T v) { uint64_t x = 0; memcpy(&x, &v, sizeof v); return x; }
FLOATS(WORD) INTS(WORD) HALVES(WORD) WORD(b8)

/* Cases for rows of kops.def and one type: with one operand, with two, and comparisons. */
#define UNARY(op, T) case KOP_##op: return put_##T(op##_##T(get_##T(a)));
#define BINARY(op, T) case KOP_##op: return put_##T(op##_##T(get_##T(a), get_##T(b)));
#define COMPARE(op, T) case KOP_##op: return op##_##T(get_##T(a), get_##T(b));
#define ALL(T) BINARY(min, T) BINARY(max, T) COMPARE(eq, T) COMPARE(ne, T) COMPARE(lt, T) COMPARE(le, T) COMPARE(gt, T) COMPARE(ge, T)
#define BITS(T) BINARY(and, T) BINARY(or, T) BINARY(xor, T) UNARY(not, T)
#define NUMBER(T) ALL(T) BINARY(add, T) BINARY(sub, T) BINARY(mul, T) UNARY(neg, T) UNARY(abs, T)
#define INTEGER(T) case DTYPE_##T: switch (op) { NUMBER(T) BITS(T) BINARY(shl, T) BINARY(shr, T) BINARY(idiv, T) BINARY(imod, T) \
  BINARY(ipow, T) default: return 0; }
#define FLOAT(T) case DTYPE_##T: switch (op) { NUMBER(T) BINARY(div, T) UNARY(floor, T) UNARY(ceil, T) UNARY(rint, T) UNARY(trunc, T) \
  UNARY(sqrt, T) case KOP_fma: return put_##T(fma_##T(get_##T(a), get_##T(b), get_##T(c))); default: return 0; }

/* Conversions. f16 and bf16 are converted to and from floats only. */
#define CAST(S, T) case DTYPE_##T: return put_##T(cast_##S##_##T(get_##S(a)));
#define CAST_TO_INTS(S) CAST(S, u8) CAST(S, i8) CAST(S, i16) CAST(S, i32) CAST(S, i64) CAST(S, u32) CAST(S, u64)
#define CAST_FROM(S, ...) case DTYPE_##S: switch ((int)to) { __VA_ARGS__ default: return 0; }
#define CAST_INT(S) CAST_FROM(S, CAST_TO_INTS(S) CAST(S, b8) CAST(S, f32) CAST(S, f64))

static uint64_t ev_cast(qn_dtype from, qn_dtype to, uint64_t a) {
  if (from == to) return a;
  switch ((int)from) {
    INTS(CAST_INT)
    CAST_FROM(b8, CAST_TO_INTS(b8) CAST(b8, f32) CAST(b8, f64))
    CAST_FROM(f32, CAST_TO_INTS(f32) CAST(f32, b8) CAST(f32, f64) CAST(f32, f16) CAST(f32, bf16))
    CAST_FROM(f64, CAST_TO_INTS(f64) CAST(f64, b8) CAST(f64, f32) CAST(f64, f16) CAST(f64, bf16))
    CAST_FROM(f16, CAST(f16, f32))
    CAST_FROM(bf16, CAST(bf16, f32))
    default: return 0;
  }
}

/* `t` is the type of the last operand. */
static uint64_t ev_compute(kop_id op, qn_dtype t, uint64_t a, uint64_t b, uint64_t c) {
  if (op == KOP_bitcast || op == KOP_copy) return a;
  if (op == KOP_select) return (b8)a ? b : c;
  if (op == KOP_mulhi) return dtype_size(t) == 4 ? mulhi_u32((u32)a, (u32)b) : mulhi_u64(a, b);
  switch ((int)t) {
    FLOATS(FLOAT)
    INTS(INTEGER)
    case DTYPE_b8: switch (op) { ALL(b8) BITS(b8) default: return 0; }
    default: return 0;
  }
}

/* Calls for rows of mathfns.h, by their kind. */
#define PLAIN1(F, T) put_##T(F##_##T(get_##T(a)))
#define PLAIN2(F, T) put_##T(F##_##T(get_##T(a), get_##T(b)))
#define RARE1 PLAIN1
#define RARE2 PLAIN2
#define POW2 PLAIN2
#define TEST1(F, T) F##_##T(get_##T(a))
#define WORD1(F, T) put_##T(F##_##T(a))
#define MATH(F, n, types, kind, T, meaning) case MATH_##F: return kind##n(F, T);
static uint64_t ev_math(math_id fn, qn_dtype t, uint64_t a, uint64_t b) {
  if (dtype_size(t) == 8) switch (fn) { MATHS(MATH, f64) default: return 0; }
  switch (fn) { MATHS(MATH, f32) default: return 0; }
}
/* clang-format on */

/* ---- accumulators -------------------------------------------------------------------------------------------------------- */

static bool ev_is_arg(const l_instr *acc) { return acc->sub == KOP_argmax || acc->sub == KOP_argmin; }
static int ev_lanes(const l_instr *acc) { return acc->imm == ORDER_INNER ? ORDER_LANES : 1; }
static uint64_t ev_fold(const l_instr *acc, uint64_t a, uint64_t b) {
  return ev_compute((kop_id)acc->sub, (qn_dtype)acc->dtype, a, b, 0);
}

/* One combination. For arg reductions the better of two (value, index) pairs. */
static void ev_join(const l_instr *acc, uint64_t *v, int64_t *k, uint64_t w, int64_t j) {
  qn_dtype d = (qn_dtype)acc->dtype;
  if (!ev_is_arg(acc)) {
    *v = ev_fold(acc, *v, w);
    return;
  }
  bool nan_v = ev_compute(KOP_ne, d, *v, *v, 0), nan_w = ev_compute(KOP_ne, d, w, w, 0);
  bool better = ev_compute(acc->sub == KOP_argmax ? KOP_gt : KOP_lt, d, w, *v, 0) != 0;
  bool equal = ev_compute(KOP_eq, d, w, *v, 0) != 0 || (nan_v && nan_w);
  if ((nan_w && !nan_v) || (!nan_v && better) || (equal && j < *k)) {
    *v = w;
    *k = j;
  }
}

/* The leaf of n pushes: a chain in each lane. */
static ev_leaf ev_chain(const l_instr *acc, const ev_push *p, size_t n) {
  ev_leaf x;
  qn_dtype d = (qn_dtype)acc->dtype;
  size_t lanes = (size_t)ev_lanes(acc);
  for (int l = 0; l < ORDER_LANES; l++) x.v[l] = l_identity(acc->sub, acc->dtype), x.at[l] = 0;
  for (size_t i = 0; i < n; i++) {
    size_t l = i % lanes;
    if (acc->imm == ORDER_DOT && dtype_is_float(d))
      x.v[l] = ev_compute(KOP_fma, d, p[i].value, p[i].times, x.v[l]);
    else if (acc->imm == ORDER_DOT)
      x.v[l] = ev_compute(KOP_add, d, ev_compute(KOP_mul, d, p[i].value, p[i].times, 0), x.v[l], 0);
    else if (i < lanes)
      x.v[l] = p[i].value, x.at[l] = p[i].k;
    else
      ev_join(acc, &x.v[l], &x.at[l], p[i].value, p[i].k);
  }
  return x;
}

/* How many pushes make a leaf. */
static size_t ev_chain_length(const l_instr *acc, const ev_result *r) {
  switch ((l_order)acc->imm) {
  case ORDER_INNER: return ORDER_BLOCK;
  case ORDER_OUTER: return ORDER_OUTER_CHAIN;
  case ORDER_DOT: return ORDER_DOT_CHUNK;
  case ORDER_FREE: return r->npushed;
  default: return 1;
  }
}

static size_t ev_leaves(const l_instr *acc, const ev_result *r) {
  size_t each = ev_chain_length(acc, r);
  return r->nmerged ? r->nmerged : r->npushed ? (r->npushed + each - 1) / each : 0;
}

/* The balanced tree over n leaves, at least one, from `first` on: the left half is the largest power of two below n. */
static ev_leaf ev_tree(const l_instr *acc, const ev_result *r, size_t first, size_t n) {
  if (n == 1 && r->nmerged) return r->merged[first];
  if (n == 1) {
    size_t each = ev_chain_length(acc, r), left = r->npushed - first * each;
    return ev_chain(acc, r->pushed + first * each, left < each ? left : each);
  }
  size_t half = 1;
  while (2 * half < n) half *= 2;
  ev_leaf x = ev_tree(acc, r, first, half), y = ev_tree(acc, r, first + half, n - half);
  for (int l = 0; l < ev_lanes(acc); l++) ev_join(acc, &x.v[l], &x.at[l], y.v[l], y.at[l]);
  return x;
}

static uint64_t ev_finish(const l_instr *acc, const ev_result *r) {
  size_t leaves = ev_leaves(acc, r);
  if (!leaves) return ev_is_arg(acc) ? ~(uint64_t)0 : acc->imm == ORDER_DOT ? 0 : l_identity(acc->sub, acc->dtype);
  ev_leaf x = ev_tree(acc, r, 0, leaves);
  for (int h = ev_lanes(acc) / 2; h; h /= 2)
    for (int l = 0; l < h; l++) ev_join(acc, &x.v[l], &x.at[l], x.v[l + h], x.at[l + h]);
  return ev_is_arg(acc) ? (uint64_t)x.at[0] : x.v[0];
}

/* The running value at the last of n pushes (1..64) of one group: by steps (INNER) or one after the other. */
static uint64_t ev_scan_group(const l_instr *acc, const ev_push *p, size_t n) {
  uint64_t x[ORDER_LANES], before[ORDER_LANES];
  for (size_t q = 0; q < n; q++) x[q] = p[q].value;
  if (acc->imm == ORDER_INNER) {
    for (size_t h = 1; h < n; h *= 2) {
      memcpy(before, x, sizeof x);
      for (size_t q = h; q < n; q++) x[q] = ev_fold(acc, before[q - h], before[q]);
    }
  } else {
    for (size_t q = 1; q < n; q++) x[q] = ev_fold(acc, x[q - 1], x[q]);
  }
  return x[n - 1];
}

/* The running value at the last push, or before it. */
static uint64_t ev_scan(const l_instr *acc, const ev_result *r, bool exclusive) {
  const size_t group = ORDER_LANES, block = 64 * group, n = exclusive ? r->npushed - 1 : r->npushed;
  uint64_t groups = 0, blocks = 0; /* G and B of l.h */
  bool has_groups = false, has_blocks = false;
  size_t from = 0;
  if (n == 0) return acc->sub == KOP_add ? 0 : l_identity(acc->sub, acc->dtype);
  for (; from + group < n; from += group) {
    uint64_t x = ev_scan_group(acc, r->pushed + from, group);
    groups = has_groups ? ev_fold(acc, groups, x) : x;
    has_groups = true;
    if (acc->imm != ORDER_INNER || (from + group) % block) continue;
    blocks = has_blocks ? ev_fold(acc, blocks, groups) : groups;
    has_blocks = true;
    has_groups = false;
  }
  uint64_t x = ev_scan_group(acc, r->pushed + from, n - from);
  if (has_groups) x = ev_fold(acc, groups, x);
  return has_blocks ? ev_fold(acc, blocks, x) : x;
}

/* Room for one more in a list of n that grows by doubling. */
static bool ev_grow(ev *e, void **list, size_t n, size_t *cap, size_t size) {
  if (n < *cap) return true;
  size_t more = *cap ? 2 * *cap : 16;
  void *grown = realloc(*list, more * size);
  if (!grown) return ev_lacks(e);
  *list = grown;
  *cap = more;
  return true;
}

static bool ev_push_to(ev *e, ev_result *r, uint64_t value, uint64_t times, int64_t k) {
  if (!ev_grow(e, (void **)&r->pushed, r->npushed, &r->pushed_cap, sizeof *r->pushed)) return false;
  r->pushed[r->npushed++] = (ev_push){value, times, k};
  return true;
}

/* Of what an instruction holds but for its block, which is as large each time. */
static void ev_slot_clear(ev_slot *s) {
  for (int64_t i = 0; s->results && i < s->nresults; i++) {
    free(s->results[i].pushed);
    free(s->results[i].merged);
  }
  free(s->results);
  free(s->local.data);
  s->results = NULL;
  s->local.data = NULL;
}

/* ---- instructions -------------------------------------------------------------------------------------------------------- */

static int64_t ev_index(const ev *e, l_val v) { return (int64_t)e->at[v].value; }

/* base + stride * (i - from), where a stride is given. */
static int64_t ev_along(const ev *e, l_val base, l_val stride) {
  return ev_index(e, base) + (stride ? ev_index(e, stride) * (e->i - e->from) : 0);
}

static ev_memory *ev_memory_of(ev *e, int64_t b) { return b < 0 ? &e->at[-b].local : &e->buf[b]; }

/* Memory for `size` elements, filled with a pattern, so that reading what was never written gives wrong results. */
static bool ev_memory_make(ev *e, ev_memory *m, int64_t size, uint8_t dtype) {
  size_t bytes = (size_t)(size < 0 ? 0 : size) * dtype_size((qn_dtype)dtype) + 8;
  *m = (ev_memory){.data = malloc(bytes), .size = size, .dtype = (qn_dtype)dtype};
  if (!m->data) return ev_lacks(e);
  memset(m->data, 0xa5, bytes);
  return true;
}

static bool ev_inside(ev *e, l_val n, const ev_memory *m, int64_t at, int64_t count) {
  return m->size < 0 || (at >= 0 && at + count <= m->size) || ev_bad(e, n, "out of bounds", at);
}

/* LOAD, STORE and RMW. */
static bool ev_access(ev *e, l_val n) {
  const l_instr *c = &e->p->code[n];
  ev_memory *m = ev_memory_of(e, c->imm);
  uint64_t given = e->at[c->h].value;
  e->at[n].value = given; /* the value of a load whose guard is false */
  if ((c->e && e->i < ev_index(e, c->e)) || (c->f && e->i >= ev_index(e, c->f))) return true;
  if (c->g && !(e->at[c->g].value & 1)) return true;
  int64_t at = ev_along(e, c->a, c->b) + (c->c ? ev_index(e, c->c) * ev_index(e, c->d) : 0);
  if (!ev_inside(e, n, m, at, 1)) return false;
  uint64_t old = ev_read(m->dtype, m->data, at);
  if (c->code == L_LOAD) {
    e->at[n].value = old;
    return true;
  }
  if (c->code == L_RMW) {
    qn_dtype d = (qn_dtype)dtype_rows[m->dtype].compute;
    uint64_t sum = ev_compute((kop_id)c->sub, d, ev_cast(m->dtype, d, old), ev_cast(m->dtype, d, given), 0);
    given = ev_cast(d, m->dtype, sum);
  }
  ev_write(m->dtype, m->data, at, given);
  return true;
}

static bool ev_acc(ev *e, l_val n) {
  const l_instr *c = &e->p->code[n];
  ev_slot *s = &e->at[n];
  ev_slot_clear(s);
  s->nresults = c->a ? ev_index(e, c->a) : 1;
  s->results = calloc((size_t)(s->nresults > 0 ? s->nresults : 1), sizeof *s->results);
  return s->results || ev_lacks(e);
}

/* PUSH, SCAN and FINISH, which concern one result. */
static bool ev_result_step(ev *e, l_val n) {
  const l_instr *c = &e->p->code[n], *acc = &e->p->code[c->a];
  ev_slot *s = &e->at[c->a];
  bool many = acc->a != 0;
  if (many && (e->i < 0 || e->i >= s->nresults)) return ev_bad(e, n, "no such result", e->i);
  ev_result *r = &s->results[many ? e->i : 0];
  if (c->code == L_FINISH) {
    e->at[n].value = ev_finish(acc, r);
    return true;
  }
  bool push = c->code == L_PUSH;
  int64_t k = (int64_t)r->npushed;
  if (push && c->c) k = ev_index(e, c->c) + (many || !e->in_vec ? 0 : e->i - e->from);
  if (r->nmerged) return ev_bad(e, n, "push after merge", 0);
  if (acc->imm == ORDER_INNER && many && r->npushed >= ORDER_LANES) return ev_bad(e, n, "too many pushes", k);
  if (!ev_push_to(e, r, e->at[c->b].value, push && c->d ? e->at[c->d].value : 0, k)) return false;
  if (!push) e->at[n].value = ev_scan(acc, r, c->flags & L_EXCLUSIVE);
  return true;
}

/* PARTIAL and MERGE, which concern all results: `lanes` elements of memory for each. */
static bool ev_subtrees(ev *e, l_val n) {
  const l_instr *c = &e->p->code[n], *acc = &e->p->code[c->a];
  const ev_slot *s = &e->at[c->a];
  ev_memory *m = ev_memory_of(e, c->imm), *indices = c->d ? ev_memory_of(e, c->imm2) : NULL;
  int lanes = ev_lanes(acc);
  for (int64_t q = 0; q < s->nresults; q++) {
    ev_result *r = &s->results[q];
    int64_t at = ev_index(e, c->b) + q * lanes, index_at = indices ? ev_index(e, c->d) + q * lanes : 0;
    if (!ev_inside(e, n, m, at, lanes)) return false;
    if (c->code == L_PARTIAL) {
      size_t leaves = ev_leaves(acc, r);
      ev_leaf x = leaves ? ev_tree(acc, r, 0, leaves) : ev_chain(acc, NULL, 0);
      for (int l = 0; l < lanes; l++) ev_write(m->dtype, m->data, at + l, x.v[l]);
      for (int l = 0; l < lanes && indices; l++) ev_write(DTYPE_INDEX, indices->data, index_at + l, (uint64_t)x.at[l]);
      continue;
    }
    if (r->npushed) return ev_bad(e, n, "merge after push", 0);
    if (!ev_grow(e, (void **)&r->merged, r->nmerged, &r->merged_cap, sizeof *r->merged)) return false;
    ev_leaf *x = &r->merged[r->nmerged++];
    *x = (ev_leaf){{0}, {0}};
    for (int l = 0; l < lanes; l++) x->v[l] = ev_read(m->dtype, m->data, at + l);
    for (int l = 0; l < lanes && indices; l++) x->at[l] = (int64_t)ev_read(DTYPE_INDEX, indices->data, index_at + l);
  }
  return true;
}

/* How far digits of the numbers of rows or columns of windows take element k, j from where their strides alone do. */
static int64_t ev_digits(ev *e, const l_tile *t, int64_t k, int64_t j) {
  int64_t off = 0;
  for (uint32_t i = 0; i < t->ndigits; i++) {
    const l_digit *d = &t->digits[i];
    const qk_digit q = {.by = ev_index(e, d->by), .most = d->most ? ev_index(e, d->most) : 0};
    int64_t first = ev_index(e, d->deep ? t->k_first : t->n_first);
    off += (qk_digit_of(&q, first + (d->deep ? k : j)) - qk_digit_of(&q, first)) * ev_index(e, d->step);
  }
  return off;
}

/* One element of a TILE. */
static bool ev_tile_element(ev *e, l_val n, const l_tile *t, int64_t i, int64_t j, ev_result *r) {
  const ev_memory *x = ev_memory_of(e, t->x), *y = ev_memory_of(e, t->y), *out = ev_memory_of(e, l_tile_to(t));
  const l_instr acc = {.code = L_ACC, .sub = KOP_add, .dtype = (uint8_t)out->dtype, .imm = ORDER_DOT};
  r->npushed = 0;
  for (int64_t k = 0; k < ev_index(e, t->depth); k++) {
    int64_t xa = ev_index(e, t->x_base) + i * ev_index(e, t->x_m) + k * ev_index(e, t->x_k);
    int64_t ya = ev_index(e, t->y_base) + k * ev_index(e, t->y_k) + j * ev_index(e, t->y_n) + ev_digits(e, t, k, j);
    if (!ev_inside(e, n, x, xa, 1) || !ev_inside(e, n, y, ya, 1)) return false;
    uint64_t value = ev_cast(x->dtype, out->dtype, ev_read(x->dtype, x->data, xa));
    if (!ev_push_to(e, r, value, ev_cast(x->dtype, out->dtype, ev_read(x->dtype, y->data, ya)), k)) return false;
  }
  int64_t at = t->out ? i * t->tile_cols + j : ev_index(e, t->to_base) + i * ev_index(e, t->to_m) + j;
  if (!ev_inside(e, n, out, at, 1)) return false;
  ev_write(out->dtype, out->data, at, ev_finish(&acc, r));
  return true;
}

static bool ev_tile(ev *e, l_val n) {
  const l_tile *t = &e->p->tiles[e->p->code[n].imm];
  int64_t rows = ev_index(e, t->rows), cols = ev_index(e, t->cols);
  if (rows > t->tile_rows || cols > t->tile_cols) return ev_bad(e, n, "tile too large", rows);
  ev_result r = {0};
  bool ok = true;
  for (int64_t i = 0; i < rows * cols && ok; i++) ok = ev_tile_element(e, n, t, i / cols, i % cols, &r);
  free(r.pushed);
  return ok;
}

static bool ev_instr(ev *e, l_val n) {
  const l_instr *c = &e->p->code[n];
  uint64_t *to = &e->at[n].value, a = e->at[c->a].value, b = e->at[c->b].value;
  qn_dtype of_a = (qn_dtype)e->p->code[c->a].dtype, d = (qn_dtype)c->dtype;
  if (l_is_index_op(c->code)) {
    *to = (uint64_t)l_index_value((l_code)c->code, (int64_t)a, (int64_t)b);
    return true;
  }
  switch ((l_code)c->code) {
  case L_INT:
  case L_CONST: *to = (uint64_t)c->imm; return true;
  case L_PARAM: *to = (uint64_t)e->ints[c->imm]; return true;
  case L_SCALAR: *to = dtype_is_bool(d) ? e->scalars[c->imm].i != 0 : (uint64_t)e->scalars[c->imm].i; return true;
  case L_FAILED: *to = e->error != ~(uint64_t)0; return true;
  case L_VAR:
  case L_CARRY: *to = a; return true;
  case L_IVALUE: *to = ev_cast(of_a, DTYPE_INDEX, a); return true;
  case L_IOTA: *to = ev_cast(DTYPE_INDEX, d, (uint64_t)ev_along(e, c->a, c->b)); return true;
  case L_KOP:
    *to = c->sub == KOP_cast ? ev_cast(of_a, d, a)
                             : ev_compute((kop_id)c->sub, (qn_dtype)c->type2, a, b, e->at[c->c].value);
    return true;
  case L_MATH:
    *to = ev_math((math_id)c->sub, math_rows[c->sub].kind == MATH_IS_WORD ? d : (qn_dtype)c->type2, a, b);
    return true;
  case L_LOAD:
  case L_STORE:
  case L_RMW: return ev_access(e, n);
  case L_LOCAL: ev_slot_clear(&e->at[n]); return ev_memory_make(e, &e->at[n].local, (int64_t)a, c->dtype);
  case L_ACC: return ev_acc(e, n);
  case L_PUSH:
  case L_SCAN:
  case L_FINISH: return ev_result_step(e, n);
  case L_PARTIAL:
  case L_MERGE: return ev_subtrees(e, n);
  case L_TILE: return ev_tile(e, n);
  case L_CHECK:
    if (!(a & 1)) {
      uint64_t cell = (uint64_t)c->imm << 48 | (uint64_t)ev_along(e, c->b, c->c);
      if (cell < e->error) e->error = cell;
    }
    return true;
  default: return true; /* SET: see ev_sets; PHASE, SYNC and POLL do nothing */
  }
}

/* ---- blocks ---------------------------------------------------------------------------------------------------------------- */

/* Element (i, j) of a value that broadcasts. */
static uint64_t ev_element(const ev *e, l_val v, int64_t i, int64_t j) {
  const l_block *b = l_block_of(e->p, v);
  return b ? e->at[v].block[(b->rows == 1 ? 0 : i) * b->cols + (b->cols == 1 ? 0 : j)] : e->at[v].value;
}

/* One element of BLOAD or BSTORE. */
static bool ev_block_access(ev *e, l_val n, int64_t i, int64_t j, uint64_t *to) {
  const l_instr *c = &e->p->code[n];
  ev_memory *m = ev_memory_of(e, c->imm);
  bool inside = (!c->e || i < ev_index(e, c->e)) && (!c->f || j < ev_index(e, c->f)) &&
                (!c->g || (ev_element(e, c->g, i, j) & 1));
  if (c->code == L_BLOAD) *to = c->h ? ev_element(e, c->h, i, j) : 0;
  if (!inside) return true;
  int64_t at = ev_index(e, c->a) + (c->d ? ev_index(e, c->d) * i : 0) + (c->b ? ev_index(e, c->b) * j : 0);
  if (c->c) at += (int64_t)ev_element(e, c->c, i, j);
  if (!ev_inside(e, n, m, at, 1)) return false;
  if (c->code == L_BLOAD)
    *to = ev_read(m->dtype, m->data, at);
  else
    ev_write(m->dtype, m->data, at, ev_element(e, c->h, i, j));
  return true;
}

static uint64_t ev_bdot(const ev *e, const l_instr *c, int64_t i, int64_t j) {
  const l_block *x = l_block_of(e->p, c->b);
  qn_dtype from = (qn_dtype)e->p->code[c->b].dtype, d = (qn_dtype)c->dtype;
  uint64_t sum = ev_element(e, c->a, i, j);
  for (int64_t k = 0; k < x->cols; k++) {
    uint64_t p = ev_cast(from, d, ev_element(e, c->b, i, k)), q = ev_cast(from, d, ev_element(e, c->c, k, j));
    sum = dtype_is_float(d) ? ev_compute(KOP_fma, d, p, q, sum)
                            : ev_compute(KOP_add, d, ev_compute(KOP_mul, d, p, q, 0), sum, 0);
  }
  return sum;
}

/* Row i of a block, or column j, as one result. */
static bool ev_breduce(ev *e, const l_instr *c, int64_t i, int64_t j, uint64_t *to) {
  const l_block *a = l_block_of(e->p, c->a);
  l_instr acc = {.code = L_ACC, .sub = c->sub, .dtype = e->p->code[c->a].dtype, .imm = c->imm};
  bool down = c->flags & L_DOWN, ok = true;
  ev_result r = {0};
  for (int64_t k = 0; k < (down ? a->rows : a->cols) && ok; k++)
    ok = ev_push_to(e, &r, down ? ev_element(e, c->a, k, j) : ev_element(e, c->a, i, k), 0, k);
  if (ok) *to = ev_finish(&acc, &r);
  free(r.pushed);
  return ok;
}

/* One element of a block that instruction n makes. */
static bool ev_block_element(ev *e, l_val n, int64_t i, int64_t j, uint64_t *to) {
  const l_instr *c = &e->p->code[n];
  qn_dtype of_a = (qn_dtype)e->p->code[c->a].dtype, d = (qn_dtype)c->dtype;
  /* others have operands of other shapes */
  bool each = c->code == L_CARRY || c->code == L_KOP || c->code == L_MATH;
  uint64_t a = each ? ev_element(e, c->a, i, j) : 0, b = each ? ev_element(e, c->b, i, j) : 0;
  switch ((l_code)c->code) {
  case L_CONST: *to = (uint64_t)c->imm; return true;
  case L_CARRY: *to = a; return true;
  case L_IOTA:
    *to = (uint64_t)(ev_index(e, c->a) + (c->b ? ev_index(e, c->b) * j : 0) + (c->c ? ev_index(e, c->c) * i : 0));
    *to = ev_cast(DTYPE_INDEX, d, *to);
    return true;
  case L_KOP:
    *to = c->sub == KOP_cast ? ev_cast(of_a, d, a)
                             : ev_compute((kop_id)c->sub, (qn_dtype)c->type2, a, b, ev_element(e, c->c, i, j));
    return true;
  case L_MATH:
    *to = ev_math((math_id)c->sub, math_rows[c->sub].kind == MATH_IS_WORD ? d : (qn_dtype)c->type2, a, b);
    return true;
  case L_BDOT: *to = ev_bdot(e, c, i, j); return true;
  case L_BREDUCE: return ev_breduce(e, c, i, j, to);
  case L_FINISH: {
    const l_block *block = l_block_of(e->p, n);
    const ev_slot *s = &e->at[c->a];
    int64_t at = i * block->cols + j;
    if (at >= s->nresults) return ev_bad(e, n, "no such result", at);
    *to = ev_finish(&e->p->code[c->a], &s->results[at]);
    return true;
  }
  default: return ev_block_access(e, n, i, j, to);
  }
}

/* An instruction that makes a block or takes one. */
static bool ev_block(ev *e, l_val n) {
  const l_instr *c = &e->p->code[n];
  l_val shape = c->block ? n : c->code == L_BSTORE ? c->h : c->code == L_PUSH ? c->b : c->a;
  const l_block *b = l_block_of(e->p, shape);
  int64_t count = (int64_t)b->rows * b->cols;
  if (c->code == L_BVALUE) {
    e->at[n].value = e->at[c->a].block[0];
    return true;
  }
  if (c->block && !e->at[n].block && !(e->at[n].block = calloc((size_t)count, sizeof *e->at[n].block)))
    return ev_lacks(e);
  for (int64_t x = 0; x < count; x++) {
    int64_t i = x / b->cols, j = x % b->cols;
    uint64_t unused;
    if (c->code == L_PUSH) {
      ev_slot *s = &e->at[c->a];
      if (x >= s->nresults) return ev_bad(e, n, "no such result", x);
      ev_result *r = &s->results[x];
      if (r->nmerged) return ev_bad(e, n, "push after merge", 0);
      if (!ev_push_to(e, r, ev_element(e, c->b, i, j), 0, c->c ? ev_index(e, c->c) : (int64_t)r->npushed)) return false;
    } else if (!(c->block ? ev_block_element(e, n, i, j, &e->at[n].block[x]) : ev_block_access(e, n, i, j, &unused))) {
      return false;
    }
  }
  return true;
}

static bool ev_has_block(const l_program *p, l_val n) {
  const l_instr *c = &p->code[n];
  return c->block || c->code == L_BSTORE || c->code == L_BVALUE || (c->code == L_PUSH && l_block_of(p, c->b));
}

/* ---- structures ---------------------------------------------------------------------------------------------------------- */

/* Of a SET of blocks: the new elements, which wait in the place of the SET's own until all are known. */
static bool ev_set_block(ev *e, l_val n, bool copy) {
  const l_instr *c = &e->p->code[n];
  const l_block *b = l_block_of(e->p, c->b);
  size_t bytes = (size_t)b->rows * b->cols * sizeof(uint64_t);
  if (!copy) {
    memcpy(e->at[c->a].block, e->at[n].block, bytes);
    return true;
  }
  if (!e->at[n].block && !(e->at[n].block = malloc(bytes))) return ev_lacks(e);
  memcpy(e->at[n].block, e->at[c->b].block, bytes);
  return true;
}

/* The end of an iteration: the SETs directly in the loop at `loop`, all at once. */
static bool ev_sets(ev *e, l_val loop) {
  uint64_t next[64];
  for (int pass = 0; pass < 2; pass++)
    for (l_val n = loop + 1, i = 0; n < e->at[loop].end && i < 64; n++) {
      const l_instr *c = &e->p->code[n];
      if (e->at[n].end)
        n = e->at[n].end;
      else if (c->code == L_SET && l_block_of(e->p, c->b)) {
        if (!ev_set_block(e, n, pass == 0)) return false;
      } else if (c->code == L_SET && pass == 0)
        next[i++] = e->at[c->b].value;
      else if (c->code == L_SET)
        e->at[c->a].value = next[i++];
    }
  return true;
}

static bool ev_run(ev *e, l_val from, l_val to);

/* Runs the block that instruction n opens. */
static bool ev_structure(ev *e, l_val n) {
  const l_instr *c = &e->p->code[n];
  ev_slot *s = &e->at[n];
  const int64_t from = ev_index(e, c->a), to = ev_index(e, c->b), step = c->c ? ev_index(e, c->c) : 1;
  bool ok = true;
  switch ((l_code)c->code) {
  case L_PAR: /* backwards: instances are independent */
    for (int64_t i = from - 1; i >= 0 && ok; i--) {
      s->value = (uint64_t)i;
      ok = ev_run(e, n + 1, s->end);
    }
    return ok;
  case L_FOR:
    for (int64_t i = from; i < to && ok; i += step) {
      s->value = (uint64_t)i;
      ok = ev_run(e, n + 1, s->end) && ev_sets(e, n);
    }
    return ok;
  case L_VEC:
    e->in_vec = true;
    e->from = from;
    for (e->i = from; e->i < to && ok; e->i++) ok = ev_run(e, n + 1, s->end);
    e->in_vec = false;
    e->i = e->from = 0;
    return ok;
  case L_WHILE:
    while (ok && e->at[c->a].value & 1) {
      ok = ev_run(e, n + 1, s->end) && ev_sets(e, n);
    }
    return ok;
  default: /* IF */
    if (from) return ev_run(e, n + 1, s->other ? s->other : s->end);
    return !s->other || ev_run(e, s->other + 1, s->end);
  }
}

static bool ev_run(ev *e, l_val from, l_val to) {
  for (l_val n = from; n < to; n++) {
    if (++e->steps % LOOK == 0 && e->stop && e->stop(e->ctx)) {
      e->stopped = true;
      return false;
    }
    bool opens = l_opens(e->p->code[n].code);
    if (!(opens ? ev_structure(e, n) : ev_has_block(e->p, n) ? ev_block(e, n) : ev_instr(e, n))) return false;
    if (opens) n = e->at[n].end;
  }
  return true;
}

/* ---- programs ------------------------------------------------------------------------------------------------------------ */

/* Finds the END of each opener, and the ELSE of each IF. */
static void ev_match(ev *e) {
  l_val stack[64];
  int depth = 0;
  for (l_val n = 1; n < e->p->n; n++) {
    uint8_t code = e->p->code[n].code;
    if (l_opens(code)) stack[depth++] = n;
    if (code == L_ELSE) e->at[stack[depth - 1]].other = n;
    if (code == L_END) e->at[stack[--depth]].end = n;
  }
}

/* The prelude, which tells how large scratch buffers are, then all phases. */
static bool ev_program(ev *e, void *const *buffers, const int64_t *sizes) {
  const l_program *p = e->p;
  l_val phase = 1;
  while (phase < p->n && p->code[phase].code != L_PHASE) phase++;
  ev_match(e);
  bool ok = ev_run(e, 1, phase);
  for (uint32_t b = 0, given = 0; b < p->nbuffers && ok; b++) {
    const l_buffer *buffer = &p->buffers[b];
    if (buffer->mode == BUF_SCRATCH) {
      ok = ev_memory_make(e, &e->buf[b], ev_index(e, buffer->size), buffer->dtype);
      continue;
    }
    e->buf[b] = (ev_memory){buffers[given], sizes ? sizes[given] : -1, (qn_dtype)buffer->dtype};
    given++;
  }
  return ok && ev_run(e, phase, p->n);
}

l_eval_end l_eval(const l_program *p, void *const *buffers, const int64_t *sizes, const int64_t *ints,
                  const qk_scalar *scalars, const l_eval_options *o, uint64_t *error) {
  static const l_eval_options none;
  if (!o) o = &none;
  ev e = {.p = p, .ints = ints, .scalars = scalars, .error = ~(uint64_t)0, .stop = o->stop, .ctx = o->ctx};
  e.at = calloc(p->n, sizeof *e.at);
  e.buf = calloc(p->nbuffers + 1, sizeof *e.buf);
  e.lacks = !e.at || !e.buf;
  bool ok = !e.lacks && ev_program(&e, buffers, sizes);
  for (l_val n = 0; n < p->n && e.at; n++) {
    if (o->values) o->values[n] = ev_index(&e, n);
    ev_slot_clear(&e.at[n]);
    free(e.at[n].block);
  }
  for (uint32_t b = 0; b < p->nbuffers && e.buf; b++)
    if (p->buffers[b].mode == BUF_SCRATCH) free(e.buf[b].data);
  free(e.at);
  free(e.buf);
  if (o->why_size) snprintf(o->why, o->why_size, "%s", e.why);
  *error = e.error;
  return ok ? L_EVAL_DONE : e.lacks ? L_EVAL_LACKS_MEMORY : e.stopped ? L_EVAL_STOPPED : L_EVAL_WRONG;
}
