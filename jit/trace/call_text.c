/* How a graph value is called, as a line of its text:
 *
 *   call   = "call (" [argument {"," argument}] ")" {"with" input "=" number} ["random" state state state "draws" N [out out out]] "->" result
 *   argument = [".."] [name ":"] tree       "..": all further arguments, as a list; those without names are the last ones
 *   tree   = input | exact | "(" [tree {"," tree} [","]] ")" | "{" [name ":" tree {"," name ":" tree}] "}"
 *   result = likewise, with "out" N for a result of the graph in place of inputs
 *   input  = "%"N                            the input's node
 *   exact  = "nil" | "true" | "false" | dtype | string | number
 *   number = integer | "bits(" hex ")"       a float by its bits
 *   state  = input | "-"                     what random numbers depend on: the first draw, and the words of the key
 *   out    = "out" N | "-"                   the same behind the call
 *
 * Numbers that the function took from elsewhere are bound (`with`); arrays that it took are further arguments, the last ones. Names and strings are
 * printable ASCII without quotes and backslashes: whatever else there is (functions, ranges) has no text, and then there is no line.
 */
#include "jit/trace/call_text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- writing ---------------------------------------------------------------------------------------------------------------------- */

static bool is_word(const qn_str *s) {
  bool ok = s->len > 0 && s->len < 64 && !isdigit((unsigned char)s->text[0]);
  for (size_t i = 0; i < s->len && ok; i++) ok = isalnum((unsigned char)s->text[i]) || s->text[i] == '_';
  return ok;
}

/* What an item is separated from the one before by. */
static void add_comma(text_buf *out, uint32_t i) {
  if (i) text_adds(out, ", ");
}

/* What stands before part i of a list, or of a record with these names. False if a name is no word. */
static bool add_name(const qn_record *names, uint32_t i, text_buf *out) {
  add_comma(out, i);
  if (!names) return true;
  if (!is_word(record_name(names, i))) return false;
  text_addf(out, "%s: ", record_name(names, i)->text);
  return true;
}

static bool exact_text(qn_value v, text_buf *out) {
  switch ((int)value_tag_of(v)) {
  case TAG_NIL: text_adds(out, "nil"); return true;
  case TAG_BOOL: text_adds(out, v.u.i ? "true" : "false"); return true;
  case TAG_INT: text_int(out, v.u.i); return true;
  case TAG_FLOAT: text_addf(out, "bits(%016llx)", (unsigned long long)v.u.i); return true;
  case TAG_DTYPE: text_adds(out, dtype_rows[v.u.i].name); return true;
  case TAG_STR: break;
  default: return false;
  }
  const qn_str *s = value_str(v);
  for (size_t i = 0; i < s->len; i++)
    if (s->text[i] < ' ' || s->text[i] > '~' || s->text[i] == '"' || s->text[i] == '\\') return false;
  text_addf(out, "\"%s\"", s->text);
  return true;
}

/* May an argument be asked for with this value? Numbers are inputs. */
static bool is_guard(qn_value v) { return !value_is(v, TAG_INT) && !value_is(v, TAG_FLOAT); }

/* Appends part `at` of the pattern; moves *at behind it. */
static bool pattern_text(const graph_body *b, uint32_t *at, text_buf *out) {
  const pattern *p = &b->call.pattern;
  const graph *g = b->call.graph;
  const pat *x = &p->pats[(*at)++];
  bool record = x->kind == PAT_RECORD, ok = true;
  switch ((pat_kind)x->kind) {
  case PAT_ARRAY:
  case PAT_SCALAR: text_addf(out, "%%%u", (unsigned)g->inputs[x->input]); return true;
  case PAT_EXACT: return !(x->tag == TAG_STR && x->n) && is_guard(x->value) && exact_text(x->value, out);
  case PAT_FN: return false;
  case PAT_LIST:
  case PAT_RECORD: break;
  }
  if (!record && x->tag != TAG_LIST) return false;
  uint32_t n = x->n;
  const qn_record *names = record ? value_record(x->value) : NULL;
  text_adds(out, record ? "{" : "(");
  for (uint32_t i = 0; i < n && ok; i++) {
    ok = add_name(names, i, out) && pattern_text(b, at, out);
  }
  text_adds(out, record ? "}" : n == 1 ? ",)" : ")");
  return ok;
}

/* The same of the result. */
static bool template_text(const tpl_list *t, uint32_t *at, text_buf *out) {
  const tpl *x = &t->tpls[(*at)++];
  bool record = x->kind == TPL_RECORD, ok = true;
  if (x->kind == TPL_OUTPUT) {
    text_addf(out, "out %u", (unsigned)x->output);
    return true;
  }
  if (x->kind == TPL_VALUE) return exact_text(x->value, out);
  if (!record && x->kind != TPL_LIST) return false;
  const qn_record *names = record ? value_record(x->value) : NULL;
  uint32_t n = x->n;
  text_adds(out, record ? "{" : "(");
  for (uint32_t i = 0; i < n && ok; i++) {
    ok = add_name(names, i, out) && template_text(t, at, out);
  }
  text_adds(out, record ? "}" : n == 1 ? ",)" : ")");
  return ok;
}

/* Is a call what the graph says by itself? */
static bool is_plain(const graph_body *b) {
  const specialization *e = &b->call;
  const pattern *p = &e->pattern;
  const graph *g = e->graph;
  bool plain = !b->rest && p->nargs + b->nbound == g->ninputs;
  for (uint32_t i = 0; i < p->nargs && plain; i++) {
    const pat *x = &p->pats[p->roots[i].first];
    plain = (x->kind == PAT_ARRAY || x->kind == PAT_SCALAR) && x->input == i;
  }
  for (uint32_t i = 0; i < b->nbound && plain; i++)
    plain = (b->bound ? b->bound[i] : i) == p->nargs + i && !g->nodes[g->inputs[p->nargs + i]].type.weak;
  const tpl *t = e->result.tpls;
  uint32_t n = g->noutputs, list = n != 1;
  plain = plain && e->result.n == n + list && (!list || t[0].kind == TPL_LIST);
  for (uint32_t i = 0; i < n && plain; i++) plain = t[i + list].kind == TPL_OUTPUT && t[i + list].output == i;
  return plain;
}

static bool call_text(qn_value graph_value, text_buf *out) {
  const graph_body *b = body_of(graph_value);
  const specialization *e = &b->call;
  const pattern *p = &e->pattern;
  const graph *g = e->graph;
  const qn_value *captures = value_fn(graph_value)->captures;
  bool ok = true, named = true;
  uint32_t n = 0;
  text_adds(out, "call (");
  for (; n < p->nargs && ok; n++) {
    uint32_t at = p->roots[n].first;
    const qn_str *name = p->roots[n].name;
    bool rest = b->rest && n + 1 == p->nargs;
    named = named && !rest && name && is_word(name);
    add_comma(out, n);
    if (rest) text_adds(out, "..");
    if (named) text_addf(out, "%s: ", name->text);
    ok = pattern_text(b, &at, out);
  }
  for (uint32_t i = 0; i < b->nbound && ok; i++) {
    uint32_t node = g->inputs[b->bound ? b->bound[i] : i];
    if (g->nodes[node].type.weak) continue;
    add_comma(out, n++);
    text_addf(out, "%%%u", (unsigned)node);
    ok = !b->rest;
  }
  text_adds(out, ")");
  for (uint32_t i = 0; i < b->nbound && ok; i++) {
    uint32_t node = g->inputs[b->bound ? b->bound[i] : i];
    if (!g->nodes[node].type.weak) continue;
    text_addf(out, " with %%%u = ", (unsigned)node);
    ok = exact_text(captures[i], out);
  }
  bool draws = false, leaves = false;
  for (int i = 0; i < RANDOM_INPUTS; i++) draws |= e->random[i] != 0, leaves |= e->drawn[i] != 0;
  if (draws || leaves) {
    text_adds(out, " random");
    for (int i = 0; i < RANDOM_INPUTS; i++)
      if (e->random[i])
        text_addf(out, " %%%u", (unsigned)g->inputs[e->random[i] - 1]);
      else
        text_adds(out, " -");
    text_addf(out, " draws %llu", (unsigned long long)e->ndraws);
    for (int i = 0; i < RANDOM_INPUTS && leaves; i++)
      if (e->drawn[i])
        text_addf(out, " out %u", (unsigned)e->drawn[i] - 1);
      else
        text_adds(out, " -");
  }
  text_adds(out, " -> ");
  uint32_t at = 0;
  ok = ok && template_text(&e->result, &at, out);
  text_adds(out, "\n");
  return ok;
}

void call_text_write(qn_value graph, text_buf *out) {
  const graph_body *b = body_of(graph);
  if (b->like.head != TAG_UNSET || b->ndefaults || !b->call.result.n || is_plain(b)) return;
  size_t from = out->len;
  if (!call_text(graph, out) && out->text) out->text[out->len = from] = 0;
}

/* ---- reading ---------------------------------------------------------------------------------------------------------------------- */

typedef struct reader {
  qn_vm *vm;
  const char *at;
  graph_body *b;
  qn_value *values;
  uint32_t *bound; /* the inputs that these are bound to */
  bool *claimed;   /* of each input: it has its source */
  char *why;
  size_t size;
} reader;

/* Notes what is wrong. False. */
static bool wrong(reader *r, const char *what) {
  if (!error_pending(r->vm) && !r->why[0])
    snprintf(r->why, r->size, "%s, at \"%.24s\" of how it is called", what, r->at);
  return false;
}

static void blanks(reader *r) {
  while (*r->at == ' ') r->at++;
}

/* Takes a mark or a word if it is next. */
static bool takes(reader *r, const char *text) {
  blanks(r);
  size_t n = strlen(text);
  if (strncmp(r->at, text, n) != 0) return false;
  bool word = isalnum((unsigned char)text[n - 1]) != 0;
  if (word && (isalnum((unsigned char)r->at[n]) || r->at[n] == '_')) return false;
  r->at += n;
  return true;
}

static bool expects(reader *r, const char *text) {
  char what[32];
  snprintf(what, sizeof what, "%s is expected", text);
  return takes(r, text) || wrong(r, what);
}

static bool takes_number(reader *r, uint64_t most, uint64_t *out) {
  blanks(r);
  uint64_t x = 0;
  const char *from = r->at;
  for (; isdigit((unsigned char)*r->at); r->at++) {
    uint64_t digit = (uint64_t)(*r->at - '0');
    if (x > (most - digit) / 10) return wrong(r, "a number is too large");
    x = 10 * x + digit;
  }
  *out = x;
  return r->at > from || wrong(r, "a number is expected");
}

/* An input that has no source yet, by its node. */
static bool takes_input(reader *r, uint32_t *input) {
  const graph *g = r->b->call.graph;
  uint64_t node;
  if (!expects(r, "%") || !takes_number(r, UINT32_MAX, &node)) return false;
  for (*input = 0; *input < g->ninputs && g->inputs[*input] != node;) ++*input;
  if (*input == g->ninputs || r->claimed[*input]) return wrong(r, "that is no input, or one that has a source");
  return r->claimed[*input] = true;
}

static size_t word_length(const char *s) {
  size_t n = 0;
  if (!isdigit((unsigned char)*s))
    while (isalnum((unsigned char)s[n]) || s[n] == '_') n++;
  return n;
}

/* A name and the colon behind it, as a text (owned); *name NULL: there is none. */
static bool takes_name(reader *r, qn_str **name) {
  blanks(r);
  size_t n = word_length(r->at);
  *name = NULL;
  if (!n || r->at[n] != ':') return true;
  *name = str_intern(r->vm, r->at, n);
  r->at += n + 1;
  return *name != NULL;
}

/* A number, text, bool, nil or dtype; owned. */
static bool takes_exact(reader *r, qn_value *out) {
  blanks(r);
  if (takes(r, "nil")) return *out = value_nil(), true;
  if (takes(r, "true")) return *out = value_bool(true), true;
  if (takes(r, "false")) return *out = value_bool(false), true;
  if (*r->at == '"') {
    const char *end = strchr(r->at + 1, '"');
    if (!end) return wrong(r, "a text has no end");
    qn_str *s = str_new(r->vm, r->at + 1, (size_t)(end - r->at) - 1);
    if (s) *out = value_obj(TAG_STR, s);
    r->at = end + 1;
    return s != NULL;
  }
  if (takes(r, "bits(")) {
    uint64_t x = 0;
    for (int i = 0; i < 16; i++, r->at++) {
      const char *digits = "0123456789abcdef", *digit = *r->at ? strchr(digits, *r->at) : NULL;
      if (!digit) return wrong(r, "16 digits are expected");
      x = x << 4 | (uint64_t)(digit - digits);
    }
    double f;
    memcpy(&f, &x, sizeof f);
    *out = value_float(f);
    return expects(r, ")");
  }
  size_t n = word_length(r->at);
  int d = n ? (int)dtype_find(r->at, n) : DTYPE_PUBLIC;
  if (n && d < DTYPE_PUBLIC) {
    r->at += n;
    return *out = value_dtype((qn_dtype)d), true;
  }
  bool minus = takes(r, "-");
  uint64_t x;
  if (!takes_number(r, (uint64_t)INT64_MAX + minus, &x)) return false;
  *out = value_int((int64_t)(minus ? 0 - x : x));
  return true;
}

/* What the two trees have in common: reads the items of a list or record behind its bracket, each by `item`. *n: how many; `names` (of a record, else NULL)
 * gets their names. */
typedef bool (*tree_reader)(reader *r, int depth);
static bool takes_items(reader *r, int depth, tree_reader item, qn_record *names, uint32_t *n) {
  const char *end = names ? "}" : ")";
  if (depth == PATTERN_DEPTH) return wrong(r, "it nests too deep");
  for (*n = 0; !takes(r, end); ++*n) {
    if (*n && !expects(r, ",")) return false;
    if (*n && takes(r, end)) return true;
    qn_str *name = NULL;
    bool ok = !names || (takes_name(r, &name) && (name || wrong(r, "a field's name is expected")));
    ok = ok && (!names || ((record_find(names, name) < 0 || wrong(r, "two fields have one name")) &&
                           record_set(r->vm, names, name, value_nil())));
    if (name) value_release(r->vm, value_obj(TAG_STR, name));
    if (!ok || !item(r, depth + 1)) return false;
  }
  return true;
}

static bool takes_pattern(reader *r, int depth) {
  pattern *p = &r->b->call.pattern;
  uint32_t self = p->n;
  pat *x = pattern_add(r->vm, p);
  if (!x) return false;
  *x = (pat){.kind = PAT_EXACT, .value = value_nil()};
  blanks(r);
  if (*r->at == '%') {
    uint32_t input;
    const graph *g = r->b->call.graph;
    return takes_input(r, &input) && pattern_set_input(r->vm, p, x, &g->nodes[g->inputs[input]].type, input);
  }
  bool record = takes(r, "{");
  if (!record && !takes(r, "(")) {
    qn_value v = value_nil();
    if (!takes_exact(r, &v)) return false;
    p->pats[self].value = v;
    p->pats[self].tag = (uint8_t)value_tag_of(v);
    return is_guard(v) || wrong(r, "a number is no guard");
  }
  x->kind = record ? PAT_RECORD : PAT_LIST;
  x->tag = record ? TAG_RECORD : TAG_LIST;
  qn_record *names = record ? record_new(r->vm) : NULL;
  if (record && !names) return false;
  if (record) x->value = value_obj(TAG_RECORD, names);
  uint32_t n;
  bool ok = takes_items(r, depth, takes_pattern, names, &n);
  p->pats[self].n = ok ? n : 0;
  return ok;
}

static bool takes_output(reader *r, uint32_t *output) {
  uint64_t x;
  if (!takes_number(r, UINT32_MAX, &x)) return false;
  *output = (uint32_t)x;
  return x < r->b->call.graph->noutputs || wrong(r, "there is no such output");
}

static bool takes_template(reader *r, int depth) {
  tpl_list *t = &r->b->call.result;
  uint32_t self = t->n;
  tpl *x = template_add(r->vm, t, TPL_VALUE);
  if (!x) return false;
  x->value = value_nil();
  if (takes(r, "out")) {
    x->kind = TPL_OUTPUT;
    return takes_output(r, &x->output);
  }
  bool record = takes(r, "{");
  if (!record && !takes(r, "(")) return takes_exact(r, &t->tpls[self].value);
  qn_record *names = record ? record_new(r->vm) : NULL;
  if (record && !names) return false;
  x->kind = record ? TPL_RECORD : TPL_LIST;
  if (record) x->value = value_obj(TAG_RECORD, names);
  uint32_t n;
  bool ok = takes_items(r, depth, takes_template, names, &n);
  t->tpls[self].n = ok ? n : 0;
  return ok;
}

static bool takes_arguments(reader *r, qn_list *names) {
  graph_body *b = r->b;
  pattern *p = &b->call.pattern;
  if (!expects(r, "call") || !expects(r, "(")) return false;
  while (!takes(r, ")")) {
    if (p->nargs && !expects(r, ",")) return false;
    if (b->rest) return wrong(r, "nothing stands behind ..");
    b->rest = takes(r, "..");
    qn_str *name;
    if (!takes_name(r, &name)) return false;
    bool ok = true;
    if (name && names->len < p->nargs) {
      value_release(r->vm, value_obj(TAG_STR, name));
      ok = wrong(r, "an argument before it has no name");
    } else if (name) {
      ok = list_push(r->vm, names, value_obj(TAG_STR, name));
    }
    if (!ok || !pattern_add_root(r->vm, p, ROOT_ARG) || !takes_pattern(r, 0)) return false;
    if (b->rest && (name || p->pats[p->roots[p->nargs - 1].first].kind != PAT_LIST))
      return wrong(r, "a list stands behind ..");
  }
  return true;
}

static bool takes_bound(reader *r) {
  graph_body *b = r->b;
  const graph *g = b->call.graph;
  while (takes(r, "with")) {
    uint32_t input;
    qn_value v = value_nil();
    if (!takes_input(r, &input) || !expects(r, "=") || !takes_exact(r, &v)) return false;
    const graph_type *t = &g->nodes[g->inputs[input]].type;
    value_tag tag = t->dtype == WEAK_FLOAT ? TAG_FLOAT : t->dtype == WEAK_INT ? TAG_INT : TAG_BOOL;
    if (!t->weak || value_tag_of(v) != tag) {
      value_release(r->vm, v);
      return wrong(r, "an input is bound to another kind of value");
    }
    r->values[b->nbound] = v;
    r->bound[b->nbound++] = input;
  }
  return true;
}

static bool is_int(const graph *g, uint32_t node) {
  return g->nodes[node].type.weak && g->nodes[node].type.dtype == WEAK_INT;
}

static bool takes_random(reader *r) {
  specialization *e = &r->b->call;
  const graph *g = e->graph;
  if (!takes(r, "random")) return true;
  for (int i = 0; i < RANDOM_INPUTS; i++) {
    uint32_t input;
    if (takes(r, "-")) continue;
    if (!takes_input(r, &input)) return false;
    if (!is_int(g, g->inputs[input])) return wrong(r, "what random numbers depend on is an int");
    e->random[i] = input + 1;
  }
  if (!expects(r, "draws") || !takes_number(r, UINT32_MAX, &e->ndraws)) return false;
  blanks(r);
  bool leaves = strncmp(r->at, "->", 2) != 0;
  for (int i = 0; i < RANDOM_INPUTS && leaves; i++) {
    uint32_t output;
    if (takes(r, "-")) continue;
    if (!expects(r, "out") || !takes_output(r, &output)) return false;
    if (!is_int(g, g->outputs[output])) return wrong(r, "what random numbers depend on is an int");
    e->drawn[i] = output + 1;
  }
  return !e->random[RANDOM_DRAW] || e->drawn[RANDOM_DRAW] || e->ndraws || wrong(r, "it draws no numbers");
}

static bool takes_call(reader *r, qn_list *names) {
  graph_body *b = r->b;
  const graph *g = b->call.graph;
  pattern *p = &b->call.pattern;
  if (!takes_arguments(r, names) || !takes_bound(r) || !takes_random(r) || !expects(r, "->") || !takes_template(r, 0))
    return false;
  blanks(r);
  if (*r->at) return wrong(r, "the end is expected");
  p->ninputs = g->ninputs;
  for (uint32_t i = 0; i < g->ninputs; i++)
    if (!r->claimed[i]) return wrong(r, "an input has no source");
  for (uint32_t i = 0; i < names->len; i++)
    for (uint32_t k = 0; k < i; k++)
      if (str_equal(value_str(names->items[i]), value_str(names->items[k])))
        return wrong(r, "two arguments have one name");
  if (names->len) body_name_params(b, value_obj(TAG_LIST, names));
  return true;
}

bool call_text_read(qn_vm *vm, const char *line, graph_body *b, qn_value *values, char *why, size_t size) {
  size_t n = b->call.graph->ninputs + (size_t)1;
  reader r = {.vm = vm, .at = line, .b = b, .values = values, .why = why, .size = size};
  r.bound = mem_zalloc(vm, n * sizeof *r.bound);
  r.claimed = r.bound ? mem_zalloc(vm, n) : NULL;
  qn_list *names = r.claimed ? list_new(vm, 0) : NULL;
  bool ok = names && takes_call(&r, names);
  ok = ok && (b->bound = mem_alloc(vm, (b->nbound + (size_t)1) * sizeof *b->bound)) != NULL;
  if (ok) memcpy(b->bound, r.bound, b->nbound * sizeof *b->bound);
  if (names) value_release(vm, value_obj(TAG_LIST, names));
  if (r.claimed) mem_free(vm, r.claimed, n);
  if (r.bound) mem_free(vm, r.bound, n * sizeof *r.bound);
  return ok;
}
