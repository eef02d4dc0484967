/* From source text to AST: the lexer (lexer.re) feeds the grammar (grammar.y), parse.c drives both and words the errors.
 * Only syntax is checked here. Names, misplaced break/return/import, repeated names and unused values are the
 * resolver's business.
 */
#ifndef PARSER_PARSER_H
#define PARSER_PARSER_H

#include "parser/ast.h"

typedef enum parse_mode {
  PARSE_FILE,
  PARSE_PROMPT /* text that is a beginning only is PARSE_INCOMPLETE instead of an error */
} parse_mode;

typedef enum parse_outcome {
  PARSE_OK,
  PARSE_ERROR,     /* raised on the VM, with its place */
  PARSE_INCOMPLETE /* PARSE_PROMPT only: a bracket or """ is open, or the last token cannot end a statement */
} parse_outcome;

/* Parses text number `source` (source_add). Returns an owned tree (ast_free), or NULL with the reason in `*outcome`. */
QN_MUST_CHECK ast_module *parse_text(qn_vm *vm, uint32_t source, parse_mode mode, parse_outcome *outcome);

/* Where a word of another language may turn up (foreign.def). */
typedef enum foreign_place {
  FOREIGN_SYNTAX = 1,
  FOREIGN_NAME = 2,
  FOREIGN_MEMBER = 4,
  FOREIGN_KEYWORD = 8,
  FOREIGN_TYPE = 16,
  FOREIGN_CALL = 32,
  FOREIGN_IMPORT = 64,
  FOREIGN_ARRAY = 128
} foreign_place;
/* What to write instead of a word from another language, or NULL if it is none that turns up there. */
const char *foreign_hint(foreign_place where, const char *word, size_t len);

/* Would parse_text at the prompt ask for more? Nothing is kept; false, too, where memory is short. `text` ends with a NUL. */
bool parse_incomplete(qn_vm *vm, const char *text, size_t len);
/* The words that cannot be names; ends with NULL. */
extern const char *const parse_keywords[];
/* The highlight (lang/highlight.h) of every byte of a text, right or wrong, that ends with a NUL. Keeps a pending error. */
void parse_highlights(qn_vm *vm, const char *text, size_t len, uint8_t *highlights);

#endif
