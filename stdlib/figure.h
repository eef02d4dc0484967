/* Figures: what plot, hist and show draw, and return as a record, which save writes and show draws again.
 *
 *   {figure: "plot", title, x_label, y_label, series: ({name, x, y}, ...)}    x may be nil: 0, 1, 2 ...
 *   {figure: "hist", title, x_label, y_label, edges, counts, left_out}        one edge more than counts
 *   {figure: "show", title, x_label, y_label, image, low, high}               low, high: nil or the ends of the colour scale
 *
 * figure_open reads such a record, which a program may have changed, into a struct that three kinds of drawing share: texts for
 * the terminal (sketch.c), and a chart (chart.c) as SVG or in pixels (raster.c).
 */
#ifndef STDLIB_FIGURE_H
#define STDLIB_FIGURE_H

#include "stdlib/builtins.h"
#include "stdlib/io.h"

typedef enum figure_kind { FIGURE_plot, FIGURE_hist, FIGURE_show } figure_kind;

/* A range with ticks at (first + i) * unit * 10**exponent, i in 0..n-1. */
typedef struct axis {
  double low, high;
  double first;
  int unit, exponent, n;
} axis;

typedef struct figure_series {
  const qn_str *name; /* may be empty */
  int64_t n;
  const double *x, *y; /* x NULL: 0, 1, 2 ... */
} figure_series;

typedef struct figure {
  figure_kind kind;
  const qn_str *title, *x_label, *y_label;
  figure_series *series; /* of a histogram one: x are the edges, y the counts */
  int nseries;
  double x_low, x_high, y_low, y_high; /* the range of what is drawn */
  int64_t left_out;                    /* numbers that are not finite (or beyond 1e300) */
  bool beyond;                         /* some of those left out are finite */
  const double *image;
  int64_t height, width;
  int channels; /* 1, 3 or 4 */
  bool picture; /* grey or colours of 0..scale, no heat map */
  double scale;
  double low, high; /* of the heat map's colours */
  qn_list *held;    /* the arrays behind all this, and the record */
} figure;

enum { FIGURE_SERIES_MAX = 100, NAN_COLOR = 0x9a9a9a };

bool figure_is(qn_value v);
/* Reads what is to be drawn. Borrows v, keeping what it needs of it. False with an error raised, which names `fn`; else figure_close is to be
 * called. */
QN_MUST_CHECK bool figure_open(qn_vm *vm, const char *fn, qn_value v, figure *f);
void figure_close(qn_vm *vm, figure *f);

/* Does it need a legend: is there a series with a name, or more than one? */
bool figure_named(const figure *f);
double series_x(const figure_series *s, int64_t i);
/* Can the number be drawn? */
bool number_drawn(double x);
/* Color of a series, and of a place between 0 and 1 on the scale of heat maps: 0xRRGGBB. */
uint32_t series_color(int i);
uint32_t heat_color(double x);
/* The mean colour of the pixels in [y0, y1) x [x0, x1). *level is its brightness, or its place on the scale of a heat map, 0 to 1; -1 if the
 * pixels are nan. */
uint32_t figure_area(const figure *f, int64_t y0, int64_t y1, int64_t x0, int64_t x1, double *level);

/* Gives an axis from low to high ticks at round numbers, at most `most` (2 or more). With `widen` the range is widened to end at ticks. */
void axis_fit(axis *a, double low, double high, int most, bool widen);
/* The number at tick i, and its text as the axis's scale needs it. */
double axis_tick(const axis *a, int i);
void text_tick(text_buf *t, const axis *a, int i);
/* A program's text on one line, cut at its end where it needs more than `room` columns. Control characters become blanks, so that a
 * label cannot move a terminal's cursor. */
void text_label(text_buf *t, const char *text, size_t len, int room);
/* Columns of the terminal that text_label fills. */
int label_columns(const char *text, size_t len, int room);
/* Appends "3 numbers that are not finite are left out" if the figure left some out. */
void text_left_out(text_buf *t, const figure *f);

/* Draws on the VM's output, sized to its terminal (sketch.c). */
QN_MUST_CHECK bool figure_sketch(qn_vm *vm, const figure *f);

/* Writers of formats.c (chart.c, raster.c). */
QN_MUST_CHECK bool figure_svg(qn_vm *vm, qn_value v, bytes *out);
QN_MUST_CHECK bool figure_png(qn_vm *vm, qn_value v, bytes *out);
/* Writers of pictures of graphs (picture.c): of a graph value, or of what explain gave. */
QN_MUST_CHECK bool picture_svg(qn_vm *vm, qn_value v, bytes *out);
QN_MUST_CHECK bool picture_dot(qn_vm *vm, qn_value v, bytes *out);

/* What a chart is drawn with. Lengths are in units of which it has CHART_WIDTH x CHART_HEIGHT, from its upper left corner. */
enum { CHART_WIDTH = 640, CHART_HEIGHT = 400 };
typedef enum text_place { TEXT_from, TEXT_center, TEXT_to, TEXT_upwards } text_place;
typedef struct pen {
  qn_vm *vm;
  void (*line)(struct pen *p, double x0, double y0, double x1, double y1, double width, uint32_t color);
  /* Through n points; one is a dot. Stops, with the error raised, when the VM is interrupted. */
  void (*curve)(struct pen *p, const double *xy, int64_t n, uint32_t color);
  void (*box)(struct pen *p, double x, double y, double width, double height, uint32_t color);
  void (*text)(struct pen *p, double x, double y, text_place place, const char *text,
               size_t len); /* (x, y) lies on its base line */
  bool (*image)(struct pen *p, double x, double y, double width, double height, const figure *f);
} pen;
QN_MUST_CHECK bool chart_draw(pen *p, const figure *f);

#endif
