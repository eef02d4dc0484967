/* Random numbers at once, outside of recordings (eager_random.c). */
#ifndef JIT_CPU_EAGER_RANDOM_H
#define JIT_CPU_EAGER_RANDOM_H

#include "jit/cpu/cpu.h"
#include "jit/cpu/block_vm_loops.h"
#include "lang/vm.h"

enum { DRAW_FEW = 1024 };
#define DRAW_MOST ((uint64_t)1 << 48) /* and more are no array's */

/* What is drawn: n is the product of the shape. */
typedef struct eager_drawing {
  qn_dtype dtype;
  int rank;
  uint64_t n, words[3]; /* those of the key, and the draw number */
  uint64_t values;      /* of bits: 0, or as bvm_loops.below takes them; then dtype is any of integers */
  int64_t low;
  int64_t shape[ARRAY_MAX_RANK];
} eager_drawing;

static inline uint64_t drawing_size(const eager_drawing *d) {
  uint64_t n = 1;
  for (int i = 0; i < d->rank; i++) n *= (uint64_t)d->shape[i];
  return n;
}

/* Numbers of any dtype from the one numbered `first` on, n of them; of a dtype that is rounded, and of integers, at most DRAW_FEW. */
void eager_draw_some(const bvm_loops *l, op_id op, const eager_drawing *d, void *out, uint64_t first, uint64_t n);
/* Fills an array, in pieces that threads share. False with an error raised. */
QN_MUST_CHECK bool eager_draw_many(qn_vm *vm, op_id op, const eager_drawing *d, void *out);

/* The op has the dtype, or it draws bits for integers below d->values, which nobody else has to fill in. Unset: not here, the
 * slow way does it. */
QN_MUST_CHECK static inline __attribute__((always_inline)) qn_value eager_draw(qn_vm *vm, op_id op, eager_drawing *d,
                                                                               bool below) {
  const bvm_loops *l = cpu_loops(vm);
  if (__builtin_expect(!l, 0)) return value_error();
  qn_dtype dtype = d->dtype;
  if (vm->device || d->n - 1 >= DRAW_MOST) return value_unset();
  qn_array *out = array_new(vm, dtype, d->rank, d->shape);
  if (__builtin_expect(!out, 0)) return value_error();
  if (d->n > DRAW_FEW) {
    if (!below) d->values = 0;
    if (eager_draw_many(vm, op, d, out->storage->data)) return value_obj(TAG_ARRAY, out);
    value_release(vm, value_obj(TAG_ARRAY, out));
    return value_error();
  }
  if (dtype == QN_f16 || dtype == QN_bf16 || (below && dtype != QN_i64)) {
    if (!below) d->values = 0;
    eager_draw_some(l, op, d, out->storage->data, 0, d->n);
  } else {
    l->draw[op - OP_random_bits][dtype](out->storage->data, d->words, 0, d->n);
    if (below) l->below(out->storage->data, d->values, d->low, d->n);
  }
  return value_obj(TAG_ARRAY, out);
}

#endif
