/* GPUs without a GPU (jit/gpu): which libraries are found and what is said about those that are not, arrays on a device, copies,
 * memory that is reused and that runs out. The driver is tests/cuda/fake_driver.c, whose device memory faults when the host
 * touches it and which stops the process when a copy leaves a block or memory is not given back. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "interp/interp.h"
#include "jit/gpu/libraries.h"
#include "jit/gpu/block_vm.h"
#include "tests/unit/gpu.h"

/* ---- a place without CUDA but for the fake ----------------------------------------------------------------------------- */

static void with_fake(void) { only("good"); }

static char *report(void) {
  text_buf t = {0};
  libraries_report(&t);
  text_add(&t, "", 1);
  ck_assert(!t.failed);
  return t.text;
}

static void reports(const char *what) {
  char *text = report();
  ck_assert_msg(strstr(text, what) != NULL, "\"%s\" is not in:\n%s", what, text);
  free(text);
}

/* ---- libraries ---------------------------------------------------------------------------------------------------------- */

START_TEST(no_library_at_all) {
  only("nothing");
  libraries l = {.devices = 0};
  libraries_open_driver(&l);
  if (!l.of[LIBRARY_DRIVER].handle) { /* the machine may have a driver of its own */
    ck_assert_int_eq(l.devices, 0);
    reports("libcuda.so.1 is not here; arrays live on the CPU");
  }
  libraries_close(&l);
}
END_TEST

START_TEST(a_driver_with_one_device) {
  with_fake();
  reports("GPU driver   CUDA 13.0, ");
  reports("fake 0, sm_90, 4 multiprocessors, 1.0 GiB");
  setenv("FAKE_DEVICES", "2", 1);
  reports("gpu(1)       fake 1");
}
END_TEST

START_TEST(a_driver_that_finds_nothing) {
  with_fake();
  setenv("FAKE_DEVICES", "0", 1);
  reports("none: the driver finds no GPU");
  setenv("FAKE_INIT", "100", 1);
  reports("none: the driver finds no GPU");
  setenv("FAKE_INIT", "34", 1);
  reports("is only for linking: it is no driver");
  setenv("FAKE_INIT", "999", 1);
  reports("the driver says: an error of the fake (999)");
}
END_TEST

START_TEST(a_driver_that_is_too_old) {
  with_fake();
  setenv("FAKE_VERSION", "11080", 1);
  libraries l = {.devices = 0};
  libraries_open_driver(&l);
  ck_assert_str_eq(l.of[LIBRARY_DRIVER].why, "version 11.8 is too old, CUDA 12 is needed");
  ck_assert_ptr_null(l.of[LIBRARY_DRIVER].handle);
  libraries_close(&l);
}
END_TEST

START_TEST(a_driver_that_lacks_a_function) {
  only("lacking");
  libraries l = {.devices = 0};
  libraries_open_driver(&l);
  ck_assert_str_eq(l.of[LIBRARY_DRIVER].why, "it has no function cuMemHostAlloc");
  ck_assert_ptr_null(l.of[LIBRARY_DRIVER].handle);
  libraries_close(&l);
}
END_TEST

/* ---- programs ------------------------------------------------------------------------------------------------------------- */

static qn_vm *vm_on(int device) {
  qn_vm *vm = qn_vm_open(NULL);
  if (!vm || !vm_use_device(vm, device)) ck_abort_msg("no VM");
  return vm;
}

static gpu_stream *stream_of(qn_vm *vm) { return ((gpu_vm *)vm->devices[FAMILY_gpu])->of[0]; }

START_TEST(no_gpu_is_an_error_of_the_program) {
  with_fake();
  setenv("FAKE_DEVICES", "0", 1);
  qn_vm *vm = qn_vm_open(NULL);
  fails(vm, "[1].to(gpu)", "E210", "gpu(0) is not there: the driver finds no GPU");
  ck_assert(!vm_use_device(vm, GPU_0));
  prints(vm, "[1, 2] + 1", "i64[2] cpu\n[2, 3]");
  qn_vm_close(vm);
}
END_TEST

START_TEST(a_device_that_is_not_there) {
  with_fake();
  qn_vm *vm = qn_vm_open(NULL);
  fails(vm, "[1].to(gpu(1))", "E210", "gpu(1) is not there: there are not so many");
  prints(vm, "[1].to(gpu(0))", "i64[1] gpu(0)\n[1]");
  qn_vm_close(vm);
}
END_TEST

START_TEST(a_program_without_devices_opens_nothing) {
  with_fake();
  qn_vm *vm = vm_on(0);
  prints(vm, "sum([1, 2, 3])", "6");
  ck_assert_ptr_null(vm->devices[FAMILY_gpu]);
  ck_assert_ptr_null(vm->engine->devices[FAMILY_gpu]);
  qn_vm_close(vm);
}
END_TEST

START_TEST(arrays_move) {
  with_fake();
  qn_vm *vm = vm_on(0);
  prints(vm, "let x = [1.5, 2.5]; x.to(gpu)", "f32[2] gpu(0)\n[1.5, 2.5]");
  prints(vm, "x.to(gpu).to(cpu)", "f32[2] cpu\n[1.5, 2.5]");
  prints(vm, "x.to(gpu).device", "gpu(0)");
  prints(vm, "3.to(gpu)", "3");
  prints(vm, "3.to(gpu).device", "gpu(0)");
  prints(vm, "let y = arange(6).reshape(2, 3).to(gpu); y.T", "i64[3, 2] gpu(0)\n[[0, 3],\n [1, 4],\n [2, 5]]");
  prints(vm, "y[::-1, ::2]", "i64[2, 2] gpu(0)\n[[3, 5],\n [0, 2]]");
  prints(vm, "int(y[1, 2])", "5");
  qn_vm_close(vm);
}
END_TEST

START_TEST(arrays_move_between_devices) {
  with_fake();
  setenv("FAKE_DEVICES", "2", 1);
  qn_vm *vm = vm_on(0);
  prints(vm, "let x = [1.5, 2.5].to(gpu(1)); x.to(gpu(0))", "f32[2] gpu(0)\n[1.5, 2.5]");
  prints(vm, "x + x", "f32[2] gpu(1)\n[3.0, 5.0]");
  fails(vm, "x + x.to(gpu(0))", "E210", "add of arrays on gpu(1) and on gpu(0)");
  qn_vm_close(vm);
}
END_TEST

START_TEST(operands_are_on_one_device) {
  with_fake();
  qn_vm *vm = vm_on(0);
  qn_release(vm, eval(vm, "let x = [1, 2].to(gpu); let y = [3, 4]\nfn f(a, b) = a * 2 + b"));
  fails(vm, "x + y", "E210", "add of arrays on gpu(0) and on cpu");
  fails(vm, "concat((y, x))", "E210", "concat of arrays on cpu and on gpu(0)");
  fails(vm, "x[0] = y[0]", "E210", "gpu(0) and on cpu");
  for (int i = 0; i < 20; i++) fails(vm, "f(x, y)", "E210", "add of arrays on gpu(0) and on cpu");
  prints(vm, "f(x, y.to(gpu))", "i64[2] gpu(0)\n[5, 8]");
  prints(vm, "x + 1", "i64[2] gpu(0)\n[2, 3]");
  qn_vm_close(vm);
}
END_TEST

START_TEST(gradients_live_where_their_arguments_do) {
  with_fake();
  qn_vm *vm = vm_on(0);
  qn_release(vm, eval(vm, "fn f(x, g) = sum(x * g * g)\nlet x = [1.0, 2.0].to(gpu)\nlet g = [3.0, 4.0].to(gpu)"));
  for (int i = 0; i < 20; i++)
    prints(vm, "grad(f, wrt: (0, 1))(x, g)", "(f32[2] gpu(0) [9.0, 16.0], f32[2] gpu(0) [6.0, 16.0])");
  prints(vm, "grad(fn(p) f(p.x, p.g))({x: x, g: g}).g", "f32[2] gpu(0)\n[ 6.0, 16.0]");
  fails(vm, "grad(f, wrt: (0, 1))(x, [3.0, 4.0])", "E210", "gradients of arrays on gpu(0) and on cpu");
  qn_release(vm, eval(vm, "fn both(a, x) {\n  let b = a * 2\n  (b, grad(fn(x) sum(x * x))(x))\n}"));
  for (int i = 0; i < 20; i++) prints(vm, "both([1.0], x)", "(f32[1] cpu [2.0], f32[2] gpu(0) [2.0, 4.0])");
  qn_vm_close(vm);
}
END_TEST

START_TEST(updates_on_a_device) {
  with_fake();
  qn_vm *vm = vm_on(0);
  qn_release(
      vm,
      eval(vm,
           "let x = zeros(2, 3).to(gpu); let before = x; x[1, 2] = 5; x[:, 0] = 7; x[0, ::-1] = [1, 2, 3].to(gpu)"));
  prints(vm, "x", "f32[2, 3] gpu(0)\n[[3.0, 2.0, 1.0],\n [7.0, 0.0, 5.0]]");
  prints(vm, "float(sum(before))", "0.0");
  qn_vm_close(vm);
}
END_TEST

START_TEST(new_arrays_are_made_on_the_vms_device) {
  with_fake();
  qn_vm *vm = vm_on(GPU_0);
  prints(vm, "[1, 2]", "i64[2] gpu(0)\n[1, 2]");
  prints(vm, "(zeros(2).device, randn(2).device, arange(2).device)", "(gpu(0), gpu(0), gpu(0))");
  qn_vm_close(vm);
}
END_TEST

/* ---- kernels -------------------------------------------------------------------------------------------------------------- */

/* But for the block VM's interpreters. */
static gpu_code *first_code(qn_vm *vm) {
  gpu_engine *e = vm->engine->devices[FAMILY_gpu];
  const hash_table *codes = &e->devices[0].codes;
  for (uint32_t i = 0; i < codes->cap; i++)
    if (codes->slots[i].what && codes->slots[i].hash != block_vm_hash(BLOCK_VM_F32) &&
        codes->slots[i].hash != block_vm_hash(BLOCK_VM_ALL))
      return codes->slots[i].what;
  return NULL;
}

START_TEST(kernels_run_on_the_device) {
  qn_vm *vm = vm_compiling();
  prints(vm, "let x = arange(1000) % 7; sum(x * x)", "12977");
  gpu_code *code = first_code(vm);
  ck_assert_ptr_nonnull(code);
  ck_assert_int_eq(atomic_load(&code->state), CODE_READY);
  prints(vm, "let m = arange(12).reshape(3, 4); m[::-1, ::2].T + 1",
         "i64[2, 3] gpu(0)\n[[ 9,  5,  1],\n [11,  7,  3]]");
  prints(vm, "sum(f32(m), axis: 0)", "f32[4] gpu(0)\n[12.0, 15.0, 18.0, 21.0]");
  prints(vm, "f32(m) @ f32(m.T)",
         "f32[3, 3] gpu(0)\n[[ 14.0,  38.0,  62.0],\n [ 38.0, 126.0, 214.0],\n [ 62.0, 214.0, 366.0]]");
  qn_vm_close(vm);
}
END_TEST

START_TEST(compiled_code_is_kept_on_disk) {
  qn_vm *vm = vm_compiling();
  prints(vm, "[1, 2] * 3", "i64[2] gpu(0)\n[3, 6]");
  qn_vm_close(vm);
  only("good"); /* the same driver, no compiler */
  vm = qn_vm_open(NULL);
  ck_assert(vm_use_device(vm, GPU_0));
  prints(vm, "[1, 2] * 3", "i64[2] gpu(0)\n[3, 6]");
  gpu_code *code = first_code(vm);
  gpu_code_wait(vm->engine->devices[FAMILY_gpu], code);
  ck_assert_int_eq(atomic_load(&code->state), CODE_READY);
  prints(vm, "[1, 2] * 4", "i64[2] gpu(0)\n[4, 8]");
  qn_vm_close(vm);
}
END_TEST

/* A compiler that takes 20 s, for which neither the program nor its end waits. */
START_TEST(nobody_waits_for_a_compiler) {
  char cache[] = "/tmp/quern-slow-XXXXXX";
  ck_assert(mkdtemp(cache) != NULL);
  only("compiling");
  setenv("QUERN_CACHE", cache, 1);
  setenv("FAKE_SLOW", "1", 1);
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  qn_vm *vm = qn_vm_open(NULL);
  ck_assert(vm && vm_use_device(vm, GPU_0));
  prints(vm, "sum(zeros(3) + 1)", "3.0");
  vm_close(vm);
  clock_gettime(CLOCK_MONOTONIC, &end);
  ck_assert_int_lt(end.tv_sec - begin.tv_sec, 8);
  unsetenv("FAKE_SLOW");
  rmdir(cache);
}
END_TEST

START_TEST(errors_in_kernels_are_those_of_the_cpu) {
  qn_vm *vm = vm_compiling();
  fails(vm, "[7, 8, 9] // [1, 0, 0]", "E306", "element 1: integer division by 0");
  fails(vm, "[1, 2][[0, 5]]", "E303", "index 5 is out of bounds for axis 0");
  qn_release(vm,
             eval(vm, "fn f(x, i) {\n  let y = x * 2\n  y[i] + 1\n}\nfor _ in 0..20 { let _a = f([1, 2], [0, 1]) }"));
  fails(vm, "f([1, 2], [0, 2])", "E303", "index 2 is out of bounds for axis 0");
  prints(vm, "f([1, 2], [0, 1])", "i64[2] gpu(0)\n[3, 5]");
  qn_vm_close(vm);
}
END_TEST

/* ---- products ------------------------------------------------------------------------------------------------------------- */

/* How often the fake of cuBLASLt was asked for an algorithm. */
static int queries(qn_vm *vm) {
  const gpu_engine *e = vm->engine->devices[FAMILY_gpu];
  void *f = dlsym(e->libraries.of[LIBRARY_LT].handle, "fake_lt_queries");
  int (*count)(void);
  ck_assert_ptr_nonnull(f);
  memcpy(&count, &f, sizeof count);
  return count();
}

static bool shows(qn_vm *vm, const char *text, const char *what) {
  qn_value v = eval(vm, text);
  bool found = strstr(qn_as_string(v, NULL), what) != NULL;
  qn_release(vm, v);
  return found;
}

START_TEST(products_are_the_librarys) {
  qn_vm *vm = vm_compiling();
  qn_release(vm, eval(vm, "let x = randn(6, 5); let y = randn(5, 7); let a = randn(3, 6, 5)\nfn f(p, q) = p @ q"));
  qn_release(vm, eval(vm, "let first = x @ y"));
  ck_assert_int_eq(queries(vm), 1);
  qn_release(vm, eval(vm, "for _ in 0..20 { let _z = f(x, y) }"));
  prints(vm, "all(f(x, y) == first)", "true");
  ck_assert_int_eq(queries(vm), 1); /* eager, recorded and compiled are of one signature */
  ck_assert(shows(vm, "str(graph(f, x, y))", "dot %1, %2 library : f32[6, 7]"));
  ck_assert(shows(vm, "str(graph(f, y.T, x.T))", "dot %1, %2 library x_across y_across : f32[7, 6]"));
  ck_assert(shows(vm, "str(graph(fn(p, q) p.T @ q, x, x))", "library x_across"));
  ck_assert(shows(vm, "str(graph(f, a, y))", "dot %1, %2 library : f32[3, 6, 7]"));
  ck_assert(shows(vm, "str(graph(f, arange(6).reshape(2, 3), arange(6).reshape(3, 2)))", "dot %1, %2 : i64[2, 2]"));
  ck_assert(shows(vm, "str(graph(f, zeros(2, 0), zeros(0, 3)))", "dot %1, %2 : f32[2, 3]"));
  qn_vm_close(vm);
}
END_TEST

START_TEST(products_of_other_layouts_are_other_products) {
  qn_vm *vm = vm_compiling();
  qn_release(vm, eval(vm, "let x = randn(6, 5); let t = randn(5, 6); let y = randn(5, 7)\nfn f(p, q) = p @ q\n"
                          "let a = f(x, y); let b = f(t.T, y); let c = f(t.T.T.T, y)"));
  qn_release(vm,
             eval(vm, "let same = true; for _ in 0..20 { same = same and all(f(x, y) == a) and all(f(t.T, y) == b) }"));
  prints(vm, "same and all(f(t.T, y) == c)", "true");
  prints(vm, "all(b == f(t.T * 1, y))", "false"); /* as it happens: the fake sums in another order */
  qn_vm_close(vm);
}
END_TEST

START_TEST(portable_products_are_those_of_the_cpu) {
  static const char program[] = "seed(3); let x = randn(6, 500).to(cpu); let y = randn(500, 7).to(cpu); let p = x @ y";
  qn_vm *vm = vm_compiling();
  qn_release(vm, eval(vm, program));
  prints(vm, "all((x.to(gpu) @ y.to(gpu)).to(cpu) == p)", "false");
  ck_assert_int_eq(qn_set_tunable(vm, "gpu.portable", "1"), QN_OK);
  prints(vm, "all((x.to(gpu) @ y.to(gpu)).to(cpu) == p)", "true");
  qn_vm_close(vm);
}
END_TEST

/* Tiles of all sizes, edges, more than one chunk of k, layouts. */
START_TEST(portable_products_in_tiles) {
  qn_vm *vm = vm_compiling();
  ck_assert_int_eq(qn_set_tunable(vm, "gpu.portable", "1"), QN_OK);
  qn_release(
      vm, eval(vm, "fn here(d, ..shape) = d(randn(..shape) * 3.0).to(cpu)\n"
                   "fn same(a, b) = all(a == b.to(cpu))\n"
                   "fn check(d, m, n, k) {\n"
                   "  let x = here(d, m, k); let y = here(d, k, n); let t = here(d, n, k); let c = here(d, 2, k, n)\n"
                   "  let p = x.to(gpu)\n"
                   "  same(x @ y, p @ y.to(gpu)) and same(x @ t.T, p @ t.to(gpu).T) and\n"
                   "    same(t.T @ x[:n], t.to(gpu).T @ p[:n]) and same(x[::-1] @ c, p[::-1] @ c.to(gpu))\n"
                   "}"));
  static const char *const calls[] = {"f32, 40, 30, 37", "f32, 33, 17, 4097", "f32, 20, 9, 12300",
                                      "f64, 40, 30, 37", "bf16, 40, 30, 37",  "i32, 40, 30, 37"};
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    char text[80];
    snprintf(text, sizeof text, "check(%s)", calls[i]);
    prints(vm, text, "true");
  }
  prints(vm, "let u = here(f32, 1050, 3); let v = here(f32, 3, 1040); same(u @ v, u.to(gpu) @ v.to(gpu))", "true");
  qn_vm_close(vm);
}
END_TEST

START_TEST(products_without_the_library) {
  static const char *const lacks[] = {"none", "refuses"};
  for (int i = 0; i < 2; i++) {
    setenv("FAKE_LT", lacks[i], 1);
    qn_vm *vm = vm_compiling();
    qn_release(vm, eval(vm, "let x = randn(6, 500); let p = x.to(cpu) @ x.T.to(cpu)\nfn f(p, q) = p @ q"));
    prints(vm, "all(f(x, x.T).to(cpu) == p)", "true");
    ck_assert(shows(vm, "str(graph(f, x, x.T))", "dot %1, %2 : f32[6, 6]"));
    const gpu_engine *e = vm->engine->devices[FAMILY_gpu];
    ck_assert_int_eq(e->troubles.state[GPU_TROUBLE_LT] != TROUBLE_NONE, i == 0);
    ck_assert(i == 1 ||
              strstr(e->troubles.text[GPU_TROUBLE_LT], "no cuBLASLt (it cannot be started): matrix products"));
    qn_vm_close(vm);
  }
}
END_TEST

START_TEST(checks_beside_products_fail_as_on_the_cpu) {
  qn_vm *vm = vm_compiling();
  qn_release(vm, eval(vm, "fn f(x, i) {\n  let y = x @ x\n  y[i] + 1\n}\nlet x = eye(3)\n"
                          "for _ in 0..20 { let _a = f(x, [0, 1]) }"));
  fails(vm, "f(x, [0, 3])", "E303", "index 3 is out of bounds for axis 0");
  prints(vm, "f(x, [2, 1])", "f32[2, 3] gpu(0)\n[[1.0, 1.0, 2.0],\n [1.0, 2.0, 1.0]]");
  qn_vm_close(vm);
}
END_TEST

/* ---- memory --------------------------------------------------------------------------------------------------------------- */

START_TEST(copies_of_any_size) {
  with_fake();
  qn_vm *vm = vm_on(0);
  static const int64_t sizes[] = {
      0, 1, 63, 1 << 20, (GPU_CHUNK >> 3) - 1, GPU_CHUNK >> 3, (GPU_CHUNK >> 3) + 1, 3 * (GPU_CHUNK >> 3) + 5};
  for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
    qn_array *a = array_new(vm, QN_i64, 1, &sizes[k]);
    ck_assert_ptr_nonnull(a);
    int64_t *data = (int64_t *)(void *)array_data(a);
    for (int64_t i = 0; i < sizes[k]; i++) data[i] = i * 0x9e3779b97f4a7c15;
    qn_array *there = array_to_device(vm, a, GPU_0);
    ck_assert_ptr_nonnull(there);
    ck_assert_int_eq(there->device, GPU_0);
    qn_array *back = array_to_cpu(vm, there);
    ck_assert_ptr_nonnull(back);
    ck_assert_int_eq(memcmp(array_data(back), data, (size_t)sizes[k] * 8), 0);
    value_release(vm, value_obj(TAG_ARRAY, a));
    value_release(vm, value_obj(TAG_ARRAY, there));
    value_release(vm, value_obj(TAG_ARRAY, back));
  }
  ck_assert_uint_eq(stream_of(vm)->live, 0);
  qn_vm_close(vm);
}
END_TEST

START_TEST(freed_memory_is_used_again) {
  with_fake();
  qn_vm *vm = vm_on(GPU_0);
  qn_release(vm, eval(vm, "let f = fn() { let t = zeros(500_000); for i in 0..50 { t = t + 1 }; float(t[0]) }; f()"));
  uint64_t before = stream_of(vm)->allocations;
  prints(vm, "f()", "50.0");
  ck_assert_uint_eq(stream_of(vm)->allocations, before);
  ck_assert_uint_lt(before, 12);
  qn_vm_close(vm);
}
END_TEST

START_TEST(memory_that_runs_out_is_an_error_value) {
  with_fake();
  setenv("FAKE_MEMORY", "20000000", 1);
  qn_vm *vm = vm_on(0);
  qn_release(vm, eval(vm, "let x = zeros(1000, 1000)\nlet keep = x.to(gpu)"));
  fails(vm, "let many = (); for i in 0..10 { many = append(many, x.to(gpu)) }", "E601",
        "gpu(0) has no memory left for");
  prints(vm, "try { many = append(many, zeros(4000, 1000).to(gpu)) ; 1 } catch e { e.id }", "E601");
  prints(vm, "float(sum(keep[0]))", "0.0");
  qn_release(vm, eval(vm, "many = ()"));
  /* idle blocks of another size make room */
  prints(vm, "zeros(1700, 2000).to(gpu).shape", "(1700, 2000)");
  qn_vm_close(vm);
}
END_TEST

int main(void) {
  Suite *s = suite_create("gpu");
  CASE(tcase_create("libraries"), no_library_at_all, a_driver_with_one_device, a_driver_that_finds_nothing,
       a_driver_that_is_too_old, a_driver_that_lacks_a_function);
  CASE(tcase_create("devices"), no_gpu_is_an_error_of_the_program, a_device_that_is_not_there,
       a_program_without_devices_opens_nothing);
  CASE(tcase_create("arrays"), arrays_move, arrays_move_between_devices, operands_are_on_one_device,
       gradients_live_where_their_arguments_do, updates_on_a_device, new_arrays_are_made_on_the_vms_device);
  CASE(tcase_create("kernels"), kernels_run_on_the_device, compiled_code_is_kept_on_disk, nobody_waits_for_a_compiler,
       errors_in_kernels_are_those_of_the_cpu);
  CASE(tcase_create("products"), products_are_the_librarys, products_of_other_layouts_are_other_products,
       portable_products_are_those_of_the_cpu, products_without_the_library, checks_beside_products_fail_as_on_the_cpu);
  CASE(tcase_create("tiles"), portable_products_in_tiles);
  CASE(tcase_create("memory"), copies_of_any_size, freed_memory_is_used_again, memory_that_runs_out_is_an_error_value);
  return run_suite(s);
}
