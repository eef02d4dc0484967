/* The highlights of a text, for the prompt and for excerpts in colour.
 *
 * The lexer itself finds the tokens, so what is shown is what will be read. It stops at the first thing that is no token; here it is made
 * to go on behind that. An unfinished or faulty string is taken to end at its quote or the end of its line (or of the text, if it has three
 * quotes), and ends the interpolations that it is in.
 */
#include <string.h>

#include "lang/highlight.h"
#include "lang/vm.h"
#include "parser/state.h"

const char *const parse_keywords[] = {
#define KEYWORD(terminal, word, highlight) word,
#define WORD(word)
#include "lang/keywords.def"
    NULL};

static highlight highlight_of(int kind) {
  switch (kind) {
#define KEYWORD(terminal, word, highlight)                                                                             \
  case T_##terminal:                                                                                                   \
    return HIGHLIGHT_##highlight;
#define WORD(word)
#include "lang/keywords.def"
  case T_INT:
  case T_FLOAT: return HIGHLIGHT_number;
  case T_STRING:
  case T_SBEG:
  case T_SMID:
  case T_SEND:
  case T_FMT: return HIGHLIGHT_string;
  case T_NAME: return HIGHLIGHT_name;
  case T_LP:
  case T_RP:
  case T_LB:
  case T_RB:
  case T_LC:
  case T_LREC:
  case T_LEMPTY:
  case T_RC:
  case T_COMMA:
  case T_COLON:
  case T_SEMI:
  case T_DOT:
  case T_NL: return HIGHLIGHT_plain;
  default: return HIGHLIGHT_operator;
  }
}

static void paint(uint8_t *highlights, size_t from, size_t to, highlight l) {
  if (to > from) memset(highlights + from, (int)l, to - from);
}

/* Paints what is between two tokens: blanks and comments. */
static void paint_gap(const char *text, uint8_t *highlights, size_t from, size_t to) {
  for (size_t i = from; i < to; i++) {
    if (text[i] != '#') continue;
    size_t end = i;
    while (end < to && text[end] != '\n') end++;
    paint(highlights, i, end, HIGHLIGHT_comment);
    i = end;
  }
}

/* Where a string ends that the lexer has refused, searched from `s`, behind its opening quotes. */
static size_t skip_string(const char *text, size_t len, size_t s, bool triple) {
  for (; s < len && (triple || text[s] != '\n'); s++) {
    if (text[s] == '\\' && s + 1 < len && text[s + 1] != '\n')
      s++;
    else if (text[s] == '"' && (!triple || (s + 2 < len && text[s + 1] == '"' && text[s + 2] == '"')))
      return s + (triple ? 3 : 1);
  }
  return s;
}

/* Goes on behind what the lexer refused, by an error up to `end`; it began at `from`. */
static size_t resume(parser *p, uint8_t *highlights, size_t from, size_t end) {
  const char *text = p->text->text;
  size_t len = p->text->len, to = (size_t)((const char *)p->at - text);
  if (to <= from) to = from + 1;
  const bracket *in = p->depth ? &p->brackets[p->depth - 1] : NULL;
  bool inside = in && (in->kind == BRACKET_STRING || in->kind == BRACKET_TEXT);
  bool ends_part = inside && (text[from] == '}' || text[from] == ':' || text[from] == '\n');
  if (text[from] == '"' || ends_part) {
    bool triple = ends_part ? in->kind == BRACKET_TEXT : strncmp(text + from, "\"\"\"", 3) == 0;
    to = skip_string(text, len, from + (text[from] == '"' && triple ? 3 : text[from] == '\n' ? 0 : 1), triple);
    if (ends_part) {
      if (in->kind == BRACKET_STRING) p->lines_open--;
      p->depth--;
    }
    paint(highlights, from, to, HIGHLIGHT_string);
    p->before = p->last;
    p->last = T_STRING;
    if (text[from] == '\n' && to == from) to = from + 1;
  } else {
    if (to < end && end <= len) to = end;
    while (to < len && ((unsigned char)text[to] & 0xc0) == 0x80) to++;
    paint(highlights, from, to, HIGHLIGHT_wrong);
    p->before = p->last;
    p->last = T_NAME;
  }
  p->last_token = (token){.start = (uint32_t)from, .end = (uint32_t)to};
  p->at = (const unsigned char *)text + (to < len ? to : len);
  return (size_t)((const char *)p->at - text);
}

/* A parser over a text that is no source of the VM. `module` owns what the tokens hold. NULL if memory is short. */
static parser *open_lexer(qn_vm *vm, const source_text *text, ast_module *module) {
  parser *p = mem_try_alloc(vm, sizeof *p);
  if (!p) return NULL;
  memset(p, 0, sizeof *p);
  *module = (ast_module){0};
  p->vm = vm;
  p->text = text;
  p->mode = PARSE_PROMPT;
  p->module = module;
  p->at = (const unsigned char *)text->text;
  p->end = p->at + text->len;
  p->chars = (text_buf){.vm = vm};
  return p;
}

static void close_lexer(parser *p) {
  qn_vm *vm = p->vm;
  ast_module *m = p->module;
  for (uint32_t i = 0; i < m->nstrings; i++) value_release(vm, value_obj(TAG_STR, m->strings[i]));
  mem_free(vm, m->strings, m->strings_cap * sizeof *m->strings);
  text_free(&p->chars);
  mem_free(vm, p, sizeof *p);
}

void parse_highlights(qn_vm *vm, const char *text, size_t len, uint8_t *highlights) {
  memset(highlights, HIGHLIGHT_plain, len);
  if (len > INT32_MAX || !utf8_valid(text, len)) return;
  qn_error_object *pending = error_take(vm);
  source_text source = {.text = (char *)text, .len = len};
  ast_module module;
  parser *p = open_lexer(vm, &source, &module);
  size_t at = 0;
  while (p) {
    token t;
    int kind = lexer_next(p, &t);
    if (kind == LEX_END) {
      paint_gap(text, highlights, at, len);
      break;
    }
    if (t.start < at) t.start = (uint32_t)at;
    paint_gap(text, highlights, at, t.start);
    if (kind == LEX_INCOMPLETE) { /* a string in three quotes is still open, possibly behind an interpolation */
      paint(highlights, t.start, len, HIGHLIGHT_string);
      break;
    }
    if (kind == LEX_FAILED) {
      size_t end = vm->error ? vm->error->at.end : 0;
      error_clear(vm);
      p->failed = false;
      if (p->chars.failed || t.start >= len) break;
      at = resume(p, highlights, t.start, end);
      continue;
    }
    paint(highlights, t.start, t.end, highlight_of(kind));
    if (kind == T_LP && p->last == T_NAME && p->last_token.end == t.start)
      paint(highlights, p->last_token.start, t.start, HIGHLIGHT_call);
    at = t.end;
    p->before = p->last;
    p->last = kind;
    p->last_token = t;
  }
  if (p) close_lexer(p);
  error_clear(vm);
  if (pending) error_put_back(vm, pending);
}
