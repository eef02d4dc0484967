/* Random L programs with their data and what they must give: l_random.h makes the program, jit/ref/eval.h the right results. An
 * executor passes if case_end says nothing about what it left; case_run does it all for a VM of any settings. */
#ifndef TESTS_L_CASE_H
#define TESTS_L_CASE_H

#include <math.h>

#include "jit/cpu/cpu.h"
#include "jit/ref/eval.h"
#include "tests/unit/l_random.h"

enum { CASE_BUFFERS = 96 };

typedef struct l_case {
  uint64_t seed;
  l_program *p;
  rnd_info info;
  uint32_t n; /* buffers but scratch */
  uint8_t dtype[CASE_BUFFERS];
  void *start[CASE_BUFFERS], *want[CASE_BUFFERS];
  uint64_t error;
  int64_t *outer; /* what stands outside PARs, by instruction: numbers of instances and sizes */
} l_case;

static uint64_t noise_state;
static uint32_t noise(uint32_t n) {
  noise_state = noise_state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((noise_state >> 33) % n);
}

static double noise_float(bool wild) {
  static const double special[] = {0.0, -0.0, 1.0, -1.0, 1e300, 1e-40, 5e-324, 3e38, 123456.0, 1e20, -65504.0, 0.5};
  if (wild && noise(40) == 0) return noise(2) ? (double)NAN : noise(2) ? (double)INFINITY : -(double)INFINITY;
  if (wild && noise(12) == 0) return special[noise(12)];
  return ((double)noise(2000001) - 1000000.0) / (noise(3) ? 250000.0 : 1000.0);
}

/* `wild`: with infinities and NaNs. */
static void noise_fill(void *data, uint8_t dtype, int64_t n, bool wild) {
  for (int64_t i = 0; i < n; i++) {
    double d = noise_float(wild);
    float f = (float)d;
    uint64_t bits = (uint64_t)noise(1 << 30) << 34 ^ (uint64_t)noise(1 << 30) << 8 ^ noise(256);
    if (noise(3)) bits = (uint64_t)((int64_t)noise(200) - 60);
    switch (dtype) {
    case QN_bool: bits = noise(2); break;
    case QN_f32: memcpy(&bits, &f, 4); break;
    case QN_f64: memcpy(&bits, &d, 8); break;
    case QN_f16: bits = f64_to_f16(f); break;
    case QN_bf16: bits = f64_to_bf16(f); break;
    default: break;
    }
    ev_write((qn_dtype)dtype, data, i, bits);
  }
}

/* Equal bits; all NaNs count as one value. */
static bool same_value(uint8_t dtype, uint64_t x, uint64_t y) {
  if (x == y) return true;
  switch (dtype) {
  case QN_f16: return (x & 0x7fff) > 0x7c00 && (y & 0x7fff) > 0x7c00;
  case QN_bf16: return (x & 0x7fff) > 0x7f80 && (y & 0x7fff) > 0x7f80;
  case QN_f32: return (x & 0x7fffffff) > 0x7f800000 && (y & 0x7fffffff) > 0x7f800000;
  case QN_f64: return (x << 1) > 0xffe0000000000000u && (y << 1) > 0xffe0000000000000u;
  default: return false;
  }
}

static void case_show(const l_case *c) {
  text_buf t = {0};
  l_print(c->p, &t);
  fwrite(t.text, 1, t.len, stderr);
  text_free(&t);
}

/* Ends the test: there is nothing to compare. */
static void case_need(bool ok, uint64_t seed, const char *why) {
  if (ok) return;
  fprintf(stderr, "program %llu: %s\n", (unsigned long long)seed, why);
  abort();
}

/* A program, which the case takes over, with random data. */
static void case_of(l_case *c, l_program *p, rnd_info info, uint64_t seed) {
  char why[256] = "";
  *c = (l_case){.seed = seed, .p = p, .info = info, .error = ~0ull};
  if (!l_verify(c->p, why, sizeof why)) {
    case_show(c);
    case_need(false, seed, why);
  }
  int64_t sizes[CASE_BUFFERS];
  noise_state = seed;
  for (uint32_t b = 0; b < c->p->nbuffers; b++) {
    if (c->p->buffers[b].mode == BUF_SCRATCH) continue;
    c->dtype[c->n] = c->p->buffers[b].dtype;
    sizes[c->n] = info.elements;
    size_t bytes = (size_t)info.elements * dtype_size((qn_dtype)c->dtype[c->n]);
    c->start[c->n] = calloc(1, bytes + 64);
    c->want[c->n] = calloc(1, bytes + 64);
    noise_fill(c->start[c->n], c->dtype[c->n], info.elements, seed % 2 != 0);
    memcpy(c->want[c->n], c->start[c->n], bytes);
    c->n++;
  }
  case_need((c->outer = calloc(p->n, sizeof *c->outer)) != NULL, seed, "no memory");
  const l_eval_options o = {.why = why, .why_size = sizeof why, .values = c->outer};
  bool known = l_eval(c->p, c->want, sizes, info.ints, info.scalars, &o, &c->error) == L_EVAL_DONE;
  case_need(known, seed, why);
}

static inline void case_open(l_case *c, uint64_t seed) {
  rnd_info info;
  l_program *p = rnd_program(seed, &info);
  case_of(c, p, info, seed);
}

static void case_close(l_case *c) {
  for (uint32_t b = 0; b < c->n; b++) {
    free(c->start[b]);
    free(c->want[b]);
  }
  free(c->outer);
  l_free(c->p);
}

/* A copy of the buffers for an executor, and what it must leave in them: `why` is empty, or says what differs. Frees them. */
static void case_begin(const l_case *c, void *ours[CASE_BUFFERS]) {
  for (uint32_t b = 0; b < c->n; b++) {
    size_t bytes = (size_t)c->info.elements * dtype_size((qn_dtype)c->dtype[b]);
    ours[b] = calloc(1, bytes + 64);
    memcpy(ours[b], c->start[b], bytes);
  }
}

static void case_end(const l_case *c, void *ours[CASE_BUFFERS], uint64_t error, char *why, size_t size) {
  why[0] = 0;
  if (error != c->error)
    snprintf(why, size, "error cell %llx, not %llx", (unsigned long long)error, (unsigned long long)c->error);
  for (uint32_t b = 0; b < c->n; b++) { /* after a failed check what was stored is thrown away */
    for (int64_t i = 0; i < c->info.elements && !why[0] && c->error == ~0ull; i++) {
      uint64_t x = ev_read((qn_dtype)c->dtype[b], ours[b], i), y = ev_read((qn_dtype)c->dtype[b], c->want[b], i);
      if (!same_value(c->dtype[b], x, y))
        snprintf(why, size, "buffer %u (without scratch) [%lld]: %llx, not %llx", b, (long long)i,
                 (unsigned long long)x, (unsigned long long)y);
    }
    free(ours[b]);
  }
}

/* Runs the program with code of the VM (`loops`) or compiled code, and compares. */
static inline void case_run(const l_case *c, const bvm_loops *loops, const qk_phase *compiled, int64_t block,
                            int threads, char *why, size_t size) {
  void *ours[CASE_BUFFERS];
  case_begin(c, ours);
  qn_config config;
  qn_config_init(&config);
  config.threads = threads;
  qn_vm *vm = vm_open(&config);
  case_need(vm && cpu_open(vm), c->seed, "no VM");
  vm->tune[TUNE_vm_block] = block;
  if (threads > 1) vm->tune[TUNE_par_grain] = 1;
  void *code = bvm_code_make(c->p, loops);
  case_need(code != NULL, c->seed, "no code");
  kernel_failure f;
  bool ok = kernel_launch(vm, c->p, &code, compiled, ours, c->info.ints, c->info.scalars, &f);
  case_need(!error_pending(vm) && ok == (f.error == ~0ull), c->seed, "no result");
  bvm_code_free(code);
  cpu_close(vm);
  vm_close(vm);
  case_end(c, ours, f.error, why, size);
}

#endif
