/* Graphs as bytes and back: the contents of a file that holds a graph value. (README.md describes the format; stdlib/qnx.c makes the file
 * around it.)
 *
 * Each part of the format has one function here, which writes it or reads it, depending on the archive: so the order of the fields is said
 * once. The part is handed in as it lies in memory; when reading, it is filled in. The functions return false if something is wrong: when
 * writing with an error raised; when reading, where bytes may be anything, with the reason in the archive (or an error raised if memory is
 * short).
 *
 * Writing. Elements of arrays are not copied: runs point at them. The code of the program's functions is not written: a graph whose
 * arguments or result hold such a function is refused. There is one exception, which gradients need: the backward function of a custom_grad
 * is recorded, too, on arguments of the region's types, and becomes a graph inside the graph.
 *
 * Reading trusts nothing, not even the file's hash: who wrote the bytes may have made it, too. Every count is compared with the bytes that
 * are left before memory is taken for it. The graph's text goes through the parser and the verifier, and loses its proofs. Each input must
 * have exactly one source (an argument, a bound value, the random counter) of the input's type; every output number, node number and
 * reference between guards must exist; and regions must nest as recorded ones do. What passes is as good as a graph that was recorded; how
 * much a hostile graph computes is limited by what limits programs.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "jit/run/eager.h"
#include "jit/trace/anchors.h"
#include "jit/trace/body.h"
#include "jit/trace/gradients.h"
#include "jit/trace/graphs.h"
#include "jit/trace/pattern.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/specialization.h"

enum {
  IN_TEXT = 256, /* constants smaller than so many bytes stand in the text */
  REGION_DEPTH = 64,
  GRAPH_DEPTH = 8,
  MOST_PARAMS = 1024,
  MOST_DEVICES = 16
};

typedef struct archive {
  qn_vm *vm;
  graph_serialize *out; /* where to write; NULL if the archive is read */
  /* when reading: what is left of the description, and of the elements */
  const uint8_t *p, *end;
  const uint8_t *data, *data_end, *data_start;
  char *why; /* when reading: gets what is wrong, in a buffer of so many bytes; empty: nothing yet */
  size_t size;
  int depth;  /* how deep values and graphs are nested */
  int graphs; /* when reading: how deep graphs are nested */
} archive;

static bool reads(const archive *a) { return !a->out; }

/* Notes what is wrong with the bytes, unless something was noted before. False. */
__attribute__((format(printf, 2, 3))) static bool wrong(archive *a, const char *format, ...) {
  if (error_pending(a->vm)) return false;
  if (!reads(a)) raise_error(a->vm, E_internal, SPAN_NONE, "a graph is written that nobody could read");
  if (!reads(a) || a->why[0]) return false;
  va_list args;
  va_start(args, format);
  vsnprintf(a->why, a->size, format, args);
  va_end(args);
  return false;
}

static bool ended(archive *a) { return wrong(a, "the description ends early"); }

/* ---- numbers, texts, runs ---------------------------------------------------------------------------------------------------- */

static bool ar_int(archive *a, int bytes, uint64_t *x) {
  if (!reads(a)) {
    char b[8];
    for (int i = 0; i < bytes; i++) b[i] = (char)(*x >> 8 * i);
    text_add(&a->out->text, b, (size_t)bytes);
    return true;
  }
  *x = 0;
  if (a->end - a->p < bytes) return ended(a);
  for (int i = 0; i < bytes; i++) *x |= (uint64_t)*a->p++ << 8 * i;
  return true;
}

static bool ar_u8(archive *a, uint8_t *x) {
  uint64_t wide = *x;
  bool ok = ar_int(a, 1, &wide);
  *x = (uint8_t)wide;
  return ok;
}

static bool ar_u32(archive *a, uint32_t *x) {
  uint64_t wide = *x;
  bool ok = ar_int(a, 4, &wide);
  *x = (uint32_t)wide;
  return ok;
}

static bool ar_bool(archive *a, bool *x) {
  uint8_t byte = *x;
  if (!ar_u8(a, &byte)) return false;
  *x = byte != 0;
  return byte <= 1 || wrong(a, "a mark is neither 0 nor 1");
}

/* A count of things that follow, each of at least `each` bytes. */
static bool ar_count(archive *a, size_t each, uint32_t *n) {
  return ar_u32(a, n) && (!reads(a) || *n <= (size_t)(a->end - a->p) / each || ended(a));
}

/* A text: `written` when writing. When reading that is NULL, and *text points into the description. */
static bool ar_text(archive *a, const char *written, uint32_t size, const char **text, uint32_t *len) {
  *len = size;
  if (!ar_count(a, 1, len)) return false;
  if (!reads(a)) {
    text_add(&a->out->text, written, *len);
    *text = written;
    return true;
  }
  *text = (const char *)a->p;
  a->p += *len;
  return true;
}

/* An interned name; one that is read is owned. */
static bool ar_name(archive *a, qn_str **name) {
  const char *text;
  uint32_t len;
  if (!reads(a)) return ar_text(a, (*name)->text, (*name)->len, &text, &len);
  if (!ar_text(a, NULL, 0, &text, &len)) return false;
  if (!utf8_valid(text, len) || memchr(text, 0, len)) return wrong(a, "a name is not UTF-8");
  return (*name = str_intern(a->vm, text, len)) != NULL;
}

/* A word of some table: as ar_text, with the length found by itself. */
static bool ar_word(archive *a, const char *written, const char **word, uint32_t *len) {
  return ar_text(a, written, written ? (uint32_t)strlen(written) : 0, word, len);
}

static bool ar_dtype(archive *a, uint8_t *dtype) {
  const char *text;
  uint32_t len;
  if (!ar_word(a, reads(a) ? NULL : dtype_rows[*dtype].name, &text, &len)) return false;
  if (!reads(a)) return true;
  *dtype = (uint8_t)dtype_find(text, len);
  return dtype_public(*dtype) || wrong(a, "there is no dtype %.*s", (int)(len < 20 ? len : 20), text);
}

static bool ar_shape(archive *a, graph_type *t) {
  if (!ar_dtype(a, &t->dtype) || !ar_u8(a, &t->rank)) return false;
  if (t->rank > ARRAY_MAX_RANK) return wrong(a, "an array has %d axes", t->rank);
  for (int i = 0; i < t->rank; i++) {
    uint64_t x = (uint64_t)t->shape[i];
    if (!ar_int(a, 8, &x)) return false;
    t->shape[i] = (int64_t)x;
  }
  int64_t strides[ARRAY_MAX_RANK];
  return shape_strides(t->rank, t->shape, strides) >= 0 || wrong(a, "an array has an impossible shape");
}

/* Keeps a value (taken over) alive as long as what is written, since runs point into it. */
static bool keep(archive *a, qn_value v) { return list_push(a->vm, value_list(a->out->kept), v); }

static bool add_run(void *ctx, const void *data, size_t bytes) {
  archive *a = ctx;
  graph_serialize *o = a->out;
  if (!mem_grow(a->vm, (void **)&o->runs, &o->cap, o->n + 1, sizeof *o->runs)) return false;
  o->runs[o->n++] = (struct graph_run){data, bytes};
  return true;
}

/* The next run of elements; NULL if there are not so many bytes left. */
static const void *take_run(void *ctx, size_t bytes) {
  archive *a = ctx;
  size_t at = (size_t)(a->data - a->data_start), to = (at + GRAPH_RUN_ALIGN - 1) / GRAPH_RUN_ALIGN * GRAPH_RUN_ALIGN;
  if (to - at > (size_t)(a->data_end - a->data) || bytes > (size_t)(a->data_end - a->data) - (to - at)) {
    wrong(a, "elements are missing");
    return NULL;
  }
  const uint8_t *run = a->data + (to - at);
  a->data = run + bytes;
  return run;
}

/* ---- values --------------------------------------------------------------------------------------------------------------------- */

/* What a value is a part of. In the prototype of a cotangent, only the dtypes and shapes of arrays count. */
typedef enum value_part { PART_argument, PART_result, PART_number, PART_bound, PART_cotangent } value_part;

static bool ar_graph(archive *a, qn_value *g);
static bool ar_value(archive *a, qn_value *v, value_part part);

static bool refuse(archive *a, value_part part, qn_value v) {
  static const char *const parts[] = {[PART_argument] = "such an argument",
                                      [PART_result] = "such a result",
                                      [PART_number] = "such a number",
                                      [PART_bound] = "such a value",
                                      [PART_cotangent] = "such a cotangent"};
  return raise_false(
      a->vm, E_type,
      "a graph with %s cannot be written: a file holds arrays, numbers, texts, and lists and records of these; "
      "this is %s",
      parts[part], kind_said(v).text);
}

static bool read_elements(archive *a, const graph_type *t, qn_value *v) {
  int64_t strides[ARRAY_MAX_RANK];
  size_t bytes = (size_t)shape_strides(t->rank, t->shape, strides) * dtype_size((qn_dtype)t->dtype);
  const uint8_t *from = bytes ? take_run(a, bytes) : NULL;
  if (bytes && !from) return false;
  for (size_t i = 0; i < bytes && dtype_is_bool(t->dtype); i++)
    if (from[i] > 1) return wrong(a, "an element is no bool");
  qn_array *x = array_new(a->vm, (qn_dtype)t->dtype, t->rank, t->shape);
  if (!x) return false;
  if (bytes) memcpy(array_data(x), from, bytes);
  if (!(x = array_settle(a->vm, x))) return false;
  *v = value_obj(TAG_ARRAY, x);
  return true;
}

static bool ar_array(archive *a, qn_value *v, bool prototype) {
  graph_type t = {0};
  if (!reads(a)) t = type_of_value(*v);
  if (!ar_shape(a, &t)) return false;
  if (!reads(a)) {
    qn_array *here = prototype ? NULL : array_to_cpu(a->vm, value_array(*v));
    if (!here) return prototype;
    size_t bytes = (size_t)here->size * dtype_size((qn_dtype)here->dtype);
    return keep(a, value_obj(TAG_ARRAY, here)) && (bytes == 0 || add_run(a, array_data(here), bytes));
  }
  if (!prototype) return read_elements(a, &t, v);
  qn_array *x = array_new_header(a->vm, (qn_dtype)t.dtype, t.rank, t.shape);
  if (x) *v = value_obj(TAG_ARRAY, x);
  return x != NULL;
}

/* The names of a record: one that is read is new and owned, and has no fields yet. */
static bool ar_names(archive *a, qn_value *record) {
  if (!reads(a)) return true;
  qn_record *r = record_new(a->vm);
  if (r) *record = value_obj(TAG_RECORD, r);
  return r != NULL;
}

/* The name of field i of a record; when reading, the field is added, with nil. */
static bool ar_field(archive *a, qn_record *r, uint32_t i) {
  qn_str *name = reads(a) ? NULL : record_name(r, i);
  if (!ar_name(a, &name)) return false;
  if (!reads(a)) return true;
  bool ok =
      (record_find(r, name) < 0 || wrong(a, "two fields have one name")) && record_set(a->vm, r, name, value_nil());
  value_release(a->vm, value_obj(TAG_STR, name));
  return ok;
}

static bool ar_list(archive *a, qn_value *v, value_part part) {
  uint32_t n = reads(a) ? 0 : value_list(*v)->len;
  if (!ar_count(a, 1, &n)) return false;
  /* grows as items come: nested lists could each claim all the bytes that are left */
  qn_list *l = reads(a) ? list_new(a->vm, 0) : value_list(*v);
  if (!l) return false;
  *v = value_obj(TAG_LIST, l);
  for (uint32_t i = 0; i < n; i++) {
    qn_value item = reads(a) ? value_nil() : l->items[i];
    if (!ar_value(a, &item, part) || (reads(a) && !list_push(a->vm, l, item))) return false;
  }
  return true;
}

static bool ar_record(archive *a, qn_value *v, value_part part) {
  uint32_t n = reads(a) ? 0 : value_record(*v)->len;
  if (!ar_count(a, 5, &n)) return false;
  if (!ar_names(a, v)) return false;
  qn_record *r = value_record(*v);
  for (uint32_t i = 0; i < n; i++)
    if (!ar_field(a, r, i) || !ar_value(a, &r->items[i], part)) return false;
  return true;
}

static bool ar_string(archive *a, qn_value *v) {
  const char *text;
  uint32_t len;
  if (!reads(a)) return ar_text(a, value_str(*v)->text, value_str(*v)->len, &text, &len);
  if (!ar_text(a, NULL, 0, &text, &len)) return false;
  if (!utf8_valid(text, len)) return wrong(a, "a text is not UTF-8");
  qn_str *s = str_new(a->vm, text, len);
  if (s) *v = value_obj(TAG_STR, s);
  return s != NULL;
}

static bool ar_range(archive *a, qn_value *v) {
  uint64_t x[3] = {0};
  if (!reads(a)) {
    const qn_range *r = value_range(*v);
    x[0] = (uint64_t)r->start, x[1] = (uint64_t)r->stop, x[2] = (uint64_t)r->step;
  }
  for (int i = 0; i < 3; i++)
    if (!ar_int(a, 8, &x[i])) return false;
  if (!reads(a)) return true;
  if (!x[2]) return wrong(a, "a range has no step");
  qn_range *r = range_new(a->vm, (int64_t)x[0], (int64_t)x[1], (int64_t)x[2]);
  if (r) *v = value_obj(TAG_RANGE, r);
  return r != NULL;
}

/* The letter that a value begins with; 0 if it cannot be written. */
static uint8_t value_letter(qn_value v, value_part part) {
  static const uint8_t letters[] = {
      [TAG_NIL] = 'n',    [TAG_INT] = 'i',   [TAG_FLOAT] = 'd', [TAG_STR] = 's',   [TAG_DTYPE] = 'y',
      [TAG_DEVICE] = 'v', [TAG_RANGE] = 'e', [TAG_LIST] = 'l',  [TAG_RECORD] = 'r'};
  value_tag tag = value_tag_of(v);
  if (tag == TAG_BOOL) return v.u.i ? 't' : 'f';
  if (tag == TAG_ARRAY) return part == PART_cotangent ? 'p' : 'a';
  if (tag == TAG_FN) return value_is_graph(v) ? 'g' : 0;
  return tag < sizeof letters ? letters[tag] : 0;
}

/* What follows the letter of a value. *v is nil when it is read, and a copy of the value when it is written. */
static bool ar_value_of(archive *a, uint8_t letter, qn_value *v, value_part part) {
  uint64_t bits = (uint64_t)v->u.i; /* for an int, a float, a dtype or a device */
  uint8_t small = (uint8_t)bits;
  bool known = true, ok = true;
  switch (letter) {
  case 'n': break;
  case 't':
  case 'f': *v = value_bool(letter == 't'); break;
  case 'i':
  case 'd':
    ok = ar_int(a, 8, &bits);
    *v = letter == 'i' ? value_int(0) : value_float(0);
    v->u.i = (int64_t)bits;
    break;
  case 's': ok = ar_string(a, v); break;
  case 'y':
    ok = ar_dtype(a, &small);
    if (ok) *v = value_dtype((qn_dtype)small);
    break;
  case 'v':
    ok = ar_u8(a, &small);
    known = !reads(a) || small <= MOST_DEVICES;
    *v = value_device(small);
    break;
  case 'e': ok = ar_range(a, v); break;
  case 'l': ok = ar_list(a, v, part); break;
  case 'r': ok = ar_record(a, v, part); break;
  case 'a':
  case 'p':
    known = (letter == 'p') == (part == PART_cotangent);
    ok = known && ar_array(a, v, letter == 'p');
    break;
  case 'g': ok = ar_graph(a, v); break;
  default: known = false;
  }
  return (known || wrong(a, "there is no kind of value %d", letter)) && ok;
}

/* May the archive go one level deeper? `what` is "a value nests" or the like, for the error. */
static bool deeper(archive *a, const char *what) {
  if (!reads(a) && a->depth > PATTERN_DEPTH) raise_error(a->vm, E_recursion, SPAN_NONE, "%s too deep", what);
  if (reads(a) && a->depth > 2 * PATTERN_DEPTH) wrong(a, "%s too deep", what);
  if (a->depth > (reads(a) ? 2 : 1) * PATTERN_DEPTH || !vm_enter(a->vm, 0)) return false;
  a->depth++;
  return true;
}

/* A value. One that is read is owned; nil if it could not be read. */
static bool ar_value(archive *a, qn_value *v, value_part part) {
  uint8_t letter = reads(a) ? 0 : value_letter(*v, part);
  if (!reads(a) && !letter) return refuse(a, part, *v);
  if (!ar_u8(a, &letter) || !deeper(a, "a value nests")) return false;
  qn_value x = reads(a) ? value_nil() : *v;
  bool ok = ar_value_of(a, letter, &x, part);
  a->depth--;
  if (!reads(a)) return ok;
  if (!ok) value_release(a->vm, x);
  *v = ok ? x : value_nil();
  return ok;
}

static bool ar_number(archive *a, qn_value *v) {
  if (!ar_value(a, v, PART_number)) return false;
  if (value_is_scalar(*v)) return true;
  value_release(a->vm, *v);
  *v = value_nil();
  return wrong(a, "a number is expected");
}

/* ---- what a graph's inputs come from ------------------------------------------------------------------------------------------- */

/* A body that is written or read. */
typedef struct body_archive {
  archive *a;
  graph_body *b;
  /* when reading, for each input: 0: it has no source yet, 1: an argument or bound value, 2: the random counter or key */
  uint8_t *sources;
} body_archive;

static const graph_node *input_node(const graph_body *b, uint32_t input) {
  return &b->call.graph->nodes[b->call.graph->inputs[input]];
}

/* Notes that `input` has this source, whose values are of type `t`; false if it has one already, or is of another type. When writing always
 * true. */
static bool claim(body_archive *r, uint32_t input, const graph_type *t, uint8_t source) {
  if (!reads(r->a)) return true;
  if (input >= r->b->call.graph->ninputs || r->sources[input]) return wrong(r->a, "an input has no source, or two");
  if (!graph_type_same(t, &input_node(r->b, input)->type))
    return wrong(r->a, "an input has another type than its source");
  r->sources[input] = source;
  return true;
}

static bool ar_pattern(body_archive *r, uint32_t *at, int depth);

/* The pattern of an array or a number. */
static bool ar_leaf(body_archive *r, uint8_t letter, pat *x) {
  archive *a = r->a;
  pattern *p = &r->b->call.pattern;
  bool array = letter == 'a';
  graph_type t = {.dtype = letter == 'i' ? WEAK_INT : letter == 'd' ? WEAK_FLOAT : WEAK_BOOL, .weak = !array};
  if (array && !reads(a)) {
    t.dtype = x->dtype;
    t.rank = x->rank;
    memcpy(t.shape, p->dims + x->dims, x->rank * sizeof *t.shape);
  }
  if ((array && !ar_shape(a, &t)) || !ar_u32(a, &x->input) || !claim(r, x->input, &t, 1)) return false;
  return !reads(a) || pattern_set_input(a->vm, p, x, &t, x->input);
}

static bool ar_exact(archive *a, pat *x) {
  if (!ar_value(a, &x->value, PART_argument)) return false;
  x->kind = PAT_EXACT;
  x->tag = (uint8_t)value_tag_of(x->value);
  return !(x->tag == TAG_LIST || x->tag == TAG_RECORD || x->tag == TAG_ARRAY || x->tag == TAG_FN) ||
         wrong(a, "such a value is no guard");
}

/* The pattern of a list or record: x, which is part `self`, and its items behind it. */
static bool ar_patterns(body_archive *r, uint8_t letter, uint32_t self, uint32_t *at, int depth) {
  archive *a = r->a;
  pattern *p = &r->b->call.pattern;
  pat x = p->pats[self];
  bool record = letter == 'r';
  if (!ar_count(a, record ? 5 : 1, &x.n)) return false;
  if (reads(a)) {
    x.kind = record ? PAT_RECORD : PAT_LIST;
    x.tag = record ? TAG_RECORD : TAG_LIST;
    if (record && !ar_names(a, &x.value)) return false;
    p->pats[self] = x;
  }
  for (uint32_t i = 0; i < x.n; i++)
    if ((record && !ar_field(a, value_record(x.value), i)) || !ar_pattern(r, at, depth + 1)) return false;
  return true;
}

/* The pattern at part *at; moves *at behind it. When reading, parts are appended. */
static bool ar_pattern(body_archive *r, uint32_t *at, int depth) {
  archive *a = r->a;
  pattern *p = &r->b->call.pattern;
  if (reads(a) && depth > PATTERN_DEPTH) return wrong(a, "patterns nest too deep");
  if (reads(a) && !pattern_add(a->vm, p)) return false;
  uint32_t self = (*at)++;
  pat *x = &p->pats[self];
  static const uint8_t letters[] = {[PAT_ARRAY] = 'a', [PAT_EXACT] = 'v', [PAT_LIST] = 'l', [PAT_RECORD] = 'r'};
  uint8_t letter = 0;
  if (!reads(a) && x->kind == PAT_SCALAR)
    letter = x->tag == TAG_INT ? 'i' : x->tag == TAG_FLOAT ? 'd' : 'b';
  else if (!reads(a) && x->kind != PAT_FN)
    letter = letters[x->kind];
  else if (!reads(a))
    return raise_false(
        a->vm, E_type,
        "a graph with a function among its arguments cannot be written: let the function that is exported "
        "take arrays alone");
  if (!ar_u8(a, &letter)) return false;
  switch (letter) {
  case 'a':
  case 'i':
  case 'd':
  case 'b': return ar_leaf(r, letter, x);
  case 'v': return ar_exact(a, x);
  case 'l':
  case 'r': return ar_patterns(r, letter, self, at, depth);
  default: return wrong(a, "there is no kind of pattern %d", letter);
  }
}

static bool ar_arguments(body_archive *r) {
  archive *a = r->a;
  pattern *p = &r->b->call.pattern;
  uint32_t n = p->nargs;
  if (!ar_count(a, 1, &n)) return false;
  for (uint32_t i = 0; i < n; i++) {
    if (reads(a) && !pattern_add_root(a->vm, p, ROOT_ARG)) return false;
    uint32_t at = p->roots[i].first;
    if (!ar_pattern(r, &at, 0)) return false;
  }
  p->ninputs = r->b->call.graph->ninputs;
  return true;
}

typedef struct cotangents {
  body_archive *r;
  uint32_t at;
} cotangents;

static bool claim_cotangent(void *ctx, qn_value v) {
  cotangents *c = ctx;
  graph_type t = type_of_value(v);
  return !is_float_leaf(v) || claim(c->r, c->at++, &t, 1);
}

/* The prototype of the one argument of a pullback. */
static bool ar_cotangent(body_archive *r) {
  graph_body *b = r->b;
  cotangents c = {r, b->nbound};
  if (reads(r->a)) b->like = value_nil();
  return ar_value(r->a, &b->like, PART_cotangent) && tree_each(r->a->vm, b->like, claim_cotangent, &c);
}

/* ---- templates ------------------------------------------------------------------------------------------------------------------- */

static graph_body *ar_body(archive *a, graph_body *b);

/* What the outputs of a template are: nodes of a graph. */
typedef struct outputs {
  const graph *g;
  const uint32_t *nodes;
  uint32_t n;
} outputs;

/* Can input i of a graph be bound to what this template makes? */
static bool binds(archive *a, const graph_body *b, uint32_t i, const tpl *x, const outputs *from) {
  graph_type t = {0};
  if (!reads(a) || i >= b->nbound) return true;
  if (x->kind == TPL_OUTPUT)
    t = from->g->nodes[from->nodes[x->output]].type;
  else if (x->kind != TPL_VALUE || !value_graph_type(x->value, &t))
    return wrong(a, "a graph is bound to what is no array");
  return graph_type_same(&t, &input_node(b, b->bound[i])->type) ||
         wrong(a, "a bound value has another type than its input");
}

/* A graph inside a result. Gives its body; when reading, x becomes the function that stands for it in the template. */
static graph_body *ar_made_graph(archive *a, tpl_list *t, tpl *x) {
  graph_body *b = ar_body(a, reads(a) ? NULL : body_of(x->value));
  if (!b || !reads(a)) return b;
  qn_fn *f = fn_new(a->vm, FN_GRAPH, b, b->nbound + b->ndefaults);
  body_release(a->vm, b);
  if (!f) return NULL;
  x->output = ++t->made;
  x->value = value_obj(TAG_FN, f);
  return b;
}

/* The template at part *at; moves *at behind it. When reading, parts are appended. */
static bool ar_template(archive *a, tpl_list *t, uint32_t *at, const outputs *from, int depth) {
  static const char letters[] = {
      [TPL_OUTPUT] = 'o', [TPL_VALUE] = 'v', [TPL_LIST] = 'l', [TPL_RECORD] = 'r', [TPL_FN] = 'g'};
  if (reads(a) && depth > PATTERN_DEPTH) return wrong(a, "a result nests too deep");
  if (reads(a) && !template_add(a->vm, t, TPL_VALUE)) return false;
  uint32_t self = (*at)++;
  tpl x = t->tpls[self];
  if (x.kind == TPL_AGAIN) { /* in a file each place has a function of its own */
    uint32_t i = 0;
    while (t->tpls[i].kind != TPL_FN || t->tpls[i].output != x.output) i++;
    return ar_template(a, t, &i, from, depth);
  }
  if (!reads(a) && (x.kind == TPL_GIVEN || (x.kind == TPL_FN && !value_is_graph(x.value))))
    return refuse(a, PART_result, x.value);
  uint8_t letter = (uint8_t)letters[x.kind];
  if (!ar_u8(a, &letter)) return false;
  const char *kind = memchr(letters, letter, sizeof letters);
  if (!kind) return wrong(a, "there is no kind of result %d", letter);
  x.kind = (uint8_t)(kind - letters);
  const graph_body *body = NULL;
  bool ok = true, record = letter == 'r';
  if (letter == 'o')
    ok = ar_u32(a, &x.output) && (!reads(a) || x.output < from->n || wrong(a, "a result is no output"));
  else if (letter == 'v')
    ok = ar_value(a, &x.value, PART_result);
  else if (letter == 'g')
    ok = (body = ar_made_graph(a, t, &x)) != NULL && ar_count(a, 1, &x.n) &&
         (x.n == value_fn(x.value)->ncaptures || wrong(a, "a graph is bound to another number of values"));
  else
    ok = ar_count(a, record ? 5 : 1, &x.n);
  ok = ok && (!record || ar_names(a, &x.value));
  if (reads(a)) t->tpls[self] = x; /* the template owns the value from here on */
  for (uint32_t i = 0; i < x.n && ok; i++) {
    uint32_t item = *at;
    ok = (!record || ar_field(a, value_record(x.value), i)) && ar_template(a, t, at, from, depth + 1) &&
         (!body || binds(a, body, i, &t->tpls[item], from));
  }
  return ok;
}

static bool ar_whole_template(archive *a, tpl_list *t, const outputs *from) {
  uint32_t at = 0;
  return ar_template(a, t, &at, from, 0);
}

/* ---- guards ------------------------------------------------------------------------------------------------------------------------- */

static bool ar_operation(archive *a, scalar_guard *x, uint32_t number) {
  const char *name;
  uint32_t len;
  if (!ar_word(a, reads(a) ? NULL : op_rows[x->op].name, &name, &len) || !ar_dtype(a, &x->dtype) || !ar_u8(a, &x->nin))
    return false;
  op_id op = op_find(name, len);
  if (op == OP_COUNT || op_rows[op].klass != CLASS_POINTWISE || x->nin < 1 || x->nin > 3 ||
      x->nin != op_rows[op].arity || op == OP_fit)
    return wrong(a, "a guard has an unknown operation");
  if (op == OP_cast && !dtype_is_weak(x->dtype)) return wrong(a, "a guard is no host number");
  x->op = (uint8_t)op;
  for (int k = 0; k < x->nin; k++)
    if (!ar_u32(a, &x->in[k]) || x->in[k] >= number) return wrong(a, "a guard reads what comes later");
  return true;
}

static bool ar_guard(body_archive *r, scalar_guard *x, uint32_t number) {
  archive *a = r->a;
  uint8_t letter = reads(a) ? 0 : x->op == GUARD_INPUT ? 'i' : x->op == GUARD_CONST ? 'c' : 'o';
  if (!ar_u8(a, &letter)) return false;
  switch (letter) {
  case 'i':
    x->op = GUARD_INPUT;
    if (!ar_u32(a, &x->in[0])) return false;
    if (reads(a) &&
        (x->in[0] >= r->b->call.graph->ninputs || r->sources[x->in[0]] != 1 || !input_node(r->b, x->in[0])->type.weak))
      return wrong(a, "a guard reads no number");
    break;
  case 'c':
    x->op = GUARD_CONST;
    if (!ar_number(a, &x->value)) return false;
    break;
  case 'o':
    if (!ar_operation(a, x, number)) return false;
    break;
  default: return wrong(a, "there is no kind of guard %d", letter);
  }
  return ar_bool(a, &x->compare) && (!x->compare || ar_number(a, &x->value));
}

static bool ar_guards(body_archive *r) {
  archive *a = r->a;
  specialization *e = &r->b->call;
  uint32_t n = e->nguards;
  if (!ar_count(a, 2, &n)) return false;
  if (n > GUARDS_MAX) return wrong(a, "there are too many guards");
  if (reads(a) && n) {
    if (!(e->guards = mem_zalloc(a->vm, n * sizeof *e->guards))) return false;
    e->nguards = n;
    for (uint32_t i = 0; i < n; i++) e->guards[i].value = value_nil();
  }
  for (uint32_t i = 0; i < n; i++)
    if (!ar_guard(r, &e->guards[i], i)) return false;
  return true;
}

/* ---- regions: the backward functions that are written ------------------------------------------------------------------------------- */

/* Some value of a node's type, owned; for a number the one that a guard asks for, or any other if there is none. */
static qn_value value_like(qn_vm *vm, const graph_body *b, const graph_node *n) {
  const specialization *e = &b->call;
  if (!n->type.weak) {
    qn_array *a = array_new(vm, (qn_dtype)n->type.dtype, n->type.rank, n->type.shape);
    if (!a) return value_error();
    memset(array_data(a), 0, (size_t)a->size * dtype_size((qn_dtype)a->dtype));
    a = array_settle(vm, a);
    return a ? value_obj(TAG_ARRAY, a) : value_error();
  }
  if (n->kind == NODE_CONST) return dtype_load((qn_dtype)n->type.dtype, n->payload.data);
  for (uint32_t i = 0; i < e->nguards && n->kind == NODE_INPUT; i++)
    if (e->guards[i].op == GUARD_INPUT && e->guards[i].compare && e->guards[i].in[0] == n->payload.input)
      return e->guards[i].value;
  return dtype_scalar(n->type.dtype, 1, 1);
}

/* The value of a template, with values of the types that these nodes have. Owned, or the error value. */
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

/* Records the backward function of a region's rule, and gives the graph. Owned, or the error value. */
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
  } else {
    value_release(vm, ct);
  }
  vm_pop_to(vm, mark);
  value_release(vm, args);
  return result;
}

/* ---- regions ------------------------------------------------------------------------------------------------------------------------ */

/* Are all floats in a template outputs, and all outputs floats? Then a walk over the floats of a tree meets the outputs one by one. */
static bool floats_alone(archive *a, const graph *g, const tpl_list *t, const uint32_t *nodes) {
  for (uint32_t i = 0; i < t->n; i++) {
    const tpl *x = &t->tpls[i];
    bool ok = x->kind == TPL_LIST || x->kind == TPL_RECORD || (x->kind == TPL_VALUE && value_is(x->value, TAG_NIL)) ||
              (x->kind == TPL_OUTPUT && dtype_is_float((qn_dtype)g->nodes[nodes[x->output]].type.dtype));
    if (!ok) return wrong(a, "a rule of a derivative has a part that is none");
  }
  return true;
}

static bool is_list(const tpl_list *t) { return t->n && t->tpls[0].kind == TPL_LIST; }

/* The rule of region x; *backward is its function as a graph. */
static bool ar_rule(archive *a, const graph *g, const graph_region *x, region_rule *rule, qn_value *backward) {
  outputs outs = {g, x->outs, x->nouts}, args = {g, x->args, x->nargs};
  if (!ar_u32(a, &rule->lanes) || !ar_graph(a, backward)) return false;
  if (!ar_whole_template(a, &rule->cts, &outs) || !ar_whole_template(a, &rule->args, &args) ||
      !ar_whole_template(a, &rule->like, &args))
    return false;
  if (!reads(a)) return true;
  rule->levels = rule->lanes > 0; /* at least one; only messages about shapes depend on it */
  return floats_alone(a, g, &rule->cts, x->outs) && floats_alone(a, g, &rule->like, x->args) &&
         ((is_list(&rule->args) && is_list(&rule->like) && rule->like.tpls[0].n == rule->args.tpls[0].n &&
           rule->like.tpls[0].n) ||
          wrong(a, "a rule of a derivative has no list of arguments"));
}

static bool write_rule(archive *a, const graph_body *b, const graph_region *x) {
  qn_value backward = rule_graph(a->vm, b, x);
  return !value_is_error(backward) && keep(a, backward) && ar_rule(a, b->call.graph, x, x->rule, &backward);
}

/* Reads the rule of region x of graph g. With one reference; NULL if something is wrong. */
static region_rule *read_rule(archive *a, const graph *g, const graph_region *x) {
  region_rule *rule = region_rule_new(a->vm);
  if (!rule) return NULL;
  rule->number = ++jit_of(a->vm)->last_rule;
  if (ar_rule(a, g, x, rule, &rule->backward)) return rule;
  region_rule_release(a->vm, rule);
  return NULL;
}

static bool ar_nodes(archive *a, uint32_t *nodes, uint32_t n, uint32_t from, uint32_t end) {
  for (uint32_t i = 0; i < n; i++)
    if (!ar_u32(a, &nodes[i]) || nodes[i] < from || nodes[i] >= end) return wrong(a, "a region has no such node");
  return true;
}

/* What follows the bounds and counts of a region; `nodes` are its args and outs. */
static bool ar_region_parts(archive *a, graph_body *b, graph_region *x, uint32_t *nodes) {
  const graph *g = b->call.graph;
  uint8_t letter = x->rule ? 'r' : 'a';
  x->args = nodes;
  x->outs = nodes + x->nargs;
  if (!ar_nodes(a, nodes, x->nargs, 1, x->first) || !ar_nodes(a, nodes + x->nargs, x->nouts, x->first, x->end) ||
      !ar_u8(a, &letter))
    return false;
  for (uint32_t i = 0; i < x->nouts; i++)
    if (g->nodes[x->outs[i]].kind == NODE_INPUT) return wrong(a, "a region's result is an input");
  if (letter != 'a' && letter != 'r') return wrong(a, "there is no kind of region %d", letter);
  if (!reads(a)) return letter == 'a' || write_rule(a, b, x);
  x->again = letter == 'a';
  if (letter == 'r' && !(x->rule = read_rule(a, g, x))) return false;
  bool ok = regions_add(a->vm, &b->call.regions, x);
  region_rule_release(a->vm, x->rule);
  return ok;
}

static bool ar_region(archive *a, graph_body *b, uint32_t i) {
  graph_region x = {0};
  if (!reads(a)) x = b->call.regions.list[i];
  if (!ar_u32(a, &x.first) || !ar_u32(a, &x.end) || !ar_count(a, 4, &x.nargs) || !ar_count(a, 4, &x.nouts))
    return false;
  if (!x.first || x.first >= x.end || x.end > b->call.graph->n) return wrong(a, "a region has no such nodes");
  size_t n = (size_t)x.nargs + x.nouts, bytes = (n + 1) * sizeof(uint32_t);
  uint32_t *nodes = mem_alloc(a->vm, bytes);
  if (!nodes) return false;
  if (!reads(a) && n) memcpy(nodes, x.args, n * sizeof *nodes);
  bool ok = ar_region_parts(a, b, &x, nodes);
  mem_free(a->vm, nodes, bytes);
  return ok;
}

/* How regions are nested. */
typedef struct nesting {
  uint32_t *parent, *depth; /* for each region: the number of the region around it + 1, and how many are around it */
  /* for each node: the number of the innermost region that it is in + 1; 0 for inputs, which may stand anywhere */
  uint32_t *owner;
  uint64_t *outs; /* for each node: bit d is set if it is a result of the region of depth d that it is in */
} nesting;

/* Checks that regions come in the order of their ends, and that each lies inside another one or apart from it. Fills in parents and depths. */
static bool regions_nest(archive *a, const graph_body *b, nesting *n, uint32_t *stack) {
  const graph *g = b->call.graph;
  const graph_region *list = b->call.regions.list;
  uint32_t top = 0;
  for (uint32_t i = 0; i < b->call.regions.n; i++) {
    if (i && list[i].end < list[i - 1].end) return wrong(a, "regions are out of order");
    for (; top && list[stack[top - 1]].first >= list[i].first; top--) {
      uint32_t inner = stack[top - 1];
      n->parent[inner] = i + 1;
      if (n->depth[inner] + 1 > n->depth[i]) n->depth[i] = n->depth[inner] + 1;
    }
    if (top && list[stack[top - 1]].end > list[i].first) return wrong(a, "regions overlap");
    if (n->depth[i] >= REGION_DEPTH) return wrong(a, "regions nest too deep");
    stack[top++] = i;
    for (uint32_t k = list[i].first; k < list[i].end; k++)
      if (!n->owner[k] && g->nodes[k].kind != NODE_INPUT) n->owner[k] = i + 1;
    for (uint32_t k = 0; k < list[i].nouts; k++) n->outs[list[i].outs[k]] |= (uint64_t)1 << n->depth[i];
  }
  return true;
}

/* Node `node` is read by node `by`, or, if `by` is the number of nodes, it is an output of the graph. Is it a result of every region that
 * it is in and `by` is not? */
static bool read_through(const graph_body *b, const nesting *n, uint32_t node, uint32_t by) {
  for (uint32_t i = n->owner[node]; i; i = n->parent[i - 1]) {
    if (by < b->call.regions.list[i - 1].end) return true;
    if (!(n->outs[node] >> n->depth[i - 1] & 1)) return false;
  }
  return true;
}

static bool regions_closed(archive *a, const graph_body *b) {
  const graph *g = b->call.graph;
  uint32_t nr = b->call.regions.n;
  if (!nr) return true;
  size_t bytes = g->n * sizeof(uint64_t) + (g->n + 3 * (size_t)nr) * sizeof(uint32_t);
  nesting n = {.outs = mem_zalloc(a->vm, bytes)};
  if (!n.outs) return false;
  n.owner = (uint32_t *)(n.outs + g->n);
  n.parent = n.owner + g->n;
  n.depth = n.parent + nr;
  bool ok = regions_nest(a, b, &n, n.depth + nr);
  for (uint32_t i = 1; i < g->n && ok; i++)
    for (int k = 0; k < g->nodes[i].nin && ok; k++) ok = read_through(b, &n, g->nodes[i].in[k], i);
  for (uint32_t i = 0; i < g->noutputs && ok; i++) ok = read_through(b, &n, g->outputs[i], g->n);
  mem_free(a->vm, n.outs, bytes);
  return ok || wrong(a, "something reads the inside of a region");
}

static bool ar_regions(archive *a, graph_body *b) {
  uint32_t n = b->call.regions.n;
  if (!ar_count(a, 17, &n)) return false;
  for (uint32_t i = 0; i < n; i++)
    if (!ar_region(a, b, i) || vm_poll(a->vm)) return false;
  return !reads(a) || regions_closed(a, b);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------------------------------ */

static bool write_graph_text(archive *a, const graph *g) {
  char why[256] = "";
  if (!graph_runnable(g, why, sizeof why))
    return raise_false(a->vm, E_argument, "this graph cannot be written: %s", why);
  text_buf t = {.vm = a->vm};
  graph_print_apart(g, &(graph_store){.least = IN_TEXT, .ctx = a, .put = add_run}, &t);
  const char *text;
  uint32_t len;
  bool ok = !t.failed && ar_text(a, t.text ? t.text : "", (uint32_t)t.len, &text, &len);
  text_free(&t);
  if (!ok && !error_pending(a->vm)) raise_memory(a->vm);
  return ok;
}

/* Reads a graph from the next text, checks it and takes its proofs away. NULL if something is wrong. */
static graph *read_graph_text(archive *a) {
  const char *text;
  uint32_t len;
  if (!ar_text(a, NULL, 0, &text, &len)) return NULL;
  if (memchr(text, 0, len)) {
    wrong(a, "the graph's text holds a NUL");
    return NULL;
  }
  char *copy = mem_alloc(a->vm, len + (size_t)1); /* the parser wants a NUL at the end */
  if (!copy) return NULL;
  memcpy(copy, text, len);
  copy[len] = 0;
  char why[256] = "";
  graph *g = graph_parse_apart(copy, &(graph_store){.ctx = a, .take = take_run}, why, sizeof why);
  mem_free(a->vm, copy, len + (size_t)1);
  if (g && graph_runnable(g, why, sizeof why) && graph_distrust(g)) return g;
  bool memory = g ? g->failed || g->arena.failed : strstr(why, "out of memory") != NULL;
  if (g) graph_free(g);
  if (memory && !error_pending(a->vm))
    raise_memory(a->vm);
  else
    wrong(a, "the graph's text: %s", why);
  return NULL;
}

/* The names of the parameters: a list (owned if it is read), or nil. */
static bool ar_params(archive *a, qn_value *names) {
  uint32_t n = value_is(*names, TAG_LIST) ? value_list(*names)->len : 0;
  if (!ar_count(a, 4, &n)) return false;
  if (reads(a)) {
    qn_list *made = list_new(a->vm, 0);
    if (!made) return false;
    *names = value_obj(TAG_LIST, made);
  }
  for (uint32_t i = 0; i < n; i++) {
    qn_list *l = value_list(*names);
    qn_str *name = reads(a) ? NULL : value_str(l->items[i]);
    if (!ar_name(a, &name)) return false;
    if (!reads(a)) continue;
    bool twice = false;
    for (uint32_t k = 0; k < i; k++) twice |= value_str(l->items[k]) == name;
    if (!list_push(a->vm, l, value_obj(TAG_STR, name))) return false;
    if (twice) return wrong(a, "two parameters have one name");
    if (i == MOST_PARAMS) return wrong(a, "there are too many parameters");
  }
  return true;
}

/* Which inputs are bound to captures. The values come last in the file, and are checked then. */
static bool ar_bound(body_archive *r) {
  archive *a = r->a;
  graph_body *b = r->b;
  uint32_t n = b->nbound;
  if (!ar_count(a, 4, &n)) return false;
  if (reads(a)) {
    if (n > b->call.graph->ninputs) return wrong(a, "more inputs are bound than there are");
    if (!(b->bound = mem_zalloc(a->vm, (n + (size_t)1) * sizeof *b->bound))) return false;
    b->nbound = n;
  }
  for (uint32_t i = 0; i < n; i++) {
    uint32_t input = b->bound ? b->bound[i] : i;
    if (!ar_u32(a, &input)) return false;
    if (!reads(a)) continue;
    if (input >= b->call.graph->ninputs) return wrong(a, "an input has no source, or two");
    if (!claim(r, b->bound[i] = input, &input_node(b, input)->type, 1)) return false;
  }
  return true;
}

/* How many numbers are drawn; with the highest bit set, the outputs follow that are the state behind a call. */
static bool ar_drawn(body_archive *r, specialization *e) {
  const uint64_t outputs = (uint64_t)1 << 63;
  bool any = false;
  for (int i = 0; i < RANDOM_INPUTS; i++) any |= e->drawn[i] != 0;
  uint64_t n = e->ndraws | (any ? outputs : 0);
  if (!ar_int(r->a, 8, &n)) return false;
  e->ndraws = n & ~outputs;
  const graph *g = e->graph;
  for (int i = 0; i < RANDOM_INPUTS && (n & outputs); i++) {
    if (!ar_u32(r->a, &e->drawn[i])) return false;
    if (!e->drawn[i] || !reads(r->a)) continue;
    const graph_type *t = e->drawn[i] > g->noutputs ? NULL : &g->nodes[g->outputs[e->drawn[i] - 1]].type;
    if (!t || !t->weak || t->dtype != WEAK_INT) return wrong(r->a, "random numbers are no output");
  }
  return true;
}

static bool ar_draws(body_archive *r) {
  specialization *e = &r->b->call;
  graph_type t = {.dtype = WEAK_INT, .weak = true};
  for (int i = 0; i < RANDOM_INPUTS; i++)
    if (!ar_u32(r->a, &e->random[i]) || (e->random[i] && !claim(r, e->random[i] - 1, &t, 2))) return false;
  if (!ar_drawn(r, e)) return false;
  return !reads(r->a) || !e->random[RANDOM_DRAW] || e->drawn[RANDOM_DRAW] ||
         (e->ndraws >= 1 && e->ndraws <= UINT32_MAX) || wrong(r->a, "it draws no numbers");
}

/* Do the parameters, `named` of which have names, agree with the pattern that was read? */
static bool params_fit(archive *a, const graph_body *b, bool pullback, uint32_t named) {
  const pattern *p = &b->call.pattern;
  bool list = p->nargs && p->pats[p->roots[p->nargs - 1].first].kind == PAT_LIST;
  uint32_t fixed = p->nargs - b->rest;
  return !((b->rest && (!list || b->ndefaults)) || (named && named != fixed) || b->ndefaults > fixed ||
           (pullback && (p->nargs || b->rest || b->ndefaults))) ||
         wrong(a, "the parameters are not those of the arguments");
}

/* Everything of a body but the graph itself, its regions and the bound values. *names is what ar_params gives. */
static bool ar_call(body_archive *r, qn_value *names) {
  archive *a = r->a;
  graph_body *b = r->b;
  const graph *g = b->call.graph;
  bool pullback = b->like.head != TAG_UNSET;
  if (!ar_params(a, names) || !ar_bool(a, &b->rest) || !ar_u32(a, &b->ndefaults) || !ar_bound(r) ||
      !ar_bool(a, &pullback))
    return false;
  for (uint32_t i = 0; i < b->nbound && pullback && reads(a); i++)
    if (b->bound[i] != i) return wrong(a, "a pullback is bound otherwise");
  if ((pullback && !ar_cotangent(r)) || !ar_arguments(r) ||
      !ar_whole_template(a, &b->call.result, &(outputs){g, g->outputs, g->noutputs}) || !ar_guards(r) || !ar_draws(r))
    return false;
  if (!reads(a)) return true;
  for (uint32_t i = 0; i < g->ninputs; i++)
    if (!r->sources[i]) return wrong(a, "an input has no source, or two");
  uint32_t named = value_list(*names)->len;
  if (!params_fit(a, b, pullback, named)) return false;
  if (named) body_name_params(b, *names);
  return true;
}

/* Reads a body, without the values that it is bound to. NULL if something is wrong. */
static graph_body *read_body(archive *a) {
  if (a->graphs == GRAPH_DEPTH) {
    wrong(a, "graphs nest too deep");
    return NULL;
  }
  if (!vm_enter(a->vm, 0)) return NULL;
  graph *g = read_graph_text(a);
  graph_body *b = g ? body_new(a->vm) : NULL;
  if (!b) {
    if (g) graph_free(g);
    return NULL;
  }
  b->call.graph = g;
  b->code.anchor.name = "graph";
  body_archive r = {a, b, mem_zalloc(a->vm, g->ninputs + (size_t)1)};
  qn_value names = value_nil();
  a->graphs++;
  bool ok = r.sources && ar_call(&r, &names) && ar_regions(a, b);
  a->graphs--;
  mem_free(a->vm, r.sources, g->ninputs + (size_t)1);
  value_release(a->vm, names);
  if (ok) {
    body_finish(b);
    return b;
  }
  body_release(a->vm, b);
  return NULL;
}

/* A whole graph but for its bound values. `b` is NULL when it is read: then the result is owned. NULL if something is wrong. */
static graph_body *ar_body(archive *a, graph_body *b) {
  if (reads(a)) return read_body(a);
  if (!deeper(a, "graphs nest")) return NULL;
  body_archive r = {a, b, NULL};
  bool ok = write_graph_text(a, b->call.graph) && ar_call(&r, &b->params) && ar_regions(a, b);
  a->depth--;
  return ok ? b : NULL;
}

/* Can bound input i of a graph that was read have this value? */
static bool fits_bound(archive *a, const graph_body *b, uint32_t i, qn_value v) {
  graph_type t = {0};
  return i >= b->nbound || (value_graph_type(v, &t) && graph_type_same(&t, &input_node(b, b->bound[i])->type)) ||
         wrong(a, "a bound value has another type than its input");
}

static bool ar_graph(archive *a, qn_value *g) {
  qn_vm *vm = a->vm;
  graph_body *b = ar_body(a, reads(a) ? NULL : body_of(*g));
  if (!b) return false;
  uint32_t n = b->nbound + b->ndefaults;
  if (!reads(a)) {
    bool ok = true;
    for (uint32_t i = 0; i < n && ok; i++) ok = ar_value(a, &value_fn(*g)->captures[i], PART_bound);
    return ok;
  }
  qn_list *values = list_new(vm, n);
  bool ok = values != NULL;
  for (uint32_t i = 0; i < n && ok; i++)
    ok = ar_value(a, &values->items[i], PART_bound) && fits_bound(a, b, i, values->items[i]);
  qn_value made = ok ? body_value(vm, b, values->items) : value_error();
  if (values) value_release(vm, value_obj(TAG_LIST, values));
  body_release(vm, b);
  if (!value_is_error(made)) *g = made;
  return !value_is_error(made);
}

/* ---- the whole ---------------------------------------------------------------------------------------------------------------------------- */

bool jit_graph_serialize(qn_vm *vm, qn_value g, graph_serialize *out) {
  *out = (graph_serialize){.kept = value_nil(), .text = {.vm = vm}};
  qn_list *kept = list_new(vm, 0);
  if (!kept) return false;
  out->kept = value_obj(TAG_LIST, kept);
  archive a = {.vm = vm, .out = out};
  if (!keep(&a, value_retain(g)) || !ar_graph(&a, &g)) return false;
  return !out->text.failed || fail_memory(vm);
}

void graph_serialize_free(qn_vm *vm, graph_serialize *p) {
  text_free(&p->text);
  mem_free(vm, p->runs, p->cap * sizeof *p->runs);
  value_release(vm, p->kept);
  *p = (graph_serialize){.kept = value_nil()};
}

qn_value jit_graph_deserialize(qn_vm *vm, const graph_serialized *from, char *why, size_t size) {
  archive a = {.vm = vm,
               .p = from->text,
               .end = from->text + from->text_len,
               .data = from->data,
               .data_start = from->data,
               .data_end = from->data + from->data_len,
               .why = why,
               .size = size};
  why[0] = 0;
  qn_value g = value_nil();
  if (!ar_graph(&a, &g)) {
    if (!error_pending(vm)) wrong(&a, "it cannot be read");
    return value_error();
  }
  if (a.p == a.end && a.data == a.data_end) return g;
  wrong(&a, a.p == a.end ? "elements belong to no array" : "there is more behind the description");
  return value_fail(vm, g);
}
