/* What lexer, grammar and driver share while one text is parsed. Nothing outside of this room includes it.
 *
 * The driver (parse.c) takes tokens from the lexer and pushes them into Lemon's automaton, whose actions call the builders of build.c.
 * Whatever fails raises the error and sets `failed`; from then on builders return the `poison` node, so that actions need no tests, and the
 * driver stops after the present token.
 */
#ifndef PARSER_STATE_H
#define PARSER_STATE_H

#include "gen/parser/grammar.h"
#include "lang/error.h"
#include "parser/parser.h"

/* A token: where its bytes are and, depending on the kind, its value: i (INT, and operators: the ast_op), f (FLOAT), s (NAME, STRING and
 * the parts of interpolated strings; the module owns it; NULL for an empty part). */
typedef struct token {
  uint32_t start, end;
  union {
    int64_t i;
    double f;
    qn_str *s;
  } u;
} token;

/* What the lexer returns if it is no terminal (terminals are positive): the end of the text, and failures. */
enum { LEX_END = 0, LEX_FAILED = -1, LEX_INCOMPLETE = -2 };

/* The kinds of open brackets, and of interpolations in "..." and """...""" strings. */
typedef enum bracket_kind {
  BRACKET_ROUND,
  BRACKET_SQUARE,
  BRACKET_BLOCK,
  BRACKET_RECORD,
  BRACKET_STRING,
  BRACKET_TEXT
} bracket_kind;
typedef struct bracket {
  bracket_kind kind;
  uint32_t at;     /* where the bracket or brace is */
  uint32_t string; /* where the first quote of the string is */
} bracket;

enum {
  BRACKETS_MAX = AST_HEIGHT_MAX,
  LONGEST_QUOTE = 24 /* how many bytes of source text a message repeats at most */
};

typedef struct parser {
  qn_vm *vm;
  const source_text *text;
  uint32_t source;
  parse_mode mode;
  ast_module *module;
  void *engine; /* Lemon's automaton */
  bool failed;  /* an error has been raised */

  /* For the lexer: */
  const unsigned char *at, *end; /* the rest of the text; a NUL stands at `end` */
  int last, before;              /* the last two terminals that were taken, 0 at the beginning */
  token last_token;
  bracket brackets[BRACKETS_MAX];
  uint32_t depth;
  uint32_t lines_open; /* how many of the open brackets are interpolations of one-line strings */
  text_buf chars;      /* the string or number being read */

  /* For the builders: the items of unfinished lists, all on one stack. Lists nest properly, since rules are reduced from the inside out. */
  ast_node **items;
  uint32_t nitems, items_cap;
  ast_node poison;
} parser;

/* An unfinished list: its items are the topmost n of the stack. `start` is where its first token begins. */
typedef struct sequence {
  uint32_t n, start;
} sequence;

/* ---- lexer.re ---- */
int lexer_next(parser *p, token *t);
bool lexer_can_end(int terminal); /* may a statement end with this token? */
/* Where the line begins that a place is on, behind its blanks; or what stands behind the last ; before the place. */
const char *lexer_line(const parser *p, uint32_t at);
/* Does that line begin like the header of a function with a name, fn f(x)? */
bool lexer_in_header(const parser *p, uint32_t at);
/* The first byte from `s` on that is no blank, newline or part of a comment. */
const unsigned char *lexer_skip(const parser *p, const unsigned char *s);

/* ---- grammar.y ---- */
size_t grammar_size(void);
void grammar_start(void *engine, parser *p);
void grammar_push(void *engine, int terminal, token t);
/* Would the automaton take this terminal in its present state? Changes nothing. */
bool grammar_accepts(const void *engine, int terminal);

/* ---- parse.c ---- */
/* Raises an error at bytes [start, end) and returns LEX_FAILED. */
int parser_fail(parser *p, error_id id, uint32_t start, uint32_t end, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* Makes the module the owner of a reference (taken over, also on failure). False with an error raised. */
bool parser_keep(parser *p, qn_str *s);

/* ---- build.c ---- */
static inline span token_span(const parser *p, token t) { return (span){p->source, t.start, t.end}; }
/* Appends an item to an unfinished list and pushes it. `start`: where the list begins, if the item is its first one. */
sequence build_item(parser *p, sequence list, ast_node *item, uint32_t start);
/* A node with the named children `fixed`; its further children are the topmost `items` of the stack, which are popped. */
ast_node *build_node(parser *p, ast_kind kind, span at, span mark, ast_node *const *fixed, uint32_t items);
ast_node *build_leaf(parser *p, ast_kind kind, token t);
/* As build_node, with the name of a token. */
ast_node *build_named(parser *p, ast_kind kind, span at, token name, ast_node *const *fixed, uint32_t items);
ast_node *build_unary(parser *p, token op, ast_node *operand);
ast_node *build_infix(parser *p, ast_kind kind, ast_node *left, token op, ast_node *right);
ast_node *build_paren(parser *p, token open, ast_node *inner, token close);
/* A call f(...); or, if f is x.name without parentheses around it, the method call x.name(...). */
ast_node *build_call(parser *p, ast_node *callee, token open, uint32_t items, token close);
ast_node *build_index(parser *p, ast_node *object, token open, uint32_t items, token close);
ast_node *build_index_item(parser *p, ast_node *expr);
ast_node *build_slice(parser *p, token colon, ast_node *start, ast_node *stop, ast_node *step);
/* One part of an interpolated string, and a piece of its text (none if the token has none). */
ast_node *build_part(parser *p, ast_node *value, const token *format);
sequence build_text(parser *p, sequence list, token t, uint32_t start);
/* Makes one node of the arms of if ... else if ..., the topmost on the stack. `otherwise` may be NULL. */
ast_node *build_if(parser *p, uint32_t arms, ast_node *otherwise);
ast_node *build_arm(parser *p, token word, ast_node *cond, ast_node *then);
/* A body that consists of one expression. */
ast_node *build_body(parser *p, ast_node *expr);
ast_node *build_fn(parser *p, token word, const token *name, uint32_t params, ast_node *result, ast_node *body,
                   int flags);
ast_node *build_param(parser *p, token name, ast_node *type, ast_node *initial);
ast_node *build_assign(parser *p, ast_node *target, token op, ast_node *value);
/* A field of the pattern in {a, b: target} = value. */
ast_node *build_pattern_field(parser *p, token name, ast_node *target);
ast_node *build_import(parser *p, token word, token from, bool path, token name);
ast_node *build_dim(parser *p, ast_node *expr);

#endif
