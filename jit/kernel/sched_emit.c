/* The program of a nest, from its loops (schedule.h).
 *
 * What a nest has to do are jobs: its effects, and the reductions that they need. Everything else is computed where a job asks for it
 * (sched_build.c). A job belongs into the loops of the axes that it is made along. So a list of loops is gone through from the outside in: of
 * the jobs at hand some are made along the axis of the next loop and others are not. What needs the result of a reduction over that axis
 * comes behind the loop, or, if it is made along it as well, in a second loop over it. That gives passes: all jobs that wait for no such
 * result, then those that wait for one, and so on, others before the loop of each pass (`level`).
 *
 * Results of a reduction over a FOR that vary along the VEC inside are one accumulator with many results, which the VECs behind
 * it read. A value that several passes of a VEC need is computed again if that is cheap, and kept in a local array otherwise; a first
 * walk, which emits nothing, finds out which, since locals stand at the beginning of a PAR.
 *
 * If the axis of a reduction is cut by a PAR, an instance has only a part of the result. The part is stored to scratch, and a phase with the
 * loops `after` merges all parts in the order of the reduction's tree, and does the jobs that are not made along the cut axis. Jobs
 * along it that wait for such results are a next phase with the main loops. Row results that are reduced in inner order are stored themselves,
 * since a cut may not part their chains. */
#include <string.h>

#include "jit/kernel/lower.h"
#include "jit/kernel/sched_impl.h"

/* Scratch buffers for the partial results of one reduction: `each` elements (an index value) for each piece of a row. */
typedef struct partials {
  int buffer, indices; /* values, and for arg reductions the indices (else -1) */
  l_val each;
} partials;

/* What is known of a reduction over the cut axis. */
typedef struct merged {
  partials part, group;
  int rows, result; /* buffers for what rows gave, and for the finished results; -1: none */
} merged;

typedef struct emitter {
  nest_builder *nb;
  const k_kernel *k;
  const nest *s;
  int64_t grain;
  int cut, c;         /* the axis that is cut (-1: none) and that of the VEC of the list at hand */
  const loop_list *l; /* the loops of the phase at hand, */
  bool after;         /* which is one that merges */
  bool dry;           /* nothing is emitted */
  k_mask rows;        /* the axes by which results of a cut reduction are numbered, but for c */
  l_val slabs, slab;  /* how many pieces the cut axis has, and the number of the instance's */
  l_val pitch;        /* elements along c of a piece's partial results */
  l_val width;        /* of results along c in an instance, known before the PAR */
  l_val start[K_AXES_MAX], length[K_AXES_MAX]; /* what an instance has of each axis, */
  l_val past[K_AXES_MAX];                      /* and where in that it is */
  uint8_t *rank;  /* by node: for how many results of cut reductions, one after the other, it waits */
  uint8_t *keeps; /* by node: does it need a local? */
  l_val *local;   /* by node: its local, or for a load through a turned tile its tile */
  merged *of;     /* by node */
  k_val dot;      /* the product of the TILE */
  int m, n;       /* and its axes */
  int64_t tm, tn; /* and size */
  l_val room;     /* elements of its local */
} emitter;

static bool level(emitter *e, int i, const k_val *jobs, uint32_t n);

/* ---- small things ------------------------------------------------------------------------------------------------------------ */

static l_val plus(emitter *e, l_val a, l_val b) { return nest_index(e->nb, L_IADD, a, b); }
static l_val times(emitter *e, l_val a, l_val b) { return nest_index(e->nb, L_IMUL, a, b); }
static l_val number(emitter *e, int64_t n) { return nest_number(e->nb, n); }
static l_val extent(emitter *e, int axis) { return axis < 0 ? e->nb->one : nest_dim(e->nb, e->k->axes[axis].extent); }
static l_val ceil_div(emitter *e, l_val n, int64_t by) {
  return nest_index(e->nb, L_IDIV, plus(e, n, number(e, by - 1)), number(e, by));
}

/* The number of a point of some axes, in row-major order. */
static l_val flat(emitter *e, k_mask axes, l_val at) {
  for (int a = 0; a < (int)e->k->naxes; a++)
    if (axis_in(axes, a)) at = plus(e, times(e, at, extent(e, a)), e->nb->at[a]);
  return at;
}

static l_val points_of(emitter *e, k_mask axes) {
  l_val n = e->nb->one;
  for (int a = 0; a < (int)e->k->naxes; a++)
    if (axis_in(axes, a)) n = times(e, n, extent(e, a));
  return n;
}

static void *room(emitter *e, size_t n, size_t size) {
  void *p = arena_alloc(e->nb->arena, (n + 1) * size);
  if (!p) nest_refuse(e->nb, lower_no_memory);
  return p;
}

static bool is_arg(const k_node *n) { return n->code == K_REDUCE && kop_is_arg(n->sub); }
static bool along_c(const emitter *e, k_val v) { return axis_in(job_axes(e->k, v), e->c); }
/* Does reduction v give a result for each point of c? */
static bool many(const emitter *e, k_val v) { return e->c != e->k->nodes[v].axis && along_c(e, v); }
static bool is_merged(const emitter *e, k_val v) { return e->cut >= 0 && k_reduces(&e->k->nodes[v], e->cut); }
/* Are the operands of a merged reduction stored, for the merge to reduce? */
static bool keeps_rows(const emitter *e, k_val v) { return is_merged(e, v) && e->of[v].rows >= 0; }

/* ---- accumulators -------------------------------------------------------------------------------------------------------------- */

static l_val make_acc(emitter *e, k_val v, l_val results) {
  const k_node *n = &e->k->nodes[v];
  l_val most = extent(e, n->axis);
  if (n->axis == e->cut && e->s->grows) most = e->after ? 0 : number(e, loop_of(&e->s->s.main, LOOP_PAR, e->cut)->size);
  return e->nb->acc[v] = nest_code(e->nb, (l_instr){.code = L_ACC,
                                                    .sub = n->code == K_DOT ? KOP_add : n->sub,
                                                    .dtype = e->k->nodes[n->a].dtype,
                                                    .imm = nest_order(n),
                                                    .a = results,
                                                    .b = most});
}

static bool push(emitter *e, k_val v) {
  const k_node *n = &e->k->nodes[v];
  l_val a = nest_value(e->nb, n->a), b = n->code == K_DOT ? nest_value(e->nb, n->b) : 0, k = 0;
  if (!a || (n->code == K_DOT && !b)) return false;
  if (n->axis == e->c)
    k = e->start[e->c] == e->nb->zero ? 0 : e->start[e->c];
  else if (is_arg(n))
    k = e->nb->at[n->axis];
  nest_code(e->nb, (l_instr){.code = L_PUSH, .a = e->nb->acc[v], .b = a, .d = b, .c = k});
  return true;
}

static l_val finish(emitter *e, k_val v) {
  l_val f = nest_code(e->nb, (l_instr){.code = L_FINISH, .dtype = e->k->nodes[v].dtype, .a = e->nb->acc[v]});
  nest_set_value(e->nb, v, f);
  return f;
}

typedef struct scans {
  emitter *e;
  int axis;
  bool *seen; /* by node */
} scans;

/* Emits the accumulator of v if v is a scan over the axis that the jobs at hand compute. */
static void open_scan(void *ctx, k_val v) {
  scans *x = ctx;
  emitter *e = x->e;
  const k_node *n = &e->k->nodes[v];
  if (x->seen[v] || !axis_in(n->axes, x->axis) || e->nb->kept[v].in || e->nb->value[v]) return;
  x->seen[v] = true;
  if (n->code == K_SCAN && n->axis == x->axis) make_acc(e, v, many(e, v) ? e->width : 0);
  k_each_operand(e->k, v, open_scan, x);
}

/* Emits the accumulators that jobs over an axis need. */
static bool open_accs(emitter *e, int axis, const k_val *jobs, uint32_t n) {
  scans x = {e, axis, room(e, e->k->n, sizeof *x.seen)};
  if (!x.seen) return false;
  for (uint32_t i = 0; i < n; i++)
    if (k_reduces(&e->k->nodes[jobs[i]], axis) && !keeps_rows(e, jobs[i]))
      make_acc(e, jobs[i], many(e, jobs[i]) ? e->width : 0);
  for (uint32_t i = 0; i < n; i++) k_each_operand(e->k, jobs[i], open_scan, &x);
  return !e->nb->why;
}

/* ---- partial results ------------------------------------------------------------------------------------------------------------ */

static int scratch(emitter *e, uint8_t dtype, l_val size) {
  int b = l_buffer_add(e->nb->p, (qn_dtype)dtype, BUF_SCRATCH, size);
  if (b < 0) nest_refuse(e->nb, lower_no_memory);
  return b;
}

/* Makes scratch for the partial results of v. There are `slack` elements more, since the merge of a tile may read beyond the end (and ignore
 * what it reads). */
static partials make_partials(emitter *e, k_val v, l_val pieces, l_val each, int64_t slack) {
  const k_node *n = &e->k->nodes[v];
  l_val size = plus(e, times(e, pieces, each), number(e, slack));
  partials p = {scratch(e, e->k->nodes[n->a].dtype, size), -1, each};
  if (is_arg(n)) p.indices = scratch(e, DTYPE_INDEX, size);
  return p;
}

static void partial(emitter *e, l_code code, k_val v, const partials *p, l_val piece, l_val offset) {
  l_val at = times(e, piece, p->each);
  if (offset) at = plus(e, at, offset);
  bool indices = p->indices >= 0;
  nest_code(e->nb, (l_instr){.code = (uint8_t)code,
                             .a = e->nb->acc[v],
                             .imm = p->buffer,
                             .b = at,
                             .d = indices ? at : 0,
                             .imm2 = indices ? p->indices : 0});
}

/* Emits a loop that merges partial results `from` to `to` of the `count` of a row. */
static void merge(emitter *e, k_val v, const partials *p, l_val row, l_val count, l_val from, l_val to, l_val offset) {
  l_val i, first = times(e, row, count);
  uint32_t mark = nest_mark(e->nb);
  nest_for(e->nb, from, to, &i);
  partial(e, L_MERGE, v, p, plus(e, first, i), offset);
  nest_end(e->nb, mark);
}

/* Makes all scratch, which must stand in the prelude. */
static bool make_scratch(emitter *e) {
  const k_kernel *k = e->k;
  const loop_list *l = &e->s->s.main;
  const sched_loop *piece = loop_of(l, LOOP_PAR, e->cut),
                   *tile = e->c < 0 || e->c == e->cut ? NULL : loop_of(l, LOOP_PAR, e->c);
  e->slabs = ceil_div(e, extent(e, e->cut), piece->size);
  l_val rows = points_of(e, e->rows), all = times(e, rows, e->slabs);
  /* with tiles of c the partial results of a piece are padded to whole tiles */
  e->pitch = e->c == e->cut ? e->nb->one
             : tile         ? times(e, ceil_div(e, extent(e, e->c), tile->size), number(e, tile->size))
                            : extent(e, e->c);
  const sched_loop *after = e->c < 0 ? NULL : loop_of(&e->s->s.after, LOOP_PAR, e->c);
  int64_t slack = tile ? tile->size : 0;
  if (after && after->size > slack) slack = after->size;
  if (e->c != e->cut && !slack) slack = e->s->by->merge_tile;
  e->of = room(e, k->n, sizeof *e->of);
  if (!e->of) return false;
  for (k_val v = 1; v < k->n && !e->nb->why; v++) {
    if (!e->s->needed[v] || !is_merged(e, v)) continue;
    merged *m = &e->of[v];
    *m = (merged){.rows = -1, .result = -1};
    if (k->nodes[v].code == K_DOT && loop_of(l, LOOP_TILE, e->cut)) {
      l_val tiles = times(e, ceil_div(e, extent(e, e->m), e->tm), ceil_div(e, extent(e, e->n), e->tn));
      m->part = make_partials(e, v, times(e, all, tiles), number(e, e->tm * e->tn), 0);
    } else if (e->cut != e->c && nest_order(&k->nodes[v]) == ORDER_INNER && !many(e, v)) {
      m->rows = scratch(e, k->nodes[k->nodes[v].a].dtype, times(e, rows, extent(e, e->cut)));
    } else {
      bool lanes = nest_order(&k->nodes[v]) == ORDER_INNER;
      l_val each = many(e, v) ? e->pitch : number(e, lanes ? ORDER_LANES : 1);
      m->part = make_partials(e, v, all, each, many(e, v) ? slack : 0);
      if (e->s->s.group && !many(e, v))
        m->group = make_partials(e, v, times(e, rows, ceil_div(e, e->slabs, e->s->s.group)), each, 0);
    }
    for (k_val u = v + 1; u < k->n && m->result < 0; u++)
      if (e->s->needed[u] && e->rank[u] >= e->rank[v] + is_merged(e, u) &&
          axis_in(k_is_effect(&k->nodes[u]) || is_merged(e, u) ? job_axes(k, u) : 0, e->cut))
        m->result = scratch(e, k->nodes[v].dtype, times(e, rows, many(e, v) ? extent(e, e->c) : e->nb->one));
  }
  return !e->nb->why;
}

/* ---- instances ----------------------------------------------------------------------------------------------------------------- */

static int64_t hint_of(const emitter *e, const loop_list *l) {
  int64_t n = 1;
  for (int i = 0; i < l->n; i++)
    if (l->at[i].role == LOOP_PAR) n *= tiles_hint(e->k, l->at[i].axis, l->at[i].size);
  return n;
}

/* The least number of instances for a thread, a power of two, where an instance has `work` elements. */
static int64_t grain_of(int64_t grain, int64_t work) {
  int64_t g = 1;
  while (g < grain && g * (work < 1 ? 1 : work) < grain) g *= 2;
  return g;
}

/* The elements of a tile's local; on a GPU with room for sums of chunks behind the tile: as many as can wait in the tree at a time, which is
 * bounded by twice the number of chunks after the first. */
static l_val tile_room(emitter *e) {
  enum { MOST = 24 };
  nest_builder *nb = e->nb;
  int axis = e->k->nodes[e->dot].axis;
  const sched_loop *piece = loop_of(&e->s->s.main, LOOP_PAR, axis);
  l_val tile = number(e, e->tm * e->tn), depth = piece ? number(e, piece->size) : extent(e, axis);
  if (!e->s->by->dot_room || e->after) return tile;
  l_val last = plus(e, depth, number(e, ORDER_DOT_CHUNK - 1));
  l_val beyond = nest_index(nb, L_ISUB, nest_index(nb, L_IDIV, last, number(e, ORDER_DOT_CHUNK)), nb->one);
  l_val most = nest_index(nb, L_IMIN, plus(e, beyond, beyond), number(e, MOST));
  return times(e, plus(e, nest_index(nb, L_IMAX, most, nb->zero), nb->one), tile);
}

/* Emits PHASE and PAR over the list's instances times `extra` (0: 1), whose number is returned. */
static l_val begin(emitter *e, const loop_list *l, l_val extra, int64_t work) {
  nest_builder *nb = e->nb;
  l_val count[SCHED_LOOPS], n = nb->one, at = nb->zero;
  bool prelude = !nb->body;
  if (!prelude && !nb->phase_open) nest_code(nb, (l_instr){.code = L_PHASE});
  e->l = l;
  e->c = vec_axis(l);
  int pars = 0;
  for (; pars < l->n && l->at[pars].role == LOOP_PAR; pars++) {
    const sched_loop *p = &l->at[pars];
    count[pars] = p->size == 1 ? extent(e, p->axis) : ceil_div(e, extent(e, p->axis), p->size);
    n = times(e, n, count[pars]);
  }
  if (extra) n = times(e, n, extra);
  /* sizes of locals are known before the PAR */
  if (e->s->s.turn) number(e, TURN_TILE * (TURN_TILE + 1));
  if (e->dot) e->room = tile_room(e);
  const sched_loop *tile = e->c < 0 ? NULL : loop_of(l, LOOP_PAR, e->c);
  e->width = e->c < 0 ? 0 : !tile ? extent(e, e->c) : nest_index(nb, L_IMIN, number(e, tile->size), extent(e, e->c));
  if (tile && !e->after && e->cut >= 0) e->width = number(e, tile->size);
  for (int a = 0; a < (int)e->k->naxes; a++) {
    e->start[a] = e->past[a] = nb->at[a] = nb->zero;
    e->length[a] = extent(e, a);
  }
  if (prelude) nest_code(nb, (l_instr){.code = L_PHASE});
  nb->phase_open = false;
  nb->body = true;
  l_val loop = nest_code(nb, (l_instr){.code = L_PAR, .a = n, .imm = grain_of(e->grain, work)}), own = 0;
  if (pars || extra) at = nest_code(nb, (l_instr){.code = L_VAR, .a = loop});
  if (extra) {
    own = pars ? nest_index(nb, L_IMOD, at, extra) : at;
    at = nest_index(nb, L_IDIV, at, extra);
  }
  for (int i = pars - 1; i >= 0; i--) {
    const sched_loop *p = &l->at[i];
    l_val index = i ? nest_index(nb, L_IMOD, at, count[i]) : at;
    if (i) at = nest_index(nb, L_IDIV, at, count[i]);
    if (p->axis == e->cut) e->slab = index;
    if (p->size != 1) {
      l_val size = number(e, p->size);
      index = times(e, index, size);
      e->length[p->axis] = nest_index(nb, L_IMIN, size, nest_index(nb, L_ISUB, e->length[p->axis], index));
    } else {
      e->length[p->axis] = nb->one;
    }
    e->start[p->axis] = nb->at[p->axis] = index;
  }
  return own;
}

/* ---- values that are kept between passes ------------------------------------------------------------------------------------- */

typedef struct keeper {
  emitter *e;
  uint8_t *first; /* by node: 1 + the first pass that computes it */
  uint8_t *keep;  /* by node: 1 + the pass that keeps it; 0: none */
  uint8_t pass;
} keeper;

typedef struct weigher {
  const emitter *e;
  double weight;
} weigher;

static void weigh_operand(void *ctx, k_val v) {
  weigher *w = ctx;
  if (w->weight > 2 * w->e->s->by->keep_weight || !axis_in(w->e->k->nodes[v].axes, w->e->c)) return;
  w->weight += nest_weight(w->e->k, &w->e->k->nodes[v], w->e->s->by->price.costs);
  k_each_operand(w->e->k, v, weigh_operand, w);
}

static void keep_operand(void *ctx, k_val v) {
  keeper *p = ctx;
  emitter *e = p->e;
  const k_node *n = &e->k->nodes[v];
  if (!axis_in(n->axes, e->c) || p->keep[v] || p->first[v] == p->pass + 1 || e->nb->kept[v].in) return;
  bool finished = k_folds(n) && n->code != K_SCAN; /* with a result for each point of c */
  if (p->first[v] && (finished || n->code == K_SCAN)) p->keep[v] = p->first[v];
  if (p->first[v] && !p->keep[v] && axis_hint(e->k, e->c) <= e->s->by->keep_row) {
    weigher w = {e, 0};
    weigh_operand(&w, v);
    if (w.weight > e->s->by->keep_weight) p->keep[v] = p->first[v];
  }
  if (p->keep[v]) return;
  p->first[v] = (uint8_t)(p->pass + 1);
  if (!finished) k_each_operand(e->k, v, keep_operand, p);
}

/* Which values the passes of a VEC keep: by node, 1 + the pass that stores it. NULL when memory is short. */
static uint8_t *plan_keep(emitter *e, const k_val *jobs, uint32_t n, const uint8_t *stage, int last) {
  keeper p = {e, room(e, e->k->n, 1), room(e, e->k->n, 1), 0};
  if (!p.first || !p.keep) return NULL;
  for (int pass = 0; pass <= last && last > 0; pass++) {
    p.pass = (uint8_t)pass;
    for (uint32_t i = 0; i < n; i++)
      if (stage[jobs[i]] == pass && along_c(e, jobs[i])) k_each_operand(e->k, jobs[i], keep_operand, &p);
  }
  for (k_val v = 1; v < e->k->n; v++) {
    if (p.keep[v] && e->dry) e->keeps[v] = true;
    if (p.keep[v] && !e->dry && !e->local[v]) p.keep[v] = 0;
  }
  return p.keep;
}

static void keep_in(emitter *e, k_val v, l_val value) {
  nest_code(e->nb,
            (l_instr){.code = L_STORE, .imm = -(int64_t)e->local[v], .h = value, .a = e->nb->zero, .b = e->nb->one});
}

/* Value v is found in its local from now on. */
static void is_kept(emitter *e, k_val v) {
  e->nb->kept[v] = (struct kept){-(int64_t)e->local[v], e->nb->zero, e->nb->one};
}

/* ---- tiles ------------------------------------------------------------------------------------------------------------------------ */

/* Is v loaded through a turned tile? */
static bool is_turned(const emitter *e, k_val v) {
  const k_node *n = &e->k->nodes[v];
  qn_dim along, across;
  if (!e->s->s.turn || n->code != K_LOAD || e->l->n < 2) return false;
  int turned = e->l->at[e->l->n - 2].axis;
  return axis_in(n->axes, e->c) && axis_in(n->axes, turned) && k_coef(e->k, n->at, (uint32_t)turned, &across) &&
         across == 1 && k_coef(e->k, n->at, (uint32_t)e->c, &along) && along != 1;
}

/* Says where in the local arrays of tiles the point at hand lies. */
static void find_in_tiles(emitter *e) {
  nest_builder *nb = e->nb;
  if (e->dot && nb->kept[e->dot].in) {
    l_val pitch = number(e, e->tn);
    struct kept *t = &nb->kept[e->dot];
    t->base = e->m < 0 || e->m == e->c ? nb->zero : times(e, e->past[e->m], pitch);
    if (e->n >= 0 && e->n != e->c) t->base = plus(e, t->base, e->past[e->n]);
    t->stride = e->c < 0 ? 0 : e->c == e->m ? pitch : nb->one;
  }
  for (k_val v = 1; e->s->s.turn && v < e->k->n; v++)
    if (e->s->needed[v] && nb->kept[v].in && is_turned(e, v)) {
      nb->kept[v].base = times(e, e->past[e->l->at[e->l->n - 2].axis], number(e, TURN_TILE + 1));
      nb->kept[v].stride = nb->one;
    }
}

/* Loads what a turned nest reads along another axis than that of its VEC, in the direction in which it lies, into local arrays. */
static bool load_turned(emitter *e) {
  nest_builder *nb = e->nb;
  int turned = e->l->at[e->l->n - 2].axis;
  l_val pitch = number(e, TURN_TILE + 1), step;
  for (k_val v = 1; v < e->k->n; v++) {
    if (!e->s->needed[v] || !is_turned(e, v)) continue;
    l_val local = nest_code(nb, (l_instr){.code = L_LOCAL,
                                          .flags = L_SHARED,
                                          .dtype = e->k->nodes[v].dtype,
                                          .a = number(e, TURN_TILE * (TURN_TILE + 1))});
    uint32_t mark = nest_mark(nb);
    nest_for(nb, nb->zero, e->length[e->c], &step);
    nb->at[e->c] = plus(e, e->start[e->c], step);
    nb->vec = turned;
    nb->at[turned] = e->start[turned];
    /* a load may have an earlier load as its alternative, which is in such an array, too */
    for (k_val u = 1; u < v; u++)
      if (nb->kept[u].in) nb->kept[u] = (struct kept){nb->kept[u].in, step, pitch};
    if (!nest_prepare(nb, v)) return false;
    uint32_t inner = nest_mark(nb);
    nest_vec(nb, e->length[turned]);
    l_val loaded = nest_value(nb, v);
    nest_code(nb, (l_instr){.code = L_STORE, .imm = -(int64_t)local, .h = loaded, .a = step, .b = pitch});
    nest_vec_end(nb, inner);
    nb->vec = -1;
    nest_end(nb, mark);
    nb->kept[v].in = -(int64_t)local;
  }
  nb->at[e->c] = e->start[e->c];
  nest_code(nb, (l_instr){.code = L_SYNC});
  return !nb->why;
}

static l_val stride_of(emitter *e, k_form f, int axis) {
  const k_kernel *k = e->k;
  const k_linear *l = &k->forms[f];
  for (uint32_t i = 0; i < l->n; i++) {
    const k_atom *a = &k->atoms[l->terms[i].atom];
    if (a->kind == ATOM_AXIS && (int)a->ref == axis) return nest_dim(e->nb, l->terms[i].coef);
  }
  return e->nb->zero;
}

static l_val tile_number(emitter *e) {
  l_val row = e->m < 0 ? e->nb->zero : nest_index(e->nb, L_IDIV, e->start[e->m], number(e, e->tm));
  l_val column = e->n < 0 ? e->nb->zero : nest_index(e->nb, L_IDIV, e->start[e->n], number(e, e->tn));
  return plus(e, times(e, row, ceil_div(e, extent(e, e->n), e->tn)), column);
}

/* Which tile of which row, and of how many pieces: the number of a tile's first partial result. */
static l_val tile_row(emitter *e) {
  l_val tiles = times(e, ceil_div(e, extent(e, e->m), e->tm), ceil_div(e, extent(e, e->n), e->tn));
  return plus(e, times(e, flat(e, e->rows, e->nb->zero), tiles), tile_number(e));
}

/* Is all that follows the product the store of its results, rows of which lie in one piece? Then the tile makes it. */
static bool stores_itself(const emitter *e, const k_val *jobs, uint32_t n) {
  const k_kernel *k = e->k;
  qn_dim coef;
  k_val store = 0;
  if (e->s->by->dot_room || e->cut >= 0) return false;
  for (uint32_t j = 0; j < n; j++) {
    if (jobs[j] == e->dot) continue;
    if (store) return false;
    store = jobs[j];
  }
  const k_node *s = &k->nodes[store];
  if (!store || s->code != K_STORE || s->a != e->dot || s->guard || k->buffers[s->buffer].mode != BUF_OUT) return false;
  for (int a = 0; a < (int)k->naxes; a++)
    if (!k_coef(k, s->at, (uint32_t)a, &coef) || (a == e->n && coef != 1)) return false;
  return true;
}

/* Adds the digits of an axis of y, which is windows, to a tile. */
static bool add_digits(emitter *e, l_tile *t, k_form y, int axis, bool deep) {
  nest_builder *nb = e->nb;
  nest_digit digits[L_TILE_DIGITS];
  int n = axis < 0 ? 0 : nest_digits(e->k, y, axis, digits);
  for (int i = 0; i < n; i++) {
    if (t->ndigits == L_TILE_DIGITS) return nest_refuse(nb, "windows of too many axes");
    t->digits[t->ndigits++] = (l_digit){.by = nest_dim(nb, digits[i].by),
                                        .most = digits[i].most ? nest_dim(nb, digits[i].most) : 0,
                                        .step = nest_dim(nb, digits[i].step),
                                        .deep = deep};
  }
  return true;
}

/* Emits the tile of a product at this instance, into a local; or with the effect `store`, which it then makes. */
static bool make_tile(emitter *e, k_val store) {
  nest_builder *nb = e->nb;
  const k_kernel *k = e->k;
  const k_node *d = &k->nodes[e->dot], *x = &k->nodes[nest_factor(k, d->a)], *y = &k->nodes[nest_factor(k, d->b)];
  l_tile t = {.x = x->buffer,
              .y = y->buffer,
              .tile_rows = (int32_t)e->tm,
              .tile_cols = (int32_t)e->tn,
              .rows = e->m < 0 ? nb->one : e->length[e->m],
              .cols = e->n < 0 ? nb->one : e->length[e->n],
              .depth = e->length[d->axis],
              .x_m = stride_of(e, x->at, e->m),
              .x_k = stride_of(e, x->at, d->axis),
              .y_k = stride_of(e, y->at, d->axis),
              .y_n = stride_of(e, y->at, e->n)};
  t.x_base = nest_form(nb, x->at);
  t.y_base = nest_form(nb, y->at);
  if (!add_digits(e, &t, y->at, d->axis, true) || !add_digits(e, &t, y->at, e->n, false)) return false;
  if (t.ndigits) {
    t.n_first = e->n < 0 ? nb->zero : nb->at[e->n];
    t.k_first = nb->at[d->axis];
  }
  const k_node *to = &k->nodes[store];
  if (store) {
    t.to = to->buffer;
    t.to_base = nest_form(nb, to->at);
    t.to_m = stride_of(e, to->at, e->m);
  } else {
    t.out = nest_code(nb, (l_instr){.code = L_LOCAL, .dtype = d->dtype, .a = e->room});
  }
  int tile = l_tile_add(nb->p, t);
  if (tile < 0) return nest_refuse(nb, lower_no_memory);
  l_val made = nb->last_load[x->buffer] = nb->last_load[y->buffer] =
      nest_code(nb, (l_instr){.code = L_TILE, .imm = tile});
  if (store) {
    if (!nb->first_store[to->buffer]) nb->first_store[to->buffer] = made;
    return !nb->why;
  }
  nb->kept[e->dot].in = -(int64_t)t.out;
  find_in_tiles(e);
  return !nb->why;
}

/* Stores the tile of a piece of the depth as the partial results that it is. */
static bool store_tile(emitter *e) {
  nest_builder *nb = e->nb;
  l_val size = number(e, e->tm * e->tn), step, local = nb->zero;
  const partials *p = &e->of[e->dot].part;
  l_val at = times(e, plus(e, times(e, tile_row(e), e->slabs), e->slab), size);
  uint32_t mark = nest_mark(nb);
  bool rows = e->m >= 0 && e->n >= 0;
  if (rows) {
    nest_for(nb, nb->zero, e->length[e->m], &step);
    local = times(e, step, number(e, e->tn));
    at = plus(e, at, local);
  }
  uint32_t inner = nest_mark(nb);
  nest_vec(nb, e->n >= 0 ? e->length[e->n] : e->m >= 0 ? e->length[e->m] : nb->one);
  l_val v = nest_code(
      nb,
      (l_instr){
          .code = L_LOAD, .dtype = e->k->nodes[e->dot].dtype, .imm = nb->kept[e->dot].in, .a = local, .b = nb->one});
  nest_code(nb, (l_instr){.code = L_STORE, .imm = p->buffer, .h = v, .a = at, .b = nb->one});
  nest_vec_end(nb, inner);
  if (rows) nest_end(nb, mark);
  return !nb->why;
}

/* Merges the pieces of a tile into a local. Elements beyond the tile's edges are merged, too, and ignored. */
static bool merge_tile(emitter *e) {
  nest_builder *nb = e->nb;
  uint8_t dtype = e->k->nodes[e->dot].dtype;
  l_val size = number(e, e->tm * e->tn);
  bool several = e->tm * e->tn > 1;
  l_val out = nest_code(nb, (l_instr){.code = L_LOCAL, .dtype = dtype, .a = size});
  make_acc(e, e->dot, several ? size : 0);
  uint32_t mark = nest_mark(nb);
  merge(e, e->dot, &e->of[e->dot].part, tile_row(e), e->slabs, nb->zero, e->slabs, 0);
  if (several) nest_vec(nb, size);
  l_val f = nest_code(nb, (l_instr){.code = L_FINISH, .dtype = dtype, .a = nb->acc[e->dot]});
  nest_code(nb, (l_instr){.code = L_STORE, .imm = -(int64_t)out, .h = f, .a = nb->zero, .b = several ? nb->one : 0});
  if (several) nest_vec_end(nb, mark);
  nb->acc[e->dot] = 0;
  nb->kept[e->dot].in = -(int64_t)out;
  find_in_tiles(e);
  return !nb->why;
}

/* ---- loops -------------------------------------------------------------------------------------------------------------------------- */

typedef struct stager {
  const uint8_t *stage;
  uint8_t most;
} stager;

static void latest(void *ctx, k_val v) {
  stager *g = ctx;
  if (g->stage[v] > g->most) g->most = g->stage[v];
}

/* For how many results of reductions over an axis, one after the other, each job waits; of other nodes, the same. */
static uint8_t *stages_of(emitter *e, int axis, const k_val *jobs, uint32_t n, int *last) {
  const k_kernel *k = e->k;
  uint8_t *stage = room(e, k->n, 1), *own = room(e, k->n, 1);
  *last = 0;
  if (!stage || !own) return NULL;
  for (uint32_t i = 0; i < n; i++) own[jobs[i]] = k_reduces(&k->nodes[jobs[i]], axis);
  for (k_val v = 1; v < k->n; v++) {
    stager g = {stage, 0};
    if (e->s->needed[v]) k_each_operand(k, v, latest, &g);
    if (own[v] && g.most == UINT8_MAX - 1) {
      nest_refuse(e->nb, "too many passes");
      return NULL;
    }
    stage[v] = (uint8_t)(g.most + own[v]);
  }
  for (uint32_t i = 0; i < n; i++) {
    stage[jobs[i]] = (uint8_t)(stage[jobs[i]] - own[jobs[i]]); /* that of the job itself */
    if (stage[jobs[i]] > *last) *last = stage[jobs[i]];
  }
  return stage;
}

/* Does the jobs at a point: all their loops are open. */
static bool at_point(emitter *e, const k_val *jobs, uint32_t n) {
  nest_builder *nb = e->nb;
  for (uint32_t i = 0; i < n && !nb->why; i++) {
    k_val v = jobs[i];
    const k_node *node = &e->k->nodes[v];
    if (!k_is_effect(node)) {
      if (!nb->in_vec && keeps_rows(e, v) && !e->after) {
        l_val x = nest_value(nb, node->a), row = flat(e, e->rows, nb->zero);
        if (!x) return false;
        l_val at = plus(e, times(e, row, extent(e, e->cut)), nb->at[e->cut]);
        nest_code(nb, (l_instr){.code = L_STORE, .imm = e->of[v].rows, .h = x, .a = at});
      } else if (!push(e, v)) {
        return false;
      }
      continue;
    }
    /* An effect that is not made along an axis of the PAR is made where that is at 0. */
    l_val skip = 0;
    for (int p = 0; p < e->l->n && e->l->at[p].role == LOOP_PAR && !nb->in_vec; p++)
      if (!axis_in(node->axes, e->l->at[p].axis))
        skip = skip ? plus(e, skip, nb->at[e->l->at[p].axis]) : nb->at[e->l->at[p].axis];
    uint32_t mark = nest_mark(nb);
    if (skip) {
      nest_code(nb, (l_instr){.code = L_IF, .a = skip});
      nest_code(nb, (l_instr){.code = L_ELSE});
    }
    if (!nest_effect(nb, v)) return false;
    if (skip) nest_end(nb, mark);
  }
  return !nb->why;
}

/* Goes through the jobs in a FOR. `again`: will a later pass ask for the results? */
static bool for_pass(emitter *e, int i, const k_val *jobs, uint32_t n, bool again) {
  nest_builder *nb = e->nb;
  int a = e->l->at[i].axis;
  if (e->dry) {
    for (uint32_t j = 0; j < n; j++)
      if (again && k_reduces(&e->k->nodes[jobs[j]], a) && many(e, jobs[j])) e->keeps[jobs[j]] = true;
    return level(e, i + 1, jobs, n);
  }
  if (!open_accs(e, a, jobs, n)) return false;
  uint32_t mark = nest_mark(nb);
  int64_t few;
  nest_for(nb, nb->zero, e->length[a], &e->past[a]);
  nb->at[a] = plus(e, e->start[a], e->past[a]);
  if (!dim_is_const(e->k->dims, e->k->axes[a].extent, &few) || few > SHORT_AXIS)
    nest_code(nb, (l_instr){.code = L_POLL});
  find_in_tiles(e);
  if (!level(e, i + 1, jobs, n)) return false;
  nest_end(nb, mark);
  nb->at[a] = e->start[a];
  for (uint32_t j = 0; j < n; j++) {
    k_val v = jobs[j];
    if (!k_reduces(&e->k->nodes[v], a)) {
      nb->acc[v] = 0;
      continue;
    }
    if (is_merged(e, v) && !e->after) {
      l_val tile = many(e, v) && loop_of(e->l, LOOP_PAR, e->c) ? e->start[e->c] : 0;
      l_val piece = plus(e, times(e, flat(e, e->rows, nb->zero), e->slabs), e->slab);
      if (!keeps_rows(e, v)) partial(e, L_PARTIAL, v, &e->of[v].part, piece, tile);
      nb->acc[v] = 0;
    } else if (!many(e, v)) {
      finish(e, v);
    } else if (e->local[v] && again) {
      uint32_t inner = nest_mark(nb);
      nest_vec(nb, e->length[e->c]);
      keep_in(e, v, nest_code(nb, (l_instr){.code = L_FINISH, .dtype = e->k->nodes[v].dtype, .a = nb->acc[v]}));
      nest_vec_end(nb, inner);
      is_kept(e, v);
    }
  }
  return !nb->why;
}

/* Goes through the jobs in a VEC, and keeps what later passes want. */
static bool vec_pass(emitter *e, const k_val *jobs, uint32_t n, const uint8_t *keep, int pass) {
  nest_builder *nb = e->nb;
  int c = e->c;
  if (e->dry) return true;
  nb->vec = c;
  if (!open_accs(e, c, jobs, n)) return false;
  find_in_tiles(e);
  for (uint32_t i = 0; i < n; i++) {
    const k_node *node = &e->k->nodes[jobs[i]];
    if (k_is_effect(node) ? !nest_prepare_effect(nb, jobs[i])
                          : !nest_prepare(nb, node->a) || (node->b && !nest_prepare(nb, node->b)))
      return false;
  }
  uint32_t mark = nest_mark(nb);
  nest_vec(nb, e->length[c]);
  if (!at_point(e, jobs, n)) return false;
  for (k_val v = 1; v < e->k->n; v++) {
    if (keep[v] != pass + 1) continue;
    l_val value = nest_value(nb, v);
    if (!value) return false;
    keep_in(e, v, value);
  }
  nest_vec_end(nb, mark);
  nb->vec = -1;
  for (k_val v = 1; v < e->k->n; v++)
    if (keep[v] == pass + 1) is_kept(e, v);
  for (uint32_t i = 0; i < n; i++) {
    k_val v = jobs[i];
    if (!k_reduces(&e->k->nodes[v], c)) continue;
    if (!is_merged(e, v) || e->after) {
      finish(e, v);
      continue;
    }
    partial(e, L_PARTIAL, v, &e->of[v].part, plus(e, times(e, flat(e, e->rows, nb->zero), e->slabs), e->slab), 0);
    nb->acc[v] = 0;
  }
  return !nb->why;
}

/* Selects the jobs of a pass: `in` the loop, or before it. Row results that an earlier pass of a FOR has had are reduced again. NULL when memory
 * is short. */
static k_val *jobs_of(emitter *e, const sched_loop *loop, const k_val *jobs, uint32_t n, const uint8_t *stage, int pass,
                      bool in, uint32_t *count) {
  int axis = loop->axis;
  bool later = in && pass && loop->role == LOOP_FOR;
  k_val *now = room(e, n, sizeof *now);
  bool *seen = later ? room(e, e->k->n, sizeof *seen) : NULL;
  *count = 0;
  if (!now || (later && !seen)) return NULL;
  for (uint32_t j = 0; j < n && seen; j++)
    if (stage[jobs[j]] == pass && axis_in(job_axes(e->k, jobs[j]), axis)) nest_reach(e->s, axis, jobs[j], seen);
  for (uint32_t j = 0; j < n; j++) {
    k_val v = jobs[j];
    const k_node *node = &e->k->nodes[v];
    if (axis_in(job_axes(e->k, v), axis) != in) continue;
    if (stage[v] == pass || (seen && seen[v] && !k_is_effect(node) && node->axis != axis && stage[v] < pass))
      now[(*count)++] = v;
  }
  return now;
}

/* Does jobs inside loops i and later ones. */
static bool level(emitter *e, int i, const k_val *jobs, uint32_t n) {
  nest_builder *nb = e->nb;
  if (nb->why) return false;
  if (i == e->l->n) return e->dry || at_point(e, jobs, n);
  const sched_loop *loop = &e->l->at[i];
  uint32_t inside = 0;
  for (uint32_t j = 0; j < n; j++) inside += axis_in(job_axes(e->k, jobs[j]), loop->axis);
  if (!inside) return level(e, i + 1, jobs, n);
  if (loop->role == LOOP_TILE) {
    k_val *rest = room(e, n, sizeof *rest);
    uint32_t count = 0;
    if (!rest) return false;
    for (uint32_t j = 0; j < n && stores_itself(e, jobs, n); j++)
      if (jobs[j] != e->dot) return e->dry || make_tile(e, jobs[j]);
    if (!e->dry && !make_tile(e, 0)) return false;
    if (e->cut == loop->axis) return e->dry || store_tile(e);
    for (uint32_t j = 0; j < n; j++)
      if (jobs[j] != e->dot) rest[count++] = jobs[j];
    return level(e, i + 1, rest, count);
  }
  int last;
  uint8_t *stage = stages_of(e, loop->axis, jobs, n, &last);
  if (!stage) return false;
  uint8_t *keep = loop->role == LOOP_VEC ? plan_keep(e, jobs, n, stage, last) : NULL;
  if (loop->role == LOOP_VEC && !keep) return false;
  for (int pass = 0; pass <= last; pass++)
    for (int in = 0; in < 2; in++) {
      uint32_t count;
      k_val *now = jobs_of(e, loop, jobs, n, stage, pass, in, &count);
      bool ok = now != NULL;
      if (ok && count)
        ok = !in                      ? level(e, i + 1, now, count)
             : loop->role == LOOP_VEC ? vec_pass(e, now, count, keep, pass)
                                      : for_pass(e, i, now, count, pass < last);
      if (!ok) return false;
    }
  for (k_val v = 1; v < e->k->n && !e->dry; v++) {
    if (keep && keep[v]) nb->kept[v].in = 0;
    const k_node *node = &e->k->nodes[v];
    if (node->code == K_SCAN && node->axis == loop->axis) nb->acc[v] = 0;
  }
  return !nb->why;
}

/* ---- phases ------------------------------------------------------------------------------------------------------------------------- */

/* Makes the jobs of a phase that makes `ends` (by node): these, and the reductions that they need. Sets seen[node] for all that is needed. */
static k_val *jobs_for(emitter *e, const bool *ends, bool *seen, uint32_t *n) {
  const k_kernel *k = e->k;
  k_val *jobs = room(e, k->n, sizeof *jobs);
  *n = 0;
  if (!jobs) return NULL;
  for (k_val v = 1; v < k->n; v++)
    if (ends[v]) nest_reach(e->s, e->cut, v, seen);
  for (k_val v = 1; v < k->n; v++) {
    bool reduces = seen[v] && k_folds(&k->nodes[v]) && k->nodes[v].code != K_SCAN && !is_merged(e, v);
    if (ends[v] || reduces) jobs[(*n)++] = v;
  }
  return jobs;
}

/* Sets what is known of results of cut reductions that an earlier phase has finished. */
static void read_results(emitter *e, const bool *seen, int rank) {
  nest_builder *nb = e->nb;
  l_val row = 0;
  for (k_val v = 1; v < e->k->n; v++) {
    if (!seen[v] || !is_merged(e, v) || e->rank[v] > rank || e->of[v].result < 0) continue;
    if (!row) row = flat(e, e->rows, nb->zero);
    if (axis_in(e->k->nodes[v].axes, e->c))
      nb->kept[v] = (struct kept){e->of[v].result, plus(e, times(e, row, extent(e, e->c)), e->start[e->c]), nb->one};
    else
      nest_set_value(
          nb, v,
          nest_code(nb, (l_instr){.code = L_LOAD, .dtype = e->k->nodes[v].dtype, .imm = e->of[v].result, .a = row}));
  }
}

/* Begins the body of a phase: finds out what is kept, and makes locals. */
static bool begin_body(emitter *e, int first, const k_val *jobs, uint32_t n) {
  memset(e->keeps, 0, e->k->n);
  e->dry = true;
  bool ok = level(e, first, jobs, n);
  e->dry = false;
  for (k_val v = 1; ok && v < e->k->n; v++) {
    const sched_loop *tile = e->keeps[v] ? loop_of(e->l, LOOP_PAR, e->c) : NULL;
    l_val size = e->keeps[v] ? (tile ? number(e, tile->size) : extent(e, e->c)) : 0;
    e->local[v] = size ? nest_code(e->nb, (l_instr){.code = L_LOCAL, .dtype = e->k->nodes[v].dtype, .a = size}) : 0;
  }
  return ok && (!e->s->s.turn || load_turned(e));
}

static bool end_phase(emitter *e) {
  nest_forget(e->nb, 0);
  for (k_val v = 1; v < e->k->n; v++) {
    e->nb->acc[v] = 0;
    e->nb->kept[v].in = 0;
  }
  l_end(e->nb->p);
  return !e->nb->why;
}

static int pars_of(const loop_list *l) {
  int n = 0;
  while (n < l->n && l->at[n].role == LOOP_PAR) n++;
  return n;
}

static int64_t share(const emitter *e, const loop_list *l) {
  int64_t all = k_points(e->k, e->s->axes), instances = hint_of(e, l);
  if (loop_of(l, LOOP_TILE, e->dot ? e->k->nodes[e->dot].axis : -1)) all /= 8;
  return instances > 0 ? all / instances : all;
}

static bool main_phase(emitter *e, const bool *ends, int rank) {
  uint32_t n;
  bool *seen = room(e, e->k->n, sizeof *seen);
  k_val *jobs = seen ? jobs_for(e, ends, seen, &n) : NULL;
  if (!jobs) return false;
  const loop_list *l = &e->s->s.main;
  begin(e, l, 0, share(e, l));
  if (e->cut >= 0) read_results(e, seen, rank);
  return begin_body(e, pars_of(l), jobs, n) && level(e, pars_of(l), jobs, n) && end_phase(e);
}

/* Emits a phase in which each instance merges some partial results into one, a subtree of the whole tree. */
static bool merge_groups(emitter *e, const bool *merges, const loop_list *l) {
  l_val size = number(e, e->s->s.group), groups = ceil_div(e, e->slabs, e->s->s.group);
  e->after = true;
  l_val i = begin(e, l, groups, e->s->s.group * ORDER_LANES);
  l_val from = times(e, i, size), to = nest_index(e->nb, L_IMIN, e->slabs, plus(e, from, size)),
        row = flat(e, e->rows, e->nb->zero);
  for (k_val v = 1; v < e->k->n; v++) {
    if (!merges[v]) continue;
    make_acc(e, v, 0);
    merge(e, v, &e->of[v].part, row, e->slabs, from, to, 0);
    partial(e, L_PARTIAL, v, &e->of[v].group, plus(e, times(e, row, groups), i), 0);
  }
  return end_phase(e);
}

/* Must the result of v be stored by the phases that merge reductions of a rank, since later phases read it? */
static bool is_stored(const emitter *e, k_val v, int rank) {
  return e->s->needed[v] && is_merged(e, v) && e->of[v].result >= 0 && e->rank[v] == rank + 1;
}

/* Emits the phase that merges reductions of a rank and makes `ends`: all that follows the pieces, or only what is along c, or the rest. */
typedef enum part { PART_ALL, PART_ALONG, PART_REST } part;
static bool after_phase(emitter *e, const loop_list *l, const bool *ends, int rank, part part) {
  nest_builder *nb = e->nb;
  const k_kernel *k = e->k;
  uint32_t n;
  bool *seen = room(e, k->n, sizeof *seen), *merges = room(e, k->n, sizeof *merges);
  k_val *jobs = seen && merges ? jobs_for(e, ends, seen, &n) : NULL;
  if (!jobs) return false;
  bool grouped = e->s->s.group > 0, any = false;
  int along = vec_axis(l);
  for (k_val v = 1; v < k->n; v++) {
    bool stored =
        is_stored(e, v, rank) && (part == PART_ALL || axis_in(k->nodes[v].axes, along) == (part == PART_ALONG));
    merges[v] = (seen[v] || stored) && is_merged(e, v) && e->rank[v] == rank + 1;
    if (merges[v]) grouped &= !axis_in(k->nodes[v].axes, along) && !keeps_rows(e, v) && v != e->dot;
    any |= merges[v];
  }
  grouped &= any;
  if (grouped && !merge_groups(e, merges, l)) return false;
  e->after = true;
  begin(e, l, 0, e->s->by->merge_tile * e->s->by->slabs);
  if (e->dot && !merge_tile(e)) return false;
  read_results(e, seen, rank);
  if (!begin_body(e, pars_of(l), jobs, n)) return false;
  l_val row = flat(e, e->rows, nb->zero), groups = grouped ? ceil_div(e, e->slabs, e->s->s.group) : 0;
  for (k_val v = 1; v < k->n && !nb->why; v++) {
    if (!merges[v] || v == e->dot) continue;
    make_acc(e, v, many(e, v) ? e->width : 0);
    if (keeps_rows(e, v)) {
      uint32_t mark = nest_mark(nb);
      l_val base = times(e, row, extent(e, e->cut));
      nest_vec(nb, extent(e, e->cut));
      l_val x = nest_code(
          nb,
          (l_instr){
              .code = L_LOAD, .dtype = k->nodes[k->nodes[v].a].dtype, .imm = e->of[v].rows, .a = base, .b = nb->one});
      nest_code(nb, (l_instr){.code = L_PUSH, .a = nb->acc[v], .b = x});
      nest_vec_end(nb, mark);
    } else {
      l_val count = grouped ? groups : e->slabs;
      merge(e, v, grouped ? &e->of[v].group : &e->of[v].part, row, count, nb->zero, count,
            many(e, v) && e->start[e->c] != nb->zero ? e->start[e->c] : 0);
    }
    int to = is_stored(e, v, rank) && (part == PART_ALL || many(e, v) == (part == PART_ALONG)) ? e->of[v].result : -1;
    if (!many(e, v)) {
      l_val f = finish(e, v);
      if (to >= 0) nest_code(nb, (l_instr){.code = L_STORE, .imm = to, .h = f, .a = row});
    } else if (to >= 0) {
      uint32_t mark = nest_mark(nb);
      l_val base = plus(e, times(e, row, extent(e, e->c)), e->start[e->c]);
      nest_vec(nb, e->length[e->c]);
      l_val f = nest_code(nb, (l_instr){.code = L_FINISH, .dtype = k->nodes[v].dtype, .a = nb->acc[v]});
      nest_code(nb, (l_instr){.code = L_STORE, .imm = to, .h = f, .a = base, .b = nb->one});
      nest_vec_end(nb, mark);
    }
  }
  bool ok = !nb->why && level(e, pars_of(l), jobs, n) && end_phase(e);
  e->after = false;
  return ok;
}

/* Emits what follows the pieces: jobs of results along c and single ones are apart where c is cut. */
static bool merge_phases(emitter *e, const bool *ends, int rank) {
  const loop_list *l = &e->s->s.after;
  int c = vec_axis(l);
  const sched_loop *tile = c < 0 ? NULL : loop_of(l, LOOP_PAR, c);
  if (!tile || e->dot) return after_phase(e, l, ends, rank, PART_ALL);
  for (int alone = 0; alone < 2; alone++) {
    bool *some = room(e, e->k->n, sizeof *some), any = false;
    loop_list whole = *l;
    if (!some) return false;
    for (k_val v = 1; v < e->k->n; v++) any |= some[v] = ends[v] && axis_in(job_axes(e->k, v), c) != alone;
    for (k_val v = 1; v < e->k->n; v++) any |= is_stored(e, v, rank) && axis_in(e->k->nodes[v].axes, c) != alone;
    if (!any) continue;
    whole.n = 0;
    for (int i = 0; i < l->n; i++)
      if (!alone || &l->at[i] != tile) whole.at[whole.n++] = l->at[i];
    if (!after_phase(e, alone ? &whole : l, some, rank, alone ? PART_REST : PART_ALONG)) return false;
  }
  return true;
}

static bool find_product(emitter *e) {
  const k_kernel *k = e->k;
  const loop_list *l = &e->s->s.main;
  e->m = e->n = -1;
  e->tm = e->tn = 1;
  for (int i = 0; i < l->n; i++) {
    if (l->at[i].role != LOOP_TILE) continue;
    for (k_val v = 1; v < k->n; v++)
      if (e->s->needed[v] && k_reduces(&k->nodes[v], l->at[i].axis)) e->dot = v;
  }
  if (!e->dot) return true;
  k_mask x = k->nodes[nest_factor(k, k->nodes[e->dot].a)].axes;
  for (int i = 0; i < l->n; i++) {
    int a = l->at[i].axis;
    if (l->at[i].role != LOOP_FOR && l->at[i].role != LOOP_VEC) continue;
    const sched_loop *tile = loop_of(l, LOOP_PAR, a);
    *(axis_in(x, a) ? &e->m : &e->n) = a;
    *(axis_in(x, a) ? &e->tm : &e->tn) = tile->size;
  }
  return true;
}

bool nest_emit(nest_builder *nb, const nest *s, int64_t grain) {
  const k_kernel *k = s->k;
  const loop_list *l = &s->s.main;
  emitter e = {.nb = nb, .k = k, .s = s, .grain = grain, .cut = nest_cut(s), .c = vec_axis(l)};
  if (nb->body) { /* after the first nest sizes are computed in the phase */
    nest_code(nb, (l_instr){.code = L_PHASE});
    nb->phase_open = true;
  }
  e.rank = room(&e, k->n, 1);
  e.keeps = room(&e, k->n, 1);
  e.local = room(&e, k->n, sizeof *e.local);
  bool *ends = room(&e, k->n, sizeof *ends);
  if (!e.rank || !e.keeps || !e.local || !ends || !find_product(&e)) return false;
  nest_ranks(s, e.cut, e.rank);
  int last = 0;
  for (k_val v = 1; v < k->n; v++) {
    if (s->needed[v] && e.rank[v] > last) last = e.rank[v];
  }
  if (e.cut < 0) {
    for (uint32_t i = 0; i < s->s.effects; i++) ends[s->effects[i]] = true;
    return main_phase(&e, ends, 0);
  }
  k_mask results = 0; /* axes along which results of cut reductions vary */
  for (k_val v = 1; v < k->n; v++)
    if (s->needed[v] && is_merged(&e, v)) results |= k->nodes[v].axes;
  for (int i = 0; i < l->n; i++)
    if (l->at[i].role == LOOP_PAR && l->at[i].axis != e.cut && l->at[i].axis != e.c && l->at[i].axis != e.m &&
        l->at[i].axis != e.n && axis_in(results, l->at[i].axis))
      e.rows |= axis_bit(l->at[i].axis);
  if (!make_scratch(&e)) return false;
  for (int rank = 0; rank <= last; rank++)
    for (int after = 0; after < 2; after++) {
      bool any = false;
      memset(ends, 0, k->n * sizeof *ends);
      for (k_val v = 1; v < k->n; v++) {
        if (!s->needed[v]) continue;
        bool effect = k_is_effect(&k->nodes[v]), along = axis_in(job_axes(k, v), e.cut);
        bool is = effect && along == !after && (e.rank[v] == rank + after || (after && rank == 0 && e.rank[v] == 0));
        is |= !after && !effect && is_merged(&e, v) && e.rank[v] == rank + 1;
        ends[v] = is;
        any |= is || (after && !effect && is_merged(&e, v) && e.rank[v] == rank + 1);
      }
      if (any && !(after ? merge_phases(&e, ends, rank) : main_phase(&e, ends, rank))) return false;
    }
  return !nb->why;
}
