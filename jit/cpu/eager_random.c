/* The fast path of eager dispatch (eager.c): few random numbers, without a kernel.
 *
 * The block VM's loops make them (vm_loops.draw), and their bits are those of the kernel. Arrays of keys, devices and many numbers are
 * left to the slow way.
 */
#include "jit/cpu/eager_random.h"

#include "jit/cpu/eager.h"

_Static_assert(OP_random_uniform == OP_random_bits + 1 && OP_random_normal == OP_random_bits + 2,
               "vm_loops.draw has the RANDOM ops in their order");

void eager_draw_rounded(const vm_loops *l, op_id op, const eager_drawing *d, void *out) {
  float wide[DRAW_FEW];
  l->draw[op - OP_random_bits][d->dtype](wide, d->words, d->n);
  l->cast[QN_f32][d->dtype](out, wide, NULL, NULL, VM_A, (int64_t)d->n);
}

qn_value eager_fast_draw(qn_vm *vm, op_id op, const qn_value *in, const op_attr *attr) {
  eager_drawing d = {.dtype = (qn_dtype)attr->dtype, .rank = attr->n};
  if (op == OP_random_bits ? d.dtype != QN_i64 : !dtype_is_float(d.dtype)) return value_unset();
  for (int i = 0; i < 3; i++) {
    if (in[i].head != TAG_INT) return value_unset();
    d.words[i] = (uint64_t)in[i].u.i;
  }
  for (int i = 0; i < d.rank; i++) d.shape[i] = attr->d[i];
  d.n = drawing_size(&d);
  return eager_draw(vm, op, &d);
}
