/* plot, hist and show: what they draw as a record, records as structs, and round numbers for axes. */
#include "stdlib/figure.h"

#include <math.h>
#include <string.h>

#include "lang/error.h"

static const char *const kinds[] = {[FIGURE_plot] = "plot", [FIGURE_hist] = "hist", [FIGURE_show] = "show"};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- numbers and colors ------------------------------------------------------------------------------------------------- */

/* The bounds keep the range of an axis and its margins finite. */
bool number_drawn(double x) { return x >= -1e300 && x <= 1e300; }

bool figure_named(const figure *f) {
  for (int i = 0; i < f->nseries && f->kind == FIGURE_plot; i++)
    if (f->series[i].name->len) return true;
  return f->kind == FIGURE_plot && f->nseries > 1;
}

double series_x(const figure_series *s, int64_t i) { return s->x ? s->x[i] : (double)i; }

uint32_t series_color(int i) {
  static const uint32_t colors[] = {0x2f7ed8, 0xe0533d, 0x2a9d55, 0xc99a1e, 0x8e5bc7, 0x16a3b0, 0xd45b9f, 0x7a7a7a};
  return colors[i % (int)(sizeof colors / sizeof *colors)];
}

/* The scale goes from dark violet over blue-green to yellow. Larger numbers are brighter, so it can be read in black and white print and by
 * the colour-blind. */
uint32_t heat_color(double x) {
  static const uint8_t stops[9][3] = {{66, 4, 85},    {70, 46, 124}, {58, 83, 139},  {44, 114, 142}, {33, 145, 140},
                                      {42, 175, 127}, {96, 201, 96}, {172, 220, 48}, {252, 230, 38}};
  double at = (x < 0 ? 0 : x > 1 ? 1 : x) * 8;
  int i = at >= 8 ? 7 : (int)at;
  uint32_t color = 0;
  for (int k = 0; k < 3; k++)
    color = color << 8 | (uint32_t)(stops[i][k] + (at - i) * (stops[i + 1][k] - stops[i][k]) + 0.5);
  return color;
}

/* The place of a number on the colour scale of the heat map, 0 to 1. */
static double heat_level(const figure *f, double v) {
  double level = v >= f->high ? 1 : v <= f->low ? 0 : (v - f->low) / (f->high - f->low);
  return f->high > f->low ? level : 0.5;
}

uint32_t figure_area(const figure *f, int64_t y0, int64_t y1, int64_t x0, int64_t x1, double *level) {
  double sum[4] = {0}, n = 0;
  for (int64_t y = y0; y < y1; y++)
    for (int64_t x = x0; x < x1; x++) {
      const double *p = f->image + (y * f->width + x) * f->channels;
      bool good = true;
      for (int k = 0; k < f->channels; k++) good &= p[k] == p[k];
      if (!good) continue;
      n++;
      for (int k = 0; k < f->channels; k++) {
        double v = f->picture ? p[k] / f->scale : heat_level(f, p[k]);
        sum[k] += v < 0 ? 0 : v > 1 ? 1 : v;
      }
    }
  *level = -1;
  if (n == 0) return NAN_COLOR;
  if (!f->picture) {
    *level = sum[0] / n;
    return heat_color(*level);
  }
  uint32_t color = 0;
  double alpha = f->channels == 4 ? sum[3] / n : 1;
  *level = 0;
  for (int k = 0; k < 3; k++) {
    double v = sum[f->channels == 1 ? 0 : k] / n * alpha + (1 - alpha); /* what shines through is white */
    *level += v / 3;
    color = color << 8 | (uint32_t)(v * 255 + 0.5);
  }
  return color;
}

/* ---- axes ------------------------------------------------------------------------------------------------------------------ */

static double power10(int n) {
  double x = 1;
  for (int i = 0; i < (n < 0 ? -n : n); i++) x *= 10;
  return x;
}

/* k * unit * 10**exponent, rounded only once so that ticks print as short numbers. */
static double scaled(const axis *a, double k) {
  double x = k * a->unit;
  return a->exponent < 0 ? x / power10(-a->exponent) : x * power10(a->exponent);
}

double axis_tick(const axis *a, int i) { return scaled(a, a->first + i); }

void axis_fit(axis *a, double low, double high, int most, bool widen) {
  static const int units[] = {1, 2, 5};
  double size = low < 0 ? -low : low, other = high < 0 ? -high : high;
  if (other > size) size = other;
  double least = size * 1e-9 > 1e-280 ? size * 1e-9 : 1e-280;
  if (high - low < least) {
    double by = low == high ? (size > 0 ? size * 0.1 : 1) : least;
    if (by < 1e-280) by = 1e-280;
    low -= by;
    high += by;
  }
  if (most < 2) most = 2;
  *a = (axis){.low = low, .high = high, .unit = 1};
  /* The largest power of ten below the range, then the first step that is large enough. */
  double power = 1, range = high - low;
  for (; power * 10 <= range; power *= 10) a->exponent++;
  for (; power > range; power /= 10) a->exponent--;
  a->exponent -= 2;
  for (int i = 0;; i++) {
    a->unit = units[i % 3];
    if (i && i % 3 == 0) a->exponent++;
    double step = scaled(a, 1), first = ceil(low / step - 1e-9), last = floor(high / step + 1e-9);
    if (widen) {
      first = floor(low / step + 1e-9);
      last = ceil(high / step - 1e-9);
    }
    if (last - first + 1 > most) continue;
    if (widen) {
      a->low = first * step < low ? first * step : low;
      a->high = last * step > high ? last * step : high;
    }
    a->first = first;
    a->n = last >= first ? (int)(last - first) + 1 : 0;
    return;
  }
}

void text_tick(text_buf *t, const axis *a, int i) {
  double x = axis_tick(a, i), size = a->low < 0 ? -a->low : a->low, high = a->high < 0 ? -a->high : a->high;
  if (high > size) size = high;
  if (x == 0) x = 0; /* no -0 */
  if (size < 1e6 && a->exponent >= -5) {
    text_decimal(t, x, 'f', a->exponent < 0 ? -a->exponent : 0);
    return;
  }
  int digits = 1;
  for (double unit = scaled(a, 1) / a->unit; unit * 10 <= size * (1 + 1e-9) && digits < 15; unit *= 10) digits++;
  text_decimal(t, x, 'g', digits);
}

static int label_width(uint32_t code) { return code < 32 || (code >= 127 && code < 160) ? 1 : utf8_width(code); }

int label_columns(const char *text, size_t len, int room) {
  int columns = 0;
  for (size_t i = 0; i < len && columns <= room;) {
    uint32_t code;
    i += (size_t)utf8_decode(text + i, &code);
    columns += label_width(code);
  }
  return columns < room ? columns : room;
}

void text_label(text_buf *t, const char *text, size_t len, int room) {
  static const char cut[] = "...";
  size_t kept = t->len;
  int columns = 0;
  for (size_t i = 0; i < len;) {
    uint32_t code;
    size_t n = (size_t)utf8_decode(text + i, &code);
    columns += label_width(code);
    if (columns > room) {
      if (!t->failed) t->len = kept;
      text_adds(t, cut);
      return;
    }
    if (code < 32 || (code >= 127 && code < 160))
      text_adds(t, " ");
    else
      text_add(t, text + i, n);
    if (columns + (int)strlen(cut) <= room) kept = t->len;
    i += n;
  }
}

void text_left_out(text_buf *t, const figure *f) {
  if (f->left_out)
    text_addf(t, "%lld %s %s %s left out", (long long)f->left_out,
              f->left_out == 1 ? "number that is" : "numbers that are",
              f->beyond ? "beyond 1e300 or not finite" : "not finite", f->left_out == 1 ? "is" : "are");
}

/* ---- from records ------------------------------------------------------------------------------------------------------------ */

static qn_value field(qn_value v, const char *name) {
  int at = value_is(v, TAG_RECORD) ? record_find_text(value_record(v), name, strlen(name)) : -1;
  return at < 0 ? value_nil() : value_record(v)->items[at];
}

static int kind_of(qn_value v) {
  qn_value kind = field(v, "figure");
  for (int i = 0; i < KINDS && value_is(kind, TAG_STR); i++)
    if (strcmp(value_str(kind)->text, kinds[i]) == 0) return i;
  return -1;
}

bool figure_is(qn_value v) { return kind_of(v) >= 0; }

static bool refuse_field(qn_vm *vm, const char *fn, const char *name) {
  return raise_false(vm, E_argument, "%s: the figure's field %s is not what plot, hist and show make", fn, name);
}

/* A value as a contiguous f64 array in the CPU's memory; owned. */
static qn_value numbers_of(qn_vm *vm, const char *fn, qn_value v) {
  qn_value x = arg_array(vm, fn, v, DTYPE_WIDE);
  return value_is_error(x) ? x : used(vm, x, value_new(TAG_ARRAY, array_to_cpu(vm, value_array(x))));
}

/* Gives the numbers of an array of this rank, or of a value that becomes one. The figure keeps the array alive. */
static bool hold_numbers(qn_vm *vm, const char *fn, figure *f, qn_value v, int rank, const double **data,
                         int64_t *shape) {
  qn_value x = numbers_of(vm, fn, v);
  if (value_is_error(x) || !list_push(vm, f->held, x)) return false;
  const qn_array *a = value_array(x);
  if (a->rank != rank) return raise_false(vm, E_rank, "%s: numbers of rank %d are needed, not %d", fn, rank, a->rank);
  *data = (const double *)(const void *)array_data(a);
  memcpy(shape, a->shape, (size_t)rank * sizeof *shape);
  return true;
}

static void range_start(double *low, double *high) {
  *low = INFINITY;
  *high = -INFINITY;
}
static void range_add(double *low, double *high, double x) {
  if (x < *low) *low = x;
  if (x > *high) *high = x;
}
static void range_end(double *low, double *high) {
  if (*low <= *high) return;
  *low = 0;
  *high = 1;
}

static bool open_plot(qn_vm *vm, const char *fn, qn_value v, figure *f) {
  qn_value list = field(v, "series");
  if (!value_is(list, TAG_LIST) || value_list(list)->len > FIGURE_SERIES_MAX) return refuse_field(vm, fn, "series");
  f->series = mem_zalloc(vm, FIGURE_SERIES_MAX * sizeof *f->series);
  if (!f->series) return false;
  range_start(&f->x_low, &f->x_high);
  range_start(&f->y_low, &f->y_high);
  for (uint32_t i = 0; i < value_list(list)->len; i++) {
    qn_value item = value_list(list)->items[i], name = field(item, "name"), x = field(item, "x");
    figure_series *s = &f->series[f->nseries++];
    int64_t n;
    if (!value_is(name, TAG_STR)) return refuse_field(vm, fn, "series");
    s->name = value_str(name);
    if (!hold_numbers(vm, fn, f, field(item, "y"), 1, &s->y, &s->n)) return false;
    if (!value_is(x, TAG_NIL) && !hold_numbers(vm, fn, f, x, 1, &s->x, &n)) return false;
    if (s->x && n != s->n) return refuse_field(vm, fn, "series");
    for (int64_t k = 0; k < s->n; k++) {
      if (vm_poll_item(vm, k)) return false;
      if (number_drawn(s->y[k]) && number_drawn(series_x(s, k))) {
        range_add(&f->x_low, &f->x_high, series_x(s, k));
        range_add(&f->y_low, &f->y_high, s->y[k]);
      } else {
        f->left_out++;
        f->beyond |= isfinite(s->y[k]) && isfinite(series_x(s, k));
      }
    }
  }
  range_end(&f->x_low, &f->x_high);
  range_end(&f->y_low, &f->y_high);
  return true;
}

/* Reads the record of a histogram. Edges enclose the numbers, so they may lie a little beyond the largest number that can be drawn. */
static bool open_hist(qn_vm *vm, const char *fn, qn_value v, figure *f) {
  int64_t edges;
  f->series = mem_zalloc(vm, FIGURE_SERIES_MAX * sizeof *f->series);
  if (!f->series) return false;
  figure_series *s = &f->series[0];
  f->nseries = 1;
  s->name = f->title;
  if (!hold_numbers(vm, fn, f, field(v, "edges"), 1, &s->x, &edges) ||
      !hold_numbers(vm, fn, f, field(v, "counts"), 1, &s->y, &s->n))
    return false;
  bool good = s->n > 0 && edges == s->n + 1 && number_drawn(s->x[0] / 2) && number_drawn(s->x[edges - 1] / 2);
  for (int64_t i = 0; i < s->n && good; i++) good = s->x[i] < s->x[i + 1] && s->y[i] >= 0 && number_drawn(s->y[i]);
  if (!good) return refuse_field(vm, fn, "counts or edges");
  f->x_low = s->x[0];
  f->x_high = s->x[s->n];
  for (int64_t i = 0; i < s->n; i++) range_add(&f->y_low, &f->y_high, s->y[i]);
  if (f->y_high == 0) f->y_high = 1;
  qn_value left_out = field(v, "left_out");
  if (value_is(left_out, TAG_INT) && left_out.u.i > 0) f->left_out = left_out.u.i;
  return true;
}

static double number_value(qn_value v) { return value_is(v, TAG_INT) ? (double)v.u.i : v.u.f; }

static bool open_show(qn_vm *vm, const char *fn, qn_value v, figure *f) {
  qn_value image = field(v, "image"), low = field(v, "low"), high = field(v, "high");
  if (!is_array(image)) return refuse_field(vm, fn, "image");
  const qn_array *a = value_array(image);
  qn_dtype dtype = (qn_dtype)a->dtype;
  bool colors = a->rank == 3 && (a->shape[2] == 3 || a->shape[2] == 4);
  bool auto_range = value_is(low, TAG_NIL) && value_is(high, TAG_NIL);
  int64_t shape[3];
  if ((a->rank != 2 && !colors) || a->size == 0) return refuse_field(vm, fn, "image");
  if (!hold_numbers(vm, fn, f, image, a->rank, &f->image, shape)) return false;
  f->height = shape[0];
  f->width = shape[1];
  f->channels = colors ? (int)shape[2] : 1;
  f->picture = colors || ((dtype == DTYPE_BYTE || dtype_is_bool(dtype)) && auto_range);
  f->scale = dtype == DTYPE_BYTE ? 255 : dtype == DTYPE_DEEP ? 65535 : 1;
  range_start(&f->low, &f->high);
  for (int64_t i = 0; i < f->height * f->width * f->channels; i++) {
    if (vm_poll_item(vm, i)) return false;
    if (number_drawn(f->image[i])) range_add(&f->low, &f->high, f->image[i]);
    f->left_out += f->image[i] != f->image[i];
  }
  range_end(&f->low, &f->high);
  if (value_is_number(low)) f->low = number_value(low);
  if (value_is_number(high)) f->high = number_value(high);
  f->x_high = (double)f->width;
  f->y_high = (double)f->height;
  return true;
}

bool figure_open(qn_vm *vm, const char *fn, qn_value v, figure *f) {
  *f = (figure){0};
  int kind = kind_of(v);
  if (kind < 0) return arg_wrong(vm, fn, "a figure that plot, hist or show made", v);
  f->kind = (figure_kind)kind;
  qn_value title = field(v, "title"), x_label = field(v, "x_label"), y_label = field(v, "y_label");
  if (!value_is(title, TAG_STR) || !value_is(x_label, TAG_STR) || !value_is(y_label, TAG_STR))
    return refuse_field(vm, fn, "title, x_label or y_label");
  f->title = value_str(title);
  f->x_label = value_str(x_label);
  f->y_label = value_str(y_label);
  f->held = list_new(vm, 0);
  if (f->held && list_push(vm, f->held, value_retain(v)) &&
      (kind == FIGURE_plot   ? open_plot(vm, fn, v, f)
       : kind == FIGURE_hist ? open_hist(vm, fn, v, f)
                             : open_show(vm, fn, v, f)))
    return true;
  figure_close(vm, f);
  return false;
}

void figure_close(qn_vm *vm, figure *f) {
  if (f->series) mem_free(vm, f->series, FIGURE_SERIES_MAX * sizeof *f->series);
  if (f->held) value_release(vm, value_obj(TAG_LIST, f->held));
  *f = (figure){0};
}

/* ---- the builtins ------------------------------------------------------------------------------------------------------------ */

/* A new record of a figure with the fields that all kinds have. `labels` are the arguments title, x_label and y_label. NULL with an error
 * raised. */
static qn_record *new_figure(qn_vm *vm, figure_kind kind, const qn_value *labels) {
  static const char *const names[] = {"title", "x_label", "y_label"};
  qn_str *text;
  for (int i = 0; i < 3; i++)
    if (!arg_str(vm, kinds[kind], "a text as title, x_label or y_label", labels[i], &text)) return NULL;
  qn_record *r = record_new(vm);
  if (!r) return NULL;
  bool good = record_set_named(vm, r, "figure", new_str(vm, kinds[kind], strlen(kinds[kind])));
  for (int i = 0; i < 3 && good; i++) good = record_set_named(vm, r, names[i], value_retain(labels[i]));
  if (good) return r;
  value_release(vm, value_obj(TAG_RECORD, r));
  return NULL;
}

static void figure_drop(qn_vm *vm, void *f) { figure_close(vm, f); }

/* Draws a figure on the VM's output and returns it. Takes the figure over; the result is owned. */
static qn_value drawn(qn_vm *vm, const char *fn, qn_value v) {
  figure f;
  bool good = figure_open(vm, fn, v, &f);
  if (good) {
    vm_owned held[2];
    vm_own(vm, &held[0], vm_drop_value, &v);
    vm_own(vm, &held[1], figure_drop, &f);
    good = figure_sketch(vm, &f);
    vm_disown(vm, &held[0]);
    figure_close(vm, &f);
  }
  if (!good) return value_fail(vm, v);
  if (vm->hooks.drawn) vm->hooks.drawn(vm, v.u.p);
  return v;
}

static qn_value finish(qn_vm *vm, const char *fn, qn_record *r, bool good) {
  qn_value v = value_obj(TAG_RECORD, r);
  return good ? drawn(vm, fn, v) : value_fail(vm, v);
}

/* ---- plot ---- */

/* Adds one series to the list. Takes over y, also on failure. */
static bool add_series(qn_vm *vm, qn_list *series, const char *name, size_t len, qn_value x, qn_value y) {
  if (value_is_error(y)) return false;
  const qn_array *a = value_array(y);
  bool good = true;
  if (a->rank != 1)
    good = raise_false(vm, E_rank, "plot: a series of numbers has rank 1, not %d", a->rank);
  else if (a->size == 0)
    good = raise_false(vm, E_argument, "plot: there is nothing to draw: %.*s%sno numbers", (int)(len < 60 ? len : 60),
                       name, len ? " has " : "");
  else if (is_array(x) && value_array(x)->shape[0] != a->shape[0])
    good = raise_false(vm, E_shape, "plot: x has %lld numbers and %s%.*s has %lld", (long long)value_array(x)->shape[0],
                       len ? "" : "y", (int)(len < 60 ? len : 60), name, (long long)a->shape[0]);
  else if (series->len == FIGURE_SERIES_MAX)
    good = raise_false(vm, E_argument, "plot: at most %d series can be drawn", FIGURE_SERIES_MAX);
  qn_record *r = good ? record_new(vm) : NULL;
  if (!r) {
    value_release(vm, y);
    return false;
  }
  good = record_set_named(vm, r, "name", new_str(vm, name, len)) && record_set_named(vm, r, "x", value_retain(x));
  good = record_set_named(vm, r, "y", good ? y : value_fail(vm, y));
  qn_value v = value_obj(TAG_RECORD, r);
  if (good) return list_push(vm, series, v);
  value_release(vm, v);
  return false;
}

/* Adds what y holds: one series for each field of a record, each item of a list that is no number, or each column of a matrix; otherwise y
 * is one series. */
static bool add_all(qn_vm *vm, qn_list *series, qn_value x, qn_value y) {
  if (value_is(y, TAG_RECORD)) {
    const qn_record *r = value_record(y);
    for (uint32_t i = 0; i < r->len; i++) {
      const qn_str *name = record_name(r, i);
      if (!add_series(vm, series, name->text, name->len, x, arg_array(vm, "plot", r->items[i], QN_DTYPE_COUNT)))
        return false;
    }
    return true;
  }
  bool several = value_is(y, TAG_LIST) && value_list(y)->len > 0;
  for (uint32_t i = 0; several && i < value_list(y)->len; i++)
    several = value_is(value_list(y)->items[i], TAG_LIST) ||
              (is_array(value_list(y)->items[i]) && value_array(value_list(y)->items[i])->rank > 0);
  if (several) {
    for (uint32_t i = 0; i < value_list(y)->len; i++)
      if (!add_series(vm, series, "", 0, x, arg_array(vm, "plot", value_list(y)->items[i], QN_DTYPE_COUNT)))
        return false;
    return true;
  }
  qn_value all = arg_array(vm, "plot", y, QN_DTYPE_COUNT);
  if (value_is_error(all)) return false;
  if (value_array(all)->rank != 2) return add_series(vm, series, "", 0, x, all);
  bool good = true;
  int64_t rows = value_array(all)->shape[0];
  for (int64_t i = 0; good && i < value_array(all)->shape[1]; i++)
    good = add_series(vm, series, "", 0, x, use_shape(vm, op_slice(vm, all, 1, i, 1, 1), 1, &rows));
  value_release(vm, all);
  return good;
}

qn_value builtin_plot(qn_vm *vm, const qn_value *args) {
  bool has_x = !value_is(args[1], TAG_NIL);
  qn_value x = has_x ? arg_array(vm, "plot", args[0], QN_DTYPE_COUNT) : value_nil();
  if (value_is_error(x)) return x;
  qn_record *r = NULL;
  if (has_x && value_array(x)->rank != 1)
    raise_error(vm, E_rank, SPAN_NONE, "plot: x has rank 1, not %d", value_array(x)->rank);
  else
    r = new_figure(vm, FIGURE_plot, args + 2);
  qn_list *series = r ? list_new(vm, 0) : NULL;
  bool good = series && add_all(vm, series, x, args[has_x ? 1 : 0]);
  if (good && !series->len) good = raise_false(vm, E_argument, "plot: there is nothing to draw: no series");
  if (good)
    good = record_set_named(vm, r, "series", value_obj(TAG_LIST, series));
  else if (series)
    value_release(vm, value_obj(TAG_LIST, series));
  value_release(vm, x);
  return r ? finish(vm, "plot", r, good) : value_error();
}

/* ---- hist ---- */

/* Counts how many of n numbers lie in each bin, [edge, next edge); the last bin includes its upper edge. */
static bool count_between(qn_vm *vm, const double *x, int64_t n, const double *edges, int64_t bins, int64_t *counts) {
  for (int64_t i = 0; i < n; i++) {
    if (vm_poll_item(vm, i)) return false;
    if (!(x[i] >= edges[0] && x[i] <= edges[bins])) continue;
    int64_t low = 0, high = bins - 1; /* the last edge that is not above */
    while (low < high) {
      int64_t middle = (low + high + 1) / 2;
      if (edges[middle] <= x[i])
        low = middle;
      else
        high = middle - 1;
    }
    counts[low]++;
  }
  return true;
}

/* The edges of `bins` bins of equal width over the range of the finite numbers in x; owned. */
static qn_value equal_edges(qn_vm *vm, const qn_array *x, int64_t bins) {
  const double *p = (const double *)(const void *)array_data(x);
  double low, high;
  range_start(&low, &high);
  for (int64_t i = 0; i < x->size; i++) {
    if (vm_poll_item(vm, i)) return value_error();
    if (number_drawn(p[i])) range_add(&low, &high, p[i]);
  }
  range_end(&low, &high);
  double size = low < 0 && -low > high ? -low : high < 0 ? -high : high, least = size * 1e-9;
  if (high - low <= least || high - low < 1e-280) {
    low -= 0.5 + least;
    high += 0.5 + least;
  }
  int64_t n = bins + 1;
  qn_array *a = array_new(vm, DTYPE_WIDE, 1, &n);
  if (!a) return value_error();
  double *edges = (double *)(void *)array_data(a);
  for (int64_t i = 0; i <= bins; i++) edges[i] = low + (high - low) * ((double)i / (double)bins);
  edges[bins] = high;
  return value_obj(TAG_ARRAY, a);
}

static bool check_edges(qn_vm *vm, qn_value edges) {
  const qn_array *a = value_array(edges);
  const double *p = (const double *)(const void *)array_data(a);
  bool good = a->rank == 1 && a->size >= 2 && number_drawn(p[0]) && number_drawn(p[a->size - 1]);
  for (int64_t i = 0; good && i + 1 < a->size; i++) good = p[i] < p[i + 1];
  if (!good)
    raise_error(vm, E_argument, SPAN_NONE, "hist: bins is how many, or at least two finite edges that increase");
  return good;
}

static bool fill_hist(qn_vm *vm, qn_record *r, const qn_array *x, qn_value bins) {
  enum { BINS_MAX = 10000 };
  bool count = value_is(bins, TAG_INT);
  if (count && (bins.u.i < 1 || bins.u.i > BINS_MAX))
    return raise_false(vm, E_argument, "hist: bins is 1 to %d, not %lld", BINS_MAX, (long long)bins.u.i);
  qn_value edges = count ? equal_edges(vm, x, bins.u.i) : numbers_of(vm, "hist", bins);
  if (!count && !value_is_error(edges) && !check_edges(vm, edges)) edges = value_fail(vm, edges);
  if (value_is_error(edges)) return false;
  int64_t n = value_array(edges)->size - 1;
  if (!record_set_named(vm, r, "edges", edges)) return false;
  qn_array *a = array_new(vm, DTYPE_INT, 1, &n);
  if (!record_set_named(vm, r, "counts", value_new(TAG_ARRAY, a))) return false;
  const double *numbers = (const double *)(const void *)array_data(x);
  int64_t *counts = (int64_t *)(void *)array_data(a), left_out = 0;
  memset(counts, 0, (size_t)n * sizeof *counts);
  if (!count_between(vm, numbers, x->size, (const double *)(const void *)array_data(value_array(edges)), n, counts))
    return false;
  for (int64_t i = 0; i < x->size; i++) left_out += !number_drawn(numbers[i]);
  return record_set_named(vm, r, "left_out", value_int(left_out));
}

qn_value builtin_hist(qn_vm *vm, const qn_value *args) {
  qn_value x = numbers_of(vm, "hist", args[0]);
  if (value_is_error(x)) return x;
  qn_record *r = NULL;
  if (value_array(x)->size == 0)
    raise_error(vm, E_argument, SPAN_NONE, "hist: there is nothing to draw: x has no elements");
  else
    r = new_figure(vm, FIGURE_hist, args + 2);
  bool good = r && fill_hist(vm, r, value_array(x), args[1]);
  value_release(vm, x);
  return r ? finish(vm, "hist", r, good) : value_error();
}

/* ---- show ---- */

static bool arg_end(qn_vm *vm, qn_value v) {
  if (value_is(v, TAG_NIL) || value_is(v, TAG_INT) || (value_is(v, TAG_FLOAT) && number_drawn(v.u.f))) return true;
  return arg_wrong(vm, "show", "a finite number as low or high", v);
}

qn_value builtin_show(qn_vm *vm, const qn_value *args) {
  if (figure_is(args[0])) return drawn(vm, "show", value_retain(args[0]));
  if (!arg_end(vm, args[1]) || !arg_end(vm, args[2])) return value_error();
  if (value_is_number(args[1]) && value_is_number(args[2]) && !(number_value(args[1]) < number_value(args[2])))
    return raise_error(vm, E_argument, SPAN_NONE, "show: low must be below high");
  qn_value image = is_array(args[0]) ? value_retain(args[0]) : arg_array(vm, "show", args[0], QN_DTYPE_COUNT);
  if (value_is_error(image)) return image;
  const qn_array *a = value_array(image);
  int64_t sides[2] = {a->shape[0], a->shape[1]};
  if (a->rank == 3 && a->shape[2] == 1) image = use_shape(vm, image, 2, sides);
  if (value_is_error(image)) return image;
  a = value_array(image);
  qn_dtype dtype = (qn_dtype)a->dtype;
  qn_record *r = NULL;
  if (a->rank != 2 && (a->rank != 3 || a->shape[2] < 3 || a->shape[2] > 4)) {
    raise_error(vm, E_rank, SPAN_NONE, "show: expected a matrix, or an image of height x width x 3 (or 4), not %s%s",
                phrase_shape(a).text, a->rank == 1 ? "; plot draws lines" : "");
  } else if (a->size == 0) {
    raise_error(vm, E_argument, SPAN_NONE, "show: there is nothing to draw: the array has no elements");
  } else if (a->rank == 3 && !dtype_is_float(dtype) && dtype != DTYPE_BYTE && dtype != DTYPE_DEEP &&
             !dtype_is_bool(dtype)) {
    raise_error(vm, E_dtype, SPAN_NONE, "show: colours are u8 (0 to 255), i32 (0 to 65535) or floats (0 to 1), not %s",
                dtype_rows[dtype].name);
  } else {
    r = new_figure(vm, FIGURE_show, args + 3);
  }
  bool good = r && record_set_named(vm, r, "image", value_retain(image)) && record_set_named(vm, r, "low", args[1]) &&
              record_set_named(vm, r, "high", args[2]);
  value_release(vm, image);
  return r ? finish(vm, "show", r, good) : value_error();
}
