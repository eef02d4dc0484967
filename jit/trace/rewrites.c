/* pattern(find, replace): rewriting of recorded graphs by examples.
 *
 * Both are functions of the program with the same parameters, which give one array. When a pattern is registered, `find` is recorded for arrays of
 * some dtypes and ranks, or for those of the samples that came with it. The ops of such a graph, without their types, are a sketch: where a
 * recorded call has the same ops, the parameters stand for certain nodes of it. Then `find` is recorded once more (hollow: there is no data) for
 * arrays of exactly their types and sizes, and this graph must be the same in all, constants and attributes included. `replace` is
 * recorded for the same arrays, and must give the same dtype and shape; if it does not, nothing is replaced, and a note says why.
 *
 * What is found is replaced only if nobody else reads the nodes that go. The search goes from the graph's end to its beginning, so that what
 * contains something else that is found wins; at one node the pattern with more ops wins, and of two alike the one that was registered first. A
 * replacement is not searched again, so it all ends.
 *
 * The graph that is recorded for a pattern begins with the sizes of the graph that is searched, so that sizes have the same numbers in both.
 * In regions, whose sizes may be numbers that no guard can ask for, only what has plain sizes is looked for.
 *
 * Gradients: before a function that is recorded is differentiated, what its result is made of is rewritten, too (rewrites_append). So the gradient
 * is that of the replacement.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "jit/graph/match.h"
#include "jit/run/device.h"
#include "jit/trace/gradients.h"
#include "jit/trace/nodes.h"
#include "jit/trace/report.h"
#include "jit/trace/rewrites.h"
#include "jit/trace/specialization.h"

enum { RULE_PARAMS = 12, RULE_SKETCHES = 16, NUMBERS_TRIED = 3 };

/* A pattern. */
struct rewrite_rule {
  rewrite_rule *next;
  qn_value name, find, replace, check; /* owned; check may be nil */
  bool verify;
  uint32_t nparams, ops; /* ops: of the largest sketch */
  uint32_t nsketches;
  struct sketch {
    graph *g; /* owned; its inputs are the parameters */
    uint32_t root;
    uint64_t hash;
  } sketches[RULE_SKETCHES];
};

static void rule_free(qn_vm *vm, rewrite_rule *x) {
  const qn_value held[] = {x->name, x->find, x->replace, x->check};
  for (int i = 0; i < 4; i++) value_release(vm, held[i]);
  for (uint32_t i = 0; i < x->nsketches; i++) graph_free(x->sketches[i].g);
  mem_free(vm, x, sizeof *x);
}

static void rule_drop(qn_vm *vm, void *what) { rule_free(vm, what); }

void rewrites_close(qn_vm *vm) {
  while (jit_of(vm)->rules) {
    rewrite_rule *x = jit_of(vm)->rules;
    jit_of(vm)->rules = x->next;
    rule_free(vm, x);
  }
}

/* While functions of patterns run the list of patterns stays as it is. */
static void applying_drop(qn_vm *vm, void *what) {
  (void)what;
  jit_of(vm)->applying--;
}
static void applying_begin(qn_vm *vm, vm_owned *held) {
  jit_of(vm)->applying++;
  vm_own(vm, held, applying_drop, NULL);
}
static void applying_end(qn_vm *vm, const vm_owned *held) {
  vm_disown(vm, held);
  jit_of(vm)->applying--;
}

/* ---- a pattern's functions, recorded ---------------------------------------------------------------------------------------------- */

/* Both functions recorded for certain types of arguments. */
typedef struct instance {
  struct instance *next;
  const rewrite_rule *rule;
  const graph *of; /* where it was looked for; its sizes and places come first in `g` */
  graph_type types[RULE_PARAMS];
  graph *g;               /* owned; NULL: `find` cannot be recorded for these */
  uint32_t find, replace; /* their results; replace is 0 if it does not fit, and `why` says why */
  bool wrong;             /* `why` is something that the program should hear of */
  char why[240];
} instance;

static void instance_drop(qn_vm *vm, void *what) {
  instance *x = what;
  if (x->g) graph_free(x->g);
  mem_free(vm, x, sizeof *x);
}

/* Takes the pending error and writes its message, after `what`. False if it must stay pending: it says nothing about the pattern. */
static bool error_told(qn_vm *vm, char *out, size_t size, const char *what) {
  if (!error_pending(vm)) return true;
  if (!error_catchable(vm) || vm->error->id == E_memory) return false;
  snprintf(out, size, "%s: %s", what, vm->error->message ? vm->error->message->text : "an error");
  error_clear(vm);
  return true;
}

typedef struct arguments {
  qn_value items[RULE_PARAMS];
  uint32_t n;
} arguments;

static void arguments_drop(qn_vm *vm, void *what) {
  arguments *a = what;
  for (uint32_t i = 0; i < a->n; i++) value_release(vm, a->items[i]);
  a->n = 0;
}

/* The node of what a function gives for these arguments; 0 with the reason in `why`, or with an error pending that nothing catches. */
static uint32_t node_of_call(struct recording *r, qn_value fn, const arguments *a, const char *what, char *why,
                             size_t size) {
  qn_vm *vm = r->vm;
  qn_value out = vm->hooks.call(vm, fn, a->items, (int)a->n, value_nil());
  uint32_t node = 0;
  if (!value_is_error(out) && !value_is(out, TAG_ARRAY)) {
    snprintf(why, size, "%s gives %s, not an array", what, kind_said(out).text);
  } else if (!value_is_error(out)) {
    node = rec_traced(r, out);
    if (!node && !error_pending(vm))
      snprintf(why, size, "%s gives an array that does not depend on its arguments", what);
  }
  value_release(vm, out);
  if (!error_told(vm, why, size, what)) node = 0;
  return node;
}

/* Asks the pattern's check. False with the reason in `why`, which is empty if it simply says no. */
static bool check_holds(qn_vm *vm, const rewrite_rule *rule, const arguments *a, char *why, size_t size) {
  if (value_is(rule->check, TAG_NIL)) return true;
  qn_value out = vm->hooks.call(vm, rule->check, a->items, (int)a->n, value_nil());
  bool yes = value_is(out, TAG_BOOL) && out.u.i;
  if (!value_is_error(out) && !value_is(out, TAG_BOOL))
    snprintf(why, size, "check gives %s, not true or false", kind_said(out).text);
  value_release(vm, out);
  return error_told(vm, why, size, "check") && yes;
}

static void mark_node(void *needed, uint32_t node) { ((bool *)needed)[node] = true; }

/* Marks what a node of an instance is made of. False, with the reason in `why`, if there is something that cannot be in a pattern. */
static bool mark_made_of(const graph *g, uint32_t root, uint32_t nparams, bool *needed, const char *what, char *why,
                         size_t size) {
  memset(needed, 0, g->n * sizeof *needed);
  needed[root] = true;
  for (uint32_t i = root; i > 0; i--) {
    const graph_node *n = &g->nodes[i];
    if (!needed[i]) continue;
    const char *odd = n->kind == NODE_INPUT && n->payload.input >= nparams         ? "an array or a number from outside"
                      : graph_is_run(n) && n->kind != NODE_OP                      ? "a branch or a loop on data"
                      : n->kind == NODE_OP && op_rows[n->op].klass == CLASS_RANDOM ? "random numbers"
                      : n->kind == NODE_OP && op_rows[n->op].shape_rule == SH_data
                          ? "an array whose shape depends on data"
                          : NULL;
    if (odd) {
      snprintf(why, size, "%s uses %s", what, odd);
      return false;
    }
    for (int k = 0; k < n->nin; k++) needed[n->in[k]] = true;
    graph_each_size_node(g, i, mark_node, needed);
  }
  return true;
}

/* An array or number of a type, with elements that are neither all alike nor large, for comparing. Owned, or the error value. */
static qn_value sample_of(qn_vm *vm, const dim_table *dims, const graph_type *t, uint64_t *random) {
  qn_dtype d = (qn_dtype)t->dtype;
  int64_t shape[ARRAY_MAX_RANK];
  for (int k = 0; k < t->rank; k++) shape[k] = dim_hint(dims, t->shape[k]);
  qn_array *a = t->weak ? NULL : array_new(vm, d, t->rank, shape);
  if (!t->weak && !a) return value_error();
  for (int64_t i = 0; i < (a ? a->size : 1); i++) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    double x = (double)(*random >> 11) / (double)(UINT64_C(1) << 53);
    qn_value v = dtype_scalar(d, 4 * x - 2, (int64_t)(4 * x));
    if (!a) return v;
    dtype_store(d, array_data(a) + (size_t)i * dtype_size(d), v);
  }
  if (!vm->device) return value_obj(TAG_ARRAY, a);
  qn_array *there = array_to_device(vm, a, vm->device);
  value_release(vm, value_obj(TAG_ARRAY, a));
  return there ? value_obj(TAG_ARRAY, there) : value_error();
}

/* How far apart two results may be, relative to 1 or to the larger one. */
static double tolerance(qn_dtype d) {
  return d == QN_f64 ? 1e-9 : d == QN_f32 ? 1e-4 : d == QN_f16 ? 1e-2 : d == QN_bf16 ? 5e-2 : 0;
}

/* Are two arrays the same but for rounding? If not, `why` says where. Takes them over. */
static bool close_enough(qn_vm *vm, qn_value a, qn_value b, char *why, size_t size) {
  qn_array *x = array_to_device(vm, value_array(a), 0), *y = x ? array_to_device(vm, value_array(b), 0) : NULL;
  value_release(vm, a);
  value_release(vm, b);
  bool same = y && x->dtype == y->dtype && x->size == y->size;
  for (int64_t i = 0; same && i < x->size; i++) {
    qn_value p = array_get_flat(x, i), q = array_get_flat(y, i);
    double u = value_is(p, TAG_FLOAT) ? p.u.f : (double)p.u.i, v = value_is(q, TAG_FLOAT) ? q.u.f : (double)q.u.i;
    double most = fmax(1, fmax(fabs(u), fabs(v))) * tolerance((qn_dtype)x->dtype);
    same = u == v || (u != u && v != v) || fabs(u - v) <= most;
    if (!same)
      snprintf(why, size, "find gives %g where replace gives %g, at element %lld of %s", u, v, (long long)i,
               kind_said(value_obj(TAG_ARRAY, x)).text);
  }
  if (x) value_release(vm, value_obj(TAG_ARRAY, x));
  if (y) value_release(vm, value_obj(TAG_ARRAY, y));
  return same;
}

/* Compares what the two functions give for sample arguments. False with the reason in `why`, or with an error pending that nothing
 * catches. */
static bool compare(qn_vm *vm, const rewrite_rule *rule, const dim_table *dims, const graph_type *types, char *why,
                    size_t size) {
  struct recording *r = rec_begin(vm, false); /* so that nothing of it gets into one that may be in progress */
  if (!r) return false;
  vm_owned held[3];
  arguments a = {.n = 0}, out = {.n = 0};
  uint64_t random = 1;
  vm_own(vm, &held[0], rec_drop, r);
  vm_own(vm, &held[1], arguments_drop, &a);
  vm_own(vm, &held[2], arguments_drop, &out);
  bool ok = true;
  for (; a.n < rule->nparams && ok; a.n += ok)
    ok = !value_is_error(a.items[a.n] = sample_of(vm, dims, &types[a.n], &random));
  for (; out.n < 2 && ok; out.n += ok) {
    qn_value v = vm->hooks.call(vm, out.n ? rule->replace : rule->find, a.items, (int)a.n, value_nil());
    ok = !value_is_error(v);
    if (ok) out.items[out.n] = v;
  }
  ok = ok && rec_end(r) && value_is(out.items[0], TAG_ARRAY) && value_is(out.items[1], TAG_ARRAY);
  vm_disown(vm, &held[0]);
  if (ok) {
    out.n = 0;
    ok = close_enough(vm, out.items[0], out.items[1], why, size);
  }
  arguments_drop(vm, &out);
  arguments_drop(vm, &a);
  rec_free(r);
  (void)error_told(vm, why, size, "comparing");
  return ok && !error_pending(vm);
}

/* Records both functions for x->types. False with an error raised that nothing catches. */
static bool instance_record(qn_vm *vm, instance *x) {
  const rewrite_rule *rule = x->rule;
  random_state random = random_kept(vm);
  struct recording *r = rec_begin(vm, false);
  if (!r) return false;
  arguments a = {.n = 0};
  bool *needed = NULL;
  size_t bytes = 0;
  vm_owned held[2];
  vm_own(vm, &held[0], rec_drop, r);
  vm_own(vm, &held[1], arguments_drop, &a);
  bool ok = !x->of || graph_copy_frame(r->g, x->of);
  r->hollow = r->lenient = r->placed = true;
  r->symbolic = x->of && x->of->dims.n;
  r->grads = 1;
  uint32_t ndims = r->g->dims.n;
  for (; a.n < rule->nparams && ok; a.n += ok) {
    uint32_t node = graph_input(r->g, x->types[a.n], 0);
    ok = node && rec_room(r) && !value_is_error(a.items[a.n] = rec_value_of(r, node));
  }
  if (ok && (!x->of || check_holds(vm, rule, &a, x->why, sizeof x->why)))
    x->find = node_of_call(r, rule->find, &a, "find", x->why, sizeof x->why);
  else
    x->wrong = x->why[0] != 0;
  if (x->find) {
    x->replace = node_of_call(r, rule->replace, &a, "replace", x->why, sizeof x->why);
    for (uint32_t i = 0; i < r->regions.n && x->replace; i++)
      if (r->regions.list[i].rule) {
        snprintf(x->why, sizeof x->why, "replace uses custom_grad, whose derivative would get lost");
        x->replace = 0;
      }
    x->wrong = !x->replace;
  }
  const graph *g = r->g;
  bool late = false;
  for (uint32_t i = ndims; i < g->dims.n; i++) late |= g->dims.exprs[i].op == DIM_SYMBOL;
  if (x->find && x->replace && (late || g->failed)) {
    snprintf(x->why, sizeof x->why, "a shape depends on data");
    x->find = 0;
  }
  if (x->find) {
    bytes = g->n * sizeof *needed;
    needed = mem_alloc(vm, bytes);
    if (!needed || !mark_made_of(g, x->find, rule->nparams, needed, "find", x->why, sizeof x->why)) x->find = 0;
    for (uint32_t k = 0; k < rule->nparams && x->find; k++)
      if (!needed[g->inputs[k]]) {
        snprintf(x->why, sizeof x->why, "find does not use argument %u", (unsigned)k + 1);
        x->find = 0;
      }
    if (x->find && g->nodes[x->find].kind != NODE_OP) {
      snprintf(x->why, sizeof x->why, "find computes nothing");
      x->find = 0;
    }
    if (x->find && x->replace &&
        !mark_made_of(g, x->replace, rule->nparams, needed, "replace", x->why, sizeof x->why)) {
      x->replace = 0;
      x->wrong = true;
    }
  }
  if (x->find && x->replace && !graph_type_same(&g->nodes[x->find].type, &g->nodes[x->replace].type)) {
    text_buf t TEXT_OWNED = {.vm = vm};
    text_adds(&t, "replace gives ");
    for (int k = 0; k < 2; k++) {
      const graph_type *of = &g->nodes[k ? x->find : x->replace].type;
      int64_t shape[ARRAY_MAX_RANK];
      for (int i = 0; i < of->rank; i++) shape[i] = dim_hint(&g->dims, of->shape[i]);
      text_shape(&t, (qn_dtype)of->dtype, of->rank, shape);
      text_adds(&t, k ? "" : " where find gives ");
    }
    text_add(&t, "", 1);
    snprintf(x->why, sizeof x->why, "%s", t.failed ? "replace gives another type than find" : t.text);
    x->replace = 0;
    x->wrong = true;
  }
  if (!ok || g->failed || g->arena.failed || (x->find && !(x->g = graph_copy(g)))) {
    x->find = 0;
    if (!error_pending(vm)) raise_memory(vm);
  }
  if (needed) mem_free(vm, needed, bytes);
  vm_disown(vm, &held[0]);
  arguments_drop(vm, &a);
  rec_free(r);
  random_restore(vm, random);
  ok = error_told(vm, x->why, sizeof x->why, "find");
  if (ok && x->find && x->replace && rule->verify && !compare(vm, rule, &x->g->dims, x->types, x->why, sizeof x->why)) {
    x->replace = 0;
    x->wrong = true;
    ok = !error_pending(vm);
  }
  return ok;
}

/* ---- registering ------------------------------------------------------------------------------------------------------------------- */

/* A hash of the ops that a node is made of, and how many these are. */
static uint64_t sketch_hash(const graph *g, uint32_t root, uint32_t *ops, bool *needed) {
  uint64_t h = 0;
  char why[64];
  *ops = 0;
  if (!mark_made_of(g, root, g->ninputs, needed, "", why, sizeof why)) return 0;
  for (uint32_t i = 1, n = 0; i <= root; i++) {
    const graph_node *x = &g->nodes[i];
    if (!needed[i]) continue;
    n++;
    *ops += x->kind == NODE_OP;
    h = hash_mix(h, (uint64_t)n << 16 | (uint64_t)x->kind << 8 | x->op);
    for (int k = 0; k < x->nin; k++) {
      uint32_t at = 0; /* operands by how many needed nodes come before them */
      for (uint32_t j = 1; j < x->in[k]; j++) at += needed[j];
      h = hash_mix(h, at);
    }
  }
  return h;
}

/* Keeps an instance's graph as a sketch, if there is none like it. False with an error raised. */
static bool add_sketch(qn_vm *vm, rewrite_rule *rule, instance *x) {
  size_t bytes = x->g->n * sizeof(bool);
  bool *needed = mem_alloc(vm, bytes);
  if (!needed) return false;
  uint32_t ops;
  uint64_t h = sketch_hash(x->g, x->find, &ops, needed);
  bool known = false;
  mem_free(vm, needed, bytes);
  for (uint32_t i = 0; i < rule->nsketches; i++) known |= rule->sketches[i].hash == h;
  if (known || rule->nsketches == RULE_SKETCHES) return true;
  rule->sketches[rule->nsketches++] = (struct sketch){x->g, x->find, h};
  x->g = NULL;
  if (ops > rule->ops) rule->ops = ops;
  return true;
}

/* Tries arguments of these types. `why` gets the reason if they do not do. False with an error raised that nothing catches. */
static bool try_types(qn_vm *vm, rewrite_rule *rule, const graph_type *types, bool *fits, bool *wrong, char *why,
                      size_t size) {
  instance *x = mem_zalloc(vm, sizeof *x);
  if (!x) return false;
  x->rule = rule;
  memcpy(x->types, types, sizeof x->types);
  vm_owned held;
  vm_own(vm, &held, instance_drop, x);
  bool ok = instance_record(vm, x);
  *fits |= ok && x->find && x->replace;
  if (ok && x->find && x->replace) ok = add_sketch(vm, rule, x);
  if (ok && x->why[0] && (!why[0] || (x->wrong && !*wrong))) snprintf(why, size, "%s", x->why);
  *wrong |= x->wrong;
  vm_disown(vm, &held);
  instance_drop(vm, x);
  return ok && !error_pending(vm);
}

static void count_parameter(void *ctx, const char *name, int position) {
  (void)name;
  uint32_t *n = ctx;
  if (position != INT32_MAX && (uint32_t)position >= *n) *n = (uint32_t)position + 1;
}

/* Finds out what the pattern's functions do with arrays of some kinds. False with an error raised. */
static bool sketch_rule(qn_vm *vm, rewrite_rule *rule, qn_value samples) {
  static const uint8_t dtypes[] = {QN_f32, QN_bf16, QN_i64, QN_bool}, ranks[] = {2, 1, 3, 0, 4};
  char why[240] = "";
  bool fits = false, wrong = false; /* wrong: `why` speaks of what does not fit `find`, which can be recorded */
  graph_type types[RULE_PARAMS] = {{0}};
  if (value_is(samples, TAG_LIST)) {
    const qn_list *l = value_list(samples);
    if (l->len == 0 || l->len > RULE_PARAMS)
      return raise_false(vm, E_argument, "pattern: 1 to %d arguments are given as samples, not %u", RULE_PARAMS,
                         (unsigned)l->len);
    rule->nparams = l->len;
    for (uint32_t i = 0; i < l->len; i++)
      if (!value_graph_type(l->items[i], &types[i]))
        return raise_false(vm, E_argument, "pattern: expected arrays and numbers as args, not %s",
                           phrase_kind(l->items[i]).text);
    if (!try_types(vm, rule, types, &fits, &wrong, why, sizeof why)) return false;
  } else {
    uint32_t most = 0;
    vm->hooks.parameters(vm, rule->find, count_parameter, &most);
    if (most == 0 || most > RULE_PARAMS) most = most ? RULE_PARAMS : 1;
    /* parameters that have defaults may be no arrays */
    for (rule->nparams = most; rule->nparams && !fits; rule->nparams--)
      for (uint32_t k = 0; k < sizeof ranks; k++)
        for (uint32_t d = 0; d < sizeof dtypes; d++) {
          graph_type t = {.dtype = dtypes[d], .rank = ranks[k]};
          for (int i = 0; i < t.rank; i++) t.shape[i] = 4;
          /* numbers: a bit for each parameter that is a host number */
          uint32_t many = k || rule->nparams > NUMBERS_TRIED ? 1 : (1U << rule->nparams) - 1;
          for (uint32_t numbers = 0; numbers < many; numbers++) {
            for (uint32_t i = 0; i < rule->nparams; i++)
              types[i] =
                  numbers >> i & 1
                      ? (graph_type){.dtype = dtype_is_float((qn_dtype)t.dtype) ? WEAK_FLOAT : WEAK_INT, .weak = true}
                      : t;
            if (!try_types(vm, rule, types, &fits, &wrong, why, sizeof why)) return false;
          }
        }
    rule->nparams++;
  }
  if (fits) return true;
  return raise_false(vm, E_argument, "pattern: %s%s", why,
                     value_is(samples, TAG_LIST) ? ""
                                                 : " (tried with arrays of one dtype and shape; args: gives others)");
}

/* Takes the pattern of this name out of the list and frees it. */
static bool remove_rule(qn_vm *vm, const qn_str *name) {
  for (rewrite_rule **at = &jit_of(vm)->rules; *at; at = &(*at)->next) {
    rewrite_rule *x = *at;
    if (!str_equal(value_str(x->name), name)) continue;
    *at = x->next;
    rule_free(vm, x);
    return true;
  }
  return false;
}

/* A name that no pattern has. Owned, or the error value. */
static qn_value new_name(qn_vm *vm) {
  char text[40];
  bool taken = true;
  for (uint32_t i = 1; taken; i++) {
    snprintf(text, sizeof text, "pattern %u", (unsigned)i);
    taken = false;
    for (const rewrite_rule *x = jit_of(vm)->rules; x; x = x->next)
      taken |= strcmp(value_str(x->name)->text, text) == 0;
  }
  qn_str *s = str_new(vm, text, strlen(text));
  return s ? value_obj(TAG_STR, s) : value_error();
}

qn_value jit_pattern(qn_vm *vm, const jit_pattern_options *o) {
  if (jit_of(vm)->applying)
    return raise_error(vm, E_argument, SPAN_NONE, "pattern: patterns are being applied, so they cannot change now");
  if (!rec_effect(vm, "pattern")) return value_error();
  rewrite_rule *rule = mem_zalloc(vm, sizeof *rule);
  if (!rule) return value_error();
  rule->name = value_is(o->name, TAG_NIL) ? new_name(vm) : value_retain(o->name);
  rule->find = value_retain(o->find);
  rule->replace = value_retain(o->replace);
  rule->check = value_retain(o->check);
  rule->verify = o->verify;
  vm_owned held[2];
  vm_own(vm, &held[0], rule_drop, rule);
  applying_begin(vm, &held[1]);
  bool ok = !value_is_error(rule->name) && sketch_rule(vm, rule, o->samples);
  applying_end(vm, &held[1]);
  vm_disown(vm, &held[0]);
  if (!ok) {
    rule_free(vm, rule);
    return value_error();
  }
  (void)remove_rule(vm, value_str(rule->name));
  rewrite_rule **at = &jit_of(vm)->rules;
  while (*at && (*at)->ops >= rule->ops) at = &(*at)->next;
  rule->next = *at;
  *at = rule;
  specializations_outdated(vm);
  return value_retain(rule->name);
}

qn_value jit_unpattern(qn_vm *vm, qn_value name) {
  if (jit_of(vm)->applying)
    return raise_error(vm, E_argument, SPAN_NONE, "unpattern: patterns are being applied, so they cannot change now");
  if (!rec_effect(vm, "unpattern")) return value_error();
  if (remove_rule(vm, value_str(name))) {
    specializations_outdated(vm);
    return value_nil();
  }
  text_buf t = {.vm = vm};
  text_addf(&t, "unpattern: there is no pattern \"%s\"", value_str(name)->text);
  for (const rewrite_rule *x = jit_of(vm)->rules; x; x = x->next)
    text_addf(&t, "%s\"%s\"", x == jit_of(vm)->rules ? "; there is " : ", ", value_str(x->name)->text);
  return raise_text(vm, E_argument, SPAN_NONE, &t);
}

/* ---- searching --------------------------------------------------------------------------------------------------------------------- */

/* A place where a pattern was found. */
typedef struct found {
  uint32_t root;
  const rewrite_rule *rule;
  const instance *x;
  uint32_t operands[RULE_PARAMS];
  uint32_t site; /* where what takes its place belongs: the call around it */
} found;

/* What becomes of a node. */
enum { STAYS, GOES, REPLACED };

/* A graph, or a region of one, that is searched. */
typedef struct search {
  qn_vm *vm;
  const graph *g;
  uint32_t nodes, nsites, ndims, nfacts; /* what it had when the search began */
  bool region;
  rewrite_notes *notes;
  const region_list *regions; /* NULL: there are none */
  uint8_t *fate;              /* by node */
  bool *live, *drop;          /* by node: something needs it; by region: what it is of has been replaced */
  /* by node: how many live operands it is, outputs of the graph included; and, in between, of those how many are in a place that was found */
  uint32_t *uses, *inside;
  found *list; /* from the end of the graph to its beginning */
  uint32_t n, cap;
  graph **anew; /* by node, two each: regions that were rewritten, or NULL; owned */
  instance *instances;
  /* of the search that goes on */
  const rewrite_rule *rule;
  const struct sketch *sketch;
  uint32_t root;
  uint32_t *map, *strict_map; /* each with room for `room` nodes */
  uint32_t room, strict_room;
  struct match_pair *waiting; /* two lists */
  bool failed;                /* an error is raised that nothing catches, or memory is short */
} search;

static void search_drop(qn_vm *vm, void *what) {
  search *s = what;
  uint32_t n = s->nodes;
  if (s->fate) mem_free(vm, s->fate, n);
  if (s->live) mem_free(vm, s->live, n * sizeof *s->live);
  if (s->drop) mem_free(vm, s->drop, (s->regions ? s->regions->n : 0) + (size_t)1);
  if (s->uses) mem_free(vm, s->uses, n * sizeof *s->uses);
  if (s->inside) mem_free(vm, s->inside, n * sizeof *s->inside);
  for (uint32_t i = 0; s->anew && i < 2 * n; i++)
    if (s->anew[i]) graph_free(s->anew[i]);
  if (s->anew) mem_free(vm, s->anew, 2 * n * sizeof *s->anew);
  while (s->instances) {
    instance *x = s->instances;
    s->instances = x->next;
    instance_drop(vm, x);
  }
  mem_free(vm, s->list, s->cap * sizeof *s->list);
  mem_free(vm, s->map, s->room * sizeof *s->map);
  mem_free(vm, s->strict_map, s->strict_room * sizeof *s->strict_map);
  if (s->waiting) mem_free(vm, s->waiting, 2 * MATCH_WAITING * sizeof *s->waiting);
}

/* Begins a search. False if memory is short. */
static bool search_begin(search *s) {
  uint32_t n = s->nodes = s->g->n;
  s->nsites = s->g->nsites;
  s->ndims = s->g->dims.n;
  s->nfacts = s->g->dims.nfacts;
  s->fate = mem_zalloc(s->vm, n);
  s->live = s->fate ? mem_zalloc(s->vm, n * sizeof *s->live) : NULL;
  s->drop = s->live ? mem_zalloc(s->vm, (s->regions ? s->regions->n : 0) + (size_t)1) : NULL;
  s->uses = s->drop ? mem_zalloc(s->vm, n * sizeof *s->uses) : NULL;
  s->inside = s->uses ? mem_zalloc(s->vm, n * sizeof *s->inside) : NULL;
  s->anew = s->inside ? mem_zalloc(s->vm, 2 * n * sizeof *s->anew) : NULL;
  s->waiting = s->anew ? mem_alloc(s->vm, 2 * MATCH_WAITING * sizeof *s->waiting) : NULL;
  return s->waiting != NULL;
}

/* The site of a node. Those of a region that a gradient has made may be of the graph around it, whose places the region does not have: 0. */
static uint32_t site_of(const graph *g, uint32_t node) {
  uint32_t site = g->nodes[node].site;
  return site < g->nsites ? site : 0;
}

/* The site around a site; 0: none. */
static uint32_t site_around(const graph *g, uint32_t site) {
  uint32_t up = g->sites[site].parent;
  return up < site ? up : 0;
}

/* The place of a node; of one that is a part of a call which stays visible, that of the call. */
static span place_of(const graph *g, uint32_t node) {
  uint32_t at = site_of(g, node);
  for (uint32_t up = at; up; up = site_around(g, up))
    if (g->sites[up].whole && site_around(g, up)) at = site_around(g, up);
  return at ? g->sites[at].at : SPAN_NONE;
}

/* Notes what has become of a pattern at a node: once for each place, or, where it was not applied, for each reason. */
static void note(search *s, const rewrite_rule *rule, uint32_t root, bool applied, const char *why) {
  rewrite_notes *l = s->notes;
  span at = place_of(s->g, root);
  l->applied += applied;
  for (uint32_t i = 0; i < l->n; i++) {
    const rewrite_note *x = &l->list[i];
    bool same = x->applied == applied && strcmp(x->name, value_str(rule->name)->text) == 0;
    if (same && (applied ? x->at.source == at.source && x->at.start == at.start : strcmp(x->why, why) == 0)) return;
  }
  if (!applied && vm_logs(s->vm, LOG_breaks)) {
    int line;
    const char *file = place_line(s->vm, at, &line);
    vm_logf(s->vm, LOG_breaks, "pattern %s is not applied: %s (%s:%d)", value_str(rule->name)->text, why, file, line);
  }
  if (!mem_grow(s->vm, (void **)&l->list, &l->cap, l->n + (size_t)1, sizeof *l->list)) {
    s->failed = true;
    return;
  }
  rewrite_note *x = &l->list[l->n++];
  *x = (rewrite_note){.at = at, .applied = applied};
  snprintf(x->name, sizeof x->name, "%s", value_str(rule->name)->text);
  snprintf(x->why, sizeof x->why, "%s", why);
}

static void use_size(void *ctx, uint32_t node) {
  search *s = ctx;
  s->live[node] = true;
  s->uses[node]++;
}

/* Finds out which nodes something needs, and counts uses. `root`: only what this node is made of, from `from` on; 0: all of the graph. */
static void count_uses(search *s, uint32_t from, uint32_t root) {
  const graph *g = s->g;
  for (uint32_t i = 0; i < g->noutputs && !root; i++) s->live[g->outputs[i]] = true, s->uses[g->outputs[i]]++;
  for (uint32_t k = 0; s->regions && k < s->regions->n && !root; k++) {
    const graph_region *x = &s->regions->list[k];
    for (uint32_t i = 0; i < x->nargs + x->nouts; i++) s->live[x->args[i]] = true;
  }
  if (root) s->live[root] = true;
  for (uint32_t i = g->n - 1; i > 0 && i >= from; i--) {
    const graph_node *n = &g->nodes[i];
    if (!root && (n->kind == NODE_TAP || (n->kind == NODE_OP && graph_fallible(g, i)) ||
                  (graph_kind_has_regions(n->kind) && graph_fallible(g, i))))
      s->live[i] = true;
    if (!s->live[i]) continue;
    for (int k = 0; k < n->nin; k++) s->live[n->in[k]] = true, s->uses[n->in[k]]++;
    graph_each_size_node(g, i, use_size, s);
  }
}

/* Are all sizes such that a pattern's functions can be recorded with them? */
static bool sizes_do(const search *s, const graph_type *t) {
  for (int k = 0; k < t->rank; k++)
    if (t->shape[k] < 0 && (s->region || dim_is_late(&s->g->dims, t->shape[k]))) return false;
  return true;
}

/* The instance of the rule for these nodes as arguments; NULL if their sizes cannot be told, or s->failed. */
static const instance *instance_for(search *s, const uint32_t *operands) {
  const rewrite_rule *rule = s->rule;
  graph_type types[RULE_PARAMS] = {{0}};
  for (uint32_t k = 0; k < rule->nparams; k++) {
    types[k] = s->g->nodes[operands[k]].type;
    if (!sizes_do(s, &types[k])) return NULL;
  }
  for (const instance *x = s->instances; x; x = x->next) {
    bool same = x->rule == rule;
    for (uint32_t k = 0; k < rule->nparams && same; k++) same = graph_type_same(&x->types[k], &types[k]);
    if (same) return x;
  }
  instance *x = mem_zalloc(s->vm, sizeof *x);
  if (!x) {
    s->failed = true;
    return NULL;
  }
  x->rule = rule;
  x->of = s->g;
  memcpy(x->types, types, sizeof types);
  x->next = s->instances;
  s->instances = x;
  s->failed |= !instance_record(s->vm, x);
  bool facts = x->g && x->g->dims.nfacts != s->nfacts;
  if (facts && s->region) { /* no guard can ask for them */
    graph_free(x->g);
    x->g = NULL;
    x->find = 0;
  }
  return s->failed ? NULL : x;
}

static bool accept_any(void *ctx, const uint32_t *map) {
  (void)ctx;
  (void)map;
  return true;
}

/* Is nothing of what was found read from outside but the root, and does it not lie across the border of a part that has a derivative of its own?
 * Then its nodes are marked. */
static bool take_nodes(search *s, const instance *x, const uint32_t *map) {
  const graph *g = s->g;
  bool ok = true;
  /* s->inside: 1 + the uses that are inside of what was found, of its nodes */
  for (uint32_t f = 1; f < x->g->n && ok; f++) {
    uint32_t i = map[f];
    if (!i || x->g->nodes[f].kind != NODE_OP) continue;
    ok = s->fate[i] == STAYS && s->live[i];
    s->inside[i] = 1;
  }
  for (uint32_t i = 1; i <= s->root && ok; i++) {
    if (!s->inside[i]) continue;
    for (int k = 0; k < g->nodes[i].nin; k++)
      if (s->inside[g->nodes[i].in[k]]) s->inside[g->nodes[i].in[k]]++;
  }
  for (uint32_t i = 1; i < s->root && ok; i++)
    if (s->inside[i]) ok = s->inside[i] - 1 == s->uses[i];
  for (int pass = 0; pass < 2 && ok && s->regions; pass++)
    for (uint32_t k = 0; k < s->regions->n && ok; k++) {
      const graph_region *r = &s->regions->list[k];
      bool any = false, all = true, beyond = false;
      for (uint32_t i = 1; i <= s->root; i++) any |= s->inside[i] && i >= r->first && i < r->end;
      if (!any) continue;
      for (uint32_t i = r->first; i < r->end; i++) all &= !s->live[i] || s->inside[i] || !graph_is_run(&g->nodes[i]);
      for (uint32_t i = 1; i <= s->root; i++) beyond |= s->inside[i] && (i < r->first || i >= r->end);
      if (!all)
        for (uint32_t i = 0; i < r->nouts; i++) beyond |= r->outs[i] != s->root && r->outs[i] && s->inside[r->outs[i]];
      if (all && pass) s->drop[k] = true;
      ok = all || !beyond;
    }
  for (uint32_t i = 1; i <= s->root; i++) {
    if (s->inside[i] && ok) s->fate[i] = i == s->root ? REPLACED : GOES;
    s->inside[i] = 0;
  }
  return ok;
}

/* The site under which what takes the place of the root belongs: that of the innermost call which is not replaced as a whole. */
static uint32_t outer_site(const search *s) {
  const graph *g = s->g;
  uint32_t at = site_of(g, s->root);
  for (uint32_t c = at; c; c = site_around(g, c)) {
    if (!g->sites[c].whole) continue;
    uint32_t call = site_around(g, c);
    bool whole = call != 0; /* all live nodes of the call are replaced */
    for (uint32_t i = 1; i < g->n && whole; i++) {
      if (!s->live[i] || s->fate[i] != STAYS || !graph_is_run(&g->nodes[i])) continue;
      for (uint32_t up = site_of(g, i); up && whole; up = site_around(g, up)) whole = up != call;
    }
    if (whole) at = call;
  }
  return at;
}

/* A sketch was found: does the pattern itself fit? */
static bool accept_sketch(void *ctx, const uint32_t *map) {
  search *s = ctx;
  const graph *sketch = s->sketch->g;
  found f = {.root = s->root, .rule = s->rule};
  for (uint32_t k = 0; k < s->rule->nparams; k++)
    if (!(f.operands[k] = map[sketch->inputs[k]])) return false;
  f.x = instance_for(s, f.operands);
  if (!f.x) return s->failed;
  if (!f.x->g || !f.x->find) {
    if (f.x->wrong) note(s, s->rule, s->root, false, f.x->why);
    return false;
  }
  const graph *g = f.x->g;
  if (!mem_grow(s->vm, (void **)&s->strict_map, &s->strict_room, g->n, sizeof *s->strict_map) ||
      !mem_grow(s->vm, (void **)&s->list, &s->cap, s->n + (size_t)1, sizeof *s->list))
    return s->failed = true;
  graph_search strict = {.find = g,
                         .root = f.x->find,
                         .in = s->g,
                         .strict = true,
                         .map = s->strict_map,
                         .accept = accept_any,
                         .waiting = s->waiting + MATCH_WAITING};
  if (!graph_search_at(&strict, s->root, f.operands)) return false;
  if (!f.x->replace) {
    note(s, s->rule, s->root, false, f.x->why);
    return false;
  }
  if (!take_nodes(s, f.x, s->strict_map)) return false;
  f.site = outer_site(s);
  s->list[s->n++] = f;
  note(s, s->rule, s->root, true, "");
  return true;
}

/* Looks for patterns with this node as their result. */
static void search_node(search *s, uint32_t i) {
  const graph_node *n = &s->g->nodes[i];
  s->root = i;
  for (s->rule = jit_of(s->vm)->rules; s->rule && !s->failed && s->fate[i] == STAYS; s->rule = s->rule->next)
    for (uint32_t k = 0; k < s->rule->nsketches && !s->failed && s->fate[i] == STAYS; k++) {
      s->sketch = &s->rule->sketches[k];
      const graph *g = s->sketch->g;
      if (g->nodes[s->sketch->root].op != n->op) continue;
      if (!mem_grow(s->vm, (void **)&s->map, &s->room, g->n, sizeof *s->map)) {
        s->failed = true;
        return;
      }
      graph_search loose = {.find = g,
                            .root = s->sketch->root,
                            .in = s->g,
                            .map = s->map,
                            .accept = accept_sketch,
                            .ctx = s,
                            .waiting = s->waiting};
      if (graph_search_at(&loose, i, NULL)) break;
    }
}

static graph *rewritten_graph(qn_vm *vm, const graph *g, bool region, region_list *regions, rewrite_notes *notes,
                              bool *failed);

/* Searches the nodes from `from` on, and the regions in them. False if nothing was found; see s->failed. */
static bool search_all(search *s, uint32_t from) {
  bool any = false;
  for (uint32_t i = s->g->n - 1; i >= from && i > 0 && !s->failed; i--) {
    const graph_node *n = &s->g->nodes[i];
    if (!s->live[i]) continue;
    if (n->kind == NODE_OP && s->fate[i] == STAYS) search_node(s, i);
    for (int k = 0; k < 2 && graph_kind_has_regions(n->kind) && !s->failed; k++) {
      s->anew[2 * i + (uint32_t)k] = rewritten_graph(s->vm, n->payload.regions[k], true, NULL, s->notes, &s->failed);
      any |= s->anew[2 * i + (uint32_t)k] != NULL;
    }
    if (vm_poll(s->vm)) s->failed = true;
  }
  return (any || s->n) && !s->failed;
}

/* ---- making it ---------------------------------------------------------------------------------------------------------------------- */

/* A size of an instance's graph in the graph that is made, which has those of the graph that was searched with their numbers. */
/* NOLINTNEXTLINE(misc-no-recursion): expressions of sizes have at most DIM_MAX_SIZE parts */
static qn_dim size_into(graph *to, uint32_t shared, const dim_table *from, qn_dim d) {
  if (d >= 0 || ~d < (qn_dim)shared) return d;
  const dim_expr e = from->exprs[~d];
  qn_dim a = size_into(to, shared, from, e.a);
  return dim_make(&to->dims, (dim_op)e.op, a, size_into(to, shared, from, e.b));
}

/* The flags of a product that goes, of these nodes of the graph that is made: how a device's library computed it when it was recorded, which the same
 * product in a replacement keeps. */
static uint8_t product_flags(const search *s, uint32_t root, const uint32_t *map, const uint32_t in[2]) {
  const graph *g = s->g;
  for (uint32_t i = root; i > 0; i--) {
    const graph_node *n = &g->nodes[i];
    if (s->fate[i] == STAYS || n->kind != NODE_OP || n->op != OP_dot) continue;
    if (map[n->in[0]] == in[0] && map[n->in[1]] == in[1]) return graph_attr(n).flags;
  }
  return 0;
}

/* Appends what takes the place of f to `to`; map has the nodes that took the places of older ones. 0 if memory is short. */
static uint32_t append_replacement(search *s, const found *f, graph *to, const uint32_t *map) {
  const graph *g = f->x->g;
  uint32_t nodes = g->n, result = 0;
  size_t bytes = (nodes + (size_t)g->nsites) * sizeof(uint32_t) + nodes;
  uint32_t *anew = mem_zalloc(s->vm, bytes), *sites = anew + nodes;
  if (!anew) return 0;
  bool *needed = (bool *)(sites + g->nsites), ok = true;
  char why[64];
  (void)!mark_made_of(g, f->x->replace, f->rule->nparams, needed, "", why, sizeof why);
  for (uint32_t k = 0; k < f->rule->nparams; k++) anew[g->inputs[k]] = map[f->operands[k]];
  for (uint32_t i = 1; i <= f->x->replace && ok; i++) {
    if (!needed[i] || anew[i]) continue;
    graph_node n = g->nodes[i];
    uint32_t site = n.site;
    if (site < s->nsites)
      site = f->site;
    else
      for (uint32_t k = s->nsites; k <= site && ok; k++) {
        const graph_site *x = &g->sites[k];
        if (sites[k]) continue;
        uint32_t parent = x->parent < s->nsites ? f->site : sites[x->parent];
        ok = (sites[k] = graph_site_add(to, x->at, parent, x->function, x->whole)) != 0;
      }
    n.site = site < s->nsites ? site : sites[site];
    for (int k = 0; k < n.type.rank; k++) n.type.shape[k] = size_into(to, s->ndims, &g->dims, n.type.shape[k]);
    op_attr attr = graph_attr(&n);
    for (int k = 0; k < attr.n && n.kind == NODE_OP; k++)
      if (op_attr_is_dim((op_id)n.op, k)) attr.d[k] = size_into(to, s->ndims, &g->dims, attr.d[k]);
    if (n.attr) n.attr = &attr;
    uint32_t few[8], *in = n.nin <= 8 ? few : mem_alloc(s->vm, n.nin * sizeof *in);
    ok = ok && in;
    for (int k = 0; k < n.nin && ok; k++) in[k] = anew[n.in[k]];
    uint8_t flags = ok && n.kind == NODE_OP && n.op == OP_dot ? product_flags(s, f->root, map, in) : 0;
    attr.flags |= flags;
    if (flags) n.attr = &attr;
    if (ok)
      anew[i] = n.kind == NODE_CONST ? graph_const(to, n.type, n.payload.data, n.site) : graph_node_like(to, &n, in);
    ok = ok && anew[i];
    if (in && in != few) mem_free(s->vm, in, n.nin * sizeof *in);
  }
  if (ok) result = anew[f->x->replace];
  for (uint32_t k = s->nfacts; k < g->dims.nfacts && ok; k++) {
    const dim_fact *x = &g->dims.facts[k];
    dim_assume(&to->dims, size_into(to, s->ndims, &g->dims, x->a), (dim_relation)x->relation,
               size_into(to, s->ndims, &g->dims, x->b));
  }
  mem_free(s->vm, anew, bytes);
  return result;
}

/* Numbers the regions of the graph anew, and removes those of which nothing is left. starts[i] is where the copies of nodes from i on begin. */
static void regions_follow(search *s, region_list *regions, const uint32_t *map, const uint32_t *starts) {
  for (uint32_t k = 0; k < regions->n; k++) {
    graph_region *x = &regions->list[k];
    uint32_t *nodes = (uint32_t *)x->args; /* the list owns them */
    bool whole = !s->drop[k];
    for (uint32_t i = 0; i < x->nargs + x->nouts; i++) {
      whole &= !nodes[i] || map[nodes[i]];
      nodes[i] = map[nodes[i]];
    }
    x->first = whole ? starts[x->first] : 0;
    x->end = whole ? starts[x->end] : 0;
    if (x->first >= x->end) x->first = x->end = 0;
  }
  regions_drop_empty(s->vm, regions);
}

static const found *found_at(const search *s, uint32_t root) {
  for (uint32_t k = 0; k < s->n; k++)
    if (s->list[k].root == root) return &s->list[k];
  return NULL;
}

/* Nodes that only what goes has needed go, too. */
static void forget_unneeded(search *s) {
  const graph *g = s->g;
  memset(s->uses, 0, s->nodes * sizeof *s->uses);
  for (uint32_t i = 0; i < g->noutputs; i++) s->uses[g->outputs[i]]++;
  for (uint32_t k = 0; s->regions && k < s->regions->n; k++) {
    const graph_region *x = &s->regions->list[k];
    for (uint32_t i = 0; i < x->nargs + x->nouts && !s->drop[k]; i++) s->uses[x->args[i]]++;
  }
  for (uint32_t i = g->n - 1; i > 0; i--) {
    const graph_node *n = &g->nodes[i];
    bool needed = s->uses[i] || n->kind == NODE_TAP || graph_fallible(g, i);
    s->live[i] = s->live[i] && s->fate[i] != GOES && needed;
    if (!s->live[i]) continue;
    if (s->fate[i] == REPLACED) {
      const found *f = found_at(s, i);
      for (uint32_t k = 0; k < f->rule->nparams; k++) s->uses[f->operands[k]]++;
      continue;
    }
    for (int k = 0; k < n->nin; k++) s->uses[n->in[k]]++;
    graph_each_size_node(g, i, use_size, s);
  }
}

/* A copy of the graph with what was found replaced, without nodes that nothing needs. NULL if memory is short. */
static graph *make_graph(search *s, region_list *regions) {
  const graph *g = s->g;
  forget_unneeded(s);
  size_t bytes = (2 * (size_t)g->n + 1) * sizeof(uint32_t);
  uint32_t *map = mem_zalloc(s->vm, bytes), *starts = map + g->n;
  graph *to = map ? graph_new(s->vm) : NULL;
  bool ok = to && graph_copy_frame(to, g);
  if (to) to->grad_bytes = g->grad_bytes;
  for (uint32_t i = 1; i < g->n && ok; i++) {
    starts[i] = to->n;
    if ((!s->live[i] && g->nodes[i].kind != NODE_INPUT) || s->fate[i] == GOES) continue;
    if (s->fate[i] == REPLACED)
      map[i] = append_replacement(s, found_at(s, i), to, map);
    else
      map[i] = graph_node_copy(to, g, i, map);
    ok = map[i] != 0;
    if (ok && s->fate[i] == STAYS) to->nodes[map[i]].site = site_of(g, i);
    for (uint32_t k = 0; k < 2 && ok; k++) {
      graph **anew = &s->anew[2 * i + k];
      if (!*anew) continue;
      graph_free(to->nodes[map[i]].payload.regions[k]);
      to->nodes[map[i]].payload.regions[k] = *anew;
      *anew = NULL;
    }
  }
  if (ok) starts[g->n] = to->n;
  for (uint32_t i = 0; i < g->ninputs && ok; i++) {
    to->inputs[i] = map[g->inputs[i]];
    to->nodes[to->inputs[i]].payload.input = i;
  }
  for (uint32_t i = 0; i < g->noutputs && ok; i++) ok = graph_output(to, map[g->outputs[i]]);
  if (ok) dim_rename_nodes(&to->dims, map, g->n);
  ok = ok && !to->failed && !to->arena.failed;
  if (ok && regions) regions_follow(s, regions, map, starts);
  if (map) mem_free(s->vm, map, bytes);
  if (!ok && to) graph_free(to);
  return ok ? to : NULL;
}

/* The graph with patterns applied; NULL if it stays as it is. *failed: memory is short, or an error is raised that nothing catches. */
/* NOLINTNEXTLINE(misc-no-recursion): as deep as regions are nested */
static graph *rewritten_graph(qn_vm *vm, const graph *g, bool region, region_list *regions, rewrite_notes *notes,
                              bool *failed) {
  search s = {.vm = vm, .g = g, .nodes = g->n, .region = region, .notes = notes, .regions = regions};
  vm_owned held;
  graph *made = NULL;
  uint32_t noted = notes->n, applied = notes->applied;
  vm_own(vm, &held, search_drop, &s);
  if (!vm_enter(vm, 0) || !search_begin(&s)) {
    s.failed = true;
  } else {
    count_uses(&s, 1, 0);
    /* where gradients were rewritten there is much that nothing needs any more */
    if (search_all(&s, 1) || (applied && !region && !s.failed)) s.failed |= !(made = make_graph(&s, regions));
  }
  if (!made) notes->applied = applied;
  for (uint32_t i = noted; i < notes->n && !made; i++)
    if (notes->list[i].applied) notes->list[i--] = notes->list[--notes->n];
  vm_disown(vm, &held);
  search_drop(vm, &s);
  *failed |= s.failed;
  return made;
}

bool rewrites_apply(qn_vm *vm, graph **g, region_list *regions, rewrite_notes *notes) {
  vm_owned held;
  bool failed = false;
  applying_begin(vm, &held);
  graph *made = rewritten_graph(vm, *g, false, regions, notes, &failed);
  applying_end(vm, &held);
  if (made) {
    graph_free(*g);
    *g = made;
  }
  if (failed && !error_pending(vm)) raise_memory(vm);
  return !failed;
}

/* ---- gradients ---------------------------------------------------------------------------------------------------------------------- */

/* Can nodes of the recording be appended once more? Not where they have derivatives of their own, or counterparts for lanes, nor where sizes depend
 * on data. */
static bool can_repeat(const search *s, const struct recording *r, uint32_t from) {
  const graph *g = s->g;
  if (r->arm || r->lanes || (r->regions.n && r->regions.list[r->regions.n - 1].end > from)) return false;
  for (uint32_t i = from; i < s->nodes; i++)
    for (int k = 0; s->live[i] && k < g->nodes[i].type.rank; k++)
      if (g->nodes[i].type.shape[k] < 0 && dim_is_late(&g->dims, g->nodes[i].type.shape[k])) return false;
  return true;
}

/* Appends to the graph itself what the root is made of, as far as something in it was replaced. The new root; 0 if memory is short. */
static uint32_t append_anew(search *s, graph *g, uint32_t from, uint32_t root) {
  size_t bytes = s->nodes * sizeof(uint32_t);
  uint32_t *map = mem_alloc(s->vm, bytes);
  bool ok = map != NULL;
  for (uint32_t i = 0; i < s->nodes && ok; i++) {
    map[i] = i;
    if (i < from || !s->live[i] || s->fate[i] == GOES) continue;
    graph **anew = &s->anew[2 * (size_t)i];
    bool other = anew[0] || anew[1];
    for (int k = 0; k < g->nodes[i].nin; k++) other |= map[g->nodes[i].in[k]] != g->nodes[i].in[k];
    if (s->fate[i] == REPLACED)
      map[i] = append_replacement(s, found_at(s, i), g, map);
    else if (other)
      map[i] = graph_node_copy(g, g, i, map);
    ok = map[i] != 0;
    for (int k = 0; k < 2 && ok; k++) {
      if (!anew[k]) continue;
      graph_free(g->nodes[map[i]].payload.regions[k]);
      g->nodes[map[i]].payload.regions[k] = anew[k];
      anew[k] = NULL;
    }
  }
  uint32_t made = ok ? map[root] : 0;
  if (map) mem_free(s->vm, map, bytes);
  return made;
}

bool rewrites_append(struct recording *r, uint32_t from, uint32_t *root) {
  qn_vm *vm = r->vm;
  if (!rewrites_any(vm) || !r->capturing || jit_of(vm)->applying || !*root || *root < from) return true;
  search s = {.vm = vm, .g = r->g, .nodes = r->g->n, .notes = &r->rewritten};
  vm_owned held, held_applying;
  vm_own(vm, &held, search_drop, &s);
  applying_begin(vm, &held_applying);
  uint32_t made = 0;
  bool ok = vm_enter(vm, 0) && search_begin(&s);
  if (ok) {
    count_uses(&s, from, *root);
    bool any = can_repeat(&s, r, from) && search_all(&s, from);
    ok = !s.failed;
    if (any) ok = (made = append_anew(&s, r->g, from, *root)) != 0 && rec_room(r);
  }
  applying_end(vm, &held_applying);
  vm_disown(vm, &held);
  search_drop(vm, &s);
  if (!ok && !error_pending(vm)) raise_memory(vm);
  if (ok && made) *root = made;
  return ok;
}
