/* The standard library as a host meets it: the table's rows, opening with little memory, capabilities, text of values. */
#include "tests/unit/lang.h"

#include <ctype.h>

#include "lang/error.h"
#include "stdlib/stdlib.h"

/* ---- the table ------------------------------------------------------------------------------------------------------ */

START_TEST(rows_are_complete) {
  qn_vm *vm = vm_make();
  for (int i = 0; i < stdlib_table.nbuiltins; i++) {
    const builtin_def *row = &stdlib_table.builtins[i];
    ck_assert_ptr_nonnull(row->call);
    size_t n = strlen(row->name);
    ck_assert_msg(strncmp(row->signature, row->name, n) == 0 && row->signature[n] == '(', "%s: signature %s", row->name,
                  row->signature);
    ck_assert_msg(strlen(row->doc) > 10, "%s has no doc", row->name);
    signature s;
    ck_assert_msg(signature_parse(vm, row->signature, &s), "%s", row->signature);
    signature_free(vm, &s);
    for (int k = 0; k < i; k++) ck_assert_str_ne(stdlib_table.builtins[k].name, row->name);
  }
  vm_close(vm);
}
END_TEST

START_TEST(modules_are_embedded) {
  static const char *const names[] = {"prelude", "nn", "optim", "data"};
  for (size_t k = 0; k < 4; k++) {
    int found = 0;
    for (int i = 0; i < stdlib_table.nmodules; i++) {
      const embedded_module *m = &stdlib_table.modules[i];
      if (strcmp(m->name, names[k]) == 0) found++;
      ck_assert_uint_eq(strlen(m->text), m->len);
    }
    ck_assert_int_eq(found, 1);
  }
}
END_TEST

/* ---- a host's view ----------------------------------------------------------------------------------------------------- */

static void run(qn_vm *vm, const char *text, const char *error) {
  qn_status s = qn_eval(vm, "test", text, strlen(text), NULL);
  if (!error && s != QN_OK) ck_abort_msg("%s", qn_error_report(vm));
  if (error) ck_assert_str_eq(qn_error_id(vm), error);
}

START_TEST(values_have_text) {
  qn_vm *vm = qn_vm_open(NULL);
  ck_assert_ptr_nonnull(vm);
  qn_value v, text;
  const char *source = "{a: (1, 2.5), b: \"x\"}";
  ck_assert_int_eq(qn_eval(vm, "test", source, strlen(source), &v), QN_OK);
  ck_assert_int_eq(qn_to_text(vm, v, &text), QN_OK);
  ck_assert_str_eq(qn_as_string(text, NULL), "{a: (1, 2.5), b: \"x\"}");
  qn_release(vm, v);
  qn_release(vm, text);
  qn_vm_close(vm);
}
END_TEST

START_TEST(capabilities_can_be_taken_away) {
  qn_config config;
  qn_config_init(&config);
  config.capabilities = 0;
  qn_vm *vm = qn_vm_open(&config);
  ck_assert_ptr_nonnull(vm);
  static const char *const texts[] = {"load(\"a.npy\")",      "read_text(\"a\")", "save(\"/tmp/a.txt\", \"x\")",
                                      "write_text(\"a\", \"b\")", "env(\"HOME\")",    "time()"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) run(vm, texts[i], "E505");
  run(vm, "1 + 1", NULL);
  qn_vm_close(vm);
}
END_TEST

static char written[2][256];
static void keep_text(void *user, int stream, const char *text, size_t len) {
  (void)user;
  strncat(written[stream - 1], text, len);
}

START_TEST(output_goes_to_the_hosts_sink) {
  qn_config config;
  qn_config_init(&config);
  config.write = keep_text;
  qn_vm *vm = qn_vm_open(&config);
  run(vm, "print(1, \"a\"); print(2, to: \"stderr\"); for i in progress(0..3, \"x\") { print(i) }", NULL);
  ck_assert_str_eq(written[0], "1 a\n0\n1\n2\n");
  ck_assert_str_eq(written[1], "2\n");
  qn_vm_close(vm);
}
END_TEST

START_TEST(opening_may_run_out_of_memory) {
  qn_config config;
  qn_config_init(&config);
  int opened = 0;
  for (size_t limit = 1; limit < (size_t)1 << 26; limit += limit / 7 + 4096) {
    config.memory_limit = limit;
    qn_vm *vm = qn_vm_open(&config);
    opened += vm != NULL;
    qn_vm_close(vm);
  }
  ck_assert_int_gt(opened, 0);
}
END_TEST

START_TEST(builtins_survive_failing_allocations) {
  static const char text[] = "let r = {a: (1, 2, \"x\"), b: {c: 3.5}}\n"
                             "let t = tree_map(fn(x) x + 1, r)\n"
                             "print(sort((3, 1, 2)), zip((1, 2), \"ab\"), map(0..5, str), split(\"a b\"), join((\"a\", \"b\"), \"-\"))\n"
                             "print(items(r), enumerate((1, 2)), remove(r, \"a\"), insert((1, 2), 1, 3), upper(\"abc\"), repr(r))\n"
                             "print(reverse((1, 2)), filter(0..4, fn(x) x > 1), fold((1, 2), fn(a, b) a + b, 0), tree_leaves(t))\n"
                             "let xs = ()\n"
                             "for i in 0..20 { xs = append(xs, \"{i}\") }\n";
  qn_config config;
  qn_config_init(&config);
  config.write = keep_text;
  for (uint64_t n = 1; n < 3000; n += 1 + n / 60) {
    qn_vm *vm = qn_vm_open(&config);
    ck_assert_ptr_nonnull(vm);
    memset(written, 0, sizeof written);
    mem_fail_at(vm, n);
    qn_status s = qn_eval(vm, "test", text, strlen(text), NULL);
    mem_fail_at(vm, 0);
    if (s != QN_OK) ck_assert_str_eq(qn_error_id(vm), "E601");
    qn_vm_close(vm);
  }
}
END_TEST

int main(void) {
  Suite *s = suite_create("stdlib");
  CASE(tcase_create("table"), rows_are_complete, modules_are_embedded);
  CASE(tcase_create("host"), values_have_text, capabilities_can_be_taken_away, output_goes_to_the_hosts_sink);
  CASE(tcase_create("memory"), opening_may_run_out_of_memory, builtins_survive_failing_allocations);
  return run_suite(s);
}
