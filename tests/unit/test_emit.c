/* L programs printed as C, compiled, loaded and run on random data: the same bits as the reference gives (l_reference.h).
 * Random programs cover every construct (QN_TEST_PROGRAMS=1000 runs more of them); the golden ones stand in tests/golden.
 *
 * labels: golden */
#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/cpu/vmloops.h"
#include "jit/kernel/emit.h"
#include "tests/unit/l_random.h"
#include "tests/unit/l_reference.h"

enum { BATCH = 32, BUFFERS_MAX = 96 };

/* ---- data ------------------------------------------------------------------------------------------------------------------- */

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

/* ---- comparing ------------------------------------------------------------------------------------------------------------------ */

typedef struct setting {
  const int64_t *ints;
  const qk_scalar *scalars;
  int64_t elements; /* of every buffer */
  bool wild;        /* data with infinities and NaNs */
} setting;

/* Runs a program both ways. Empty, or what differs. */
static void compare(const unit *u, const l_program *p, const char *name, const setting *s, char *why, size_t size) {
  void *ours[BUFFERS_MAX], *theirs[BUFFERS_MAX];
  why[0] = 0;
  ck_assert_uint_le(p->nbuffers, BUFFERS_MAX);
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    size_t bytes = (size_t)s->elements * dtype_size((qn_dtype)p->buffers[b].dtype);
    ours[b] = malloc(bytes + 64);
    theirs[b] = malloc(bytes + 64);
    fill(ours[b], p->buffers[b].dtype, s->elements, s->wild);
    memcpy(theirs[b], ours[b], bytes);
  }
  _Atomic uint64_t e1 = ~0ull, e2 = ~0ull;
  atomic_int interrupt = 0;
  qk_args args = {.buf = theirs, .ints = s->ints, .scalars = s->scalars, .error = &e1, .interrupt = &interrupt};
  args.tile = vm_loops_pick()->tile;
  ref_run(p, &args);
  args.buf = ours;
  args.error = &e2;
  uint32_t phases = emit_phases(p);
  qk_phase *code = malloc((phases + 1) * sizeof *code);
  int64_t *n = calloc(phases, sizeof *n);
  ref_instances(p, &args, n);
  for (uint32_t j = 0; j <= phases; j++) {
    char symbol[64];
    snprintf(symbol, sizeof symbol, "%s_%u", name, j);
    void *f = dlsym(u->handle, symbol);
    ck_assert_ptr_nonnull(f);
    memcpy(&code[j], &f, sizeof f);
  }
  size_t scratch = emit_scratch(code, phases, &args);
  args.scratch = aligned_alloc(64, (scratch + 127) / 64 * 64);
  memset(args.scratch, 0xa5, scratch);
  for (uint32_t j = 0; j < phases; j++) { /* in two ranges, as threads would */
    code[j](&args, n[j] / 2, n[j]);
    code[j](&args, 0, n[j] / 2);
  }
  if (e1 != e2) snprintf(why, size, "error cell %llx, not %llx", (unsigned long long)e2, (unsigned long long)e1);
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    uint8_t dtype = p->buffers[b].dtype;
    for (int64_t i = 0; i < s->elements && !why[0] && p->buffers[b].mode != BUF_SCRATCH; i++) {
      int64_t at = i * (int64_t)dtype_size((qn_dtype)dtype);
      if (!same(dtype, (char *)ours[b] + at, (char *)theirs[b] + at))
        snprintf(why, size, "b%u[%lld]: %llx, not %llx", b, (long long)i,
                 (unsigned long long)ref_read((char *)ours[b] + at, dtype),
                 (unsigned long long)ref_read((char *)theirs[b] + at, dtype));
    }
    free(ours[b]);
    free(theirs[b]);
  }
  free(args.scratch);
  free(code);
  free(n);
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
