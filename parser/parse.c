/* The driver, which pushes tokens from the lexer into Lemon's automaton; and the words of syntax errors.
 *
 * Before a token is pushed, the automaton is asked whether it would take it (grammar_accepts). If not, the parser's stack is still what it
 * was after the last good token, so asking the same about every terminal gives all that could have stood here. The message names these in a
 * few groups ("an expression", "the end of the line"), unless the situation is a known slip, which has a message of its own (slip_at,
 * slips.def).
 *
 * A text at the prompt is incomplete if it ends while a bracket is open or behind a token that cannot end a statement. The lexer knows
 * both, so the grammar has no part in that.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "parser/state.h"

int parser_fail(parser *p, error_id id, uint32_t start, uint32_t end, const char *format, ...) {
  char message[400];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  p->failed = true;
  (void)raise_error(p->vm, id, (span){p->source, start, end}, "%s", message);
  return LEX_FAILED;
}

bool parser_keep(parser *p, qn_str *s) {
  ast_module *m = p->module;
  if (!mem_grow(p->vm, (void **)&m->strings, &m->strings_cap, (size_t)m->nstrings + 1, sizeof *m->strings)) {
    value_release(p->vm, value_obj(TAG_STR, s));
    return false;
  }
  m->strings[m->nstrings++] = s;
  return true;
}

/* ---- what could have stood here ---- */

static bool accepts(const parser *p, int terminal) { return grammar_accepts(p->engine, terminal); }

/* Does the place stand behind a complete operand, so that an operator could follow? */
static bool after_operand(const parser *p) { return accepts(p, T_PLUS); }
/* Could an expression begin here? */
static bool before_operand(const parser *p) { return accepts(p, T_INT); }

static void describe_expected(const parser *p, text_buf *out) {
  /* Tokens that are named one by one, unless one of the groups before covers them. */
  static const struct {
    int terminal;
    const char *words;
  } single[] = {
      {T_LC, "'{'"},  {T_LP, "'('"},        {T_COMMA, "','"},  {T_RP, "')'"},    {T_RB, "']'"},
      {T_RC, "'}'"},  {T_SEND, "'}'"},      {T_ASSIGN, "'='"}, {T_COLON, "':'"}, {T_ARROW, "'->'"},
      {T_IN, "'in'"}, {T_CATCH, "'catch'"}, {T_AS, "'as'"},
  };
  const char *words[sizeof single / sizeof *single + 4];
  int n = 0;
  bool after = after_operand(p), before = before_operand(p), name = accepts(p, T_NAME),
       pattern = name && !before && accepts(p, T_LP) && accepts(p, T_LC);
  /* in a record, a newline can only stand before the end */
  bool record = p->depth && p->brackets[p->depth - 1].kind == BRACKET_RECORD;
  bool statement = accepts(p, T_LET), line = accepts(p, T_NL) && !record, type = name && !before && accepts(p, T_FN);
  if (statement)
    words[n++] = "a statement";
  else if (before)
    words[n++] = "an expression";
  else if (type)
    words[n++] = "a type";
  else if (pattern)
    words[n++] = "a name or a pattern";
  else if (name)
    words[n++] = "a name";
  if (!before && accepts(p, T_STRING)) words[n++] = "a string";
  if (after && line) words[n++] = "an operator";
  for (size_t i = 0; i < sizeof single / sizeof *single; i++) {
    int t = single[i].terminal;
    if (!accepts(p, t)) continue;
    if (t == T_LC && (pattern || before)) continue;
    if (t == T_LP && (before || after || type || pattern)) continue;
    if (t == T_ASSIGN && after) continue;                    /* any expression could be the target of an assignment */
    if (t == T_COLON && after && accepts(p, T_RP)) continue; /* f(name: ...) */
    if (t == T_COLON && before) continue;                    /* a slice */
    words[n++] = single[i].words;
  }
  if (line && !statement) words[n++] = "the end of the line";
  if (!n) words[n++] = "something else";
  for (int i = 0; i < n; i++) {
    if (i) text_adds(out, i + 1 < n ? ", " : " or ");
    text_adds(out, words[i]);
  }
}

static void describe_found(const parser *p, int kind, token t, text_buf *out) {
  uint32_t len = t.end - t.start;
  switch (kind) {
  case LEX_END: text_adds(out, "the end of the text"); return;
  case T_NL: text_adds(out, "the end of the line"); return;
  case T_STRING:
  case T_SBEG: text_adds(out, "a string"); return;
  case T_SMID:
  case T_SEND: text_adds(out, "'}'"); return;
  case T_FMT: text_adds(out, "':'"); return;
  default: break;
  }
  if (len > LONGEST_QUOTE) {
    text_adds(out, kind == T_NAME ? "a name" : "a number");
    return;
  }
  text_adds(out, "'");
  text_add(out, p->text->text + t.start, len);
  text_adds(out, "'");
}

/* ---- slips: what other languages write ---- */

static const struct {
  const char *words; /* one or several words, with blanks between them */
  int where;
  const char *hint;
} foreign_words[] = {
#define SYNTAX FOREIGN_SYNTAX
#define NAME FOREIGN_NAME
#define MEMBER FOREIGN_MEMBER
#define KEYWORD FOREIGN_KEYWORD
#define TYPE FOREIGN_TYPE
#define CALL FOREIGN_CALL
#define IMPORT FOREIGN_IMPORT
#define ARRAY FOREIGN_ARRAY
#define FOREIGN(words, where, hint) {words, where, hint},
#include "parser/foreign.def"
#undef SYNTAX
#undef NAME
#undef MEMBER
#undef KEYWORD
#undef TYPE
#undef CALL
#undef IMPORT
#undef ARRAY
};

const char *foreign_hint(foreign_place where, const char *word, size_t len) {
  for (size_t i = 0; i < sizeof foreign_words / sizeof *foreign_words; i++) {
    if (!(foreign_words[i].where & where)) continue;
    for (const char *s = foreign_words[i].words; *s; s += strspn(s, " ")) {
      size_t n = strcspn(s, " ");
      if (n == len && memcmp(s, word, len) == 0) return foreign_words[i].hint;
      s += n;
    }
  }
  return NULL;
}

/* Does a token stand on another line than the one before it, but inside of brackets? Then one of these was probably not closed. */
static bool line_inside(const parser *p, token t) {
  if (!p->depth || p->brackets[p->depth - 1].kind == BRACKET_BLOCK) return false;
  return p->last == T_NL || memchr(p->text->text + p->last_token.end, '\n', t.start - p->last_token.end);
}

static const char *foreign_word(const parser *p, int kind, token t) {
  return kind == T_NAME ? foreign_hint(FOREIGN_SYNTAX, p->text->text + t.start, t.end - t.start) : NULL;
}

static bool among(int kind, const int *kinds) {
  while (*kinds && *kinds != kind) kinds++;
  return *kinds != 0;
}
#define AMONG(kind, ...) among(kind, (const int[]){__VA_ARGS__, 0})

/* Could a token begin the argument of a call that is written without parentheses? */
static bool begins_value(int kind) {
  return AMONG(kind, T_NAME, T_INT, T_FLOAT, T_STRING, T_SBEG, T_TRUE, T_FALSE, T_NIL, T_FN, T_NOT);
}

static bool is_comparison(int kind) { return AMONG(kind, T_EQ, T_NE, T_LT, T_LE, T_GT, T_GE); }

static bool is_operator(int kind) {
  return is_comparison(kind) ||
         AMONG(kind, T_PLUS, T_MINUS, T_STAR, T_SLASH, T_DSLASH, T_PERCENT, T_POW, T_BAND, T_BOR);
}

/* Is it an operator that cannot begin a statement? If it does, the line above was meant to go on. */
static bool goes_on(int kind) {
  return AMONG(kind, T_STAR, T_SLASH, T_PERCENT, T_AT, T_POW, T_AND, T_OR, T_EQ, T_BOR, T_BAND, T_DOTDOT);
}

static bool is_keyword(const parser *p, int kind, token t) {
  unsigned char c = (unsigned char)p->text->text[t.start];
  return kind > 0 && kind != T_NAME && c >= 'a' && c <= 'z';
}

static bool in_follows(const unsigned char *s) {
  while (*s == ' ' || *s == '\t') s++;
  return s[0] == 'i' && s[1] == 'n' && (s[2] == ' ' || s[2] == '\t');
}

/* Does one of two characters stand on the line before this place? */
static bool line_has(const parser *p, token t, char a, char b) {
  for (const char *s = lexer_line(p, t.start); s < p->text->text + t.start; s++)
    if (*s == a || *s == b) return true;
  return false;
}

/* Do exactly three digits follow the comma directly, as in 1,000? */
static bool thousands(const parser *p, token t) {
  const char *s = p->text->text + t.end;
  return p->last == T_INT && p->last_token.end == t.start && strspn(s, "0123456789") == 3;
}

/* Does this word stand before the innermost open bracket? */
static bool opened_by(const parser *p, const char *word) {
  if (!p->depth) return false;
  const char *s = p->text->text, *e = s + p->brackets[p->depth - 1].at;
  size_t n = strlen(word);
  while (e > s && (e[-1] == ' ' || e[-1] == '\t')) e--;
  return (size_t)(e - s) >= n && !strncmp(e - n, word, n);
}

/* Does the innermost open bracket begin an array literal, rather than an index? */
static bool literal_begins(const parser *p) {
  uint32_t at = p->brackets[p->depth - 1].at;
  char c = at ? p->text->text[at - 1] : 0;
  return c != ')' && c != ']' && c != '_' && !(c >= '0' && c <= '9') && !((c | 32) >= 'a' && (c | 32) <= 'z');
}

/* The word function, func or lambda, if it stands before the parentheses that have just been closed; else NULL. */
static const char *before_parens(const parser *p) {
  static const char *const words[] = {"function", "func", "lambda"};
  const char *s = p->text->text + p->last_token.start;
  for (int depth = 0; s > p->text->text; s--) {
    depth += (*s == ')') - (*s == '(');
    if (depth == 0) break;
  }
  while (s > p->text->text && s[-1] == ' ') s--;
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    ptrdiff_t n = (ptrdiff_t)strlen(words[i]);
    if (s - p->text->text >= n && !memcmp(s - n, words[i], (size_t)n)) return s - n;
  }
  return NULL;
}

static const char LUA_LENGTH[] = "# begins a comment; the number of items is len(xs)";

/* Does a comment that touches a name or text stand before this place, on the line of the last good token, as in `n = #xs`? */
static bool lua_length(const parser *p, token t) {
  if (p->last == T_NL || p->last == T_SEMI || p->last == T_LC) return false;
  const char *s = p->text->text + p->last_token.end, *mark = memchr(s, '#', t.start - p->last_token.end);
  char c = mark && !memchr(s, '\n', (size_t)(mark - s)) ? mark[1] : 0;
  return ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '"';
}

/* Does a statement name = value or name += value go on like this behind its name? */
static bool assigns(const char *rest) {
  rest += strspn(rest, "+-*/%") <= 2 ? strspn(rest, "+-*/%") : 0;
  return rest[0] == '=' && rest[1] != '=';
}

/* What slips are recognised by: the token that is not good, and what could stand in its place. */
typedef struct slip {
  const parser *p;
  int kind;
  token t;
  const unsigned char *rest; /* the text behind the token */
  bool after, before;        /* it stands behind an operand; an operand is expected */
  bool body, statement;      /* a body is expected; a statement is expected */
  bracket_kind in;
  error_id id; /* the error that its message gets */
} slip;

/* For the '{' of what was meant to be a value: a set, a record in another notation, a block. NULL if it is none of these. */
static const char *slip_of_value_brace(slip *s) {
  const char *at = (const char *)lexer_skip(s->p, s->rest), *e = at;
  if (!strncmp(at, "...", 3) || !strncmp(at, "**", 2)) return "what is spread begins with two points: {..r, b: 2}";
  if (*at >= '0' && *at <= '9') {
    e += strspn(e, "0123456789");
    e += strspn(e, " \t");
    if (*e == ':') return "fields of records have names or texts: {\"1\": 2}, r[\"1\"]";
    if (*e == ',' || *e == '}') return "there are no sets: lists are written (1, 2), records {a: 1}";
  }
  e = at;
  while ((*e >= 'a' && *e <= 'z') || (*e >= 'A' && *e <= 'Z') || *e == '_' || (*e >= '0' && *e <= '9')) e++;
  if (e > at) {
    e += strspn(e, " \t");
    if (e[0] == '=' && e[1] != '=') return "a field of a record is written name: value";
    if (*e == ',' || *e == '}') return s->id = E_syntax, "{a, b} is a pattern; a record is written {a: a, b: b}";
  }
  return s->id = E_syntax, "a block stands only behind if, else, for, while, try, catch and fn; a record is {a: 1}";
}

/* What to write instead of the word of another language that stands here; NULL if it is none. */
static const char *word_hint(const char *word) { return foreign_hint(FOREIGN_SYNTAX, word, strcspn(word, "( \t")); }

/* For the point in `import a.b`. */
static const char *import_hint(const parser *p) {
  const token *t = &p->last_token;
  const char *hint = foreign_hint(FOREIGN_IMPORT, p->text->text + t->start, t->end - t->start);
  return hint ? hint : "a file in a folder is imported by import \"lib/util.qn\" as util";
}

/* Is a brace, which counts among the open brackets already, the first thing in an interpolation? */
static bool in_string(const parser *p, token t) {
  const bracket *b = p->depth > 1 ? &p->brackets[p->depth - 2] : NULL;
  return b && b->at + 1 == t.start && (b->kind == BRACKET_STRING || b->kind == BRACKET_TEXT);
}

/* The message of the first row of slips.def that holds; `beside`: of those rows that are asked later. NULL if none does. */
static const char *slip_by_row(slip *s, bool beside) {
  static const char BLOCK_PLACES[] = "a block stands only behind if, else, for, while, try, catch and fn",
                    LAMBDA[] = "a function as a value is written fn(x) x + 1";
  enum { T_END = LEX_END };
  const parser *p = s->p;
  const unsigned char *rest = s->rest;
  token t = s->t;
  int kind = s->kind;
  bracket_kind in = s->in;
  bool after = s->after, before = s->before, body = s->body, statement = s->statement;
  bool touches = p->last_token.end == t.start, string = AMONG(kind, T_STRING, T_SBEG);
#define at(terminal) (kind == T_##terminal)
#define last(terminal) (p->last == T_##terminal)
#define prev(terminal) (p->before == T_##terminal)
#define could(terminal) accepts(p, T_##terminal)
  bool brace = at(LC) || at(LREC) || at(LEMPTY);
  /* { x = 1 } and { f(x) } as statements: only the names of a pattern could stand behind the brace. */
  bool braced = (could(COLON) && could(COMMA) && could(RC) && !after && !could(NL)) ||
                (last(LC) && could(NAME) && !before && !statement && (prev(END) || prev(NL) || prev(SEMI) || prev(LC)));
#define SLIP(condition, error, hint)                                                                                   \
  if (!beside && (condition)) return s->id = E_##error, hint;
#define BESIDE(condition, hint)                                                                                        \
  if (beside && (condition)) return hint;
#include "parser/slips.def"
#undef at
#undef last
#undef prev
#undef could
  return NULL;
}

/* The message for two words side by side, or for a word of another language. NULL if it is neither. */
static const char *slip_of_hints(slip *s) {
  const parser *p = s->p;
  token t = s->t;
  int kind = s->kind;
  const char *hint = slip_by_row(s, true);
  /* if (c) print(1): the call is right, but the braces around it are missing */
  bool named = accepts(p, T_ASSIGN),
       header = s->body && !s->statement && (s->after || named || p->last == T_ELSE || p->last == T_TRY);
  bool literal = !AMONG(kind, T_NAME, T_FN, T_NOT) && begins_value(kind);
  bool jump = AMONG(kind, T_RETURN, T_BREAK, T_CONTINUE), call = kind == T_NAME && *s->rest == '(';
  jump |= kind == T_NAME && assigns((const char *)lexer_skip(p, s->rest));
  if (!hint && call && s->after && !header && s->in == BRACKET_BLOCK && p->last != T_NAME)
    return s->id = E_syntax, p->last == T_INT || p->last == T_FLOAT
                                 ? "statements on one line are separated by ';'; a product is written 2 * f(x)"
                                 : "statements on one line are separated by ';'";
  if (!hint && kind == T_NAME && p->last == T_RC && s->after && !header && s->in == BRACKET_BLOCK &&
      !foreign_word(p, kind, t))
    return s->id = E_syntax, "statements on one line are separated by ';'";
  bool made = kind == T_NAME && t.end - t.start == 3 && !memcmp(p->text->text + t.start, "new", 3); /* throw new E() */
  if (!hint && (call || made) && p->last == T_NAME) hint = foreign_word(p, p->last, p->last_token);
  if (!hint && !(header && call)) hint = foreign_word(p, kind, t);
  if (!hint && header && (jump || call || literal || (named && begins_value(kind))))
    hint = named ? "a body stands in braces { }, a short one behind =: fn f(x) = x + 1" : "a body stands in braces { }";
  if (!hint && (begins_value(kind) || AMONG(kind, T_LC, T_LREC, T_LEMPTY, T_COLON, T_LET, T_IF)))
    hint = foreign_word(p, p->last, p->last_token);
  return hint;
}

/* The message for a situation that is none of the others. NULL if there is none either. */
static const char *slip_of_place(slip *s) {
  const parser *p = s->p;
  token t = s->t;
  int kind = s->kind;
  /* lett x = 1: two names at the beginning of a statement. */
  if (kind == T_NAME && p->last == T_NAME &&
      (p->before == 0 || p->before == T_NL || p->before == T_SEMI || p->before == T_LC)) {
    const unsigned char *next = lexer_skip(p, s->rest);
    if (next[0] == '=' && next[1] != '=') return "a new variable is written let x = 1";
  }
  s->id = E_syntax;
  /* A brace counts among the open brackets already. */
  bool inner = p->depth && p->brackets[p->depth - 1].at == t.start;
  bracket_kind outer = !inner ? s->in : p->depth > 1 ? p->brackets[p->depth - 2].kind : BRACKET_BLOCK;
  if (s->after && !s->body && (outer == BRACKET_BLOCK || p->last_token.end == t.start)) {
    if (kind == T_LREC)
      return "a record cannot stand behind a value: a call is written f({a: 1}), a changed record {..r, a: 1}";
    if (kind == T_LC || kind == T_LEMPTY)
      return "a block stands only behind if, else, for, while, try, catch and fn; a record is {a: 1}";
  }
  if ((kind == T_NL || kind == LEX_END) && s->body && *lexer_skip(p, s->rest) == '{')
    return "'{' stands on the line of what it belongs to";
  if (AMONG(kind, T_LET, T_RETURN, T_BREAK, T_CONTINUE, T_WHILE, T_FOR, T_IMPORT) && s->before && !s->statement)
    return "a statement is no value; a body of statements stands in braces { }";
  return NULL;
}

/* The message for the token t, if it shows a known slip, with *id its error; else NULL. */
static const char *slip_at(const parser *p, int kind, token t, error_id *id) {
  slip s = {.p = p,
            .kind = kind,
            .t = t,
            .rest = (const unsigned char *)p->text->text + t.end,
            .after = after_operand(p),
            .before = before_operand(p),
            .body = accepts(p, T_LC),
            .statement = accepts(p, T_LET),
            .in = p->depth ? p->brackets[p->depth - 1].kind : BRACKET_BLOCK,
            .id = E_slip};
  const char *found = slip_by_row(&s, false);
  if (!found && (kind == LEX_END || !line_inside(p, t))) {
    found = slip_of_hints(&s);
    if (!found) found = slip_of_place(&s);
  }
  *id = found ? s.id : E_syntax;
  return found;
}

/* Adds a note about the innermost open bracket if it was opened on another line, since that is often what is really wrong. */
static void note_bracket(parser *p, token t) {
  const bracket *b = p->depth ? &p->brackets[p->depth - 1] : NULL;
  if (b && b->at == t.start) b = p->depth > 1 ? b - 1 : NULL;
  if (b && (b->kind == BRACKET_ROUND || b->kind == BRACKET_SQUARE || b->kind == BRACKET_RECORD) &&
      memchr(p->text->text + b->at, '\n', t.start - b->at))
    raise_note(p->vm, (span){p->source, b->at, b->at + 1}, "opened here");
}

static void syntax_error(parser *p, int kind, token t) {
  error_id id = E_syntax;
  const char *slip = slip_at(p, kind, t, &id);
  if (slip) {
    parser_fail(p, id, t.start, t.end, "%s", slip);
    note_bracket(p, t);
    return;
  }
  text_buf message = {.vm = p->vm};
  bool keyword = is_keyword(p, kind, t) && accepts(p, T_NAME);
  if (keyword && before_operand(p)) { /* it may have been meant as the name of a keyword argument */
    const char *rest = p->text->text + t.end;
    keyword = p->depth && p->brackets[p->depth - 1].kind == BRACKET_ROUND && rest[strspn(rest, " \t")] == ':';
  }
  if (keyword) {
    text_addf(&message, "'%.*s' is a %s and cannot be a name", (int)(t.end - t.start), p->text->text + t.start,
              kind == T_FLOAT ? "number" : "keyword");
    if (p->depth && p->brackets[p->depth - 1].kind == BRACKET_RECORD && accepts(p, T_STRING))
      text_addf(&message, "; as a field it is written \"%.*s\": value", (int)(t.end - t.start),
                p->text->text + t.start);
  } else {
    text_adds(&message, "expected ");
    describe_expected(p, &message);
    text_adds(&message, ", found ");
    describe_found(p, kind, t, &message);
    uint32_t len = p->last_token.end - p->last_token.start, more = t.end - t.start;
    if (p->last == T_NAME && begins_value(kind) && !line_inside(p, t) && after_operand(p) && len <= LONGEST_QUOTE &&
        more <= LONGEST_QUOTE)
      text_addf(&message, "; a call is written %.*s(%.*s%s)", (int)len, p->text->text + p->last_token.start, (int)more,
                p->text->text + t.start, kind == T_FN || kind == T_NOT || kind == T_SBEG ? "..." : "");
  }
  text_add(&message, "", 1);
  if (message.failed)
    raise_memory(p->vm);
  else
    parser_fail(p, E_syntax, t.start, t.end, "%s", message.text);
  p->failed = true;
  text_free(&message);
  note_bracket(p, t);
}

/* Raises that the text ended while brackets were open. */
static void unclosed(parser *p) {
  const bracket *b = &p->brackets[p->depth - 1];
  if (b->kind == BRACKET_STRING || b->kind == BRACKET_TEXT)
    parser_fail(p, E_string_open, b->string, b->at + 1, "this string is never closed; a brace as text is \\{");
  else
    parser_fail(p, E_syntax, b->at, b->at + 1, "'%c' is never closed", p->text->text[b->at]);
}

/* ---- driver ---- */

static parse_outcome drive(parser *p) {
  for (;;) {
    token t;
    int kind = lexer_next(p, &t);
    if (kind == LEX_INCOMPLETE) return PARSE_INCOMPLETE;
    if (kind == LEX_FAILED) return PARSE_ERROR;
    if (kind == LEX_END) {
      bool ends = p->last == 0 || p->last == T_NL || p->last == T_SEMI || lexer_can_end(p->last);
      if (p->mode == PARSE_PROMPT && !p->lines_open && (p->depth || !ends)) return PARSE_INCOMPLETE;
      if (p->depth) {
        if (before_operand(p) && lua_length(p, t))
          parser_fail(p, E_slip, p->last_token.end, p->last_token.end + 1, "%s", LUA_LENGTH);
        else
          unclosed(p);
        return PARSE_ERROR;
      }
    }
    if (accepts(p, kind))
      grammar_push(p->engine, kind, t);
    else
      syntax_error(p, kind, t);
    if (p->failed) return PARSE_ERROR;
    if (kind == LEX_END) return PARSE_OK;
    p->before = p->last;
    p->last = kind;
    p->last_token = t;
  }
}

static ast_module *parse_source(qn_vm *vm, const source_text *text, uint32_t source, parse_mode mode,
                                parse_outcome *outcome) {
  *outcome = PARSE_ERROR;
  if (text->len > INT32_MAX)
    return raise_nothing(vm, E_too_large, (span){source, 0, 0}, "a source text has at most 2 GiB");
  ast_module *module = mem_zalloc(vm, sizeof *module);
  if (!module) {
    raise_at(vm, (span){source, 0, 0});
    return NULL;
  }
  arena_init(&module->nodes, vm);
  module->source = source;
  parser *p = mem_zalloc(vm, sizeof *p);
  void *engine = mem_alloc(vm, grammar_size());
  if (p && engine) {
    p->vm = vm;
    p->text = text;
    p->source = source;
    p->mode = mode;
    p->module = module;
    p->engine = engine;
    p->at = (const unsigned char *)text->text;
    p->end = p->at + text->len;
    p->chars = (text_buf){.vm = vm};
    grammar_start(engine, p);
    *outcome = drive(p);
    uint32_t at = (uint32_t)(p->at - (const unsigned char *)text->text);
    /* if memory was short, the error has no place yet */
    if (*outcome == PARSE_ERROR) raise_at(vm, (span){source, at, at});
    text_free(&p->chars);
    mem_free(vm, p->items, p->items_cap * sizeof *p->items);
  }
  mem_free(vm, engine, grammar_size());
  mem_free(vm, p, sizeof *p);
  if (*outcome == PARSE_ERROR) raise_at(vm, (span){source, 0, 0});
  if (*outcome == PARSE_OK) return module;
  ast_free(vm, module);
  return NULL;
}

ast_module *parse_text(qn_vm *vm, uint32_t source, parse_mode mode, parse_outcome *outcome) {
  const source_text *text = source_get(vm, source);
  if (text) return parse_source(vm, text, source, mode, outcome);
  *outcome = PARSE_ERROR;
  return raise_nothing(vm, E_text, SPAN_NONE, "there is no source text %u", source);
}

bool parse_incomplete(qn_vm *vm, const char *text, size_t len) {
  if (!utf8_valid(text, len) || memchr(text, 0, len)) return false;
  source_text source = {.text = (char *)text, .len = len};
  parse_outcome outcome;
  ast_module *tree = parse_source(vm, &source, 0, PARSE_PROMPT, &outcome);
  ast_free(vm, tree);
  error_clear(vm);
  return outcome == PARSE_INCOMPLETE;
}
