/* The linear recurrence s[i] = a[i] s[i - 1] + b[i] on the device (recurrence.c), a thread a chain, in the order and with the operations of
 * jit/cpu/recurrence.c. */

#define CHAIN(T) \
  { \
    const T *__restrict__ a = (const T *)w.a, *__restrict__ b = (const T *)w.b; \
    T *__restrict__ to = (T *)w.to; \
    T s = to[first] = b[first]; \
    _Pragma("unroll 8") for (i64 i = 1; i < w.n; i++) { \
      const i64 at = first + i * step; \
      const T by = a[w.exclusive ? at - step : at]; \
      s = (by == 0 || s == 0 ? 0 : by * s) + b[at]; \
      to[at] = s; \
    } \
  }

/* Instances: groups of THREADS chains. */
extern "C" __global__ void k7265637572726e63_0(const u64 *block, i64 instances, const __grid_constant__ recurrence_words w) {
  (void)block;
  for (i64 g = blockIdx.x; g < instances; g += gridDim.x) {
    const i64 c = g * THREADS + threadIdx.x;
    if (c < w.chains) {
      const i64 outer = c / w.inner, step = w.reverse ? -w.inner : w.inner;
      const i64 first = outer * (w.n * w.inner) + (c - outer * w.inner) + (w.reverse ? (w.n - 1) * w.inner : 0);
      if (w.wide)
        CHAIN(double)
      else
        CHAIN(float)
    }
  }
}
