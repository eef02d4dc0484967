/* Patterns and templates: what the values of a call must look like for an entry to apply, and how its result is rebuilt.
 *
 * While a call is recorded, pattern_root walks each value that the call can see (arguments, the function's captures, globals
 * when they are read), writes down its structure in preorder and returns a tracer: the same tree whose arrays and numbers
 * are fresh graph inputs. Tracers have headers of their own, so one array reached by two ways is two inputs, as it must
 * be: the next call may bring two different ones.
 *
 * When a call comes, pattern_match walks its values along the preorder: containers by structure (records by layout),
 * arrays by dtype and sizes, numbers by kind, everything else by value; and collects the inputs. Nothing is allocated.
 *
 * A result template is the same idea the other way round: constants, outputs of the plan, and containers around them.
 */
#include <stdio.h>
#include <string.h>

#include "jit/trace/breaks.h"
#include "jit/trace/graphs.h"
#include "jit/trace/pattern.h"
#include "jit/trace/recording.h"
#include "jit/trace/specialization.h"

enum {
  PARTS_PER_LEAF =
      16, /* jit.leaves times this bounds a pattern's parts of any kind: a value that shares its parts may unfold
                          without end */
  HASHED_PARTS = 4096 /* of a call's arguments; what comes after them is for pattern_match to tell */
};

/* ---- building -------------------------------------------------------------------------------------------------------------- */

/* What tells the code of a function from all other, also from code that was freed where it is now. */
static uint64_t code_id(const qn_fn *f) {
  switch ((fn_kind)f->head.flags) {
  case FN_GRAPH: return ((const graph_body *)f->code)->hash;
  case FN_USER: return ((const fn_shared *)f->code)->id;
  default: return (uint64_t)(uintptr_t)f->code;
  }
}

static pat *pat_add(qn_vm *vm, pattern *p) {
  if (!mem_grow(vm, (void **)&p->pats, &p->cap, p->n + 1, sizeof *p->pats)) return NULL;
  pat *x = &p->pats[p->n++];
  memset(x, 0, sizeof *x);
  x->value = value_nil();
  return x;
}

/* Breaks the capture without ending the recording: the tracer is then simply the value itself. */
static void give_up(struct recording *r, break_reason why) { rec_stop_capture(r, why, NULL); }

/* Where a value stands in what it is a part of; NULL: it is the root itself. */
typedef struct step {
  const struct step *up;
  uint32_t item;
} step;

static qn_value tracer(struct recording *r, qn_value v, int depth, const step *at);

static bool register_input(struct recording *r, pat *x, graph_type type, uint32_t *node) {
  x->input = r->g->ninputs;
  *node = graph_input(r->g, type, 0);
  if (!*node || !rec_room(r)) {
    if (!error_pending(r->vm)) raise_memory(r->vm);
    return false;
  }
  r->pattern.ninputs = r->g->ninputs;
  if (++r->pattern.leaves > (uint64_t)r->vm->tune[TUNE_jit_leaves]) give_up(r, BREAK_too_many_leaves);
  return true;
}

static qn_value tracer_array(struct recording *r, qn_value v) {
  qn_vm *vm = r->vm;
  pattern *p = &r->pattern;
  qn_array *a = value_array(v);
  if (!array_force(vm, a)) return value_error();
  qn_array *copy = array_view(vm, a, (qn_dtype)a->dtype, a->rank, a->shape, a->strides, a->offset);
  if (!copy) return value_error();
  pat *x = pat_add(vm, p);
  if (!x || !mem_grow(vm, (void **)&p->dims, &p->dims_cap, p->ndims + a->rank, sizeof *p->dims)) {
    value_release(vm, value_obj(TAG_ARRAY, copy));
    return value_error();
  }
  x->kind = PAT_ARRAY;
  x->tag = TAG_ARRAY;
  x->dtype = a->dtype;
  x->rank = a->rank;
  x->n = a->device;
  x->dims = p->ndims;
  graph_type t = {.dtype = a->dtype, .rank = a->rank};
  for (int i = 0; i < a->rank; i++) t.shape[i] = p->dims[p->ndims++] = a->shape[i];
  uint32_t node;
  if (!register_input(r, x, t, &node)) {
    value_release(vm, value_obj(TAG_ARRAY, copy));
    return value_error();
  }
  qn_array *stand = rec_input(r, node, copy);
  return stand ? value_obj(TAG_ARRAY, stand) : value_error();
}

static qn_value tracer_items(struct recording *r, const qn_value *from, qn_value *to, uint32_t n, qn_value whole,
                             int depth, const step *at) {
  for (uint32_t i = 0; i < n; i++) {
    to[i] = tracer(r, from[i], depth + 1, &(step){at, i});
    if (value_is_error(to[i])) {
      to[i] = value_nil();
      value_release(r->vm, whole);
      return value_error();
    }
  }
  return whole;
}

/* A function of the root that is being made: it is noted where, so that a result that holds it can tell. */
static qn_fn *tracer_fn(struct recording *r, const qn_fn *f, const step *at) {
  qn_vm *vm = r->vm;
  uint32_t steps = 0;
  for (const step *s = at; s; s = s->up) steps++;
  if (!mem_grow(vm, (void **)&r->fns, &r->fns_cap, r->nfns + 1, sizeof *r->fns) ||
      !mem_grow(vm, (void **)&r->fn_paths, &r->fn_paths_cap, r->nfn_paths + steps, sizeof *r->fn_paths))
    return NULL;
  qn_fn *copy = fn_like(vm, f);
  if (!copy) return NULL;
  r->fns[r->nfns] =
      (struct fn_place){value_retain(value_obj(TAG_FN, copy)), r->pattern.nroots - 1, r->nfn_paths, steps};
  copy->stand = ++r->nfns;
  for (const step *s = at; s; s = s->up) r->fn_paths[r->nfn_paths++] = s->item;
  return copy;
}

/* NULL: it is none of the call's values. */
static const struct fn_place *place_of(const struct recording *r, qn_value fn) {
  uint32_t i = value_fn(fn)->stand;
  return i && i <= r->nfns && r->fns[i - 1].tracer.u.p == fn.u.p ? &r->fns[i - 1] : NULL;
}

static qn_value tracer(struct recording *r, qn_value v, int depth, const step *at) {
  qn_vm *vm = r->vm;
  if (depth > PATTERN_DEPTH) give_up(r, BREAK_too_deep);
  if (r->pattern.n > PARTS_PER_LEAF * (uint64_t)r->vm->tune[TUNE_jit_leaves]) give_up(r, BREAK_too_many_leaves);
  if (!r->capturing) return value_retain(v);
  switch (value_tag_of(v)) {
  case TAG_ARRAY: return tracer_array(r, v);
  case TAG_INT:
  case TAG_FLOAT: {
    pat *x = pat_add(vm, &r->pattern);
    if (!x) return value_error();
    x->kind = PAT_SCALAR;
    x->tag = (uint8_t)value_tag_of(v);
    graph_type t = {.dtype = value_is(v, TAG_INT) ? WEAK_INT : WEAK_FLOAT, .weak = true};
    v.head &= 0xff;
    uint32_t node;
    if (!register_input(r, x, t, &node)) return value_error();
    r->vals[node] = v;
    return value_traced(v, r->base + node);
  }
  case TAG_LIST: {
    qn_list *l = value_list(v);
    pat *x = pat_add(vm, &r->pattern);
    qn_list *copy = x ? list_new(vm, l->len) : NULL;
    if (!copy) return value_error();
    x->kind = PAT_LIST;
    x->tag = TAG_LIST;
    x->n = l->len;
    return tracer_items(r, l->items, copy->items, l->len, value_obj(TAG_LIST, copy), depth, at);
  }
  case TAG_RECORD: {
    qn_record *rec = value_record(v);
    qn_record *copy = record_like(vm, rec);
    if (!copy) return value_error();
    qn_record *names = record_like(vm, rec);
    pat *x = names ? pat_add(vm, &r->pattern) : NULL;
    if (!x) {
      if (names) value_release(vm, value_obj(TAG_RECORD, names));
      value_release(vm, value_obj(TAG_RECORD, copy));
      return value_error();
    }
    x->kind = PAT_RECORD;
    x->tag = TAG_RECORD;
    x->n = rec->len;
    x->value = value_obj(TAG_RECORD, names);
    return tracer_items(r, rec->items, copy->items, rec->len, value_obj(TAG_RECORD, copy), depth, at);
  }
  case TAG_FN: {
    qn_fn *f = value_fn(v);
    pat *x = pat_add(vm, &r->pattern);
    if (!x) return value_error();
    x->kind = PAT_FN;
    x->tag = f->head.flags;
    x->n = f->ncaptures;
    x->value.u.p = f->code;
    x->layout = code_id(f);
    if (f->head.flags == FN_BUILTIN) return value_retain(v); /* the only one with this code */
    qn_fn *copy = tracer_fn(r, f, at);
    if (!copy) return value_error();
    return tracer_items(r, f->captures, copy->captures, f->ncaptures, value_obj(TAG_FN, copy), depth, at);
  }
  case TAG_UNSET:
  case TAG_NIL:
  case TAG_BOOL:
  case TAG_DTYPE:
  case TAG_DEVICE:
  case TAG_STR:
  case TAG_RANGE:
  case TAG_MODULE: {
    pat *x = pat_add(vm, &r->pattern);
    if (!x) return value_error();
    x->kind = PAT_EXACT;
    x->tag = (uint8_t)value_tag_of(v);
    v.head &= 0xff;
    x->value = value_retain(v);
    return value_retain(v);
  }
  default: give_up(r, BREAK_kind); return value_retain(v);
  }
}

qn_value pattern_root(struct recording *r, root_kind kind, qn_value v, qn_value *slot, rec_cell *cell, qn_str *name) {
  qn_vm *vm = r->vm;
  pattern *p = &r->pattern;
  if (!mem_grow(vm, (void **)&p->roots, &p->roots_cap, p->nroots + 1, sizeof *p->roots)) return value_error();
  uint32_t index = p->nroots, leaves = p->leaves;
  root *x = &p->roots[p->nroots];
  *x = (root){.kind = (uint8_t)kind, .first = p->n, .slot = slot, .cell = cell, .name = name, .tracer = value_nil()};
  if (kind == ROOT_ARG) x->arg = p->nargs++;
  if (cell) cell->roots++;
  p->nroots++;
  qn_value s = tracer(r, v, 0, NULL);
  if (value_is_error(s)) return s;
  x = &p->roots[index];
  x->by_value = kind == ROOT_GLOBAL && p->leaves == leaves;
  if (x->by_value && r->capturing) cell->watched = 1;
  x->tracer = value_retain(s);
  return s;
}

static uint64_t mix(uint64_t h, uint64_t x) {
  h = (h ^ x) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 29;
}

/* The same for arrays of one shape whose elements lie alike; never 0. */
static uint64_t strides_code(const qn_array *a) {
  uint64_t h = 1;
  if (a->contiguous) return h;
  for (int i = 0; i < a->rank; i++)
    if (a->shape[i] != 1) h = mix(h, (uint64_t)a->strides[i]);
  return h | 2;
}

/* Does eager execution pass on how the first operand lies? */
static bool passes_layout(const graph_node *n) {
  switch (n->op) {
  case OP_reshape:
  case OP_broadcast:
  case OP_permute:
  case OP_slice:
  case OP_window:
  case OP_stop_gradient:
  case OP_cast: return true;
  default: return false;
  }
}

bool pattern_fix_layouts(struct recording *r) {
  qn_vm *vm = r->vm;
  const graph *g = r->g;
  bool any = false;
  for (uint32_t i = 1; i < g->n && !any; i++)
    any = g->nodes[i].kind == NODE_OP && g->nodes[i].op == OP_dot && g->nodes[i].attr != NULL;
  if (!any) return true;
  uint8_t *seen = mem_zalloc(vm, g->n);
  if (!seen) return false;
  for (uint32_t i = g->n - 1; i > 0; i--) {
    const graph_node *n = &g->nodes[i];
    bool dot = n->kind == NODE_OP && n->op == OP_dot && n->attr != NULL;
    if (dot || (seen[i] && n->kind == NODE_OP && passes_layout(n)))
      for (int k = 0; k < (dot ? 2 : 1); k++) seen[n->in[k]] = 1;
  }
  for (uint32_t k = 0; k < r->pattern.n; k++) {
    pat *x = &r->pattern.pats[k];
    uint32_t i = x->kind == PAT_ARRAY ? g->inputs[x->input] : 0;
    if (seen[i] && value_is(r->vals[i], TAG_ARRAY)) x->layout = strides_code(value_array(r->vals[i]));
  }
  mem_free(vm, seen, g->n);
  return true;
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
    if (p->roots[i].cell && !vm->closing) p->roots[i].cell->roots--; /* at the end cells may have gone */
  }
  mem_free(vm, p->pats, p->cap * sizeof *p->pats);
  mem_free(vm, p->dims, p->dims_cap * sizeof *p->dims);
  mem_free(vm, p->roots, p->roots_cap * sizeof *p->roots);
  memset(p, 0, sizeof *p);
}

/* ---- matching --------------------------------------------------------------------------------------------------------------- */

typedef struct matcher {
  const pattern *p;
  uint32_t at;
  qn_array **inputs;
  qn_value *scalars;
  text_buf *why; /* NULL: nobody asks */
} matcher;

/* A recording that is given up while it takes in its arguments leaves the pattern unfinished: what would stand at `at` and
 * behind it may be anything. */
static bool is_cut(const pattern *p, uint32_t at) { return at >= p->n; }

/* Where pattern `target` stands below pattern *at: ".w", "[2]". Leaves *at behind the subtree when it is not there. */
static bool path_below(const pattern *p, uint32_t *at, uint32_t target, text_buf *out) {
  uint32_t self = (*at)++;
  const pat *x = &p->pats[self];
  if (self == target) return true;
  if (x->kind != PAT_LIST && x->kind != PAT_RECORD && x->kind != PAT_FN) return false;
  for (uint32_t i = 0; i < x->n && !is_cut(p, *at); i++) {
    size_t len = out->len;
    if (x->kind == PAT_RECORD)
      text_addf(out, ".%s", record_name(value_record(x->value), i)->text);
    else if (x->kind == PAT_LIST)
      text_addf(out, "[%u]", i);
    else
      text_addf(out, ", captured value %u", i + 1);
    if (path_below(p, at, target, out)) return true;
    out->len = len;
  }
  return false;
}

static void print_place(const pattern *p, uint32_t target, text_buf *out) {
  uint32_t r = 0;
  while (r + 1 < p->nroots && p->roots[r + 1].first <= target) r++;
  const root *x = &p->roots[r];
  if (x->kind == ROOT_ARG && x->name)
    text_addf(out, "argument %s", x->name->text);
  else if (x->kind == ROOT_ARG)
    text_addf(out, "argument %u", x->arg + 1);
  else if (x->kind == ROOT_GLOBAL)
    text_addf(out, "global %s", x->name ? x->name->text : "?");
  else
    text_adds(out, "the function");
  uint32_t at = x->first;
  path_below(p, &at, target, out);
}

void pattern_input_name(const pattern *p, uint32_t input, text_buf *out) {
  for (uint32_t i = 0; i < p->n; i++)
    if ((p->pats[i].kind == PAT_ARRAY || p->pats[i].kind == PAT_SCALAR) && p->pats[i].input == input) {
      print_place(p, i, out);
      return;
    }
  text_adds(out, "the random counter");
}

/* What the value should have been. */
static void print_expected(const pattern *p, const pat *x, text_buf *out) {
  switch ((pat_kind)x->kind) {
  case PAT_ARRAY: text_shape(out, (qn_dtype)x->dtype, x->rank, p->dims + x->dims); break;
  case PAT_SCALAR: text_adds(out, x->tag == TAG_INT ? "an int" : "a float"); break;
  case PAT_LIST: text_addf(out, "a list of %u", x->n); break;
  case PAT_FN: text_adds(out, "the function that it was"); break;
  case PAT_EXACT:
    if (x->tag == TAG_UNSET) {
      text_adds(out, "the builtin");
      break;
    } /* fall through */
  default: text_kind(out, x->value); break;
  }
}

/* The value does not fit the pattern looked at last. */
static bool miss(matcher *m, qn_value v) {
  if (!m->why) return false;
  const pat *x = &m->p->pats[m->at - 1];
  print_place(m->p, m->at - 1, m->why);
  text_adds(m->why, " is ");
  text_kind(m->why, v);
  text_adds(m->why, " instead of ");
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

/* All but how it lies in memory. */
static inline bool fits_array(const pat *x, const int64_t *dims, const qn_array *a) {
  if (a->dtype != x->dtype || a->rank != x->rank || (x->n != PAT_ANY_DEVICE && a->device != x->n)) return false;
  for (int i = 0, rank = x->rank; i < rank; i++)
    if (a->shape[i] != dims[x->dims + (uint32_t)i]) return false;
  return true;
}

static bool match(matcher *m, qn_value v) {
  if (is_cut(m->p, m->at)) return true;
  const pat *x = &m->p->pats[m->at++];
  switch ((pat_kind)x->kind) {
  case PAT_ARRAY:
    if (!value_is(v, TAG_ARRAY) || !fits_array(x, m->p->dims, value_array(v))) return miss(m, v);
    m->inputs[x->input] = value_array(v);
    if (x->layout && x->layout != strides_code(value_array(v))) {
      if (m->why) print_place(m->p, m->at - 1, m->why);
      if (m->why) text_adds(m->why, " lies in memory otherwise");
      return false;
    }
    return true;
  case PAT_SCALAR:
    if ((v.head & 0xff) != x->tag) return miss(m, v);
    m->inputs[x->input] = NULL;
    m->scalars[x->input] = (qn_value){.head = x->tag, .u = v.u};
    return true;
  case PAT_EXACT: return ((v.head & 0xff) == x->tag && match_exact(x, v)) || miss(m, v);
  case PAT_LIST: {
    if (!value_is(v, TAG_LIST) || value_list(v)->len != x->n) return miss(m, v);
    const qn_list *l = value_list(v);
    for (uint32_t i = 0; i < l->len; i++)
      if (!match(m, l->items[i])) return false;
    return true;
  }
  case PAT_RECORD: {
    if (!value_is(v, TAG_RECORD) || !record_same_layout(value_record(v), value_record(x->value))) return miss(m, v);
    const qn_record *r = value_record(v);
    for (uint32_t i = 0; i < r->len; i++)
      if (!match(m, r->items[i])) return false;
    return true;
  }
  case PAT_FN: {
    if (!value_is(v, TAG_FN)) return miss(m, v);
    const qn_fn *f = value_fn(v);
    if (f->head.flags != x->tag || f->ncaptures != x->n || code_id(f) != x->layout) return miss(m, v);
    for (uint32_t i = 0; i < f->ncaptures; i++)
      if (!match(m, f->captures[i])) return false;
    return true;
  }
  }
  return false;
}

bool pattern_match(const pattern *p, bool check_by_value, qn_value fn, const qn_value *args, int nargs,
                   qn_array **inputs, qn_value *scalars, text_buf *why) {
  matcher m = {.p = p, .inputs = inputs, .scalars = scalars, .why = why};
  if (nargs != (int)p->nargs) {
    if (why) text_adds(why, "another number of arguments");
    return false;
  }
  const pat *pats = p->pats;
  const int64_t *dims = p->dims;
  uint32_t npats = p->n;
  for (uint32_t i = 0; i < p->nroots; i++) {
    const root *x = &p->roots[i];
    if (x->by_value && !check_by_value) continue;
    if (x->kind == ROOT_ARG && x->first < npats &&
        value_is(args[x->arg], TAG_ARRAY)) { /* most of them, without a call */
      const pat *y = &pats[x->first];
      qn_array *a = value_array(args[x->arg]);
      if (y->kind == PAT_ARRAY && !y->layout && fits_array(y, dims, a)) {
        inputs[y->input] = a;
        continue;
      }
    }
    m.at = x->first;
    if (!match(&m, x->kind == ROOT_ARG ? args[x->arg] : x->kind == ROOT_FN ? fn : *x->slot)) return false;
  }
  return true;
}

/* Takes no more than *left parts of lists, records and captures into h, and counts them off. */
static uint64_t hash_value(uint64_t h, qn_value v, int depth, uint32_t *left) {
  h = mix(h, v.head & 0xff);
  switch (value_tag_of(v)) {
  case TAG_ARRAY: {
    const qn_array *a = value_array(v);
    h = mix(h, (uint64_t)a->dtype << 16 | (uint64_t)a->rank << 8 | a->device);
    for (int i = 0; i < a->rank; i++) h = mix(h, (uint64_t)a->shape[i]);
    return h;
  }
  case TAG_BOOL:
  case TAG_DTYPE:
  case TAG_DEVICE: return mix(h, (uint64_t)v.u.i);
  case TAG_STR: return mix(h, str_hash_of(value_str(v)));
  case TAG_FN: {
    const qn_fn *f = value_fn(v);
    h = mix(h, code_id(f));
    for (uint32_t i = 0; i < f->ncaptures && depth < PATTERN_DEPTH && *left; i++) {
      (*left)--;
      h = hash_value(h, f->captures[i], depth + 1, left);
    }
    return h;
  }
  case TAG_LIST:
  case TAG_RECORD: {
    bool list = value_is(v, TAG_LIST);
    uint32_t n = list ? value_list(v)->len : value_record(v)->len;
    const qn_value *items = list ? value_list(v)->items : value_record(v)->items;
    h = mix(h, n);
    for (uint32_t i = 0; i < n && depth < PATTERN_DEPTH && *left; i++) {
      (*left)--;
      if (!list) h = mix(h, (uint64_t)(uintptr_t)record_name(value_record(v), i)); /* names are unique texts */
      h = hash_value(h, items[i], depth + 1, left);
    }
    return h;
  }
  default: return h;
  }
}

uint64_t hash_mix(uint64_t h, uint64_t x) { return mix(h, x); }

uint64_t value_structure_hash(qn_value v, uint64_t h) {
  uint32_t left = UINT32_MAX;
  h = hash_value(h, v, 0, &left);
  if (value_is(v, TAG_RANGE)) h = mix(mix(h, (uint64_t)value_range(v)->start), (uint64_t)value_range(v)->stop);
  if (value_is_number(v)) h = mix(h, (uint64_t)v.u.i);
  return h;
}

uint64_t pattern_own_hash(const pattern *p, uint64_t h) {
  for (uint32_t i = 0; i < p->n; i++) {
    const pat *x = &p->pats[i];
    h = mix(h, (uint64_t)x->kind << 40 | (uint64_t)x->tag << 32 | (uint64_t)x->dtype << 16 | x->rank);
    h = mix(mix(h, x->n), x->input);
    for (int k = 0; x->kind == PAT_ARRAY && k < x->rank; k++) h = mix(h, (uint64_t)p->dims[x->dims + k]);
    if (x->kind == PAT_FN)
      h = mix(h, x->layout);
    else
      h = value_structure_hash(x->value, h);
  }
  return mix(h, p->nargs);
}

static void values_below(const pattern *p, uint32_t *at, qn_value v, qn_value *inputs) {
  if (is_cut(p, *at)) return;
  const pat *x = &p->pats[(*at)++];
  const qn_value *items = NULL;
  switch ((pat_kind)x->kind) {
  case PAT_ARRAY:
  case PAT_SCALAR: inputs[x->input] = v; return;
  case PAT_EXACT: return;
  case PAT_LIST: items = value_list(v)->items; break;
  case PAT_RECORD: items = value_record(v)->items; break;
  case PAT_FN: items = value_fn(v)->captures; break;
  }
  for (uint32_t i = 0; i < x->n; i++) values_below(p, at, items[i], inputs);
}

void pattern_values(const pattern *p, qn_value fn, const qn_value *args, int nargs, qn_value *inputs) {
  for (uint32_t i = 0; i < p->nroots; i++) {
    const root *x = &p->roots[i];
    uint32_t at = x->first;
    if (x->kind == ROOT_ARG && (int)x->arg >= nargs) continue;
    values_below(p, &at, x->kind == ROOT_ARG ? args[x->arg] : x->kind == ROOT_FN ? fn : *x->slot, inputs);
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
  if (from->ndims) memcpy(to->dims, from->dims, from->ndims * sizeof *to->dims);
  to->n = from->n;
  to->ndims = from->ndims;
  for (uint32_t i = 0; i < from->nroots; i++) {
    const root *x = &from->roots[i];
    if (x->kind != ROOT_ARG || x->arg >= nargs) continue;
    to->roots[to->nroots] = *x;
    to->roots[to->nroots++].tracer = value_nil();
  }
  to->nargs = nargs < from->nargs ? nargs : from->nargs;
  to->ninputs = from->ninputs;
  to->leaves = from->leaves;
  return true;
}

bool pattern_add_input(qn_vm *vm, pattern *p, const graph_type *t, uint32_t input) {
  if (!mem_grow(vm, (void **)&p->roots, &p->roots_cap, p->nroots + 1, sizeof *p->roots)) return false;
  if (!mem_grow(vm, (void **)&p->dims, &p->dims_cap, p->ndims + ARRAY_MAX_RANK, sizeof *p->dims)) return false;
  pat *x = pat_add(vm, p);
  if (!x) return false;
  *x = (pat){
      .kind = t->weak ? PAT_SCALAR : PAT_ARRAY, .dtype = t->dtype, .rank = t->rank, .input = input, .dims = p->ndims};
  if (!t->weak) x->n = PAT_ANY_DEVICE;
  x->tag = (uint8_t)(!t->weak                 ? TAG_ARRAY
                     : t->dtype == WEAK_FLOAT ? TAG_FLOAT
                     : t->dtype == WEAK_INT   ? TAG_INT
                                              : TAG_BOOL);
  x->value = value_nil();
  for (int i = 0; i < t->rank; i++) p->dims[p->ndims++] = t->shape[i];
  p->roots[p->nroots++] = (root){.kind = ROOT_ARG, .arg = p->nargs++, .first = p->n - 1, .tracer = value_nil()};
  p->ninputs = input + 1;
  return true;
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
  case PAT_ARRAY: text_shape(out, (qn_dtype)x->dtype, x->rank, p->dims + x->dims); break;
  case PAT_SCALAR: text_adds(out, x->tag == TAG_INT ? "int" : "float"); break;
  case PAT_EXACT:
    if (x->tag == TAG_STR && x->n)
      text_adds(out, "any text");
    else
      text_kind(out, x->value);
    break;
  case PAT_FN: text_adds(out, "fn"); break;
  case PAT_LIST: text_adds(out, "("); break;
  case PAT_RECORD: text_adds(out, "{"); break;
  }
  if (x->kind == PAT_LIST || x->kind == PAT_RECORD || (x->kind == PAT_FN && x->n)) {
    if (x->kind == PAT_FN) text_adds(out, " over (");
    for (uint32_t i = 0; i < x->n && (i == 0 || !is_cut(p, at)); i++) {
      if (i) text_adds(out, ", ");
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

void pattern_print(const pattern *p, text_buf *out) {
  for (uint32_t i = 0; i < p->nroots; i++) {
    const root *x = &p->roots[i];
    if (x->kind == ROOT_FN && p->pats[x->first].n == 0) continue;
    /* That no builtin is hidden goes without saying. */
    if (p->pats[x->first].tag == TAG_UNSET || x->library) continue;
    if (x->kind == ROOT_ARG)
      text_addf(out, "argument %u: ", x->arg + 1);
    else if (x->kind == ROOT_GLOBAL)
      text_addf(out, "global %s: ", x->name ? x->name->text : "?");
    else
      text_adds(out, "function: ");
    print_pat(p, x->first, out);
    text_adds(out, "\n");
  }
}

/* ---- templates ----------------------------------------------------------------------------------------------------------------- */

static tpl *tpl_add(qn_vm *vm, tpl_list *t, tpl_kind kind) {
  if (!mem_grow(vm, (void **)&t->tpls, &t->cap, t->n + 1, sizeof *t->tpls)) return NULL;
  tpl *x = &t->tpls[t->n++];
  *x = (tpl){.kind = (uint8_t)kind, .value = value_nil()};
  return x;
}

static bool output_of(struct recording *r, node_list *nodes, tpl *x, uint32_t node) {
  if (nodes) {
    x->output = nodes->n;
    if (!mem_grow(r->vm, (void **)&nodes->nodes, &nodes->cap, nodes->n + 1, sizeof *nodes->nodes)) return false;
    nodes->nodes[nodes->n++] = node;
    return true;
  }
  uint32_t known = key_number(&r->output_numbers, node);
  x->output = known ? known - 1 : r->g->noutputs;
  if (known) return true;
  if (graph_output(r->g, node)) return key_add(r->vm, &r->output_numbers, node, x->output + 1);
  raise_memory(r->vm);
  return false;
}

/* A function that the call was given. */
static bool give(struct recording *r, tpl_list *out, const struct fn_place *f) {
  qn_vm *vm = r->vm;
  const root *from = &r->pattern.roots[f->root];
  uint32_t need = out->npaths + f->steps + 2;
  if (!mem_grow(vm, (void **)&out->paths, &out->paths_cap, need, sizeof *out->paths)) return false;
  tpl *x = tpl_add(vm, out, TPL_GIVEN);
  if (!x) return false;
  x->n = f->steps;
  x->output = out->npaths;
  out->paths[out->npaths++] = from->kind;
  out->paths[out->npaths++] = from->kind == ROOT_ARG ? from->arg : f->root;
  for (uint32_t i = 0; i < f->steps; i++) out->paths[out->npaths++] = r->fn_paths[f->path + i];
  return true;
}

/* The number of a new function that is in the template already, else 0. */
static uint32_t made_before(const tpl_list *t, qn_value fn) {
  uint32_t i = value_fn(fn)->stand;
  const tpl *x = i && i <= t->n ? &t->tpls[i - 1] : NULL;
  return x && x->kind == TPL_FN && fn_same(x->value, fn) ? x->output : 0;
}

/* `whole`: what v is a part of; unset where the template is an entry's, which has no more parts than a pattern may have. */
static bool make(struct recording *r, qn_value v, tpl_list *out, node_list *nodes, break_reason *broken, int depth,
                 qn_value whole) {
  qn_vm *vm = r->vm;
  if (value_is(whole, TAG_UNSET) ? out->n > PARTS_PER_LEAF * (uint64_t)vm->tune[TUNE_jit_leaves]
                                 : out->n == PLACES_LOOK && tree_is_endless(vm, whole, true)) {
    *broken = BREAK_too_many_leaves;
    return false;
  }
  if (depth > PATTERN_DEPTH) {
    *broken = BREAK_too_deep;
    return false;
  }
  uint32_t node = rec_traced(r, v);
  if (!node && nodes && value_is(v, TAG_ARRAY) && !(node = rec_node(r, v))) return false;
  if (node && (value_is(v, TAG_ARRAY) || value_is_scalar(v))) {
    tpl *x = tpl_add(vm, out, TPL_OUTPUT);
    return x && output_of(r, nodes, x, node);
  }
  const qn_value *items = NULL;
  uint32_t n = 0;
  tpl_kind kind = TPL_VALUE;
  bool makes = false; /* a new function */
  switch (value_tag_of(v)) {
  case TAG_ARRAY: *broken = BREAK_untracked_result; return false;
  case TAG_LIST:
    kind = TPL_LIST;
    items = value_list(v)->items;
    n = value_list(v)->len;
    break;
  case TAG_RECORD:
    kind = TPL_RECORD;
    items = value_record(v)->items;
    n = value_record(v)->len;
    break;
  case TAG_FN: {
    const struct fn_place *given = nodes ? NULL : place_of(r, v);
    if (given) return give(r, out, given);
    makes = !nodes && value_fn(v)->id > r->last_fn;
    uint32_t number = makes ? made_before(out, v) : 0;
    if (number) {
      tpl *x = tpl_add(vm, out, TPL_AGAIN);
      if (x) x->output = number;
      return x != NULL;
    }
    if (makes || value_fn(v)->ncaptures) {
      kind = TPL_FN;
      items = value_fn(v)->captures;
      n = value_fn(v)->ncaptures;
    }
    break;
  }
  default: break;
  }
  tpl *x = tpl_add(vm, out, kind);
  if (!x) return false;
  x->n = n;
  if (kind == TPL_RECORD) {
    qn_record *names = record_like(vm, value_record(v));
    if (!names) return false;
    x->value = value_obj(TAG_RECORD, names);
  } else if (kind == TPL_FN) {
    qn_fn *bare = fn_like(vm, value_fn(v));
    if (!bare) return false;
    x->value = value_obj(TAG_FN, bare);
    if (makes) {
      x->output = ++out->made;
      value_fn(v)->stand = out->n;
    }
  } else if (kind == TPL_VALUE) {
    v.head &= 0xff;
    x->value = value_retain(v);
  }
  for (uint32_t i = 0; i < n; i++)
    if (!make(r, items[i], out, nodes, broken, depth + 1, whole)) return false;
  return true;
}

bool template_make(struct recording *r, qn_value v, tpl_list *out, break_reason *broken) {
  return make(r, v, out, NULL, broken, 0, value_unset());
}

void template_settle(tpl_list *t, const void *home) {
  for (uint32_t i = 0; i < t->n && home; i++) {
    if (t->tpls[i].kind != TPL_FN) continue;
    qn_fn *f = value_fn(t->tpls[i].value);
    if (f->head.flags == FN_USER && ((const fn_shared *)f->code)->home == home && f->stand != FN_BARE) fn_make_bare(f);
  }
}

bool template_of_nodes(struct recording *r, qn_value v, tpl_list *out, node_list *nodes) {
  break_reason broken = BREAK_none;
  if (make(r, v, out, nodes, &broken, 0, v)) return true;
  if (broken == BREAK_too_deep)
    raise_error(r->vm, E_recursion, SPAN_NONE, "a value nests too deep");
  else if (!error_pending(r->vm))
    raise_memory(r->vm);
  return false;
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
    h = mix(h, (uint64_t)x->kind << 48 | (uint64_t)x->n << 16 | (x->kind != TPL_GIVEN ? x->output : 0));
    for (uint32_t k = 0; x->kind == TPL_GIVEN && k < x->n + 2; k++) h = mix(h, t->paths[x->output + k]);
    h = value_structure_hash(x->value, h);
  }
  return h;
}

/* A function among the values of a call; borrowed. */
static qn_value given_value(const tpl_list *t, const tpl *x, const call_values *call) {
  const uint32_t *path = t->paths + x->output;
  qn_value v = path[0] == ROOT_ARG  ? call->args[path[1]]
               : path[0] == ROOT_FN ? call->fn
                                    : *call->p->roots[path[1]].slot;
  for (uint32_t i = x->n; i-- > 0;) {
    uint32_t item = path[2 + i];
    v = value_is(v, TAG_LIST)     ? value_list(v)->items[item]
        : value_is(v, TAG_RECORD) ? value_record(v)->items[item]
                                  : value_fn(v)->captures[item];
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
  qn_value *made; /* new functions; borrowed */
} building;

static qn_value build(building *b) {
  qn_vm *vm = b->vm;
  const tpl *x = &b->t->tpls[b->at++];
  qn_value whole;
  qn_value *items;
  switch ((tpl_kind)x->kind) {
  case TPL_OUTPUT: return value_retain(b->outputs[x->output]);
  case TPL_VALUE: return value_retain(x->value);
  case TPL_AGAIN: return value_retain(b->made[x->output - 1]);
  case TPL_GIVEN:
    if (!b->call) return raise_error(vm, E_internal, SPAN_NONE, "a template of nodes has a function of a call");
    return value_retain(given_value(b->t, x, b->call));
  case TPL_LIST: {
    qn_list *l = list_new(vm, x->n);
    if (!l) return value_error();
    whole = value_obj(TAG_LIST, l);
    items = l->items;
    break;
  }
  case TPL_RECORD: {
    qn_record *r = record_like(vm, value_record(x->value));
    if (!r) return value_error();
    whole = value_obj(TAG_RECORD, r);
    items = r->items;
    break;
  }
  default: {
    qn_fn *f = fn_like(vm, value_fn(x->value));
    if (!f) return value_error();
    whole = value_obj(TAG_FN, f);
    if (x->output) {
      fn_renew(vm, f);
      b->made[x->output - 1] = whole;
    }
    items = f->captures;
    break;
  }
  }
  for (uint32_t i = 0; i < x->n; i++) {
    items[i] = build(b);
    if (value_is_error(items[i])) {
      items[i] = value_nil();
      value_release(vm, whole);
      return value_error();
    }
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
