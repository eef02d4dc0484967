/* What stands in front of the kernels of our own (texts.c), before words.h. The texts are embedded in the library and compiled by NVRTC,
 * without any header. */
#define GPU_TEXT
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned u32;
typedef long long i64;
typedef unsigned long long u64;

#define FN static __device__ __forceinline__

/* sums[t] = the sum of `own` of threads 0 .. t, for a shared array of THREADS numbers. A barrier is due before the array is written again. */
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

