/* Plans against their graphs: random graphs give the same bits, and the same error at the same place, fused, unfused, and node by
 * node with eager ops. */
#include "jit/run/eager.h"
#include "jit/cpu/cpu.h"
#include "jit/run/plan_run.h"
#include "jit/kernel/plan.h"
#include "lang/error.h"
#include "lang/format.h"
#include "tests/unit/graph_random.h"
#include "tests/unit/lang.h"
#include "tests/unit/seeds.h"

enum { INPUTS = 64, OUTPUTS = 8 };

typedef struct outcome {
  bool failed;
  char error[400];
  qn_value values[OUTPUTS];
  uint32_t n;
} outcome;

typedef struct inputs {
  qn_array *arrays[INPUTS]; /* NULL where weak */
  qn_value values[INPUTS];
  qk_scalar weak[INPUTS];
} inputs;

static void outcome_free(qn_vm *vm, outcome *o) {
  for (uint32_t i = 0; i < o->n && !o->failed; i++) value_release(vm, o->values[i]);
}

static void note_error(qn_vm *vm, outcome *o, bool with_place) {
  const qn_error_object *e = vm->error;
  o->failed = true;
  ck_assert(e != NULL);
  snprintf(o->error, sizeof o->error, "%d %.*s at %u", (int)e->id, (int)e->message->len, e->message->text,
           with_place ? e->at.start : 0);
  error_clear(vm);
}

static qn_value weak_value(const graph_type *t, const qk_scalar *s) {
  return t->dtype == QN_f64 ? value_float(s->f) : t->dtype == QN_bool ? value_bool(s->i != 0) : value_int(s->i);
}

static void make_inputs(qn_vm *vm, const graph *g, const int64_t *symbols, rng *r, inputs *in) {
  uint32_t nweak = 0;
  ck_assert_uint_le(g->ninputs, INPUTS);
  for (uint32_t i = 0; i < g->ninputs; i++) {
    const graph_type *t = &g->nodes[g->inputs[i]].type;
    qn_dtype d = (qn_dtype)t->dtype;
    in->arrays[i] = NULL;
    if (t->weak) {
      qk_scalar *s = &in->weak[nweak++];
      double x = random_datum(r, d, true);
      if (d == QN_f64)
        s->f = x;
      else
        s->i = (int64_t)x;
      in->values[i] = weak_value(t, s);
      continue;
    }
    int64_t shape[ARRAY_MAX_RANK];
    for (int a = 0; a < t->rank; a++) shape[a] = dim_eval(&g->dims, t->shape[a], symbols);
    qn_array *x = array_new(vm, d, t->rank, shape);
    ck_assert_msg(x != NULL, "no array: %s", vm->error ? vm->error->message->text : "");
    for (int64_t k = 0; k < x->size; k++) {
      double v = random_datum(r, d, true);
      dtype_store(d, array_data(x) + (size_t)k * dtype_size(d),
                  dtype_is_float(d) ? value_float(v)
                  : d == QN_bool    ? value_bool(v != 0)
                                    : value_int((int64_t)v));
    }
    in->arrays[i] = x;
    in->values[i] = value_obj(TAG_ARRAY, x);
  }
}

/* False if the plan is not made for these sizes. */
static bool run_plan(qn_vm *vm, const graph *from, const int64_t *tune, const int64_t *symbols, const inputs *in,
                     outcome *o) {
  char why[256] = "";
  graph *g = graph_copy(from);
  ck_assert(g != NULL);
  plan *p = plan_make(g, TARGET_CPU, tune, NULL, why, sizeof why);
  if (!p) {
    text_buf t = {0};
    graph_print(from, &t);
    ck_abort_msg("no plan: %s\n%.*s", why, (int)t.len, t.text);
  }
  *o = (outcome){.n = p->noutputs};
  ck_assert_uint_le(p->noutputs, OUTPUTS);
  bool fits = dim_facts_hold(&p->graph->dims, symbols, NULL);
  device_plan *there = NULL;
  if (fits && !plan_run(vm, p, &there, in->arrays, in->weak, NULL, o->values)) note_error(vm, o, true);
  plan_forget(vm, &there);
  for (uint32_t k = 0; k < p->nkernels; k++)
    if (p->kernels[k].host_code) bvm_code_free(p->kernels[k].host_code);
  plan_free(p);
  return fits;
}

/* Attributes with numbers for sizes. */
static op_attr known_attr(const graph *g, const graph_node *n, const int64_t *symbols) {
  op_attr a = graph_attr(n);
  for (int k = 0; k < a.n; k++)
    if (op_attr_is_dim((op_id)n->op, k)) a.d[k] = dim_eval(&g->dims, a.d[k], symbols);
  return a;
}

static void run_eager(qn_vm *vm, const graph *g, const int64_t *sizes, const inputs *in, outcome *o) {
  qn_value *v = calloc(g->n, sizeof *v);
  int64_t *symbols = calloc(g->dims.n + 1, sizeof *symbols);
  uint32_t done = 1;
  memcpy(symbols, sizes, g->dims.n * sizeof *symbols);
  *o = (outcome){.n = g->noutputs};
  for (; done < g->n && !o->failed; done++) {
    const graph_node *n = &g->nodes[done];
    if (n->kind == NODE_INPUT) {
      v[done] = value_retain(in->values[n->payload.input]);
    } else if (n->kind == NODE_CONST && n->type.weak) {
      qk_scalar s = {0};
      if (n->type.dtype == QN_bool)
        s.i = *(const uint8_t *)n->payload.data;
      else
        memcpy(&s, n->payload.data, sizeof s);
      v[done] = weak_value(&n->type, &s);
    } else if (n->kind == NODE_CONST) {
      v[done] = array_value(vm, (qn_dtype)n->type.dtype, n->type.rank, n->type.shape, n->payload.data);
    } else {
      qn_value operands[8];
      ck_assert_int_le(n->nin, 8);
      for (int k = 0; k < n->nin; k++) operands[k] = v[n->in[k]];
      op_attr attr = known_attr(g, n, symbols);
      v[done] = eager_apply(vm, (op_id)n->op, operands, n->nin, &attr);
      if (value_is_error(v[done])) {
        if (!vm->error->at.source) vm->error->at = n->site ? g->sites[n->site].at : SPAN_NONE;
        note_error(vm, o, true);
        break;
      }
      for (uint32_t i = 0; i < g->dims.n; i++)
        if (g->dims.exprs[i].op == DIM_SYMBOL && g->dims.exprs[i].source == DIM_FROM_NODE &&
            g->dims.exprs[i].ref == done)
          symbols[i] = value_array(v[done])->shape[g->dims.exprs[i].axis];
    }
  }
  for (uint32_t i = 0; i < g->noutputs && !o->failed; i++) {
    qn_value x = v[g->outputs[i]];
    if (value_is(x, TAG_ARRAY)) {
      o->values[i] = value_obj(TAG_ARRAY, array_contiguous(vm, value_array(x)));
    } else {
      o->values[i] = value_retain(x);
    }
  }
  for (uint32_t i = 1; i < done; i++) value_release(vm, v[i]);
  free(v);
  free(symbols);
}

static bool same_number(qn_dtype d, const char *x, const char *y) {
  if (memcmp(x, y, dtype_size(d)) == 0) return true;
  if (!dtype_is_float(d)) return false;
  qn_value a = dtype_load(d, x), b = dtype_load(d, y);
  return a.u.f != a.u.f && b.u.f != b.u.f;
}

static bool same_value(qn_value x, qn_value y) {
  if (!value_is(x, TAG_ARRAY)) {
    if (value_is(x, TAG_FLOAT)) return value_is(y, TAG_FLOAT) && same_number(QN_f64, (char *)&x.u.f, (char *)&y.u.f);
    return !value_is(y, TAG_ARRAY) && !value_is(y, TAG_FLOAT) && x.u.i == y.u.i;
  }
  if (!value_is(y, TAG_ARRAY)) return false;
  const qn_array *a = value_array(x), *b = value_array(y);
  if (a->dtype != b->dtype || !shape_equal(a, b)) return false;
  size_t size = dtype_size((qn_dtype)a->dtype);
  for (int64_t k = 0; k < a->size; k++)
    if (!same_number((qn_dtype)a->dtype, array_data(a) + (size_t)k * size, array_data(b) + (size_t)k * size))
      return false;
  return true;
}

static void check_same(qn_vm *vm, const graph *g, uint64_t seed, const char *how, const outcome *x, const outcome *y) {
  bool same = x->failed == y->failed;
  uint32_t at = 0;
  if (same && x->failed) same = strcmp(x->error, y->error) == 0;
  for (; same && !x->failed && at < x->n; at++) same = same_value(x->values[at], y->values[at]);
  if (same) return;
  text_buf t = {0};
  if (!x->failed && !y->failed) {
    text_addf(&t, "result %u\n", at - 1);
    bool ok = format_repr(vm, x->values[at - 1], &t);
    text_adds(&t, "\n");
    ok = ok && format_repr(vm, y->values[at - 1], &t);
    text_adds(&t, ok ? "\n" : "?\n");
  }
  graph_print(g, &t);
  ck_abort_msg("seed %llu: %s differs: %s | %s\n%.*s", (unsigned long long)seed, how, x->failed ? x->error : "",
               y->failed ? y->error : "", (int)t.len, t.text);
}

static bool from_data(const dim_table *t, qn_dim d) {
  if (d >= 0) return false;
  const dim_expr *e = &t->exprs[~d];
  return e->op == DIM_SYMBOL ? e->source == DIM_FROM_NODE : from_data(t, e->a) || from_data(t, e->b);
}

/* Does the graph rely on what a size found by a step was when it was recorded? Then the random data may not do. */
static bool relies_on_data(const graph *g) {
  for (uint32_t i = 0; i < g->dims.nfacts; i++)
    if (from_data(&g->dims, g->dims.facts[i].a) || from_data(&g->dims, g->dims.facts[i].b)) return true;
  return false;
}

/* A graph's constants fit where they are fitted, or it would not have been recorded. */
static bool constants_fit(qn_vm *vm, const graph *g) {
  bool fit = true;
  for (uint32_t n = 1; n < g->n; n++) {
    const graph_node *node = &g->nodes[n];
    qn_value v;
    if (node->kind == NODE_OP && node->op == OP_fit && graph_const_value(g, node->in[0], &v))
      fit = fit && eager_check_fit(vm, v, (qn_dtype)node->attr->dtype);
  }
  error_clear(vm);
  return fit;
}

static int64_t *hints(const graph *g) {
  int64_t *symbols = calloc(g->dims.n + 1, sizeof *symbols);
  for (uint32_t i = 0; i < g->dims.n; i++) symbols[i] = g->dims.exprs[i].hint;
  return symbols;
}

static bool is_symbol(const dim_table *t, qn_dim d) { return d < 0 && t->exprs[~d].op == DIM_SYMBOL; }

/* Other sizes for which the recording is valid; false if none was found. */
static bool other_sizes(const graph *g, rng *r, int64_t *symbols) {
  static const int64_t sizes[] = {1, 2, 3, 4, 5, 8, 17, 40, 66};
  const dim_table *t = &g->dims;
  for (int tries = 0; tries < 60; tries++) {
    for (uint32_t i = 0; i < t->n; i++) symbols[i] = rng_below(r, 4) == 0 ? t->exprs[i].hint : sizes[rng_below(r, 9)];
    for (int round = 0; round < 6; round++)
      for (uint32_t i = 0; i < t->nfacts; i++) {
        const dim_fact *f = &t->facts[i];
        if (f->relation != DIM_EQ) continue;
        if (is_symbol(t, f->a)) symbols[~f->a] = dim_eval(t, f->b, symbols);
        if (is_symbol(t, f->b)) symbols[~f->b] = dim_eval(t, f->a, symbols);
      }
    bool small = true;
    for (uint32_t i = 0; i < t->n; i++)
      small = small && (t->exprs[i].op != DIM_SYMBOL || (symbols[i] >= 0 && symbols[i] <= 100));
    for (uint32_t n = 1; n < g->n; n++) {
      int64_t elements = 1;
      for (int a = 0; a < g->nodes[n].type.rank && small; a++) {
        int64_t size = dim_eval(t, g->nodes[n].type.shape[a], symbols);
        small = size >= 0 && size <= 60000 && (elements *= size) <= 60000;
      }
    }
    if (small && dim_facts_hold(t, symbols, NULL)) return true;
  }
  return false;
}

static bool has_sizes_from_data(const graph *g) {
  for (uint32_t i = 0; i < g->dims.n; i++)
    if (g->dims.exprs[i].op == DIM_SYMBOL && g->dims.exprs[i].source == DIM_FROM_NODE) return true;
  return false;
}

/* Plans made for the recorded sizes run at others, and give what node by node gives there. */
static void compare_sizes(seeds which) {
  qn_vm *vm = vm_make();
  if (!cpu_open(vm)) ck_abort_msg("no memory");
  int runs = 0;
  for (uint64_t seed = which.first; seed < which.end; seed++) {
    random_options o = {.symbolic = true, .nodes = 1 + (int)(seed % 40)};
    graph *g = random_graph(seed, &o), *s = graph_simplify(g, NULL);
    ck_assert(s != NULL);
    graph_free(g);
    rng r = {seed};
    int64_t *symbols = hints(s);
    for (int round = 0; round < 3 && !has_sizes_from_data(s) && constants_fit(vm, s); round++) {
      if (!other_sizes(s, &r, symbols)) break;
      inputs in;
      outcome a, c;
      make_inputs(vm, s, symbols, &r, &in);
      if (run_plan(vm, s, vm->tune, symbols, &in, &a)) {
        runs++;
        run_eager(vm, s, symbols, &in, &c);
        check_same(vm, s, seed, "running node by node at other sizes", &a, &c);
        outcome_free(vm, &a);
        outcome_free(vm, &c);
      }
      for (uint32_t i = 0; i < s->ninputs; i++)
        if (in.arrays[i]) value_release(vm, in.values[i]);
    }
    free(symbols);
    graph_free(s);
  }
  if (which.own) ck_assert_int_gt(runs, (int)(which.end - which.first) / 2);
  devices_close(vm);
  vm_close(vm);
}

static void compare(seeds which) {
  qn_vm *vm = vm_make();
  if (!cpu_open(vm)) ck_abort_msg("no memory");
  int64_t fused[TUNABLE_COUNT], unfused[TUNABLE_COUNT];
  memcpy(fused, vm->tune, sizeof fused);
  memcpy(unfused, vm->tune, sizeof unfused);
  unfused[TUNE_fuse_enabled] = 0;
  for (uint64_t seed = which.first; seed < which.end; seed++) {
    random_options o = {.nodes = 1 + (int)(seed % 40)};
    graph *g = random_graph(seed, &o), *s = graph_simplify(g, NULL);
    ck_assert(s != NULL);
    graph_free(g);
    if (relies_on_data(s) || !constants_fit(vm, s)) {
      graph_free(s);
      continue;
    }
    rng r = {seed};
    inputs in;
    outcome a, b, c;
    int64_t *symbols = hints(s);
    make_inputs(vm, s, symbols, &r, &in);
    ck_assert(run_plan(vm, s, fused, symbols, &in, &a));
    ck_assert(run_plan(vm, s, unfused, symbols, &in, &b));
    check_same(vm, s, seed, "the plan without fusion", &a, &b);
    run_eager(vm, s, symbols, &in, &c);
    free(symbols);
    check_same(vm, s, seed, "running node by node", &a, &c);
    outcome_free(vm, &a);
    outcome_free(vm, &b);
    outcome_free(vm, &c);
    for (uint32_t i = 0; i < s->ninputs; i++)
      if (in.arrays[i]) value_release(vm, in.values[i]);
    graph_free(s);
  }
  devices_close(vm);
  vm_close(vm);
}

START_TEST(plans_give_the_same_bits) { compare(seeds_of(0, 400)); }
END_TEST

START_TEST(symbolic_plans_run_at_other_sizes) { compare_sizes(seeds_of(0, 1500)); }
END_TEST

int main(void) {
  Suite *s = suite_create("plan run");
  struct {
    TCase *t;
    const TTest *f;
  } cases[] = {
      {tcase_create("plans_give_the_same_bits"), plans_give_the_same_bits},
      {tcase_create("symbolic_plans_run_at_other_sizes"), symbolic_plans_run_at_other_sizes},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tcase_set_timeout(cases[i].t, 240);
    tcase_add_test(cases[i].t, cases[i].f);
    suite_add_tcase(s, cases[i].t);
  }
  SRunner *runner = srunner_create(s);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
