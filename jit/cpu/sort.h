/* sort and argsort on the CPU: stable along an axis, NaN last, -0 and 0 equal. */
#ifndef JIT_CPU_SORT_H
#define JIT_CPU_SORT_H

#include "lang/vm.h"

/* Sorts an array in the CPU's memory, of any layout, along an axis (0 if it has none), or gives the i64 `indices` that sort it. A new contiguous
 * array, or NULL with an error raised. */
QN_MUST_CHECK qn_array *sort_along(qn_vm *vm, const qn_array *x, int axis, bool descending, bool indices);

/* The first k of the indices that sort_along gives along the axis, 0 <= k <= its size. Where k is small, lines are not sorted as a whole. */
QN_MUST_CHECK qn_array *sort_first(qn_vm *vm, const qn_array *x, int axis, bool descending, int64_t k);

#endif
