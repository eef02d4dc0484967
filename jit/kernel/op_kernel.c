/* One-op kernels of eager dispatch (plan.h): from a call to a key, and from a key to a program.
 *
 * A key is a recipe for a graph of one node (of the few that graph_op makes of it, for a product of two vectors). Sizes and strides become numbered slots, whose values are the program's ints; what the
 * program's structure depends on stays in the key: op, dtypes, ranks, which sizes are 1 or 0, which axes share a size, strides
 * of 0 and 1, the magnitude of each size, and which reduced axes are joined (lower.c). Before that axes are merged: neighbours
 * that every operand walks through in one stride are one axis, so that most calls have rank 1 or 2.
 *
 *   op nin dtype | attr: dtype axes keepdims mode flags d0 joins | nsizes, magnitudes..
 *   per operand: dtype rank, per axis: size stride | result: rank, per axis: size
 *
 * Sizes are written as SIZE_ONE, SIZE_ZERO or SIZE_SLOT + number; strides as 0, 1 or 2 (the next stride slot; stride slots come
 * behind the sizes). kernel_for_op makes the graph, lowers and schedules it like any other, and then turns the program's
 * parameters into slots. */
#include <stdlib.h>
#include <string.h>

#include "jit/graph/folds.h"
#include "jit/kernel/lower.h"
#include "jit/kernel/plan.h"
#include "jit/kernel/schedule.h"

enum { SIZE_ONE, SIZE_ZERO, SIZE_SLOT };
enum { STRIDE_ZERO, STRIDE_ONE, STRIDE_SLOT };
enum { GRAIN = 32768 };

/* ---- from a call to a key ------------------------------------------------------------------------------------------------ */

/* The axes of a call while they are merged. A column is an operand: a stride for each axis. */
typedef struct space {
  int rank;
  int64_t size[2 * ARRAY_MAX_RANK];
  int64_t stride[OP_CALL_OPERANDS][2 * ARRAY_MAX_RANK];
  uint8_t kind[2 * ARRAY_MAX_RANK]; /* by axis; only neighbours of one kind are merged */
} space;

typedef struct key_writer {
  /* the key, and what will follow the sizes in it, which are known only after all axes were seen */
  op_key *key, body;
  int64_t *ints;
  uint8_t sizes[64]; /* magnitudes of the size slots */
  int nsizes;
  int64_t strides[OP_CALL_OPERANDS * ARRAY_MAX_RANK];
  int nstrides;
  bool fine; /* do magnitudes of sizes matter? */
  bool full; /* was there not enough room? */
} key_writer;

static void put_byte(key_writer *w, op_key *to, int byte) {
  if (to->n < OP_KEY_BYTES)
    to->bytes[to->n++] = (uint8_t)byte;
  else
    w->full = true;
}
static void put(key_writer *w, int byte) { put_byte(w, w->key, byte); }
static void add(key_writer *w, int byte) { put_byte(w, &w->body, byte); }

/* The magnitude of a size, in powers of four, so that the bounds 16, 64 and 65,536 that schedules use fall between two magnitudes. */
static uint8_t magnitude(const key_writer *w, int64_t size) {
  int m = 0;
  while (m < 10 && size >> (2 * m + 2)) m++;
  return (uint8_t)(w->fine ? m : m < 2 ? 1 : m < 3 ? 2 : 5);
}
static int64_t magnitude_hint(uint8_t m) { return (int64_t)2 << 2 * m; }

/* Makes a size slot (but not for sizes 0 and 1) and returns what the key has for axes of this size. */
static uint8_t size_code(key_writer *w, int64_t size) {
  if (size == 1) return SIZE_ONE;
  if (size == 0) return SIZE_ZERO;
  if (w->nsizes == (int)sizeof w->sizes) {
    w->full = true;
    return SIZE_ONE;
  }
  w->ints[w->nsizes] = size;
  w->sizes[w->nsizes] = magnitude(w, size);
  return (uint8_t)(SIZE_SLOT + w->nsizes++);
}

static uint8_t stride_code(key_writer *w, int64_t stride) {
  if (stride == 0) return STRIDE_ZERO;
  if (stride == 1) return STRIDE_ONE;
  w->strides[w->nstrides++] = stride;
  return STRIDE_SLOT;
}

static void put_head(key_writer *w, const op_call *c, const op_attr *a, int joins) {
  put(w, c->op);
  put(w, c->nin);
  put(w, c->out.dtype);
  put(w, a->dtype);
  put(w, a->axes);
  put(w, a->keepdims);
  put(w, a->mode);
  put(w, a->flags & ~ATTR_PROVEN);
  put(w, c->op == OP_index || c->op == OP_scatter ? (int)a->d[0] : 0);
  put(w, joins);
}

static void add_operand(key_writer *w, uint8_t dtype, int rank) {
  add(w, dtype);
  add(w, rank);
}

static void add_axis(key_writer *w, uint8_t size, int64_t stride) {
  add(w, size);
  add(w, stride_code(w, stride));
}

static void add_result(key_writer *w, const uint8_t *sizes, int rank) {
  add(w, rank);
  for (int a = 0; a < rank; a++) add(w, sizes[a]);
}

/* Appends the magnitudes of sizes, then the body. False if there was no room. */
static bool put_rest(key_writer *w) {
  put(w, w->nsizes);
  for (int i = 0; i < w->nsizes; i++) put(w, w->sizes[i]);
  for (int i = 0; i < w->body.n; i++) put(w, w->body.bytes[i]);
  if (w->nsizes + w->nstrides > OP_CALL_INTS) w->full = true;
  for (int i = 0; i < w->nstrides && !w->full; i++) w->ints[w->nsizes + i] = w->strides[i];
  return !w->full;
}

/* Merges neighbouring axes of one kind that every column walks through with one stride. Axes of size 1 are merged with any neighbour. */
static void merge_axes(space *s, int columns) {
  int n = 0;
  for (int a = 0; a < s->rank; a++) {
    bool merge = n > 0 && s->kind[n - 1] == s->kind[a];
    for (int c = 0; merge && c < columns && s->size[a] != 1 && s->size[n - 1] != 1; c++)
      merge = s->stride[c][n - 1] == s->stride[c][a] * s->size[a];
    bool keep_outer = merge && s->size[a] == 1; /* the stride of an axis of size 1 means nothing */
    if (merge) n--;
    s->size[n] = merge ? s->size[n] * s->size[a] : s->size[a];
    s->kind[n] = s->kind[a];
    for (int c = 0; c < columns && !keep_outer; c++) s->stride[c][n] = s->stride[c][a];
    n++;
  }
  s->rank = n;
}

/* Sets column c of the space to axes o_first .. o_last of operand o, aligned from the right with the axes of the space before `last`. */
static void add_column(space *s, int c, const op_operand *o, int o_first, int o_last, int last) {
  for (int a = 0; a < s->rank; a++) s->stride[c][a] = 0;
  for (int a = o_last - 1, to = last - 1; a >= o_first; a--, to--)
    if (to >= 0 && o->shape[a] != 1) s->stride[c][to] = o->strides[a];
}

static void size_codes(key_writer *w, const space *s, uint8_t *codes) {
  for (int a = 0; a < s->rank; a++) codes[a] = size_code(w, s->size[a]);
}

/* Writes an operand whose axes are those of the space. Axes along which it is broadcast have stride 0 and are written as size 1, unless it
 * is `whole`: its own shape says what the op runs over. */
static void put_column(key_writer *w, const space *s, int c, const uint8_t *codes, uint8_t dtype, bool whole) {
  add_operand(w, dtype, s->rank);
  for (int a = 0; a < s->rank; a++) add_axis(w, s->stride[c][a] == 0 && !whole ? SIZE_ONE : codes[a], s->stride[c][a]);
}

static bool key_pointwise(key_writer *w, const op_call *c, const op_attr *attr) {
  space s = {.rank = c->out.rank};
  uint8_t codes[2 * ARRAY_MAX_RANK];
  memcpy(s.size, c->out.shape, sizeof c->out.shape);
  for (int i = 0; i < c->nin; i++) add_column(&s, i, &c->in[i], 0, c->in[i].rank, s.rank);
  merge_axes(&s, c->nin);
  size_codes(w, &s, codes);
  put_head(w, c, attr, 0);
  for (int i = 0; i < c->nin; i++) put_column(w, &s, i, codes, c->in[i].dtype, false);
  add_result(w, codes, s.rank);
  return put_rest(w);
}

/* A mask of the reduced axes that are joined with their inner neighbour, by the rule of folds.h for the sizes of this call. */
static int joined_axes(const space *s) {
  int64_t extent = 0;
  int joins = 0;
  for (int a = s->rank - 1; a >= 0; a--) {
    if (!s->kind[a]) extent = 0;
    if (!s->kind[a] || s->size[a] == 1) continue;
    bool join = extent && extent < FOLD_JOIN_BELOW;
    if (join) joins |= 1 << a;
    extent = join ? extent * s->size[a] : s->size[a];
    if (extent == 0) extent = 1;
  }
  return joins;
}

/* REDUCE ops. Axes that are not reduced are merged with each other. Reduced ones are not, since their lengths decide the order, except
 * joined ones, which count as one anyway. */
static bool key_reduce(key_writer *w, const op_call *c, const op_attr *attr) {
  const op_operand *x = &c->in[0];
  bool index = c->op == OP_argmax || c->op == OP_argmin, scan = op_rows[c->op].klass == CLASS_SCAN;
  space s = {.rank = x->rank};
  uint8_t codes[2 * ARRAY_MAX_RANK], result[ARRAY_MAX_RANK];
  memcpy(s.size, x->shape, sizeof x->shape);
  memcpy(s.stride[0], x->strides, sizeof x->strides);
  for (int a = 0; a < s.rank; a++) s.kind[a] = attr->axes >> a & 1 ? (uint8_t)(2 + a) : 0;
  int joins = scan ? 0 : index ? attr->axes : joined_axes(&s);
  for (int a = s.rank - 2; a >= 0; a--)
    if ((joins >> a & 1) && s.kind[a] && s.kind[a + 1]) s.kind[a] = s.kind[a + 1];
  merge_axes(&s, 1);
  op_attr now = *attr;
  int rank = 0;
  now.axes = 0;
  now.keepdims = 0;
  size_codes(w, &s, codes);
  for (int a = 0; a < s.rank; a++) {
    if (s.kind[a]) now.axes |= (uint8_t)(1 << a);
    if (!s.kind[a] || scan) result[rank++] = codes[a];
  }
  joins = scan ? 0 : joined_axes(&s);
  put_head(w, c, &now, index || scan ? 0 : joins);
  add_operand(w, x->dtype, s.rank);
  for (int a = 0; a < s.rank; a++) add_axis(w, codes[a], s.stride[0][a]);
  add_result(w, result, rank);
  return put_rest(w);
}

static bool key_dot(key_writer *w, const op_call *c, const op_attr *attr) {
  const op_operand *x = &c->in[0], *y = &c->in[1];
  bool row = x->rank == 1, column = y->rank == 1;
  if (dot_is_sum(x->rank, y->rank)) { /* no product of matrices with one row and one column, which is a chain */
    uint8_t k = size_code(w, x->shape[0]);
    put_head(w, c, attr, 0);
    for (int i = 0; i < 2; i++) {
      add_operand(w, c->in[i].dtype, 1);
      add_axis(w, k, x->shape[0] == 1 ? 0 : c->in[i].strides[0]);
    }
    add_result(w, NULL, 0);
    return put_rest(w);
  }
  space s = {.rank = c->out.rank + row + column};
  int batch = s.rank - 2;
  uint8_t codes[2 * ARRAY_MAX_RANK], k;
  /* The axes of the space are (batch.., m, n); k is written separately. */
  for (int a = 0; a < batch; a++) s.size[a] = c->out.shape[a];
  s.size[batch] = row ? 1 : x->shape[x->rank - 2];
  s.size[batch + 1] = column ? 1 : y->shape[y->rank - 1];
  add_column(&s, 0, x, 0, row ? 0 : x->rank - 1, batch + 1);
  add_column(&s, 1, y, 0, column ? 0 : y->rank - 2, batch);
  if (!column) s.stride[1][batch + 1] = y->strides[y->rank - 1];
  /* Where the right operand has no batch axes, batch and rows are merged: it is one product of matrices. */
  bool one_right = !row;
  for (int a = 0; a < batch; a++) one_right &= s.stride[1][a] == 0;
  for (int a = 0; a <= batch; a++) s.kind[a] = one_right ? 1 : a == batch ? 2 : 1;
  s.kind[batch + 1] = 3;
  merge_axes(&s, 2);
  if (s.rank < 2 || (!one_right && s.rank < 3 && batch > 0)) return false;
  size_codes(w, &s, codes);
  k = size_code(w, x->shape[x->rank - 1]);
  put_head(w, c, attr, 0);
  int64_t xk = x->strides[x->rank - 1], yk = y->strides[column ? 0 : y->rank - 2];
  bool k_one = x->shape[x->rank - 1] == 1;
  add_operand(w, x->dtype, s.rank);
  for (int a = 0; a < s.rank - 1; a++)
    add_axis(w, s.stride[0][a] == 0 && a < s.rank - 2 ? SIZE_ONE : codes[a], s.stride[0][a]);
  add_axis(w, k, k_one ? 0 : xk);
  add_operand(w, y->dtype, s.rank);
  for (int a = 0; a < s.rank - 2; a++) add_axis(w, s.stride[1][a] == 0 ? SIZE_ONE : codes[a], s.stride[1][a]);
  add_axis(w, k, k_one ? 0 : yk);
  add_axis(w, codes[s.rank - 1], s.stride[1][s.rank - 1]);
  add_result(w, codes, s.rank);
  return put_rest(w);
}

/* index and scatter: the axes of the space are (those of the index operands.., those of x that are not indexed..). */
static bool key_index(key_writer *w, const op_call *c, const op_attr *attr) {
  bool scatter = c->op == OP_scatter;
  int count = (int)attr->d[0], index_rank = 0;
  const op_operand *x = &c->in[0];
  for (int i = 1; i <= count; i++)
    if (c->in[i].rank > index_rank) index_rank = c->in[i].rank;
  int rest = x->rank - count;
  space s = {.rank = index_rank + rest};
  uint8_t codes[2 * ARRAY_MAX_RANK], lead[ARRAY_MAX_RANK];
  if (count < 1 || rest < 0 || index_rank > ARRAY_MAX_RANK) return false;
  for (int a = 0; a < index_rank; a++) s.size[a] = 1;
  for (int i = 1; i <= count; i++)
    for (int a = 0; a < c->in[i].rank; a++)
      if (c->in[i].shape[a] != 1) s.size[index_rank - c->in[i].rank + a] = c->in[i].shape[a];
  for (int a = 0; a < rest; a++) s.size[index_rank + a] = x->shape[count + a];
  for (int a = index_rank; a < s.rank; a++) s.kind[a] = 1;
  add_column(&s, 0, x, count, x->rank, s.rank);
  for (int i = 1; i <= count; i++) add_column(&s, i, &c->in[i], 0, c->in[i].rank, index_rank);
  if (scatter) add_column(&s, count + 1, &c->in[count + 1], 0, c->in[count + 1].rank, s.rank);
  merge_axes(&s, c->nin);
  int split = 0;
  while (split < s.rank && s.kind[split] == 0) split++;
  if (count + s.rank - split > ARRAY_MAX_RANK || s.rank > ARRAY_MAX_RANK) return false;
  size_codes(w, &s, codes);
  for (int i = 0; i < count; i++) lead[i] = size_code(w, x->shape[i]);
  put_head(w, c, attr, 0);
  add_operand(w, x->dtype, count + s.rank - split);
  for (int i = 0; i < count; i++) add_axis(w, lead[i], x->strides[i]);
  for (int a = split; a < s.rank; a++) add_axis(w, codes[a], s.stride[0][a]);
  space front = s;
  front.rank = split;
  for (int i = 1; i <= count; i++) put_column(w, &front, i, codes, c->in[i].dtype, scatter);
  if (scatter) put_column(w, &s, count + 1, codes, c->in[count + 1].dtype, false);
  if (scatter) {
    add(w, count + s.rank - split);
    for (int i = 0; i < count; i++) add(w, lead[i]);
    for (int a = split; a < s.rank; a++) add(w, codes[a]);
  } else {
    add_result(w, codes, s.rank);
  }
  return put_rest(w);
}

/* gather and gather_add: axes are not merged; the operands share all sizes but that of the indexed axis. */
static bool key_along(key_writer *w, const op_call *c, const op_attr *attr) {
  const op_operand *x = &c->in[0], *index = &c->in[1];
  int axis = 0, rank = x->rank;
  while (axis < rank && !(attr->axes >> axis & 1)) axis++;
  if (axis == rank || index->rank != rank) return false;
  uint8_t of_x[ARRAY_MAX_RANK], of_index[ARRAY_MAX_RANK];
  for (int a = 0; a < rank; a++) {
    of_index[a] = size_code(w, index->shape[a]);
    of_x[a] = x->shape[a] == index->shape[a] ? of_index[a] : size_code(w, x->shape[a]);
  }
  put_head(w, c, attr, 0);
  for (int i = 0; i < c->nin; i++) {
    const op_operand *o = &c->in[i];
    add_operand(w, o->dtype, o->rank);
    for (int a = 0; a < o->rank; a++) {
      int to = rank - o->rank + a;
      add_axis(w, o->shape[a] == 1 ? SIZE_ONE : i == 0 ? of_x[a] : of_index[to], o->shape[a] == 1 ? 0 : o->strides[a]);
    }
  }
  add_result(w, c->op == OP_gather ? of_index : of_x, rank);
  return put_rest(w);
}

/* RANDOM ops. An element's number is its row-major position, so what a key draws is one axis. Where keys are arrays (`joins` says so), their
 * axes come before it, and operands are written without it. */
static bool key_draw(key_writer *w, const op_call *c, const op_attr *attr) {
  uint8_t codes[2 * ARRAY_MAX_RANK];
  space s = {.rank = 0};
  int64_t each = 1;
  for (int i = 0; i < c->nin; i++)
    if (c->in[i].rank > s.rank) s.rank = c->in[i].rank;
  bool arrays = s.rank > 0;
  for (int a = s.rank; a < c->out.rank; a++) each *= c->out.shape[a];
  memcpy(s.size, c->out.shape, (size_t)s.rank * sizeof *s.size);
  for (int i = 0; i < c->nin; i++) add_column(&s, i, &c->in[i], 0, c->in[i].rank, s.rank);
  merge_axes(&s, c->nin);
  size_codes(w, &s, codes);
  op_attr head = *attr;
  head.mode = head.flags = 0; /* where a key comes from makes no difference to the program */
  put_head(w, c, &head, arrays);
  for (int i = 0; i < c->nin && arrays; i++) put_column(w, &s, i, codes, DTYPE_INDEX, false);
  int rank = s.rank;
  if (!arrays || each != 1) codes[rank++] = size_code(w, each);
  add_result(w, codes, rank);
  return put_rest(w);
}

static bool key_made(key_writer *w, const op_call *c, const op_attr *attr) {
  uint8_t codes[ARRAY_MAX_RANK];
  int rank = c->out.rank;
  for (int a = 0; a < rank; a++) codes[a] = size_code(w, c->out.shape[a]);
  put_head(w, c, attr, 0);
  add_result(w, codes, rank);
  return put_rest(w);
}

bool op_call_key(const op_call *c, op_key *key, int64_t ints[OP_CALL_INTS]) {
  static const op_attr none = {0};
  const op_attr *attr = c->attr ? c->attr : &none;
  const op_row *row = &op_rows[c->op];
  key->n = 0;
  key_writer w = {.key = key, .ints = ints, .fine = row->klass != CLASS_POINTWISE};
  if (c->nin > OP_CALL_OPERANDS) return false;
  switch ((op_class)row->klass) {
  case CLASS_POINTWISE: return key_pointwise(&w, c, attr);
  case CLASS_REDUCE:
  case CLASS_SCAN: return key_reduce(&w, c, attr);
  case CLASS_DOT: return key_dot(&w, c, attr);
  case CLASS_RANDOM: return key_draw(&w, c, attr);
  default: break;
  }
  switch (c->op) {
  case OP_iota: return key_made(&w, c, attr);
  case OP_index:
  case OP_scatter: return key_index(&w, c, attr);
  case OP_gather:
  case OP_gather_add: return key_along(&w, c, attr);
  default: return false;
  }
}

/* ---- from a key to a program ------------------------------------------------------------------------------------------------ */

typedef struct key_reader {
  const op_key *key;
  uint16_t at;
  graph *g;
  const uint8_t *magnitudes;
  int nsizes, nstrides;
} key_reader;

static uint8_t take(key_reader *r) { return r->at < r->key->n ? r->key->bytes[r->at++] : 0; }

/* Slots become symbols: those of sizes come from inputs (so they are known not to be negative), those of strides from scalars. */
static qn_dim take_size(key_reader *r) {
  uint8_t code = take(r);
  if (code == SIZE_ONE) return 1;
  if (code == SIZE_ZERO) return 0;
  uint32_t slot = (uint32_t)(code - SIZE_SLOT);
  return dim_symbol(&r->g->dims, DIM_FROM_INPUT, slot, 0, magnitude_hint(r->magnitudes[slot]), NULL);
}

static qn_dim take_stride(key_reader *r) {
  uint8_t code = take(r);
  if (code != STRIDE_SLOT) return code;
  uint32_t slot = (uint32_t)(r->nsizes + r->nstrides++);
  return dim_symbol(&r->g->dims, DIM_FROM_SCALAR, slot, 0, 1000003, NULL);
}

static void take_shape(key_reader *r, graph_type *t, qn_dim *strides) {
  t->rank = take(r);
  for (int a = 0; a < t->rank && a < ARRAY_MAX_RANK; a++) {
    t->shape[a] = take_size(r);
    if (strides) strides[a] = take_stride(r);
  }
}

/* Replaces the program's parameters by slots: a symbol becomes the slot of its number, another size a constant. */
static void use_slots(l_program *p, const graph *g, const qn_dim *ints, uint32_t nslots) {
  for (l_val i = 1; i < p->n; i++) {
    l_instr *c = &p->code[i];
    if (c->code != L_PARAM) continue;
    qn_dim d = ints[c->imm];
    if (d >= 0)
      *c = (l_instr){.code = L_INT, .imm = d};
    else
      c->imm = g->dims.exprs[~d].ref;
  }
  p->nints = nslots;
}

/* Of nodes `first` to `node`, the last, on these operands. */
static l_program *make_program(graph *g, const char *name, uint32_t first, uint32_t node, const uint32_t *operands,
                               int nin, const qn_dim (*strides)[ARRAY_MAX_RANK], uint8_t joins, uint32_t nslots,
                               schedule_target target, const char **why) {
  uint8_t *place = calloc(g->n, 1), *stored = calloc(g->n, 1);
  uint32_t *scratch = calloc(g->n, sizeof *scratch);
  l_program *p = NULL;
  if (place && stored && scratch) {
    for (uint32_t i = first; i <= node; i++) place[i] = PLACE_INLINE;
    stored[node] = 1;
    lower_request r = {.g = g,
                       .name = name,
                       .place = place,
                       .nodes = &node,
                       .n = 1,
                       .stored = stored,
                       .buffers = operands,
                       .nbuffers = (uint32_t)nin,
                       .strides = strides,
                       .joins = &joins,
                       .scratch = scratch};
    k_kernel *k = lower(&r, why);
    schedule_result s;
    if (k) k->classed = true;
    if (k && schedule(k, target, &(schedule_how){.grain = GRAIN}, &s, why)) {
      p = s.program;
      use_slots(p, g, s.ints, nslots);
    }
    k_free(k);
  }
  free(place);
  free(stored);
  free(scratch);
  return p;
}

l_program *kernel_for_op(const op_key *key, schedule_target target, const char **why) {
  *why = lower_no_memory;
  key_reader r = {.key = key, .g = graph_new(NULL)};
  if (!r.g) return NULL;
  op_id op = (op_id)take(&r);
  int nin = take(&r);
  graph_type out = {.dtype = take(&r)};
  op_attr attr = {.dtype = take(&r)};
  attr.axes = take(&r);
  attr.keepdims = take(&r);
  attr.mode = take(&r);
  attr.flags = take(&r);
  attr.d[0] = take(&r);
  attr.n = op == OP_index || op == OP_scatter;
  uint8_t joins = take(&r);
  r.nsizes = take(&r);
  r.magnitudes = key->bytes + r.at;
  r.at = (uint16_t)(r.at + r.nsizes);
  uint32_t operands[OP_CALL_OPERANDS];
  /* by node; inputs are nodes 1, 2, .. */
  qn_dim strides[OP_CALL_OPERANDS + 2][ARRAY_MAX_RANK] = {{0}};
  bool random = op_rows[op].klass == CLASS_RANDOM, numbers = random && !joins; /* are the keys host numbers? */
  for (int i = 0; i < nin; i++) {
    graph_type t = {.dtype = WEAK_INT, .weak = numbers};
    if (!numbers) {
      t.dtype = take(&r);
      take_shape(&r, &t, strides[i + 1]);
    }
    operands[i] = graph_input(r.g, t, 0);
  }
  take_shape(&r, &out, NULL);
  if (op == OP_iota || random) {
    attr.n = out.rank;
    memcpy(attr.d, out.shape, sizeof out.shape);
  }
  uint32_t first = r.g->n;
  bool sum = op == OP_dot && dot_is_sum(r.g->nodes[operands[0]].type.rank, r.g->nodes[operands[1]].type.rank);
  uint32_t node =
      sum ? graph_op(r.g, op, operands, nin, NULL, 0) : graph_node_raw(r.g, op, operands, nin, &attr, out, 0);
  l_program *p = NULL;
  if (node && !r.g->failed)
    p = make_program(r.g, op_rows[op].name, first, node, operands, numbers ? 0 : nin,
                     (const qn_dim(*)[ARRAY_MAX_RANK])strides, joins, (uint32_t)(r.nsizes + r.nstrides), target, why);
  graph_free(r.g);
  return p;
}
