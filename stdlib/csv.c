/* .csv: rows of cells. Read twice: the first pass finds how many rows there are and what each column holds, the second one fills
 * arrays of just that size.
 *
 *   separator   of comma, semicolon and tab the one that the first line has most of
 *   header      the first row is one if a cell of it is quoted or is neither a number, a bool nor missing
 *   without     an array: one row each; a file of one column gives rank 1. i64 if all cells are ints, bool if all are
 *               true or false, else f64
 *   with        a record of columns: bool, i64, f64, or a list of strings, as the column's first cell that is not missing says
 *   missing     nothing, nan, NA, N/A, null, None: nan in columns of numbers
 *   quotes      "a ""quoted"" cell, that may hold separators and line ends"
 *
 * A cell that its column cannot hold is an error: one bad cell shall not make texts of all numbers. Blank lines are no rows.
 * Lines and columns are counted from 1 in messages.
 */
#include <math.h>
#include <string.h>
#include <strings.h>

#include "lang/error.h"
#include "stdlib/builtins.h"
#include "stdlib/io.h"

/* ---- cells ------------------------------------------------------------------------------------------------------------- */

typedef struct reader {
  qn_vm *vm;
  const char *path;
  const char *p, *end;
  char separator;
  int64_t line;
} reader;

typedef struct cell {
  const char *text; /* inside the quotes */
  size_t len;
  bool quoted, doubled; /* doubled: holds "" for " */
  bool last;            /* of its row */
  int64_t line, column;
} cell;

static bool at_line_end(const reader *r) { return r->p == r->end || *r->p == '\n' || *r->p == '\r'; }

static bool is_blank(const reader *r, char c) { return c == ' ' || (c == '\t' && r->separator != '\t'); }

/* Moves behind the end of the line, where the reader is. */
static void next_line(reader *r) {
  if (r->p == r->end) return;
  if (*r->p++ == '\r' && r->p < r->end && *r->p == '\n') r->p++;
  r->line++;
}

/* Goes to the next row; false at the end of the file. */
static bool next_row(reader *r) {
  while (r->p < r->end) {
    const char *start = r->p;
    while (r->p < r->end && is_blank(r, *r->p)) r->p++;
    if (!at_line_end(r)) {
      r->p = start;
      return true;
    }
    next_line(r);
  }
  return false;
}

static bool refuse_cell(const reader *r, const cell *c, const char *what) {
  int n = (int)(c->len < 40 ? utf8_valid_prefix(c->text, c->len) : utf8_valid_prefix(c->text, 40));
  return file_refuse(r->vm, r->path, "line %lld, column %lld: \"%.*s%s\" %s", (long long)c->line, (long long)c->column,
                     n, c->text, (size_t)n < c->len ? "..." : "", what);
}

static bool next_cell(reader *r, int64_t column, cell *c) {
  while (r->p < r->end && is_blank(r, *r->p)) r->p++;
  *c = (cell){.text = r->p, .line = r->line, .column = column};
  if (r->p < r->end && *r->p == '"') {
    c->quoted = true;
    c->text = ++r->p;
    for (;;) {
      if (r->p == r->end)
        return file_refuse(r->vm, r->path, "line %lld, column %lld: the quote is never closed", (long long)c->line,
                           (long long)column);
      if (*r->p == '\n' || *r->p == '\r') {
        next_line(r);
      } else if (*r->p++ == '"') {
        if (r->p == r->end || *r->p != '"') break;
        c->doubled = true;
        r->p++;
      }
    }
    c->len = (size_t)(r->p - c->text) - 1;
    while (r->p < r->end && is_blank(r, *r->p)) r->p++;
    if (!at_line_end(r) && *r->p != r->separator) return refuse_cell(r, c, "is followed by text behind its quotes");
  } else {
    while (!at_line_end(r) && *r->p != r->separator) r->p++;
    c->len = (size_t)(r->p - c->text);
    while (c->len && is_blank(r, c->text[c->len - 1])) c->len--;
  }
  c->last = at_line_end(r);
  if (c->last)
    next_line(r);
  else
    r->p++;
  return true;
}

static qn_value cell_text(qn_vm *vm, const cell *c) {
  if (!c->doubled) return new_str(vm, c->text, c->len);
  text_buf t = {.vm = vm};
  for (size_t i = 0; i < c->len; i++) {
    text_add(&t, c->text + i, 1);
    if (c->text[i] == '"') i++;
  }
  return text_take(&t);
}

/* ---- what cells are --------------------------------------------------------------------------------------------------------- */

typedef enum cell_kind { CELL_missing, CELL_bool, CELL_int, CELL_float, CELL_text } cell_kind;

static bool is_word(const cell *c, const char *word) {
  return c->len == strlen(word) && strncasecmp(c->text, word, c->len) == 0;
}

/* Tells what a cell is, and its value: *i for ints and bools, *f for floats, and nan in *f for a missing cell. */
static cell_kind read_cell(const cell *c, int64_t *i, double *f) {
  static const char *const missing[] = {"", "nan", "na", "n/a", "null", "none"};
  for (size_t k = 0; k < sizeof missing / sizeof *missing; k++)
    if (is_word(c, missing[k])) {
      *f = NAN;
      return CELL_missing;
    }
  if (is_word(c, "true") || is_word(c, "false")) {
    *i = c->len == 4;
    return CELL_bool;
  }
  bool digits = true, number = true;
  for (size_t k = 0; k < c->len; k++) {
    bool digit = c->text[k] >= '0' && c->text[k] <= '9';
    digits &= digit || (k == 0 && (c->text[k] == '-' || c->text[k] == '+'));
    number &= digit || memchr("+-.eE", c->text[k], 5) != NULL;
  }
  if (digits && int_parse(c->text, c->len, i)) {
    *f = (double)*i;
    return CELL_int;
  }
  size_t sign = c->text[0] == '-' || c->text[0] == '+';
  cell rest = {.text = c->text + sign, .len = c->len - sign};
  if (is_word(&rest, "inf") || is_word(&rest, "infinity")) {
    *f = c->text[0] == '-' ? -INFINITY : INFINITY;
    return CELL_float;
  }
  return number && float_parse(c->text, c->len, f) ? CELL_float : CELL_text;
}

/* ---- columns ------------------------------------------------------------------------------------------------------------------ */

typedef struct column {
  cell_kind kind; /* CELL_missing: no other cell yet */
  bool missing;   /* some cells of it are missing */
  qn_value name;  /* TAG_STR, of a file with a header */
  qn_value data;  /* an array or list, of a file with a header */
} column;

typedef struct table {
  reader r;
  column *columns;
  int64_t ncolumns, rows;
  bool header;
} table;

static void table_free(table *t) {
  qn_vm *vm = t->r.vm;
  for (int64_t i = 0; i < t->ncolumns; i++) {
    value_release(vm, t->columns[i].name);
    value_release(vm, t->columns[i].data);
  }
  mem_free(vm, t->columns, (size_t)t->ncolumns * sizeof *t->columns);
}

static void find_separator(reader *r) {
  static const char candidates[3] = {',', ';', '\t'};
  int64_t counts[3] = {0};
  bool quoted = false;
  for (const char *p = r->p; p < r->end && (quoted || (*p != '\n' && *p != '\r')); p++) {
    quoted ^= *p == '"';
    for (int k = 0; k < 3; k++) counts[k] += !quoted && *p == candidates[k];
  }
  int best = 0;
  for (int k = 1; k < 3; k++)
    if (counts[k] > counts[best]) best = k;
  r->separator = candidates[best];
}

/* Reads the first row to count the columns and to see whether it is a header. The reader is before that row again afterwards. */
static bool read_first(table *t) {
  reader start = t->r;
  cell c;
  double f;
  int64_t i;
  do {
    if (!next_cell(&t->r, ++t->ncolumns, &c)) {
      t->ncolumns = 0;
      return false;
    }
    t->header |= c.quoted || read_cell(&c, &i, &f) == CELL_text;
  } while (!c.last);
  t->r = start;
  t->columns = mem_zalloc(t->r.vm, (size_t)t->ncolumns * sizeof *t->columns);
  if (!t->columns) t->ncolumns = 0;
  return t->columns != NULL;
}

/* Gives the record a field, nil for now, for each column of a file with a header. */
static bool read_names(table *t, qn_record *names) {
  qn_vm *vm = t->r.vm;
  for (int64_t i = 0; i < t->ncolumns; i++) {
    cell c;
    if (!next_cell(&t->r, i + 1, &c)) return false;
    qn_value text = value_error();
    if (c.len) {
      text = cell_text(vm, &c);
    } else {
      text_buf b = {.vm = vm};
      text_addf(&b, "column_%lld", (long long)i + 1);
      text = text_take(&b);
    }
    if (value_is_error(text)) return false;
    qn_str *name = str_intern(vm, value_str(text)->text, value_str(text)->len);
    value_release(vm, text);
    if (!name) return false;
    t->columns[i].name = value_obj(TAG_STR, name);
    if (record_find(names, name) >= 0) return refuse_cell(&t->r, &c, "is the name of an earlier column, too");
    if (!record_set(vm, names, name, value_nil())) return false;
  }
  return true;
}

static bool refuse_width(table *t, int64_t line, int64_t n, bool more) {
  return file_refuse(t->r.vm, t->r.path, "line %lld has %s%lld cell%s, where the first row has %lld", (long long)line,
                     more ? "more than " : "", (long long)n, n == 1 ? "" : "s", (long long)t->ncolumns);
}

/* Takes a cell into account for the kind of its column. False, with an error raised, if the column cannot hold it. */
static bool judge(table *t, const cell *c) {
  column *k = &t->columns[c->column - 1];
  int64_t i;
  double f;
  cell_kind kind = read_cell(c, &i, &f);
  if (k->kind == CELL_text) return true;
  if (kind == CELL_missing) {
    if (k->kind == CELL_bool) return refuse_cell(&t->r, c, "is neither true nor false, which the column holds");
    k->missing = true;
    return true;
  }
  bool number = kind == CELL_int || kind == CELL_float, numbers = k->kind == CELL_int || k->kind == CELL_float;
  if (k->kind == CELL_missing) {
    if (kind == CELL_bool && k->missing)
      return refuse_cell(&t->r, c, "stands in a column that has missing cells, which bools cannot be");
    if (kind == CELL_text && !t->header)
      return refuse_cell(&t->r, c, "is no number (columns of texts need a header line)");
    k->kind = kind;
  } else if (number != numbers || (!number && kind != k->kind)) {
    return refuse_cell(&t->r, c,
                       numbers ? "is no number, as the cells above it are"
                               : "is neither true nor false, which the column holds");
  } else if (kind == CELL_float) {
    k->kind = CELL_float;
  }
  return true;
}

static bool judge_rows(table *t) {
  for (; next_row(&t->r); t->rows++) {
    if (vm_poll_item(t->r.vm, t->rows)) return false;
    int64_t line = t->r.line;
    cell c = {0};
    for (int64_t i = 0; i < t->ncolumns; i++) {
      if (!next_cell(&t->r, i + 1, &c)) return false;
      if (c.last && i + 1 < t->ncolumns) return refuse_width(t, line, i + 1, false);
      if (!judge(t, &c)) return false;
    }
    if (!c.last) return refuse_width(t, line, t->ncolumns, true);
  }
  return true;
}

static qn_dtype dtype_of(const column *k) {
  return k->kind == CELL_bool ? WEAK_BOOL : k->kind == CELL_int && !k->missing ? WEAK_INT : WEAK_FLOAT;
}

static void store_number(qn_array *a, int64_t at, const cell *c) {
  int64_t i = 0;
  double f = NAN;
  cell_kind kind = read_cell(c, &i, &f);
  char *to = array_data(a) + (size_t)at * dtype_size((qn_dtype)a->dtype);
  if (kind == CELL_bool) f = (double)i;
  if (dtype_is_bool(a->dtype))
    *to = (char)i;
  else if (a->dtype == WEAK_INT)
    memcpy(to, &i, sizeof i);
  else
    memcpy(to, &f, sizeof f);
}

/* The second pass over the file. Stores all numbers in `all` if the file has no header, otherwise the cells of each column in its data. */
static bool fill(table *t, qn_array *all) {
  qn_vm *vm = t->r.vm;
  for (int64_t row = 0; next_row(&t->r); row++) {
    if (vm_poll_item(vm, row)) return false;
    for (int64_t i = 0; i < t->ncolumns; i++) {
      cell c;
      if (!next_cell(&t->r, i + 1, &c)) return false;
      qn_value data = t->columns[i].data;
      if (all) {
        store_number(all, row * t->ncolumns + i, &c);
      } else if (is_array(data)) {
        store_number(value_array(data), row, &c);
      } else {
        qn_value text = cell_text(vm, &c);
        if (value_is_error(text)) return false;
        value_list(data)->items[row] = text;
      }
    }
  }
  return true;
}

/* ---- reading -------------------------------------------------------------------------------------------------------------------- */

static qn_value read_rows(table *t) {
  qn_vm *vm = t->r.vm;
  reader start = t->r;
  if (!judge_rows(t)) return value_error();
  qn_dtype dtype = dtype_of(&t->columns[0]);
  for (int64_t i = 1; i < t->ncolumns; i++) {
    qn_dtype other = dtype_of(&t->columns[i]);
    if (other > dtype) dtype = other; /* in the order bool, i64, f64 */
  }
  int64_t shape[2] = {t->rows, t->ncolumns};
  qn_array *a = array_new(vm, dtype, t->ncolumns == 1 ? 1 : 2, shape);
  if (!a) return value_error();
  t->r = start;
  if (fill(t, a)) return value_new(TAG_ARRAY, array_settle(vm, a));
  return value_fail(vm, value_obj(TAG_ARRAY, a));
}

static bool read_columns(table *t, qn_record *out) {
  qn_vm *vm = t->r.vm;
  if (!read_names(t, out)) return false;
  reader start = t->r;
  if (!judge_rows(t)) return false;
  for (int64_t i = 0; i < t->ncolumns; i++) {
    column *k = &t->columns[i];
    k->data = k->kind == CELL_text ? list_value(list_new(vm, (size_t)t->rows))
                                   : value_new(TAG_ARRAY, array_new(vm, dtype_of(k), 1, &t->rows));
    if (value_is_error(k->data)) return false;
  }
  t->r = start;
  if (!fill(t, NULL)) return false;
  for (int64_t i = 0; i < t->ncolumns; i++) {
    qn_value data = t->columns[i].data;
    t->columns[i].data = value_nil();
    if (is_array(data)) data = value_new(TAG_ARRAY, array_settle(vm, value_array(data)));
    if (value_is_error(data) || !record_set(vm, out, value_str(t->columns[i].name), data)) return false;
  }
  return true;
}

qn_value csv_read(qn_vm *vm, const char *path, const uint8_t *data, size_t len) {
  const char *text = (const char *)data;
  size_t good = utf8_valid_prefix(text, len);
  if (good < len) return file_error(vm, path, "the text is not UTF-8 (byte %zu)", good);
  table t = {.r = {.vm = vm, .path = path, .p = text, .end = text + len, .separator = ',', .line = 1}};
  if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) t.r.p += 3;
  if (!next_row(&t.r)) return file_error(vm, path, "the file has no rows");
  find_separator(&t.r);
  qn_value out = value_error();
  if (read_first(&t)) {
    out = t.header ? value_new(TAG_RECORD, record_new(vm)) : read_rows(&t);
    if (t.header && !value_is_error(out) && !read_columns(&t, value_record(out))) out = value_fail(vm, out);
  }
  table_free(&t);
  return out;
}

/* ---- writing ---------------------------------------------------------------------------------------------------------------------- */

static void text_number(text_buf *t, qn_value v, qn_dtype dtype) {
  if (value_is(v, TAG_BOOL))
    text_adds(t, v.u.i ? "true" : "false");
  else if (value_is(v, TAG_INT))
    text_int(t, v.u.i);
  else
    text_float(t, v.u.f, dtype_compute(dtype));
}

/* Writes a text as a cell. It gets quotes if it would be read back as something else; a name of a header also if it would not be taken for
 * a name. */
static void text_cell(text_buf *t, const qn_str *s, bool header) {
  int64_t i;
  double f;
  cell c = {.text = s->text, .len = s->len};
  bool quoted =
      s->len == 0 || s->text[0] == ' ' || s->text[s->len - 1] == ' ' || (header && read_cell(&c, &i, &f) != CELL_text);
  for (uint32_t k = 0; k < s->len && !quoted; k++) quoted = memchr(",;\t\"\r\n", s->text[k], 6) != NULL;
  if (!quoted) {
    text_add(t, s->text, s->len);
    return;
  }
  text_adds(t, "\"");
  for (uint32_t k = 0; k < s->len; k++) {
    if (s->text[k] == '"') text_adds(t, "\"");
    text_add(t, s->text + k, 1);
  }
  text_adds(t, "\"");
}

/* Appends the row in `t` to the file and empties `t`. */
static bool end_row(qn_vm *vm, text_buf *t, bytes *out, int64_t row) {
  text_adds(t, "\n");
  bool good = text_good(t) && bytes_add(vm, out, t->text, t->len);
  t->len = 0;
  return good && !vm_poll_item(vm, row);
}

static bool write_rows(qn_vm *vm, qn_value v, text_buf *t, bytes *out) {
  qn_array *a = array_to_cpu(vm, value_array(v));
  if (!a) return false;
  bool good = a->rank <= 2 || raise_false(vm, E_rank, "save: .csv holds rows of numbers, at most two axes; this is %s",
                                          phrase_shape(a).text);
  int64_t rows = a->rank ? a->shape[0] : 1, columns = a->rank == 2 ? a->shape[1] : 1;
  if (good && (!rows || !columns))
    good = raise_false(vm, E_argument, "save: .csv cannot hold an array without elements");
  for (int64_t i = 0; good && i < rows; i++) {
    for (int64_t k = 0; k < columns; k++) {
      if (k) text_adds(t, ",");
      text_number(t, array_get_flat(a, i * columns + k), a->dtype);
    }
    good = end_row(vm, t, out, i);
  }
  array_drop(vm, a);
  return good;
}

static bool write_item(qn_vm *vm, text_buf *t, const qn_str *name, qn_value column, int64_t row) {
  if (is_array(column)) {
    text_number(t, array_get_flat(value_array(column), row), value_array(column)->dtype);
    return true;
  }
  qn_value v = value_list(column)->items[row];
  if (value_is(v, TAG_STR))
    text_cell(t, value_str(v), false);
  else if (value_is_scalar(v))
    text_number(t, v, WEAK_FLOAT);
  else
    return raise_false(vm, E_type, "save: column %s of a .csv file holds numbers or texts; item %lld is of kind %s",
                       name->text, (long long)row, value_kind_name(v));
  return true;
}

/* Writes a record of columns. Its arrays are contiguous and in the CPU's memory. */
static bool write_columns(qn_vm *vm, qn_record *columns, text_buf *t, bytes *out) {
  int64_t rows = -1;
  for (uint32_t i = 0; i < columns->len; i++) {
    qn_value v = columns->items[i];
    const char *name = record_name(columns, i)->text;
    int64_t n;
    if (is_array(v) && value_array(v)->rank == 1) {
      n = value_array(v)->shape[0];
      qn_array *a = array_to_cpu(vm, value_array(v));
      if (!a) return false;
      columns->items[i] = value_obj(TAG_ARRAY, a);
      value_release(vm, v);
    } else if (value_is(v, TAG_LIST)) {
      n = value_list(v)->len;
    } else {
      return raise_false(vm, E_type, "save: column %s of a .csv file must be an array of rank 1 or a list, not %s",
                         name, phrase_kind(v).text);
    }
    if (rows >= 0 && n != rows)
      return raise_false(vm, E_shape, "save: column %s has %lld items, column %s %lld", record_name(columns, 0)->text,
                         (long long)rows, name, (long long)n);
    rows = n;
  }
  for (uint32_t i = 0; i < columns->len; i++) {
    if (i) text_adds(t, ",");
    text_cell(t, record_name(columns, i), true);
  }
  if (!end_row(vm, t, out, 0)) return false;
  for (int64_t row = 0; row < rows; row++) {
    for (uint32_t i = 0; i < columns->len; i++) {
      if (i) text_adds(t, ",");
      if (!write_item(vm, t, record_name(columns, i), columns->items[i], row)) return false;
    }
    if (!end_row(vm, t, out, row)) return false;
  }
  return true;
}

bool csv_write(qn_vm *vm, qn_value v, bytes *out) {
  bool record = value_is(v, TAG_RECORD) && value_record(v)->len > 0;
  if (!record && !is_array(v)) return arg_wrong(vm, "save", "an array or a record of columns for .csv", v);
  text_buf t = {.vm = vm};
  bool good = false;
  if (record) {
    qn_record *columns = record_copy(vm, value_record(v));
    good = columns && write_columns(vm, columns, &t, out);
    if (columns) value_release(vm, value_obj(TAG_RECORD, columns));
  } else {
    good = write_rows(vm, v, &t, out);
  }
  text_free(&t);
  return good;
}
