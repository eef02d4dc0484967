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

static uint64_t joined(uint32_t (*w)[VM_WORDS], int i) { return w[0][i] | (uint64_t)w[1][i] << 32; }

static void bits_of(uint32_t (*w)[VM_WORDS], int n, uint64_t *out) {
  for (int i = 0; i < n; i++) out[i] = joined(w, i);
}

/* The top `bits` of 64 as a fraction, in f32 for at most 24. */
static void fractions(uint32_t (*w)[VM_WORDS], int n, int bits, float *out) {
  float unit = bits == 24 ? 0x1p-24f : bits == 11 ? 0x1p-11f : 0x1p-8f;
  for (int i = 0; i < n; i++) out[i] = (float)(int32_t)(w[1][i] >> (32 - bits)) * unit;
}

static void fractions_f64(uint32_t (*w)[VM_WORDS], int n, double *out) {
  for (int i = 0; i < n; i++) out[i] = (double)(int64_t)(joined(w, i) >> 11) * 0x1p-53;
}

static void normal(const vm_loops *l, uint32_t (*w)[VM_WORDS], int n, float *out) {
  float u[VM_WORDS], angle[VM_WORDS];
  for (int i = 0; i < n; i++) u[i] = (float)(int64_t)((uint64_t)w[0][i] + 1) * 0x1p-32f;
  for (int i = 0; i < n; i++)
    angle[i] = (float)(int32_t)(w[1][i] >> 8) * 0x1p-24f * (float)6.283185307179586476925286766559;
  l->math[MATH_log][QN_f32](u, u, NULL, NULL, VM_A, n);
  for (int i = 0; i < n; i++) u[i] *= -2.0f;
  l->kop[KOP_sqrt][QN_f32](u, u, NULL, NULL, VM_A, n);
  l->math[MATH_cos][QN_f32](angle, angle, NULL, NULL, VM_A, n);
  for (int i = 0; i < n; i++) out[i] = u[i] * angle[i];
}

static void normal_f64(const vm_loops *l, uint32_t (*w)[VM_WORDS], int n, double *out) {
  double u[VM_WORDS], angle[VM_WORDS];
  for (int i = 0; i < n; i++) {
    uint64_t more = w[2][i] | (uint64_t)w[3][i] << 32;
    u[i] = (double)(int64_t)((joined(w, i) >> 11) + 1) * 0x1p-53;
    angle[i] = (double)(int64_t)(more >> 11) * 0x1p-53 * 6.283185307179586476925286766559;
  }
  l->math[MATH_log][QN_f64](u, u, NULL, NULL, VM_A, n);
  for (int i = 0; i < n; i++) u[i] *= -2.0;
  l->kop[KOP_sqrt][QN_f64](u, u, NULL, NULL, VM_A, n);
  l->math[MATH_cos][QN_f64](angle, angle, NULL, NULL, VM_A, n);
  for (int i = 0; i < n; i++) out[i] = u[i] * angle[i];
}

qn_value eager_fast_draw(qn_vm *vm, op_id op, const qn_value *in, const op_attr *attr) {
  uint64_t n = 1;
  qn_dtype d = (qn_dtype)attr->dtype;
  if (vm->device) return value_unset();
  for (int i = 0; i < 3; i++)
    if (in[i].head != TAG_INT) return value_unset();
  for (int i = 0; i < attr->n; i++) {
    if ((uint64_t)attr->d[i] > MOST) return value_unset();
    n *= (uint64_t)attr->d[i];
  }
  if (n - 1 >= MOST || attr->n > ARRAY_MAX_RANK) return value_unset();
  if (op == OP_random_bits ? d != QN_i64 : !dtype_is_float(d)) return value_unset();
  const vm_loops *l = cpu_loops(vm);
  if (!l) return value_error();
  qn_array *out = array_new(vm, d, attr->n, attr->d);
  if (!out) return value_error();
  size_t size = dtype_size(d);
  const uint32_t key[2] = {(uint32_t)in[0].u.i, (uint32_t)in[1].u.i};
  char *to = out->storage->data;
  for (uint64_t at = 0; at < n; at += VM_WORDS, to += VM_WORDS * size) {
    int count = n - at < VM_WORDS ? (int)(n - at) : VM_WORDS;
    uint32_t w[4][VM_WORDS];
    float narrow[VM_WORDS], *into = d == QN_f32 ? (float *)(void *)to : narrow;
    l->philox(w, key, at, (uint64_t)in[2].u.i);
    if (op == OP_random_bits)
      bits_of(w, count, (uint64_t *)(void *)to);
    else if (d == QN_f64)
      op == OP_random_uniform ? fractions_f64(w, count, (double *)(void *)to)
                              : normal_f64(l, w, count, (double *)(void *)to);
    else if (op == OP_random_uniform)
      fractions(w, count, d == QN_f32 ? 24 : d == QN_f16 ? 11 : 8, into);
    else
      normal(l, w, count, into);
    if (d == QN_f16 || d == QN_bf16) l->cast[QN_f32][d](to, narrow, NULL, NULL, VM_A, count);
  }
  return value_obj(TAG_ARRAY, out);
}
