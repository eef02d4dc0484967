/* The fast path of eager dispatch (eager.c): products of small matrices and vectors, without a kernel.
 *
 * A kernel's product of few terms is one chain of fma upward in k from the first product on (l.h, order DOT), of integers one of
 * multiplications and additions, whatever the layout of the operands: so the loop of the block VM that goes through any strides
 * (vm_loops.product) computes the same bits. Operands of another dtype than that in which is computed are converted into a
 * buffer first, f16 and bf16 to f32; their result is rounded once. Whatever is different is left to the slow way, which also
 * finds what is wrong.
 */
#include <string.h>

#include "jit/cpu/cpu.h"
#include "jit/cpu/eager.h"

/* Products of more terms go to kernels, which have vectors; so do operands of more elements where they must be converted. */
enum { MOST_TERMS = 1024, MOST_CONVERTED = 256 };

/* The elements of an array without gaps as dtype d in `to`; false: not here. */
static bool convert(const vm_loops *l, const qn_array *a, qn_dtype d, void *to) {
  qn_dtype from = (qn_dtype)a->dtype;
  bool narrow = from == QN_f16 || from == QN_bf16;
  vm_fn cast = narrow && d != QN_f32 ? NULL : l->cast[from][d];
  if (!cast || !a->contiguous || a->size > MOST_CONVERTED) return false;
  cast(to, array_data(a), NULL, NULL, VM_A, a->size);
  return true;
}

/* Many products: the axes before the last two, which broadcast. False: they do not, or there are too many terms. */
typedef struct batches {
  int rank;
  int64_t shape[ARRAY_MAX_RANK], step[2][ARRAY_MAX_RANK];
} batches;

static __attribute__((noinline)) bool join_batches(const qn_array *const a[2], int64_t terms, batches *b) {
  int most = a[0]->rank > a[1]->rank ? a[0]->rank : a[1]->rank;
  b->rank = most - 2;
  for (int i = 0; i < b->rank; i++) {
    b->shape[i] = 1;
    for (int k = 0; k < 2; k++) {
      int own = i - (most - a[k]->rank);
      bool here = own >= 0 && a[k]->shape[own] != 1;
      b->step[k][i] = here ? a[k]->strides[own] : 0;
      if (!here) continue;
      if (b->shape[i] != 1 && b->shape[i] != a[k]->shape[own]) return false;
      b->shape[i] = a[k]->shape[own];
    }
    if ((uint64_t)b->shape[i] - 1 >= MOST_TERMS || (terms *= b->shape[i]) > MOST_TERMS) return false;
  }
  return true;
}

static __attribute__((noinline)) void each_of_batch(const vm_loops *l, qn_dtype d, const void *const from[2],
                                                    const vm_product *p, const batches *b, char *out) {
  int64_t size = (int64_t)dtype_size(d), index[ARRAY_MAX_RANK] = {0};
  const char *at[2] = {from[0], from[1]};
  for (;;) {
    l->product[d](out, at[0], at[1], p);
    out += p->m * p->n * size;
    int i = b->rank - 1;
    for (; i >= 0; i--) {
      for (int k = 0; k < 2; k++) at[k] += b->step[k][i] * size;
      if (++index[i] < b->shape[i]) break;
      for (int k = 0; k < 2; k++) at[k] -= b->step[k][i] * b->shape[i] * size;
      index[i] = 0;
    }
    if (i < 0) return;
  }
}

/* Operands of dtype `compute`, which lie as `a` says; the result is converted to `result`. A vector is a row on the left, a column on
 * the right. */
static inline __attribute__((always_inline)) qn_value multiply(qn_vm *vm, const vm_loops *l, const qn_array *const a[2],
                                                               const void *const from[2], qn_dtype compute,
                                                               qn_dtype result) {
  const qn_array *x = a[0], *y = a[1];
  int xr = x->rank, yr = y->rank;
  if (!xr || !yr) return value_unset();
  vm_product p = {.m = 1, .n = 1, .k = x->shape[xr - 1], .x_step = x->strides[xr - 1]};
  int64_t shape[ARRAY_MAX_RANK];
  int rank = 0;
  batches b;
  b.rank = 0;
  if (xr > 1) p.m = x->shape[xr - 2], p.x_row = x->strides[xr - 2];
  p.y_step = y->strides[yr - 1];
  int64_t depth = y->shape[yr - 1];
  if (yr > 1) {
    p.n = depth, p.y_column = p.y_step;
    depth = y->shape[yr - 2], p.y_step = y->strides[yr - 2];
  }
  if (p.k != depth || (uint64_t)(p.k - 1) >= MOST_TERMS || (uint64_t)(p.m - 1) >= MOST_TERMS ||
      (uint64_t)(p.n - 1) >= MOST_TERMS || p.m * p.n * p.k > MOST_TERMS)
    return value_unset();
  if (xr > 2 || yr > 2) {
    if (!join_batches(a, p.m * p.n * p.k, &b)) return value_unset();
    memcpy(shape, b.shape, sizeof shape);
    rank = b.rank;
  }
  if (xr > 1) shape[rank++] = p.m;
  if (yr > 1) shape[rank++] = p.n;
  qn_array *out = array_new(vm, result, rank, shape);
  if (!out) return value_error();
  _Alignas(8) float wide[MOST_TERMS];
  char *to = compute == result ? out->storage->data : (char *)wide;
  if (b.rank)
    each_of_batch(l, compute, from, &p, &b, to);
  else
    l->product[compute](to, from[0], from[1], &p);
  if (compute != result) l->cast[compute][result](out->storage->data, to, NULL, NULL, VM_A, out->size);
  return value_obj(TAG_ARRAY, out);
}

/* Operands of two dtypes, or of one in which is not computed. */
static __attribute__((noinline)) qn_value multiply_converted(qn_vm *vm, const vm_loops *l, const qn_array *a[2]) {
  qn_dtype result = (qn_dtype)a[0]->dtype;
  if (a[1]->dtype != result)
    result = dtype_promote((operand_type){result, false}, (operand_type){(qn_dtype)a[1]->dtype, false}).dtype;
  if (result == QN_bool) result = QN_i64;
  bool narrow = result == QN_f16 || result == QN_bf16;
  if (narrow && a[0]->dtype != a[1]->dtype) return value_unset(); /* one is rounded to the result's dtype first */
  qn_dtype compute = narrow ? QN_f32 : result;
  _Alignas(8) char other[2][MOST_CONVERTED * 8];
  const void *from[2] = {other[0], other[1]};
  for (int i = 0; i < 2; i++)
    if (a[i]->dtype == compute)
      from[i] = array_data(a[i]);
    else if (!convert(l, a[i], compute, other[i]))
      return value_unset();
  return multiply(vm, l, a, from, compute, result);
}

qn_value eager_fast_dot(qn_vm *vm, qn_value left, qn_value right) {
  if (!value_is(left, TAG_ARRAY) || !value_is(right, TAG_ARRAY)) return value_unset();
  const qn_array *a[2] = {value_array(left), value_array(right)};
  if (!a[0]->storage || a[0]->device || !a[1]->storage || a[1]->device) return value_unset();
  const vm_loops *l = cpu_loops(vm);
  if (!l) return value_error();
  qn_dtype d = (qn_dtype)a[0]->dtype;
  if (a[1]->dtype == d && l->product[d]) {
    const void *from[2] = {array_data(a[0]), array_data(a[1])};
    return multiply(vm, l, a, from, d, d);
  }
  return multiply_converted(vm, l, a);
}
