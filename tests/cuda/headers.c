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

/* What the types are declared as without the headers. */
#define LIKE(type, ours) _Static_assert(sizeof(type) == sizeof(ours), #type);
LIKE(CUresult, int)
LIKE(CUdevice, int)
LIKE(CUdeviceptr, unsigned long long)
LIKE(CUcontext, void *)
LIKE(CUdevice_attribute, int)
LIKE(nvrtcResult, int)
LIKE(nvrtcProgram, void *)
LIKE(cublasStatus_t, int)
LIKE(cublasLtHandle_t, void *)
