/* Regions of a recording or graph: the nodes of one call of a function wrapped in checkpoint or custom_grad, which is differentiated in its
 * own way (graph_region, jit/graph/graph.h).
 *
 * The results of a region are alias nodes at its end, so that every use of them is seen as a use of the region. For a checkpoint, the
 * backward pass computes the region once more. A custom_grad has a rule: the program's backward function, and templates that say how its
 * arguments are made of the region's nodes; to differentiate the region, the function is called inside the recording. Copies of a region
 * share its rule until one of them has to change it.
 */
#include <string.h>

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
  if (r->arm && !r->lenient && !value_is(vm->asked.watched_fn, TAG_FN)) {
    if (!rec_derivatives(r)) return vm->hooks.call(vm, f->captures[0], site->args, nargs, site->args[nargs]);
    if (!custom && !r->lanes) return call_within(r, f, site);
  }
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
