/* Steps of plans that are regions (plan.h): an arm of an `if`, the turns of a loop. They run on the CPU.
 *
 * An arm, a header or a body is a plan of its own, and runs in a frame of its own as often as it must (region_part). What it reads is
 * memory of the plan around it or what an earlier turn has made, seen through array headers; what it makes goes where that plan wants it:
 *
 *   carries   two places for each, which turns write by turns; the last one written is copied to the result's buffer
 *   rows      what a loop keeps of its turns, one behind the other, in memory that grows. It becomes the result's memory if that is
 *             WHERE_LATE. A loop with `slots` keeps no more rows than that: when they are full every second row is forgotten, and
 *             from then on half as many turns are kept
 */
#include <string.h>

#include "jit/run/plan_frame.h"

/* An operand or result of a region's plan: memory, or the number of a host scalar. */
typedef struct region_value {
  char *at;
  qk_scalar number;
} region_value;

/* The plan of an arm, a header or a body, which may run many times. */
typedef struct region_part {
  plan_frame f;
  uint32_t nin, nout;
  frame_view *in, *out; /* headers over what it reads and writes */
  qn_array **inputs;
  char *tables, *slab;
  size_t tables_bytes, slab_bytes;
} region_part;

static size_t type_bytes(const plan_frame *f, const graph_type *t) {
  int64_t n = 1;
  for (int i = 0; i < t->rank; i++) n *= frame_size(f, t->shape[i]);
  return (size_t)n * dtype_size((qn_dtype)t->dtype);
}

static bool part_open(region_part *x, qn_vm *vm, plan *p) {
  size_t bytes = 0, at[4];
  *x = (region_part){.f = {.vm = vm, .p = p}, .nin = p->graph->ninputs, .nout = p->noutputs};
  at[0] = frame_part(&bytes, frame_tables(&x->f, NULL), 1);
  at[1] = frame_part(&bytes, x->nin, sizeof *x->in);
  at[2] = frame_part(&bytes, x->nout, sizeof *x->out);
  at[3] = frame_part(&bytes, x->nin, sizeof *x->inputs);
  x->tables_bytes = bytes + 1;
  if (!(x->tables = mem_alloc(vm, x->tables_bytes))) return false;
  (void)frame_tables(&x->f, x->tables + at[0]);
  x->in = (frame_view *)(void *)(x->tables + at[1]);
  x->out = (frame_view *)(void *)(x->tables + at[2]);
  x->f.inputs = x->inputs = (qn_array **)(void *)(x->tables + at[3]);
  return true;
}

static void part_close(region_part *x) {
  qn_vm *vm = x->f.vm;
  if (x->slab) mem_free(vm, x->slab, x->slab_bytes);
  if (x->tables) mem_free(vm, x->tables, x->tables_bytes);
}

/* Binds the inputs to operands, whose types are those of the outer plan: then the part's sizes are known. */
static bool part_bind(region_part *x, const plan_frame *outer, const graph_type *const *types, const region_value *in) {
  plan_frame *f = &x->f;
  const plan *p = f->p;
  qk_scalar *weak = f->slots; /* those of inputs come first */
  uint32_t nweak = 0;
  for (uint32_t i = 0; i < p->nscalars; i++) f->slots[i] = p->scalar_init ? p->scalar_init[i] : (qk_scalar){0};
  for (uint32_t i = 0; i < x->nin; i++) {
    x->inputs[i] = NULL;
    if (types[i]->weak) {
      weak[nweak++] = in[i].number;
    } else {
      frame_array(outer, &x->in[i], 0, in[i].at, types[i]);
      x->inputs[i] = &x->in[i].a;
    }
  }
  return frame_symbols(f, weak);
}

/* Runs the part once, and writes its results where `out` says. */
static bool part_run(region_part *x, const plan_frame *outer, const graph_type *const *types, const region_value *in,
                     region_value *out) {
  plan_frame *f = &x->f;
  plan *p = f->p;
  if (!part_bind(x, outer, types, in)) return false;
  for (uint32_t o = 0; o < x->nout; o++) {
    f->arrays[o] = NULL;
    if (p->outputs[o].kind == OUT_SCALAR) continue;
    frame_array(f, &x->out[o], 0, out[o].at, &p->outputs[o].type);
    f->arrays[o] = &x->out[o].a;
  }
  size_t arena = (size_t)frame_size(f, p->arena_bytes);
  if (arena > x->slab_bytes) {
    if (x->slab) mem_free(f->vm, x->slab, x->slab_bytes);
    x->slab_bytes = 0;
    if (!(x->slab = mem_alloc(f->vm, arena))) return false;
    x->slab_bytes = arena;
  }
  frame_buffers(f, x->slab);
  bool ok = true;
  for (uint32_t i = 0; i < p->nsteps && ok; i++) ok = frame_step(f, &p->steps[i]);
  if (!ok) {
    frame_late_free(f);
    return false;
  }
  for (uint32_t o = 0; o < x->nout; o++) {
    const plan_output *from = &p->outputs[o];
    if (from->kind == OUT_SCALAR) {
      out[o].number = f->slots[from->index];
      continue;
    }
    const char *made = from->kind == OUT_INPUT ? in[from->index].at : out[p->buffers[from->index].index].at;
    if (made != out[o].at) memcpy(out[o].at, made, x->out[o].s.bytes);
  }
  frame_late_free(f);
  return true;
}

static size_t rounded(size_t bytes) { return (bytes + ARRAY_TAIL + 63) & ~(size_t)63; }
static size_t rounded_bytes(const plan_frame *f, const graph_type *t) {
  return t->weak ? 0 : rounded(type_bytes(f, t));
}

/* Is a condition true? */
static bool holds(const graph_type *t, const region_value *v) {
  return t->weak ? v->number.i != 0 : *(const uint8_t *)v->at != 0;
}

/* The rows of one result that a loop keeps of its turns. */
typedef struct kept_rows {
  const graph_type *type; /* of a row, in the words of the body */
  char *at;
  size_t row, bytes; /* bytes of a row; of the memory at `at` */
  bool apart;        /* a row is made elsewhere and copied, since kernels want their results aligned */
} kept_rows;

/* The state of a region step. */
typedef struct region_run {
  plan_frame *f;
  const plan_region *r;
  const graph_node *node;
  const graph_type **types; /* of operands */
  region_value *in, *out;   /* operands; where results go */
  char *room;               /* of a loop: two places for each carry, a row of each that is kept */
  size_t room_bytes;
  kept_rows *rows;             /* of a loop, by results behind the carries */
  int64_t turns, stride, kept; /* turns so far; every `stride`-th is kept; rows that are kept */
  bool keeps;                  /* this turn's rows are kept */
} region_run;

/* Makes room for one more row of each result. If all slots are taken, every second row is dropped first. */
static bool rows_room(region_run *x) {
  const plan_region *r = x->r;
  uint32_t n = r->nmade - r->ncarries;
  if (r->slots && x->kept == r->slots) {
    for (uint32_t k = 0; k < n; k++)
      for (int64_t i = 1; i < x->kept / 2; i++)
        memcpy(x->rows[k].at + (size_t)i * x->rows[k].row, x->rows[k].at + 2 * (size_t)i * x->rows[k].row,
               x->rows[k].row);
    x->kept /= 2;
    x->stride *= 2;
  }
  for (uint32_t k = 0; k < n; k++) {
    kept_rows *rows = &x->rows[k];
    size_t need = ((size_t)x->kept + 1) * rows->row + ARRAY_TAIL;
    if (need <= rows->bytes) continue;
    size_t more = 2 * need;
    char *at = mem_alloc(x->f->vm, more);
    if (!at) return false;
    if (rows->at) {
      memcpy(at, rows->at, (size_t)x->kept * rows->row);
      mem_free(x->f->vm, rows->at, rows->bytes);
    }
    rows->at = at;
    rows->bytes = more;
  }
  return true;
}

/* Decides where a turn puts its results: each carry at that of its two places which the last turn did not use, rows behind those that are kept, or
 * elsewhere. */
static bool place_results(region_run *x, int odd) {
  const plan_region *r = x->r;
  bool keeps = r->nmade > r->ncarries && x->turns % x->stride == 0;
  if (keeps && !rows_room(x)) return false;
  keeps = keeps && x->turns % x->stride == 0; /* rows_room may have doubled the stride */
  char *at = x->room;
  for (uint32_t k = 0; k < r->ncarries; k++) {
    size_t bytes = rounded_bytes(x->f, x->types[k]);
    x->out[k].at = at + (odd ? bytes : 0);
    at += 2 * bytes;
  }
  for (uint32_t k = r->ncarries; k < r->nmade; k++) {
    kept_rows *rows = &x->rows[k - r->ncarries];
    x->out[k].at = keeps && !rows->apart ? rows->at + (size_t)x->kept * rows->row : at;
    at += rounded(rows->row);
  }
  x->keeps = keeps;
  return true;
}

/* Adds the turn's rows to those that are kept, if they are to be and do not lie there already. */
static void keep_rows(region_run *x) {
  if (!x->keeps) return;
  for (uint32_t k = x->r->ncarries; k < x->r->nmade; k++) {
    const kept_rows *rows = &x->rows[k - x->r->ncarries];
    char *to = rows->at + (size_t)x->kept * rows->row;
    if (rows->type->weak && rows->type->dtype == WEAK_BOOL)
      *(uint8_t *)to = x->out[k].number.i != 0;
    else if (rows->type->weak)
      memcpy(to, &x->out[k].number, rows->row);
    else if (rows->apart)
      memcpy(to, x->out[k].at, rows->row);
  }
  x->kept++;
}

/* Places for carries and rows, as large as the operands say. */
static bool loop_begin(region_run *x, region_part *body) {
  const plan_region *r = x->r;
  const graph *g = body->f.p->graph;
  if (!part_bind(body, x->f, x->types, x->in)) return false;
  for (uint32_t k = 0; k < r->nmade; k++) {
    const graph_type *t = &g->nodes[g->outputs[k]].type;
    if (k < r->ncarries) {
      x->room_bytes += 2 * rounded_bytes(x->f, x->types[k]);
      continue;
    }
    kept_rows *rows = &x->rows[k - r->ncarries];
    *rows = (kept_rows){.type = t, .row = type_bytes(&body->f, t)};
    rows->apart = t->weak || rows->row % 64;
    x->room_bytes += rounded(rows->row);
  }
  return !x->room_bytes || (x->room = mem_alloc(x->f->vm, x->room_bytes)) != NULL;
}

/* `while header(in) { in = body(in) }`. */
static bool run_loop(region_run *x) {
  qn_vm *vm = x->f->vm;
  region_part header, body = {.tables = NULL};
  char condition[64 + ARRAY_TAIL];
  region_value go = {.at = condition};
  const plan *first = x->r->parts[0];
  bool ok = part_open(&header, vm, x->r->parts[0]) && part_open(&body, vm, x->r->parts[1]) && loop_begin(x, &body);
  for (x->stride = 1; ok; x->turns++) {
    if (!(ok = !vm_poll(vm) && part_run(&header, x->f, x->types, x->in, &go))) break;
    if (!holds(&first->outputs[0].type, &go)) break;
    ok = place_results(x, x->turns & 1) && part_run(&body, x->f, x->types, x->in, x->out);
    if (!ok) break;
    keep_rows(x);
    for (uint32_t k = 0; k < x->r->ncarries; k++) x->in[k] = x->out[k];
  }
  part_close(&header);
  part_close(&body);
  return ok;
}

static bool run_if(region_run *x) {
  plan *p = x->r->parts[holds(x->types[0], &x->in[0]) ? 0 : 1];
  region_part arm;
  bool ok = part_open(&arm, x->f->vm, p) && part_run(&arm, x->f, x->types + 1, x->in + 1, x->out);
  part_close(&arm);
  return ok;
}

/* Stores result k of the region where the plan wants it. False with an error raised. */
static bool give_result(region_run *x, uint32_t k) {
  plan_frame *f = x->f;
  const plan_region *r = x->r;
  uint32_t node = r->proj[k];
  const graph_type *t = &f->p->graph->nodes[node].type;
  if (k >= r->nmade) {
    f->slots[r->out[k]].i = k == r->nmade ? x->turns : x->stride;
    return true;
  }
  const region_value *made = r->kind == NODE_LOOP && k < r->ncarries ? &x->in[k] : &x->out[k];
  if (t->weak) {
    f->slots[r->out[k]] = made->number;
    return true;
  }
  const char *from = made->at;
  if (r->kind == NODE_LOOP && k >= r->ncarries) {
    kept_rows *rows = &x->rows[k - r->ncarries];
    frame_tell(f, node, 1, &x->kept);
    if (f->p->buffers[r->out[k]].where == WHERE_LATE && rows->at) { /* the memory itself */
      f->buffers[r->out[k]] = rows->at;
      f->late[r->out[k]] = rows->bytes;
      rows->at = NULL;
      return true;
    }
    if (frame_size(f, t->shape[0]) != x->kept)
      return raise_error(f->vm, E_internal, SPAN_NONE, "a loop took %lld turns", (long long)x->turns), false;
    from = rows->at;
  }
  if (!frame_late_make(f, r->out[k])) return false;
  size_t bytes = type_bytes(f, t);
  if (bytes && from != (char *)f->buffers[r->out[k]]) memcpy(f->buffers[r->out[k]], from, bytes);
  return true;
}

bool region_step(plan_frame *f, const plan_step *s) {
  qn_vm *vm = f->vm;
  const graph *g = f->p->graph;
  const plan_region *r = &f->p->regions[s->what];
  bool loop = r->kind == NODE_LOOP;
  uint32_t nrows = loop ? r->nmade - r->ncarries : 0;
  region_run x = {.f = f, .r = r, .node = &g->nodes[s->node]};
  size_t bytes = 0, at[4];
  at[0] = frame_part(&bytes, r->nin, sizeof *x.types);
  at[1] = frame_part(&bytes, r->nin, sizeof *x.in);
  at[2] = frame_part(&bytes, r->nmade, sizeof *x.out);
  at[3] = frame_part(&bytes, nrows, sizeof *x.rows);
  char *tables = mem_alloc(vm, bytes + 1);
  if (!tables) return false;
  x.types = (const graph_type **)(void *)(tables + at[0]);
  x.in = (region_value *)(void *)(tables + at[1]);
  x.out = (region_value *)(void *)(tables + at[2]);
  x.rows = (kept_rows *)(void *)(tables + at[3]);
  for (uint32_t i = 0; i < r->nin; i++) {
    x.types[i] = &g->nodes[x.node->in[i]].type;
    x.in[i] =
        x.types[i]->weak ? (region_value){.number = f->slots[r->in[i]]} : (region_value){.at = f->buffers[r->in[i]]};
  }
  bool ok = true;
  for (uint32_t k = 0; k < r->nmade && ok && !loop; k++) {
    uint32_t b = r->out[k];
    if (g->nodes[r->proj[k]].type.weak) continue;
    ok = frame_late_make(f, b);
    x.out[k].at = f->buffers[b];
  }
  ok = ok && (loop ? run_loop(&x) : run_if(&x));
  for (uint32_t k = 0; k < r->nout && ok; k++)
    if (r->proj[k]) ok = give_result(&x, k);
  for (uint32_t k = 0; k < nrows; k++)
    if (x.rows[k].at) mem_free(vm, x.rows[k].at, x.rows[k].bytes);
  if (x.room) mem_free(vm, x.room, x.room_bytes);
  mem_free(vm, tables, bytes + 1);
  return ok;
}
