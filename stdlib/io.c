/* Bytes and texts of files, in and out, and elements as files hold them. */
#include "stdlib/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stdlib/builtins.h"

/* ---- bytes ----------------------------------------------------------------------------------------------------- */

void bytes_free(qn_vm *vm, bytes *b) {
  mem_free(vm, b->data, b->cap);
  *b = (bytes){0};
}

static bool bytes_reserve(qn_vm *vm, bytes *b, size_t more) {
  if (more <= b->cap - b->len) return true;
  size_t cap = b->cap + b->cap / 2;
  if (cap < b->len + more) cap = b->len + more;
  if (cap < 256) cap = 256;
  uint8_t *data = mem_realloc(vm, b->data, b->cap, cap);
  if (!data) return false;
  b->data = data;
  b->cap = cap;
  return true;
}

bool bytes_add(qn_vm *vm, bytes *b, const void *p, size_t len) {
  if (!bytes_reserve(vm, b, len)) return false;
  if (p && len) memcpy(b->data + b->len, p, len);
  b->len += len;
  return true;
}

static bool refuse(qn_vm *vm, const char *path, const char *format, va_list args) {
  char what[512];
  vsnprintf(what, sizeof what, format, args);
  int good = (int)utf8_valid_prefix(what, strlen(what)); /* a cut may have split a character */
  return raise_false(vm, E_format, "%s: %.*s", path, good, what);
}

bool file_refuse(qn_vm *vm, const char *path, const char *format, ...) {
  va_list args;
  va_start(args, format);
  bool no = refuse(vm, path, format, args);
  va_end(args);
  return no;
}

qn_value file_error(qn_vm *vm, const char *path, const char *format, ...) {
  va_list args;
  va_start(args, format);
  (void)refuse(vm, path, format, args);
  va_end(args);
  return value_error();
}

/* The system's reason in words of our own, since its texts depend on the locale. */
static const char *reason(int code) {
  switch (code) {
  case ENOENT: return "there is no such file or folder";
  case EACCES:
  case EPERM: return "permission denied";
  case EISDIR: return "it is a folder";
  case ENOTDIR: return "a part of the path is no folder";
  case ENOSPC:
  case EDQUOT: return "no space is left on the device";
  case EROFS: return "the device is read-only";
  case EMFILE:
  case ENFILE: return "too many files are open";
  case ENAMETOOLONG: return "the name is too long";
  case ELOOP: return "too many symbolic links";
  case ETXTBSY: return "the file is being executed";
  case EFBIG: return "the file would be too large";
  case EIO: return "the device reports an error";
  default: return NULL;
  }
}

static bool file_failed(qn_vm *vm, const char *path, const char *doing, int code) {
  const char *why = reason(code);
  if (why) return raise_false(vm, E_file, "%s: cannot be %s: %s", path, doing, why);
  return raise_false(vm, E_file, "%s: cannot be %s: system error %d", path, doing, code);
}

bool file_read(qn_vm *vm, const char *path, bytes *out) {
  *out = (bytes){0};
  if (!vm_may(vm, QN_CAP_READ, "reading files")) return false;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return file_failed(vm, path, "read", errno);
  struct stat st;
  size_t hint = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? (size_t)st.st_size + 1 : 65536;
  bool good = bytes_reserve(vm, out, hint);
  while (good) {
    good = bytes_reserve(vm, out, 1);
    if (!good) break;
    ssize_t n = read(fd, out->data + out->len, out->cap - out->len);
    if (n == 0) break;
    if (n > 0)
      out->len += (size_t)n;
    else if (errno != EINTR)
      good = file_failed(vm, path, "read", errno);
    if (good && vm_poll(vm)) good = false;
  }
  close(fd);
  if (!good) bytes_free(vm, out);
  return good;
}

/* Writes all bytes to a file. 0, or the errno of what failed. */
static int write_all(int fd, const uint8_t *data, size_t len) {
  while (len) {
    ssize_t n = write(fd, data, len);
    if (n < 0 && errno != EINTR) return errno;
    if (n > 0) {
      data += n;
      len -= (size_t)n;
    }
  }
  return 0;
}

bool file_write(qn_vm *vm, const char *path, const uint8_t *data, size_t len) {
  if (!vm_may(vm, QN_CAP_WRITE, "writing files")) return false;
  struct stat st;
  /* A pipe, a device or a link cannot be replaced by a file beside it, and is written directly. */
  bool exists = lstat(path, &st) == 0;
  bool beside = !exists || S_ISREG(st.st_mode);
  text_buf name = {.vm = vm};
  text_adds(&name, path);
  if (beside) text_addf(&name, ".%ld.tmp", (long)getpid());
  text_add(&name, "", 1);
  if (!text_good(&name)) {
    text_free(&name);
    return false;
  }
  if (beside) unlink(name.text);
  int fd = open(name.text, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | (beside ? O_EXCL : O_TRUNC), 0666);
  int code = fd < 0 ? errno : write_all(fd, data, len);
  if (fd >= 0 && !code && beside && exists) (void)!fchmod(fd, st.st_mode & 07777);
  if (fd >= 0 && close(fd) != 0 && !code) code = errno;
  if (!code && beside && rename(name.text, path) != 0) code = errno;
  if (code && beside && fd >= 0) unlink(name.text);
  text_free(&name);
  return code ? file_failed(vm, path, "written", code) : true;
}

/* ---- headers that are text --------------------------------------------------------------------------------------------- */

void scan_blanks(scan *s) {
  while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r')) s->p++;
}

bool scan_accept(scan *s, char c) {
  scan_blanks(s);
  if (s->p == s->end || *s->p != c) return false;
  s->p++;
  return true;
}

int64_t scan_size(scan *s) {
  int64_t n = -1;
  scan_blanks(s);
  for (; s->p < s->end && *s->p >= '0' && *s->p <= '9'; s->p++) {
    if (n < 0) n = 0;
    if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *s->p - '0', &n)) return SCAN_LARGE;
  }
  return n;
}

/* ---- elements ---------------------------------------------------------------------------------------------------------- */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are read and written as they lie in memory");

qn_dtype elements_dtype(qn_dtype stored) {
  if (dtype_public((int)stored)) return stored;
  int d = 0;
  while (d < DTYPE_PUBLIC && !(dtype_is_int((qn_dtype)d) && dtype_contains((qn_dtype)d, stored))) d++;
  return d < DTYPE_PUBLIC ? (qn_dtype)d : DTYPE_INT;
}

static uint64_t get_element(const uint8_t *p, size_t size, bool swapped) {
  uint64_t x = 0;
  for (size_t i = 0; i < size; i++) x |= (uint64_t)p[swapped ? size - 1 - i : i] << 8 * i;
  return x;
}

bool elements_read(qn_dtype stored, bool swapped, char *to, const uint8_t *from, int64_t n) {
  if (dtype_is_bool(stored)) {
    for (int64_t i = 0; i < n; i++) to[i] = from[i] != 0;
    return true;
  }
  size_t size = dtype_size(stored), step = dtype_size(elements_dtype(stored));
  if (elements_dtype(stored) == stored && !(swapped && size > 1)) {
    if (n) memcpy(to, from, (size_t)n * size);
    return true;
  }
  for (int64_t i = 0; i < n; i++) {
    uint64_t x = get_element(from + (size_t)i * size, size, swapped);
    if (x > INT64_MAX && !dtype_public((int)stored)) return false;
    memcpy(to + (size_t)i * step, &x, step);
  }
  return true;
}

/* ---- leaves ----------------------------------------------------------------------------------------------------------- */

typedef struct leaves {
  qn_vm *vm;
  const char *format;
  qn_record *flat;
} leaves;

static qn_value visit_leaf(void *ctx, const trees_walk *walk, const qn_value *values) {
  leaves *l = ctx;
  qn_vm *vm = l->vm;
  qn_value v = values[0];
  text_buf t = {.vm = vm};
  text_path(walk, true, &t);
  qn_str *name = text_good(&t) ? str_intern(vm, t.text ? t.text : "", t.len) : NULL;
  text_free(&t);
  if (!name) return value_error();
  bool good;
  if (!is_array(v) && !value_is_scalar(v)) {
    good = raise_false(vm, E_type, "save: %s holds arrays and numbers; %s is of kind %s", l->format, name->text,
                       value_kind_name(v));
  } else if (record_find(l->flat, name) >= 0) {
    good = raise_false(vm, E_argument, "save: two leaves have the dotted name %s", name->text);
  } else {
    v = is_array(v) ? value_retain(v) : value_new(TAG_ARRAY, array_from_scalar(vm, value_operand_type(v).dtype, v));
    good = !value_is_error(v) && record_set(vm, l->flat, name, v);
  }
  value_release(vm, value_obj(TAG_STR, name));
  return good ? value_nil() : value_error();
}

qn_value leaves_by_name(qn_vm *vm, const char *format, qn_value tree) {
  if (!value_is_container(tree)) {
    char what[80];
    snprintf(what, sizeof what, "a record or list of arrays for %s (.npy holds one array)", format);
    return arg_refuse(vm, "save", what, tree);
  }
  leaves l = {vm, format, record_new(vm)};
  qn_value flat = value_new(TAG_RECORD, l.flat);
  if (value_is_error(flat)) return flat;
  qn_value walked = trees_map(vm, "save", &tree, 1, true, visit_leaf, &l);
  return value_is_error(walked) ? value_fail(vm, flat) : used(vm, walked, flat);
}

/* ---- texts ------------------------------------------------------------------------------------------------------------ */

qn_value text_read(qn_vm *vm, const char *path, const uint8_t *data, size_t len) {
  if (len > TEXT_MAX) return raise_error(vm, E_too_large, SPAN_NONE, "%s: a text has at most 2**31 bytes", path);
  size_t good = utf8_valid_prefix((const char *)data, len);
  if (good < len) return file_error(vm, path, "the text is not UTF-8 (byte %zu)", good);
  return new_str(vm, (const char *)data, len);
}

/* A NUL is refused because C's functions would end the path there. */
bool arg_path(qn_vm *vm, const char *fn, qn_value v, qn_str **out) {
  if (!arg_str(vm, fn, "a path", v, out)) return false;
  if (memchr((*out)->text, 0, (*out)->len)) return raise_false(vm, E_file, "%s: a path holds no NUL", fn);
  return true;
}
