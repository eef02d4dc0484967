/* Rows of a few elements as numbers (small_rows.h): the state of a differential equation, points and small matrices in loops that are one kernel.
 *
 * A loop over two elements costs more than what it does: vector code does not pay, numbers go through memory between one loop and the next, and
 * what is carried from turn to turn waits for its store. So
 *
 *   1. VECs of at most SMALL_ROW elements whose bounds are constants become straight code, an instruction for each element, with guards decided;
 *      accumulators that take nothing but such a VEC become chains of operations, and small TILEs chains of fma, in their orders;
 *   2. what is loaded from a constant place after it was stored there is the value that was stored; what a loop keeps in constant places, and
 *      reads before it writes it, is carried as numbers and stored behind the loop;
 *   3. what nobody uses any more is left out: values, and memory of the program's own that nobody reads.
 *
 * Each of these makes a program of its own from the one before (`rewrite`). The elements of a VEC are independent, so all of one instruction may be done
 * before the next; stores by index are in ascending order, and such a VEC must not use that memory otherwise.
 *
 * Measured: Runge-Kutta over 1,000 steps of a pendulum, whose turn is a chain of two sines, 40 us before, 35 after (an AVX-512 machine). Most of
 * that is the copy of the carried pair, which gcc loads as one vector behind two stores, and the loads that begin a turn. */
#include "jit/kernel/small_rows.h"

#include <stdlib.h>
#include <string.h>

enum {
  SMALL_ROW = 4,     /* the most elements */
  SMALL_TURNS = 64,  /* and the most products of a TILE */
  SMALL_CODE = 4096, /* how many instructions a program may get more */
  PLACES = 64,       /* constant places whose values are known at a time */
  CARRIED = 16       /* the most that one loop carries more */
};

typedef struct rewrite {
  const l_program *from;
  l_program *to;
  int width;      /* values per instruction in `map` */
  l_val *map;     /* by instruction and element: what it is in `to` */
  uint32_t *end;  /* by instruction that opens a block: what ends it, END or ELSE */
  uint32_t *home; /* by instruction: what opened the block that it stands in, an ELSE for the second arm; 0: none */
  uint8_t *small; /* by ACC: does it become straight code? */
  l_val row;      /* the VEC that is being unrolled; 0: none */
} rewrite;

static const l_instr *at(const rewrite *w, l_val v) { return &w->from->code[v]; }

static bool int_of(const l_program *p, l_val v, int64_t *to) {
  if (!v || p->code[v].code != L_INT) return false;
  *to = p->code[v].imm;
  return true;
}

static bool const_of(const l_program *p, l_val v, int64_t *bits) {
  if (!v || p->code[v].code != L_CONST) return false;
  *bits = p->code[v].imm;
  return true;
}

/* ---- copying ----------------------------------------------------------------------------------------------------------------------- */

static void rewrite_end(rewrite *w) {
  free(w->map);
  free(w->end);
  free(w->home);
  free(w->small);
}

/* Begins a program made from another one. False when memory is short. */
static bool rewrite_begin(rewrite *w, const l_program *from, int width) {
  size_t n = from->n;
  *w = (rewrite){.from = from, .width = width, .to = l_new(from->name)};
  w->map = calloc(n * (size_t)width, sizeof *w->map);
  w->end = calloc(n, sizeof *w->end);
  w->home = calloc(n, sizeof *w->home);
  w->small = calloc(n, 1);
  uint32_t *open = malloc(n * sizeof *open), depth = 0; /* what opened the blocks around */
  bool ok = w->to && w->map && w->end && w->home && w->small && open;
  for (l_val v = 1; v < n && ok; v++) {
    uint8_t code = from->code[v].code;
    if (code == L_END || code == L_ELSE) w->end[open[--depth]] = v;
    w->home[v] = depth ? open[depth - 1] : 0;
    if (l_opens(code) || code == L_ELSE) open[depth++] = v;
  }
  free(open);
  l_program *to = w->to;
  for (uint32_t b = 0; b < from->nbuffers && ok; b++)
    ok = l_buffer_add(to, (qn_dtype)from->buffers[b].dtype, (l_buffer_mode)from->buffers[b].mode, 0) >= 0;
  for (uint32_t k = 0; k < from->nchecks && ok; k++) ok = l_check_add(to, from->checks[k]) >= 0;
  if (ok) {
    to->nints = from->nints;
    to->nscalars = from->nscalars;
    return true;
  }
  rewrite_end(w);
  l_free(to);
  return false;
}

/* What operand v of an instruction is for element e of the row that is being unrolled. */
static l_val mapped(const rewrite *w, l_val v, int e) {
  return w->map[v * (size_t)w->width + (w->row && v > w->row ? (size_t)e : 0)];
}

static int64_t memory_of(const rewrite *w, int64_t memory) {
  return memory < 0 ? -(int64_t)mapped(w, (l_val)-memory, 0) : memory;
}

static l_instr copied(const rewrite *w, l_val v, int e) {
  l_instr i = *at(w, v);
  for (const l_operand *o = l_rows[i.code].operands; o->role; o++) {
    l_val *operand = (l_val *)((char *)&i + o->at);
    if (*operand) *operand = mapped(w, *operand, e);
  }
  if (l_rows[i.code].imm == 'b') {
    i.imm = memory_of(w, i.imm);
    if (i.code == L_PARTIAL || i.code == L_MERGE) i.imm2 = memory_of(w, i.imm2);
  }
  return i;
}

static l_val copy_tile(rewrite *w, l_instr i) {
  l_tile t = w->from->tiles[i.imm];
  l_val *values[L_TILE_VALUES];
  for (int k = 0, n = l_tile_values(&t, values); k < n; k++)
    if (*values[k]) *values[k] = mapped(w, *values[k], 0);
  t.x = (int32_t)memory_of(w, t.x);
  t.y = (int32_t)memory_of(w, t.y);
  if (!t.out) t.to = (int32_t)memory_of(w, t.to);
  i.imm = l_tile_add(w->to, t);
  return i.imm < 0 ? 0 : l_emit(w->to, i);
}

/* Copies instruction v as it is. */
static void copy(rewrite *w, l_val v) {
  l_instr i = copied(w, v, 0);
  l_val made;
  if (i.code == L_INT)
    made = l_int(w->to, i.imm);
  else if (i.code == L_TILE)
    made = copy_tile(w, i);
  else
    made = l_emit(w->to, i);
  w->map[v * (size_t)w->width] = made;
}

/* Copies a VEC. */
static void copy_block(rewrite *w, l_val vec) {
  for (l_val v = vec; v <= w->end[vec]; v++) copy(w, v);
}

/* Ends the program that is made, and makes it *p in place of the one before. */
static bool rewrite_done(rewrite *w, l_program **p) {
  l_program *to = w->to;
  for (uint32_t b = 0; b < to->nbuffers; b++)
    to->buffers[b].size = w->from->buffers[b].size ? mapped(w, w->from->buffers[b].size, 0) : 0;
  bool ok = !to->failed && to->n <= w->from->n + SMALL_CODE;
  rewrite_end(w);
  l_free(ok ? *p : to);
  if (ok) *p = to;
  return ok;
}

/* ---- 1: straight code ---------------------------------------------------------------------------------------------------------------- */

static bool same_memory(const l_instr *i, const l_instr *k) { return i->imm == k->imm; }

/* May the VEC's body be done instruction by instruction? */
static bool is_straight(const rewrite *w, l_val vec) {
  int64_t ignored;
  for (l_val v = vec + 1; v < w->end[vec]; v++) {
    const l_instr *i = at(w, v);
    switch (i->code) {
    case L_CONST:
    case L_IOTA:
    case L_KOP:
    case L_MATH:
    case L_CHECK: break;
    case L_PUSH:
      if (!w->small[i->a]) return false;
      break;
    case L_LOAD:
    case L_STORE:
      if ((i->e && !int_of(w->from, i->e, &ignored)) || (i->f && !int_of(w->from, i->f, &ignored))) return false;
      for (l_val u = vec + 1; u < w->end[vec]; u++) {
        const l_instr *k = at(w, u);
        bool stores = i->code == L_STORE || k->code == L_STORE, accesses = k->code == L_STORE || k->code == L_LOAD;
        if (u != v && accesses && stores && same_memory(i, k) && (i->c || k->c)) return false;
      }
      break;
    default: return false;
    }
  }
  return true;
}

/* How many elements has a VEC of constant bounds? 0: none, or they are too many or not known. */
static int row_length(const rewrite *w, l_val vec) {
  int64_t from, to, n;
  if (!int_of(w->from, at(w, vec)->a, &from) || !int_of(w->from, at(w, vec)->b, &to)) return 0;
  return !__builtin_sub_overflow(to, from, &n) && n > 0 && n <= SMALL_ROW ? (int)n : 0;
}

/* Marks in `small` the accumulators that take the elements of one short row and nothing else. */
static bool find_accs(rewrite *w) {
  l_val *push = calloc(w->from->n, sizeof *push); /* by accumulator: its only PUSH */
  if (!push) return false;
  for (l_val v = 1; v < w->from->n; v++) {
    const l_instr *i = at(w, v);
    int64_t k = 0;
    if (i->code == L_ACC)
      w->small[v] = !i->a && !kop_is_arg(i->sub) && i->imm != ORDER_TREE && !dtype_is_bool(i->dtype);
    if (i->code == L_SCAN || i->code == L_PARTIAL || i->code == L_MERGE) w->small[i->a] = 0;
    if (i->code == L_FINISH && (!push[i->a] || w->end[w->home[push[i->a]]] > v)) w->small[i->a] = 0;
    if (i->code != L_PUSH) continue;
    l_val vec = w->home[v];
    if (push[i->a] || at(w, vec)->code != L_VEC || w->home[vec] != w->home[i->a] || !row_length(w, vec) ||
        (i->c && (!int_of(w->from, i->c, &k) || k)))
      w->small[i->a] = 0;
    push[i->a] = v;
  }
  bool again = true; /* and whose rows can be unrolled: one that cannot be keeps others from it */
  while (again) {
    again = false;
    for (l_val v = 1; v < w->from->n; v++) {
      if (!w->small[v] || (push[v] && is_straight(w, w->home[push[v]]))) continue;
      w->small[v] = 0;
      again = true;
    }
  }
  free(push);
  return true;
}

/* The value of a constant integer or bool, as its dtype has it. */
static int64_t whole(uint8_t dtype, int64_t bits) {
  int size = (int)dtype_size((qn_dtype)dtype);
  if (!dtype_is_signed(dtype) || size >= 8) return bits;
  int shift = 64 - 8 * size;
  return (int64_t)((uint64_t)bits << shift) >> shift;
}

static bool compares(uint8_t op, uint8_t dtype, int64_t a, int64_t b) {
  bool less = dtype_is_signed(dtype) ? a < b : (uint64_t)a < (uint64_t)b;
  switch (op) {
  case KOP_eq: return a == b;
  case KOP_ne: return a != b;
  case KOP_lt: return less;
  case KOP_le: return less || a == b;
  case KOP_gt: return !less && a != b;
  default: return !less;
  }
}

/* Emits an operation on numbers; one whose result is known is that. */
static l_val operation(rewrite *w, const l_instr *i) {
  l_program *p = w->to;
  int64_t a = 0, b = 0;
  bool ca = const_of(p, i->a, &a), cb = const_of(p, i->b, &b), test = dtype_is_bool(i->dtype);
  if (i->code == L_KOP) {
    if (i->sub == KOP_copy) return i->a;
    if (i->sub == KOP_select && ca) return a ? i->b : i->c;
    if (test && i->sub == KOP_not && ca) return l_const(p, (qn_dtype)i->dtype, !a);
    if (test && (i->sub == KOP_and || i->sub == KOP_or)) {
      bool is_and = i->sub == KOP_and;
      if (ca) return (a != 0) == is_and ? i->b : i->a;
      if (cb) return (b != 0) == is_and ? i->a : i->b;
    }
    if (i->sub >= KOP_eq && i->sub <= KOP_ge && ca && cb && !dtype_is_float(i->type2))
      return l_const(p, (qn_dtype)i->dtype, compares(i->sub, i->type2, whole(i->type2, a), whole(i->type2, b)));
  }
  return l_emit(p, *i);
}

/* index + stride * element */
static l_val moved(rewrite *w, l_val index, l_val stride, int e) {
  if (!stride || !e) return index;
  return l_index(w->to, L_IADD, index, l_index(w->to, L_IMUL, stride, l_int(w->to, e)));
}

/* An index as a value of an integer dtype or bool. */
static l_val number(rewrite *w, uint8_t dtype, l_val index) {
  int64_t x = 0;
  if (!int_of(w->to, index, &x)) return l_emit(w->to, (l_instr){.code = L_IOTA, .dtype = dtype, .a = index});
  uint64_t bits = 0;
  if (dtype_is_bool(dtype))
    bits = x != 0;
  else
    memcpy(&bits, &x, dtype_size((qn_dtype)dtype)); /* little-endian, wrapping */
  return l_const(w->to, (qn_dtype)dtype, bits);
}

/* Element e of a LOAD or STORE (`vec` 0: one that stands outside VECs). */
static l_val access(rewrite *w, l_val vec, l_val v, int e) {
  l_program *p = w->to;
  l_instr i = copied(w, v, e);
  int64_t first = 0, lo, hi, where, index;
  bool inside = true;
  if (vec) (void)int_of(w->from, at(w, vec)->a, &first);
  if (int_of(p, i.e, &lo)) inside &= first + e >= lo;
  if (int_of(p, i.f, &hi)) inside &= first + e < hi;
  if (const_of(p, i.g, &where)) {
    inside &= where != 0;
    i.g = 0;
  }
  if (!inside) return i.code == L_LOAD ? i.h : 0;
  if (vec) i.a = moved(w, i.a, i.b, e);
  i.b = i.e = i.f = 0;
  if (i.code == L_LOAD && !i.g) i.h = 0;
  if (const_of(p, i.c, &index)) {
    i.a = l_index(p, L_IADD, i.a, l_index(p, L_IMUL, i.d, l_int(p, index)));
    i.c = i.d = 0;
  }
  return l_emit(p, i);
}

/* x * y, or that added to a sum, as a TILE and the order DOT have it. */
static l_val product(rewrite *w, uint8_t d, l_val sum, l_val x, l_val y) {
  l_program *p = w->to;
  qn_dtype dtype = (qn_dtype)d;
  if (sum && dtype_is_float(d)) return l_kop(p, KOP_fma, dtype, x, y, sum);
  l_val xy = l_kop(p, KOP_mul, dtype, x, y, 0);
  return sum ? l_kop(p, KOP_add, dtype, sum, xy, 0) : xy;
}

/* The result of an accumulator that n elements are pushed to: in order INNER each is in a lane of its own. */
static l_val reduced(rewrite *w, const l_instr *acc, const l_instr *push, int n) {
  l_val x[SMALL_ROW] = {0}, sum = 0;
  for (int e = 0; e < n; e++) x[e] = mapped(w, push->b, e);
  if (acc->imm == ORDER_DOT) {
    for (int e = 0; e < n; e++) sum = product(w, acc->dtype, sum, x[e], mapped(w, push->d, e));
    return sum;
  }
  kop_id op = (kop_id)acc->sub;
  if (acc->imm == ORDER_INNER) {
    for (int h = SMALL_ROW / 2; h; h /= 2)
      for (int e = 0; e < h && e + h < n; e++) x[e] = l_kop(w->to, op, (qn_dtype)acc->dtype, x[e], x[e + h], 0);
    return x[0];
  }
  for (int e = 1; e < n; e++) x[0] = l_kop(w->to, op, (qn_dtype)acc->dtype, x[0], x[e], 0);
  return x[0];
}

/* A VEC as straight code. */
static void unroll(rewrite *w, l_val vec) {
  int n = row_length(w, vec);
  w->row = vec;
  for (l_val v = vec + 1; v < w->end[vec]; v++) {
    const l_instr *from = at(w, v);
    if (from->code == L_PUSH) {
      w->map[from->a * (size_t)w->width] = reduced(w, at(w, from->a), from, n);
      continue;
    }
    for (int e = 0; e < n; e++) {
      l_instr i = copied(w, v, e);
      l_val *to = &w->map[v * (size_t)w->width + (size_t)e];
      switch (i.code) {
      case L_LOAD:
      case L_STORE: *to = access(w, vec, v, e); break;
      case L_IOTA: *to = number(w, i.dtype, moved(w, i.a, i.b, e)); break;
      case L_CHECK:
        i.b = moved(w, i.b, i.c, e);
        i.c = 0;
        *to = l_emit(w->to, i);
        break;
      case L_CONST: *to = l_const(w->to, (qn_dtype)i.dtype, (uint64_t)i.imm); break;
      default: *to = operation(w, &i);
      }
    }
  }
  w->row = 0;
}

/* Is a TILE small, and of known shape? */
static bool is_small_tile(const rewrite *w, const l_tile *t) {
  const l_program *p = w->from;
  int64_t rows, cols, depth, ignored;
  if (t->ndigits) return false;
  const l_val strides[] = {t->x_m, t->x_k, t->y_k, t->y_n, t->out ? t->y_n : t->to_m};
  for (size_t k = 0; k < sizeof strides / sizeof *strides; k++)
    if (!int_of(p, strides[k], &ignored)) return false;
  if (!int_of(p, t->rows, &rows) || !int_of(p, t->cols, &cols) || !int_of(p, t->depth, &depth)) return false;
  uint8_t x = t->x < 0 ? p->code[-t->x].dtype : p->buffers[t->x].dtype, out = l_tile_dtype(p, t);
  return rows > 0 && cols > 0 && depth > 0 && rows <= SMALL_ROW && cols <= SMALL_ROW && depth <= SMALL_ROW &&
         x == out && !dtype_is_bool(out) && rows * cols * depth <= SMALL_TURNS;
}

static l_val tile_load(rewrite *w, int64_t from, uint8_t dtype, l_val base, l_val stride, int i, l_val stride2, int k) {
  l_val place = moved(w, moved(w, base, stride, i), stride2, k);
  return l_emit(w->to, (l_instr){.code = L_LOAD, .dtype = dtype, .imm = from, .a = place});
}

static void unroll_tile(rewrite *w, const l_tile *t) {
  int64_t rows = 0, cols = 0, depth = 0;
  uint8_t d = l_tile_dtype(w->from, t);
  int64_t from_x = memory_of(w, t->x), from_y = memory_of(w, t->y), out = memory_of(w, l_tile_to(t)),
          pitch = t->tile_cols;
  if (!t->out) (void)int_of(w->from, t->to_m, &pitch);
  (void)(int_of(w->from, t->rows, &rows) && int_of(w->from, t->cols, &cols) && int_of(w->from, t->depth, &depth));
  l_val x[SMALL_ROW][SMALL_ROW], y[SMALL_ROW][SMALL_ROW];
  l_val x_base = mapped(w, t->x_base, 0), y_base = mapped(w, t->y_base, 0);
  l_val x_m = mapped(w, t->x_m, 0), x_k = mapped(w, t->x_k, 0), y_k = mapped(w, t->y_k, 0), y_n = mapped(w, t->y_n, 0);
  for (int k = 0; k < (int)depth; k++) {
    for (int m = 0; m < (int)rows; m++) x[m][k] = tile_load(w, from_x, d, x_base, x_m, m, x_k, k);
    for (int n = 0; n < (int)cols; n++) y[k][n] = tile_load(w, from_y, d, y_base, y_k, k, y_n, n);
  }
  for (int m = 0; m < (int)rows; m++)
    for (int n = 0; n < (int)cols; n++) {
      l_val sum = 0;
      for (int k = 0; k < (int)depth; k++) sum = product(w, d, sum, x[m][k], y[k][n]);
      l_val place = l_int(w->to, m * pitch + n);
      if (!t->out) place = l_index(w->to, L_IADD, mapped(w, t->to_base, 0), place);
      (void)l_emit(w->to, (l_instr){.code = L_STORE, .imm = out, .h = sum, .a = place});
    }
}

static bool unroll_rows(l_program **p) {
  rewrite w;
  if (!rewrite_begin(&w, *p, SMALL_ROW)) return false;
  if (!find_accs(&w)) w.to->failed = true;
  for (l_val v = 1; v < w.from->n && !w.to->failed; v++) {
    const l_instr *i = at(&w, v);
    l_val *to = &w.map[v * (size_t)w.width];
    l_instr made = copied(&w, v, 0);
    int64_t bits;
    if (i->code == L_VEC && row_length(&w, v) && is_straight(&w, v)) {
      unroll(&w, v);
      v = w.end[v];
    } else if (i->code == L_VEC) {
      copy_block(&w, v);
      v = w.end[v];
    } else if (i->code == L_ACC && w.small[v]) {
      continue; /* its PUSH sets the value */
    } else if (i->code == L_FINISH && w.small[i->a]) {
      *to = w.map[i->a * (size_t)w.width];
    } else if (i->code == L_TILE && is_small_tile(&w, &w.from->tiles[i->imm])) {
      unroll_tile(&w, &w.from->tiles[i->imm]);
    } else if (i->code == L_LOAD || i->code == L_STORE) {
      *to = access(&w, 0, v, 0);
    } else if (i->code == L_KOP) {
      *to = operation(&w, &made);
    } else if (i->code == L_IOTA) {
      *to = number(&w, i->dtype, made.a);
    } else if (i->code == L_IVALUE && const_of(w.to, made.a, &bits)) {
      *to = l_int(w.to, whole(w.to->code[made.a].dtype, bits));
    } else if (l_is_index_op(i->code)) {
      *to = l_index(w.to, (l_code)i->code, made.a, made.b);
    } else {
      copy(&w, v);
    }
  }
  return rewrite_done(&w, p);
}

/* ---- 2: places as values -------------------------------------------------------------------------------------------------------------- */

/* An element of memory (of `from`) and the value (in `to`) that it holds. */
typedef struct place {
  int64_t memory, offset;
  l_val value;
} place;
typedef struct known {
  place at[PLACES];
  int n;
} known;

static place *find_place(known *k, int64_t memory, int64_t offset) {
  for (int i = 0; i < k->n; i++)
    if (k->at[i].memory == memory && k->at[i].offset == offset) return &k->at[i];
  return NULL;
}

/* Notes what a place holds. Where there is no room that is forgotten. */
static void set_place(known *k, int64_t memory, int64_t offset, l_val value) {
  place *p = find_place(k, memory, offset);
  if (!p && k->n < PLACES) p = &k->at[k->n++];
  if (p) *p = (place){memory, offset, value};
}

static void forget(known *k, int64_t memory) {
  int n = 0;
  for (int i = 0; i < k->n; i++)
    if (k->at[i].memory != memory) k->at[n++] = k->at[i];
  k->n = n;
}

/* The memory that an instruction writes to, or INT64_MIN. (PARTIAL writes to two.) */
static int64_t written(const rewrite *w, const l_instr *i) {
  if (i->code == L_TILE) return l_tile_to(&w->from->tiles[i->imm]);
  return i->code == L_STORE || i->code == L_RMW || i->code == L_PARTIAL ? i->imm : INT64_MIN;
}

static void forget_written(const rewrite *w, known *k, l_val from, l_val to) {
  for (l_val v = from; v < to; v++) {
    const l_instr *i = at(w, v);
    int64_t memory = written(w, i);
    if (memory != INT64_MIN) forget(k, memory);
    if (i->code == L_PARTIAL && i->d) forget(k, i->imm2);
  }
}

/* Is it a LOAD or STORE of one place, in any case? */
static bool is_place(const rewrite *w, l_val v, int64_t *offset) {
  const l_instr *i = at(w, v);
  if (i->code != L_LOAD && i->code != L_STORE) return false;
  return !i->b && !i->c && !i->e && !i->f && !i->g && at(w, w->home[v])->code != L_VEC && int_of(w->from, i->a, offset);
}

static bool is_input(const rewrite *w, int64_t memory) {
  return memory >= 0 && w->from->buffers[memory].mode == BUF_IN;
}

/* Does an instruction use memory, in whatever way? */
static bool uses_memory(const rewrite *w, const l_instr *i, int64_t memory) {
  if (i->code == L_TILE) {
    const l_tile *t = &w->from->tiles[i->imm];
    return t->x == memory || t->y == memory || l_tile_to(t) == memory;
  }
  if (l_rows[i->code].imm != 'b') return false;
  return i->imm == memory || ((i->code == L_PARTIAL || i->code == L_MERGE) && i->d && i->imm2 == memory);
}

/* Are all uses of memory in a loop loads of places, and stores to places directly in it? (In VECs of FORs in it an access is none of a place.) */
static bool is_carriable(const rewrite *w, l_val loop, int64_t memory) {
  int64_t offset;
  for (l_val v = loop + 1; v < w->end[loop]; v++) {
    const l_instr *i = at(w, v);
    if (!uses_memory(w, i, memory)) continue;
    if (!is_place(w, v, &offset) || (i->code == L_STORE && w->home[v] != loop)) return false;
  }
  return !is_input(w, memory);
}

/* A place that a loop carries. */
typedef struct carried {
  int64_t memory, offset;
  l_val carry;
} carried;

typedef struct loop_state {
  const struct loop_state *up;
  carried of[CARRIED];
  int n;
} loop_state;

/* Finds the places that a loop carries: those that it stores to and that it may load before. */
static void find_carried(const rewrite *w, l_val loop, loop_state *s) {
  int64_t offset, other;
  for (l_val v = loop + 1; v < w->end[loop] && s->n < CARRIED; v++) {
    const l_instr *i = at(w, v);
    if (i->code != L_STORE || w->home[v] != loop || !is_place(w, v, &offset)) continue;
    bool seen = false, loaded = false;
    for (int k = 0; k < s->n; k++) seen |= s->of[k].memory == i->imm && s->of[k].offset == offset;
    for (l_val u = loop + 1; u < v && !seen && !loaded; u++) {
      bool here = at(w, u)->imm == i->imm && is_place(w, u, &other) && other == offset;
      seen |= here && at(w, u)->code == L_STORE;
      loaded |= here && at(w, u)->code == L_LOAD;
    }
    if (seen || !loaded || !is_carriable(w, loop, i->imm)) continue;
    s->of[s->n++] = (carried){i->imm, offset, 0};
  }
}

static bool is_carried(const loop_state *s, int64_t memory, int64_t offset) {
  for (; s; s = s->up)
    for (int k = 0; k < s->n; k++)
      if (s->of[k].memory == memory && s->of[k].offset == offset) return true;
  return false;
}

static uint8_t memory_dtype(const rewrite *w, int64_t memory) {
  return memory < 0 ? w->from->code[-memory].dtype : w->from->buffers[memory].dtype;
}

static void forward(rewrite *w, l_val v, l_val end, known *k, const loop_state *around);

static void forward_loop(rewrite *w, l_val loop, known *k, const loop_state *around) {
  l_program *p = w->to;
  loop_state s = {.up = around};
  if (k->n + CARRIED <= PLACES) find_carried(w, loop, &s);
  for (int i = 0; i < s.n; i++) {
    carried *c = &s.of[i];
    const place *before = find_place(k, c->memory, c->offset);
    uint8_t dtype = memory_dtype(w, c->memory);
    l_val first = before ? before->value : 0;
    if (!first) {
      l_val place = l_int(p, c->offset);
      first = l_emit(p, (l_instr){.code = L_LOAD, .dtype = dtype, .imm = memory_of(w, c->memory), .a = place});
    }
    c->carry = l_emit(p, (l_instr){.code = L_CARRY, .dtype = dtype, .a = first});
  }
  forget_written(w, k, loop + 1, w->end[loop]);
  known inside = *k;
  for (int i = 0; i < s.n; i++) set_place(&inside, s.of[i].memory, s.of[i].offset, s.of[i].carry);
  copy(w, loop);
  forward(w, loop + 1, w->end[loop], &inside, &s);
  for (int i = 0; i < s.n; i++) {
    const place *last = find_place(&inside, s.of[i].memory, s.of[i].offset);
    (void)l_emit(p, (l_instr){.code = L_SET, .a = s.of[i].carry, .b = last ? last->value : 0});
  }
  copy(w, w->end[loop]);
  for (int i = 0; i < s.n; i++) {
    const carried *c = &s.of[i];
    l_val place = l_int(p, c->offset);
    (void)l_emit(p, (l_instr){.code = L_STORE, .imm = memory_of(w, c->memory), .h = c->carry, .a = place});
    set_place(k, c->memory, c->offset, c->carry);
  }
}

/* The arms of an IF begin with what is known before it; of what one of them has written nothing is known behind it. Returns its END. */
static l_val forward_arms(rewrite *w, l_val v, known *k, const loop_state *around) {
  l_val arm = v;
  for (;;) {
    known inside = *k;
    copy(w, arm);
    forward(w, arm + 1, w->end[arm], &inside, around);
    arm = w->end[arm];
    if (at(w, arm)->code == L_END) break;
  }
  copy(w, arm);
  forget_written(w, k, v + 1, arm);
  return arm;
}

/* Appends the instructions of a block. */
static void forward(rewrite *w, l_val v, l_val end, known *k, const loop_state *around) {
  int64_t offset;
  for (; v < end && !w->to->failed; v++) {
    const l_instr *i = at(w, v);
    bool one = is_place(w, v, &offset) && !is_input(w, i->imm);
    place *p = one ? find_place(k, i->imm, offset) : NULL;
    if (i->code == L_VEC) {
      copy_block(w, v);
      forget_written(w, k, v + 1, w->end[v]);
      v = w->end[v];
    } else if (i->code == L_FOR || i->code == L_WHILE) {
      forward_loop(w, v, k, around);
      v = w->end[v];
    } else if (i->code == L_IF) {
      v = forward_arms(w, v, k, around);
    } else if (i->code == L_PAR) {
      known none = {.n = 0};
      copy(w, v);
      forward(w, v + 1, w->end[v], &none, NULL);
      v = w->end[v];
      copy(w, v);
    } else if (one && i->code == L_LOAD) {
      if (!p) copy(w, v);
      if (p)
        w->map[v] = p->value;
      else
        set_place(k, i->imm, offset, w->map[v]);
    } else {
      bool stores = one && i->code == L_STORE;
      if (!stores || !is_carried(around, i->imm, offset)) copy(w, v);
      if (!stores) forget_written(w, k, v, v + 1);
      if (stores) set_place(k, i->imm, offset, w->map[i->h]);
    }
  }
}

static bool forward_places(l_program **p) {
  rewrite w;
  known none = {.n = 0};
  if (!rewrite_begin(&w, *p, 1)) return false;
  forward(&w, 1, w.from->n, &none, NULL);
  return rewrite_done(&w, p);
}

/* ---- 3: what nobody uses ---------------------------------------------------------------------------------------------------------------- */

/* Does an instruction do nothing but give its value? */
static bool is_pure(uint8_t code) {
  char is = l_rows[code].result;
  return is == 'I' || is == 'M' || (is == 'V' && code != L_CARRY && code != L_SCAN && code != L_FINISH);
}

static void use(uint8_t *used, int64_t memory) {
  if (memory < 0) used[-memory] = 1;
}

static bool drop_unused(l_program **p) {
  rewrite w;
  if (!rewrite_begin(&w, *p, 1)) return false;
  uint8_t *used = calloc(w.from->n, 1), *read = calloc(w.from->n, 1); /* read: of a local, in any way */
  if (!used || !read) w.to->failed = true;
  for (l_val v = 1; v < w.from->n && !w.to->failed; v++) {
    const l_instr *i = at(&w, v);
    if (l_rows[i->code].imm == 'b' && (i->code != L_STORE || at(&w, w.home[v])->code == L_VEC)) use(read, i->imm);
    if ((i->code == L_PARTIAL || i->code == L_MERGE) && i->d) use(read, i->imm2);
    if (i->code != L_TILE) continue;
    use(read, w.from->tiles[i->imm].x);
    use(read, w.from->tiles[i->imm].y);
    use(read, l_tile_to(&w.from->tiles[i->imm]));
  }
  for (uint32_t b = 0; b < w.from->nbuffers && !w.to->failed; b++) used[w.from->buffers[b].size] = 1;
  for (l_val v = w.from->n; --v > 0 && !w.to->failed;) {
    const l_instr *i = at(&w, v);
    if (i->code == L_STORE && i->imm < 0 && !read[-i->imm]) continue;
    if (is_pure(i->code) && !used[v]) continue;
    used[v] = 1;
    for (const l_operand *o = l_rows[i->code].operands; o->role; o++) used[l_operand_of(i, o)] = 1;
    if (l_rows[i->code].imm == 'b') use(used, i->imm);
    if (i->code == L_PARTIAL || i->code == L_MERGE) use(used, i->imm2);
    if (i->code != L_TILE) continue;
    l_tile t = w.from->tiles[i->imm];
    l_val *values[L_TILE_VALUES];
    for (int k = 0, n = l_tile_values(&t, values); k < n; k++) used[*values[k]] = 1;
    use(used, t.x);
    use(used, t.y);
    use(used, l_tile_to(&t));
  }
  for (l_val v = 1; v < w.from->n && !w.to->failed; v++)
    if (used[v]) copy(&w, v);
  free(used);
  free(read);
  return rewrite_done(&w, p);
}

void small_rows(l_program **p) {
  if (unroll_rows(p) && forward_places(p)) (void)drop_unused(p);
}
