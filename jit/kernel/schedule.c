/* K to L: the shapes of loop nests. sched_build.c fills in addresses and values.
 *
 * The effects of a kernel are split into nests that run one after the other (only updates in place need more than one).
 * In a nest every axis has a role:
 *   c      the axis of the VEC: the one that reductions of inner order run over, else the one with stride 1
 *   r      the axis that is reduced across rows: reductions of outer order, products that fit no register tile, and what is
 *          reduced of row results (a mean over all of a batch's losses). -1: none
 *   P      all others: instances of the PAR
 * A row is one point of P and r. Its work is a list of passes over c: a pass computes what does not depend on reductions over c,
 * or only on those that earlier passes have finished. A value that is needed in two passes is computed again if that is cheap,
 * and kept in a local array otherwise.
 *
 * Shapes
 *   plain    no reductions: PAR (P, tiles of c) { VEC }. Where c is short and another axis long, a FOR over c around a VEC over
 *            tiles of that axis
 *   turned   a plain nest that loads along one axis and stores along another: tiles of 64 x 64 go through a local array
 *   rows     reductions over c: PAR P { pass; pass; .. }
 *   split    rows that are few and long: per pass a phase over blocks of the row with partial results, then a phase that merges
 *   slabs    r exists: PAR (P, slabs of r) { FOR r { row } partials }, then PAR (P, tiles of c) { merge; what follows }. With one
 *            slab both are one phase. Many rows too short for a VEC are reduced this way, too: then c runs over the rows
 *   product  PAR (P, tiles of m x n) { TILE; FOR m { VEC n { what follows; store } } }. Few tiles of much depth are cut along it:
 *            PAR (P, tiles, slabs of the depth) { TILE; partials }, then PAR (P, tiles) { merge; what follows }
 *   update   stores in place at computed addresses: PAR (independent axes) { FOR .. in order }
 * Which one is taken depends on the recorded sizes; each is right for all sizes. */
#include "jit/kernel/sched_impl.h"

#include <stdlib.h>
#include <string.h>

#include "jit/kernel/lower.h"

const schedule_numbers schedule_numbers_of[] = {
    [TARGET_CPU] = {.launch_ns = 60,
                    .phase_ns = 60,
                    .pool_ns = 2000,
                    .pool_points = 32768,
                    .plain_least = 8192,
                    .plain_most = 8192,
                    .instances = 1,
                    .split_row = 65536,
                    .split_rows = 8,
                    .split_block = 16 * ORDER_BLOCK,
                    .pieces = 64,
                    .slab_work = 65536,
                    .slabs = 64,
                    .merge_tile = 1024,
                    .keep_row = 65536,
                    .keep_weight = 6,
                    .dot_rows = 64,
                    .dot_cols = 128,
                    .dot_most_rows = 256,
                    .dot_tiles = 24,
                    .dot_slab = 8 * ORDER_DOT_CHUNK,
                    .dot_spread = 4},
    [TARGET_GPU] = {.launch_ns = 1500,
                    .phase_ns = 1500,
                    .node_ns = 3,
                    .plain_least = 256,
                    .plain_most = 2048,
                    .instances = 8192,
                    .split_row = 16384,
                    .split_rows = 128,
                    .split_block = 4 * ORDER_BLOCK,
                    .pieces = 4096,
                    .merges = 64,
                    .grown = 16384,
                    .slab_work = 16384,
                    .slabs = 128,
                    .merge_tile = 64,
                    .slab_tiles = true,
                    .keep_row = 8192,
                    .keep_weight = 6,
                    .dot_rows = 16,
                    .dot_cols = 16,
                    .dot_most_rows = 64,
                    .dot_tiles = 264,
                    .dot_least = 64,
                    .dot_slab = ORDER_DOT_CHUNK,
                    .dot_spread = 128,
                    .dot_room = true},
};

static const char differing[] = "effects over different axes";

static bool refuse(nest *s, const char *why) {
  if (!s->why) s->why = why;
  return false;
}

/* ---- what depends on what ---------------------------------------------------------------------------------------------- */

typedef void (*visitor)(void *ctx, k_val operand);

static void each_of_form(const k_kernel *k, k_form f, visitor visit, void *ctx) {
  const k_linear *l = &k->forms[f];
  for (uint32_t i = 0; i < l->n; i++) {
    const k_atom *a = &k->atoms[l->terms[i].atom];
    if (a->kind == ATOM_VALUE) visit(ctx, a->ref);
    if (a->kind == ATOM_DIV || a->kind == ATOM_MOD) each_of_form(k, a->of, visit, ctx);
  }
}

/* Calls `visit` for every value that a node is computed from: its operands, and values in its address and guard. */
void k_each_operand(const k_kernel *k, k_val v, visitor visit, void *ctx) {
  const k_node *n = &k->nodes[v];
  if (n->a) visit(ctx, n->a);
  if (n->b) visit(ctx, n->b);
  if (n->c) visit(ctx, n->c);
  each_of_form(k, n->at, visit, ctx);
  const k_condition *c = &k->guards[n->guard];
  for (uint32_t i = 0; i < c->n; i++) each_of_form(k, c->ranges[i].form, visit, ctx);
  if (c->where) visit(ctx, c->where);
}

static void mark_needed(void *ctx, k_val v) { ((nest *)ctx)->needed[v] = true; }

static void find_needed(nest *s) {
  for (uint32_t i = 0; i < s->n; i++) {
    s->needed[s->effects[i]] = true;
    s->axes |= s->k->nodes[s->effects[i]].axes;
  }
  for (uint32_t v = s->k->n; v-- > 1;)
    if (s->needed[v]) k_each_operand(s->k, v, mark_needed, s);
  for (uint32_t v = 1; v < s->k->n; v++) {
    const k_node *n = &s->k->nodes[v];
    if (s->needed[v] && k_folds(n)) s->axes |= axis_bit(n->axis);
  }
}

/* ---- roles of axes ------------------------------------------------------------------------------------------------------- */

/* How good an axis is for the VEC: the number of elements that are loaded and stored along it with stride 1. */
static double axis_score(const nest *s, int axis, bool stores_only) {
  const k_kernel *k = s->k;
  double score = 0;
  for (uint32_t v = 1; v < k->n; v++) {
    const k_node *n = &k->nodes[v];
    bool store = n->code == K_STORE || n->code == K_STOREF;
    qn_dim coef;
    if (!s->needed[v] || !(store || (n->code == K_LOAD && !stores_only)) || !axis_in(n->axes, axis)) continue;
    if (k_coef(k, n->at, (uint32_t)axis, &coef) && coef == 1) score += (double)k_points(k, n->axes) * (store ? 2 : 1);
  }
  return score;
}

static int best_axis(const nest *s, k_mask among) {
  int best = -1;
  double top = -1;
  /* by stores alone at first, so that a transposed copy writes along rows */
  for (int pass = 0; pass < 2 && top <= 0; pass++)
    for (int a = 0; a < (int)s->k->naxes; a++) {
      if (!axis_in(among, a)) continue;
      double score = axis_score(s, a, pass == 0);
      if (score >= top) {
        top = score;
        best = a;
      }
    }
  return best;
}

/* Can all reductions and scans be done with roles r and c? */
static bool roles_fit(const nest *s, int r, int c) {
  const k_kernel *k = s->k;
  for (uint32_t v = 1; v < k->n; v++) {
    const k_node *n = &k->nodes[v];
    if (!s->needed[v] || !k_folds(n)) continue;
    if (n->axis != r && n->axis != c) return false;
    k_mask body = operand_axes(k, n);
    if (n->axis == r && n->code != K_DOT && n->order == ORDER_INNER && axis_in(body, c) && nest_order(n) != ORDER_FREE)
      return false;
    if (n->axis == c && n->code == K_DOT) return false;
    if (n->axis == r && n->code == K_SCAN && !axis_in(body, c)) return false; /* a scan over r must vary along c */
  }
  return true;
}

/* Is the nest one reduction of many short rows? Then sets r to the rows' axis and c to another, so that the VEC runs over the rows. The
 * length must be a plain number, since an accumulator of inner order with many results takes at most 64 pushes. */
static bool short_rows(nest *s, k_mask inner) {
  const k_kernel *k = s->k;
  int folds = 0, r = -1, c = -1;
  int64_t length;
  for (uint32_t v = 1; v < k->n; v++) {
    const k_node *n = &k->nodes[v];
    if (!s->needed[v] || !k_folds(n)) continue;
    if (folds++ || n->code != K_REDUCE) return false;
    r = n->axis;
  }
  if (r < 0 || inner != axis_bit(r)) return false;
  if (!dim_is_const(k->dims, k->axes[r].extent, &length) || length > SHORT_AXIS) return false;
  for (uint32_t i = 0; i < s->n; i++)
    if (axis_in(k->nodes[s->effects[i]].axes, r)) return false;
  c = best_axis(s, s->axes & ~axis_bit(r));
  if (c < 0 || axis_hint(k, c) < ROWS_FOR_VEC) return false;
  for (uint32_t i = 0; i < s->n; i++)
    if (!axis_in(k->nodes[s->effects[i]].axes, c)) return false;
  s->c = c;
  s->r = r;
  s->par = s->axes & ~axis_bit(c) & ~axis_bit(r);
  return true;
}

static bool choose_roles(nest *s) {
  const k_kernel *k = s->k;
  k_mask inner = 0, outer = 0;
  for (uint32_t v = 1; v < k->n; v++) {
    const k_node *n = &k->nodes[v];
    if (!s->needed[v] || !k_folds(n)) continue;
    if (n->code != K_DOT && n->order == ORDER_INNER)
      inner |= axis_bit(n->axis);
    else
      outer |= axis_bit(n->axis);
  }
  s->r = s->c = -1;
  if (!outer && short_rows(s, inner)) return true;
  if (!(inner | outer)) {
    s->c = best_axis(s, s->axes);
    s->par = s->axes & ~axis_bit(s->c);
    return true;
  }
  /* candidates for c; the other reduced axis, if there is one, becomes r */
  k_mask tried = 0, candidates = inner ? inner : s->axes & ~outer;
  while (candidates & ~tried) {
    int c = best_axis(s, candidates & ~tried);
    tried |= axis_bit(c);
    k_mask rest = (inner | outer) & ~axis_bit(c);
    int r = -1;
    for (int a = 0; a < (int)k->naxes; a++)
      if (axis_in(rest, a)) r = a;
    if ((rest & ~axis_bit(r)) || !roles_fit(s, r, c)) continue;
    s->c = c;
    s->r = r;
    s->par = s->axes & ~axis_bit(c) & ~axis_bit(r);
    return true;
  }
  /* There is no axis besides: one sum of outer order, a product of vectors, or a scan that varies along no other axis. */
  int a = best_axis(s, outer);
  if (!inner && !(outer & ~axis_bit(a)) && (!candidates || roles_fit(s, -1, a))) {
    bool product = !roles_fit(s, -1, a);
    s->c = product ? -1 : a;
    s->r = product ? a : -1;
    s->par = s->axes & ~axis_bit(a);
    return true;
  }
  return refuse(s, "reductions over several axes");
}

/* ---- stages and jobs ------------------------------------------------------------------------------------------------------- */

typedef struct gather {
  nest *s;
  uint8_t stage;
  bool after, early;
} gather;

static void gather_operand(void *ctx, k_val v) {
  gather *g = ctx;
  if (g->s->stage[v] > g->stage) g->stage = g->s->stage[v];
  g->after |= g->s->after[v];
}

static bool find_stages(nest *s) {
  const k_kernel *k = s->k;
  for (uint32_t v = 1; v < k->n; v++) {
    const k_node *n = &k->nodes[v];
    if (!s->needed[v]) continue;
    gather g = {.s = s};
    k_each_operand(k, v, gather_operand, &g);
    s->stage[v] = g.stage;
    s->after[v] = g.after;
    if (nest_reduces(s, n)) {
      if (g.after) return refuse(s, "reductions over one axis in turn");
      s->after[v] = true;
      s->stage[v] = 0;
    } else if (n->code == K_REDUCE && n->axis == s->c) {
      if (s->stage[v] == UINT8_MAX - 2) return refuse(s, "too many passes");
      s->stage[v]++;
    } else if (n->code == K_SCAN && n->axis == s->r) {
      if (!axis_in(n->axes, s->c)) return refuse(s, "a running value without an axis to run beside");
      s->outer_scan = true;
    }
    if (s->after[v] && axis_in(n->axes, s->r)) return refuse(s, "a reduction's result is needed along its axis");
  }
  return true;
}

typedef struct reach {
  const nest *s;
  bool *seen;
} reach;

static void reach_operand(void *ctx, k_val v) {
  reach *x = ctx;
  if (x->seen[v]) return;
  x->seen[v] = true;
  if (!nest_reduces(x->s, &x->s->k->nodes[v])) k_each_operand(x->s->k, v, reach_operand, x);
}

void nest_reach(const nest *s, k_val v, bool *seen) { reach_operand(&(reach){s, seen}, v); }

static void add_job(job_list *l, const nest *s, job_kind kind, k_val v) {
  const k_node *n = &s->k->nodes[v];
  job j = {.kind = (uint8_t)kind, .v = v, .stage = s->stage[v]};
  k_mask m = n->axes;
  if (kind == JOB_REDUCE_C) {
    j.stage = (uint8_t)(s->stage[v] - 1);
    m = axis_bit(s->c);
  }
  if (kind == JOB_REDUCE_R) {
    gather g = {.s = (nest *)s};
    k_each_operand(s->k, v, gather_operand, &g);
    j.stage = g.stage;
    m = operand_axes(s->k, n);
  }
  j.along_c = axis_in(m, s->c);
  if (j.stage + 1 > l->stages) l->stages = j.stage + 1;
  l->jobs[l->n++] = j;
}

/* Sorts the work into jobs of every row (s->first) and jobs after the reduction over r (s->second). False when memory is short. */
static bool find_jobs(nest *s) {
  const k_kernel *k = s->k;
  bool *rows = s->in_rows = calloc(k->n, sizeof *rows), *rest = s->in_rest = calloc(k->n, sizeof *rest);
  s->first.jobs = calloc(k->n, sizeof *s->first.jobs);
  s->second.jobs = calloc(k->n, sizeof *s->second.jobs);
  if (!rows || !rest || !s->first.jobs || !s->second.jobs) return refuse(s, lower_no_memory);
  for (uint32_t i = 0; i < s->n; i++) {
    k_val e = s->effects[i];
    bool in_row = s->r < 0 || axis_in(k->nodes[e].axes, s->r);
    if (in_row && s->after[e]) return refuse(s, "a reduction's result is needed along its axis");
    nest_reach(s, e, in_row ? rows : rest);
  }
  reach into_rows = {s, rows};
  for (uint32_t v = 1; v < k->n; v++)
    if (s->needed[v] && nest_reduces(s, &k->nodes[v])) k_each_operand(k, v, reach_operand, &into_rows);
  for (uint32_t v = 1; v < k->n; v++) {
    const k_node *n = &k->nodes[v];
    if (!s->needed[v]) continue;
    if (n->code == K_REDUCE && n->axis == s->c) {
      if (rows[v]) add_job(&s->first, s, JOB_REDUCE_C, v);
      if (rest[v]) add_job(&s->second, s, JOB_REDUCE_C, v);
    } else if (nest_reduces(s, n)) {
      add_job(&s->first, s, JOB_REDUCE_R, v);
    } else if (k_is_effect(n)) {
      add_job(s->r < 0 || axis_in(n->axes, s->r) ? &s->first : &s->second, s, JOB_EFFECT, v);
    }
    if (n->code == K_SCAN && n->axis == s->r && rest[v]) return refuse(s, "a running value is needed after its axis");
  }
  /* An effect that runs along c is done at all points of P, so it cannot be one that must be done only once. */
  for (uint32_t i = 0; i < s->first.n + s->second.n; i++) {
    const job *j = i < s->first.n ? &s->first.jobs[i] : &s->second.jobs[i - s->first.n];
    k_mask missing = s->par & ~k->nodes[j->v].axes;
    if (j->kind != JOB_EFFECT) continue;
    /* An effect that does not run along c would not be made at all if the axis of a loop around it were empty. */
    if (!j->along_c && s->shape == SHAPE_PLAIN) missing |= axis_bit(s->c) | axis_bit(s->inner);
    for (int a = 0; a < (int)k->naxes; a++) {
      int64_t c;
      bool filled = dim_is_const(k->dims, k->axes[a].extent, &c) && c > 0;
      if (axis_in(missing, a) && (j->along_c || !filled)) return refuse(s, differing);
    }
  }
  return true;
}

/* ---- products ------------------------------------------------------------------------------------------------------------ */

/* The load of a product's factor, perhaps behind a cast, if it is unguarded and affine in all axes; else 0. Where it begins may be data that is
 * the same everywhere, as the row that a host number picks. */
static k_val factor_load(const k_kernel *k, k_val v) {
  const k_node *n = &k->nodes[v];
  if (n->code == K_OP && n->sub == KOP_cast) {
    const k_node *x = &k->nodes[n->a];
    if (x->code == K_LOAD && dtype_is_narrow(x->dtype)) {
      v = n->a;
      n = x;
    }
  }
  if (n->code != K_LOAD || n->guard) return 0;
  for (int a = 0; a < (int)k->naxes; a++) {
    qn_dim coef;
    if (!k_coef(k, n->at, (uint32_t)a, &coef)) return 0;
  }
  const k_linear *l = &k->forms[n->at];
  for (uint32_t i = 0; i < l->n; i++)
    if (k->atoms[l->terms[i].atom].kind == ATOM_VALUE && k->nodes[k->atoms[l->terms[i].atom].ref].axes) return 0;
  return v;
}

/* Chooses the tiles of a product, and slabs of its depth where there are few tiles. Only the kernel's `first` nest may have slabs, since they
 * need two phases. */
static void size_product(nest *s, bool first) {
  const k_kernel *k = s->k;
  int64_t tm = s->m < 0 ? 1 : s->by->dot_rows, tn = s->n_axis < 0 ? 1 : s->by->dot_cols;
  int64_t rows = axis_hint(k, s->m), columns = axis_hint(k, s->n_axis), points = k_points(k, s->par);
  while (tm > 1 && tn > 1 && tm < s->by->dot_most_rows && rows * columns * points / (tm * tn * 4) >= s->by->dot_tiles) {
    tm *= 2;
    tn *= 2;
  }
  /* no larger than the product: the columns are the pitch of the local array */
  while (tm > 1 && const_at_most(k, s->m, tm / 2)) tm /= 2;
  while (tn > 1 && const_at_most(k, s->n_axis, tn / 2)) tn /= 2;
  while (tm * tn < s->by->dot_least && s->n_axis >= 0 && !const_at_most(k, s->n_axis, tn)) tn *= 2;
  while (tm * tn < s->by->dot_least && s->m >= 0 && !const_at_most(k, s->m, tm)) tm *= 2;
  s->tm = tm;
  s->tn = tn;
  s->dot_slab = 0;
  double tiles = (double)points * (double)tiles_hint(k, s->m, tm) * (double)tiles_hint(k, s->n_axis, tn);
  int64_t depth = axis_hint(k, k->nodes[s->dot].axis), slab = s->by->dot_slab;
  if (!first || tiles >= (double)s->by->dot_spread || depth < 2 * slab) return;
  while (tiles * (double)(depth / slab) > 8 * (double)s->by->dot_spread) slab *= 2;
  s->dot_slab = slab;
}

/* Is the nest one product of plain loads, followed by elementwise work? Then sets the roles of its axes and its tiles. */
static bool find_gemm(nest *s, bool first) {
  const k_kernel *k = s->k;
  k_val dot = 0;
  for (uint32_t v = 1; v < k->n; v++) {
    if (!s->needed[v] || !k_folds(&k->nodes[v])) continue;
    if (dot || k->nodes[v].code != K_DOT) return false;
    dot = v;
  }
  if (!dot) return false;
  const k_node *d = &k->nodes[dot];
  k_val x = factor_load(k, d->a), y = factor_load(k, d->b);
  if (!x || !y || k->nodes[x].dtype != k->nodes[y].dtype) return false;
  for (uint32_t i = 0; i < s->n; i++)
    if (k->nodes[s->effects[i]].axes != d->axes) return false;
  k_mask left = k->nodes[x].axes & ~k->nodes[y].axes & ~axis_bit(d->axis);
  k_mask right = k->nodes[y].axes & ~k->nodes[x].axes & ~axis_bit(d->axis);
  s->m = s->n_axis = -1;
  for (int a = 0; a < (int)k->naxes; a++) {
    if (axis_in(left, a) && (s->m < 0 || axis_hint(k, a) >= axis_hint(k, s->m))) s->m = a;
    if (axis_in(right, a) && (s->n_axis < 0 || axis_score(s, a, true) > 0 || axis_hint(k, a) > axis_hint(k, s->n_axis)))
      s->n_axis = a;
  }
  s->dot = dot;
  s->shape = SHAPE_PRODUCT;
  s->r = s->c = -1;
  s->par = d->axes & ~axis_bit(s->m) & ~axis_bit(s->n_axis);
  size_product(s, first);
  return true;
}

/* ---- choosing a shape -------------------------------------------------------------------------------------------------------- */

static bool any_scan(const nest *s) {
  for (uint32_t v = 1; v < s->k->n; v++)
    if (s->needed[v] && s->k->nodes[v].code == K_SCAN) return true;
  return false;
}

static bool is_unit(const k_kernel *k, k_form f, int axis) {
  qn_dim coef;
  return k_coef(k, f, (uint32_t)axis, &coef) && coef == 1;
}

/* An axis of P along which some loads have stride 1 that have another stride along c; -1 if there is none. */
static int turned_axis(const nest *s) {
  const k_kernel *k = s->k;
  if (s->c < 0 || axis_hint(k, s->c) < SHORT_AXIS) return -1;
  for (uint32_t v = 1; v < k->n; v++) {
    const k_node *n = &k->nodes[v];
    qn_dim along;
    if (!s->needed[v] || n->code != K_LOAD || !axis_in(n->axes, s->c)) continue;
    if (!k_coef(k, n->at, (uint32_t)s->c, &along) || along == 1 || along == 0) continue;
    for (int a = 0; a < (int)k->naxes; a++) {
      if (!axis_in(s->par, a) || axis_hint(k, a) < SHORT_AXIS || !is_unit(k, n->at, a)) continue;
      bool all = true;
      for (uint32_t i = 0; i < s->n; i++)
        all &= axis_in(k->nodes[s->effects[i]].axes, a) && axis_in(k->nodes[s->effects[i]].axes, s->c);
      if (all) return a;
    }
  }
  return -1;
}

bool nest_load_is_turned(const nest *s, k_val v) {
  const k_node *n = &s->k->nodes[v];
  qn_dim along;
  return n->code == K_LOAD && axis_in(n->axes, s->c) && axis_in(n->axes, s->turned) &&
         is_unit(s->k, n->at, s->turned) && k_coef(s->k, n->at, (uint32_t)s->c, &along) && along != 1;
}

/* In a plain nest with a short c, lets the VEC run over the longest axis instead, with a FOR over c around it. Among equally long axes it
 * takes the innermost, along which neighbours lie nearest in memory. */
static void lengthen(nest *s) {
  const k_kernel *k = s->k;
  int longest = -1;
  if (s->c < 0 || axis_hint(k, s->c) >= SHORT_AXIS) return;
  for (int a = 0; a < (int)k->naxes; a++)
    if (axis_in(s->par, a) && (longest < 0 || axis_hint(k, a) >= axis_hint(k, longest))) longest = a;
  if (longest < 0 || axis_hint(k, longest) < 4 * axis_hint(k, s->c)) return;
  for (uint32_t i = 0; i < s->n; i++)
    if (!axis_in(k->nodes[s->effects[i]].axes, longest) || !axis_in(k->nodes[s->effects[i]].axes, s->c)) return;
  s->inner = s->c;
  s->c = longest;
  s->par &= ~axis_bit(longest);
}

int64_t nest_slab(const nest *s) {
  for (uint32_t v = 1; v < s->k->n; v++) {
    const k_node *n = &s->k->nodes[v];
    if (s->needed[v] && n->code == K_DOT && n->axis == s->r) return ORDER_DOT_CHUNK;
  }
  return ORDER_OUTER_CHAIN;
}

/* Will calls come in which the axis has many more elements than in the recorded one? */
static bool may_grow(const nest *s, int axis) {
  int64_t c;
  return axis >= 0 && s->by->grown && !s->k->classed && !dim_is_const(s->k->dims, s->k->axes[axis].extent, &c);
}

/* The elements of an axis that few instances go through, which is cut into more of them if that is many: those of the recorded call, or `grown`. */
static int64_t grown(const nest *s, int axis) {
  int64_t size = axis_hint(s->k, axis);
  return size < s->by->grown && may_grow(s, axis) ? s->by->grown : size;
}

static bool all_const(const k_kernel *k, k_mask axes) {
  int64_t c;
  for (int a = 0; a < (int)k->naxes; a++)
    if (axis_in(axes, a) && !dim_is_const(k->dims, k->axes[a].extent, &c)) return false;
  return true;
}

static bool choose_shape(nest *s, bool first) {
  const k_kernel *k = s->k;
  if (find_gemm(s, first)) return true;
  if (!choose_roles(s)) return false;
  bool reduces = false;
  for (uint32_t v = 1; v < k->n; v++) reduces |= s->needed[v] && k_folds(&k->nodes[v]);
  if (!reduces) {
    s->turned = turned_axis(s);
    s->shape = s->turned >= 0 ? SHAPE_TURNED : SHAPE_PLAIN;
    if (s->turned >= 0)
      s->par &= ~axis_bit(s->turned);
    else
      lengthen(s);
  } else {
    s->shape = SHAPE_ROWS;
  }
  if (!find_stages(s) || !find_jobs(s)) return false;
  if (!reduces) return true;
  int64_t rows = k_points(k, s->par);
  if (s->r >= 0) {
    s->shape = SHAPE_SLABS;
    int64_t most = grown(s, s->r), work;
    if (__builtin_mul_overflow(k_points(k, s->axes & ~axis_bit(s->r)), most, &work)) work = INT64_MAX;
    bool small = work < s->by->slab_work || most <= nest_slab(s);
    s->one_slab = !first || s->outer_scan || small || rows >= s->by->slabs;
    s->alone = !first && !small && rows < s->by->slabs && most > axis_hint(k, s->r);
    s->r_grows = may_grow(s, s->r);
  } else {
    int64_t most = all_const(k, s->par) ? grown(s, s->c) : axis_hint(k, s->c);
    bool split = rows < s->by->split_rows && most >= s->by->split_row && !any_scan(s);
    s->shape = first && split ? SHAPE_SPLIT : SHAPE_ROWS;
    s->alone = !first && split && most > axis_hint(k, s->c);
  }
  return true;
}

/* ---- what is kept between passes ------------------------------------------------------------------------------------------- */

typedef struct keeper {
  nest *s;
  uint8_t *first; /* by node: 1 + the first pass that computes it */
  uint8_t pass;
} keeper;

typedef struct weigher {
  const nest *s;
  int weight;
} weigher;

/* What a division of 64-bit integers costs in simple operations: there is no vector instruction for it. */
enum { DIVISION_WEIGHT = 50 };

static int node_weight(const k_node *n) {
  switch (n->code) {
  case K_CONST:
  case K_SCALAR: return 0;
  case K_MATH: return 8;
  case K_OP:
    return n->sub == KOP_div || n->sub == KOP_sqrt ? 3
           : n->sub == KOP_idiv || n->sub == KOP_imod || n->sub == KOP_ipow
               ? (dtype_size((qn_dtype)n->dtype) == 8 ? DIVISION_WEIGHT : 8)
               : 1;
  case K_SCAN: return 100;
  default: return 1;
  }
}

static void weigh_operand(void *ctx, k_val v) {
  weigher *w = ctx;
  if (w->weight > 2 * w->s->by->keep_weight || !axis_in(w->s->k->nodes[v].axes, w->s->c)) return;
  w->weight += node_weight(&w->s->k->nodes[v]);
  k_each_operand(w->s->k, v, weigh_operand, w);
}

static void keep_operand(void *ctx, k_val v) {
  keeper *p = ctx;
  nest *s = p->s;
  if (!axis_in(s->k->nodes[v].axes, s->c) || s->keep[v] || p->first[v] == p->pass + 1) return;
  const k_node *n = &s->k->nodes[v];
  bool finished = nest_reduces(s, n); /* a reduction over r, with a result for each point of c */
  if (p->first[v] && finished) s->keep[v] = p->first[v];
  if (finished) {
    if (!p->first[v]) p->first[v] = (uint8_t)(p->pass + 1);
    return;
  }
  if (p->first[v]) {
    weigher w = {s, 0};
    weigh_operand(&w, v);
    if (n->code == K_SCAN || w.weight > s->by->keep_weight) {
      s->keep[v] = p->first[v];
      return;
    }
  }
  p->first[v] = (uint8_t)(p->pass + 1);
  k_each_operand(s->k, v, keep_operand, p);
}

bool nest_plan_passes(nest *s, const job_list *l) {
  memset(s->keep, 0, s->k->n);
  keeper p = {s, calloc(s->k->n, 1), 0};
  if (!p.first) return refuse(s, lower_no_memory);
  for (int pass = 0; pass < l->stages; pass++) {
    p.pass = (uint8_t)pass;
    for (uint32_t i = 0; i < l->n; i++)
      if (l->jobs[i].along_c && l->jobs[i].stage == pass) k_each_operand(s->k, l->jobs[i].v, keep_operand, &p);
  }
  free(p.first);
  for (uint32_t v = 1; v < s->k->n && axis_hint(s->k, s->c) > s->by->keep_row; v++)
    if (!k_folds(&s->k->nodes[v])) s->keep[v] = 0;
  return true;
}

/* ---- building nests ---------------------------------------------------------------------------------------------------------- */

/* Sets up the nest of n effects. `first`: it is the kernel's first one; only that may have several phases, since sizes of scratch are
 * computed in the prelude. False when memory is short, or the effects do not fit one nest. */
static bool nest_init(nest *s, const k_kernel *k, schedule_target target, const k_val *effects, uint32_t n,
                      bool first) {
  *s = (nest){.k = k,
              .by = &schedule_numbers_of[target],
              .effects = effects,
              .n = n,
              .r = -1,
              .c = -1,
              .turned = -1,
              .inner = -1,
              .m = -1,
              .n_axis = -1};
  s->needed = calloc(k->n, sizeof *s->needed);
  s->after = calloc(k->n, sizeof *s->after);
  s->stage = calloc(k->n, sizeof *s->stage);
  s->keep = calloc(k->n, sizeof *s->keep);
  if (!s->needed || !s->after || !s->stage || !s->keep) return refuse(s, lower_no_memory);
  find_needed(s);
  for (uint32_t i = 0; i < n; i++)
    if (k->nodes[effects[i]].code == K_STOREF) {
      s->shape = SHAPE_UPDATE;
      for (uint32_t v = 1; v < k->n; v++)
        if (s->needed[v] && k_folds(&k->nodes[v])) return refuse(s, "reductions in an update");
      return true;
    }
  return choose_shape(s, first);
}

static void nest_free(nest *s) {
  free(s->needed);
  free(s->after);
  free(s->stage);
  free(s->keep);
  free(s->in_rows);
  free(s->in_rest);
  free(s->first.jobs);
  free(s->second.jobs);
}

static bool to_scratch(const k_kernel *k, k_val effect) {
  const k_node *n = &k->nodes[effect];
  return n->code == K_STORE && k->buffers[n->buffer].mode == BUF_SCRATCH;
}

/* The end of the nest that begins with effect `from`. A store to scratch ends a nest; an update is a nest of its own, and so are the checks
 * before it. */
static uint32_t effects_end(const k_kernel *k, const k_val *effects, uint32_t from, uint32_t n) {
  for (uint32_t i = from; i < n; i++)
    if (to_scratch(k, effects[i])) return i + 1;
  if (k->nodes[effects[from]].code == K_STOREF) return from + 1;
  bool updates = false;
  for (uint32_t i = from; i < n; i++) updates |= k->nodes[effects[i]].code == K_STOREF;
  if (!updates) return n;
  uint32_t i = from + 1;
  while (k->nodes[effects[i]].code == k->nodes[effects[from]].code && k->nodes[effects[i]].code != K_STOREF) i++;
  return i;
}

/* Sets up the next nest, which begins with effect `from`. Where effects cannot share loops each is a nest of its own. */
static bool nest_next(nest *s, const k_kernel *k, schedule_target target, const k_val *effects, uint32_t from,
                      uint32_t n, uint32_t *to) {
  *to = effects_end(k, effects, from, n);
  if (nest_init(s, k, target, effects + from, *to - from, from == 0)) return true;
  if (s->why != differing || *to - from == 1) return false;
  uint32_t same = from + 1;
  while (same < *to && k->nodes[effects[same]].axes == k->nodes[effects[from]].axes) same++;
  if (same == *to) return false;
  nest_free(s);
  *to = same;
  return nest_init(s, k, target, effects + from, same - from, from == 0);
}

/* A kernel's effects, *n of them, for the caller to free. NULL with a reason if there are none, or memory is short. */
static k_val *list_effects(const k_kernel *k, uint32_t *n, const char **why) {
  k_val *effects = calloc(k->n, sizeof *effects);
  *n = 0;
  for (uint32_t v = 1; effects && v < k->n; v++)
    if (k_is_effect(&k->nodes[v])) effects[(*n)++] = v;
  *why = !effects ? lower_no_memory : *n ? NULL : "nothing is stored";
  return effects;
}

/* ---- sizes in the prelude ---------------------------------------------------------------------------------------------------- */

static void form_dims(nest_builder *nb, k_form f) {
  const k_linear *l = &nb->k->forms[f];
  if (l->constant) nest_dim(nb, l->constant);
  for (uint32_t i = 0; i < l->n; i++) {
    const k_atom *a = &nb->k->atoms[l->terms[i].atom];
    if (l->terms[i].coef != 1) nest_dim(nb, l->terms[i].coef);
    if (a->kind != ATOM_DIV && a->kind != ATOM_MOD) continue;
    nest_dim(nb, a->by);
    form_dims(nb, a->of);
  }
}

static void all_dims(nest_builder *nb) {
  const k_kernel *k = nb->k;
  for (uint32_t a = 0; a < k->naxes; a++) nest_dim(nb, k->axes[a].extent);
  for (k_val v = 1; v < k->n; v++) {
    const k_condition *c = &k->guards[k->nodes[v].guard];
    form_dims(nb, k->nodes[v].at);
    for (uint32_t i = 0; i < c->n; i++) {
      nest_dim(nb, c->ranges[i].extent);
      form_dims(nb, c->ranges[i].form);
    }
  }
}

/* ---- aliases ------------------------------------------------------------------------------------------------------------------ */

/* Notes the buffers of stores that do not run over all axes of their nest: one instance makes such a store, while others may still load. */
static void note_lone_stores(nest_builder *nb, const nest *s) {
  k_mask instances = s->par;
  if (s->shape != SHAPE_ROWS) instances |= axis_bit(s->c) | axis_bit(s->turned);
  for (uint32_t i = 0; i < s->n; i++) {
    const k_node *n = &nb->k->nodes[s->effects[i]];
    if (n->code == K_STORE && (instances & ~n->axes)) nb->lone_store[n->buffer] = true;
  }
}

/* Where all of a buffer's accesses that count for aliases lie: its loads, or its stores that are not behind loops. */
typedef struct access {
  bool any,
      alike; /* there are some; the first one stands for all, which have no guards and the same address and axes */
  k_form at;
  k_mask axes;
} access;

static void note_load(access *x, const k_node *n) {
  bool alike = !n->guard && (!x->any || (x->alike && n->at == x->at && n->axes == x->axes));
  *x = (access){.any = true, .alike = alike, .at = n->at, .axes = n->axes};
}

/* Only one store may be to the buffer, or, in kernels with loops, others that store one element each: these begin with copies of what they
 * update. */
static void note_store(access *x, const k_node *n, bool loops) {
  if (x->any && loops && !n->axes && x->axes) return;
  *x = x->any ? (access){.any = true} : (access){.any = true, .alike = !n->guard, .at = n->at, .axes = n->axes};
}

/* What each buffer's loads (inputs) or stores are like. False if memory is short. */
static access *find_accesses(const k_kernel *k) {
  access *found = calloc(k->nbuffers + (size_t)1, sizeof *found);
  bool loops = nest_has_loops(k);
  for (k_val v = 1; found && v < k->n; v++) {
    const k_node *n = &k->nodes[v];
    if (n->code != K_LOAD && n->code != K_STORE) continue;
    access *x = &found[n->buffer];
    bool in = k->buffers[n->buffer].mode == BUF_IN;
    if (n->code == K_LOAD && in) note_load(x, n);
    if (n->code == K_STORE && !in) note_store(x, n, loops);
  }
  return found;
}

/* May output o be stored over input b? It may if every load of b has the address of the first store to o, runs over the same axes without a
 * guard, and comes before that store in every instance. */
static bool may_alias(const nest_builder *nb, const access *found, uint32_t b, uint32_t o) {
  const k_kernel *k = nb->k;
  const access *load = &found[b], *store = &found[o];
  if (k->buffers[b].mode != BUF_IN || k->buffers[o].mode == BUF_IN) return false;
  if (dtype_size((qn_dtype)k->buffers[b].dtype) != dtype_size((qn_dtype)k->buffers[o].dtype)) return false;
  if (!store->any || !store->alike || nb->lone_store[o]) return false;
  if (load->any && (!load->alike || load->at != store->at || load->axes != store->axes)) return false;
  return nb->last_load[b] < nb->first_store[o];
}

static bool find_aliases(const nest_builder *nb, uint8_t *alias) {
  uint32_t n = nb->k->nbuffers;
  access *found = find_accesses(nb->k);
  for (uint32_t b = 0; found && b < n; b++)
    for (uint32_t o = 0; o < n; o++) alias[b * n + o] = may_alias(nb, found, b, o);
  free(found);
  return found != NULL;
}

/* ---- driver -------------------------------------------------------------------------------------------------------------------- */

static bool build_kernel(nest_builder *nb, schedule_target target, int64_t grain) {
  const k_kernel *k = nb->k;
  uint32_t n;
  const char *why;
  k_val *effects = list_effects(k, &n, &why);
  if (why) nest_refuse(nb, why);
  for (uint32_t from = 0, to; !nb->why && from < n; from = to) {
    nest s;
    if (!nest_next(&s, k, target, effects, from, n, &to))
      nest_refuse(nb, s.why);
    else if (nest_build(nb, &s, grain))
      note_lone_stores(nb, &s);
    else
      nest_refuse(nb, lower_no_memory);
    nest_free(&s);
  }
  free(effects);
  return !nb->why;
}

bool schedule(const k_kernel *k, schedule_target target, int64_t grain, schedule_result *out, const char **why) {
  *out = (schedule_result){0};
  *why = lower_no_memory;
  l_program *p = l_new(k->name);
  if (!p) return false;
  nest_builder nb;
  bool ok = nest_begin(&nb, k, p);
  for (uint32_t b = 0; ok && b < k->nbuffers; b++)
    ok = l_buffer_add(p, (qn_dtype)k->buffers[b].dtype, (l_buffer_mode)k->buffers[b].mode, 0) >= 0;
  for (uint32_t c = 0; ok && c < k->nchecks; c++) ok = l_check_add(p, k->checks[c]) >= 0;
  if (ok) {
    p->nscalars = k->nscalars;
    nb.zero = l_int(p, 0);
    nb.one = l_int(p, 1);
    all_dims(&nb);
    for (uint32_t b = 0; b < k->nbuffers; b++)
      if (k->buffers[b].mode == BUF_SCRATCH) p->buffers[b].size = nest_dim(&nb, k->buffers[b].elements);
    ok = nest_has_loops(k) ? nest_loops(&nb, target) : build_kernel(&nb, target, grain);
  }
  if (ok && !p->failed) {
    size_t ints = (nb.nints + 1) * sizeof *out->ints, pairs = (size_t)k->nbuffers * k->nbuffers + 1;
    l_tighten(p, ints + pairs, 2);
    out->ints = arena_alloc(&p->arena, ints);
    out->alias = arena_alloc(&p->arena, pairs);
    ok = out->ints && out->alias;
  }
  if (ok && !p->failed) {
    if (nb.nints) memcpy(out->ints, nb.ints, nb.nints * sizeof *out->ints);
    out->nints = p->nints = nb.nints;
    ok = find_aliases(&nb, out->alias);
  }
  if (ok && !p->failed) {
    out->program = p;
  } else {
    *why = nb.why && !p->failed ? nb.why : lower_no_memory;
    l_free(p);
    ok = false;
  }
  nest_builder_free(&nb);
  return ok;
}

/* ---- cost -------------------------------------------------------------------------------------------------------------------------- */

/* Nanoseconds on a current core with 256-bit vectors and its share of memory bandwidth. Only their ratios matter. */
static const double NS_BYTE = 0.04, NS_OP = 0.03, NS_FMA = 0.02, NS_ROW = 15;

/* The bytes of a buffer that a nest touches, each counted once however often it is loaded. */
static double touched_bytes(const nest *s, int buffer) {
  const k_kernel *k = s->k;
  double most = 0;
  for (k_val v = 1; v < k->n; v++) {
    const k_node *n = &k->nodes[v];
    bool memory = n->code == K_LOAD || n->code == K_STORE || n->code == K_STOREF;
    if (!s->needed[v] || !memory || n->buffer != buffer) continue;
    double bytes = (double)k_points(k, k->forms[n->at].axes) * (double)dtype_size((qn_dtype)n->dtype);
    if (bytes > most) most = bytes;
  }
  return most;
}

/* How many divisions a form's coordinates need for each element of the VEC. */
static int divisions(const nest *s, k_form f) {
  const k_linear *l = &s->k->forms[f];
  int n = 0;
  for (uint32_t i = 0; i < l->n; i++) {
    const k_atom *a = &s->k->atoms[l->terms[i].atom];
    if (a->kind == ATOM_AXIS || a->kind == ATOM_VALUE || !axis_in(a->axes, s->c)) continue;
    n += 1 + divisions(s, a->of);
  }
  return n;
}

static double nest_cost(const nest *s) {
  const k_kernel *k = s->k;
  double bytes = 0, work = 0, nodes = 0;
  for (uint32_t b = 0; b < k->nbuffers; b++) bytes += touched_bytes(s, (int)b);
  k_mask rows = s->par | axis_bit(s->r) | axis_bit(s->inner) | axis_bit(s->turned);
  for (k_val v = 1; v < k->n; v++) {
    const k_node *n = &k->nodes[v];
    if (!s->needed[v]) continue;
    nodes++;
    /* a value is computed in every row, also along axes of rows along which it does not vary */
    k_mask runs = n->axes | (n->axes || k_folds(n) ? rows & ~(s->after[v] ? axis_bit(s->r) : 0) : 0);
    if (s->shape == SHAPE_UPDATE) runs = n->axes;
    if (s->shape == SHAPE_PRODUCT) runs = n->axes | (n->code == K_LOAD ? 0 : k->nodes[s->dot].axes & n->axes);
    if (k_folds(n)) runs |= axis_bit(n->axis);
    double times = (double)k_points(k, runs);
    work += times * (n->code == K_DOT ? NS_FMA : NS_OP * node_weight(n));
    if (n->code == K_LOAD || n->code == K_STORE) work += times * NS_OP * DIVISION_WEIGHT * divisions(s, n->at);
  }
  bool slabs = s->shape == SHAPE_SLABS ? !s->one_slab : s->shape == SHAPE_PRODUCT && s->dot_slab;
  int phases = s->shape == SHAPE_SPLIT ? 2 * s->first.stages : slabs ? 2 : 1;
  double instances = (double)k_points(k, s->par);
  if (s->shape == SHAPE_PLAIN || s->shape == SHAPE_TURNED)
    instances *= 1 + (double)axis_hint(k, s->c) / (double)s->by->plain_most;
  if (s->shape == SHAPE_SPLIT || (s->shape == SHAPE_SLABS && !s->one_slab)) instances *= (double)s->by->slabs;
  if (s->shape == SHAPE_PRODUCT)
    instances *=
        1 + (double)axis_hint(k, s->m) * (double)axis_hint(k, s->n_axis) / (double)(s->by->dot_rows * s->by->dot_cols);
  if (s->shape == SHAPE_PRODUCT && s->dot_slab)
    instances *= (double)axis_hint(k, k->nodes[s->dot].axis) / (double)s->dot_slab;
  bool pool = k_points(k, s->axes) >= s->by->pool_points;
  double threads = !pool || instances < 1 ? 1 : instances < 4 ? instances : 4;
  double passes =
      s->first.stages * (double)k_points(k, s->par | axis_bit(s->r)) + s->second.stages * (double)k_points(k, s->par);
  if (s->alone) passes += (double)s->by->grown; /* so that it is fused with nothing that keeps it from being cut */
  int merges = s->shape == SHAPE_SPLIT ? s->first.stages : phases - 1; /* merging phases are short */
  return s->by->phase_ns * phases + (pool ? s->by->pool_ns * (phases - merges) : 0) + NS_BYTE * bytes + work / threads +
         s->by->node_ns * nodes + NS_ROW * passes;
}

bool schedule_estimate(const k_kernel *k, schedule_target target, double *nanoseconds, const char **why) {
  uint32_t n;
  k_val *effects = list_effects(k, &n, why);
  *nanoseconds = schedule_numbers_of[target].launch_ns;
  for (uint32_t from = 0, to; !*why && from < n; from = to) {
    nest s;
    if (nest_next(&s, k, target, effects, from, n, &to))
      *nanoseconds += nest_cost(&s);
    else
      *why = s.why;
    nest_free(&s);
  }
  free(effects);
  return !*why;
}
