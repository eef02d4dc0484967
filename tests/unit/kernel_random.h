/* K kernels of random graphs, also such that fusion would not make, and random ways to schedule them. */
#ifndef TESTS_UNIT_KERNEL_RANDOM_H
#define TESTS_UNIT_KERNEL_RANDOM_H

#include "tests/unit/kernel_case.h"
#include "tests/unit/schedule_random.h"

static const int64_t random_kernel_tune[] = {
#define TUNABLE(symbol, name, def, min, max, meaning) def,
#include "lang/tunables.def"
#undef TUNABLE
};

enum { RANDOM_GRAIN = 32768 };

/* Other sizes than the recorded ones for which a graph's facts hold; NULL: none were found. For the caller to free. */
static inline int64_t *other_sizes(const graph *g, rng *r) {
  static const int64_t sizes[] = {0, 1, 2, 3, 5, 17, 64, 65, 130, 300};
  int64_t *symbols = calloc(g->dims.n + (size_t)1, sizeof *symbols);
  for (int tries = 0; tries < 40; tries++) {
    bool any = false;
    for (uint32_t i = 0; i < g->dims.n; i++) {
      symbols[i] = g->dims.exprs[i].hint;
      if (g->dims.exprs[i].op != DIM_SYMBOL || g->dims.exprs[i].source == DIM_FROM_NODE || rng_below(r, 2)) continue;
      symbols[i] = sizes[rng_below(r, 10)];
      any = true;
    }
    if (any && dim_facts_hold(&g->dims, symbols, NULL)) return symbols;
  }
  free(symbols);
  return NULL;
}

/* Is given a kernel, which it takes over, with sizes (NULL: the recorded ones) and the data that it should run on; NULL at the end, when the kernels'
 * dims, which are the graph's, go. */
typedef void (*kernel_user)(void *ctx, k_kernel *k, const int64_t *symbols, const kernel_case_options *data);

/* Hands out the kernels of the random graph of a seed. */
static inline void random_kernels(uint64_t seed, rng *r, kernel_user use, void *ctx) {
  *r = (rng){seed * 104729 + 3};
  static const int64_t sizes[] = {0, 1, 2, 3, 4, 6, 8, 9, 16, 17, 33, 64, 65, 70, 128, 130, 300};
  random_options o = {.symbolic = rng_below(r, 3) == 0, .nodes = 2 + rng_below(r, 18)};
  kernel_case_options data = {.most = 1 << 22,
                              .indices = rng_below(r, 4) ? 1 + rng_below(r, 2) : 0,
                              .wild = rng_below(r, 4) == 0,
                              .filled = true};
  int kind = rng_below(r, 4);
  if (kind) {
    o.most = 30000;
    for (int i = 0; i < 4; i++) o.shape[i] = sizes[1 + rng_below(r, kind == 1 ? 16 : 8)];
    if (kind == 2) o.shape[rng_below(r, 4)] = 1000 + rng_below(r, 9000); /* one long axis */
    if (rng_below(r, 12) == 0) o.shape[rng_below(r, 4)] = 0;
    if (rng_below(r, 2)) o.shape[0] = 1, o.shape[1] = 1;
  }
  graph *made = random_graph(seed, &o);
  if (rng_below(r, 4) == 0) random_product(r, made);
  for (int i = rng_below(r, 4); i > 0; i--) random_norm(r, made);
  graph_output(made, made->n - 1);
  graph *g = graph_simplify(made, NULL);
  graph_free(made);
  ck_assert(g != NULL);
  const char *why = NULL;
  bool merged = rng_below(r, 2);
  uint8_t *awkward = calloc(g->n, 1);
  alike memo = {0};
  fusion x;
  bool ok = fuse(g, TARGET_CPU, random_kernel_tune, merged ? FUSE_NOTHING : FUSE_ALL, awkward, NULL, NULL, &memo, NULL,
                 &x, &why);
  alike_free(&memo);
  int64_t *recorded = calloc(g->dims.n + (size_t)1, sizeof *recorded);
  for (uint32_t i = 0; i < g->dims.n; i++) recorded[i] = g->dims.exprs[i].hint;
  ok = ok && dim_facts_hold(&g->dims, recorded, NULL); /* else there is no call of these sizes */
  free(recorded);
  for (uint32_t i = 0; i < g->dims.nfacts; i++)
    ok = ok && g->dims.facts[i].relation != DIM_EQ; /* plans settle these first */
  for (uint32_t i = 0; ok && i < x.n; i++) {
    uint32_t to = i;
    while (to < x.n && x.groups[to].kind == FUSE_KERNEL) to++;
    if (to == i) continue;
    k_kernel *k = NULL;
    if (merged) {
      uint32_t most = 1 + (uint32_t)rng_below(r, 12);
      if (to > i + most) to = i + most;
      for (; !k && to > i; to--) k = kernel_case_merged(&x, i, to, r);
      if (k) i = to;
    } else {
      k = fuse_lower(&x, i, &why);
    }
    if (!k) continue;
    int64_t *symbols = o.symbolic && rng_below(r, 2) ? other_sizes(g, r) : NULL;
    use(ctx, k, symbols, &data);
    free(symbols);
  }
  use(ctx, NULL, NULL, NULL);
  fusion_free(&x);
  graph_free(g);
  free(awkward);
}

/* A random way to schedule a kernel: candidate *pick, or the text t, which is the caller's to free. False: none was found, or `why` says what is wrong. */
static inline bool random_how(const k_kernel *k, schedule_target target, rng *r, text_buf *t, int64_t *pick, char *why,
                              size_t size) {
  schedule_result of;
  const char *reason;
  random_schedule x;
  bool made = false;
  int how = rng_below(r, 8);
  why[0] = 0;
  *pick = how == 0 ? 1 + rng_below(r, 8) : 0;
  if (*pick) return true;
  if (how < 5) {
    made = random_schedule_make(&x, k, r);
  } else if (schedule(k, target, &(schedule_how){.grain = RANDOM_GRAIN, .pick = rng_below(r, 6)}, &of, &reason)) {
    made = of.program->schedule && random_schedule_read(&x, k, of.program->schedule);
    if (!made) snprintf(why, size, "\"%s\" cannot be read", of.program->schedule ? of.program->schedule : "no text");
    for (int n = 1 + rng_below(r, 4); made && n > 0; n--) random_change(&x, r);
    l_free(of.program);
  }
  if (!made) return false;
  random_schedule_text(&x, t);
  random_schedule_free(&x);
  return true;
}

#endif
