/* Building nests: the loops of each shape (schedule.c), filled in by sched_build.c. */
#include <string.h>

#include "jit/kernel/lower.h"
#include "jit/kernel/sched_impl.h"

/* ---- instances ----------------------------------------------------------------------------------------------------------- */

typedef struct instance {
  l_val row;   /* the number of the point of P */
  l_val extra; /* the number of the tile, slab or block; 0 when there is only one */
} instance;

static l_val extent(nest_builder *nb, int axis) { return axis < 0 ? nb->one : nest_dim(nb, nb->k->axes[axis].extent); }

static l_val plus(nest_builder *nb, l_val a, l_val b) { return nest_index(nb, L_IADD, a, b); }
static l_val times(nest_builder *nb, l_val a, l_val b) { return nest_index(nb, L_IMUL, a, b); }
/* The number of element b of row a, where a row has `count` elements. */
static l_val flat(nest_builder *nb, l_val a, l_val count, l_val b) { return plus(nb, times(nb, a, count), b); }

static l_val ceil_div(nest_builder *nb, l_val n, int64_t by) {
  return nest_index(nb, L_IDIV, plus(nb, n, nest_number(nb, by - 1)), nest_number(nb, by));
}

static l_val points(nest_builder *nb, k_mask axes) {
  l_val n = nb->one;
  for (int a = 0; a < (int)nb->k->naxes; a++)
    if (axis_in(axes, a)) n = times(nb, n, extent(nb, a));
  return n;
}

/* The least number of instances for a thread, a power of two, where an instance has `work` elements. */
static int64_t grain_of(int64_t grain, int64_t work) {
  int64_t g = 1;
  while (g < grain && g * (work < 1 ? 1 : work) < grain) g *= 2;
  return g;
}

/* Emits PHASE and PAR over the axes of P times `extra` (0: 1), whose number varies fastest, and sets the index of each axis of P. `work`: the
 * elements of an instance. Returns the numbers of the instance. */
static instance begin(nest_builder *nb, k_mask par, l_val extra, int64_t grain, int64_t work) {
  instance i = {0};
  if (!nb->phase_open) nest_code(nb, (l_instr){.code = L_PHASE});
  nb->phase_open = false;
  nb->body = true;
  l_val n = points(nb, par);
  if (extra) n = times(nb, n, extra);
  l_val loop = nest_code(nb, (l_instr){.code = L_PAR, .a = n, .imm = grain_of(grain, work)});
  l_val at = nb->zero;
  if (par || extra) at = nest_code(nb, (l_instr){.code = L_VAR, .a = loop});
  if (extra && par) {
    i.extra = nest_index(nb, L_IMOD, at, extra);
    at = nest_index(nb, L_IDIV, at, extra);
  } else if (extra) {
    i.extra = at;
    at = nb->zero;
  }
  i.row = at;
  k_mask left = par;
  for (int a = (int)nb->k->naxes - 1; a >= 0; a--) {
    if (!axis_in(left, a)) continue;
    left &= ~axis_bit(a);
    nb->at[a] = left ? nest_index(nb, L_IMOD, at, extent(nb, a)) : at;
    if (left) at = nest_index(nb, L_IDIV, at, extent(nb, a));
  }
  return i;
}

static void end(nest_builder *nb) {
  nest_forget(nb, 0);
  l_end(nb->p);
}

static int64_t work_of(const nest *s, int64_t instances) {
  int64_t all = k_points(s->k, s->axes);
  return instances > 0 ? all / instances : all;
}

/* How many elements of the VEC's axis an instance of a plain nest has. */
static int64_t plain_tile(const nest *s) {
  int64_t size = s->by->plain_most, all = k_points(s->k, s->axes);
  while (size > s->by->plain_least && all / size < s->by->instances) size /= 2;
  return size;
}

/* Sets *start and *len to the first index and length of tile number `tile` of an axis; with 0 to those of the whole axis. */
static void tile_of(nest_builder *nb, int axis, l_val tile, int64_t size, l_val *start, l_val *len) {
  *start = nb->zero;
  *len = extent(nb, axis);
  if (!tile) return;
  l_val by = nest_number(nb, size);
  *start = times(nb, tile, by);
  *len = nest_index(nb, L_IMIN, by, nest_index(nb, L_ISUB, *len, *start));
}

/* ---- passes ---------------------------------------------------------------------------------------------------------------- */

static l_val make_acc(nest_builder *nb, k_val v, l_val results, int over) {
  const k_node *n = &nb->k->nodes[v];
  uint8_t sub = n->code == K_DOT ? KOP_add : n->sub;
  l_val acc = nest_code(nb, (l_instr){.code = L_ACC,
                                      .sub = sub,
                                      .dtype = nb->k->nodes[n->a].dtype,
                                      .imm = nest_order(n),
                                      .a = results,
                                      .b = extent(nb, over)});
  nb->acc[v] = acc;
  return acc;
}

static void close_accs(nest_builder *nb) {
  for (k_val v = 1; v < nb->k->n; v++) nb->acc[v] = 0;
}

static bool is_arg(const k_node *n) { return n->code == K_REDUCE && kop_is_arg(n->sub); }

static bool push(nest_builder *nb, k_val v, l_val k) {
  const k_node *n = &nb->k->nodes[v];
  l_val a = nest_value(nb, n->a), b = n->code == K_DOT ? nest_value(nb, n->b) : 0;
  if (!a || (n->code == K_DOT && !b)) return false;
  nest_code(nb, (l_instr){.code = L_PUSH, .a = nb->acc[v], .b = a, .d = b, .c = k});
  return true;
}

typedef struct scans {
  nest_builder *nb;
  const nest *s;
  bool *seen; /* by node */
} scans;

/* Emits the accumulator of v if v is a scan over c that this pass computes. */
static void open_scan(void *ctx, k_val v) {
  scans *x = ctx;
  const k_node *n = &x->nb->k->nodes[v];
  if (x->seen[v] || !axis_in(n->axes, x->s->c) || x->nb->kept[v].local || x->nb->value[v]) return;
  x->seen[v] = true;
  if (n->code == K_SCAN && n->axis == x->s->c && !x->nb->acc[v]) make_acc(x->nb, v, 0, x->s->c);
  k_each_operand(x->nb->k, v, open_scan, x);
}

/* Emits the jobs of a stage that do not vary along c. `once`: a condition under which effects are made; 0: always. */
static bool scalar_jobs(nest_builder *nb, const nest *s, const job_list *l, int stage, l_val once) {
  for (uint32_t i = 0; i < l->n && !nb->why; i++) {
    const job *j = &l->jobs[i];
    if (j->along_c || j->stage != stage) continue;
    if (j->kind == JOB_REDUCE_R) {
      if (!push(nb, j->v, is_arg(&nb->k->nodes[j->v]) ? nb->at[s->r] : 0)) return false;
      continue;
    }
    /* An effect that does not run over an axis of P is made where that axis is at 0. */
    l_val skip = once;
    for (int a = 0; a < (int)nb->k->naxes; a++)
      if (axis_in(s->par & ~nb->k->nodes[j->v].axes, a)) skip = skip ? plus(nb, skip, nb->at[a]) : nb->at[a];
    uint32_t mark = nest_mark(nb);
    if (skip) {
      nest_code(nb, (l_instr){.code = L_IF, .a = skip});
      nest_code(nb, (l_instr){.code = L_ELSE});
    }
    if (!nest_effect(nb, j->v)) return false;
    if (skip) nest_end(nb, mark);
  }
  return !nb->why;
}

static bool vector_jobs(nest_builder *nb, nest *s, const job_list *l, int stage, l_val start, l_val len, l_val first,
                        const l_val *locals) {
  bool any = false;
  for (uint32_t i = 0; i < l->n; i++) any |= l->jobs[i].along_c && l->jobs[i].stage == stage;
  if (!any) return true;
  nb->vec = s->c;
  nb->at[s->c] = start;
  scans x = {nb, s, arena_alloc(nb->arena, nb->k->n)};
  if (!x.seen) return nest_refuse(nb, lower_no_memory);
  for (uint32_t i = 0; i < l->n && !nb->why; i++) {
    const job *j = &l->jobs[i];
    if (!j->along_c || j->stage != stage) continue;
    if (j->kind == JOB_REDUCE_C) make_acc(nb, j->v, 0, s->c);
    k_each_operand(nb->k, j->v, open_scan, &x);
  }
  for (uint32_t i = 0; i < l->n && !nb->why; i++) {
    const job *j = &l->jobs[i];
    const k_node *n = &nb->k->nodes[j->v];
    if (!j->along_c || j->stage != stage) continue;
    if (j->kind == JOB_EFFECT ? !nest_prepare_effect(nb, j->v)
                              : !nest_prepare(nb, n->a) || (n->b && !nest_prepare(nb, n->b)))
      return false;
  }
  uint32_t mark = nest_mark(nb);
  nest_vec(nb, len);
  for (uint32_t i = 0; i < l->n && !nb->why; i++) {
    const job *j = &l->jobs[i];
    if (!j->along_c || j->stage != stage) continue;
    l_val k = j->kind == JOB_REDUCE_C ? first : is_arg(&nb->k->nodes[j->v]) ? nb->at[s->r] : 0;
    if (j->kind == JOB_EFFECT ? !nest_effect(nb, j->v) : !push(nb, j->v, k)) return false;
  }
  for (k_val v = 1; locals && v < nb->k->n; v++) {
    if (s->keep[v] != stage + 1 || !locals[v]) continue;
    l_val value = nest_value(nb, v);
    if (!value) return false;
    nest_code(nb, (l_instr){.code = L_STORE, .imm = -(int64_t)locals[v], .h = value, .a = nb->zero, .b = nb->one});
  }
  nest_vec_end(nb, mark);
  nb->vec = -1;
  for (k_val v = 1; locals && v < nb->k->n; v++)
    if (s->keep[v] == stage + 1 && locals[v]) {
      nb->kept[v].local = locals[v];
      nb->kept[v].base = nb->zero;
      nb->kept[v].stride = nb->one;
    }
  return !nb->why;
}

static l_val finish(nest_builder *nb, k_val v) {
  l_val value = nest_code(nb, (l_instr){.code = L_FINISH, .dtype = nb->k->nodes[v].dtype, .a = nb->acc[v]});
  nest_set_value(nb, v, value);
  return value;
}

static void finish_c(nest_builder *nb, const job_list *l, int stage) {
  for (uint32_t i = 0; i < l->n; i++)
    if (l->jobs[i].kind == JOB_REDUCE_C && l->jobs[i].stage == stage) finish(nb, l->jobs[i].v);
}

/* Emits all passes of a row, or of its tile [start, start + len) if nothing is reduced over c. */
static bool row(nest_builder *nb, nest *s, const job_list *l, l_val start, l_val len, l_val once, const l_val *locals) {
  for (int stage = 0; stage < l->stages && !nb->why; stage++) {
    if (!scalar_jobs(nb, s, l, stage, once) || !vector_jobs(nb, s, l, stage, start, len, 0, locals)) return false;
    finish_c(nb, l, stage);
  }
  for (k_val v = 1; v < nb->k->n; v++) {
    nb->kept[v].local = 0;
    const k_node *n = &nb->k->nodes[v];
    if (k_folds(n) && n->axis == s->c) nb->acc[v] = 0;
  }
  return !nb->why;
}

/* Emits the locals for values that a row keeps between passes, which must stand directly in the PAR; sets (*locals)[node]. */
static bool make_locals(nest_builder *nb, nest *s, const job_list *l, l_val **locals) {
  *locals = arena_alloc(nb->arena, nb->k->n * sizeof **locals);
  if (!*locals) return nest_refuse(nb, lower_no_memory);
  if (!nest_plan_passes(s, l)) return nest_refuse(nb, s->why);
  for (k_val v = 1; v < nb->k->n; v++)
    if (s->keep[v])
      (*locals)[v] = nest_code(nb, (l_instr){.code = L_LOCAL, .dtype = nb->k->nodes[v].dtype, .a = extent(nb, s->c)});
  return !nb->why;
}

/* ---- shapes without a reduction across rows ------------------------------------------------------------------------------------ */

static bool build_plain(nest_builder *nb, nest *s, int64_t grain) {
  int64_t size = s->inner >= 0 ? s->by->merge_tile : plain_tile(s);
  bool tiled = s->c >= 0 && !const_at_most(nb->k, s->c, size);
  l_val tiles = tiled ? ceil_div(nb, extent(nb, s->c), size) : 0, start, len;
  k_mask par = s->par & ~axis_bit(s->inner);
  int64_t whole = tiled ? tiles_hint(nb->k, s->c, size) : 1;
  instance i = begin(nb, par, tiles, grain, work_of(s, k_points(nb->k, par) * whole));
  tile_of(nb, s->c, i.extra, size, &start, &len);
  uint32_t mark = nest_mark(nb);
  if (s->inner >= 0) nest_for(nb, nb->zero, extent(nb, s->inner), &nb->at[s->inner]);
  if (!row(nb, s, &s->first, start, len, i.extra, NULL)) return false;
  if (s->inner >= 0) nest_end(nb, mark);
  end(nb);
  return !nb->why;
}

static bool build_rows(nest_builder *nb, nest *s, int64_t grain) {
  l_val *locals;
  begin(nb, s->par, 0, grain, work_of(s, k_points(nb->k, s->par)));
  if (!make_locals(nb, s, &s->first, &locals)) return false;
  if (!row(nb, s, &s->first, nb->zero, extent(nb, s->c), 0, locals)) return false;
  end(nb);
  return !nb->why;
}

/* Builds a turned nest: in tiles of two axes, values that lie along the turned axis are loaded in that direction into a local array, from
 * which they are read in the other one. */
static bool build_turned(nest_builder *nb, nest *s, int64_t grain) {
  const k_kernel *k = nb->k;
  l_val rows = ceil_div(nb, extent(nb, s->turned), TURN_TILE), columns = ceil_div(nb, extent(nb, s->c), TURN_TILE);
  l_val size = nest_number(nb, TURN_TILE * (TURN_TILE + 1)), pitch = nest_number(nb, TURN_TILE + 1);
  int64_t tiles = tiles_hint(k, s->turned, TURN_TILE) * tiles_hint(k, s->c, TURN_TILE);
  instance i = begin(nb, s->par, times(nb, rows, columns), grain, work_of(s, k_points(k, s->par) * tiles));
  l_val row0, nrows, col0, ncols, step;
  tile_of(nb, s->turned, nest_index(nb, L_IDIV, i.extra, columns), TURN_TILE, &row0, &nrows);
  tile_of(nb, s->c, nest_index(nb, L_IMOD, i.extra, columns), TURN_TILE, &col0, &ncols);
  uint32_t mark;
  for (k_val v = 1; v < k->n; v++) {
    if (!s->needed[v] || !nest_load_is_turned(s, v)) continue;
    l_val local = nest_code(nb, (l_instr){.code = L_LOCAL, .flags = L_SHARED, .dtype = k->nodes[v].dtype, .a = size});
    mark = nest_mark(nb);
    nest_for(nb, nb->zero, ncols, &step);
    nb->at[s->c] = plus(nb, col0, step);
    nb->vec = s->turned;
    nb->at[s->turned] = row0;
    /* a load may have an earlier load as its alternative, which is in such an array, too */
    for (k_val u = 1; u < v; u++)
      if (nb->kept[u].local) {
        nb->kept[u].base = step;
        nb->kept[u].stride = pitch;
      }
    if (!nest_prepare(nb, v)) return false;
    uint32_t inner = nest_mark(nb);
    nest_vec(nb, nrows);
    l_val loaded = nest_value(nb, v);
    nest_code(nb, (l_instr){.code = L_STORE, .imm = -(int64_t)local, .h = loaded, .a = step, .b = pitch});
    nest_vec_end(nb, inner);
    nb->vec = -1;
    nest_end(nb, mark);
    nb->kept[v].local = local;
  }
  nest_code(nb, (l_instr){.code = L_SYNC});
  mark = nest_mark(nb);
  nest_for(nb, nb->zero, nrows, &step);
  nb->at[s->turned] = plus(nb, row0, step);
  l_val base = times(nb, step, pitch);
  for (k_val v = 1; v < k->n; v++)
    if (nb->kept[v].local) {
      nb->kept[v].base = base;
      nb->kept[v].stride = nb->one;
    }
  if (!scalar_jobs(nb, s, &s->first, 0, 0) || !vector_jobs(nb, s, &s->first, 0, col0, ncols, 0, NULL)) return false;
  nest_end(nb, mark);
  for (k_val v = 1; v < k->n; v++) nb->kept[v].local = 0;
  end(nb);
  return !nb->why;
}

/* ---- partial results ------------------------------------------------------------------------------------------------------------ */

/* Scratch buffers for the partial results of one reduction: `each` elements (an index value) for each instance of the first phase. */
typedef struct partials {
  int buffer, indices; /* values, and for arg reductions the indices (else -1) */
  l_val each;
} partials;

static int scratch(nest_builder *nb, uint8_t dtype, l_val size) {
  int b = l_buffer_add(nb->p, (qn_dtype)dtype, BUF_SCRATCH, size);
  if (b < 0) nest_refuse(nb, lower_no_memory);
  return b;
}

/* Makes the scratch buffers of reduction v. `instances` and `each` are index values of the prelude. They have `slack` elements more, since
 * the merge of a tile may read beyond the end (and ignore what it reads). */
static partials make_partials(nest_builder *nb, k_val v, l_val instances, l_val each, int64_t slack) {
  const k_node *n = &nb->k->nodes[v];
  l_val size = flat(nb, instances, each, nest_number(nb, slack));
  partials p = {scratch(nb, nb->k->nodes[n->a].dtype, size), -1, each};
  if (is_arg(n)) p.indices = scratch(nb, DTYPE_INDEX, size);
  return p;
}

static void partial(nest_builder *nb, l_code code, k_val v, const partials *p, l_val instance_number, l_val offset) {
  l_val at = times(nb, instance_number, p->each);
  if (offset) at = plus(nb, at, offset);
  bool indices = p->indices >= 0;
  nest_code(nb, (l_instr){.code = (uint8_t)code,
                          .a = nb->acc[v],
                          .imm = p->buffer,
                          .b = at,
                          .d = indices ? at : 0,
                          .imm2 = indices ? p->indices : 0});
}

/* Emits a loop that merges the partials of instances [from, to), of `count` in row `row`, into v's accumulator. */
static void merge(nest_builder *nb, k_val v, const partials *p, l_val row, l_val count, l_val from, l_val to,
                  l_val offset) {
  l_val i;
  uint32_t mark = nest_mark(nb);
  nest_for(nb, from, to, &i);
  partial(nb, L_MERGE, v, p, flat(nb, row, count, i), offset);
  nest_end(nb, mark);
}

/* ---- few long rows ---------------------------------------------------------------------------------------------------------------- */

static bool scalars_from(nest_builder *nb, const nest *s, const int *finished, l_val row_number) {
  for (k_val v = 1; v < nb->k->n; v++) {
    if (!s->needed[v] || finished[v] < 0) continue;
    nest_set_value(
        nb, v,
        nest_code(nb, (l_instr){.code = L_LOAD, .dtype = nb->k->nodes[v].dtype, .imm = finished[v], .a = row_number}));
  }
  return !nb->why;
}

/* Emits a phase in which each instance merges a group of partials into one, a subtree of the whole tree. */
static bool merge_groups(nest_builder *nb, const nest *s, int stage, l_val blocks, l_val ngroups, const partials *parts,
                         const partials *groups, int64_t grain) {
  instance i = begin(nb, s->par, ngroups, grain, s->by->merges * ORDER_LANES);
  l_val size = nest_number(nb, s->by->merges), from = times(nb, i.extra, size);
  l_val to = nest_index(nb, L_IMIN, blocks, plus(nb, from, size));
  for (uint32_t n = 0; n < s->first.n && !nb->why; n++) {
    const job *j = &s->first.jobs[n];
    if (j->kind != JOB_REDUCE_C || j->stage != stage) continue;
    make_acc(nb, j->v, 0, s->c);
    merge(nb, j->v, &parts[j->v], i.row, blocks, from, to, 0);
    partial(nb, L_PARTIAL, j->v, &groups[j->v], flat(nb, i.row, ngroups, i.extra), 0);
    nb->acc[j->v] = 0;
  }
  end(nb);
  return !nb->why;
}

static bool build_split(nest_builder *nb, nest *s, int64_t grain) {
  const k_kernel *k = nb->k;
  const job_list *l = &s->first;
  int64_t block = s->by->split_block;
  while (axis_hint(k, s->c) / block > s->by->pieces) block *= 2;
  l_val blocks = ceil_div(nb, extent(nb, s->c), block), rows = points(nb, s->par), lanes = nest_number(nb, ORDER_LANES);
  l_val all = times(nb, rows, blocks);
  int *finished = arena_alloc(nb->arena, k->n * sizeof *finished);
  int *results = arena_alloc(nb->arena, k->n * sizeof *results);
  partials *parts = arena_alloc(nb->arena, k->n * sizeof *parts),
           *groups = arena_alloc(nb->arena, k->n * sizeof *parts);
  if (!finished || !results || !parts || !groups) return nest_refuse(nb, lower_no_memory);
  bool grouped = s->by->merges && axis_hint(k, s->c) / block > s->by->merges;
  l_val ngroups = grouped ? ceil_div(nb, blocks, s->by->merges) : 0;
  memset(s->keep, 0, k->n);
  for (k_val v = 0; v < k->n; v++) finished[v] = -1;
  /* all scratch must be made before the first phase */
  for (uint32_t i = 0; i < l->n; i++) {
    const job *j = &l->jobs[i];
    if (j->kind != JOB_REDUCE_C) continue;
    l_val each = nest_order(&k->nodes[j->v]) == ORDER_INNER ? lanes : nb->one;
    parts[j->v] = make_partials(nb, j->v, all, each, 0);
    if (grouped) groups[j->v] = make_partials(nb, j->v, times(nb, rows, ngroups), each, 0);
    results[j->v] = scratch(nb, k->nodes[j->v].dtype, rows);
  }
  int next_scalar = 0;
  for (int stage = 0; stage < l->stages && !nb->why; stage++) {
    bool vectors = false, reduces = false, more = false;
    for (uint32_t i = 0; i < l->n; i++) {
      const job *j = &l->jobs[i];
      vectors |= j->along_c && j->stage == stage;
      reduces |= j->kind == JOB_REDUCE_C && j->stage == stage;
      more |= !j->along_c && j->stage >= next_scalar && j->stage <= stage + reduces;
    }
    if (vectors) {
      instance i = begin(nb, s->par, blocks, grain, block);
      l_val start, len;
      tile_of(nb, s->c, i.extra, block, &start, &len);
      if (!scalars_from(nb, s, finished, i.row) || !vector_jobs(nb, s, l, stage, start, len, start, NULL)) return false;
      l_val number = flat(nb, i.row, blocks, i.extra);
      for (const job *j = l->jobs; j < l->jobs + l->n; j++)
        if (j->kind == JOB_REDUCE_C && j->stage == stage) partial(nb, L_PARTIAL, j->v, &parts[j->v], number, 0);
      end(nb);
    }
    if (!reduces && !more) continue;
    if (reduces && grouped && !merge_groups(nb, s, stage, blocks, ngroups, parts, groups, grain)) return false;
    instance i = begin(nb, s->par, 0, grain, 1);
    if (!scalars_from(nb, s, finished, i.row)) return false;
    for (uint32_t n = 0; n < l->n && !nb->why; n++) {
      const job *j = &l->jobs[n];
      if (j->kind != JOB_REDUCE_C || j->stage != stage) continue;
      make_acc(nb, j->v, 0, s->c);
      l_val count = grouped ? ngroups : blocks;
      merge(nb, j->v, grouped ? &groups[j->v] : &parts[j->v], i.row, count, nb->zero, count, 0);
      finished[j->v] = results[j->v];
      nest_code(nb, (l_instr){.code = L_STORE, .imm = finished[j->v], .h = finish(nb, j->v), .a = i.row});
    }
    for (; next_scalar <= stage + reduces; next_scalar++)
      if (!scalar_jobs(nb, s, l, next_scalar, 0)) return false;
    end(nb);
  }
  close_accs(nb);
  return !nb->why;
}

/* ---- reductions across rows -------------------------------------------------------------------------------------------------------- */

/* Can instances have tiles of c? Not where a row is reduced or scanned along c, nor where something is done once for each row. */
static bool separable(const nest_builder *nb, const nest *s, const job_list *l) {
  if (s->c < 0) return false;
  for (uint32_t i = 0; i < l->n; i++)
    if (!l->jobs[i].along_c || l->jobs[i].kind == JOB_REDUCE_C) return false;
  for (k_val v = 1; v < nb->k->n; v++)
    if (s->needed[v] && nb->k->nodes[v].code == K_SCAN && nb->k->nodes[v].axis == s->c) return false;
  return true;
}

static void open_row_accs(nest_builder *nb, const nest *s, l_val results, const int *rows_kept) {
  for (k_val v = 1; v < nb->k->n; v++) {
    const k_node *n = &nb->k->nodes[v];
    if (!s->needed[v] || !k_folds(n) || n->axis != s->r || (rows_kept && rows_kept[v] >= 0)) continue;
    make_acc(nb, v, axis_in(operand_axes(nb->k, n), s->c) ? results : 0, s->r);
  }
}

/* Finishes reductions over r that have one result. Those with many are finished inside the VECs that use them. */
static void finish_r(nest_builder *nb, const nest *s) {
  for (uint32_t i = 0; i < s->first.n; i++) {
    const job *j = &s->first.jobs[i];
    if (j->kind == JOB_REDUCE_R && !j->along_c && nb->acc[j->v]) finish(nb, j->v);
  }
}

/* Emits the loop over rows [from, to). Where results of rows are reduced in inner order, slabs may not cut their chains, so these results are
 * stored to a buffer first. */
static bool loop_rows(nest_builder *nb, nest *s, l_val from, l_val to, l_val start, l_val len, const l_val *locals,
                      const int *rows_kept, l_val row_number) {
  uint32_t mark = nest_mark(nb);
  nest_for(nb, from, to, &nb->at[s->r]);
  nest_code(nb, (l_instr){.code = L_POLL});
  job_list pushed = s->first;
  if (rows_kept) { /* those results are stored below instead of pushed */
    pushed.jobs = arena_alloc(nb->arena, (s->first.n + 1) * sizeof *pushed.jobs);
    if (!pushed.jobs) return nest_refuse(nb, lower_no_memory);
    pushed.n = 0;
    for (uint32_t i = 0; i < s->first.n; i++)
      if (rows_kept[s->first.jobs[i].v] < 0) pushed.jobs[pushed.n++] = s->first.jobs[i];
  }
  if (!row(nb, s, &pushed, start, len, 0, locals)) return false;
  for (uint32_t i = 0; rows_kept && i < s->first.n; i++) {
    k_val v = s->first.jobs[i].v;
    if (rows_kept[v] < 0) continue;
    l_val x = nest_value(nb, nb->k->nodes[v].a);
    l_val at = flat(nb, row_number, extent(nb, s->r), nb->at[s->r]);
    if (!x) return false;
    nest_code(nb, (l_instr){.code = L_STORE, .imm = rows_kept[v], .h = x, .a = at});
  }
  nest_end(nb, mark);
  return !nb->why;
}

static bool build_one_slab(nest_builder *nb, nest *s, int64_t grain) {
  bool tiled =
      separable(nb, s, &s->first) && separable(nb, s, &s->second) && !const_at_most(nb->k, s->c, s->by->merge_tile);
  l_val tile = nest_number(nb, s->by->merge_tile),
        tiles = tiled ? ceil_div(nb, extent(nb, s->c), s->by->merge_tile) : 0, start, len;
  l_val results = tiled ? nest_index(nb, L_IMIN, tile, extent(nb, s->c)) : extent(nb, s->c);
  int64_t parts = tiled ? tiles_hint(nb->k, s->c, s->by->merge_tile) : 1;
  instance i = begin(nb, s->par, tiles, grain, work_of(s, k_points(nb->k, s->par) * parts));
  tile_of(nb, s->c, i.extra, s->by->merge_tile, &start, &len);
  l_val *before, *behind;
  if (!make_locals(nb, s, &s->first, &before)) return false;
  uint8_t *keep = arena_alloc(nb->arena, nb->k->n);
  if (!keep) return nest_refuse(nb, lower_no_memory);
  memcpy(keep, s->keep, nb->k->n);
  if (!make_locals(nb, s, &s->second, &behind)) return false;
  uint8_t *keep_behind = s->keep;
  open_row_accs(nb, s, results, NULL);
  s->keep = keep;
  bool ok = loop_rows(nb, s, nb->zero, extent(nb, s->r), start, len, before, NULL, i.row);
  s->keep = keep_behind;
  if (!ok) return false;
  finish_r(nb, s);
  if (!row(nb, s, &s->second, start, len, 0, behind)) return false;
  close_accs(nb);
  end(nb);
  return !nb->why;
}

/* What follows the slabs on a GPU may be of two kinds: results along c, and single ones (sums of columns beside the sum of everything). Both
 * in one instance would be one block of threads. If results along c need nothing of the others, they are merged in a phase of their own,
 * in tiles of c: then this returns which nodes they need, by node. NULL otherwise. */
static bool *apart(nest_builder *nb, const nest *s) {
  int along = 0, others = 0;
  if (!s->by->slab_tiles || s->c < 0 || const_at_most(nb->k, s->c, s->by->merge_tile)) return NULL;
  bool *seen = arena_alloc(nb->arena, nb->k->n);
  if (!seen) return NULL;
  for (uint32_t i = 0; i < s->second.n; i++) {
    const job *j = &s->second.jobs[i];
    if (j->kind != JOB_EFFECT || j->stage) return NULL;
    *(j->along_c ? &along : &others) += 1;
    if (j->along_c) nest_reach(s, j->v, seen);
  }
  for (uint32_t i = 0; i < s->first.n; i++) {
    const job *j = &s->first.jobs[i];
    if (j->kind == JOB_REDUCE_R && !j->along_c && seen[j->v]) return NULL;
  }
  for (k_val v = 1; v < nb->k->n; v++)
    if (s->needed[v] && nb->k->nodes[v].code == K_SCAN && nb->k->nodes[v].axis == s->c) return NULL;
  return along && others ? seen : NULL;
}

/* Emits the phase that merges slabs and does what follows. With `columns` (by node, from `apart`) it does only what results along c need or,
 * with `rest`, only the others. `tiles`: how many tiles of c there are (0: one); `results`: how many results along c a tile has. */
static bool merge_phase(nest_builder *nb, nest *s, int64_t grain, l_val slabs, const partials *parts,
                        const int *rows_kept, const job_list *then, const bool *columns, bool rest, l_val tiles,
                        l_val results) {
  const k_kernel *k = nb->k;
  l_val start, len, *locals;
  instance i = begin(nb, s->par, tiles, grain, s->by->merge_tile * s->by->slabs);
  tile_of(nb, s->c, i.extra, s->by->merge_tile, &start, &len);
  if (!make_locals(nb, s, then, &locals)) return false;
  for (uint32_t n = 0; n < s->first.n && !nb->why; n++) {
    const job *j = &s->first.jobs[n];
    if (j->kind != JOB_REDUCE_R || (columns && columns[j->v] == rest)) continue;
    l_val acc = make_acc(nb, j->v, j->along_c ? results : 0, s->r);
    if (s->r_grows && acc) nb->p->code[acc].b = 0;
    if (rows_kept[j->v] >= 0) {
      uint32_t mark = nest_mark(nb);
      l_val base = times(nb, i.row, extent(nb, s->r));
      nest_vec(nb, extent(nb, s->r));
      uint8_t dtype = k->nodes[k->nodes[j->v].a].dtype;
      l_val x =
          nest_code(nb, (l_instr){.code = L_LOAD, .dtype = dtype, .imm = rows_kept[j->v], .a = base, .b = nb->one});
      nest_code(nb, (l_instr){.code = L_PUSH, .a = nb->acc[j->v], .b = x});
      nest_vec_end(nb, mark);
    } else {
      merge(nb, j->v, &parts[j->v], i.row, slabs, nb->zero, slabs, j->along_c && i.extra ? start : 0);
    }
  }
  finish_r(nb, s);
  if (!row(nb, s, then, start, len, 0, locals)) return false;
  close_accs(nb);
  end(nb);
  return !nb->why;
}

static bool build_slabs(nest_builder *nb, nest *s, int64_t grain) {
  const k_kernel *k = nb->k;
  int64_t slab = nest_slab(s);
  const int64_t width = s->by->merge_tile;
  bool tiled_rows = s->by->slab_tiles && separable(nb, s, &s->first) && !const_at_most(nb->k, s->c, width);
  int64_t about = tiled_rows ? tiles_hint(k, s->c, width) : 1, most = s->by->slabs;
  while (most < 4 * s->by->slabs && s->by->slab_tiles && most * about < s->by->instances) most *= 2;
  while (axis_hint(k, s->r) / slab * k_points(k, s->par) > most) slab *= 2;
  l_val length = nest_number(nb, slab), slabs = ceil_div(nb, extent(nb, s->r), slab);
  l_val rows = points(nb, s->par), all = times(nb, rows, slabs);
  /* with tiles the partials of a slab are padded to whole tiles */
  l_val row_tiles = tiled_rows ? ceil_div(nb, extent(nb, s->c), width) : 0;
  l_val each = tiled_rows ? times(nb, row_tiles, nest_number(nb, width)) : extent(nb, s->c);
  partials *parts = arena_alloc(nb->arena, k->n * sizeof *parts);
  int *rows_kept = arena_alloc(nb->arena, k->n * sizeof *rows_kept);
  if (!parts || !rows_kept) return nest_refuse(nb, lower_no_memory);
  for (k_val v = 0; v < k->n; v++) rows_kept[v] = -1;
  for (uint32_t i = 0; i < s->first.n; i++) {
    const job *j = &s->first.jobs[i];
    if (j->kind != JOB_REDUCE_R) continue;
    const k_node *n = &k->nodes[j->v];
    if (!j->along_c && nest_order(n) == ORDER_INNER)
      rows_kept[j->v] = scratch(nb, k->nodes[n->a].dtype, times(nb, rows, extent(nb, s->r)));
    else
      parts[j->v] = make_partials(nb, j->v, all, j->along_c ? each : nb->one, j->along_c ? width : 0);
  }
  bool *columns = apart(nb, s);
  bool tiled = (columns || separable(nb, s, &s->second)) && !const_at_most(nb->k, s->c, width);
  l_val tile = nest_number(nb, width), tiles = tiled ? ceil_div(nb, extent(nb, s->c), width) : 0;
  l_val results = tiled ? nest_index(nb, L_IMIN, tile, extent(nb, s->c)) : extent(nb, s->c), start, len;

  instance i = begin(nb, s->par, tiled_rows ? times(nb, slabs, row_tiles) : slabs, grain,
                     work_of(s, k_points(k, s->par)) * slab / (axis_hint(k, s->r) + 1) / about);
  l_val row_tile = tiled_rows ? nest_index(nb, L_IMOD, i.extra, row_tiles) : 0;
  l_val number_of_slab = tiled_rows ? nest_index(nb, L_IDIV, i.extra, row_tiles) : i.extra;
  tile_of(nb, s->c, row_tile, width, &start, &len);
  l_val *locals, from = times(nb, number_of_slab, length);
  if (!make_locals(nb, s, &s->first, &locals)) return false;
  open_row_accs(nb, s, tiled_rows ? tile : extent(nb, s->c), rows_kept);
  for (const job *j = s->first.jobs; j < s->first.jobs + s->first.n; j++)
    if (s->r_grows && j->kind == JOB_REDUCE_R && nb->acc[j->v]) nb->p->code[nb->acc[j->v]].b = length;
  l_val to = nest_index(nb, L_IMIN, extent(nb, s->r), plus(nb, from, length));
  if (!loop_rows(nb, s, from, to, start, len, locals, rows_kept, i.row)) return false;
  l_val number = flat(nb, i.row, slabs, number_of_slab);
  for (const job *j = s->first.jobs; j < s->first.jobs + s->first.n; j++)
    if (j->kind == JOB_REDUCE_R && rows_kept[j->v] < 0)
      partial(nb, L_PARTIAL, j->v, &parts[j->v], number, row_tile && j->along_c ? start : 0);
  close_accs(nb);
  end(nb);

  if (!columns) return merge_phase(nb, s, grain, slabs, parts, rows_kept, &s->second, NULL, false, tiles, results);
  for (int rest = 0; rest < 2; rest++) {
    job_list then = s->second;
    then.jobs = arena_alloc(nb->arena, (s->second.n + 1) * sizeof *then.jobs);
    if (!then.jobs) return nest_refuse(nb, lower_no_memory);
    then.n = 0;
    for (uint32_t n = 0; n < s->second.n; n++)
      if (s->second.jobs[n].along_c == !rest) then.jobs[then.n++] = s->second.jobs[n];
    if (!merge_phase(nb, s, grain, slabs, parts, rows_kept, &then, columns, rest, rest ? 0 : tiles,
                     rest ? extent(nb, s->c) : results))
      return false;
  }
  return true;
}

/* ---- products ------------------------------------------------------------------------------------------------------------------------ */

/* The load of a product's factor, perhaps behind a cast (factor_load in schedule.c has made sure that there is one). */
static const k_node *factor_of(const k_kernel *k, k_val v) {
  const k_node *n = &k->nodes[v];
  return n->code == K_LOAD ? n : &k->nodes[n->a];
}

static l_val stride_of(nest_builder *nb, k_form f, int axis) {
  qn_dim coef = 0;
  if (axis >= 0) (void)k_coef(nb->k, f, (uint32_t)axis, &coef);
  return nest_dim(nb, coef);
}

/* The elements of a tile's local with room for sums of chunks behind the tile: as many as can wait in the tree at a time. That is bounded by
 * twice the number of chunks after the first. */
static l_val room_behind(nest_builder *nb, l_val depth, int64_t tile) {
  enum { MOST = 24 };
  l_val last = plus(nb, depth, nest_number(nb, ORDER_DOT_CHUNK - 1));
  l_val beyond = nest_index(nb, L_ISUB, nest_index(nb, L_IDIV, last, nest_number(nb, ORDER_DOT_CHUNK)), nb->one);
  l_val most = nest_index(nb, L_IMIN, plus(nb, beyond, beyond), nest_number(nb, MOST));
  l_val tiles = plus(nb, nest_index(nb, L_IMAX, most, nb->zero), nb->one);
  return times(nb, tiles, nest_number(nb, tile));
}

/* Sets the operands of a TILE for the point of P, the tile and the slab of depth that an instance has. */
static bool product_tile(nest_builder *nb, nest *s, l_tile *t, l_val row_tile, l_val col_tile, l_val from, l_val depth,
                         l_val size) {
  const k_kernel *k = nb->k;
  const k_node *d = &k->nodes[s->dot], *x = factor_of(k, d->a), *y = factor_of(k, d->b);
  l_val row0, col0;
  tile_of(nb, s->m, row_tile, s->tm, &row0, &t->rows);
  tile_of(nb, s->n_axis, col_tile, s->tn, &col0, &t->cols);
  nb->at[d->axis] = from;
  if (s->m >= 0) nb->at[s->m] = row0;
  if (s->n_axis >= 0) nb->at[s->n_axis] = col0;
  if (!depth) return true; /* the caller needs only the tile's position and size */
  t->depth = depth;
  t->x_base = nest_form(nb, x->at);
  t->y_base = nest_form(nb, y->at);
  t->out = nest_code(nb, (l_instr){.code = L_LOCAL, .dtype = d->dtype, .a = size});
  int number = l_tile_add(nb->p, *t);
  if (number < 0) return nest_refuse(nb, lower_no_memory);
  l_val tile = nest_code(nb, (l_instr){.code = L_TILE, .imm = number});
  nb->last_load[x->buffer] = nb->last_load[y->buffer] = tile;
  return true;
}

/* Emits the first phase of a product whose depth is cut into slabs: it computes a partial tile for each slab. */
static bool product_slabs(nest_builder *nb, nest *s, l_tile *t, l_val rows, l_val columns, l_val slabs,
                          const partials *parts, int64_t grain) {
  const k_kernel *k = nb->k;
  const k_node *d = &k->nodes[s->dot];
  l_val slab = nest_number(nb, s->dot_slab), size = nest_number(nb, s->tm * s->tn);
  l_val tiles = times(nb, rows, columns), step;
  instance i = begin(nb, s->par, times(nb, tiles, slabs), grain, s->tm * s->tn * s->dot_slab / 8);
  l_val number = nest_index(nb, L_IMOD, i.extra, slabs), tile = nest_index(nb, L_IDIV, i.extra, slabs);
  l_val from = times(nb, number, slab);
  l_val depth = nest_index(nb, L_IMIN, slab, nest_index(nb, L_ISUB, extent(nb, d->axis), from));
  l_val room = s->by->dot_room ? room_behind(nb, slab, s->tm * s->tn) : size;
  if (!product_tile(nb, s, t, nest_index(nb, L_IDIV, tile, columns), nest_index(nb, L_IMOD, tile, columns), from, depth,
                    room))
    return false;
  l_val at = times(nb, flat(nb, flat(nb, i.row, tiles, tile), slabs, number), size);
  uint32_t mark = nest_mark(nb);
  l_val local = nb->zero;
  if (s->m >= 0 && s->n_axis >= 0) {
    nest_for(nb, nb->zero, t->rows, &step);
    local = times(nb, step, nest_number(nb, s->tn));
  }
  uint32_t inner = nest_mark(nb);
  nest_vec(nb, s->n_axis >= 0 ? t->cols : t->rows);
  l_val v =
      nest_code(nb, (l_instr){.code = L_LOAD, .dtype = d->dtype, .imm = -(int64_t)t->out, .a = local, .b = nb->one});
  nest_code(nb, (l_instr){.code = L_STORE, .imm = parts->buffer, .h = v, .a = plus(nb, at, local), .b = nb->one});
  nest_vec_end(nb, inner);
  if (s->m >= 0 && s->n_axis >= 0) nest_end(nb, mark);
  end(nb);
  return !nb->why;
}

/* Emits the merge of a tile's slabs into a local array. Elements beyond the tile's edges are merged, too, and ignored. */
static l_val merge_slabs(nest_builder *nb, nest *s, l_val row_number, l_val tile, l_val tiles, l_val slabs,
                         const partials *parts) {
  l_val size = nest_number(nb, s->tm * s->tn);
  bool many = s->tm * s->tn > 1;
  l_val out = nest_code(nb, (l_instr){.code = L_LOCAL, .dtype = nb->k->nodes[s->dot].dtype, .a = size});
  make_acc(nb, s->dot, many ? size : 0, nb->k->nodes[s->dot].axis);
  l_val number = flat(nb, row_number, tiles, tile);
  (void)times(nb, number, slabs); /* emitted here, so that the loop finds it and does not compute it for every slab */
  uint32_t mark = nest_mark(nb);
  merge(nb, s->dot, parts, number, slabs, nb->zero, slabs, 0);
  if (many) nest_vec(nb, size);
  l_val f = nest_code(nb, (l_instr){.code = L_FINISH, .dtype = nb->k->nodes[s->dot].dtype, .a = nb->acc[s->dot]});
  nest_code(nb, (l_instr){.code = L_STORE, .imm = -(int64_t)out, .h = f, .a = nb->zero, .b = many ? nb->one : 0});
  if (many) nest_vec_end(nb, mark);
  nb->acc[s->dot] = 0;
  return out;
}

/* Emits the nest's effects for `len` points of axis `along` from `start` on; along < 0: for one point. */
static bool effects_along(nest_builder *nb, const nest *s, int along, l_val start, l_val len) {
  nb->vec = along;
  if (along >= 0) nb->at[along] = start;
  for (uint32_t n = 0; n < s->n && along >= 0; n++)
    if (!nest_prepare_effect(nb, s->effects[n])) return false;
  uint32_t mark = nest_mark(nb);
  if (along >= 0) nest_vec(nb, len);
  for (uint32_t n = 0; n < s->n; n++)
    if (!nest_effect(nb, s->effects[n])) return false;
  if (along >= 0) nest_vec_end(nb, mark);
  nb->vec = -1;
  return true;
}

static bool build_product(nest_builder *nb, nest *s, int64_t grain) {
  const k_kernel *k = nb->k;
  const k_node *d = &k->nodes[s->dot], *x = factor_of(k, d->a), *y = factor_of(k, d->b);
  int64_t tm = s->tm, tn = s->tn;
  l_tile t = {.x = x->buffer, .y = y->buffer, .tile_rows = (int32_t)tm, .tile_cols = (int32_t)tn};
  l_val rows = ceil_div(nb, extent(nb, s->m), tm), columns = ceil_div(nb, extent(nb, s->n_axis), tn);
  l_val size = s->by->dot_room ? room_behind(nb, extent(nb, d->axis), tm * tn) : nest_number(nb, tm * tn),
        pitch = nest_number(nb, tn), tiles = times(nb, rows, columns);
  t.x_m = stride_of(nb, x->at, s->m);
  t.x_k = stride_of(nb, x->at, d->axis);
  t.y_k = stride_of(nb, y->at, d->axis);
  t.y_n = stride_of(nb, y->at, s->n_axis);
  int64_t depth = axis_hint(k, d->axis);
  partials parts = {0};
  l_val slabs = 0;
  if (s->dot_slab) {
    slabs = ceil_div(nb, extent(nb, d->axis), s->dot_slab);
    l_val all = times(nb, times(nb, points(nb, s->par), tiles), slabs);
    parts = make_partials(nb, s->dot, all, nest_number(nb, tm * tn), 0);
    if (!product_slabs(nb, s, &t, rows, columns, slabs, &parts, grain)) return false;
    depth = 8 * (depth / s->dot_slab);
  }
  instance i = begin(nb, s->par, tiles, grain, tm * tn * (depth < 1 ? 1 : depth) / 8);
  l_val step, row_tile = nest_index(nb, L_IDIV, i.extra, columns), col_tile = nest_index(nb, L_IMOD, i.extra, columns);
  if (!product_tile(nb, s, &t, row_tile, col_tile, nb->zero, slabs ? 0 : extent(nb, d->axis), size)) return false;
  if (slabs) t.out = merge_slabs(nb, s, i.row, i.extra, tiles, slabs, &parts);
  /* What follows the product runs along n, or along m where n is short and m longer. */
  bool down = s->n_axis < 0 ||
              (s->m >= 0 && axis_hint(k, s->n_axis) < SHORT_AXIS && axis_hint(k, s->m) > axis_hint(k, s->n_axis));
  int along = down ? s->m : s->n_axis, across = down ? s->n_axis : s->m;
  uint32_t mark = nest_mark(nb);
  l_val base = nb->zero, row0 = s->m < 0 ? 0 : nb->at[s->m], col0 = s->n_axis < 0 ? 0 : nb->at[s->n_axis];
  if (across >= 0) {
    nest_for(nb, nb->zero, down ? t.cols : t.rows, &step);
    nb->at[across] = plus(nb, down ? col0 : row0, step);
    base = down ? step : times(nb, step, pitch);
  }
  nb->kept[s->dot].local = t.out;
  nb->kept[s->dot].base = base;
  nb->kept[s->dot].stride = along < 0 ? 0 : down ? pitch : nb->one;
  if (!effects_along(nb, s, along, down ? row0 : col0, down ? t.rows : t.cols)) return false;
  if (across >= 0) nest_end(nb, mark);
  nb->kept[s->dot].local = 0;
  end(nb);
  return !nb->why;
}

/* ---- updates in place ------------------------------------------------------------------------------------------------------------------ */

/* Builds a nest for an update in place. Axes that occur plainly in the address are independent, since different points of them are different
 * elements; the others run in row-major order. */
static bool build_update(nest_builder *nb, nest *s, int64_t grain) {
  const k_kernel *k = nb->k;
  const k_node *n = &k->nodes[s->effects[0]]; /* the only effect */
  k_mask apart = 0, ordered = n->axes;
  int along = -1;
  qn_dim coef;
  for (int a = 0; a < (int)k->naxes; a++) {
    if (!axis_in(n->axes, a)) continue;
    const k_linear *l = &k->forms[n->at];
    for (uint32_t i = 0; i < l->n; i++)
      if (k->atoms[l->terms[i].atom].kind == ATOM_AXIS && k->atoms[l->terms[i].atom].ref == (uint32_t)a)
        apart |= axis_bit(a);
    if (axis_in(apart, a) && axis_hint(k, a) >= SHORT_AXIS && k_coef(k, n->at, (uint32_t)a, &coef) && coef == 1)
      along = a;
  }
  ordered &= ~apart;
  bool in_order = along < 0;
  for (int a = 0; a < (int)k->naxes && in_order; a++)
    if (axis_in(ordered, a)) along = a; /* the innermost one, since a VEC over it keeps the order */
  k_mask par = apart & ~axis_bit(along);
  bool tiled = !in_order && along >= 0 && !const_at_most(nb->k, along, plain_tile(s));
  l_val tiles = tiled ? ceil_div(nb, extent(nb, along), plain_tile(s)) : 0, start, len;
  instance i = begin(nb, par, tiles, grain, work_of(s, k_points(k, par)));
  tile_of(nb, along, i.extra, plain_tile(s), &start, &len);
  uint32_t marks[K_AXES_MAX];
  int loops = 0;
  for (int a = 0; a < (int)k->naxes; a++) {
    if (!axis_in(ordered, a) || a == along) continue;
    marks[loops++] = nest_mark(nb);
    nest_for(nb, nb->zero, extent(nb, a), &nb->at[a]);
    nest_code(nb, (l_instr){.code = L_POLL});
  }
  if (!effects_along(nb, s, along, start, len)) return false;
  while (loops) nest_end(nb, marks[--loops]);
  end(nb);
  return !nb->why;
}

bool nest_build(nest_builder *nb, nest *s, int64_t grain) {
  if (nb->body) { /* after the first nest sizes are computed in the phase */
    nest_code(nb, (l_instr){.code = L_PHASE});
    nb->phase_open = true;
  }
  switch (s->shape) {
  case SHAPE_PLAIN: return build_plain(nb, s, grain);
  case SHAPE_TURNED: return build_turned(nb, s, grain);
  case SHAPE_ROWS: return build_rows(nb, s, grain);
  case SHAPE_SPLIT: return build_split(nb, s, grain);
  case SHAPE_SLABS: return s->one_slab ? build_one_slab(nb, s, grain) : build_slabs(nb, s, grain);
  case SHAPE_PRODUCT: return build_product(nb, s, grain);
  default: return build_update(nb, s, grain);
  }
}
