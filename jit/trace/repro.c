/* Reproductions: what --jit verify finds, and a graph that has no plan, as a text that stands alone; `quern repro FILE` runs it again.
 *
 *   quern repro 1
 *   what "compiled and eager results of f differ at leaf 1 of the result"
 *   device 0
 *   set "jit.regions=1"          each tunable that is not as by default
 *   source 2 "f.qn" 120          a text that places of the graph lie in, and its bytes; of the library's texts none are kept
 *   ...
 *   graph 340                    the graph as recorded, in so many bytes
 *   ...
 *   inputs 44                    a graph whose outputs are constants: the inputs. Not there if the graph has no plan
 *   ...
 *
 * The inputs are constants since the text of these is exact. What such a text holds is not trusted, as little as that of any file: both graphs go
 * through the parser and the verifier, and lose their proofs.
 */
#include "jit/trace/repro.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/trace/graphs.h"
#include "jit/trace/nodes.h"
#include "jit/trace/rec.h"
#include "jit/trace/report.h"
#include "jit/trace/taps.h"

/* ---- writing ------------------------------------------------------------------------------------------------------------------ */

enum { SOURCES_MOST = 64 };

/* Collects the numbers of the texts that places of a graph lie in. */
static uint32_t find_sources(const graph *g, uint32_t *list, uint32_t n) {
  for (uint32_t i = 1; i < g->nsites; i++) {
    uint32_t source = g->sites[i].at.source, same = 0;
    while (same < n && list[same] != source) same++;
    if (source && same == n && n < SOURCES_MOST) list[n++] = source;
  }
  for (uint32_t i = 1; i < g->n; i++)
    for (int k = 0; k < 2 && graph_kind_has_regions(g->nodes[i].kind); k++)
      n = find_sources(g->nodes[i].payload.regions[k], list, n);
  return n;
}

static void add_part(text_buf *t, const char *title, const text_buf *part) {
  text_addf(t, "%s %zu\n", title, part->len);
  if (part->len) text_add(t, part->text, part->len);
  text_adds(t, "\n");
  t->failed |= part->failed;
}

/* The inputs as constants. NULL if memory is short. */
static graph *graph_of_inputs(qn_vm *vm, const call_inputs *c, uint32_t n) {
  graph *g = graph_new(NULL);
  for (uint32_t i = 0; g && i < n; i++) {
    uint32_t node = 0;
    qn_array *a = c->arrays[i] ? array_to_device(vm, c->arrays[i], 0) : NULL;
    qn_array *flat = a ? array_contiguous(vm, a) : NULL;
    if (flat) {
      graph_type type = {.dtype = flat->dtype, .rank = flat->rank};
      memcpy(type.shape, flat->shape, sizeof *flat->shape * (size_t)flat->rank);
      node = graph_const(g, type, array_data(flat), 0);
    } else if (!c->arrays[i]) {
      qn_value v = c->scalars[i];
      bool real = value_is(v, TAG_FLOAT);
      node = graph_const_scalar(g,
                                real                    ? WEAK_FLOAT
                                : value_is(v, TAG_BOOL) ? DTYPE_TEST
                                                        : WEAK_INT,
                                true, real ? v.u.f : 0, real ? 0 : v.u.i, 0);
    }
    if (flat) value_release(vm, value_obj(TAG_ARRAY, flat));
    if (a) value_release(vm, value_obj(TAG_ARRAY, a));
    if (!node || !graph_output(g, node)) {
      graph_free(g);
      return NULL;
    }
  }
  return g;
}

static void write_text(qn_vm *vm, const graph *g, const call_inputs *c, int device, const char *what, text_buf *t) {
  text_adds(t, "quern repro 1\nwhat ");
  text_quoted(t, what, strlen(what));
  text_addf(t, "\ndevice %d\n", device);
  for (int i = 0; i < TUNABLE_COUNT; i++)
    if (vm->tune[i] != tunable_rows[i].def)
      text_addf(t, "set \"%s=%lld\"\n", tunable_rows[i].name, (long long)vm->tune[i]);
  uint32_t sources[SOURCES_MOST], n = find_sources(g, sources, 0);
  for (uint32_t i = 0; i < n; i++) {
    const source_text *s = source_get(vm, sources[i]);
    if (!s) continue;
    text_addf(t, "source %u ", sources[i]);
    text_quoted(t, s->name, strlen(s->name));
    text_addf(t, " %zu\n", s->library ? (size_t)0 : s->len);
    if (!s->library) text_add(t, s->text, s->len);
    text_adds(t, "\n");
  }
  text_buf part TEXT_OWNED = {0};
  graph_print(g, &part);
  add_part(t, "graph", &part);
  graph *inputs = c ? graph_of_inputs(vm, c, g->ninputs) : NULL;
  t->failed |= c && !inputs;
  if (!inputs) return;
  part.len = 0;
  graph_print(inputs, &part);
  graph_free(inputs);
  add_part(t, "inputs", &part);
}

void repro_write(qn_vm *vm, const graph *g, const call_inputs *c, int device, const char *what, char *name,
                 size_t size) {
  name[0] = 0;
  if (!vm->hooks.repro || !g) return;
  bool pending = error_pending(vm);
  text_buf t TEXT_OWNED = {0};
  write_text(vm, g, c, device, what, &t);
  if (t.failed || !vm->hooks.repro(vm, t.text, t.len, name, size)) name[0] = 0;
  if (!pending) error_clear(vm);
}

void repro_of_call(qn_vm *vm, const specialization *e, const call_inputs *c) {
  char name[200];
  const char *what = vm->error && vm->error->message ? vm->error->message->text : "";
  repro_write(vm, e->graph, c, e->device, what, name, sizeof name);
  if (name[0]) raise_note(vm, SPAN_NONE, "what is needed to see it again is in %s: quern repro %s", name, name);
}

/* ---- reading ------------------------------------------------------------------------------------------------------------------ */

typedef struct repro {
  qn_vm *vm;
  const char *p, *end;
  char what[400];
  int device;
  uint32_t from[SOURCES_MOST], to[SOURCES_MOST], nsources; /* numbers of texts, there and here */
  graph *g, *inputs;                                       /* owned, or NULL */
} repro;

static bool damaged(const repro *r, const char *why) {
  return error_pending(r->vm) ? false
                              : raise_false(r->vm, E_argument, "this is no reproduction that can be run: %s", why);
}

/* Is this the next word? Then it is passed, with one blank behind it. */
static bool word(repro *r, const char *text) {
  size_t n = strlen(text);
  if ((size_t)(r->end - r->p) <= n || memcmp(r->p, text, n) != 0 || r->p[n] != ' ') return false;
  r->p += n + 1;
  return true;
}

/* Passes a number and the character behind it. */
static bool number(repro *r, char behind, size_t *out) {
  const char *from = r->p;
  *out = 0;
  for (; r->p < r->end && *r->p >= '0' && *r->p <= '9' && r->p - from < 10; r->p++)
    *out = *out * 10 + (size_t)(*r->p - '0');
  if (r->p == from || r->p == r->end || *r->p != behind) return damaged(r, "a number is missing");
  r->p++;
  return true;
}

/* Passes a quoted text and the character behind it; it is cut to fit. Of what text_quoted escapes only quotes and backslashes are undone. */
static bool quoted(repro *r, char behind, char *out, size_t size) {
  size_t n = 0;
  if (r->p == r->end || *r->p != '"') return damaged(r, "a text is missing");
  for (r->p++; r->p < r->end && *r->p != '"'; r->p++) {
    if (*r->p == '\\' && r->p + 1 < r->end) r->p++;
    if (n + 1 < size) out[n++] = *r->p;
  }
  out[n] = 0;
  if (r->end - r->p < 2 || r->p[1] != behind) return damaged(r, "a text has no end");
  r->p += 2;
  return true;
}

/* Passes a part of n bytes and the line end behind it. */
static bool part(repro *r, size_t n, const char **text) {
  *text = r->p;
  if ((size_t)(r->end - r->p) <= n || r->p[n] != '\n') return damaged(r, "it is not complete");
  r->p += n + 1;
  return true;
}

/* Makes a setting, "jit.hot=1", unless the tunable has been set already. */
static bool set_tunable(qn_vm *vm, const char *set) {
  for (int i = 0; i < TUNABLE_COUNT; i++) {
    size_t n = strlen(tunable_rows[i].name);
    if (strncmp(set, tunable_rows[i].name, n) == 0 && set[n] == '=' && vm->tune[i] != tunable_rows[i].def) return true;
  }
  return tunable_set_list(vm, set);
}

static bool read_source(repro *r) {
  size_t number_there, len;
  char name[200];
  const char *text;
  if (!number(r, ' ', &number_there) || !quoted(r, ' ', name, sizeof name) || !number(r, '\n', &len) ||
      !part(r, len, &text))
    return false;
  uint32_t here = len ? source_add(r->vm, name, text, len) : source_find(r->vm, name);
  if (len && !here) return false;
  if (r->nsources == SOURCES_MOST) return true;
  r->from[r->nsources] = (uint32_t)number_there;
  r->to[r->nsources++] = here;
  return true;
}

/* The graph's places, which have the numbers of other texts, get those of the texts here. */
static void move_sites(const repro *r, graph *g) {
  for (uint32_t i = 1; i < g->nsites; i++) {
    span *at = &g->sites[i].at;
    uint32_t k = 0;
    while (k < r->nsources && r->from[k] != at->source) k++;
    *at = k < r->nsources ? (span){r->to[k], at->start, at->end} : SPAN_NONE;
    const source_text *s = source_get(r->vm, at->source);
    if (s && at->end > s->len) *at = SPAN_NONE;
  }
  for (uint32_t i = 1; i < g->n; i++)
    for (int k = 0; k < 2 && graph_kind_has_regions(g->nodes[i].kind); k++)
      move_sites(r, g->nodes[i].payload.regions[k]);
}

static bool read_graph(repro *r, graph **out) {
  size_t len;
  const char *text;
  if (!number(r, '\n', &len) || !part(r, len, &text)) return false;
  if (*out) return damaged(r, "it has two graphs");
  char *copy = malloc(len + 1), why[256] = "out of memory";
  if (copy) memcpy(copy, text, len), copy[len] = 0;
  graph *g = copy && !memchr(copy, 0, len) ? graph_parse(copy, why, sizeof why) : NULL;
  free(copy);
  if (g && !graph_unprove(g)) {
    graph_free(g);
    g = NULL;
  }
  if (!g) return damaged(r, why);
  *out = g;
  return true;
}

/* Reads all of it, and makes the settings. False with an error raised. */
static bool read_repro(repro *r) {
  char set[200];
  size_t n;
  const char *first = r->p;
  if (!word(r, "quern") || !word(r, "repro") || !number(r, '\n', &n) || n != 1)
    return error_clear(r->vm), r->p = first, damaged(r, "it does not begin with \"quern repro 1\"");
  while (r->p < r->end) {
    if (*r->p == '\n')
      r->p++;
    else if (word(r, "what")) {
      if (!quoted(r, '\n', r->what, sizeof r->what)) return false;
    } else if (word(r, "device")) {
      if (!number(r, '\n', &n)) return false;
      r->device = (int)n;
    } else if (word(r, "set")) {
      if (!quoted(r, '\n', set, sizeof set) || !set_tunable(r->vm, set)) return false;
    } else if (word(r, "source")) {
      if (!read_source(r)) return false;
    } else if (word(r, "graph")) {
      if (!read_graph(r, &r->g)) return false;
      move_sites(r, r->g);
    } else if (word(r, "inputs")) {
      if (!read_graph(r, &r->inputs)) return false;
    } else {
      return damaged(r, "there is a line of an unknown kind");
    }
  }
  return r->g || damaged(r, "it has no graph");
}

/* ---- running ------------------------------------------------------------------------------------------------------------------ */

/* Fills in the inputs, which are constants of the other graph; arrays become owned by `held`. False with an error raised. */
static bool fill_inputs(repro *r, call_inputs *c, qn_value *held) {
  for (uint32_t i = 0; i < r->g->ninputs; i++) {
    const graph_type *want = &r->g->nodes[r->g->inputs[i]].type;
    const graph_node *n = i < r->inputs->noutputs ? &r->inputs->nodes[r->inputs->outputs[i]] : NULL;
    bool fits = n && n->kind == NODE_CONST && n->type.dtype == want->dtype && n->type.rank == want->rank &&
                n->type.weak == want->weak;
    for (int k = 0; fits && k < want->rank; k++) fits = want->shape[k] < 0 || want->shape[k] == n->type.shape[k];
    if (!fits) return damaged(r, "an input is not as the graph needs it");
    held[i] = const_value(r->vm, n, r->device);
    if (value_is_error(held[i])) return false;
    c->arrays[i] = value_is(held[i], TAG_ARRAY) ? value_array(held[i]) : NULL;
    c->scalars[i] = c->arrays[i] ? value_nil() : held[i];
  }
  return true;
}

/* Appends the pending error, which is cleared: "E303 index 7 is out of bounds (f.qn:3)". */
static void add_error(qn_vm *vm, text_buf *out) {
  const qn_error_object *e = vm->error;
  if (!e) {
    text_adds(out, "it cannot be run");
    return;
  }
  char id[16];
  int line;
  error_id_text(e->id, id);
  const char *file = place_line(vm, e->at, &line);
  text_addf(out, "%s %s (%s:%d)", id, e->message ? e->message->text : "", file, line);
  error_clear(vm);
}

/* Runs the graph both ways and compares. True: they agree. */
static bool compare(repro *r, call_inputs *c, const qn_value *held, text_buf *out) {
  qn_vm *vm = r->vm;
  const graph *g = r->g;
  size_t bytes = (g->n + (size_t)g->noutputs + 1) * sizeof(qn_value);
  qn_value *vals = mem_zalloc(vm, bytes), *outs = vals ? vals + g->n : NULL;
  graph *copy = vals ? graph_copy(g) : NULL;
  if (!copy) {
    if (vals) mem_free(vm, vals, bytes);
    text_adds(out, "memory is short\n");
    error_clear(vm);
    return false;
  }
  for (uint32_t i = 0; i < g->n + g->noutputs; i++) vals[i] = value_unset();
  text_buf eager TEXT_OWNED = {0}, compiled TEXT_OWNED = {0};
  if (nodes_run(vm, g, held, r->device, NULL, vals) < g->n) add_error(vm, &eager);
  bool ran = graph_run_planned(vm, copy, c, call_weak(c, g->ninputs), outs);
  if (!ran) add_error(vm, &compiled);
  text_add(&eager, "", 1);
  text_add(&compiled, "", 1);
  bool same = !eager.failed && !compiled.failed;
  if (same && (eager.text[0] || compiled.text[0])) {
    same = strcmp(eager.text, compiled.text) == 0;
    text_addf(out, "eager: %s\ncompiled: %s\n", eager.text[0] ? eager.text : "no error",
              compiled.text[0] ? compiled.text : "no error");
  } else {
    for (uint32_t k = 0; k < g->noutputs && same; k++) {
      same = same_leaf(vm, outs[k], vals[g->outputs[k]]);
      if (!same) text_addf(out, "output %u differs\n", k + 1);
    }
    char node[200] = "";
    specialization like = {
        .graph = (graph *)(uintptr_t)g, .device = (uint8_t)r->device, .pattern = {.ninputs = g->ninputs}};
    if (!same && first_difference(vm, &like, c, node, sizeof node))
      text_addf(out, "the first node that differs is %s\n", node);
  }
  for (uint32_t k = 0; ran && k < g->noutputs; k++) value_release(vm, outs[k]);
  for (uint32_t i = 0; i < g->n; i++) value_release(vm, vals[i]);
  mem_free(vm, vals, bytes);
  error_clear(vm);
  return same;
}

/* Makes the plan of a graph that had none. True: it has one now. */
static bool replan(repro *r, text_buf *out) {
  char why[256] = "";
  graph *simple = graph_simplify(r->g, NULL);
  plan *p = simple ? plan_make(simple, r->device ? TARGET_GPU : TARGET_CPU, r->vm->tune, NULL, why, sizeof why) : NULL;
  if (!p) text_addf(out, "it has no plan: %s\n", why[0] ? why : "memory is short");
  plan_free(p);
  return p != NULL;
}

bool jit_repro_run(qn_vm *vm, const char *text, size_t len, bool *agrees, text_buf *out) {
  repro r = {.vm = vm, .p = text, .end = text + len};
  bool ok = read_repro(&r);
  if (ok) text_addf(out, "then: %s\n", r.what);
  if (ok && !r.inputs) {
    *agrees = replan(&r, out);
    if (*agrees) text_adds(out, "now: the graph has a plan\n");
  } else if (ok) {
    uint32_t n = r.g->ninputs;
    call_inputs c = {.cap = 0};
    qn_value *held = mem_zalloc(vm, (n + (size_t)1) * sizeof *held);
    ok = held && call_inputs_room(vm, &c, n);
    for (uint32_t i = 0; held && i < n; i++) held[i] = value_unset();
    ok = ok && fill_inputs(&r, &c, held);
    if (ok) {
      *agrees = compare(&r, &c, held, out);
      text_addf(out, "now: compiled and eager results %s\n", *agrees ? "agree" : "differ");
    }
    for (uint32_t i = 0; held && i < n; i++) value_release(vm, held[i]);
    if (held) mem_free(vm, held, (n + (size_t)1) * sizeof *held);
    call_inputs_free(vm, &c);
  }
  if (r.g) graph_free(r.g);
  if (r.inputs) graph_free(r.inputs);
  return ok;
}
