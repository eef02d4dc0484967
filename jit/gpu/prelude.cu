/* What stands in front of kernels of our own, before words.h. They need no header: the texts are embedded in the library, and compiled by
 * NVRTC. */
#define GPU_TEXT
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned u32;
typedef long long i64;
typedef unsigned long long u64;

#define FN static __device__ __forceinline__

/* sums[t], of an array of THREADS numbers: the sum of what threads 0 .. t have as `own`. A barrier is due before it is used again. */
#define SUM_UP(sums, own) \
  { \
    sums[threadIdx.x] = own; \
    __syncthreads(); \
    for (u32 h = 1; h < THREADS; h *= 2) { \
      const i64 left = threadIdx.x >= h ? sums[threadIdx.x - h] : 0; \
      __syncthreads(); \
      sums[threadIdx.x] += left; \
      __syncthreads(); \
    } \
  }

