/* Matrix products on a device by its library (gemm.h).
 *
 * An operand is one matrix or a batch of them, without gaps: each matrix in row-major order, or (`across`) the transpose of each. Other
 * layouts are copied. Across is chosen where the elements of columns are neighbours in memory, as in x.T, and the operand is no vector.
 * The batch is that of the result, or one matrix for all; if it broadcasts in another way it is copied in full. Many matrices times one
 * are one product of all their rows.
 *
 * The signature (device_gemm) follows from shapes and flags alone. Operands whose address is no multiple of 16 are copied, so addresses do not
 * belong to it.
 *
 * Products of few multiplications (gpu.small) are our own kernels' (on an H200: a loop of 1,024 turns of an LSTM of 32 units, 7.1 ms turn by turn, is one
 * kernel that takes 2.6).
 */
#include "jit/run/gemm.h"

#include <string.h>

enum { ALIGNMENT = 16 };

/* The sizes of a product. */
typedef struct product_sizes {
  int rank; /* of the batch */
  int64_t batch[ARRAY_MAX_RANK], total, m, n, k;
  bool spread[2]; /* the operand's batch has several matrices, but not all */
  bool one[2];    /* it is one matrix for all */
} product_sizes;

/* How many matrices an array has. */
static int64_t leading(int rank, const int64_t *shape) {
  int64_t n = 1;
  for (int i = 0; i < rank - 2; i++) n *= shape[i];
  return n;
}

/* Finds the sizes. `stored`: the operands are those of OP_gemm, stored as the flags say; else they are those of OP_dot. */
static void sizes_of(const qn_array *const in[2], bool stored, uint8_t flags, product_sizes *s) {
  int most = in[0]->rank > in[1]->rank ? in[0]->rank : in[1]->rank;
  int64_t rows[2], columns[2];
  *s = (product_sizes){.rank = most > 2 ? most - 2 : 0, .total = 1};
  for (int k = 0; k < s->rank; k++) s->batch[k] = 1;
  for (int i = 0; i < 2; i++) {
    const qn_array *a = in[i];
    bool across = stored && (flags & (i ? ATTR_Y_ACROSS : ATTR_X_ACROSS));
    int64_t last = a->rank ? a->shape[a->rank - 1] : 1, other = a->rank > 1 ? a->shape[a->rank - 2] : 1;
    bool column = a->rank == 1 && i == 1; /* a vector on the right */
    rows[i] = across || column ? last : other;
    columns[i] = across || column ? other : last;
    for (int k = 0; k < a->rank - 2; k++)
      if (a->shape[k] != 1) s->batch[s->rank - (a->rank - 2) + k] = a->shape[k];
  }
  s->m = rows[0];
  s->k = columns[0];
  s->n = columns[1];
  for (int k = 0; k < s->rank; k++) s->total *= s->batch[k];
  for (int i = 0; i < 2; i++) {
    int64_t own = leading(in[i]->rank, in[i]->shape);
    s->one[i] = own == 1;
    s->spread[i] = own != 1 && own != s->total;
  }
}

static device_gemm signature_of(const product_sizes *s, uint8_t dtype, uint8_t flags) {
  device_gemm p = {.dtype = dtype,
                   .x_across = (flags & ATTR_X_ACROSS) != 0,
                   .y_across = (flags & ATTR_Y_ACROSS) != 0,
                   .batch = s->total,
                   .m = s->m,
                   .n = s->n,
                   .k = s->k};
  if (p.batch > 1 && s->one[1] && !s->one[0] && !p.x_across) {
    p.m *= p.batch;
    p.batch = 1;
  }
  if (p.batch > 1) {
    p.x_step = s->one[0] ? 0 : p.m * p.k;
    p.y_step = s->one[1] ? 0 : p.k * p.n;
  }
  return p;
}

/* Are the elements of its columns neighbours in memory? */
static bool runs_across(const qn_array *a) {
  int r = a->rank;
  return r > 1 && a->shape[r - 2] > 1 && a->shape[r - 1] > 1 && a->strides[r - 2] == 1 && a->strides[r - 1] != 1;
}

/* A library's call costs more than a small product, and no kernel can be one with it: a loop's body that has one is no part of a kernel. Long chains are
 * left to the library, which cuts them. */
static bool are_small(const qn_vm *vm, const product_sizes *s, uint8_t dtype) {
  int64_t n = s->total;
  return (dtype == QN_f32 || dtype == QN_f64) && s->k <= GEMM_CHAIN && !__builtin_mul_overflow(n, s->m, &n) &&
         !__builtin_mul_overflow(n, s->n, &n) && !__builtin_mul_overflow(n, s->k, &n) && n <= vm->tune[TUNE_gpu_small];
}

bool gemm_is_small(const qn_vm *vm, const qn_array *x, const qn_array *y) {
  const qn_array *const in[2] = {x, y};
  product_sizes s;
  sizes_of(in, false, 0, &s);
  return are_small(vm, &s, x->dtype);
}

uint8_t gemm_flags(qn_vm *vm, const qn_array *x, const qn_array *y) {
  const qn_array *const in[2] = {x, y};
  product_sizes s;
  if (!x->device || !dtype_is_float((qn_dtype)x->dtype) || dot_is_sum(x->rank, y->rank)) return 0;
  uint8_t flags = ATTR_LIBRARY;
  if (runs_across(x)) flags |= ATTR_X_ACROSS;
  if (runs_across(y)) flags |= ATTR_Y_ACROSS;
  sizes_of(in, false, flags, &s);
  if (s.total < 1 || s.m < 1 || s.n < 1 || s.k < 1 || are_small(vm, &s, x->dtype)) return 0;
  device_gemm p = signature_of(&s, x->dtype, flags);
  const device_kernels *d = device_kernels_of(x->device);
  return d->has_gemm && d->has_gemm(vm, x->device, &p) ? flags : 0;
}

bool gemm_signature(const qn_array *x, const qn_array *y, uint8_t flags, device_gemm *p) {
  const qn_array *const in[2] = {x, y};
  product_sizes s;
  sizes_of(in, true, flags, &s);
  *p = signature_of(&s, x->dtype, flags);
  return s.total < 1 || s.m < 1 || s.n < 1 || (s.k > 0 && !s.spread[0] && !s.spread[1]);
}

/* ---- operands -------------------------------------------------------------------------------------------------------- */

qn_array *gemm_operand(qn_vm *vm, qn_array *a, bool across) {
  int64_t shape[ARRAY_MAX_RANK], strides[ARRAY_MAX_RANK];
  int r = a->rank;
  if (!across || r < 2) {
    a->head.refs++;
    return a;
  }
  memcpy(shape, a->shape, sizeof shape);
  memcpy(strides, a->strides, sizeof strides);
  shape[r - 1] = a->shape[r - 2];
  shape[r - 2] = a->shape[r - 1];
  strides[r - 1] = a->strides[r - 2];
  strides[r - 2] = a->strides[r - 1];
  return array_view(vm, a, (qn_dtype)a->dtype, r, shape, strides, a->offset);
}

/* A view of the operand with all batch axes of the product; the caller owns it. */
static qn_array *spread(qn_vm *vm, const product_sizes *s, const qn_array *a) {
  int64_t shape[ARRAY_MAX_RANK], strides[ARRAY_MAX_RANK];
  int rank = s->rank + 2;
  for (int i = 0; i < rank; i++) {
    int own = i - (rank - a->rank);
    shape[i] = i < s->rank ? s->batch[i] : a->shape[own];
    strides[i] = own >= 0 && a->shape[own] != 1 ? a->strides[own] : 0;
  }
  return array_view(vm, a, (qn_dtype)a->dtype, rank, shape, strides, a->offset);
}

/* The array, or a copy of it, without gaps and at an address that the library takes. Takes `a` over; NULL gives NULL. */
static qn_array *settled(qn_vm *vm, qn_array *a) {
  if (!a || (a->contiguous && (uintptr_t)array_data(a) % ALIGNMENT == 0)) return a;
  qn_array *copy = array_new_on(vm, a->device, (qn_dtype)a->dtype, a->rank, a->shape);
  if (copy && !array_copy_on(vm, copy, a)) {
    array_drop(vm, copy);
    copy = NULL;
  }
  array_drop(vm, a);
  return copy;
}

/* ---- the door ---------------------------------------------------------------------------------------------------------- */

/* Makes the product of operands that are stored as the flags say. False: *refused by the device, or with an error raised. */
static bool run(qn_vm *vm, qn_array *x, qn_array *y, const product_sizes *s, uint8_t flags, qn_array *out,
                bool *refused) {
  device_gemm p = signature_of(s, x->dtype, flags);
  void *buffers[3] = {array_data(x), array_data(y), array_data(out)};
  device_answer answer = device_kernels_of(x->device)->product(vm, x->device, &p, buffers);
  *refused = answer == DEVICE_REFUSES;
  return answer == DEVICE_DONE;
}

bool gemm_stored(qn_vm *vm, qn_array *x, qn_array *y, uint8_t flags, qn_array *out, bool *refused) {
  const qn_array *const in[2] = {x, y};
  product_sizes s;
  *refused = false;
  sizes_of(in, true, flags, &s);
  if (out->size == 0) return true;
  *refused = s.k < 1 || s.spread[0] || s.spread[1];
  if (*refused) return false;
  x->head.refs++;
  y->head.refs++;
  x = settled(vm, x);
  y = settled(vm, y);
  bool ok = x && y && run(vm, x, y, &s, flags, out, refused);
  array_drop(vm, x);
  array_drop(vm, y);
  return ok;
}

qn_array *gemm_apply(qn_vm *vm, qn_array *x, qn_array *y, uint8_t flags, bool *refused) {
  const qn_array *const in[2] = {x, y};
  qn_array *stored[2] = {NULL, NULL}, *out = NULL;
  int64_t shape[ARRAY_MAX_RANK];
  product_sizes s;
  *refused = false;
  sizes_of(in, false, flags, &s);
  int rank = s.rank;
  memcpy(shape, s.batch, sizeof shape);
  if (x->rank > 1) shape[rank++] = s.m;
  if (y->rank > 1) shape[rank++] = s.n;
  bool ok = true;
  for (int i = 0; i < 2 && ok; i++) {
    qn_array *a = (qn_array *)in[i], *wide = s.spread[i] ? spread(vm, &s, a) : a;
    if (wide) stored[i] = settled(vm, gemm_operand(vm, wide, (flags & (i ? ATTR_Y_ACROSS : ATTR_X_ACROSS)) != 0));
    if (wide && wide != a) array_drop(vm, wide);
    ok = stored[i] != NULL;
  }
  if (ok && (out = array_new_on(vm, x->device, (qn_dtype)x->dtype, rank, shape)) &&
      !run(vm, stored[0], stored[1], &s, flags, out, refused)) {
    array_drop(vm, out);
    out = NULL;
  }
  for (int i = 0; i < 2; i++) array_drop(vm, stored[i]);
  return out;
}
