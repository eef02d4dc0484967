/* L programs printed as C, compiled and loaded: random programs, which use every construct, give the same bits as the reference
 * (l_case.h). QN_TEST_COUNT=1000 runs more of them, QN_TEST_FIRST says where to begin, QN_TEST_CC and QN_TEST_CFLAGS
 * change the compiler. */
#include <dlfcn.h>

#include "jit/kernel/emit.h"
#include "tests/unit/lang.h"
#include "tests/unit/l_case.h"
#include "tests/unit/seeds.h"

enum { BATCH = 32 };

/* ---- a unit of C, compiled and loaded ----------------------------------------------------------------------------- */

typedef struct unit {
  void *handle;
  char folder[64];
} unit;

static void unit_open(unit *u, const l_program *const *programs, const char *const *names, uint32_t n) {
  text_buf text = {0};
  emit_c(programs, names, n, NULL, &text);
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

/* The functions of a program: its phases and the one that tells the bytes of scratch. Freed by the caller. */
static qk_phase *unit_phases(const unit *u, const l_program *p, const char *name) {
  uint32_t phases = emit_phases(p);
  qk_phase *code = calloc(phases + 1, sizeof *code);
  for (uint32_t j = 0; j <= phases; j++) {
    char symbol[64];
    snprintf(symbol, sizeof symbol, "%s_%u", name, j);
    void *f = dlsym(u->handle, symbol);
    ck_assert_ptr_nonnull(f);
    memcpy(&code[j], &f, sizeof f);
  }
  return code;
}

/* ---- random programs -------------------------------------------------------------------------------------------------- */

static void random_batch(uint64_t first, uint32_t n) {
  l_case cases[BATCH];
  const l_program *programs[BATCH];
  const char *names[BATCH];
  char texts[BATCH][16], why[256];
  for (uint32_t i = 0; i < n; i++) {
    case_open(&cases[i], first + i);
    programs[i] = cases[i].p;
    snprintf(texts[i], sizeof texts[i], "k%u", i);
    names[i] = texts[i];
  }
  unit u;
  unit_open(&u, programs, names, n);
  bool failed = false;
  for (uint32_t i = 0; i < n; i++) {
    qk_phase *code = unit_phases(&u, programs[i], names[i]);
    for (int threads = 1; threads <= 3; threads += 2) {
      case_run(&cases[i], bvm_loops_pick(), code, 512, threads, why, sizeof why);
      if (!why[0]) continue;
      if (getenv("QN_TEST_SHOW")) case_show(&cases[i]);
      fprintf(stderr, "program %llu (%s/k.c, %s), %d threads: %s\n", (unsigned long long)(first + i), u.folder,
              names[i], threads, why);
      failed = true;
    }
    free(code);
    case_close(&cases[i]);
  }
  unit_close(&u, failed);
  ck_assert(!failed);
}

START_TEST(random_programs) {
  seeds which = seeds_of(1, 40); /* some ten seconds */
  for (uint64_t i = which.first; i < which.end; i += BATCH)
    random_batch(i, which.end - i < BATCH ? (uint32_t)(which.end - i) : BATCH);
}
END_TEST

int main(void) {
  Suite *s = suite_create("emit");
  TCase *t = tcase_create("random_programs");
  tcase_set_timeout(t, 600);
  CASE(t, random_programs);
  return run_suite(s);
}
