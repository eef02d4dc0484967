/* The block VM on the device: one kernel that interprets phases of L programs, as block_vm.c has translated them. The text is embedded in
 * the library and compiled by NVRTC, behind definitions that block_vm_text.c prints: the types and primitives of printed kernels, the
 * numbers and tables of block_vm_ops.def, and lists (VM_FOLDS .. VM_TILES) of every primitive and function for the dtypes of a class.
 *
 * A block of 64 threads runs one instance at a time, and all of its threads run the same instructions. Index values and uniform values are
 * cells in shared memory, and all threads write the same to them; the instructions lie behind them. A cell changes only where a loop goes
 * back, between barriers. Vector values are registers, some strips of 64 elements in shared memory; element t of each strip is thread t's,
 * so that elementwise instructions need no barrier. Thread t is lane t of a reduction with one result. Accumulators and locals are places in shared memory while they
 * are small, else in the block's piece of scratch. Orders and details are those of the CUDA printer (jit/kernel/emit_cuda.c). */

#define AT(T, o) ((T *)((char *)shared_ + ((o) & VM_VECTOR ? regs + (((o) & 0x7fff) << 6) + t * (int)sizeof(T) : (o) * 8)))
#define STEP(o) (((int)(o) >> 15) * 64)
#define WIDTH(o) ((o) & VM_VECTOR ? nu : 1)
#define CELL(o) ((i64)shared_[o])
#define OP_D ((u32)(w0 >> 16) & 0xffff)
#define OP_A ((u32)(w0 >> 32) & 0xffff)
#define OP_B ((u32)(w0 >> 48))
#define OP_C ((u32)w1 & 0xffff)
#define OP_E ((u32)(w1 >> 16) & 0xffff)
#define OP_F ((u32)(w1 >> 32) & 0xffff)
#define OP_G ((u32)(w1 >> 48))

#define ROLLED _Pragma("unroll 1")

/* ---- elements as words ---- */

FN_SLOW u64 vm_get(u64 p, i64 i, int size) {
  switch (size) {
  case 1: return ((const u8 *)p)[i];
  case 2: return ((const u16 *)p)[i];
  case 4: return ((const u32 *)p)[i];
  default: return ((const u64 *)p)[i];
  }
}
FN_SLOW void vm_put(u64 p, i64 i, int size, u64 x) {
  switch (size) {
  case 1: ((u8 *)p)[i] = (u8)x; break;
  case 2: ((u16 *)p)[i] = (u16)x; break;
  case 4: ((u32 *)p)[i] = (u32)x; break;
  default: ((u64 *)p)[i] = x; break;
  }
}

/* f(a, b) for any function of reductions and updates; f: its number (VM_PRIMS). */
FN_SLOW u64 vm_fold(int f, u64 a, u64 b) {
  switch (f) {
#define X(N, T, F) case N: return BITS_##T(F(FROM_##T(a), FROM_##T(b)));
    VM_FOLDS(X)
#undef X
#define X(N, IN, OUT, F) case N: return OUT(F(IN((u16)a), IN((u16)b)));
    VM_HALVES(X)
#undef X
  default: return 0;
  }
}
/* s + a b, as order DOT computes it */
FN_SLOW u64 vm_dot(int dtype, u64 a, u64 b, u64 s) {
  switch (dtype) {
#define X(N, T) case N: return BITS_##T(DOT_##T(FROM_##T(a), FROM_##T(b), FROM_##T(s)));
    VM_DOTS(X)
#undef X
  default: return 0;
  }
}
/* For argmax and argmin: 1 if a is better than b, 0 if they are equally good, else -1. */
FN_SLOW int vm_order(int f, u64 a, u64 b) {
  switch (f) {
#define X(N, T, OP) \
  case N: { \
    const T x = FROM_##T(a), y = FROM_##T(b); \
    if ((x OP y) | ((x != x) & (y == y))) return 1; \
    return (x == y) | ((x != x) & (y != y)) ? 0 : -1; \
  }
    VM_ORDERS(X)
#undef X
  default: return -1;
  }
}
/* Does value x replace the best one, whose index is i (below 0: none yet)? */
FN_SLOW b8 vm_better(int f, u64 x, u64 best, i64 i) { return i < 0 || vm_order(f, x, best) == 1; }
/* Does value x with index i win over `best` with index i2? It does if it is better, or as good with the lower index; below 0: there is none. */
FN_SLOW b8 vm_before(int f, u64 x, i64 i, u64 best, i64 i2) {
  if (i < 0) return 0;
  if (i2 < 0) return 1;
  const int order = vm_order(f, x, best);
  return order == 1 || (order == 0 && i < i2);
}
/* The identity of f; `zero`: the first value of an exclusive scan instead. */
FN_SLOW u64 vm_identity(int f, b8 zero) {
  switch (f) {
#define X(N, T, ID, ZERO) case N: return zero ? BITS_##T(ZERO) : BITS_##T(ID);
    VM_IDENTITIES(X)
#undef X
  default: return 0;
  }
}

/* ---- accumulators ---- */

#define ACC_CELLS shared_[a->cells]
#define HAS(flag) (a->flags & (flag))

/* Chain r becomes leaf number `leaves` of its tree, and is empty again. */
FN_SLOW void vm_leaf(const u64 *shared_, const bvm_acc *a, i64 r, u64 leaves) {
  const u64 tree = shared_[a->tree];
  const i64 width = HAS(VMF_LANES) ? 64 : (i64)shared_[a->results];
  u64 x = vm_get(ACC_CELLS, r, a->size);
  i64 at = r;
  ROLLED for (; leaves & 1; leaves >>= 1, at += width) x = vm_fold(a->fold, vm_get(tree, at, a->size), x);
  vm_put(tree, at, a->size, x);
  vm_put(ACC_CELLS, r, a->size, vm_identity(a->fold, 0));
}

/* Leaves result r (or lane r of the one result) in chain r. */
FN_SLOW void vm_root(const u64 *shared_, const bvm_acc *a, i64 r) {
  const i64 width = HAS(VMF_LANES) ? 64 : (i64)shared_[a->results];
  const u64 cells = ACC_CELLS, tree = shared_[a->tree], k = shared_[a->k];
  const u64 nothing = vm_identity(a->fold, HAS(VMF_DOT) != 0);
  if (HAS(VMF_OWN)) {
    if (!k) vm_put(cells, r, a->size, nothing);
    ROLLED for (i64 h = 32; h > 0; h >>= 1)
      ROLLED for (i64 l = 0; l < h && l + h < (i64)k; l++)
        vm_put(cells, l * width + r, a->size,
               vm_fold(a->fold, vm_get(cells, l * width + r, a->size), vm_get(cells, (l + h) * width + r, a->size)));
  } else if (HAS(VMF_TREE)) {
    u64 x = nothing, count = k / a->chain;
    if (k % a->chain) vm_leaf(shared_, a, r, count++);
    if (count) {
      i64 at = r;
      ROLLED for (; !(count & 1); count >>= 1) at += width;
      x = vm_get(tree, at, a->size);
      ROLLED while (count >>= 1) {
        at += width;
        if (count & 1) x = vm_fold(a->fold, vm_get(tree, at, a->size), x);
      }
    }
    vm_put(cells, r, a->size, x);
  }
}

/* vm_root of all results, once. */
static __device__ __noinline__ void vm_whole_root(u64 *shared_, const bvm_acc *a) {
  const int t = threadIdx.x;
  if (shared_[a->done]) return;
  SYNC
  if (HAS(VMF_TREE | VMF_OWN)) {
    if (HAS(VMF_MANY))
      ROLLED for (i64 r = t; r < (i64)shared_[a->results]; r += 64) vm_root(shared_, a, r);
    else if (HAS(VMF_LANES) || t == 0)
      vm_root(shared_, a, t);
  }
  SYNC
  if (t == 0) shared_[a->done] = 1;
  SYNC
}

/* After vm_whole_root of one result: folds its 64 lanes to one, in chain 0, once. */
static __device__ __noinline__ void vm_lanes(u64 *shared_, const bvm_acc *a) {
  const int t = threadIdx.x;
  const u64 cells = ACC_CELLS, index = shared_[a->index];
  if (!HAS(VMF_LANES) || shared_[a->done] == 2) return;
  SYNC
  ROLLED for (int h = 32; h > 0; h >>= 1) {
    if (t < h && HAS(VMF_ARG)) {
      const u64 x = vm_get(cells, t + h, a->size), best = vm_get(cells, t, a->size);
      if (vm_before(a->fold, x, (i64)vm_get(index, t + h, 8), best, (i64)vm_get(index, t, 8))) {
        vm_put(cells, t, a->size, x);
        vm_put(index, t, 8, vm_get(index, t + h, 8));
      }
    } else if (t < h) {
      vm_put(cells, t, a->size, vm_fold(a->fold, vm_get(cells, t, a->size), vm_get(cells, t + h, a->size)));
    }
    SYNC
  }
  if (t == 0) shared_[a->done] = 2;
  SYNC
}

/* The instruction ACC: nothing has been pushed. */
static __device__ __noinline__ void vm_empty(u64 *shared_, const bvm_acc *a) {
  const int t = threadIdx.x;
  const u64 id = vm_identity(a->fold, 0), zero = vm_identity(a->fold, 1);
  const i64 results = HAS(VMF_LANES) ? 64 : (i64)shared_[a->results], states = (i64)shared_[a->results];
  SYNC
  ROLLED for (i64 r = t; r < results && !HAS(VMF_OWN); r += 64) {
    vm_put(ACC_CELLS, r, a->size, id);
    if (HAS(VMF_ARG)) vm_put(shared_[a->index], r, 8, ~0ull);
  }
  ROLLED for (i64 r = t; r < states && HAS(VMF_SCANNED); r += 64) {
    vm_put(shared_[a->c], r, a->size, id);
    vm_put(shared_[a->g], r, a->size, id);
    vm_put(shared_[a->b], r, a->size, id);
    vm_put(shared_[a->p], r, a->size, zero);
  }
  if (t == 0) shared_[a->k] = shared_[a->done] = 0;
  SYNC
}

/* argmax, argmin: pushes value x with index k to chain r. */
FN_SLOW void vm_arg(const u64 *shared_, const bvm_acc *a, i64 r, u64 x, i64 k) {
  if (!vm_better(a->fold, x, vm_get(ACC_CELLS, r, a->size), (i64)vm_get(shared_[a->index], r, 8))) return;
  vm_put(ACC_CELLS, r, a->size, x);
  vm_put(shared_[a->index], r, 8, (u64)k);
}

/* A PUSH outside VECs, by all threads. VM_COUNT counts it afterwards. */
static __device__ __noinline__ void vm_push(const u64 *shared_, const bvm_acc *a, u64 x, u64 times, i64 k) {
  const int t = threadIdx.x;
  const u64 n = shared_[a->k];
  const b8 lanes = HAS(VMF_LANES) != 0;
  const int r = lanes ? t : 0;
  if (lanes ? (int)(n & 63) == t : t == 0) {
    if (HAS(VMF_ARG))
      vm_arg(shared_, a, r, x, k);
    else if (HAS(VMF_DOT))
      vm_put(ACC_CELLS, r, a->size, vm_dot(a->fold & 15, x, times, vm_get(ACC_CELLS, r, a->size)));
    else
      vm_put(ACC_CELLS, r, a->size, vm_fold(a->fold, vm_get(ACC_CELLS, r, a->size), x));
  }
  if (HAS(VMF_TREE) && (n + 1) % a->chain == 0 && (lanes || t == 0)) vm_leaf(shared_, a, r, n / a->chain);
}

static __device__ __noinline__ void vm_partial(u64 *shared_, const bvm_acc *a, u64 to, i64 at, u64 index, i64 iat) {
  const int t = threadIdx.x;
  vm_whole_root(shared_, a);
  if (!HAS(VMF_INNER)) vm_lanes(shared_, a);
  const i64 results = HAS(VMF_MANY) ? (i64)shared_[a->results] : HAS(VMF_INNER) ? 64 : 1;
  SYNC
  ROLLED for (i64 r = t; r < results; r += 64) {
    vm_put(to, at + r, a->size, vm_get(ACC_CELLS, r, a->size));
    if (HAS(VMF_ARG)) vm_put(index, iat + r, 8, vm_get(shared_[a->index], r, 8));
  }
  SYNC
}

static __device__ __noinline__ void vm_merge(u64 *shared_, const bvm_acc *a, u64 from, i64 at, u64 index, i64 iat) {
  const int t = threadIdx.x;
  const i64 results = HAS(VMF_MANY) ? (i64)shared_[a->results] : HAS(VMF_INNER) ? 64 : 1;
  const u64 cells = ACC_CELLS;
  SYNC
  ROLLED for (i64 r = t; r < results; r += 64) {
    const u64 x = vm_get(from, at + r, a->size);
    if (HAS(VMF_ARG)) {
      const i64 i = (i64)vm_get(index, iat + r, 8);
      if (vm_before(a->fold, x, i, vm_get(cells, r, a->size), (i64)vm_get(shared_[a->index], r, 8))) {
        vm_put(cells, r, a->size, x);
        vm_put(shared_[a->index], r, 8, (u64)i);
      }
    } else if (HAS(VMF_TREE)) {
      vm_put(cells, r, a->size, x);
      vm_leaf(shared_, a, r, shared_[a->k]);
    } else {
      vm_put(cells, r, a->size, vm_fold(a->fold, vm_get(cells, r, a->size), x));
    }
  }
  SYNC
  if (t == 0) shared_[a->k]++;
  SYNC
}

/* SCAN with one result, for a strip of m elements, the first of which is number s: y is the thread's element, and its running value is
 * returned. */
static __device__ __noinline__ u64 vm_scan(const u64 *shared_, const bvm_acc *a, u64 *x_, u64 y, i64 s, int m, b8 exclusive) {
  const int t = threadIdx.x, f = a->fold, size = a->size;
  const u64 c = vm_get(shared_[a->c], 0, size), g = vm_get(shared_[a->g], 0, size), b = vm_get(shared_[a->b], 0, size),
            p = vm_get(shared_[a->p], 0, size);
  SYNC
  x_[t] = y;
  SYNC
  if (a->order == 1) {
    u64 chain = c, before = g;
    ROLLED for (int l = 0; l < m; l++, s++) {
      chain = s % 64 ? vm_fold(f, chain, x_[l]) : x_[l];
      const u64 z = s >= 64 ? vm_fold(f, before, chain) : chain;
      if (s % 64 == 63) before = z;
      if (l == t) y = z;
    }
    if (t == 0) {
      vm_put(shared_[a->c], 0, size, chain);
      vm_put(shared_[a->g], 0, size, before);
    }
  } else {
    ROLLED for (int h = 1; h < 64; h <<= 1) {
      const u64 z = t >= h ? vm_fold(f, x_[t - h], y) : y;
      SYNC
      x_[t] = y = z;
      SYNC
    }
    if (a->order == 4 ? s > 0 : s % 4096 >= 64) y = vm_fold(f, g, y);
    SYNC
    x_[t] = y;
    SYNC
    const u64 last = x_[m - 1];
    if (a->order == 0 && s >= 4096) y = vm_fold(f, b, y);
    if (t == 0) {
      vm_put(shared_[a->g], 0, size, last);
      if (a->order == 0 && (s + m) % 4096 == 0) vm_put(shared_[a->b], 0, size, s >= 4096 ? vm_fold(f, b, last) : last);
    }
  }
  SYNC
  x_[t] = y;
  SYNC
  if (!exclusive) return y;
  y = t ? x_[t - 1] : p;
  if (t == 0) vm_put(shared_[a->p], 0, size, x_[m - 1]);
  return y;
}

/* SCAN with many results: y is element number s of result r. Returns its running value. */
static __device__ __noinline__ u64 vm_scans(const u64 *shared_, const bvm_acc *a, i64 r, u64 y, i64 s, b8 exclusive) {
  const int f = a->fold, size = a->size;
  const i64 width = (i64)shared_[a->results];
  const u64 c = shared_[a->c], g = shared_[a->g], b = shared_[a->b], h = shared_[a->h];
  if (a->order == 0) {
    const i64 i = s % 64;
    ROLLED for (int d = 0; d < 6; d++) {
      vm_put(h, (d * 64 + i) * width + r, size, y);
      if (i >= 1 << d) y = vm_fold(f, vm_get(h, (d * 64 + i - (1 << d)) * width + r, size), y);
    }
    if (s % 4096 >= 64) y = vm_fold(f, vm_get(g, r, size), y);
    const u64 z = y;
    if (s >= 4096) y = vm_fold(f, vm_get(b, r, size), y);
    if (s % 64 == 63) vm_put(g, r, size, z);
    if (s % 4096 == 4095) vm_put(b, r, size, y);
  } else if (a->order == 1) {
    if (s % 64) y = vm_fold(f, vm_get(c, r, size), y);
    vm_put(c, r, size, y);
    if (s >= 64) y = vm_fold(f, vm_get(g, r, size), y);
    if (s % 64 == 63) vm_put(g, r, size, y);
  } else {
    y = vm_fold(f, vm_get(c, r, size), y);
    vm_put(c, r, size, y);
  }
  if (!exclusive) return y;
  const u64 before = vm_get(shared_[a->p], r, size);
  vm_put(shared_[a->p], r, size, y);
  return before;
}

/* ---- the interpreter ---- */

/* Each elementwise function is a device function: so hundreds of them are compiled in seconds and not minutes. They work on four strips at
 * a time, so that loads overlap; strips behind the last one may be computed, too. */
#define STRIPS4 ROLLED for (int u = 0; u < m; u += 4)
/* w0, w1: the instruction; pushes and tiles are given the address of their description as w1. j0: the pass's first element in its VEC, which
 * has n. nu: strips of the pass. on: which of the thread's elements are active, a bit for each strip. */
typedef void (*vm_function)(u64 w0, u64 w1, int regs, int t, int nu, int pass, i64 j0, i64 n, u32 on, u8 *on_);
#define FUNCTION(N, BODY) \
  static __device__ __noinline__ void vm_##N(u64 w0, u64 w1, int regs, int t, int nu, int pass, i64 j0, i64 n, u32 on, u8 *on_) { \
    extern __shared__ u64 shared_[]; \
    BODY \
  }
/* Four elements in variables of their own: arrays would become memory. */
#define GET4(T, x, from, step) const T x##0 = from[0], x##1 = from[step], x##2 = from[2 * step], x##3 = from[3 * step];
#define PUT4(to, step, a, b, c, d) to[0] = a; to[step] = b; to[2 * step] = c; to[3 * step] = d;
#define BODY1(T, R, F) \
  const T *x = AT(T, OP_A); R *z = AT(R, OP_D); \
  const int sx = STEP(OP_A), sz = STEP(OP_D), m = WIDTH(OP_D); \
  STRIPS4 { \
    GET4(T, x, x, sx) \
    PUT4(z, sz, F(x0), F(x1), F(x2), F(x3)) \
    x += 4 * sx; z += 4 * sz; \
  }
#define BODY2(T, R, F) \
  const T *x = AT(T, OP_A), *y = AT(T, OP_B); R *z = AT(R, OP_D); \
  const int sx = STEP(OP_A), sy = STEP(OP_B), sz = STEP(OP_D), m = WIDTH(OP_D); \
  STRIPS4 { \
    GET4(T, x, x, sx) GET4(T, y, y, sy) \
    PUT4(z, sz, F(x0, y0), F(x1, y1), F(x2, y2), F(x3, y3)) \
    x += 4 * sx; y += 4 * sy; z += 4 * sz; \
  }
#define BODY3(C, T, F) \
  const C *w = AT(C, OP_A); const T *x = AT(T, OP_B), *y = AT(T, OP_C); T *z = AT(T, OP_D); \
  const int sw = STEP(OP_A), sx = STEP(OP_B), sy = STEP(OP_C), sz = STEP(OP_D), m = WIDTH(OP_D); \
  STRIPS4 { \
    GET4(C, v, w, sw) GET4(T, x, x, sx) GET4(T, y, y, sy) \
    PUT4(z, sz, F(v0, x0, y0), F(v1, x1, y1), F(v2, x2, y2), F(v3, x3, y3)) \
    w += 4 * sw; x += 4 * sx; y += 4 * sy; z += 4 * sz; \
  }
#define SLOW1(T, R, F) \
  const T *const x = AT(T, OP_A); R *const z = AT(R, OP_D); \
  const int sx = STEP(OP_A), sz = STEP(OP_D), m = WIDTH(OP_D); \
  ROLLED for (int u = 0; u < m; u++) z[u * sz] = F(x[u * sx]);
#define SLOW2(T, R, F) \
  const T *const x = AT(T, OP_A), *const y = AT(T, OP_B); R *const z = AT(R, OP_D); \
  const int sx = STEP(OP_A), sy = STEP(OP_B), sz = STEP(OP_D), m = WIDTH(OP_D); \
  ROLLED for (int u = 0; u < m; u++) z[u * sz] = F(x[u * sx], y[u * sy]);
#define X(N, T, R, F) FUNCTION(N, BODY1(T, R, F))
VM_OPS1(X)
#undef X
#define X(N, T, R, F) FUNCTION(N, BODY2(T, R, F))
VM_OPS2(X)
#undef X
#define X(N, C, T, F) FUNCTION(N, BODY3(C, T, F))
VM_OPS3(X)
#undef X
#define X(N, T, R, F) FUNCTION(N, SLOW1(T, R, F))
VM_SLOW1(X)
#undef X
#define X(N, T, R, F) FUNCTION(N, SLOW2(T, R, F))
VM_SLOW2(X)
#undef X
/* The cases of an instruction for elements of every size. */
#define EACH_SIZE(CASE, N, ...) \
  CASE(N##1, u8, __VA_ARGS__) CASE(N##2, u16, __VA_ARGS__) CASE(N##4, u32, __VA_ARGS__) CASE(N##8, u64, __VA_ARGS__)
#define CASE1(N, T, _) case N: { BODY1(T, T, VM_SAME) break; }
#define CASE3(N, T, _) case N: { BODY3(u8, T, VM_CHOICE) break; }
#define CASE_KEEP(N, U, _) \
  case N: { \
    const U *const x = AT(U, OP_A); U *const z = AT(U, OP_D); \
    const int sx = STEP(OP_A); \
    for (int u = 0; u < nu; u++) if (active >> u & 1) z[u * 64] = x[u * sx]; \
    break; \
  }
#define CASE_IOTA(N, U, TEST) \
  case N: { \
    U *const z = AT(U, OP_D); \
    const int sz = STEP(OP_D), m = WIDTH(OP_D); \
    const i64 from = CELL(OP_A) + CELL(OP_B) * j, step = CELL(OP_B) * 64; \
    for (int u = 0; u < m; u++) z[u * sz] = (U)((from + u * step)TEST); \
    break; \
  }
/* All elements are loaded before the first is used. A value that is the same for the whole VEC is loaded whichever elements are active;
 * outside VECs the guard decides. */
#define LOAD_(U, x, k, WHERE) U x = 0; if (on >> (k) & 1) x = p[(k) * step WHERE(k)]; else if ((k) < m) x = other[(k) * se];
#define CASE_LOAD(N, U, WHERE) \
  case N: { \
    const U *const p = (const U *)shared_[OP_A] + CELL(OP_B) + CELL(OP_C) * j; const U *const other = AT(U, OP_E); \
    U *const z = AT(U, OP_D); \
    const i64 step = CELL(OP_C) * 64; \
    const int se = STEP(OP_E), sz = STEP(OP_D), m = WIDTH(OP_D); \
    const u32 on = OP_D & VM_VECTOR || !n ? guard : 1; \
    LOAD_(U, x0, 0, WHERE) LOAD_(U, x1, 1, WHERE) LOAD_(U, x2, 2, WHERE) LOAD_(U, x3, 3, WHERE) \
    LOAD_(U, x4, 4, WHERE) LOAD_(U, x5, 5, WHERE) LOAD_(U, x6, 6, WHERE) LOAD_(U, x7, 7, WHERE) \
    z[0] = x0; \
    if (m > 1) { PUT4(z, sz, x0, x1, x2, x3) } \
    if (m > 4) { PUT4((z + 4 * sz), sz, x4, x5, x6, x7) } \
    guard = active; \
    break; \
  }
#define GATHERED(k) + AT(i64, OP_F)[(k) * STEP(OP_F)] * CELL(OP_G)
#define NOWHERE(k)
#define STORE_(k) if (guard >> (k) & 1) p[(k) * step] = x##k;
#define CASE_STORE(N, U, _) \
  case N: { \
    U *const p = (U *)shared_[OP_A] + CELL(OP_B) + CELL(OP_C) * j; const U *x = AT(U, OP_D); \
    const i64 step = CELL(OP_C) * 64; \
    const int sx = STEP(OP_D); \
    { \
      GET4(U, x, x, sx) \
      STORE_(0) STORE_(1) STORE_(2) STORE_(3) \
    } \
    if (nu > 4) { \
      const U x4 = x[4 * sx], x5 = x[5 * sx], x6 = x[6 * sx], x7 = x[7 * sx]; \
      STORE_(4) STORE_(5) STORE_(6) STORE_(7) \
    } \
    guard = active; \
    break; \
  }
/* Of elements of a strip with one address only the last is stored; barriers keep the strips in order. Outside VECs thread 0 stores. */
#define CASE_SCATTER(N, U, _) \
  case N: { \
    U *const p = (U *)shared_[OP_A] + CELL(OP_B) + CELL(OP_C) * j; const U *const x = AT(U, OP_D); \
    const i64 *const index = AT(i64, OP_F); \
    const i64 step = CELL(OP_C) * 64, by = CELL(OP_G); \
    ROLLED for (int u = 0; u < nu; u++) { \
      const i64 w = u * step + index[u * STEP(OP_F)] * by; \
      b8 last = n ? guard >> u & 1 : guard && t == 0; \
      const U value = x[u * STEP(OP_D)]; \
      SYNC on_[t] = last; x_[t] = (u64)(w + CELL(OP_C) * t); \
      SYNC if (n) ROLLED for (int l = t + 1; l < 64; l++) last &= !(on_[l] & (x_[l] == x_[t])); \
      if (last) p[w] = value; \
    } \
    SYNC guard = active; \
    break; \
  }
/* Pushes and tiles, by all threads. */
#define LANES(T, F) \
  const bvm_acc *const a = (const bvm_acc *)w1; \
  T *const to = (T *)ACC_CELLS + t; const T *const x = AT(T, OP_A); T s = *to; \
  const int sx = STEP(OP_A), m = nu; \
  STRIPS4 { \
    const T x0 = x[u * sx], x1 = x[(u + 1) * sx], x2 = x[(u + 2) * sx], x3 = x[(u + 3) * sx]; \
    if (on >> u & 1) s = F(s, x0); \
    if (on >> u & 2) s = F(s, x1); \
    if (on >> u & 4) s = F(s, x2); \
    if (on >> u & 8) s = F(s, x3); \
  } \
  *to = s; \
  if (HAS(VMF_TREE) && (j0 + pass) % 1024 == 0 && n - j0 >= pass) vm_leaf(shared_, a, t, shared_[a->k] / 1024 + j0 / 1024);
/* One chain over the elements in order, by thread 0. */
#define CHAIN(T, STEP_) \
  const bvm_acc *const a = (const bvm_acc *)w1; \
  SYNC on_[t] = (u8)on; \
  SYNC if (t == 0) { \
    const T *const x = AT(T, OP_A), *const y = AT(T, OP_B); \
    T *const to = (T *)ACC_CELLS, s = *to; \
    const int sx = OP_A >> 15, sy = OP_B >> 15, m = n - j0 < pass ? (int)(n - j0) : pass; \
    u64 k = shared_[a->k] + j0; \
    ROLLED for (int i = 0; i < m; i++) { \
      if (!(on_[i & 63] >> (i >> 6) & 1)) continue; \
      s = STEP_; \
      if (++k % a->chain == 0 && HAS(VMF_TREE)) { \
        *to = s; \
        vm_leaf(shared_, a, 0, k / a->chain - 1); \
        s = *to; \
      } \
    } \
    *to = s; \
  } \
  SYNC
#define TILE(TX, T, CAST, ADD) \
  const vm_tile *const q = (const vm_tile *)w1; \
  const i64 rows = CELL(q->rows), cols = CELL(q->cols), depth = CELL(q->depth), xk = CELL(q->x_k), yk = CELL(q->y_k); \
  SYNC ROLLED for (i64 e = t; e < rows * cols; e += 64) { \
    const TX *x = (const TX *)shared_[q->x] + CELL(q->x_base) + e / cols * CELL(q->x_m); \
    const TX *y = (const TX *)shared_[q->y] + CELL(q->y_base) + e % cols * CELL(q->y_n); \
    T s[1] = {(T)-0.0}, tree[24]; u64 leaves = 0; \
    ROLLED for (i64 k = 0; k < depth; k++, x += xk, y += yk) { \
      s[0] = DOT_##T(CAST(*x), CAST(*y), s[0]); \
      if ((k + 1) % 4096 == 0) { TREE_ADD(T, ADD, tree, 1, leaves, s, 1) leaves++; s[0] = (T)-0.0; } \
    } \
    if (depth % 4096 != 0) { TREE_ADD(T, ADD, tree, 1, leaves, s, 1) leaves++; } \
    TREE_END(T, ADD, tree, 1, leaves, s, 1, (T)0) \
    ((T *)shared_[q->out])[e / cols * CELL(q->width) + e % cols] = s[0]; \
  } \
  SYNC
#define X(N, T, F) FUNCTION(N, LANES(T, F))
VM_LANE_PUSHES(X)
#undef X
#define X(N, T, F) FUNCTION(N, CHAIN(T, F(s, x[i * sx])))
VM_CHAINS(X)
#undef X
#define X(N, T) FUNCTION(N, CHAIN(T, DOT_##T(x[i * sx], y[i * sy], s)))
VM_CHAINDOTS(X)
#undef X
#define X(N, TX, T, CAST, ADD) FUNCTION(N, TILE(TX, T, CAST, ADD))
VM_TILES(X)
#undef X
static __device__ const vm_function vm_functions[] = {VM_TABLE};

/* Sets nu, j, inside, active and guard for the pass that begins at j0. */
#define BEGIN_PASS \
  { \
    const i64 left = n - j0; \
    nu = left < pass ? (int)((left + 63) >> 6) : strips; \
    j = j0 + t; \
    inside = left >= pass ? (1u << strips) - 1 : t < left ? (1u << ((left - t + 63) >> 6)) - 1 : 0; \
    active = guard = inside; \
  }

/* The words begin as those of printed kernels: scratch, error cell, interrupt flag, the number of the first check. Then follow vm_head, the
 * first values of the cells, the instructions and the descriptions. */
typedef struct vm_words { u64 w[VM_WORDS]; } vm_words;
extern "C" __global__ void __launch_bounds__(64, 16)
    KERNEL(const u64 *block, i64 instances, const __grid_constant__ vm_words words) {
  extern __shared__ u64 shared_[];
  __shared__ u64 x_[64], y_[64];
  __shared__ u8 on_[64];
  const u64 *const w_ = block ? block : words.w;
  const vm_head *const head = (const vm_head *)(w_ + 4);
  const u64 *const given = (const u64 *)(head + 1), *const code = shared_ + head->cells;
  const u16 *const descriptions = (const u16 *)code + head->descriptions;
  const qk_args args = {0, 0, 0, (void *)w_[0], (u64 *)w_[1], (const int *)w_[2]};
  const qk_args *const a = &args, *const a0 = a;
  const u64 first_ = w_[3];
  const int t = threadIdx.x, strips = (int)head->strips, pass = 64 * strips, regs = (int)head->regs;
  unsigned polls = 0;
  BEGIN
  ROLLED for (int i = t; i < (int)head->words; i += 64) { /* the code follows the cells */
    u64 x = given[i];
    if (i >= head->first && i < head->shared) x += w_[0] + blockIdx.x * (u64)head->scratch;
    if (i >= head->shared && i < head->last) x += (u64)shared_;
    shared_[i] = x;
  }
  for (i64 instance = blockIdx.x; instance < instances; instance += gridDim.x) {
    i64 n = 0, j0 = 0, j = 0, from = 0, elements = 0; /* of the VEC; n is 0 outside */
    int nu = 1;
    u32 active = 1, guard = 1, inside = 1;
    u64 kept = 0;
    SYNC
    shared_[0] = (u64)instance;
    for (u32 pc = 0, running = 1; running; pc++) {
      const u64 w0 = code[2 * pc], w1 = code[2 * pc + 1];
      const u32 op = (u32)w0 & 0xffff;
      if (op >= VM_FUNCTIONS) { /* by a table: a switch would be searched */
        vm_functions[op - VM_FUNCTIONS](w0, op < VM_DESCRIBED ? w1 : (u64)(descriptions + OP_D), regs, t, nu, pass, j0, n, active, on_);
        continue;
      }
      switch (op) {
      case VM_HALT: running = 0; break;
      case VM_JUMP: pc = OP_A - 1; break;
      case VM_IF1: if (!(u8)shared_[OP_A]) pc = OP_B - 1; break;
      case VM_IF8: if (!shared_[OP_A]) pc = OP_B - 1; break;
      case VM_IADD: shared_[OP_D] = shared_[OP_A] + shared_[OP_B]; break;
      case VM_ISUB: shared_[OP_D] = shared_[OP_A] - shared_[OP_B]; break;
      case VM_IMUL: shared_[OP_D] = shared_[OP_A] * shared_[OP_B]; break;
      case VM_IDIV: shared_[OP_D] = (u64)floor_div(CELL(OP_A), CELL(OP_B)); break;
      case VM_IMOD: shared_[OP_D] = (u64)floor_mod(CELL(OP_A), CELL(OP_B)); break;
      case VM_IMIN: shared_[OP_D] = (u64)(CELL(OP_A) < CELL(OP_B) ? CELL(OP_A) : CELL(OP_B)); break;
      case VM_IMAX: shared_[OP_D] = (u64)(CELL(OP_A) > CELL(OP_B) ? CELL(OP_A) : CELL(OP_B)); break;
      case VM_FOR: {
        const i64 first = CELL(OP_A);
        SYNC
        shared_[OP_D] = (u64)first;
        if (first >= CELL(OP_B)) pc = OP_C - 1;
        break;
      }
      case VM_NEXT:
        SYNC
        if (t == 0) shared_[OP_D] += shared_[OP_A];
        SYNC
        if (CELL(OP_D) < CELL(OP_B)) pc = OP_C - 1;
        break;
      case VM_COPY: {
        const u64 x = shared_[OP_A];
        SYNC
        if (t == 0) shared_[OP_D] = x;
        SYNC
        break;
      }
      case VM_COUNT:
      case VM_COUNTN: {
        const u64 x = op == VM_COUNT ? shared_[OP_A] : (u64)elements;
        SYNC
        if (t == 0) shared_[OP_D] += x;
        SYNC
        break;
      }
      case VM_SYNC: SYNC break;
      case VM_POLL:
        if (POLLED(polls) && __syncthreads_or(STOPPED)) return;
        break;
      case VM_VEC:
        from = CELL(OP_A);
        n = CELL(OP_B) - from;
        j0 = 0;
        SYNC
        if (n > 0) BEGIN_PASS
        else pc = OP_C - 1, n = 0;
        break;
      case VM_PASS:
        j0 += pass;
        if (j0 < n) {
          BEGIN_PASS
          pc = OP_A - 1;
        } else {
          elements = n;
          n = j0 = j = 0;
          nu = active = guard = 1;
          SYNC
        }
        break;
      case VM_ENTER: kept = kept << 8 | active; break;
      case VM_TEST: {
        const u8 *const x = AT(u8, OP_A);
        u32 on = 0;
        for (int u = 0; u < nu; u++) on |= (u32)(active >> u & 1 && x[u * 64]) << u;
        active = on;
        if (!__syncthreads_or(on)) {
          active = (u32)kept & 0xff;
          kept >>= 8;
          pc = OP_B - 1;
        }
        guard = active;
        break;
      }
      EACH_SIZE(CASE1, VM_MOVE, )
      EACH_SIZE(CASE_KEEP, VM_KEEP, )
      EACH_SIZE(CASE3, VM_SELECT, )
      EACH_SIZE(CASE_IOTA, VM_IOTA, )
      CASE_IOTA(VM_IOTAB, u8, != 0)
      case VM_GUARD: {
        const u8 *const x = AT(u8, OP_C);
        const i64 lo = CELL(OP_A), hi = CELL(OP_B);
        guard = 0;
        ROLLED for (int u = 0; u < nu; u++) {
          const i64 i = from + j + 64 * u;
          guard |= (u32)(active >> u & 1 && i >= lo && i < hi && x[u * STEP(OP_C)]) << u;
        }
        break;
      }
      EACH_SIZE(CASE_LOAD, VM_LOAD, NOWHERE)
      EACH_SIZE(CASE_LOAD, VM_GATHER, GATHERED)
      EACH_SIZE(CASE_STORE, VM_STORE, )
      EACH_SIZE(CASE_SCATTER, VM_SCATTER, )
      case VM_UPDATE: {
        const int f = (int)OP_E, size = VM_SIZE(f & 15);
        const u64 p = shared_[OP_A];
        ROLLED for (int u = 0; u < nu; u++) {
          const u64 x = (u64)AT(char, OP_D), index = (u64)AT(i64, OP_F);
          const i64 w = CELL(OP_B) + CELL(OP_C) * (j + 64 * u) + (i64)vm_get(index, u * STEP(OP_F), 8) * CELL(OP_G);
          const u64 value = vm_get(OP_D & VM_VECTOR ? x + (u64)(t * (size - 1)) : x, u * STEP(OP_D), size);
          SYNC
          on_[t] = n ? guard >> u & 1 : guard && t == 0;
          x_[t] = (u64)w;
          y_[t] = value;
          SYNC
          ROLLED for (int l = 0; l < 64 && t == 0; l++)
            if (on_[l]) vm_put(p, (i64)x_[l], size, vm_fold(f, vm_get(p, (i64)x_[l], size), y_[l]));
        }
        SYNC
        guard = active;
        break;
      }
      case VM_UPDATES: {
        const int f = (int)OP_E, size = VM_SIZE(f & 15);
        const u64 p = shared_[OP_A], x = (u64)AT(char, OP_D);
        ROLLED for (int u = 0; u < nu; u++) {
          if (!(guard >> u & 1)) continue;
          const i64 w = CELL(OP_B) + CELL(OP_C) * (j + 64 * u);
          const u64 value = vm_get(OP_D & VM_VECTOR ? x + (u64)(t * (size - 1)) : x, u * STEP(OP_D), size);
          vm_put(p, w, size, vm_fold(f, vm_get(p, w, size), value));
        }
        guard = active;
        break;
      }
      case VM_CHECK: {
        const u8 *const x = AT(u8, OP_A);
        ROLLED for (int u = 0; u < nu; u++)
          if ((n ? active >> u & 1 : t == 0) && !x[u * STEP(OP_A)])
            fail(a0, (int)OP_D, CELL(OP_B) + CELL(OP_C) * (j + 64 * u));
        break;
      }
      case VM_FAILED: {
        const int failed = __syncthreads_or(*(const volatile u64 *)a0->error != ~(u64)0);
        shared_[OP_D] = failed != 0;
        break;
      }
#define VALUE_(o) vm_get((u64)AT(char, o) + ((o) & VM_VECTOR ? (u64)(t * (a->size - 1)) : 0), u * STEP(o), a->size)
/* A case with the accumulator `a` whose description is operand o. EACH_OF: for each strip u in which the thread's element is in `set`. */
#define CASE_ACC(N, o, ...) \
  case N: { \
    const bvm_acc *const a = (const bvm_acc *)(descriptions + (o)); \
    __VA_ARGS__ \
    break; \
  }
#define EACH_OF(set) ROLLED for (int u = 0; u < nu; u++) if (set >> u & 1)
      CASE_ACC(VM_ACC, OP_D, vm_empty(shared_, a);)
      CASE_ACC(VM_ROWS, OP_D,
               EACH_OF(active) vm_put(ACC_CELLS, CELL(a->k) * CELL(a->results) + from + j + 64 * u, a->size, VALUE_(OP_A));)
      CASE_ACC(VM_ARGS, OP_D, EACH_OF(active) vm_arg(shared_, a, from + j + 64 * u, VALUE_(OP_A), CELL(OP_B));)
      CASE_ACC(VM_ARG, OP_D, EACH_OF(active) vm_arg(shared_, a, t, VALUE_(OP_A), CELL(OP_B) + j + 64 * u);)
      CASE_ACC(VM_LEAF, OP_D, const u64 k = shared_[a->k];
               if ((k + 1) % a->chain == 0) EACH_OF(inside) vm_leaf(shared_, a, from + j + 64 * u, k / a->chain);)
      CASE_ACC(VM_PUSH, OP_D, const int u = 0; vm_push(shared_, a, VALUE_(OP_A), VALUE_(OP_C), CELL(OP_B));)
      CASE_ACC(VM_SCAN, OP_A, ROLLED for (int u = 0; u < nu; u++) {
        const i64 left = n - j0 - 64 * u;
        const u64 y = vm_scan(shared_, a, x_, VALUE_(OP_B), CELL(a->k) + j0 + 64 * u, left < 64 ? (int)left : 64, OP_C != 0);
        vm_put((u64)AT(char, OP_D) + (u64)(t * (a->size - 1)), u * 64, a->size, y);
      })
      CASE_ACC(VM_SCANS, OP_A, EACH_OF(active)
               vm_put((u64)AT(char, OP_D) + (u64)(t * (a->size - 1)), u * 64, a->size,
                      vm_scans(shared_, a, from + j + 64 * u, VALUE_(OP_B), CELL(a->k), OP_C != 0));)
      CASE_ACC(VM_ROOT, OP_D, vm_whole_root(shared_, a);)
      CASE_ACC(VM_ROOTS, OP_D, EACH_OF(inside) vm_root(shared_, a, from + j + 64 * u);)
      CASE_ACC(VM_FINISH, OP_A, vm_whole_root(shared_, a); vm_lanes(shared_, a);
               shared_[OP_D] = HAS(VMF_ARG) ? vm_get(shared_[a->index], 0, 8) : vm_get(ACC_CELLS, 0, a->size);)
      CASE_ACC(VM_PARTIAL, OP_D, vm_partial(shared_, a, shared_[OP_A], CELL(OP_B), shared_[OP_C], CELL(OP_E));)
      CASE_ACC(VM_MERGE, OP_D, vm_merge(shared_, a, shared_[OP_A], CELL(OP_B), shared_[OP_C], CELL(OP_E));)
      default: running = 0; break;
      }
    }
  }
}
