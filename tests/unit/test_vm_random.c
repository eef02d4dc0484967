/* Random L programs, which use every construct, on the block VM: the same bits as the reference gives (l_reference.h), for every
 * instruction set of this processor, several block sizes and numbers of threads. QN_TEST_PROGRAMS=1000 runs more of them,
 * QN_TEST_FIRST says where to begin. */
#include "jit/cpu/cpu.h"
#include "tests/unit/lang.h"
#include "tests/unit/l_random.h"
#include "tests/unit/l_reference.h"

enum { BUFFERS_MAX = 96 };

static uint64_t noise_state;
static uint32_t noise(uint32_t n) {
  noise_state = noise_state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((noise_state >> 33) % n);
}

static double noise_float(bool wild) {
  static const double special[] = {0.0, -0.0, 1.0, -1.0, 1e300, 1e-40, 5e-324, 3e38, 123456.0, 1e20, -65504.0, 0.5};
  if (wild && noise(40) == 0) return noise(2) ? (double)NAN64 : noise(2) ? (double)INF64 : -(double)INF64;
  if (wild && noise(12) == 0) return special[noise(12)];
  return ((double)noise(2000001) - 1000000.0) / (noise(3) ? 250000.0 : 1000.0);
}

static void fill(void *data, uint8_t dtype, int64_t n, bool wild) {
  for (int64_t i = 0; i < n; i++) {
    char *to = (char *)data + i * (int64_t)dtype_size((qn_dtype)dtype);
    double d = noise_float(wild);
    float f = (float)d;
    uint64_t bits = (uint64_t)noise(1 << 30) << 34 ^ (uint64_t)noise(1 << 30) << 8 ^ noise(256);
    if (noise(3)) bits = (uint64_t)((int64_t)noise(200) - 60);
    ref_bits single = 0;
    memcpy(&single, &f, 4);
    switch (dtype) {
    case QN_bool: bits = noise(2); break;
    case QN_f32: bits = single; break;
    case QN_f64: memcpy(&bits, &d, 8); break;
    case QN_f16:
    case QN_bf16: bits = ref_cast(QN_f32, dtype, single); break;
    default: break;
    }
    memcpy(to, &bits, dtype_size((qn_dtype)dtype));
  }
}

/* Equal bits; all NaNs count as one value. */
static bool same(uint8_t dtype, const void *a, const void *b) {
  ref_bits x = ref_read(a, dtype), y = ref_read(b, dtype);
  if (x == y) return true;
  switch (dtype) {
  case QN_f16: return (x & 0x7fff) > 0x7c00 && (y & 0x7fff) > 0x7c00;
  case QN_bf16: return (x & 0x7fff) > 0x7f80 && (y & 0x7fff) > 0x7f80;
  case QN_f32: return (x & 0x7fffffff) > 0x7f800000 && (y & 0x7fffffff) > 0x7f800000;
  case QN_f64: return (x << 1) > 0xffe0000000000000u && (y << 1) > 0xffe0000000000000u;
  default: return false;
  }
}

/* Runs the program on the VM, and compares with what the reference left in `want`. */
static void compare(const l_program *p, const rnd_info *info, void *const *start, void *const *want,
                    uint64_t want_error, const vm_loops *loops, int64_t block, int threads, char *why, size_t size) {
  void *ours[BUFFERS_MAX];
  uint32_t n = 0;
  why[0] = 0;
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    if (p->buffers[b].mode == BUF_SCRATCH) continue;
    size_t bytes = (size_t)info->elements * dtype_size((qn_dtype)p->buffers[b].dtype);
    ours[n] = malloc(bytes + 64);
    memcpy(ours[n++], start[b], bytes);
  }
  qn_config config;
  qn_config_init(&config);
  config.threads = threads;
  qn_vm *vm = vm_open(&config);
  ck_assert(vm && cpu_open(vm));
  vm->tune[TUNE_vm_block] = block;
  if (threads > 1) vm->tune[TUNE_par_grain] = 1;
  void *code = vmcode_make(p, loops);
  ck_assert_ptr_nonnull(code);
  vm_failure f;
  (void)!kernel_launch(vm, p, &code, NULL, ours, info->ints, info->scalars, &f);
  ck_assert(!error_pending(vm));
  vmcode_free(code);
  cpu_close(vm);
  vm_close(vm);
  if (f.error != want_error)
    snprintf(why, size, "error cell %llx, not %llx", (unsigned long long)f.error, (unsigned long long)want_error);
  n = 0;
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    uint8_t dtype = p->buffers[b].dtype;
    if (p->buffers[b].mode == BUF_SCRATCH) continue;
    /* after a failed check what was stored is thrown away */
    for (int64_t i = 0; i < info->elements && !why[0] && want_error == ~(uint64_t)0; i++) {
      int64_t at = i * (int64_t)dtype_size((qn_dtype)dtype);
      if (!same(dtype, (char *)ours[n] + at, (char *)want[b] + at))
        snprintf(why, size, "b%u[%lld]: %llx, not %llx", b, (long long)i,
                 (unsigned long long)ref_read((char *)ours[n] + at, dtype),
                 (unsigned long long)ref_read((char *)want[b] + at, dtype));
    }
    free(ours[n++]);
  }
}

static void show(const l_program *p) {
  text_buf t;
  text_init(&t, NULL);
  l_print(p, &t);
  fwrite(t.text, 1, t.len, stderr);
  text_free(&t);
}

static int check_program(uint64_t seed) {
  rnd_info info;
  char why[256];
  l_program *p = rnd_program(seed, &info);
  if (!l_verify(p, why, sizeof why)) {
    show(p);
    ck_abort_msg("program %llu: %s", (unsigned long long)seed, why);
  }
  void *start[BUFFERS_MAX], *want[BUFFERS_MAX];
  noise_state = seed;
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    size_t bytes = (size_t)info.elements * dtype_size((qn_dtype)p->buffers[b].dtype);
    start[b] = malloc(bytes + 64);
    want[b] = malloc(bytes + 64);
    fill(start[b], p->buffers[b].dtype, info.elements, seed % 2 != 0);
    memcpy(want[b], start[b], bytes);
  }
  _Atomic uint64_t error = ~0ull;
  atomic_int interrupt = 0;
  qk_args args = {.buf = want, .ints = info.ints, .scalars = info.scalars, .error = &error, .interrupt = &interrupt};
  ref_run(p, &args);
  const vm_loops *tables[3] = {vm_loops_pick()};
  int n = 1, failures = 0;
#if defined(__x86_64__)
  if (tables[0] == &vm_loops_v4) tables[n++] = &vm_loops_v3;
  if (tables[0] != &vm_loops_base) tables[n++] = &vm_loops_base;
#endif
  static const int64_t blocks[] = {512, 64, 256};
  for (int t = 0; t < n; t++)
    for (int b = 0; b < (t ? 1 : 3); b++)
      for (int threads = 1; threads <= (b ? 1 : 3); threads += 2) {
        compare(p, &info, start, want, error, tables[t], blocks[b], threads, why, sizeof why);
        if (!why[0]) continue;
        if (!failures++) {
          if (getenv("QN_TEST_SHOW")) show(p);
          fprintf(stderr, "program %llu, %s, block %lld, %d threads: %s\n", (unsigned long long)seed, tables[t]->name,
                  (long long)blocks[b], threads, why);
        }
      }
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    free(start[b]);
    free(want[b]);
  }
  l_free(p);
  return failures != 0;
}

START_TEST(random_programs) {
  const char *more = getenv("QN_TEST_PROGRAMS"), *at = getenv("QN_TEST_FIRST");
  uint64_t n = more ? (uint64_t)atoi(more) : 150, first = at ? (uint64_t)atoll(at) : 1;
  int failed = 0;
  for (uint64_t i = 0; i < n; i++) failed += check_program(first + i);
  ck_assert_int_eq(failed, 0);
}
END_TEST

int main(void) {
  Suite *s = suite_create("vm_random");
  CASE(tcase_create("random_programs"), random_programs);
  return run_suite(s);
}
