/* Error reports as text, and the phrases that messages share.
 *
 * A report is the header, then for each text that the error or its notes point into an arrow with the place and an excerpt:
 * the lines concerned, each with one row of underlines and, where notes start, one row per label, rightmost first, so that
 * a `|` can hang from every underline whose label is still to come. Where notes are on a line their operands are
 * underlined, else the error's own place. A label is up to two parts, split at the first double blank; the second parts of
 * a line form a column. All measures are terminal columns: tabs are expanded, wide characters count two.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lang/internal.h"
#include "lang/highlight.h"

enum {
  TAB = 4,
  NUMBER_WIDTH = 5, /* columns of line numbers */
  LABEL_STEP = 10,  /* second parts of labels start at a multiple of this */
  CROP_WIDTH = 160, /* longer lines are cut around what is underlined */
  CROP_BEFORE = 40, /* columns shown before what is underlined; on a narrower terminal a quarter of its width */
  CROP_LEAST = 20,
  EXCERPT_LINES = 12,
  LOOKS_MOST = 1 << 22 /* longer texts are not coloured */
};

static const char *const STYLE_ERROR = "\033[1;31m", *const STYLE_BOLD = "\033[1m", *const STYLE_DIM = "\033[34m",
                         *const STYLE_OFF = "\033[0m";

const char *highlight_style(highlight l) {
  static const char *const styles[HIGHLIGHT_COUNT] = {
#define X(name, style) [HIGHLIGHT_##name] = style,
      HIGHLIGHTS(X)
#undef X
  };
  return styles[l];
}

/* A part of a source text that is marked: by a note, or as the error's place (text NULL). */
typedef struct mark {
  span at;
  const char *text;
  uint32_t first, last; /* line indices */
} mark;

typedef struct report {
  text_buf *out;
  const source_text *source;
  bool color;
  const uint8_t *highlights; /* of every byte of the source, where colours are wanted and known */
  int number_width;
  int columns; /* of the terminal; 0: none */
} report;

static void style(report *r, const char *code) {
  if (r->color) text_adds(r->out, code);
}

/* ---- columns ------------------------------------------------------------------------------------------------- */

static uint32_t line_start(const source_text *s, uint32_t line) { return s->lines[line]; }

/* Where a line ends, without its line break. */
static uint32_t line_end(const source_text *s, uint32_t line) {
  uint32_t end = line + 1 < s->nlines ? s->lines[line + 1] - 1 : (uint32_t)s->len;
  while (end > s->lines[line] && (s->text[end - 1] == '\r' || s->text[end - 1] == '\n')) end--;
  return end;
}

/* The width of a code point that stands at a column. Control characters are shown as a replacement character. */
static int width_at(uint32_t code, int column) {
  if (code == '\t') return TAB - column % TAB;
  if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return 1;
  return utf8_width(code);
}

/* The column of a byte offset on its line. */
static int column_of(const source_text *s, uint32_t line, uint32_t offset) {
  int column = 0;
  for (uint32_t i = line_start(s, line); i < offset;) {
    uint32_t code;
    i += (uint32_t)utf8_decode(s->text + i, &code);
    column += width_at(code, column);
  }
  return column;
}

/* Writes blanks from column *at up to a column. */
static void pad_to(report *r, int *at, int column) {
  if (column > *at) text_repeat(r->out, " ", column - *at);
  if (column > *at) *at = column;
}

/* Writes the beginning of a row: a line number, or blanks. */
static void gutter(report *r, const char *number) {
  style(r, STYLE_DIM);
  text_repeat(r->out, " ", r->number_width - (int)strlen(number));
  text_adds(r->out, number);
  text_adds(r->out, " |");
  style(r, STYLE_OFF);
}

/* ---- one line of an excerpt -------------------------------------------------------------------------------------- */

/* The part of a line that a mark covers, as columns; false if it covers none of it. */
static bool mark_columns(const report *r, const mark *m, uint32_t line, int *from, int *to) {
  if (line < m->first || line > m->last) return false;
  const source_text *s = r->source;
  uint32_t start = line == m->first ? m->at.start : line_start(s, line);
  uint32_t end = line == m->last ? m->at.end : line_end(s, line);
  uint32_t stop = line_end(s, line);
  if (end > stop) end = stop;
  if (line > m->first)
    while (start < end && (s->text[start] == ' ' || s->text[start] == '\t')) start++;
  *from = column_of(s, line, start < stop ? start : stop);
  *to = end > start ? column_of(s, line, end) : *from;
  if (*to <= *from) *to = *from + 1;
  return true;
}

/* Writes the text of a line between two columns, with tabs expanded. */
static void line_text(report *r, uint32_t line, int from, int to) {
  const source_text *s = r->source;
  uint32_t end = line_end(s, line);
  int column = 0;
  highlight now = HIGHLIGHT_plain;
  for (uint32_t i = line_start(s, line); i < end && column < to;) {
    uint32_t code;
    int n = utf8_decode(s->text + i, &code), width = width_at(code, column);
    if (column >= from) {
      highlight next = r->highlights ? (highlight)r->highlights[i] : HIGHLIGHT_plain;
      if (next != now) {
        if (*highlight_style(now)) text_adds(r->out, HIGHLIGHT_OFF);
        text_adds(r->out, highlight_style(next));
        now = next;
      }
      if (code == '\t')
        text_repeat(r->out, " ", width);
      else if (code < 0x20 || (code >= 0x7f && code < 0xa0))
        text_adds(r->out, "\xef\xbf\xbd");
      else
        text_add(r->out, s->text + i, (size_t)n);
    }
    i += (uint32_t)n;
    column += width;
  }
  if (*highlight_style(now)) text_adds(r->out, HIGHLIGHT_OFF);
}

/* A label to be written below an underline. */
typedef struct label {
  int column;
  const char *left, *right; /* right: the second part, or NULL */
  size_t left_len;
  bool written;
} label;

static int label_order(const void *a, const void *b) { return ((const label *)b)->column - ((const label *)a)->column; }

/* Rows of labels. `shift` is subtracted from all columns (cropped lines). */
static void line_labels(report *r, label *labels, int n) {
  qsort(labels, (size_t)n, sizeof *labels, label_order);
  int right = 0;
  for (int i = 0; i < n; i++) {
    const char *split = strstr(labels[i].left, "  ");
    labels[i].left_len = split ? (size_t)(split - labels[i].left) : strlen(labels[i].left);
    labels[i].right = split ? split + strspn(split, " ") : NULL;
    int end = labels[i].column + (int)utf8_columns(labels[i].left, labels[i].left_len) + 2;
    if (split && end > right) right = end;
  }
  right = (right + LABEL_STEP - 1) / LABEL_STEP * LABEL_STEP;
  for (int i = 0; i < n; i++) {
    gutter(r, "");
    text_add(r->out, " ", 1);
    int at = 0;
    for (int k = n - 1; k > i; k--) {
      if (labels[k].column >= labels[i].column || labels[k].column < at) continue;
      pad_to(r, &at, labels[k].column);
      text_add(r->out, "|", 1);
      at++;
    }
    pad_to(r, &at, labels[i].column);
    text_add(r->out, labels[i].left, labels[i].left_len);
    at += (int)utf8_columns(labels[i].left, labels[i].left_len);
    if (labels[i].right) {
      pad_to(r, &at, right);
      text_adds(r->out, labels[i].right);
    }
    text_add(r->out, "\n", 1);
  }
}

static void excerpt_line(report *r, uint32_t line, const mark *marks, int n) {
  int from[ERROR_NOTES + 1], to[ERROR_NOTES + 1], count = 0;
  label labels[ERROR_NOTES];
  int nlabels = 0;
  bool notes = false;
  for (int i = 0; i < n; i++) {
    int a, b;
    notes |= marks[i].text && mark_columns(r, &marks[i], line, &a, &b);
  }
  int width = column_of(r->source, line, line_end(r->source, line)), lowest = width;
  for (int i = 0; i < n; i++) {
    if (notes && !marks[i].text) continue;
    if (!mark_columns(r, &marks[i], line, &from[count], &to[count])) continue;
    if (from[count] < lowest) lowest = from[count];
    if (marks[i].text && line == marks[i].first)
      labels[nlabels++] = (label){.column = from[count], .left = marks[i].text};
    count++;
  }
  int crop = 0, stop = width, most = CROP_WIDTH, before = CROP_BEFORE;
  if (r->columns && r->columns - r->number_width - 3 < most) {
    most = r->columns - r->number_width - 3;
    if (most < CROP_LEAST) most = CROP_LEAST;
    before = most / 4;
  }
  if (width > most) {
    crop = lowest > before ? lowest - before : 0;
    if (crop + most > width) crop = width - most; /* the cut ends at the line's end, so that no room stays empty */
    stop = crop + most;
  }
  char number[12];
  snprintf(number, sizeof number, "%u", line + 1);
  gutter(r, number);
  if (line_end(r->source, line) > line_start(r->source, line)) text_add(r->out, " ", 1);
  line_text(r, line, crop, stop);
  text_add(r->out, "\n", 1);
  if (!count) return;
  gutter(r, "");
  text_add(r->out, " ", 1);
  style(r, STYLE_ERROR);
  int last = 0;
  for (int i = 0; i < count; i++) {
    from[i] = from[i] > crop ? from[i] - crop : 0;
    int end = most == CROP_WIDTH ? stop + 1 : stop; /* one more column, for an underline at the line's end */
    to[i] = (to[i] < end || width <= most ? to[i] : end) - crop;
    if (to[i] > last) last = to[i];
  }
  for (int c = 0; c < last; c++) {
    bool under = false;
    for (int i = 0; i < count; i++) under |= c >= from[i] && c < to[i];
    text_add(r->out, under ? "~" : " ", 1);
  }
  style(r, STYLE_OFF);
  text_add(r->out, "\n", 1);
  for (int i = 0; i < nlabels; i++) labels[i].column = labels[i].column > crop ? labels[i].column - crop : 0;
  line_labels(r, labels, nlabels);
}

/* ---- excerpts ------------------------------------------------------------------------------------------------ */

static void text_place(text_buf *out, const source_text *s, span at) {
  int line, column;
  source_position(s, at.start, &line, &column);
  text_addf(out, "%s:%d:%d", s->name, line, column);
}

/* Writes the excerpt of one text: the arrow, and the lines that the marks touch. All marks are in this text. */
static void excerpt(report *r, mark *marks, int n) {
  const source_text *s = r->source;
  uint32_t lines[2 * (ERROR_NOTES + 1)];
  int nlines = 0;
  for (int i = 0; i < n; i++) {
    mark *m = &marks[i];
    if (m->at.start > s->len) m->at.start = (uint32_t)s->len;
    if (m->at.end > s->len) m->at.end = (uint32_t)s->len;
    if (m->at.end < m->at.start) m->at.end = m->at.start;
    m->first = source_line_of(s, m->at.start);
    m->last = m->at.end > m->at.start ? source_line_of(s, m->at.end - 1) : m->first;
    uint32_t both[2] = {m->first, m->last};
    for (int k = 0; k < 2; k++) {
      int at = 0;
      while (at < nlines && lines[at] < both[k]) at++;
      if (at < nlines && lines[at] == both[k]) continue;
      memmove(lines + at + 1, lines + at, (size_t)(nlines - at) * sizeof *lines);
      lines[at] = both[k];
      nlines++;
    }
  }
  int digits = 1;
  for (uint32_t v = lines[nlines - 1] + 1; v >= 10; v /= 10) digits++;
  r->number_width = digits < NUMBER_WIDTH ? NUMBER_WIDTH : digits + 1;
  style(r, STYLE_DIM);
  text_adds(r->out, "  --> ");
  style(r, STYLE_OFF);
  text_place(r->out, s, marks[0].at);
  text_add(r->out, "\n", 1);
  for (int i = 0; i < nlines && i < EXCERPT_LINES; i++) {
    /* A single line between two that are shown is shown, too; several are left out. */
    if (i && lines[i] == lines[i - 1] + 2) {
      excerpt_line(r, lines[i] - 1, marks, n);
    } else if (i && lines[i] > lines[i - 1] + 1) {
      gutter(r, "...");
      text_add(r->out, "\n", 1);
    }
    excerpt_line(r, lines[i], marks, n);
  }
}

static void frames(qn_vm *vm, report *r, const qn_error_object *e) {
  if (e->nframes == 0 || (e->nframes == 1 && !e->frames[0].function)) return;
  for (int i = 0; i < e->nframes;) {
    if (i == ERROR_FRAMES / 2 && e->frames_dropped) text_addf(r->out, "  ... %d more\n", e->frames_dropped);
    const error_frame *f = &e->frames[i];
    int same = 1;
    while (i + same < e->nframes && !(i + same == ERROR_FRAMES / 2 && e->frames_dropped) &&
           e->frames[i + same].function == f->function && memcmp(&e->frames[i + same].at, &f->at, sizeof f->at) == 0)
      same++;
    const source_text *s = source_get(vm, f->at.source);
    text_adds(r->out, "  ");
    if (f->function) text_addf(r->out, "in %s ", f->function->text);
    if (s) {
      text_adds(r->out, "at ");
      text_place(r->out, s, f->at);
    } else {
      text_adds(r->out, f->function ? "(no text)" : "(outside)");
    }
    if (same > 1) text_addf(r->out, " (%d times)", same);
    text_add(r->out, "\n", 1);
    i += same;
  }
}

/* Writes a message that begins at column `at`, broken at blanks to fit the terminal. */
static void wrapped(report *r, const char *s, size_t len, int at) {
  size_t from = 0;
  while (from < len) {
    const char *line_break = memchr(s + from, '\n', len - from);
    size_t end = line_break ? (size_t)(line_break - s) : len;
    size_t word = from + strcspn(s + from, " \n");
    if (word > end) word = end;
    int wide = (int)utf8_columns(s + from, word - from);
    if (r->columns && from && s[from - 1] == ' ' && at + wide > r->columns && at > 2) {
      r->out->len -= r->out->len && r->out->text[r->out->len - 1] == ' ';
      text_adds(r->out, "\n  ");
      at = 2;
    }
    size_t next = word < len ? word + 1 : word;
    text_add(r->out, s + from, next - from);
    at = word < len && s[word] == '\n' ? 0 : at + wide + (int)(next - word);
    from = next;
  }
}

void error_render(qn_vm *vm, const qn_error_object *e, text_buf *out, bool color, int columns) {
  report r = {.out = out, .color = color, .columns = columns};
  style(&r, STYLE_ERROR);
  text_addf(out, "error[E%d]", (int)e->id);
  style(&r, STYLE_OFF);
  style(&r, STYLE_BOLD);
  text_adds(out, ": ");
  wrapped(&r, e->message->text, e->message->len, (int)strlen("error[E000]: "));
  style(&r, STYLE_OFF);
  text_add(out, "\n", 1);
  mark all[ERROR_NOTES + 1];
  int n = 0;
  if (source_get(vm, e->at.source)) all[n++] = (mark){.at = e->at};
  for (int i = 0; i < e->nnotes; i++)
    if (source_get(vm, e->notes[i].at.source)) all[n++] = (mark){.at = e->notes[i].at, .text = e->notes[i].text->text};
  bool done[ERROR_NOTES + 1] = {false};
  for (int i = 0; i < n; i++) {
    if (done[i]) continue;
    mark here[ERROR_NOTES + 1];
    int count = 0;
    for (int k = i; k < n; k++)
      if (all[k].at.source == all[i].at.source) {
        here[count++] = all[k];
        done[k] = true;
      }
    r.source = source_get(vm, all[i].at.source);
    uint8_t *highlights =
        color && vm->hooks.highlights && r.source->len <= LOOKS_MOST ? mem_try_alloc(vm, r.source->len) : NULL;
    if (highlights) vm->hooks.highlights(vm, r.source->text, r.source->len, highlights);
    r.highlights = highlights;
    excerpt(&r, here, count);
    mem_free(vm, highlights, r.source->len);
  }
  for (int i = 0; i < e->nnotes; i++)
    if (!source_get(vm, e->notes[i].at.source)) text_addf(out, "      = %s\n", e->notes[i].text->text);
  frames(vm, &r, e);
}

/* ---- phrases ------------------------------------------------------------------------------------------------- */

void text_shape(text_buf *t, qn_dtype dtype, int rank, const int64_t *shape) {
  text_adds(t, dtype_rows[dtype].name);
  text_add(t, "[", 1);
  for (int i = 0; i < rank; i++) {
    if (i) text_add(t, ", ", 2);
    text_int(t, shape[i]);
  }
  text_add(t, "]", 1);
}

static void text_fields(text_buf *t, const qn_record *r) {
  enum { SHOWN = 6 };
  text_adds(t, "record {");
  for (uint32_t i = 0; i < r->len && i < SHOWN; i++) text_addf(t, "%s%s", i ? ", " : "", record_name(r, i)->text);
  if (r->len > SHOWN) text_addf(t, ", ... %u more", r->len - SHOWN);
  text_adds(t, "}");
}

static void text_excerpt(text_buf *t, const qn_str *s) {
  enum { SHOWN = 40 };
  size_t at = 0;
  for (int n = 0; n < SHOWN && at < s->len; n++) {
    uint32_t code;
    at += (size_t)utf8_decode(s->text + at, &code);
  }
  text_adds(t, "str ");
  text_quoted(t, s->text, at);
  if (at < s->len) text_adds(t, "...");
}

void text_kind(text_buf *t, qn_value v) {
  switch (value_tag_of(v)) {
  case TAG_BOOL: text_adds(t, v.u.i ? "bool true" : "bool false"); break;
  case TAG_INT: text_addf(t, "int %lld", (long long)v.u.i); break;
  case TAG_FLOAT:
    text_adds(t, "float ");
    text_float(t, v.u.f, WEAK_FLOAT);
    break;
  case TAG_DTYPE: text_addf(t, "dtype %s", dtype_rows[v.u.i].name); break;
  case TAG_DEVICE:
    if (v.u.i)
      text_addf(t, "device gpu(%d)", (int)v.u.i - 1);
    else
      text_adds(t, "device cpu");
    break;
  case TAG_STR: text_excerpt(t, value_str(v)); break;
  case TAG_LIST: text_addf(t, "list of %u", value_list(v)->len); break;
  case TAG_RECORD: text_fields(t, value_record(v)); break;
  case TAG_ARRAY: {
    const qn_array *a = value_array(v);
    text_shape(t, (qn_dtype)a->dtype, a->rank, a->shape);
    break;
  }
  case TAG_FN:
    text_adds(t, value_kind_name(v));
    if (value_fn(v)->head.flags == FN_BUILTIN) text_addf(t, " %s", ((const builtin_def *)value_fn(v)->code)->name);
    break;
  case TAG_RANGE:
    text_addf(t, "range %lld..%lld", (long long)value_range(v)->start, (long long)value_range(v)->stop);
    if (value_range(v)->step != 1) text_addf(t, " by %lld", (long long)value_range(v)->step);
    break;
  case TAG_MODULE: {
    const qn_module *m = v.u.p;
    text_addf(t, "module %s", m->name ? m->name->text : "");
    break;
  }
  default: text_adds(t, value_kind_name(v));
  }
}

/* The text as a phrase. Frees the text. */
static phrase phrase_of(text_buf *t) {
  phrase p = {{0}};
  if (t->len) memcpy(p.text, t->text, t->len < sizeof p.text ? t->len : sizeof p.text - 1);
  text_free(t);
  return p;
}

phrase phrase_kind(qn_value v) {
  text_buf t = {0};
  text_kind(&t, v);
  return phrase_of(&t);
}

phrase phrase_shape(const qn_array *a) { return phrase_kind(value_obj(TAG_ARRAY, (void *)(uintptr_t)a)); }

phrase phrase_float(double x) {
  text_buf t = {0};
  text_float(&t, x, WEAK_FLOAT);
  return phrase_of(&t);
}

enum { NEAR_MAX = 64 }; /* longer names are not compared */

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }

/* The number of edits (insert, delete, replace, swap of neighbours) between two names, apart from upper and lower case. */
static int edit_distance(const char *a, int n, const char *b, int m) {
  int rows[3][NEAR_MAX + 1];
  int *before = rows[0], *above = rows[1], *row = rows[2];
  for (int j = 0; j <= m; j++) above[j] = j;
  memcpy(before, above, sizeof rows[0]);
  for (int i = 1; i <= n; i++) {
    row[0] = i;
    for (int j = 1; j <= m; j++) {
      char x = lower(a[i - 1]), y = lower(b[j - 1]);
      int best = above[j - 1] + (x != y);
      if (above[j] + 1 < best) best = above[j] + 1;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
      if (i > 1 && j > 1 && x == lower(b[j - 2]) && lower(a[i - 2]) == y && before[j - 2] + 1 < best)
        best = before[j - 2] + 1;
      row[j] = best;
    }
    int *free_row = before;
    before = above;
    above = row;
    row = free_row;
  }
  return above[m];
}

bool text_nearest(text_buf *t, const char *lead, const char *name, const char *const *names, int n) {
  enum { SHOWN = 3 };
  const char *best[SHOWN];
  int distance[SHOWN], count = 0;
  size_t len = strlen(name);
  if (len == 0 || len > NEAR_MAX) return false;
  int most = len <= 2 ? 1 : (int)(len + 2) / 3;
  for (int i = 0; i < n; i++) {
    size_t m = strlen(names[i]);
    if (m > NEAR_MAX || m > len + (size_t)most || len > m + (size_t)most) continue;
    int d = edit_distance(name, (int)len, names[i], (int)m);
    if (d > most || (size_t)d >= len || (size_t)d >= m) continue;
    if (count == SHOWN && distance[SHOWN - 1] <= d) continue;
    int at = count < SHOWN ? count++ : SHOWN - 1;
    while (at > 0 && distance[at - 1] > d) {
      distance[at] = distance[at - 1];
      best[at] = best[at - 1];
      at--;
    }
    distance[at] = d;
    best[at] = names[i];
  }
  for (int i = 0; i < count; i++) text_addf(t, "%s%s", i ? ", " : lead, best[i]);
  return count > 0;
}
