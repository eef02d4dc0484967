/* Plans as text, for people and tests. */
#include "jit/kernel/plan.h"
#include "lang/value.h"

static void print_buffer(const plan *p, uint32_t i, text_buf *out) {
  static const char *const where[] = {"input ", "constant ", "output ", "arena ", "late"};
  const plan_buffer *b = &p->buffers[i];
  text_addf(out, "  b%u: %s", i, where[b->where]);
  if (b->where == WHERE_INPUT || b->where == WHERE_OUTPUT) text_int(out, b->index);
  if (b->where == WHERE_ARENA || (b->where == WHERE_OUTPUT && b->offset)) {
    text_adds(out, "+");
    dim_print(&p->graph->dims, b->offset, out);
  }
  text_addf(out, " %s[", dtype_rows[b->dtype].name);
  dim_print(&p->graph->dims, b->elements, out);
  text_adds(out, "]\n");
}

static void print_step(const plan *p, const plan_step *s, text_buf *out) {
  if (s->kind == STEP_KERNEL)
    text_addf(out, "kernel %u", s->what);
  else if (s->kind == STEP_REGIONS)
    text_addf(out, "regions %u", s->what);
  else if (s->kind == STEP_TAP)
    text_addf(out, "tap %u", s->what);
  else
    text_addf(out, "%s%s", s->kind == STEP_SCALAR ? "scalar " : "", op_rows[s->op].name);
  for (uint32_t i = 0; i < s->nbuffers; i++) text_addf(out, " b%u", s->buffers[i]);
  for (uint32_t i = 0; i < s->nscalars; i++) text_addf(out, " s%u", s->scalars[i]);
  if (s->kind == STEP_SCALAR) text_addf(out, " -> s%u", s->out);
  if (s->kind == STEP_REGIONS && p->regions[s->what].why) text_addf(out, " (no kernel: %s)", p->regions[s->what].why);
  text_adds(out, "\n");
}

void plan_print(const plan *p, text_buf *out) {
  const graph *g = p->graph;
  text_addf(out, "plan: %u kernels, %u steps, peak ", p->nkernels, p->nsteps);
  text_int(out, p->peak_bytes);
  text_adds(out, " bytes (node by node ");
  text_int(out, p->eager_peak_bytes);
  text_adds(out, "), arena ");
  dim_print(&g->dims, p->arena_bytes, out);
  text_adds(out, "\n");
  for (uint32_t i = 0; i < p->nkernels; i++) {
    const plan_kernel *k = &p->kernels[i];
    text_addf(out, "  kernel %u %s: %u nodes, %u phase%s, ", i, k->program->name, k->nops, k->nphases,
              k->nphases == 1 ? "" : "s");
    dim_print(&k->graph->dims, k->bytes, out);
    text_adds(out, " bytes:");
    for (uint32_t n = 0; n < k->nops; n++) {
      const graph_node *node = &k->graph->nodes[k->nodes[n]];
      text_addf(out, " %%%u %s", k->nodes[n], node->kind == NODE_CONST ? "constant" : graph_node_word(node));
      if (node->site && node->site < k->graph->nsites) text_addf(out, "@%u", node->site);
    }
    text_adds(out, "\n");
  }
  for (uint32_t i = 0; i < p->nbuffers; i++) print_buffer(p, i, out);
  for (uint32_t i = 0; i < p->nsteps; i++) {
    text_addf(out, "  step %u: ", i);
    print_step(p, &p->steps[i], out);
  }
  for (uint32_t i = 0; i < p->noutputs; i++) {
    static const char *const kinds[] = {"b", "input ", "s"};
    text_addf(out, "  result %u: %s%u\n", i, kinds[p->outputs[i].kind], p->outputs[i].index);
  }
}
