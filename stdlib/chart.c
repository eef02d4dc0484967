/* Figures as charts: frame, ticks and labels around curves, bars or an image, drawn with a pen; and the pen that writes SVG.
 *
 * The chart is the same whatever draws it. Curves of many points are thinned first: of the points that fall into the same
 * tenth of a unit only the first, lowest, highest and last are kept, which looks the same.
 */
#include <string.h>

#include "lang/error.h"
#include "stdlib/figure.h"

enum { CHAR_WIDTH = 7, LINE_HEIGHT = 14, TEXT_SIZE = 11, MARGIN = 14, TICK = 5, BAR = 14 };
enum { INK = 0x333333, GRID = 0xe4e4e4, PAPER = 0xffffff };

/* ---- the chart ----------------------------------------------------------------------------------------------------------- */

typedef struct chart {
  pen *p;
  const figure *f;
  axis x, y;
  double left, top, right, bottom; /* the frame */
} chart;

static double to_x(const chart *c, double v) {
  return c->left + (v - c->x.low) / (c->x.high - c->x.low) * (c->right - c->left);
}
static double to_y(const chart *c, double v) {
  return c->bottom - (v - c->y.low) / (c->y.high - c->y.low) * (c->bottom - c->top);
}

/* Frees a text that has been drawn. False, with the error raised, if memory ran out while it was written. */
static bool text_ended(text_buf *t) {
  bool good = text_good(t);
  text_free(t);
  return good;
}

/* Draws a text, cut at its end if it is wider than `room`. */
static bool draw_text(const chart *c, double x, double y, text_place place, const char *text, size_t len, double room) {
  if (!len) return true;
  text_buf t = {.vm = c->p->vm};
  text_label(&t, text, len, (int)(room / CHAR_WIDTH));
  if (t.len && !t.failed) c->p->text(c->p, x, y, place, t.text, t.len);
  return text_ended(&t);
}

static bool draw_axes(chart *c) {
  pen *p = c->p;
  text_buf t = {.vm = p->vm};
  for (int i = 0; i < c->y.n && !t.failed; i++) {
    double y = to_y(c, axis_tick(&c->y, i));
    t.len = 0;
    text_tick(&t, &c->y, i);
    p->line(p, c->left, y, c->right, y, 1, GRID);
    p->line(p, c->left - TICK, y, c->left, y, 1, INK);
    if (t.len) p->text(p, c->left - TICK - 3, y + 4, TEXT_to, t.text, t.len);
  }
  for (int i = 0; i < c->x.n && !t.failed; i++) {
    double x = to_x(c, axis_tick(&c->x, i));
    t.len = 0;
    text_tick(&t, &c->x, i);
    p->line(p, x, c->top, x, c->bottom, 1, GRID);
    p->line(p, x, c->bottom, x, c->bottom + TICK, 1, INK);
    if (t.len) p->text(p, x, c->bottom + TICK + 12, TEXT_center, t.text, t.len);
  }
  return text_ended(&t);
}

static bool draw_frame(const chart *c) {
  pen *p = c->p;
  p->line(p, c->left, c->top, c->left, c->bottom, 1, INK);
  p->line(p, c->left, c->bottom, c->right, c->bottom, 1, INK);
  double x = (c->left + c->right) / 2, y = (c->top + c->bottom) / 2;
  double wide = x < CHART_WIDTH - x ? 2 * x : 2 * (CHART_WIDTH - x), high = c->bottom - c->top + MARGIN;
  const qn_str *title = c->f->title, *across = c->f->x_label, *up = c->f->y_label;
  return draw_text(c, CHART_WIDTH / 2.0, MARGIN + 4, TEXT_center, title->text, title->len, CHART_WIDTH - MARGIN) &&
         draw_text(c, x, CHART_HEIGHT - MARGIN + 4, TEXT_center, across->text, across->len, wide - MARGIN) &&
         draw_text(c, MARGIN, y, TEXT_upwards, up->text, up->len, high);
}

static bool draw_notes(const chart *c) {
  pen *p = c->p;
  double y = c->top + LINE_HEIGHT;
  text_buf t = {.vm = p->vm};
  for (int i = 0; i < c->f->nseries && figure_named(c->f) && y < c->bottom; i++, y += LINE_HEIGHT) {
    const qn_str *name = c->f->series[i].name;
    t.len = 0;
    if (name->len)
      text_add(&t, name->text, name->len);
    else
      text_addf(&t, "%d", i);
    p->line(p, c->right + 8, y - 4, c->right + 24, y - 4, 2, series_color(i));
    if (t.len && !draw_text(c, c->right + 28, y, TEXT_from, t.text, t.len, CHART_WIDTH - c->right - 28)) break;
  }
  if (error_pending(p->vm)) {
    text_free(&t);
    return false;
  }
  t.len = 0;
  text_left_out(&t, c->f);
  if (t.len && !c->f->picture) p->text(p, c->right, c->top - 4, TEXT_to, t.text, t.len);
  return text_ended(&t);
}

/* Those points that fall into one column of the chart and can be seen there. */
typedef struct bundle {
  int64_t column, n;
  double first[2], low[2], high[2], last[2]; /* x, y */
} bundle;

typedef struct points {
  double *xy;
  uint32_t n, cap; /* doubles in use and allocated; a point is two */
} points;

static bool add_point(pen *p, points *k, const double *at) {
  if (k->n >= 2 && k->xy[k->n - 2] == at[0] && k->xy[k->n - 1] == at[1]) return true;
  if (!mem_grow(p->vm, (void **)&k->xy, &k->cap, (size_t)k->n + 2, sizeof *k->xy)) return false;
  k->xy[k->n++] = at[0];
  k->xy[k->n++] = at[1];
  return true;
}

static bool add_bundle(pen *p, points *k, bundle *b) {
  bool good = !b->n || (add_point(p, k, b->first) && add_point(p, k, b->low) && add_point(p, k, b->high) &&
                        add_point(p, k, b->last));
  b->n = 0;
  return good;
}

static bool draw_curve(chart *c, int i) {
  const figure_series *s = &c->f->series[i];
  pen *p = c->p;
  points k = {0};
  bundle b = {0};
  bool good = true;
  for (int64_t j = 0; j <= s->n && good; j++) {
    if (vm_poll_item(p->vm, j)) {
      good = false;
      break;
    }
    if (j == s->n || !number_drawn(series_x(s, j)) || !number_drawn(s->y[j])) { /* a gap */
      good = add_bundle(p, &k, &b);
      if (good && k.n) p->curve(p, k.xy, k.n / 2, series_color(i));
      good = good && !error_pending(p->vm);
      k.n = 0;
      continue;
    }
    double at[2] = {to_x(c, series_x(s, j)), to_y(c, s->y[j])};
    int64_t column = (int64_t)(at[0] * 10);
    if (b.n && b.column != column) good = add_bundle(p, &k, &b);
    if (!b.n) {
      memcpy(b.first, at, sizeof at);
      memcpy(b.low, at, sizeof at);
      memcpy(b.high, at, sizeof at);
    }
    if (at[1] < b.low[1]) memcpy(b.low, at, sizeof at);
    if (at[1] > b.high[1]) memcpy(b.high, at, sizeof at);
    memcpy(b.last, at, sizeof at);
    b.column = column;
    b.n++;
  }
  mem_free(p->vm, k.xy, k.cap * sizeof *k.xy);
  return good;
}

static void draw_bars(chart *c) {
  const figure_series *s = &c->f->series[0];
  for (int64_t i = 0; i < s->n; i++) {
    double from = to_x(c, s->x[i]), to = to_x(c, s->x[i + 1]), y = to_y(c, s->y[i]);
    double gap = to - from > 4 ? 0.5 : 0;
    if (s->y[i] > 0) c->p->box(c->p, from + gap, y, to - from - 2 * gap, c->bottom - y, series_color(0));
  }
}

static bool draw_lines(chart *c) {
  const figure *f = c->f;
  size_t longest = 0;
  bool names = figure_named(f), good = true;
  for (int i = 0; i < f->nseries && names; i++)
    if (f->series[i].name->len > longest) longest = f->series[i].name->len;
  if (longest > 24) longest = 24;
  c->top = MARGIN + (f->title->len || f->left_out ? LINE_HEIGHT + 4 : 0);
  c->bottom = CHART_HEIGHT - MARGIN - LINE_HEIGHT - 4 - (f->x_label->len ? LINE_HEIGHT + 4 : 0);
  c->right = CHART_WIDTH - MARGIN - 6 - (names ? 34 + (double)(longest ? longest : 2) * CHAR_WIDTH : 0);
  axis_fit(&c->y, f->y_low, f->y_high, 9, true);
  text_buf t = {.vm = c->p->vm};
  size_t widest = 1;
  for (int i = 0; i < c->y.n; i++) {
    t.len = 0;
    text_tick(&t, &c->y, i);
    if (t.len > widest) widest = t.len;
  }
  text_free(&t);
  c->left = MARGIN + TICK + 3 + (double)widest * CHAR_WIDTH + (f->y_label->len ? LINE_HEIGHT : 0);
  axis_fit(&c->x, f->x_low, f->x_high, 11, false);
  good = draw_axes(c);
  if (good && f->kind == FIGURE_hist)
    draw_bars(c);
  else
    for (int i = 0; i < f->nseries && good; i++) good = draw_curve(c, i);
  return good && draw_frame(c) && draw_notes(c);
}

/* Draws the colour scale at the right of a heat map. */
static bool draw_scale(chart *c) {
  enum { STEPS = 64 };
  pen *p = c->p;
  double x = c->right + 12, step = (c->bottom - c->top) / STEPS;
  for (int i = 0; i < STEPS; i++)
    p->box(p, x, c->bottom - (i + 1) * step, BAR, step + 0.3, heat_color((i + 0.5) / STEPS));
  axis_fit(&c->y, c->f->low, c->f->high > c->f->low ? c->f->high : c->f->low, 9, false);
  text_buf t = {.vm = p->vm};
  for (int i = 0; i < c->y.n; i++) {
    double y = to_y(c, axis_tick(&c->y, i));
    t.len = 0;
    text_tick(&t, &c->y, i);
    p->line(p, x + BAR, y, x + BAR + 3, y, 1, INK);
    if (t.len) p->text(p, x + BAR + 6, y + 4, TEXT_from, t.text, t.len);
  }
  return text_ended(&t);
}

static bool draw_image(chart *c) {
  const figure *f = c->f;
  double room_x = CHART_WIDTH - 2.0 * MARGIN - (f->picture ? 0 : 100) - (f->y_label->len ? LINE_HEIGHT : 0);
  double room_y =
      CHART_HEIGHT - 2.0 * MARGIN - (f->title->len ? LINE_HEIGHT + 4 : 0) - (f->x_label->len ? LINE_HEIGHT + 4 : 0);
  double sx = room_x / (double)f->width, sy = room_y / (double)f->height, s = sx < sy ? sx : sy;
  double width = (double)f->width * s, height = (double)f->height * s;
  if (!f->picture && (width < room_x / 8 ||
                      height < room_y / 8)) { /* so long and narrow that true proportions would make it invisible */
    width = room_x;
    height = room_y;
  }
  c->left = MARGIN + (f->y_label->len ? LINE_HEIGHT : 0) + (room_x - width) / 2;
  c->top = MARGIN + (f->title->len ? LINE_HEIGHT + 4 : 0) + (room_y - height) / 2;
  c->right = c->left + width;
  c->bottom = c->top + height;
  if (!c->p->image(c->p, c->left, c->top, width, height, f)) return false;
  return draw_frame(c) && (f->picture || draw_scale(c));
}

bool chart_draw(pen *p, const figure *f) {
  chart c = {.p = p, .f = f};
  p->box(p, 0, 0, CHART_WIDTH, CHART_HEIGHT, PAPER);
  return f->kind == FIGURE_show ? draw_image(&c) : draw_lines(&c);
}

/* ---- SVG ---------------------------------------------------------------------------------------------------------------------- */

typedef struct svg {
  pen pen;
  text_buf t;
} svg;

static svg *svg_of(pen *p) { return (svg *)(void *)p; }

static void put_number(text_buf *t, double x) { text_decimal(t, x, 'f', 2); }

/* Appends an attribute of an SVG element: ` name="number"`. */
static void put_attribute(text_buf *t, const char *name, double x) {
  text_addf(t, " %s=\"", name);
  put_number(t, x);
  text_adds(t, "\"");
}

static void put_frame(text_buf *t, double x, double y, double width, double height) {
  put_attribute(t, "x", x);
  put_attribute(t, "y", y);
  put_attribute(t, "width", width);
  put_attribute(t, "height", height);
}

static void svg_line(pen *p, double x0, double y0, double x1, double y1, double width, uint32_t color) {
  text_buf *t = &svg_of(p)->t;
  text_adds(t, "<line");
  put_attribute(t, "x1", x0);
  put_attribute(t, "y1", y0);
  put_attribute(t, "x2", x1);
  put_attribute(t, "y2", y1);
  text_addf(t, " stroke=\"#%06x\"", color);
  put_attribute(t, "stroke-width", width);
  text_adds(t, "/>\n");
}

static void svg_curve(pen *p, const double *xy, int64_t n, uint32_t color) {
  text_buf *t = &svg_of(p)->t;
  if (n == 1) {
    text_adds(t, "<circle");
    put_attribute(t, "cx", xy[0]);
    put_attribute(t, "cy", xy[1]);
    text_addf(t, " r=\"2\" fill=\"#%06x\"/>\n", color);
    return;
  }
  text_addf(t, "<polyline fill=\"none\" stroke-width=\"1.6\" stroke-linejoin=\"round\" stroke=\"#%06x\" points=\"",
            color);
  for (int64_t i = 0; i < n; i++) {
    if (i) text_adds(t, " ");
    put_number(t, xy[2 * i]);
    text_adds(t, ",");
    put_number(t, xy[2 * i + 1]);
  }
  text_adds(t, "\"/>\n");
}

static void svg_box(pen *p, double x, double y, double width, double height, uint32_t color) {
  text_buf *t = &svg_of(p)->t;
  text_adds(t, "<rect");
  put_frame(t, x, y, width, height);
  text_addf(t, " fill=\"#%06x\"/>\n", color);
}

static void svg_text(pen *p, double x, double y, text_place place, const char *text, size_t len) {
  static const char *const anchors[] = {"start", "middle", "end", "middle"};
  text_buf *t = &svg_of(p)->t;
  text_adds(t, "<text");
  put_attribute(t, "x", x);
  put_attribute(t, "y", y);
  text_addf(t, " text-anchor=\"%s\"", anchors[place]);
  if (place == TEXT_upwards) {
    text_adds(t, " transform=\"rotate(-90 ");
    put_number(t, x);
    text_adds(t, " ");
    put_number(t, y);
    text_adds(t, ")\"");
  }
  text_adds(t, ">");
  for (size_t i = 0; i < len; i++) {
    char c = text[i];
    if (c == '&')
      text_adds(t, "&amp;");
    else if (c == '<')
      text_adds(t, "&lt;");
    else if (c == '>')
      text_adds(t, "&gt;");
    else
      text_add(t, (unsigned char)c < ' ' || c == 127 ? " " : &c, 1);
  }
  text_adds(t, "</text>\n");
}

static void put_base64(text_buf *t, const uint8_t *p, size_t n) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < n; i += 3) {
    uint32_t x = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0u);
    char four[4];
    for (int k = 0; k < 4; k++) four[k] = i + (size_t)k > n ? '=' : digits[x >> (18 - 6 * k) & 63];
    text_add(t, four, 4);
  }
}

/* Draws an image as a .png file that stands inside the SVG as text. */
static bool svg_image(pen *p, double x, double y, double width, double height, const figure *f) {
  enum { SIDE_MAX = 2048 };
  qn_vm *vm = p->vm;
  int64_t w = f->width < SIDE_MAX ? f->width : SIDE_MAX, h = f->height < SIDE_MAX ? f->height : SIDE_MAX;
  size_t size = (size_t)(w * h * 3);
  uint8_t *rgb = mem_alloc(vm, size);
  if (!rgb) return false;
  bool good = true;
  double level;
  for (int64_t i = 0; i < w * h && good; i++) {
    int64_t r = i / w, c = i % w;
    uint32_t color =
        figure_area(f, r * f->height / h, (r + 1) * f->height / h, c * f->width / w, (c + 1) * f->width / w, &level);
    for (int k = 0; k < 3; k++) rgb[3 * i + k] = (uint8_t)(color >> (16 - 8 * k));
    good = !vm_poll_item(vm, i);
  }
  png_pixels image = {(uint32_t)w, (uint32_t)h, 3, 8, rgb};
  bytes b = {0};
  good = good && png_encode(vm, &image, &b);
  if (good) {
    text_buf *t = &svg_of(p)->t;
    text_adds(t, "<image preserveAspectRatio=\"none\" style=\"image-rendering:pixelated\"");
    put_frame(t, x, y, width, height);
    text_adds(t, " href=\"data:image/png;base64,");
    put_base64(t, b.data, b.len);
    text_adds(t, "\"/>\n");
  }
  bytes_free(vm, &b);
  mem_free(vm, rgb, size);
  return good;
}

bool figure_svg(qn_vm *vm, qn_value v, bytes *out) {
  figure f;
  if (!figure_open(vm, "save", v, &f)) return false;
  svg s = {
      .t = {.vm = vm},
      .pen = {.vm = vm, .line = svg_line, .curve = svg_curve, .box = svg_box, .text = svg_text, .image = svg_image}};
  text_addf(&s.t,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"monospace\" "
            "font-size=\"%d\" fill=\"#%06x\">\n",
            CHART_WIDTH, CHART_HEIGHT, CHART_WIDTH, CHART_HEIGHT, TEXT_SIZE, INK);
  bool good = chart_draw(&s.pen, &f);
  text_adds(&s.t, "</svg>\n");
  good = good && text_good(&s.t) && bytes_add(vm, out, s.t.text, s.t.len);
  text_free(&s.t);
  figure_close(vm, &f);
  return good;
}
