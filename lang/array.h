/* Arrays: dtype, shape, strides and an offset over reference-counted storage.
 *
 * An array value is immutable in the language; several arrays may view one storage (slices, transposes, broadcasts).
 * Writing in place needs array_own: one owner of the array and of its storage, storage neither foreign nor exported.
 *
 * Pending arrays. While a call is recorded, ops make arrays without storage: shape and dtype are known, data is not
 * (`storage` is NULL and `node` names the graph node). array_force runs what is needed. Code that touches data therefore
 * begins with array_force; code that only looks at shape and dtype need not.
 */
#ifndef LANG_ARRAY_H
#define LANG_ARRAY_H

#include <string.h>

#include "lang/dtype.h"
#include "lang/mem.h"
#include "lang/value.h"

enum { ARRAY_MAX_RANK = 8 };
#define ARRAY_MAX_ELEMENTS ((int64_t)1 << 48)
/* The number of bytes after the last element of any array or constant in the CPU's memory that kernels may read, since they load whole
 * vectors at the end. They ignore what they read there, and nobody writes there. Memory that comes from elsewhere is copied unless it has
 * these bytes. */
enum { ARRAY_TAIL = 64 };

typedef struct qn_storage {
  uint32_t refs;
  uint8_t device;  /* its code (device.h): 0 cpu */
  uint8_t foreign; /* imported or exported (DLPack): never written in place */
  size_t bytes;
  char *data;                 /* from mem_buffer unless foreign */
  void (*deleter)(void *ctx); /* of foreign memory */
  void *ctx;
} qn_storage;

struct qn_array {
  obj_head head; /* aux: flags below */
  uint8_t dtype; /* qn_dtype */
  uint8_t rank;
  uint8_t device;
  uint8_t contiguous;  /* row-major without gaps: strides are those of the shape */
  uint32_t node;       /* graph node, meaningful while its recording lasts (rec.h); 0: none */
  int64_t size;        /* elements */
  int64_t offset;      /* elements from storage->data */
  qn_storage *storage; /* NULL: pending */
  int64_t shape[ARRAY_MAX_RANK];
  int64_t strides[ARRAY_MAX_RANK]; /* in elements; 0 for broadcast axes; may be negative */
};

static inline bool array_pending(const qn_array *a) { return a->storage == NULL; }
static inline char *array_data(const qn_array *a) {
  return a->storage->data + a->offset * (int64_t)dtype_rows[a->dtype].size;
}

/* A new contiguous array with storage; data uninitialised. Raises E201, E205 or E605 on an impossible shape. */
QN_MUST_CHECK qn_array *array_new(qn_vm *vm, qn_dtype dtype, int rank, const int64_t *shape);
/* A new contiguous array as array_new makes it, of the shape of x, on the CPU. */
QN_MUST_CHECK qn_array *array_new_like(qn_vm *vm, qn_dtype dtype, const qn_array *x);
/* A new contiguous array in the memory of the device with this code. */
QN_MUST_CHECK qn_array *array_new_on(qn_vm *vm, int device, qn_dtype dtype, int rank, const int64_t *shape);
/* A new array header without storage: it is pending, or the caller gives it storage. */
QN_MUST_CHECK qn_array *array_new_header(qn_vm *vm, qn_dtype dtype, int rank, const int64_t *shape);
/* A view on `base`'s storage (base must have storage). Sets `contiguous` itself. */
QN_MUST_CHECK qn_array *array_view(qn_vm *vm, const qn_array *base, qn_dtype dtype, int rank, const int64_t *shape,
                                   const int64_t *strides, int64_t offset);
/* The part of `base` that array_view would show, in base's dtype; the result is read only. Where it is few elements that lie in one piece
 * in the CPU's memory it gets a copy of them, which costs no more than a view: so an array that is read element by element or row by
 * row does not become shared, and its next update needs no copy. */
QN_MUST_CHECK qn_array *array_part(qn_vm *vm, const qn_array *base, int rank, const int64_t *shape,
                                   const int64_t *strides, int64_t offset);
QN_MUST_CHECK qn_array *array_from_scalar(qn_vm *vm, qn_dtype dtype, qn_value scalar); /* rank 0 */

/* Allocates storage for a header, on its device. */
QN_MUST_CHECK bool array_allocate(qn_vm *vm, qn_array *a);
qn_storage *storage_retain(qn_storage *s);

/* Makes sure that the array has its data, by running pending work. False with an error raised. */
QN_MUST_CHECK bool array_force(qn_vm *vm, qn_array *a);
/* A contiguous array of the same elements (itself, retained, if it is so already). Forces. */
QN_MUST_CHECK qn_array *array_contiguous(qn_vm *vm, qn_array *a);
/* Gives up a reference to an array; NULL is ignored. */
void array_drop(qn_vm *vm, qn_array *a);
/* A new contiguous array of the same elements. Forces. */
QN_MUST_CHECK qn_array *array_duplicate(qn_vm *vm, qn_array *a);
/* array_duplicate for an update of an array that has another owner: the copy counts in vm->copies. */
QN_MUST_CHECK qn_array *array_copy(qn_vm *vm, qn_array *a);
/* A contiguous array of the same elements in the CPU's memory (itself, retained, if it is so already). Forces. */
QN_MUST_CHECK qn_array *array_to_cpu(qn_vm *vm, qn_array *a);
/* An array of the same elements on a device (itself, retained, if it is there, whatever its layout; else contiguous). Forces.
 * Device 0 is the CPU. */
QN_MUST_CHECK qn_array *array_to_device(qn_vm *vm, qn_array *a, int device);
/* Moves a new array (taken over) to the device where the VM makes new arrays. Owned; NULL with an error raised. */
QN_MUST_CHECK qn_array *array_settle(qn_vm *vm, qn_array *a);
/* The element of an array on any device at a flat row-major index, as a host scalar. Forces. */
QN_MUST_CHECK bool array_item(qn_vm *vm, qn_array *a, int64_t index, qn_value *out);
/* Writes one element, `at` elements behind storage->data, of an array that has storage on any device. */
QN_MUST_CHECK bool array_store(qn_vm *vm, qn_array *a, int64_t at, qn_value v);
/* Copies all elements between two layouts of one shape and dtype on one device, which may be the CPU. False with an error raised. */
QN_MUST_CHECK bool array_copy_on(qn_vm *vm, qn_array *to, const qn_array *from);
/* Makes *v (an owned TAG_ARRAY value) an array that may be written in place: it has its data, and nobody else owns it or its storage. It is
 * copied if need be. False with an error raised. */
QN_MUST_CHECK bool array_own(qn_vm *vm, qn_value *v);

/* Copies all elements between two layouts of one shape and dtype, which have storage in the CPU's memory and do not overlap. */
void array_copy_elements(qn_array *to, const qn_array *from);
/* array_copy_elements for copies that may take long: on an interrupt or a limit it stops, false with that error raised. */
QN_MUST_CHECK bool array_copy_watched(qn_vm *vm, qn_array *to, const qn_array *from);
/* The element at a flat row-major index as a host scalar. The array is forced and in the CPU's memory. */
qn_value array_get_flat(const qn_array *a, int64_t index);

/* Sets row-major strides for a shape; returns the number of elements, or -1 when it overflows ARRAY_MAX_ELEMENTS or a size
 * is negative. */
int64_t shape_strides(int rank, const int64_t *shape, int64_t *strides);
bool shape_equal(const qn_array *a, const qn_array *b);
/* Strides of a view of `a` with the new shape, if it can be a view without copying (NumPy's rule). */
bool shape_reshape_strides(const qn_array *a, int rank, const int64_t *shape, int64_t *strides);

/* dtype, rank, device and `contiguous` of an array as one number, so that two arrays are compared in one step. */
static inline uint32_t array_form(const qn_array *a) {
  uint32_t form;
  memcpy(&form, (const char *)a + offsetof(qn_array, dtype), sizeof form);
  return form;
}
_Static_assert(offsetof(qn_array, dtype) + 1 == offsetof(qn_array, rank) &&
                   offsetof(qn_array, rank) + 1 == offsetof(qn_array, device) &&
                   offsetof(qn_array, device) + 1 == offsetof(qn_array, contiguous),
               "they lie side by side");

#endif
