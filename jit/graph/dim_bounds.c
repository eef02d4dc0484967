/* Proofs about sizes (dim_bounds.h).
 *
 * A size is a sum of products in normal form. Each step puts something that is not larger in place of a part of it: a sum within a product is
 * multiplied out, min and max become one of their operands (or each of them, where it must hold for both), x // c and x % c what they lie
 * between, and a symbol one of its ends, by the sign of what it is multiplied with. What is left in the end is a number. A proof is
 * given up after STEPS steps; a table that had to make an expression smaller (dim.h) proves nothing.
 */
#include "jit/graph/dim_bounds.h"

#include <limits.h>

enum { STEPS = 400 };

void dim_proof_init(dim_proof *p, arena *a) {
  *p = (dim_proof){.left = STEPS, .each = STEPS, .all = INT_MAX};
  dim_table_init(&p->t, a);
}

void dim_proof_bound(dim_proof *p, qn_dim symbol, dim_bound b) {
  if (symbol >= 0) return;
  uint32_t i = (uint32_t)~symbol, had = p->cap;
  if (!arena_room(p->t.arena, (void **)&p->bounds, &p->cap, i + 1, sizeof *p->bounds)) return;
  for (; had < p->cap; had++) p->bounds[had] = (dim_bound){0};
  p->bounds[i] = b;
}

static dim_bound bound_of(const dim_proof *p, qn_dim symbol) {
  return (uint32_t)~symbol < p->cap ? p->bounds[~symbol] : (dim_bound){0};
}

/* Does d depend on a symbol that is no BOUND_SIZE? */
static bool is_of_turn(const dim_proof *p, qn_dim d) {
  if (d >= 0) return false;
  const dim_expr *e = &p->t.exprs[~d];
  if (e->op == DIM_SYMBOL) return bound_of(p, d).kind != BOUND_SIZE;
  return is_of_turn(p, e->a) || is_of_turn(p, e->b);
}

static qn_dim add(dim_proof *p, qn_dim a, qn_dim b) { return dim_make(&p->t, DIM_ADD, a, b); }
static qn_dim sub(dim_proof *p, qn_dim a, qn_dim b) { return dim_make(&p->t, DIM_SUB, a, b); }
static qn_dim mul(dim_proof *p, qn_dim a, qn_dim b) { return dim_make(&p->t, DIM_MUL, a, b); }
static qn_dim number(dim_proof *p, int64_t x) { return dim_const(&p->t, x); }

/* A factor of a product, and what the product is without it, its coefficient included. */
typedef struct factor {
  qn_dim of, rest;
} factor;

/* The factors of a term; how many there are. */
static int factors_of(dim_proof *p, const dim_term *term, factor out[DIM_TERMS]) {
  qn_dim of[DIM_TERMS], left = term->of;
  int n = 0;
  for (; n < DIM_TERMS - 1 && left < 0 && p->t.exprs[~left].op == DIM_MUL; left = p->t.exprs[~left].a)
    of[n++] = p->t.exprs[~left].b;
  of[n++] = left;
  for (int i = 0; i < n; i++) {
    qn_dim rest = number(p, term->coef);
    for (int k = 0; k < n; k++)
      if (k != i) rest = mul(p, rest, of[k]);
    out[i] = (factor){of[i], rest};
  }
  return n;
}

static bool holds(dim_proof *p, qn_dim d, bool all);

/* d, in which `with` takes the place of a factor. */
static qn_dim replaced(dim_proof *p, qn_dim d, const factor *f, qn_dim with) {
  return add(p, sub(p, d, mul(p, f->rest, f->of)), mul(p, f->rest, with));
}

/* Which sign has what a factor is multiplied with; 0: not known. */
static int sign_of(dim_proof *p, qn_dim rest) {
  int64_t c;
  if (dim_is_const(&p->t, rest, &c)) return c > 0 ? 1 : c < 0 ? -1 : 0;
  return holds(p, rest, true) ? 1 : holds(p, sub(p, 0, rest), true) ? -1 : 0;
}

/* d with the sum in a product multiplied out. */
static qn_dim multiplied_out(dim_proof *p, qn_dim d, const factor *f) {
  dim_term terms[DIM_TERMS];
  int64_t constant;
  int n = dim_terms(&p->t, f->of, terms, &constant);
  d = add(p, sub(p, d, mul(p, f->rest, f->of)), mul(p, f->rest, number(p, constant)));
  for (int i = 0; i < n; i++) d = add(p, d, mul(p, mul(p, f->rest, number(p, terms[i].coef)), terms[i].of));
  return d;
}

/* holds for one of two. */
static bool holds_either(dim_proof *p, qn_dim a, qn_dim b, bool all) {
  int demands = p->ndemands;
  if (holds(p, a, all)) return true;
  p->ndemands = demands;
  return holds(p, b, all);
}

/* holds, of a d with a factor x // y. */
static bool holds_quotient(dim_proof *p, qn_dim d, const factor *f, bool all) {
  const dim_expr e = p->t.exprs[~f->of];
  qn_dim q;
  int64_t c;
  int sign = sign_of(p, f->rest);
  if (!sign || !holds(p, sub(p, e.b, 1), true)) return false;
  if (dim_quotient(&p->t, f->rest, e.b, &q)) { /* x - (y - 1) <= y * (x // y) <= x */
    qn_dim with = sign < 0 ? e.a : sub(p, e.a, sub(p, e.b, 1));
    return holds(p, add(p, sub(p, d, mul(p, f->rest, f->of)), mul(p, q, with)), all);
  }
  if (dim_is_const(&p->t, e.b, &c)) return holds(p, mul(p, d, e.b), all);
  return holds(p, e.a, true) && holds(p, replaced(p, d, f, sign < 0 ? e.a : 0), all);
}

/* holds, of a d with a factor x % y. */
static bool holds_remainder(dim_proof *p, qn_dim d, const factor *f, bool all) {
  const dim_expr e = p->t.exprs[~f->of];
  int sign = sign_of(p, f->rest);
  if (!sign || !holds(p, sub(p, e.b, 1), true)) return false;
  qn_dim whole = mul(p, e.b, dim_make(&p->t, DIM_FLOORDIV, e.a, e.b));
  return holds_either(p, replaced(p, d, f, sign > 0 ? 0 : sub(p, e.b, 1)), replaced(p, d, f, sub(p, e.a, whole)), all);
}

/* holds, of a d with a factor that is no symbol. */
static bool holds_made(dim_proof *p, qn_dim d, const factor *f, bool all) {
  const dim_expr e = p->t.exprs[~f->of];
  int64_t c;
  int sign;
  switch ((dim_op)e.op) {
  case DIM_FLOORDIV: return holds_quotient(p, d, f, all);
  case DIM_MOD: return holds_remainder(p, d, f, all);
  case DIM_MIN:
  case DIM_MAX:
    if (!(sign = sign_of(p, f->rest))) return false;
    if ((sign > 0) == (e.op == DIM_MIN))
      return holds(p, replaced(p, d, f, e.a), all) && holds(p, replaced(p, d, f, e.b), all);
    return holds_either(p, replaced(p, d, f, e.a), replaced(p, d, f, e.b), all);
  default: return !dim_is_const(&p->t, f->rest, &c) && holds(p, multiplied_out(p, d, f), all);
  }
}

/* What a symbol is multiplied with in a sum. */
static qn_dim slope(dim_proof *p, const dim_term *terms, int n, qn_dim symbol) {
  qn_dim all = 0;
  for (int i = 0; i < n; i++) {
    factor factors[DIM_TERMS];
    int k = 0, nfactors = factors_of(p, &terms[i], factors);
    while (k < nfactors && factors[k].of != symbol) k++;
    if (k < nfactors) all = add(p, all, factors[k].rest);
  }
  return all;
}

/* d with one of its ends in place of a symbol. False: it is not known which. */
static bool at_end(dim_proof *p, qn_dim *d, const dim_term *terms, int n, qn_dim symbol) {
  const dim_bound b = bound_of(p, symbol);
  qn_dim by = slope(p, terms, n, symbol);
  bool rises = (b.kind != BOUND_UNKNOWN || b.has_first) && holds(p, by, true);
  if (!rises && (b.kind != BOUND_ENDS || !holds(p, sub(p, 0, by), true))) return false;
  for (int i = 0; i < n; i++) {
    factor factors[DIM_TERMS];
    int k = 0, nfactors = factors_of(p, &terms[i], factors);
    while (k < nfactors && factors[k].of != symbol) k++;
    if (k < nfactors) *d = replaced(p, *d, &factors[k], rises ? b.first : b.last);
  }
  return true;
}

/* Notes what must be asked, if that is so by the hints. */
static bool demand(dim_proof *p, qn_dim d) {
  if (dim_hint(&p->t, d) < 0 || p->ndemands == DIM_DEMANDS) return false;
  p->demands[p->ndemands++] = d;
  return true;
}

/* Is d certain not to be negative? With `all` false it is also enough that something is asked of symbols of BOUND_SIZE: p->demands. */
static bool holds(dim_proof *p, qn_dim d, bool all) {
  dim_term terms[DIM_TERMS];
  int64_t constant;
  if (--p->left < 0) return false;
  int n = dim_terms(&p->t, d, terms, &constant);
  if (n <= 0) return n == 0 && constant >= 0;
  if (!all && !is_of_turn(p, d)) return demand(p, d);
  qn_dim last = 0;
  for (int i = 0; i < n; i++) {
    factor factors[DIM_TERMS];
    int nfactors = factors_of(p, &terms[i], factors);
    for (int k = 0; k < nfactors; k++) {
      qn_dim of = factors[k].of;
      if (of >= 0) return false;
      if (!all && !is_of_turn(p, of)) continue; /* (it is asked about as it is) */
      if (p->t.exprs[~of].op != DIM_SYMBOL) return holds_made(p, d, &factors[k], all);
      if (of < last) last = of;
    }
  }
  return last < 0 && at_end(p, &d, terms, n, last) && holds(p, d, all);
}

static bool proves(dim_proof *p, qn_dim d, bool all) {
  const int most = p->all < p->each ? p->all : p->each;
  p->left = most;
  p->ndemands = 0;
  const bool ok = holds(p, d, all) && !p->t.nfacts && !p->t.arena->failed;
  p->all -= most - (p->left > 0 ? p->left : 0);
  return ok;
}

bool dim_proves(dim_proof *p, qn_dim d) { return proves(p, d, true); }

bool dim_demands(dim_proof *p, qn_dim d) { return proves(p, d, false); }
