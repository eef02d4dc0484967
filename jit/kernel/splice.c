/* Loops as kernels (splice.h), for bodies that sink.c refuses: with reductions, products, updates of rows, arrays of several shapes.
 *
 * The plans of the loop's header and body are there already, with a program for each of their kernels. One program is made of these, a single
 * instance of which runs the whole loop:
 *
 *   numbers of the loop are carries; copies of carried arrays are made; header
 *   while { the steps of the body; carried arrays get their new values; the steps of the header }
 *   results are stored
 *
 * A PAR becomes a FOR over its instances, or nothing where there is one; memory of the parts (their temporaries, locals and scratch) becomes
 * locals. So everything is computed by the same instructions, in the same order of reductions, as in a loop of plans. Sizes that are plain numbers
 * are constants of the program, so that compilers know how often short loops run.
 *
 * Sizes that are numbers of a turn are worked out where a step needs them. Memory is made before the loop, so for as much as there can be: a part
 * of an array is at most as long as that array. How many instances a kernel has may be such a number, too.
 *
 * Carried arrays have one place each. A body that does not write its new value over the old one (plan_output.over) makes it elsewhere, and the
 * turn ends with a copy. Tried instead: nothing yet; two places that take turns would need the body twice.
 *
 * A loop in the body that is a kernel begins by copying what it carries. Results of one without checks lie over operands that are read under no
 * other name, in this shape or another (plan_region.over), and a copy of memory to itself is left out. One that may fail needs its operands as
 * they were, so its results are copied to the outer loop's array in each turn.
 *
 * What is the same in all turns has been moved out of the loop (jit/graph/invariants.c). Matrices that all turns multiply in an order in which products
 * do not take them as they lie (`a @ w`, whose sums run along rows of a, and `v @ a.T`) are turned once, before the loop. A turn of gradient descent
 * with 32 unknowns takes half the time.
 *
 * Errors. A failed check does not end anything by itself (FAILED does at the end of the turn). Until then wrong numbers may be computed with: that is
 * harmless, but a loop in the body might not end, so such steps are left out.
 *
 * Only loops whose turns are so short that threads could not share their work are spliced. On a GPU one block of 64 threads runs the whole loop: a
 * turn of kernels costs a launch each, 2 to 3 us, and a barrier in a block much less. Measured on an H200, us a call, as loops of plans, as one
 * kernel, and JAX: a triangular solve of 200 rows 2,850, 320, 2,200; cavity flow of 32 x 32, 200 sweeps 2,410, 870, 1,860; an RNN of 128 steps, 64
 * units 1,200, 245, 1,850; gradient descent with 32 unknowns 8,000, 470, 13,300. Rows that follow each other are shared as one loop (flat_loop in
 * emit_cuda.c): before that, a turn of an LSTM with its gradient took 41 us. */
#include "jit/kernel/splice.h"

#include <string.h>

#include "jit/kernel/launch.h"
#include "jit/kernel/lower.h"
#include "jit/kernel/sink.h"
#include "jit/kernel/small_rows.h"
#include "lang/vm.h"

enum {
  SPLICE_CODE = 40000,   /* the most instructions */
  SPLICE_DEPTH = 24,     /* how deep branches may nest */
  SPLICE_CONST = 64,     /* the most elements of a constant array */
  SPLICE_WORDS = 8,      /* how deep expressions of sizes are looked into */
  SPLICE_ROOM = 4096,    /* the most rows for which memory is made although there may be less */
  TURNED_MOST = 1 << 16, /* the most elements of a matrix that is turned before the loop, */
  TURNED_LEAST = 8,      /* and the fewest rows that make it worth while */
  TURNED = 16,           /* how many of these there may be */
  /* A phase with more work than this many times what one thread should have at least is better shared by threads. */
  SPLICE_THREADS = 4,
  /* On a GPU one block makes what several would: so many elements more than its share take it about as long as a launch (100 cycles for each 64
   * of them). */
  SPLICE_ALONE = 2048,
  SPLICE_UNKNOWN = 256 /* turns of a loop in a kernel whose number is not known */
};

/* Memory: the number of a buffer, or minus that of a local. */
typedef int64_t memory;
#define NOWHERE INT64_MIN

typedef struct scope scope;

/* A step of a spliced plan. */
typedef struct step {
  l_val *outside; /* of a kernel, by instruction: what it is outside of the loop; 0: it is made where the step stands */
  l_val *most; /* by instruction: if it is a number of the loop that memory is made for, the most it can be; else 0 */
  memory *buffers;
  int64_t *checks;       /* 1 + the number of a check; 0: not added yet */
  bool fails;            /* has it checks? */
  bool loops;            /* has it a WHILE? */
  uint32_t (*turned)[2]; /* by tile, of x and y: 1 + the number of the turned matrix that takes its place; 0: none */
  scope *arms[2];        /* of a branch */
  memory *numbers;       /* by result of a branch that is a number: where arms put it */
} step;

/* A plan whose steps are spliced. */
struct scope {
  const plan *p;
  const graph_type *in; /* of a header or body: types of its inputs, with sizes of the outer graph */
  scope *up;            /* of an arm: the scope of the branch, and the node that this is there */
  uint32_t branch;
  memory *buffer; /* by plan buffer */
  l_val *size;    /* by plan buffer: its elements at most, as an index made outside of the PAR; 0: not known there */
  l_val *slot;    /* by scalar slot: its value at the instruction at hand; 0: it has not been made */
  step *steps;
  qn_dim *dim;  /* by expression of its graph's dims: the size in the outer graph, if known[] is SIZE_FIXED */
  qn_dim *most; /* the same of sizes that are at least as large, if bounded[] is SIZE_FIXED */
  uint8_t *known, *bounded;
};
enum { SIZE_UNSEEN, SIZE_FIXED, SIZE_IN_LOOP };

/* A matrix of the loop's operands, of rows that lie `width` elements apart, turned before the loop. */
typedef struct turned_matrix {
  memory of, at;
  int64_t rows, width;
} turned_matrix;

typedef struct splicer {
  const splice_request *r;
  graph *g;
  l_program *p;
  const char *why;
  arena memory;
  uint32_t *buffers, nbuffers, buffers_cap;
  qn_dim *ints;
  uint32_t nints, ints_cap;
  uint32_t *scalars, nscalars, scalars_cap;
  uint32_t *rows, nrows, room_node;
  int64_t room;
  turned_matrix turned[TURNED];
  uint32_t nturned;
  l_val zero, one, par; /* 0 and 1 as indices; the PAR */
  bool fails;           /* may a check have failed since the turn began? */
  bool ever;            /* has the loop checks? */
  int depth;
} splicer;

static bool refuse(splicer *s, const char *why) {
  if (!s->why) s->why = why;
  return false;
}

static bool out_of_memory(splicer *s) { return refuse(s, lower_no_memory); }

static void *take(splicer *s, size_t n, size_t size) {
  void *p = arena_alloc(&s->memory, (n + 1) * size);
  if (!p) out_of_memory(s);
  return p;
}

/* ---- sizes ---------------------------------------------------------------------------------------------------------------------- */

/* The size that a symbol of a scope is in the words of the scope around it, for an arm's operand. */
static qn_dim size_above(const scope *c, const dim_expr *e) {
  const graph *g = c->up->p->graph;
  return g->nodes[g->nodes[c->branch].in[e->ref + 1]].type.shape[e->axis];
}

/* Sets *to to a size of a scope as one of the outer graph. False if it is found in the loop. */
static bool outer_size(splicer *s, scope *c, qn_dim d, qn_dim *to) {
  *to = d;
  if (d >= 0) return true;
  uint32_t i = (uint32_t)~d;
  if (c->known[i] == SIZE_UNSEEN) {
    const dim_expr e = c->p->graph->dims.exprs[i];
    qn_dim a, b;
    bool ok;
    if (e.op != DIM_SYMBOL) {
      ok = outer_size(s, c, e.a, &a) && outer_size(s, c, e.b, &b);
      if (ok) c->dim[i] = dim_make(&s->g->dims, (dim_op)e.op, a, b);
    } else if (e.source == DIM_FROM_INPUT && c->up) {
      ok = outer_size(s, c->up, size_above(c, &e), &c->dim[i]);
    } else {
      ok = e.source == DIM_FROM_INPUT;
      if (ok) c->dim[i] = c->in[e.ref].shape[e.axis];
    }
    c->known[i] = ok ? SIZE_FIXED : SIZE_IN_LOOP;
  }
  *to = c->dim[i];
  return c->known[i] == SIZE_FIXED;
}

static bool most_size(splicer *s, scope *c, qn_dim d, qn_dim *to);

/* What most_size does for a size that is found in the loop. */
static bool find_most(splicer *s, scope *c, qn_dim d, qn_dim *to) {
  graph *g = c->p->graph;
  const dim_expr e = g->dims.exprs[~d];
  for (uint32_t n = 1; n < g->n; n++) {
    /* a part of an array is no longer than that, an array's elements are those along its axes */
    const graph_node *x = &g->nodes[n];
    const graph_type *whole = x->kind == NODE_OP && x->op == OP_slice ? &g->nodes[x->in[0]].type : NULL;
    for (int a = 0; a < x->type.rank; a++)
      if (whole && x->type.shape[a] == d && most_size(s, c, whole->shape[a], to)) return true;
    if (x->type.rank < 2 || graph_elements(g, &x->type) != d) continue;
    bool ok = true;
    qn_dim all = 1, size;
    for (int a = 0; a < x->type.rank && ok; a++) {
      ok = most_size(s, c, x->type.shape[a], &size);
      if (ok) all = dim_mul(&s->g->dims, all, size);
    }
    *to = all;
    if (ok) return true;
  }
  if (e.op == DIM_SYMBOL) return e.source == DIM_FROM_INPUT && c->up && most_size(s, c->up, size_above(c, &e), to);
  qn_dim a, b;
  if (e.op == DIM_MUL && !dim_nonnegative(&g->dims, e.a) && !dim_nonnegative(&g->dims, e.b)) return false;
  if ((e.op != DIM_ADD && e.op != DIM_MUL) || !most_size(s, c, e.a, &a) || !most_size(s, c, e.b, &b)) return false;
  *to = dim_make(&s->g->dims, (dim_op)e.op, a, b);
  return true;
}

/* Sets *to to a size of the outer graph that is at least as large as a size of a scope, or a product of sizes. False if none is known. Each
 * size is looked at once; one that is asked for on the way to itself counts as not known. */
static bool most_size(splicer *s, scope *c, qn_dim d, qn_dim *to) {
  if (outer_size(s, c, d, to)) return true;
  uint32_t i = (uint32_t)~d;
  if (c->bounded[i] == SIZE_UNSEEN) {
    c->bounded[i] = SIZE_IN_LOOP;
    if (find_most(s, c, d, &c->most[i])) c->bounded[i] = SIZE_FIXED;
  }
  *to = c->most[i];
  return c->bounded[i] == SIZE_FIXED;
}

/* A size of the outer graph as an index, made outside of the PAR. */
static l_val size_value(splicer *s, qn_dim d) {
  int64_t c;
  if (dim_is_const(&s->g->dims, d, &c)) return l_int(s->p, c);
  uint32_t i = 0;
  while (i < s->nints && s->ints[i] != d) i++;
  if (i == s->nints) {
    if (!arena_room(s->r->arena, (void **)&s->ints, &s->ints_cap, s->nints + 1, sizeof *s->ints))
      return out_of_memory(s);
    s->ints[s->nints++] = d;
  }
  return l_param(s->p, i);
}

/* The most that a size of a scope can be, as an index made outside of the PAR. 0: that is not known, or memory is short. */
static l_val scope_most(splicer *s, scope *c, qn_dim d) {
  qn_dim to;
  return most_size(s, c, d, &to) ? size_value(s, to) : 0;
}

/* A size of a scope as an index, made where the code is at. */
static l_val scope_size(splicer *s, scope *c, qn_dim d) {
  qn_dim to;
  if (outer_size(s, c, d, &to)) return size_value(s, to);
  const graph *g = c->p->graph;
  const dim_expr e = g->dims.exprs[~d];
  if (e.op == DIM_SYMBOL) {
    if (e.source == DIM_FROM_INPUT) return scope_size(s, c->up, size_above(c, &e));
    if (e.source != DIM_FROM_SCALAR) return refuse(s, "a size that is found in the loop");
    uint32_t slot = 0;
    for (uint32_t i = 0; i < e.ref; i++) slot += g->nodes[g->inputs[i]].type.weak;
    if (!c->slot[slot]) return refuse(s, "a number that is not made before its reader");
    return l_emit(s->p, (l_instr){.code = L_IVALUE, .a = c->slot[slot]});
  }
  l_val a = scope_size(s, c, e.a), b = a ? scope_size(s, c, e.b) : 0;
  return b ? l_of_dim(s->p, &g->dims, &e, a, b) : 0;
}

/* ---- memory ----------------------------------------------------------------------------------------------------------------------- */

/* The program's buffer for a node of the outer graph. */
static bool outer_buffer(splicer *s, uint32_t node, qn_dtype dtype, l_buffer_mode mode, memory *to) {
  int b = l_buffer_add(s->p, dtype, mode, 0);
  if (b < 0 || !arena_room(s->r->arena, (void **)&s->buffers, &s->buffers_cap, s->nbuffers + 1, sizeof *s->buffers))
    return out_of_memory(s);
  s->buffers[s->nbuffers++] = node;
  *to = b;
  return true;
}

/* Memory of the program's own, for as many elements as index `size` says. */
static bool local(splicer *s, qn_dtype dtype, l_val size, memory *to) {
  if (!size) return refuse(s, "memory whose size is a number of the loop");
  l_val v = l_emit(s->p, (l_instr){.code = L_LOCAL, .dtype = (uint8_t)dtype, .a = size});
  *to = -(memory)v;
  return v || out_of_memory(s);
}

static bool load_one(splicer *s, memory from, qn_dtype dtype, l_val *to) {
  *to = l_emit(s->p, (l_instr){.code = L_LOAD, .dtype = (uint8_t)dtype, .imm = from, .a = s->zero});
  return *to || out_of_memory(s);
}

static bool store_one(splicer *s, memory at, l_val v) {
  return l_emit(s->p, (l_instr){.code = L_STORE, .imm = at, .h = v, .a = s->zero}) || out_of_memory(s);
}

static bool copy(splicer *s, memory from, memory to, qn_dtype dtype, l_val size) {
  if (from == to) return true;
  l_program *p = s->p;
  if (!size || !l_emit(p, (l_instr){.code = L_VEC, .a = s->zero, .b = size})) return out_of_memory(s);
  l_val v = l_emit(p, (l_instr){.code = L_LOAD, .dtype = (uint8_t)dtype, .imm = from, .a = s->zero, .b = s->one});
  (void)l_emit(p, (l_instr){.code = L_STORE, .imm = to, .h = v, .a = s->zero, .b = s->one});
  l_end(p);
  return !p->failed || out_of_memory(s);
}

/* ---- before the loop --------------------------------------------------------------------------------------------------------------- */

/* Is the instruction index arithmetic on sizes? Its operands are looked up in `outside`. */
static bool of_sizes(const l_instr *i, const l_val *outside) {
  if (i->code == L_INT || i->code == L_PARAM) return true;
  return l_is_index_op(i->code) && outside[i->a] && outside[i->b];
}

/* The most that an index of a kernel can be that is a sum or product of sizes, made outside of the PAR. 0: not known. */
static l_val most_index(splicer *s, scope *c, const plan_step *st, const step *x, l_val v, int left) {
  const l_program *q = c->p->kernels[st->what].program;
  const l_instr *i = &q->code[v];
  if (x->outside[v] || !left) return x->outside[v];
  if (i->code == L_PARAM) return scope_most(s, c, st->ints[i->imm]);
  if (i->code != L_IADD && i->code != L_IMUL && i->code != L_IMIN && i->code != L_IDIV) return 0;
  l_val a = most_index(s, c, st, x, i->a, left - 1);
  l_val b = i->code == L_IDIV ? x->outside[i->b] : most_index(s, c, st, x, i->b, left - 1);
  if (i->code == L_IMIN && !(a && b)) return a ? a : b;
  return a && b ? l_index(s->p, (l_code)i->code, a, b) : 0;
}

/* Finds the sizes of a kernel's memory that are numbers of the loop. */
static bool kernel_most(splicer *s, scope *c, const plan_step *st, step *x) {
  const l_program *q = c->p->kernels[st->what].program;
  bool parts = false;
  for (l_val v = 1; v < q->n; v++) parts |= q->code[v].code == L_PARTIAL;
  for (l_val v = 1; v < q->n; v++) {
    const l_instr *i = &q->code[v];
    if (i->code != L_ACC && i->code != L_LOCAL) continue;
    for (int k = 0; k < 2; k++) {
      l_val of = k ? i->b : i->a;
      if (!of || x->outside[of] || x->most[of]) continue;
      if (i->code == L_ACC && !k && parts) return refuse(s, "partial results whose count is a number of the loop");
      x->most[of] = most_index(s, c, st, x, of, SPLICE_WORDS);
      if (!x->most[of] && !(i->code == L_ACC && k)) /* how many are pushed at most need not be known */
        return refuse(s, "memory whose size is a number of the loop");
    }
  }
  for (uint32_t b = 0; b < q->nbuffers; b++)
    if (q->buffers[b].mode == BUF_SCRATCH && !x->outside[q->buffers[b].size])
      return refuse(s, "scratch whose size is a number of the loop");
  return true;
}

/* How often a VEC or FOR of a kernel runs, by the values of what it computes before its PARs; they are as many as they can be if they depend on
 * the instance. */
static int64_t trips(const l_program *q, l_val par, const l_instr *i, const int64_t *launch) {
  int64_t end = -1;
  const l_instr *to = &q->code[i->b];
  const l_val ends[] = {i->b, to->code == L_IMIN ? to->a : i->b, to->code == L_IMIN ? to->b : i->b};
  for (int k = 0; k < 3; k++) {
    int64_t at = ends[k] < par ? launch[ends[k]] : q->code[ends[k]].code == L_INT ? q->code[ends[k]].imm : -1;
    if (at >= 0 && (end < 0 || at < end)) end = at;
  }
  if (end < 0) return SPLICE_UNKNOWN;
  int64_t step = i->code == L_FOR && i->c && i->c < par ? launch[i->c] : 1, n = i->a < par ? end - launch[i->a] : end;
  return n < 1 || step < 1 ? 1 : (n - 1) / step + 1;
}

/* How many elements an instance of a kernel's PAR computes; four terms of a product count as one. */
static int64_t instance_work(const l_program *q, l_val par, const int64_t *launch) {
  int64_t times[SPLICE_DEPTH] = {1}, work = 0;
  int depth = 0;
  for (l_val v = par + 1; v < q->n && depth >= 0; v++) {
    const l_instr *i = &q->code[v];
    if (i->code == L_TILE) {
      const l_tile *t = &q->tiles[i->imm];
      int64_t k = t->depth < par ? launch[t->depth] : SPLICE_UNKNOWN;
      work += times[depth] * ((int64_t)t->tile_rows * t->tile_cols * k / 4 + 1);
    }
    if (i->code == L_END) depth--;
    if (!l_opens(i->code)) continue;
    if (depth + 1 == SPLICE_DEPTH) return INT64_MAX;
    int64_t n = i->code == L_VEC || i->code == L_FOR ? trips(q, par, i, launch) : 1;
    if (__builtin_mul_overflow(times[depth], n, &times[depth + 1]) || times[depth + 1] > INT32_MAX) return INT64_MAX;
    depth++;
    if (i->code == L_VEC) work += times[depth];
  }
  return work;
}

/* Would what instances of a kernel's PAR do at a time take much longer if one did it all? */
static bool is_long(const splicer *s, const l_program *q, l_val par, const int64_t *launch) {
  int64_t n = launch[q->code[par].a], grain = q->code[par].imm > 0 ? q->code[par].imm : 1, more;
  if (s->r->target != TARGET_GPU) return n / grain > SPLICE_THREADS;
  return n > 1 && (__builtin_mul_overflow(n - 1, instance_work(q, par, launch), &more) || more > SPLICE_ALONE);
}

/* Makes what a kernel computes from sizes before its PARs. Refuses kernels that threads should share. */
static bool kernel_sizes(splicer *s, scope *c, const plan_step *st, step *x) {
  const l_program *q = c->p->kernels[st->what].program;
  l_val *sizes = take(s, st->nints, sizeof *sizes);
  int64_t *hints = take(s, st->nints, sizeof *hints), *launch = take(s, q->n, sizeof *launch);
  qk_scalar *none = take(s, q->nscalars, sizeof *none);
  x->outside = take(s, q->n, sizeof *x->outside);
  x->most = take(s, q->n, sizeof *x->most);
  x->buffers = take(s, q->nbuffers, sizeof *x->buffers);
  x->checks = take(s, q->nchecks, sizeof *x->checks);
  if (!sizes || !hints || !launch || !none || !x->outside || !x->most || !x->buffers || !x->checks) return false;
  for (uint32_t i = 0; i < st->nints; i++) {
    qn_dim d;
    if (outer_size(s, c, st->ints[i], &d) && !(sizes[i] = size_value(s, d))) return false;
    if (sizes[i] || most_size(s, c, st->ints[i], &d)) hints[i] = dim_hint(&s->g->dims, d);
  }
  bool known = l_launch_values(q, hints, none, launch);
  x->fails = q->nchecks != 0;
  s->ever |= x->fails;
  int depth = 0;
  for (l_val v = 1; v < q->n; v++) {
    const l_instr *i = &q->code[v];
    x->loops |= i->code == L_WHILE;
    if (i->code == L_PAR && known && is_long(s, q, v, launch)) return refuse(s, "the turns of the loop are long");
    if (l_opens(i->code)) depth++;
    if (i->code == L_END) depth--;
    if (depth || !of_sizes(i, x->outside) || (i->code == L_PARAM && !sizes[i->imm])) continue;
    x->outside[v] = i->code == L_INT     ? l_int(s->p, i->imm)
                    : i->code == L_PARAM ? sizes[i->imm]
                                         : l_index(s->p, (l_code)i->code, x->outside[i->a], x->outside[i->b]);
    if (!x->outside[v]) return out_of_memory(s);
  }
  return kernel_most(s, c, st, x);
}

static bool scope_open(splicer *s, scope *c, const plan *p);

static bool branch_sizes(splicer *s, scope *c, const plan_step *st, step *x) {
  const plan_region *r = &c->p->regions[st->what];
  if (r->kind != NODE_IF) return refuse(s, r->why ? r->why : "a loop in the loop that is no kernel");
  if (s->depth == SPLICE_DEPTH) return refuse(s, "loops and branches nest too deep");
  if (!(x->numbers = take(s, r->nout, sizeof *x->numbers))) return false;
  s->depth++;
  for (int a = 0; a < 2; a++) {
    if (!(x->arms[a] = take(s, 1, sizeof *x->arms[a]))) return false;
    *x->arms[a] = (scope){.up = c, .branch = st->node};
    if (!scope_open(s, x->arms[a], r->parts[a])) return false;
    for (uint32_t k = 0; k < x->arms[a]->p->nsteps; k++) x->fails |= x->arms[a]->steps[k].fails;
    for (uint32_t k = 0; k < x->arms[a]->p->nsteps; k++) x->loops |= x->arms[a]->steps[k].loops;
  }
  s->depth--;
  return true;
}

/* Makes what the steps of a plan compute from sizes; where it stands has been set. */
static bool scope_open(splicer *s, scope *c, const plan *p) {
  c->p = p;
  uint32_t dims = p->graph->dims.n;
  c->buffer = take(s, p->nbuffers, sizeof *c->buffer);
  c->size = take(s, p->nbuffers, sizeof *c->size);
  c->slot = take(s, p->nscalars, sizeof *c->slot);
  c->steps = take(s, p->nsteps, sizeof *c->steps);
  c->dim = take(s, dims, sizeof *c->dim);
  c->known = take(s, dims, sizeof *c->known);
  c->most = take(s, dims, sizeof *c->most);
  c->bounded = take(s, dims, sizeof *c->bounded);
  if (!c->buffer || !c->size || !c->slot || !c->steps || !c->dim || !c->known || !c->most || !c->bounded) return false;
  for (uint32_t b = 0; b < p->nbuffers; b++) c->buffer[b] = NOWHERE;
  for (uint32_t i = 0; i < p->nsteps; i++) {
    const plan_step *st = &p->steps[i];
    bool ok;
    switch ((plan_step_kind)st->kind) {
    case STEP_KERNEL: ok = kernel_sizes(s, c, st, &c->steps[i]); break;
    case STEP_REGIONS: ok = branch_sizes(s, c, st, &c->steps[i]); break;
    case STEP_SCALAR:
      ok = true;
      c->steps[i].fails = graph_node_fallible(p->graph, &p->graph->nodes[st->node]);
      s->ever |= c->steps[i].fails;
      break;
    case STEP_TAP: ok = refuse(s, "an effect in the loop"); break;
    default: ok = refuse(s, "an op that is no kernel"); break;
    }
    if (!ok) return false;
    if (s->p->n > SPLICE_CODE) return refuse(s, "a kernel of very many instructions");
  }
  for (uint32_t b = 0; b < p->nbuffers; b++) { /* the sizes of its memory */
    if (p->buffers[b].where == WHERE_LATE) return refuse(s, "a size that is found in the loop");
    if (!(c->size[b] = scope_most(s, c, p->buffers[b].elements)) && s->p->failed) return out_of_memory(s);
  }
  return true;
}

/* ---- memory of the parts, made at the beginning of the PAR -------------------------------------------------------------------------- */

static bool constant(splicer *s, const plan_buffer *b, l_val size, memory at) {
  const l_instr *n = &s->p->code[size];
  if (n->code != L_INT || n->imm > SPLICE_CONST) return refuse(s, "a constant array");
  size_t bytes = dtype_size((qn_dtype)b->dtype);
  for (int64_t k = 0; k < n->imm; k++) {
    uint64_t bits = 0;
    memcpy(&bits, (const char *)b->data + (size_t)k * bytes, bytes);
    l_val v = l_const(s->p, (qn_dtype)b->dtype, bits), to = l_int(s->p, k);
    if (!v || !l_emit(s->p, (l_instr){.code = L_STORE, .imm = at, .h = v, .a = to})) return out_of_memory(s);
  }
  return true;
}

static bool is_int(const splicer *s, l_val v, int64_t *to) {
  if (!v || s->p->code[v].code != L_INT) return false;
  *to = s->p->code[v].imm;
  return true;
}

/* Element `base` of a matrix with rows of `width`, as instruction v of a kernel says: is it in a column from which on a row has `depth` elements
 * left? Then it is element *column of row *of * *times, where *of is another instruction, or 0 for 1. */
static bool starts_in_column(const splicer *s, const l_program *q, const step *x, l_val v, int64_t width, int64_t depth,
                             l_val *of, int64_t *times, int64_t *column) {
  const l_instr *i = &q->code[v];
  *of = 0;
  *column = 0;
  if (is_int(s, x->outside[v], times)) {
    *column = *times % width;
    *times /= width;
    return *column + depth <= width;
  }
  if (i->code != L_IMUL || depth > width) return false;
  *of = is_int(s, x->outside[i->a], times) ? i->b : i->a;
  if (*of == i->a && !is_int(s, x->outside[i->b], times)) return false;
  bool rows = *times % width == 0;
  *times /= width;
  return rows;
}

/* The number of the matrix in `from`, with rows of `width` elements, turned; it is made if there is none. *number is 0 if it cannot be, or need not
 * be. */
static bool turn_matrix(splicer *s, memory from, qn_dtype dtype, int64_t width, uint32_t *number) {
  int64_t elements;
  l_program *p = s->p;
  *number = 0;
  for (uint32_t i = 0; i < s->nturned; i++)
    if (s->turned[i].of == from && s->turned[i].width == width) *number = i + 1;
  if (*number || s->nturned == TURNED) return true;
  const graph_type *t = &s->g->nodes[s->buffers[from]].type;
  if (!dim_is_const(&s->g->dims, graph_elements(s->g, t), &elements)) return true;
  if (elements > TURNED_MOST || elements % width || elements / width < TURNED_LEAST) return true;
  turned_matrix *to = &s->turned[s->nturned];
  *to = (turned_matrix){.of = from, .rows = elements / width, .width = width};
  l_val rows = l_int(p, to->rows), wide = l_int(p, width);
  if (!local(s, dtype, l_int(p, elements), &to->at)) return false;
  l_val loop = l_emit(p, (l_instr){.code = L_FOR, .a = s->zero, .b = wide});
  l_val column = l_emit(p, (l_instr){.code = L_VAR, .a = loop}), begin = l_index(p, L_IMUL, column, rows);
  (void)l_emit(p, (l_instr){.code = L_VEC, .a = s->zero, .b = rows});
  l_val v = l_emit(p, (l_instr){.code = L_LOAD, .dtype = (uint8_t)dtype, .imm = from, .a = column, .b = wide});
  (void)l_emit(p, (l_instr){.code = L_STORE, .imm = to->at, .h = v, .a = begin, .b = s->one});
  l_end(p);
  l_end(p);
  *number = ++s->nturned;
  return !p->failed || out_of_memory(s);
}

/* Finds which operands of a kernel's products are better turned, and turns them. */
static bool turn_operands(splicer *s, step *x, const l_program *q) {
  if (!q->ntiles) return true;
  if (!(x->turned = take(s, q->ntiles, sizeof *x->turned))) return false;
  for (uint32_t n = 0; n < q->ntiles; n++)
    for (int y = 0; y < 2; y++) {
      const l_tile *t = &q->tiles[n];
      int32_t b = y ? t->y : t->x;
      qn_dtype d = (qn_dtype)l_tile_dtype(q, t);
      l_val of;
      int64_t many, other, step, width, depth, times, column;
      if (b < 0 || (y && t->ndigits) || x->buffers[b] < 0 || s->p->buffers[x->buffers[b]].mode != BUF_IN) continue;
      if (!dtype_is_float(d) || s->p->buffers[x->buffers[b]].dtype != (uint8_t)d) continue;
      if (is_int(s, x->outside[y ? t->cols : t->rows], &many) && many < TURNED_LEAST) continue;
      if (!y && (!is_int(s, x->outside[t->cols], &other) || other != 1)) continue; /* else x is packed in any case */
      if (!is_int(s, x->outside[y ? t->y_k : t->x_k], &step) || step != 1) continue;
      if (!is_int(s, x->outside[y ? t->y_n : t->x_m], &width) || width < 2) continue;
      if (!is_int(s, x->outside[t->depth], &depth)) continue;
      if (!starts_in_column(s, q, x, y ? t->y_base : t->x_base, width, depth, &of, &times, &column)) continue;
      if (!turn_matrix(s, x->buffers[b], d, width, &x->turned[n][y])) return false;
    }
  return true;
}

/* Gives the buffers of a scope that have no memory yet some. */
static bool scope_memory(splicer *s, scope *c) {
  for (uint32_t i = 0; i < c->p->nsteps; i++) {
    const plan_step *st = &c->p->steps[i];
    step *x = &c->steps[i];
    for (uint32_t k = 0; k < st->nbuffers; k++) {
      uint32_t b = st->buffers[k];
      const plan_buffer *buf = &c->p->buffers[b];
      if (c->buffer[b] != NOWHERE) continue;
      if (buf->where == WHERE_INPUT) return refuse(s, "an input without memory");
      l_val size = c->size[b];
      if (!local(s, (qn_dtype)buf->dtype, size, &c->buffer[b])) return false;
      if (buf->where == WHERE_CONST && !constant(s, buf, size, c->buffer[b])) return false;
    }
    if (st->kind == STEP_KERNEL) {
      const l_program *q = c->p->kernels[st->what].program;
      for (uint32_t b = 0, given = 0; b < q->nbuffers; b++) {
        if (q->buffers[b].mode != BUF_SCRATCH) {
          x->buffers[b] = c->buffer[st->buffers[given++]];
        } else {
          l_val size = x->outside[q->buffers[b].size];
          if (!local(s, (qn_dtype)q->buffers[b].dtype, size, &x->buffers[b])) return false;
        }
      }
      for (l_val v = 1; v < q->n; v++) {
        const l_instr *n = &q->code[v];
        memory m;
        if (n->code != L_LOCAL) continue;
        l_val size = x->outside[n->a] ? x->outside[n->a] : x->most[n->a];
        if (!local(s, (qn_dtype)n->dtype, size, &m)) return false;
        x->outside[v] = (l_val)-m;
      }
      if (!turn_operands(s, x, q)) return false;
    } else if (st->kind == STEP_REGIONS) {
      const plan_region *r = &c->p->regions[st->what];
      const graph_node *nodes = c->p->graph->nodes;
      for (uint32_t k = 0; k < r->nmade; k++) {
        const graph_type *t = &nodes[r->proj[k]].type;
        if (t->weak && !local(s, (qn_dtype)t->dtype, s->one, &x->numbers[k])) return false;
      }
      for (int a = 0; a < 2; a++) {
        scope *arm = x->arms[a];
        for (uint32_t b = 0; b < arm->p->nbuffers; b++) {
          const plan_buffer *buf = &arm->p->buffers[b];
          if (buf->where != WHERE_INPUT) continue;
          arm->buffer[b] = c->buffer[r->in[buf->index + 1]];
          /* what the arm updates must lie where the result is wanted */
          for (uint32_t k = 0; k < r->nmade && arm->p->updates[buf->index]; k++) {
            const plan_output *o = &arm->p->outputs[k];
            if (o->kind == OUT_INPUT && o->index == buf->index) arm->buffer[b] = c->buffer[r->out[k]];
          }
        }
        for (uint32_t k = 0; k < r->nmade; k++) {
          const plan_output *o = &arm->p->outputs[k];
          if (o->kind == OUT_BUFFER && arm->buffer[o->index] == NOWHERE) arm->buffer[o->index] = c->buffer[r->out[k]];
        }
        if (!scope_memory(s, arm)) return false;
      }
    }
  }
  return true;
}

/* ---- steps ------------------------------------------------------------------------------------------------------------------------- */

/* The memory that instruction i of a kernel names; to[] is what the kernel's instructions have become. */
static memory memory_named(const step *x, const l_val *to, const l_instr *i) {
  return i->imm < 0 ? -(memory)to[-i->imm] : x->buffers[i->imm];
}

/* Does the VEC at v only copy memory to itself? Loops that are kernels begin so where their results lie over their operands. */
static bool copies_to_itself(const l_program *q, l_val v, const step *x, const l_val *to) {
  const l_instr *load = &q->code[v + 1], *store = &q->code[v + 2];
  return q->code[v].code == L_VEC && load->code == L_LOAD && store->code == L_STORE && store[1].code == L_END &&
         store->h == v + 1 && load->a == store->a && load->b == store->b && !load->c && !load->e && !load->g &&
         !store->c && !store->e && !store->g && memory_named(x, to, load) == memory_named(x, to, store);
}

/* Makes tile number n of a kernel, whose fields name the program's instructions by now, read turned matrices where there are. */
static void use_turned(splicer *s, const l_program *q, const step *x, const l_val *to, uint32_t n, l_tile *t) {
  l_program *p = s->p;
  for (int y = 0; y < 2; y++) {
    if (!x->turned[n][y]) continue;
    const turned_matrix *m = &s->turned[x->turned[n][y] - 1];
    l_val of, base, rows = l_int(p, m->rows);
    int64_t depth, times, column;
    bool known = is_int(s, t->depth, &depth) && starts_in_column(s, q, x, y ? q->tiles[n].y_base : q->tiles[n].x_base,
                                                                 m->width, depth, &of, &times, &column);
    if (!known) continue;
    base = l_int(p, of ? times : times + column * m->rows);
    if (of) base = l_index(p, L_IMUL, to[of], base);
    if (y) {
      t->y = (int32_t)m->at, t->y_base = base, t->y_n = s->one, t->y_k = rows;
    } else {
      t->x = (int32_t)m->at, t->x_base = base, t->x_m = s->one, t->x_k = rows;
    }
  }
}

static bool kernel_code(splicer *s, scope *c, const plan_step *st, step *x) {
  const l_program *q = c->p->kernels[st->what].program;
  l_program *p = s->p;
  l_val *to = take(s, q->n, sizeof *to);
  uint8_t *dropped = take(s, q->n, 1); /* by depth: is the block a PAR of one instance, which is none here? */
  if (!to || !dropped) return false;
  int depth = 0;
  for (l_val v = 1; v < q->n; v++) {
    l_instr i = q->code[v];
    if ((to[v] = x->outside[v])) continue;
    if (i.code == L_VEC && copies_to_itself(q, v, x, to)) {
      v += 3;
      continue;
    }
    switch ((l_code)i.code) {
    case L_PHASE: continue;
    case L_SCALAR:
      if (!(to[v] = c->slot[st->scalars[i.imm]])) return refuse(s, "a number that is not made before its reader");
      continue;
    case L_INT: to[v] = l_int(p, i.imm); continue;
    case L_PARAM:
      if (!(to[v] = scope_size(s, c, st->ints[i.imm]))) return out_of_memory(s);
      continue;
    case L_ACC:
      i.a = x->outside[i.a] ? x->outside[i.a] : x->most[i.a];
      i.b = x->outside[i.b] ? x->outside[i.b] : x->most[i.b];
      to[v] = l_emit(p, i);
      continue;
    case L_VAR:
      if (!to[i.a]) { /* the one instance */
        to[v] = s->zero;
        continue;
      }
      break;
    case L_IADD:
    case L_ISUB:
    case L_IMUL:
    case L_IDIV:
    case L_IMOD:
    case L_IMIN:
    case L_IMAX: to[v] = l_index(p, (l_code)i.code, to[i.a], to[i.b]); continue;
    case L_PAR: {
      l_val n = to[i.a];
      dropped[depth] = p->code[n].code == L_INT && p->code[n].imm == 1;
      if (!dropped[depth]) to[v] = l_emit(p, (l_instr){.code = L_FOR, .a = s->zero, .b = n});
      depth++;
      continue;
    }
    case L_END:
      if (dropped[--depth]) {
        dropped[depth] = 0;
        continue;
      }
      break;
    default: break;
    }
    if (l_opens(i.code)) depth++;
    for (const l_operand *o = l_rows[i.code].operands; o->role; o++) {
      l_val *field = (l_val *)(void *)((char *)&i + o->at);
      if (*field) *field = to[*field];
    }
    switch (l_rows[i.code].imm) {
    case 'b': i.imm = memory_named(x, to, &i); break;
    case 'k': {
      l_check check = q->checks[i.imm];
      check.node = s->r->node;
      check.site = s->g->nodes[s->r->node].site;
      if (!x->checks[i.imm]) x->checks[i.imm] = 1 + (int64_t)l_check_add(p, check);
      i.imm = x->checks[i.imm] - 1;
      break;
    }
    case 't': {
      l_tile t = q->tiles[i.imm];
      l_val *fields[L_TILE_VALUES];
      for (int k = 0, n = l_tile_values(&t, fields); k < n; k++) *fields[k] = to[*fields[k]];
      t.x = (int32_t)(t.x < 0 ? -(int64_t)to[-t.x] : x->buffers[t.x]);
      t.y = (int32_t)(t.y < 0 ? -(int64_t)to[-t.y] : x->buffers[t.y]);
      if (!t.out) t.to = (int32_t)(t.to < 0 ? -(int64_t)to[-t.to] : x->buffers[t.to]);
      use_turned(s, q, x, to, (uint32_t)i.imm, &t);
      i.imm = l_tile_add(p, t);
      break;
    }
    default: break;
    }
    if (i.code == L_PARTIAL || i.code == L_MERGE)
      if (i.d) i.imm2 = i.imm2 < 0 ? -(int64_t)to[-i.imm2] : x->buffers[i.imm2];
    to[v] = l_emit(p, i);
  }
  return !p->failed || out_of_memory(s);
}

/* Appends the nodes of a kernel without axes; numbers[i] is its host scalar i. Sets *to to its value `v`. */
static bool number_code(splicer *s, const k_kernel *k, const l_val *numbers, k_val v, l_val *to) {
  l_program *p = s->p;
  l_val *of = take(s, k->n, sizeof *of);
  if (!of) return false;
  for (k_val i = 1; i < k->n; i++) {
    const k_node *n = &k->nodes[i];
    switch ((k_code)n->code) {
    case K_CONST: of[i] = l_const(p, (qn_dtype)n->dtype, n->imm); break;
    case K_SCALAR: of[i] = numbers[n->imm]; break;
    case K_OP: of[i] = l_kop(p, (kop_id)n->sub, (qn_dtype)n->dtype, of[n->a], of[n->b], of[n->c]); break;
    case K_MATH: of[i] = l_math(p, (math_id)n->sub, (qn_dtype)n->dtype, of[n->a], of[n->b], of[n->c]); break;
    case K_CHECK: {
      int check = l_check_add(p, k->checks[n->imm]);
      of[i] = l_emit(p, (l_instr){.code = L_CHECK, .imm = check, .a = of[n->a], .b = s->zero});
      if (check < 0) return out_of_memory(s);
      break;
    }
    default: return refuse(s, "arithmetic of numbers that is no straight line");
    }
    if (!of[i]) return out_of_memory(s);
  }
  *to = of[v];
  return true;
}

static bool scalar_code(splicer *s, scope *c, const plan_step *st) {
  const graph *g = c->p->graph;
  const graph_node *n = &g->nodes[st->node];
  l_val in[3] = {0};
  uint32_t count = st->nscalars;
  qn_dtype types[3];
  if (st->nbuffers) {
    const graph_type *x = n->kind == NODE_PROJ ? &n->type : &g->nodes[n->in[0]].type;
    types[0] = (qn_dtype)x->dtype;
    if (!load_one(s, c->buffer[st->buffers[0]], types[0], &in[0])) return false;
    if (n->kind == NODE_PROJ) {
      c->slot[st->out] = in[0];
      return true;
    }
    count = 1;
  }
  if (count > 3) return refuse(s, "an op of many numbers");
  for (uint32_t i = 0; i < count && !st->nbuffers; i++) {
    types[i] = (qn_dtype)c->p->scalar_types[st->scalars[i]].dtype;
    if (!(in[i] = c->slot[st->scalars[i]])) return refuse(s, "a number that is not made before its reader");
  }
  k_kernel *k = k_new("number", NULL);
  if (!k) return out_of_memory(s);
  k_val operands[3] = {0}, v = 0;
  for (uint32_t i = 0; i < count; i++) operands[i] = k_scalar(k, types[i], i);
  sink_request r = {.g = s->g, .node = s->r->node};
  bool ok = sink_number(&r, g, n, k, operands, &v, &s->why) && number_code(s, k, in, v, &c->slot[st->out]);
  if (ok && st->op == OP_fit) c->slot[st->out] = in[0]; /* of which only the check counts */
  qn_dtype made = ok ? (qn_dtype)s->p->code[c->slot[st->out]].dtype : QN_f32;
  if (ok && made != c->p->scalar_types[st->out].dtype) ok = refuse(s, "a number of another type than its slot's");
  k_free(k);
  return ok;
}

static bool scope_code(splicer *s, scope *c);

/* Begins a scope: its constants; its numbers among the inputs are set already. */
static bool scope_begin(splicer *s, scope *c, uint32_t ninputs) {
  for (uint32_t i = ninputs; i < c->p->nscalars; i++) {
    c->slot[i] = 0;
    if (!c->p->scalar_init) continue;
    qn_dtype d = (qn_dtype)c->p->scalar_types[i].dtype;
    uint64_t bits = 0;
    memcpy(&bits, &c->p->scalar_init[i], dtype_size(d));
    if (!(c->slot[i] = l_const(s->p, d, bits))) return out_of_memory(s);
  }
  return true;
}

/* How many of the plan's scalar slots are inputs. */
static uint32_t weak_inputs(const plan *p) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < p->graph->ninputs; i++) n += p->graph->nodes[p->graph->inputs[i]].type.weak;
  return n;
}

static bool branch_code(splicer *s, scope *c, const plan_step *st, step *x) {
  const plan_region *r = &c->p->regions[st->what];
  const graph_node *nodes = c->p->graph->nodes, *node = &nodes[st->node];
  const graph_type *test = &nodes[node->in[0]].type;
  l_val yes = test->weak ? c->slot[r->in[0]] : 0;
  if (!yes && (test->weak || !load_one(s, c->buffer[r->in[0]], (qn_dtype)test->dtype, &yes)))
    return refuse(s, "a number that is not made before its reader");
  if (!l_emit(s->p, (l_instr){.code = L_IF, .a = yes})) return out_of_memory(s);
  bool fails = s->fails;
  for (int a = 0; a < 2; a++) {
    scope *arm = x->arms[a];
    uint32_t weak = 0;
    if (a) (void)l_emit(s->p, (l_instr){.code = L_ELSE});
    s->fails = fails;
    for (uint32_t i = 1; i < r->nin; i++)
      if (nodes[node->in[i]].type.weak && !(arm->slot[weak++] = c->slot[r->in[i]]))
        return refuse(s, "a number that is not made before its reader");
    for (uint32_t k = 0; k < r->nmade; k++) { /* what the arm updates */
      const plan_output *o = &arm->p->outputs[k];
      if (o->kind != OUT_INPUT || !arm->p->updates[o->index]) continue;
      const plan_buffer *to = &c->p->buffers[r->out[k]];
      if (!copy(s, c->buffer[r->in[o->index + 1]], c->buffer[r->out[k]], (qn_dtype)to->dtype,
                scope_size(s, c, to->elements)))
        return false;
    }
    if (!scope_begin(s, arm, weak) || !scope_code(s, arm)) return false;
    for (uint32_t k = 0; k < r->nmade; k++) {
      const plan_output *o = &arm->p->outputs[k];
      bool ok = true;
      if (o->kind == OUT_SCALAR) {
        ok = arm->slot[o->index] && store_one(s, x->numbers[k], arm->slot[o->index]);
      } else if (o->kind == OUT_BUFFER || !arm->p->updates[o->index]) {
        memory from = o->kind == OUT_BUFFER ? arm->buffer[o->index] : c->buffer[r->in[o->index + 1]];
        const plan_buffer *to = &c->p->buffers[r->out[k]];
        ok = copy(s, from, c->buffer[r->out[k]], (qn_dtype)to->dtype, scope_size(s, c, to->elements));
      }
      if (!ok) return refuse(s, "a number that is not made before its reader");
    }
  }
  l_end(s->p);
  s->fails = fails || x->fails;
  for (uint32_t k = 0; k < r->nmade; k++) {
    const graph_type *t = &nodes[r->proj[k]].type;
    if (t->weak && !load_one(s, x->numbers[k], (qn_dtype)t->dtype, &c->slot[r->out[k]])) return false;
  }
  return !s->p->failed || out_of_memory(s);
}

/* Appends the steps of a scope. */
static bool scope_code(splicer *s, scope *c) {
  for (uint32_t i = 0; i < c->p->nsteps; i++) {
    const plan_step *st = &c->p->steps[i];
    step *x = &c->steps[i];
    if (cancelled(s->r->cancel)) return refuse(s, lower_cancelled);
    if (s->p->n > SPLICE_CODE) return refuse(s, "a kernel of very many instructions");
    /* (where a check has failed, numbers and arrays behind it mean nothing) */
    bool apart = s->fails && st->kind == STEP_KERNEL;
    if (x->loops && s->fails && !apart) return refuse(s, "a branch with a loop behind what may fail");
    if (apart) {
      l_val failed = l_emit(s->p, (l_instr){.code = L_FAILED, .dtype = DTYPE_TEST});
      if (!l_emit(s->p, (l_instr){.code = L_IF, .a = l_kop(s->p, KOP_not, DTYPE_TEST, failed, 0, 0)}))
        return out_of_memory(s);
    }
    bool ok = st->kind == STEP_KERNEL    ? kernel_code(s, c, st, x)
              : st->kind == STEP_REGIONS ? branch_code(s, c, st, x)
                                         : scalar_code(s, c, st);
    if (!ok) return false;
    if (apart) l_end(s->p);
    s->fails |= x->fails;
  }
  return true;
}

/* ---- the loop ---------------------------------------------------------------------------------------------------------------------- */

/* What the loop knows of an operand, or of a carry. */
typedef struct held {
  memory at;     /* of an array */
  l_val value;   /* of a number */
  memory before; /* of a carried array that another carry's next value is: where that is put aside; else NOWHERE */
} held;

/* Gives the inputs of a part their memory and numbers. */
static void give_inputs(scope *c, const graph_type *types, const held *x, uint32_t n) {
  uint32_t weak = 0;
  for (uint32_t i = 0; i < n; i++)
    if (types[i].weak) c->slot[weak++] = x[i].value;
  for (uint32_t b = 0; b < c->p->nbuffers; b++)
    if (c->p->buffers[b].where == WHERE_INPUT) c->buffer[b] = x[c->p->buffers[b].index].at;
}

/* Appends the header and sets *go to its condition. */
static bool header_code(splicer *s, scope *header, l_val *go) {
  const plan_output *o = &header->p->outputs[0];
  if (!scope_begin(s, header, weak_inputs(header->p)) || !scope_code(s, header)) return false;
  if (o->kind == OUT_SCALAR) {
    *go = header->slot[o->index];
    if (!*go) return refuse(s, "a number that is not made before its reader");
  } else {
    const plan *p = header->p;
    memory at = NOWHERE;
    if (o->kind == OUT_BUFFER) at = header->buffer[o->index];
    for (uint32_t b = 0; b < p->nbuffers && o->kind == OUT_INPUT; b++)
      if (p->buffers[b].where == WHERE_INPUT && p->buffers[b].index == o->index) at = header->buffer[b];
    if (at == NOWHERE) return refuse(s, "a condition that has no memory");
    if (!load_one(s, at, (qn_dtype)o->type.dtype, go)) return false;
  }
  if (!dtype_is_bool(s->p->code[*go].dtype)) return refuse(s, "a condition that is no bool");
  if (!s->ever) return true;
  l_val failed = l_emit(s->p, (l_instr){.code = L_FAILED, .dtype = DTYPE_TEST});
  l_val well = l_kop(s->p, KOP_not, DTYPE_TEST, failed, 0, 0);
  *go = l_kop(s->p, KOP_and, DTYPE_TEST, *go, well, 0);
  return *go || out_of_memory(s);
}

/* Does the body leave carry k where it is, without writing to it? */
static bool stays(const plan *body, uint32_t k) {
  const plan_output *o = &body->outputs[k];
  return o->kind == OUT_INPUT && o->index == k && !body->updates[k];
}

/* Gives carried arrays their new values at the end of a turn. */
static bool move_carries(splicer *s, const scope *body, const graph_type *types, held *in, uint32_t carries,
                         const l_val *sizes) {
  for (int pass = 0; pass < 2; pass++)
    for (uint32_t k = 0; k < carries; k++) {
      const plan_output *o = &body->p->outputs[k];
      qn_dtype d = (qn_dtype)types[k].dtype;
      if (types[k].weak || (o->kind == OUT_INPUT && o->index == k)) continue;
      held *from = o->kind == OUT_INPUT ? &in[o->index] : NULL;
      if (!pass) {
        if (from && from->before != NOWHERE && !copy(s, from->at, from->before, d, sizes[k])) return false;
        continue;
      }
      memory at = !from ? body->buffer[o->index] : from->before != NOWHERE ? from->before : from->at;
      if (!copy(s, at, in[k].at, d, sizes[k])) return false;
    }
  return true;
}

static bool store_number(splicer *s, uint32_t proj, memory at, l_val v) { return !proj || store_one(s, at, v); }

/* ---- rows --------------------------------------------------------------------------------------------------------------------------- */

/* Is node n of a graph an int that is a constant? */
static bool int_const(const graph *g, uint32_t n, int64_t *to) {
  const graph_node *node = &g->nodes[n];
  if (node->kind != NODE_CONST || !node->type.weak || node->type.dtype != WEAK_INT) return false;
  memcpy(to, node->payload.data, sizeof *to);
  return true;
}

/* Does the body add a number above 0 to carry i in each turn? */
static bool counts_up(const graph *body, uint32_t i) {
  const graph_node *n = &body->nodes[body->outputs[i]];
  int64_t by;
  if (n->kind != NODE_OP || n->op != OP_add) return false;
  for (int k = 0; k < 2; k++)
    if (n->in[k] == body->inputs[i] && int_const(body, n->in[1 - k], &by) && by > 0) return true;
  return false;
}

/* Finds out how many turns a loop may make at most (spliced.room) from a condition `i < end` in its header, node n. */
static bool find_room(splicer *s, const graph_node *loop, uint32_t n) {
  const graph *header = loop->payload.regions[0], *body = loop->payload.regions[1];
  const graph_node *test = &header->nodes[n];
  if (test->kind != NODE_OP || !test->type.weak) return false;
  if (test->op == OP_bitand) /* a loop that is also left otherwise: memory for all turns must not be much */
    return (find_room(s, loop, test->in[0]) || find_room(s, loop, test->in[1])) && !s->room_node &&
           s->room <= SPLICE_ROOM;
  if (test->op != OP_lt || header->nodes[test->in[0]].kind != NODE_INPUT) return false;
  uint32_t i = header->nodes[test->in[0]].payload.input, j;
  const graph_node *end = &header->nodes[test->in[1]];
  int64_t first, last = 0;
  if (i >= graph_loop_carries(loop) || !counts_up(body, i) || !int_const(s->g, loop->in[i], &first)) return false;
  s->room_node = 0;
  if (end->kind == NODE_INPUT && end->type.weak && end->type.dtype == WEAK_INT) {
    j = end->payload.input;
    if (j < graph_loop_carries(loop) && body->outputs[j] != body->inputs[j]) return false;
    if (!int_const(s->g, loop->in[j], &last)) s->room_node = loop->in[j];
  } else if (!int_const(header, test->in[1], &last)) {
    return false;
  }
  return !__builtin_sub_overflow(last, first, &s->room);
}

/* Can the rows that the loop keeps be? Every turn's, in the order of turns. */
static bool keeps_rows(splicer *s, const graph_node *loop) {
  const graph *header = loop->payload.regions[0];
  const uint32_t *proj = s->r->proj;
  uint32_t carries = graph_loop_carries(loop), results = graph_nresults(loop);
  int64_t slots = graph_loop_slots(loop);
  if (!proj[results - 2] || !find_room(s, loop, header->outputs[0])) return refuse(s, "the loop keeps rows");
  if (slots && (s->room_node || s->room > slots)) return refuse(s, "the loop keeps some of its rows");
  s->rows = arena_alloc(s->r->arena, results * sizeof *s->rows);
  if (!s->rows) return out_of_memory(s);
  for (uint32_t k = carries; k < results - 2; k++) {
    if (!proj[k]) continue;
    const graph_type *t = &s->g->nodes[proj[k]].type;
    if (t->shape[0] >= 0 || s->g->dims.exprs[~t->shape[0]].op != DIM_SYMBOL)
      return refuse(s, "a size that is known before");
    int64_t none;
    if (dim_is_const(&s->g->dims, graph_elements(s->g, t), &none)) return refuse(s, "rows without elements");
    s->rows[s->nrows++] = proj[k];
  }
  return true;
}

/* Stores the rows of turn number `turns`. */
static bool store_rows(splicer *s, const scope *body, const held *in, uint32_t from, uint32_t to, const memory *out,
                       const l_val *sizes, l_val turns) {
  l_program *p = s->p;
  l_val turn = l_emit(p, (l_instr){.code = L_IVALUE, .a = turns});
  for (uint32_t k = from; k < to; k++) {
    const plan_output *o = &body->p->outputs[k];
    if (!s->r->proj[k]) continue;
    l_val at = l_index(p, L_IMUL, turn, sizes[k]);
    if (o->kind == OUT_SCALAR) {
      l_val v = body->slot[o->index];
      if (!v) return refuse(s, "a number that is not made before its reader");
      (void)l_emit(p, (l_instr){.code = L_STORE, .imm = out[k], .h = v, .a = at});
      continue;
    }
    memory there = o->kind == OUT_INPUT ? in[o->index].at : body->buffer[o->index];
    (void)l_emit(p, (l_instr){.code = L_VEC, .a = s->zero, .b = sizes[k]});
    l_val v = l_emit(p, (l_instr){.code = L_LOAD, .dtype = o->type.dtype, .imm = there, .a = s->zero, .b = s->one});
    (void)l_emit(p, (l_instr){.code = L_STORE, .imm = out[k], .h = v, .a = at, .b = s->one});
    l_end(p);
  }
  return !p->failed || out_of_memory(s);
}

/* The size of a row, as an index. */
static l_val row_size(splicer *s, uint32_t proj) {
  graph *g = s->g;
  const graph_type *t = &g->nodes[proj].type;
  graph_type row = {.rank = (uint8_t)(t->rank - 1)};
  for (int a = 1; a < t->rank; a++) row.shape[a - 1] = t->shape[a];
  return size_value(s, graph_elements(g, &row));
}

/* ---- the whole ---------------------------------------------------------------------------------------------------------------------- */

static bool splice_all(splicer *s) {
  graph *g = s->g;
  const graph_node *loop = &g->nodes[s->r->node];
  uint32_t carries = graph_loop_carries(loop), results = graph_nresults(loop), n = loop->nin;
  const plan *const header_plan = s->r->parts[0], *const body_plan = s->r->parts[1];
  const uint32_t *proj = s->r->proj;
  l_program *p = s->p;
  if (body_plan->noutputs != carries && !keeps_rows(s, loop)) return false;
  graph_type *types = take(s, n, sizeof *types);
  held *in = take(s, n, sizeof *in), *first = take(s, n, sizeof *first);
  memory *out = take(s, results, sizeof *out);
  l_val *sizes = take(s, results, sizeof *sizes), *carry = take(s, carries, sizeof *carry);
  scope *header = take(s, 1, sizeof *header), *body = take(s, 1, sizeof *body);
  if (!types || !in || !first || !out || !sizes || !carry || !header || !body) return false;
  for (uint32_t i = 0; i < n; i++) types[i] = g->nodes[loop->in[i]].type;

  /* before the PAR: buffers, sizes */
  s->zero = l_int(p, 0);
  s->one = l_int(p, 1);
  for (uint32_t i = 0; i < n; i++) {
    in[i].at = in[i].before = NOWHERE;
    for (uint32_t k = 0; k < i; k++)
      if (loop->in[k] == loop->in[i]) in[i].at = first[k].at;
    if (!types[i].weak && in[i].at == NOWHERE &&
        !outer_buffer(s, loop->in[i], (qn_dtype)types[i].dtype, BUF_IN, &in[i].at))
      return false;
    first[i] = in[i];
  }
  for (uint32_t k = 0; k < carries; k++) {
    if (!types[k].weak && !(sizes[k] = size_value(s, graph_elements(g, &types[k])))) return false;
    bool inout = !types[k].weak && !stays(body_plan, k);
    if (proj[k] && !outer_buffer(s, proj[k], (qn_dtype)types[k].dtype, inout ? BUF_INOUT : BUF_OUT, &out[k]))
      return false;
    if (proj[k] && inout) in[k].at = out[k];
  }
  for (uint32_t k = carries; k < results - 2; k++)
    if (proj[k] && (!(sizes[k] = row_size(s, proj[k])) ||
                    !outer_buffer(s, proj[k], (qn_dtype)g->nodes[proj[k]].type.dtype, BUF_OUT, &out[k])))
      return false;
  for (uint32_t k = results - 2; k < results; k++)
    if (proj[k] && !outer_buffer(s, proj[k], WEAK_INT, BUF_OUT, &out[k])) return false;
  *header = *body = (scope){.in = types};
  if (!scope_open(s, header, header_plan) || !scope_open(s, body, body_plan)) return false;

  /* memory */
  (void)l_emit(p, (l_instr){.code = L_PHASE});
  s->par = l_emit(p, (l_instr){.code = L_PAR, .a = s->one, .imm = 1});
  if (!s->par) return out_of_memory(s);
  for (uint32_t k = 0; k < carries; k++) {
    const plan_output *o = &body_plan->outputs[k];
    if (types[k].weak || stays(body_plan, k)) continue;
    if (!proj[k] && !local(s, (qn_dtype)types[k].dtype, sizes[k], &in[k].at)) return false;
    if (o->kind == OUT_INPUT && o->index != k && o->index < carries && !stays(body_plan, o->index) &&
        in[o->index].before == NOWHERE && !local(s, (qn_dtype)types[k].dtype, sizes[k], &in[o->index].before))
      return false;
  }
  give_inputs(header, types, in, n);
  give_inputs(body, types, in, n);
  for (uint32_t k = 0; k < carries; k++) { /* values that are made over the old ones */
    const plan_output *o = &body_plan->outputs[k];
    if (o->kind == OUT_BUFFER && o->over && body->buffer[o->index] == NOWHERE) body->buffer[o->index] = in[k].at;
  }
  if (!scope_memory(s, header) || !scope_memory(s, body)) return false;
  for (uint32_t k = 0; k < carries; k++)
    if (!types[k].weak && !copy(s, first[k].at, in[k].at, (qn_dtype)types[k].dtype, sizes[k])) return false;

  /* numbers before the loop, and the first test */
  for (uint32_t i = 0; i < n; i++) {
    const graph_node *x = &g->nodes[loop->in[i]];
    if (!types[i].weak) continue;
    qn_dtype d = (qn_dtype)types[i].dtype;
    if (x->kind == NODE_CONST) {
      uint64_t bits = 0;
      memcpy(&bits, x->payload.data, dtype_size(d));
      in[i].value = l_const(p, d, bits);
    } else {
      uint32_t number = 0;
      while (number < s->nscalars && s->scalars[number] != loop->in[i]) number++;
      if (number == s->nscalars) {
        if (!arena_room(s->r->arena, (void **)&s->scalars, &s->scalars_cap, number + 1, sizeof *s->scalars))
          return out_of_memory(s);
        s->scalars[s->nscalars++] = loop->in[i];
      }
      in[i].value = l_emit(p, (l_instr){.code = L_SCALAR, .dtype = (uint8_t)d, .imm = number});
    }
    if (!in[i].value) return out_of_memory(s);
  }
  p->nscalars = s->nscalars;
  l_val go, turns = 0, next = 0;
  give_inputs(header, types, in, n);
  if (!header_code(s, header, &go)) return false;
  l_val on = l_emit(p, (l_instr){.code = L_CARRY, .dtype = DTYPE_TEST, .a = go});
  for (uint32_t k = 0; k < carries; k++)
    if (types[k].weak)
      in[k].value = carry[k] = l_emit(p, (l_instr){.code = L_CARRY, .dtype = types[k].dtype, .a = in[k].value});
  if (proj[results - 2]) {
    l_val none = l_const(p, WEAK_INT, 0);
    turns = l_emit(p, (l_instr){.code = L_CARRY, .dtype = WEAK_INT, .a = none});
  }
  (void)l_emit(p, (l_instr){.code = L_WHILE, .a = on});
  (void)l_emit(p, (l_instr){.code = L_POLL});
  s->fails = false;
  give_inputs(body, types, in, n);
  if (!scope_begin(s, body, weak_inputs(body_plan)) || !scope_code(s, body)) return false;
  if (s->nrows && !store_rows(s, body, in, carries, results - 2, out, sizes, turns)) return false;
  if (!move_carries(s, body, types, in, carries, sizes)) return false;
  for (uint32_t k = 0; k < carries; k++)
    if (types[k].weak && !(in[k].value = body->slot[body_plan->outputs[k].index]))
      return refuse(s, "a number that is not made before its reader");
  give_inputs(header, types, in, n);
  if (!header_code(s, header, &go)) return false;
  if (turns) next = l_kop(p, KOP_add, WEAK_INT, turns, l_const(p, WEAK_INT, 1), 0);
  for (uint32_t k = 0; k < carries; k++)
    if (types[k].weak) (void)l_emit(p, (l_instr){.code = L_SET, .a = carry[k], .b = in[k].value});
  if (turns) (void)l_emit(p, (l_instr){.code = L_SET, .a = turns, .b = next});
  (void)l_emit(p, (l_instr){.code = L_SET, .a = on, .b = go});
  l_end(p);

  /* results */
  for (uint32_t k = 0; k < carries; k++) {
    if (!proj[k]) continue;
    bool ok = types[k].weak ? store_number(s, proj[k], out[k], carry[k])
                            : copy(s, in[k].at, out[k], (qn_dtype)types[k].dtype, sizes[k]);
    if (!ok) return false;
  }
  if (turns && !store_number(s, proj[results - 2], out[results - 2], turns)) return false;
  if (!store_number(s, proj[results - 1], out[results - 1], l_const(p, WEAK_INT, 1))) return false;
  l_end(p);
  return !p->failed || out_of_memory(s);
}

bool splice(const splice_request *r, spliced *to, const char **why) {
  splicer s = {.r = r, .g = r->g, .p = l_new("loop")};
  arena_init(&s.memory, NULL);
  bool ok = s.p && splice_all(&s) && !s.p->failed;
  arena_free(&s.memory);
  if (ok) {
    small_rows(&s.p);
    l_tighten(s.p, 0, 0);
    *to = (spliced){.program = s.p,
                    .buffers = s.buffers,
                    .nbuffers = s.nbuffers,
                    .ints = s.ints,
                    .nints = s.nints,
                    .scalars = s.scalars,
                    .nscalars = s.nscalars,
                    .rows = s.rows,
                    .nrows = s.nrows,
                    .room_node = s.room_node,
                    .room = s.room};
    return true;
  }
  *why = s.why ? s.why : lower_no_memory;
  l_free(s.p);
  return false;
}
