/* What the results of branches and loops depend on by floats all the way, in both directions: which operands results with cotangents need
 * (grad_control_wants), and which results vary with operands that are differentiated (grad_control_varies).
 *
 * Only what does both has a cotangent, as in a call whose turns and arms are nodes of the graph: rules ask which operands have one (grad_div). Both
 * are marked on the nodes of the regions, backward and forward; over a loop's body until its carries do not change.
 */
#include <stdlib.h>
#include <string.h>

#include "jit/graph/grad.h"

/* ---- what a result depends on ------------------------------------------------------------------------------------------- */

/* Marks the nodes on which marked ones depend by floats all the way; with `sure` those on which they do whatever arms are taken. False: memory
 * is short. */
static bool mark_needed(const graph *g, bool sure, bool *marks) {
  uint32_t most = 1, *proj_of = NULL; /* as those of grad.c */
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    if (!graph_kind_has_regions(n->kind)) continue;
    if (graph_nresults(n) > most) most = graph_nresults(n);
    if (n->nin > most) most = n->nin;
    if (!proj_of && !(proj_of = calloc(g->n, sizeof *proj_of))) return false;
  }
  bool *lists = proj_of ? calloc(2 * (size_t)most, sizeof *lists) : NULL;
  bool ok = !proj_of || lists;
  for (uint32_t i = 1; i < g->n && proj_of; i++) {
    if (g->nodes[i].kind != NODE_PROJ) continue;
    proj_of[i] = proj_of[g->nodes[i].in[0]];
    proj_of[g->nodes[i].in[0]] = i;
  }
  for (uint32_t i = g->n; i-- > 1 && ok;) {
    const graph_node *n = &g->nodes[i];
    if (graph_kind_has_regions(n->kind)) {
      bool *results = lists, *operands = lists + most;
      memset(lists, 0, 2 * (size_t)most * sizeof *lists);
      for (uint32_t x = proj_of[i]; x; x = proj_of[x])
        if (dtype_is_float((qn_dtype)g->nodes[x].type.dtype)) results[g->nodes[x].payload.index] |= marks[x];
      ok = grad_region_needs(n, results, sure, operands);
      for (int k = 0; k < n->nin; k++) marks[n->in[k]] |= operands[k];
    } else if (marks[i] && n->kind != NODE_PROJ && dtype_is_float((qn_dtype)n->type.dtype) && !grad_ends(n)) {
      for (int k = 0; k < n->nin; k++) marks[n->in[k]] = true;
    }
  }
  free(proj_of);
  free(lists);
  return ok;
}

/* Of a call whose derivative is given: it goes from the results to the arguments, whatever these are made of. */
static void rule_needs(const graph_node *n, const bool *results, bool *operands) {
  uint32_t made = graph_rule_made(n), first = 1 + 2 * made;
  bool any = false;
  for (uint32_t k = 0; k < made; k++) any |= results[k];
  for (uint32_t k = 0; k < n->nin; k++) operands[k] = false;
  for (uint32_t j = 0; j < graph_rule_by(n); j++) operands[first + j] = any && graph_rule_gives(n, j);
}

static bool branch_needs(const graph_node *n, const bool *results, bool sure, bool *operands) {
  bool ok = true;
  for (int a = 0; a < 2 && ok; a++) {
    const graph *arm = n->payload.regions[a];
    bool *marks = calloc(arm->n, sizeof *marks);
    for (uint32_t k = 0; k < arm->noutputs && marks; k++) marks[arm->outputs[k]] |= results[k];
    ok = marks && mark_needed(arm, sure, marks);
    for (uint32_t i = 0; i < arm->ninputs && ok; i++) {
      bool is = marks[arm->inputs[i]];
      operands[1 + i] = !a ? is : sure ? operands[1 + i] && is : operands[1 + i] || is;
    }
    free(marks);
  }
  return ok;
}

static bool loop_needs(const graph_node *n, const bool *results, bool *operands) {
  const graph *body = n->payload.regions[1];
  uint32_t ncarries = graph_loop_carries(n);
  bool *marks = calloc(body->n, sizeof *marks), ok = marks != NULL;
  for (uint32_t k = 0; k < body->noutputs && ok; k++) marks[body->outputs[k]] |= results[k];
  for (bool more = true; more && ok;) { /* a carry that matters to a turn matters at the end of the turn before */
    ok = mark_needed(body, false, marks);
    more = false;
    for (uint32_t k = 0; k < ncarries && ok; k++) {
      if (!marks[body->inputs[k]] || marks[body->outputs[k]]) continue;
      marks[body->outputs[k]] = more = true;
    }
  }
  for (uint32_t k = 0; k < n->nin && ok; k++)
    operands[k] = marks[body->inputs[k]] || (k < ncarries && results[k]); /* (a loop may make no turn) */
  free(marks);
  return ok;
}

/* The same, with `sure`. (A loop may make no turn; so nothing is sure of what it captures.) */
static bool loop_needs_surely(const graph_node *n, const bool *results, bool *operands) {
  const graph *body = n->payload.regions[1];
  uint32_t ncarries = graph_loop_carries(n);
  bool *marks = malloc(body->n * sizeof *marks), ok = marks != NULL;
  for (uint32_t k = 0; k < n->nin; k++) operands[k] = k < ncarries && results[k];
  for (bool more = true;
       more && ok;) { /* those that are not sure before a turn are not behind the turn before either */
    memset(marks, 0, body->n * sizeof *marks);
    for (uint32_t k = 0; k < ncarries; k++) marks[body->outputs[k]] |= operands[k];
    ok = mark_needed(body, true, marks);
    more = false;
    for (uint32_t k = 0; k < ncarries && ok; k++) {
      if (!operands[k] || marks[body->inputs[k]]) continue;
      operands[k] = false;
      more = true;
    }
  }
  free(marks);
  return ok;
}

bool grad_region_needs(const graph_node *n, const bool *results, bool sure, bool *operands) {
  if (graph_is_rule(n)) return rule_needs(n, results, operands), true;
  if (n->kind == NODE_IF) return branch_needs(n, results, sure, operands);
  return sure ? loop_needs_surely(n, results, operands) : loop_needs(n, results, operands);
}

/* ---- what depends on an operand ------------------------------------------------------------------------------------------ */

/* Marks the nodes that depend on marked ones by floats all the way. False: memory is short. */
static bool mark_varying(const graph *g, bool *marks) {
  uint32_t most = 1;
  bool **results_of = NULL; /* by branch or loop */
  for (uint32_t i = 1; i < g->n; i++)
    if (graph_kind_has_regions(g->nodes[i].kind) && g->nodes[i].nin > most) most = g->nodes[i].nin;
  bool *operands = malloc(most * sizeof *operands), ok = operands != NULL;
  for (uint32_t i = 1; i < g->n && ok; i++) {
    const graph_node *n = &g->nodes[i];
    if (graph_kind_has_regions(n->kind)) {
      for (uint32_t k = 0; k < n->nin; k++) operands[k] = marks[n->in[k]];
      if (!results_of) results_of = calloc(g->n, sizeof *results_of);
      ok = results_of && (results_of[i] = calloc(graph_nresults(n) + (size_t)1, sizeof **results_of)) &&
           grad_control_varies(n, operands, results_of[i]);
    } else if (n->kind == NODE_PROJ) {
      bool *results = results_of ? results_of[n->in[0]] : NULL;
      marks[i] |= results && dtype_is_float((qn_dtype)n->type.dtype) && results[n->payload.index];
    } else if (dtype_is_float((qn_dtype)n->type.dtype) && n->kind != NODE_TAP && !grad_ends(n)) {
      for (int k = 0; k < n->nin; k++) marks[i] |= marks[n->in[k]];
    }
  }
  for (uint32_t i = 1; i < g->n && results_of; i++) free(results_of[i]);
  free(results_of);
  free(operands);
  return ok;
}

bool grad_turns_vary(const graph_node *n, const bool *operands, bool *marks) {
  const graph *body = n->payload.regions[1];
  for (uint32_t k = 0; k < n->nin; k++)
    marks[body->inputs[k]] = operands[k] && dtype_is_float((qn_dtype)body->nodes[body->inputs[k]].type.dtype);
  for (bool more = true; more;) { /* what a turn makes of a carry is what the next turn begins with */
    if (!mark_varying(body, marks)) return false;
    more = false;
    for (uint32_t k = 0; k < graph_loop_carries(n); k++) {
      more |= marks[body->outputs[k]] && !marks[body->inputs[k]];
      marks[body->inputs[k]] |= marks[body->outputs[k]];
    }
  }
  return true;
}

bool grad_control_varies(const graph_node *n, const bool *operands, bool *results) {
  const uint32_t nresults = graph_nresults(n);
  bool ok = true, any = false;
  if (graph_is_rule(n)) {
    const uint32_t first = 1 + 2 * graph_rule_made(n);
    for (uint32_t j = 0; j < graph_rule_by(n); j++) any |= operands[first + j];
    for (uint32_t k = 0; k < nresults; k++) results[k] = any;
    return true;
  }
  for (uint32_t k = 0; k < nresults; k++) results[k] = false;
  for (int a = n->kind == NODE_IF ? 0 : 1; a < 2 && ok; a++) {
    const graph *arm = n->payload.regions[a];
    bool *marks = calloc(arm->n, sizeof *marks);
    for (uint32_t i = 0; i < arm->ninputs && n->kind == NODE_IF && marks; i++) marks[arm->inputs[i]] = operands[1 + i];
    ok = marks && (n->kind == NODE_IF ? mark_varying(arm, marks) : grad_turns_vary(n, operands, marks));
    for (uint32_t k = 0; k < arm->noutputs && ok; k++) results[k] |= marks[arm->outputs[k]]; /* (others are counts) */
    if (n->kind != NODE_IF) /* a loop may make no turn */
      for (uint32_t k = 0; k < graph_loop_carries(n) && ok; k++) results[k] |= operands[k];
    free(marks);
  }
  return ok;
}

bool grad_control_wants(const graph *g, uint32_t node, const uint32_t *given, bool *wanted, bool *any) {
  const graph_node *n = &g->nodes[node];
  uint32_t nout = graph_nresults(n);
  bool *results = calloc((size_t)nout + n->nin + 1, sizeof *results), *operands = results + nout;
  for (uint32_t k = 0; k < nout && results; k++) results[k] = given[k] != 0;
  bool ok = results && grad_region_needs(n, results, false, operands);
  *any = false;
  for (uint32_t k = 0; k < n->nin && ok; k++) *any |= wanted[k] &= operands[k];
  free(results);
  return ok;
}
