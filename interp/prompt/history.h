/* What was typed at the prompt, in this session and in those before. */
#ifndef INTERP_PROMPT_HISTORY_H
#define INTERP_PROMPT_HISTORY_H

#include <stdbool.h>
#include <stddef.h>

#include "lang/quern.h"

enum {
  HISTORY_MOST = 5000,      /* entries kept */
  HISTORY_LONGEST = 1 << 16 /* bytes; longer entries are not written to the file */
};

typedef struct history {
  char **entries; /* oldest first */
  int n, cap;
  char *path; /* NULL: there is no file */
} history;

/* Reads the file $XDG_STATE_HOME/quern/history, or ~/.local/state/quern/history. If it cannot be read the history is empty. */
void history_open(history *h);
void history_close(history *h);
/* Adds what was typed, unless it is blank or repeats the entry before it, and appends it to the file. */
void history_add(history *h, const char *text, size_t len);
/* The newest entry before number `before` that contains the text; -1 if there is none. */
int history_search(const history *h, int before, const char *text);

#endif
