/* The verifier of K kernels: the rules of k.h that need no run.
 *
 * Operands come before their users and, inside a fold, while or if, are visible only to its end (carries excepted: they stand
 * before their region and are read after it). Axis sets are recomputed and compared. An element is stored once: of two plain
 * stores to one buffer both need guards, and a store's address may not ignore an axis it runs over. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "jit/kernel/k.h"

enum { NEST_MAX = 32 };

typedef struct checker {
  const k_kernel *k;
  k_val at;
  int depth; /* open loops */
  char *why;
  size_t size;
} checker;

static bool bad(checker *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool bad(checker *c, const char *format, ...) {
  int n = snprintf(c->why, c->size, "K %s: %%%u: ", c->k->name, c->at);
  va_list args;
  va_start(args, format);
  if (n >= 0 && (size_t)n < c->size) vsnprintf(c->why + n, c->size - (size_t)n, format, args);
  va_end(args);
  return false;
}

/* May the current node use v? Not if v stands in a loop that has ended. */
static bool visible(checker *c, k_val v) {
  if (!v || v >= c->at) return bad(c, "%%%u is not defined before", v);
  const k_node *n = &c->k->nodes[v];
  if (!k_has_result(n->code)) return bad(c, "%%%u is no value", v);
  int inside = 0;
  for (k_val i = v + 1; i < c->at; i++) {
    uint8_t code = c->k->nodes[i].code;
    if (code == K_WHILE) inside++;
    if (code == K_END && --inside < 0) return bad(c, "%%%u is not visible here", v);
  }
  return true;
}

static bool form_ok(checker *c, k_form f) {
  const k_kernel *k = c->k;
  if (f >= k->nforms) return bad(c, "no such form");
  const k_linear *l = &k->forms[f];
  for (uint32_t i = 0; i < l->n; i++) {
    const k_atom *a = &k->atoms[l->terms[i].atom];
    int64_t by;
    switch (a->kind) {
    case ATOM_AXIS:
      if (a->ref >= k->naxes) return bad(c, "no such axis");
      break;
    case ATOM_VALUE: {
      if (!visible(c, a->ref)) return false;
      uint8_t d = k->nodes[a->ref].dtype;
      if (dtype_is_float((qn_dtype)d) || dtype_is_bool(d)) return bad(c, "a coordinate is an integer");
      break;
    }
    default:
      if (dim_is_const(k->dims, a->by, &by) && by <= 0) return bad(c, "division by %lld", (long long)by);
      if (!form_ok(c, a->of)) return false;
    }
  }
  return true;
}

static bool guard_ok(checker *c, k_guard g) {
  if (g >= c->k->nguards) return bad(c, "no such guard");
  const k_condition *d = &c->k->guards[g];
  for (uint32_t i = 0; i < d->n; i++)
    if (!form_ok(c, d->ranges[i].form)) return false;
  if (!d->where) return true;
  return visible(c, d->where) && (dtype_is_bool(c->k->nodes[d->where].dtype) || bad(c, "a guard is a bool"));
}

static bool operands(checker *c, const k_node *n, int least, int most) {
  const k_val v[3] = {n->a, n->b, n->c};
  int count = 0;
  while (count < 3 && v[count]) count++;
  for (int i = count; i < 3; i++)
    if (v[i]) return bad(c, "operands have gaps");
  if (count < least || count > most) return bad(c, "wrong number of operands");
  for (int i = 0; i < count; i++)
    if (!visible(c, v[i])) return false;
  return true;
}

static bool types_ok(checker *c, const k_node *n) {
  const k_val v[3] = {n->a, n->b, n->c};
  uint8_t in[3];
  int count = 0;
  for (; count < 3 && v[count]; count++) in[count] = c->k->nodes[v[count]].dtype;
  const char *wrong =
      n->code == K_OP ? kop_misuse(n->sub, n->dtype, in, count) : math_misuse(n->sub, n->dtype, in, count);
  return !wrong || bad(c, "%s", wrong);
}

static bool reduction_ok(checker *c, const k_node *n) {
  const k_kernel *k = c->k;
  uint8_t d = k->nodes[n->a].dtype;
  if (n->axis >= k->naxes) return bad(c, "no such axis");
  if (dtype_is_narrow(d)) return bad(c, "f16 and bf16 are combined in f32");
  if (n->code == K_DOT) return (n->dtype == d && k->nodes[n->b].dtype == d) || bad(c, "factors of different dtypes");
  if (!kop_combines(n->sub) && !(kop_is_arg(n->sub) && n->code == K_REDUCE))
    return bad(c, "this function does not reduce");
  if (n->order != ORDER_INNER && n->order != ORDER_OUTER) return bad(c, "the order is inner or outer");
  uint8_t result = kop_is_arg(n->sub) ? DTYPE_INDEX : d;
  return n->dtype == result || bad(c, "wrong dtype of the result");
}

static bool axes_ok(checker *c, const k_node *n) {
  const k_kernel *k = c->k;
  k_mask m = k_value_axes(k, n);
  if (k_is_effect(n)) return !(m & ~n->axes) || bad(c, "an effect runs over all axes of its operands");
  return m == n->axes || bad(c, "wrong set of axes");
}

static bool buffer_ok(checker *c, const k_node *n) {
  const k_kernel *k = c->k;
  if (n->buffer < 0 || (uint32_t)n->buffer >= k->nbuffers) return bad(c, "no such buffer");
  const k_buffer *b = &k->buffers[n->buffer];
  if (b->dtype != n->dtype) return bad(c, "dtype differs from the buffer's");
  if (n->code == K_LOAD) return b->mode != BUF_OUT || bad(c, "loads from an output");
  return b->mode != BUF_IN || bad(c, "stores to an input");
}

/* Does every axis that a plain store runs over occur in its address? Else it would store an element several times. */
static bool store_ok(checker *c, const k_node *n) {
  const k_kernel *k = c->k;
  if (n->code == K_STORE && (k->forms[n->at].axes & n->axes) != n->axes && k_points(k, n->axes) > 0) {
    for (uint32_t a = 0; a < k->naxes; a++)
      if (((n->axes & ~k->forms[n->at].axes) >> a & 1) && dim_hint(k->dims, k->axes[a].extent) > 1)
        return bad(c, "an element is stored more than once");
  }
  if (n->code == K_STORE) return true;
  return n->sub == KOP_copy || kop_updates(n->sub) || bad(c, "no such update");
}

static bool node_ok(checker *c, const k_node *n) {
  const k_kernel *k = c->k;
  if (n->dtype >= QN_DTYPE_COUNT) return bad(c, "no such dtype");
  if (!guard_ok(c, n->guard) || !form_ok(c, n->at)) return false;
  switch ((k_code)n->code) {
  case K_CONST: return operands(c, n, 0, 0) && axes_ok(c, n);
  case K_SCALAR:
    if (n->imm >= k->nscalars) return bad(c, "no such scalar");
    return dtype_is_weak(n->dtype) || bad(c, "scalars are bool, i64 or f64");
  case K_IOTA: return operands(c, n, 0, 0) && axes_ok(c, n);
  case K_LOAD:
    if (!operands(c, n, n->guard != 0, n->guard != 0) || !buffer_ok(c, n) || !axes_ok(c, n)) return false;
    return !n->guard || k->nodes[n->a].dtype == n->dtype || bad(c, "dtype of `else` differs");
  case K_OP:
  case K_MATH: return operands(c, n, 1, 3) && types_ok(c, n) && axes_ok(c, n);
  case K_REDUCE:
  case K_SCAN: return operands(c, n, 1, 1) && reduction_ok(c, n) && axes_ok(c, n);
  case K_DOT: return operands(c, n, 2, 2) && reduction_ok(c, n) && axes_ok(c, n);
  case K_CARRY: return operands(c, n, 1, 1) && (n->dtype == k->nodes[n->a].dtype || bad(c, "wrong dtype"));
  case K_SET:
    if (!operands(c, n, 2, 2)) return false;
    if (k->nodes[n->a].code != K_CARRY) return bad(c, "%%%u is no carry", n->a);
    return k->nodes[n->b].dtype == k->nodes[n->a].dtype || bad(c, "dtype differs from the carry's");
  case K_WHILE:
    if (!operands(c, n, 1, 1)) return false;
    if (k->nodes[n->a].code != K_CARRY || !dtype_is_bool(k->nodes[n->a].dtype))
      return bad(c, "the condition is a bool carry");
    if (c->depth == NEST_MAX) return bad(c, "loops nest too deep");
    c->depth++;
    return true;
  case K_END:
    if (!c->depth) return bad(c, "nothing to end");
    c->depth--;
    return true;
  case K_CHECK:
    if (!operands(c, n, 1, 2) || !axes_ok(c, n)) return false;
    if (n->imm >= k->nchecks) return bad(c, "no such check");
    return dtype_is_bool(k->nodes[n->a].dtype) || bad(c, "a check tests a bool");
  case K_STORE:
  case K_STOREF: return operands(c, n, 1, 1) && buffer_ok(c, n) && axes_ok(c, n) && store_ok(c, n);
  default: return bad(c, "no such node");
  }
}

bool k_verify(const k_kernel *k, char *why, size_t size) {
  checker c = {.k = k, .why = why, .size = size};
  if (k->failed) return bad(&c, "out of memory while building");
  for (c.at = 1; c.at < k->n; c.at++)
    if (!node_ok(&c, &k->nodes[c.at])) return false;
  if (c.depth) return bad(&c, "a loop has no end");
  return true;
}
