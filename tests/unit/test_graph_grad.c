/* Gradients: every differentiable row against central differences in double precision, second derivatives, ties, strong zeros,
 * weak scalars, symbolic sizes, random graphs. */
#include <check.h>
#include <stdlib.h>

#include "graph_eval.h"
#include "graph_random.h"

static char *printed(const graph *g) {
  text_buf t = {0};
  graph_print(g, &t);
  text_add(&t, "", 1);
  char *s = strdup(t.text);
  text_free(&t);
  return s;
}

/* ---- harness ---------------------------------------------------------------------------------------------------------- */

/* A scalar that weighs every element of the graph's first output differently. */
static uint32_t weighted(graph *g, uint32_t x, double phase) {
  graph_type t = g->nodes[x].type;
  if (t.weak) return x;
  uint32_t index, angle, product;
  qn_dim n = graph_elements(g, &t);
  op_attr flat = {.n = 1, .d = {n}}, count = {.dtype = t.dtype, .axes = 1, .n = 1, .d = {n}}, all = {.axes = 1};
  x = graph_op(g, OP_reshape, &x, 1, &flat, 0);
  index = graph_op(g, OP_iota, NULL, 0, &count, 0);
  angle = graph_op(g, OP_add, (uint32_t[]){index, graph_const_scalar(g, QN_f64, true, phase, 0, 0)}, 2, NULL, 0);
  product = graph_op(g, OP_mul, (uint32_t[]){x, graph_op(g, OP_sin, &angle, 1, NULL, 0)}, 2, NULL, 0);
  return graph_op(g, OP_sum, &product, 1, &all, 0);
}

typedef struct problem {
  graph *g;
  uint32_t root;
  uint32_t wrt[16], grads[16];
  int nwrt;
  double data[16][128]; /* of each input */
  int64_t *symbols;
} problem;

/* Differentiates p->root by all float inputs; the gradients become outputs, so that passes keep them. */
static void differentiate(problem *p) {
  char why[256] = "";
  op_refusal refusal = {0};
  uint32_t culprit = 0;
  p->nwrt = 0;
  for (uint32_t k = 0; k < p->g->ninputs; k++)
    if (dtype_is_float((qn_dtype)p->g->nodes[p->g->inputs[k]].type.dtype)) p->wrt[p->nwrt++] = p->g->inputs[k];
  bool ok = graph_grad(p->g, 1, p->root, 0, p->wrt, p->nwrt, p->grads, &culprit, &refusal);
  ck_assert_msg(ok, "%%%u: %s\n%s", culprit, refusal.text, printed(p->g));
  for (int k = 0; k < p->nwrt; k++) {
    if (!p->grads[k]) continue;
    const graph_type *a = &p->g->nodes[p->wrt[k]].type, *b = &p->g->nodes[p->grads[k]].type;
    ck_assert_msg(a->dtype == b->dtype && a->rank == b->rank && a->weak == b->weak, "gradient %d has another type\n%s",
                  k, printed(p->g));
    graph_output(p->g, p->grads[k]);
  }
  ck_assert(!p->g->failed);
  ck_assert_msg(graph_verify(p->g, why, sizeof why), "%s\n%s", why, printed(p->g));
}

static void set_inputs(eval *e, problem *p) {
  for (uint32_t k = 0; k < p->g->ninputs; k++) eval_input(e, k, p->data[k]);
}

static double root_at(problem *p) {
  eval e;
  eval_init(&e, p->g, p->symbols);
  set_inputs(&e, p);
  ck_assert_msg(eval_run(&e), "%%%u raises\n%s", e.raised, printed(p->g));
  double y = e.v[p->root].f[0];
  eval_free(&e);
  return y;
}

static double difference(problem *p, uint32_t input, int64_t at, double h) {
  double *x = &p->data[input][at], old = *x, up, down;
  *x = old + h;
  up = root_at(p);
  *x = old - h;
  down = root_at(p);
  *x = old;
  return (up - down) / (2 * h);
}

/* Does the graph round to floats narrower than f64? Then small differences may fall on one step and vanish. */
static bool has_steps(const graph *g) {
  for (uint32_t k = 1; k < g->n; k++) {
    qn_dtype d = (qn_dtype)g->nodes[k].type.dtype;
    if (dtype_is_float(d) && d != QN_f64) return true;
  }
  return false;
}

/* Compares gradients with differences. `smooth`: all must agree; else only where the differences themselves are reliable.
 * Returns how many were compared. */
static int check_differences(problem *p, bool smooth, const char *name) {
  eval e;
  int compared = 0;
  eval_init(&e, p->g, p->symbols);
  set_inputs(&e, p);
  ck_assert_msg(eval_run(&e), "%s: %%%u raises\n%s", name, e.raised, printed(p->g));
  for (int k = 0; k < p->nwrt; k++) {
    uint32_t input = p->g->nodes[p->wrt[k]].payload.input;
    for (int64_t i = 0; i < e.v[p->wrt[k]].n; i++) {
      double got = p->grads[k] ? e.v[p->grads[k]].f[i] : 0;
      double d1 = difference(p, input, i, 1e-5), d2 = difference(p, input, i, 3e-6);
      double scale = 1 + fabs(d2);
      if (!smooth && d1 == 0 && d2 == 0 && has_steps(p->g)) continue;
      if (!smooth && !(fabs(d1 - d2) < 1e-5 * scale && fabs(d2) < 1e4 && fabs(e.v[p->root].f[0]) < 1e4)) continue;
      compared++;
      ck_assert_msg(fabs(got - d2) < 2e-4 * scale, "%s: input %u element %lld: gradient %.9g, difference %.9g\n%s",
                    name, (unsigned)input, (long long)i, got, d2, printed(p->g));
    }
  }
  eval_free(&e);
  return compared;
}

static graph *parsed(const char *text) {
  char why[256] = "";
  graph *g = graph_parse(text, why, sizeof why);
  ck_assert_msg(g != NULL, "%s\n%s", why, text);
  return g;
}

/* First (and, if wanted, second) derivatives of the first output of a graph in text form. Float inputs get distinct values in
 * lo..hi, integers 0, 1, 0, ..., bools true, false, ... */
static void check_case(const char *text, double lo, double hi, bool second) {
  problem p = {.g = parsed(text)};
  rng r = {11};
  for (uint32_t k = 0; k < p.g->ninputs; k++) {
    qn_dtype d = (qn_dtype)p.g->nodes[p.g->inputs[k]].type.dtype;
    for (int i = 0; i < 128; i++) p.data[k][i] = dtype_is_float(d) ? lo + (hi - lo) * rng_uniform(&r) : (i + 1) % 2;
  }
  p.root = weighted(p.g, p.g->outputs[0], 0.7);
  differentiate(&p);
  ck_assert_int_gt(check_differences(&p, true, text), 0);
  if (second) {
    uint32_t sum = 0;
    for (int k = 0; k < p.nwrt; k++) {
      if (!p.grads[k]) continue;
      uint32_t part = weighted(p.g, p.grads[k], 1.3 + k);
      sum = sum ? graph_op(p.g, OP_add, (uint32_t[]){sum, part}, 2, NULL, 0) : part;
    }
    p.root = sum;
    differentiate(&p);
    check_differences(&p, true, text);
  }
  graph *s = graph_simplify(p.g, NULL); /* and simplification leaves the gradients alone */
  char why[256] = "";
  ck_assert_msg(graph_verify(s, why, sizeof why), "%s", why);
  eval a, b;
  eval_init(&a, p.g, NULL);
  eval_init(&b, s, NULL);
  set_inputs(&a, &p);
  for (uint32_t k = 0; k < s->ninputs; k++) eval_input(&b, k, p.data[k]);
  ck_assert(eval_run(&a) && eval_run(&b));
  for (uint32_t k = 0; k < s->noutputs; k++)
    ck_assert_msg(eval_same(&a.v[p.g->outputs[k]], &b.v[s->outputs[k]]), "%s", text);
  eval_free(&a);
  eval_free(&b);
  graph_free(s);
  graph_free(p.g);
}

/* ---- every row ----------------------------------------------------------------------------------------------------------- */

static const struct {
  const char *text;
  double lo, hi;
  bool second;
} cases[] = {
    {"graph(%1: f64[2, 3], %2: f64[3]) { %3 = add %1, %2 : f64[2, 3] return %3 }", -2, 2, false},
    {"graph(%1: f64[2, 1], %2: f64[3]) { %3 = sub %1, %2 : f64[2, 3] return %3 }", -2, 2, false},
    {"graph(%1: f64[2, 3], %2: f64[]) { %3 = mul %1, %2 : f64[2, 3] return %3 }", -2, 2, true},
    {"graph(%1: f64[2, 3], %2: f64[2, 1]) { %3 = div %1, %2 : f64[2, 3] return %3 }", 0.5, 2, true},
    {"graph(%1: f64[3]) { %2 = const 3.0 : f64[] %3 = div %1, %2 : f64[3] return %3 }", 0.5, 2, true},
    {"graph(%1: f64[3], %2: f64[3]) { %3 = mod %1, %2 : f64[3] return %3 }", 0.5, 2, false},
    {"graph(%1: f64[3], %2: f64[3]) { %3 = pow %1, %2 : f64[3] return %3 }", 0.5, 2, true},
    {"graph(%1: f64[3]) { %2 = const 2.0 : f64[] %3 = pow %1, %2 : f64[3] return %3 }", -2, 2, true},
    {"graph(%1: f64[3]) { %2 = const 3.0 : f64[] %3 = pow %1, %2 : f64[3] return %3 }", -2, 2, true},
    {"graph(%1: f64[3]) { %2 = const 1.0 : f64[] %3 = pow %1, %2 : f64[3] return %3 }", -2, 2, false},
    {"graph(%1: f64[3], %2: f64[3]) { %3 = smul %1, %2 : f64[3] return %3 }", -2, 2, true},
    {"graph(%1: f64[3]) { %2 = neg %1 : f64[3] return %2 }", -2, 2, false},
    {"graph(%1: f64[3]) { %2 = abs %1 : f64[3] return %2 }", -2, 2, false},
    {"graph(%1: f64[2, 3], %2: f64[3]) { %3 = minimum %1, %2 : f64[2, 3] return %3 }", -2, 2, false},
    {"graph(%1: f64[2, 3], %2: f64[3]) { %3 = maximum %1, %2 : f64[2, 3] return %3 }", -2, 2, false},
    {"graph(%1: f64[3]) { %2 = sqrt %1 : f64[3] return %2 }", 0.5, 2, true},
    {"graph(%1: f64[3]) { %2 = rsqrt %1 : f64[3] return %2 }", 0.5, 2, true},
    {"graph(%1: f64[3]) { %2 = exp %1 : f64[3] return %2 }", -1, 1, true},
    {"graph(%1: f64[3]) { %2 = exp2 %1 : f64[3] return %2 }", -1, 1, true},
    {"graph(%1: f64[3]) { %2 = expm1 %1 : f64[3] return %2 }", -1, 1, true},
    {"graph(%1: f64[3]) { %2 = log %1 : f64[3] return %2 }", 0.5, 2, true},
    {"graph(%1: f64[3]) { %2 = log2 %1 : f64[3] return %2 }", 0.5, 2, true},
    {"graph(%1: f64[3]) { %2 = log10 %1 : f64[3] return %2 }", 0.5, 2, true},
    {"graph(%1: f64[3]) { %2 = log1p %1 : f64[3] return %2 }", -0.5, 2, true},
    {"graph(%1: f64[3]) { %2 = sin %1 : f64[3] return %2 }", -2, 2, true},
    {"graph(%1: f64[3]) { %2 = cos %1 : f64[3] return %2 }", -2, 2, true},
    {"graph(%1: f64[3]) { %2 = tan %1 : f64[3] return %2 }", -1, 1, true},
    {"graph(%1: f64[3]) { %2 = arcsin %1 : f64[3] return %2 }", -0.8, 0.8, true},
    {"graph(%1: f64[3]) { %2 = arccos %1 : f64[3] return %2 }", -0.8, 0.8, true},
    {"graph(%1: f64[3]) { %2 = arctan %1 : f64[3] return %2 }", -2, 2, true},
    {"graph(%1: f64[3], %2: f64[3]) { %3 = arctan2 %1, %2 : f64[3] return %3 }", 0.3, 2, true},
    {"graph(%1: f64[3]) { %2 = sinh %1 : f64[3] return %2 }", -1, 1, true},
    {"graph(%1: f64[3]) { %2 = cosh %1 : f64[3] return %2 }", -1, 1, true},
    {"graph(%1: f64[3]) { %2 = tanh %1 : f64[3] return %2 }", -1, 1, true},
    {"graph(%1: f64[3]) { %2 = sigmoid %1 : f64[3] return %2 }", -2, 2, true},
    {"graph(%1: f64[3]) { %2 = erf %1 : f64[3] return %2 }", -1, 1, true},
    {"graph(%1: f64[3]) { %2 = silu %1 : f64[3] return %2 }", -2, 2, true},
    {"graph(%1: f64[3]) { %2 = gelu %1 : f64[3] return %2 }", -2, 2, true},
    {"graph(%1: f64[3]) { %2 = gelu_tanh %1 : f64[3] return %2 }", -2, 2, true},
    {"graph(%1: f64[3]) { %2 = gelu_slope %1 : f64[3] return %2 }", -2, 2, true},
    {"graph(%1: bool[3], %2: f64[2, 3], %3: f64[]) { %4 = where %1, %2, %3 : f64[2, 3] return %4 }", -2, 2, false},
    {"graph(%1: weak f64) { %2 = cast %1 dtype=f64 : f64[] return %2 }", -2, 2, false},
    {"graph(%1: f64[]) { %2 = cast %1 weak dtype=f64 : weak f64 %3 = mul %2, %2 : weak f64 return %3 }", -2, 2, true},
    {"graph(%1: weak f64, %2: f64[3]) { %3 = exp %1 : weak f64 %4 = fit %3 dtype=f64 : f64[] %5 = mul %4, %2 : f64[3] "
     "return %5 }",
     -1, 1, true},
    {"graph(%1: f64[2, 3]) { %2 = sum %1 axes=[0] : f64[3] return %2 }", -2, 2, false},
    {"graph(%1: f64[2, 3]) { %2 = sum %1 axes=[1] keepdims : f64[2, 1] %3 = mul %2, %1 : f64[2, 3] return %3 }", -2, 2,
     true},
    {"graph(%1: f64[2, 3]) { %2 = prod %1 axes=[1] : f64[2] return %2 }", -2, 2, true},
    {"graph(%1: f64[2, 3, 2]) { %2 = prod %1 axes=[0, 2] keepdims : f64[1, 3, 1] return %2 }", -2, 2, true},
    {"graph(%1: f64[2, 3]) { %2 = prod %1 axes=[0, 1] : f64[] return %2 }", -2, 2, true},
    {"graph(%1: f64[2, 3]) { %2 = max %1 axes=[1] : f64[2] return %2 }", -2, 2, false},
    {"graph(%1: f64[2, 3]) { %2 = min %1 axes=[0, 1] keepdims : f64[1, 1] return %2 }", -2, 2, false},
    {"graph(%1: f64[2, 4]) { %2 = cumsum %1 axes=[1] : f64[2, 4] %3 = exp %2 : f64[2, 4] return %3 }", -1, 1, true},
    {"graph(%1: f64[4, 2]) { %2 = cumsum %1 axes=[0] reverse exclusive : f64[4, 2] return %2 }", -1, 1, false},
    {"graph(%1: f64[2, 4]) { %2 = cumprod %1 axes=[1] : f64[2, 4] return %2 }", 0.5, 2, true},
    {"graph(%1: f64[4, 2]) { %2 = cumprod %1 axes=[0] reverse exclusive : f64[4, 2] return %2 }", -2, 2, true},
    {"graph(%1: f64[4, 2]) { %2 = cumprod %1 axes=[0] exclusive : f64[4, 2] return %2 }", -2, 2, true},
    {"graph(%1: f64[2, 6]) { %2 = cummax %1 axes=[1] : f64[2, 6] return %2 }", -2, 2, false},
    {"graph(%1: f64[2, 6]) { %2 = cummin %1 axes=[1] : f64[2, 6] return %2 }", -2, 2, false},
    {"graph(%1: f64[6, 2]) { %2 = cummax %1 axes=[0] reverse : f64[6, 2] return %2 }", -2, 2, false},
    {"graph(%1: f64[2, 6]) { %2 = cummin %1 axes=[1] reverse exclusive : f64[2, 6]\n"
     " %3 = slice %2 slice=[0:2:1, 0:5:1] : f64[2, 5] return %3 }",
     -2, 2, false},
    {"graph(%1: f64[2, 6]) { %2 = cummax %1 axes=[1] exclusive : f64[2, 6]\n"
     " %3 = slice %2 slice=[0:2:1, 1:5:1] : f64[2, 5] return %3 }",
     -2, 2, false},
    {"graph(%1: f64[2, 3]) { %2 = reshape %1 shape=[3, 2] : f64[3, 2] return %2 }", -2, 2, false},
    {"graph(%1: f64[3, 1]) { %2 = broadcast %1 shape=[2, 3, 2] : f64[2, 3, 2] return %2 }", -2, 2, false},
    {"graph(%1: f64[2, 3, 2]) { %2 = permute %1 order=[2, 0, 1] : f64[2, 2, 3] return %2 }", -2, 2, false},
    {"graph(%1: f64[5, 4]) { %2 = slice %1 slice=[1:2:2, 3:2:-2] : f64[2, 2] %3 = mul %2, %2 : f64[2, 2] return %3 }",
     -2, 2, true},
    {"graph(%1: f64[5]) { %2 = slice %1 slice=[4:5:-1] : f64[5] return %2 }", -2, 2, false},
    {"graph(%1: f64[2, 7]) { %2 = window %1 axes=[1] window=[3, 2, 1] : f64[2, 3, 3] %3 = exp %2 : f64[2, 3, 3] return "
     "%3 "
     "}",
     -1, 1, true},
    {"graph(%1: f64[8, 2]) { %2 = window %1 axes=[0] window=[2, 1, 3] : f64[5, 2, 2] return %2 }", -2, 2, false},
    {"graph(%1: f64[36]) { %2 = window %1 axes=[0] window=[33, 2, 1] : f64[2, 33] %3 = mul %2, %2 : f64[2, 33] return "
     "%3 "
     "}",
     -2, 2, true},
    {"graph(%1: f64[2, 40, 1]) { %2 = window %1 axes=[1] window=[34, 3, 1] : f64[2, 3, 1, 34] return %2 }", -2, 2,
     false},
    {"graph(%1: f64[3], %2: f64[]) { %3 = pad %1, %2 pad=[1:2:1] : f64[8] return %3 }", -2, 2, false},
    {"graph(%1: f64[2, 2], %2: f64[2, 3], %3: f64[2, 1]) { %4 = concat %1, %2, %3, %1 axes=[1] : f64[2, 8] return %4 }",
     -2, 2, false},
    {"graph(%1: f64[3, 2], %2: i64[4]) { %3 = index %1, %2 leading=[1] : f64[4, 2] %4 = mul %3, %3 : f64[4, 2] return "
     "%4 }",
     -2, 2, true},
    {"graph(%1: f64[3, 2], %2: i64[4], %3: i64[2, 1]) { %4 = index %1, %2, %3 leading=[2] : f64[2, 4] return %4 }", -2,
     2, false},
    {"graph(%1: f64[3, 2], %2: i64[4], %3: f64[4, 2]) { %4 = scatter %1, %2, %3 leading=[1] : f64[3, 2] return %4 }",
     -2, 2, false},
    {"graph(%1: f64[3, 2], %2: i64[], %3: f64[]) { %4 = scatter %1, %2, %3 leading=[1] : f64[3, 2] return %4 }", -2, 2,
     false},
    {"graph(%1: f64[3, 2], %2: i64[4], %3: f64[2]) { %4 = scatter %1, %2, %3 mode=add leading=[1] : f64[3, 2] return "
     "%4 }",
     -2, 2, false},
    {"graph(%1: f64[3, 2], %2: i64[4], %3: f64[4, 2]) { %4 = scatter %1, %2, %3 mode=mul leading=[1] : f64[3, 2] "
     "return %4 }",
     -2, 2, true},
    {"graph(%1: f64[3, 2], %2: i64[4], %3: f64[4, 2]) { %4 = scatter %1, %2, %3 mode=min leading=[1] : f64[3, 2] "
     "return %4 }",
     -2, 2, false},
    {"graph(%1: f64[3, 2], %2: i64[4], %3: f64[4, 2]) { %4 = scatter %1, %2, %3 mode=max leading=[1] : f64[3, 2] "
     "return %4 }",
     -2, 2, false},
    {"graph(%1: f64[3, 2], %2: i64[4, 2]) { %3 = gather %1, %2 axes=[0] : f64[4, 2] %4 = exp %3 : f64[4, 2] return %4 "
     "}",
     -2, 2, true},
    {"graph(%1: f64[3, 2], %2: i64[4, 2], %3: f64[2]) { %4 = gather_add %1, %2, %3 axes=[0] : f64[3, 2] return %4 }",
     -2, 2, false},
    {"graph(%1: f64[5], %2: f64[]) { %3 = slice_put %1, %2 slice=[3:2:-2] : f64[5] return %3 }", -2, 2, false},
    {"graph(%1: f64[4, 2], %2: f64[2, 2]) { %3 = slice_put %1, %2 slice=[1:2:2, 0:2:1] : f64[4, 2] return %3 }", -2, 2,
     false},
    {"dim d0 = node %3 axis 0 hint 5\ngraph(%1: f64[5, 2], %2: bool[5]) { %3 = compress %1, %2 : f64[d0, 2] %4 = exp "
     "%3 : f64[d0, 2] return %4 }",
     -1, 1, true},
    {"dim d0 = node %3 axis 0 hint 6\ngraph(%1: f64[3, 2], %2: bool[3, 2]) { %3 = compress %1, %2 : f64[d0] return %3 "
     "}",
     -1, 1, false},
    {"graph(%1: f64[2, 3], %2: f64[3, 4]) { %3 = dot %1, %2 : f64[2, 4] return %3 }", -2, 2, true},
    {"graph(%1: f64[3], %2: f64[3]) { %3 = mul %1, %2 : f64[3] %4 = sum %3 axes=[0] : f64[] return %4 }", -2, 2, true},
    {"graph(%1: f64[3], %2: f64[3, 2]) { %3 = dot %1, %2 : f64[2] return %3 }", -2, 2, false},
    {"graph(%1: f64[2, 2, 3], %2: f64[3]) { %3 = dot %1, %2 : f64[2, 2] return %3 }", -2, 2, false},
    {"graph(%1: f64[3], %2: f64[2, 3, 2]) { %3 = dot %1, %2 : f64[2, 2] return %3 }", -2, 2, false},
    {"graph(%1: f64[2, 2, 3], %2: f64[3, 2]) { %3 = dot %1, %2 : f64[2, 2, 2] return %3 }", -2, 2, true},
    {"graph(%1: f64[2, 3], %2: f64[2, 2, 3, 2]) { %3 = dot %1, %2 : f64[2, 2, 2, 2] return %3 }", -2, 2, true},
    {"graph(%1: f64[2, 1, 2, 3], %2: f64[1, 2, 3, 2]) { %3 = dot %1, %2 : f64[2, 2, 2, 2] return %3 }", -2, 2, false},
    {"graph(%1: f64[2, 2, 3], %2: f64[2, 3, 2]) { %3 = dot %1, %2 : f64[2, 2, 2] return %3 }", -2, 2, false},
    {"graph(%1: f64[2, 4], %2: f64[2, 4]) { %3 = recurrence %1, %2 axes=[1] : f64[2, 4] return %3 }", -2, 2, true},
    {"graph(%1: f64[4, 2], %2: f64[4, 2]) { %3 = recurrence %1, %2 axes=[0] reverse : f64[4, 2] return %3 }", -2, 2,
     true},
    {"graph(%1: f64[4, 2], %2: f64[4, 2]) { %3 = recurrence %1, %2 axes=[0] exclusive : f64[4, 2] return %3 }", -2, 2,
     true},
    {"graph(%1: f64[2, 4], %2: f64[2, 4]) { %3 = recurrence %1, %2 axes=[1] reverse exclusive : f64[2, 4] return %3 }",
     -2, 2, true},
    {"graph(%1: f64[5, 2]) { %2 = sort %1 axes=[0] : f64[5, 2] %3 = mul %2, %2 : f64[5, 2] return %3 }", -2, 2, true},
    {"graph(%1: f64[5]) { %2 = sort %1 axes=[0] descending : f64[5] return %2 }", -2, 2, false},
    /* softmax and layer norm: chains */
    {"graph(%1: f64[2, 3]) { %2 = max %1 axes=[1] keepdims : f64[2, 1] %3 = sub %1, %2 : f64[2, 3] %4 = exp %3 : "
     "f64[2, 3]\n"
     " %5 = sum %4 axes=[1] keepdims : f64[2, 1] %6 = div %4, %5 : f64[2, 3] return %6 }",
     -2, 2, true},
    {"graph(%1: f64[2, 3]) { %2 = sum %1 axes=[1] keepdims : f64[2, 1] %3 = const 3.0 : f64[] %4 = div %2, %3 : f64[2, "
     "1]\n"
     " %5 = sub %1, %4 : f64[2, 3] %6 = mul %5, %5 : f64[2, 3] %7 = sum %6 axes=[1] keepdims : f64[2, 1] %8 = rsqrt %7 "
     ": f64[2, 1]\n"
     " %9 = mul %5, %8 : f64[2, 3] return %9 }",
     -2, 2, true},
};
enum { CASES = sizeof cases / sizeof *cases };

START_TEST(every_row_against_differences) {
  for (int i = 0; i < CASES; i++) check_case(cases[i].text, cases[i].lo, cases[i].hi, cases[i].second);
}
END_TEST

START_TEST(every_differentiable_row_is_tested) {
  bool seen[OP_COUNT] = {false};
  for (int i = 0; i < CASES; i++) {
    graph *g = parsed(cases[i].text);
    for (uint32_t k = 1; k < g->n; k++)
      if (g->nodes[k].kind == NODE_OP) seen[g->nodes[k].op] = true;
    graph_free(g);
  }
  for (int op = 0; op < OP_COUNT; op++)
    if (!op_rows[op].no_grad) ck_assert_msg(seen[op], "no case differentiates %s", op_rows[op].name);
}
END_TEST

/* ---- exact values ---------------------------------------------------------------------------------------------------------- */

/* Gradients of the sum of the first output at given data, elementwise `expected` for the first float input. */
static void check_exact(const char *text, const double *data, int n, const double *expected) {
  problem p = {.g = parsed(text)};
  uint32_t out = p.g->outputs[0];
  graph_type t = p.g->nodes[out].type;
  for (uint32_t k = 0; k < p.g->ninputs; k++) memcpy(p.data[k], data + k * (uint32_t)n, (size_t)n * sizeof *data);
  p.root = t.rank ? graph_op(p.g, OP_sum, &out, 1, &(op_attr){.axes = (uint8_t)((1 << t.rank) - 1)}, 0) : out;
  differentiate(&p);
  eval e;
  eval_init(&e, p.g, NULL);
  set_inputs(&e, &p);
  ck_assert(eval_run(&e));
  for (int i = 0; i < n; i++) {
    double got = p.grads[0] ? e.v[p.grads[0]].f[i] : 0;
    ck_assert_msg(got == expected[i] || (got != got && expected[i] != expected[i]), "element %d: %g, expected %g\n%s",
                  i, got, expected[i], printed(p.g));
  }
  eval_free(&e);
  graph_free(p.g);
}
#define D(...)                                                                                                         \
  (const double[]) { __VA_ARGS__ }

START_TEST(ties_and_kinks) {
  check_exact("graph(%1: f64[4]) { %2 = max %1 axes=[0] : f64[] return %2 }", D(3, 1, 3, 3), 4,
              D(1.0 / 3, 0, 1.0 / 3, 1.0 / 3));
  check_exact("graph(%1: f64[4]) { %2 = min %1 axes=[0] : f64[] return %2 }", D(3, 1, 1, 3), 4, D(0, 0.5, 0.5, 0));
  check_exact("graph(%1: f64[3], %2: f64[3]) { %3 = maximum %1, %2 : f64[3] return %3 }", D(1, 2, 3, 2, 2, 2), 3,
              D(0, 0.5, 1));
  check_exact("graph(%1: f64[3], %2: f64[3]) { %3 = minimum %1, %2 : f64[3] return %3 }", D(1, 2, 3, 2, 2, 2), 3,
              D(1, 0.5, 0));
  check_exact("graph(%1: f64[3]) { %2 = abs %1 : f64[3] return %2 }", D(-1, 0, 2), 3, D(-1, 0, 1));
  check_exact("graph(%1: f16[3]) { %2 = max %1 axes=[0] : f16[] return %2 }", D(2, 2, 1), 3, D(0.5, 0.5, 0));
  check_exact("graph(%1: f64[3], %2: f64[3]) { %3 = const [0, 0, 1] : i64[3]\n"
              " %4 = scatter %2, %3, %1 leading=[1] : f64[3] return %4 }",
              D(1, 2, 3, 4, 5, 6), 3, D(0, 1, 1)); /* the last one wins */
  check_exact("graph(%1: f64[4]) { %2 = cummax %1 axes=[0] : f64[4] return %2 }", D(1, 3, 3, 2), 4, D(1, 1, 2, 0));
}
END_TEST

START_TEST(strong_zeros) {
  /* where(p > 0, p * log(p), 0) at 0, and its second derivative */
  const char *entropy = "graph(%1: f64[3]) { %2 = const 0.0 : f64[] %3 = gt %1, %2 : bool[3] %4 = log %1 : f64[3] %5 = "
                        "mul %1, %4 : f64[3]\n"
                        " %6 = where %3, %5, %2 : f64[3] return %6 }";
  check_exact(entropy, D(0, 1, 0), 3, D(0, 1, 0));
  problem p = {.g = parsed(entropy), .data = {{0, 1, 0.5}}};
  uint32_t out = p.g->outputs[0];
  p.root = graph_op(p.g, OP_sum, &out, 1, &(op_attr){.axes = 1}, 0);
  differentiate(&p);
  out = p.grads[0];
  p.root = graph_op(p.g, OP_sum, &out, 1, &(op_attr){.axes = 1}, 0);
  differentiate(&p);
  eval e;
  eval_init(&e, p.g, NULL);
  set_inputs(&e, &p);
  ck_assert(eval_run(&e));
  const double *second = e.v[p.grads[0]].f;
  ck_assert(second[0] == 0 && second[1] == 1 && second[2] == 2);
  eval_free(&e);
  graph_free(p.g);
  /* sqrt at 0, unused by a mask; norm of nothing; powers with zeros */
  check_exact(
      "graph(%1: f64[2]) { %2 = sqrt %1 : f64[2] %3 = const [0.0, 1.0] : f64[2] %4 = mul %2, %3 : f64[2] return %4 }",
      D(0, 4), 2, D(0, 0.25));
  check_exact("graph(%1: f64[3]) { %2 = prod %1 axes=[0] : f64[] return %2 }", D(0, 2, 3), 3, D(6, 0, 0));
  check_exact("graph(%1: f64[3]) { %2 = cumprod %1 axes=[0] : f64[3] return %2 }", D(2, 0, 3), 3, D(1, 8, 0));
  check_exact("graph(%1: f64[3]) { %2 = cumprod %1 axes=[0] : f64[3] return %2 }", D(0, 0, 3), 3, D(1, 0, 0));
  check_exact("graph(%1: f64[3], %2: f64[3]) { %3 = pow %1, %2 : f64[3] return %3 }", D(0, 0, 0, 0, 1, 2), 3,
              D(0, 1, 0));
  check_exact("graph(%1: f64[3], %2: f64[3]) { %3 = pow %2, %1 : f64[3] return %3 }", D(0, 1, 2, 0, 0, 1), 3,
              D(0, 0, 0));
  check_exact("graph(%1: f64[2], %2: f64[2]) { %3 = const [0, 0] : i64[2] %4 = scatter %2, %3, %1 mode=mul leading=[1] "
              ": f64[2] return %4 }",
              D(0, 3, 5, 7), 2, D(15, 0));
}
END_TEST

START_TEST(constants_integers_and_stops_end_silently) {
  check_exact("graph(%1: f64[2]) { %2 = floor %1 : f64[2] return %2 }", D(1.5, 2.5), 2, D(0, 0));
  check_exact("graph(%1: f64[2]) { %2 = stop_gradient %1 : f64[2] %3 = mul %1, %2 : f64[2] return %3 }", D(3, 4), 2,
              D(3, 4));
  check_exact("graph(%1: f64[2]) { %2 = cast %1 dtype=i64 : i64[2] %3 = cast %2 dtype=f64 : f64[2] %4 = mul %1, %3 : "
              "f64[2] return %4 }",
              D(3, 4), 2, D(3, 4));
  /* nodes before `from` are constants */
  graph *g = parsed("graph(%1: f64[]) { %2 = mul %1, %1 : f64[] %3 = mul %2, %1 : f64[] return %3 }");
  uint32_t grads[2], culprit, wrt[] = {1, 2};
  op_refusal why;
  ck_assert(graph_grad(g, 3, 3, 0, wrt, 2, grads, &culprit, &why));
  eval e;
  for (int k = 0; k < 2; k++) graph_output(g, grads[k]);
  eval_init(&e, g, NULL);
  eval_input(&e, 0, D(3));
  ck_assert(eval_run(&e));
  ck_assert(e.v[grads[0]].f[0] == 9 && e.v[grads[1]].f[0] == 3);
  eval_free(&e);
  graph_free(g);
}
END_TEST

START_TEST(refusals_name_the_node) {
  graph *g =
      parsed("graph(%1: f64[2], %2: i64[2]) { %3 = sum %2 axes=[0] : i64[] %4 = cast %3 dtype=f64 : f64[] return %4 }");
  uint32_t grads[1], culprit, x = 1, i = 2;
  op_refusal why;
  ck_assert(!graph_grad(g, 1, 4, 0, &i, 1, grads, &culprit, &why));
  ck_assert_str_eq(why.text, "a gradient needs a float input, not i64");
  ck_assert_int_eq(why.id, 405);
  ck_assert_uint_eq(culprit, 2);
  ck_assert(graph_grad(g, 1, 4, 0, &x, 1, grads, &culprit, &why)); /* does not depend on it */
  ck_assert_uint_eq(grads[0], 0);
  graph_free(g);
}
END_TEST

START_TEST(weak_scalars_have_weak_gradients) {
  check_exact("graph(%1: weak f64) { %2 = const 2 : weak i64 %3 = cast %2 weak dtype=f64 : weak f64 %4 = pow %1, %3 : "
              "weak f64 return %4 }",
              D(3), 1, D(6));
  graph *g = graph_new(NULL);
  uint32_t s = graph_input(g, (graph_type){.dtype = QN_f64, .weak = true}, 0);
  uint32_t x = graph_input(g, (graph_type){.dtype = QN_f32, .rank = 1, .shape = {3}}, 0);
  uint32_t square = graph_op(g, OP_pow, (uint32_t[]){s, graph_const_scalar(g, QN_i64, true, 0, 2, 0)}, 2, NULL, 0);
  uint32_t y = graph_op(g, OP_mul, (uint32_t[]){x, square}, 2, NULL, 0), root;
  uint32_t grads[2], culprit, wrt[] = {s, x};
  op_refusal why;
  char text[256];
  root = graph_op(g, OP_sum, &y, 1, &(op_attr){.axes = 1}, 0);
  ck_assert(graph_grad(g, 1, root, 0, wrt, 2, grads, &culprit, &why));
  ck_assert(g->nodes[grads[0]].type.weak && g->nodes[grads[0]].type.dtype == QN_f64);
  ck_assert(!g->nodes[grads[1]].type.weak && g->nodes[grads[1]].type.dtype == QN_f32);
  graph_output(g, grads[0]);
  graph_output(g, grads[1]);
  ck_assert_msg(graph_verify(g, text, sizeof text), "%s", text);
  eval e;
  eval_init(&e, g, NULL);
  eval_input(&e, 0, D(3));
  eval_input(&e, 1, D(1, 2, 4));
  ck_assert(eval_run(&e));
  ck_assert(e.v[grads[0]].f[0] == 42);
  for (int k = 0; k < 3; k++) ck_assert(e.v[grads[1]].f[k] == 9);
  eval_free(&e);
  graph_free(g);
}
END_TEST

START_TEST(gradients_hold_for_other_sizes) {
  static const char *texts[] = {
      "dim b = input 0 axis 0 hint 2\ndim d = input 0 axis 1 hint 3\n"
      "graph(%1: f64[b, d], %2: f64[d]) { %3 = mul %1, %2 : f64[b, d] %4 = max %3 axes=[1] keepdims : f64[b, 1]\n"
      " %5 = sub %3, %4 : f64[b, d] %6 = exp %5 : f64[b, d] %7 = sum %6 axes=[1] keepdims : f64[b, 1] %8 = div %6, %7 "
      ": f64[b, d] return %8 }",
      "dim b = input 0 axis 0 hint 2\ndim d = input 0 axis 1 hint 3\n"
      "graph(%1: f64[b, d], %2: f64[d]) { %3 = slice %1 slice=[b - 1:b:-1, 1:d - 1:1] : f64[b, d - 1] %4 = concat %3, "
      "%1 axes=[1] : "
      "f64[b, 2*d - 1]\n %5 = cumsum %4 axes=[1] : f64[b, 2*d - 1] %6 = exp %5 : f64[b, 2*d - 1] return %6 }",
      "dim b = input 0 axis 0 hint 2\ndim d = input 0 axis 1 hint 3\n"
      "graph(%1: f64[b, d], %2: f64[d]) { %3 = slice %1 slice=[0:(b + 1) // 2:2, 0:d:1] : f64[(b + 1) // 2, d]\n"
      " %4 = dot %3, %2 : f64[(b + 1) // 2] %5 = reshape %1 shape=[1, b*d] : f64[1, b*d] %6 = reshape %1 "
      "shape=[b*d] : f64[b*d] %7 = dot %5, %6 : f64[1]\n"
      " %8 = mul %4, %7 : f64[(b + 1) // 2] return %8 }",
      "dim b = input 0 axis 0 hint 2\ndim d = input 0 axis 1 hint 3\n"
      "graph(%1: f64[b, d], %2: f64[d]) { %3 = mul %1, %2 : f64[b, d] %4 = window %3 axes=[1] window=[2, 2, 1] : "
      "f64[b, (d "
      "- 2) // 2 + 1, 2]\n %5 = exp %4 : f64[b, (d - 2) // 2 + 1, 2] return %5 }",
  };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    problem p = {.g = parsed(texts[i])};
    p.root = weighted(p.g, p.g->outputs[0], 0.7);
    differentiate(&p);
    rng r = {5};
    for (int b = 1; b <= 4; b++)
      for (int d = 2; d <= 4; d++) {
        p.symbols = calloc(p.g->dims.n + 1, sizeof *p.symbols);
        p.symbols[0] = b;
        p.symbols[1] = d;
        for (int k = 0; k < 128; k++) p.data[0][k] = rng_uniform(&r) - 0.4, p.data[1][k] = rng_uniform(&r);
        if (dim_facts_hold(&p.g->dims, p.symbols, NULL))
          check_differences(&p, true, texts[i]);
        else
          ck_assert_int_ne(b * 10 + d, 23);
        free(p.symbols);
      }
    graph_free(p.g);
  }
}
END_TEST

/* ---- random graphs ------------------------------------------------------------------------------------------------------------ */

START_TEST(random_graphs_against_differences) {
  int compared = 0, seconds = 0;
  for (uint64_t seed = 1; seed <= 400; seed++) {
    random_options o = {.floats_only = true, .nodes = 10};
    problem p = {.g = random_graph(seed, &o)};
    rng r = {seed};
    for (uint32_t k = 0; k < p.g->ninputs; k++)
      for (int i = 0; i < 128; i++) p.data[k][i] = 3 * rng_uniform(&r) - 1;
    uint32_t out = p.g->outputs[0];
    if (p.g->nodes[out].type.dtype != QN_f64) out = p.g->outputs[1];
    if (p.g->nodes[out].type.dtype == QN_f64) {
      p.root = weighted(p.g, out, 0.7);
      eval e;
      eval_init(&e, p.g, NULL);
      set_inputs(&e, &p);
      bool runs = eval_run(&e) && isfinite(e.v[p.root].f[0]);
      eval_free(&e);
      if (runs) {
        differentiate(&p);
        compared += check_differences(&p, false, "random");
        if (seed % 2 == 0 && p.grads[0]) { /* a gradient can be differentiated, whatever it is made of */
          p.root = weighted(p.g, p.grads[0], 0.2);
          differentiate(&p);
          seconds++;
        }
      }
    }
    graph_free(p.g);
  }
  ck_assert_int_gt(compared, 700);
  ck_assert_int_gt(seconds, 20);
}
END_TEST

/* ---- regions ---- */

static bool no_cotangents(void *ctx, const graph_region *region, const uint32_t *cotangents, uint32_t *grads,
                          op_refusal *why) {
  (void)ctx, (void)cotangents, (void)why;
  for (uint32_t k = 0; k < region->nargs; k++) grads[k] = 0;
  return true;
}

static bool no_copies(void *ctx, const graph_region *copy) {
  (void)ctx, (void)copy;
  return true;
}

/* Steps for each of `size` values from outside that one region reads, twice each: one made once more, or one with a rule. */
static double work_of_values(uint32_t size, bool again) {
  graph *g = graph_new(NULL);
  graph_type t = {.dtype = QN_f64, .rank = 1, .shape = {4}};
  uint32_t x = graph_input(g, t, 0), *outside = malloc(size * sizeof *outside), sum = x, grad, culprit;
  for (uint32_t i = 0; i < size; i++) outside[i] = graph_node_raw(g, OP_sin, &x, 1, NULL, t, 0);
  uint64_t work = 0;
  graph_region region = {
      .first = g->n, .args = outside, .nargs = again ? 0 : size, .outs = &sum, .nouts = 1, .again = again};
  for (uint32_t i = 0; i < 2 * size; i++)
    sum = graph_node_raw(g, OP_mul, (uint32_t[]){outside[i % size], i ? sum : outside[0]}, 2, NULL, t, 0);
  region.end = g->n;
  graph_rules rules = {.regions = &region, .n = 1, .apply = no_cotangents, .add = no_copies, .work = &work};
  op_refusal why;
  uint32_t root = graph_op(g, OP_sum, &sum, 1, &(op_attr){.axes = 1}, 0), seed = 0;
  ck_assert(graph_vjp(g, 1, &root, &seed, 1, &x, 1, &rules, &grad, &culprit, &why));
  ck_assert_int_eq(grad != 0, again);
  graph_free(g);
  free(outside);
  return (double)work / size;
}

/* Steps for each of `size` gradients that are taken one behind another in one graph, each through a region of its own. */
static double work_of_regions(uint32_t size) {
  graph *g = graph_new(NULL);
  graph_type t = {.dtype = QN_f64, .rank = 0};
  graph_region *regions = malloc(size * sizeof *regions);
  uint32_t *outs = malloc(size * sizeof *outs), grad, culprit;
  uint64_t work = 0;
  graph_rules rules = {.regions = regions, .apply = no_cotangents, .add = no_copies, .work = &work};
  op_refusal why;
  for (uint32_t i = 0; i < size; i++) {
    uint32_t x = graph_input(g, t, 0), seed = 0;
    regions[i] = (graph_region){.first = g->n, .outs = &outs[i], .nouts = 1, .again = true};
    outs[i] = graph_node_raw(g, OP_sin, &x, 1, NULL, t, 0);
    regions[i].end = g->n;
    rules.n = i + 1;
    ck_assert(graph_vjp(g, x, &outs[i], &seed, 1, &x, 1, &rules, &grad, &culprit, &why) && grad);
  }
  graph_free(g);
  free(regions);
  free(outs);
  return (double)work / size;
}

START_TEST(regions_are_linear) {
  for (int again = 0; again < 2; again++) {
    double few = work_of_values(1000, again), many = work_of_values(20000, again);
    ck_assert_msg(many <= 2.5 * few, "again %d: %.1f steps a value of 1,000, %.1f of 20,000", again, few, many);
  }
  double few = work_of_regions(100), many = work_of_regions(2000);
  ck_assert_msg(few > 0 && many <= 2.5 * few, "%.1f steps a region of 100, %.1f of 2,000", few, many);
}
END_TEST

int main(void) {
  Suite *s = suite_create("graph grad");
  struct {
    TCase *t;
    const TTest *f;
  } tests[] = {
      {tcase_create("every_row_against_differences"), every_row_against_differences},
      {tcase_create("every_differentiable_row_is_tested"), every_differentiable_row_is_tested},
      {tcase_create("ties_and_kinks"), ties_and_kinks},
      {tcase_create("strong_zeros"), strong_zeros},
      {tcase_create("constants_integers_and_stops_end_silently"), constants_integers_and_stops_end_silently},
      {tcase_create("refusals_name_the_node"), refusals_name_the_node},
      {tcase_create("weak_scalars_have_weak_gradients"), weak_scalars_have_weak_gradients},
      {tcase_create("gradients_hold_for_other_sizes"), gradients_hold_for_other_sizes},
      {tcase_create("random_graphs_against_differences"), random_graphs_against_differences},
      {tcase_create("regions_are_linear"), regions_are_linear},
  };
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
    tcase_set_timeout(tests[i].t, 240);
    tcase_add_test(tests[i].t, tests[i].f);
    suite_add_tcase(s, tests[i].t);
  }
  SRunner *runner = srunner_create(s);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
