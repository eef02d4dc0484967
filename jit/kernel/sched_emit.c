/* Addresses and values at a point of a loop nest (sched_impl.h).
 *
 * The nest (schedule.c) says where each axis stands: e->at[axis] is an index value, of the axis that the VEC runs over the
 * index of its first element. A form splits into a base and a stride along that axis; what is left (quotients, remainders
 * and data as coordinates) becomes integer vectors. Index arithmetic and uniform values must stand before the VEC, so everything
 * is prepared first: emit_prepare walks over a value's operands, emits what does not vary along the VEC's axis, and keeps
 * bases, strides and bounds of the loads for when the VEC is open. */
#include "jit/kernel/sched_impl.h"

#include <stdlib.h>
#include <string.h>

#include "jit/kernel/lower.h"

bool emit_refuse(emitter *e, const char *why) {
  if (!e->why) e->why = why;
  return false;
}

bool emit_init(emitter *e, const k_kernel *k, l_program *p) {
  *e = (emitter){.k = k, .p = p, .arena = &p->arena, .vec = -1};
  e->value = calloc(k->n, sizeof *e->value);
  e->trail = calloc(k->n, sizeof *e->trail);
  e->prepared = calloc(k->n, sizeof *e->prepared);
  e->prepared_list = calloc(k->n, sizeof *e->prepared_list);
  e->acc = calloc(k->n, sizeof *e->acc);
  e->kept = calloc(k->n, sizeof *e->kept);
  e->last_load = calloc(k->nbuffers + 1, sizeof *e->last_load);
  e->first_store = calloc(k->nbuffers + 1, sizeof *e->first_store);
  e->lone_store = calloc(k->nbuffers + 1, sizeof *e->lone_store);
  bool ok = e->value && e->trail && e->prepared && e->prepared_list && e->acc && e->kept && e->last_load &&
            e->first_store && e->lone_store;
  return ok || emit_refuse(e, lower_no_memory);
}

void emit_free(emitter *e) {
  free(e->value);
  free(e->trail);
  free(e->prepared);
  free(e->prepared_list);
  free(e->acc);
  free(e->kept);
  free(e->last_load);
  free(e->first_store);
  free(e->lone_store);
  free(e->dims);
  free(e->ints);
}

l_val emit_code(emitter *e, l_instr i) { return l_emit(e->p, i); }

/* ---- numbers and sizes ----------------------------------------------------------------------------------------------- */

l_val emit_number(emitter *e, int64_t n) { return n == 0 ? e->zero : n == 1 ? e->one : l_int(e->p, n); }

/* The parameter that carries a size or symbol. */
static l_val parameter(emitter *e, qn_dim d) {
  uint32_t i = 0;
  while (i < e->nints && e->ints[i] != d) i++;
  if (i == e->nints) {
    if (e->nints == e->ints_cap) {
      uint32_t cap = e->ints_cap ? 2 * e->ints_cap : 16;
      qn_dim *more = realloc(e->ints, cap * sizeof *more);
      if (!more) {
        emit_refuse(e, lower_no_memory);
        return 0;
      }
      e->ints = more;
      e->ints_cap = cap;
    }
    e->ints[e->nints++] = d;
  }
  return l_param(e->p, i);
}

/* Symbols and larger sizes are parameters, so that programs serve all shapes; arithmetic on them stands in the prelude. */
static l_val make_dim(emitter *e, qn_dim d) {
  const dim_table *t = e->k->dims;
  int64_t c;
  if (dim_is_const(t, d, &c)) {
    if (c >= -K_LITERAL_MAX && c <= K_LITERAL_MAX) return l_int(e->p, c);
    if (c >= 0) return parameter(e, d);
    return l_index(e->p, L_ISUB, l_int(e->p, 0), parameter(e, -c));
  }
  const dim_expr x = t->exprs[~d];
  if (x.op == DIM_SYMBOL) return parameter(e, d);
  static const uint8_t codes[] = {[DIM_ADD] = L_IADD, [DIM_SUB] = L_ISUB, [DIM_MUL] = L_IMUL, [DIM_FLOORDIV] = L_IDIV,
                                  [DIM_MOD] = L_IMOD, [DIM_MIN] = L_IMIN, [DIM_MAX] = L_IMAX};
  l_val a = emit_dim(e, x.a), b = emit_dim(e, x.b);
  return l_index(e->p, (l_code)codes[x.op], a, b);
}

l_val emit_dim(emitter *e, qn_dim d) {
  for (uint32_t i = 0; i < e->ndims; i++)
    if (e->dims[i].dim == d) return e->dims[i].value;
  l_val v = make_dim(e, d);
  if (e->body) return v;
  if (e->ndims == e->dims_cap) {
    uint32_t cap = e->dims_cap ? 2 * e->dims_cap : 32;
    void *more = realloc(e->dims, cap * sizeof *e->dims);
    if (!more) {
      emit_refuse(e, lower_no_memory);
      return 0;
    }
    e->dims = more;
    e->dims_cap = cap;
  }
  e->dims[e->ndims].dim = d;
  e->dims[e->ndims++].value = v;
  return v;
}

l_val emit_for(emitter *e, l_val from, l_val to, l_val *variable) {
  l_val loop = emit_code(e, (l_instr){.code = L_FOR, .a = from, .b = to});
  *variable = emit_code(e, (l_instr){.code = L_VAR, .a = loop});
  return loop;
}

/* ---- scopes ------------------------------------------------------------------------------------------------------------ */

void emit_set_value(emitter *e, k_val v, l_val value) {
  if (!e->value[v]) e->trail[e->ntrail++] = v;
  e->value[v] = value;
}

void emit_forget(emitter *e, uint32_t mark) {
  while (e->ntrail > mark) e->value[e->trail[--e->ntrail]] = 0;
}

void emit_end(emitter *e, uint32_t mark) {
  emit_forget(e, mark);
  l_end(e->p);
}

/* ---- forms ------------------------------------------------------------------------------------------------------------- */

static bool varies(const emitter *e, k_mask axes) { return e->vec >= 0 && (axes >> e->vec & 1); }

static l_val times(emitter *e, l_val a, qn_dim coef) {
  return coef == 1 ? a : l_index(e->p, L_IMUL, a, emit_dim(e, coef));
}

/* The index value of an atom that does not vary along the VEC's axis. */
static l_val emit_atom(emitter *e, const k_atom *a) {
  switch (a->kind) {
  case ATOM_AXIS: return e->at[a->ref];
  case ATOM_VALUE: return emit_code(e, (l_instr){.code = L_IVALUE, .a = emit_value(e, a->ref)});
  case ATOM_DIV: return l_index(e->p, L_IDIV, emit_form(e, a->of), emit_dim(e, a->by));
  default: return l_index(e->p, L_IMOD, emit_form(e, a->of), emit_dim(e, a->by));
  }
}

l_val emit_form(emitter *e, k_form f) {
  const k_linear *l = &e->k->forms[f];
  l_val sum = l->constant != 0 || l->n == 0 ? emit_dim(e, l->constant) : 0;
  for (uint32_t i = 0; i < l->n; i++) {
    l_val v = times(e, emit_atom(e, &e->k->atoms[l->terms[i].atom]), l->terms[i].coef);
    sum = sum ? l_index(e->p, L_IADD, sum, v) : v;
  }
  return sum;
}

static l_val uniform_i64(emitter *e, l_val index) {
  return emit_code(e, (l_instr){.code = L_IOTA, .dtype = DTYPE_INDEX, .a = index});
}

bool emit_prepare_form(emitter *e, k_form f, prepared_form *to) {
  const k_kernel *k = e->k;
  const k_linear *l = &k->forms[f];
  *to = (prepared_form){0};
  if (!varies(e, l->axes)) {
    to->base = emit_form(e, f);
    return true;
  }
  l_val base = l->constant ? emit_dim(e, l->constant) : 0;
  uint32_t odd = 0;
  for (uint32_t i = 0; i < l->n; i++) odd += varies(e, k->atoms[l->terms[i].atom].axes);
  to->parts = arena_alloc(e->arena, (odd + 1) * sizeof *to->parts);
  if (!to->parts) return emit_refuse(e, lower_no_memory);
  for (uint32_t i = 0; i < l->n; i++) {
    const k_atom *a = &k->atoms[l->terms[i].atom];
    qn_dim coef = l->terms[i].coef;
    if (!varies(e, a->axes) || a->kind == ATOM_AXIS) {
      l_val v = times(e, emit_atom(e, a), coef);
      base = base ? l_index(e->p, L_IADD, base, v) : v;
      if (varies(e, a->axes)) to->stride = emit_dim(e, coef);
      continue;
    }
    struct prepared_part *part = &to->parts[to->n++];
    *part = (struct prepared_part){.atom = l->terms[i].atom, .coef = emit_dim(e, coef)};
    part->coef_value = uniform_i64(e, part->coef);
    if (a->kind == ATOM_VALUE) {
      if (!emit_prepare(e, a->ref)) return false;
      continue;
    }
    part->by = uniform_i64(e, emit_dim(e, a->by));
    part->of = arena_alloc(e->arena, sizeof *part->of);
    if (!part->of) return emit_refuse(e, lower_no_memory);
    if (!emit_prepare_form(e, a->of, part->of)) return false;
  }
  to->base = base ? base : e->zero;
  return true;
}

static l_val vector_form(emitter *e, const prepared_form *f);

/* A part as an i64 vector, without its coefficient. */
static l_val vector_part(emitter *e, const struct prepared_part *part) {
  const k_atom *a = &e->k->atoms[part->atom];
  if (a->kind != ATOM_VALUE)
    return l_kop(e->p, a->kind == ATOM_DIV ? KOP_idiv : KOP_imod, DTYPE_INDEX, vector_form(e, part->of), part->by, 0);
  l_val v = emit_value(e, a->ref);
  if (e->k->nodes[a->ref].dtype != DTYPE_INDEX) v = l_kop(e->p, KOP_cast, DTYPE_INDEX, v, 0, 0);
  return v;
}

static bool is_one(const emitter *e, l_val index) {
  return e->p->code[index].code == L_INT && e->p->code[index].imm == 1;
}

static l_val vector_parts(emitter *e, const prepared_form *f) {
  l_val sum = 0;
  for (uint32_t i = 0; i < f->n; i++) {
    l_val v = vector_part(e, &f->parts[i]);
    if (!is_one(e, f->parts[i].coef)) v = l_kop(e->p, KOP_mul, DTYPE_INDEX, v, f->parts[i].coef_value, 0);
    sum = sum ? l_kop(e->p, KOP_add, DTYPE_INDEX, sum, v, 0) : v;
  }
  return sum;
}

static l_val vector_form(emitter *e, const prepared_form *f) {
  if (f->n && !f->stride && f->base == e->zero) return vector_parts(e, f);
  l_val v = emit_code(e, (l_instr){.code = L_IOTA, .dtype = DTYPE_INDEX, .a = f->base, .b = f->stride});
  return f->n ? l_kop(e->p, KOP_add, DTYPE_INDEX, v, vector_parts(e, f), 0) : v;
}

/* Fills in the address of a memory instruction inside a VEC. */
static void address(emitter *e, const prepared_form *f, l_instr *i) {
  i->a = f->base;
  i->b = f->stride;
  if (f->n == 1) {
    i->c = vector_part(e, &f->parts[0]);
    i->d = f->parts[0].coef;
  } else if (f->n > 1) {
    i->c = vector_parts(e, f);
    i->d = e->one;
  }
}

/* ---- guards -------------------------------------------------------------------------------------------------------------- */

static l_val both(emitter *e, l_val a, l_val b) { return !a ? b : !b ? a : l_kop(e->p, KOP_and, DTYPE_TEST, a, b, 0); }

static l_val in_range(emitter *e, l_val v, l_val extent) {
  l_val zero = l_const(e->p, DTYPE_INDEX, 0);
  return both(e, l_kop(e->p, KOP_ge, DTYPE_TEST, v, zero, 0), l_kop(e->p, KOP_lt, DTYPE_TEST, v, extent, 0));
}

static l_val least(emitter *e, l_code code, l_val a, l_val b) { return a ? l_index(e->p, code, a, b) : b; }

/* 0 <= base + c * i < extent as bounds of i, for a constant c other than 0. */
static void bound(emitter *e, l_val base, int64_t c, l_val extent, prepared_node *to) {
  l_program *p = e->p;
  l_val lo, hi;
  if (c > 0) { /* i >= -base / c, rounded up; i < (extent - base) / c, rounded up */
    l_val by = emit_number(e, c);
    lo = l_index(p, L_ISUB, e->zero, l_index(p, L_IDIV, base, by));
    hi = l_index(p, L_ISUB, e->zero, l_index(p, L_IDIV, l_index(p, L_ISUB, base, extent), by));
  } else { /* i <= base / |c|; i > (base - extent) / |c| */
    l_val by = emit_number(e, -c);
    hi = l_index(p, L_IADD, l_index(p, L_IDIV, base, by), e->one);
    lo = l_index(p, L_IADD, l_index(p, L_IDIV, l_index(p, L_ISUB, base, extent), by), e->one);
  }
  to->lo = least(e, L_IMAX, to->lo, lo);
  to->hi = least(e, L_IMIN, to->hi, hi);
}

static bool prepare_guard(emitter *e, k_guard g, prepared_node *to) {
  const k_kernel *k = e->k;
  const k_condition *c = &k->guards[g];
  if (c->n) {
    to->ranges = arena_alloc(e->arena, c->n * sizeof *to->ranges);
    if (!to->ranges) return emit_refuse(e, lower_no_memory);
  }
  for (uint32_t i = 0; i < c->n; i++) {
    const k_linear *l = &k->forms[c->ranges[i].form];
    l_val extent = emit_dim(e, c->ranges[i].extent);
    if (!varies(e, l->axes)) {
      l_val v = uniform_i64(e, emit_form(e, c->ranges[i].form));
      to->where = both(e, to->where, in_range(e, v, uniform_i64(e, extent)));
      continue;
    }
    prepared_form f;
    qn_dim coef;
    int64_t step;
    if (!emit_prepare_form(e, c->ranges[i].form, &f)) return false;
    if (k_coef(k, c->ranges[i].form, (uint32_t)e->vec, &coef) && dim_is_const(k->dims, coef, &step) && step != 0)
      bound(e, f.base, step, extent, to);
    else
      to->ranges[to->nranges++] = (struct prepared_range){f, uniform_i64(e, extent)};
  }
  return !c->where || emit_prepare(e, c->where);
}

/* The guard of a memory instruction inside a VEC. */
static void guard(emitter *e, k_guard g, const prepared_node *n, l_instr *i) {
  l_val where = n->where;
  for (uint32_t r = 0; r < n->nranges; r++)
    where = both(e, where, in_range(e, vector_form(e, &n->ranges[r].form), n->ranges[r].extent));
  if (e->k->guards[g].where) where = both(e, where, emit_value(e, e->k->guards[g].where));
  i->e = n->lo;
  i->f = n->hi;
  i->g = where;
}

/* ---- preparing ------------------------------------------------------------------------------------------------------------- */

static prepared_node *prepared_of(emitter *e, k_val v) {
  prepared_node *n = arena_alloc(e->arena, sizeof *n);
  if (!n) {
    emit_refuse(e, lower_no_memory);
    return NULL;
  }
  e->prepared[v] = n;
  e->prepared_list[e->nprepared++] = v;
  return n;
}

bool emit_prepare(emitter *e, k_val v) {
  const k_node *n = &e->k->nodes[v];
  if (e->why) return false;
  if (e->value[v] || e->prepared[v]) return true;
  if (!varies(e, n->axes)) return emit_value(e, v) != 0 || emit_refuse(e, lower_no_memory);
  prepared_node *to = prepared_of(e, v);
  if (!to) return false;
  if (e->kept[v].local || e->acc[v]) {
    /* A scan's operand is needed where the scan is pushed; a finished reduction needs nothing. */
    return n->code != K_SCAN || e->kept[v].local || emit_prepare(e, n->a);
  }
  const k_val operands[] = {n->a, n->b, n->c};
  for (int i = 0; i < 3; i++)
    if (operands[i] && !emit_prepare(e, operands[i])) return false;
  if (n->code == K_LOAD || n->code == K_IOTA)
    return emit_prepare_form(e, n->at, &to->at) && prepare_guard(e, n->guard, to);
  return true;
}

bool emit_prepare_effect(emitter *e, k_val effect) {
  const k_node *n = &e->k->nodes[effect];
  if (e->why || !emit_prepare(e, n->a) || (n->b && !emit_prepare(e, n->b))) return false;
  prepared_node *to = prepared_of(e, effect);
  return to && emit_prepare_form(e, n->at, &to->at) && prepare_guard(e, n->guard, to);
}

void emit_vec(emitter *e, l_val n) {
  emit_code(e, (l_instr){.code = L_VEC, .a = e->zero, .b = n});
  e->in_vec = true;
}

void emit_vec_end(emitter *e, uint32_t mark) {
  e->in_vec = false;
  while (e->nprepared) e->prepared[e->prepared_list[--e->nprepared]] = NULL;
  emit_end(e, mark);
}

/* ---- values ------------------------------------------------------------------------------------------------------------------ */

l_order emit_order(const k_node *n) {
  if (n->code == K_DOT) return ORDER_DOT;
  if (kop_is_arg(n->sub) || k_free_order(n->sub, n->dtype)) return ORDER_FREE;
  return (l_order)n->order;
}

static l_val load_kept(emitter *e, k_val v) {
  const struct kept *s = &e->kept[v];
  return emit_code(
      e, (l_instr){
             .code = L_LOAD, .dtype = e->k->nodes[v].dtype, .imm = -(int64_t)s->local, .a = s->base, .b = s->stride});
}

static l_val emit_load(emitter *e, k_val v) {
  const k_node *n = &e->k->nodes[v];
  l_instr i = {.code = L_LOAD, .dtype = n->dtype, .imm = n->buffer};
  if (e->in_vec && e->prepared[v]) {
    address(e, &e->prepared[v]->at, &i);
    if (n->guard) guard(e, n->guard, e->prepared[v], &i);
  } else {
    prepared_node here = {0};
    i.a = emit_form(e, n->at);
    if (n->guard) {
      if (!prepare_guard(e, n->guard, &here)) return 0;
      guard(e, n->guard, &here, &i);
    }
  }
  if (i.e || i.f || i.g) i.h = emit_value(e, n->a);
  l_val loaded = emit_code(e, i);
  e->last_load[n->buffer] = loaded;
  return loaded;
}

static l_val make_value(emitter *e, k_val v) {
  const k_node *n = &e->k->nodes[v];
  if (e->kept[v].local) return load_kept(e, v);
  switch (n->code) {
  case K_CONST: return l_const(e->p, (qn_dtype)n->dtype, n->imm);
  case K_SCALAR:
    if (n->imm >= e->p->nscalars) e->p->nscalars = (uint32_t)n->imm + 1;
    return emit_code(e, (l_instr){.code = L_SCALAR, .dtype = n->dtype, .imm = (int64_t)n->imm});
  case K_IOTA: {
    if (!e->in_vec || !e->prepared[v])
      return emit_code(e, (l_instr){.code = L_IOTA, .dtype = n->dtype, .a = emit_form(e, n->at)});
    const prepared_form *f = &e->prepared[v]->at;
    if (!f->n) return emit_code(e, (l_instr){.code = L_IOTA, .dtype = n->dtype, .a = f->base, .b = f->stride});
    l_val x = vector_form(e, f);
    return n->dtype == DTYPE_INDEX ? x : l_kop(e->p, KOP_cast, (qn_dtype)n->dtype, x, 0, 0);
  }
  case K_LOAD: return emit_load(e, v);
  case K_OP:
  case K_MATH: {
    l_val a = emit_value(e, n->a), b = n->b ? emit_value(e, n->b) : 0, c = n->c ? emit_value(e, n->c) : 0;
    if (!a || (n->b && !b) || (n->c && !c)) return 0;
    if (n->code == K_OP) return l_kop(e->p, (kop_id)n->sub, (qn_dtype)n->dtype, a, b, c);
    return l_math(e->p, (math_id)n->sub, (qn_dtype)n->dtype, a, b, c);
  }
  case K_SCAN: {
    l_val x = emit_value(e, n->a);
    uint8_t flags = n->flags & K_EXCLUSIVE ? L_EXCLUSIVE : 0;
    return emit_code(e, (l_instr){.code = L_SCAN, .dtype = n->dtype, .flags = flags, .a = e->acc[v], .b = x});
  }
  case K_REDUCE:
  case K_DOT: return emit_code(e, (l_instr){.code = L_FINISH, .dtype = n->dtype, .a = e->acc[v]});
  default: return 0;
  }
}

l_val emit_value(emitter *e, k_val v) {
  if (e->why) return 0;
  if (e->value[v]) return e->value[v];
  const k_node *n = &e->k->nodes[v];
  bool reduction = n->code == K_REDUCE || n->code == K_SCAN || n->code == K_DOT;
  if (reduction && !e->acc[v] && !e->kept[v].local) {
    emit_refuse(e, "a reduction is used before it is finished");
    return 0;
  }
  l_val made = make_value(e, v);
  if (!made) {
    emit_refuse(e, lower_no_memory);
    return 0;
  }
  emit_set_value(e, v, made);
  return made;
}

bool emit_effect(emitter *e, k_val effect) {
  const k_node *n = &e->k->nodes[effect];
  l_val v = emit_value(e, n->a), shows = n->b ? emit_value(e, n->b) : 0;
  if (!v) return false;
  prepared_node here = {0};
  const prepared_node *to = e->prepared[effect];
  if (!e->in_vec || !to) {
    here.at.base = emit_form(e, n->at);
    if (!prepare_guard(e, n->guard, &here)) return false;
    to = &here;
  }
  if (n->code == K_CHECK) {
    if (to->at.n) return emit_refuse(e, "a check's element is not affine");
    emit_code(
        e,
        (l_instr){.code = L_CHECK, .imm = (int64_t)n->imm, .a = v, .b = to->at.base, .c = to->at.stride, .d = shows});
    return !e->why;
  }
  l_instr i = {.code = L_STORE, .imm = n->buffer, .h = v};
  address(e, &to->at, &i);
  guard(e, n->guard, to, &i);
  if (n->code == K_STOREF && n->sub != KOP_copy) {
    i.code = L_RMW;
    i.sub = n->sub;
  }
  l_val at = emit_code(e, i);
  if (!e->first_store[n->buffer]) e->first_store[n->buffer] = at;
  return !e->why;
}
