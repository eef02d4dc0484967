/* The fast path of eager dispatch (eager.c): reductions of tiny arrays, without a kernel.
 *
 * It takes contiguous arrays reduced over their last axis, their last axes or all of them, up to 64 elements a result. Such axes always
 * join to one (lower.c), and in every order of l.h a result of so few elements is one step: a chain where any order gives the
 * same bits, else the fold of the lanes. The block VM's own loops do both. Whatever is different is left to the slow way,
 * which also finds what is wrong.
 */
#include <string.h>

#include "jit/cpu/cpu.h"
#include "jit/cpu/eager.h"
#include "jit/cpu/opbody.h"
#include "jit/kernel/k.h"

/* More elements than this are faster many results at a time, as kernels do it. */
enum { TINY_ELEMENTS = 1024 };

/* The dtype of the result, in which the op folds; QN_DTYPE_COUNT: not here. f16 and bf16 fold as f32. */
static qn_dtype fold_dtype(op_id op, qn_dtype d) {
  if (d == QN_f16 || d == QN_bf16) return QN_DTYPE_COUNT;
  switch ((op_dtype_rule)op_rows[op].dtype_rule) {
  case DT_sum: return dtype_is_float(d) ? d : QN_i64;
  case DT_same: return d;
  case DT_test_bool: return d == QN_bool ? d : QN_DTYPE_COUNT;
  default: return QN_DTYPE_COUNT;
  }
}

/* Unset: not here. */
static inline __attribute__((always_inline)) qn_value reduce(qn_vm *vm, op_id op, qn_value in, const op_attr *attr,
                                                             bool mean) {
  if (!value_is(in, TAG_ARRAY)) return value_unset();
  const qn_array *x = value_array(in);
  int rank = x->rank;
  if (!attr->axes || !x->contiguous || !x->storage || x->device || x->size > TINY_ELEMENTS) return value_unset();
  int first = __builtin_ctz(attr->axes); /* the first reduced axis */
  if (attr->axes + (1 << first) != 1 << rank) return value_unset();
  int64_t n = 1, shape[ARRAY_MAX_RANK];
  for (int i = first; i < rank; i++) n *= x->shape[i];
  if (n == 0 || n > ORDER_LANES) return value_unset();
  qn_dtype from = (qn_dtype)x->dtype, to = fold_dtype(op, from);
  if (to == QN_DTYPE_COUNT || (mean && from != QN_f32 && from != QN_f64)) return value_unset();
  const vm_loops *l = cpu_loops(vm);
  if (!l) return value_error();
  uint8_t kop = op_bodies[op].which;
  vm_fn fold = k_free_order(kop, to) ? NULL : l->kop[kop][to], cast = NULL;
  void (*chain)(void *, const void *, int64_t, bool) = fold ? NULL : l->chain[kop][to];
  if ((!fold && !chain) || (from != to && !(cast = l->cast[from][to]))) return value_unset();
  for (int i = 0; i < first; i++) shape[i] = x->shape[i];
  int kept = attr->keepdims ? rank : first;
  for (int i = first; i < kept; i++) shape[i] = 1;
  qn_array *out = array_new(vm, to, kept, shape);
  if (!out) return value_error();
  size_t size = dtype_size(to), step = (size_t)n * dtype_size(from);
  const char *row = array_data(x);
  char *result = array_data(out);
  _Alignas(16) char lanes[ORDER_LANES * 8];
  for (int64_t i = 0; i < out->size; i++, row += step, result += size) {
    const char *elements = row;
    if (cast) {
      cast(lanes, row, NULL, NULL, VM_A, n);
      elements = lanes;
    }
    if (fold)
      vm_fold_lanes(fold, size, result, lanes, elements, n);
    else
      chain(result, elements, n, true);
  }
  if (mean) {
    _Alignas(8) char count[8];
    dtype_store(to, count, value_int(n));
    l->kop[KOP_div][to](array_data(out), array_data(out), count, NULL, VM_A, out->size);
  }
  return value_obj(TAG_ARRAY, out);
}

qn_value eager_fast_reduce(qn_vm *vm, op_id op, const qn_value *in, const op_attr *attr) {
  qn_value out = reduce(vm, op, *in, attr, false);
  return __builtin_expect(value_is(out, TAG_UNSET), 0) ? eager_slow(vm, op, in, 1, attr) : out;
}

qn_value eager_fast_mean(qn_vm *vm, qn_value in, const op_attr *attr) { return reduce(vm, OP_sum, in, attr, true); }
