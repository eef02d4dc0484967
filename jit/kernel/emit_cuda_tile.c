/* The CUDA printer's matrix products (emit_text.h): a TILE by 64 threads, in registers.
 *
 * The threads stand in a grid of GM by GN and each has RM by RN results of the tile, in groups of as many neighbours as make 16
 * bytes. Panels of DEEP steps of k of both operands go through shared memory, k by k, so that a step of k takes RM + RN values from
 * there for RM * RN fma. While one panel is used the next one is on its way into registers; which threads load what depends on the
 * direction in which an operand's elements are neighbours.
 *
 * The order of every sum is that of the plain loop: one chain upward over k, in chunks whose sums meet in a balanced tree. That is a
 * binary counter of subtrees as everywhere; where there is more than one chunk they lie behind the tile, in `out`, which the schedule
 * for GPUs makes large enough (tile_room in sched_emit.c). k beyond the depth takes no part, not even as zeros; rows and
 * columns beyond the edge are computed from zeros and left alone.
 *
 * In tiles of fewer results than threads (a vector times a vector) each result is one thread's chain; all threads load the panels. */
#include "jit/kernel/emit_text.h"

#include <stdarg.h>
#include <stdio.h>

#define line emit_line
#define at emit_at

enum { THREADS = 64, SIDE = 8, STATIC_SHARED = 48 << 10, OTHERS = 1280 /* shared memory of all phases */ };

typedef struct shape {
  int rows, columns, deep; /* the tile's size, and the depth of a panel */
  int gm, gn, rm, rn;      /* the grid of threads is gm by gn, and each has rm by rn results */
  int vx, vy;              /* elements of X and of Y that are read from shared memory at once */
  int pitch_x, pitch_y;    /* distance of the rows of a panel of X and of Y in shared memory */
  int nx, ny;              /* elements of a panel of X and of Y that a thread loads */
  int buffers;             /* panels of each operand that are in shared memory at a time */
} shape;

static int least(int a, int b) { return a < b ? a : b; }

static int64_t panel_bytes(const shape *s, int64_t size) {
  return (int64_t)s->buffers * s->deep * (s->pitch_x + s->pitch_y) * size;
}

/* Bytes of shared memory that the program's locals take. */
static int64_t shared_bytes(const emitter *e) {
  int64_t bytes = 0;
  for (l_val v = 1; v < e->p->n; v++)
    if (at(e, v)->code == L_LOCAL && emit_is_shared(e, v))
      bytes += (at(e, at(e, v)->a)->imm * (int64_t)dtype_size((qn_dtype)at(e, v)->dtype) + 63) & ~(int64_t)63;
  return bytes;
}

static bool shape_of(const emitter *e, const l_tile *t, shape *s) {
  int size = (int)dtype_size((qn_dtype)at(e, t->out)->dtype), wide = 16 / size;
  *s = (shape){.rows = t->tile_rows, .columns = t->tile_cols, .deep = size == 8 ? 8 : 16, .gm = SIDE, .gn = SIDE};
  if (t->x < 0 || t->y < 0 || size < 4) return false;
  if (s->rows < SIDE || s->rows > THREADS || (s->rows & (s->rows - 1))) return false;
  if (s->columns < SIDE || s->columns > THREADS || (s->columns & (s->columns - 1))) return false;
  s->rm = s->rows / s->gm;
  s->rn = s->columns / s->gn;
  s->vx = least(wide, s->rm);
  s->vy = least(wide, s->rn);
  s->pitch_x = s->rows + wide;
  s->pitch_y = s->columns + wide;
  s->nx = s->rows * s->deep / THREADS;
  s->ny = s->columns * s->deep / THREADS;
  for (s->buffers = 2; s->buffers; s->buffers--)
    if (panel_bytes(s, size) + shared_bytes(e) + OTHERS <= STATIC_SHARED) return true;
  return false;
}

/* Has `out` room behind the tile for sums of chunks, or is there only one chunk? */
static bool has_room(const emitter *e, const l_tile *t) {
  const l_instr *depth = at(e, t->depth), *size = at(e, at(e, t->out)->a);
  if (depth->code == L_IMIN) depth = at(e, at(e, depth->a)->code == L_INT ? depth->a : depth->b);
  return (depth->code == L_INT && depth->imm <= ORDER_DOT_CHUNK) || size->code != L_INT ||
         size->imm > (int64_t)t->tile_rows * t->tile_cols;
}

int emit_cuda_blocks(const emitter *e, int most) {
  /* REGISTERS for each of 64 threads if one block runs; with LEAST blocks a thread has as many as instructions can name */
  enum { REGISTERS = 1024, LEAST = 4 };
  for (uint32_t i = 0; i < e->p->ntiles; i++) {
    const l_tile *t = &e->p->tiles[i];
    shape s;
    if (!shape_of(e, t, &s) || !has_room(e, t)) continue;
    int words = s.rm * s.rn * (int)dtype_size((qn_dtype)at(e, t->out)->dtype) / 4;
    /* loads ahead, factors and addresses take about 100 registers; the number of blocks is even, as a multiprocessor has four parts */
    int blocks = REGISTERS / (words + 100) & ~1;
    most = least(most, blocks < LEAST ? LEAST : blocks);
  }
  return most;
}

/* Prints the address of the elements of one operand that thread t loads; r counts along the tile, k along the depth. */
static void print_way(emitter *e, char c, const char *buffer, uint8_t from, l_val base, l_val along, l_val k,
                      int extent, int pitch, int deep, bool prefer_k) {
  line(e, "const b8 %c_deep = v%u == 1%s;", c, k, prefer_k ? "" : " && !along_n");
  line(e, "const int %c_r = %c_deep ? t / %d : t %% %d, %c_rs = %c_deep ? %d : 0;", c, c, deep, extent, c, c,
       THREADS / deep);
  line(e, "const int %c_k = %c_deep ? t %% %d : t / %d, %c_ks = %c_deep ? 0 : %d;", c, c, deep, extent, c, c,
       THREADS / extent);
  line(e, "const %s *%c_p = %s + v%u + %c_r * v%u + %c_k * v%u;", emit_type(from), c, buffer, base, c, along, c, k);
  line(e, "const i64 %c_step = %c_rs * v%u + %c_ks * v%u, %c_next = %d * v%u;", c, c, along, c, k, c, deep, k);
  line(e, "const int %c_to = %c_k * %d + %c_r, %c_tos = %c_ks * %d + %c_rs;", c, c, pitch, c, c, c, pitch, c);
}

static void print_load(emitter *e, char c, int n, const char *cast, const char *T, const char *most) {
  line(e, "#pragma unroll");
  line(e, "for (int i = 0; i < %d; i++)", n);
  line(e, "  %c_in[i] = %c_r + i * %c_rs < %s && %c_k + i * %c_ks < left ? (%s)%s(%c_p[i * %c_step]) : (%s)0;", c, c, c,
       most, c, c, T, cast, c, c, T);
  line(e, "%c_p += %c_next;", c, c);
}

static void print_loads(emitter *e, const shape *s, const char *cast, const char *T) {
  print_load(e, 'x', s->nx, cast, T, "rows");
  print_load(e, 'y', s->ny, cast, T, "cols");
}

/* Prints a line in a loop over all results o of the thread; OWN(o) is the position of result o in the tile. */
static void print_each(emitter *e, const shape *s, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void print_each(emitter *e, const shape *s, const char *format, ...) {
  char what[EMIT_TEXT];
  va_list args;
  va_start(args, format);
  vsnprintf(what, sizeof what, format, args);
  va_end(args);
  line(e, "#pragma unroll");
  line(e, "for (int o = 0; o < %d; o++) { const int own = OWN(o); %s }", s->rm * s->rn, what);
}

/* Prints `loop`, in it print_each(add), then `end`: adds subtrees to the sums of all results. */
static void print_each_subtree(emitter *e, const shape *s, const char *loop, const char *add, const char *end) {
  int depth = e->depth, step = s->rows * s->columns;
  line(e, loop, step);
  e->depth = depth;
  print_each(e, s, "s[o] = %s(q[own], s[o]);", add);
  e->depth = depth + 1;
  line(e, "%s", end);
  e->depth = depth;
}

/* The words of the printed source for a tile's operands and for what is done with them. */
typedef struct words {
  uint8_t from, to;  /* dtypes of the operands and of the sums */
  char x[24], y[24]; /* names of the buffers */
  char cast[48];     /* function that casts an element to the sums' dtype */
  char add[48];      /* function that adds two sums */
  char id[80];       /* a sum of no products */
} words;

static void words_of(emitter *e, const l_tile *t, words *w) {
  w->from = emit_buffer_type(e, t->x);
  w->to = at(e, t->out)->dtype;
  emit_buffer(t->x, w->x);
  emit_buffer(t->y, w->y);
  emit_prim(e, w->cast, KOP_cast, w->to, w->from);
  emit_prim(e, w->add, KOP_add, w->to, w->to);
  l_instr acc = {.sub = KOP_add, .dtype = w->to, .imm = ORDER_DOT};
  acc_identity(&acc, w->id);
}

/* One step of a sum of products as text: fma(x, y, sum), or for integers sum + x * y. */
static void step_text(emitter *e, const words *w, const char *sum, const char *x, const char *y, char out[EMIT_TEXT]) {
  char f[48];
  if (dtype_is_float((qn_dtype)w->to))
    snprintf(out, EMIT_TEXT, "%s(%s, %s, %s)", emit_prim(e, f, KOP_fma, w->to, w->to), x, y, sum);
  else
    snprintf(out, EMIT_TEXT, "%s(%s, %s(%s, %s))", w->add, sum, emit_prim(e, f, KOP_mul, w->to, w->to), x, y);
}

/* Prints one step of k: the products for all results of the thread. */
static void print_step(emitter *e, const shape *s, const words *w) {
  char sum[24], step[EMIT_TEXT];
  const char *T = emit_type(w->to);
  line(e, "%s a_[%d], b_[%d];", T, s->rm, s->rn);
  line(e, "#pragma unroll");
  line(e, "for (int i = 0; i < %d; i++) { const x_many q = ((const x_many *)(px + k * %d))[i * %d + tm];",
       s->rm / s->vx, s->pitch_x, s->gm);
  line(e, "for (int l = 0; l < %d; l++) a_[i * %d + l] = q.v[l]; }", s->vx, s->vx);
  line(e, "#pragma unroll");
  line(e, "for (int i = 0; i < %d; i++) { const y_many q = ((const y_many *)(py + k * %d))[i * %d + tn];",
       s->rn / s->vy, s->pitch_y, s->gn);
  line(e, "for (int l = 0; l < %d; l++) b_[i * %d + l] = q.v[l]; }", s->vy, s->vy);
  line(e, "#pragma unroll");
  line(e, "for (int i = 0; i < %d; i++)", s->rm);
  line(e, "#pragma unroll");
  snprintf(sum, sizeof sum, "s[i * %d + j]", s->rn);
  step_text(e, w, sum, "a_[i]", "b_[j]", step);
  line(e, "  for (int j = 0; j < %d; j++) %s = %s;", s->rn, sum, step);
}

/* ---- tiles of few results ------------------------------------------------------------------------------------------------------ */

enum { FEW_LEAST = 64, FEW_MOST = 256, FEW_BYTES = 16 << 10 };

/* The depth of panels: a power of two of at least THREADS, and less than a chunk. 0: such panels do not fit in shared memory. */
static int few_deep(const emitter *e, const l_tile *t) {
  int64_t size = (int64_t)dtype_size((qn_dtype)at(e, t->out)->dtype), rows = t->tile_rows + t->tile_cols;
  if (t->x < 0 || t->y < 0 || size < 4 || (int64_t)t->tile_rows * t->tile_cols > THREADS) return 0;
  int64_t deep = FEW_MOST;
  while (deep >= FEW_LEAST && rows * (deep + 1) * size > FEW_BYTES) deep /= 2;
  if (deep < FEW_LEAST || rows * (deep + 1) * size + shared_bytes(e) + OTHERS > STATIC_SHARED) return 0;
  return (int)deep;
}

static void print_few_way(emitter *e, char c, const char *buffer, const char *T, int rows, int deep, l_val base,
                          l_val along, l_val k, const char *cast) {
  line(e, "%s %c_in[%d];", T, c, rows * deep / THREADS);
  line(e, "#define LOAD_%c(k0) _Pragma(\"unroll\") for (int i = 0; i < %d; i++) { \\", c, rows * deep / THREADS);
  line(e, "const int q = i * %d + t, r = q / %d, k = q %% %d; \\", THREADS, deep, deep);
  line(e, "%c_in[i] = r < %c_most && (k0) + k < depth ? (%s)%s(%s[v%u + r * v%u + ((k0) + k) * v%u]) : (%s)0; }", c, c,
       T, cast, buffer, base, along, k, T);
}

/* Prints a tile of fewer results than threads, as of a vector times a vector: all threads load panels of both operands into shared memory;
 * those that have a result go through them while the next panels are being loaded. False if it does not fit. */
static bool print_few(emitter *e, const l_tile *t) {
  int deep = few_deep(e, t), pitch = deep + 1;
  if (!deep) return false;
  char step[EMIT_TEXT];
  words w;
  words_of(e, t, &w);
  const char *T = emit_type(w.to), *add = w.add, *id = w.id;
  line(e, "{");
  line(e, "__shared__ %s x_panel[%d], y_panel[%d];", T, t->tile_rows * pitch, t->tile_cols * pitch);
  line(e, "const i64 depth = v%u; const int x_most = (int)v%u, y_most = (int)v%u, row = t / %d, col = t %% %d;",
       t->depth, t->rows, t->cols, t->tile_cols, t->tile_cols);
  line(e, "const b8 mine = row < x_most && col < y_most; %s s[1] = {%s}, tree[24]; u64 leaves = 0;", T, id);
  print_few_way(e, 'x', w.x, T, t->tile_rows, deep, t->x_base, t->x_m, t->x_k, w.cast);
  print_few_way(e, 'y', w.y, T, t->tile_cols, deep, t->y_base, t->y_n, t->y_k, w.cast);
  line(e, "SYNC LOAD_x(0) LOAD_y(0)"); /* in a loop other threads may have stored the operands */
  line(e, "for (i64 k0 = 0; k0 < depth; k0 += %d) {", deep);
  line(e, "SYNC");
  line(e, "#pragma unroll");
  line(e, "for (int i = 0; i < %d; i++) x_panel[(i * %d + t) / %d * %d + (i * %d + t) %% %d] = x_in[i];",
       t->tile_rows * deep / THREADS, THREADS, deep, pitch, THREADS, deep);
  line(e, "#pragma unroll");
  line(e, "for (int i = 0; i < %d; i++) y_panel[(i * %d + t) / %d * %d + (i * %d + t) %% %d] = y_in[i];",
       t->tile_cols * deep / THREADS, THREADS, deep, pitch, THREADS, deep);
  line(e, "SYNC LOAD_x(k0 + %d) LOAD_y(k0 + %d)", deep, deep);
  line(e, "const int now = depth - k0 < %d ? (int)(depth - k0) : %d;", deep, deep);
  line(e, "if (mine) {");
  line(e, "const %s *const px = x_panel + row * %d, *const py = y_panel + col * %d;", T, pitch, pitch);
  line(e, "#pragma unroll 16");
  step_text(e, &w, "s[0]", "px[k]", "py[k]", step);
  line(e, "for (int k = 0; k < now; k++) s[0] = %s;", step);
  line(e, "}");
  line(e,
       "if ((k0 + %d) %% %d == 0 || k0 + %d >= depth) { TREE_ADD(%s, %s, tree, 1, leaves, s, 1) leaves++; s[0] = %s; }",
       deep, ORDER_DOT_CHUNK, deep, T, add, id);
  line(e, "}");
  line(e, "TREE_END(%s, %s, tree, 1, leaves, s, 1, (%s)0) if (mine) v%u[row * %d + col] = s[0];", T, add, T, t->out,
       t->tile_cols);
  line(e, "#undef LOAD_x");
  line(e, "#undef LOAD_y");
  line(e, "SYNC");
  line(e, "}");
  return true;
}

/* Prints the end of a chunk where there are several: its sums become a leaf of the tree behind the tile. */
static void print_chunk_end(emitter *e, const l_tile *t, const shape *s, const words *w) {
  line(e, "if (depth > %d && (left <= 0 || (k0 + %d) %% %d == 0)) {", ORDER_DOT_CHUNK, s->deep, ORDER_DOT_CHUNK);
  line(e, "%s *q = v%u + %d;", emit_type(w->to), t->out, s->rows * s->columns);
  print_each_subtree(e, s, "for (u64 c = leaves; c & 1; c >>= 1, q += %d) {", w->add, "}");
  print_each(e, s, "q[own] = s[o]; s[o] = %s;", w->id);
  line(e, "leaves++;");
  line(e, "}");
}

/* Prints what follows the last chunk: the root of the tree, and the stores of the results to the tile. */
static void print_sums(emitter *e, const l_tile *t, const shape *s, const words *w) {
  int tile = s->rows * s->columns;
  const char *T = emit_type(w->to);
  line(e, "if (leaves) {");
  line(e, "const %s *q = v%u + %d; u64 c = leaves;", T, t->out, tile);
  line(e, "for (; !(c & 1); c >>= 1) q += %d;", tile);
  print_each(e, s, "s[o] = q[own];");
  print_each_subtree(e, s, "while (c >>= 1) { q += %d; if (c & 1) {", w->add, "} }");
  line(e, "}");
  print_each(e, s, "v%u[own] = depth > 0 ? s[o] : (%s)0;", t->out, T);
}

/* Prints any tile plainly: thread t computes results t, t + 64, .. one after another, from memory. */
static void print_plain(emitter *e, const l_tile *t) {
  char step[EMIT_TEXT];
  words w;
  words_of(e, t, &w);
  const char *T = emit_type(w.to);
  const l_instr *deep = at(e, t->depth);
  if (deep->code == L_INT && deep->imm > 0 &&
      deep->imm <= ORDER_DOT_CHUNK) { /* one chain, whose loads come ahead of it */
    line(e, "SYNC for (int o_ = t; o_ < %d; o_ += 64) {", t->tile_rows * t->tile_cols);
    line(e, "const int row = o_ / %d, col = o_ %% %d; %s s = %s;", t->tile_cols, t->tile_cols, T, w.id);
    line(e, "if (row >= v%u || col >= v%u) continue;", t->rows, t->cols);
    line(e, "const %s *const xs = %s + (v%u + row * v%u); const %s *const ys = %s + (v%u + col * v%u);",
         emit_type(w.from), w.x, t->x_base, t->x_m, emit_type(w.from), w.y, t->y_base, t->y_n);
    line(e, "_Pragma(\"unroll 16\") for (int k = 0; k < %d; k++) {", (int)deep->imm);
    line(e, "const %s x = %s(xs[k * v%u]), y = %s(ys[k * v%u]);", T, w.cast, t->x_k, w.cast, t->y_k);
    step_text(e, &w, "s", "x", "y", step);
    line(e, "s = %s;", step);
    line(e, "}");
    line(e, "v%u[o_] = s;", t->out);
    line(e, "}");
    line(e, "SYNC");
    return;
  }
  line(e, "SYNC for (i64 o_ = t; o_ < v%u * v%u; o_ += 64) {", t->rows, t->cols);
  line(e, "const i64 row = o_ / v%u, col = o_ %% v%u, depth = v%u; %s s[1] = {%s}, tree[24]; u64 leaves = 0;", t->cols,
       t->cols, t->depth, T, w.id);
  line(e, "for (i64 k = 0; k < depth; k++) {");
  line(e, "const %s x = %s(%s[v%u + row * v%u + k * v%u]), y = %s(%s[v%u + k * v%u + col * v%u]);", T, w.cast, w.x,
       t->x_base, t->x_m, t->x_k, w.cast, w.y, t->y_base, t->y_k, t->y_n);
  step_text(e, &w, "s[0]", "x", "y", step);
  line(e, "s[0] = %s;", step);
  line(e, "if ((k + 1) %% %d == 0) { TREE_ADD(%s, %s, tree, 1, leaves, s, 1) leaves++; s[0] = %s; }", ORDER_DOT_CHUNK,
       T, w.add, w.id);
  line(e, "}");
  line(e, "if (depth %% %d != 0) { TREE_ADD(%s, %s, tree, 1, leaves, s, 1) leaves++; }", ORDER_DOT_CHUNK, T, w.add);
  line(e, "TREE_END(%s, %s, tree, 1, leaves, s, 1, (%s)0) v%u[row * %d + col] = s[0];", T, w.add, T, t->out,
       t->tile_cols);
  line(e, "}");
  line(e, "SYNC");
}

/* Prints a tile whose results the threads keep in registers. */
static void print_registers(emitter *e, const l_tile *t, const shape *s) {
  words w;
  words_of(e, t, &w);
  const char *T = emit_type(w.to);
  int size = (int)dtype_size((qn_dtype)w.to);
  line(e, "{");
  line(e, "typedef struct x_many { %s v[%d]; } __attribute__((aligned(%d))) x_many;", T, s->vx, s->vx * size);
  line(e, "typedef struct y_many { %s v[%d]; } __attribute__((aligned(%d))) y_many;", T, s->vy, s->vy * size);
  line(e, "__shared__ x_many x_panel[%d]; __shared__ y_many y_panel[%d];", s->buffers * s->deep * s->pitch_x / s->vx,
       s->buffers * s->deep * s->pitch_y / s->vy);
  line(e, "const i64 depth = v%u; const int rows = (int)v%u, cols = (int)v%u, tm = t / %d, tn = t %% %d;", t->depth,
       t->rows, t->cols, s->gn, s->gn);
  line(e, "const b8 along_n = v%u == 1;", t->y_n);
  print_way(e, 'x', w.x, w.from, t->x_base, t->x_m, t->x_k, s->rows, s->pitch_x, s->deep, true);
  print_way(e, 'y', w.y, w.from, t->y_base, t->y_n, t->y_k, s->columns, s->pitch_y, s->deep, false);
  line(e,
       "#define OWN(o) ((((o) / %d / %d * %d + tm) * %d + (o) / %d %% %d) * %d + ((o) %% %d / %d * %d + tn) * %d + (o) "
       "%% %d %% %d)",
       s->rn, s->vx, s->gm, s->vx, s->rn, s->vx, s->columns, s->rn, s->vy, s->gn, s->vy, s->rn, s->vy);
  line(e, "%s s[%d], x_in[%d], y_in[%d]; u64 leaves = 0; int left = depth < %d ? (int)depth : %d;", T, s->rm * s->rn,
       s->nx, s->ny, s->deep, s->deep);
  print_each(e, s, "(void)own; s[o] = %s;", w.id);
  line(e, "SYNC");
  print_loads(e, s, w.cast, T);
  line(e, "SYNC for (i64 k0 = 0; k0 < depth; k0 += %d) {", s->deep);
  line(e,
       "const int turn = %d * (int)(k0 / %d & 1); %s *const px = (%s *)x_panel + turn * %d, *const py = (%s *)y_panel "
       "+ turn * %d;",
       s->buffers - 1, s->deep, T, T, s->deep * s->pitch_x, T, s->deep * s->pitch_y);
  line(e, "#pragma unroll");
  line(e, "for (int i = 0; i < %d; i++) px[x_to + i * x_tos] = x_in[i];", s->nx);
  line(e, "#pragma unroll");
  line(e, "for (int i = 0; i < %d; i++) py[y_to + i * y_tos] = y_in[i];", s->ny);
  line(e, "const int now = left; left = depth - k0 - %d < %d ? (int)(depth - k0 - %d) : %d;", s->deep, s->deep, s->deep,
       s->deep);
  line(e, "SYNC if (left > 0) {");
  print_loads(e, s, w.cast, T);
  line(e, "}");
  line(e, "if (now == %d) {", s->deep);
  line(e, "#pragma unroll");
  line(e, "for (int k = 0; k < %d; k++) {", s->deep);
  print_step(e, s, &w);
  line(e, "}");
  line(e, "}");
  line(e, "else for (int k = 0; k < now; k++) {");
  print_step(e, s, &w);
  line(e, "}");
  if (s->buffers == 1) line(e, "SYNC");
  print_chunk_end(e, t, s, &w);
  line(e, "}");
  print_sums(e, t, s, &w);
  line(e, "#undef OWN");
  line(e, "SYNC");
  line(e, "}");
}

void emit_cuda_tile(emitter *e, const l_tile *t) {
  shape s;
  if (shape_of(e, t, &s) && has_room(e, t))
    print_registers(e, t, &s);
  else if (!print_few(e, t))
    print_plain(e, t);
}
