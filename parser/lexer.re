/* From bytes to terminals of the grammar (re2c; UTF-8 throughout).
 *
 * Newlines. A newline is a token only where a statement can end: the token before it can end one, the innermost open
 * bracket is none or a brace, and what follows (past blanks, newlines and comments) is not `else`, `catch` or `.name`.
 *
 * Braces. What `{` means is settled here by looking at what follows: LREC begins a record (`name:`, `"text":` or `..`),
 * LEMPTY stands before `}`, LC is everything else: a block, or a pattern.
 *
 * Strings. An interpolated string is the tokens SBEG part {SMID part} SEND; each carries the decoded text before, between
 * and after the parts. Its open brace is on the stack of brackets, so that the matching `}` leads back into the string,
 * and a `:` directly inside it starts the format, one FMT token.
 *
 * Other languages' spellings that can be told from the characters alone are E105 here; those that show only as syntax
 * errors are recognised by parse.c.
 */
#include <string.h>

#include "parser/state.h"

/*!include:re2c "unicode_categories.re" */

static uint32_t offset(const parser *p, const unsigned char *s) {
  return (uint32_t)(s - (const unsigned char *)p->text->text);
}

static bool is_digit(unsigned char c) { return c >= '0' && c <= '9'; }
static bool begins_name(unsigned char c) { return ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_' || c >= 0x80; }
static bool in_name(unsigned char c) { return begins_name(c) || is_digit(c); }

static const unsigned char *skip_name(const unsigned char *s) {
  while (in_name(*s)) s++;
  return s;
}

static const unsigned char *skip_blanks(const unsigned char *s) {
  while (*s == ' ' || *s == '\t' || *s == '\r') s++;
  return s;
}

const unsigned char *lexer_skip(const parser *p, const unsigned char *s) {
  for (;;) {
    while (*s == ' ' || *s == '\t' || *s == '\r' || *s == '\n') s++;
    if (*s != '#') return s;
    while (s < p->end && *s != '\n') s++;
  }
}

const char *lexer_line(const parser *p, uint32_t at) {
  const char *s = p->text->text + at;
  while (s > p->text->text && s[-1] != '\n' && s[-1] != ';') s--;
  return s + strspn(s, " \t");
}

bool lexer_in_header(const parser *p, uint32_t at) { return !strncmp(lexer_line(p, at), "fn ", 3); }

bool lexer_can_end(int terminal) {
  switch (terminal) {
  case T_NAME:
  case T_INT:
  case T_FLOAT:
  case T_TRUE:
  case T_FALSE:
  case T_NIL:
  case T_STRING:
  case T_SEND:
  case T_RP:
  case T_RB:
  case T_RC:
  case T_BREAK:
  case T_CONTINUE:
  case T_RETURN:
    return true;
  default:
    return false;
  }
}

/* Is the next token the first of a statement? */
static bool at_statement(const parser *p) {
  return p->last == 0 || p->last == T_NL || p->last == T_SEMI || p->last == T_LC;
}

static bool word_is(const unsigned char *s, const char *word) {
  size_t n = strlen(word);
  return !strncmp((const char *)s, word, n) && !in_name(s[n]);
}

/* Does what follows a newline continue the statement before it? */
static bool continues(const parser *p, const unsigned char *s) {
  s = lexer_skip(p, s);
  return (*s == '.' && begins_name(s[1])) || word_is(s, "else") || word_is(s, "catch");
}

/* ---- brackets ---- */

static bool open_bracket(parser *p, bracket_kind kind, uint32_t at, uint32_t string) {
  if (p->depth == BRACKETS_MAX) {
    parser_fail(p, E_nesting, at, at + 1, "more than 1,000 brackets are open here");
    return false;
  }
  p->brackets[p->depth++] = (bracket){kind, at, string};
  if (kind == BRACKET_STRING) p->lines_open++;
  return true;
}

static const bracket *innermost(const parser *p) { return p->depth ? &p->brackets[p->depth - 1] : NULL; }

/* A closing bracket that does not match leaves the stack alone: the grammar refuses it at once. */
static void close_bracket(parser *p, bracket_kind kind, bracket_kind other) {
  const bracket *b = innermost(p);
  if (b && (b->kind == kind || b->kind == other)) p->depth--;
}

/* LC, LREC or LEMPTY, for a brace followed by `s`. */
static int brace_kind(const parser *p, const unsigned char *s) {
  s = lexer_skip(p, s);
  if (*s == '}') return T_LEMPTY;
  if (s[0] == '.' && s[1] == '.' && s[2] != '.') return T_LREC;
  if (begins_name(*s)) {
    s = skip_name(s);
  } else if (*s == '"') {
    bool triple = s[1] == '"' && s[2] == '"';
    for (s += triple ? 3 : 1;; s++) {
      if (s >= p->end || *s == '{' || (*s == '\n' && !triple)) return T_LC;
      if (*s == '\\' && s + 1 < p->end) s++;
      else if (triple ? s[0] == '"' && s[1] == '"' && s[2] == '"' : *s == '"') break;
    }
    s += triple ? 3 : 1;
  } else {
    return T_LC;
  }
  return *skip_blanks(s) == ':' ? T_LREC : T_LC;
}

static int open_brace(parser *p, uint32_t at, const unsigned char *rest) {
  int kind = brace_kind(p, rest);
  return open_bracket(p, kind == T_LC ? BRACKET_BLOCK : BRACKET_RECORD, at, 0) ? kind : LEX_FAILED;
}

/* ---- strings ---- */

static int string_open(parser *p, uint32_t quote, bool triple) {
  if (triple && p->mode == PARSE_PROMPT && !p->lines_open) return LEX_INCOMPLETE;
  const unsigned char *s = (const unsigned char *)p->text->text + quote;
  while (s < p->end && *s != '\n') s++;
  parser_fail(p, E_string_open, quote, offset(p, s),
              triple ? "this string is never closed; it ends with \"\"\"" : "this string is not closed on its line");
  const bracket *b = innermost(p);
  if (b && (b->kind == BRACKET_STRING || b->kind == BRACKET_TEXT))
    raise_note(p->vm, (span){p->source, b->at, b->at + 1}, "a value begins here; a brace as text is \\{");
  return LEX_FAILED;
}

/* Decodes the escape at `s` (a backslash) into p->chars and returns the byte behind it, or NULL with an error raised. */
static const unsigned char *escape(parser *p, const unsigned char *s) {
  static const char from[] = "nt\"\\{}", to[] = "\n\t\"\\{}";
  const char *known = s[1] ? strchr(from, s[1]) : NULL;
  if (known) {
    text_add(&p->chars, to + (known - from), 1);
    return s + 2;
  }
  uint32_t at = offset(p, s);
  if (s[1] != 'u') {
    const unsigned char *e = s + 1;
    if (s + 1 < p->end && *e != '\n') {
      uint32_t code;
      e += utf8_decode((const char *)e, &code);
    }
    parser_fail(p, E_syntax, at, offset(p, e),
                "unknown escape '%.*s': there are \\n \\t \\\" \\\\ \\{ \\} and \\u{...}; a backslash is \\\\", (int)(e - s), (const char *)s);
    return NULL;
  }
  const unsigned char *e = s + 2;
  uint32_t code = 0;
  int digits = 0;
  if (*e == '{') {
    for (e++; digits < 7; e++, digits++) {
      unsigned char c = *e | 32;
      if (is_digit(*e)) code = code * 16 + (*e - '0');
      else if (c >= 'a' && c <= 'f') code = code * 16 + (c - 'a' + 10);
      else break;
    }
  }
  if (!digits || digits > 6 || *e != '}' || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
    parser_fail(p, E_syntax, at, offset(p, e),
                "a code point is written \\u{1F600}: up to six hexadecimal digits, at most 10FFFF, no surrogates");
    return NULL;
  }
  char utf8[4];
  text_add(&p->chars, utf8, (size_t)utf8_encode(code, utf8));
  return e + 1;
}

/* Takes what p->chars has as the token's text. */
static bool take_text(parser *p, token *t, bool keep_empty) {
  t->u.s = NULL;
  if (!p->chars.failed && !p->chars.len && !keep_empty) return true;
  if (p->chars.failed) raise_memory(p->vm);
  else t->u.s = str_new(p->vm, p->chars.len ? p->chars.text : "", p->chars.len);
  if (t->u.s && parser_keep(p, t->u.s)) return true;
  p->failed = true;
  return false;
}

/* The body of a string from `s` on, up to its end or the next interpolation. */
static int string_body(parser *p, token *t, const unsigned char *s, uint32_t quote, bool triple, bool first) {
  p->chars.len = 0;
  for (;;) {
    const unsigned char *run = s;
    while (s < p->end && *s != '\\' && *s != '{' && *s != '"' && *s != '\r' && (*s != '\n' || triple)) s++;
    text_add(&p->chars, (const char *)run, (size_t)(s - run));
    if (s < p->end && *s == '\r') { /* lines of a text end with \n, however those of its file do */
      if (s[1] != '\n') text_add(&p->chars, "\r", 1);
      s++;
      continue;
    }
    if (s >= p->end || *s == '\n') return string_open(p, quote, triple);
    if (*s == '\\') {
      s = escape(p, s);
      if (!s) return LEX_FAILED;
    } else if (*s == '{') {
      p->at = s + 1;
      t->end = offset(p, p->at);
      if (!open_bracket(p, triple ? BRACKET_TEXT : BRACKET_STRING, offset(p, s), quote)) return LEX_FAILED;
      if (!take_text(p, t, false)) return LEX_FAILED;
      return first ? T_SBEG : T_SMID;
    } else if (!triple || (s[1] == '"' && s[2] == '"')) {
      p->at = s + (triple ? 3 : 1);
      t->end = offset(p, p->at);
      if (!take_text(p, t, first)) return LEX_FAILED;
      return first ? T_STRING : T_SEND;
    } else {
      text_add(&p->chars, "\"", 1);
      s++;
    }
  }
}

static int format_spec(parser *p, token *t, const unsigned char *s) {
  const unsigned char *begin = s;
  while (s < p->end && *s != '}' && *s != '{' && *s != '"' && *s != '\n') s++;
  p->at = s;
  t->end = offset(p, s);
  if (*s != '}') {
    parser_fail(p, E_syntax, t->start, t->end, "the format after ':' ends with '}' and holds neither '{' nor '\"'");
    return LEX_FAILED;
  }
  p->chars.len = 0;
  text_add(&p->chars, (const char *)begin, (size_t)(s - begin));
  return take_text(p, t, false) ? T_FMT : LEX_FAILED;
}

/* ---- numbers ---- */

/* The characters from `s` on that names can have; skip_name takes all that is not ASCII for one. */
static const unsigned char *skip_letters(const unsigned char *s) {
  const unsigned char *YYCURSOR = s, *YYMARKER;
  for (;;) {
    s = YYCURSOR;
    /*!re2c
      re2c:define:YYCTYPE = "unsigned char";
      re2c:yyfill:enable = 0;
      L | Nl | Nd | Mn | Mc | [_] { continue; }
      *                           { return s; }
    */
  }
}

/* A number ends at `s`; what touches it must not be a part of a word. (A character that has no meaning gets an error of its own.) */
static bool number_ends(parser *p, token *t, const unsigned char *s) {
  const unsigned char *begin = (const unsigned char *)p->text->text + t->start, *e = skip_letters(s);
  if (e == s) return true;
  uint32_t from = t->start, to = offset(p, e);
  int len = (int)(s - begin), rest = (int)(e - s);
  if (len == 1 && *begin == '0' && rest > 1 && strchr("bBoOX", *s) && is_digit(s[1]))
    parser_fail(p, E_number_form, from, to, "numbers are decimal or, like 0xff, hexadecimal");
  else if (*s == '_')
    parser_fail(p, E_number_form, from, to, "'_' stands between two digits of a number, as in 1_000_000");
  else if (rest == 1 && strchr("jJi", *s))
    parser_fail(p, E_number_form, from, to, "there are no complex numbers; keep real and imaginary parts");
  else if (rest == 1 && len <= LONGEST_QUOTE && strchr("lLfFuU", *s))
    parser_fail(p, E_number_form, from, to, "numbers have no suffix; write %.*s", len, (const char *)begin);
  else if ((*s | 32) == 'e' && (rest == 1 || is_digit(s[1])))
    parser_fail(p, E_number_form, from, to, "an exponent is written as in 1e-3");
  else if (len <= LONGEST_QUOTE && rest <= LONGEST_QUOTE)
    parser_fail(p, E_number_form, from, to, "a number touches a name here; a product is written %.*s * %.*s", len,
                (const char *)begin, rest, (const char *)s);
  else
    parser_fail(p, E_number_form, from, to, "a number touches a name here");
  return false;
}

static int integer(parser *p, token *t, const unsigned char *s) {
  const unsigned char *begin = s;
  uint64_t value = 0;
  bool hex = s[0] == '0' && s[1] == 'x', over = false;
  int len = (int)(p->at - begin), digits = 0;
  if (!hex && *begin == '0' && len > 1)
    return parser_fail(p, E_number_form, t->start, t->end, "a decimal number does not begin with 0");
  for (s += hex ? 2 : 0; s < p->at; s++) {
    if (*s == '_') {
      if (hex && (!in_name(s[1]) || s[1] == '_' || !digits))
        return parser_fail(p, E_number_form, t->start, t->end, "'_' stands between two digits of a number");
      continue;
    }
    unsigned digit = is_digit(*s) ? *s - '0' : (*s | 32) - 'a' + 10;
    over |= __builtin_mul_overflow(value, hex ? 16u : 10u, &value) || __builtin_add_overflow(value, digit, &value);
    digits++;
  }
  if (!digits) return parser_fail(p, E_number_form, t->start, t->end, "a hexadecimal number is written as in 0xff");
  /* The most negative integer has no positive counterpart: its digits are taken behind a unary minus only, where
   * build_unary finds the finished value. */
  bool lowest = value == (uint64_t)INT64_MAX + 1 && p->last == T_MINUS &&
                (p->before == T_RETURN || !lexer_can_end(p->before));
  if (over || (value > INT64_MAX && !lowest)) {
    if (!hex && len <= LONGEST_QUOTE && !memchr(begin, '_', (size_t)len))
      return parser_fail(p, E_number_form, t->start, t->end,
                         "integers have 64 bits, up to 9223372036854775807; as a float this is %.*s.0", len,
                         (const char *)begin);
    return parser_fail(p, E_number_form, t->start, t->end, "integers have 64 bits, up to 9223372036854775807");
  }
  t->u.i = (int64_t)value;
  return number_ends(p, t, p->at) ? T_INT : LEX_FAILED;
}

static int floating(parser *p, token *t, const unsigned char *s) {
  p->chars.len = 0;
  for (; s < p->at; s++)
    if (*s != '_') text_add(&p->chars, (const char *)s, 1);
  if (p->chars.failed) {
    raise_memory(p->vm);
    p->failed = true;
    return LEX_FAILED;
  }
  if (!number_ends(p, t, p->at)) return LEX_FAILED;
  if (!float_parse(p->chars.text, p->chars.len, &t->u.f))
    return parser_fail(p, E_number_form, t->start, t->end, "a float is written as in 1.5 or 1e-3");
  if (t->u.f > 0 && t->u.f - t->u.f != 0)
    return parser_fail(p, E_number_form, t->start, t->end, "too large for a float (at most 1.8e308); infinity is inf");
  return T_FLOAT;
}

/* `2.` and `2.e5`: a point behind an integer that is no field, method or range. */
static bool point_ends(parser *p, token *t) {
  const unsigned char *s = p->at, *e = s + 2;
  if (s[0] != '.' || s[1] == '.') return true;
  int len = (int)(t->end - t->start);
  const char *digits = p->text->text + t->start;
  if ((s[1] | 32) == 'e') {
    if (*e == '-' || *e == '+') e++;
    if (!is_digit(*e)) return true;
    while (is_digit(*e)) e++;
    if (in_name(*e)) return true;
  } else if (begins_name(s[1])) {
    return true;
  } else {
    e = s + 1;
  }
  if (len > LONGEST_QUOTE) len = 1, digits = "2";
  parser_fail(p, E_number_form, t->start, offset(p, e), "a number does not end with its point; write %.*s.0%.*s", len,
              digits, (int)(e - s - 1), (const char *)s + 1);
  return false;
}

/* ---- characters of other languages ---- */

/* What `'text'` or a lone quote should be. */
static int single_quote(parser *p, token *t, const unsigned char *s) {
  if (lexer_can_end(p->last) && p->last_token.end == t->start)
    return parser_fail(p, E_slip, t->start, t->end, "a transposed matrix is written A.T; strings have double quotes");
  const unsigned char *e = s;
  while (e < p->end && *e != '\'' && *e != '\n') e++;
  if (*e == '\'' && e - s <= LONGEST_QUOTE && !memchr(s, '"', (size_t)(e - s)))
    return parser_fail(p, E_slip, t->start, offset(p, e + 1), "strings have double quotes: \"%.*s\"", (int)(e - s),
                       (const char *)s);
  return parser_fail(p, E_slip, t->start, t->end, "strings have double quotes");
}

static int strange(parser *p, token *t, const unsigned char *s) {
  static const struct {
    uint32_t code;
    const char *hint;
  } known[] = {
      {0xd7, "write *"},      {0xf7, "write /"},       {0x2212, "write -"},    {0x2013, "write -"},
      {0x2264, "write <="},   {0x2265, "write >="},    {0x2260, "write !="},   {0x221e, "write inf"},
      {0x201c, "write \""},   {0x201d, "write \""},    {0x2018, "write \""},   {0x2019, "write \""},
      {0xa0, "write a plain blank"},                   {0x2026, "write ..."},  {0x2227, "write and"},
      {0x2228, "write or"},   {0xac, "write not"},     {0x2192, "write ->"},   {0xb2, "write ** 2"},
      {0x3bb, "write fn"},    {0xfeff, "remove it"},   {0x200b, "remove it"},  {0xab, "write \""},
      {0xbb, "write \""},     {0x3000, "write a plain blank"},                 {0x3001, "write ,"},
      {0x201e, "write \""},   {0xff01, "write not"},   {0xff08, "write ("},    {0xff09, "write )"},
      {0xff0b, "write +"},    {0xff0c, "write ,"},     {0xff0d, "write -"},    {0xff0f, "write /"},
      {0xff1a, "write :"},    {0xff1b, "write ;"},     {0xff1d, "write ="},    {0xff1c, "write <"},
      {0xff1e, "write >"},    {0xff3b, "write ["},     {0xff3d, "write ]"},    {0xff5b, "write {"},
      {0xff5d, "write }"},
  };
  uint32_t code;
  int len = utf8_decode((const char *)s, &code);
  const char *hint = NULL;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (known[i].code == code) hint = known[i].hint;
  uint32_t end = t->start + (uint32_t)len;
  if (hint) return parser_fail(p, E_slip, t->start, end, "the character U+%04X has no meaning here; %s", code, hint);
  if (code > 32 && code != 127) {
    bool shown = code < 127 || utf8_width(code) > 0;
    return parser_fail(p, E_syntax, t->start, end, "the character %s%.*s%s (U+%04X) has no meaning here", shown ? "'" : "",
                       shown ? len : 0, (const char *)s, shown ? "'" : "", code);
  }
  return parser_fail(p, E_syntax, t->start, end, "a control character (U+%04X) has no meaning here", code);
}

/* ++ and --: behind a name this is meant as a statement, but where another operand follows. */
static int increment(parser *p, token *t, char sign) {
  int len = (int)(p->last_token.end - p->last_token.start);
  if (sign == '+' && (p->last == T_STRING || p->last == T_SEND || p->last == T_RP))
    return parser_fail(p, E_slip, t->start, t->end, "strings and lists are joined by +; append(xs, x) adds one item");
  const char *next = p->text->text + t->end;
  next += strspn(next, " \t");
  bool operand = *next == '(' || *next == '[' || *next == '"' || *next == '=' || *next == '_' ||
                 (*next >= '0' && *next <= '9') || ((*next | 32) >= 'a' && (*next | 32) <= 'z');
  if (sign == '+' && operand && (p->last == T_NAME || p->last == T_RB))
    return parser_fail(p, E_slip, t->start, t->end,
                       "there is no ++; + adds numbers and joins strings and lists, append(xs, x) adds one item");
  if (p->last == T_NAME && len <= LONGEST_QUOTE)
    return parser_fail(p, E_slip, t->start, t->end, "there is no %c%c; write %.*s %c= 1", sign, sign, len,
                       p->text->text + p->last_token.start, sign);
  return parser_fail(p, E_slip, t->start, t->end, "there is no %c%c; write x %c= 1 on a line of its own", sign, sign, sign);
}

static int sign(parser *p, token *t, int terminal, ast_op op, const unsigned char *rest) {
  char c = terminal == T_MINUS ? '-' : '+';
  if (at_statement(p) && (*rest == ' ' || *rest == '\t' || *rest == '\r' || *rest == '\n'))
    return parser_fail(p, E_slip, t->start, t->end,
                       "a statement cannot begin with '%c' and a blank: to continue the line above, end that line with "
                       "'%c' or use parentheses%s",
                       c, c, terminal == T_MINUS ? "; to negate, write -x" : "");
  t->u.i = op;
  return terminal;
}

/* ---- the tokens ---- */

#define OPERATOR(terminal, op) return t->u.i = AST_OP_##op, terminal
/* Keywords are names behind a point. */
#define KEYWORD(terminal)                                                                                              \
  if (p->last == T_DOT) goto name;                                                                                     \
  return terminal
#define SLIP(...) return parser_fail(p, E_slip, t->start, t->end, __VA_ARGS__)

/* One token; p->at is behind it. */
static int scan(parser *p, token *t) {
  const unsigned char *YYCURSOR, *YYMARKER, *start;
  const bracket *in;
again:
  start = YYCURSOR = p->at;
  in = innermost(p);
  t->start = offset(p, start);
/* Accepts the text up to YYCURSOR. */
#define TAKE() (p->at = YYCURSOR, t->end = offset(p, YYCURSOR))
  /*!re2c
    re2c:define:YYCTYPE = "unsigned char";
    re2c:yyfill:enable = 0;
    digits   = [0-9] ("_"? [0-9])*;
    exponent = [eE] [+-]? [0-9]+;
    letter   = L | Nl | [_];
    word     = letter (letter | Nd | Mn | Mc)*;

    [ \t\r]+       { TAKE(); goto again; }
    "#" [^\n\x00]* { TAKE(); goto again; }
    "\n"           {
      TAKE();
      if (p->lines_open) {
        for (uint32_t i = p->depth; i-- > 0;)
          if (p->brackets[i].kind == BRACKET_STRING) return string_open(p, p->brackets[i].string, false);
      }
      if (!lexer_can_end(p->last)) goto again;
      if (in && in->kind != BRACKET_BLOCK && in->kind != BRACKET_RECORD) goto again;
      if (continues(p, YYCURSOR)) goto again;
      return T_NL;
    }
    "\x00"         { return t->end = t->start, LEX_END; }

    "0x" [0-9a-fA-F_]*      { TAKE(); return integer(p, t, start); }
    digits                  { TAKE(); return point_ends(p, t) ? integer(p, t, start) : LEX_FAILED; }
    digits "." digits exponent? | digits exponent { TAKE(); return floating(p, t, start); }
    "." digits exponent?    {
      TAKE();
      if (lexer_can_end(p->last) && p->last_token.end == t->start)
        return parser_fail(p, E_syntax, t->start, t->end, "a field is a name; items are taken with brackets, as in x[0]");
      bool quote = t->end - t->start <= LONGEST_QUOTE;
      return parser_fail(p, E_number_form, t->start, t->end, "a number does not begin with its point; write 0%.*s",
                         quote ? (int)(t->end - t->start) : 2, quote ? (const char *)start : ".5");
    }

    "and"      { TAKE(); KEYWORD(T_AND); }
    "as"       { TAKE(); KEYWORD(T_AS); }
    "break"    { TAKE(); KEYWORD(T_BREAK); }
    "catch"    { TAKE(); KEYWORD(T_CATCH); }
    "continue" { TAKE(); KEYWORD(T_CONTINUE); }
    "else"     { TAKE(); KEYWORD(T_ELSE); }
    "false"    { TAKE(); KEYWORD(T_FALSE); }
    "fn"       { TAKE(); KEYWORD(T_FN); }
    "for"      { TAKE(); KEYWORD(T_FOR); }
    "if"       { TAKE(); KEYWORD(T_IF); }
    "import"   { TAKE(); KEYWORD(T_IMPORT); }
    "in"       { TAKE(); KEYWORD(T_IN); }
    "let"      { TAKE(); KEYWORD(T_LET); }
    "nil"      { TAKE(); KEYWORD(T_NIL); }
    "not"      { TAKE(); KEYWORD(T_NOT); }
    "or"       { TAKE(); KEYWORD(T_OR); }
    "return"   { TAKE(); KEYWORD(T_RETURN); }
    "true"     { TAKE(); KEYWORD(T_TRUE); }
    "try"      { TAKE(); KEYWORD(T_TRY); }
    "while"    { TAKE(); KEYWORD(T_WHILE); }
    "inf"      { TAKE(); t->u.f = __builtin_inf(); KEYWORD(T_FLOAT); }
    "nan"      { TAKE(); t->u.f = __builtin_nan(""); KEYWORD(T_FLOAT); }
    "pi"       { TAKE(); t->u.f = 3.14159265358979323846; KEYWORD(T_FLOAT); }
    "None" | "null" { TAKE(); if (p->last == T_DOT || *skip_blanks(YYCURSOR) == ':') goto name; SLIP(in && in->kind == BRACKET_SQUARE ? "the value of nothing is written nil, a new axis new: x[:, new]" : "the value of nothing is written nil"); }
    "True"     { TAKE(); if (p->last == T_DOT || *skip_blanks(YYCURSOR) == ':') goto name; SLIP("write true"); }
    "False"    { TAKE(); if (p->last == T_DOT || *skip_blanks(YYCURSOR) == ':') goto name; SLIP("write false"); }
    word       {
      TAKE();
    name:
      t->u.s = str_intern(p->vm, (const char *)start, (size_t)(p->at - start));
      if (t->u.s && parser_keep(p, t->u.s)) return T_NAME;
      p->failed = true;
      return LEX_FAILED;
    }

    "\"\"\""   { TAKE(); return string_body(p, t, YYCURSOR, t->start, true, true); }
    "\""       { TAKE(); return string_body(p, t, YYCURSOR, t->start, false, true); }

    "("        { TAKE(); return open_bracket(p, BRACKET_ROUND, t->start, 0) ? T_LP : LEX_FAILED; }
    "["        { TAKE(); return open_bracket(p, BRACKET_SQUARE, t->start, 0) ? T_LB : LEX_FAILED; }
    "{"        { TAKE(); return open_brace(p, t->start, YYCURSOR); }
    ")"        { TAKE(); close_bracket(p, BRACKET_ROUND, BRACKET_ROUND); return T_RP; }
    "]"        { TAKE(); close_bracket(p, BRACKET_SQUARE, BRACKET_SQUARE); return T_RB; }
    "}"        {
      TAKE();
      if (in && (in->kind == BRACKET_STRING || in->kind == BRACKET_TEXT)) {
        bool triple = in->kind == BRACKET_TEXT;
        uint32_t quote = in->string;
        if (p->last == T_SBEG || p->last == T_SMID)
          SLIP("a value stands between these braces; braces as text are written \\{\\}");
        p->depth--;
        if (!triple) p->lines_open--;
        return string_body(p, t, YYCURSOR, quote, triple, false);
      }
      close_bracket(p, BRACKET_BLOCK, BRACKET_RECORD);
      return T_RC;
    }
    ":"        {
      TAKE();
      if (in && (in->kind == BRACKET_STRING || in->kind == BRACKET_TEXT)) return format_spec(p, t, YYCURSOR);
      return T_COLON;
    }
    ","        { TAKE(); return T_COMMA; }
    ";"        { TAKE(); return T_SEMI; }
    "."        { TAKE(); return T_DOT; }
    ".."       { TAKE(); return T_DOTDOT; }
    "..."      { TAKE(); return T_ELLIPSIS; }
    "->"       { TAKE(); return T_ARROW; }
    "="        { TAKE(); return T_ASSIGN; }
    "+="       { TAKE(); OPERATOR(T_OPASSIGN, add); }
    "-="       { TAKE(); OPERATOR(T_OPASSIGN, sub); }
    "*="       { TAKE(); OPERATOR(T_OPASSIGN, mul); }
    "/="       { TAKE(); OPERATOR(T_OPASSIGN, div); }
    "//="      { TAKE(); OPERATOR(T_OPASSIGN, floordiv); }
    "%="       { TAKE(); OPERATOR(T_OPASSIGN, mod); }
    "%*%"      { TAKE(); SLIP("a product of matrices is written x @ y"); }
    "%in%"     { TAKE(); SLIP("there is no operator in: write contains(xs, x), of a record has(r, \"name\")"); }
    "%%"       { TAKE(); SLIP("a remainder is written a %% b"); }
    "%/%"      { TAKE(); SLIP("an integer quotient is written a // b"); }
    "**="      { TAKE(); OPERATOR(T_OPASSIGN, pow); }
    "=="       { TAKE(); OPERATOR(T_EQ, eq); }
    "!="       { TAKE(); OPERATOR(T_NE, ne); }
    "<"        { TAKE(); OPERATOR(T_LT, lt); }
    "<="       { TAKE(); OPERATOR(T_LE, le); }
    "<-" / [ \t] { TAKE(); SLIP("a new variable is written let x = 1, an assignment x = 1, a comparison x < -1"); }
    ">"        { TAKE(); OPERATOR(T_GT, gt); }
    ">="       { TAKE(); OPERATOR(T_GE, ge); }
    "|"        { TAKE(); OPERATOR(T_BOR, bitor); }
    "&"        { TAKE(); OPERATOR(T_BAND, bitand); }
    "~"        { TAKE(); OPERATOR(T_TILDE, invert); }
    "*"        { TAKE(); OPERATOR(T_STAR, mul); }
    "/"        { TAKE(); OPERATOR(T_SLASH, div); }
    "//"       { TAKE(); if (at_statement(p)) SLIP("a comment begins with #"); OPERATOR(T_DSLASH, floordiv); }
    "%"        { TAKE(); OPERATOR(T_PERCENT, mod); }
    "@"        { TAKE(); OPERATOR(T_AT, matmul); }
    "**"       { TAKE(); OPERATOR(T_POW, pow); }
    "+"        { TAKE(); return sign(p, t, T_PLUS, AST_OP_add, YYCURSOR); }
    "-"        { TAKE(); return sign(p, t, T_MINUS, AST_OP_sub, YYCURSOR); }
    "--"       {
      const unsigned char *next = skip_blanks(YYCURSOR);
      TAKE();
      if (lexer_can_end(p->last) && (*next == '\n' || *next == ';' || *next == ')' || *next == '}' || next == p->end))
        return increment(p, t, '-');
      YYCURSOR--;
      TAKE();
      OPERATOR(T_MINUS, sub);
    }
    "++"       { TAKE(); return increment(p, t, '+'); }

    "&&"       { TAKE(); SLIP("write 'and' (for arrays, elementwise: &)"); }
    "||"       { TAKE(); SLIP("write 'or' (for arrays, elementwise: |)"); }
    "!"        {
      TAKE();
      if (in && (in->kind == BRACKET_STRING || in->kind == BRACKET_TEXT) && lexer_can_end(p->last))
        SLIP("a value in a string has no conversion: \"{repr(x)}\" shows it as it is written, \"{x:>8}\" formats it");
      if (p->last == T_NAME && p->last_token.end == t->start && *YYCURSOR == '(')
        SLIP("names have no '!': functions give new values, as in xs = append(xs, v), xs = sort(xs)");
      SLIP("write 'not' (for arrays, elementwise: ~)");
    }
    "?" | "?." | "??" {
      TAKE();
      if (YYCURSOR - start == 2)
        SLIP(start[1] == '.' ? "a field that may be missing is read by get(r, \"name\", default)"
                             : "a default for nil is written if a == nil { b } else { a }");
      const unsigned char *next = skip_blanks(YYCURSOR);
      if (*next == 0 || *next == '\n') SLIP("at the prompt ?name explains a name; a choice is written if c { a } else { b }");
      SLIP("a choice is written if c { a } else { b }");
    }
    "'"        { TAKE(); return single_quote(p, t, YYCURSOR); }
    "^"        { TAKE(); SLIP("a power is written a ** b, exclusive or xor(a, b)"); }
    "^="       { TAKE(); SLIP("write x = xor(x, y), or x **= y for a power"); }
    "==="      { TAKE(); SLIP("write =="); }
    "!==" | "<>" | "~=" { TAKE(); SLIP("write !="); }
    "=<"       { TAKE(); SLIP("write <="); }
    "=>"       {
      TAKE();
      if (p->last == T_RP && lexer_in_header(p, t->start)) SLIP("a short body stands behind =: fn f(x) = x + 1");
      SLIP("a comparison is written >=, a function fn(x) x + 1, a field of a record {a: 1}");
    }
    ":="       { TAKE(); SLIP("a new variable is written let x = 1, an assignment x = 1"); }
    "<<" | "<<=" { TAKE(); SLIP("a shift is written shl(a, n)"); }
    ">>" | ">>=" | ">>>" { TAKE(); SLIP("a shift is written shr(a, n)"); }
    "|>"       { TAKE(); SLIP("a chain of calls is written x.f().g()"); }
    "@="       { TAKE(); SLIP("write x = x @ y"); }
    "|="       { TAKE(); SLIP("write x = x | y"); }
    "&="       { TAKE(); SLIP("write x = x & y"); }
    "..="      { TAKE(); SLIP("a range ends before its stop: a..b + 1 includes b"); }
    "/*"       { TAKE(); SLIP("a comment begins with # and ends with its line"); }
    "$"        { TAKE(); SLIP("a value in a string is written \"{x}\"; names have no $"); }
    "`"        { TAKE(); SLIP("strings have double quotes"); }
    "\\"       {
      TAKE();
      const unsigned char *next = skip_blanks(YYCURSOR);
      if (*next == '\n' || *next == '\r' || next == p->end)
        SLIP("a line goes on inside brackets, or when it ends with an operator");
      if (lexer_can_end(p->last))
        SLIP("there is no operator \\; `quern help linalg` has solve(a, b) for a system of equations, a quotient is b / a");
      SLIP("a function as a value is written fn(x) x + 1");
    }
    *          { TAKE(); return strange(p, t, start); }
  */
}

int lexer_next(parser *p, token *t) {
  if (p->last == 0 && p->at == (const unsigned char *)p->text->text && p->end - p->at >= 3 &&
      !memcmp(p->at, "\xef\xbb\xbf", 3))
    p->at += 3; /* a byte order mark */
  *t = (token){0};
  return scan(p, t);
}
