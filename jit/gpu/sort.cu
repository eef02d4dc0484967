/* Sorting on the device (sort.c): stable, along lines of an array of any layout.
 *
 * An element's key is an unsigned number, and keys have the order of their elements, as on the CPU: -0 has the key of 0, every NaN the largest.
 * The element's index in the line goes with its key, so that equal keys keep their order. The element is made of its key again; zeros
 * and NaNs, which share keys, are read from the array by their index.
 *
 * Few elements (RANKED): an element's place is the number of those that come before it. Lines of up to 4,096 elements: a block sorts as many
 * lines as fill it, each padded at its end to a power of two, by Batcher's bitonic network. A thread has 16 neighbours in
 * registers. The first step of each merge compares places that lie opposite, so all steps put the smaller first, and no direction is kept;
 * strides below 16 are a thread's own business, those below 512 shuffles in a warp, the three longest go through shared memory. Keys of up to 4
 * bytes are one number of 64 bits with their indices; longer ones have theirs beside them. Elements are read and written with
 * neighbouring threads at neighbouring elements, whatever place they begin at: the network takes any order, and the result is turned
 * in shared memory, where every 16 words one is left out, so that neither way has conflicts of banks.
 *
 * Not measured; expected of 4096 lines of 1,024 f32: 34 steps of 512 comparisons at 7 instructions, 20 steps of shuffles and one through
 * shared memory at 8 an element, 45 for reading, keys and writing, together some 44 million instructions of warps, or 70 to 90 us of an H200's 528
 * schedulers at 1.75 GHz; shuffles (two of 32 bits an element and step) take a third of that beside them. Ranks took 2,160 us.
 * NVRTC 13.0 gives keys of 4 bytes 116 registers if it may, two blocks a multiprocessor; bounds make it 78 for three without spilling (four
 * spill). Shared memory (34 KiB, 43 with indices) has room for as many.
 * A line that one warp holds (32 elements a thread, 15 steps of shuffles) would save a quarter of the shuffles and cost half of the warps.
 *
 * Longer lines: digits of 8 bits, from the lowest up. In each pass, tiles of 2,048 elements are counted; a block for each
 * line and digit adds the tiles' counts up; then elements are placed. Their order in a tile: eight parts, one a warp, each 32 elements at a
 * time, in which lanes find out who has the same digit, by votes on its bits. The first pass reads the array itself, the last one writes the result.
 * A million f32 took 190 us with two launches more, lanes matched by the instruction for it and counts added one by one; votes on bits, as CUB's
 * onesweep sort has them, and one addition for all lanes of a digit are not measured. */

enum { ROOM = THREADS * (OWN + 1) };

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

/* Loads to[r], r < many, from element at + r * hop of x, if r * step < left; else it is 0. `wide`: elements have 8 bytes. */
#define LOADS(T, from) \
  { _Pragma("unroll") for (int r = 0; r < many; r++) to[r] = r * step < left ? ((const T *)from)[at + r * hop] : 0; }
FN void load(const sort_words *w, u64 *to, const int many, const int wide, i64 at, i64 hop, i64 left, i64 step) {
  if (wide)
    LOADS(u64, w->x)
  else if (w->size == 4)
    LOADS(u32, w->x)
  else if (w->size == 2)
    LOADS(u16, w->x)
  else
    LOADS(u8, w->x)
}

FN u64 key_of(const sort_words *w, u64 bits) {
  const u64 all = ~0ull >> (64 - 8 * w->size), top = all ^ all >> 1, flip = w->descending ? all : 0;
  if (!w->infinity) return bits ^ (w->is_signed ? top : 0) ^ flip;
  const u64 size = bits & ~top;
  if (size > w->infinity) return all;
  const u64 z = size ? bits : 0;
  return z ^ (z & top ? all : top) ^ flip;
}

/* The element with this key, `index` in the line that begins at x. */
FN u64 bits_with(const sort_words *w, u64 key, i64 x, i64 index) {
  const u64 all = ~0ull >> (64 - 8 * w->size), top = all ^ all >> 1, flip = w->descending ? all : 0, own = key ^ flip;
  if (!w->infinity) return own ^ (w->is_signed ? top : 0);
  const u64 bits = own ^ (own & top ? top : all);
  return key == all || bits == 0 ? bits_of(w, x + index * w->x_step) : bits;
}

/* Stores it, or its index. */
FN void store(const sort_words *w, i64 to, u64 key, i64 x, i64 index) {
  if (w->indices) {
    ((i64 *)w->out)[to] = index;
    return;
  }
  const u64 bits = bits_with(w, key, x, index);
  switch (w->size) {
  case 1: ((u8 *)w->out)[to] = (u8)bits; break;
  case 2: ((u16 *)w->out)[to] = (u16)bits; break;
  case 4: ((u32 *)w->out)[to] = (u32)bits; break;
  default: ((u64 *)w->out)[to] = bits; break;
  }
}

/* ---- few elements ------------------------------------------------------------------------------------------------------- */

/* Instances: groups of as many lines as THREADS elements hold. */
extern "C" __global__ void __launch_bounds__(THREADS)
    k736f7274206c696e_0(const u64 *block, i64 instances, const __grid_constant__ sort_words w) {
  __shared__ u64 keys[THREADS];
  const int n = (int)w.n, group = THREADS / n, e = (int)threadIdx.x, line = e / n, i = e - line * n;
  (void)block;
  for (i64 g = blockIdx.x; g < instances; g += gridDim.x) {
    const int there = line < group && g * group + line < w.lines;
    const i64 x = there ? place_of(&w, w.x_at, g * group + line) : 0;
    const u64 own = there ? key_of(&w, bits_of(&w, x + i * w.x_step)) : 0;
    keys[e] = own;
    __syncthreads();
    if (there) {
      const u64 *all = keys + (e - i);
      int before = 0;
      for (int j = 0; j < n; j++) before += all[j] < own || (all[j] == own && j < i);
      store(&w, place_of(&w, w.out_at, g * group + line) + before * w.out_step, own, x, i);
    }
    __syncthreads();
  }
}

/* ---- short lines --------------------------------------------------------------------------------------------------------- */

/* `wide`: the index lies beside the key; else it is the key's lower half. A constant wherever it is passed, so that code is made for each. */
typedef struct item {
  u64 key;
  u32 index;
} item;
FN int before(item a, item b, const int wide) { return a.key < b.key || (wide && a.key == b.key && a.index < b.index); }
FN void put_in_order(item *a, item *b, const int wide) {
  const item x = *a, y = *b;
  const int swap = before(y, x, wide);
  a->key = swap ? y.key : x.key;
  b->key = swap ? x.key : y.key;
  if (wide) a->index = swap ? y.index : x.index;
  if (wide) b->index = swap ? x.index : y.index;
}
/* *own becomes the smaller of the two, or (`larger`) the larger. */
FN void keep(item *own, item other, int larger, const int wide) {
  const int take = before(other, *own, wide) != larger;
  own->key = take ? other.key : own->key;
  if (wide) own->index = take ? other.index : own->index;
}

/* Sorts a thread's own items, which are a bitonic sequence. */
FN void merge_own(item *v, const int wide) {
#pragma unroll
  for (int h = OWN / 2; h > 0; h /= 2) {
#pragma unroll
    for (int r = 0; r < OWN; r++)
      if (!(r & h)) put_in_order(&v[r], &v[r + h], wide);
  }
}
FN void sort_own(item *v, const int wide) {
#pragma unroll
  for (int size = 2; size <= OWN; size *= 2) {
#pragma unroll
    for (int r = 0; r < OWN; r++)
      if (!(r & size / 2)) put_in_order(&v[r], &v[r ^ (size - 1)], wide);
#pragma unroll
    for (int h = size / 4; h > 0; h /= 2) {
#pragma unroll
      for (int r = 0; r < OWN; r++)
        if (!(r & h)) put_in_order(&v[r], &v[r + h], wide);
    }
  }
}

FN item from_lane(item v, u32 mask, const int wide) {
  const item other = {__shfl_xor_sync(~0u, v.key, mask), wide ? __shfl_xor_sync(~0u, v.index, mask) : 0u};
  return other;
}
/* One step with the items of the lane at distance `mask` (xor). `opposite`: the other's last item is compared with the first, and so on. */
FN void step_in_warp(item *v, u32 mask, int larger, const int opposite, const int wide) {
  if (opposite) {
#pragma unroll
    for (int r = 0; r < OWN / 2; r++) {
      const item a = from_lane(v[OWN - 1 - r], mask, wide), b = from_lane(v[r], mask, wide);
      keep(&v[r], a, larger, wide);
      keep(&v[OWN - 1 - r], b, larger, wide);
    }
  } else {
#pragma unroll
    for (int r = 0; r < OWN; r++) keep(&v[r], from_lane(v[r], mask, wide), larger, wide);
  }
}
/* Such a step with a thread of another warp, through shared memory, which holds nothing else meanwhile. */
FN void step_in_block(item *v, u32 mask, int larger, const int opposite, const int wide, u64 *keys, u16 *indices) {
  const u32 t = threadIdx.x, from = t ^ mask;
#pragma unroll
  for (int r = 0; r < OWN; r++) {
    keys[r * THREADS + t] = v[r].key;
    if (wide) indices[r * THREADS + t] = (u16)v[r].index;
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < OWN; r++) {
    const u32 at = (opposite ? OWN - 1 - r : r) * THREADS + from;
    const item other = {keys[at], wide ? (u32)indices[at] : 0u};
    keep(&v[r], other, larger, wide);
  }
  __syncthreads();
}

/* Sorts lines that have `threads` threads each. */
FN void sort_block(item *v, u32 threads, const int wide, u64 *keys, u16 *indices) {
  const u32 t = threadIdx.x;
  sort_own(v, wide);
#pragma unroll 1
  for (u32 reach = 2; reach <= threads; reach *= 2) {
    const int beyond = (t & reach / 2) != 0;
    if (reach <= 32)
      step_in_warp(v, reach - 1, beyond, 1, wide);
    else
      step_in_block(v, reach - 1, beyond, 1, wide, keys, indices);
#pragma unroll 1
    for (u32 h = reach / 4; h > 0; h /= 2) {
      const int larger = (t & h) != 0;
      if (h < 32)
        step_in_warp(v, h, larger, 0, wide);
      else
        step_in_block(v, h, larger, 0, wide, keys, indices);
    }
    merge_own(v, wide);
  }
}

/* Instances: groups of as many lines as fill a block. */
FN void sort_lines(const sort_words *w, i64 instances, const int wide, u64 *keys, u16 *indices) {
  const u32 t = threadIdx.x, threads = (u32)w->padded / OWN, own = t & (threads - 1), first = t - own;
  const i64 group = THREADS / threads;
  for (i64 g = blockIdx.x; g < instances; g += gridDim.x) {
    const i64 line = g * group + first / threads;
    const u32 n = line < w->lines ? (u32)w->n : 0;
    const i64 x = n ? place_of(w, w->x_at, line) : 0;
    u64 bits[OWN];
    item v[OWN];
    load(w, bits, OWN, wide, x + own * w->x_step, threads * w->x_step, (i64)n - own, threads);
#pragma unroll
    for (int r = 0; r < OWN; r++) {
      const u32 i = r * threads + own;
      const u64 key = key_of(w, bits[r]);
      v[r].key = i >= n ? ~0ull : wide ? key : key << 32 | i;
      v[r].index = i;
    }
    sort_block(v, threads, wide, keys, indices);
#pragma unroll
    for (int r = 0; r < OWN; r++) {
      keys[t * (OWN + 1) + r] = v[r].key;
      if (wide) indices[t * (OWN + 1) + r] = (u16)v[r].index;
    }
    __syncthreads();
    const i64 out = n ? place_of(w, w->out_at, line) : 0;
#pragma unroll 4
    for (u32 i = own; i < n; i += threads) {
      const u32 at = first * OWN + i, to = at + at / OWN;
      const u64 key = wide ? keys[to] : keys[to] >> 32;
      store(w, out + i * w->out_step, key, x, wide ? (u32)indices[to] : (u32)keys[to]);
    }
    __syncthreads();
  }
}

/* SORT_SHORT, for keys of up to 4 bytes, and SORT_SHORT_WIDE, for keys of 8. */
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    k736f7274206c696e_1(const u64 *block, i64 instances, const __grid_constant__ sort_words w) {
  __shared__ u64 keys[ROOM];
  (void)block;
  sort_lines(&w, instances, 0, keys, 0);
}
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    k736f7274206c696e_2(const u64 *block, i64 instances, const __grid_constant__ sort_words w) {
  __shared__ u64 keys[ROOM];
  __shared__ u16 indices[ROOM];
  (void)block;
  sort_lines(&w, instances, 1, keys, indices);
}

/* ---- long lines ------------------------------------------------------------------------------------------------------------ */

/* Loads the keys of ROUNDS elements of a line from element i on, `step` apart. The line's elements begin at x. Keys of up to 4 bytes are stored
 * in 4. */
FN void load_keys(const sort_words *w, u64 *to, i64 line, i64 x, i64 i, i64 step) {
  const int many = ROUNDS;
  const i64 left = w->n - i, at = line * w->n + i, hop = step;
  if (w->first) {
    load(w, to, many, w->size == 8, x + i * w->x_step, step * w->x_step, left, step);
#pragma unroll
    for (int r = 0; r < many; r++) to[r] = key_of(w, to[r]);
  } else if (w->size == 8)
    LOADS(u64, w->keys)
  else
    LOADS(u32, w->keys)
}
FN void put_key(const sort_words *w, i64 at, u64 key) {
  if (w->size == 8)
    ((u64 *)w->keys_to)[at] = key;
  else
    ((u32 *)w->keys_to)[at] = (u32)key;
}

/* Which lanes of the warp have this digit of 8 bits (256: the lane has no element), by a vote for each bit: the instruction for it, MATCH, takes
 * longer the more digits differ. */
FN u32 same_digit(u32 digit) {
  u32 same = __ballot_sync(~0u, digit < 256);
  if (digit > 255) same = ~same;
#pragma unroll
  for (int b = 0; b < 8; b++) {
    const u32 set = __ballot_sync(~0u, digit >> b & 1);
    same &= digit >> b & 1 ? set : ~set;
  }
  return same;
}

/* Counts the digits of each tile: counts[line][digit][tile]. The lanes with one digit add once, since floats have few different digits.
 * Instances: tiles of all lines. */
extern "C" __global__ void k736f7274206c696e_3(const u64 *block, i64 instances, const __grid_constant__ sort_words w) {
  __shared__ u32 bins[256];
  const u32 t = threadIdx.x, lane = t & 31;
  (void)block;
  for (i64 g = blockIdx.x; g < instances; g += gridDim.x) {
    const i64 line = g / w.tiles, tile = g - line * w.tiles, begin = tile * TILE;
    const i64 x = w.first ? place_of(&w, w.x_at, line) : 0;
    bins[t] = 0;
    __syncthreads();
    u64 keys[ROUNDS];
    load_keys(&w, keys, line, x, begin + t, THREADS);
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
      const u32 digit = begin + t + r * THREADS < w.n ? (u32)(keys[r] >> w.shift) & 255 : 256, same = same_digit(digit);
      if (digit < 256 && !(same & ((1u << lane) - 1))) atomicAdd(&bins[digit], (u32)__popc(same));
    }
    __syncthreads();
    ((u32 *)w.counts)[(line * 256 + t) * w.tiles + tile] = bins[t];
    __syncthreads();
  }
}

/* Replaces each count by the sum of those of the tiles before it, and writes totals[line][digit]. Instances: lines, where these have few tiles
 * (each thread has a digit); else digits of all lines. */
extern "C" __global__ void k736f7274206c696e_4(const u64 *block, i64 instances, const __grid_constant__ sort_words w) {
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
      SUM_UP(sums, own)
      if (first + t < w.tiles) counts[first + t] = before + sums[t] - own;
      before += sums[THREADS - 1];
      __syncthreads();
    }
    if (t == 0) ((u32 *)w.totals)[g] = before;
  }
}

/* Moves the elements of tiles to their places by this digit. Instances: tiles of all lines. */
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    k736f7274206c696e_5(const u64 *block, i64 instances, const __grid_constant__ sort_words w) {
  __shared__ u32 warps[WARPS][256]; /* by warp and digit: elements so far; later those of the warps before it */
  __shared__ u32 base[256], sums[256];
  const u32 t = threadIdx.x, lane = t & 31, warp = t >> 5;
  (void)block;
  for (i64 g = blockIdx.x; g < instances; g += gridDim.x) {
    const i64 line = g / w.tiles, tile = g - line * w.tiles, begin = tile * TILE;
    const i64 x = w.first || w.last ? place_of(&w, w.x_at, line) : 0, out = w.last ? place_of(&w, w.out_at, line) : 0;
    const u32 own = ((const u32 *)w.totals)[line * 256 + t];
    for (int k = 0; k < WARPS; k++) warps[k][t] = 0;
    SUM_UP(sums, own)
    base[t] = sums[t] - own + ((const u32 *)w.counts)[(line * 256 + t) * w.tiles + tile];
    __syncthreads();
    const i64 mine = begin + (i64)warp * (32 * ROUNDS) + lane;
    u64 keys[ROUNDS];
    u32 ranks[ROUNDS];
    load_keys(&w, keys, line, x, mine, 32);
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
      const int there = mine + r * 32 < w.n;
      const u32 digit = there ? (u32)(keys[r] >> w.shift) & 255 : 256;
      const u32 same = same_digit(digit), before = __popc(same & ((1u << lane) - 1));
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
      const i64 i = mine + r * 32;
      if (i < w.n) {
        const u32 digit = (u32)(keys[r] >> w.shift) & 255;
        const u32 index = w.first ? (u32)i : ((const u32 *)w.index)[line * w.n + i];
        const i64 place = (i64)base[digit] + warps[warp][digit] + ranks[r], to = line * w.n + place;
        if (w.last) {
          store(&w, out + place * w.out_step, keys[r], x, index);
        } else {
          put_key(&w, to, keys[r]);
          ((u32 *)w.index_to)[to] = index;
        }
      }
    }
    __syncthreads();
  }
}
