/* The interpreter as a host sees it: texts, prompts, calls, globals, errors, limits, capabilities, resolvers, several VMs. */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lang/quern.h"

typedef struct sink {
  char text[2][4096];
  size_t len[2];
} sink;

static void take(void *user, int stream, const char *text, size_t len) {
  sink *s = user;
  size_t *at = &s->len[stream - 1];
  for (size_t i = 0; i < len && *at + 1 < sizeof s->text[0]; i++) s->text[stream - 1][(*at)++] = text[i];
  s->text[stream - 1][*at] = 0;
}

static sink out;

static qn_vm *open_with(qn_config *config) {
  memset(&out, 0, sizeof out);
  config->write = take;
  config->user = &out;
  config->jit = QN_JIT_OFF;
  config->threads = 1;
  qn_vm *vm = qn_vm_open(config);
  ck_assert_ptr_nonnull(vm);
  return vm;
}

static qn_vm *open_vm(void) {
  qn_config config;
  qn_config_init(&config);
  return open_with(&config);
}

static qn_status run(qn_vm *vm, const char *text, qn_value *r) { return qn_eval(vm, "test.qn", text, strlen(text), r); }

static int64_t run_int(qn_vm *vm, const char *text) {
  qn_value r = qn_nil();
  ck_assert_msg(run(vm, text, &r) == QN_OK, "%s", qn_error_report(vm));
  ck_assert_int_eq(qn_kind_of(r), QN_INT);
  return qn_as_int(r);
}

static void fails(qn_vm *vm, const char *text, const char *id) {
  ck_assert_int_eq(run(vm, text, NULL), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), id);
}

START_TEST(eval_gives_last_value) {
  qn_vm *vm = open_vm();
  ck_assert_int_eq(run_int(vm, "let a = 40\na + 2"), 42);
  ck_assert_int_eq(run_int(vm, "a + 1"), 41); /* the main scope stays */
  qn_value r;
  ck_assert_int_eq(run(vm, "let b = 1", &r), QN_OK);
  ck_assert_int_eq(qn_kind_of(r), QN_NIL);
  ck_assert_int_eq(run(vm, "", &r), QN_OK);
  ck_assert_int_eq(qn_kind_of(r), QN_NIL);
  ck_assert_int_eq(run(vm, "print(\"a\", 1)\nprint(2, to: \"stderr\")", NULL), QN_OK);
  ck_assert_str_eq(out.text[0], "a 1\n");
  ck_assert_str_eq(out.text[1], "2\n");
  qn_vm_close(vm);
}
END_TEST

START_TEST(errors_say_where) {
  qn_vm *vm = open_vm();
  fails(vm, "let a = 1\nfn f(x) {\n  let y = x // 0\n  y\n}\nf(a)\n", "E306");
  ck_assert_int_eq(qn_error_line(vm), 3);
  ck_assert_str_eq(qn_error_source(vm), "test.qn");
  ck_assert_ptr_nonnull(strstr(qn_error_report(vm), "let y = x // 0"));
  ck_assert_ptr_nonnull(strstr(qn_error_message(vm), "1 // 0"));
  fails(vm, "let b = (1,\n", "E102");
  fails(vm, "nothing_like_this", "E401");
  fails(vm, "undefined_fn()", "E401");
  /* The VM goes on. */
  ck_assert_int_eq(run_int(vm, "a"), 1);
  ck_assert_str_eq(qn_error_message(vm), "");
  qn_vm_close(vm);
}
END_TEST

START_TEST(prompt_rules) {
  qn_vm *vm = open_vm();
  qn_value r;
#define PROMPT(text) qn_eval_prompt(vm, text, strlen(text), &r)
  ck_assert_int_eq(PROMPT("x = 3"), QN_OK); /* defines */
  ck_assert_int_eq(PROMPT("let x = 4\n"), QN_OK);
  ck_assert_int_eq(PROMPT("x + 1"), QN_OK);
  ck_assert_int_eq(qn_as_int(r), 5);
  ck_assert_int_eq(PROMPT("_ * 2"), QN_OK);
  ck_assert_int_eq(qn_as_int(r), 10);
  ck_assert_int_eq(PROMPT("fn f(a) {"), QN_INCOMPLETE);
  ck_assert_int_eq(PROMPT("fn f(a) {\n  g(a) + 1\n}"), QN_OK); /* g comes later */
  ck_assert_int_eq(PROMPT("f(1)"), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), "E401");
  ck_assert_int_eq(PROMPT("fn g(a) = a * 100"), QN_OK);
  ck_assert_int_eq(PROMPT("f(1)"), QN_OK);
  ck_assert_int_eq(qn_as_int(r), 101);
  ck_assert_int_eq(PROMPT("1 +"), QN_INCOMPLETE);
  ck_assert_int_eq(PROMPT("1 + * 2"), QN_ERROR);
  ck_assert_int_eq(PROMPT("fn len(a) = 7"), QN_OK); /* hides a builtin */
  ck_assert_int_eq(PROMPT("len(())"), QN_OK);
  ck_assert_int_eq(qn_as_int(r), 7);
#undef PROMPT
  qn_vm_close(vm);
}
END_TEST

START_TEST(calls_and_globals) {
  qn_vm *vm = open_vm();
  qn_value f, r, args[2] = {qn_int(30), qn_int(12)};
  ck_assert_int_eq(run(vm, "fn add(a, b = 1) = a + b\nlet k = 5\nfn uses() = k", NULL), QN_OK);
  ck_assert_int_eq(qn_get_global(vm, "add", &f), QN_OK);
  ck_assert_int_eq(qn_kind_of(f), QN_FN);
  ck_assert_int_eq(qn_call(vm, f, args, 2, &r), QN_OK);
  ck_assert_int_eq(qn_as_int(r), 42);
  ck_assert_int_eq(qn_call(vm, f, args, 1, &r), QN_OK);
  ck_assert_int_eq(qn_as_int(r), 31);
  ck_assert_int_eq(qn_call(vm, f, args, 0, &r), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), "E403");
  ck_assert_ptr_nonnull(strstr(qn_error_message(vm), "add(a, b = 1)"));
  ck_assert_int_eq(qn_call(vm, args[0], args, 1, &r), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), "E311");
  qn_release(vm, f);
  ck_assert_int_eq(qn_set_global(vm, "k", qn_float(2.5)), QN_OK);
  ck_assert_int_eq(qn_set_global(vm, "made_by_host", qn_int(1)), QN_OK);
  ck_assert_int_eq(run(vm, "uses() + made_by_host", &r), QN_OK);
  ck_assert(qn_as_float(r) == 3.5);
  ck_assert_int_eq(qn_get_global(vm, "no_such", &r), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), "E401");
  ck_assert_int_eq(qn_get_global(vm, "print", &r), QN_OK);
  qn_release(vm, r);
  ck_assert_int_eq(qn_set_global(vm, "\xff", qn_int(1)), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), "E101");
  r = qn_int(1);
  ck_assert_int_eq(qn_get_global(vm, "k\xc3", &r), QN_ERROR);
  ck_assert_int_eq(qn_kind_of(r), QN_NIL);
  qn_vm_close(vm);
}
END_TEST

static void *interrupt_soon(void *vm) {
  usleep(50000);
  qn_interrupt(vm);
  return NULL;
}

START_TEST(interrupt_cannot_be_caught) {
  qn_vm *vm = open_vm();
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, interrupt_soon, vm), 0);
  const char *text = "try { while true { } } catch _ { print(\"caught\") }\nprint(\"after\")";
  ck_assert_int_eq(run(vm, text, NULL), QN_INTERRUPTED);
  pthread_join(thread, NULL);
  ck_assert_str_eq(qn_error_id(vm), "E603");
  ck_assert_str_eq(out.text[0], "");
  ck_assert_int_eq(run_int(vm, "1 + 1"), 2);
  qn_vm_close(vm);
}
END_TEST

START_TEST(limits) {
  qn_config config;
  qn_config_init(&config);
  config.step_limit = 100000;
  qn_vm *vm = open_with(&config);
  ck_assert_int_eq(run(vm, "let n = 0\nwhile true { n += 1 }", NULL), QN_INTERRUPTED);
  ck_assert_str_eq(qn_error_id(vm), "E604");
  ck_assert_int_eq(run(vm, "fn f(x) = f(x + 1)\nf(0)", NULL), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), "E602");
  ck_assert_int_eq(run_int(vm, "let s = 0\nfor i in 0..1000 { s += i }\ns"), 499500);
  qn_vm_close(vm);
  qn_config_init(&config);
  config.time_limit = 0.05;
  vm = open_with(&config);
  ck_assert_int_eq(run(vm, "while true { }", NULL), QN_INTERRUPTED);
  ck_assert_str_eq(qn_error_id(vm), "E604");
  qn_vm_close(vm);
  qn_config_init(&config);
  config.memory_limit = 16 << 20;
  vm = open_with(&config);
  fails(vm, "fn fill() {\n  let xs = ()\n  while true { xs = append(xs, (1, 2, 3)) }\n  xs\n}\nfill()", "E601");
  ck_assert_int_eq(run_int(vm, "let small = (1, 2)\nlen(small)"), 2);
  qn_vm_close(vm);
}
END_TEST

/* What runs long over texts and lists looks at the limits, and so at interrupts, on its way. */
START_TEST(builtins_look_at_limits) {
  qn_config config;
  qn_config_init(&config);
  config.step_limit = 60;
  qn_vm *vm = open_with(&config);
  static const char *const made[] = {"let s = \"ab\"\nfor _ in 0..19 { s = s + s }",
                                     "let u = \"aé\"\nfor _ in 0..18 { u = u + u }",
                                     "let blanks = \"  \"\nfor _ in 0..18 { blanks = blanks + blanks }",
                                     "let a = (1, 2)\nfor _ in 0..18 { a = a + a }",
                                     "let t = (\"b\", \"a\")\nfor _ in 0..18 { t = t + t }",
                                     "let p = ((1, 2), (3, 4))\nfor _ in 0..18 { p = p + p }"};
  for (size_t i = 0; i < sizeof made / sizeof *made; i++) ck_assert_int_eq(run(vm, made[i], NULL), QN_OK);
  static const char *const long_ones[] = {"split(s, \"b\")",
                                          "replace(s, \"a\", \"xyz\")",
                                          "contains(s, \"abc\")",
                                          "find(s, \"bb\")",
                                          "upper(s)",
                                          "lower(u)",
                                          "chars(u)",
                                          "list(s)",
                                          "reverse(u)",
                                          "reverse(a)",
                                          "u[::-1]",
                                          "u[1::2]",
                                          "trim(blanks)",
                                          "split(blanks + \"x y\", \" \")",
                                          "pad_left(\"x\", 900_000)",
                                          "pad_right(\"x\", 900_000)",
                                          "repeat(\"ab\", 900_000)",
                                          "repeat((1,), 900_000)",
                                          "join(t, \", \")",
                                          "sort(a)",
                                          "sort(t)",
                                          "sort(p)",
                                          "a == a + ()",
                                          "a[::2]",
                                          "list(0..900_000)",
                                          "enumerate(a)",
                                          "zip(a, a)",
                                          "map(a, fn(x) x)",
                                          "filter(a, fn(x) true)",
                                          "fold(a, fn(x, y) y, 0)",
                                          "contains(a, 3)",
                                          "find(a, 3)",
                                          "sum(a)",
                                          "max(a)",
                                          "repr(a)",
                                          "tree_leaves(a)",
                                          "tree_map(fn(x) x, a)",
                                          "tree_zip(a, a)",

                                          "repr(p)",

                                          "any(map(a, fn(x) false))"};
  for (size_t i = 0; i < sizeof long_ones / sizeof *long_ones; i++) {
    if (run(vm, long_ones[i], NULL) != QN_INTERRUPTED || strcmp(qn_error_id(vm), "E604") != 0)
      ck_abort_msg("%s does not look at the limits: %s", long_ones[i], qn_error_id(vm) ? qn_error_id(vm) : "no error");
  }
  ck_assert_int_eq(run_int(vm, "len(s) + len(a)"), (1 << 20) + (1 << 19));
  qn_vm_close(vm);
}
END_TEST

static void *recurse(void *arg) {
  qn_vm *vm = arg;
  const char *text =
      "fn f(n) = if n == 0 { 0 } else { 1 + f(n - 1) }\nlet deep = try { f(1_000_000) } catch e { e.id }\n"
      "fn tower(k) = if k == 0 { () } else { (tower(k - 1),) }\n(deep, f(20), len(tower(20)))[0]";
  qn_value r = qn_nil();
  if (qn_eval(vm, "deep", text, strlen(text), &r) != QN_OK) return NULL;
  bool good = qn_kind_of(r) == QN_STR && strcmp(qn_as_string(r, NULL), "E602") == 0;
  qn_release(vm, r);
  return good ? arg : NULL;
}

START_TEST(small_stacks) {
  qn_vm *vm = open_vm();
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, 256 << 10);
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, &attr, recurse, vm), 0);
  void *result;
  pthread_join(thread, &result);
  ck_assert_ptr_eq(result, vm);
  qn_vm_close(vm);
}
END_TEST

/* Wherever recursion finds the stack used up, the error has the place of the statement, not of one around it. */
START_TEST(overflows_have_places) {
  static const char *const statements[] = {
      "for k in (1,) { f(n) }",
      "for k in 0..1 { f(n) }",
      "let _ = (f(n), 2)[0]",
      "let _ = (1, 2)[f(n)]",
      "let _ = x[f(n):]",
      "let _ = {a: f(n), b: (f(n), 1), c: [f(n)]}",
      "x[i] = f(n)",
      "x[0] = f(n)",
      "x[f(n):] += 1",
      "y[f(n)] = 1",
      "r.a[f(n)] = 1",
      "(y[0], y[f(n)]) = (1, 2)",
  };
  for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
    for (size_t size = 60000; size < 62000; size += 48) {
      char text[300];
      snprintf(text, sizeof text,
               "fn f(n) {\n  let (x, y, i, r) = ([1, 2], (1, 2), [0], {a: (1, 2)})\n  if true {\n    %s\n  }\n  n\n}",
               statements[i]);
      qn_config config;
      qn_config_init(&config);
      config.stack_bytes = size;
      qn_vm *vm = open_with(&config);
      ck_assert_int_eq(run(vm, text, NULL), QN_OK);
      fails(vm, "f(1)", "E602");
      ck_assert_msg(qn_error_line(vm) == 4 || qn_error_line(vm) == 2, "%s", qn_error_report(vm));
      qn_vm_close(vm);
    }
}
END_TEST

static bool resolve(void *user, const char *from, const char *name, qn_source *out) {
  (void)user, (void)from;
  out->key = name;
  if (strcmp(name, "config") == 0)
    out->text = "let version = 3\nimport other\nfn both() = (version, other.x)";
  else if (strcmp(name, "other") == 0)
    out->text = "let x = 9";
  else if (strcmp(name, "broken") == 0)
    out->text = "let x = ";
  else
    return false;
  out->len = strlen(out->text);
  return true;
}

START_TEST(imports_by_host) {
  qn_config config;
  qn_config_init(&config);
  config.resolve = resolve;
  config.capabilities = 0;
  qn_vm *vm = open_with(&config);
  ck_assert_int_eq(run_int(vm, "import config\nimport nn\nconfig.both()[0] + config.both()[1]"), 12);
  fails(vm, "import missing", "E503");
  fails(vm, "import broken", "E102");
  qn_vm_close(vm);
  config.resolve = NULL;
  vm = open_with(&config);
  fails(vm, "import \"some/file.qn\" as f", "E505");
  ck_assert_int_eq(run(vm, "import nn", NULL), QN_OK);
  qn_vm_close(vm);
}
END_TEST

START_TEST(vms_are_apart) {
  qn_engine *engine = qn_engine_open();
  qn_config config;
  qn_config_init(&config);
  config.engine = engine;
  qn_vm *a = open_with(&config), *b = open_with(&config);
  ck_assert_int_eq(run(a, "let x = 1", NULL), QN_OK);
  fails(b, "x", "E401");
  ck_assert_int_eq(run(b, "let x = 2", NULL), QN_OK);
  ck_assert_int_eq(run_int(a, "x"), 1);
  qn_vm_close(a);
  ck_assert_int_eq(run_int(b, "x"), 2);
  qn_engine_close(engine); /* lives until its last VM is closed */
  ck_assert_int_eq(run_int(b, "int(sum(ones(300, 300) @ ones(300, 300))) // 300"), 90000);
  qn_vm_close(b);
}
END_TEST

START_TEST(warnings_go_to_the_sink) {
  qn_vm *vm = open_vm();
  ck_assert_int_eq(run(vm, "fn f() {\n  let unused = 1\n  let _meant = 2\n  3\n}\nf()", NULL), QN_OK);
  ck_assert_ptr_nonnull(strstr(out.text[1], "'unused' is never used"));
  ck_assert_ptr_nonnull(strstr(out.text[1], "test.qn:2:7"));
  ck_assert_ptr_null(strstr(out.text[1], "_meant"));
  qn_vm_close(vm);
}
END_TEST

/* foreign.def offers hints for names that nobody defined: a builtin of such a name would hide its row. */
START_TEST(words_of_others_are_no_builtins) {
  qn_vm *vm = open_vm();
  enum { SYNTAX = 0, NAME = 1, MEMBER = 0, KEYWORD = 0, TYPE = 0, CALL = 0, IMPORT = 0, ARRAY = 0 };
  static const struct {
    const char *words;
    int looked_up;
  } rows[] = {
#define FOREIGN(words, where, hint) {words, where},
#include "parser/foreign.def"
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char words[256];
    ck_assert_int_lt(snprintf(words, sizeof words, "%s", rows[i].words), sizeof words);
    for (char *word = strtok(words, " "); rows[i].looked_up && word; word = strtok(NULL, " ")) {
      qn_value v;
      ck_assert_msg(qn_get_global(vm, word, &v) != QN_OK, "%s", word);
    }
  }
  qn_vm_close(vm);
}
END_TEST

int main(void) {
  Suite *s = suite_create("interp");
  TCase *c;
#define ADD(test)                                                                                                      \
  tcase_set_timeout(c, 60);                                                                                            \
  tcase_add_test(c, test);                                                                                             \
  suite_add_tcase(s, c);
  c = tcase_create("eval");
  ADD(eval_gives_last_value)
  c = tcase_create("errors");
  ADD(errors_say_where)
  c = tcase_create("prompt");
  ADD(prompt_rules)
  c = tcase_create("calls_globals");
  ADD(calls_and_globals)
  c = tcase_create("interrupt");
  ADD(interrupt_cannot_be_caught)
  c = tcase_create("limits");
  ADD(limits)
  c = tcase_create("builtins_and_limits");
  ADD(builtins_look_at_limits)
  c = tcase_create("small_stacks");
  ADD(small_stacks)
  ADD(overflows_have_places)
  c = tcase_create("imports_by_host");
  ADD(imports_by_host)
  c = tcase_create("vms_apart");
  ADD(vms_are_apart)
  c = tcase_create("warnings");
  ADD(warnings_go_to_the_sink)
  c = tcase_create("words_of_others");
  ADD(words_of_others_are_no_builtins)
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_ENV);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
