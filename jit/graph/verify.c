/* What a graph may look like. graph_verify checks every invariant of graph.h; passes and parsed texts go through it in
 * checked builds, so whatever the later floors receive has been looked at.
 *
 * Types are checked by inferring them again, with a copy of the table of dims, so that the graph gets no new facts. Where a fact says
 * that two sizes are equal, a node may have either, so two symbolic sizes agree if they had the same value in the recorded call.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "jit/graph/graph.h"
#include "lang/mem.h"

typedef struct verifier {
  const graph *g;
  dim_table dims; /* a copy of the graph's */
  char *why;
  size_t size;
  uint32_t node; /* being looked at */
} verifier;

__attribute__((format(printf, 2, 3))) static bool wrong(const verifier *v, const char *format, ...) {
  int n = v->node ? snprintf(v->why, v->size, "%%%u: ", (unsigned)v->node) : 0;
  va_list args;
  va_start(args, format);
  if (n >= 0 && (size_t)n < v->size) vsnprintf(v->why + n, v->size - (size_t)n, format, args);
  va_end(args);
  return false;
}

/* ---- dims, places, types ------------------------------------------------------------------------------------------ */

static bool dim_ok(const dim_table *t, qn_dim d) { return d >= 0 || ~d < (qn_dim)t->n; }

static bool check_dims(const verifier *v) {
  const graph *g = v->g;
  const dim_table *t = &g->dims;
  for (uint32_t i = 0; i < t->n; i++) {
    const dim_expr *e = &t->exprs[i];
    if (e->op > DIM_MAX) return wrong(v, "dim %u has an unknown operation", (unsigned)i);
    if (e->op != DIM_SYMBOL) {
      if ((e->a < 0 && ~e->a >= (qn_dim)i) || (e->b < 0 && ~e->b >= (qn_dim)i))
        return wrong(v, "dim %u has an operand behind it", (unsigned)i);
      if (e->size == 0 || e->size > DIM_MAX_SIZE) return wrong(v, "dim %u has a wrong size", (unsigned)i);
      continue;
    }
    bool known = false;
    switch ((dim_source)e->source) {
    case DIM_FROM_INPUT: known = e->ref < g->ninputs && g->nodes[g->inputs[e->ref]].type.rank > e->axis; break;
    case DIM_FROM_SCALAR: known = e->ref < g->ninputs && g->nodes[g->inputs[e->ref]].type.rank == 0; break;
    case DIM_FROM_NODE:
      known = e->ref < g->n && (e->ref == 0 || g->nodes[e->ref].kind == NODE_OP || g->nodes[e->ref].kind == NODE_PROJ);
      break;
    case DIM_FROM_NUMBER:
      known = e->ref < g->n && (e->ref == 0 || (g->nodes[e->ref].type.weak && g->nodes[e->ref].type.dtype == WEAK_INT));
      break;
    }
    if (!known) return wrong(v, "dim %u has no source", (unsigned)i);
    if (e->hint < 0 && e->source != DIM_FROM_SCALAR && e->source != DIM_FROM_NUMBER)
      return wrong(v, "dim %u has a negative hint", (unsigned)i);
  }
  for (uint32_t i = 0; i < t->nfacts; i++) {
    const dim_fact *f = &t->facts[i];
    if (!dim_ok(t, f->a) || !dim_ok(t, f->b) || f->relation > DIM_LE)
      return wrong(v, "fact %u is not one", (unsigned)i);
  }
  return true;
}

static bool check_sites(const verifier *v) {
  for (uint32_t i = 1; i < v->g->nsites; i++)
    if (v->g->sites[i].parent >= i) return wrong(v, "site %u is under a later one", (unsigned)i);
  return true;
}

static bool check_type(const verifier *v, const graph_type *t) {
  if (!dtype_public(t->dtype)) return wrong(v, "no array has dtype number %d", t->dtype);
  if (t->rank > ARRAY_MAX_RANK) return wrong(v, "rank %d", t->rank);
  if (t->weak && (t->rank || !dtype_is_weak(t->dtype)))
    return wrong(v, "a weak scalar has rank 0 and dtype bool, i64 or f64");
  for (int i = 0; i < t->rank; i++)
    if (!dim_ok(&v->g->dims, t->shape[i])) return wrong(v, "size of axis %d is no dim", i);
  return true;
}

/* Are two types the same, but for symbolic sizes that a fact may say are equal? */
static bool types_agree(const verifier *v, const graph_type *a, const graph_type *b) {
  if (a->dtype != b->dtype || a->rank != b->rank || a->weak != b->weak) return false;
  for (int i = 0; i < a->rank; i++)
    if (a->shape[i] != b->shape[i] &&
        (dim_is_number(&v->dims, a->shape[i]) || dim_is_number(&v->dims, b->shape[i]) ||
         (a->shape[i] >= 0 && b->shape[i] >= 0) || dim_hint(&v->dims, a->shape[i]) != dim_hint(&v->dims, b->shape[i])))
      return false;
  return true;
}

/* ---- nodes ---------------------------------------------------------------------------------------------------------- */

static bool check_attr(const verifier *v, const graph_node *n) {
  op_id op = (op_id)n->op;
  if (!n->attr) return !op_has_attr(op) || wrong(v, "%s has no attributes", op_rows[op].name);
  if (n->attr->n > OP_ATTR_DIMS) return wrong(v, "too many attributes");
  if (n->attr->mode > SCATTER_MAX) return wrong(v, "unknown mode");
  uint8_t across = n->attr->flags & (ATTR_X_ACROSS | ATTR_Y_ACROSS), library = n->attr->flags & ATTR_LIBRARY;
  if ((library && op != OP_dot) || (across && op != OP_gemm && !library))
    return wrong(v, "%s is no product of the library", op_rows[op].name);
  for (int i = 0; i < 2 && across; i++)
    if ((across & (i ? ATTR_Y_ACROSS : ATTR_X_ACROSS)) && v->g->nodes[n->in[i]].type.rank < 2)
      return wrong(v, "operand %d is a vector", i);
  for (int i = 0; i < n->attr->n; i++)
    if (op_attr_is_dim(op, i) && !dim_ok(&v->g->dims, n->attr->d[i]))
      return wrong(v, "entry %d of an attribute is no dim", i);
  return true;
}

static bool check_strict(const verifier *v, const graph_node *n, const op_types *o) {
  for (int i = 0; i < n->nin; i++) {
    const graph_type *t = &v->g->nodes[n->in[i]].type;
    bool ok = true;
    switch (op_operand_role((op_id)n->op, i, n->nin)) {
    case ROLE_DATA: ok = t->dtype == o->compute && t->weak == o->weak; break;
    case ROLE_CONDITION: ok = t->weak == o->weak; break;
    case ROLE_INDEX: ok = !t->weak; break;
    case ROLE_AS_IS:
    case ROLE_KEY: break;
    }
    if (!ok) return wrong(v, "operand %d of %s is not strict", i, op_rows[n->op].name);
  }
  return true;
}

static bool check_op(verifier *v, const graph_node *n) {
  graph_type few[16] = {0}, *types = few;
  if (n->op >= OP_COUNT) return wrong(v, "unknown op");
  if (!check_attr(v, n)) return false;
  if (n->nin > 16 && !(types = arena_alloc(v->dims.arena, n->nin * sizeof *types))) return wrong(v, "out of memory");
  for (int i = 0; i < n->nin; i++) types[i] = v->g->nodes[n->in[i]].type;
  op_attr attr = graph_attr(n);
  op_types o;
  op_refusal why;
  if (!op_infer(&v->dims, (op_id)n->op, types, n->nin, &attr, &o, &why)) return wrong(v, "%s", why.text);
  if (n->op == OP_dot && dot_is_sum(types[0].rank, types[1].rank)) return wrong(v, "dot of two vectors is mul and sum");
  graph_type inferred = o.result;
  if (op_rows[n->op].shape_rule == SH_data)
    inferred.shape[0] = n->type.shape[0]; /* op_infer gives the upper bound, the node has a symbol */
  if (!types_agree(v, &inferred, &n->type))
    return wrong(v, "%s has another type than its operands give", op_rows[n->op].name);
  return check_strict(v, n, &o);
}

static bool check_const(const verifier *v, const graph_node *n) {
  if (!n->payload.data) return wrong(v, "a constant without elements");
  for (int i = 0; i < n->type.rank; i++)
    if (n->type.shape[i] < 0) return wrong(v, "a constant has plain sizes");
  return true;
}

/* Are two types, of different graphs, the same but for sizes of which one is symbolic? */
static bool same_kind(const graph_type *a, const graph_type *b) {
  if (a->dtype != b->dtype || a->rank != b->rank || a->weak != b->weak) return false;
  for (int i = 0; i < a->rank; i++)
    if (a->shape[i] >= 0 && b->shape[i] >= 0 && a->shape[i] != b->shape[i]) return false;
  return true;
}

/* Checks region r of node n, whose inputs must have the types of operands from..nin-1. */
static bool check_region(const verifier *v, const graph_node *n, const graph *r, int from) {
  char inner[200];
  if (!r) return wrong(v, "a region is missing");
  if (r->ninputs != (uint32_t)(n->nin - from)) return wrong(v, "a region takes %u inputs", (unsigned)r->ninputs);
  for (uint32_t i = 0; i < r->ninputs; i++) {
    const graph_type *a = &r->nodes[r->inputs[i]].type, *b = &v->g->nodes[n->in[from + (int)i]].type;
    if (!same_kind(a, b)) return wrong(v, "input %u of a region has another type than its operand", (unsigned)i);
  }
  return graph_verify(r, inner, sizeof inner) || wrong(v, "in a region: %s", inner);
}

static bool is_condition(const graph *g, uint32_t node) {
  return dtype_is_bool(g->nodes[node].type.dtype) && g->nodes[node].type.rank == 0;
}

/* Checks a call whose derivative is given, which is a branch. */
static bool check_rule(const verifier *v, const graph_node *n) {
  const graph *passes = n->payload.regions[0];
  uint64_t made = (uint64_t)n->attr->d[0], by = (uint64_t)n->attr->d[1];
  qn_value is;
  if (!graph_const_value(v->g, n->in[0], &is) || !is.u.i) return wrong(v, "a rule needs a predicate that is true");
  if (made > passes->noutputs || by > passes->ninputs || made + by != passes->noutputs ||
      2 * made + by > passes->ninputs)
    return wrong(v, "a rule has more results or arguments than its regions");
  for (uint32_t k = 0; k < made; k++)
    if (passes->outputs[k] != passes->inputs[k]) return wrong(v, "a rule passes its results on");
  return true;
}

static bool check_if(const verifier *v, const graph_node *n) {
  const graph *a = n->payload.regions[0], *b = n->payload.regions[1];
  if (n->nin == 0 || !is_condition(v->g, n->in[0])) return wrong(v, "if needs a bool");
  if (!check_region(v, n, a, 1) || !check_region(v, n, b, 1)) return false;
  if (a->noutputs != b->noutputs) return wrong(v, "arms give different numbers of results");
  for (uint32_t i = 0; i < a->noutputs; i++)
    if (!same_kind(&a->nodes[a->outputs[i]].type, &b->nodes[b->outputs[i]].type))
      return wrong(v, "result %u of the arms has two types", (unsigned)i);
  return !graph_is_rule(n) || check_rule(v, n);
}

static bool check_loop(const verifier *v, const graph_node *n) {
  const graph *header = n->payload.regions[0], *body = n->payload.regions[1];
  if (!check_region(v, n, header, 0) || !check_region(v, n, body, 0)) return false;
  if (header->noutputs != 1 || !is_condition(header, header->outputs[0]))
    return wrong(v, "a loop's header gives one bool");
  uint32_t carries = graph_loop_carries(n);
  int64_t slots = graph_loop_slots(n);
  if (carries > body->noutputs || carries > n->nin) return wrong(v, "a loop has more carries than operands or results");
  if (slots < 0 || (slots & (slots - 1)) || slots == 1) return wrong(v, "a loop's slots are no power of two");
  for (uint32_t i = 0; i < carries; i++)
    if (!same_kind(&body->nodes[body->outputs[i]].type, &v->g->nodes[n->in[i]].type))
      return wrong(v, "carry %u changes its type", (unsigned)i);
  return true;
}

static bool check_proj(const verifier *v, const graph_node *n) {
  const graph_node *of = n->nin == 1 ? &v->g->nodes[n->in[0]] : NULL;
  if (!of || (of->kind != NODE_IF && of->kind != NODE_LOOP)) return wrong(v, "proj needs a node with regions");
  if (n->payload.index >= graph_nresults(of)) return wrong(v, "no result %u", (unsigned)n->payload.index);
  graph_type made = graph_result_type(of, n->payload.index);
  if (of->kind == NODE_LOOP && n->payload.index >= graph_loop_carries(of) && made.rank && n->type.rank)
    made.shape[0] = n->type.shape[0]; /* how many rows there are is known when the loop has run */
  return same_kind(&n->type, &made) || wrong(v, "proj has another type than the result");
}

static bool gives_nothing(const graph_node *n) { return n->kind == NODE_TAP && !n->type.weak; }

static bool check_node(verifier *v, uint32_t i) {
  const graph_node *n = &v->g->nodes[i];
  v->node = i;
  if (!check_type(v, &n->type)) return false;
  if (n->site >= v->g->nsites) return wrong(v, "unknown site");
  for (int k = 0; k < n->nin; k++) {
    if (n->in[k] == 0 || n->in[k] >= i) return wrong(v, "operand %d is not an earlier node", k);
    if (gives_nothing(&v->g->nodes[n->in[k]])) return wrong(v, "operand %d is an effect", k);
    bool several = v->g->nodes[n->in[k]].kind == NODE_IF || v->g->nodes[n->in[k]].kind == NODE_LOOP;
    if (several && n->kind != NODE_PROJ) return wrong(v, "operand %d has several results", k);
  }
  switch ((graph_kind)n->kind) {
  case NODE_OP: return check_op(v, n);
  case NODE_INPUT:
    return (n->nin == 0 && n->payload.input < v->g->ninputs && v->g->inputs[n->payload.input] == i) ||
           wrong(v, "not among the inputs");
  case NODE_CONST: return check_const(v, n);
  case NODE_IF: return check_if(v, n);
  case NODE_LOOP: return check_loop(v, n);
  case NODE_PROJ: return check_proj(v, n);
  case NODE_TAP: return !n->type.weak || n->type.dtype == WEAK_FLOAT || wrong(v, "an effect reads no such number");
  }
  return wrong(v, "unknown kind");
}

static bool check_graph(verifier *v) {
  const graph *g = v->g;
  if (g->failed || g->arena.failed) return wrong(v, "memory ran out while it was built");
  for (uint32_t i = 0; i < g->ninputs; i++)
    if (g->inputs[i] == 0 || g->inputs[i] >= g->n || g->nodes[g->inputs[i]].kind != NODE_INPUT)
      return wrong(v, "input %u is no input", (unsigned)i);
  for (uint32_t i = 0; i < g->noutputs; i++)
    if (g->outputs[i] == 0 || g->outputs[i] >= g->n || gives_nothing(&g->nodes[g->outputs[i]]))
      return wrong(v, "output %u is no value", (unsigned)i);
  if (!check_dims(v) || !check_sites(v)) return false;
  if (!dim_table_copy(&v->dims, &g->dims, v->dims.arena)) return wrong(v, "out of memory");
  for (uint32_t i = 1; i < g->n; i++)
    if (!check_node(v, i)) return false;
  return true;
}

bool graph_verify(const graph *g, char *why, size_t size) {
  arena scratch;
  arena_init(&scratch, NULL);
  verifier v = {.g = g, .why = why, .size = size, .dims.arena = &scratch};
  bool ok = check_graph(&v);
  arena_free(&scratch);
  return ok;
}
