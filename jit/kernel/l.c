/* Building L programs (l.h): the tables of its primitives and instructions, the emitters, and the content hash.
 *
 * Emitting appends. Index arithmetic is the exception: schedules ask for the same addresses again and again, so l_index
 * folds constants and neutral elements and looks back for an equal instruction that is still visible. The look back walks
 * over the code in reverse and steps over blocks that have ended; it is bounded, so building stays linear.
 *
 * A failed allocation sets p->failed and everything later returns 0; whoever builds a program tests the flag once. */
#include "jit/kernel/l.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

const kop_row kop_rows[KOP_COUNT] = {
#define KOP(name, arity, types, meaning) {#name, arity, types},
#include "jit/kernel/kops.def"
#undef KOP
};

#define MATH_ROW(name, arity, types, kind, t, meaning) {#name, arity, MATH_IS_##kind},
const math_row math_rows[MATH_COUNT] = {MATHS(MATH_ROW, )};
#undef MATH_ROW

#define O(field, role, name)                                                                                           \
  { offsetof(l_instr, field), role, name }
const l_row l_rows[L_CODE_COUNT] = {
    {"none", '-', '-', {{0, 0, NULL}}},
#define LCODE(name, text, result, imm, meaning, ...) {text, result, imm, {__VA_ARGS__}},
#include "jit/kernel/lcodes.def"
#undef LCODE
};
#undef O

_Static_assert(L_IADD + 1 == L_ISUB && L_IADD + 6 == L_IMAX, "index arithmetic is consecutive");
_Static_assert(KOP_eq + 1 == KOP_ne && KOP_eq + 5 == KOP_ge, "comparisons are consecutive");

enum { HIGHLIGHT_BACK = 400 };

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Makes room for one more element in an array of n. */
static bool grow(l_program *p, void **at, uint32_t n, uint32_t *cap, size_t size) {
  if (arena_room(&p->arena, at, cap, (size_t)n + 1, size)) return true;
  p->failed = true;
  return false;
}

const char *l_take_name(arena *a, const char *name) {
  size_t len = strlen(name);
  char *copy = arena_alloc(a, len + 1);
  for (size_t i = 0; copy && i < len; i++) {
    char c = name[i];
    bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    copy[i] = word ? c : '_';
  }
  return copy;
}

l_program *l_new(const char *name) {
  l_program *p = calloc(1, sizeof *p);
  if (!p) return NULL;
  arena_init(&p->arena, NULL);
  if (!(p->name = l_take_name(&p->arena, name))) {
    l_free(p);
    return NULL;
  }
  p->n = 1; /* instruction 0 means "none" */
  p->cap = 64;
  p->code = arena_alloc(&p->arena, p->cap * sizeof *p->code);
  if (!p->code) {
    l_free(p);
    return NULL;
  }
  return p;
}

void l_free(l_program *p) {
  if (!p) return;
  arena_free(&p->arena);
  free(p);
}

/* A copy of `bytes` in an arena that has room for it. */
static void *moved(arena *to, const void *from, size_t bytes) {
  void *copy = bytes ? arena_alloc(to, bytes) : NULL;
  if (copy) memcpy(copy, from, bytes);
  return copy;
}

void l_tighten(l_program *p, size_t bytes, size_t parts) {
  enum { OWN = 6 };
  size_t code = p->n * sizeof *p->code, buffers = p->nbuffers * sizeof *p->buffers, name = strlen(p->name) + 1;
  size_t blocks = p->nblocks * sizeof *p->blocks;
  size_t tiles = p->ntiles * sizeof *p->tiles, checks = p->nchecks * sizeof *p->checks;
  arena to;
  arena_init(&to, NULL);
  if (!arena_reserve(&to, code + buffers + name + tiles + checks + blocks + bytes, OWN + parts)) return;
  p->code = moved(&to, p->code, code);
  p->buffers = moved(&to, p->buffers, buffers);
  p->tiles = moved(&to, p->tiles, tiles);
  p->checks = moved(&to, p->checks, checks);
  p->blocks = moved(&to, p->blocks, blocks);
  p->name = moved(&to, p->name, name);
  p->cap = p->n;
  p->buffers_cap = p->nbuffers;
  p->tiles_cap = p->ntiles;
  p->blocks_cap = p->nblocks;
  p->checks_cap = p->nchecks;
  arena_free(&p->arena);
  p->arena = to;
}

/* ---- emitting ---------------------------------------------------------------------------------------------------- */

l_val l_emit(l_program *p, l_instr i) {
  if (p->failed || !grow(p, (void **)&p->code, p->n, &p->cap, sizeof *p->code)) return 0;
  if (i.code == L_KOP || i.code == L_MATH) {
    l_val last = i.c ? i.c : i.b ? i.b : i.a;
    if (last < p->n) i.type2 = p->code[last].dtype;
  }
  p->code[p->n] = i;
  return p->n++;
}

int l_buffer_add(l_program *p, qn_dtype dtype, l_buffer_mode mode, l_val size) {
  if (!grow(p, (void **)&p->buffers, p->nbuffers, &p->buffers_cap, sizeof *p->buffers)) return -1;
  p->buffers[p->nbuffers] = (l_buffer){(uint8_t)dtype, (uint8_t)mode, size};
  return (int)p->nbuffers++;
}

uint8_t l_block_add(l_program *p, l_block b) {
  for (uint32_t i = 0; i < p->nblocks; i++) {
    const l_block *x = &p->blocks[i];
    if (x->rows == b.rows && x->cols == b.cols && x->across == b.across && x->down == b.down && x->each == b.each &&
        x->fragments == b.fragments)
      return (uint8_t)(i + 1);
  }
  if (p->nblocks == L_BLOCKS_MOST || !grow(p, (void **)&p->blocks, p->nblocks, &p->blocks_cap, sizeof *p->blocks)) {
    p->failed = true;
    return 0;
  }
  p->blocks[p->nblocks] = b;
  return (uint8_t)++p->nblocks;
}

int l_tile_values(l_tile *t, l_val *to[L_TILE_VALUES]) {
  l_val *const all[] = {&t->x_base, &t->x_m,   &t->x_k, &t->y_base,  &t->y_k,  &t->y_n,     &t->rows,
                        &t->cols,   &t->depth, &t->out, &t->to_base, &t->to_m, &t->n_first, &t->k_first};
  int n = sizeof all / sizeof *all;
  memcpy(to, all, sizeof all);
  for (uint32_t i = 0; i < t->ndigits; i++) {
    to[n++] = &t->digits[i].by;
    to[n++] = &t->digits[i].most;
    to[n++] = &t->digits[i].step;
  }
  return n;
}
int l_tile_add(l_program *p, l_tile t) {
  if (!grow(p, (void **)&p->tiles, p->ntiles, &p->tiles_cap, sizeof *p->tiles)) return -1;
  p->tiles[p->ntiles] = t;
  return (int)p->ntiles++;
}

int l_check_add(l_program *p, l_check c) {
  if (!grow(p, (void **)&p->checks, p->nchecks, &p->checks_cap, sizeof *p->checks)) return -1;
  p->checks[p->nchecks] = c;
  return (int)p->nchecks++;
}

/* An earlier, still visible instruction equal to `i` (code, dtype, operands a and b, imm), or 0. */
static l_val find_equal(const l_program *p, const l_instr *i) {
  uint32_t ended = 0; /* how many ended blocks the walk backwards is inside of */
  uint32_t stop = p->n > HIGHLIGHT_BACK ? p->n - HIGHLIGHT_BACK : 1;
  for (uint32_t k = p->n; k-- > stop;) {
    const l_instr *c = &p->code[k];
    if (c->code == L_END)
      ended++;
    else if (l_opens(c->code) && ended)
      ended--;
    else if (c->code == L_ELSE && !ended)
      ended++; /* the arm before ELSE has ended, too; its IF counts this down */
    else if (!ended && c->code == i->code && c->dtype == i->dtype && c->a == i->a && c->b == i->b && c->imm == i->imm)
      return k;
    if (c->code == L_PHASE && !ended) { /* of the code before this phase only the prelude is visible */
      for (k = 1; p->code[k].code != L_PHASE;) k++;
      stop = 1;
    }
  }
  return 0;
}

l_val l_int(l_program *p, int64_t value) {
  l_instr i = {.code = L_INT, .imm = value};
  l_val old = find_equal(p, &i);
  return old ? old : l_emit(p, i);
}

l_val l_param(l_program *p, uint32_t number) {
  if (number >= p->nints) p->nints = number + 1;
  l_instr i = {.code = L_PARAM, .imm = number};
  l_val old = find_equal(p, &i);
  return old ? old : l_emit(p, i);
}

static bool is_int(const l_program *p, l_val v, int64_t *value) {
  if (!v || v >= p->n || p->code[v].code != L_INT) return false;
  *value = p->code[v].imm;
  return true;
}

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

int64_t l_index_value(l_code code, int64_t a, int64_t b) {
  switch (code) {
  case L_IADD: return (int64_t)((uint64_t)a + (uint64_t)b);
  case L_ISUB: return (int64_t)((uint64_t)a - (uint64_t)b);
  case L_IMUL: return (int64_t)((uint64_t)a * (uint64_t)b);
  case L_IDIV: return b > 0 ? floor_div(a, b) : 0;
  case L_IMOD: return b > 0 ? a - b * floor_div(a, b) : 0;
  case L_IMIN: return a < b ? a : b;
  default: return a > b ? a : b;
  }
}

uint64_t l_identity(uint8_t op, uint8_t dtype) {
  bool high = op == KOP_min || op == KOP_argmin, low = op == KOP_max || op == KOP_argmax;
  double real = low ? -__builtin_inf() : high ? __builtin_inf() : op == KOP_mul ? 1.0 : -0.0;
  int64_t whole = op == KOP_mul;
  uint64_t bits = 0;
  if (!dtype_is_float(dtype)) {
    if (low) whole = dtype_min(dtype);
    if (high) whole = (int64_t)dtype_max(dtype);
    if (op == KOP_and) whole = dtype_is_signed(dtype) ? -1 : (int64_t)dtype_max(dtype);
  }
  dtype_store(dtype, &bits, dtype_is_float(dtype) ? value_float(real) : value_int(whole));
  return bits;
}

l_val l_index(l_program *p, l_code code, l_val a, l_val b) {
  int64_t x = 0, y = 0;
  bool cx = is_int(p, a, &x), cy = is_int(p, b, &y);
  if (cx && cy) return l_int(p, l_index_value(code, x, y));
  if ((code == L_IADD || code == L_IMUL) && cx) { /* a constant becomes the right operand */
    l_val t = a;
    a = b;
    b = t;
    y = x;
    cy = true;
  }
  if (cy && y == 0 && (code == L_IADD || code == L_ISUB)) return a;
  if (cy && y == 0 && code == L_IMUL) return b;
  if (cy && y == 1 && (code == L_IMUL || code == L_IDIV)) return a;
  if (cy && y == 1 && code == L_IMOD) return l_int(p, 0);
  if (a == b && (code == L_IMIN || code == L_IMAX)) return a;
  if (a == b && code == L_ISUB) return l_int(p, 0);
  l_instr i = {.code = (uint8_t)code, .a = a, .b = b};
  l_val old = find_equal(p, &i);
  return old ? old : l_emit(p, i);
}

l_val l_of_dim(l_program *p, const dim_table *t, const dim_expr *e, l_val a, l_val b) {
  static const uint8_t codes[] = {[DIM_ADD] = L_IADD, [DIM_SUB] = L_ISUB, [DIM_MUL] = L_IMUL, [DIM_FLOORDIV] = L_IDIV,
                                  [DIM_MOD] = L_IMOD, [DIM_MIN] = L_IMIN, [DIM_MAX] = L_IMAX};
  if ((e->op != DIM_FLOORDIV && e->op != DIM_MOD) || dim_nonnegative(t, e->b))
    return l_index(p, (l_code)codes[e->op], a, b);
  /* a // b = (-a) // (-b), and IDIV asks for b > 0 */
  l_val sign = l_index(p, L_IMAX, l_index(p, L_IMIN, b, l_int(p, 1)), l_int(p, -1));
  l_val quotient = l_index(p, L_IDIV, l_index(p, L_IMUL, a, sign), l_index(p, L_IMUL, b, sign));
  if (e->op == DIM_FLOORDIV) return quotient;
  l_val rest = l_index(p, L_ISUB, a, l_index(p, L_IMUL, quotient, b));
  return l_index(p, L_IMUL, rest, l_index(p, L_IMUL, sign, sign)); /* 0 if b is 0 */
}

l_val l_const(l_program *p, qn_dtype dtype, uint64_t bits) {
  l_instr i = {.code = L_CONST, .dtype = (uint8_t)dtype, .imm = (int64_t)bits};
  l_val old = find_equal(p, &i);
  return old ? old : l_emit(p, i);
}

l_val l_kop(l_program *p, kop_id op, qn_dtype dtype, l_val a, l_val b, l_val c) {
  return l_emit(p, (l_instr){.code = L_KOP, .sub = (uint8_t)op, .dtype = (uint8_t)dtype, .a = a, .b = b, .c = c});
}

l_val l_math(l_program *p, math_id fn, qn_dtype dtype, l_val a, l_val b, l_val c) {
  return l_emit(p, (l_instr){.code = L_MATH, .sub = (uint8_t)fn, .dtype = (uint8_t)dtype, .a = a, .b = b, .c = c});
}

void l_end(l_program *p) { (void)l_emit(p, (l_instr){.code = L_END}); }

/* ---- hash -------------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, uint64_t x) {
  h ^= x;
  h *= 0x9fb21c651e98df25u;
  return h ^ h >> 32;
}

uint64_t l_hash(const l_program *p) {
  uint64_t h = 0x243f6a8885a308d3u;
  h = mix(h, (uint64_t)p->n << 32 | p->nbuffers);
  h = mix(h, (uint64_t)p->nints << 32 | p->nscalars);
  h = mix(h, (uint64_t)p->ntiles << 32 | p->nchecks);
  for (uint32_t k = 1; k < p->n; k++) {
    const l_instr *i = &p->code[k];
    h = mix(h, (uint64_t)i->code | (uint64_t)i->sub << 8 | (uint64_t)i->dtype << 16 | (uint64_t)i->type2 << 24 |
                   (uint64_t)i->flags << 32 | (uint64_t)i->block << 40);
    h = mix(h, (uint64_t)i->a << 32 | i->b);
    h = mix(h, (uint64_t)i->c << 32 | i->d);
    h = mix(h, (uint64_t)i->e << 32 | i->f);
    h = mix(h, (uint64_t)i->g << 32 | i->h);
    h = mix(h, (uint64_t)i->imm);
    h = mix(h, (uint64_t)i->imm2);
  }
  for (uint32_t k = 0; k < p->nbuffers; k++)
    h = mix(h, (uint64_t)p->buffers[k].size << 16 | (uint64_t)p->buffers[k].mode << 8 | p->buffers[k].dtype);
  for (uint32_t k = 0; k < p->ntiles; k++) {
    const l_tile *t = &p->tiles[k];
    h = mix(h, (uint64_t)(uint32_t)t->x << 32 | (uint32_t)t->y);
    h = mix(h, (uint64_t)t->x_base << 32 | t->x_m);
    h = mix(h, (uint64_t)t->x_k << 32 | t->y_base);
    h = mix(h, (uint64_t)t->y_k << 32 | t->y_n);
    h = mix(h, (uint64_t)t->rows << 32 | t->cols);
    h = mix(h, (uint64_t)t->depth << 32 | t->out);
    h = mix(h, (uint64_t)(uint32_t)t->tile_rows << 32 | (uint32_t)t->tile_cols);
    h = mix(h, (uint64_t)(uint32_t)t->to);
    h = mix(h, (uint64_t)t->to_base << 32 | t->to_m);
    h = mix(h, (uint64_t)t->n_first << 32 | t->k_first);
    for (uint32_t i = 0; i < t->ndigits; i++) {
      h = mix(h, (uint64_t)t->digits[i].by << 32 | t->digits[i].most);
      h = mix(h, (uint64_t)t->digits[i].step << 1 | t->digits[i].deep);
    }
  }
  for (uint32_t k = 0; k < p->nblocks; k++) {
    const l_block *b = &p->blocks[k];
    h = mix(h, (uint64_t)b->rows << 48 | (uint64_t)b->cols << 32 | (uint64_t)b->across << 16 | b->down);
    h = mix(h, (uint64_t)b->each << 1 | b->fragments);
  }
  /* Code depends on a check's error and detail, but not on its site and node. */
  for (uint32_t k = 0; k < p->nchecks; k++) {
    h = mix(h, (uint64_t)(uint32_t)p->checks[k].id);
    h = mix(h, (uint64_t)p->checks[k].detail);
  }
  return h;
}
