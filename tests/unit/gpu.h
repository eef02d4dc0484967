/* What the tests of GPUs without a GPU share: places where only the fake driver is found, VMs that compile for it, and programs. */
#ifndef TESTS_UNIT_GPU_H
#define TESTS_UNIT_GPU_H

#include <stdlib.h>
#include <unistd.h>

#include "jit/gpu/state.h"
#include "tests/unit/lang.h"

enum { GPU_0 = FAMILY_gpu * DEVICE_NUMBERS }; /* code of the first one */

/* No CUDA but that of this kind of fake. */
static inline void only(const char *which) {
  char path[600];
  snprintf(path, sizeof path, "%s/%s", getenv("QUERN_TEST_FAKE") ? getenv("QUERN_TEST_FAKE") : "build/tests/fake",
           which);
  setenv("QUERN_CUDA", path, 1);
  static const char *const others[] = {"CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) unsetenv(others[i]);
}

static inline qn_value eval(qn_vm *vm, const char *text) {
  qn_value v = qn_nil();
  if (qn_eval(vm, "test", text, strlen(text), &v) != QN_OK) ck_abort_msg("%s", qn_error_report(vm));
  return v;
}

static inline void prints(qn_vm *vm, const char *text, const char *want) {
  qn_value v = eval(vm, text), shown;
  ck_assert_int_eq(qn_to_text(vm, v, &shown), QN_OK);
  ck_assert_str_eq(qn_as_string(shown, NULL), want);
  qn_release(vm, shown);
  qn_release(vm, v);
}

static inline void fails(qn_vm *vm, const char *text, const char *id, const char *message) {
  ck_assert_int_eq(qn_eval(vm, "test", text, strlen(text), NULL), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), id);
  ck_assert_msg(strstr(qn_error_message(vm), message) != NULL, "%s", qn_error_message(vm));
}

/* A VM on the device of the fake, with a compiler that is waited for. `config` may be NULL. */
static inline qn_vm *vm_compiling_with(const qn_config *given) {
  only("compiling");
  char cache[600]; /* empty: below that of all tests */
  snprintf(cache, sizeof cache, "%s-gpu-XXXXXX", getenv("QUERN_CACHE") ? getenv("QUERN_CACHE") : "/tmp/quern-test");
  if (!mkdtemp(cache)) ck_abort_msg("no folder");
  setenv("QUERN_CACHE", cache, 1);
  qn_config config;
  qn_config_init(&config);
  if (given) config = *given;
  config.jit = QN_JIT_SYNC;
  qn_vm *vm = qn_vm_open(&config);
  if (!vm || !vm_use_device(vm, GPU_0)) ck_abort_msg("no VM");
  vm->tune[TUNE_gpu_small] = 0; /* products of a few elements are the library's, too */
  return vm;
}

/* The same without a compiler: ops run on the CPU, with copies. */
static inline qn_vm *vm_on_fake(const qn_config *config) {
  only("good");
  qn_vm *vm = qn_vm_open(config);
  if (!vm || !vm_use_device(vm, GPU_0)) ck_abort_msg("no VM");
  return vm;
}

static inline qn_vm *vm_compiling(void) { return vm_compiling_with(NULL); }

#endif
