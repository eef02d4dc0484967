/* Nodes with regions in plans: graphs as text, run on inputs, compared with what the same loop gives in C. */
#include <math.h>

#include "jit/cpu/cpu.h"
#include "jit/kernel/plan.h"
#include "jit/run/host.h"
#include "jit/run/plan_run.h"
#include "lang/error.h"
#include "tests/unit/graph_case.h"
#include "tests/unit/lang.h"

typedef struct made {
  plan *p;
  bool ok;
  qn_value out[4];
} made;

static void made_free(qn_vm *vm, made *m) {
  for (uint32_t i = 0; i < m->p->noutputs && m->ok; i++) value_release(vm, m->out[i]);
  for (uint32_t k = 0; k < m->p->nkernels; k++)
    if (m->p->kernels[k].host_code) host()->forget(m->p->kernels[k].host_code);
  plan_free(m->p);
}

static made run_plan(qn_vm *vm, graph *g, bool sunk, qn_array *const *arrays, const qk_scalar *weak) {
  char why[256] = "";
  int64_t tune[TUNABLE_COUNT];
  memcpy(tune, vm->tune, sizeof tune);
  tune[TUNE_fuse_loops] = sunk;
  made m = {.p = plan_make(g, TARGET_CPU, tune, NULL, why, sizeof why)};
  ck_assert_msg(m.p != NULL, "%s", why);
  device_plan *there = NULL;
  m.ok = plan_run(vm, m.p, &there, arrays, weak, NULL, m.out);
  plan_forget(vm, &there);
  return m;
}

/* Runs the graph with loops as kernels, and compares with the run of their turns. */
static void check_sunk(qn_vm *vm, const graph *g, const made *turns, qn_array *const *arrays, const qk_scalar *weak) {
  qn_error_object *error = turns->ok ? NULL : error_take(vm);
  made m = run_plan(vm, graph_copy(g), true, arrays, weak);
  ck_assert_int_eq(m.ok, turns->ok);
  for (uint32_t i = 0; i < m.p->noutputs && m.ok; i++) {
    qn_value a = m.out[i], b = turns->out[i];
    ck_assert_int_eq(value_tag_of(a), value_tag_of(b));
    if (!value_is(a, TAG_ARRAY)) {
      ck_assert_int_eq(a.u.i, b.u.i);
      continue;
    }
    qn_array *x = value_array(a), *y = value_array(b);
    ck_assert_int_eq(x->size, y->size);
    ck_assert_mem_eq(array_data(x), array_data(y), (size_t)x->size * dtype_size((qn_dtype)x->dtype));
  }
  if (error) {
    qn_error_object *other = error_take(vm);
    ck_assert_int_eq(other->id, error->id);
    error_free(vm, other);
    error_put_back(vm, error);
  }
  made_free(vm, &m);
}

/* The plan of a graph (taken over), simplified, run on arrays and host numbers, turn by turn. (Loops as kernels give the same.) */
static made run_graph(qn_vm *vm, graph *g, qn_array *const *arrays, const qk_scalar *weak) {
  char why[256] = "";
  ck_assert_msg(graph_verify(g, why, sizeof why), "%s", why);
  graph *s = graph_simplify(g, NULL);
  ck_assert(s != NULL);
  ck_assert_msg(graph_verify(s, why, sizeof why), "simplified: %s", why);
  graph_free(g);
  made m = run_plan(vm, graph_copy(s), false, arrays, weak);
  check_sunk(vm, s, &m, arrays, weak);
  graph_free(s);
  return m;
}

static made run_text(qn_vm *vm, const char *text, qn_array *const *arrays, const qk_scalar *weak) {
  char why[256] = "";
  graph *g = graph_parse(text, why, sizeof why);
  ck_assert_msg(g != NULL, "%s", why);
  return run_graph(vm, g, arrays, weak);
}

static qn_array *floats(qn_vm *vm, int64_t n, const float *x) {
  qn_array *a = array_new(vm, QN_f32, 1, &n);
  ck_assert(a != NULL);
  memcpy(array_data(a), x, (size_t)n * sizeof *x);
  return a;
}

static void check_floats(qn_value v, int64_t n, const float *x) {
  ck_assert(value_is(v, TAG_ARRAY));
  ck_assert_int_eq(value_array(v)->size, n);
  ck_assert_mem_eq(array_data(value_array(v)), x, (size_t)n * sizeof *x);
}

static qn_vm *begin(void) {
  qn_vm *vm = vm_make();
  if (!cpu_open(vm)) ck_abort_msg("no memory");
  return vm;
}
static void end(qn_vm *vm) {
  cpu_close(vm);
  vm_close(vm);
}

START_TEST(a_branch_takes_the_arm_that_its_condition_says) {
  qn_vm *vm = begin();
  const char *text = "graph(%1: weak bool, %2: f32[3], %3: weak f64) {\n"
                     "  %4 = if %1, %2, %3 : bool[] {\n"
                     "    graph(%1: f32[3], %2: weak f64) {\n"
                     "      %3 = neg %1 : f32[3]\n"
                     "      return %3, %1, %2\n"
                     "    }\n"
                     "  } {\n"
                     "    graph(%1: f32[3], %2: weak f64) {\n"
                     "      %3 = add %2, %2 : weak f64\n"
                     "      return %1, %1, %3\n"
                     "    }\n"
                     "  }\n"
                     "  %5 = proj %4 number=0 : f32[3]\n"
                     "  %6 = proj %4 number=2 : weak f64\n"
                     "  %7 = abs %5 : f32[3]\n"
                     "  return %7, %5, %6\n"
                     "}\n";
  const float x[] = {1, -2, 3}, neg[] = {-1, 2, -3}, abs[] = {1, 2, 3};
  qn_array *a = floats(vm, 3, x);
  for (int yes = 0; yes < 2; yes++) {
    made m = run_text(vm, text, (qn_array *[]){NULL, a, NULL}, (qk_scalar[]){{.i = yes}, {.f = 1.5}});
    ck_assert(m.ok);
    check_floats(m.out[0], 3, abs);
    check_floats(m.out[1], 3, yes ? neg : x);
    ck_assert(m.out[2].u.f == (yes ? 1.5 : 3.0));
    made_free(vm, &m);
  }
  value_release(vm, value_obj(TAG_ARRAY, a));
  end(vm);
}
END_TEST

START_TEST(a_loop_of_host_numbers_runs_until_its_condition_fails) {
  qn_vm *vm = begin();
  /* the root of a by Newton's iteration, and how many turns it took */
  const char *text = "graph(%1: weak f64, %2: weak f64) {\n"
                     "  %3 = const 0 : weak i64\n"
                     "  %4 = loop %2, %3, %1 : bool[] {\n"
                     "    graph(%1: weak f64, %2: weak i64, %3: weak f64) {\n"
                     "      %4 = mul %1, %1 : weak f64\n"
                     "      %5 = sub %4, %3 : weak f64\n"
                     "      %6 = abs %5 : weak f64\n"
                     "      %7 = const 1e-10 : weak f64\n"
                     "      %8 = gt %6, %7 : weak bool\n"
                     "      return %8\n"
                     "    }\n"
                     "  } {\n"
                     "    graph(%1: weak f64, %2: weak i64, %3: weak f64) {\n"
                     "      %4 = div %3, %1 : weak f64\n"
                     "      %5 = add %1, %4 : weak f64\n"
                     "      %6 = const 2.0 : weak f64\n"
                     "      %7 = div %5, %6 : weak f64\n"
                     "      %8 = const 1 : weak i64\n"
                     "      %9 = add %2, %8 : weak i64\n"
                     "      return %7, %9\n"
                     "    }\n"
                     "  }\n"
                     "  %5 = proj %4 number=0 : weak f64\n"
                     "  %6 = proj %4 number=1 : weak i64\n"
                     "  return %5, %6\n"
                     "}\n";
  made m = run_text(vm, text, (qn_array *[]){NULL, NULL}, (qk_scalar[]){{.f = 2}, {.f = 1}});
  ck_assert(m.ok);
  double x = 1;
  int64_t turns = 0;
  while (fabs(x * x - 2) > 1e-10) x = (x + 2 / x) / 2, turns++;
  ck_assert(m.out[0].u.f == x);
  ck_assert_int_eq(m.out[1].u.i, turns);
  made_free(vm, &m);
  end(vm);
}
END_TEST

START_TEST(carries_may_change_places_and_turns_may_be_none) {
  qn_vm *vm = begin();
  /* a, b = b, a + b, n times; the loop is left by an array of rank 0 */
  const char *text = "graph(%1: f32[2], %2: f32[2], %3: i32[]) {\n"
                     "  %4 = loop %1, %2, %3 : bool[] {\n"
                     "    graph(%1: f32[2], %2: f32[2], %3: i32[]) {\n"
                     "      %4 = const 0 : i32[]\n"
                     "      %5 = gt %3, %4 : bool[]\n"
                     "      return %5\n"
                     "    }\n"
                     "  } {\n"
                     "    graph(%1: f32[2], %2: f32[2], %3: i32[]) {\n"
                     "      %4 = add %1, %2 : f32[2]\n"
                     "      %5 = const 1 : i32[]\n"
                     "      %6 = sub %3, %5 : i32[]\n"
                     "      return %2, %4, %6\n"
                     "    }\n"
                     "  }\n"
                     "  %5 = proj %4 number=0 : f32[2]\n"
                     "  %6 = proj %4 number=1 : f32[2]\n"
                     "  return %5, %6\n"
                     "}\n";
  for (int32_t n = 0; n < 6; n++) {
    float a[] = {1, 3}, b[] = {2, 5};
    qn_array *in[] = {floats(vm, 2, a), floats(vm, 2, b), array_from_scalar(vm, QN_i32, value_int(n))};
    made m = run_text(vm, text, in, NULL);
    ck_assert(m.ok);
    for (int32_t i = 0; i < n; i++)
      for (int k = 0; k < 2; k++) {
        float sum = a[k] + b[k];
        a[k] = b[k];
        b[k] = sum;
      }
    check_floats(m.out[0], 2, a);
    check_floats(m.out[1], 2, b);
    made_free(vm, &m);
    for (int i = 0; i < 3; i++) value_release(vm, value_obj(TAG_ARRAY, in[i]));
  }
  end(vm);
}
END_TEST

START_TEST(regions_nest_and_sizes_may_be_symbolic) {
  qn_vm *vm = begin();
  /* for i in 0..k { x = if i % 2 == 0 { x + sum(x) } else { x * 2 } } */
  const char *text = "dim n = input 0 axis 0 hint 3\n"
                     "graph(%1: f32[n], %2: weak i64) {\n"
                     "  %3 = const 0 : weak i64\n"
                     "  %4 = loop %1, %3, %2 : bool[] {\n"
                     "    dim n = input 0 axis 0 hint 3\n"
                     "    graph(%1: f32[n], %2: weak i64, %3: weak i64) {\n"
                     "      %4 = lt %2, %3 : weak bool\n"
                     "      return %4\n"
                     "    }\n"
                     "  } {\n"
                     "    dim n = input 0 axis 0 hint 3\n"
                     "    graph(%1: f32[n], %2: weak i64, %3: weak i64) {\n"
                     "      %4 = const 2 : weak i64\n"
                     "      %5 = mod %2, %4 : weak i64\n"
                     "      %6 = const 0 : weak i64\n"
                     "      %7 = eq %5, %6 : weak bool\n"
                     "      %8 = if %7, %1 : bool[] {\n"
                     "        dim n = input 0 axis 0 hint 3\n"
                     "        graph(%1: f32[n]) {\n"
                     "          %2 = sum %1 axes=[0] : f32[]\n"
                     "          %3 = add %1, %2 : f32[n]\n"
                     "          return %3\n"
                     "        }\n"
                     "      } {\n"
                     "        dim n = input 0 axis 0 hint 3\n"
                     "        graph(%1: f32[n]) {\n"
                     "          %2 = add %1, %1 : f32[n]\n"
                     "          return %2\n"
                     "        }\n"
                     "      }\n"
                     "      %9 = proj %8 number=0 : f32[n]\n"
                     "      %10 = const 1 : weak i64\n"
                     "      %11 = add %2, %10 : weak i64\n"
                     "      return %9, %11\n"
                     "    }\n"
                     "  }\n"
                     "  %5 = proj %4 number=0 : f32[n]\n"
                     "  return %5\n"
                     "}\n";
  for (int n = 1; n < 5; n++) {
    float x[] = {1, 2, 4, 8};
    qn_array *a = floats(vm, n, x);
    made m = run_text(vm, text, (qn_array *[]){a, NULL}, (qk_scalar[]){{.i = 5}});
    ck_assert(m.ok);
    for (int i = 0; i < 5; i++) {
      float sum = 0;
      for (int k = 0; k < n; k++) sum += x[k]; /* exact here, so in any order */
      for (int k = 0; k < n; k++) x[k] = i % 2 == 0 ? x[k] + sum : x[k] * 2;
    }
    check_floats(m.out[0], n, x);
    made_free(vm, &m);
    value_release(vm, value_obj(TAG_ARRAY, a));
  }
  end(vm);
}
END_TEST

START_TEST(a_check_in_a_body_fails_at_its_place) {
  qn_vm *vm = begin();
  const char *text = "site 1 = source 1 3..9 in \"f\"\n"
                     "graph(%1: weak i64) {\n"
                     "  %2 = loop %1 : bool[] {\n"
                     "    graph(%1: weak i64) {\n"
                     "      %2 = const true : weak bool\n"
                     "      return %2\n"
                     "    }\n"
                     "  } {\n"
                     "    site 1 = source 1 5..8 in \"f\"\n"
                     "    graph(%1: weak i64) {\n"
                     "      %2 = const 1 : weak i64\n"
                     "      %3 = sub %1, %2 : weak i64\n"
                     "      %4 = floordiv %2, %3 : weak i64 @1\n"
                     "      return %3\n"
                     "    }\n"
                     "  }\n"
                     "  %3 = const 7 : weak i64\n"
                     "  return %3\n"
                     "}\n";
  made m = run_text(vm, text, (qn_array *[]){NULL}, (qk_scalar[]){{.i = 4}});
  ck_assert(!m.ok);
  ck_assert_int_eq(vm->error->id, E_div_zero);
  ck_assert_uint_eq(vm->error->at.start, 5);
  error_clear(vm);
  made_free(vm, &m);
  end(vm);
}
END_TEST

/* The graph with the gradients of output 0 by these inputs as its only outputs; taken over. */
static graph *differentiated(graph *g, const uint32_t *inputs, int n) {
  uint32_t wrt[4] = {0}, grads[4] = {0}, culprit;
  op_refusal why = {0};
  for (int i = 0; i < n; i++) wrt[i] = g->inputs[inputs[i]];
  ck_assert_msg(graph_grad(g, 1, g->outputs[0], 0, wrt, n, grads, &culprit, &why), "%s", why.text);
  g->noutputs = 0;
  for (int i = 0; i < n; i++) {
    ck_assert_uint_ne(grads[i], 0);
    ck_assert(graph_output(g, grads[i]));
  }
  return g;
}

START_TEST(the_gradient_of_a_branch_is_a_branch) {
  qn_vm *vm = begin();
  char why[256] = "";
  /* sum(if p { x * y } else { if y[0] > 1 { 3 * x } else { x } }) */
  const char *text = "graph(%1: weak bool, %2: f32[2], %3: f32[2]) {\n"
                     "  %4 = if %1, %2, %3 : bool[] {\n"
                     "    graph(%1: f32[2], %2: f32[2]) {\n"
                     "      %3 = mul %1, %2 : f32[2]\n"
                     "      return %3\n"
                     "    }\n"
                     "  } {\n"
                     "    graph(%1: f32[2], %2: f32[2]) {\n"
                     "      %3 = max %2 axes=[0] : f32[]\n"
                     "      %4 = const 1.0 : f32[]\n"
                     "      %5 = gt %3, %4 : bool[]\n"
                     "      %6 = if %5, %1 : bool[] {\n"
                     "        graph(%1: f32[2]) {\n"
                     "          %2 = const 3.0 : f32[]\n"
                     "          %3 = mul %1, %2 : f32[2]\n"
                     "          return %3\n"
                     "        }\n"
                     "      } {\n"
                     "        graph(%1: f32[2]) {\n"
                     "          return %1\n"
                     "        }\n"
                     "      }\n"
                     "      %7 = proj %6 number=0 : f32[2]\n"
                     "      return %7\n"
                     "    }\n"
                     "  }\n"
                     "  %5 = proj %4 number=0 : f32[2]\n"
                     "  %6 = sum %5 axes=[0] : f32[]\n"
                     "  return %6\n"
                     "}\n";
  const float x[] = {5, 7};
  const float ys[2][2] = {{2, 3}, {0.5f, 1}};
  for (int round = 0; round < 4; round++) {
    bool p = round & 1;
    const float *y = ys[round / 2];
    graph *g = graph_parse(text, why, sizeof why);
    ck_assert_msg(g != NULL, "%s", why);
    qn_array *in[] = {NULL, floats(vm, 2, x), floats(vm, 2, y)};
    made m = run_graph(vm, differentiated(g, (uint32_t[]){1, 2}, 2), in, (qk_scalar[]){{.i = p}});
    ck_assert(m.ok);
    float by = y[1] > 1 ? 3 : 1;
    check_floats(m.out[0], 2, p ? y : (float[]){by, by});
    check_floats(m.out[1], 2, p ? x : (float[]){0, 0});
    made_free(vm, &m);
    for (int i = 1; i < 3; i++) value_release(vm, value_obj(TAG_ARRAY, in[i]));
  }
  end(vm);
}
END_TEST

/* x = (x + a / x) / 2, n times, and the derivative of the last x by a and by the first, forward in C. */
static void babylon(double a, int n, double *x, double *by_a, double *by_x) {
  double y = *x;
  *by_a = 0;
  *by_x = 1;
  for (int i = 0; i < n; i++) {
    *by_a = (*by_a + (1 - a / y * *by_a) / y) / 2;
    *by_x = (*by_x - a / y * *by_x / y) / 2;
    y = (y + a / y) / 2;
  }
  *x = y;
}

START_TEST(the_gradient_of_a_loop_goes_back_through_its_turns) {
  qn_vm *vm = begin();
  char why[256] = "", text[2048];
  static const int slots[] = {0, 2, 4, 8};
  static const int turns[] = {0, 1, 2, 3, 5, 8, 17, 40};
  for (int s = 0; s < 4; s++) {
    snprintf(text, sizeof text,
             "graph(%%1: weak f64, %%2: weak f64, %%3: weak i64) {\n"
             "  %%4 = const 0 : weak i64\n"
             "  %%5 = loop %%1, %%4, %%2, %%3 carries=2 slots=%d : bool[] {\n"
             "    graph(%%1: weak f64, %%2: weak i64, %%3: weak f64, %%4: weak i64) {\n"
             "      %%5 = lt %%2, %%4 : weak bool\n"
             "      return %%5\n"
             "    }\n"
             "  } {\n"
             "    graph(%%1: weak f64, %%2: weak i64, %%3: weak f64, %%4: weak i64) {\n"
             "      %%5 = div %%3, %%1 : weak f64\n"
             "      %%6 = add %%1, %%5 : weak f64\n"
             "      %%7 = const 2.0 : weak f64\n"
             "      %%8 = div %%6, %%7 : weak f64\n"
             "      %%9 = const 1 : weak i64\n"
             "      %%10 = add %%2, %%9 : weak i64\n"
             "      return %%8, %%10\n"
             "    }\n"
             "  }\n"
             "  %%6 = proj %%5 number=0 : weak f64\n"
             "  return %%6\n"
             "}\n",
             slots[s]);
    for (int i = 0; i < 8; i++) {
      graph *g = graph_parse(text, why, sizeof why);
      ck_assert_msg(g != NULL, "%s", why);
      made m = run_graph(vm, differentiated(g, (uint32_t[]){0, 1}, 2), (qn_array *[]){NULL, NULL, NULL},
                         (qk_scalar[]){{.f = 1.5}, {.f = 3}, {.i = turns[i]}});
      ck_assert_msg(m.ok, "%s", vm->error ? vm->error->message->text : "");
      double x = 1.5, by_a, by_x;
      babylon(3, turns[i], &x, &by_a, &by_x);
      ck_assert_double_eq_tol(m.out[0].u.f, by_x, 1e-15);
      ck_assert_double_eq_tol(m.out[1].u.f, by_a, 1e-15);
      made_free(vm, &m);
      /* and the second derivative by the first x, against a difference of the first */
      g = differentiated(differentiated(graph_parse(text, why, sizeof why), (uint32_t[]){0}, 1), (uint32_t[]){0}, 1);
      m = run_graph(vm, g, (qn_array *[]){NULL, NULL, NULL}, (qk_scalar[]){{.f = 1.5}, {.f = 3}, {.i = turns[i]}});
      ck_assert_msg(m.ok, "%s", vm->error ? vm->error->message->text : "");
      double high = 1.5 + 1e-6, low = 1.5 - 1e-6, by_high, by_low;
      babylon(3, turns[i], &high, &by_a, &by_high);
      babylon(3, turns[i], &low, &by_a, &by_low);
      ck_assert_double_eq_tol(m.out[0].u.f, (by_high - by_low) / 2e-6, 1e-8);
      made_free(vm, &m);
    }
  }
  end(vm);
}
END_TEST

START_TEST(the_gradient_of_a_loop_of_arrays_adds_over_turns) {
  qn_vm *vm = begin();
  char why[256] = "";
  /* for k in 0..4 { if x[0] > 2 { x = x * w } else { x = x + w } }; sum(x): by x and w */
  const char *text = "graph(%1: f32[2], %2: f32[2], %3: weak i64) {\n"
                     "  %4 = const 0 : weak i64\n"
                     "  %5 = loop %1, %4, %2, %3 : bool[] {\n"
                     "    graph(%1: f32[2], %2: weak i64, %3: f32[2], %4: weak i64) {\n"
                     "      %5 = lt %2, %4 : weak bool\n"
                     "      return %5\n"
                     "    }\n"
                     "  } {\n"
                     "    graph(%1: f32[2], %2: weak i64, %3: f32[2], %4: weak i64) {\n"
                     "      %5 = max %1 axes=[0] : f32[]\n"
                     "      %6 = const 2.0 : f32[]\n"
                     "      %7 = gt %5, %6 : bool[]\n"
                     "      %8 = if %7, %1, %3 : bool[] {\n"
                     "        graph(%1: f32[2], %2: f32[2]) {\n"
                     "          %3 = mul %1, %2 : f32[2]\n"
                     "          return %3\n"
                     "        }\n"
                     "      } {\n"
                     "        graph(%1: f32[2], %2: f32[2]) {\n"
                     "          %3 = add %1, %2 : f32[2]\n"
                     "          return %3\n"
                     "        }\n"
                     "      }\n"
                     "      %9 = proj %8 number=0 : f32[2]\n"
                     "      %10 = const 1 : weak i64\n"
                     "      %11 = add %2, %10 : weak i64\n"
                     "      return %9, %11\n"
                     "    }\n"
                     "  }\n"
                     "  %6 = proj %5 number=0 : f32[2]\n"
                     "  %7 = sum %6 axes=[0] : f32[]\n"
                     "  return %7\n"
                     "}\n";
  float x[] = {0.5f, 0.25f}, w[] = {1, 0.5f};
  qn_array *in[] = {floats(vm, 2, x), floats(vm, 2, w), NULL};
  graph *g = graph_parse(text, why, sizeof why);
  ck_assert_msg(g != NULL, "%s", why);
  made m = run_graph(vm, differentiated(g, (uint32_t[]){0, 1}, 2), in, (qk_scalar[]){{.i = 5}});
  ck_assert_msg(m.ok, "%s", vm->error ? vm->error->message->text : "");
  float by_x[] = {1, 1}, by_w[] = {0, 0};
  for (int k = 0; k < 5; k++) { /* exact: few bits */
    bool times = x[0] > 2 || x[1] > 2;
    for (int i = 0; i < 2; i++) {
      by_w[i] = times ? by_w[i] * w[i] + x[i] : by_w[i] + 1;
      by_x[i] = times ? by_x[i] * w[i] : by_x[i];
      x[i] = times ? x[i] * w[i] : x[i] + w[i];
    }
  }
  check_floats(m.out[0], 2, by_x);
  check_floats(m.out[1], 2, by_w);
  made_free(vm, &m);
  for (int i = 0; i < 2; i++) value_release(vm, value_obj(TAG_ARRAY, in[i]));
  end(vm);
}
END_TEST

/* A loop over %1 (f32[4]) and a count %2, with this rest of the body: its input %4 is the count as an index, %6 the next count. */
static made run_counted(qn_vm *vm, const char *body, qn_array *x, int64_t turns) {
  char text[2048];
  snprintf(text, sizeof text,
           "graph(%%1: f32[4], %%2: weak i64) {\n"
           "  %%3 = const 0 : weak i64\n"
           "  %%4 = loop %%1, %%3, %%2 : bool[] {\n"
           "    graph(%%1: f32[4], %%2: weak i64, %%3: weak i64) {\n"
           "      %%4 = lt %%2, %%3 : weak bool\n"
           "      return %%4\n"
           "    }\n"
           "  } {\n"
           "    graph(%%1: f32[4], %%2: weak i64, %%3: weak i64) {\n"
           "      %%4 = fit %%2 dtype=i64 : i64[]\n"
           "      %%5 = const 1 : weak i64\n"
           "      %%6 = add %%2, %%5 proven : weak i64\n"
           "%s"
           "    }\n"
           "  }\n"
           "  %%5 = proj %%4 number=0 : f32[4]\n"
           "  return %%5\n"
           "}\n",
           body);
  return run_text(vm, text, (qn_array *[]){x, NULL}, (qk_scalar[]){{.i = turns}});
}

/* What the plan of a loop's body says of its first node that updates, and of its first carry. */
typedef struct memory_of_turn {
  bool updates, over;
} memory_of_turn;

/* Three turns of a body on x = [1, 2, 3, 4], which stays what it is, must give `want`. */
static memory_of_turn in_place(qn_vm *vm, const char *body, const float *want) {
  static const float x[] = {1, 2, 3, 4};
  qn_array *a = floats(vm, 4, x);
  made m = run_counted(vm, body, a, 3);
  ck_assert(m.ok);
  check_floats(m.out[0], 4, want);
  check_floats(value_obj(TAG_ARRAY, a), 4, x);
  const plan *turn = m.p->regions[0].parts[1];
  memory_of_turn how = {turn->updates && turn->updates[0], turn->outputs[0].over};
  made_free(vm, &m);
  value_release(vm, value_obj(TAG_ARRAY, a));
  return how;
}

START_TEST(what_a_turn_updates_is_not_copied) {
  qn_vm *vm = begin();
  const struct {
    const char *body;
    bool updates;
    float want[4];
  } cases[] = {
      {"      %7 = index %1, %4 leading=[1] proven : f32[]\n"
       "      %8 = add %7, %7 : f32[]\n"
       "      %9 = scatter %1, %4, %8 leading=[1] proven : f32[4]\n"
       "      return %9, %6\n",
       true,
       {2, 4, 6, 4}},
      /* what is stored is made of the whole old array */
      {"      %7 = sum %1 axes=[0] : f32[]\n"
       "      %8 = scatter %1, %4, %7 leading=[1] proven : f32[4]\n"
       "      return %8, %6\n",
       true,
       {10, 19, 36, 4}},
      /* which is also read after that */
      {"      %7 = const 0.5 : f32[]\n"
       "      %8 = scatter %1, %4, %7 leading=[1] proven : f32[4]\n"
       "      %9 = add %8, %1 : f32[4]\n"
       "      return %9, %6\n",
       false,
       {6, 9, 12.5, 32}},
      /* one update after the other, of what lies beside it */
      {"      %7 = slice %1 slice=[0:1:1] : f32[1]\n"
       "      %8 = slice_put %1, %7 slice=[1:1:1] : f32[4]\n"
       "      %9 = slice %8 slice=[1:1:1] : f32[1]\n"
       "      %10 = slice_put %8, %9 slice=[2:1:1] : f32[4]\n"
       "      return %10, %6\n",
       true,
       {1, 1, 1, 4}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    ck_assert_msg(in_place(vm, cases[i].body, cases[i].want).updates == cases[i].updates, "case %zu", i);
  end(vm);
}
END_TEST

START_TEST(an_arm_that_changes_nothing_copies_nothing) {
  qn_vm *vm = begin();
  const float x[] = {1, 2, 3, 4}, want[] = {2, 2, 6, 4};
  qn_array *a = floats(vm, 4, x);
  made m = run_counted(vm,
                       "      %7 = const 2 : weak i64\n"
                       "      %8 = mod %2, %7 : weak i64\n"
                       "      %9 = const 0 : weak i64\n"
                       "      %10 = ne %8, %9 : weak bool\n"
                       "      %11 = if %10, %1, %2 : bool[] {\n"
                       "        graph(%1: f32[4], %2: weak i64) {\n"
                       "          return %1\n"
                       "        }\n"
                       "      } {\n"
                       "        graph(%1: f32[4], %2: weak i64) {\n"
                       "          %3 = fit %2 dtype=i64 : i64[]\n"
                       "          %4 = index %1, %3 leading=[1] proven : f32[]\n"
                       "          %5 = add %4, %4 : f32[]\n"
                       "          %6 = scatter %1, %3, %5 leading=[1] proven : f32[4]\n"
                       "          return %6\n"
                       "        }\n"
                       "      }\n"
                       "      %12 = proj %11 number=0 : f32[4]\n"
                       "      return %12, %6\n",
                       a, 4);
  ck_assert(m.ok);
  check_floats(m.out[0], 4, want);
  check_floats(value_obj(TAG_ARRAY, a), 4, x);
  const plan *body = m.p->regions[0].parts[1];
  ck_assert(body->updates[0] && body->outputs[0].kind == OUT_INPUT && body->outputs[0].index == 0);
  made_free(vm, &m);
  value_release(vm, value_obj(TAG_ARRAY, a));
  end(vm);
}
END_TEST

/* How many checks the kernels of a graph's plan have. */
static uint32_t checks_in(qn_vm *vm, const char *text) {
  char why[256] = "";
  graph *g = graph_parse(text, why, sizeof why);
  ck_assert_msg(g != NULL, "%s", why);
  plan *p = plan_make(g, TARGET_CPU, vm->tune, NULL, why, sizeof why);
  ck_assert_msg(p != NULL, "%s", why);
  uint32_t n = 0;
  for (uint32_t k = 0; k < p->nkernels; k++) n += p->kernels[k].program->nchecks;
  plan_free(p);
  return n;
}

/* y[i] = y[i - 1] + y[i] for i from `first` by `step` as long as `test` holds for i and `end`: how many checks its kernels have. */
static uint32_t checks_of(qn_vm *vm, const char *first, const char *step, const char *test, const char *end) {
  char text[2048];
  snprintf(text, sizeof text,
           "graph(%%1: f32[4]) {\n"
           "  %%2 = const %s : weak i64\n"
           "  %%3 = loop %%1, %%2 : bool[] {\n"
           "    graph(%%1: f32[4], %%2: weak i64) {\n"
           "      %%3 = const %s : weak i64\n"
           "      %%4 = %s %%2, %%3 : weak bool\n"
           "      return %%4\n"
           "    }\n"
           "  } {\n"
           "    graph(%%1: f32[4], %%2: weak i64) {\n"
           "      %%3 = const 1 : weak i64\n"
           "      %%4 = sub %%2, %%3 : weak i64\n"
           "      %%5 = fit %%4 dtype=i64 : i64[]\n"
           "      %%6 = index %%1, %%5 leading=[1] : f32[]\n"
           "      %%7 = fit %%2 dtype=i64 : i64[]\n"
           "      %%8 = index %%1, %%7 leading=[1] : f32[]\n"
           "      %%9 = add %%6, %%8 : f32[]\n"
           "      %%10 = scatter %%1, %%7, %%9 leading=[1] : f32[4]\n"
           "      %%11 = const %s : weak i64\n"
           "      %%12 = add %%2, %%11 : weak i64\n"
           "      return %%10, %%12\n"
           "    }\n"
           "  }\n"
           "  %%4 = proj %%3 number=0 : f32[4]\n"
           "  return %%4\n"
           "}\n",
           first, end, test, step);
  return checks_in(vm, text);
}

START_TEST(indices_that_a_loop_counts_need_no_checks) {
  qn_vm *vm = begin();
  static const struct {
    const char *first, *step, *test, *end;
    bool safe;
  } cases[] = {
      {"1", "1", "lt", "4", true},    {"0", "1", "lt", "4", true},   {"-3", "1", "lt", "4", true},
      {"1", "3", "le", "3", true},    {"3", "-1", "gt", "0", true},  {"3", "-2", "ge", "-3", true},
      {"1", "1", "lt", "5", false},   {"-4", "1", "lt", "4", false}, {"1", "1", "le", "4", false},
      {"3", "-1", "ge", "-4", false}, {"3", "1", "gt", "0", false},  {"1", "0", "lt", "4", false},
      {"1", "1", "ne", "4", false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    uint32_t n = checks_of(vm, cases[i].first, cases[i].step, cases[i].test, cases[i].end);
    ck_assert_msg((n == 0) == cases[i].safe, "case %zu has %u checks", i, n);
  }
  end(vm);
}
END_TEST

/* x[j - 1] in an arm of a branch on two conditions. */
static uint32_t checks_of_arm(qn_vm *vm, const char *low, const char *from, const char *both, const char *high,
                              const char *to, bool first) {
  char text[2048];
  const char *element = "graph(%1: f32[4], %2: weak i64) {\n"
                        "      %3 = const 1 : weak i64\n"
                        "      %4 = sub %2, %3 : weak i64\n"
                        "      %5 = fit %4 dtype=i64 : i64[]\n"
                        "      %6 = index %1, %5 leading=[1] : f32[]\n"
                        "      return %6\n"
                        "    }\n";
  const char *none = "graph(%1: f32[4], %2: weak i64) {\n"
                     "      %3 = const 0 : f32[]\n"
                     "      return %3\n"
                     "    }\n";
  snprintf(text, sizeof text,
           "graph(%%1: f32[4], %%2: weak i64) {\n"
           "  %%3 = const %s : weak i64\n"
           "  %%4 = %s %%2, %%3 : weak bool\n"
           "  %%5 = const %s : weak i64\n"
           "  %%6 = %s %%2, %%5 : weak bool\n"
           "  %%7 = %s %%4, %%6 : weak bool\n"
           "  %%8 = if %%7, %%1, %%2 : bool[] {\n    %s  } {\n    %s  }\n"
           "  %%9 = proj %%8 number=0 : f32[]\n"
           "  return %%9\n"
           "}\n",
           from, low, to, high, both, first ? element : none, first ? none : element);
  return checks_in(vm, text);
}

START_TEST(conditions_say_what_indices_can_be) {
  qn_vm *vm = begin();
  static const struct {
    const char *low, *from, *both, *high, *to;
    bool first, safe;
  } cases[] = {
      {"gt", "0", "bitand", "le", "4", true, true},   {"gt", "0", "bitand", "le", "5", true, false},
      {"gt", "-4", "bitand", "lt", "5", true, true},  {"ge", "-4", "bitand", "lt", "5", true, false},
      {"gt", "0", "bitor", "le", "4", true, false},   {"le", "0", "bitor", "gt", "4", false, true},
      {"le", "-4", "bitor", "ge", "5", false, true},  {"lt", "-4", "bitor", "ge", "5", false, false},
      {"le", "0", "bitand", "gt", "4", false, false}, {"gt", "0", "bitand", "le", "4", false, false},
      {"gt", "4", "bitand", "lt", "3", true, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    uint32_t n =
        checks_of_arm(vm, cases[i].low, cases[i].from, cases[i].both, cases[i].high, cases[i].to, cases[i].first);
    ck_assert_msg((n == 0) == cases[i].safe, "case %zu has %u checks", i, n);
  }
  end(vm);
}
END_TEST

/* `while j > end and x[j - 1] > v { x[j] = x[j - 1]; j -= 1 }; x[j] = v` for j from `first`. */
static uint32_t checks_of_descent(qn_vm *vm, const char *first, const char *end) {
  char text[4096];
  snprintf(text, sizeof text,
           "graph(%%1: f32[4], %%2: f32[]) {\n"
           "  %%3 = const %s : weak i64\n"
           "  %%4 = loop %%1, %%3, %%2 : bool[] {\n"
           "    graph(%%1: f32[4], %%2: weak i64, %%3: f32[]) {\n"
           "      %%4 = const %s : weak i64\n"
           "      %%5 = gt %%2, %%4 : weak bool\n"
           "      %%6 = if %%5, %%1, %%2, %%3 : bool[] {\n"
           "        graph(%%1: f32[4], %%2: weak i64, %%3: f32[]) {\n"
           "          %%4 = const 1 : weak i64\n"
           "          %%5 = sub %%2, %%4 : weak i64\n"
           "          %%6 = fit %%5 dtype=i64 : i64[]\n"
           "          %%7 = index %%1, %%6 leading=[1] : f32[]\n"
           "          %%8 = gt %%7, %%3 : bool[]\n"
           "          %%9 = cast %%8 weak dtype=bool : weak bool\n"
           "          return %%9\n"
           "        }\n"
           "      } {\n"
           "        graph(%%1: f32[4], %%2: weak i64, %%3: f32[]) {\n"
           "          %%4 = const false : weak bool\n"
           "          return %%4\n"
           "        }\n"
           "      }\n"
           "      %%7 = proj %%6 number=0 : weak bool\n"
           "      return %%7\n"
           "    }\n"
           "  } {\n"
           "    graph(%%1: f32[4], %%2: weak i64, %%3: f32[]) {\n"
           "      %%4 = const 1 : weak i64\n"
           "      %%5 = sub %%2, %%4 : weak i64\n"
           "      %%6 = fit %%5 dtype=i64 : i64[]\n"
           "      %%7 = index %%1, %%6 leading=[1] : f32[]\n"
           "      %%8 = fit %%2 dtype=i64 : i64[]\n"
           "      %%9 = scatter %%1, %%8, %%7 leading=[1] : f32[4]\n"
           "      return %%9, %%5\n"
           "    }\n"
           "  }\n"
           "  %%5 = proj %%4 number=0 : f32[4]\n"
           "  %%6 = proj %%4 number=1 : weak i64\n"
           "  %%7 = fit %%6 dtype=i64 : i64[]\n"
           "  %%8 = scatter %%5, %%7, %%2 leading=[1] : f32[4]\n"
           "  return %%8\n"
           "}\n",
           first, end);
  return checks_in(vm, text);
}

START_TEST(a_loop_that_counts_down_ends_where_its_test_says) {
  qn_vm *vm = begin();
  ck_assert_uint_eq(checks_of_descent(vm, "3", "0"), 0);
  ck_assert_uint_eq(checks_of_descent(vm, "3", "1"), 0);
  ck_assert_uint_eq(checks_of_descent(vm, "3", "-4"), 0); /* -1 is the last element */
  ck_assert_uint_ne(checks_of_descent(vm, "3", "-5"), 0);
  ck_assert_uint_ne(checks_of_descent(vm, "4", "0"), 0);
  ck_assert_uint_ne(checks_of_descent(vm, "-9", "0"), 0); /* no turn, but the element behind it */
  end(vm);
}
END_TEST

START_TEST(a_turn_may_write_over_what_it_has_read) {
  qn_vm *vm = begin();
  const struct {
    const char *body;
    bool over;
    float want[4];
  } cases[] = {
      {"      %7 = add %1, %1 : f32[4]\n"
       "      return %7, %6\n",
       true,
       {8, 16, 24, 32}},
      {"      %7 = slice %1 slice=[3:4:-1] : f32[4]\n"
       "      %8 = sub %7, %1 : f32[4]\n"
       "      return %8, %6\n",
       false,
       {12, 4, -4, -12}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    ck_assert_msg(in_place(vm, cases[i].body, cases[i].want).over == cases[i].over, "case %zu", i);
  end(vm);
}
END_TEST

int main(void) {
  Suite *s = suite_create("regions");
  struct {
    TCase *t;
    const TTest *f;
  } cases[] = {
      {tcase_create("a_branch_takes_the_arm_that_its_condition_says"), a_branch_takes_the_arm_that_its_condition_says},
      {tcase_create("a_loop_of_host_numbers_runs_until_its_condition_fails"),
       a_loop_of_host_numbers_runs_until_its_condition_fails},
      {tcase_create("carries_may_change_places_and_turns_may_be_none"),
       carries_may_change_places_and_turns_may_be_none},
      {tcase_create("regions_nest_and_sizes_may_be_symbolic"), regions_nest_and_sizes_may_be_symbolic},
      {tcase_create("the_gradient_of_a_branch_is_a_branch"), the_gradient_of_a_branch_is_a_branch},
      {tcase_create("the_gradient_of_a_loop_goes_back_through_its_turns"),
       the_gradient_of_a_loop_goes_back_through_its_turns},
      {tcase_create("the_gradient_of_a_loop_of_arrays_adds_over_turns"),
       the_gradient_of_a_loop_of_arrays_adds_over_turns},
      {tcase_create("a_check_in_a_body_fails_at_its_place"), a_check_in_a_body_fails_at_its_place},
      {tcase_create("what_a_turn_updates_is_not_copied"), what_a_turn_updates_is_not_copied},
      {tcase_create("a_turn_may_write_over_what_it_has_read"), a_turn_may_write_over_what_it_has_read},
      {tcase_create("indices_that_a_loop_counts_need_no_checks"), indices_that_a_loop_counts_need_no_checks},
      {tcase_create("conditions_say_what_indices_can_be"), conditions_say_what_indices_can_be},
      {tcase_create("a_loop_that_counts_down_ends_where_its_test_says"),
       a_loop_that_counts_down_ends_where_its_test_says},
      {tcase_create("an_arm_that_changes_nothing_copies_nothing"), an_arm_that_changes_nothing_copies_nothing}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tcase_add_test(cases[i].t, cases[i].f);
    suite_add_tcase(s, cases[i].t);
  }
  SRunner *runner = srunner_create(s);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
