/* The text form of L programs: l_print and l_parse.
 *
 *   program softmax ints=2 scalars=0 {
 *     buffer b0 f32 in
 *     buffer b1 f32 out
 *     check c0 E303 site=12 node=7 detail=0
 *     %1 = param 0
 *     phase
 *     %3 = par %1 grain=1 {
 *       %4 = var %3
 *       %5 = f32 acc.max free
 *       %6 = vec %7 %2 {
 *         %8 = f32 load b0 base=%4 stride=%9
 *         push %5 %8
 *       }
 *     }
 *   }
 *
 * One instruction a line, driven by the rows of lcodes.def: result, dtype when it has one, spelling with .sub and .flags,
 * imm, operands. Instructions are numbered in order, so "%8 =" is redundant and checked; lines without a result count too.
 * `type2`, and the dtype of instructions without a typed result, follow from the operands and are not written. Constants are
 * written as bits, with the value in parentheses, which is a comment. */
#include "jit/kernel/l.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const order_names[] = {"inner", "outer", "dot", "tree", "free"};
static const char *const mode_names[] = {"in", "out", "inout", "scratch"};
static const struct {
  uint8_t bit;
  const char *name;
} flag_names[] = {{L_SHARED, "shared"}, {L_UNROLL, "unroll"}, {L_EXCLUSIVE, "exclusive"}};

static bool has_sub(uint8_t code) { return code == L_RMW || code == L_ACC; }
static bool opens(uint8_t code) {
  return code == L_PAR || code == L_FOR || code == L_VEC || code == L_IF || code == L_WHILE;
}
/* Whether the dtype is part of the text. */
static bool typed(const l_row *row) { return row->result == 'V' || row->result == 'A' || row->result == 'M'; }

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static void print_constant(text_buf *out, qn_dtype dtype, uint64_t bits) {
  text_addf(out, " 0x%llx (", (unsigned long long)bits);
  float f;
  double d;
  uint32_t low = (uint32_t)bits;
  switch (dtype) {
  case QN_f16: text_float(out, f16_to_f32((uint16_t)bits), true); break;
  case QN_bf16: text_float(out, bf16_to_f32((uint16_t)bits), true); break;
  case QN_f32:
    memcpy(&f, &low, sizeof f);
    text_float(out, f, true);
    break;
  case QN_f64:
    memcpy(&d, &bits, sizeof d);
    text_float(out, d, false);
    break;
  case QN_i8: text_addf(out, "%d", (int8_t)bits); break;
  case QN_i16: text_addf(out, "%d", (int16_t)bits); break;
  case QN_i32: text_addf(out, "%d", (int32_t)bits); break;
  case QN_i64: text_addf(out, "%lld", (long long)bits); break;
  default: text_addf(out, "%llu", (unsigned long long)bits); break;
  }
  text_adds(out, ")");
}

static void print_buffer(text_buf *out, const char *label, int64_t b) {
  if (b >= 0)
    text_addf(out, " %sb%lld", label, (long long)b);
  else
    text_addf(out, " %s%%%lld", label, (long long)-b);
}

static void print_tile(text_buf *out, const l_tile *t) {
  print_buffer(out, "x=", t->x);
  text_addf(out, " xbase=%%%u xm=%%%u xk=%%%u", t->x_base, t->x_m, t->x_k);
  print_buffer(out, "y=", t->y);
  text_addf(out, " ybase=%%%u yk=%%%u yn=%%%u rows=%%%u cols=%%%u depth=%%%u tilerows=%d tilecols=%d out=%%%u",
            t->y_base, t->y_k, t->y_n, t->rows, t->cols, t->depth, t->tile_rows, t->tile_cols, t->out);
}

static void print_instr(const l_program *p, l_val k, text_buf *out) {
  const l_instr *i = &p->code[k];
  const l_row *row = &l_rows[i->code];
  if (row->result != '-') text_addf(out, "%%%u = ", k);
  if (typed(row)) text_addf(out, "%s ", dtype_rows[i->dtype].name);
  const char *name = i->code == L_KOP ? kop_rows[i->sub].name : i->code == L_MATH ? math_rows[i->sub].name : row->text;
  text_adds(out, name);
  if (has_sub(i->code)) text_addf(out, ".%s", kop_rows[i->sub].name);
  for (size_t f = 0; f < sizeof flag_names / sizeof *flag_names; f++)
    if (i->flags & flag_names[f].bit) text_addf(out, ".%s", flag_names[f].name);
  switch (row->imm) {
  case 'n':
  case 'p':
  case 's': text_addf(out, " %lld", (long long)i->imm); break;
  case 'b': print_buffer(out, "", i->imm); break;
  case 'o': text_addf(out, " %s", order_names[i->imm]); break;
  case 'k': text_addf(out, " c%lld", (long long)i->imm); break;
  case 'c': print_constant(out, (qn_dtype)i->dtype, (uint64_t)i->imm); break;
  case 't': print_tile(out, &p->tiles[i->imm]); break;
  default: break;
  }
  for (const l_operand *o = row->operands; o->role; o++) {
    l_val v = l_operand_of(i, o);
    if (v) text_addf(out, " %s%s%%%u", o->name, *o->name ? "=" : "", v);
  }
  if (row->imm == 'g') text_addf(out, " grain=%lld", (long long)i->imm);
  if ((i->code == L_PARTIAL || i->code == L_MERGE) && i->d) print_buffer(out, "indices=", i->imm2);
  if (opens(i->code)) text_adds(out, " {");
}

void l_print(const l_program *p, text_buf *out) {
  text_addf(out, "program %s ints=%u scalars=%u {\n", p->name, p->nints, p->nscalars);
  for (uint32_t k = 0; k < p->nbuffers; k++) {
    const l_buffer *b = &p->buffers[k];
    text_addf(out, "  buffer b%u %s %s", k, dtype_rows[b->dtype].name, mode_names[b->mode]);
    if (b->mode == BUF_SCRATCH) text_addf(out, " size=%%%u", b->size);
    text_adds(out, "\n");
  }
  for (uint32_t k = 0; k < p->nchecks; k++)
    text_addf(out, "  check c%u E%d site=%u node=%u detail=%lld\n", k, p->checks[k].id, p->checks[k].site,
              p->checks[k].node, (long long)p->checks[k].detail);
  int depth = 1;
  for (l_val k = 1; k < p->n; k++) {
    uint8_t code = p->code[k].code;
    if ((code == L_END || code == L_ELSE) && depth > 1) depth--;
    text_repeat(out, "  ", depth);
    if (code == L_END)
      text_adds(out, "}");
    else if (code == L_ELSE)
      text_adds(out, "} else {");
    else
      print_instr(p, k, out);
    if (opens(code) || code == L_ELSE) depth++;
    text_adds(out, "\n");
  }
  text_adds(out, "}\n");
}

/* ---- parsing ----------------------------------------------------------------------------------------------------- */

typedef struct reader {
  const char *at;
  int line;
  l_program *p;
  char *why;
  size_t size;
  bool failed;
} reader;

static bool fail(reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fail(reader *r, const char *format, ...) {
  if (r->failed) return false;
  r->failed = true;
  int n = snprintf(r->why, r->size, "line %d: ", r->line);
  va_list args;
  va_start(args, format);
  if (n >= 0 && (size_t)n < r->size) vsnprintf(r->why + n, r->size - (size_t)n, format, args);
  va_end(args);
  return false;
}

static void skip_blanks(reader *r) {
  while (*r->at == ' ' || *r->at == '\t' || *r->at == '\r') r->at++;
}
static bool at_line_end(reader *r) {
  skip_blanks(r);
  return *r->at == '\n' || *r->at == 0;
}
static void next_line(reader *r) {
  for (;;) {
    skip_blanks(r);
    if (*r->at != '\n') return;
    r->at++;
    r->line++;
  }
}
static bool word_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
/* Takes `s` if it stands here; a word only as a whole. */
static bool take(reader *r, const char *s) {
  skip_blanks(r);
  size_t n = strlen(s);
  if (strncmp(r->at, s, n) != 0) return false;
  if (word_char(s[n - 1]) && word_char(r->at[n])) return false;
  r->at += n;
  return true;
}
/* Takes "name=" if it stands here. */
static bool take_label(reader *r, const char *name) {
  skip_blanks(r);
  size_t n = strlen(name);
  if (strncmp(r->at, name, n) != 0 || r->at[n] != '=') return false;
  r->at += n + 1;
  return true;
}
static bool need(reader *r, const char *s) { return take(r, s) || fail(r, "expected '%s'", s); }
static bool need_label(reader *r, const char *s) { return take_label(r, s) || fail(r, "expected '%s='", s); }
static bool word(reader *r, char *to, size_t size) {
  skip_blanks(r);
  size_t n = 0;
  while (word_char(r->at[n])) n++;
  if (!n || n >= size) return fail(r, "expected a word");
  memcpy(to, r->at, n);
  to[n] = 0;
  r->at += n;
  return true;
}
static bool number(reader *r, int64_t *to) {
  skip_blanks(r);
  bool negative = *r->at == '-';
  const char *s = r->at + negative;
  uint64_t x = 0;
  int base = 10, digits = 0;
  if (s[0] == '0' && s[1] == 'x') {
    base = 16;
    s += 2;
  }
  for (;; s++, digits++) {
    int d = *s >= '0' && *s <= '9' ? *s - '0' : *s >= 'a' && *s <= 'f' ? *s - 'a' + 10 : 99;
    if (d >= base) break;
    x = x * (uint64_t)base + (uint64_t)d;
  }
  if (!digits) return fail(r, "expected a number");
  r->at = s;
  *to = (int64_t)(negative ? 0 - x : x);
  return true;
}
static bool small(reader *r, uint32_t *to) {
  int64_t x = 0;
  *to = 0;
  if (!number(r, &x)) return false;
  if (x < 0 || x > 0x7fffffff) return fail(r, "number out of range");
  *to = (uint32_t)x;
  return true;
}
static bool value(reader *r, l_val *to) {
  *to = 0;
  skip_blanks(r);
  if (*r->at != '%') return fail(r, "expected %%number");
  r->at++;
  return small(r, to);
}
static bool buffer(reader *r, int64_t *to) {
  skip_blanks(r);
  *to = 0;
  uint32_t x = 0;
  if (*r->at == '%') {
    if (!value(r, &x)) return false;
    *to = -(int64_t)x;
    return true;
  }
  if (*r->at != 'b') return fail(r, "expected a buffer");
  r->at++;
  if (!small(r, &x)) return false;
  *to = x;
  return true;
}
static int find_name(const char *const *names, int n, const char *name) {
  for (int i = 0; i < n; i++)
    if (strcmp(names[i], name) == 0) return i;
  return -1;
}
static int find_kop(const char *name) {
  for (int i = 0; i < KOP_COUNT; i++)
    if (strcmp(kop_rows[i].name, name) == 0) return i;
  return -1;
}

static bool parse_buffer(reader *r) {
  uint32_t n = 0, size = 0;
  char text[32];
  skip_blanks(r);
  if (*r->at != 'b') return fail(r, "expected a buffer");
  r->at++;
  if (!small(r, &n) || !word(r, text, sizeof text)) return false;
  if (n != r->p->nbuffers) return fail(r, "buffers are numbered in order");
  qn_dtype dtype = dtype_find(text, strlen(text));
  if (dtype == QN_DTYPE_COUNT) return fail(r, "unknown dtype '%s'", text);
  if (!word(r, text, sizeof text)) return false;
  int mode = find_name(mode_names, 4, text);
  if (mode < 0) return fail(r, "unknown mode '%s'", text);
  if (mode == BUF_SCRATCH && (!need_label(r, "size") || !value(r, &size))) return false;
  return l_buffer_add(r->p, dtype, (l_buffer_mode)mode, size) >= 0 || fail(r, "out of memory");
}

static bool parse_check(reader *r) {
  uint32_t n = 0, id = 0, site = 0, node = 0;
  int64_t detail = 0;
  skip_blanks(r);
  if (*r->at != 'c') return fail(r, "expected a check");
  r->at++;
  if (!small(r, &n)) return false;
  if (n != r->p->nchecks) return fail(r, "checks are numbered in order");
  skip_blanks(r);
  if (*r->at != 'E') return fail(r, "expected an error id");
  r->at++;
  if (!small(r, &id) || !need_label(r, "site") || !small(r, &site) || !need_label(r, "node") || !small(r, &node) ||
      !need_label(r, "detail") || !number(r, &detail))
    return false;
  return l_check_add(r->p, (l_check){(int)id, site, node, detail}) >= 0 || fail(r, "out of memory");
}

static bool parse_tile(reader *r, l_instr *i) {
  l_tile t = {0};
  int64_t x, y;
  uint32_t rows, cols;
  if (!need_label(r, "x") || !buffer(r, &x) || !need_label(r, "xbase") || !value(r, &t.x_base) ||
      !need_label(r, "xm") || !value(r, &t.x_m) || !need_label(r, "xk") || !value(r, &t.x_k) || !need_label(r, "y") ||
      !buffer(r, &y) || !need_label(r, "ybase") || !value(r, &t.y_base) || !need_label(r, "yk") || !value(r, &t.y_k) ||
      !need_label(r, "yn") || !value(r, &t.y_n) || !need_label(r, "rows") || !value(r, &t.rows) ||
      !need_label(r, "cols") || !value(r, &t.cols) || !need_label(r, "depth") || !value(r, &t.depth) ||
      !need_label(r, "tilerows") || !small(r, &rows) || !need_label(r, "tilecols") || !small(r, &cols) ||
      !need_label(r, "out") || !value(r, &t.out))
    return false;
  t.x = (int32_t)x;
  t.y = (int32_t)y;
  t.tile_rows = (int32_t)rows;
  t.tile_cols = (int32_t)cols;
  i->imm = l_tile_add(r->p, t);
  return i->imm >= 0 || fail(r, "out of memory");
}

/* The instruction named at the cursor: code and sub. Typed lines may also name a function. */
static bool parse_name(reader *r, bool with_type, l_instr *i) {
  char text[32];
  if (!word(r, text, sizeof text)) return false;
  for (int c = 1; c < L_CODE_COUNT; c++) {
    if (c == L_KOP || c == L_MATH || typed(&l_rows[c]) != with_type || strcmp(l_rows[c].text, text) != 0) continue;
    i->code = (uint8_t)c;
    return true;
  }
  int k = with_type ? find_kop(text) : -1;
  if (k >= 0) {
    i->code = L_KOP;
    i->sub = (uint8_t)k;
    return true;
  }
  for (int m = 0; with_type && m < MATH_COUNT; m++) {
    if (strcmp(math_rows[m].name, text) != 0) continue;
    i->code = L_MATH;
    i->sub = (uint8_t)m;
    return true;
  }
  return fail(r, "unknown instruction '%s'", text);
}

/* ".max", ".unroll" behind a name */
static bool parse_suffixes(reader *r, l_instr *i) {
  bool sub = has_sub(i->code);
  while (*r->at == '.') {
    r->at++;
    char text[32];
    if (!word(r, text, sizeof text)) return false;
    if (sub) {
      int k = find_kop(text);
      if (k < 0) return fail(r, "unknown function '%s'", text);
      i->sub = (uint8_t)k;
      sub = false;
      continue;
    }
    uint8_t bit = 0;
    for (size_t f = 0; f < sizeof flag_names / sizeof *flag_names; f++)
      if (strcmp(flag_names[f].name, text) == 0) bit = flag_names[f].bit;
    if (!bit) return fail(r, "unknown flag '%s'", text);
    i->flags |= bit;
  }
  return !sub || fail(r, "expected .function");
}

static bool parse_imm(reader *r, char kind, l_instr *i) {
  char text[32];
  int64_t x;
  switch (kind) {
  case 'n':
  case 'p':
  case 's': return number(r, &i->imm);
  case 'b': return buffer(r, &i->imm);
  case 't': return parse_tile(r, i);
  case 'o': {
    if (!word(r, text, sizeof text)) return false;
    int order = find_name(order_names, 5, text);
    i->imm = order;
    return order >= 0 || fail(r, "unknown order '%s'", text);
  }
  case 'k':
    skip_blanks(r);
    if (*r->at != 'c') return fail(r, "expected a check");
    r->at++;
    return number(r, &i->imm);
  case 'c':
    if (!number(r, &x)) return false;
    i->imm = x;
    if (!take(r, "(")) return true;
    while (*r->at && *r->at != ')' && *r->at != '\n') r->at++;
    return need(r, ")");
  default: return true;
  }
}

static bool parse_instr(reader *r) {
  l_instr i = {0};
  l_val result = 0;
  bool with_type = false;
  skip_blanks(r);
  if (*r->at == '%') {
    if (!value(r, &result) || !need(r, "=")) return false;
    if (result != r->p->n) return fail(r, "this is instruction %%%u", r->p->n);
    const char *back = r->at;
    char text[32];
    if (!word(r, text, sizeof text)) return false;
    qn_dtype dtype = dtype_find(text, strlen(text));
    with_type = dtype != QN_DTYPE_COUNT;
    if (with_type)
      i.dtype = (uint8_t)dtype;
    else
      r->at = back;
  }
  if (!parse_name(r, with_type, &i) || !parse_suffixes(r, &i)) return false;
  const l_row *row = &l_rows[i.code];
  if ((row->result != '-') != (result != 0)) return fail(r, "'%s' %s a result", row->text, result ? "has not" : "has");
  if (!parse_imm(r, row->imm, &i)) return false;
  for (const l_operand *o = row->operands; o->role; o++) {
    l_val v = 0;
    bool optional = o->role >= 'a';
    if (*o->name) {
      if (!take_label(r, o->name)) {
        if (optional) continue;
        return fail(r, "expected '%s='", o->name);
      }
    } else {
      skip_blanks(r);
      if (*r->at != '%' && optional) continue;
    }
    if (!value(r, &v)) return false;
    *(l_val *)((char *)&i + o->at) = v;
  }
  if (row->imm == 'g' && (!need_label(r, "grain") || !number(r, &i.imm))) return false;
  if ((i.code == L_PARTIAL || i.code == L_MERGE) && i.d && (!need_label(r, "indices") || !buffer(r, &i.imm2)))
    return false;
  if (opens(i.code) && !need(r, "{")) return false;
  if (!at_line_end(r)) return fail(r, "unexpected text behind the instruction");
  return l_emit(r->p, i) != 0 || fail(r, "out of memory");
}

static bool parse_body(reader *r) {
  uint32_t depth = 0;
  for (;;) {
    next_line(r);
    if (!*r->at) return fail(r, "the program has no end");
    if (take(r, "}")) {
      bool otherwise = take(r, "else");
      if (otherwise && !need(r, "{")) return false;
      if (!otherwise && depth == 0) return true;
      if (!l_emit(r->p, (l_instr){.code = otherwise ? L_ELSE : L_END})) return fail(r, "out of memory");
      if (!otherwise) depth--;
      continue;
    }
    if (r->p->n == 1 && take(r, "buffer")) {
      if (!parse_buffer(r)) return false;
    } else if (r->p->n == 1 && take(r, "check")) {
      if (!parse_check(r)) return false;
    } else {
      uint32_t before = r->p->n;
      if (!parse_instr(r)) return false;
      if (opens(r->p->code[before].code)) depth++;
    }
  }
}

l_program *l_parse(const char *text, char *why, size_t size) {
  reader r = {.at = text, .line = 1, .why = why, .size = size};
  char name[256];
  next_line(&r);
  if (!need(&r, "program") || !word(&r, name, sizeof name)) return NULL;
  r.p = l_new(name);
  if (!r.p) {
    (void)fail(&r, "out of memory");
    return NULL;
  }
  uint32_t ints = 0, scalars = 0;
  bool ok =
      need_label(&r, "ints") && small(&r, &ints) && need_label(&r, "scalars") && small(&r, &scalars) && need(&r, "{");
  if (ok) {
    r.p->nints = ints;
    r.p->nscalars = scalars;
    ok = parse_body(&r);
  }
  if (ok) {
    next_line(&r);
    ok = !*r.at || fail(&r, "text behind the program");
  }
  if (!ok || !l_verify(r.p, why, size)) {
    l_free(r.p);
    return NULL;
  }
  return r.p;
}
