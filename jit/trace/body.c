/* Graphs as values of the language: functions whose code is a graph (FN_GRAPH).
 *
 * A body is such a code: a graph with its own memory, a pattern that arguments must fit, and a template that says how the result is made of
 * the outputs. The graph's first inputs are bound to values, which are the captures of the function. A body never changes. Since it is a
 * function with captures, a graph value can go wherever functions go: it can be an input of a recording (its code is guarded by the body's
 * hash, its captures are inputs), a part of a result, and the inner function of a transform.
 *
 * A call appends the body's nodes to the recording in progress, or to one of its own. So it is differentiated, captured and run like the
 * code that the graph was made from, with the same bits. Bodies that are called often are compiled at their own anchor.
 *
 * A pullback (the function that vjp returns) is a body that was cut out of a recording: the nodes of the backward pass, bound to the values
 * of the forward pass that they read.
 */
#include <stdlib.h>
#include <string.h>

#include "jit/run/eager.h"
#include "jit/trace/anchors.h"
#include "jit/trace/body.h"
#include "jit/trace/calls.h"
#include "jit/trace/draws.h"
#include "jit/trace/gradients.h"
#include "jit/trace/node_copy.h"
#include "jit/trace/pattern.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/sizes.h"
#include "jit/trace/specialization.h"
#include "jit/trace/vmap.h"

/* ---- bodies -------------------------------------------------------------------------------------------------------------------- */

graph_body *body_new(qn_vm *vm) {
  graph_body *b = mem_zalloc(vm, sizeof *b);
  if (!b) return NULL;
  b->code.shared.refs = 1;
  b->like = value_unset();
  b->params = value_nil();
  return b;
}

static void body_free(qn_vm *vm, void *code) {
  graph_body *b = code;
  anchor_close(vm, &b->code.anchor);
  chains_leave(vm, &b->code);
  specialization_clear(vm, &b->call);
  if (b->symbolic) graph_free(b->symbolic);
  if (b->bound) mem_free(vm, b->bound, (b->nbound + 1) * sizeof *b->bound);
  value_release(vm, b->like);
  value_release(vm, b->params);
  mem_free(vm, b, sizeof *b);
}

void body_release(qn_vm *vm, graph_body *b) {
  if (--b->code.shared.refs == 0) body_free(vm, b);
}

void body_open(qn_vm *vm) { vm->hooks.free_graph = body_free; }

void body_name_params(graph_body *b, qn_value params) {
  b->params = value_retain(params);
  const qn_list *names = value_list(params);
  for (uint32_t i = 0; i < b->call.pattern.nroots; i++) {
    root *x = &b->call.pattern.roots[i];
    if (x->kind == ROOT_ARG && x->arg < names->len) x->name = value_str(names->items[x->arg]);
  }
}

qn_value body_value(qn_vm *vm, graph_body *b, const qn_value *values) {
  body_finish(b);
  uint32_t n = b->nbound + b->ndefaults;
  qn_fn *f = fn_new(vm, FN_GRAPH, b, n);
  if (!f) return value_error();
  for (uint32_t i = 0; i < n; i++) f->captures[i] = value_retain(values[i]);
  return value_obj(TAG_FN, f);
}

void jit_graph_parameters(const qn_fn *graph, void (*each)(void *ctx, const char *name, int position), void *ctx) {
  const graph_body *b = graph->code;
  if (!value_is(b->params, TAG_LIST)) return;
  const qn_list *names = value_list(b->params);
  for (uint32_t i = 0; i < names->len; i++) each(ctx, value_str(names->items[i])->text, (int)i);
}

void body_finish(graph_body *b) {
  const specialization *e = &b->call;
  uint64_t h = hash_mix(hash_mix(graph_hash(e->graph), b->nbound), b->rest | b->of_lanes << 1);
  for (uint32_t i = 0; i < b->nbound && b->bound; i++) h = hash_mix(h, b->bound[i]);
  h = pattern_own_hash(&e->pattern, h);
  h = template_hash(&e->result, h);
  h = value_structure_hash(b->like, h);
  h = hash_mix(value_structure_hash(b->params, h), b->ndefaults);
  for (uint32_t i = 0; i < e->nguards; i++) {
    const scalar_guard *x = &e->guards[i];
    h = hash_mix(hash_mix(h, (uint64_t)x->op << 8 | x->compare), x->value.head ^ (uint64_t)x->value.u.i);
    for (int k = 0; k < 3; k++) h = hash_mix(h, x->in[k]);
  }
  for (int i = 0; i < RANDOM_INPUTS; i++) h = hash_mix(hash_mix(h, e->random[i]), e->drawn[i]);
  h = hash_mix(h, e->ndraws);
  for (uint32_t i = 0; i < b->call.regions.n; i++) {
    const graph_region *x = &b->call.regions.list[i];
    h = hash_mix(hash_mix(h, x->first), x->end);
    h = hash_mix(h, x->rule ? ((const region_rule *)x->rule)->number : 0);
    for (uint32_t k = 0; k < x->nargs + x->nouts; k++) h = hash_mix(h, x->args[k]);
  }
  b->code.shared.id = h;
}

/* ---- cutting ------------------------------------------------------------------------------------------------------------------------ */

enum { SMALL_CONST = 64 };

/* Is it a constant that is copied into the body? Larger ones become bound inputs, so that bodies stay small. */
static bool is_small_const(const graph_node *n) {
  if (n->kind != NODE_CONST) return false;
  size_t bytes = dtype_size((qn_dtype)n->type.dtype);
  for (int i = 0; i < n->type.rank; i++) bytes *= (size_t)n->type.shape[i];
  return bytes <= SMALL_CONST;
}

/* Does a node from `mark` on become a node of the body? A result of a branch or loop that stands before `mark` does not: its value is
 * bound. */
static bool is_copied(const graph_node *n, uint32_t mark) {
  return graph_is_run(n) && (n->kind != NODE_PROJ || n->in[0] >= mark);
}

/* The size of a node that is needed is told by this node. */
static void mark_size(void *needed, uint32_t node) { ((uint8_t *)needed)[node] = 1; }

/* Marks the nodes that `outs` depend on: all of them from `mark` on, and those before it that these read. If a result of a region is
 * needed, all of its arguments and results are. */
static void mark_needed(struct recording *r, uint32_t mark, const uint32_t *outs, uint32_t nouts, uint8_t *needed) {
  const graph *g = r->g;
  uint32_t region = r->regions.n;
  for (uint32_t i = 0; i < nouts; i++) needed[outs[i]] = 1;
  for (uint32_t i = g->n - 1; i >= mark; i--) {
    while (region && r->regions.list[region - 1].end > i + 1) region--;
    for (uint32_t at = region; at && r->regions.list[at - 1].end == i + 1; at--) {
      const graph_region *x = &r->regions.list[at - 1];
      if (x->first < mark) continue;
      bool any = false;
      for (uint32_t k = 0; k < x->nouts; k++) any |= needed[x->outs[k]] != 0;
      for (uint32_t k = 0; k < x->nargs + x->nouts && any; k++) needed[x->args[k]] = 1;
    }
    const graph_node *n = &g->nodes[i];
    if (!needed[i] || !is_copied(n, mark)) continue;
    for (int k = 0; k < n->nin; k++) needed[n->in[k]] = 1;
    graph_each_size_node(g, i, mark_size, needed);
  }
}

/* The sizes that the nodes of a body have, and what tells them. */
typedef struct size_sources {
  const struct recording *r;
  uint8_t *needed;
  bool *known; /* by expression of the recording's table: it is a size of an input of the body */
} size_sources;

/* Marks the inputs of the recording that symbols of a size stand for as needed, if no input of the body tells it. */
static void mark_sources(size_sources *s, qn_dim d) {
  if (d >= 0 || s->known[~d]) return;
  const dim_expr *e = &s->r->g->dims.exprs[~d];
  s->known[~d] = true;
  if (e->op != DIM_SYMBOL) {
    mark_sources(s, e->a);
    mark_sources(s, e->b);
  } else if (!dim_of_node(e->source)) {
    s->needed[s->r->g->inputs[e->ref]] = 1;
  }
}

static void know_type(size_sources *s, const graph_type *t) {
  for (int k = 0; k < t->rank; k++)
    if (t->shape[k] < 0) s->known[~t->shape[k]] = true;
}

/* Marks what is needed to know the sizes of needed nodes from `mark` on, if they are symbols. */
static bool mark_sizes(struct recording *r, uint32_t mark, const uint32_t *params, uint32_t nparams, uint8_t *needed) {
  const graph *g = r->g;
  size_sources s = {.r = r, .needed = needed, .known = mem_zalloc(r->vm, g->dims.n + (size_t)1)};
  if (!s.known) return false;
  for (uint32_t i = 1; i < g->n; i++)
    if (needed[i] && !(i >= mark && is_copied(&g->nodes[i], mark))) know_type(&s, &g->nodes[i].type);
  for (uint32_t k = 0; k < nparams; k++) know_type(&s, &g->nodes[params[k]].type);
  for (uint32_t i = mark; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    if (!needed[i] || !is_copied(n, mark)) continue;
    for (int k = 0; k < n->type.rank; k++) mark_sources(&s, n->type.shape[k]);
    const op_attr attr = graph_attr(n);
    for (int k = 0; n->kind == NODE_OP && k < attr.n; k++)
      if (op_attr_is_dim((op_id)n->op, k)) mark_sources(&s, attr.d[k]);
  }
  mem_free(r->vm, s.known, g->dims.n + (size_t)1);
  return true;
}

/* What a body is cut out of, and how. */
typedef struct cut {
  struct recording *r;
  uint32_t mark;
  const uint32_t *params, *outs;
  uint32_t nparams, nouts;
  const uint8_t *needed;
  const node_list *bound;
  bool plain; /* its sizes are those of this call */
} cut;

/* Fills in a graph; `regions` (NULL: none are needed) become those of its nodes. False with an error raised. */
static bool cut_graph(const cut *x, graph *to, region_list *regions) {
  qn_vm *vm = x->r->vm;
  const graph *g = x->r->g;
  node_copy c = {.vm = vm};
  bool ok = copy_begin(&c, vm, to, g, 0);
  c.dims.plain = x->plain;
  for (uint32_t i = 0; i < x->bound->n && ok; i++) ok = copy_input(&c, x->bound->nodes[i]);
  for (uint32_t k = 0; k < x->nparams && ok; k++) ok = copy_input(&c, x->params[k]);
  for (uint32_t i = 1; i < g->n && ok; i++)
    if (x->needed[i] && !c.map[i]) ok = (c.map[i] = copy_node(&c, i)) != 0;
  for (uint32_t i = 0; i < x->nouts && ok; i++) ok = graph_output(to, c.map[x->outs[i]]);
  if (regions) ok = ok && regions_copy(vm, g, &x->r->regions, x->mark, regions, c.map, NULL);
  ok = (ok && copy_done(&c) && !to->failed && !to->arena.failed) || fail_memory(vm);
  if (c.from) copy_end(&c);
  return ok;
}

bool body_cut(struct recording *r, graph_body *b, uint32_t mark, const uint32_t *params, uint32_t nparams,
              const uint32_t *outs, uint32_t nouts, node_list *bound) {
  qn_vm *vm = r->vm;
  const graph *g = r->g;
  uint8_t *needed = mem_zalloc(vm, g->n);
  bool ok = needed && (b->call.graph = graph_new(vm)) != NULL, symbolic = r->nsize_places != 0;
  if (ok && symbolic) ok = (b->symbolic = graph_new(vm)) != NULL;
  if (ok) mark_needed(r, mark, outs, nouts, needed);
  for (uint32_t k = 0; k < nparams && ok; k++) needed[params[k]] = 0;
  if (ok && (symbolic || r->arm_sizes)) ok = mark_sizes(r, mark, params, nparams, needed);
  for (uint32_t k = 0; k < nparams && ok; k++) needed[params[k]] = 0;
  for (uint32_t i = 1; i < g->n && ok; i++) {
    const graph_node *n = &g->nodes[i];
    if (!needed[i] || is_small_const(n) || (i >= mark && is_copied(n, mark))) continue;
    ok = nodes_add(vm, bound, i);
  }
  b->nbound = bound->n;
  cut x = {r, mark, params, outs, nparams, nouts, needed, bound, symbolic};
  ok = ok && cut_graph(&x, b->call.graph, &b->call.regions);
  x.plain = false;
  if (ok && symbolic) ok = cut_graph(&x, b->symbolic, NULL);
  b->code.sized = symbolic;
  if (ok && symbolic && b->symbolic->n != b->call.graph->n)
    ok = raise_false(vm, E_internal, "a graph has other nodes where its sizes are symbols");
  if (needed) mem_free(vm, needed, g->n);
  return ok;
}

/* Is this node, an input's place, of the type that the input has, given that the inputs before it are? Relations between sizes become guards. */
static bool fits_input(struct recording *r, size_map *m, const graph_type *want, uint32_t node) {
  graph_type t = *want, have = r->g->nodes[node].type;
  for (int k = 0; k < t.rank && k < have.rank; k++) {
    if (t.shape[k] >= 0) continue;
    qn_dim d = size_map_size(m, t.shape[k]);
    if (d != have.shape[k] && !rec_sizes_equal(r->vm, d, have.shape[k])) return rec_give_up(r, BREAK_branch);
  }
  return true;
}

/* ---- calls ---------------------------------------------------------------------------------------------------------------------------- */

/* Called before the nodes of a region are copied; its arguments have been. Gives them what vmap needs: counterparts, and, if the region has
 * a rule, lanes for all its float arguments as soon as one argument has lanes. */
static bool region_opens(struct recording *r, const graph_region *x, const uint32_t *map) {
  qn_vm *vm = r->vm;
  if (!r->lanes || !x->rule) return vmap_advance(r);
  if (!rec_room(r)) return false;
  qn_list *args = list_new(vm, x->nargs);
  if (!args) return false;
  node_list floats = {0};
  bool ok = true;
  for (uint32_t k = 0; k < x->nargs; k++) args->items[k] = value_nil();
  for (uint32_t k = 0; k < x->nargs && ok; k++) {
    qn_value v = rec_value_of(r, map[x->args[k]]);
    ok = !value_is_error(v);
    if (!ok) break;
    args->items[k] = v;
    if (dtype_is_float((qn_dtype)r->g->nodes[map[x->args[k]]].type.dtype)) ok = nodes_add(vm, &floats, map[x->args[k]]);
  }
  ok = ok && vmap_spread(r, floats.nodes, floats.n, value_obj(TAG_LIST, args)) && vmap_advance(r);
  nodes_free(vm, &floats);
  value_release(vm, value_obj(TAG_LIST, args));
  return ok;
}

/* The regions of a list, to be sorted by where they begin. */
typedef struct region_open {
  uint32_t first, region;
} region_open;

static int by_first(const void *a, const void *b) {
  const region_open *x = a, *y = b;
  if (x->first != y->first) return x->first < y->first ? -1 : 1;
  return (x->region > y->region) - (x->region < y->region);
}

/* Does a call of it draw numbers? Then what it draws once more (ATTR_ANEW) may be these, which lanes have of their own. */
static bool draws_itself(const graph_body *b) {
  bool draws = false;
  for (int i = 0; i < RANDOM_INPUTS; i++) draws |= b->call.random[i] != 0;
  return draws;
}

/* Numbers that nodes from `from` on draw once more become those of the words that say which draw it was, as by a key: the same in all lanes. False:
 * memory is short. */
static bool share_draws(graph *g, uint32_t from) {
  for (uint32_t i = from; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    const bool draws = n->kind == NODE_OP && op_rows[n->op].klass == CLASS_RANDOM;
    op_attr attr = draws ? graph_attr(n) : (op_attr){0};
    attr.mode = DRAW_KEYED;
    if (draws && (attr.flags & ATTR_ANEW) && !graph_set_attr(g, i, &attr)) return false;
    for (int k = 0; k < 2 && graph_kind_has_regions(n->kind); k++)
      if (!share_draws(n->payload.regions[k], 1)) return false;
  }
  return true;
}

bool body_append(struct recording *r, const graph_body *b, const uint32_t *inputs, uint32_t *out) {
  qn_vm *vm = r->vm;
  const graph *g = b->symbolic && rec_symbolic(vm) ? b->symbolic : b->call.graph;
  const region_list *regions = &b->call.regions; /* sorted by their ends */
  uint32_t n = regions->n;
  node_copy c = {.vm = vm};
  size_t bytes = n * sizeof(uint32_t) + 1, open_bytes = n * sizeof(region_open) + 1;
  uint32_t *ends = mem_zalloc(vm, bytes);
  region_open *open = ends ? mem_alloc(vm, open_bytes) : NULL;
  bool ok = open && copy_begin(&c, vm, r->g, g, rec_site(r));
  const bool shares = !b->of_lanes && !draws_itself(b) && vmap_around(r);
  for (uint32_t k = 0; k < n && ok; k++) open[k] = (region_open){regions->list[k].first, k};
  if (ok && n) qsort(open, n, sizeof *open, by_first);
  for (uint32_t i = 1, opens = 0, closes = 0; i < g->n && ok; i++) {
    for (; opens < n && open[opens].first <= i && ok; opens++)
      if (open[opens].first == i) ok = region_opens(r, &regions->list[open[opens].region], c.map);
    const graph_node *x = &g->nodes[i];
    const uint32_t before = r->g->n;
    if (x->kind == NODE_INPUT && g == b->symbolic)
      ok = ok && fits_input(r, &c.dims, &x->type, (c.map[i] = inputs[x->payload.input]));
    else if (x->kind != NODE_TAP) /* which is only shown */
      ok = ok && (c.map[i] = x->kind == NODE_INPUT ? inputs[x->payload.input] : copy_node(&c, i)) != 0 &&
           (!shares || share_draws(r->g, before));
    for (; closes < n && regions->list[closes].end <= i + 1 && ok; closes++) {
      ok = vmap_advance(r); /* a region's counterparts must not mix with those of what follows */
      ends[closes] = r->g->n;
    }
  }
  for (uint32_t i = 0; i < g->noutputs && ok; i++) out[i] = c.map[g->outputs[i]];
  ok = ok && copy_done(&c) && regions_copy(vm, g, regions, 0, &r->regions, c.map, ends) && rec_room(r);
  if (!ok) fail_memory(vm);
  if (c.from) copy_end(&c);
  mem_free(vm, open, open_bytes);
  mem_free(vm, ends, bytes);
  return ok;
}

typedef struct input_list {
  qn_value *at;
} input_list;

static bool take_cotangent(void *ctx, qn_value like, qn_value given) {
  input_list *l = ctx;
  *l->at++ = value_is(given, TAG_NIL) ? value_retain(like) : value_retain(given);
  return true;
}

/* Replaces prototypes (arrays without data, which take_cotangent leaves where the cotangent is nil) by zeros. False with an error raised. */
static bool fill_zeros(qn_vm *vm, qn_value *from, const qn_value *end) {
  for (qn_value *v = from; v < end; v++) {
    if (!value_is(*v, TAG_ARRAY) || value_array(*v)->storage || value_array(*v)->node) continue;
    qn_value zeros = tree_match_zeros(vm, *v);
    value_release(vm, *v);
    *v = zeros;
    if (value_is_error(zeros)) {
      *v = value_nil();
      return false;
    }
  }
  return true;
}

static uint32_t params_named(const graph_body *b) {
  return value_is(b->params, TAG_LIST) ? value_list(b->params)->len : 0;
}

static const char *param_name(const graph_body *b, uint32_t i) {
  return value_str(value_list(b->params)->items[i])->text;
}

/* Appends "; its parameters are x and n" if they have names. */
static void text_params(const graph_body *b, text_buf *t) {
  uint32_t n = params_named(b);
  for (uint32_t i = 0; i < n; i++)
    text_addf(t, "%s%s",
              i == 0      ? n == 1 ? "; its parameter is " : "; its parameters are "
              : i + 1 < n ? ", "
                          : " and ",
              param_name(b, i));
}

static bool fail_count(qn_vm *vm, const graph_body *b, uint32_t fixed, int nargs) {
  text_buf t = {.vm = vm};
  uint32_t least = fixed - b->ndefaults;
  text_addf(&t, "%s takes ", b->like.head != TAG_UNSET ? "the pullback" : "this graph");
  if (b->ndefaults && !b->rest) text_addf(&t, "%u to ", least);
  uint32_t named = b->rest ? least : fixed;
  text_addf(&t, "%s%u argument%s, and %d %s given", b->rest ? "at least " : "", named, named == 1 ? "" : "s", nargs,
            nargs == 1 ? "is" : "are");
  text_params(b, &t);
  raise_text(vm, E_arity, SPAN_NONE, &t);
  return false;
}

static bool fail_name(qn_vm *vm, const graph_body *b, const char *name, bool twice) {
  text_buf t = {.vm = vm};
  if (!params_named(b))
    text_addf(&t, "%s takes no keyword arguments",
              b->like.head != TAG_UNSET ? "a pullback" : "a graph without names of parameters");
  else if (twice)
    text_addf(&t, "argument '%s' is given twice", name);
  else
    text_addf(&t, "the graph has no parameter '%s'", name);
  if (!twice) text_params(b, &t);
  raise_text(vm, E_keyword, SPAN_NONE, &t);
  return false;
}

/* Pushes the arguments of a call, one for each argument of the pattern: keywords in their places, defaults, the rest as a list. False with
 * an error raised. */
static bool bind_arguments(qn_vm *vm, const graph_body *b, const rec_call_site *site) {
  int nargs = site->nargs - 1;
  bool pullback = b->like.head != TAG_UNSET;
  uint32_t wanted = pullback ? 1 : b->call.pattern.nargs, fixed = wanted - b->rest, given = (uint32_t)nargs;
  if (!b->rest && given > fixed) return fail_count(vm, b, fixed, nargs);
  if (!vm_enter(vm, wanted)) return false;
  qn_value *out = vm->sp;
  for (uint32_t i = 0; i < fixed; i++) *vm->sp++ = i < given ? value_retain(site->args[i]) : value_unset();
  if (b->rest) {
    qn_list *l = list_from(vm, site->args + (given < fixed ? given : fixed), given < fixed ? 0 : given - fixed);
    if (!l) return false;
    *vm->sp++ = value_obj(TAG_LIST, l);
  }
  const qn_record *kwargs = value_is(site->args[nargs], TAG_RECORD) ? value_record(site->args[nargs]) : NULL;
  for (uint32_t k = 0; kwargs && k < kwargs->len; k++) {
    const char *name = record_name(kwargs, k)->text;
    uint32_t i = 0, n = params_named(b);
    while (i < n && strcmp(param_name(b, i), name) != 0) i++;
    if (i == n || out[i].head != TAG_UNSET) return fail_name(vm, b, name, i < n);
    out[i] = value_retain(kwargs->items[k]);
  }
  const qn_value *defaults = value_fn(site->fn)->captures + b->nbound;
  for (uint32_t i = 0; i < fixed; i++) {
    if (out[i].head != TAG_UNSET) continue;
    if (i < fixed - b->ndefaults) return fail_count(vm, b, fixed, nargs + (int)(kwargs ? kwargs->len : 0));
    out[i] = value_retain(defaults[i - (fixed - b->ndefaults)]);
  }
  return true;
}

/* Raises that a graph cannot be called like this: `what` it was recorded with, and `why` that differs. False. */
static bool fail_recorded(qn_vm *vm, const char *what, text_buf *why) {
  text_add(why, "", 1);
  return raise_false(vm, E_argument, "the graph was recorded %s: %s", what, why->failed ? "they differ" : why->text);
}

/* Fills in[0..ninputs) with the values of the graph's inputs, owned. The bound arguments stay on the stack. False with an error raised. */
static bool collect_inputs(struct recording *r, const graph_body *b, const rec_call_site *site, qn_value *in) {
  qn_vm *vm = r->vm;
  const specialization *e = &b->call;
  uint32_t ninputs = e->graph->ninputs;
  qn_value *mark = vm->sp;
  if (!bind_arguments(vm, b, site)) {
    vm_pop_to(vm, mark);
    return false;
  }
  if (b->like.head != TAG_UNSET) {
    for (uint32_t i = 0; i < b->nbound; i++) in[i] = value_retain(value_fn(site->fn)->captures[i]);
    input_list l = {in + b->nbound};
    bool ok = tree_match_walk(vm, "the cotangent", "the result", b->like, mark[0], 0, take_cotangent, &l) &&
              fill_zeros(vm, in + b->nbound, l.at);
    vm_pop_to(vm, mark);
    return ok;
  }
  call_inputs inputs;
  inputs.cap = 0;
  bool ok = call_inputs_room(vm, &inputs, ninputs);
  text_buf why = {.vm = vm};
  const qn_value *args = mark;
  int nargs = (int)e->pattern.nargs;
  if (ok && !pattern_match(&e->pattern, true, value_nil(), args, nargs, inputs.arrays, inputs.scalars, &why))
    ok = fail_recorded(vm, "for another call", &why);
  if (ok) pattern_values(&e->pattern, value_nil(), args, nargs, in);
  for (uint32_t i = 0; i < ninputs && ok; i++) value_retain(in[i]);
  for (uint32_t i = 0; i < b->nbound && ok; i++)
    in[b->bound ? b->bound[i] : i] = value_retain(value_fn(site->fn)->captures[i]);
  for (uint32_t i = 0; i < ninputs && ok && e->nguards; i++)
    if (value_is_scalar(in[i])) {
      inputs.scalars[i] = rec_observe(vm, in[i]);
      ok = !value_is_error(inputs.scalars[i]);
    }
  if (ok && e->nguards && !specialization_guards_hold(vm, e, inputs.scalars, &why))
    ok = fail_recorded(vm, "with other numbers, which steered the program", &why);
  text_free(&why);
  call_inputs_free(vm, &inputs);
  if (!ok) return false;
  if (e->random[RANDOM_DRAW]) in[e->random[RANDOM_DRAW] - 1] = rec_draws(vm, e->ndraws);
  const uint32_t *keys = &e->random[RANDOM_KEY];
  qn_value words[2];
  if (keys[0] || keys[1]) rec_key(vm, &words[0], &words[1]);
  for (int i = 0; i < 2; i++)
    if (keys[i]) in[keys[i] - 1] = words[i];
  return true;
}

/* The node of a value that becomes an input of this type: a number may stand for an array of rank 0. 0 if memory is short. */
static uint32_t input_node(struct recording *r, qn_value v, const graph_type *t) {
  uint32_t node = rec_node(r, v);
  if (!node || t->weak || !r->g->nodes[node].type.weak) return node;
  op_attr attr = {.dtype = t->dtype};
  return graph_op(r->g, OP_fit, &node, 1, &attr, rec_site(r));
}

static qn_value body_run(struct recording *r, const rec_call_site *site) {
  qn_vm *vm = r->vm;
  const graph_body *b = body_of(site->fn);
  const graph *g = b->call.graph;
  uint32_t ninputs = g->ninputs, nouts = g->noutputs, made = 0;
  qn_value *in = mem_alloc(vm, (ninputs + 1) * sizeof *in), *values = NULL, result = value_error(), *mark = vm->sp;
  if (!in) return result;
  for (uint32_t i = 0; i < ninputs; i++) in[i] = value_nil();
  uint32_t *nodes = mem_alloc(vm, (ninputs + nouts + 1) * sizeof *nodes), *outs = nodes ? nodes + ninputs : NULL;
  r->bodies++; /* cotangents are cast by ops, and guards look at numbers: each may end a recording */
  bool ok = nodes && (values = mem_alloc(vm, (nouts + 1) * sizeof *values)) && collect_inputs(r, b, site, in);
  for (uint32_t i = 0; i < ninputs && ok; i++) {
    if (value_is(in[i], TAG_ARRAY) && !rec_place(r, value_array(in[i])->device)) {
      op_raise_devices(vm, "a graph", r->device, value_array(in[i])->device);
      ok = false;
    } else {
      ok = (nodes[i] = input_node(r, in[i], &g->nodes[g->inputs[i]].type)) != 0 || fail_memory(vm);
    }
  }
  ok = ok && body_append(r, b, nodes, outs);
  r->handing_out = true;
  for (; made < nouts && ok; made += ok) ok = !value_is_error(values[made] = rec_value_of(r, outs[made]));
  r->handing_out = false;
  for (int i = 0; i < RANDOM_INPUTS && ok; i++)
    if (b->call.drawn[i]) ok = draws_set(vm, i, values[b->call.drawn[i] - 1]);
  r->bodies--;
  ok = ok && rec_appended(r);
  call_values call = {&b->call.pattern, value_nil(), mark};
  if (ok) result = template_build(vm, &b->call.result, values, &call);
  vm_pop_to(vm, mark);
  while (made-- > 0) value_release(vm, values[made]);
  for (uint32_t i = 0; i < ninputs; i++) value_release(vm, in[i]);
  mem_free(vm, in, (ninputs + 1) * sizeof *in);
  if (nodes) mem_free(vm, nodes, (ninputs + nouts + 1) * sizeof *nodes);
  if (values) mem_free(vm, values, (nouts + 1) * sizeof *values);
  return result;
}

static qn_value body_run_within(void *ctx) {
  own_site *c = ctx;
  return rec_within(c->vm, &c->site, body_run);
}

qn_value body_call(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, qn_value kwargs, span at) {
  graph_body *b = body_of(fn);
  own_site c;
  qn_value *mark;
  if (!own_site_begin(&c, vm, fn, args, nargs, kwargs, at, &mark)) return value_error();
  c.site.anchor = &b->code.anchor;
  c.site.run = body_run_within;
  qn_value result = rec_callee(vm, &b->code.anchor) ? rec_call(vm, &c.site) : body_run_within(&c);
  vm_pop_to(vm, mark);
  return result;
}
