/* Graphs from bytes: the reader of what serialize.c writes (README.md has the form). It trusts nothing: whoever made the bytes may have
 * made their hash, too.
 *
 * Every count is compared with the bytes that are left before memory is taken for it. The graph's text goes through the parser and
 * the verifier and loses its proofs. Each input must have one source (an argument, a bound value, the random counter) of its very
 * type, every output number, node number and reference among guards must exist, and regions must nest as recorded ones do. What
 * passes is as good as a graph that was recorded; what a hostile graph computes is limited by what limits programs.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "jit/cpu/eager.h"
#include "jit/trace/gradients.h"
#include "jit/trace/graphs.h"
#include "jit/trace/pattern.h"
#include "jit/trace/recording.h"
#include "jit/trace/specialization.h"
#include "jit/trace/vmap.h"

enum { REGION_DEPTH = 64, GRAPH_DEPTH = 8 };

typedef struct deserializer {
  qn_vm *vm;
  const uint8_t *p, *end;         /* what is left of the description */
  const uint8_t *data, *data_end; /* and of the elements */
  const uint8_t *data_start;
  char *why;
  size_t size;
  int depth, graphs;
} deserializer;

/* Says what is wrong, unless something was before. */
__attribute__((format(printf, 2, 3))) static bool wrong(deserializer *u, const char *format, ...) {
  if (u->why[0] || error_pending(u->vm)) return false;
  va_list args;
  va_start(args, format);
  vsnprintf(u->why, u->size, format, args);
  va_end(args);
  return false;
}

static bool ended(deserializer *u) { return wrong(u, "the description ends early"); }

/* ---- numbers, texts, runs ---------------------------------------------------------------------------------------------------- */

static bool r_int(deserializer *u, int bytes, uint64_t *out) {
  *out = 0;
  if (u->end - u->p < bytes) return ended(u);
  for (int i = 0; i < bytes; i++) *out |= (uint64_t)*u->p++ << 8 * i;
  return true;
}

static bool r_u8(deserializer *u, uint8_t *out) {
  uint64_t x = 0;
  if (!r_int(u, 1, &x)) return false;
  *out = (uint8_t)x;
  return true;
}

static bool r_u32(deserializer *u, uint32_t *out) {
  uint64_t x = 0;
  if (!r_int(u, 4, &x)) return false;
  *out = (uint32_t)x;
  return true;
}

static bool r_bool(deserializer *u, bool *out) {
  uint8_t x = 0;
  if (!r_u8(u, &x)) return false;
  *out = x != 0;
  return x <= 1 || wrong(u, "a mark is neither 0 nor 1");
}

/* How many things follow, each of at least `each` bytes. */
static bool r_count(deserializer *u, size_t each, uint32_t *out) {
  return r_u32(u, out) && (*out <= (size_t)(u->end - u->p) / each || ended(u));
}

static bool r_text(deserializer *u, const char **text, uint32_t *len) {
  if (!r_count(u, 1, len)) return false;
  *text = (const char *)u->p;
  u->p += *len;
  return true;
}

/* An interned name; NULL if there is none. */
static qn_str *r_name(deserializer *u) {
  const char *text;
  uint32_t len;
  if (!r_text(u, &text, &len)) return NULL;
  if (!utf8_valid(text, len) || memchr(text, 0, len)) {
    wrong(u, "a name is not UTF-8");
    return NULL;
  }
  return str_intern(u->vm, text, len);
}

static bool r_dtype(deserializer *u, uint8_t *out) {
  const char *text;
  uint32_t len;
  if (!r_text(u, &text, &len)) return false;
  qn_dtype d = dtype_find(text, len);
  *out = (uint8_t)d;
  return dtype_public((int)d) || wrong(u, "there is no dtype %.*s", (int)(len < 20 ? len : 20), text);
}

static bool r_shape(deserializer *u, graph_type *t) {
  *t = (graph_type){0};
  if (!r_dtype(u, &t->dtype) || !r_u8(u, &t->rank)) return false;
  if (t->rank > ARRAY_MAX_RANK) return wrong(u, "an array has %d axes", t->rank);
  for (int i = 0; i < t->rank; i++) {
    uint64_t x = 0;
    if (!r_int(u, 8, &x)) return false;
    t->shape[i] = (int64_t)x;
  }
  int64_t strides[ARRAY_MAX_RANK];
  return shape_strides(t->rank, t->shape, strides) >= 0 || wrong(u, "an array has an impossible shape");
}

/* The next run of elements; NULL if there are not so many bytes. */
static const void *take_run(void *ctx, size_t bytes) {
  deserializer *u = ctx;
  size_t at = (size_t)(u->data - u->data_start), to = (at + GRAPH_RUN_ALIGN - 1) / GRAPH_RUN_ALIGN * GRAPH_RUN_ALIGN;
  if (to - at > (size_t)(u->data_end - u->data) || bytes > (size_t)(u->data_end - u->data) - (to - at)) {
    wrong(u, "elements are missing");
    return NULL;
  }
  const uint8_t *run = u->data + (to - at);
  u->data = run + bytes;
  return run;
}

/* ---- values --------------------------------------------------------------------------------------------------------------------- */

static qn_value r_graph(deserializer *u);
static qn_value r_value(deserializer *u, bool prototypes);

static qn_value r_array(deserializer *u, bool prototype) {
  graph_type t;
  if (!r_shape(u, &t)) return value_error();
  if (prototype) {
    qn_array *a = array_new_header(u->vm, (qn_dtype)t.dtype, t.rank, t.shape);
    return a ? value_obj(TAG_ARRAY, a) : value_error();
  }
  int64_t strides[ARRAY_MAX_RANK];
  size_t bytes = (size_t)shape_strides(t.rank, t.shape, strides) * dtype_size((qn_dtype)t.dtype);
  const uint8_t *from = bytes ? take_run(u, bytes) : NULL;
  if (bytes && !from) return value_error();
  qn_array *a = array_new(u->vm, (qn_dtype)t.dtype, t.rank, t.shape);
  if (!a) return value_error();
  if (bytes) memcpy(array_data(a), from, bytes);
  for (size_t i = 0; i < bytes && dtype_is_bool(t.dtype); i++) {
    if (from[i] <= 1) continue;
    value_release(u->vm, value_obj(TAG_ARRAY, a));
    wrong(u, "an element is no bool");
    return value_error();
  }
  a = array_settle(u->vm, a);
  return a ? value_obj(TAG_ARRAY, a) : value_error();
}

/* Reads the name of one more field, which gets nil. */
static bool r_field(deserializer *u, qn_record *r) {
  qn_str *name = r_name(u);
  bool ok = name && (record_find(r, name) < 0 || wrong(u, "two fields have one name")) &&
            record_set(u->vm, r, name, value_nil());
  if (name) value_release(u->vm, value_obj(TAG_STR, name));
  return ok;
}

static qn_value r_list(deserializer *u, bool prototypes) {
  uint32_t n;
  qn_list *l = r_count(u, 1, &n) ? list_new(u->vm, 0) : NULL;
  for (uint32_t i = 0; l && i < n; i++) { /* room for what is there: lists in lists may all claim what is left */
    qn_value v = r_value(u, prototypes);
    if (value_is_error(v) || !list_push(u->vm, l, v)) {
      value_release(u->vm, value_obj(TAG_LIST, l));
      return value_error();
    }
  }
  return l ? value_obj(TAG_LIST, l) : value_error();
}

static qn_value r_record(deserializer *u, bool prototypes) {
  uint32_t n;
  qn_record *r = r_count(u, 5, &n) ? record_new(u->vm) : NULL;
  for (uint32_t i = 0; r && i < n; i++) {
    qn_value v = r_field(u, r) ? r_value(u, prototypes) : value_error();
    if (value_is_error(v)) {
      value_release(u->vm, value_obj(TAG_RECORD, r));
      return v;
    }
    r->items[i] = v;
  }
  return r ? value_obj(TAG_RECORD, r) : value_error();
}

static qn_value r_text_value(deserializer *u) {
  const char *text;
  uint32_t len;
  if (!r_text(u, &text, &len)) return value_error();
  if (!utf8_valid(text, len)) {
    wrong(u, "a text is not UTF-8");
    return value_error();
  }
  qn_str *s = str_new(u->vm, text, len);
  return s ? value_obj(TAG_STR, s) : value_error();
}

static qn_value r_range(deserializer *u) {
  uint64_t x[3];
  for (int i = 0; i < 3; i++)
    if (!r_int(u, 8, &x[i])) return value_error();
  if (!x[2]) {
    wrong(u, "a range has no step");
    return value_error();
  }
  qn_range *r = range_new(u->vm, (int64_t)x[0], (int64_t)x[1], (int64_t)x[2]);
  return r ? value_obj(TAG_RANGE, r) : value_error();
}

static qn_value r_value_of(deserializer *u, uint8_t kind, bool prototypes) {
  uint64_t x = 0;
  uint8_t small = 0;
  switch (kind) {
  case 'n': return value_nil();
  case 't':
  case 'f': return value_bool(kind == 't');
  case 'i': return r_int(u, 8, &x) ? value_int((int64_t)x) : value_error();
  case 'd': {
    qn_value v = value_float(0);
    if (!r_int(u, 8, &x)) return value_error();
    v.u.i = (int64_t)x;
    return v;
  }
  case 's': return r_text_value(u);
  case 'y': return r_dtype(u, &small) ? value_dtype((qn_dtype)small) : value_error();
  case 'v':
    if (!r_u8(u, &small)) return value_error();
    if (small <= 16) return value_device(small);
    break;
  case 'e': return r_range(u);
  case 'l': return r_list(u, prototypes);
  case 'r': return r_record(u, prototypes);
  case 'a':
    if (!prototypes) return r_array(u, false);
    break;
  case 'p':
    if (prototypes) return r_array(u, true);
    break;
  case 'g': return r_graph(u);
  default: break;
  }
  wrong(u, "there is no kind of value %d", kind);
  return value_error();
}

/* Owned; the error value if something is wrong. */
static qn_value r_value(deserializer *u, bool prototypes) {
  uint8_t kind = 0;
  if (!r_u8(u, &kind)) return value_error();
  if (u->depth > 2 * PATTERN_DEPTH) {
    wrong(u, "values nest too deep");
    return value_error();
  }
  if (!vm_enter(u->vm, 0)) return value_error();
  u->depth++;
  qn_value v = r_value_of(u, kind, prototypes);
  u->depth--;
  return v;
}

static qn_value r_number(deserializer *u) {
  qn_value v = r_value(u, false);
  if (value_is_error(v) || value_is_scalar(v)) return v;
  value_release(u->vm, v);
  wrong(u, "a number is expected");
  return value_error();
}

/* ---- what a graph's inputs come from ------------------------------------------------------------------------------------------- */

typedef struct reading {
  deserializer *u;
  graph_body *b;
  uint8_t *sources; /* per input: 1 an argument or bound, 2 the random counter or key */
} reading;

static const graph_node *input_node(const graph_body *b, uint32_t input) {
  return &b->call.graph->nodes[b->call.graph->inputs[input]];
}

/* Input `input` comes from one place, which has such values. */
static bool claim(reading *r, uint32_t input, const graph_type *t, uint8_t source) {
  if (input >= r->b->call.graph->ninputs || r->sources[input]) return wrong(r->u, "an input has no source, or two");
  if (!graph_type_same(t, &input_node(r->b, input)->type))
    return wrong(r->u, "an input has another type than its source");
  r->sources[input] = source;
  return true;
}

/* Reads a pattern and appends it. */
static bool r_pattern(reading *r, int depth) {
  deserializer *u = r->u;
  pattern *p = &r->b->call.pattern;
  uint8_t kind = 0;
  if (depth > PATTERN_DEPTH) return wrong(u, "patterns nest too deep");
  if (!r_u8(u, &kind) || !mem_grow(u->vm, (void **)&p->pats, &p->cap, p->n + 1, sizeof *p->pats)) return false;
  uint32_t at = p->n++;
  p->pats[at] = (pat){.value = value_nil()};
  pat x = p->pats[at];
  graph_type t = {.weak = true};
  switch (kind) {
  case 'a':
    x.kind = PAT_ARRAY;
    x.tag = TAG_ARRAY;
    x.n = PAT_ANY_DEVICE;
    if (!r_shape(u, &t) || !r_u32(u, &x.input) || !claim(r, x.input, &t, 1)) return false;
    if (!mem_grow(u->vm, (void **)&p->dims, &p->dims_cap, p->ndims + t.rank, sizeof *p->dims)) return false;
    x.dtype = t.dtype;
    x.rank = t.rank;
    x.dims = p->ndims;
    for (int i = 0; i < t.rank; i++) p->dims[p->ndims++] = t.shape[i];
    p->leaves++;
    break;
  case 'i':
  case 'd':
  case 'b':
    x.kind = PAT_SCALAR;
    x.tag = kind == 'i' ? TAG_INT : kind == 'd' ? TAG_FLOAT : TAG_BOOL;
    t.dtype = kind == 'i' ? WEAK_INT : kind == 'd' ? WEAK_FLOAT : WEAK_BOOL;
    if (!r_u32(u, &x.input) || !claim(r, x.input, &t, 1)) return false;
    p->leaves++;
    break;
  case 'v': {
    qn_value v = r_value(u, false);
    if (value_is_error(v)) return false;
    x.kind = PAT_EXACT;
    x.tag = (uint8_t)value_tag_of(v);
    if (x.tag == TAG_LIST || x.tag == TAG_RECORD || x.tag == TAG_ARRAY || x.tag == TAG_FN) {
      value_release(u->vm, v);
      return wrong(u, "such a value is no guard");
    }
    x.value = v;
    break;
  }
  case 'l':
  case 'r':
    x.kind = kind == 'l' ? PAT_LIST : PAT_RECORD;
    x.tag = kind == 'l' ? TAG_LIST : TAG_RECORD;
    if (!r_count(u, kind == 'l' ? 1 : 5, &x.n)) return false;
    if (kind == 'r') {
      qn_record *names = record_new(u->vm);
      if (!names) return false;
      x.value = value_obj(TAG_RECORD, names);
    }
    p->pats[at] = x;
    for (uint32_t i = 0; i < x.n; i++) {
      if (kind == 'r' && !r_field(u, value_record(x.value))) return false;
      if (!r_pattern(r, depth + 1)) return false;
    }
    return true;
  default: return wrong(u, "there is no kind of pattern %d", kind);
  }
  p->pats[at] = x;
  return true;
}

static bool r_arguments(reading *r) {
  deserializer *u = r->u;
  pattern *p = &r->b->call.pattern;
  uint32_t n;
  if (!r_count(u, 1, &n)) return false;
  for (uint32_t i = 0; i < n; i++) {
    if (!mem_grow(u->vm, (void **)&p->roots, &p->roots_cap, p->nroots + 1, sizeof *p->roots)) return false;
    p->roots[p->nroots++] = (root){.kind = ROOT_ARG, .arg = i, .first = p->n, .tracer = value_nil()};
    if (!r_pattern(r, 0)) return false;
  }
  p->nargs = n;
  p->ninputs = r->b->call.graph->ninputs;
  return true;
}

typedef struct cotangents {
  reading *r;
  uint32_t at;
} cotangents;

static bool claim_cotangent(void *ctx, const char *path, qn_value v) {
  cotangents *c = ctx;
  (void)path;
  if (!is_float_leaf(v)) return true;
  graph_type t = {0};
  return value_graph_type(v, &t) && claim(c->r, c->at++, &t, 1);
}

/* The one argument of a pullback. */
static bool r_cotangent(reading *r) {
  qn_value like = r_value(r->u, true);
  if (value_is_error(like)) return false;
  r->b->like = like;
  cotangents c = {r, r->b->nbound};
  return tree_each(r->u->vm, like, claim_cotangent, &c);
}

/* ---- templates ------------------------------------------------------------------------------------------------------------------- */

static graph_body *r_body(deserializer *u);

/* The nodes that a template's outputs are. */
typedef struct outputs {
  const graph *g;
  const uint32_t *nodes;
  uint32_t n;
} outputs;

/* Is the template at `at` what input `i` of a graph can be bound to? */
static bool binds(deserializer *u, const graph_body *b, uint32_t i, const tpl *x, const outputs *from) {
  graph_type t = {0};
  if (i >= b->nbound) return true;
  if (x->kind == TPL_OUTPUT)
    t = from->g->nodes[from->nodes[x->output]].type;
  else if (x->kind != TPL_VALUE || !value_graph_type(x->value, &t))
    return wrong(u, "a graph is bound to what is no array");
  return graph_type_same(&t, &input_node(b, b->bound[i])->type) ||
         wrong(u, "a bound value has another type than its input");
}

/* Appends a template. */
static bool r_template(deserializer *u, tpl_list *out, const outputs *from, int depth) {
  qn_vm *vm = u->vm;
  const graph_body *body = NULL;
  uint8_t kind = 0;
  if (depth > PATTERN_DEPTH) return wrong(u, "a result nests too deep");
  if (!r_u8(u, &kind) || !mem_grow(vm, (void **)&out->tpls, &out->cap, out->n + 1, sizeof *out->tpls)) return false;
  uint32_t at = out->n++, n = 0;
  out->tpls[at] = (tpl){.kind = TPL_VALUE, .value = value_nil()};
  switch (kind) {
  case 'o':
    out->tpls[at].kind = TPL_OUTPUT;
    return r_u32(u, &out->tpls[at].output) && (out->tpls[at].output < from->n || wrong(u, "a result is no output"));
  case 'v': {
    qn_value v = r_value(u, false);
    if (value_is_error(v)) return false;
    out->tpls[at].value = v;
    return true;
  }
  case 'g': {
    graph_body *b = r_body(u);
    qn_fn *f = b ? fn_new(vm, FN_GRAPH, b, b->nbound + b->ndefaults) : NULL;
    if (b) body_release(vm, b);
    if (!f) return false;
    body = b;
    out->tpls[at].kind = TPL_FN;
    out->tpls[at].output = ++out->made;
    out->tpls[at].value = value_obj(TAG_FN, f);
    if (!r_count(u, 1, &n)) return false;
    if (n != f->ncaptures) return wrong(u, "a graph is bound to another number of values");
    break;
  }
  case 'l':
    if (!r_count(u, 1, &n)) return false;
    out->tpls[at].kind = TPL_LIST;
    break;
  case 'r': {
    qn_record *names = r_count(u, 5, &n) ? record_new(vm) : NULL;
    if (!names) return false;
    out->tpls[at].kind = TPL_RECORD;
    out->tpls[at].value = value_obj(TAG_RECORD, names);
    break;
  }
  default: return wrong(u, "there is no kind of result %d", kind);
  }
  for (uint32_t i = 0; i < n; i++) {
    if (kind == 'r' && !r_field(u, value_record(out->tpls[at].value))) return false;
    uint32_t item = out->n;
    if (!r_template(u, out, from, depth + 1)) return false;
    if (body && !binds(u, body, i, &out->tpls[item], from)) return false;
  }
  out->tpls[at].n = n;
  return true;
}

/* ---- guards ------------------------------------------------------------------------------------------------------------------------- */

static bool r_operation(deserializer *u, scalar_guard *x, uint32_t number) {
  const char *name;
  uint32_t len;
  if (!r_text(u, &name, &len) || !r_dtype(u, &x->dtype) || !r_u8(u, &x->nin)) return false;
  op_id op = op_find(name, len);
  if (op == OP_COUNT || op_rows[op].klass != CLASS_POINTWISE || x->nin < 1 || x->nin > 3 ||
      x->nin != op_rows[op].arity || op == OP_fit)
    return wrong(u, "a guard has an unknown operation");
  if (op == OP_cast && !dtype_is_weak(x->dtype)) return wrong(u, "a guard is no host number");
  x->op = (uint8_t)op;
  for (int k = 0; k < x->nin; k++)
    if (!r_u32(u, &x->in[k]) || x->in[k] >= number) return wrong(u, "a guard reads what comes later");
  return true;
}

static bool r_guard(reading *r, scalar_guard *x, uint32_t number) {
  deserializer *u = r->u;
  uint8_t kind = 0;
  if (!r_u8(u, &kind)) return false;
  x->value = value_nil();
  if (kind == 'i') {
    x->op = GUARD_INPUT;
    if (!r_u32(u, &x->in[0])) return false;
    if (x->in[0] >= r->b->call.graph->ninputs || r->sources[x->in[0]] != 1 || !input_node(r->b, x->in[0])->type.weak)
      return wrong(u, "a guard reads no number");
  } else if (kind == 'c') {
    x->op = GUARD_CONST;
    if (value_is_error(x->value = r_number(u))) return false;
  } else if (kind != 'o' || !r_operation(u, x, number)) {
    return wrong(u, "there is no kind of guard %d", kind);
  }
  if (!r_bool(u, &x->compare)) return false;
  return !x->compare || !value_is_error(x->value = r_number(u));
}

static bool r_guards(reading *r) {
  deserializer *u = r->u;
  specialization *e = &r->b->call;
  uint32_t n;
  if (!r_count(u, 2, &n)) return false;
  if (n > GUARDS_MAX) return wrong(u, "there are too many guards");
  if (!n) return true;
  if (!(e->guards = mem_zalloc(u->vm, n * sizeof *e->guards))) return false;
  e->nguards = n;
  for (uint32_t i = 0; i < n; i++)
    if (!r_guard(r, &e->guards[i], i)) return false;
  return true;
}

/* ---- regions -------------------------------------------------------------------------------------------------------------------------- */

static bool r_numbers(deserializer *u, uint32_t *out, uint32_t n, uint32_t from, uint32_t end) {
  for (uint32_t i = 0; i < n; i++)
    if (!r_u32(u, &out[i]) || out[i] < from || out[i] >= end) return wrong(u, "a region has no such node");
  return true;
}

/* Outputs are nodes of float types, and nothing else is a float: so a walk over the tree meets them one by one. */
static bool floats_alone(deserializer *u, const graph *g, const tpl_list *t, const uint32_t *nodes) {
  for (uint32_t i = 0; i < t->n; i++) {
    const tpl *x = &t->tpls[i];
    bool ok = x->kind == TPL_LIST || x->kind == TPL_RECORD || (x->kind == TPL_VALUE && value_is(x->value, TAG_NIL)) ||
              (x->kind == TPL_OUTPUT && dtype_is_float((qn_dtype)g->nodes[nodes[x->output]].type.dtype));
    if (!ok) return wrong(u, "a rule of a derivative has a part that is none");
  }
  return true;
}

static bool is_list(const tpl_list *t) { return t->n && t->tpls[0].kind == TPL_LIST; }

static region_rule *r_rule(deserializer *u, const graph *g, const graph_region *x) {
  region_rule *rule = mem_zalloc(u->vm, sizeof *rule);
  if (!rule) return NULL;
  rule->refs = 1;
  rule->number = ++jit_of(u->vm)->last_rule;
  rule->backward = value_nil();
  qn_value backward;
  outputs outs = {g, x->outs, x->nouts}, args = {g, x->args, x->nargs};
  bool ok = r_u32(u, &rule->lanes) && !value_is_error(backward = r_graph(u));
  if (ok) rule->backward = backward;
  rule->levels = rule->lanes > 0; /* at least; messages show the shapes beyond */
  ok = ok && r_template(u, &rule->cts, &outs, 0) && r_template(u, &rule->args, &args, 0) &&
       r_template(u, &rule->like, &args, 0) && floats_alone(u, g, &rule->cts, x->outs) &&
       floats_alone(u, g, &rule->like, x->args);
  ok = ok && ((is_list(&rule->args) && is_list(&rule->like) && rule->like.tpls[0].n == rule->args.tpls[0].n &&
               rule->like.tpls[0].n) ||
              wrong(u, "a rule of a derivative has no list of arguments"));
  if (ok) return rule;
  region_rule_release(u->vm, rule);
  return NULL;
}

static bool r_region(deserializer *u, graph_body *b) {
  const graph *g = b->call.graph;
  graph_region x = {0};
  uint8_t kind = 0;
  if (!r_u32(u, &x.first) || !r_u32(u, &x.end) || !r_count(u, 4, &x.nargs) || !r_count(u, 4, &x.nouts)) return false;
  if (!x.first || x.first >= x.end || x.end > g->n) return wrong(u, "a region has no such nodes");
  size_t bytes = ((size_t)x.nargs + x.nouts + 1) * sizeof(uint32_t);
  uint32_t *nodes = mem_alloc(u->vm, bytes);
  if (!nodes) return false;
  x.args = nodes;
  x.outs = nodes + x.nargs;
  bool ok = r_numbers(u, nodes, x.nargs, 1, x.first) && r_numbers(u, nodes + x.nargs, x.nouts, x.first, x.end) &&
            r_u8(u, &kind);
  for (uint32_t i = 0; i < x.nouts && ok; i++)
    ok = g->nodes[x.outs[i]].kind != NODE_INPUT || wrong(u, "a region's result is an input");
  x.again = ok && kind == 'a';
  if (ok && kind == 'r')
    ok = (x.rule = r_rule(u, g, &x)) != NULL;
  else if (ok && kind != 'a')
    ok = wrong(u, "there is no kind of region %d", kind);
  ok = ok && regions_add(u->vm, &b->regions, &x);
  if (x.rule) region_rule_release(u->vm, x.rule);
  mem_free(u->vm, nodes, bytes);
  return ok;
}

/* How regions lie in one another. */
typedef struct nesting {
  uint32_t *parent, *depth; /* per region; parent: number + 1 */
  uint32_t *owner;          /* per node: the innermost region + 1; none of an input, which may come up in a region */
  uint64_t *outs;           /* per node: bit d: a result of the region of depth d around it */
} nesting;

/* Regions come in the order of their ends; each lies within another or apart from it. Fills in parents; depths count from within. */
static bool regions_nest(deserializer *u, const graph_body *b, nesting *n, uint32_t *stack) {
  const graph *g = b->call.graph;
  const graph_region *list = b->regions.list;
  uint32_t top = 0;
  for (uint32_t i = 0; i < b->regions.n; i++) {
    if (i && list[i].end < list[i - 1].end) return wrong(u, "regions are out of order");
    for (; top && list[stack[top - 1]].first >= list[i].first; top--) {
      uint32_t inner = stack[top - 1];
      n->parent[inner] = i + 1;
      if (n->depth[inner] + 1 > n->depth[i]) n->depth[i] = n->depth[inner] + 1;
    }
    if (top && list[stack[top - 1]].end > list[i].first) return wrong(u, "regions overlap");
    if (n->depth[i] >= REGION_DEPTH) return wrong(u, "regions nest too deep");
    stack[top++] = i;
    for (uint32_t k = list[i].first; k < list[i].end; k++)
      if (!n->owner[k] && g->nodes[k].kind != NODE_INPUT) n->owner[k] = i + 1;
    for (uint32_t k = 0; k < list[i].nouts; k++) n->outs[list[i].outs[k]] |= (uint64_t)1 << n->depth[i];
  }
  return true;
}

/* Node `node` is read by one behind its regions (or, `by` being the number of nodes, by a result): it must be a result of theirs. */
static bool read_through(const graph_body *b, const nesting *n, uint32_t node, uint32_t by) {
  for (uint32_t i = n->owner[node]; i; i = n->parent[i - 1]) {
    if (by < b->regions.list[i - 1].end) return true;
    if (!(n->outs[node] >> n->depth[i - 1] & 1)) return false;
  }
  return true;
}

static bool regions_closed(deserializer *u, const graph_body *b) {
  const graph *g = b->call.graph;
  uint32_t nr = b->regions.n;
  if (!nr) return true;
  size_t regions = 3 * (size_t)nr * sizeof(uint32_t), owners = g->n * sizeof(uint32_t), outs = g->n * sizeof(uint64_t);
  nesting n = {
      .parent = mem_zalloc(u->vm, regions), .owner = mem_zalloc(u->vm, owners), .outs = mem_zalloc(u->vm, outs)};
  bool ok = n.parent && n.owner && n.outs;
  if (ok) n.depth = n.parent + nr;
  ok = ok && regions_nest(u, b, &n, n.parent + 2 * (size_t)nr);
  for (uint32_t i = 1; i < g->n && ok; i++)
    for (int k = 0; k < g->nodes[i].nin && ok; k++) ok = read_through(b, &n, g->nodes[i].in[k], i);
  for (uint32_t i = 0; i < g->noutputs && ok; i++) ok = read_through(b, &n, g->outputs[i], g->n);
  if (n.parent) mem_free(u->vm, n.parent, regions);
  if (n.owner) mem_free(u->vm, n.owner, owners);
  if (n.outs) mem_free(u->vm, n.outs, outs);
  return ok || wrong(u, "something reads the inside of a region");
}

static bool r_regions(deserializer *u, graph_body *b) {
  uint32_t n;
  if (!r_count(u, 17, &n)) return false;
  for (uint32_t i = 0; i < n; i++)
    if (!r_region(u, b) || vm_poll(u->vm)) return false;
  return regions_closed(u, b);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------------------------------ */

static graph *r_graph_text(deserializer *u) {
  const char *text;
  uint32_t len;
  if (!r_text(u, &text, &len)) return NULL;
  if (memchr(text, 0, len)) {
    wrong(u, "the graph's text holds a NUL");
    return NULL;
  }
  char *copy = mem_alloc(u->vm, len + (size_t)1); /* the parser wants an end */
  if (!copy) return NULL;
  memcpy(copy, text, len);
  copy[len] = 0;
  char why[256] = "";
  graph *g = graph_parse_apart(copy, &(graph_store){.ctx = u, .take = take_run}, why, sizeof why);
  mem_free(u->vm, copy, len + (size_t)1);
  if (g && graph_runnable(g, why, sizeof why) && graph_distrust(g)) return g;
  bool memory = g ? g->failed || g->arena.failed : strstr(why, "out of memory") != NULL;
  if (g) graph_free(g);
  if (memory && !error_pending(u->vm))
    raise_memory(u->vm);
  else
    wrong(u, "the graph's text: %s", why);
  return NULL;
}

static bool r_params(deserializer *u, qn_value *names, bool *rest, uint32_t *ndefaults) {
  uint32_t n;
  qn_list *l = r_count(u, 4, &n) ? list_new(u->vm, 0) : NULL;
  if (!l) return false;
  *names = value_obj(TAG_LIST, l);
  for (uint32_t i = 0; i < n; i++) {
    qn_str *name = r_name(u);
    if (!name) return false;
    for (uint32_t k = 0; k < i; k++)
      if (value_str(l->items[k]) == name) {
        value_release(u->vm, value_obj(TAG_STR, name));
        return wrong(u, "two parameters have one name");
      }
    if (!list_push(u->vm, l, value_obj(TAG_STR, name))) return false;
    if (i == 1024) return wrong(u, "there are too many parameters");
  }
  return r_bool(u, rest) && r_u32(u, ndefaults);
}

/* The inputs that the function's captures are. Their values come last and are checked when they are there. */
static bool r_bound(deserializer *u, graph_body *b) {
  uint32_t n;
  if (!r_count(u, 4, &n)) return false;
  if (n > b->call.graph->ninputs) return wrong(u, "more inputs are bound than there are");
  if (!(b->bound = mem_alloc(u->vm, (n + (size_t)1) * sizeof *b->bound))) return false;
  b->nbound = n;
  memset(b->bound, 0, (n + (size_t)1) * sizeof *b->bound);
  for (uint32_t i = 0; i < n; i++)
    if (!r_u32(u, &b->bound[i])) return false;
  return true;
}

static bool r_draws(reading *r) {
  specialization *e = &r->b->call;
  uint32_t *inputs[3] = {&e->draw_input, &e->key_inputs[0], &e->key_inputs[1]};
  graph_type t = {.dtype = WEAK_INT, .weak = true};
  for (int i = 0; i < 3; i++) {
    uint32_t x = 0;
    if (!r_u32(r->u, &x) || (x && !claim(r, x - 1, &t, 2))) return false;
    *inputs[i] = x;
  }
  return r_int(r->u, 8, &e->ndraws) &&
         (!e->draw_input || (e->ndraws >= 1 && e->ndraws <= UINT32_MAX) || wrong(r->u, "it draws no numbers"));
}

static bool r_call(reading *r) {
  deserializer *u = r->u;
  graph_body *b = r->b;
  const graph *g = b->call.graph;
  qn_value names = value_nil();
  bool pullback = false;
  bool ok = r_params(u, &names, &b->rest, &b->ndefaults) && r_bound(u, b);
  for (uint32_t i = 0; i < b->nbound && ok; i++)
    ok = b->bound[i] < g->ninputs ? claim(r, b->bound[i], &input_node(b, b->bound[i])->type, 1)
                                  : wrong(u, "an input has no source, or two");
  ok = ok && r_bool(u, &pullback);
  for (uint32_t i = 0; i < b->nbound && ok && pullback; i++)
    ok = b->bound[i] == i || wrong(u, "a pullback is bound otherwise");
  ok = ok && (!pullback || r_cotangent(r)) && r_arguments(r) &&
       r_template(u, &b->call.result, &(outputs){g, g->outputs, g->noutputs}, 0) && r_guards(r) && r_draws(r);
  for (uint32_t i = 0; i < g->ninputs && ok; i++) ok = r->sources[i] != 0 || wrong(u, "an input has no source, or two");
  const pattern *p = &b->call.pattern;
  uint32_t named = ok && value_is(names, TAG_LIST) ? value_list(names)->len : 0;
  if (ok) {
    bool list = p->nargs && p->pats[p->roots[p->nargs - 1].first].kind == PAT_LIST;
    uint32_t fixed = p->nargs - b->rest;
    if ((b->rest && (!list || b->ndefaults)) || (named && named != fixed) || b->ndefaults > fixed ||
        (pullback && (p->nargs || b->rest || b->ndefaults)))
      ok = wrong(u, "the parameters are not those of the arguments");
  }
  if (ok && named) body_name_params(b, names);
  value_release(u->vm, names);
  return ok && r_regions(u, b);
}

/* A body without what it is bound to; NULL if something is wrong. */
static graph_body *r_body(deserializer *u) {
  if (u->graphs == GRAPH_DEPTH) {
    wrong(u, "graphs nest too deep");
    return NULL;
  }
  if (!vm_enter(u->vm, 0)) return NULL;
  graph *g = r_graph_text(u);
  graph_body *b = g ? body_new(u->vm) : NULL;
  if (!b) {
    if (g) graph_free(g);
    return NULL;
  }
  b->call.graph = g;
  b->anchor.name = "graph";
  reading r = {u, b, mem_zalloc(u->vm, g->ninputs + (size_t)1)};
  u->graphs++;
  bool ok = r.sources && r_call(&r);
  u->graphs--;
  if (r.sources) mem_free(u->vm, r.sources, g->ninputs + (size_t)1);
  if (ok) {
    body_finish(b);
    return b;
  }
  body_release(u->vm, b);
  return NULL;
}

static qn_value r_graph(deserializer *u) {
  qn_vm *vm = u->vm;
  graph_body *b = r_body(u);
  if (!b) return value_error();
  uint32_t n = b->nbound + b->ndefaults;
  qn_list *values = list_new(vm, n);
  bool ok = values != NULL;
  for (uint32_t i = 0; i < n && ok; i++) {
    qn_value v = r_value(u, false);
    ok = !value_is_error(v);
    if (!ok) break;
    values->items[i] = v;
    graph_type t = {0};
    if (i < b->nbound)
      ok = (value_graph_type(v, &t) && graph_type_same(&t, &input_node(b, b->bound[i])->type)) ||
           wrong(u, "a bound value has another type than its input");
  }
  qn_value g = ok ? body_value(vm, b, values->items) : value_error();
  if (values) value_release(vm, value_obj(TAG_LIST, values));
  body_release(vm, b);
  return g;
}

qn_value jit_graph_deserialize(qn_vm *vm, const graph_serialized *from, char *why, size_t size) {
  deserializer u = {.vm = vm,
                    .p = from->text,
                    .end = from->text + from->text_len,
                    .data = from->data,
                    .data_start = from->data,
                    .data_end = from->data + from->data_len,
                    .why = why,
                    .size = size};
  why[0] = 0;
  qn_value g = r_graph(&u);
  if (value_is_error(g)) {
    if (!error_pending(vm)) wrong(&u, "it cannot be read");
    return g;
  }
  if (u.p == u.end && u.data == u.data_end) return g;
  wrong(&u, u.p == u.end ? "elements belong to no array" : "there is more behind the description");
  value_release(vm, g);
  return value_error();
}
