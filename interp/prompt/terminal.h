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
  KEY_NONE = 0x200000, /* no key, or a sequence that has no meaning here */
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
  KEY_RESUMED,   /* the process was stopped and goes on: others may have written to the terminal meanwhile */
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
  unsigned char bytes[4096]; /* [at, n) have been read and are not keys yet */
  size_t at, n;
  bool burst;    /* these bytes came together, when none had been waiting */
  text_buf text; /* written and not yet sent */
  text_buf paste;
} terminal;

/* Makes *t the terminal on two descriptors. Nothing about the terminal changes before terminal_begin. */
void terminal_init(terminal *t, int in, int out);
void terminal_free(terminal *t);
/* Switch the terminal's own line editing off, and on again. Keys can be read in between. What has been typed ahead is kept. */
QN_MUST_CHECK bool terminal_begin(terminal *t);
void terminal_end(terminal *t);
/* The next key, waiting for it. */
int terminal_key(terminal *t);
/* Is there input that can be read at once? */
bool terminal_waits(terminal *t);
/* Did text come together with the key just read? That is how terminals without bracketed paste deliver what is pasted. */
bool terminal_pasting(terminal *t);
void terminal_flush(terminal *t);
/* Reads the size of the terminal. */
void terminal_measure(terminal *t);
/* Ctrl-Z: stops the process with the terminal as it was; returns when it goes on. */
void terminal_suspend(terminal *t);
/* Wakes a terminal_key that waits; for signal handlers. */
void terminal_wake(void);
/* A text of lines that is set in rows of so many columns. Lines that are too long are broken at blanks, and continue two columns to the
 * right of where they begin. Lines that begin with four blanks are code: they stay as they are, and the terminal wraps them. */
typedef struct text_rows {
  const char *text;
  size_t len, at;  /* where the next row begins */
  size_t indent;   /* indentation of the line that the next row belongs to */
  bool inside;     /* the next row continues a line */
  const char *row; /* this row, without its end */
  size_t n;        /* its bytes */
  int lead;        /* blanks before it */
  int high;        /* rows of the terminal that it takes */
} text_rows;
/* Finds the next row; false if there is none. If `columns` is 0 each line is one row. */
bool text_rows_next(text_rows *r, int columns);
/* Writes a text to a file, in rows that fit if the file is a terminal. */
void terminal_write_text(FILE *to, const char *text, size_t len);
/* For lines that the system edits. terminal_line_begin forgets the wakes up to now. terminal_line_wait then waits until a line can be read;
 * false if a wake comes before that. */
bool terminal_line_begin(void);
bool terminal_line_wait(int in);

#endif
