/* A terminal without its line editing: keys come in, text goes out. For the line editor (edit.c). */
#ifndef INTERP_PROMPT_TERMINAL_H
#define INTERP_PROMPT_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <termios.h>

#include "lang/value.h"

/* Keys are code points, control characters (KEY_CTRL('A') is 1) and the named ones, with modifiers added to either. */
enum {
  KEY_NONE = 0x200000, /* nothing, or a sequence that means nothing here */
  KEY_UP,
  KEY_DOWN,
  KEY_LEFT,
  KEY_RIGHT,
  KEY_HOME,
  KEY_END,
  KEY_DELETE,
  KEY_PAGE_UP,
  KEY_PAGE_DOWN,
  KEY_BACKTAB,
  KEY_PASTE,     /* the pasted text is in terminal.paste */
  KEY_RESIZE,    /* the terminal has another size */
  KEY_RESUMED,   /* the process went on after it was stopped: whoever stopped it has written meanwhile */
  KEY_INTERRUPT, /* SIGINT came */
  KEY_CLOSED,    /* there is no more input */
  KEY_ALT = 1 << 24,
  KEY_CONTROL = 1 << 25, /* only with named keys */
  KEY_SHIFT = 1 << 26
};
#define KEY_CTRL(c) ((c)&31)
enum { KEY_TAB = 9, KEY_ENTER = 13, KEY_ESCAPE = 27, KEY_BACKSPACE = 127 };

enum { PASTE_MOST = 4 << 20 };

typedef struct terminal {
  int in, out;
  int rows, columns;
  struct termios cooked;
  unsigned char bytes[4096]; /* read and not yet taken: [at, n) */
  size_t at, n;
  bool burst;    /* these bytes came at once after nothing had been there */
  text_buf text; /* written and not yet sent */
  text_buf paste;
} terminal;

/* A terminal on two descriptors; nothing changes before terminal_begin. */
void terminal_init(terminal *t, int in, int out);
void terminal_free(terminal *t);
/* Switches the terminal's own editing off and on again. Keys are read in between only. Kept: what was typed ahead. */
QN_MUST_CHECK bool terminal_begin(terminal *t);
void terminal_end(terminal *t);
/* The next key, waiting for it. */
int terminal_key(terminal *t);
/* Is there input that can be read at once? */
bool terminal_waits(terminal *t);
/* Does text stand right behind the key just read, as when a terminal without bracketed paste pastes? */
bool terminal_pasting(terminal *t);
void terminal_flush(terminal *t);
/* Asks the terminal for its size. */
void terminal_measure(terminal *t);
/* Ctrl-Z: stops the process with the terminal as it was; returns when it goes on. */
void terminal_suspend(terminal *t);
/* Wakes a terminal_key that waits; for signal handlers. */
void terminal_wake(void);
/* A text of lines, set in rows of so many columns: lines that are too long break at blanks and go on two columns further in than they
 * begin; lines that begin with four blanks are code and stay as they are, so that the terminal wraps them. */
typedef struct text_rows {
  const char *text;
  size_t len, at;  /* where the next row begins */
  size_t indent;   /* of the line that the next row is in */
  bool inside;     /* the next row goes on with a line */
  const char *row; /* this row, without its end */
  size_t n;        /* its bytes */
  int lead;        /* blanks before it */
  int high;        /* rows of the terminal that it takes */
} text_rows;
/* The next row; false: there is none. `columns` 0: rows are lines. */
bool text_rows_next(text_rows *r, int columns);
/* Writes a text, set for the terminal if it is one. */
void terminal_write_text(FILE *to, const char *text, size_t len);
/* For lines that the system edits. Forgets wakes up to now; then waits until a line can be read, or false: woken before. */
bool terminal_line_begin(void);
bool terminal_line_wait(int in);

#endif
