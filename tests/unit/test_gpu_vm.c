/* The GPU block VM (jit/gpu/block_vm.h) and printed kernels, compiled for the CPU by the fake of NVRTC: random programs of L give what
 * jit/ref/eval.h says, in whatever order the threads of a block run between barriers. On the block VM a language program gives the same
 * results and errors with nothing else compiled. labels: slow */
#include <unistd.h> /* first: it has an L_SET, too */

#include "interp/interp.h"
#include "tests/unit/gpu.h"
#include "tests/unit/kernel_text.h"
#include "tests/unit/seeds.h"
#include "tests/unit/block_vm_case.h"
#include "tests/unit/l_blocks_case.h"

/* QN_TEST_FIRST and QN_TEST_COUNT say which programs. */
static void random_programs(int gpu_vm, uint64_t n) {
  qn_vm *vm = vm_compiling();
  vm->tune[TUNE_gpu_vm] = gpu_vm;
  gpu_stream *s = gpu_stream_of(vm, GPU_0);
  seeds which = seeds_of(1, n);
  uint64_t ran = 0;
  n = which.end - which.first;
  for (uint64_t seed = which.first; seed < which.end; seed++) {
    for (int reversed = 0; reversed < 2; reversed++) {
      setenv("FAKE_REVERSED", reversed ? "1" : "0", 1);
      l_case c;
      case_open(&c, seed);
      char why[256];
      ran += vm_case_run(vm, s, &c, why, sizeof why);
      if (why[0] && getenv("QN_TEST_SHOW")) case_show(&c);
      ck_assert_msg(!why[0], "program %llu%s: %s", (unsigned long long)seed, reversed ? ", reversed" : "", why);
      case_close(&c);
    }
  }
  fprintf(stderr, "%llu runs of %llu programs\n", (unsigned long long)ran, (unsigned long long)n);
  ck_assert_uint_gt(ran, n);
  qn_vm_close(vm);
}

/* All threads load an element that one of them has stored, and that it stores again: apart, and in a loop over short rows. */
static const char shares[] = "program shares ints=1 scalars=0 {\n"
                             "  buffer b0 f32 in\n"
                             "  buffer b1 f32 out\n"
                             "  %1 = int 0\n"
                             "  %2 = int 1\n"
                             "  %3 = param 0\n"
                             "  %4 = int 40\n"
                             "  %5 = int 64\n"
                             "  %6 = int 3\n"
                             "  phase\n"
                             "  %8 = par %2 grain=1 {\n"
                             "    %9 = f32 local size=%3\n"
                             "    %10 = vec %1 %3 {\n"
                             "      %11 = f32 load b0 base=%1 stride=%2\n"
                             "      store %9 %11 base=%1 stride=%2\n"
                             "    }\n"
                             "    %14 = f32 load %9 base=%4\n"
                             "    %15 = vec %1 %3 {\n"
                             "      %16 = f32 load %9 base=%1 stride=%2\n"
                             "      %17 = f32 add %16 %14\n"
                             "      store %9 %17 base=%1 stride=%2\n"
                             "    }\n"
                             "    %20 = for %1 %6 step=%2 {\n"
                             "      %21 = f32 load %9 base=%4\n"
                             "      %22 = vec %1 %5 {\n"
                             "        %23 = f32 load b0 base=%1 stride=%2\n"
                             "        %24 = f32 load %9 base=%1 stride=%2\n"
                             "        %25 = f32 add %23 %24\n"
                             "        %26 = f32 add %25 %21\n"
                             "        store %9 %26 base=%1 stride=%2\n"
                             "      }\n"
                             "    }\n"
                             "    %30 = vec %1 %3 {\n"
                             "      %31 = f32 load %9 base=%1 stride=%2\n"
                             "      store b1 %31 base=%1 stride=%2\n"
                             "    }\n"
                             "  }\n"
                             "}\n";

START_TEST(what_all_threads_load_nobody_stores_meanwhile) {
  char why[256] = "";
  l_case c;
  l_program *p = l_parse(shares, why, sizeof why);
  ck_assert_msg(p != NULL, "%s", why);
  case_of(&c, p, (rnd_info){.ints = {150}, .elements = 150}, 2);
  qn_vm *vm = vm_compiling();
  for (int k = 0; k < 4; k++) {
    setenv("FAKE_REVERSED", k & 1 ? "1" : "0", 1);
    vm->tune[TUNE_gpu_vm] = k & 2;
    ck_assert(vm_case_run(vm, gpu_stream_of(vm, GPU_0), &c, why, sizeof why));
    ck_assert_msg(!why[0], "%s", why);
  }
  case_close(&c);
  qn_vm_close(vm);
}
END_TEST

/* Programs over blocks, golden and random: interpreted, and compiled. */
static void blocks(int gpu_vm, uint64_t n) {
  qn_vm *vm = vm_compiling();
  vm->tune[TUNE_gpu_vm] = gpu_vm;
  gpu_stream *s = gpu_stream_of(vm, GPU_0);
  seeds which = seeds_of(1, n);
  for (uint64_t k = 0; k < BLOCK_GOLDENS + which.end - which.first; k++) {
    l_case c;
    char why[256];
    if (k < BLOCK_GOLDENS)
      block_golden_open(&c, &block_goldens[k], 2 * k + 2);
    else
      block_random_open(&c, which.first + k - BLOCK_GOLDENS);
    ck_assert_msg(vm_case_run(vm, s, &c, why, sizeof why), "program %llu does not run", (unsigned long long)k);
    if (why[0] && getenv("QN_TEST_SHOW")) case_show(&c);
    ck_assert_msg(!why[0], "program %llu: %s", (unsigned long long)k, why);
    case_close(&c);
  }
  qn_vm_close(vm);
}

START_TEST(blocks_are_interpreted) { blocks(2, 60); }
END_TEST

START_TEST(blocks_are_compiled) { blocks(0, 12); }
END_TEST

START_TEST(random_programs_are_interpreted) { random_programs(2, 60); }
END_TEST

START_TEST(random_programs_are_compiled) { random_programs(0, 16); }
END_TEST

START_TEST(what_is_not_compiled_yet_is_interpreted) {
  qn_vm *vm = vm_compiling();
  vm->tune[TUNE_gpu_vm] = 2;
  prints(vm, "let x = arange(1000) % 7; sum(x * x)", "12977");
  prints(vm, "f32(arange(12).reshape(3, 4)) @ ones(4, 2)",
         "f32[3, 2] gpu(0)\n[[ 6.0,  6.0],\n [22.0, 22.0],\n [38.0, 38.0]]");
  fails(vm, "[7, 8, 9] // [1, 0, 0]", "E306", "element 1: integer division by 0");
  qn_release(vm,
             eval(vm, "fn f(x, i) {\n  let y = x * 2\n  y[i] + 1\n}\nfor _ in 0..20 { let _a = f([1, 2], [0, 1]) }"));
  fails(vm, "f([1, 2], [0, 2])", "E303", "index 2 is out of bounds for axis 0");
  prints(vm, "f([1, 2], [0, 1])", "i64[2] gpu(0)\n[3, 5]");
  /* host scalars stand between kernels */
  qn_release(vm, eval(vm, "fn g(x, n) = x * (n * 2 + 1)\nfor n in 0..20 { let _a = g([1, 2], n) }"));
  prints(vm, "g([1, 2], 3)", "i64[2] gpu(0)\n[ 7, 14]");
  const gpu_engine *e = vm->engine->devices[FAMILY_gpu]; /* nothing else was compiled */
  const hash_table *codes = &e->devices[0].codes;
  for (uint32_t i = 0; i < codes->cap; i++) {
    const gpu_code *c = codes->slots[i].what;
    ck_assert(!c || c->nfunctions == 1 || c->nfunctions == OWN_COUNT);
  }
  qn_vm_close(vm);
}
END_TEST

/* Is the function in the list of this name? */
static bool lists(const char *text, const char *list, int number) {
  char head[48], item[24];
  snprintf(head, sizeof head, "#define %s(X)", list);
  snprintf(item, sizeof item, " X(%d, ", number);
  const char *at = strstr(text, head);
  const char *found = at ? strstr(at, item) : NULL;
  return found && found < strchr(at, '\n');
}

/* What L may ask for in dtypes of a class is there: nothing is looked up on the device. */
START_TEST(every_legal_function_is_listed) {
  static const uint8_t few[] = {QN_bool, QN_i64, QN_f16, QN_bf16, QN_f32},
                       all[] = {QN_bool, QN_u8,   QN_i8,  QN_i16, QN_i32, QN_i64,
                                QN_f16,  QN_bf16, QN_f32, QN_f64, QN_u32, QN_u64};
  for (int class = 0; class < BLOCK_VM_CLASSES; class ++) {
    const uint8_t *dtypes = class == BLOCK_VM_F32 ? few : all;
    size_t n = class == BLOCK_VM_F32 ? sizeof few : sizeof all;
    static const char *const ops[] = {"", "VM_OPS1", "VM_OPS2", "VM_OPS3"}, *const slow[] = {"", "VM_SLOW1",
                                                                                             "VM_SLOW2"};
    text_buf t = {0};
    block_vm_text((block_vm_class) class, &t);
    text_add(&t, "", 1);
    ck_assert(!t.failed);
    for (size_t d = 0; d < n; d++) {
      uint8_t type = dtypes[d], in[3] = {type, type, type};
      for (int op = 0; op < KOP_COUNT; op++) {
        int arity = kop_rows[op].arity, number = vm_number(VM_PRIMS, op, type);
        bool compares = op >= KOP_eq && op <= KOP_ge;
        if (op == KOP_select || op == KOP_copy || op == KOP_bitcast) continue; /* by size */
        for (size_t k = 0; k < n && op == KOP_cast; k++)
          if (dtypes[k] != type && !kop_misuse(KOP_cast, dtypes[k], in, 1))
            ck_assert_msg(lists(t.text, "VM_OPS1", vm_number(VM_CASTS, dtypes[k], type)), "cast of %s to %s",
                          dtype_rows[type].name, dtype_rows[dtypes[k]].name);
        if (op == KOP_cast || kop_misuse((uint8_t)op, compares ? QN_bool : type, in, arity)) continue;
        ck_assert_msg(lists(t.text, ops[arity], number) || (arity < 3 && lists(t.text, slow[arity], number)),
                      "%s of %s", kop_rows[op].name, dtype_rows[type].name);
      }
      for (int fn = 0; fn < MATH_COUNT; fn++) {
        bool tests = math_rows[fn].kind == MATH_IS_TEST;
        if (!math_misuse((uint8_t)fn, tests ? QN_bool : type, in, math_rows[fn].arity))
          ck_assert_msg(lists(t.text, slow[math_rows[fn].arity], vm_number(VM_MATHS, fn, type)), "%s of %s",
                        math_rows[fn].name, dtype_rows[type].name);
      }
    }
    text_free(&t);
  }
}
END_TEST

int main(void) {
  Suite *s = suite_create("gpu_vm");
  CASE(tcase_create("functions"), every_legal_function_is_listed);
  CASE(tcase_create("random"), random_programs_are_interpreted);
  CASE(tcase_create("compiled"), what_all_threads_load_nobody_stores_meanwhile, random_programs_are_compiled);
  CASE(tcase_create("blocks"), blocks_are_interpreted, blocks_are_compiled);
  CASE(tcase_create("language"), what_is_not_compiled_yet_is_interpreted);
  return run_suite(s);
}
