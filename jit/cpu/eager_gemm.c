/* The fast path of eager dispatch (eager.c): products of small matrices and vectors, without a kernel.
 *
 * A kernel's product of few terms is one chain of fma upward in k from the first product on (l.h, order DOT), of integers one of
 * multiplications and additions, of f16 and bf16 one in f32 that is rounded once, whatever the layout of the operands: so the loop of
 * the block VM that goes through any strides (bvm_loops.product) computes the same bits. Operands of another dtype than the result's are
 * converted into a buffer first. Axes before the last two are merged where the operands' memory allows it, so that most products of
 * many matrices are one call of the loop, too. The product of two vectors is a sum in order INNER, by a loop of its own (bvm_loops.inner).
 * Whatever is different is left to the slow way, which also finds what is wrong.
 *
 * Why it is there: a product of two matrices of 2x2, call included, takes 590 instructions this way and 6,500 by its kernel
 * (tests/cost.py). Tried: operands converted by op programs, to arrays of their own (m @ i2 679 -> 856).
 */
#include <string.h>

#include "jit/cpu/cpu.h"
#include "jit/run/eager.h"

/* Products of more terms go to kernels, which have vectors. */
enum { MOST_TERMS = 1024 };

/* Axes that the loop does not go through, innermost first. */
typedef struct outer_axes {
  int rank;
  int64_t size[ARRAY_MAX_RANK], step[2][ARRAY_MAX_RANK];
} outer_axes;

/* Assigns each axis before the last two, from the innermost out: to the rows, if only x steps along it and its rows continue evenly; else to
 * `count`; else to an outer axis. It is merged with the axis before it where both operands step evenly across the two. Writes their sizes to
 * `shape`. False: they do not broadcast, or there are too many terms. */
static __attribute__((noinline)) bool take_axes(const qn_array *x, const qn_array *y, bvm_gemm *p, outer_axes *outer,
                                                int64_t *shape) {
  int xs = x->rank - 2, ys = y->rank - 2, most = xs > ys ? xs : ys;
  int64_t terms = p->m * p->n * p->k;
  for (int i = most - 1; i >= 0; i--) {
    int ix = i - most + xs, iy = i - most + ys;
    int64_t nx = ix < 0 ? 1 : x->shape[ix], ny = iy < 0 ? 1 : y->shape[iy], n = shape[i] = nx == 1 ? ny : nx;
    if (n == 1) continue;
    if ((ny != n && ny != 1) || (uint64_t)(n - 1) >= MOST_TERMS || (terms *= n) > MOST_TERMS) return false;
    int64_t sx = nx == 1 ? 0 : x->strides[ix], sy = ny == 1 ? 0 : y->strides[iy];
    int last = outer->rank - 1;
    if (p->count == 1 && sy == 0 && sx == p->x_row * p->m) {
      p->m *= n;
    } else if (p->count == 1) {
      p->count = n, p->x_next = sx, p->y_next = sy;
    } else if (last < 0 && sx == p->x_next * p->count && sy == p->y_next * p->count) {
      p->count *= n;
    } else if (last >= 0 && sx == outer->step[0][last] * outer->size[last] &&
               sy == outer->step[1][last] * outer->size[last]) {
      outer->size[last] *= n;
    } else {
      outer->size[++last] = n;
      outer->step[0][last] = sx, outer->step[1][last] = sy;
      outer->rank = last + 1;
    }
  }
  return true;
}

typedef void (*product_fn)(void *out, const void *x, const void *y, const bvm_gemm *p);

/* The product for each place along the outer axes; x, y and out are the first elements, size the bytes of one. */
static __attribute__((noinline)) void each_of_outer(product_fn fn, const bvm_gemm *p, const outer_axes *o,
                                                    const char *x, const char *y, char *out, int64_t size) {
  int64_t index[ARRAY_MAX_RANK] = {0}, step = p->count * p->m * p->n * size;
  for (;; out += step) {
    fn(out, x, y, p);
    int i = 0;
    for (; i < o->rank; i++) {
      x += o->step[0][i] * size, y += o->step[1][i] * size;
      if (++index[i] < o->size[i]) break;
      x -= o->step[0][i] * o->size[i] * size, y -= o->step[1][i] * o->size[i] * size;
      index[i] = 0;
    }
    if (i == o->rank) return;
  }
}

/* The product of two vectors whose elements are of dtype d. */
static inline __attribute__((always_inline)) qn_value multiply_vectors(qn_vm *vm, const bvm_loops *l, qn_dtype d,
                                                                       const qn_array *x, const char *dx,
                                                                       const qn_array *y, const char *dy) {
  int64_t n = x->shape[0];
  if (n != y->shape[0] || (uint64_t)(n - 1) >= BVM_INNER_MOST) return value_unset();
  qn_array *out = array_new(vm, d, 0, NULL);
  if (!out) return value_error();
  l->inner[d](out->storage->data, dx, x->strides[0], dy, y->strides[0], n);
  return value_obj(TAG_ARRAY, out);
}

/* The product of arrays whose elements are of dtype d by its loop; they lie at dx and dy as the arrays say. A vector is a row on the left, a
 * column on the right. */
static inline __attribute__((always_inline)) qn_value multiply(qn_vm *vm, const bvm_loops *l, qn_dtype d,
                                                               const qn_array *x, const char *dx, const qn_array *y,
                                                               const char *dy) {
  product_fn fn = l->product[d];
  int xr = x->rank, yr = y->rank, rank = 0;
  if (dot_is_sum(xr, yr)) return multiply_vectors(vm, l, d, x, dx, y, dy);
  if (!xr || !yr) return value_unset();
  bvm_gemm p;
  int64_t shape[ARRAY_MAX_RANK];
  p.count = p.m = p.n = 1;
  p.k = x->shape[xr - 1], p.x_step = x->strides[xr - 1];
  p.x_row = p.y_column = p.x_next = p.y_next = 0; /* the loop steps on behind the last product, too */
  p.y_step = y->strides[yr - 1];
  int64_t depth = y->shape[yr - 1];
  if (xr > 1) p.m = x->shape[xr - 2], p.x_row = x->strides[xr - 2];
  if (yr > 1) {
    p.n = depth, p.y_column = p.y_step;
    depth = y->shape[yr - 2], p.y_step = y->strides[yr - 2];
  }
  if (p.k != depth || (uint64_t)(p.k - 1) >= MOST_TERMS || (uint64_t)(p.m - 1) >= MOST_TERMS ||
      (uint64_t)(p.n - 1) >= MOST_TERMS || p.m * p.n * p.k > MOST_TERMS)
    return value_unset();
  int64_t m = p.m;
  outer_axes outer;
  outer.rank = 0;
  if (xr > 2 || yr > 2) {
    if (!take_axes(x, y, &p, &outer, shape)) return value_unset();
    rank = (xr > yr ? xr : yr) - 2;
  }
  if (xr > 1) shape[rank++] = m;
  if (yr > 1) shape[rank++] = p.n;
  qn_array *out = array_new(vm, d, rank, shape);
  if (!out) return value_error();
  if (__builtin_expect(outer.rank, 0))
    each_of_outer(fn, &p, &outer, dx, dy, out->storage->data, (int64_t)dtype_size(d));
  else
    fn(out->storage->data, dx, dy, &p);
  return value_obj(TAG_ARRAY, out);
}

typedef struct converted {
  qn_array head; /* of an operand that has gaps: how its elements lie afterwards */
  uint64_t data[MOST_TERMS];
} converted;

/* The elements of an array as dtype d: *data, in `to` if they are converted, and the array that says how they lie. NULL: there are too many. */
static const qn_array *convert(const bvm_loops *l, const qn_array *a, qn_dtype d, converted *to, const char **data) {
  *data = array_data(a);
  if (a->dtype == d) return a;
  uint64_t held[MOST_TERMS];
  bvm_fn cast = l->cast[a->dtype][d];
  if (!cast || (uint64_t)(a->size - 1) >= MOST_TERMS) return NULL;
  if (!a->contiguous) eager_write_out(held, a);
  cast(to->data, a->contiguous ? *data : (const char *)held, NULL, NULL, VM_A, a->size);
  *data = (const char *)to->data;
  if (a->contiguous) return a;
  to->head.rank = a->rank;
  memcpy(to->head.shape, a->shape, sizeof a->shape);
  return shape_strides(a->rank, a->shape, to->head.strides) < 0 ? NULL : &to->head;
}

/* Operands of two dtypes: both are converted to the dtype that they promote to. Bools are multiplied as i64, since they have no loop. */
static __attribute__((noinline)) qn_value multiply_converted(qn_vm *vm, const bvm_loops *l, const qn_array *x,
                                                             const qn_array *y) {
  qn_dtype d = (qn_dtype)x->dtype;
  if (y->dtype != d) d = dtype_promote((operand_type){d, false}, (operand_type){(qn_dtype)y->dtype, false}).dtype;
  if (dtype_is_bool(d)) d = DTYPE_INT;
  converted left, right;
  const char *dx, *dy;
  if (!(x = convert(l, x, d, &left, &dx)) || !(y = convert(l, y, d, &right, &dy))) return value_unset();
  return multiply(vm, l, d, x, dx, y, dy);
}

qn_value eager_fast_dot(qn_vm *vm, qn_value a, qn_value b) {
  if (!value_is(a, TAG_ARRAY) || !value_is(b, TAG_ARRAY)) return value_unset();
  const qn_array *x = value_array(a), *y = value_array(b);
  if (!x->storage || x->device || !y->storage || y->device) return value_unset();
  const bvm_loops *l = cpu_loops(vm);
  if (__builtin_expect(!l, 0)) return value_error();
  qn_dtype d = (qn_dtype)x->dtype;
  int64_t begin = trace_events_begin(vm->engine);
  qn_value out = y->dtype != d || !l->product[d] ? multiply_converted(vm, l, x, y)
                                                 : multiply(vm, l, d, x, array_data(x), y, array_data(y));
  return eager_traced(vm, OP_dot, begin, out);
}
