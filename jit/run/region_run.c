/* Steps of plans that are regions (plan.h): an arm of an `if`, the turns of a loop. Loops that are kernels come here only when a check of theirs
 * fails (region_raise).
 *
 * An arm, a header or a body is a plan of its own and has a frame of its own (region_part), which is made when the region runs for the first
 * time and kept until the plan around it has ended, so that a loop within a loop finds it again. Sizes, the arena and the addresses in it are
 * worked out once, and again only when a size may have changed (plan_frame.sizes). What a turn costs is then the addresses of its operands and
 * results, and its steps.
 *
 * No value is copied from turn to turn. What is carried has an address, which is
 *
 *   the operand's         before the first turn
 *   a place               of those that the loop has for it: turns put a carry where no value of the last turn lies. The memory of the
 *                         loop's result is such a place if the carry is `alone`, that is, if no other one ever takes its value
 *   another carry's       where a turn hands a value on under another name
 *
 * A carry that the body updates where it lies stays in one place, to which its operand is copied first. One whose old value is read before the
 * new one is written has one place, too, which its operand is not copied to.
 *
 * Rows are what a loop keeps of its turns, one behind the other, in memory that grows. It becomes the result's memory if that is WHERE_LATE. A
 * loop with `slots` keeps no more rows than that: when they are full every second row is forgotten, and from then on half as many turns are
 * kept.
 *
 * On a device all this memory is the device's, and the host goes through the turns: it asks for the kernels of each, and waits only where it must
 * know a number, which is the condition if that depends on data. So a loop that counts asks for all its turns without waiting. Checks of kernels
 * are waited for at the end of each part that has any, and the whole plan is refused if one fails.
 */
#include <string.h>

#include "jit/run/host.h"
#include "jit/run/plan_frame.h"
#include "jit/run/plan_run.h"

/* An operand or result of a region's plan: memory, or the number of a host scalar. */
typedef struct region_value {
  char *at;
  qk_scalar number;
} region_value;

/* A buffer of a part that lies in memory of the plan around it: operand or result `index`, `offset` bytes from its start. */
typedef struct outer_buffer {
  uint32_t buffer, index;
  bool result;
  size_t offset;
} outer_buffer;

/* The plan of an arm, a header or a body, which may run many times. */
typedef struct region_part {
  plan_frame f;
  uint32_t nin, nout, nouter;
  frame_view *in; /* headers over what it reads, from which sizes are read */
  qn_array **inputs;
  int64_t *symbols; /* a second table, for comparing */
  const int64_t **step_ints;
  int64_t *ints; /* that step_ints point to */
  outer_buffer *outer;
  uint32_t *numbers, nnumbers; /* the inputs that are numbers */
  char *tables, *slab;
  size_t tables_bytes, slab_bytes;
  bool by_number, by_data; /* do sizes depend on numbers; on what its steps find? */
  bool sized;              /* sizes are known, for these of the plan around it: */
  uint64_t outer_sizes;
} region_part;

/* A piece of memory for a carried value. */
typedef struct carry_place {
  char *at;
  uint32_t refs; /* how many carries have it */
  uint32_t next; /* 1 + the next free one of its class */
  uint32_t kind; /* its class */
} carry_place;

/* What a loop knows of a carry. */
typedef struct loop_carry {
  bool stays;     /* turns leave it where it is: a number, or memory that is handed on or updated in place */
  bool alone;     /* no other carry ever has its value */
  bool over;      /* turns may write its value over that of the last turn */
  uint32_t kind;  /* its class: 1 + the first carry that shares places with it; 0: turns make no value of it */
  uint32_t place; /* 1 + the place of its value; 0: that lies in an operand */
  uint32_t next;  /* 1 + the place that this turn's value was given; 0: none, it is that of another carry */
  uint32_t free;  /* of a class: 1 + the first free place */
} loop_carry;

/* The rows of one result that a loop keeps of its turns; of a result that nobody takes none are kept. */
typedef struct kept_rows {
  const graph_type *type; /* of a row, in the words of the body */
  char *at, *here;        /* the rows; where a row is made that is not kept, or cannot be made in its place */
  size_t row, bytes;      /* bytes of a row; of the memory at `at` */
  bool apart;             /* a row is made elsewhere and copied, since kernels want their results aligned */
} kept_rows;

/* A region of a plan that runs. It is made when the region runs for the first time. */
struct region_state {
  plan_frame *f;
  const plan_region *r;
  const graph_type **types; /* of operands */
  region_value *in, *out;   /* operands, then what is carried; where results go */
  region_part parts[2];
  bool open[2];
  size_t bytes; /* of this and its tables */
  char **home;  /* of an `if`: by result, the memory that the plan has for it */
  /* of a loop: */
  loop_carry *carries;
  uint32_t *moving, nmoving, *numbers, nnumbers; /* the carries that do not stay; those that are numbers */
  carry_place *places;
  uint32_t nplaces;
  kept_rows *rows; /* by results behind the carries */
  char *room;      /* places that are no result's memory, rows that are made apart, the condition */
  size_t room_bytes;
  char *condition;             /* memory for it, if it is an array */
  uint64_t laid;               /* the sizes of f for which addresses are known; 0: not yet */
  int64_t turns, stride, kept; /* turns so far; every `stride`-th is kept; rows that are kept */
};
typedef struct region_state region_state;

static size_t type_bytes(const plan_frame *f, const graph_type *t) {
  int64_t n = 1;
  for (int i = 0; i < t->rank; i++) n *= frame_size(f, t->shape[i]);
  return (size_t)n * dtype_size((qn_dtype)t->dtype);
}

/* ---- parts ---------------------------------------------------------------------------------------------------------------------- */

static uint32_t all_ints(const plan *p) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < p->nsteps; i++) n += p->steps[i].nints;
  return n;
}

static void note_outer(region_part *x, uint32_t buffer, uint32_t index, bool result) {
  x->outer[x->nouter++] = (outer_buffer){.buffer = buffer, .index = index, .result = result};
}

/* Begins with what the device keeps of the part's plan, whose code is there, since the outer plan's is. False with an error raised. */
static bool part_there(region_part *x, plan_frame *outer, uint32_t region, int which) {
  plan_frame *f = &x->f;
  device_plan **there = plan_region_part(f->vm, outer->there, region, which);
  if (!there) return false;
  if (!plan_ready(f->vm, f->p, there, f->device, false)) return raise_memory(f->vm), false;
  f->there = *there;
  return device_kernels_of(f->device)->plan_begin(f->vm, f->there);
}

/* Makes the frame of a part. False with an error raised. */
static bool part_open(region_part *x, plan_frame *outer, plan *p, uint32_t region, int which) {
  qn_vm *vm = outer->vm;
  size_t bytes = 0, at[8];
  *x = (region_part){.f = {.vm = vm,
                           .p = p,
                           .device = outer->device,
                           .part = true,
                           .sizes = 1,
                           .taps = outer->taps,
                           .brief = outer->brief,
                           .held = outer->held},
                     .nin = p->graph->ninputs,
                     .nout = p->noutputs};
  const dim_table *dims = &p->graph->dims;
  for (uint32_t i = 0; i < dims->n; i++) {
    if (dims->exprs[i].op != DIM_SYMBOL) continue;
    x->by_number |= dims->exprs[i].source == DIM_FROM_SCALAR;
    x->by_data |= dim_of_node(dims->exprs[i].source);
  }
  at[0] = frame_part(&bytes, frame_tables(&x->f, NULL), 1);
  at[1] = frame_part(&bytes, x->nin, sizeof *x->in);
  at[2] = frame_part(&bytes, x->nin, sizeof *x->inputs);
  at[3] = frame_part(&bytes, dims->n, sizeof *x->symbols);
  at[4] = frame_part(&bytes, p->nsteps, sizeof *x->step_ints);
  at[5] = frame_part(&bytes, all_ints(p), sizeof *x->ints);
  at[6] = frame_part(&bytes, p->nbuffers, sizeof *x->outer);
  at[7] = frame_part(&bytes, x->nin, sizeof *x->numbers);
  x->tables_bytes = bytes + 1;
  if (outer->device && !part_there(x, outer, region, which)) return false;
  if (!(x->tables = mem_alloc(vm, x->tables_bytes))) return false;
  (void)frame_tables(&x->f, x->tables + at[0]);
  x->in = (frame_view *)(void *)(x->tables + at[1]);
  x->f.inputs = x->inputs = (qn_array **)(void *)(x->tables + at[2]);
  x->symbols = (int64_t *)(void *)(x->tables + at[3]);
  x->step_ints = (const int64_t **)(void *)(x->tables + at[4]);
  x->ints = (int64_t *)(void *)(x->tables + at[5]);
  x->outer = (outer_buffer *)(void *)(x->tables + at[6]);
  x->numbers = (uint32_t *)(void *)(x->tables + at[7]);
  for (uint32_t i = 0; i < x->nin; i++)
    if (p->graph->nodes[p->graph->inputs[i]].type.weak) x->numbers[x->nnumbers++] = i;
  for (uint32_t i = 0; i < p->nscalars; i++) x->f.slots[i] = p->scalar_init ? p->scalar_init[i] : (qk_scalar){0};
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    x->f.buffers[b] = NULL;
    if (p->buffers[b].where == WHERE_INPUT || p->buffers[b].where == WHERE_OUTPUT)
      note_outer(x, b, p->buffers[b].index, p->buffers[b].where == WHERE_OUTPUT);
  }
  return true;
}

static void part_close(region_part *x) {
  qn_vm *vm = x->f.vm;
  frame_regions_free(&x->f);
  if (x->tables) frame_late_free(&x->f); /* an effect in it has been left by an exception of the host */
  if (x->slab) frame_give(&x->f, x->slab, x->slab_bytes);
  if (x->tables) mem_free(vm, x->tables, x->tables_bytes);
}

/* Works out what follows from sizes: the arena, addresses in it, what kernels are told. False with an error raised. */
static bool part_lay_out(region_part *x) {
  plan_frame *f = &x->f;
  const plan *p = f->p;
  size_t arena = (size_t)frame_size(f, p->arena_bytes);
  if (arena > x->slab_bytes) {
    if (x->slab) frame_give(f, x->slab, x->slab_bytes);
    x->slab_bytes = 0;
    if (!(x->slab = frame_take(f, arena))) return false;
    x->slab_bytes = arena;
  }
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    const plan_buffer *buf = &p->buffers[b];
    if (buf->where == WHERE_CONST) f->buffers[b] = f->device ? f->there->constants[b] : (void *)(uintptr_t)buf->data;
    if (buf->where == WHERE_ARENA) f->buffers[b] = x->slab + frame_size(f, buf->offset);
  }
  for (uint32_t i = 0; i < x->nouter; i++)
    if (x->outer[i].result) x->outer[i].offset = (size_t)frame_size(f, p->buffers[x->outer[i].buffer].offset);
  int64_t *ints = x->ints;
  for (uint32_t i = 0; i < p->nsteps; i++) {
    x->step_ints[i] = ints;
    for (uint32_t k = 0; k < p->steps[i].nints; k++) *ints++ = frame_size(f, p->steps[i].ints[k]);
  }
  f->step_ints = x->by_data ? NULL : x->step_ints;
  return true;
}

/* Takes over the numbers among the operands, whose types are those of the outer plan, and finds the part's sizes. False with an error
 * raised. */
static bool part_bind(region_part *x, const plan_frame *outer, const graph_type *const *types, const region_value *in) {
  plan_frame *f = &x->f;
  qk_scalar *weak = f->slots; /* those of inputs come first */
  for (uint32_t i = 0; i < x->nnumbers; i++) weak[i] = in[x->numbers[i]].number;
  if (x->sized && x->outer_sizes == outer->sizes && !x->by_number && !x->by_data) return true;
  for (uint32_t i = 0; i < x->nin; i++) {
    x->inputs[i] = NULL;
    if (types[i]->weak) continue;
    frame_array(outer, &x->in[i], outer->device, in[i].at, types[i]);
    x->inputs[i] = &x->in[i].a;
  }
  size_t bytes = f->p->graph->dims.n * sizeof *f->symbols;
  int64_t *old = f->symbols;
  f->symbols = x->symbols;
  x->symbols = old;
  bool sized = x->sized;
  x->sized = false;
  if (!frame_symbols(f, weak)) return false;
  x->outer_sizes = outer->sizes;
  if (!sized || x->by_data || (bytes && memcmp(old, f->symbols, bytes))) {
    f->sizes++;
    if (!part_lay_out(x)) return false;
  }
  return x->sized = true;
}

/* Runs the part once. out[k].at: memory for result k; afterwards where that lies, which may also be an operand's memory. False with an error
 * raised, or refused by the device. */
static bool part_run(region_part *x, plan_frame *outer, const graph_type *const *types, const region_value *in,
                     region_value *out) {
  plan_frame *f = &x->f;
  const plan *p = f->p;
  if (!part_bind(x, outer, types, in)) return false;
  for (uint32_t i = 0; i < x->nouter; i++) {
    const outer_buffer *b = &x->outer[i];
    f->buffers[b->buffer] = b->result ? out[b->index].at + b->offset : in[b->index].at;
  }
  bool ok = frame_steps(f);
  if (f->device) {
    ok = frame_checks(f, ok);
    outer->refused |= f->refused;
    f->refused = false;
  }
  for (uint32_t o = 0; o < x->nout && ok; o++) {
    const plan_output *from = &p->outputs[o];
    if (from->kind == OUT_SCALAR)
      out[o].number = f->slots[from->index];
    else if (from->kind == OUT_INPUT)
      out[o].at = in[from->index].at;
    else if (p->buffers[from->index].where == WHERE_LATE)
      ok = frame_copy(f, out[o].at, f->buffers[from->index], type_bytes(f, &from->type));
    else
      out[o].at = f->buffers[from->index];
  }
  if (p->late) frame_late_free(f);
  return ok;
}

/* Part `which` of the region, opened. NULL with an error raised. */
static region_part *part_of(region_state *x, int which) {
  if (x->open[which]) return &x->parts[which];
  x->open[which] = part_open(&x->parts[which], x->f, x->r->parts[which], (uint32_t)(x->r - x->f->p->regions), which);
  return x->open[which] ? &x->parts[which] : NULL;
}

/* Finds out whether a condition is true. False with an error raised. */
static bool holds(plan_frame *f, const graph_type *t, const region_value *v, bool *yes) {
  uint8_t byte = 0;
  if (!t->weak && !frame_read(f, &byte, v->at, 1)) return false;
  *yes = t->weak ? v->number.i != 0 : byte != 0;
  return true;
}

/* ---- rows ----------------------------------------------------------------------------------------------------------------------- */

/* Drops every second row. */
static bool rows_thin(region_state *x, kept_rows *rows) {
  size_t left = (size_t)(x->kept / 2);
  if (!x->f->device) {
    for (size_t i = 1; i < left; i++) memcpy(rows->at + i * rows->row, rows->at + 2 * i * rows->row, rows->row);
    return true;
  }
  char *at = frame_take(x->f, rows->bytes);
  if (!at) return false;
  bool ok = frame_copy_rows(x->f, at, rows->at, left, rows->row, 2 * rows->row);
  frame_give(x->f, rows->at, rows->bytes);
  rows->at = at;
  return ok;
}

/* Makes room for one more row of each result. If all slots are taken, every second row is dropped first. */
static bool rows_room(region_state *x) {
  const plan_region *r = x->r;
  uint32_t n = r->nmade - r->ncarries;
  if (r->slots && x->kept == r->slots) {
    for (uint32_t k = 0; k < n; k++)
      if (r->proj[r->ncarries + k] && !rows_thin(x, &x->rows[k])) return false;
    x->kept /= 2;
    x->stride *= 2;
  }
  for (uint32_t k = 0; k < n; k++) {
    kept_rows *rows = &x->rows[k];
    size_t need = ((size_t)x->kept + 1) * rows->row + ARRAY_TAIL;
    if (need <= rows->bytes || !r->proj[r->ncarries + k]) continue;
    size_t more = 2 * need;
    char *at = frame_take(x->f, more);
    if (!at) return false;
    bool ok = !rows->at || frame_copy(x->f, at, rows->at, (size_t)x->kept * rows->row);
    if (rows->at) frame_give(x->f, rows->at, rows->bytes);
    rows->at = at;
    rows->bytes = more;
    if (!ok) return false;
  }
  return true;
}

/* Decides whether this turn's rows are kept (*keeps) and where they are made: behind those that are kept, or elsewhere. */
static bool place_rows(region_state *x, bool *keeps) {
  const plan_region *r = x->r;
  *keeps = x->turns % x->stride == 0;
  if (*keeps && !rows_room(x)) return false;
  *keeps = *keeps && x->turns % x->stride == 0; /* rows_room may have doubled the stride */
  for (uint32_t k = r->ncarries; k < r->nmade; k++) {
    kept_rows *rows = &x->rows[k - r->ncarries];
    x->out[k].at = *keeps && !rows->apart && r->proj[k] ? rows->at + (size_t)x->kept * rows->row : rows->here;
  }
  return true;
}

/* Adds the turn's rows to those that are kept, if they do not lie there already. False with an error raised. */
static bool keep_rows(region_state *x) {
  bool ok = true;
  for (uint32_t k = x->r->ncarries; k < x->r->nmade; k++) {
    const kept_rows *rows = &x->rows[k - x->r->ncarries];
    if (!x->r->proj[k]) continue;
    char *to = rows->at + (size_t)x->kept * rows->row;
    const uint8_t truth = x->out[k].number.i != 0;
    if (rows->type->weak && rows->type->dtype == WEAK_BOOL)
      ok = ok && frame_write(x->f, to, &truth, 1);
    else if (rows->type->weak)
      ok = ok && frame_write(x->f, to, &x->out[k].number, rows->row);
    else if (rows->row && x->out[k].at != to)
      ok = ok && frame_copy(x->f, to, x->out[k].at, rows->row);
  }
  x->kept++;
  return ok;
}

static void rows_free(region_state *x) {
  for (uint32_t k = 0; x->rows && k < x->r->nmade - x->r->ncarries; k++) {
    if (x->rows[k].at) frame_give(x->f, x->rows[k].at, x->rows[k].bytes);
    x->rows[k].at = NULL;
    x->rows[k].bytes = 0;
  }
}

/* ---- carries -------------------------------------------------------------------------------------------------------------------- */

/* The carry whose value output k of the body is, or may be, without a step that makes it: 1 + its number; 0: there is none. */
static uint32_t handed_on(const plan *body, uint32_t k, uint32_t ncarries) {
  const plan_output *o = &body->outputs[k];
  uint32_t from = o->kind == OUT_INPUT ? o->index + 1 : o->kind == OUT_BUFFER ? o->may_be : 0;
  return from <= ncarries ? from : 0;
}

/* Finds out which carries stay, which are alone, and which share their places: those of one size among which values may move. */
static void classify(region_state *x) {
  const plan *body = x->r->parts[1];
  uint32_t n = x->r->ncarries;
  for (uint32_t k = 0; k < n; k++) {
    const plan_output *o = &body->outputs[k];
    loop_carry *c = &x->carries[k];
    *c = (loop_carry){.stays = o->kind == OUT_SCALAR || (o->kind == OUT_INPUT && o->index == k), .alone = true};
    if (o->kind == OUT_SCALAR) x->numbers[x->nnumbers++] = k;
    if (!c->stays) x->moving[x->nmoving++] = k;
  }
  for (uint32_t k = 0; k < x->r->nmade; k++) {
    const plan_output *o = &body->outputs[k];
    uint32_t from = handed_on(body, k, n);
    if (o->kind == OUT_BUFFER && body->buffers[o->index].where != WHERE_LATE && k < n) {
      uint32_t first = body->buffers[o->index].index; /* the first output that has this buffer */
      if (first != k && first < n) x->carries[k].alone = x->carries[first].alone = false;
    }
    if (from && from - 1 != k && k < n) x->carries[k].alone = x->carries[from - 1].alone = false;
  }
}

/* May values that turns make lie in carry k? */
static bool may_hold(const region_state *x, uint32_t k) { return x->carries[k].kind != 0; }

static size_t rounded(size_t bytes) { return (bytes + ARRAY_TAIL + 63) & ~(size_t)63; }

/* Gives each carry its class and counts the places: one for each value that may be alive at once, of the last turn and of this one. */
static void count_places(region_state *x) {
  uint32_t n = x->r->ncarries;
  const plan *body = x->r->parts[1];
  x->nplaces = 0;
  for (uint32_t k = 0; k < n; k++) {
    loop_carry *c = &x->carries[k];
    bool updated = body->updates[k];
    c->kind = c->free = 0;
    if (x->types[k]->weak || (c->stays && !updated)) continue;
    size_t bytes = type_bytes(x->f, x->types[k]);
    uint32_t kind = k + 1;
    for (uint32_t j = 0; j < k && !c->alone && !c->stays; j++)
      if (x->carries[j].kind == j + 1 && !x->carries[j].alone && !x->carries[j].stays &&
          type_bytes(x->f, x->types[j]) == bytes) {
        kind = j + 1;
        break;
      }
    c->kind = kind;
    c->over = !c->stays && c->alone && body->outputs[k].over;
    int needs = c->stays || c->over ? 1 : body->outputs[k].kind == OUT_BUFFER ? 2 : 1;
    for (int i = 0; i < needs; i++) x->places[x->nplaces++] = (carry_place){.kind = kind};
  }
}

static void place_free(region_state *x, uint32_t p) {
  loop_carry *c = &x->carries[x->places[p].kind - 1];
  x->places[p].next = c->free;
  c->free = p + 1;
}

/* Can the memory of carry k's result be one of its places? (A result without elements has no address of its own, by which places are told apart.) */
static bool has_result(const region_state *x, uint32_t k) {
  return x->r->proj[k] && x->carries[k].alone && may_hold(x, k) && type_bytes(x->f, x->types[k]);
}

/* Lays out places and rows, as large as the operands say. */
static bool lay_out(region_state *x, region_part *body) {
  const plan_region *r = x->r;
  const graph *g = body->f.p->graph;
  const size_t test = r->parts[0]->outputs[0].type.weak ? 0 : rounded(1);
  size_t bytes = test;
  if (x->laid == x->f->sizes && !body->by_number && !body->by_data) return true;
  if (x->room) frame_give(x->f, x->room, x->room_bytes);
  x->room = NULL;
  x->laid = 0;
  count_places(x);
  for (uint32_t pass = 0; pass < 2; pass++) {
    char *at = pass && x->room ? x->room + test : NULL;
    uint32_t last = 0;
    for (uint32_t p = 0; p < x->nplaces; p++) {
      uint32_t k = x->places[p].kind - 1;
      bool results = last != k + 1 && has_result(x, k); /* the first place of its class is the result's memory */
      last = k + 1;
      size_t each = results ? 0 : rounded(type_bytes(x->f, x->types[k]));
      x->places[p].at = pass && each ? at : NULL;
      at += pass ? each : 0;
      bytes += pass ? 0 : each;
    }
    for (uint32_t k = r->ncarries; k < r->nmade; k++) {
      const graph_type *t = &g->nodes[g->outputs[k]].type;
      kept_rows *rows = &x->rows[k - r->ncarries];
      *rows = (kept_rows){.type = t, .row = type_bytes(&body->f, t), .here = at};
      rows->apart = t->weak || rows->row % 64;
      at += pass ? rounded(rows->row) : 0;
      bytes += pass ? 0 : rounded(rows->row);
    }
    if (pass || !bytes) continue;
    if (!(x->room = frame_take(x->f, bytes))) return false;
    x->room_bytes = bytes;
    x->condition = x->room;
  }
  x->laid = x->f->sizes;
  return true;
}

/* Before the first turn: free places, and memory of its own for what is updated in place. False with an error raised. */
static bool carries_begin(region_state *x) {
  const plan_region *r = x->r;
  for (uint32_t k = 0; k < r->ncarries; k++) {
    loop_carry *c = &x->carries[k];
    c->place = c->free = 0;
  }
  for (uint32_t p = x->nplaces; p-- > 0;) {
    carry_place *to = &x->places[p];
    uint32_t k = to->kind - 1;
    loop_carry *c = &x->carries[k];
    to->refs = 0;
    if ((p == 0 || x->places[p - 1].kind != to->kind) && has_result(x, k)) {
      if (!frame_late_make(x->f, r->out[k])) return false;
      to->at = x->f->buffers[r->out[k]];
    }
    if (c->stays) {
      if (to->at != x->in[k].at && !frame_copy(x->f, to->at, x->in[k].at, type_bytes(x->f, x->types[k]))) return false;
      x->in[k].at = to->at;
    } else if (to->at == x->in[k].at) { /* the result lies over the operand */
      to->refs = 1;
      c->place = p + 1;
    } else {
      place_free(x, p);
    }
  }
  return true;
}

/* Before a turn: gives each carry that the body makes a place. */
static void carries_place(region_state *x) {
  for (uint32_t i = 0; i < x->nmoving; i++) {
    uint32_t k = x->moving[i];
    loop_carry *c = &x->carries[k], *kind = &x->carries[c->kind - 1];
    c->next = 0;
    if (x->r->parts[1]->outputs[k].kind != OUT_BUFFER) continue;
    uint32_t p = c->next = c->over && c->place ? c->place : kind->free;
    if (p != c->place) kind->free = x->places[p - 1].next;
    x->out[k].at = x->places[p - 1].at;
  }
}

/* The place of the value at `at`, which one of the carries had before the turn: 1 + its number. 0: it lies in an operand. */
static uint32_t place_of(const region_state *x, const char *at) {
  for (uint32_t k = 0; k < x->r->ncarries; k++)
    if (x->carries[k].place && x->in[k].at == at) return x->carries[k].place;
  return 0;
}

/* Of a carry whose value no step has made for it: the place of that. 0: it lies in an operand. */
static uint32_t place_handed_on(const region_state *x, uint32_t k) {
  const plan_output *o = &x->r->parts[1]->outputs[k];
  if (!type_bytes(x->f, x->types[k])) return 0; /* it has no address of its own, and needs no place */
  if (o->kind == OUT_INPUT) return o->index < x->r->ncarries ? x->carries[o->index].place : 0;
  uint32_t place = place_of(x, x->out[k].at);
  for (uint32_t i = 0; !place && x->moving[i] != k; i++) /* a value of this turn that has two names */
    if (x->out[x->moving[i]].at == x->out[k].at) place = x->carries[x->moving[i]].next;
  return place;
}

/* After a turn: its results are the operands of the next one, and places that nobody has any more are free. */
static void carries_turn(region_state *x) {
  for (uint32_t i = 0; i < x->nnumbers; i++) x->in[x->numbers[i]].number = x->out[x->numbers[i]].number;
  for (uint32_t i = 0; i < x->nmoving; i++) {
    loop_carry *c = &x->carries[x->moving[i]];
    uint32_t mine = c->next;
    bool made = mine && x->out[x->moving[i]].at == x->places[mine - 1].at;
    if (!made) c->next = place_handed_on(x, x->moving[i]);
    if (c->next) x->places[c->next - 1].refs++;
    if (mine && !made && !x->places[mine - 1].refs) place_free(x, mine - 1);
  }
  for (uint32_t i = 0; i < x->nmoving; i++) {
    uint32_t k = x->moving[i];
    loop_carry *c = &x->carries[k];
    x->in[k].at = x->out[k].at;
    if (c->place && --x->places[c->place - 1].refs == 0) place_free(x, c->place - 1);
    c->place = c->next;
  }
}

/* ---- running -------------------------------------------------------------------------------------------------------------------- */

/* `while header(in) { in = body(in) }`. */
static bool run_loop(region_state *x) {
  qn_vm *vm = x->f->vm;
  region_part *header = part_of(x, 0), *body = header ? part_of(x, 1) : NULL;
  bool rows = x->r->nmade > x->r->ncarries, keeps = false;
  x->turns = x->kept = 0;
  x->stride = 1;
  if (!body || !part_bind(body, x->f, x->types, x->in) || !lay_out(x, body) || !carries_begin(x)) return false;
  const graph_type *test = &x->r->parts[0]->outputs[0].type;
  for (bool more;; x->turns++) {
    region_value go = {.at = x->condition};
    if (vm_poll(vm) || !part_run(header, x->f, x->types, x->in, &go) || !holds(x->f, test, &go, &more)) return false;
    if (!more) return true;
    if (rows && !place_rows(x, &keeps)) return false;
    carries_place(x);
    if (!part_run(body, x->f, x->types, x->in, x->out)) return false;
    if (keeps && !keep_rows(x)) return false;
    carries_turn(x);
  }
}

/* Stores result k of a loop where the plan wants it. False with an error raised. */
static bool give_result(region_state *x, uint32_t k) {
  plan_frame *f = x->f;
  const plan_region *r = x->r;
  uint32_t node = r->proj[k];
  const graph_type *t = &f->p->graph->nodes[node].type;
  if (k >= r->nmade) {
    f->slots[r->out[k]].i = k == r->nmade ? x->turns : x->stride;
    return true;
  }
  if (t->weak) {
    f->slots[r->out[k]] = x->in[k].number;
    return true;
  }
  const char *from = x->in[k].at;
  if (k >= r->ncarries) {
    kept_rows *rows = &x->rows[k - r->ncarries];
    frame_tell(f, node, 1, &x->kept);
    if (f->p->buffers[r->out[k]].where == WHERE_LATE && rows->at) { /* the memory itself */
      f->buffers[r->out[k]] = rows->at;
      f->late[r->out[k]] = rows->bytes;
      rows->at = NULL;
      rows->bytes = 0;
      return true;
    }
    if (frame_size(f, t->shape[0]) != x->kept)
      return raise_error(f->vm, E_internal, SPAN_NONE, "a loop took %lld turns", (long long)x->turns), false;
    from = rows->at;
  }
  if (!frame_late_make(f, r->out[k])) return false;
  size_t bytes = type_bytes(f, t);
  return !bytes || from == (char *)f->buffers[r->out[k]] || frame_copy(f, f->buffers[r->out[k]], from, bytes);
}

static bool loop_step(region_state *x) {
  bool ok = run_loop(x);
  for (uint32_t k = 0; k < x->r->nout && ok; k++)
    if (x->r->proj[k]) ok = give_result(x, k);
  rows_free(x);
  return ok;
}

/* Is the address of a buffer the frame's own affair, so that a value may lie elsewhere? */
static bool may_move(const plan_frame *f, uint32_t b) {
  plan_where where = (plan_where)f->p->buffers[b].where;
  return where == WHERE_ARENA || (where == WHERE_OUTPUT && f->part);
}

/* An arm may hand an operand on as its result: then that is where the result lies, if its memory may move; otherwise it is copied. */
static bool if_step(region_state *x) {
  plan_frame *f = x->f;
  const plan_region *r = x->r;
  const graph_node *nodes = f->p->graph->nodes;
  bool yes;
  if (!holds(f, x->types[0], &x->in[0], &yes)) return false;
  region_part *arm = part_of(x, yes ? 0 : 1);
  if (!arm) return false;
  bool again = x->laid == f->sizes;
  for (uint32_t k = 0; k < r->nmade; k++) {
    uint32_t b = r->out[k];
    if (nodes[r->proj[k]].type.weak) continue;
    if (!frame_late_make(f, b)) return false;
    if (!again || f->p->buffers[b].where != WHERE_ARENA) x->home[k] = f->buffers[b];
    x->out[k].at = x->home[k];
  }
  x->laid = f->sizes;
  for (uint32_t k = 0; k < r->nmade; k++) { /* what the arm updates in place must lie where the result is wanted */
    const plan_output *o = &arm->f.p->outputs[k];
    if (o->kind != OUT_INPUT || !arm->f.p->updates[o->index]) continue;
    region_value *in = &x->in[o->index + 1];
    size_t bytes = in->at == x->home[k] ? 0 : type_bytes(f, x->types[o->index + 1]);
    if (bytes && !frame_copy(f, x->home[k], in->at, bytes)) return false;
    in->at = x->home[k];
  }
  if (!part_run(arm, f, x->types + 1, x->in + 1, x->out)) return false;
  for (uint32_t k = 0; k < r->nmade; k++) {
    const graph_type *t = &nodes[r->proj[k]].type;
    uint32_t b = r->out[k];
    if (t->weak) {
      f->slots[b] = x->out[k].number;
    } else if (x->out[k].at == x->home[k] || (r->pass[k] && x->out[k].at == x->in[r->pass[k]].at && may_move(f, b))) {
      f->buffers[b] = x->out[k].at;
    } else {
      f->buffers[b] = x->home[k];
      size_t bytes = type_bytes(f, t);
      if (bytes && !frame_copy(f, f->buffers[b], x->out[k].at, bytes)) return false;
    }
  }
  return true;
}

/* ---- the state of regions ------------------------------------------------------------------------------------------------------- */

static region_state *region_open(plan_frame *f, const plan_region *r, uint32_t node) {
  const graph *g = f->p->graph;
  bool loop = r->kind == NODE_LOOP;
  uint32_t ncarries = loop ? r->ncarries : 0, nrows = loop ? r->nmade - ncarries : 0;
  size_t bytes = 0, at[9];
  at[0] = frame_part(&bytes, 1, sizeof(region_state));
  at[1] = frame_part(&bytes, r->nin, sizeof(graph_type *));
  at[2] = frame_part(&bytes, r->nin, sizeof(region_value));
  at[3] = frame_part(&bytes, r->nmade, sizeof(region_value));
  at[4] = frame_part(&bytes, loop ? 0 : r->nmade, sizeof(char *));
  at[5] = frame_part(&bytes, ncarries, sizeof(loop_carry));
  at[6] = frame_part(&bytes, 2 * (size_t)ncarries, sizeof(carry_place));
  at[7] = frame_part(&bytes, nrows, sizeof(kept_rows));
  at[8] = frame_part(&bytes, 2 * (size_t)ncarries, sizeof(uint32_t));
  char *m = mem_zalloc(f->vm, bytes);
  if (!m) return NULL;
  region_state *x = (region_state *)(void *)m;
  *x = (region_state){.f = f, .r = r, .bytes = bytes};
  x->types = (const graph_type **)(void *)(m + at[1]);
  x->in = (region_value *)(void *)(m + at[2]);
  x->out = (region_value *)(void *)(m + at[3]);
  x->home = (char **)(void *)(m + at[4]);
  x->carries = (loop_carry *)(void *)(m + at[5]);
  x->places = (carry_place *)(void *)(m + at[6]);
  x->rows = (kept_rows *)(void *)(m + at[7]);
  x->moving = (uint32_t *)(void *)(m + at[8]);
  x->numbers = x->moving + ncarries;
  for (uint32_t i = 0; i < r->nin; i++) x->types[i] = &g->nodes[g->nodes[node].in[i]].type;
  if (loop) classify(x);
  return x;
}

static void region_close(region_state *x) {
  qn_vm *vm = x->f->vm;
  for (int k = 0; k < 2; k++)
    if (x->open[k]) part_close(&x->parts[k]);
  if (x->r->kind == NODE_LOOP) rows_free(x);
  if (x->room) frame_give(x->f, x->room, x->room_bytes);
  mem_free(vm, x, x->bytes);
}

void frame_regions_free(plan_frame *f) {
  if (!f->regions) return;
  uint32_t n = f->p->nregions;
  for (uint32_t i = 0; i < n; i++)
    if (f->regions[i]) region_close(f->regions[i]);
  mem_free(f->vm, (void *)f->regions, n * sizeof(region_state *));
  f->regions = NULL;
}

static void take_operands(region_state *x) {
  const plan_frame *f = x->f;
  for (uint32_t i = 0; i < x->r->nin; i++) {
    if (x->types[i]->weak)
      x->in[i].number = f->slots[x->r->in[i]];
    else
      x->in[i].at = f->buffers[x->r->in[i]];
  }
}

bool region_step(plan_frame *f, const plan_step *s) {
  const plan_region *r = &f->p->regions[s->what];
  if (!f->regions && !(f->regions = mem_zalloc(f->vm, f->p->nregions * sizeof(region_state *)))) return false;
  region_state *x = f->regions[s->what];
  if (!x && !(x = f->regions[s->what] = region_open(f, r, s->node))) return false;
  take_operands(x);
  bool ok = r->kind == NODE_LOOP ? loop_step(x) : if_step(x);
  if (!ok && f->vm->error && !f->vm->error->at.source) frame_raise_site(f, s->node); /* an interrupt, a limit */
  return ok;
}

/* Frees a plan that has run here alone. */
static void part_drop(plan *p) {
  for (uint32_t i = 0; i < p->nkernels; i++)
    if (p->kernels[i].host_code) host()->forget(p->kernels[i].host_code);
  plan_free(p);
}

void region_raise(plan_frame *f, uint32_t region, uint32_t node) {
  qn_vm *vm = f->vm;
  plan_region r = f->p->regions[region];
  size_t bytes = r.nout * sizeof *r.proj;
  uint32_t *none = mem_zalloc(vm, bytes + 1); /* its results are not wanted */
  char why[200] = "";
  if (!none) return;
  r.proj = none;
  region_state *x = NULL;
  if (plan_parts(f->p, region, vm->tune, r.parts, why, sizeof why)) {
    if ((x = region_open(f, &r, node))) {
      take_operands(x);
      if (run_loop(x)) raise_error(vm, E_internal, SPAN_NONE, "a loop's kernel fails, but none of its turns does");
      region_close(x);
    }
    for (int k = 0; k < 2; k++) part_drop(r.parts[k]);
  } else if (why[0]) {
    raise_error(vm, E_internal, SPAN_NONE, "a loop has no plan: %s", why);
  } else {
    (void)raise_memory(vm);
  }
  mem_free(vm, none, bytes + 1);
}
