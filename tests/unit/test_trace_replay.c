/* Replay (jit/trace/calls.c): a call that a plan serves gives what the recorded and the eager call give, for all forms of inputs and
 * results; what it counts; random numbers; errors; allocations that fail. */
#include "tests/unit/trace_case.h"

static bool same_text(qn_vm *vm, qn_value a, qn_value b, char *what, size_t size) {
  qn_value x, y;
  ck_assert_int_eq(qn_to_text(vm, a, &x), QN_OK);
  ck_assert_int_eq(qn_to_text(vm, b, &y), QN_OK);
  bool same = strcmp(qn_as_string(x, NULL), qn_as_string(y, NULL)) == 0;
  snprintf(what, size, "%s instead of %s", qn_as_string(x, NULL), qn_as_string(y, NULL));
  qn_release(vm, x);
  qn_release(vm, y);
  return same;
}

typedef struct replay_case {
  const char *what, *program, *args, *others; /* two lists of arguments for one entry */
} replay_case;

static const replay_case cases[] = {
    {"an array", "fn f(x) = x * 2 + 1", "([1.0, 2.0],)", "([5.0, -3.0],)"},
    {"many results",
     "fn f(x) = (x + 0, x + 1, x + 2, x + 3, x + 4, x + 5, x + 6, x + 7, x + 8, x + 9, x + 10, x + 11, x + 12, x + 13, "
     "x + 14, x + 15, x + 16, x + 17, x + 18, x + 19)",
     "([1.0, 2.0],)", "([5.0, -3.0],)"},
    {"many inputs", "fn f(l) { let s = l[0]; for x in l[1:] { s = s * 0.5 + x }; s }",
     "(map(list(0..60), fn(i) ones(2) * i),)", "(map(list(0..60), fn(i) [1.0, -1.0] * i),)"},
    {"many inputs and numbers", "fn f(l) { let s = l[0]; for x in l[1:] { s = s * 0.5 + x }; s }",
     "((ones(2),) + list(0..60),)", "((zeros(2),) + list(100..160),)"},
    {"views are read as they lie", "fn f(x, y) = x * 2 - y", "(arange(6).reshape(2, 3), arange(6).reshape(3, 2).T)",
     "(arange(12).reshape(4, 3)[1:3], arange(12).reshape(2, 6)[:, 0:3])"},
    {"many views", "fn f(l) { let s = l[0]; for x in l[1:] { s = s * 0.5 + x }; s }",
     "(map(list(0..70), fn(i) (ones(2, 3) * i).T),)",
     "(map(list(0..70), fn(i) if i % 2 == 0 { (rand(2, 3) * i).T } else { rand(3, 2) }),)"},
    {"one array at two places", "fn f(x, y) = x * 2 + y", "(ones(3), ones(3))",
     "map((1,), fn(i) { let a = [1.0, 2.0, 3.0]; (a, a) })[0]"},
    {"trees", "fn f(p, n) = {sum: p.a + p.b[0], rest: (p.b[1] * n, nil, \"text\", {n: n + 1})}",
     "({a: ones(2), b: (ones(2), 3.0)}, 2)", "({a: zeros(2), b: ([1.0, 4.0], 7.5)}, 5)"},
    {"numbers", "fn f(x, n) = (sum(x) * n, n * 2, n / 4, n > -1)", "(ones(3), 2)", "([1.0, 5.0, 7.0], 9)"},
    {"an argument comes back", "fn f(x, y) = (y, x * 2, x)", "(ones(2), zeros(3))", "([4.0, 5.0], [1.0, 2.0, 3.0])"},
    {"changed in place", "fn f(x, v) { x[0] = v; x[1] += 10; (x, sum(x)) }", "(ones(3), 5.0)",
     "([1.0, 2.0, 3.0], -7.5)"},
    {"no elements", "fn f(x, y) = (x * 2, sum(x), concat((x, y)))", "(zeros(0), ones(2))", "(zeros(0), [3.0, 4.0])"},
    {"dtypes", "fn f(x, y) = (x + y, x // 2, f16(x) * y, x > 3)", "(arange(4), f64([1, 2, 3, 4]))",
     "(arange(4) * 3, f64([9, 8, 7, 6]))"},
    {"random numbers", "fn f(x) = (x + rand(2), randn(2), x * randint(0, 10, 2))", "(ones(2),)", "(zeros(2),)"},
    {"gradients", "let f = grad(fn(x, w) sum(tanh(x * w) ** 2))", "([0.5, 1.5], [1.0, 2.0])",
     "([-0.5, 0.25], [3.0, -1.0])"},
    {"lanes", "let f = vmap(fn(x, y) x * sum(y) + y)", "(ones(3), ones(3, 2))",
     "([1.0, 2.0, 3.0], arange(6).reshape(3, 2) * 1.0)"},
    {"branches on numbers", "fn f(x, n) = if n > 3 { x * n } else { x + n }", "(ones(2), 1)", "([1.0, 2.0], 3)"},
};

static specialization *only_entry(qn_vm *vm) {
  specialization *found = NULL;
  for (anchor_specializations *a = jit_of(vm)->anchors; a; a = a->next)
    for (specialization *e = a->first; e; e = e->next) {
      if (e->state != SPEC_READY) continue;
      ck_assert_ptr_null(found);
      found = e;
    }
  ck_assert_ptr_nonnull(found);
  return found;
}

/* Twice with each arguments, in turn, as eager calls give it; the arguments stay what they are. */
START_TEST(results_are_those_of_eager_calls) {
  static const qn_jit_mode modes[] = {QN_JIT_SYNC, QN_JIT_VERIFY};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
      const replay_case *c = &cases[i];
      qn_vm *off = trace_vm(QN_JIT_OFF), *vm = trace_vm(modes[m]);
      tune(vm, "jit.turns", "0");
      char what[2000];
      for (int k = 0; k < 2; k++) {
        good(k ? vm : off, "seed(7)");
        good(k ? vm : off, c->program);
      }
      for (int turn = 0; turn < 5; turn++) {
        const char *text = turn % 2 ? c->others : c->args;
        good(off, "seed(11)");
        good(vm, "seed(11)");
        qn_value a = value_of(off, text), b = value_of(vm, text), before = value_of(vm, "seed(11)");
        qn_release(vm, before);
        qn_value again = value_of(vm, text);
        good(off, "seed(12)");
        good(vm, "seed(12)");
        qn_value want = call_with(off, "f", a), got = call_with(vm, "f", b);
        qn_value x, y; /* texts of different VMs */
        ck_assert_int_eq(qn_to_text(off, want, &x), QN_OK);
        ck_assert_int_eq(qn_to_text(vm, got, &y), QN_OK);
        ck_assert_msg(strcmp(qn_as_string(x, NULL), qn_as_string(y, NULL)) == 0, "%s, turn %d: %s instead of %s",
                      c->what, turn, qn_as_string(y, NULL), qn_as_string(x, NULL));
        ck_assert_msg(same_text(vm, b, again, what, sizeof what), "%s: an argument has become %s", c->what, what);
        ck_assert_uint_eq(off->draw, vm->draw);
        qn_release(off, x);
        qn_release(vm, y);
        qn_release(off, want);
        qn_release(vm, got);
        qn_release(off, a);
        qn_release(vm, b);
        qn_release(vm, again);
      }
      const specialization *e = only_entry(vm);
      ck_assert_msg(e->hits == 4, "%s: %d hits", c->what, (int)e->hits);
      ck_assert_uint_eq(e->replays, modes[m] == QN_JIT_SYNC ? 4 : 0);
      ck_assert_uint_eq(e->verified, modes[m] == QN_JIT_SYNC ? 0 : 4);
      ck_assert_uint_eq(e->running, 0);
      qn_vm_close(off);
      qn_vm_close(vm);
    }
}
END_TEST

/* The results of a call are new: they share nothing with those of the next one, nor with its arguments. */
START_TEST(results_are_new) {
  qn_vm *vm = trace_vm(QN_JIT_SYNC);
  good(vm,
       "fn f(x) = (x * 2, x.reshape(4), {same: x})\nlet x = ones(2, 2)\nlet first = f(x)\nlet a = f(x)\nlet b = f(x)\n"
       "a[0][0, 0] = 50\na[1][1] = 60\na[2].same[1, 1] = 70\nx[0, 0] = 80");
  ck_assert_double_eq(number(vm, "float(sum(first[0]) + sum(first[1]) + sum(first[2].same))"), 16);
  ck_assert_double_eq(number(vm, "float(sum(b[0]) + sum(b[1]) + sum(b[2].same))"), 16);
  ck_assert_uint_eq(only_entry(vm)->replays, 2);
  qn_vm_close(vm);
}
END_TEST

/* A function that the call makes is a new one each time, one that it was given is itself. */
START_TEST(functions_in_results) {
  qn_vm *vm = trace_vm(QN_JIT_SYNC);
  good(vm, "fn f(x, g) { let made = fn(y) y * x; (made, made, g, sum(x)) }\nlet given = fn(x) x\n"
           "let a = f(ones(2), given)\nlet b = f(ones(2) * 3, given)\nlet c = f(ones(2) * 5, given)");
  ck_assert_double_eq(
      number(vm, "if b[0] == b[1] and b[0] != c[0] and b[2] == given and c[2] == given { 1 } else { 0 }"), 1);
  ck_assert_double_eq(number(vm, "float(sum(b[0](ones(2))) + sum(c[1](ones(2))))"), 16);
  qn_vm_close(vm);
}
END_TEST

/* Compiled code that fails: the interpreter makes the call again, for the error with its operands and place. */
START_TEST(errors_are_the_interpreters) {
  qn_vm *off = trace_vm(QN_JIT_OFF), *vm = trace_vm(QN_JIT_SYNC);
  static const char program[] = "fn f(x, i) {\n  let y = x * 2\n  y[i] + 1\n}\n";
  static const char call[] = "f([1.0, 2.0, 3.0], [0, 5])";
  good(off, program);
  good(vm, program);
  for (int i = 0; i < 3; i++) good(vm, "f([1.0, 2.0, 3.0], [0, 2])");
  specialization *e = only_entry(vm);
  uint64_t replays = e->replays, hits = e->hits;
  ck_assert_uint_eq(replays, 2);
  ck_assert_int_eq(qn_eval(off, "test.qn", call, strlen(call), NULL), QN_ERROR);
  for (int i = 1; i <= 3; i++) {
    ck_assert_int_eq(qn_eval(vm, "test.qn", call, strlen(call), NULL), QN_ERROR);
    ck_assert_str_eq(qn_error_report(vm), qn_error_report(off));
    ck_assert_uint_eq(e->replays, replays);
    ck_assert_uint_eq(e->hits, hits);
    ck_assert_uint_eq(entries_of(vm, "f")->calls[CALL_again], (uint64_t)i);
    ck_assert_uint_eq(e->running, 0);
  }
  good(vm, "f([1.0, 2.0, 3.0], [0, 1])");
  ck_assert_uint_eq(e->replays, replays + 1);
  qn_vm_close(off);
  qn_vm_close(vm);
}
END_TEST

/* A call fails, twice, as in `off`, and the interpreter makes at most so many steps of each. */
static void fails_in_few_steps(qn_vm *off, qn_vm *vm, const char *call, uint64_t most) {
  ck_assert_int_eq(qn_eval(off, "test.qn", call, strlen(call), NULL), QN_ERROR);
  for (int i = 0; i < 2; i++) {
    uint64_t before = vm->steps;
    ck_assert_int_eq(qn_eval(vm, "test.qn", call, strlen(call), NULL), QN_ERROR);
    ck_assert_str_eq(qn_error_report(vm), qn_error_report(off));
    ck_assert_uint_le(vm->steps - before, most);
  }
}

/* A call that fails deep in a loop: the interpreter makes but the turns in which that is, and the first ones, which are counted. */
START_TEST(the_interpreter_makes_few_turns_again) {
  static const char *const loops[] = {
      "for i in 0..n { s = s * 0.999 + 1; assert(s < most - i, \"{s} at {i}\") }",
      "let i = 0; while i < n { s = s * 0.999 + 1; assert(s < most - i, \"{s} at {i}\"); i += 1 }",
      "let i = x[0]; while i < n { s = s * 0.999 + 1; assert(s < most - i, \"{s} at {i}\"); i = i + 1 }",
      "for i in 0..n { s = s * 0.999 + 1; if s > 2000 { break }; assert(s < most - i, \"{s} at {i}\") }",
      "for i in 0..n { s = s * 0.999 + 1; if s > 999 { s = s / 2; continue }; assert(s < most - i, \"{s} at {i}\") }",
      "let i = 0; while true { s = s * 0.999 + 1; if s > 2000 { return s * i }; assert(s < most - i, \"{s}\"); i += 1; "
      "if "
      "i == n "
      "{ break } }",
      "let b = 0; for i in 0..n { s = s * 0.999 + 1; if s > 90 { b = s }; assert(s < most - i, \"{b}\") }",
      "let b = 0; let i = 0; while i < n { s = s * 0.999 + 1; if s > 90 { b = s; if b > 2000 { return b } }; assert(s "
      "< "
      "most - i, \"{b}\"); i += 1 }; s = b",
  };
  qn_vm *off = trace_vm(QN_JIT_OFF), *vm = trace_vm(QN_JIT_SYNC);
  char program[512];
  snprintf(program, sizeof program,
           "let x = f32([1, 2])\nfn f(x, n, most) { let s = x[0]; %s; s }\nfor k in 0..3 { f(x, 100, 1_000_000) }",
           loops[_i]);
  static const char call[] = "f(x, 500_000, 450_000)";
  good(off, program);
  good(vm, program);
  fails_in_few_steps(off, vm, call, 5000); /* of 449,001 or so: jit.turns, some that are recorded, up to jit.run */
  ck_assert_uint_eq(entries_of(vm, "f")->calls[CALL_again], 2);
  ck_assert_uint_ge(entries_of(vm, "turns")->first->replays, 800);
  qn_vm_close(off);
  qn_vm_close(vm);
}
END_TEST

/* Likewise a loop over the items of a list, which are stacked, jit.run at once. */
START_TEST(few_turns_over_lists) {
  qn_vm *off = trace_vm(QN_JIT_OFF), *vm = trace_vm(QN_JIT_SYNC);
  static const char program[] =
      "fn f(l, most) { let s = f32(0); for (v, k) in l { s = s * 0.999 + v * k; assert(s < most, \"{s}\") }; s }\n"
      "let l = map(0..20_000, fn(i) (f32(i), 0.5))\nfor n in 9..12 { f(l[:n], 1e9) }\nf(l, 1e9)";
  static const char call[] = "f(l, 9e6)";
  good(off, program);
  good(vm, program);
  fails_in_few_steps(off, vm, call, 3000); /* of 18,989 */
  ck_assert_uint_ge(entries_of(vm, "turns")->first->replays, 20);
  qn_vm_close(off);
  qn_vm_close(vm);
}
END_TEST

/* Each allocation of a replay fails in turn: the call is right all the same, or its error is E601; nothing is lost, nothing counted
 * twice, and the draws of random numbers go on as if nothing had been. */
START_TEST(allocations_fail) {
  static const char program[] =
      "fn f(l, n) {\n  let s = l[0].T\n  for x in l[1:] { s = s * 0.5 + x }\n"
      "  {sum: s, more: (s * n, s + 1, s + 2, s + 3, s + 4, s + 5, s + 6, s + 7, s + 8, s + 9, s + 10, s + 11, "
      "s + 12, s + 13, s + 14, s + 15), draw: rand(2)}\n}\n"
      "let l = (ones(2, 3),) + map(list(0..60), fn(i) ones(3, 2) * i)\n"
      "let shown = nojit(fn(r) float(sum(r.sum) + sum(r.more[0]) + sum(r.more[15]) + sum(r.draw)))\n";
  qn_vm *vm = trace_vm(QN_JIT_SYNC);
  good(vm, program);
  good(vm, "f(l, 2)");
  specialization *e = entry_at(vm, "f", 0);
  ck_assert_int_eq(e->state, SPEC_READY);
  good(vm, "seed(5)");
  double want = number(vm, "shown(f(l, 2))");
  qn_value l = value_of(vm, "(l, 2)"), f;
  ck_assert_int_eq(qn_get_global(vm, "f", &f), QN_OK);
  int fine = 0;
  for (uint64_t n = 1; fine < 3; n++) {
    ck_assert_uint_lt(n, 5000);
    good(vm, "seed(5)");
    uint64_t draw = vm->draw, before = e->replays;
    qn_value r;
    mem_fail_at(vm, n);
    qn_status status = qn_call(vm, f, value_list(l)->items, 2, &r);
    mem_fail_at(vm, 0);
    ck_assert_uint_eq(e->running, 0);
    if (status != QN_OK) {
      ck_assert_str_eq(qn_error_id(vm), "E601");
      ck_assert_uint_eq(vm->draw, draw);
      continue;
    }
    ck_assert_uint_le(e->replays, before + 1);
    fine = e->replays == before + 1 ? fine + 1 : 0;
    ck_assert_int_eq(qn_set_global(vm, "r", r), QN_OK);
    qn_release(vm, r);
    ck_assert_double_eq(number(vm, "shown(r)"), want);
    good(vm, "r = nil");
  }
  ck_assert_uint_gt(entries_of(vm, "f")->calls[CALL_again], 0);
  ck_assert_uint_eq(entries_in(vm, "f"), 1);
  qn_release(vm, l);
  qn_release(vm, f);
  qn_vm_close(vm);
}
END_TEST

/* Calls within calls: the outer one has the inner one's ops in its own graph, and counts it. */
START_TEST(calls_within_calls) {
  qn_vm *vm = trace_vm(QN_JIT_SYNC);
  good(vm, "fn inner(x) = tanh(x) * 2\nfn outer(x) = inner(x) + inner(x + 1)\nlet x = ones(3)\n"
           "for _ in 0..5 { outer(x) }");
  const specialization *e = entry_at(vm, "outer", 0);
  ck_assert_uint_eq(e->replays, 4);
  ck_assert_uint_eq(e->parts.n, 1);
  ck_assert_uint_eq(e->parts.list[0].id, entries_of(vm, "inner")->id);
  ck_assert_uint_eq(e->parts.list[0].calls, 2); /* of each replay */
  ck_assert_uint_eq(entries_in(vm, "inner"), 0);
  good(vm, "inner(x)\ninner(x)");
  ck_assert_uint_eq(entry_at(vm, "inner", 0)->replays, 1);
  qn_vm_close(vm);
}
END_TEST

int main(void) {
  Suite *s = suite_create("trace_replay");
  CASE(tcase_create("results_are_those_of_eager_calls"), results_are_those_of_eager_calls);
  CASE(tcase_create("results_are_new"), results_are_new);
  CASE(tcase_create("functions_in_results"), functions_in_results);
  CASE(tcase_create("errors_are_the_interpreters"), errors_are_the_interpreters);
  TCase *few = tcase_create("the_interpreter_makes_few_turns_again");
  tcase_set_timeout(few, 120);
  tcase_add_loop_test(few, the_interpreter_makes_few_turns_again, 0, 8);
  suite_add_tcase(s, few);
  CASE(tcase_create("few_turns_over_lists"), few_turns_over_lists);
  CASE(tcase_create("allocations_fail"), allocations_fail);
  CASE(tcase_create("calls_within_calls"), calls_within_calls);
  return run_suite(s);
}
