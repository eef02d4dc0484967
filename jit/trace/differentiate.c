/* Derivatives of functions: grad, value_and_grad, vjp, jvp, jacobian, hessian. (Functions that bring rules of their own, checkpoint and
 * custom_grad, are in regions.c.)
 *
 * The inner function is called while a recording is on (one is begun if there is none), with every float leaf of the arguments in question
 * replaced by an alias node, so that only uses through the argument count. Then graph_vjp appends the backward pass to the same graph, and
 * the derivatives are pending arrays like any others. Nothing is executed for the sake of differentiation, and derivatives of derivatives
 * need no further code.
 *
 * vjp: tracers stand for the cotangents of the result. The backward pass from them is cut out of the recording as a graph of its own
 * (body.c), bound to the values of the forward pass that it reads: the pullback. What was appended for it is then removed from the
 * recording.
 *
 * jvp: the pullback is linear in the cotangents. So its own backward pass, which begins with the tangents of the arguments, gives the
 * tangents of the result, and needs no values of the cotangents: forward mode without rules of its own. Nodes that only led to the pullback
 * are dead. Each node of the pullback belongs to one node of the function (graph_rules.apart), so the tangent of a node is the sum of what its
 * operands contribute, in the order of its op's rule: the same bits whether branches and loops are nodes or their parts are.
 *
 * jacobian: all unit vectors go through the pullback at once (vmap); or, if the argument is smaller than the result, through the
 * pushforward, which is the graph that jvp appends. A hessian is the jacobian of a gradient.
 */
#include <string.h>

#include "jit/graph/folds.h"
#include "jit/graph/grad.h"
#include "jit/run/eager.h"
#include "jit/trace/anchors.h"
#include "jit/trace/body.h"
#include "jit/trace/draws.h"
#include "jit/trace/gradients.h"
#include "jit/trace/pattern.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/rewrites.h"
#include "jit/trace/sizes.h"
#include "jit/trace/tracers.h"
#include "jit/trace/vmap.h"
#include "jit/trace/ways.h"

static bool leaves_add(leaves *l, uint32_t node) {
  if (!mem_grow(l->r->vm, (void **)&l->nodes, &l->cap, l->n + 1, sizeof *l->nodes)) return false;
  l->nodes[l->n++] = node;
  return true;
}

/* Makes room for l->grads and sets all of it to 0. False with an error raised. */
static bool leaves_room(leaves *l) {
  if (!mem_grow(l->r->vm, (void **)&l->grads, &l->grads_cap, l->n + 1, sizeof *l->grads)) return false;
  memset(l->grads, 0, l->grads_cap * sizeof *l->grads);
  return true;
}

void leaves_free(leaves *l) {
  mem_free(l->r->vm, l->nodes, l->cap * sizeof *l->nodes);
  mem_free(l->r->vm, l->grads, l->grads_cap * sizeof *l->grads);
}

void leaves_drop(qn_vm *vm, void *l) {
  (void)vm;
  leaves_free(l);
}

uint32_t alias_of_node(struct recording *r, uint32_t node) {
  uint32_t made = graph_alias(r->g, node, rec_site(r));
  return made ? made : fail_memory(r->vm);
}

qn_value leaves_alias(void *ctx, qn_value v) {
  leaves *l = ctx;
  qn_vm *vm = l->r->vm;
  if (!is_float_leaf(v)) return value_retain(v);
  if (value_is(v, TAG_ARRAY) && !rec_place(l->r, value_array(v)->device))
    return op_raise_devices(vm, "gradients", l->r->device, value_array(v)->device);
  uint32_t node = alias_of_node(l->r, rec_node(l->r, v));
  if (!node || !leaves_add(l, node)) return value_error();
  return rec_value_of(l->r, node);
}

/* The gradient of a leaf as an owned value: that of `node`, or zeros like the leaf if there is no node (0). */
static qn_value leaf_value(struct recording *r, qn_value like, uint32_t node) {
  return node ? rec_value_of(r, node) : tree_match_zeros(r->vm, like);
}

static qn_value grad_leaf(void *ctx, qn_value v) {
  leaves *l = ctx;
  return is_float_leaf(v) ? leaf_value(l->r, v, l->grads[l->at++]) : value_nil();
}

/* A list as a value; NULL, for which an error has been raised, becomes the error value. */
static qn_value list_value(qn_list *l) { return l ? value_obj(TAG_LIST, l) : value_error(); }

static qn_value list_of(qn_vm *vm, qn_value *items, size_t n) {
  qn_value list = list_value(list_from(vm, items, n));
  for (size_t i = 0; i < n; i++) value_release(vm, items[i]);
  return list;
}

/* The list [*y, made]. Takes over both values, and leaves *y unset. */
static qn_value result_with(qn_vm *vm, qn_value *y, qn_value made) {
  qn_value pair[2] = {*y, made};
  *y = value_unset();
  return list_of(vm, pair, 2);
}

/* `of`: the transform that is called. */
static bool fail_not_float(qn_vm *vm, qn_value of, int position, qn_value x) {
  const char *name = ((const transform_def *)value_fn(of)->code)->name;
  bool tree = value_is(x, TAG_LIST) || value_is(x, TAG_RECORD);
  return raise_false(
      vm, E_not_diff,
      tree
          ? "%s differentiates by floats, and %s, %s, has none; write its numbers as floats (1.0) or convert them with "
            "f32(...)"
          : "%s differentiates by floats, and %s is %s; pass a float or convert it with f32(...)",
      name, argument_said(vm, value_fn(of)->captures[0], position, 0).text, kind_said(x).text);
}

/* For tree_each: counts the numbers and arrays, in *ctx. */
static bool count_number(void *ctx, qn_value v) {
  if (value_is_number(v) || value_is(v, TAG_ARRAY)) ++*(uint32_t *)ctx;
  return true;
}

/* Called for an argument without float leaves. If it holds ints or bools, differentiating by it would give nil everywhere, so nothing would
 * be learnt: false with an error raised. If it holds no numbers at all, it simply has no gradient: true. */
static bool has_float(qn_vm *vm, qn_value of, int position, qn_value x) {
  uint32_t numbers = 0;
  if (!tree_each(vm, x, count_number, &numbers)) return false;
  return !numbers || fail_not_float(vm, of, position, x);
}

static bool add_region(void *ctx, const graph_region *copy) {
  struct recording *r = ctx;
  if (regions_add(r->vm, &r->regions, copy)) return true;
  error_clear(r->vm);
  r->g->failed = true;
  return false;
}

/* Makes zeros among gradients positive if they may be sums of cotangents in branches or loops: a captured one begins a sum with a zero, and an
 * arm that was not run contributes zeros. False with an error raised. */
static bool settle_zeros(struct recording *r, leaves *wrt) {
  graph *g = r->g;
  for (uint32_t i = 0; i < wrt->n && wrt->controls; i++) {
    if (!wrt->grads[i]) continue;
    const graph_type t = g->nodes[wrt->grads[i]].type;
    uint32_t in[2] = {wrt->grads[i], graph_const_scalar(g, (qn_dtype)t.dtype, t.weak, 0.0, 0, 0)};
    if (!in[1] || !(wrt->grads[i] = graph_op(g, OP_add, in, 2, NULL, rec_site(r)))) return fail_memory(r->vm);
  }
  return rec_room(r);
}

/* The gradient, the nodes from `first` on, may rely on sizes that are numbers of turns: does that hold in all of them? False with an error raised. */
static bool sizes_suffice(struct recording *r, uint32_t first) {
  if (!r->arm || !r->g->dims.strict) return true;
  reduces_note(r->g, first);
  return sizes_hold(r, false);
}

/* Raises an error, unless one is pending: a gradient of nodes of the recording cannot be made, as `why` says, or memory is short. */
static void fail_backward(struct recording *r, uint32_t culprit, const op_refusal *why) {
  if (error_pending(r->vm)) return;
  if (r->g->failed)
    raise_memory(r->vm);
  else if (why->id)
    rec_raise_refusal(r, culprit, why);
}

/* graph_vjp for nodes of the recording, with those of its regions that end after `from`. (The list is copied: rules may add regions
 * meanwhile.) Fills in wrt->grads. False with an error raised. */
static bool backward(struct recording *r, uint32_t from, const uint32_t *roots, const uint32_t *seeds, int nroots,
                     bool apart, leaves *wrt) {
  qn_vm *vm = r->vm;
  uint32_t low = r->regions.n, culprit = 0, before = r->g->n;
  while (low && r->regions.list[low - 1].end > from) low--; /* the others end before `from` */
  uint32_t n = r->regions.n - low;
  graph_region *regions = mem_alloc(vm, (n + 1) * sizeof *regions);
  if (!regions || !leaves_room(wrt)) {
    if (regions) mem_free(vm, regions, (n + 1) * sizeof *regions);
    return false;
  }
  if (n) memcpy(regions, r->regions.list + low, n * sizeof *regions);
  bool derived = rec_derivatives(r) > 0;
  graph_rules rules = {.regions = regions,
                       .n = n,
                       .ctx = r,
                       .apply = region_apply_rule,
                       .add = add_region,
                       .apart = apart || (derived && wrt->controls),
                       .derived = derived};
  op_refusal why = {0};
  vm_memory copies = {regions, (n + 1) * sizeof *regions};
  vm_owned held;
  /* the rule of a custom_grad calls a function of the program, which an exception may leave */
  vm_own(vm, &held, vm_drop_memory, &copies);
  bool ok = graph_vjp(r->g, from, roots, seeds, nroots, wrt->nodes, (int)wrt->n, &rules, wrt->grads, &culprit, &why);
  vm_disown(vm, &held);
  mem_free(vm, regions, (n + 1) * sizeof *regions);
  if (ok) return sizes_suffice(r, before) && settle_zeros(r, wrt);
  /* sizes may be one without being written alike */
  const bool sized = r->arm && r->g->dims.strict && !r->g->arena.failed && !error_pending(vm);
  if (r->g->failed && sized)
    (void)(rec_give_up(r, BREAK_branch) || true);
  else if (error_pending(vm) || r->g->arena.failed || (why.id == E_not_diff && !why.of_turns) || !turns_end(r))
    fail_backward(r, culprit, &why);
  return false;
}

/* Appends the backward pass from n roots, each with a seed; a root that is 0, or whose seed is, passes nothing on. Fills in wrt->grads.
 * False with an error raised. */
static bool backward_from(struct recording *r, uint32_t from, const uint32_t *roots, const uint32_t *seeds, uint32_t n,
                          bool apart, leaves *wrt) {
  qn_vm *vm = r->vm;
  vm_memory both = {.bytes = 2 * (n + (size_t)1) * sizeof *roots};
  uint32_t *some = both.p = mem_alloc(vm, both.bytes), *theirs = some + n + 1;
  if (!some) return false;
  int count = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (!roots[i] || !seeds[i]) continue;
    some[count] = roots[i];
    theirs[count++] = seeds[i];
  }
  vm_owned held;
  vm_own(vm, &held, vm_drop_memory, &both);
  bool ok = backward(r, from, some, theirs, count, apart, wrt);
  vm_disown(vm, &held);
  mem_free(vm, some, both.bytes);
  return ok;
}

/* ---- what is differentiated, and by what ------------------------------------------------------------------------------------------------------------ */

/* The node of `v`, which must be a float or a float array of rank 0; 0 if it is a constant. UINT32_MAX with an error raised if it is
 * something else. */
static uint32_t root_node(struct recording *r, qn_value v, const char *name) {
  if (value_is(v, TAG_FLOAT)) return rec_traced(r, v);
  if (value_is(v, TAG_ARRAY) && value_array(v)->rank == 0 && dtype_is_float((qn_dtype)value_array(v)->dtype))
    return rec_traced(r, v);
  raise_error(
      r->vm, E_not_diff, SPAN_NONE, "%s needs a function with a scalar float result, not %s%s", name, kind_said(v).text,
      !value_is(v, TAG_ARRAY)     ? ""
      : value_array(v)->rank == 0 ? "; ints and bools have no derivative, also where argmax, a comparison or i64(x) "
                                    "made them of floats"
                                  : "; reduce it with sum or mean");
  return UINT32_MAX;
}

enum { MOST_WRT = 64 };

/* The positions of arguments that `wrt` names, a plain int or list of ints. False with an error raised. */
static bool positions(qn_vm *vm, const char *name, qn_value wrt, int nargs, int which[MOST_WRT], uint32_t *n) {
  bool one = value_is(wrt, TAG_INT);
  *n = one ? 1 : value_is(wrt, TAG_LIST) ? value_list(wrt)->len : 0;
  if (!*n || *n > MOST_WRT)
    return raise_false(vm, E_argument, "%s: wrt is the position of an argument or a list of positions", name);
  for (uint32_t i = 0; i < *n; i++) {
    qn_value w = one ? wrt : value_list(wrt)->items[i];
    if (!value_is(w, TAG_INT) || w.u.i < -nargs || w.u.i >= nargs)
      return raise_false(vm, E_argument, "%s: wrt names an argument that the call does not have (%d given)", name,
                         nargs);
    which[i] = (int)(w.u.i < 0 ? w.u.i + nargs : w.u.i);
  }
  return true;
}

/* As positions, for the `wrt` of a transform, which may be traced. *one: it is a number, not a list. False with an error raised. */
static bool wrt_positions(struct recording *r, qn_value wrt, const char *name, int nargs, int which[MOST_WRT],
                          uint32_t *n, bool *one) {
  qn_value plain = rec_observe_tree(r->vm, wrt);
  if (value_is_error(plain)) return false;
  *one = value_is(plain, TAG_INT);
  bool ok = positions(r->vm, name, plain, nargs, which, n);
  value_release(r->vm, plain);
  return ok;
}

/* ---- the forward pass ------------------------------------------------------------------------------------------------------------ */

/* The forward pass: the call of the function on arguments of which some, the differentiated ones, have alias nodes. */
typedef struct forward {
  leaves in; /* the float leaves of the differentiated arguments */
  /* the float leaves of the result; nodes: 0 if one does not depend on the recording; grads: tracers of their cotangents */
  leaves out;
  qn_value *all, *args; /* on the value stack: all arguments, and those that are differentiated */
  int nall, nargs;
  qn_value y; /* the result, owned; unset before the call */
  uint32_t from;
  rec_marked before; /* where the nodes appended after the forward pass begin */
  uint64_t controls; /* recording.controls when it began */
  qn_value *missed;  /* borrowed: where the way around the call is missed in the function, as data; else false */
  bool held;         /* vmap_hold was called */
  vmap_pause pause;  /* what vmap_hold gave, for vmap_go_on */
} forward;

static bool out_leaf(void *ctx, qn_value v) {
  leaves *l = ctx;
  return !is_float_leaf(v) || leaves_add(l, rec_traced(l->r, v));
}

/* A node of the type of a leaf, which depends on nothing: it stands for a cotangent that is not known yet. 0 with an error raised. */
static uint32_t tracer_node(struct recording *r, qn_value like) {
  bool weak = value_is(like, TAG_FLOAT);
  const qn_array *a = weak ? NULL : value_array(like);
  uint32_t node = graph_const_scalar(r->g, weak ? WEAK_FLOAT : (qn_dtype)a->dtype, weak, 0, 0, rec_site(r));
  if (node && !weak && a->rank) {
    op_attr shape = {.n = a->rank};
    rec_sizes(r->vm, like, shape.d);
    node = graph_op(r->g, OP_broadcast, &node, 1, &shape, rec_site(r));
  }
  return alias_of_node(r, node);
}

static bool tracer_leaf(void *ctx, qn_value v) {
  leaves *l = ctx;
  return !is_float_leaf(v) || (l->grads[l->at++] = tracer_node(l->r, v)) != 0;
}

/* For vm_own, if an exception of a host passes. (The recording is dropped then, too.) */
static void forward_drop(qn_vm *vm, void *what) {
  forward *w = what;
  value_release(vm, w->y);
  leaves_free(&w->in);
  leaves_free(&w->out);
}

/* Begins a forward pass. The caller ends it by forward_free with the same `held`. */
static void forward_begin(struct recording *r, const rec_call_site *site, qn_value *missed, forward *w,
                          vm_owned *held) {
  *w = (forward){.y = value_unset(), .controls = rec_base(r)->controls, .missed = missed};
  w->in = w->out = (leaves){.r = r, .name = ((const transform_def *)value_fn(site->fn)->code)->name};
  vm_own(r->vm, held, forward_drop, w);
}

/* Puts the first `nargs` arguments on the stack, with alias nodes for the float leaves of those in `which` (NULL: all). `each`: every
 * differentiated argument must hold a float; else one of them must. False with an error raised. */
static bool forward_args(struct recording *r, const rec_call_site *site, int nargs, const int *which, int nwhich,
                         bool each, forward *w) {
  qn_vm *vm = r->vm;
  const char *name = w->in.name;
  w->nargs = which ? nwhich : nargs;
  if (!vm_enter(vm, 2 * (size_t)nargs + (size_t)w->nargs + 1)) return false;
  w->all = vm->sp;
  w->nall = nargs;
  w->from = r->g->n;
  for (int i = 0; i < nargs; i++) *vm->sp++ = value_retain(site->args[i]);
  w->args = vm->sp;
  for (int k = 0; k < w->nargs; k++) {
    int i = which ? which[k] : k;
    qn_value x = w->all[i];
    uint32_t before = w->in.n;
    if (each && !is_float_leaf(x) && !value_is(x, TAG_LIST) && !value_is(x, TAG_RECORD))
      return fail_not_float(vm, site->fn, i, x);
    qn_value aliased = tree_rebuild(vm, x, leaves_alias, &w->in);
    if (value_is_error(aliased)) return false;
    value_release(vm, x);
    w->all[i] = aliased;
    *vm->sp++ = value_retain(aliased);
    if (each && w->in.n == before && !has_float(vm, site->fn, i, aliased)) return false;
  }
  if (each || w->in.n) return true;
  if (nargs) return fail_not_float(vm, site->fn, which ? which[0] : 0, w->args[0]);
  return raise_false(vm, E_arity, "%s takes the function and its arguments: %s(f, x)", name, name);
}

/* Calls the function, of a gradient that stands in a way where parts may be chosen: they may be in the function, too. The way that these leave is one of
 * the function alone, and whether it has been missed is told behind the gradient. Owned, or the error value. */
static qn_value forward_chosen(struct recording *r, const rec_way *around, const rec_call_site *site, forward *w) {
  qn_vm *vm = r->vm;
  drawn_slots drawn;
  rec_way way;
  qn_value parts[END_PARTS];
  if (!draws_begin(r, (rec_slots){NULL, 0}, &drawn)) return value_error();
  way_begin(&way, WAY_TAIL, r, NULL, drawn.own);
  way.choices = around->choices;
  qn_value y = vm->hooks.call(vm, value_fn(site->fn)->captures[0], w->all, w->nall, site->args[site->nargs - 1]);
  bool ok = way_close(vm, &way, value_is_error(y) ? REC_ERROR : REC_VALUE, y, parts);
  y = ok ? value_retain(parts[END_VALUE]) : value_error();
  *w->missed = parts[END_MISSED];
  ok = ok && rec_now(vm) == r && !is_bool(*w->missed, true) && !value_is(y, TAG_UNSET);
  end_parts_free(vm, parts);
  if (ok) return y;
  if (!value_is_error(y)) value_release(vm, y);
  if (!error_pending(vm)) (void)rec_give_up(rec_now(vm) ? rec_now(vm) : r, BREAK_branch);
  return value_error();
}

/* Calls the function; meanwhile r->wrt says by what is differentiated. False with an error raised. */
static bool forward_run(struct recording *r, const rec_call_site *site, forward *w) {
  transform_kind kind = ((const transform_def *)value_fn(site->fn)->code)->kind;
  derived_by by = {r->wrt, w->in.nodes, w->in.n, kind == TRANSFORM_JVP || kind == TRANSFORM_JACOBIAN};
  const rec_way *around = way_chooser(r);
  r->wrt = &by;
  qn_value y =
      around ? forward_chosen(r, around, site, w)
             : r->vm->hooks.call(r->vm, value_fn(site->fn)->captures[0], w->all, w->nall, site->args[site->nargs - 1]);
  r->wrt = by.outer;
  w->in.controls = rec_base(r)->controls != w->controls;
  if (value_is_error(y)) return false;
  w->y = y;
  return true;
}

/* forward_args and forward_run for the transforms that give floats of every result: the result must hold a float leaf. False with an error raised. */
static bool forward_call(struct recording *r, const rec_call_site *site, int nargs, const int *which, int nwhich,
                         forward *w) {
  qn_vm *vm = r->vm;
  if (!forward_args(r, site, nargs, which, nwhich, false, w) || !forward_run(r, site, w)) return false;
  if (!tree_each(vm, w->y, out_leaf, &w->out)) return false;
  if (w->out.n) return true;
  return raise_false(vm, E_not_diff, "%s needs a function whose result is or holds a float or a float array, not %s",
                     w->in.name, kind_said(w->y).text);
}

/* Appends the backward pass from tracers of the cotangents, which nobody knows yet. `tangents`: it is appended for forward_push. False with an
 * error raised. */
static bool forward_transpose(struct recording *r, bool tangents, forward *w) {
  if (!(w->held = vmap_hold(r, &w->pause))) return false;
  w->before = rec_mark(r);
  return leaves_room(&w->out) && tree_each(r->vm, w->y, tracer_leaf, &w->out) &&
         backward_from(r, w->from, w->out.nodes, w->out.grads, w->out.n, tangents, &w->in);
}

/* Ends what vmap_hold began: nodes of lanes get counterparts again. Nodes that were removed meanwhile got none. */
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

/* ---- grad, value_and_grad ------------------------------------------------------------------------------------------------------------ */

/* The node of the loss: 0 for a constant, UINT32_MAX with an error raised if there is none. `aux`: the result is a list of the loss and
 * something else. */
static uint32_t loss_node(struct recording *r, qn_value y, bool aux, const char *name) {
  if (!aux) return root_node(r, y, name);
  if (value_is(y, TAG_LIST) && value_list(y)->len == 2) return root_node(r, value_list(y)->items[0], name);
  raise_error(r->vm, E_not_diff, SPAN_NONE, "with aux: true the function returns (value, aux)");
  return UINT32_MAX;
}

/* ---- stacked lists --------------------------------------------------------------------------------------------------------------------
 *
 * Of a list, the cotangents of each item are added in the order of its uses. Of a stacked one (stacked.c) those of each row that is read are added
 * first, and then the sums to the row. These are the same bits only where every item is read once, as where a single loop goes over the
 * list. So a list that is differentiated stays stacked only then. */

/* Is a node of a loop's body the number of the turn, which is another one in each and never counts from the end? g: where the loop is. */
static bool is_turn_number(const graph *g, const graph_node *loop, uint32_t node) {
  const graph *body = loop->payload.regions[1];
  const graph_node *n = &body->nodes[node];
  while (n->kind == NODE_OP && (n->op == OP_fit || n->op == OP_cast) &&
         (n->type.dtype == QN_i64 || n->type.dtype == QN_i32))
    n = &body->nodes[n->in[0]];
  uint32_t k = n->kind == NODE_INPUT ? n->payload.input : UINT32_MAX;
  qn_value first;
  return k < graph_loop_carries(loop) && graph_counts_up(body, k) && graph_const_value(g, loop->in[k], &first) &&
         value_is(first, TAG_INT) && first.u.i >= 0;
}

/* Is each row of a node read once at most? `loop`: the loop of graph `around` whose body g is; NULL: it is none. */
static bool rows_read_once(const graph *g, uint32_t node, const graph *around, const graph_node *loop) {
  const graph_node *user = NULL;
  uint32_t uses = 0, operand = 0;
  for (uint32_t k = 0; k < g->noutputs; k++) uses += loop && g->outputs[k] == node;
  for (uint32_t i = node + 1; i < g->n; i++)
    for (uint32_t k = 0; k < g->nodes[i].nin; k++) {
      if (g->nodes[i].in[k] != node) continue;
      uses++;
      user = &g->nodes[i];
      operand = k;
    }
  if (!uses || uses > 1) return !uses;
  if (!user) return false;
  if (user->kind == NODE_OP) {
    bool row = user->op == OP_index && operand == 0 && user->nin == 2 && user->attr && user->attr->n == 1;
    return !loop || (row && is_turn_number(around, loop, user->in[1]));
  }
  if (!graph_kind_has_regions(user->kind) || loop) return false;
  graph *const *regions = user->payload.regions;
  if (user->kind == NODE_IF)
    return operand && rows_read_once(regions[0], regions[0]->inputs[operand - 1], NULL, NULL) &&
           rows_read_once(regions[1], regions[1]->inputs[operand - 1], NULL, NULL);
  uint32_t in_header = regions[0]->inputs[operand];
  if (operand < graph_loop_carries(user)) return false;
  for (uint32_t i = in_header + 1; i < regions[0]->n; i++)
    for (uint32_t k = 0; k < regions[0]->nodes[i].nin; k++)
      if (regions[0]->nodes[i].in[k] == in_header) return false;
  return rows_read_once(regions[1], regions[1]->inputs[operand], g, user);
}

/* How deep in an argument stacked lists are looked for: as deep as places are, and in a list of such arguments. */
enum { STACKED_DEEP = PLACE_DEPTH + 1 };

/* Is each item of the stacked lists in a value read once at most? They stand at most `depth` levels below it. *any: there are some. */
static bool items_read_once(const struct recording *r, qn_value v, int depth, bool *any) {
  if ((!value_is(v, TAG_LIST) && !value_is(v, TAG_RECORD)) || depth < 0) return true;
  bool stacked = value_is_stacked(v);
  uint32_t n;
  const qn_value *items = value_parts(stacked ? value_list(v)->items[STACKED_PARTS].u.p : v.u.p, &n);
  *any |= stacked;
  for (uint32_t i = 0; i < n; i++) {
    if (!stacked && !items_read_once(r, items[i], depth - 1, any)) return false;
    if (stacked && is_float_leaf(items[i]) && !rows_read_once(r->g, rec_traced(r, items[i]), NULL, NULL)) return false;
  }
  return true;
}

/* May the stacked lists among the differentiated arguments stay so? If not, the call is made again, by the interpreter, and lists like these are not
 * stacked any more: false with an error raised. */
static bool stacked_in_order(struct recording *r, const forward *w) {
  uint32_t stacked = 0;
  for (int k = 0; k < w->nall && k < STACKABLE_MAX; k++) stacked |= (uint32_t)value_is_stacked(w->all[k]) << k;
  bool ok = true, any = false;
  for (int k = 0; k < w->nargs && ok; k++) ok = items_read_once(r, w->args[k], STACKED_DEEP, &any);
  if (ok) return true;
  anchor_specializations *of = rec_base(r)->of;
  if (of) of->apart |= stacked, of->stacked &= ~stacked;
  for (uint32_t i = 0; of && i < of->nplaces; i++) of->places[i].apart = true;
  rec_base(r)->again = true;
  return raise_false(r->vm, E_not_diff, "%s: the items of a list are read more than once", w->in.name);
}

/* What stands for the gradient of a stacked list, while it is made. */
typedef struct stacked_grads {
  struct recording *r;
  const qn_list *parts;
  qn_list *kept; /* of the parts those that have gradients */
  uint32_t at, n;
} stacked_grads;

/* In the shape of items: what is no float has no gradient. */
static qn_value grad_shape(void *ctx, qn_value v) {
  stacked_grads *s = ctx;
  if (!value_is(v, TAG_UNSET) && !value_is(v, TAG_SIGNAL)) return value_nil();
  qn_value part = s->parts->items[s->at++];
  if (!is_float_leaf(part)) return value_nil();
  s->kept->items[s->n++] = value_retain(part);
  return v;
}

/* A stacked list with the gradients of this one. Owned, or the error value. */
static qn_value grads_stacked(struct recording *r, forward *w, qn_value v) {
  qn_vm *vm = r->vm;
  const qn_value *own = value_list(v)->items;
  stacked_grads s = {.r = r, .parts = value_list(own[STACKED_PARTS])};
  if (!(s.kept = list_new(vm, s.parts->len))) return value_error();
  qn_value shape = tree_rebuild(vm, own[STACKED_SHAPE], grad_shape, &s), parts = value_obj(TAG_LIST, s.kept);
  s.kept->len = s.n;
  qn_value grads = value_is_error(shape) ? value_error() : tree_rebuild(vm, parts, grad_leaf, &w->in);
  value_release(vm, parts);
  return rec_stacked(vm, shape, grads);
}

static bool holds_stacked(qn_value v, int depth) {
  if (value_is_stacked(v)) return true;
  for (uint32_t i = 0; depth > 0 && value_is(v, TAG_RECORD) && i < value_record(v)->len; i++)
    if (holds_stacked(value_record(v)->items[i], depth - 1)) return true;
  return false;
}

static qn_value grads_like(struct recording *r, forward *w, qn_value v) {
  if (value_is_stacked(v)) return grads_stacked(r, w, v);
  if (!value_is(v, TAG_RECORD) || !holds_stacked(v, STACKED_DEEP)) return tree_rebuild(r->vm, v, grad_leaf, &w->in);
  qn_record *copy = record_like(r->vm, value_record(v));
  qn_value out = copy ? value_obj(TAG_RECORD, copy) : value_error();
  for (uint32_t i = 0; copy && i < copy->len; i++) {
    qn_value made = grads_like(r, w, value_record(v)->items[i]);
    if (value_is_error(made)) return value_fail(r->vm, out);
    copy->items[i] = made;
  }
  return out;
}

/* The gradients: for each differentiated argument a tree like it; in a list, unless it is `one` argument. Owned, or the error value. */
static qn_value grads_value(struct recording *r, forward *w, bool one) {
  qn_vm *vm = r->vm;
  qn_value grads[MOST_WRT];
  int made = 0;
  r->handing_out = true;
  w->in.at = 0;
  while (made < w->nargs && !value_is_error(grads[made] = grads_like(r, w, w->args[made]))) made++;
  r->handing_out = false;
  if (made == w->nargs) return one ? grads[0] : list_of(vm, grads, (size_t)made);
  while (made-- > 0) value_release(vm, grads[made]);
  return value_error();
}

static qn_value call_grad(struct recording *r, const rec_call_site *site, qn_value *missed) {
  qn_vm *vm = r->vm;
  const qn_fn *f = value_fn(site->fn);
  const transform_def *def = f->code;
  /* errors of the gradient inside a hessian speak of the hessian */
  const char *name = f->ncaptures > 3 ? transform_defs[TRANSFORM_HESSIAN].name : def->name;
  bool aux = f->ncaptures > 2 && value_is(f->captures[2], TAG_BOOL) && f->captures[2].u.i, one;
  int nargs = site->nargs - 1, which[MOST_WRT];
  uint32_t nwrt, root = UINT32_MAX, seed = 0;
  if (!wrt_positions(r, f->captures[1], name, nargs, which, &nwrt, &one)) return value_error();
  qn_value *mark = vm->sp, result = value_error();
  forward w;
  vm_owned held;
  forward_begin(r, site, missed, &w, &held);
  w.in.name = name;
  if (forward_args(r, site, nargs, which, (int)nwrt, true, &w) && forward_run(r, site, &w) && stacked_in_order(r, &w))
    root = loss_node(r, w.y, aux, name);
  if (root != UINT32_MAX && rewrites_append(r, w.from, &root) &&
      backward(r, w.from, &root, &seed, root != 0, false, &w.in) && rec_hand_numbers(r, w.in.grads, w.in.n))
    result = grads_value(r, &w, one);
  if (!value_is_error(result) && def->kind != TRANSFORM_GRAD) result = result_with(vm, &w.y, result);
  forward_free(vm, &w, &held, mark);
  return result;
}

/* ---- vjp and jvp ------------------------------------------------------------------------------------------------------------------------- */

/* A number that does not depend on the recording gets a node here, so that it can be an output of a graph. */
qn_value leaves_keep(void *ctx, qn_value v) {
  struct recording *r = ctx;
  if (!is_float_leaf(v)) return value_nil();
  if (!value_is(v, TAG_FLOAT) || rec_traced(r, v)) return value_retain(v);
  uint32_t node = rec_node(r, v);
  if (node) return value_traced(v, r->base + node);
  return error_pending(r->vm) ? value_error() : raise_memory(r->vm);
}

/* The template of a linear map's result: trees like `args`, whose float leaves are the outputs in order; in a list if there are several.
 * False with an error raised. */
static bool result_template(struct recording *r, const qn_value *args, int nargs, tpl_list *out) {
  qn_vm *vm = r->vm;
  node_list in_order = {0};
  qn_value all = list_value(list_from(vm, args, (size_t)nargs));
  qn_value floats = value_is_error(all) ? all : tree_rebuild(vm, all, leaves_keep, r);
  bool ok = !value_is_error(floats) &&
            template_of_nodes(r, nargs == 1 ? value_list(floats)->items[0] : floats, out, &in_order);
  value_release(vm, all);
  value_release(vm, floats);
  nodes_free(vm, &in_order);
  return ok;
}

/* Finishes a body (taken over) and makes a function of it whose bound inputs have the values of these nodes. Owned, or the error value. */
static qn_value bind_body(struct recording *r, graph_body *b, const node_list *bound) {
  qn_vm *vm = r->vm;
  body_finish(b);
  qn_fn *f = fn_new(vm, FN_GRAPH, b, bound->n);
  body_release(vm, b);
  if (!f) return value_error();
  qn_value fn = value_obj(TAG_FN, f);
  if (!rec_hand_numbers(r, bound->nodes, bound->n)) return value_fail(vm, fn);
  r->handing_out = true;
  for (uint32_t i = 0; i < bound->n; i++) {
    f->captures[i] = rec_value_of(r, bound->nodes[i]);
    if (!value_is_error(f->captures[i])) continue;
    f->captures[i] = value_nil();
    fn = value_fail(vm, fn);
    break;
  }
  r->handing_out = false;
  return fn;
}

static bool fill_leaf(void *ctx, qn_value v) {
  leaves *l = ctx;
  if (!is_float_leaf(v)) return true;
  uint32_t i = l->at++;
  if (!l->grads[i]) l->grads[i] = tracer_node(l->r, v);
  return l->grads[i] != 0;
}

/* Gives each leaf without a gradient a node that is zeros; `args` are the trees whose leaves they are. False with an error raised. */
static bool fill_leaves(leaves *l, const qn_value *args, int nargs) {
  l->at = 0;
  for (int i = 0; i < nargs; i++)
    if (!tree_each(l->r->vm, args[i], fill_leaf, l)) return false;
  return true;
}

/* Removes the nodes appended after the forward pass from the recording. Results of its branches and loops that were taken among them and are
 * bound are taken anew. False with an error raised. */
static bool forget_map(struct recording *r, const forward *w, node_list *bound) {
  graph *g = r->g;
  size_t bytes = (bound->n + (size_t)1) * sizeof(graph_node);
  graph_node *nodes = mem_alloc(r->vm, bytes);
  for (uint32_t i = 0; i < bound->n && nodes; i++) nodes[i] = g->nodes[bound->nodes[i]];
  rec_forget(r, w->before);
  uint32_t left = g->n;
  bool ok = nodes != NULL;
  for (uint32_t i = 0; i < bound->n && ok; i++)
    if (bound->nodes[i] >= left) ok = (bound->nodes[i] = graph_proj_again(g, &nodes[i])) != 0 || fail_memory(r->vm);
  if (nodes) mem_free(r->vm, nodes, bytes);
  return ok && rec_room(r);
}

/* Makes a graph value of the nodes appended after the forward pass, and removes them from the recording: a linear map from the leaves `in`
 * (of a tree like `argument`) to the leaves `out` (of trees like `results`). `name` is what messages call it. Owned, or the error value. */
static qn_value map_of(struct recording *r, const rec_call_site *site, forward *w, const char *name, qn_value argument,
                       const qn_value *results, int nresults, const leaves *in, const leaves *out) {
  qn_vm *vm = r->vm;
  node_list bound = {0};
  graph_body *b = body_new(vm);
  qn_value like = b ? tree_match_prototype(vm, argument) : value_error(), result = value_error();
  bool ok = !value_is_error(like);
  if (ok) {
    b->code.anchor.name = name;
    b->code.anchor.at = site->at;
    b->like = like;
    b->of_lanes = vmap_around(r);
  }
  ok = ok && result_template(r, results, nresults, &b->call.result) &&
       body_cut(r, b, w->before.n, in->grads, in->n, out->grads, out->n, &bound);
  if (ok) rec_base(r)->sized_maps |= graph_has_turn_sizes(b->call.graph);
  ok = forget_map(r, w, &bound) && ok;
  forward_go_on(r, w);
  if (ok)
    result = bind_body(r, b, &bound);
  else if (b)
    body_release(vm, b);
  nodes_free(vm, &bound);
  return result;
}

/* The pullback of a call, whose backward pass has been appended. Owned, or the error value. */
static qn_value pullback_of(struct recording *r, const rec_call_site *site, forward *w) {
  if (!fill_leaves(&w->in, w->args, w->nargs)) return value_error();
  return map_of(r, site, w, "pullback", w->y, w->args, w->nargs, &w->out, &w->in);
}

static qn_value call_vjp(struct recording *r, const rec_call_site *site, qn_value *missed) {
  qn_vm *vm = r->vm;
  qn_value *mark = vm->sp, back = value_error();
  forward w;
  vm_owned held;
  forward_begin(r, site, missed, &w, &held);
  if (forward_call(r, site, site->nargs - 1, NULL, 0, &w) && forward_transpose(r, false, &w))
    back = pullback_of(r, site, &w);
  qn_value result = value_is_error(back) ? back : result_with(vm, &w.y, back);
  forward_free(vm, &w, &held, mark);
  return result;
}

/* Appends the transpose of the backward pass, which is linear in the tracers of the cotangents: from dx, the tangents of the arguments'
 * leaves (in dx->grads; 0: zero), it computes dy, those of the result's leaves. False with an error raised. */
static bool forward_push(struct recording *r, const forward *w, leaves *dx, leaves *dy) {
  qn_vm *vm = r->vm;
  for (uint32_t i = 0; i < w->out.n; i++)
    if (!leaves_add(dy, w->out.grads[i])) return false;
  dy->controls = w->in.controls;
  vm_owned held[2];
  vm_own(vm, &held[0], leaves_drop, dx);
  vm_own(vm, &held[1], leaves_drop, dy);
  bool ok = backward_from(r, w->before.n, w->in.grads, dx->grads, w->in.n, false, dy);
  vm_disown(vm, &held[0]);
  return ok;
}

typedef struct tangents {
  struct recording *r;
  const leaves *in;
  leaves *dx;
} tangents;

static bool take_tangent(void *ctx, qn_value like, qn_value given) {
  tangents *t = ctx;
  (void)like;
  uint32_t i = t->dx->at++;
  if (!t->in->grads[i] || value_is(given, TAG_NIL)) return true;
  if (value_is(given, TAG_ARRAY) && !rec_place(t->r, value_array(given)->device)) {
    op_raise_devices(t->r->vm, "jvp", t->r->device, value_array(given)->device);
    return false;
  }
  return (t->dx->grads[i] = rec_node(t->r, given)) != 0 || fail_memory(t->r->vm);
}

/* Nodes from `from` on that the tangents in l->grads do not depend on are marked as never failing: they only led to the pullback, and are
 * computed from cotangents that are not real. False with an error raised. */
static bool trust_dead(struct recording *r, uint32_t from, const leaves *l) {
  graph *g = r->g;
  uint8_t *needed = mem_zalloc(r->vm, g->n);
  if (!needed) return false;
  for (uint32_t i = 0; i < l->n; i++) needed[l->grads[i]] = 1;
  bool ok = true;
  for (uint32_t i = g->n - 1; i >= from && ok; i--) {
    const graph_node *n = &g->nodes[i];
    for (int k = 0; k < n->nin && needed[i]; k++) needed[n->in[k]] = 1;
    if (!needed[i]) ok = graph_node_prove(g, i);
  }
  mem_free(r->vm, needed, g->n);
  return ok || (raise_memory(r->vm), false);
}

static qn_value call_jvp(struct recording *r, const rec_call_site *site, qn_value *missed) {
  qn_vm *vm = r->vm;
  int given = site->nargs - 1, n = given / 2;
  if (!given || given % 2)
    return raise_error(vm, E_arity, SPAN_NONE,
                       "jvp takes the function's arguments and as many tangents: jvp(f, x, dx), jvp(f, x, y, dx, dy)");
  qn_value *mark = vm->sp, result = value_error();
  forward w;
  vm_owned held;
  forward_begin(r, site, missed, &w, &held);
  bool ok = forward_call(r, site, n, NULL, 0, &w) && forward_transpose(r, true, &w);
  leaves dx = {.r = r, .n = w.in.n}, dy = {.r = r};
  tangents t = {r, &w.in, &dx};
  ok = ok && leaves_room(&dx);
  for (int i = 0; i < n && ok; i++)
    ok = tree_match_walk(vm, "jvp: the tangent", "the argument", site->args[i], site->args[n + i], 0, take_tangent, &t);
  ok = ok && forward_push(r, &w, &dx, &dy) && trust_dead(r, w.before.n, &dy);
  forward_go_on(r, &w);
  ok = ok && rec_hand_numbers(r, dy.grads, dy.n);
  if (ok) {
    r->handing_out = true;
    result = tree_rebuild(vm, w.y, grad_leaf, &dy);
    r->handing_out = false;
    if (!value_is_error(result)) result = result_with(vm, &w.y, result);
  }
  leaves_free(&dx);
  leaves_free(&dy);
  forward_free(vm, &w, &held, mark);
  return result;
}

/* ---- jacobian ----------------------------------------------------------------------------------------------------------------------------- */

/* The pushforward of a call: a graph of the linear map from tangents of the arguments to those of the result. Owned, or the error value. */
static qn_value pushforward_of(struct recording *r, const rec_call_site *site, forward *w) {
  qn_vm *vm = r->vm;
  leaves dx = {.r = r, .n = w->in.n}, dy = {.r = r};
  qn_value x = value_error(), result = value_error();
  if (leaves_room(&dx) && fill_leaves(&dx, w->args, w->nargs) && forward_push(r, w, &dx, &dy) &&
      fill_leaves(&dy, &w->y, 1))
    x = w->nargs == 1 ? value_retain(w->args[0]) : list_value(list_from(vm, w->args, (size_t)w->nargs));
  if (!value_is_error(x)) {
    result = map_of(r, site, w, "pushforward", x, &w->y, 1, &dx, &dy);
    value_release(vm, x);
  } else {
    rec_forget(r, w->before);
    forward_go_on(r, w);
  }
  leaves_free(&dx);
  leaves_free(&dy);
  return result;
}

/* All unit vectors of a leaf's space as an array [size, shape...], one in each row; for a number, 1. Owned. */
static qn_value unit_vectors(qn_vm *vm, qn_value like) {
  if (!value_is(like, TAG_ARRAY) || value_array(like)->rank == 0) return value_float(1);
  const qn_array *a = value_array(like);
  int64_t shape[ARRAY_MAX_RANK + 1];
  struct recording *held = rec_hold(vm);
  qn_value out = value_error();
  if (rec_sizes_of_call(vm, like, shape + 1)) {
    shape[0] = op_count(vm, like, UINT8_MAX);
    qn_value eye = op_eye(vm, shape[0], shape[0], (qn_dtype)a->dtype);
    out = value_is_error(eye) ? eye : op_reshape(vm, eye, a->rank + 1, shape);
    value_release(vm, eye);
  }
  if (rec_let_go(vm, held, !value_is_error(out)) || value_is_error(out)) return out;
  return value_fail(vm, out);
}

/* How many elements a list of leaves has: a size. */
static qn_dim elements_of(qn_vm *vm, const leaf_list *l) {
  qn_dim n = 0;
  for (uint32_t i = 0; i < l->n; i++) {
    bool array = value_is(l->items[i], TAG_ARRAY);
    n = dim_add(rec_dims(vm), n, array ? op_count(vm, l->items[i], UINT8_MAX) : 1);
  }
  return n;
}

typedef struct one_leaf {
  uint32_t at, which;
  qn_value v;
} one_leaf;

static qn_value place_leaf(void *ctx, qn_value v) {
  one_leaf *o = ctx;
  return is_float_leaf(v) && o->at++ == o->which ? value_retain(o->v) : value_nil();
}

/* A block of the jacobian in the shape that it has in the result, [shape of y..., shape of x...]. `v` (taken over) is the block with the
 * axes of `rows` made one, in front, and those of `columns` behind it. `turn`: the axes of `rows` are to come last. Owned, or the error
 * value. */
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
  struct recording *held = rec_hold(vm);
  rec_sizes(vm, rows, shape.d + (turn ? rb : 0));
  if (b) rec_sizes(vm, columns, shape.d + (turn ? 0 : ra));
  qn_value out = op_apply(vm, OP_reshape, &v, 1, &shape);
  value_release(vm, v);
  if (rec_let_go(vm, held, !value_is_error(out)) || value_is_error(out)) return out;
  return value_fail(vm, out);
}

/* Fills in the blocks of the jacobian: cells[k * nx + j] is the derivative of leaf k of y by leaf j of x. For each leaf of `from` all its
 * unit vectors go through the linear map `map` at once, by vmap. `turn`: `from` are the leaves of x, else those of y. If one of the two
 * leaves is a host float, the block has the dtype of the other one. */
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
    value_release(vm, through);
    value_release(vm, o.v);
    value_release(vm, in);
    leaf_list got = {.vm = vm};
    ok = !value_is_error(out) && tree_each(vm, out, leaf_list_float, &got);
    for (uint32_t k = 0; k < to->n && k < got.n && ok; k++) {
      qn_value cell = shape_cell(vm, value_retain(got.items[k]), from->items[i], to->items[k], turn);
      if ((ok = !value_is_error(cell))) cells[turn ? k * from->n + i : i * to->n + k] = cell;
    }
    leaf_list_drop(vm, &got);
    value_release(vm, out);
  }
  return ok;
}

typedef struct cell_walk {
  qn_vm *vm;
  qn_value x; /* what is differentiated by; each block row is a tree like it */
  const qn_value *cells;
  uint32_t at;
} cell_walk;

static qn_value cell_leaf(void *ctx, qn_value v) {
  cell_walk *c = ctx;
  return is_float_leaf(v) ? value_retain(c->cells[c->at++]) : value_nil();
}

static qn_value row_leaf(void *ctx, qn_value v) {
  cell_walk *c = ctx;
  return is_float_leaf(v) ? tree_rebuild(c->vm, c->x, cell_leaf, c) : value_nil();
}

static qn_value call_jacobian(struct recording *r, const rec_call_site *site, qn_value *missed) {
  qn_vm *vm = r->vm;
  const qn_fn *f = value_fn(site->fn);
  int nargs = site->nargs - 1, which[MOST_WRT];
  uint32_t nwrt;
  bool one;
  qn_value *mark = vm->sp, result = value_error();
  const char *name = ((const transform_def *)f->code)->name;
  if (!wrt_positions(r, f->captures[1], name, nargs, which, &nwrt, &one)) return result;
  forward w;
  leaf_list xs = {.vm = vm}, ys = {.vm = vm};
  enum { X, Y, MAP, CELLS, OWNED };
  qn_value own[OWNED]; /* what is differentiated by, the result, the linear map, and the blocks so far */
  vm_owned held, held_values[OWNED], held_lists[2];
  forward_begin(r, site, missed, &w, &held);
  for (int i = 0; i < OWNED; i++) {
    own[i] = value_error();
    vm_own(vm, &held_values[i], vm_drop_value, &own[i]);
  }
  vm_own(vm, &held_lists[0], leaf_list_drop, &xs);
  vm_own(vm, &held_lists[1], leaf_list_drop, &ys);
  bool ok = forward_call(r, site, nargs, which, (int)nwrt, &w);
  if (ok) {
    own[X] = one ? value_retain(w.args[0]) : list_value(list_from(vm, w.args, nwrt));
    own[Y] = value_retain(w.y);
  }
  ok = ok && !value_is_error(own[X]) && tree_each(vm, own[X], leaf_list_float, &xs) &&
       tree_each(vm, own[Y], leaf_list_float, &ys);
  /* Fewer unit vectors go through the pushforward than through the pullback? */
  int turn = 0;
  if (ok) {
    struct recording *held_sizes = rec_hold(vm);
    turn = rec_size_at_most(vm, dim_add(rec_dims(vm), elements_of(vm, &xs), 1), elements_of(vm, &ys));
    ok = rec_let_go(vm, held_sizes, turn >= 0);
  }
  ok = ok && forward_transpose(r, turn, &w) &&
       !value_is_error(own[CELLS] = list_value(list_new(vm, (size_t)xs.n * ys.n)));
  if (ok) {
    own[MAP] = turn ? pushforward_of(r, site, &w) : pullback_of(r, site, &w);
    /* A map of one argument takes its tangent as it is; one of several takes a list. */
    qn_value argument = turn && nwrt == 1 && !one ? value_list(own[X])->items[0] : own[turn ? X : Y];
    qn_value *cells = value_list(own[CELLS])->items;
    if (!value_is_error(own[MAP]) &&
        fill_cells(vm, own[MAP], argument, turn ? &xs : &ys, turn ? &ys : &xs, turn, cells)) {
      cell_walk c = {.vm = vm, .x = own[X], .cells = cells};
      result = tree_rebuild(vm, own[Y], row_leaf, &c);
    }
  }
  for (int i = 0; i < OWNED; i++) value_release(vm, own[i]);
  leaf_list_drop(vm, &xs);
  leaf_list_drop(vm, &ys);
  forward_free(vm, &w, &held, mark);
  return result;
}

qn_value differentiate_call(struct recording *r, const rec_call_site *site) {
  transform_kind kind = ((const transform_def *)value_fn(site->fn)->code)->kind;
  if (site->nargs && (kind == TRANSFORM_VJP || kind == TRANSFORM_JVP) &&
      value_is(site->args[site->nargs - 1], TAG_RECORD))
    return raise_error(r->vm, E_keyword, SPAN_NONE, "%s takes no keyword arguments", transform_defs[kind].name);
  rec_way *around = way_chooser(r);
  qn_value missed = value_bool(false);
  r->grads++;
  qn_value v = kind == TRANSFORM_VJP                                     ? call_vjp(r, site, &missed)
               : kind == TRANSFORM_JVP                                   ? call_jvp(r, site, &missed)
               : kind == TRANSFORM_JACOBIAN || kind == TRANSFORM_HESSIAN ? call_jacobian(r, site, &missed)
                                                                         : call_grad(r, site, &missed);
  r->grads--;
  if (value_is_error(v) || is_bool(missed, false)) return v;
  return way_split_missed(r->vm, around, missed) ? v : value_fail(r->vm, v);
}
