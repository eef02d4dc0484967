/* Patterns and templates: what the values of a call must look like for a specialization to serve it, and how its result is put together.
 * (How they are made of a call that is recorded is in tracers.c.)
 *
 * pattern_match walks the values of a call along the pattern, in preorder: containers are compared by structure (records by layout), arrays
 * by dtype and sizes, numbers by kind, everything else by value; and it collects the inputs. It allocates nothing. Arguments that are single arrays,
 * as most are, have a table of their own, by which pattern_match_quick compares them first (30 instructions an argument in place of 80).
 *
 * A result template is the same idea the other way round: constants, outputs of the plan, and containers around them.
 */
#include <stdio.h>
#include <string.h>

#include "jit/trace/pattern.h"
#include "lang/format.h"

enum {
  HASHED_PARTS =
      4096 /* how many parts of a call's arguments the hash covers; differences in later ones are left to pattern_match */
};

/* ---- building -------------------------------------------------------------------------------------------------------------- */

uint64_t code_id(const qn_fn *f) {
  switch ((fn_kind)f->head.flags) {
  case FN_GRAPH:
  case FN_USER: return ((const fn_shared *)f->code)->id;
  default: return (uint64_t)(uintptr_t)f->code;
  }
}

uint64_t hash_mix(uint64_t h, uint64_t x) {
  h = (h ^ x) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 29;
}

bool fail_memory(qn_vm *vm) {
  if (!error_pending(vm)) raise_memory(vm);
  return false;
}

bool nodes_add(qn_vm *vm, node_list *l, uint32_t node) {
  if (!mem_grow(vm, (void **)&l->nodes, &l->cap, l->n + 1, sizeof *l->nodes)) return false;
  l->nodes[l->n++] = node;
  return true;
}

void nodes_free(qn_vm *vm, node_list *l) {
  mem_free(vm, l->nodes, l->cap * sizeof *l->nodes);
  *l = (node_list){0};
}

pat *pattern_add(qn_vm *vm, pattern *p) {
  if (!mem_grow(vm, (void **)&p->pats, &p->cap, p->n + 1, sizeof *p->pats)) return NULL;
  pat *x = &p->pats[p->n++];
  memset(x, 0, sizeof *x);
  x->value = value_nil();
  return x;
}

bool pattern_add_name(qn_vm *vm, pattern *p, qn_str *name) {
  if (!mem_grow(vm, (void **)&p->names, &p->names_cap, p->nnames + 1, sizeof *p->names)) return false;
  if (name) value_retain(value_obj(TAG_STR, name));
  p->names[p->nnames++] = name;
  return true;
}

root *pattern_add_root(qn_vm *vm, pattern *p, root_kind kind) {
  if (!mem_grow(vm, (void **)&p->roots, &p->roots_cap, p->nroots + 1, sizeof *p->roots)) return NULL;
  root *x = &p->roots[p->nroots++];
  *x = (root){.kind = (uint8_t)kind, .first = p->n, .tracer = value_nil(), .given = value_nil()};
  if (kind == ROOT_ARG) x->arg = p->nargs++;
  return x;
}

bool pattern_set_input(qn_vm *vm, pattern *p, pat *x, const graph_type *t, uint32_t input) {
  if (!mem_grow(vm, (void **)&p->dims, &p->dims_cap, p->ndims + t->rank, sizeof *p->dims)) return false;
  x->kind = t->weak ? PAT_SCALAR : PAT_ARRAY;
  x->tag = (uint8_t)(!t->weak                 ? TAG_ARRAY
                     : t->dtype == WEAK_FLOAT ? TAG_FLOAT
                     : t->dtype == WEAK_INT   ? TAG_INT
                                              : TAG_BOOL);
  x->dtype = t->dtype;
  x->rank = t->rank;
  x->n = t->weak ? 0 : PAT_ANY_DEVICE;
  x->input = input;
  x->dims = p->ndims;
  for (int i = 0; i < t->rank; i++) p->dims[p->ndims++] = t->shape[i];
  p->leaves++;
  return true;
}

/* The axes of an array without gaps that lie one within the other, innermost first, in 4 bits each with a 1 before them; 0: there are gaps, or axes
 * that run backwards. Axes of size 1 are left out. */
static uint64_t axis_order(const qn_array *a) {
  uint64_t order = 1;
  int64_t step = 1;
  uint32_t left = 0;
  for (int i = 0; i < a->rank; i++) left |= (uint32_t)(a->shape[i] != 1) << i;
  while (left) {
    int next = 0;
    while (next < a->rank && !(left >> next & 1 && a->strides[next] == step)) next++;
    if (next == a->rank || a->shape[next] < 1) return 0;
    left &= ~(1u << next);
    order = order << 4 | (uint64_t)next;
    step *= a->shape[next];
  }
  return order;
}

uint64_t layout_code(const qn_array *a) {
  uint64_t h = 1, order = a->contiguous ? 0 : axis_order(a);
  if (a->contiguous) return h;
  if (order) return hash_mix(2, order) | 2;
  for (int i = 0; i < a->rank; i++)
    if (a->shape[i] != 1) h = hash_mix(h, (uint64_t)a->strides[i]);
  return h | 2;
}

bool pattern_any_text(pattern *p) {
  for (uint32_t i = 0; i < p->n; i++)
    if (p->pats[i].kind == PAT_ARRAY) return false;
  for (uint32_t i = 0; i < p->n; i++)
    if (p->pats[i].kind == PAT_EXACT && p->pats[i].tag == TAG_STR) p->pats[i].n = 1;
  return true;
}

void pattern_free(qn_vm *vm, pattern *p) {
  for (uint32_t i = 0; i < p->n; i++)
    if (p->pats[i].kind != PAT_FN) value_release(vm, p->pats[i].value);
  for (uint32_t i = 0; i < p->nroots; i++) {
    value_release(vm, p->roots[i].tracer);
    value_release(vm, p->roots[i].given);
    /* when the VM closes, cells may have been freed before */
    if (p->roots[i].cell && !vm->closing) p->roots[i].cell->roots--;
  }
  for (uint32_t i = 0; i < p->nnames; i++)
    if (p->names[i]) value_release(vm, value_obj(TAG_STR, p->names[i]));
  nodes_free(vm, &p->asked);
  mem_free(vm, p->names, p->names_cap * sizeof *p->names);
  mem_free(vm, p->pats, p->cap * sizeof *p->pats);
  mem_free(vm, p->dims, p->dims_cap * sizeof *p->dims);
  mem_free(vm, p->roots, p->roots_cap * sizeof *p->roots);
  mem_free(vm, p->checks, p->nchecks * sizeof *p->checks);
  mem_free(vm, p->others, p->nothers * sizeof *p->others);
  if (p->own) value_release(vm, p->options);
  pattern_sizes_free(vm, p->sizes);
  memset(p, 0, sizeof *p);
}

void pattern_sizes_free(qn_vm *vm, pattern_sizes *s) {
  if (!s) return;
  arena_free(&s->arena);
  mem_free(vm, s, sizeof *s);
}

/* ---- matching --------------------------------------------------------------------------------------------------------------- */

typedef struct matcher {
  const pattern *p;
  uint32_t at;
  qn_array **inputs;
  qn_value *scalars;
  text_buf *why; /* NULL: the difference is not wanted */
  /* NULL, or sizes may differ: they are put here, where the pattern has its own in `dims`, and no inputs are collected */
  int64_t *sizes;
} matcher;

/* Does part `at` lack? A recording that was given up while it took in its arguments leaves the pattern unfinished: what would stand there
 * may be anything. */
static bool is_cut(const pattern *p, uint32_t at) { return at >= p->n; }

/* Is it the part of a stacked list? */
static bool is_stack(const pat *x) { return x->kind == PAT_LIST && x->tag == TAG_SIGNAL; }

/* Is the part a transform, like grad(f)? */
static const transform_def *transform_of(const pat *x) {
  return x->kind == PAT_FN && x->tag == FN_TRANSFORM ? x->value.u.p : NULL;
}

/* What a transform calls its i-th captured value; NULL: that is the function that it is of. */
static const char *capture_name(const transform_def *t, uint32_t i) {
  return i < sizeof t->captures / sizeof *t->captures ? t->captures[i] : NULL;
}

/* Appends what function x has as its i-th captured value: ", captured scale". What a transform is of is no part of its own. */
static void print_captured(const pattern *p, const pat *x, uint32_t i, text_buf *out) {
  const transform_def *transform = transform_of(x);
  const qn_str *name = x->dims ? p->names[x->dims - 1 + i] : NULL;
  if (transform && capture_name(transform, i))
    text_addf(out, ", %s", capture_name(transform, i));
  else if (name)
    text_addf(out, ", captured %s", name->text);
  else if (i || x->tag != FN_TRANSFORM)
    text_addf(out, ", captured value %u", i + 1);
}

/* Appends the path from part *at down to part `target`: ".w", "[2]". False if `target` is not below it: then *at is moved behind the
 * subtree. */
static bool path_below(const pattern *p, uint32_t *at, uint32_t target, text_buf *out) {
  uint32_t self = (*at)++;
  const pat *x = &p->pats[self];
  if (self == target) return true;
  if (x->kind != PAT_LIST && x->kind != PAT_RECORD && x->kind != PAT_FN) return false;
  for (uint32_t i = 0; i < x->n && !is_cut(p, *at); i++) {
    size_t len = out->len;
    if (x->kind == PAT_RECORD)
      text_addf(out, ".%s", record_name(value_record(x->value), i)->text);
    else if (is_stack(x))
      text_adds(out, ", stacked");
    else if (x->kind == PAT_LIST)
      text_addf(out, "[%u]", i);
    else
      print_captured(p, x, i, out);
    if (path_below(p, at, target, out)) return true;
    out->len = len;
  }
  return false;
}

/* Appends what a root is: "x", "argument 1" (it has no name), "global scale", "function". */
static void print_root(const root *x, text_buf *out) {
  if (x->kind == ROOT_ARG && !x->name)
    text_addf(out, "argument %u", x->arg + 1);
  else if (x->kind == ROOT_FN)
    text_adds(out, "function");
  else
    text_addf(out, "%s%s", x->kind == ROOT_ARG ? "" : "global ", x->name ? x->name->text : "?");
}

void pattern_print_place(const pattern *p, uint32_t target, text_buf *out) {
  uint32_t r = 0;
  while (r + 1 < p->nroots && p->roots[r + 1].first <= target) r++;
  const root *x = &p->roots[r];
  if (x->kind == ROOT_FN) text_adds(out, "the ");
  print_root(x, out);
  uint32_t at = x->first;
  path_below(p, &at, target, out);
}

void pattern_print_arg_name(const pattern *p, uint32_t arg, text_buf *out) {
  for (uint32_t i = 0; i < p->nroots; i++)
    if (p->roots[i].kind == ROOT_ARG && p->roots[i].arg == arg) print_root(&p->roots[i], out);
}

/* The part behind a part and all below it. */
static uint32_t part_behind(const pattern *p, uint32_t at) {
  const pat *x = &p->pats[at++];
  if (x->kind != PAT_LIST && x->kind != PAT_RECORD && x->kind != PAT_FN) return at;
  for (uint32_t i = 0; i < x->n && !is_cut(p, at); i++) at = part_behind(p, at);
  return at;
}

int64_t pattern_list_length(const pattern *p, uint32_t arg, qn_str *const *names, uint32_t n) {
  uint32_t at = p->n;
  for (uint32_t i = 0; i < p->nroots; i++)
    if (p->roots[i].kind == ROOT_ARG && p->roots[i].arg == arg) at = p->roots[i].first;
  for (uint32_t k = 0; k < n && !is_cut(p, at); k++) {
    const pat *x = &p->pats[at++];
    int field = x->kind == PAT_RECORD ? record_find(value_record(x->value), names[k]) : -1;
    if (field < 0) return -1;
    for (int i = 0; i < field && !is_cut(p, at); i++) at = part_behind(p, at);
  }
  if (is_cut(p, at) || p->pats[at].kind != PAT_LIST || is_stack(&p->pats[at])) return -1;
  return (int64_t)p->pats[at].n;
}

void pattern_input_name(const pattern *p, uint32_t input, text_buf *out) {
  for (uint32_t i = 0; i < p->n; i++)
    if ((p->pats[i].kind == PAT_ARRAY || p->pats[i].kind == PAT_SCALAR) && p->pats[i].input == input) {
      pattern_print_place(p, i, out);
      return;
    }
  for (uint32_t i = 0; p->sizes && i < p->sizes->ninputs; i++)
    if (p->sizes->inputs[i].input == input) {
      dim_print(&p->sizes->dims, p->sizes->inputs[i].size, out);
      return;
    }
  for (uint32_t i = 0; p->sizes && i < p->sizes->nplaces; i++)
    if (p->sizes->places[i].axis == PLACE_INT && p->sizes->places[i].input == input) {
      dim_print(&p->sizes->dims, p->sizes->places[i].symbol, out);
      return;
    }
  text_adds(out, "the random counter");
}

/* Appends the type of an array part: "f32[n, 8]". */
static void print_array(const pattern *p, const pat *x, text_buf *out) {
  const int64_t *dims = p->dims + x->dims;
  bool symbolic = false;
  for (int i = 0; i < x->rank; i++) symbolic |= dims[i] < 0;
  if (!symbolic || !p->sizes) {
    text_shape(out, (qn_dtype)x->dtype, x->rank, dims);
    return;
  }
  text_addf(out, "%s[", dtype_rows[x->dtype].name);
  for (int i = 0; i < x->rank; i++) {
    if (i) text_adds(out, ", ");
    dim_print(&p->sizes->dims, dims[i], out);
  }
  text_adds(out, "]");
}

/* Appends what a value would have to be to fit part x. */
static void print_expected(const pattern *p, const pat *x, text_buf *out) {
  switch ((pat_kind)x->kind) {
  case PAT_ARRAY: print_array(p, x, out); break;
  case PAT_SCALAR: text_adds(out, x->tag == TAG_INT ? "an int" : "a float"); break;
  case PAT_LIST:
    if (is_stack(x))
      text_adds(out, "a list of items that are alike");
    else
      text_addf(out, "a list of %u", x->n);
    break;
  case PAT_FN: text_adds(out, "the function that it was"); break;
  case PAT_EXACT:
    if (x->tag == TAG_UNSET) {
      text_adds(out, "the builtin");
      break;
    } /* fall through */
  default: text_kind(out, x->value); break;
  }
}

/* The value does not fit the part that was looked at last: false, with the difference in m->why if that is wanted. */
static bool miss(matcher *m, qn_value v) {
  if (!m->why) return false;
  const pat *x = &m->p->pats[m->at - 1];
  pattern_print_place(m->p, m->at - 1, m->why);
  if (value_is_stacked(v))
    text_addf(m->why, " is a list of %lld, stacked, instead of ", (long long)value_array(stacked_lead(v))->shape[0]);
  else
    text_addf(m->why, " is %s instead of ", phrase_kind(v).text);
  print_expected(m->p, x, m->why);
  return false;
}

static bool match_exact(const pat *x, qn_value v) {
  switch ((value_tag)x->tag) {
  case TAG_UNSET:
  case TAG_NIL: return true;
  case TAG_BOOL:
  case TAG_DTYPE:
  case TAG_DEVICE: return v.u.i == x->value.u.i;
  case TAG_STR: return x->n || v.u.p == x->value.u.p || str_equal(value_str(v), value_str(x->value));
  case TAG_RANGE: {
    const qn_range *a = value_range(v), *b = value_range(x->value);
    return a->start == b->start && a->stop == b->stop && a->step == b->step;
  }
  default: return v.u.p == x->value.u.p;
  }
}

/* Does an array have the dtype, shape and device of a part? How it lies in memory is not compared. */
static inline bool fits_array(const pat *x, const int64_t *dims, const qn_array *a) {
  if (a->dtype != x->dtype || a->rank != x->rank || (x->n != PAT_ANY_DEVICE && a->device != x->n)) return false;
  for (int i = 0, rank = x->rank; i < rank; i++) {
    int64_t d = dims[x->dims + (uint32_t)i];
    if (a->shape[i] != d && (d >= 0 || a->shape[i] < 2)) return false;
  }
  return true;
}

/* Does an array fit part x in all but its sizes? Takes its sizes. */
static bool any_size(const matcher *m, const pat *x, qn_value v) {
  const qn_array *a = value_array(v);
  if (!value_is(v, TAG_ARRAY) || a->dtype != x->dtype || a->rank != x->rank ||
      (x->n != PAT_ANY_DEVICE && a->device != x->n))
    return false;
  for (int i = 0; i < a->rank; i++) m->sizes[x->dims + (uint32_t)i] = a->shape[i];
  return true;
}

static bool match(matcher *m, qn_value v) {
  if (is_cut(m->p, m->at)) return true;
  const pat *x = &m->p->pats[m->at++];
  switch ((pat_kind)x->kind) {
  case PAT_ARRAY:
    if (m->sizes) return any_size(m, x, v);
    if (!value_is(v, TAG_ARRAY) || !fits_array(x, m->p->dims, value_array(v))) return miss(m, v);
    m->inputs[x->input] = value_array(v);
    if (x->layout && x->layout != layout_code(value_array(v))) {
      if (m->why) pattern_print_place(m->p, m->at - 1, m->why);
      if (m->why) text_adds(m->why, " lies in memory otherwise");
      return false;
    }
    return true;
  case PAT_SCALAR:
    if ((v.head & 0xff) != x->tag) return miss(m, v);
    if (m->sizes) return true;
    m->inputs[x->input] = NULL;
    m->scalars[x->input] = (qn_value){.head = x->tag, .u = v.u};
    return true;
  case PAT_EXACT: return ((v.head & 0xff) == x->tag && match_exact(x, v)) || miss(m, v);
  case PAT_LIST:
    if (!value_is(v, TAG_LIST) || value_list(v)->len != x->n || value_is_stacked(v) != is_stack(x)) return miss(m, v);
    break;
  case PAT_RECORD:
    if (!value_is(v, TAG_RECORD) || !record_same_layout(value_record(v), value_record(x->value))) return miss(m, v);
    break;
  case PAT_FN:
    if (!value_is(v, TAG_FN)) return miss(m, v);
    const qn_fn *f = value_fn(v);
    if (f->head.flags != x->tag || f->ncaptures != x->n || code_id(f) != x->layout) return miss(m, v);
    break;
  }
  uint32_t n;
  const qn_value *parts = value_parts(v.u.p, &n);
  for (uint32_t i = 0; i < n; i++)
    if (!match(m, parts[i])) return false;
  return true;
}

/* The value of a root in a call; borrowed. */
static inline qn_value root_value(const root *x, qn_value fn, const qn_value *args) {
  return x->kind == ROOT_ARG ? args[x->arg] : x->kind == ROOT_FN ? fn : *x->slot;
}

bool pattern_match(const pattern *p, bool check_by_value, qn_value fn, const qn_value *args, int nargs,
                   qn_array **inputs, qn_value *scalars, text_buf *why) {
  matcher m = {.p = p, .inputs = inputs, .scalars = scalars, .why = why};
  if (nargs != (int)p->nargs) {
    if (why) text_adds(why, "another number of arguments");
    return false;
  }
  for (uint32_t i = 0; i < p->nroots; i++) {
    const root *x = &p->roots[i];
    if (x->by_value && !check_by_value) continue;
    m.at = x->first;
    if (!match(&m, root_value(x, fn, args))) return false;
  }
  return true;
}

/* The bytes of an array's header from `dtype` on, as one number. */
static inline uint32_t type_bytes(const qn_array *a) {
  uint32_t type;
  _Static_assert(offsetof(qn_array, contiguous) == offsetof(qn_array, dtype) + 3, "four bytes, one after the other");
  memcpy(&type, &a->dtype, sizeof type);
  return type;
}

/* Is a root an argument that is one array of plain sizes, which may lie in memory in any way? */
static bool is_plain_array(const pattern *p, const root *x) {
  if (x->kind != ROOT_ARG || is_cut(p, x->first) || p->pats[x->first].kind != PAT_ARRAY) return false;
  const pat *y = &p->pats[x->first];
  bool plain = !y->layout && (y->n == PAT_ANY_DEVICE || y->n <= UINT8_MAX);
  for (int i = 0; i < y->rank; i++) plain &= p->dims[y->dims + (uint32_t)i] >= 0;
  return plain;
}

/* Is it a record of numbers, texts and the like, which keeps no code alive? */
static bool is_plain_record(qn_value v) {
  if (!value_is(v, TAG_RECORD)) return false;
  bool plain = true;
  for (uint32_t i = 0; i < value_record(v)->len; i++) {
    qn_value x = value_record(v)->items[i];
    plain &= !value_is_heap(x) || value_is(x, TAG_STR);
  }
  return plain;
}

/* Is a root the function itself, without captures, or such a function in a transform with options (jit)? */
static bool is_plain_code(const pattern *p, const root *x, qn_value fn) {
  if (x->kind != ROOT_FN || is_cut(p, x->first + 1) || p->pats[x->first].kind != PAT_FN) return false;
  const pat *y = &p->pats[x->first];
  if (!y->n) return true;
  bool optional = y->tag == FN_TRANSFORM && y->n == 2 && value_is(fn, TAG_FN) && value_fn(fn)->ncaptures == 2;
  return optional && y[1].kind == PAT_FN && !y[1].n && is_plain_record(value_fn(fn)->captures[1]);
}

/* Is a function the one of the pattern, as far as can be seen at a glance? */
static inline bool is_own(const pattern *p, qn_value fn) {
  const qn_fn *f = value_fn(fn);
  const pat *x = p->own;
  if (!value_is(fn, TAG_FN) || f->head.flags != x->tag || f->ncaptures != x->n) return false;
  if (!x->n) return code_id(f) == x->layout;
  if ((uint64_t)(uintptr_t)f->code != x->layout || f->captures[1].u.p != p->options.u.p) return false;
  f = value_fn(f->captures[0]);
  return f->head.flags == x[1].tag && !f->ncaptures && code_id(f) == x[1].layout;
}

void pattern_settle(qn_vm *vm, pattern *p, qn_value fn) {
  uint32_t n = 0, others = 0, own = 0;
  for (uint32_t i = 0; i < p->nroots; i++) {
    n += is_plain_array(p, &p->roots[i]);
    own += is_plain_code(p, &p->roots[i], fn);
  }
  if (!n || own > 1 || p->checks) return;
  array_check *checks = mem_try_alloc(vm, n * sizeof *checks);
  uint32_t *rest = checks ? mem_try_alloc(vm, (p->nroots - n - own) * sizeof *rest) : NULL;
  if (!rest) {
    mem_free(vm, checks, n * sizeof *checks);
    return;
  }
  n = 0;
  p->flat = true;
  for (uint32_t i = 0; i < p->nroots; i++) {
    const root *x = &p->roots[i];
    if (is_plain_code(p, x, fn)) {
      p->own = &p->pats[x->first];
      if (p->own->n) p->options = value_retain(value_fn(fn)->captures[1]);
      continue;
    }
    if (!is_plain_array(p, x)) {
      rest[others++] = i;
      continue;
    }
    const pat *y = &p->pats[x->first];
    bool any = y->n == PAT_ANY_DEVICE;
    qn_array type = {.dtype = y->dtype, .rank = y->rank, .device = any ? 0 : (uint8_t)y->n, .contiguous = 1};
    qn_array mask = {.dtype = UINT8_MAX, .rank = UINT8_MAX, .device = any ? 0 : UINT8_MAX, .contiguous = UINT8_MAX};
    checks[n] = (array_check){x->arg, y->input, type_bytes(&type), type_bytes(&mask), p->dims + y->dims, y->rank};
    p->flat &= y->input == n++; /* each input once, and no others between them */
  }
  p->flat &= n == p->ninputs;
  p->checks = checks;
  p->others = rest;
  p->nchecks = n;
  p->nothers = others;
}

bool pattern_match_quick(const pattern *p, bool check_by_value, qn_value fn, const qn_value *args, int nargs,
                         qn_array **inputs, qn_value *scalars, bool *flat) {
  if (nargs != (int)p->nargs) return false;
  if (p->own && !is_own(p, fn)) return false;
  for (const array_check *x = p->checks, *end = x + p->nchecks; x < end; x++) {
    const qn_value *v = &args[x->arg];
    if (!value_is(*v, TAG_ARRAY)) return false;
    qn_array *a = value_array(*v);
    if ((type_bytes(a) & x->mask) != x->type) return false;
    const int64_t *is = a->shape, *wanted = x->sizes;
    for (uint32_t left = x->rank; left; left--)
      if (*is++ != *wanted++) return false;
    inputs[x->input] = a;
  }
  matcher m = {.p = p, .inputs = inputs, .scalars = scalars};
  for (uint32_t i = 0; i < p->nothers; i++) {
    const root *x = &p->roots[p->others[i]];
    if (x->by_value && !check_by_value) continue;
    m.at = x->first;
    if (!match(&m, root_value(x, fn, args))) return false;
  }
  *flat = p->flat;
  return true;
}

bool pattern_match_but_sizes(const pattern *p, bool check_by_value, qn_value fn, const qn_value *args, int nargs,
                             int64_t *sizes) {
  matcher m = {.p = p, .sizes = sizes};
  if (nargs != (int)p->nargs) return false;
  for (uint32_t i = 0; i < p->nroots; i++) {
    const root *x = &p->roots[i];
    if (x->by_value && !check_by_value) continue;
    m.at = x->first;
    if (!match(&m, root_value(x, fn, args))) return false;
  }
  return true;
}

/* ---- symbolic sizes ----------------------------------------------------------------------------------------------------------- */

void print_fact(const dim_table *t, const dim_fact *f, text_buf *out) {
  static const char *const words[] = {[DIM_EQ] = "==", [DIM_NE] = "!=", [DIM_LT] = "<", [DIM_LE] = "<="};
  static const char *const turned[] = {[DIM_EQ] = "==", [DIM_NE] = "!=", [DIM_LT] = ">", [DIM_LE] = ">="};
  int64_t c;
  bool turn = dim_is_const(t, f->a, &c); /* what varies comes first: n >= 64 */
  dim_print(t, turn ? f->b : f->a, out);
  text_addf(out, " %s ", (turn ? turned : words)[f->relation]);
  dim_print(t, turn ? f->a : f->b, out);
}

/* `values`, `known`: as dim_eval_once. */
static bool fact_holds(const dim_table *t, const dim_fact *f, int64_t *values, uint64_t *known) {
  int64_t a = dim_eval_once(t, f->a, values, known), b = dim_eval_once(t, f->b, values, known);
  switch ((dim_relation)f->relation) {
  case DIM_EQ: return a == b;
  case DIM_NE: return a != b;
  case DIM_LT: return a < b;
  case DIM_LE: return a <= b;
  }
  return false;
}

/* Is the symbol of place i that of a place before it? */
static bool is_named_before(const pattern_sizes *s, uint32_t i) {
  bool before = false;
  for (uint32_t k = 0; k < i; k++) before |= s->places[k].symbol == s->places[i].symbol;
  return before;
}

/* Must a symbol have a certain value? */
static bool is_fixed(const pattern_sizes *s, qn_dim symbol) {
  bool fixed = false;
  for (uint32_t i = 0; i < s->dims.nfacts; i++) {
    const dim_fact *f = &s->dims.facts[i];
    fixed |= f->relation == DIM_EQ && f->a == symbol && f->b >= 0;
  }
  return fixed;
}

/* Appends where a symbolic axis is: "axis 0 of x". */
static void print_axis(const pattern *p, const struct size_place *x, text_buf *out) {
  if (x->axis != PLACE_INT) text_addf(out, "axis %u of ", x->axis);
  pattern_input_name(p, x->input, out);
}

/* The size that stands at a place in a call. */
static int64_t size_at(const struct size_place *x, qn_array *const *inputs, const qn_value *scalars) {
  return x->axis == PLACE_INT ? scalars[x->input].u.i : inputs[x->input]->shape[x->axis];
}

enum { FEW = 128 /* expressions of sizes */ };

/* Sets the inputs that are sizes. */
static void fill_inputs(const pattern_sizes *s, const int64_t *symbols, qn_array **inputs, qn_value *scalars) {
  for (uint32_t i = 0; i < s->ninputs; i++) {
    scalars[s->inputs[i].input] = value_int(dim_eval(&s->dims, s->inputs[i].size, symbols));
    inputs[s->inputs[i].input] = NULL;
  }
}

bool pattern_sizes_fill(qn_vm *vm, const pattern *p, qn_array **inputs, qn_value *scalars) {
  const pattern_sizes *s = p->sizes;
  int64_t few[FEW] = {0}, *symbols = few;
  size_t bytes = s->dims.n * sizeof *symbols;
  if (s->dims.n > FEW && !(symbols = mem_alloc(vm, bytes))) {
    error_clear(vm);
    return false;
  }
  for (uint32_t i = s->nplaces; i-- > 0;) symbols[~s->places[i].symbol] = size_at(&s->places[i], inputs, scalars);
  fill_inputs(s, symbols, inputs, scalars);
  if (symbols != few) mem_free(vm, symbols, bytes);
  return true;
}

bool pattern_sizes_hold(qn_vm *vm, const pattern *p, qn_array **inputs, qn_value *scalars, text_buf *why) {
  const pattern_sizes *s = p->sizes;
  const dim_table *t = &s->dims;
  int64_t few[FEW], *symbols = few;
  uint64_t few_known[FEW / 64] = {0}, *known = few_known;
  size_t words = (t->n + (size_t)63) / 64, bytes = t->n * sizeof *symbols + words * sizeof *known;
  if (t->n > FEW) {
    if (!(symbols = mem_alloc(vm, bytes))) {
      error_clear(vm);
      return false;
    }
    known = memset(symbols + t->n, 0, words * sizeof *known);
  }
  for (uint32_t i = s->nplaces; i-- > 0;) symbols[~s->places[i].symbol] = size_at(&s->places[i], inputs, scalars);
  bool ok = true;
  for (uint32_t i = 0; i < s->nplaces && ok; i++) {
    const struct size_place *x = &s->places[i];
    int64_t size = size_at(x, inputs, scalars);
    bool other = x->axis == PLACE_INT && (size < 2 || size > INT_SIZE_MOST); /* of arrays that has been looked at */
    ok = size == symbols[~x->symbol] && !other;
    if (ok || !why) continue;
    print_axis(p, x, why);
    text_addf(why, " is %lld", (long long)size);
    if (other)
      text_adds(why, size < 2 ? ", and was 2 or more" : ", which is no size");
    else
      text_addf(why, " instead of %lld, as other sizes that were equal", (long long)symbols[~x->symbol]);
  }
  for (uint32_t i = 0; i < t->nfacts && ok; i++) {
    ok = fact_holds(t, &t->facts[i], symbols, known);
    if (ok || !why) continue;
    for (uint32_t k = 0; k < s->nplaces; k++) {
      const struct size_place *x = &s->places[k];
      if (is_named_before(s, k)) continue;
      if (k) text_adds(why, ", ");
      print_axis(p, x, why);
      text_addf(why, " is %lld", (long long)symbols[~x->symbol]);
    }
    text_adds(why, ", but ");
    print_fact(t, &t->facts[i], why);
    text_adds(why, " was relied on");
  }
  if (ok) fill_inputs(s, symbols, inputs, scalars);
  if (symbols != few) mem_free(vm, symbols, bytes);
  return ok;
}

uint64_t pattern_sizes_hash(const pattern *p, qn_array *const *inputs, const qn_value *scalars) {
  const pattern_sizes *s = p->sizes;
  uint64_t h = p->ninputs;
  for (uint32_t i = 0; i < p->ninputs; i++) {
    const qn_array *a = inputs[i];
    for (int k = 0; a && k < a->rank; k++) h = hash_mix(h, (uint64_t)a->dtype << 56 ^ (uint64_t)a->shape[k]);
  }
  for (uint32_t i = 0; i < s->nplaces; i++)
    if (s->places[i].axis == PLACE_INT) h = hash_mix(h, (uint64_t)size_at(&s->places[i], inputs, scalars));
  return h | 1;
}

void pattern_print_size(const pattern *p, qn_array *const *inputs, const qn_value *scalars, text_buf *out) {
  if (!p->sizes->nplaces) return;
  const struct size_place *x = &p->sizes->places[0];
  print_axis(p, x, out);
  text_addf(out, " is %lld", (long long)size_at(x, inputs, scalars));
}

/* Mixes a value into the hash h: no more than *left parts of lists, records and captures, which it counts down. */
static uint64_t hash_value(uint64_t h, qn_value v, int depth, uint32_t *left) {
  h = hash_mix(h, v.head & 0xff);
  switch (value_tag_of(v)) {
  case TAG_ARRAY: {
    const qn_array *a = value_array(v);
    h = hash_mix(h, (uint64_t)a->dtype << 16 | (uint64_t)a->rank << 8 | a->device);
    for (int i = 0; i < a->rank; i++) h = hash_mix(h, (uint64_t)a->shape[i]);
    return h;
  }
  case TAG_BOOL:
  case TAG_DTYPE:
  case TAG_DEVICE: return hash_mix(h, (uint64_t)v.u.i);
  case TAG_STR: return hash_mix(h, str_hash_of(value_str(v)));
  case TAG_FN:
  case TAG_LIST:
  case TAG_RECORD: {
    uint32_t n;
    const qn_value *parts = value_parts(v.u.p, &n);
    h = hash_mix(h, value_is(v, TAG_FN) ? code_id(value_fn(v)) : n);
    for (uint32_t i = 0; i < n && depth < PATTERN_DEPTH && *left; i++) {
      (*left)--;
      if (value_is(v, TAG_RECORD)) /* names are interned, so equal ones have one address */
        h = hash_mix(h, (uint64_t)(uintptr_t)record_name(value_record(v), i));
      h = hash_value(h, parts[i], depth + 1, left);
    }
    return h;
  }
  default: return h;
  }
}

uint64_t value_structure_hash(qn_value v, uint64_t h) {
  uint32_t left = UINT32_MAX;
  h = hash_value(h, v, 0, &left);
  if (value_is(v, TAG_RANGE))
    h = hash_mix(hash_mix(h, (uint64_t)value_range(v)->start), (uint64_t)value_range(v)->stop);
  if (value_is_number(v)) h = hash_mix(h, (uint64_t)v.u.i);
  return h;
}

uint64_t pattern_own_hash(const pattern *p, uint64_t h) {
  for (uint32_t i = 0; i < p->n; i++) {
    const pat *x = &p->pats[i];
    h = hash_mix(h, (uint64_t)x->kind << 40 | (uint64_t)x->tag << 32 | (uint64_t)x->dtype << 16 | x->rank);
    h = hash_mix(hash_mix(h, x->n), x->input);
    for (int k = 0; x->kind == PAT_ARRAY && k < x->rank; k++) h = hash_mix(h, (uint64_t)p->dims[x->dims + k]);
    if (x->kind == PAT_FN)
      h = hash_mix(h, x->layout);
    else
      h = value_structure_hash(x->value, h);
  }
  return hash_mix(h, p->nargs);
}

static void values_below(const pattern *p, uint32_t *at, qn_value v, qn_value *inputs) {
  if (is_cut(p, *at)) return;
  const pat *x = &p->pats[(*at)++];
  if (x->kind == PAT_ARRAY || x->kind == PAT_SCALAR) inputs[x->input] = v;
  if (x->kind != PAT_LIST && x->kind != PAT_RECORD && x->kind != PAT_FN) return;
  uint32_t n;
  const qn_value *parts = value_parts(v.u.p, &n);
  for (uint32_t i = 0; i < x->n; i++) values_below(p, at, parts[i], inputs);
}

void pattern_values(const pattern *p, qn_value fn, const qn_value *args, int nargs, qn_value *inputs) {
  for (uint32_t i = 0; i < p->nroots; i++) {
    const root *x = &p->roots[i];
    uint32_t at = x->first;
    if (x->kind == ROOT_ARG && (int)x->arg >= nargs) continue;
    values_below(p, &at, root_value(x, fn, args), inputs);
  }
}

bool pattern_copy_args(qn_vm *vm, const pattern *from, uint32_t nargs, pattern *to) {
  if (!mem_grow(vm, (void **)&to->pats, &to->cap, from->n + 1, sizeof *to->pats)) return false;
  if (!mem_grow(vm, (void **)&to->dims, &to->dims_cap, from->ndims + 1, sizeof *to->dims)) return false;
  if (!mem_grow(vm, (void **)&to->roots, &to->roots_cap, from->nroots + 1, sizeof *to->roots)) return false;
  for (uint32_t i = 0; i < from->n; i++) {
    to->pats[i] = from->pats[i];
    to->pats[i].layout = from->pats[i].kind == PAT_ARRAY ? 0 : from->pats[i].layout;
    if (from->pats[i].kind != PAT_FN) value_retain(to->pats[i].value);
  }
  to->n = from->n;
  if (from->ndims) memcpy(to->dims, from->dims, from->ndims * sizeof *to->dims);
  to->ndims = from->ndims;
  for (uint32_t i = 0; i < from->nnames; i++)
    if (!pattern_add_name(vm, to, from->names[i])) return false;
  for (uint32_t i = 0; i < from->nroots; i++) {
    const root *x = &from->roots[i];
    if (x->kind != ROOT_ARG || x->arg >= nargs) continue;
    to->roots[to->nroots] = *x;
    to->roots[to->nroots].given = value_nil();
    to->roots[to->nroots++].tracer = value_nil();
  }
  to->nargs = nargs < from->nargs ? nargs : from->nargs;
  to->ninputs = from->ninputs;
  to->leaves = from->leaves;
  return true;
}

bool pattern_add_input(qn_vm *vm, pattern *p, const graph_type *t, uint32_t input) {
  if (!pattern_add_root(vm, p, ROOT_ARG)) return false;
  pat *x = pattern_add(vm, p);
  p->ninputs = input + 1;
  return x && pattern_set_input(vm, p, x, t, input);
}

uint64_t pattern_hash(qn_value fn, const qn_value *args, int nargs) {
  uint32_t left = HASHED_PARTS;
  uint64_t h = hash_value(1, fn, 0, &left);
  for (int i = 0; i < nargs; i++) h = hash_value(h, args[i], 0, &left);
  return h | 1;
}

static uint32_t print_pat(const pattern *p, uint32_t at, text_buf *out) {
  if (is_cut(p, at)) {
    text_adds(out, "...");
    return at;
  }
  const pat *x = &p->pats[at++];
  switch ((pat_kind)x->kind) {
  case PAT_ARRAY: print_array(p, x, out); break;
  case PAT_SCALAR: text_adds(out, x->tag == TAG_INT ? "int" : "float"); break;
  case PAT_EXACT:
    if (x->tag == TAG_STR && x->n)
      text_adds(out, "any text");
    else
      text_kind(out, x->value);
    break;
  case PAT_FN: text_adds(out, transform_of(x) ? transform_of(x)->name : "fn"); break;
  case PAT_LIST: text_adds(out, is_stack(x) ? "stacked " : "("); break;
  case PAT_RECORD: text_adds(out, "{"); break;
  }
  if (is_stack(x)) { /* only its arrays show */
    text_buf rest = {0};
    at = print_pat(p, at, &rest);
    if (!is_cut(p, at)) at = print_pat(p, at, out);
    if (!is_cut(p, at)) at = print_pat(p, at, &rest);
    text_free(&rest);
    return at;
  }
  if (x->kind == PAT_LIST || x->kind == PAT_RECORD || (x->kind == PAT_FN && x->n)) {
    const transform_def *transform = transform_of(x);
    if (x->kind == PAT_FN) text_adds(out, transform ? "(" : " over (");
    for (uint32_t i = 0; i < x->n && (i == 0 || !is_cut(p, at)); i++) {
      if (i) text_adds(out, ", ");
      if (transform && capture_name(transform, i)) text_addf(out, "%s: ", capture_name(transform, i));
      if (x->kind == PAT_RECORD) text_addf(out, "%s: ", record_name(value_record(x->value), i)->text);
      at = print_pat(p, at, out);
    }
    text_adds(out, x->kind == PAT_RECORD ? "}" : ")");
  }
  return at;
}

void pattern_print_arg(const pattern *p, uint32_t arg, text_buf *out) {
  for (uint32_t i = 0; i < p->nroots; i++)
    if (p->roots[i].kind == ROOT_ARG && p->roots[i].arg == arg) print_pat(p, p->roots[i].first, out);
}

/* Does the root say that a transform was called without keywords? Then it is not mentioned. */
static bool is_no_keywords(const pattern *p, const root *x) {
  const pat *y = &p->pats[x->first];
  bool transform = false;
  for (uint32_t i = 0; i < p->nroots && !transform; i++)
    transform = p->roots[i].kind == ROOT_FN && transform_of(&p->pats[p->roots[i].first]);
  return transform && x->kind == ROOT_ARG && x->arg + 1 == p->nargs && y->kind == PAT_EXACT && y->tag == TAG_NIL;
}

void pattern_print(const pattern *p, text_buf *out) {
  for (uint32_t i = 0; i < p->nroots; i++) {
    const root *x = &p->roots[i];
    if ((x->kind == ROOT_FN && p->pats[x->first].n == 0) || is_no_keywords(p, x)) continue;
    /* Guards that a name still means the builtin are not mentioned. */
    if (p->pats[x->first].tag == TAG_UNSET || x->library) continue;
    print_root(x, out);
    text_adds(out, ": ");
    print_pat(p, x->first, out);
    text_adds(out, "\n");
  }
  for (uint32_t i = 0; p->sizes && i < p->sizes->nplaces; i++) {
    qn_dim symbol = p->sizes->places[i].symbol;
    if (is_named_before(p->sizes, i) || is_fixed(p->sizes, symbol)) continue;
    dim_print(&p->sizes->dims, symbol, out);
    text_adds(out, " >= 2\n");
  }
  for (uint32_t i = 0; p->sizes && i < p->sizes->dims.nfacts; i++) {
    print_fact(&p->sizes->dims, &p->sizes->dims.facts[i], out);
    text_adds(out, "\n");
  }
}

/* ---- templates ----------------------------------------------------------------------------------------------------------------- */

tpl *template_add(qn_vm *vm, tpl_list *t, tpl_kind kind) {
  if (!mem_grow(vm, (void **)&t->tpls, &t->cap, t->n + 1, sizeof *t->tpls)) return NULL;
  tpl *x = &t->tpls[t->n++];
  *x = (tpl){.kind = (uint8_t)kind, .value = value_nil()};
  return x;
}

void template_settle(tpl_list *t, const void *home) {
  for (uint32_t i = 0; i < t->n && home; i++) {
    if (t->tpls[i].kind != TPL_FN) continue;
    qn_fn *f = value_fn(t->tpls[i].value);
    if (f->head.flags == FN_USER && ((const fn_shared *)f->code)->home == home && f->stand != FN_BARE) fn_make_bare(f);
  }
}

bool template_copy(qn_vm *vm, const tpl_list *from, tpl_list *to) {
  if (!mem_grow(vm, (void **)&to->tpls, &to->cap, from->n, sizeof *to->tpls) ||
      !mem_grow(vm, (void **)&to->paths, &to->paths_cap, from->npaths, sizeof *to->paths))
    return false;
  for (uint32_t i = 0; i < from->n; i++) {
    tpl *x = &to->tpls[i];
    *x = from->tpls[i];
    if (x->kind == TPL_FN && value_fn(x->value)->stand == FN_BARE) {
      qn_fn *f = fn_like(vm, value_fn(x->value));
      x->value = f ? value_obj(TAG_FN, f) : value_nil();
      if (!f) return false;
    } else {
      value_retain(x->value);
    }
    to->n = i + 1;
  }
  to->made = from->made;
  to->npaths = from->npaths;
  if (from->npaths) memcpy(to->paths, from->paths, from->npaths * sizeof *to->paths);
  return true;
}

uint64_t template_hash(const tpl_list *t, uint64_t h) {
  for (uint32_t i = 0; i < t->n; i++) {
    const tpl *x = &t->tpls[i];
    h = hash_mix(h, (uint64_t)x->kind << 48 | (uint64_t)x->n << 16 | (x->kind != TPL_GIVEN ? x->output : 0));
    if (x->kind == TPL_TEXT) h = hash_mix(h, (uint64_t)(uintptr_t)x->def);
    for (uint32_t k = 0; x->kind == TPL_GIVEN && k < x->n + 2; k++) h = hash_mix(h, t->paths[x->output + k]);
    h = value_structure_hash(x->value, h);
  }
  return h;
}

/* The function among the values of a call that a TPL_GIVEN part stands for; borrowed. */
static qn_value given_value(const tpl_list *t, const tpl *x, const call_values *call) {
  const uint32_t *path = t->paths + x->output;
  qn_value v = path[0] == ROOT_ARG ? call->args[path[1]] : root_value(&call->p->roots[path[1]], call->fn, call->args);
  for (uint32_t i = x->n; i-- > 0;) {
    uint32_t n;
    v = value_parts(v.u.p, &n)[path[2 + i]];
  }
  return v;
}

void template_bind(qn_vm *vm, tpl_list *t, uint32_t nargs, const call_values *call) {
  for (uint32_t i = 0; i < t->n; i++) {
    tpl *x = &t->tpls[i];
    if (x->kind != TPL_GIVEN || (t->paths[x->output] == ROOT_ARG && t->paths[x->output + 1] < nargs)) continue;
    value_release(vm, x->value);
    *x = (tpl){.kind = TPL_VALUE, .value = value_retain(given_value(t, x, call))};
  }
}

typedef struct building {
  qn_vm *vm;
  const tpl_list *t;
  uint32_t at;
  const qn_value *outputs;
  const call_values *call;
  qn_value *made; /* the new functions made so far; borrowed */
} building;

static qn_value build(building *b);

/* The part behind the one at `at` and all that belongs to this. */
static uint32_t behind(const tpl_list *t, uint32_t at) {
  for (uint32_t left = 1; left > 0; left--) {
    const tpl *x = &t->tpls[at++];
    bool items = x->kind == TPL_LIST || x->kind == TPL_RECORD || x->kind == TPL_FN || x->kind == TPL_TEXT ||
                 x->kind == TPL_CHOICE;
    if (items) left += x->n;
  }
  return at;
}

/* Of the parts that follow the one with this number. */
static qn_value build_choice(building *b, const tpl *x, int64_t number) {
  qn_value made = value_error();
  for (uint32_t i = 0; i < x->n; i++)
    if (i == number)
      made = build(b);
    else
      b->at = behind(b->t, b->at);
  return made;
}

/* A text made of the parts that follow. */
static qn_value build_text(building *b, const tpl *x) {
  qn_vm *vm = b->vm;
  qn_value parts = build(b);
  if (value_is_error(parts)) return parts;
  const qn_list *l = value_list(parts);
  text_buf t = {.vm = vm};
  bool own = false, ok = true;
  qn_value text = value_error();
  if (x->def) text = x->def->call(vm, l->items);
  for (uint32_t i = 0; i + 1 < l->len && !x->def && ok; i += 2)
    ok = format_part(vm, l->items[i], l->items[i + 1], &t, &own);
  if (!x->def && ok) text = text_take(&t);
  if (!ok) text_free(&t);
  value_release(vm, parts);
  return text;
}

static qn_value build(building *b) {
  qn_vm *vm = b->vm;
  const tpl *x = &b->t->tpls[b->at++];
  qn_value whole = value_error();
  uint32_t n;
  switch ((tpl_kind)x->kind) {
  case TPL_OUTPUT: return value_retain(b->outputs[x->output]);
  case TPL_VALUE: return value_retain(x->value);
  case TPL_AGAIN: return value_retain(b->made[x->output - 1]);
  case TPL_GIVEN:
    if (!b->call) return raise_error(vm, E_internal, SPAN_NONE, "a template of nodes has a function of a call");
    return value_retain(given_value(b->t, x, b->call));
  case TPL_TEXT: return build_text(b, x);
  case TPL_CHOICE: return build_choice(b, x, b->outputs[x->output].u.i);
  case TPL_LIST: {
    qn_list *l = list_new(vm, x->n);
    if (l) whole = value_obj(TAG_LIST, l);
    break;
  }
  case TPL_RECORD:
  case TPL_FN: whole = parts_like(vm, x->value); break;
  }
  if (value_is_error(whole)) return whole;
  if (x->kind == TPL_FN && x->output) {
    fn_renew(vm, value_fn(whole));
    b->made[x->output - 1] = whole;
  }
  qn_value *parts = value_parts(whole.u.p, &n);
  for (uint32_t i = 0; i < x->n; i++) {
    qn_value part = build(b);
    if (value_is_error(part)) return value_fail(vm, whole);
    parts[i] = part;
  }
  return whole;
}

qn_value template_build(qn_vm *vm, const tpl_list *t, const qn_value *outputs, const call_values *call) {
  qn_value few[8];
  size_t bytes = t->made * sizeof(qn_value);
  building b = {.vm = vm, .t = t, .outputs = outputs, .call = call, .made = few};
  if (t->made > sizeof few / sizeof *few && !(b.made = mem_alloc(vm, bytes))) return value_error();
  qn_value result = build(&b);
  if (b.made != few) mem_free(vm, b.made, bytes);
  return result;
}

static uint32_t print_template(const tpl_list *t, uint32_t at, const graph *g, text_buf *out) {
  const tpl *x = &t->tpls[at++];
  if (x->kind == TPL_VALUE) text_kind(out, x->value);
  if (x->kind == TPL_OUTPUT) {
    const graph_type *type = &g->nodes[g->outputs[x->output]].type;
    if (type->weak)
      text_adds(out, type->dtype == WEAK_FLOAT ? "float" : type->dtype == WEAK_INT ? "int" : "bool");
    else
      text_shape(out, (qn_dtype)type->dtype, type->rank, type->shape);
  }
  if (x->kind == TPL_GIVEN || x->kind == TPL_AGAIN) text_adds(out, "a function");
  if (x->kind == TPL_TEXT) { /* what it is made of does not show */
    text_adds(out, "text");
    text_buf parts = {0};
    at = print_template(t, at, g, &parts);
    text_free(&parts);
  }
  for (uint32_t i = 0; x->kind == TPL_CHOICE && i < x->n; i++) {
    if (i) text_adds(out, " or ");
    at = print_template(t, at, g, out);
  }
  if (x->kind != TPL_FN && x->kind != TPL_LIST && x->kind != TPL_RECORD) return at;
  text_adds(out, x->kind == TPL_RECORD ? "{" : x->kind == TPL_LIST ? "(" : "a function over (");
  for (uint32_t i = 0; i < x->n; i++) {
    if (i) text_adds(out, ", ");
    if (x->kind == TPL_RECORD) text_addf(out, "%s: ", record_name(value_record(x->value), i)->text);
    at = print_template(t, at, g, out);
  }
  text_adds(out, x->kind == TPL_RECORD ? "}" : x->kind == TPL_LIST && x->n == 1 ? ",)" : ")");
  return at;
}

void template_print(const tpl_list *t, const graph *g, text_buf *out) {
  if (t->n) print_template(t, 0, g, out);
}

void template_free(qn_vm *vm, tpl_list *t) {
  for (uint32_t i = 0; i < t->n; i++) value_release(vm, t->tpls[i].value);
  mem_free(vm, t->tpls, t->cap * sizeof *t->tpls);
  mem_free(vm, t->paths, t->paths_cap * sizeof *t->paths);
  memset(t, 0, sizeof *t);
}
