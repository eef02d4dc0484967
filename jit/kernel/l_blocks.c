/* Block values as loops: an L program with blocks becomes one without, which every executor can run (l_without_blocks).
 *
 * Instructions on blocks of one shape that follow each other become one VEC over the columns, in a FOR over the rows: a group. What is only
 * used in its group is a value of that VEC; other blocks are locals of their instance. Reductions along rows are accumulators that the
 * group pushes to, so their orders are those of any accumulator. Blocks of one column go along their rows. What is the same for all
 * elements - constants, results of a block's only row - is a uniform.
 *
 * A group ends where an instruction needs all of its block (reductions down, products, loops), and where memory that the group writes is
 * read or written again. Instructions on plain numbers do not end it: they do not touch memory, and stand before its loop.
 *
 * How a block is spread over threads has no meaning, and is left to the executors. */
#include <stdlib.h>
#include <string.h>

#include "jit/kernel/l.h"

typedef struct member { /* what an access of the group needs before its VEC */
  l_val at;             /* in the old program */
  l_val base, stride, hi, other, acc;
} member;

typedef struct lowering {
  const l_program *p;
  l_program *to;
  l_val *map; /* per old instruction: the new one; of a block its local, or the uniform that all its elements are */
  l_val *own; /* per old instruction of a group: its value in the VEC */
  uint32_t *group; /* per old instruction: its group, or 0 */
  uint32_t *seen;  /* per old instruction: the last group whose VEC has its value */
  uint8_t *kept;   /* does the block need a local? */
  l_val *spare;    /* of a SET from another carry: the local in which the new elements wait */
  member *members;
  uint32_t nmembers, ngroups;
  const l_block *shape; /* of the group */
  l_val zero, one;
  l_val row, line; /* of the group's FOR, and the place of the row's first element */
  l_val rows[L_BLOCKS_MOST], cols[L_BLOCKS_MOST], count[L_BLOCKS_MOST];
  l_val stack[64];
  int depth;
} lowering;

static bool is_one_row(const l_block *b) { return b->rows == 1; }
static bool same_shape(const l_block *a, const l_block *b) { return a->rows == b->rows && a->cols == b->cols; }

/* The block whose elements the instruction goes over in a group, or NULL if it is none that a group can have. */
static const l_block *group_shape(const l_program *p, const l_instr *i, l_val v) {
  switch (i->code) {
  case L_BLOAD:
  case L_KOP:
  case L_MATH:
  case L_IOTA: return l_block_of(p, v);
  case L_BSTORE: return l_block_of(p, i->h);
  case L_BREDUCE: return i->flags & L_DOWN ? NULL : l_block_of(p, i->a);
  default: return NULL;
  }
}

/* Is it arithmetic on blocks of one element, which is a uniform's? */
static bool is_single(const l_program *p, l_val v) {
  const l_instr *i = &p->code[v];
  const l_block *b = i->code == L_KOP || i->code == L_MATH || i->code == L_IOTA ? l_block_of(p, v) : NULL;
  return b && b->rows == 1 && b->cols == 1;
}

static bool is_plain(const l_instr *i) {
  return !i->block && ((i->code >= L_INT && i->code <= L_IVALUE) || i->code == L_CONST || i->code == L_SCALAR ||
                       i->code == L_IOTA || i->code == L_KOP || i->code == L_MATH);
}

/* Does the instruction read an operand of the running group that the group's VEC cannot give it, or memory that the group writes? */
static bool must_part(const lowering *l, l_val v, uint32_t group, l_val first) {
  const l_instr *i = &l->p->code[v];
  for (const l_operand *o = l_rows[i->code].operands; o->role; o++) {
    l_val u = l_operand_of(i, o);
    if (u && l->group[u] == group && (l->p->code[u].code == L_BREDUCE || !same_shape(l_block_of(l->p, u), l->shape)))
      return true;
  }
  if (i->code != L_BLOAD && i->code != L_BSTORE) return false;
  for (l_val k = first; k < v; k++)
    if (l->group[k] == group &&
        (l->p->code[k].code == L_BSTORE || (i->code == L_BSTORE && l->p->code[k].code == L_BLOAD)) &&
        l->p->code[k].imm == i->imm)
      return true;
  return false;
}

/* Which instructions make a group, and which blocks are needed outside of theirs. */
static void find_groups(lowering *l) {
  const l_program *p = l->p;
  uint32_t group = 0;
  l_val first = 0;
  l->shape = NULL;
  for (l_val v = 1; v < p->n; v++) {
    const l_instr *i = &p->code[v];
    if (is_plain(i) || i->code == L_SET || (i->block && i->code == L_CONST)) continue;
    const l_block *shape = is_single(p, v) ? NULL : group_shape(p, i, v);
    if (!shape) {
      l->shape = NULL;
      continue;
    }
    if (!l->shape || !same_shape(shape, l->shape) || must_part(l, v, group, first)) {
      group = ++l->ngroups;
      first = v;
    }
    l->shape = shape;
    l->group[v] = group;
  }
  for (l_val v = 1; v < p->n; v++) {
    const l_instr *i = &p->code[v];
    bool carry = i->block && i->code == L_CARRY;
    l->kept[v] |= carry || (i->block && (i->code == L_BDOT || i->code == L_FINISH || i->code == L_BREDUCE));
    for (const l_operand *o = l_rows[i->code].operands; o->role; o++) {
      l_val u = l_operand_of(i, o);
      if (u && l_block_of(p, u) && p->code[u].code != L_CONST && (!l->group[u] || l->group[u] != l->group[v]))
        l->kept[u] = 1;
    }
  }
}

/* ---- values ---- */

static l_val index_of(lowering *l, l_code code, l_val a, l_val b) { return l_index(l->to, code, a, b); }
static bool is_uniform(const lowering *l, l_val u) {
  return !l->p->code[u].block || (l->map[u] && l->to->code[l->map[u]].code != L_LOCAL);
}
static uint8_t type_of(const lowering *l, l_val u) { return l->p->code[u].dtype; }
static l_val rows_of(const lowering *l, const l_block *b) { return l->rows[b - l->p->blocks]; }
static l_val cols_of(const lowering *l, const l_block *b) { return l->cols[b - l->p->blocks]; }
static l_val count_of(const lowering *l, const l_block *b) { return l->count[b - l->p->blocks]; }

static l_val load(lowering *l, l_val u, l_val base, l_val stride) {
  return l_emit(l->to,
                (l_instr){.code = L_LOAD, .dtype = type_of(l, u), .imm = -(int64_t)l->map[u], .a = base, .b = stride});
}
static void store(lowering *l, l_val local, l_val value, l_val base, l_val stride) {
  (void)l_emit(l->to, (l_instr){.code = L_STORE, .imm = -(int64_t)local, .h = value, .a = base, .b = stride});
}
static l_val open(lowering *l, l_code code, l_val to) {
  return l_emit(l->to, (l_instr){.code = (uint8_t)code, .a = l->zero, .b = to});
}
static l_val open_for(lowering *l, l_val to) {
  l_val loop = open(l, L_FOR, to);
  return l_emit(l->to, (l_instr){.code = L_VAR, .a = loop});
}

/* ---- groups ---- */

/* Does the group run along its only column? */
static bool along(const lowering *l) {
  if (l->shape->cols > 1 || is_one_row(l->shape)) return false;
  for (uint32_t m = 0; m < l->nmembers; m++)
    if (l->p->code[l->members[m].at].code == L_BREDUCE) return false;
  return true;
}

/* Before the VEC: addresses and guards of a member, and those operands that are one number in it. */
static void prepare(lowering *l, member *m, bool column) {
  const l_instr *i = &l->p->code[m->at];
  const l_block *s = l->shape;
  if (i->code == L_BREDUCE) {
    m->acc = l_emit(
        l->to, (l_instr){.code = L_ACC, .sub = i->sub, .dtype = type_of(l, i->a), .imm = i->imm, .b = cols_of(l, s)});
  } else if (i->code == L_IOTA) {
    m->base = l->map[i->a];
    m->stride = column ? l->map[i->c] : l->map[i->b];
    if (!column && i->c) m->base = index_of(l, L_IADD, m->base, index_of(l, L_IMUL, l->row, l->map[i->c]));
  } else if (i->code == L_BLOAD || i->code == L_BSTORE) {
    l_val inner = column ? i->e : i->f, outer = column ? i->f : i->e;
    m->base = l->map[i->a];
    m->stride = column ? l->map[i->d] : l->map[i->b];
    if (!column && i->d) m->base = index_of(l, L_IADD, m->base, index_of(l, L_IMUL, l->row, l->map[i->d]));
    if (inner || outer) m->hi = inner ? l->map[inner] : column ? rows_of(l, s) : cols_of(l, s);
    if (outer) { /* none where the row is no row */
      l_val left = index_of(l, L_ISUB, l->map[outer], column ? l->zero : l->row);
      l_val some = index_of(l, L_IMIN, index_of(l, L_IMAX, left, l->zero), l->one);
      m->hi = index_of(l, L_IMUL, m->hi, some);
    }
    if (i->code == L_BLOAD && (m->hi || i->g) && !i->h) m->other = l_const(l->to, (qn_dtype)i->dtype, 0);
  }
  for (const l_operand *o = l_rows[i->code].operands; o->role; o++) {
    l_val u = l_operand_of(i, o);
    const l_block *b = u ? l_block_of(l->p, u) : NULL;
    if (!b || is_uniform(l, u) || l->group[u] == l->group[m->at] || l->seen[u] == l->group[m->at]) continue;
    if ((column ? b->rows : b->cols) > 1) continue;
    l->own[u] = load(l, u, is_one_row(b) ? l->zero : l->row, 0);
    l->seen[u] = l->group[m->at];
  }
}

/* In the VEC: the value of an operand of member v. */
static l_val operand(lowering *l, l_val v, l_val u, bool column) {
  const l_block *b = u ? l_block_of(l->p, u) : NULL;
  if (!b || is_uniform(l, u)) return l->map[u];
  if (l->group[u] != l->group[v] && l->seen[u] != l->group[v]) {
    l->seen[u] = l->group[v];
    l->own[u] = load(l, u, is_one_row(b) || column ? l->zero : l->line, l->one);
  }
  return l->own[u];
}

static void compute(lowering *l, const member *m, bool column) {
  const l_val v = m->at;
  const l_instr *i = &l->p->code[v];
  l_instr to = {.code = i->code, .sub = i->sub, .dtype = i->dtype, .imm = i->imm};
  switch (i->code) {
  case L_IOTA: to.a = m->base, to.b = m->stride; break;
  case L_BREDUCE: to = (l_instr){.code = L_PUSH, .a = m->acc, .b = operand(l, v, i->a, column)}; break;
  case L_BLOAD:
  case L_BSTORE:
    to.code = i->code == L_BLOAD ? L_LOAD : L_STORE;
    if (i->imm < 0) to.imm = -(int64_t)l->map[-i->imm];
    to.a = m->base, to.b = m->stride, to.f = m->hi;
    to.c = operand(l, v, i->c, column), to.d = i->c ? l->one : 0;
    to.g = operand(l, v, i->g, column);
    if (i->code == L_BSTORE || to.f || to.g) to.h = i->h ? operand(l, v, i->h, column) : m->other;
    break;
  default:
    to.a = operand(l, v, i->a, column), to.b = operand(l, v, i->b, column), to.c = operand(l, v, i->c, column);
    break;
  }
  l->own[v] = l_emit(l->to, to);
}

/* Prints the group that is pending, if there is one. */
static void finish_group(lowering *l) {
  if (!l->nmembers) return;
  const l_block *s = l->shape = group_shape(l->p, &l->p->code[l->members[0].at], l->members[0].at);
  bool column = along(l), rows = !column && !is_one_row(s);
  l->row = rows ? open_for(l, rows_of(l, s)) : l->zero;
  l->line = index_of(l, L_IMUL, l->row, cols_of(l, s));
  for (uint32_t m = 0; m < l->nmembers; m++) prepare(l, &l->members[m], column);
  (void)open(l, L_VEC, column ? rows_of(l, s) : cols_of(l, s));
  for (uint32_t m = 0; m < l->nmembers; m++) compute(l, &l->members[m], column);
  for (uint32_t m = 0; m < l->nmembers; m++) {
    l_val v = l->members[m].at;
    if (l->kept[v] && l->p->code[v].code != L_BREDUCE) store(l, l->map[v], l->own[v], l->line, l->one);
  }
  l_end(l->to);
  for (uint32_t m = 0; m < l->nmembers; m++) {
    l_val v = l->members[m].at;
    if (l->p->code[v].code != L_BREDUCE) continue;
    l_val result = l_emit(l->to, (l_instr){.code = L_FINISH, .dtype = l->p->code[v].dtype, .a = l->members[m].acc});
    if (is_one_row(s))
      l->map[v] = result;
    else
      store(l, l->map[v], result, l->row, 0);
  }
  if (rows) l_end(l->to);
  l->nmembers = 0;
}

/* ---- instructions that need all of a block ---- */

/* All elements of block u, or a uniform, to a local of shape s. */
static void copy(lowering *l, l_val local, const l_block *s, l_val u) {
  l_val row = is_one_row(s) ? l->zero : open_for(l, rows_of(l, s));
  l_val line = index_of(l, L_IMUL, row, cols_of(l, s));
  const l_block *b = l_block_of(l->p, u);
  l_val base = !b || is_one_row(b) ? l->zero : b->cols > 1 ? line : row, value = 0;
  bool one = is_uniform(l, u) || !b || b->cols == 1;
  if (one) value = is_uniform(l, u) ? l->map[u] : load(l, u, base, 0);
  (void)open(l, L_VEC, cols_of(l, s));
  if (!one) value = load(l, u, base, l->one);
  store(l, local, value, line, l->one);
  l_end(l->to);
  if (!is_one_row(s)) l_end(l->to);
}

/* A reduction of columns. Chains of INNER are 64 pushes apart: longer columns go one after the other. */
static void reduce_down(lowering *l, l_val v) {
  const l_instr *i = &l->p->code[v];
  const l_block *s = l_block_of(l->p, i->a);
  l_instr acc = {.code = L_ACC, .sub = i->sub, .dtype = type_of(l, i->a), .imm = i->imm, .b = rows_of(l, s)};
  l_instr finish = {.code = L_FINISH, .dtype = i->dtype};
  if (s->cols > 1 && (i->imm != ORDER_INNER || s->rows <= ORDER_LANES)) {
    acc.a = cols_of(l, s);
    finish.a = l_emit(l->to, acc);
    l_val line = index_of(l, L_IMUL, open_for(l, rows_of(l, s)), cols_of(l, s));
    (void)open(l, L_VEC, cols_of(l, s));
    l_val x = is_uniform(l, i->a) ? l->map[i->a] : load(l, i->a, line, l->one);
    (void)l_emit(l->to, (l_instr){.code = L_PUSH, .a = finish.a, .b = x});
    l_end(l->to);
    l_end(l->to);
    (void)open(l, L_VEC, cols_of(l, s));
    store(l, l->map[v], l_emit(l->to, finish), l->zero, l->one);
    l_end(l->to);
    return;
  }
  l_val col = open_for(l, cols_of(l, s));
  finish.a = l_emit(l->to, acc);
  (void)open(l, L_VEC, rows_of(l, s));
  l_val x = is_uniform(l, i->a) ? l->map[i->a] : load(l, i->a, col, cols_of(l, s));
  (void)l_emit(l->to, (l_instr){.code = L_PUSH, .a = finish.a, .b = x});
  l_end(l->to);
  store(l, l->map[v], l_emit(l->to, finish), col, 0);
  l_end(l->to);
}

static l_val as(lowering *l, l_val x, uint8_t dtype) {
  return l->to->code[x].dtype == dtype ? x : l_kop(l->to, KOP_cast, (qn_dtype)dtype, x, 0, 0);
}

/* Row after row of the result, and for each k one multiple of a row of y: each element is one chain upward. */
static void product(lowering *l, l_val v) {
  const l_instr *i = &l->p->code[v];
  const l_block *s = l_block_of(l->p, v), *x = l_block_of(l->p, i->b), *y = l_block_of(l->p, i->c);
  copy(l, l->map[v], s, i->a);
  l_val row = is_one_row(s) ? l->zero : open_for(l, rows_of(l, s));
  l_val k = open_for(l, cols_of(l, x));
  l_val line = index_of(l, L_IMUL, row, cols_of(l, s));
  l_val at = index_of(l, L_IADD, index_of(l, L_IMUL, row, cols_of(l, x)), k);
  l_val y_line = index_of(l, L_IMUL, k, cols_of(l, y));
  l_val p = as(l, is_uniform(l, i->b) ? l->map[i->b] : load(l, i->b, at, 0), i->dtype);
  (void)open(l, L_VEC, cols_of(l, s));
  l_val q = as(l, is_uniform(l, i->c) ? l->map[i->c] : load(l, i->c, y_line, l->one), i->dtype);
  l_val sum = load(l, v, line, l->one);
  if (dtype_is_float(i->dtype))
    sum = l_kop(l->to, KOP_fma, (qn_dtype)i->dtype, p, q, sum);
  else
    sum = l_kop(l->to, KOP_add, (qn_dtype)i->dtype, l_kop(l->to, KOP_mul, (qn_dtype)i->dtype, p, q, 0), sum, 0);
  store(l, l->map[v], sum, line, l->one);
  l_end(l->to);
  l_end(l->to);
  if (!is_one_row(s)) l_end(l->to);
}

/* A PUSH of a block or its FINISH: its elements are the results, row after row. */
static void many(lowering *l, l_val v) {
  const l_instr *i = &l->p->code[v];
  bool push = i->code == L_PUSH;
  l_val u = push ? i->b : v;
  (void)open(l, L_VEC, count_of(l, l_block_of(l->p, u)));
  if (push) {
    l_val x = is_uniform(l, u) ? l->map[u] : load(l, u, l->zero, l->one);
    (void)l_emit(l->to, (l_instr){.code = L_PUSH, .a = l->map[i->a], .b = x, .c = l->map[i->c]});
  } else {
    store(l, l->map[v], l_emit(l->to, (l_instr){.code = L_FINISH, .dtype = i->dtype, .a = l->map[i->a]}), l->zero,
          l->one);
  }
  l_end(l->to);
}

/* At the end of a loop: its carries of blocks get their new elements, all at once. */
static void set_carries(lowering *l, l_val loop, l_val end) {
  for (int pass = 0; pass < 2; pass++)
    for (l_val v = loop + 1, depth = 0; v < end; v++) {
      const l_instr *i = &l->p->code[v];
      if (l_opens(i->code)) depth++;
      if (i->code == L_END) depth--;
      if (depth || i->code != L_SET || !l_block_of(l->p, i->a)) continue;
      const l_block *s = l_block_of(l->p, i->a);
      if (pass == 0 && l->spare[v]) copy(l, l->spare[v], s, i->b);
      if (pass == 0) continue;
      l_val from = l->map[i->b];
      if (l->spare[v]) l->map[i->b] = l->spare[v];
      copy(l, l->map[i->a], s, i->b);
      l->map[i->b] = from;
    }
}

/* Arithmetic on blocks of one element. */
static void single(lowering *l, l_val v) {
  l_instr i = l->p->code[v];
  if (i.code == L_IOTA) i.b = i.c = 0;
  for (const l_operand *o = l_rows[i.code].operands; o->role; o++) {
    l_val *u = (l_val *)(void *)((char *)&i + o->at);
    *u = is_uniform(l, *u) ? l->map[*u] : load(l, *u, l->zero, 0);
  }
  i.block = 0;
  l->map[v] = l_emit(l->to, i);
}

/* ---- programs ---- */

/* The instruction as it is, its operands in the new program. */
static void clone(lowering *l, l_val v) {
  l_instr i = l->p->code[v];
  for (const l_operand *o = l_rows[i.code].operands; o->role; o++) {
    l_val *u = (l_val *)(void *)((char *)&i + o->at);
    *u = l->map[*u];
  }
  char imm = l_rows[i.code].imm;
  if (imm == 'b' && i.imm < 0) i.imm = -(int64_t)l->map[-i.imm];
  if ((i.code == L_PARTIAL || i.code == L_MERGE) && i.imm2 < 0) i.imm2 = -(int64_t)l->map[-i.imm2];
  if (i.code == L_TILE) {
    l_tile t = l->p->tiles[i.imm];
    l_val *values[L_TILE_VALUES];
    for (int k = 0, n = l_tile_values(&t, values); k < n; k++) *values[k] = l->map[*values[k]];
    if (t.x < 0) t.x = -(int32_t)l->map[-t.x];
    if (t.y < 0) t.y = -(int32_t)l->map[-t.y];
    if (!t.out && t.to < 0) t.to = -(int32_t)l->map[-t.to];
    i.imm = l_tile_add(l->to, t);
  }
  if (i.code == L_PAR) i.imm2 = 0; /* a layout is of the loops that a phase has */
  i.block = 0;
  l->map[v] = l_emit(l->to, i);
}

/* Behind a PAR: the locals of its instances' blocks. */
static void make_locals(lowering *l, l_val par) {
  for (l_val v = par + 1; v < l->p->n && l->p->code[v].code != L_PHASE; v++) {
    const l_instr *i = &l->p->code[v];
    bool spare = i->code == L_SET && l_block_of(l->p, i->b) && l->p->code[i->b].code == L_CARRY && i->a != i->b;
    const l_block *s = spare ? l_block_of(l->p, i->a) : l_block_of(l->p, v);
    if (!s || !(spare || l->kept[v])) continue;
    if (is_single(l->p, v) || (l->group[v] && i->code == L_BREDUCE && s->rows == 1)) continue; /* a uniform */
    l_val local = l_emit(l->to, (l_instr){.code = L_LOCAL, .dtype = type_of(l, spare ? i->a : v), .a = count_of(l, s)});
    *(spare ? &l->spare[v] : &l->map[v]) = local;
  }
}

static void lower(lowering *l, l_val v) {
  const l_instr *i = &l->p->code[v];
  if (is_plain(i) || (i->block && i->code == L_CONST)) {
    clone(l, v);
    return;
  }
  if (i->code == L_SET && l_block_of(l->p, i->a)) return;
  if (l->group[v]) {
    if (l->nmembers && l->group[l->members[0].at] != l->group[v]) finish_group(l);
    l->members[l->nmembers++] = (member){.at = v};
    return;
  }
  if (i->code != L_SET) finish_group(l);
  if (l_opens(i->code)) l->stack[l->depth++] = v;
  if (is_single(l->p, v)) {
    single(l, v);
    return;
  }
  switch (i->code) {
  case L_BREDUCE: reduce_down(l, v); return;
  case L_BDOT: product(l, v); return;
  case L_BVALUE: l->map[v] = is_uniform(l, i->a) ? l->map[i->a] : load(l, i->a, l->zero, 0); return;
  case L_PUSH:
    if (!l_block_of(l->p, i->b)) break;
    many(l, v);
    return;
  case L_CARRY:
    if (!i->block) break;
    copy(l, l->map[v], l_block_of(l->p, v), i->a);
    return;
  case L_FINISH:
    if (!i->block) break;
    many(l, v);
    return;
  case L_END: {
    l_val opener = l->depth ? l->stack[--l->depth] : 0;
    if (l->p->code[opener].code == L_FOR || l->p->code[opener].code == L_WHILE) set_carries(l, opener, v);
    break;
  }
  default: break;
  }
  clone(l, v);
  if (i->code == L_PAR) make_locals(l, v);
}

l_program *l_without_blocks(const l_program *p) {
  lowering l = {.p = p, .to = l_new(p->name)};
  size_t n = p->n;
  arena ours;
  arena_init(&ours, NULL);
  l_val **const values[] = {&l.map, &l.own, &l.spare, &l.group, &l.seen};
  for (size_t k = 0; k < sizeof values / sizeof *values; k++) *values[k] = arena_alloc(&ours, n * sizeof(l_val));
  l.kept = arena_alloc(&ours, n);
  l.members = arena_alloc(&ours, n * sizeof *l.members);
  bool ok = l.to && !ours.failed;
  if (ok) {
    l.to->nints = p->nints;
    l.to->nscalars = p->nscalars;
    if (p->schedule && (l.to->schedule = arena_alloc(&l.to->arena, strlen(p->schedule) + 1)))
      memcpy((char *)(uintptr_t)l.to->schedule, p->schedule, strlen(p->schedule) + 1);
    l.zero = l_int(l.to, 0);
    l.one = l_int(l.to, 1);
    for (uint32_t b = 0; b < p->nblocks; b++) {
      l.rows[b] = l_int(l.to, p->blocks[b].rows);
      l.cols[b] = l_int(l.to, p->blocks[b].cols);
      l.count[b] = l_int(l.to, (int64_t)p->blocks[b].rows * p->blocks[b].cols);
    }
    find_groups(&l);
    for (l_val v = 1; v < p->n && !l.to->failed; v++) lower(&l, v);
    for (uint32_t b = 0; b < p->nbuffers; b++)
      ok &= l_buffer_add(l.to, (qn_dtype)p->buffers[b].dtype, (l_buffer_mode)p->buffers[b].mode,
                         l.map[p->buffers[b].size]) >= 0;
    for (uint32_t k = 0; k < p->nchecks; k++) ok &= l_check_add(l.to, p->checks[k]) >= 0;
    ok &= !l.to->failed;
  }
  arena_free(&ours);
  if (ok) return l.to;
  l_free(l.to);
  return NULL;
}
