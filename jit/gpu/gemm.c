/* Matrix products by cuBLASLt (state.h).
 *
 * A signature (device_gemm) is asked for once: the library's first choice for it, with descriptors and layouts, stays in the
 * device's table until the engine closes. So all calls of one signature, by whichever VM, eager or from a plan, run the same
 * algorithm. What that rests on: on one device and version of the library its answer depends on what it is asked alone, and what is
 * asked is in the signature (addresses are always promised to be multiples of 16); an algorithm gives the same bits every time
 * it runs. Sums that are split over blocks are only taken where their parts are stored and added in a step of
 * their own (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE), never added up in the result as blocks come.
 *
 * f32 is computed in full f32 (no TF32), f64 in f64; f16 and bf16 are summed in f32 and rounded once.
 *
 * The library is column-major, where a row-major matrix is its own transpose: asked is y' x' = (x y)', its first operand is our y.
 *
 * Workspace comes from the stream's memory and goes back at once: whoever gets it next comes later in the stream. Products of plans
 * (sequence.c) use the stream's scratch, so that it stays where it is and a graph may know its address: a product is captured from
 * a stream of its own, in which nothing ever runs. In the relaxed mode, since no other stream is affected and the library may do
 * what it likes on this thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/gpu/state.h"

enum { ALIGNMENT = 16, CHOICES = 8 };
#define WORKSPACE_MOST ((uint64_t)32 << 20)

struct gpu_made {
  device_gemm is;
  bool has;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, d;
  cublasLtMatmulAlgo_t algo;
  size_t workspace;
};
typedef gpu_made product;

struct gpu_gemms {
  bool tried;
  cublasLtHandle_t handle; /* NULL: there is no library */
  hash_table table; /* of products, by hash_of or, if another signature has the same hash, the next free number */
};

/* ---- signatures ------------------------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t h, uint64_t x) {
  h = (h ^ x) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 29;
}

static uint64_t hash_of(const device_gemm *p) {
  uint64_t h = mix(p->dtype, (uint64_t)p->x_across << 1 | p->y_across);
  h = mix(mix(mix(h, (uint64_t)p->batch), (uint64_t)p->m), (uint64_t)p->n);
  return mix(mix(mix(h, (uint64_t)p->k), (uint64_t)p->x_step), (uint64_t)p->y_step);
}

static bool same(const device_gemm *p, const device_gemm *q) {
  return p->dtype == q->dtype && p->x_across == q->x_across && p->y_across == q->y_across && p->batch == q->batch &&
         p->m == q->m && p->n == q->n && p->k == q->k && p->x_step == q->x_step && p->y_step == q->y_step;
}

/* The table's entry for a signature, or NULL. *at: its number in the table, or where it belongs. */
static product *find(const gpu_gemms *t, const device_gemm *p, uint64_t *at) {
  product *x;
  for (*at = hash_of(p); (x = hash_find(&t->table, *at)) && !same(&x->is, p);) ++*at;
  return x;
}

/* ---- asking the library ------------------------------------------------------------------------------------------------ */

typedef struct lt_types {
  cudaDataType data, scale;
  cublasComputeType_t compute;
} lt_types;

static bool types_of(uint8_t dtype, lt_types *t) {
  *t = (lt_types){.scale = LT_F32, .compute = LT_COMPUTE_F32};
  switch (dtype) {
  case QN_f16: t->data = LT_F16; return true;
  case QN_bf16: t->data = LT_BF16; return true;
  case QN_f32: t->data = LT_F32; return true;
  case QN_f64: *t = (lt_types){LT_F64, LT_F64, LT_COMPUTE_F64}; return true;
  default: return false;
  }
}

/* A column-major matrix, or `batch` of them. */
static bool make_layout(const cuda_lt *lt, cublasLtMatrixLayout_t *to, cudaDataType type, int64_t rows, int64_t columns,
                        int64_t batch, int64_t step) {
  int32_t count = (int32_t)batch;
  if (lt->cublasLtMatrixLayoutCreate(to, type, (uint64_t)rows, (uint64_t)columns, rows) != LT_OK) {
    *to = NULL;
    return false;
  }
  return batch == 1 || (lt->cublasLtMatrixLayoutSetAttribute(*to, LT_LAYOUT_BATCH, &count, sizeof count) == LT_OK &&
                        lt->cublasLtMatrixLayoutSetAttribute(*to, LT_LAYOUT_STEP, &step, sizeof step) == LT_OK);
}

static bool make_operation(const cuda_lt *lt, product *x) {
  const device_gemm *p = &x->is;
  lt_types t;
  int32_t a = p->y_across ? LT_OP_T : LT_OP_N, b = p->x_across ? LT_OP_T : LT_OP_N;
  if (!types_of(p->dtype, &t)) return false;
  if (lt->cublasLtMatmulDescCreate(&x->desc, t.compute, t.scale) != LT_OK) {
    x->desc = NULL;
    return false;
  }
  return lt->cublasLtMatmulDescSetAttribute(x->desc, LT_DESC_TRANSA, &a, sizeof a) == LT_OK &&
         lt->cublasLtMatmulDescSetAttribute(x->desc, LT_DESC_TRANSB, &b, sizeof b) == LT_OK &&
         make_layout(lt, &x->a, t.data, p->y_across ? p->k : p->n, p->y_across ? p->n : p->k, p->batch, p->y_step) &&
         make_layout(lt, &x->b, t.data, p->x_across ? p->m : p->k, p->x_across ? p->k : p->m, p->batch, p->x_step) &&
         make_layout(lt, &x->d, t.data, p->n, p->m, p->batch, p->m * p->n);
}

/* Takes the first of the library's choices that can be used. */
static bool choose(const cuda_lt *lt, cublasLtHandle_t handle, product *x) {
  static const int alignments[] = {LT_PREF_ALIGN_A, LT_PREF_ALIGN_B, LT_PREF_ALIGN_C, LT_PREF_ALIGN_D};
  cublasLtMatmulHeuristicResult_t found[CHOICES] = {0};
  cublasLtMatmulPreference_t want = NULL;
  uint64_t workspace = WORKSPACE_MOST;
  uint32_t reductions = LT_REDUCTION_APART, alignment = ALIGNMENT;
  int n = 0;
  if (lt->cublasLtMatmulPreferenceCreate(&want) != LT_OK) return false;
  bool ok = lt->cublasLtMatmulPreferenceSetAttribute(want, LT_PREF_WORKSPACE, &workspace, sizeof workspace) == LT_OK &&
            lt->cublasLtMatmulPreferenceSetAttribute(want, LT_PREF_REDUCTIONS, &reductions, sizeof reductions) == LT_OK;
  for (int i = 0; i < 4 && ok; i++)
    ok = lt->cublasLtMatmulPreferenceSetAttribute(want, alignments[i], &alignment, sizeof alignment) == LT_OK;
  ok = ok &&
       lt->cublasLtMatmulAlgoGetHeuristic(handle, x->desc, x->a, x->b, x->d, x->d, want, CHOICES, found, &n) == LT_OK;
  lt->cublasLtMatmulPreferenceDestroy(want);
  for (int i = 0; i < n && ok; i++) {
    if (found[i].state != LT_OK || found[i].workspaceSize > WORKSPACE_MOST) continue;
    x->algo = found[i].algo;
    x->workspace = found[i].workspaceSize;
    return true;
  }
  return false;
}

static void drop(const cuda_lt *lt, product *x) {
  if (x->desc) lt->cublasLtMatmulDescDestroy(x->desc);
  if (x->a) lt->cublasLtMatrixLayoutDestroy(x->a);
  if (x->b) lt->cublasLtMatrixLayoutDestroy(x->b);
  if (x->d) lt->cublasLtMatrixLayoutDestroy(x->d);
  x->desc = NULL;
  x->a = x->b = x->d = NULL;
}

/* ---- the table (under the engine's lock, inside gpu_enter) ------------------------------------------------------------------ */

/* The device's table, with the library opened; NULL when memory is short. */
static gpu_gemms *products_of(gpu_stream *s) {
  gpu_gemms *t = s->device->products;
  if (!t && !(t = s->device->products = calloc(1, sizeof *t))) return NULL;
  if (!t->tried) {
    libraries *l = &s->engine->libraries;
    t->tried = true;
    if (libraries_open(l, LIBRARY_LT) && l->lt.cublasLtCreate(&t->handle) != LT_OK) {
      t->handle = NULL;
      snprintf(l->of[LIBRARY_LT].why, sizeof l->of[LIBRARY_LT].why, "it cannot be started");
    }
    l->of[LIBRARY_LT].stays |= t->handle != NULL;
  }
  return t;
}

static const product *look_up(gpu_stream *s, const device_gemm *p) {
  gpu_gemms *t = products_of(s);
  const cuda_lt *lt = &s->engine->libraries.lt;
  uint64_t at;
  if (!t || !t->handle) return NULL;
  product *x = find(t, p, &at);
  if (x || !(x = calloc(1, sizeof *x))) return x;
  if (!hash_add(&t->table, at, x)) {
    free(x);
    return NULL;
  }
  x->is = *p;
  x->has = make_operation(lt, x) && choose(lt, t->handle, x);
  if (!x->has) drop(lt, x);
  return x;
}

void gpu_gemms_close(gpu_engine *e, gpu_device *d) {
  gpu_gemms *t = d->products;
  const cuda_lt *lt = &e->libraries.lt;
  if (!t) return;
  d->products = NULL;
  for (uint32_t i = 0; i < t->table.cap; i++) {
    product *x = t->table.slots[i].what;
    if (x) drop(lt, x);
    free(x);
  }
  CUcontext old;
  if (t->handle && e->libraries.driver.cuCtxPushCurrent_v2(d->context) == GPU_OK) {
    lt->cublasLtDestroy(t->handle);
    e->libraries.driver.cuCtxPopCurrent_v2(&old);
  }
  hash_free(&t->table);
  free(t);
}

/* ---- device_kernels ----------------------------------------------------------------------------------------------------------- */

const gpu_made *gpu_gemm_made(qn_vm *vm, gpu_stream *s, const device_gemm *p) {
  lt_types t;
  if (vm->tune[TUNE_gpu_portable] || p->batch < 1 || p->batch > INT32_MAX || p->m < 1 || p->n < 1 || p->k < 1 ||
      !types_of(p->dtype, &t))
    return NULL;
  pthread_mutex_lock(&s->engine->lock);
  const product *x = look_up(s, p);
  bool none = s->device->products && !s->device->products->handle;
  pthread_mutex_unlock(&s->engine->lock);
  if (none)
    troubles_tell(&s->engine->troubles, GPU_TROUBLE_LT,
                  "quern: no cuBLASLt (%.150s): matrix products on the GPU are slower kernels of our own",
                  s->engine->libraries.of[LIBRARY_LT].why);
  return x && x->has ? x : NULL;
}

bool gpu_has_gemm(qn_vm *vm, int device, const device_gemm *p) {
  gpu_stream *s = gpu_stream_of(vm, device);
  if (!s) {
    error_clear(vm);
    return false;
  }
  if (!gpu_enter(s)) return false;
  bool has = gpu_gemm_made(vm, s, p) != NULL;
  gpu_leave(s);
  return has;
}

/* Calls the library, in the order of `stream`. */
static cublasStatus_t ask(gpu_stream *s, const product *x, const CUdeviceptr at[3], CUdeviceptr workspace,
                          CUstream stream) {
  static const float one_f32 = 1, zero_f32 = 0;
  static const double one_f64 = 1, zero_f64 = 0;
  bool wide = dtype_size(x->is.dtype) == 8;
  void *a = (void *)(uintptr_t)at[1], *b = (void *)(uintptr_t)at[0], *d = (void *)(uintptr_t)at[2];
  return s->engine->libraries.lt.cublasLtMatmul(s->device->products->handle, x->desc,
                                                wide ? (const void *)&one_f64 : &one_f32, a, x->a, b, x->b,
                                                wide ? (const void *)&zero_f64 : &zero_f32, d, x->d, d, x->d, &x->algo,
                                                (void *)(uintptr_t)workspace, x->workspace, stream);
}

static bool failed(qn_vm *vm, const gpu_stream *s, cublasStatus_t rc) {
  raise_error(vm, E_internal, SPAN_NONE, "gpu(%d): a matrix product failed in cuBLASLt (status %d)", s->number,
              (int)rc);
  return false;
}

/* ---- running them --------------------------------------------------------------------------------------------- */

static size_t operand_bytes(const product *x, int i) {
  const device_gemm *p = &x->is;
  int64_t one = i ? p->k * p->n : p->m * p->k, n = (i ? p->y_step : p->x_step) ? p->batch : 1;
  return (size_t)(one * n) * dtype_size((qn_dtype)p->dtype);
}

static size_t rounded(size_t bytes) { return (bytes + 511) & ~(size_t)511; }

size_t gpu_gemm_scratch(const gpu_made *x, const uint64_t addresses[3]) {
  size_t bytes = rounded(x->workspace);
  for (int i = 0; i < 2; i++)
    if (addresses[i] % ALIGNMENT) bytes += rounded(operand_bytes(x, i));
  return bytes;
}

/* Calls the library with operands at addresses that it takes: others are copied first, behind the workspace in `scratch`. False: *rc or
 * *lt says why. */
static bool ask_with_copies(gpu_stream *s, const product *x, const uint64_t addresses[3], CUdeviceptr scratch,
                            CUstream stream, CUresult *rc, cublasStatus_t *lt) {
  CUdeviceptr at[3] = {addresses[0], addresses[1], addresses[2]}, copy = scratch + rounded(x->workspace);
  *rc = GPU_OK;
  *lt = LT_OK;
  for (int i = 0; i < 2 && *rc == GPU_OK; i++) {
    if (at[i] % ALIGNMENT == 0) continue;
    size_t bytes = operand_bytes(x, i);
    *rc = s->engine->libraries.driver.cuMemcpyDtoDAsync_v2(copy, at[i], bytes, stream);
    at[i] = copy;
    copy += rounded(bytes);
  }
  if (*rc == GPU_OK) *lt = ask(s, x, at, x->workspace ? scratch : 0, stream);
  return *rc == GPU_OK && *lt == LT_OK;
}

bool gpu_gemm_run(qn_vm *vm, gpu_stream *s, const gpu_made *x, const uint64_t addresses[3], CUdeviceptr scratch) {
  CUresult rc;
  cublasStatus_t lt;
  if (ask_with_copies(s, x, addresses, scratch, s->stream, &rc, &lt)) return true;
  return rc != GPU_OK ? gpu_raise(vm, s, rc, "a copy") : failed(vm, s, lt);
}

CUgraph gpu_gemm_capture(gpu_stream *s, const gpu_made *x, const uint64_t addresses[3], CUdeviceptr scratch) {
  const cuda_driver *d = &s->engine->libraries.driver;
  CUgraph graph = NULL;
  CUresult rc;
  cublasStatus_t lt;
  if (!s->capture && d->cuStreamCreate(&s->capture, GPU_STREAM_APART) != GPU_OK) {
    s->capture = NULL;
    return NULL;
  }
  if (d->cuStreamBeginCapture_v2(s->capture, GPU_CAPTURE_RELAXED) != GPU_OK) return NULL;
  bool ok = ask_with_copies(s, x, addresses, scratch, s->capture, &rc, &lt);
  ok = d->cuStreamEndCapture(s->capture, &graph) == GPU_OK &&
       ok; /* ended in any case, so that the stream can be used again */
  if (ok || !graph) return ok ? graph : NULL;
  d->cuGraphDestroy(graph);
  return NULL;
}

/* ---- eager products -------------------------------------------------------------------------------------------------------------- */

device_answer gpu_gemm(qn_vm *vm, int device, const device_gemm *p, void *const buffers[3]) {
  gpu_stream *s = gpu_entered(vm, device, "a matrix product");
  if (!s) return DEVICE_FAILS;
  const product *x = gpu_gemm_made(vm, s, p);
  device_answer answer = x ? DEVICE_FAILS : DEVICE_REFUSES;
  uint64_t at[3];
  for (int i = 0; i < 3; i++) at[i] = (uint64_t)(uintptr_t)buffers[i];
  size_t bytes = x ? gpu_gemm_scratch(x, at) : 0;
  CUdeviceptr scratch = bytes ? gpu_alloc(vm, s, bytes) : 0;
  if (x && (scratch || !bytes) && gpu_gemm_run(vm, s, x, at, scratch)) answer = DEVICE_DONE;
  if (scratch) gpu_free(vm, s, scratch, bytes);
  gpu_leave(s);
  return answer;
}
