/* load and save: the ending of a path says which format, and one table says what reads and writes it.
 *
 * `like` gives a record of dotted names ("layers.0.w") the structure of a tree again.
 */
#include <string.h>
#include <strings.h>

#include "lang/error.h"
#include "stdlib/builtins.h"
#include "stdlib/figure.h"
#include "stdlib/io.h"

static bool txt_write(qn_vm *vm, qn_value v, bytes *out) {
  qn_str *text;
  return arg_str(vm, "save", "a text for .txt", v, &text) && bytes_add(vm, out, text->text, text->len);
}

/* Writes an image, or a figure that plot, hist or show made, as .png. */
static bool image_write(qn_vm *vm, qn_value v, bytes *out) {
  return figure_is(v) ? figure_png(vm, v, out) : png_write(vm, v, out);
}

/* Writes a figure, or the picture of a graph, as .svg. */
static bool drawing_write(qn_vm *vm, qn_value v, bytes *out) {
  return figure_is(v) ? figure_svg(vm, v, out) : picture_svg(vm, v, out);
}

typedef struct file_format {
  const char *ending;
  qn_value (*read)(qn_vm *vm, const char *path, const uint8_t *data, size_t len); /* NULL: only written */
  bool (*write)(qn_vm *vm, qn_value v, bytes *out);
  bool dotted; /* holds trees under dotted names */
} file_format;

static const file_format formats[] = {
    {".npy", npy_read, npy_write, false},
    {".npz", npz_read, npz_write, true},
    {".safetensors", safetensors_read, safetensors_write, true},
    {".csv", csv_read, csv_write, false},
    {".txt", text_read, txt_write, false},
    {".qnx", qnx_read, qnx_write, false},
    {".png", png_read, image_write, false},
    {".svg", NULL, drawing_write, false},
    {".dot", NULL, picture_dot, false},
};
enum { FORMATS = sizeof formats / sizeof *formats };

/* Appends the endings of formats, ".npy, .npz or .csv". With `reading` only those that can be read, with `dotted` only those that hold
 * trees. */
static void text_endings(text_buf *t, bool reading, bool dotted) {
  int n = 0, left = 0;
  for (int i = 0; i < FORMATS; i++) left += (formats[i].read || !reading) && (formats[i].dotted || !dotted);
  for (int i = 0; i < FORMATS; i++) {
    if ((!formats[i].read && reading) || (!formats[i].dotted && dotted)) continue;
    text_adds(t, n == 0 ? "" : left == 1 ? " or " : ", ");
    text_adds(t, formats[i].ending);
    n++;
    left--;
  }
}

static const file_format *format_of(qn_vm *vm, const char *fn, const qn_str *path, bool reading) {
  for (int i = 0; i < FORMATS; i++) {
    size_t n = strlen(formats[i].ending);
    if (path->len > n && strcasecmp(path->text + path->len - n, formats[i].ending) == 0 &&
        (formats[i].read || !reading))
      return &formats[i];
  }
  text_buf t = {.vm = vm};
  text_addf(&t, "%s: the ending of ", fn);
  text_quoted(&t, path->text, path->len);
  text_adds(&t, reading ? " names no format that can be read; these are " : " names no known format; these are ");
  text_endings(&t, reading, false);
  raise_text(vm, E_format, SPAN_NONE, &t);
  return NULL;
}

/* ---- a tree from a record of dotted names ---------------------------------------------------------------------------- */

typedef struct like_ctx {
  qn_vm *vm;
  const char *path;
  const qn_record *flat;
} like_ctx;

/* Checks that an array of the file has the shape of the array at its place in the tree `like`. dtypes may differ, and a number in the tree
 * fits an array of any shape. */
static bool shape_is_like(const like_ctx *c, const qn_str *name, qn_value file, qn_value tree) {
  if (!is_array(tree) || !is_array(file)) return true;
  const qn_array *a = value_array(file), *b = value_array(tree);
  if (shape_equal(a, b)) return true;
  return raise_false(c->vm, E_argument, "load: %s is %s in %s, and %s in like", name->len ? name->text : "the array",
                     phrase_shape(a).text, c->path, phrase_shape(b).text);
}

static qn_value visit_like(void *ctx, const trees_walk *w, const qn_value *values) {
  like_ctx *c = ctx;
  qn_vm *vm = c->vm;
  if (!is_array(values[0]) && !value_is_scalar(values[0])) return value_retain(values[0]);
  text_buf t = {.vm = vm};
  text_path(w, true, &t);
  qn_value name = text_take(&t);
  if (value_is_error(name)) return name;
  int at = record_find(c->flat, value_str(name));
  qn_value out = value_error();
  if (at < 0 && !value_str(name)->len) {
    raise_error(vm, E_key, SPAN_NONE, "load: %s holds a record of arrays; like is a record or list, not one %s",
                c->path, is_array(values[0]) ? "array" : "number");
  } else if (at < 0) {
    raise_error(vm, E_key, SPAN_NONE, "load: %s has no array called %s", c->path, value_str(name)->text);
  } else if (shape_is_like(c, value_str(name), c->flat->items[at], values[0])) {
    out = value_retain(c->flat->items[at]);
    /* A number of the tree was saved as rank 0, and becomes a number again. */
    if (value_is_scalar(values[0]) && is_array(out) && value_array(out)->rank == 0) {
      qn_value number;
      out = array_item(vm, value_array(out), 0, &number) ? used(vm, out, number) : value_fail(vm, out);
    }
  }
  return used(vm, name, out);
}

/* ---- the builtins ------------------------------------------------------------------------------------------------------ */

qn_value builtin_load(qn_vm *vm, const qn_value *args) {
  qn_str *path;
  if (!arg_path(vm, "load", args[0], &path)) return value_error();
  const file_format *format = format_of(vm, "load", path, true);
  if (!format) return value_error();
  bool like = !value_is(args[1], TAG_NIL);
  if (like && !format->dotted) {
    text_buf t = {.vm = vm};
    text_adds(&t, "load: like is for files that hold trees: ");
    text_endings(&t, true, true);
    return raise_text(vm, E_argument, SPAN_NONE, &t);
  }
  bytes b;
  if (!file_read(vm, path->text, &b)) return value_error();
  qn_value out = format->read(vm, path->text, b.data, b.len);
  bytes_free(vm, &b);
  if (!like || value_is_error(out)) return out;
  like_ctx c = {vm, path->text, value_record(out)};
  return used(vm, out, trees_map(vm, "load", &args[1], 1, true, visit_like, &c));
}

qn_value builtin_save(qn_vm *vm, const qn_value *args) {
  qn_str *path;
  if (!arg_path(vm, "save", args[0], &path)) return value_error();
  const file_format *format = format_of(vm, "save", path, false);
  if (!format) return value_error();
  bytes b = {0};
  bool good = format->write(vm, args[1], &b) && file_write(vm, path->text, b.data, b.len);
  bytes_free(vm, &b);
  return good ? value_nil() : value_error();
}

qn_value builtin_read_text(qn_vm *vm, const qn_value *args) {
  qn_str *path;
  bytes b;
  if (!arg_path(vm, "read_text", args[0], &path) || !file_read(vm, path->text, &b)) return value_error();
  qn_value out = text_read(vm, path->text, b.data, b.len);
  bytes_free(vm, &b);
  return out;
}

qn_value builtin_write_text(qn_vm *vm, const qn_value *args) {
  qn_str *path, *text;
  if (!arg_path(vm, "write_text", args[0], &path) || !arg_str(vm, "write_text", "a text", args[1], &text))
    return value_error();
  return file_write(vm, path->text, (const uint8_t *)text->text, text->len) ? value_nil() : value_error();
}
