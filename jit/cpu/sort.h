/* sort and argsort on the CPU: stable along an axis, NaN last, -0 and 0 equal. */
#ifndef JIT_CPU_SORT_H
#define JIT_CPU_SORT_H

#include "lang/vm.h"

/* An array in the CPU's memory, of any layout, sorted along an axis (0 of an array without axes), or the indices (i64) that sort it. A new contiguous
 * array, or NULL with an error raised. */
QN_MUST_CHECK qn_array *sort_along(qn_vm *vm, const qn_array *x, int axis, bool descending, bool indices);

/* The first k (from 0 to its size) of the indices that sort each line: those of sort_along, without sorting all of a line of which they
 * are few. */
QN_MUST_CHECK qn_array *sort_first(qn_vm *vm, const qn_array *x, int axis, bool descending, int64_t k);

#endif
