/* L programs as a unit of C, compiled by the system's compiler and loaded. QN_TEST_CC and QN_TEST_CFLAGS change the compiler. */
#ifndef TESTS_UNIT_C_UNIT_H
#define TESTS_UNIT_C_UNIT_H

#include <dlfcn.h>

#include "jit/kernel/emit.h"
#include "tests/unit/lang.h"

typedef struct unit {
  void *handle;
  char folder[64];
} unit;

static inline void unit_open(unit *u, const l_program *const *programs, const char *const *names, uint32_t n) {
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
           "-fno-strict-aliasing -fPIC -shared -w -DFAR=0 %s %s/k.c -o %s/k.so -lm",
           cc ? cc : "cc", flags ? flags : "", u->folder, u->folder);
  ck_assert_msg(system(command) == 0, "%s", command);
  snprintf(path, sizeof path, "%s/k.so", u->folder);
  u->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(u->handle != NULL, "%s", dlerror());
}

static inline void unit_close(unit *u, bool keep) {
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
static inline qk_phase *unit_phases(const unit *u, const l_program *p, const char *name) {
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

#endif
