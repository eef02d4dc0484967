/* Tracers: how a pattern is made of the values of a call that is recorded, and a template of its result.
 *
 * pattern_root walks a value that the call can see (an argument, the function with its captures, a global when it is read), writes its
 * structure down in preorder, and returns a tracer: the same tree, whose arrays and numbers are new graph inputs. Tracers have headers of
 * their own: one array that is reached in two ways is two inputs, since the next call may bring two different arrays.
 *
 * template_make walks the result: what has a node becomes an output of the graph; functions that the call was given are described by where
 * they were among its values, and those that it made will be made anew by each call.
 */
#include <string.h>

#include "jit/trace/breaks.h"
#include "jit/trace/pattern.h"
#include "jit/trace/products.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/sizes.h"
#include "jit/trace/tracers.h"

/* A pattern has at most jit.leaves times this many parts of any kind: a value that shares parts of itself may have endlessly many when it
 * is unfolded. */
enum { PARTS_PER_LEAF = 16 };

/* ---- patterns ---------------------------------------------------------------------------------------------------------------- */

/* Breaks the capture, but does not end the recording: the tracer is then the value itself. False with an error raised. */
static bool give_up(struct recording *r, break_reason why) { return rec_stop_capture(r, why, NULL); }

/* Which part of what a value is; a chain up to the root, which is NULL. */
typedef struct step {
  const struct step *up;
  uint32_t item;
} step;

static qn_value tracer(struct recording *r, qn_value v, int depth, const step *at);

/* Makes *x, the last part of the pattern, the next input of the graph, with the type of v. The node; 0 with an error raised. */
static uint32_t add_input(struct recording *r, pat *x, qn_value v) {
  graph_type t = type_of_value(v);
  uint32_t part = (uint32_t)(x - r->pattern.pats);
  if ((r->wish || r->all_sizes || r->in_stack || r->names) && !t.weak && !sizes_of_input(r, part, r->g->ninputs, &t))
    return 0;
  if (!pattern_set_input(r->vm, &r->pattern, x, &t, r->g->ninputs)) return 0;
  uint32_t node = graph_input(r->g, t, 0);
  if (!node || !rec_room(r)) return fail_memory(r->vm);
  r->pattern.ninputs = r->g->ninputs;
  if (r->pattern.leaves > (uint64_t)r->vm->tune[TUNE_jit_leaves] && !give_up(r, BREAK_too_many_leaves)) return 0;
  return node;
}

static qn_value tracer_array(struct recording *r, pat *x, qn_value v) {
  qn_array *a = value_array(v);
  if (!array_force(r->vm, a)) return value_error();
  qn_array *data = array_view(r->vm, a, (qn_dtype)a->dtype, a->rank, a->shape, a->strides, a->offset);
  if (!data) return value_error();
  uint32_t node = add_input(r, x, v);
  if (!node) return value_fail(r->vm, value_obj(TAG_ARRAY, data));
  x->n = a->device;
  qn_array *made = rec_input(r, node, data);
  return made ? value_obj(TAG_ARRAY, made) : value_error();
}

static qn_value tracer_number(struct recording *r, pat *x, qn_value v) {
  uint32_t part = (uint32_t)(x - r->pattern.pats), node = add_input(r, x, v);
  if (!node) return value_error();
  if (value_is(v, TAG_INT) && !sizes_of_int(r, part, r->g->ninputs - 1, v.u.i)) return value_error();
  r->vals[node] = value_plain(v);
  return value_traced(v, r->base + node);
}

/* The tracer of a function inside a root. Notes where the function is, so that a result that holds it can be described by that. Owned, or
 * the error value. */
static qn_value tracer_fn(struct recording *r, const qn_fn *f, const step *at) {
  qn_vm *vm = r->vm;
  uint32_t steps = 0;
  for (const step *s = at; s; s = s->up) steps++;
  if (!mem_grow(vm, (void **)&r->fns, &r->fns_cap, r->nfns + 1, sizeof *r->fns) ||
      !mem_grow(vm, (void **)&r->fn_paths, &r->fn_paths_cap, r->nfn_paths + steps, sizeof *r->fn_paths))
    return value_error();
  qn_fn *copy = fn_like(vm, f);
  if (!copy) return value_error();
  r->fns[r->nfns] =
      (struct fn_place){value_retain(value_obj(TAG_FN, copy)), r->pattern.nroots - 1, r->nfn_paths, steps};
  copy->stand = ++r->nfns;
  for (const step *s = at; s; s = s->up) r->fn_paths[r->nfn_paths++] = s->item;
  return value_obj(TAG_FN, copy);
}

/* Where a function is among the values of the call; NULL if it is none of them. */
static const struct fn_place *place_of(const struct recording *r, qn_value fn) {
  uint32_t i = value_fn(fn)->stand;
  return i && i <= r->nfns && r->fns[i - 1].tracer.u.p == fn.u.p ? &r->fns[i - 1] : NULL;
}

/* The names of sizes in item i of a list or record, given those of the whole; NULL where there are none. */
static const size_names *names_of_item(const size_names *names, qn_value v, uint32_t i) {
  if (!names || !names->items) return NULL;
  if (value_is(v, TAG_LIST)) return !names->fields && i < names->n ? names->items[i] : NULL;
  for (uint32_t k = 0; names->fields && value_is(v, TAG_RECORD) && k < names->n; k++)
    if (record_find(value_record(v), names->fields[k]) == (int)i) return names->items[k];
  return NULL;
}

/* The tracer of a list, a record or a function: one like it whose parts are tracers. Owned, or the error value. */
static qn_value tracer_parts(struct recording *r, pat *x, qn_value v, int depth, const step *at) {
  qn_vm *vm = r->vm;
  bool fn = value_is(v, TAG_FN);
  x->kind = fn ? PAT_FN : value_is(v, TAG_LIST) ? PAT_LIST : PAT_RECORD;
  const qn_value *from = value_parts(v.u.p, &x->n);
  uint32_t n = x->n;
  if (value_is_stacked(v)) x->tag = TAG_SIGNAL;
  if (fn) {
    const qn_fn *f = value_fn(v);
    x->tag = f->head.flags;
    x->value.u.p = f->code;
    x->layout = code_id(f);
    if (f->head.flags == FN_BUILTIN) return value_retain(v); /* a builtin is the only function with its code */
    if (f->head.flags == FN_USER && n) {
      x->dims = r->pattern.nnames + 1;
      for (uint32_t i = 0; i < n; i++)
        if (!pattern_add_name(vm, &r->pattern, vm->hooks.name_of(vm, v, true, i))) return value_error();
    }
  } else if (x->kind == PAT_RECORD) {
    qn_value names = parts_like(vm, v);
    if (value_is_error(names)) return names;
    x->value = names;
  }
  qn_value copy = fn ? tracer_fn(r, value_fn(v), at) : parts_like(vm, v);
  if (value_is_error(copy)) return copy;
  qn_value *to = value_parts(copy.u.p, &n);
  if (value_is_stacked(v)) r->in_stack = true, r->stack_size = 0, r->nstacks++;
  const size_names *names = r->names;
  for (uint32_t i = 0; i < n; i++) {
    r->names = names_of_item(names, v, i);
    qn_value part = tracer(r, from[i], depth + 1, &(step){at, i});
    if (value_is_error(part)) return value_fail(vm, copy);
    to[i] = part;
  }
  r->names = names;
  if (value_is_stacked(v)) r->in_stack = false;
  return copy;
}

static qn_value tracer(struct recording *r, qn_value v, int depth, const step *at) {
  if (depth > PATTERN_DEPTH && !give_up(r, BREAK_too_deep)) return value_error();
  const uint64_t most = PARTS_PER_LEAF * (uint64_t)r->vm->tune[TUNE_jit_leaves];
  if (r->pattern.n > most && !give_up(r, BREAK_too_many_leaves)) return value_error();
  value_tag tag = value_tag_of(v);
  if (!r->capturing) return value_retain(v);
  pat *x = pattern_add(r->vm, &r->pattern);
  if (!x) return value_error();
  x->tag = (uint8_t)tag;
  switch (tag) {
  case TAG_ARRAY: return tracer_array(r, x, v);
  case TAG_INT:
  case TAG_FLOAT: return tracer_number(r, x, v);
  case TAG_LIST:
  case TAG_RECORD:
  case TAG_FN: return tracer_parts(r, x, v, depth, at);
  default:
    x->kind = PAT_EXACT;
    v.head &= 0xff;
    x->value = value_retain(v);
    return value_retain(v);
  }
}

qn_value pattern_root(struct recording *r, root_kind kind, qn_value v, qn_value *slot, rec_cell *cell, qn_str *name) {
  qn_vm *vm = r->vm;
  pattern *p = &r->pattern;
  uint32_t index = p->nroots, leaves = p->leaves;
  root *x = pattern_add_root(vm, p, kind);
  if (!x) return value_error();
  x->slot = slot;
  x->cell = cell;
  x->name = name;
  if (cell) cell->roots++;
  bool named = kind == ROOT_ARG && r->sizes && p->roots[index].arg < r->sizes->nargs;
  r->names = named ? r->sizes->args[p->roots[index].arg] : NULL;
  qn_value s = tracer(r, v, 0, NULL);
  r->names = NULL;
  if (value_is_error(s)) return s;
  x = &p->roots[index];
  x->by_value = kind == ROOT_GLOBAL && p->leaves == leaves;
  if (x->by_value && r->capturing) cell->watched = 1;
  x->tracer = value_retain(s);
  return s;
}

/* Does the result of this op lie in memory as its first operand does? */
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

/* Is it a branch or loop with products by a device's library? */
static bool has_products(const graph_node *n) {
  return graph_kind_has_regions(n->kind) &&
         (products_any(n->payload.regions[0]) || products_any(n->payload.regions[1]));
}

bool pattern_fix_layouts(struct recording *r) {
  qn_vm *vm = r->vm;
  const graph *g = r->g;
  bool any = false;
  for (uint32_t i = 1; i < g->n && !any; i++)
    any = (g->nodes[i].kind == NODE_OP && g->nodes[i].op == OP_dot && g->nodes[i].attr != NULL) ||
          has_products(&g->nodes[i]);
  if (!any) return true;
  uint8_t *seen = mem_zalloc(vm, g->n);
  if (!seen) return false;
  for (uint32_t i = g->n - 1; i > 0; i--) {
    const graph_node *n = &g->nodes[i];
    bool dot = n->kind == NODE_OP && n->op == OP_dot && n->attr != NULL;
    if (dot || (seen[i] && n->kind == NODE_OP && passes_layout(n)))
      for (int k = 0; k < (dot ? 2 : 1); k++) seen[n->in[k]] = 1;
    for (int k = 0; has_products(n) && k < n->nin; k++) seen[n->in[k]] = 1;
  }
  for (uint32_t k = 0; k < r->pattern.n; k++) {
    pat *x = &r->pattern.pats[k];
    uint32_t i = x->kind == PAT_ARRAY ? g->inputs[x->input] : 0;
    if (seen[i] && value_is(r->vals[i], TAG_ARRAY)) x->layout = layout_code(value_array(r->vals[i]));
  }
  mem_free(vm, seen, g->n);
  return true;
}

/* ---- templates --------------------------------------------------------------------------------------------------------------- */

static bool output_of(struct recording *r, node_list *nodes, tpl *x, uint32_t node) {
  if (nodes) {
    x->output = nodes->n;
    return nodes_add(r->vm, nodes, node);
  }
  uint32_t known = key_number(&r->output_numbers, node);
  x->output = known ? known - 1 : r->g->noutputs;
  if (known) return true;
  if (graph_output(r->g, node)) return key_add(r->vm, &r->output_numbers, node, x->output + 1);
  return fail_memory(r->vm);
}

bool template_output(struct recording *r, uint32_t node, uint32_t *number) {
  tpl x;
  bool ok = output_of(r, NULL, &x, node);
  *number = ok ? x.output + 1 : 0;
  return ok;
}

/* Adds to a template a function that the call was given. False with an error raised. */
static bool give(struct recording *r, tpl_list *out, const struct fn_place *f) {
  qn_vm *vm = r->vm;
  const root *from = &r->pattern.roots[f->root];
  uint32_t need = out->npaths + f->steps + 2;
  if (!mem_grow(vm, (void **)&out->paths, &out->paths_cap, need, sizeof *out->paths)) return false;
  tpl *x = template_add(vm, out, TPL_GIVEN);
  if (!x) return false;
  x->n = f->steps;
  x->output = out->npaths;
  out->paths[out->npaths++] = from->kind;
  out->paths[out->npaths++] = from->kind == ROOT_ARG ? from->arg : f->root;
  for (uint32_t i = 0; i < f->steps; i++) out->paths[out->npaths++] = r->fn_paths[f->path + i];
  return true;
}

/* The number of a new function, if the template has it already, from part number `from` on; else 0. */
static uint32_t made_before(const tpl_list *t, uint32_t from, qn_value fn) {
  uint32_t i = value_fn(fn)->stand;
  const tpl *x = i > from && i <= t->n ? &t->tpls[i - 1] : NULL;
  return x && x->kind == TPL_FN && fn_same(x->value, fn) ? x->output : 0;
}

/* How a template is made. */
typedef struct making {
  struct recording *r;
  tpl_list *out;
  node_list *nodes; /* outputs are numbers of this list; NULL: they are outputs of the graph */
  /* what values are parts of; unset for the template of a specialization, whose parts are bounded like those of a pattern */
  qn_value whole;
  bool texts;    /* texts that wait may be among the values */
  uint32_t from; /* where the part begins that is made when the call is: one of several (TPL_CHOICE) */
  break_reason broken;
} making;

/* Adds v to the template. False: m->broken says why it cannot be done, or an error is raised. */
static bool make(making *m, qn_value v, int depth) {
  struct recording *r = m->r;
  qn_vm *vm = r->vm;
  tpl_list *out = m->out;
  node_list *nodes = m->nodes;
  if (value_is(m->whole, TAG_UNSET) ? out->n > PARTS_PER_LEAF * (uint64_t)vm->tune[TUNE_jit_leaves]
                                    : out->n == PLACES_LOOK && tree_is_endless(vm, m->whole, true)) {
    m->broken = BREAK_too_many_leaves;
    return false;
  }
  if (depth > PATTERN_DEPTH) {
    m->broken = BREAK_too_deep;
    return false;
  }
  uint32_t node = rec_traced(r, v);
  if (!node && nodes && (value_is(v, TAG_ARRAY) || rec_traced_around(r, v)) && !(node = rec_node(r, v))) return false;
  if (node && value_is_operand(v)) {
    tpl *x = template_add(vm, out, TPL_OUTPUT);
    return x && output_of(r, nodes, x, node);
  }
  const struct waiting_text *text = rec_text_of(r, v);
  if (text && (!m->texts || !text->in)) {
    m->broken = BREAK_host_read;
    return false;
  }
  if (text) {
    tpl *x = template_add(vm, out, TPL_TEXT);
    if (!x) return false;
    x->n = 1;
    x->def = text->def;
    return make(m, text->parts, depth + 1);
  }
  tpl_kind kind = TPL_VALUE;
  bool makes = false; /* the call makes this function anew */
  switch (value_tag_of(v)) {
  case TAG_ARRAY: m->broken = BREAK_untracked_result; return false;
  case TAG_LIST:
    kind = TPL_LIST;
    out->stacks |= value_is_stacked(v);
    break;
  case TAG_RECORD: kind = TPL_RECORD; break;
  case TAG_FN: {
    const struct fn_place *given = nodes ? NULL : place_of(r, v);
    if (given) return give(r, out, given);
    sizes_of_graph(r, v);
    makes = !nodes && value_fn(v)->id > r->last_fn;
    uint32_t number = makes ? made_before(out, m->from, v) : 0;
    if (number) {
      tpl *x = template_add(vm, out, TPL_AGAIN);
      if (x) x->output = number;
      return x != NULL;
    }
    if (makes || value_fn(v)->ncaptures) kind = TPL_FN;
    break;
  }
  default: break;
  }
  tpl *x = template_add(vm, out, kind);
  if (!x) return false;
  if (kind == TPL_VALUE) {
    x->value = value_retain(value_is_scalar(v) ? value_plain(v) : v);
    return true;
  }
  const qn_value *parts = value_parts(v.u.p, &x->n);
  uint32_t n = x->n;
  if (kind != TPL_LIST) {
    qn_value bare = parts_like(vm, v);
    if (value_is_error(bare)) return false;
    x->value = bare;
  }
  if (makes) {
    x->output = ++out->made;
    value_fn(v)->stand = out->n;
  }
  for (uint32_t i = 0; i < n; i++)
    if (!make(m, parts[i], depth + 1)) return false;
  return true;
}

/* Adds one of several results (recording.choice) to the template, and all of them. False as make. */
static bool make_choice(making *m, const qn_list *l) {
  uint32_t node = rec_traced(m->r, l->items[0]);
  tpl *x = template_add(m->r->vm, m->out, TPL_CHOICE);
  if (!x || !node) return false;
  x->n = l->len - 1;
  if (!output_of(m->r, NULL, x, node)) return false;
  for (uint32_t i = 1; i < l->len; i++) {
    m->from = m->out->n;
    if (!make(m, l->items[i], 0)) return false;
  }
  return true;
}

bool template_make(struct recording *r, qn_value v, tpl_list *out, break_reason *broken) {
  making m = {.r = r, .out = out, .whole = value_unset(), .texts = true};
  bool ok = r->choice ? make_choice(&m, value_list(v)) : make(&m, v, 0);
  if (m.broken) *broken = m.broken;
  return ok;
}

bool template_of_nodes(struct recording *r, qn_value v, tpl_list *out, node_list *nodes) {
  making m = {.r = r, .out = out, .nodes = nodes, .whole = v};
  if (make(&m, v, 0)) return true;
  if (m.broken == BREAK_host_read)
    return raise_false(r->vm, E_no_graph, "a text that is made of data is no part of a graph");
  return m.broken == BREAK_too_deep ? raise_false(r->vm, E_recursion, "a value nests too deep") : fail_memory(r->vm);
}

/* Is it no function of the program? What such a one holds may change from call to call in ways that a template does not tell. */
static bool is_no_fn(void *ctx, qn_value v) {
  (void)ctx;
  return !value_is(v, TAG_FN) || value_fn(v)->head.flags == FN_BUILTIN;
}

bool template_of_tap(struct recording *r, qn_value v, tpl_list *out, node_list *nodes, break_reason *broken) {
  *broken = BREAK_none;
  making m = {.r = r, .out = out, .nodes = nodes, .whole = v, .texts = true};
  if (tree_each_part(r->vm, v, is_no_fn, NULL)) {
    bool ok = make(&m, v, 0);
    *broken = m.broken;
    return ok;
  }
  if (!error_pending(r->vm)) *broken = BREAK_effect;
  return false;
}
