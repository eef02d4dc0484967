/* A page is written like any other output, so that it stays where the terminal keeps what was shown. Below it stands a line
 * that says how to go on; when a key has been pressed it goes, and the next page is written in its place. Rows are set when their page
 * is, for the size that the terminal has then.
 */
#include "interp/prompt/pager.h"

#include "interp/prompt/screen.h"

/* The number of rows that a text takes on a terminal of so many columns. */
static int rows_of(const char *text, size_t len, int columns) {
  enum { MANY = 1 << 20 };
  int n = 0;
  for (text_rows r = {.text = text, .len = len}; n < MANY && text_rows_next(&r, columns);) n += r.high;
  return n;
}

/* Writes as many rows as fit above the status line, but at least one. */
static void write_page(terminal *t, text_rows *r) {
  for (int left = t->rows - 1, any = 0;; any = 1) {
    text_rows next = *r;
    if (!text_rows_next(&next, t->columns) || (any && next.high > left)) break;
    *r = next;
    left -= r->high;
    text_repeat(&t->text, " ", r->lead);
    text_add(&t->text, r->row, r->n);
    text_adds(&t->text, "\r\n");
  }
  terminal_flush(t);
}

static void draw_status(screen *s, terminal *t, const text_rows *r) {
  text_buf line = {0};
  text_addf(&line, "-- more (%d %%): Space goes on, q ends --", (int)((double)r->at * 100 / (double)r->len));
  if (!line.failed) frame_text(screen_pen(s, t), NULL, line.text, line.len);
  text_free(&line);
  screen_draw(s, t, false);
}

static void clear_status(screen *s, terminal *t) {
  screen_pen(s, t);
  screen_draw(s, t, false);
  screen_forget(s);
}

/* Shows the status line and waits for a key. True to go on, false to end. */
static bool wait_below(screen *s, terminal *t, const text_rows *r) {
  for (;;) {
    draw_status(s, t, r);
    int key = terminal_key(t);
    switch (key) {
    case ' ':
    case KEY_ENTER:
    case KEY_PAGE_DOWN:
    case KEY_DOWN: return true;
    case 'q':
    case 'Q':
    case KEY_ESCAPE:
    case KEY_CTRL('C'):
    case KEY_CTRL('D'):
    case KEY_INTERRUPT:
    case KEY_CLOSED: return false;
    case KEY_CTRL('Z'):
    case KEY_RESUMED: /* other programs may have written meanwhile, and the size may have changed */
      if (key != KEY_RESUMED) {
        clear_status(s, t);
        terminal_suspend(t);
      }
      terminal_measure(t);
      text_adds(&t->text, "\r");
      screen_forget(s);
      break;
    case KEY_RESIZE:
      terminal_measure(t);
      screen_resized(s, t);
      break;
    default: break;
    }
  }
}

void pager_show(terminal *t, const char *text, size_t len) {
  fflush(stdout);
  terminal_measure(t);
  if (rows_of(text, len, t->columns) < t->rows || terminal_waits(t) || !terminal_begin(t)) {
    terminal_write_text(stdout, text, len);
    fflush(stdout);
    return;
  }
  screen s = {0};
  text_rows r = {.text = text, .len = len};
  for (bool more = true; more && r.at < r.len;) {
    write_page(t, &r);
    if (r.at >= r.len) break;
    more = wait_below(&s, t, &r);
    clear_status(&s, t);
  }
  screen_free(&s);
  terminal_end(t);
}
