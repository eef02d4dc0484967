/* Addresses and values at a point of a loop nest (sched_impl.h).
 *
 * The nest (schedule.c) says where each axis stands: nb->at[axis] is an index value, of the axis that the VEC runs over the
 * index of its first element. A form splits into a base and a stride along that axis; what is left (quotients, remainders
 * and data as coordinates) becomes integer vectors. Index arithmetic and uniform values must stand before the VEC, so everything
 * is prepared first: nest_prepare walks over a value's operands, makes what does not vary along the VEC's axis, and keeps
 * bases, strides and bounds of the loads for when the VEC is open. */
#include "jit/kernel/sched_impl.h"

#include <stdlib.h>

#include "jit/kernel/lower.h"

bool nest_refuse(nest_builder *nb, const char *why) {
  if (!nb->why) nb->why = why;
  return false;
}

bool nest_begin(nest_builder *nb, const k_kernel *k, l_program *p) {
  *nb = (nest_builder){.k = k, .p = p, .arena = &p->arena, .vec = -1};
  nb->value = calloc(k->n, sizeof *nb->value);
  nb->trail = calloc(k->n, sizeof *nb->trail);
  nb->prepared = calloc(k->n, sizeof *nb->prepared);
  nb->prepared_list = calloc(k->n, sizeof *nb->prepared_list);
  nb->acc = calloc(k->n, sizeof *nb->acc);
  nb->kept = calloc(k->n, sizeof *nb->kept);
  nb->last_load = calloc(k->nbuffers + 1, sizeof *nb->last_load);
  nb->first_store = calloc(k->nbuffers + 1, sizeof *nb->first_store);
  nb->lone_store = calloc(k->nbuffers + 1, sizeof *nb->lone_store);
  bool ok = nb->value && nb->trail && nb->prepared && nb->prepared_list && nb->acc && nb->kept && nb->last_load &&
            nb->first_store && nb->lone_store;
  return ok || nest_refuse(nb, lower_no_memory);
}

void nest_builder_free(nest_builder *nb) {
  free(nb->value);
  free(nb->trail);
  free(nb->prepared);
  free(nb->prepared_list);
  free(nb->acc);
  free(nb->kept);
  free(nb->last_load);
  free(nb->first_store);
  free(nb->lone_store);
  free(nb->dims);
  free(nb->ints);
}

l_val nest_code(nest_builder *nb, l_instr i) { return l_emit(nb->p, i); }

/* ---- numbers and sizes ----------------------------------------------------------------------------------------------- */

l_val nest_number(nest_builder *nb, int64_t n) { return n == 0 ? nb->zero : n == 1 ? nb->one : l_int(nb->p, n); }

/* Makes room for twice as many elements. */
static bool grow(void **list, uint32_t *cap, size_t size) {
  uint32_t more = *cap ? 2 * *cap : 16;
  void *to = realloc(*list, more * size);
  if (!to) return false;
  *list = to;
  *cap = more;
  return true;
}

/* The program's parameter for a size, which is added if it is new. */
static l_val parameter(nest_builder *nb, qn_dim d) {
  uint32_t i = 0;
  while (i < nb->nints && nb->ints[i] != d) i++;
  if (i == nb->nints) {
    if (nb->nints == nb->ints_cap && !grow((void **)&nb->ints, &nb->ints_cap, sizeof *nb->ints))
      return nest_refuse(nb, lower_no_memory);
    nb->ints[nb->nints++] = d;
  }
  return l_param(nb->p, i);
}

/* A size as an index value. Symbols and, but where the kernel has `statics`, large sizes are parameters, so that the program serves all shapes;
 * arithmetic on them is made in the prelude. */
static l_val make_dim(nest_builder *nb, qn_dim d) {
  const dim_table *t = nb->k->dims;
  int64_t c;
  if (dim_is_const(t, d, &c)) {
    if (nb->k->statics || (c >= -K_LITERAL_MAX && c <= K_LITERAL_MAX)) return l_int(nb->p, c);
    if (c >= 0) return parameter(nb, d);
    return l_index(nb->p, L_ISUB, l_int(nb->p, 0), parameter(nb, -c));
  }
  const dim_expr x = t->exprs[~d];
  if (x.op == DIM_SYMBOL) return parameter(nb, d);
  l_val a = nest_dim(nb, x.a), b = nest_dim(nb, x.b);
  return l_of_dim(nb->p, t, &x, a, b);
}

l_val nest_dim(nest_builder *nb, qn_dim d) {
  for (uint32_t i = 0; i < nb->ndims; i++)
    if (nb->dims[i].dim == d) return nb->dims[i].value;
  l_val v = make_dim(nb, d);
  if (nb->body) return v;
  if (nb->ndims == nb->dims_cap && !grow((void **)&nb->dims, &nb->dims_cap, sizeof *nb->dims))
    return nest_refuse(nb, lower_no_memory);
  nb->dims[nb->ndims].dim = d;
  nb->dims[nb->ndims++].value = v;
  return v;
}

void nest_for(nest_builder *nb, l_val from, l_val to, l_val *variable) {
  l_val loop = nest_code(nb, (l_instr){.code = L_FOR, .a = from, .b = to});
  *variable = nest_code(nb, (l_instr){.code = L_VAR, .a = loop});
}

/* ---- scopes ------------------------------------------------------------------------------------------------------------ */

void nest_set_value(nest_builder *nb, k_val v, l_val value) {
  if (!nb->value[v]) nb->trail[nb->ntrail++] = v;
  nb->value[v] = value;
}

void nest_forget(nest_builder *nb, uint32_t mark) {
  while (nb->ntrail > mark) nb->value[nb->trail[--nb->ntrail]] = 0;
}

void nest_end(nest_builder *nb, uint32_t mark) {
  nest_forget(nb, mark);
  l_end(nb->p);
}

/* The stride of a VEC. Large ones are parameters always: where gcc knows that elements lie 16 apart it loads all that lie between, and takes four
 * thirds of the time that it takes to gather them. */
static l_val nest_stride(nest_builder *nb, qn_dim coef) {
  return nb->k->statics && coef > K_LITERAL_MAX ? parameter(nb, coef) : nest_dim(nb, coef);
}

/* ---- forms ------------------------------------------------------------------------------------------------------------- */

static bool varies(const nest_builder *nb, k_mask axes) { return nb->vec >= 0 && (axes >> nb->vec & 1); }

static l_val times(nest_builder *nb, l_val a, qn_dim coef) {
  return coef == 1 ? a : l_index(nb->p, L_IMUL, a, nest_dim(nb, coef));
}

/* An atom that does not vary along the VEC's axis, as an index value. */
static l_val make_atom(nest_builder *nb, const k_atom *a) {
  switch (a->kind) {
  case ATOM_AXIS: return nb->at[a->ref];
  case ATOM_VALUE: return nest_code(nb, (l_instr){.code = L_IVALUE, .a = nest_value(nb, a->ref)});
  case ATOM_DIV: return l_index(nb->p, L_IDIV, nest_form(nb, a->of), nest_dim(nb, a->by));
  default: return l_index(nb->p, L_IMOD, nest_form(nb, a->of), nest_dim(nb, a->by));
  }
}

l_val nest_form(nest_builder *nb, k_form f) {
  const k_linear *l = &nb->k->forms[f];
  l_val sum = l->constant != 0 || l->n == 0 ? nest_dim(nb, l->constant) : 0;
  for (uint32_t i = 0; i < l->n; i++) {
    l_val v = times(nb, make_atom(nb, &nb->k->atoms[l->terms[i].atom]), l->terms[i].coef);
    sum = sum ? l_index(nb->p, L_IADD, sum, v) : v;
  }
  return sum;
}

static l_val uniform_i64(nest_builder *nb, l_val index) {
  return nest_code(nb, (l_instr){.code = L_IOTA, .dtype = DTYPE_INDEX, .a = index});
}

bool nest_prepare_form(nest_builder *nb, k_form f, prepared_form *to) {
  const k_kernel *k = nb->k;
  const k_linear *l = &k->forms[f];
  *to = (prepared_form){0};
  if (!varies(nb, l->axes)) {
    to->base = nest_form(nb, f);
    return true;
  }
  l_val base = l->constant ? nest_dim(nb, l->constant) : 0;
  uint32_t odd = 0;
  for (uint32_t i = 0; i < l->n; i++) odd += varies(nb, k->atoms[l->terms[i].atom].axes);
  to->parts = arena_alloc(nb->arena, (odd + 1) * sizeof *to->parts);
  if (!to->parts) return nest_refuse(nb, lower_no_memory);
  for (uint32_t i = 0; i < l->n; i++) {
    const k_atom *a = &k->atoms[l->terms[i].atom];
    qn_dim coef = l->terms[i].coef;
    if (!varies(nb, a->axes) || a->kind == ATOM_AXIS) {
      l_val v = times(nb, make_atom(nb, a), coef);
      base = base ? l_index(nb->p, L_IADD, base, v) : v;
      if (varies(nb, a->axes)) to->stride = nest_stride(nb, coef);
      continue;
    }
    struct prepared_part *part = &to->parts[to->n++];
    *part = (struct prepared_part){.atom = l->terms[i].atom, .coef = nest_dim(nb, coef)};
    part->coef_value = uniform_i64(nb, part->coef);
    if (a->kind == ATOM_VALUE) {
      if (!nest_prepare(nb, a->ref)) return false;
      continue;
    }
    part->by = uniform_i64(nb, nest_dim(nb, a->by));
    part->of = arena_alloc(nb->arena, sizeof *part->of);
    if (!part->of) return nest_refuse(nb, lower_no_memory);
    if (!nest_prepare_form(nb, a->of, part->of)) return false;
  }
  to->base = base ? base : nb->zero;
  return true;
}

static l_val vector_form(nest_builder *nb, const prepared_form *f);

/* A part of a prepared form as an i64 vector, without its coefficient. */
static l_val vector_part(nest_builder *nb, const struct prepared_part *part) {
  const k_atom *a = &nb->k->atoms[part->atom];
  if (a->kind != ATOM_VALUE)
    return l_kop(nb->p, a->kind == ATOM_DIV ? KOP_idiv : KOP_imod, DTYPE_INDEX, vector_form(nb, part->of), part->by, 0);
  l_val v = nest_value(nb, a->ref);
  if (nb->k->nodes[a->ref].dtype != DTYPE_INDEX) v = l_kop(nb->p, KOP_cast, DTYPE_INDEX, v, 0, 0);
  return v;
}

static bool is_one(const nest_builder *nb, l_val index) {
  return nb->p->code[index].code == L_INT && nb->p->code[index].imm == 1;
}

static l_val vector_parts(nest_builder *nb, const prepared_form *f) {
  l_val sum = 0;
  for (uint32_t i = 0; i < f->n; i++) {
    l_val v = vector_part(nb, &f->parts[i]);
    if (!is_one(nb, f->parts[i].coef)) v = l_kop(nb->p, KOP_mul, DTYPE_INDEX, v, f->parts[i].coef_value, 0);
    sum = sum ? l_kop(nb->p, KOP_add, DTYPE_INDEX, sum, v, 0) : v;
  }
  return sum;
}

static l_val vector_form(nest_builder *nb, const prepared_form *f) {
  if (f->n && !f->stride && f->base == nb->zero) return vector_parts(nb, f);
  l_val v = nest_code(nb, (l_instr){.code = L_IOTA, .dtype = DTYPE_INDEX, .a = f->base, .b = f->stride});
  return f->n ? l_kop(nb->p, KOP_add, DTYPE_INDEX, v, vector_parts(nb, f), 0) : v;
}

/* Sets the address operands of a memory instruction inside a VEC. */
static void address(nest_builder *nb, const prepared_form *f, l_instr *i) {
  i->a = f->base;
  i->b = f->stride;
  if (f->n == 1) {
    i->c = vector_part(nb, &f->parts[0]);
    i->d = f->parts[0].coef;
  } else if (f->n > 1) {
    i->c = vector_parts(nb, f);
    i->d = nb->one;
  }
}

/* ---- guards -------------------------------------------------------------------------------------------------------------- */

static l_val both(nest_builder *nb, l_val a, l_val b) {
  return !a ? b : !b ? a : l_kop(nb->p, KOP_and, DTYPE_TEST, a, b, 0);
}

static l_val in_range(nest_builder *nb, l_val v, l_val extent) {
  l_val zero = l_const(nb->p, DTYPE_INDEX, 0);
  return both(nb, l_kop(nb->p, KOP_ge, DTYPE_TEST, v, zero, 0), l_kop(nb->p, KOP_lt, DTYPE_TEST, v, extent, 0));
}

static l_val least(nest_builder *nb, l_code code, l_val a, l_val b) { return a ? l_index(nb->p, code, a, b) : b; }

/* Turns 0 <= base + c * i < extent, with a constant c other than 0, into bounds of i. */
static void bound(nest_builder *nb, l_val base, int64_t c, l_val extent, prepared_node *to) {
  l_program *p = nb->p;
  l_val lo, hi;
  if (c > 0) { /* i >= -base / c, rounded up; i < (extent - base) / c, rounded up */
    l_val by = nest_number(nb, c);
    lo = l_index(p, L_ISUB, nb->zero, l_index(p, L_IDIV, base, by));
    hi = l_index(p, L_ISUB, nb->zero, l_index(p, L_IDIV, l_index(p, L_ISUB, base, extent), by));
  } else { /* i <= base / |c|; i > (base - extent) / |c| */
    l_val by = nest_number(nb, -c);
    hi = l_index(p, L_IADD, l_index(p, L_IDIV, base, by), nb->one);
    lo = l_index(p, L_IADD, l_index(p, L_IDIV, l_index(p, L_ISUB, base, extent), by), nb->one);
  }
  to->lo = least(nb, L_IMAX, to->lo, lo);
  to->hi = least(nb, L_IMIN, to->hi, hi);
}

static bool prepare_guard(nest_builder *nb, k_guard g, prepared_node *to) {
  const k_kernel *k = nb->k;
  const k_condition *c = &k->guards[g];
  if (c->n) {
    to->ranges = arena_alloc(nb->arena, c->n * sizeof *to->ranges);
    if (!to->ranges) return nest_refuse(nb, lower_no_memory);
  }
  for (uint32_t i = 0; i < c->n; i++) {
    const k_linear *l = &k->forms[c->ranges[i].form];
    l_val extent = nest_dim(nb, c->ranges[i].extent);
    if (!varies(nb, l->axes)) {
      l_val v = uniform_i64(nb, nest_form(nb, c->ranges[i].form));
      to->where = both(nb, to->where, in_range(nb, v, uniform_i64(nb, extent)));
      continue;
    }
    prepared_form f;
    qn_dim coef;
    int64_t step;
    if (!nest_prepare_form(nb, c->ranges[i].form, &f)) return false;
    if (k_coef(k, c->ranges[i].form, (uint32_t)nb->vec, &coef) && dim_is_const(k->dims, coef, &step) && step != 0)
      bound(nb, f.base, step, extent, to);
    else
      to->ranges[to->nranges++] = (struct prepared_range){f, uniform_i64(nb, extent)};
  }
  return !c->where || nest_prepare(nb, c->where);
}

/* Sets the guard operands of a memory instruction inside a VEC. */
static void guard(nest_builder *nb, k_guard g, const prepared_node *n, l_instr *i) {
  l_val where = n->where;
  for (uint32_t r = 0; r < n->nranges; r++)
    where = both(nb, where, in_range(nb, vector_form(nb, &n->ranges[r].form), n->ranges[r].extent));
  if (nb->k->guards[g].where) where = both(nb, where, nest_value(nb, nb->k->guards[g].where));
  i->e = n->lo;
  i->f = n->hi;
  i->g = where;
}

/* ---- preparing ------------------------------------------------------------------------------------------------------------- */

static prepared_node *prepared_of(nest_builder *nb, k_val v) {
  prepared_node *n = arena_alloc(nb->arena, sizeof *n);
  if (!n) {
    nest_refuse(nb, lower_no_memory);
    return NULL;
  }
  nb->prepared[v] = n;
  nb->prepared_list[nb->nprepared++] = v;
  return n;
}

bool nest_prepare(nest_builder *nb, k_val v) {
  const k_node *n = &nb->k->nodes[v];
  if (nb->why) return false;
  if (nb->value[v] || nb->prepared[v]) return true;
  if (!varies(nb, n->axes)) return nest_value(nb, v) != 0 || nest_refuse(nb, lower_no_memory);
  prepared_node *to = prepared_of(nb, v);
  if (!to) return false;
  if (nb->kept[v].in || nb->acc[v]) {
    /* A scan needs its operand in the pass that computes it; a reduction that is finished needs nothing. */
    return n->code != K_SCAN || nb->kept[v].in || nest_prepare(nb, n->a);
  }
  const k_val operands[] = {n->a, n->b, n->c};
  for (int i = 0; i < 3; i++)
    if (operands[i] && !nest_prepare(nb, operands[i])) return false;
  if (n->code == K_LOAD || n->code == K_IOTA)
    return nest_prepare_form(nb, n->at, &to->at) && prepare_guard(nb, n->guard, to);
  return true;
}

bool nest_prepare_effect(nest_builder *nb, k_val effect) {
  const k_node *n = &nb->k->nodes[effect];
  if (nb->why || !nest_prepare(nb, n->a) || (n->b && !nest_prepare(nb, n->b))) return false;
  prepared_node *to = prepared_of(nb, effect);
  return to && nest_prepare_form(nb, n->at, &to->at) && prepare_guard(nb, n->guard, to);
}

void nest_vec(nest_builder *nb, l_val n) {
  nest_code(nb, (l_instr){.code = L_VEC, .a = nb->zero, .b = n});
  nb->in_vec = true;
}

void nest_vec_end(nest_builder *nb, uint32_t mark) {
  nb->in_vec = false;
  while (nb->nprepared) nb->prepared[nb->prepared_list[--nb->nprepared]] = NULL;
  nest_end(nb, mark);
}

/* ---- values ------------------------------------------------------------------------------------------------------------------ */

l_order nest_order(const k_node *n) {
  if (n->code == K_DOT) return ORDER_DOT;
  if (kop_is_arg(n->sub) || k_free_order(n->sub, n->dtype)) return ORDER_FREE;
  return (l_order)n->order;
}

static l_val load_kept(nest_builder *nb, k_val v) {
  const struct kept *s = &nb->kept[v];
  return nest_code(
      nb, (l_instr){.code = L_LOAD, .dtype = nb->k->nodes[v].dtype, .imm = s->in, .a = s->base, .b = s->stride});
}

static l_val make_load(nest_builder *nb, k_val v) {
  const k_node *n = &nb->k->nodes[v];
  l_instr i = {.code = L_LOAD, .dtype = n->dtype, .imm = n->buffer};
  if (nb->in_vec && nb->prepared[v]) {
    address(nb, &nb->prepared[v]->at, &i);
    if (n->guard) guard(nb, n->guard, nb->prepared[v], &i);
  } else {
    prepared_node here = {0};
    i.a = nest_form(nb, n->at);
    if (n->guard) {
      if (!prepare_guard(nb, n->guard, &here)) return 0;
      guard(nb, n->guard, &here, &i);
    }
  }
  if (i.e || i.f || i.g) i.h = nest_value(nb, n->a);
  l_val loaded = nest_code(nb, i);
  nb->last_load[n->buffer] = loaded;
  return loaded;
}

static l_val make_value(nest_builder *nb, k_val v) {
  const k_node *n = &nb->k->nodes[v];
  if (nb->kept[v].in) return load_kept(nb, v);
  switch (n->code) {
  case K_CONST: return l_const(nb->p, (qn_dtype)n->dtype, n->imm);
  case K_SCALAR:
    if (n->imm >= nb->p->nscalars) nb->p->nscalars = (uint32_t)n->imm + 1;
    return nest_code(nb, (l_instr){.code = L_SCALAR, .dtype = n->dtype, .imm = (int64_t)n->imm});
  case K_IOTA: {
    if (!nb->in_vec || !nb->prepared[v])
      return nest_code(nb, (l_instr){.code = L_IOTA, .dtype = n->dtype, .a = nest_form(nb, n->at)});
    const prepared_form *f = &nb->prepared[v]->at;
    if (!f->n) return nest_code(nb, (l_instr){.code = L_IOTA, .dtype = n->dtype, .a = f->base, .b = f->stride});
    l_val x = vector_form(nb, f);
    return n->dtype == DTYPE_INDEX ? x : l_kop(nb->p, KOP_cast, (qn_dtype)n->dtype, x, 0, 0);
  }
  case K_LOAD: return make_load(nb, v);
  case K_OP:
  case K_MATH: {
    l_val a = nest_value(nb, n->a), b = n->b ? nest_value(nb, n->b) : 0, c = n->c ? nest_value(nb, n->c) : 0;
    if (!a || (n->b && !b) || (n->c && !c)) return 0;
    if (n->code == K_OP) return l_kop(nb->p, (kop_id)n->sub, (qn_dtype)n->dtype, a, b, c);
    return l_math(nb->p, (math_id)n->sub, (qn_dtype)n->dtype, a, b, c);
  }
  case K_SCAN: {
    l_val x = nest_value(nb, n->a);
    uint8_t flags = n->flags & K_EXCLUSIVE ? L_EXCLUSIVE : 0;
    return nest_code(nb, (l_instr){.code = L_SCAN, .dtype = n->dtype, .flags = flags, .a = nb->acc[v], .b = x});
  }
  case K_REDUCE:
  case K_DOT: return nest_code(nb, (l_instr){.code = L_FINISH, .dtype = n->dtype, .a = nb->acc[v]});
  default: return 0;
  }
}

l_val nest_value(nest_builder *nb, k_val v) {
  if (nb->why) return 0;
  if (nb->value[v]) return nb->value[v];
  const k_node *n = &nb->k->nodes[v];
  if (k_folds(n) && !nb->acc[v] && !nb->kept[v].in) return nest_refuse(nb, "a reduction is used before it is finished");
  l_val made = make_value(nb, v);
  if (!made) return nest_refuse(nb, lower_no_memory);
  nest_set_value(nb, v, made);
  return made;
}

bool nest_effect(nest_builder *nb, k_val effect) {
  const k_node *n = &nb->k->nodes[effect];
  l_val v = nest_value(nb, n->a), shows = n->b ? nest_value(nb, n->b) : 0;
  if (!v) return false;
  prepared_node here = {0};
  const prepared_node *to = nb->prepared[effect];
  if (!nb->in_vec || !to) {
    here.at.base = nest_form(nb, n->at);
    if (!prepare_guard(nb, n->guard, &here)) return false;
    to = &here;
  }
  if (n->code == K_CHECK) {
    if (to->at.n) return nest_refuse(nb, "a check's element is not affine");
    nest_code(
        nb,
        (l_instr){.code = L_CHECK, .imm = (int64_t)n->imm, .a = v, .b = to->at.base, .c = to->at.stride, .d = shows});
    return !nb->why;
  }
  l_instr i = {.code = L_STORE, .imm = n->buffer, .h = v};
  address(nb, &to->at, &i);
  guard(nb, n->guard, to, &i);
  if (n->code == K_STOREF && n->sub != KOP_copy) {
    i.code = L_RMW;
    i.sub = n->sub;
  }
  l_val at = nest_code(nb, i);
  if (!nb->first_store[n->buffer]) nb->first_store[n->buffer] = at;
  return !nb->why;
}
