/* The fast path of eager dispatch (eager.c): random numbers without a kernel, many of them in pieces.
 *
 * The block VM's loops make them (bvm_loops.draw), and their bits are those of the kernel. Arrays of keys, keys that are not at hand and
 * devices are left to the slow way.
 *
 * Why it is there: rand(4), call included, takes 680 instructions this way and 16,900 by its kernel (tests/cost.py).
 * Tried: few integers by `below`, too (randint(0, 5, 4) over 800).
 */
#include <string.h>

#include "jit/cpu/cpu.h"
#include "jit/run/eager.h"
#include "jit/cpu/pieces.h"

_Static_assert(OP_random_uniform == OP_random_bits + 1 && OP_random_normal == OP_random_bits + 2,
               "bvm_loops.draw has the RANDOM ops in their order");

enum { DRAW_FEW = 1024, DRAW_PIECE = 16 * DRAW_FEW, DRAW_WORTH = 4 /* pointwise elements that drawing one is worth */ };
enum { FEW = 8 };                     /* elements; of more the loop `below` is faster */
#define DRAW_MOST ((uint64_t)1 << 48) /* and more are no array's */

/* What is drawn, and where to. */
typedef struct drawing {
  op_id op;
  qn_dtype dtype;    /* of the result; with `values` any dtype of integers */
  uint64_t words[3]; /* those of the key, and the draw number */
  uint64_t values;   /* 0, or of bits: as bvm_loops.below takes them */
  int64_t low;
  const bvm_loops *loops;
  uint64_t n;
  char *out;
} drawing;

/* Makes n numbers, at most DRAW_FEW, from the one numbered `first` on. */
static inline __attribute__((always_inline)) void draw_some(const drawing *d, void *out, uint64_t first, uint64_t n) {
  const bvm_loops *l = d->loops;
  if (d->values && n <= FEW && d->dtype == QN_i64) {
    uint64_t *bits = out;
    l->draw[0][QN_i64](bits, d->words, first, n);
    for (uint64_t i = 0; i < n; i++) bits[i] = (bits[i] & ~(uint64_t)0 >> 1) % d->values + (uint64_t)d->low;
    return;
  }
  uint64_t held[DRAW_FEW];
  qn_dtype made = d->values ? QN_i64 : dtype_compute(d->dtype); /* in which the loops make them */
  void *to = made == d->dtype ? out : (void *)held;
  l->draw[d->op - OP_random_bits][d->values ? QN_i64 : d->dtype](to, d->words, first, n);
  if (d->values) l->below(to, d->values, d->low, n);
  if (to != out) l->cast[made][d->dtype](out, to, NULL, NULL, VM_A, (int64_t)n);
}

static void draw_piece(cpu_pieces *p, int thread, int64_t piece) {
  const drawing *d = p->ctx;
  (void)thread;
  uint64_t first = (uint64_t)piece * DRAW_PIECE, end = d->n - first < DRAW_PIECE ? d->n : first + DRAW_PIECE;
  for (; first < end; first += DRAW_FEW)
    draw_some(d, d->out + first * dtype_size(d->dtype), first, end - first < DRAW_FEW ? end - first : DRAW_FEW);
}

/* Fills the array, which is owned and given up on failure, by threads. */
static __attribute__((noinline)) qn_value draw_many(qn_vm *vm, drawing *d, qn_array *out) {
  int threads = cpu_threads(vm, d->n > INT64_MAX / DRAW_WORTH ? INT64_MAX : (int64_t)d->n * DRAW_WORTH);
  if (threads && pieces_run(vm, threads, (int64_t)((d->n + DRAW_PIECE - 1) / DRAW_PIECE), draw_piece, d))
    return value_obj(TAG_ARRAY, out);
  value_release(vm, value_obj(TAG_ARRAY, out));
  return value_error();
}

/* An array of this shape with numbers as `d` says, whose first five fields are filled in. */
static inline __attribute__((always_inline)) qn_value draw(qn_vm *vm, drawing *d, int rank, const int64_t *shape) {
  d->loops = cpu_loops(vm);
  if (!d->loops) return value_error();
  d->n = 1;
  for (int i = 0; i < rank; i++) d->n *= (uint64_t)shape[i];
  if (vm->device || d->n - 1 >= DRAW_MOST) return value_unset();
  qn_array *out = array_new(vm, d->dtype, rank, shape);
  if (!out) return value_error();
  d->out = out->storage->data;
  if (d->n > DRAW_FEW) return draw_many(vm, d, out);
  draw_some(d, d->out, 0, d->n);
  return value_obj(TAG_ARRAY, out);
}

qn_value eager_draw(qn_vm *vm, op_id op, const op_drawing *what, int64_t low, uint64_t values) {
  drawing d;
  d.op = op, d.dtype = what->dtype, d.values = values, d.low = low;
  const qn_array *key = value_array(what->key);
  bool counted = what->key.head == TAG_NIL;
  if (counted) {
    d.words[0] = vm->seed, d.words[1] = vm->seed >> 32, d.words[2] = vm->draw;
  } else {
    if (!key->storage || key->device || !key->contiguous) return value_unset();
    memcpy(d.words, array_data(key), 2 * sizeof *d.words);
    d.words[2] = (uint64_t)what->number;
  }
  qn_value out = draw(vm, &d, what->rank, what->shape);
  if (counted) vm->draw += out.head != TAG_UNSET;
  return out;
}

qn_value eager_fast_draw(qn_vm *vm, op_id op, const qn_value *in, const op_attr *attr) {
  drawing d;
  d.op = op, d.dtype = (qn_dtype)attr->dtype, d.values = 0;
  if (op == OP_random_bits ? d.dtype != QN_i64 : !dtype_is_float(d.dtype)) return value_unset();
  for (int i = 0; i < 3; i++) {
    if (in[i].head != TAG_INT) return value_unset();
    d.words[i] = (uint64_t)in[i].u.i;
  }
  return draw(vm, &d, attr->n, attr->d);
}
