/* Batching: the counterpart of every op against its lanes one by one, over which operands differ from lane to lane, shapes, dtypes
 * and numbers of lanes; random graphs; batches inside batches; gradients of batches and batches of gradients; draws. */
#include <check.h>
#include <stdlib.h>

#include "graph_eval.h"
#include "graph_random.h"
#include "jit/graph/batch.h"
#include "lang/error.h"

static char *printed(const graph *g) {
  text_buf t;
  text_init(&t, NULL);
  graph_print(g, &t);
  text_add(&t, "", 1);
  char *s = strdup(t.text);
  text_free(&t);
  return s;
}

static void check_graph(const graph *g) {
  char why[256] = "";
  ck_assert(!g->failed);
  ck_assert_msg(graph_verify(g, why, sizeof why), "%s\n%s", why, printed(g));
}

/* ---- a graph in all lanes against the graph in each --------------------------------------------------------------------- */

enum { MOST_INPUTS = 12, MOST_ELEMENTS = 400, MOST_LANES = 4 };

typedef struct trial {
  const graph *lane; /* one lane's computation */
  unsigned differ;   /* bit i: input i differs from lane to lane */
  int lanes;
  double data[MOST_INPUTS][MOST_LANES][MOST_ELEMENTS];
} trial;

static int64_t elements(const graph *g, const graph_type *t) {
  int64_t n = 1;
  for (int i = 0; i < t->rank; i++) n *= dim_hint(&g->dims, t->shape[i]);
  return n;
}

static void draw_data(trial *t, rng *r, bool wild) {
  for (uint32_t k = 0; k < t->lane->ninputs; k++) {
    const graph_type *x = &t->lane->nodes[t->lane->inputs[k]].type;
    int64_t n = elements(t->lane, x);
    ck_assert_int_le(n, MOST_ELEMENTS);
    for (int l = 0; l < MOST_LANES; l++)
      for (int64_t i = 0; i < n; i++)
        t->data[k][l][i] = l && !(t->differ >> k & 1) ? t->data[k][0][i] : random_datum(r, (qn_dtype)x->dtype, wild);
  }
}

/* The lane's graph inside another one, on inputs of all lanes; map[] by node. */
static graph *whole_graph(const trial *t, uint32_t *map, graph_batch *b) {
  graph *g = graph_new(NULL);
  ck_assert(graph_copy_frame(g, t->lane));
  uint32_t wholes[MOST_INPUTS];
  for (uint32_t k = 0; k < t->lane->ninputs; k++) {
    graph_type x = t->lane->nodes[t->lane->inputs[k]].type;
    if (t->differ >> k & 1) {
      memmove(x.shape + 1, x.shape, x.rank * sizeof *x.shape);
      x.shape[0] = t->lanes;
      x.rank++;
    }
    wholes[k] = graph_input(g, x, 0);
  }
  batch_begin(b, g, NULL, t->lanes, g->n);
  for (uint32_t k = 0; k < t->lane->ninputs; k++) {
    map[t->lane->inputs[k]] = t->differ >> k & 1 ? batch_lane(b, wholes[k], 0) : wholes[k];
    ck_assert_uint_ne(map[t->lane->inputs[k]], 0);
  }
  for (uint32_t i = 1; i < t->lane->n; i++)
    if (t->lane->nodes[i].kind != NODE_INPUT) map[i] = graph_node_copy(g, t->lane, i, map);
  dim_rename_nodes(&g->dims, map); /* sizes that a node gives */
  check_graph(g);
  return g;
}

static void set_input(eval *e, const trial *t, uint32_t k, int lane) {
  const graph_type *x = &t->lane->nodes[t->lane->inputs[k]].type;
  int64_t n = elements(t->lane, x);
  if (lane >= 0) {
    eval_input(e, k, t->data[k][lane]);
    return;
  }
  double all[MOST_LANES * MOST_ELEMENTS];
  int lanes = t->differ >> k & 1 ? t->lanes : 1;
  for (int l = 0; l < lanes; l++) memcpy(all + l * n, t->data[k][l], (size_t)n * sizeof *all);
  eval_input(e, k, all);
}

static bool same_element(const eval_value *a, int64_t i, const eval_value *b, int64_t j) {
  if (a->isfloat != b->isfloat) return false;
  if (!a->isfloat) return a->i[i] == b->i[j];
  return (a->f[i] != a->f[i] && b->f[j] != b->f[j]) || memcmp(&a->f[i], &b->f[j], 8) == 0;
}

typedef enum outcome { EQUAL, RAISED, REFUSED } outcome;

/* Runs the trial. The node whose counterpart was refused is *culprit, in the lane's numbers. */
static outcome run_trial(const trial *t, uint32_t *culprit, op_refusal *why) {
  uint32_t *map = calloc(t->lane->n, sizeof *map), *output = calloc(t->lane->n, sizeof *output);
  bool *differs = calloc(t->lane->n, sizeof *differs);
  graph_batch b;
  graph *g = whole_graph(t, map, &b);
  outcome out = EQUAL;
  uint32_t at;
  if (!batch_advance(&b, &at, why)) {
    ck_assert(!g->failed);
    out = REFUSED;
    for (uint32_t i = 1; i < t->lane->n; i++)
      if (map[i] == at) *culprit = i;
    goto done;
  }
  check_graph(g);
  for (uint32_t i = 1; i < t->lane->n; i++) {
    uint32_t whole = batch_whole(&b, map[i]);
    graph_type have = g->nodes[map[i]].type;
    differs[i] = whole != 0;
    output[i] = g->noutputs;
    if (whole) {
      graph_type all = g->nodes[whole].type;
      ck_assert_msg(!all.weak && all.dtype == have.dtype && all.rank == have.rank + 1 && all.shape[0] == t->lanes &&
                        memcmp(all.shape + 1, have.shape, have.rank * sizeof *have.shape) == 0,
                    "%%%u and its counterpart %%%u\n%s", map[i], whole, printed(g));
    }
    graph_output(g, whole ? whole : map[i]);
  }
  graph_dce(g);
  check_graph(g);
  eval all, one[MOST_LANES];
  bool raises = false;
  eval_init(&all, g, NULL);
  for (uint32_t k = 0; k < g->ninputs; k++) set_input(&all, t, k, -1);
  bool ran = eval_run(&all);
  for (int l = 0; l < t->lanes; l++) {
    eval_init(&one[l], t->lane, NULL);
    for (uint32_t k = 0; k < t->lane->ninputs; k++) set_input(&one[l], t, k, l);
    raises |= !eval_run(&one[l]);
  }
  if (t->lanes)
    ck_assert_msg(ran == !raises, "%s in all lanes, %s in each\n%s", ran ? "runs" : "raises",
                  raises ? "raises" : "runs", printed(g));
  out = ran ? EQUAL : RAISED;
  for (uint32_t i = 1; ran && i < t->lane->n; i++)
    for (int l = 0; l < t->lanes; l++) {
      const eval_value *lane = &one[l].v[i], *whole = &all.v[g->outputs[output[i]]];
      int64_t n = lane->n, from = differs[i] ? l * n : 0;
      for (int64_t k = 0; k < n; k++)
        ck_assert_msg(same_element(lane, k, whole, from + k), "%%%u, lane %d of %d, element %d: %g and %g\n%s%s", i, l,
                      t->lanes, (int)k, eval_num(lane, k), eval_num(whole, from + k), printed(t->lane), printed(g));
    }
  eval_free(&all);
  for (int l = 0; l < t->lanes; l++) eval_free(&one[l]);
done:
  batch_end(&b);
  graph_free(g);
  free(map);
  free(output);
  free(differs);
  return out;
}

/* ---- every op --------------------------------------------------------------------------------------------------------------- */

static graph_type small_type(qn_dtype d, int rank, int64_t a, int64_t b, int64_t c, int64_t e) {
  const int64_t size[] = {a, b, c, e};
  graph_type t = {.dtype = (uint8_t)d, .rank = (uint8_t)rank};
  for (int i = 0; i < rank; i++) t.shape[i] = size[4 - rank + i];
  return t;
}

/* Types for the operands of an op, which op_infer may still refuse. */
static void draw_types(rng *r, op_id op, int nin, graph_type *in) {
  static const uint8_t dtypes[] = {QN_bool, QN_u8,  QN_i32, QN_i64, QN_f16, QN_bf16,
                                   QN_f32,  QN_f64, QN_f32, QN_f64, QN_i64};
  qn_dtype first = (qn_dtype)dtypes[rng_below(r, 11)];
  int64_t s[4];
  for (int i = 0; i < 4; i++) s[i] = 1 + rng_below(r, 3);
  for (int k = 0; k < nin; k++) {
    op_role role = op_operand_role(op, k, nin);
    qn_dtype d = rng_below(r, 3) ? first : (qn_dtype)dtypes[rng_below(r, 11)];
    if (role == ROLE_CONDITION || op == OP_nonzero) d = QN_bool;
    if (role == ROLE_INDEX) d = rng_below(r, 2) ? QN_i64 : QN_i32;
    if (role == ROLE_KEY) d = QN_i64;
    int rank = rng_below(r, 4);
    in[k] = small_type(d, rank, s[0], s[1], s[2], s[3]);
    for (int i = 0; i < rank; i++)
      if (rng_below(r, 6) == 0) in[k].shape[i] = rng_below(r, 4) ? 1 : 0;
    if ((op_rows[op].klass == CLASS_POINTWISE || role == ROLE_KEY) && rng_below(r, 8) == 0)
      in[k] = (graph_type){.dtype = role == ROLE_KEY         ? QN_i64
                                    : role == ROLE_CONDITION ? QN_bool
                                    : rng_below(r, 2)        ? QN_i64
                                                             : QN_f64,
                           .weak = true};
    if (op == OP_fit) in[k] = (graph_type){.dtype = rng_below(r, 2) ? QN_i64 : QN_f64, .weak = true};
    if (role == ROLE_KEY && !in[k].weak) in[k] = small_type(QN_i64, rng_below(r, 3), 0, 0, 2, 3);
    if (role == ROLE_KEY && in[k].rank == 1) in[k].shape[0] = rng_below(r, 2) ? 2 : 1;
    if (op == OP_pad && k == 1) in[k].rank = 0;
    if (op == OP_dot) { /* [.., s0, s1] @ [.., s1, s2] */
      rank = 1 + rng_below(r, 4);
      in[k].rank = (uint8_t)rank;
      for (int i = 0; i < rank; i++) in[k].shape[i] = rng_below(r, 4) ? 2 : 1;
      if (k == 0 || rank == 1) in[k].shape[rank - 1] = s[1];
      if (k == 0 && rank > 1) in[k].shape[rank - 2] = s[0];
      if (k == 1 && rank > 1) in[k].shape[rank - 2] = s[1], in[k].shape[rank - 1] = s[2];
    }
    if (k && (op == OP_concat || op == OP_gather || (op == OP_gather_add && k == 1))) {
      in[k].rank = in[0].rank;
      memcpy(in[k].shape, in[0].shape, sizeof in[0].shape);
      if (in[0].rank && rng_below(r, 2)) in[k].shape[rng_below(r, in[0].rank)] = 2;
    }
    if (op == OP_compress && k == 1) {
      in[k].rank = in[0].rank ? (uint8_t)(1 + rng_below(r, in[0].rank)) : 0;
      memcpy(in[k].shape, in[0].shape, sizeof in[0].shape);
    }
  }
}

/* A graph of one op on inputs; NULL if what was drawn does not fit. */
static graph *one_op(rng *r, op_id op) {
  int nin = op_rows[op].arity;
  if (nin < 0)
    nin = op == OP_scatter ? 3 + rng_below(r, 2) : op == OP_index ? 2 + rng_below(r, 2) : 1 + rng_below(r, 3);
  graph_type types[8];
  op_attr attr;
  op_types t;
  op_refusal why;
  draw_types(r, op, nin, types);
  graph *g = graph_new(NULL);
  random_attr(r, g, op, types, nin, &attr);
  if (op_rows[op].klass == CLASS_RANDOM) attr.mode = DRAW_KEYED;
  bool ok = op_infer(&g->dims, op, types, nin, &attr, &t, &why) && elements(g, &t.result) < 200;
  uint32_t in[8];
  for (int k = 0; k < nin && ok; k++) {
    in[k] = graph_input(g, types[k], 0);
    ok = elements(g, &types[k]) < 100;
  }
  if (ok && graph_op(g, op, in, nin, &attr, 0)) return g;
  graph_free(g);
  return NULL;
}

/* May this node have no counterpart? */
static bool may_refuse(const graph *g, uint32_t node, const op_refusal *why) {
  const graph_node *n = &g->nodes[node];
  if (why->id == E_rank) return true;
  if (why->id != E_not_batched) return false;
  return op_rows[n->op].batch_rule == BATCH_mask || n->type.weak;
}

START_TEST(every_op_in_all_lanes_is_the_op_in_each) {
  op_id op = (op_id)_i;
  if (op == OP_product) return; /* appended after batching */
  rng r = {(uint64_t)_i * 977 + 5};
  trial *t = calloc(1, sizeof *t);
  int equal = 0, raised = 0, refused = 0;
  unsigned seen = 0; /* which operands differed in trials that went through, as bits of a mask of masks */
  for (int tries = 0; tries < 20000 && equal < 150; tries++) {
    graph *g = one_op(&r, op);
    if (!g) continue;
    t->lane = g;
    for (t->differ = 0; t->differ < 1u << g->ninputs; t->differ++) {
      bool possible = true;
      for (uint32_t k = 0; k < g->ninputs; k++) possible &= !(t->differ >> k & 1) || !g->nodes[g->inputs[k]].type.weak;
      if (!possible) continue;
      uint32_t culprit = 0;
      op_refusal why = {0};
      t->lanes = (int[]){3, 1, 0, 4, 2}[rng_below(&r, 5)];
      draw_data(t, &r, true);
      switch (run_trial(t, &culprit, &why)) {
      case EQUAL:
        equal++;
        seen |= 1u << t->differ;
        break;
      case RAISED: raised++; break;
      case REFUSED: refused++; ck_assert_msg(may_refuse(g, culprit, &why), "E%d %s\n%s", why.id, why.text, printed(g));
      }
    }
    graph_free(g);
  }
  free(t);
  int nin = op_rows[op].arity < 0 ? 3 : op_rows[op].arity;
  bool never = op == OP_fit; /* its operand is a host number */
  ck_assert_msg(equal > 40, "%s: only %d trials went through", op_rows[op].name, equal);
  if (op_rows[op].batch_rule == BATCH_mask)
    ck_assert_int_gt(refused, 0);
  else if (!never)
    for (unsigned differ = 0; differ < 1u << nin; differ++)
      ck_assert_msg(seen >> differ & 1, "%s: no trial where operands %x differ", op_rows[op].name, differ);
  if (op_rows[op].raises == RAISES_bounds) ck_assert_int_gt(raised, 0);
}
END_TEST

START_TEST(random_graphs_in_all_lanes_are_the_graphs_in_each) {
  int equal = 0;
  trial *t = calloc(1, sizeof *t);
  for (int seed = 0; seed < 60; seed++) {
    uint64_t s = (uint64_t)(_i * 1000 + seed);
    random_options o = {.symbolic = s % 3 == 0, .nodes = 4 + (int)(s % 30)};
    rng r = {s * 31 + 7};
    graph *g = random_graph(s, &o);
    bool fits = g->ninputs <= MOST_INPUTS && !g->failed;
    for (uint32_t i = 1; i < g->n; i++) {
      graph_node *n = &g->nodes[i];
      if (n->kind != NODE_OP) continue;
      if (op_rows[n->op].klass == CLASS_RANDOM) ((op_attr *)n->attr)->mode = DRAW_KEYED;
      fits &= op_rows[n->op].shape_rule != SH_data; /* sizes that the evaluator would have to find for two graphs */
    }
    t->lane = g;
    t->differ = (unsigned)rng_next(&r);
    t->lanes = rng_below(&r, MOST_LANES + 1);
    for (uint32_t k = 0; k < g->ninputs; k++)
      if (g->nodes[g->inputs[k]].type.weak) t->differ &= ~(1u << k);
    if (fits) {
      uint32_t culprit = 0;
      op_refusal why = {0};
      draw_data(t, &r, true);
      outcome got = run_trial(t, &culprit, &why);
      if (got == REFUSED) ck_assert_msg(may_refuse(g, culprit, &why), "E%d %s\n%s", why.id, why.text, printed(g));
      equal += got == EQUAL;
    }
    graph_free(g);
  }
  free(t);
  ck_assert_int_gt(equal, 5);
}
END_TEST

int main(void) {
  Suite *s = suite_create("graph_batch");
  TCase *ops = tcase_create("ops");
  tcase_add_loop_test(ops, every_op_in_all_lanes_is_the_op_in_each, 0, OP_COUNT);
  suite_add_tcase(s, ops);
  TCase *random = tcase_create("random");
  tcase_add_loop_test(random, random_graphs_in_all_lanes_are_the_graphs_in_each, 0, 8);
  suite_add_tcase(s, random);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_ENV);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed != 0;
}
