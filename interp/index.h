/* Indexing of values: items from what is written in brackets, and what they read. Of arrays all is done behind the door
 * (jit/run/index.h); lists, strings and ranges are read here. */
#ifndef INTERP_INDEX_H
#define INTERP_INDEX_H

#include "jit/run/index.h"

/* An item from a value: int, range, integer array, bool array. E304 for others. `host`: of a list, string or range, which has no index
 * arrays, so that an integer is made of what is one. */
QN_MUST_CHECK bool index_item_of(qn_vm *vm, qn_value v, bool host, index_item *out);
/* The integer that steers the program: ints (observed while recording) and rank-0 integer arrays (read). `what` names it in
 * the error E304 for other kinds. */
QN_MUST_CHECK bool index_int(qn_vm *vm, qn_value v, const char *what, int64_t *out);
/* A position in a list, string or range (`what`) of n items, from -n to n - 1; E303 otherwise. */
QN_MUST_CHECK bool index_position(qn_vm *vm, int64_t i, int64_t n, const char *what, int64_t *out);
/* x[items] of any value but a record (borrowed). Owned result. */
QN_MUST_CHECK qn_value index_get(qn_vm *vm, qn_value x, const index_item *items, int n);

#endif
