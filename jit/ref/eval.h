/* The reference evaluator of L: runs programs as l.h defines them, one element at a time, slowly. The device `ref` is made of it, and tests
 * compare the other executors with it. */
#ifndef JIT_REF_EVAL_H
#define JIT_REF_EVAL_H

#include <string.h>

#include "jit/kernel/l.h"

typedef enum l_eval_end {
  L_EVAL_DONE,  /* it has run; *error tells whether a check failed */
  L_EVAL_WRONG, /* the program does what l.h forbids: `why` says what and where */
  L_EVAL_LACKS_MEMORY,
  L_EVAL_STOPPED /* `stop` said so */
} l_eval_end;

typedef struct l_eval_options {
  bool (*stop)(void *ctx); /* asked now and then whether to stop; may be NULL */
  void *ctx;
  char *why; /* room for `why_size` bytes; may be NULL where that is 0 */
  size_t why_size;
  int64_t *values; /* room for p->n numbers: gets the last value of each instruction, as an index; may be NULL */
} l_eval_options;

/* Runs a verified program; nothing is raised. buffers: those that are not scratch. sizes[b]: elements of buffer b, for finding accesses out of
 * bounds; -1: unknown; NULL: none is known. *error: check number << 48 | element of the first check that failed, or ~0. `o` may be NULL. */
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
