/* The compiler beside execution, as a host sees it: VMs that share an engine, closing while a compiler runs, functions that
 * are replaced meanwhile, interrupts of compiled calls, arrays that go in and out. Scripts of tests/language/jit state what
 * programs see. */
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "interp/interp.h"
#include "jit/trace/rec.h"
#include "jit/trace/specialization.h"
#include "lang/array.h"
#include "lang/quern.h"
#include "lang/vm.h"
#include "stdlib/stdlib.h"

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void nap(double seconds) {
  struct timespec t = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
  nanosleep(&t, NULL);
}

static void quiet(void *user, int stream, const char *text, size_t len) {
  (void)user, (void)stream, (void)text, (void)len;
}

static qn_vm *open_vm(qn_engine *engine, qn_jit_mode jit) {
  qn_config config;
  qn_config_init(&config);
  config.engine = engine;
  config.jit = jit;
  config.threads = 2;
  config.write = quiet;
  qn_vm *vm = qn_vm_open(&config);
  ck_assert_ptr_nonnull(vm);
  ck_assert_int_eq(qn_set_tunable(vm, "jit.hot", "2"), QN_OK);
  return vm;
}

static void run(qn_vm *vm, const char *text) {
  ck_assert_msg(qn_eval(vm, "test.qn", text, strlen(text), NULL) == QN_OK, "%s", qn_error_report(vm));
}

static double run_float(qn_vm *vm, const char *text) {
  qn_value r = qn_nil();
  ck_assert_msg(qn_eval(vm, "test.qn", text, strlen(text), &r) == QN_OK, "%s", qn_error_report(vm));
  return qn_as_float(r);
}

static const char work[] = "seed(1)\n"
                           "let w = randn(16, 16)\n"
                           "fn f(x) = sum(tanh(x @ w) * 2 + x)\n"
                           "fn total(n) {\n"
                           "  let s = 0.0\n"
                           "  for i in 0..n { s += float(f(ones(4 + i % 3, 16) * i)) }\n"
                           "  s\n"
                           "}\n";

/* A folder whose cc writes a file `started` and then takes its time; PATH and the cache lie there. */
static char folder[64];
static void slow_compiler(void) {
  snprintf(folder, sizeof folder, "/tmp/quern-trace-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(folder));
  char path[128];
  snprintf(path, sizeof path, "%s/cc", folder);
  FILE *f = fopen(path, "w");
  ck_assert_ptr_nonnull(f);
  fprintf(f, "#!/bin/sh\n: >%s/started\nexec sleep 100\n", folder);
  fclose(f);
  ck_assert_int_eq(chmod(path, 0755), 0);
  const char *old = getenv("PATH") ? getenv("PATH") : "/usr/bin:/bin";
  const size_t size = strlen(folder) + strlen(old) + 2;
  char *text = malloc(size);
  ck_assert_ptr_nonnull(text);
  snprintf(text, size, "%s:%s", folder, old);
  setenv("PATH", text, 1);
  free(text);
  snprintf(path, sizeof path, "%s/cache", folder);
  setenv("QUERN_CACHE", path, 1);
}

static bool started(void) {
  char path[128];
  snprintf(path, sizeof path, "%s/started", folder);
  for (double end = now() + 60; now() < end; nap(0.01))
    if (access(path, F_OK) == 0) return true;
  return false;
}

static void clean(void) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  ck_assert_int_eq(system(command), 0);
}

START_TEST(closing_stops_compiler) {
  slow_compiler();
  qn_engine *engine = qn_engine_open();
  qn_vm *vm = open_vm(engine, QN_JIT_ON);
  run(vm, work);
  double s = run_float(vm, "total(30)");
  ck_assert(started());
  ck_assert_double_eq(run_float(vm, "total(30)"), s); /* calls go on meanwhile */
  double begin = now();
  qn_vm_close(vm);
  qn_engine_close(engine);
  ck_assert_msg(now() - begin < 20, "closing took %g s", now() - begin);
  clean();
}
END_TEST

/* Functions whose plans are being made or compiled are replaced again and again. */
START_TEST(functions_are_replaced) {
  slow_compiler();
  qn_engine *engine = qn_engine_open();
  qn_vm *vm = open_vm(engine, QN_JIT_ON);
  for (int i = 0; i < 40; i++) {
    char text[160];
    int n = snprintf(text, sizeof text, "fn f(x) = sum(x * %d + 1)\nlet x = ones(%d)\n", i, 1 + i % 5);
    ck_assert_int_eq(qn_eval_prompt(vm, text, (size_t)n, NULL), QN_OK);
    const char call[] = "for _ in 0..6 { f(x) }\nfloat(f(x))";
    qn_value r = qn_nil();
    ck_assert_msg(qn_eval_prompt(vm, call, strlen(call), &r) == QN_OK, "%s", qn_error_report(vm));
    ck_assert_double_eq(qn_as_float(r), (i + 1) * (1 + i % 5));
  }
  qn_vm_close(vm);
  qn_engine_close(engine);
  clean();
}
END_TEST

typedef struct sharer {
  qn_engine *engine;
  double result;
} sharer;

static void *share(void *arg) {
  sharer *s = arg;
  qn_vm *vm = open_vm(s->engine, QN_JIT_ON);
  run(vm, work);
  for (int i = 0; i < 5; i++) s->result = run_float(vm, "total(200)");
  qn_vm_close(vm);
  return NULL;
}

START_TEST(vms_share_an_engine) {
  qn_vm *off = open_vm(NULL, QN_JIT_OFF);
  run(off, work);
  double want = run_float(off, "total(200)");
  qn_vm_close(off);
  qn_engine *engine = qn_engine_open();
  sharer s[4];
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) {
    s[i] = (sharer){engine, 0};
    ck_assert_int_eq(pthread_create(&threads[i], NULL, share, &s[i]), 0);
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
    ck_assert_double_eq(s[i].result, want);
  }
  qn_engine_close(engine);
}
END_TEST

/* Node ids are 32-bit numbers of the VM: after 2^32 of them they start again, while values with old ids live on. */
START_TEST(node_ids_start_again) {
  static const char script[] =
      "fn made(v, k) = (v * v, {w: ones(3) * v * k, k: v * k, rows: (ones(3) + v * k, v * k + 1)})\n"
      "let old = ()\n"
      "let maker = nojit(value_and_grad(made, aux: true))\n"
      "for i in 0..30 { old = old + (maker(0.5, float(i))[0][1],) }\n"
      "fn loss(w, o) = sum((w * o.w + o.rows[0]) ** 2) * o.k + o.rows[1]\n"
      "fn step(w, o) = w - grad(loss)(w, o) * 0.001\n"
      "fn once(w, o) { let g = grad(fn(v) { if o.k < 0 { v[0] } else { loss(v, o) } })(w); (g * 2)[0] }\n";
  static const char steps[] = "let s = 0.0\n"
                              "for o in old { s += float(sum(step(ones(3), o))) + float(once(ones(3), o)) }\n"
                              "s";
  double want = 0;
  for (int m = 0; m < 2; m++) {
    for (uint32_t back = 0; back < 40; back += m ? 1 : 40) {
      qn_vm *vm = open_vm(NULL, m ? QN_JIT_ON : QN_JIT_OFF);
      ck_assert_int_eq(qn_set_tunable(vm, "jit.cc", "0"), QN_OK);
      run(vm, script);
      if (m) vm->next_node = UINT32_MAX - 17 * back;
      for (int i = 0; i < 2; i++) {
        double sum = run_float(vm, steps);
        if (m)
          ck_assert_double_eq(sum, want);
        else
          want = sum;
      }
      qn_vm_close(vm);
    }
  }
}
END_TEST

static void *interrupt_soon(void *arg) {
  nap(0.3);
  qn_interrupt(arg);
  return NULL;
}

START_TEST(interrupt_ends_compiled_calls) {
  static const qn_jit_mode modes[] = {QN_JIT_SYNC, QN_JIT_VERIFY, QN_JIT_ON};
  for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
    qn_vm *vm = open_vm(NULL, modes[m]);
    run(vm, work);
    run(vm, "for _ in 0..6 { f(ones(4, 16)) }");
    const char endless[] = "let x = ones(4, 16)\nwhile true { try { x = x + f(x) * 0 } catch _ { x = ones(4, 16) } }";
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, interrupt_soon, vm), 0);
    double begin = now();
    ck_assert_int_eq(qn_eval(vm, "test.qn", endless, strlen(endless), NULL), QN_INTERRUPTED);
    ck_assert_str_eq(qn_error_id(vm), "E603");
    ck_assert_msg(now() - begin < 20, "it took %g s", now() - begin);
    pthread_join(thread, NULL);
    ck_assert_double_eq(run_float(vm, "float(f(zeros(4, 16)))"), 0); /* the VM goes on */
    qn_vm_close(vm);
  }
}
END_TEST

START_TEST(arrays_in_and_out) {
  static const qn_jit_mode modes[] = {QN_JIT_OFF, QN_JIT_SYNC, QN_JIT_VERIFY};
  for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
    qn_vm *vm = open_vm(NULL, modes[m]);
    run(vm, "fn change(x) {\n  x[0] = x[1] * 10\n  (x, x + 1)\n}\nfn same(x) = x");
    qn_value change, same, kept = qn_nil();
    ck_assert_int_eq(qn_get_global(vm, "change", &change), QN_OK);
    ck_assert_int_eq(qn_get_global(vm, "same", &same), QN_OK);
    for (int i = 0; i < 6; i++) {
      float in[3] = {1, (float)i, 3}, back[3];
      qn_value x, r, a, b;
      ck_assert_int_eq(qn_array_from(vm, QN_f32, 1, (int64_t[]){3}, in, &x), QN_OK);
      ck_assert_int_eq(qn_call(vm, change, &x, 1, &r), QN_OK);
      ck_assert_int_eq(qn_array_read(vm, x, back, sizeof back), QN_OK); /* the argument is as it was */
      ck_assert(memcmp(in, back, sizeof in) == 0);
      ck_assert_int_eq(qn_item(vm, r, 0, &a), QN_OK);
      ck_assert_int_eq(qn_item(vm, r, 1, &b), QN_OK);
      ck_assert_int_eq(qn_array_read(vm, a, back, sizeof back), QN_OK);
      ck_assert_double_eq(back[0], 10 * i);
      ck_assert_int_eq(qn_array_read(vm, b, back, sizeof back), QN_OK);
      ck_assert_double_eq(back[0], 10 * i + 1);
      ck_assert_double_eq(back[2], 4);
      if (i == 0) ck_assert_int_eq(qn_call(vm, same, &x, 1, &kept), QN_OK);
      qn_release(vm, a);
      qn_release(vm, b);
      qn_release(vm, r);
      qn_release(vm, x);
    }
    float first[3];
    ck_assert_int_eq(qn_array_read(vm, kept, first, sizeof first), QN_OK); /* results outlive their arguments */
    ck_assert_double_eq(first[1], 0);
    qn_release(vm, kept);
    qn_release(vm, change);
    qn_release(vm, same);
    qn_vm_close(vm);
  }
}
END_TEST

/* A host's globals are data like any other: rebinding them needs no new recording, another shape does. */
START_TEST(globals_of_the_host) {
  qn_vm *vm = open_vm(NULL, QN_JIT_SYNC);
  ck_assert_int_eq(qn_set_global(vm, "rate", qn_float(0.5)), QN_OK);
  run(vm, "fn f(x) = sum(x * rate)\nlet x = ones(4)");
  for (int i = 0; i < 8; i++) {
    ck_assert_int_eq(qn_set_global(vm, "rate", qn_float(i)), QN_OK);
    ck_assert_double_eq(run_float(vm, "float(f(x))"), 4.0 * i);
  }
  ck_assert_double_eq(run_float(vm, "float(len(explain(f, x).recompiles))"), 0);
  ck_assert_int_eq(qn_set_global(vm, "rate", qn_int(3)), QN_OK);
  ck_assert_double_eq(run_float(vm, "float(f(x))"), 12);
  ck_assert_double_eq(run_float(vm, "float(len(explain(f, x).recompiles))"), 1);
  qn_vm_close(vm);
}
END_TEST

/* Writes that are due make every entry one that memory was short for, as a compiler's answer may at any time. */
static qn_vm *short_of_memory;
static uint32_t entries_in_use;
static void forget_memory(void *user, int stream, const char *text, size_t len) {
  (void)user, (void)stream, (void)text, (void)len;
  for (anchor_specializations *a = short_of_memory ? jit_of(short_of_memory)->anchors : NULL; a; a = a->next)
    for (specialization *e = a->first; e; e = e->next) {
      if (e->state == SPEC_BROKEN) e->why = BREAK_memory;
      if (e->running > entries_in_use) entries_in_use = e->running;
    }
}

/* An entry is recorded again when there is more memory, but not while a call that it serves is in progress, which will count itself there. */
START_TEST(entries_in_use_stay) {
  qn_config config;
  qn_config_init(&config);
  config.jit = QN_JIT_SYNC;
  config.write = forget_memory;
  qn_vm *vm = qn_vm_open(&config);
  ck_assert_ptr_nonnull(vm);
  ck_assert_int_eq(qn_set_tunable(vm, "jit.hot", "1"), QN_OK);
  run(vm, "fn f(x, n) {\n  let y = x * 2\n  env(\"HOME\")\n  print(n)\n  if n > 0 { return f(y, n - 1) }\n  y + 1 }");
  run(vm, "for n in 0..12 { f(ones(3), n) }"); /* from some number on one entry serves all */
  short_of_memory = vm;
  entries_in_use = 0;
  ck_assert_double_eq(run_float(vm, "float(sum(f(ones(3), 6)))"), 3 * (128 + 1));
  short_of_memory = NULL;
  ck_assert_uint_ge(entries_in_use, 2); /* else nothing was tried */
  for (anchor_specializations *a = jit_of(vm)->anchors; a; a = a->next)
    for (specialization *e = a->first; e; e = e->next) ck_assert_uint_eq(e->running, 0);
  qn_vm_close(vm);
}
END_TEST

/* Builtins of another library that compute with what they read themselves. */
static qn_value peek(qn_vm *vm, const qn_value *args) {
  qn_value v = args[0];
  if (value_is(v, TAG_ARRAY) && !array_item(vm, value_array(v), 0, &v)) return value_error();
  return value_float(qn_as_float(v) * 2);
}
static qn_value steps(qn_vm *vm, const qn_value *args) {
  (void)vm;
  return value_int((int64_t)qn_as_float(args[0]));
}

START_TEST(reads_without_derivative_are_errors) {
  builtin_def defs[] = {{"peek", "peek(x)", BUILTIN_READ, "twice the first element", peek, WORK_ANY},
                        {"twice", "twice(x)", BUILTIN_PURE, "twice a number", peek, WORK_ANY},
                        {"shown", "shown(x)", BUILTIN_STATE, "twice a number, for people", peek, WORK_ANY},
                        {"steps", "steps(x)", BUILTIN_PURE, "a number without its fraction", steps, WORK_ANY}};
  enum { MORE = sizeof defs / sizeof *defs };
  builtin_table table = stdlib_table;
  builtin_def *all = malloc(((size_t)table.nbuiltins + MORE) * sizeof *all);
  ck_assert_ptr_nonnull(all);
  memcpy(all, table.builtins, (size_t)table.nbuiltins * sizeof *all);
  memcpy(all + table.nbuiltins, defs, sizeof defs);
  table.builtins = all;
  table.nbuiltins += MORE;
  static const qn_jit_mode modes[] = {QN_JIT_OFF, QN_JIT_SYNC, QN_JIT_VERIFY, QN_JIT_ON};
  static const char *const lost[] = {
      "grad(fn(x) {\n  let y = x * x\n  sum(y) * peek(y)\n})",
      "grad(fn(x) {\n  let y = sum(x)\n  y * twice(float(y))\n})",
      "hessian(fn(x) {\n  let y = sum(x)\n  y * twice((1, float(y))[1])\n})",
      "fn(x) jvp(fn(x) {\n  let y = x * x\n  y * peek(y)\n}, x, x)",
      "grad(fn(x) {\n  let y = grad(fn(z) sum(z ** 3))(x)\n  sum(y * peek(y))\n})",
  };
  static const char *const kept[][2] = {
      {"fn(x) sum(x) * peek([3.0])", "6"},            /* no such float */
      {"fn(x) sum(x) * peek(stop_gradient(x))", "2"}, /* asked for */
      {"fn(x) sum(x) * twice(float(stop_gradient(x)[0]) + 1)", "4"},
      {"fn(x) sum(x) * steps(float(x[0]) + 2)", "3"}, /* an integer */
      {"fn(x) sum(x) * steps(float(sum(grad(fn(y) sum(y * 2))(x))))", "4"},
      {"fn(x) { shown(float(x[0])); sum(x) }", "1"},
      {"fn(x) sum(custom_grad(fn(x) x * peek(x), fn(ct, x) ct * 7)(x))", "7"},
      {"fn(x) sum(x) * grad(fn(z) z * twice(float(len(x))))(1.0)", "4"},
  };
  for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
    qn_config config;
    qn_config_init(&config);
    config.jit = modes[m];
    config.write = quiet;
    qn_vm *vm = vm_open(&config); /* as qn_vm_open does */
    ck_assert_ptr_nonnull(vm);
    vm_run begun;
    vm_run_begin(vm, &begun);
    ck_assert(jit_open(vm) && interp_open(vm, &table));
    vm_run_end(vm, &begun);
    ck_assert_int_eq(qn_set_tunable(vm, "jit.hot", "2"), QN_OK);
    char text[512];
    for (int turn = 0; turn < 3; turn++) {
      for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) {
        snprintf(text, sizeof text, "let f = %s\nf([1.0, 2.0])", lost[i]);
        ck_assert_msg(qn_eval(vm, "test.qn", text, strlen(text), NULL) == QN_ERROR, "%s", text);
        ck_assert_str_eq(qn_error_id(vm), "E405");
        ck_assert_msg(qn_error_line(vm) == 3, "line %d of %s", qn_error_line(vm), text);
      }
      for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        snprintf(text, sizeof text, "float(grad(%s)([1.0, 2.0])[1])", kept[i][0]);
        double got = run_float(vm, text);
        ck_assert_msg(got == atof(kept[i][1]), "%s is %g", text, got);
      }
    }
    qn_vm_close(vm);
  }
  free(all);
}
END_TEST

static void add(Suite *s, TCase *t, const TTest *test) {
  tcase_set_timeout(t, 120);
  tcase_add_test(t, test);
  suite_add_tcase(s, t);
}

int main(void) {
  Suite *s = suite_create("trace");
  add(s, tcase_create("closing_stops_compiler"), closing_stops_compiler);
  add(s, tcase_create("functions_are_replaced"), functions_are_replaced);
  add(s, tcase_create("vms_share_an_engine"), vms_share_an_engine);
  add(s, tcase_create("node_ids_start_again"), node_ids_start_again);
  add(s, tcase_create("interrupt_ends_compiled_calls"), interrupt_ends_compiled_calls);
  add(s, tcase_create("arrays_in_and_out"), arrays_in_and_out);
  add(s, tcase_create("globals_of_the_host"), globals_of_the_host);
  add(s, tcase_create("entries_in_use_stay"), entries_in_use_stay);
  add(s, tcase_create("reads_without_derivative_are_errors"), reads_without_derivative_are_errors);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_ENV);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
