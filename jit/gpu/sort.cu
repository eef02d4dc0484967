/* Sorting on the device (sort.c): stable, along lines of an array of any layout. The text is embedded in the library and compiled by
 * NVRTC; it needs no header.
 *
 * An element's key is an unsigned number in the order of the elements, as on the CPU: -0 counts as 0, every NaN has the largest key. With
 * its key goes its index in the line; the result's elements are read from the array by these, so equal keys may be different bits.
 *
 * Short lines: a block of 256 threads ranks the elements of as many lines as it has room for: an element's place is the number of those
 * that come before it. Long lines: digits of 8 bits, from the lowest up. In each pass, tiles of 2,048 elements are counted; a block for each
 * line and digit adds the tiles' counts up; then elements are placed. Their order in a tile: eight parts, one a warp, each 32 elements at a
 * time, in which lanes find out who has the same digit. */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned u32;
typedef long long i64;
typedef unsigned long long u64;

typedef struct sort_words {
  u64 x, out, keys, keys_to, index, index_to, counts, totals; /* addresses */
  u64 infinity;                                               /* bits; 0: elements are integers */
  i64 n, lines, tiles;
  i64 x_step, out_step; /* along a line; all steps are in elements */
  i64 shape[8], x_at[8], out_at[8];
  int rank; /* of the axes that lines are numbered along */
  int size, is_signed, descending, indices, shift;
} sort_words;

#define FN static __device__ __forceinline__
enum { THREADS = 256, WARPS = 8, ROUNDS = 8, TILE = 2048, SHORT = 1024, FEW_TILES = 64 };

FN i64 place_of(const sort_words *w, const i64 *at, i64 line) {
  i64 place = 0;
  for (int k = w->rank - 1; k >= 0; k--) {
    const i64 q = line / w->shape[k];
    place += (line - q * w->shape[k]) * at[k];
    line = q;
  }
  return place;
}

FN u64 bits_of(const sort_words *w, i64 i) {
  switch (w->size) {
  case 1: return ((const u8 *)w->x)[i];
  case 2: return ((const u16 *)w->x)[i];
  case 4: return ((const u32 *)w->x)[i];
  default: return ((const u64 *)w->x)[i];
  }
}

FN u64 key_of(const sort_words *w, u64 bits) {
  const u64 all = ~0ull >> (64 - 8 * w->size), top = all ^ all >> 1, flip = w->descending ? all : 0;
  if (!w->infinity) return bits ^ (w->is_signed ? top : 0) ^ flip;
  const u64 size = bits & ~top;
  if (size > w->infinity) return all;
  const u64 z = size ? bits : 0;
  return z ^ (z & top ? all : top) ^ flip;
}

/* Stores the element at `index` of the line that begins at x, or the index. */
FN void store(const sort_words *w, i64 to, i64 x, i64 index) {
  if (w->indices) {
    ((i64 *)w->out)[to] = index;
    return;
  }
  const u64 bits = bits_of(w, x + index * w->x_step);
  switch (w->size) {
  case 1: ((u8 *)w->out)[to] = (u8)bits; break;
  case 2: ((u16 *)w->out)[to] = (u16)bits; break;
  case 4: ((u32 *)w->out)[to] = (u32)bits; break;
  default: ((u64 *)w->out)[to] = bits; break;
  }
}

/* Keys of up to 4 bytes are kept in 4. */
FN u64 key_at(const sort_words *w, i64 i) { return w->size == 8 ? ((const u64 *)w->keys)[i] : ((const u32 *)w->keys)[i]; }
FN void put_key(const sort_words *w, u64 keys, i64 i, u64 key) {
  if (w->size == 8)
    ((u64 *)keys)[i] = key;
  else
    ((u32 *)keys)[i] = (u32)key;
}

/* Short lines; instances: groups of as many lines as THREADS elements hold, at least one. */
extern "C" __global__ void k736f7274206c696e_0(const u64 *block, i64 instances, const __grid_constant__ sort_words w) {
  __shared__ u64 keys[SHORT];
  const int n = (int)w.n, group = n < THREADS ? THREADS / n : 1;
  (void)block;
  for (i64 g = blockIdx.x; g < instances; g += gridDim.x) {
    const i64 first = g * group;
    const int lines = w.lines - first < group ? (int)(w.lines - first) : group;
    for (int e = (int)threadIdx.x; e < lines * n; e += THREADS)
      keys[e] = key_of(&w, bits_of(&w, place_of(&w, w.x_at, first + e / n) + e % n * w.x_step));
    __syncthreads();
    for (int e = (int)threadIdx.x; e < lines * n; e += THREADS) {
      const int line = e / n, i = e % n;
      const u64 *all = keys + line * n, own = all[i];
      int before = 0;
      for (int j = 0; j < n; j++) before += all[j] < own || (all[j] == own && j < i);
      store(&w, place_of(&w, w.out_at, first + line) + before * w.out_step, place_of(&w, w.x_at, first + line), i);
    }
    __syncthreads();
  }
}

/* Keys and indices of long lines; instances: of THREADS elements. */
extern "C" __global__ void k736f7274206c696e_1(const u64 *block, i64 instances, const __grid_constant__ sort_words w) {
  (void)block;
  for (i64 g = blockIdx.x; g < instances; g += gridDim.x) {
    const i64 e = g * THREADS + threadIdx.x;
    if (e < w.n * w.lines) {
      const i64 line = e / w.n, i = e - line * w.n;
      put_key(&w, w.keys, e, key_of(&w, bits_of(&w, place_of(&w, w.x_at, line) + i * w.x_step)));
      ((u32 *)w.index)[e] = (u32)i;
    }
  }
}

/* counts[line][digit][tile]; instances: tiles of all lines. */
extern "C" __global__ void k736f7274206c696e_2(const u64 *block, i64 instances, const __grid_constant__ sort_words w) {
  __shared__ u32 bins[256];
  const u32 t = threadIdx.x;
  (void)block;
  for (i64 g = blockIdx.x; g < instances; g += gridDim.x) {
    const i64 line = g / w.tiles, tile = g - line * w.tiles, begin = tile * TILE;
    bins[t] = 0;
    __syncthreads();
    for (int r = 0; r < ROUNDS; r++) {
      const i64 i = begin + r * THREADS + t;
      if (i < w.n) atomicAdd(&bins[key_at(&w, line * w.n + i) >> w.shift & 255], 1u);
    }
    __syncthreads();
    ((u32 *)w.counts)[(line * 256 + t) * w.tiles + tile] = bins[t];
    __syncthreads();
  }
}

/* Counts become how many elements of the digit tiles before have; totals[line][digit]. Instances: lines of few tiles, a digit a thread; else
 * digits of all lines. */
extern "C" __global__ void k736f7274206c696e_3(const u64 *block, i64 instances, const __grid_constant__ sort_words w) {
  __shared__ u32 sums[THREADS];
  const u32 t = threadIdx.x;
  (void)block;
  for (i64 g = blockIdx.x; g < instances && w.tiles <= FEW_TILES; g += gridDim.x) {
    u32 *counts = (u32 *)w.counts + (g * 256 + t) * w.tiles, before = 0;
    for (i64 k = 0; k < w.tiles; k++) {
      const u32 own = counts[k];
      counts[k] = before;
      before += own;
    }
    ((u32 *)w.totals)[g * 256 + t] = before;
  }
  for (i64 g = blockIdx.x; g < instances && w.tiles > FEW_TILES; g += gridDim.x) {
    u32 *counts = (u32 *)w.counts + g * w.tiles, before = 0;
    for (i64 first = 0; first < w.tiles; first += THREADS) {
      const u32 own = first + t < w.tiles ? counts[first + t] : 0;
      sums[t] = own;
      __syncthreads();
      for (u32 h = 1; h < THREADS; h *= 2) {
        const u32 left = t >= h ? sums[t - h] : 0;
        __syncthreads();
        sums[t] += left;
        __syncthreads();
      }
      if (first + t < w.tiles) counts[first + t] = before + sums[t] - own;
      before += sums[THREADS - 1];
      __syncthreads();
    }
    if (t == 0) ((u32 *)w.totals)[g] = before;
  }
}

/* Places the elements of tiles by their digits; instances: tiles of all lines. */
extern "C" __global__ void k736f7274206c696e_4(const u64 *block, i64 instances, const __grid_constant__ sort_words w) {
  __shared__ u32 warps[WARPS][256]; /* how many of a digit a warp has had; then those of the warps before it */
  __shared__ u32 base[256], sums[256];
  const u32 t = threadIdx.x, lane = t & 31, warp = t >> 5;
  (void)block;
  for (i64 g = blockIdx.x; g < instances; g += gridDim.x) {
    const i64 line = g / w.tiles, tile = g - line * w.tiles, begin = tile * TILE;
    const u32 own = ((const u32 *)w.totals)[line * 256 + t];
    for (int k = 0; k < WARPS; k++) warps[k][t] = 0;
    sums[t] = own;
    __syncthreads();
    for (u32 h = 1; h < 256; h *= 2) {
      const u32 left = t >= h ? sums[t - h] : 0;
      __syncthreads();
      sums[t] += left;
      __syncthreads();
    }
    base[t] = sums[t] - own + ((const u32 *)w.counts)[(line * 256 + t) * w.tiles + tile];
    __syncthreads();
    u64 keys[ROUNDS];
    u32 ranks[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
      const i64 i = begin + (i64)warp * (32 * ROUNDS) + r * 32 + lane;
      const int there = i < w.n;
      keys[r] = there ? key_at(&w, line * w.n + i) : 0;
      const u32 digit = there ? (u32)(keys[r] >> w.shift) & 255 : 256;
      const u32 same = __match_any_sync(~0u, digit), before = __popc(same & ((1u << lane) - 1));
      const u32 had = there ? warps[warp][digit] : 0;
      __syncwarp();
      if (there && before == 0) warps[warp][digit] = had + __popc(same);
      __syncwarp();
      ranks[r] = had + before;
    }
    __syncthreads();
    u32 sum = 0;
    for (int k = 0; k < WARPS; k++) {
      const u32 count = warps[k][t];
      warps[k][t] = sum;
      sum += count;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
      const i64 i = begin + (i64)warp * (32 * ROUNDS) + r * 32 + lane;
      if (i < w.n) {
        const u32 digit = (u32)(keys[r] >> w.shift) & 255;
        const i64 to = line * w.n + base[digit] + warps[warp][digit] + ranks[r];
        put_key(&w, w.keys_to, to, keys[r]);
        ((u32 *)w.index_to)[to] = ((const u32 *)w.index)[line * w.n + i];
      }
    }
    __syncthreads();
  }
}

/* The result, by the sorted indices; instances: of THREADS elements. */
extern "C" __global__ void k736f7274206c696e_5(const u64 *block, i64 instances, const __grid_constant__ sort_words w) {
  (void)block;
  for (i64 g = blockIdx.x; g < instances; g += gridDim.x) {
    const i64 e = g * THREADS + threadIdx.x;
    if (e < w.n * w.lines) {
      const i64 line = e / w.n, i = e - line * w.n;
      store(&w, place_of(&w, w.out_at, line) + i * w.out_step, place_of(&w, w.x_at, line), ((const u32 *)w.index)[e]);
    }
  }
}
