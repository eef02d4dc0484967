/* Guards: for each kind of guard a call that it lets pass and one that it does not, with the reason that is printed, asked of the
 * entry itself (pattern_match, specialization_guards_hold). What programs see of it is in tests/language/jit/guards.qn. */
#include "tests/unit/gpu.h"
#include "tests/unit/trace_case.h"

enum { INPUTS = 64 };

/* Would the entry serve the call? `why` receives the reason against it. */
static bool fits(qn_vm *vm, const char *name, const specialization *e, qn_value args, bool check_by_value, char *why,
                 size_t size) {
  qn_array *arrays[INPUTS] = {NULL};
  qn_value scalars[INPUTS], f;
  ck_assert_uint_le(e->pattern.ninputs, INPUTS);
  ck_assert_int_eq(qn_get_global(vm, name, &f), QN_OK);
  const qn_list *l = value_list(args);
  text_buf t = {0};
  bool ok = pattern_match(&e->pattern, check_by_value, f, l->items, (int)l->len, arrays, scalars, &t) &&
            specialization_guards_hold(vm, e, scalars, &t);
  snprintf(why, size, "%.*s", (int)t.len, t.text ? t.text : "");
  /* Whether somebody wants to know changes nothing. */
  bool quiet = pattern_match(&e->pattern, check_by_value, f, l->items, (int)l->len, arrays, scalars, NULL) &&
               specialization_guards_hold(vm, e, scalars, NULL);
  ck_assert_int_eq(ok, quiet);
  ck_assert(!error_pending(vm));
  text_free(&t);
  qn_release(vm, f);
  return ok;
}

typedef struct guard_case {
  const char *fn;     /* f */
  const char *made;   /* the arguments of the recorded call, a list */
  const char *passes; /* arguments for which its entry holds, too */
  const char *fails;  /* and arguments for which it does not, */
  const char *why;    /* as is printed */
} guard_case;

static const guard_case cases[] = {
    /* arrays: dtype, rank, sizes */
    {"fn f(x) = x * 2", "(ones(2, 3),)", "(zeros(2, 3),)", "(ones(2, 4),)", "x is f32[2, 4] instead of f32[2, 3]"},
    {"fn f(x) = x * 2", "(ones(2, 3),)", "(zeros(3, 2).T,)", "(f64(ones(2, 3)),)",
     "x is f64[2, 3] instead of f32[2, 3]"},
    {"fn f(x) = x * 2", "(ones(2, 3),)", "(rand(2, 3),)", "(ones(3),)", "x is f32[3] instead of f32[2, 3]"},
    {"fn f(x) = x * 2", "(ones(1),)", "(zeros(1),)", "(ones(2),)", "x is f32[2] instead of f32[1]"},
    {"fn f(x, y) = x * y", "(ones(2), ones(2))", "(zeros(2), ones(2))", "(ones(2), 3)", "y is int 3 instead of f32[2]"},
    /* numbers by kind */
    {"fn f(x, y) = x * y", "(ones(2), 2)", "(ones(2), -7)", "(ones(2), 2.0)", "y is float 2.0 instead of an int"},
    {"fn f(x, y) = x * y", "(ones(2), 2.5)", "(ones(2), inf)", "(ones(2), 2)", "y is int 2 instead of a float"},
    {"fn f(x, y) = x * y", "(ones(2), 2)", "(ones(2), 3)", "(ones(2), ones(2))", "y is f32[2] instead of an int"},
    /* other values by what they are */
    {"fn f(x, b) = if b { x * 2 } else { x * 3 }", "(ones(2), true)", "(zeros(2), true)", "(ones(2), false)",
     "b is bool false instead of bool true"},
    {"fn f(x, b) = if b == nil { x * 2 } else { x * 3 }", "(ones(2), nil)", "(zeros(2), nil)", "(ones(2), 3)",
     "b is int 3 instead of nil"},
    {"fn f(x, s) = if s == \"ab\" { x * 2 } else { x }", "(ones(2), \"ab\")", "(ones(2), \"a\" + \"b\")",
     "(ones(2), \"abc\")", "s is str \"abc\" instead of str \"ab\""},
    {"fn f(x, t) = t(x * 2)", "(ones(2), f64)", "(zeros(2), f64)", "(ones(2), f16)",
     "t is dtype f16 instead of dtype f64"},
    {"fn f(x, r) { let s = x; for i in r { s = s + i }; s }", "(ones(2), 0..3)", "(ones(2), 0..3)", "(ones(2), 0..4)",
     "r is range 0..4 instead of range 0..3"},
    {"fn f(x, g) = g(x)", "(ones(2), sin)", "(zeros(2), sin)", "(ones(2), cos)",
     "g is fn cos instead of the function that it was"},
    {"let one = fn(x) x * 2\nlet two = fn(x) x * 3\nfn f(x, g) = g(x)", "(ones(2), one)", "(zeros(2), one)",
     "(ones(2), two)", "g is fn instead of the function that it was"},
    /* what functions have captured */
    {"fn maker(n) = fn(x) x * n\nfn f(x, g) = g(x)", "(ones(2), maker(2))", "(ones(2), maker(5))",
     "(ones(2), maker(2.0))", "g, captured n is float 2.0 instead of an int"},
    {"fn maker(n) = fn(x) x * n\nfn f(x, g) = g(x)", "(ones(2), maker(ones(2)))", "(ones(2), maker(zeros(2)))",
     "(ones(2), maker(ones(1)))", "g, captured n is f32[1] instead of f32[2]"},
    /* structure */
    {"fn f(l) = l[0] * 2", "((ones(2), 1),)", "((ones(2), 9),)", "((ones(2), 1, 2),)",
     "l is list of 3 instead of a list of 2"},
    {"fn f(l) = l[0] * 2", "((ones(2), (1, ones(3))),)", "((ones(2), (5, zeros(3))),)", "((ones(2), (1.0, ones(3))),)",
     "l[1][0] is float 1.0 instead of an int"},
    {"fn f(l) = l[0] * 2", "((ones(2), 1),)", "((ones(2), 9),)", "(ones(2),)", "l is f32[2] instead of a list of 2"},
    {"fn f(p) = p.w * 2", "({w: ones(2), b: 1},)", "({w: zeros(2), b: 3},)", "({w: ones(3), b: 1},)",
     "p.w is f32[3] instead of f32[2]"},
    {"fn f(p) = p.w * 2", "({w: ones(2)},)", "({w: zeros(2)},)", "({w: ones(2), b: 1},)",
     "p is record {w, b} instead of record {w}"},
    {"fn f(p) = p.w * 2", "({w: ones(2), b: 1},)", "({w: ones(2), b: 3},)", "({b: 1, w: ones(2)},)",
     "p is record {b, w} instead of record {w, b}"},
    /* numbers that steer: as far as they lead the same way */
    {"fn f(x, n) = if n > 2 { x * 2 } else { x * 3 }", "(ones(2), 3)", "(ones(2), 4)", "(ones(2), 1)",
     "n > 2 is false instead of true"},
    {"fn f(x, n) = if n > 2 { x * 2 } else { x * 3 }", "(ones(2), 0.5)", "(ones(2), -inf)", "(ones(2), 2.5)",
     "n > 2.0 is true instead of false"},
    {"fn f(x, n) = if n * 2 + 1 > 6 { x * 2 } else { x * 3 }", "(ones(2), 3)", "(ones(2), 30)", "(ones(2), 1)",
     "(n * 2) + 1 > 6 is false instead of true"},
    {"fn f(x, n) = x.reshape(n, -1)", "(ones(2, 3), 3)", "(zeros(2, 3), 3)", "(ones(2, 3), 2)",
     "n is int 2 instead of int 3"},
    {"fn f(x, n) { let s = x; for i in list(0..n) { s = s + i }; s }", "(ones(2), 3)", "(zeros(2), 3)", "(ones(2), 4)",
     "n is int 4 instead of int 3"},
    {"fn f(x, p) = if p[0] < p[1].k { x * 2 } else { x }", "(ones(2), (1, {k: 2}))", "(ones(2), (-5, {k: 0}))",
     "(ones(2), (3, {k: 2}))", "p[0] < p[1].k is false instead of true"},
    {"fn f(x, n) = if 12 // n > 2 { x * 2 } else { x }", "(ones(2), 3)", "(ones(2), 4)", "(ones(2), 0)",
     "12 // n cannot be computed"},
};

START_TEST(each_kind_of_guard) {
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const guard_case *c = &cases[i];
    qn_vm *vm = trace_vm(QN_JIT_SYNC);
    tune(vm, "jit.symbolic", "0"); /* sizes are guards like others */
    good(vm, c->fn);
    qn_value made = value_of(vm, c->made), passes = value_of(vm, c->passes), fails = value_of(vm, c->fails);
    qn_release(vm, call_with(vm, "f", made));
    ck_assert_msg(entries_in(vm, "f") == 1 && entry_at(vm, "f", 0)->state == SPEC_READY, "%s", c->fn);
    specialization *e = entry_at(vm, "f", 0);
    char why[300];
    ck_assert_msg(fits(vm, "f", e, made, true, why, sizeof why), "%s %s: %s", c->fn, c->made, why);
    ck_assert_msg(fits(vm, "f", e, passes, true, why, sizeof why), "%s %s: %s", c->fn, c->passes, why);
    ck_assert_msg(!fits(vm, "f", e, fails, true, why, sizeof why), "%s %s", c->fn, c->fails);
    ck_assert_msg(strcmp(why, c->why) == 0, "%s %s: %s", c->fn, c->fails, why);
    /* What passes is served, what does not is recorded, for this reason. */
    qn_release(vm, call_with(vm, "f", passes));
    ck_assert_uint_eq(e->replays, 1);
    ck_assert_uint_eq(entries_of(vm, "f")->nrecompiles, 0);
    qn_value f, r;
    ck_assert_int_eq(qn_get_global(vm, "f", &f), QN_OK);
    if (qn_call(vm, f, value_list(fails)->items, (int)value_list(fails)->len, &r) == QN_OK) qn_release(vm, r);
    qn_release(vm, f);
    ck_assert_uint_eq(entries_of(vm, "f")->nrecompiles, 1);
    ck_assert_str_eq(entries_of(vm, "f")->recompiles[0].text, c->why);
    ck_assert_uint_eq(e->replays, 1);
    qn_release(vm, made);
    qn_release(vm, passes);
    qn_release(vm, fails);
    qn_vm_close(vm);
  }
}
END_TEST

START_TEST(number_of_arguments) {
  qn_vm *vm = trace_vm(QN_JIT_SYNC);
  good(vm, "fn f(x, y) = x * y\nf(ones(2), 3)");
  qn_value one = value_of(vm, "(ones(2),)");
  char why[300];
  ck_assert(!fits(vm, "f", entry_at(vm, "f", 0), one, true, why, sizeof why));
  ck_assert_str_eq(why, "another number of arguments");
  qn_release(vm, one);
  qn_vm_close(vm);
}
END_TEST

/* Globals: arrays and numbers by what they look like, at each call; what is fixed only after something watched was rebound. */
START_TEST(globals) {
  static const struct {
    const char *before, *body, *passes, *fails, *why;
    bool by_value;
  } list[] = {
      {"ones(3)", "x * g", "zeros(3)", "ones(2, 3)", "global g is f32[2, 3] instead of f32[3]", false},
      {"0.5", "x * g", "7.25", "2", "global g is int 2 instead of a float", false},
      {"2", "if g == 2 { x * 3 } else { x }", "2", "3", "global g == 2 is false instead of true", false},
      {"\"a\"", "if g == \"a\" { x * 3 } else { x }", "\"a\"", "\"b\"", "global g is str \"b\" instead of str \"a\"",
       true},
      {"true", "if g { x * 3 } else { x }", "true", "false", "global g is bool false instead of bool true", true},
      {"nil", "if g == nil { x * 3 } else { x }", "nil", "1", "global g is int 1 instead of nil", true},
      {"twice", "g(x)", "twice", "thrice", "global g is fn instead of the function that it was", true},
      {"(1, ones(2))", "x * g[0]", "(5, zeros(2))", "(1, ones(3))", "global g[1] is f32[3] instead of f32[2]", false},
  };
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    qn_vm *vm = trace_vm(QN_JIT_SYNC);
    char text[400], why[300];
    snprintf(text, sizeof text,
             "let twice = fn(x) x * 2\nlet thrice = fn(x) x * 3\nlet g = %s\n"
             "fn f(x) = %s\nlet out = f(ones(3))",
             list[i].before, list[i].body);
    good(vm, text);
    qn_value args = value_of(vm, "(ones(3),)");
    specialization *e = entry_at(vm, "f", 0);
    ck_assert_ptr_nonnull(e);
    ck_assert_msg(fits(vm, "f", e, args, true, why, sizeof why), "%s: %s", list[i].before, why);
    snprintf(text, sizeof text, "g = %s", list[i].passes);
    good(vm, text);
    ck_assert_msg(fits(vm, "f", e, args, true, why, sizeof why), "%s: %s", list[i].passes, why);
    uint64_t epoch = jit_of(vm)->epoch;
    snprintf(text, sizeof text, "g = %s", list[i].fails);
    good(vm, text);
    ck_assert_msg(!fits(vm, "f", e, args, true, why, sizeof why), "%s", list[i].fails);
    ck_assert_msg(strcmp(why, list[i].why) == 0, "%s: %s", list[i].fails, why);
    /* The epoch tells of what is not looked at at each call. */
    if (list[i].by_value) ck_assert_uint_gt(jit_of(vm)->epoch, epoch);
    ck_assert_msg(fits(vm, "f", e, args, false, why, sizeof why) == list[i].by_value, "%s: %s", list[i].fails, why);
    qn_release(vm, args);
    qn_vm_close(vm);
  }
}
END_TEST

/* Builtins are guarded where a global could hide them, and that is not told. */
START_TEST(builtins_that_become_hidden) {
  qn_vm *vm = trace_vm(QN_JIT_SYNC);
  good(vm, "fn f(x) = tanh(x) * 2\nlet out = f(ones(3))");
  specialization *e = entry_at(vm, "f", 0);
  text_buf t = {0};
  specialization_guards(e, &t);
  ck_assert_str_eq(t.text, "x: f32[3]\n");
  text_free(&t);
  qn_vm_close(vm);
}
END_TEST

/* The guards as text, one a line. */
START_TEST(guards_as_text) {
  static const char *const list[][3] = {
      {"fn f(x, n) = if n * 2 > 6 { x * 2 } else { x * 3 }", "f(ones(2), 4)", "x: f32[2]\nn: int\nn * 2 > 6 is true\n"},
      {"fn f(p) = p.w[0] * p.k", "f({w: (ones(2), nil), k: 2.5, name: \"n\"})",
       "p: {w: (f32[2], nil), k: float, name: str \"n\"}\n"},
      {"let a = ones(2)\nlet b = \"text\"\nfn f(x) = x * a * len(b)", "f(ones(2))",
       "x: f32[2]\nglobal a: f32[2]\nglobal b: str \"text\"\n"},
      {"fn maker(n) = fn(x) x * n\nfn f(x, g) = g(x)", "f(ones(2), maker(3))", "x: f32[2]\ng: fn over (int)\n"},
  };
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    qn_vm *vm = trace_vm(QN_JIT_SYNC);
    good(vm, list[i][0]);
    good(vm, list[i][1]);
    text_buf t = {0};
    specialization_guards(entry_at(vm, "f", 0), &t);
    ck_assert_str_eq(t.text, list[i][2]);
    text_free(&t);
    qn_vm_close(vm);
  }
}
END_TEST

/* On a device: where an array is; and how it lies, where the library's products depend on that. */
START_TEST(places_and_layouts) {
  qn_vm *vm = vm_compiling();
  tune(vm, "jit.hot", "1");
  good(vm, "fn f(x) = x * 2\nlet out = f(ones(3))");
  char why[300];
  specialization *e = entry_at(vm, "f", 0);
  qn_value there = value_of(vm, "(zeros(3),)"), here = value_of(vm, "(zeros(3).to(cpu),)");
  ck_assert_msg(fits(vm, "f", e, there, true, why, sizeof why), "%s", why);
  ck_assert(!fits(vm, "f", e, here, true, why, sizeof why));
  ck_assert_str_eq(why, "x is f32[3] instead of f32[3]");
  qn_release(vm, there);
  qn_release(vm, here);
  good(vm, "fn g(x, y) = x @ y + 1\nlet out2 = g(ones(4, 4), ones(4, 4))");
  e = entry_at(vm, "g", 0);
  there = value_of(vm, "(zeros(4, 4), ones(4, 4))");
  qn_value turned = value_of(vm, "(zeros(4, 4), ones(4, 4).T)");
  ck_assert_msg(fits(vm, "g", e, there, true, why, sizeof why), "%s", why);
  ck_assert(!fits(vm, "g", e, turned, true, why, sizeof why));
  ck_assert_str_eq(why, "y lies in memory otherwise");
  qn_release(vm, there);
  qn_release(vm, turned);
  qn_vm_close(vm);
}
END_TEST

int main(void) {
  Suite *s = suite_create("trace_guards");
  CASE(tcase_create("each_kind_of_guard"), each_kind_of_guard);
  CASE(tcase_create("number_of_arguments"), number_of_arguments);
  CASE(tcase_create("globals"), globals);
  CASE(tcase_create("builtins_that_become_hidden"), builtins_that_become_hidden);
  CASE(tcase_create("guards_as_text"), guards_as_text);
  CASE(tcase_create("places_and_layouts"), places_and_layouts);
  return run_suite(s);
}
