/* x[mask] and the coordinates of true elements, on the device (compress.c), in the order of the mask.
 *
 * The mask is cut into at most TILES tiles, so few that one block can add up their counts of true elements. Then a block for each tile stores
 * the results of its true elements: the cell of x, if that is a word, or the coordinates. Larger cells are copied afterwards, by a list of
 * their places. A warp takes 256 elements at a time, 32 a vote. */

FN void copy_word(const compress_words *w, i64 to, i64 from) {
  switch (w->word) {
  case 1: ((u8 *)w->to)[to] = ((const u8 *)w->x)[from]; break;
  case 2: ((u16 *)w->to)[to] = ((const u16 *)w->x)[from]; break;
  case 4: ((u32 *)w->to)[to] = ((const u32 *)w->x)[from]; break;
  default: ((u64 *)w->to)[to] = ((const u64 *)w->x)[from]; break;
  }
}

FN void put_coordinates(const compress_words *w, i64 at, i64 i) {
  i64 *to = (i64 *)w->to + at * w->rank;
  for (int k = w->rank - 1; k > 0; k--) {
    const i64 q = i / w->shape[k];
    to[k] = i - q * w->shape[k];
    i = q;
  }
  if (w->rank) to[0] = i;
}

/* Counts the true elements of each tile. Instances: tiles. */
extern "C" __global__ void k636f6d7072657373_0(const u64 *block, i64 instances, const __grid_constant__ compress_words w) {
  __shared__ u32 all;
  const u32 t = threadIdx.x;
  const u8 *mask = (const u8 *)w.mask;
  (void)block;
  for (i64 g = blockIdx.x; g < instances; g += gridDim.x) {
    const i64 begin = g * w.tile, end = begin + w.tile < w.n ? begin + w.tile : w.n;
    u32 own = 0;
    for (i64 i = begin + t; i < end; i += THREADS) own += mask[i] != 0;
    if (t == 0) all = 0;
    __syncthreads();
    if (own) atomicAdd(&all, own);
    __syncthreads();
    if (t == 0) ((i64 *)w.counts)[g] = all;
    __syncthreads();
  }
}

/* Replaces each tile's count by the sum of those before it; the sum of all follows the last. One instance. */
extern "C" __global__ void k636f6d7072657373_1(const u64 *block, i64 instances, const __grid_constant__ compress_words w) {
  __shared__ i64 sums[THREADS];
  const u32 t = threadIdx.x;
  i64 *counts = (i64 *)w.counts, before = 0;
  (void)block;
  for (i64 first = 0; first < w.tiles; first += THREADS) {
    const i64 own = first + t < w.tiles ? counts[first + t] : 0;
    SUM_UP(sums, own)
    if (first + t < w.tiles) counts[first + t] = before + sums[t] - own;
    before += sums[THREADS - 1];
    __syncthreads();
  }
  if (t == 0) counts[w.tiles] = before;
}

/* Stores words or coordinates. Instances: tiles. */
extern "C" __global__ void k636f6d7072657373_2(const u64 *block, i64 instances, const __grid_constant__ compress_words w) {
  __shared__ u32 warps[WARPS];
  const u32 t = threadIdx.x, lane = t & 31, warp = t >> 5;
  const u8 *mask = (const u8 *)w.mask;
  (void)block;
  for (i64 g = blockIdx.x; g < instances; g += gridDim.x) {
    const i64 begin = g * w.tile, end = begin + w.tile < w.n ? begin + w.tile : w.n;
    i64 base = ((const i64 *)w.counts)[g];
    for (i64 first = begin; first < end; first += TILE) {
      const i64 mine = first + warp * (32 * ROUNDS) + lane;
      u32 votes[ROUNDS], own = 0, before = 0, all = 0;
#pragma unroll
      for (int r = 0; r < ROUNDS; r++) {
        const int set = mine + r * 32 < end && mask[mine + r * 32] != 0;
        votes[r] = __ballot_sync(~0u, set);
        own += __popc(votes[r]);
      }
      if (lane == 0) warps[warp] = own;
      __syncthreads();
#pragma unroll
      for (int k = 0; k < WARPS; k++) {
        before += k < (int)warp ? warps[k] : 0;
        all += warps[k];
      }
      __syncthreads();
      i64 to = base + before;
#pragma unroll
      for (int r = 0; r < ROUNDS; r++) {
        const i64 at = to + __popc(votes[r] & ((1u << lane) - 1));
        if (votes[r] >> lane & 1) {
          if (w.word)
            copy_word(&w, at, mine + r * 32);
          else
            put_coordinates(&w, at, mine + r * 32);
        }
        to += __popc(votes[r]);
      }
      base += all;
    }
  }
}

/* Copies cells of several words; `mask` is the list of their places. Instances: pieces of THREADS words. */
extern "C" __global__ void k636f6d7072657373_3(const u64 *block, i64 instances, const __grid_constant__ compress_words w) {
  const i64 *places = (const i64 *)w.mask;
  (void)block;
  for (i64 g = blockIdx.x; g < instances; g += gridDim.x) {
    const i64 e = g * THREADS + threadIdx.x;
    if (e < w.total) {
      const i64 k = w.total >> 32 ? e / w.cell : (i64)((u32)e / (u32)w.cell);
      copy_word(&w, e, places[k] * w.cell + (e - k * w.cell));
    }
  }
}
