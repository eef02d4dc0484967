/* The fast path of eager dispatch (eager.c): random numbers without a kernel, many of them in pieces.
 *
 * The block VM's loops make them (bvm_loops.draw), and their bits are those of the kernel. Arrays of keys and devices are left to the slow way.
 */
#include "jit/cpu/eager_random.h"

#include "jit/cpu/eager.h"
#include "jit/cpu/pieces.h"

_Static_assert(OP_random_uniform == OP_random_bits + 1 && OP_random_normal == OP_random_bits + 2,
               "bvm_loops.draw has the RANDOM ops in their order");

void eager_draw_some(const bvm_loops *l, op_id op, const eager_drawing *d, void *out, uint64_t first, uint64_t n) {
  if (d->values) {
    uint64_t bits[DRAW_FEW];
    void *to = d->dtype == QN_i64 ? out : bits;
    l->draw[OP_random_bits - OP_random_bits][QN_i64](to, d->words, first, n);
    l->below(to, d->values, d->low, n);
    if (to != out) l->cast[QN_i64][d->dtype](out, bits, NULL, NULL, VM_A, (int64_t)n);
    return;
  }
  float wide[DRAW_FEW];
  bool rounded = d->dtype == QN_f16 || d->dtype == QN_bf16;
  l->draw[op - OP_random_bits][d->dtype](rounded ? wide : out, d->words, first, n);
  if (rounded) l->cast[QN_f32][d->dtype](out, wide, NULL, NULL, VM_A, (int64_t)n);
}

enum { DRAW_PIECE = 16 * DRAW_FEW, DRAW_WORTH = 4 /* pointwise elements that drawing one is worth */ };

typedef struct drawing_pieces {
  const bvm_loops *loops;
  op_id op;
  const eager_drawing *d;
  char *out;
} drawing_pieces;

static void draw_piece(cpu_pieces *p, int thread, int64_t piece) {
  const drawing_pieces *j = p->ctx;
  (void)thread;
  uint64_t first = (uint64_t)piece * DRAW_PIECE, end = j->d->n - first < DRAW_PIECE ? j->d->n : first + DRAW_PIECE;
  for (; first < end; first += DRAW_FEW)
    eager_draw_some(j->loops, j->op, j->d, j->out + first * dtype_size(j->d->dtype), first,
                    end - first < DRAW_FEW ? end - first : DRAW_FEW);
}

bool eager_draw_many(qn_vm *vm, op_id op, const eager_drawing *d, void *out) {
  drawing_pieces j = {.loops = cpu_loops(vm), .op = op, .d = d, .out = out};
  int threads = cpu_threads(vm, d->n > INT64_MAX / DRAW_WORTH ? INT64_MAX : (int64_t)d->n * DRAW_WORTH);
  return threads && j.loops && pieces_run(vm, threads, (int64_t)((d->n + DRAW_PIECE - 1) / DRAW_PIECE), draw_piece, &j);
}

qn_value eager_fast_draw(qn_vm *vm, op_id op, const qn_value *in, const op_attr *attr) {
  eager_drawing d = {.dtype = (qn_dtype)attr->dtype, .rank = attr->n};
  if (op == OP_random_bits ? d.dtype != QN_i64 : !dtype_is_float(d.dtype)) return value_unset();
  for (int i = 0; i < 3; i++) {
    if (in[i].head != TAG_INT) return value_unset();
    d.words[i] = (uint64_t)in[i].u.i;
  }
  for (int i = 0; i < d.rank; i++) d.shape[i] = attr->d[i];
  d.n = drawing_size(&d);
  return eager_draw(vm, op, &d, false);
}
