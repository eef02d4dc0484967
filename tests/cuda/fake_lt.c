/* cuBLASLt without CUDA, for tests: products on the fake driver's memory, on the CPU. The order in which it sums depends on the whole
 * signature, layouts included, and is never that of our own kernels: two calls that should be of one signature and are not give
 * different bits.
 *
 * FAKE_LT in the environment: "none", it cannot be started; "refuses", it has no algorithm for anything. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/fake.h"

#define EXPORT __attribute__((visibility("default")))
enum { OK = 0, REFUSED = 15, INVALID = 7, FAILED = 13, WORKSPACE = 1000 };

struct cublasLtMatmulDescOpaque_t {
  int compute, scale, a, b;
};
struct cublasLtMatrixLayoutOpaque_t {
  int type;
  uint64_t rows, columns;
  int64_t ld, step;
  int32_t batch;
};
struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t workspace;
  uint32_t reductions, alignment[4];
};

static fake_memory memory;
static int queries;

static void broken(const char *what) {
  fprintf(stderr, "fake cuBLASLt: %s\n", what);
  abort();
}

static int wish(const char *what) {
  const char *text = getenv("FAKE_LT");
  return text && strcmp(text, what) == 0;
}

EXPORT int fake_lt_queries(void) { return queries; }

EXPORT size_t cublasLtGetVersion(void) { return 130100; }
EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  Dl_info me;
  char path[600];
  if (wish("none")) return 1;
  if (!dladdr((void *)(uintptr_t)broken, &me) || !me.dli_fname) broken("no place");
  snprintf(path, sizeof path, "%.*slibcuda.so.1", (int)(strrchr(me.dli_fname, '/') + 1 - me.dli_fname), me.dli_fname);
  void *driver = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  const fake_memory *(*of)(void);
  void *f = driver ? dlsym(driver, "fake_memory_of") : NULL;
  if (!f) broken("no driver");
  memcpy(&of, &f, sizeof of);
  memory = *of();
  dlclose(driver);
  *handle = malloc(1);
  return OK;
}
EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  free(handle);
  return OK;
}

EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                               cudaDataType scale) {
  *desc = calloc(1, sizeof **desc);
  (*desc)->compute = compute;
  (*desc)->scale = scale;
  return OK;
}
EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  free(desc);
  return OK;
}
EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attr,
                                                     const void *value, size_t bytes) {
  if (bytes != 4 || (attr != LT_DESC_TRANSA && attr != LT_DESC_TRANSB)) return INVALID;
  memcpy(attr == LT_DESC_TRANSA ? &desc->a : &desc->b, value, bytes);
  return OK;
}

EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                                 uint64_t cols, int64_t ld) {
  *layout = calloc(1, sizeof **layout);
  **layout = (struct cublasLtMatrixLayoutOpaque_t){.type = type, .rows = rows, .columns = cols, .ld = ld, .batch = 1};
  return ld >= (int64_t)rows ? OK : INVALID;
}
EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  free(layout);
  return OK;
}
EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                       cublasLtMatrixLayoutAttribute_t attr, const void *value,
                                                       size_t bytes) {
  if (attr == LT_LAYOUT_BATCH && bytes == 4)
    memcpy(&layout->batch, value, bytes);
  else if (attr == LT_LAYOUT_STEP && bytes == 8)
    memcpy(&layout->step, value, bytes);
  else
    return INVALID;
  return OK;
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
  *preference = calloc(1, sizeof **preference);
  return OK;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  free(preference);
  return OK;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                           cublasLtMatmulPreferenceAttributes_t attr, const void *value,
                                                           size_t bytes) {
  if (attr == LT_PREF_WORKSPACE && bytes == 8)
    memcpy(&preference->workspace, value, bytes);
  else if (attr == LT_PREF_REDUCTIONS && bytes == 4)
    memcpy(&preference->reductions, value, bytes);
  else if (attr >= LT_PREF_ALIGN_A && attr <= LT_PREF_ALIGN_D && bytes == 4)
    memcpy(&preference->alignment[attr - LT_PREF_ALIGN_A], value, bytes);
  else
    return INVALID;
  return OK;
}

/* ---- products ---------------------------------------------------------------------------------------------------------- */

typedef struct shape {
  int64_t m, n, k, batch; /* of column-major matrices */
} shape;

static int shape_of(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                    cublasLtMatrixLayout_t d, shape *s) {
  s->m = (int64_t)(desc->a ? a->columns : a->rows);
  s->k = (int64_t)(desc->a ? a->rows : a->columns);
  s->n = (int64_t)(desc->b ? b->rows : b->columns);
  s->batch = d->batch;
  return s->k == (int64_t)(desc->b ? b->columns : b->rows) && s->m == (int64_t)d->rows && s->n == (int64_t)d->columns &&
         a->batch == d->batch && b->batch == d->batch && a->type == d->type && b->type == d->type &&
         desc->scale == (d->type == LT_F64 ? LT_F64 : LT_F32) &&
         desc->compute == (d->type == LT_F64 ? LT_COMPUTE_F64 : LT_COMPUTE_F32);
}

static uint64_t mix(uint64_t h, int64_t x) {
  h = (h ^ (uint64_t)x) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 29;
}

static uint64_t signature(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, const shape *s,
                          int type) {
  uint64_t h = mix(mix(mix(mix(type, desc->a), desc->b), s->m), s->n);
  return mix(mix(mix(mix(h, s->k), s->batch), a->step), b->step);
}

EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                     cublasLtMatmulPreference_t preference, int wanted,
                                                     cublasLtMatmulHeuristicResult_t *results, int *found) {
  shape s;
  *found = 0;
  queries++;
  if (!handle || c != d || !shape_of(desc, a, b, d, &s)) return INVALID;
  if (preference->reductions != LT_REDUCTION_APART) broken("sums may be split in any way");
  for (int i = 0; i < 4; i++)
    if (preference->alignment[i] != 16) broken("addresses are promised otherwise");
  if (wish("refuses") || wanted < 2) return REFUSED;
  memset(results, 0, 2 * sizeof *results);
  results[0].state = REFUSED;
  results[1].algo.data[0] = signature(desc, a, b, &s, d->type);
  results[1].workspaceSize = s.k > 4 ? WORKSPACE : 0;
  if (results[1].workspaceSize > preference->workspace) return REFUSED;
  *found = 2;
  return OK;
}

static double load(int type, const void *p, int64_t i) {
  float f;
  uint32_t bits;
  switch (type) {
  case LT_F64: return ((const double *)p)[i];
  case LT_F32: return ((const float *)p)[i];
  case LT_F16: return (double)((const _Float16 *)p)[i];
  default:
    bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
  }
}

static void store(int type, void *p, int64_t i, double x) {
  float f = (float)x;
  uint32_t bits;
  switch (type) {
  case LT_F64: ((double *)p)[i] = x; break;
  case LT_F32: ((float *)p)[i] = f; break;
  case LT_F16: ((_Float16 *)p)[i] = (_Float16)f; break;
  default:
    memcpy(&bits, &f, sizeof bits);
    if (f == f) bits += 0x7fff + (bits >> 16 & 1);
    ((uint16_t *)p)[i] = (uint16_t)(f == f ? bits >> 16 : 0x7fc0);
  }
}

/* Partial sums, from the end on, as many as the signature says. */
static double element(int type, const shape *s, uint64_t how, const void *a, int64_t a_at, int64_t a_step,
                      const void *b, int64_t b_at, int64_t b_step) {
  enum { MOST = 7 };
  int lanes = 2 + (int)(how % (MOST - 1));
  double wide[MOST] = {0};
  float narrow[MOST] = {0};
  for (int64_t k = s->k; k-- > 0;) {
    double x = load(type, a, a_at + k * a_step), y = load(type, b, b_at + k * b_step);
    wide[k % lanes] += x * y;
    narrow[k % lanes] += (float)x * (float)y;
  }
  for (int i = 1; i < lanes; i++) {
    wide[0] += wide[i];
    narrow[0] += narrow[i];
  }
  return type == LT_F64 ? wide[0] : narrow[0];
}

static void *place(const void *p, const struct cublasLtMatrixLayoutOpaque_t *x, int64_t size) {
  int64_t elements = (x->batch - 1) * x->step + ((int64_t)x->columns - 1) * x->ld + (int64_t)x->rows;
  if ((uintptr_t)p % 16) broken("an address that is no multiple of 16");
  return memory.host((CUdeviceptr)(uintptr_t)p, (size_t)(elements * size));
}

/* What a product needs when its turn comes. */
typedef struct task {
  shape s;
  struct cublasLtMatmulDescOpaque_t desc;
  struct cublasLtMatrixLayoutOpaque_t a_layout, b_layout, d_layout;
  const void *a, *b;
  void *d, *workspace;
  size_t bytes;
  uint64_t how;
} task;

static void make(const void *what) {
  const task *t = what;
  const struct cublasLtMatrixLayoutOpaque_t *a = &t->a_layout, *b = &t->b_layout, *d = &t->d_layout;
  int type = d->type;
  int64_t size = type == LT_F64 ? 8 : type == LT_F32 ? 4 : 2;
  if (t->bytes) memset(memory.host((CUdeviceptr)(uintptr_t)t->workspace, t->bytes), 0x5a, t->bytes);
  const void *x = place(t->a, &t->a_layout, size), *y = place(t->b, &t->b_layout, size);
  void *to = place(t->d, &t->d_layout, size);
  int64_t a_row = t->desc.a ? a->ld : 1, a_column = t->desc.a ? 1 : a->ld;
  int64_t b_row = t->desc.b ? b->ld : 1, b_column = t->desc.b ? 1 : b->ld;
  for (int64_t i = 0; i < t->s.batch; i++)
    for (int64_t n = 0; n < t->s.n; n++)
      for (int64_t m = 0; m < t->s.m; m++)
        store(type, to, i * d->step + n * d->ld + m,
              element(type, &t->s, t->how, x, i * a->step + m * a_row, a_column, y, i * b->step + n * b_column, b_row));
}

EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                                     const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                                     cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                                     cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                                     const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
                                     cudaStream_t stream) {
  shape s;
  int type = d_layout->type;
  double one = type == LT_F64 ? *(const double *)alpha : *(const float *)alpha;
  double zero = type == LT_F64 ? *(const double *)beta : *(const float *)beta;
  if (!handle || !stream || c != d || c_layout != d_layout || !shape_of(desc, a_layout, b_layout, d_layout, &s))
    return INVALID;
  if (one != 1 || zero != 0) broken("the result is to be scaled");
  if (algo->data[0] != signature(desc, a_layout, b_layout, &s, type)) broken("another signature's algorithm");
  if (bytes != (s.k > 4 ? WORKSPACE : 0)) broken("another workspace than asked for");
  task t = {s, *desc, *a_layout, *b_layout, *d_layout, a, b, d, workspace, bytes, algo->data[0]};
  return memory.enqueue(make, &t, sizeof t, stream) == 0 ? OK : FAILED;
}
