/* Symbolic sizes: hash-consed expressions in a normal form (dim.h).
 *
 * Normal form. Sums are kept as c1*P1 + c2*P2 + ... - ... + c: products P of atoms, each product once, in the order of
 * dim_compare, positive terms before negative ones, the constant last. A product is a chain of atoms in the same order with
 * its coefficient last. An atom is a symbol, a // % min max, or a sum inside a product. So n + m == m + n, (n + m) - m == n,
 * 2*n + n == 3*n and n*m == m*n are equal numbers; products are not multiplied out (n*(m + 1) stays).
 * dim_compare orders symbols by their place in the table and everything else by structure, so that a table which is rebuilt
 * from text orders its terms alike.
 *
 * Limits. A sum or product of more than DIM_TERMS parts stays as it was written. An expression that would get larger than
 * DIM_MAX_SIZE is specialised: its value in the recorded call takes its place, and the fact that they are equal is noted. Where no guard can ask for
 * that fact (dim_table.cut) there is no plan.
 */
#include "jit/graph/dim.h"

#include <stdio.h>
#include <string.h>

#include "lang/mem.h"

/* ---- plain arithmetic ------------------------------------------------------------------------------------------ */

static int64_t floor_div(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return a == INT64_MIN ? INT64_MAX : -a;
  int64_t q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}

static int64_t floor_mod(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  int64_t r = a % b;
  return r && (r < 0) != (b < 0) ? r + b : r;
}

static int64_t compute(dim_op op, int64_t a, int64_t b) {
  int64_t r;
  switch (op) {
  case DIM_SYMBOL: return 0;
  case DIM_ADD: return __builtin_add_overflow(a, b, &r) ? (a < 0 ? INT64_MIN : INT64_MAX) : r;
  case DIM_SUB: return __builtin_sub_overflow(a, b, &r) ? (a < 0 ? INT64_MIN : INT64_MAX) : r;
  case DIM_MUL: return __builtin_mul_overflow(a, b, &r) ? ((a < 0) != (b < 0) ? INT64_MIN : INT64_MAX) : r;
  case DIM_FLOORDIV: return floor_div(a, b);
  case DIM_MOD: return floor_mod(a, b);
  case DIM_MIN: return a < b ? a : b;
  case DIM_MAX: return a > b ? a : b;
  }
  return 0;
}

/* ---- the table ----------------------------------------------------------------------------------------------------- */

void dim_table_init(dim_table *t, arena *a) { *t = (dim_table){.arena = a}; }

static const dim_expr *expr_of(const dim_table *t, qn_dim d) { return &t->exprs[~d]; }
static dim_op op_of(const dim_table *t, qn_dim d) { return d >= 0 ? DIM_SYMBOL : (dim_op)t->exprs[~d].op; }
static unsigned size_of(const dim_table *t, qn_dim d) { return d >= 0 ? 0 : t->exprs[~d].size; }

int64_t dim_hint(const dim_table *t, qn_dim d) { return d >= 0 || !t ? d : t->exprs[~d].hint; }

void dim_hint_agree(dim_table *t, qn_dim d) {
  if (d < 0 && t->strict && t->exprs[~d].hint < 0) t->exprs[~d].hint = 0;
}

static uint64_t expr_hash(const dim_expr *e) {
  uint64_t h = e->op;
  const uint64_t parts[] = {(uint64_t)e->a, (uint64_t)e->b, e->op == DIM_SYMBOL ? e->source : 0, e->ref, e->axis};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    h = (h ^ parts[i]) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
  }
  return h;
}

static bool same_expr(const void *t, uint32_t i, const void *other) {
  const dim_expr *x = &((const dim_table *)t)->exprs[i], *y = other;
  return x->op == y->op && x->a == y->a && x->b == y->b && x->source == y->source && x->ref == y->ref &&
         x->axis == y->axis;
}

/* The number of an expression, which is added if it is new. Its hint when memory is short. */
static qn_dim intern(dim_table *t, const dim_expr *e) {
  uint32_t *number = intern_find(t->arena, &t->numbers, expr_hash(e), same_expr, t, e);
  if (number && *number) return ~(qn_dim)(*number - 1);
  if (!number || t->n >= INT32_MAX || !arena_room(t->arena, (void **)&t->exprs, &t->cap, t->n + 1, sizeof *t->exprs))
    return e->hint < 0 ? 0 : e->hint;
  t->exprs[t->n] = *e;
  *number = ++t->n;
  return ~(qn_dim)(t->n - 1);
}

bool dim_table_copy(dim_table *to, const dim_table *from, arena *a) {
  dim_table_init(to, a);
  to->strict = from->strict;
  to->numbers_of_data = from->numbers_of_data;
  to->cut = from->cut;
  for (uint32_t i = 0; i < from->n; i++) {
    dim_expr e = from->exprs[i];
    if (e.name) {
      size_t len = strlen(e.name) + 1;
      char *name = arena_alloc(a, len);
      if (!name) return false;
      e.name = memcpy(name, e.name, len);
    }
    if (intern(to, &e) != ~(qn_dim)i) return false;
  }
  if (from->nfacts) {
    to->facts = arena_alloc(a, from->nfacts * sizeof *to->facts);
    if (!to->facts) return false;
    memcpy(to->facts, from->facts, from->nfacts * sizeof *to->facts);
    to->nfacts = to->facts_cap = from->nfacts;
  }
  return true;
}

qn_dim dim_symbol(dim_table *t, dim_source source, uint32_t ref, uint16_t axis, int64_t hint, const char *name) {
  dim_expr e = {.op = DIM_SYMBOL, .source = (uint8_t)source, .ref = ref, .axis = axis, .size = 1, .hint = hint};
  uint32_t before = t->n;
  qn_dim d = intern(t, &e);
  t->numbers_of_data |= source == DIM_FROM_NUMBER;
  if (name && t->n > before) {
    size_t len = strlen(name) + 1;
    char *copy = arena_alloc(t->arena, len);
    if (copy) t->exprs[before].name = memcpy(copy, name, len);
  }
  return d;
}

void dim_rename_nodes(dim_table *t, const uint32_t *map, uint32_t n) {
  uint16_t gone = 0;
  bool changed = false;
  for (uint32_t i = 0; i < t->n; i++) {
    dim_expr *e = &t->exprs[i];
    if (e->op != DIM_SYMBOL || !dim_of_node(e->source)) continue;
    uint32_t ref = !e->ref || e->ref >= n ? 0 : map ? map[e->ref] : e->ref;
    changed |= ref != e->ref;
    e->ref = ref;
    if (!ref) e->axis = gone++; /* so that symbols of removed nodes stay different from each other */
  }
  if (!changed) return;
  t->numbers.n = 0; /* the hashes are others now; there is room for as many */
  memset(t->numbers.slots, 0, t->numbers.cap * sizeof *t->numbers.slots);
  for (uint32_t i = 0; i < t->n; i++) {
    uint32_t *number = intern_find(t->arena, &t->numbers, expr_hash(&t->exprs[i]), same_expr, t, &t->exprs[i]);
    if (number && !*number) *number = i + 1;
  }
}

uint64_t dim_hash(const dim_table *t, qn_dim d) {
  if (d >= 0 || !t) return (uint64_t)d * 0x9e3779b97f4a7c15u + 1;
  dim_expr e = t->exprs[~d];
  if (e.op != DIM_SYMBOL) {
    e.a = (qn_dim)dim_hash(t, e.a);
    e.b = (qn_dim)dim_hash(t, e.b);
  }
  return expr_hash(&e);
}

/* The size has become that of the recorded call. */
static void note_cut(dim_table *t, qn_dim d) {
  dim_assume(t, d, DIM_EQ, dim_const(t, dim_hint(t, d)));
  t->cut |= DIM_CUT;
  if (dim_is_late(t, d)) t->cut |= dim_is_number(t, d) ? DIM_CUT_NUMBER : DIM_CUT_LATE;
}

/* Makes the expression a op b as it stands, without the laws of normal forms. */
static qn_dim raw(dim_table *t, dim_op op, qn_dim a, qn_dim b) {
  unsigned size = 1 + size_of(t, a) + size_of(t, b);
  dim_expr e = {.op = (uint8_t)op, .size = (uint16_t)size, .a = a, .b = b};
  e.hint = compute(op, dim_hint(t, a), dim_hint(t, b));
  if (size <= DIM_MAX_SIZE) return intern(t, &e);
  /* Too large: both operands become the numbers that they were in the recorded call. */
  note_cut(t, a);
  note_cut(t, b);
  return dim_const(t, e.hint);
}

qn_dim dim_const(dim_table *t, int64_t value) {
  if (value >= 0 || !t) return value;
  dim_expr e = {.op = DIM_SUB, .size = 1, .a = 0, .b = value == INT64_MIN ? INT64_MAX : -value};
  e.hint = -e.b;
  return intern(t, &e);
}

bool dim_is_const(const dim_table *t, qn_dim d, int64_t *value) {
  if (d < 0 && t) {
    const dim_expr *e = expr_of(t, d);
    if (e->op != DIM_SUB || e->a != 0 || e->b < 0) return false;
  }
  *value = dim_hint(t, d);
  return true;
}

/* The order of terms in sums and products: symbols by their number, then other expressions by structure. */
static int dim_compare(const dim_table *t, qn_dim a, qn_dim b) {
  if (a == b) return 0;
  if (a >= 0 || b >= 0) return a >= 0 && b >= 0 ? (a < b ? -1 : 1) : a >= 0 ? 1 : -1;
  const dim_expr *x = expr_of(t, a), *y = expr_of(t, b);
  if (x->op != y->op) return x->op < y->op ? -1 : 1;
  if (x->op == DIM_SYMBOL) return ~a < ~b ? -1 : 1;
  int c = dim_compare(t, x->a, y->a);
  return c ? c : dim_compare(t, x->b, y->b);
}

/* ---- products --------------------------------------------------------------------------------------------------------- */

typedef struct product {
  int n;
  int64_t coef;
  qn_dim atoms[DIM_TERMS]; /* in the order of dim_compare */
} product;

/* Multiplies p by d. False when it would have more than DIM_TERMS atoms or its coefficient would overflow. */
static bool product_add(const dim_table *t, product *p, qn_dim d) {
  int64_t c;
  if (dim_is_const(t, d, &c)) return !__builtin_mul_overflow(p->coef, c, &p->coef);
  const dim_expr *e = expr_of(t, d);
  if (e->op == DIM_MUL) return product_add(t, p, e->a) && product_add(t, p, e->b);
  if (e->op == DIM_SUB && e->a == 0) { /* 0 - x */
    p->coef = p->coef == INT64_MIN ? INT64_MAX : -p->coef;
    return product_add(t, p, e->b);
  }
  if (p->n == DIM_TERMS) return false;
  int i = p->n++;
  for (; i > 0 && dim_compare(t, d, p->atoms[i - 1]) < 0; i--) p->atoms[i] = p->atoms[i - 1];
  p->atoms[i] = d;
  return true;
}

/* The product of the atoms, without the coefficient. */
static qn_dim product_atoms(dim_table *t, const product *p) {
  qn_dim d = p->atoms[0];
  for (int i = 1; i < p->n; i++) d = raw(t, DIM_MUL, d, p->atoms[i]);
  return d;
}

/* ---- sums --------------------------------------------------------------------------------------------------------------- */

typedef struct sum {
  int n;
  int64_t constant;
  dim_term terms[DIM_TERMS]; /* products of atoms */
} sum;

/* s += scale * d. False when s would have more than DIM_TERMS terms or a number would overflow. */
static bool sum_add(const dim_table *t, sum *s, qn_dim d, int64_t scale) {
  int64_t c;
  if (dim_is_const(t, d, &c))
    return !__builtin_mul_overflow(c, scale, &c) && !__builtin_add_overflow(s->constant, c, &s->constant);
  const dim_expr *e = expr_of(t, d);
  qn_dim a = e->a, b = e->b;
  if (e->op == DIM_ADD) return sum_add(t, s, a, scale) && sum_add(t, s, b, scale);
  if (e->op == DIM_SUB) return scale != INT64_MIN && sum_add(t, s, a, scale) && sum_add(t, s, b, -scale);
  if (e->op == DIM_MUL && dim_is_const(t, b, &c)) /* in normal form the coefficient is the right operand */
    return !__builtin_mul_overflow(c, scale, &scale) && sum_add(t, s, a, scale);
  int i = 0;
  while (i < s->n && dim_compare(t, s->terms[i].of, d) < 0) i++;
  if (i < s->n && s->terms[i].of == d) {
    if (__builtin_add_overflow(s->terms[i].coef, scale, &s->terms[i].coef)) return false;
    if (s->terms[i].coef == 0) memmove(&s->terms[i], &s->terms[i + 1], (size_t)(--s->n - i) * sizeof *s->terms);
    return true;
  }
  if (s->n == DIM_TERMS) return false;
  memmove(&s->terms[i + 1], &s->terms[i], (size_t)(s->n++ - i) * sizeof *s->terms);
  s->terms[i] = (dim_term){d, scale};
  return true;
}

static qn_dim scaled(dim_table *t, qn_dim d, int64_t coef) { return coef == 1 ? d : raw(t, DIM_MUL, d, coef); }

static qn_dim sum_make(dim_table *t, const sum *s) {
  if (s->n == 0) return dim_const(t, s->constant);
  qn_dim d = 0;
  int64_t c = s->constant;
  for (int i = 0; i < s->n; i++)
    if (s->terms[i].coef > 0) {
      qn_dim term = scaled(t, s->terms[i].of, s->terms[i].coef);
      d = d == 0 ? term : raw(t, DIM_ADD, d, term);
    }
  if (d == 0 && c > 0) { /* only negative terms: c - n */
    d = c;
    c = 0;
  }
  for (int i = 0; i < s->n; i++)
    if (s->terms[i].coef < 0) d = raw(t, DIM_SUB, d, scaled(t, s->terms[i].of, -s->terms[i].coef));
  if (c > 0) d = raw(t, DIM_ADD, d, c);
  if (c < 0) d = raw(t, DIM_SUB, d, -c);
  return d;
}

/* Are the constant and all coefficients small enough to be negated? */
static bool sum_sane(const sum *s) {
  bool ok = s->constant != INT64_MIN;
  for (int i = 0; i < s->n; i++) ok &= s->terms[i].coef != INT64_MIN;
  return ok;
}

/* ---- making expressions --------------------------------------------------------------------------------------------------- */

bool dim_nonnegative(const dim_table *t, qn_dim d) {
  if (d >= 0) return true;
  if (!t) return false;
  const dim_expr *e = expr_of(t, d);
  int64_t c;
  switch ((dim_op)e->op) {
  case DIM_SYMBOL: return e->source != DIM_FROM_SCALAR && e->source != DIM_FROM_NUMBER;
  case DIM_ADD:
  case DIM_MUL:
  case DIM_MIN: return dim_nonnegative(t, e->a) && dim_nonnegative(t, e->b);
  case DIM_MAX: return dim_nonnegative(t, e->a) || dim_nonnegative(t, e->b);
  case DIM_FLOORDIV: return dim_nonnegative(t, e->a) && dim_nonnegative(t, e->b);
  case DIM_MOD: return dim_is_const(t, e->b, &c) && c >= 0;
  case DIM_SUB: return false;
  }
  return false;
}

/* a // b and a % b. Where b is a constant, terms of a that it divides are taken out: (b*n + m) // b = n + m // b, and they do not
 * change the remainder. */
static qn_dim make_division(dim_table *t, dim_op op, qn_dim a, qn_dim b) {
  int64_t c;
  if (a == 0) return 0;
  if (dim_is_const(t, b, &c) && c < 0 && c > -INT64_MAX && op == DIM_FLOORDIV)
    return make_division(t, op, dim_make(t, DIM_SUB, 0, a), -c);
  if (!dim_is_const(t, b, &c) || c <= 0) return raw(t, op, a, b);
  if (c == 1) return op == DIM_MOD ? 0 : a;
  sum whole = {0}, rest = {0};
  if (!sum_add(t, &whole, a, 1) || !sum_sane(&whole)) return raw(t, op, a, b);
  int kept = 0;
  for (int i = 0; i < whole.n; i++) {
    if (whole.terms[i].coef % c == 0) {
      whole.terms[kept].coef = whole.terms[i].coef / c;
      whole.terms[kept++].of = whole.terms[i].of;
    } else {
      rest.terms[rest.n++] = whole.terms[i];
    }
  }
  if (kept == 0) return raw(t, op, a, b);
  whole.n = kept;
  if (rest.n == 0) {
    rest.constant = floor_mod(whole.constant, c);
    whole.constant = floor_div(whole.constant, c);
    return op == DIM_MOD ? dim_const(t, rest.constant) : sum_make(t, &whole);
  }
  rest.constant = whole.constant;
  whole.constant = 0;
  qn_dim r = sum_make(t, &rest);
  if (op == DIM_MOD) return raw(t, DIM_MOD, r, b);
  return dim_make(t, DIM_ADD, sum_make(t, &whole), raw(t, DIM_FLOORDIV, r, b));
}

static qn_dim make_extremum(dim_table *t, dim_op op, qn_dim a, qn_dim b) {
  bool smaller = op == DIM_MIN;
  int64_t c;
  if (a == b) return a;
  sum diff = {0};
  if (sum_add(t, &diff, a, 1) && sum_add(t, &diff, b, -1) && diff.n == 0) return (diff.constant < 0) == smaller ? a : b;
  if (dim_is_const(t, a, &c)) { /* in normal form a constant is the right operand */
    qn_dim swap = a;
    a = b;
    b = swap;
  } else if (!dim_is_const(t, b, &c)) {
    if (dim_compare(t, b, a) < 0) {
      qn_dim swap = a;
      a = b;
      b = swap;
    }
    return raw(t, op, a, b);
  }
  if (c <= 0 && dim_nonnegative(t, a)) return smaller ? b : a;
  int64_t inner;
  if (op_of(t, a) == op && dim_is_const(t, expr_of(t, a)->b, &inner)) /* min(min(x, c1), c2) */
    return raw(t, op, expr_of(t, a)->a, dim_const(t, compute(op, inner, c)));
  return raw(t, op, a, b);
}

qn_dim dim_make(dim_table *t, dim_op op, qn_dim a, qn_dim b) {
  int64_t x, y;
  if (dim_is_const(t, a, &x) && dim_is_const(t, b, &y)) return dim_const(t, compute(op, x, y));
  sum s = {0};
  product p = {.coef = 1};
  switch (op) {
  case DIM_ADD:
  case DIM_SUB:
    if (sum_add(t, &s, a, 1) && sum_add(t, &s, b, op == DIM_ADD ? 1 : -1) && sum_sane(&s)) return sum_make(t, &s);
    break;
  case DIM_MUL:
    if (dim_is_const(t, a, &x) || dim_is_const(t, b, &x)) {
      if (x == 0) return 0;
      if (sum_add(t, &s, dim_is_const(t, a, &x) ? b : a, x) && sum_sane(&s)) return sum_make(t, &s);
    } else if (product_add(t, &p, a) && product_add(t, &p, b)) {
      s.n = 1;
      s.terms[0] = (dim_term){product_atoms(t, &p), p.coef};
      if (sum_sane(&s)) return sum_make(t, &s);
    }
    break;
  case DIM_FLOORDIV:
  case DIM_MOD: return make_division(t, op, a, b);
  case DIM_MIN:
  case DIM_MAX: return make_extremum(t, op, a, b);
  case DIM_SYMBOL: break;
  }
  return raw(t, op, a, b);
}

int dim_terms(const dim_table *t, qn_dim d, dim_term terms[DIM_TERMS], int64_t *constant) {
  sum s = {0};
  if (!sum_add(t, &s, d, 1)) return -1;
  memcpy(terms, s.terms, (size_t)s.n * sizeof *terms);
  *constant = s.constant;
  return s.n;
}

bool dim_quotient(dim_table *t, qn_dim a, qn_dim b, qn_dim *q) {
  product x = {.coef = 1}, y = {.coef = 1};
  int64_t c;
  if (a == 0 && dim_is_const(t, b, &c)) return *q = 0, c != 0;
  if (!product_add(t, &x, a) || !product_add(t, &y, b) || y.coef == 0 || x.coef % y.coef) return false;
  x.coef /= y.coef;
  for (int i = 0; i < y.n; i++) {
    int k = 0;
    while (k < x.n && x.atoms[k] != y.atoms[i]) k++;
    if (k == x.n) return false;
    memmove(&x.atoms[k], &x.atoms[k + 1], (size_t)(--x.n - k) * sizeof *x.atoms);
  }
  *q = x.n ? dim_make(t, DIM_MUL, product_atoms(t, &x), dim_const(t, x.coef)) : dim_const(t, x.coef);
  return true;
}

/* ---- questions ---------------------------------------------------------------------------------------------------------------- */

bool dim_has_fact(const dim_table *t, qn_dim a, dim_relation relation, qn_dim b) {
  for (uint32_t i = 0; i < t->nfacts; i++)
    if (t->facts[i].a == a && t->facts[i].b == b && t->facts[i].relation == relation) return true;
  return false;
}

void dim_assume(dim_table *t, qn_dim a, dim_relation relation, qn_dim b) {
  if (dim_has_fact(t, a, relation, b)) return;
  if (!arena_room(t->arena, (void **)&t->facts, &t->facts_cap, t->nfacts + 1, sizeof *t->facts)) return;
  t->facts[t->nfacts++] = (dim_fact){a, b, (uint8_t)relation};
}

void dim_pin(dim_table *t, qn_dim d) {
  if (d >= 0) return;
  const dim_expr e = t->exprs[~d];
  if (e.op != DIM_SYMBOL) {
    dim_pin(t, e.a);
    dim_pin(t, e.b);
  } else if (e.source == DIM_FROM_INPUT || e.source == DIM_FROM_NUMBER || (e.source == DIM_FROM_SCALAR && !t->strict)) {
    dim_assume(t, d, DIM_EQ, e.hint);
  }
}

bool dim_is_late(const dim_table *t, qn_dim d) {
  if (d >= 0) return false;
  const dim_expr *e = &t->exprs[~d];
  if (e->op == DIM_SYMBOL) return dim_of_node(e->source) || (e->source == DIM_FROM_SCALAR && t->strict);
  return dim_is_late(t, e->a) || dim_is_late(t, e->b);
}

bool dim_most(const dim_table *t, qn_dim d, qn_dim *most) {
  *most = d;
  if (!dim_is_late(t, d)) return true;
  for (uint32_t i = 0; i < t->nfacts; i++) {
    const dim_fact *f = &t->facts[i];
    if (f->a == d && f->relation == DIM_LE && !dim_is_late(t, f->b)) return *most = f->b, true;
  }
  return false;
}

static bool has_number(const dim_table *t, qn_dim d) {
  if (d >= 0) return false;
  const dim_expr *e = expr_of(t, d);
  if (e->op != DIM_SYMBOL) return has_number(t, e->a) || has_number(t, e->b);
  return e->source == DIM_FROM_NUMBER || (e->source == DIM_FROM_SCALAR && t->strict);
}

bool dim_is_number(const dim_table *t, qn_dim d) {
  return d < 0 && t && (t->strict || t->numbers_of_data) && has_number(t, d);
}

bool dim_is_empty(dim_table *t, qn_dim d) {
  if (!dim_is_number(t, d)) return dim_is(t, d, 0);
  dim_assume(t, 1, DIM_LE, d);
  return false;
}

bool dim_is_one(dim_table *t, qn_dim d) {
  if (!dim_is_number(t, d)) return dim_is(t, d, 1);
  dim_assume(t, 2, DIM_LE, d);
  return false;
}

bool dim_equal(dim_table *t, qn_dim a, qn_dim b) {
  if (a == b) return true;
  int64_t x, y;
  if (dim_is_const(t, a, &x) && dim_is_const(t, b, &y))
    return false; /* equal constants are equal numbers, which a and b are not */
  sum diff = {0};
  if (sum_add(t, &diff, a, 1) && sum_add(t, &diff, b, -1) && diff.n == 0)
    return false; /* they differ by a constant, as n and n + 1 */
  if (dim_is_number(t, a) || dim_is_number(t, b)) return false;
  /* in one order, so that each pair is noted once */
  if (dim_is_const(t, a, &x) || (!dim_is_const(t, b, &y) && dim_compare(t, b, a) < 0)) {
    qn_dim swap = a;
    a = b;
    b = swap;
  }
  bool equal = dim_hint(t, a) == dim_hint(t, b);
  dim_assume(t, a, equal ? DIM_EQ : DIM_NE, b);
  return equal;
}

bool dim_is(dim_table *t, qn_dim a, int64_t value) { return dim_equal(t, a, dim_const(t, value)); }

bool dim_add_any(dim_table *t, qn_dim a, qn_dim b, qn_dim *sum) {
  const dim_table before = *t;
  t->facts = NULL; /* a fact that is known already is not noted again */
  t->nfacts = t->facts_cap = 0;
  *sum = dim_add(t, a, b);
  bool any = t->nfacts == 0;
  t->cut = before.cut;
  t->facts = before.facts;
  t->nfacts = before.nfacts;
  t->facts_cap = before.facts_cap;
  return any;
}

bool dim_add_room(dim_table *t, qn_dim a, qn_dim size, qn_dim *sum) {
  if (size < 0 && t->strict) {
    if (size_of(t, size) + 2 > DIM_MAX_SIZE) return false;
    size = dim_make(t, DIM_MAX, size, 0);
  }
  return dim_add_any(t, a, size, sum);
}

int64_t dim_eval(const dim_table *t, qn_dim d, const int64_t *symbols) {
  if (d >= 0 || !t) return d;
  const dim_expr *e = expr_of(t, d);
  if (e->op == DIM_SYMBOL) return symbols[~d];
  return compute((dim_op)e->op, dim_eval(t, e->a, symbols), dim_eval(t, e->b, symbols));
}

int64_t dim_eval_once(const dim_table *t, qn_dim d, int64_t *values, uint64_t *known) {
  if (d >= 0) return d;
  const uint32_t i = (uint32_t)~d;
  const dim_expr *e = &t->exprs[i];
  const uint64_t bit = UINT64_C(1) << i % 64;
  if (e->op == DIM_SYMBOL || (known[i / 64] & bit)) return values[i];
  known[i / 64] |= bit;
  values[i] = compute((dim_op)e->op, dim_eval_once(t, e->a, values, known), dim_eval_once(t, e->b, values, known));
  return values[i];
}

void dim_eval_all(const dim_table *t, int64_t *values) {
  for (uint32_t i = 0; i < t->n; i++) { /* operands come before the expressions that they are in */
    const dim_expr *e = &t->exprs[i];
    if (e->op == DIM_SYMBOL) continue;
    values[i] = compute((dim_op)e->op, e->a >= 0 ? e->a : values[~e->a], e->b >= 0 ? e->b : values[~e->b]);
  }
}

int64_t dim_ask(const dim_table *t, qn_dim d, dim_symbol_value *value, const void *ctx) {
  if (d >= 0 || !t) return d;
  const dim_expr *e = expr_of(t, d);
  if (e->op == DIM_SYMBOL) return value(ctx, e);
  return compute((dim_op)e->op, dim_ask(t, e->a, value, ctx), dim_ask(t, e->b, value, ctx));
}

/* ---- text --------------------------------------------------------------------------------------------------------------------- */

/* Is a name an identifier that the text of a size cannot mean anything else by? */
static bool name_is_plain(const char *name) {
  if (!name[0] || (name[0] >= '0' && name[0] <= '9')) return false;
  bool digits = name[0] == 'd' && name[1];
  for (const char *p = name; *p; p++) {
    unsigned char c = (unsigned char)*p;
    bool digit = c >= '0' && c <= '9';
    if (p > name) digits &= digit;
    if (!(digit || c == '_' || c >= 0x80 || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) return false;
  }
  return !digits && strcmp(name, "min") != 0 && strcmp(name, "max") != 0;
}

bool dim_prints_name(const dim_table *t, uint32_t index) {
  const char *name = t->exprs[index].name;
  if (!name || !name_is_plain(name)) return false;
  for (uint32_t i = 0; i < index; i++)
    if (t->exprs[i].name && strcmp(t->exprs[i].name, name) == 0) return false;
  return true;
}

/* The number of a symbol among the symbols alone, without the expressions between them, so that it is the same after parsing. */
static unsigned symbol_number(const dim_table *t, uint32_t index) {
  unsigned n = 0;
  for (uint32_t i = 0; i < index; i++) n += t->exprs[i].op == DIM_SYMBOL;
  return n;
}

/* Prints d with parentheses where the operator around it needs them. `level` is that operator's: 0 none, 1 a sum, 2 a product, 3 the
 * right operand of a product. */
static void print_at(const dim_table *t, qn_dim d, int level, text_buf *out) {
  if (d >= 0 || !t) {
    text_addf(out, "%lld", (long long)d);
    return;
  }
  const dim_expr *e = expr_of(t, d);
  static const struct {
    const char *text;
    int level, right;
  } ops[] = {
      [DIM_ADD] = {" + ", 1, 2}, [DIM_SUB] = {" - ", 1, 2}, [DIM_MUL] = {"*", 2, 3}, [DIM_FLOORDIV] = {" // ", 2, 3},
      [DIM_MOD] = {" % ", 2, 3}, [DIM_MIN] = {", ", 0, 0},  [DIM_MAX] = {", ", 0, 0}};
  if (e->op == DIM_SYMBOL) {
    uint32_t index = (uint32_t)~d;
    if (dim_prints_name(t, index))
      text_adds(out, e->name);
    else
      text_addf(out, "d%u", symbol_number(t, index));
  } else if (e->op == DIM_MIN || e->op == DIM_MAX) {
    text_adds(out, e->op == DIM_MIN ? "min(" : "max(");
    print_at(t, e->a, 0, out);
    text_adds(out, ", ");
    print_at(t, e->b, 0, out);
    text_adds(out, ")");
  } else {
    bool brackets = level > ops[e->op].level;
    qn_dim left = e->a, right = e->b;
    if (e->op == DIM_MUL && right >= 0) { /* the coefficient is printed first: 2*n */
      left = e->b;
      right = e->a;
    }
    if (brackets) text_adds(out, "(");
    print_at(t, left, ops[e->op].level, out);
    text_adds(out, ops[e->op].text);
    print_at(t, right, ops[e->op].right, out);
    if (brackets) text_adds(out, ")");
  }
}

void dim_print(const dim_table *t, qn_dim d, text_buf *out) { print_at(t, d, 0, out); }
