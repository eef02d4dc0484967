/* The fast path of eager dispatch (eager.c): few random numbers, without a kernel.
 *
 * The block VM's loops make them (vm_loops.draw), and their bits are those of the kernel. Arrays of keys, devices and many numbers are
 * left to the slow way.
 */
#include "jit/cpu/cpu.h"
#include "jit/cpu/eager.h"

enum { MOST = 1024 };
_Static_assert(OP_random_uniform == OP_random_bits + 1 && OP_random_normal == OP_random_bits + 2,
               "vm_loops.draw has the RANDOM ops in their order");

qn_value eager_draw(qn_vm *vm, op_id op, const eager_drawing *d) {
  uint64_t n = 1;
  for (int i = 0, rank = d->rank; i < rank; i++) {
    if ((uint64_t)d->shape[i] > MOST) return value_unset();
    n *= (uint64_t)d->shape[i];
    if (n > MOST) return value_unset();
  }
  const vm_loops *l = cpu_loops(vm);
  if (!l) return value_error();
  void (*make)(void *, const uint64_t *, uint64_t) = l->draw[op - OP_random_bits][d->dtype];
  if (vm->device || !n || !make) return value_unset();
  qn_array *out = array_new(vm, d->dtype, d->rank, d->shape);
  if (!out) return value_error();
  if (d->dtype == QN_f16 || d->dtype == QN_bf16) {
    float wide[MOST];
    make(wide, d->words, n);
    l->cast[QN_f32][d->dtype](out->storage->data, wide, NULL, NULL, VM_A, (int64_t)n);
  } else {
    make(out->storage->data, d->words, n);
  }
  return value_obj(TAG_ARRAY, out);
}

qn_value eager_fast_draw(qn_vm *vm, op_id op, const qn_value *in, const op_attr *attr) {
  eager_drawing d = {.dtype = (qn_dtype)attr->dtype, .rank = attr->n};
  for (int i = 0; i < 3; i++) {
    if (in[i].head != TAG_INT) return value_unset();
    d.words[i] = (uint64_t)in[i].u.i;
  }
  for (int i = 0; i < d.rank; i++) d.shape[i] = attr->d[i];
  return eager_draw(vm, op, &d);
}
