/* Graphs as bytes: what a file of a graph value holds (README.md has the form; stdlib/qnx.c is the file around it).
 *
 * The description is written in one walk over the body: the graph's text without places, the values that it is bound to, the pattern
 * of its arguments, the template of its result, guards, random inputs, and regions. Elements are not copied: runs point at them.
 *
 * What a program's functions are made of is not written: a result or an argument that holds one is refused. One exception is made,
 * since gradients need it: the backward function of a custom_grad is recorded, too, on arguments of the region's types, and becomes a
 * graph inside the graph.
 */
#include <string.h>

#include "jit/trace/gradients.h"
#include "jit/trace/graphs.h"
#include "jit/trace/pattern.h"
#include "jit/trace/specialization.h"
#include "jit/trace/vmap.h"

enum { IN_TEXT = 256 }; /* constants of fewer bytes stand in the text */

typedef struct serializer {
  qn_vm *vm;
  graph_serialize *out;
  int depth; /* of values and graphs in one another */
} serializer;

/* ---- numbers, texts, runs ---------------------------------------------------------------------------------------------------- */

static void w_int(serializer *p, uint64_t x, int bytes) {
  char b[8];
  for (int i = 0; i < bytes; i++) b[i] = (char)(x >> 8 * i);
  text_add(&p->out->text, b, (size_t)bytes);
}

static void w_u8(serializer *p, int x) { w_int(p, (uint64_t)x, 1); }
static void w_u32(serializer *p, uint32_t x) { w_int(p, x, 4); }

static void w_text(serializer *p, const char *s, size_t len) {
  w_u32(p, (uint32_t)len);
  text_add(&p->out->text, s, len);
}

static void w_field(serializer *p, qn_value record, uint32_t i) {
  const qn_str *name = record_name(value_record(record), i);
  w_text(p, name->text, name->len);
}

static void w_name(serializer *p, const char *s) { w_text(p, s, strlen(s)); }

static void w_shape(serializer *p, qn_dtype dtype, int rank, const int64_t *shape) {
  w_name(p, dtype_rows[dtype].name);
  w_u8(p, rank);
  for (int i = 0; i < rank; i++) w_int(p, (uint64_t)shape[i], 8);
}

static bool keep(serializer *p, qn_value v) { return list_push(p->vm, value_list(p->out->kept), v); }

static bool add_run(void *ctx, const void *data, size_t bytes) {
  serializer *p = ctx;
  graph_serialize *o = p->out;
  if (!mem_grow(p->vm, (void **)&o->runs, &o->cap, o->n + 1, sizeof *o->runs)) return false;
  o->runs[o->n++] = (struct graph_run){data, bytes};
  return true;
}

/* ---- values --------------------------------------------------------------------------------------------------------------------- */

static bool w_graph(serializer *p, qn_value g);

static bool refuse(serializer *p, const char *what, qn_value v) {
  text_buf t;
  text_init(&t, p->vm);
  text_addf(&t,
            "a graph with %s cannot be written: a file holds arrays, numbers, texts, and lists and records of these; "
            "this is ",
            what);
  text_kind(&t, v);
  raise_text(p->vm, E_type, SPAN_NONE, &t);
  return false;
}

/* Of a cotangent's prototype, dtype and shape are all there is. */
static bool w_array(serializer *p, qn_array *a, bool prototype) {
  w_u8(p, prototype ? 'p' : 'a');
  w_shape(p, (qn_dtype)a->dtype, a->rank, a->shape);
  if (prototype) return true;
  qn_array *here = array_to_cpu(p->vm, a);
  if (!here || !keep(p, value_obj(TAG_ARRAY, here))) return false;
  size_t bytes = (size_t)here->size * dtype_size((qn_dtype)here->dtype);
  return bytes == 0 || add_run(p, array_data(here), bytes);
}

static bool w_value(serializer *p, qn_value v, const char *what, bool prototypes) {
  if (p->depth > PATTERN_DEPTH || !vm_enter(p->vm, 0)) {
    if (!error_pending(p->vm)) raise_error(p->vm, E_recursion, SPAN_NONE, "a value nests too deep");
    return false;
  }
  bool ok = true;
  p->depth++;
  switch (value_tag_of(v)) {
  case TAG_NIL: w_u8(p, 'n'); break;
  case TAG_BOOL: w_u8(p, v.u.i ? 't' : 'f'); break;
  case TAG_INT:
  case TAG_FLOAT: /* the bits are in the same place */
    w_u8(p, value_is(v, TAG_INT) ? 'i' : 'd');
    w_int(p, (uint64_t)v.u.i, 8);
    break;
  case TAG_STR:
    w_u8(p, 's');
    w_text(p, value_str(v)->text, value_str(v)->len);
    break;
  case TAG_DTYPE:
    w_u8(p, 'y');
    w_name(p, dtype_rows[v.u.i].name);
    break;
  case TAG_DEVICE:
    w_u8(p, 'v');
    w_u8(p, (int)v.u.i);
    break;
  case TAG_RANGE:
    w_u8(p, 'e');
    w_int(p, (uint64_t)value_range(v)->start, 8);
    w_int(p, (uint64_t)value_range(v)->stop, 8);
    w_int(p, (uint64_t)value_range(v)->step, 8);
    break;
  case TAG_LIST:
    w_u8(p, 'l');
    w_u32(p, value_list(v)->len);
    for (uint32_t i = 0; i < value_list(v)->len && ok; i++) ok = w_value(p, value_list(v)->items[i], what, prototypes);
    break;
  case TAG_RECORD:
    w_u8(p, 'r');
    w_u32(p, value_record(v)->len);
    for (uint32_t i = 0; i < value_record(v)->len && ok; i++) {
      w_field(p, v, i);
      ok = w_value(p, value_record(v)->items[i], what, prototypes);
    }
    break;
  case TAG_ARRAY: ok = w_array(p, value_array(v), prototypes); break;
  case TAG_FN:
    if (value_is_graph(v)) {
      w_u8(p, 'g');
      ok = w_graph(p, v);
      break;
    } /* fall through */
  default: ok = refuse(p, what, v);
  }
  p->depth--;
  return ok;
}

/* ---- patterns and templates ------------------------------------------------------------------------------------------------------- */

/* The pattern at *at, which then stands behind it. Patterns nest no deeper than PATTERN_DEPTH. */
static bool w_pattern(serializer *p, const pattern *from, uint32_t *at) {
  const pat *x = &from->pats[(*at)++];
  switch ((pat_kind)x->kind) {
  case PAT_ARRAY:
    w_u8(p, 'a');
    w_shape(p, (qn_dtype)x->dtype, x->rank, from->dims + x->dims);
    w_u32(p, x->input);
    return true;
  case PAT_SCALAR:
    w_u8(p, x->tag == TAG_INT ? 'i' : x->tag == TAG_FLOAT ? 'd' : 'b');
    w_u32(p, x->input);
    return true;
  case PAT_EXACT: w_u8(p, 'v'); return w_value(p, x->value, "such an argument", false);
  case PAT_FN:
    raise_error(p->vm, E_type, SPAN_NONE,
                "a graph with a function among its arguments cannot be written: let the function that is exported take "
                "arrays alone");
    return false;
  case PAT_LIST:
  case PAT_RECORD: break;
  }
  w_u8(p, x->kind == PAT_LIST ? 'l' : 'r');
  w_u32(p, x->n);
  for (uint32_t i = 0; i < x->n; i++) {
    if (x->kind == PAT_RECORD) w_field(p, x->value, i);
    if (!w_pattern(p, from, at)) return false;
  }
  return true;
}

static bool w_body(serializer *p, const graph_body *b);

static bool w_template(serializer *p, const tpl_list *from, uint32_t *at) {
  const tpl *x = &from->tpls[(*at)++];
  switch ((tpl_kind)x->kind) {
  case TPL_OUTPUT:
    w_u8(p, 'o');
    w_u32(p, x->output);
    return true;
  case TPL_VALUE: w_u8(p, 'v'); return w_value(p, x->value, "such a result", false);
  case TPL_FN:
    if (!value_is_graph(x->value)) return refuse(p, "such a result", x->value);
    w_u8(p, 'g');
    if (!w_body(p, body_of(x->value))) return false;
    break;
  case TPL_AGAIN: /* in the file each place has a function of its own */
    for (uint32_t i = 0; i < from->n; i++)
      if (from->tpls[i].kind == TPL_FN && from->tpls[i].output == x->output) return w_template(p, from, &i);
    return false;
  case TPL_GIVEN: return refuse(p, "such a result", value_nil());
  case TPL_LIST: w_u8(p, 'l'); break;
  case TPL_RECORD: w_u8(p, 'r'); break;
  }
  w_u32(p, x->n);
  for (uint32_t i = 0; i < x->n; i++) {
    if (x->kind == TPL_RECORD) w_field(p, x->value, i);
    if (!w_template(p, from, at)) return false;
  }
  return true;
}

static bool w_whole_template(serializer *p, const tpl_list *t) {
  uint32_t at = 0;
  return w_template(p, t, &at);
}

/* ---- guards ------------------------------------------------------------------------------------------------------------------------- */

static bool w_guards(serializer *p, const specialization *e) {
  bool ok = true;
  w_u32(p, e->nguards);
  for (uint32_t i = 0; i < e->nguards && ok; i++) {
    const scalar_guard *x = &e->guards[i];
    if (x->op == GUARD_INPUT) {
      w_u8(p, 'i');
      w_u32(p, x->in[0]);
    } else if (x->op == GUARD_CONST) {
      w_u8(p, 'c');
      ok = w_value(p, x->value, "such a number", false);
    } else {
      w_u8(p, 'o');
      w_name(p, op_rows[x->op].name);
      w_name(p, dtype_rows[x->dtype].name);
      w_u8(p, x->nin);
      for (int k = 0; k < x->nin; k++) w_u32(p, x->in[k]);
    }
    w_u8(p, x->compare);
    if (ok && x->compare) ok = w_value(p, x->value, "such a number", false);
  }
  return ok;
}

/* ---- regions -------------------------------------------------------------------------------------------------------------------------- */

/* The number that a node must be for the graph to be called at all, or one that it may be. */
static qn_value number_like(const graph_body *b, const graph_node *n) {
  const specialization *e = &b->call;
  if (n->kind == NODE_CONST) return dtype_load((qn_dtype)n->type.dtype, n->payload.data);
  for (uint32_t i = 0; i < e->nguards && n->kind == NODE_INPUT; i++)
    if (e->guards[i].op == GUARD_INPUT && e->guards[i].compare && e->guards[i].in[0] == n->payload.input)
      return e->guards[i].value;
  return dtype_scalar(n->type.dtype, 1, 1);
}

/* Some value of a node's type. Owned. */
static qn_value value_like(qn_vm *vm, const graph_body *b, const graph_node *n) {
  if (n->type.weak) return number_like(b, n);
  qn_array *a = array_new(vm, (qn_dtype)n->type.dtype, n->type.rank, n->type.shape);
  if (!a) return value_error();
  memset(array_data(a), 0, (size_t)a->size * dtype_size((qn_dtype)a->dtype));
  a = array_settle(vm, a);
  return a ? value_obj(TAG_ARRAY, a) : value_error();
}

/* A template filled with values of the types that these nodes have. Owned. */
static qn_value template_like(qn_vm *vm, const graph_body *b, const tpl_list *t, const uint32_t *nodes, uint32_t n) {
  qn_list *l = list_new(vm, n);
  if (!l) return value_error();
  bool ok = true;
  for (uint32_t i = 0; i < n && ok; i++) {
    qn_value v = value_like(vm, b, &b->call.graph->nodes[nodes[i]]);
    ok = !value_is_error(v);
    if (ok) l->items[i] = v;
  }
  qn_value result = ok ? template_build(vm, t, l->items, NULL) : value_error();
  value_release(vm, value_obj(TAG_LIST, l));
  return result;
}

/* The backward function of a region's rule as a graph. Owned. */
static qn_value rule_graph(qn_vm *vm, const graph_body *b, const graph_region *x) {
  const region_rule *rule = x->rule;
  if (value_is_graph(rule->backward)) return value_retain(rule->backward);
  qn_value args = template_like(vm, b, &rule->args, x->args, x->nargs), result = value_error(), *mark = vm->sp;
  if (value_is_error(args)) return args;
  const qn_list *l = value_list(args);
  qn_value ct = template_like(vm, b, &rule->cts, x->outs, x->nouts);
  if (!value_is_error(ct) && vm_enter(vm, l->len + (size_t)1)) {
    *vm->sp++ = ct;
    for (uint32_t i = 0; i < l->len; i++) *vm->sp++ = value_retain(l->items[i]);
    result = jit_graph(vm, rule->backward, mark, (int)l->len + 1);
    if (value_is_error(result) && vm->error)
      raise_note(vm, SPAN_NONE,
                 "a custom_grad's backward function is written with the graph, and has to be one graph, too");
  } else if (!value_is_error(ct)) {
    value_release(vm, ct);
  }
  vm_pop_to(vm, mark);
  value_release(vm, args);
  return result;
}

static bool w_regions(serializer *p, const graph_body *b) {
  bool ok = true;
  w_u32(p, b->regions.n);
  for (uint32_t i = 0; i < b->regions.n && ok; i++) {
    const graph_region *x = &b->regions.list[i];
    const region_rule *rule = x->rule;
    w_u32(p, x->first);
    w_u32(p, x->end);
    w_u32(p, x->nargs);
    w_u32(p, x->nouts);
    for (uint32_t k = 0; k < x->nargs; k++) w_u32(p, x->args[k]);
    for (uint32_t k = 0; k < x->nouts; k++) w_u32(p, x->outs[k]);
    w_u8(p, rule ? 'r' : 'a');
    if (!rule) continue;
    qn_value backward = rule_graph(p->vm, b, x);
    ok = !value_is_error(backward) && keep(p, backward);
    if (ok) w_u32(p, rule->lanes);
    ok = ok && w_graph(p, backward) && w_whole_template(p, &rule->cts) && w_whole_template(p, &rule->args) &&
         w_whole_template(p, &rule->like);
  }
  return ok;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------------------------------ */

static bool w_text_of(serializer *p, const graph *g) {
  char why[256] = "";
  if (!graph_runnable(g, why, sizeof why)) {
    raise_error(p->vm, E_argument, SPAN_NONE, "this graph cannot be written: %s", why);
    return false;
  }
  text_buf t;
  text_init(&t, p->vm);
  graph_print_apart(g, &(graph_store){.least = IN_TEXT, .ctx = p, .put = add_run}, &t);
  bool ok = !t.failed;
  if (ok) w_text(p, t.text ? t.text : "", t.len);
  text_free(&t);
  if (!ok && !error_pending(p->vm)) raise_memory(p->vm);
  return ok;
}

/* All of a graph but what it is bound to. */
static bool w_body(serializer *p, const graph_body *b) {
  const specialization *e = &b->call;
  if (p->depth > PATTERN_DEPTH || !vm_enter(p->vm, 0)) {
    if (!error_pending(p->vm)) raise_error(p->vm, E_recursion, SPAN_NONE, "graphs nest too deep");
    return false;
  }
  if (!w_text_of(p, e->graph)) return false;
  p->depth++;
  uint32_t nparams = value_is(b->params, TAG_LIST) ? value_list(b->params)->len : 0;
  w_u32(p, nparams);
  for (uint32_t i = 0; i < nparams; i++) {
    const qn_str *name = value_str(value_list(b->params)->items[i]);
    w_text(p, name->text, name->len);
  }
  w_u8(p, b->rest);
  w_u32(p, b->ndefaults);
  w_u32(p, b->nbound);
  for (uint32_t i = 0; i < b->nbound; i++) w_u32(p, b->bound ? b->bound[i] : i);
  bool pullback = b->like.head != TAG_UNSET, ok = true;
  w_u8(p, pullback);
  if (pullback) ok = w_value(p, b->like, "such a cotangent", true);
  const pattern *args = &e->pattern;
  w_u32(p, args->nargs);
  for (uint32_t i = 0; i < args->nroots && ok; i++) {
    uint32_t at = args->roots[i].first;
    ok = w_pattern(p, args, &at);
  }
  ok = ok && w_whole_template(p, &e->result) && w_guards(p, e);
  w_u32(p, e->draw_input);
  w_u32(p, e->key_inputs[0]);
  w_u32(p, e->key_inputs[1]);
  w_int(p, e->ndraws, 8);
  ok = ok && w_regions(p, b);
  p->depth--;
  return ok;
}

static bool w_graph(serializer *p, qn_value g) {
  const graph_body *b = body_of(g);
  bool ok = w_body(p, b);
  for (uint32_t i = 0; i < b->nbound + b->ndefaults && ok; i++)
    ok = w_value(p, value_fn(g)->captures[i], "such a value", false);
  return ok;
}

bool jit_graph_serialize(qn_vm *vm, qn_value g, graph_serialize *out) {
  *out = (graph_serialize){.kept = value_nil()};
  text_init(&out->text, vm);
  qn_list *kept = list_new(vm, 0);
  if (!kept) return false;
  out->kept = value_obj(TAG_LIST, kept);
  serializer p = {.vm = vm, .out = out};
  if (!keep(&p, value_retain(g)) || !w_graph(&p, g)) return false;
  if (out->text.failed) raise_memory(vm);
  return !out->text.failed;
}

void graph_serialize_free(qn_vm *vm, graph_serialize *p) {
  text_free(&p->text);
  mem_free(vm, p->runs, p->cap * sizeof *p->runs);
  value_release(vm, p->kept);
  *p = (graph_serialize){.kept = value_nil()};
}
