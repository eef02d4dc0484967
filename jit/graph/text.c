/* Graphs as text and back. What graph_print writes, graph_parse reads into the identical graph: it prints as the same text
 * and has the same hash (a test). The form is shown in graph.h; in full:
 *
 *   graph   = ["fast_math"] {dim} {fact} {site} "graph" "(" [input {"," input}] ")" "{" {node} "return" [nodes] "}"
 *   dim     = "dim" label "=" ("input" N "axis" N | "scalar" N | "node" "%"N "axis" N) "hint" N ["name" string]
 *   fact    = "fact" size ("==" | "!=" | "<" | "<=") size
 *   site    = "site" N "=" "source" N N ".." N ["under" N] ["in" string] ["whole"]
 *   input   = "%"N ":" type ["@"N]
 *   type    = "weak" dtype | dtype "[" sizes "]"
 *   node    = "%"N "=" what ":" type ["@"N] [region region]
 *   what    = op [nodes] {attribute} | "const" value | "const" "[" values "]" | "if" nodes | "loop" nodes
 *           | "proj" node "number=" N | "tap" [nodes] "number=" N
 *   region  = "{" graph "}"
 *
 *           ("const data": the elements stand elsewhere, see graph_store; of sites such texts have only those of calls that stay visible)
 *           (before the text of a graph value stands "source N = HASH" for each source text that its sites are in: jit/trace/graphs.c; and a line that says
 *           how it is called, if the graph does not: jit/trace/call_text.c)
 *
 * What stands between # and the end of a line is a comment; printed are those that name the calls that nodes came from (composites.h).
 * Inputs are declared at the top; their nodes come where the numbering leaves room for them. Elements of constants are exact:
 * the shortest decimal where reading it gives the same bits, else bits(hex).
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/graph/composites.h"
#include "jit/graph/graph.h"
#include "lang/mem.h"

enum { MAX_NESTING = 32, MAX_DIM_NESTING = 200 };

static const char *const mode_names[] = {"set", "add", "mul", "min", "max"};
static const struct {
  uint8_t bit;
  const char *name;
} flag_names[] = {{ATTR_REVERSE, "reverse"},   {ATTR_EXCLUSIVE, "exclusive"}, {ATTR_DESCENDING, "descending"},
                  {ATTR_WEAK, "weak"},         {ATTR_PROVEN, "proven"},       {ATTR_LIBRARY, "library"},
                  {ATTR_X_ACROSS, "x_across"}, {ATTR_Y_ACROSS, "y_across"}};
enum { FLAGS = sizeof flag_names / sizeof *flag_names };
static const char *flag_name(op_id op, int i) {
  if (op == OP_where && flag_names[i].bit == ATTR_JOINS) return "joins";
  if (op == OP_index && flag_names[i].bit == ATTR_ROW) return "row";
  if (op == OP_index && flag_names[i].bit == ATTR_NUMBER) return "number";
  return (op == OP_reshape || op_rows[op].klass == CLASS_RANDOM) && flag_names[i].bit == ATTR_ANEW ? "anew"
                                                                                                   : flag_names[i].name;
}
static const char *const relation_names[] = {[DIM_EQ] = "==", [DIM_NE] = "!=", [DIM_LT] = "<", [DIM_LE] = "<="};

/* The name of the list d in an op's text. */
static const char *list_name(op_id op) {
  switch (op) {
  case OP_permute: return "order";
  case OP_slice:
  case OP_slice_put: return "slice";
  case OP_window: return "window";
  case OP_pad: return "pad";
  case OP_index:
  case OP_scatter: return "leading";
  case OP_argsort: return "first";
  default: return "shape";
  }
}

/* ---- printing -------------------------------------------------------------------------------------------------------- */

static void print_type(const graph *g, const graph_type *t, text_buf *out) {
  if (t->weak) {
    text_addf(out, "weak %s", dtype_rows[t->dtype].name);
    return;
  }
  text_addf(out, "%s[", dtype_rows[t->dtype].name);
  for (int i = 0; i < t->rank; i++) {
    if (i) text_adds(out, ", ");
    dim_print(&g->dims, t->shape[i], out);
  }
  text_adds(out, "]");
}

static void print_element(qn_dtype d, const char *p, text_buf *out) {
  qn_value v = dtype_load(d, p);
  if (value_is(v, TAG_BOOL)) {
    text_adds(out, v.u.i ? "true" : "false");
  } else if (value_is(v, TAG_INT)) {
    text_addf(out, "%lld", (long long)v.u.i);
  } else {
    size_t from = out->len, size = dtype_size(d);
    char back[8];
    double x;
    text_float(out, v.u.f, dtype_compute(d));
    if (out->failed) return;
    if (float_parse(out->text + from, out->len - from, &x)) {
      dtype_store(d, back, value_float(x));
      if (memcmp(back, p, size) == 0) return;
    }
    out->len = from;
    uint64_t bits = 0;
    memcpy(&bits, p, size);
    text_addf(out, "bits(%llx)", (unsigned long long)bits);
  }
}

static void print_const(const graph_node *n, const graph_store *elements, text_buf *out) {
  const char *p = n->payload.data;
  qn_dtype d = (qn_dtype)n->type.dtype;
  size_t each = dtype_size(d), bytes = graph_const_bytes(&n->type);
  if (elements && bytes >= elements->least) {
    text_adds(out, "data");
    if (!elements->put(elements->ctx, p, bytes)) out->failed = true;
    return;
  }
  if (n->type.rank == 0) {
    print_element(d, p, out);
    return;
  }
  text_adds(out, "[");
  for (size_t at = 0; at < bytes && !out->failed; at += each) {
    if (at) text_adds(out, ", ");
    print_element(d, p + at, out);
  }
  text_adds(out, "]");
}

/* Is the op's list d written as triples a:b:c rather than single numbers? */
static bool has_triples(op_id op) { return op_attr_is_dim(op, 0) && !op_attr_is_dim(op, 2); }

void graph_attr_each(op_id op, const op_attr *a,
                     void (*each)(void *ctx, const char *name, const char *text, const int64_t *d, int n), void *ctx) {
  int64_t axes[8];
  int n = 0;
  for (int i = 0; i < 8; i++)
    if (a->axes >> i & 1) axes[n++] = i;
  if (n) each(ctx, "axes", NULL, axes, n);
  if (a->keepdims) each(ctx, "keepdims", NULL, NULL, -1);
  bool keyed = op_rows[op].klass == CLASS_RANDOM;
  if (a->mode) each(ctx, keyed ? "keyed" : "mode", keyed ? NULL : mode_names[a->mode], NULL, -1);
  for (int i = 0; i < FLAGS; i++)
    if (a->flags & flag_names[i].bit) each(ctx, flag_name(op, i), NULL, NULL, -1);
  bool shape = op_attr_is_dim(op, 0) && !has_triples(op);
  if (a->n || shape || op == OP_permute) each(ctx, list_name(op), NULL, a->d, a->n);
  if (op_rows[op].dtype_rule == DT_attr || a->dtype) each(ctx, "dtype", dtype_rows[a->dtype].name, NULL, -1);
}

typedef struct attr_printer {
  const graph *g;
  const graph_node *node;
  text_buf *out;
} attr_printer;

static void print_attr(void *ctx, const char *name, const char *text, const int64_t *d, int n) {
  const attr_printer *p = ctx;
  op_id op = (op_id)p->node->op;
  bool sizes = n >= 0 && d == p->node->attr->d; /* the list d, and not the list of axes */
  text_addf(p->out, " %s", name);
  if (text) text_addf(p->out, "=%s", text);
  if (n >= 0) text_adds(p->out, "=[");
  for (int i = 0; i < n; i++) {
    if (i) text_adds(p->out, sizes && has_triples(op) && i % 3 ? ":" : ", ");
    if (sizes && op_attr_is_dim(op, i))
      dim_print(&p->g->dims, d[i], p->out);
    else
      text_addf(p->out, "%lld", (long long)d[i]);
  }
  if (n >= 0) text_adds(p->out, "]");
}

static void print_nodes(const uint32_t *in, uint32_t n, text_buf *out) {
  for (uint32_t i = 0; i < n; i++) text_addf(out, i ? ", %%%u" : " %%%u", (unsigned)in[i]);
}

const char *graph_node_word(const graph_node *n) {
  static const char *const words[] = {[NODE_INPUT] = "input", [NODE_CONST] = "const", [NODE_IF] = "if",
                                      [NODE_LOOP] = "loop",   [NODE_PROJ] = "proj",   [NODE_TAP] = "tap"};
  return n->kind == NODE_OP ? op_rows[n->op].name : words[n->kind];
}

static void print_graph(const graph *g, int indent, const graph_store *elements, text_buf *out);

static void print_node(const graph *g, uint32_t i, int indent, const graph_store *elements, const uint32_t *numbers,
                       text_buf *out) {
  const graph_node *n = &g->nodes[i];
  text_repeat(out, " ", indent);
  text_addf(out, "%%%u = ", (unsigned)i);
  if (n->kind != NODE_INPUT) text_adds(out, graph_node_word(n));
  print_nodes(n->in, n->nin, out);
  switch ((graph_kind)n->kind) {
  case NODE_OP:
    if (n->attr) graph_attr_each((op_id)n->op, n->attr, print_attr, &(attr_printer){g, n, out});
    break;
  case NODE_CONST:
    text_adds(out, " ");
    print_const(n, elements, out);
    break;
  case NODE_IF:
    if (n->attr) text_addf(out, " made=%u by=%u", (unsigned)graph_rule_made(n), (unsigned)graph_rule_by(n));
    break;
  case NODE_LOOP:
    if (n->attr) text_addf(out, " carries=%lld slots=%lld", (long long)n->attr->d[0], (long long)n->attr->d[1]);
    break;
  case NODE_PROJ:
  case NODE_TAP:
    if (n->kind == NODE_TAP && n->payload.tap == GRAPH_TAP_MADE) break;
    text_addf(out, " number=%u", (unsigned)(n->kind == NODE_PROJ ? n->payload.index : n->payload.tap));
    break;
  case NODE_INPUT: break;
  }
  text_adds(out, " : ");
  print_type(g, &n->type, out);
  uint32_t site = elements ? numbers && n->site < g->nsites ? numbers[n->site] : 0 : n->site;
  if (site) text_addf(out, " @%u", (unsigned)site);
  if (n->kind == NODE_IF || n->kind == NODE_LOOP)
    for (int k = 0; k < 2; k++) {
      text_adds(out, " {\n");
      print_graph(n->payload.regions[k], indent + 2, elements, out);
      text_repeat(out, " ", indent);
      text_adds(out, "}");
    }
  text_adds(out, "\n");
}

static void print_symbol(const graph *g, uint32_t index, text_buf *out) {
  const dim_expr *e = &g->dims.exprs[index];
  text_adds(out, "dim ");
  dim_print(&g->dims, ~(qn_dim)index, out);
  switch ((dim_source)e->source) {
  case DIM_FROM_INPUT: text_addf(out, " = input %u axis %u", (unsigned)e->ref, e->axis); break;
  case DIM_FROM_SCALAR: text_addf(out, " = scalar %u", (unsigned)e->ref); break;
  case DIM_FROM_NODE: text_addf(out, " = node %%%u axis %u", (unsigned)e->ref, e->axis); break;
  case DIM_FROM_NUMBER: text_addf(out, " = number %%%u", (unsigned)e->ref); break;
  }
  text_addf(out, " hint %lld", (long long)e->hint);
  if (e->name && !dim_prints_name(&g->dims, index)) {
    text_adds(out, " name ");
    text_quoted(out, e->name, strlen(e->name));
  }
  text_adds(out, "\n");
}

/* Appends a line about a call that begins here. */
static void print_call(const graph *g, const graph_call *c, int indent, text_buf *out) {
  enum { SHOWN = 8 };
  uint32_t operands[SHOWN], n = graph_call_operands(g, c, operands, SHOWN);
  text_repeat(out, " ", indent);
  text_addf(out, "# %s(", c->name ? c->name : "fn");
  for (uint32_t i = 0; i < n && i < SHOWN; i++) text_addf(out, i ? ", %%%u" : "%%%u", (unsigned)operands[i]);
  text_adds(out, n > SHOWN ? ", ...)\n" : ")\n");
}

/* Appends all nodes but the inputs. Those of a call stand one step further in, below a comment that names it. */
static void print_body(const graph *g, int indent, const graph_store *elements, const uint32_t *numbers,
                       text_buf *out) {
  graph_call calls[GRAPH_CALLS_NESTED];
  uint32_t ends[GRAPH_CALLS_NESTED], open = 0, newest = 0;
  for (uint32_t i = 1; i < g->n && !out->failed; i++) {
    if (g->nodes[i].kind == NODE_INPUT) continue;
    while (open && ends[open - 1] <= i) open--;
    uint32_t n = elements ? 0 : graph_calls_at(g, i, &newest, calls);
    for (uint32_t k = 0; k < n && open < GRAPH_CALLS_NESTED; k++) {
      print_call(g, &calls[k], indent + 2 * (int)open, out);
      ends[open++] = calls[k].end;
    }
    print_node(g, i, indent + 2 * (int)open, elements, numbers, out);
  }
}

/* The sites that tell of calls which nodes belong together, in a text without places: where a site stands in it, 0 for all others (nsites and one
 * more; the caller frees them). NULL: memory was short. */
static uint32_t *numbers_of_calls(const graph *g) {
  uint32_t *of = calloc(g->nsites + (size_t)1, sizeof *of), n = 0;
  if (!of) return NULL;
  for (uint32_t i = 1; i < g->n; i++) {
    uint32_t top = 0, s = g->nodes[i].site;
    if (g->nodes[i].kind == NODE_INPUT || s >= g->nsites) continue;
    for (uint32_t k = s; k; k = g->sites[k].parent)
      if (g->sites[k].whole && g->sites[k].parent) top = g->sites[k].parent;
    for (uint32_t k = s; top && k; k = k == top ? 0 : g->sites[k].parent) of[k] = 1;
  }
  for (uint32_t s = 1; s < g->nsites; s++)
    if (of[s]) of[s] = ++n;
  return of;
}

/* `numbers` is NULL, or from numbers_of_calls: then the sites have no places. */
static void print_sites(const graph *g, int indent, const graph_store *elements, const uint32_t *numbers,
                        text_buf *out) {
  for (uint32_t i = 1; i < g->nsites && !out->failed; i++) {
    const graph_site *s = &g->sites[i];
    if (elements && !numbers[i]) continue;
    span at = elements ? (span){0} : s->at;
    uint32_t parent = elements ? numbers[s->parent] : s->parent;
    text_repeat(out, " ", indent);
    text_addf(out, "site %u = source %u %u..%u", (unsigned)(elements ? numbers[i] : i), (unsigned)at.source,
              (unsigned)at.start, (unsigned)at.end);
    if (parent) text_addf(out, " under %u", (unsigned)parent);
    if (s->function && (!elements || s->whole)) {
      text_adds(out, " in ");
      text_quoted(out, s->function, strlen(s->function));
    }
    if (s->whole) text_adds(out, " whole");
    text_adds(out, "\n");
  }
}

static void print_graph(const graph *g, int indent, const graph_store *elements, text_buf *out) {
  const dim_table *t = &g->dims;
  if (g->fast_math) text_repeat(out, " ", indent), text_adds(out, "fast_math\n");
  for (uint32_t i = 0; i < t->n; i++)
    if (t->exprs[i].op == DIM_SYMBOL) text_repeat(out, " ", indent), print_symbol(g, i, out);
  for (uint32_t i = 0; i < t->nfacts; i++) {
    text_repeat(out, " ", indent);
    text_adds(out, "fact ");
    dim_print(t, t->facts[i].a, out);
    text_addf(out, " %s ", relation_names[t->facts[i].relation]);
    dim_print(t, t->facts[i].b, out);
    text_adds(out, "\n");
  }
  uint32_t *numbers = elements ? numbers_of_calls(g) : NULL;
  if (elements && !numbers) out->failed = true;
  print_sites(g, indent, elements, numbers, out);
  text_repeat(out, " ", indent);
  text_adds(out, "graph(");
  for (uint32_t i = 0; i < g->ninputs; i++) {
    const graph_node *n = &g->nodes[g->inputs[i]];
    text_addf(out, i ? ", %%%u: " : "%%%u: ", (unsigned)g->inputs[i]);
    print_type(g, &n->type, out);
    if (n->site && !elements) text_addf(out, " @%u", (unsigned)n->site);
  }
  text_adds(out, ") {\n");
  print_body(g, indent + 2, elements, numbers, out);
  free(numbers);
  text_repeat(out, " ", indent + 2);
  text_adds(out, "return");
  print_nodes(g->outputs, g->noutputs, out);
  text_adds(out, "\n");
  text_repeat(out, " ", indent);
  text_adds(out, "}\n");
}

void graph_print_apart(const graph *g, const graph_store *elements, text_buf *out) { print_graph(g, 0, elements, out); }

void graph_print(const graph *g, text_buf *out) { graph_print_apart(g, NULL, out); }

/* ---- parsing ------------------------------------------------------------------------------------------------------------ */

/* An input that is declared at the top; its node is made when the numbering reaches it. */
typedef struct input {
  uint32_t node, site, number; /* its number among the inputs */
  graph_type type;
} input;

typedef struct parser {
  const char *start, *at;
  char *why;
  size_t size;
  const graph_store *elements;
  bool bad;
  int nesting;
  graph *g;
  input *inputs; /* in the order in which they are declared, then in that of their nodes */
  uint32_t ninputs, inputs_cap;
} parser;

__attribute__((format(printf, 2, 3))) static bool bad(parser *p, const char *format, ...) {
  if (p->bad) return false;
  p->bad = true;
  int line = 1;
  for (const char *c = p->start; c < p->at; c++) line += *c == '\n';
  int n = snprintf(p->why, p->size, "line %d: ", line);
  va_list args;
  va_start(args, format);
  if (n > 0 && (size_t)n < p->size) vsnprintf(p->why + n, p->size - (size_t)n, format, args);
  va_end(args);
  return false;
}

static bool memory(parser *p) { return bad(p, "out of memory"); }

static void blanks(parser *p) {
  for (;; p->at++) {
    if (*p->at == '#') p->at += strcspn(p->at, "\n");
    if (*p->at != ' ' && *p->at != '\n' && *p->at != '\t' && *p->at != '\r') return;
  }
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_word(char c) {
  return is_digit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (unsigned char)c >= 0x80;
}

/* Does the text go on with s? Then skips it. */
static bool mark(parser *p, const char *s) {
  blanks(p);
  size_t n = strlen(s);
  if (strncmp(p->at, s, n) != 0) return false;
  p->at += n;
  return true;
}

static bool expect(parser *p, const char *s) { return mark(p, s) || bad(p, "expected %s", s); }

/* Sets *word to the word that comes next, without skipping it, and returns its length, which may be 0. */
static size_t peek_word(parser *p, const char **word) {
  blanks(p);
  size_t n = 0;
  *word = p->at;
  while (is_word(p->at[n])) n++;
  return n;
}

static bool word(parser *p, const char *s) {
  const char *w;
  size_t n = peek_word(p, &w);
  if (n != strlen(s) || memcmp(w, s, n) != 0) return false;
  p->at += n;
  return true;
}

static bool expect_word(parser *p, const char *s) { return word(p, s) || bad(p, "expected %s", s); }

static bool integer(parser *p, int64_t *out) {
  blanks(p);
  const char *from = p->at;
  if (*p->at == '-') p->at++;
  while (is_digit(*p->at)) p->at++;
  if (!int_parse(from, (size_t)(p->at - from), out)) {
    p->at = from;
    return bad(p, "expected an integer");
  }
  return true;
}

static bool number(parser *p, uint32_t *out) {
  int64_t i;
  if (!integer(p, &i)) return false;
  if (i < 0 || i > UINT32_MAX) return bad(p, "number out of range");
  *out = (uint32_t)i;
  return true;
}

/* Reads a quoted string, without escapes, into the arena. */
static bool quoted(parser *p, const char **out) {
  if (!expect(p, "\"")) return false;
  const char *from = p->at;
  char *text = arena_alloc(&p->g->arena, strcspn(from, "\n") + 1);
  if (!text) return memory(p);
  size_t n = 0;
  for (; *p->at != '"'; p->at++) {
    if (*p->at == 0 || *p->at == '\n') return bad(p, "string not closed");
    if (*p->at == '\\') {
      const char *found = p->at[1] ? strchr("nt\"\\{}", p->at[1]) : NULL;
      if (!found) return bad(p, "unknown escape");
      p->at++;
      text[n++] = *found == 'n' ? '\n' : *found == 't' ? '\t' : *found;
    } else {
      text[n++] = *p->at;
    }
  }
  p->at++;
  *out = text;
  return true;
}

static bool find_dtype(parser *p, uint8_t *out) {
  const char *w;
  size_t n = peek_word(p, &w);
  qn_dtype d = dtype_find(w, n);
  if (d >= QN_DTYPE_COUNT) return bad(p, "expected a dtype");
  p->at += n;
  *out = (uint8_t)d;
  return true;
}

/* ---- sizes ---- */

static bool size_sum(parser *p, int depth, qn_dim *out);

static bool size_label(parser *p, const char *w, size_t n, qn_dim *out) {
  const dim_table *t = &p->g->dims;
  int64_t ordinal = -1;
  bool numbered = n > 1 && w[0] == 'd' && int_parse(w + 1, n - 1, &ordinal);
  for (uint32_t i = 0; i < t->n; i++) {
    if (t->exprs[i].op != DIM_SYMBOL) continue;
    const char *name = t->exprs[i].name;
    if (numbered ? ordinal-- == 0 : name && strlen(name) == n && memcmp(name, w, n) == 0) {
      *out = ~(qn_dim)i;
      return true;
    }
  }
  return bad(p, "unknown dim %.*s", (int)n, w);
}

static bool size_atom(parser *p, int depth, qn_dim *out) {
  const char *w;
  size_t n = peek_word(p, &w);
  if (depth > MAX_DIM_NESTING) return bad(p, "size nests too deep");
  if (mark(p, "(")) return size_sum(p, depth + 1, out) && expect(p, ")");
  if (n == 0) return bad(p, "expected a size");
  if (is_digit(*w)) return integer(p, out);
  p->at += n;
  if (n == 3 && (memcmp(w, "min", 3) == 0 || memcmp(w, "max", 3) == 0)) {
    qn_dim a, b;
    if (!expect(p, "(") || !size_sum(p, depth + 1, &a) || !expect(p, ",") || !size_sum(p, depth + 1, &b) ||
        !expect(p, ")"))
      return false;
    *out = dim_make(&p->g->dims, w[1] == 'i' ? DIM_MIN : DIM_MAX, a, b);
    return true;
  }
  return size_label(p, w, n, out);
}

static bool size_product(parser *p, int depth, qn_dim *out) {
  if (!size_atom(p, depth, out)) return false;
  for (;;) {
    dim_op op = mark(p, "//") ? DIM_FLOORDIV : mark(p, "*") ? DIM_MUL : mark(p, "% ") ? DIM_MOD : DIM_SYMBOL;
    qn_dim b;
    if (op == DIM_SYMBOL) return true;
    if (!size_atom(p, depth, &b)) return false;
    *out = dim_make(&p->g->dims, op, *out, b);
  }
}

static bool size_sum(parser *p, int depth, qn_dim *out) {
  if (!size_product(p, depth, out)) return false;
  for (;;) {
    dim_op op = mark(p, "+") ? DIM_ADD : mark(p, "-") ? DIM_SUB : DIM_SYMBOL;
    qn_dim b;
    if (op == DIM_SYMBOL) return true;
    if (!size_product(p, depth, &b)) return false;
    *out = dim_make(&p->g->dims, op, *out, b);
  }
}

static bool size(parser *p, qn_dim *out) { return size_sum(p, 0, out); }

static bool symbol(parser *p) {
  const char *label, *name = NULL;
  uint32_t ref = 0, axis = 0;
  int64_t hint;
  dim_source source;
  size_t n = peek_word(p, &label);
  p->at += n;
  if (n == 0) return bad(p, "expected a dim's name");
  if (!expect(p, "=")) return false;
  if (word(p, "input"))
    source = DIM_FROM_INPUT;
  else if (word(p, "scalar"))
    source = DIM_FROM_SCALAR;
  else if (word(p, "node") && mark(p, "%"))
    source = DIM_FROM_NODE;
  else if (word(p, "number") && mark(p, "%"))
    source = DIM_FROM_NUMBER;
  else
    return bad(p, "expected input, scalar, node or number");
  bool number_of = source == DIM_FROM_SCALAR || source == DIM_FROM_NUMBER;
  if (!number(p, &ref)) return false;
  if (!number_of && (!expect_word(p, "axis") || !number(p, &axis))) return false;
  if (axis > UINT16_MAX) return bad(p, "axis out of range");
  if (!expect_word(p, "hint") || !integer(p, &hint)) return false;
  if (hint < 0 && !number_of) return bad(p, "negative size");
  bool numbered = n > 1 && label[0] == 'd';
  for (size_t i = 1; i < n; i++) numbered &= is_digit(label[i]);
  if (word(p, "name")) {
    if (!quoted(p, &name)) return false;
  } else if (!numbered) {
    char *copy = arena_alloc(&p->g->arena, n + 1);
    if (!copy) return memory(p);
    name = memcpy(copy, label, n);
  }
  uint32_t before = p->g->dims.n;
  dim_symbol(&p->g->dims, source, ref, (uint16_t)axis, hint, name);
  p->g->dims.strict |= source == DIM_FROM_SCALAR;
  return p->g->dims.n > before || bad(p, "the same dim again");
}

static bool fact(parser *p) {
  qn_dim a, b;
  if (!size(p, &a)) return false;
  dim_relation r = mark(p, "==") ? DIM_EQ : mark(p, "!=") ? DIM_NE : mark(p, "<=") ? DIM_LE : DIM_LT;
  if (r == DIM_LT && !expect(p, "<")) return false;
  if (!size(p, &b)) return false;
  dim_assume(&p->g->dims, a, r, b);
  return true;
}

static bool site(parser *p) {
  uint32_t index = 0, parent = 0;
  span at;
  const char *function = NULL;
  if (!number(p, &index) || !expect(p, "=") || !expect_word(p, "source") || !number(p, &at.source) ||
      !number(p, &at.start) || !expect(p, "..") || !number(p, &at.end))
    return false;
  if (word(p, "under") && !number(p, &parent)) return false;
  if (word(p, "in") && !quoted(p, &function)) return false;
  if (index != p->g->nsites) return bad(p, "sites are numbered in order");
  bool whole = word(p, "whole");
  return graph_site_add(p->g, at, parent, function, whole) != 0 || memory(p);
}

/* ---- types, attributes, constants ---- */

static bool type(parser *p, graph_type *t) {
  *t = (graph_type){0};
  if (word(p, "weak")) {
    t->weak = true;
    return find_dtype(p, &t->dtype);
  }
  if (!find_dtype(p, &t->dtype) || !expect(p, "[")) return false;
  if (mark(p, "]")) return true;
  do {
    if (t->rank == ARRAY_MAX_RANK) return bad(p, "too many axes");
    if (!size(p, &t->shape[t->rank++])) return false;
  } while (mark(p, ","));
  return expect(p, "]");
}

static bool attr_list(parser *p, op_id op, op_attr *a) {
  if (!expect(p, "=") || !expect(p, "[")) return false;
  if (mark(p, "]")) return true;
  do {
    if (a->n == OP_ATTR_DIMS) return bad(p, "too many entries");
    qn_dim *d = &a->d[a->n];
    if (op_attr_is_dim(op, a->n++) ? !size(p, d) : !integer(p, d)) return false;
  } while (mark(p, ",") || mark(p, ":"));
  return expect(p, "]");
}

static bool attr_axes(parser *p, op_attr *a) {
  uint32_t axis = 0;
  if (!expect(p, "=") || !expect(p, "[")) return false;
  if (mark(p, "]")) return true;
  do {
    if (!number(p, &axis)) return false;
    if (axis >= 8) return bad(p, "axis out of range");
    a->axes |= (uint8_t)(1u << axis);
  } while (mark(p, ","));
  return expect(p, "]");
}

static bool attr_mode(parser *p, op_attr *a) {
  if (!expect(p, "=")) return false;
  for (uint8_t i = 0; i <= SCATTER_MAX; i++)
    if (word(p, mode_names[i])) {
      a->mode = i;
      return true;
    }
  return bad(p, "unknown mode");
}

static bool attributes(parser *p, op_id op, op_attr *a) {
  for (;;) {
    blanks(p);
    if (*p->at == ':') return true;
    bool flag = false;
    for (int i = 0; i < FLAGS && !flag; i++)
      if (word(p, flag_name(op, i))) {
        a->flags |= flag_names[i].bit;
        flag = true;
      }
    if (flag) continue;
    if (word(p, "axes")) {
      if (!attr_axes(p, a)) return false;
    } else if (word(p, "keepdims")) {
      a->keepdims = 1;
    } else if (op_rows[op].klass == CLASS_RANDOM && word(p, "keyed")) {
      a->mode = DRAW_KEYED;
    } else if (word(p, "mode")) {
      if (!attr_mode(p, a)) return false;
    } else if (word(p, "dtype")) {
      if (!expect(p, "=") || !find_dtype(p, &a->dtype)) return false;
    } else if (word(p, list_name(op))) {
      if (!attr_list(p, op, a)) return false;
    } else {
      return bad(p, "unknown attribute");
    }
  }
}

static bool element(parser *p, qn_dtype d, char *to) {
  const char *w;
  blanks(p);
  if (word(p, "bits")) {
    uint64_t bits = 0;
    if (!expect(p, "(")) return false;
    for (; *p->at && *p->at != ')'; p->at++) {
      const char *hex = "0123456789abcdef", *digit = strchr(hex, *p->at);
      if (!digit || bits >> 60) return bad(p, "expected hexadecimal digits");
      bits = bits << 4 | (uint64_t)(digit - hex);
    }
    memcpy(to, &bits, dtype_size(d));
    return expect(p, ")");
  }
  if (dtype_is_bool(d)) {
    if (!word(p, "true") && !word(p, "false")) return bad(p, "expected true or false");
    *to = p->at[-1] == 'e' && p->at[-2] == 'u';
    return true;
  }
  if (dtype_is_int(d)) {
    int64_t i;
    if (!integer(p, &i)) return false;
    if (!dtype_holds(d, value_int(i))) return bad(p, "number out of range");
    dtype_store(d, to, value_int(i));
    return true;
  }
  double x;
  w = p->at;
  while (is_word(*p->at) || *p->at == '.' || *p->at == '-' || *p->at == '+') p->at++;
  if (!float_parse(w, (size_t)(p->at - w), &x)) return bad(p, "expected a number");
  dtype_store(d, to, value_float(x));
  return true;
}

/* Reads a constant after the word `const`: its values, then its type. */
static bool constant(parser *p, graph_type *t, const void **data) {
  const char *values = p->at;
  p->at += strcspn(p->at, ":");
  if (!expect(p, ":") || !type(p, t)) return false;
  if (!dtype_public(t->dtype)) return bad(p, "arrays cannot have this dtype");
  const char *behind = p->at;
  p->at = values;
  bool apart = p->elements && word(p, "data");
  size_t count = 1, bytes, each = dtype_size((qn_dtype)t->dtype);
  /* a bound of the number of elements, each of which takes a character */
  size_t room = apart ? SIZE_MAX : (size_t)(behind - values);
  for (int i = 0; i < t->rank; i++) {
    if (t->shape[i] < 0) return bad(p, "a constant has plain sizes");
    if (__builtin_mul_overflow(count, (size_t)t->shape[i], &count) || count > room)
      return bad(p, "fewer elements than the type says");
  }
  if (apart) {
    if (__builtin_mul_overflow(count, each, &bytes) || !(*data = p->elements->take(p->elements->ctx, bytes)))
      return bad(p, "fewer elements than the type says");
    if (dtype_is_bool(t->dtype))
      for (size_t i = 0; i < count; i++)
        if (((const uint8_t *)*data)[i] > 1) return bad(p, "an element is no bool");
    blanks(p);
    if (*p->at != ':') return bad(p, "expected a type");
    p->at = behind;
    return true;
  }
  char *to = arena_alloc(&p->g->arena, count * each + 1);
  *data = to;
  if (!to) return memory(p);
  if (t->rank && !expect(p, "[")) return false;
  for (size_t i = 0; i < count; i++) {
    if (i && !expect(p, ",")) return false;
    if (!element(p, (qn_dtype)t->dtype, to + i * each)) return false;
  }
  if (t->rank && !expect(p, "]")) return false;
  blanks(p);
  if (*p->at != ':') return bad(p, "more elements than the type says");
  p->at = behind;
  return true;
}

/* ---- nodes ---- */

static bool node_ref(parser *p, uint32_t *out) {
  if (!expect(p, "%") || !number(p, out)) return false;
  return (*out > 0 && *out < p->g->n) || bad(p, "%%%u is not defined yet", (unsigned)*out);
}

/* Reads a list of nodes such as "%1, %2", which may be empty, into the arena. */
static bool node_refs(parser *p, const uint32_t **out, uint16_t *count) {
  uint32_t *list = NULL, n = 0, cap = 0;
  blanks(p);
  if (*p->at == '%') {
    do {
      if (n == UINT16_MAX) return bad(p, "too many operands");
      if (!arena_room(&p->g->arena, (void **)&list, &cap, n + 1, sizeof *list)) return memory(p);
      if (!node_ref(p, &list[n++])) return false;
    } while (mark(p, ","));
  }
  *out = list;
  *count = (uint16_t)n;
  return true;
}

static graph *parse_graph(parser *p);

static bool append_other(parser *p, const graph_node *n) { return graph_node_like(p->g, n, n->in) != 0 || memory(p); }

/* Reads "carries=2 slots=0" of a loop that keeps rows. */
static bool kept_rows(parser *p, graph_node *n, op_attr *attr) {
  uint32_t carries = 0, slots = 0;
  if (!word(p, "carries")) return true;
  if (!expect(p, "=") || !number(p, &carries) || !expect_word(p, "slots") || !expect(p, "=") || !number(p, &slots))
    return false;
  *attr = graph_loop_attr(carries, slots, INT64_MAX);
  n->attr = attr;
  return true;
}

static bool rule(parser *p, graph_node *n, op_attr *attr) {
  uint32_t made = 0, by = 0;
  if (!word(p, "made")) return true;
  if (!expect(p, "=") || !number(p, &made) || !expect_word(p, "by") || !expect(p, "=") || !number(p, &by)) return false;
  *attr = graph_rule_attr(made, by);
  n->attr = attr;
  return true;
}

static bool regions(parser *p, graph_node *n) {
  graph *made[2] = {NULL, NULL};
  bool ok = ++p->nesting <= MAX_NESTING || bad(p, "regions nest too deep");
  for (int k = 0; k < 2 && ok; k++) {
    ok = expect(p, "{");
    if (!ok) break;
    parser inner = {
        .start = p->start, .at = p->at, .why = p->why, .size = p->size, .elements = p->elements, .nesting = p->nesting};
    made[k] = parse_graph(&inner);
    p->at = inner.at;
    p->bad |= inner.bad;
    ok = made[k] && expect(p, "}");
  }
  p->nesting--;
  if (ok) {
    graph_type type = n->type;
    uint32_t at = graph_regions(p->g, (graph_kind)n->kind, n->in, n->nin, made[0], made[1], n->attr, n->site);
    if (!at) return memory(p);
    p->g->nodes[at].type = type;
    return true;
  }
  graph_free(made[0]);
  graph_free(made[1]);
  return false;
}

static bool node(parser *p) {
  graph_node n = {0};
  const char *w;
  size_t len;
  op_attr attr = {0};
  const void *data = NULL;
  op_id op = OP_COUNT;
  uint32_t which = 0;
  if (!expect(p, "=")) return false;
  len = peek_word(p, &w);
  if (word(p, "const")) {
    n.kind = NODE_CONST;
    if (!constant(p, &n.type, &data)) return false;
  } else {
    if (word(p, "if"))
      n.kind = NODE_IF;
    else if (word(p, "loop"))
      n.kind = NODE_LOOP;
    else if (word(p, "proj"))
      n.kind = NODE_PROJ;
    else if (word(p, "tap"))
      n.kind = NODE_TAP;
    else if ((op = op_find(w, len)) != OP_COUNT)
      p->at += len;
    else
      return bad(p, "unknown op %.*s", (int)len, w);
    if (!node_refs(p, &n.in, &n.nin)) return false;
    if (op != OP_COUNT && !attributes(p, op, &attr)) return false;
    if (n.kind == NODE_LOOP && !kept_rows(p, &n, &attr)) return false;
    if (n.kind == NODE_IF && !rule(p, &n, &attr)) return false;
    bool made = n.kind == NODE_TAP && !word(p, "number");
    if (made) which = GRAPH_TAP_MADE;
    if (n.kind == NODE_PROJ && !expect_word(p, "number")) return false;
    if ((n.kind == NODE_PROJ || (n.kind == NODE_TAP && !made)) && (!expect(p, "=") || !number(p, &which))) return false;
    if (!expect(p, ":") || !type(p, &n.type)) return false;
  }
  if (mark(p, "@") && !number(p, &n.site)) return false;
  switch ((graph_kind)n.kind) {
  case NODE_OP: return graph_node_raw(p->g, op, n.in, n.nin, &attr, n.type, n.site) != 0 || memory(p);
  case NODE_CONST: return graph_const(p->g, n.type, data, n.site) != 0 || memory(p);
  case NODE_IF:
  case NODE_LOOP: return regions(p, &n);
  case NODE_PROJ: n.payload.index = which; return append_other(p, &n);
  case NODE_TAP: n.payload.tap = which; return append_other(p, &n);
  case NODE_INPUT: break;
  }
  return false;
}

/* ---- graphs ---- */

static bool declare_input(parser *p) {
  if (!arena_room(&p->g->arena, (void **)&p->inputs, &p->inputs_cap, p->ninputs + 1, sizeof *p->inputs))
    return memory(p);
  input *to = &p->inputs[p->ninputs];
  to->number = p->ninputs++;
  if (!expect(p, "%") || !number(p, &to->node) || !expect(p, ":") || !type(p, &to->type)) return false;
  return !mark(p, "@") || number(p, &to->site);
}

static int by_node(const void *a, const void *b) {
  const uint32_t x = ((const input *)a)->node, y = ((const input *)b)->node;
  return x < y ? -1 : x > y;
}

/* All have been declared. */
static bool sort_inputs(parser *p) {
  if (p->ninputs) qsort(p->inputs, p->ninputs, sizeof *p->inputs, by_node);
  for (uint32_t i = 1; i < p->ninputs; i++)
    if (p->inputs[i].node == p->inputs[i - 1].node)
      return bad(p, "input %%%u is declared twice", (unsigned)p->inputs[i].node);
  return true;
}

/* All have been appended, in the order of their nodes: they get the order in which they were declared. */
static void order_inputs(const parser *p) {
  graph *g = p->g;
  for (uint32_t i = 0; i < p->ninputs; i++) {
    g->inputs[p->inputs[i].number] = p->inputs[i].node;
    g->nodes[p->inputs[i].node].payload.input = p->inputs[i].number;
  }
}

/* Appends the inputs whose nodes are the next ones. */
static bool place_inputs(parser *p) {
  graph *g = p->g;
  for (const input *in; g->ninputs < p->ninputs && (in = &p->inputs[g->ninputs])->node == g->n;)
    if (!graph_input(g, in->type, in->site)) return memory(p);
  return true;
}

static bool parse_body(parser *p) {
  graph *g = p->g;
  g->fast_math = word(p, "fast_math");
  while (word(p, "dim"))
    if (!symbol(p)) return false;
  while (word(p, "fact"))
    if (!fact(p)) return false;
  while (word(p, "site"))
    if (!site(p)) return false;
  if (!expect_word(p, "graph") || !expect(p, "(")) return false;
  if (!mark(p, ")")) {
    do {
      if (!declare_input(p)) return false;
    } while (mark(p, ","));
    if (!expect(p, ")")) return false;
  }
  if (!sort_inputs(p) || !expect(p, "{") || !place_inputs(p)) return false;
  while (!word(p, "return")) {
    uint32_t at = 0;
    if (!expect(p, "%") || !number(p, &at)) return false;
    if (at != g->n) return bad(p, "expected %%%u: nodes are numbered in order", (unsigned)g->n);
    if (!node(p) || !place_inputs(p)) return false;
  }
  if (g->ninputs < p->ninputs)
    return bad(p, "input %%%u has no place among the nodes", (unsigned)p->inputs[g->ninputs].node);
  order_inputs(p);
  blanks(p);
  if (*p->at == '%') {
    do {
      uint32_t out;
      if (!node_ref(p, &out)) return false;
      if (!graph_output(g, out)) return memory(p);
    } while (mark(p, ","));
  }
  return expect(p, "}");
}

static graph *parse_graph(parser *p) {
  graph *g = p->g = graph_new(NULL);
  if (!g) {
    memory(p);
    return NULL;
  }
  if (parse_body(p) && !g->failed && !g->arena.failed) return g;
  if (!p->bad) memory(p);
  graph_free(g);
  return NULL;
}

graph *graph_parse_apart(const char *text, const graph_store *elements, char *why, size_t size) {
  parser p = {.start = text, .at = text, .why = why, .size = size, .elements = elements};
  graph *g = parse_graph(&p);
  if (!g) return NULL;
  blanks(&p);
  if (*p.at)
    bad(&p, "expected the end of the text");
  else if (graph_verify(g, why, size))
    return g;
  graph_free(g);
  return NULL;
}

graph *graph_parse(const char *text, char *why, size_t size) { return graph_parse_apart(text, NULL, why, size); }
