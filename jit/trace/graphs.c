/* graph(...): graphs as values of the language (body.c says what such a value is and how it is called).
 *
 * From a call: the entry that serves it gives its graph, pattern and template. What the call took from elsewhere (captured values,
 * globals, defaults) is bound as it is now. From text: every input is an argument, one output is the result, several are a list.
 *
 * Walking is reading fields: nodes, inputs and outputs as lists of records. Rewriting is computing anew: the graph's nodes are
 * recorded once more, in order, but a function is asked first what takes a node's place, given the values of its operands, with
 * which it computes as with all values. The recording is hollow: these values have no data.
 */
#include <stdio.h>
#include <string.h>

#include "jit/trace/gradients.h"
#include "jit/trace/graphs.h"
#include "jit/trace/pattern.h"
#include "jit/trace/recording.h"
#include "jit/trace/report.h"
#include "jit/trace/specialization.h"
#include "jit/trace/transform.h"

/* ---- from a call ------------------------------------------------------------------------------------------------------------------ */

/* Names of a function's parameters, as a list; nil where not all are known. */
typedef struct name_list {
  qn_vm *vm;
  qn_list *list;
  bool ok;
} name_list;

static void add_name(void *ctx, const char *name, int position) {
  name_list *c = ctx;
  if (!c->ok || position != (int)c->list->len) return;
  qn_str *s = str_intern(c->vm, name, strlen(name));
  c->ok = s && list_push(c->vm, c->list, value_obj(TAG_STR, s));
}

/* Names the arguments that the body's call takes from left to right. False with an error raised. */
static bool name_params(qn_vm *vm, graph_body *b, qn_value fn) {
  uint32_t n = b->call.pattern.nargs - b->rest;
  name_list c = {vm, list_new(vm, 0), true};
  if (!c.list) return false;
  vm->hooks.parameters(vm, fn, add_name, &c);
  qn_value all = value_obj(TAG_LIST, c.list);
  if (c.ok && c.list->len >= n && n) {
    qn_list *names = list_from(vm, c.list->items, n);
    if ((c.ok = names != NULL)) body_name_params(b, value_obj(TAG_LIST, names));
    if (names) value_release(vm, value_obj(TAG_LIST, names));
  }
  value_release(vm, all);
  return c.ok;
}

static bool bind_input(qn_vm *vm, graph_body *b, uint32_t ninputs, uint32_t input) {
  if (!b->bound && !(b->bound = mem_alloc(vm, (ninputs + 1) * sizeof *b->bound))) return false;
  b->bound[b->nbound++] = input;
  return true;
}

/* Do the arguments as the caller gives them fit the pattern, perhaps when the last ones are put into a list? */
static bool fit_arguments(qn_vm *vm, graph_body *b, const qn_value *args, int nargs, qn_value kept) {
  const pattern *p = &b->call.pattern;
  uint32_t n = b->call.graph->ninputs;
  qn_array **arrays = mem_zalloc(vm, (n + 1) * sizeof *arrays);
  qn_value *scalars = arrays ? mem_zalloc(vm, (n + 1) * sizeof *scalars) : NULL;
  bool ok = scalars != NULL;
  if (ok && !pattern_match(p, true, value_nil(), args, nargs, arrays, scalars, NULL)) {
    b->rest = true;
    ok = nargs + 1 >= (int)p->nargs &&
         pattern_match(p, true, value_nil(), value_list(kept)->items, (int)p->nargs, arrays, scalars, NULL);
    if (!ok)
      raise_error(vm, E_no_graph, SPAN_NONE, "graph: the function binds its arguments in a way that a graph cannot");
  }
  if (arrays) mem_free(vm, arrays, (n + 1) * sizeof *arrays);
  if (scalars) mem_free(vm, scalars, (n + 1) * sizeof *scalars);
  return ok;
}

/* The body of what an entry recorded. `fn` and `kept` are the function and all arguments of the call. */
static bool body_of_specialization(qn_vm *vm, const specialization *e, qn_value fn, qn_value kept, const qn_value *args,
                                   int nargs, graph_body *b, qn_value *values) {
  uint32_t n = e->graph->ninputs;
  specialization *c = &b->call;
  if (!(c->graph = graph_copy(e->graph))) {
    if (!error_pending(vm)) raise_memory(vm);
    return false;
  }
  const qn_list *all = value_list(kept);
  if (!pattern_copy_args(vm, &e->pattern, (uint32_t)nargs, &c->pattern) || !template_copy(vm, &e->result, &c->result) ||
      !fit_arguments(vm, b, args, nargs, kept))
    return false;
  call_values call = {&e->pattern, fn, all->items};
  template_bind(vm, &c->result, (uint32_t)nargs, &call);
  if (e->nguards) {
    if (!(c->guards = mem_alloc(vm, e->nguards * sizeof *c->guards))) return false;
    memcpy(c->guards, e->guards, e->nguards * sizeof *c->guards);
    c->nguards = e->nguards;
  }
  for (uint32_t i = 0; i < e->regions.n; i++) {
    if (!regions_add(vm, &b->regions, &e->regions.list[i])) return false;
    if (e->regions.list[i].rule && !region_own_rule(vm, &b->regions.list[i])) return false;
  }
  c->draw_input = e->draw_input;
  memcpy(c->key_inputs, e->key_inputs, sizeof c->key_inputs);
  c->ndraws = e->ndraws;
  qn_value *inputs = mem_alloc(vm, 2 * (n + (size_t)1) * sizeof *inputs), *free_ones = inputs + n + 1;
  if (!inputs) return false;
  for (uint32_t i = 0; i < 2 * (n + 1); i++) inputs[i] = value_unset();
  pattern_values(&e->pattern, fn, all->items, (int)all->len, inputs);
  pattern_values(&c->pattern, value_nil(), all->items, (int)all->len, free_ones);
  bool ok = true;
  for (uint32_t i = 0; i < n && ok; i++) {
    if (inputs[i].head == TAG_UNSET || free_ones[i].head != TAG_UNSET) continue;
    values[b->nbound] = inputs[i];
    ok = bind_input(vm, b, n, i);
  }
  for (uint32_t i = 0; i < b->ndefaults && ok; i++) values[b->nbound + i] = args[nargs - (int)b->ndefaults + (int)i];
  if (ok && !b->nbound) ok = b->bound || (b->bound = mem_alloc(vm, sizeof *b->bound)) != NULL;
  mem_free(vm, inputs, 2 * (n + (size_t)1) * sizeof *inputs);
  return ok && name_params(vm, b, fn);
}

static qn_value graph_of_call(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, int ndefaults, bool hint) {
  jit_anchor *watched = vm->asked.watched; /* a function whose graph is taken may take another's */
  qn_value watched_fn = vm->asked.watched_fn, watched_args = vm->asked.watched_args;
  vm->asked.watched = value_is(fn, TAG_FN) ? anchor_of_value(vm, fn) : NULL;
  vm->asked.watched_fn = vm->asked.watched_args = value_unset();
  served s;
  vm_owned held[2];
  vm_own(vm, &held[0], vm_drop_value, &watched_fn);
  vm_own(vm, &held[1], vm_drop_value, &watched_args);
  bool ok = !error_pending(vm) && serve(vm, "graph", fn, args, nargs, &s);
  vm_disown(vm, &held[0]);
  qn_value kept_fn = vm->asked.watched_fn, kept = vm->asked.watched_args, result = value_error();
  vm->asked.watched = watched;
  vm->asked.watched_fn = watched_fn;
  vm->asked.watched_args = watched_args;
  const graph *g = ok && s.entry ? s.entry->graph : NULL;
  if (ok && (!g || kept.head == TAG_UNSET)) {
    result = raise_no_graph(vm, &s, "graph");
    if (hint && break_hints[s.why]) raise_note(vm, SPAN_NONE, "%s", break_hints[s.why]);
  }
  if (g && kept.head != TAG_UNSET) {
    graph_body *b = body_new(vm);
    size_t bytes = (g->ninputs + (size_t)ndefaults + 1) * sizeof(qn_value);
    qn_value *values = b ? mem_alloc(vm, bytes) : NULL;
    if (b) b->ndefaults = (uint32_t)ndefaults;
    if (values && body_of_specialization(vm, s.entry, kept_fn, kept, args, nargs, b, values)) {
      b->anchor.name = "graph";
      b->anchor.at = s.anchor->at;
      result = body_value(vm, b, values);
    }
    if (values) mem_free(vm, values, bytes);
    if (b) body_release(vm, b);
  }
  value_release(vm, kept_fn);
  value_release(vm, kept);
  return result;
}

qn_value jit_graph(qn_vm *vm, qn_value fn, const qn_value *args, int nargs) {
  return graph_of_call(vm, fn, args, nargs, 0, false);
}

qn_value jit_export(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, int ndefaults) {
  return graph_of_call(vm, fn, args, nargs, ndefaults, true);
}

/* ---- from text ---------------------------------------------------------------------------------------------------------------------- */

bool graph_runnable(const graph *g, char *why, size_t size) {
  if (!g->noutputs) {
    snprintf(why, size, "it returns nothing");
    return false;
  }
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    if (n->kind != NODE_OP && n->kind != NODE_CONST && n->kind != NODE_INPUT) {
      snprintf(why, size, "%%%u is a region of control flow or an effect, which only the compiler makes", (unsigned)i);
      return false;
    }
    bool sized = n->kind != NODE_OP || op_rows[n->op].shape_rule != SH_data;
    for (int k = 0; k < n->type.rank; k++) sized &= n->type.shape[k] >= 0;
    for (int k = 0; n->attr && k < n->attr->n; k++) sized &= n->attr->d[k] >= 0 || !op_attr_is_dim((op_id)n->op, k);
    if (!sized) {
      snprintf(why, size, "a size of %%%u is no number", (unsigned)i);
      return false;
    }
  }
  return true;
}

bool graph_distrust(graph *g) {
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    if (n->kind == NODE_OP && n->attr && op_rows[n->op].raises != RAISES_never && (n->attr->flags & ATTR_PROVEN) &&
        !graph_fix_flags(g, i, n->attr->flags & (uint8_t)~ATTR_PROVEN))
      return false;
  }
  for (uint32_t i = 1; i < g->n; i++) g->nodes[i].site = 0; /* places in programs of another time */
  g->nsites = 1;
  return true;
}

qn_value jit_graph_parse(qn_vm *vm, const qn_str *text) {
  char why[256] = "";
  graph *g = strlen(text->text) == text->len ? graph_parse(text->text, why, sizeof why) : NULL;
  if (!g || !graph_runnable(g, why, sizeof why) || !graph_distrust(g)) {
    if (g && g->arena.failed) snprintf(why, sizeof why, "out of memory");
    if (g) graph_free(g);
    return raise_error(vm, E_argument, SPAN_NONE, "graph: the text is no graph that can be run: %s",
                       why[0] ? why : "it holds a NUL");
  }
  graph_body *b = body_new(vm);
  if (!b) {
    graph_free(g);
    return value_error();
  }
  b->call.graph = g;
  b->anchor.name = "graph";
  bool ok = true;
  for (uint32_t i = 0; i < g->ninputs && ok; i++)
    ok = pattern_add_input(vm, &b->call.pattern, &g->nodes[g->inputs[i]].type, i);
  tpl_list *t = &b->call.result;
  ok = ok && mem_grow(vm, (void **)&t->tpls, &t->cap, g->noutputs + 1u, sizeof *t->tpls);
  if (ok && g->noutputs > 1) t->tpls[t->n++] = (tpl){.kind = TPL_LIST, .n = g->noutputs, .value = value_nil()};
  for (uint32_t i = 0; i < g->noutputs && ok; i++)
    t->tpls[t->n++] = (tpl){.kind = TPL_OUTPUT, .output = i, .value = value_nil()};
  qn_value result = ok ? body_value(vm, b, NULL) : value_error();
  body_release(vm, b);
  return result;
}

/* ---- fields --------------------------------------------------------------------------------------------------------------------------- */

const char *const jit_graph_fields[GRAPH_FIELDS] = {"nodes", "inputs", "outputs"};

static qn_value ints(qn_vm *vm, const int64_t *d, int n) {
  qn_list *l = list_new(vm, (size_t)n);
  for (int i = 0; l && i < n; i++) l->items[i] = value_int(d[i]);
  return l ? value_obj(TAG_LIST, l) : value_error();
}

static qn_value node_ids(qn_vm *vm, const uint32_t *ids, uint32_t n) {
  qn_list *l = list_new(vm, n);
  for (uint32_t i = 0; l && i < n; i++) l->items[i] = value_int(ids[i]);
  return l ? value_obj(TAG_LIST, l) : value_error();
}

typedef struct attr_fields {
  qn_vm *vm;
  qn_record *r;
  bool ok;
} attr_fields;

static void add_attr(void *ctx, const char *name, const char *text, const int64_t *d, int n) {
  attr_fields *c = ctx;
  if (!c->ok) return;
  put_field(c->vm, c->r, name, n >= 0 ? ints(c->vm, d, n) : text ? text_value(c->vm, text) : value_bool(true), &c->ok);
}

static qn_value const_value(qn_vm *vm, const graph_node *n) {
  if (n->type.weak) return dtype_load((qn_dtype)n->type.dtype, n->payload.data);
  qn_array *a = array_new(vm, (qn_dtype)n->type.dtype, n->type.rank, n->type.shape);
  if (!a) return value_error();
  memcpy(array_data(a), n->payload.data, (size_t)a->size * dtype_size((qn_dtype)a->dtype));
  return value_obj(TAG_ARRAY, a);
}

static qn_value attr_record(qn_vm *vm, const graph_node *n) {
  attr_fields c = {.vm = vm, .r = record_new(vm), .ok = true};
  if (!c.r) return value_error();
  if (n->kind == NODE_CONST) put_field(vm, c.r, "value", const_value(vm, n), &c.ok);
  if (n->kind == NODE_OP && n->attr) {
    op_attr a = graph_attr(n);
    graph_attr_each((op_id)n->op, &a, add_attr, &c);
  }
  if (c.ok) return value_obj(TAG_RECORD, c.r);
  value_release(vm, value_obj(TAG_RECORD, c.r));
  return value_error();
}

static qn_value node_record(qn_vm *vm, const graph *g, uint32_t i) {
  const graph_node *n = &g->nodes[i];
  qn_record *r = record_new(vm);
  if (!r) return value_error();
  bool ok = true;
  int line = 0;
  if (n->site && n->site < g->nsites) place_line(vm, g->sites[n->site].at, &line);
  put_field(vm, r, "id", value_int(i), &ok);
  put_field(vm, r, "op",
            text_value(vm, n->kind == NODE_OP      ? op_rows[n->op].name
                           : n->kind == NODE_CONST ? "const"
                                                   : "input"),
            &ok);
  if (ok) put_field(vm, r, "inputs", node_ids(vm, n->in, n->nin), &ok);
  put_field(vm, r, "dtype", value_dtype((qn_dtype)n->type.dtype), &ok);
  if (ok) put_field(vm, r, "shape", ints(vm, n->type.shape, n->type.rank), &ok);
  put_field(vm, r, "host", value_bool(n->type.weak), &ok);
  if (ok) put_field(vm, r, "attrs", attr_record(vm, n), &ok);
  put_field(vm, r, "line", line ? value_int(line) : value_nil(), &ok);
  if (ok) return value_obj(TAG_RECORD, r);
  value_release(vm, value_obj(TAG_RECORD, r));
  return value_error();
}

static qn_value input_record(qn_vm *vm, const graph_body *b, uint32_t i) {
  const graph *g = b->call.graph;
  text_buf name;
  text_init(&name, vm);
  bool bound = false;
  for (uint32_t k = 0; k < b->nbound; k++) bound |= (b->bound ? b->bound[k] : k) == i;
  if (bound)
    text_adds(&name, "bound");
  else if (b->like.head != TAG_UNSET)
    text_adds(&name, "cotangent");
  else
    pattern_input_name(&b->call.pattern, i, &name);
  qn_value text = text_take(&name), node = value_is_error(text) ? text : node_record(vm, g, g->inputs[i]);
  if (value_is_error(node)) {
    if (!value_is_error(text)) value_release(vm, text);
    return value_error();
  }
  bool ok = true;
  put_field(vm, value_record(node), "name", text, &ok);
  if (ok) return node;
  value_release(vm, node);
  return value_error();
}

qn_value jit_graph_field(qn_vm *vm, qn_value v, const char *name) {
  const graph_body *b = body_of(v);
  const graph *g = b->call.graph;
  if (strcmp(name, "outputs") == 0) return node_ids(vm, g->outputs, g->noutputs);
  bool nodes = strcmp(name, "nodes") == 0;
  if (!nodes && strcmp(name, "inputs") != 0) return value_unset();
  uint32_t n = nodes ? g->n - 1 : g->ninputs;
  qn_list *l = list_new(vm, 0);
  bool ok = l != NULL;
  for (uint32_t i = 0; i < n && ok; i++)
    push_item(vm, l, nodes ? node_record(vm, g, i + 1) : input_record(vm, b, i), &ok);
  if (ok) return value_obj(TAG_LIST, l);
  if (l) value_release(vm, value_obj(TAG_LIST, l));
  return value_error();
}

void jit_graph_signature(const qn_fn *graph, text_buf *out) {
  const graph_body *b = graph->code;
  const pattern *p = &b->call.pattern;
  uint32_t n = p->nargs - b->rest;
  text_adds(out, "(");
  if (b->like.head != TAG_UNSET) text_adds(out, "cotangent");
  for (uint32_t i = 0; i < p->nargs; i++) {
    if (i) text_adds(out, ", ");
    if (b->rest && i == n) text_adds(out, "..");
    if (i < n && p->roots[i].name) text_addf(out, "%s: ", p->roots[i].name->text);
    pattern_print_arg(p, i, out);
    if (i >= n || i + b->ndefaults < n) continue;
    qn_value v = graph->captures[b->nbound + i - (n - b->ndefaults)];
    text_adds(out, " = ");
    if (value_is(v, TAG_INT))
      text_int(out, v.u.i);
    else if (value_is(v, TAG_FLOAT))
      text_float(out, v.u.f, WEAK_FLOAT);
    else if (value_is(v, TAG_STR))
      text_quoted(out, value_str(v)->text, value_str(v)->len);
    else
      text_adds(out, value_is(v, TAG_BOOL) ? v.u.i ? "true" : "false" : value_is(v, TAG_NIL) ? "nil" : "...");
  }
  text_adds(out, ") -> ");
  template_print(&b->call.result, b->call.graph, out);
}

/* Those that are about what it is bound to alone always hold. */
void jit_graph_conditions(const qn_fn *graph, text_buf *out) {
  const graph_body *b = graph->code;
  const specialization *e = &b->call;
  bool free[GUARDS_MAX];
  for (uint32_t i = 0; i < e->nguards; i++) {
    const scalar_guard *x = &e->guards[i];
    free[i] = x->op == GUARD_INPUT;
    for (uint32_t k = 0; k < b->nbound && x->op == GUARD_INPUT; k++)
      free[i] &= (b->bound ? b->bound[k] : k) != x->in[0];
    for (int k = 0; k < x->nin && x->op < GUARD_INPUT; k++) free[i] |= free[x->in[k]];
    if (!free[i] || !x->compare) continue;
    text_adds(out, "  only where ");
    specialization_number_guard(e, i, out);
    text_adds(out, ", since this steered the function\n");
  }
}

static void graph_text(qn_value v, text_buf *out) {
  size_t from = out->len;
  graph_print(body_of(v)->call.graph, out);
  if (out->len > from && out->text && out->text[out->len - 1] == '\n') out->text[--out->len] = 0;
}

void graphs_open(qn_vm *vm) { vm->hooks.graph_text = graph_text; }

/* ---- rewriting -------------------------------------------------------------------------------------------------------------------------- */

typedef struct rewriting {
  struct recording *r;
  const graph_body *from;
  qn_value rule;
  uint32_t *map;        /* nodes of the old graph in the recording */
  uint32_t *starts;     /* where in it the place of each begins, and the end */
  size_t bytes;         /* of both */
  uint32_t *in, in_cap; /* operands of the node in progress */
} rewriting;

/* What it owns. */
static void rewriting_drop(qn_vm *vm, void *what) {
  rewriting *w = what;
  if (w->r) rec_drop(vm, w->r);
  if (w->map) mem_free(vm, w->map, w->bytes);
  mem_free(vm, w->in, w->in_cap * sizeof *w->in);
}

/* What the rule gives for node i, as a node; 0: keeps it, UINT32_MAX: an error is raised. */
static uint32_t ask_rule(rewriting *w, uint32_t i) {
  qn_vm *vm = w->r->vm;
  const graph *g = w->from->call.graph;
  const graph_node *n = &g->nodes[i];
  qn_value args[2] = {node_record(vm, g, i), value_error()}, out = value_error();
  qn_list *l = value_is_error(args[0]) ? NULL : list_new(vm, n->nin);
  bool ok = l != NULL;
  if (l) args[1] = value_obj(TAG_LIST, l);
  for (int k = 0; k < n->nin && ok; k++) {
    qn_value x = rec_value_of(w->r, w->map[n->in[k]]);
    ok = !value_is_error(x);
    if (ok) l->items[k] = x;
  }
  if (ok) {
    vm_owned held[2];
    for (int k = 0; k < 2; k++) vm_own(vm, &held[k], vm_drop_value, &args[k]);
    out = vm->hooks.call(vm, w->rule, args, 2, value_nil());
    vm_disown(vm, &held[0]);
  }
  for (int k = 0; k < 2; k++)
    if (!value_is_error(args[k])) value_release(vm, args[k]);
  if (value_is_error(out)) return UINT32_MAX;
  uint32_t node = 0;
  if (!value_is(out, TAG_NIL)) {
    bool number = value_is_scalar(out) || value_is(out, TAG_ARRAY);
    if (number && value_is_scalar(out) && !n->type.weak && n->type.rank == 0) {
      qn_value fitted = op_apply(vm, OP_fit, &out, 1, &(op_attr){.dtype = n->type.dtype});
      out = fitted;
      number = !value_is_error(fitted);
    }
    node = number && rec_room(w->r) ? rec_node(w->r, out) : 0;
    if (error_pending(vm)) {
      node = UINT32_MAX;
    } else if (!node || !graph_type_same(&w->r->g->nodes[node].type, &n->type)) {
      text_buf t;
      text_init(&t, vm);
      text_adds(&t, "rewrite: the rule gives ");
      text_kind(&t, out);
      text_addf(&t, " for %%%u (%s), which is ", (unsigned)i, n->kind == NODE_OP ? op_rows[n->op].name : "const");
      if (n->type.weak)
        text_addf(&t, "a host number of %s", dtype_rows[n->type.dtype].name);
      else
        text_shape(&t, (qn_dtype)n->type.dtype, n->type.rank, n->type.shape);
      raise_text(vm, E_argument, SPAN_NONE, &t);
      node = UINT32_MAX;
    }
  }
  if (!value_is_error(out)) value_release(vm, out);
  return node;
}

/* A region of the old graph is one of what took its nodes' places, unless a result comes from elsewhere now. */
static bool region_anew(rewriting *w, const graph_region *old) {
  qn_vm *vm = w->r->vm;
  graph_region x = *old;
  size_t bytes = (x.nargs + x.nouts + (size_t)1) * sizeof(uint32_t);
  uint32_t *nodes = mem_alloc(vm, bytes);
  if (!nodes) return false;
  x.first = w->starts[old->first];
  x.end = w->starts[old->end];
  bool whole = x.first < x.end;
  for (uint32_t k = 0; k < x.nargs; k++) whole &= (nodes[k] = w->map[x.args[k]]) < x.first;
  for (uint32_t k = 0; k < x.nouts; k++) {
    uint32_t node = nodes[x.nargs + k] = w->map[x.outs[k]];
    whole &= node >= x.first && node < x.end;
  }
  x.args = nodes;
  x.outs = nodes + x.nargs;
  bool ok = !whole || regions_add(vm, &w->r->regions, &x);
  mem_free(vm, nodes, bytes);
  return ok;
}

/* Records the graph's nodes, asking the rule. */
static bool record_anew(rewriting *w) {
  struct recording *r = w->r;
  qn_vm *vm = r->vm;
  const graph *g = w->from->call.graph;
  bool ok = true;
  for (uint32_t i = 0; i < g->ninputs && ok; i++)
    ok = (w->map[g->inputs[i]] = graph_input(r->g, g->nodes[g->inputs[i]].type, 0)) != 0;
  for (uint32_t i = 1; i < g->n && ok; i++) {
    const graph_node *n = &g->nodes[i];
    w->starts[i] = r->g->n;
    if (n->kind == NODE_INPUT) continue;
    uint32_t node = rec_room(r) ? ask_rule(w, i) : UINT32_MAX;
    if (node == UINT32_MAX) {
      ok = false;
    } else if (!node && n->kind == NODE_CONST) {
      node = graph_const(r->g, n->type, n->payload.data, 0);
    } else if (!node && mem_grow(vm, (void **)&w->in, &w->in_cap, n->nin + 1u, sizeof *w->in)) {
      uint32_t *in = w->in;
      for (int k = 0; k < n->nin; k++) in[k] = w->map[n->in[k]];
      op_attr attr = graph_attr(n);
      uint32_t site = 0;
      if (n->site && n->site < g->nsites)
        site = graph_site_add(r->g, g->sites[n->site].at, 0, g->sites[n->site].function);
      node = graph_node_raw(r->g, (op_id)n->op, in, n->nin, n->attr ? &attr : NULL, n->type, site);
    }
    w->map[i] = node;
    ok = ok && node && !vm_poll(vm);
  }
  w->starts[g->n] = r->g->n;
  for (uint32_t i = 0; i < w->from->regions.n && ok; i++) ok = region_anew(w, &w->from->regions.list[i]);
  if (ok && rec_room(r)) return true;
  if (!error_pending(vm)) raise_memory(vm);
  return false;
}

/* The graph as recorded anew, with the old one's pattern and result. Its inputs are what the rule brought along, then the old ones. */
static qn_value rewritten(rewriting *w, qn_value old) {
  struct recording *r = w->r;
  qn_vm *vm = r->vm;
  const graph_body *from = w->from;
  const graph *g = from->call.graph;
  graph_body *b = body_new(vm);
  node_list bound = {0};
  uint32_t *lists = b ? mem_alloc(vm, (g->ninputs + g->noutputs + (size_t)1) * sizeof *lists) : NULL;
  qn_value *values = NULL, result = value_error();
  size_t bytes = 0;
  if (!lists) goto done;
  for (uint32_t i = 0; i < g->ninputs; i++) lists[i] = w->map[g->inputs[i]];
  for (uint32_t i = 0; i < g->noutputs; i++) lists[g->ninputs + i] = w->map[g->outputs[i]];
  if (!body_cut(r, b, 1, lists, g->ninputs, lists + g->ninputs, g->noutputs, &bound)) goto done;
  uint32_t more = bound.n, ninputs = g->ninputs + more;
  const specialization *e = &from->call;
  specialization *c = &b->call;
  bytes = (ninputs + from->ndefaults + (size_t)1) * sizeof *values;
  if (!(values = mem_alloc(vm, bytes)) || !template_copy(vm, &e->result, &c->result) ||
      !pattern_copy_args(vm, &e->pattern, e->pattern.nargs, &c->pattern))
    goto done;
  for (uint32_t i = 0; i < c->pattern.n; i++) c->pattern.pats[i].input += more;
  c->pattern.ninputs += more;
  if (e->nguards) {
    if (!(c->guards = mem_alloc(vm, e->nguards * sizeof *c->guards))) goto done;
    memcpy(c->guards, e->guards, e->nguards * sizeof *c->guards);
    c->nguards = e->nguards;
    for (uint32_t i = 0; i < c->nguards; i++)
      if (c->guards[i].op == OP_COUNT) c->guards[i].in[0] += more; /* an input */
  }
  c->draw_input = e->draw_input ? e->draw_input + more : 0;
  for (int i = 0; i < 2; i++) c->key_inputs[i] = e->key_inputs[i] ? e->key_inputs[i] + more : 0;
  c->ndraws = e->ndraws;
  b->rest = from->rest;
  b->like = value_retain(from->like);
  if (value_is(from->params, TAG_LIST)) body_name_params(b, from->params);
  b->nbound = 0;
  for (uint32_t i = 0; i < more; i++) {
    values[i] = r->vals[bound.nodes[i]];
    if (!bind_input(vm, b, ninputs, i)) goto done;
  }
  for (uint32_t i = 0; i < from->nbound; i++) {
    values[more + i] = value_fn(old)->captures[i];
    if (!bind_input(vm, b, ninputs, more + (from->bound ? from->bound[i] : i))) goto done;
  }
  b->ndefaults = from->ndefaults;
  for (uint32_t i = 0; i < b->ndefaults; i++) values[b->nbound + i] = value_fn(old)->captures[from->nbound + i];
  b->anchor.name = "graph";
  result = body_value(vm, b, values);
done:
  if (values) mem_free(vm, values, bytes);
  if (lists) mem_free(vm, lists, (g->ninputs + g->noutputs + (size_t)1) * sizeof *lists);
  mem_free(vm, bound.nodes, bound.cap * sizeof *bound.nodes);
  if (b) body_release(vm, b);
  return result;
}

qn_value jit_graph_rewrite(qn_vm *vm, qn_value g, qn_value rule) {
  if (vm->rec && !rec_break(vm->rec, BREAK_effect, "rewrite")) return value_error();
  struct recording *outer = vm->rec;
  const graph *old = body_of(g)->call.graph;
  rewriting w = {.from = body_of(g), .rule = rule};
  qn_value result = value_error();
  w.bytes = (2 * (size_t)old->n + 1) * sizeof *w.map;
  w.map = mem_zalloc(vm, w.bytes);
  w.starts = w.map ? w.map + old->n : NULL;
  if (w.map && (w.r = rec_begin(vm, false))) {
    w.r->hollow = true;
    w.r->grads = 1; /* whatever breaks, it goes on */
    w.r->placed = true;
    vm_owned held;
    vm_own(vm, &held, rewriting_drop, &w);
    if (record_anew(&w)) result = rewritten(&w, g);
    vm_disown(vm, &held);
  }
  rewriting_drop(vm, &w);
  vm->rec = outer;
  return result;
}
