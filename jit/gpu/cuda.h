/* The few types, constants and functions of CUDA that are used, declared here so that no header of CUDA is needed to build:
 * every library is opened at run time (libraries.c). tests/cuda/headers.c compares this file with the real headers where these
 * are installed; it defines CUDA_TYPES_GIVEN and brings the types.
 *
 * DRIVER, NVRTC, LT rows: (result, name, parameters). Names of the driver are those of the versions that are called. */
#ifndef JIT_GPU_CUDA_H
#define JIT_GPU_CUDA_H

#include <stddef.h>
#include <stdint.h>

#ifndef CUDA_TYPES_GIVEN
typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUkern_st *CUkernel;
typedef struct CUDA_KERNEL_NODE_PARAMS_v2_st {
  CUfunction func;
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  void **kernelParams, **extra;
  CUkernel kern;
  CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS_v2;
typedef int CUdevice_attribute;
typedef int CUfunction_attribute;
typedef int CUstreamCaptureMode;
typedef int nvrtcResult;
typedef struct _nvrtcProgram *nvrtcProgram;
typedef int cublasStatus_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef int cublasComputeType_t;
typedef int cudaDataType;
typedef int cublasLtMatmulDescAttributes_t;
typedef int cublasLtMatrixLayoutAttribute_t;
typedef int cublasLtMatmulPreferenceAttributes_t;
typedef struct cublasLtMatmulDescOpaque_t *cublasLtMatmulDesc_t;
typedef struct cublasLtMatrixLayoutOpaque_t *cublasLtMatrixLayout_t;
typedef struct cublasLtMatmulPreferenceOpaque_t *cublasLtMatmulPreference_t;
typedef struct cublasLtMatmulAlgo_t {
  uint64_t data[8];
} cublasLtMatmulAlgo_t;
typedef struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
} cublasLtMatmulHeuristicResult_t;
typedef struct CUstream_st *cudaStream_t;
#endif

/* CUDA_CONSTANT(ours, real, value) */
#define CUDA_LT_CONSTANTS(X)                                                                                           \
  X(LT_OK, CUBLAS_STATUS_SUCCESS, 0)                                                                                   \
  X(LT_OP_N, CUBLAS_OP_N, 0)                                                                                           \
  X(LT_OP_T, CUBLAS_OP_T, 1)                                                                                           \
  X(LT_F32, CUDA_R_32F, 0)                                                                                             \
  X(LT_F64, CUDA_R_64F, 1)                                                                                             \
  X(LT_F16, CUDA_R_16F, 2)                                                                                             \
  X(LT_BF16, CUDA_R_16BF, 14)                                                                                          \
  X(LT_COMPUTE_F32, CUBLAS_COMPUTE_32F, 68)                                                                            \
  X(LT_COMPUTE_F64, CUBLAS_COMPUTE_64F, 70)                                                                            \
  X(LT_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA, 3)                                                                    \
  X(LT_DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB, 4)                                                                    \
  X(LT_LAYOUT_BATCH, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 5)                                                            \
  X(LT_LAYOUT_STEP, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 6)                                                    \
  X(LT_PREF_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)                                                    \
  X(LT_PREF_REDUCTIONS, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3)                                                 \
  X(LT_PREF_ALIGN_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5)                                                    \
  X(LT_PREF_ALIGN_B, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6)                                                    \
  X(LT_PREF_ALIGN_C, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7)                                                    \
  X(LT_PREF_ALIGN_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8)                                                    \
  X(LT_REDUCTION_APART, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2)

#define CUDA_CONSTANTS(X)                                                                                              \
  X(GPU_OK, CUDA_SUCCESS, 0)                                                                                           \
  X(GPU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY, 2)                                                                    \
  X(GPU_LINK_LIBRARY, CUDA_ERROR_FAKE_LIBRARY, 34)                                                                     \
  X(GPU_NO_DEVICE, CUDA_ERROR_NO_DEVICE, 100)                                                                          \
  X(GPU_NOT_READY, CUDA_ERROR_NOT_READY, 600)                                                                          \
  X(GPU_HOST_MAPPED, CU_MEMHOSTALLOC_DEVICEMAP, 2)                                                                     \
  X(GPU_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)                                                 \
  X(GPU_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)                                            \
  X(GPU_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)                                            \
  X(GPU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED, 2)                                                            \
  X(GPU_STREAM_APART, CU_STREAM_NON_BLOCKING, 1)                                                                       \
  X(GPU_MOST_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 8)                                               \
  X(GPU_EVENT_NO_TIMES, CU_EVENT_DISABLE_TIMING, 2)

enum {
#define CUDA_CONSTANT(ours, real, value) ours = value,
  CUDA_CONSTANTS(CUDA_CONSTANT) CUDA_LT_CONSTANTS(CUDA_CONSTANT)
#undef CUDA_CONSTANT
};

#define CUDA_DRIVER(X)                                                                                                 \
  X(CUresult, cuInit, (unsigned flags))                                                                                \
  X(CUresult, cuDriverGetVersion, (int *version))                                                                      \
  X(CUresult, cuGetErrorString, (CUresult error, const char **text))                                                   \
  X(CUresult, cuDeviceGetCount, (int *count))                                                                          \
  X(CUresult, cuDeviceGet, (CUdevice * device, int ordinal))                                                           \
  X(CUresult, cuDeviceGetName, (char *name, int len, CUdevice device))                                                 \
  X(CUresult, cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device))                       \
  X(CUresult, cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device))                                                  \
  X(CUresult, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                        \
  X(CUresult, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                                         \
  X(CUresult, cuCtxPushCurrent_v2, (CUcontext context))                                                                \
  X(CUresult, cuCtxPopCurrent_v2, (CUcontext * context))                                                               \
  X(CUresult, cuMemAlloc_v2, (CUdeviceptr * data, size_t bytes))                                                       \
  X(CUresult, cuMemFree_v2, (CUdeviceptr data))                                                                        \
  X(CUresult, cuMemHostAlloc, (void **data, size_t bytes, unsigned flags))                                             \
  X(CUresult, cuMemFreeHost, (void *data))                                                                             \
  X(CUresult, cuMemHostGetDevicePointer_v2, (CUdeviceptr * there, void *data, unsigned flags))                         \
  X(CUresult, cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))                 \
  X(CUresult, cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream))                       \
  X(CUresult, cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                 \
  X(CUresult, cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t n, CUstream stream))                       \
  X(CUresult, cuStreamCreate, (CUstream * stream, unsigned flags))                                                     \
  X(CUresult, cuStreamDestroy_v2, (CUstream stream))                                                                   \
  X(CUresult, cuStreamSynchronize, (CUstream stream))                                                                  \
  X(CUresult, cuStreamQuery, (CUstream stream))                                                                        \
  X(CUresult, cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode))                                    \
  X(CUresult, cuStreamEndCapture, (CUstream stream, CUgraph * graph))                                                  \
  X(CUresult, cuEventCreate, (CUevent * event, unsigned flags))                                                        \
  X(CUresult, cuEventDestroy_v2, (CUevent event))                                                                      \
  X(CUresult, cuEventRecord, (CUevent event, CUstream stream))                                                         \
  X(CUresult, cuEventQuery, (CUevent event))                                                                           \
  X(CUresult, cuModuleLoadData, (CUmodule * module, const void *image))                                                \
  X(CUresult, cuModuleUnload, (CUmodule module))                                                                       \
  X(CUresult, cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name))                         \
  X(CUresult, cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value))                    \
  X(CUresult, cuLaunchKernel,                                                                                          \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,       \
     unsigned block_z, unsigned shared, CUstream stream, void **arguments, void **extra))                              \
  X(CUresult, cuGraphCreate, (CUgraph * graph, unsigned flags))                                                        \
  X(CUresult, cuGraphDestroy, (CUgraph graph))                                                                         \
  X(CUresult, cuGraphAddKernelNode_v2,                                                                                 \
    (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t nafter,                                       \
     const CUDA_KERNEL_NODE_PARAMS_v2 *what))                                                                          \
  X(CUresult, cuGraphAddChildGraphNode,                                                                                \
    (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t nafter, CUgraph child))                       \
  X(CUresult, cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags))              \
  X(CUresult, cuGraphLaunch, (CUgraphExec exec, CUstream stream))                                                      \
  X(CUresult, cuGraphExecDestroy, (CUgraphExec exec))

#define CUDA_NVRTC(X)                                                                                                  \
  X(nvrtcResult, nvrtcVersion, (int *major, int *minor))                                                               \
  X(nvrtcResult, nvrtcCreateProgram,                                                                                   \
    (nvrtcProgram * program, const char *text, const char *name, int nheaders, const char *const *headers,             \
     const char *const *names))                                                                                        \
  X(nvrtcResult, nvrtcDestroyProgram, (nvrtcProgram * program))                                                        \
  X(nvrtcResult, nvrtcCompileProgram, (nvrtcProgram program, int noptions, const char *const *options))                \
  X(nvrtcResult, nvrtcGetProgramLogSize, (nvrtcProgram program, size_t * bytes))                                       \
  X(nvrtcResult, nvrtcGetProgramLog, (nvrtcProgram program, char *text))                                               \
  X(nvrtcResult, nvrtcGetCUBINSize, (nvrtcProgram program, size_t * bytes))                                            \
  X(nvrtcResult, nvrtcGetCUBIN, (nvrtcProgram program, char *cubin))

#define CUDA_LT(X)                                                                                                     \
  X(size_t, cublasLtGetVersion, (void))                                                                                \
  X(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle))                                                       \
  X(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle))                                                        \
  X(cublasStatus_t, cublasLtMatmulDescCreate,                                                                          \
    (cublasLtMatmulDesc_t * desc, cublasComputeType_t compute, cudaDataType scale))                                    \
  X(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc))                                            \
  X(cublasStatus_t, cublasLtMatmulDescSetAttribute,                                                                    \
    (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attr, const void *value, size_t bytes))                 \
  X(cublasStatus_t, cublasLtMatrixLayoutCreate,                                                                        \
    (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld))                    \
  X(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout))                                      \
  X(cublasStatus_t, cublasLtMatrixLayoutSetAttribute,                                                                  \
    (cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attr, const void *value, size_t bytes))            \
  X(cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference))                         \
  X(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference))                          \
  X(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,                                                              \
    (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attr, const void *value,              \
     size_t bytes))                                                                                                    \
  X(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,                                                                    \
    (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,           \
     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,            \
     cublasLtMatmulHeuristicResult_t *results, int *found))                                                            \
  X(cublasStatus_t, cublasLtMatmul,                                                                                    \
    (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,                             \
     cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout, const void *beta, const void *c, \
     cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,      \
     void *workspace, size_t bytes, cudaStream_t stream))

#define CUDA_POINTER(result, name, parameters) result(*name) parameters;
typedef struct cuda_driver {
  CUDA_DRIVER(CUDA_POINTER)
} cuda_driver;
typedef struct cuda_nvrtc {
  CUDA_NVRTC(CUDA_POINTER)
  /* NULL if NVRTC is too old for it. Sets a function that is called now and then while compiling, which ends when that gives 1. */
  nvrtcResult (*nvrtcSetFlowCallback)(nvrtcProgram program, int (*stop)(void *context, void *), void *context);
} cuda_nvrtc;
typedef struct cuda_lt {
  CUDA_LT(CUDA_POINTER)
} cuda_lt;
#undef CUDA_POINTER

#endif
