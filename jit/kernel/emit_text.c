/* The parts of printed kernels that are the same text in C and CUDA C (emit_text.h). */
#include "jit/kernel/emit_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- facts ------------------------------------------------------------------------------------------------------- */

bool emit_facts(emitter *e, const l_program *p) {
  e->p = p;
  arena_init(&e->memory, NULL);
  uint32_t **const numbers[] = {&e->end, &e->seg, &e->seen};
  uint8_t **const bytes[] = {&e->acc, &e->spill, &e->ahead, &e->even};
  for (int i = 0; i < 3; i++) *numbers[i] = arena_alloc(&e->memory, p->n * sizeof **numbers[i]);
  for (int i = 0; i < 4; i++) *bytes[i] = arena_alloc(&e->memory, p->n);
  uint32_t *open = arena_alloc(&e->memory, p->n * sizeof *open);
  e->failed = e->memory.failed;
  uint32_t depth = 0, vec = 0; /* how many blocks are open; how many are including the open VEC, 0: no VEC is open */
  for (l_val v = 1; v < p->n && !e->failed; v++) {
    const l_instr *i = &p->code[v];
    if (i->code == L_PUSH || i->code == L_SCAN) e->acc[i->a] |= vec ? ACC_VEC : ACC_SINGLE;
    if ((i->code == L_PUSH || i->code == L_SCAN) && vec && depth > vec && p->code[i->a].a) e->acc[i->a] |= ACC_NESTED;
    if (i->code == L_SCAN) e->acc[i->a] |= i->flags & L_EXCLUSIVE ? ACC_SCANNED | ACC_EXCLUSIVE : ACC_SCANNED;
    if (i->code == L_MERGE) e->acc[i->a] |= ACC_MERGED;
    if (i->code == L_ACC) e->trees += acc_tree(i);
    if (i->code == L_FINISH || i->code == L_PARTIAL) e->acc[i->a] |= ACC_FINISHED;
    if (l_opens(i->code)) {
      open[depth++] = v;
      if (i->code == L_VEC) vec = depth;
    }
    if (i->code == L_END && depth) {
      e->end[open[--depth]] = v;
      if (depth < vec) vec = 0;
    }
  }
  return !e->failed;
}

void emit_facts_free(emitter *e) { arena_free(&e->memory); }

/* ---- ranges of index values ---- */

enum { SLIM = 1 << 30 };

/* The range of a op b from those of a and b; all numbers where it is not known, or a step overflows. */
static void range_of(l_code code, const int64_t a[2], const int64_t b[2], int64_t to[2]) {
  int64_t ends[4];
  bool fits = true;
  for (int k = 0; k < 4; k++) {
    int64_t x = a[k & 1], y = b[k >> 1];
    switch (code) {
    case L_IADD: fits &= !__builtin_add_overflow(x, y, &ends[k]); break;
    case L_ISUB: fits &= !__builtin_sub_overflow(x, y, &ends[k]); break;
    case L_IMUL: fits &= !__builtin_mul_overflow(x, y, &ends[k]); break;
    case L_IMIN: ends[k] = x < y ? x : y; break;
    case L_IMAX: ends[k] = x > y ? x : y; break;
    default: /* of a divisor that is not positive the result is 0 */
      fits &= b[0] > 0;
      ends[k] = code == L_IDIV ? l_index_value(L_IDIV, x, y) : k & 1 ? b[1] - 1 : 0;
    }
  }
  to[0] = INT64_MIN;
  to[1] = INT64_MAX;
  for (int k = 0; k < 4 && fits; k++) {
    if (k == 0 || ends[k] < to[0]) to[0] = ends[k];
    if (k == 0 || ends[k] > to[1]) to[1] = ends[k];
  }
}

void emit_ranges(emitter *e) {
  e->least = arena_alloc(&e->memory, e->p->n * sizeof *e->least);
  e->most = arena_alloc(&e->memory, e->p->n * sizeof *e->most);
  e->failed |= !e->least || !e->most;
  for (l_val v = 1; v < e->p->n && !e->failed; v++) {
    const l_instr *i = emit_at(e, v);
    int64_t to[2] = {INT64_MIN, INT64_MAX};
    if (i->code == L_INT) {
      to[0] = to[1] = i->imm;
    } else if (l_is_index_op(i->code)) {
      range_of((l_code)i->code, (const int64_t[]){e->least[i->a], e->most[i->a]},
               (const int64_t[]){e->least[i->b], e->most[i->b]}, to);
    } else if (i->code == L_VAR) { /* 0 .. n - 1 of a PAR, from .. to - 1 of a FOR */
      const l_instr *loop = emit_at(e, i->a);
      l_val end = loop->code == L_PAR ? loop->a : loop->b;
      to[0] = loop->code == L_PAR ? 0 : e->least[loop->a];
      if (e->most[end] < SLIM) to[1] = e->most[end] - 1 > to[0] ? e->most[end] - 1 : to[0];
    }
    e->least[v] = to[0];
    e->most[v] = to[1];
  }
}

/* Is the index value printed as an int? */
static bool is_slim(const emitter *e, l_val v) { return e->least && e->least[v] >= -SLIM && e->most[v] <= SLIM; }

/* ---- text -------------------------------------------------------------------------------------------------------- */

void emit_line(emitter *e, const char *format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  int n = vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (n <= 0 || (size_t)n >= sizeof text) {
    e->out->failed = true;
    return;
  }
  text_repeat(e->out, "  ", e->depth - (text[0] == '}'));
  text_adds(e->out, text);
  text_adds(e->out, "\n");
  for (const char *c = text; *c; c++) e->depth += (*c == '{') - (*c == '}');
}

const char *emit_prim(emitter *e, char name[48], kop_id op, uint8_t dtype, uint8_t from) {
  if ((op == KOP_cast || op == KOP_bitcast) && dtype == from) op = KOP_copy;
  if (op == KOP_cast || op == KOP_bitcast)
    snprintf(name, 48, "%s_%s_%s", kop_rows[op].name, emit_type(from), emit_type(dtype));
  else
    snprintf(name, 48, "%s_%s", kop_rows[op].name, emit_type(op >= KOP_eq && op <= KOP_ge ? from : dtype));
  math_use(e->uses, name);
  return name;
}

void emit_buffer(int64_t b, char out[24]) {
  if (b >= 0)
    snprintf(out, 24, "p%d", (int)b);
  else
    snprintf(out, 24, "v%d", (int)-b);
}

uint8_t emit_buffer_type(const emitter *e, int64_t b) { return b >= 0 ? e->p->buffers[b].dtype : e->p->code[-b].dtype; }

/* Appends to a text of EMIT_TEXT characters. */
static void append(char out[EMIT_TEXT], const char *format, ...) __attribute__((format(printf, 2, 3)));
static void append(char out[EMIT_TEXT], const char *format, ...) {
  size_t n = strlen(out);
  va_list args;
  va_start(args, format);
  vsnprintf(out + n, EMIT_TEXT - n, format, args);
  va_end(args);
}

static bool is_int(const emitter *e, l_val v, int64_t value) {
  const l_instr *i = emit_at(e, v);
  return i->code == L_INT && i->imm == value;
}

/* Is integer v made of a truth value: a cast of one, a choice of two constants, or computed with such? */
static bool of_truth(const emitter *e, l_val v, int depth) {
  const l_instr *i = emit_at(e, v);
  if (i->code != L_KOP || dtype_is_bool(i->dtype)) return false;
  if (depth > 6) return true; /* it may be */
  if (i->sub == KOP_cast && dtype_is_bool(i->type2)) return true;
  if (i->sub == KOP_select) {
    bool constants = emit_at(e, i->b)->code == L_CONST && emit_at(e, i->c)->code == L_CONST;
    return constants || of_truth(e, i->b, depth + 1) || of_truth(e, i->c, depth + 1);
  }
  return of_truth(e, i->a, depth + 1) || (i->b && of_truth(e, i->b, depth + 1)) ||
         (i->c && of_truth(e, i->c, depth + 1));
}

bool emit_is_masked(const emitter *e, const l_instr *i) {
  bool access = i->code == L_LOAD || i->code == L_STORE || i->code == L_RMW;
  return !e->cuda && e->vec && access && i->c && of_truth(e, i->c, 0);
}

void emit_address(emitter *e, const l_instr *i, char out[EMIT_TEXT]) {
  char index[32];
  out[0] = 0;
  snprintf(index, sizeof index, emit_is_masked(e, i) ? "(v%u & bits)" : "v%u", i->c);
  append(out, "v%u", i->a);
  if (i->b && !is_int(e, i->b, 0)) {
    if (is_int(e, i->b, 1))
      append(out, " + j");
    else
      append(out, " + v%u * j", i->b);
  }
  if (i->c) {
    if (is_int(e, i->d, 1))
      append(out, " + %s", index);
    else
      append(out, " + %s * v%u", index, i->d);
  }
}

l_val emit_piece_guard(const emitter *e, const l_instr *i) {
  if (!e->pieces || !(i->e || i->f)) return 0;
  l_val k = e->vec + 1;
  for (; emit_at(e, k) < i; k++) {
    const l_instr *s = emit_at(e, k);
    bool access = s->code == L_LOAD || s->code == L_STORE;
    if (access && s->e == i->e && s->f == i->f && s->g == i->g) break;
  }
  return k;
}

bool emit_decides(const emitter *e, l_val vec, l_val v) {
  for (l_val k = v + 1; k < e->end[vec]; k++) {
    const l_instr *i = emit_at(e, k);
    bool access = i->code == L_LOAD || i->code == L_STORE;
    if ((access && i->g == v) || (i->code == L_KOP && i->sub == KOP_select && i->a == v)) return true;
  }
  return false;
}

void emit_guard(emitter *e, const l_instr *i, char out[EMIT_TEXT]) {
  out[0] = 0;
  if (e->active[0]) append(out, "%s", e->active);
  if (e->inside && !e->cuda && (!i->g || e->even[i->g] || emit_is_switch(e, i))) return;
  l_val from = e->vec ? emit_at(e, e->vec)->a : 0, piece = e->inside ? 0 : emit_piece_guard(e, i);
  if (piece) append(out, "%sw%u", out[0] ? " & " : "", piece);
  if (i->e && !piece && !e->inside) append(out, "%s(j + v%u >= v%u)", out[0] ? " & " : "", from, i->e);
  if (i->f && !piece && !e->inside) append(out, "%s(j + v%u < v%u)", out[0] ? " & " : "", from, i->f);
  if (i->g && !(piece && emit_is_switch(e, i)))
    append(out, "%s%s%u", out[0] ? " & " : "", e->even[i->g] ? "w" : emit_is_switch(e, i) ? "all" : "v", i->g);
}

bool emit_is_switch(const emitter *e, const l_instr *i) {
  bool guarded = i->code == L_LOAD || i->code == L_STORE || i->code == L_RMW;
  return !e->cuda && e->vec && guarded && i->g && i->g < e->vec;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Does C compute with the dtype as a float? f16 and bf16 are unsigned words in printed code. */
static bool computed_float(uint8_t d) { return dtype_is_float(d) && !dtype_is_narrow(d); }

static void print_float(emitter *e, l_val v, double x, uint8_t dtype) {
  const char *T = emit_type(dtype);
  bool f64 = dtype_size(dtype) == 8;
  if (x != x) {
    emit_line(e, "const %s v%u = NAN%d;", T, v, f64 ? 64 : 32);
  } else if (x - x != 0) {
    emit_line(e, "const %s v%u = %sINF%d;", T, v, x < 0 ? "-" : "", f64 ? 64 : 32);
  } else {
    text_repeat(e->out, "  ", e->depth);
    text_addf(e->out, "const %s v%u = ", T, v);
    text_float(e->out, x, dtype);
    text_adds(e->out, f64 ? ";\n" : "f;\n");
  }
}

static void print_const(emitter *e, l_val v) {
  const l_instr *i = emit_at(e, v);
  uint64_t bits = (uint64_t)i->imm;
  if (computed_float(i->dtype)) {
    print_float(e, v, dtype_load(i->dtype, &bits).u.f, i->dtype);
  } else {
    unsigned long long word =
        dtype_rows[i->dtype].size == 8 ? bits : bits & ((1ull << 8 * dtype_rows[i->dtype].size) - 1);
    emit_line(e, "const %s v%u = (%s)%lluull;", emit_type(i->dtype), v, emit_type(i->dtype), word);
  }
}

void emit_arguments(const l_instr *i, char out[64]) {
  if (i->c)
    snprintf(out, 64, "v%u, v%u, v%u", i->a, i->b, i->c);
  else if (i->b)
    snprintf(out, 64, "v%u, v%u", i->a, i->b);
  else
    snprintf(out, 64, "v%u", i->a);
}

/* Writes the operands as arguments of a primitive. Where all are constants NVRTC would compute the result itself, and takes 0.0f / 0.0f
 * for a number that is equal to itself; so the first one is hidden from it by OPAQUE. */
static void print_arguments(const emitter *e, const l_instr *i, char out[64]) {
  const l_val in[] = {i->a, i->b, i->c};
  /* f16 and bf16 are words that are only converted, so they need no OPAQUE */
  uint8_t dtype = emit_at(e, i->a)->dtype;
  bool constant = e->cuda && computed_float(dtype);
  for (int k = 0; k < 3 && constant; k++) constant = !in[k] || emit_at(e, in[k])->code == L_CONST;
  size_t n = constant ? (size_t)snprintf(out, 64, "OPAQUE_%s(v%u)", emit_type(dtype), i->a) : 0;
  if (!constant)
    emit_arguments(i, out);
  else if (i->c)
    snprintf(out + n, 64 - n, ", v%u, v%u", i->b, i->c);
  else if (i->b)
    snprintf(out + n, 64 - n, ", v%u", i->b);
}

/* Is integer v the integer part of a float, perhaps through casts and selects? Under -fno-trapping-math gcc replaces (float)(int)x by
 * trunc(x), though for x = -0.5 the former is 0 and the latter -0. So the cast of such an integer to float says itself what 0 becomes. */
static bool truncated(const emitter *e, l_val v, int depth) {
  const l_instr *i = emit_at(e, v);
  if (i->code != L_KOP || dtype_is_float((qn_dtype)i->dtype) || depth > 8) return false;
  if (i->sub == KOP_select) return truncated(e, i->b, depth + 1) || truncated(e, i->c, depth + 1);
  if (i->sub != KOP_cast && i->sub != KOP_copy) return false;
  return dtype_is_float((qn_dtype)i->type2) || truncated(e, i->a, depth + 1);
}

bool emit_is_blend(const emitter *e, const l_instr *i) {
  return !e->cuda && i->code == L_KOP && i->sub == KOP_select && e->vec && i->a < e->vec &&
         !dtype_is_narrow((qn_dtype)i->dtype) && !dtype_is_bool(i->dtype);
}

/* Does v come from outside the VEC, and is no constant, whose cases compilers sort out themselves? */
static bool is_steady(const emitter *e, l_val v) { return v < e->vec && emit_at(e, v)->code != L_CONST; }

bool emit_is_varied(const emitter *e, const l_instr *i) {
  return !e->cuda && e->vec && i->code == L_MATH && i->sub == MATH_pow && dtype_is_float((qn_dtype)i->dtype) &&
         (is_steady(e, i->a) || is_steady(e, i->b));
}

/* Writes the operands of a power, of which some are the same for all elements, as arguments. */
static void vary_arguments(const emitter *e, const l_instr *i, char out[80]) {
  char text[2][36];
  for (int k = 0; k < 2; k++) {
    l_val v = k ? i->b : i->a;
    if (is_steady(e, v))
      snprintf(text[k], sizeof text[k], "vary_%s(v%u, j & none)", emit_type(i->dtype), v);
    else
      snprintf(text[k], sizeof text[k], "v%u", v);
  }
  snprintf(out, 80, "%s, %s", text[0], text[1]);
}

static void print_load(emitter *e, l_val v) {
  const l_instr *i = emit_at(e, v);
  char where[EMIT_TEXT], cond[EMIT_TEXT], buffer[24];
  emit_address(e, i, where);
  emit_guard(e, i, cond);
  emit_buffer(i->imm, buffer);
  const char *T = emit_type(i->dtype);
  if (!cond[0])
    emit_line(e, "const %s v%u = %s[%s];", T, v, buffer, where);
  else if (i->h)
    emit_line(e, "const %s v%u = %s ? %s[%s] : v%u;", T, v, cond, buffer, where, i->h);
  else
    emit_line(e, "const %s v%u = %s ? %s[%s] : (%s)0;", T, v, cond, buffer, where, T);
}

/* Is v a division or remainder in a PAR by a value that is computed before the PAR and is no constant? Such have a precomputed divider. */
static bool has_divider(const emitter *e, l_val v) {
  const l_instr *i = emit_at(e, v);
  return (i->code == L_IDIV || i->code == L_IMOD) && v > e->par && i->b < e->par && emit_at(e, i->b)->code != L_INT;
}

void emit_instr(emitter *e, l_val v) {
  const l_instr *i = emit_at(e, v);
  const char *T = emit_type(i->dtype), *I = is_slim(e, v) ? "int" : "i64";
  const char *wide = e->least && !is_slim(e, v) ? "(i64)" : "";
  char f[48], arguments[80];
  switch ((l_code)i->code) {
  case L_INT: emit_line(e, "const %s v%u = (i64)%lluull;", I, v, (unsigned long long)i->imm); break;
  case L_PARAM: emit_line(e, "const i64 v%u = a->ints[%d];", v, (int)i->imm); break;
  case L_VAR: emit_line(e, "const %s v%u = x%u;", I, v, i->a); break;
  case L_IADD: emit_line(e, "const %s v%u = %sv%u + v%u;", I, v, wide, i->a, i->b); break;
  case L_ISUB: emit_line(e, "const %s v%u = %sv%u - v%u;", I, v, wide, i->a, i->b); break;
  case L_IMUL: emit_line(e, "const %s v%u = %sv%u * v%u;", I, v, wide, i->a, i->b); break;
  case L_IDIV:
  case L_IMOD: {
    const char *f = i->code == L_IDIV ? "div" : "mod";
    if (is_slim(e, i->a) && is_slim(e, i->b) && e->least[i->a] >= 0 && e->least[i->b] > 0)
      emit_line(e, "const %s v%u = v%u %s v%u;", I, v, i->a, i->code == L_IDIV ? "/" : "%", i->b);
    else if (has_divider(e, v))
      emit_line(e, "const %s v%u = %s_by(v%u, v%u, d%u);", I, v, f, i->a, i->b, i->b);
    else
      emit_line(e, "const %s v%u = floor_%s(v%u, v%u);", I, v, f, i->a, i->b);
    break;
  }
  case L_IMIN: emit_line(e, "const %s v%u = v%u < v%u ? v%u : v%u;", I, v, i->a, i->b, i->a, i->b); break;
  case L_IMAX: emit_line(e, "const %s v%u = v%u > v%u ? v%u : v%u;", I, v, i->a, i->b, i->a, i->b); break;
  case L_IVALUE: emit_line(e, "const i64 v%u = (i64)v%u;", v, i->a); break;
  case L_CONST: print_const(e, v); break;
  case L_SCALAR:
    if (i->dtype == WEAK_FLOAT)
      emit_line(e, "const f64 v%u = a->scalars[%d].f;", v, (int)i->imm);
    else if (dtype_is_bool(i->dtype))
      emit_line(e, "const b8 v%u = a->scalars[%d].i != 0;", v, (int)i->imm);
    else
      emit_line(e, "const i64 v%u = a->scalars[%d].i;", v, (int)i->imm);
    break;
  case L_FAILED: emit_line(e, "const b8 v%u = FAILED;", v); break;
  case L_IOTA: {
    char where[48];
    if (i->b && e->vec)
      snprintf(where, sizeof where, "v%u + v%u * j", i->a, i->b);
    else
      snprintf(where, sizeof where, "v%u", i->a);
    if (dtype_is_bool(i->dtype))
      emit_line(e, "const b8 v%u = (%s) != 0;", v, where);
    else
      emit_line(e, "const %s v%u = (%s)(%s);", T, v, T, where);
    break;
  }
  case L_KOP:
    if (e->even[v] || (i->sub == KOP_select && e->even[i->a])) {
      if (e->even[v] && e->inside && emit_decides(e, e->vec, v))
        emit_line(e, "const b8 v%u = 1;", v);
      else if (e->even[v])
        emit_line(e, "const b8 v%u = w%u;", v, v);
      else
        emit_line(e, e->inside ? "const %s v%u = v%u ? v%u : v%u;" : "const %s v%u = w%u ? v%u : v%u;", T, v, i->a,
                  i->b, i->c);
      break;
    }
    print_arguments(e, i, arguments);
    emit_prim(e, f, (kop_id)i->sub, i->dtype, i->type2);
    if (emit_is_blend(e, i)) {
      snprintf(f, sizeof f, "blend_%s", T);
      math_use(e->uses, f);
      snprintf(arguments, sizeof arguments, "m%u_%d, v%u, v%u", i->a, 8 * (int)dtype_rows[i->dtype].size, i->b, i->c);
    }
    if (i->sub == KOP_cast && dtype_is_float((qn_dtype)i->dtype) && truncated(e, i->a, 0))
      emit_line(e, "const %s v%u = v%u == 0 ? (%s)0 : %s(%s);", T, v, i->a, T, f, arguments);
    else
      emit_line(e, "const %s v%u = %s(%s);", T, v, f, arguments);
    break;
  case L_MATH:
    math_name(f, sizeof f, (math_id)i->sub, (qn_dtype)i->dtype, (qn_dtype)i->type2);
    math_use(e->uses, f);
    if (emit_is_varied(e, i))
      vary_arguments(e, i, arguments);
    else
      print_arguments(e, i, arguments);
    emit_line(e, "const %s v%u = %s(%s);", T, v, f, arguments);
    break;
  case L_LOAD: print_load(e, v); break;
  default: break;
  }
}

void emit_rmw(emitter *e, const l_instr *i) {
  uint8_t dtype = emit_buffer_type(e, i->imm);
  char f[48], in[48], out[48];
  if (dtype_is_narrow(dtype)) {
    uint8_t wide = dtype_compute(dtype);
    emit_prim(e, in, KOP_cast, wide, dtype);
    emit_prim(e, out, KOP_cast, dtype, wide);
    emit_prim(e, f, (kop_id)i->sub, wide, wide);
    emit_line(e, "*q = %s(%s(%s(*q), %s(v%u)));", out, f, in, in, i->h);
  } else {
    emit_line(e, "*q = %s(*q, v%u);", emit_prim(e, f, (kop_id)i->sub, dtype, dtype), i->h);
  }
}

bool emit_rare_names(const emitter *e, l_val v, emit_rare *names) {
  const l_instr *i = emit_at(e, v);
  if (i->code != L_MATH) return false;
  const char *name = math_rows[i->sub].name, *T = emit_type(i->type2);
  snprintf(names->rare, sizeof names->rare, "%s_rare_%s", name, T);
  snprintf(names->fast, sizeof names->fast, "%s_fast_%s", name, T);
  snprintf(names->slow, sizeof names->slow, "%s_slow_%s", name, T);
  return math_known(names->rare);
}

bool emit_again(const l_instr *i) {
  return i->code == L_CONST || i->code == L_SCALAR || i->code == L_IOTA || i->code == L_FINISH;
}

void emit_sets(emitter *e, l_val loop, const char *cond) {
  bool any = false;
  for (int pass = 0; pass < 2; pass++)
    for (l_val k = loop + 1; k < e->end[loop]; k++) {
      const l_instr *i = emit_at(e, k);
      if (l_opens(i->code)) {
        k = e->end[k];
      } else if (i->code == L_SET && pass == 0) {
        if (!any && cond[0]) emit_line(e, "if (%s) {", cond);
        any = true;
        emit_line(e, "const %s w%u = v%u;", emit_type(emit_at(e, i->a)->dtype), k, i->b);
      } else if (i->code == L_SET) {
        emit_line(e, "v%u = w%u;", i->a, k);
      }
    }
  if (!any || !cond[0]) return;
  emit_line(e, "}");
}

void emit_loop(emitter *e, l_val v) {
  const l_instr *i = emit_at(e, v);
  char step[24] = "1";
  if (i->c) snprintf(step, sizeof step, "v%u", i->c);
  emit_line(e, "for (i64 x%u = v%u; x%u < v%u; x%u += %s) {", v, i->a, v, i->b, v, step);
}

l_val emit_structure(emitter *e, l_val v, void (*block)(emitter *e, l_val from, l_val to)) {
  const l_instr *i = emit_at(e, v);
  switch ((l_code)i->code) {
  case L_CARRY: emit_line(e, "%s v%u = v%u;", emit_type(i->dtype), v, i->a); return v;
  case L_ELSE: emit_line(e, "} else {"); return v;
  case L_ACC: emit_acc_begin(e, v); return v;
  case L_PUSH: emit_acc_push_one(e, i); return v;
  case L_FINISH:
    emit_acc_result(e, i->a, true);
    emit_line(e, "const %s v%u = v%u%s[0];", emit_type(i->dtype), v, i->a, acc_field(emit_at(e, i->a)));
    return v;
  case L_FOR: emit_loop(e, v); break;
  case L_WHILE:
  case L_IF: emit_line(e, "%s (v%u) {", i->code == L_IF ? "if" : "while", i->a); break;
  default: emit_instr(e, v); return v;
  }
  block(e, v + 1, e->end[v]);
  if (i->code != L_IF) emit_sets(e, v, "");
  emit_line(e, "}");
  return e->end[v];
}

void emit_vec_begin(emitter *e, l_val v) {
  const l_instr *i = emit_at(e, v);
  emit_line(e, "{");
  for (l_val k = v + 1; k < e->end[v]; k++) {
    const l_instr *finish = emit_at(e, k);
    if (finish->code == L_FINISH && !emit_is_inner_finish(e, v, finish) && emit_is_first(e, v, k))
      emit_acc_root(e, finish->a, NULL, NULL, true);
  }
  emit_line(e, "const i64 n = v%u > v%u ? v%u - v%u : 0;", i->b, i->a, i->b, i->a);
}

/* ---- kinds of instructions in a VEC ------------------------------------------------------------------------------ */

static bool is_stride(const emitter *e, l_val v) { return v && !is_int(e, v, 0); }

bool emit_is_ordered(const emitter *e, const l_instr *i) {
  switch (i->code) {
  case L_STORE: return i->c || !is_stride(e, i->b);
  case L_RMW: return i->c || !i->b || emit_at(e, i->b)->code != L_INT || is_int(e, i->b, 0);
  case L_PUSH: return !acc_many(emit_at(e, i->a)) && !acc_lanes(e, i->a);
  default: return false;
  }
}

bool emit_is_strip_scan(const emitter *e, const l_instr *i) { return i->code == L_SCAN && !acc_many(emit_at(e, i->a)); }

bool emit_is_inner_finish(const emitter *e, l_val vec, const l_instr *i) {
  if (i->code != L_FINISH || !(e->acc[i->a] & ACC_NESTED)) return false;
  for (l_val k = vec + 1; emit_at(e, k) < i; k++)
    if ((emit_at(e, k)->code == L_PUSH || emit_at(e, k)->code == L_SCAN) && emit_at(e, k)->a == i->a) return true;
  return false;
}

bool emit_is_nested_push(const emitter *e, const l_instr *i) {
  return (i->code == L_PUSH || i->code == L_SCAN) && (e->acc[i->a] & ACC_NESTED);
}

bool emit_is_first(const emitter *e, l_val vec, l_val k) {
  for (l_val s = vec + 1; s < k; s++)
    if (emit_at(e, s)->code == emit_at(e, k)->code && emit_at(e, s)->a == emit_at(e, k)->a) return false;
  return true;
}

bool emit_is_lane_push(const emitter *e, l_val vec, l_val k) {
  const l_instr *i = emit_at(e, k);
  if (i->code != L_PUSH && !(i->code == L_SCAN && (e->acc[i->a] & ACC_FINISHED))) return false;
  return acc_lanes(e, i->a) && emit_is_first(e, vec, k);
}

/* ---- accumulators ------------------------------------------------------------------------------------------------ */

bool acc_exact(const l_instr *a) {
  return !dtype_is_float((qn_dtype)a->dtype) || (a->sub != KOP_add && a->sub != KOP_mul);
}

bool acc_lanes(const emitter *e, l_val v) {
  const l_instr *a = emit_at(e, v);
  if (a->a || a->imm == ORDER_DOT) return false;
  return a->imm == ORDER_INNER || (acc_exact(a) && (e->acc[v] & ACC_VEC));
}

bool acc_rows(const l_instr *a) { return a->a && a->imm == ORDER_INNER && !acc_exact(a); }
bool acc_tree(const l_instr *a) { return !acc_exact(a) && !acc_rows(a); }

int acc_chain(const l_instr *a) {
  switch ((l_order)a->imm) {
  case ORDER_INNER: return ORDER_BLOCK;
  case ORDER_OUTER: return ORDER_OUTER_CHAIN;
  case ORDER_DOT: return ORDER_DOT_CHUNK;
  default: return 1;
  }
}

l_order acc_scan_order(const l_instr *a) { return acc_exact(a) ? ORDER_FREE : (l_order)a->imm; }

bool emit_has_merges(const emitter *e, l_val par) {
  for (l_val v = par + 1; v < e->end[par]; v++)
    if (emit_at(e, v)->code == L_MERGE) return true;
  return false;
}

/* Does the instruction stand in a phase with a layout of its own, but for merges? */
static bool has_layout(const emitter *e, l_val v) {
  while (v && emit_at(e, v)->code != L_PAR) v--;
  return emit_at(e, v)->imm2 != 0 && !emit_has_merges(e, v);
}

bool acc_own(const emitter *e, l_val v) {
  const l_instr *a = emit_at(e, v), *n = emit_at(e, a->a);
  if (!e->cuda || !acc_many(a) || has_layout(e, v) || acc_rows(a) || (e->acc[v] & (ACC_NESTED | ACC_SCANNED)))
    return false;
  if (n->code == L_IMIN) n = emit_at(e, emit_at(e, n->a)->code == L_INT ? n->a : n->b);
  if (n->code != L_INT || n->imm > ORDER_LANES) return false;
  /* thread t has element t of VECs, and so result t, only where these begin at 0 */
  for (l_val k = v + 1; k < e->p->n; k++)
    if (emit_at(e, k)->code == L_VEC && !is_int(e, emit_at(e, k)->a, 0))
      for (l_val i = k + 1; i < e->end[k]; i++)
        if ((emit_at(e, i)->code == L_PUSH || emit_at(e, i)->code == L_FINISH) && emit_at(e, i)->a == v) return false;
  return true;
}

void acc_width(const emitter *e, l_val v, char out[24]) {
  const l_instr *a = emit_at(e, v);
  if (a->a && !acc_own(e, v))
    snprintf(out, 24, "v%u", a->a);
  else
    snprintf(out, 24, "%d", acc_lanes(e, v) && !e->cuda ? ORDER_LANES : 1);
}

/* The largest or the smallest value of a dtype in C. */
static const char *bound(uint8_t dtype, bool high, char out[48]) {
  int bytes = (int)dtype_size(dtype);
  const char *suffix = bytes == 8                              ? dtype_is_signed(dtype) ? "ll" : "ull"
                       : bytes == 4 && !dtype_is_signed(dtype) ? "u"
                                                               : "";
  unsigned long long most = dtype_is_float(dtype) ? 0 : dtype_max(dtype);
  if (dtype_is_float(dtype))
    snprintf(out, 48, "%sINF%d", high ? "" : "-", 8 * bytes);
  else if (high)
    snprintf(out, 48, "%llu%s", most, suffix);
  else
    snprintf(out, 48, dtype_is_signed(dtype) ? "(-%llu%s - 1)" : "0", most, suffix);
  return out;
}

void acc_zero(const l_instr *a, char out[80]) {
  const char *text = "0";
  char number[48];
  switch ((kop_id)a->sub) {
  case KOP_mul: text = "1"; break;
  case KOP_max:
  case KOP_argmax: text = bound(a->dtype, false, number); break;
  case KOP_min:
  case KOP_argmin: text = bound(a->dtype, true, number); break;
  case KOP_and: text = dtype_is_bool(a->dtype) ? "1" : "-1"; break;
  default: break;
  }
  snprintf(out, 80, "(%s)(%s)", emit_type(a->dtype), text);
}

void acc_identity(const l_instr *a, char out[80]) {
  if ((a->sub == KOP_add) && dtype_is_float((qn_dtype)a->dtype))
    snprintf(out, 80, "(%s)(-0.0)", emit_type(a->dtype));
  else
    acc_zero(a, out);
}

void acc_nothing(const l_instr *a, char out[80]) {
  if (a->imm == ORDER_DOT)
    acc_zero(a, out);
  else
    acc_identity(a, out);
}

const char *acc_prim(emitter *e, const l_instr *a, char name[48]) {
  name[0] = 0;
  return acc_arg(a) ? name : emit_prim(e, name, (kop_id)a->sub, a->dtype, a->dtype);
}

void acc_step(emitter *e, const l_instr *push, const char *cell, char out[EMIT_TEXT]) {
  const l_instr *a = emit_at(e, push->a);
  char f[48], m[48];
  if (!push->d || push->code == L_SCAN) {
    snprintf(out, EMIT_TEXT, "%s(%s, v%u)", acc_prim(e, a, f), cell, push->b);
  } else if (dtype_is_float((qn_dtype)a->dtype)) {
    snprintf(out, EMIT_TEXT, "%s(v%u, v%u, %s)", emit_prim(e, f, KOP_fma, a->dtype, a->dtype), push->b, push->d, cell);
  } else {
    snprintf(out, EMIT_TEXT, "%s(%s, %s(v%u, v%u))", acc_prim(e, a, f), cell,
             emit_prim(e, m, KOP_mul, a->dtype, a->dtype), push->b, push->d);
  }
}

void acc_levels(const emitter *e, l_val v, char out[64]) {
  const l_instr *a = emit_at(e, v);
  if (a->b)
    snprintf(out, 64, "levels(v%u, %d)", a->b, e->acc[v] & ACC_MERGED ? 1 : acc_chain(a));
  else
    snprintf(out, 64, "48");
}

/* ---- phases ------------------------------------------------------------------------------------------------------ */

uint32_t emit_phases(const l_program *p) {
  uint32_t n = 0;
  for (l_val v = 1; v < p->n; v++) n += p->code[v].code == L_PHASE;
  return n;
}

/* The size in bytes of a local that is small and of constant size, else 0. */
static int64_t small_bytes(const l_program *p, const l_instr *i) {
  const l_instr *size = &p->code[i->a];
  int64_t bytes = size->code == L_INT ? size->imm * (int64_t)dtype_rows[i->dtype].size : 0;
  return i->code == L_LOCAL && bytes > 0 && bytes <= 36864 ? (bytes + 63) & ~(int64_t)63 : 0;
}

bool emit_is_shared(const emitter *e, l_val local) {
  if (has_layout(e, local)) return false; /* several instances of a block need as many */
  int64_t all = 0;                        /* bytes of the program's small locals up to this one */
  for (l_val v = 1; v <= local; v++) all += small_bytes(e->p, emit_at(e, v));
  return e->cuda && small_bytes(e->p, emit_at(e, local)) && all <= 40960;
}

l_val emit_prelude(emitter *e, l_val phase) {
  const l_program *p = e->p;
  l_val par = phase;
  while (p->code[par].code != L_PAR) par++;
  e->par = par; /* before anything is printed, since the dividers of the phase before do not exist in this one */
  for (l_val v = 1; p->code[v].code != L_PHASE; v++) emit_instr(e, v);
  for (l_val v = phase + 1; v < par; v++) emit_instr(e, v);
  for (l_val v = par + 1; v < e->end[par]; v++) {
    bool is = has_divider(e, v);
    for (l_val w = par + 1; w < v && is; w++) is = !has_divider(e, w) || emit_at(e, w)->b != emit_at(e, v)->b;
    if (is) emit_line(e, "const divider d%u = divider_of(v%u);", emit_at(e, v)->b, emit_at(e, v)->b);
  }
  return par;
}

static const char emit_types[] =
    "typedef unsigned char b8; typedef unsigned char u8; typedef signed char i8; typedef unsigned short u16; typedef "
    "short i16;\n"
    "typedef unsigned int u32; typedef int i32; typedef unsigned long long u64; typedef long long i64;\n"
    "typedef u16 f16; typedef u16 bf16; typedef float f32; typedef double f64;\n"
    "typedef union qk_scalar { i64 i; f64 f; } qk_scalar;\n"
    "typedef struct qk_digit { i64 by, most, step, deep; } qk_digit;\n"
    "typedef struct qk_tile { const void *x, *y; void *out, *work; i64 x_m, x_k, y_k, y_n, rows, cols, depth, ld; "
    "i32 xd, yd, od, ndigits; i64 n_first, k_first; const struct qk_digit *digits; } qk_tile;\n"
    "typedef struct qk_args { void *const *buf; const i64 *ints; const qk_scalar *scalars; void *scratch; u64 *error;\n"
    "  const int *interrupt; void (*tile)(const qk_tile *); } qk_args;\n";

/* Macros and functions of both targets. They follow the preamble of the target, which defines HELP, SIMD and FILLS. */
static const char emit_macros[] =
    "HELP i64 floor_div(i64 a, i64 b) { if (b <= 0) return 0; const i64 q = a / b; return q - (a % b < 0); }\n"
    "HELP i64 floor_mod(i64 a, i64 b) { if (b <= 0) return 0; const i64 r = a % b; return r < 0 ? r + b : r; }\n"
    /* Division of numbers below 2^31 by the same b again and again: (n * m) >> s with s = 31 + ceil(log2 b) and m = 2^s / b + 1, by
     * Granlund and Montgomery, "Division by Invariant Integers using Multiplication". m is 0 for other b. A thread of a GPU has so few instances
     * that making m, a division of 64 bits, takes longer than dividing numbers of 32 bits. */
    "#if __CUDA_ARCH__\n"
    "typedef int divider;\n"
    "HELP divider divider_of(i64 b) { return 0; }\n"
    "HELP i64 div_by(i64 a, i64 b, divider d) {\n"
    "  return ((u64)a | (u64)b) >> 32 || !b ? floor_div(a, b) : (i64)((u32)a / (u32)b); }\n"
    "HELP i64 mod_by(i64 a, i64 b, divider d) {\n"
    "  return ((u64)a | (u64)b) >> 32 || !b ? floor_mod(a, b) : (i64)((u32)a % (u32)b); }\n"
    "#else\n"
    "typedef struct divider { u32 m; int s; } divider;\n"
    "HELP divider divider_of(i64 b) { divider d = {0, 31}; if (b <= 0 || b > 0x7fffffff) return d;\n"
    "  if (b > 1) d.s = 63 - CLZ32((u32)(b - 1)); d.m = (u32)(((u64)1 << d.s) / (u64)b + 1); return d; }\n"
    "HELP i64 div_by(i64 a, i64 b, divider d) {\n"
    "  return (u64)a >> 31 || !d.m ? floor_div(a, b) : (i64)((u64)a * d.m >> d.s); }\n"
    "HELP i64 mod_by(i64 a, i64 b, divider d) {\n"
    "  return (u64)a >> 31 || !d.m ? floor_mod(a, b) : a - (i64)((u64)a * d.m >> d.s) * b; }\n"
    "#endif\n"
    /* how many subtrees can be open at a time when n elements make chains of `chain` */
    "HELP i64 levels(i64 n, i64 chain) { i64 k = 1; for (n = (n + chain - 1) / chain; n > 1; n >>= 1) k++; return k; "
    "}\n"
    "#define SPACE(T, count) (((u64)((count) > 0 ? (count) : 0) * sizeof(T) + 63) & ~63ull)\n"
    "#define FILL(p, n, x) SIMD for (i64 r_ = 0; r_ < (n); r_++) (p)[r_] = x;\n"
    "#define TREE_ADD(T, F, tree, stride, count, leaf, width) { T *t_ = tree; \\\n"
    "  for (u64 c_ = count; c_ & 1; c_ >>= 1, t_ += stride) \\\n"
    "    SIMD for (i64 r_ = 0; r_ < width; r_++) (leaf)[r_] = F(t_[r_], (leaf)[r_]); \\\n"
    "  SIMD for (i64 r_ = 0; r_ < width; r_++) t_[r_] = (leaf)[r_]; }\n"
    "#define TREE_END(T, F, tree, stride, count, out, width, id) { const T *t_ = tree; u64 c_ = count; \\\n"
    "  if (!c_) FILL(out, width, id) \\\n"
    "  for (; c_ && !(c_ & 1); c_ >>= 1) t_ += stride; \\\n"
    "  if (c_) SIMD for (i64 r_ = 0; r_ < width; r_++) (out)[r_] = t_[r_]; \\\n"
    "  while (c_ >>= 1) { t_ += stride; \\\n"
    "    if (c_ & 1) SIMD for (i64 r_ = 0; r_ < width; r_++) (out)[r_] = F(t_[r_], (out)[r_]); } }\n"
    "#define ROWS_END(F, v, stride, width, k, id) { if (k == 0) FILL(v, width, id) \\\n"
    "  for (i64 h_ = 32; h_ > 0; h_ >>= 1) for (i64 l_ = 0; l_ < h_ && l_ + h_ < k; l_++) \\\n"
    "    SIMD for (i64 r_ = 0; r_ < width; r_++) \\\n"
    "      (v)[l_ * stride + r_] = F((v)[l_ * stride + r_], (v)[(l_ + h_) * stride + r_]); }\n"
    /* x is better than the best so far, whose index is i; of later elements only strictly better ones are */
    "#define ARG_BETTER(OP, x, best, i) (((i) < 0) | ((x) OP (best)) | (((x) != (x)) & ((best) == (best))))\n"
    /* element i of value x comes before element i2 of value best, in any order of indices */
    "#define ARG_BEFORE(OP, x, i, best, i2) (((i) >= 0) & (((i2) < 0) | ((x) OP (best)) | (((x) != (x)) & ((best) == "
    "(best))) | \\\n"
    "  ((((x) == (best)) | (((x) != (x)) & ((best) != (best)))) & ((i) < (i2)))))\n"
    /* one element k of result r in a scan of inner order; h keeps the values of the six steps for the last 64 k */
    "#define SCAN_STEP(F, h, W, s, y) { const i64 i_ = s % 64; for (int d_ = 0; d_ < 6; d_++) { \\\n"
    "  h[(d_ * 64 + i_) * W + r] = y; if (i_ >= 1 << d_) y = F(h[(d_ * 64 + i_ - (1 << d_)) * W + r], y); } }\n";

/* ---- units ------------------------------------------------------------------------------------------------------- */

void emit_buffers(emitter *e) {
  for (uint32_t b = 0; b < e->p->nbuffers; b++) {
    const char *T = emit_type(e->p->buffers[b].dtype), *mode = e->p->buffers[b].mode == BUF_IN ? "const " : "";
    emit_line(e, "%s%s *const p%u = (%s%s *)a->buf[%u];", mode, T, b, mode, T, b);
  }
}

/* Prints the body of the function after the phases, which tells the bytes of scratch. */
static void print_size(emitter *e) {
  emit_line(e, "u64 most = 0;");
  for (l_val v = 1; v < e->p->n; v++) {
    if (emit_at(e, v)->code != L_PHASE) continue;
    emit_line(e, "{");
    emit_line(e, "u64 o = 0;");
    l_val par = emit_prelude(e, v);
    e->layout = l_layout_of(emit_at(e, par));
    if (e->cuda) emit_line(e, "const int g_ = 0;");
    emit_places(e, par);
    emit_line(e, "most = o * %d > most ? o * %d : most;", e->layout.groups, e->layout.groups);
    emit_line(e, "}");
  }
  emit_line(e, "*(i64 *)a->scratch = (i64)most;");
}

void emit_words(const emit_target *t, const math_uses *uses, text_buf *out) {
  text_adds(out, emit_types);
  text_adds(out, t->preamble);
  text_adds(out, emit_macros);
  math_print(uses, t->words, out);
}

void emit_unit(const emit_target *t, const l_program *const *programs, const char *const *names, uint32_t n,
               cancel_flag cancel, text_buf *out) {
  text_buf body = {0};
  math_uses uses = {0};
  bool failed = false;
  for (uint32_t i = 0; i < n && !failed && !(failed = cancelled(cancel)); i++) {
    emitter e = {.cuda = t->words == MATH_TARGET_CUDA, .out = &body, .uses = &uses, .active = ""};
    if (emit_facts(&e, programs[i])) {
      text_addf(&body, "\n/* %s */\n", programs[i]->name);
      emit_acc_functions(&e);
      uint32_t number = 0;
      for (l_val v = 1; v <= programs[i]->n; v++) {
        bool last = v == programs[i]->n;
        if (!last && programs[i]->code[v].code != L_PHASE) continue;
        t->head(&e, names[i], number++, !last);
        if (last)
          print_size(&e);
        else
          t->phase(&e, v);
        emit_line(&e, "}");
      }
    }
    failed = e.failed;
    emit_facts_free(&e);
  }
  emit_words(t, &uses, out);
  text_add(out, body.text ? body.text : "", body.len);
  out->failed |= body.failed || uses.failed || failed;
  text_free(&body);
}
