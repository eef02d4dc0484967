/* Op programs: what an op does to its operands, as the calls of loops that the block VM would make for one block.
 *
 * An op program is made of one-op kernels, once for each op and kinds of operands. Of a POINTWISE op the rules say which conversions there
 * are, and the kernels of these and of the op itself (for operands without gaps) are straight lines of loads, primitives, checks and one
 * store: these are its steps. Of a REDUCE or SCAN op it says how the kernel's accumulator combines elements. So what an op program
 * computes is what the kernels compute, and nothing about arithmetic is written down here. */
#ifndef JIT_CPU_OP_PROGRAM_H
#define JIT_CPU_OP_PROGRAM_H

#include <string.h>

#include "jit/cpu/cpu.h"

/* Where values are: the operands, the result, values on the way, constants. */
enum {
  PROGRAM_OPERANDS = 3,
  PROGRAM_RESULT = PROGRAM_OPERANDS,
  PROGRAM_TEMP = PROGRAM_RESULT + 1,
  PROGRAM_TEMPS = 8,
  PROGRAM_CONST = PROGRAM_TEMP + PROGRAM_TEMPS,
  PROGRAM_CONSTS = 8,
  PROGRAM_SLOTS = PROGRAM_CONST + PROGRAM_CONSTS
};
enum { PROGRAM_BLOCK = 256 }; /* elements at a time at most, unless the op_program is one loop */

typedef struct op_program_step {
  bvm_fn fn; /* NULL: a step of another kind */
  /* one element, made of host numbers and constants; NULL: a check, that in[0] holds for all elements, or the end */
  bvm_fn once;
  uint8_t out, in[3]; /* out: PROGRAM_SLOTS at the end */
  uint8_t nin;        /* of fn and once */
  uint8_t mode
      [1
       << PROGRAM_OPERANDS]; /* of fn, by which operands of the op_program are vectors; of a check whether in[0] is one */
} op_program_step;

/* The kind of an operand: its dtype, or PROGRAM_WEAK + the tag of a host number. */
enum { PROGRAM_WEAK = DTYPE_PUBLIC - TAG_BOOL, PROGRAM_KIND_BITS = 4 };
_Static_assert(PROGRAM_WEAK + TAG_FLOAT < 1 << PROGRAM_KIND_BITS, "a kind of operand is one digit of a number");
_Static_assert(QN_DTYPE_COUNT <= 1 << PROGRAM_KIND_BITS, "and so is any dtype");
_Static_assert(TAG_INT == TAG_BOOL + 1 && TAG_FLOAT == TAG_BOOL + 2, "host numbers are numbered in a row");

/* How the kernel of a REDUCE or SCAN op combines elements: its conversions, and the loops for few elements by the primitive of its
 * accumulator. */
typedef struct op_fold {
  bvm_fn widen;  /* from the operand's dtype to `dtype`; NULL: they are the same */
  bvm_fn narrow; /* from `dtype` to the result's; NULL: they are the same, or the result is an index */
  bvm_fn step;   /* of two elements */
  /* As bvm_loops has them. A REDUCE op has tree and chains, or arg; a SCAN op has scan. */
  void (*tree)(void *out, const void *x, int64_t rows, int64_t n);
  void (*chains)(void *out, const void *x, int64_t outer, int64_t n, int64_t inner);
  void (*scan)(void *x, int64_t n);
  void (*arg)(void *best, int64_t *at, const void *x, int64_t index, int64_t n);
  uint8_t dtype, size; /* in which it combines them, and the bytes of one */
} op_fold;

typedef struct op_program {
  bvm_fn fn;                        /* the only step, of the operands in their order; NULL: there are more, or none */
  bool usable;                      /* else the op on such operands is left to the slow way */
  bool same;                        /* the result is the operand itself; then fn is NULL */
  uint8_t result;                   /* dtype */
  uint8_t scalar[PROGRAM_OPERANDS]; /* of host numbers: the dtype in which the op takes them */
  uint8_t size[PROGRAM_OPERANDS];   /* bytes of an element */
  uint8_t nsteps, nconsts, ntemps;
  op_fold fold; /* of a REDUCE or SCAN op, which has no steps */
  uint64_t bits[PROGRAM_CONSTS];
  op_program_step steps[];
} op_program;

/* A program's number among those of its op: the kinds of the operands, a digit each. An op of one operand has a second digit, the dtype
 * of its attribute: that of a conversion's result, else 0. */
static inline uint32_t op_program_number(uint32_t a, uint32_t b) { return a << PROGRAM_KIND_BITS | b; }

/* Makes the program of this number; the VM owns it. NULL with an error raised. */
QN_MUST_CHECK const op_program *op_program_make(qn_vm *vm, op_id op, uint32_t number);

static inline __attribute__((always_inline)) const op_program *op_program_of(qn_vm *vm, op_id op, uint32_t number) {
  const cpu_kept *t = vm->devices[FAMILY_cpu];
  const op_program **row = __builtin_expect(t != NULL, 1) ? t->op_programs[op] : NULL;
  const op_program *s = __builtin_expect(row != NULL, 1) ? row[number] : NULL;
  return __builtin_expect(s != NULL, 1) ? s : op_program_make(vm, op, number);
}

/* The program if it is made already, and nobody traces what is done by it, else NULL. */
static inline __attribute__((always_inline)) const op_program *op_program_known(qn_vm *vm, op_id op, uint32_t number) {
  const cpu_kept *t = vm->devices[FAMILY_cpu];
  const op_program **row = __builtin_expect(t != NULL, 1) ? t->quick[op] : NULL;
  return __builtin_expect(row != NULL, 1) ? row[number] : NULL;
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

/* The steps on n <= PROGRAM_BLOCK elements: operand i is at at[i], a vector if bit i of `vectors` is set. `at` has PROGRAM_SLOTS places, of which
 * the operands are filled in. False: a check has failed. */
static inline __attribute__((always_inline)) bool op_program_run(const op_program *s, const void **at, size_t vectors,
                                                                 void *out, int64_t n) {
  _Alignas(64) char temps[PROGRAM_TEMPS][PROGRAM_BLOCK * 8];
  enum { FEW = 3 };
  at[PROGRAM_RESULT] = out;
  for (int i = 0; i < FEW; i++) at[PROGRAM_TEMP + i] = temps[i];
  for (int i = FEW; i < s->ntemps; i++) at[PROGRAM_TEMP + i] = temps[i];
  for (int i = 0, count = s->nconsts; i < count; i++) at[PROGRAM_CONST + i] = &s->bits[i];
  for (const op_program_step *step = s->steps;; step++) {
    bvm_fn fn = step->fn;
    if (__builtin_expect(fn != NULL, 1))
      fn((void *)(uintptr_t)at[step->out], at[step->in[0]], at[step->in[1]], at[step->in[2]], step->mode[vectors], n);
    else if (step->once)
      step->once((void *)(uintptr_t)at[step->out], at[step->in[0]], at[step->in[1]], at[step->in[2]], 0, 1);
    else if (step->out == PROGRAM_SLOTS)
      return true;
    else if (!all_hold(at[step->in[0]], step->mode[vectors] ? n : 1))
      return false;
  }
}

#endif
