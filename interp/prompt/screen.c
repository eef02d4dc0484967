/* Drawing without flicker: a picture is rows of bytes, none wider than the terminal. Of the next picture only the rows from the
 * first that differs on are written; the terminal's cursor is moved relative to where it is, so that nobody needs to know
 * where on the screen the picture stands.
 *
 * A long line is written without breaks, so that the terminal itself wraps it: then it knows that the rows belong together, when
 * text is copied and when its width changes. Its last column filled, a terminal waits with wrapping until the next character;
 * erasing would take away the last one, so a full row is followed by nothing or by a line's end.
 */
#include "interp/prompt/screen.h"

#include <stdlib.h>
#include <string.h>

#include "lang/highlight.h"

static void frame_clear(frame *f) {
  f->text.len = 0;
  f->text.failed = f->failed = false;
  f->n = f->cursor_row = f->cursor_column = 0;
  f->style = NULL;
  f->cursor_waits = false;
}

void screen_free(screen *s) {
  text_free(&s->shown.text);
  text_free(&s->next.text);
  free(s->shown.rows);
  free(s->next.rows);
}

/* ---- the pen --------------------------------------------------------------------------------------------------------------- */

static screen_row *last_row(const frame *f) { return &f->rows[f->n - 1]; }

static void end_style(frame *f) {
  if (f->style) text_adds(&f->text, HIGHLIGHT_OFF);
  f->style = NULL;
}

static void new_row(frame *f, bool wrapped) {
  end_style(f);
  if (f->n) last_row(f)->end = f->text.len;
  if (f->n == f->cap) {
    int cap = f->cap ? f->cap * 2 : 16;
    screen_row *more = realloc(f->rows, (size_t)cap * sizeof *more);
    if (!more) {
      f->failed = true;
      if (f->n) f->n--; /* writes over the last row */
    } else {
      f->rows = more;
      f->cap = cap;
    }
    if (!f->cap) return;
  }
  f->rows[f->n++] = (screen_row){.start = f->text.len, .wrapped = wrapped};
}

frame *screen_pen(screen *s, const terminal *t) {
  frame_clear(&s->next);
  s->next.columns = t->columns > 2 ? t->columns : 2;
  new_row(&s->next, false);
  return &s->next;
}

static void place_cursor(frame *f) {
  f->cursor_waits = false;
  f->cursor_row = f->n - 1;
  f->cursor_column = last_row(f)->width;
}

void frame_put(frame *f, const char *style, const char *text, size_t len, int width) {
  if (!f->n) return;
  if (last_row(f)->width + width > f->columns) new_row(f, true);
  if (f->cursor_waits) place_cursor(f);
  if (style && !*style) style = NULL;
  if (style != f->style) {
    end_style(f);
    if (style) text_adds(&f->text, style);
    f->style = style;
  }
  text_add(&f->text, text, len);
  last_row(f)->width += width;
}

void frame_text(frame *f, const char *style, const char *text, size_t len) {
  for (size_t i = 0; i < len;) {
    uint32_t code;
    int n = utf8_decode(text + i, &code);
    frame_put(f, style, text + i, (size_t)n, utf8_width(code));
    i += (size_t)n;
  }
}

void frame_line(frame *f) {
  if (!f->n) return;
  if (f->cursor_waits) {
    if (last_row(f)->width >= f->columns) new_row(f, false);
    place_cursor(f);
  }
  new_row(f, false);
}

void frame_cursor(frame *f) {
  if (f->n) f->cursor_waits = true;
}

int frame_left(const frame *f) { return f->n ? f->columns - last_row(f)->width : 0; }

static void frame_end(frame *f) {
  if (!f->n) return;
  if (f->cursor_waits) {
    if (last_row(f)->width >= f->columns) new_row(f, false);
    place_cursor(f);
  }
  end_style(f);
  last_row(f)->end = f->text.len;
  f->failed |= f->text.failed;
}

/* Drops all rows of a picture but [first, first + n). */
static void frame_cut(frame *f, int first, int n) {
  if (first + n > f->n) n = f->n - first;
  memmove(f->rows, f->rows + first, (size_t)n * sizeof *f->rows);
  f->n = n;
  if (n) f->rows[0].wrapped = false;
  f->cursor_row -= first;
}

/* ---- drawing ---------------------------------------------------------------------------------------------------------------- */

static void move_rows(terminal *t, int by) {
  if (by > 0) text_addf(&t->text, "\033[%dB", by);
  if (by < 0) text_addf(&t->text, "\033[%dA", -by);
}

static bool same_row(const frame *a, const frame *b, int row) {
  const screen_row *x = &a->rows[row], *y = &b->rows[row];
  return x->wrapped == y->wrapped && x->end - x->start == y->end - y->start &&
         memcmp(a->text.text + x->start, b->text.text + y->start, x->end - x->start) == 0;
}

/* Writes the rows from `first` on. The terminal's cursor is on that row, or on the last row shown if there are fewer rows. */
static void write_rows(screen *s, terminal *t, int first) {
  const frame *f = &s->next;
  for (int i = first; i < f->n; i++) {
    const screen_row *row = &f->rows[i];
    if (i == first)
      text_adds(&t->text, "\r");
    else if (!row->wrapped)
      text_adds(&t->text, "\r\n");
    if (row->end > row->start) text_add(&t->text, f->text.text + row->start, row->end - row->start);
    if (row->width < f->columns) text_adds(&t->text, "\033[K");
  }
  if (s->shown.n > f->n) text_adds(&t->text, "\r\n\033[J\033[A");
  s->at = f->n - 1;
}

void screen_draw(screen *s, terminal *t, bool whole) {
  frame *f = &s->next;
  frame_end(f);
  if (f->failed || !f->n) return;
  if (!whole && f->n > t->rows) {
    if (f->cursor_row < s->top) s->top = f->cursor_row;
    if (f->cursor_row >= s->top + t->rows) s->top = f->cursor_row - t->rows + 1;
    if (s->top > f->n - t->rows) s->top = f->n - t->rows;
    frame_cut(f, s->top, t->rows);
  } else {
    s->top = 0;
  }
  int first = 0;
  while (first < f->n && first < s->shown.n && same_row(f, &s->shown, first)) first++;
  if (first < f->n || s->shown.n > f->n) {
    if (first == f->n) first--;
    while (first > 0 && f->rows[first].wrapped) first--;
    /* Below what is shown there is no row to move to yet. */
    if (first > 0 && first >= s->shown.n) {
      first = s->shown.n ? s->shown.n - 1 : 0;
      while (first > 0 && f->rows[first].wrapped) first--;
    }
    move_rows(t, first - s->at);
    write_rows(s, t, first);
  }
  if (whole) {
    move_rows(t, f->n - 1 - s->at);
    text_adds(&t->text, "\r\n");
    screen_forget(s);
  } else {
    move_rows(t, f->cursor_row - s->at);
    text_adds(&t->text, "\r");
    if (f->cursor_column) text_addf(&t->text, "\033[%dC", f->cursor_column);
    s->at = f->cursor_row;
    frame kept = s->shown;
    s->shown = s->next;
    s->next = kept;
  }
  terminal_flush(t);
}

void screen_forget(screen *s) {
  frame_clear(&s->shown);
  s->at = s->top = 0;
}

void screen_resized(screen *s, terminal *t) {
  const frame *f = &s->shown;
  int columns = t->columns > 2 ? t->columns : 2, above = 0, line = 0;
  for (int i = 0; i <= s->at && i < f->n; i++) {
    if (!f->rows[i].wrapped) line = 0;
    bool ends = i + 1 >= f->n || !f->rows[i + 1].wrapped;
    if (i == s->at) {
      above += (line + f->cursor_column) / columns;
    } else {
      line += f->rows[i].width;
      if (ends) above += line > columns ? (line - 1) / columns + 1 : 1;
    }
  }
  if (above >= t->rows) above = t->rows - 1;
  move_rows(t, -above);
  text_adds(&t->text, "\r\033[J");
  screen_forget(s);
}
