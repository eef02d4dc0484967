/* Runs op programs (op_program.h) over small arrays of any dtypes, shapes and strides: the fast path of eager dispatch for POINTWISE ops.
 *
 * No op is written by hand here, nor is any named. What an op does to elements of such kinds is a program, which op_program.c takes from
 * the one-op kernels; this file looks it up and brings the elements to it. They are passed as they lie where all operands are contiguous and
 * of one shape; else they are first put into the result's order, few of them as one piece, more row by row. Host numbers and arrays of
 * one element are operands that are repeated. What is pending or on a device, large, wrong or fails a check is left to the slow way,
 * which also says what is wrong.
 *
 * Why it is there: an op on a few elements, call included, takes 360 to 780 instructions this way and 3,600 to 8,900 by its kernel
 * (tests/cost.py). Programs lie in tables of the VM by op and kinds of operands, not in caches at call sites: a look-up is three loads,
 * and one program serves all sites. Tried: copies of broadcast operands by the nest alone (m + row 770 -> 1,021), rows by the nest in
 * place of `repeat` (m - column 750 -> 995), gaps by the nest in place of WRITE_ROWS (m.T * 2 1,050 -> 1,200).
 */
#include <string.h>

#include "jit/cpu/cpu.h"
#include "jit/run/eager.h"
#include "jit/cpu/op_program.h"

enum { BLOCK = PROGRAM_BLOCK, OPERANDS = PROGRAM_OPERANDS };

/* A loop over the operands, written out: their number is a constant where it stands. */
#if defined(__clang__)
#define EACH_OPERAND(k, n) _Pragma("unroll") for (int k = 0; k < n; k++)
#else
#define EACH_OPERAND(k, n) _Pragma("GCC unroll 3") for (int k = 0; k < n; k++)
#endif

/* Stores a host number as dtype d to `cell`. False: d does not hold it, or only the slow way can tell. narrow_fits: of the rarer dtypes. */
static __attribute__((noinline)) bool narrow_fits(qn_value v, qn_dtype d, char cell[8]) {
  double x = value_is(v, TAG_FLOAT) ? v.u.f : (double)v.u.i;
  bool middling = x < 0x1p15 && x > -0x1p15;
  float f = (float)x;
  if (d == QN_bf16 && middling && (double)f == x) { /* it is an f32 already, and rounded from there */
    uint32_t u;
    memcpy(&u, &f, 4);
    u = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    uint16_t half = (uint16_t)u;
    memcpy(cell, &half, 2);
    return true;
  }
  if (!(middling && (d == QN_f16 || d == QN_bf16)) && !dtype_holds(d, v)) return false;
  dtype_store(d, cell, v);
  return true;
}
static inline bool scalar_fits(qn_value v, qn_dtype d, char cell[8]) {
  float f;
  switch (d) {
  case QN_f64: {
    double x = value_is(v, TAG_FLOAT) ? v.u.f : (double)v.u.i;
    memcpy(cell, &x, 8);
    return true;
  }
  case QN_f32:
    if (value_is(v, TAG_FLOAT) && (v.u.f > 0x1.fffffep127 || v.u.f < -0x1.fffffep127)) return false;
    f = value_is(v, TAG_FLOAT) ? (float)v.u.f : (float)v.u.i;
    memcpy(cell, &f, 4);
    return true;
  case QN_i64: memcpy(cell, &v.u.i, 8); return !value_is(v, TAG_FLOAT);
  default: return narrow_fits(v, d, cell);
  }
}

/* ---- everything in one order ------------------------------------------------------------------------------------------ */

/* A program of several steps on n elements that lie at from[] as `vectors` says (op_program_run), in blocks. False: a check has failed. */
static __attribute__((noinline)) bool run_blocks(const op_program *s, const void *const *from, uint32_t vectors,
                                                 char *out, int64_t n) {
  size_t out_size = dtype_size((qn_dtype)s->result);
  for (int64_t i = 0; i < n; i += BLOCK) {
    const void *at[PROGRAM_SLOTS];
    for (int k = 0; k < OPERANDS; k++)
      at[k] = vectors >> k & 1 ? (const char *)from[k] + (size_t)i * s->size[k] : from[k];
    if (!op_program_run(s, at, vectors, out + (size_t)i * out_size, n - i < BLOCK ? n - i : BLOCK)) return false;
  }
  return true;
}

/* A program of any number of steps; the result has the shape of x. Unset: a check has failed. */
static inline __attribute__((always_inline)) qn_value run_steps(qn_vm *vm, const op_program *s, const qn_array *x,
                                                                const void **at, size_t vectors) {
  qn_array *out = array_new_like(vm, (qn_dtype)s->result, x);
  if (__builtin_expect(!out, 0)) return value_error();
  int64_t n = out->size;
  char *to = out->storage->data;
  if (n <= BLOCK ? op_program_run(s, at, vectors, to, n) : run_blocks(s, at, (uint32_t)vectors, to, n))
    return value_obj(TAG_ARRAY, out);
  value_release(vm, value_obj(TAG_ARRAY, out));
  return value_unset();
}

/* What is not one loop. Unset also if there is no program for such operands. */
static __attribute__((noinline)) qn_value run_more(qn_vm *vm, const op_program *s, qn_array *x, const void *a,
                                                   const void *b, size_t vectors) {
  const void *at[PROGRAM_SLOTS];
  if (s->same) return value_retain(value_obj(TAG_ARRAY, x));
  if (__builtin_expect(!s->usable, 0)) return value_unset();
  at[0] = a, at[1] = b;
  return run_steps(vm, s, x, at, vectors);
}

/* Of one or two operands, which are in the order of x and of its shape, or one repeated element. Unset as above. */
static inline __attribute__((always_inline)) qn_value run_whole(qn_vm *vm, const op_program *s, qn_array *x,
                                                                const void *a, const void *b, uint32_t vectors) {
  if (!s->fn) return run_more(vm, s, x, a, b, vectors);
  qn_array *out = array_new_like(vm, (qn_dtype)s->result, x);
  if (__builtin_expect(!out, 0)) return value_error();
  s->fn(out->storage->data, a, b, NULL, (int)vectors, out->size);
  return value_obj(TAG_ARRAY, out);
}

/* ---- broadcast and strided operands --------------------------------------------------------------------------------- */

typedef struct fast_op {
  const op_program *op_program;
  const qn_array *a[OPERANDS]; /* NULL: a number, at from[] */
  const void *from[OPERANDS];  /* the first element */
} fast_op;

static inline size_t bytes_of(const qn_array *a) { return dtype_size((qn_dtype)a->dtype); }

/* n elements of the result, of operands that are in its order (bits of `vectors`) or one repeated element. False: a check has failed. */
static inline bool run_piece(const fast_op *f, const void **at, uint32_t vectors, char *out, int64_t n) {
  if (!f->op_program->fn) return op_program_run(f->op_program, at, vectors, out, n);
  f->op_program->fn(out, at[0], at[1], at[2], (int)vectors, n);
  return true;
}

/* Axes of the result that matter, innermost first, merged where all operands allow it: sizes, and strides per operand. */
typedef struct fast_nest {
  int rank;
  int64_t size[ARRAY_MAX_RANK], stride[OPERANDS][ARRAY_MAX_RANK];
  bool steps[OPERANDS]; /* does the operand step at all? else it is repeated */
  bool gaps[OPERANDS];  /* is it in another order than the result? */
} fast_nest;

/* The shape of the result and how operands run through it; false if they do not broadcast. */
static inline __attribute__((always_inline)) bool make_nest(const fast_op *f, int nin, int rank, int64_t *shape,
                                                            int64_t *total, fast_nest *n) {
  int64_t dense = 1;
  int last = -1;
  EACH_OPERAND(k, nin) n->steps[k] = n->gaps[k] = false;
  for (int i = rank - 1; i >= 0; i--) {
    int64_t size = 1, stride[OPERANDS];
    EACH_OPERAND(k, nin) {
      const qn_array *a = f->a[k];
      int own = a ? i - rank + a->rank : -1;
      stride[k] = 0;
      if (own < 0 || a->shape[own] == 1) continue;
      if (size != 1 && a->shape[own] != size) return false;
      size = a->shape[own];
      stride[k] = a->strides[own];
    }
    shape[i] = size;
    if (size == 1) continue;
    bool joins = last >= 0;
    EACH_OPERAND(k, nin) {
      n->steps[k] |= stride[k] != 0;
      n->gaps[k] |= stride[k] != dense;
      joins = joins && stride[k] == n->stride[k][last] * n->size[last];
    }
    if (__builtin_mul_overflow(dense, size, &dense)) return false;
    if (joins) {
      n->size[last] *= size;
      continue;
    }
    n->size[++last] = size;
    EACH_OPERAND(k, nin) n->stride[k][last] = stride[k];
  }
  while (last < 1) { /* there are at least two */
    n->size[++last] = 1;
    EACH_OPERAND(k, nin) n->stride[k][last] = 0;
  }
  n->rank = last + 1;
  *total = dense;
  return true;
}

/* Copies all elements of an operand to `to`, in the result's order. */
#define SPREAD(T)                                                                                                      \
  static void spread_##T(T *to, const T *from, const fast_nest *n, const int64_t *stride) {                            \
    int64_t index[ARRAY_MAX_RANK], length = n->size[0], step = stride[0];                                              \
    for (int i = 1; i < n->rank; i++) index[i] = n->size[i];                                                           \
    for (;;) {                                                                                                         \
      const T *p = from;                                                                                               \
      for (T *end = to + length; to < end; p += step) *to++ = *p;                                                      \
      int i = 1;                                                                                                       \
      for (; i < n->rank; i++) {                                                                                       \
        from += stride[i];                                                                                             \
        if (--index[i]) break;                                                                                         \
        from -= stride[i] * n->size[i];                                                                                \
        index[i] = n->size[i];                                                                                         \
      }                                                                                                                \
      if (i >= n->rank) return;                                                                                        \
    }                                                                                                                  \
  }
SPREAD(uint8_t)
SPREAD(uint16_t)
SPREAD(uint32_t)
SPREAD(uint64_t)

static inline void spread(void *to, const void *from, size_t size, const fast_nest *n, const int64_t *stride) {
  switch (size) {
  case 1: spread_uint8_t(to, from, n, stride); return;
  case 2: spread_uint16_t(to, from, n, stride); return;
  case 4: spread_uint32_t(to, from, n, stride); return;
  default: spread_uint64_t(to, from, n, stride); return;
  }
}

/* Copies rows of n elements. */
#define WRITE_ROWS(T)                                                                                                  \
  for (const T *from = (const T *)(const void *)at; rows > 0; rows--, from += row_step) {                              \
    const T *p = from;                                                                                                 \
    T *end = (T *)to + n;                                                                                              \
    for (T *q = to; q < end; p += step) *q++ = *p;                                                                     \
    to = end;                                                                                                          \
  }                                                                                                                    \
  return;

void eager_write_out(void *to, const qn_array *a) {
  size_t size = bytes_of(a);
  const char *at = array_data(a);
  int rank = a->rank;
  if (rank == 1 || rank == 2) {
    int64_t rows = rank > 1 ? a->shape[0] : 1, row_step = rank > 1 ? a->strides[0] : 0;
    int64_t n = a->shape[rank - 1], step = a->strides[rank - 1];
    switch (size) {
    case 1: WRITE_ROWS(uint8_t)
    case 2: WRITE_ROWS(uint16_t)
    case 4: WRITE_ROWS(uint32_t)
    default: WRITE_ROWS(uint64_t)
    }
  }
  fast_op f = {.a = {a}};
  fast_nest n;
  int64_t shape[ARRAY_MAX_RANK], total;
  if (make_nest(&f, 1, rank, shape, &total, &n) && total) spread(to, at, size, &n, n.stride[0]);
}

/* Results of at most a block: operands that are in another order are copied first. False: a check has failed. */
static inline __attribute__((always_inline)) bool run_few(const fast_op *f, int nin, const fast_nest *n, char *out,
                                                          int64_t total) {
  _Alignas(64) char held[OPERANDS][BLOCK * 8];
  const void *at[PROGRAM_SLOTS];
  uint32_t vectors = 0;
  EACH_OPERAND(k, OPERANDS) {
    at[k] = f->from[k];
    if (k >= nin || !f->a[k] || !n->steps[k]) continue;
    vectors |= 1u << k;
    if (!n->gaps[k]) continue;
    spread(held[k], at[k], bytes_of(f->a[k]), n, n->stride[k]);
    at[k] = held[k];
  }
  return run_piece(f, at, vectors, out, total);
}

/* One row of the result in blocks: operands with odd strides are gathered first. */
static __attribute__((noinline)) bool run_row(const fast_op *f, const bvm_loops *l, const fast_nest *n,
                                              const char *const *row, uint32_t vectors, char *out, size_t out_size) {
  _Alignas(64) char held[OPERANDS][BLOCK * 8];
  for (int64_t i = 0, m; i < n->size[0]; i += m) {
    m = n->size[0] - i < BLOCK ? n->size[0] - i : BLOCK;
    const void *at[PROGRAM_SLOTS];
    for (int k = 0; k < OPERANDS; k++) {
      at[k] = row[k];
      if (!(vectors >> k & 1)) continue;
      size_t size = bytes_of(f->a[k]);
      int64_t stride = n->stride[k][0];
      at[k] = row[k] + i * stride * (int64_t)size;
      if (stride == 1) continue;
      l->load[bvm_size_class(size)](held[k], at[k], stride, m);
      at[k] = held[k];
    }
    if (!run_piece(f, at, vectors, out + (size_t)i * out_size, m)) return false;
  }
  return true;
}

/* The result row by row; `whole`: the program is one loop, which can go over each row at once. False: a check has failed. */
static inline __attribute__((always_inline)) bool run_rows(const fast_op *f, int nin, const bvm_loops *l,
                                                           const fast_nest *n, bool whole, char *out) {
  const char *from[OPERANDS];
  int64_t size[OPERANDS], step[OPERANDS], index[ARRAY_MAX_RANK], length = n->size[0];
  size_t out_size = dtype_size((qn_dtype)f->op_program->result);
  uint32_t vectors = 0;
  EACH_OPERAND(k, OPERANDS) {
    from[k] = f->from[k];
    if (k >= nin) continue;
    size[k] = f->a[k] ? (int64_t)bytes_of(f->a[k]) : 0;
    step[k] = n->stride[k][1] * size[k];
    vectors |= (uint32_t)(n->stride[k][0] != 0) << k;
  }
  for (int i = 2; i < n->rank; i++) index[i] = n->size[i];
  for (;;) {
    for (int64_t r = n->size[1]; r > 0; r--, out += (size_t)length * out_size) {
      if (whole)
        f->op_program->fn(out, from[0], from[1], from[2], (int)vectors, length);
      else if (!run_row(f, l, n, from, vectors, out, out_size))
        return false;
      EACH_OPERAND(k, nin) from[k] += step[k];
    }
    if (n->rank == 2) return true;
    EACH_OPERAND(k, nin) from[k] -= step[k] * n->size[1];
    int i = 2;
    for (; i < n->rank; i++) {
      EACH_OPERAND(k, nin) from[k] += n->stride[k][i] * size[k];
      if (--index[i]) break;
      EACH_OPERAND(k, nin) from[k] -= n->stride[k][i] * n->size[i] * size[k];
      index[i] = n->size[i];
    }
    if (i == n->rank) return true;
  }
}

/* Operands that broadcast or have gaps. Unset: they do not broadcast, the result is large, or a check has failed. */
static inline __attribute__((always_inline)) qn_value run_spread(qn_vm *vm, const fast_op *f, int nin) {
  int rank = 0;
  int64_t shape[ARRAY_MAX_RANK], total;
  fast_nest n;
  EACH_OPERAND(k, nin)
  if (f->a[k] && f->a[k]->rank > rank) rank = f->a[k]->rank;
  if (!make_nest(f, nin, rank, shape, &total, &n) || total > vm->tune[TUNE_par_grain]) return value_unset();
  if (!total && shape_strides(rank, shape, (int64_t[ARRAY_MAX_RANK]){0}) < 0)
    return value_unset(); /* sizes that overflow: the slow way words the error */
  const bvm_loops *l = cpu_loops(vm);
  qn_array *out = array_new(vm, (qn_dtype)f->op_program->result, rank, shape);
  if (!out) return value_error();
  char *to = out->storage->data;
  bool rows = f->op_program->fn != NULL; /* may one loop go over each row? */
  EACH_OPERAND(k, nin) rows = rows && (n.stride[k][0] & ~(int64_t)1) == 0;
  if (!total || (rows || total > BLOCK ? run_rows(f, nin, l, &n, rows, to) : run_few(f, nin, &n, to, total)))
    return value_obj(TAG_ARRAY, out);
  value_release(vm, value_obj(TAG_ARRAY, out));
  return value_unset();
}

/* ---- any operands ----------------------------------------------------------------------------------------------------- */

static inline bool same_shape(const qn_array *a, const qn_array *b) {
  if (a->rank != b->rank || a->size != b->size) return false;
  for (int i = a->rank - 1; i > 0; i--)
    if (a->shape[i] != b->shape[i]) return false;
  return true;
}

/* Copies each element of y `each` times, again and again up to `end`. */
#define REPEAT(T)                                                                                                      \
  for (; to < end;)                                                                                                    \
    for (const T *p = (const T *)(const void *)from, *stop = p + y->size; p < stop; p++)                               \
      for (char *next = to + each * sizeof *p; to < next; to += sizeof *p) *(T *)(void *)to = *p;                      \
  return true;

/* Writes out y, without gaps, along x, of at most a block: y has the sizes of x in the axes before `last` but for some 1s in front, and is
 * repeated along those and the last ones. False: it is repeated in another way. */
static __attribute__((noinline)) bool repeat_each(const qn_array *x, const qn_array *y, const char *from, size_t size,
                                                  char *to, const char *end) {
  int before = x->rank - y->rank, last = y->rank;
  size_t each = 1;
  while (last > 0 && y->shape[last - 1] == 1) each *= (size_t)x->shape[before + --last];
  while (last > 0 && y->shape[last - 1] == x->shape[before + last - 1]) last--;
  while (last > 0 && y->shape[last - 1] == 1) last--;
  if (last) return false;
  switch (size) {
  case 1: REPEAT(uint8_t)
  case 2: REPEAT(uint16_t)
  case 4: REPEAT(uint32_t)
  default: REPEAT(uint64_t)
  }
}

/* Writes out y along x: most are rows, and short ones. False: it is repeated in another way. */
static inline bool repeat(const qn_array *x, const qn_array *y, const char *row, size_t size, char *to) {
  int before = x->rank - y->rank;
  const char *end = to + (size_t)x->size * size;
  size_t bytes = (size_t)y->size * size;
  if (before < 0 || !y->contiguous || x->size > BLOCK) return false;
  for (int i = 0, rank = y->rank; i < rank; i++)
    if (y->shape[i] != x->shape[before + i]) return repeat_each(x, y, row, size, to, end);
  if (bytes % 8)
    for (; to < end; to += bytes) memcpy(to, row, bytes);
  else
    for (; to < end; to += bytes)
      for (size_t i = 0; i < bytes; i += 8) memcpy(to + i, row + i, 8);
  return true;
}

/* An op on arrays of any layout and host numbers; `to`: the last digit of the program's number if there is one operand. Unset: it is left
 * to the slow way, since an operand is elsewhere, large or none of these, or a check has failed, or the op takes none such. */
static inline __attribute__((always_inline)) qn_value any(qn_vm *vm, op_id op, const qn_value *in, int nin,
                                                          uint32_t to) {
  fast_op f;
  _Alignas(8) char cell[OPERANDS][8];
  _Alignas(64) char held[OPERANDS][BLOCK * 8];
  const qn_array *x = NULL; /* whose shape the result has, if all goes well */
  uint32_t number = to;
  EACH_OPERAND(k, nin) {
    f.a[k] = NULL;
    uint32_t kind;
    if (value_is(in[k], TAG_ARRAY)) {
      const qn_array *a = f.a[k] = value_array(in[k]);
      if (!a->storage || a->device) return value_unset();
      kind = a->dtype;
      if (!x || a->rank > x->rank || (a->rank == x->rank && a->size > x->size)) x = a;
    } else if (value_is_scalar(in[k])) {
      kind = PROGRAM_WEAK + (uint32_t)value_tag_of(in[k]);
    } else {
      return value_unset();
    }
    number |= kind << ((nin > 2 ? nin : 2) - 1 - k) * PROGRAM_KIND_BITS;
  }
  if (!x || x->size > vm->tune[TUNE_par_grain]) return value_unset();
  const op_program *s = f.op_program = op_program_of(vm, op, number);
  if (__builtin_expect(!s, 0)) return value_error();
  if (s->same) return value_retain(in[0]);
  if (__builtin_expect(!s->usable, 0)) return value_unset();
  uint32_t vectors = 0;
  bool whole = x->size && (x->contiguous || x->size <= BLOCK);
  const void *at[PROGRAM_SLOTS];
  for (int k = nin; k < OPERANDS; k++) at[k] = f.from[k] = NULL;
  EACH_OPERAND(k, nin) {
    const qn_array *a = f.a[k];
    if (!a) {
      if (!scalar_fits(in[k], (qn_dtype)s->scalar[k], cell[k])) return value_unset();
      at[k] = f.from[k] = cell[k];
      continue;
    }
    at[k] = f.from[k] = a->storage->data + a->offset * (int64_t)s->size[k];
    if (a == x || same_shape(a, x)) {
      vectors |= 1u << k;
      if (a->contiguous) continue;
      whole = whole && a->size <= BLOCK;
      if (whole) eager_write_out(held[k], a);
      at[k] = held[k];
    } else if (a->size != 1 && whole) {
      whole = repeat(x, a, at[k], s->size[k], held[k]);
      at[k] = held[k];
      vectors |= 1u << k;
    }
  }
  if (!whole) return run_spread(vm, &f, nin);
  if (!s->fn) return run_steps(vm, s, x, at, vectors);
  qn_array *out = array_new_like(vm, (qn_dtype)s->result, x);
  if (__builtin_expect(!out, 0)) return value_error();
  s->fn(out->storage->data, at[0], at[1], at[2], (int)vectors, out->size);
  return value_obj(TAG_ARRAY, out);
}

static __attribute__((noinline)) qn_value any_one(qn_vm *vm, op_id op, const qn_value *in, qn_dtype to) {
  int64_t begin = trace_events_begin(vm->engine);
  return eager_traced(vm, op, begin, any(vm, op, in, 1, to));
}
static __attribute__((noinline)) qn_value any_two(qn_vm *vm, op_id op, qn_value a, qn_value b) {
  const qn_value in[2] = {a, b};
  int64_t begin = trace_events_begin(vm->engine);
  return eager_traced(vm, op, begin, any(vm, op, in, 2, 0));
}

/* ---- the common operands ---------------------------------------------------------------------------------------------- */

/* In the CPU's memory, without gaps, and not large. */
static inline bool plain(const qn_vm *vm, const qn_array *a) {
  return a->storage && !a->device && a->contiguous && (uint64_t)a->size - 1 < (uint64_t)vm->tune[TUNE_par_grain];
}

static inline const char *data_of(const qn_array *a, size_t size) {
  return a->storage->data + a->offset * (int64_t)size;
}

static inline bool is_number(qn_value v) { return v.head - TAG_BOOL <= TAG_FLOAT - TAG_BOOL; }
static inline uint32_t kind_of_number(qn_value v) { return PROGRAM_WEAK + (uint32_t)v.head; }

/* Most operands are plain arrays, of one shape or beside a number, for which there is a program already. */
qn_value eager_one(qn_vm *vm, op_id op, qn_value a, qn_dtype to) {
  if (a.head == TAG_ARRAY && plain(vm, value_array(a))) {
    qn_array *x = value_array(a);
    const op_program *s = op_program_known(vm, op, op_program_number(x->dtype, to));
    if (__builtin_expect(s != NULL, 1)) return run_whole(vm, s, x, data_of(x, s->size[0]), NULL, 1);
  }
  return any_one(vm, op, &a, to);
}

qn_value eager_two(qn_vm *vm, op_id op, qn_value a, qn_value b) {
  _Alignas(8) char cell[8];
  if (a.head == TAG_ARRAY && plain(vm, value_array(a))) {
    qn_array *x = value_array(a), *y = value_array(b);
    if (b.head == TAG_ARRAY) {
      if (y->storage && !y->device && y->contiguous && same_shape(x, y)) {
        const op_program *s = op_program_known(vm, op, op_program_number(x->dtype, y->dtype));
        if (__builtin_expect(s != NULL, 1))
          return run_whole(vm, s, x, data_of(x, s->size[0]), data_of(y, s->size[1]), 3);
      }
    } else if (is_number(b)) {
      const op_program *s = op_program_known(vm, op, op_program_number(x->dtype, kind_of_number(b)));
      if (__builtin_expect(s != NULL, 1) && scalar_fits(b, (qn_dtype)s->scalar[1], cell))
        return run_whole(vm, s, x, data_of(x, s->size[0]), cell, 1);
    }
  } else if (is_number(a) && b.head == TAG_ARRAY && plain(vm, value_array(b))) {
    qn_array *y = value_array(b);
    const op_program *s = op_program_known(vm, op, op_program_number(kind_of_number(a), y->dtype));
    if (__builtin_expect(s != NULL, 1) && scalar_fits(a, (qn_dtype)s->scalar[0], cell))
      return run_whole(vm, s, y, cell, data_of(y, s->size[1]), 2);
  }
  return any_two(vm, op, a, b);
}

qn_value eager_three(qn_vm *vm, op_id op, const qn_value *in) {
  int64_t begin = trace_events_begin(vm->engine);
  return eager_traced(vm, op, begin, any(vm, op, in, 3, 0));
}

qn_value eager_fast(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr) {
  qn_value out = nin == 2                  ? eager_two(vm, op, in[0], in[1])
                 : nin == 3                ? eager_three(vm, op, in)
                 : attr->flags & ATTR_WEAK ? value_unset()
                                           : eager_one(vm, op, in[0], (qn_dtype)attr->dtype);
  return __builtin_expect(value_is(out, TAG_UNSET), 0) ? eager_slow(vm, op, in, nin, attr) : out;
}
