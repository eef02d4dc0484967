/* The fast path of eager dispatch (eager.c): reductions of tiny arrays, without a kernel.
 *
 * It takes contiguous arrays reduced over neighbouring axes, up to 64 elements a result. Such axes always join to one (lower.c), and
 * in every order of l.h a result of so few elements is one step: where the last axis is reduced (INNER) the fold of the lanes, else
 * (OUTER) a chain, which is done for all results behind one another at once. Where any order gives the same bits both are right. The
 * block VM's own loops do the work. Whatever is different is left to the slow way, which also finds what is wrong.
 */
#include <string.h>

#include "jit/cpu/cpu.h"
#include "jit/cpu/eager.h"
#include "jit/cpu/opbody.h"

/* More elements than TINY are faster many results at a time, as kernels do it; few are not worth vectors. */
enum { TINY_ELEMENTS = 1024, FEW_ELEMENTS = 32 };

/* The dtype in which the op folds; QN_DTYPE_COUNT: not here. f16 and bf16 fold as f32 and are rounded once. */
static inline qn_dtype fold_dtype(op_id op, qn_dtype d) {
  bool half = d == QN_f16 || d == QN_bf16;
  switch ((op_dtype_rule)op_rows[op].dtype_rule) {
  case DT_sum: return half ? QN_f32 : dtype_is_float(d) ? d : QN_i64;
  case DT_same: return half ? QN_f32 : d;
  case DT_test_bool: return d == QN_bool ? d : QN_DTYPE_COUNT;
  default: return QN_DTYPE_COUNT;
  }
}

/* What is folded: `outer` times n elements, each of `inner` results behind one another. */
typedef struct fold_nest {
  int64_t outer, n, inner;
} fold_nest;

/* A chain over many elements: a row of results at a time. */
static __attribute__((noinline)) void chain_rows(vm_fn step, size_t size, const fold_nest *f, char *out,
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

/* out /= n, of float dtype d. */
static inline void divide(const vm_loops *l, qn_dtype d, void *out, int64_t n, int64_t results) {
  union {
    float narrow;
    double wide;
  } by;
  if (d == QN_f32)
    by.narrow = (float)n;
  else
    by.wide = (double)n;
  l->kop[KOP_div][d](out, out, &by, NULL, VM_A, results);
}

/* Unset: not here. */
static inline __attribute__((always_inline)) qn_value reduce(qn_vm *vm, op_id op, qn_value in, const op_attr *attr,
                                                             bool mean) {
  if (!value_is(in, TAG_ARRAY)) return value_unset();
  const qn_array *x = value_array(in);
  uint32_t axes = attr->axes;
  if (!axes || !x->contiguous || !x->storage || x->device || (uint64_t)x->size - 1 >= TINY_ELEMENTS)
    return value_unset();
  int rank = x->rank, first = __builtin_ctz(axes), last = 32 - __builtin_clz(axes);
  if (axes + (1u << first) != 1u << last) return value_unset();
  fold_nest f = {1, 1, 1};
  int64_t shape[ARRAY_MAX_RANK];
  int kept = 0;
  for (int i = 0; i < first; i++) f.outer *= shape[kept++] = x->shape[i];
  for (int i = first; i < last; i++) {
    f.n *= x->shape[i];
    if (attr->keepdims) shape[kept++] = 1;
  }
  for (int i = last; i < rank; i++) f.inner *= shape[kept++] = x->shape[i];
  qn_dtype from = (qn_dtype)x->dtype, to = fold_dtype(op, from), result = to;
  if (f.n > ORDER_LANES || to == QN_DTYPE_COUNT) return value_unset();
  const vm_loops *l = cpu_loops(vm);
  if (!l) return value_error();
  uint8_t kop = op_bodies[op].which;
  if (!l->tree[kop][to]) return value_unset();
  if (from == QN_f16 || from == QN_bf16)
    result = from;
  else if (mean && to == QN_i64)
    result = QN_f32;
  vm_fn widen = from == to ? NULL : l->cast[from][to], narrow = result == to ? NULL : l->cast[to][result];
  if ((from != to && !widen) || (result != to && !narrow)) return value_unset();
  qn_array *out = array_new(vm, result, kept, shape);
  if (!out) return value_error();
  _Alignas(64) char scratch[TINY_ELEMENTS * 8];
  const char *source = x->storage->data + (size_t)x->offset * dtype_size(from);
  char *folded = narrow ? scratch : out->storage->data;
  if (widen) {
    widen(scratch, source, NULL, NULL, VM_A, x->size);
    source = scratch;
  }
  if (last == rank)
    l->tree[kop][to](folded, source, f.outer, f.n);
  else if (x->size <= FEW_ELEMENTS)
    l->chains[kop][to](folded, source, f.outer, f.n, f.inner);
  else
    chain_rows(l->kop[kop][to], dtype_size(to), &f, folded, source);
  if (mean && to != QN_i64) divide(l, to, folded, f.n, out->size);
  if (narrow) narrow(out->storage->data, folded, NULL, NULL, VM_A, out->size);
  if (mean && to == QN_i64) divide(l, QN_f32, out->storage->data, f.n, out->size);
  return value_obj(TAG_ARRAY, out);
}

qn_value eager_fast_reduce(qn_vm *vm, op_id op, const qn_value *in, const op_attr *attr) {
  qn_value out = reduce(vm, op, *in, attr, false);
  return __builtin_expect(value_is(out, TAG_UNSET), 0) ? eager_slow(vm, op, in, 1, attr) : out;
}

qn_value eager_fast_mean(qn_vm *vm, qn_value in, const op_attr *attr) { return reduce(vm, OP_sum, in, attr, true); }
