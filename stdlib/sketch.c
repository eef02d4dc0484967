/* Figures as text, on the VM's output. How they look follows from where it goes (output_looks, core.c):
 *
 *   terminal, colours   curves of braille dots (2 x 4 in a character), bars of eighths of blocks, pixels as half blocks; 24-bit
 *                       colours where COLORTERM says so, else the 256 of the palette
 *   all else            plain ASCII: a mark for each series, '#' bars, ten levels of grey
 *
 * A sketch is as wide as the terminal (80 columns elsewhere, or what COLUMNS says), up to a limit, and leaves room for the prompt.
 * It is made as one text and written at once.
 */
#include <stdlib.h>
#include <string.h>

#include "lang/error.h"
#include "stdlib/figure.h"

enum { WIDTH_MAX = 120, WIDTH_MIN = 30, HEIGHT_MIN = 8, HEIGHT_MAX = 24, LABEL_MAX = 22, PLAIN = -1 };

static const char marks[] = "*+ox@%&=";
static const char grey[] = " .:-=+*#%@";

/* One character of a sketch. */
typedef struct cell {
  uint8_t dots;    /* of braille: bit order of Unicode */
  uint8_t eighths; /* of a bar */
  char mark;       /* what plain ASCII shows */
  int16_t color;   /* series, or PLAIN */
} cell;

typedef struct sketch {
  qn_vm *vm;
  const figure *f;
  text_buf *t;
  output_looks looks;
  int width, height; /* of the terminal, as far as it is used */
  int columns, rows; /* of what lies inside the axes */
  int margin;        /* columns of the labels at the left */
  axis x, y;
  cell *cells;
} sketch;

/* ---- colors --------------------------------------------------------------------------------------------------------------- */

/* The entry nearest to a colour in the palette of 256: one of the 6 x 6 x 6 cube, or of the 24 greys. */
static int palette_of(uint32_t color) {
  static const int steps[6] = {0, 95, 135, 175, 215, 255};
  int cube = 16, far = 0, sum = 0;
  for (int k = 0; k < 3; k++) {
    int v = (int)(color >> (16 - 8 * k) & 255), best = 0;
    for (int i = 1; i < 6; i++)
      if (abs(steps[i] - v) < abs(steps[best] - v)) best = i;
    cube += best * (k == 0 ? 36 : k == 1 ? 6 : 1);
    far += abs(steps[best] - v);
    sum += v;
  }
  int level = (sum / 3 - 8 + 5) / 10, off = 0;
  level = level < 0 ? 0 : level > 23 ? 23 : level;
  for (int k = 0; k < 3; k++) off += abs((int)(color >> (16 - 8 * k) & 255) - (8 + 10 * level));
  return off < far ? 232 + level : cube;
}

static void put_color(sketch *s, uint32_t color, bool background) {
  int layer = background ? 48 : 38;
  if (s->looks.true_color)
    text_addf(s->t, "\033[%d;2;%u;%u;%um", layer, color >> 16, color >> 8 & 255, color & 255);
  else
    text_addf(s->t, "\033[%d;5;%dm", layer, palette_of(color));
}
static void end_color(sketch *s) {
  if (s->looks.colors) text_adds(s->t, "\033[0m");
}

/* ---- texts ------------------------------------------------------------------------------------------------------------------ */

static void put_centered(sketch *s, const qn_str *text, int from, int width) {
  if (!text->len) return;
  int columns = label_columns(text->text, text->len, s->width), left = from + (width - columns) / 2;
  if (left > s->width - columns) left = s->width - columns;
  text_repeat(s->t, " ", left > 0 ? left : 0);
  text_label(s->t, text->text, text->len, s->width);
  text_adds(s->t, "\n");
}

static void put_legend(sketch *s) {
  if (!figure_named(s->f)) return;
  int sign = s->looks.colors ? 3 : 2, at = s->margin + 1;
  text_repeat(s->t, " ", at);
  for (int i = 0; i < s->f->nseries; i++) {
    const qn_str *name = s->f->series[i].name;
    int room = s->width - s->margin - 1 - sign, columns = sign + (name->len ? label_columns(name->text, name->len, room)
                                                                  : i < 10  ? 1
                                                                            : 2);
    if (i && at + 3 + columns > s->width) {
      text_adds(s->t, "\n");
      text_repeat(s->t, " ", at = s->margin + 1);
    } else if (i) {
      text_adds(s->t, "   ");
      at += 3;
    }
    at += columns;
    if (s->looks.colors) {
      put_color(s, series_color(i), false);
      text_adds(s->t, "━━ ");
      end_color(s);
    } else {
      text_addf(s->t, "%c ", marks[i % (int)(sizeof marks - 1)]);
    }
    if (name->len)
      text_label(s->t, name->text, name->len, room);
    else
      text_addf(s->t, "%d", i);
  }
  text_adds(s->t, "\n");
}

static void put_left_out(sketch *s) {
  size_t before = s->t->len;
  text_repeat(s->t, " ", s->margin + 1);
  size_t start = s->t->len;
  text_left_out(s->t, s->f);
  if (s->t->len == start)
    s->t->len = before;
  else
    text_adds(s->t, "\n");
}

/* ---- curves and bars ----------------------------------------------------------------------------------------------------------- */

static double place(const axis *a, double v, int n) { return (v - a->low) / (a->high - a->low) * n; }

/* Sets a dot. The grid has columns * dx by rows * dy dots, and (0, 0) is at the lower left. */
static void put_dot(sketch *s, int x, int y, int series) {
  static const uint8_t bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
  int dx = s->looks.colors ? 2 : 1, dy = s->looks.colors ? 4 : 1;
  if (x < 0 || y < 0 || x >= s->columns * dx || y >= s->rows * dy) return;
  y = s->rows * dy - 1 - y;
  cell *c = &s->cells[y / dy * s->columns + x / dx];
  c->dots |= bits[y % dy][x % dx];
  c->mark = marks[series % (int)(sizeof marks - 1)];
  c->color = (int16_t)series;
}

static void put_line(sketch *s, int x0, int y0, int x1, int y1, int series) {
  int dx = abs(x1 - x0), dy = abs(y1 - y0), n = dx > dy ? dx : dy;
  for (int i = 0; i <= n; i++) {
    int x = n ? x0 + (int)(((int64_t)(x1 - x0) * i * 2 + (x1 > x0 ? n : -n)) / (2 * n)) : x0;
    int y = n ? y0 + (int)(((int64_t)(y1 - y0) * i * 2 + (y1 > y0 ? n : -n)) / (2 * n)) : y0;
    put_dot(s, x, y, series);
  }
}

static bool put_curve(sketch *s, int series) {
  const figure_series *c = &s->f->series[series];
  int nx = s->columns * (s->looks.colors ? 2 : 1) - 1, ny = s->rows * (s->looks.colors ? 4 : 1) - 1, px = 0, py = 0;
  bool before = false;
  for (int64_t i = 0; i < c->n; i++) {
    if (vm_poll_item(s->vm, i)) return false;
    double vx = series_x(c, i), vy = c->y[i];
    bool good = number_drawn(vx) && number_drawn(vy);
    if (good) {
      int x = (int)(place(&s->x, vx, nx) + 0.5), y = (int)(place(&s->y, vy, ny) + 0.5);
      put_line(s, before ? px : x, before ? py : y, x, y, series);
      px = x;
      py = y;
    }
    before = good;
  }
  return true;
}

/* Draws a histogram. Each column of characters shows the highest of the bins that it covers. */
static void put_bars(sketch *s) {
  const figure_series *h = &s->f->series[0];
  int64_t bin = 0;
  for (int c = 0; c < s->columns; c++) {
    double from = s->x.low + (s->x.high - s->x.low) * c / s->columns;
    double to = s->x.low + (s->x.high - s->x.low) * (c + 1) / s->columns, top = 0;
    while (bin < h->n && h->x[bin + 1] <= from) bin++;
    for (int64_t i = bin; i < h->n && (h->x[i] < to); i++) {
      /* A bin counts if it covers at least half of the column, or is narrower than a column. */
      double low = h->x[i] > from ? h->x[i] : from, high = h->x[i + 1] < to ? h->x[i + 1] : to;
      if (high - low >= (to - from) / 2 || h->x[i + 1] - h->x[i] < to - from) top = h->y[i] > top ? h->y[i] : top;
    }
    int eighths = (int)(place(&s->y, top, s->rows * 8) + 0.5);
    if (top > 0 && eighths == 0) eighths = 1;
    for (int r = 0; r < s->rows; r++) {
      int left = eighths - 8 * r;
      cell *k = &s->cells[(s->rows - 1 - r) * s->columns + c];
      k->eighths = (uint8_t)(left < 0 ? 0 : left > 8 ? 8 : left);
      k->mark = left >= 4 || (r == 0 && top > 0) ? '#' : 0;
      k->color = left > 0 ? 0 : PLAIN;
    }
  }
}

static void put_cells(sketch *s, int row) {
  static const char *const blocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  int color = PLAIN, last = s->columns;
  while (last > 0) {
    const cell *c = &s->cells[row * s->columns + last - 1];
    if (s->looks.colors ? c->dots || c->eighths : c->mark != 0) break;
    last--;
  }
  for (int i = 0; i < last; i++) {
    const cell *c = &s->cells[row * s->columns + i];
    if (!s->looks.colors) {
      text_add(s->t, c->mark ? &c->mark : " ", 1);
      continue;
    }
    if (c->color != color) {
      if (c->color == PLAIN)
        end_color(s);
      else
        put_color(s, series_color(c->color), false);
      color = c->color;
    }
    char utf8[4];
    if (c->dots)
      text_add(s->t, utf8, (size_t)utf8_encode(0x2800u + c->dots, utf8));
    else
      text_adds(s->t, blocks[c->eighths]);
  }
  if (color != PLAIN) end_color(s);
}

/* The row in which tick i of the y axis stands, or the column of one of the x axis. */
static int tick_row(const sketch *s, int i) {
  return s->rows - 1 - (int)(place(&s->y, axis_tick(&s->y, i), s->rows - 1) + 0.5);
}
static int tick_column(const sketch *s, int i) {
  int c = (int)(place(&s->x, axis_tick(&s->x, i), s->columns - 1) + 0.5);
  return c < 0 ? 0 : c >= s->columns ? s->columns - 1 : c;
}

static void put_row(sketch *s, int row) {
  text_buf label = {.vm = s->vm};
  for (int i = 0; i < s->y.n && !label.len; i++)
    if (tick_row(s, i) == row) text_tick(&label, &s->y, i);
  bool tick = label.len > 0;
  text_repeat(s->t, " ", s->margin - (int)label.len - 1);
  if (tick) text_add(s->t, label.text, label.len);
  text_adds(s->t, s->looks.colors ? (tick ? " ┤" : " │") : tick ? " +" : " |");
  s->t->failed |= label.failed;
  text_free(&label);
  put_cells(s, row);
  text_adds(s->t, "\n");
}

/* Draws the x axis and as many of its labels as there is room for. */
static void put_below(sketch *s) {
  text_repeat(s->t, " ", s->margin);
  text_adds(s->t, s->looks.colors ? "└" : "+");
  for (int c = 0; c < s->columns; c++) {
    bool tick = false;
    for (int i = 0; i < s->x.n; i++) tick |= tick_column(s, i) == c;
    text_adds(s->t, s->looks.colors ? (tick ? "┬" : "─") : tick ? "+" : "-");
  }
  text_adds(s->t, "\n");
  int at = 0;
  for (int i = 0; i < s->x.n; i++) {
    text_buf label = {.vm = s->vm};
    text_tick(&label, &s->x, i);
    int from = s->margin + 1 + tick_column(s, i) - (int)label.len / 2;
    if (from + (int)label.len > s->width) from = s->width - (int)label.len;
    if (label.len && from >= at + (at > 0)) {
      text_repeat(s->t, " ", from - at);
      text_add(s->t, label.text, label.len);
      at = from + (int)label.len;
    }
    s->t->failed |= label.failed;
    text_free(&label);
  }
  text_adds(s->t, "\n");
}

static void fit_axes(sketch *s) {
  const figure *f = s->f;
  s->rows = s->height - 5;
  axis_fit(&s->y, f->y_low, f->y_high, s->rows / 3 + 1, true);
  s->margin = 0;
  for (int i = 0; i < s->y.n; i++) {
    text_buf label = {.vm = s->vm};
    text_tick(&label, &s->y, i);
    if ((int)label.len > s->margin) s->margin = (int)label.len;
    text_free(&label);
  }
  if (s->margin > LABEL_MAX) s->margin = LABEL_MAX;
  s->margin++;
  s->columns = s->width - s->margin - 1;
  axis_fit(&s->x, f->x_low, f->x_high, s->columns / 10 + 1, false);
}

static bool sketch_chart(sketch *s) {
  const figure *f = s->f;
  fit_axes(s);
  size_t bytes = (size_t)(s->rows * s->columns) * sizeof *s->cells;
  s->cells = mem_zalloc(s->vm, bytes);
  if (!s->cells) return false;
  bool good = true;
  for (int i = 0; i < s->rows * s->columns; i++) s->cells[i].color = PLAIN;
  if (f->kind == FIGURE_hist)
    put_bars(s);
  else
    for (int i = 0; i < f->nseries && good; i++) good = put_curve(s, i);
  if (good) {
    put_centered(s, f->title, s->margin + 1, s->columns);
    if (f->y_label->len) {
      text_label(s->t, f->y_label->text, f->y_label->len, s->width);
      text_adds(s->t, "\n");
    }
    for (int i = 0; i < s->rows; i++) put_row(s, i);
    put_below(s);
    put_centered(s, f->x_label, s->margin + 1, s->columns);
    put_legend(s);
    put_left_out(s);
  }
  mem_free(s->vm, s->cells, bytes);
  return good;
}

/* ---- images --------------------------------------------------------------------------------------------------------------------- */

/* Chooses the size of an image in pixels; a character shows two pixels, one above the other. Small images are enlarged by a whole factor,
 * large ones are made smaller by averaging. A heat map may be distorted, so that no side of it vanishes. */
static void fit_image(sketch *s, int64_t *width, int64_t *height) {
  const figure *f = s->f;
  int64_t most_x = s->width, most_y = 2 * (s->height - 2);
  int64_t up = most_x / f->width < most_y / f->height ? most_x / f->width : most_y / f->height;
  if (up >= 1) {
    int64_t enough = 32 / (f->width > f->height ? f->width : f->height) + 1;
    up = up < enough ? up : enough;
    *width = f->width * up;
    *height = f->height * up;
    return;
  }
  double x = (double)f->width / (double)most_x, y = (double)f->height / (double)most_y, by = x > y ? x : y;
  *width = (int64_t)((double)f->width / by + 0.5);
  *height = (int64_t)((double)f->height / by + 0.5);
  int64_t least_x = f->width < 16 ? f->width : 16, least_y = f->height < 16 ? f->height : 16;
  if (*width < (f->picture ? 1 : least_x)) *width = f->picture ? 1 : least_x;
  if (*height < (f->picture ? 1 : least_y)) *height = f->picture ? 1 : least_y;
  if (*width > most_x) *width = most_x;
  if (*height > most_y) *height = most_y;
}

/* Where pixel i of n begins in an image of `size` pixels. */
static int64_t cut(int64_t i, int64_t n, int64_t size) { return i * size / n; }

static uint32_t pixel(const figure *f, int64_t x, int64_t y, int64_t width, int64_t rows, int64_t height,
                      double *level) {
  int64_t y0 = cut(y, height, f->height), y1 = cut(y + rows, height, f->height);
  int64_t x0 = cut(x, width, f->width), x1 = cut(x + 1, width, f->width);
  return figure_area(f, y0, y1 > y0 ? y1 : y0 + 1, x0, x1 > x0 ? x1 : x0 + 1, level);
}

static void put_pixels(sketch *s, int64_t y, int64_t width, int64_t height) {
  uint32_t above = UINT32_MAX, below = UINT32_MAX;
  double level;
  for (int64_t x = 0; x < width; x++) {
    if (!s->looks.colors) {
      pixel(s->f, x, y, width, y + 1 < height ? 2 : 1, height, &level);
      text_add(s->t, level < 0 ? "?" : &grey[(int)(level * 9 + 0.5)], 1);
      continue;
    }
    uint32_t top = pixel(s->f, x, y, width, 1, height, &level);
    if (top != above) put_color(s, above = top, false);
    if (y + 1 < height) {
      uint32_t bottom = pixel(s->f, x, y + 1, width, 1, height, &level);
      if (bottom != below) put_color(s, below = bottom, true);
    }
    text_adds(s->t, "▀");
  }
  end_color(s);
  text_adds(s->t, "\n");
}

static void put_number(text_buf *t, double x) { text_decimal(t, x, 'g', 4); }

static void put_scale(sketch *s) {
  if (s->f->picture) return;
  put_number(s->t, s->f->low);
  text_adds(s->t, " ");
  if (s->looks.colors) {
    for (int i = 0; i < 20; i++) {
      put_color(s, heat_color(i / 19.0), false);
      text_adds(s->t, "█");
    }
    end_color(s);
  } else {
    text_addf(s->t, "[%s]", grey);
  }
  text_adds(s->t, " ");
  put_number(s->t, s->f->high);
  if (s->f->left_out) text_addf(s->t, "   %s: nan", s->looks.colors ? "grey" : "?");
  text_adds(s->t, "\n");
}

static bool sketch_image(sketch *s) {
  int64_t width, height;
  fit_image(s, &width, &height);
  put_centered(s, s->f->title, 0, (int)width);
  for (int64_t y = 0; y < height; y += 2) {
    if (vm_poll(s->vm)) return false;
    put_pixels(s, y, width, height);
  }
  put_scale(s);
  return true;
}

bool figure_sketch(qn_vm *vm, const figure *f) {
  text_buf t = {.vm = vm};
  sketch s = {.vm = vm, .f = f, .t = &t, .looks = output_look(vm, 1)};
  s.width = s.looks.columns > WIDTH_MAX ? WIDTH_MAX : s.looks.columns < WIDTH_MIN ? WIDTH_MIN : s.looks.columns;
  s.height = s.looks.rows - 4;
  s.height = s.height > HEIGHT_MAX ? HEIGHT_MAX : s.height < HEIGHT_MIN ? HEIGHT_MIN : s.height;
  bool good = f->kind == FIGURE_show ? sketch_image(&s) : sketch_chart(&s);
  good = good && text_good(&t);
  if (good) output_write(vm, 1, &t);
  text_free(&t);
  return good;
}
