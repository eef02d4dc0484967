/* Derivatives of functions: grad, value_and_grad, vjp, jvp, jacobian, hessian. Functions that say themselves how they are differentiated
 * (checkpoint, custom_grad) are regions.c's.
 *
 * The inner function runs while a recording is on (one is begun if there is none), with every float leaf of the differentiated
 * arguments replaced by an alias node, so that only uses through the argument count. Then graph_vjp appends the backward pass to the
 * same graph, and the derivatives are pending arrays like any other. Nothing is executed for the sake of differentiation, and
 * derivatives of derivatives need no further code.
 *
 * vjp     The backward pass from tracers for the result's cotangents is cut out of the recording as a graph of its own (body.c),
 *         bound to the values of the forward pass that it reads: the pullback. What was appended goes again.
 * jvp     The pullback is linear in the cotangents, and so its own backward pass, with the tangents of the arguments as what comes
 *         in, gives the tangents of the result by the cotangents that nobody needs to know: forward mode without rules of its own.
 *         What only led to the pullback is dead.
 * jacobian  The unit vectors go through the pullback in lanes (vmap), or, where the argument is smaller than the result, through the
 *         pushforward: the graph that jvp appends. A hessian is the jacobian of a gradient.
 */
#include <string.h>

#include "jit/cpu/eager.h"
#include "jit/trace/gradients.h"
#include "jit/trace/graphs.h"
#include "jit/trace/pattern.h"
#include "jit/trace/recording.h"
#include "jit/trace/specialization.h"
#include "jit/trace/vmap.h"

static bool leaves_add(leaves *l, uint32_t node) {
  if (!mem_grow(l->r->vm, (void **)&l->nodes, &l->cap, l->n + 1, sizeof *l->nodes)) return false;
  l->nodes[l->n++] = node;
  return true;
}

/* Room for what comes of them, all 0. */
static bool leaves_room(leaves *l) {
  if (!mem_grow(l->r->vm, (void **)&l->grads, &l->grads_cap, l->n + 1, sizeof *l->grads)) return false;
  memset(l->grads, 0, l->grads_cap * sizeof *l->grads);
  return true;
}

void leaves_free(leaves *l) {
  mem_free(l->r->vm, l->nodes, l->cap * sizeof *l->nodes);
  mem_free(l->r->vm, l->grads, l->grads_cap * sizeof *l->grads);
}

static void leaves_drop(qn_vm *vm, void *l) {
  (void)vm;
  leaves_free(l);
}

/* A node of its own with the same value; 0 with an error raised. */
static uint32_t alias_of_node(struct recording *r, uint32_t node) {
  graph_type t = node ? r->g->nodes[node].type : (graph_type){0};
  uint32_t made = 0;
  if (node && t.weak) {
    uint32_t in[2] = {node, graph_const_scalar(r->g, WEAK_FLOAT, true, 1.0, 0, 0)};
    made = in[1] ? graph_op(r->g, OP_mul, in, 2, NULL, rec_site(r)) : 0;
  } else if (node) {
    op_attr a = {.n = t.rank};
    memcpy(a.d, t.shape, t.rank * sizeof *a.d);
    made = graph_node_raw(r->g, OP_reshape, &node, 1, &a, t, rec_site(r));
  }
  if (!made && !error_pending(r->vm)) raise_memory(r->vm);
  return made;
}

qn_value leaves_alias(void *ctx, const char *path, qn_value v) {
  (void)path;
  leaves *l = ctx;
  qn_vm *vm = l->r->vm;
  if (!is_float_leaf(v)) return value_retain(v);
  if (value_is(v, TAG_ARRAY) && !rec_place(l->r, value_array(v)->device))
    return op_raise_devices(vm, "gradients", l->r->device, value_array(v)->device);
  uint32_t node = alias_of_node(l->r, rec_node(l->r, v));
  if (!node || !leaves_add(l, node)) return value_error();
  return rec_value_of(l->r, node);
}

/* What came of a leaf, as a value. */
static qn_value leaf_value(struct recording *r, qn_value like, uint32_t node) {
  return node ? rec_value_of(r, node) : tree_match_zeros(r->vm, like);
}

static qn_value grad_leaf(void *ctx, const char *path, qn_value v) {
  (void)path;
  leaves *l = ctx;
  return is_float_leaf(v) ? leaf_value(l->r, v, l->grads[l->at++]) : value_nil();
}

static qn_value list_of(qn_vm *vm, qn_value *items, size_t n) {
  qn_list *l = list_from(vm, items, n);
  for (size_t i = 0; i < n; i++) value_release(vm, items[i]);
  return l ? value_obj(TAG_LIST, l) : value_error();
}

static void raise_not_float(qn_vm *vm, const char *name, int position, qn_value x) {
  text_buf t;
  text_init(&t, vm);
  text_kind(&t, x);
  text_add(&t, "", 1);
  bool tree = value_is(x, TAG_LIST) || value_is(x, TAG_RECORD);
  raise_error(vm, E_not_diff, SPAN_NONE,
              tree ? "%s differentiates by floats, and argument %d, %s, has none; write its numbers as floats (1.0) or "
                     "convert them with f32(...)"
                   : "%s differentiates by floats, and argument %d is %s; pass a float or convert it with f32(...)",
              name, position + 1,
              !t.failed ? t.text
              : tree    ? "a tree"
                        : "none");
  text_free(&t);
}

/* Counts the numbers and numeric arrays of a tree. */
static bool count_number(void *ctx, const char *path, qn_value v) {
  (void)path;
  if (value_is_number(v) || value_is(v, TAG_ARRAY)) ++*(uint32_t *)ctx;
  return true;
}

/* An argument whose leaves are ints and bools alone would be given back as it is, with gradients of nil: nothing would be learnt.
 * One without numbers has nothing to learn. False with an error raised. */
static bool has_float(qn_vm *vm, const char *name, int position, qn_value x) {
  uint32_t numbers = 0;
  if (!tree_each(vm, x, count_number, &numbers)) return false;
  if (!numbers) return true;
  raise_not_float(vm, name, position, x);
  return false;
}

static bool add_region(void *ctx, const graph_region *copy) {
  struct recording *r = ctx;
  if (regions_add(r->vm, &r->regions, copy)) return true;
  error_clear(r->vm);
  r->g->failed = true;
  return false;
}

/* graph_vjp with the recording's regions, which may become more meanwhile. False with an error raised. */
static bool backward(struct recording *r, uint32_t from, const uint32_t *roots, const uint32_t *seeds, int nroots,
                     leaves *wrt) {
  qn_vm *vm = r->vm;
  uint32_t low = r->regions.n, culprit = 0;
  while (low && r->regions.list[low - 1].end > from) low--; /* others end before it begins */
  uint32_t n = r->regions.n - low;
  graph_region *regions = mem_alloc(vm, (n + 1) * sizeof *regions);
  if (!regions || !leaves_room(wrt)) {
    if (regions) mem_free(vm, regions, (n + 1) * sizeof *regions);
    return false;
  }
  if (n) memcpy(regions, r->regions.list + low, n * sizeof *regions);
  graph_rules rules = {.regions = regions, .n = n, .ctx = r, .apply = region_apply_rule, .add = add_region};
  op_refusal why = {0};
  vm_memory copies = {regions, (n + 1) * sizeof *regions};
  vm_owned held;
  vm_own(vm, &held, vm_drop_memory, &copies); /* a custom_grad's rule is the program's */
  bool ok = graph_vjp(r->g, from, roots, seeds, nroots, wrt->nodes, (int)wrt->n, &rules, wrt->grads, &culprit, &why);
  vm_disown(vm, &held);
  mem_free(vm, regions, (n + 1) * sizeof *regions);
  if (ok) return rec_room(r);
  if (r->g->failed && !error_pending(vm))
    raise_memory(vm);
  else if (why.id)
    rec_raise_refusal(r, culprit, &why);
  return false;
}

/* ---- grad, value_and_grad ------------------------------------------------------------------------------------------------------------ */

/* The node of a scalar float result: 0 for a constant, UINT32_MAX with an error raised if it is none. */
static uint32_t root_node(struct recording *r, qn_value v, const char *name) {
  if (value_is(v, TAG_FLOAT)) return rec_traced(r, v);
  if (value_is(v, TAG_ARRAY) && value_array(v)->rank == 0 && dtype_is_float((qn_dtype)value_array(v)->dtype))
    return rec_traced(r, v);
  text_buf t;
  text_init(&t, r->vm);
  text_kind(&t, v);
  text_add(&t, "", 1);
  raise_error(r->vm, E_not_diff, SPAN_NONE, "%s needs a function with a scalar float result, not %s%s", name,
              t.failed ? "this" : t.text,
              !value_is(v, TAG_ARRAY) ? ""
              : value_array(v)->rank == 0
                  ? "; ints and bools have no derivative, also where argmax, a comparison or i64(x) "
                    "made them of floats"
                  : "; reduce it with sum or mean");
  text_free(&t);
  return UINT32_MAX;
}

enum { MOST_WRT = 64 };

/* The positions that `wrt` names among nargs arguments. False with an error raised. */
static bool positions(qn_vm *vm, const char *name, qn_value wrt, int nargs, int which[MOST_WRT], uint32_t *n) {
  bool one = value_is(wrt, TAG_INT);
  *n = one ? 1 : value_is(wrt, TAG_LIST) ? value_list(wrt)->len : 0;
  if (!*n || *n > MOST_WRT) {
    raise_error(vm, E_argument, SPAN_NONE, "%s: wrt is the position of an argument or a list of positions", name);
    return false;
  }
  for (uint32_t i = 0; i < *n; i++) {
    qn_value w = one ? wrt : value_list(wrt)->items[i];
    if (!value_is(w, TAG_INT) || w.u.i < -nargs || w.u.i >= nargs) {
      raise_error(vm, E_argument, SPAN_NONE, "%s: wrt names an argument that the call does not have (%d given)", name,
                  nargs);
      return false;
    }
    which[i] = (int)(w.u.i < 0 ? w.u.i + nargs : w.u.i);
  }
  return true;
}

static qn_value call_grad(struct recording *r, const rec_call_site *site) {
  qn_vm *vm = r->vm;
  const qn_fn *f = value_fn(site->fn);
  const transform_def *def = f->code;
  int nargs = site->nargs - 1;
  qn_value wrt = rec_observe_tree(vm, f->captures[1]);
  bool aux = f->ncaptures > 2 && value_is(f->captures[2], TAG_BOOL) && f->captures[2].u.i;
  const char *name =
      f->ncaptures > 3 ? transform_defs[TRANSFORM_HESSIAN].name : def->name; /* the gradient within one */
  leaves l = {.r = r, .name = name};
  qn_value *mark = vm->sp, result = value_error(), value = value_unset();
  vm_owned held[3];
  vm_own(vm, &held[0], leaves_drop, &l);
  vm_own(vm, &held[1], vm_drop_value, &wrt);
  vm_own(vm, &held[2], vm_drop_value, &value);
  bool one = value_is(wrt, TAG_INT);
  uint32_t nwrt;
  int which[MOST_WRT];
  if (!positions(vm, name, wrt, nargs, which, &nwrt)) goto done;
  if (!vm_enter(vm, (size_t)nargs + 1)) goto done;
  for (int i = 0; i < nargs; i++) *vm->sp++ = value_retain(site->args[i]);
  uint32_t from = r->g->n;
  uint32_t first[MOST_WRT]; /* where each argument's leaves begin */
  for (uint32_t i = 0; i < nwrt; i++) {
    qn_value x = mark[which[i]];
    if (!is_float_leaf(x) && !value_is(x, TAG_LIST) && !value_is(x, TAG_RECORD)) {
      raise_not_float(vm, name, which[i], x);
      goto done;
    }
    first[i] = l.n;
    qn_value aliased = tree_rebuild(vm, x, leaves_alias, &l);
    if (value_is_error(aliased)) goto done;
    value_release(vm, x);
    mark[which[i]] = aliased;
    if (l.n == first[i] && !has_float(vm, name, which[i], aliased)) goto done;
  }
  derived_by by = {r->wrt, l.nodes, l.n};
  r->wrt = &by;
  value = vm->hooks.call(vm, f->captures[0], mark, nargs, site->args[nargs]);
  r->wrt = by.outer;
  if (value_is_error(value)) goto done;
  qn_value root_value = value;
  if (aux) {
    if (!value_is(value, TAG_LIST) || value_list(value)->len != 2) {
      raise_error(vm, E_not_diff, SPAN_NONE, "with aux: true the function returns (value, aux)");
      goto done;
    }
    root_value = value_list(value)->items[0];
  }
  uint32_t root = root_node(r, root_value, name), seed = 0;
  if (root == UINT32_MAX || !backward(r, from, &root, &seed, root != 0, &l)) goto done;
  if (!rec_hand_numbers(r, l.grads, l.n)) goto done;
  qn_value grads[MOST_WRT];
  uint32_t made = 0;
  r->handing_grads = true;
  for (; made < nwrt; made++) {
    l.at = first[made];
    grads[made] = tree_rebuild(vm, mark[which[made]], grad_leaf, &l);
    if (value_is_error(grads[made])) break;
  }
  r->handing_grads = false;
  if (made < nwrt) {
    while (made-- > 0) value_release(vm, grads[made]);
    goto done;
  }
  qn_value g = one ? grads[0] : list_of(vm, grads, nwrt);
  if (value_is_error(g)) goto done;
  if (def->kind == TRANSFORM_GRAD) {
    result = g;
  } else {
    qn_value pair[2] = {value, g};
    value = value_unset();
    result = list_of(vm, pair, 2);
  }
done:
  vm_disown(vm, &held[0]);
  vm_pop_to(vm, mark);
  value_release(vm, wrt);
  value_release(vm, value);
  leaves_free(&l);
  return result;
}

/* ---- vjp and jvp ------------------------------------------------------------------------------------------------------------------------- */

/* A function's call on aliased arguments, all of which are differentiated. */
typedef struct forward {
  leaves in;  /* of the arguments */
  leaves out; /* float leaves of the result: nodes, 0 where it does not depend on the recording; grads: their tracers */
  qn_value *args; /* the differentiated ones, on the value stack */
  int nargs;
  qn_value y; /* owned; unset before the call */
  uint32_t from;
  rec_marked before; /* what follows the forward pass */
  bool held;         /* vmap_hold */
  vmap_pause pause;  /* what was held before */
} forward;

static bool out_leaf(void *ctx, const char *path, qn_value v) {
  (void)path;
  leaves *l = ctx;
  return !is_float_leaf(v) || leaves_add(l, rec_traced(l->r, v));
}

/* A node of the type of a leaf that depends on nothing: it stands for a cotangent that is not known. 0 with an error raised. */
static uint32_t tracer_node(struct recording *r, qn_value like) {
  bool weak = value_is(like, TAG_FLOAT);
  const qn_array *a = weak ? NULL : value_array(like);
  uint32_t node = graph_const_scalar(r->g, weak ? WEAK_FLOAT : (qn_dtype)a->dtype, weak, 0, 0, rec_site(r));
  if (node && !weak && a->rank) {
    op_attr shape = {.n = a->rank};
    for (int k = 0; k < a->rank; k++) shape.d[k] = a->shape[k];
    node = graph_op(r->g, OP_broadcast, &node, 1, &shape, rec_site(r));
  }
  return alias_of_node(r, node);
}

static bool tracer_leaf(void *ctx, const char *path, qn_value v) {
  (void)path;
  leaves *l = ctx;
  return !is_float_leaf(v) || (l->grads[l->at++] = tracer_node(l->r, v)) != 0;
}

/* An exception passes: the recording goes as well. */
static void forward_drop(qn_vm *vm, void *what) {
  forward *w = what;
  value_release(vm, w->y);
  leaves_free(&w->in);
  leaves_free(&w->out);
}

/* `held` is its owner's until forward_free. */
static void forward_begin(struct recording *r, const rec_call_site *site, forward *w, vm_owned *held) {
  *w = (forward){.y = value_unset()};
  w->in = w->out = (leaves){.r = r, .name = ((const transform_def *)value_fn(site->fn)->code)->name};
  vm_own(r->vm, held, forward_drop, w);
}

/* Calls f on the first `nargs` of the arguments, differentiated by those in `which` (NULL: all of them). False with an error raised. */
static bool forward_call(struct recording *r, const rec_call_site *site, int nargs, const int *which, int nwhich,
                         forward *w) {
  qn_vm *vm = r->vm;
  const qn_fn *f = value_fn(site->fn);
  const char *name = ((const transform_def *)f->code)->name;
  w->nargs = which ? nwhich : nargs;
  if (!vm_enter(vm, 2 * (size_t)nargs + (size_t)w->nargs + 1)) return false;
  qn_value *all = vm->sp;
  w->from = r->g->n;
  for (int i = 0; i < nargs; i++) *vm->sp++ = value_retain(site->args[i]);
  w->args = vm->sp;
  for (int k = 0; k < w->nargs; k++) {
    int i = which ? which[k] : k;
    qn_value aliased = tree_rebuild(vm, all[i], leaves_alias, &w->in);
    if (value_is_error(aliased)) return false;
    value_release(vm, all[i]);
    all[i] = aliased;
    *vm->sp++ = value_retain(aliased);
  }
  if (!w->in.n) {
    if (nargs)
      raise_not_float(vm, name, which ? which[0] : 0, w->args[0]);
    else
      raise_error(vm, E_arity, SPAN_NONE, "%s takes the function and its arguments: %s(f, x)", name, name);
    return false;
  }
  derived_by by = {r->wrt, w->in.nodes, w->in.n};
  r->wrt = &by;
  qn_value y = vm->hooks.call(vm, f->captures[0], all, nargs, site->args[site->nargs - 1]);
  r->wrt = by.outer;
  if (value_is_error(y)) return false;
  w->y = y;
  if (!tree_each(vm, y, out_leaf, &w->out)) return false;
  if (!w->out.n) {
    text_buf t;
    text_init(&t, vm);
    text_kind(&t, y);
    text_add(&t, "", 1);
    raise_error(vm, E_not_diff, SPAN_NONE,
                "%s needs a function whose result is or holds a float or a float array, not %s", name,
                t.failed ? "this" : t.text);
    text_free(&t);
    return false;
  }
  return true;
}

/* The backward pass from tracers for the cotangents of the results. */
static bool forward_transpose(struct recording *r, forward *w) {
  qn_vm *vm = r->vm;
  if (!(w->held = vmap_hold(r, &w->pause))) return false;
  w->before = rec_mark(r);
  if (!leaves_room(&w->out) || !tree_each(vm, w->y, tracer_leaf, &w->out)) return false;
  uint32_t *roots = mem_alloc(vm, 2 * (w->out.n + (size_t)1) * sizeof *roots), *seeds = roots + w->out.n + 1;
  if (!roots) return false;
  int n = 0;
  for (uint32_t i = 0; i < w->out.n; i++)
    if (w->out.nodes[i]) {
      roots[n] = w->out.nodes[i];
      seeds[n++] = w->out.grads[i];
    }
  vm_memory both = {roots, 2 * (w->out.n + (size_t)1) * sizeof *roots};
  vm_owned held;
  vm_own(vm, &held, vm_drop_memory, &both);
  bool ok = backward(r, w->from, roots, seeds, n, &w->in);
  vm_disown(vm, &held);
  mem_free(vm, roots, both.bytes);
  return ok;
}

/* The counterparts of a vmap's lanes are made again; those of nodes that have gone were not. */
static void forward_go_on(struct recording *r, forward *w) {
  if (w->held) vmap_go_on(r, &w->pause);
  w->held = false;
}

static void forward_free(qn_vm *vm, forward *w, const vm_owned *held, qn_value *mark) {
  vm_disown(vm, held);
  forward_go_on(w->in.r, w);
  vm_pop_to(vm, mark);
  forward_drop(vm, w);
}

/* A number that depends on nothing is an output as well: it gets a node. */
qn_value leaves_keep(void *ctx, const char *path, qn_value v) {
  (void)path;
  struct recording *r = ctx;
  if (!is_float_leaf(v)) return value_nil();
  if (!value_is(v, TAG_FLOAT) || rec_traced(r, v)) return value_retain(v);
  uint32_t node = rec_node(r, v);
  if (node) return value_traced(v, r->base + node);
  return error_pending(r->vm) ? value_error() : raise_memory(r->vm);
}

/* The template of the arguments' cotangents: trees like the arguments whose float leaves are the outputs in order. */
static bool result_template(struct recording *r, const qn_value *args, int nargs, tpl_list *out) {
  qn_vm *vm = r->vm;
  node_list in_order = {0};
  qn_list *l = list_from(vm, args, (size_t)nargs);
  if (!l) return false;
  qn_value all = value_obj(TAG_LIST, l), floats = tree_rebuild(vm, all, leaves_keep, r);
  bool ok = !value_is_error(floats) &&
            template_of_nodes(r, nargs == 1 ? value_list(floats)->items[0] : floats, out, &in_order);
  value_release(vm, all);
  if (!value_is_error(floats)) value_release(vm, floats);
  mem_free(vm, in_order.nodes, in_order.cap * sizeof *in_order.nodes);
  return ok;
}

/* A function value with the body, bound to the values of nodes. Takes over the body. */
static qn_value bind_body(struct recording *r, graph_body *b, const node_list *bound) {
  qn_vm *vm = r->vm;
  body_finish(b);
  qn_fn *f = fn_new(vm, FN_GRAPH, b, bound->n);
  body_release(vm, b);
  if (!f) return value_error();
  qn_value fn = value_obj(TAG_FN, f);
  if (!rec_hand_numbers(r, bound->nodes, bound->n)) {
    value_release(vm, fn);
    return value_error();
  }
  r->handing_grads = true;
  for (uint32_t i = 0; i < bound->n; i++) {
    f->captures[i] = rec_value_of(r, bound->nodes[i]);
    if (!value_is_error(f->captures[i])) continue;
    f->captures[i] = value_nil();
    value_release(vm, fn);
    fn = value_error();
    break;
  }
  r->handing_grads = false;
  return fn;
}

static bool fill_leaf(void *ctx, const char *path, qn_value v) {
  (void)path;
  leaves *l = ctx;
  if (!is_float_leaf(v)) return true;
  uint32_t i = l->at++;
  if (!l->grads[i]) l->grads[i] = tracer_node(l->r, v);
  return l->grads[i] != 0;
}

/* Zeros, as nodes, for the leaves that nothing came of. */
static bool fill_leaves(leaves *l, const qn_value *args, int nargs) {
  l->at = 0;
  for (int i = 0; i < nargs; i++)
    if (!tree_each(l->r->vm, args[i], fill_leaf, l)) return false;
  return true;
}

/* The pullback of a call whose backward pass has been appended, which goes again. */
static qn_value pullback_of(struct recording *r, const rec_call_site *site, forward *w) {
  qn_vm *vm = r->vm;
  node_list bound = {0};
  graph_body *b = fill_leaves(&w->in, w->args, w->nargs) ? body_new(vm) : NULL;
  if (!b) return value_error();
  b->anchor.name = "pullback";
  b->anchor.at = site->at;
  qn_value like = tree_match_prototype(vm, w->y), result = value_error();
  if (!value_is_error(like)) b->like = like;
  bool ok = !value_is_error(like) && result_template(r, w->args, w->nargs, &b->call.result) &&
            body_cut(r, b, w->before.n, w->out.grads, w->out.n, w->in.grads, w->in.n, &bound);
  rec_forget(r, w->before);
  forward_go_on(r, w);
  if (ok)
    result = bind_body(r, b, &bound);
  else
    body_release(vm, b);
  mem_free(vm, bound.nodes, bound.cap * sizeof *bound.nodes);
  return result;
}

static qn_value call_vjp(struct recording *r, const rec_call_site *site) {
  qn_vm *vm = r->vm;
  qn_value *mark = vm->sp, pair[2] = {value_error(), value_error()}, result = value_error();
  forward w;
  vm_owned held;
  forward_begin(r, site, &w, &held);
  if (forward_call(r, site, site->nargs - 1, NULL, 0, &w) && forward_transpose(r, &w) &&
      !value_is_error(pair[1] = pullback_of(r, site, &w))) {
    pair[0] = w.y;
    w.y = value_unset();
    result = list_of(vm, pair, 2);
  }
  forward_free(vm, &w, &held, mark);
  return result;
}

typedef struct tangents {
  struct recording *r;
  leaves *in;
  uint32_t *roots, *seeds;
  int n;
} tangents;

static bool take_tangent(void *ctx, qn_value like, qn_value given) {
  tangents *t = ctx;
  (void)like;
  uint32_t i = t->in->at++, root = t->in->grads[i];
  if (!root || value_is(given, TAG_NIL)) return true;
  if (value_is(given, TAG_ARRAY) && !rec_place(t->r, value_array(given)->device)) {
    op_raise_devices(t->r->vm, "jvp", t->r->device, value_array(given)->device);
    return false;
  }
  t->roots[t->n] = root;
  t->seeds[t->n] = rec_node(t->r, given);
  if (!t->seeds[t->n] && !error_pending(t->r->vm)) raise_memory(t->r->vm);
  return t->seeds[t->n++] != 0;
}

/* What led to the pullback alone is computed from tracers, if at all: its checks say nothing. */
static bool trust_dead(struct recording *r, uint32_t from, const leaves *l) {
  graph *g = r->g;
  uint8_t *needed = mem_zalloc(r->vm, g->n);
  if (!needed) return false;
  for (uint32_t i = 0; i < l->n; i++) needed[l->grads[i]] = 1;
  bool ok = true;
  for (uint32_t i = g->n - 1; i >= from && ok; i--) {
    const graph_node *n = &g->nodes[i];
    for (int k = 0; k < n->nin && needed[i]; k++) needed[n->in[k]] = 1;
    if (!needed[i] && graph_fallible(g, i)) ok = graph_fix_flags(g, i, graph_attr(n).flags | ATTR_PROVEN);
  }
  mem_free(r->vm, needed, g->n);
  return ok || (raise_memory(r->vm), false);
}

static qn_value call_jvp(struct recording *r, const rec_call_site *site) {
  qn_vm *vm = r->vm;
  int given = site->nargs - 1, n = given / 2;
  if (!given || given % 2)
    return raise_error(vm, E_arity, SPAN_NONE,
                       "jvp takes the function's arguments and as many tangents: jvp(f, x, dx), jvp(f, x, y, dx, dy)");
  qn_value *mark = vm->sp, pair[2] = {value_error(), value_error()}, result = value_error();
  forward w;
  vm_owned held[3];
  forward_begin(r, site, &w, &held[0]);
  bool ok = forward_call(r, site, n, NULL, 0, &w) && forward_transpose(r, &w);
  tangents t = {.r = r, .in = &w.in};
  size_t bytes = 2 * (w.in.n + (size_t)1) * sizeof *t.roots;
  ok = ok && (t.roots = mem_alloc(vm, bytes)) != NULL;
  t.seeds = t.roots + (ok ? w.in.n + 1 : 0);
  w.in.at = 0;
  for (int i = 0; i < n && ok; i++)
    ok = tree_match_walk(vm, "jvp: the tangent", "the argument", site->args[i], site->args[n + i], 0, take_tangent, &t);
  leaves dy = {.r = r};
  for (uint32_t i = 0; i < w.out.n && ok; i++) ok = leaves_add(&dy, w.out.grads[i]);
  vm_memory both = {t.roots, bytes};
  vm_own(vm, &held[1], vm_drop_memory, &both);
  vm_own(vm, &held[2], leaves_drop, &dy);
  ok = ok && backward(r, w.before.n, t.roots, t.seeds, t.n, &dy) && trust_dead(r, w.before.n, &dy);
  vm_disown(vm, &held[1]);
  forward_go_on(r, &w);
  ok = ok && rec_hand_numbers(r, dy.grads, dy.n);
  if (ok) {
    r->handing_grads = true;
    pair[1] = tree_rebuild(vm, w.y, grad_leaf, &dy);
    r->handing_grads = false;
    ok = !value_is_error(pair[1]);
  }
  if (ok) {
    pair[0] = w.y;
    w.y = value_unset();
    result = list_of(vm, pair, 2);
  }
  if (t.roots) mem_free(vm, t.roots, bytes);
  leaves_free(&dy);
  forward_free(vm, &w, &held[0], mark);
  return result;
}

/* ---- jacobian ----------------------------------------------------------------------------------------------------------------------------- */

/* The pushforward: the linear map from tangents of the arguments to those of the result, as a graph. The backward pass goes. */
static qn_value pushforward_of(struct recording *r, const rec_call_site *site, forward *w) {
  qn_vm *vm = r->vm;
  node_list bound = {0};
  leaves dx = {.r = r}, dy = {.r = r};
  uint32_t n = w->in.n;
  size_t bytes = 2 * (n + (size_t)1) * sizeof(uint32_t);
  uint32_t *roots = mem_alloc(vm, bytes), *seeds = roots + n + 1;
  graph_body *b = NULL;
  int nroots = 0;
  bool ok = roots != NULL;
  for (uint32_t i = 0; i < n && ok; i++) ok = leaves_add(&dx, w->in.nodes[i]);
  ok = ok && leaves_room(&dx) && fill_leaves(&dx, w->args, w->nargs);
  for (uint32_t i = 0; i < n && ok; i++) {
    if (!w->in.grads[i]) continue;
    roots[nroots] = w->in.grads[i];
    seeds[nroots++] = dx.grads[i];
  }
  for (uint32_t i = 0; i < w->out.n && ok; i++) ok = leaves_add(&dy, w->out.grads[i]);
  vm_memory both = {roots, bytes};
  vm_owned held[3];
  vm_own(vm, &held[0], vm_drop_memory, &both);
  vm_own(vm, &held[1], leaves_drop, &dx);
  vm_own(vm, &held[2], leaves_drop, &dy);
  ok = ok && backward(r, w->before.n, roots, seeds, nroots, &dy);
  vm_disown(vm, &held[0]);
  ok = ok && fill_leaves(&dy, &w->y, 1) && (b = body_new(vm)) != NULL;
  if (ok) {
    b->anchor.name = "pushforward";
    b->anchor.at = site->at;
    qn_list *l = w->nargs == 1 ? NULL : list_from(vm, w->args, (size_t)w->nargs);
    qn_value x = l ? value_obj(TAG_LIST, l) : value_retain(w->args[0]);
    qn_value like = w->nargs == 1 || l ? tree_match_prototype(vm, x) : value_error();
    value_release(vm, x);
    if (!value_is_error(like)) b->like = like;
    ok = !value_is_error(like) && result_template(r, &w->y, 1, &b->call.result) &&
         body_cut(r, b, w->before.n, dx.grads, n, dy.grads, dy.n, &bound);
  }
  rec_forget(r, w->before);
  forward_go_on(r, w);
  qn_value result = value_error();
  if (ok)
    result = bind_body(r, b, &bound);
  else if (b)
    body_release(vm, b);
  if (roots) mem_free(vm, roots, bytes);
  mem_free(vm, bound.nodes, bound.cap * sizeof *bound.nodes);
  leaves_free(&dx);
  leaves_free(&dy);
  return result;
}

/* Leaves of a tree as values, borrowed, and the number of their elements. */
typedef struct leaf_list {
  qn_vm *vm;
  qn_value *items;
  uint32_t n, cap;
  int64_t elements;
} leaf_list;

static void leaf_list_drop(qn_vm *vm, void *what) {
  const leaf_list *l = what;
  mem_free(vm, l->items, l->cap * sizeof *l->items);
}

static bool list_leaf(void *ctx, const char *path, qn_value v) {
  (void)path;
  leaf_list *l = ctx;
  if (!is_float_leaf(v)) return true;
  if (!mem_grow(l->vm, (void **)&l->items, &l->cap, l->n + 1, sizeof *l->items)) return false;
  l->elements += value_is(v, TAG_ARRAY) ? value_array(v)->size : 1;
  l->items[l->n++] = v;
  return true;
}

/* The unit vectors of a leaf's space, one a row: [size, shape...]. Of a number 1. */
static qn_value unit_vectors(qn_vm *vm, qn_value like) {
  if (!value_is(like, TAG_ARRAY) || value_array(like)->rank == 0) return value_float(1);
  const qn_array *a = value_array(like);
  op_attr line = {.axes = 1, .dtype = DTYPE_INDEX, .n = 1, .d = {a->size}}, column = {.n = 2, .d = {a->size, 1}};
  op_attr dtype = {.dtype = a->dtype}, shape = {.n = (uint8_t)(a->rank + 1), .d = {a->size}};
  for (int k = 0; k < a->rank; k++) shape.d[k + 1] = a->shape[k];
  qn_value i = op_apply(vm, OP_iota, NULL, 0, &line), out = value_error();
  qn_value j = value_is_error(i) ? i : op_apply(vm, OP_reshape, &i, 1, &column);
  qn_value same = value_is_error(j) ? j : op_apply(vm, OP_eq, (qn_value[]){i, j}, 2, NULL);
  qn_value ones = value_is_error(same) ? same : op_apply(vm, OP_cast, &same, 1, &dtype);
  if (!value_is_error(ones)) out = op_apply(vm, OP_reshape, &ones, 1, &shape);
  qn_value parts[4] = {i, j, same, ones};
  for (int k = 0; k < 4; k++)
    if (!value_is_error(parts[k])) value_release(vm, parts[k]);
  return out;
}

typedef struct one_leaf {
  uint32_t at, which;
  qn_value v;
} one_leaf;

static qn_value place_leaf(void *ctx, const char *path, qn_value v) {
  (void)path;
  one_leaf *o = ctx;
  return is_float_leaf(v) && o->at++ == o->which ? value_retain(o->v) : value_nil();
}

/* A cell as it stands in the result: [ys..., xs...]. `v` is [rows..., columns...], where `rows` has become one axis unless it is a
 * number's; `turn`: the rows are to come last. Takes over `v`. */
static qn_value shape_cell(qn_vm *vm, qn_value v, qn_value rows, qn_value columns, bool turn) {
  const qn_array *a = value_is(rows, TAG_ARRAY) ? value_array(rows) : NULL;
  const qn_array *b = value_is(columns, TAG_ARRAY) ? value_array(columns) : NULL;
  int ra = a ? a->rank : 0, rb = b ? b->rank : 0;
  if (!ra || !value_is(v, TAG_ARRAY)) return v;
  if (ra + rb > ARRAY_MAX_RANK) {
    value_release(vm, v);
    return raise_error(vm, E_rank, SPAN_NONE,
                       "a derivative of an array of rank %d by one of rank %d has %d axes; arrays have at most %d",
                       turn ? rb : ra, turn ? ra : rb, ra + rb, ARRAY_MAX_RANK);
  }
  if (turn && rb) {
    op_attr order = {.n = (uint8_t)(rb + 1)};
    for (int k = 0; k < rb; k++) order.d[k] = k + 1;
    qn_value turned = op_apply(vm, OP_permute, &v, 1, &order);
    value_release(vm, v);
    if (value_is_error(turned)) return turned;
    v = turned;
  }
  op_attr shape = {.n = (uint8_t)(ra + rb)};
  for (int k = 0; k < ra; k++) shape.d[(turn ? rb : 0) + k] = a->shape[k];
  for (int k = 0; k < rb; k++) shape.d[(turn ? 0 : ra) + k] = b->shape[k];
  qn_value out = op_apply(vm, OP_reshape, &v, 1, &shape);
  value_release(vm, v);
  return out;
}

/* Fills in cells[k * nx + j], the derivative of y's leaf k by x's leaf j, from the linear map `map`: of each leaf of its argument the
 * unit vectors go through it in lanes. Where the other leaf is a host float, the block has the array's dtype. */
static bool fill_cells(qn_vm *vm, qn_value map, qn_value argument, const leaf_list *from, const leaf_list *to,
                       bool turn, qn_value *cells) {
  bool ok = true;
  for (uint32_t i = 0; i < from->n && ok; i++) {
    one_leaf o = {.which = i, .v = unit_vectors(vm, from->items[i])};
    qn_value in = value_is_error(o.v) ? o.v : tree_rebuild(vm, argument, place_leaf, &o), through = value_retain(map);
    if (value_is(o.v, TAG_ARRAY)) {
      qn_value captures[4] = {map, value_int(0), value_int(0), value_dtype(value_array(o.v)->dtype)};
      value_release(vm, through);
      through = transform_new(vm, TRANSFORM_VMAP, captures, 4);
    }
    qn_value out = value_error();
    if (!value_is_error(in) && !value_is_error(through)) out = vm->hooks.call(vm, through, &in, 1, value_nil());
    if (!value_is_error(through)) value_release(vm, through);
    if (!value_is_error(o.v)) value_release(vm, o.v);
    if (!value_is_error(in)) value_release(vm, in);
    leaf_list got = {.vm = vm};
    ok = !value_is_error(out) && tree_each(vm, out, list_leaf, &got);
    for (uint32_t k = 0; k < to->n && k < got.n && ok; k++) {
      qn_value cell = shape_cell(vm, value_retain(got.items[k]), from->items[i], to->items[k], turn);
      if ((ok = !value_is_error(cell))) cells[turn ? k * from->n + i : i * to->n + k] = cell;
    }
    mem_free(vm, got.items, got.cap * sizeof *got.items);
    if (!value_is_error(out)) value_release(vm, out);
  }
  return ok;
}

typedef struct cell_walk {
  qn_vm *vm;
  qn_value x; /* the tree of arguments */
  const qn_value *cells;
  uint32_t at;
} cell_walk;

static qn_value cell_leaf(void *ctx, const char *path, qn_value v) {
  (void)path;
  cell_walk *c = ctx;
  return is_float_leaf(v) ? value_retain(c->cells[c->at++]) : value_nil();
}

static qn_value row_leaf(void *ctx, const char *path, qn_value v) {
  (void)path;
  cell_walk *c = ctx;
  return is_float_leaf(v) ? tree_rebuild(c->vm, c->x, cell_leaf, c) : value_nil();
}

/* What a Jacobian owns while its map is made and runs: the map, and the cells so far. */
typedef struct jacobian_owned {
  qn_value map, *cells;
  size_t ncells;
} jacobian_owned;

static void jacobian_drop(qn_vm *vm, void *what) {
  jacobian_owned *o = what;
  for (size_t i = 0; i < o->ncells; i++) value_release(vm, o->cells[i]);
  if (o->cells) mem_free(vm, o->cells, o->ncells * sizeof *o->cells);
  if (!value_is_error(o->map)) value_release(vm, o->map);
}

static qn_value call_jacobian(struct recording *r, const rec_call_site *site) {
  qn_vm *vm = r->vm;
  const qn_fn *f = value_fn(site->fn);
  int nargs = site->nargs - 1, which[MOST_WRT];
  uint32_t nwrt;
  qn_value *mark = vm->sp, result = value_error();
  qn_value wrt = rec_observe_tree(vm, f->captures[1]);
  if (value_is_error(wrt)) return wrt;
  bool one = value_is(wrt, TAG_INT),
       good = positions(vm, ((const transform_def *)f->code)->name, wrt, nargs, which, &nwrt);
  value_release(vm, wrt);
  if (!good) return result;
  forward w;
  leaf_list xs = {.vm = vm}, ys = {.vm = vm};
  qn_value x = value_error(), y = value_error();
  jacobian_owned own = {.map = value_error()};
  vm_owned held, held_parts[5];
  forward_begin(r, site, &w, &held);
  vm_own(vm, &held_parts[0], vm_drop_value, &x);
  vm_own(vm, &held_parts[1], vm_drop_value, &y);
  vm_own(vm, &held_parts[2], leaf_list_drop, &xs);
  vm_own(vm, &held_parts[3], leaf_list_drop, &ys);
  vm_own(vm, &held_parts[4], jacobian_drop, &own);
  if (forward_call(r, site, nargs, which, (int)nwrt, &w)) {
    qn_list *l = one ? NULL : list_from(vm, w.args, nwrt);
    x = l ? value_obj(TAG_LIST, l) : one ? value_retain(w.args[0]) : value_error();
    y = value_retain(w.y);
  }
  if (!value_is_error(x) && tree_each(vm, x, list_leaf, &xs) && tree_each(vm, y, list_leaf, &ys) &&
      forward_transpose(r, &w)) {
    size_t ncells = (size_t)xs.n * ys.n + 1;
    own.cells = mem_alloc(vm, ncells * sizeof *own.cells);
    if (own.cells) own.ncells = ncells;
    for (size_t i = 0; i < own.ncells; i++) own.cells[i] = value_nil();
    bool turn = xs.elements < ys.elements; /* fewer columns than rows */
    if (own.cells) own.map = turn ? pushforward_of(r, site, &w) : pullback_of(r, site, &w);
    /* The map takes one argument as it is, several as a list. */
    qn_value argument = turn && nwrt == 1 && !one ? value_list(x)->items[0] : turn ? x : y;
    if (!value_is_error(own.map) &&
        fill_cells(vm, own.map, argument, turn ? &xs : &ys, turn ? &ys : &xs, turn, own.cells)) {
      cell_walk c = {.vm = vm, .x = x, .cells = own.cells};
      result = tree_rebuild(vm, y, row_leaf, &c);
    }
  }
  jacobian_drop(vm, &own);
  mem_free(vm, xs.items, xs.cap * sizeof *xs.items);
  mem_free(vm, ys.items, ys.cap * sizeof *ys.items);
  if (!value_is_error(x)) value_release(vm, x);
  if (!value_is_error(y)) value_release(vm, y);
  forward_free(vm, &w, &held, mark);
  return result;
}

qn_value differentiate_call(struct recording *r, const rec_call_site *site) {
  transform_kind kind = ((const transform_def *)value_fn(site->fn)->code)->kind;
  if (site->nargs && (kind == TRANSFORM_VJP || kind == TRANSFORM_JVP) &&
      value_is(site->args[site->nargs - 1], TAG_RECORD))
    return raise_error(r->vm, E_keyword, SPAN_NONE, "%s takes no keyword arguments", transform_defs[kind].name);
  r->grads++;
  qn_value v = kind == TRANSFORM_VJP                                     ? call_vjp(r, site)
               : kind == TRANSFORM_JVP                                   ? call_jvp(r, site)
               : kind == TRANSFORM_JACOBIAN || kind == TRANSFORM_HESSIAN ? call_jacobian(r, site)
                                                                         : call_grad(r, site);
  r->grads--;
  return v;
}
