/* The reference evaluator of L: what a program means, one element at a time, slow. The device `ref` runs by it, and tests compare
 * executors with it. */
#ifndef JIT_REF_EVAL_H
#define JIT_REF_EVAL_H

#include <string.h>

#include "jit/kernel/l.h"

typedef enum l_eval_end {
  L_EVAL_DONE,         /* it has run; *error tells whether a check failed */
  L_EVAL_WRONG,        /* the program does what l.h forbids: `why` says what and where */
  L_EVAL_LACKS_MEMORY, /* nothing is raised */
  L_EVAL_STOPPED
} l_eval_end;

typedef struct l_eval_options {
  bool (*stop)(void *ctx); /* asked now and then whether to stop; may be NULL */
  void *ctx;
  char *why; /* room for `why_size` bytes; may be NULL where that is 0 */
  size_t why_size;
  int64_t *values; /* room for p->n: gets what each instruction gave at last, as an index; may be NULL */
} l_eval_options;

/* Runs a verified program. buffers: without scratch. sizes[b]: elements of buffer b, or -1: unknown; NULL: none is known. *error: check
 * number << 48 | element of the first failed check, or ~0. `o` may be NULL. */
l_eval_end l_eval(const l_program *p, void *const *buffers, const int64_t *sizes, const int64_t *ints,
                  const qk_scalar *scalars, const l_eval_options *o, uint64_t *error);

/* The bits of one element in memory. */
static inline uint64_t ev_read(qn_dtype d, const void *base, int64_t i) {
  uint64_t x = 0;
  size_t n = dtype_size(d);
  memcpy(&x, (const char *)base + (size_t)i * n, n);
  return x;
}
static inline void ev_write(qn_dtype d, void *base, int64_t i, uint64_t x) {
  size_t n = dtype_size(d);
  memcpy((char *)base + (size_t)i * n, &x, n);
}

#endif
