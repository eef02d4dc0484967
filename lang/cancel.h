/* Cancelling work that another thread does for somebody who may not want it any more: the worker asks `cancelled` at least every
 * few milliseconds, and then ends as it would when memory is short. */
#ifndef LANG_CANCEL_H
#define LANG_CANCEL_H

#include <stdatomic.h>
#include <stdbool.h>

typedef const atomic_bool *cancel_flag; /* NULL: never; it only ever becomes true */

static inline bool cancelled(cancel_flag flag) { return flag && atomic_load_explicit(flag, memory_order_relaxed); }

#endif
