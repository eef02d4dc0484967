/* The line editor: text of one or more lines, typed at a terminal. It knows nothing of the language; what it needs to know, a
 * host tells it. */
#ifndef INTERP_PROMPT_EDIT_H
#define INTERP_PROMPT_EDIT_H

#include "interp/prompt/history.h"
#include "interp/prompt/terminal.h"

/* What could stand in the place of bytes [start, cursor). */
typedef struct choices {
  size_t start;
  char **items; /* each from malloc */
  int n, cap;
  int first; /* this many, the first added, stand before the others: the fields of x where functions fit, too */
} choices;
/* Adds a copy with `end` behind it, unless it is there; ignored where memory is short. */
void choices_add(choices *c, const char *text, size_t len, const char *end);
/* In alphabetical order, those that stand first by themselves; names with an underscore in front come last. */
void choices_sort(choices *c);
void choices_clear(choices *c);

/* Texts that are handed over end with a NUL. */
typedef struct edit_host {
  void *ctx;
  bool color;
  const char *prompt, *more; /* before the first line and before the others */
  /* The highlight (lang/highlight.h) of every byte. */
  void (*highlights)(void *ctx, const char *text, size_t len, uint8_t *highlights);
  /* Does the text need more lines? */
  bool (*incomplete)(void *ctx, const char *text, size_t len);
  void (*complete)(void *ctx, const char *text, size_t len, size_t cursor, choices *out);
  /* A line about the call that the cursor stands in; false if there is none. */
  bool (*hint)(void *ctx, const char *text, size_t len, size_t cursor, text_buf *out);
  /* Changes text that is pasted; it may become shorter. */
  void (*pasted)(void *ctx, char *text, size_t *len);
} edit_host;

typedef enum edit_end {
  EDIT_TEXT,      /* a complete text */
  EDIT_INTERRUPT, /* Ctrl-C: what was typed is given up */
  EDIT_CLOSED,    /* Ctrl-D, or the terminal has gone */
  EDIT_FAILED     /* the terminal cannot be edited on, or memory is short */
} edit_end;

typedef struct editor editor;
/* NULL when memory is short. The history is borrowed. */
QN_MUST_CHECK editor *edit_open(const edit_host *host, history *h, int in, int out);
void edit_close(editor *e);
/* Reads one text; it belongs to the editor and stays until the next one. */
QN_MUST_CHECK edit_end edit_read(editor *e, const char **text, size_t *len);
/* The bracket that belongs to the one at `at`, or SIZE_MAX. Brackets in strings and comments do not count. */
size_t edit_partner(const char *text, size_t len, const uint8_t *highlights, size_t at);
/* Columns of the terminal. */
int edit_columns(editor *e);
/* The terminal, between two texts; what was typed ahead is in it. */
terminal *edit_terminal(editor *e);

#endif
