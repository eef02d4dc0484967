/* --jit verify (jit/trace/verify.c): calls whose two ways agree are served and counted; where a plan's result, or what it draws, is another
 * than the interpreter's, the call is an error that says so. A specialization is damaged to see that. */
#include "tests/unit/trace_case.h"

/* Calls f once more, whose two ways must differ; `what` is told. */
static void differs(qn_vm *vm, const char *args, const char *what) {
  qn_value f, r = qn_nil(), l = value_of(vm, args);
  ck_assert_int_eq(qn_get_global(vm, "f", &f), QN_OK);
  qn_status status = qn_call(vm, f, value_list(l)->items, (int)value_list(l)->len, &r);
  ck_assert_msg(status != QN_OK, "%s passes", what);
  ck_assert_msg(strstr(qn_error_report(vm), what) != NULL, "%s", qn_error_report(vm));
  qn_release(vm, f);
  qn_release(vm, l);
}

START_TEST(ways_that_agree) {
  qn_vm *vm = trace_vm(QN_JIT_VERIFY);
  good(vm, "fn f(x) = (tanh(x) * 2, rand(3), {n: 4})\nfor i in 0..5 { f(ones(3) * i) }");
  const specialization *e = entry_at(vm, "f", 0);
  ck_assert_uint_eq(e->verified, 4);
  ck_assert_uint_eq(e->hits, 4);
  ck_assert_uint_eq(e->replays, 0);
  ck_assert_uint_eq(entries_in(vm, "f"), 1);
  /* NaNs are one value, and an error of both ways is the interpreter's. */
  good(vm, "f([nan, inf, -nan])");
  good(vm, "fn g(x, i) = x[i]\ng(ones(3), [0])\nlet said = try { g(ones(3), [7]); \"\" } catch e { e.message }");
  good(vm,
       "let told = try { nojit(g)(ones(3), [7]); \"\" } catch e { e.message }\nassert(said == told and said != \"\")");
  qn_vm_close(vm);
}
END_TEST

START_TEST(results_that_differ) {
  qn_vm *vm = trace_vm(QN_JIT_VERIFY);
  good(vm, "fn f(x) = (x * 2, 7)\nf(ones(2))\nf(ones(2))");
  specialization *e = entry_at(vm, "f", 0);
  bool found = false;
  for (uint32_t i = 0; i < e->result.n && !found; i++) {
    found = e->result.tpls[i].kind == TPL_VALUE;
    if (found) e->result.tpls[i].value = value_int(8);
  }
  ck_assert(found);
  differs(vm, "(ones(2),)", "compiled and eager results of f differ at leaf 2 of the result");
  qn_vm_close(vm);
}
END_TEST

static char kept[4096];
static bool keep(qn_vm *vm, const char *text, size_t len, char *name, size_t size) {
  (void)vm;
  ck_assert_uint_lt(len, sizeof kept);
  memcpy(kept, text, len);
  kept[len] = 0;
  snprintf(name, size, "kept.txt");
  return true;
}

/* What is needed to see a difference again is one text, which runs in another VM. No part of it, and nothing that is damaged, does harm. */
START_TEST(reproductions) {
  qn_vm *vm = trace_vm(QN_JIT_VERIFY);
  vm->hooks.repro = keep;
  good(vm, "fn f(x, k, i) {\n  let y = x * 2 + k\n  (y[i], 7)\n}\nf(ones(3), 1.5, [0])\nf(ones(3), 1.5, [0])");
  specialization *e = entry_at(vm, "f", 0);
  for (uint32_t i = 0; i < e->result.n; i++)
    if (e->result.tpls[i].kind == TPL_VALUE) e->result.tpls[i].value = value_int(8);
  differs(vm, "(f32([0.1, nan, -0.0]), 0.1, [2])",
          "what is needed to see it again is in kept.txt: quern repro kept.txt");
  qn_vm_close(vm);
  ck_assert_ptr_nonnull(strstr(kept, "quern repro 1\nwhat \"compiled and eager results of f differ at leaf 2"));
  ck_assert_ptr_nonnull(strstr(kept, "set \"jit.hot=1\""));
  ck_assert_ptr_nonnull(strstr(kept, "let y = x * 2 + k"));
  vm = trace_vm(QN_JIT_ON);
  size_t len = strlen(kept);
  text_buf t = {.vm = vm};
  bool agrees = false;
  ck_assert(jit_repro_run(vm, kept, len, &agrees, &t));
  text_add(&t, "", 1);
  ck_assert_ptr_nonnull(strstr(t.text, "now: compiled and eager results agree"));
  ck_assert(agrees);
  for (size_t i = 0; i < len; i++) { /* of which a part is missing */
    t.len = 0;
    if (!jit_repro_run(vm, kept, i, &agrees, &t)) ck_assert(error_pending(vm));
    error_clear(vm);
  }
  for (size_t i = 0; i < len; i++) { /* in which one character is another one */
    char was = kept[i];
    kept[i] = was == '1' ? '7' : was == ' ' ? '%' : '1';
    t.len = 0;
    if (!jit_repro_run(vm, kept, len, &agrees, &t)) ck_assert(error_pending(vm));
    error_clear(vm);
    kept[i] = was;
  }
  text_free(&t);
  qn_vm_close(vm);
}
END_TEST

START_TEST(draws_that_differ) {
  qn_vm *vm = trace_vm(QN_JIT_VERIFY);
  good(vm, "fn f(x) = x + rand(2)\nf(ones(2))\nf(ones(2))");
  entry_at(vm, "f", 0)->ndraws++;
  differs(vm, "(ones(2),)", "compiled and eager results of f differ at the random numbers to come");
  qn_vm_close(vm);
}
END_TEST

int main(void) {
  Suite *s = suite_create("trace_verify");
  CASE(tcase_create("ways_that_agree"), ways_that_agree);
  CASE(tcase_create("results_that_differ"), results_that_differ);
  CASE(tcase_create("draws_that_differ"), draws_that_differ);
  CASE(tcase_create("reproductions"), reproductions);
  return run_suite(s);
}
