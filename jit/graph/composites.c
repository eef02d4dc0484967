/* Calls in a graph. A recording appends what a call computes while the call runs, and each node's site tells through which calls it was
 * reached. So the nodes of a call are a run of nodes whose sites lie under the site of the call; what else lies under it (a derivative has the
 * sites of what it is the derivative of) comes later and is no part of the run. Sites are numbered as they are reached, so a node begins a
 * call if no node before it has a site beyond that of the call. Inputs may stand anywhere and are part of no call.
 */
#include "jit/graph/composites.h"

#include <string.h>

/* The call from which site s was reached, if that is a call of a function that stays visible; else 0. */
static uint32_t call_of(const graph *g, uint32_t s) { return g->sites[s].whole ? g->sites[s].parent : 0; }

static bool is_in(const graph *g, uint32_t i, uint32_t call) {
  uint32_t s = g->nodes[i].site;
  if (s >= g->nsites || g->nodes[i].kind == NODE_INPUT) return false;
  for (; s; s = g->sites[s].parent)
    if (call_of(g, s) == call) return true;
  return false;
}

uint32_t graph_calls_at(const graph *g, uint32_t i, uint32_t *newest, graph_call out[GRAPH_CALLS_NESTED]) {
  uint32_t own = g->nodes[i].site, n = 0;
  if (own >= g->nsites || g->nodes[i].kind == NODE_INPUT) return 0;
  for (uint32_t s = own; s; s = g->sites[s].parent) {
    uint32_t call = call_of(g, s);
    if (!call || call < *newest) continue;
    if (n == GRAPH_CALLS_NESTED) memmove(out, out + 1, --n * sizeof *out);
    uint32_t end = i + 1;
    for (uint32_t k = end; k < g->n && (g->nodes[k].kind == NODE_INPUT || is_in(g, k, call)); k++)
      if (g->nodes[k].kind != NODE_INPUT) end = k + 1;
    out[n++] = (graph_call){call, g->sites[s].function, i, end};
  }
  if (own > *newest) *newest = own;
  for (uint32_t k = 0; k < n / 2; k++) {
    graph_call c = out[k];
    out[k] = out[n - 1 - k];
    out[n - 1 - k] = c;
  }
  return n;
}

const char *graph_call_around(const graph *g, uint32_t i) {
  const char *name = NULL;
  if (g->nodes[i].site >= g->nsites || g->nodes[i].kind == NODE_INPUT) return NULL;
  for (uint32_t s = g->nodes[i].site; s; s = g->sites[s].parent)
    if (call_of(g, s)) name = g->sites[s].function;
  return name;
}

void graph_last_uses(const graph *g, uint32_t *last) {
  memset(last, 0, g->n * sizeof *last);
  for (uint32_t i = 1; i < g->n; i++)
    for (int k = 0; k < g->nodes[i].nin; k++) last[g->nodes[i].in[k]] = i;
  for (uint32_t i = 0; i < g->noutputs; i++) last[g->outputs[i]] = UINT32_MAX;
}

uint32_t graph_call_operands(const graph *g, const graph_call *c, uint32_t *out, uint32_t most) {
  uint32_t n = 0;
  for (uint32_t i = c->first; i < c->end; i++)
    for (int k = 0; k < g->nodes[i].nin; k++) {
      uint32_t x = g->nodes[i].in[k];
      bool known = x >= c->first && g->nodes[x].kind != NODE_INPUT;
      for (uint32_t m = 0; m < n && m < most && !known; m++) known = out[m] == x;
      if (known) continue;
      if (n < most) out[n] = x;
      n++;
    }
  return n;
}

uint32_t graph_call_results(const graph *g, const graph_call *c, const uint32_t *last, uint32_t *out, uint32_t most) {
  uint32_t n = 0;
  for (uint32_t i = c->first; i < c->end; i++) {
    if (last[i] < c->end || g->nodes[i].kind == NODE_INPUT) continue;
    if (n < most) out[n] = i;
    n++;
  }
  return n;
}
