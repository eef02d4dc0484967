/* The fast path of eager dispatch (eager.c): reductions and scans of tiny arrays, without a kernel.
 *
 * Reductions. Axes are folded as folds.h says: from the innermost out, neighbours together. In every order of l.h a result of so few
 * elements (64 in a fold) is one step: where the last axis is reduced (INNER) the fold of the lanes, else (OUTER) a chain, which is
 * done for all results behind one another at once. Where any order gives the same bits both are right. An argmax or argmin looks at
 * the elements of each result one after the other.
 *
 * Scans of at most 64 elements are one group (INNER) or one chain (OUTER).
 *
 * f16 and bf16 compute as f32 and round once. The block VM's own loops do the work; elements with gaps are first written out.
 * Whatever is different is left to the slow way, which also finds what is wrong.
 */
#include <string.h>

#include "jit/cpu/cpu.h"
#include "jit/run/eager.h"
#include "jit/cpu/op_program.h"
#include "jit/cpu/opbody.h"

/* More elements than TINY are faster many results at a time, as kernels do it; few are not worth vectors. */
enum { TINY_ELEMENTS = 1024, FEW_ELEMENTS = 32 };

static inline bool is_half(qn_dtype d) { return d == QN_f16 || d == QN_bf16; }

/* The dtype in which the op computes; QN_DTYPE_COUNT: not here. */
static inline qn_dtype fold_dtype(op_id op, qn_dtype d) {
  switch ((op_dtype_rule)op_rows[op].dtype_rule) {
  case DT_sum: return is_half(d) ? QN_f32 : dtype_is_float(d) ? d : QN_i64;
  case DT_arg:
  case DT_same: return is_half(d) ? QN_f32 : d;
  case DT_test_bool: return d == QN_bool ? d : QN_DTYPE_COUNT;
  default: return QN_DTYPE_COUNT;
  }
}

/* How an op computes on a dtype. */
typedef struct fold_plan {
  bool usable;          /* else it is left to the slow way */
  uint8_t to;           /* dtype in which it computes */
  uint8_t result;       /* and of the result */
  uint8_t size;         /* bytes of an element of `to` */
  bvm_fn widen, narrow; /* from the operand's dtype, to the result's; NULL: the same */
  bvm_fn step,
      divide; /* of two elements; of means, by the number of elements, in the result's dtype (bools) or else in `to` */
  void (*tree)(void *out, const void *x, int64_t rows, int64_t n);
  void (*chains)(void *out, const void *x, int64_t outer, int64_t n, int64_t inner);
  void (*scan)(void *x, int64_t n);
  void (*arg)(void *best, int64_t *at, const void *x, int64_t index, int64_t n);
} fold_plan;

/* REDUCE and SCAN ops, which stand together in the table, and the mean. */
enum { FIRST = OP_sum, MEAN = OP_cummin + 1, PLANS = (MEAN - FIRST + 1) * DTYPE_PUBLIC };
_Static_assert(OP_cummin - OP_sum == 11, "eight reductions and four scans in a row");

static void make_plan(const bvm_loops *l, int op, qn_dtype from, fold_plan *p) {
  bool mean = op == MEAN;
  op_id row = mean ? OP_sum : (op_id)op;
  bool arg = op_rows[row].dtype_rule == DT_arg, scan = op_rows[row].klass == CLASS_SCAN;
  qn_dtype to = mean && dtype_is_int(from) ? QN_f64 : fold_dtype(row, from), result;
  if (to == QN_DTYPE_COUNT) return;
  result = arg ? QN_i64 : is_half(from) ? from : mean && to == QN_i64 ? QN_f32 : to;
  uint8_t kop = op_bodies[row].which;
  *p = (fold_plan){.to = (uint8_t)to, .result = (uint8_t)result, .size = (uint8_t)dtype_size(to)};
  if (from != to) p->widen = l->cast[from][to];
  if (result != to && !arg) p->narrow = l->cast[to][result];
  if (arg) {
    p->arg = l->arg[row == OP_argmin][to];
  } else {
    p->step = l->kop[kop][to];
    p->tree = l->tree[kop][to];
    p->chains = l->chains[kop][to];
    p->scan = l->scan64[kop][to];
  }
  if (mean) p->divide = l->kop[KOP_div][to == QN_i64 ? QN_f32 : to];
  p->usable = (from == to || p->widen) && (arg || result == to || p->narrow) &&
              (arg    ? p->arg != NULL
               : scan ? p->scan && p->step
                      : p->tree && p->chains && p->step);
}

static __attribute__((noinline, cold)) const fold_plan *make_plans(qn_vm *vm, int op, qn_dtype d) {
  cpu_kept *k = cpu_kept_of(vm);
  if (!k || !(k->folds = mem_zalloc(vm, PLANS * sizeof *k->folds))) return NULL;
  for (int i = 0; i < PLANS; i++)
    make_plan(k->loops, FIRST + i / DTYPE_PUBLIC, (qn_dtype)(i % DTYPE_PUBLIC), &k->folds[i]);
  return &k->folds[(op - FIRST) * DTYPE_PUBLIC + (int)d];
}

void folds_free(qn_vm *vm, cpu_kept *k) { mem_free(vm, k->folds, PLANS * sizeof *k->folds); }

/* NULL with an error raised. */
static inline const fold_plan *plan_of(qn_vm *vm, int op, qn_dtype d) {
  const cpu_kept *k = vm->devices[FAMILY_cpu];
  if (__builtin_expect(!k || !k->folds, 0)) return make_plans(vm, op, d);
  return &k->folds[(op - FIRST) * DTYPE_PUBLIC + (int)d];
}

/* Is it of 1 to TINY elements in the CPU's memory? */
static inline bool is_tiny(const qn_array *x) {
  return x->storage && !x->device && (uint64_t)x->size - 1 < TINY_ELEMENTS;
}

/* The elements in row-major order, where they lie if they lie so, else in `room`. */
static inline const char *in_order(const qn_array *x, char *room) {
  if (x->contiguous) return x->storage->data + (size_t)x->offset * dtype_size((qn_dtype)x->dtype);
  eager_write_out(room, x);
  return room;
}

/* What is folded: `outer` times n elements, each of `inner` results behind one another; and the shape of the results. */
typedef struct fold_nest {
  int64_t outer, n, inner, shape[ARRAY_MAX_RANK];
  int rank;
} fold_nest;

/* Of neighbouring axes, from `first` on and before `last`. */
static inline __attribute__((always_inline)) void fold_near(const qn_array *x, int first, int last, bool keepdims,
                                                            fold_nest *f) {
  f->outer = f->n = f->inner = 1;
  f->rank = 0;
  for (int i = 0; i < first; i++) f->outer *= f->shape[f->rank++] = x->shape[i];
  for (int i = first; i < last; i++) {
    f->n *= x->shape[i];
    if (keepdims) f->shape[f->rank++] = 1;
  }
  for (int i = last, rank = x->rank; i < rank; i++) f->inner *= f->shape[f->rank++] = x->shape[i];
}

/* A chain over many elements: a row of results at a time. */
static __attribute__((noinline)) void chain_rows(bvm_fn step, size_t size, const fold_nest *f, char *out,
                                                 const char *x) {
  size_t row = (size_t)f->inner * size;
  for (int64_t o = 0; o < f->outer; o++, out += row, x += (size_t)f->n * row) {
    if (f->n == 1)
      memmove(out, x, row);
    else
      step(out, x, x + row, NULL, VM_A | VM_B, f->inner);
    for (int64_t i = 2; i < f->n; i++) step(out, out, x + (size_t)i * row, NULL, VM_A | VM_B, f->inner);
  }
}

/* The folds of reduced axes that lie apart, innermost first, in place. False: one is of too many elements. */
static bool fold_apart(const fold_plan *p, const qn_array *x, uint32_t axes, char *data) {
  int64_t left = x->size, inner = 1;
  bool behind = false;
  for (int a = x->rank - 1; a >= 0;) {
    if (!(axes >> a & 1)) {
      inner *= x->shape[a--];
      behind = true;
      continue;
    }
    int64_t n = 1;
    for (; a >= 0 && axes >> a & 1; a--) n *= x->shape[a];
    if (n > ORDER_LANES) return false;
    fold_nest f = {.outer = left / n / inner, .n = n, .inner = inner};
    if (n > 1 && !behind)
      p->tree(data, data, f.outer, n);
    else if (n > 1)
      chain_rows(p->step, p->size, &f, data, data);
    left /= n;
  }
  return true;
}

/* out /= n, of float dtype d. */
static inline void divide(bvm_fn by, qn_dtype d, void *out, int64_t n, int64_t results) {
  union {
    float narrow;
    double wide;
  } number;
  if (d == QN_f32)
    number.narrow = (float)n;
  else
    number.wide = (double)n;
  by(out, out, &number, NULL, VM_A, results);
}

/* What is between the folded elements and the result. */
static inline void finish(const fold_plan *p, char *out, char *folded, int64_t n, int64_t results) {
  if (p->divide && p->to != QN_i64) divide(p->divide, (qn_dtype)p->to, folded, n, results);
  if (p->narrow) p->narrow(out, folded, NULL, NULL, VM_A, results);
  if (p->divide && p->to == QN_i64) divide(p->divide, QN_f32, out, n, results);
}

/* Axes that lie apart. Unset: not here. */
static __attribute__((noinline)) qn_value reduce_apart(qn_vm *vm, const fold_plan *p, const qn_array *x, uint32_t axes,
                                                       bool keepdims) {
  _Alignas(64) char work[TINY_ELEMENTS * 8], room[TINY_ELEMENTS * 8];
  int64_t shape[ARRAY_MAX_RANK], n = 1;
  int kept = 0;
  for (int i = 0; i < x->rank; i++) {
    bool reduced = axes >> i & 1;
    if (reduced) n *= x->shape[i];
    if (keepdims || !reduced) shape[kept++] = reduced ? 1 : x->shape[i];
  }
  const char *source = in_order(x, room);
  if (p->widen)
    p->widen(work, source, NULL, NULL, VM_A, x->size);
  else
    memcpy(work, source, (size_t)x->size * p->size);
  if (!fold_apart(p, x, axes, work)) return value_unset();
  qn_array *out = array_new(vm, (qn_dtype)p->result, kept, shape);
  if (!out) return value_error();
  char *folded = p->narrow ? work : out->storage->data;
  if (!p->narrow) memcpy(folded, work, (size_t)out->size * p->size);
  finish(p, out->storage->data, folded, n, out->size);
  return value_obj(TAG_ARRAY, out);
}

/* With a cast before or after the folds. */
static __attribute__((noinline)) void fold_cast(const fold_plan *p, const fold_nest *f, bool rows, char *out,
                                                const char *source, int64_t size) {
  _Alignas(64) char work[TINY_ELEMENTS * 8];
  if (p->widen) {
    p->widen(work, source, NULL, NULL, VM_A, size);
    source = work;
  }
  char *folded = p->narrow ? work : out;
  if (rows)
    p->tree(folded, source, f->outer, f->n);
  else
    chain_rows(p->step, p->size, f, folded, source);
  finish(p, out, folded, f->n, f->outer * f->inner);
}

/* Neighbouring axes, from `first` on and before `last`; the elements of x in row-major order. Unset: not here. */
static inline __attribute__((always_inline)) qn_value
reduce_near(qn_vm *vm, const fold_plan *p, const qn_array *x, const char *source, int first, int last, bool keepdims) {
  int rank = x->rank;
  fold_nest f;
  fold_near(x, first, last, keepdims, &f);
  if (f.n > ORDER_LANES) return value_unset();
  qn_array *out = array_new(vm, (qn_dtype)p->result, f.rank, f.shape);
  if (!out) return value_error();
  char *to = out->storage->data;
  if (p->widen || p->narrow) {
    fold_cast(p, &f, last == rank, to, source, x->size);
    return value_obj(TAG_ARRAY, out);
  }
  if (last == rank)
    p->tree(to, source, f.outer, f.n);
  else if (x->size <= FEW_ELEMENTS)
    p->chains(to, source, f.outer, f.n, f.inner);
  else
    chain_rows(p->step, p->size, &f, to, source);
  if (p->divide) divide(p->divide, (qn_dtype)p->to, to, f.n, f.outer * f.inner);
  return value_obj(TAG_ARRAY, out);
}

/* The same of elements with gaps. */
static __attribute__((noinline)) qn_value reduce_gaps(qn_vm *vm, const fold_plan *p, const qn_array *x, int first,
                                                      int last, bool keepdims) {
  _Alignas(64) char room[TINY_ELEMENTS * 8];
  eager_write_out(room, x);
  return reduce_near(vm, p, x, room, first, last, keepdims);
}

/* Unset: not here. */
static inline __attribute__((always_inline)) qn_value reduce(qn_vm *vm, int op, const qn_array *x, uint32_t axes,
                                                             bool keepdims) {
  if (!axes || !is_tiny(x)) return value_unset();
  const fold_plan *p = plan_of(vm, op, (qn_dtype)x->dtype);
  if (__builtin_expect(!p, 0)) return value_error();
  if (__builtin_expect(!p->usable, 0)) return value_unset();
  int first = __builtin_ctz(axes), last = 32 - __builtin_clz(axes);
  if (axes + (1u << first) != 1u << last) return reduce_apart(vm, p, x, axes, keepdims);
  if (!x->contiguous) return reduce_gaps(vm, p, x, first, last, keepdims);
  return reduce_near(vm, p, x, array_data(x), first, last, keepdims);
}

/* argmax and argmin over neighbouring axes. Unset: not here. */
static __attribute__((noinline)) qn_value reduce_arg(qn_vm *vm, int op, const qn_array *x, uint32_t axes,
                                                     bool keepdims) {
  if (!axes || !is_tiny(x)) return value_unset();
  int first = __builtin_ctz(axes), last = 32 - __builtin_clz(axes);
  const fold_plan *p = plan_of(vm, op, (qn_dtype)x->dtype);
  if (!p) return value_error();
  if (!p->usable || axes + (1u << first) != 1u << last) return value_unset();
  fold_nest f;
  fold_near(x, first, last, keepdims, &f);
  _Alignas(64) char work[TINY_ELEMENTS * 8], room[TINY_ELEMENTS * 8], held[TINY_ELEMENTS * 8];
  const char *source = in_order(x, room);
  if (p->widen) {
    p->widen(work, source, NULL, NULL, VM_A, x->size);
    source = work;
  }
  qn_array *out = array_new(vm, DTYPE_INDEX, f.rank, f.shape);
  if (!out) return value_error();
  int64_t *at = (int64_t *)(void *)out->storage->data;
  size_t size = p->size;
  uint64_t best = 0;
  void (*column)(void *, const void *, int64_t, int64_t) = cpu_loops(vm)->load[bvm_size_class(size)];
  for (; f.outer > 0; f.outer--, source += (size_t)(f.n * f.inner) * size)
    for (int64_t i = 0; i < f.inner; i++) {
      const char *elements = source;
      if (f.inner > 1) column(held, source + (size_t)i * size, f.inner, f.n), elements = held;
      *at = -1;
      p->arg(&best, at++, elements, 0, f.n);
    }
  return value_obj(TAG_ARRAY, out);
}

qn_value eager_reduce(qn_vm *vm, op_id op, qn_value x, uint8_t axes, bool keepdims) {
  const qn_array *a = value_array(x);
  return op_rows[op].dtype_rule == DT_arg ? reduce_arg(vm, op, a, axes, keepdims) : reduce(vm, op, a, axes, keepdims);
}

qn_value eager_mean(qn_vm *vm, qn_value x, uint8_t axes, bool keepdims) {
  return reduce(vm, MEAN, value_array(x), axes, keepdims);
}

qn_value eager_scan(qn_vm *vm, op_id op, qn_value in, uint8_t axes) {
  const qn_array *x = value_array(in);
  if (!axes || !is_tiny(x)) return value_unset();
  const fold_plan *p = plan_of(vm, op, (qn_dtype)x->dtype);
  if (!p) return value_error();
  int axis = __builtin_ctz(axes), rank = x->rank;
  int64_t n = x->shape[axis], inner = 1;
  if (!p->usable || n > ORDER_LANES) return value_unset();
  for (int i = axis + 1; i < rank; i++) inner *= x->shape[i];
  qn_array *out = array_new_like(vm, (qn_dtype)p->result, x);
  if (!out) return value_error();
  _Alignas(64) char wide[TINY_ELEMENTS * 8], room[TINY_ELEMENTS * 8];
  char *work = p->narrow ? wide : out->storage->data;
  size_t size = p->size, row = (size_t)inner * size;
  const char *source = in_order(x, room);
  if (p->widen)
    p->widen(work, source, NULL, NULL, VM_A, x->size);
  else
    memcpy(work, source, (size_t)x->size * size);
  char *at = work, *end = work + (size_t)x->size * size;
  while (at < end) {
    if (axis == rank - 1) {
      p->scan(at, n);
      at += (size_t)n * size;
      continue;
    }
    for (int64_t i = 1; i < n; i++, at += row) p->step(at + row, at, at + row, NULL, VM_A | VM_B, inner);
    at += row;
  }
  if (p->narrow) p->narrow(out->storage->data, work, NULL, NULL, VM_A, x->size);
  return value_obj(TAG_ARRAY, out);
}

qn_value eager_along(qn_vm *vm, op_id op, const qn_value *in, const op_attr *attr) {
  qn_value out = value_unset();
  if (value_is(*in, TAG_ARRAY) && op_rows[op].klass == CLASS_REDUCE)
    out = eager_reduce(vm, op, *in, attr->axes, attr->keepdims);
  else if (value_is(*in, TAG_ARRAY) && !attr->flags)
    out = eager_scan(vm, op, *in, attr->axes);
  return __builtin_expect(value_is(out, TAG_UNSET), 0) ? eager_slow(vm, op, in, 1, attr) : out;
}
