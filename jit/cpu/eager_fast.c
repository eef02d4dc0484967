/* The fast path of eager dispatch (eager.c): POINTWISE ops on small arrays, without asking the rules.
 *
 * It takes what programs do most: operands of one dtype in which the op computes, or a host number beside them; shapes that
 * are equal or broadcast; any strides; and conversions that cannot fail. The loops of the block VM are called directly, on the
 * whole arrays where all are contiguous, else row by row. Whatever is different is left to the slow way, which also finds
 * what is wrong.
 */
#include <string.h>

#include "jit/cpu/cpu.h"
#include "jit/cpu/eager.h"
#include "jit/cpu/opbody.h"

typedef struct fast_op {
  vm_fn fn;
  qn_dtype compute, result;
  int nin;
  const qn_array *a[2]; /* NULL: the number in `cell` */
  const void *cell;
} fast_op;

/* Stores a host number as dtype d, if d takes it without a question. */
static inline bool scalar_fits(qn_value v, qn_dtype d, char cell[8]) {
  float f;
  int32_t i;
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
  case QN_i64: memcpy(cell, &v.u.i, 8); return value_is(v, TAG_INT);
  case QN_i32:
    i = (int32_t)v.u.i;
    memcpy(cell, &i, 4);
    return value_is(v, TAG_INT) && i == v.u.i;
  default: return false;
  }
}

/* ---- broadcast and strided operands --------------------------------------------------------------------------------- */

/* Axes of the result that matter, merged where all operands allow it: sizes, and strides per operand. */
typedef struct fast_nest {
  int rank;
  int64_t size[ARRAY_MAX_RANK], stride[2][ARRAY_MAX_RANK];
} fast_nest;

static int64_t stride_along(const qn_array *a, int rank, int axis) {
  int own = axis - (rank - a->rank);
  return own >= 0 && a->shape[own] != 1 ? a->strides[own] : 0;
}

/* The shape of the result; false if the operands do not broadcast. */
static bool broadcast_shape(const fast_op *f, int *rank, int64_t *shape, int64_t *total) {
  *rank = 0;
  for (int k = 0; k < f->nin; k++)
    if (f->a[k] && f->a[k]->rank > *rank) *rank = f->a[k]->rank;
  *total = 1;
  for (int i = 0; i < *rank; i++) {
    int64_t n = 1;
    for (int k = 0; k < f->nin; k++) {
      int own = f->a[k] ? i - (*rank - f->a[k]->rank) : -1;
      if (own < 0 || f->a[k]->shape[own] == 1) continue;
      if (n != 1 && f->a[k]->shape[own] != n) return false;
      n = f->a[k]->shape[own];
    }
    shape[i] = n;
    if (__builtin_mul_overflow(*total, n, total)) return false;
  }
  return true;
}

static void make_nest(const fast_op *f, int rank, const int64_t *shape, fast_nest *n) {
  n->rank = 0;
  for (int i = 0; i < rank; i++) {
    if (shape[i] == 1) continue;
    int64_t s[2] = {0, 0};
    bool joins = n->rank > 0;
    for (int k = 0; k < f->nin; k++) {
      if (f->a[k]) s[k] = stride_along(f->a[k], rank, i);
      joins = joins && n->stride[k][n->rank - 1] == s[k] * shape[i];
    }
    int at = joins ? n->rank - 1 : n->rank++;
    n->size[at] = joins ? n->size[at] * shape[i] : shape[i];
    for (int k = 0; k < 2; k++) n->stride[k][at] = s[k];
  }
  if (n->rank == 0) {
    n->rank = 1;
    n->size[0] = 1;
    n->stride[0][0] = n->stride[1][0] = 0;
  }
}

enum { BLOCK = 256 };

/* One row of the result: blocks of operands with odd strides are gathered first. */
static void run_row(const fast_op *f, const vm_loops *l, const fast_nest *n, const char *const *from, char *out,
                    size_t size, size_t out_size) {
  _Alignas(64) char gathered[2][BLOCK * 8];
  int64_t length = n->size[n->rank - 1];
  bool odd = false;
  for (int k = 0; k < f->nin; k++) odd |= f->a[k] && n->stride[k][n->rank - 1] != 0 && n->stride[k][n->rank - 1] != 1;
  int64_t step = odd ? BLOCK : length;
  for (int64_t i = 0; i < length; i += step) {
    int64_t m = length - i < step ? length - i : step;
    const void *operand[2] = {NULL, NULL};
    int mode = 0;
    for (int k = 0; k < f->nin; k++) {
      int64_t stride = f->a[k] ? n->stride[k][n->rank - 1] : 0;
      operand[k] = from[k];
      if (stride == 0) continue;
      mode |= k ? VM_B : VM_A;
      if (stride == 1) {
        operand[k] = from[k] + (size_t)i * size;
      } else {
        l->load[vm_size_class(size)](gathered[k], from[k] + i * stride * (int64_t)size, stride, m);
        operand[k] = gathered[k];
      }
    }
    f->fn(out + (size_t)i * out_size, operand[0], operand[1], NULL, mode, m);
  }
}

static void run_nest(const fast_op *f, const vm_loops *l, const fast_nest *n, char *out) {
  size_t size = dtype_size(f->compute), out_size = dtype_size(f->result);
  const char *from[2] = {NULL, NULL};
  for (int k = 0; k < f->nin; k++) from[k] = f->a[k] ? array_data(f->a[k]) : f->cell;
  int64_t index[ARRAY_MAX_RANK] = {0};
  for (;;) {
    run_row(f, l, n, from, out, size, out_size);
    out += (size_t)n->size[n->rank - 1] * out_size;
    int i = n->rank - 2;
    for (; i >= 0; i--) {
      for (int k = 0; k < f->nin; k++) from[k] += n->stride[k][i] * (int64_t)size;
      if (++index[i] < n->size[i]) break;
      for (int k = 0; k < f->nin; k++) from[k] -= n->stride[k][i] * n->size[i] * (int64_t)size;
      index[i] = 0;
    }
    if (i < 0) return;
  }
}

static qn_value run_spread(qn_vm *vm, const fast_op *f, const vm_loops *l) {
  int rank;
  int64_t shape[ARRAY_MAX_RANK], total;
  if (!broadcast_shape(f, &rank, shape, &total) || total > vm->tune[TUNE_par_grain]) return value_unset();
  qn_array *out = array_new(vm, f->result, rank, shape);
  if (!out) return value_error();
  if (out->size) {
    fast_nest n;
    make_nest(f, rank, shape, &n);
    run_nest(f, l, &n, array_data(out));
  }
  return value_obj(TAG_ARRAY, out);
}

/* ---- conversions ------------------------------------------------------------------------------------------------------ */

/* The loop of a conversion that cannot fail and is one step in kernels, too. */
static vm_fn cast_loop(const vm_loops *l, qn_dtype from, qn_dtype to) {
  bool half_from = from == QN_f16 || from == QN_bf16, half_to = to == QN_f16 || to == QN_bf16;
  if (half_from && to != QN_f32) return NULL;
  if (half_to && from != QN_f32 && from != QN_f64) return NULL;
  if (dtype_is_float(from) && dtype_is_int(to)) return NULL;
  return l->cast[from][to];
}

/* ---- what is fast ------------------------------------------------------------------------------------------------------ */

/* Does the op compute in dtype d, with this result, and without anything that can fail? */
static bool keeps_dtype(op_id op, qn_dtype d, qn_dtype *result) {
  bool real = d == QN_f32 || d == QN_f64, word = d == QN_i64 || d == QN_i32;
  *result = d;
  switch ((op_dtype_rule)op_rows[op].dtype_rule) {
  case DT_arith:
  case DT_arith_keep: return real || word;
  case DT_num: return real || (word && op_rows[op].raises == RAISES_never); /* // % ** of integers can fail */
  case DT_div:
  case DT_float:
  case DT_round: return real;
  case DT_bits: return word || d == QN_bool;
  case DT_compare: *result = QN_bool; return real || word || d == QN_bool;
  case DT_test: *result = QN_bool; return real;
  default: return false;
  }
}

static bool small(const qn_vm *vm, const qn_array *a) {
  return a->storage && !a->device && a->size <= vm->tune[TUNE_par_grain];
}

static inline bool same_shape(const qn_array *a, const qn_array *b) {
  return a->rank == b->rank && a->size == b->size && (a->rank <= 1 || shape_equal(a, b));
}

/* where(c, a, b): a mask and arrays of its shape, or one of them and a number. */
static qn_value fast_where(qn_vm *vm, const qn_value *in) {
  const qn_array *c = value_is(in[0], TAG_ARRAY) ? value_array(in[0]) : NULL;
  const qn_array *x = value_is(in[1], TAG_ARRAY)   ? value_array(in[1])
                      : value_is(in[2], TAG_ARRAY) ? value_array(in[2])
                                                   : NULL;
  if (!c || !x || c->dtype != QN_bool || !small(vm, c) || !c->contiguous) return value_unset();
  const vm_loops *l = cpu_loops(vm);
  if (!l) return value_error();
  qn_dtype d = (qn_dtype)x->dtype;
  if (d != QN_f32 && d != QN_f64 && d != QN_i64 && d != QN_i32) return value_unset();
  _Alignas(8) char cell[8];
  size_t size = dtype_size(d);
  const void *operand[3] = {c->storage->data + c->offset, NULL, NULL};
  int mode = VM_A;
  for (int i = 1; i < 3; i++) {
    if (value_is(in[i], TAG_ARRAY)) {
      const qn_array *a = value_array(in[i]);
      if (a->dtype != d || !a->storage || a->device || !a->contiguous || !same_shape(a, c)) return value_unset();
      operand[i] = a->storage->data + (size_t)a->offset * size;
      mode |= i == 1 ? VM_B : VM_C;
    } else if (value_is_scalar(in[i]) && scalar_fits(in[i], d, cell)) {
      operand[i] = cell;
    } else {
      return value_unset();
    }
  }
  qn_array *out = array_new(vm, d, c->rank, c->shape);
  if (!out) return value_error();
  if (out->size)
    l->select[vm_size_class(size)](out->storage->data, operand[0], operand[1], operand[2], mode, out->size);
  return value_obj(TAG_ARRAY, out);
}

static inline __attribute__((always_inline)) qn_value fast(qn_vm *vm, op_id op, const qn_value *in, int nin,
                                                           const op_attr *attr) {
  if (nin == 3) return op == OP_where ? fast_where(vm, in) : value_unset();
  const qn_array *x = value_is(in[0], TAG_ARRAY)               ? value_array(in[0])
                      : nin == 2 && value_is(in[1], TAG_ARRAY) ? value_array(in[1])
                                                               : NULL;
  if (!x || !small(vm, x)) return value_unset();
  const vm_loops *l = cpu_loops(vm);
  if (!l) return value_error();
  qn_dtype compute = (qn_dtype)x->dtype, result;
  vm_fn fn;
  if (op == OP_cast) {
    if (attr->flags & ATTR_WEAK || attr->dtype >= DTYPE_PUBLIC) return value_unset();
    result = (qn_dtype)attr->dtype;
    if (compute == result) return value_retain(in[0]);
    fn = cast_loop(l, compute, result);
  } else {
    op_body body = op_bodies[op];
    if (body.kind == BODY_NONE || !keeps_dtype(op, compute, &result)) return value_unset();
    fn = body.kind == BODY_KOP ? l->kop[body.which][compute] : l->math[body.which][compute];
  }
  if (!fn) return value_unset();
  _Alignas(8) char cell[8];
  const void *operand[2];
  int mode = 0;
  bool whole = x->contiguous; /* one loop over everything */
  for (int i = 0; i < nin; i++) {
    if (value_is(in[i], TAG_ARRAY)) {
      const qn_array *a = value_array(in[i]);
      if (a != x) {
        if (a->dtype != x->dtype || !small(vm, a)) return value_unset();
        whole = whole && a->contiguous && same_shape(a, x);
      }
      operand[i] = array_data(a);
      mode |= i ? VM_B : VM_A;
    } else if (value_is_scalar(in[i]) && scalar_fits(in[i], compute, cell)) {
      operand[i] = cell;
    } else {
      return value_unset();
    }
  }
  if (!whole) {
    fast_op f = {.fn = fn, .compute = compute, .result = result, .nin = nin, .cell = cell};
    for (int i = 0; i < nin; i++) f.a[i] = value_is(in[i], TAG_ARRAY) ? value_array(in[i]) : NULL;
    return run_spread(vm, &f, l);
  }
  qn_array *out = array_new(vm, result, x->rank, x->shape);
  if (!out) return value_error();
  if (x->size) fn(array_data(out), operand[0], nin == 2 ? operand[1] : NULL, NULL, mode, x->size);
  return value_obj(TAG_ARRAY, out);
}

qn_value eager_fast(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr) {
  qn_value out = fast(vm, op, in, nin, attr);
  return __builtin_expect(value_is(out, TAG_UNSET), 0) ? eager_slow(vm, op, in, nin, attr) : out;
}
