/* A kernel without one of its axes: what varies along it is as many values, and reductions over it are operations between them, in the order
 * that L's accumulators have (l.h). For axes of a few elements, as of points in space: loops are then free to run over another axis, and
 * such values stay in registers. Bits are the same. */
#include <string.h>

#include "jit/kernel/k.h"

typedef struct unroller {
  const k_kernel *k;
  k_kernel *to;
  uint32_t axis;
  uint32_t n;                 /* its elements */
  k_val *value;               /* by node and element: its value in the new kernel */
  uint8_t number[K_AXES_MAX]; /* of axes there */
  uint32_t at;                /* the element at hand */
} unroller;

static bool varies(const unroller *u, k_mask axes) { return axes >> u->axis & 1; }
static k_val value_at(const unroller *u, k_val v, uint32_t i) { return v ? u->value[v * u->n + i] : 0; }

static k_form form(unroller *u, k_form f);

static k_form atom(unroller *u, const k_atom *a) {
  switch (a->kind) {
  case ATOM_AXIS: return a->ref == u->axis ? k_number(u->to, u->at) : k_axis_form(u->to, u->number[a->ref]);
  case ATOM_VALUE: return k_value_form(u->to, value_at(u, a->ref, u->at));
  case ATOM_DIV: return k_div(u->to, form(u, a->of), a->by);
  default: return k_mod(u->to, form(u, a->of), a->by);
  }
}

static k_form form(unroller *u, k_form f) {
  const k_linear *l = &u->k->forms[f];
  k_form sum = k_number(u->to, l->constant);
  for (uint32_t i = 0; i < l->n; i++)
    sum = k_plus(u->to, sum, k_times(u->to, atom(u, &u->k->atoms[l->terms[i].atom]), l->terms[i].coef));
  return sum;
}

static k_guard guard(unroller *u, k_guard g) {
  const k_condition *c = &u->k->guards[g];
  k_guard made = 0;
  for (uint32_t i = 0; i < c->n; i++)
    made = k_guard_range(u->to, made, form(u, c->ranges[i].form), c->ranges[i].extent);
  return c->where ? k_guard_where(u->to, made, value_at(u, c->where, u->at)) : made;
}

static k_mask axes_of(const unroller *u, k_mask m) {
  k_mask to = 0;
  for (uint32_t a = 0; a < u->k->naxes; a++)
    if ((m >> a & 1) && a != u->axis) to |= (k_mask)1 << u->number[a];
  return to;
}

/* A reduction over the axis: lanes that are combined by halves (INNER), or a chain. */
static k_val reduced(unroller *u, const k_node *n) {
  k_val x[K_LITERAL_MAX];
  bool real = dtype_is_float((qn_dtype)n->dtype);
  if (n->code == K_DOT) {
    k_val sum = 0;
    for (uint32_t i = 0; i < u->n; i++) {
      k_val a = value_at(u, n->a, i), b = value_at(u, n->b, i);
      if (sum && real) {
        sum = k_op(u->to, KOP_fma, (qn_dtype)n->dtype, a, b, sum);
        continue;
      }
      k_val product = k_op(u->to, KOP_mul, (qn_dtype)n->dtype, a, b, 0);
      sum = sum ? k_op(u->to, KOP_add, (qn_dtype)n->dtype, product, sum, 0) : product;
    }
    return sum;
  }
  for (uint32_t i = 0; i < u->n; i++) x[i] = value_at(u, n->a, i);
  if (n->order == ORDER_INNER && !k_free_order(n->sub, n->dtype)) {
    for (uint32_t h = ORDER_LANES / 2; h; h /= 2)
      for (uint32_t i = 0; i < h && i + h < u->n; i++)
        x[i] = k_op(u->to, (kop_id)n->sub, (qn_dtype)n->dtype, x[i], x[i + h], 0);
    return x[0];
  }
  for (uint32_t i = 1; i < u->n; i++) x[0] = k_op(u->to, (kop_id)n->sub, (qn_dtype)n->dtype, x[0], x[i], 0);
  return x[0];
}

static k_val copied(unroller *u, const k_node *n) {
  k_kernel *to = u->to;
  k_val a = value_at(u, n->a, u->at), b = value_at(u, n->b, u->at), c = value_at(u, n->c, u->at);
  qn_dtype d = (qn_dtype)n->dtype;
  switch (n->code) {
  case K_CONST: return k_const(to, d, n->imm);
  case K_SCALAR: return k_scalar(to, d, (uint32_t)n->imm);
  case K_IOTA: return k_iota(to, d, form(u, n->at));
  case K_LOAD: return k_load(to, n->buffer, form(u, n->at), guard(u, n->guard), a);
  case K_OP: return k_op(to, (kop_id)n->sub, d, a, b, c);
  case K_MATH: return k_math(to, (math_id)n->sub, d, a, b, c);
  case K_REDUCE: return k_reduce(to, (kop_id)n->sub, (l_order)n->order, u->number[n->axis], a);
  case K_SCAN: return k_scan(to, (kop_id)n->sub, (l_order)n->order, u->number[n->axis], n->flags & K_EXCLUSIVE, a);
  default: return k_dot(to, u->number[n->axis], a, b);
  }
}

static bool effect(unroller *u, const k_node *n) {
  k_val a = value_at(u, n->a, u->at), b = value_at(u, n->b, u->at);
  k_mask over = axes_of(u, n->axes);
  k_form at = form(u, n->at);
  if (n->code == K_CHECK) return k_check(u->to, (int)n->imm, a, at, b, over);
  if (n->code == K_STORE) return k_store(u->to, n->buffer, at, guard(u, n->guard), a, over);
  return k_storef(u->to, (kop_id)n->sub, n->buffer, at, guard(u, n->guard), a, over);
}

bool k_can_unroll(const k_kernel *k, uint32_t axis) {
  int64_t n;
  if (!dim_is_const(k->dims, k->axes[axis].extent, &n) || n < 2 || n > K_LITERAL_MAX) return false;
  bool reduced = false;
  for (k_val v = 1; v < k->n; v++) {
    const k_node *x = &k->nodes[v];
    bool over = (x->code == K_REDUCE || x->code == K_SCAN || x->code == K_DOT) && x->axis == axis;
    if (x->code >= K_WHILE && x->code <= K_END) return false;
    if (over && (x->code == K_SCAN || kop_is_arg(x->sub))) return false;
    if (x->code == K_STOREF && (x->axes >> axis & 1)) return false; /* these are made in the order of their axes */
    reduced |= over;
  }
  return reduced;
}

k_kernel *k_unroll(const k_kernel *k, uint32_t axis) {
  int64_t n = 1;
  if (!dim_is_const(k->dims, k->axes[axis].extent, &n)) return NULL;
  unroller u = {.k = k, .to = k_new(k->name, k->dims), .axis = axis, .n = (uint32_t)n};
  if (!u.to) return NULL;
  k_kernel *to = u.to;
  to->classed = k->classed;
  to->statics = k->statics;
  u.value = arena_alloc(&to->arena, (size_t)k->n * u.n * sizeof *u.value);
  bool ok = u.value != NULL;
  for (uint32_t a = 0; ok && a < k->naxes; a++)
    if (a != axis) u.number[a] = (uint8_t)k_axis_add(to, k->axes[a].name, k->axes[a].extent);
  for (uint32_t b = 0; ok && b < k->nbuffers; b++)
    ok = k_buffer_add(to, (qn_dtype)k->buffers[b].dtype, (l_buffer_mode)k->buffers[b].mode, k->buffers[b].ref,
                      k->buffers[b].elements) >= 0;
  for (uint32_t c = 0; ok && c < k->nchecks; c++) ok = k_check_add(to, k->checks[c]) >= 0;
  for (uint32_t s = 0; ok && s < k->nscalars; s++) ok = !k->scalars_cap || k_scalar_of(to, k->scalars[s]) == (int)s;
  to->nscalars = k->nscalars;
  for (k_val v = 1; ok && v < k->n && !to->failed; v++) {
    const k_node *x = &k->nodes[v];
    bool over = (x->code == K_REDUCE || x->code == K_DOT) && x->axis == axis;
    bool each = varies(&u, k_is_effect(x) ? x->axes : k_value_axes(k, x));
    for (u.at = 0; u.at < u.n && ok; u.at++) {
      k_val *made = &u.value[v * u.n + u.at];
      if (k_is_effect(x))
        ok = (u.at && !each) || effect(&u, x);
      else
        *made = u.at && !each ? made[-1] : over ? reduced(&u, x) : copied(&u, x);
    }
  }
  if (ok && !to->failed) k_finish(to);
  if (ok && !to->failed) return to;
  k_free(to);
  return NULL;
}
