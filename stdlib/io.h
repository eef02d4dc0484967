/* Files: bytes in and out, the .npy format and the .zip container around it (.npz). Nothing here trusts a file: every offset and
 * size is checked against the bytes that exist before it is used, and what is wrong is E502 with the file's name. */
#ifndef STDLIB_IO_H
#define STDLIB_IO_H

#include "lang/vm.h"

/* ---- bytes (io.c) ------------------------------------------------------------------------------------------------- */

typedef struct bytes {
  uint8_t *data; /* mem_alloc'd, `cap` bytes */
  size_t len, cap;
} bytes;
void bytes_free(qn_vm *vm, bytes *b);
/* Appends; `p` NULL leaves the room uninitialised. */
QN_MUST_CHECK bool bytes_add(qn_vm *vm, bytes *b, const void *p, size_t len);
/* E501 with the system's reason, E505 without the capability. */
QN_MUST_CHECK bool file_read(qn_vm *vm, const char *path, bytes *out);
/* Writes beside the file and renames, so that a failure leaves the old content. */
QN_MUST_CHECK bool file_write(qn_vm *vm, const char *path, const uint8_t *data, size_t len);

/* Raises E502: "<path>: <what>". */
bool file_refuse(qn_vm *vm, const char *path, const char *format, ...) __attribute__((format(printf, 3, 4)));

static inline uint32_t get_u16(const uint8_t *p) { return (uint32_t)(p[0] | p[1] << 8); }
static inline uint32_t get_u32(const uint8_t *p) { return get_u16(p) | get_u16(p + 2) << 16; }

/* ---- .npy (npy.c) --------------------------------------------------------------------------------------------------- */

/* The array in `len` bytes of .npy; `path` is for messages. */
QN_MUST_CHECK qn_value npy_read(qn_vm *vm, const char *path, const uint8_t *data, size_t len);
/* Appends an array or host number as .npy. E206 for dtypes that the format lacks. */
QN_MUST_CHECK bool npy_write(qn_vm *vm, qn_value v, bytes *out);

/* ---- .npz (npz.c) ----------------------------------------------------------------------------------------------------- */

/* A record of the arrays in a zip archive; members are stored or deflated. */
QN_MUST_CHECK qn_value npz_read(qn_vm *vm, const char *path, const uint8_t *data, size_t len);
/* A tree as an archive of .npy members under dotted names. Same value, same bytes. */
QN_MUST_CHECK bool npz_write(qn_vm *vm, qn_value tree, bytes *out);

#endif
