/* What the tests of lang share: a VM, and values made briefly. The makers do without ck_assert, which notes every pass
 * in a file: some are called a million times. */
#ifndef TESTS_UNIT_LANG_H
#define TESTS_UNIT_LANG_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lang/vm.h"

static inline qn_vm *vm_make(void) {
  qn_vm *vm = vm_open(NULL);
  if (!vm) ck_abort_msg("no memory");
  return vm;
}

static inline size_t live(qn_vm *vm) { return mem_stats_of(vm)->live; }

static inline qn_value str_value(qn_vm *vm, const char *text) {
  qn_str *s = str_new(vm, text, strlen(text));
  if (!s) ck_abort_msg("no memory");
  return value_obj(TAG_STR, s);
}

/* A list of owned items. */
static inline qn_value list_value(qn_vm *vm, int n, const qn_value *items) {
  qn_list *l = list_new(vm, (size_t)n);
  if (!l) ck_abort_msg("no memory");
  for (int i = 0; i < n; i++) l->items[i] = items[i];
  return value_obj(TAG_LIST, l);
}
#define LIST(vm, ...)                                                                                                  \
  list_value(vm, (int)(sizeof((qn_value[]){__VA_ARGS__}) / sizeof(qn_value)), (qn_value[]){__VA_ARGS__})

/* Sets a field by its C name; takes over `item`. */
static inline bool set(qn_vm *vm, qn_value record, const char *name, qn_value item) {
  qn_str *s = str_intern(vm, name, strlen(name));
  if (!s) {
    value_release(vm, item);
    return false;
  }
  bool ok = record_set(vm, value_record(record), s, item);
  value_release(vm, value_obj(TAG_STR, s));
  return ok;
}

static inline qn_value record_value(qn_vm *vm) {
  qn_record *r = record_new(vm);
  if (!r) ck_abort_msg("no memory");
  return value_obj(TAG_RECORD, r);
}

static inline qn_value array_value(qn_vm *vm, qn_dtype d, int rank, const int64_t *shape, const void *data) {
  qn_array *a = array_new(vm, d, rank, shape);
  if (!a) ck_abort_msg("no memory");
  if (a->size) memcpy(array_data(a), data, (size_t)a->size * dtype_size(d));
  return value_obj(TAG_ARRAY, a);
}

/* The pending error's id, cleared; 0 if there is none. */
static inline int taken_error(qn_vm *vm) {
  int id = vm->error ? (int)vm->error->id : 0;
  error_clear(vm);
  return id;
}

/* CASE(tcase_create("name"), tests...) adds a case to the suite `s`. */
#define CASE(made, ...)                                                                                                \
  do {                                                                                                                 \
    TCase *made_case = made;                                                                                           \
    tcase_set_timeout(made_case, 120);                                                                                 \
    const TTest *made_tests[] = {__VA_ARGS__};                                                                         \
    for (size_t i = 0; i < sizeof made_tests / sizeof *made_tests; i++) tcase_add_test(made_case, made_tests[i]);      \
    suite_add_tcase(s, made_case);                                                                                     \
  } while (0)

static inline int run_suite(Suite *s) {
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
