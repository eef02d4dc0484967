/* What calls on a GPU ask of the driver (jit/gpu): one graph and at most one copy for a plan whose sizes are known, one launch for
 * an op; constants once; errors in the middle of a plan; waiting that ends with an interrupt or a limit; the memory limit. The driver is
 * tests/cuda/fake_driver.c, whose work is done late or not at all where a test says so. labels: slow */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>

#include "tests/cuda/fake.h"
#include "tests/unit/gpu.h"

/* ---- counting ---------------------------------------------------------------------------------------------------------- */

static fake_count *counts(void) {
  char path[700];
  snprintf(path, sizeof path, "%s/libcuda.so.1", getenv("QUERN_CUDA"));
  void *driver = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  fake_count *c = driver ? dlsym(driver, "fake_counts") : NULL;
  if (!c) ck_abort_msg("the fake driver is not loaded");
  dlclose(driver);
  return c;
}

/* A VM whose functions are compiled at their second call, every op as a kernel of its own. */
static qn_vm *vm_hot(const qn_config *config) {
  qn_vm *vm = vm_compiling_with(config);
  ck_assert_int_eq(qn_set_tunable(vm, "jit.hot", "1"), QN_OK);
  ck_assert_int_eq(qn_set_tunable(vm, "fuse.enabled", "0"), QN_OK);
  return vm;
}

static void run(qn_vm *vm, const char *text) { qn_release(vm, eval(vm, text)); }

static fake_count during(qn_vm *vm, const char *text) {
  fake_count before = *counts();
  run(vm, text);
  const fake_count *c = counts();
  return (fake_count){
      c->to_device - before.to_device,     c->to_host - before.to_host,     c->launches - before.launches,
      c->graphs - before.graphs,           c->nodes - before.nodes,         c->instantiations - before.instantiations,
      c->allocations - before.allocations, c->questions - before.questions, c->products - before.products,
      c->captures - before.captures};
}

/* Makes the call with its n-th allocation failing, for n = 1, 2 .. until none is left to fail: each time it is E601 or works, and
 * afterwards `look` gives what it must. `step` comes before each n. */
static void fail_each_allocation(qn_vm *vm, const char *step, const char *call, const char *look, const char *want) {
  bool done = false;
  for (uint64_t n = 1; n < 400 && !done; n++) {
    run(vm, step);
    done = true;
    for (int again = 0; again < 3; again++) {
      mem_fail_at(vm, n);
      qn_status status = qn_eval(vm, "test", call, strlen(call), NULL);
      mem_fail_at(vm, 0);
      if (status == QN_OK) continue;
      ck_assert_str_eq(qn_error_id(vm), "E601");
      done = false;
    }
    prints(vm, look, want);
  }
  ck_assert(done);
}

/* Many kernels: each needs all of the one before. */
static const char many[] = "fn many(x, w) {\n"
                           "  let a = cumsum(x * w)\n"
                           "  let b = cumsum(a - max(a))\n"
                           "  let c = cumsum(b * [1.0, 2.0, 3.0, 4.0])\n"
                           "  cumsum(c / (1.0 + max(c * c)))\n"
                           "}\n";

START_TEST(a_plan_is_one_copy_and_one_graph) {
  qn_vm *vm = vm_hot(NULL);
  run(vm, many);
  run(vm, "let w = [0.5, 1.5, -1.0, 2.0]; let x = [1.0, 2.0, 3.0, 4.0]; let y = x");
  for (int i = 0; i < 6; i++) run(vm, "y = many(x, w)");
  fake_count c = during(vm, "y = many(x, w)");
  ck_assert_uint_eq(c.graphs, 1);
  ck_assert_uint_gt(c.nodes, 3);
  ck_assert_uint_eq(c.launches, 0);
  ck_assert_uint_le(c.to_device, 1);
  ck_assert_uint_eq(c.to_host, 0);
  ck_assert_uint_eq(c.allocations, 0);
  ck_assert_uint_eq(c.instantiations, 0);
  ck_assert_uint_eq(c.questions, 0);
  ck_assert_int_eq(qn_set_tunable(vm, "jit.turns", "0"), QN_OK);
  run(vm, "for i in 0..10 { x = many(x, w) }"); /* addresses take turns: their words are there already */
  c = during(vm, "for i in 0..100 { x = many(x, w) }");
  ck_assert_uint_eq(c.graphs, 100);
  ck_assert_uint_eq(c.to_device, 0);
  ck_assert_uint_eq(c.to_host + c.launches + c.allocations + c.instantiations, 0);
  qn_vm_close(vm);
}
END_TEST

START_TEST(numbers_that_change_are_one_copy) {
  qn_vm *vm = vm_hot(NULL);
  run(vm, "fn f(x, rate) = cumsum(cumsum(x) * rate)\nlet x = [1.0, 2.0]; let y = x");
  for (int i = 0; i < 6; i++) run(vm, "y = f(x, 0.5 + 1.0)");
  run(vm, "for i in 0..10 { y = f(x, 0.25 * float(i)) }");
  fake_count c = during(vm, "for i in 0..10 { y = f(x, 0.25 * float(i)) }");
  ck_assert_uint_eq(c.graphs, 10);
  ck_assert_uint_eq(c.to_device, 10);
  ck_assert_uint_eq(c.to_host + c.launches + c.allocations + c.instantiations, 0);
  prints(vm, "y", "f32[2] gpu(0)\n[2.25, 9.00]");
  qn_vm_close(vm);
}
END_TEST

START_TEST(a_plan_of_one_kernel_is_one_launch) {
  qn_vm *vm = vm_hot(NULL);
  run(vm, "fn f(x) = x * 2.0\nlet x = [1.0, 2.0]; let y = x");
  for (int i = 0; i < 6; i++) run(vm, "y = f(x)");
  fake_count c = during(vm, "y = f(x)");
  ck_assert_uint_eq(c.launches, 1);
  ck_assert_uint_eq(c.graphs + c.to_device + c.to_host + c.allocations + c.questions, 0);
  prints(vm, "y", "f32[2] gpu(0)\n[2.0, 4.0]");
  qn_vm_close(vm);
}
END_TEST

START_TEST(an_op_is_one_launch) {
  qn_vm *vm = vm_hot(NULL);
  run(vm, "let x = [1.0, 2.0]; let z = x * x");
  fake_count c = during(vm, "z = x * x");
  ck_assert_uint_eq(c.launches, 1);
  ck_assert_uint_eq(c.to_device + c.to_host + c.allocations + c.questions, 0);
  run(vm, "z = x * 2.5"); /* numbers are sent once */
  c = during(vm, "z = x * 2.5");
  ck_assert_uint_eq(c.launches, 1);
  ck_assert_uint_eq(c.to_device + c.to_host + c.allocations + c.questions, 0);
  prints(vm, "z + 1", "f32[2] gpu(0)\n[3.5, 6.0]");
  qn_vm_close(vm);
}
END_TEST

/* ---- addresses and sizes -------------------------------------------------------------------------------------------------- */

/* The program with and without compiled code, and on the CPU. */
static void same_everywhere(const char *text) {
  char *shown[3];
  for (int i = 0; i < 3; i++) {
    qn_vm *vm = vm_hot(NULL);
    if (i == 2) ck_assert(vm_use_device(vm, 0));
    if (i == 1) vm->config.jit = QN_JIT_OFF;
    qn_value v = eval(vm, text), t;
    ck_assert_int_eq(qn_to_text(vm, v, &t), QN_OK);
    shown[i] = strdup(qn_as_string(t, NULL));
    qn_release(vm, t);
    qn_release(vm, v);
    qn_vm_close(vm);
  }
  ck_assert_str_eq(shown[0], shown[1]);
  ck_assert_str_eq(shown[0], shown[2]);
  for (int i = 0; i < 3; i++) free(shown[i]);
}

static const char walk[] = "fn step(x, w) {\n"
                           "  let a = cumsum(x * w)\n"
                           "  cumsum(a / (1.0 + max(a * a))) + x\n"
                           "}\n"
                           "let kept = ()\n"
                           "let sums = ()\n"
                           "for i in 0..40 {\n"
                           "  let n = 3 + i % 11\n"
                           "  let x = arange(n) * 0.25\n"
                           "  for k in 0..3 { x = step(x, 1.5 - x) }\n"
                           "  if i % 3 == 0 { kept = append(kept, x) }\n"
                           "  sums = append(sums, float(sum(x)))\n"
                           "}\n"
                           "for k in kept { sums = append(sums, float(sum(k))) }\n"
                           "sums\n";

START_TEST(sizes_and_addresses_change) { same_everywhere(walk); }
END_TEST

START_TEST(work_may_be_done_late) {
  setenv("FAKE_LATE", "1", 1);
  same_everywhere(walk);
}
END_TEST

START_TEST(graphs_are_kept_for_some_sizes) {
  qn_vm *vm = vm_hot(NULL);
  run(vm, "fn f(x) { let a = cumsum(x); a - cumsum(a * a) }\n"
          "fn all(k) { for i in 0..k { let _y = f(arange(5 + i) * 0.5) } }");
  for (int i = 0; i < 6; i++) run(vm, "all(5)");
  fake_count c = during(vm, "all(5)");
  ck_assert_uint_eq(c.instantiations, 0);
  ck_assert_uint_eq(c.graphs, 5);
  c = during(vm, "for i in 100..130 { let _y = f(arange(i) * 0.5) }"); /* ever new ones are not worth a graph */
  ck_assert_uint_eq(c.instantiations, 0);
  ck_assert_uint_eq(c.graphs, 0);
  qn_vm_close(vm);
}
END_TEST

/* A VM that has run this program and then recorded its function f for two of its arrays xs, and so for any size. Turns of loops are not recorded. */
static qn_vm *vm_of_sizes(const char *program) {
  qn_vm *vm = vm_compiling_with(NULL);
  ck_assert_int_eq(qn_set_tunable(vm, "jit.hot", "1"), QN_OK);
  run(vm, program);
  for (int i = 0; i < 4; i++) run(vm, "y = f(xs[4]); y = f(xs[5])");
  ck_assert_int_eq(qn_set_tunable(vm, "jit.turns", "0"), QN_OK);
  return vm;
}

START_TEST(sizes_that_change_are_not_waited_for) {
  qn_vm *vm = vm_of_sizes("fn f(x) = softmax(x, axis: -1)\nlet xs = map(2..40, fn(n) ones(n, 16)); let y = xs[0]");
  fake_count c = during(vm, "for x in xs { y = f(x) }"); /* rows of 16 need the same scratch, however many there are */
  ck_assert_uint_ge(c.launches + c.graphs, 38);
  ck_assert_uint_eq(c.questions + c.to_host, 0);
  qn_vm_close(vm);
}
END_TEST

START_TEST(sums_that_may_become_long_are_cut) {
  qn_vm *vm = vm_of_sizes(
      "fn f(x) = sum(x, axis: 0)\nlet xs = map(2..10, fn(n) ones(n, 32)); let y = xs[0]; let x = ones(3000, 32)");
  run(vm, "y = f(x)");
  prints(vm, "bool(all(y == 3000))", "true");
  /* recorded with few rows, its kernel has a phase for parts of them, and one that adds these up */
  fake_count c = during(vm, "y = f(xs[7])");
  ck_assert_uint_eq(c.launches, 2);
  qn_vm_close(vm);
}
END_TEST

START_TEST(constants_are_sent_once) {
  qn_vm *vm = vm_hot(NULL);
  run(vm, "fn f(x) = cumsum(x * [1.0, 2.0, 3.0]) / [4.0, 5.0, 6.0]\nlet x = [1.0, 1.0, 1.0]; let y = x; let z = x");
  for (int i = 0; i < 12; i++) run(vm, "z = y; y = f(x)");
  size_t live = ((gpu_vm *)vm->devices[FAMILY_gpu])->of[0]->live;
  fake_count c = during(vm, "for i in 0..5 { z = y; y = f(x) }");
  ck_assert_uint_eq(c.to_device, 0);
  ck_assert_uint_eq(((gpu_vm *)vm->devices[FAMILY_gpu])->of[0]->live, live);
  prints(vm, "y", "f32[3] gpu(0)\n[0.25, 0.60, 1.00]");
  qn_vm_close(vm);
}
END_TEST

START_TEST(two_vms_run_one_program) {
  qn_engine *engine = qn_engine_open();
  qn_config config;
  qn_config_init(&config);
  config.engine = engine;
  qn_vm *a = vm_hot(&config), *b = vm_hot(&config);
  qn_vm *vms[] = {a, b};
  for (int i = 0; i < 2; i++) run(vms[i], many);
  for (int k = 0; k < 4; k++)
    for (int i = 0; i < 2; i++) prints(vms[i], "many([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0])[3]", "-0.010133691");
  qn_vm_close(a);
  qn_vm_close(b);
  qn_engine_close(engine);
}
END_TEST

/* ---- errors ------------------------------------------------------------------------------------------------------------------ */

static void fails_at(qn_vm *vm, const char *text, const char *id, const char *message, const char *place) {
  fails(vm, text, id, message);
  ck_assert_msg(strstr(qn_error_report(vm), place) != NULL, "%s", qn_error_report(vm));
}

START_TEST(the_first_failed_check_is_the_error) {
  for (int late = 0; late < 2; late++) {
    setenv("FAKE_LATE", late ? "1" : "0", 1);
    qn_vm *vm = vm_hot(NULL);
    run(vm, "fn g(x, i, d) {\n"
            "  let a = cumsum(x)\n"
            "  let b = cumsum(a[i])\n"
            "  let c = cumsum(b // d)\n"
            "  let e = x[c % 3]\n"
            "  cumsum(e)\n"
            "}\n"
            "let y = 0");
    for (int k = 0; k < 5; k++) run(vm, "y = g([1, 2, 3], [0, 1, 2], [1, 1, 1])");
    fake_count c = during(vm, "y = g([1, 2, 3], [0, 1, 2], [1, 1, 1])");
    ck_assert_uint_eq(c.graphs, 1);
    ck_assert_uint_eq(c.launches, 1); /* what tells about the checks */
    fails_at(vm, "g([1, 2, 3], [0, 1, 7], [1, 1, 1])", "E303", "index 7", ":3");
    fails_at(vm, "g([1, 2, 3], [0, 1, 2], [1, 0, 1])", "E306", "element 1", ":4");
    fails_at(vm, "g([1, 2, 3], [0, 9, 2], [0, 0, 1])", "E303", "index 9", ":3");
    prints(vm, "g([1, 2, 3], [0, 1, 2], [1, 1, 1])", "i64[3] gpu(0)\n[2, 5, 6]");
    qn_vm_close(vm);
  }
}
END_TEST

/* ---- products --------------------------------------------------------------------------------------------------------------- */

/* An MLP's training step: five products between kernels. */
static const char mlp[] = "fn loss(p, x, y) { let h = tanh(x @ p.a + p.b); let o = h @ p.c - y; mean(o * o) }\n"
                          "fn step(p, x, y, rate) {\n"
                          "  let (value, g) = value_and_grad(loss)(p, x, y)\n"
                          "  ({a: p.a - g.a * rate, b: p.b - g.b * rate, c: p.c - g.c * rate}, value)\n"
                          "}\n"
                          "seed(7)\n"
                          "let p = {a: randn(6, 5), b: zeros(5), c: randn(5, 3)}\n"
                          "let x = randn(8, 6); let y = randn(8, 3); let value = 0\n";

START_TEST(a_plan_with_products_is_one_graph) {
  for (int late = 0; late < 2; late++) {
    setenv("FAKE_LATE", late ? "1" : "0", 1);
    qn_vm *vm = vm_hot(NULL);
    run(vm, mlp);
    run(vm, "for i in 0..20 { (p, value) = step(p, x, y, 0.1) }");
    fake_count c = during(vm, "for i in 0..50 { (p, value) = step(p, x, y, 0.1) }");
    ck_assert_uint_eq(c.graphs, 50); /* buffers take turns */
    ck_assert_uint_gt(c.nodes, 50 * 6);
    ck_assert_uint_eq(c.products + c.captures + c.instantiations, 0);
    ck_assert_uint_eq(c.to_device + c.to_host + c.launches + c.allocations, 0);
    run(vm, "for i in 0..8 { (p, value) = step(p, x, y, 0.01 * float(i)) }");
    c = during(vm, "for i in 0..50 { (p, value) = step(p, x, y, 0.01 * float(i)) }"); /* numbers change */
    ck_assert_uint_eq(c.graphs, 50);
    ck_assert_uint_le(c.to_device, 50);
    ck_assert_uint_eq(c.products + c.captures + c.instantiations, 0);
    ck_assert_uint_eq(c.to_host + c.launches + c.allocations, 0);
    qn_vm_close(vm);
  }
}
END_TEST

/* A program gives the same, bit for bit, with and without compiled code. */
static void as_eager(const char *before, const char *text) {
  char *shown[2];
  for (int i = 0; i < 2; i++) {
    qn_vm *vm = vm_hot(NULL);
    if (i) vm->config.jit = QN_JIT_OFF;
    run(vm, before);
    qn_value v = eval(vm, text), t;
    ck_assert_int_eq(qn_to_text(vm, v, &t), QN_OK);
    shown[i] = strdup(qn_as_string(t, NULL));
    qn_release(vm, t);
    qn_release(vm, v);
    qn_vm_close(vm);
  }
  ck_assert_str_eq(shown[0], shown[1]);
  for (int i = 0; i < 2; i++) free(shown[i]);
}

static const char training[] = "let seen = ()\n"
                               "for i in 0..60 {\n"
                               "  (p, value) = step(p, x, y, 0.02 * float(i % 3))\n"
                               "  if i % 7 == 0 { seen = append(seen, p) }\n"
                               "  if i % 20 == 19 { x = randn(8 + i, 6); y = randn(8 + i, 3) }\n"
                               "}\n"
                               "(value, p.a, p.c, seen[2].a, seen[5].b, seen[8].c)\n";

START_TEST(products_in_graphs_give_the_same) {
  as_eager(mlp, training);
  setenv("FAKE_LATE", "1", 1);
  as_eager(mlp, training);
}
END_TEST

/* Operands at ever other addresses, odd ones among them, which are copied. */
static const char two[] =
    "fn two(v, w) { let h = cumsum(v.reshape(4, 3) @ w, axis: 0); cumsum(h @ h, axis: 0) * 0.5 }\n"
    "seed(3); let all = randn(400); let w = randn(3, 4); let z = 0\n"
    "fn at(k) = two(all[k:k + 12], w)\n";

START_TEST(operands_at_odd_addresses_are_copied) {
  as_eager(two, "let r = (); for i in 0..24 { r = append(r, float(sum(at(1 + i // 6)))) }; r");
  qn_vm *vm = vm_hot(NULL);
  run(vm, two);
  for (int i = 0; i < 8; i++) run(vm, "z = two(all[5:17], w)");
  fake_count c = during(vm, "for _ in 0..5 { z = two(all[5:17], w) }");
  ck_assert_uint_eq(c.graphs, 5);
  ck_assert_uint_eq(c.products + c.launches + c.to_device + c.allocations, 0);
  qn_vm_close(vm);
}
END_TEST

START_TEST(some_sets_of_addresses_are_kept) {
  qn_vm *vm = vm_hot(NULL);
  run(vm, two);
  for (int i = 0; i < 6; i++) run(vm, "z = two(all[4:16], w)");
  fake_count c = during(vm, "z = two(all[20:32], w)"); /* another set: captured, once */
  ck_assert_uint_eq(c.graphs, 1);
  ck_assert_uint_eq(c.captures, 2);
  ck_assert_uint_eq(c.instantiations, 1);
  run(vm, "for i in 0..6 { z = two(all[20:32], w); z = two(all[4:16], w) }");
  c = during(vm, "for i in 0..20 { z = two(all[20:32], w); z = two(all[4:16], w) }");
  ck_assert_uint_eq(c.graphs, 40);
  ck_assert_uint_eq(c.products + c.captures + c.instantiations + c.launches, 0);
  qn_vm_close(vm);
}
END_TEST

static bool logged(qn_vm *vm, const char *text, const char *what) {
  FILE *log = tmpfile();
  int old = dup(2);
  char line[400];
  bool found = false;
  ck_assert_ptr_nonnull(log);
  fflush(stderr);
  dup2(fileno(log), 2);
  vm->log |= LOG_kernels;
  run(vm, text);
  vm->log = 0;
  fflush(stderr);
  dup2(old, 2);
  close(old);
  rewind(log);
  while (!found && fgets(line, sizeof line, log)) found = strstr(line, what) != NULL;
  fclose(log);
  return found;
}

START_TEST(addresses_that_keep_changing_are_given_up) {
  qn_vm *vm = vm_hot(NULL);
  run(vm, two);
  for (int i = 0; i < 6; i++) run(vm, "z = two(all[4:16], w)");
  ck_assert(logged(vm, "for i in 0..60 { z = two(all[4 * i:4 * i + 12], w) }", "addresses keep changing"));
  size_t live = ((gpu_vm *)vm->devices[FAMILY_gpu])->of[0]->live;
  fake_count c = during(vm, "for i in 0..60 { z = two(all[4 * i:4 * i + 12], w) }");
  ck_assert_uint_eq(c.captures + c.instantiations, 0);
  ck_assert_uint_eq(c.products, 120);
  ck_assert_uint_eq(((gpu_vm *)vm->devices[FAMILY_gpu])->of[0]->live, live);
  qn_vm_close(vm);
  as_eager(two, "let r = (); for i in 0..60 { r = append(r, float(sum(two(all[4 * i:4 * i + 12], w)))) }; r");
}
END_TEST

START_TEST(captures_that_fail_change_nothing) {
  static const char *const where[] = {"begin", "library", "end"};
  for (int i = 0; i < 3; i++) {
    setenv("FAKE_CAPTURE", where[i], 1);
    if (i == 1) as_eager(mlp, training);
    qn_vm *vm = vm_hot(NULL);
    run(vm, mlp);
    run(vm, "for i in 0..20 { (p, value) = step(p, x, y, 0.1) }");
    fake_count c = during(vm, "for i in 0..10 { (p, value) = step(p, x, y, 0.1) }");
    ck_assert_uint_eq(c.captures, 0);
    ck_assert_uint_eq(c.products % 10, 0);
    ck_assert_uint_gt(c.products, 30);
    qn_vm_close(vm);
  }
  unsetenv("FAKE_CAPTURE");
}
END_TEST

/* Allocations fail, one at a time, while graphs with products are made. */
START_TEST(products_without_memory_are_errors) {
  qn_vm *vm = vm_hot(NULL);
  run(vm, "fn f(x) { let a = cumsum(x @ x, axis: 0); cumsum(a @ x, axis: 0) }\nlet y = 0; let n = 2");
  for (int i = 0; i < 4; i++) run(vm, "y = f(ones(12, 12))");
  fail_each_allocation(vm, "n = 2 + n % 9", "y = f(ones(n, n))", "float(f(ones(n, n))[0, 0]) == n * n", "true");
  qn_vm_close(vm);
}
END_TEST

START_TEST(checks_beside_captured_products) {
  qn_vm *vm = vm_hot(NULL);
  run(vm, "fn g(x, i) {\n"
          "  let a = (x @ x)[i]\n"
          "  cumsum(a @ x, axis: 0)[i]\n"
          "}\n"
          "let e = ones(3, 3); let y = 0");
  for (int k = 0; k < 6; k++) run(vm, "y = g(e, [0, 2, 1])");
  fake_count c = during(vm, "y = g(e, [0, 2, 1])");
  ck_assert_uint_eq(c.graphs, 1);
  ck_assert_uint_eq(c.launches, 1); /* what tells about the checks */
  ck_assert_uint_eq(c.products, 0);
  fails_at(vm, "g(e, [0, 3, 1])", "E303", "index 3", ":2");
  prints(vm, "g(e, [0, 2, 1])[2]", "f32[3] gpu(0)\n[18.0, 18.0, 18.0]");
  qn_vm_close(vm);
}
END_TEST

/* ---- waiting ---------------------------------------------------------------------------------------------------------------- */

static void *interrupt_soon(void *vm) {
  usleep(60000);
  qn_interrupt(vm);
  return NULL;
}

/* `text` is interrupted while the device does nothing. */
static void interrupted(qn_vm *vm, const char *text) {
  pthread_t thread;
  setenv("FAKE_STUCK", "1", 1);
  ck_assert_int_eq(pthread_create(&thread, NULL, interrupt_soon, vm), 0);
  ck_assert_int_eq(qn_eval(vm, "test", text, strlen(text), NULL), QN_INTERRUPTED);
  ck_assert_str_eq(qn_error_id(vm), "E603");
  pthread_join(thread, NULL);
  unsetenv("FAKE_STUCK");
}

START_TEST(an_interrupt_ends_waiting) {
  setenv("FAKE_LATE", "1", 1);
  qn_vm *vm = vm_hot(NULL);
  run(vm, many);
  run(vm, "fn f(x, i) { let a = cumsum(x)[i]; cumsum(a * 2) }\n"
          "let w = [0.5, 1.5, -1.0, 2.0]; let x = [1.0, 2.0, 3.0, 4.0]; let y = x; let z = [1, 2]; let big = "
          "zeros(300, 1000)");
  for (int i = 0; i < 4; i++) run(vm, "y = many(x, w); z = f([1, 2, 3], [0, 2])");
  prints(vm, "int(z[1])", "14");
  run(vm, "y = many(x * 2.0, w); y = x");
  interrupted(vm, "y = many(x * 2.0, w); print(y)"); /* y is there, and what is asked for goes on */
  prints(vm, "all(y == many(x * 2.0, w))", "true");
  interrupted(vm, "float(sum(x))");
  interrupted(vm, "z = f([3, 2, 1], [1, 1])"); /* the checks of a plan */
  prints(vm, "z", "i64[2] gpu(0)\n[ 2, 14]");
  interrupted(vm, "z = z // [1, 2]"); /* of an op */
  prints(vm, "z", "i64[2] gpu(0)\n[ 2, 14]");
  interrupted(vm, "time()");
  interrupted(vm, "big.to(cpu)");
  prints(vm, "f([3, 2, 1], [1, 1])", "i64[2] gpu(0)\n[10, 20]");
  prints(vm, "float(sum(big))", "0.0");
  qn_vm_close(vm);
}
END_TEST

/* Memory that copies to the device still come from is not written to again. */
START_TEST(an_interrupted_copy_leaves_those_before_it_alone) {
  setenv("FAKE_LATE", "1", 1);
  qn_vm *vm = vm_on_fake(NULL);
  run(vm, "let x = arange(250_000).to(cpu); let y = 0 - x; let kept = (); let z = 0\n"
          "for i in 0..7 { kept = append(kept, x.to(gpu(0))) }");
  interrupted(vm,
              "for i in 0..20 { kept = append(kept, x.to(gpu(0))) }"); /* some are on their way, from all there is */
  run(vm, "for i in 0..4 { z = y.to(gpu(0)) }");
  prints(vm, "let sum = 0; for k in kept { sum = sum + int(k[1]) }; sum == len(kept)", "true");
  qn_vm_close(vm);
}
END_TEST

START_TEST(a_time_limit_ends_waiting) {
  qn_config config;
  qn_config_init(&config);
  config.time_limit = 0.2;
  qn_vm *vm = vm_on_fake(&config);
  run(vm, "let x = [1.0, 2.0]");
  setenv("FAKE_STUCK", "1", 1);
  ck_assert_int_eq(qn_eval(vm, "test", "print(x)", 8, NULL), QN_INTERRUPTED);
  ck_assert_str_eq(qn_error_id(vm), "E604");
  unsetenv("FAKE_STUCK");
  prints(vm, "x", "f32[2] gpu(0)\n[1.0, 2.0]");
  qn_vm_close(vm);
}
END_TEST

/* ---- the memory limit -------------------------------------------------------------------------------------------------------- */

START_TEST(arrays_on_a_device_count_in_the_limit) {
  qn_config config;
  qn_config_init(&config);
  config.memory_limit = 16 << 20;
  qn_vm *vm = vm_on_fake(&config);
  size_t before = mem_stats_of(vm)->live;
  run(vm, "let a = zeros(250_000)");
  ck_assert_uint_ge(mem_stats_of(vm)->live, before + 1000000);
  fails(vm, "let many = (); for i in 0..100 { many = append(many, zeros(250_000)) }", "E601", "memory");
  run(vm, "many = ()");
  prints(vm, "float(sum(a))", "0.0");
  run(vm, "a = 0");
  ck_assert_uint_lt(mem_stats_of(vm)->live, before + 900000); /* what the sum kept in scratch stays for the next one */
  fails(vm, "zeros(8_000_000)", "E601", "memory");
  qn_vm_close(vm);
}
END_TEST

/* Allocations fail, one at a time, while sizes are seen for the first and for the second time. */
START_TEST(allocations_that_fail_are_errors) {
  qn_vm *vm = vm_hot(NULL);
  run(vm, "fn f(x, i) { let a = cumsum(x)[i]; cumsum(cumsum(a * 2) * 3) }\nlet y = 0; let n = 2");
  for (int i = 0; i < 4; i++) run(vm, "y = f(arange(7), [0, 2])");
  fail_each_allocation(vm, "n = n + 1", "y = f(arange(n), [0, 2])", "f(arange(n + 2), [0, 2])[1]", "18");
  qn_vm_close(vm);
}
END_TEST

START_TEST(idle_memory_makes_room) {
  setenv("FAKE_MEMORY", "24000000", 1);
  setenv("FAKE_LATE", "1", 1);
  qn_vm *vm = vm_on_fake(NULL);
  run(vm, "let x = zeros(1_000_000)\nfor i in 0..5 { x = zeros(1_000_000 + 100_000 * i) }");
  prints(vm, "x.shape", "(1400000,)");
  fails(vm, "zeros(6_500_000)", "E601", "no memory left for 27262976 bytes");
  fails(vm, "let y = (x, zeros(5_000_000))", "E601", "the program's arrays there take");
  qn_vm_close(vm);
}
END_TEST

START_TEST(sorting_stays_on_the_device) {
  qn_vm *vm = vm_hot(NULL);
  run(vm, "let x = f32((arange(6000) * 7919) % 6007 - 3000) / 2; x[5] = -0.0; x[7] = float(\"nan\")\n"
          "let y = sort(x); let i = argsort(x, descending: true); let m = x.reshape(6, 1000); let z = sort(m)");
  fake_count c = during(vm, "y = sort(x)"); /* three launches a byte */
  ck_assert_uint_eq(c.launches, 12);
  ck_assert_uint_eq(c.to_device + c.to_host + c.allocations + c.questions, 0);
  c = during(vm, "i = argsort(x, descending: true)");
  ck_assert_uint_eq(c.launches, 12);
  ck_assert_uint_eq(c.to_device + c.to_host + c.questions, 0);
  c = during(vm, "z = sort(m[:, ::-1])"); /* short lines, as they lie */
  ck_assert_uint_eq(c.launches, 1);
  ck_assert_uint_eq(c.to_device + c.to_host + c.allocations + c.questions, 0);
  run(vm, "let t = topk(x, 4)");
  c = during(vm, "t = topk(m, 4)"); /* all is sorted, the first are copied, and gathered */
  ck_assert_uint_eq(c.to_device + c.to_host, 0);
  prints(vm, "topk(x, 2)[1]", "i64[2] gpu(0)\n[399, 798]");
  prints(vm, "y[:3]", "f32[3] gpu(0)\n[-1500.0, -1499.5, -1499.0]");
  prints(vm, "i[5997:]", "i64[3] gpu(0)\n[5608,    0,    7]");
  run(vm, "fn f(x) = sort(x * 2.0)[1:] + sort(x)[0]\nlet w = f(x)");
  for (int k = 0; k < 6; k++) run(vm, "w = f(x)");
  c = during(vm, "w = f(x)");
  ck_assert_uint_eq(c.to_host, 0);
  prints(vm, "w[:2]", "f32[2] gpu(0)\n[-4499.0, -4498.0]");
  qn_vm_close(vm);
}
END_TEST

/* What an expression brings to the host, warm: nothing, or the number of true elements, which is a result's size. */
typedef struct stays {
  const char *text;
  unsigned long to_host;
} stays;
static const stays staying[] = {
    {"m[b]", 1},
    {"m[:, b[0]]", 1},
    {"m[b[:, 0]]", 1},
    {"m[::-1, 1:][b[::-1, 1:]]", 1},
    {"m[m > 9]", 1},
    {"nonzero(b)", 1},
    {"nonzero(m)", 1},
    {"unique(x)", 1},
    {"unique(f64(m))", 1},
    {"grad(fn(m) sum(m[b] ** 2))(m)", 2},
    {"update(m)", 0},
    {"m[b] + sort(x)[:len(m[b])]", 2},
    {"sort(x, descending: true)", 0},
    {"argsort(m, axis: 0)", 0},
    {"topk(x, 2)", 0},
    {"cumsum(x)", 0},
    {"cumprod(x)", 0},
    {"cummax(x)", 0},
    {"grad(fn(x) sum(cumprod(x)))(x)", 0},
    {"grad(fn(x) sum(cumprod(x, axis: 0)))(f64(m))", 0},
    {"grad(fn(x) sum(cumprod(x)))(f16(x))", 2},
    {"grad(fn(x) sum(sort(x)[:2]))(x)", 0},
    {"grad(fn(x) max(x))(x)", 0},
    {"gather(m, i, 1)", 0},
    {"take(x, i[0])", 0},
    {"x[i]", 0},
    {"scatter_add(x, i[0], 1.0)", 0},
    {"argmax(m, axis: 0)", 0},
    {"roll(x, 2)", 0},
    {"pad(x, 2)", 0},
    {"repeat(m, 3, axis: 1)", 0},
    {"permutation(7)", 0},
    {"randint(0, 9, 5)", 0},
    {"randn(9)", 0},
    {"bernoulli(x * 0.01)", 0},
    {"conv2d(m.reshape(1, 1, 3, 4), m.reshape(1, 1, 3, 4))", 0},
    {"max_pool2d(m.reshape(1, 1, 3, 4), 2)", 0},
    {"einsum(\"ij,kj->ik\", m, m)", 0},
    {"vmap(fn(a) sort(a))(m)", 0},
    {"vmap(fn(a, j) a[j])(m, i[:, 0])", 0},
    {"jacobian(fn(a) a * a)(x)", 0},
    {"hessian(fn(a) sum(a * a * a))(x)", 0},
    {"eye(4)", 0},
    {"arange(9)", 0},
    {"round(x, digits: 1)", 0},
    {"cross_entropy(m, i[:, 0])", 0},
    {"layer_norm(m, x[:4], x[:4])", 0},
};

START_TEST(masks_without_memory) {
  qn_vm *vm = vm_compiling();
  run(vm, "let m = arange(12).reshape(3, 4) * 3; let b = m > 9; let y = m[b]; let z = m[b[:, 0]]; let w = nonzero(b)\n"
          "fn f(m, b) = m[b] + 1\nfor _ in 0..5 { y = f(m, b) }");
  fail_each_allocation(vm, "y = 0", "y = m[b]; z = m[b[:, 0]]; w = nonzero(b)",
                       "[sum(m[b]), sum(m[b[:, 0]]), sum(nonzero(b))]", "i64[3] gpu(0)\n[180, 180,  24]");
  fail_each_allocation(vm, "y = 0", "y = f(m, b)", "f(m, b)[:2]", "i64[2] gpu(0)\n[13, 16]");
  qn_vm_close(vm);
}
END_TEST

START_TEST(ops_stay_on_the_device) {
  qn_vm *vm = vm_compiling();
  run(vm, "let m = f32((arange(12) * 7) % 11).reshape(3, 4); let x = f32((arange(9) * 5) % 7) + 0.5; let b = m > 3; "
          "let i = m[:, :2] // 4\n"
          "i = i64(i)\nlet y = x\nfn update(m) {\n  let z = m\n  z[b] = 5.0\n  z\n}");
  for (size_t k = 0; k < sizeof staying / sizeof *staying; k++) {
    for (int n = 0; n < 3; n++) run(vm, staying[k].text);
    fake_count c = during(vm, staying[k].text);
    ck_assert_msg(c.to_host == staying[k].to_host, "%s: %lu copies to the host", staying[k].text, c.to_host);
  }
  qn_vm_close(vm);
}
END_TEST

int main(void) {
  Suite *s = suite_create("gpu_calls");
  CASE(tcase_create("counts"), a_plan_is_one_copy_and_one_graph, numbers_that_change_are_one_copy,
       a_plan_of_one_kernel_is_one_launch, an_op_is_one_launch, sorting_stays_on_the_device, ops_stay_on_the_device);
  CASE(tcase_create("masks"), masks_without_memory);
  CASE(tcase_create("sizes"), sizes_and_addresses_change, work_may_be_done_late, graphs_are_kept_for_some_sizes,
       sizes_that_change_are_not_waited_for, sums_that_may_become_long_are_cut, constants_are_sent_once,
       two_vms_run_one_program);
  CASE(tcase_create("errors"), the_first_failed_check_is_the_error);
  CASE(tcase_create("products"), a_plan_with_products_is_one_graph, products_in_graphs_give_the_same,
       operands_at_odd_addresses_are_copied, some_sets_of_addresses_are_kept, addresses_that_keep_changing_are_given_up,
       captures_that_fail_change_nothing, products_without_memory_are_errors, checks_beside_captured_products);
  CASE(tcase_create("waiting"), an_interrupt_ends_waiting, an_interrupted_copy_leaves_those_before_it_alone,
       a_time_limit_ends_waiting);
  CASE(tcase_create("memory"), arrays_on_a_device_count_in_the_limit, idle_memory_makes_room,
       allocations_that_fail_are_errors);
  return run_suite(s);
}
