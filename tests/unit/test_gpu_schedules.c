/* Schedules for GPUs (jit/kernel/schedule.h): whatever list of loops fits gives the CPU's bits and failures there, too, as CUDA C and on the block VM.
 * Kernels and schedules are those of test_kernel_schedules.
 *
 * Here the fake of NVRTC compiles for the CPU. With QN_TEST_GPU=1 it is the machine's own GPU and compiler, for many more:
 * QN_TEST_FIRST and QN_TEST_COUNT say which graphs, QN_TEST_TRIES how many schedules for each kernel; QN_TEST_ONLY=vm or =cuda leaves out
 * the other way to run them. labels: slow */
#include <unistd.h> /* first: it has an L_SET, too */

#include "tests/unit/gpu.h"
#include "tests/unit/kernel_random.h"
#include "tests/unit/seeds.h"
#include "jit/gpu/block_vm.h"
#include "jit/kernel/launch.h"

enum { PROGRAMS = 32, WAYS = 2 };

typedef struct device_case {
  kernel_case *c; /* shared by several; the last one frees it */
  bool last;
  schedule_result s;
  device_program p;
} device_case;

typedef struct device_fuzzer {
  qn_vm *vm[WAYS]; /* compiled; on the block VM. NULL: left out */
  rng r;
  uint64_t seed, kernels, fit, ran[WAYS], failed;
  int tries;
  device_case at[PROGRAMS];
  uint32_t n;
} device_fuzzer;

static qn_vm *vm_of_gpu(int gpu_vm) {
  qn_vm *vm;
  if (getenv("QN_TEST_GPU")) {
    qn_config config;
    qn_config_init(&config);
    config.jit = QN_JIT_SYNC;
    vm = qn_vm_open(&config);
    if (!vm || !vm_use_device(vm, GPU_0)) ck_abort_msg("no GPU");
  } else {
    vm = vm_compiling();
  }
  vm->tune[TUNE_gpu_vm] = gpu_vm;
  return vm;
}

/* Runs a program there on fresh data and compares. */
static void run_there(qn_vm *vm, const device_case *x, char *why, size_t size) {
  const kernel_case *c = x->c;
  gpu_stream *s = gpu_stream_of(vm, GPU_0);
  void *ours[KERNEL_BUFFERS], *there[KERNEL_BUFFERS];
  int64_t *ints = kernel_case_ints(c, &x->s);
  kernel_case_begin(c, ours);
  ck_assert(gpu_enter(s));
  for (uint32_t b = 0; b < c->n; b++) {
    CUdeviceptr at = gpu_alloc(vm, s, kernel_case_bytes(c, b) + 1);
    ck_assert(at && gpu_write(vm, s, at, ours[b], kernel_case_bytes(c, b)));
    there[b] = (void *)(uintptr_t)at;
  }
  gpu_leave(s);
  device_answer answer = gpu_kernels.launch(vm, GPU_0, &x->p, there, ints, c->scalars);
  ck_assert(answer != DEVICE_FAILS && gpu_enter(s));
  for (uint32_t b = 0; b < c->n; b++) {
    ck_assert(gpu_read(vm, s, ours[b], (CUdeviceptr)(uintptr_t)there[b], kernel_case_bytes(c, b)));
    gpu_free(vm, s, (CUdeviceptr)(uintptr_t)there[b], kernel_case_bytes(c, b) + 1);
  }
  gpu_leave(s);
  /* which check fails, the CPU finds out */
  uint64_t error = answer == DEVICE_DONE ? ~0ull : c->error != ~0ull ? c->error : 0;
  why[0] = 0;
  (void)kernel_case_compare(c, ours, error, NULL, why, size);
  kernel_case_end(c, ours);
  free(ints);
}

static void show(device_fuzzer *f, const device_case *x, int way, const char *why) {
  if (f->failed++ >= 8) return;
  text_buf t = {0};
  k_print(x->c->k, &t);
  if (getenv("QN_TEST_SHOW")) l_print(x->s.program, &t);
  text_add(&t, "", 1);
  fprintf(stderr, "graph %llu%s: %s\n  %s\n%s", (unsigned long long)f->seed, way ? " on the block VM" : "", why,
          x->s.program->schedule, t.text);
  text_free(&t);
}

/* Compiles and runs the programs at hand. */
static void run_all(device_fuzzer *f) {
  device_program *list[PROGRAMS];
  char why[300];
  for (uint32_t i = 0; i < f->n; i++) list[i] = &f->at[i].p;
  for (int way = 0; way < WAYS; way++) {
    if (!f->vm[way] || !f->n) continue;
    if (way == 0 && !gpu_kernels.ready(f->vm[0], GPU_0, list, f->n, true)) {
      show(f, &f->at[0], way, "no code for the programs that begin with this one");
      continue;
    }
    for (uint32_t i = 0; i < f->n; i++) {
      device_case *x = &f->at[i];
      if (way == 1 && !block_vm_ready(f->vm[1], gpu_stream_of(f->vm[1], GPU_0), &x->p, true)) continue;
      f->ran[way]++;
      run_there(f->vm[way], x, why, sizeof why);
      if (why[0]) show(f, x, way, why);
    }
  }
  for (uint32_t i = 0; i < f->n; i++) {
    device_case *x = &f->at[i];
    l_free(x->s.program);
    if (!x->last) continue;
    kernel_case_free(x->c);
    free(x->c);
  }
  f->n = 0;
}

static void try_kernel(void *ctx, k_kernel *k, const int64_t *symbols, const kernel_case_options *o) {
  device_fuzzer *f = ctx;
  char why[400];
  if (!k || f->n + (uint32_t)f->tries > PROGRAMS) run_all(f);
  if (!k) return;
  kernel_case *c = calloc(1, sizeof *c);
  bool ok = kernel_case_of(c, k, symbols, f->seed, o, why, sizeof why);
  uint32_t first = f->n;
  f->kernels += ok;
  for (int i = 0; ok && i < f->tries; i++) {
    device_case *x = &f->at[f->n];
    schedule_how how = {.grain = RANDOM_GRAIN};
    text_buf t = {0};
    const char *reason;
    *x = (device_case){.c = c};
    if (!random_how(k, TARGET_GPU, &f->r, &t, &how.pick, why, sizeof why)) continue;
    how.text = t.text;
    if (schedule(k, TARGET_GPU, &how, &x->s, &reason)) {
      x->p = (device_program){.program = x->s.program, .hash = l_hash(x->s.program)};
      bool again = !l_launches(x->s.program);
      for (uint32_t j = first; j < f->n; j++) again |= f->at[j].p.hash == x->p.hash;
      if (again)
        l_free(x->s.program);
      else
        f->n++;
    }
    text_free(&t);
  }
  f->fit += f->n - first;
  if (f->n > first) {
    f->at[f->n - 1].last = true;
    return;
  }
  kernel_case_free(c);
  free(c);
}

START_TEST(random_schedules_keep_bits_there) {
  seeds which = seeds_of(1, 24);
  const char *tries = getenv("QN_TEST_TRIES"), *only_way = getenv("QN_TEST_ONLY");
  device_fuzzer f = {.tries = tries ? atoi(tries) : 3};
  if (f.tries < 1 || f.tries > PROGRAMS) f.tries = PROGRAMS;
  for (int way = 0; way < WAYS; way++)
    if (!only_way || strcmp(only_way, way ? "vm" : "cuda") == 0) f.vm[way] = vm_of_gpu(way ? 2 : 0);
  for (uint64_t seed = which.first; seed < which.end; seed++) {
    f.seed = seed;
    random_kernels(seed, &f.r, try_kernel, &f);
  }
  fprintf(stderr, "%llu kernels, %llu schedules; compiled %llu, on the block VM %llu, %llu fail\n",
          (unsigned long long)f.kernels, (unsigned long long)f.fit, (unsigned long long)f.ran[0],
          (unsigned long long)f.ran[1], (unsigned long long)f.failed);
  for (int way = 0; way < WAYS; way++)
    if (f.vm[way]) qn_vm_close(f.vm[way]);
  if (which.own) ck_assert_uint_gt(f.ran[0], 20);
  ck_assert_uint_eq(f.failed, 0);
}
END_TEST

int main(void) {
  Suite *s = suite_create("gpu_schedules");
  CASE(tcase_create("random_schedules"), random_schedules_keep_bits_there);
  return run_suite(s);
}
