/* The line editor: text of one or more lines, typed at a terminal. It knows nothing of the language; what it needs to know, a
 * host tells it. */
#ifndef INTERP_PROMPT_EDIT_H
#define INTERP_PROMPT_EDIT_H

#include "interp/prompt/history.h"
#include "interp/prompt/terminal.h"

/* Texts that could replace the bytes [start, cursor) of a text. */
typedef struct choices {
  size_t start;
  char **items; /* each from malloc */
  int n, cap;
  int first; /* the first so many that were added are shown before the others: fields of x before functions that fit */
} choices;
/* Adds a copy of a text followed by `end`, unless it is there already. Nothing is added if memory is short. */
void choices_add(choices *c, const char *text, size_t len, const char *end);
/* Sorts them by the alphabet, the first ones and the others apart. Names that begin with an underscore come last. */
void choices_sort(choices *c);
void choices_clear(choices *c);

/* What the editor asks of its host. Texts that it passes end with a NUL. */
typedef struct edit_host {
  void *ctx;
  bool color;
  const char *prompt, *more; /* shown before the first line, and before the others */
  /* Writes the highlight (lang/highlight.h) of every byte. */
  void (*highlights)(void *ctx, const char *text, size_t len, uint8_t *highlights);
  /* Does the text need more lines? */
  bool (*incomplete)(void *ctx, const char *text, size_t len);
  void (*complete)(void *ctx, const char *text, size_t len, size_t cursor, choices *out);
  /* A line about the call that the cursor stands in; false if there is none. */
  bool (*hint)(void *ctx, const char *text, size_t len, size_t cursor, text_buf *out);
  /* May change a text that is pasted, in place; it may become shorter. */
  void (*pasted)(void *ctx, char *text, size_t *len);
} edit_host;

typedef enum edit_end {
  EDIT_TEXT,      /* a complete text */
  EDIT_INTERRUPT, /* Ctrl-C: what was typed is given up */
  EDIT_CLOSED,    /* Ctrl-D, or the terminal has gone */
  EDIT_FAILED     /* the terminal cannot be edited on, or memory is short */
} edit_end;

typedef struct editor editor;
/* A new editor on two descriptors. Borrows the history. NULL if memory is short. */
QN_MUST_CHECK editor *edit_open(const edit_host *host, history *h, int in, int out);
void edit_close(editor *e);
/* Reads one text; it belongs to the editor and stays until the next one. */
QN_MUST_CHECK edit_end edit_read(editor *e, const char **text, size_t *len);
/* Where the bracket is that belongs to the one at `at`; SIZE_MAX if there is none. Brackets in strings and comments do not count. */
size_t edit_partner(const char *text, size_t len, const uint8_t *highlights, size_t at);
/* The number of columns of the terminal. */
int edit_columns(editor *e);
/* The terminal, for use between two texts. It holds what has been typed ahead. */
terminal *edit_terminal(editor *e);

#endif
