/* .safetensors: eight bytes with the length of a header, the header (a JSON object of name -> {dtype, shape, data_offsets}), and
 * the elements. "__metadata__" names an object of texts, which is a field of that name in the record that is read and written.
 *
 *   file                  quern              file              quern
 *   BOOL U8 I8 I16 I32    bool u8 i8 ...     U16               i32, widened
 *   I64 F16 BF16 F32 F64  i64 f16 bf16 ...   U32               i64, widened
 *   others                E502               U64               i64, if all elements fit
 *
 * Reading checks that the elements of all arrays together are the whole of what follows the header, without gap and overlap, as
 * the format demands. So no file can ask for more memory than some times its own size. Writing puts wide elements first, so
 * that each lies at a multiple of its size; the header keeps the order of the fields.
 *
 * The JSON reader knows what such headers are made of: objects, texts, lists of sizes.
 */
#include <stdlib.h>
#include <string.h>

#include "lang/error.h"
#include "stdlib/builtins.h"
#include "stdlib/io.h"

/* The name of a dtype in files: the language's name in capitals, "" if files do not have the dtype. */
static const char *type_name(qn_dtype d, char out[8]) {
  int n = 0;
  for (const char *p = dtype_rows[d].klass == DCLASS_COMPLEX ? "" : dtype_rows[d].name; *p; p++)
    out[n++] = *p >= 'a' ? (char)(*p - 'a' + 'A') : *p;
  out[n] = 0;
  return out;
}

enum { WIDEST = 8 }; /* bytes of the widest elements */

static const char metadata_name[] = "__metadata__";

/* ---- JSON -------------------------------------------------------------------------------------------------------------- */

static bool json_refuse(scan *j, const char *what) {
  return file_refuse(j->vm, j->path, "the header is damaged: %s at byte %zu of it", what, (size_t)(j->p - j->start));
}

static bool json_expect(scan *j, char c) {
  char what[] = "there is no '?'";
  what[13] = c;
  return scan_accept(j, c) || json_refuse(j, what);
}

/* Reads four hexadecimal digits. -1 if they are not there. */
static int32_t json_hex(scan *j) {
  int32_t code = 0;
  if (j->end - j->p < 4) return -1;
  for (int i = 0; i < 4; i++) {
    char c = *j->p++;
    int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
    if (digit < 0) return -1;
    code = code << 4 | digit;
  }
  return code;
}

static bool json_escape(scan *j, text_buf *t) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  char c = j->p < j->end ? *j->p++ : 0;
  const char *known = c ? strchr(from, c) : NULL;
  if (known) {
    text_add(t, to + (known - from), 1);
    return true;
  }
  if (c != 'u') return json_refuse(j, "a text has an unknown escape");
  int32_t code = json_hex(j);
  if (code >= 0xd800 && code < 0xdc00 && j->end - j->p > 1 && j->p[0] == '\\' && j->p[1] == 'u') {
    j->p += 2;
    int32_t low = json_hex(j);
    code = low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00) : -1;
  }
  if (code < 0 || (code >= 0xd800 && code < 0xe000)) return json_refuse(j, "a text has a broken escape");
  char utf8[4];
  text_add(t, utf8, (size_t)utf8_encode((uint32_t)code, utf8));
  return true;
}

/* Reads a text in quotes; owned. The error value, with E502 raised, if there is none. */
static qn_value json_text(scan *j) {
  if (!json_expect(j, '"')) return value_error();
  text_buf t = {.vm = j->vm};
  bool good = true;
  for (; good;) {
    const char *from = j->p;
    while (j->p < j->end && *j->p != '"' && *j->p != '\\' && (unsigned char)*j->p >= ' ') j->p++;
    text_add(&t, from, (size_t)(j->p - from));
    if (j->p == j->end || (unsigned char)*j->p < ' ')
      good = json_refuse(j, "a text does not end");
    else if (*j->p++ == '"')
      break;
    else
      good = json_escape(j, &t);
  }
  return good ? text_take(&t) : text_fail(&t);
}

/* Reads a text in quotes and interns it; owned. NULL with an error raised. */
static qn_str *json_name(scan *j) {
  qn_value text = json_text(j);
  if (value_is_error(text)) return NULL;
  qn_str *name = str_intern(j->vm, value_str(text)->text, value_str(text)->len);
  value_release(j->vm, text);
  return name;
}

/* Reads a list of numbers that are not negative, at most `most` of them, into `out`. Returns how many there are; -1 with E502 raised. */
static int json_sizes(scan *j, int64_t *out, int most) {
  if (!json_expect(j, '[')) return -1;
  if (scan_accept(j, ']')) return 0;
  for (int n = 0;;) {
    int64_t x = scan_size(j);
    const char *wrong = x == SCAN_LARGE          ? "a number is too large"
                        : x < 0                  ? "there is no size"
                        : n < most               ? NULL
                        : most == ARRAY_MAX_RANK ? "an array has more than 8 axes"
                                                 : "a list is too long";
    if (wrong) {
      json_refuse(j, wrong);
      return -1;
    }
    out[n++] = x;
    if (scan_accept(j, ']')) return n;
    if (!json_expect(j, ',')) return -1;
  }
}

/* Reads an object. For each of its names `field` is called, which reads the value. False, with an error raised, if one of these fails. */
static bool json_object(scan *j, bool (*field)(void *ctx, scan *j, qn_str *name), void *ctx) {
  if (!json_expect(j, '{')) return false;
  if (scan_accept(j, '}')) return true;
  for (;;) {
    qn_str *name = json_name(j);
    if (!name) return false;
    bool good = json_expect(j, ':') && field(ctx, j, name);
    value_release(j->vm, value_obj(TAG_STR, name));
    if (!good) return false;
    if (scan_accept(j, '}')) return true;
    if (!json_expect(j, ',')) return false;
  }
}

/* ---- reading ----------------------------------------------------------------------------------------------------------------- */

typedef struct tensor {
  qn_dtype dtype; /* QN_DTYPE_COUNT: not read yet */
  int rank;       /* -1: not read yet */
  int64_t shape[ARRAY_MAX_RANK];
  int64_t from, to; /* to < 0: not read yet */
} tensor;

typedef struct file {
  qn_vm *vm;
  const char *path;
  const uint8_t *data; /* the bytes after the header */
  int64_t len;
  qn_record *out;
  int64_t (*spans)[2]; /* of the arrays' data */
  uint32_t nspans, cap;
  int64_t claimed; /* bytes of the arrays so far */
} file;

static bool read_type(scan *j, tensor *t) {
  qn_value name = json_text(j);
  if (value_is_error(name)) return false;
  char known[8];
  for (int d = 0; d < QN_DTYPE_COUNT; d++)
    if (*type_name((qn_dtype)d, known) && strcmp(known, value_str(name)->text) == 0) t->dtype = (qn_dtype)d;
  bool good = t->dtype != QN_DTYPE_COUNT ||
              file_refuse(j->vm, j->path, "the element type \"%.20s\" has no counterpart", value_str(name)->text);
  value_release(j->vm, name);
  return good;
}

static bool read_tensor_field(void *ctx, scan *j, qn_str *name) {
  tensor *t = ctx;
  int64_t offsets[2];
  if (strcmp(name->text, "dtype") == 0 && t->dtype == QN_DTYPE_COUNT) return read_type(j, t);
  if (strcmp(name->text, "shape") == 0 && t->rank < 0) return (t->rank = json_sizes(j, t->shape, ARRAY_MAX_RANK)) >= 0;
  if (strcmp(name->text, "data_offsets") == 0 && t->to < 0) {
    int n = json_sizes(j, offsets, 2);
    if (n < 0) return false;
    if (n != 2) return json_refuse(j, "data_offsets are not two numbers");
    t->from = offsets[0];
    t->to = offsets[1];
    return true;
  }
  return json_refuse(j, "an array has an unknown or repeated property");
}

static bool read_metadata(void *ctx, scan *j, qn_str *name) {
  qn_record *r = ctx;
  if (record_find(r, name) >= 0) return json_refuse(j, "two entries of the metadata have one name");
  qn_value text = json_text(j);
  return !value_is_error(text) && record_set(j->vm, r, name, text);
}

static qn_value make_tensor(file *f, const tensor *t, const char *name) {
  qn_vm *vm = f->vm;
  int64_t strides[ARRAY_MAX_RANK], n = shape_strides(t->rank, t->shape, strides);
  int64_t size = (int64_t)dtype_size(t->dtype);
#define REFUSE(what) return file_error(vm, f->path, "array %s %s", name, what)
  if (t->from > t->to || t->to > f->len) REFUSE("lies outside the file: the file is truncated or damaged");
  if (n < 0) REFUSE("has too many elements");
  if (n > f->len || n * size != t->to - t->from) REFUSE("has another number of bytes than its shape asks for");
  f->claimed += t->to - t->from;
  if (f->claimed > f->len) REFUSE("overlaps another one");
  qn_array *a = array_new(vm, elements_dtype(t->dtype), t->rank, t->shape);
  if (!a) return value_error();
  if (!elements_read(t->dtype, false, array_data(a), f->data + t->from, n)) {
    array_drop(vm, a);
    REFUSE("has an element beyond the range of i64");
  }
#undef REFUSE
  return value_new(TAG_ARRAY, array_settle(vm, a));
}

static bool read_entry(void *ctx, scan *j, qn_str *name) {
  file *f = ctx;
  if (vm_poll(f->vm)) return false;
  if (record_find(f->out, name) >= 0) return json_refuse(j, "two arrays have one name");
  qn_value v;
  if (strcmp(name->text, metadata_name) == 0) {
    v = value_new(TAG_RECORD, record_new(f->vm));
    if (!value_is_error(v) && !json_object(j, read_metadata, value_record(v))) v = value_fail(f->vm, v);
  } else {
    tensor t = {.dtype = QN_DTYPE_COUNT, .rank = -1, .to = -1};
    if (!json_object(j, read_tensor_field, &t)) return false;
    if (t.dtype == QN_DTYPE_COUNT || t.rank < 0 || t.to < 0)
      return json_refuse(j, "an array lacks dtype, shape or data_offsets");
    if (!mem_grow(f->vm, (void **)&f->spans, &f->cap, (size_t)f->nspans + 1, sizeof *f->spans)) return false;
    f->spans[f->nspans][0] = t.from;
    f->spans[f->nspans++][1] = t.to;
    v = make_tensor(f, &t, name->text);
  }
  return !value_is_error(v) && record_set(f->vm, f->out, name, v);
}

static int by_place(const void *a, const void *b) {
  const int64_t *x = a, *y = b;
  return x[0] != y[0] ? (x[0] < y[0] ? -1 : 1) : (x[1] > y[1]) - (x[1] < y[1]);
}

static bool check_spans(file *f) {
  int64_t at = 0;
  if (f->nspans) qsort(f->spans, f->nspans, sizeof *f->spans, by_place);
  for (uint32_t i = 0; i < f->nspans; i++) {
    if (f->spans[i][0] != at)
      return file_refuse(f->vm, f->path,
                         f->spans[i][0] < at ? "two arrays overlap" : "bytes between two arrays belong to none");
    at = f->spans[i][1];
  }
  return at == f->len || file_refuse(f->vm, f->path, "bytes behind the last array belong to none");
}

qn_value safetensors_read(qn_vm *vm, const char *path, const uint8_t *data, size_t len) {
  uint64_t header = len < 8 ? 0 : get_u64(data);
  if (len < 8) return file_error(vm, path, "the file is truncated");
  if (header > len - 8)
    return file_error(vm, path, "the header is longer than the file: it is truncated, or no .safetensors file");
  const char *text = (const char *)data + 8;
  scan j = {vm, path, text, text, text + header};
  if (!utf8_valid(text, header)) return file_error(vm, path, "the header is not UTF-8");
  file f = {
      .vm = vm, .path = path, .data = data + 8 + header, .len = (int64_t)(len - 8 - header), .out = record_new(vm)};
  if (!f.out) return value_error();
  bool good = json_object(&j, read_entry, &f);
  scan_blanks(&j);
  good = good && (j.p == j.end || json_refuse(&j, "text follows the object"));
  good = good && check_spans(&f);
  mem_free(vm, f.spans, f.cap * sizeof *f.spans);
  return good ? value_obj(TAG_RECORD, f.out) : value_fail(vm, value_obj(TAG_RECORD, f.out));
}

/* ---- writing -------------------------------------------------------------------------------------------------------------------- */

static void text_json(text_buf *t, const qn_str *s) {
  text_adds(t, "\"");
  for (uint32_t i = 0; i < s->len; i++) {
    unsigned char c = (unsigned char)s->text[i];
    if (c == '"' || c == '\\') text_adds(t, "\\");
    if (c < ' ')
      text_addf(t, "\\u%04x", c);
    else
      text_add(t, s->text + i, 1);
  }
  text_adds(t, "\"");
}

static size_t bytes_in_file(qn_value v) {
  return (size_t)value_array(v)->size * dtype_size((qn_dtype)value_array(v)->dtype);
}

static bool text_metadata(qn_vm *vm, text_buf *t, qn_value metadata) {
  if (!value_is(metadata, TAG_RECORD)) return arg_wrong(vm, "save", "a record of texts as __metadata__", metadata);
  const qn_record *r = value_record(metadata);
  text_addf(t, "\"%s\":{", metadata_name);
  for (uint32_t i = 0; i < r->len; i++) {
    if (!value_is(r->items[i], TAG_STR)) return arg_wrong(vm, "save", "texts in __metadata__", r->items[i]);
    if (i) text_adds(t, ",");
    text_json(t, record_name(r, i));
    text_adds(t, ":");
    text_json(t, value_str(r->items[i]));
  }
  text_adds(t, "}");
  return true;
}

static bool add_elements(qn_vm *vm, qn_value v, bytes *out) {
  qn_array *a = array_to_cpu(vm, value_array(v));
  bool good = a && bytes_add(vm, out, array_data(a), bytes_in_file(v));
  array_drop(vm, a);
  return good;
}

static bool write_flat(qn_vm *vm, const qn_record *flat, qn_value metadata, text_buf *t, bytes *out) {
  text_adds(t, "{");
  if (!value_is(metadata, TAG_NIL) && !text_metadata(vm, t, metadata)) return false;
  /* next[n]: where the next array whose elements have n bytes is written. */
  size_t next[WIDEST + 1] = {0};
  for (uint32_t i = 0; i < flat->len; i++)
    for (size_t size = 1; size < dtype_size((qn_dtype)value_array(flat->items[i])->dtype); size *= 2)
      next[size] += bytes_in_file(flat->items[i]);
  for (uint32_t i = 0; i < flat->len; i++) {
    const qn_array *a = value_array(flat->items[i]);
    qn_dtype dtype = (qn_dtype)a->dtype;
    size_t from = next[dtype_size(dtype)], to = next[dtype_size(dtype)] += bytes_in_file(flat->items[i]);
    if (vm_poll(vm)) return false;
    text_adds(t, t->len > 1 ? "," : "");
    text_json(t, record_name(flat, i));
    char named[8];
    text_addf(t, ":{\"dtype\":\"%s\",\"shape\":[", type_name(dtype, named));
    for (int k = 0; k < a->rank; k++) text_addf(t, "%s%lld", k ? "," : "", (long long)a->shape[k]);
    text_addf(t, "],\"data_offsets\":[%zu,%zu]}", from, to);
  }
  text_adds(t, "}");
  while (t->len % 8 && !t->failed) text_adds(t, " ");
  if (!text_good(t)) return false;
  uint8_t lead[8] = {0};
  put_u32(lead, (uint32_t)t->len);
  bool good = bytes_add(vm, out, lead, sizeof lead) && bytes_add(vm, out, t->text, t->len);
  for (size_t size = WIDEST; size && good; size /= 2)
    for (uint32_t i = 0; i < flat->len && good; i++)
      if (dtype_size((qn_dtype)value_array(flat->items[i])->dtype) == size)
        good = add_elements(vm, flat->items[i], out);
  return good;
}

bool safetensors_write(qn_vm *vm, qn_value tree, bytes *out) {
  qn_value metadata = value_nil(), rest = value_retain(tree);
  int at =
      value_is(tree, TAG_RECORD) ? record_find_text(value_record(tree), metadata_name, sizeof metadata_name - 1) : -1;
  if (at >= 0) {
    metadata = value_record(tree)->items[at];
    rest = used(vm, rest, value_new(TAG_RECORD, record_without(vm, value_record(tree), at)));
    if (value_is_error(rest)) return false;
  }
  qn_value flat = used(vm, rest, leaves_by_name(vm, ".safetensors", rest));
  if (value_is_error(flat)) return false;
  text_buf t = {.vm = vm};
  bool good = write_flat(vm, value_record(flat), metadata, &t, out);
  text_free(&t);
  value_release(vm, flat);
  return good;
}
