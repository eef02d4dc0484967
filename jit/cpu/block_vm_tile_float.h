/* The products of block_vm_tile.h for one type of floats, T; included there once for each. */
#define OF(name) TILE_JOIN(name, T)
#define VECTOR OF(tile_v)
#define LANES OF(TILE_V)
#define SLICE OF(TILE_SLICE)
#define TILE_SPLAT(v) ((v) - (VECTOR){0}) /* subtracting zero keeps every value, -0 included */

enum {
  OF(TILE_PAD) = 64 / sizeof(T), /* behind each packed row or panel of x: they lie in different sets of the cache */
  OF(TILE_X) = (TILE_ROWS + TILE_ROWS / 2) * SLICE,       /* room for packed x, */
  OF(TILE_Y) = TILE_BLOCK * OF(TILE_N) * SLICE + 64,      /* for packed y, with slack, */
  OF(TILE_WIDENED) = OF(TILE_N) * (SLICE + OF(TILE_PAD)), /* for columns of a narrow type, widened */
  OF(TILE_TREE) = TILE_TREE_BYTES / sizeof(T)             /* and for the sums of chunks */
};
_Static_assert(TILE_ROWS *(SLICE + OF(TILE_PAD)) <= OF(TILE_X), "rows of x");
_Static_assert((TILE_ROWS / TILE_M + 1) * (TILE_PITCH * SLICE + OF(TILE_PAD)) <= OF(TILE_X), "panels of x");
_Static_assert(sizeof(T) * (OF(TILE_X) + OF(TILE_Y) + OF(TILE_WIDENED) + OF(TILE_TREE)) <= QK_TILE_WORK, "all of it");

/* ---- the kernel ---- */

/* The operands of a kernel: rows of x by a panel of y, at most two vectors wide. Strides of x in bytes. `lanes`: how many lanes of the panel's last
 * vector there are in y and out. `first` starts the chains; otherwise they go on from `out`. */
typedef struct OF(tile_step) {
  const char *x;
  int64_t x_m, x_k;
  const T *y;
  int64_t y_k;
  T *out;
  int64_t ld, depth;
  int lanes;
  bool first;
  /* of windows in place: where step k's rows begin, and for each vector, from there, the place of its first elements (`some` of them) and of those behind */
  const int64_t *row;
  const T *at[2], *then[2];
  OF(TILE_MASK) some[2];
} OF(tile_step);

/* mr rows by nv vectors of a panel of that kind. The rows of x are addressed from each fifth of them: addresses with a factor of 1, 2 or 4 cost
 * nothing, and compilers must not make a pointer for each row, which are more than there are registers. */
static inline __attribute__((always_inline)) void OF(tile_kernel)(const int mr, const int kind,
                                                                  const OF(tile_step) * p) {
  const int nv = kind == TILE_IS_NARROW ? 1 : 2;
  const bool whole = kind != TILE_IS_PART && kind != TILE_IS_NARROW,
             placed = kind == TILE_IS_RUNS || kind == TILE_IS_PIECES;
  VECTOR s[TILE_M][2], y[2];
  const OF(TILE_MASK) some = OF(TILE_SOME)(p->lanes);
  const int64_t x_m = p->x_m, x_k = p->x_k, x_3m = 3 * x_m, ld = p->ld;
  const char *x0 = p->x, *x5 = x0 + 5 * x_m, *x10 = x5 + 5 * x_m;
  const T *py = p->y;
  const T *at[2] = {p->at[0], p->at[1]}, *then[2] = {p->then[0], p->then[1]};
  const OF(TILE_MASK) ends[2] = {p->some[0], p->some[1]};
  const int64_t *row = p->row;
  T *out = p->out;
#define X_AT(m) ((m) < 5 ? x0 : (m) < 10 ? x5 : x10) + ((m) % 5 == 3 ? x_3m : (m) % 5 * x_m)
#define X_SPLAT(m) TILE_SPLAT(*(const T *)(const void *)(X_AT(m)))
#define LAST(v) (!whole && (v) == nv - 1)
#define LOAD(p, v)                                                                                                     \
  (LAST(v) ? OF(TILE_LOAD_SOME)((p) + (v)*LANES, some) : (VECTOR) * (const OF(tile_u) *)((p) + (v)*LANES))
#define LOAD_Y(v)                                                                                                      \
  (!placed                ? LOAD(py, v)                                                                                \
   : kind == TILE_IS_RUNS ? (VECTOR) * (const OF(tile_u) *)(at[v] + row[k])                                            \
                          : OF(TILE_THEN)((VECTOR) * (const OF(tile_u) *)(at[v] + row[k]), ends[v], then[v] + row[k]))
#define STEP x0 += x_k, x5 += x_k, x10 += x_k, py += placed ? 0 : p->y_k
  int64_t k = 0;
  if (p->first) {
    for (int v = 0; v < nv; v++) y[v] = LOAD_Y(v);
    _Pragma("GCC unroll 16") for (int m = 0; m < mr; m++) {
      VECTOR b = X_SPLAT(m);
      for (int v = 0; v < nv; v++) s[m][v] = b * y[v];
    }
    STEP;
    k = 1;
  } else {
    _Pragma("GCC unroll 16") for (int m = 0; m < mr; m++) for (int v = 0; v < nv; v++) s[m][v] = LOAD(out + m * ld, v);
  }
  for (; k < p->depth; k++, STEP) {
    __asm__ volatile("" : "+r"(x0), "+r"(x5), "+r"(x10));
    for (int v = 0; v < nv; v++) y[v] = LOAD_Y(v);
    _Pragma("GCC unroll 16") for (int m = 0; m < mr; m++) {
      VECTOR b = X_SPLAT(m);
      for (int v = 0; v < nv; v++) s[m][v] = OF(TILE_FMA)(b, y[v], s[m][v]);
    }
  }
  _Pragma("GCC unroll 16") for (int m = 0; m < mr; m++) for (int v = 0; v < nv; v++) {
    if (LAST(v))
      OF(TILE_STORE_SOME)(out + m * ld + v * LANES, some, s[m][v]);
    else
      *(OF(tile_u) *)(out + m * ld + v * LANES) = s[m][v];
  }
#undef X_AT
#undef X_SPLAT
#undef LAST
#undef LOAD
#undef LOAD_Y
#undef STEP
}

typedef void (*OF(tile_kernel_fn))(const OF(tile_step) * p);
#define TILE_KERNEL(mr)                                                                                                \
  static void OF(tile_whole_##mr)(const OF(tile_step) * p) { OF(tile_kernel)(mr, TILE_IS_WHOLE, p); }                  \
  static void OF(tile_part_##mr)(const OF(tile_step) * p) { OF(tile_kernel)(mr, TILE_IS_PART, p); }                    \
  static void OF(tile_narrow_##mr)(const OF(tile_step) * p) { OF(tile_kernel)(mr, TILE_IS_NARROW, p); }                \
  static void OF(tile_runs_##mr)(const OF(tile_step) * p) { OF(tile_kernel)(mr, TILE_IS_RUNS, p); }                    \
  static void OF(tile_pieces_##mr)(const OF(tile_step) * p) { OF(tile_kernel)(mr, TILE_IS_PIECES, p); }
TILE_KERNELS(TILE_KERNEL)
#undef TILE_KERNEL
/* By kind of panel and rows - 1. */
static const OF(tile_kernel_fn) OF(tile_kernels)[TILE_KINDS][TILE_M] = {
#define TILE_KERNEL(mr) OF(tile_whole_##mr),
    {TILE_KERNELS(TILE_KERNEL)},
#undef TILE_KERNEL
#define TILE_KERNEL(mr) OF(tile_part_##mr),
    {TILE_KERNELS(TILE_KERNEL)},
#undef TILE_KERNEL
#define TILE_KERNEL(mr) OF(tile_narrow_##mr),
    {TILE_KERNELS(TILE_KERNEL)},
#undef TILE_KERNEL
#define TILE_KERNEL(mr) OF(tile_runs_##mr),
    {TILE_KERNELS(TILE_KERNEL)},
#undef TILE_KERNEL
#define TILE_KERNEL(mr) OF(tile_pieces_##mr),
    {TILE_KERNELS(TILE_KERNEL)},
#undef TILE_KERNEL
};

/* ---- packing ---- */

/* Element `at` of an array of the float type d, as T. */
static inline __attribute__((always_inline)) T OF(tile_at)(const void *p, int64_t at, int d) {
  switch (d) {
  case QN_f16: return OF(cast_f16)(((const f16 *)p)[at]);
  case QN_bf16: return OF(cast_bf16)(((const bf16 *)p)[at]);
  default: return ((const T *)p)[at];
  }
}
/* to[0..n) = elements `at` and following */
static void OF(tile_take)(T *to, const void *p, int64_t at, int64_t n, int d) {
  switch (d) {
  case QN_f16: SIMD for (int64_t i = 0; i < n; i++) to[i] = OF(tile_at)(p, at + i, QN_f16); return;
  case QN_bf16: SIMD for (int64_t i = 0; i < n; i++) to[i] = OF(tile_at)(p, at + i, QN_bf16); return;
  default: SIMD for (int64_t i = 0; i < n; i++) to[i] = OF(tile_at)(p, at + i, OF(DTYPE));
  }
}
/* panel[k * pitch + i] = element at + i * si + k * sk, for i < n and k < depth; the rest of a whole vector may be anything. */
static void OF(tile_gather)(T *panel, int64_t pitch, const void *p, int64_t at, int64_t si, int64_t sk, int n,
                            int64_t depth, int d) {
  for (int i = 0; i < n; i++) {
    switch (d) {
    case QN_f16:
      for (int64_t k = 0; k < depth; k++) panel[k * pitch + i] = OF(tile_at)(p, at + i * si + k * sk, QN_f16);
      break;
    case QN_bf16:
      for (int64_t k = 0; k < depth; k++) panel[k * pitch + i] = OF(tile_at)(p, at + i * si + k * sk, QN_bf16);
      break;
    default:
      for (int64_t k = 0; k < depth; k++) panel[k * pitch + i] = OF(tile_at)(p, at + i * si + k * sk, OF(DTYPE));
    }
  }
}
/* One panel of n columns of y from element `at` on. */
static void OF(tile_pack_panel)(T *panel, T *widened, const qk_tile *t, int64_t at, int n, int64_t depth) {
  const int pitch = OF(TILE_N), d = t->yd;
  if (t->y_n == 1) {
    for (int64_t k = 0; k < depth; k++) OF(tile_take)(panel + k * pitch, t->y, at + k * t->y_k, n, d);
  } else if (t->y_k != 1) {
    OF(tile_gather)(panel, pitch, t->y, at, t->y_n, t->y_k, n, depth, d);
  } else if (d == OF(DTYPE)) {
    OF(tile_turn)(panel, pitch, (const T *)t->y + at, t->y_n, n, depth);
  } else {
    const int64_t long_ = SLICE + OF(TILE_PAD);
    for (int i = 0; i < n; i++) OF(tile_take)(widened + i * long_, t->y, at + i * t->y_n, depth, d);
    OF(tile_turn)(panel, pitch, widened, long_, n, depth);
  }
}
/* Packs `cols` columns of y, at most TILE_BLOCK panels of them, from element `at` on. */
static void OF(tile_pack_y)(T *py, T *widened, const qk_tile *t, int64_t at, int64_t cols, int64_t depth) {
  int64_t n = 0;
  if (t->y_n == 1 && t->yd == OF(DTYPE)) { /* whole panels together, since long pieces of memory are read faster */
    n = cols / OF(TILE_N) * OF(TILE_N);
    for (int64_t k = 0; k < depth && n; k++) {
      const OF(tile_u) *from = (const OF(tile_u) *)((const T *)t->y + at + k * t->y_k);
      T *to = py + k * OF(TILE_N);
      for (int64_t i = 0; i < n; i += OF(TILE_N), from += 2, to += SLICE * OF(TILE_N)) {
        *(OF(tile_u) *)to = from[0];
        *(OF(tile_u) *)(to + LANES) = from[1];
      }
    }
  }
  for (; n < cols; n += OF(TILE_N)) OF(tile_pack_panel)
  (py + n * SLICE, widened, t, at + n * t->y_n, cols - n < OF(TILE_N) ? (int)(cols - n) : OF(TILE_N), depth);
}

/* A run of a row of windows, at most a vector; `more`: where its elements lie two apart, those of the second vector. */
typedef struct OF(tile_piece) {
  int64_t from;
  int to, length;
  OF(TILE_MASK) some, more;
} OF(tile_piece);

/* Packs a panel of so many pieces a row. What is stored behind a piece is overwritten by the next. */
static inline __attribute__((always_inline)) void OF(tile_pack_pieces)(const int many, T *panel, const T *y,
                                                                       const OF(tile_piece) * pieces,
                                                                       const int64_t *row, int64_t depth) {
  const T *from[4];
  T *to[4];
  OF(TILE_MASK) some[4];
  for (int i = 0; i < many; i++) from[i] = y + pieces[i].from, to[i] = panel + pieces[i].to, some[i] = pieces[i].some;
  for (int64_t k = 0; k < depth; k++)
    _Pragma("GCC unroll 4") for (int i = 0; i < many; i++) * (OF(tile_u) *)(to[i] + k * OF(TILE_N)) =
        OF(TILE_LOAD_SOME)(from[i] + row[k], some[i]);
}

/* The same where y is windows, whose rows begin at `row` and whose columns lie at `at`, in runs of elements `step` apart (1 or 2): runs are copied
 * along rows, or (step 0) along the depth and then turned. The panel has room for a vector behind the columns of a row. */
static void OF(tile_pack_windows)(T *panel, T *widened, const qk_tile *t, const int64_t *at, int wide,
                                  const int64_t *row, int step, int64_t depth) {
  const int d = t->yd, long_ = SLICE + OF(TILE_PAD);
  if (!step) {
    for (int i = 0; i < wide; i++)
      for (int64_t k = 0, length; k < depth; k += length) {
        length = tile_run(row + k, depth - k, 1);
        OF(tile_take)(widened + i * long_ + k, t->y, at[i] + row[k], length, d);
      }
    OF(tile_turn)(panel, OF(TILE_N), widened, long_, wide, depth);
    return;
  }
  OF(tile_piece) piece[OF(TILE_N)];
  int pieces = 0;
  for (int i = 0, length; i < wide; i += length) {
    length = (int)tile_run(at + i, wide - i < LANES ? wide - i : LANES, step);
    const int span = (length - 1) * step + 1;
    piece[pieces++] = (OF(tile_piece)){.from = at[i],
                                       .to = i,
                                       .length = length,
                                       .some = OF(TILE_SOME)(span < LANES ? span : LANES),
                                       .more = OF(TILE_SOME)(span < LANES ? 0 : span - LANES)};
  }
  if (d == OF(DTYPE) && step == 1 && pieces <= 4) {
    switch (pieces) {
    case 1: OF(tile_pack_pieces)(1, panel, t->y, piece, row, depth); break;
    case 2: OF(tile_pack_pieces)(2, panel, t->y, piece, row, depth); break;
    case 3: OF(tile_pack_pieces)(3, panel, t->y, piece, row, depth); break;
    default: OF(tile_pack_pieces)(4, panel, t->y, piece, row, depth);
    }
    return;
  }
  for (int64_t k = 0; k < depth; k++, panel += OF(TILE_N))
    for (int i = 0; i < pieces; i++) {
      T *to = panel + piece[i].to;
      const int64_t from = piece[i].from + row[k];
      const T *y = (const T *)t->y + from;
      if (d != OF(DTYPE))
        OF(tile_take)(to, t->y, from, piece[i].length, d);
      else if (piece[i].length == 1)
        *to = *y;
      else if (step == 1)
        *(OF(tile_u) *)to = OF(TILE_LOAD_SOME)(y, piece[i].some);
      else
        *(OF(tile_u) *)to =
            OF(TILE_EVEN)(OF(TILE_LOAD_SOME)(y, piece[i].some), OF(TILE_LOAD_SOME)(y + LANES, piece[i].more));
    }
}

/* How kernels can read a whole panel of windows, whose columns lie at `at`, in place: TILE_IS_RUNS or TILE_IS_PIECES, and TILE_IS_WHOLE if they cannot. A
 * vector's second piece must lie behind its first: then what is read of the first's elements and not needed lies between the two. */
static int OF(tile_placed)(OF(tile_step) * s, const T *y, const int64_t *at) {
  int kind = TILE_IS_RUNS;
  for (int v = 0; v < 2; v++, at += LANES) {
    const int n = (int)tile_run(at, LANES, 1);
    s->at[v] = s->then[v] = y + at[0];
    s->some[v] = OF(TILE_SOME)(n);
    if (n == LANES) continue;
    if (at[n] <= at[n - 1] || n + tile_run(at + n, LANES - n, 1) < LANES) return TILE_IS_WHOLE;
    s->then[v] = y + (at[n] - n);
    kind = TILE_IS_PIECES;
  }
  return kind;
}

/* Where kernels find x: how many bytes each panel of rows is behind the one before, and the strides within one. */
typedef struct OF(tile_x) {
  const char *at;
  int64_t panel, x_m, x_k;
} OF(tile_x);

/* Do so many rows that are so many bytes apart lie in the same few sets of a cache with ways of 4 KiB? */
static inline bool OF(tile_collides)(int64_t bytes, int rows) {
  int64_t off = bytes & 4095;
  if (off > 2048) off = 4096 - off;
  return rows > 4 && off * rows < 512;
}

/* `rows` rows of x for a slice of the depth that begins at element `at`, panels of `high` rows; `uses`: how many panels of y they meet. */
static OF(tile_x)
    OF(tile_take_x)(T *px, const qk_tile *t, int64_t at, int rows, int high, int64_t depth, int64_t uses) {
  const int64_t size = sizeof(T), bytes = t->x_m * size;
  const bool same = t->xd == OF(DTYPE);
  if (same && (t->x_k == 1   ? uses < 3 || !OF(tile_collides)(bytes, high)
               : t->x_m == 1 ? uses == 1 || t->x_k * size * depth <= TILE_NEAR
                             : uses == 1))
    return (OF(tile_x)){(const char *)((const T *)t->x + at), bytes * high, bytes, t->x_k * size};
  if (t->x_k == 1) { /* rows as they are */
    const int64_t pitch = SLICE + OF(TILE_PAD);
    for (int m = 0; m < rows; m++) OF(tile_take)(px + m * pitch, t->x, at + m * t->x_m, depth, t->xd);
    return (OF(tile_x)){(const char *)px, pitch * size * high, pitch * size, size};
  }
  const int64_t panel = TILE_PITCH * SLICE + OF(TILE_PAD);
  if (t->x_m == 1)
    for (int64_t k = 0; k < depth; k++) {
      T *to = px + k * TILE_PITCH;
      for (int m = 0; m < rows; m += high, to += panel) {
        const int n = rows - m < high ? rows - m : high;
        const int64_t from = at + k * t->x_k + m;
        if (same && n == high && m + TILE_PITCH <= rows) { /* what follows the panel is there, too */
          const OF(tile_u) *v = (const OF(tile_u) *)((const T *)t->x + from);
          for (int i = 0; i < TILE_PITCH / LANES; i++) ((OF(tile_u) *)to)[i] = v[i];
        } else {
          for (int i = 0; i < n; i++) to[i] = OF(tile_at)(t->x, from + i, t->xd);
        }
      }
    }
  else
    for (int m = 0, p = 0; m < rows; m += high, p++) OF(tile_gather)
  (px + p * panel, TILE_PITCH, t->x, at + m * t->x_m, t->x_m, t->x_k, rows - m < high ? rows - m : high, depth, t->xd);
  return (OF(tile_x)){(const char *)px, panel * size, size, TILE_PITCH * size};
}

/* One chunk, at most 4,096 deep, of at most TILE_ROWS rows. */
static void OF(tile_chunk)(const qk_tile *t, int64_t m0, int64_t n0, int64_t k0, int rows, int64_t cols, int64_t depth,
                           T *out, int64_t ld) {
  T *px = t->work, *py = px + OF(TILE_X), *widened = py + OF(TILE_Y);
  /* panels of equal height, so that none is too low to keep the multipliers busy, and slices of equal depth */
  const int panels = (rows + TILE_M - 1) / TILE_M, high = (rows + panels - 1) / panels;
  const int64_t slices = (depth + SLICE - 1) / SLICE, slice = ((depth + slices - 1) / slices + 15) & ~(int64_t)15;
  for (int64_t k = 0; k < depth; k += slice) {
    const int64_t d = depth - k < slice ? depth - k : slice;
    const OF(tile_x) x =
        OF(tile_take_x)(px, t, m0 * t->x_m + (k0 + k) * t->x_k, rows, high, d, (cols + OF(TILE_N) - 1) / OF(TILE_N));
    int64_t row[SLICE];
    if (t->ndigits) tile_offsets(t, true, k0 + k, d, row);
    const int64_t down = t->ndigits ? tile_runs(row, d, 1) : 0;
    const bool there = !t->ndigits && t->yd == OF(DTYPE) && t->y_n == 1 &&
                       (panels == 1 || t->y_k * (int64_t)sizeof(T) * d <= TILE_NEAR);
    OF(tile_step)
    s = {.x_m = x.x_m,
         .x_k = x.x_k,
         .y_k = there ? t->y_k : OF(TILE_N),
         .ld = ld,
         .depth = d,
         .first = k == 0,
         .row = row};
    int64_t column[TILE_BLOCK * OF(TILE_N)];
    int step = 1; /* of runs along columns; 0: those along rows are longer */
    for (int64_t n = 0; n < cols; n += OF(TILE_N)) {
      const int nc = cols - n < OF(TILE_N) ? (int)(cols - n) : OF(TILE_N);
      const int64_t at = (n0 + n) * t->y_n + (k0 + k) * t->y_k, block = TILE_BLOCK * OF(TILE_N);
      const int64_t some = cols - n < block ? cols - n : block;
      int kind = nc == OF(TILE_N) ? TILE_IS_WHOLE : nc > LANES ? TILE_IS_PART : TILE_IS_NARROW;
      s.y = there ? (const T *)t->y + at : py + n % block * SLICE;
      s.lanes = nc > LANES ? nc - LANES : nc;
      if (t->ndigits) {
        if (n % block == 0) {
          tile_offsets(t, false, n0 + n, some, column);
          step = t->yd == OF(DTYPE) && some > 1 && column[1] - column[0] == 2 ? 2 : 1;
          if (down * some < tile_runs(column, some, step) * d) step = 0;
        }
        if (kind == TILE_IS_WHOLE && step == 1 && t->yd == OF(DTYPE))
          kind = OF(tile_placed)(&s, t->y, column + n % block);
        if (kind != TILE_IS_RUNS && (kind != TILE_IS_PIECES || panels > TILE_PIECED)) {
          kind = kind == TILE_IS_PIECES ? TILE_IS_WHOLE : kind;
          OF(tile_pack_windows)(py + n % block * SLICE, widened, t, column + n % block, nc, row, step, d);
        }
      } else if (!there && n % block == 0)
        OF(tile_pack_y)(py, widened, t, at, some, d);
      const OF(tile_kernel_fn) *kernels = OF(tile_kernels)[kind];
      s.x = x.at;
      for (int m = 0; m < rows; m += high, s.x += x.panel) {
        s.out = out + m * ld + n;
        kernels[(rows - m < high ? rows - m : high) - 1](&s);
      }
    }
  }
}

/* Deeper products: chunks as leaves of the balanced tree, kept as a binary counter of subtrees, for as large a block of the results as there is room for. */
static void OF(tile_deep)(const qk_tile *t, int64_t m0, int64_t n0, int rows, int cols, T *out) {
  const int64_t size = (int64_t)rows * cols;
  T *tree = (T *)t->work + OF(TILE_X) + OF(TILE_Y) + OF(TILE_WIDENED), *leaf = tree;
  tree += size;
  uint64_t n = 0;
  for (int64_t k = 0; k < t->depth; k += ORDER_DOT_CHUNK, n++) {
    int64_t d = t->depth - k < ORDER_DOT_CHUNK ? t->depth - k : ORDER_DOT_CHUNK;
    OF(tile_chunk)(t, m0, n0, k, rows, cols, d, leaf, cols);
    int l = 0;
    for (; n >> l & 1; l++) {
      const T *of = tree + l * size;
      SIMD for (int64_t i = 0; i < size; i++) leaf[i] = of[i] + leaf[i];
    }
    memcpy(tree + l * size, leaf, (size_t)size * sizeof(T));
  }
  bool any = false;
  for (int l = 0; n >> l; l++) {
    if (!(n >> l & 1)) continue;
    const T *of = tree + l * size;
    SIMD for (int64_t i = 0; i < size; i++) leaf[i] = any ? of[i] + leaf[i] : of[i];
    any = true;
  }
  for (int r = 0; r < rows; r++)
    memcpy(out + (m0 + r) * t->ld + n0, leaf + (int64_t)r * cols, (size_t)cols * sizeof(T));
}
static void OF(tile_deeps)(const qk_tile *t, T *out) {
  int levels = 2; /* of the tree, and the leaf */
  for (int64_t n = t->depth / ORDER_DOT_CHUNK; n; n /= 2) levels++;
  const int64_t room = OF(TILE_TREE) / levels, mb = t->rows < TILE_M * 8 ? t->rows : TILE_M * 8,
                nb = room / mb / OF(TILE_N) * OF(TILE_N);
  for (int64_t m = 0; m < t->rows; m += mb)
    for (int64_t n = 0; n < t->cols; n += nb) OF(tile_deep)
  (t, m, n, (int)(t->rows - m < mb ? t->rows - m : mb), (int)(t->cols - n < nb ? t->cols - n : nb), out);
}

/* ---- few results, single rows and columns ---- */

/* `many` chunks of one result side by side, each `depth` deep: a chain of fma alone waits for itself most of the time. */
static inline __attribute__((always_inline)) void OF(tile_beside)(const int many, const void *x, int64_t xk, int xd,
                                                                  const void *y, int64_t yk, int yd, int64_t depth,
                                                                  T *sums) {
  T s[TILE_BESIDE];
  for (int c = 0; c < many; c++)
    s[c] = OF(tile_at)(x, c * ORDER_DOT_CHUNK * xk, xd) * OF(tile_at)(y, c * ORDER_DOT_CHUNK * yk, yd);
  for (int64_t k = 1; k < depth; k++)
    _Pragma("GCC unroll 8") for (int c = 0; c < many; c++) s[c] = OF(fma)(
        OF(tile_at)(x, (c * ORDER_DOT_CHUNK + k) * xk, xd), OF(tile_at)(y, (c * ORDER_DOT_CHUNK + k) * yk, yd), s[c]);
  for (int c = 0; c < many; c++) sums[c] = s[c];
}
static inline __attribute__((always_inline)) void
OF(tile_some)(int many, const void *x, int64_t xk, int xd, const void *y, int64_t yk, int yd, int64_t depth, T *sums) {
  switch (many) {
  case TILE_BESIDE: OF(tile_beside)(TILE_BESIDE, x, xk, xd, y, yk, yd, depth, sums); break;
  case TILE_BESIDE / 2: OF(tile_beside)(TILE_BESIDE / 2, x, xk, xd, y, yk, yd, depth, sums); break;
  case TILE_BESIDE / 4: OF(tile_beside)(TILE_BESIDE / 4, x, xk, xd, y, yk, yd, depth, sums); break;
  default: OF(tile_beside)(1, x, xk, xd, y, yk, yd, depth, sums);
  }
}
static void OF(tile_chunks)(const qk_tile *t, int64_t x, int64_t y, int many, int64_t depth, T *sums) {
  const void *px = (const char *)t->x + x * (int64_t)dtype_rows[t->xd].size,
             *py = (const char *)t->y + y * (int64_t)dtype_rows[t->yd].size;
  if (t->xd != OF(DTYPE) || t->yd != OF(DTYPE))
    OF(tile_some)(many, px, t->x_k, t->xd, py, t->y_k, t->yd, depth, sums);
  else if (t->x_k != 1 || t->y_k != 1)
    OF(tile_some)(many, px, t->x_k, OF(DTYPE), py, t->y_k, OF(DTYPE), depth, sums);
  else if (many < TILE_BESIDE || !OF(tile_lanes)(px, py, depth, sums))
    OF(tile_some)(many, px, 1, OF(DTYPE), py, 1, OF(DTYPE), depth, sums);
}
/* Few results, as of a vector times a vector: nothing is packed. */
static void OF(tile_few)(const qk_tile *t) {
  for (int64_t i = 0; i < t->rows * t->cols; i++) {
    int64_t m = i / t->cols, n = i % t->cols, x = m * t->x_m, y = n * t->y_n, whole = t->depth / ORDER_DOT_CHUNK;
    T tree[TILE_LEVELS], sums[TILE_BESIDE];
    int64_t leaves = 0;
    for (int64_t k = 0; k < t->depth;) {
      int many = TILE_BESIDE;
      while (many > 1 && many > whole - leaves) many /= 2;
      int64_t depth = leaves < whole ? ORDER_DOT_CHUNK : t->depth - k;
      OF(tile_chunks)(t, x + k * t->x_k, y + k * t->y_k, many, depth, sums);
      k += many * depth;
      for (int c = 0; c < many; c++, leaves++) {
        T leaf = sums[c];
        int l = 0;
        for (; leaves >> l & 1; l++) leaf = tree[l] + leaf;
        tree[l] = leaf;
      }
    }
    T sum = 0;
    bool any = false;
    for (int l = 0; leaves >> l; l++) {
      if (!(leaves >> l & 1)) continue;
      sum = any ? tree[l] + sum : tree[l];
      any = true;
    }
    ((T *)t->out)[m * t->ld + n] = sum;
  }
}
/* `many` vectors of one row of sums: so many chains at a time, since one alone waits for itself */
static inline __attribute__((always_inline)) void OF(tile_wide)(const int many, const T *x, int64_t xk, const T *y,
                                                                int64_t yk, int64_t depth, T *out) {
  OF(tile_v) s[TILE_WIDE], b = TILE_SPLAT(x[0]);
  for (int c = 0; c < many; c++) s[c] = b * *(const OF(tile_u) *)(y + c * OF(TILE_V));
  for (int64_t k = 1; k < depth; k++) {
    const T *py = y + k * yk;
    b = TILE_SPLAT(x[k * xk]);
    _Pragma("GCC unroll 8") for (int c = 0; c < many; c++) s[c] =
        OF(TILE_FMA)(b, *(const OF(tile_u) *)(py + c * OF(TILE_V)), s[c]);
  }
  for (int c = 0; c < many; c++) *(OF(tile_u) *)(out + c * OF(TILE_V)) = s[c];
}
/* One row of x by at least a vector of columns of y, which lie side by side: nothing is packed. The last vector may lie over the one before. */
static void OF(tile_row)(const qk_tile *t) {
  const T *x = t->x, *y = t->y;
  T *out = t->out;
  int64_t n = 0, cols = t->cols;
  for (; cols - n >= TILE_WIDE * OF(TILE_V); n += TILE_WIDE * OF(TILE_V))
    OF(tile_wide)(TILE_WIDE, x, t->x_k, y + n, t->y_k, t->depth, out + n);
  if (cols - n >= TILE_WIDE / 2 * OF(TILE_V)) {
    OF(tile_wide)(TILE_WIDE / 2, x, t->x_k, y + n, t->y_k, t->depth, out + n);
    n += TILE_WIDE / 2 * OF(TILE_V);
  }
  if (cols - n >= TILE_WIDE / 4 * OF(TILE_V)) {
    OF(tile_wide)(TILE_WIDE / 4, x, t->x_k, y + n, t->y_k, t->depth, out + n);
    n += TILE_WIDE / 4 * OF(TILE_V);
  }
  for (; n < cols; n += OF(TILE_V)) {
    if (cols - n < OF(TILE_V)) n = cols - OF(TILE_V);
    OF(tile_wide)(1, x, t->x_k, y + n, t->y_k, t->depth, out + n);
  }
}
static void OF(tile_turned)(const qk_tile *t);
static void OF(tile)(const qk_tile *t) {
  T *out = t->out;
  if (t->depth <= 0) {
    for (int64_t m = 0; m < t->rows; m++)
      for (int64_t n = 0; n < t->cols; n++) out[m * t->ld + n] = 0;
    return;
  }
  if (!t->ndigits && t->rows * t->cols <= (t->depth <= ORDER_DOT_CHUNK ? TILE_FEW : TILE_FEW_DEEP)) {
    OF(tile_few)(t);
    return;
  }
  if (!t->ndigits && t->xd == OF(DTYPE) && t->yd == OF(DTYPE) &&
      t->depth <= ORDER_DOT_CHUNK) { /* a matrix, whose rows lie along k, times a vector */
    if (t->cols == 1 && t->x_k == 1 && t->x_m != 1 &&
        OF(tile_column)(t->x, t->x_m, t->y, t->y_k, t->rows, t->depth, out, t->ld))
      return;
    if (t->rows == 1 && t->y_k == 1 && t->y_n != 1 &&
        OF(tile_column)(t->y, t->y_n, t->x, t->x_k, t->cols, t->depth, out, 1))
      return;
  }
  if (!t->ndigits && t->cols < LANES && t->rows > 2 * t->cols &&
      (t->x_k != 1 || t->cols == 1)) { /* the wide side across vectors: transposed */
    OF(tile_turned)(t);
    return;
  }
  if (!t->ndigits && t->rows == 1 && t->y_n == 1 && t->xd == OF(DTYPE) && t->yd == OF(DTYPE) && t->cols >= LANES &&
      t->depth <= ORDER_DOT_CHUNK) {
    OF(tile_row)(t);
    return;
  }
  if (t->depth > ORDER_DOT_CHUNK) {
    OF(tile_deeps)(t, out);
    return;
  }
  for (int64_t m = 0; m < t->rows; m += TILE_ROWS) OF(tile_chunk)
  (t, m, 0, 0, t->rows - m < TILE_ROWS ? (int)(t->rows - m) : TILE_ROWS, t->cols, t->depth, out + m * t->ld, t->ld);
}
static void OF(tile_turned)(const qk_tile *t) {
  if (t->cols == 1 && t->ld == 1) { /* the results lie as wanted */
    qk_tile u = *t;
    u.x = t->y, u.y = t->x, u.x_k = t->y_k, u.y_k = t->x_k, u.y_n = t->x_m, u.rows = 1, u.cols = t->rows, u.xd = t->yd,
    u.yd = t->xd;
    OF(tile)(&u);
    return;
  }
  T turned[OF(TILE_V) * TILE_TURNED];
  for (int64_t m = 0; m < t->rows; m += TILE_TURNED) {
    int64_t rows = t->rows - m < TILE_TURNED ? t->rows - m : TILE_TURNED;
    qk_tile u = {t->y,     (const char *)t->x + m * t->x_m * (int64_t)dtype_rows[t->xd].size,
                 turned,   t->work,
                 t->y_n,   t->y_k,
                 t->x_k,   t->x_m,
                 t->cols,  rows,
                 t->depth, TILE_TURNED,
                 t->yd,    t->xd,
                 t->od,    0,
                 0,        0,
                 NULL};
    OF(tile)(&u);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t c = 0; c < t->cols; c++) ((T *)t->out)[(m + r) * t->ld + c] = turned[c * TILE_TURNED + r];
  }
}

#undef OF
#undef VECTOR
#undef LANES
#undef SLICE
#undef TILE_SPLAT
