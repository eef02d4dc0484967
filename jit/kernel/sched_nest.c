/* Emitting nests: the loops of each shape (schedule.c), filled in by sched_emit.c. */
#include <string.h>

#include "jit/kernel/lower.h"
#include "jit/kernel/sched_impl.h"

/* ---- instances ----------------------------------------------------------------------------------------------------------- */

typedef struct instance {
  l_val row;   /* number of the point of P */
  l_val extra; /* number of the tile, slab or block; 0 when there is only one */
} instance;

static l_val extent(emitter *e, int axis) { return axis < 0 ? e->one : emit_dim(e, e->k->axes[axis].extent); }

static l_val ceil_div(emitter *e, l_val n, int64_t by) {
  return emit_index(e, L_IDIV, emit_index(e, L_IADD, n, emit_number(e, by - 1)), emit_number(e, by));
}

static l_val points(emitter *e, k_mask axes) {
  l_val n = e->one;
  for (int a = 0; a < (int)e->k->naxes; a++)
    if (axis_in(axes, a)) n = emit_index(e, L_IMUL, n, extent(e, a));
  return n;
}

/* Instances per thread at least, from the elements of an instance: a power of two. */
static int64_t grain_of(int64_t grain, int64_t work) {
  int64_t g = 1;
  while (g < grain && g * (work < 1 ? 1 : work) < grain) g *= 2;
  return g;
}

/* PHASE and PAR over P times `extra` (0: 1), whose number varies fastest. `work`: elements of an instance. */
static instance begin(emitter *e, k_mask par, l_val extra, int64_t grain, int64_t work) {
  instance i = {0};
  if (!e->phase_open) emit_code(e, (l_instr){.code = L_PHASE});
  e->phase_open = false;
  e->body = true;
  l_val n = points(e, par);
  if (extra) n = emit_index(e, L_IMUL, n, extra);
  l_val loop = emit_code(e, (l_instr){.code = L_PAR, .a = n, .imm = grain_of(grain, work)});
  l_val at = e->zero;
  if (par || extra) at = emit_code(e, (l_instr){.code = L_VAR, .a = loop});
  if (extra && par) {
    i.extra = emit_index(e, L_IMOD, at, extra);
    at = emit_index(e, L_IDIV, at, extra);
  } else if (extra) {
    i.extra = at;
    at = e->zero;
  }
  i.row = at;
  k_mask left = par;
  for (int a = (int)e->k->naxes - 1; a >= 0; a--) {
    if (!axis_in(left, a)) continue;
    left &= ~axis_bit(a);
    e->at[a] = left ? emit_index(e, L_IMOD, at, extent(e, a)) : at;
    if (left) at = emit_index(e, L_IDIV, at, extent(e, a));
  }
  return i;
}

static void end(emitter *e) {
  emit_forget(e, 0);
  l_end(e->p);
}

static int64_t work_of(const nest *s, int64_t instances) {
  int64_t all = k_points(s->k, s->axes);
  return instances > 0 ? all / instances : all;
}

/* Elements of an axis in an instance of a plain nest. */
static int64_t plain_tile(const nest *s) {
  int64_t size = s->by->plain_most, all = k_points(s->k, s->axes);
  while (size > s->by->plain_least && all / size < s->by->instances) size /= 2;
  return size;
}

/* The tile of an axis: its first index and length. `tile` 0: the whole axis. */
static void tile_of(emitter *e, int axis, l_val tile, int64_t size, l_val *start, l_val *len) {
  *start = e->zero;
  *len = extent(e, axis);
  if (!tile) return;
  l_val by = emit_number(e, size);
  *start = emit_index(e, L_IMUL, tile, by);
  *len = emit_index(e, L_IMIN, by, emit_index(e, L_ISUB, *len, *start));
}

/* ---- passes ---------------------------------------------------------------------------------------------------------------- */

static l_val make_acc(emitter *e, k_val v, l_val results, int over) {
  const k_node *n = &e->k->nodes[v];
  uint8_t sub = n->code == K_DOT ? KOP_add : n->sub;
  l_val acc = emit_code(e, (l_instr){.code = L_ACC,
                                     .sub = sub,
                                     .dtype = e->k->nodes[n->a].dtype,
                                     .imm = emit_order(n),
                                     .a = results,
                                     .b = extent(e, over)});
  e->acc[v] = acc;
  return acc;
}

static bool is_arg(const k_node *n) { return n->code == K_REDUCE && kop_is_arg(n->sub); }

static bool push(emitter *e, k_val v, l_val k) {
  const k_node *n = &e->k->nodes[v];
  l_val a = emit_value(e, n->a), b = n->code == K_DOT ? emit_value(e, n->b) : 0;
  if (!a || (n->code == K_DOT && !b)) return false;
  emit_code(e, (l_instr){.code = L_PUSH, .a = e->acc[v], .b = a, .d = b, .c = k});
  return true;
}

typedef struct scans {
  emitter *e;
  const nest *s;
  bool *seen; /* by node */
} scans;

/* Accumulators of the scans over c that a pass computes. */
static void open_scan(void *ctx, k_val v) {
  scans *x = ctx;
  const k_node *n = &x->e->k->nodes[v];
  if (x->seen[v] || !axis_in(n->axes, x->s->c) || x->e->kept[v].local || x->e->value[v]) return;
  x->seen[v] = true;
  if (n->code == K_SCAN && n->axis == x->s->c && !x->e->acc[v]) make_acc(x->e, v, 0, x->s->c);
  k_each_operand(x->e->k, v, open_scan, x);
}

/* Work that does not vary along c, once the reductions of earlier passes are known. */
static bool scalar_jobs(emitter *e, const nest *s, const job_list *l, int stage, l_val once) {
  for (uint32_t i = 0; i < l->n && !e->why; i++) {
    const job *j = &l->jobs[i];
    if (j->along_c || j->stage != stage) continue;
    if (j->kind == JOB_REDUCE_R) {
      if (!push(e, j->v, is_arg(&e->k->nodes[j->v]) ? e->at[s->r] : 0)) return false;
      continue;
    }
    /* An effect that lacks an axis of P happens where that axis is at 0. */
    l_val skip = once;
    for (int a = 0; a < (int)e->k->naxes; a++)
      if (axis_in(s->par & ~e->k->nodes[j->v].axes, a)) skip = skip ? emit_index(e, L_IADD, skip, e->at[a]) : e->at[a];
    uint32_t mark = emit_mark(e);
    if (skip) {
      emit_code(e, (l_instr){.code = L_IF, .a = skip});
      emit_code(e, (l_instr){.code = L_ELSE});
    }
    if (!emit_effect(e, j->v)) return false;
    if (skip) emit_end(e, mark);
  }
  return !e->why;
}

static bool vector_jobs(emitter *e, nest *s, const job_list *l, int stage, l_val start, l_val len, l_val first,
                        const l_val *locals) {
  bool any = false;
  for (uint32_t i = 0; i < l->n; i++) any |= l->jobs[i].along_c && l->jobs[i].stage == stage;
  if (!any) return true;
  e->vec = s->c;
  e->at[s->c] = start;
  scans x = {e, s, arena_alloc(e->arena, e->k->n)};
  if (!x.seen) return emit_refuse(e, lower_no_memory);
  for (uint32_t i = 0; i < l->n && !e->why; i++) {
    const job *j = &l->jobs[i];
    if (!j->along_c || j->stage != stage) continue;
    if (j->kind == JOB_REDUCE_C) make_acc(e, j->v, 0, s->c);
    k_each_operand(e->k, j->v, open_scan, &x);
  }
  for (uint32_t i = 0; i < l->n && !e->why; i++) {
    const job *j = &l->jobs[i];
    const k_node *n = &e->k->nodes[j->v];
    if (!j->along_c || j->stage != stage) continue;
    if (j->kind == JOB_EFFECT ? !emit_prepare_effect(e, j->v)
                              : !emit_prepare(e, n->a) || (n->b && !emit_prepare(e, n->b)))
      return false;
  }
  uint32_t mark = emit_mark(e);
  emit_vec(e, len);
  for (uint32_t i = 0; i < l->n && !e->why; i++) {
    const job *j = &l->jobs[i];
    if (!j->along_c || j->stage != stage) continue;
    l_val k = j->kind == JOB_REDUCE_C ? first : is_arg(&e->k->nodes[j->v]) ? e->at[s->r] : 0;
    if (j->kind == JOB_EFFECT ? !emit_effect(e, j->v) : !push(e, j->v, k)) return false;
  }
  for (k_val v = 1; locals && v < e->k->n; v++) {
    if (s->keep[v] != stage + 1 || !locals[v]) continue;
    l_val value = emit_value(e, v);
    if (!value) return false;
    emit_code(e, (l_instr){.code = L_STORE, .imm = -(int64_t)locals[v], .h = value, .a = e->zero, .b = e->one});
  }
  emit_vec_end(e, mark);
  e->vec = -1;
  for (k_val v = 1; locals && v < e->k->n; v++)
    if (s->keep[v] == stage + 1 && locals[v]) {
      e->kept[v].local = locals[v];
      e->kept[v].base = e->zero;
      e->kept[v].stride = e->one;
    }
  return !e->why;
}

static void finish_c(emitter *e, const job_list *l, int stage) {
  for (uint32_t i = 0; i < l->n; i++) {
    const job *j = &l->jobs[i];
    if (j->kind != JOB_REDUCE_C || j->stage != stage) continue;
    const k_node *n = &e->k->nodes[j->v];
    emit_set_value(e, j->v, emit_code(e, (l_instr){.code = L_FINISH, .dtype = n->dtype, .a = e->acc[j->v]}));
  }
}

/* All passes of a row, or of the tile [start, start + len) of one without reductions over c. */
static bool row(emitter *e, nest *s, const job_list *l, l_val start, l_val len, l_val once, const l_val *locals) {
  for (int stage = 0; stage < l->stages && !e->why; stage++) {
    if (!scalar_jobs(e, s, l, stage, once) || !vector_jobs(e, s, l, stage, start, len, 0, locals)) return false;
    finish_c(e, l, stage);
  }
  for (k_val v = 1; v < e->k->n; v++) {
    e->kept[v].local = 0;
    const k_node *n = &e->k->nodes[v];
    if (k_folds(n) && n->axis == s->c) e->acc[v] = 0;
  }
  return !e->why;
}

/* The arrays that hold what a row keeps between passes; they stand directly in the PAR. `locals` by node. */
static bool make_locals(emitter *e, nest *s, const job_list *l, l_val **locals) {
  *locals = arena_alloc(e->arena, e->k->n * sizeof **locals);
  if (!*locals) return emit_refuse(e, lower_no_memory);
  if (!nest_plan_passes(s, l)) return emit_refuse(e, s->why);
  for (k_val v = 1; v < e->k->n; v++)
    if (s->keep[v])
      (*locals)[v] = emit_code(e, (l_instr){.code = L_LOCAL, .dtype = e->k->nodes[v].dtype, .a = extent(e, s->c)});
  return !e->why;
}

/* ---- shapes without a reduction across rows ------------------------------------------------------------------------------------ */

static bool emit_plain(emitter *e, nest *s, int64_t grain) {
  int64_t size = s->inner >= 0 ? s->by->merge_tile : plain_tile(s);
  bool tiled = s->c >= 0 && !const_at_most(e->k, s->c, size);
  l_val tiles = tiled ? ceil_div(e, extent(e, s->c), size) : 0, start, len;
  k_mask par = s->par & ~axis_bit(s->inner);
  int64_t columns = axis_hint(e->k, s->c), whole = tiled ? (columns + size - 1) / size : 1;
  instance i = begin(e, par, tiles, grain, work_of(s, k_points(e->k, par) * whole));
  tile_of(e, s->c, i.extra, size, &start, &len);
  if (s->inner < 0) {
    if (!row(e, s, &s->first, start, len, i.extra, NULL)) return false;
  } else {
    l_val loop;
    uint32_t mark = emit_mark(e);
    loop = emit_for(e, e->zero, extent(e, s->inner), &e->at[s->inner]);
    (void)loop;
    if (!row(e, s, &s->first, start, len, i.extra, NULL)) return false;
    emit_end(e, mark);
  }
  end(e);
  return !e->why;
}

static bool emit_rows(emitter *e, nest *s, int64_t grain) {
  l_val *locals;
  begin(e, s->par, 0, grain, work_of(s, k_points(e->k, s->par)));
  if (!make_locals(e, s, &s->first, &locals)) return false;
  if (!row(e, s, &s->first, e->zero, extent(e, s->c), 0, locals)) return false;
  end(e);
  return !e->why;
}

/* Tiles of two axes: what is loaded along the turned axis is read in that direction and turned in a local array. */
static bool emit_turned(emitter *e, nest *s, int64_t grain) {
  const k_kernel *k = e->k;
  l_val rows = ceil_div(e, extent(e, s->turned), TURN_TILE), columns = ceil_div(e, extent(e, s->c), TURN_TILE);
  l_val size = emit_number(e, TURN_TILE * (TURN_TILE + 1)), pitch = emit_number(e, TURN_TILE + 1);
  int64_t tiles =
      ((axis_hint(k, s->turned) + TURN_TILE - 1) / TURN_TILE) * ((axis_hint(k, s->c) + TURN_TILE - 1) / TURN_TILE);
  instance i = begin(e, s->par, emit_index(e, L_IMUL, rows, columns), grain, work_of(s, k_points(k, s->par) * tiles));
  l_val row0, nrows, col0, ncols, step;
  tile_of(e, s->turned, emit_index(e, L_IDIV, i.extra, columns), TURN_TILE, &row0, &nrows);
  tile_of(e, s->c, emit_index(e, L_IMOD, i.extra, columns), TURN_TILE, &col0, &ncols);
  uint32_t mark;
  for (k_val v = 1; v < k->n; v++) {
    if (!s->needed[v] || !nest_load_is_turned(s, v)) continue;
    l_val local = emit_code(e, (l_instr){.code = L_LOCAL, .flags = L_SHARED, .dtype = k->nodes[v].dtype, .a = size});
    mark = emit_mark(e);
    emit_for(e, e->zero, ncols, &step);
    e->at[s->c] = emit_index(e, L_IADD, col0, step);
    e->vec = s->turned;
    e->at[s->turned] = row0;
    for (k_val u = 1; u < v; u++) /* a load may fall back to an earlier one, which lies as this one will */
      if (e->kept[u].local) {
        e->kept[u].base = step;
        e->kept[u].stride = pitch;
      }
    if (!emit_prepare(e, v)) return false;
    uint32_t inner = emit_mark(e);
    emit_vec(e, nrows);
    l_val loaded = emit_value(e, v);
    emit_code(e, (l_instr){.code = L_STORE, .imm = -(int64_t)local, .h = loaded, .a = step, .b = pitch});
    emit_vec_end(e, inner);
    e->vec = -1;
    emit_end(e, mark);
    e->kept[v].local = local;
  }
  emit_code(e, (l_instr){.code = L_SYNC});
  mark = emit_mark(e);
  emit_for(e, e->zero, nrows, &step);
  e->at[s->turned] = emit_index(e, L_IADD, row0, step);
  l_val base = emit_index(e, L_IMUL, step, pitch);
  for (k_val v = 1; v < k->n; v++)
    if (e->kept[v].local) {
      e->kept[v].base = base;
      e->kept[v].stride = e->one;
    }
  if (!scalar_jobs(e, s, &s->first, 0, 0) || !vector_jobs(e, s, &s->first, 0, col0, ncols, 0, NULL)) return false;
  emit_end(e, mark);
  for (k_val v = 1; v < k->n; v++) e->kept[v].local = 0;
  end(e);
  return !e->why;
}

/* ---- partial results ------------------------------------------------------------------------------------------------------------ */

/* Where the partials of one reduction lie: `each` elements (index) per instance of the first phase. */
typedef struct partials {
  int buffer, indices; /* indices: of arg reductions, else -1 */
  l_val each;
} partials;

static int scratch(emitter *e, uint8_t dtype, l_val size) {
  int b = l_buffer_add(e->p, (qn_dtype)dtype, BUF_SCRATCH, size);
  if (b < 0) emit_refuse(e, lower_no_memory);
  return b;
}

/* `instances` and `each` are index values of the prelude. A merge of a tile may read (and ignore) `slack` elements beyond. */
static partials make_partials(emitter *e, k_val v, l_val instances, l_val each, int64_t slack) {
  const k_node *n = &e->k->nodes[v];
  l_val size = emit_index(e, L_IADD, emit_index(e, L_IMUL, instances, each), emit_number(e, slack));
  partials p = {scratch(e, e->k->nodes[n->a].dtype, size), -1, each};
  if (is_arg(n)) p.indices = scratch(e, DTYPE_INDEX, size);
  return p;
}

static void partial(emitter *e, l_code code, k_val v, const partials *p, l_val instance_number, l_val offset) {
  l_val at = emit_index(e, L_IMUL, instance_number, p->each);
  if (offset) at = emit_index(e, L_IADD, at, offset);
  bool indices = p->indices >= 0;
  emit_code(e, (l_instr){.code = (uint8_t)code,
                         .a = e->acc[v],
                         .imm = p->buffer,
                         .b = at,
                         .d = indices ? at : 0,
                         .imm2 = indices ? p->indices : 0});
}

/* ---- few long rows ---------------------------------------------------------------------------------------------------------------- */

static bool scalars_from(emitter *e, const nest *s, const int *finished, l_val row_number) {
  for (k_val v = 1; v < e->k->n; v++) {
    if (!s->needed[v] || finished[v] < 0) continue;
    emit_set_value(
        e, v,
        emit_code(e, (l_instr){.code = L_LOAD, .dtype = e->k->nodes[v].dtype, .imm = finished[v], .a = row_number}));
  }
  return !e->why;
}

/* A phase between: each instance merges a group of partials into one, a subtree of the whole tree. */
static bool merge_groups(emitter *e, const nest *s, int stage, l_val blocks, l_val ngroups, const partials *parts,
                         const partials *groups, int64_t grain) {
  instance i = begin(e, s->par, ngroups, grain, s->by->merges * ORDER_LANES);
  l_val size = emit_number(e, s->by->merges), from = emit_index(e, L_IMUL, i.extra, size);
  l_val to = emit_index(e, L_IMIN, blocks, emit_index(e, L_IADD, from, size));
  for (uint32_t n = 0; n < s->first.n && !e->why; n++) {
    const job *j = &s->first.jobs[n];
    if (j->kind != JOB_REDUCE_C || j->stage != stage) continue;
    make_acc(e, j->v, 0, s->c);
    l_val b;
    uint32_t mark = emit_mark(e);
    emit_for(e, from, to, &b);
    partial(e, L_MERGE, j->v, &parts[j->v], emit_index(e, L_IADD, emit_index(e, L_IMUL, i.row, blocks), b), 0);
    emit_end(e, mark);
    partial(e, L_PARTIAL, j->v, &groups[j->v], emit_index(e, L_IADD, emit_index(e, L_IMUL, i.row, ngroups), i.extra),
            0);
    e->acc[j->v] = 0;
  }
  end(e);
  return !e->why;
}

static bool emit_split(emitter *e, nest *s, int64_t grain) {
  const k_kernel *k = e->k;
  const job_list *l = &s->first;
  int64_t block = s->by->split_block;
  while (axis_hint(k, s->c) / block > s->by->pieces) block *= 2;
  l_val blocks = ceil_div(e, extent(e, s->c), block), rows = points(e, s->par), lanes = emit_number(e, ORDER_LANES);
  l_val all = emit_index(e, L_IMUL, rows, blocks);
  int *finished = arena_alloc(e->arena, k->n * sizeof *finished);
  partials *parts = arena_alloc(e->arena, k->n * sizeof *parts), *groups = arena_alloc(e->arena, k->n * sizeof *parts);
  if (!finished || !parts || !groups) return emit_refuse(e, lower_no_memory);
  bool grouped = s->by->merges && axis_hint(k, s->c) / block > s->by->merges;
  l_val ngroups = grouped ? ceil_div(e, blocks, s->by->merges) : 0;
  memset(s->keep, 0, k->n);
  for (k_val v = 0; v < k->n; v++) finished[v] = -1;
  /* All scratch is made before the first phase. */
  int *results = arena_alloc(e->arena, k->n * sizeof *results);
  if (!results) return emit_refuse(e, lower_no_memory);
  for (uint32_t i = 0; i < l->n; i++) {
    const job *j = &l->jobs[i];
    if (j->kind != JOB_REDUCE_C) continue;
    l_val each = emit_order(&k->nodes[j->v]) == ORDER_INNER ? lanes : e->one;
    parts[j->v] = make_partials(e, j->v, all, each, 0);
    if (grouped) groups[j->v] = make_partials(e, j->v, emit_index(e, L_IMUL, rows, ngroups), each, 0);
    results[j->v] = scratch(e, k->nodes[j->v].dtype, rows);
  }
  int next_scalar = 0;
  for (int stage = 0; stage < l->stages && !e->why; stage++) {
    bool vectors = false, reduces = false, more = false;
    for (uint32_t i = 0; i < l->n; i++) {
      const job *j = &l->jobs[i];
      vectors |= j->along_c && j->stage == stage;
      reduces |= j->kind == JOB_REDUCE_C && j->stage == stage;
      more |= !j->along_c && j->stage >= next_scalar && j->stage <= stage + reduces;
    }
    if (vectors) {
      instance i = begin(e, s->par, blocks, grain, block);
      l_val start, len;
      tile_of(e, s->c, i.extra, block, &start, &len);
      if (!scalars_from(e, s, finished, i.row) || !vector_jobs(e, s, l, stage, start, len, start, NULL)) return false;
      l_val number = emit_index(e, L_IADD, emit_index(e, L_IMUL, i.row, blocks), i.extra);
      for (uint32_t n = 0; n < l->n; n++)
        if (l->jobs[n].kind == JOB_REDUCE_C && l->jobs[n].stage == stage)
          partial(e, L_PARTIAL, l->jobs[n].v, &parts[l->jobs[n].v], number, 0);
      end(e);
    }
    if (!reduces && !more) continue;
    if (reduces && grouped && !merge_groups(e, s, stage, blocks, ngroups, parts, groups, grain)) return false;
    instance i = begin(e, s->par, 0, grain, 1);
    if (!scalars_from(e, s, finished, i.row)) return false;
    for (uint32_t n = 0; n < l->n && !e->why; n++) {
      const job *j = &l->jobs[n];
      if (j->kind != JOB_REDUCE_C || j->stage != stage) continue;
      make_acc(e, j->v, 0, s->c);
      l_val b;
      uint32_t mark = emit_mark(e);
      l_val count = grouped ? ngroups : blocks;
      emit_for(e, e->zero, count, &b);
      partial(e, L_MERGE, j->v, grouped ? &groups[j->v] : &parts[j->v],
              emit_index(e, L_IADD, emit_index(e, L_IMUL, i.row, count), b), 0);
      emit_end(e, mark);
      l_val value = emit_code(e, (l_instr){.code = L_FINISH, .dtype = k->nodes[j->v].dtype, .a = e->acc[j->v]});
      emit_set_value(e, j->v, value);
      finished[j->v] = results[j->v];
      emit_code(e, (l_instr){.code = L_STORE, .imm = finished[j->v], .h = value, .a = i.row});
    }
    for (; next_scalar <= stage + reduces; next_scalar++)
      if (!scalar_jobs(e, s, l, next_scalar, 0)) return false;
    end(e);
  }
  for (k_val v = 1; v < k->n; v++) e->acc[v] = 0;
  return !e->why;
}

/* ---- reductions across rows -------------------------------------------------------------------------------------------------------- */

/* Can tiles of c be done apart? Not where a row is reduced or scanned along c, nor where something happens once a row. */
static bool separable(const emitter *e, const nest *s, const job_list *l) {
  if (s->c < 0) return false;
  for (uint32_t i = 0; i < l->n; i++)
    if (!l->jobs[i].along_c || l->jobs[i].kind == JOB_REDUCE_C) return false;
  for (k_val v = 1; v < e->k->n; v++)
    if (s->needed[v] && e->k->nodes[v].code == K_SCAN && e->k->nodes[v].axis == s->c) return false;
  return true;
}

static bool results_along_c(const emitter *e, const nest *s, k_val v) {
  const k_node *n = &e->k->nodes[v];
  return axis_in(e->k->nodes[n->a].axes | (n->b ? e->k->nodes[n->b].axes : 0), s->c);
}

static void open_row_accs(emitter *e, const nest *s, l_val results, const int *rows_kept) {
  for (k_val v = 1; v < e->k->n; v++) {
    const k_node *n = &e->k->nodes[v];
    if (!s->needed[v] || !k_folds(n) || n->axis != s->r || (rows_kept && rows_kept[v] >= 0)) continue;
    make_acc(e, v, results_along_c(e, s, v) ? results : 0, s->r);
  }
}

/* Single results are finished at once; many results inside the VECs that use them. */
static void finish_r(emitter *e, const nest *s) {
  for (uint32_t i = 0; i < s->first.n; i++) {
    const job *j = &s->first.jobs[i];
    if (j->kind != JOB_REDUCE_R || j->along_c || !e->acc[j->v]) continue;
    l_val f = emit_code(e, (l_instr){.code = L_FINISH, .dtype = e->k->nodes[j->v].dtype, .a = e->acc[j->v]});
    emit_set_value(e, j->v, f);
  }
}

static void close_accs(emitter *e) {
  for (k_val v = 1; v < e->k->n; v++) e->acc[v] = 0;
}

/* The loop over rows. Results of rows that are reduced in inner order, of which a slab is no whole part, go to a buffer. */
static bool loop_rows(emitter *e, nest *s, l_val from, l_val to, l_val start, l_val len, const l_val *locals,
                      const int *rows_kept, l_val row_number) {
  uint32_t mark = emit_mark(e);
  emit_for(e, from, to, &e->at[s->r]);
  emit_code(e, (l_instr){.code = L_POLL});
  job_list pushed = s->first;
  if (rows_kept) { /* those are stored below instead of pushed */
    pushed.jobs = arena_alloc(e->arena, (s->first.n + 1) * sizeof *pushed.jobs);
    if (!pushed.jobs) return emit_refuse(e, lower_no_memory);
    pushed.n = 0;
    for (uint32_t i = 0; i < s->first.n; i++)
      if (rows_kept[s->first.jobs[i].v] < 0) pushed.jobs[pushed.n++] = s->first.jobs[i];
  }
  if (!row(e, s, &pushed, start, len, 0, locals)) return false;
  for (uint32_t i = 0; rows_kept && i < s->first.n; i++) {
    k_val v = s->first.jobs[i].v;
    if (rows_kept[v] < 0) continue;
    l_val x = emit_value(e, e->k->nodes[v].a);
    l_val at = emit_index(e, L_IADD, emit_index(e, L_IMUL, row_number, extent(e, s->r)), e->at[s->r]);
    if (!x) return false;
    emit_code(e, (l_instr){.code = L_STORE, .imm = rows_kept[v], .h = x, .a = at});
  }
  emit_end(e, mark);
  return !e->why;
}

static bool emit_one_slab(emitter *e, nest *s, int64_t grain) {
  bool tiled =
      separable(e, s, &s->first) && separable(e, s, &s->second) && !const_at_most(e->k, s->c, s->by->merge_tile);
  l_val tile = emit_number(e, s->by->merge_tile), tiles = tiled ? ceil_div(e, extent(e, s->c), s->by->merge_tile) : 0,
        start, len;
  l_val results = tiled ? emit_index(e, L_IMIN, tile, extent(e, s->c)) : extent(e, s->c);
  int64_t parts = tiled ? (axis_hint(e->k, s->c) + s->by->merge_tile - 1) / s->by->merge_tile : 1;
  instance i = begin(e, s->par, tiles, grain, work_of(s, k_points(e->k, s->par) * parts));
  tile_of(e, s->c, i.extra, s->by->merge_tile, &start, &len);
  l_val *before, *behind;
  if (!make_locals(e, s, &s->first, &before)) return false;
  uint8_t *keep = arena_alloc(e->arena, e->k->n);
  if (!keep) return emit_refuse(e, lower_no_memory);
  memcpy(keep, s->keep, e->k->n);
  if (!make_locals(e, s, &s->second, &behind)) return false;
  uint8_t *keep_behind = s->keep;
  open_row_accs(e, s, results, NULL);
  s->keep = keep;
  bool ok = loop_rows(e, s, e->zero, extent(e, s->r), start, len, before, NULL, i.row);
  s->keep = keep_behind;
  if (!ok) return false;
  finish_r(e, s);
  if (!row(e, s, &s->second, start, len, 0, behind)) return false;
  close_accs(e);
  end(e);
  return !e->why;
}

typedef struct reach {
  const nest *s;
  bool *seen;
} reach;

static void reach_operand(void *ctx, k_val v) {
  reach *x = ctx;
  const k_node *n = &x->s->k->nodes[v];
  if (x->seen[v]) return;
  x->seen[v] = true;
  if (k_folds(n) && n->code != K_SCAN && n->axis == x->s->r) return;
  k_each_operand(x->s->k, v, reach_operand, x);
}

/* What follows the slabs on a GPU may be of two kinds: results along c, and others (column sums beside the sum of all). One instance for
 * both is one block of threads. Where the former need nothing of the latter they are merged in tiles of c, in a phase of their own. Then
 * this is what the former need, by node; NULL: it is not so. */
static bool *apart(emitter *e, const nest *s) {
  int along = 0, others = 0;
  if (!s->by->slab_tiles || s->c < 0 || const_at_most(e->k, s->c, s->by->merge_tile)) return NULL;
  reach x = {s, arena_alloc(e->arena, e->k->n)};
  if (!x.seen) return NULL;
  for (uint32_t i = 0; i < s->second.n; i++) {
    const job *j = &s->second.jobs[i];
    if (j->kind != JOB_EFFECT || j->stage) return NULL;
    *(j->along_c ? &along : &others) += 1;
    if (j->along_c) reach_operand(&x, j->v);
  }
  for (uint32_t i = 0; i < s->first.n; i++) {
    const job *j = &s->first.jobs[i];
    if (j->kind == JOB_REDUCE_R && !j->along_c && x.seen[j->v]) return NULL;
  }
  for (k_val v = 1; v < e->k->n; v++)
    if (s->needed[v] && e->k->nodes[v].code == K_SCAN && e->k->nodes[v].axis == s->c) return NULL;
  return along && others ? x.seen : NULL;
}

/* The phase that merges slabs and does what follows: all of it or, where it is apart, what columns need (`columns`, by node) or the
 * `rest`. `tiles` of c, 0: one; `results` along c in a tile. */
static bool merge_phase(emitter *e, nest *s, int64_t grain, l_val slabs, const partials *parts, const int *rows_kept,
                        const job_list *then, const bool *columns, bool rest, l_val tiles, l_val results) {
  const k_kernel *k = e->k;
  l_val start, len, *locals;
  instance i = begin(e, s->par, tiles, grain, s->by->merge_tile * s->by->slabs);
  tile_of(e, s->c, i.extra, s->by->merge_tile, &start, &len);
  if (!make_locals(e, s, then, &locals)) return false;
  for (uint32_t n = 0; n < s->first.n && !e->why; n++) {
    const job *j = &s->first.jobs[n];
    if (j->kind != JOB_REDUCE_R || (columns && columns[j->v] == rest)) continue;
    make_acc(e, j->v, j->along_c ? results : 0, s->r);
    l_val b;
    uint32_t mark = emit_mark(e);
    if (rows_kept[j->v] >= 0) {
      l_val base = emit_index(e, L_IMUL, i.row, extent(e, s->r));
      emit_vec(e, extent(e, s->r));
      uint8_t dtype = k->nodes[k->nodes[j->v].a].dtype;
      l_val x = emit_code(e, (l_instr){.code = L_LOAD, .dtype = dtype, .imm = rows_kept[j->v], .a = base, .b = e->one});
      emit_code(e, (l_instr){.code = L_PUSH, .a = e->acc[j->v], .b = x});
      emit_vec_end(e, mark);
    } else {
      emit_for(e, e->zero, slabs, &b);
      l_val from_slab = emit_index(e, L_IADD, emit_index(e, L_IMUL, i.row, slabs), b);
      partial(e, L_MERGE, j->v, &parts[j->v], from_slab, j->along_c && i.extra ? start : 0);
      emit_end(e, mark);
    }
  }
  finish_r(e, s);
  if (!row(e, s, then, start, len, 0, locals)) return false;
  close_accs(e);
  end(e);
  return !e->why;
}

static bool emit_slabs(emitter *e, nest *s, int64_t grain) {
  const k_kernel *k = e->k;
  int64_t slab = nest_slab(s);
  const int64_t width = s->by->merge_tile;
  bool tiled_rows = s->by->slab_tiles && separable(e, s, &s->first) && !const_at_most(e->k, s->c, width);
  int64_t tiles_hint = tiled_rows ? (axis_hint(k, s->c) + width - 1) / width : 1, most = s->by->slabs;
  while (most < 4 * s->by->slabs && s->by->slab_tiles && most * tiles_hint < s->by->instances) most *= 2;
  while (axis_hint(k, s->r) / slab * k_points(k, s->par) > most) slab *= 2;
  l_val length = emit_number(e, slab), slabs = ceil_div(e, extent(e, s->r), slab);
  l_val rows = points(e, s->par), all = emit_index(e, L_IMUL, rows, slabs);
  /* With tiles the partials of a slab are padded to whole ones. */
  l_val row_tiles = tiled_rows ? ceil_div(e, extent(e, s->c), width) : 0;
  l_val each = tiled_rows ? emit_index(e, L_IMUL, row_tiles, emit_number(e, width)) : extent(e, s->c);
  partials *parts = arena_alloc(e->arena, k->n * sizeof *parts);
  int *rows_kept = arena_alloc(e->arena, k->n * sizeof *rows_kept);
  if (!parts || !rows_kept) return emit_refuse(e, lower_no_memory);
  for (k_val v = 0; v < k->n; v++) rows_kept[v] = -1;
  for (uint32_t i = 0; i < s->first.n; i++) {
    const job *j = &s->first.jobs[i];
    if (j->kind != JOB_REDUCE_R) continue;
    const k_node *n = &k->nodes[j->v];
    if (!j->along_c && emit_order(n) == ORDER_INNER)
      rows_kept[j->v] = scratch(e, k->nodes[n->a].dtype, emit_index(e, L_IMUL, rows, extent(e, s->r)));
    else
      parts[j->v] = make_partials(e, j->v, all, j->along_c ? each : e->one, j->along_c ? width : 0);
  }
  bool *columns = apart(e, s);
  bool tiled = (columns || separable(e, s, &s->second)) && !const_at_most(e->k, s->c, width);
  l_val tile = emit_number(e, width), tiles = tiled ? ceil_div(e, extent(e, s->c), width) : 0;
  l_val results = tiled ? emit_index(e, L_IMIN, tile, extent(e, s->c)) : extent(e, s->c), start, len;

  instance i = begin(e, s->par, tiled_rows ? emit_index(e, L_IMUL, slabs, row_tiles) : slabs, grain,
                     work_of(s, k_points(k, s->par)) * slab / (axis_hint(k, s->r) + 1) / tiles_hint);
  l_val row_tile = tiled_rows ? emit_index(e, L_IMOD, i.extra, row_tiles) : 0;
  l_val number_of_slab = tiled_rows ? emit_index(e, L_IDIV, i.extra, row_tiles) : i.extra;
  tile_of(e, s->c, row_tile, width, &start, &len);
  l_val *locals, from = emit_index(e, L_IMUL, number_of_slab, length);
  if (!make_locals(e, s, &s->first, &locals)) return false;
  open_row_accs(e, s, tiled_rows ? tile : extent(e, s->c), rows_kept);
  l_val to = emit_index(e, L_IMIN, extent(e, s->r), emit_index(e, L_IADD, from, length));
  if (!loop_rows(e, s, from, to, start, len, locals, rows_kept, i.row)) return false;
  l_val number = emit_index(e, L_IADD, emit_index(e, L_IMUL, i.row, slabs), number_of_slab);
  for (uint32_t n = 0; n < s->first.n; n++)
    if (s->first.jobs[n].kind == JOB_REDUCE_R && rows_kept[s->first.jobs[n].v] < 0)
      partial(e, L_PARTIAL, s->first.jobs[n].v, &parts[s->first.jobs[n].v], number,
              row_tile && s->first.jobs[n].along_c ? start : 0);
  close_accs(e);
  end(e);

  if (!columns) return merge_phase(e, s, grain, slabs, parts, rows_kept, &s->second, NULL, false, tiles, results);
  for (int rest = 0; rest < 2; rest++) {
    job_list then = s->second;
    then.jobs = arena_alloc(e->arena, (s->second.n + 1) * sizeof *then.jobs);
    if (!then.jobs) return emit_refuse(e, lower_no_memory);
    then.n = 0;
    for (uint32_t n = 0; n < s->second.n; n++)
      if (s->second.jobs[n].along_c == !rest) then.jobs[then.n++] = s->second.jobs[n];
    if (!merge_phase(e, s, grain, slabs, parts, rows_kept, &then, columns, rest, rest ? 0 : tiles,
                     rest ? extent(e, s->c) : results))
      return false;
  }
  return true;
}

/* ---- products ------------------------------------------------------------------------------------------------------------------------ */

/* The load behind a factor (schedule.c made sure that there is one). */
static const k_node *factor_of(const k_kernel *k, k_val v) {
  const k_node *n = &k->nodes[v];
  return n->code == K_LOAD ? n : &k->nodes[n->a];
}

static l_val stride_of(emitter *e, k_form f, int axis) {
  qn_dim coef = 0;
  if (axis >= 0) (void)k_coef(e->k, f, (uint32_t)axis, &coef);
  return emit_dim(e, coef);
}

/* The tile and behind it room for the sums of as many chunks as wait for others at a time, which is no more than twice those beyond the
 * first. */
static l_val room_behind(emitter *e, l_val depth, int64_t tile) {
  enum { MOST = 24 };
  l_val last = emit_index(e, L_IADD, depth, emit_number(e, ORDER_DOT_CHUNK - 1));
  l_val beyond = emit_index(e, L_ISUB, emit_index(e, L_IDIV, last, emit_number(e, ORDER_DOT_CHUNK)), e->one);
  l_val most = emit_index(e, L_IMIN, emit_index(e, L_IADD, beyond, beyond), emit_number(e, MOST));
  l_val tiles = emit_index(e, L_IADD, emit_index(e, L_IMAX, most, e->zero), e->one);
  return emit_index(e, L_IMUL, tiles, emit_number(e, tile));
}

/* The operands of a product's tile, at the point of P, the tile and the slab of depth that an instance has. */
static bool product_tile(emitter *e, nest *s, l_tile *t, l_val row_tile, l_val col_tile, l_val from, l_val depth,
                         l_val size) {
  const k_kernel *k = e->k;
  const k_node *d = &k->nodes[s->dot], *x = factor_of(k, d->a), *y = factor_of(k, d->b);
  l_val row0, col0;
  tile_of(e, s->m, row_tile, s->tm, &row0, &t->rows);
  tile_of(e, s->n_axis, col_tile, s->tn, &col0, &t->cols);
  e->at[d->axis] = from;
  if (s->m >= 0) e->at[s->m] = row0;
  if (s->n_axis >= 0) e->at[s->n_axis] = col0;
  if (!depth) return true; /* where it is and how large, but no product */
  t->depth = depth;
  t->x_base = emit_form(e, x->at);
  t->y_base = emit_form(e, y->at);
  t->out = emit_code(e, (l_instr){.code = L_LOCAL, .dtype = d->dtype, .a = size});
  int number = l_tile_add(e->p, *t);
  if (number < 0) return emit_refuse(e, lower_no_memory);
  l_val tile = emit_code(e, (l_instr){.code = L_TILE, .imm = number});
  e->last_load[x->buffer] = e->last_load[y->buffer] = tile;
  return true;
}

/* The tiles of a product whose depth is cut into slabs: a phase that leaves one partial tile a slab behind. */
static bool product_slabs(emitter *e, nest *s, l_tile *t, l_val rows, l_val columns, l_val slabs, const partials *parts,
                          int64_t grain) {
  const k_kernel *k = e->k;
  const k_node *d = &k->nodes[s->dot];
  l_val slab = emit_number(e, s->dot_slab), size = emit_number(e, s->tm * s->tn);
  l_val tiles = emit_index(e, L_IMUL, rows, columns), step;
  instance i = begin(e, s->par, emit_index(e, L_IMUL, tiles, slabs), grain, s->tm * s->tn * s->dot_slab / 8);
  l_val number = emit_index(e, L_IMOD, i.extra, slabs), tile = emit_index(e, L_IDIV, i.extra, slabs);
  l_val from = emit_index(e, L_IMUL, number, slab);
  l_val depth = emit_index(e, L_IMIN, slab, emit_index(e, L_ISUB, extent(e, d->axis), from));
  l_val room = s->by->dot_room ? room_behind(e, slab, s->tm * s->tn) : size;
  if (!product_tile(e, s, t, emit_index(e, L_IDIV, tile, columns), emit_index(e, L_IMOD, tile, columns), from, depth,
                    room))
    return false;
  l_val at = emit_index(e, L_IADD, emit_index(e, L_IMUL, i.row, tiles), tile);
  at = emit_index(e, L_IADD, emit_index(e, L_IMUL, at, slabs), number);
  at = emit_index(e, L_IMUL, at, size);
  uint32_t mark = emit_mark(e);
  l_val local = e->zero;
  if (s->m >= 0 && s->n_axis >= 0) {
    emit_for(e, e->zero, t->rows, &step);
    local = emit_index(e, L_IMUL, step, emit_number(e, s->tn));
  }
  uint32_t inner = emit_mark(e);
  emit_vec(e, s->n_axis >= 0 ? t->cols : t->rows);
  l_val v =
      emit_code(e, (l_instr){.code = L_LOAD, .dtype = d->dtype, .imm = -(int64_t)t->out, .a = local, .b = e->one});
  emit_code(
      e, (l_instr){.code = L_STORE, .imm = parts->buffer, .h = v, .a = emit_index(e, L_IADD, at, local), .b = e->one});
  emit_vec_end(e, inner);
  if (s->m >= 0 && s->n_axis >= 0) emit_end(e, mark);
  end(e);
  return !e->why;
}

/* Merges a tile's slabs into a local array. What lies beyond the tile's edges is merged, too, and ignored. */
static l_val merge_slabs(emitter *e, nest *s, l_val row_number, l_val tile, l_val tiles, l_val slabs,
                         const partials *parts) {
  l_val size = emit_number(e, s->tm * s->tn), b;
  bool many = s->tm * s->tn > 1;
  l_val out = emit_code(e, (l_instr){.code = L_LOCAL, .dtype = e->k->nodes[s->dot].dtype, .a = size});
  make_acc(e, s->dot, many ? size : 0, e->k->nodes[s->dot].axis);
  l_val first = emit_index(e, L_IADD, emit_index(e, L_IMUL, row_number, tiles), tile);
  first = emit_index(e, L_IMUL, first, slabs);
  uint32_t mark = emit_mark(e);
  emit_for(e, e->zero, slabs, &b);
  partial(e, L_MERGE, s->dot, parts, emit_index(e, L_IADD, first, b), 0);
  emit_end(e, mark);
  if (many) emit_vec(e, size);
  l_val f = emit_code(e, (l_instr){.code = L_FINISH, .dtype = e->k->nodes[s->dot].dtype, .a = e->acc[s->dot]});
  emit_code(e, (l_instr){.code = L_STORE, .imm = -(int64_t)out, .h = f, .a = e->zero, .b = many ? e->one : 0});
  if (many) emit_vec_end(e, mark);
  e->acc[s->dot] = 0;
  return out;
}

static bool emit_product(emitter *e, nest *s, int64_t grain) {
  const k_kernel *k = e->k;
  const k_node *d = &k->nodes[s->dot], *x = factor_of(k, d->a), *y = factor_of(k, d->b);
  int64_t tm = s->tm, tn = s->tn;
  l_tile t = {.x = x->buffer, .y = y->buffer, .tile_rows = (int32_t)tm, .tile_cols = (int32_t)tn};
  l_val rows = ceil_div(e, extent(e, s->m), tm), columns = ceil_div(e, extent(e, s->n_axis), tn);
  l_val size = s->by->dot_room ? room_behind(e, extent(e, d->axis), tm * tn) : emit_number(e, tm * tn),
        pitch = emit_number(e, tn), tiles = emit_index(e, L_IMUL, rows, columns);
  t.x_m = stride_of(e, x->at, s->m);
  t.x_k = stride_of(e, x->at, d->axis);
  t.y_k = stride_of(e, y->at, d->axis);
  t.y_n = stride_of(e, y->at, s->n_axis);
  int64_t depth = axis_hint(k, d->axis);
  partials parts = {0};
  l_val slabs = 0;
  if (s->dot_slab) {
    slabs = ceil_div(e, extent(e, d->axis), s->dot_slab);
    l_val all = emit_index(e, L_IMUL, emit_index(e, L_IMUL, points(e, s->par), tiles), slabs);
    parts = make_partials(e, s->dot, all, emit_number(e, tm * tn), 0);
    if (!product_slabs(e, s, &t, rows, columns, slabs, &parts, grain)) return false;
    depth = 8 * (depth / s->dot_slab);
  }
  instance i = begin(e, s->par, tiles, grain, tm * tn * (depth < 1 ? 1 : depth) / 8);
  l_val step, row_tile = emit_index(e, L_IDIV, i.extra, columns), col_tile = emit_index(e, L_IMOD, i.extra, columns);
  if (!product_tile(e, s, &t, row_tile, col_tile, e->zero, slabs ? 0 : extent(e, d->axis), size)) return false;
  if (slabs) t.out = merge_slabs(e, s, i.row, i.extra, tiles, slabs, &parts);
  /* What follows: along n, or along m where that is longer and n short. */
  bool down = s->n_axis < 0 ||
              (s->m >= 0 && axis_hint(k, s->n_axis) < SHORT_AXIS && axis_hint(k, s->m) > axis_hint(k, s->n_axis));
  int along = down ? s->m : s->n_axis, across = down ? s->n_axis : s->m;
  uint32_t mark = emit_mark(e);
  l_val base = e->zero, row0 = s->m < 0 ? 0 : e->at[s->m], col0 = s->n_axis < 0 ? 0 : e->at[s->n_axis];
  if (across >= 0) {
    emit_for(e, e->zero, down ? t.cols : t.rows, &step);
    e->at[across] = emit_index(e, L_IADD, down ? col0 : row0, step);
    base = down ? step : emit_index(e, L_IMUL, step, pitch);
  }
  e->kept[s->dot].local = t.out;
  e->kept[s->dot].base = base;
  e->kept[s->dot].stride = along < 0 ? 0 : down ? pitch : e->one;
  e->vec = along;
  if (along >= 0) {
    e->at[along] = down ? row0 : col0;
    for (uint32_t n = 0; n < s->n; n++)
      if (!emit_prepare_effect(e, s->effects[n])) return false;
    uint32_t inner = emit_mark(e);
    emit_vec(e, down ? t.rows : t.cols);
    for (uint32_t n = 0; n < s->n; n++)
      if (!emit_effect(e, s->effects[n])) return false;
    emit_vec_end(e, inner);
  } else {
    for (uint32_t n = 0; n < s->n; n++)
      if (!emit_effect(e, s->effects[n])) return false;
  }
  e->vec = -1;
  if (across >= 0) emit_end(e, mark);
  e->kept[s->dot].local = 0;
  end(e);
  return !e->why;
}

/* ---- updates in place ------------------------------------------------------------------------------------------------------------------ */

/* Axes that occur plainly in the address are independent: different points of them are different elements. The others go in
 * row-major order. */
static bool emit_update(emitter *e, nest *s, int64_t grain) {
  const k_kernel *k = e->k;
  k_val effect = s->effects[0];
  const k_node *n = &k->nodes[effect];
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
    if (axis_in(ordered, a)) along = a; /* the last one: a VEC keeps the order */
  k_mask par = apart & ~axis_bit(along);
  bool tiled = !in_order && along >= 0 && !const_at_most(e->k, along, plain_tile(s));
  l_val tiles = tiled ? ceil_div(e, extent(e, along), plain_tile(s)) : 0, start, len;
  instance i = begin(e, par, tiles, grain, work_of(s, k_points(k, par)));
  tile_of(e, along, i.extra, plain_tile(s), &start, &len);
  uint32_t marks[K_AXES_MAX];
  int loops = 0;
  for (int a = 0; a < (int)k->naxes; a++) {
    if (!axis_in(ordered, a) || a == along) continue;
    marks[loops++] = emit_mark(e);
    emit_for(e, e->zero, extent(e, a), &e->at[a]);
    emit_code(e, (l_instr){.code = L_POLL});
  }
  e->vec = along;
  if (along >= 0) {
    e->at[along] = start;
    if (!emit_prepare_effect(e, effect)) return false;
    uint32_t inner = emit_mark(e);
    emit_vec(e, len);
    if (!emit_effect(e, effect)) return false;
    emit_vec_end(e, inner);
  } else if (!emit_effect(e, effect)) {
    return false;
  }
  e->vec = -1;
  while (loops) emit_end(e, marks[--loops]);
  end(e);
  return !e->why;
}

bool nest_emit(emitter *e, nest *s, int64_t grain) {
  if (e->body) { /* not the first nest: its sizes stand in its phase */
    emit_code(e, (l_instr){.code = L_PHASE});
    e->phase_open = true;
  }
  switch (s->shape) {
  case SHAPE_PLAIN: return emit_plain(e, s, grain);
  case SHAPE_TURNED: return emit_turned(e, s, grain);
  case SHAPE_ROWS: return emit_rows(e, s, grain);
  case SHAPE_SPLIT: return emit_split(e, s, grain);
  case SHAPE_SLABS: return s->one_slab ? emit_one_slab(e, s, grain) : emit_slabs(e, s, grain);
  case SHAPE_PRODUCT: return emit_product(e, s, grain);
  default: return emit_update(e, s, grain);
  }
}
