/* The fast path of eager dispatch (eager.c): reductions and scans of tiny arrays.
 *
 * Nothing about a single op is written down here: in which dtype an op combines elements, by which primitive, and what is converted
 * before and after, is taken from its one-op kernel, once for each op and dtype (op_program.h), and the block VM's loops do the work.
 *
 * What is written down is the order for few elements. Axes are folded as folds.h says: from the innermost out, neighbours together. In
 * every order of l.h a result of so few elements (64 in a fold) is one step: where the last axis is reduced (INNER) the fold of the
 * lanes, else (OUTER) a chain, which is done for all results behind one another at once. Where any order gives the same bits both are
 * right. An argmax or argmin looks at the elements of each result one after the other. A scan of at most 64 elements is one group
 * (INNER) or one chain (OUTER).
 *
 * Why it is there: a sum of four elements, call included, takes 520 instructions this way and 4,300 by its kernel, a running sum
 * 690 and 3,800 (tests/cost.py). Tried: no `chains` (a sum over the two first of three axes 777 -> 860).
 *
 * Unset means that an op is left to the slow way, which also finds what is wrong.
 */
#include <string.h>

#include "jit/cpu/cpu.h"
#include "jit/run/eager.h"
#include "jit/cpu/op_program.h"

/* More elements than TINY are faster many results at a time, as kernels do it; few are not worth vectors. */
enum { TINY_ELEMENTS = 1024, FEW_ELEMENTS = 32 };

/* A run of neighbouring axes along which is folded: `outer` times n elements, each of `inner` results behind one another. */
typedef struct fold_run {
  int64_t outer, n, inner;
  bool last; /* there is no axis behind them that stays */
} fold_run;

/* Order OUTER for many elements: all `inner` results are combined with a row of elements at a time. */
static __attribute__((noinline)) void chain_rows(const op_fold *f, const fold_run *r, char *out, const char *x) {
  size_t row = (size_t)r->inner * f->size;
  for (int64_t o = 0; o < r->outer; o++, out += row, x += (size_t)r->n * row) {
    if (r->n == 1)
      memmove(out, x, row);
    else
      f->step(out, x, x + row, NULL, VM_A | VM_B, r->inner);
    for (int64_t i = 2; i < r->n; i++) f->step(out, out, x + (size_t)i * row, NULL, VM_A | VM_B, r->inner);
  }
}

/* All running values, from x to out, which may be x. */
static __attribute__((noinline)) void scan_rows(const op_fold *f, const fold_run *r, char *out, const char *x) {
  size_t row = (size_t)r->inner * f->size;
  if (out != x) memcpy(out, x, (size_t)(r->outer * r->n) * row);
  for (int64_t o = 0; o < r->outer; o++, out += row) {
    if (r->last) {
      f->scan(out, r->n);
      out += (size_t)(r->n - 1) * row;
    }
    for (int64_t i = 1; i < r->n && !r->last; i++, out += row)
      f->step(out + row, out, out + row, NULL, VM_A | VM_B, r->inner);
  }
}

/* The index of the largest or smallest element of each result, as i64 to out. */
static __attribute__((noinline)) void find_best(const op_fold *f, const bvm_loops *l, const fold_run *r, char *out,
                                                const char *x) {
  uint64_t held[TINY_ELEMENTS];
  int64_t *at = (int64_t *)(void *)out;
  uint64_t best = 0;
  for (int64_t o = 0; o < r->outer; o++, x += (size_t)(r->n * r->inner) * f->size)
    for (int64_t i = 0; i < r->inner; i++) {
      const char *elements = x;
      if (r->inner > 1) {
        l->load[bvm_size_class(f->size)](held, x + (size_t)i * f->size, r->inner, r->n);
        elements = (const char *)held;
      }
      *at = -1;
      f->arg(&best, at++, elements, 0, r->n);
    }
}

/* How a mean differs from a sum. */
typedef struct fold_mean {
  bvm_fn cast;   /* of the elements before they are summed; NULL: none */
  bvm_fn divide; /* of the sums by the number of elements */
  qn_dtype wide; /* in which that is done */
} fold_mean;

/* A REDUCE op over a mask of axes or a SCAN op along one, by its program, of few elements in the CPU's memory; of a mean the op is OP_sum. */
static inline __attribute__((always_inline)) qn_value fold_by(qn_vm *vm, const op_program *s, const qn_array *x,
                                                              uint32_t axes, bool keepdims, const fold_mean *mean) {
  if (__builtin_expect(!s->usable, 0)) return value_unset();
  const op_fold *f = &s->fold;
  bvm_fn widen = mean && mean->cast ? mean->cast : f->widen;
  int64_t shape[ARRAY_MAX_RANK], all = 1;
  int rank = 0;
  for (int i = 0; i < x->rank; i++)
    if (!(axes >> i & 1) || f->scan)
      shape[rank++] = x->shape[i];
    else if (keepdims)
      shape[rank++] = 1;
  qn_array *out = array_new(vm, (qn_dtype)s->result, rank, shape);
  if (!out) return value_error();
  uint64_t work[TINY_ELEMENTS], room[TINY_ELEMENTS];
  char *result = f->narrow ? (char *)work : out->storage->data;
  const char *from = (const char *)room;
  if (x->contiguous)
    from = array_data(x);
  else
    eager_write_out(room, x);
  if (widen) {
    widen(work, from, NULL, NULL, VM_A, x->size);
    from = (const char *)work;
  }
  fold_run r = {.inner = 1, .last = true};
  for (int a = x->rank - 1; axes;) {
    for (; !(axes >> a & 1); a--) {
      r.inner *= x->shape[a];
      r.last = false;
    }
    for (r.n = 1; a >= 0 && axes >> a & 1; a--) r.n *= x->shape[a];
    axes &= (1u << (a + 1)) - 1;
    r.outer = 1;
    for (int i = 0; i <= a; i++) r.outer *= x->shape[i];
    all *= r.n;
    if (f->arg ? axes != 0 : r.n > ORDER_LANES) {
      value_release(vm, value_obj(TAG_ARRAY, out));
      return value_unset();
    }
    char *to = axes ? (char *)work : result;
    if (!f->tree && f->arg)
      find_best(f, cpu_loops(vm), &r, to, from);
    else if (!f->tree)
      scan_rows(f, &r, to, from);
    else if (r.last)
      f->tree(to, from, r.outer, r.n);
    else if (x->size <= FEW_ELEMENTS)
      f->chains(to, from, r.outer, r.n, r.inner);
    else
      chain_rows(f, &r, to, from);
    from = to;
  }
  if (f->narrow) f->narrow(out->storage->data, work, NULL, NULL, VM_A, out->size);
  if (mean) {
    _Alignas(8) char count[8];
    dtype_store(mean->wide, count, value_int(all));
    mean->divide(out->storage->data, out->storage->data, count, NULL, VM_A, out->size);
  }
  return value_obj(TAG_ARRAY, out);
}

/* The same where there is no program yet, or somebody traces what is done. */
static __attribute__((noinline, cold)) qn_value fold_asked(qn_vm *vm, op_id op, const qn_array *x, uint32_t axes,
                                                           bool keepdims, const fold_mean *mean) {
  const op_program *s = op_program_of(vm, op, op_program_number(mean ? mean->wide : x->dtype, 0));
  if (!s) return value_error();
  int64_t begin = trace_events_begin(vm->engine);
  return eager_traced(vm, op, begin, fold_by(vm, s, x, axes, keepdims, mean));
}

static inline __attribute__((always_inline)) qn_value fold(qn_vm *vm, op_id op, const qn_array *x, uint32_t axes,
                                                           bool keepdims, const fold_mean *mean) {
  if (!axes || !x->storage || x->device || (uint64_t)x->size - 1 >= TINY_ELEMENTS) return value_unset();
  const op_program *s = op_program_known(vm, op, op_program_number(mean ? mean->wide : x->dtype, 0));
  return __builtin_expect(s != NULL, 1) ? fold_by(vm, s, x, axes, keepdims, mean)
                                        : fold_asked(vm, op, x, axes, keepdims, mean);
}

qn_value eager_reduce(qn_vm *vm, op_id op, qn_value x, uint8_t axes, bool keepdims) {
  return fold(vm, op, value_array(x), axes, keepdims, NULL);
}

/* The conversion and the division are those of their ops' programs, if each is one loop. */
qn_value eager_mean(qn_vm *vm, qn_value in, qn_dtype wide, uint8_t axes, bool keepdims) {
  const qn_array *x = value_array(in);
  const op_program *cast = NULL, *divide = op_program_of(vm, OP_div, op_program_number(wide, PROGRAM_WEAK + TAG_INT));
  if (x->dtype != wide) cast = op_program_of(vm, OP_cast, op_program_number(x->dtype, wide));
  if (!divide || (x->dtype != wide && !cast)) return value_error();
  if (!divide->fn || divide->result != wide || (cast && !cast->fn)) return value_unset();
  fold_mean mean = {.cast = cast ? cast->fn : NULL, .divide = divide->fn, .wide = wide};
  return fold(vm, OP_sum, x, axes, keepdims, &mean);
}

qn_value eager_along(qn_vm *vm, op_id op, const qn_value *in, const op_attr *attr) {
  qn_value out = value_unset();
  if (value_is(*in, TAG_ARRAY) && (op_rows[op].klass == CLASS_REDUCE || !attr->flags))
    out = eager_reduce(vm, op, *in, attr->axes, attr->keepdims);
  return __builtin_expect(value_is(out, TAG_UNSET), 0) ? eager_slow(vm, op, in, 1, attr) : out;
}
