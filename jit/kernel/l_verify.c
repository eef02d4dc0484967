/* The verifier of L programs: every rule of l.h and lcodes.def that does not need a run.
 *
 * One walk over the code with a stack of open blocks. Visibility: each instruction remembers the block it stands in, and an
 * operand's block must still be open. An IF's two arms are two blocks. The rules about places (what may stand inside a VEC,
 * before a PAR, only once an instance) are in `place_ok`, the rules about dtypes in `types_ok`. */
#include "jit/kernel/l.h"
#include "jit/kernel/layout.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 64 };

typedef struct block {
  l_val at;    /* the instruction that opened it; 0 for the prelude */
  uint32_t id; /* a new one after ELSE and PHASE, so that each arm and each phase is a block */
} block;

typedef struct checker {
  const l_program *p;
  uint32_t *home; /* block id of each instruction */
  uint8_t *open;  /* by block id */
  uint32_t nblocks;
  block stack[DEPTH_MAX];
  int depth;      /* open blocks; stack[0] is the prelude, stack[1] the phase */
  int vec;        /* stack index of the open VEC, or 0 */
  int par;        /* stack index of the open PAR, or 0 */
  bool had_par;   /* has the current phase had its PAR? */
  uint32_t tiles; /* TILEs so far */
  l_val at;
  char *why;
  size_t size;
} checker;

static bool bad(checker *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool bad(checker *c, const char *format, ...) {
  const char *text =
      c->at < c->p->n && c->p->code[c->at].code < L_CODE_COUNT ? l_rows[c->p->code[c->at].code].text : "?";
  int n = snprintf(c->why, c->size, "L %s: %%%u (%s): ", c->p->name, c->at, text);
  va_list args;
  va_start(args, format);
  if (n >= 0 && (size_t)n < c->size) vsnprintf(c->why + n, c->size - (size_t)n, format, args);
  va_end(args);
  return false;
}

static bool enter(checker *c) {
  if (c->depth == DEPTH_MAX) return bad(c, "blocks nest too deep");
  c->stack[c->depth++] = (block){c->at, c->nblocks};
  c->open[c->nblocks++] = 1;
  return true;
}
static void leave(checker *c) { c->open[c->stack[--c->depth].id] = 0; }

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static bool visible(checker *c, l_val v, const char *what) {
  if (v == 0 || v >= c->at) return bad(c, "%s: %%%u is not defined before", what, v);
  if (!c->open[c->home[v]]) return bad(c, "%s: %%%u is not visible here", what, v);
  return true;
}

static bool operand_ok(checker *c, char role, l_val v, const char *name) {
  if (role >= 'a') {
    if (!v) return true;
    role = (char)(role - 'a' + 'A');
  }
  if (!visible(c, v, name)) return false;
  const l_instr *d = &c->p->code[v];
  char is = l_rows[d->code].result;
  switch (role) {
  case 'C': return d->code == L_CARRY || bad(c, "%%%u is not a carry", v);
  case 'X': return is == 'I' || is == 'V' || bad(c, "%%%u is no value", v);
  case 'V': return is == 'V' || bad(c, "%s: %%%u is not a typed value", name, v);
  case 'I': return is == 'I' || bad(c, "%s: %%%u is not an index", name, v);
  default: return is == role || bad(c, "%s: %%%u is of the wrong kind", name, v);
  }
}

/* Is v computed outside PARs, so that the launcher knows its value? */
static bool launch_time(checker *c, l_val v) {
  for (int s = 0; s < c->depth && s < 2; s++)
    if (c->stack[s].id == c->home[v]) return true;
  return false;
}

static bool in_vec_scope(checker *c, l_val v) {
  for (int s = c->vec; c->vec && s < c->depth; s++)
    if (c->stack[s].id == c->home[v]) return true;
  return false;
}

static bool buffer_ok(checker *c, int64_t b, int dtype, bool writes, bool reads) {
  if (b < 0) {
    if (!visible(c, (l_val)-b, "local")) return false;
    const l_instr *m = &c->p->code[-b];
    if (m->code != L_LOCAL) return bad(c, "%%%lld is not a local", (long long)-b);
    return dtype < 0 || m->dtype == dtype || bad(c, "dtype differs from the local's");
  }
  if (b >= c->p->nbuffers) return bad(c, "no buffer b%lld", (long long)b);
  const l_buffer *buf = &c->p->buffers[b];
  if (writes && buf->mode == BUF_IN) return bad(c, "writes the input b%lld", (long long)b);
  if (reads && buf->mode == BUF_OUT) return bad(c, "reads the output b%lld", (long long)b);
  return dtype < 0 || buf->dtype == dtype || bad(c, "dtype differs from that of b%lld", (long long)b);
}

/* ---- dtypes ------------------------------------------------------------------------------------------------------ */

static char dtype_letter(uint8_t d) {
  if (dtype_is_bool(d)) return 'B';
  if (dtype_is_float(d)) return dtype_is_narrow(d) ? '?' : 'F';
  return dtype_in_kernels(d) ? 'I' : '?';
}

const char *kop_misuse(uint8_t op, uint8_t result, const uint8_t *in, int n) {
  if (op >= KOP_COUNT || kop_is_arg(op)) return "no such function";
  const kop_row *row = &kop_rows[op];
  if (n != row->arity) return "wrong number of operands";
  uint8_t a = in[0], last = in[n - 1];
  bool moves = op == KOP_copy || op == KOP_select || op == KOP_cast || op == KOP_bitcast;
  if (!(moves && dtype_is_narrow(last)) && !strchr(row->types, dtype_letter(last))) return "not defined for this dtype";
  switch (op) {
  case KOP_cast:
    if (dtype_is_narrow(a) && result != dtype_compute(a)) return "f16 and bf16 are cast to f32 only";
    if (dtype_is_narrow(result) && dtype_letter(a) != 'F') return "f16 and bf16 are cast from f32 and f64 only";
    return dtype_letter(result) != '?' || dtype_is_narrow(result) ? NULL : "no such dtype";
  case KOP_bitcast: return dtype_rows[result].size == dtype_rows[a].size ? NULL : "bitcast between sizes";
  case KOP_select:
    if (!dtype_is_bool(a)) return "select needs a bool";
    return result == last && in[1] == last ? NULL : "select between dtypes";
  case KOP_mulhi:
    if (!dtype_is_word(a)) return "mulhi needs u32 or u64";
    break;
  default: break;
  }
  for (int k = 0; k < n; k++)
    if (in[k] != last) return "operands of different dtypes";
  return result == (op >= KOP_eq && op <= KOP_ge ? DTYPE_TEST : last) ? NULL : "wrong dtype of the result";
}

const char *math_misuse(uint8_t fn, uint8_t result, const uint8_t *in, int n) {
  if (fn >= MATH_COUNT) return "no such function";
  if (n != math_rows[fn].arity) return "wrong number of operands";
  for (int k = 0; k < n; k++)
    if (in[k] != in[0] || dtype_is_narrow(in[k])) return "wrong dtypes of operands";
  uint8_t kind = math_rows[fn].kind;
  if (kind == MATH_IS_WORD)
    return dtype_is_word(in[0]) && dtype_size(in[0]) == 8 && dtype_letter(result) == 'F' ? NULL : "a float from u64";
  if (dtype_letter(in[0]) != 'F') return "functions take f32 or f64";
  return result == (kind == MATH_IS_TEST ? DTYPE_TEST : in[0]) ? NULL : "wrong dtype of the result";
}

static bool kop_ok(checker *c, const l_instr *i) {
  const l_val v[3] = {i->a, i->b, i->c};
  uint8_t in[3];
  int n = 0;
  while (n < 3 && v[n]) n++;
  for (int k = 0; k < n; k++) in[k] = c->p->code[v[k]].dtype;
  const char *wrong = i->code == L_KOP ? kop_misuse(i->sub, i->dtype, in, n) : math_misuse(i->sub, i->dtype, in, n);
  if (wrong) return bad(c, "%s", wrong);
  return i->type2 == in[n - 1] || bad(c, "type2 is not the last operand's dtype");
}

static bool acc_ok(checker *c, const l_instr *i);

/* ---- blocks ------------------------------------------------------------------------------------------------------- */

/* May the value be an operand where a block of this type is made: a uniform, or a block that is spread alike and has as many rows and
 * columns, or one? */
static bool spreads(checker *c, l_val v, const l_block *to, const char *what) {
  const l_block *b = v ? l_block_of(c->p, v) : NULL;
  if (!b) return true;
  if ((b->rows != to->rows && b->rows != 1) || (b->cols != to->cols && b->cols != 1))
    return bad(c, "%s: a block of %u x %u for %u x %u", what, b->rows, b->cols, to->rows, to->cols);
  return (b->across == to->across && b->down == to->down && b->each == to->each && b->fragments == to->fragments) ||
         bad(c, "%s: blocks that are spread in different ways", what);
}

static bool is_block_code(uint8_t code) {
  return code == L_BLOAD || code == L_BREDUCE || code == L_BDOT || code == L_CONST || code == L_KOP || code == L_MATH ||
         code == L_IOTA || code == L_CARRY || code == L_FINISH;
}

static bool block_type_ok(checker *c, const l_block *b) {
  if (b->rows < 1 || b->cols < 1 || (int64_t)b->rows * b->cols > L_BLOCK_MOST)
    return bad(c, "a block of %u x %u", b->rows, b->cols);
  return (b->across >= 1 && b->down >= 1 && b->each >= 1) || bad(c, "a block of no threads");
}

static bool bdot_ok(checker *c, const l_instr *i, const l_block *to) {
  const l_block *a = l_block_of(c->p, i->a), *x = l_block_of(c->p, i->b), *y = l_block_of(c->p, i->c);
  uint8_t of = c->p->code[i->b].dtype;
  if (!a || !x || !y) return bad(c, "a product of blocks");
  if (a->rows != to->rows || a->cols != to->cols || x->rows != to->rows || y->cols != to->cols || x->cols != y->rows)
    return bad(c, "%u x %u times %u x %u is no %u x %u", x->rows, x->cols, y->rows, y->cols, to->rows, to->cols);
  if (of != c->p->code[i->c].dtype || c->p->code[i->a].dtype != i->dtype || i->dtype != dtype_compute(of))
    return bad(c, "a product of other dtypes");
  if (!spreads(c, i->a, to, "sum")) return false;
  return !(i->flags & L_MMA) || (to->fragments && dtype_is_narrow(of)) ||
         bad(c, "tensor cores multiply fragments of f16 and bf16");
}

static bool breduce_ok(checker *c, const l_instr *i, const l_block *to) {
  const l_block *a = l_block_of(c->p, i->a);
  bool down = i->flags & L_DOWN;
  if (!a) return bad(c, "a reduction of a block");
  if (down ? to->rows != 1 || to->cols != a->cols : to->cols != 1 || to->rows != a->rows)
    return bad(c, "the results of %u x %u are no %u x %u", a->rows, a->cols, to->rows, to->cols);
  uint8_t result = kop_is_arg(i->sub) ? (uint8_t)DTYPE_INDEX : c->p->code[i->a].dtype;
  if (i->dtype != result) return bad(c, "dtype differs from the block's");
  l_instr acc = {.code = L_ACC, .sub = i->sub, .dtype = c->p->code[i->a].dtype, .imm = i->imm};
  return i->imm != ORDER_DOT ? acc_ok(c, &acc) : bad(c, "a sum of products is a BDOT");
}

/* What the rules about blocks say of an instruction that has or takes them. */
static bool blocks_ok(checker *c, const l_instr *i) {
  const l_program *p = c->p;
  const l_block *to = i->block ? (i->block <= p->nblocks ? &p->blocks[i->block - 1] : NULL) : NULL;
  bool takes = i->code == L_BSTORE || i->code == L_BVALUE || i->code == L_PUSH || i->code == L_SET ||
               i->code == L_BREDUCE || i->code == L_BDOT;
  if (i->block && !to) return bad(c, "no such type of blocks");
  if (to && (!is_block_code(i->code) || !c->par || c->vec)) return bad(c, "no block is made here");
  if (!to && (i->code == L_BLOAD || i->code == L_BREDUCE || i->code == L_BDOT))
    return bad(c, "a block has rows and columns");
  if (to && !block_type_ok(c, to)) return false;
  for (const l_operand *o = l_rows[i->code].operands; o->role; o++) {
    l_val v = l_operand_of(i, o);
    if (v && l_block_of(p, v) && !to && !takes) return bad(c, "%s: a block where none can be", o->name);
    if (v && to && !takes && !spreads(c, v, to, o->name)) return false;
  }
  const l_block *value = i->code == L_BSTORE ? l_block_of(p, i->h) : i->code == L_BVALUE ? l_block_of(p, i->a) : NULL;
  switch (i->code) {
  case L_BDOT: return bdot_ok(c, i, to);
  case L_BREDUCE: return breduce_ok(c, i, to);
  case L_BVALUE: return (value && value->rows == 1 && value->cols == 1) || bad(c, "a block of one");
  case L_BSTORE:
    if (!value) return bad(c, "a block is stored");
    return spreads(c, i->c, value, "index") && spreads(c, i->g, value, "where");
  case L_SET: return p->code[i->a].block == p->code[i->b].block || bad(c, "type differs from the carry's");
  case L_PUSH:
    return !l_block_of(p, i->b) || (p->code[i->a].a && !c->vec && !i->d) || bad(c, "a block is pushed to many results");
  case L_FINISH: return !to || (p->code[i->a].a && !c->vec) || bad(c, "a block of many results");
  case L_IOTA: return !i->c || to || bad(c, "rows belong to a block");
  case L_CARRY: return !to || l_block_of(p, i->a) || bad(c, "a carry of blocks begins with one");
  default: return true;
  }
}

static bool acc_ok(checker *c, const l_instr *i) {
  if (!kop_combines(i->sub) && !kop_is_arg(i->sub))
    return bad(c, "%s does not reduce", i->sub < KOP_COUNT ? kop_rows[i->sub].name : "?");
  if (kop_is_arg(i->sub) && i->imm != ORDER_FREE) return bad(c, "arg reductions are free");
  if (i->imm < ORDER_INNER || i->imm > ORDER_FREE) return bad(c, "no such order");
  if (i->imm == ORDER_DOT && i->sub != KOP_add) return bad(c, "dot order adds");
  char letter = dtype_letter(i->dtype);
  if (!kop_is_arg(i->sub) && !strchr(kop_rows[i->sub].types, letter)) return bad(c, "dtype cannot be reduced so");
  if (letter == '?') return bad(c, "dtype cannot be reduced");
  bool ordered = letter == 'F' && (i->sub == KOP_add || i->sub == KOP_mul);
  if (ordered && i->imm == ORDER_FREE) return bad(c, "float sums and products have an order");
  if ((i->a && !launch_time(c, i->a)) || (i->b && !launch_time(c, i->b)))
    return bad(c, "sizes are known before the PAR");
  return true;
}

static bool push_ok(checker *c, const l_instr *i) {
  const l_instr *a = &c->p->code[i->a];
  if (a->code != L_ACC) return bad(c, "no accumulator");
  if (c->p->code[i->b].dtype != a->dtype) return bad(c, "dtype differs from the accumulator's");
  if (i->code == L_PUSH) {
    if ((a->imm == ORDER_DOT) != (i->d != 0)) return bad(c, "dot order takes two factors, other orders one value");
    if (i->d && c->p->code[i->d].dtype != a->dtype) return bad(c, "dtype differs from the accumulator's");
  } else if (i->dtype != a->dtype || a->imm == ORDER_DOT || a->imm == ORDER_TREE || kop_is_arg(a->sub)) {
    return bad(c, "no such scan");
  }
  if (a->a && !c->vec && !l_block_of(c->p, i->b)) return bad(c, "many results are pushed inside a VEC");
  return true;
}

static bool types_ok(checker *c, const l_instr *i) {
  const l_program *p = c->p;
  switch (i->code) {
  case L_PARAM: return (i->imm >= 0 && i->imm < p->nints) || bad(c, "no such parameter");
  case L_SCALAR:
    if (i->imm < 0 || i->imm >= p->nscalars) return bad(c, "no such scalar");
    return dtype_is_weak(i->dtype) || bad(c, "scalars are bool, i64 or f64");
  case L_IVALUE: return dtype_letter(p->code[i->a].dtype) != 'F' || bad(c, "an index is an integer");
  case L_VAR:
    if (p->code[i->a].code == L_VEC) return bad(c, "the variable of a VEC is no index");
    for (int s = 0; s < c->depth; s++)
      if (c->stack[s].at == i->a) return true;
    return bad(c, "the loop has ended");
  case L_CONST: return dtype_in_kernels(i->dtype) || bad(c, "no such dtype");
  case L_IOTA: return dtype_letter(i->dtype) == 'I' || dtype_letter(i->dtype) == 'B' || bad(c, "iota is an integer");
  case L_KOP:
  case L_MATH: return kop_ok(c, i);
  case L_LOAD:
    if ((i->e || i->f || i->g) != (i->h != 0)) return bad(c, "a guard and `else` belong together");
    if (i->h && p->code[i->h].dtype != i->dtype) return bad(c, "dtype of `else` differs");
    if (!buffer_ok(c, i->imm, i->dtype, false, true)) return false;
    break;
  case L_STORE:
    if (!buffer_ok(c, i->imm, p->code[i->h].dtype, true, false)) return false;
    break;
  case L_RMW:
    if (!kop_updates(i->sub)) return bad(c, "no such update");
    if (!buffer_ok(c, i->imm, p->code[i->h].dtype, true, true)) return false;
    break;
  case L_ACC: return acc_ok(c, i);
  case L_PUSH:
  case L_SCAN: return push_ok(c, i);
  case L_PARTIAL:
  case L_MERGE: {
    const l_instr *a = &p->code[i->a];
    if (!buffer_ok(c, i->imm, a->dtype, i->code == L_PARTIAL, i->code == L_MERGE)) return false;
    if (kop_is_arg(a->sub) != (i->d != 0)) return bad(c, "arg reductions, and only they, have indices");
    return !i->d || buffer_ok(c, i->imm2, DTYPE_INDEX, i->code == L_PARTIAL, i->code == L_MERGE);
  }
  case L_FINISH: {
    const l_instr *a = &p->code[i->a];
    if (i->dtype != (kop_is_arg(a->sub) ? DTYPE_INDEX : a->dtype))
      return bad(c, "dtype differs from the accumulator's");
    return (a->a != 0) == (c->vec != 0 || i->block != 0) ||
           bad(c, "many results are finished inside a VEC, one result outside");
  }
  case L_CARRY: return true;
  case L_FAILED: return dtype_is_bool(i->dtype) || bad(c, "it is a bool");
  case L_SET: {
    uint8_t block = p->code[c->stack[c->depth - 1].at].code;
    if (block != L_FOR && block != L_WHILE) return bad(c, "stands directly in its loop");
    return p->code[i->a].dtype == p->code[i->b].dtype || bad(c, "dtype differs from the carry's");
  }
  case L_WHILE: return dtype_is_bool(p->code[i->a].dtype) || bad(c, "the condition is a bool");
  case L_IF:
    return l_rows[p->code[i->a].code].result == 'I' || dtype_is_bool(p->code[i->a].dtype) ||
           bad(c, "the condition is a bool");
  case L_BLOAD:
    if (i->h && p->code[i->h].dtype != i->dtype) return bad(c, "dtype of `else` differs");
    if (!buffer_ok(c, i->imm, i->dtype, false, true)) return false;
    break;
  case L_BSTORE:
    if (!buffer_ok(c, i->imm, p->code[i->h].dtype, true, false)) return false;
    break;
  case L_CHECK:
    if (i->imm < 0 || i->imm >= p->nchecks) return bad(c, "no such check");
    return dtype_is_bool(p->code[i->a].dtype) || bad(c, "a check tests a bool");
  default: return true;
  }
  if (i->g && !dtype_is_bool(p->code[i->g].dtype)) return bad(c, "`where` is a bool");
  if (i->code == L_BLOAD || i->code == L_BSTORE)
    return !i->c || p->code[i->c].dtype == DTYPE_INDEX || bad(c, "an index is i64");
  if ((i->c != 0) != (i->d != 0)) return bad(c, "vindex and vstride belong together");
  if (i->c && p->code[i->c].dtype != DTYPE_INDEX) return bad(c, "vindex is i64");
  if ((i->b || i->e || i->f) && !c->vec) return bad(c, "stride, lo and hi belong in a VEC");
  return true;
}

static bool tile_ok(checker *c, const l_instr *i) {
  const l_program *p = c->p;
  if (i->imm < 0 || i->imm >= p->ntiles || (uint32_t)i->imm != c->tiles) return bad(c, "tiles are numbered in order");
  c->tiles++;
  const l_tile *t = &p->tiles[i->imm];
  const l_val index[] = {t->x_base, t->x_m, t->x_k, t->y_base, t->y_k, t->y_n, t->rows, t->cols, t->depth};
  for (size_t k = 0; k < sizeof index / sizeof *index; k++)
    if (!operand_ok(c, 'I', index[k], "tile")) return false;
  if (t->ndigits > L_TILE_DIGITS) return bad(c, "a tile has too many digits");
  if (t->ndigits && (!operand_ok(c, 'I', t->n_first, "tile") || !operand_ok(c, 'I', t->k_first, "tile"))) return false;
  for (uint32_t k = 0; k < t->ndigits; k++) {
    const l_digit *d = &t->digits[k];
    if (!operand_ok(c, 'I', d->by, "digit") || (d->most && !operand_ok(c, 'I', d->most, "digit")) ||
        !operand_ok(c, 'I', d->step, "digit"))
      return false;
  }
  if (!buffer_ok(c, t->x, -1, false, true) || !buffer_ok(c, t->y, -1, false, true)) return false;
  if (t->out) {
    if (!operand_ok(c, 'M', t->out, "out")) return false;
  } else if (!buffer_ok(c, t->to, -1, true, false) || !operand_ok(c, 'I', t->to_base, "to") ||
             !operand_ok(c, 'I', t->to_m, "to")) {
    return false;
  }
  if (t->tile_rows < 1 || t->tile_cols < 1) return bad(c, "a tile has rows and columns");
  uint8_t x = t->x < 0 ? p->code[-t->x].dtype : p->buffers[t->x].dtype;
  uint8_t y = t->y < 0 ? p->code[-t->y].dtype : p->buffers[t->y].dtype;
  uint8_t out = l_tile_dtype(p, t);
  if (t->ndigits && !dtype_is_float((qn_dtype)y)) return bad(c, "windows of integers");
  if (x != y) return bad(c, "factors of %s and %s", dtype_rows[x].name, dtype_rows[y].name);
  return out == dtype_compute(x) || bad(c, "the product of %s is no %s", dtype_rows[x].name, dtype_rows[out].name);
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

static bool launch_code(uint8_t code) {
  return (code >= L_INT && code <= L_IVALUE && code != L_VAR) || code == L_CONST || code == L_SCALAR || code == L_KOP ||
         code == L_MATH || code == L_IOTA;
}

static bool place_ok(checker *c, const l_instr *i) {
  if (!c->par) {
    if (i->code == L_PHASE || i->code == L_PAR) return true;
    if (c->had_par) return bad(c, "only a PHASE follows a phase's PAR");
    return launch_code(i->code) || bad(c, "only launch-time values stand outside a PAR");
  }
  if (c->vec) {
    bool nested = c->depth > c->vec + 1; /* inside a FOR or WHILE of the VEC */
    if (l_rows[i->code].result == 'I' && !nested) return bad(c, "index arithmetic inside a VEC");
    switch (i->code) {
    case L_PHASE:
    case L_PAR:
    case L_VEC:
    case L_IF:
    case L_ELSE:
    case L_LOCAL:
    case L_ACC:
    case L_PARTIAL:
    case L_MERGE:
    case L_TILE:
    case L_SYNC:
    case L_POLL:
    case L_FAILED:
    case L_BLOAD:
    case L_BSTORE:
    case L_BREDUCE:
    case L_BDOT:
    case L_BVALUE: return bad(c, "not inside a VEC");
    case L_IVALUE: return !in_vec_scope(c, i->a) || bad(c, "the index of a vector value");
    default: return true;
    }
  }
  switch (i->code) {
  case L_PHASE:
  case L_PAR: return bad(c, "not inside a PAR");
  case L_SCAN: return bad(c, "only inside a VEC");
  case L_LOCAL: return c->depth == c->par + 1 || bad(c, "locals stand directly in the PAR");
  default: return true;
  }
}

static bool structure_ok(checker *c, const l_instr *i) {
  switch (i->code) {
  case L_PHASE:
    if (c->depth > 1) leave(c);
    c->had_par = false;
    return enter(c);
  case L_PAR:
    if (c->depth != 2 || c->had_par) return bad(c, "a phase has one PAR");
    c->par = c->depth;
    return enter(c);
  case L_VEC: c->vec = c->depth; return enter(c);
  case L_FOR:
  case L_WHILE:
  case L_IF: return enter(c);
  case L_ELSE: {
    l_val at = c->depth ? c->stack[c->depth - 1].at : 0;
    if (!at || c->p->code[at].code != L_IF) return bad(c, "no IF to belong to");
    leave(c);
    if (!enter(c)) return false;
    c->stack[c->depth - 1].at = c->at;
    return true;
  }
  case L_END:
    if (!c->par) return bad(c, "nothing to end");
    leave(c);
    if (c->vec == c->depth) c->vec = 0;
    if (c->par == c->depth) {
      c->par = 0;
      c->had_par = true;
    }
    return true;
  default: return true;
  }
}

static bool walk(checker *c) {
  const l_program *p = c->p;
  bool phases = false;
  if (!enter(c)) return false;
  for (c->at = 1; c->at < p->n; c->at++) {
    const l_instr *i = &p->code[c->at];
    if (i->code == L_NONE || i->code >= L_CODE_COUNT) return bad(c, "no such instruction");
    if (i->dtype >= QN_DTYPE_COUNT || i->type2 >= QN_DTYPE_COUNT) return bad(c, "no such dtype");
    if (!place_ok(c, i)) return false;
    if (i->code == L_PHASE) {
      if (phases && !c->had_par) return bad(c, "the phase before has no PAR");
      phases = true;
    }
    for (const l_operand *o = l_rows[i->code].operands; o->role; o++)
      if (!operand_ok(c, o->role, l_operand_of(i, o), o->name)) return false;
    if (!types_ok(c, i) || !blocks_ok(c, i)) return false;
    if (i->code == L_TILE && !tile_ok(c, i)) return false;
    if (i->code == L_LOCAL && !launch_time(c, i->a)) return bad(c, "sizes are known before the PAR");
    if (i->code != L_ELSE && i->code != L_END) c->home[c->at] = c->stack[c->depth - 1].id;
    if (!structure_ok(c, i)) return false;
    if (i->code == L_PHASE) c->home[c->at] = c->stack[c->depth - 1].id;
  }
  c->at = p->n - 1;
  if (!phases || c->par || !c->had_par) return bad(c, "the last phase has no complete PAR");
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    if (p->buffers[b].mode > BUF_SCRATCH || p->buffers[b].dtype >= QN_DTYPE_COUNT)
      return bad(c, "buffer b%u is malformed", b);
    l_val size = p->buffers[b].size;
    if (p->buffers[b].mode != BUF_SCRATCH) continue;
    if (!size || size >= p->n || c->home[size] != c->stack[0].id || l_rows[p->code[size].code].result != 'I')
      return bad(c, "the size of b%u is no index of the prelude", b);
  }
  return true;
}

static bool layouts_ok(checker *c) {
  for (c->at = 1; c->at < c->p->n; c->at++) {
    const l_instr *i = &c->p->code[c->at];
    const char *why = i->code == L_PAR && i->imm2 ? layout_misfit(c->p, c->at, l_layout_of(i)) : NULL;
    if (why) return bad(c, "its layout: %s", why);
  }
  return true;
}

bool l_verify(const l_program *p, char *why, size_t size) {
  checker c = {.p = p, .why = why, .size = size};
  if (p->failed) return bad(&c, "out of memory while building");
  c.home = calloc((size_t)p->n + 1, sizeof *c.home);
  c.open = calloc((size_t)p->n + 2, 1);
  bool ok = c.home && c.open ? walk(&c) && layouts_ok(&c) : bad(&c, "out of memory");
  free(c.home);
  free(c.open);
  return ok;
}
