/* From source text to tree: the lexer (lexer.re) feeds the grammar (grammar.y); parse.c drives both and words the errors. Only syntax is
 * checked here. Names, misplaced break/return/import, repeated names and unused values are checked by the resolver. */
#ifndef PARSER_PARSER_H
#define PARSER_PARSER_H

#include "parser/ast.h"

typedef enum parse_mode {
  PARSE_FILE,
  PARSE_PROMPT /* a text that is only a beginning gives PARSE_INCOMPLETE instead of an error */
} parse_mode;

typedef enum parse_outcome {
  PARSE_OK,
  PARSE_ERROR,     /* an error is raised, with its place */
  PARSE_INCOMPLETE /* PARSE_PROMPT only: a bracket or """ is open, or the last token cannot end a statement */
} parse_outcome;

/* Parses the text with the number `source` (source_add). Owned (ast_free); NULL with the reason in *outcome. */
QN_MUST_CHECK ast_module *parse_text(qn_vm *vm, uint32_t source, parse_mode mode, parse_outcome *outcome);

/* The situations in which a word of another language may turn up (foreign.def). */
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
/* What to write instead of a word of another language in this situation; NULL if it is none that turns up there. */
const char *foreign_hint(foreign_place where, const char *word, size_t len);

/* Would parse_text ask for more input at the prompt? False also if memory is short. `text` must end with a NUL. Leaves nothing behind. */
bool parse_incomplete(qn_vm *vm, const char *text, size_t len);
/* The words that cannot be names, up to a NULL. */
extern const char *const parse_keywords[];
/* Fills in the highlight (lang/highlight.h) of every byte of a text, whether it is right or wrong; it must end with a NUL. A pending error
 * stays. */
void parse_highlights(qn_vm *vm, const char *text, size_t len, uint8_t *highlights);

#endif
