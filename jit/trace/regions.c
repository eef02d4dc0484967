/* Regions of a recording or graph: the nodes of one call of a function wrapped in checkpoint or custom_grad, which is differentiated in its
 * own way (graph_region, jit/graph/graph.h).
 *
 * The results of a region are alias nodes at its end, so that every use of them is seen as a use of the region. For a checkpoint, the
 * backward pass computes the region once more. A custom_grad has a rule: the program's backward function, and templates that say how its
 * arguments are made of the region's nodes; to differentiate the region, the function is called inside the recording. Copies of a region
 * share its rule until one of them has to change it.
 *
 * In an arm of a branch or a turn of a loop there are no regions. There a checkpoint is computed once more with the arm, as its gradient decides; and the
 * derivative of a custom_grad is recorded at once, as a graph that a node holds (graph_rule_attr).
 */
#include <string.h>

#include "jit/graph/grad.h"
#include "jit/trace/anchors.h"
#include "jit/trace/draws.h"
#include "jit/trace/gradients.h"
#include "jit/trace/pattern.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/tracers.h"
#include "jit/trace/vmap.h"
#include "jit/trace/ways.h"

/* ---- rules ---------------------------------------------------------------------------------------------------------------------- */

void region_rule_release(qn_vm *vm, region_rule *rule) {
  if (!rule || --rule->refs) return;
  value_release(vm, rule->backward);
  template_free(vm, &rule->cts);
  template_free(vm, &rule->args);
  template_free(vm, &rule->like);
  mem_free(vm, rule, sizeof *rule);
}

region_rule *region_rule_new(qn_vm *vm) {
  region_rule *rule = mem_zalloc(vm, sizeof *rule);
  if (!rule) return NULL;
  rule->refs = 1;
  rule->backward = value_nil();
  return rule;
}

enum { RULE_DEPTH = 8 }; /* how deep functions in the captures of a rule's function are looked through */

/* The function `v` in the form in which a specialization of the code at `home` holds it: functions of that code in it do not keep the code
 * alive. With `home` NULL the other way round: as functions usually are. Owned, or the error value. */
static qn_value rule_function(qn_vm *vm, qn_value v, const void *home, int depth) {
  const qn_fn *f = value_is(v, TAG_FN) ? value_fn(v) : NULL;
  bool user = f && f->head.flags == FN_USER, bare = user && home && ((const fn_shared *)f->code)->home == home;
  if (!f || depth == RULE_DEPTH || !(bare || (user && f->stand == FN_BARE) || f->head.flags == FN_TRANSFORM))
    return value_retain(v);
  qn_fn *own = fn_like(vm, f);
  if (!own) return value_error();
  qn_value out = value_obj(TAG_FN, own);
  for (uint32_t i = 0; i < f->ncaptures; i++) {
    qn_value part = rule_function(vm, f->captures[i], home, depth + 1);
    if (value_is_error(part)) return value_fail(vm, out);
    own->captures[i] = part;
  }
  if (bare) fn_make_bare(own);
  return out;
}

static region_rule *rule_copy(qn_vm *vm, const region_rule *rule, const void *home) {
  region_rule *own = region_rule_new(vm);
  if (!own) return NULL;
  own->number = rule->number;
  own->lanes = rule->lanes;
  own->levels = rule->levels;
  own->settled = home != NULL;
  own->backward = home || rule->settled ? rule_function(vm, rule->backward, home, 0) : value_retain(rule->backward);
  if (!value_is_error(own->backward) && template_copy(vm, &rule->cts, &own->cts) &&
      template_copy(vm, &rule->args, &own->args) && template_copy(vm, &rule->like, &own->like)) {
    template_settle(&own->args, home);
    template_settle(&own->like, home);
    return own;
  }
  region_rule_release(vm, own);
  return NULL;
}

bool region_own_rule(qn_vm *vm, graph_region *x) {
  region_rule *rule = x->rule, *own;
  if (rule->refs == 1 && !rule->settled) return true;
  if (!(own = rule_copy(vm, rule, NULL))) return false;
  region_rule_release(vm, rule);
  x->rule = own;
  return true;
}

bool regions_settle(qn_vm *vm, region_list *l, const void *home) {
  const region_rule *last = NULL; /* the rule of the region before and its copy: regions of one call share a rule */
  region_rule *own = NULL;
  for (uint32_t i = 0; i < l->n && home; i++) {
    region_rule *rule = l->list[i].rule;
    if (!rule || rule->settled) continue;
    if (rule == last)
      own->refs++;
    else if (!(own = rule_copy(vm, rule, home)))
      return false;
    last = rule;
    l->list[i].rule = own;
    region_rule_release(vm, rule);
  }
  return true;
}

/* ---- lists of regions ------------------------------------------------------------------------------------------------------------ */

uint32_t *regions_add(qn_vm *vm, region_list *l, const graph_region *region) {
  if (!mem_grow(vm, (void **)&l->list, &l->cap, l->n + 1, sizeof *l->list)) return NULL;
  uint32_t n = region->nargs + region->nouts;
  uint32_t *nodes = mem_alloc(vm, (n + 1) * sizeof *nodes);
  if (!nodes) return NULL;
  if (region->nargs) memcpy(nodes, region->args, region->nargs * sizeof *nodes);
  if (region->nouts) memcpy(nodes + region->nargs, region->outs, region->nouts * sizeof *nodes);
  graph_region *x = &l->list[l->n++];
  *x = *region;
  x->args = nodes;
  x->outs = nodes + region->nargs;
  if (x->rule) ((region_rule *)x->rule)->refs++;
  return nodes;
}

void regions_cut(qn_vm *vm, region_list *l, uint32_t n) {
  while (l->n > n) {
    graph_region *x = &l->list[--l->n];
    mem_free(vm, (void *)x->args, (x->nargs + x->nouts + 1) * sizeof *x->args);
    region_rule_release(vm, x->rule);
  }
}

void regions_drop_empty(qn_vm *vm, region_list *l) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < l->n; i++) {
    graph_region x = l->list[i];
    l->list[i] = l->list[n]; /* moves the region that is removed to the end */
    l->list[n] = x;
    n += x.first < x.end;
  }
  regions_cut(vm, l, n);
}

bool regions_copy(qn_vm *vm, const graph *g, const region_list *from, uint32_t mark, region_list *to,
                  const uint32_t *map, const uint32_t *ends) {
  for (uint32_t i = 0; i < from->n; i++) {
    graph_region x = from->list[i];
    if (x.first < mark) continue;
    uint32_t first = 0, end = 0;
    for (uint32_t k = x.first; k < x.end; k++) {
      if (!map[k] || g->nodes[k].kind == NODE_INPUT) continue;
      if (!first) first = map[k];
      end = map[k] + 1;
    }
    if (!first) continue;
    if (ends && ends[i] > end) end = ends[i];
    x.first = first;
    x.end = end;
    uint32_t *nodes = regions_add(vm, to, &x);
    if (!nodes) return false;
    bool whole = true; /* false: some result was not copied, so nothing asks for the region's derivative */
    for (uint32_t k = 0; k < x.nargs + x.nouts; k++) whole &= (nodes[k] = map[nodes[k]]) != 0 || k >= x.nargs;
    if (!whole) regions_cut(vm, to, to->n - 1);
  }
  return true;
}

/* ---- asking a rule ----------------------------------------------------------------------------------------------------------- */

/* Builds the value of a template whose output i is the value of nodes[i]; if nodes[i] is 0, it is zeros like the value of like[i]. Owned,
 * or the error value. */
static qn_value build_of_nodes(struct recording *r, const tpl_list *t, const uint32_t *nodes, const uint32_t *like,
                               uint32_t n) {
  qn_vm *vm = r->vm;
  qn_list *l = list_new(vm, n);
  if (!l) return value_error();
  qn_value values = value_obj(TAG_LIST, l), result = value_error();
  uint32_t made = 0;
  for (; made < n; made++) {
    qn_value v = rec_value_of(r, nodes[made] ? nodes[made] : like[made]);
    if (!value_is_error(v) && !nodes[made]) {
      qn_value zeros = tree_match_zeros(vm, v);
      value_release(vm, v);
      v = zeros;
    }
    if (value_is_error(v)) break;
    l->items[made] = v;
  }
  if (made == n) result = template_build(vm, t, l->items, NULL);
  value_release(vm, values);
  return result;
}

typedef struct region_grads {
  struct recording *r;
  const graph_region *region;
  const region_rule *rule;
  uint32_t at; /* the next leaf of rule->like */
  uint32_t *grads;
} region_grads;

static bool take_gradient(void *ctx, qn_value like, qn_value given) {
  region_grads *c = ctx;
  (void)like;
  while (c->rule->like.tpls[c->at].kind != TPL_OUTPUT) c->at++;
  uint32_t k = c->rule->like.tpls[c->at++].output;
  if (value_is(given, TAG_NIL)) return true;
  return (c->grads[k] = rec_node(c->r, given)) != 0 || fail_memory(c->r->vm);
}

bool region_apply_rule(void *ctx, const graph_region *x, const uint32_t *cotangents, uint32_t *grads, op_refusal *why) {
  struct recording *r = ctx;
  qn_vm *vm = r->vm;
  const region_rule *rule = x->rule;
  qn_value args = value_error(), like = value_error(), gs = value_error(), *mark = vm->sp;
  bool ok = rec_room(r) && !value_is_error(args = build_of_nodes(r, &rule->args, x->args, x->args, x->nargs)) &&
            !value_is_error(like = build_of_nodes(r, &rule->like, x->args, x->args, x->nargs));
  uint32_t nargs = ok ? value_list(args)->len : 0;
  if (ok && (ok = vm_enter(vm, nargs + 1))) {
    qn_value ct = build_of_nodes(r, &rule->cts, cotangents, x->outs, x->nouts);
    if ((ok = !value_is_error(ct))) {
      *vm->sp++ = ct;
      for (uint32_t i = 0; i < nargs; i++) *vm->sp++ = value_retain(value_list(args)->items[i]);
      vm_owned held[2];
      vm_own(vm, &held[0], vm_drop_value, &args);
      vm_own(vm, &held[1], vm_drop_value, &like);
      gs = vm->hooks.call(vm, rule->backward, mark, (int)nargs + 1, value_nil());
      vm_disown(vm, &held[0]);
      ok = !value_is_error(gs);
      if (!ok && vm->error && vm->error->id == E_arity && !vm->error->nframes)
        raise_note(vm, SPAN_NONE, "custom_grad calls backward with the cotangent of the result, then the arguments");
    }
  }
  region_grads c = {.r = r, .region = x, .rule = rule, .grads = grads};
  ok = ok &&
       tree_match_walk(vm, "custom_grad: what backward returns", nargs == 1 ? "the argument" : "the list of arguments",
                       nargs == 1 ? value_list(like)->items[0] : like, gs, (int)rule->levels, take_gradient, &c);
  ok = ok && rec_room(r);
  vm_pop_to(vm, mark);
  value_release(vm, gs);
  value_release(vm, args);
  value_release(vm, like);
  why->id = 0;
  return ok;
}

/* ---- calls of checkpoint and custom_grad --------------------------------------------------------------------------------------- */

/* Makes the rule of a custom_grad's call, with one reference; *nodes gets the nodes of the call's arguments. NULL with an error raised. */
static region_rule *rule_make(struct recording *r, qn_value backward, qn_value args, qn_value y, node_list *nodes,
                              node_list *outs) {
  qn_vm *vm = r->vm;
  region_rule *rule = region_rule_new(vm);
  if (!rule) return NULL;
  rule->number = ++jit_of(vm)->last_rule;
  rule->backward = value_retain(backward);
  qn_value cts = tree_rebuild(vm, y, leaves_keep, r), like = tree_rebuild(vm, args, leaves_keep, r);
  node_list floats = {0};
  bool ok = !value_is_error(cts) && !value_is_error(like) && template_of_nodes(r, cts, &rule->cts, outs) &&
            template_of_nodes(r, args, &rule->args, nodes) && template_of_nodes(r, like, &rule->like, &floats);
  uint32_t k = 0;
  for (uint32_t i = 0; i < rule->like.n && ok;
       i++) { /* turns the outputs of rule->like into numbers of args: both lists are in the same order */
    tpl *x = &rule->like.tpls[i];
    if (x->kind != TPL_OUTPUT) continue;
    while (k < nodes->n && nodes->nodes[k] != floats.nodes[x->output]) k++;
    x->output = k;
  }
  nodes_free(vm, &floats);
  value_release(vm, cts);
  value_release(vm, like);
  if (ok) return rule;
  region_rule_release(vm, rule);
  return NULL;
}

/* Calls checkpoint(f) in an arm or a turn of which a gradient is taken: what is in these is kept or computed once more as the gradient of the arm
 * decides. f is recorded apart and then joins the arm, and it reads floats from outside through aliases. So what its nodes give to the cotangent of
 * one is summed up before it is added, as for a region that is computed once more; the same holds for each of its results. Owned, or the error
 * value. */
static qn_value call_within(struct recording *r, const qn_fn *f, const rec_call_site *site) {
  qn_vm *vm = r->vm;
  qn_value *mark = vm->sp;
  drawn_kept random = draws_keep(r);
  struct recording *in = rec_arm_begin(r, NULL);
  if (!in) return value_error();
  vm_owned held;
  vm_own(vm, &held, rec_drop, in);
  qn_value y = vm->hooks.call(vm, f->captures[0], site->args, site->nargs - 1, site->args[site->nargs - 1]);
  bool drawn = draws_put_back(r, &random);
  bool ok = !value_is_error(y) && rec_now(vm) == in;
  if (ok && (drawn || in->regions.n || in->g->failed || in->g->dims.strict || graph_has_taps(in->g, 1) ||
             !tree_each_part(vm, y, rec_no_text_waits, in)))
    ok = !error_pending(vm) && rec_give_up(in, BREAK_branch);
  for (uint32_t k = 0; ok && k < in->g->ninputs; k++) {
    const graph_type *t = &r->g->nodes[in->captures[k]].type;
    if (t->weak || !dtype_is_float((qn_dtype)t->dtype)) continue;
    ok = (in->captures[k] = graph_alias(r->g, in->captures[k], rec_site(r))) != 0 || (raise_memory(vm), false);
  }
  vm_pop_to(vm, mark);
  rec_arm_end(in);
  if (!ok)
    y = value_fail(vm, y);
  else if (!arm_splice(r, in, &y))
    y = value_error();
  vm_disown(vm, &held);
  rec_free(in);
  if (value_is_error(y)) return y;
  leaves out = {.r = r};
  qn_value result = tree_rebuild(vm, y, leaves_alias, &out);
  leaves_free(&out);
  value_release(vm, y);
  return result;
}

/* ---- custom_grad in arms and turns ------------------------------------------------------------------------------------------------- */

enum { LOOKED_AT = 256 };

/* May a gradient in progress differentiate by something on which a node depends? Looks at *left nodes at most; beyond these it says yes. */
static bool may_be_derived(const struct recording *r, uint32_t node, int *left) {
  const graph_node *n = &r->g->nodes[node];
  if (!dtype_is_float((qn_dtype)n->type.dtype) || n->kind == NODE_CONST) return false;
  if (--*left < 0 || (n->kind != NODE_OP && n->kind != NODE_INPUT)) return true;
  for (const derived_by *by = r->wrt; by; by = by->outer)
    for (uint32_t i = 0; i < by->n; i++)
      if (by->nodes[i] == node) return true;
  if (n->kind == NODE_INPUT && r->arm) {
    uint32_t number = n->payload.input, outer = number < r->carries ? 0 : r->captures[number];
    return !outer || may_be_derived(r->outer, outer, left);
  }
  for (int k = 0; k < n->nin && n->op != OP_stop_gradient; k++)
    if (may_be_derived(r, n->in[k], left)) return true;
  return false;
}

/* Does what was recorded from node `first` on read floats that may be differentiated and are none of these? (The gradient refuses that.) */
static bool reads_derived(const struct recording *r, uint32_t first, const leaves *args) {
  for (uint32_t i = first; i < r->g->n; i++) {
    const graph_node *n = &r->g->nodes[i];
    if (n->kind == NODE_INPUT && may_be_derived(r, i, &(int){LOOKED_AT})) return true;
    for (int k = 0; k < n->nin; k++) {
      bool known = n->in[k] >= first;
      for (uint32_t a = 0; a < args->n && !known; a++) known = args->nodes[a] == n->in[k];
      if (!known && may_be_derived(r, n->in[k], &(int){LOOKED_AT})) return true;
    }
  }
  return false;
}

/* A call of custom_grad in an arm or a turn of which a gradient is taken: f's nodes are the arm's, and a node with the graph that backward makes
 * passes on their results (graph_rule_attr). */
typedef struct ruled {
  struct recording *r;
  struct recording *arms[2]; /* owned */
  qn_value args, y;          /* owned: the arguments as a list, and the result, with alias nodes for their floats */
  leaves in, out;            /* these nodes; in.grads: by argument, the node in arms[1] of its cotangent, 0: none */
  uint32_t at;               /* the next leaf */
} ruled;

static void ruled_free(qn_vm *vm, void *what) {
  ruled *c = what;
  for (int k = 2; k-- > 0;)
    if (c->arms[k]) rec_free(c->arms[k]);
  value_release(vm, c->args);
  value_release(vm, c->y);
  leaves_free(&c->in);
  leaves_free(&c->out);
}

/* The first arm, whose inputs are those of both as graph_rule_attr says. False with an error raised. */
static bool passing_arm(ruled *c) {
  struct recording *r = c->r;
  uint32_t made = c->out.n;
  uint32_t *cts = mem_alloc(r->vm, (made + (size_t)1) * sizeof *cts);
  bool ok = cts != NULL;
  for (uint32_t k = 0; k < made && ok; k++) /* aliases, so that each is a value of its own */
    ok = (cts[k] = alias_of_node(r, graph_full(r->g, &r->g->nodes[c->out.nodes[k]].type, 0, rec_site(r)))) != 0;
  ok = ok && (c->arms[0] = rec_arm_begin(r, NULL)) != NULL;
  for (uint32_t k = 0; k < made && ok; k++) ok = arm_operand(c->arms[0], c->out.nodes[k]) != 0;
  for (uint32_t k = 0; k < made && ok; k++) ok = arm_operand(c->arms[0], cts[k]) != 0;
  for (uint32_t k = 0; k < c->in.n && ok; k++) ok = arm_operand(c->arms[0], c->in.nodes[k]) != 0;
  if (c->arms[0]) rec_arm_end(c->arms[0]);
  if (cts) mem_free(r->vm, cts, (made + (size_t)1) * sizeof *cts);
  if (!ok) return false;
  /* (sizes that are numbers would be inputs in between) */
  return c->arms[0]->g->ninputs == 2 * made + c->in.n || rec_give_up(r, BREAK_branch);
}

static qn_value cotangent_leaf(void *ctx, qn_value v) {
  ruled *c = ctx;
  if (!is_float_leaf(v)) return value_nil();
  return rec_value_of(c->arms[1], c->arms[1]->g->inputs[c->out.n + c->at++]);
}

static bool take_cotangent(void *ctx, qn_value like, qn_value given) {
  ruled *c = ctx;
  uint32_t k = c->at++;
  (void)like;
  if (value_is(given, TAG_NIL)) return true;
  if (!(c->in.grads[k] = rec_node(c->arms[1], given))) return fail_memory(c->r->vm);
  const graph_type *of = &c->r->g->nodes[c->in.nodes[k]].type, *t = &c->arms[1]->g->nodes[c->in.grads[k]].type;
  return (t->dtype == of->dtype && t->weak == of->weak && t->rank == of->rank) || rec_give_up(c->r, BREAK_branch);
}

/* Calls backward in the second arm. False with an error raised. */
static bool giving_arm(ruled *c, qn_value backward) {
  struct recording *r = c->r;
  qn_vm *vm = r->vm;
  uint32_t nargs = value_list(c->args)->len;
  qn_value *mark = vm->sp, gs = value_error();
  drawn_kept random = draws_keep(r);
  if (!mem_grow(vm, (void **)&c->in.grads, &c->in.grads_cap, c->in.n + 1, sizeof *c->in.grads)) return false;
  memset(c->in.grads, 0, c->in.grads_cap * sizeof *c->in.grads);
  struct recording *in = c->arms[1] = rec_arm_begin(r, c->arms[0]);
  if (!in) return false;
  in->counts_turns = false; /* (of what a rule keeps, nobody counts turns) */
  bool ok = vm_enter(vm, nargs + 1);
  if (ok) {
    c->at = 0;
    qn_value ct = tree_rebuild(vm, c->y, cotangent_leaf, c);
    if ((ok = !value_is_error(ct))) {
      *vm->sp++ = ct;
      for (uint32_t i = 0; i < nargs; i++) *vm->sp++ = value_retain(value_list(c->args)->items[i]);
      gs = vm->hooks.call(vm, backward, mark, (int)nargs + 1, value_nil());
      ok = !value_is_error(gs);
    }
  }
  bool drawn = draws_put_back(r, &random);
  c->at = 0;
  ok = ok && rec_now(vm) == in &&
       tree_match_walk(vm, "custom_grad: what backward returns", nargs == 1 ? "the argument" : "the list of arguments",
                       nargs == 1 ? value_list(c->args)->items[0] : c->args, gs, 0, take_cotangent, c);
  ok = ok && tree_each_part(vm, gs, rec_no_text_waits, in);
  vm_pop_to(vm, mark);
  if (!value_is_error(gs)) value_release(vm, gs);
  rec_arm_end(in);
  bool fallible = false;
  for (uint32_t i = 1; i < in->g->n; i++) fallible |= graph_fallible(in->g, i);
  bool kept =
      ok && !drawn && !fallible && !in->regions.n && !in->g->failed && !in->g->dims.strict && !graph_has_taps(in->g, 1);
  if (kept) return true;
  if (error_pending(vm)) { /* an error of the program is raised when the gradient is taken, if it is */
    if (!error_catchable(vm) || vm->error->id == E_memory) return false;
    error_clear(vm);
  }
  return rec_give_up(r, BREAK_branch);
}

/* The arms become a node, and the floats of the result its results. False with an error raised. */
static bool ruled_close(ruled *c) {
  struct recording *r = c->r;
  graph *g = r->g, *passes = c->arms[0]->g, *gives = c->arms[1]->g;
  uint32_t made = c->out.n, by = c->in.n;
  for (uint32_t k = 0; k < made; k++)
    if (!graph_output(passes, passes->inputs[k]) || !graph_output(gives, gives->inputs[k])) return fail_memory(r->vm);
  for (uint32_t j = 0; j < by; j++) {
    uint32_t grad = c->in.grads[j], input = passes->inputs[2 * made + j], in = gives->inputs[2 * made + j];
    if (grad) input = graph_full(passes, &passes->nodes[input].type, 0, 0);
    if (!grad) grad = graph_full(gives, &gives->nodes[in].type, 0, 0);
    if (!graph_output(passes, input) || !graph_output(gives, grad)) return fail_memory(r->vm);
  }
  op_attr attr = graph_rule_attr(made, by);
  uint32_t site = rec_site(r), node = arms_close(r, NODE_IF, grad_flag(g, true), c->arms, &attr, site);
  for (uint32_t k = 0; k < made && node; k++)
    if (!(c->out.nodes[k] = graph_proj(g, node, k, g->nodes[c->out.nodes[k]].type, site))) node = 0;
  return (node && rec_room(r)) || error_pending(r->vm) || fail_memory(r->vm);
}

static qn_value ruled_leaf(void *ctx, qn_value v) {
  ruled *c = ctx;
  return is_float_leaf(v) ? rec_value_of(c->r, c->out.nodes[c->at++]) : value_retain(v);
}

static bool ruled_run(ruled *c, const qn_fn *f, const rec_call_site *site) {
  struct recording *r = c->r;
  qn_vm *vm = r->vm;
  int nargs = site->nargs - 1;
  qn_value list = value_obj(TAG_LIST, list_from(vm, site->args, (size_t)nargs));
  if (!list.u.p) return false;
  c->args = tree_rebuild(vm, list, leaves_alias, &c->in);
  value_release(vm, list);
  if (value_is_error(c->args)) return false;
  uint32_t first = r->g->n;
  qn_value y = vm->hooks.call(vm, f->captures[0], value_list(c->args)->items, nargs, site->args[nargs]);
  if (value_is_error(y)) return false;
  c->y = tree_rebuild(vm, y, leaves_alias, &c->out);
  value_release(vm, y);
  if (value_is_error(c->y)) return false;
  if (rec_now(vm) != r || reads_derived(r, first, &c->in)) return rec_give_up(r, BREAK_branch);
  if (!c->in.n || !c->out.n) return true;
  return passing_arm(c) && giving_arm(c, f->captures[1]) && ruled_close(c) && !error_pending(vm);
}

static qn_value call_ruled(struct recording *r, const qn_fn *f, const rec_call_site *site) {
  qn_vm *vm = r->vm;
  /* (a gradient around a vmap, in whose function this is, would meet the batch of the node) */
  for (const struct recording *x = r; x; x = x->arm ? x->outer : NULL)
    if (x->aside && rec_derivatives(x)) return rec_give_up(r, BREAK_branch), value_error();
  ruled c = {.r = r, .args = value_unset(), .y = value_unset(), .in = {.r = r}, .out = {.r = r}};
  vm_owned held;
  vm_own(vm, &held, ruled_free, &c);
  qn_value result = value_error();
  if (ruled_run(&c, f, site)) {
    c.at = 0;
    result = c.arms[1] ? tree_rebuild(vm, c.y, ruled_leaf, &c) : value_retain(c.y);
  }
  vm_disown(vm, &held);
  ruled_free(vm, &c);
  return result;
}

qn_value region_call(struct recording *r, const rec_call_site *site) {
  qn_vm *vm = r->vm;
  const qn_fn *f = value_fn(site->fn);
  const transform_def *def = f->code;
  bool custom = def->kind == TRANSFORM_CUSTOM_GRAD;
  int nargs = site->nargs - 1;
  if (custom && value_is(site->args[nargs], TAG_RECORD))
    return raise_error(vm, E_keyword, SPAN_NONE, "a function with custom_grad takes no keyword arguments");
  /* An arm or a turn that holds a region is not captured. Where nothing is differentiated the call needs none, unless somebody asks for the
   * graph or rewrites one, which may be differentiated later. */
  bool inside = r->arm && !r->lenient, watched = value_is(vm->asked.watched_fn, TAG_FN),
       derived = rec_derivatives(r) > 0;
  if (inside && !watched && !derived) return vm->hooks.call(vm, f->captures[0], site->args, nargs, site->args[nargs]);
  if (inside && derived && !r->lanes && custom) return call_ruled(r, f, site);
  if (inside && !watched && !r->lanes) return call_within(r, f, site);
  leaves in = {.r = r}, out = {.r = r};
  qn_value args = value_unset(), y = value_error(), result = value_error();
  node_list arg_nodes = {0}, outs = {0};
  region_rule *rule = NULL;
  r->grads++;
  if (custom) {
    qn_list *l = list_from(vm, site->args, (size_t)nargs);
    if (!l) goto done;
    args = tree_rebuild(vm, value_obj(TAG_LIST, l), leaves_alias, &in);
    value_release(vm, value_obj(TAG_LIST, l));
    if (value_is_error(args)) goto done;
  }
  if (custom && !vmap_spread(r, in.nodes, in.n, args)) goto done;
  if (!vmap_advance(r)) goto done; /* a region's counterparts must not mix with those of what stands before */
  graph_region x = {.first = r->g->n, .again = !custom};
  const derived_by *by = r->wrt;
  if (custom) r->wrt = NULL; /* a gradient by the region does not look at what happens inside of it */
  vm_owned held[2];
  vm_own(vm, &held[0], leaves_drop, &in);
  vm_own(vm, &held[1], vm_drop_value, &args);
  y = vm->hooks.call(vm, f->captures[0], custom ? value_list(args)->items : site->args, nargs, site->args[nargs]);
  vm_disown(vm, &held[0]);
  r->wrt = by;
  if (value_is_error(y)) goto done;
  bool computed = false;
  for (uint32_t i = x.first; i < r->g->n && !computed; i++) computed = r->g->nodes[i].kind == NODE_OP;
  if (!computed && !custom) { /* nothing was computed: the function gives back what it was given */
    result = y;
    goto done;
  }
  result = tree_rebuild(vm, y, leaves_alias, &out);
  value_release(vm, y);
  if (value_is_error(result)) goto done;
  bool ok = vmap_advance(r);
  x.end = r->g->n;
  if (ok && custom) {
    ok = (rule = rule_make(r, f->captures[1], args, result, &arg_nodes, &outs)) != NULL;
    x.rule = rule;
    x.args = arg_nodes.nodes;
    x.nargs = arg_nodes.n;
  }
  x.outs = custom ? outs.nodes : out.nodes;
  x.nouts = custom ? outs.n : out.n;
  if (ok && x.nouts && (!custom || in.n)) ok = regions_add(vm, &r->regions, &x) != NULL;
  if (!ok) result = value_fail(vm, result);
done:
  r->grads--;
  if (rule) region_rule_release(vm, rule);
  value_release(vm, args);
  nodes_free(vm, &arg_nodes);
  nodes_free(vm, &outs);
  leaves_free(&in);
  leaves_free(&out);
  return result;
}
