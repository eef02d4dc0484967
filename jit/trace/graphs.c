/* graph(...): making, reading and rewriting graphs as values of the language. (What such a value is and how it is called is in body.c.)
 *
 * From a call: the specialization that serves the call has the graph, pattern and template. Whatever the call took from elsewhere (captured
 * values, globals, defaults) is bound as it is now. From a text: it is called as the line for that says (call_text.c); where there is none, every input
 * is an argument; one output is the result, several are a list.
 *
 * Reading: the fields nodes, inputs and outputs are lists of records.
 *
 * Rewriting computes the graph anew: its nodes are recorded once more, in order, but first a function of the program is asked what takes
 * each node's place. It is given the values of the node's operands and computes with them as with any values. The recording is hollow:
 * these values have no data.
 */
#include <stdio.h>
#include <string.h>

#include "jit/trace/anchors.h"
#include "jit/trace/body.h"
#include "jit/trace/breaks.h"
#include "jit/trace/call_text.h"
#include "jit/trace/calls.h"
#include "jit/trace/gradients.h"
#include "jit/graph/composites.h"
#include "jit/graph/ranges.h"
#include "jit/trace/graphs.h"
#include "jit/trace/node_records.h"
#include "jit/trace/nodes.h"
#include "jit/trace/node_copy.h"
#include "jit/trace/pattern.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/report.h"
#include "jit/trace/specialization.h"

/* ---- from a call ------------------------------------------------------------------------------------------------------------------ */

/* Collects the names of the parameters that are passed by position, from the first one on, up to the first one that has no name. */
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

/* Names the body's arguments after the parameters of `fn`, if all of them have names. False with an error raised. */
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

/* Does the pattern fit the arguments as the caller gives them, or else with the last ones in a list (`kept`: the arguments as the recorded
 * call bound them)? Sets b->rest in the second case. False with an error raised. */
static bool fit_arguments(qn_vm *vm, graph_body *b, const qn_value *args, int nargs, qn_value kept) {
  int fit = call_fits(vm, &b->call, args, nargs);
  if (fit) return fit > 0;
  b->rest = true;
  int n = (int)b->call.pattern.nargs;
  fit = nargs + 1 >= n ? call_fits(vm, &b->call, value_list(kept)->items, n) : 0;
  if (!fit)
    raise_error(vm, E_no_graph, SPAN_NONE, "graph: the function binds its arguments in a way that a graph cannot");
  return fit > 0;
}

/* Copies to `to` what calls of `from` must look like and what they give, for a graph that has `more` inputs before those of from's graph
 * and takes only the first `nargs` of the arguments. False with an error raised. */
static bool copy_call(qn_vm *vm, const specialization *from, uint32_t nargs, uint32_t more, specialization *to) {
  if (!pattern_copy_args(vm, &from->pattern, nargs, &to->pattern) || !template_copy(vm, &from->result, &to->result))
    return false;
  for (uint32_t i = 0; i < to->pattern.n; i++) to->pattern.pats[i].input += more;
  to->pattern.ninputs += more;
  if (from->nguards && !(to->guards = mem_alloc(vm, from->nguards * sizeof *to->guards))) return false;
  to->nguards = from->nguards;
  for (uint32_t i = 0; i < to->nguards; i++) {
    to->guards[i] = from->guards[i];
    if (to->guards[i].op == GUARD_INPUT) to->guards[i].in[0] += more;
  }
  for (int i = 0; i < RANDOM_INPUTS; i++) to->random[i] = from->random[i] ? from->random[i] + more : 0;
  memcpy(to->drawn, from->drawn, sizeof to->drawn);
  to->ndraws = from->ndraws;
  return true;
}

/* Effects stay in sight, but they are made by nobody. */
static void show_effects(graph *g) {
  for (uint32_t i = 1; i < g->n; i++) {
    graph_node *n = &g->nodes[i];
    if (n->kind == NODE_TAP) n->payload.tap = GRAPH_TAP_MADE;
    for (int k = 0; k < 2 && graph_kind_has_regions(n->kind); k++) show_effects(n->payload.regions[k]);
  }
}

/* Fills in a body with what a specialization has recorded; values[i] becomes the value of bound input i (borrowed), then the defaults. `fn`
 * and `kept` are the function and all arguments of the recorded call. False with an error raised. */
static bool body_of_specialization(qn_vm *vm, const specialization *e, qn_value fn, qn_value kept, const qn_value *args,
                                   int nargs, graph_body *b, qn_value *values) {
  uint32_t n = e->graph->ninputs;
  specialization *c = &b->call;
  if (!(c->graph = graph_copy(e->graph))) return fail_memory(vm);
  show_effects(c->graph);
  const qn_list *all = value_list(kept);
  if (!copy_call(vm, e, (uint32_t)nargs, 0, c) || !fit_arguments(vm, b, args, nargs, kept)) return false;
  call_values call = {&e->pattern, fn, all->items};
  template_bind(vm, &c->result, (uint32_t)nargs, &call);
  for (uint32_t i = 0; i < e->regions.n; i++) {
    if (!regions_add(vm, &b->call.regions, &e->regions.list[i])) return false;
    if (e->regions.list[i].rule && !region_own_rule(vm, &b->call.regions.list[i])) return false;
  }
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

static qn_value graph_of_call(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, int ndefaults, bool hint,
                              bool shown) {
  jit_anchor *watched = vm->asked.watched; /* saved, because the function may itself ask for the graph of another one */
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
  bool texts = false; /* it gives a text that is made of data, for which graphs have no node */
  for (uint32_t i = 0; ok && s.entry && i < s.entry->result.n; i++) texts |= s.entry->result.tpls[i].kind == TPL_TEXT;
  /* results of several kinds have no one type, which calls of a graph need */
  bool chooses = ok && s.entry && template_chooses(&s.entry->result);
  if (texts || chooses) {
    s.why = chooses ? BREAK_branch : BREAK_host_read;
    s.at = s.anchor->at;
    const graph *g = s.entry->graph; /* (a branch makes the choice) */
    for (uint32_t i = g->n - 1; i > 0 && chooses; i--)
      if (g->nodes[i].kind == NODE_IF && g->nodes[i].site) s.at = g->sites[g->nodes[i].site].at;
    snprintf(s.text, sizeof s.text, "%s", break_reasons[s.why]);
    s.entry = NULL;
  }
  /* What a graph does it does in every place that it is called, so it has no effects. Those that only write are shown; what is read is a
   * number that others need. */
  const tap *first = NULL;
  for (uint32_t i = 0; ok && s.entry && i < s.entry->taps.n && !first; i++)
    if (!shown || s.entry->taps.list[i].def->work == WORK_READING) first = &s.entry->taps.list[i];
  if (first) {
    s.why = BREAK_effect;
    s.at = first->at;
    snprintf(s.text, sizeof s.text, "%s: %s", break_reasons[s.why], first->def->name);
    s.entry = NULL;
  }
  const graph *g = ok && s.entry ? s.entry->graph : NULL;
  if (ok && (!g || kept.head == TAG_UNSET)) {
    result = raise_no_graph(vm, &s, "graph");
    if (hint && break_hints[s.why]) raise_note(vm, SPAN_NONE, "%s", break_hints[s.why]);
    if (first)
      raise_note(vm, SPAN_NONE,
                 "a graph may be called anywhere, so it has no effects; explain(f, ...) tells of a call with them");
  }
  if (g && kept.head != TAG_UNSET) {
    graph_body *b = body_new(vm);
    size_t bytes = (g->ninputs + (size_t)ndefaults + 1) * sizeof(qn_value);
    qn_value *values = b ? mem_alloc(vm, bytes) : NULL;
    if (b) b->ndefaults = (uint32_t)ndefaults;
    if (values && body_of_specialization(vm, s.entry, kept_fn, kept, args, nargs, b, values)) {
      b->code.anchor.name = "graph";
      b->code.anchor.at = s.anchor->at;
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
  return graph_of_call(vm, fn, args, nargs, 0, false, false);
}

qn_value jit_graph_shown(qn_vm *vm, qn_value fn, const qn_value *args, int nargs) {
  return graph_of_call(vm, fn, args, nargs, 0, false, true);
}

qn_value jit_export(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, int ndefaults) {
  return graph_of_call(vm, fn, args, nargs, ndefaults, true, false);
}

/* ---- from text ---------------------------------------------------------------------------------------------------------------------- */

/* What graph_runnable goes through. */
typedef struct runnable {
  arena scratch;
  char *why;
  size_t size;
} runnable;

/* Is a size a number or, in a region, made of numbers of a turn? */
static bool is_sized(const graph *g, qn_dim d, bool region) {
  return d >= 0 || (region && ~d < (qn_dim)g->dims.n && dim_is_number(&g->dims, d));
}

/* Does node i hold rows that a loop keeps? `rows`: which nodes before do, and `inputs`, of a region, which inputs. How many rows there are is no
 * number before the loop has run. So they are only handed on into regions, turned, and read by indices that are checked; nothing follows of
 * their number. */
static bool is_rows(const graph *g, uint32_t i, const bool *rows, const bool *inputs) {
  const graph_node *n = &g->nodes[i], *of = n->nin ? &g->nodes[n->in[0]] : NULL;
  switch ((graph_kind)n->kind) {
  case NODE_INPUT: return inputs && inputs[n->payload.input];
  case NODE_PROJ:
    return of->kind == NODE_LOOP && n->payload.index >= graph_loop_carries(of) &&
           n->payload.index < of->payload.regions[1]->noutputs;
  case NODE_OP:
    if ((n->op != OP_permute && n->op != OP_index) || !rows[n->in[0]]) return false;
    for (int k = 0; k < n->type.rank; k++)
      if (n->type.shape[k] < 0) return true;
    return false;
  default: return false;
  }
}

static bool takes_rows(const graph_node *n, int operand) {
  if (n->kind == NODE_OP) return (n->op == OP_permute || n->op == OP_index) && operand == 0;
  return n->kind == NODE_IF ? operand > 0 : n->kind == NODE_LOOP && (uint32_t)operand >= graph_loop_carries(n);
}

static bool part_runnable(runnable *x, const graph *g, bool region, const bool *inputs);

static bool *flags(runnable *x, size_t n) {
  bool *all = arena_alloc(&x->scratch, n + 1);
  if (!all) snprintf(x->why, x->size, "out of memory");
  return all;
}

/* The regions of a node, into which it may hand rows on. */
static bool regions_runnable(runnable *x, const graph_node *n, const bool *rows) {
  bool *inputs = flags(x, n->nin);
  int first = n->kind == NODE_IF;
  for (int k = first; k < n->nin && inputs; k++) inputs[k - first] = rows[n->in[k]];
  return inputs && part_runnable(x, n->payload.regions[0], true, inputs) &&
         part_runnable(x, n->payload.regions[1], true, inputs);
}

/* graph_runnable for a graph or a region of one. */
static bool part_runnable(runnable *x, const graph *g, bool region, const bool *inputs) {
  bool any = false, *rows = flags(x, g->n);
  for (uint32_t i = 1; i < g->n && rows; i++) {
    const graph_node *n = &g->nodes[i];
    if (n->kind == NODE_TAP && (n->payload.tap != GRAPH_TAP_MADE || n->type.weak)) {
      snprintf(x->why, x->size, "%%%u is an effect, which only the compiler makes", (unsigned)i);
      return false;
    }
    for (int k = 0; k < n->nin; k++) {
      if (!rows[n->in[k]] || takes_rows(n, k)) continue;
      snprintf(x->why, x->size, "%%%u does more with a loop's rows than index them", (unsigned)i);
      return false;
    }
    if (graph_kind_has_regions(n->kind) && !regions_runnable(x, n, rows)) return false;
    any |= rows[i] = is_rows(g, i, rows, inputs);
    bool sized = n->kind != NODE_OP || op_rows[n->op].shape_rule != SH_data;
    for (int k = 0; k < n->type.rank; k++) sized &= rows[i] || is_sized(g, n->type.shape[k], region);
    for (int k = 0; n->attr && k < n->attr->n; k++)
      sized &= is_sized(g, n->attr->d[k], region) || !op_attr_is_dim((op_id)n->op, k);
    if (!sized) {
      snprintf(x->why, x->size, "a size of %%%u is no number", (unsigned)i);
      return false;
    }
  }
  for (uint32_t i = 0; i < g->noutputs && rows; i++) {
    if (!rows[g->outputs[i]]) continue;
    snprintf(x->why, x->size, "it returns the rows of a loop");
    return false;
  }
  if (any && g->dims.nfacts) snprintf(x->why, x->size, "it relies on the number of a loop's rows");
  return rows && !(any && g->dims.nfacts);
}

bool graph_runnable(const graph *g, char *why, size_t size) {
  const char *no = "it returns nothing";
  runnable x = {.why = why, .size = size};
  arena_init(&x.scratch, NULL);
  bool ok = !g->noutputs || part_runnable(&x, g, false, NULL);
  arena_free(&x.scratch);
  if (!ok || (g->noutputs && ranges_fit(g, &no))) return ok;
  snprintf(why, size, "%s", no ? no : "out of memory");
  return false;
}

/* Takes ATTR_PROVEN from all nodes, but (`shown` is a copy, or NULL) from those that have it in the copy, too. */
static bool unprove(graph *g, const graph *shown) {
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i], *other = shown ? &shown->nodes[i] : NULL;
    for (int k = 0; k < 2 && graph_kind_has_regions(n->kind); k++)
      if (!unprove(n->payload.regions[k], other ? other->payload.regions[k] : NULL)) return false;
    bool holds = other && other->attr && (other->attr->flags & ATTR_PROVEN);
    if (n->kind == NODE_OP && n->attr && op_rows[n->op].raises != RAISES_never && (n->attr->flags & ATTR_PROVEN) &&
        !holds && !graph_fix_flags(g, i, n->attr->flags & (uint8_t)~ATTR_PROVEN))
      return false;
  }
  return true;
}

bool graph_unprove(graph *g) {
  graph *shown = graph_copy(g);
  bool ok = shown && unprove(shown, NULL) && ranges_prove(shown) && unprove(g, shown);
  if (shown) graph_free(shown);
  return ok;
}

/* ---- places in texts of graphs ----
 *
 * A graph's text gives the places of nodes as offsets in source texts, by their numbers; so a line "source N = HASH" for each of these texts
 * stands before it. Who reads the graph keeps the places in texts that have the same number and hash, which are those of the program that wrote
 * it. Of other places only the calls remain, by which nodes belong together.
 */

static uint32_t source_hash(const source_text *s) {
  uint64_t h = s->len;
  for (size_t i = 0; i < s->len; i++) h = hash_mix(h, (uint8_t)s->text[i]);
  return (uint32_t)(h >> 32 ^ h);
}

typedef struct sources {
  const qn_vm *vm;
  uint32_t list[32]; /* ascending; places in further texts are not kept */
  uint32_t n;
} sources;

static void collect_sources(sources *s, const graph *g) {
  for (uint32_t i = 1; i < g->nsites; i++) {
    uint32_t number = g->sites[i].at.source, at = s->n;
    while (at > 0 && s->list[at - 1] > number) at--;
    if (!source_get(s->vm, number) || (at > 0 && s->list[at - 1] == number)) continue;
    if (s->n == sizeof s->list / sizeof *s->list) continue;
    memmove(s->list + at + 1, s->list + at, (s->n++ - at) * sizeof *s->list);
    s->list[at] = number;
  }
  for (uint32_t i = 1; i < g->n; i++)
    for (int k = 0; k < 2 && graph_kind_has_regions(g->nodes[i].kind); k++)
      collect_sources(s, g->nodes[i].payload.regions[k]);
}

/* Reads the lines of source texts: collects those that the VM has, too, and returns where the graph itself begins. */
static const char *read_sources(sources *s, const char *text) {
  unsigned number, hash;
  int used;
  while (used = 0, sscanf(text, " source %9u = %8x%n", &number, &hash, &used) == 2 && used) {
    const source_text *own = source_get(s->vm, number);
    if (own && source_hash(own) == hash && s->n < sizeof s->list / sizeof *s->list) s->list[s->n++] = number;
    text += used;
  }
  return text;
}

/* Takes away the places that are in no text of the VM that is known to be the same. */
static void keep_places(const sources *s, graph *g) {
  for (uint32_t i = 1; i < g->nsites; i++) {
    graph_site *x = &g->sites[i];
    bool known = false;
    for (uint32_t k = 0; k < s->n && !known; k++) known = s->list[k] == x->at.source;
    if (!known || x->at.start > x->at.end || x->at.end > source_get(s->vm, x->at.source)->len) x->at = SPAN_NONE;
    if (x->parent >= i) x->parent = 0;
  }
  for (uint32_t i = 1; i < g->n; i++) {
    if (g->nodes[i].site >= g->nsites) g->nodes[i].site = 0;
    for (int k = 0; k < 2 && graph_kind_has_regions(g->nodes[i].kind); k++)
      keep_places(s, g->nodes[i].payload.regions[k]);
  }
}

bool graph_distrust(graph *g) {
  keep_places(&(sources){0}, g); /* places are in programs that are not loaded here */
  return graph_unprove(g);
}

/* The line that says how a graph is called, if one stands at *from, which is moved behind it; owned, or NULL with *ok false or true. */
static char *take_call(qn_vm *vm, const char **from, size_t *bytes, bool *ok) {
  const char *line = *from + strspn(*from, " \n");
  *ok = true;
  if (strncmp(line, "call ", 5) != 0) return NULL;
  size_t n = strcspn(line, "\n");
  *from = line + n;
  char *copy = mem_alloc(vm, *bytes = n + 1);
  if (!copy) return *ok = false, NULL;
  memcpy(copy, line, n);
  copy[n] = 0;
  return copy;
}

/* Fills in how a graph is called whose text does not say it. */
static bool plain_call(qn_vm *vm, graph_body *b) {
  const graph *g = b->call.graph;
  bool ok = true;
  for (uint32_t i = 0; i < g->ninputs && ok; i++)
    ok = pattern_add_input(vm, &b->call.pattern, &g->nodes[g->inputs[i]].type, i);
  tpl_list *t = &b->call.result;
  ok = ok && mem_grow(vm, (void **)&t->tpls, &t->cap, g->noutputs + 1u, sizeof *t->tpls);
  if (ok && g->noutputs > 1) t->tpls[t->n++] = (tpl){.kind = TPL_LIST, .n = g->noutputs, .value = value_nil()};
  for (uint32_t i = 0; i < g->noutputs && ok; i++)
    t->tpls[t->n++] = (tpl){.kind = TPL_OUTPUT, .output = i, .value = value_nil()};
  return ok;
}

/* The graph value of a graph that was read (taken over). `call`: the line that says how it is called, or NULL. */
static qn_value value_of_text(qn_vm *vm, graph *g, const char *call) {
  graph_body *b = body_new(vm);
  if (!b) {
    graph_free(g);
    return value_error();
  }
  b->call.graph = g;
  b->code.anchor.name = "graph";
  char why[256] = "";
  size_t bytes = (g->ninputs + (size_t)1) * sizeof(qn_value);
  qn_value *values = mem_zalloc(vm, bytes), result = value_error(); /* numbers, which need not be released */
  bool ok = values && (call ? call_text_read(vm, call, b, values, why, sizeof why) : plain_call(vm, b));
  if (ok) result = body_value(vm, b, values);
  if (values) mem_free(vm, values, bytes);
  body_release(vm, b);
  if (why[0]) raise_error(vm, E_argument, SPAN_NONE, "graph: the text is no graph that can be run: %s", why);
  return result;
}

qn_value jit_graph_parse(qn_vm *vm, const qn_str *text) {
  char why[256] = "";
  sources known = {.vm = vm};
  const char *from = read_sources(&known, text->text);
  size_t bytes;
  bool room;
  char *call = take_call(vm, &from, &bytes, &room);
  if (!room) return value_error();
  graph *g = strlen(text->text) == text->len ? graph_parse(from, why, sizeof why) : NULL;
  if (g) keep_places(&known, g);
  bool runs = g && graph_runnable(g, why, sizeof why) && graph_unprove(g);
  qn_value result = runs ? value_of_text(vm, g, call) : value_error();
  if (call) mem_free(vm, call, bytes);
  if (!runs) {
    if (g && (g->arena.failed || !why[0])) snprintf(why, sizeof why, "out of memory");
    if (g) graph_free(g);
    return raise_error(vm, E_argument, SPAN_NONE, "graph: the text is no graph that can be run: %s",
                       why[0] ? why : "it holds a NUL");
  }
  return result;
}

/* ---- fields --------------------------------------------------------------------------------------------------------------------------- */

const char *const jit_graph_fields[GRAPH_FIELDS] = {"nodes", "inputs", "outputs"};

/* The record of the node of input i, with one more field that says where the input comes from. */
static qn_value input_item(qn_vm *vm, const void *ctx, uint32_t i) {
  const graph_body *b = ctx;
  const graph *g = b->call.graph;
  text_buf name = {.vm = vm};
  bool bound = false;
  for (uint32_t k = 0; k < b->nbound; k++) bound |= (b->bound ? b->bound[k] : k) == i;
  if (bound)
    text_adds(&name, "bound");
  else if (b->like.head != TAG_UNSET)
    text_adds(&name, "cotangent");
  else
    pattern_input_name(&b->call.pattern, i, &name);
  qn_value text = text_take(&name), node = value_is_error(text) ? text : node_record(vm, g, g->inputs[i]);
  qn_str *key = value_is_error(node) ? NULL : str_intern(vm, "name", 4);
  bool ok = key && record_set(vm, value_record(node), key, text);
  if (key)
    value_release(vm, value_obj(TAG_STR, key));
  else
    value_release(vm, text);
  if (ok) return node;
  return value_fail(vm, node);
}

qn_value jit_graph_field(qn_vm *vm, qn_value v, const char *name) {
  const graph_body *b = body_of(v);
  const graph *g = b->call.graph;
  rec_graph_seen(vm, v);
  if (strcmp(name, "outputs") == 0) return node_ids(vm, g->outputs, g->noutputs);
  if (strcmp(name, "nodes") == 0) return list_of_items(vm, g->n - 1, node_item, g);
  if (strcmp(name, "inputs") == 0) return list_of_items(vm, g->ninputs, input_item, b);
  return value_unset();
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

/* Conditions on bound inputs alone always hold, so they are not mentioned. */
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
  const graph *g = body_of(v)->call.graph;
  sources s = {.vm = out->vm};
  if (s.vm) collect_sources(&s, g);
  for (uint32_t i = 0; i < s.n; i++)
    text_addf(out, "source %u = %08x\n", (unsigned)s.list[i], (unsigned)source_hash(source_get(s.vm, s.list[i])));
  call_text_write(v, out);
  graph_print(g, out);
  if (out->len > from && out->text && out->text[out->len - 1] == '\n') out->text[--out->len] = 0;
}

void graphs_open(qn_vm *vm) { vm->hooks.graph_text = graph_text; }

/* ---- rewriting -------------------------------------------------------------------------------------------------------------------------- */

/* A graph, or a region of one, while it is recorded anew. */
typedef struct rewriting {
  struct recording *r; /* owned */
  const graph *g;      /* the graph that is rewritten */
  qn_value rule;
  node_copy c; /* which node of the recording took the place of each old one */
  /* owned: for each old node, where what took its place begins in the recording; last, where all ends */
  uint32_t *starts;
  /* Owned: for each old node the end of the call that was replaced and that it is a part of, or 0; and graph_last_uses. */
  uint32_t *replaced, *last;
  uint32_t newest; /* for graph_calls_at */
} rewriting;

/* Frees what a rewriting owns; for vm_own. */
static void rewriting_drop(qn_vm *vm, void *what) {
  rewriting *w = what;
  if (w->r) rec_drop(vm, w->r);
  uint32_t *const lists[] = {w->starts, w->replaced, w->last};
  for (int i = 0; i < 3; i++) mem_free(vm, lists[i], (w->g->n + (size_t)1) * sizeof *lists[i]);
  copy_end(&w->c);
}

/* Raises that the value which the rule has given for node i, a result of `what`, has another type than the node. */
static void raise_rewrite(qn_vm *vm, const graph *g, uint32_t i, const char *what, qn_value given) {
  const graph_node *n = &g->nodes[i];
  text_buf t = {.vm = vm};
  text_addf(&t, "rewrite: the rule gives %s for %%%u (%s), which is ", kind_said(given).text, (unsigned)i, what);
  if (n->type.weak)
    text_addf(&t, "a host number of %s", dtype_rows[n->type.dtype].name);
  else
    text_shape(&t, (qn_dtype)n->type.dtype, n->type.rank, n->type.shape);
  raise_text(vm, E_argument, SPAN_NONE, &t);
}

/* The values that took the place of these old nodes as a list, owned, or the error value. */
static qn_value operand_list(rewriting *w, const uint32_t *nodes, uint32_t n) {
  qn_list *l = list_new(w->r->vm, n);
  if (!l) return value_error();
  for (uint32_t k = 0; k < n; k++) {
    qn_value x = rec_value_of(w->r, w->c.map[nodes[k]]);
    if (value_is_error(x)) return value_fail(w->r->vm, value_obj(TAG_LIST, l));
    l->items[k] = x;
  }
  return value_obj(TAG_LIST, l);
}

/* Calls the rule. `record` is taken over. Owned, or the error value. */
static qn_value call_rule(rewriting *w, qn_value record, const uint32_t *operands, uint32_t n) {
  qn_vm *vm = w->r->vm;
  qn_value args[2] = {record, value_error()}, out = value_error();
  if (!value_is_error(record)) args[1] = operand_list(w, operands, n);
  if (!value_is_error(args[1])) {
    vm_owned held[2];
    for (int k = 0; k < 2; k++) vm_own(vm, &held[k], vm_drop_value, &args[k]);
    out = vm->hooks.call(vm, w->rule, args, 2, value_nil());
    vm_disown(vm, &held[0]);
  }
  for (int k = 0; k < 2; k++) value_release(vm, args[k]);
  return out;
}

/* The node in the recording of the value (taken over) that the rule has given for node i, a result of `what`. UINT32_MAX with an error
 * raised. */
static uint32_t given_node(rewriting *w, uint32_t i, const char *what, qn_value out) {
  qn_vm *vm = w->r->vm;
  const graph_type *type = &w->g->nodes[i].type;
  bool number = value_is_scalar(out) || value_is(out, TAG_ARRAY);
  if (number && value_is_scalar(out) && !type->weak && type->rank == 0) {
    qn_value fitted = op_apply(vm, OP_fit, &out, 1, &(op_attr){.dtype = type->dtype});
    out = fitted;
    number = !value_is_error(fitted);
  }
  uint32_t node = number && rec_room(w->r) ? rec_node(w->r, out) : 0;
  if (error_pending(vm)) {
    node = UINT32_MAX;
  } else if (!node || !graph_type_same(&w->r->g->nodes[node].type, type)) {
    raise_rewrite(vm, w->g, i, what, out);
    node = UINT32_MAX;
  }
  value_release(vm, out);
  return node;
}

/* Asks the rule about node i. The node in the recording that takes its place; 0: the node stays as it is; UINT32_MAX: an error is raised. */
static uint32_t ask_rule(rewriting *w, uint32_t i) {
  const graph_node *n = &w->g->nodes[i];
  uint32_t nin = n->kind == NODE_PROJ ? 0 : n->nin; /* the operand of a PROJ is a branch or loop, which is no value */
  qn_value out = call_rule(w, node_record(w->r->vm, w->g, i), n->in, nin);
  if (value_is_error(out)) return UINT32_MAX;
  return value_is(out, TAG_NIL) ? 0 : given_node(w, i, graph_node_word(n), out);
}

/* Asks the rule about a call, whose operands and results these are. 1: it was replaced; 0: it stays as it is; -1: an error is raised. */
static int ask_about_call(rewriting *w, const graph_call *c, const uint32_t *in, uint32_t nin, const uint32_t *outs,
                          uint32_t nouts) {
  qn_vm *vm = w->r->vm;
  uint32_t begin = w->r->g->n;
  told x = {c->name ? c->name : "fn", in, nin, c->site, NULL, value_nil(), value_nil()};
  for (uint32_t s = c->site; s; s = w->g->sites[s].parent)
    if (w->g->sites[s].whole && w->g->sites[s].parent) x.call = w->g->sites[s].function;
  x.parts = list_of_items(vm, c->end - c->first, next_id, &c->first);
  x.attrs = FIELDS_RECORD(vm, {"results", node_ids(vm, outs, nouts)});
  qn_value out = call_rule(w, told_record(vm, w->g, outs[nouts - 1], &x), in, nin);
  if (value_is_error(out)) return -1;
  if (value_is(out, TAG_NIL)) return 0;
  if (nouts > 1 && (!value_is(out, TAG_LIST) || value_list(out)->len != nouts)) {
    value_release(vm, out);
    raise_false(vm, E_argument, "rewrite: %s has %u results here, so the rule gives a list of %u values or nil", x.op,
                (unsigned)nouts, (unsigned)nouts);
    return -1;
  }
  bool ok = true;
  for (uint32_t k = 0; k < nouts && ok; k++) {
    qn_value v = nouts > 1 ? value_retain(value_list(out)->items[k]) : value_retain(out);
    uint32_t node = given_node(w, outs[k], x.op, v);
    ok = node != UINT32_MAX;
    w->c.map[outs[k]] = ok ? node : 0;
  }
  value_release(vm, out);
  for (uint32_t i = c->first; i < c->end; i++) {
    w->starts[i] = i == c->first ? begin : w->r->g->n;
    w->replaced[i] = c->end;
  }
  return ok ? 1 : -1;
}

/* Asks the rule about the calls that begin with node i, the outermost first. The end of the one that was replaced; 0: none was; UINT32_MAX:
 * an error is raised. */
static uint32_t ask_about_calls(rewriting *w, uint32_t i) {
  graph_call calls[GRAPH_CALLS_NESTED];
  uint32_t n = graph_calls_at(w->g, i, &w->newest, calls), end = 0;
  for (uint32_t k = 0; k < n && !end; k++) {
    uint32_t most = graph_call_operands(w->g, &calls[k], NULL, 0);
    uint32_t nouts = graph_call_results(w->g, &calls[k], w->last, NULL, 0);
    if (!nouts) continue;
    size_t bytes = (most + (size_t)nouts) * sizeof(uint32_t);
    uint32_t *lists = mem_alloc(w->r->vm, bytes);
    if (!lists) return UINT32_MAX;
    uint32_t nin = graph_call_operands(w->g, &calls[k], lists, most);
    (void)graph_call_results(w->g, &calls[k], w->last, lists + nin, nouts);
    bool values = true; /* a branch or loop is no value: only what it gives is */
    for (uint32_t m = 0; m < nin + nouts; m++) values &= !graph_kind_has_regions(w->g->nodes[lists[m]].kind);
    vm_memory owned = {lists, bytes};
    vm_owned held;
    vm_own(w->r->vm, &held, vm_drop_memory, &owned);
    int asked = values ? ask_about_call(w, &calls[k], lists, nin, lists + nin, nouts) : 0;
    vm_disown(w->r->vm, &held);
    mem_free(w->r->vm, lists, bytes);
    end = asked < 0 ? UINT32_MAX : asked ? calls[k].end : 0;
  }
  return end;
}

/* Makes a region of the nodes that took the place of an old region's. It is left out if one of its results now comes from outside of it, or
 * an argument from inside. False with an error raised. */
static bool region_anew(rewriting *w, const graph_region *old) {
  graph_region x = *old;
  x.first = w->starts[old->first];
  x.end = w->starts[old->end];
  if (x.first >= x.end) return true;
  if (w->replaced[old->first] >= old->end) return true; /* a part of a call that was replaced */
  region_list *l = &w->r->regions;
  uint32_t *nodes = regions_add(w->r->vm, l, &x);
  if (!nodes) return false;
  bool whole = true;
  for (uint32_t k = 0; k < x.nargs + x.nouts; k++) {
    uint32_t node = nodes[k] = w->c.map[nodes[k]];
    whole &= k < x.nargs ? node < x.first : node >= x.first && node < x.end;
  }
  if (!whole) regions_cut(w->r->vm, l, l->n - 1);
  return true;
}

static bool nodes_anew(rewriting *w);

static bool rewriting_begin(rewriting *w, qn_vm *vm, struct recording *r) {
  w->r = r;
  uint32_t **const lists[] = {&w->starts, &w->replaced, &w->last};
  for (int i = 0; i < 3; i++)
    if (!(*lists[i] = mem_zalloc(vm, (w->g->n + (size_t)1) * sizeof **lists[i]))) return false;
  graph_last_uses(w->g, w->last);
  if (!r || !copy_begin(&w->c, vm, r->g, w->g, 0)) return false;
  r->hollow = r->lenient = true; /* nothing that would break a capture matters here */
  r->grads = 1;
  r->placed = true;
  return true;
}

/* Records region `which` of node i anew, in an arm whose inputs are the node's operands; `first` is the first arm if this is the second.
 * False with an error raised. */
static bool arm_anew(rewriting *w, uint32_t i, int which, struct recording *first, rewriting *arm) {
  qn_vm *vm = w->r->vm;
  const graph_node *n = &w->g->nodes[i];
  *arm = (rewriting){.g = n->payload.regions[which], .rule = w->rule, .c = {.vm = vm}};
  if (!rewriting_begin(arm, vm, rec_arm_begin(w->r, first))) return false;
  struct recording *r = arm->r;
  arm->c.from = arm->g;
  if (!first) r->carries = n->kind == NODE_LOOP ? graph_loop_carries(n) : 0;
  for (uint32_t k = 0; k < arm->g->ninputs; k++) {
    uint32_t at = k + (n->kind == NODE_IF), node = first ? r->g->inputs[k] : arm_operand(r, w->c.map[n->in[at]]);
    if (!(arm->c.map[arm->g->inputs[k]] = node)) return false;
  }
  bool ok = nodes_anew(arm);
  if (ok && r->regions.n)
    ok = raise_false(vm, E_argument,
                     "rewrite: what takes the place of a node in a branch or loop has a derivative of its own "
                     "(custom_grad, checkpoint), which a branch cannot hold");
  for (uint32_t k = 0; k < arm->g->noutputs && ok; k++)
    ok = graph_output(r->g, arm->c.map[arm->g->outputs[k]]) || (raise_memory(vm), false);
  rec_arm_end(r);
  return ok;
}

/* Records node i, which has regions, anew, and asks the rule about the nodes in them. The new node; UINT32_MAX with an error raised. */
static uint32_t regions_anew(rewriting *w, uint32_t i) {
  qn_vm *vm = w->r->vm;
  const graph_node *n = &w->g->nodes[i];
  rewriting arms[2] = {{.r = NULL}, {.r = NULL}};
  vm_owned held[2];
  uint32_t node = 0;
  bool ok = vm_enter(vm, 0);
  for (int k = 0; k < 2; k++) arms[k].g = n->payload.regions[k];
  for (int k = 0; k < 2; k++) vm_own(vm, &held[k], rewriting_drop, &arms[k]);
  for (int k = 0; k < 2 && ok; k++) ok = arm_anew(w, i, k, k ? arms[0].r : NULL, &arms[k]);
  if (ok) {
    op_attr attr = graph_attr(n);
    node = arms_close(w->r, (graph_kind)n->kind, n->kind == NODE_IF ? w->c.map[n->in[0]] : 0,
                      (struct recording *const[]){arms[0].r, arms[1].r}, n->attr ? &attr : NULL, 0);
  }
  vm_disown(vm, &held[0]);
  for (int k = 1; k >= 0; k--) rewriting_drop(vm, &arms[k]);
  return node ? node : UINT32_MAX;
}

/* Is the rule asked about the nodes inside of a branch or loop? Not if it reads rows that a loop has kept, of which nobody knows yet how many
 * there are: then it is copied as it is. */
static bool is_entered(const rewriting *w, const graph_node *n) {
  bool known = graph_kind_has_regions(n->kind);
  for (int k = 0; k < n->nin && known; k++) known = type_is_fixed(&w->g->nodes[n->in[k]].type);
  return known;
}

/* Records all nodes but the inputs, which the map has already, and asks the rule about each. False with an error raised. */
static bool nodes_anew(rewriting *w) {
  struct recording *r = w->r;
  qn_vm *vm = r->vm;
  const graph *g = w->g;
  bool ok = true;
  for (uint32_t i = 1; i < g->n && ok; i++) {
    const graph_node *n = &g->nodes[i];
    w->starts[i] = r->g->n;
    if (n->kind == NODE_INPUT) continue;
    uint32_t end = rec_room(r) ? ask_about_calls(w, i) : UINT32_MAX;
    if (end == UINT32_MAX) return false;
    if (end) {
      graph_call inner[GRAPH_CALLS_NESTED];
      while (i + 1 < end) (void)graph_calls_at(g, ++i, &w->newest, inner);
      continue;
    }
    uint32_t node = 0;
    if (!rec_room(r))
      node = UINT32_MAX;
    else if (is_entered(w, n))
      node = regions_anew(w, i);
    else if (!graph_kind_has_regions(n->kind))
      node = ask_rule(w, i);
    if (node == UINT32_MAX) {
      ok = false;
    } else if (!node) {
      node = copy_node(&w->c, i);
    }
    w->c.map[i] = node;
    ok = ok && node && !vm_poll(vm);
  }
  w->starts[g->n] = r->g->n;
  return ok;
}

static bool record_anew(rewriting *w, const graph_body *from) {
  struct recording *r = w->r;
  const graph *g = w->g;
  bool ok = true;
  for (uint32_t i = 0; i < g->ninputs && ok; i++) ok = copy_input(&w->c, g->inputs[i]);
  ok = ok && nodes_anew(w);
  for (uint32_t i = 0; i < from->call.regions.n && ok; i++) ok = region_anew(w, &from->call.regions.list[i]);
  return (ok && rec_room(r)) || fail_memory(r->vm);
}

/* The graph value made of the new recording, with the pattern and result template of `old`. Its inputs are first those that the rule's
 * values brought along (bound), then the old ones. Owned, or the error value. */
static qn_value rewritten(rewriting *w, qn_value old) {
  struct recording *r = w->r;
  qn_vm *vm = r->vm;
  const graph_body *from = body_of(old);
  const graph *g = w->g;
  graph_body *b = body_new(vm);
  node_list bound = {0};
  uint32_t *lists = b ? mem_alloc(vm, (g->ninputs + g->noutputs + (size_t)1) * sizeof *lists) : NULL;
  qn_value *values = NULL, result = value_error();
  size_t bytes = 0;
  if (!lists) goto done;
  for (uint32_t i = 0; i < g->ninputs; i++) lists[i] = w->c.map[g->inputs[i]];
  for (uint32_t i = 0; i < g->noutputs; i++) lists[g->ninputs + i] = w->c.map[g->outputs[i]];
  if (!body_cut(r, b, 1, lists, g->ninputs, lists + g->ninputs, g->noutputs, &bound)) goto done;
  uint32_t more = bound.n, ninputs = g->ninputs + more;
  bytes = (ninputs + from->ndefaults + (size_t)1) * sizeof *values;
  if (!(values = mem_alloc(vm, bytes)) || !copy_call(vm, &from->call, from->call.pattern.nargs, more, &b->call))
    goto done;
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
  b->code.anchor.name = "graph";
  result = body_value(vm, b, values);
done:
  if (values) mem_free(vm, values, bytes);
  if (lists) mem_free(vm, lists, (g->ninputs + g->noutputs + (size_t)1) * sizeof *lists);
  nodes_free(vm, &bound);
  if (b) body_release(vm, b);
  return result;
}

qn_value jit_graph_rewrite(qn_vm *vm, qn_value g, qn_value rule) {
  if (!rec_effect(vm, "rewrite")) return value_error();
  rewriting w = {.g = body_of(g)->call.graph, .rule = rule, .c = {.vm = vm}};
  qn_value result = value_error();
  vm_owned held;
  vm_own(vm, &held, rewriting_drop, &w);
  if (rewriting_begin(&w, vm, rec_begin(vm, false)) && record_anew(&w, body_of(g))) result = rewritten(&w, g);
  vm_disown(vm, &held);
  rewriting_drop(vm, &w);
  return result;
}
