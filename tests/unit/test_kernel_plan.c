/* Plans: what fuses into how many kernels, and that any plan is one: programs verify, steps come after what they read, nothing
 * is overwritten before its last reader, checks come in program order, and the peak is no higher than node by node. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "graph_random.h"
#include "jit/kernel/emit.h"
#include "jit/kernel/plan.h"
#include "lang/vm.h"

static int64_t tune[TUNABLE_COUNT];

static void tune_reset(void) {
  static const int64_t defaults[] = {
#define TUNABLE(symbol, name, def, min, max, meaning) def,
#include "lang/tunables.def"
#undef TUNABLE
  };
  memcpy(tune, defaults, sizeof tune);
}

static const char *printed_plan(const plan *p) {
  static char text[1 << 16];
  text_buf t = {0};
  graph_print(p->graph, &t);
  plan_print(p, &t);
  snprintf(text, sizeof text, "%.*s", (int)t.len, t.text ? t.text : "");
  text_free(&t);
  return text;
}

/* ---- the checker -------------------------------------------------------------------------------------------------------------- */

static int64_t bytes_of(const plan *p, uint32_t b) {
  return dim_hint(&p->graph->dims, p->buffers[b].elements) * (int64_t)dtype_size((qn_dtype)p->buffers[b].dtype);
}

static bool overlap(const plan *p, uint32_t a, uint32_t b) {
  const plan_buffer *x = &p->buffers[a], *y = &p->buffers[b];
  if (x->where != y->where || (x->where == WHERE_OUTPUT && x->index != y->index)) return false;
  int64_t at = dim_hint(&p->graph->dims, x->offset), bt = dim_hint(&p->graph->dims, y->offset);
  return at < bt + bytes_of(p, b) && bt < at + bytes_of(p, a);
}

static bool fixed_input(const plan_buffer *b) { return b->where == WHERE_INPUT || b->where == WHERE_CONST; }

enum { BUFFERS_MOST = 1 << 15, SCALARS_MOST = 4096 };

/* What is wrong with a plan, or NULL. */
static const char *wrong(const plan *p) {
  static char why[256], found[300];
  static uint8_t valid[BUFFERS_MOST], slot[SCALARS_MOST];
  const graph *g = p->graph;
  uint32_t last_check = 0, weak = 0;
  if (p->nbuffers > BUFFERS_MOST || p->nscalars > SCALARS_MOST) return "too large for this test";
  for (uint32_t i = 0; i < g->ninputs; i++) weak += g->nodes[g->inputs[i]].type.weak;
  for (uint32_t i = 0; i < p->nscalars; i++) slot[i] = 1;
  for (uint32_t i = 0; i < p->nsteps; i++)
    if (p->steps[i].kind == STEP_SCALAR && p->steps[i].out < p->nscalars) slot[p->steps[i].out] = 0;
  for (uint32_t i = 0; i < weak; i++)
    if (!slot[i]) return "a scalar input is overwritten";
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    const plan_buffer *x = &p->buffers[b];
    valid[b] = fixed_input(x);
    if (x->where == WHERE_CONST && !x->data) return "a constant without data";
    if (x->where == WHERE_ARENA && dim_hint(&g->dims, x->offset) + bytes_of(p, b) > dim_hint(&g->dims, p->arena_bytes))
      return "a buffer ends behind the arena";
    if (dim_hint(&g->dims, x->offset) % 64) return "an offset is not a multiple of 64";
    if (x->where == WHERE_OUTPUT) {
      if (x->index >= p->noutputs || p->outputs[x->index].kind != OUT_BUFFER) return "memory of no output";
      if (dim_hint(&g->dims, x->offset) + bytes_of(p, b) > bytes_of(p, p->outputs[x->index].index))
        return "a buffer ends behind its output";
    }
  }
  for (uint32_t i = 0; i < p->nsteps; i++) {
    const plan_step *s = &p->steps[i];
    for (uint32_t k = 0; k < s->nbuffers; k++)
      if (s->buffers[k] >= p->nbuffers) return "a buffer out of range";
    for (uint32_t k = 0; k < s->nscalars; k++)
      if (s->scalars[k] >= p->nscalars || !slot[s->scalars[k]]) return "a step reads a scalar that is not there";
    uint32_t writes[64], nwrites = 0;
    if (s->kind == STEP_KERNEL) {
      const plan_kernel *k = &p->kernels[s->what];
      const l_program *l = k->program;
      if (!l_verify(l, why, sizeof why)) {
        snprintf(found, sizeof found, "kernel %u: %s", s->what, why);
        return found;
      }
      if (l->nints != s->nints || l->nscalars != s->nscalars) return "parameters do not match";
      uint32_t at = 0;
      for (uint32_t b = 0; b < l->nbuffers; b++) {
        if (l->buffers[b].mode == BUF_SCRATCH) continue;
        if (at == s->nbuffers) return "too few buffers";
        uint32_t x = s->buffers[at++];
        if (l->buffers[b].dtype != p->buffers[x].dtype) return "a buffer of another dtype";
        if (l->buffers[b].mode != BUF_IN && nwrites < 64)
          writes[nwrites++] = x;
        else if (!valid[x])
          return "a kernel reads what is not there";
      }
      if (at != s->nbuffers) return "too many buffers";
      for (uint32_t c = 0; c < l->nchecks; c++) {
        if (l->checks[c].node < last_check) return "checks out of program order";
        last_check = l->checks[c].node;
      }
    } else if (s->kind == STEP_LIBRARY) {
      for (uint32_t k = 0; k + 1 < s->nbuffers; k++)
        if (!valid[s->buffers[k]]) return "a library step reads what is not there";
      writes[nwrites++] = s->buffers[s->nbuffers - 1];
    } else {
      if (s->nbuffers && !valid[s->buffers[0]]) return "a scalar step reads what is not there";
      if (s->out >= p->nscalars) return "a slot out of range";
      slot[s->out] = 1;
      if (graph_fallible(g, s->node)) {
        if (s->node < last_check) return "scalar checks out of program order";
        last_check = s->node;
      }
    }
    for (uint32_t w = 0; w < nwrites; w++) {
      uint32_t x = writes[w];
      if (fixed_input(&p->buffers[x])) return "an input is written";
      for (uint32_t b = 0; b < p->nbuffers; b++)
        if (b != x && !fixed_input(&p->buffers[b]) && overlap(p, b, x)) valid[b] = 0;
      for (uint32_t v = 0; v < w; v++)
        if (overlap(p, writes[v], x)) return "two results of a step overlap";
      for (uint32_t k = 0; k < s->nbuffers; k++) { /* in place: the same bytes exactly */
        uint32_t b = s->buffers[k];
        if (b != x && overlap(p, b, x) &&
            (s->kind != STEP_KERNEL || p->buffers[b].offset != p->buffers[x].offset ||
             bytes_of(p, b) != bytes_of(p, x)))
          return "a step overwrites part of an operand";
      }
    }
    for (uint32_t w = 0; w < nwrites; w++) valid[writes[w]] = 1;
  }
  for (uint32_t i = 0; i < p->noutputs; i++) {
    const plan_output *o = &p->outputs[i];
    if (o->kind == OUT_BUFFER && (p->buffers[o->index].where != WHERE_OUTPUT || !valid[o->index]))
      return "an output is not there";
    if (o->kind == OUT_SCALAR && o->index >= p->nscalars) return "an output's slot is out of range";
    if (!graph_type_same(&o->type, &g->nodes[g->outputs[i]].type)) return "an output of another type";
  }
  return NULL;
}

static void check_plan(const plan *p, const char *what) {
  const char *w = wrong(p);
  ck_assert_msg(!w, "%s: %s\n%s", what, w, printed_plan(p));
}

/* ---- random graphs --------------------------------------------------------------------------------------------------------------- */

/* Fusion must not cost memory: the peak is at most that of running node by node, or of the plan without fusion (which has
 * its results' memory from the start). */
static bool peak_is_low(const plan *p) {
  if (p->peak_bytes <= p->eager_peak_bytes || p->peak_bytes <= PLAN_PEAK_LEAST) return true;
  char why[256];
  int64_t fused = tune[TUNE_fuse_enabled];
  graph *g = graph_copy(p->graph);
  tune[TUNE_fuse_enabled] = 0;
  plan *q = g ? plan_make(g, TARGET_CPU, tune, NULL, why, sizeof why) : NULL;
  tune[TUNE_fuse_enabled] = fused;
  bool low = q && p->peak_bytes <= q->peak_bytes;
  plan_free(q);
  return low;
}

static void random_plans(bool symbolic, uint64_t from, uint64_t to) {
  for (uint64_t seed = from; seed < to; seed++) {
    random_options o = {.symbolic = symbolic, .nodes = 1 + (int)(seed % 60)};
    graph *g = random_graph(seed, &o), *s = graph_simplify(g, NULL);
    ck_assert(s != NULL);
    graph_free(g);
    char why[256] = "", what[32];
    plan *p = plan_make(s, TARGET_CPU, tune, NULL, why, sizeof why);
    snprintf(what, sizeof what, "seed %llu", (unsigned long long)seed);
    ck_assert_msg(p != NULL, "%s: %s", what, why);
    check_plan(p, what);
    ck_assert_msg(peak_is_low(p), "%s: peak\n%s", what, printed_plan(p));
    plan_free(p);
  }
}

START_TEST(random_graphs_give_plans) {
  tune_reset();
  random_plans(false, 0, 400);
  tune[TUNE_fuse_nodes] = 5;
  random_plans(false, 400, 500);
}
END_TEST

START_TEST(symbolic_sizes_give_plans) {
  tune_reset();
  random_plans(true, 0, 150);
}
END_TEST

START_TEST(unfused_graphs_give_plans) {
  tune_reset();
  tune[TUNE_fuse_enabled] = 0;
  random_plans(false, 0, 150);
}
END_TEST

/* ---- what fuses ------------------------------------------------------------------------------------------------------------------- */

static plan *plan_of(const char *text) {
  char why[256] = "";
  graph *g = graph_parse(text, why, sizeof why);
  ck_assert_msg(g != NULL, "%s\n%s", why, text);
  ck_assert_msg(graph_verify(g, why, sizeof why), "%s", why);
  plan *p = plan_make(g, TARGET_CPU, tune, NULL, why, sizeof why);
  ck_assert_msg(p != NULL, "%s", why);
  check_plan(p, "text");
  return p;
}

static void expect(const char *name, const char *text, uint32_t kernels) {
  plan *p = plan_of(text);
  ck_assert_msg(p->nkernels == kernels, "%s: %u kernels, not %u\n%s", name, p->nkernels, kernels, printed_plan(p));
  ck_assert_msg(p->peak_bytes <= p->eager_peak_bytes || p->peak_bytes <= PLAN_PEAK_LEAST, "%s: peak\n%s", name,
                printed_plan(p));
  plan_free(p);
}

static const char softmax[] =
    "graph(%1: f32[512, 1000]) {\n %2 = max %1 axes=[1] keepdims : f32[512, 1]\n"
    "%3 = sub %1, %2 : f32[512, 1000]\n %4 = exp %3 : f32[512, 1000]\n"
    "%5 = sum %4 axes=[1] keepdims : f32[512, 1]\n %6 = div %4, %5 : f32[512, 1000]\n return %6 }";

static const char layer_norm[] =
    "graph(%1: f32[256, 768], %2: f32[768], %3: f32[768], %4: f32[256, 768]) {\n"
    "%5 = sum %1 axes=[1] keepdims : f32[256, 1]\n %6 = const 768.0 : f32[]\n %7 = div %5, %6 : f32[256, 1]\n"
    "%8 = sub %1, %7 : f32[256, 768]\n %9 = mul %8, %8 : f32[256, 768]\n %10 = sum %9 axes=[1] keepdims : f32[256, 1]\n"
    "%11 = div %10, %6 : f32[256, 1]\n %12 = const 0.00001 : f32[]\n %13 = add %11, %12 : f32[256, 1]\n"
    "%14 = rsqrt %13 : f32[256, 1]\n %15 = mul %8, %14 : f32[256, 768]\n %16 = mul %15, %2 : f32[256, 768]\n"
    "%17 = add %16, %3 : f32[256, 768]\n %18 = const 0.70710678 : f32[]\n %19 = mul %17, %18 : f32[256, 768]\n"
    "%20 = erf %19 : f32[256, 768]\n %21 = const 1.0 : f32[]\n %22 = add %20, %21 : f32[256, 768]\n"
    "%23 = mul %17, %22 : f32[256, 768]\n %24 = const 0.5 : f32[]\n %25 = mul %23, %24 : f32[256, 768]\n"
    "%26 = add %4, %25 : f32[256, 768]\n return %26 }";

START_TEST(rows_are_one_kernel) {
  tune_reset();
  expect("softmax", softmax, 1);
  expect("layer norm", layer_norm, 1);
  expect(
      "cross entropy",
      "graph(%1: f32[128, 1000], %2: i64[128, 1]) {\n %3 = max %1 axes=[1] keepdims : f32[128, 1]\n"
      "%4 = sub %1, %3 : f32[128, 1000]\n %5 = exp %4 : f32[128, 1000]\n %6 = sum %5 axes=[1] keepdims : f32[128, 1]\n"
      "%7 = log %6 : f32[128, 1]\n %8 = sub %4, %7 : f32[128, 1000]\n %9 = gather %8, %2 axes=[1] : f32[128, 1]\n"
      "%10 = neg %9 : f32[128, 1]\n return %10 }",
      1);
}
END_TEST

START_TEST(elementwise_work_is_one_kernel) {
  tune_reset();
  expect("chain",
         "graph(%1: f32[1000], %2: f32[1000]) {\n %3 = exp %1 : f32[1000]\n %4 = add %3, %2 : f32[1000]\n"
         "%5 = tanh %4 : f32[1000]\n %6 = mul %5, %3 : f32[1000]\n return %6 }",
         1);
  expect("into a reduction",
         "graph(%1: f32[1000, 100]) {\n %2 = exp %1 : f32[1000, 100]\n %3 = sum %2 axes=[1] : f32[1000]\n return %3 }",
         1);
  expect("siblings",
         "graph(%1: f32[1000, 100]) {\n %2 = max %1 axes=[1] : f32[1000]\n %3 = min %1 axes=[1] : f32[1000]\n"
         "%4 = sum %1 axes=[1] : f32[1000]\n return %2, %3, %4 }",
         1);
  expect(
      "index",
      "graph(%1: f32[1000, 64], %2: i64[4096], %3: f32[4096, 64]) {\n %4 = index %1, %2 leading=[1] : f32[4096, 64]\n"
      "%5 = add %4, %3 : f32[4096, 64]\n %6 = exp %5 : f32[4096, 64]\n return %6 }",
      1);
  expect("parameter updates",
         "graph(%1: f32[1000, 64], %2: f32[1000, 64], %3: f32[64, 10], %4: f32[64, 10]) {\n %5 = const 0.1 : f32[]\n"
         "%6 = mul %2, %5 : f32[1000, 64]\n %7 = sub %1, %6 : f32[1000, 64]\n %8 = mul %4, %5 : f32[64, 10]\n"
         "%9 = sub %3, %8 : f32[64, 10]\n return %7, %9 }",
         2);
}
END_TEST

START_TEST(products_take_epilogues) {
  tune_reset();
  expect(
      "epilogue",
      "graph(%1: f32[256, 512], %2: f32[512, 128], %3: f32[128], %4: f32[256, 128]) {\n %5 = dot %1, %2 : f32[256, "
      "128]\n"
      "%6 = add %5, %3 : f32[256, 128]\n %7 = tanh %6 : f32[256, 128]\n %8 = add %4, %7 : f32[256, 128]\n return %8 }",
      1);
  expect("transposed operand",
         "graph(%1: f32[256, 512], %2: f32[128, 512]) {\n %3 = permute %2 order=[1, 0] : f32[512, 128]\n"
         "%4 = dot %1, %3 : f32[256, 128]\n return %4 }",
         1);
  expect(
      "computed operand",
      "graph(%1: f32[256, 512], %2: f32[512, 128]) {\n %3 = exp %1 : f32[256, 512]\n %4 = dot %3, %2 : f32[256, 128]\n"
      "return %4 }",
      2);
  expect("two layers",
         "graph(%1: f32[256, 512], %2: f32[512, 128], %3: f32[128, 64]) {\n %4 = dot %1, %2 : f32[256, 128]\n"
         "%5 = tanh %4 : f32[256, 128]\n %6 = dot %5, %3 : f32[256, 64]\n return %6 }",
         2);
}
END_TEST

START_TEST(scans_run_over_joined_axes) {
  tune_reset();
  expect("a scan of joined axes",
         "graph(%1: f64[3, 2]) {\n %2 = sub %1, %1 : f64[3, 2]\n %3 = reshape %2 shape=[6] : f64[6]\n"
         "%4 = cumsum %3 axes=[0] reverse : f64[6]\n return %4 }",
         1);
}
END_TEST

START_TEST(fusion_can_be_off) {
  tune_reset();
  tune[TUNE_fuse_enabled] = 0;
  expect("softmax", softmax, 5);
  tune_reset();
  tune[TUNE_fuse_nodes] = 1;
  expect("softmax", softmax, 5);
}
END_TEST

START_TEST(results_without_kernels) {
  tune_reset();
  expect("inputs", "graph(%1: f32[3], %2: weak f64) {\n return %1, %2, %1 }", 0);
  expect("renamed", "graph(%1: f32[3]) {\n %2 = stop_gradient %1 : f32[3]\n return %2 }", 0);
  expect("shared", "graph(%1: f32[3]) {\n %2 = exp %1 : f32[3]\n return %2, %2 }", 1);
  plan *p = plan_of("graph(%1: f32[3, 2]) {\n %2 = permute %1 order=[1, 0] : f32[2, 3]\n %3 = const 1.5 : f32[]\n"
                    "%4 = reshape %1 shape=[6] : f32[6]\n %5 = sort %2 axes=[1] : f32[2, 3]\n return %2, %3, %4, %5 }");
  for (uint32_t i = 0; i < 4; i++) ck_assert_int_eq(p->outputs[i].kind, OUT_BUFFER);
  plan_free(p);
}
END_TEST

START_TEST(checks_keep_their_order) {
  tune_reset();
  /* The second check would fuse with the first but for the one between them, which needs a sorted array. */
  plan *p = plan_of("graph(%1: i64[100], %2: i64[100], %3: i64[100]) {\n %4 = floordiv %1, %2 : i64[100]\n"
                    "%5 = sort %3 axes=[0] : i64[100]\n %6 = mod %2, %5 : i64[100]\n %7 = floordiv %4, %3 : i64[100]\n"
                    "return %6, %7 }");
  plan_free(p);
}
END_TEST

START_TEST(large_graphs_plan_in_time) {
  tune_reset();
  /* A training step's worth of nodes plans in bounded time and memory. */
  static char text[1 << 16];
  int at = snprintf(text, sizeof text, "graph(%%1: f32[64, 256]) {\n");
  int x = 1;
  for (int layer = 0, n = 2; layer < 60; layer++) {
    static const char *const ops[] = {"exp", "tanh", "sigmoid", "erf", "neg"};
    for (int k = 0; k < 5; k++, x = n++)
      at += snprintf(text + at, sizeof text - (size_t)at, "%%%d = %s %%%d : f32[64, 256]\n", n, ops[k], x);
    at += snprintf(text + at, sizeof text - (size_t)at, "%%%d = sum %%%d axes=[1] keepdims : f32[64, 1]\n", n, x);
    n++;
    at += snprintf(text + at, sizeof text - (size_t)at, "%%%d = sub %%%d, %%%d : f32[64, 256]\n", n, x, n - 1);
    x = n++;
  }
  snprintf(text + at, sizeof text - (size_t)at, "return %%%d }", x);
  plan *p = plan_of(text);
  ck_assert_uint_le(p->nkernels, 60);
  ck_assert_int_le(p->peak_bytes, p->eager_peak_bytes);
  plan_free(p);
}
END_TEST

/* Many ways lead from the last value to the first: planning must not follow each. */
START_TEST(values_used_often_plan_in_time) {
  tune_reset();
  static char text[1 << 16];
  int at = snprintf(text, sizeof text, "graph(%%1: f32[28, 76], %%2: f32[28, 76]) {\n%%3 = const 4.0 : f32[]\n");
  int x = 1, y = 2;
  for (int n = 4; n < 4 + 8 * 60; n += 8) {
    at += snprintf(text + at, sizeof text - (size_t)at,
                   "%%%d = mul %%%d, %%%d : f32[28, 76]\n%%%d = mul %%%d, %%%d : f32[28, 76]\n"
                   "%%%d = add %%%d, %%%d : f32[28, 76]\n%%%d = le %%%d, %%3 : bool[28, 76]\n"
                   "%%%d = sub %%%d, %%%d : f32[28, 76]\n%%%d = where %%%d, %%%d, %%%d : f32[28, 76]\n"
                   "%%%d = mul %%%d, %%%d : f32[28, 76]\n%%%d = where %%%d, %%%d, %%%d : f32[28, 76]\n",
                   n, x, x, n + 1, y, y, n + 2, n, n + 1, n + 3, n + 2, n + 4, n, n + 1, n + 5, n + 3, n + 4, x, n + 6,
                   x, y, n + 7, n + 3, n + 6, y);
    x = n + 5;
    y = n + 7;
  }
  snprintf(text + at, sizeof text - (size_t)at, "return %%%d, %%%d }", x, y);
  plan *p = plan_of(text);
  ck_assert_uint_le(p->nkernels, 8);
  ck_assert_int_le(p->peak_bytes, p->eager_peak_bytes);
  plan_free(p);
}
END_TEST

/* ---- equal blocks ----------------------------------------------------------------------------------------------------------- */

/* Appends a block's nodes, whose inputs are nodes `at` of g; at[node of the block] becomes its node in g. */
static void add_block(graph *g, const graph *block, uint32_t *at) {
  for (uint32_t n = 1; n < block->n; n++) {
    const graph_node *x = &block->nodes[n];
    uint32_t in[16];
    if (x->kind == NODE_CONST) at[n] = graph_const(g, x->type, x->payload.data, 0);
    if (x->kind != NODE_OP) continue;
    ck_assert_uint_le(x->nin, 16);
    for (int k = 0; k < x->nin; k++) in[k] = at[x->in[k]];
    op_attr attr = graph_attr(x);
    at[n] = graph_node_raw(g, (op_id)x->op, in, x->nin, x->attr ? &attr : NULL, x->type, 0);
    ck_assert(at[n]);
  }
}

/* A graph of equal blocks; each takes what the one before it gives as operands of these types. */
static graph *repeated(const graph *block, int times) {
  graph *g = graph_new(NULL);
  uint32_t *at = calloc(block->n, sizeof *at);
  for (uint32_t i = 0; i < block->ninputs; i++)
    at[block->inputs[i]] = graph_input(g, block->nodes[block->inputs[i]].type, 0);
  for (int k = 0; k < times; k++) {
    add_block(g, block, at);
    for (uint32_t i = 0; i < block->noutputs; i++) {
      const graph_type *t = &block->nodes[block->outputs[i]].type;
      for (uint32_t j = 0; j < block->ninputs; j++)
        if (graph_type_same(t, &block->nodes[block->inputs[j]].type)) at[block->inputs[j]] = at[block->outputs[i]];
      if (k % 2 == 0 || k == times - 1) graph_output(g, at[block->outputs[i]]);
    }
  }
  free(at);
  return g;
}

static plan *plan_reusing(const graph *g, bool reuse, const char *what) {
  char why[256] = "";
  tune[TUNE_fuse_reuse] = reuse;
  plan *p = plan_make(graph_copy(g), TARGET_CPU, tune, NULL, why, sizeof why);
  ck_assert_msg(p != NULL, "%s: %s", what, why);
  check_plan(p, what);
  return p;
}

/* Plans whose equal kernels are planned once are those whose kernels are planned one by one. Returns how many kernels share a program. */
static uint32_t same_plans(const graph *g, const char *what) {
  text_buf x = {0}, y = {0};
  plan *p = plan_reusing(g, true, what), *q = plan_reusing(g, false, what);
  uint32_t shared = 0;
  plan_print(p, &x);
  plan_print(q, &y);
  ck_assert_msg(x.len == y.len && memcmp(x.text, y.text, x.len) == 0, "%s:\n%.*s\nand one by one\n%.*s", what,
                (int)x.len, x.text, (int)y.len, y.text);
  for (uint32_t i = 0; i < p->nkernels; i++) {
    ck_assert_msg(p->kernels[i].hash == q->kernels[i].hash, "%s: kernel %u", what, i);
    ck_assert_uint_eq(p->kernels[i].nphases, q->kernels[i].nphases);
    ck_assert(!q->kernels[i].shares);
    shared += p->kernels[i].shares;
  }
  for (uint32_t i = 0; i < p->nsteps; i++) {
    ck_assert_uint_eq(p->steps[i].nints, q->steps[i].nints);
    for (uint32_t k = 0; k < p->steps[i].nints; k++)
      ck_assert_msg(p->steps[i].ints[k] == q->steps[i].ints[k], "%s: int %u of step %u", what, k, i);
  }
  plan_free(p);
  plan_free(q);
  text_free(&x);
  text_free(&y);
  return shared;
}

START_TEST(equal_blocks_are_planned_once) {
  tune_reset();
  uint32_t shared = 0;
  for (uint64_t seed = 2000; seed < 2250; seed++) {
    char what[64];
    random_options o = {.nodes = 4 + (int)(seed % 30)};
    graph *block = random_graph(seed, &o);
    snprintf(what, sizeof what, "blocks of seed %d", (int)seed);
    graph *g = block->dims.n ? NULL : repeated(block, 2 + (int)(seed % 7));
    graph *simple = g ? graph_simplify(g, NULL) : NULL;
    if (g) shared += same_plans(g, what);
    if (simple) shared += same_plans(simple, what);
    graph_free(block);
    graph_free(g);
    graph_free(simple);
  }
  ck_assert_uint_gt(shared, 100);
}
END_TEST

static uint32_t op_of(graph *g, op_id op, uint32_t a, uint32_t b, const op_attr *attr) {
  return graph_op(g, op, (uint32_t[]){a, b}, b ? 2 : 1, attr, 0);
}

/* ---- planning is linear in the graph ------------------------------------------------------------------------------------ */

static uint32_t number(graph *g, double x) {
  float f = (float)x;
  return graph_const(g, (graph_type){.dtype = QN_f32}, &f, 0);
}

static uint32_t put(graph *g, uint32_t x, uint32_t v, qn_dim row, qn_dim rows, qn_dim column, qn_dim columns) {
  return op_of(g, OP_slice_put, x, v, &(op_attr){.n = 6, .d = {row, rows, 1, column, columns, 1}});
}

static graph *chain(int size) {
  graph *g = graph_new(NULL);
  uint32_t x = graph_input(g, (graph_type){.dtype = QN_f32, .rank = 1, .shape = {1000}}, 0);
  for (int i = 0; i < size / 2; i++)
    x = op_of(g, OP_add, op_of(g, OP_mul, x, number(g, 1.01), NULL), number(g, i), NULL);
  ck_assert(x && graph_output(g, x));
  return g;
}

/* A stencil of the inner points and the four edges, again and again. */
static graph *slice_updates(int size) {
  graph *g = graph_new(NULL);
  enum { N = 11 };
  uint32_t p = graph_input(g, (graph_type){.dtype = QN_f32, .rank = 2, .shape = {N, N}}, 0);
  for (int i = 0; i < size; i += 16) {
    static const int shift[4][2] = {{0, 1}, {2, 1}, {1, 0}, {1, 2}};
    uint32_t sum = 0;
    for (int k = 0; k < 4; k++) {
      uint32_t s = op_of(g, OP_slice, p, 0, &(op_attr){.n = 6, .d = {shift[k][0], N - 2, 1, shift[k][1], N - 2, 1}});
      sum = sum ? op_of(g, OP_add, sum, s, NULL) : s;
    }
    p = put(g, p, op_of(g, OP_mul, sum, number(g, 0.25), NULL), 1, N - 2, 1, N - 2);
    p = put(g, p, op_of(g, OP_slice, p, 0, &(op_attr){.n = 6, .d = {0, N, 1, N - 2, 1, 1}}), 0, N, N - 1, 1);
    p = put(g, p, op_of(g, OP_slice, p, 0, &(op_attr){.n = 6, .d = {1, 1, 1, 0, N, 1}}), 0, 1, 0, N);
    p = put(g, p, op_of(g, OP_slice, p, 0, &(op_attr){.n = 6, .d = {0, N, 1, 1, 1, 1}}), 0, N, 0, 1);
    p = put(g, p, number(g, 0), N - 1, 1, 0, N);
  }
  ck_assert(p && graph_output(g, p));
  return g;
}

static uint32_t recurrent_steps(graph *g, int size, uint32_t *w) {
  graph_type states = {.dtype = QN_f32, .rank = 2, .shape = {8, 32}};
  *w = graph_input(g, (graph_type){.dtype = QN_f32, .rank = 2, .shape = {32, 32}}, 0);
  uint32_t x = graph_input(g, states, 0), h = x;
  for (int i = 0; i < size; i += 3)
    h = op_of(g, OP_tanh, op_of(g, OP_add, op_of(g, OP_dot, h, *w, NULL), x, NULL), 0, NULL);
  return h;
}

static graph *recurrent(int size) {
  graph *g = graph_new(NULL);
  uint32_t w, h = recurrent_steps(g, size, &w);
  ck_assert(h && graph_output(g, h));
  return g;
}

/* Values that are read by all that follows, and reductions between elementwise work. */
static graph *normalised(int size) {
  graph *g = graph_new(NULL);
  uint32_t x = graph_input(g, (graph_type){.dtype = QN_f32, .rank = 2, .shape = {64, 32}}, 0), y = x;
  for (int i = 0; i < size; i += 4) {
    uint32_t m = op_of(g, OP_sum, y, 0, &(op_attr){.axes = 2, .keepdims = true});
    y = op_of(g, OP_add, op_of(g, OP_sub, y, op_of(g, OP_mul, m, number(g, 1.0 / 32), NULL), NULL), x, NULL);
  }
  ck_assert(y && graph_output(g, y));
  return g;
}

/* Concatenated gates that are cut apart again. */
static graph *gates(int size) {
  graph *g = graph_new(NULL);
  enum { N = 16 };
  graph_type part = {.dtype = QN_f32, .rank = 1, .shape = {N}}, whole = {.dtype = QN_f32, .rank = 1, .shape = {4 * N}};
  uint32_t x = graph_input(g, part, 0), w = graph_input(g, whole, 0), h = x, c = x;
  for (int i = 0; i < size; i += 12) {
    uint32_t all = graph_op(g, OP_concat, (uint32_t[]){x, h, c, h}, 4, &(op_attr){.axes = 1}, 0), gate[4];
    all = op_of(g, OP_mul, all, w, NULL);
    for (int k = 0; k < 4; k++)
      gate[k] = op_of(g, OP_tanh, op_of(g, OP_slice, all, 0, &(op_attr){.n = 3, .d = {k * N, N, 1}}), 0, NULL);
    c = op_of(g, OP_add, op_of(g, OP_mul, gate[0], c, NULL), op_of(g, OP_mul, gate[1], gate[2], NULL), NULL);
    h = op_of(g, OP_mul, gate[3], op_of(g, OP_tanh, c, 0, NULL), NULL);
  }
  ck_assert(h && graph_output(g, h));
  return g;
}

/* ---- training: what the forward nodes made lives until their turn comes backward ---- */

enum { WEIGHTS_MOST = 4096 };

/* The graph of one step of gradient descent on `loss`: the results are the new weights. */
static graph *descend(graph *g, uint32_t loss, const uint32_t *w, int n) {
  uint32_t *grads = calloc((size_t)n, sizeof *grads), culprit;
  op_refusal why;
  ck_assert(grads && loss && graph_grad(g, 1, loss, 0, w, n, grads, &culprit, &why));
  for (int i = 0; i < n; i++) {
    uint32_t to = op_of(g, OP_sub, w[i], op_of(g, OP_mul, grads[i], number(g, 0.01), NULL), NULL);
    ck_assert(to && graph_output(g, to));
  }
  free(grads);
  return g;
}

static uint32_t weight(graph *g, uint32_t *w, int *n, qn_dim rows, qn_dim columns) {
  graph_type t = {.dtype = QN_f32, .rank = 2, .shape = {rows, columns}};
  if (!rows) t = (graph_type){.dtype = QN_f32, .rank = 1, .shape = {columns}};
  ck_assert_int_lt(*n, WEIGHTS_MOST);
  return w[(*n)++] = graph_input(g, t, 0);
}

/* Layers of a product, a bias and tanh; about 15 nodes each with their gradients. */
static graph *layers_training(int size, bool symbolic) {
  static const qn_dim widths[] = {32, 48, 24, 64, 40};
  enum { WIDTHS = sizeof widths / sizeof *widths };
  graph *g = graph_new(NULL);
  qn_dim rows = symbolic ? dim_symbol(&g->dims, DIM_FROM_INPUT, 0, 0, 16, "rows") : 16;
  uint32_t w[WEIGHTS_MOST], h = graph_input(g, (graph_type){.dtype = QN_f32, .rank = 2, .shape = {rows, widths[0]}}, 0);
  int n = 0;
  for (int i = 0; i < size; i += 15) {
    uint32_t a = weight(g, w, &n, widths[i / 15 % WIDTHS], widths[(i / 15 + 1) % WIDTHS]),
             b = weight(g, w, &n, 0, widths[(i / 15 + 1) % WIDTHS]);
    h = op_of(g, OP_tanh, op_of(g, OP_add, op_of(g, OP_dot, h, a, NULL), b, NULL), 0, NULL);
  }
  return descend(g, op_of(g, OP_sum, op_of(g, OP_mul, h, h, NULL), 0, &(op_attr){.axes = 3}), w, n);
}

static graph *training(int size) { return layers_training(size, false); }
static graph *symbolic_training(int size) { return layers_training(size, true); }

static graph *recurrent_training(int size) {
  graph *g = graph_new(NULL);
  uint32_t w, h = recurrent_steps(g, size / 3, &w);
  return descend(g, op_of(g, OP_sum, h, 0, &(op_attr){.axes = 3}), &w, 1);
}

static uint32_t row_mean(graph *g, uint32_t x, double columns) {
  return op_of(g, OP_mul, op_of(g, OP_sum, x, 0, &(op_attr){.axes = 2, .keepdims = true}), number(g, 1 / columns),
               NULL);
}

/* Blocks of attention with one head, a net of two layers, and norms; about 150 nodes each with their gradients. */
static graph *transformer_training(int size) {
  enum { ROWS = 16, WIDTH = 32, INNER = 64 };
  graph *g = graph_new(NULL);
  uint32_t w[WEIGHTS_MOST], x = graph_input(g, (graph_type){.dtype = QN_f32, .rank = 2, .shape = {ROWS, WIDTH}}, 0);
  int n = 0;
  for (int i = 0; i < size; i += 150) {
    for (int half = 0; half < 2; half++) {
      uint32_t d = op_of(g, OP_sub, x, row_mean(g, x, WIDTH), NULL);
      uint32_t v = op_of(g, OP_add, row_mean(g, op_of(g, OP_mul, d, d, NULL), WIDTH), number(g, 1e-5), NULL);
      uint32_t y =
          op_of(g, OP_mul, op_of(g, OP_mul, d, op_of(g, OP_rsqrt, v, 0, NULL), NULL), weight(g, w, &n, 0, WIDTH), NULL);
      if (half) {
        uint32_t h = op_of(g, OP_dot, y, weight(g, w, &n, WIDTH, INNER), NULL);
        h = op_of(g, OP_mul, h, op_of(g, OP_sigmoid, h, 0, NULL), NULL);
        x = op_of(g, OP_add, x, op_of(g, OP_dot, h, weight(g, w, &n, INNER, WIDTH), NULL), NULL);
        continue;
      }
      uint32_t q[3];
      for (int k = 0; k < 3; k++) q[k] = op_of(g, OP_dot, y, weight(g, w, &n, WIDTH, WIDTH), NULL);
      uint32_t s = op_of(g, OP_dot, q[0], op_of(g, OP_permute, q[1], 0, &(op_attr){.n = 2, .d = {1, 0}}), NULL);
      s = op_of(g, OP_mul, s, number(g, 0.18), NULL);
      s = op_of(g, OP_exp, op_of(g, OP_sub, s, op_of(g, OP_max, s, 0, &(op_attr){.axes = 2, .keepdims = true}), NULL),
                0, NULL);
      s = op_of(g, OP_div, s, op_of(g, OP_sum, s, 0, &(op_attr){.axes = 2, .keepdims = true}), NULL);
      uint32_t o = op_of(g, OP_dot, op_of(g, OP_dot, s, q[2], NULL), weight(g, w, &n, WIDTH, WIDTH), NULL);
      x = op_of(g, OP_add, x, o, NULL);
    }
  }
  return descend(g, op_of(g, OP_sum, op_of(g, OP_mul, x, x, NULL), 0, &(op_attr){.axes = 3}), w, n);
}

static double cpu_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static const struct kind {
  const char *name;
  graph *(*make)(int size);
} kinds[] = {{"chain", chain},
             {"slice updates", slice_updates},
             {"recurrent", recurrent},
             {"normalised", normalised},
             {"gates", gates},
             {"training", training},
             {"symbolic training", symbolic_training},
             {"recurrent training", recurrent_training},
             {"transformer training", transformer_training}};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* What planning takes for each node: steps of its loops, and nanoseconds of this thread. */
typedef struct price {
  double work, ns;
} price;

static price price_of(const struct kind *kind, int size) {
  graph *g = kind->make(size);
  double from = cpu_ms();
  graph *s = graph_simplify(g, NULL);
  ck_assert(s != NULL);
  uint32_t nodes = s->n;
  char text[256] = "";
  double planned = cpu_ms();
  plan *p = plan_make(s, TARGET_CPU, tune, NULL, text, sizeof text);
  double to = cpu_ms();
  ck_assert_msg(p != NULL, "%s: %s", kind->name, text);
  price x = {(double)p->work / nodes, (to - from) * 1e6 / nodes};
  if (getenv("QUERN_TEST_TIMES"))
    fprintf(stderr,
            "%-20s %6u nodes %5u kernels %5u buffers, %9llu steps, simplified %6.2f ms, planned %7.2f ms, peak %lld of "
            "%lld\n",
            kind->name, nodes, p->nkernels, p->nbuffers, (unsigned long long)p->work, planned - from, to - planned,
            (long long)p->peak_bytes, (long long)p->eager_peak_bytes);
  check_plan(p, kind->name);
  bool low = p->peak_bytes <= p->eager_peak_bytes || p->peak_bytes <= PLAN_PEAK_LEAST;
  ck_assert_msg(low || p->graph->dims.n, "%s %d: peak %lld of %lld", kind->name, size, (long long)p->peak_bytes,
                (long long)p->eager_peak_bytes);
  plan_free(p);
  graph_free(g);
  return x;
}

/* A node's share of the work is the same in large graphs, but for what grows as a logarithm. Not all loops are counted; their time
 * is, with much room. */
START_TEST(planning_is_linear) {
  tune_reset();
  for (size_t i = 0; i < KINDS; i++) {
    price few = {0}, many = {0};
    for (int size = 10; size <= 1000; size *= 10) few = price_of(&kinds[i], size);
    for (int tries = 0; tries < 3; tries++) { /* something else may have taken the caches */
      many = price_of(&kinds[i], 10000);
      if (many.ns < 5 * few.ns) break;
    }
    ck_assert_msg(many.work <= 2.5 * few.work, "%s: %.0f steps a node of 1,000, %.0f of 10,000", kinds[i].name,
                  few.work, many.work);
    ck_assert_msg(many.ns <= 5 * few.ns, "%s: %.0f ns a node of 1,000, %.0f of 10,000", kinds[i].name, few.ns, many.ns);
  }
}
END_TEST

/* In the training step of a deep net a forward kernel and a backward one have most of the net between them. Looking for
 * ways between them and moving what lies there makes a node of 64 layers no more than twice the work of a node of one. */
START_TEST(deep_nets_plan_in_time) {
  tune_reset();
  const struct kind kind = {"transformer training", transformer_training};
  price few = price_of(&kind, 150), many = price_of(&kind, 64 * 150);
  ck_assert_msg(many.work <= 2 * few.work, "%.0f steps a node of one layer, %.0f of 64", few.work, many.work);
}
END_TEST

/* Unrolled loops, of which all turns are equal. */
START_TEST(equal_turns_are_planned_once) {
  tune_reset();
  for (size_t i = 0; i < KINDS; i++) {
    graph *g = kinds[i].make(300), *s = graph_simplify(g, NULL);
    ck_assert(s != NULL);
    same_plans(s, kinds[i].name);
    graph_free(g);
    graph_free(s);
  }
}
END_TEST

/* A kernel of thousands of nodes is more work for each of them, but not in proportion to their number. */
START_TEST(large_kernels_plan_in_time) {
  tune_reset();
  price small = {0}, large = {0};
  const struct kind kind = {"gates", gates};
  for (int tries = 0; tries < 3; tries++) {
    tune[TUNE_fuse_nodes] = 128;
    small = price_of(&kind, 5000);
    tune[TUNE_fuse_nodes] = 4096;
    large = price_of(&kind, 5000);
    if (large.ns <= 20 * small.ns) break;
  }
  ck_assert_msg(large.ns <= 20 * small.ns, "%.0f ns a node in kernels of 128, %.0f in kernels of 4,096", small.ns,
                large.ns);
}
END_TEST

/* ---- and can be cancelled ---- */

enum { PLACES = 8, CANCEL_MS = 10, CHAIN_MS = 25 };

static atomic_bool unwanted;
static _Atomic double unwanted_at; /* this thread's time; 0: not yet */

static void on_timer(int signal) {
  (void)signal;
  atomic_store(&unwanted, true);
  atomic_store(&unwanted_at, cpu_ms());
}

/* What a compiler does for a call: a plan, then the C text of its kernels. After `ms` of this thread's time (< 0: never) it is
 * cancelled. How long it goes on after that; < 0: it was over before. *all: its time. */
static double time_to_end(const graph *g, double ms, double *all) {
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
  timer_t timer;
  ck_assert_int_eq(timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer), 0);
  atomic_store(&unwanted, false);
  atomic_store(&unwanted_at, 0);
  double from = cpu_ms();
  struct itimerspec when = {.it_value = {.tv_sec = (time_t)(ms / 1e3), .tv_nsec = (long)(ms * 1e6) % 1000000000 + 1}};
  if (ms >= 0) ck_assert_int_eq(timer_settime(timer, 0, &when, NULL), 0);
  char why[256] = "";
  graph *s = graph_simplify(g, &unwanted);
  plan *p = s ? plan_make(s, TARGET_CPU, tune, &unwanted, why, sizeof why) : NULL;
  ck_assert_str_eq(why, "");
  if (p) {
    const l_program **programs = calloc(p->nkernels + 1, sizeof *programs);
    const char **names = calloc(p->nkernels + 1, sizeof *names);
    ck_assert(programs && names);
    for (uint32_t i = 0; i < p->nkernels; i++) {
      programs[i] = p->kernels[i].program;
      names[i] = "k";
    }
    text_buf text = {0};
    emit_c(programs, names, p->nkernels, &unwanted, &text);
    text_free(&text);
    free(programs);
    free(names);
    plan_free(p);
  } else {
    ck_assert(atomic_load(&unwanted));
  }
  double to = cpu_ms(), at = atomic_load(&unwanted_at);
  timer_delete(timer);
  if (all) *all = to - from;
  return at > 0 ? to - at : -1;
}

/* CANCEL_MS, or more where a chain takes longer to plan than on the machine that it is meant for: slower ones, checked builds. The chain is
 * planned `turns` times, and the shortest time counts. */
static double cancel_allowed(int turns) {
  graph *g = chain(10000);
  double least = 1e9, all, allowed = CANCEL_MS;
  int64_t kept[TUNABLE_COUNT];
  memcpy(kept, tune, sizeof kept);
  tune_reset();
  for (int turn = 0; turn < turns; turn++) {
    ck_assert(time_to_end(g, -1, &all) < 0);
    if (all < least) least = all;
  }
  memcpy(tune, kept, sizeof kept);
  graph_free(g);
  if (least > CHAIN_MS) allowed *= least / CHAIN_MS;
#ifdef QN_CHECKED
  allowed *= 2; /* each kernel is verified as a whole */
#endif
  return allowed;
}

/* Cancels the job of a graph at some times; none may go on for more than `allowed` ms. Measured in the time of the thread, to which what runs
 * beside it adds nothing but colder caches and a slower clock. So a try that takes too long is compared with a chain that is planned right after
 * it: if that takes longer than at first, the try may have, too. The shortest of some tries counts. */
static void cancel_at_places(const struct kind *kind, int size, uint32_t number, double allowed) {
  graph *g = kind->make(size);
  double all, most = 0;
  ck_assert(time_to_end(g, -1, &all) < 0);
  int places = all > 1000 ? PLACES / 4 : all > 300 ? PLACES / 2 : PLACES;
  for (int k = 0; k < places; k++) {
    double ms = all * (k + (double)((number * 29 + (uint32_t)k * 41 + 60) % 100) / 100) / places, least = 1e9;
    for (int tries = 0; tries < 5 && least > allowed; tries++) {
      double x = time_to_end(g, ms, NULL), now = x > allowed ? cancel_allowed(1) : allowed;
      if (now > allowed) x *= allowed / now;
      if (x < least) least = x;
    }
    ck_assert_msg(least <= allowed, "%s: cancelled after %.1f of %.1f ms, and over %.1f ms later", kind->name, ms, all,
                  least);
    if (least > most) most = least;
  }
  if (getenv("QUERN_TEST_TIMES"))
    fprintf(stderr, "%-20s %.1f ms, cancelled within %.2f of %.2f ms\n", kind->name, all, most, allowed);
  graph_free(g);
}

START_TEST(jobs_can_be_cancelled) {
  tune_reset();
  struct sigaction action = {.sa_handler = on_timer};
  ck_assert_int_eq(sigaction(SIGUSR1, &action, NULL), 0);
  double allowed = cancel_allowed(3);
  for (uint32_t i = 0; i < KINDS; i++) cancel_at_places(&kinds[i], 10000, i, allowed);
  tune[TUNE_fuse_nodes] = 4096; /* one kernel may take long */
  cancel_at_places(&(struct kind){"large kernels", gates}, 5000, KINDS, allowed);
  cancel_at_places(&(struct kind){"large kernels", recurrent_training}, 10000, KINDS + 1, allowed);
}
END_TEST

/* In the gradient of a recurrent net all states are live at first; products that wait to be added would be, too. */
START_TEST(fusion_stays_within_memory) {
  tune_reset();
  enum { STEPS = 100 };
  graph *g = graph_new(NULL);
  graph_type weights = {.dtype = QN_f32, .rank = 2, .shape = {32, 32}};
  graph_type states = {.dtype = QN_f32, .rank = 2, .shape = {8, 32}};
  uint32_t w = graph_input(g, weights, 0), x = graph_input(g, states, 0), h = x, grads[1], culprit;
  for (int i = 0; i < STEPS; i++)
    h = op_of(g, OP_tanh, op_of(g, OP_add, op_of(g, OP_dot, h, w, NULL), x, NULL), 0, NULL);
  uint32_t loss = op_of(g, OP_sum, h, 0, &(op_attr){.axes = 3});
  op_refusal why;
  ck_assert(graph_grad(g, 1, loss, 0, &w, 1, grads, &culprit, &why));
  ck_assert(graph_output(g, grads[0]));
  graph *s = graph_simplify(g, NULL);
  graph_free(g);
  char text[256] = "";
  plan *p = plan_make(s, TARGET_CPU, tune, NULL, text, sizeof text);
  ck_assert_msg(p != NULL, "%s", text);
  check_plan(p, "recurrent");
  ck_assert_int_le(p->peak_bytes, p->eager_peak_bytes);
  ck_assert_uint_le(p->nkernels, 4 * STEPS);
  plan_free(p);
}
END_TEST

int main(void) {
  Suite *s = suite_create("kernel plan");
  struct {
    TCase *t;
    const TTest *f;
  } cases[] = {
      {tcase_create("random_graphs_give_plans"), random_graphs_give_plans},
      {tcase_create("symbolic_sizes_give_plans"), symbolic_sizes_give_plans},
      {tcase_create("unfused_graphs_give_plans"), unfused_graphs_give_plans},
      {tcase_create("rows_are_one_kernel"), rows_are_one_kernel},
      {tcase_create("elementwise_work_is_one_kernel"), elementwise_work_is_one_kernel},
      {tcase_create("products_take_epilogues"), products_take_epilogues},
      {tcase_create("scans_run_over_joined_axes"), scans_run_over_joined_axes},
      {tcase_create("fusion_can_be_off"), fusion_can_be_off},
      {tcase_create("results_without_kernels"), results_without_kernels},
      {tcase_create("checks_keep_their_order"), checks_keep_their_order},
      {tcase_create("large_graphs_plan_in_time"), large_graphs_plan_in_time},
      {tcase_create("values_used_often_plan_in_time"), values_used_often_plan_in_time},
      {tcase_create("fusion_stays_within_memory"), fusion_stays_within_memory},
      {tcase_create("equal_blocks_are_planned_once"), equal_blocks_are_planned_once},
      {tcase_create("equal_turns_are_planned_once"), equal_turns_are_planned_once},
      {tcase_create("planning_is_linear"), planning_is_linear},
      {tcase_create("deep_nets_plan_in_time"), deep_nets_plan_in_time},
      {tcase_create("large_kernels_plan_in_time"), large_kernels_plan_in_time},
      {tcase_create("jobs_can_be_cancelled"), jobs_can_be_cancelled},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tcase_set_timeout(cases[i].t, 120);
    tcase_add_test(cases[i].t, cases[i].f);
    suite_add_tcase(s, cases[i].t);
  }
  SRunner *runner = srunner_create(s);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
