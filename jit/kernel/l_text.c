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

#include <string.h>

#include "jit/kernel/reader.h"

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
  case 'c':
    text_adds(out, " ");
    text_constant(out, (qn_dtype)i->dtype, (uint64_t)i->imm);
    break;
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
    text_addf(out, "  buffer b%u %s %s", k, dtype_rows[b->dtype].name, buffer_mode_names[b->mode]);
    if (b->mode == BUF_SCRATCH) text_addf(out, " size=%%%u", b->size);
    text_adds(out, "\n");
  }
  for (uint32_t k = 0; k < p->nchecks; k++) text_check(out, k, &p->checks[k]);
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

static bool value(reader *r, l_val *to) { return reader_prefixed(r, '%', to); }
static bool labelled(reader *r, const char *name, l_val *to) { return reader_need_label(r, name) && value(r, to); }

static bool buffer(reader *r, int64_t *to) {
  *to = 0;
  uint32_t x;
  reader_blanks(r);
  bool local = *r->at == '%';
  if (!reader_prefixed(r, local ? '%' : 'b', &x)) return false;
  *to = local ? -(int64_t)x : (int64_t)x;
  return true;
}

static bool parse_buffer(reader *r, l_program *p) {
  uint32_t n, size = 0;
  uint8_t dtype;
  if (!reader_prefixed(r, 'b', &n) || !reader_dtype(r, &dtype)) return false;
  if (n != p->nbuffers) return reader_fail(r, "buffers are numbered in order");
  int mode = reader_choice(r, buffer_mode_names, BUFFER_MODE_NAMES, "mode");
  if (mode < 0 || (mode == BUF_SCRATCH && !labelled(r, "size", &size))) return false;
  return l_buffer_add(p, (qn_dtype)dtype, (l_buffer_mode)mode, size) >= 0 || reader_fail(r, "out of memory");
}

static bool parse_tile(reader *r, l_program *p, l_instr *i) {
  l_tile t = {0};
  int64_t x, y;
  uint32_t rows, cols;
  if (!reader_need_label(r, "x") || !buffer(r, &x) || !labelled(r, "xbase", &t.x_base) || !labelled(r, "xm", &t.x_m) ||
      !labelled(r, "xk", &t.x_k) || !reader_need_label(r, "y") || !buffer(r, &y) || !labelled(r, "ybase", &t.y_base) ||
      !labelled(r, "yk", &t.y_k) || !labelled(r, "yn", &t.y_n) || !labelled(r, "rows", &t.rows) ||
      !labelled(r, "cols", &t.cols) || !labelled(r, "depth", &t.depth) || !reader_need_label(r, "tilerows") ||
      !reader_small(r, &rows) || !reader_need_label(r, "tilecols") || !reader_small(r, &cols) ||
      !labelled(r, "out", &t.out))
    return false;
  t.x = (int32_t)x;
  t.y = (int32_t)y;
  t.tile_rows = (int32_t)rows;
  t.tile_cols = (int32_t)cols;
  i->imm = l_tile_add(p, t);
  return i->imm >= 0 || reader_fail(r, "out of memory");
}

/* The instruction named at the cursor: code and sub. Lines with a dtype may also name a function. */
static bool parse_name(reader *r, bool with_type, l_instr *i) {
  char text[32];
  if (!reader_word(r, text, sizeof text)) return false;
  for (int c = 1; c < L_CODE_COUNT; c++) {
    if (c == L_KOP || c == L_MATH || typed(&l_rows[c]) != with_type || strcmp(l_rows[c].text, text) != 0) continue;
    i->code = (uint8_t)c;
    return true;
  }
  int op = with_type ? kop_find(text) : -1, fn = with_type ? math_find(text) : -1;
  if (op < 0 && fn < 0) return reader_fail(r, "unknown instruction '%s'", text);
  i->code = op >= 0 ? L_KOP : L_MATH;
  i->sub = (uint8_t)(op >= 0 ? op : fn);
  return true;
}

/* ".max", ".unroll" behind a name */
static bool parse_suffixes(reader *r, l_instr *i) {
  bool sub = has_sub(i->code);
  while (*r->at == '.') {
    r->at++;
    char text[32];
    if (!reader_word(r, text, sizeof text)) return false;
    if (sub) {
      int op = kop_find(text);
      if (op < 0) return reader_fail(r, "unknown function '%s'", text);
      i->sub = (uint8_t)op;
      sub = false;
      continue;
    }
    uint8_t bit = 0;
    for (size_t f = 0; f < sizeof flag_names / sizeof *flag_names; f++)
      if (strcmp(flag_names[f].name, text) == 0) bit = flag_names[f].bit;
    if (!bit) return reader_fail(r, "unknown flag '%s'", text);
    i->flags |= bit;
  }
  return !sub || reader_fail(r, "expected .function");
}

static bool parse_imm(reader *r, l_program *p, char kind, l_instr *i) {
  uint32_t n;
  uint64_t bits;
  switch (kind) {
  case 'n':
  case 'p':
  case 's': return reader_number(r, &i->imm);
  case 'b': return buffer(r, &i->imm);
  case 't': return parse_tile(r, p, i);
  case 'o': i->imm = reader_choice(r, order_names, ORDER_NAMES, "order"); return i->imm >= 0;
  case 'k':
    if (!reader_prefixed(r, 'c', &n)) return false;
    i->imm = n;
    return true;
  case 'c':
    if (!reader_constant(r, &bits)) return false;
    i->imm = (int64_t)bits;
    return true;
  default: return true;
  }
}

static bool parse_operands(reader *r, l_instr *i) {
  for (const l_operand *o = l_rows[i->code].operands; o->role; o++) {
    bool optional = o->role >= 'a';
    reader_blanks(r);
    if (*o->name ? !reader_take_label(r, o->name) : *r->at != '%') {
      if (optional) continue;
      return reader_fail(r, "expected %s%%number", o->name);
    }
    if (!value(r, (l_val *)((char *)i + o->at))) return false;
  }
  return true;
}

static bool parse_instr(reader *r, l_program *p) {
  l_instr i = {0};
  l_val result = 0;
  bool with_type = false;
  reader_blanks(r);
  if (*r->at == '%') {
    if (!value(r, &result) || !reader_need(r, "=")) return false;
    if (result != p->n) return reader_fail(r, "this is instruction %%%u", p->n);
    const char *back = r->at;
    char text[32];
    if (!reader_word(r, text, sizeof text)) return false;
    int dtype = find_dtype(text);
    with_type = dtype >= 0;
    if (with_type)
      i.dtype = (uint8_t)dtype;
    else
      r->at = back;
  }
  if (!parse_name(r, with_type, &i) || !parse_suffixes(r, &i)) return false;
  const l_row *row = &l_rows[i.code];
  if ((row->result != '-') != (result != 0))
    return reader_fail(r, "'%s' has %s result", row->text, result ? "no" : "a");
  if (!parse_imm(r, p, row->imm, &i) || !parse_operands(r, &i)) return false;
  if (row->imm == 'g' && (!reader_need_label(r, "grain") || !reader_number(r, &i.imm))) return false;
  bool indices = (i.code == L_PARTIAL || i.code == L_MERGE) && i.d;
  if (indices && (!reader_need_label(r, "indices") || !buffer(r, &i.imm2))) return false;
  if (opens(i.code) && !reader_need(r, "{")) return false;
  if (!reader_at_line_end(r)) return reader_fail(r, "unexpected text behind the instruction");
  return l_emit(p, i) != 0 || reader_fail(r, "out of memory");
}

static bool parse_body(reader *r, l_program *p) {
  uint32_t depth = 0;
  for (;;) {
    reader_next_line(r);
    if (!*r->at) return reader_fail(r, "the program has no end");
    if (reader_take(r, "}")) {
      bool otherwise = reader_take(r, "else");
      if (otherwise && !reader_need(r, "{")) return false;
      if (!otherwise && depth == 0) return true;
      if (!l_emit(p, (l_instr){.code = otherwise ? L_ELSE : L_END})) return reader_fail(r, "out of memory");
      if (!otherwise) depth--;
    } else if (p->n == 1 && reader_take(r, "buffer")) {
      if (!parse_buffer(r, p)) return false;
    } else if (p->n == 1 && reader_take(r, "check")) {
      l_check c;
      if (!reader_check(r, p->nchecks, &c)) return false;
      if (l_check_add(p, c) < 0) return reader_fail(r, "out of memory");
    } else {
      uint32_t before = p->n;
      if (!parse_instr(r, p)) return false;
      if (opens(p->code[before].code)) depth++;
    }
  }
}

static bool parse_program(reader *r, l_program *p) {
  if (!reader_need_label(r, "ints") || !reader_small(r, &p->nints) || !reader_need_label(r, "scalars") ||
      !reader_small(r, &p->nscalars) || !reader_need(r, "{") || !parse_body(r, p))
    return false;
  reader_next_line(r);
  return !*r->at || reader_fail(r, "text behind the program");
}

l_program *l_parse(const char *text, char *why, size_t size) {
  reader r;
  char name[256];
  reader_init(&r, text, why, size);
  reader_next_line(&r);
  if (!reader_need(&r, "program") || !reader_word(&r, name, sizeof name)) return NULL;
  l_program *p = l_new(name);
  if (!p) {
    (void)reader_fail(&r, "out of memory");
    return NULL;
  }
  if (parse_program(&r, p) && l_verify(p, why, size)) return p;
  l_free(p);
  return NULL;
}
