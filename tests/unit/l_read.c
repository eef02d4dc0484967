/* Reads the text form of L programs that l_print writes (jit/kernel/l_text.c). */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/kernel_text.h"
#include "tests/unit/reader.h"

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
  int mode = reader_choice(r, l_buffer_mode_names, BUFFER_MODE_NAMES, "mode");
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
      !reader_small(r, &rows) || !reader_need_label(r, "tilecols") || !reader_small(r, &cols))
    return false;
  if (reader_take_label(r, "out")) {
    if (!value(r, &t.out)) return false;
  } else {
    int64_t to;
    if (!reader_need_label(r, "to") || !buffer(r, &to) || !labelled(r, "tobase", &t.to_base) ||
        !labelled(r, "tom", &t.to_m))
      return false;
    t.to = (int32_t)to;
  }
  if (reader_take_label(r, "first") && (!value(r, &t.n_first) || !labelled(r, "deep", &t.k_first))) return false;
  for (bool deep; t.n_first && ((deep = reader_take_label(r, "kdigit")) || reader_take_label(r, "ndigit"));) {
    if (t.ndigits == L_TILE_DIGITS) return reader_fail(r, "too many digits");
    l_digit *d = &t.digits[t.ndigits++];
    d->deep = deep;
    if (!value(r, &d->by) || (reader_take_label(r, "most") && !value(r, &d->most)) || !labelled(r, "step", &d->step))
      return false;
  }
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
    if (c == L_KOP || c == L_MATH || l_is_typed((uint8_t)c) != with_type || strcmp(l_rows[c].text, text) != 0) continue;
    i->code = (uint8_t)c;
    return true;
  }
  int op = with_type ? kop_find(text) : -1, fn = with_type ? math_find(text) : -1;
  if (op < 0 && fn < 0) return reader_fail(r, "unknown instruction '%s'", text);
  i->code = op >= 0 ? L_KOP : L_MATH;
  i->sub = (uint8_t)(op >= 0 ? op : fn);
  return true;
}

/* ".max", ".shared" behind a name */
static bool parse_suffixes(reader *r, l_instr *i) {
  bool sub = l_has_sub(i->code);
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
    for (int f = 0; f < L_FLAGS; f++)
      if (strcmp(l_flags[f].name, text) == 0) bit = l_flags[f].bit;
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
  case 'o': i->imm = reader_choice(r, l_order_names, ORDER_NAMES, "order"); return i->imm >= 0;
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

/* "[64x128 t16x8.4]" behind a dtype: 16 x 8 threads, with four columns each. */
static bool parse_block(reader *r, l_program *p, l_instr *i) {
  if (*r->at != '[') return true;
  r->at++;
  char *end;
  l_block b = {.across = 1, .down = 1, .each = 1};
  b.rows = (uint16_t)strtoul(r->at, &end, 10);
  if (*end != 'x') return reader_fail(r, "expected rows x columns");
  r->at = end + 1;
  b.cols = (uint16_t)strtoul(r->at, &end, 10);
  r->at = end;
  if (reader_take(r, "mma")) {
    b.fragments = true;
  } else if (*r->at == 't') {
    b.across = (uint16_t)strtoul(r->at + 1, &end, 10);
    if (*end == 'x') {
      b.down = b.across;
      b.across = (uint16_t)strtoul(end + 1, &end, 10);
    }
    if (*end != '.') return reader_fail(r, "expected the columns of a thread");
    b.each = (uint16_t)strtoul(end + 1, &end, 10);
    r->at = end;
  }
  if (*r->at != ']') return reader_fail(r, "expected ']'");
  r->at++;
  i->block = l_block_add(p, b);
  return i->block || reader_fail(r, "too many types of blocks");
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
    if (with_type && !parse_block(r, p, &i)) return false;
  }
  if (!parse_name(r, with_type, &i) || !parse_suffixes(r, &i)) return false;
  const l_row *row = &l_rows[i.code];
  if ((row->result != '-') != (result != 0))
    return reader_fail(r, "'%s' has %s result", row->text, result ? "no" : "a");
  if (!parse_imm(r, p, row->imm, &i) || !parse_operands(r, &i)) return false;
  if (row->imm == 'g' && (!reader_need_label(r, "grain") || !reader_number(r, &i.imm))) return false;
  int64_t threads, lanes, groups;
  if (i.code == L_PAR && reader_take_label(r, "threads")) {
    if (!reader_number(r, &threads) || !reader_need_label(r, "lanes") || !reader_number(r, &lanes) ||
        !reader_need_label(r, "groups") || !reader_number(r, &groups))
      return false;
    i.imm2 = l_layout_word((l_layout){(int)threads, (int)lanes, (int)groups});
  }
  bool indices = (i.code == L_PARTIAL || i.code == L_MERGE) && i.d;
  if (indices && (!reader_need_label(r, "indices") || !buffer(r, &i.imm2))) return false;
  if (l_opens(i.code) && !reader_need(r, "{")) return false;
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
    } else if (p->n == 1 && reader_take(r, "schedule ")) {
      size_t length = strcspn(r->at, "\n");
      char *text = arena_alloc(&p->arena, length + 1);
      if (!text) return reader_fail(r, "out of memory");
      p->schedule = memcpy(text, r->at, length);
      r->at += length;
    } else if (p->n == 1 && reader_take(r, "buffer")) {
      if (!parse_buffer(r, p)) return false;
    } else if (p->n == 1 && reader_take(r, "check")) {
      l_check c;
      if (!reader_check(r, p->nchecks, &c)) return false;
      if (l_check_add(p, c) < 0) return reader_fail(r, "out of memory");
    } else {
      uint32_t before = p->n;
      if (!parse_instr(r, p)) return false;
      if (l_opens(p->code[before].code)) depth++;
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
