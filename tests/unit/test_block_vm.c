/* The block VM: every instruction of L does what lcodes.def says, reductions and scans follow the orders of l.h to the bit, and
 * block sizes, threads and instruction sets change nothing. */
#include <math.h>

#include "jit/cpu/block_vm.h"
#include "jit/cpu/cpu.h"
#include "tests/unit/kernel_text.h"
#include "tests/unit/lang.h"

static uint64_t state = 88172645463325252u;
static uint64_t random_bits(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}
static float random_float(void) { return (float)((double)(random_bits() >> 11) * 0x1p-52 - 1); }

static qn_vm *cpu_make(int threads) {
  qn_config config;
  qn_config_init(&config);
  config.threads = threads;
  qn_vm *vm = vm_open(&config);
  if (!vm || !cpu_open(vm)) ck_abort_msg("no memory");
  return vm;
}
static void cpu_drop(qn_vm *vm) {
  cpu_close(vm);
  vm_close(vm);
}

/* The tables that this processor can run. */
static int tables(const bvm_loops *out[3]) {
  int n = 0;
  out[n++] = &bvm_loops_base;
#if defined(__x86_64__)
  const bvm_loops *best = bvm_loops_pick();
  if (best != &bvm_loops_base) out[n++] = &bvm_loops_v3;
  if (best == &bvm_loops_v4) out[n++] = &bvm_loops_v4;
#endif
  return n;
}

static l_program *parse(const char *text) {
  char why[256];
  l_program *p = l_parse(text, why, sizeof why);
  if (!p) ck_abort_msg("%s", why);
  return p;
}

typedef struct setting {
  const bvm_loops *loops;
  int64_t block;
  int threads;
} setting;

/* Runs a program once; returns the error cell. */
static uint64_t run_with(const setting *how, const l_program *p, void *const *buffers, const int64_t *ints,
                         const qk_scalar *scalars, kernel_failure *failure) {
  qn_vm *vm = cpu_make(how->threads);
  vm->tune[TUNE_vm_block] = how->block;
  vm->tune[TUNE_par_grain] = how->threads > 1 ? 1 : 32768;
  void *code = bvm_code_make(p, how->loops);
  ck_assert(code != NULL);
  kernel_failure f;
  bool ok = kernel_launch(vm, p, &code, NULL, buffers, ints, scalars, &f);
  ck_assert(ok == (f.error == ~(uint64_t)0));
  bvm_code_free(code);
  cpu_drop(vm);
  if (failure) *failure = f;
  return f.error;
}

/* Runs a program in all settings, each on a fresh copy of `out`, and compares the bytes with the first. */
static void run_all(const char *text, void **buffers, int which, size_t bytes, const int64_t *ints,
                    const qk_scalar *scalars) {
  l_program *p = parse(text);
  const bvm_loops *all[3];
  int n = tables(all);
  char *start = malloc(bytes + 1), *first = malloc(bytes + 1), *out = buffers[which];
  memcpy(start, out, bytes);
  bool have = false;
  static const int64_t blocks[] = {512, 64, 192};
  for (int t = 0; t < n; t++)
    for (int b = 0; b < 3; b++)
      for (int threads = 1; threads <= 3; threads += 2) {
        setting how = {all[t], blocks[b], threads};
        memcpy(out, start, bytes);
        ck_assert_uint_eq(run_with(&how, p, buffers, ints, scalars, NULL), ~(uint64_t)0);
        if (!have)
          memcpy(first, out, bytes);
        else if (memcmp(first, out, bytes) != 0)
          ck_abort_msg("%s, block %lld, %d threads: other bits\n%s", all[t]->name, (long long)how.block, threads, text);
        have = true;
      }
  free(start);
  free(first);
  l_free(p);
}

/* ---- the orders, by their definitions ---- */

typedef float (*fold_f32)(float, float);
static float plus(float a, float b) { return a + b; }

/* Balanced tree over leaves of `width` elements, in place; the root is leaf 0. */
static void tree(float *leaves, int64_t m, int64_t width, fold_f32 f) {
  for (; m > 1; m = (m + 1) / 2)
    for (int64_t i = 0; i < (m + 1) / 2; i++)
      for (int64_t w = 0; w < width; w++)
        leaves[i * width + w] =
            2 * i + 1 < m ? f(leaves[2 * i * width + w], leaves[(2 * i + 1) * width + w]) : leaves[2 * i * width + w];
}

static float sum_inner(const float *x, int64_t n) {
  if (n == 0) return -0.0f;
  int64_t blocks = (n + 1023) / 1024;
  float *lanes = malloc((size_t)blocks * 64 * sizeof *lanes);
  for (int64_t b = 0; b < blocks; b++)
    for (int64_t l = 0; l < 64; l++) {
      float s = -0.0f;
      for (int64_t r = 0; r < 16; r++) {
        int64_t k = b * 1024 + r * 64 + l;
        if (k < n) s = r ? s + x[k] : x[k];
      }
      lanes[b * 64 + l] = s;
    }
  tree(lanes, blocks, 64, plus);
  for (int h = 32; h; h /= 2)
    for (int i = 0; i < h; i++) lanes[i] = lanes[i] + lanes[i + h];
  float s = lanes[0];
  free(lanes);
  return s;
}

static float sum_outer(const float *x, int64_t n, int64_t stride) {
  if (n == 0) return -0.0f;
  int64_t chains = (n + 63) / 64;
  float *leaves = malloc((size_t)chains * sizeof *leaves);
  for (int64_t c = 0; c < chains; c++) {
    float s = x[c * 64 * stride];
    for (int64_t k = c * 64 + 1; k < n && k < c * 64 + 64; k++) s += x[k * stride];
    leaves[c] = s;
  }
  tree(leaves, chains, 1, plus);
  float s = leaves[0];
  free(leaves);
  return s;
}

static float dot_order(const float *x, int64_t sx, const float *y, int64_t sy, int64_t n) {
  if (n == 0) return 0; /* of no products */
  int64_t chunks = (n + 4095) / 4096;
  float *leaves = malloc((size_t)chunks * sizeof *leaves);
  for (int64_t c = 0; c < chunks; c++) {
    int64_t k = c * 4096;
    float s = x[k * sx] * y[k * sy];
    for (k++; k < n && k < c * 4096 + 4096; k++) s = fmaf(x[k * sx], y[k * sy], s);
    leaves[c] = s;
  }
  tree(leaves, chunks, 1, plus);
  float s = leaves[0];
  free(leaves);
  return s;
}

static const int64_t lengths[] = {0, 1, 2, 63, 64, 65, 100, 127, 512, 1023, 1024, 1025, 2048, 3000, 5000, 9000, 70001};
enum { LENGTHS = sizeof lengths / sizeof *lengths, LONGEST = 70001 };
static float data[2 * LONGEST], other[2 * LONGEST];
static void fill_data(void) {
  for (int i = 0; i < 2 * LONGEST; i++) {
    data[i] = random_float() * (float)(1 << (random_bits() % 12));
    other[i] = random_float();
  }
}

static bool same_bits(float a, float b) { return memcmp(&a, &b, 4) == 0 || (a != a && b != b); }

START_TEST(reduce_inner) {
  fill_data();
  for (int i = 0; i < LENGTHS; i++) {
    float out = 0, want = sum_inner(data, lengths[i]);
    void *buffers[] = {data, &out};
    run_all("program p ints=1 scalars=0 {\n  buffer b0 f32 in\n  buffer b1 f32 out\n  %1 = param 0\n  %2 = int 0\n  %3 "
            "= int 1\n  phase\n"
            "  %5 = par %3 grain=1 {\n    %6 = f32 acc.add inner\n    %7 = vec %2 %1 {\n      %8 = f32 load b0 base=%2 "
            "stride=%3\n"
            "      push %6 %8\n    }\n    %11 = f32 finish %6\n    store b1 %11 base=%2\n  }\n}\n",
            buffers, 1, sizeof out, &lengths[i], NULL);
    ck_assert_msg(same_bits(out, want), "n %lld: %a, not %a", (long long)lengths[i], out, want);
  }
}
END_TEST

/* Slabs of 2,048 write partials, a second phase merges them. */
START_TEST(reduce_partials) {
  fill_data();
  for (int i = 0; i < LENGTHS; i++) {
    float out = 0, want = sum_inner(data, lengths[i]);
    void *buffers[] = {data, &out};
    run_all("program p ints=1 scalars=0 {\n  buffer b0 f32 in\n  buffer b1 f32 out\n  buffer b2 f32 scratch size=%7\n"
            "  %1 = param 0\n  %2 = int 2048\n  %3 = int 2047\n  %4 = iadd %1 %3\n  %5 = idiv %4 %2\n  %6 = int 64\n  "
            "%7 = imul %5 %6\n"
            "  %8 = int 0\n  %9 = int 1\n  phase\n  %11 = par %5 grain=1 {\n    %12 = var %11\n    %13 = imul %12 %2\n"
            "    %14 = iadd %13 %2\n    %15 = imin %14 %1\n    %16 = f32 acc.add inner\n    %17 = vec %13 %15 {\n"
            "      %18 = f32 load b0 base=%13 stride=%9\n      push %16 %18 k=%13\n    }\n    %21 = imul %12 %6\n"
            "    partial b2 %16 at=%21\n  }\n  phase\n  %25 = par %9 grain=1 {\n    %26 = f32 acc.add inner\n"
            "    %27 = for %8 %5 {\n      %28 = var %27\n      %29 = imul %28 %6\n      merge b2 %26 at=%29\n    }\n"
            "    %32 = f32 finish %26\n    store b1 %32 base=%8\n  }\n}\n",
            buffers, 1, sizeof out, &lengths[i], NULL);
    ck_assert_msg(same_bits(out, want), "n %lld: %a, not %a", (long long)lengths[i], out, want);
  }
}
END_TEST

/* Column sums: many results, one k after the other; and one result pushed outside a VEC. */
START_TEST(reduce_outer) {
  fill_data();
  static const int64_t rows[] = {0, 1, 2, 63, 64, 65, 129, 300}, cols[] = {1, 3, 70, 200};
  for (int r = 0; r < 8; r++)
    for (int c = 0; c < 4; c++) {
      float out[200] = {0};
      int64_t ints[] = {rows[r], cols[c]};
      void *buffers[] = {data, out};
      run_all("program p ints=2 scalars=0 {\n  buffer b0 f32 in\n  buffer b1 f32 out\n  %1 = param 0\n  %2 = param 1\n "
              " %3 = int 0\n"
              "  %4 = int 1\n  phase\n  %6 = par %4 grain=1 {\n    %7 = f32 acc.add outer results=%2 atmost=%1\n    %8 "
              "= for %3 %1 {\n"
              "      %9 = var %8\n      %10 = imul %9 %2\n      %11 = vec %3 %2 {\n        %12 = f32 load b0 base=%10 "
              "stride=%4\n"
              "        push %7 %12\n      }\n    }\n    %16 = vec %3 %2 {\n      %17 = f32 finish %7\n"
              "      store b1 %17 base=%3 stride=%4\n    }\n  }\n}\n",
              buffers, 1, (size_t)cols[c] * 4, ints, NULL);
      for (int64_t j = 0; j < cols[c]; j++) {
        float want = sum_outer(data + j, rows[r], cols[c]);
        ck_assert_msg(same_bits(out[j], want), "%lld rows, column %lld: %a, not %a", (long long)rows[r], (long long)j,
                      out[j], want);
      }
      /* the same inside a VEC over the columns */
      memset(out, 0, sizeof out);
      run_all("program p ints=2 scalars=0 {\n  buffer b0 f32 in\n  buffer b1 f32 out\n  %1 = param 0\n  %2 = param 1\n "
              " %3 = int 0\n"
              "  %4 = int 1\n  phase\n  %6 = par %4 grain=1 {\n    %7 = f32 acc.add outer results=%2 atmost=%1\n    %8 "
              "= vec %3 %2 {\n"
              "      %9 = for %3 %1 {\n        %10 = var %9\n        %11 = imul %10 %2\n        %12 = f32 load b0 "
              "base=%11 stride=%4\n"
              "        push %7 %12\n      }\n      %15 = f32 finish %7\n      store b1 %15 base=%3 stride=%4\n    }\n  "
              "}\n}\n",
              buffers, 1, (size_t)cols[c] * 4, ints, NULL);
      for (int64_t j = 0; j < cols[c]; j++) ck_assert(same_bits(out[j], sum_outer(data + j, rows[r], cols[c])));
      float one = 0;
      void *single[] = {data, &one};
      run_all("program p ints=2 scalars=0 {\n  buffer b0 f32 in\n  buffer b1 f32 out\n  %1 = param 0\n  %2 = param 1\n "
              " %3 = int 0\n"
              "  %4 = int 1\n  phase\n  %6 = par %4 grain=1 {\n    %7 = f32 acc.add outer\n    %8 = for %3 %1 {\n"
              "      %9 = var %8\n      %10 = imul %9 %2\n      %11 = f32 load b0 base=%10\n      push %7 %11\n    }\n"
              "    %14 = f32 finish %7\n    store b1 %14 base=%3\n  }\n}\n",
              single, 1, 4, ints, NULL);
      ck_assert(same_bits(one, sum_outer(data, rows[r], cols[c])));
    }
}
END_TEST

/* Short rows: a VEC over the rows, INNER with many results. */
START_TEST(reduce_rows) {
  fill_data();
  for (int64_t k = 0; k <= 64; k += k < 4 ? 1 : 15) {
    int64_t rows = 300, ints[] = {rows, k};
    float out[300] = {0};
    void *buffers[] = {data, out};
    run_all("program p ints=2 scalars=0 {\n  buffer b0 f32 in\n  buffer b1 f32 out\n  %1 = param 0\n  %2 = param 1\n  "
            "%3 = int 0\n"
            "  %4 = int 1\n  phase\n  %6 = par %4 grain=1 {\n    %7 = f32 acc.add inner results=%1 atmost=%2\n    %8 = "
            "for %3 %2 {\n"
            "      %9 = var %8\n      %10 = vec %3 %1 {\n        %11 = f32 load b0 base=%9 stride=%2\n        push %7 "
            "%11\n      }\n    }\n"
            "    %15 = vec %3 %1 {\n      %16 = f32 finish %7\n      store b1 %16 base=%3 stride=%4\n    }\n  }\n}\n",
            buffers, 1, sizeof out, ints, NULL);
    for (int64_t r = 0; r < rows; r++) ck_assert(same_bits(out[r], sum_inner(data + r * k, k)));
  }
}
END_TEST

START_TEST(reduce_dot) {
  fill_data();
  for (int i = 0; i < LENGTHS; i++) {
    float out = 0, want = dot_order(data, 1, other, 2, lengths[i]);
    void *buffers[] = {data, other, &out};
    run_all(
        "program p ints=1 scalars=0 {\n  buffer b0 f32 in\n  buffer b1 f32 in\n  buffer b2 f32 out\n  %1 = param 0\n  "
        "%2 = int 0\n"
        "  %3 = int 1\n  %4 = int 2\n  phase\n  %6 = par %3 grain=1 {\n    %7 = f32 acc.add dot\n    %8 = vec %2 %1 {\n"
        "      %9 = f32 load b0 base=%2 stride=%3\n      %10 = f32 load b1 base=%2 stride=%4\n      push %7 %9 "
        "times=%10\n    }\n"
        "    %13 = f32 finish %7\n    store b2 %13 base=%2\n  }\n}\n",
        buffers, 2, sizeof out, &lengths[i], NULL);
    ck_assert_msg(same_bits(out, want), "n %lld: %a, not %a", (long long)lengths[i], out, want);
  }
}
END_TEST

/* max with nan and zeros, argmax with ties and nan, products of integers. */
START_TEST(reduce_free) {
  static const int64_t n = 1500;
  float x[1500], big = 0;
  int64_t at = 0, product = 0, whole[1500];
  for (int round = 0; round < 6; round++) {
    for (int64_t i = 0; i < n; i++) {
      x[i] = (float)(int64_t)(random_bits() % 50);
      whole[i] = (int64_t)random_bits() | 1;
    }
    if (round & 1) x[700] = x[900] = NAN;
    if (round & 2) x[3] = x[1200] = 77;
    float want = -INFINITY;
    int64_t want_at = -1, want_product = 1;
    for (int64_t i = 0; i < n; i++) {
      if (want_at < 0 || x[i] > want || (x[i] != x[i] && want == want)) want = x[i], want_at = i;
      want_product = (int64_t)((uint64_t)want_product * (uint64_t)whole[i]);
    }
    void *a[] = {x, &big}, *b[] = {x, &at}, *c[] = {whole, &product};
    run_all("program p ints=1 scalars=0 {\n  buffer b0 f32 in\n  buffer b1 f32 out\n  %1 = param 0\n  %2 = int 0\n  %3 "
            "= int 1\n  phase\n"
            "  %5 = par %3 grain=1 {\n    %6 = f32 acc.max free\n    %7 = vec %2 %1 {\n      %8 = f32 load b0 base=%2 "
            "stride=%3\n"
            "      push %6 %8\n    }\n    %11 = f32 finish %6\n    store b1 %11 base=%2\n  }\n}\n",
            a, 1, 4, &n, NULL);
    run_all("program p ints=1 scalars=0 {\n  buffer b0 f32 in\n  buffer b1 i64 out\n  %1 = param 0\n  %2 = int 0\n  %3 "
            "= int 1\n  phase\n"
            "  %5 = par %3 grain=1 {\n    %6 = f32 acc.argmax free\n    %7 = vec %2 %1 {\n      %8 = f32 load b0 "
            "base=%2 stride=%3\n"
            "      push %6 %8\n    }\n    %11 = i64 finish %6\n    store b1 %11 base=%2\n  }\n}\n",
            b, 1, 8, &n, NULL);
    run_all("program p ints=1 scalars=0 {\n  buffer b0 i64 in\n  buffer b1 i64 out\n  %1 = param 0\n  %2 = int 0\n  %3 "
            "= int 1\n  phase\n"
            "  %5 = par %3 grain=1 {\n    %6 = i64 acc.mul free\n    %7 = vec %2 %1 {\n      %8 = i64 load b0 base=%2 "
            "stride=%3\n"
            "      push %6 %8\n    }\n    %11 = i64 finish %6\n    store b1 %11 base=%2\n  }\n}\n",
            c, 1, 8, &n, NULL);
    ck_assert(same_bits(big, want));
    ck_assert_int_eq(at, want_at);
    ck_assert_int_eq(product, want_product);
  }
}
END_TEST

/* ---- scans ---- */

static void scan_inner(const float *x, float *out, int64_t n) {
  float G = 0, B = 0;
  for (int64_t g = 0; g * 64 < n; g++) {
    float l[64], t[64];
    int64_t m = n - g * 64 < 64 ? n - g * 64 : 64;
    memcpy(l, x + g * 64, (size_t)m * 4);
    for (int h = 1; h < 64; h *= 2) {
      memcpy(t, l, sizeof t);
      for (int64_t i = h; i < m; i++) l[i] = t[i - h] + t[i];
    }
    float total = 0;
    for (int64_t i = 0; i < m; i++) {
      float v = g % 64 ? G + l[i] : l[i];
      total = v;
      out[g * 64 + i] = g >= 64 ? B + v : v;
    }
    G = total;
    if (g % 64 == 63) B = out[g * 64 + 63];
  }
}

static void scan_outer(const float *x, float *out, int64_t n) {
  float C = 0, s = 0;
  for (int64_t k = 0; k < n; k++) {
    s = k % 64 ? s + x[k] : x[k];
    out[k] = k >= 64 ? C + s : s;
    if (k % 64 == 63) C = out[k];
  }
}

START_TEST(scans) {
  fill_data();
  float *out = malloc(LONGEST * 4), *want = malloc(LONGEST * 4);
  for (int kind = 0; kind < 4; kind++)
    for (int i = 1; i < LENGTHS; i++) {
      bool inner = kind < 2, exclusive = kind & 1;
      int64_t n = lengths[i];
      (inner ? scan_inner : scan_outer)(data, want, n);
      if (exclusive) {
        memmove(want + 1, want, (size_t)(n - 1) * 4);
        want[0] = 0;
      }
      char text[1024];
      snprintf(text, sizeof text,
               "program p ints=1 scalars=0 {\n  buffer b0 f32 in\n  buffer b1 f32 out\n  %%1 = param 0\n  %%2 = int "
               "0\n  %%3 = int 1\n"
               "  phase\n  %%5 = par %%3 grain=1 {\n    %%6 = f32 acc.add %s\n    %%7 = vec %%2 %%1 {\n"
               "      %%8 = f32 load b0 base=%%2 stride=%%3\n      %%9 = f32 scan%s %%6 %%8\n      store b1 %%9 "
               "base=%%2 stride=%%3\n"
               "    }\n  }\n}\n",
               inner ? "inner" : "outer", exclusive ? ".exclusive" : "");
      void *buffers[] = {data, out};
      memset(out, 0, (size_t)n * 4);
      run_all(text, buffers, 1, (size_t)n * 4, &n, NULL);
      for (int64_t k = 0; k < n; k++)
        ck_assert_msg(same_bits(out[k], want[k]), "kind %d, n %lld, at %lld", kind, (long long)n, (long long)k);
      /* down the columns: many results */
      int64_t cols = 70, ints[] = {n > 900 ? 900 : n, cols};
      float column[900];
      snprintf(
          text, sizeof text,
          "program p ints=2 scalars=0 {\n  buffer b0 f32 in\n  buffer b1 f32 out\n  %%1 = param 0\n  %%2 = param 1\n  "
          "%%3 = int 0\n"
          "  %%4 = int 1\n  phase\n  %%6 = par %%4 grain=1 {\n    %%7 = f32 acc.add %s results=%%2\n    %%8 = for %%3 "
          "%%1 {\n"
          "      %%9 = var %%8\n      %%10 = imul %%9 %%2\n      %%11 = vec %%3 %%2 {\n        %%12 = f32 load b0 "
          "base=%%10 stride=%%4\n"
          "        %%13 = f32 scan%s %%7 %%12\n        store b1 %%13 base=%%10 stride=%%4\n      }\n    }\n  }\n}\n",
          inner ? "inner" : "outer", exclusive ? ".exclusive" : "");
      memset(out, 0, (size_t)(ints[0] * cols) * 4);
      run_all(text, buffers, 1, (size_t)(ints[0] * cols) * 4, ints, NULL);
      for (int64_t c = 0; c < cols; c += 23) {
        for (int64_t k = 0; k < ints[0]; k++) column[k] = data[k * cols + c];
        (inner ? scan_inner : scan_outer)(column, want, ints[0]);
        for (int64_t k = 0; k < ints[0]; k++) {
          float w = exclusive ? (k ? want[k - 1] : 0.0f) : want[k];
          ck_assert_msg(same_bits(out[k * cols + c], w), "kind %d, column %lld, at %lld", kind, (long long)c,
                        (long long)k);
        }
      }
    }
  free(out);
  free(want);
}
END_TEST

/* ---- memory, guards, control ---- */

START_TEST(moves_and_guards) {
  enum { N = 700 };
  float x[3 * N], out[N], want[N];
  int64_t index[N];
  uint8_t mask[N];
  for (int i = 0; i < 3 * N; i++) x[i] = random_float();
  for (int i = 0; i < N; i++) {
    index[i] = (int64_t)(random_bits() % N);
    mask[i] = random_bits() % 2;
  }
  /* strided and reversed loads, a window with an else, a gather under a mask whose other addresses are wild */
  int64_t ints[] = {N, 5, N - 9};
  int64_t wild[N];
  for (int i = 0; i < N; i++) wild[i] = mask[i] ? index[i] : INT64_MAX / 8;
  void *buffers[] = {x, wild, mask, out};
  memset(out, 0, sizeof out);
  run_all(
      "program p ints=3 scalars=1 {\n  buffer b0 f32 in\n  buffer b1 i64 in\n  buffer b2 bool in\n  buffer b3 f32 out\n"
      "  %1 = param 0\n  %2 = param 1\n  %3 = param 2\n  %4 = int 0\n  %5 = int 1\n  %6 = int 3\n  %7 = int -1\n  %8 = "
      "isub %1 %5\n"
      "  %9 = f64 scalar 0\n  %10 = f32 cast %9\n  phase\n  %12 = par %5 grain=1 {\n    %13 = vec %4 %1 {\n"
      "      %14 = f32 load b0 base=%4 stride=%6\n      %15 = f32 load b0 base=%8 stride=%7\n"
      "      %16 = f32 load b0 base=%4 stride=%5 lo=%2 hi=%3 else=%10\n      %17 = i64 load b1 base=%4 stride=%5\n"
      "      %18 = bool load b2 base=%4 stride=%5\n      %19 = f32 load b0 base=%4 vindex=%17 vstride=%5 where=%18 "
      "else=%16\n"
      "      %20 = f32 load b0 base=%6\n      %21 = f32 add %14 %15\n      %22 = f32 add %21 %16\n      %23 = f32 add "
      "%22 %19\n"
      "      %24 = f32 mul %23 %20\n      store b3 %24 base=%4 stride=%5 where=%18\n"
      "      store b3 %16 base=%4 stride=%5 lo=%4 hi=%2\n    }\n  }\n}\n",
      buffers, 3, sizeof out, ints, &(qk_scalar){.f = 0.1});
  for (int i = 0; i < N; i++) {
    float w16 = i >= 5 && i < N - 9 ? x[i] : 0.1f, w19 = mask[i] ? x[index[i]] : w16;
    want[i] = mask[i] ? (x[3 * i] + x[N - 1 - i] + w16 + w19) * x[3] : 0;
    if (i < 5) want[i] = w16;
    ck_assert_msg(same_bits(out[i], want[i]), "element %d", i);
  }
}
END_TEST

/* Scatter: the last of equal indices wins; updates happen one after the other. */
START_TEST(scatters) {
  enum { N = 900, M = 40 };
  int64_t index[N], ints[] = {N};
  float x[N], out[2 * M] = {0}, want[2 * M] = {0};
  for (int i = 0; i < N; i++) {
    index[i] = (int64_t)(random_bits() % M);
    x[i] = random_float() * 1000;
    want[index[i]] = x[i];
    want[M + index[i]] += x[i];
  }
  void *buffers[] = {x, index, out};
  run_all("program p ints=1 scalars=0 {\n  buffer b0 f32 in\n  buffer b1 i64 in\n  buffer b2 f32 inout\n  %1 = param "
          "0\n  %2 = int 0\n"
          "  %3 = int 1\n  %4 = int 40\n  phase\n  %6 = par %3 grain=1 {\n    %7 = vec %2 %1 {\n      %8 = f32 load b0 "
          "base=%2 stride=%3\n"
          "      %9 = i64 load b1 base=%2 stride=%3\n      store b2 %8 base=%2 vindex=%9 vstride=%3\n"
          "      rmw.add b2 %8 base=%4 vindex=%9 vstride=%3\n    }\n  }\n}\n",
          buffers, 2, sizeof out, ints, NULL);
  for (int i = 0; i < 2 * M; i++) ck_assert(same_bits(out[i], want[i]));
}
END_TEST

/* Locals, FOR with carries that change places (Fibonacci), IF and ELSE. */
START_TEST(control) {
  int64_t out[12] = {0}, ints[] = {10};
  void *buffers[] = {out};
  run_all("program p ints=1 scalars=0 {\n  buffer b0 i64 out\n  %1 = param 0\n  %2 = int 0\n  %3 = int 1\n  %4 = int "
          "2\n  %5 = int 12\n"
          "  %6 = i64 const 0x0 (0)\n  %7 = i64 const 0x1 (1)\n  phase\n  %9 = par %5 grain=1 {\n    %10 = var %9\n    "
          "%11 = i64 local size=%5\n"
          "    %12 = i64 carry %6\n    %13 = i64 carry %7\n    %14 = for %2 %10 {\n      %15 = i64 add %12 %13\n      "
          "set %12 %13\n"
          "      set %13 %15\n    }\n    store %11 %12 base=%10\n    %20 = i64 load %11 base=%10\n    %21 = imod %10 "
          "%4\n    if %21 {\n"
          "      %23 = i64 neg %20\n      store b0 %23 base=%10\n    } else {\n      store b0 %20 base=%10\n    }\n  "
          "}\n}\n",
          buffers, 0, sizeof out, ints, NULL);
  static const int64_t fib[] = {0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89};
  for (int i = 0; i < 12; i++) ck_assert_int_eq(out[i], i % 2 ? -fib[i] : fib[i]);
}
END_TEST

/* Collatz: WHILE inside a VEC; finished lanes are frozen. */
START_TEST(masked_while) {
  enum { N = 600 };
  int64_t out[N] = {0}, ints[] = {N};
  void *buffers[] = {out};
  run_all(
      "program p ints=1 scalars=0 {\n  buffer b0 i64 out\n  %1 = param 0\n  %2 = int 0\n  %3 = int 1\n  %4 = i64 const "
      "0x0 (0)\n"
      "  %5 = i64 const 0x1 (1)\n  %6 = i64 const 0x3 (3)\n  %7 = i64 const 0x2 (2)\n  phase\n  %9 = par %3 grain=1 {\n"
      "    %10 = vec %2 %1 {\n      %11 = i64 iota %3 stride=%3\n      %12 = i64 carry %11\n      %13 = i64 carry %4\n"
      "      %14 = bool ne %11 %5\n      %15 = bool carry %14\n      while %15 {\n        %17 = i64 mul %12 %6\n"
      "        %18 = i64 add %17 %5\n        %19 = i64 idiv %12 %7\n        %20 = i64 imod %12 %7\n        %21 = bool "
      "eq %20 %5\n"
      "        %22 = i64 select %21 %18 %19\n        %23 = i64 add %13 %5\n        %24 = bool ne %22 %5\n        set "
      "%12 %22\n"
      "        set %13 %23\n        set %15 %24\n      }\n      store b0 %13 base=%2 stride=%3\n    }\n  }\n}\n",
      buffers, 0, sizeof out, ints, NULL);
  for (int64_t i = 0; i < N; i++) {
    int64_t n = i + 1, steps = 0;
    for (; n != 1; steps++) n = n % 2 ? 3 * n + 1 : n / 2;
    ck_assert_int_eq(out[i], steps);
  }
}
END_TEST

/* The smallest failure is the error, whatever the threads; the value is kept. */
START_TEST(checks) {
  enum { N = 5000 };
  static int64_t x[N], out[N];
  l_program *p = parse(
      "program p ints=1 scalars=0 {\n  buffer b0 i64 in\n  buffer b1 i64 out\n  check c0 E306 site=0 node=0 detail=0\n"
      "  check c1 E303 site=0 node=0 detail=1\n  %1 = param 0\n  %2 = int 0\n  %3 = int 1\n  %4 = int 100\n"
      "  %5 = idiv %1 %4\n  %6 = i64 const 0x0 (0)\n  %7 = i64 const 0x3e8 (1000)\n  phase\n  %9 = par %5 grain=1 {\n"
      "    %10 = var %9\n    %11 = imul %10 %4\n    %12 = vec %2 %4 {\n      %13 = i64 load b0 base=%11 stride=%3\n"
      "      %14 = bool ge %13 %6\n      %15 = bool lt %13 %7\n      check c1 %15 at=%11 stride=%3 shows=%13\n"
      "      check c0 %14 at=%11 stride=%3 shows=%13\n      store b1 %13 base=%11 stride=%3\n    }\n  }\n}\n");
  const bvm_loops *all[3];
  int n = tables(all);
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < N; i++) x[i] = i % 1000;
    uint64_t want = ~(uint64_t)0;
    int64_t shown = 0;
    for (int bad = 0; bad < round % 4; bad++) {
      int64_t at = (int64_t)(random_bits() % N);
      x[at] = bad & 1 ? -5 - bad : 2000 + bad;
    }
    for (int i = N - 1; i >= 0; i--) {
      uint64_t e = x[i] < 0 ? (uint64_t)i : x[i] >= 1000 ? (uint64_t)1 << 48 | (uint64_t)i : ~(uint64_t)0;
      if (e < want) want = e, shown = x[i];
    }
    for (int t = 0; t < n; t++)
      for (int threads = 1; threads <= 4; threads += 3) {
        setting how = {all[t], 64, threads};
        kernel_failure f;
        void *buffers[] = {x, out};
        ck_assert_uint_eq(run_with(&how, p, buffers, (int64_t[]){N}, NULL, &f), want);
        if (want != ~(uint64_t)0) ck_assert_int_eq((int64_t)f.bits, shown);
      }
  }
  l_free(p);
}
END_TEST

/* An output over its input: values loaded before a store keep what they were. */
START_TEST(in_place) {
  enum { N = 1000 };
  float x[2 * N], before[2 * N];
  for (int i = 0; i < 2 * N; i++) x[i] = before[i] = random_float();
  l_program *p = parse(
      "program p ints=1 scalars=0 {\n  buffer b0 f32 in\n  buffer b1 f32 out\n  buffer b2 f32 out\n  %1 = param 0\n"
      "  %2 = int 0\n  %3 = int 1\n  phase\n  %5 = par %3 grain=1 {\n    %6 = vec %2 %1 {\n"
      "      %7 = f32 load b0 base=%2 stride=%3\n      %8 = f32 add %7 %7\n      %9 = f32 mul %7 %7\n"
      "      store b1 %8 base=%2 stride=%3\n      %11 = f32 sub %9 %7\n      store b2 %11 base=%2 stride=%3\n    }\n  "
      "}\n}\n");
  setting how = {bvm_loops_pick(), 64, 1};
  void *buffers[] = {x, x, x + N};
  run_with(&how, p, buffers, (int64_t[]){N}, NULL, NULL);
  for (int i = 0; i < N; i++) {
    ck_assert(same_bits(x[i], before[i] + before[i]));
    ck_assert(same_bits(x[N + i], before[i] * before[i] - before[i]));
  }
  l_free(p);
}
END_TEST

/* ---- products ---- */

static _Alignas(64) char work[QK_TILE_WORK];

START_TEST(tiles) {
  fill_data();
  const bvm_loops *all[3];
  int n = tables(all);
  static const int64_t shapes[][3] = {{1, 1, 1},      {1, 1, 5000},   {3, 5, 7},       {6, 16, 64},    {14, 32, 300},
                                      {15, 33, 257},  {57, 130, 9},   {1, 100, 90},    {100, 1, 90},   {7, 3, 9000},
                                      {20, 40, 0},    {64, 64, 64},   {257, 300, 130}, {130, 513, 70}, {300, 290, 20},
                                      {1, 1, 32768},  {1, 1, 45001},  {1, 1, 70001},   {2, 3, 20001},  {4, 4, 8200},
                                      {10, 1, 13000}, {1, 16, 8500},  {1, 17, 4097},   {31, 31, 1024}, {15, 70, 1024},
                                      {113, 9, 4100}, {9, 113, 4200}, {300, 5, 301},   {5, 300, 301}};
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
    for (int layout = 0; layout < 4; layout++) {
      int64_t M = shapes[s][0], N = shapes[s][1], K = shapes[s][2];
      int64_t x_m = layout & 1 ? 1 : K, x_k = layout & 1 ? M : 1, y_k = layout & 2 ? 1 : N, y_n = layout & 2 ? K : 1;
      float *out = malloc((size_t)(M * N) * 4 + 4), *want = malloc((size_t)(M * N) * 4 + 4);
      float *x = malloc((size_t)(M * K) * 4 + 4), *y = malloc((size_t)(K * N) * 4 + 4);
      for (int64_t i = 0; i < M * K; i++) x[i] = data[i % (2 * LONGEST)];
      for (int64_t i = 0; i < K * N; i++) y[i] = other[i % (2 * LONGEST)];
      for (int64_t i = 0; i < M * N; i++) want[i] = dot_order(x + i / N * x_m, x_k, y + i % N * y_n, y_k, K);
      for (int t = 0; t < n; t++) {
        qk_tile tile = {x, y,          out,    work,   x_m,    x_k, y_k, y_n, M,   N,
                        K, (int32_t)N, QN_f32, QN_f32, QN_f32, 0,   0,   0,   NULL};
        memset(out, 0xff, (size_t)(M * N) * 4);
        all[t]->tile(&tile);
        for (int64_t i = 0; i < M * N; i++)
          if (!same_bits(out[i], want[i]))
            ck_abort_msg("%s %lldx%lldx%lld layout %d at %lld: %a, not %a", all[t]->name, (long long)M, (long long)N,
                         (long long)K, layout, (long long)i, out[i], want[i]);
      }
      free(x);
      free(y);
      free(out);
      free(want);
    }
}
END_TEST

/* Windows of A x B elements, `gap` apart, that begin `step` apart, of an array of C x H x W: `cols` of them from `first` on, and rows of x. */
typedef struct window_case {
  int64_t C, H, W, A, B, step, gap, first, cols, rows;
  bool turned; /* k counts windows, n their elements */
} window_case;

/* Where an element of a window lies. */
static int64_t window_at(const window_case *c, int64_t place, int64_t element) {
  int64_t across = (c->W - 1 - (c->B - 1) * c->gap) / c->step + 1;
  int64_t row = place / across * c->step + element / c->B % c->A * c->gap,
          column = place % across * c->step + element % c->B * c->gap;
  return (element / c->B / c->A * c->H + row) * c->W + column;
}

/* Tiles of windows, beginning at any place, give the chains of their elements on every instruction set. */
START_TEST(windows) {
  static const window_case cases[] = {
      {3, 14, 13, 3, 3, 1, 1, 0, 132, 20, false},
      {3, 14, 13, 3, 3, 1, 1, 17, 57, 64, false},
      {5, 31, 40, 3, 2, 2, 1, 33, 130, 15, false},
      {70, 9, 10, 2, 3, 1, 2, 3, 39, 5, false},
      {1, 9, 200, 1, 7, 1, 1, 5, 300, 33, false},
      {500, 5, 5, 3, 3, 1, 1, 0, 9, 40, false},
      {4, 20, 21, 3, 3, 1, 1, 0, 36, 18, true},
      {9, 12, 33, 3, 3, 1, 1, 5, 70, 3, true},
      {4, 20, 21, 3, 3, 2, 2, 1, 30, 65, true},
      {2, 3, 3, 3, 3, 1, 1, 0, 1, 1, false},
      /* in place: vectors of one run, of two, to the end of the array, for so many rows that two are packed, and windows one above the other */
      {3, 9, 18, 3, 3, 1, 1, 0, 96, 20, false},
      {3, 12, 34, 3, 3, 1, 1, 5, 128, 64, false},
      {2, 6, 20, 3, 3, 1, 1, 8, 64, 7, false},
      {40, 9, 22, 3, 3, 1, 2, 1, 64, 130, false},
      {2, 20, 32, 3, 1, 2, 1, 0, 40, 9, false},
      {70, 20, 70, 3, 3, 1, 1, 30, 140, 33, false},
      /* each second element: short runs and long ones, to the end of the array */
      {3, 31, 81, 3, 3, 2, 1, 0, 600, 20, false},
      {40, 7, 38, 3, 5, 2, 2, 2, 28, 3, false},
      {2, 9, 9, 3, 3, 2, 1, 1, 15, 40, false}};
  const bvm_loops *all[3];
  int tables_n = tables(all);
  for (size_t s = 0; s < sizeof cases / sizeof *cases; s++) {
    const window_case *c = &cases[s];
    int64_t down = (c->H - 1 - (c->A - 1) * c->gap) / c->step + 1,
            across = (c->W - 1 - (c->B - 1) * c->gap) / c->step + 1;
    int64_t size = c->C * c->H * c->W, places = down * across, inner = c->C * c->A * c->B,
            K = c->turned ? places : inner;
    ck_assert(c->first + c->cols <= (c->turned ? inner : places));
    /* exactly as long as it must be, so that a sanitizer sees what is read beyond */
    float *y = malloc((size_t)size * 4), *x = malloc((size_t)(c->rows * K) * 4), *column = malloc((size_t)K * 4);
    double *yd = malloc((size_t)size * 8), *xd = malloc((size_t)(c->rows * K) * 8);
    uint16_t *yh = malloc((size_t)size * 2), *xh = malloc((size_t)(c->rows * K) * 2);
    for (int64_t i = 0; i < size; i++) yh[i] = f64_to_f16(other[i % LONGEST]), yd[i] = y[i] = f16_to_f32(yh[i]);
    for (int64_t i = 0; i < c->rows * K; i++)
      xh[i] = f64_to_f16(other[(7 * i + 3) % LONGEST]), xd[i] = x[i] = f16_to_f32(xh[i]);
    qk_digit digits[] = {{across, 0, c->step * c->W, c->turned},
                         {1, across, c->step, c->turned},
                         {1, c->B, c->gap, !c->turned},
                         {c->B, c->A, c->gap * c->W, !c->turned},
                         {c->A * c->B, 0, c->H * c->W, !c->turned}};
    int64_t LD = c->cols + 3, base = c->turned ? window_at(c, 0, c->first) : window_at(c, c->first, 0);
    float *out = malloc((size_t)(c->rows * LD) * 4), *outh = malloc((size_t)(c->rows * LD) * 4);
    double *outd = malloc((size_t)(c->rows * LD) * 8);
    for (int t = 0; t < tables_n; t++) {
      memset(out, 0xff, (size_t)(c->rows * LD) * 4);
      qk_tile tile = {x, y + base, out,    work,   K,      1, 0,        0, c->rows, c->cols,
                      K, LD,       QN_f32, QN_f32, QN_f32, 5, c->first, 0, digits};
      all[t]->tile(&tile);
      tile.x = xh, tile.y = yh + base, tile.out = outh, tile.xd = tile.yd = QN_f16;
      all[t]->tile(&tile);
      tile.x = xd, tile.y = yd + base, tile.out = outd, tile.xd = tile.yd = tile.od = QN_f64;
      all[t]->tile(&tile);
      for (int64_t j = 0; j < LD; j++) {
        for (int64_t k = 0; k < K && j < c->cols; k++)
          column[k] = y[c->turned ? window_at(c, k, c->first + j) : window_at(c, c->first + j, k)];
        for (int64_t i = 0; i < c->rows; i++) {
          int64_t at = i * LD + j;
          if (j >= c->cols) {
            ck_assert(out[at] != out[at]);
            continue;
          }
          float want = dot_order(x + i * K, 1, column, 1, K);
          if (!same_bits(out[at], want))
            ck_abort_msg("%s case %d at %lld, %lld: %a, not %a", all[t]->name, (int)s, (long long)i, (long long)j,
                         out[at], want);
          ck_assert_msg(fabs(outd[at] - want) <= 1e-3 * (1 + fabs((double)want)), "f64: %g, not %g", outd[at], want);
          ck_assert(same_bits(outh[at], want));
        }
      }
    }
    free(y), free(x), free(column), free(yd), free(xd), free(yh), free(xh), free(out), free(outh), free(outd);
  }
}
END_TEST

/* f64, integers and half floats agree between instruction sets and with the definition, however operands lie; and what lies between the rows of
 * the results is left alone. */
START_TEST(tiles_of_other_types) {
  enum { M = 63, N = 53, K = 300, LD = N + 3 };
  static double x[2 * M * K], y[2 * K * N], out[M * LD];
  static int32_t xi[2 * M * K], yi[2 * K * N], outi[M * LD];
  static uint16_t xh[2 * M * K], yh[2 * K * N];
  static float outh[M * LD], outb[M * LD];
  const bvm_loops *all[3];
  int n = tables(all);
  for (int i = 0; i < 2 * M * K; i++)
    x[i] = random_float(), xi[i] = (int32_t)random_bits(), xh[i] = f64_to_f16(random_float());
  for (int i = 0; i < 2 * K * N; i++)
    y[i] = random_float(), yi[i] = (int32_t)random_bits(), yh[i] = f64_to_f16(random_float());
  for (int layout = 0; layout < 9; layout++) {
    /* rows side by side, columns side by side, neither */
    int64_t x_m = layout % 3 == 0   ? K
                  : layout % 3 == 1 ? 1
                                    : 2 * K,
            x_k = layout % 3 == 0   ? 1
                  : layout % 3 == 1 ? M
                                    : 2;
    int64_t y_n = layout / 3 == 0   ? 1
                  : layout / 3 == 1 ? K
                                    : 2,
            y_k = layout / 3 == 0   ? N
                  : layout / 3 == 1 ? 1
                                    : 2 * N;
    for (int t = 0; t < n; t++) {
      memset(out, 0xff, sizeof out);
      memset(outi, 0xff, sizeof outi);
      memset(outh, 0xff, sizeof outh);
      memset(outb, 0xff, sizeof outb);
      all[t]->tile(&(qk_tile){x, y, out, work, x_m, x_k, y_k, y_n, M, N, K, LD, QN_f64, QN_f64, QN_f64, 0, 0, 0, NULL});
      all[t]->tile(
          &(qk_tile){xi, yi, outi, work, x_m, x_k, y_k, y_n, M, N, K, LD, QN_i32, QN_i32, QN_i32, 0, 0, 0, NULL});
      all[t]->tile(
          &(qk_tile){xh, yh, outh, work, x_m, x_k, y_k, y_n, M, N, K, LD, QN_f16, QN_f16, QN_f32, 0, 0, 0, NULL});
      all[t]->tile(
          &(qk_tile){xh, yh, outb, work, x_m, x_k, y_k, y_n, M, N, K, LD, QN_bf16, QN_bf16, QN_f32, 0, 0, 0, NULL});
      for (int i = 0; i < M; i++)
        for (int j = 0; j < LD; j++) {
          int at = i * LD + j;
          if (j >= N) {
            ck_assert(out[at] != out[at] && outi[at] == -1 && outh[at] != outh[at] && outb[at] != outb[at]);
            continue;
          }
          double s = 0;
          uint32_t w = 0;
          float h = 0, b = 0;
          for (int k = 0; k < K; k++) {
            int64_t l = i * x_m + k * x_k, r = j * y_n + k * y_k;
            float lh = f16_to_f32(xh[l]), rh = f16_to_f32(yh[r]), lb = bf16_to_f32(xh[l]), rb = bf16_to_f32(yh[r]);
            s = k ? fma(x[l], y[r], s) : x[l] * y[r];
            h = k ? fmaf(lh, rh, h) : lh * rh;
            b = k ? fmaf(lb, rb, b) : lb * rb;
            w += (uint32_t)xi[l] * (uint32_t)yi[r];
          }
          ck_assert_msg(out[at] == s && outi[at] == (int32_t)w && outh[at] == h && outb[at] == b,
                        "%s layout %d at %d %d", all[t]->name, layout, i, j);
        }
    }
  }
}
END_TEST

/* Single results of many terms in f64 and of half floats, next to each other in memory and not. */
START_TEST(deep_tiles_of_other_types) {
  enum { K = 37003, CHUNK = 4096, LEAVES = (K + CHUNK - 1) / CHUNK };
  static double x[2 * K], y[2 * K];
  static uint16_t xh[2 * K], yh[2 * K];
  const bvm_loops *all[3];
  int n = tables(all);
  for (int i = 0; i < 2 * K; i++) {
    x[i] = random_float(), y[i] = random_float();
    xh[i] = f64_to_f16(random_float()), yh[i] = f64_to_f16(random_float());
  }
  for (int64_t sx = 1; sx <= 2; sx++)
    for (int64_t sy = 1; sy <= 2; sy++) {
      double leaf[LEAVES];
      float leafh[LEAVES];
      for (int64_t k = 0; k < K; k++) {
        double *s = &leaf[k / CHUNK];
        float *h = &leafh[k / CHUNK], a = f16_to_f32(xh[k * sx]), b = f16_to_f32(yh[k * sy]);
        *s = k % CHUNK ? fma(x[k * sx], y[k * sy], *s) : x[k * sx] * y[k * sy];
        *h = k % CHUNK ? fmaf(a, b, *h) : a * b;
      }
      for (int m = LEAVES; m > 1; m = (m + 1) / 2)
        for (int i = 0; i < (m + 1) / 2; i++) {
          leaf[i] = 2 * i + 1 < m ? leaf[2 * i] + leaf[2 * i + 1] : leaf[2 * i];
          leafh[i] = 2 * i + 1 < m ? leafh[2 * i] + leafh[2 * i + 1] : leafh[2 * i];
        }
      for (int t = 0; t < n; t++) {
        double out = 0;
        float outh = 0;
        all[t]->tile(&(qk_tile){x, y, &out, work, 0, sx, sy, 0, 1, 1, K, 1, QN_f64, QN_f64, QN_f64, 0, 0, 0, NULL});
        all[t]->tile(&(qk_tile){xh, yh, &outh, work, 0, sx, sy, 0, 1, 1, K, 1, QN_f16, QN_f16, QN_f32, 0, 0, 0, NULL});
        ck_assert_msg(out == leaf[0] && outh == leafh[0], "%s steps %d %d", all[t]->name, (int)sx, (int)sy);
      }
    }
}
END_TEST

/* Every loop of every table gives the bits of the base table on random operands, in every mode. */
static void compare_loops(const bvm_loops *l, bvm_fn f, bvm_fn g, const void *a, const void *b, const void *c,
                          size_t size, bool real, const char *what, int which, int dtype) {
  static char x[64 * 1024], y[64 * 1024];
  if (!f || !g) {
    ck_assert(!f == !g);
    return;
  }
  for (int mode = 0; mode < 8; mode++)
    for (int64_t n = 1; n < 400; n += 133) {
      memset(x, 0, sizeof x);
      memset(y, 0, sizeof y);
      f(x, a, b, c, mode, n);
      g(y, a, b, c, mode, n);
      if (memcmp(x, y, sizeof x) == 0) continue;
      for (int64_t i = 0; i < n; i++) {
        bool nan = real && (size == 4 ? ((float *)(void *)x)[i] != ((float *)(void *)x)[i] &&
                                            ((float *)(void *)y)[i] != ((float *)(void *)y)[i]
                            : size == 8 ? ((double *)(void *)x)[i] != ((double *)(void *)x)[i] &&
                                              ((double *)(void *)y)[i] != ((double *)(void *)y)[i]
                                        : (*(uint16_t *)(void *)(x + 2 * i) & 0x7fff) > 0x7c00 &&
                                              (*(uint16_t *)(void *)(y + 2 * i) & 0x7fff) > 0x7c00);
        if (!nan && memcmp(x + (size_t)i * size, y + (size_t)i * size, size) != 0)
          ck_abort_msg("%s: %s %d of %s differs at %lld of %lld, mode %d", l->name, what, which, dtype_rows[dtype].name,
                       (long long)i, (long long)n, mode);
      }
    }
}

START_TEST(tables_agree) {
  static union {
    uint64_t u[512];
    float f[1024];
    double d[512];
    uint8_t b[4096];
  } a, b, flags;
  const bvm_loops *all[3];
  int n = tables(all);
  for (int round = 0; round < 12; round++)
    for (int d = 0; d < QN_DTYPE_COUNT; d++) {
      if (d == QN_u16 || d > QN_u64) continue;
      size_t size = dtype_size((qn_dtype)d);
      bool real = dtype_is_float((qn_dtype)d);
      for (int i = 0; i < 512; i++)
        a.u[i] = random_bits(), b.u[i] = random_bits(), flags.u[i] = random_bits() & 0x0101010101010101u;
      if (d == QN_bool)
        for (int i = 0; i < 4096; i++) a.b[i] &= 1, b.b[i] &= 1;
      if (round % 3 == 1 && d == QN_f32)
        for (int i = 0; i < 1024; i++) a.f[i] = random_float() * 30, b.f[i] = random_float() * 5;
      if (round % 3 == 1 && d == QN_f64)
        for (int i = 0; i < 512; i++) a.d[i] = random_float() * 300, b.d[i] = random_float() * 5;
      if (round % 3 == 2)
        for (int i = 0; i < 512; i++) b.u[i] = a.u[(i * 7) % 512]; /* equal operands, and small ones */
      if (round % 3 == 2 && !real && d != QN_bool)
        for (int i = 0; i < 4096; i++) b.b[i] = i % size == 0 ? (uint8_t)(random_bits() % 5) : 0;
      for (int t = 1; t < n; t++) {
        const bvm_loops *l = all[t], *base = all[0];
        for (int k = 0; k < KOP_COUNT; k++) {
          if (k == KOP_select) continue;
          bool test = k >= KOP_eq && k <= KOP_ge;
          compare_loops(l, base->kop[k][d], l->kop[k][d], &a, &b, &a, test ? 1 : size, real && !test, "primitive", k,
                        d);
        }
        compare_loops(l, base->kop[KOP_select][d], l->kop[KOP_select][d], &flags, &a, &b, size, real, "select", 0, d);
        for (int m = 0; m < MATH_COUNT; m++) {
          bool test = math_rows[m].kind == MATH_IS_TEST;
          compare_loops(l, base->math[m][d], l->math[m][d], &a, &b, NULL, test ? 1 : size, real && !test, "function", m,
                        d);
        }
        for (int to = 0; to < QN_DTYPE_COUNT; to++)
          compare_loops(l, base->cast[d][to], l->cast[d][to], &a, NULL, NULL, dtype_size((qn_dtype)to),
                        dtype_is_float((qn_dtype)to), "cast", to, d);
      }
    }
}
END_TEST

START_TEST(interrupts) {
  qn_vm *vm = cpu_make(1);
  l_program *p = parse("program p ints=0 scalars=0 {\n  buffer b0 i64 out\n  %1 = int 1\n  %2 = int 0\n  %3 = bool "
                       "const 0x1 (true)\n  phase\n"
                       "  %5 = par %1 grain=1 {\n    %6 = bool carry %3\n    while %6 {\n      poll\n    }\n  }\n}\n");
  int64_t out = 0;
  void *buffers[] = {&out}, *code = NULL;
  kernel_failure failure;
  qn_interrupt(vm);
  ck_assert(!kernel_launch(vm, p, &code, NULL, buffers, NULL, NULL, &failure));
  ck_assert_uint_eq(failure.error, ~(uint64_t)0);
  ck_assert_int_eq(taken_error(vm), E_interrupted);
  bvm_code_free(code);
  l_free(p);
  cpu_drop(vm);
}
END_TEST

int main(void) {
  Suite *s = suite_create("vm");
  CASE(tcase_create("reductions"), reduce_inner, reduce_partials, reduce_outer, reduce_rows, reduce_dot, reduce_free);
  CASE(tcase_create("scans"), scans);
  CASE(tcase_create("memory"), moves_and_guards, scatters, in_place);
  CASE(tcase_create("control"), control, masked_while, checks, interrupts);
  CASE(tcase_create("tiles"), tiles, windows, tiles_of_other_types, deep_tiles_of_other_types);
  CASE(tcase_create("tables_agree"), tables_agree);
  return run_suite(s);
}
