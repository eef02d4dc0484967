/* K kernels of graphs, with data to run their programs on: what a program must give is what the kernel's own schedule gives by the
 * definition of L (jit/ref/eval.h). */
#ifndef TESTS_UNIT_KERNEL_CASE_H
#define TESTS_UNIT_KERNEL_CASE_H

#include "jit/cpu/cpu.h"
#include "jit/kernel/fuse.h"
#include "jit/ref/eval.h"
#include "lang/vm.h"
#include "tests/unit/graph_random.h"
#include "tests/unit/kernel_text.h"

enum { KERNEL_BUFFERS = 160 };

typedef struct kernel_case {
  k_kernel *k;                     /* owned */
  int64_t *symbols;                /* values of dims, by expression */
  uint32_t n;                      /* buffers but scratch */
  uint32_t buffer[KERNEL_BUFFERS]; /* their numbers in k, */
  qn_dtype dtype[KERNEL_BUFFERS];
  int64_t elements[KERNEL_BUFFERS];
  void *start[KERNEL_BUFFERS], *want[KERNEL_BUFFERS];
  qk_scalar *scalars;
  uint64_t error;         /* the error cell; ~0: no check fails */
  const bvm_loops *loops; /* the block VM's; NULL: those for this processor */
} kernel_case;

static inline int64_t kernel_case_dim(const kernel_case *c, qn_dim d) { return dim_eval(c->k->dims, d, c->symbols); }

/* What schedule_result.ints are for these sizes; for the caller to free. */
static inline int64_t *kernel_case_ints(const kernel_case *c, const schedule_result *s) {
  int64_t *ints = calloc(s->nints + (size_t)1, sizeof *ints);
  for (uint32_t i = 0; ints && i < s->nints; i++) ints[i] = kernel_case_dim(c, s->ints[i]);
  return ints;
}

static inline void kernel_case_free(kernel_case *c) {
  for (uint32_t b = 0; b < c->n; b++) {
    free(c->start[b]);
    free(c->want[b]);
  }
  free(c->symbols);
  free(c->scalars);
  k_free(c->k);
}

static inline size_t kernel_case_bytes(const kernel_case *c, uint32_t b) {
  return (size_t)c->elements[b] * dtype_size(c->dtype[b]);
}

/* A copy of the buffers as they are at first, for a program to run on. */
static inline void kernel_case_begin(const kernel_case *c, void *ours[KERNEL_BUFFERS]) {
  for (uint32_t b = 0; b < c->n; b++) {
    ours[b] = aligned_alloc(64, (kernel_case_bytes(c, b) + 255) / 64 * 64);
    memcpy(ours[b], c->start[b], kernel_case_bytes(c, b));
  }
}
static inline void kernel_case_end(const kernel_case *c, void *ours[KERNEL_BUFFERS]) {
  for (uint32_t b = 0; b < c->n; b++) free(ours[b]);
}

/* The same bits; NaNs are one value. */
static inline bool kernel_case_same(qn_dtype d, uint64_t x, uint64_t y) {
  if (x == y) return true;
  switch (d) {
  case QN_f16: return (x & 0x7fff) > 0x7c00 && (y & 0x7fff) > 0x7c00;
  case QN_bf16: return (x & 0x7fff) > 0x7f80 && (y & 0x7fff) > 0x7f80;
  case QN_f32: return (x & 0x7fffffff) > 0x7f800000 && (y & 0x7fffffff) > 0x7f800000;
  case QN_f64: return (x << 1) > 0xffe0000000000000u && (y << 1) > 0xffe0000000000000u;
  default: return false;
  }
}

/* Compares what a program left. `written` (by buffer): those that count; NULL: all. False: `why` says what differs. */
static inline bool kernel_case_compare(const kernel_case *c, void *const *ours, uint64_t error, const bool *counts,
                                       char *why, size_t size) {
  if (error != c->error) {
    snprintf(why, size, "error cell %llx, not %llx", (unsigned long long)error, (unsigned long long)c->error);
    return false;
  }
  for (uint32_t b = 0; b < c->n && error == ~0ull; b++) { /* after a failed check what was stored is thrown away */
    if ((counts && !counts[b]) || memcmp(ours[b], c->want[b], kernel_case_bytes(c, b)) == 0) continue;
    for (int64_t i = 0; i < c->elements[b]; i++) {
      uint64_t x = ev_read(c->dtype[b], ours[b], i), y = ev_read(c->dtype[b], c->want[b], i);
      if (kernel_case_same(c->dtype[b], x, y)) continue;
      snprintf(why, size, "b%u[%lld]: %llx, not %llx", c->buffer[b], (long long)i, (unsigned long long)x,
               (unsigned long long)y);
      return false;
    }
  }
  return true;
}

/* Runs a program by the definition of L, and compares. */
static inline bool kernel_case_eval(const kernel_case *c, const schedule_result *s, char *why, size_t size) {
  void *ours[KERNEL_BUFFERS];
  uint64_t error = 0;
  int64_t *ints = kernel_case_ints(c, s);
  kernel_case_begin(c, ours);
  const l_eval_options o = {.why = why, .why_size = size};
  bool ok = l_eval(s->program, ours, c->elements, ints, c->scalars, &o, &error) == L_EVAL_DONE;
  ok = ok && kernel_case_compare(c, ours, error, NULL, why, size);
  kernel_case_end(c, ours);
  free(ints);
  return ok;
}

/* Runs a program on a VM, by the block VM or compiled, and compares. With `in` >= 0 buffer `out` lies in the memory of buffer `in`. */
static inline bool kernel_case_run(const kernel_case *c, qn_vm *vm, const schedule_result *s, const qk_phase *compiled,
                                   int in, int out, char *why, size_t size) {
  void *ours[KERNEL_BUFFERS], *places[KERNEL_BUFFERS];
  bool counts[KERNEL_BUFFERS];
  int64_t *ints = kernel_case_ints(c, s);
  kernel_case_begin(c, ours);
  for (uint32_t b = 0; b < c->n; b++) {
    places[b] = (int)b == out && in >= 0 ? ours[in] : ours[b];
    counts[b] = (int)b != in;
  }
  void *code = bvm_code_make(s->program, c->loops ? c->loops : bvm_loops_pick());
  kernel_failure f = {0};
  bool ok = code && kernel_launch(vm, s->program, &code, compiled, places, ints, c->scalars, &f);
  if (!code || error_pending(vm) || ok != (f.error == ~0ull)) {
    snprintf(why, size, "no result");
    ok = false;
  } else {
    for (uint32_t b = 0; b < c->n; b++)
      if (places[b] != ours[b]) memcpy(ours[b], places[b], kernel_case_bytes(c, b));
    ok = kernel_case_compare(c, ours, f.error, in >= 0 ? counts : NULL, why, size);
  }
  error_clear(vm);
  bvm_code_free(code);
  kernel_case_end(c, ours);
  free(ints);
  return ok;
}

/* ---- making them ------------------------------------------------------------------------------------------------------------ */

typedef struct kernel_case_options {
  int64_t most;    /* bytes of all buffers */
  int64_t indices; /* integers are 0 .. indices - 1; 0: also negative ones, and 0 as a divisor */
  bool wild;       /* with infinities and NaNs */
  bool filled;     /* is `want` found out? */
  int64_t fresh;   /* the data of a buffer comes again after so many elements; 0: it does not */
} kernel_case_options;

enum { KERNEL_WORK = 600000 };

/* The points of all axes: the most that a schedule may go through for one effect. */
static inline double kernel_case_work(const kernel_case *c) {
  double points = 1;
  for (uint32_t a = 0; a < c->k->naxes; a++) points *= (double)(kernel_case_dim(c, c->k->axes[a].extent) + 1);
  return points;
}

/* Gives a kernel, which the case takes over, data at the sizes `symbols`, which are copied (NULL: the recorded ones). False: it is too large, or
 * (`why` is not empty) something is wrong. */
static inline bool kernel_case_of(kernel_case *c, k_kernel *k, const int64_t *symbols, uint64_t seed,
                                  const kernel_case_options *o, char *why, size_t size) {
  rng r = {seed * 31 + 7};
  int64_t all = 0;
  *c = (kernel_case){.k = k, .error = ~0ull};
  why[0] = 0;
  c->symbols = calloc(k->dims->n + (size_t)1, sizeof *c->symbols);
  for (uint32_t i = 0; i < k->dims->n; i++) c->symbols[i] = symbols ? symbols[i] : k->dims->exprs[i].hint;
  for (uint32_t b = 0; b < k->nbuffers; b++) {
    if (k->buffers[b].mode == BUF_SCRATCH) continue;
    if (c->n == KERNEL_BUFFERS) return false;
    c->buffer[c->n] = b;
    c->dtype[c->n] = (qn_dtype)k->buffers[b].dtype;
    c->elements[c->n] = kernel_case_dim(c, k->buffers[b].elements);
    if (c->elements[c->n] < 0) return false; /* sizes that a check of the graph refuses */
    size_t bytes = kernel_case_bytes(c, c->n);
    all += (int64_t)bytes;
    if (all > o->most) return false;
    c->start[c->n] = calloc(1, bytes + 64);
    c->want[c->n] = calloc(1, bytes + 64);
    for (int64_t i = 0; i < c->elements[c->n]; i++) {
      qn_dtype d = c->dtype[c->n];
      size_t own = o->fresh ? (size_t)o->fresh * dtype_size(d) : bytes;
      if (o->fresh && i == o->fresh) {
        for (size_t at = own; at < bytes; at += own)
          memcpy((char *)c->start[c->n] + at, c->start[c->n], bytes - at < own ? bytes - at : own);
        break;
      }
      double x = random_datum(&r, d, o->wild);
      if (o->indices && !dtype_is_float(d) && d != QN_bool) x = (double)(rng_next(&r) % (uint64_t)o->indices);
      dtype_store(d, (char *)c->start[c->n] + (size_t)i * dtype_size(d),
                  dtype_is_float(d) ? value_float(x)
                  : d == QN_bool    ? value_bool(x != 0)
                                    : value_int((int64_t)x));
    }
    memcpy(c->want[c->n], c->start[c->n], bytes);
    c->n++;
  }
  c->scalars = calloc(k->nscalars + (size_t)1, sizeof *c->scalars);
  for (uint32_t i = 0; i < k->nscalars; i++)
    c->scalars[i].i = o->indices ? (int64_t)rng_below(&r, (int)o->indices) : 1 + rng_below(&r, 3);
  for (k_val v = 1; v < k->n; v++)
    if (k->nodes[v].code == K_SCALAR && k->nodes[v].dtype == QN_f64)
      c->scalars[k->nodes[v].imm].f = random_datum(&r, QN_f64, o->wild);
    else if (k->nodes[v].code == K_SCALAR && k->nodes[v].dtype == QN_bool)
      c->scalars[k->nodes[v].imm].i = rng_below(&r, 2);
  if (!o->filled) return true;
  if (kernel_case_work(c) > KERNEL_WORK) return false;
  schedule_result s;
  const char *reason = NULL;
  if (!schedule(k, TARGET_CPU, &(schedule_how){.grain = 32768}, &s, &reason)) {
    /* effects without loops of one kernel: fusion asks the same, and lets them be */
    if (reason == lower_no_memory) snprintf(why, size, "%s", reason);
    return false;
  }
  int64_t *ints = kernel_case_ints(c, &s);
  const l_eval_options e = {.why = why, .why_size = size};
  bool ok = l_verify(s.program, why, size) &&
            l_eval(s.program, c->want, c->elements, ints, c->scalars, &e, &c->error) == L_EVAL_DONE;
  free(ints);
  l_free(s.program);
  return ok;
}

/* Several groups of a fusion that computes nothing together as one kernel, although they may be cheaper apart: the groups `from` to `to` - 1.
 * NULL: they cannot be one. Values that only these need are stored or not, as `r` says. */
static inline k_kernel *kernel_case_merged(fusion *f, uint32_t from, uint32_t to, rng *r) {
  uint32_t n = 0, *nodes = calloc(f->g->n, sizeof *nodes);
  uint8_t *stored = calloc(f->g->n, 1);
  const char *why = NULL;
  k_kernel *k = NULL;
  memcpy(stored, f->stored, f->g->n);
  for (uint32_t i = from; i < to; i++)
    for (uint32_t j = 0; j < f->groups[i].n; j++) nodes[n++] = f->groups[i].nodes[j];
  bool ascend = n > 0;
  for (uint32_t i = 1; i < n; i++) ascend &= nodes[i] > nodes[i - 1];
  for (uint32_t i = 0; i + 1 < n; i++)
    if (op_rows[f->g->nodes[nodes[i]].op].klass != CLASS_INDEX && rng_below(r, 3)) stored[nodes[i]] = 0;
  if (ascend) {
    lower_request q = {.g = f->g,
                       .name = "merged",
                       .place = f->place,
                       .nodes = nodes,
                       .n = n,
                       .stored = stored,
                       .over = f->over,
                       .whole = f->whole,
                       .most = 4000,
                       .scratch = f->scratch};
    for (uint32_t i = 0; i < n; i++) f->place[nodes[i]] = PLACE_INLINE;
    k = lower(&q, &why);
    for (uint32_t i = 0; i < n; i++) f->place[nodes[i]] = PLACE_BUFFER;
  }
  free(nodes);
  free(stored);
  return k;
}

/* Appends the product of a node and its own last two axes turned around. */
static inline void random_product(rng *r, graph *g) {
  uint32_t x = 1 + (uint32_t)rng_below(r, (int)g->n - 1), both[2] = {x};
  for (int tries = 0; tries < 20 && (g->nodes[x].type.rank < 2 || g->nodes[x].type.weak); tries++)
    x = both[0] = 1 + (uint32_t)rng_below(r, (int)g->n - 1);
  graph_type in[2] = {g->nodes[x].type};
  op_attr a = {.n = in[0].rank};
  op_types out;
  op_refusal why;
  if (in[0].rank < 2 || in[0].weak) return;
  for (int k = 0; k < in[0].rank; k++) a.d[k] = k < in[0].rank - 2 ? k : 2 * in[0].rank - 3 - k;
  if (!op_infer(&g->dims, OP_permute, in, 1, &a, &out, &why)) return;
  both[1] = graph_op(g, OP_permute, &x, 1, &a, 0);
  in[1] = g->nodes[both[1]].type;
  if (rng_below(r, 2)) { /* the sum over the other axis */
    uint32_t t = both[0];
    both[0] = both[1];
    both[1] = t;
    in[0] = g->nodes[both[0]].type;
    in[1] = g->nodes[both[1]].type;
  }
  a = (op_attr){0};
  if (!op_infer(&g->dims, OP_dot, in, 2, &a, &out, &why)) return;
  int64_t all = 1;
  for (int k = 0; k < out.result.rank; k++) all *= dim_hint(&g->dims, out.result.shape[k]);
  if (all < 400) graph_op(g, OP_dot, both, 2, &a, 0);
}

/* Appends what norms and the like are made of: a node combined with a reduction of it. */
static inline void random_norm(rng *r, graph *g) {
  static const op_id reductions[] = {OP_sum, OP_max, OP_min, OP_prod, OP_sum},
                     with[] = {OP_sub, OP_mul, OP_add, OP_maximum};
  uint32_t x = 1 + (uint32_t)rng_below(r, (int)g->n - 1);
  if (rng_below(r, 2)) x = g->n - 1;
  for (int step = 0; step < 2; step++) {
    graph_type in[2] = {g->nodes[x].type};
    op_attr a = {0};
    op_types out;
    op_refusal why;
    if (!in[0].rank || in[0].weak) return;
    a.axes = rng_below(r, 2) ? (uint8_t)(1u << (in[0].rank - 1)) : (uint8_t)(1 + rng_below(r, (1 << in[0].rank) - 1));
    a.keepdims = 1;
    op_id op = reductions[rng_below(r, 5)];
    if (!op_infer(&g->dims, op, in, 1, &a, &out, &why)) return;
    uint32_t s = graph_op(g, op, &x, 1, &a, 0), both[2] = {x, s};
    in[1] = g->nodes[s].type;
    op = with[rng_below(r, 4)];
    a = (op_attr){0};
    if (!op_infer(&g->dims, op, in, 2, &a, &out, &why)) return;
    x = graph_op(g, op, both, 2, &a, 0);
  }
}

#endif
