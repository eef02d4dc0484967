/* Files: bytes in and out, and the formats that formats.c lists. Nothing here trusts a file: every offset and size is checked
 * against the bytes that exist before it is used, before memory is taken for it, and what is wrong is E502 with the file's name.
 *
 * A reader gets the file's bytes, and its path for messages; what it makes is owned. A writer checks that its format can hold the
 * value and appends it to `out`; the same value gives the same bytes. */
#ifndef STDLIB_IO_H
#define STDLIB_IO_H

#include "lang/vm.h"

/* ---- bytes (io.c) ------------------------------------------------------------------------------------------------- */

typedef struct bytes {
  uint8_t *data; /* mem_alloc'd, `cap` bytes */
  size_t len, cap;
} bytes;
void bytes_free(qn_vm *vm, bytes *b);
/* Appends `len` bytes, a copy of those at `p`; if `p` is NULL they are uninitialised. */
QN_MUST_CHECK bool bytes_add(qn_vm *vm, bytes *b, const void *p, size_t len);
/* Reads a whole file; the bytes are the caller's (bytes_free). E501 with the system's reason, E505 without the capability. */
QN_MUST_CHECK bool file_read(qn_vm *vm, const char *path, bytes *out);
/* Writes a whole file. A plain file is written under another name and renamed, so that a failure leaves the old content. E501, E505. */
QN_MUST_CHECK bool file_write(qn_vm *vm, const char *path, const uint8_t *data, size_t len);

/* Both raise E502 with the message "<path>: <what>". One returns false and the other the error value, for readers that return these. */
bool file_refuse(qn_vm *vm, const char *path, const char *format, ...) __attribute__((format(printf, 3, 4)));
qn_value file_error(qn_vm *vm, const char *path, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A path argument of a builtin: a text without NUL. */
QN_MUST_CHECK bool arg_path(qn_vm *vm, const char *fn, qn_value v, qn_str **out);
/* The bytes of a file as a string value, owned. E502 if they are not UTF-8. */
QN_MUST_CHECK qn_value text_read(qn_vm *vm, const char *path, const uint8_t *data, size_t len);

/* A header of a file that is text, as it is read: all of it is [start, end), and `p` is where to go on. `path` is for messages. */
typedef struct scan {
  qn_vm *vm;
  const char *path;
  const char *start, *p, *end;
} scan;
/* Moves on to the next byte that is no blank or line end. */
void scan_blanks(scan *s);
/* Does `c` come next, after blanks? Then it is passed. */
bool scan_accept(scan *s, char c);
/* Reads the digits of a number that is not negative, after blanks. Negative: there is no digit, or (SCAN_LARGE) it does not fit. A number
 * that does not fit is read up to the digit that is too much. */
enum { SCAN_LARGE = -2 };
int64_t scan_size(scan *s);

/* The leaves of a tree as a record under their dotted names, for a format that holds such records: owned. Numbers become arrays of rank
 * 0. The error value if the tree is none, has other leaves or two of one name; the messages name the format, ".npz". */
QN_MUST_CHECK qn_value leaves_by_name(qn_vm *vm, const char *format, qn_value tree);

/* Elements as files hold them: a public dtype, or u16, u32 or u64, whose elements arrays hold in the next wider one. */
qn_dtype elements_dtype(qn_dtype stored);
/* Copies n elements of a file, of either byte order (`swapped`: big-endian), into an array's data; false where one of u64 does
 * not fit i64. */
QN_MUST_CHECK bool elements_read(qn_dtype stored, bool swapped, char *to, const uint8_t *from, int64_t n);

static inline uint32_t get_u16(const uint8_t *p) { return (uint32_t)(p[0] | p[1] << 8); }
static inline uint32_t get_u32(const uint8_t *p) { return get_u16(p) | get_u16(p + 2) << 16; }

static inline uint64_t get_u64(const uint8_t *p) { return get_u32(p) | (uint64_t)get_u32(p + 4) << 32; }
static inline void put_u16(uint8_t *p, uint32_t x) {
  p[0] = (uint8_t)x;
  p[1] = (uint8_t)(x >> 8);
}
static inline void put_u32(uint8_t *p, uint32_t x) {
  put_u16(p, x);
  put_u16(p + 2, x >> 16);
}

/* ---- formats (each in the file of its name) ---------------------------------------------------------------------------------- */

/* .npy: one array, or a host number as rank 0. */
QN_MUST_CHECK qn_value npy_read(qn_vm *vm, const char *path, const uint8_t *data, size_t len);
QN_MUST_CHECK bool npy_write(qn_vm *vm, qn_value v, bytes *out);

/* .npz and .safetensors: a record of arrays; of a tree, under dotted names. */
QN_MUST_CHECK qn_value npz_read(qn_vm *vm, const char *path, const uint8_t *data, size_t len);
QN_MUST_CHECK bool npz_write(qn_vm *vm, qn_value tree, bytes *out);
QN_MUST_CHECK qn_value safetensors_read(qn_vm *vm, const char *path, const uint8_t *data, size_t len);
QN_MUST_CHECK bool safetensors_write(qn_vm *vm, qn_value tree, bytes *out);

/* .qnx: a graph. */
QN_MUST_CHECK qn_value qnx_read(qn_vm *vm, const char *path, const uint8_t *data, size_t len);
QN_MUST_CHECK bool qnx_write(qn_vm *vm, qn_value v, bytes *out);

/* .csv: an array of rows, or a record of columns. */
QN_MUST_CHECK qn_value csv_read(qn_vm *vm, const char *path, const uint8_t *data, size_t len);
QN_MUST_CHECK bool csv_write(qn_vm *vm, qn_value v, bytes *out);

/* .png: an image as an array of height x width, or height x width x channels. */
QN_MUST_CHECK qn_value png_read(qn_vm *vm, const char *path, const uint8_t *data, size_t len);
QN_MUST_CHECK bool png_write(qn_vm *vm, qn_value image, bytes *out);
/* Rows of 1, 2, 3 or 4 channels of 8 or (high byte first) 16 bits. */
typedef struct png_pixels {
  uint32_t width, height;
  int channels, bits;
  const uint8_t *data;
} png_pixels;
QN_MUST_CHECK bool png_encode(qn_vm *vm, const png_pixels *image, bytes *out);

#endif
