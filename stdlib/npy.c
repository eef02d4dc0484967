/* The .npy format of NumPy: magic, version, length of the header, a Python dict literal with dtype, order and shape, then the
 * elements. Read in versions 1 to 3, either byte order and either memory order; written as version 1, little-endian, C order,
 * with the data aligned to 64 bytes.
 *
 *   file     quern                    file      quern
 *   b1       bool (not 0: true)       u2        i32, widened
 *   u1       u8                       u4        i64, widened
 *   i1..i8   i8..i64                  u8        i64, if all elements fit
 *   f2 f4 f8 f16 f32 f64              others    E502
 */
#include <string.h>

#include "lang/error.h"
#include "stdlib/builtins.h"
#include "stdlib/io.h"

static const uint8_t magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

/* ---- the header's dict ------------------------------------------------------------------------------------------------- */

typedef struct header {
  qn_dtype stored; /* of the elements in the file */
  bool described;  /* `stored` is set */
  bool swapped, fortran;
  int rank;
  int64_t shape[ARRAY_MAX_RANK];
} header;

/* Reads a text in quotes, which has no escapes. *text points into the header. False if there is none. */
static bool read_quoted(scan *r, const char **text, size_t *len) {
  scan_blanks(r);
  if (r->p == r->end || (*r->p != '\'' && *r->p != '"')) return false;
  char quote = *r->p++;
  *text = r->p;
  while (r->p < r->end && *r->p != quote && *r->p != '\\') r->p++;
  if (r->p == r->end || *r->p != quote) return false;
  *len = (size_t)(r->p++ - *text);
  return true;
}

static bool read_type(scan *r, header *h) {
  const char *s;
  size_t n;
  if (scan_accept(r, '[')) return file_refuse(r->vm, r->path, "elements are structures, which arrays do not hold");
  if (!read_quoted(r, &s, &n)) return file_refuse(r->vm, r->path, "the header has no readable descr");
  char order = n ? *s : 0;
  if (order == '<' || order == '>' || order == '|' || order == '=') {
    s++;
    n--;
  }
  h->stored = QN_DTYPE_COUNT;
  for (int d = 0; d < QN_DTYPE_COUNT; d++)
    if (n == 2 && *dtype_rows[d].npy && memcmp(dtype_rows[d].npy, s, 2) == 0) h->stored = (qn_dtype)d;
  if (h->stored == QN_DTYPE_COUNT) {
    char shown[24];
    size_t k = 0;
    for (; k < n && k < sizeof shown - 1; k++) shown[k] = s[k] >= ' ' && s[k] < 127 ? s[k] : '?';
    shown[k] = 0;
    return file_refuse(r->vm, r->path, "the element type \"%s\" has no counterpart", shown);
  }
  h->described = true;
  h->swapped = order == '>';
  return true;
}

static bool read_word(scan *r, const char *word) {
  size_t n = strlen(word);
  scan_blanks(r);
  if ((size_t)(r->end - r->p) < n || memcmp(r->p, word, n) != 0) return false;
  r->p += n;
  return true;
}

static bool read_shape(scan *r, header *h) {
  if (!scan_accept(r, '(')) return file_refuse(r->vm, r->path, "the header has no readable shape");
  while (!scan_accept(r, ')')) {
    int64_t n = scan_size(r);
    if (n < 0) return file_refuse(r->vm, r->path, "the header has no readable shape");
    if (r->p < r->end && *r->p == 'L') r->p++; /* as Python 2 writes long integers */
    if (h->rank == ARRAY_MAX_RANK)
      return file_refuse(r->vm, r->path, "the array has more than %d axes", ARRAY_MAX_RANK);
    h->shape[h->rank++] = n;
    if (!scan_accept(r, ',')) {
      if (scan_accept(r, ')')) break;
      return file_refuse(r->vm, r->path, "the header has no readable shape");
    }
  }
  return true;
}

static bool read_header(scan *r, header *h) {
  bool order = false, shape = false;
  if (!scan_accept(r, '{')) return file_refuse(r->vm, r->path, "the header is no dict");
  while (!scan_accept(r, '}')) {
    const char *key;
    size_t n;
    if (!read_quoted(r, &key, &n) || !scan_accept(r, ':')) return file_refuse(r->vm, r->path, "the header is no dict");
    if (n == 5 && memcmp(key, "descr", 5) == 0 && !h->described) {
      if (!read_type(r, h)) return false;
    } else if (n == 13 && memcmp(key, "fortran_order", 13) == 0 && !order) {
      order = true;
      h->fortran = read_word(r, "True");
      if (!h->fortran && !read_word(r, "False"))
        return file_refuse(r->vm, r->path, "fortran_order is neither True nor False");
    } else if (n == 5 && memcmp(key, "shape", 5) == 0 && !shape) {
      shape = true;
      if (!read_shape(r, h)) return false;
    } else {
      return file_refuse(r->vm, r->path, "the header has an unexpected key");
    }
    if (!scan_accept(r, ',')) {
      if (scan_accept(r, '}')) break;
      return file_refuse(r->vm, r->path, "the header is no dict");
    }
  }
  if (h->described && order && shape) return true;
  return file_refuse(r->vm, r->path, "the header lacks descr, fortran_order or shape");
}

/* ---- reading ---------------------------------------------------------------------------------------------------------- */

qn_value npy_read(qn_vm *vm, const char *path, const uint8_t *data, size_t len) {
  if (len < sizeof magic) return file_error(vm, path, "the file is truncated");
  if (memcmp(data, magic, sizeof magic) != 0) return file_error(vm, path, "this is no .npy file: it begins otherwise");
  int version = len > 6 ? data[6] : 0;
  size_t start = version == 1 ? 10 : 12;
  size_t header_len = len < start ? len : version == 1 ? get_u16(data + 8) : get_u32(data + 8);
  if (len >= start && (version < 1 || version > 3))
    return file_error(vm, path, "version %d of .npy is unknown", version);
  if (len < start || header_len > len - start) return file_error(vm, path, "the file is truncated in its header");
  header h = {0};
  const char *text = (const char *)data + start;
  scan r = {vm, path, text, text, text + header_len};
  if (!read_header(&r, &h)) return value_error();
  data += start + header_len;
  len -= start + header_len;

  int64_t strides[ARRAY_MAX_RANK];
  int64_t n = shape_strides(h.rank, h.shape, strides);
  qn_dtype stored = h.stored;
  if (n < 0) return file_error(vm, path, "the shape in the header has too many elements");
  if ((uint64_t)n > len / dtype_size(stored))
    return file_error(vm, path, "the file is truncated: %zu bytes of data where the header asks for %zu", len,
                      (size_t)n * dtype_size(stored));
  /* Elements in Fortran order are those of the transposed array in C order, so that array is read and then transposed. */
  int64_t shape[ARRAY_MAX_RANK];
  for (int i = 0; i < h.rank; i++) shape[i] = h.shape[h.fortran ? h.rank - 1 - i : i];
  qn_dtype dtype = elements_dtype(stored);
  qn_array *a = array_new(vm, dtype, h.rank, shape);
  if (!a) return value_error();
  if (!elements_read(stored, h.swapped, array_data(a), data, n)) {
    array_drop(vm, a);
    return file_error(vm, path, "an element is beyond the range of i64");
  }
  a = array_settle(vm, a);
  if (!a || !h.fortran || h.rank < 2) return value_new(TAG_ARRAY, a);
  for (int i = 0; i < h.rank; i++) strides[i] = a->strides[h.rank - 1 - i];
  qn_value view = value_new(TAG_ARRAY, array_view(vm, a, dtype, h.rank, h.shape, strides, a->offset));
  array_drop(vm, a);
  return view;
}

/* ---- writing ------------------------------------------------------------------------------------------------------------------ */

bool npy_write(qn_vm *vm, qn_value v, bytes *out) {
  if (!value_is(v, TAG_ARRAY) && !value_is_scalar(v))
    return arg_wrong(vm, "save", "one array for .npy (.npz and .safetensors hold trees of arrays)", v);
  qn_dtype dtype = value_operand_type(v).dtype;
  if (!*dtype_rows[dtype].npy)
    return raise_false(
        vm, E_dtype,
        "save: .npy has no %s, which .safetensors has; or convert with x.to(f32), which holds every such number",
        dtype_rows[dtype].name);
  qn_array *a = is_array(v) ? array_to_cpu(vm, value_array(v)) : array_from_scalar(vm, dtype, v);
  if (!a) return false;
  text_buf t = {.vm = vm};
  text_addf(&t, "{'descr': '%c%s', 'fortran_order': False, 'shape': (", dtype_size(dtype) == 1 ? '|' : '<',
            dtype_rows[dtype].npy);
  for (int i = 0; i < a->rank; i++) {
    text_int(&t, a->shape[i]);
    text_adds(&t, a->rank == 1 ? "," : i < a->rank - 1 ? ", " : "");
  }
  text_adds(&t, "), }");
  while ((10 + t.len + 1) % 64 && !t.failed) text_adds(&t, " ");
  text_adds(&t, "\n");
  uint8_t lead[10] = {0, 0, 0, 0, 0, 0, 1, 0, (uint8_t)t.len, (uint8_t)(t.len >> 8)};
  memcpy(lead, magic, sizeof magic);
  bool good = text_good(&t) && bytes_add(vm, out, lead, sizeof lead) && bytes_add(vm, out, t.text, t.len) &&
              bytes_add(vm, out, array_data(a), (size_t)a->size * dtype_size(dtype));
  text_free(&t);
  array_drop(vm, a);
  return good;
}
