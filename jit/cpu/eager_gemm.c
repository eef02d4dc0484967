/* The fast path of eager dispatch (eager.c): products of small matrices and vectors, without a kernel.
 *
 * A kernel's product of few terms is one chain of fma upward in k from the first product on (l.h, order DOT), of integers one of
 * multiplications and additions, of f16 and bf16 one in f32 that is rounded once, whatever the layout of the operands: so the loop of
 * the block VM that goes through any strides (bvm_loops.product) computes the same bits. Operands of another dtype than the result's are
 * converted into a buffer first. Axes before the last two are merged where the operands' memory allows it, so that most products of
 * many matrices are one call of the loop, too. Whatever is different is left to the slow way, which also finds what is wrong.
 */
#include <string.h>

#include "jit/cpu/cpu.h"
#include "jit/run/eager.h"

/* Products of more terms go to kernels, which have vectors; so do operands of more elements where they must be converted. */
enum { MOST_TERMS = 1024, MOST_CONVERTED = 256 };

/* Axes that the loop does not go through, innermost first. */
typedef struct outer_axes {
  int rank;
  int64_t size[ARRAY_MAX_RANK], step[2][ARRAY_MAX_RANK];
} outer_axes;

/* An axis before the last two, of sizes nx and ny, of which the result has *n: merged into the one that is gone through before it, the
 * first ones into the rows, where it can. False: it does not broadcast, or there are too many terms. */
static inline __attribute__((always_inline)) bool join_axis(int64_t nx, int64_t sx, int64_t ny, int64_t sy, bvm_gemm *p,
                                                            outer_axes *outer, int64_t *terms, int64_t *n) {
  int64_t most = nx == 1 ? ny : nx;
  *n = most;
  if (most == 1) return true;
  if (nx == 1) sx = 0;
  if (ny == 1) sy = 0;
  if ((ny != most && ny != 1) || (uint64_t)(most - 1) >= MOST_TERMS || (*terms *= most) > MOST_TERMS) return false;
  int last = outer->rank - 1;
  if (p->count == 1) {
    if (sy == 0 && sx == p->x_row * p->m)
      p->m *= most;
    else
      p->count = most, p->x_next = sx, p->y_next = sy;
  } else if (last < 0 && sx == p->x_next * p->count && sy == p->y_next * p->count) {
    p->count *= most;
  } else if (last >= 0 && sx == outer->step[0][last] * outer->size[last] &&
             sy == outer->step[1][last] * outer->size[last]) {
    outer->size[last] *= most;
  } else {
    outer->size[++last] = most;
    outer->step[0][last] = sx, outer->step[1][last] = sy;
    outer->rank = last + 1;
  }
  return true;
}

/* All these axes. */
static __attribute__((noinline)) bool join_axes(const qn_array *x, const qn_array *y, bvm_gemm *p, outer_axes *outer,
                                                int64_t *shape) {
  int xs = x->rank - 2, ys = y->rank - 2, most = xs > ys ? xs : ys;
  int64_t terms = p->m * p->n * p->k;
  for (int i = most - 1; i >= 0; i--) {
    int ix = i - most + xs, iy = i - most + ys;
    if (!join_axis(ix < 0 ? 1 : x->shape[ix], ix < 0 ? 0 : x->strides[ix], iy < 0 ? 1 : y->shape[iy],
                   iy < 0 ? 0 : y->strides[iy], p, outer, &terms, &shape[i]))
      return false;
  }
  return true;
}

typedef void (*product_fn)(void *out, const void *x, const void *y, const bvm_gemm *p);

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

/* Of operands whose elements are all of dtype d, at dx and dy, and which lie as x and y say. A vector is a row on the left, a column on
 * the right. */
static inline __attribute__((always_inline)) qn_value multiply(qn_vm *vm, product_fn fn, qn_dtype d, const qn_array *x,
                                                               const char *dx, const qn_array *y, const char *dy) {
  int xr = x->rank, yr = y->rank, rank = 0;
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
  if (xr > 3 || yr > 3) {
    if (!join_axes(x, y, &p, &outer, shape)) return value_unset();
    rank = (xr > yr ? xr : yr) - 2;
  } else if (xr == 3 || yr == 3) {
    int64_t terms = p.m * p.n * p.k;
    if (!join_axis(xr < 3 ? 1 : x->shape[0], x->strides[0], yr < 3 ? 1 : y->shape[0], y->strides[0], &p, &outer, &terms,
                   shape))
      return value_unset();
    rank = 1;
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
  qn_array head; /* of what has gaps: how its elements lie afterwards */
  _Alignas(8) char data[MOST_CONVERTED * 8];
} converted;

/* An operand's elements as dtype d: how they lie, and where. NULL: not here. */
static const qn_array *convert(const bvm_loops *l, const qn_array *a, qn_dtype d, converted *to, const char **data) {
  *data = to->data;
  if (a->dtype == d) {
    *data = array_data(a);
    return a;
  }
  bvm_fn cast = l->cast[a->dtype][d];
  if (!cast || (uint64_t)(a->size - 1) >= MOST_CONVERTED) return NULL;
  if (a->contiguous) {
    cast(to->data, array_data(a), NULL, NULL, VM_A, a->size);
    return a;
  }
  _Alignas(8) char held[MOST_CONVERTED * 8];
  eager_write_out(held, a);
  cast(to->data, held, NULL, NULL, VM_A, a->size);
  to->head.rank = a->rank;
  int64_t step = 1;
  for (int i = a->rank - 1; i >= 0; i--) {
    to->head.shape[i] = a->shape[i];
    to->head.strides[i] = step;
    step *= a->shape[i];
  }
  return &to->head;
}

/* Operands of two dtypes, or of one in which is not computed. */
static __attribute__((noinline)) qn_value multiply_converted(qn_vm *vm, const bvm_loops *l, const qn_array *x,
                                                             const qn_array *y) {
  qn_dtype d = (qn_dtype)x->dtype;
  if (y->dtype != d) d = dtype_promote((operand_type){d, false}, (operand_type){(qn_dtype)y->dtype, false}).dtype;
  if (d == QN_bool) d = QN_i64;
  converted left, right;
  const char *dx, *dy;
  if (!(x = convert(l, x, d, &left, &dx)) || !(y = convert(l, y, d, &right, &dy))) return value_unset();
  return multiply(vm, l->product[d], d, x, dx, y, dy);
}

qn_value eager_fast_dot(qn_vm *vm, const qn_array *x, const qn_array *y) {
  if (!x->storage || x->device || !y->storage || y->device) return value_unset();
  const bvm_loops *l = cpu_loops(vm);
  if (__builtin_expect(!l, 0)) return value_error();
  qn_dtype d = (qn_dtype)x->dtype;
  product_fn fn = l->product[d];
  if (y->dtype != d || !fn) return multiply_converted(vm, l, x, y);
  int64_t size = (int64_t)dtype_size(d);
  return multiply(vm, fn, d, x, x->storage->data + x->offset * size, y, y->storage->data + y->offset * size);
}
