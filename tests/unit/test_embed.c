/* What hosts do to a VM: calls from callbacks, exceptions through them, fibers, threads, forks, signals, interrupts, modules from a
 * resolver, capabilities. */
#include <check.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include "interp/state.h"
#include "jit/trace/jobs.h"
#include "jit/trace/recording.h"
#include "jit/trace/specialization.h"
#include "jit/trace/anchors.h"
#include "tests/unit/unwind.h"

static qn_vm *open_jit(qn_jit_mode jit) {
  qn_config config;
  qn_config_init(&config);
  config.jit = jit;
  qn_vm *vm = qn_vm_open(&config);
  ck_assert_ptr_nonnull(vm);
  ck_assert_int_eq(qn_set_tunable(vm, "jit.hot", "1"), QN_OK);
  return vm;
}

static qn_status run(qn_vm *vm, const char *text) { return qn_eval(vm, "test.qn", text, strlen(text), NULL); }

static void good(qn_vm *vm, const char *text) {
  ck_assert_msg(run(vm, text) == QN_OK, "%s\n%s", text, qn_error_report(vm));
}

static double number(qn_vm *vm, const char *text) {
  qn_value r;
  ck_assert_msg(qn_eval(vm, "number.qn", text, strlen(text), &r) == QN_OK, "%s\n%s", text, qn_error_report(vm));
  double x = qn_as_float(r);
  qn_release(vm, r);
  return x;
}

/* Memory between pages that nobody may touch. */
static char *guarded(size_t size) {
  char *map = mmap(NULL, size + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(map, MAP_FAILED);
  mprotect(map + 4096, size, PROT_READ | PROT_WRITE);
  return map + 4096;
}

/* ---- callbacks -------------------------------------------------------------------------------------------------------- */

static qn_vm *host_vm;
static int calls;
static void (*on_write)(qn_vm *vm, const char *text);

static void write_through(void *user, int stream, const char *text, size_t len) {
  (void)user, (void)len;
  calls++;
  if (stream == 1) on_write(host_vm, text);
}

static qn_vm *open_calling(void (*on)(qn_vm *vm, const char *text), qn_jit_mode jit) {
  qn_config config;
  qn_config_init(&config);
  config.write = write_through;
  config.jit = jit;
  host_vm = qn_vm_open(&config);
  ck_assert_ptr_nonnull(host_vm);
  ck_assert_int_eq(qn_set_tunable(host_vm, "jit.hot", "1"), QN_OK);
  on_write = on;
  calls = 0;
  return host_vm;
}

static void fail_nested(qn_vm *vm, const char *text) {
  (void)text;
  ck_assert_int_eq(run(vm, "let broken = 1 // 0"), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), "E306");
  ck_assert_int_eq(qn_error_line(vm), 1);
  good(vm, "let fine = 1"); /* the next call drops it */
  ck_assert_str_eq(qn_error_id(vm), "");
  qn_value r;
  ck_assert_int_eq(qn_string(vm, "\xff", 1, &r), QN_ERROR);
  ck_assert_int_eq(run(vm, "missing_name"), QN_ERROR);
}

START_TEST(an_error_of_a_nested_call_is_the_callbacks) {
  for (qn_jit_mode jit = QN_JIT_ON; jit <= QN_JIT_SYNC; jit++) {
    qn_vm *vm = open_calling(fail_nested, jit);
    good(vm, "fn f(x) { print(1)\n  x * 2 }\nlet y = f(ones(3))\nlet z = try { print(2)\n assert(false, \"own\") } "
             "catch e { e.id }");
    ck_assert_int_ge(calls, 2);
    ck_assert(number(vm, "sum(y)") == 6);
    ck_assert(number(vm, "if z == \"E701\" { 1 } else { 0 }") ==
              number(vm, "let w = try { assert(false, \"own\") } catch e { e.id }\nif w == z { if z == \"E701\" { 1 } "
                         "else { 0 } } else { 2 }"));
    ck_assert_int_eq(run(vm, "print(3)\n[1, 2, 3] + [1, 2]"), QN_ERROR);
    ck_assert_str_ne(qn_error_id(vm), "E401");
    ck_assert_str_ne(qn_error_id(vm), "E306");
    ck_assert_int_eq(qn_error_line(vm), 2);
    qn_vm_close(vm);
  }
}
END_TEST

static void compute_nested(qn_vm *vm, const char *text) {
  (void)text;
  good(vm, "let inner = grad(fn(x) sum(x * x * seen))([3.0, 4.0])\nlet looked = sum(seen)");
}

/* Recordings wait while a callback computes, and what it looks at is there. */
START_TEST(callbacks_compute_inside_a_gradient) {
  for (qn_jit_mode jit = QN_JIT_ON; jit <= QN_JIT_SYNC; jit++) {
    qn_vm *vm = open_calling(compute_nested, jit);
    good(vm, "let seen = [1.0, 2.0]\nfn f(x) {\n  let y = x * x\n  print(\"in\")\n  sum(y * x)\n}");
    for (int i = 0; i < 4; i++) {
      ck_assert(number(vm, "sum(grad(f)([1.0, 2.0]))") == 15);
      ck_assert(number(vm, "sum(inner)") == 22);
      ck_assert(number(vm, "looked") == 3);
    }
    qn_vm_close(vm);
  }
}
END_TEST

static void leave(qn_vm *vm, const char *text) {
  if (strncmp(text, "leave", 5) == 0) _Unwind_ForcedUnwind(&exception, stop, NULL);
  if (strncmp(text, "jump", 4) == 0) longjmp(left, 1);
  if (strncmp(text, "nested", 6) == 0) (void)run(vm, "print(\"leave\")");
}

static void __attribute__((noinline)) leave_by(qn_vm *vm, const char *text) {
  leave_to = __builtin_frame_address(0);
  if (setjmp(left) == 0) {
    qn_status status = run(vm, text);
    ck_abort_msg("it was not left: %d %s", status, qn_error_report(vm));
  }
}

static void works(qn_vm *vm) {
  ck_assert_int_eq(run(vm, "fn deep(n) = deep(n + 1)\ndeep(0)"), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), "E602");
  ck_assert_int_eq(run(vm, "let t = try { 1 // 0 } catch e { e }\n2 // 0"), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), "E306");
  ck_assert_int_eq(qn_error_line(vm), 2);
  ck_assert(number(vm, "sum(grad(fn(x) sum(x * x))([1.0, 2.0]))") == 6);
  ck_assert(number(vm, "let total = 0\nfor i in 0..100 { total += i }\ntotal") == 4950);
}

/* What the frames that were left held goes with the VM's pools. Under AddressSanitizer there are none. */
static void leaks_count(bool they_do) {
#ifdef __SANITIZE_ADDRESS__
  they_do ? __lsan_enable() : __lsan_disable();
#else
  (void)they_do;
#endif
}

START_TEST(exceptions_pass_through_callbacks) {
  leaks_count(false);
  for (qn_jit_mode jit = QN_JIT_ON; jit <= QN_JIT_SYNC; jit++) {
    qn_vm *vm = open_calling(leave, jit);
    for (int i = 0; i < 3; i++) {
      leave_by(vm, "fn f(x) { let y = x * 2\n  print(\"leave\")\n  y }\nf(ones(4))");
      works(vm);
      leave_by(vm, "let g = grad(fn(x) { let y = x * 2\n  print(\"leave\")\n  sum(y) })\ng(ones(4))");
      works(vm);
      leave_by(vm, "print(\"nested\")"); /* two evaluations at once */
      works(vm);
      leave_by(vm, "for i in 0..10 { try { print(\"jump\") } catch _ { } }"); /* not allowed, found out all the same */
      works(vm);
    }
    qn_vm_close(vm);
  }
  leaks_count(true);
}
END_TEST

/* Neither the texts that are left nor what their frames, recordings and lanes held stays. */
START_TEST(what_exceptions_leave_goes) {
  static const char *const texts[] = {
      "print(\"leave\")",
      "fn f(x) { let y = x * 2\n  print(\"leave\")\n  y }\nf(ones(4))",
      "grad(fn(x) { let y = x * 2\n  print(\"leave\")\n  sum(y) })(ones(4))",
      "jacobian(fn(x) {\n  print(\"leave\")\n  x * 2 })(ones(4))",
      "custom_grad(fn(x) {\n  print(\"leave\")\n  x * 2 }, fn(ct, x) ct)(ones(4))",
      "jit(fn(x) {\n  print(\"leave\")\n  x * 2 })(ones(4))",
      "explain(fn(x) {\n  print(\"leave\")\n  x * 2 }, ones(4))",
      "vmap(fn(x) {\n  print(\"leave\")\n  x * 2 })(ones(4))",
  };
  leaks_count(false);
  for (qn_jit_mode jit = QN_JIT_ON; jit <= QN_JIT_SYNC; jit++)
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
      qn_vm *vm = open_calling(leave, jit);
      size_t before = 0, after = 0;
      for (int i = 0; i < 1200; i++) { /* texts are swept now and then: the most of each half */
        leave_by(vm, texts[t]);
        good(vm, "3");
        size_t *most = i < 600 ? &before : &after, now = mem_stats_of(vm)->live;
        if (now > *most) *most = now;
      }
      ck_assert_msg(after < before + (16 << 10), "%s: %zu bytes, then %zu", texts[t], before, after);
      qn_vm_close(vm);
    }
  leaks_count(true);
}
END_TEST

/* A callback that evaluates a text which is left, catches that, and goes on. */
static const char *inner_text;
static void __attribute__((noinline)) catch_inner(qn_vm *vm, const char *text) {
  if (strncmp(text, "leave", 5) == 0) leave(vm, text);
  if (strncmp(text, "catch", 5) == 0) leave_by(vm, inner_text);
}

/* What an evaluation asked of the recorder ends with it, however it ends; the one around it goes on with what it asked for itself. */
START_TEST(what_was_asked_for_ends_with_an_exception) {
  static const char *const inner[] = {
      "let h = nojit(fn(x) {\n  print(\"leave\")\n  x * 2 })\nh(ones(3))",
      "explain(fn(x) {\n  print(\"leave\")\n  x * 2 }, ones(3))",
      "try { graph(fn(x) {\n  print(\"leave\")\n  x * 2 }, ones(3)) } catch e { print(\"leave\") }",
      "let h = jit(fn(x) {\n  print(\"leave\")\n  x * 2 }, backend: \"cpu\")\nh(ones(3))",
  };
  leaks_count(false);
  for (size_t i = 0; i < sizeof inner / sizeof *inner; i++)
    for (int around = 0; around < 2; around++) {
      qn_vm *vm = open_calling(catch_inner, QN_JIT_OFF);
      vm_jit *j = vm->jit;
      inner_text = inner[i];
      good(vm, "fn f(x) = x * 2 + 1");
      if (around)
        good(vm, "print(\"catch\")\nf(ones(4))\nlet e = explain(f, ones(4))");
      else
        leave_by(vm, inner_text);
      uint64_t recordings = j->recordings;
      good(vm, "f(ones(3))");
      ck_assert_uint_eq(j->recordings, recordings);
      good(vm, "let e = explain(f, ones(4))");
      ck_assert_msg(number(vm, "e.graphs") == 1, "%s", inner_text);
      ck_assert(number(vm, "len(e.breaks)") == 0);
      ck_assert(number(vm, "if graph(f, ones(4))(ones(4))[0] == 3 { 1 } else { 0 }") == 1);
      ck_assert(number(vm, "explain(nojit(f), ones(4)).graphs") == 0);
      qn_vm_close(vm);
    }
  leaks_count(true);
}
END_TEST

static jit_anchor *anchor_named(qn_vm *vm, const char *name) {
  qn_value f;
  ck_assert_int_eq(qn_get_global(vm, name, &f), QN_OK);
  jit_anchor *a = vm->hooks.anchor(f);
  qn_release(vm, f);
  ck_assert_ptr_nonnull(a);
  return a;
}

/* Looking changes nothing, even where the call that is looked at is left. */
START_TEST(an_explain_that_is_left_changes_nothing) {
  leaks_count(false);
  qn_vm *vm = open_calling(leave, QN_JIT_ON);
  ck_assert_int_eq(qn_set_tunable(vm, "jit.hot", "100"), QN_OK);
  good(vm, "let go = true\nfn f(x) {\n  let r = rand(3)\n  if go { print(\"leave\") }\n  x * r }");
  good(vm, "go = false\nf(ones(3))\ngo = true\nseed(3)");
  jit_anchor *a = anchor_named(vm, "f");
  int state = a->state;
  int32_t countdown = a->countdown;
  uint64_t draw = vm->draw;
  for (int i = 0; i < 2; i++) {
    leave_by(vm, i ? "code(f, ones(3))" : "explain(f, ones(3))");
    ck_assert_int_eq(a->state, state);
    ck_assert_int_eq(a->countdown, countdown);
    ck_assert_uint_eq(vm->draw, draw);
  }
  qn_vm_close(vm);
  /* and under --jit verify the eager run of a call */
  vm = open_calling(leave, QN_JIT_VERIFY);
  good(vm, "let go = false\nfn g() { if go { print(\"leave\") } }\nfn f(x) {\n  g()\n  x * 2 }\nfor _ in 0..4 { "
           "f(ones(3)) }");
  a = anchor_named(vm, "f");
  state = a->state;
  leave_by(vm, "go = true\nf(ones(3))");
  ck_assert_int_eq(a->state, state);
  qn_vm_close(vm);
  leaks_count(true);
}
END_TEST

/* Finished plans that were being told of in the log when a host left are there all the same. */
static int leaves;
static void leave_log(void *user, int stream, const char *text, size_t len) {
  (void)user, (void)len;
  if (stream == 2 && text[0] == '[' && leaves && !--leaves) _Unwind_ForcedUnwind(&exception, stop, NULL);
}

static bool __attribute__((noinline)) left_by(qn_vm *vm, const char *text) {
  leave_to = __builtin_frame_address(0);
  if (setjmp(left)) return true;
  good(vm, text);
  return false;
}

START_TEST(a_host_that_leaves_the_log_loses_no_plan) {
  leaks_count(false);
  for (int at = 1; at < 12; at++) {
    qn_config config;
    qn_config_init(&config);
    config.write = leave_log;
    config.jit = QN_JIT_ON;
    qn_vm *vm = qn_vm_open(&config);
    ck_assert_int_eq(qn_set_tunable(vm, "jit.hot", "1"), QN_OK);
    ck_assert_int_eq(qn_set_tunable(vm, "jit.cc", "0"), QN_OK);
    ck_assert(log_parse("all", &vm->log));
    leaves = 0;
    good(vm, "fn f(x) = x * 2 + 1\nfn g(x) = sum(x) * x\nfn h(x) = tanh(x) @ x\nfn k(x) = x - 1");
    good(vm, "f(ones(3))\ng(ones(3))\nh(ones(3))");
    vm_jit *j = vm->jit;
    for (int i = 0; i < 20000 && !atomic_load(&j->box->mail); i++) usleep(500);
    usleep(20000); /* mostly all three are there */
    leaves = at;
    bool was_left = left_by(vm, "k(ones(3))");
    leaves = 0;
    (void)was_left;
    for (anchor_specializations *a = j->anchors; a; a = a->next)
      for (specialization *e = a->first; e; e = e->next) {
        for (int i = 0; i < 20000 && e->state == SPEC_COMPILING; i++) {
          usleep(500);
          jit_drain(vm);
        }
        ck_assert_int_eq(e->state, SPEC_READY);
      }
    qn_vm_close(vm);
  }
  leaks_count(true);
}
END_TEST

static uint32_t units_running(qn_vm *vm) {
  uint32_t n = 0;
  for (const unit *u = interp_of(vm)->units; u; u = u->next) n += u->running;
  return n;
}

/* The text of an evaluation that was left goes as any other does. */
START_TEST(texts_that_are_left_go) {
  leaks_count(false);
  qn_vm *vm = open_calling(catch_inner, QN_JIT_OFF);
  inner_text = "let x = 1\nprint(\"leave\")\nx";
  for (int i = 0; i < 200; i++) {
    leave_by(vm, inner_text);
    ck_assert_uint_eq(units_running(vm), 0);
    good(vm, "print(\"catch\")\n1");
    ck_assert_uint_eq(units_running(vm), 0);
  }
  ck_assert_uint_lt(interp_of(vm)->nunits, 60);
  /* so does one whose warning was left */
  for (int i = 0; i < 100; i++) {
    leaves = 0;
    leave_by(vm, "fn f() {\n  let unused = 1\n  2 }\nprint(\"leave\")");
  }
  ck_assert_uint_lt(interp_of(vm)->nunits, 60);
  qn_vm_close(vm);
  leaks_count(true);
}
END_TEST

/* ---- memory ------------------------------------------------------------------------------------------------------------- */

/* Texts that a host may run over and over: each leaves as much behind as the last one. */
static const char *const texts[] = {
    "1 + 1",
    "let a = [1.0, 2.0] * 3",
    "fn f(x) = x * 2 + 1\nfn g(x) = f(x) * f(x)\nlet y = sum(g(ones(5)))",
    "let h = grad(fn(x) sum(tanh(x)))\nlet z = h(ones(4))",
    "let t = 0\nfor i in 0..5 { t += i }\nlet s = map((1, 2, 3), fn(x) x + t)",
    "let p = {run: fn(x) x * 2, data: ones(3)}\nlet q = p.run(p.data)",
    "1 // 0",
    "let broken = (1,",
    "not_defined_anywhere",
    "try { assert(false, \"no\") } catch e { let why = e.message }",
};
enum { TEXTS = sizeof texts / sizeof *texts };

static void run_all(qn_vm *vm, int i) {
  const char *text = texts[i % TEXTS];
  qn_value r;
  if (qn_eval(vm, "again.qn", text, strlen(text), &r) == QN_OK) qn_release(vm, r);
  if (qn_eval_prompt(vm, text, strlen(text), &r) == QN_OK) qn_release(vm, r);
}

static void nothing(qn_vm *vm, const char *text) { (void)vm, (void)text; }
static void run_nested(qn_vm *vm, const char *text) {
  (void)text;
  run_all(vm, calls);
}

START_TEST(evals_leave_nothing_behind) {
  for (qn_jit_mode jit = QN_JIT_ON; jit <= QN_JIT_SYNC; jit++)
    for (int nested = 0; nested < 2; nested++) {
      qn_vm *vm = open_calling(nested ? run_nested : nothing, jit);
      ck_assert_int_eq(qn_set_tunable(vm, "jit.cc", "0"), QN_OK);
      size_t before = 0, after = 0;
      for (int i = 0; i < 80 * TEXTS; i++) {
        if (nested)
          good(vm, "print(1)");
        else
          run_all(vm, i);
        if (i < 10 * TEXTS) continue;
        size_t *most = i < 30 * TEXTS ? &before : &after, now = mem_stats_of(vm)->live;
        if (now > *most) *most = now; /* what is dead is looked for now and then */
      }
      ck_assert_msg(after < before + 40000, "%zu bytes, then %zu (jit %d, nested %d)", before, after, jit, nested);
      if (nested) { /* many in one evaluation */
        good(vm, "for _ in 0..300 { print(1) }");
        before = mem_stats_of(vm)->live;
        good(vm, "for _ in 0..600 { print(1) }");
        after = mem_stats_of(vm)->live;
        ck_assert_msg(after < before + 300000, "%zu bytes, then %zu in one (jit %d)", before, after, jit);
      }
      qn_vm_close(vm);
    }
}
END_TEST

START_TEST(evals_without_end_fit_a_limit) {
  qn_config config;
  qn_config_init(&config);
  config.memory_limit = 64 << 20;
  config.jit = QN_JIT_OFF;
  qn_vm *vm = qn_vm_open(&config);
  for (int i = 0; i < 100000; i++) good(vm, i % 2 ? "let x = 1\nx + 1" : "fn f(x) = x + 1\nf(2)");
  ck_assert_uint_lt(mem_stats_of(vm)->live, 4 << 20);
  qn_vm_close(vm);
}
END_TEST

/* A function counts what it calls, but not for those that have gone. */
START_TEST(counts_of_what_has_gone_go) {
  qn_vm *vm = open_jit(QN_JIT_SYNC);
  good(vm, "fn fails(f, x) {\n  f(x)\n  assert(false, \"no\") }\nfn works(f, x) = f(x) * 2");
  for (int i = 0; i < 300; i++)
    good(vm, "try { fails(fn(x) x * 2, ones(3)) } catch _ { nil }\nlet y = works(fn(x) x + 1, ones(3))");
  const jit_anchor *fails = anchor_named(vm, "fails");
  ck_assert_uint_lt(((const anchor_specializations *)fails->entries)->parts.n, 60); /* texts are swept now and then */
  const anchor_specializations *works = anchor_named(vm, "works")->entries;
  uint32_t n = works->parts.n;
  for (const specialization *e = works->first; e; e = e->next) n += e->parts.n;
  ck_assert_uint_lt(n, 60);
  qn_vm_close(vm);
}
END_TEST

/* Code of transformed graphs stays a while when the graphs have gone, and it is known how much of it there is; graphs that it holds go
 * with it. */
START_TEST(code_of_graphs_that_have_gone_is_counted) {
  qn_vm *vm = open_jit(QN_JIT_SYNC);
  const vm_jit *j = vm->jit;
  uint32_t most = 0;
  for (int i = 0; i < 60; i++) {
    char text[256];
    snprintf(text, sizeof text,
             "let inner = graph(fn(x) x * %d, ones(3))\nlet outer = graph(fn(x) (x + %d, inner), ones(3))\n"
             "let y = jit(inner)(ones(3))\nlet z = jit(outer)(ones(3))\nlet w = vmap(inner)(ones(2, 3))",
             i % 7, i);
    good(vm, text);
    uint32_t gone = 0, all = 0;
    for (const chain_anchor *c = j->chains; c; c = c->next, all++) gone += c->graph && !c->live;
    ck_assert_uint_eq(j->chains_left, gone);
    if (all > most) most = all;
  }
  ck_assert_uint_gt(most, 3);
  ck_assert_uint_lt(most, 40);
  qn_vm_close(vm);
}
END_TEST

/* What was told of calls of a function; `memory`: of those that stayed eager since memory was short. */
static uint64_t told(const jit_anchor *a, uint64_t *memory) {
  uint64_t n = 0;
  const anchor_specializations *list = a->entries;
  for (int i = 0; i < ANCHOR_STATES; i++) n += a->passed[i];
  *memory = list ? list->refused[BREAK_memory] : 0;
  for (int i = 0; list && i < CALL_FATES; i++) n += list->calls[i];
  for (int i = 0; list && i < BREAK_COUNT; i++) n += list->refused[i];
  for (const specialization *e = list ? list->first : NULL; e; e = e->next) n += e->hits;
  return n;
}

/* Each call is counted once, whatever allocation fails. */
START_TEST(calls_are_counted_without_memory) {
  bool failed = false, eager = false;
  for (int ask = 0; ask < 2; ask++)
    for (uint64_t n = 1; n < 80; n++) {
      qn_vm *vm = open_jit(QN_JIT_SYNC);
      good(vm, "fn f(x) = x * 2 + 1\nlet x = ones(3)\nlet asks = fn(x) graph(f, x)");
      const jit_anchor *a = anchor_named(vm, "f");
      qn_value f, x, result;
      ck_assert_int_eq(qn_get_global(vm, ask ? "asks" : "f", &f), QN_OK);
      ck_assert_int_eq(qn_get_global(vm, "x", &x), QN_OK);
      mem_fail_at(vm, n);
      qn_status status = qn_call(vm, f, &x, 1, &result);
      mem_fail_at(vm, 0);
      uint64_t memory, calls = told(a, &memory);
      ck_assert_uint_le(calls, 1);
      if (!ask) ck_assert_uint_eq(calls, 1);
      if (ask)
        failed |= memory && status != QN_OK;
      else
        eager |= memory && status == QN_OK;
      qn_release(vm, result);
      qn_release(vm, f);
      qn_release(vm, x);
      qn_vm_close(vm);
    }
  ck_assert(failed);
  ck_assert(eager);
}
END_TEST

/* Turning a value into text is an evaluation as any other: what waits to be written comes at its end. */
START_TEST(texts_of_values_leave_no_lines_waiting) {
  qn_vm *vm = open_calling(nothing, QN_JIT_OFF);
  vm_write_later(vm, "line\n", 5);
  ck_assert_int_eq(calls, 0);
  qn_value text;
  ck_assert_int_eq(qn_to_text(vm, qn_int(3), &text), QN_OK);
  ck_assert_int_eq(calls, 1);
  qn_release(vm, text);
  qn_vm_close(vm);
  ck_assert_int_eq(calls, 1);
}
END_TEST

/* Functions outlive their text, whoever holds them, and say where they fail. */
START_TEST(functions_keep_their_text) {
  qn_vm *vm = open_jit(QN_JIT_SYNC);
  qn_value f, r, x = qn_int(0);
  const char *text = "fn f(x) {\n  let y = 1 // x\n  y\n}\nf";
  ck_assert_int_eq(qn_eval(vm, "kept.qn", text, strlen(text), &f), QN_OK);
  good(vm, "fn f(x) = x\nlet hold = (fn(x) x * [2.0, 3.0],)\nlet apply = fn(g, x) g(x)\nlet total = 0.0");
  for (int i = 0; i < 100; i++)
    good(vm, "fn other(x) = x + 1\nother(1)\ntotal += sum(apply(hold[0], [1.0, 1.0])) + sum(apply(fn(x) x * i32(2), "
             "[1.0, 1.0]))");
  ck_assert(number(vm, "total") == 900);
  ck_assert_int_eq(qn_call(vm, f, &x, 1, &r), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), "E306");
  ck_assert_int_eq(qn_error_line(vm), 2);
  ck_assert_str_eq(qn_error_source(vm), "kept.qn");
  ck_assert_ptr_nonnull(strstr(qn_error_report(vm), "let y = 1 // x"));
  qn_release(vm, f);
  qn_vm_close(vm);
}
END_TEST

START_TEST(code_may_go_before_the_functions_of_it) {
  qn_vm *vm = open_jit(QN_JIT_OFF);
  ck_assert_int_eq(run(vm, "error({id: \"E701\", message: \"boom\", f: fn(x) x})"), QN_ERROR);
  qn_vm_close(vm); /* the error that is pending holds a function */
  vm = open_jit(QN_JIT_SYNC);
  good(vm, "fn mk(x) = nil\nfn f(x) = (x * 2, mk(x))");
  good(vm, "fn mk(x) { let s = x + 1; fn(y) y + s }");
  good(vm, "for i in 0..20 { let _ = f(ones(3)) }");
  qn_vm_close(vm); /* what was compiled for f makes functions of the other text */
}
END_TEST

/* ---- the ends of arrays --------------------------------------------------------------------------------------------------- */

/* Puts an array's elements before the ARRAY_TAIL bytes at the end of a page that no readable one follows. */
static void move_to_end(qn_value v, char *end) {
  qn_array *a = value_array(v);
  qn_storage *s = a->storage;
  char *data = end - ARRAY_TAIL - s->bytes;
  memcpy(data, s->data, s->bytes);
  memset(end - ARRAY_TAIL, 0xff, ARRAY_TAIL);
  s->data = data;
}

START_TEST(kernels_read_no_further_than_the_tail) {
  static const char *const functions[] = {
      "fn f(x) = concat((x, x))",  "fn f(x) = x + x",
      "fn f(x) = sum(x)",          "fn f(x) = x[::-1] * x",
      "fn f(x) = cumsum(x)",       "fn f(x) = stack((x, x, x))",
      "fn f(x) = max(x) + min(x)", "fn f(x) = where(x > 1, x, 0)",
      "fn f(x) = f64(x) / 3",      "fn f(x) = x[1:] + x[:-1]",
      "fn f(x) = x @ x",           "fn f(x) = transpose(broadcast_to(x, (3, len(x)))) + 1",
      "fn f(x) = sort(x)",         "fn f(x) = x[argsort(x)]",
  };
  static const qn_dtype dtypes[] = {QN_i8, QN_f16, QN_f32, QN_f64, QN_i64};
  enum { SIZE = 4096 };
  char *page = guarded(SIZE);
  for (qn_jit_mode jit = QN_JIT_OFF; jit <= QN_JIT_SYNC; jit++)
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
      qn_vm *vm = open_jit(jit);
      good(vm, functions[i]);
      qn_value f, r;
      ck_assert_int_eq(qn_get_global(vm, "f", &f), QN_OK);
      for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (int64_t n = 2; n < 70; n += n < 6 ? 1 : 21) {
          qn_value x, zero[70 * 2] = {{0}};
          ck_assert_int_eq(qn_array_from(vm, dtypes[d], 1, &n, zero, &x), QN_OK);
          char *own = value_array(x)->storage->data;
          move_to_end(x, page + SIZE);
          for (int call = 0; call < 2; call++)
            if (qn_call(vm, f, &x, 1, &r) == QN_OK)
              qn_release(vm, r);
            else
              ck_assert_msg(strncmp(qn_error_id(vm), "E6", 2) != 0, "%s: %s", functions[i], qn_error_report(vm));
          value_array(x)->storage->data = own;
          qn_release(vm, x);
        }
      qn_release(vm, f);
      qn_vm_close(vm);
    }
}
END_TEST

/* ---- modules -------------------------------------------------------------------------------------------------------------- */

static char asked[1024];
static int freed, version;

static void free_source(void *user, qn_source *s) {
  (void)user;
  free((char *)s->text);
  freed++;
}

static bool packages(void *user, const char *from, const char *name, qn_source *out) {
  (void)user;
  snprintf(asked + strlen(asked), sizeof asked - strlen(asked), "%s>%s ", from, name);
  static char key[64];
  char text[128];
  if (strcmp(name, "util") == 0) {
    const char *package = strncmp(from, "left/", 5) == 0 ? "left" : strncmp(from, "right/", 6) == 0 ? "right" : "none";
    snprintf(key, sizeof key, "%s/lib/util", package);
    snprintf(text, sizeof text, "fn who() = \"%s%d\"", package, version);
  } else if (strcmp(name, "left") == 0 || strcmp(name, "right") == 0) {
    snprintf(key, sizeof key, "%s/main.qn", name);
    snprintf(text, sizeof text, "import util\nfn who() = util.who()");
  } else if (strcmp(name, "secret") == 0) {
    out->error = "secret may not be loaded";
    return false;
  } else if (strcmp(name, "plain") == 0) {
    out->text = "let x = 1";
    out->len = 9;
    return true;
  } else {
    return false;
  }
  out->key = key;
  out->text = strdup(text);
  out->len = strlen(text);
  out->free = free_source;
  return true;
}

static void says(qn_vm *vm, const char *text, const char *wanted) {
  qn_value r;
  ck_assert_msg(qn_eval(vm, "app/main.qn", text, strlen(text), &r) == QN_OK, "%s", qn_error_report(vm));
  ck_assert_str_eq(qn_as_string(r, NULL), wanted);
  qn_release(vm, r);
}

START_TEST(modules_go_by_the_hosts_keys) {
  qn_config config;
  qn_config_init(&config);
  config.resolve = packages;
  config.capabilities = 0;
  qn_vm *vm = qn_vm_open(&config);
  asked[0] = 0;
  freed = version = 0;
  says(vm, "import left\nimport right\nleft.who() + right.who()", "left0right0");
  ck_assert_str_eq(asked, "app/main.qn>left left/main.qn>util app/main.qn>right right/main.qn>util ");
  ck_assert_int_eq(freed, 4);
  /* Reloading: who has it keeps it, who imports it anew gets the new one. */
  version = 1;
  ck_assert_int_eq(qn_module_drop(vm, "left/lib/util"), QN_OK);
  ck_assert_int_eq(qn_module_drop(vm, "left/lib/util"), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), "E503");
  says(vm, "left.who()", "left0");
  ck_assert_int_eq(qn_module_drop(vm, "left/main.qn"), QN_OK);
  says(vm, "import left as again\nagain.who() + left.who()", "left1left0");
  ck_assert_int_eq(run(vm, "import secret"), QN_ERROR);
  ck_assert_ptr_nonnull(strstr(qn_error_message(vm), "secret may not be loaded"));
  ck_assert_int_eq(run(vm, "import nothing"), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), "E503");
  /* Without a key each importer has its own. */
  ck_assert_int_eq(qn_eval(vm, "a.qn", "import plain as a", 17, NULL), QN_OK);
  ck_assert_int_eq(qn_eval(vm, "b.qn", "import plain as b", 17, NULL), QN_OK);
  ck_assert_int_eq(qn_module_drop(vm, "a.qn > plain"), QN_OK);
  ck_assert_int_eq(qn_module_drop(vm, "b.qn > plain"), QN_OK);
  qn_vm_close(vm);
}
END_TEST

/* A module of many kinds of values: functions in lists and records, closures, some that are had from several places, a module. */
static const char *const module_texts[] = {
    "import part\nlet table = zeros(500)\nfn f(x) = x * 2 + table[0] + VERSION\nfn rec(n) = if n == 0 { 0 } else { "
    "rec(n - 1) }\n"
    "fn make(k) = fn(x) x * k + VERSION\nlet made = make(3)\nlet all = (f, rec, made, {deep: (f, make(4))})\nlet same "
    "= all\n"
    "fn loss(x) = sum(tanh(x) * table[0])\nlet g = grad(loss)\nfn who() = VERSION + part.one()",
    "fn one() = 1",
    "fn broken(x) = x\nlet kept = (broken, fn(x) broken(x))\nbroken(1) + \"text\"",
};

static bool versions(void *user, const char *from, const char *name, qn_source *out) {
  (void)user, (void)from;
  static char text[1024];
  int which = strcmp(name, "m") == 0 ? 0 : strcmp(name, "part") == 0 ? 1 : strcmp(name, "failing") == 0 ? 2 : -1;
  if (which < 0) return false;
  size_t n = 0;
  for (const char *p = module_texts[which]; *p;)
    if (strncmp(p, "VERSION", 7) == 0)
      n += (size_t)snprintf(text + n, sizeof text - n, "%d", version), p += 7;
    else
      text[n++] = *p++;
  text[n] = 0;
  out->key = name;
  out->text = text;
  out->len = n;
  return true;
}

static qn_vm *open_versions(qn_jit_mode jit) {
  qn_config config;
  qn_config_init(&config);
  config.resolve = versions;
  config.jit = jit;
  qn_vm *vm = qn_vm_open(&config);
  ck_assert_int_eq(qn_set_tunable(vm, "jit.hot", "1"), QN_OK);
  ck_assert_int_eq(qn_set_tunable(vm, "jit.cc", "0"), QN_OK);
  return vm;
}

static uint32_t scopes(qn_vm *vm) {
  uint32_t n = 0;
  for (const scope *s = interp_of(vm)->scopes; s; s = s->next) n++;
  return n;
}

static void drop(qn_vm *vm, const char *key) { ck_assert_int_eq(qn_module_drop(vm, key), QN_OK); }

START_TEST(modules_that_were_replaced_go) {
  for (qn_jit_mode jit = QN_JIT_ON; jit <= QN_JIT_SYNC; jit++) {
    qn_vm *vm = open_versions(jit);
    version = 0;
    size_t before = 0, after = 0;
    uint32_t most = 0;
    for (int i = 0; i < 300; i++) {
      version = i;
      good(vm, "import m\nlet r = m.f(ones(5)) + m.made(ones(5)) + m.g(ones(5))\nlet w = m.who()\nlet h = "
               "m.all[3].deep[1](2)");
      ck_assert(number(vm, "w") == i + 1);
      ck_assert(number(vm, "r[0]") == 2 + i + 3 + i);
      ck_assert_int_eq(run(vm, "import failing"), QN_ERROR);
      drop(vm, "m");
      if (i % 3 == 0) drop(vm, "part"); /* each has its own, then */
      if (i % 7 == 0) good(vm, "m = nil");
      if (i < 50) continue;
      if (scopes(vm) > most) most = scopes(vm);
      size_t *max = i < 150 ? &before : &after, now = mem_stats_of(vm)->live;
      if (now > *max) *max = now;
    }
    ck_assert_uint_lt(most, 30);
    ck_assert_msg(after < before + 60000, "%zu bytes, then %zu (jit %d)", before, after, jit);
    qn_vm_close(vm);
  }
}
END_TEST

/* Whoever has a module or anything of it keeps all that this needs. */
START_TEST(modules_stay_while_something_has_them) {
  static const char *const holds[] = {"m",     "m.rec",     "m.made", "(1, {x: m.f})",
                                      "m.all", "m.same[3]", "m.g",    "fn(x) m.f(x)"};
  static const char *const uses[] = {"k.who() + k.all[3].deep[0](1)",
                                     "k(5)",
                                     "k(1)",
                                     "k[1].x(2)",
                                     "k[3].deep[1](1) + k[1](3)",
                                     "k.deep[0](7)",
                                     "sum(k(ones(2)))",
                                     "k(1)"};
  for (qn_jit_mode jit = QN_JIT_ON; jit <= QN_JIT_SYNC; jit++)
    for (size_t i = 0; i < sizeof holds / sizeof *holds; i++) {
      qn_vm *vm = open_versions(jit);
      version = 1;
      char text[200];
      snprintf(text, sizeof text, "import m\nlet k = %s\nlet first = 0.0 + %s", holds[i], uses[i]);
      good(vm, text);
      double first = number(vm, "first");
      bool global = strncmp(holds[i], "fn", 2) == 0; /* reads what m is then */
      drop(vm, "m");
      drop(vm, "part");
      if (!global) good(vm, "m = nil");
      for (int more = 0; more < 60; more++) {
        version = 2 + more;
        good(vm, "import m as other\nother.f(ones(3))\nother.who()");
        drop(vm, "m");
        snprintf(text, sizeof text, "0.0 + %s", uses[i]);
        ck_assert_msg(number(vm, text) == first, "%s", holds[i]);
      }
      qn_vm_close(vm);
    }
}
END_TEST

/* A function that the host calls while its module has been dropped and replaced, by itself even. */
static void replace_module(qn_vm *vm, const char *text) {
  (void)text;
  if (qn_module_drop(vm, "m") != QN_OK) return;
  version++;
  for (int i = 0; i < 40; i++) good(vm, "import m as other\nother.who()");
}

START_TEST(a_module_that_runs_is_not_freed) {
  qn_config config;
  qn_config_init(&config);
  config.resolve = versions;
  config.write = write_through;
  qn_vm *vm = host_vm = qn_vm_open(&config);
  on_write = replace_module;
  version = 1;
  for (int i = 0; i < 30; i++) {
    good(vm, "import m\nlet run = fn(m) {\n  let f = m.make(10)\n  m = nil\n  print(1)\n  f(1) }");
    ck_assert(
        number(vm,
               "import m as now\nm = nil\nlet before = now.who()\nlet arg = now\nnow = nil\nlet got = run(arg)\narg = "
               "nil\ngot - before") == 9);
    good(vm, "let m = nil");
  }
  ck_assert_uint_lt(scopes(vm), 20);
  qn_vm_close(vm);
}
END_TEST

/* Entries make closures of a text without keeping it. */
START_TEST(results_that_are_functions_keep_no_text) {
  for (qn_jit_mode jit = QN_JIT_ON; jit <= QN_JIT_SYNC; jit++) {
    qn_vm *vm = open_versions(jit);
    size_t before = 0, after = 0;
    for (int i = 0; i < 600; i++) {
      good(vm, "fn f(x) {\n  let s = x + 1\n  (x * 2, fn(y) y + s, {act: fn(z) z * 2}) }\nfn mk(k) {\n  let t = k * "
               "3\n  fn(y) "
               "y + t }\nfn g(x) = mk(x * 2)");
      good(vm,
           "let r = f(ones(3))[1](ones(3)) + f(ones(3))[2].act(ones(3)) + g(ones(3))(ones(3)) + g(ones(3))(ones(3))");
      ck_assert(number(vm, "r[0]") == 3 + 2 + 7 + 7);
      if (i % 5 == 0) good(vm, "let held = f(ones(3))[1]\nlet graphed = graph(g, ones(3))");
      ck_assert(number(vm, "held(ones(3))[0] + graphed(ones(3))(ones(3))[0]") == 3 + 7);
      if (i < 100) continue;
      size_t *max = i < 300 ? &before : &after, now = mem_stats_of(vm)->live;
      if (now > *max) *max = now;
    }
    ck_assert_msg(after < before + 60000, "%zu bytes, then %zu (jit %d)", before, after, jit);
    qn_vm_close(vm);
  }
}
END_TEST

/* Functions with a rule of their own for the derivative that are defined again and again: neither what was recorded of them nor what was
 * recorded of functions that call them keeps them. */
START_TEST(custom_grads_that_were_replaced_go) {
  static const char *const texts[] = {
      "let h = custom_grad(fn(x) x * 2, fn(ct, x) ct * 3)",
      "let k = fn(x) x * 3\nlet h = custom_grad(fn(x) x * 2, jit(fn(ct, x) k(ct)))",
      "let h = (fn(k) custom_grad(fn(x) x * k(2), fn(ct, x) ct * k(3)))(fn(y) y)",
      "let h = custom_grad(fn(x) vmap(fn(y) y * 2)(x), vmap(fn(ct, x) ct * 3))",
  };
  for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
    for (qn_jit_mode jit = QN_JIT_ON; jit <= QN_JIT_VERIFY; jit++) {
      qn_vm *vm = open_jit(jit);
      size_t before = 0, after = 0;
      good(vm, "let h = fn(x) x\nfn far(x) = sum(h(x) * 2)\nlet held = 0");
      for (int i = 0; i < 300; i++) {
        good(vm, texts[t]);
        good(vm,
             "fn f(x) = sum(h(x))\nfn g(x) = grad(f)(x)\nlet r = h(ones(3)) + h(ones(3)) + g(ones(3)) + g(ones(3))");
        good(vm, "let s = grad(far)(ones(3)) + grad(far)(ones(3))");
        ck_assert(number(vm, "r[0] + s[0]") == 2 + 2 + 3 + 3 + 6 + 6);
        if (i % 5 == 0) good(vm, "held = (h, graph(f, ones(3)))");
        ck_assert(number(vm, "held[0](ones(3))[0] + held[1](ones(3))") == 2 + 6);
        if (i % 5 < 2) ck_assert(number(vm, "grad(held[1])(ones(3))[0] + vmap(held[0])(ones(2, 3))[0, 0]") == 3 + 2);
        size_t *most = i < 150 ? &before : &after, now = mem_stats_of(vm)->live;
        if (now > *most) *most = now;
      }
      ck_assert_msg(after < before + 100000, "%s: %zu bytes, then %zu (jit %d)", texts[t], before, after, jit);
      qn_vm_close(vm);
    }
}
END_TEST

/* ---- stacks ------------------------------------------------------------------------------------------------------------------ */

static ucontext_t host_context, fiber_context;
static qn_vm *fiber_vm;
static const char *fiber_failed;

static const char recursive[] =
    "fn f(n) = if n == 0 { 0 } else { 1 + f(n - 1) }\nlet small = f(20)\n"
    "let deep = try { f(1_000_000) } catch e { e.id }\nif deep == \"E602\" { small } else { 0 }";

static void fiber_main(void) {
  qn_value r;
  fiber_failed = NULL;
  if (qn_eval(fiber_vm, "fiber.qn", recursive, strlen(recursive), &r) != QN_OK)
    fiber_failed = qn_error_message(fiber_vm);
  else if (qn_as_int(r) != 20)
    fiber_failed = "recursion has no end";
}

static void on_fiber(qn_vm *vm, char *stack, size_t size) {
  fiber_vm = vm;
  getcontext(&fiber_context);
  fiber_context.uc_stack.ss_sp = stack;
  fiber_context.uc_stack.ss_size = size;
  fiber_context.uc_link = &host_context;
  makecontext(&fiber_context, fiber_main, 0);
  swapcontext(&host_context, &fiber_context);
  ck_assert_msg(!fiber_failed, "%s", fiber_failed);
}

static char *fiber_stack;
static void *fibers(void *arg) {
  qn_vm *vm = arg;
  enum { SIZE = 1 << 20 };
  on_fiber(vm, fiber_stack, SIZE); /* unknown */
  qn_stack_changed(vm, fiber_stack, SIZE);
  on_fiber(vm, fiber_stack, SIZE);
  ck_assert(number(vm, recursive) == 20); /* the thread's own again */
  char *small = guarded(160 << 10);
  qn_stack_changed(vm, small, 160 << 10);
  on_fiber(vm, small, 160 << 10);
  qn_stack_changed(vm, NULL, 0);
  ck_assert(number(vm, recursive) == 20);
  return NULL;
}

START_TEST(fibers_have_stacks_of_their_own) {
  enum { SIZE = 1 << 20 };
  qn_vm *vm = open_jit(QN_JIT_OFF);
  good(vm, "1");
  char *a = guarded(SIZE), *b = guarded(SIZE);
  fiber_stack = a;
  fibers(vm);
  /* Below the thread's stack, and above it. */
  for (int above = 0; above < 2; above++) {
    bool order = (a < b) == (above != 0);
    fiber_stack = order ? b : a;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstack(&attr, order ? a : b, SIZE);
    pthread_t t;
    ck_assert_int_eq(pthread_create(&t, &attr, fibers, vm), 0);
    pthread_join(t, NULL);
  }
  qn_vm_close(vm);
}
END_TEST

/* A stack that is a piece of the thread's own: where an array lies on it, as coroutine libraries have them. */
static qn_vm *piece_vm;
static bool through_fiber;
static void piece_main(void) {
  fiber_main();
  if (fiber_failed || !through_fiber) return;
  /* an evaluation on the thread's stack waits in a callback, further down, until this one has ended */
  good(piece_vm, "let inner = sum(ones(5))");
}

static char *piece;
enum { PIECE = 256 << 10 };
static void to_piece(qn_vm *vm, const char *text) {
  (void)text;
  piece_vm = fiber_vm = vm;
  getcontext(&fiber_context);
  fiber_context.uc_stack.ss_sp = piece;
  fiber_context.uc_stack.ss_size = PIECE;
  fiber_context.uc_link = &host_context;
  makecontext(&fiber_context, piece_main, 0);
  swapcontext(&host_context, &fiber_context);
  ck_assert_msg(!fiber_failed, "%s", fiber_failed);
}

START_TEST(fibers_on_the_threads_own_stack) {
  enum { GUARD = 64 << 10 };
  char room[GUARD + PIECE + 4096];
  memset(room, 0x5a, GUARD); /* what recursion without bounds would write over */
  piece = room + GUARD;
  qn_vm *vm = open_calling(to_piece, QN_JIT_OFF);
  qn_stack_changed(vm, piece, PIECE);
  for (int i = 0; i < 3; i++) {
    through_fiber = false;
    ck_assert(number(vm, recursive) == 20); /* the thread's own stack is known now */
    to_piece(vm, "");
    /* the evaluation that calls the callback goes on behind it */
    through_fiber = true;
    good(vm, "fn f(x) {\n  print(1)\n  x + 1 }\nlet after = f(41)");
    ck_assert(number(vm, "after + inner") == 47);
    ck_assert_int_eq(vm->depth, 0);
  }
  for (int i = 0; i < GUARD; i++) ck_assert_int_eq(room[i], 0x5a);
  qn_stack_changed(vm, NULL, 0);
  ck_assert(number(vm, recursive) == 20);
  qn_vm_close(vm);
}
END_TEST

/* ---- processes and threads -------------------------------------------------------------------------------------------------------- */

static const char work[] =
    "fn f(x) = sum(tanh(x * 2) + x)\nlet total = 0.0\nfor i in 0..30 { total += float(f(ones(i + 3, 7))) }\ntotal";

static void child_works(qn_vm *vm, double wanted, bool told) {
  if (told) qn_after_fork(NULL);
  alarm(60);
  double x = number(vm, work);
  if (x != wanted) _exit(2);
  qn_vm_close(vm);
  qn_vm *own = open_jit(QN_JIT_ON);
  if (number(own, work) != wanted) _exit(3);
  qn_vm_close(own);
  _exit(0);
}

START_TEST(forked_children_go_on) {
#ifdef __SANITIZE_ADDRESS__
  return; /* its allocator's locks, which other threads may hold as a process forks, are not released in the child */
#endif
  for (int told = 0; told < 2; told++)
    for (int delay = 0; delay < 4; delay++) {
      qn_vm *vm = open_jit(QN_JIT_ON);
      double wanted = number(vm, work);
      usleep((unsigned)delay * 3000); /* compilers are at work, or done */
      pid_t child = fork();
      if (child == 0) child_works(vm, wanted, told);
      int status;
      ck_assert_int_eq(waitpid(child, &status, 0), child);
      ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x, told %d, delay %d", status, told, delay);
      ck_assert(number(vm, work) == wanted);
      qn_vm_close(vm);
    }
}
END_TEST

START_TEST(our_threads_take_no_signals) {
  qn_vm *vm = open_jit(QN_JIT_ON);
  good(vm, work);
  good(vm, "let big = sum(exp(rand(2000, 2000)))");
  good(vm, "explain(f, ones(3, 7))"); /* plans are made and compilers at work by then */
  DIR *tasks = opendir("/proc/self/task");
  ck_assert_ptr_nonnull(tasks);
  int threads = 0;
  for (struct dirent *e; (e = readdir(tasks));) {
    if (atoi(e->d_name) == 0 || atoi(e->d_name) == getpid()) continue;
    char path[300], line[256];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
    FILE *f = fopen(path, "r");
    if (!f) continue;
    while (fgets(line, sizeof line, f)) {
      unsigned long long blocked;
      if (sscanf(line, "SigBlk: %llx", &blocked) != 1) continue;
      threads++;
      const int some[] = {SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGALRM, SIGPROF};
      for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        ck_assert_msg(blocked >> (some[i] - 1) & 1, "thread %s takes signal %d", e->d_name, some[i]);
    }
    fclose(f);
  }
  closedir(tasks);
  ck_assert_int_ge(threads, 2); /* a planner and a compiler at least */
  qn_vm_close(vm);
}
END_TEST

static void *one_call(void *arg) {
  qn_vm *vm = arg;
  qn_value f, r, x = qn_int(3);
  if (qn_get_global(vm, "f", &f) != QN_OK) return arg;
  bool ok = true;
  for (int i = 0; i < 1000 && ok; i++) ok = qn_call(vm, f, &x, 1, &r) == QN_OK && qn_as_int(r) == 4;
  qn_release(vm, f);
  return ok ? NULL : arg;
}

START_TEST(vms_move_between_threads) {
  qn_vm *vm = open_jit(QN_JIT_OFF);
  good(vm, "fn f(x) = x + 1");
  for (int i = 0; i < 50; i++) {
    pthread_t t;
    void *failed;
    pthread_create(&t, NULL, one_call, vm);
    pthread_join(t, &failed);
    ck_assert_ptr_null(failed);
    ck_assert_ptr_null(one_call(vm));
  }
  ck_assert(number(vm, recursive) == 20);
  qn_vm_close(vm);
}
END_TEST

/* As a compiler thread does that has lost its processor for seconds. */
static pthread_mutex_t *queues_lock(qn_vm *vm) { return vm->engine->jit; }

static uint32_t entries_ready(qn_vm *vm, bool wait) {
  uint32_t n = 0;
  for (const anchor_specializations *a = jit_of(vm)->anchors; a; a = a->next)
    for (const specialization *e = a->first; e; e = e->next) {
      for (int i = 0; i < 100000 && wait && e->state == SPEC_COMPILING; i++) {
        usleep(500);
        jit_drain(vm);
      }
      n += e->state == SPEC_READY;
    }
  return n;
}

/* Milliseconds of this thread. */
static double thread_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Where the jobs are that are cancelled: not sent, waiting or in the mailbox. */
enum { UNSENT, QUEUED, DELIVERED, JOB_PLACES };

/* How many jobs planners have or are to have: those outstanding, but for what has not been sent or is in the mailbox. */
static int jobs_in_hand(qn_vm *vm) {
  int n = 0;
  for (const anchor_specializations *a = jit_of(vm)->anchors; a; a = a->next)
    for (const specialization *e = a->first; e; e = e->next) n += e->job != NULL;
  for (const parcel *p = jit_of(vm)->unsent; p; p = p->after) n--;
  for (const parcel *p = atomic_load(&jit_of(vm)->box->jobs); p; p = p->after) n--;
  return n;
}

/* What it takes to cancel each of n outstanding jobs, in nanoseconds. */
static double cancelling(int n, int where) {
  qn_vm *vm = open_jit(QN_JIT_ON);
  ck_assert_int_eq(qn_set_tunable(vm, "jit.cc", "0"), QN_OK);
  pthread_mutex_t *lock = queues_lock(vm);
  text_buf t = {0};
  text_adds(&t, "let x = ones(4)\n");
  for (int i = 0; i < n; i++) text_addf(&t, "fn f%d(x) = x * 2 + %d\nf%d(x)\n", i, i, i);
  if (where == UNSENT) ck_assert_int_eq(pthread_mutex_lock(lock), 0);
  good(vm, t.text);
  text_free(&t);
  for (int i = 0; i < 100000 && where == DELIVERED && jobs_in_hand(vm); i++) usleep(500);
  double from = thread_ms();
  jit_cancel(vm);
  double took = (thread_ms() - from) * 1e6 / n;
  if (getenv("QUERN_TEST_TIMES")) fprintf(stderr, "place %d: %.0f ns for each of %d jobs\n", where, took, n);
  if (where == UNSENT) {
    ck_assert_ptr_null(jit_of(vm)->unsent);
    ck_assert_int_eq(pthread_mutex_unlock(lock), 0);
  }
  if (where == DELIVERED)
    for (const parcel *p = atomic_load(&jit_of(vm)->box->jobs); p; p = p->after)
      ck_assert_ptr_nonnull(((const job *)p)->entry);
  good(vm, "f1(x)");
  qn_vm_close(vm);
  return took;
}

START_TEST(cancelling_is_linear) {
  for (int where = 0; where < JOB_PLACES; where++) {
    double few = 0, many = 0;
    for (int tries = 0; tries < 4; tries++) { /* something else may have taken the caches */
      few = cancelling(500, where);
      many = cancelling(10000, where);
      if (many < 5 * few) break;
    }
    ck_assert_msg(many < 5 * few, "place %d: %.0f ns a job of 500, %.0f of 10,000", where, few, many);
  }
}
END_TEST

START_TEST(nobody_waits_for_a_compiler_thread) {
  qn_vm *vm = open_jit(QN_JIT_ON), *other = open_jit(QN_JIT_ON);
  good(vm, "fn f(x) = x * 2\nf(ones(3))");
  entries_ready(vm, true); /* the threads are there */
  pthread_mutex_t *lock = queues_lock(vm);
  for (int i = 0; i < 5; i++) {
    ck_assert_int_eq(pthread_mutex_lock(lock), 0);
    good(vm, "fn g(x) = x * 3 + 1\nfn h(x) = sum(x) * x\nlet r = g(ones(3)) + h(ones(3))\nr = sum(g(ones(4)))\nr = "
             "g(ones(3))");
    for (int k = 0; k < 30; k++)
      good(vm, "let k = fn(x) x * 5\nk(ones(3))\nk = nil"); /* given up before they are sent */
    good(other, "fn g(x) = x * 3 + 1\ng(ones(3))");
    qn_vm_close(other);
    ck_assert_int_eq(pthread_mutex_unlock(lock), 0);
    good(vm, "f(ones(3))");
    ck_assert_uint_ge(entries_ready(vm, true), 4); /* f, and all that waited */
    other = open_jit(QN_JIT_ON);
    /* while they are at work */
    good(vm, "fn a(x) = sum(tanh(x) * x)\nfn b(x) = exp(x) + 1\nlet z = a(ones(9)) + sum(b(ones(3)))");
    ck_assert_int_eq(pthread_mutex_lock(lock), 0);
    good(vm, "a = nil\nb = nil");
    for (int k = 0; k < 30; k++) good(vm, "let k = fn(x) x * 5\nk(ones(3))\nk = nil");
    ck_assert_int_eq(pthread_mutex_unlock(lock), 0);
  }
  good(vm, "f(ones(3))");
  entries_ready(vm, true);
  for (const anchor_specializations *a = jit_of(vm)->anchors; a; a = a->next)
    for (const specialization *e = a->first; e; e = e->next) ck_assert_int_eq(e->state, SPEC_READY);
  qn_vm_close(vm);
  qn_vm_close(other);
}
END_TEST

/* ---- interrupts ------------------------------------------------------------------------------------------------------------------------ */

static atomic_bool sending;
static void *send_interrupts(void *vm) {
  while (atomic_load(&sending)) {
    qn_interrupt(vm);
    usleep(500);
  }
  return NULL;
}

START_TEST(interrupts_wait_for_the_next_call) {
  qn_vm *vm = open_jit(QN_JIT_OFF);
  good(vm, "fn f(x) = x + 1\nfn spin() { while true { } }");
  qn_value f, r, x = qn_int(1);
  ck_assert_int_eq(qn_get_global(vm, "f", &f), QN_OK);
  qn_interrupt(vm);
  ck_assert_int_eq(qn_call(vm, f, &x, 1, &r), QN_INTERRUPTED);
  ck_assert_int_eq(qn_call(vm, f, &x, 1, &r), QN_OK); /* once */
  qn_interrupt(vm);
  qn_interrupt_clear(vm);
  ck_assert_int_eq(qn_call(vm, f, &x, 1, &r), QN_OK);
  qn_release(vm, f);
  /* None is lost however they fall between two calls: each endless call ends. */
  pthread_t t;
  atomic_store(&sending, true);
  pthread_create(&t, NULL, send_interrupts, vm);
  for (int i = 0; i < 50; i++) ck_assert_int_eq(run(vm, "spin()"), QN_INTERRUPTED);
  atomic_store(&sending, false);
  pthread_join(t, NULL);
  qn_interrupt(vm);
  ck_assert_int_eq(run(vm, "spin()"), QN_INTERRUPTED);
  good(vm, "f(1)");
  qn_vm_close(vm);
}
END_TEST

static _Atomic unsigned wait_ms;
static void *interrupt_later(void *vm) {
  usleep(atomic_load(&wait_ms) * 1000);
  qn_interrupt(vm);
  return NULL;
}

/* What a long recording keeps is not freed while somebody waits for the interrupt, but when the next recording begins. */
START_TEST(interrupted_recordings_are_freed_later) {
  qn_vm *vm = open_jit(QN_JIT_OFF);
  ck_assert_int_eq(qn_set_tunable(vm, "jit.regions", "0"), QN_OK);
  good(vm, "fn f(x) { for i in 0..1_000_000_000 { x = x * 0.5 + i }; sum(x) }\nfn g(x) = sum(x * x)");
  for (unsigned ms = 50; !jit_of(vm)->left_over; ms *= 2) { /* until it was long enough */
    ck_assert_uint_lt(ms, 20000);
    atomic_store(&wait_ms, ms);
    pthread_t t;
    pthread_create(&t, NULL, interrupt_later, vm);
    ck_assert_int_eq(run(vm, "grad(f)(ones(2))"), QN_INTERRUPTED);
    pthread_join(t, NULL);
  }
  good(vm, "let y = grad(g)(ones(2))[1]");
  ck_assert_ptr_null(jit_of(vm)->left_over);
  ck_assert(number(vm, "y") == 2);
  qn_vm_close(vm);
}
END_TEST

/* ---- values and names ----------------------------------------------------------------------------------------------------------------- */

START_TEST(globals_have_names_of_the_language) {
  qn_vm *vm = open_jit(QN_JIT_OFF);
  static const char *const bad[] = {"",   "if",  "a b", "1x",  "a.b", "a-b", "true",
                                    " a", "a\n", "pi",  "inf", "nan", "new", "_"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    ck_assert_msg(qn_set_global(vm, bad[i], qn_int(1)) == QN_ERROR, "%s", bad[i]);
    ck_assert_str_eq(qn_error_id(vm), "E317");
  }
  static const char *const fine[] = {"a", "_x1", "größe", "iff"};
  for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
    ck_assert_msg(qn_set_global(vm, fine[i], qn_int(5)) == QN_OK, "%s", qn_error_report(vm));
    ck_assert(number(vm, fine[i]) == 5);
  }
  qn_vm_close(vm);
}
END_TEST

START_TEST(arrays_of_rank_0_are_numbers) {
  for (qn_jit_mode jit = QN_JIT_ON; jit <= QN_JIT_SYNC; jit++) {
    qn_vm *vm = open_jit(jit);
    good(vm, "fn f(x) = sum(x)");
    for (int i = 0; i < 5; i++) ck_assert(number(vm, "f([1.5, 2.0])") == 3.5);
    ck_assert(number(vm, "sum([1, 2, 3])") == 6);
    ck_assert(number(vm, "f16(sum([0.5]))") == 0.5);
    qn_value r;
    ck_assert_int_eq(qn_eval(vm, "t", "sum([1, 2, 3])", 14, &r), QN_OK);
    ck_assert_int_eq(qn_kind_of(r), QN_ARRAY);
    ck_assert_int_eq(qn_as_int(r), 6);
    ck_assert(!qn_as_bool(r));
    qn_release(vm, r);
    ck_assert_int_eq(qn_eval(vm, "t", "any([1, 2] > 1)", 15, &r), QN_OK);
    ck_assert(qn_as_bool(r));
    qn_release(vm, r);
    double none = number(vm, "[1.0]");
    ck_assert(none != none);
    qn_vm_close(vm);
  }
}
END_TEST

START_TEST(values_belong_to_one_vm) {
  qn_vm *a = open_jit(QN_JIT_OFF), *b = open_jit(QN_JIT_OFF);
  good(a, "fn f(x) = x\nlet xs = (1, 2)");
  qn_value f, xs, r, one = qn_int(1);
  ck_assert_int_eq(qn_get_global(a, "f", &f), QN_OK);
  ck_assert_int_eq(qn_get_global(a, "xs", &xs), QN_OK);
  ck_assert_int_eq(qn_set_global(b, "one", one), QN_OK); /* numbers are everybody's */
#if defined(QN_CHECKED) && !defined(__SANITIZE_ADDRESS__)
  ck_assert_int_eq(qn_call(b, f, &one, 1, &r), QN_ERROR);
  ck_assert_str_eq(qn_error_id(b), "E317");
  ck_assert_int_eq(qn_set_global(b, "xs", xs), QN_ERROR);
  ck_assert_int_eq(qn_item(b, xs, 0, &r), QN_ERROR);
  ck_assert_int_eq(qn_list_from(b, &xs, 1, &r), QN_ERROR);
  ck_assert_int_eq(qn_record_from(b, (const char *const[]){"x"}, &xs, 1, &r), QN_ERROR);
  ck_assert_int_eq(qn_to_text(b, xs, &r), QN_ERROR);
#endif
  ck_assert_int_eq(qn_call(a, f, &xs, 1, &r), QN_OK);
  qn_release(a, r);
  qn_release(a, f);
  qn_release(a, xs);
  qn_vm_close(a);
  qn_vm_close(b);
}
END_TEST

/* ---- capabilities ------------------------------------------------------------------------------------------------------------------------- */

START_TEST(without_capabilities_no_file_is_touched) {
  char home[] = "/tmp/quern-test-XXXXXX", path[64];
  ck_assert_ptr_nonnull(mkdtemp(home));
  setenv("HOME", home, 1);
  unsetenv("XDG_CACHE_HOME");
  unsetenv("QUERN_CACHE");
  for (int caps = 0; caps < 2; caps++) {
    qn_config config;
    qn_config_init(&config);
    config.jit = QN_JIT_SYNC;
    config.capabilities = caps ? QN_CAP_READ | QN_CAP_SPAWN : 0;
    qn_vm *vm = qn_vm_open(&config);
    ck_assert_int_eq(qn_set_tunable(vm, "jit.hot", "1"), QN_OK);
    ck_assert_int_eq(qn_set_tunable(vm, "cache.bytes", "1000000"), QN_OK);
    good(vm, work);
    qn_vm_close(vm);
  }
  snprintf(path, sizeof path, "%s/.cache", home);
  ck_assert_int_ne(access(path, F_OK), 0);
  ck_assert_int_eq(rmdir(home), 0);
}
END_TEST

int main(void) {
  Suite *s = suite_create("embed");
  TCase *c;
#define ADD(test)                                                                                                      \
  tcase_set_timeout(c, 120);                                                                                           \
  tcase_add_test(c, test);                                                                                             \
  suite_add_tcase(s, c);
  c = tcase_create("nested_errors");
  ADD(an_error_of_a_nested_call_is_the_callbacks)
  c = tcase_create("nested_gradients");
  ADD(callbacks_compute_inside_a_gradient)
  c = tcase_create("exceptions");
  ADD(exceptions_pass_through_callbacks)
  ADD(what_exceptions_leave_goes)
  ADD(what_was_asked_for_ends_with_an_exception)
  ADD(an_explain_that_is_left_changes_nothing)
  ADD(a_host_that_leaves_the_log_loses_no_plan)
  ADD(texts_that_are_left_go)
  c = tcase_create("constant_memory");
  ADD(evals_leave_nothing_behind)
  ADD(counts_of_what_has_gone_go)
  ADD(code_of_graphs_that_have_gone_is_counted)
  ADD(calls_are_counted_without_memory)
  ADD(texts_of_values_leave_no_lines_waiting)
  ADD(results_that_are_functions_keep_no_text)
  ADD(custom_grads_that_were_replaced_go)
  c = tcase_create("memory_limit");
  ADD(evals_without_end_fit_a_limit)
  c = tcase_create("code_of_functions");
  ADD(functions_keep_their_text)
  ADD(code_may_go_before_the_functions_of_it)
  c = tcase_create("ends_of_arrays");
  ADD(kernels_read_no_further_than_the_tail)
  c = tcase_create("modules");
  ADD(modules_go_by_the_hosts_keys)
  ADD(modules_that_were_replaced_go)
  ADD(modules_stay_while_something_has_them)
  ADD(a_module_that_runs_is_not_freed)
  c = tcase_create("fibers");
  ADD(fibers_have_stacks_of_their_own)
  ADD(fibers_on_the_threads_own_stack)
  c = tcase_create("forks");
  ADD(forked_children_go_on)
  c = tcase_create("signals");
  ADD(our_threads_take_no_signals)
  c = tcase_create("threads");
  ADD(vms_move_between_threads)
  ADD(nobody_waits_for_a_compiler_thread)
  c = tcase_create("cancelling");
  ADD(cancelling_is_linear)
  c = tcase_create("interrupts");
  ADD(interrupts_wait_for_the_next_call)
  ADD(interrupted_recordings_are_freed_later)
  c = tcase_create("names");
  ADD(globals_have_names_of_the_language)
  c = tcase_create("rank_0");
  ADD(arrays_of_rank_0_are_numbers)
  c = tcase_create("other_vms");
  ADD(values_belong_to_one_vm)
  c = tcase_create("no_capabilities");
  ADD(without_capabilities_no_file_is_touched)
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_ENV);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
