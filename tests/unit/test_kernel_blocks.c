/* Programs over blocks (l.h): golden texts of what tiles in registers, packed panels, rows that stay in registers, fragments of tensor cores
 * and attention without stored scores look like; that they verify, print as they were read, and compute what they say when the reference
 * evaluator runs them; and what the verifier refuses. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/kernel/prims.h"
#include "jit/ref/eval.h"
#include "tests/unit/kernel_text.h"

static char why[300];

static char *read_text(const char *name) {
  char path[300];
  snprintf(path, sizeof path, "%s/golden/blocks/%s.l", TESTS_DIR, name);
  FILE *f = fopen(path, "rb");
  ck_assert_msg(f != NULL, "no %s", path);
  char *text = calloc(1 << 16, 1);
  ck_assert(fread(text, 1, (1 << 16) - 1, f) > 0);
  fclose(f);
  return text;
}

/* Reads a program, and checks that it prints as it stands in its file. */
static l_program *program(const char *name) {
  char *text = read_text(name);
  l_program *p = l_parse(text, why, sizeof why);
  ck_assert_msg(p != NULL, "%s: %s", name, why);
  text_buf out = {0};
  l_print(p, &out);
  text_add(&out, "", 1);
  ck_assert_str_eq(out.text, text);
  text_free(&out);
  free(text);
  return p;
}

static void run(const char *name, void *const *buffers, const int64_t *sizes, const int64_t *ints) {
  l_program *p = program(name);
  uint64_t error;
  l_eval_options o = {.why = why, .why_size = sizeof why};
  ck_assert_msg(l_eval(p, buffers, sizes, ints, NULL, &o, &error) == L_EVAL_DONE, "%s: %s", name, why);
  ck_assert(error == ~(uint64_t)0);
  l_free(p);
}

static uint64_t state = 1;
static float uniform(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (float)(int32_t)(state >> 33) / (float)(1u << 30) - 1;
}
static float *filled(size_t n) {
  float *x = calloc(n, sizeof *x);
  for (size_t i = 0; i < n; i++) x[i] = uniform();
  return x;
}
static void near(const float *is, const double *should, size_t n, double tolerance) {
  for (size_t i = 0; i < n; i++)
    ck_assert_msg(fabs((double)is[i] - should[i]) <= tolerance, "element %zu is %.9g, should be %.9g", i, (double)is[i],
                  should[i]);
}

START_TEST(a_row_stays_in_registers) {
  enum { ROWS = 3, COLS = 200 };
  float *x = filled(ROWS * COLS), y[ROWS * COLS];
  double should[ROWS * COLS];
  run("row_softmax", (void *[]){x, y}, (int64_t[]){ROWS * COLS, ROWS * COLS}, (int64_t[]){ROWS, COLS});
  for (int r = 0; r < ROWS; r++) {
    double s = 0;
    for (int c = 0; c < COLS; c++) s += exp((double)x[r * COLS + c]);
    for (int c = 0; c < COLS; c++) should[r * COLS + c] = exp((double)x[r * COLS + c]) / s;
  }
  near(y, should, ROWS * COLS, 1e-6);
  free(x);
}
END_TEST

/* The order of a product is one chain upward: to the last bit. */
START_TEST(a_product_of_packed_panels) {
  enum { M = 13, N = 37, K = 21 };
  float *x = filled(M * K), *y = filled(K * N), *b = filled(N), z[M * N];
  run("packed_product", (void *[]){x, y, b, z}, (int64_t[]){M * K, K * N, N, M * N}, (int64_t[]){M, N, K});
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) {
      float s = 0;
      for (int k = 0; k < K; k++) s = k ? fmaf(x[i * K + k], y[k * N + j], s) : x[i * K] * y[j];
      float should = gelu_f32(s + b[j]);
      ck_assert(memcmp(&should, &z[i * N + j], sizeof should) == 0);
    }
  free(x);
  free(y);
  free(b);
}
END_TEST

START_TEST(rows_are_normalised_while_they_are_packed) {
  enum { M = 6, K = 40, N = 11 };
  float *x = filled(M * K), *g = filled(K), *w = filled(K * N), z[M * N];
  double should[M * N];
  run("norm_in_packing", (void *[]){x, g, w, z}, (int64_t[]){M * K, K, K * N, M * N}, (int64_t[]){M, K, N});
  for (int i = 0; i < M; i++) {
    double mean = 0, var = 0;
    for (int k = 0; k < K; k++) mean += (double)x[i * K + k] / K;
    for (int k = 0; k < K; k++) var += ((double)x[i * K + k] - mean) * ((double)x[i * K + k] - mean) / K;
    for (int j = 0; j < N; j++) {
      should[i * N + j] = 0;
      for (int k = 0; k < K; k++)
        should[i * N + j] += ((double)x[i * K + k] - mean) / sqrt(var + 1e-5) * (double)g[k] * (double)w[k * N + j];
    }
  }
  near(z, should, M * N, 1e-4);
  free(x);
  free(g);
  free(w);
}
END_TEST

START_TEST(a_convolution_without_stored_windows) {
  enum { H = 29, C = 3, O = 4 };
  float *x = filled(C * H * H), *w = filled(O * C * 9), *z = calloc(O * H * H, sizeof *z);
  double *should = calloc(O * H * H, sizeof *should);
  run("guarded_convolution", (void *[]){x, w, z}, (int64_t[]){C * H * H, O * C * 9, O * H * H}, (int64_t[]){H, C});
  for (int o = 0; o < O; o++)
    for (int i = 0; i < H; i++)
      for (int j = 0; j < H; j++)
        for (int q = 0; q < C * 9; q++) {
          int y = i + q % 9 / 3 - 1, v = j + q % 3 - 1;
          if (y >= 0 && y < H && v >= 0 && v < H)
            should[(o * H + i) * H + j] += (double)w[o * C * 9 + q] * (double)x[(q / 9 * H + y) * H + v];
        }
  near(z, should, O * H * H, 1e-5);
  free(x);
  free(w);
  free(z);
  free(should);
}
END_TEST

START_TEST(fragments_of_tensor_cores) {
  enum { K = 32 };
  uint16_t x[16 * K], y[K * 8], z[16 * 8];
  for (int i = 0; i < 16 * K; i++) x[i] = cast_f32_bf16((float)(i % 7 - 3));
  for (int i = 0; i < K * 8; i++) y[i] = cast_f32_bf16((float)(i % 5 - 2));
  run("fragments", (void *[]){x, y, z}, (int64_t[]){16 * K, K * 8, 16 * 8}, (int64_t[]){K});
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 8; j++) {
      float s = 0; /* small whole numbers: any order gives the same */
      for (int k = 0; k < K; k++) s += cast_bf16_f32(x[i * K + k]) * cast_bf16_f32(y[k * 8 + j]);
      ck_assert_uint_eq(z[i * 8 + j], cast_f32_bf16(s));
    }
}
END_TEST

START_TEST(attention_without_stored_scores) {
  enum { Q = 21, N = 45, D = 8 };
  float *q = filled(Q * D), *k = filled(N * D), *v = filled(N * D), z[Q * D];
  double should[Q * D];
  run("flash_attention", (void *[]){q, k, v, z}, (int64_t[]){Q * D, N * D, N * D, Q * D}, (int64_t[]){Q, N});
  for (int i = 0; i < Q; i++) {
    double sum = 0, o[D] = {0};
    for (int j = 0; j < N; j++) {
      double s = 0;
      for (int d = 0; d < D; d++) s += (double)q[i * D + d] * (double)k[j * D + d];
      sum += exp(s);
      for (int d = 0; d < D; d++) o[d] += exp(s) * (double)v[j * D + d];
    }
    for (int d = 0; d < D; d++) should[i * D + d] = o[d] / sum;
  }
  near(z, should, Q * D, 1e-5);
  free(q);
  free(k);
  free(v);
}
END_TEST

START_TEST(columns_in_registers) {
  enum { R = 70, C = 300 };
  float *x = filled(R * C), z[C];
  run("column_sums", (void *[]){x, z}, (int64_t[]){R * C, C}, (int64_t[]){R, C});
  for (int c = 0; c < C; c++) {
    float a = x[c], b = x[64 * C + c]; /* chains of 64 */
    for (int r = 1; r < 64; r++) a += x[r * C + c];
    for (int r = 65; r < R; r++) b += x[r * C + c];
    float should = a + b;
    ck_assert(memcmp(&should, &z[c], sizeof should) == 0);
  }
  free(x);
}
END_TEST

/* What attention computes, over named axes: a loop over tiles of keys with carries of elements, in which are two products and two reductions. */
START_TEST(attention_as_a_kernel) {
  char path[300], *text = calloc(1 << 16, 1);
  snprintf(path, sizeof path, "%s/golden/blocks/flash_attention.k", TESTS_DIR);
  FILE *f = fopen(path, "rb");
  ck_assert(f != NULL && fread(text, 1, (1 << 16) - 1, f) > 0);
  fclose(f);
  k_kernel *k = k_parse(text, why, sizeof why);
  ck_assert_msg(k != NULL, "%s", why);
  ck_assert_msg(k_verify(k, why, sizeof why), "%s", why);
  text_buf out = {0};
  k_print(k, &out);
  text_add(&out, "", 1);
  ck_assert_str_eq(out.text, text);
  text_free(&out);
  k_free(k);
  free(text);
}
END_TEST

static void refused(const char *name, const char *from, const char *to, const char *reason) {
  char *text = read_text(name), *at = strstr(text, from), *edited = calloc(1 << 17, 1);
  ck_assert_msg(at != NULL, "no '%s'", from);
  snprintf(edited, 1 << 17, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
  why[0] = 0;
  l_program *p = l_parse(edited, why, sizeof why);
  ck_assert_msg(p == NULL, "accepted: %s", to);
  ck_assert_msg(strstr(why, reason) != NULL, "'%s' is refused with: %s", to, why);
  free(text);
  free(edited);
}

START_TEST(the_verifier_refuses) {
  refused("row_softmax", "f32[1x256 t64.4] exp", "f32[1x255 t64.4] exp", "a block of 1 x 256 for 1 x 255");
  refused("row_softmax", "f32[1x256 t64.4] exp", "f32[1x256 t32.4] exp", "spread in different ways");
  refused("row_softmax", "f32[1x256 t64.4] exp", "f32 exp", "a block where none can be");
  refused("row_softmax", "f32[1x256 t64.4] exp", "f32[1x256 t64] exp", "the columns of a thread");
  refused("row_softmax", "f32[1x1 t64.4] breduce.max free", "f32[1x2 t64.4] breduce.max free",
          "the results of 1 x 256");
  refused("row_softmax", "breduce.add inner", "breduce.add free", "have an order");
  refused("row_softmax", "f32[1x256 t64.4] bload", "f32[999x999 t64.4] bload", "a block of 999 x 999");
  refused("row_softmax", "f32[1x256 t64.4] bload", "f32 bload", "a block has rows and columns");
  refused("fragments", "f32[16x8 mma] bdot.mma", "f32[16x8] bdot.mma", "spread in different ways");
  refused("fragments", "bf16[16x8 mma] bload b1", "bf16[8x8 mma] bload b1", "is no 16 x 8");
  refused("column_sums", "outer results=%5 atmost", "outer atmost", "a block is pushed to many results");
}
END_TEST

int main(void) {
  Suite *s = suite_create("kernel_blocks");
  TCase *c = tcase_create("blocks");
  tcase_set_timeout(c, 60);
  tcase_add_test(c, a_row_stays_in_registers);
  tcase_add_test(c, a_product_of_packed_panels);
  tcase_add_test(c, rows_are_normalised_while_they_are_packed);
  tcase_add_test(c, a_convolution_without_stored_windows);
  tcase_add_test(c, fragments_of_tensor_cores);
  tcase_add_test(c, attention_without_stored_scores);
  tcase_add_test(c, columns_in_registers);
  tcase_add_test(c, attention_as_a_kernel);
  tcase_add_test(c, the_verifier_refuses);
  suite_add_tcase(s, c);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_ENV);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed != 0;
}
