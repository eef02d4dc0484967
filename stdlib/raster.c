/* The pen that draws charts in pixels, for .png: SCALE pixels a unit. Lines cover a pixel by how near it lies to them, so their
 * edges are smooth; letters are those of font.def, with a box for characters that it lacks.
 */
#include <math.h>
#include <string.h>

#include "lang/error.h"
#include "stdlib/figure.h"

enum { SCALE = 2, WIDTH = CHART_WIDTH * SCALE, HEIGHT = CHART_HEIGHT * SCALE, ADVANCE = 6 * SCALE, INK = 0x333333 };

typedef struct raster {
  pen pen;
  uint8_t *rgb;
} raster;

static uint8_t *rgb_of(pen *p) { return ((raster *)(void *)p)->rgb; }

static const uint8_t glyphs[][7] = {
#define GLYPH(c, ...) {__VA_ARGS__},
#include "stdlib/font.def"
#undef GLYPH
};
enum { GLYPHS = sizeof glyphs / sizeof *glyphs };
_Static_assert(GLYPHS == 127 - ' ', "font.def has a glyph for each visible character of ASCII");

static void blend(pen *p, int64_t x, int64_t y, double cover, uint32_t color) {
  if (x < 0 || y < 0 || x >= WIDTH || y >= HEIGHT || cover <= 0) return;
  uint8_t *at = rgb_of(p) + (y * WIDTH + x) * 3;
  if (cover > 1) cover = 1;
  for (int k = 0; k < 3; k++) at[k] = (uint8_t)(at[k] + ((int)(color >> (16 - 8 * k) & 255) - at[k]) * cover + 0.5);
}

/* Draws a line; all lengths are in pixels. */
static void draw_line(pen *p, double x0, double y0, double x1, double y1, double width, uint32_t color) {
  double dx = x1 - x0, dy = y1 - y0, length = dx * dx + dy * dy, half = width / 2;
  double top = (y0 < y1 ? y0 : y1) - half - 1, bottom = (y0 < y1 ? y1 : y0) + half + 1;
  for (int64_t y = (int64_t)(top < 0 ? 0 : top); y <= bottom && y < HEIGHT; y++) {
    /* The part of this row that the line can reach: where it crosses rows y - reach to y + reach. */
    double reach = half + 1.5, from = x0 < x1 ? x0 : x1, to = x0 < x1 ? x1 : x0, cy = (double)y + 0.5;
    if (dy * dy > 1e-6) {
      double a = x0 + (cy - reach - y0) / dy * dx, b = x0 + (cy + reach - y0) / dy * dx, low = a < b ? a : b,
             high = a < b ? b : a;
      from = low > from ? low : from;
      to = high < to ? high : to;
    }
    from -= reach;
    to += reach;
    for (int64_t x = (int64_t)(from < 0 ? 0 : from); x <= to && x < WIDTH; x++) {
      double px = (double)x + 0.5 - x0, py = cy - y0, t = length > 0 ? (px * dx + py * dy) / length : 0;
      t = t < 0 ? 0 : t > 1 ? 1 : t;
      px -= t * dx;
      py -= t * dy;
      blend(p, x, y, half + 0.5 - sqrt(px * px + py * py), color);
    }
  }
}

static void raster_line(pen *p, double x0, double y0, double x1, double y1, double width, uint32_t color) {
  if (x0 == x1)
    x0 = x1 = floor(x0 * SCALE) / SCALE; /* a thin line that lies between two columns of pixels would be grey */
  if (y0 == y1) y0 = y1 = floor(y0 * SCALE) / SCALE;
  draw_line(p, x0 * SCALE, y0 * SCALE, x1 * SCALE, y1 * SCALE, width * SCALE, color);
}

static void raster_curve(pen *p, const double *xy, int64_t n, uint32_t color) {
  if (n == 1) draw_line(p, xy[0] * SCALE, xy[1] * SCALE, xy[0] * SCALE, xy[1] * SCALE, 4 * SCALE, color);
  for (int64_t i = 0; i + 1 < n; i++) {
    if (i % 64 == 63 && vm_poll(p->vm)) return;
    draw_line(p, xy[2 * i] * SCALE, xy[2 * i + 1] * SCALE, xy[2 * i + 2] * SCALE, xy[2 * i + 3] * SCALE, 1.6 * SCALE,
              color);
  }
}

/* The length of the part of [i, i + 1) that lies between `from` and `to`. */
static double overlap(int64_t i, double from, double to) {
  double low = (double)i > from ? (double)i : from, high = (double)i + 1 < to ? (double)i + 1 : to;
  return high > low ? high - low : 0;
}

static void raster_box(pen *p, double x, double y, double width, double height, uint32_t color) {
  double x0 = x * SCALE, x1 = (x + width) * SCALE, y0 = y * SCALE, y1 = (y + height) * SCALE;
  for (int64_t i = (int64_t)(y0 < 0 ? 0 : y0); i < y1 && i < HEIGHT; i++)
    for (int64_t k = (int64_t)(x0 < 0 ? 0 : x0); k < x1 && k < WIDTH; k++)
      blend(p, k, i, overlap(i, y0, y1) * overlap(k, x0, x1), color);
}

static void draw_glyph(pen *p, int64_t x, int64_t y, uint32_t code, bool upwards) {
  static const uint8_t unknown[7] = {0x1f, 0x11, 0x11, 0x11, 0x11, 0x11, 0x1f};
  const uint8_t *rows = code >= ' ' && code < 127 ? glyphs[code - ' '] : unknown;
  for (int i = 0; i < 7 * SCALE; i++)
    for (int k = 0; k < 5 * SCALE; k++)
      if (rows[i / SCALE] >> (4 - k / SCALE) & 1) {
        if (upwards)
          blend(p, x + i - 7 * SCALE, y - k, 1, INK);
        else
          blend(p, x + k, y + i - 7 * SCALE, 1, INK);
      }
}

static void raster_text(pen *p, double x, double y, text_place place, const char *text, size_t len) {
  int64_t n = 0, left = (int64_t)(x * SCALE + 0.5), base = (int64_t)(y * SCALE + 0.5);
  uint32_t code;
  for (size_t i = 0; i < len; n++) i += (size_t)utf8_decode(text + i, &code);
  int64_t shift = place == TEXT_from ? 0 : place == TEXT_to ? n * ADVANCE : n * ADVANCE / 2, at = 0;
  for (size_t i = 0; i < len && at < WIDTH * 2; at += ADVANCE) {
    i += (size_t)utf8_decode(text + i, &code);
    if (place == TEXT_upwards)
      draw_glyph(p, left, base + shift - at, code, true);
    else
      draw_glyph(p, left - shift + at, base, code, false);
  }
}

static bool raster_image(pen *p, double x, double y, double width, double height, const figure *f) {
  int64_t x0 = (int64_t)(x * SCALE + 0.5), y0 = (int64_t)(y * SCALE + 0.5);
  int64_t w = (int64_t)(width * SCALE + 0.5), h = (int64_t)(height * SCALE + 0.5);
  double level;
  w = w < 1 ? 1 : w;
  h = h < 1 ? 1 : h;
  for (int64_t i = 0; i < h; i++) {
    if (vm_poll(p->vm)) return false;
    int64_t r0 = i * f->height / h, r1 = (i + 1) * f->height / h;
    for (int64_t k = 0; k < w; k++) {
      int64_t c0 = k * f->width / w, c1 = (k + 1) * f->width / w;
      blend(p, x0 + k, y0 + i, 1, figure_area(f, r0, r1 > r0 ? r1 : r0 + 1, c0, c1 > c0 ? c1 : c0 + 1, &level));
    }
  }
  return true;
}

bool figure_png(qn_vm *vm, qn_value v, bytes *out) {
  enum { BYTES = WIDTH * HEIGHT * 3 };
  figure f;
  if (!figure_open(vm, "save", v, &f)) return false;
  raster r = {.pen = {.vm = vm,
                      .line = raster_line,
                      .curve = raster_curve,
                      .box = raster_box,
                      .text = raster_text,
                      .image = raster_image},
              .rgb = mem_zalloc(vm, BYTES)};
  bool good = r.rgb && chart_draw(&r.pen, &f);
  png_pixels image = {WIDTH, HEIGHT, 3, 8, r.rgb};
  good = good && png_encode(vm, &image, out);
  mem_free(vm, r.rgb, BYTES);
  figure_close(vm, &f);
  return good;
}
