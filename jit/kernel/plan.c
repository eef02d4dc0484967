/* Plans: fusion, lowering and scheduling put together, then slots for host scalars, buffers, and their places in memory.
 *
 * Memory. A buffer that is neither input, constant nor output is a temporary; it lives from the step that writes it to the last step that reads
 * it; place.c finds where. Sizes that are no plain numbers are laid out behind all others, and share a place only with buffers of the same size.
 *
 * The peak of a plan must not be above that of running the graph node by node, or a few pages. Where it is, fusion is done again with a limit on
 * what is live at a time; if even the unfused graph needs more (a view that must be copied because it is a result), the best attempt is taken. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit/graph/ranges.h"
#include "jit/kernel/fuse.h"
#include "jit/kernel/heap.h"
#include "jit/kernel/launch.h"
#include "jit/kernel/place.h"
#include "jit/kernel/plan.h"
#include "jit/kernel/schedule.h"
#include "jit/kernel/sink.h"
#include "jit/kernel/splice.h"
#include "jit/kernel/statics.h"
#include "jit/kernel/updates.h"
#include "lang/value.h"
#include "lang/vm.h"

#define BYTES_MOST ((int64_t)1 << 46) /* larger buffers are not given to place.c, so that its sums do not overflow */
enum { CACHED = 16384 };              /* elements of an array that stays in the cache as long as a loop runs */
enum { FUSION_TRIES = 4 };            /* how often fusion is tried with a lower limit, before it is not done at all */

/* A buffer while memory is planned. */
typedef struct span_of_life {
  uint32_t first, last; /* the steps between which it is in use; first is UINT32_MAX if it never is */
  int64_t bytes;        /* rounded; -1: symbolic, or more than any machine has */
  int64_t exact;        /* before rounding, which is the size of an output's array */
  qn_dim size;          /* bytes, rounded, as a size that may be symbolic */
  uint32_t place;       /* 1 + number among those that place.c places */
  uint32_t origin;      /* the buffer in whose memory it may lie, because branches hand it on; or it itself */
} span_of_life;

/* A kernel that later ones of the plan, which are the same but for their nodes, share. Its buffers and host scalars refer to nodes by their numbers
 * in alike.nodes. */
typedef struct made_kernel {
  uint32_t kernel; /* of the plan */
  const qn_dim *ints;
  uint32_t nints;
  const uint8_t *alias;
  const k_buffer *buffers;
  uint32_t nbuffers;
  const uint32_t *scalars;
  uint32_t nscalars;
} made_kernel;

/* A step may write its output over its operand. */
typedef struct overlap {
  uint32_t over, by; /* buffers */
} overlap;

typedef struct planner {
  plan *p;
  graph *g;
  const int64_t *tune;
  const uint32_t *over; /* updates_request.over */
  uint8_t *awkward;     /* by node: must it read its operands from buffers? (See fuse.) */
  bool again;           /* has another node become awkward, so that fusion must be done again? */
  cancel_flag cancel;
  fusion f;
  alike *memo;
  struct made_kernel **made; /* by number in the memo; NULL: none yet */
  uint32_t made_cap;
  const char *why;
  arena arena;         /* for working memory */
  uint32_t *buffer_of; /* by node: 1 + buffer */
  uint32_t *slot_of;   /* by node: 1 + scalar slot */
  /* lists of results, by node: of a branch or loop the last NODE_PROJ, of a NODE_PROJ the one before it */
  uint32_t *proj_of;
  uint32_t *region_of; /* by branch or loop: the number of its plan_region */
  uint8_t *updated;    /* by node: does another one store into its memory? */
  span_of_life *lives; /* by buffer */
  overlap *overlaps;
  uint32_t noverlaps, overlaps_cap;
} planner;

static bool fails(planner *m, const char *why) {
  m->why = why;
  return false;
}

static bool out_of_memory(planner *m) { return fails(m, lower_no_memory); }

static bool goes_on(planner *m) { return !cancelled(m->cancel) || fails(m, lower_cancelled); }

static void *take(planner *m, size_t n, size_t size) {
  void *p = arena_alloc(&m->p->arena, (n ? n : 1) * size);
  if (!p) out_of_memory(m);
  return p;
}

static bool is_output(const plan_buffer *b) { return b->where == WHERE_OUTPUT; }

/* ---- host scalars ------------------------------------------------------------------------------------------------------------ */

static bool make_slots(planner *m) {
  plan *p = m->p;
  graph *g = m->g;
  uint32_t most = g->n + m->f.n;
  qk_scalar *init = take(m, most, sizeof *init);
  p->scalar_types = take(m, most, sizeof *p->scalar_types);
  if (!init || !p->scalar_types) return false;
  p->scalar_init = init;
  for (uint32_t i = 0; i < g->ninputs; i++) {
    uint32_t n = g->inputs[i];
    if (!g->nodes[n].type.weak) continue;
    p->scalar_types[p->nscalars] = g->nodes[n].type;
    m->slot_of[n] = ++p->nscalars;
  }
  for (uint32_t n = 1; n < g->n; n++) {
    const graph_node *node = &g->nodes[n];
    if (!node->type.weak || m->slot_of[n] || (node->kind == NODE_OP && !m->f.group_of[n])) continue;
    if (node->kind == NODE_CONST) {
      qk_scalar *s = &init[p->nscalars];
      memcpy(s, node->payload.data, dtype_size(node->type.dtype));
    }
    p->scalar_types[p->nscalars] = node->type;
    m->slot_of[n] = ++p->nscalars;
  }
  return true;
}

/* ---- buffers -------------------------------------------------------------------------------------------------------------------- */

static bool add_buffer(planner *m, uint32_t n, plan_where where, uint32_t index) {
  const graph_node *node = &m->g->nodes[n];
  plan_buffer *b = &m->p->buffers[m->p->nbuffers];
  *b = (plan_buffer){.where = (uint8_t)where, .dtype = node->type.dtype, .index = index};
  b->elements = fuse_elements(m->g, &node->type);
  if (where == WHERE_CONST) b->data = node->payload.data;
  m->buffer_of[n] = ++m->p->nbuffers;
  return true;
}

/* Does a size depend on how many turns a loop makes, or on a number that is computed? */
static bool from_loop(const graph *g, qn_dim d, int depth) {
  if (d >= 0 || depth > DIM_MAX_SIZE) return d < 0;
  const dim_expr *e = &g->dims.exprs[~d];
  if (e->op == DIM_SYMBOL)
    return e->source == DIM_FROM_NUMBER || (e->source == DIM_FROM_NODE && g->nodes[e->ref].kind == NODE_PROJ);
  return from_loop(g, e->a, depth + 1) || from_loop(g, e->b, depth + 1);
}

/* The number of the buffer that holds a node's elements in row-major order; -1 if none does. */
static int64_t buffer_for(const planner *m, uint32_t n) {
  uint32_t b = m->f.base[n] ? m->f.base[n] : n;
  return (int64_t)m->buffer_of[b] - 1;
}

/* The node that makes the memory into which node n is stored. */
static uint32_t memory_of(const planner *m, uint32_t n) {
  while (m->over[n]) n = m->over[n];
  return n;
}

/* Notes which inputs are written to. */
static bool find_updates(planner *m) {
  plan *p = m->p;
  const graph *g = m->g;
  bool *updates = take(m, g->ninputs, sizeof *updates);
  if (!updates) return false;
  p->updates = updates;
  for (uint32_t n = 1; n < g->n; n++) {
    uint32_t x = m->over[n] && (m->f.group_of[n] || graph_fallible(g, n)) ? memory_of(m, n) : 0;
    if (x && g->nodes[x].kind == NODE_INPUT) updates[g->nodes[x].payload.input] = true;
  }
  return true;
}

/* Is a node a loop that is a kernel? */
static bool sunk(const planner *m, uint32_t n) {
  return m->g->nodes[n].kind == NODE_LOOP && m->p->regions[m->region_of[n]].sunk;
}

static bool make_buffers(planner *m) {
  plan *p = m->p;
  graph *g = m->g;
  p->buffers = take(m, g->n, sizeof *p->buffers);
  p->outputs = take(m, g->noutputs, sizeof *p->outputs);
  if (!p->buffers || !p->outputs || (p->part && !find_updates(m))) return false;
  p->noutputs = g->noutputs;
  for (uint32_t i = 0; i < g->noutputs; i++) {
    uint32_t n = g->outputs[i], b = memory_of(m, m->f.base[n]);
    plan_output *o = &p->outputs[i];
    o->type = g->nodes[n].type;
    if (o->type.weak) {
      o->kind = OUT_SCALAR;
      o->index = m->slot_of[n] - 1;
    } else if (g->nodes[b].kind == NODE_INPUT) {
      o->kind = OUT_INPUT;
      o->index = g->nodes[b].payload.input;
    } else {
      o->kind = OUT_BUFFER;
      if (!m->buffer_of[b]) add_buffer(m, b, WHERE_OUTPUT, i);
      o->index = m->buffer_of[b] - 1;
    }
  }
  for (uint32_t n = 1; n < g->n; n++) {
    const graph_node *node = &g->nodes[n];
    if (m->buffer_of[n] || node->type.weak) continue;
    if (m->over[n]) {
      m->buffer_of[n] = m->buffer_of[memory_of(m, n)];
      continue;
    }
    if (node->kind == NODE_INPUT) add_buffer(m, n, WHERE_INPUT, node->payload.input);
    if (node->kind == NODE_CONST) add_buffer(m, n, WHERE_CONST, 0);
    if ((node->kind == NODE_OP || node->kind == NODE_PROJ) && m->f.stored[n]) add_buffer(m, n, WHERE_ARENA, 0);
  }
  for (uint32_t n = 1; n < g->n; n++) { /* host numbers that a kernel makes come by way of buffers */
    const graph_node *node = &g->nodes[n];
    if (node->kind == NODE_PROJ && node->type.weak && m->f.group_of[n] && sunk(m, node->in[0]))
      add_buffer(m, n, WHERE_ARENA, 0);
  }
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    plan_buffer *buf = &p->buffers[b];
    if ((buf->where != WHERE_ARENA && !is_output(buf)) || !from_loop(g, buf->elements, 0)) continue;
    buf->where = WHERE_LATE;
    p->late = true;
  }
  return true;
}

/* ---- steps ------------------------------------------------------------------------------------------------------------------------ */

static bool note_overlap(planner *m, uint32_t over, uint32_t by) {
  if (over == by) return true;
  if (!arena_room(&m->arena, (void **)&m->overlaps, &m->overlaps_cap, m->noverlaps + 1, sizeof *m->overlaps))
    return out_of_memory(m);
  m->overlaps[m->noverlaps++] = (overlap){over, by};
  return true;
}

#ifdef QN_CHECKED
static void note_defect(planner *m, const char *what, const char *found) {
  size_t size = strlen(what) + strlen(found) + 3;
  char *why = arena_alloc(&m->p->arena, size);
  if (why) snprintf(why, size, "%s: %s", what, found);
  m->why = why ? why : lower_no_memory;
}
#endif

/* An array that a kernel reads may be among its buffers under several names: next[i] becomes the next one of the array that buffer i is bound to,
 * going round. */
static void ring_names(const k_buffer *list, uint32_t n, const uint32_t *bound, uint32_t *next) {
  for (uint32_t i = 0; i < n; i++) {
    next[i] = i;
    if (list[i].mode != BUF_IN) continue;
    do next[i] = next[i] + 1 < n ? next[i] + 1 : 0;
    while (list[next[i]].mode != BUF_IN || bound[next[i]] != bound[i]);
  }
}

/* Sets a step's buffers to those of its kernel, a list of `all`, but for scratch, which whoever runs the program provides; notes overlaps that the
 * schedule allows (`alias`, see schedule_result). With `nodes`, buffers refer to nodes by their numbers there. */
static bool bind_buffers(planner *m, plan_step *s, const k_buffer *list, uint32_t all, const uint32_t *nodes,
                         const l_program *program, const uint8_t *alias) {
  uint32_t *buffers = take(m, 3 * (size_t)all, sizeof *buffers), n = 0, most = 0;
  if (!buffers) return false;
  uint32_t *bound = buffers + all, *next = bound + all;
  for (uint32_t i = 0; i < all; i++) {
    if (list[i].mode == BUF_SCRATCH) continue;
    int64_t b = buffer_for(m, nodes ? nodes[list[i].ref] : list[i].ref);
    if (b < 0) return fails(m, "a kernel reads what nothing stores");
    bound[i] = buffers[n++] = (uint32_t)b;
  }
  for (uint32_t i = 0; i < program->nbuffers; i++) most += program->buffers[i].mode != BUF_SCRATCH;
  if (most != n) return fails(m, "a program's buffers are not its kernel's");
  if (alias) ring_names(list, all, bound, next);
  for (uint32_t i = 0; alias && i < all; i++)
    for (uint32_t o = 0; o < all; o++) {
      bool may = alias[i * all + o] && list[i].mode == BUF_IN && (list[o].mode == BUF_OUT || list[o].mode == BUF_INOUT);
      for (uint32_t j = next[i]; may && j != i; j = next[j]) may = alias[j * all + o]; /* all its names */
      if (may && !note_overlap(m, bound[i], bound[o])) return false;
    }
  s->buffers = buffers;
  s->nbuffers = n;
  return true;
}

static bool bind_scalars(planner *m, plan_step *s, const uint32_t *nodes, uint32_t n) {
  uint32_t *slots = take(m, n, sizeof *slots);
  if (!slots) return false;
  for (uint32_t i = 0; i < n; i++) {
    if (!m->slot_of[nodes[i]]) return fails(m, "a host scalar that nothing computes");
    slots[i] = m->slot_of[nodes[i]] - 1;
  }
  s->scalars = slots;
  s->nscalars = n;
  return true;
}

/* Has the kernel no effects? Then nothing is stored, and all checks are known to hold. */
static bool does_nothing(const k_kernel *k) {
  for (k_val v = 1; v < k->n; v++)
    if (k_is_effect(&k->nodes[v])) return false;
  return true;
}

static void count_bytes(plan_kernel *k, int64_t elements, qn_dtype dtype) {
  k->bytes = dim_add(NULL, k->bytes, dim_mul(NULL, elements, (int64_t)dtype_size(dtype)));
}

/* Adds a kernel that computes n nodes, and makes s its step. */
static plan_kernel *next_kernel(planner *m, l_program *program, const uint32_t *nodes, uint32_t n, plan_step *s) {
  plan *p = m->p;
  uint32_t *copy = take(m, n, sizeof *copy);
  plan_kernel *to = &p->kernels[p->nkernels];
  s->kind = STEP_KERNEL;
  s->what = p->nkernels++;
  s->node = nodes[n - 1];
  *to = (plan_kernel){.program = program, .nops = n, .graph = m->g, .node_first = nodes[0], .node_last = nodes[n - 1]};
  to->nodes = copy ? memcpy(copy, nodes, n * sizeof *copy) : nodes;
  return copy ? to : NULL;
}

/* Schedules kernel k, which computes n nodes, as the plan's next, and binds step s to it. `overlaps`: results may be written over operands. With
 * `made`, notes what others of its kind share. */
static bool add_kernel(planner *m, k_kernel *k, const uint32_t *nodes, uint32_t n, bool overlaps, plan_step *s,
                       made_kernel *made) {
  plan *p = m->p;
  bool pays = statics_pay(k);
  k->statics = pays && m->tune[TUNE_fuse_static];
  uint8_t statics = k->statics ? STATICS_KNOWN : pays ? STATICS_PAY : STATICS_NONE;
#ifdef QN_CHECKED
  char text[256];
  if (!k_verify(k, text, sizeof text)) {
    note_defect(m, "lowering made a kernel that does not verify", text);
    return false;
  }
#endif
  schedule_result r = {0};
  const schedule_how how = schedule_how_of(m->tune);
  bool ok = schedule(k, m->p->target, &how, &r, &m->why);
  if (!ok) return false;
  if (made) *made = (made_kernel){.kernel = p->nkernels, .ints = r.ints, .nints = r.nints, .alias = r.alias};
  plan_kernel *to = next_kernel(m, r.program, nodes, n, s);
  if (!to) return false;
  to->statics = statics;
  to->hash = l_hash(r.program);
  for (uint32_t i = 1; i < r.program->n; i++) to->nphases += r.program->code[i].code == L_PHASE;
  for (uint32_t i = 0; i < k->nbuffers; i++)
    count_bytes(to, dim_hint(&m->g->dims, k->buffers[i].elements), (qn_dtype)k->buffers[i].dtype);
  p->here_only |= !l_launches(r.program);
  s->ints = r.ints;
  s->nints = r.nints;
  ok = bind_buffers(m, s, k->buffers, k->nbuffers, NULL, r.program, overlaps ? r.alias : NULL) &&
       bind_scalars(m, s, k->scalars, k->nscalars);
#ifdef QN_CHECKED
  if (ok && !l_verify(r.program, text, sizeof text)) {
    note_defect(m, "scheduling made a program that does not verify", text);
    ok = false;
  }
#endif
  return ok;
}

/* The number of a node in the list of the memo; its length if it is not there. */
static uint32_t number_in(const alike *memo, uint32_t node) {
  uint32_t i = 0;
  while (i < memo->n && memo->nodes[i] != node) i++;
  return i;
}

/* Notes what kernels of number `number` share with k, of which *made says already what its schedule is, unless that is nothing: checks name nodes. */
static bool share(planner *m, int64_t number, const k_kernel *k, made_kernel *made) {
  if (k->nchecks) return true;
  k_buffer *buffers = arena_alloc(&m->arena, (k->nbuffers + 1) * sizeof *buffers);
  uint32_t *scalars = arena_alloc(&m->arena, (k->nscalars + 1) * sizeof *scalars);
  if (!buffers || !scalars) return out_of_memory(m);
  for (uint32_t i = 0; i < k->nbuffers; i++) {
    buffers[i] = k->buffers[i];
    if (buffers[i].mode == BUF_SCRATCH) continue;
    buffers[i].ref = number_in(m->memo, k->buffers[i].ref);
    if (buffers[i].ref == m->memo->n) return true;
  }
  for (uint32_t i = 0; i < k->nscalars; i++)
    if ((scalars[i] = number_in(m->memo, k->scalars[i])) == m->memo->n) return true;
  made->buffers = buffers;
  made->nbuffers = k->nbuffers;
  made->scalars = scalars;
  made->nscalars = k->nscalars;
  m->made[number] = made;
  return true;
}

/* Adds a kernel that is the same as an earlier one but for its nodes. */
static bool shared_kernel(planner *m, const made_kernel *made, const fuse_group *x, plan_step *s) {
  plan *p = m->p;
  const plan_kernel *like = &p->kernels[made->kernel];
  plan_kernel *to = next_kernel(m, like->program, x->nodes, x->n, s);
  uint32_t *scalars = take(m, made->nscalars, sizeof *scalars);
  if (!to || !scalars) return false;
  to->shares = true;
  to->statics = like->statics;
  to->hash = like->hash;
  to->nphases = like->nphases;
  to->bytes = like->bytes;
  s->ints = made->ints;
  s->nints = made->nints;
  for (uint32_t i = 0; i < made->nscalars; i++) scalars[i] = m->memo->nodes[made->scalars[i]];
  return bind_buffers(m, s, made->buffers, made->nbuffers, m->memo->nodes, like->program, made->alias) &&
         bind_scalars(m, s, scalars, made->nscalars);
}

#ifdef QN_CHECKED
/* Would a group have made the program that it shares? */
static bool same_program(planner *m, uint32_t group, uint64_t hash) {
  schedule_result r = {0};
  k_kernel *k = fuse_lower(&m->f, group, &m->why);
  if (k) k->statics = statics_pay(k) && m->tune[TUNE_fuse_static];
  const schedule_how how = schedule_how_of(m->tune);
  bool ok = k && schedule(k, m->p->target, &how, &r, &m->why);
  k_free(k);
  if (!ok) return false;
  ok = l_hash(r.program) == hash;
  l_free(r.program);
  if (!ok) note_defect(m, "kernels that are alike", "have different programs");
  return ok;
}
#endif

static bool kernel_step(planner *m, uint32_t group, plan_step *s) {
  const fuse_group *x = &m->f.groups[group];
  made_kernel *made = NULL;
  int64_t number = -1;
  if (m->tune[TUNE_fuse_reuse]) {
    number = fuse_alike(&m->f, group, m->memo);
    if (number < 0 || !arena_room(&m->arena, (void **)&m->made, &m->made_cap, (size_t)number + 1, sizeof *m->made))
      return out_of_memory(m);
    if (m->made[number]) {
      if (!shared_kernel(m, m->made[number], x, s)) return false;
#ifdef QN_CHECKED
      if (!same_program(m, group, m->p->kernels[s->what].hash)) return false;
#endif
      return true;
    }
    if (!(made = arena_alloc(&m->arena, sizeof *made))) return out_of_memory(m);
  }
  k_kernel *k = fuse_lower(&m->f, group, &m->why);
  if (!k) return false;
  if (does_nothing(k)) {
    m->p->nsteps--;
    k_free(k);
    return true;
  }
  bool ok = add_kernel(m, k, x->nodes, x->n, true, s, made) && (!made || share(m, number, k, made));
  k_free(k);
  if (!ok && !lower_ends(m->why) && x->n == 1 && !m->awkward[x->nodes[0]]) m->awkward[x->nodes[0]] = m->again = true;
  return ok;
}

static bool library_step(planner *m, uint32_t n, plan_step *s) {
  const graph_node *node = &m->g->nodes[n];
  uint32_t *buffers = take(m, (size_t)node->nin + 1, sizeof *buffers);
  if (!buffers) return false;
  for (int i = 0; i <= node->nin; i++) {
    int64_t b = buffer_for(m, i < node->nin ? node->in[i] : n);
    if (b < 0) return fails(m, "a library step reads what nothing stores");
    buffers[i] = (uint32_t)b;
  }
  *s = (plan_step){.kind = STEP_LIBRARY, .op = node->op, .node = n, .attr = node->attr, .buffers = buffers};
  s->nbuffers = (uint32_t)node->nin + 1;
  m->p->nproducts += node->op == OP_gemm;
  return true;
}

static bool scalar_step(planner *m, uint32_t n, plan_step *s) {
  plan *p = m->p;
  const graph_node *node = &m->g->nodes[n];
  *s = (plan_step){.kind = STEP_SCALAR, .op = node->op, .node = n, .attr = node->attr};
  if (m->slot_of[n]) {
    s->out = m->slot_of[n] - 1;
  } else { /* a fit of which only the check is needed: the number itself does not change */
    p->scalar_types[p->nscalars] = m->g->nodes[node->in[0]].type;
    s->out = p->nscalars++;
  }
  if (node->op != OP_cast || m->g->nodes[node->in[0]].type.weak) return bind_scalars(m, s, node->in, node->nin);
  uint32_t *buffer = take(m, 1, sizeof *buffer);
  int64_t b = buffer_for(m, node->in[0]);
  if (!buffer) return false;
  if (b < 0) return fails(m, "a host scalar is read from what nothing stores");
  *buffer = (uint32_t)b;
  s->buffers = buffer;
  s->nbuffers = 1;
  return true;
}

/* ---- regions ---------------------------------------------------------------------------------------------------------------------- */

static bool find_results(planner *m) {
  const graph *g = m->g;
  uint32_t regions = 0;
  m->proj_of = arena_alloc(&m->arena, g->n * sizeof *m->proj_of);
  m->region_of = arena_alloc(&m->arena, g->n * sizeof *m->region_of);
  m->updated = arena_alloc(&m->arena, g->n * sizeof *m->updated);
  if (!m->proj_of || !m->region_of || !m->updated) return out_of_memory(m);
  for (uint32_t n = 1; n < g->n; n++) {
    m->updated[m->over[n]] = 1;
    if (graph_kind_has_regions(g->nodes[n].kind)) m->region_of[n] = regions++;
    if (g->nodes[n].kind != NODE_PROJ) continue;
    uint32_t of = g->nodes[n].in[0];
    m->proj_of[n] = m->proj_of[of];
    m->proj_of[of] = n;
  }
  return true;
}

/* Sets *to to the scalar slot or buffer of a node that a region step reads or writes; adds a buffer to `buffers`, those of the step. */
static bool bind_value(planner *m, plan_step *s, uint32_t *buffers, uint32_t n, uint32_t *to) {
  int64_t b = m->g->nodes[n].type.weak ? (int64_t)m->slot_of[n] - 1 : buffer_for(m, n);
  if (b < 0) return fails(m, "a region reads what nothing computes");
  *to = (uint32_t)b;
  if (!m->g->nodes[n].type.weak) buffers[s->nbuffers++] = (uint32_t)b;
  return true;
}

/* May a value that a branch hands on lie in the memory of node x, buffer `from`? Not if that is written to as long as the value lives. An `output`
 * of the plan lives longer than the run does, and then memory that is not an input's is used again. */
static bool may_pass(const planner *m, uint32_t x, const plan_buffer *from, bool output) {
  if (m->updated[x]) return false;
  return !output || (from->where == WHERE_INPUT && !(m->p->updates && m->p->updates[from->index]));
}

/* Which operands of a branch an arm may hand on as results (plan_region.pass): none if the result is updated later. NULL when memory is short. */
static uint32_t *hand_on(planner *m, const graph_node *node, const plan_region *r) {
  uint32_t *pass = take(m, r->nout, sizeof *pass);
  for (uint32_t k = 0; pass && k < r->nout; k++) {
    bool elsewhere = m->g->nodes[r->proj[k]].type.weak || m->over[r->proj[k]] || m->updated[r->proj[k]];
    plan_buffer *to = elsewhere ? NULL : &m->p->buffers[r->out[k]];
    pass[k] = 0;
    for (int a = 0; to && a < 2 && !pass[k]; a++) {
      const plan_output *o = &r->parts[a]->outputs[k];
      uint32_t operand = o->kind == OUT_INPUT ? o->index + 1 : o->kind == OUT_BUFFER ? o->may_be : 0;
      if (o->kind == OUT_INPUT && r->parts[a]->updates[o->index]) continue; /* which is copied, if it lies elsewhere */
      if (operand && may_pass(m, node->in[operand], &m->p->buffers[r->in[operand]], is_output(to))) pass[k] = operand;
    }
    if (!to || !pass[k] || !is_output(to)) continue;
    for (uint32_t o = 0; o < m->p->noutputs; o++)
      if (m->p->outputs[o].kind == OUT_BUFFER && m->p->outputs[o].index == r->out[k])
        m->p->outputs[o].may_be = m->p->buffers[r->in[pass[k]]].index + 1;
  }
  return pass;
}

/* Notes where the operands and results of a region step are, in its plan_region and in the step's list of buffers. */
static bool bind_region(planner *m, uint32_t n, plan_step *s) {
  plan *p = m->p;
  const graph_node *node = &m->g->nodes[n];
  plan_region *r = &p->regions[m->region_of[n]];
  uint32_t *in = take(m, r->nin, sizeof *in), *proj = take(m, r->nout, sizeof *proj),
           *out = take(m, r->nout, sizeof *out);
  uint32_t *buffers = take(m, (size_t)r->nin + r->nout, sizeof *buffers);
  if (!in || !proj || !out || !buffers) return false;
  for (uint32_t i = 0; i < r->nin; i++)
    if (!bind_value(m, s, buffers, node->in[i], &in[i])) return false;
  for (uint32_t x = m->proj_of[n]; x; x = m->proj_of[x]) {
    uint32_t k = m->g->nodes[x].payload.index;
    if (!m->f.group_of[x]) continue; /* a result that nobody needs */
    if (proj[k]) return fails(m, "a result of a region is taken twice");
    proj[k] = x;
    if (!bind_value(m, s, buffers, x, &out[k])) return false;
  }
  for (uint32_t k = 0; k < r->nout && r->kind == NODE_IF; k++)
    if (!proj[k]) return fails(m, "a branch has a result that nobody takes");
  r->in = in;
  r->proj = proj;
  r->out = out;
  r->pass = r->kind == NODE_IF ? hand_on(m, node, r) : out;
  if (!r->pass) return false;
  s->buffers = buffers;
  return true;
}

static bool tap_step(planner *m, uint32_t n, plan_step *s) {
  const graph_node *node = &m->g->nodes[n];
  *s = (plan_step){.kind = STEP_TAP, .node = n, .what = node->payload.tap};
  uint32_t *in = take(m, node->nin, sizeof *in), *buffers = take(m, node->nin, sizeof *buffers);
  if (!in || !buffers) return false;
  for (int i = 0; i < node->nin; i++)
    if (!bind_value(m, s, buffers, node->in[i], &in[i])) return false;
  s->in = in;
  s->buffers = buffers;
  if (node->type.weak) s->out = m->slot_of[n] - 1;
  return true;
}

/* Adds the step that reads a host number which a kernel has stored to its buffer. */
static bool read_number(planner *m, uint32_t n) {
  op_attr *attr = take(m, 1, sizeof *attr);
  uint32_t *buffer = take(m, 1, sizeof *buffer);
  if (!attr || !buffer) return false;
  *attr = (op_attr){.dtype = m->g->nodes[n].type.dtype, .flags = ATTR_WEAK};
  *buffer = m->buffer_of[n] - 1;
  m->p->steps[m->p->nsteps++] = (plan_step){.kind = STEP_SCALAR,
                                            .op = OP_cast,
                                            .node = n,
                                            .attr = attr,
                                            .buffers = buffer,
                                            .nbuffers = 1,
                                            .out = m->slot_of[n] - 1};
  return true;
}

/* Notes where the rows lie that a loop keeps which is a kernel. */
static bool bind_rows(planner *m, const plan_region *r, const spliced *x, plan_kernel *to) {
  kernel_rows *rows = take(m, 1, sizeof *rows);
  uint32_t *buffers = take(m, x->nrows, sizeof *buffers);
  if (!rows || !buffers) return false;
  *rows = (kernel_rows){.nodes = x->rows, .buffers = buffers, .n = x->nrows, .room = x->room};
  for (uint32_t k = 0; k < x->nrows; k++) {
    int64_t b = buffer_for(m, x->rows[k]);
    if (b < 0 || m->p->buffers[b].where != WHERE_LATE)
      return fails(m, "rows of a loop that have no memory of their own");
    buffers[k] = (uint32_t)b;
  }
  rows->turns = m->buffer_of[r->proj[r->nout - 2]] - 1;
  if (x->room_node) rows->slot = m->slot_of[x->room_node];
  to->rows = rows;
  return true;
}

/* A loop as a kernel that is made of the programs of its parts. */
static bool spliced_kernel(planner *m, uint32_t n, const plan_region *r, plan_step *s) {
  plan *p = m->p;
  graph *g = m->g;
  spliced x = {0};
  uint32_t *node = take(m, 1, sizeof *node), *buffers;
  if (!node) return false;
  *node = n;
  if (!splice(&(splice_request){g, n, r->parts, r->proj, p->target, m->tune, &p->arena, m->cancel}, &x, &m->why))
    return false;
  plan_kernel *to = &p->kernels[p->nkernels];
  s->what = p->nkernels++;
  *to = (plan_kernel){.program = x.program, .nops = 1, .nodes = node, .graph = g, .nphases = 1};
  for (int k = 0; k < 2; k++)
    for (uint32_t i = 0; i < r->parts[k]->nkernels; i++)
      if (r->parts[k]->kernels[i].statics > to->statics) to->statics = r->parts[k]->kernels[i].statics;
  to->hash = l_hash(x.program);
  to->node_first = to->node_last = n;
  if (!(buffers = take(m, x.nbuffers, sizeof *buffers))) return false;
  for (uint32_t i = 0; i < x.nbuffers; i++) {
    const graph_type *t = &g->nodes[x.buffers[i]].type;
    int64_t b = buffer_for(m, x.buffers[i]);
    if (b < 0) return fails(m, "a kernel reads what nothing stores");
    buffers[i] = (uint32_t)b;
    count_bytes(to, dim_hint(&g->dims, graph_elements(g, t)), (qn_dtype)t->dtype);
  }
  if (x.nrows && !bind_rows(m, r, &x, to)) return false;
  p->here_only = true;
  s->kind = STEP_KERNEL;
  s->node = n;
  s->ints = x.ints;
  s->nints = x.nints;
  s->buffers = buffers;
  s->nbuffers = x.nbuffers;
  bool ok = bind_scalars(m, s, x.scalars, x.nscalars);
#ifdef QN_CHECKED
  char text[256];
  if (ok && !l_verify(x.program, text, sizeof text)) {
    note_defect(m, "splicing made a program that does not verify", text);
    ok = false;
  }
#endif
  return ok;
}

static bool over_operand(const plan_region *r, uint32_t k) { return k < 64 && r->over >> k & 1; }

/* A loop as a kernel. The steps that read its numbers take the room of the groups of its results, which have no steps of their own. */
static bool sunk_step(planner *m, uint32_t n, plan_step *s) {
  plan_step bound = {0};
  if (!bind_region(m, n, &bound)) return false;
  const plan_region *r = &m->p->regions[m->region_of[n]];
  bool ok = r->spliced && spliced_kernel(m, n, r, s);
  k_kernel *k = r->spliced ? NULL : sink(&(sink_request){m->g, n, r->proj, m->cancel}, &m->why);
  /* if it can fail, its operands must be there still, to find out how */
  if (k) ok = add_kernel(m, k, &n, 1, k->nchecks == 0, s, NULL);
  k_free(k);
  if (!ok) return false;
  m->p->kernels[m->p->nkernels - 1].region = m->region_of[n] + 1;
  for (uint32_t i = 0; i < r->ncarries && ok; i++)
    if (over_operand(r, i) && r->proj[i]) ok = note_overlap(m, r->in[i], r->out[i]);
  for (uint32_t i = 0; i < r->nout && ok; i++)
    if (r->proj[i] && m->g->nodes[r->proj[i]].type.weak) ok = read_number(m, r->proj[i]);
  return ok;
}

static bool region_step(planner *m, uint32_t n, plan_step *s) {
  *s = (plan_step){.kind = STEP_REGIONS, .node = n, .what = m->region_of[n]};
  if (sunk(m, n)) return sunk_step(m, n, s);
  return bind_region(m, n, s);
}

/* Moves the kernels of a plan and of the plans of its regions into one list, which compilers and devices go through. */
static void move_kernels(plan *p, plan_kernel *to) {
  for (uint32_t i = 0; i < p->nregions; i++)
    for (int k = 0; k < 2; k++) {
      plan *q = p->regions[i].spliced ? NULL : p->regions[i].parts[k];
      if (q) move_kernels(q, to + (q->kernels - p->kernels));
    }
  p->kernels = to;
}
static bool gather_kernels(plan *p) {
  uint32_t n = p->nkernels;
  for (uint32_t i = 0; i < p->nregions; i++)
    for (int k = 0; k < 2 && !p->regions[i].spliced; k++)
      n += p->regions[i].parts[k] ? p->regions[i].parts[k]->nkernels : 0;
  if (!p->nregions) return true;
  plan_kernel *all = arena_alloc(&p->arena, (n + 1) * sizeof *all);
  if (!all) return false;
  if (p->nkernels) memcpy((void *)all, (const void *)p->kernels, p->nkernels * sizeof *all);
  p->kernels = all;
  for (uint32_t i = 0; i < p->nregions; i++)
    for (int k = 0; k < 2; k++) {
      plan *q = p->regions[i].spliced ? NULL : p->regions[i].parts[k];
      if (!q) continue;
      if (q->nkernels) memcpy((void *)(all + p->nkernels), (const void *)q->kernels, q->nkernels * sizeof *all);
      q->within = true;
      move_kernels(q, all + p->nkernels);
      p->nkernels += q->nkernels;
    }
  return true;
}

static bool make_steps(planner *m) {
  plan *p = m->p;
  p->steps = take(m, m->f.n, sizeof *p->steps);
  p->kernels = take(m, m->f.n, sizeof *p->kernels);
  if (!p->steps || !p->kernels) return false;
  for (uint32_t i = 0; i < m->f.n; i++) {
    const fuse_group *x = &m->f.groups[i];
    if (x->kind == FUSE_RESULT) continue;
    plan_step *s = &p->steps[p->nsteps++];
    bool ok = !goes_on(m)               ? false
              : x->kind == FUSE_KERNEL  ? kernel_step(m, i, s)
              : x->kind == FUSE_LIBRARY ? library_step(m, x->nodes[0], s)
              : x->kind == FUSE_REGIONS ? region_step(m, x->nodes[0], s)
              : x->kind == FUSE_TAP     ? tap_step(m, x->nodes[0], s)
                                        : scalar_step(m, x->nodes[0], s);
    if (!ok && (!m->again || lower_ends(m->why))) return m->again = false;
  }
  return !m->again;
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------------ */

static qn_dim rounded_bytes(graph *g, const plan_buffer *b) {
  dim_table *t = &g->dims;
  qn_dim bytes = dim_mul(t, b->elements, (qn_dim)dtype_size((qn_dtype)b->dtype));
  bytes = dim_make(t, DIM_FLOORDIV, dim_add(t, bytes, FUSE_ALIGN - 1), FUSE_ALIGN);
  return dim_mul(t, bytes, FUSE_ALIGN);
}

static bool find_lives(planner *m) {
  plan *p = m->p;
  m->lives = arena_alloc(&m->arena, (p->nbuffers + 1) * sizeof *m->lives);
  if (!m->lives) return out_of_memory(m);
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    span_of_life *v = &m->lives[b];
    *v = (span_of_life){.first = UINT32_MAX, .origin = b};
    v->size = rounded_bytes(m->g, &p->buffers[b]);
    qn_dim bytes = dim_mul(&m->g->dims, p->buffers[b].elements, (qn_dim)dtype_size((qn_dtype)p->buffers[b].dtype));
    if (!dim_is_const(&m->g->dims, v->size, &v->bytes) || !dim_is_const(&m->g->dims, bytes, &v->exact) ||
        v->bytes > BYTES_MOST)
      v->bytes = -1;
  }
  for (uint32_t i = 0; i < p->nsteps; i++) {
    const plan_step *s = &p->steps[i];
    for (uint32_t k = 0; k < s->nbuffers; k++) {
      span_of_life *v = &m->lives[s->buffers[k]];
      if (v->first == UINT32_MAX) v->first = i;
      v->last = i;
    }
  }
  for (uint32_t b = 0; b < p->nbuffers; b++)
    if (is_output(&p->buffers[b])) m->lives[b].last = p->nsteps;
  for (uint32_t i = 0; i < p->nsteps; i++) {
    const plan_region *r = p->steps[i].kind == STEP_REGIONS ? &p->regions[p->steps[i].what] : NULL;
    for (uint32_t k = 0; r && r->kind == NODE_IF && k < r->nmade; k++)
      if (r->pass[k]) m->lives[r->out[k]].origin = m->lives[r->in[r->pass[k]]].origin;
  }
  for (uint32_t i = p->nsteps; i-- > 0;) { /* what a branch may hand on lives as long as the result */
    const plan_region *r = p->steps[i].kind == STEP_REGIONS ? &p->regions[p->steps[i].what] : NULL;
    for (uint32_t k = 0; r && r->kind == NODE_IF && k < r->nmade; k++) {
      if (!r->pass[k]) continue;
      span_of_life *from = &m->lives[r->in[r->pass[k]]], *to = &m->lives[r->out[k]];
      if (to->last > from->last) from->last = to->last;
    }
  }
  return true;
}

static bool may_overlap(const planner *m, uint32_t over, uint32_t by) {
  for (uint32_t i = 0; i < m->noverlaps; i++)
    if (m->overlaps[i].over == over && m->overlaps[i].by == by) return true;
  return false;
}

/* Does the step that first writes buffer y read no other buffer that may lie in the memory of x, but for those that y may lie over, nor store x? */
static bool reads_apart(const planner *m, uint32_t x, uint32_t y) {
  const plan_step *s = &m->p->steps[m->lives[y].first];
  if (plan_step_stores(m->p, s, x)) return false;
  for (uint32_t i = 0; i < s->nbuffers; i++) {
    uint32_t b = s->buffers[i];
    if (b != x && b != y && m->lives[b].origin == m->lives[x].origin && !may_overlap(m, b, y)) return false;
  }
  return true;
}

/* May buffer y, which a step writes, be placed over buffer x, which this step reads for the last time? They must have one size. */
static bool in_place(const planner *m, uint32_t x, uint32_t y) {
  const plan_buffer *a = &m->p->buffers[x], *b = &m->p->buffers[y];
  return m->lives[x].place && m->lives[y].place && m->lives[x].last == m->lives[y].first &&
         a->elements == b->elements && dtype_size((qn_dtype)a->dtype) == dtype_size((qn_dtype)b->dtype) &&
         reads_apart(m, x, y);
}

/* Does the step that first writes buffer y read the last of buffer x, element by element? Not if it checks something, since a kernel whose check
 * fails runs again for the value that it shows. */
static bool reads_before(const planner *m, uint32_t x, uint32_t y) {
  const plan_step *s = &m->p->steps[m->lives[y].first];
  if (s->kind != STEP_KERNEL || m->p->kernels[s->what].program->nchecks) return false;
  return may_overlap(m, x, y) && reads_apart(m, x, y);
}

/* Finds the results of a region that may be written over the input of their number (plan_output.over). */
static void find_over_inputs(planner *m) {
  plan *p = m->p;
  const graph *g = m->g;
  for (uint32_t o = 0; o < p->noutputs && o < g->ninputs && p->part; o++) {
    plan_output *out = &p->outputs[o];
    uint32_t x = m->buffer_of[g->inputs[o]], y = out->index;
    if (out->kind != OUT_BUFFER || !is_output(&p->buffers[y]) || p->buffers[y].index != o) continue;
    if (!graph_type_same(&out->type, &g->nodes[g->inputs[o]].type)) continue;
    bool apart = true;
    for (uint32_t k = 0; k < p->noutputs && apart; k++) {
      const plan_output *other = &p->outputs[k];
      apart = !(other->kind == OUT_INPUT && other->index == o) &&
              !(other->kind == OUT_BUFFER && other->may_be == o + 1) &&
              !(k != o && other->kind == OUT_BUFFER && other->index == y);
    }
    const span_of_life *from = x ? &m->lives[x - 1] : NULL, *to = &m->lives[y];
    if (!apart || to->first == UINT32_MAX) continue;
    out->over = !from || from->first == UINT32_MAX || from->last < to->first ||
                (from->last == to->first && reads_before(m, x - 1, y));
  }
}

/* Is the buffer an output that may lie over an input, so that nothing else lies there before? */
static bool lies_over(const plan *p, const plan_buffer *b) { return is_output(b) && p->outputs[b->index].over; }

/* Places all buffers whose size is a plain number and sets *arena_bytes to what they take of the arena. */
static bool place_buffers(planner *m, int64_t *arena_bytes) {
  plan *p = m->p;
  placing x = {.steps = p->nsteps, .cancel = m->cancel, .arena = &m->arena};
  x.lives = arena_alloc(&m->arena, (p->nbuffers + 1) * sizeof *x.lives);
  x.pairs = arena_alloc(&m->arena, (m->noverlaps + 1) * sizeof *x.pairs);
  if (!x.lives || !x.pairs) return out_of_memory(m);
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    span_of_life *v = &m->lives[b];
    const plan_buffer *to = &p->buffers[b];
    if (v->bytes < 0 || v->first == UINT32_MAX || (to->where != WHERE_ARENA && !is_output(to)) || lies_over(p, to))
      continue;
    x.lives[x.n] = (place_life){.first = v->first, .last = v->last, .bytes = v->bytes, .exact = v->exact};
    x.lives[x.n].output = is_output(to);
    x.lives[x.n].region = is_output(to) ? PLACE_OUTPUTS + to->index : PLACE_NOWHERE;
    v->place = ++x.n;
  }
  for (uint32_t i = 0; i < m->noverlaps; i++) {
    const overlap *o = &m->overlaps[i];
    if (in_place(m, o->over, o->by))
      x.pairs[x.npairs++] = (place_pair){.over = m->lives[o->over].place - 1, .by = m->lives[o->by].place - 1};
  }
  bool ok = place(&x, arena_bytes);
  p->work += x.work;
  if (!ok) return goes_on(m) && out_of_memory(m);
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    if (!m->lives[b].place || is_output(&p->buffers[b])) continue;
    const place_life *v = &x.lives[m->lives[b].place - 1];
    p->buffers[b].offset = v->offset;
    if (v->region == PLACE_ARENA) continue;
    p->buffers[b].where = WHERE_OUTPUT;
    p->buffers[b].index = v->region - PLACE_OUTPUTS;
  }
  return true;
}

/* A buffer whose size is symbolic. */
typedef struct unsized {
  qn_dim size;
  uint32_t first, last, buffer;
} unsized;

static int by_unsized(const void *a, const void *b) {
  const unsized *x = a, *y = b;
  /* sizes by the order in which their expressions were made */
  if (x->size != y->size) return x->size > y->size ? -1 : 1;
  if (x->first != y->first) return x->first < y->first ? -1 : 1;
  return x->buffer < y->buffer ? -1 : 1;
}

/* Places the buffers whose size is no plain number, after the `fixed` bytes of all others. Buffers of one size share as few places as
 * possible: each takes the place that was free first, if there is one; all have memory of their own where the arena's size is too long a sum. */
static bool place_symbolic(planner *m, int64_t fixed) {
  plan *p = m->p;
  uint32_t n = 0, places = 0;
  qn_dim top = fixed, next;
  unsized *all = arena_alloc(&m->arena, (p->nbuffers + 1) * sizeof *all);
  heap_item *heap = arena_alloc(&m->arena, (p->nbuffers + 1) * sizeof *heap);
  if (!all || !heap) return out_of_memory(m);
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    const span_of_life *v = &m->lives[b];
    if (v->bytes < 0 && p->buffers[b].where == WHERE_ARENA && v->first != UINT32_MAX)
      all[n++] = (unsized){v->size, v->first, v->last, b};
  }
  qsort(all, n, sizeof *all, by_unsized);
  for (uint32_t i = 0; i < n; i++) {
    const unsized *v = &all[i];
    heap_item place = {.key = v->last, .what = i};
    plan_buffer *b = &p->buffers[v->buffer];
    if (i && v->size != all[i - 1].size) places = 0;
    if (places && heap[0].key < v->first) {
      b->offset = p->buffers[all[heap[0].what].buffer].offset;
      heap_replace(heap, places, place);
    } else if (dim_add_room(&m->g->dims, top, v->size, &next)) {
      b->offset = top, top = next;
      heap_add(heap, places++, place);
    } else {
      b->where = WHERE_LATE, p->late = true;
    }
  }
  p->arena_bytes = top;
  return true;
}

static void add_bytes(int64_t *sum, int64_t bytes) {
  if (__builtin_add_overflow(*sum, bytes, sum)) *sum = INT64_MAX / 2;
}

static bool plan_memory(planner *m) {
  plan *p = m->p;
  graph *g = m->g;
  int64_t fixed = 0, others = 0;
  if (!find_lives(m) || !goes_on(m)) return false;
  for (uint32_t i = 0; i < g->ninputs; i++) add_bytes(&others, fuse_bytes(g, g->inputs[i]));
  for (uint32_t b = 0; b < p->nbuffers; b++)
    if (is_output(&p->buffers[b])) add_bytes(&others, dim_hint(&g->dims, m->lives[b].size));
  p->eager_peak_bytes = m->f.eager_peak;
  find_over_inputs(m);
  if (!place_buffers(m, &fixed) || !place_symbolic(m, fixed)) return false;
  p->peak_bytes = others;
  add_bytes(&p->peak_bytes, dim_hint(&g->dims, p->arena_bytes));
  return true;
}

/* ---- the whole ---------------------------------------------------------------------------------------------------------------------- */

/* Replaces each result of the graph that is a constant by a copy, which a kernel writes. False when memory is short. */
static bool copy_constants(graph *g) {
  for (uint32_t i = 0; i < g->noutputs; i++) {
    uint32_t n = g->outputs[i];
    if (g->nodes[n].type.weak || g->nodes[n].kind != NODE_CONST) continue;
    uint32_t copy = graph_node_raw(g, OP_stop_gradient, &n, 1, NULL, g->nodes[n].type, g->nodes[n].site);
    if (!copy) return false;
    for (uint32_t k = i + 1; k < g->noutputs; k++)
      if (g->outputs[k] == n) g->outputs[k] = copy;
    g->outputs[i] = copy;
  }
  return true;
}

static void drop(plan *p) {
  for (uint32_t i = 0; i < p->nkernels && !p->within; i++)
    if (!p->kernels[i].shares) l_free(p->kernels[i].program);
  arena_free(&p->arena);
  *p = (plan){.graph = p->graph,
              .target = p->target,
              .work = p->work,
              .regions = p->regions,
              .nregions = p->nregions,
              .part = p->part};
  arena_init(&p->arena, NULL);
}

/* What is the same in all attempts to plan a graph. */
typedef struct chosen {
  uint8_t *awkward;       /* planner.awkward, which attempts add to */
  uint32_t *over, *whole; /* of updates_request */
} chosen;

/* A limit of live bytes, and how planning went with it. */
typedef struct attempted {
  int64_t limit;
  int64_t live; /* fusion.live */
  bool ok, again;
} attempted;

static void attempt_once(plan *p, const int64_t *tune, const chosen *c, alike *memo, cancel_flag cancel, attempted *a,
                         const char **why) {
  drop(p);
  planner m = {.p = p, .g = p->graph, .tune = tune, .awkward = c->awkward, .over = c->over, .cancel = cancel};
  m.memo = memo;
  arena_init(&m.arena, NULL);
  bool ok = fuse(m.g, p->target, tune, a->limit, c->awkward, c->over, c->whole, memo, cancel, &m.f, &m.why);
  if (ok) {
    m.buffer_of = arena_alloc(&m.arena, m.g->n * sizeof *m.buffer_of);
    m.slot_of = arena_alloc(&m.arena, m.g->n * sizeof *m.slot_of);
    ok = m.buffer_of && m.slot_of ? true : out_of_memory(&m);
  }
  ok = ok && (!p->nregions || find_results(&m)) && make_slots(&m) && make_buffers(&m) && make_steps(&m) &&
       plan_memory(&m);
  if (ok && m.g->dims.arena->failed) ok = out_of_memory(&m);
  p->work += m.f.work;
  a->live = m.f.live;
  a->ok = ok;
  a->again = m.again;
  fusion_free(&m.f);
  arena_free(&m.arena);
  if (!ok) *why = m.why ? m.why : lower_no_memory;
}

static attempted attempt(plan *p, const int64_t *tune, int64_t limit, const chosen *c, alike *memo, cancel_flag cancel,
                         const char **why) {
  attempted a = {.limit = limit, .again = true};
  while (a.again && !a.ok) { /* ends, since each time there are more awkward nodes */
    attempt_once(p, tune, c, memo, cancel, &a, why);
    if (a.again) alike_free(memo);
  }
  return a;
}

/* Plans with as much fusion as keeps the peak at or below that of running node by node. Where the peak without a limit is higher, limits on
 * live bytes are tried. The actual peak differs from them (values are placed over operands, there are gaps): the first limit assumes the
 * difference that there was without one, with some to spare; others are corrected by what the try before missed. False: there is no plan. */
static bool plan_within(plan *p, const int64_t *tune, const chosen *c, alike *memo, cancel_flag cancel,
                        const char **why) {
  bool fuses = tune[TUNE_fuse_enabled] != 0;
  attempted a = attempt(p, tune, fuses ? FUSE_ALL : FUSE_NOTHING, c, memo, cancel, why);
  int64_t allowed = p->eager_peak_bytes < PLAN_PEAK_LEAST ? PLAN_PEAK_LEAST : p->eager_peak_bytes;
  int64_t over = p->peak_bytes - allowed;
  int64_t least = a.ok ? over : INT64_MAX, least_limit = a.limit;
  uint32_t fewest = p->nkernels, fewest_within = UINT32_MAX;
  if (!fuses || (a.ok && over <= 0)) return a.ok;
  int64_t within = FUSE_NOTHING, beyond = FUSE_ALL, limit = a.ok ? allowed - allowed / 512 + a.live - p->peak_bytes : 0;
  for (int tries = 0; a.ok && tries < FUSION_TRIES && fewest_within > fewest; tries++) {
    if (limit <= within || limit >= beyond) limit = within + (beyond < FUSE_ALL ? beyond - within : allowed) / 2;
    if (limit <= within || limit >= beyond) break;
    a = attempt(p, tune, limit, c, memo, cancel, why);
    if (!a.ok) break;
    over = p->peak_bytes - allowed;
    if (over > 0) {
      beyond = limit = a.live < limit ? a.live : limit; /* limits between the two give the same plan */
      if (over < least) {
        least = over;
        least_limit = a.limit;
      }
    } else {
      within = limit;
      if (p->nkernels <= fewest_within) {
        fewest_within = p->nkernels;
        least_limit = limit;
      }
      least = 0;
      if (-over < allowed / 64 || p->nkernels - fewest <= fewest / 16) break;
    }
    limit -= over;
  }
  if (!a.ok && lower_ends(*why)) return false;
  if (fewest_within == UINT32_MAX) {
    a = attempt(p, tune, FUSE_NOTHING, c, memo, cancel, why);
    if (a.ok && p->peak_bytes - allowed < least) return true;
    if (!a.ok && lower_ends(*why)) return false;
  }
  return a.limit == least_limit ? a.ok : attempt(p, tune, least_limit, c, memo, cancel, why).ok;
}

/* Is a plan `straight`? (Its `fixed` has been set.) */
static bool is_straight(const plan *p) {
  bool straight = p->fixed && !p->taps && !p->nregions && !p->part;
  for (uint32_t i = 0; i < p->nsteps && straight; i++) {
    const plan_step *s = &p->steps[i];
    straight = s->kind == STEP_KERNEL && !p->kernels[s->what].rows && !p->kernels[s->what].region;
  }
  for (uint32_t o = 0; o < p->noutputs && straight; o++) {
    const plan_output *out = &p->outputs[o];
    const plan_buffer *b = out->kind == OUT_BUFFER ? &p->buffers[out->index] : NULL;
    straight = b ? b->where == WHERE_OUTPUT && b->index == o : out->kind == OUT_INPUT;
  }
  return straight;
}

/* Sets the most_* fields, and whether the plan is `few`, `fixed`, `straight` and `known`. */
static void sum_up(plan *p) {
  for (uint32_t i = 0; i < p->nsteps; i++) {
    const plan_step *s = &p->steps[i];
    if (s->nints > p->most_ints) p->most_ints = s->nints;
    if (s->nbuffers > p->most_buffers) p->most_buffers = s->nbuffers;
    if (s->nscalars > p->most_scalars) p->most_scalars = s->nscalars;
    p->taps |= s->kind == STEP_TAP;
  }
  for (uint32_t i = 0; i < p->nregions; i++)
    for (int k = 0; k < 2; k++) {
      const plan *part = p->regions[i].parts[k];
      p->taps |= part && part->taps;
      p->here_only |= part && part->here_only;
      p->nproducts += part ? part->nproducts : 0;
    }
  const dim_table *t = &p->graph->dims;
  p->known = true;
  for (uint32_t i = 0; i < t->n; i++) p->known &= t->exprs[i].op != DIM_SYMBOL || t->exprs[i].source == DIM_FROM_INPUT;
  p->few = !p->late && t->n <= PLAN_SIZES && p->nscalars <= PLAN_FEW && p->nbuffers <= PLAN_FEW &&
           p->noutputs <= PLAN_FEW && p->most_ints <= PLAN_FEW && p->most_buffers <= PLAN_FEW &&
           p->most_scalars <= PLAN_FEW;
  p->fixed = p->few && t->n == 0;
  p->straight = is_straight(p);
}

/* Removes results of branches that nobody takes, and what only they need in the arms. False when memory is short. */
static bool drop_results(graph *g) {
  for (uint32_t i = 1; i < g->n; i++) {
    graph_node *node = &g->nodes[i];
    if (node->kind != NODE_IF) continue;
    uint32_t n = node->payload.regions[0]->noutputs, left = 0;
    uint32_t *to = calloc(n + 1u, sizeof *to);
    if (!to) return false;
    for (uint32_t x = i + 1; x < g->n; x++)
      if (g->nodes[x].kind == NODE_PROJ && g->nodes[x].in[0] == i) to[g->nodes[x].payload.index] = 1;
    for (uint32_t k = 0; k < n; k++) {
      if (!to[k]) continue;
      for (int a = 0; a < 2; a++) node->payload.regions[a]->outputs[left] = node->payload.regions[a]->outputs[k];
      to[k] = left++;
    }
    for (uint32_t x = i + 1; x < g->n; x++)
      if (g->nodes[x].kind == NODE_PROJ && g->nodes[x].in[0] == i)
        g->nodes[x].payload.index = to[g->nodes[x].payload.index];
    bool ok = true;
    for (int a = 0; a < 2; a++) {
      node->payload.regions[a]->noutputs = left;
      graph_dce(node->payload.regions[a]);
      ok &= !node->payload.regions[a]->failed;
    }
    free(to);
    if (!ok) return false;
  }
  return true;
}

/* Which inputs of part `which` of a branch or loop are to be the memory of an output (updates_request.donated): those of a loop's carries that are
 * its results, and operands of a branch that nobody reads afterwards. */
static void donate(const graph *g, const uint32_t *last, uint32_t n, int which, uint32_t *donated) {
  const graph_node *node = &g->nodes[n];
  const graph *part = node->payload.regions[which];
  bool loop = node->kind == NODE_LOOP;
  for (uint32_t k = 0; k < part->noutputs && (!loop || which); k++) {
    int64_t i = updates_operand(node, k);
    if (i < 0 || (!loop && !updates_operand_is_free(g, last, n, (uint32_t)i))) continue;
    uint32_t *to = &donated[loop ? i : i - 1];
    if (!*to) *to = k + 1;
  }
}

static plan *make_plan(graph *g, schedule_target target, const int64_t *tune, const uint32_t *donated,
                       cancel_flag cancel, char *why, size_t size);

/* The outer size that a symbol of a part of node n stands for: that of an operand's axis. False: it is another symbol. */
static bool operand_size(const graph *g, uint32_t n, const dim_expr *e, qn_dim *size) {
  const graph_node *node = &g->nodes[n];
  if (e->op != DIM_SYMBOL || e->source != DIM_FROM_INPUT) return false;
  *size = g->nodes[node->in[e->ref + (node->kind == NODE_IF)]].type.shape[e->axis];
  return true;
}

/* Notes in a part of node n which of its sizes are numbers, or equal, in the graph around it. */
static void tell_sizes(const graph *g, uint32_t n, graph *part) {
  dim_table *t = &part->dims;
  qn_dim x, y;
  for (uint32_t i = 0, end = t->n; i < end; i++) {
    if (!operand_size(g, n, &t->exprs[i], &x)) continue;
    uint32_t k = 0;
    while (k < i && !(operand_size(g, n, &t->exprs[k], &y) && x == y)) k++;
    if (x >= 0 && x == t->exprs[i].hint) dim_assume(t, ~(qn_dim)i, DIM_EQ, x);
    if (x < 0 && k < i) dim_assume(t, ~(qn_dim)k, DIM_EQ, ~(qn_dim)i);
  }
}

/* A size of a part of node n as one of the graph around it. False if it depends on numbers or data of the part. */
static bool size_around(graph *g, uint32_t n, const dim_table *t, qn_dim d, qn_dim *to) {
  qn_dim a, b;
  *to = d;
  if (d >= 0) return true;
  const dim_expr e = t->exprs[~d];
  if (e.op == DIM_SYMBOL) return operand_size(g, n, &e, to);
  if (!size_around(g, n, t, e.a, &a) || !size_around(g, n, t, e.b, &b)) return false;
  *to = dim_make(&g->dims, (dim_op)e.op, a, b);
  return true;
}

/* The plan of a part of node n relies on facts about its sizes, so the plan of the graph around it does, too. */
static void take_facts(graph *g, uint32_t n, const dim_table *t) {
  for (uint32_t i = 0; i < t->nfacts; i++) {
    const dim_fact f = t->facts[i];
    qn_dim a, b;
    int64_t c;
    if (!size_around(g, n, t, f.a, &a) || !size_around(g, n, t, f.b, &b)) continue;
    if (t->cut && f.relation == DIM_EQ && dim_is_late(&g->dims, a)) g->dims.cut |= DIM_CUT_LATE;
    if (!dim_is_const(&g->dims, dim_make(&g->dims, DIM_SUB, a, b), &c))
      dim_assume(&g->dims, a, (dim_relation)f.relation, b);
  }
}

/* Makes the plan of part `which` of node n, a branch or loop. False when memory is short, when cancelled, or with `why`. */
static bool plan_part(const plan *p, const uint32_t *last, uint32_t n, int which, const int64_t *tune,
                      cancel_flag cancel, char *why, size_t size, plan **to) {
  const graph_node *node = &p->graph->nodes[n];
  graph *part = graph_copy(node->payload.regions[which]);
  uint32_t *donated = calloc(node->nin + 1u, sizeof *donated);
  *to = NULL;
  if (part && donated) {
    graph_dce(part); /* results of branches in it that only a result needs which nobody takes */
    donate(p->graph, last, n, which, donated);
    tell_sizes(p->graph, n, part);
    *to = make_plan(part, p->target, tune, donated, cancel, why, size);
    if (*to) take_facts(p->graph, n, &(*to)->graph->dims);
  } else {
    graph_free(part);
  }
  free(donated);
  return *to != NULL;
}

/* By result of region n: the node that takes it, or 0. The caller frees the list. NULL when memory is short. */
static uint32_t *results_of(const graph *g, uint32_t n) {
  uint32_t *proj = calloc(graph_nresults(&g->nodes[n]), sizeof *proj);
  for (uint32_t x = n + 1; x < g->n && proj; x++)
    if (g->nodes[x].kind == NODE_PROJ && g->nodes[x].in[0] == n) proj[g->nodes[x].payload.index] = x;
  return proj;
}

/* Is carry k of a loop, node n, an array that the loop gets under no other name? */
static bool is_alone(const graph *g, uint32_t n, uint32_t k) {
  return k < 64 && !g->nodes[g->nodes[n].in[k]].type.weak && updates_times(g, n, k) == 1;
}

/* Can the loop, node n, be a kernel? Then *over is plan_region.over. If not, *why says what is against it, or lower_ends(*why). */
static bool can_sink(plan *p, uint32_t n, const int64_t *tune, cancel_flag cancel, uint64_t *over, const char **why) {
  graph *g = p->graph;
  if (!tune[TUNE_fuse_loops] || !tune[TUNE_fuse_enabled]) {
    *why = "fuse.loops is 0";
    return false;
  }
  *why = lower_no_memory;
  uint32_t *proj = results_of(g, n);
  if (!proj) return false;
  schedule_result r = {0};
  k_kernel *k = sink(&(sink_request){g, n, proj, cancel}, why);
  const schedule_how how = schedule_how_of(tune);
  bool ok = k && schedule(k, p->target, &how, &r, why);
  p->work += k ? k->n : 0;
  for (uint32_t c = 0; ok && !k->nchecks && c < graph_loop_carries(&g->nodes[n]); c++)
    for (uint32_t a = 0; a < k->nbuffers; a++)
      for (uint32_t b = 0; k->buffers[a].ref == g->nodes[n].in[c] && b < k->nbuffers; b++)
        if (r.alias[a * k->nbuffers + b] && k->buffers[b].ref == proj[c])
          *over |= (uint64_t)is_alone(g, n, c) << (c & 63);
  if (ok) l_free(r.program);
  k_free(k);
  free(proj);
  return ok;
}

/* Can the loop, node n, whose parts have plans, be a kernel that is made of theirs? */
static bool can_splice(plan *p, uint32_t n, plan_region *r, const int64_t *tune, cancel_flag cancel, const char **why) {
  if (!tune[TUNE_fuse_loops] || !tune[TUNE_fuse_enabled]) return false;
  *why = lower_no_memory;
  uint32_t *proj = results_of(p->graph, n);
  if (!proj) return false;
  spliced x = {0};
  arena lists;
  arena_init(&lists, NULL);
  bool ok = splice(&(splice_request){p->graph, n, r->parts, proj, p->target, tune, &lists, cancel}, &x, why);
  arena_free(&lists);
  free(proj);
  if (!ok) return false;
  p->work += x.program->n;
  /* it first copies what it carries; if it can fail, its operands must be there still, to find out how */
  for (uint32_t k = 0; k < r->ncarries && !x.program->nchecks; k++)
    r->over |= (uint64_t)is_alone(p->graph, n, k) << (k & 63);
  l_free(x.program);
  return true;
}

/* Makes the plans of regions. They do not depend on fusion in the graph around them, so this is done once. False with a reason. */
static bool plan_regions(plan *p, const int64_t *tune, cancel_flag cancel, char *why, size_t size,
                         const char **reason) {
  const graph *g = p->graph;
  uint32_t n = 0;
  for (uint32_t i = 1; i < g->n; i++) n += graph_kind_has_regions(g->nodes[i].kind);
  if (!n) return true;
  graph_dce(p->graph); /* loops that ranges_prove has found unable to fail, and what only they took from branches */
  if (p->graph->failed || !drop_results(p->graph) || !(p->regions = calloc(n, sizeof *p->regions))) return false;
  uint32_t *last = malloc(g->n * sizeof *last);
  if (!last) return false;
  updates_last_readers(g, last);
  bool ok = true;
  for (uint32_t i = 1; i < g->n && ok; i++) {
    const graph_node *node = &g->nodes[i];
    if (!graph_kind_has_regions(node->kind)) continue;
    plan_region *r = &p->regions[p->nregions++];
    r->kind = node->kind;
    r->nin = node->nin;
    r->nmade = node->payload.regions[node->kind == NODE_LOOP]->noutputs;
    r->nout = graph_nresults(node);
    if (node->kind == NODE_LOOP) {
      r->ncarries = graph_loop_carries(node);
      r->slots = graph_loop_slots(node);
      r->sunk = can_sink(p, i, tune, cancel, &r->over, &r->why);
      ok = r->sunk || !lower_ends(r->why);
      if (!ok) *reason = r->why;
    }
    for (int k = 0; k < 2 && ok && !r->sunk; k++) {
      ok = plan_part(p, last, i, k, tune, cancel, why, size, &r->parts[k]);
      if (ok) p->work += r->parts[k]->work;
    }
    if (!ok || r->kind != NODE_LOOP || r->sunk) continue;
    r->sunk = r->spliced = can_splice(p, i, r, tune, cancel, &r->why);
    ok = r->sunk || !lower_ends(r->why);
    if (!ok) *reason = r->why;
    if (r->sunk) r->why = NULL;
  }
  free(last);
  if (!ok && cancelled(cancel)) *reason = lower_cancelled;
  return ok;
}

/* Do both arms of a branch give input `index` as result k? */
static bool gives_input(const plan_region *r, uint32_t k, uint32_t index) {
  const plan_output *a = &r->parts[0]->outputs[k], *b = &r->parts[1]->outputs[k];
  return a->kind == OUT_INPUT && a->index == index && b->kind == OUT_INPUT && b->index == index;
}

/* Finds out which nodes store into the memory of an operand. False when memory is short. */
static bool find_over(const plan *p, const uint32_t *donated, chosen *c) {
  const graph *g = p->graph;
  uint32_t *over = c->over = calloc(g->n, sizeof *over), *whole = c->whole = calloc(g->n, sizeof *whole);
  uint32_t *last = malloc(g->n * sizeof *last), *kept = calloc(g->n, sizeof *kept);
  uint32_t *number = calloc(g->n, sizeof *number), regions = 0; /* by branch or loop: that of its plan_region */
  for (uint32_t n = 1; n < g->n && over && whole && last && kept && number; n++) {
    const graph_node *node = &g->nodes[n];
    if (graph_kind_has_regions(node->kind)) number[n] = regions++;
    if (node->kind != NODE_PROJ) continue;
    const graph_node *of = &g->nodes[node->in[0]];
    const plan_region *r = &p->regions[number[node->in[0]]];
    uint32_t k = node->payload.index;
    if (k >= r->nmade || (r->kind == NODE_LOOP && k >= r->ncarries)) continue;
    if (r->sunk) {
      if (over_operand(r, k) && updates_operand(of, k) == k) kept[n] = of->in[k];
      continue;
    }
    const plan_output *o = &r->parts[r->kind == NODE_LOOP]->outputs[k];
    bool keeps = r->kind == NODE_LOOP ? o->kind == OUT_INPUT && o->index == k : gives_input(r, k, o->index);
    for (uint32_t i = 0; r->kind == NODE_IF && i < k; i++)
      keeps = keeps && !gives_input(r, i, o->index); /* then the memory is that result's */
    uint32_t operand = o->index + (r->kind == NODE_IF);
    if (keeps && updates_times(g, node->in[0], operand) == 1) kept[n] = of->in[operand];
  }
  bool ok = over && whole && last && kept && number &&
            updates_find(&(updates_request){.g = g,
                                            .cached = p->target == TARGET_GPU ? 0 : CACHED,
                                            .donated = donated,
                                            .kept = kept,
                                            .last = last,
                                            .over = over,
                                            .whole = whole});
  free(last);
  free(kept);
  free(number);
  return ok;
}

bool plan_parts(const plan *p, uint32_t region, const int64_t *tune, plan *parts[2], char *why, size_t size) {
  uint32_t n = 0, *last = malloc(p->graph->n * sizeof *last);
  if (size) why[0] = 0;
  if (!last) return false;
  updates_last_readers(p->graph, last);
  for (uint32_t i = 0; i <= region; i++)
    while (!graph_kind_has_regions(p->graph->nodes[++n].kind)) {}
  parts[0] = parts[1] = NULL;
  bool ok = true;
  for (int k = 0; k < 2 && ok; k++) ok = plan_part(p, last, n, k, tune, NULL, why, size, &parts[k]);
  if (!ok) plan_free(parts[0]);
  free(last);
  return ok;
}

static plan *make_plan(graph *g, schedule_target target, const int64_t *tune, const uint32_t *donated,
                       cancel_flag cancel, char *why, size_t size) {
  if (size) why[0] = 0;
  plan *p = malloc(sizeof *p);
  if (!p) {
    graph_free(g);
    return NULL;
  }
  *p = (plan){.graph = g, .target = target, .part = donated != NULL};
  arena_init(&p->arena, NULL);
  const char *reason = lower_no_memory;
  alike memo = {0};
  bool regions = (donated || ranges_prove(g)) && plan_settle_sizes(g) && copy_constants(g) &&
                 plan_regions(p, tune, cancel, why, size, &reason);
  if (!regions && size && why[0]) { /* a region has no plan, and `why` says so already */
    plan_free(p);
    return NULL;
  }
  chosen c = {NULL, NULL, NULL};
  if (regions) {
    c.awkward = calloc(g->n, 1);
    if (!find_over(p, donated, &c)) {
      free(c.awkward);
      c.awkward = NULL;
    }
  }
  bool done = c.awkward && plan_within(p, tune, &c, &memo, cancel, &reason);
  free(c.awkward);
  free(c.over);
  free(c.whole);
  alike_free(&memo);
  if (done && g->dims.cut > DIM_CUT) done = false, reason = "sizes that depend on data have too many terms";
  if (done && (done = gather_kernels(p))) {
    sum_up(p);
    return p;
  }
  if (!lower_ends(reason)) snprintf(why, size, "%s", reason);
  plan_free(p);
  return NULL;
}

plan *plan_make(graph *g, schedule_target target, const int64_t *tune, cancel_flag cancel, char *why, size_t size) {
  return make_plan(g, target, tune, NULL, cancel, why, size);
}

void plan_free(plan *p) {
  if (!p) return;
  drop(p);
  for (uint32_t i = 0; i < p->nregions; i++)
    for (int k = 0; k < 2; k++) plan_free(p->regions[i].parts[k]);
  free(p->regions);
  graph_free(p->graph);
  free(p);
}
