/* Batching: the counterpart of every op against its lanes one by one, over which operands differ from lane to lane, shapes, dtypes
 * and numbers of lanes; random graphs; batches inside batches; gradients of batches and batches of gradients; draws. */
#include <check.h>
#include <stdlib.h>

#include "graph_eval.h"
#include "graph_random.h"
#include "jit/graph/batch.h"
#include "lang/error.h"
#include "lang.h"

static char *printed(const graph *g) {
  text_buf t = {0};
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
  const graph *lane;  /* one lane's computation */
  unsigned differ;    /* bit i: input i differs from lane to lane */
  unsigned differ_in; /* of nested batches: from inner lane to inner lane */
  int lanes, vmap_in;
  bool symbolic; /* the number of lanes is a symbol */
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
  qn_dim lanes = t->lanes;
  for (uint32_t k = 0; k < t->lane->ninputs; k++) {
    graph_type x = t->lane->nodes[t->lane->inputs[k]].type;
    if (t->differ >> k & 1) {
      if (t->symbolic && lanes >= 0) lanes = dim_symbol(&g->dims, DIM_FROM_INPUT, k, 0, 3, "lanes");
      memmove(x.shape + 1, x.shape, x.rank * sizeof *x.shape);
      x.shape[0] = lanes;
      x.rank++;
    }
    wholes[k] = graph_input(g, x, 0);
  }
  batch_begin(b, g, NULL, lanes, g->n);
  for (uint32_t k = 0; k < t->lane->ninputs; k++) {
    map[t->lane->inputs[k]] = t->differ >> k & 1 ? batch_lane(b, wholes[k], 0) : wholes[k];
    ck_assert_uint_ne(map[t->lane->inputs[k]], 0);
  }
  for (uint32_t i = 1; i < t->lane->n; i++)
    if (t->lane->nodes[i].kind != NODE_INPUT) map[i] = graph_node_copy(g, t->lane, i, map);
  dim_rename_nodes(&g->dims, map, t->lane->n); /* sizes that a node gives */
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

typedef enum outcome { EQUAL, RAISED, REFUSED, OTHER_SIZES } outcome;

/* Runs the trial. The node whose counterpart was refused is *culprit, in the lane's numbers. */
static outcome run_trial(const trial *t, uint32_t *culprit, op_refusal *why) {
  uint32_t *map = calloc(t->lane->n, sizeof *map), *output = calloc(t->lane->n, sizeof *output);
  bool *differs = calloc(t->lane->n, sizeof *differs);
  graph_batch b;
  graph *g = whole_graph(t, map, &b);
  outcome out = EQUAL;
  uint32_t at;
  qn_dim lanes = b.lanes;
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
      ck_assert_msg(!all.weak && all.dtype == have.dtype && all.rank == have.rank + 1 && all.shape[0] == b.lanes &&
                        memcmp(all.shape + 1, have.shape, have.rank * sizeof *have.shape) == 0,
                    "%%%u and its counterpart %%%u\n%s", map[i], whole, printed(g));
    }
    graph_output(g, whole ? whole : map[i]);
  }
  graph_dce(g);
  check_graph(g);
  eval all, one[MOST_LANES];
  bool raises = false;
  int64_t *symbols = calloc(g->dims.n + 1, sizeof *symbols);
  for (uint32_t k = 0; k < g->dims.n; k++) symbols[k] = g->dims.exprs[k].hint;
  if (lanes < 0) symbols[~lanes] = t->lanes;
  if (!dim_facts_hold(&g->dims, symbols, NULL)) {
    free(symbols);
    out = OTHER_SIZES;
    goto done;
  }
  eval_init(&all, g, symbols);
  free(symbols);
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
        ck_assert_msg(eval_same_element(lane, k, whole, from + k), "%%%u, lane %d of %d, element %d: %g and %g\n%s%s",
                      i, l, t->lanes, (int)k, eval_num(lane, k), eval_num(whole, from + k), printed(t->lane),
                      printed(g));
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
    if (op == OP_recurrence && k == 1 && rng_below(r, 4)) {
      in[k].rank = in[0].rank;
      memcpy(in[k].shape, in[0].shape, sizeof in[0].shape);
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
  if (op == OP_gemm) return; /* appended after batching */
  rng r = {(uint64_t)_i * 977 + 5};
  trial *t = calloc(1, sizeof *t);
  int equal = 0, raised = 0, refused = 0, others = 0;
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
      t->symbolic = rng_below(&r, 3) == 0;
      draw_data(t, &r, true);
      switch (run_trial(t, &culprit, &why)) {
      case EQUAL:
        equal++;
        seen |= 1u << t->differ;
        break;
      case RAISED: raised++; break;
      case OTHER_SIZES: others++; break;
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
  /* A graph for three lanes serves other numbers of them, but that a reduction may ask whether there are any. */
  ck_assert_msg(others == 0 || op_rows[op].raises == RAISES_empty, "%s: %d times not for other sizes", op_rows[op].name,
                others);
}
END_TEST

/* A random graph whose draws have keys and whose sizes do not depend on data, or NULL. */
static graph *batchable(uint64_t seed, const random_options *o) {
  graph *g = random_graph(seed, o);
  bool fits = g->ninputs <= MOST_INPUTS && !g->failed;
  for (uint32_t i = 1; i < g->n; i++) {
    graph_node *n = &g->nodes[i];
    if (n->kind != NODE_OP) continue;
    if (op_rows[n->op].klass == CLASS_RANDOM) ((op_attr *)n->attr)->mode = DRAW_KEYED;
    fits &= op_rows[n->op].shape_rule != SH_data; /* sizes that the evaluator would have to find for two graphs */
  }
  if (fits) return g;
  graph_free(g);
  return NULL;
}

static unsigned arrays_among_inputs(const graph *g, uint64_t mask) {
  for (uint32_t k = 0; k < g->ninputs; k++)
    if (g->nodes[g->inputs[k]].type.weak) mask &= ~((uint64_t)1 << k);
  return (unsigned)mask;
}

START_TEST(random_graphs_in_all_lanes_are_the_graphs_in_each) {
  int equal = 0;
  trial *t = calloc(1, sizeof *t);
  for (int seed = 0; seed < 60; seed++) {
    uint64_t s = (uint64_t)(_i * 1000 + seed);
    random_options o = {.symbolic = s % 3 == 0, .nodes = 4 + (int)(s % 30)};
    rng r = {s * 31 + 7};
    graph *g = batchable(s, &o);
    if (!g) continue;
    t->lane = g;
    t->differ = arrays_among_inputs(g, rng_next(&r));
    t->lanes = rng_below(&r, MOST_LANES + 1);
    t->symbolic = !o.symbolic && s % 2; /* or the lanes and an axis of the lane would have one source */
    uint32_t culprit = 0;
    op_refusal why = {0};
    draw_data(t, &r, true);
    outcome got = run_trial(t, &culprit, &why);
    if (got == REFUSED) ck_assert_msg(may_refuse(g, culprit, &why), "E%d %s\n%s", why.id, why.text, printed(g));
    equal += got == EQUAL;
    graph_free(g);
  }
  free(t);
  ck_assert_int_gt(equal, 5);
}
END_TEST

/* ---- batches inside batches ----------------------------------------------------------------------------------------------------- */

/* What the lanes of two levels are given; bits: 1 the outer level differs, 2 the inner one. */
static graph *nested_graph(const trial *t, uint32_t *map, uint32_t *whole, rng *r) {
  graph *g = graph_new(NULL);
  ck_assert(graph_copy_frame(g, t->lane));
  uint32_t inputs[MOST_INPUTS], n = t->lane->n, culprit;
  graph_batch outer, inner;
  op_refusal why;
  for (uint32_t k = 0; k < t->lane->ninputs; k++) {
    graph_type x = t->lane->nodes[t->lane->inputs[k]].type;
    for (int level = 0; level < 2; level++) {
      if (!((level ? t->differ : t->differ_in) >> k & 1)) continue;
      memmove(x.shape + 1, x.shape, x.rank * sizeof *x.shape);
      x.shape[0] = level ? t->lanes : t->vmap_in;
      x.rank++;
    }
    inputs[k] = graph_input(g, x, 0);
  }
  batch_begin(&outer, g, NULL, t->lanes, g->n);
  for (uint32_t k = 0; k < t->lane->ninputs; k++)
    if (t->differ >> k & 1) inputs[k] = batch_lane(&outer, inputs[k], 0);
  bool ok = batch_advance(&outer, &culprit, &why);
  batch_begin(&inner, g, &outer, t->vmap_in, g->n);
  for (uint32_t k = 0; k < t->lane->ninputs; k++)
    map[t->lane->inputs[k]] = t->differ_in >> k & 1 ? batch_lane(&inner, inputs[k], 0) : inputs[k];
  for (uint32_t i = 1; i < n && ok; i++) {
    if (t->lane->nodes[i].kind != NODE_INPUT) map[i] = graph_node_copy(g, t->lane, i, map);
    if (rng_below(r, 3) == 0) ok = batch_advance(rng_below(r, 2) ? &outer : &inner, &culprit, &why);
  }
  ok = ok && batch_advance(&inner, &culprit, &why);
  for (uint32_t i = 1; i < n && ok; i++) whole[i] = batch_whole(&inner, map[i]) ? batch_whole(&inner, map[i]) : map[i];
  for (uint32_t i = 1; i < n && ok; i++) ck_assert_msg(graph_elements(g, &g->nodes[whole[i]].type) >= 0, "%%%u", i);
  uint32_t *inner_bits = calloc(n, sizeof *inner_bits);
  for (uint32_t i = 1; i < n && ok; i++) inner_bits[i] = batch_whole(&inner, map[i]) ? 2 : 0;
  batch_end(&inner);
  ok = ok && batch_advance(&outer, &culprit, &why);
  for (uint32_t i = 1; i < n && ok; i++) {
    uint32_t w = batch_whole(&outer, whole[i]);
    map[i] = inner_bits[i] | (w ? 1 : 0);
    if (w) whole[i] = w;
  }
  free(inner_bits);
  batch_end(&outer);
  if (ok) return g;
  ck_assert_msg(why.id == E_rank || why.id == E_not_batched, "E%d %s\n%s", why.id, why.text, printed(g));
  graph_free(g);
  return NULL;
}

static void nested_data(const trial *t, uint32_t k, int a, int b, double *to) {
  const graph_type *x = &t->lane->nodes[t->lane->inputs[k]].type;
  int64_t n = elements(t->lane, x);
  int lane = (t->differ >> k & 1 ? a : 0) * 2 + (t->differ_in >> k & 1 ? b : 0);
  for (int64_t i = 0; i < n; i++) { /* of data[k][l], another element for every pair of lanes */
    double v = t->data[k][lane % MOST_LANES][(i + lane / MOST_LANES) % n];
    to[i] = v;
  }
}

static bool run_nested(const trial *t, rng *r) {
  uint32_t *bits = calloc(t->lane->n, sizeof *bits), *whole = calloc(t->lane->n, sizeof *whole);
  graph *g = nested_graph(t, bits, whole, r);
  bool compared = false;
  if (!g) goto done;
  check_graph(g);
  for (uint32_t i = 1; i < t->lane->n; i++) graph_output(g, whole[i]);
  graph_dce(g);
  check_graph(g);
  eval all, one;
  eval_init(&all, g, NULL);
  for (uint32_t k = 0; k < g->ninputs; k++) {
    static double data[64 * MOST_ELEMENTS];
    int64_t n = elements(t->lane, &t->lane->nodes[t->lane->inputs[k]].type), at = 0;
    for (int a = 0; a < (t->differ >> k & 1 ? t->lanes : 1); a++)
      for (int b = 0; b < (t->differ_in >> k & 1 ? t->vmap_in : 1); b++, at += n) nested_data(t, k, a, b, data + at);
    eval_input(&all, k, data);
  }
  bool ran = eval_run(&all), raises = false;
  for (int a = 0; a < t->lanes; a++)
    for (int b = 0; b < t->vmap_in; b++) {
      eval_init(&one, t->lane, NULL);
      for (uint32_t k = 0; k < t->lane->ninputs; k++) {
        double data[MOST_ELEMENTS];
        nested_data(t, k, a, b, data);
        eval_input(&one, k, data);
      }
      raises |= !eval_run(&one);
      for (uint32_t i = 1; ran && i < t->lane->n; i++) {
        const eval_value *lane = &one.v[i], *w = &all.v[g->outputs[i - 1]];
        int64_t at = (bits[i] & 1 ? a : 0) * (bits[i] & 2 ? t->vmap_in : 1) + (bits[i] & 2 ? b : 0);
        ck_assert_int_eq(w->rank, lane->rank + (bits[i] & 1) + (bits[i] >> 1));
        for (int64_t e = 0; e < lane->n; e++)
          ck_assert_msg(eval_same_element(lane, e, w, at * lane->n + e),
                        "%%%u, lane %d, %d, element %d: %g and %g\n%s%s", i, a, b, (int)e, eval_num(lane, e),
                        eval_num(w, at * lane->n + e), printed(t->lane), printed(g));
      }
      eval_free(&one);
    }
  ck_assert(ran == !raises);
  eval_free(&all);
  compared = ran;
  graph_free(g);
done:
  free(bits);
  free(whole);
  return compared;
}

START_TEST(batches_inside_batches) {
  trial *t = calloc(1, sizeof *t);
  int compared = 0;
  for (int seed = 0; seed < 60; seed++) {
    uint64_t s = (uint64_t)(_i * 1000 + seed + 50000);
    random_options o = {.nodes = 3 + (int)(s % 20)};
    rng r = {s * 17 + 3};
    graph *g = batchable(s, &o);
    if (!g) continue;
    t->lane = g;
    t->differ = t->differ_in = ~0u; /* other data everywhere */
    draw_data(t, &r, false);
    t->differ = arrays_among_inputs(g, rng_next(&r));
    t->differ_in = arrays_among_inputs(g, rng_next(&r));
    t->lanes = 1 + rng_below(&r, 3);
    t->vmap_in = 1 + rng_below(&r, 2);
    compared += run_nested(t, &r);
    graph_free(g);
  }
  free(t);
  ck_assert_int_gt(compared, 5);
}
END_TEST

/* ---- gradients -------------------------------------------------------------------------------------------------------------------- */

/* Appends a scalar that weighs every element of x differently. */
static uint32_t weighted(graph *g, uint32_t x) {
  qn_dim n = graph_elements(g, &g->nodes[x].type);
  op_attr flat = {.n = 1, .d = {n}}, count = {.dtype = g->nodes[x].type.dtype, .axes = 1, .n = 1, .d = {n}},
          all = {.axes = 1};
  uint32_t index = graph_op(g, OP_iota, NULL, 0, &count, 0), in[] = {graph_op(g, OP_reshape, &x, 1, &flat, 0), 0};
  in[1] = graph_op(g, OP_cos, &index, 1, NULL, 0);
  uint32_t product = graph_op(g, OP_mul, in, 2, NULL, 0);
  return graph_op(g, OP_sum, &product, 1, &all, 0);
}

static bool is_float(const graph *g, uint32_t node) { return dtype_is_float((qn_dtype)g->nodes[node].type.dtype); }

static int differentiate(graph *g, uint32_t root, const uint32_t *wrt, int nwrt, uint32_t *grads) {
  op_refusal why;
  uint32_t culprit;
  return graph_grad(g, 1, root, 0, wrt, nwrt, grads, &culprit, &why);
}

/* Gradients that the lanes compute, and gradients of what the lanes compute together. */
START_TEST(gradients_of_lanes_and_lanes_of_gradients) {
  trial *t = calloc(1, sizeof *t);
  int of_gradients = 0, of_lanes = 0;
  for (int seed = 0; seed < 40; seed++) {
    uint64_t s = (uint64_t)(_i * 1000 + seed + 90000);
    random_options o = {.floats_only = true, .nodes = 2 + (int)(s % 12)};
    rng r = {s * 13 + 1};
    graph *g = batchable(s, &o);
    if (!g) continue;
    uint32_t x = g->n - 1, grads[MOST_INPUTS], wrt[MOST_INPUTS];
    if (g->nodes[x].type.weak || g->nodes[x].type.dtype != QN_f64) {
      graph_free(g);
      continue;
    }
    uint32_t root = weighted(g, x);
    graph *without = graph_copy(g);
    for (uint32_t k = 0; k < g->ninputs; k++) wrt[k] = g->inputs[k];
    ck_assert(differentiate(g, root, wrt, (int)g->ninputs, grads));
    t->lane = g;
    t->differ = (unsigned)rng_next(&r) | 1;
    t->lanes = 1 + rng_below(&r, MOST_LANES);
    t->symbolic = false;
    uint32_t culprit = 0;
    op_refusal why = {0};
    draw_data(t, &r, false);
    outcome got = run_trial(t, &culprit, &why); /* lanes of gradients */
    if (got == REFUSED) ck_assert_msg(may_refuse(g, culprit, &why), "E%d %s\n%s", why.id, why.text, printed(g));
    of_gradients += got == EQUAL;
    /* The gradient of the lanes' sum: for what differs, each lane's own; for what they share, the sum of theirs. */
    trial *u = calloc(1, sizeof *u);
    *u = *t;
    u->lane = without;
    graph_batch b;
    uint32_t *map = calloc(without->n, sizeof *map);
    graph *h = whole_graph(u, map, &b);
    uint32_t whole = 0;
    if (batch_advance(&b, &culprit, &why)) whole = batch_whole(&b, map[root]);
    batch_end(&b);
    bool narrow = false; /* sums of the gradients are rounded there */
    for (uint32_t i = 1; i < without->n; i++) narrow |= without->nodes[i].type.dtype != QN_f64 && is_float(without, i);
    if (whole && got == EQUAL && !narrow) {
      op_attr all = {.axes = 1};
      uint32_t sum = graph_op(h, OP_sum, &whole, 1, &all, 0), together[MOST_INPUTS];
      for (uint32_t k = 0; k < h->ninputs; k++) wrt[k] = h->inputs[k];
      ck_assert(differentiate(h, sum, wrt, (int)h->ninputs, together));
      check_graph(h);
      for (uint32_t k = 0; k < h->ninputs; k++) graph_output(h, together[k] ? together[k] : h->inputs[k]);
      graph_dce(h);
      eval e, lane[MOST_LANES];
      eval_init(&e, h, NULL);
      for (uint32_t k = 0; k < h->ninputs; k++) set_input(&e, u, k, -1);
      ck_assert(eval_run(&e));
      for (int l = 0; l < t->lanes; l++) {
        eval_init(&lane[l], g, NULL);
        for (uint32_t k = 0; k < g->ninputs; k++) set_input(&lane[l], t, k, l);
        ck_assert(eval_run(&lane[l]));
      }
      for (uint32_t k = 0; k < h->ninputs; k++) {
        ck_assert_int_eq(together[k] == 0, grads[k] == 0);
        if (!together[k]) continue;
        const eval_value *v = &e.v[h->outputs[k]];
        bool differs = t->differ >> k & 1;
        int64_t n = elements(g, &g->nodes[g->inputs[k]].type);
        for (int64_t i = 0; i < n; i++) {
          double share = 0, size = 0;
          for (int l = 0; l < t->lanes; l++) {
            double one = lane[l].v[grads[k]].f[i];
            double have = v->f[differs ? l * n + i : i];
            share += one;
            size += fabs(one);
            if (differs)
              ck_assert_msg(fabs(have - one) <= 1e-9 * (1 + fabs(one)) || !(one - one == 0),
                            "input %u: %g and %g\n%s%s", k, have, one, printed(g), printed(h));
          }
          if (!differs)
            ck_assert_msg(fabs(v->f[i] - share) <= 1e-9 * (1 + size) || !(share - share == 0),
                          "input %u: %g and %g\n%s", k, v->f[i], share, printed(h));
        }
      }
      of_lanes++;
      eval_free(&e);
      for (int l = 0; l < t->lanes; l++) eval_free(&lane[l]);
    }
    free(map);
    free(u);
    graph_free(h);
    graph_free(g);
    graph_free(without);
  }
  free(t);
  ck_assert_int_gt(of_gradients, 5);
  ck_assert_int_gt(of_lanes, 5);
}
END_TEST

/* The gradient by a host float is a host float: in lanes an f64 array. */
START_TEST(gradients_by_host_floats) {
  char message[200];
  graph *g = graph_parse("graph(%1: f32[4], %2: weak f64) {\n"
                         "  %3 = fit %2 dtype=f32 : f32[]\n"
                         "  %4 = mul %1, %3 : f32[4]\n"
                         "  %5 = mul %4, %4 : f32[4]\n"
                         "  %6 = sum %5 axes=[0] : f32[]\n"
                         "  return %6\n}\n",
                         message, sizeof message);
  ck_assert_msg(g != NULL, "%s", message);
  uint32_t wrt = g->inputs[1], grad;
  ck_assert(differentiate(g, g->outputs[0], &wrt, 1, &grad));
  ck_assert(g->nodes[grad].type.weak);
  trial *t = calloc(1, sizeof *t);
  t->lane = g;
  t->differ = 1;
  t->lanes = 3;
  rng r = {7};
  uint32_t culprit;
  op_refusal why;
  draw_data(t, &r, false);
  ck_assert_int_eq(run_trial(t, &culprit, &why), EQUAL);
  free(t);
  graph_free(g);
}
END_TEST

/* ---- draws, products, refusals, memory -------------------------------------------------------------------------------------------------- */

static graph_type of(qn_dtype d, int rank, int64_t a, int64_t b, int64_t c) {
  graph_type t = {.dtype = (uint8_t)d, .rank = (uint8_t)rank, .shape = {a, b, c}};
  return t;
}

static uint32_t advanced(graph_batch *b, uint32_t node) {
  uint32_t culprit;
  op_refusal why = {0};
  ck_assert_msg(batch_advance(b, &culprit, &why), "%s", why.text);
  return batch_whole(b, node);
}

START_TEST(draws_without_a_key_are_one_draw_of_all_lanes) {
  graph *g = graph_new(NULL);
  graph_type weak = {.dtype = QN_i64, .weak = true};
  uint32_t keys[3] = {graph_input(g, weak, 0), graph_input(g, weak, 0), graph_input(g, weak, 0)};
  graph_batch outer, inner;
  op_attr attr = {.dtype = QN_f32, .n = 1, .d = {3}}, keyed = attr;
  keyed.mode = DRAW_KEYED;
  batch_begin(&outer, g, NULL, 4, g->n);
  batch_begin(&inner, g, &outer, 2, g->n);
  uint32_t draw = graph_op(g, OP_random_normal, keys, 3, &attr, 0),
           same = graph_op(g, OP_random_normal, keys, 3, &keyed, 0);
  uint32_t lanes = advanced(&inner, draw);
  ck_assert_uint_ne(lanes, 0);
  ck_assert_uint_eq(batch_whole(&inner, same), 0);
  graph_type two = of(QN_f32, 2, 2, 3, 0), three = of(QN_f32, 3, 4, 2, 3);
  ck_assert(graph_type_same(&g->nodes[lanes].type, &two));
  uint32_t all = advanced(&outer, lanes), n = g->n;
  ck_assert(graph_type_same(&g->nodes[all].type, &three));
  ck_assert(g->nodes[all].op == OP_random_normal && memcmp(g->nodes[all].in, keys, sizeof keys) == 0);
  ck_assert_uint_eq(batch_whole(&outer, draw),
                    0); /* a lane of the inner batch has no lanes of its own in the outer one */
  advanced(&inner, draw);
  advanced(&outer, draw);
  ck_assert_uint_eq(g->n, n); /* what batches have appended is nobody's lane */
  batch_end(&inner);
  advanced(&outer, draw);
  ck_assert_uint_eq(g->n, n);
  batch_end(&outer);
  check_graph(g);
  graph_free(g);
}
END_TEST

/* Lanes that share an operand without batch axes stay one product of matrices where they can be its rows. Products of two vectors are sums in
 * each lane, so they are sums along the last axis. */
START_TEST(products_stay_products_of_matrices) {
  static const struct {
    int x, y; /* ranks */
    bool of_x, of_y;
    int rx, ry; /* ranks of the product's operands */
  } cases[] = {{1, 2, true, false, 2, 2}, {2, 1, false, true, 2, 2}, {1, 1, true, false, 2, 1},
               {1, 1, false, true, 1, 2}, {2, 2, true, false, 3, 2}, {2, 1, true, false, 3, 1},
               {2, 2, false, true, 2, 3}, {2, 2, true, true, 3, 3},  {1, 1, true, true, 2, 2}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    graph *g = graph_new(NULL);
    graph_type x = cases[i].x == 1 ? of(QN_f32, 1, 3, 0, 0) : of(QN_f32, 2, 2, 3, 0),
               y = cases[i].y == 1 ? of(QN_f32, 1, 3, 0, 0) : of(QN_f32, 2, 3, 5, 0);
    graph_type *both[] = {&x, &y};
    uint32_t in[2];
    graph_batch b;
    for (int k = 0; k < 2; k++) {
      graph_type t = *both[k];
      if (k ? cases[i].of_y : cases[i].of_x) {
        memmove(t.shape + 1, t.shape, t.rank * sizeof *t.shape);
        t.shape[0] = 7;
        t.rank++;
      }
      in[k] = graph_input(g, t, 0);
    }
    batch_begin(&b, g, NULL, 7, g->n);
    for (int k = 0; k < 2; k++)
      if (k ? cases[i].of_y : cases[i].of_x) in[k] = batch_lane(&b, in[k], 0);
    uint32_t dot = graph_op(g, OP_dot, in, 2, NULL, 0), whole = advanced(&b, dot);
    while (g->nodes[whole].op == OP_reshape) whole = g->nodes[whole].in[0];
    if (x.rank == 1 && y.rank == 1) {
      ck_assert_int_eq(g->nodes[whole].op, OP_sum);
      ck_assert_int_eq(g->nodes[whole].attr->axes, 2);
      whole = g->nodes[whole].in[0];
      ck_assert_int_eq(g->nodes[whole].op, OP_mul);
    } else {
      ck_assert_int_eq(g->nodes[whole].op, OP_dot);
    }
    ck_assert_int_eq(g->nodes[g->nodes[whole].in[0]].type.rank, cases[i].rx);
    ck_assert_int_eq(g->nodes[g->nodes[whole].in[1]].type.rank, cases[i].ry);
    batch_end(&b);
    check_graph(g);
    graph_free(g);
  }
}
END_TEST

START_TEST(refusals_say_what_to_write) {
  static const struct {
    op_id op;
    graph_type x, y;
    op_attr attr;
    int id;
    const char *text;
  } cases[] = {
      {OP_compress,
       {.dtype = QN_f32, .rank = 1, .shape = {5}},
       {.dtype = QN_bool, .rank = 1, .shape = {5}},
       {0},
       E_not_batched,
       "where(mask, x, 0)"},
      {OP_nonzero, {.dtype = QN_bool, .rank = 1, .shape = {5}}, {0}, {0}, E_not_batched, "number of elements"},
      {OP_cast, {.dtype = QN_bool}, {0}, {.dtype = QN_bool, .flags = ATTR_WEAK}, E_not_batched, "bool cannot differ"},
      {OP_broadcast, {.dtype = QN_f32}, {0}, {.n = 8, .d = {1, 1, 1, 1, 1, 1, 1, 2}}, E_rank, "9 axes"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    graph *g = graph_new(NULL);
    graph_batch b;
    const graph_type *both[] = {&cases[i].x, &cases[i].y};
    uint32_t in[2], culprit;
    int nin = op_rows[cases[i].op].arity;
    for (int k = 0; k < nin; k++) {
      graph_type t = *both[k];
      memmove(t.shape + 1, t.shape, t.rank * sizeof *t.shape);
      t.shape[0] = 2;
      t.rank++;
      in[k] = graph_input(g, t, 0);
    }
    batch_begin(&b, g, NULL, 2, g->n);
    for (int k = 0; k < nin; k++) in[k] = batch_lane(&b, in[k], 0);
    uint32_t node = graph_op(g, cases[i].op, in, nin, &cases[i].attr, 0);
    op_refusal why = {0};
    ck_assert(!batch_advance(&b, &culprit, &why));
    ck_assert_uint_eq(culprit, node);
    ck_assert_int_eq(why.id, cases[i].id);
    ck_assert_msg(strstr(why.text, cases[i].text) != NULL, "%s", why.text);
    batch_end(&b);
    graph_free(g);
  }
}
END_TEST

START_TEST(every_allocation_can_fail) {
  qn_vm *vm = vm_make();
  bool done = false;
  for (uint64_t fail = 1; !done; fail++) {
    mem_fail_at(vm, fail);
    graph *g = graph_new(vm);
    if (g) {
      graph_batch b, inner;
      op_refusal why = {0};
      uint32_t culprit, x = graph_input(g, of(QN_f32, 3, 3, 2, 2), 0);
      batch_begin(&b, g, NULL, 3, g->n);
      uint32_t lane = batch_lane(&b, x, 0);
      batch_begin(&inner, g, &b, 2, g->n);
      uint32_t in[9] = {batch_lane(&inner, lane, 0)};
      op_attr axis = {.axes = 1}, index = {.n = 1, .d = {1}};
      for (int k = 1; k < 9; k++) in[k] = in[0];
      uint32_t many = graph_op(g, OP_concat, in, 9, &axis, 0);
      uint32_t pick[] = {many, graph_op(g, OP_argsort, &in[0], 1, &axis, 0)};
      uint32_t out = graph_op(g, OP_index, pick, 2, &index, 0);
      for (int k = 0; k < 40; k++) out = graph_op(g, OP_tanh, &out, 1, NULL, 0);
      bool ok = out && batch_advance(&b, &culprit, &why);
      if (!ok) ck_assert(g->failed && (!out || why.id == E_memory));
      done = ok && !g->failed;
      batch_end(&inner);
      batch_end(&b);
      done = done && !g->failed;
      graph_free(g);
    }
    mem_fail_at(vm, 0);
    error_clear(vm);
  }
  vm_close(vm);
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
  tcase_add_loop_test(random, batches_inside_batches, 0, 6);
  TCase *gradients = tcase_create("gradients");
  tcase_add_loop_test(gradients, gradients_of_lanes_and_lanes_of_gradients, 0, 6);
  tcase_add_test(gradients, gradients_by_host_floats);
  suite_add_tcase(s, gradients);
  TCase *rules = tcase_create("rules");
  tcase_add_test(rules, draws_without_a_key_are_one_draw_of_all_lanes);
  tcase_add_test(rules, products_stay_products_of_matrices);
  tcase_add_test(rules, refusals_say_what_to_write);
  tcase_add_test(rules, every_allocation_can_fail);
  suite_add_tcase(s, rules);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_ENV);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed != 0;
}
