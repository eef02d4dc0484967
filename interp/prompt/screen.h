/* What the editor shows: rows of text that are drawn over those before them. Internal to the editor. */
#ifndef INTERP_PROMPT_SCREEN_H
#define INTERP_PROMPT_SCREEN_H

#include "interp/prompt/terminal.h"

typedef struct screen_row {
  size_t start, end; /* in frame.text */
  int width;
  bool wrapped; /* continues the line of the row above */
} screen_row;

/* A picture: rows with the place of the cursor. */
typedef struct frame {
  text_buf text;
  screen_row *rows;
  int n, cap;
  int cursor_row, cursor_column;
  bool failed; /* memory was short */
  /* While the picture is written: */
  int columns;
  const char *style;
  bool cursor_waits; /* the cursor will be on the next character, on this row or the next */
} frame;

/* What is shown and what will be shown next; begins as zeros. */
typedef struct screen {
  frame shown, next;
  int at;  /* row of `shown` that the terminal's cursor is on */
  int top; /* row of the whole picture that is the first one shown */
} screen;

void screen_free(screen *s);
/* Begins the next picture and returns it, to be written to. */
frame *screen_pen(screen *s, const terminal *t);
/* Writes bytes that take `width` columns, together in a row; style NULL is plain. */
void frame_put(frame *f, const char *style, const char *text, size_t len, int width);
/* Writes a text that has no line ends. */
void frame_text(frame *f, const char *style, const char *text, size_t len);
void frame_line(frame *f); /* begins a new line */
void frame_cursor(frame *f);
/* The number of columns that are left on this row. */
int frame_left(const frame *f);
/* Draws the next picture, as far as the terminal has rows; `whole` draws all and leaves the cursor below it. */
void screen_draw(screen *s, terminal *t, bool whole);
/* What was drawn is no longer there (the terminal was cleared); the cursor stands where the picture is to begin. */
void screen_forget(screen *s);
/* The terminal has another width than when the picture was drawn: moves to the picture's first row and clears everything from there on. */
void screen_resized(screen *s, terminal *t);

#endif
