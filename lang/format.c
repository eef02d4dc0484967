/* Values as text (format.h): print, repr and format specs.
 *
 * Arrays. A header line `f32[4, 3] cpu`, then the body as nested brackets. All elements of a body share one layout, chosen
 * from the elements that are shown: integers and bools get a common width; floats a common number of decimals, just
 * enough to show each exactly (shortest digits), but no more than FLOAT_DIGITS significant digits of the largest; when the
 * magnitudes lie too far apart for that, exponents. Rows longer than the width wrap. Arrays of more than
 * `max_items` elements show EDGE items at both ends of each long axis, and one line that sums up all elements.
 *
 * Lists and records. On one line when that fits, else as a tree: one entry a line, indented by two; lists of plain scalars
 * flow over lines. Arrays inside a tree stand on the entry's line when they are small, below it when they are moderate,
 * and as header and summary when they are large.
 *
 * Depth. Containers deeper than DEPTH_MAX levels, or deeper than the C stack allows, print as ‹...›. A one-line attempt stops
 * as soon as the line is full, so printing takes time in proportion to what is written.
 */
#include "lang/format.h"

#include <math.h>
#include <string.h>

#include "lang/error.h"

enum {
  PRINT_DEPTH = 64, /* levels of containers that print shows */
  PRINT_BYTES =
      1
      << 18, /* bytes of one value's text after which print leaves out inner containers, since shared ones could repeat without end */
  REPR_DEPTH = 400,    /* levels that repr writes; the parser reads 1,000 */
  STACK_SLACK = 65536, /* bytes of C stack to keep: a level takes a few hundred */
  EDGE = 3,            /* items shown at each end of a shortened axis */
  FLOAT_DIGITS = 5,    /* significant digits of the largest element shown */
  SMALL_ARRAY = 100,   /* elements up to which an array inside a tree shows its body */
  CODE_BYTES = 4       /* most bytes of one code point */
};

typedef struct format {
  qn_vm *vm;
  text_buf *out;
  int width;
  int64_t max_items;
  int depth, max_depth;
  int device;     /* of the array that is being written */
  bool repr;      /* the text is for repr: arrays are literals, and everything is written in full */
  qn_value whole; /* the value that repr writes, and the number of its places so far */
  uint64_t seen;
  size_t line;             /* where the current line begins in `out` */
  size_t limit;            /* an attempt to write on one line gives up beyond this length of `out` ... */
  bool no_fit;             /* ... or when it meets what needs lines of its own */
  size_t most;             /* beyond this length of `out` containers inside others are left out */
  const struct spec *spec; /* of an array's elements; NULL: the layout chooses */
} format;

static bool spec_scalar(qn_vm *vm, qn_value v, qn_dtype dtype, const struct spec *s, text_buf *out);

/* Is it pointless to go on? */
static bool full(const format *f) { return f->out->failed || f->no_fit || f->out->len > f->limit; }

/* ---- numbers ------------------------------------------------------------------------------------------------- */

/* The dtype whose shortest text shows a float: a host scalar's is f64, whatever array's format it takes. */
static qn_dtype text_dtype(qn_dtype dtype) { return dtype_is_float(dtype) ? dtype : WEAK_FLOAT; }

/* Appends an element of a dtype, or a host scalar (whose dtype is WEAK_FLOAT, for instance), as the shortest text that reads back. */
static void scalar_text(text_buf *t, qn_dtype dtype, qn_value v) {
  switch ((int)value_tag_of(v)) {
  case TAG_BOOL: text_adds(t, v.u.i ? "true" : "false"); break;
  case TAG_INT: text_int(t, v.u.i); break;
  default: text_float(t, v.u.f, text_dtype(dtype)); break;
  }
}

static void pad(text_buf *t, int64_t n) {
  for (; n > 64; n -= 64) text_repeat(t, " ", 64);
  if (n > 0) text_repeat(t, " ", (int)n);
}

/* ---- layout of array bodies ------------------------------------------------------------------------------------ */

typedef enum cell_style { CELL_PLAIN, CELL_FIXED, CELL_EXPONENT } cell_style;

typedef struct cells {
  const format *f;
  qn_dtype dtype;
  cell_style style;
  int decimals;
  int width;
} cells;

static void cell_text(const cells *c, text_buf *t, qn_value v) {
  if (c->f->spec)
    (void)spec_scalar(c->f->vm, v, c->dtype, c->f->spec,
                      t); /* cannot fail, since format_spec_among has checked that the spec fits the dtype */
  else if (c->style == CELL_PLAIN || !isfinite(v.u.f))
    scalar_text(t, c->dtype, v);
  else
    text_decimal(t, v.u.f, c->style == CELL_FIXED ? 'f' : 'e', c->decimals);
}

/* What a pass over the elements that are shown finds out. */
typedef struct survey {
  double largest, smallest; /* magnitudes of finite elements that are not 0 */
  int decimals;             /* decimals that show every finite element exactly */
  int mantissa;             /* digits of the mantissa that do so in exponent form */
  bool any;
} survey;

static void survey_add(survey *s, qn_dtype dtype, double x, text_buf *scratch) {
  if (!isfinite(x)) return;
  s->any = true;
  double a = fabs(x);
  if (a == 0) return;
  if (a > s->largest) s->largest = a;
  if (s->smallest == 0 || a < s->smallest) s->smallest = a;
  scratch->len = 0;
  text_float(scratch, a, text_dtype(dtype));
  if (scratch->failed) return;
  /* "12.5", "1e-7" or "1.25e-7": the first and last digits that are not 0, and what power of ten the last one stands for. */
  int digits = 0, after = 0, exponent = 0, first = -1, last = 0, last_after = 0;
  bool point = false;
  for (size_t i = 0; i < scratch->len; i++) {
    char ch = scratch->text[i];
    if (ch == 'e') {
      bool minus = scratch->text[i + 1] == '-';
      for (i++; i < scratch->len; i++)
        if (scratch->text[i] >= '0' && scratch->text[i] <= '9') exponent = exponent * 10 + scratch->text[i] - '0';
      if (minus) exponent = -exponent;
    } else if (ch == '.') {
      point = true;
    } else {
      digits++;
      after += point;
      if (ch == '0') continue;
      if (first < 0) first = digits;
      last = digits;
      last_after = after;
    }
  }
  /* Digits before the point that follow the last one count as negative places. */
  int before = last_after ? 0 : digits - after - last;
  int decimals = last_after - before - exponent;
  if (decimals > s->decimals) s->decimals = decimals;
  if (last - first > s->mantissa) s->mantissa = last - first;
}

/* Decimal exponent of a positive double: floor(log10(x)). */
static int exponent10(double x) {
  int e = 0;
  for (; x >= 1e16; x /= 1e16) e += 16;
  for (; x >= 10; x /= 10) e++;
  for (; x < 1e-16; x *= 1e16) e -= 16;
  for (; x < 1; x *= 10) e--;
  return e;
}

static void choose_float_style(cells *c, const survey *s) {
  int top = s->largest > 0 ? exponent10(s->largest) : 0;
  int low = s->smallest > 0 ? exponent10(s->smallest) : 0;
  bool wide = top >= 8 || top < -4 || top - low > FLOAT_DIGITS;
  /* Integers below 10^8 stay readable however far they lie apart. */
  if (s->decimals <= 0 && top < 8) wide = false;
  if (wide) {
    c->style = CELL_EXPONENT;
    c->decimals = s->mantissa < FLOAT_DIGITS - 1 ? s->mantissa : FLOAT_DIGITS - 1;
    return;
  }
  int most = FLOAT_DIGITS - 1 - top;
  if (most < 1) most = 1;
  c->style = CELL_FIXED;
  c->decimals = s->decimals < 1 ? 1 : s->decimals < most ? s->decimals : most;
}

/* Which positions of an axis are shown: all, or `edge` at each end. */
typedef struct window {
  int64_t size;
  int64_t edge; /* 0: all */
} window;

static bool window_next(const window *w, int64_t *i) {
  ++*i;
  if (w->edge && *i == w->edge) *i = w->size - w->edge;
  return *i < w->size;
}

typedef struct body {
  format *f;
  const qn_array *a;
  cells cells;
  window windows[ARRAY_MAX_RANK];
  int64_t indent;
  bool one_line;
} body;

static qn_value element_at(const qn_array *a, const int64_t *index) {
  int64_t at = a->offset;
  for (int i = 0; i < a->rank; i++) at += index[i] * a->strides[i];
  return dtype_load((qn_dtype)a->dtype, a->storage->data + at * (int64_t)dtype_size((qn_dtype)a->dtype));
}

/* Moves `index` to the next element that is shown, in row-major order; it starts as zeros. False after the last one. */
static bool next_shown(const body *b, int64_t *index) {
  for (int i = b->a->rank - 1; i >= 0; i--) {
    if (window_next(&b->windows[i], &index[i])) return true;
    index[i] = 0;
  }
  return false;
}

/* Decides which positions of each axis are shown. */
static void body_windows(body *b) {
  const qn_array *a = b->a;
  bool shorten = a->size > b->f->max_items;
  for (int64_t edge = EDGE; edge >= 1; edge--) {
    int64_t shown = 1;
    for (int i = 0; i < a->rank; i++) {
      bool cut = shorten && a->shape[i] > 2 * edge;
      b->windows[i] = (window){a->shape[i], cut ? edge : 0};
      shown *= cut ? 2 * edge : a->shape[i];
    }
    if (!shorten || shown <= b->f->max_items) break;
  }
}

/* Decides which elements are shown and how each is laid out. */
static void body_plan(body *b, format *f, const qn_array *a) {
  b->f = f;
  b->a = a;
  b->cells = (cells){.f = f, .dtype = (qn_dtype)a->dtype};
  body_windows(b);
  if (a->size == 0) return;
  text_buf scratch = {.vm = f->vm};
  survey s = {0};
  int64_t index[ARRAY_MAX_RANK] = {0};
  if (dtype_is_float((qn_dtype)a->dtype) && !f->spec) {
    do survey_add(&s, (qn_dtype)a->dtype, element_at(a, index).u.f, &scratch);
    while (next_shown(b, index));
    choose_float_style(&b->cells, &s);
  }
  memset(index, 0, sizeof index);
  do {
    scratch.len = 0;
    cell_text(&b->cells, &scratch, element_at(a, index));
    int wide = scratch.len ? (int)utf8_columns(scratch.text, scratch.len) : 0;
    if (wide > b->cells.width) b->cells.width = wide;
  } while (next_shown(b, index));
  if (scratch.failed) f->out->failed = true;
  text_free(&scratch);
}

/* Begins a new line of the output, indented. */
static void new_line(format *f, int64_t indent) {
  text_add(f->out, "\n", 1);
  f->line = f->out->len;
  pad(f->out, indent);
}

static void body_cell(body *b, const int64_t *index) {
  text_buf *t = b->f->out;
  size_t start = t->len;
  cell_text(&b->cells, t, element_at(b->a, index));
  if (t->failed || b->one_line) return;
  int missing = b->cells.width - (int)utf8_columns(t->text + start, t->len - start);
  if (missing <= 0) return;
  text_repeat(t, " ", missing);
  if (t->failed) return;
  memmove(t->text + start + missing, t->text + start, t->len - start - (size_t)missing);
  memset(t->text + start, ' ', (size_t)missing);
}

/* Writes what stands between two items of an axis. With `gap` items have been left out there. */
static void body_separate(body *b, int axis, bool gap) {
  format *f = b->f;
  int inner = b->a->rank - 1 - axis;
  if (b->one_line) {
    text_adds(f->out, gap ? ", ..., " : ", ");
    return;
  }
  int64_t indent = b->indent + axis + 1;
  if (inner == 0) {
    if (gap) text_adds(f->out, ", ...");
    text_adds(f->out, ",");
    if (f->out->len - f->line + 2 + (size_t)b->cells.width > (size_t)f->width)
      new_line(f, indent);
    else
      text_adds(f->out, " ");
    return;
  }
  text_adds(f->out, ",");
  if (gap) {
    new_line(f, indent);
    text_adds(f->out, "...,");
  }
  for (int i = 1; i < inner; i++) {
    text_add(f->out, "\n", 1);
    f->line = f->out->len;
  }
  new_line(f, indent);
}

static void body_axis(body *b, int axis, int64_t *index) {
  format *f = b->f;
  if (axis == b->a->rank) {
    body_cell(b, index);
    return;
  }
  text_adds(f->out, "[");
  const window *w = &b->windows[axis];
  if (w->size > 0) {
    int64_t i = 0, before = 0;
    do {
      if (full(f)) break;
      if (i > 0) body_separate(b, axis, i != before + 1);
      index[axis] = i;
      body_axis(b, axis + 1, index);
      before = i;
    } while (window_next(w, &i));
  }
  text_adds(f->out, "]");
}

/* Writes the body at the current position, lines below it indented. Empty arrays have the body []. */
static void write_body(format *f, const qn_array *a, int64_t indent, bool one_line) {
  body b;
  body_plan(&b, f, a);
  b.indent = indent;
  b.one_line = one_line;
  if (a->size == 0) {
    text_adds(f->out, "[]");
    return;
  }
  int64_t index[ARRAY_MAX_RANK] = {0};
  body_axis(&b, 0, index);
}

/* ---- summary ----------------------------------------------------------------------------------------------------- */

typedef struct summary {
  double sum;
  double low, high; /* of finite elements */
  int64_t low_int, high_int;
  int64_t finite, nans, infs;
} summary;

#define SUMMARY_ROW(type, read)                                                                                        \
  for (int64_t i = 0; i < n; i++) {                                                                                    \
    const type *x = (const type *)(p + i * step);                                                                      \
    int64_t element = read;                                                                                            \
    row += (double)element;                                                                                            \
    if (element < s->low_int) s->low_int = element;                                                                    \
    if (element > s->high_int) s->high_int = element;                                                                  \
  }

/* Adds n elements, `step` bytes apart, to the summary. */
static void summary_row(summary *s, qn_dtype dtype, const char *p, int64_t n, int64_t step) {
  double row = 0;
  size_t size = dtype_size(dtype);
  if (!dtype_is_float(dtype)) {
    switch (dtype_is_signed(dtype) ? size : 0) {
    case 1: SUMMARY_ROW(int8_t, *x) break;
    case 2: SUMMARY_ROW(int16_t, *x) break;
    case 4: SUMMARY_ROW(int32_t, *x) break;
    case 8: SUMMARY_ROW(int64_t, *x) break;
    default: SUMMARY_ROW(char, dtype_load(dtype, x).u.i) break;
    }
    s->finite += n;
  }
  for (int64_t i = 0; i < n && dtype_is_float(dtype); i++, p += step) {
    double x = size == 4 ? *(const float *)p : size == 8 ? *(const double *)p : dtype_load(dtype, p).u.f;
    if (isfinite(x)) {
      row += x;
      if (!s->finite || x < s->low) s->low = x;
      if (!s->finite || x > s->high) s->high = x;
      s->finite++;
    } else if (isnan(x)) {
      s->nans++;
    } else {
      s->infs++;
    }
  }
  s->sum += row;
}

/* "min -3.1  max 2.9  mean 0.01  nan 2": one line about all elements of a forced array that is not empty. Axes along which the
 * elements repeat (stride 0) are looked at once, so a broadcast number costs nothing. False when it was interrupted. */
static bool write_summary(format *f, const qn_array *a) {
  summary s = {.low_int = INT64_MAX, .high_int = INT64_MIN};
  qn_dtype dtype = (qn_dtype)a->dtype;
  int64_t index[ARRAY_MAX_RANK] = {0};
  int64_t size = (int64_t)dtype_size(dtype);
  int64_t shape[ARRAY_MAX_RANK], times = 1;
  for (int i = 0; i < a->rank; i++) {
    bool repeats = a->strides[i] == 0;
    shape[i] = repeats ? 1 : a->shape[i];
    if (repeats) times *= a->shape[i];
  }
  int last = a->rank - 1;
  for (bool more = true; more;) {
    if (vm_poll(f->vm)) return false;
    int64_t at = a->offset;
    for (int i = 0; i < last; i++) at += index[i] * a->strides[i];
    summary_row(&s, dtype, a->storage->data + at * size, last < 0 ? 1 : shape[last],
                last < 0 ? 0 : a->strides[last] * size);
    more = false;
    for (int i = last - 1; i >= 0 && !more; i--) {
      more = ++index[i] < shape[i];
      if (!more) index[i] = 0;
    }
  }
  s.sum *= (double)times;
  s.finite *= times;
  s.nans *= times;
  s.infs *= times;
  text_buf *t = f->out;
  if (dtype_is_bool(dtype)) {
    text_addf(t, "%lld of %lld true", (long long)s.sum, (long long)a->size);
    return true;
  }
  const char *gap = "";
  if (s.finite) {
    text_adds(t, "min ");
    if (dtype_is_float(dtype))
      text_decimal(t, s.low, 'g', FLOAT_DIGITS);
    else
      text_int(t, s.low_int);
    text_adds(t, "  max ");
    if (dtype_is_float(dtype))
      text_decimal(t, s.high, 'g', FLOAT_DIGITS);
    else
      text_int(t, s.high_int);
    text_adds(t, "  mean ");
    text_decimal(t, s.sum / (double)s.finite, 'g', FLOAT_DIGITS);
    gap = "  ";
  }
  if (s.nans) text_addf(t, "%snan %lld", gap, (long long)s.nans);
  if (s.infs) text_addf(t, "%sinf %lld", s.nans ? "  " : gap, (long long)s.infs);
  return true;
}

/* ---- attempts to write on the current line ------------------------------------------------------------------------------ */

typedef struct attempt {
  size_t start, limit;
} attempt;

static attempt attempt_begin(format *f) {
  attempt a = {f->out->len, f->limit};
  size_t end = f->line + (size_t)f->width * CODE_BYTES;
  if (end < f->limit) f->limit = end;
  return a;
}

/* True if what has been written since attempt_begin fits into the line. If not, it is removed again. */
static bool attempt_end(format *f, const attempt *a) {
  text_buf *t = f->out;
  bool fits = t->failed || (!full(f) && utf8_columns(t->text + f->line, t->len - f->line) <= f->width);
  f->limit = a->limit;
  f->no_fit = false;
  if (!fits) t->len = a->start;
  return fits;
}

/* ---- arrays --------------------------------------------------------------------------------------------------------- */

static void write_header(format *f, const qn_array *a) {
  text_shape(f->out, (qn_dtype)a->dtype, a->rank, a->shape);
  text_adds(f->out, " ");
  char name[DEVICE_NAME];
  text_adds(f->out, device_name(f->vm, f->device, name));
}

/* An array of the same elements in the CPU's memory, owned. Its header will name the device of `a`. */
static qn_array *readable(format *f, qn_array *a) {
  qn_array *c = array_to_device(f->vm, a, 0);
  f->device = a->device;
  return c;
}

static bool finished(format *f, qn_array *c, bool good) {
  value_release(f->vm, value_obj(TAG_ARRAY, c));
  return good;
}

/* Writes an array that stands alone: header, body, and a summary if elements are left out. */
static bool print_array(format *f, qn_array *from) {
  qn_array *a = readable(f, from);
  if (!a) return false;
  if (a->rank == 0) {
    scalar_text(f->out, (qn_dtype)a->dtype, array_get_flat(a, 0));
    return finished(f, a, true);
  }
  write_header(f, a);
  new_line(f, 0);
  write_body(f, a, 0, false);
  bool good = true;
  if (a->size > f->max_items) {
    new_line(f, 0);
    good = write_summary(f, a);
  }
  return finished(f, a, good);
}

/* Writes the elements alone on the current line. If they do not fit nothing is written: false. */
static bool short_array(format *f, const qn_array *a) {
  if (a->size > SMALL_ARRAY || a->size > f->max_items) return false;
  attempt before = attempt_begin(f);
  write_body(f, a, 0, true);
  return attempt_end(f, &before);
}

/* Writes an array that stands among other text; *own as format_among sets it. */
static bool array_among(format *f, qn_array *from, bool *own) {
  qn_array *a = readable(f, from);
  if (!a) return false;
  *own = a->rank > 0 && !short_array(f, a);
  if (*own) {
    while (f->out->len > f->line && f->out->text[f->out->len - 1] == ' ') f->out->len--;
    if (f->out->len > f->line) new_line(f, 0);
  } else if (a->rank == 0) {
    scalar_text(f->out, (qn_dtype)a->dtype, array_get_flat(a, 0));
  }
  value_release(f->vm, value_obj(TAG_ARRAY, a));
  return !*own || print_array(f, from);
}

/* Writes an array as an entry of a tree, from the current position on. Lines below the first are indented by `indent`. */
static bool entry_array(format *f, qn_array *from, int64_t indent) {
  qn_array *a = readable(f, from);
  if (!a) return false;
  if (a->rank == 0) {
    scalar_text(f->out, (qn_dtype)a->dtype, array_get_flat(a, 0));
    return finished(f, a, true);
  }
  write_header(f, a);
  if (a->size == 0) return finished(f, a, true);
  if (a->size > SMALL_ARRAY || a->size > f->max_items) {
    text_adds(f->out, "  ");
    return finished(f, a, write_summary(f, a));
  }
  attempt before = attempt_begin(f);
  text_adds(f->out, " ");
  write_body(f, a, 0, true);
  if (attempt_end(f, &before)) return finished(f, a, true);
  new_line(f, indent);
  write_body(f, a, indent, false);
  return finished(f, a, true);
}

/* ---- values inside containers, and repr ----------------------------------------------------------------------------------- */

static bool too_deep(const format *f) {
  const char *here = __builtin_frame_address(0), *limit = f->vm->c_stack_limit;
  return f->depth >= f->max_depth || (f->depth > 0 && f->out->len > f->most) || (limit && here < limit + STACK_SLACK);
}

bool name_is_word(const char *name) {
  static const char *const words[] = {
#define KEYWORD(terminal, word, look) word,
#define WORD(word) word,
#include "lang/keywords.def"
  };
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (strcmp(words[i], name) == 0) return true;
  return false;
}

bool name_is_plain(const qn_str *s) {
  if (s->len == 0 || (s->text[0] >= '0' && s->text[0] <= '9')) return false;
  for (uint32_t i = 0; i < s->len; i++) {
    char c = s->text[i];
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (!letter) return false;
  }
  return !name_is_word(s->text);
}

static void field_name(text_buf *t, const qn_str *name) {
  if (name_is_plain(name))
    text_add(t, name->text, name->len);
  else
    text_quoted(t, name->text, name->len);
  text_adds(t, ": ");
}

/* Writes a function, a module or another value that has no literal. `name` may be NULL. */
static void opaque_text(text_buf *t, const char *kind, const char *name) {
  text_adds(t, "‹");
  text_adds(t, kind);
  if (name && *name) {
    text_adds(t, " ");
    text_adds(t, name);
  }
  text_adds(t, "›");
}

/* Writes a value that is neither string, array, list nor record. */
static void atom_text(const qn_vm *vm, text_buf *t, qn_value v) {
  switch ((int)value_tag_of(v)) {
  case TAG_NIL: text_adds(t, "nil"); break;
  case TAG_BOOL:
  case TAG_INT:
  case TAG_FLOAT: scalar_text(t, WEAK_FLOAT, v); break;
  case TAG_DTYPE: text_adds(t, dtype_rows[v.u.i].name); break;
  case TAG_DEVICE: {
    char name[DEVICE_NAME];
    text_adds(t, device_name(vm, (int)v.u.i, name));
    break;
  }
  case TAG_RANGE: {
    const qn_range *r = value_range(v);
    text_addf(t, r->step == 1 ? "%lld..%lld" : "range(%lld, %lld, %lld)", (long long)r->start, (long long)r->stop,
              (long long)r->step);
    break;
  }
  case TAG_FN: {
    const qn_fn *fn = value_fn(v);
    bool builtin = fn->head.flags == FN_BUILTIN && fn->code;
    const char *name = builtin             ? ((const builtin_def *)fn->code)->name
                       : vm->hooks.fn_name ? vm->hooks.fn_name(v)
                                           : NULL;
    opaque_text(t, value_kind_name(v), name && strcmp(name, "fn") == 0 ? NULL : name); /* a lambda is called "fn" */
    break;
  }
  case TAG_MODULE: {
    const qn_module *m = v.u.p;
    opaque_text(t, "module", m->name ? m->name->text : NULL);
    break;
  }
  default: opaque_text(t, value_kind_name(v), NULL); break;
  }
}

/* Writes an int as a literal. The smallest one has no literal of its own and becomes an expression. */
static void int_literal(text_buf *t, int64_t i) {
  if (i == INT64_MIN)
    text_adds(t, "(-9223372036854775807 - 1)");
  else
    text_int(t, i);
}

static void array_literal(format *f, const qn_array *a, int axis, int64_t *index) {
  text_buf *t = f->out;
  if (axis == a->rank) {
    qn_value v = element_at(a, index);
    if (value_is(v, TAG_INT))
      int_literal(t, v.u.i);
    else
      scalar_text(t, (qn_dtype)a->dtype, v);
    return;
  }
  text_adds(t, "[");
  for (int64_t i = 0; i < a->shape[axis] && !t->failed; i++) {
    if (i) text_adds(t, ", ");
    index[axis] = i;
    array_literal(f, a, axis + 1, index);
  }
  text_adds(t, "]");
}

static bool repr_array(format *f, qn_array *from) {
  qn_array *a = readable(f, from);
  if (!a) return false;
  text_buf *t = f->out;
  const char *dtype = dtype_rows[a->dtype].name;
  if (a->size == 0) {
    text_adds(t, "zeros(");
    for (int i = 0; i < a->rank; i++) text_addf(t, "%lld, ", (long long)a->shape[i]);
    text_addf(t, "dtype: %s)", dtype);
    return finished(f, a, true);
  }
  text_adds(t, dtype);
  text_adds(t, "(");
  int64_t index[ARRAY_MAX_RANK] = {0};
  array_literal(f, a, 0, index);
  text_adds(t, ")");
  return finished(f, a, true);
}

static bool repr_value(format *f, qn_value v);

/* Writes the items of a list or, if `names` is not NULL, the fields of a record, separated by ", ". */
static bool repr_items(format *f, const qn_value *items, uint32_t n, const qn_record *names) {
  if (vm_poll(f->vm)) return false;
  for (uint32_t i = 0; i < n && !full(f); i++) {
    if (f->repr ? !tree_place(f->vm, f->whole, &f->seen) : vm_poll_item(f->vm, i)) return false;
    if (i) text_adds(f->out, ", ");
    if (names) field_name(f->out, record_name(names, i));
    if (!repr_value(f, items[i])) return false;
  }
  return true;
}

/* Writes a value for repr. Also writes containers on one line for print, where arrays are shown by their headers, and large ones count as
 * not fitting. */
static bool repr_value(format *f, qn_value v) {
  text_buf *t = f->out;
  switch ((int)value_tag_of(v)) {
  case TAG_INT: f->repr ? int_literal(t, v.u.i) : text_int(t, v.u.i); return true;
  case TAG_STR: text_quoted(t, value_str(v)->text, value_str(v)->len); return true;
  case TAG_ARRAY: {
    if (f->repr) return repr_array(f, value_array(v));
    qn_array *a = readable(f, value_array(v));
    if (!a) return false;
    if (a->rank == 0) {
      scalar_text(t, (qn_dtype)a->dtype, array_get_flat(a, 0));
    } else if (a->size > SMALL_ARRAY || a->size > f->max_items) {
      f->no_fit = true;
    } else {
      write_header(f, a);
      if (a->size > 0) {
        text_adds(t, " ");
        write_body(f, a, 0, true);
      }
    }
    return finished(f, a, true);
  }
  case TAG_LIST:
  case TAG_RECORD: {
    if (too_deep(f)) {
      text_adds(t, "‹...›");
      return true;
    }
    bool list = value_is(v, TAG_LIST);
    f->depth++;
    text_adds(t, list ? "(" : "{");
    bool good = list ? repr_items(f, value_list(v)->items, value_list(v)->len, NULL)
                     : repr_items(f, value_record(v)->items, value_record(v)->len, value_record(v));
    if (list && value_list(v)->len == 1) text_adds(t, ",");
    text_adds(t, list ? ")" : "}");
    f->depth--;
    return good;
  }
  default: atom_text(f->vm, t, v); return true;
  }
}

bool format_repr(qn_vm *vm, qn_value v, text_buf *out) {
  format f = {.vm = vm,
              .out = out,
              .width = FORMAT_COLUMNS,
              .max_items = INT64_MAX,
              .max_depth = REPR_DEPTH,
              .repr = true,
              .whole = v,
              .limit = SIZE_MAX,
              .most = SIZE_MAX};
  return repr_value(&f, v);
}

void format_lines(const char *text, size_t len, text_buf *out) {
  text_adds(out, "\"\"\"");
  for (size_t at = 0, end; at <= len; at = end + 1) {
    for (end = at; end < len && text[end] != '\n' && text[end] != '"'; end++) {}
    size_t start = out->len;
    text_quoted(out, text + at, end - at);
    if (out->failed) return;
    memmove(out->text + start, out->text + start + 1, out->len - start - 1); /* takes the quotes off */
    out->len -= 2;
    if (end == len) break;
    /* A quote needs no escape unless it could be part of the end. */
    bool plain = text[end] == '\n' || (end + 1 < len && text[end + 1] != '"');
    text_addf(out, "%s%c", plain ? "" : "\\", text[end]);
  }
  text_adds(out, "\"\"\"");
}

/* ---- trees ---------------------------------------------------------------------------------------------------------------- */

/* Writes a value on the rest of the line. 1 if it fits, 0 if not, and then nothing is written; -1 with an error raised. */
static int one_line(format *f, qn_value v) {
  attempt before = attempt_begin(f);
  bool good = repr_value(f, v);
  bool fits = attempt_end(f, &before);
  return good ? fits : -1;
}

static bool scalar_like(qn_value v) {
  return !value_is(v, TAG_LIST) && !value_is(v, TAG_RECORD) && !value_is(v, TAG_STR) &&
         !(value_is(v, TAG_ARRAY) && value_array(v)->rank > 0);
}

static bool print_entry(format *f, qn_value v, int64_t indent);

/* Writes a list of at least one scalar that is too long for one line. The items are set like words, and the middle of a very long list is
 * left out. */
static bool flow_list(format *f, const qn_list *l, int64_t indent) {
  text_buf *t = f->out;
  window w = {l->len, l->len > f->max_items ? EDGE : 0};
  text_adds(t, "(");
  int64_t i = 0, before = 0;
  do {
    if (t->failed) break;
    if (i > 0) text_adds(t, ",");
    size_t start = t->len;
    if (i > 0) text_adds(t, " ");
    if (i > before + 1) text_addf(t, "‹%lld more›, ", (long long)(i - before - 1));
    f->depth++;
    bool good = repr_value(f, l->items[i]);
    f->depth--;
    if (!good) return false;
    if (t->failed) break;
    if (i > 0 && utf8_columns(t->text + f->line, t->len - f->line) >= f->width) {
      /* Break before this item: the blank becomes a line end and the indentation. */
      int shift = (int)indent + 1;
      text_repeat(t, " ", shift);
      if (t->failed) break;
      memmove(t->text + start + 1 + shift, t->text + start + 1, t->len - start - 1 - (size_t)shift);
      t->text[start] = '\n';
      memset(t->text + start + 1, ' ', (size_t)shift);
      f->line = start + 1;
    }
    before = i;
  } while (window_next(&w, &i));
  text_adds(t, l->len == 1 ? ",)" : ")");
  return true;
}

/* Writes a list or record as brackets with an entry a line between them. */
static bool print_tree(format *f, qn_value v, int64_t indent) {
  text_buf *t = f->out;
  bool list = value_is(v, TAG_LIST);
  uint32_t n = list ? value_list(v)->len : value_record(v)->len;
  const qn_value *items = list ? value_list(v)->items : value_record(v)->items;
  if (n == 0) {
    text_adds(t, list ? "()" : "{}");
    return true;
  }
  if (list) {
    bool flat = true;
    for (uint32_t i = 0; i < n && flat; i++) flat = scalar_like(items[i]);
    if (flat) return flow_list(f, value_list(v), indent);
  }
  window w = {n, list && n > f->max_items ? EDGE : 0};
  text_adds(t, list ? "(" : "{");
  f->depth++;
  int64_t i = 0, before = 0;
  bool good = true;
  do {
    if (t->failed) break;
    if (vm_poll(f->vm)) return false;
    if (i > before + 1) {
      new_line(f, indent + 2);
      text_addf(t, "‹%lld more›", (long long)(i - before - 1));
    }
    new_line(f, indent + 2);
    if (!list) field_name(t, record_name(value_record(v), (uint32_t)i));
    good = print_entry(f, items[i], indent + 2);
    before = i;
  } while (good && window_next(&w, &i));
  f->depth--;
  new_line(f, indent);
  text_adds(t, list ? ")" : "}");
  return good;
}

/* Writes a value at the current position of a line. Lines below it are indented by `indent`. */
static bool print_entry(format *f, qn_value v, int64_t indent) {
  if (value_is(v, TAG_ARRAY)) return entry_array(f, value_array(v), indent + 2);
  if (value_is(v, TAG_LIST) || value_is(v, TAG_RECORD)) {
    if (too_deep(f)) {
      text_adds(f->out, "‹...›");
      return true;
    }
    int done = one_line(f, v);
    if (done) return done > 0;
    return print_tree(f, v, indent);
  }
  if (value_is(v, TAG_STR))
    text_quoted(f->out, value_str(v)->text, value_str(v)->len);
  else
    atom_text(f->vm, f->out, v);
  return true;
}

/* format_print if `own` is NULL, and format_among otherwise. */
static bool print_value(qn_vm *vm, qn_value v, const format_options *options, text_buf *out, bool *own) {
  format f = {.vm = vm,
              .out = out,
              .width = FORMAT_COLUMNS,
              .max_items = vm->tune[TUNE_print_items],
              .max_depth = PRINT_DEPTH,
              .limit = SIZE_MAX,
              .most = out->len + PRINT_BYTES};
  if (options && options->width > 0) f.width = options->width;
  if (options && options->max_items > 0) f.max_items = options->max_items;
  for (f.line = out->len; f.line > 0 && out->text[f.line - 1] != '\n'; f.line--) {}
  const qn_str *text = value_is(v, TAG_STR)      ? value_str(v)
                       : value_is(v, TAG_RECORD) ? record_report(value_record(v))
                                                 : NULL;
  if (text) {
    text_add(out, text->text, text->len);
    return true;
  }
  if (value_is(v, TAG_ARRAY) && own) return array_among(&f, value_array(v), own);
  if (value_is(v, TAG_ARRAY)) return print_array(&f, value_array(v));
  if (value_is(v, TAG_FN) && value_fn(v)->head.flags == FN_GRAPH) {
    vm->hooks.graph_text(v, out);
    return true;
  }
  return print_entry(&f, v, 0);
}

bool format_print(qn_vm *vm, qn_value v, const format_options *options, text_buf *out) {
  return print_value(vm, v, options, out, NULL);
}

bool format_among(qn_vm *vm, qn_value v, const format_options *options, text_buf *out, bool *own) {
  *own = false;
  return print_value(vm, v, options, out, own);
}

/* ---- format specs ------------------------------------------------------------------------------------------------------------ */

typedef struct spec {
  char fill[4];
  int fill_len;
  char align; /* < > ^ = or 0 */
  char sign;  /* + - or blank */
  bool commas;
  int width, precision; /* precision -1: none */
  char type;            /* 0: none */
  const char *text;     /* for messages */
  size_t len;
} spec;

enum { SPEC_MAX = 10000 }; /* largest width and precision */

static bool spec_number(const char **p, const char *end, int *out) {
  int n = 0;
  while (*p < end && **p >= '0' && **p <= '9') {
    n = n * 10 + (**p - '0');
    if (n > SPEC_MAX) return false;
    ++*p;
  }
  *out = n;
  return true;
}

static bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

static bool spec_parse(qn_vm *vm, const char *text, size_t len, spec *s) {
  *s = (spec){.fill = " ", .fill_len = 1, .sign = '-', .precision = -1, .text = text, .len = len};
  const char *p = text, *end = text + len;
  if (p < end) {
    uint32_t code;
    int n = utf8_decode(p, &code);
    if (end - p > n && is_align(p[n])) {
      memcpy(s->fill, p, (size_t)n);
      s->fill_len = n;
      s->align = p[n];
      p += n + 1;
    } else if (is_align(*p)) {
      s->align = *p++;
    }
  }
  if (p < end && (*p == '+' || *p == '-' || *p == ' ')) s->sign = *p++;
  if (p < end && *p == '0') {
    p++;
    if (!s->align) {
      s->align = '=';
      s->fill[0] = '0';
      s->fill_len = 1;
    }
  }
  bool good = spec_number(&p, end, &s->width);
  if (p < end && *p == ',') {
    s->commas = true;
    p++;
  }
  if (good && p < end && *p == '.') {
    p++;
    good = p < end && *p >= '0' && *p <= '9' && spec_number(&p, end, &s->precision);
  }
  if (p < end && strchr("dfegxbs%", *p)) s->type = *p++;
  if (good && p == end) return true;
  return raise_false(
      vm, E_argument,
      "\"%.*s\" is no format; it is [[fill]align][sign][0][width][,][.precision][type] with type d f e g %% x b or s, "
      "as in 8.3f",
      (int)len, text);
}

static bool spec_refuse(qn_vm *vm, const spec *s, qn_value v) {
  return raise_false(vm, E_argument, "the format \"%.*s\" does not fit %s", (int)s->len, s->text, phrase_kind(v).text);
}

/* Inserts commas into the digits before the point, in what has been written from `start` on. */
static void group_digits(text_buf *t, size_t start) {
  if (t->failed) return;
  size_t end = start;
  while (end < t->len && t->text[end] >= '0' && t->text[end] <= '9') end++;
  for (size_t n = end - start; n > 3; n -= 3) {
    size_t at = start + n - 3;
    text_add(t, " ", 1);
    if (t->failed) return;
    memmove(t->text + at + 1, t->text + at, t->len - at - 1);
    t->text[at] = ',';
  }
}

static void fill(text_buf *t, const spec *s, int64_t n) {
  for (; n > 0; n--) text_add(t, s->fill, (size_t)s->fill_len);
}

/* Writes sign and body (everything behind the sign), padded to the width. */
static void padded(text_buf *t, const spec *s, const char *sign, const char *body, size_t len, char align) {
  int64_t missing = s->width - utf8_columns(body, len) - (int64_t)strlen(sign);
  if (missing < 0) missing = 0;
  if (s->align) align = s->align;
  int64_t left = align == '>' ? missing : align == '^' ? missing / 2 : 0;
  fill(t, s, left);
  text_adds(t, sign);
  if (align == '=') fill(t, s, missing);
  text_add(t, body, len);
  if (align != '=') fill(t, s, missing - left);
}

static void digits_in_base(text_buf *t, uint64_t n, unsigned base) {
  char digits[64];
  int i = 64;
  do {
    digits[--i] = "0123456789abcdef"[n % base];
    n /= base;
  } while (n);
  text_add(t, digits + i, (size_t)(64 - i));
}

/* Writes a host number or an array element by a spec. False with E317 raised. */
static bool spec_scalar(qn_vm *vm, qn_value v, qn_dtype dtype, const spec *s, text_buf *out) {
  text_buf body = {.vm = vm};
  bool good = true, negative = false, number = true;
  char type = s->type;
  if (value_is(v, TAG_BOOL) && (type == 0 || type == 's')) {
    scalar_text(&body, dtype, v);
    number = false;
  } else if (type == 's') {
    good = false;
  } else if (!value_is(v, TAG_FLOAT) && (type == 0 || type == 'd' || type == 'x' || type == 'b')) {
    negative = v.u.i < 0;
    good = s->precision < 0;
    digits_in_base(&body, negative ? -(uint64_t)v.u.i : (uint64_t)v.u.i, type == 'x' ? 16 : type == 'b' ? 2 : 10);
  } else if (type == 'd' || type == 'x' || type == 'b') {
    good = false;
  } else {
    double x = value_is(v, TAG_FLOAT) ? v.u.f : (double)v.u.i;
    negative = !isnan(x) && signbit(x);
    x = fabs(x);
    if (type == '%') x *= 100;
    if (type == 0 && s->precision < 0)
      text_float(&body, x, text_dtype(dtype));
    else
      text_decimal(&body, x, type == '%' ? 'f' : type ? type : 'g', s->precision < 0 ? 6 : s->precision);
    if (type == '%') text_adds(&body, "%");
  }
  if (good && s->commas) {
    good = number && type != 'x' && type != 'b';
    group_digits(&body, 0);
  }
  if (body.failed)
    out->failed = true;
  else if (good)
    padded(out, s,
           negative                   ? "-"
           : number && s->sign != '-' ? (s->sign == '+' ? "+" : " ")
                                      : "",
           body.text, body.len, '>');
  text_free(&body);
  return good || spec_refuse(vm, s, v);
}

/* Writes an array whose elements are written by a spec. `own` as in print_value. */
static bool spec_array(qn_vm *vm, qn_value v, const spec *s, text_buf *out, bool *own) {
  format f = {.vm = vm,
              .out = out,
              .width = FORMAT_COLUMNS,
              .max_items = vm->tune[TUNE_print_items],
              .limit = SIZE_MAX,
              .spec = s};
  for (f.line = out->len; f.line > 0 && out->text[f.line - 1] != '\n'; f.line--) {}
  qn_array *a = readable(&f, value_array(v));
  if (!a) return false;
  bool good = true;
  if (a->rank == 0) {
    good = spec_scalar(vm, array_get_flat(a, 0), (qn_dtype)a->dtype, s, out);
  } else if (a->size == 0) {
    write_body(&f, a, 0, true);
  } else {
    text_buf first = {.vm = vm};
    good = spec_scalar(vm, array_get_flat(a, 0), (qn_dtype)a->dtype, s, &first) && array_among(&f, value_array(v), own);
    text_free(&first);
  }
  return finished(&f, a, good);
}

bool format_spec(qn_vm *vm, qn_value v, const char *text, size_t len, text_buf *out) {
  bool own;
  return format_spec_among(vm, v, text, len, out, &own);
}

bool format_spec_among(qn_vm *vm, qn_value v, const char *text, size_t len, text_buf *out, bool *own) {
  spec s;
  *own = false;
  if (!spec_parse(vm, text, len, &s)) return false;
  if (value_is_scalar(v)) return spec_scalar(vm, v, WEAK_FLOAT, &s, out);
  if (value_is(v, TAG_ARRAY)) return spec_array(vm, v, &s, out, own);
  if ((s.type && s.type != 's') || s.commas || s.sign != '-' || s.align == '=') return spec_refuse(vm, &s, v);
  text_buf shown = {.vm = vm};
  bool good = format_print(vm, v, NULL, &shown);
  if (shown.failed) {
    out->failed = true;
  } else if (good) {
    /* The precision is the largest number of code points. */
    size_t end = shown.len;
    if (s.precision >= 0) {
      end = 0;
      uint32_t code;
      for (int i = 0; i < s.precision && end < shown.len; i++) end += (size_t)utf8_decode(shown.text + end, &code);
    }
    padded(out, &s, "", shown.text, end, '<');
  }
  text_free(&shown);
  return good;
}

bool format_part(qn_vm *vm, qn_value v, qn_value how, text_buf *out, bool *own) {
  bool literal = value_is(how, TAG_BOOL);
  if (*own && (!literal || value_str(v)->text[0] != '\n')) text_adds(out, "\n");
  *own = false;
  if (literal) text_add(out, value_str(v)->text, value_str(v)->len);
  if (literal) return true;
  return value_is(how, TAG_STR) ? format_spec_among(vm, v, value_str(how)->text, value_str(how)->len, out, own)
                                : format_among(vm, v, NULL, out, own);
}
