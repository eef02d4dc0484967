/* Compiled only, where CUDA's own headers are: the types, constants and prototypes of jit/gpu/cuda.h are theirs. */
#include <cublasLt.h>
#include <cuda.h>
#include <nvrtc.h>

#define CUDA_TYPES_GIVEN
#include "jit/gpu/cuda.h"

#define SAME(result, name, parameters)                                                                                 \
  _Static_assert(__builtin_types_compatible_p(__typeof__(&name), result(*) parameters), #name);
CUDA_DRIVER(SAME)
CUDA_NVRTC(SAME)
CUDA_LT(SAME)

#define VALUE(ours, real, value) _Static_assert((int)(real) == (value), #real);
CUDA_CONSTANTS(VALUE)
CUDA_LT_CONSTANTS(VALUE)

/* What the types are declared as without the headers. */
#define LIKE(type, ours) _Static_assert(sizeof(type) == sizeof(ours), #type);
LIKE(CUresult, int)
LIKE(CUdevice, int)
LIKE(CUdeviceptr, unsigned long long)
LIKE(CUcontext, void *)
LIKE(CUdevice_attribute, int)
LIKE(CUfunction_attribute, int)
LIKE(CUstreamCaptureMode, int)
LIKE(nvrtcResult, int)
LIKE(nvrtcProgram, void *)
LIKE(cublasStatus_t, int)
LIKE(cublasLtHandle_t, void *)
LIKE(cublasComputeType_t, int)
LIKE(cudaDataType, int)
LIKE(cublasLtMatmulDescAttributes_t, int)
LIKE(cublasLtMatrixLayoutAttribute_t, int)
LIKE(cublasLtMatmulPreferenceAttributes_t, int)
LIKE(cublasLtMatmulDesc_t, void *)
LIKE(cublasLtMatrixLayout_t, void *)
LIKE(cublasLtMatmulPreference_t, void *)
LIKE(cublasLtMatmulAlgo_t, uint64_t[8])
LIKE(cudaStream_t, CUstream)
_Static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == 96 &&
                   __builtin_offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) == 64 &&
                   __builtin_offsetof(cublasLtMatmulHeuristicResult_t, state) == 72,
               "cublasLtMatmulHeuristicResult_t");
LIKE(
    CUDA_KERNEL_NODE_PARAMS_v2, struct {
      void *func;
      unsigned numbers[7];
      void *pointers[4];
    })
