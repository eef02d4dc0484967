/* Indexing of arrays, lists and strings: a normal form of index items, and what is done with it. Also for builtins.
 *
 *   eager    basic items (integers, slices, new, ...) are views made at once, or copies where they are small; index arrays and
 *            masks run as ops
 *   recorded everything is lowered to ops: slice, reshape, permute, index, compress; slice_put and scatter for updates
 */
#ifndef INTERP_INDEX_H
#define INTERP_INDEX_H

#include "lang/op.h"
#include "lang/vm.h"

typedef enum index_kind {
  INDEX_INT,   /* start */
  INDEX_SLICE, /* start, stop where present, step */
  INDEX_ELLIPSIS,
  INDEX_NEW,
  INDEX_ARRAY, /* an integer array, or a traced int */
  INDEX_MASK   /* a bool array */
} index_kind;

typedef struct index_item {
  uint8_t kind; /* index_kind */
  bool has_start, has_stop;
  int64_t start, stop, step;
  qn_value array; /* borrowed */
} index_item;

enum { INDEX_MAX = 2 * ARRAY_MAX_RANK + 1 };

/* An item from a value: int, range, integer array, bool array. E304 for others. `host` asks for a concrete integer where
 * there is one (lists and strings have no index arrays). */
QN_MUST_CHECK bool index_item_of(qn_vm *vm, qn_value v, bool host, index_item *out);
/* A slice from its three values; nil: absent. */
QN_MUST_CHECK bool index_slice_of(qn_vm *vm, qn_value start, qn_value stop, qn_value step, index_item *out);
/* The integer that steers the program: ints (observed while recording) and rank-0 integer arrays (read). `what` names it in
 * the error E304 for other kinds. */
QN_MUST_CHECK bool index_int(qn_vm *vm, qn_value v, const char *what, int64_t *out);
/* Clips a slice to a size: first element and number of elements. */
void slice_clip(const index_item *slice, int64_t size, int64_t *start, int64_t *count);

/* x[items]: x is an array, list, string, range or record (borrowed). Owned result. */
QN_MUST_CHECK qn_value index_get(qn_vm *vm, qn_value x, const index_item *items, int n);
/* x[i] along axis 0 of an array of rank 1 or more: what `for` and patterns use. `i` is in range. */
QN_MUST_CHECK qn_value index_row(qn_vm *vm, qn_value x, int64_t i);
/* The array in `*x` (owned by its variable) updated at items with `v` (borrowed); x keeps its value on an error. */
QN_MUST_CHECK bool index_put(qn_vm *vm, qn_value *x, const index_item *items, int n, qn_value v);
/* May `v` be stored in x, which keeps its dtype? */
bool index_may_store(const qn_array *x, qn_value v);
/* x[i] = v for a plain number and an array of rank 1 that may be written in place and takes it as it is. False: index_put sees to it, and
 * finds what is wrong. */
bool index_put_number(const qn_vm *vm, qn_value x, int64_t i, qn_value v);
/* Is it that only because the array has other owners? */
bool index_takes_number(const qn_vm *vm, qn_value x, int64_t i, qn_value v);
/* x[items] op= v on every occurrence of repeated indices, in row-major order. */
QN_MUST_CHECK bool index_combine(qn_vm *vm, qn_value *x, const index_item *items, int n, op_id op, qn_value v);
/* The array in another shape of the same size, as an op. Borrowed; owned result. */
QN_MUST_CHECK qn_value array_reshaped(qn_vm *vm, qn_value x, int rank, const int64_t *shape);
/* Do these items hold index arrays, so that positions may repeat? */
bool index_repeats(const index_item *items, int n);
/* A position in a list or string of n items, from -n to n - 1; E303 otherwise. `what`: "list", "string". */
QN_MUST_CHECK bool index_position(qn_vm *vm, int64_t i, int64_t n, const char *what, int64_t *out);

#endif
