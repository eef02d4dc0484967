/* Symbolic sizes (sizes.h).
 *
 * The first recording of a function takes all sizes as they are, but those that its signature names (named_sizes; and where jit's option `dynamic`
 * asks for it, all of its arguments'), which are symbols at once. When a call misses it only because some sizes differ, these are symbolic in the next recording: the type of the input has a symbol in their place, from
 * which the rules of shapes make the sizes of all other nodes. The arrays that the program has keep the sizes of this call. Whatever needs to
 * know more of a size than that is 2 or more notes a fact (dim_assume), and the facts become guards:
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

#include "jit/graph/region_builder.h"
#include "jit/trace/anchors.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"

/* ---- which sizes are to be symbolic ------------------------------------------------------------------------------------------- */

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

/* Appends that axis k of a part has another size: "axis 0 of x was 32, now 64; now symbolic". */
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

/* Marks the part of a wish that is this input. */
static bool want_int(size_wish *w, const pattern *p, uint32_t input) {
  uint32_t i = 0;
  while (i < p->n && (p->pats[i].kind != PAT_SCALAR || p->pats[i].input != input)) i++;
  if (i == p->n || p->pats[i].tag != TAG_INT) return false;
  return w->parts[i].sized = true;
}

size_wish *size_wish_of(qn_vm *vm, const pattern *p, bool check_by_value, qn_value fn, const qn_value *args, int nargs,
                        const qn_value *scalars, text_buf *why) {
  size_t bytes = (p->ndims + (size_t)1) * sizeof(int64_t);
  int64_t *sizes = p->ndims || scalars ? mem_alloc(vm, bytes) : NULL;
  if (!sizes) return NULL;
  if (p->ndims) memcpy(sizes, p->dims, p->ndims * sizeof *sizes);
  size_wish *w = NULL;
  size_class *classes = NULL;
  uint32_t cap = 0;
  if (pattern_match_but_sizes(p, check_by_value, fn, args, nargs, sizes)) w = wish_new(vm, p);
  bool ok = w != NULL;
  for (uint32_t i = 0; i < p->n && ok; i++)
    if (p->pats[i].kind == PAT_ARRAY) ok = classify(vm, p, i, sizes, w, &classes, &cap, why);
  bool any = false, differ = false; /* (sizes of arrays do) */
  for (uint32_t i = 0; scalars && i < p->asked.n && ok; i++) {
    uint32_t input = p->asked.nodes[i];
    int64_t now = scalars[input].u.i;
    if (now < SIZE_LEAST || now > INT_SIZE_MOST || !want_int(w, p, input)) continue;
    bool first = !any;
    any = true;
    if (why->len && (first || differ)) {
      differ = true;
      continue;
    }
    if (why->len) text_adds(why, ", ");
    pattern_input_name(p, input, why);
    text_addf(why, " is %lld", (long long)now);
  }
  if (any && !differ) text_adds(why, ", and another size before; now symbolic");
  for (uint32_t i = 0; ok && p->sizes && i < p->sizes->nplaces; i++)
    if (p->sizes->places[i].axis == PLACE_INT) (void)want_int(w, p, p->sizes->places[i].input);
  ok = ok && (w->most > 0 || any);
  if (ok) ok = (w->symbols = mem_zalloc(vm, (w->most + (size_t)1) * sizeof *w->symbols)) != NULL;
  mem_free(vm, classes, cap * sizeof *classes);
  mem_free(vm, sizes, bytes);
  if (ok) return w;
  size_wish_free(vm, w);
  return NULL;
}

size_wish *size_wish_like(qn_vm *vm, const pattern *p) {
  const pattern_sizes *known = p->sizes;
  if (!known || !known->nplaces) return NULL;
  size_wish *w = wish_new(vm, p);
  qn_dim *of = w ? mem_alloc(vm, (p->ndims + (size_t)1) * sizeof *of) : NULL; /* by class: its symbol */
  for (uint32_t i = 0; of && i < p->ndims; i++) {
    uint32_t c = 1;
    if (p->dims[i] >= 0) continue;
    while (c <= w->most && of[c] != p->dims[i]) c++;
    if (c > w->most) of[w->most = c] = p->dims[i];
    w->classes[i] = c;
  }
  for (uint32_t i = 0; of && i < known->nplaces; i++)
    if (known->places[i].axis == PLACE_INT) (void)want_int(w, p, known->places[i].input);
  if (of) w->symbols = mem_zalloc(vm, (w->most + (size_t)1) * sizeof *w->symbols);
  if (of) mem_free(vm, of, (p->ndims + (size_t)1) * sizeof *of);
  if (w && w->symbols) return w;
  error_clear(vm);
  size_wish_free(vm, w);
  return NULL;
}

/* What the recording's wish says of a part of its pattern; NULL: nothing. */
static const struct wish_part *wished_of(const struct recording *r, uint32_t part) {
  const size_wish *w = r->wish;
  uint32_t i = r->pattern.nroots - 1;
  const root *own = &r->pattern.roots[i];
  if (own->kind == ROOT_GLOBAL) { /* globals are read in another order, perhaps */
    i = 0;
    while (i < w->nroots && (w->roots[i].kind != ROOT_GLOBAL || w->roots[i].slot != own->slot)) i++;
  }
  if (i >= w->nroots || w->roots[i].kind != own->kind) return NULL;
  uint32_t at = w->roots[i].first + (part - own->first);
  return at < w->nparts ? &w->parts[at] : NULL;
}

/* The classes of the axes of a part of the recording's pattern; NULL if it has none. */
static const uint32_t *classes_of(const struct recording *r, uint32_t part, int rank) {
  const struct wish_part *x = wished_of(r, part);
  return x && x->kind == PAT_ARRAY && x->rank == rank ? r->wish->classes + x->at : NULL;
}

bool sizes_of_int(struct recording *r, uint32_t part, uint32_t input, int64_t value) {
  const struct wish_part *x = r->wish ? wished_of(r, part) : NULL;
  if (!x || x->kind != PAT_SCALAR || !x->sized || value < SIZE_LEAST || value > INT_SIZE_MOST) return true;
  return nodes_add(r->vm, &r->size_ints, input);
}

/* Has the program, or a symbol, a name already? */
static bool is_taken(const struct recording *r, const char *name, bool captured) {
  const dim_table *t = &r->g->dims;
  bool taken = false;
  for (uint32_t k = 0; k < t->n && !taken; k++) taken = t->exprs[k].name && strcmp(t->exprs[k].name, name) == 0;
  for (uint32_t k = 0; r->sizes && k < r->sizes->nnames && !taken; k++) taken = strcmp(r->sizes->names[k], name) == 0;
  for (uint32_t k = 0; captured && k < r->pattern.nnames && !taken; k++)
    taken = r->pattern.names[k] && strcmp(r->pattern.names[k]->text, name) == 0;
  return taken;
}

/* A name for one more symbol that the program has not named; NULL if there are no more. */
static const char *fresh_name(const struct recording *r) {
  static const char *const names[] = {"n", "m", "k", "l", "p", "q", "r", "s", "t", "u", "v", "w"};
  for (uint32_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!is_taken(r, names[i], true)) return names[i];
  return NULL;
}

/* A name for the symbol of an input that is a host int: the argument's own. */
static const char *name_of_int(const struct recording *r, uint32_t input) {
  const pattern *p = &r->pattern;
  for (uint32_t i = 0; i < p->nroots; i++) {
    const root *x = &p->roots[i];
    if (x->kind != ROOT_ARG || !x->name || x->first >= p->n) continue;
    if (p->pats[x->first].kind == PAT_SCALAR && p->pats[x->first].input == input && !is_taken(r, x->name->text, false))
      return x->name->text;
  }
  return fresh_name(r);
}

/* The symbol of an input that is a host int and a size; 0: it has none. */
static qn_dim symbol_of_place(const struct recording *r, uint32_t input) {
  for (uint32_t k = 0; k < r->nsize_places; k++)
    if (r->size_places[k].axis == PLACE_INT && r->size_places[k].input == input) return r->size_places[k].symbol;
  return 0;
}

/* The symbol of an input that is a host int, if it may be one: made, and its place noted, when it is first asked for. */
static bool symbol_of_int(struct recording *r, uint32_t input, qn_dim *d) {
  uint32_t i = 0;
  while (i < r->size_ints.n && r->size_ints.nodes[i] != input) i++;
  if (i == r->size_ints.n || r->g->dims.strict) return false;
  if ((*d = symbol_of_place(r, input)) < 0) return true;
  qn_value v = r->vals[r->g->inputs[input]];
  if (!value_is(v, TAG_INT) || !mem_grow(r->vm, (void **)&r->size_places, &r->size_places_cap,
                                         r->nsize_places + (size_t)1, sizeof *r->size_places))
    return false;
  *d = dim_symbol(&r->g->dims, DIM_FROM_SCALAR, input, 0, v.u.i, name_of_int(r, input));
  if (*d >= 0) return false;
  r->size_places[r->nsize_places++] = (struct size_place){input, PLACE_INT, *d, 0};
  return true;
}

/* The symbol of a class, for axis k of an input: made for the first such axis. */
static qn_dim symbol_of_class(struct recording *r, uint32_t c, uint32_t input, int k, int64_t size) {
  qn_dim *symbol = &r->wish->symbols[c];
  if (!*symbol) *symbol = dim_symbol(&r->g->dims, DIM_FROM_INPUT, input, (uint16_t)k, size, fresh_name(r));
  return *symbol;
}

/* What the signature says of axis k of an array that is being traced: the number of a name + 1, SIZE_COMPUTED or 0. */
static uint32_t name_of_axis(const struct recording *r, int rank, int k) {
  const size_names *x = r->names;
  if (!x || !x->axes) return 0;
  uint32_t axis = (uint32_t)k, have = (uint32_t)rank;
  if (x->rest == x->n) return have == x->n ? x->axes[axis] : 0;
  if (have + 1 < x->n) return 0;
  if (axis >= x->rest && axis < have + 1 - (x->n - x->rest)) return 0;
  return x->axes[axis < x->rest ? axis : x->n - (have - axis)];
}

/* The symbol of a size that the signature names or computes, for axis k of an input: made for the first axis of a name. */
static qn_dim symbol_of_name(struct recording *r, uint32_t name, uint32_t input, int k, int64_t size) {
  bool computed = name == SIZE_COMPUTED;
  qn_dim *symbol = computed ? NULL : &r->name_symbols[name - 1];
  if (symbol && *symbol) return *symbol;
  qn_dim made = dim_symbol(&r->g->dims, DIM_FROM_INPUT, input, (uint16_t)k, size,
                           computed ? fresh_name(r) : r->sizes->names[name - 1]);
  if (symbol) *symbol = made;
  return made;
}

/* The symbol of how many items a list has whose items are rows of arrays, of which this input is the first. */
static qn_dim symbol_of_stack(struct recording *r, uint32_t input, int64_t size) {
  static const char *const names[] = {"c", "d", "e", "f"};
  const char *name = r->nstacks <= sizeof names / sizeof *names ? names[r->nstacks - 1] : NULL;
  if (!r->stack_size) r->stack_size = dim_symbol(&r->g->dims, DIM_FROM_INPUT, input, 0, size, name);
  return r->stack_size;
}

bool sizes_of_input(struct recording *r, uint32_t part, uint32_t input, graph_type *t) {
  const uint32_t *classes = r->wish ? classes_of(r, part, t->rank) : NULL;
  bool all = r->all_sizes && r->pattern.roots[r->pattern.nroots - 1].kind == ROOT_ARG;
  for (int k = 0; k < t->rank; k++) {
    uint32_t c = classes ? classes[k] : 0;
    int64_t size = t->shape[k];
    if (size < SIZE_LEAST) c = 0; /* (of a wish that another call has left) */
    bool items = k == 0 && r->in_stack && size >= SIZE_LEAST;
    uint32_t name = size >= SIZE_LEAST ? name_of_axis(r, t->rank, k) : 0;
    if (!c && !items && !name && (!all || size < SIZE_LEAST)) continue;
    qn_dim symbol = items  ? symbol_of_stack(r, input, size)
                    : name ? symbol_of_name(r, name, input, k, size)
                    : c    ? symbol_of_class(r, c, input, k, size)
                           : dim_symbol(&r->g->dims, DIM_FROM_INPUT, input, (uint16_t)k, size, fresh_name(r));
    if (symbol >= 0 || dim_hint(&r->g->dims, symbol) != size) continue;
    if (!mem_grow(r->vm, (void **)&r->size_places, &r->size_places_cap, r->nsize_places + (size_t)1,
                  sizeof *r->size_places))
      return false;
    r->size_places[r->nsize_places++] = (struct size_place){input, (uint32_t)k, symbol, 0};
    t->shape[k] = symbol;
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
  if (e->op == DIM_SYMBOL)
    return e->source == DIM_FROM_NODE                  ? 0
           : e->source == DIM_FROM_NUMBER              ? none
           : e->source == DIM_FROM_INPUT || !t->strict ? SIZE_LEAST
                                                       : none;
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

/* Does a size depend on a host int that is an argument? */
static bool is_of_int(const dim_table *t, qn_dim d) {
  if (d >= 0) return false;
  const dim_expr *e = &t->exprs[~d];
  return e->op == DIM_SYMBOL ? e->source == DIM_FROM_SCALAR : is_of_int(t, e->a) || is_of_int(t, e->b);
}

/* Notes that an array has no more elements than arrays may have, if its sizes depend on host ints: the array may not exist in compiled code. */
static void demand_room(dim_table *t, const graph_type *type) {
  int64_t plain = 1, ints = 0, others = 0;
  qn_dim all = 1;
  for (int k = 0; k < type->rank; k++) {
    qn_dim d = type->shape[k];
    bool of_int = is_of_int(t, d), symbol = of_int && t->exprs[~d].op == DIM_SYMBOL;
    ints += of_int;
    others += d < 0 && !symbol;
    if (d >= 0 && __builtin_mul_overflow(plain, d, &plain)) plain = ARRAY_MAX_ELEMENTS;
    all = dim_mul(t, all, d);
  }
  if (!ints || (ints == 1 && !others && plain <= ARRAY_MAX_ELEMENTS / INT_SIZE_MOST) || dim_is_late(t, all)) return;
  dim_assume(t, all, DIM_LE, ARRAY_MAX_ELEMENTS);
}

/* Notes that the sizes of all nodes are SIZE_LEAST or more, or what they are: a size that is computed, and small, says nothing about others. */
static void demand_least(struct recording *r) {
  dim_table *t = &r->g->dims;
  for (uint32_t i = 1; i < r->g->n; i++) {
    const graph_type *type = &r->g->nodes[i].type;
    for (int k = 0; k < type->rank; k++) {
      qn_dim d = type->shape[k];
      if (d >= 0 || dim_is_late(t, d) || least(t, d) >= SIZE_LEAST) continue;
      if (dim_hint(t, d) < SIZE_LEAST)
        dim_assume(t, d, DIM_EQ, dim_hint(t, d));
      else
        dim_assume(t, SIZE_LEAST, DIM_LE, d);
    }
    if (r->size_ints.n) demand_room(t, type);
  }
}

/* Is this the fact that a symbol has a certain value? */
static bool fixes(const dim_table *t, const dim_fact *f) {
  return f->relation == DIM_EQ && f->b >= 0 && f->a < 0 && t->exprs[~f->a].op == DIM_SYMBOL;
}

bool sizes_fixed(const dim_table *t, qn_dim d) {
  if (d >= 0) return true;
  const dim_expr *e = &t->exprs[~d];
  if (e->op != DIM_SYMBOL) return sizes_fixed(t, e->a) && sizes_fixed(t, e->b);
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
    bool follows = !fixes(t, &f) && sizes_fixed(t, f.a) && sizes_fixed(t, f.b);
    if (follows || is_plain(t, &f) || dim_is_late(t, f.a) || dim_is_late(t, f.b)) continue;
    if (n < i) { /* the order of facts does not matter, and all of them stay until the end, for sizes_fixed */
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
    if (dim_is_number(t, f.a) || dim_is_number(t, f.b)) continue; /* a check asks for it */
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

/* May host numbers of a recording outside of all arms be sizes that may differ in later calls? */
static bool has_size_numbers(const struct recording *r) {
  return r->nsize_inputs || r->nmade || (r->size_ints.n && r->capturing && !r->symbolic);
}

/* Has a recording sizes that are no plain numbers? */
static bool has_sizes(const struct recording *r) {
  return r->nsize_places || r->symbolic || r->arm_sizes || r->g->dims.strict || r->g->dims.numbers_of_data;
}

bool rec_symbolic(const qn_vm *vm) {
  for (const struct recording *r = vm->rec; r; r = r->arm ? r->outer : NULL)
    if (has_sizes(r)) return true;
  return false;
}

dim_table *rec_dims(qn_vm *vm) { return vm->rec && has_sizes(vm->rec) ? &vm->rec->g->dims : NULL; }

/* The node of an array in the recording in progress or, for an arm, in one around it, which *of is set to; 0 if there is none. */
static uint32_t node_around(qn_vm *vm, qn_value x, struct recording **of) {
  for (struct recording *r = vm->rec; r; r = r->arm ? r->outer : NULL) {
    uint32_t node = rec_traced(r, x);
    *of = r;
    if (node) return node;
  }
  return 0;
}

bool sizes_are_numbers(const struct recording *r, const graph_type *t) {
  for (int k = 0; k < t->rank; k++)
    if (dim_is_number(&r->g->dims, t->shape[k])) return true;
  return false;
}

void rec_read_sizes(qn_vm *vm, qn_value x, int64_t *shape) {
  const qn_array *a = value_array(x);
  memcpy(shape, a->shape, a->rank * sizeof *shape);
  struct recording *r;
  uint32_t node = rec_symbolic(vm) ? node_around(vm, x, &r) : 0;
  if (!node || r->g->nodes[node].type.rank != a->rank) return;
  if (r != vm->rec &&
      !type_is_fixed(&r->g->nodes[node].type)) { /* as an arm sees them (if that fails, so will the op) */
    if (!(node = rec_node(vm->rec, x))) return;
    r = vm->rec;
  }
  for (int k = 0; k < a->rank; k++) {
    qn_dim d = r->g->nodes[node].type.shape[k];
    if (d >= 0 || (dim_is_late(&r->g->dims, d) && !dim_is_number(&r->g->dims, d))) continue;
    shape[k] = d;
  }
}

bool rec_sizes_of_call(qn_vm *vm, qn_value x, int64_t *shape) {
  rec_sizes(vm, x, shape);
  for (int k = 0; vm->rec && k < value_array(x)->rank; k++)
    if (rec_is_number(vm, shape[k])) return rec_unknown_size(vm);
  return true;
}

/* Guards the sizes of the first axes of an array, if it is one. */
static bool look_at(qn_vm *vm, qn_value v, int axes) {
  struct recording *r;
  uint32_t node = value_is(v, TAG_ARRAY) ? node_around(vm, v, &r) : 0;
  if (!node) return true;
  graph_type t = r->g->nodes[node].type;
  if (axes < t.rank) t.rank = (uint8_t)axes;
  if (sizes_are_numbers(r, &t)) return rec_unknown_size(vm);
  rec_pin_type(r, &t);
  return true;
}

static bool seen_leaf(void *ctx, qn_value v) { return look_at(ctx, v, ARRAY_MAX_RANK); }

bool rec_look_at_length(qn_vm *vm, qn_value v) { return look_at(vm, v, 1); }

bool rec_look_at_sizes(qn_vm *vm, qn_value v) {
  if (value_is(v, TAG_ARRAY)) return seen_leaf(vm, v);
  return tree_each_part(vm, v, seen_leaf, vm);
}

/* The number of the recording outside of all arms that has the value of size d: an input, made on demand. 0 with an error raised. */
static uint32_t size_input_of(struct recording *r, qn_dim d) {
  for (uint32_t i = 0; i < r->nsize_inputs; i++)
    if (r->size_inputs[i].size == d) return r->g->inputs[r->size_inputs[i].input];
  qn_vm *vm = r->vm;
  if (!mem_grow(vm, (void **)&r->size_inputs, &r->size_inputs_cap, r->nsize_inputs + (size_t)1, sizeof *r->size_inputs))
    return 0;
  graph_type t = {.dtype = WEAK_INT, .weak = true};
  uint32_t node = graph_input(r->g, t, rec_site(r));
  if (!rec_keep(r, node, value_int(dim_hint(&r->g->dims, d)))) return error_pending(vm) ? 0 : (raise_memory(vm), 0);
  r->pattern.ninputs = r->g->ninputs;
  r->size_inputs[r->nsize_inputs++] = (struct size_input){r->g->ninputs - 1, d};
  return node;
}

/* The input of an arm that is node `outer` of the recording around it, and no carry; ninputs if there is none. */
static uint32_t captured_as(const struct recording *r, uint32_t outer) {
  uint32_t k = r->carries;
  while (k < r->g->ninputs && r->captures[k] != outer) k++;
  return k;
}

/* The node of an arm that is node `outer`, no carry, of the recording around it; an input, made on demand. 0 with an error raised. */
static uint32_t captured_node(struct recording *r, uint32_t outer) {
  uint32_t k = captured_as(r, outer);
  return k < r->g->ninputs ? r->g->inputs[k] : arm_operand(r, outer);
}

uint32_t sizes_number(struct recording *r, qn_dim d) {
  static const uint8_t ops[] = {
      [DIM_ADD] = OP_add, [DIM_SUB] = OP_sub,     [DIM_MUL] = OP_mul,    [DIM_FLOORDIV] = OP_floordiv,
      [DIM_MOD] = OP_mod, [DIM_MIN] = OP_minimum, [DIM_MAX] = OP_maximum};
  graph *g = r->g;
  int64_t c;
  if (dim_is_const(&g->dims, d, &c)) return graph_weak_int(g, c);
  const dim_expr e = g->dims.exprs[~d];
  if (!r->arm && e.op == DIM_SYMBOL && e.source == DIM_FROM_SCALAR) return g->inputs[e.ref];
  if (e.op == DIM_SYMBOL && e.source == DIM_FROM_NUMBER) return e.ref;
  if (!r->arm && !dim_is_number(&g->dims, d))
    return r->capturing && !dim_is_late(&g->dims, d) ? size_input_of(r, d) : 0;
  if (e.op == DIM_SYMBOL && e.source == DIM_FROM_INPUT) {
    uint32_t outer = sizes_number(r->outer, r->outer->g->nodes[r->captures[e.ref]].type.shape[e.axis]);
    return outer ? captured_node(r, outer) : 0;
  }
  if (e.op == DIM_SYMBOL) return e.source == DIM_FROM_SCALAR ? g->inputs[e.ref] : 0;
  uint32_t a = sizes_number(r, e.a), b = a ? sizes_number(r, e.b) : 0;
  return b ? graph_count(g, (op_id)ops[e.op], a, b) : 0;
}

qn_value rec_size_number_of(qn_vm *vm, int64_t d) {
  struct recording *r = vm->rec;
  if (r->arm) {
    uint32_t node = sizes_number(r, d);
    if (node) return rec_value_of(r, node);
    if (error_pending(vm)) return value_error();
    return r->g->failed ? raise_memory(vm) : (rec_give_up(r, BREAK_branch), value_error());
  }
  int64_t hint = dim_hint(&r->g->dims, d);
  if (r->symbolic) rec_pin(r, d); /* the number is a constant of its graph */
  if (!r->capturing) return value_int(hint);
  uint32_t node = sizes_number(r, d);
  return node ? rec_value_of(r, node) : value_error();
}

qn_value rec_length(qn_vm *vm, qn_value x) {
  int64_t shape[ARRAY_MAX_RANK];
  rec_sizes(vm, x, shape);
  return rec_size_number(vm, shape[0]);
}

/* ---- numbers of turns as sizes ---------------------------------------------------------------------------------------------------
 *
 * In an arm host ints have no values. One that bounds a slice, or says how large an array is, becomes a size of the arm's graph, which is
 * computed anew in each turn: a symbol for each input that is a number (DIM_FROM_SCALAR). Nothing about such a size can be a guard. What is
 * relied on follows from where numbers lie, or the arm is given up. */

static const struct number_range any_number = {INT64_MIN, INT64_MAX, 37};

static int64_t clamped(__int128 x) { return x < INT64_MIN ? INT64_MIN : x > INT64_MAX ? INT64_MAX : (int64_t)x; }

static bool is_bounded(struct number_range x) { return x.low > INT64_MIN && x.high < INT64_MAX; }

/* Where a op b lies; an end that is not known stays so. */
static struct number_range range_made(dim_op op, struct number_range a, struct number_range b) {
  struct number_range r = any_number;
  const __int128 none = INT64_MIN, most = INT64_MAX;
  __int128 low = none, high = most, about = a.about;
  bool la = a.low > INT64_MIN, ha = a.high<INT64_MAX, lb = b.low> INT64_MIN, hb = b.high < INT64_MAX;
  switch (op) {
  case DIM_ADD:
    if (la && lb) low = (__int128)a.low + b.low;
    if (ha && hb) high = (__int128)a.high + b.high;
    about = (__int128)a.about + b.about;
    break;
  case DIM_SUB:
    if (la && hb) low = (__int128)a.low - b.high;
    if (ha && lb) high = (__int128)a.high - b.low;
    about = (__int128)a.about - b.about;
    break;
  case DIM_MUL:
    about = (__int128)a.about * b.about;
    if (is_bounded(a) && is_bounded(b)) {
      const int64_t x[2] = {a.low, a.high}, y[2] = {b.low, b.high};
      for (int i = 0; i < 4; i++) {
        __int128 z = (__int128)x[i & 1] * y[i >> 1];
        low = i && low < z ? low : z;
        high = i && high > z ? high : z;
      }
    } else if (a.low >= 0 && b.low >= 0) {
      low = (__int128)a.low * b.low;
    }
    break;
  case DIM_FLOORDIV:
    if (b.low == b.high && b.low > 0) {
      if (la) low = a.low / b.low - (a.low % b.low < 0);
      if (ha) high = a.high / b.low - (a.high % b.low < 0);
      about = a.about / b.low;
    } else if (a.low >= 0 && b.low > 0) {
      low = 0;
    }
    break;
  case DIM_MOD:
    if (b.low > 0) low = 0, high = hb ? (__int128)b.high - 1 : most;
    about = b.about > 2 ? b.about / 2 : 1;
    break;
  case DIM_MIN:
    if (la && lb) low = a.low < b.low ? a.low : b.low;
    high = a.high < b.high ? a.high : b.high;
    about = a.about < b.about ? a.about : b.about;
    break;
  case DIM_MAX:
    low = a.low > b.low ? a.low : b.low;
    if (ha && hb) high = a.high > b.high ? a.high : b.high;
    about = a.about > b.about ? a.about : b.about;
    break;
  case DIM_SYMBOL: break;
  }
  r.low = clamped(low);
  r.high = clamped(high);
  r.about = clamped(about);
  return r;
}

bool sizes_op_of(op_id op, dim_op *to) {
  static const struct {
    uint8_t op, dim;
  } ops[] = {{OP_add, DIM_ADD}, {OP_sub, DIM_SUB},     {OP_mul, DIM_MUL},    {OP_floordiv, DIM_FLOORDIV},
             {OP_mod, DIM_MOD}, {OP_minimum, DIM_MIN}, {OP_maximum, DIM_MAX}};
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
    *to = (dim_op)ops[i].dim;
    if (ops[i].op == op) return true;
  }
  return false;
}

/* Where a size of the recording outside of all arms lies. */
static struct number_range range_outside(struct recording *r, qn_dim d) {
  const dim_table *t = &r->g->dims;
  int64_t c = dim_hint(t, d);
  if (d >= 0 || sizes_fixed(t, d)) return (struct number_range){c, c, c};
  return (struct number_range){least(t, d), INT64_MAX, c};
}

static struct number_range counts_range(struct recording *r, int *left);

/* Where a number lies; looks at *left nodes at most. */
static struct number_range range_at(struct recording *r, uint32_t node, int depth, int *left) {
  const graph_node *n = &r->g->nodes[node];
  qn_value v;
  dim_op op;
  qn_dim d;
  if (!n->type.weak || n->type.dtype != WEAK_INT || depth > 32 || --*left < 0) return any_number;
  if (graph_const_value(r->g, node, &v)) return (struct number_range){v.u.i, v.u.i, v.u.i};
  if (n->kind == NODE_OP && n->op == OP_neg)
    return range_made(DIM_SUB, (struct number_range){0, 0, 0}, range_at(r, n->in[0], depth + 1, left));
  if (n->kind == NODE_OP && n->nin == 2 && sizes_op_of((op_id)n->op, &op))
    return range_made(op, range_at(r, n->in[0], depth + 1, left), range_at(r, n->in[1], depth + 1, left));
  struct number_range x = any_number;
  if (!r->arm && node < r->vals_cap && value_is(v = r->vals[node], TAG_INT)) x.about = v.u.i;
  if (n->kind != NODE_INPUT) return x;
  uint32_t k = n->payload.input;
  if (!r->arm) {
    v = node < r->vals_cap ? r->vals[node] : value_unset();
    if (value_is(v, TAG_INT) && key_number(&r->observed_nodes, node)) return (struct number_range){v.u.i, v.u.i, v.u.i};
    return sizes_of_number(r, node, &d) ? range_outside(r, d) : x;
  }
  if (r->count == k + 1) return counts_range(r, left);
  return k < r->carries ? any_number : range_at(r->outer, r->captures[k], depth + 1, left);
}

struct number_range sizes_range(struct recording *r, uint32_t node) {
  enum { LOOKED_AT = 256 /* nodes */ };
  return range_at(r, node, 0, &(int){LOOKED_AT});
}

struct number_range sizes_range_of(struct recording *r, qn_value v) {
  uint32_t node = value_node(v) ? rec_traced(r, v) : 0;
  if (node) return sizes_range(r, node);
  if (value_is(v, TAG_INT) && !value_node(v)) return (struct number_range){v.u.i, v.u.i, v.u.i};
  return any_number;
}

bool sizes_of_turns(struct recording *body, struct recording *r, uint32_t input, qn_value first, qn_value end) {
  body->count = input + 1;
  for (int i = 0; i < 2; i++)
    if (!(body->count_ends[i] = (struct count_end){r, rec_node(r, i ? end : first), 0}).node) return false;
  return true;
}

static struct number_range end_range(const struct count_end *e, int *left) {
  const struct number_range more = {e->more, e->more, e->more};
  return e->node ? range_made(DIM_ADD, range_at((struct recording *)e->in, e->node, 0, left), more) : more;
}

/* Where the number of a loop that counts lies in its body, r. */
static struct number_range counts_range(struct recording *r, int *left) {
  const struct number_range from = end_range(&r->count_ends[0], left), to = end_range(&r->count_ends[1], left);
  bool ends = to.high > INT64_MIN && to.high < INT64_MAX;
  struct number_range x = {from.low, ends ? to.high - 1 : to.high, from.about};
  if (to.about > from.about) x.about += (int64_t)(((uint64_t)to.about - (uint64_t)from.about) / 8 * 3);
  if (x.about < 2) x.about = 2;
  if (to.about > from.about && x.about >= to.about)
    x.about = to.about - 1; /* parts must lie within arrays by hints, too */
  return x;
}

struct number_range sizes_between(struct recording *r, qn_dim d) {
  int64_t c;
  if (dim_is_const(&r->g->dims, d, &c)) return (struct number_range){c, c, c};
  const dim_expr e = r->g->dims.exprs[~d];
  if (e.op != DIM_SYMBOL) return range_made((dim_op)e.op, sizes_between(r, e.a), sizes_between(r, e.b));
  if (e.source == DIM_FROM_NUMBER) return sizes_range(r, e.ref);
  if (e.source == DIM_FROM_SCALAR) return sizes_range(r, r->g->inputs[e.ref]);
  if (e.source == DIM_FROM_NODE) return (struct number_range){0, INT64_MAX, e.hint};
  struct recording *base = r;
  for (d = sizes_outside(r, d), base = r->outer; base->arm; base = base->outer) d = sizes_outside(base, d);
  return range_outside(base, d);
}

/* The symbol for input k of an arm, a number. */
static qn_dim symbol_of_input(struct recording *r, uint32_t k) {
  int64_t about = sizes_range(r, r->g->inputs[k]).about, most = (int64_t)1 << 20;
  about = about < -most ? -most : about > most ? most : about;
  r->g->dims.strict = true;
  return dim_symbol(&r->g->dims, DIM_FROM_SCALAR, k, 0, about, NULL);
}

/* ---- sizes of arms ------------------------------------------------------------------------------------------------------------------
 *
 * An arm has a table of sizes of its own. A symbolic size of an array that it captures is a symbol there: that of the axis of its input
 * (DIM_FROM_INPUT), the same one for all axes whose sizes are one outside. Facts that hold in this call become facts of the recording
 * around it when the arm becomes a region (sizes_lift), and so guards in the end. */

/* The size in arm r of the first axis of an input that has size d in the recording around it, looking at inputs below `n`. */
static bool size_known(const struct recording *r, uint32_t n, qn_dim d, qn_dim *to) {
  for (uint32_t k = 0; k < n; k++) {
    const graph_type *outer = &r->outer->g->nodes[r->captures[k]].type, *own = &r->g->nodes[r->g->inputs[k]].type;
    for (int a = 0; a < outer->rank; a++)
      if (outer->shape[a] == d) return *to = own->shape[a], true;
  }
  return false;
}

/* The node of an array without elements whose axis 0 has as many as a symbol says that is a host int of the recording outside of all arms, made on
 * demand. Arms take the size from it as from any array that they capture. 0 with an error raised. */
static uint32_t array_of_int(struct recording *r, qn_dim symbol) {
  struct size_place *place = r->size_places;
  while (place->symbol != symbol) place++;
  if (place->array) return place->array;
  uint32_t nothing = graph_const_scalar(r->g, QN_u8, false, 0, 0, rec_site(r));
  uint32_t node =
      nothing ? graph_op(r->g, OP_broadcast, &nothing, 1, &(op_attr){.n = 2, .d = {symbol, 0}}, rec_site(r)) : 0;
  qn_value v = node ? rec_value_of(r, node) : raise_memory(r->vm);
  if (value_is_error(v)) return 0;
  value_release(r->vm, v);
  return r->size_places[place - r->size_places].array = node;
}

/* A size of `outer`, the recording around arm r, as one of r. False with an error raised. */
static bool size_into_arm(struct recording *r, struct recording *outer, qn_dim d, qn_dim *to) {
  *to = d;
  if (d >= 0 || size_known(r, r->g->ninputs, d, to)) return true;
  const dim_expr e = outer->g->dims.exprs[~d];
  qn_dim a, b;
  if (e.op != DIM_SYMBOL) {
    if (!size_into_arm(r, outer, e.a, &a) || !size_into_arm(r, outer, e.b, &b)) return false;
    *to = dim_make(&r->g->dims, (dim_op)e.op, a, b);
    return true;
  }
  if (e.source == DIM_FROM_NODE || (e.source == DIM_FROM_NUMBER && rec_derivatives(r)))
    return rec_give_up(r, BREAK_branch);
  bool of_int = e.source == DIM_FROM_SCALAR && !outer->arm && !outer->g->dims.strict;
  uint32_t around = of_int                        ? array_of_int(outer, d)
                    : e.source == DIM_FROM_NUMBER ? e.ref
                                                  : outer->g->inputs[e.ref],
           node = around ? captured_node(r, around) : 0;
  if (!node) return false;
  if (of_int) return *to = r->g->nodes[node].type.shape[0], true;
  *to = e.source == DIM_FROM_INPUT ? r->g->nodes[node].type.shape[e.axis]
                                   : symbol_of_input(r, r->g->nodes[node].payload.input);
  return true;
}

/* Does a size depend on what a node gives? */
static bool is_of_node(const dim_table *t, qn_dim d) {
  if (d >= 0) return false;
  const dim_expr *e = &t->exprs[~d];
  return e->op == DIM_SYMBOL ? e->source == DIM_FROM_NODE : is_of_node(t, e->a) || is_of_node(t, e->b);
}

/* May the sizes of an arm be symbolic? */
static bool arm_may_be_symbolic(struct recording *r) {
  const struct recording *base = rec_base(r);
  return base->capturing && (base->nsize_places || base->size_ints.n);
}

bool sizes_into_arm(struct recording *r, struct recording *outer, graph_type *t) {
  const graph_type was = *t;
  dim_table *around = &outer->g->dims;
  if (type_is_fixed(t)) return true;
  for (int k = 0; k < t->rank; k++)
    if (dim_is_number(around, was.shape[k]) && !size_into_arm(r, outer, was.shape[k], &t->shape[k])) return false;
  for (int k = 0; k < t->rank; k++) /* (how many rows a loop has kept, which is known when it has been run) */
    if (is_of_node(around, was.shape[k])) return rec_give_up(r, BREAK_branch);
  if (!arm_may_be_symbolic(r)) {
    graph_type pinned = was;
    rec_pin_type(outer, &pinned);
    for (int k = 0; k < t->rank; k++)
      if (!dim_is_number(around, was.shape[k])) t->shape[k] = pinned.shape[k];
    return true;
  }
  for (int k = 0; k < t->rank; k++) { /* what is behind has added all inputs that it needs */
    qn_dim d = was.shape[k];
    if (d >= 0 || dim_is_number(around, d)) continue;
    if (dim_is_late(around, d)) return rec_give_up(r, BREAK_branch);
    int same = 0;
    while (was.shape[same] != d) same++;
    if (same < k) {
      t->shape[k] = t->shape[same];
    } else if (!size_known(r, r->g->ninputs, d, &t->shape[k])) {
      t->shape[k] = dim_symbol(&r->g->dims, DIM_FROM_INPUT, r->g->ninputs, (uint16_t)k, dim_hint(around, d),
                               around->exprs[~d].name);
      r->arm_sizes = true;
    }
  }
  return true;
}

/* The size in the recording around arm r of a symbol that is a number captured there. False: it is none there, or a number of a turn. */
static bool number_outside_arm(const struct recording *r, const dim_expr *e, qn_dim *d) {
  if (e->source != DIM_FROM_SCALAR || e->ref < r->carries) return false;
  struct recording *outer = r->outer;
  uint32_t node = r->captures[e->ref];
  const graph_node *n = &outer->g->nodes[node];
  if (outer->arm) return n->kind == NODE_INPUT && (*d = symbol_of_input(outer, n->payload.input)) < 0;
  dim_table *t = &outer->g->dims;
  uint32_t before = t->n;
  *d = t->numbers_of_data ? dim_symbol(t, DIM_FROM_NUMBER, node, 0, e->hint, NULL) : 0;
  return *d < 0 && t->n == before;
}

bool sizes_leave(const struct recording *r, qn_dim d) {
  qn_dim outer;
  if (d >= 0) return true;
  const dim_expr *e = &r->g->dims.exprs[~d];
  if (e->op != DIM_SYMBOL) return sizes_leave(r, e->a) && sizes_leave(r, e->b);
  return e->source == DIM_FROM_INPUT || number_outside_arm(r, e, &outer);
}

qn_dim sizes_outside(const struct recording *r, qn_dim d) {
  if (d >= 0) return d;
  const dim_expr e = r->g->dims.exprs[~d];
  if (e.op == DIM_SYMBOL && e.source == DIM_FROM_SCALAR) return number_outside_arm(r, &e, &d) ? d : e.hint;
  if (e.op == DIM_SYMBOL) return r->outer->g->nodes[r->captures[e.ref]].type.shape[e.axis];
  return dim_make(&r->outer->g->dims, (dim_op)e.op, sizes_outside(r, e.a), sizes_outside(r, e.b));
}

qn_dim sizes_beside(const struct recording *r, struct recording *other, qn_dim d) {
  if (d >= 0) return d;
  const dim_expr e = r->g->dims.exprs[~d];
  if (e.op == DIM_SYMBOL && e.source == DIM_FROM_SCALAR) return symbol_of_input(other, e.ref);
  if (e.op == DIM_SYMBOL) return other->g->nodes[other->g->inputs[e.ref]].type.shape[e.axis];
  return dim_make(&other->g->dims, (dim_op)e.op, sizes_beside(r, other, e.a), sizes_beside(r, other, e.b));
}

bool sizes_type_outside(const struct recording *r, graph_type *t) {
  for (int k = 0; k < t->rank; k++) {
    if (t->shape[k] >= 0) continue;
    if (!sizes_leave(r, t->shape[k])) return false;
    t->shape[k] = sizes_outside(r, t->shape[k]);
  }
  return true;
}

bool sizes_late(const struct recording *r, uint32_t node) {
  const graph_type *t = &r->g->nodes[node].type;
  for (int k = 0; k < t->rank; k++)
    if (dim_is_late(&r->g->dims, t->shape[k])) return true;
  return false;
}

bool sizes_agree(struct recording *r, const graph_type *a, const graph_type *b) {
  dim_table *t = &r->g->dims;
  if (a->dtype != b->dtype || a->rank != b->rank || a->weak != b->weak) return false;
  for (int k = 0; k < a->rank; k++)
    if (dim_hint(t, a->shape[k]) != dim_hint(t, b->shape[k])) return false;
  for (int k = 0; k < a->rank; k++)
    if (!dim_equal(t, a->shape[k], b->shape[k])) return false;
  return true;
}

void sizes_lift(struct recording *r) {
  if (!r->arm_sizes) return;
  dim_table *own = &r->g->dims, *to = &r->outer->g->dims;
  demand_least(r);
  for (uint32_t i = 0; i < own->nfacts; i++) {
    const dim_fact f = own->facts[i];
    int64_t c;
    if (dim_is_late(own, f.a) || dim_is_late(own, f.b)) continue; /* sizes_hold has looked at them */
    qn_dim a = sizes_outside(r, f.a), b = sizes_outside(r, f.b);
    if (!dim_is_const(to, dim_make(to, DIM_SUB, a, b), &c)) dim_assume(to, a, (dim_relation)f.relation, b);
  }
}

/* sizes_asked, of an operand `depth` operations down. */
static void ask_as_size(struct recording *r, uint32_t node, int depth) {
  const graph_node *n = &r->g->nodes[node];
  node_list *asked = &r->pattern.asked;
  if (r->arm || !r->capturing || !n->type.weak || depth > 8) return;
  if (n->kind == NODE_OP)
    for (int k = 0; k < n->nin; k++) ask_as_size(r, n->in[k], depth + 1);
  if (n->kind != NODE_INPUT || n->type.dtype != WEAK_INT) return;
  for (uint32_t i = 0; i < asked->n; i++)
    if (asked->nodes[i] == n->payload.input) return;
  if (!nodes_add(r->vm, asked, n->payload.input)) error_clear(r->vm); /* then it stays guarded */
}

void sizes_asked(struct recording *r, uint32_t node) { ask_as_size(r, node, 0); }

qn_value sizes_guard(qn_vm *vm, qn_value v) {
  struct recording *of;
  uint32_t node = value_node(v) && vm->rec ? node_around(vm, v, &of) : 0;
  if (node) sizes_asked(of, node);
  return rec_observe(vm, v);
}

/* Makes a symbol of a number of the recording outside of all arms that is computed of host numbers by operations which sizes have not, in calls whose
 * sizes have differed before: an input, which gets the value that guards compute. False: it is no such number, or memory is short (no error is raised). */
static bool make_size(struct recording *r, uint32_t node, qn_value v) {
  const graph_type t = {.dtype = WEAK_INT, .weak = true};
  const graph_node *n = &r->g->nodes[node];
  qn_vm *vm = r->vm;
  if (r->arm || !r->wish || !r->capturing || r->symbolic || r->g->dims.strict || n->kind != NODE_OP) return false;
  if (!n->type.weak || n->type.dtype != WEAK_INT || v.u.i < SIZE_LEAST || v.u.i > INT_SIZE_MOST) return false;
  if (key_number(&r->observed_nodes, node) || rec_is_data(r, v)) return false;
  bool room =
      mem_grow(vm, (void **)&r->made, &r->made_cap, r->nmade + (size_t)1, sizeof *r->made) &&
      mem_grow(vm, (void **)&r->size_places, &r->size_places_cap, r->nsize_places + (size_t)1, sizeof *r->size_places);
  uint32_t made = room ? graph_input(r->g, t, rec_site(r)) : 0, input = r->g->ninputs - 1;
  bool ok = made && rec_keep(r, made, value_int(v.u.i));
  qn_dim d = ok ? dim_symbol(&r->g->dims, DIM_FROM_SCALAR, input, 0, v.u.i, fresh_name(r)) : 0;
  if (made) r->pattern.ninputs = r->g->ninputs;
  if (d >= 0) {
    error_clear(vm);
    return false;
  }
  r->size_places[r->nsize_places++] = (struct size_place){input, PLACE_INT, d, 0};
  r->made[r->nmade++] = (struct size_made){input, node};
  return true;
}

/* As make_size, of the number that input k of a loop's body is. (Arms of branches cannot give arrays of such sizes.) */
static bool make_size_around(struct recording *r, uint32_t k) {
  while (r->arm && r->carries && k >= r->carries) {
    uint32_t node = r->captures[k];
    r = r->outer;
    qn_value v = r->arm ? value_unset() : rec_value_of(r, node);
    if (!r->arm) return value_is(v, TAG_INT) && make_size(r, node, v);
    if (r->g->nodes[node].kind != NODE_INPUT) return false;
    k = r->g->nodes[node].payload.input;
  }
  return false;
}

/* The number that input k of an arm is, if it comes from outside of all arms and is no data: it is guarded. Else unset, or an error is
 * raised. */
static qn_value number_around(struct recording *r, uint32_t k) {
  while (r->arm && k >= r->carries) {
    uint32_t node = r->captures[k];
    r = r->outer;
    if (!r->arm) {
      struct recording *active = r->vm->rec;
      qn_value v = rec_value_of(r, node);
      if (value_is_error(v) || !r->capturing || rec_is_data(r, v)) return value_unset();
      r->vm->rec = r;
      v = sizes_guard(r->vm, v);
      r->vm->rec = active;
      return value_is_error(v) ? value_unset() : v;
    }
    if (r->g->nodes[node].kind != NODE_INPUT) return value_unset();
    k = r->g->nodes[node].payload.input;
  }
  return value_unset();
}

static bool made_of_sizes(struct recording *r, uint32_t node, qn_dim *d, int depth);

/* As made_of_sizes, of input k of an arm. False with or without an error raised. */
static bool input_made_of_sizes(struct recording *r, uint32_t k, qn_dim *d, int depth) {
  qn_dim outer;
  return k >= r->carries && arm_may_be_symbolic(r) && made_of_sizes(r->outer, r->captures[k], &outer, depth) &&
         size_into_arm(r, r->outer, outer, d);
}

/* Makes a size of a number that data in an arm decide. False: it cannot be one. */
static bool size_of_data(struct recording *r, uint32_t node, qn_dim *d) {
  if (!data_sizes_in_arm(r) || !rec_number_of_data(r, node)) return false;
  r->g->dims.strict = true;
  return (*d = data_size_symbol(r, node, any_number.about)) < 0;
}

bool sizes_number_in_arm(struct recording *r, uint32_t node, qn_dim *d) {
  const graph_node *n = &r->g->nodes[node];
  return n->kind == NODE_INPUT ? (*d = symbol_of_input(r, n->payload.input)) < 0 : size_of_data(r, node, d);
}

/* Makes a size of a number of an arm: its inputs, and what is computed from them, `depth` operations down. False: it is made of something
 * else, or an error is raised. */
static bool size_of_turn(struct recording *r, uint32_t node, qn_dim *d, int depth) {
  const graph_node *n = &r->g->nodes[node];
  qn_value v;
  qn_dim a, b;
  dim_op op;
  if (!n->type.weak || n->type.dtype != WEAK_INT || depth > 8) return false;
  if (graph_const_value(r->g, node, &v)) return *d = dim_const(&r->g->dims, v.u.i), true;
  if (n->kind == NODE_INPUT) {
    uint32_t k = n->payload.input;
    if (input_made_of_sizes(r, k, d, depth) || (make_size_around(r, k) && input_made_of_sizes(r, k, d, depth)))
      return true;
    if (error_pending(r->vm)) return false;
    n = &r->g->nodes[node]; /* inputs may have been added */
    if (value_is(v = number_around(r, n->payload.input), TAG_INT)) return *d = dim_const(&r->g->dims, v.u.i), true;
    return !error_pending(r->vm) && (*d = symbol_of_input(r, r->g->nodes[node].payload.input), true);
  }
  if (n->kind == NODE_OP && n->op == OP_neg)
    return size_of_turn(r, n->in[0], &a, depth + 1) && (*d = dim_make(&r->g->dims, DIM_SUB, 0, a), true);
  if (n->kind != NODE_OP || n->nin != 2 || !sizes_op_of((op_id)n->op, &op)) return size_of_data(r, node, d);
  uint32_t in[2] = {n->in[0], n->in[1]};
  if (!size_of_turn(r, in[0], &a, depth + 1) || !size_of_turn(r, in[1], &b, depth + 1)) return false;
  *d = dim_make(&r->g->dims, op, a, b);
  return true;
}

/* Does a fact of arm r hold wherever the numbers lie, if necessary guarded ones? With `ask` those that data decide are checked where that is not
 * known. */
static bool fact_holds(struct recording *r, const dim_fact *f, bool ask) {
  dim_table *t = &r->g->dims;
  if (f->relation == DIM_EQ) return false; /* a size that got too long */
  if (f->relation == DIM_NE) return true;  /* nothing relies on it */
  qn_dim more = dim_make(t, DIM_SUB, f->b, f->a);
  if (f->relation == DIM_LT) more = dim_make(t, DIM_SUB, more, 1);
  return sizes_certain(r, more) || (ask && data_sizes_ask(r, f)) || sizes_certain_guarded(r, more);
}

bool sizes_pin_all(struct recording *r) {
  r = rec_base(r);
  uint32_t before = r->g->dims.nfacts;
  for (uint32_t i = 0; i < r->nsize_places; i++) dim_pin(&r->g->dims, r->size_places[i].symbol);
  return r->g->dims.nfacts > before;
}

void sizes_of_graph(struct recording *r, qn_value v) {
  if (value_is_graph(v) && ((const graph_code *)value_fn(v)->code)->sized) sizes_pin_all(r);
}

void rec_graph_seen(qn_vm *vm, qn_value graph) {
  if (vm->rec) sizes_of_graph(vm->rec, graph);
}

bool sizes_hold(struct recording *r, bool ask) {
  dim_table *t = &r->g->dims;
  if (!r->arm) return data_sizes_hold(r);
  while (r->sized < t->nfacts) {
    const dim_fact f = t->facts[r->sized++]; /* (a check of it is made of numbers, which have no sizes) */
    const bool number = dim_is_number(t, f.a) || dim_is_number(t, f.b);
    if (number && !fact_holds(r, &f, ask)) return !error_pending(r->vm) && rec_give_up(r, BREAK_branch);
    r->settled = r->sized;
  }
  return true;
}

bool rec_size_ordered(qn_vm *vm, int64_t a, int64_t b) {
  dim_table *t = rec_dims(vm);
  if (!t) return a <= b;
  int64_t c;
  qn_dim more = dim_make(t, DIM_SUB, b, a);
  if (dim_is_const(t, more, &c)) return c >= 0;
  if (vm->rec->arm && dim_is_number(t, more)) {
    const bool holds = sizes_certain(vm->rec, more) || data_sizes_ask(vm->rec, &(dim_fact){a, b, DIM_LE}) ||
                       sizes_certain_guarded(vm->rec, more);
    if (holds) dim_hint_agree(t, more);
    return holds;
  }
  if (dim_hint(t, more) < 0) return false;
  dim_assume(t, a, DIM_LE, b);
  return true;
}

bool rec_size_certain(qn_vm *vm, int64_t a, int64_t b) {
  dim_table *t = rec_dims(vm);
  qn_dim more = dim_make(t, DIM_SUB, b, a);
  if (!vm->rec->arm || !dim_is_number(t, more)) return rec_size_ordered(vm, a, b);
  if (!sizes_certain(vm->rec, more)) return false;
  dim_hint_agree(t, more);
  return true;
}

bool sizes_in_arm(qn_vm *vm, qn_value v, qn_dim *d) {
  struct recording *r = vm->rec;
  if (!r || !r->arm || !turns_may_size(r) || vmap_reads_value(r, v)) return false;
  uint32_t node = rec_traced(r, v);
  if (!node) {
    const struct recording *x = r->outer;
    while (x->arm && !rec_traced(x, v)) x = x->outer;
    if (!x->arm && !(data_sizes_in_arm(r) && rec_is_data(x, v))) return false; /* it is guarded */
    node = rec_node(r, v);
  }
  return node && size_of_turn(r, node, d, 0);
}

/* sizes_of_number, for operands that are `depth` operations down. False with or without an error raised. */
static bool made_of_sizes(struct recording *r, uint32_t node, qn_dim *d, int depth) {
  const graph_node *n = &r->g->nodes[node];
  dim_table *t = &r->g->dims;
  for (uint32_t i = 0; i < r->nmade; i++)
    if (r->made[i].node == node || (n->kind == NODE_INPUT && r->made[i].input == n->payload.input))
      return *d = symbol_of_place(r, r->made[i].input), *d < 0;
  if (!n->type.weak || n->type.dtype != WEAK_INT || depth > 8) return false;
  if (n->kind == NODE_CONST) {
    *d = dim_const(t, dtype_load(WEAK_INT, n->payload.data).u.i);
    return true;
  }
  if (n->kind == NODE_INPUT && r->arm) return input_made_of_sizes(r, n->payload.input, d, depth + 1);
  if (n->kind == NODE_INPUT) {
    for (uint32_t i = 0; i < r->nsize_inputs; i++) {
      if (r->size_inputs[i].input != n->payload.input) continue;
      *d = r->size_inputs[i].size;
      return true;
    }
    return symbol_of_int(r, n->payload.input, d);
  }
  qn_dim in[2];
  dim_op op;
  if (n->kind == NODE_OP && n->op == OP_neg) {
    if (!made_of_sizes(r, n->in[0], &in[0], depth + 1)) return false;
    *d = dim_make(t, DIM_SUB, 0, in[0]);
    return true;
  }
  if (n->kind != NODE_OP || n->nin != 2 || !sizes_op_of((op_id)n->op, &op)) return false;
  const uint32_t operands[2] = {n->in[0], n->in[1]}; /* nodes may be added */
  for (int k = 0; k < 2; k++)
    if (!made_of_sizes(r, operands[k], &in[k], depth + 1)) return false;
  *d = dim_make(t, op, in[0], in[1]);
  return true;
}

bool sizes_of_number(struct recording *r, uint32_t node, qn_dim *d) {
  return has_size_numbers(r) && made_of_sizes(r, node, d, 0);
}

/* A size of `from`, r or a recording around it, as one of r. False with an error raised. */
static bool size_inwards(struct recording *r, const struct recording *from, qn_dim d, qn_dim *to) {
  *to = d;
  return r == from || (size_inwards(r->outer, from, d, &d) && size_into_arm(r, r->outer, d, to));
}

/* Is a recording that of a loop's body, within loops alone, or outside of all arms? */
static bool in_loops(const struct recording *r) {
  while (r->arm && r->carries) r = r->outer;
  return !r->arm;
}

/* Makes a size of v if it is computed from sizes of the call's arrays alone, and is no constant. False: it is not, or an error is raised. */
static bool size_of_sizes(qn_vm *vm, qn_value v, qn_dim *d) {
  struct recording *r = vm->rec, *of;
  int64_t c;
  if (!r || !(has_size_numbers(rec_base(r)) || rec_base(r)->wish) || (r->arm && !arm_may_be_symbolic(r))) return false;
  uint32_t node = node_around(vm, v, &of);
  if (!node) return false;
  if (!(made_of_sizes(of, node, d, 0) || (in_loops(r) && make_size(of, node, v) && made_of_sizes(of, node, d, 0))) ||
      dim_is_const(&of->g->dims, *d, &c))
    return false;
  if (!of->arm && dim_hint(&of->g->dims, *d) != v.u.i) return false;
  return size_inwards(r, of, *d, d) && !dim_is_const(&r->g->dims, *d, &c);
}

bool rec_size_of(qn_vm *vm, qn_value v, int64_t *size) {
  struct recording *r = vm->rec;
  if (sizes_in_arm(vm, v, size)) {
    bool known = *size >= 0 || rec_size_ordered(vm, 0, *size);
    if (known && data_sizes_are_in(r, *size)) known = rec_size_ordered(vm, *size, INT_SIZE_MOST);
    return known || (!error_pending(vm) && rec_give_up(r, BREAK_branch));
  }
  if (error_pending(vm)) return false;
  if (size_of_sizes(vm, v, size) && dim_hint(&r->g->dims, *size) >= 0) {
    if (least(&r->g->dims, *size) < 0) dim_assume(&r->g->dims, 0, DIM_LE, *size);
    return true;
  }
  if (error_pending(vm)) return false;
  if (data_size_of(vm, v, size))
    return (rec_size_ordered(vm, 0, *size) && rec_size_ordered(vm, *size, INT_SIZE_MOST)) || data_sizes_end(r);
  if (error_pending(vm)) return false;
  v = sizes_guard(vm, v);
  if (value_is_error(v)) return false;
  *size = v.u.i;
  return true;
}

bool rec_whole_size(qn_vm *vm, qn_value *v, int64_t *size) {
  if (vm->rec && !vm->rec->arm && v->u.f >= SIZE_LEAST && v->u.f <= INT_SIZE_MOST) {
    qn_value whole = op_number(vm, *v, WEAK_INT);
    return !value_is_error(whole) && rec_size(vm, whole, size);
  }
  *v = rec_observe(vm, *v);
  if (value_is_error(*v)) return false;
  *size = v->u.f >= 1 && v->u.f < (double)INT64_MAX ? (int64_t)v->u.f : 0;
  return true;
}

bool rec_bound(qn_vm *vm, qn_value v, bool *symbolic, int64_t *bound) {
  int64_t c;
  *symbolic = sizes_in_arm(vm, v, bound) && !dim_is_const(&vm->rec->g->dims, *bound, &c);
  if (!*symbolic && !error_pending(vm)) *symbolic = size_of_sizes(vm, v, bound);
  if (!*symbolic && !error_pending(vm)) *symbolic = data_size_of(vm, v, bound);
  if (*symbolic || error_pending(vm)) return *symbolic;
  v = sizes_guard(vm, v);
  *bound = v.u.i;
  return !value_is_error(v);
}

bool rec_is_number(const qn_vm *vm, int64_t d) { return d < 0 && vm->rec && dim_is_number(&vm->rec->g->dims, d); }

bool rec_unknown_size(qn_vm *vm) { return vm->rec->arm ? rec_give_up(vm->rec, BREAK_branch) : data_sizes_end(vm->rec); }

int rec_sizes_equal(qn_vm *vm, int64_t a, int64_t b) {
  dim_table *t = rec_dims(vm);
  return a == b || (t && dim_equal(t, a, b));
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
  if (d < 0 && vm->rec) rec_pin(vm->rec, d); /* (a bound may be the number below 0 that it is written as) */
  return hint;
}

/* What a host int is in this call. In an arm its value says nothing, but the size that it is does. False with an error raised. */
static bool int_now(qn_vm *vm, qn_value v, int64_t *now) {
  *now = v.u.i;
  if (!vm->rec->arm || !value_node(v)) return true;
  int64_t size;
  if (!rec_size(vm, v, &size)) return false;
  *now = size == v.u.i ? size : rec_size_hint(vm, size);
  return true;
}

int rec_lists_equal(qn_vm *vm, qn_value a, qn_value b) {
  if (!value_is(a, TAG_LIST) || !value_is(b, TAG_LIST) || !rec_dims(vm)) return -2;
  const qn_list *x = value_list(a), *y = value_list(b);
  uint32_t n = x->len < y->len ? x->len : y->len;
  for (uint32_t i = 0; i < n; i++)
    if (!value_is(x->items[i], TAG_INT) || !value_is(y->items[i], TAG_INT)) return -2;
  bool equal = x->len == y->len;
  uint32_t from = 0, to = equal ? n : 0; /* the first pair that differs decides, or all do */
  for (uint32_t i = 0; i < to && equal; i++) {
    int64_t p, q;
    if (!int_now(vm, x->items[i], &p) || !int_now(vm, y->items[i], &q)) return -1;
    if (p != q) equal = false, from = i, to = i + 1;
  }
  for (uint32_t i = from; i < to; i++) {
    int64_t p, q, apart = 0;
    if (!rec_size(vm, x->items[i], &p) || !rec_size(vm, y->items[i], &q)) return -1;
    if ((p < 0 && p == x->items[i].u.i) || (q < 0 && q == y->items[i].u.i)) continue; /* numbers below 0 */
    dim_table *t = rec_dims(vm);
    if (p == q || !t) continue;
    if (dim_is_number(t, p) || dim_is_number(t, q)) {
      bool never = dim_is_const(t, dim_make(t, DIM_SUB, p, q), &apart) && apart != 0;
      if (equal || !never) return rec_unknown_size(vm) ? equal : -1;
    } else {
      (void)dim_equal(t, p, q); /* notes what was found */
    }
  }
  return equal;
}
