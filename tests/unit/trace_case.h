/* What the tests of jit/trace share: VMs that record each function at its first call, calls with values made from text, the entries of
 * a function, a C compiler that takes its time. */
#ifndef TESTS_UNIT_TRACE_CASE_H
#define TESTS_UNIT_TRACE_CASE_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "jit/trace/specialization.h"
#include "lang/quern.h"
#include "tests/unit/lang.h"

static inline void tune(qn_vm *vm, const char *name, const char *value) {
  ck_assert_int_eq(qn_set_tunable(vm, name, value), QN_OK);
}

/* The block VM runs all kernels. */
static inline qn_vm *trace_vm(qn_jit_mode jit) {
  qn_config config;
  qn_config_init(&config);
  config.jit = jit;
  config.threads = 1;
  qn_vm *vm = qn_vm_open(&config);
  ck_assert_ptr_nonnull(vm);
  tune(vm, "jit.hot", "1");
  tune(vm, "jit.cc", "0");
  return vm;
}

static inline void good(qn_vm *vm, const char *text) {
  ck_assert_msg(qn_eval(vm, "test.qn", text, strlen(text), NULL) == QN_OK, "%s\n%s", text, qn_error_report(vm));
}

/* Owned. */
static inline qn_value value_of(qn_vm *vm, const char *text) {
  qn_value v = qn_nil();
  ck_assert_msg(qn_eval(vm, "value.qn", text, strlen(text), &v) == QN_OK, "%s\n%s", text, qn_error_report(vm));
  return v;
}

static inline double number(qn_vm *vm, const char *text) {
  qn_value v = value_of(vm, text);
  double x = qn_as_float(v);
  qn_release(vm, v);
  return x;
}

/* What hangs on the function of this name; NULL: it has not been called yet. */
static inline anchor_specializations *entries_of(qn_vm *vm, const char *name) {
  for (anchor_specializations *a = jit_of(vm)->anchors; a; a = a->next)
    if (a->anchor->name && strcmp(a->anchor->name, name) == 0) return a;
  return NULL;
}

/* The entry at a place of the list, from 0 on; NULL: it is not so long. */
static inline specialization *entry_at(qn_vm *vm, const char *name, uint32_t at) {
  anchor_specializations *list = entries_of(vm, name);
  specialization *e = list ? list->first : NULL;
  for (; e && at > 0; at--) e = e->next;
  return e;
}

static inline uint32_t entries_in(qn_vm *vm, const char *name) {
  uint32_t n = 0;
  while (entry_at(vm, name, n)) n++;
  return n;
}

/* f(..args) for a list of arguments, owned by the caller; the result is owned. */
static inline qn_value call_with(qn_vm *vm, const char *name, qn_value args) {
  qn_value f, r = qn_nil();
  ck_assert_int_eq(qn_get_global(vm, name, &f), QN_OK);
  const qn_list *l = value_list(args);
  ck_assert_msg(qn_call(vm, f, l->items, (int)l->len, &r) == QN_OK, "%s", qn_error_report(vm));
  qn_release(vm, f);
  return r;
}

static inline double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A folder whose cc writes a file `started` and does not end by itself; PATH and the cache lie there. */
typedef struct slow_cc {
  char folder[64];
} slow_cc;
static inline void slow_cc_begin(slow_cc *s) {
  snprintf(s->folder, sizeof s->folder, "/tmp/quern-trace-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(s->folder));
  char path[128], text[4096];
  snprintf(path, sizeof path, "%s/cc", s->folder);
  FILE *f = fopen(path, "w");
  ck_assert_ptr_nonnull(f);
  fprintf(f, "#!/bin/sh\n: >%s/started\nexec sleep 1000\n", s->folder);
  fclose(f);
  ck_assert_int_eq(chmod(path, 0755), 0);
  const char *old = getenv("PATH");
  snprintf(text, sizeof text, "%s:%s", s->folder, old ? old : "/usr/bin:/bin");
  setenv("PATH", text, 1);
  snprintf(path, sizeof path, "%s/cache", s->folder);
  setenv("QUERN_CACHE", path, 1);
}

/* Waits until it runs. */
static inline void slow_cc_runs(const slow_cc *s) {
  char path[128];
  snprintf(path, sizeof path, "%s/started", s->folder);
  for (double end = now() + 120; access(path, F_OK) != 0; usleep(2000)) ck_assert_msg(now() < end, "no compiler came");
}

static inline void slow_cc_end(const slow_cc *s) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", s->folder);
  ck_assert_int_eq(system(command), 0);
}

#endif
