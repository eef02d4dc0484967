/* The text form of K kernels: k_print and k_parse. k.h shows an example.
 *
 *   kernel NAME {
 *     dim s0 = 64 input 1 axis 0      a symbol: hint and source (input, scalar, node)
 *     axis r {s0}
 *     buffer b0 f32 in node=3 elements={s0*4}
 *     check c0 E303 site=4 node=9 detail=0
 *     %1 = f32 load b0[4*r + c] if 0 <= c - 1 < 3, %7 else %2
 *     store b1[4*r + c] %1 if ... over r c
 *   }
 *
 * Dims are numbers, or expressions over the symbols in braces: s0, numbers, + - * // %, min(a, b), max(a, b), everything
 * compound in parentheses. Coordinates are sums of coef*atom; atoms are axes, (form)//dim, (form)%dim and [%value].
 * Nodes are numbered in order; the dtype of effects and markers follows from their operands. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/kernel_text.h"
#include "tests/unit/reader.h"

static const char *const code_names[K_CODE_COUNT] = {
    [K_NONE] = "none",   [K_CONST] = "const",  [K_SCALAR] = "scalar", [K_IOTA] = "iota", [K_LOAD] = "load",
    [K_OP] = "op",       [K_MATH] = "math",    [K_REDUCE] = "reduce", [K_SCAN] = "scan", [K_DOT] = "dot",
    [K_WHILE] = "while", [K_CARRY] = "carry",  [K_SET] = "set",       [K_END] = "end",   [K_CHECK] = "check",
    [K_STORE] = "store", [K_STOREF] = "storef"};
static const char *const source_names[] = {"input", "scalar", "node"};

/* ---- printing ---------------------------------------------------------------------------------------------------------- */

typedef struct writer {
  const k_kernel *k;
  text_buf *out;
  uint32_t *rank; /* of each dim symbol among those that the kernel uses, from 1; 0 for the others */
} writer;

static const char *dim_word(uint8_t op) {
  switch (op) {
  case DIM_ADD: return " + ";
  case DIM_SUB: return " - ";
  case DIM_MUL: return "*";
  case DIM_FLOORDIV: return "//";
  default: return "%";
  }
}

static void print_expr(const writer *w, qn_dim d) {
  if (d >= 0) {
    text_addf(w->out, "%lld", (long long)d);
    return;
  }
  const dim_expr *e = &w->k->dims->exprs[~d];
  if (e->op == DIM_SYMBOL) {
    text_addf(w->out, "s%u", w->rank[~d] - 1);
  } else if (e->op == DIM_MIN || e->op == DIM_MAX) {
    text_adds(w->out, e->op == DIM_MIN ? "min(" : "max(");
    print_expr(w, e->a);
    text_adds(w->out, ", ");
    print_expr(w, e->b);
    text_adds(w->out, ")");
  } else {
    text_adds(w->out, "(");
    print_expr(w, e->a);
    text_adds(w->out, dim_word(e->op));
    print_expr(w, e->b);
    text_adds(w->out, ")");
  }
}

static void print_dim(const writer *w, qn_dim d) {
  int64_t c;
  if (dim_is_const(w->k->dims, d, &c)) {
    text_addf(w->out, "%lld", (long long)c);
    return;
  }
  text_adds(w->out, "{");
  print_expr(w, d);
  text_adds(w->out, "}");
}

static void print_form(const writer *w, k_form f);

static void print_atom(const writer *w, uint32_t atom) {
  const k_atom *a = &w->k->atoms[atom];
  switch (a->kind) {
  case ATOM_AXIS: text_adds(w->out, w->k->axes[a->ref].name); break;
  case ATOM_VALUE: text_addf(w->out, "[%%%u]", a->ref); break;
  default:
    text_adds(w->out, "(");
    print_form(w, a->of);
    text_adds(w->out, a->kind == ATOM_DIV ? ")//" : ")%");
    print_dim(w, a->by);
    break;
  }
}

/* The order in which terms are written: axes by number, then the others by the order in which they were made. */
static uint64_t term_rank(const k_kernel *k, const k_term *t) {
  const k_atom *a = &k->atoms[t->atom];
  return a->kind == ATOM_AXIS ? a->ref : (uint64_t)K_AXES_MAX + t->atom;
}

static void print_form(const writer *w, k_form f) {
  const k_kernel *k = w->k;
  const k_linear *l = &k->forms[f];
  bool first = true;
  uint64_t last = 0;
  for (uint32_t done = 0; done < l->n; done++) {
    const k_term *t = NULL; /* the next by rank */
    for (uint32_t i = 0; i < l->n; i++)
      if ((done == 0 || term_rank(k, &l->terms[i]) > last) && (!t || term_rank(k, &l->terms[i]) < term_rank(k, t)))
        t = &l->terms[i];
    last = term_rank(k, t);
    int64_t c;
    bool number = dim_is_const(k->dims, t->coef, &c), minus = number && c < 0;
    text_adds(w->out, first ? (minus ? "-" : "") : minus ? " - " : " + ");
    if (!number || (c != 1 && c != -1)) {
      if (number)
        text_addf(w->out, "%llu", (unsigned long long)(minus ? 0 - (uint64_t)c : (uint64_t)c));
      else
        print_dim(w, t->coef);
      text_adds(w->out, "*");
    }
    print_atom(w, t->atom);
    first = false;
  }
  int64_t c;
  bool number = dim_is_const(k->dims, l->constant, &c);
  if (number && c == 0 && !first) return;
  if (number && c < 0 && !first) {
    text_addf(w->out, " - %llu", (unsigned long long)(0 - (uint64_t)c));
    return;
  }
  text_adds(w->out, first ? "" : " + ");
  print_dim(w, l->constant);
}

/* Ranges are written in the order of their texts, since their own order is that in which the forms were made. */
static void print_guard(const writer *w, k_guard g) {
  const k_condition *c = &w->k->guards[g];
  if (!g) return;
  text_buf *texts = calloc((size_t)c->n + 1, sizeof *texts);
  if (!texts) {
    w->out->failed = true;
    return;
  }
  text_adds(w->out, " if ");
  for (uint32_t i = 0; i < c->n; i++) {
    text_buf t = {0};
    writer inner = {w->k, &t, w->rank};
    text_adds(&t, "0 <= ");
    print_form(&inner, c->ranges[i].form);
    text_adds(&t, " < ");
    print_dim(&inner, c->ranges[i].extent);
    text_add(&t, "", 1);
    uint32_t j = i;
    for (; j > 0 && !t.failed && !texts[j - 1].failed && strcmp(t.text, texts[j - 1].text) < 0; j--)
      texts[j] = texts[j - 1];
    texts[j] = t;
  }
  for (uint32_t i = 0; i < c->n; i++) {
    if (texts[i].failed)
      w->out->failed = true;
    else
      text_addf(w->out, "%s%s", i ? ", " : "", texts[i].text);
    text_free(&texts[i]);
  }
  free(texts);
  if (c->where) text_addf(w->out, "%s%%%u", c->n ? ", " : "", c->where);
}

static void print_axes(const writer *w, k_mask m) {
  text_adds(w->out, " over");
  for (uint32_t a = 0; a < w->k->naxes; a++)
    if (m >> a & 1) text_addf(w->out, " %s", w->k->axes[a].name);
}

static void print_node(const writer *w, k_val v) {
  const k_node *n = &w->k->nodes[v];
  text_buf *out = w->out;
  if (k_has_result(n->code)) text_addf(out, "%%%u = %s ", v, dtype_rows[n->dtype].name);
  if (n->code == K_OP)
    text_adds(out, kop_rows[n->sub].name);
  else if (n->code == K_MATH)
    text_adds(out, math_rows[n->sub].name);
  else
    text_adds(out, code_names[n->code]);
  if (n->code == K_REDUCE || n->code == K_SCAN || n->code == K_STOREF) text_addf(out, ".%s", kop_rows[n->sub].name);
  if (n->flags & K_EXCLUSIVE) text_adds(out, ".exclusive");
  if (n->code == K_CONST) {
    text_adds(out, " ");
    l_print_constant(out, (qn_dtype)n->dtype, n->imm);
  }
  if (n->code == K_SCALAR) text_addf(out, " %llu", (unsigned long long)n->imm);
  if (n->code == K_CHECK) text_addf(out, " c%llu", (unsigned long long)n->imm);
  if (n->code == K_REDUCE || n->code == K_SCAN) text_addf(out, " %s", l_order_names[n->order]);
  if (n->code == K_REDUCE || n->code == K_SCAN || n->code == K_DOT) text_addf(out, " %s", w->k->axes[n->axis].name);
  if (n->code == K_IOTA) {
    text_adds(out, " ");
    print_form(w, n->at);
  }
  if (n->code == K_LOAD || n->code == K_STORE || n->code == K_STOREF) {
    text_addf(out, " b%d[", n->buffer);
    print_form(w, n->at);
    text_adds(out, "]");
  }
  if (n->code == K_LOAD) {
    print_guard(w, n->guard);
    if (n->guard) text_addf(out, " else %%%u", n->a);
  } else {
    if (n->a) text_addf(out, " %%%u", n->a);
    if (n->b) text_addf(out, " %%%u", n->b);
    if (n->c) text_addf(out, " %%%u", n->c);
  }
  if (n->code == K_STORE || n->code == K_STOREF) print_guard(w, n->guard);
  if (n->code == K_CHECK) {
    text_adds(out, " at ");
    print_form(w, n->at);
  }
  bool wider = n->code == K_CARRY && n->axes != w->k->nodes[n->a].axes; /* than what it begins with */
  if (k_is_effect(n) || wider) print_axes(w, n->axes);
  if (n->code == K_WHILE) text_adds(out, " {");
}

static void mark_symbols(const k_kernel *k, qn_dim d, uint32_t *used) {
  if (d >= 0) return;
  const dim_expr *e = &k->dims->exprs[~d];
  if (e->op == DIM_SYMBOL) {
    used[~d] = 1;
    return;
  }
  mark_symbols(k, e->a, used);
  mark_symbols(k, e->b, used);
}

static void mark_form(const k_kernel *k, k_form f, uint32_t *used) {
  const k_linear *l = &k->forms[f];
  mark_symbols(k, l->constant, used);
  for (uint32_t i = 0; i < l->n; i++) {
    const k_atom *a = &k->atoms[l->terms[i].atom];
    mark_symbols(k, l->terms[i].coef, used);
    mark_symbols(k, a->by, used);
    if (a->of) mark_form(k, a->of, used);
  }
}

void k_print(const k_kernel *k, text_buf *out) {
  const dim_table *t = k->dims;
  writer w = {k, out, calloc((size_t)t->n + 1, sizeof *w.rank)};
  if (!w.rank) {
    out->failed = true;
    return;
  }
  for (uint32_t a = 0; a < k->naxes; a++) mark_symbols(k, k->axes[a].extent, w.rank);
  for (uint32_t b = 0; b < k->nbuffers; b++) mark_symbols(k, k->buffers[b].elements, w.rank);
  for (uint32_t i = 1; i < k->n; i++) {
    const k_condition *c = &k->guards[k->nodes[i].guard];
    mark_form(k, k->nodes[i].at, w.rank);
    for (uint32_t j = 0; j < c->n; j++) {
      mark_form(k, c->ranges[j].form, w.rank);
      mark_symbols(k, c->ranges[j].extent, w.rank);
    }
  }
  text_addf(out, "kernel %s {\n", k->name);
  uint32_t n = 0;
  for (uint32_t i = 0; i < t->n; i++) {
    if (!w.rank[i]) continue;
    const dim_expr *e = &t->exprs[i];
    text_addf(out, "  dim s%u = %lld %s %u axis %u\n", n, (long long)e->hint, source_names[e->source], e->ref, e->axis);
    w.rank[i] = ++n;
  }
  for (uint32_t a = 0; a < k->naxes; a++) {
    text_addf(out, "  axis %s ", k->axes[a].name);
    print_dim(&w, k->axes[a].extent);
    text_adds(out, "\n");
  }
  for (uint32_t b = 0; b < k->nbuffers; b++) {
    const k_buffer *f = &k->buffers[b];
    text_addf(out, "  buffer b%u %s %s node=%u elements=", b, dtype_rows[f->dtype].name, l_buffer_mode_names[f->mode],
              f->ref);
    print_dim(&w, f->elements);
    text_adds(out, "\n");
  }
  for (uint32_t c = 0; c < k->nchecks; c++) l_print_check(out, c, &k->checks[c]);
  int depth = 1;
  for (k_val v = 1; v < k->n; v++) {
    uint8_t code = k->nodes[v].code;
    if (code == K_END && depth > 1) depth--;
    text_repeat(out, "  ", depth);
    if (code == K_END)
      text_adds(out, "}");
    else
      print_node(&w, v);
    if (code == K_WHILE) depth++;
    text_adds(out, "\n");
  }
  text_adds(out, "}\n");
  free(w.rank);
}

/* ---- parsing ----------------------------------------------------------------------------------------------------------- */

enum { EXPR_DEPTH = 64 };

typedef struct parser {
  reader r;
  k_kernel *k;
  qn_dim *symbols;
  uint32_t nsymbols;
  int depth;
} parser;

static bool too_deep(parser *p) { return p->depth >= EXPR_DEPTH && !reader_fail(&p->r, "expression nests too deep"); }

static bool parse_expr(parser *p, qn_dim *to);

static bool parse_primary(parser *p, qn_dim *to) {
  reader *r = &p->r;
  int64_t x;
  reader_blanks(r);
  bool least = reader_take(r, "min"), most = !least && reader_take(r, "max");
  if (least || most) {
    qn_dim a, b;
    if (!reader_need(r, "(") || !parse_expr(p, &a) || !reader_need(r, ",") || !parse_expr(p, &b) ||
        !reader_need(r, ")"))
      return false;
    *to = dim_make(p->k->dims, least ? DIM_MIN : DIM_MAX, a, b);
    return true;
  }
  if (*r->at == 's') {
    uint32_t n;
    if (!reader_prefixed(r, 's', &n)) return false;
    if (n >= p->nsymbols) return reader_fail(r, "unknown dim s%u", n);
    *to = p->symbols[n];
    return true;
  }
  if (reader_take(r, "(")) return parse_expr(p, to) && reader_need(r, ")");
  if (!reader_number(r, &x)) return false;
  *to = dim_const(p->k->dims, x);
  return true;
}

/* One binary operation at most: compound operands stand in parentheses. */
static bool parse_expr(parser *p, qn_dim *to) {
  reader *r = &p->r;
  qn_dim b;
  if (too_deep(p)) return false;
  p->depth++;
  bool ok = parse_primary(p, to);
  static const struct {
    const char *text;
    dim_op op;
  } ops[] = {{"//", DIM_FLOORDIV}, {"*", DIM_MUL}, {"%", DIM_MOD}, {"+", DIM_ADD}, {"-", DIM_SUB}};
  for (size_t i = 0; ok && i < sizeof ops / sizeof *ops; i++) {
    if (!reader_take(r, ops[i].text)) continue;
    ok = parse_primary(p, &b);
    if (ok) *to = dim_make(p->k->dims, ops[i].op, *to, b);
    break;
  }
  p->depth--;
  return ok;
}

static bool parse_dim(parser *p, qn_dim *to) {
  int64_t x;
  if (reader_take(&p->r, "{")) return parse_expr(p, to) && reader_need(&p->r, "}");
  if (!reader_number(&p->r, &x)) return false;
  *to = dim_const(p->k->dims, x);
  return true;
}

static bool parse_form(parser *p, k_form *to);

static int find_axis(const k_kernel *k, const char *name) {
  for (uint32_t a = 0; a < k->naxes; a++)
    if (strcmp(k->axes[a].name, name) == 0) return (int)a;
  return -1;
}

static bool parse_axis(parser *p, uint32_t *to) {
  char text[64];
  if (!reader_word(&p->r, text, sizeof text)) return false;
  int a = find_axis(p->k, text);
  if (a < 0) return reader_fail(&p->r, "unknown axis '%s'", text);
  *to = (uint32_t)a;
  return true;
}

static bool node_number(parser *p, k_val *to) {
  if (!reader_prefixed(&p->r, '%', to)) return false;
  return (*to && *to < p->k->n) || reader_fail(&p->r, "%%%u is not defined before", *to);
}

static bool parse_atom(parser *p, k_form *to) {
  reader *r = &p->r;
  uint32_t n;
  qn_dim by;
  if (reader_take(r, "[")) {
    if (!node_number(p, &n) || !reader_need(r, "]")) return false;
    *to = k_value_form(p->k, n);
    return true;
  }
  if (reader_take(r, "(")) {
    if (!parse_form(p, to) || !reader_need(r, ")")) return false;
    bool quotient = reader_take(r, "//");
    if ((!quotient && !reader_need(r, "%")) || !parse_dim(p, &by)) return false;
    *to = quotient ? k_div(p->k, *to, by) : k_mod(p->k, *to, by);
    return true;
  }
  if (!parse_axis(p, &n)) return false;
  *to = k_axis_form(p->k, n);
  return true;
}

static bool digit_or_brace(char c) { return (c >= '0' && c <= '9') || c == '{'; }

static bool parse_form(parser *p, k_form *to) {
  reader *r = &p->r;
  if (too_deep(p)) return false;
  p->depth++;
  *to = 0;
  bool minus = reader_take(r, "-"), ok = true;
  do {
    qn_dim coef = 1;
    k_form f;
    reader_blanks(r);
    bool number = digit_or_brace(*r->at);
    if (number && !parse_dim(p, &coef)) {
      ok = false;
      break;
    }
    if (!number || reader_take(r, "*")) {
      if (!parse_atom(p, &f)) {
        ok = false;
        break;
      }
    } else {
      f = k_number(p->k, coef);
      coef = 1;
    }
    if (minus) coef = dim_sub(p->k->dims, 0, coef);
    *to = k_plus(p->k, *to, k_times(p->k, f, coef));
    minus = false;
  } while (reader_take(r, "+") || (minus = reader_take(r, "-")));
  p->depth--;
  return ok;
}

static bool parse_guard(parser *p, k_guard *to) {
  reader *r = &p->r;
  *to = 0;
  if (!reader_take(r, "if")) return true;
  do {
    k_form f;
    k_val v;
    qn_dim extent;
    reader_blanks(r);
    if (*r->at == '%') {
      if (!node_number(p, &v)) return false;
      *to = k_guard_where(p->k, *to, v);
    } else {
      if (!reader_need(r, "0") || !reader_need(r, "<=") || !parse_form(p, &f) || !reader_need(r, "<") ||
          !parse_dim(p, &extent))
        return false;
      *to = k_guard_range(p->k, *to, f, extent);
    }
  } while (reader_take(r, ","));
  return true;
}

static bool parse_symbol(parser *p) {
  reader *r = &p->r;
  uint32_t n, ref, axis;
  int64_t hint;
  if (!reader_prefixed(r, 's', &n) || !reader_need(r, "=") || !reader_number(r, &hint)) return false;
  if (n != p->nsymbols) return reader_fail(r, "dims are numbered in order");
  int source = reader_choice(r, source_names, 3, "source");
  if (source < 0 || !reader_small(r, &ref) || !reader_need(r, "axis") || !reader_small(r, &axis)) return false;
  qn_dim *more = realloc(p->symbols, (n + 1) * sizeof *more);
  if (!more) return reader_fail(r, "out of memory");
  p->symbols = more;
  p->symbols[p->nsymbols++] = dim_symbol(p->k->dims, (dim_source)source, ref, (uint16_t)axis, hint, NULL);
  return true;
}

static bool parse_buffer(parser *p) {
  reader *r = &p->r;
  uint32_t n, ref;
  uint8_t dtype;
  qn_dim elements;
  if (!reader_prefixed(r, 'b', &n) || !reader_dtype(r, &dtype)) return false;
  if (n != p->k->nbuffers) return reader_fail(r, "buffers are numbered in order");
  int mode = reader_choice(r, l_buffer_mode_names, BUFFER_MODE_NAMES, "mode");
  if (mode < 0 || !reader_need_label(r, "node") || !reader_small(r, &ref) || !reader_need_label(r, "elements") ||
      !parse_dim(p, &elements))
    return false;
  return k_buffer_add(p->k, (qn_dtype)dtype, (l_buffer_mode)mode, ref, elements) >= 0 ||
         reader_fail(r, "out of memory");
}

static bool parse_sub(reader *r, uint8_t *sub) {
  char text[32];
  if (!reader_need(r, ".") || !reader_word(r, text, sizeof text)) return false;
  int op = kop_find(text);
  *sub = (uint8_t)op;
  return op >= 0 || reader_fail(r, "unknown function '%s'", text);
}

static bool parse_operands(parser *p, k_val *a, k_val *b, k_val *c) {
  k_val *const to[] = {a, b, c};
  for (int i = 0; i < 3; i++) {
    reader_blanks(&p->r);
    if (*p->r.at != '%') return true;
    if (!node_number(p, to[i])) return false;
  }
  return true;
}

static bool parse_over(parser *p, k_mask *to) {
  if (!reader_need(&p->r, "over")) return false;
  *to = 0;
  while (!reader_at_line_end(&p->r)) {
    uint32_t a;
    if (!parse_axis(p, &a)) return false;
    *to |= (k_mask)1 << a;
  }
  return true;
}

/* Adds a node exactly as written (no folding, so that texts with nodes that could fold parse to the same numbers). */
static bool add_node(parser *p, const k_node *n) {
  k_kernel *k = p->k;
  if (!arena_room(&k->arena, (void **)&k->nodes, &k->cap, k->n + 1, sizeof *k->nodes))
    return reader_fail(&p->r, "out of memory");
  k->nodes[k->n++] = *n;
  return true;
}

static bool parse_instruction(parser *p) {
  reader *r = &p->r;
  k_kernel *k = p->k;
  k_node n = {0};
  char text[32];
  uint32_t number, axis;
  reader_blanks(r);
  bool typed = *r->at == '%';
  if (typed) {
    if (!reader_prefixed(r, '%', &number) || !reader_need(r, "=") || !reader_dtype(r, &n.dtype)) return false;
    if (number != k->n) return reader_fail(r, "this is node %%%u", k->n);
  }
  if (!reader_word(r, text, sizeof text)) return false;
  for (uint8_t c = 1; c < K_CODE_COUNT; c++)
    if (c != K_OP && c != K_MATH && k_has_result(c) == typed && strcmp(code_names[c], text) == 0) n.code = c;
  int op = typed ? kop_find(text) : -1, fn = typed ? math_find(text) : -1;
  if (!n.code && op < 0 && fn < 0) return reader_fail(r, "unknown node '%s'", text);
  if (!n.code) {
    n.code = op >= 0 ? K_OP : K_MATH;
    n.sub = (uint8_t)(op >= 0 ? op : fn);
  }
  if ((n.code == K_REDUCE || n.code == K_SCAN || n.code == K_STOREF) && !parse_sub(r, &n.sub)) return false;
  if (n.code == K_SCAN && reader_take(r, ".exclusive")) n.flags = K_EXCLUSIVE;
  if (n.code == K_CONST && !reader_constant(r, &n.imm)) return false;
  if (n.code == K_SCALAR) {
    if (!reader_small(r, &number)) return false;
    n.imm = number;
    if (number >= k->nscalars) k->nscalars = number + 1;
  }
  if (n.code == K_CHECK) {
    if (!reader_prefixed(r, 'c', &number)) return false;
    n.imm = number;
  }
  if (n.code == K_REDUCE || n.code == K_SCAN) {
    int order = reader_choice(r, l_order_names, ORDER_NAMES, "order");
    if (order < 0) return false;
    n.order = (uint8_t)order;
  }
  if (n.code == K_REDUCE || n.code == K_SCAN || n.code == K_DOT) {
    if (!parse_axis(p, &axis)) return false;
    n.axis = (uint8_t)axis;
  }
  if (n.code == K_IOTA && !parse_form(p, &n.at)) return false;
  if (n.code == K_LOAD || n.code == K_STORE || n.code == K_STOREF) {
    if (!reader_prefixed(r, 'b', &number) || !reader_need(r, "[") || !parse_form(p, &n.at) || !reader_need(r, "]"))
      return false;
    n.buffer = (int32_t)number;
  }
  if (n.code == K_LOAD) {
    if (!parse_guard(p, &n.guard)) return false;
    if (n.guard && (!reader_need(r, "else") || !node_number(p, &n.a))) return false;
  } else if (!parse_operands(p, &n.a, &n.b, &n.c)) {
    return false;
  }
  if ((n.code == K_STORE || n.code == K_STOREF) && !parse_guard(p, &n.guard)) return false;
  if (n.code == K_CHECK && (!reader_need(r, "at") || !parse_form(p, &n.at))) return false;
  if (n.code == K_STORE || n.code == K_STOREF) n.dtype = k->nodes[n.a].dtype;
  if (k_is_effect(&n)) {
    if (!parse_over(p, &n.axes)) return false;
  } else {
    reader_blanks(r);
    n.axes = k_value_axes(k, &n);
    if (n.code == K_CARRY && *r->at == 'o' && !parse_over(p, &n.axes)) return false;
  }
  if (n.code == K_WHILE && !reader_need(r, "{")) return false;
  if (!reader_at_line_end(r)) return reader_fail(r, "unexpected text behind the node");
  return add_node(p, &n);
}

static bool parse_axis_line(parser *p) {
  char name[64];
  qn_dim extent;
  if (!reader_word(&p->r, name, sizeof name) || !parse_dim(p, &extent)) return false;
  if (find_axis(p->k, name) >= 0) return reader_fail(&p->r, "axis '%s' appears twice", name);
  return k_axis_add(p->k, name, extent) >= 0 || reader_fail(&p->r, "too many axes");
}

static bool parse_kernel(parser *p) {
  reader *r = &p->r;
  k_kernel *k = p->k;
  uint32_t depth = 0;
  if (!reader_need(r, "{")) return false;
  for (;;) {
    bool ok;
    reader_next_line(r);
    if (!*r->at) return reader_fail(r, "the kernel has no end");
    if (reader_take(r, "}")) {
      if (depth == 0) break;
      depth--;
      ok = add_node(p, &(k_node){.code = K_END});
    } else if (k->n == 1 && reader_take(r, "dim")) {
      ok = parse_symbol(p);
    } else if (k->n == 1 && reader_take(r, "axis")) {
      ok = parse_axis_line(p);
    } else if (k->n == 1 && reader_take(r, "buffer")) {
      ok = parse_buffer(p);
    } else if (k->n == 1 && reader_take(r, "check")) {
      l_check c;
      ok = reader_check(r, k->nchecks, &c);
      if (ok && k_check_add(k, c) < 0) ok = reader_fail(r, "out of memory");
    } else {
      uint32_t before = k->n;
      ok = parse_instruction(p);
      if (ok && k->nodes[before].code == K_WHILE) depth++;
    }
    if (!ok) return false;
  }
  reader_next_line(r);
  if (*r->at) return reader_fail(r, "text behind the kernel");
  return !k->failed || reader_fail(r, "out of memory");
}

k_kernel *k_parse(const char *text, char *why, size_t size) {
  parser p = {0};
  char name[256];
  reader_init(&p.r, text, why, size);
  reader_next_line(&p.r);
  if (!reader_need(&p.r, "kernel") || !reader_word(&p.r, name, sizeof name)) return NULL;
  p.k = k_new(name, NULL);
  if (!p.k) {
    (void)reader_fail(&p.r, "out of memory");
    return NULL;
  }
  bool ok = parse_kernel(&p) && k_verify(p.k, why, size);
  free(p.symbols);
  if (ok) return p.k;
  k_free(p.k);
  return NULL;
}
