/* --jit verify: each call that a plan serves is made by the plan and by the interpreter, and the first difference is an error.
 *
 * Results are compared leaf by leaf and bit by bit; all NaNs count as one value. Of errors, the id and the place are compared. If results
 * differ, the nodes of the recorded graph are computed one by one, by eager ops and as results of plans, to find the first op that is to
 * blame.
 */
#include <stdio.h>
#include <string.h>

#include "jit/run/eager.h"
#include "jit/run/compile.h"
#include "jit/run/device.h"
#include "jit/run/plan_run.h"
#include "jit/trace/anchors.h"
#include "jit/trace/calls.h"
#include "jit/trace/gradients.h"
#include "jit/trace/nodes.h"
#include "jit/trace/pattern.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/report.h"
#include "jit/trace/repro.h"
#include "jit/trace/specialization.h"
#include "jit/trace/stacked.h"
#include "jit/trace/taps.h"

/* ---- the node to blame --------------------------------------------------------------------------------------------------- */

bool graph_run_planned(qn_vm *vm, graph *g, const call_inputs *c, const qk_scalar *weak, qn_value *out) {
  graph *simple = graph_simplify(g, NULL);
  graph_free(g);
  char why[256];
  int device = vm->device;
  for (uint32_t i = 0; simple && i < simple->ninputs; i++)
    if (c->arrays[i]) device = c->arrays[i]->device;
  plan *p = simple ? plan_make(simple, device ? TARGET_GPU : TARGET_CPU, vm->tune, NULL, why, sizeof why) : NULL;
  if (!p) return false;
  atomic_bool go_on = false;
  compile_options o = {.tune = vm->tune, .spawn = (vm->config.capabilities & QN_CAP_SPAWN) != 0, .abandon = &go_on};
  if (vm->tune[TUNE_jit_cc]) compile_plan(vm->engine, p, &o);
  device_plan *there = NULL;
  bool ok = plan_run(vm, p, &there, c->arrays, weak, NULL, out);
  plan_forget(vm, &there);
  for (uint32_t k = 0; k < p->nkernels; k++)
    if (p->kernels[k].host_code) host()->forget(p->kernels[k].host_code);
  plan_free(p);
  return ok;
}

static bool is_array_node(const graph_node *n) { return (n->kind == NODE_OP || n->kind == NODE_PROJ) && !n->type.weak; }

/* At first all nodes are outputs of one plan, which is quick; if that hides the difference, because it fuses differently, each node gets a plan
 * of its own. */
uint32_t first_difference(qn_vm *vm, const specialization *e, call_inputs *c, char *what, size_t size) {
  enum { MOST_PLANS = 256 };
  const graph *g = e->graph;
  uint32_t found = 0;
  size_t bytes = g->n * sizeof(qn_value);
  qn_value *vals = mem_zalloc(vm, bytes), *outs = mem_zalloc(vm, bytes), *ins = mem_zalloc(vm, bytes);
  const qk_scalar *weak = call_weak(c, e->pattern.ninputs);
  graph *all = graph_copy(g);
  if (!vals || !outs || !ins || !all) {
    if (all) graph_free(all);
    goto done;
  }
  for (uint32_t i = 0; i < g->n; i++) vals[i] = outs[i] = value_unset();
  for (uint32_t i = 0; i < g->ninputs; i++) ins[i] = c->arrays[i] ? value_obj(TAG_ARRAY, c->arrays[i]) : c->scalars[i];
  uint32_t n = nodes_run(vm, g, ins, e->device, NULL, vals), nout = 0;
  all->noutputs = 0;
  for (uint32_t i = 1; i < n; i++)
    if (is_array_node(&g->nodes[i]) && graph_output(all, i)) nout++;
  if (graph_run_planned(vm, all, c, weak, outs)) {
    for (uint32_t i = 1, k = 0; i < n && k < nout && !found; i++)
      if (is_array_node(&g->nodes[i]) && !same_leaf(vm, outs[k++], vals[i])) found = i;
    for (uint32_t k = 0; k < nout; k++) value_release(vm, outs[k]);
  }
  for (uint32_t i = 1, plans = 0; i < n && !found && plans < MOST_PLANS; i++) {
    if (!is_array_node(&g->nodes[i])) continue;
    graph *part = graph_copy(g);
    if (!part) break;
    part->noutputs = 0;
    plans++;
    error_clear(vm);
    if (!graph_output(part, i)) {
      graph_free(part);
    } else if (graph_run_planned(vm, part, c, weak, outs)) {
      if (!same_leaf(vm, outs[0], vals[i])) found = i;
      value_release(vm, outs[0]);
    }
  }
  if (found) {
    int line;
    uint32_t site = g->nodes[found].site;
    const char *name = place_line(vm, site < g->nsites ? g->sites[site].at : SPAN_NONE, &line);
    snprintf(what, size, "%%%u, %s (%s:%d)", found,
             g->nodes[found].kind == NODE_OP ? op_rows[g->nodes[found].op].name : "a result of a branch or loop", name,
             line);
  }
  for (uint32_t i = 0; i < g->n; i++) value_release(vm, vals[i]);
done:
  mem_free(vm, vals, bytes);
  mem_free(vm, outs, bytes);
  mem_free(vm, ins, bytes);
  error_clear(vm);
  return found;
}

/* ---- the call ------------------------------------------------------------------------------------------------------------ */

/* What a verified call owns while the interpreter makes it. */
typedef struct verified_call {
  call_inputs *inputs; /* the inputs, of which the first `held` ones are retained */
  uint32_t held;
  qn_value compiled;
  qn_error_object *error;
  tap_run taps; /* what the plan would print */
  tap_frame frame;
} verified_call;

static void verified_release(qn_vm *vm, const verified_call *v) {
  for (uint32_t i = 0; i < v->held; i++)
    if (v->inputs->arrays[i]) value_release(vm, value_obj(TAG_ARRAY, v->inputs->arrays[i]));
}

/* Frees what a verified call owns; for vm_own. */
static void verified_drop(qn_vm *vm, void *what) {
  verified_call *v = what;
  verified_release(vm, v);
  call_inputs_free(vm, v->inputs);
  value_release(vm, v->compiled);
  value_release(vm, value_obj(TAG_LIST, v->taps.kept));
  if (v->error) error_free(vm, v->error);
  tap_run_end(&v->taps);
}

/* Makes the call in both ways, on the same inputs. These are retained, since the interpreter may free or overwrite the arguments of the
 * call. */
static qn_value both_ways(qn_vm *vm, rec_call_site *site, specialization *e, verified_call *v) {
  call_inputs *c = v->inputs;
  const char *name = site->anchor->name ? site->anchor->name : "fn";
  random_state random = random_kept(vm);
  qn_value compiled = call_replay(vm, e, site, c, &v->taps);
  random_state after = random_kept(vm);
  if (value_is_error(compiled) && (!error_catchable(vm) || vm->error->id == E_memory)) return compiled;
  qn_error_object *error = value_is_error(compiled) ? error_take(vm) : NULL;
  random_restore(vm, random);
  ANCHOR_LENT(lent, site->anchor);
  site->anchor->state = ANCHOR_NEVER; /* calls of the same function inside this one are eager, too */
  v->compiled = compiled;
  v->error = error;
  vm_owned held;
  vm_own(vm, &held, verified_drop, v);
  tap_frame_enter(vm, &v->frame, 0, &v->taps.plan.read, v->taps.kept);
  qn_value eager = stacked_results(vm, site_run(site)); /* (of a list that an ended capture has left in an argument) */
  tap_frame_leave(vm, &v->frame);
  vm_disown(vm, &held);
  anchor_give_back(&lent);
  char where[160] = "", node[200] = "";
  if (error) {
    /* The message is the interpreter's, as without --jit verify. Compiled code only has to fail at the same place. */
    bool left = e->tried || (e->exits && error->id == E_div_zero) ||
                (e->rooms && error->id == E_index); /* if it has left the graph, the call is the interpreter's */
    bool same = value_is_error(eager) && !v->frame.differs && vm->error && vm->error->id == error->id &&
                vm->error->at.source == error->at.source && vm->error->at.start == error->at.start;
    if (left && !v->frame.differs && (!value_is_error(eager) || error_catchable(vm))) same = true;
    if (same || (value_is_error(eager) && (v->frame.failed || !error_catchable(vm)))) {
      error_free(vm, error);
      return eager;
    }
    int line;
    const char *file = place_line(vm, error->at, &line);
    snprintf(where, sizeof where, "%s (%s:%d)", error->message ? error->message->text : "", file, line);
    bool none = !value_is_error(eager);
    error_free(vm, error);
    value_release(vm, eager);
    error_clear(vm);
    raise_error(vm, E_mismatch, site->at, "compiled execution of %s fails with: %s; eager execution %s", name, where,
                none ? "does not" : "fails otherwise");
    return repro_of_call(vm, e, c), value_error();
  }
  if (value_is_error(eager)) {
    value_release(vm, compiled);
    if (v->frame.failed || !error_catchable(vm) || vm->error->id == E_memory || vm->error->id == E_recursion)
      return eager;
    snprintf(where, sizeof where, "%s", vm->error->message ? vm->error->message->text : "");
    error_clear(vm);
    raise_error(vm, E_mismatch, site->at, "eager execution of %s fails with: %s; compiled execution does not", name,
                where);
    return repro_of_call(vm, e, c), value_error();
  }
  uint32_t leaf = 0;
  bool same = same_tree(vm, compiled, eager, &leaf);
  if (leaf) snprintf(where, sizeof where, "leaf %u of the result", leaf);
  if (same && (v->frame.differs || v->frame.at != v->taps.kept->len)) {
    snprintf(where, sizeof where, "an effect");
    same = false;
  }
  if (same && after.draw == vm->draw && after.seed == vm->seed) {
    value_release(vm, compiled);
    return eager;
  }
  value_release(vm, compiled);
  value_release(vm, eager);
  if (error_pending(vm)) return value_error();
  first_difference(vm, e, c, node, sizeof node);
  raise_error(vm, E_mismatch, site->at, "compiled and eager results of %s differ at %s%s%s", name,
              where[0] ? where : "the random numbers to come", node[0] ? "; the first node that differs is " : "",
              node);
  return repro_of_call(vm, e, c), value_error();
}

/* The values of the graph's outputs, computed node by node, in the form of a result. Owned, or the error value. */
static qn_value result_by_nodes(qn_vm *vm, const rec_call_site *site, const specialization *e, const call_inputs *c) {
  const graph *g = e->graph;
  size_t bytes = (g->n + (size_t)g->ninputs + g->noutputs) * sizeof(qn_value);
  qn_value *vals = mem_alloc(vm, bytes), *ins = vals + g->n, *outs = ins + g->ninputs, result = value_error();
  if (!vals) return result;
  for (uint32_t i = 0; i < g->n; i++) vals[i] = value_unset();
  for (uint32_t i = 0; i < g->ninputs; i++) ins[i] = c->arrays[i] ? value_obj(TAG_ARRAY, c->arrays[i]) : c->scalars[i];
  if (nodes_run(vm, g, ins, e->device, NULL, vals) == g->n) {
    for (uint32_t k = 0; k < g->noutputs; k++) outs[k] = vals[g->outputs[k]];
    call_values call = {&e->pattern, site->fn, site->args};
    result = template_build(vm, &e->result, outs, &call);
    if (e->result.stacks) result = stacked_captures(vm, stacked_results(vm, result));
  }
  for (uint32_t i = 0; i < g->n; i++) value_release(vm, vals[i]);
  mem_free(vm, vals, bytes);
  return result;
}

/* Patterns have changed what the call does, so that the interpreter, which knows none, may give other bits: the plan is compared with the nodes of
 * its graph. Gives what the plan gives. */
static qn_value rewritten_ways(qn_vm *vm, rec_call_site *site, specialization *e, verified_call *v) {
  const char *name = site->anchor->name ? site->anchor->name : "fn";
  vm_owned held;
  vm_own(vm, &held, verified_drop, v);
  tap_run taps; /* they are made */
  tap_run_begin(vm, &taps, &e->taps, NULL);
  random_state random = random_kept(vm);
  qn_value compiled = call_replay(vm, e, site, v->inputs, &taps);
  if (value_is_error(compiled)) { /* as always, the interpreter makes the call again, and words the error */
    if (error_catchable(vm)) {
      error_clear(vm);
      random_restore(vm, random);
      tap_frame_enter(vm, &v->frame, taps.plan.made, &taps.plan.read, NULL);
      compiled = site_run(site);
      tap_frame_leave(vm, &v->frame);
    }
    tap_run_end(&taps);
    vm_disown(vm, &held);
    return compiled;
  }
  bool reads = taps.plan.read.n != 0; /* (its nodes would read anew) */
  tap_run_end(&taps);
  if (reads) {
    vm_disown(vm, &held);
    return compiled;
  }
  v->compiled = compiled;
  qn_value nodes = result_by_nodes(vm, site, e, v->inputs);
  bool same = !value_is_error(nodes) && same_tree(vm, compiled, nodes, NULL);
  vm_disown(vm, &held);
  v->compiled = value_nil();
  value_release(vm, nodes);
  if (same) return compiled;
  value_release(vm, compiled);
  if (error_pending(vm) && (!error_catchable(vm) || vm->error->id == E_memory)) return value_error();
  error_clear(vm);
  char node[200] = "";
  first_difference(vm, e, v->inputs, node, sizeof node);
  raise_error(vm, E_mismatch, site->at,
              "compiled results of %s differ from those of its graph, which patterns have changed%s%s", name,
              node[0] ? "; the first node that differs is " : "", node);
  return repro_of_call(vm, e, v->inputs), value_error();
}

qn_value call_verified(qn_vm *vm, rec_call_site *site, specialization *e, call_inputs *c) {
  uint32_t n = e->pattern.ninputs;
  verified_call v = {.inputs = c, .compiled = value_nil()};
  qn_list *kept = list_new(vm, 0);
  if (!kept) return value_error();
  tap_run_begin(vm, &v.taps, &e->taps, kept);
  qn_value result = value_error();
  for (; v.held < n; v.held++) {
    if (!c->arrays[v.held]) continue;
    qn_array *flat = array_contiguous(vm, c->arrays[v.held]);
    if (!flat) break;
    c->arrays[v.held] = flat;
  }
  if (v.held == n) result = specialization_rewritten(e) ? rewritten_ways(vm, site, e, &v) : both_ways(vm, site, e, &v);
  verified_release(vm, &v);
  value_release(vm, value_obj(TAG_LIST, kept));
  tap_run_end(&v.taps);
  return result;
}
