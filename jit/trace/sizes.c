/* Symbolic sizes (sizes.h).
 *
 * The first recording of a function takes all sizes as they are. When a call misses it only because some sizes differ, these are symbolic in
 * the next recording: the type of the input has a symbol in their place, from which the rules of shapes make the sizes of all other nodes.
 * The arrays that the program has keep the sizes of this call. Whatever needs to know more of a size than that is 2 or more notes a fact
 * (dim_assume), and the facts become guards:
 *
 *   rules of shapes and builtins that are made for it ask by dims (rec_sizes), and note what they rely on;
 *   other code of the host looks at the sizes as they are, and says so before (rec_sizes_seen): then they are guarded by value;
 *   the program gets sizes as host numbers that are inputs of the graph (rec_size_number), so that it may compute with them; they
 *   become sizes again where an op takes them (rec_size).
 *
 * All sizes of nodes that depend on symbols are 2 or more, by guards: code that asks whether a size is 0 or 1 has the answer of this call
 * for all calls.
 */
#include "jit/trace/sizes.h"

#include <string.h>

#include "jit/trace/rec.h"
#include "jit/trace/recording.h"

/* ---- which sizes are to be symbolic ------------------------------------------------------------------------------------------- */

enum { SIZE_LEAST = 2 /* smaller sizes are never symbolic */ };

/* A class of axes: the size that they had (or their symbol) and the size that they have. */
typedef struct size_class {
  int64_t was, is;
} size_class;

static size_wish *wish_new(qn_vm *vm, const pattern *p) {
  size_wish *w = mem_zalloc(vm, sizeof *w);
  if (!w) return NULL;
  w->nparts = p->n;
  w->nclasses = p->ndims;
  w->nroots = p->nroots;
  w->parts = mem_zalloc(vm, (p->n + (size_t)1) * sizeof *w->parts);
  w->classes = mem_zalloc(vm, (p->ndims + (size_t)1) * sizeof *w->classes);
  w->roots = mem_zalloc(vm, (p->nroots + (size_t)1) * sizeof *w->roots);
  if (!w->parts || !w->classes || !w->roots) {
    size_wish_free(vm, w);
    return NULL;
  }
  for (uint32_t i = 0; i < p->n; i++) {
    const pat *x = &p->pats[i];
    w->parts[i].kind = x->kind;
    w->parts[i].rank = x->kind == PAT_ARRAY ? x->rank : 0;
    w->parts[i].at = x->dims;
  }
  for (uint32_t i = 0; i < p->nroots; i++) {
    w->roots[i].kind = p->roots[i].kind;
    w->roots[i].slot = p->roots[i].slot;
    w->roots[i].first = p->roots[i].first;
  }
  return w;
}

void size_wish_free(qn_vm *vm, size_wish *w) {
  if (!w) return;
  if (w->parts) mem_free(vm, w->parts, (w->nparts + (size_t)1) * sizeof *w->parts);
  if (w->classes) mem_free(vm, w->classes, (w->nclasses + (size_t)1) * sizeof *w->classes);
  if (w->roots) mem_free(vm, w->roots, (w->nroots + (size_t)1) * sizeof *w->roots);
  if (w->symbols) mem_free(vm, w->symbols, (w->most + (size_t)1) * sizeof *w->symbols);
  mem_free(vm, w, sizeof *w);
}

/* Appends that axis k of a part has another size: "axis 0 of argument 1 was 32, now 64; now symbolic". */
static void print_change(const pattern *p, uint32_t part, int k, int64_t now, text_buf *why) {
  if (why->len) return; /* one is enough */
  text_addf(why, "axis %d of ", k);
  pattern_print_place(p, part, why);
  text_addf(why, " was %lld, now %lld", (long long)p->dims[p->pats[part].dims + (uint32_t)k], (long long)now);
  if (now >= SIZE_LEAST) text_adds(why, "; now symbolic");
}

/* Gives the axes of an array part their classes. False if memory is short. */
static bool classify(qn_vm *vm, const pattern *p, uint32_t part, const int64_t *sizes, size_wish *w,
                     size_class **classes, uint32_t *cap, text_buf *why) {
  const pat *x = &p->pats[part];
  for (int k = 0; k < x->rank; k++) {
    uint32_t at = x->dims + (uint32_t)k, c = 1;
    int64_t was = p->dims[at], is = sizes[at];
    if (was == is) continue;
    if (was >= 0) print_change(p, part, k, is, why);
    if (is < SIZE_LEAST) continue;
    while (c <= w->most && ((*classes)[c].was != was || (*classes)[c].is != is)) c++;
    if (c > w->most) {
      if (!mem_grow(vm, (void **)classes, cap, c + (size_t)1, sizeof **classes)) return false;
      (*classes)[c] = (size_class){was, is};
      w->most = c;
    }
    w->classes[at] = c;
  }
  return true;
}

size_wish *size_wish_of(qn_vm *vm, const pattern *p, bool check_by_value, qn_value fn, const qn_value *args, int nargs,
                        text_buf *why) {
  size_t bytes = (p->ndims + (size_t)1) * sizeof(int64_t);
  int64_t *sizes = p->ndims ? mem_alloc(vm, bytes) : NULL;
  if (!sizes) return NULL;
  memcpy(sizes, p->dims, p->ndims * sizeof *sizes);
  size_wish *w = NULL;
  size_class *classes = NULL;
  uint32_t cap = 0;
  if (pattern_match_but_sizes(p, check_by_value, fn, args, nargs, sizes)) w = wish_new(vm, p);
  bool ok = w != NULL;
  for (uint32_t i = 0; i < p->n && ok; i++)
    if (p->pats[i].kind == PAT_ARRAY) ok = classify(vm, p, i, sizes, w, &classes, &cap, why);
  ok = ok && w->most > 0;
  if (ok) ok = (w->symbols = mem_zalloc(vm, (w->most + (size_t)1) * sizeof *w->symbols)) != NULL;
  mem_free(vm, classes, cap * sizeof *classes);
  mem_free(vm, sizes, bytes);
  if (ok) return w;
  size_wish_free(vm, w);
  return NULL;
}

/* The classes of the axes of a part of the recording's pattern; NULL if it has none. */
static const uint32_t *classes_of(const struct recording *r, uint32_t part, int rank) {
  const size_wish *w = r->wish;
  uint32_t i = r->pattern.nroots - 1;
  const root *own = &r->pattern.roots[i];
  if (own->kind == ROOT_GLOBAL) { /* globals are read in another order, perhaps */
    i = 0;
    while (i < w->nroots && (w->roots[i].kind != ROOT_GLOBAL || w->roots[i].slot != own->slot)) i++;
  }
  if (i >= w->nroots || w->roots[i].kind != own->kind) return NULL;
  uint32_t at = w->roots[i].first + (part - own->first);
  if (at >= w->nparts || w->parts[at].kind != PAT_ARRAY || w->parts[at].rank != rank) return NULL;
  return w->classes + w->parts[at].at;
}

bool sizes_of_input(struct recording *r, uint32_t part, uint32_t input, graph_type *t) {
  static const char *const names[] = {"n", "m", "k", "l", "p", "q", "r", "s", "t", "u", "v", "w"};
  const uint32_t *classes = r->wish ? classes_of(r, part, t->rank) : NULL;
  for (int k = 0; classes && k < t->rank; k++) {
    uint32_t c = classes[k];
    if (!c) continue;
    qn_dim *symbol = &r->wish->symbols[c];
    if (!*symbol) {
      const char *name = c <= sizeof names / sizeof *names ? names[c - 1] : NULL;
      *symbol = dim_symbol(&r->g->dims, DIM_FROM_INPUT, input, (uint16_t)k, t->shape[k], name);
    }
    if (*symbol >= 0 || dim_hint(&r->g->dims, *symbol) != t->shape[k]) continue;
    if (!mem_grow(r->vm, (void **)&r->size_places, &r->size_places_cap, r->nsize_places + (size_t)1,
                  sizeof *r->size_places))
      return false;
    r->size_places[r->nsize_places++] = (struct size_place){input, (uint32_t)k, *symbol};
    t->shape[k] = *symbol;
  }
  return true;
}

/* ---- guards ---------------------------------------------------------------------------------------------------------------------- */

/* A number that a size is never below, given that sizes of inputs are SIZE_LEAST or more. */
static int64_t least(const dim_table *t, qn_dim d) {
  int64_t c;
  if (dim_is_const(t, d, &c)) return c;
  const dim_expr *e = &t->exprs[~d];
  int64_t none = -ARRAY_MAX_ELEMENTS;
  if (e->op == DIM_SYMBOL) return e->source == DIM_FROM_INPUT ? SIZE_LEAST : e->source == DIM_FROM_NODE ? 0 : none;
  int64_t a = least(t, e->a), b = least(t, e->b), out = none;
  switch ((dim_op)e->op) {
  case DIM_ADD: out = a + b; break;
  case DIM_SUB: out = dim_is_const(t, e->b, &c) ? a - c : none; break;
  case DIM_MUL:
    if (a >= 0 && b >= 0 && __builtin_mul_overflow(a, b, &out)) out = ARRAY_MAX_ELEMENTS;
    break;
  case DIM_FLOORDIV: out = a >= 0 && b > 0 && dim_is_const(t, e->b, &c) ? a / c : a >= 0 && b > 0 ? 0 : none; break;
  case DIM_MOD: out = b > 0 ? 0 : none; break;
  case DIM_MIN: out = a < b ? a : b; break;
  case DIM_MAX: out = a > b ? a : b; break;
  case DIM_SYMBOL: break;
  }
  return out < none ? none : out > ARRAY_MAX_ELEMENTS ? ARRAY_MAX_ELEMENTS : out;
}

/* Does a fact hold for all sizes? */
static bool is_plain(const dim_table *t, const dim_fact *f) {
  int64_t c;
  switch ((dim_relation)f->relation) {
  case DIM_LE: return dim_is_const(t, f->a, &c) && c <= least(t, f->b);
  case DIM_LT: return dim_is_const(t, f->a, &c) && c < least(t, f->b);
  case DIM_NE: return dim_is_const(t, f->b, &c) && c < least(t, f->a);
  case DIM_EQ: return f->a == f->b;
  }
  return false;
}

/* Notes that the sizes of all nodes are SIZE_LEAST or more. */
static void demand_least(struct recording *r) {
  dim_table *t = &r->g->dims;
  for (uint32_t i = 1; i < r->g->n; i++) {
    const graph_type *type = &r->g->nodes[i].type;
    for (int k = 0; k < type->rank; k++) {
      qn_dim d = type->shape[k];
      if (d >= 0 || dim_is_late(t, d) || least(t, d) >= SIZE_LEAST) continue;
      if (dim_hint(t, d) < SIZE_LEAST)
        dim_pin(t, d);
      else
        dim_assume(t, SIZE_LEAST, DIM_LE, d);
    }
  }
}

/* Is this the fact that a symbol has a certain value? */
static bool fixes(const dim_table *t, const dim_fact *f) {
  return f->relation == DIM_EQ && f->b >= 0 && f->a < 0 && t->exprs[~f->a].op == DIM_SYMBOL;
}

/* Have all symbols in a size certain values? */
static bool is_fixed(const dim_table *t, qn_dim d) {
  if (d >= 0) return true;
  const dim_expr *e = &t->exprs[~d];
  if (e->op != DIM_SYMBOL) return is_fixed(t, e->a) && is_fixed(t, e->b);
  for (uint32_t i = 0; i < t->nfacts; i++)
    if (t->facts[i].a == d && fixes(t, &t->facts[i])) return true;
  return false;
}

/* Drops facts that need no guard: those that always hold, those about sizes that only a run of the plan tells, and those that follow from
 * certain values of symbols. */
static void facts_prune(dim_table *t) {
  uint32_t n = 0;
  dim_fact *kept = t->facts;
  for (uint32_t i = 0; i < t->nfacts; i++) {
    const dim_fact f = t->facts[i];
    bool follows = !fixes(t, &f) && is_fixed(t, f.a) && is_fixed(t, f.b);
    if (follows || is_plain(t, &f) || dim_is_late(t, f.a) || dim_is_late(t, f.b)) continue;
    if (n < i) { /* the order of facts does not matter, and all of them stay until the end, for is_fixed */
      t->facts[i] = kept[n];
      kept[n] = f;
    }
    n++;
  }
  t->nfacts = n;
}

/* Sizes of inputs that facts set in relation to sizes that only a run tells are guarded by value: guards cannot ask for the relation. */
static void pin_late(dim_table *t) {
  for (uint32_t i = 0, n = t->nfacts; i < n; i++) {
    const dim_fact f = t->facts[i];
    if (!dim_is_late(t, f.a) && !dim_is_late(t, f.b)) continue;
    dim_pin(t, f.a);
    dim_pin(t, f.b);
  }
}

bool sizes_settle(struct recording *r) {
  qn_vm *vm = r->vm;
  if (!r->nsize_places) return true;
  demand_least(r);
  pin_late(&r->g->dims);
  pattern_sizes *s = mem_zalloc(vm, sizeof *s);
  if (!s) {
    error_clear(vm);
    return false;
  }
  arena_init(&s->arena, vm);
  bool ok = !r->g->arena.failed && dim_table_copy(&s->dims, &r->g->dims, &s->arena);
  s->places = ok ? arena_alloc(&s->arena, r->nsize_places * sizeof *s->places) : NULL;
  s->inputs = s->places ? arena_alloc(&s->arena, (r->nsize_inputs + (size_t)1) * sizeof *s->inputs) : NULL;
  ok = s->inputs && !s->arena.failed;
  if (ok) {
    memcpy(s->places, r->size_places, r->nsize_places * sizeof *s->places);
    if (r->nsize_inputs) memcpy(s->inputs, r->size_inputs, r->nsize_inputs * sizeof *s->inputs);
    s->nplaces = r->nsize_places;
    s->ninputs = r->nsize_inputs;
    facts_prune(&s->dims);
  }
  if (!ok) {
    pattern_sizes_free(vm, s);
    s = NULL;
  }
  if (r->pattern.sizes) pattern_sizes_free(vm, r->pattern.sizes);
  r->pattern.sizes = s;
  return ok;
}

bool sizes_of_plan(qn_vm *vm, pattern *p, const dim_table *t) {
  pattern_sizes *old = p->sizes, *s;
  if (!old) return true;
  for (uint32_t i = 0; i < old->dims.n;
       i++) /* a plan's graph has all expressions of the recording, with their numbers */
    if (i >= t->n || t->exprs[i].op != old->dims.exprs[i].op || t->exprs[i].source != old->dims.exprs[i].source ||
        t->exprs[i].hint != old->dims.exprs[i].hint)
      return false;
  if (!(s = mem_zalloc(vm, sizeof *s))) {
    error_clear(vm);
    return false;
  }
  arena_init(&s->arena, vm);
  bool ok = dim_table_copy(&s->dims, t, &s->arena);
  s->places = ok ? arena_alloc(&s->arena, (old->nplaces + (size_t)1) * sizeof *s->places) : NULL;
  s->inputs = s->places ? arena_alloc(&s->arena, (old->ninputs + (size_t)1) * sizeof *s->inputs) : NULL;
  if (!s->inputs || s->arena.failed) {
    pattern_sizes_free(vm, s);
    return false;
  }
  memcpy(s->places, old->places, old->nplaces * sizeof *s->places);
  if (old->ninputs) memcpy(s->inputs, old->inputs, old->ninputs * sizeof *s->inputs);
  s->nplaces = old->nplaces;
  s->ninputs = old->ninputs;
  facts_prune(&s->dims);
  pattern_sizes_free(vm, old);
  p->sizes = s;
  return true;
}

/* ---- what code of the host asks ---------------------------------------------------------------------------------------------------- */

bool rec_symbolic(const qn_vm *vm) {
  for (const struct recording *r = vm->rec; r; r = r->arm ? r->outer : NULL)
    if (r->nsize_places) return true;
  return false;
}

dim_table *rec_dims(qn_vm *vm) { return vm->rec && vm->rec->nsize_places ? &vm->rec->g->dims : NULL; }

/* The node of an array in the recording in progress or, for an arm, in one around it, which *of is set to; 0 if there is none. */
static uint32_t node_around(qn_vm *vm, qn_value x, struct recording **of) {
  for (struct recording *r = vm->rec; r; r = r->arm ? r->outer : NULL) {
    uint32_t node = rec_traced(r, x);
    *of = r;
    if (node) return node;
  }
  return 0;
}

void rec_read_sizes(qn_vm *vm, qn_value x, int64_t *shape) {
  const qn_array *a = value_array(x);
  memcpy(shape, a->shape, a->rank * sizeof *shape);
  struct recording *r;
  uint32_t node = rec_symbolic(vm) ? node_around(vm, x, &r) : 0;
  if (!node || r->g->nodes[node].type.rank != a->rank) return;
  for (int k = 0; k < a->rank; k++) {
    qn_dim d = r->g->nodes[node].type.shape[k];
    if (d >= 0 || dim_is_late(&r->g->dims, d)) continue;
    if (r == vm->rec)
      shape[k] = d;
    else
      rec_pin(r, d); /* an arm has sizes of its own */
  }
}

static bool seen_leaf(void *ctx, qn_value v) {
  qn_vm *vm = ctx;
  struct recording *r;
  uint32_t node = value_is(v, TAG_ARRAY) ? node_around(vm, v, &r) : 0;
  if (!node) return true;
  graph_type t = r->g->nodes[node].type;
  rec_pin_type(r, &t);
  return true;
}

bool rec_look_at_sizes(qn_vm *vm, qn_value v) {
  if (value_is(v, TAG_ARRAY)) return seen_leaf(vm, v);
  return tree_each_part(vm, v, seen_leaf, vm);
}

qn_value rec_size_number_of(qn_vm *vm, int64_t d) {
  struct recording *r = vm->rec;
  int64_t hint = dim_hint(&r->g->dims, d);
  if (!r->capturing) return value_int(hint);
  for (uint32_t i = 0; i < r->nsize_inputs; i++)
    if (r->size_inputs[i].size == d)
      return value_traced(value_int(hint), r->base + r->g->inputs[r->size_inputs[i].input]);
  if (!mem_grow(vm, (void **)&r->size_inputs, &r->size_inputs_cap, r->nsize_inputs + (size_t)1, sizeof *r->size_inputs))
    return value_error();
  graph_type t = {.dtype = WEAK_INT, .weak = true};
  uint32_t node = graph_input(r->g, t, rec_site(r));
  if (!rec_keep(r, node, value_int(hint))) return error_pending(vm) ? value_error() : raise_memory(vm);
  r->pattern.ninputs = r->g->ninputs;
  r->size_inputs[r->nsize_inputs++] = (struct size_input){r->g->ninputs - 1, d};
  return value_traced(value_int(hint), r->base + node);
}

/* sizes_of_number, for operands that are `depth` operations down. */
static bool made_of_sizes(struct recording *r, uint32_t node, qn_dim *d, int depth) {
  const graph_node *n = &r->g->nodes[node];
  dim_table *t = &r->g->dims;
  if (!n->type.weak || n->type.dtype != WEAK_INT || depth > 8) return false;
  if (n->kind == NODE_CONST) {
    *d = dim_const(t, dtype_load(WEAK_INT, n->payload.data).u.i);
    return true;
  }
  if (n->kind == NODE_INPUT) {
    for (uint32_t i = 0; i < r->nsize_inputs; i++) {
      if (r->size_inputs[i].input != n->payload.input) continue;
      *d = r->size_inputs[i].size;
      return true;
    }
    return false;
  }
  static const struct {
    uint8_t op, dim;
  } ops[] = {{OP_add, DIM_ADD}, {OP_sub, DIM_SUB},     {OP_mul, DIM_MUL},    {OP_floordiv, DIM_FLOORDIV},
             {OP_mod, DIM_MOD}, {OP_minimum, DIM_MIN}, {OP_maximum, DIM_MAX}};
  qn_dim in[2];
  for (size_t i = 0; i < sizeof ops / sizeof *ops && n->kind == NODE_OP && n->nin == 2; i++) {
    if (ops[i].op != n->op) continue;
    if (!made_of_sizes(r, n->in[0], &in[0], depth + 1) || !made_of_sizes(r, n->in[1], &in[1], depth + 1)) return false;
    *d = dim_make(t, (dim_op)ops[i].dim, in[0], in[1]);
    return true;
  }
  return false;
}

bool sizes_of_number(struct recording *r, uint32_t node, qn_dim *d) {
  return r->nsize_inputs && made_of_sizes(r, node, d, 0);
}

bool rec_size_of(qn_vm *vm, qn_value v, int64_t *size) {
  struct recording *r = vm->rec;
  uint32_t node = r ? rec_traced(r, v) : 0;
  qn_dim d;
  int64_t c;
  if (node && sizes_of_number(r, node, &d) && !dim_is_const(&r->g->dims, d, &c) && dim_hint(&r->g->dims, d) >= 0 &&
      dim_hint(&r->g->dims, d) == v.u.i) {
    if (least(&r->g->dims, d) < 0) dim_assume(&r->g->dims, 0, DIM_LE, d);
    *size = d;
    return true;
  }
  v = rec_observe(vm, v);
  if (value_is_error(v)) return false;
  *size = v.u.i;
  return true;
}

int rec_sizes_equal(qn_vm *vm, int64_t a, int64_t b) {
  dim_table *t = rec_dims(vm);
  return a == b || (t && dim_hint(t, a) == dim_hint(t, b) && dim_equal(t, a, b));
}

int64_t rec_size_hint(const qn_vm *vm, int64_t d) { return d >= 0 || !vm->rec ? d : dim_hint(&vm->rec->g->dims, d); }

void rec_size_fits(qn_vm *vm, qn_value v) {
  struct recording *r = vm->rec;
  uint32_t node = r && r->nsize_inputs && value_is(v, TAG_ARRAY) ? rec_traced(r, v) : 0;
  if (!node) return;
  const graph_node *n = &r->g->nodes[node];
  for (int k = 0; k < n->nin; k++) {
    const graph_node *in = &r->g->nodes[n->in[k]];
    if (in->kind == NODE_OP && in->op == OP_fit && dtype_is_float((qn_dtype)in->type.dtype) && in->type.dtype != QN_f16)
      if (!graph_node_prove(r->g, n->in[k])) return; /* the graph is marked as failed */
  }
}

int64_t rec_size_now(qn_vm *vm, int64_t d) {
  int64_t hint = rec_size_hint(vm, d);
  if (d != hint) rec_pin(vm->rec, d);
  return hint;
}

int rec_lists_equal(qn_vm *vm, qn_value a, qn_value b) {
  if (!value_is(a, TAG_LIST) || !value_is(b, TAG_LIST) || !rec_dims(vm)) return -2;
  const qn_list *x = value_list(a), *y = value_list(b);
  uint32_t n = x->len < y->len ? x->len : y->len;
  bool equal = x->len == y->len;
  for (uint32_t i = 0; i < n; i++) {
    if (!value_is(x->items[i], TAG_INT) || !value_is(y->items[i], TAG_INT)) return -2;
    equal = equal && x->items[i].u.i == y->items[i].u.i;
  }
  for (uint32_t i = 0; i < n && x->len == y->len; i++) {
    int64_t p, q;
    bool same = x->items[i].u.i == y->items[i].u.i;
    if (same != equal) continue; /* the first pair that differs decides, or all do */
    if (!rec_size(vm, x->items[i], &p) || !rec_size(vm, y->items[i], &q)) return -1;
    bool now = rec_sizes_equal(vm, p, q);
    if (!now && !rec_dims(vm)) continue;
    if (!now) {
      if (p != q) (void)dim_equal(rec_dims(vm), p, q);
      break;
    }
  }
  return equal;
}
