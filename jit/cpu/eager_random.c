/* The fast path of eager dispatch (eager.c): few random numbers, without a kernel.
 *
 * The words are the block VM's (vm_loops.philox), and what is made of them follows lower_ops.c step by step: all steps of uniform
 * numbers are exact, those of normal ones round once each, by the machine's arithmetic or by the loops of log and cos. So the bits are
 * those of the kernel. Arrays of keys, devices and many numbers are left to the slow way.
 */
#include <string.h>

#include "jit/cpu/cpu.h"
#include "jit/cpu/eager.h"

enum { MOST = 256 };

static inline uint64_t joined(uint32_t (*w)[VM_WORDS], int i) { return w[0][i] | (uint64_t)w[1][i] << 32; }

/* All of these make VM_WORDS numbers. */

/* The top `bits` of 64, at most 24, as a fraction. */
static inline void fractions(uint32_t (*w)[VM_WORDS], int bits, float *out) {
  float unit = bits == 24 ? 0x1p-24f : bits == 11 ? 0x1p-11f : 0x1p-8f;
  for (int i = 0; i < VM_WORDS; i++) out[i] = (float)(int32_t)(w[1][i] >> (32 - bits)) * unit;
}

static void fractions_f64(uint32_t (*w)[VM_WORDS], double *out) {
  for (int i = 0; i < VM_WORDS; i++) out[i] = (double)(int64_t)(joined(w, i) >> 11) * 0x1p-53;
}

static void normal(const vm_loops *l, uint32_t (*w)[VM_WORDS], float *out) {
  float angle[VM_WORDS];
  for (int i = 0; i < VM_WORDS; i++) {
    out[i] = (float)(int64_t)((uint64_t)w[0][i] + 1) * 0x1p-32f;
    angle[i] = (float)(int32_t)(w[1][i] >> 8) * 0x1p-24f * (float)6.283185307179586476925286766559;
  }
  l->math[MATH_log][QN_f32](out, out, NULL, NULL, VM_A, VM_WORDS);
  for (int i = 0; i < VM_WORDS; i++) out[i] *= -2.0f;
  l->kop[KOP_sqrt][QN_f32](out, out, NULL, NULL, VM_A, VM_WORDS);
  l->math[MATH_cos][QN_f32](angle, angle, NULL, NULL, VM_A, VM_WORDS);
  for (int i = 0; i < VM_WORDS; i++) out[i] *= angle[i];
}

static void normal_f64(const vm_loops *l, uint32_t (*w)[VM_WORDS], double *out) {
  double angle[VM_WORDS];
  for (int i = 0; i < VM_WORDS; i++) {
    uint64_t more = w[2][i] | (uint64_t)w[3][i] << 32;
    out[i] = (double)(int64_t)((joined(w, i) >> 11) + 1) * 0x1p-53;
    angle[i] = (double)(int64_t)(more >> 11) * 0x1p-53 * 6.283185307179586476925286766559;
  }
  l->math[MATH_log][QN_f64](out, out, NULL, NULL, VM_A, VM_WORDS);
  for (int i = 0; i < VM_WORDS; i++) out[i] *= -2.0;
  l->kop[KOP_sqrt][QN_f64](out, out, NULL, NULL, VM_A, VM_WORDS);
  l->math[MATH_cos][QN_f64](angle, angle, NULL, NULL, VM_A, VM_WORDS);
  for (int i = 0; i < VM_WORDS; i++) out[i] *= angle[i];
}

qn_value eager_draw(qn_vm *vm, op_id op, qn_dtype d, int rank, const int64_t *shape, const uint64_t words[3]) {
  uint64_t n = 1;
  if (vm->device || rank > ARRAY_MAX_RANK) return value_unset();
  for (int i = 0; i < rank; i++) {
    if ((uint64_t)shape[i] > MOST) return value_unset();
    n *= (uint64_t)shape[i];
  }
  if (n - 1 >= MOST || (op == OP_random_bits ? d != QN_i64 : !dtype_is_float(d))) return value_unset();
  const vm_loops *l = cpu_loops(vm);
  if (!l) return value_error();
  qn_array *out = array_new(vm, d, rank, shape);
  if (!out) return value_error();
  const uint32_t key[2] = {(uint32_t)words[0], (uint32_t)words[1]};
  size_t size = dtype_size(d), left = n * size;
  char *to = out->storage->data;
  for (uint64_t at = 0; at < n; at += VM_WORDS) {
    uint32_t w[4][VM_WORDS];
    union {
      uint64_t bits[VM_WORDS];
      double wide[VM_WORDS];
      float narrow[VM_WORDS];
    } made;
    l->philox(w, key, at, words[2]);
    if (op == OP_random_bits)
      for (int i = 0; i < VM_WORDS; i++) made.bits[i] = joined(w, i);
    else if (d == QN_f64)
      op == OP_random_uniform ? fractions_f64(w, made.wide) : normal_f64(l, w, made.wide);
    else if (op == OP_random_uniform)
      fractions(w, d == QN_f32 ? 24 : d == QN_f16 ? 11 : 8, made.narrow);
    else
      normal(l, w, made.narrow);
    if (d == QN_f16 || d == QN_bf16) {
      uint16_t half[VM_WORDS];
      l->cast[QN_f32][d](half, made.narrow, NULL, NULL, VM_A, VM_WORDS);
      memcpy(&made, half, sizeof half);
    }
    size_t some = left < VM_WORDS * size ? left : VM_WORDS * size;
    if (some == 16) /* the common ones without a call */
      memcpy(to, &made, 16);
    else
      memcpy(to, &made, some);
    to += some, left -= some;
  }
  return value_obj(TAG_ARRAY, out);
}

qn_value eager_fast_draw(qn_vm *vm, op_id op, const qn_value *in, const op_attr *attr) {
  uint64_t words[3];
  for (int i = 0; i < 3; i++) {
    if (in[i].head != TAG_INT) return value_unset();
    words[i] = (uint64_t)in[i].u.i;
  }
  return eager_draw(vm, op, (qn_dtype)attr->dtype, attr->n, attr->d, words);
}
