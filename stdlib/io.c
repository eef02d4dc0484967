/* Builtins that read and write files. The ending of a path says which format. */
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

bool file_refuse(qn_vm *vm, const char *path, const char *format, ...) {
  char what[512];
  va_list args;
  va_start(args, format);
  vsnprintf(what, sizeof what, format, args);
  va_end(args);
  size_t good = utf8_valid_prefix(what, strlen(what)); /* a cut may have split a character */
  text_buf t;
  text_init(&t, vm);
  text_adds(&t, path);
  text_adds(&t, ": ");
  text_add(&t, what, good);
  raise_text(vm, E_format, SPAN_NONE, &t);
  return false;
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
  text_buf t;
  text_init(&t, vm);
  text_adds(&t, path);
  text_addf(&t, ": cannot be %s: ", doing);
  const char *why = reason(code);
  if (why)
    text_adds(&t, why);
  else
    text_addf(&t, "system error %d", code);
  raise_text(vm, E_file, SPAN_NONE, &t);
  return false;
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

/* 0, or errno. */
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
  /* What is no plain file (a pipe, a device, a link) is written where it is. */
  bool exists = lstat(path, &st) == 0;
  bool beside = !exists || S_ISREG(st.st_mode);
  text_buf name;
  text_init(&name, vm);
  text_adds(&name, path);
  if (beside) text_addf(&name, ".%ld.tmp", (long)getpid());
  text_add(&name, "", 1);
  if (name.failed) {
    text_free(&name);
    raise_memory(vm);
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

/* ---- formats ------------------------------------------------------------------------------------------------------ */

typedef enum file_format { FORMAT_npy, FORMAT_npz, FORMAT_txt, FORMAT_unknown } file_format;

static file_format format_of(const qn_str *path) {
  static const char *const endings[] = {".npy", ".npz", ".txt"};
  for (int i = 0; i < FORMAT_unknown; i++)
    if (path->len > 4 && memcmp(path->text + path->len - 4, endings[i], 4) == 0) return (file_format)i;
  return FORMAT_unknown;
}

static qn_value unknown_format(qn_vm *vm, const char *fn, const qn_str *path) {
  return raise(vm, E_format, SPAN_NONE, "%s: %s: the ending names no known format; these are .npy, .npz and .txt", fn,
               path->text);
}

/* A path argument: C's functions end at a NUL. */
static bool arg_path(qn_vm *vm, const char *fn, qn_value v, qn_str **out) {
  if (!arg_str(vm, fn, "a path", v, out)) return false;
  if (memchr((*out)->text, 0, (*out)->len)) {
    raise(vm, E_file, SPAN_NONE, "%s: a path holds no NUL", fn);
    return false;
  }
  return true;
}

static qn_value text_from(qn_vm *vm, const char *path, const bytes *b) {
  if (b->len > TEXT_MAX) {
    raise(vm, E_too_large, SPAN_NONE, "%s: a text has at most 2**31 bytes", path);
    return value_error();
  }
  if (!utf8_valid((const char *)b->data, b->len)) {
    file_refuse(vm, path, "the text is not UTF-8 (byte %zu)", utf8_valid_prefix((const char *)b->data, b->len));
    return value_error();
  }
  return new_str(vm, (const char *)b->data, b->len);
}

/* ---- a tree from a record of dotted names ---------------------------------------------------------------------------- */

typedef struct like_ctx {
  qn_vm *vm;
  const char *path;
  const qn_record *flat;
} like_ctx;

static qn_value visit_like(void *ctx, const trees_walk *w, const qn_value *values) {
  like_ctx *c = ctx;
  qn_vm *vm = c->vm;
  if (!is_array(values[0]) && !value_is_scalar(values[0])) return value_retain(values[0]);
  text_buf t;
  text_init(&t, vm);
  text_path(w, true, &t);
  qn_value name = text_take(&t);
  if (value_is_error(name)) return name;
  int at = record_find(c->flat, value_str(name));
  qn_value out = value_error();
  if (at < 0) {
    raise(vm, E_key, SPAN_NONE, "load: %s has no array called %s", c->path, value_str(name)->text);
  } else {
    out = value_retain(c->flat->items[at]);
    /* A number of the tree was saved as rank 0, and becomes a number again. */
    if (value_is_scalar(values[0]) && is_array(out) && value_array(out)->rank == 0) {
      qn_value number;
      bool ok = array_item(vm, value_array(out), 0, &number);
      value_release(vm, out);
      out = ok ? number : value_error();
    }
  }
  value_release(vm, name);
  return out;
}

/* ---- the builtins ------------------------------------------------------------------------------------------------------ */

qn_value builtin_load(qn_vm *vm, const qn_value *args) {
  qn_str *path;
  bytes b;
  if (!arg_path(vm, "load", args[0], &path)) return value_error();
  file_format format = format_of(path);
  if (format == FORMAT_unknown) return unknown_format(vm, "load", path);
  bool like = !value_is(args[1], TAG_NIL);
  if (like && format != FORMAT_npz) return raise(vm, E_argument, SPAN_NONE, "load: like is for .npz files");
  if (!file_read(vm, path->text, &b)) return value_error();
  qn_value out = format == FORMAT_npy   ? npy_read(vm, path->text, b.data, b.len)
                 : format == FORMAT_npz ? npz_read(vm, path->text, b.data, b.len)
                                        : text_from(vm, path->text, &b);
  bytes_free(vm, &b);
  if (!like || value_is_error(out)) return out;
  like_ctx c = {vm, path->text, value_record(out)};
  qn_value tree = trees_map(vm, "load", &args[1], 1, true, visit_like, &c);
  value_release(vm, out);
  return tree;
}

qn_value builtin_save(qn_vm *vm, const qn_value *args) {
  qn_str *path, *text;
  if (!arg_path(vm, "save", args[0], &path)) return value_error();
  qn_value v = args[1];
  bytes b = {0};
  bool good = false;
  switch (format_of(path)) {
  case FORMAT_npy:
    if (!is_array(v) && !value_is_scalar(v))
      return arg_refuse(vm, "save", "one array for .npy (.npz holds trees of arrays)", v);
    good = npy_write(vm, v, &b);
    break;
  case FORMAT_npz:
    if (!value_is(v, TAG_RECORD) && !value_is(v, TAG_LIST))
      return arg_refuse(vm, "save", "a record or list of arrays for .npz (.npy holds one array)", v);
    good = npz_write(vm, v, &b);
    break;
  case FORMAT_txt:
    good = arg_str(vm, "save", "a text for .txt", v, &text) && bytes_add(vm, &b, text->text, text->len);
    break;
  case FORMAT_unknown: return unknown_format(vm, "save", path);
  }
  good = good && file_write(vm, path->text, b.data, b.len);
  bytes_free(vm, &b);
  return good ? value_nil() : value_error();
}

qn_value builtin_read_text(qn_vm *vm, const qn_value *args) {
  qn_str *path;
  bytes b;
  if (!arg_path(vm, "read_text", args[0], &path) || !file_read(vm, path->text, &b)) return value_error();
  qn_value out = text_from(vm, path->text, &b);
  bytes_free(vm, &b);
  return out;
}

qn_value builtin_write_text(qn_vm *vm, const qn_value *args) {
  qn_str *path, *text;
  if (!arg_path(vm, "write_text", args[0], &path) || !arg_str(vm, "write_text", "a text", args[1], &text))
    return value_error();
  return file_write(vm, path->text, (const uint8_t *)text->text, text->len) ? value_nil() : value_error();
}
