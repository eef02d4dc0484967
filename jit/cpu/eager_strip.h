/* Strips: what an elementwise op does to its operands, as the calls of loops that the block VM would make for one block.
 *
 * A strip is made of one-op kernels, once for each op and kinds of operands: the rules say which conversions there are, and the
 * kernels of these and of the op itself (for operands without gaps) are straight lines of loads, primitives, checks and one store.
 * So what a strip computes is what the kernels compute, and nothing about arithmetic is written down here. */
#ifndef JIT_CPU_EAGER_STRIP_H
#define JIT_CPU_EAGER_STRIP_H

#include <stddef.h>
#include <string.h>

#include "jit/cpu/vm.h"

/* Where values are: the operands, the result, values on the way, constants. */
enum {
  STRIP_OPERANDS = 3,
  STRIP_RESULT = STRIP_OPERANDS,
  STRIP_TEMP = STRIP_RESULT + 1,
  STRIP_TEMPS = 8,
  STRIP_CONST = STRIP_TEMP + STRIP_TEMPS,
  STRIP_CONSTS = 8,
  STRIP_SLOTS = STRIP_CONST + STRIP_CONSTS
};
enum { STRIP_BLOCK = 256 }; /* elements at a time at most, unless the strip is one loop */

typedef struct strip_step {
  vm_fn fn; /* NULL: a step of another kind */
  vm_fn
      once; /* one element, made of host numbers and constants; NULL: a check, that in[0] holds for all elements, or the end */
  uint8_t out, in[3]; /* out: STRIP_SLOTS at the end */
  uint8_t nin;        /* of fn and once */
  uint8_t mode
      [1 << STRIP_OPERANDS]; /* of fn, by which operands of the strip are vectors; of a check whether in[0] is one */
} strip_step;

/* The kind of an operand: its dtype, or STRIP_WEAK + the tag of a host number. */
enum { STRIP_WEAK = DTYPE_PUBLIC - TAG_BOOL, STRIP_KIND_BITS = 4 };
_Static_assert(STRIP_WEAK + TAG_FLOAT < 1 << STRIP_KIND_BITS, "a kind of operand is one digit of a number");
_Static_assert(TAG_INT == TAG_BOOL + 1 && TAG_FLOAT == TAG_BOOL + 2, "host numbers are numbered in a row");

typedef struct strip {
  vm_fn fn;                       /* the only step, of the operands in their order; NULL: there are more, or none */
  bool usable;                    /* else the op on such operands is left to the slow way */
  uint8_t result;                 /* dtype */
  uint8_t scalar[STRIP_OPERANDS]; /* of host numbers: the dtype in which the op takes them */
  uint8_t size[STRIP_OPERANDS];   /* bytes of an element */
  uint8_t nsteps, nconsts, ntemps;
  uint64_t bits[STRIP_CONSTS];
  strip_step steps[];
} strip;

/* What the fast ways keep, the first member of a VM's eager state. Strips of an op by the kinds of its operands, a digit each; one that
 * takes fewer than two has the last digit 0, a conversion the target there. */
typedef struct eager_kept {
  const strip **strips[OP_COUNT]; /* NULL: none so far */
  struct fold_plan *folds;        /* eager_reduce.c's; NULL: none so far */
} eager_kept;
static inline uint32_t strip_number(uint32_t a, uint32_t b) { return a << STRIP_KIND_BITS | b; }
static inline uint32_t strip_number3(uint32_t a, uint32_t b, uint32_t c) { return strip_number(strip_number(a, b), c); }

/* Makes it; NULL with an error raised. */
QN_MUST_CHECK const strip *strip_make(qn_vm *vm, op_id op, uint32_t number);
void strips_free(qn_vm *vm, eager_kept *t);
void folds_free(qn_vm *vm, eager_kept *t);

static inline __attribute__((always_inline)) const strip *strip_of(qn_vm *vm, op_id op, uint32_t number) {
  const eager_kept *t = vm->eager;
  const strip **row = __builtin_expect(t != NULL, 1) ? t->strips[op] : NULL;
  const strip *s = __builtin_expect(row != NULL, 1) ? row[number] : NULL;
  return __builtin_expect(s != NULL, 1) ? s : strip_make(vm, op, number);
}

/* The same if it is there already, else NULL. */
static inline __attribute__((always_inline)) const strip *strip_known(qn_vm *vm, op_id op, uint32_t number) {
  const eager_kept *t = vm->eager;
  const strip **row = __builtin_expect(t != NULL, 1) ? t->strips[op] : NULL;
  return __builtin_expect(row != NULL, 1) ? row[number] : NULL;
}

/* On the CPU and contiguous? */
static inline bool array_in_order(const qn_array *a) {
  static const uint8_t yes[2] = {0, true};
  uint16_t is, wanted;
  memcpy(&is, (const char *)a + offsetof(qn_array, device), sizeof is);
  memcpy(&wanted, yes, sizeof wanted);
  return is == wanted;
}

/* Of bytes that are 0 or 1. */
static inline bool all_hold(const uint8_t *ok, int64_t n) {
  if (n > 32) return !memchr(ok, 0, (size_t)n);
  for (; n >= 4; n -= 4, ok += 4) {
    uint32_t four;
    memcpy(&four, ok, 4);
    if (four != 0x01010101) return false;
  }
  for (int64_t i = 0; i < n; i++)
    if (!ok[i]) return false;
  return true;
}

/* The steps on n <= STRIP_BLOCK elements: operand i is at at[i], a vector if bit i of `vectors` is set. `at` has STRIP_SLOTS places, of which
 * the operands are filled in. False: a check has failed. */
static inline __attribute__((always_inline)) bool strip_run(const strip *s, const void **at, size_t vectors, void *out,
                                                            int64_t n) {
  _Alignas(64) char temps[STRIP_TEMPS][STRIP_BLOCK * 8];
  enum { FEW = 3 };
  at[STRIP_RESULT] = out;
  for (int i = 0; i < FEW; i++) at[STRIP_TEMP + i] = temps[i];
  for (int i = FEW; i < s->ntemps; i++) at[STRIP_TEMP + i] = temps[i];
  for (int i = 0, count = s->nconsts; i < count; i++) at[STRIP_CONST + i] = &s->bits[i];
  for (const strip_step *step = s->steps;; step++) {
    vm_fn fn = step->fn;
    if (__builtin_expect(fn != NULL, 1))
      fn((void *)(uintptr_t)at[step->out], at[step->in[0]], at[step->in[1]], at[step->in[2]], step->mode[vectors], n);
    else if (step->once)
      step->once((void *)(uintptr_t)at[step->out], at[step->in[0]], at[step->in[1]], at[step->in[2]], 0, 1);
    else if (step->out == STRIP_SLOTS)
      return true;
    else if (!all_hold(at[step->in[0]], step->mode[vectors] ? n : 1))
      return false;
  }
}

#endif
