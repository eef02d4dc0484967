/* Copy-on-write as the VM counts it: an update of a value with one owner copies nothing, whatever the path, the place and the size;
 * with a second owner it copies exactly what is shared. Times are not looked at: a copy in a loop shows as thousands of copies. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "lang/vm.h"

static qn_vm *vm;

static void drop(void *user, int stream, const char *text, size_t len) {
  (void)user, (void)stream, (void)text, (void)len;
}

static void set_up(void) {
  qn_config config;
  qn_config_init(&config);
  config.jit = QN_JIT_OFF;
  config.threads = 1;
  config.write = drop; /* warnings */
  vm = qn_vm_open(&config);
  ck_assert_ptr_nonnull(vm);
}

static void tear_down(void) { qn_vm_close(vm); }

/* How many copies does a text make? */
static uint64_t copies(const char *text) {
  uint64_t before = vm->copies.count;
  ck_assert_msg(qn_eval(vm, "test.qn", text, strlen(text), NULL) == QN_OK, "%s\n%s", text, qn_error_report(vm));
  return vm->copies.count - before;
}

typedef struct form {
  const char *setup;  /* makes x */
  const char *update; /* of x, with the loop's i */
} form;

static const form forms[] = {
    {"zeros(100_000)", "x[i] = 1.0"},
    {"zeros(100_000)", "x[i] += 1.0"},
    {"zeros(100, 50)", "x[i % 100] = i"},
    {"zeros(100, 50)", "x[i % 100, 3] = 2"},
    {"zeros(100, 50)", "x[1:5, i % 50] = 2"},
    {"zeros(100)", "x[i % 100] = x[3]"},
    {"[1, 2, 3]", "(x[0], x[2]) = (x[2], x[0])"},
    {"()", "x = append(x, i)"},
    {"()", "x = x.append(i)"},
    {"()", "x = x.append(i + len(x))"},
    {"()", "x = insert(x, 0, i)"},
    {"()", "x = x + (i,)"},
    {"()", "x += (i, i)"},
    {"list(0..3000)", "x = remove(x, 0)"},
    {"list(0..3000)", "x[i] = i * 2"},
    {"list(0..3000)", "x[-1 - i] += 3"},
    {"list(0..3000)", "(x[i], x[0]) = (x[0], x[i])"},
    {"((1, 2), (3, (4, 5)))", "x[1][1][i % 2] = i"},
    {"{a: 0, b: 1}", "x.a = i"},
    {"{a: 0, b: 1}", "x.a += i"},
    {"{a: 0, b: 1}", "x[\"b\"] = i"},
    {"{a: 0, b: 1}", "x[\"k{i % 70}\"] = i"},
    {"{b: {c: {d: 0}}}", "x.b.c.d = i"},
    {"{b: {c: {d: 0}}}", "x.b.c.d = x.b.c.d + i"},
    {"{b: {c: {d: 0}}}", "x.b.c.d *= 2.0"},
    {"{b: {c: {d: ()}}}", "x.b.c.d = append(x.b.c.d, i)"},
    {"{b: {c: {d: ()}}}", "x.b.c.d = x.b.c.d.append(i)"},
    {"{b: {c: {d: ()}}}", "x.b.c.d += (i,)"},
    {"{b: ({c: 0}, {c: 1}), n: 0}", "x.b[i % 2].c = i"},
    {"{b: ({c: 0}, {c: 1}), n: 0}", "x.b[i % 2].c += i"},
    {"{b: ((), 1), n: 0}", "x.b[0] = append(x.b[0], i)"},
    {"{w: zeros(50), n: 0}", "x.w[i % 50] = 2.0"},
    {"{w: zeros(50), n: 0}", "x.w[i % 50] *= 2.0"},
    {"({w: zeros(5, 5)}, 1)", "x[0].w[i % 5, 2] = 2.0"},
    {"{w: zeros(50)}", "x.w = x.w + 1.0"},
    {"{n: 0, s: {t: ()}}", "(x.n, x.s.t) = (i, ())"},
};
enum { FORMS = sizeof forms / sizeof *forms };

/* Where x may live: %s and %s are the setup and the update. */
static const char *const places[] = {
    "let x = %s\nfor i in 0..3000 { %s }\n",
    "let x = %s\nlet i = 0\nwhile i < 3000 {\n%s\ni += 1\n}\n",
    "fn f(n) {\nlet x = %s\nfor i in 0..n { %s }\nx\n}\nlet y = f(3000)\n",
    "fn g(x, n) {\nfor i in 0..n { %2$s }\nx\n}\nlet y = g(%1$s, 3000)\n",
    "fn h(x, i) {\n%2$s\nx\n}\nfn f(n) {\nlet x = %1$s\nfor i in 0..n { x = h(x, i) }\nx\n}\nlet y = f(3000)\n",
    "fn f(n) {\nlet r = 0\nfor _ in 0..3 {\nlet x = %s\nfor i in 0..n {\nif i >= 0 { %s }\n}\nr = x\n}\nr\n}\nlet y = "
    "f(1000)\n",
    "fn f(n) {\nlet x = %s\nfor i in 0..n {\ntry { %s } catch e { print(e.message) }\n}\nx\n}\nlet y = f(3000)\n",
    "let f = fn(x, n) {\nlet k = 1\nlet g = fn(x, i) {\n%2$s\nx\n}\nfor i in 0..n { x = g(x, i) }\n(x, k)\n}\nlet y = "
    "f(%1$s, 3000)\n",
};
enum { PLACES = sizeof places / sizeof *places };

START_TEST(one_owner_copies_nothing) {
  const char *place = places[_i / FORMS];
  const form *f = &forms[_i % FORMS];
  char text[1024];
  int len = snprintf(text, sizeof text, place, f->setup, f->update);
  ck_assert(len > 0 && (size_t)len < sizeof text);
  uint64_t n = copies(text);
  ck_assert_msg(n == 0, "%llu copies, the last one on line %d of\n%s", (unsigned long long)n,
                (int)(vm->copies.at.start ? vm->copies.at.start : 0), text);
}
END_TEST

START_TEST(second_owner_is_copied_once) {
  static const form twice[] = {
      {"zeros(1000)", "x[i] = 1.0"},  {"zeros(1000)", "x[i] += 1.0"},    {"list(0..1000)", "x[i] = 1"},
      {"(1, 2)", "x = append(x, i)"}, {"(1, 2)", "x = insert(x, 0, i)"}, {"list(0..1000)", "x = x.remove(0)"},
      {"{a: 0, b: 1}", "x.a = i"},    {"{a: 0, b: 1}", "x.b += i"},
  };
  static const char *const owners[] = {
      "let x = %s\nlet y = x\nfor i in 0..500 { %s }\n",
      "fn f(x) {\nfor i in 0..500 { %2$s }\nx\n}\nlet v = %1$s\nlet y = f(v)\n",
      "fn f(x) {\nlet y = (x, 1)\nfor i in 0..500 { %2$s }\n(x, y)\n}\nlet y = f(%1$s)\n",
      "fn f(x) {\nlet y = fn() x\nfor i in 0..500 { %2$s }\n(x, y)\n}\nlet y = f(%1$s)\n",
  };
  for (size_t k = 0; k < sizeof owners / sizeof *owners; k++)
    for (size_t i = 0; i < sizeof twice / sizeof *twice; i++) {
      char text[1024];
      snprintf(text, sizeof text, owners[k], twice[i].setup, twice[i].update);
      uint64_t n = copies(text);
      ck_assert_msg(n == 1, "%llu copies\n%s", (unsigned long long)n, text);
    }
}
END_TEST

/* Along a path, what has another owner is copied, and with it the way to it has: the rest is not. */
START_TEST(paths_copy_what_is_shared) {
  ck_assert_uint_eq(copies("let a = {b: {c: {d: 0}}}\nlet k = a.b.c\nfor i in 0..9 { a.b.c.d = i }\n"), 1);
  ck_assert_uint_eq(copies("let a = {b: {c: {d: 0}}}\nlet k = a.b\nfor i in 0..9 { a.b.c.d = i }\n"), 2);
  ck_assert_uint_eq(copies("let a = {b: {c: {d: 0}}}\nlet k = a\nfor i in 0..9 { a.b.c.d = i }\n"), 3);
  ck_assert_uint_eq(copies("let a = {b: ({w: zeros(4)}, 1)}\nlet k = a.b[0].w\nfor i in 0..4 { a.b[0].w[i] = i }\n"),
                    1);
  ck_assert_uint_eq(copies("let a = {b: ({w: zeros(4)}, 1)}\nlet k = a.b\nfor i in 0..4 { a.b[0].w[i] = i }\n"), 3);
  ck_assert_uint_eq(copies("let xs = (zeros(300), 1)\nlet v = xs[0][1:]\nfor i in 0..3 { xs[0][i] = 2.0 }\n"), 1);
}
END_TEST

START_TEST(copies_say_how_much_and_where) {
  uint64_t bytes = vm->copies.bytes;
  ck_assert_uint_eq(copies("let x = zeros(1000)\nlet y = x\n\nx[0] = 1.0\nx[1] = 1.0\n"), 1);
  ck_assert_uint_eq(vm->copies.bytes - bytes, 4000);
  const source_text *s = source_get(vm, vm->copies.at.source);
  ck_assert_ptr_nonnull(s);
  int line, column;
  source_position(s, vm->copies.at.start, &line, &column);
  ck_assert_int_eq(line, 4);
  ck_assert_uint_eq(copies("let l = (1, 2)\nlet m = append(l,\n  3)\n"), 1);
  s = source_get(vm, vm->copies.at.source);
  source_position(s, vm->copies.at.start, &line, &column);
  ck_assert_int_eq(line, 2);
}
END_TEST

/* What is moved into a call comes back when the call fails. */
START_TEST(failed_updates_keep_the_value) {
  static const char *const texts[] = {
      "let x = (1, 2)\ntry { x = insert(x, 9, 0) } catch e {}\nassert(x == (1, 2))\n",
      "fn f() {\nlet r = {a: (1, 2)}\ntry { r.a = insert(r.a, 9, 0) } catch e {}\nr\n}\nassert(f() == {a: (1, 2)})\n",
      "let r = {a: ((1, 2), 3)}\ntry { r.a[0] = r.a[0].remove(7) } catch e {}\nassert(r == {a: ((1, 2), 3)})\n",
      "let r = {a: 1}\ntry { r.a = r.a + \"x\" } catch e {}\nassert(r == {a: 1})\n",
      "let r = {a: \"x\"}\ntry { r.a = r.a + 1 } catch e {}\nassert(r.a == \"x\")\n",
      "let s = \"x\"\nlet t = s\ns += \"y\"\ns += \"z\"\nassert(s == \"xyz\" and t == \"x\")\n",
      "fn f(s) {\nlet t = ()\nfor i in 0..4 {\nt += (s,)\ns = s + \"a\"\n}\n(s, t)\n}\nassert(f(\"\") == (\"aaaa\", "
      "(\"\", "
      "\"a\", \"aa\", \"aaa\")))\n",
  };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) copies(texts[i]);
  copies("let s = \"ab\"\nfor _ in 0..3 { s = s + s }\nassert(s == \"abababababababab\" and len(s) == 16)\n");
  copies("let l = (1, 2)\nfor _ in 0..2 { l += l }\nassert(l == (1, 2, 1, 2, 1, 2, 1, 2))\n");
  copies(
      "let s = \"a\"\nfor _ in 0..100 { s += \"é\" }\nassert(len(s) == 101 and s[100] == \"é\" and s[0] == \"a\")\n");
  copies("let r = {ab: 1}\nlet k = \"\"\nk += \"a\"\nk += \"b\"\nassert(r[k] == 1)\nr[k] = 2\nassert(r.ab == 2)\n");
}
END_TEST

int main(void) {
  Suite *s = suite_create("copies");
  TCase *t = tcase_create("one_owner");
  tcase_add_checked_fixture(t, set_up, tear_down);
  tcase_add_loop_test(t, one_owner_copies_nothing, 0, FORMS * PLACES);
  suite_add_tcase(s, t);
  t = tcase_create("two_owners");
  tcase_add_checked_fixture(t, set_up, tear_down);
  tcase_add_test(t, second_owner_is_copied_once);
  tcase_add_test(t, paths_copy_what_is_shared);
  tcase_add_test(t, copies_say_how_much_and_where);
  suite_add_tcase(s, t);
  t = tcase_create("values");
  tcase_add_checked_fixture(t, set_up, tear_down);
  tcase_add_test(t, failed_updates_keep_the_value);
  suite_add_tcase(s, t);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_ENV);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed != 0;
}
