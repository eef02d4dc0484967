/* What is certain of sizes that are numbers of a program (sizes.h): of loops' turns, or of data.
 *
 * Where the ends of ranges do not tell, a proof (dim_bounds.h): in its table sizes of the recording outside of all arms and numbers of loops
 * that count are symbols, which are known by their place there, and by their node and the depth of their recording. What is left to ask
 * of sizes outside becomes a fact, and so a guard.
 *
 * Of other numbers, such as those that data decide, a proof knows what the program has found out on its way: an arm of a branch is only run where the
 * branch's condition has the arm's truth, and what has been checked before, or is a guard, holds. From `n != 0`, where n is no less than 0, follows
 * that `x[:n]` has a largest element. Such a condition is one of the premises of a proof: d is not negative if d - a is not, where a is not.
 */
#include "jit/graph/dim_bounds.h"
#include "jit/graph/match.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/sizes.h"
#include "jit/trace/vmap.h"

#include <limits.h>

static bool proof_number(struct recording *r, dim_proof *p, uint32_t node, int depth, qn_dim *d);

/* Does a node of r count items of a list? */
static bool is_count(const struct recording *r, uint32_t node) {
  for (uint32_t i = 0; i < r->counted.n; i++)
    if (r->counted.nodes[i] == node) return true;
  return false;
}

/* The symbol of a proof for expression i, a symbol, of the recording outside of all arms. (Those of sizes are never negative, whatever their bounds.) */
static qn_dim symbol_outside(dim_proof *p, uint32_t i, const dim_expr *e) {
  const dim_source source = e->source == DIM_FROM_NUMBER ? DIM_FROM_NUMBER : DIM_FROM_INPUT;
  return dim_symbol(&p->t, source, i, 0, e->hint, NULL);
}

/* A size of recording r in the table of a proof. */
static bool proof_size(struct recording *r, dim_proof *p, qn_dim d, int depth, qn_dim *to) {
  const dim_table *t = &r->g->dims;
  int64_t c;
  qn_dim a, b;
  if (dim_is_const(t, d, &c)) return *to = dim_const(&p->t, c), true;
  const dim_expr e = t->exprs[~d];
  if (e.op != DIM_SYMBOL) {
    if (!proof_size(r, p, e.a, depth, &a) || !proof_size(r, p, e.b, depth, &b)) return false;
    return *to = dim_make(&p->t, (dim_op)e.op, a, b), true;
  }
  if (r->arm && e.source == DIM_FROM_INPUT)
    return proof_size(r->outer, p, r->outer->g->nodes[r->captures[e.ref]].type.shape[e.axis], depth, to);
  if (r->arm && e.source == DIM_FROM_NUMBER) return proof_number(r, p, e.ref, depth, to);
  if (r->arm) return e.source == DIM_FROM_SCALAR && proof_number(r, p, r->g->inputs[e.ref], depth, to);
  if (sizes_fixed(t, d)) return *to = dim_const(&p->t, e.hint), true;
  *to = symbol_outside(p, (uint32_t)~d, &e);
  dim_bound bound = {BOUND_SIZE, true, SIZE_LEAST, 0};
  const bool counts = e.source == DIM_FROM_NODE || (e.source == DIM_FROM_NUMBER && is_count(r, e.ref));
  if (dim_is_late(t, d)) bound = (dim_bound){BOUND_UNKNOWN, counts, 0, 0};
  dim_proof_bound(p, *to, bound);
  return *to < 0;
}

/* How many recordings are around r. */
static uint16_t place_of(const struct recording *r) {
  uint16_t place = 0;
  for (; r->arm && place < UINT16_MAX; r = r->outer) place++;
  return place;
}

/* A number of which nothing is known but what the program finds out, or that it counts something. */
static qn_dim unknown_number(struct recording *r, dim_proof *p, uint32_t node) {
  const dim_table *t = &r->g->dims;
  qn_dim d = 0;
  for (uint32_t i = 0; i < t->n && !d; i++) { /* it may be a size already */
    const dim_expr *e = &t->exprs[i];
    if (r->arm || e->op != DIM_SYMBOL || e->source != DIM_FROM_NUMBER || !e->ref) continue;
    if (graph_same_value(r->g, e->ref, node)) d = symbol_outside(p, i, e);
  }
  if (!d) d = dim_symbol(&p->t, DIM_FROM_SCALAR, node, place_of(r), 0, NULL);
  dim_proof_bound(p, d, (dim_bound){BOUND_UNKNOWN, is_count(r, node), 0, 0});
  return d;
}

/* The number of a loop that counts, in its body r, in the table of a proof. */
static bool proof_count(struct recording *r, dim_proof *p, uint32_t node, int depth, qn_dim *d) {
  enum { DEEPEST = 64 };
  qn_dim ends[2];
  for (int i = 0; i < 2; i++) {
    const struct count_end *e = &r->count_ends[i];
    if (depth > DEEPEST) return false;
    ends[i] = 0;
    if (e->node && !proof_number((struct recording *)e->in, p, e->node, depth + 1, &ends[i])) return false;
    ends[i] = dim_make(&p->t, DIM_ADD, ends[i], dim_const(&p->t, e->more));
  }
  *d = dim_symbol(&p->t, DIM_FROM_SCALAR, node, place_of(r), 0, NULL);
  dim_proof_bound(p, *d, (dim_bound){BOUND_ENDS, true, ends[0], dim_make(&p->t, DIM_SUB, ends[1], 1)});
  return *d < 0;
}

/* The node that has the value of a node of g which is an int: of a number made of an array of one element, the array's. */
static uint32_t number_itself(const graph *g, uint32_t node) {
  for (;;) {
    const graph_node *n = &g->nodes[node];
    if (n->kind != NODE_OP || (n->op != OP_cast && n->op != OP_reshape)) return node;
    const graph_type *t = &g->nodes[n->in[0]].type;
    const bool wide = n->type.dtype == DTYPE_INDEX || (n->type.weak && n->type.dtype == WEAK_INT);
    if (!dtype_is_int((qn_dtype)t->dtype) || t->dtype == QN_u64 || (n->op == OP_cast && !wide)) return node;
    for (int k = 0; k < t->rank; k++)
      if (t->shape[k] != 1) return node;
    node = n->in[0];
  }
}

/* A number of recording r, `depth` numbers and operations away, in the table of a proof. */
static bool proof_number(struct recording *r, dim_proof *p, uint32_t node, int depth, qn_dim *d) {
  enum { DEEPEST = 64 };
  const graph_node *n = &r->g->nodes[node];
  qn_value v;
  dim_op op;
  qn_dim a, b;
  if (!n->type.weak || n->type.dtype != WEAK_INT || depth > DEEPEST || --p->left < 0) return false;
  if (graph_const_value(r->g, node, &v)) return *d = dim_const(&p->t, v.u.i), true;
  if (n->kind == NODE_OP && n->op == OP_neg)
    return proof_number(r, p, n->in[0], depth + 1, &a) && (*d = dim_make(&p->t, DIM_SUB, 0, a), true);
  if (n->kind == NODE_OP && n->nin == 2 && sizes_op_of((op_id)n->op, &op)) {
    if (!proof_number(r, p, n->in[0], depth + 1, &a) || !proof_number(r, p, n->in[1], depth + 1, &b)) return false;
    return *d = dim_make(&p->t, op, a, b), true;
  }
  if (n->kind != NODE_INPUT) return (*d = unknown_number(r, p, number_itself(r->g, node))) < 0;
  uint32_t k = n->payload.input;
  if (r->arm && r->count == k + 1) return proof_count(r, p, node, depth, d);
  if (r->arm && k >= r->carries) return proof_number(r->outer, p, r->captures[k], depth + 1, d);
  if (r->arm) return (*d = unknown_number(r, p, node)) < 0;
  if (sizes_of_number(r, node, &a)) return proof_size(r, p, a, depth, d);
  v = node < r->vals_cap ? r->vals[node] : value_unset();
  if (!value_is(v, TAG_INT) || !key_number(&r->observed_nodes, node)) return false;
  return *d = dim_const(&p->t, v.u.i), true;
}

/* A size of a proof as one of the recording outside of all arms. */
static qn_dim proof_outside(const dim_table *p, dim_table *t, qn_dim d) {
  int64_t c;
  if (dim_is_const(p, d, &c)) return dim_const(t, c);
  const dim_expr e = p->exprs[~d];
  if (e.op == DIM_SYMBOL) return ~(qn_dim)e.ref;
  return dim_make(t, (dim_op)e.op, proof_outside(p, t, e.a), proof_outside(p, t, e.b));
}

/* ---- premises ---------------------------------------------------------------------------------------------------------------------- */

enum {
  PREMISES = 8,
  LONGEST = 24,  /* operations in a size (dim_expr.size) of which premises are asked, or that is one */
  NUMBERS = 512, /* looked at */
  /* Steps: of a proof with premises, of all that are made for one size, and of all in a recording. */
  WITH_PREMISES = 24,
  SEARCH = 300,
  SEARCH_ALL = 20000
};

/* What is known where an arm is recorded. */
typedef struct premises {
  dim_proof *p;
  qn_dim holds[PREMISES], apart[PREMISES]; /* are not negative; are not 0 */
  int nholds, napart;
} premises;

static void add_premise(premises *s, qn_dim d) {
  const dim_table *t = &s->p->t;
  int64_t c;
  if (s->nholds < PREMISES && !dim_is_const(t, d, &c) && t->exprs[~d].size <= LONGEST) s->holds[s->nholds++] = d;
}

/* a relation b holds, both in the table of the proof. */
static void add_relation(premises *s, qn_dim a, dim_relation relation, qn_dim b) {
  dim_table *t = &s->p->t;
  const qn_dim more = dim_make(t, DIM_SUB, b, a);
  if (relation == DIM_LE || relation == DIM_EQ) add_premise(s, more);
  if (relation == DIM_LT) add_premise(s, dim_make(t, DIM_SUB, more, 1));
  if (relation == DIM_EQ) add_premise(s, dim_make(t, DIM_SUB, a, b));
  if (relation == DIM_NE && s->napart < PREMISES) s->apart[s->napart++] = more;
}

/* A number, or an array of one int, that a condition compares. False: nothing is known of it. */
static bool compared(struct recording *r, premises *s, uint32_t node, qn_dim *d) {
  const graph_node *n = &r->g->nodes[node];
  qn_value v;
  while (!n->type.weak && n->kind == NODE_INPUT && r->arm && n->payload.input >= r->carries) {
    node = r->captures[n->payload.input];
    r = r->outer;
    n = &r->g->nodes[node];
  }
  s->p->left = NUMBERS;
  if (n->type.weak) return proof_number(r, s->p, node, 0, d);
  if (!dtype_is_int((qn_dtype)n->type.dtype) || n->type.dtype == QN_u64) return false;
  for (int k = 0; k < n->type.rank; k++)
    if (n->type.shape[k] != 1) return false;
  if (graph_const_value(r->g, node, &v)) return value_is(v, TAG_INT) && (*d = dim_const(&s->p->t, v.u.i), true);
  return (*d = unknown_number(r, s->p, number_itself(r->g, node))) < 0;
}

/* A condition, `depth` operations down, has this truth. */
static void add_condition(struct recording *r, premises *s, uint32_t node, bool truth, int depth) {
  enum { DEEPEST = 16 };
  static const struct {
    uint8_t op, relation, otherwise; /* a relation b; and where that is false */
    bool turned;                     /* b relation a */
  } ops[] = {{OP_lt, DIM_LT, DIM_LE, false}, {OP_le, DIM_LE, DIM_LT, false}, {OP_gt, DIM_LT, DIM_LE, true},
             {OP_ge, DIM_LE, DIM_LT, true},  {OP_eq, DIM_EQ, DIM_NE, false}, {OP_ne, DIM_NE, DIM_EQ, false}};
  const graph_node *n = &r->g->nodes[node];
  if (n->kind == NODE_INPUT && r->arm && n->payload.input >= r->carries && depth < DEEPEST)
    add_condition(r->outer, s, r->captures[n->payload.input], truth, depth + 1);
  if (n->kind != NODE_OP || depth == DEEPEST) return;
  if (n->op == OP_invert || n->op == OP_reshape || (n->op == OP_cast && r->g->nodes[n->in[0]].type.dtype == DTYPE_TEST))
    add_condition(r, s, n->in[0], truth != (n->op == OP_invert), depth + 1);
  for (int k = 0; k < 2 && n->op == (truth ? OP_bitand : OP_bitor); k++)
    add_condition(r, s, n->in[k], truth, depth + 1);
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
    qn_dim a, b;
    if (n->op != ops[i].op || !compared(r, s, n->in[0], &a) || !compared(r, s, n->in[1], &b)) continue;
    const bool turned = ops[i].turned == truth; /* not (a < b): b <= a */
    const bool order = ops[i].op != OP_eq && ops[i].op != OP_ne;
    const dim_relation relation = (dim_relation)(truth ? ops[i].relation : ops[i].otherwise);
    if (order && turned)
      add_relation(s, b, relation, a);
    else
      add_relation(s, a, relation, b);
  }
}

/* What recording x, which is r or around it, has made sure of by now. */
static void add_facts(struct recording *x, premises *s) {
  const dim_table *t = &x->g->dims;
  for (uint32_t i = x->settled; i-- > 0;) {
    const dim_fact f = t->facts[i];
    qn_dim a, b;
    s->p->left = NUMBERS;
    if (s->nholds < PREMISES && (dim_is_number(t, f.a) || dim_is_number(t, f.b)) && proof_size(x, s->p, f.a, 0, &a) &&
        proof_size(x, s->p, f.b, 0, &b))
      add_relation(s, a, (dim_relation)f.relation, b);
  }
}

static bool follows(premises *s, qn_dim d, int depth);

/* follows, of a sum with min or max among its terms, by what these are. */
static bool follows_of_parts(premises *s, qn_dim d, int depth) {
  enum { DEEPEST = 4 };
  dim_term terms[DIM_TERMS];
  int64_t constant;
  dim_table *t = &s->p->t;
  const int n = depth < DEEPEST ? dim_terms(t, d, terms, &constant) : 0;
  for (int i = 0; i < n; i++) {
    const dim_expr e = t->exprs[~terms[i].of];
    if (terms[i].of >= 0 || (e.op != DIM_MIN && e.op != DIM_MAX)) continue;
    const qn_dim by = dim_const(t, terms[i].coef),
                 rest = dim_make(t, DIM_SUB, d, dim_make(t, DIM_MUL, by, terms[i].of)),
                 a = dim_make(t, DIM_ADD, rest, dim_make(t, DIM_MUL, by, e.a)),
                 b = dim_make(t, DIM_ADD, rest, dim_make(t, DIM_MUL, by, e.b));
    if ((e.op == DIM_MIN) == (terms[i].coef > 0)) return follows(s, a, depth + 1) && follows(s, b, depth + 1);
    return follows(s, a, depth + 1) || follows(s, b, depth + 1);
  }
  return false;
}

/* Is d never negative where the premises hold? */
static bool follows(premises *s, qn_dim d, int depth) {
  dim_table *t = &s->p->t;
  if (s->p->all <= 0) return false;
  if (dim_proves(s->p, d)) return true;
  for (int i = 0; i < s->nholds; i++)
    if (dim_proves(s->p, dim_make(t, DIM_SUB, d, s->holds[i]))) return true;
  for (int i = 0; i < s->nholds && !depth; i++)
    for (int k = i; k < s->nholds; k++)
      if (dim_proves(s->p, dim_make(t, DIM_SUB, dim_make(t, DIM_SUB, d, s->holds[i]), s->holds[k]))) return true;
  return follows_of_parts(s, d, depth);
}

/* Is d, a size in the table of a proof, never negative, by what is known in arm r? */
static bool follows_here(struct recording *r, dim_proof *p, qn_dim d) {
  premises s = {.p = p};
  struct recording *base = rec_base(r);
  const int each = p->each;
  if (d >= 0 || p->t.exprs[~d].size > LONGEST || base->searched > SEARCH_ALL) return false;
  if (rec_derivatives(r) || vmap_aside(r)) return false; /* (what an arm computes may be made outside of it there) */
  p->each = WITH_PREMISES;
  p->all = SEARCH;
  for (struct recording *x = r;; x = x->outer) {
    add_facts(x, &s);
    if (!x->arm) break;
    if (x->when) add_condition(x->outer, &s, x->when, x->when_truth, 0);
  }
  for (int i = 0; i < s.napart; i++) { /* what is not 0, and not negative, is 1 or more */
    const qn_dim x = s.apart[i], y = dim_make(&p->t, DIM_SUB, 0, x);
    if (follows(&s, x, 0))
      add_premise(&s, dim_make(&p->t, DIM_SUB, x, 1));
    else if (follows(&s, y, 0))
      add_premise(&s, dim_make(&p->t, DIM_SUB, y, 1));
  }
  const bool ok = s.nholds && follows(&s, d, 0);
  base->searched += (uint32_t)(SEARCH - p->all);
  p->each = each;
  p->all = INT_MAX;
  return ok;
}

/* sizes_certain; with `asks` what must hold of sizes outside of all arms becomes facts, else it must be one. */
static bool certain(struct recording *r, qn_dim d, bool asks) {
  if (r->arm && sizes_between(r, d).low >= 0) return true;
  arena a;
  dim_proof p;
  arena_init(&a, r->vm);
  dim_proof_init(&p, &a);
  p.left = NUMBERS;
  dim_table *t = &rec_base(r)->g->dims;
  bool ok = proof_size(r, &p, d, 0, &d) && !a.failed;
  if (ok && !dim_proves(&p, d) && !follows_here(r, &p, d)) {
    ok = dim_demands(&p, d);
    for (int i = 0; ok && i < p.ndemands; i++) ok = sizes_demand(t, proof_outside(&p.t, t, p.demands[i]), asks);
  }
  arena_free(&a);
  if (error_pending(r->vm)) error_clear(r->vm); /* of memory: then it is not known */
  return ok;
}

bool sizes_certain(struct recording *r, qn_dim d) { return certain(r, d, true); }

bool sizes_never_negative(struct recording *r, qn_dim d) { return certain(r, d, false); }

bool sizes_can_be(struct recording *r, const graph_type *t) {
  for (int k = 0; k < t->rank; k++) {
    if (!dim_is_number(&r->g->dims, t->shape[k])) continue;
    if (!sizes_certain(r, t->shape[k])) return false;
    /* (The value that stands in for a number may be negative, which no rule of shapes takes.) */
    dim_hint_agree(&r->g->dims, t->shape[k]);
  }
  return true;
}

/* The host ints outside of all arms that the numbers of loops around arm r lie between are guarded, as sizes are. Were any not guarded? */
static bool pin_ends(struct recording *r) {
  struct recording *base = rec_base(r), *active = r->vm->rec;
  uint32_t before = base->nobserved;
  for (struct recording *body = r; body->arm; body = body->outer) {
    for (int i = 0; i < 2 && body->count; i++) {
      struct recording *x = (struct recording *)body->count_ends[i].in;
      uint32_t node = body->count_ends[i].node;
      if (!node) continue;
      for (; x->arm && x->g->nodes[node].kind == NODE_INPUT && x->g->nodes[node].payload.input >= x->carries;
           x = x->outer)
        node = x->captures[x->g->nodes[node].payload.input];
      qn_dim d;
      if (x->arm || !x->capturing || graph_const_value(x->g, node, &(qn_value){0}) || sizes_of_number(x, node, &d))
        continue;
      qn_value v = rec_value_of(x, node);
      if (!value_is(v, TAG_INT) || rec_is_data(x, v)) continue;
      r->vm->rec = x;
      (void)sizes_guard(r->vm, v);
      r->vm->rec = active;
    }
  }
  if (error_pending(r->vm)) error_clear(r->vm); /* of memory: then it is not guarded */
  return base->nobserved > before;
}

bool sizes_certain_guarded(struct recording *r, qn_dim d) {
  return sizes_certain(r, d) || (pin_ends(r) && sizes_certain(r, d)) || (sizes_pin_all(r) && sizes_certain(r, d));
}
