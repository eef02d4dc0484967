/* Pictures of graphs: what save writes of graph(f, x) and of explain(f, x) as .svg and .dot.
 *
 * Both read the records of nodes that these values have (a program may have changed them, so nothing of them is trusted). A scalar
 * constant stands in the label of the node that takes it. In .dot the calls that nodes came from, and the arms and bodies of branches and loops,
 * are clusters, and graphviz finds the places. In .svg the picture is laid out here: a node's row is one more than the lowest of its operands',
 * and within a row nodes are sorted and placed by the mean of their neighbours, downwards and upwards in turn. A branch or loop is a box that
 * has the pictures of its parts side by side.
 */
#include <stdlib.h>
#include <string.h>

#include "lang/error.h"
#include "lang/format.h"
#include "stdlib/builtins.h"
#include "stdlib/figure.h"
#include "stdlib/io.h"

enum { PARTS_NESTED = 16, LABEL_COLUMNS = 40, SWEEPS = 4 };
/* In pixels: a column of text, a row of it, the gaps between boxes of one row, between rows, and around what is in a box. */
enum { COLUMN = 7, LINE = 15, GAP = 14, ROW_GAP = 26, MARGIN = 8 };

typedef struct drawing drawing;
typedef struct drawn_node {
  const char *label, *about; /* "sum axes [0]"; "f32[4], line 3" */
  const char *call;          /* the function that it came from, or NULL */
  bool shown, output, host;  /* shown: it has a box */
  uint32_t nin, *in;         /* operands that have a box; numbers of nodes, from 0 on */
  drawing *parts[2];
  double x, y, width, height, want;
  uint32_t row;
} drawn_node;
struct drawing {
  const char *title;
  drawn_node *nodes;
  uint32_t n;
  double width, height;
};

typedef struct reading {
  qn_vm *vm;
  arena arena;
  const qn_list *effects; /* of a report: the names of effects by their numbers; or NULL */
} reading;

/* ---- reading ------------------------------------------------------------------------------------------------------------------ */

static bool refuse(qn_vm *vm) {
  return raise_false(vm, E_argument, "save: the nodes of the graph are not those that graph or explain gave");
}

/* A field of a record; nil if there is none. Borrowed. */
static qn_value field_of(qn_value v, const char *name) {
  int at = value_is(v, TAG_RECORD) ? record_find_text(value_record(v), name, strlen(name)) : -1;
  return at < 0 ? value_nil() : value_record(v)->items[at];
}

/* A copy of a text in the arena, at most LABEL_COLUMNS columns of it. Frees the text. NULL with an error raised. */
static const char *keep_text(reading *r, text_buf *t) {
  char *out = NULL;
  if (t->failed) {
    raise_memory(r->vm);
  } else {
    text_buf cut = {.vm = r->vm};
    text_label(&cut, t->len ? t->text : "", t->len, LABEL_COLUMNS);
    out = cut.failed ? NULL : arena_alloc(&r->arena, cut.len + 1);
    if (out && cut.len) memcpy(out, cut.text, cut.len);
    if (out) out[cut.len] = 0;
    if (!out) raise_memory(r->vm);
    text_free(&cut);
  }
  text_free(t);
  return out;
}

static const char *text_of(qn_value v) { return value_is(v, TAG_STR) ? value_str(v)->text : ""; }

/* Is node v a constant that is written in the labels of those who take it? */
static bool is_small_const(qn_value v) {
  if (strcmp(text_of(field_of(v, "op")), "const") != 0) return false;
  qn_value shape = field_of(v, "shape");
  return value_is(shape, TAG_LIST) && value_list(shape)->len == 0;
}

/* Appends a number, or what else a constant or an attribute is. */
static bool add_value(reading *r, text_buf *t, qn_value v) {
  if (value_is(v, TAG_STR)) {
    text_add(t, value_str(v)->text, value_str(v)->len);
    return true;
  }
  if (value_is(v, TAG_ARRAY) && value_array(v)->rank == 0) {
    format_options plain = {0};
    return format_print(r->vm, v, &plain, t);
  }
  return format_repr(r->vm, v, t);
}

static bool add_attrs(reading *r, text_buf *t, qn_value attrs) {
  if (!value_is(attrs, TAG_RECORD)) return true;
  const qn_record *a = value_record(attrs);
  for (uint32_t i = 0; i < a->len; i++) {
    const char *name = record_name(a, i)->text;
    if (strcmp(name, "regions") == 0 || strcmp(name, "value") == 0) continue;
    text_addf(t, " %s", name);
    if (value_is(a->items[i], TAG_BOOL)) continue;
    text_adds(t, " ");
    if (!add_value(r, t, a->items[i])) return false;
  }
  return true;
}

/* The first line of a node's box: its op, its operands where some are small constants (·: another one), attributes. False with an error raised. */
static bool read_label(reading *r, qn_value v, const qn_list *nodes, const qn_list *in, drawn_node *out) {
  const char *op = text_of(field_of(v, "op"));
  qn_value attrs = field_of(v, "attrs"), number = field_of(attrs, "number");
  text_buf t = {.vm = r->vm};
  bool ok = true, tap = strcmp(op, "tap") == 0;
  if (tap && r->effects && value_is(number, TAG_INT) && (uint64_t)number.u.i < r->effects->len)
    text_adds(&t, text_of(field_of(r->effects->items[number.u.i], "name")));
  else
    text_adds(&t, op);
  qn_value name = field_of(v, "name");
  if (value_is(name, TAG_STR)) text_addf(&t, " %s", value_str(name)->text);
  if (is_small_const(v)) {
    text_adds(&t, " ");
    ok = add_value(r, &t, field_of(attrs, "value"));
  }
  bool any = false;
  for (uint32_t i = 0; i < in->len; i++) any |= is_small_const(nodes->items[in->items[i].u.i - 1]);
  for (uint32_t i = 0; any && ok && i < in->len; i++) {
    qn_value x = nodes->items[in->items[i].u.i - 1];
    text_adds(&t, is_small_const(x) ? " " : " ·");
    ok = !is_small_const(x) || add_value(r, &t, field_of(field_of(x, "attrs"), "value"));
  }
  ok = ok && (tap || add_attrs(r, &t, attrs));
  if (!ok) text_free(&t);
  return ok && (out->label = keep_text(r, &t)) != NULL;
}

/* The second one: its type, and where it comes from. */
static bool read_about(reading *r, qn_value v, drawn_node *out) {
  text_buf t = {.vm = r->vm};
  qn_value dtype = field_of(v, "dtype"), shape = field_of(v, "shape"), line = field_of(v, "line"),
           call = field_of(v, "call");
  if (value_is(dtype, TAG_DTYPE)) text_adds(&t, dtype_rows[dtype.u.i].name);
  if (!out->host && value_is(shape, TAG_LIST)) {
    text_adds(&t, "[");
    for (uint32_t i = 0; i < value_list(shape)->len; i++) {
      qn_value d = value_list(shape)->items[i];
      text_adds(&t, i ? ", " : "");
      if (value_is(d, TAG_INT))
        text_int(&t, d.u.i);
      else
        text_adds(&t, text_of(d));
    }
    text_adds(&t, "]");
  }
  bool own = !value_is(call, TAG_STR); /* lines of the library tell nothing */
  if (own && value_is(line, TAG_INT)) text_addf(&t, ", line %lld", (long long)line.u.i);
  if (!(out->about = keep_text(r, &t))) return false;
  if (own) return true;
  text_buf name = {.vm = r->vm};
  text_adds(&name, text_of(call));
  return (out->call = keep_text(r, &name)) != NULL;
}

static drawing *read_graph(reading *r, qn_value nodes, qn_value outputs, const char *title, int depth);

static bool read_parts(reading *r, qn_value v, drawn_node *out, int depth) {
  qn_value parts = field_of(field_of(v, "attrs"), "regions");
  if (!value_is(parts, TAG_LIST) || value_list(parts)->len != 2 || depth == PARTS_NESTED) return true;
  bool loop = strcmp(text_of(field_of(v, "op")), "loop") == 0;
  static const char *const titles[2][2] = {{"then", "else"}, {"test", "body"}};
  for (int k = 0; k < 2; k++) {
    qn_value x = value_list(parts)->items[k];
    if (!(out->parts[k] = read_graph(r, field_of(x, "nodes"), field_of(x, "outputs"), titles[loop][k], depth + 1)))
      return false;
  }
  return true;
}

/* Are all items of a list numbers from 1 to most? */
static bool are_ids(qn_value v, uint32_t most) {
  if (!value_is(v, TAG_LIST)) return false;
  for (uint32_t i = 0; i < value_list(v)->len; i++) {
    qn_value id = value_list(v)->items[i];
    if (!value_is(id, TAG_INT) || id.u.i < 1 || id.u.i > most) return false;
  }
  return true;
}

/* A graph, in the arena. NULL with an error raised. */
static drawing *read_graph(reading *r, qn_value nodes, qn_value outputs, const char *title, int depth) {
  qn_vm *vm = r->vm;
  const qn_list *l = value_is(nodes, TAG_LIST) ? value_list(nodes) : NULL;
  drawing *d = l ? arena_alloc(&r->arena, sizeof *d) : NULL;
  drawn_node *all = d ? arena_alloc(&r->arena, (l->len + (size_t)1) * sizeof *all) : NULL;
  if (!l || !are_ids(outputs, l->len)) return refuse(vm), NULL;
  if (!all) return raise_memory(vm), NULL;
  memset(all, 0, (l->len + (size_t)1) * sizeof *all);
  *d = (drawing){.title = title, .nodes = all, .n = l->len};
  for (uint32_t i = 0; i < l->len; i++) {
    qn_value v = l->items[i], in = field_of(v, "inputs");
    if (!value_is(field_of(v, "op"), TAG_STR) || !are_ids(in, i)) return refuse(vm), NULL;
    if (vm_poll_item(vm, i)) return NULL;
    drawn_node *x = &all[i];
    const qn_list *operands = value_list(in);
    x->host = value_is(field_of(v, "host"), TAG_BOOL) && field_of(v, "host").u.i;
    x->shown = strcmp(value_str(field_of(v, "op"))->text, "const") != 0;
    if (!read_label(r, v, l, operands, x) || !read_about(r, v, x) || !read_parts(r, v, x, depth)) return NULL;
    if (operands->len && !(x->in = arena_alloc(&r->arena, operands->len * sizeof *x->in)))
      return raise_memory(vm), NULL;
    for (uint32_t k = 0; k < operands->len; k++) {
      uint32_t from = (uint32_t)operands->items[k].u.i - 1;
      if (is_small_const(l->items[from])) continue;
      all[from].shown = true; /* a constant that is an array */
      x->in[x->nin++] = from;
    }
  }
  for (uint32_t i = 0; i < value_list(outputs)->len; i++) {
    drawn_node *x = &all[value_list(outputs)->items[i].u.i - 1];
    x->output = x->shown = true;
  }
  return d;
}

/* The graph of a value that save was given. NULL with an error raised. r->arena is to be freed in any case. */
static drawing *read_picture(reading *r, qn_value v, const char *ending) {
  qn_vm *vm = r->vm;
  arena_init(&r->arena, vm);
  if (value_is_graph(v)) {
    qn_value nodes = jit_graph_field(vm, v, "nodes"), outputs = jit_graph_field(vm, v, "outputs");
    bool ok = !value_is_error(nodes) && !value_is_error(outputs);
    drawing *d = ok ? read_graph(r, nodes, outputs, NULL, 0) : NULL;
    value_release(vm, nodes);
    value_release(vm, outputs);
    return d;
  }
  qn_value g = field_of(v, "graph"), effects = field_of(v, "effects"), reason = field_of(v, "breaks");
  if (value_is(v, TAG_RECORD) && value_is(g, TAG_NIL) && value_is(reason, TAG_LIST) && value_list(reason)->len) {
    raise_error(vm, E_no_graph, SPAN_NONE, "save: the call has no graph: %s",
                text_of(field_of(value_list(reason)->items[0], "reason")));
    return NULL;
  }
  if (!value_is(g, TAG_RECORD)) {
    arg_refuse(vm, "save", ending, v);
    return NULL;
  }
  r->effects = value_is(effects, TAG_LIST) ? value_list(effects) : NULL;
  return read_graph(r, field_of(g, "nodes"), field_of(g, "outputs"), NULL, 0);
}

/* ---- .dot --------------------------------------------------------------------------------------------------------------------- */

/* Names of nodes in .dot are those of the parts around them and their number: "n12_0_3". */
static void dot_name(text_buf *t, const char *prefix, uint32_t i) { text_addf(t, "%s%u", prefix, i + 1); }

static void dot_graph(reading *r, text_buf *t, const drawing *d, const char *prefix) {
  const char *open = NULL;
  for (uint32_t i = 0; i < d->n; i++) {
    const drawn_node *x = &d->nodes[i];
    if (!x->shown) continue;
    bool same = open && x->call && strcmp(open, x->call) == 0;
    if (open && !same) text_adds(t, "}\n");
    if (x->call && !same) {
      text_addf(t, "subgraph cluster_%s%u { style=rounded; color=gray; label=", prefix, i + 1);
      text_quoted(t, x->call, strlen(x->call));
      text_adds(t, ";\n");
    }
    open = x->call;
    dot_name(t, prefix, i);
    text_buf both = {.vm = r->vm};
    text_addf(&both, "%s\n%s", x->label, x->about);
    text_adds(t, " [label=");
    text_quoted(t, both.failed ? "" : both.text, both.failed ? 0 : both.len);
    t->failed |= both.failed;
    text_free(&both);
    if (x->output) text_adds(t, ", penwidth=2");
    if (x->host) text_adds(t, ", style=dashed");
    text_adds(t, "];\n");
  }
  if (open) text_adds(t, "}\n");
  for (uint32_t i = 0; i < d->n; i++) {
    const drawn_node *x = &d->nodes[i];
    for (uint32_t k = 0; x->shown && k < x->nin; k++) {
      dot_name(t, prefix, x->in[k]);
      text_adds(t, " -> ");
      dot_name(t, prefix, i);
      text_adds(t, ";\n");
    }
    for (int k = 0; k < 2; k++) {
      if (!x->parts[k]) continue;
      text_buf inner = {.vm = r->vm};
      text_addf(&inner, "%s%u_%d_", prefix, i + 1, k);
      text_add(&inner, "", 1);
      t->failed |= inner.failed;
      if (t->failed) {
        text_free(&inner);
        return;
      }
      text_addf(t, "subgraph cluster_%s { label=\"%s of %%%u\";\n", inner.text, x->parts[k]->title, i + 1);
      dot_graph(r, t, x->parts[k], inner.text);
      text_adds(t, "}\n");
      if (x->parts[k]->n && x->parts[k]->nodes[0].shown) {
        dot_name(t, prefix, i);
        text_addf(t, " -> %s1 [style=dotted, arrowhead=none];\n", inner.text);
      }
      text_free(&inner);
    }
  }
}

bool picture_dot(qn_vm *vm, qn_value v, bytes *out) {
  reading r = {.vm = vm};
  drawing *d = read_picture(&r, v, "a graph, or what explain gives, for .dot");
  text_buf t = {.vm = vm};
  text_adds(&t, "digraph {\nnode [shape=box, fontname=\"monospace\", fontsize=10];\nedge [arrowsize=0.6];\n");
  if (d) dot_graph(&r, &t, d, "n");
  text_adds(&t, "}\n");
  bool good = d && text_good(&t) && bytes_add(vm, out, t.text, t.len);
  text_free(&t);
  arena_free(&r.arena);
  return good;
}

/* ---- .svg: places ------------------------------------------------------------------------------------------------------------- */

static double wide(const char *s) { return COLUMN * (double)utf8_columns(s, strlen(s)) + 2 * MARGIN; }

static double larger(double a, double b) { return a > b ? a : b; }

static bool lay_out(reading *r, drawing *d);

/* The size of a node's box. False with an error raised. */
static bool measure(reading *r, drawn_node *x) {
  double about = wide(x->about) + (x->call ? wide(x->call) : 0);
  x->width = larger(wide(x->label), about);
  x->height = 2 * LINE + MARGIN;
  double inner = MARGIN, high = 0;
  for (int k = 0; k < 2 && x->parts[k]; k++) {
    if (!lay_out(r, x->parts[k])) return false;
    inner += larger(x->parts[k]->width, wide(x->parts[k]->title)) + MARGIN;
    high = larger(high, x->parts[k]->height + LINE);
  }
  if (!x->parts[0]) return true;
  x->width = larger(x->width, inner);
  x->height += high + MARGIN;
  return true;
}

static int by_want(const void *a, const void *b) {
  const drawn_node *x = *(drawn_node *const *)a, *y = *(drawn_node *const *)b;
  if (x->want != y->want) return x->want < y->want ? -1 : 1;
  return x < y ? -1 : x > y;
}

/* Sorts the nodes of a row by where they want to be, and places them so, as far as they do not overlap; the row as a whole is moved to the
 * middle of what its nodes want. */
static void place_row(drawn_node **row, uint32_t n) {
  if (!n) return;
  qsort(row, n, sizeof *row, by_want);
  double end = -1e30, off = 0;
  for (uint32_t i = 0; i < n; i++) {
    double x = row[i]->want - row[i]->width / 2;
    row[i]->x = i && x < end ? end : x;
    end = row[i]->x + row[i]->width + GAP;
    off += row[i]->x - x;
  }
  for (uint32_t i = 0; i < n; i++) row[i]->x -= off / n;
}

static double middle(const drawn_node *x) { return x->x + x->width / 2; }

/* Gives the nodes of a drawing their places. False with an error raised. */
static bool lay_out(reading *r, drawing *d) {
  uint32_t rows = 0, n = d->n;
  drawn_node *all = d->nodes;
  for (uint32_t i = 0; i < n; i++) {
    drawn_node *x = &all[i];
    if (!x->shown) continue;
    if (!measure(r, x)) return false;
    x->row = 0;
    for (uint32_t k = 0; k < x->nin; k++)
      if (all[x->in[k]].row >= x->row) x->row = all[x->in[k]].row + 1;
    if (x->row >= rows) rows = x->row + 1;
  }
  /* what has no operands stands right above the first of its users */
  uint32_t *first = arena_alloc(&r->arena, (n + rows + (size_t)2) * sizeof *first), *begin = first ? first + n : NULL;
  drawn_node **order = arena_alloc(&r->arena, (n + (size_t)1) * sizeof *order);
  double *sum = arena_alloc(&r->arena, 2 * (n + (size_t)1) * sizeof *sum), *count = sum ? sum + n : NULL;
  if (!first || !order || !sum) return raise_memory(r->vm), false;
  for (uint32_t i = 0; i < n; i++) first[i] = UINT32_MAX;
  for (uint32_t i = 0; i < n; i++)
    for (uint32_t k = 0; all[i].shown && k < all[i].nin; k++)
      if (all[i].row < first[all[i].in[k]]) first[all[i].in[k]] = all[i].row;
  for (uint32_t i = 0; i < n; i++)
    if (all[i].shown && !all[i].nin && first[i] != UINT32_MAX) all[i].row = first[i] - 1;
  memset(begin, 0, (rows + (size_t)2) * sizeof *begin);
  for (uint32_t i = 0; i < n; i++)
    if (all[i].shown) begin[all[i].row + 2]++;
  for (uint32_t k = 2; k < rows + 2; k++) begin[k] += begin[k - 1];
  for (uint32_t i = 0; i < n; i++)
    if (all[i].shown) order[begin[all[i].row + 1]++] = &all[i];
  for (int sweep = 0; sweep < SWEEPS; sweep++) {
    bool down = sweep % 2 == 0;
    for (uint32_t i = 0; i < 2 * n; i++) sum[i] = 0;
    if (vm_poll(r->vm)) return false;
    for (uint32_t s = 0; s < rows; s++) {
      uint32_t k = down ? s : rows - 1 - s;
      for (uint32_t j = begin[k]; j < begin[k + 1]; j++) {
        drawn_node *x = order[j];
        uint32_t i = (uint32_t)(x - all);
        for (uint32_t o = 0; down && o < x->nin; o++) {
          sum[i] += middle(&all[x->in[o]]);
          count[i]++;
        }
        x->want = count[i] > 0 ? sum[i] / count[i] : middle(x);
      }
      place_row(order + begin[k], begin[k + 1] - begin[k]);
      for (uint32_t j = begin[k]; !down && j < begin[k + 1]; j++)
        for (uint32_t o = 0; o < order[j]->nin; o++) {
          sum[order[j]->in[o]] += middle(order[j]);
          count[order[j]->in[o]]++;
        }
    }
  }
  double left = 0, top = MARGIN;
  for (uint32_t i = 0; i < n; i++)
    if (all[i].shown && all[i].x < left) left = all[i].x;
  for (uint32_t k = 0; k < rows; k++) {
    double high = 0;
    for (uint32_t j = begin[k]; j < begin[k + 1]; j++) {
      order[j]->y = top;
      order[j]->x += MARGIN - left;
      high = larger(high, order[j]->height);
      d->width = larger(d->width, order[j]->x + order[j]->width + MARGIN);
    }
    top += high + ROW_GAP;
  }
  d->height = rows ? top - ROW_GAP + MARGIN : MARGIN;
  return true;
}

/* ---- .svg: the text ------------------------------------------------------------------------------------------------------------- */

static void put(text_buf *t, const char *name, double x) {
  text_addf(t, " %s=\"", name);
  text_decimal(t, x, 'f', 1);
  text_adds(t, "\"");
}

static void put_words(text_buf *t, double x, double y, const char *s, const char *color) {
  text_adds(t, "<text");
  put(t, "x", x);
  put(t, "y", y);
  text_addf(t, " fill=\"%s\">", color);
  for (; *s; s++) {
    const char *as = *s == '&' ? "&amp;" : *s == '<' ? "&lt;" : *s == '>' ? "&gt;" : NULL;
    if (as)
      text_adds(t, as);
    else
      text_add(t, s, 1);
  }
  text_adds(t, "</text>\n");
}

static void put_edge(text_buf *t, const drawn_node *from, const drawn_node *to, double x, double y) {
  double x0 = x + middle(from), y0 = y + from->y + from->height, x1 = x + middle(to), y1 = y + to->y;
  const double at[] = {x0, y0, x0, y0 + ROW_GAP, x1, y1 - ROW_GAP, x1, y1};
  text_adds(t, "<path d=\"M");
  for (int i = 0; i < 8; i++) {
    text_adds(t, i == 2 ? " C" : i ? " " : "");
    text_decimal(t, at[i], 'f', 1);
  }
  text_adds(t, "\"/>\n");
}

/* The drawing with its upper left corner at (x, y). */
static void put_drawing(text_buf *t, const drawing *d, double x, double y) {
  text_adds(t, "<g fill=\"none\" stroke=\"#8a8a8a\">\n");
  for (uint32_t i = 0; i < d->n; i++)
    for (uint32_t k = 0; d->nodes[i].shown && k < d->nodes[i].nin; k++)
      put_edge(t, &d->nodes[d->nodes[i].in[k]], &d->nodes[i], x, y);
  text_adds(t, "</g>\n");
  for (uint32_t i = 0; i < d->n && !t->failed; i++) {
    const drawn_node *n = &d->nodes[i];
    if (!n->shown) continue;
    double left = x + n->x, top = y + n->y;
    text_adds(t, "<rect");
    put(t, "x", left);
    put(t, "y", top);
    put(t, "width", n->width);
    put(t, "height", n->height);
    text_addf(t, " rx=\"4\" fill=\"%s\" stroke=\"#444\" stroke-width=\"%s\"%s/>\n",
              n->parts[0] ? "#f4f4f4"
              : n->call   ? "#e3eefb"
              : n->nin    ? "#fff"
                          : "#fdf3d8",
              n->output ? "2.5" : "1", n->host ? " stroke-dasharray=\"4 2\"" : "");
    put_words(t, left + MARGIN, top + LINE, n->label, "#111");
    put_words(t, left + MARGIN, top + 2 * LINE, n->about, "#666");
    if (n->call) put_words(t, left + n->width - wide(n->call) + MARGIN, top + 2 * LINE, n->call, "#2a5ca8");
    double inner = left + MARGIN;
    for (int k = 0; k < 2 && n->parts[k]; k++) {
      const drawing *p = n->parts[k];
      put_words(t, inner + MARGIN, top + 3 * LINE + MARGIN, p->title, "#2a5ca8");
      put_drawing(t, p, inner, top + 3 * LINE + MARGIN);
      inner += larger(p->width, wide(p->title)) + MARGIN;
    }
  }
}

bool picture_svg(qn_vm *vm, qn_value v, bytes *out) {
  reading r = {.vm = vm};
  drawing *d = read_picture(&r, v, "a figure (of plot, hist or show), a graph, or what explain gives, for .svg");
  text_buf t = {.vm = vm};
  if (d && lay_out(&r, d)) {
    text_adds(&t, "<svg xmlns=\"http://www.w3.org/2000/svg\"");
    put(&t, "width", d->width);
    put(&t, "height", d->height);
    text_adds(&t,
              " font-family=\"monospace\" font-size=\"11.5\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
    put_drawing(&t, d, 0, 0);
    text_adds(&t, "</svg>\n");
  } else {
    d = NULL;
  }
  bool good = d && text_good(&t) && bytes_add(vm, out, t.text, t.len);
  text_free(&t);
  arena_free(&r.arena);
  return good;
}
