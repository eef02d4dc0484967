/* L programs printed as C, compiled, loaded and run on random data; and on the block VM: the same bits as the reference gives
 * (l_eval.h).
 * Random programs cover every construct (QN_TEST_PROGRAMS=1000 runs more of them); the golden ones stand in tests/golden.
 *
 * labels: golden */
#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/cpu/cpu.h"
#include "jit/cpu/vm.h"
#include "jit/kernel/emit.h"
#include "tests/unit/l_eval.h"
#include "tests/unit/l_random.h"

enum { BATCH = 32, BUFFERS_MAX = 96 };

/* ---- data ------------------------------------------------------------------------------------------------------------------- */

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

static void fill(void *data, uint8_t dtype, int64_t n, bool wild) {
  for (int64_t i = 0; i < n; i++) {
    char *to = (char *)data + i * (int64_t)dtype_size((qn_dtype)dtype);
    double d = noise_float(wild);
    float f = (float)d;
    uint64_t bits = (uint64_t)noise(1 << 30) << 34 ^ (uint64_t)noise(1 << 30) << 8 ^ noise(256);
    if (noise(3)) bits = (uint64_t)((int64_t)noise(200) - 60);
    switch (dtype) {
    case QN_bool: bits = noise(2); break;
    case QN_f32: memcpy(&bits, &f, 4); break;
    case QN_f64: memcpy(&bits, &d, 8); break;
    case QN_f16: bits = f32_to_f16(f); break;
    case QN_bf16: bits = f32_to_bf16(f); break;
    default: break;
    }
    memcpy(to, &bits, dtype_size((qn_dtype)dtype));
  }
}

/* Equal bits; all NaNs count as one value. */
static bool same(uint8_t dtype, const void *a, const void *b) {
  uint64_t x = ev_read((qn_dtype)dtype, a, 0), y = ev_read((qn_dtype)dtype, b, 0);
  if (x == y) return true;
  switch (dtype) {
  case QN_f16: return (x & 0x7fff) > 0x7c00 && (y & 0x7fff) > 0x7c00;
  case QN_bf16: return (x & 0x7fff) > 0x7f80 && (y & 0x7fff) > 0x7f80;
  case QN_f32: return (x & 0x7fffffff) > 0x7f800000 && (y & 0x7fffffff) > 0x7f800000;
  case QN_f64: return (x << 1) > 0xffe0000000000000u && (y << 1) > 0xffe0000000000000u;
  default: return false;
  }
}

/* ---- a unit of C, compiled and loaded ------------------------------------------------------------------------------------- */

typedef struct unit {
  void *handle;
  char folder[64];
} unit;

static void unit_open(unit *u, const l_program *const *programs, const char *const *names, uint32_t n) {
  text_buf text;
  text_init(&text, NULL);
  emit_c(programs, names, n, &text);
  ck_assert(!text.failed);
  snprintf(u->folder, sizeof u->folder, "/tmp/quern-emit-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(u->folder));
  char path[96], command[512];
  snprintf(path, sizeof path, "%s/k.c", u->folder);
  FILE *f = fopen(path, "w");
  ck_assert_ptr_nonnull(f);
  ck_assert_uint_eq(fwrite(text.text, 1, text.len, f), text.len);
  fclose(f);
  text_free(&text);
  const char *cc = getenv("QN_TEST_CC"), *flags = getenv("QN_TEST_CFLAGS");
  snprintf(command, sizeof command,
           "%s -std=gnu11 -O2 -march=native -fopenmp-simd -ffp-contract=off -fno-math-errno -fno-trapping-math "
           "-fno-strict-aliasing -fPIC -shared -w %s %s/k.c -o %s/k.so -lm",
           cc ? cc : "cc", flags ? flags : "", u->folder, u->folder);
  ck_assert_msg(system(command) == 0, "%s", command);
  snprintf(path, sizeof path, "%s/k.so", u->folder);
  u->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(u->handle != NULL, "%s", dlerror());
}

static void unit_close(unit *u, bool keep) {
  dlclose(u->handle);
  char path[96];
  if (keep) return;
  snprintf(path, sizeof path, "%s/k.c", u->folder);
  remove(path);
  snprintf(path, sizeof path, "%s/k.so", u->folder);
  remove(path);
  remove(u->folder);
}

/* ---- comparing ------------------------------------------------------------------------------------------------------ */

typedef struct setting {
  const int64_t *ints;
  const qk_scalar *scalars;
  int64_t elements; /* of every buffer */
  bool wild;        /* data with infinities and NaNs */
} setting;

static qn_vm *vm_with(int threads, int64_t block) {
  qn_config config;
  qn_config_init(&config);
  config.threads = threads;
  qn_vm *vm = vm_open(&config);
  ck_assert(vm && cpu_open(vm));
  vm->tune[TUNE_par_grain] = threads > 1 ? 1 : 32768;
  vm->tune[TUNE_vm_block] = block;
  return vm;
}

/* Where buffers differ from the reference's, or where error cells do: in words, else empty. */
static void differences(const l_program *p, int64_t elements, void *const *ours, void *const *right, uint64_t error,
                        uint64_t right_error, char *why, size_t size) {
  if (error != right_error)
    snprintf(why, size, "error cell %llx, not %llx", (unsigned long long)error, (unsigned long long)right_error);
  for (uint32_t b = 0; b < p->nbuffers && error == ~0ull; b++) {
    uint8_t dtype = p->buffers[b].dtype;
    for (int64_t i = 0; i < elements && !why[0] && p->buffers[b].mode != BUF_SCRATCH; i++) {
      int64_t at = i * (int64_t)dtype_size((qn_dtype)dtype);
      if (!same(dtype, (char *)ours[b] + at, (char *)right[b] + at))
        snprintf(why, size, "b%u[%lld]: %llx, not %llx", b, (long long)i,
                 (unsigned long long)ev_read((qn_dtype)dtype, ours[b], i),
                 (unsigned long long)ev_read((qn_dtype)dtype, right[b], i));
    }
  }
}

/* Runs a program on the reference, on the block VM, and compiled, each with one and with three threads. Empty, or who
 * differs where. */
static void compare(const unit *u, const l_program *p, const char *name, const setting *s, char *why, size_t size) {
  void *data[BUFFERS_MAX], *right[BUFFERS_MAX], *ours[BUFFERS_MAX], *given[BUFFERS_MAX], *kept[BUFFERS_MAX];
  int64_t sizes[BUFFERS_MAX];
  why[0] = 0;
  ck_assert_uint_le(p->nbuffers, BUFFERS_MAX);
  uint32_t ngiven = 0;
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    size_t bytes = (size_t)s->elements * dtype_size((qn_dtype)p->buffers[b].dtype);
    data[b] = calloc(1, bytes + 64);
    right[b] = calloc(1, bytes + 64);
    ours[b] = calloc(1, bytes + 64);
    fill(data[b], p->buffers[b].dtype, s->elements, s->wild);
    memcpy(right[b], data[b], bytes);
    if (p->buffers[b].mode == BUF_SCRATCH) continue;
    kept[ngiven] = right[b];
    sizes[ngiven] = s->elements;
    given[ngiven++] = ours[b];
  }
  uint64_t right_error = ~0ull;
  char wrong[200] = "";
  ck_assert_msg(l_eval(p, kept, sizes, s->ints, s->scalars, &right_error, wrong, sizeof wrong), "%s", wrong);
  uint32_t phases = emit_phases(p);
  qk_phase *code = calloc(phases + 1, sizeof *code);
  for (uint32_t j = 0; j <= phases; j++) {
    char symbol[64];
    snprintf(symbol, sizeof symbol, "%s_%u", name, j);
    void *f = dlsym(u->handle, symbol);
    ck_assert_ptr_nonnull(f);
    memcpy(&code[j], &f, sizeof f);
  }
  for (int how = getenv("QN_TEST_HOW") ? atoi(getenv("QN_TEST_HOW")) : 0; how < 4 && !why[0]; how++) {
    qn_vm *vm = vm_with(how & 1 ? 3 : 1, how & 1 ? 192 : 512);
    for (uint32_t b = 0; b < p->nbuffers; b++)
      memcpy(ours[b], data[b], (size_t)s->elements * dtype_size((qn_dtype)p->buffers[b].dtype));
    void *vm_code = NULL;
    vm_failure f;
    bool ok = kernel_launch(vm, p, &vm_code, how & 2 ? code : NULL, given, s->ints, s->scalars, &f);
    ck_assert(ok == (f.error == ~(uint64_t)0));
    char what[160] = "";
    differences(p, s->elements, ours, right, f.error, right_error, what, sizeof what);
    if (what[0])
      snprintf(why, size, "%s, %s: %s", how & 2 ? "compiled" : "block VM", how & 1 ? "3 threads" : "1 thread", what);
    vmcode_free(vm_code);
    cpu_close(vm);
    vm_close(vm);
  }
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    free(data[b]);
    free(right[b]);
    free(ours[b]);
  }
  free(code);
}

static void print_program(const l_program *p) {
  text_buf t;
  text_init(&t, NULL);
  l_print(p, &t);
  fwrite(t.text, 1, t.len, stderr);
  text_free(&t);
}

static void random_batch(uint64_t first, uint32_t n) {
  l_program *programs[BATCH];
  rnd_info info[BATCH];
  const char *names[BATCH];
  char texts[BATCH][16], why[256];
  for (uint32_t i = 0; i < n; i++) {
    programs[i] = rnd_program(first + i, &info[i]);
    if (!l_verify(programs[i], why, sizeof why)) {
      print_program(programs[i]);
      ck_abort_msg("program %llu: %s", (unsigned long long)(first + i), why);
    }
    snprintf(texts[i], sizeof texts[i], "k%u", i);
    names[i] = texts[i];
  }
  unit u;
  unit_open(&u, (const l_program *const *)programs, names, n);
  bool failed = false;
  for (uint32_t i = 0; i < n; i++) {
    noise_state = first + i;
    setting s = {info[i].ints, info[i].scalars, info[i].elements, (first + i) % 2 != 0};
    compare(&u, programs[i], names[i], &s, why, sizeof why);
    if (why[0]) {
      if (getenv("QN_TEST_SHOW")) print_program(programs[i]);
      fprintf(stderr, "program %llu (%s/k.c, %s): %s\n", (unsigned long long)(first + i), u.folder, names[i], why);
      failed = true;
    }
    l_free(programs[i]);
  }
  unit_close(&u, failed);
  ck_assert(!failed);
}

START_TEST(random_programs) {
  const char *more = getenv("QN_TEST_PROGRAMS"), *at = getenv("QN_TEST_FIRST");
  uint32_t n = more ? (uint32_t)atoi(more) : 64;
  uint64_t first = at ? (uint64_t)atoll(at) : 1;
  for (uint32_t i = 0; i < n; i += BATCH) random_batch(first + i, n - i < BATCH ? n - i : BATCH);
}
END_TEST

int main(void) {
  Suite *s = suite_create("emit");
  TCase *t = tcase_create("random_programs");
  tcase_set_timeout(t, 600);
  tcase_add_test(t, random_programs);
  suite_add_tcase(s, t);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_ENV);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed != 0;
}
