/* Which schedules a nest may have: candidates, of which the one with the lowest price is taken (sched_price.c).
 *
 * The roles of axes come first. A reduction of inner order wants its axis to be the VEC's (c), since its lanes are neighbours there; one of
 * another order is a FOR, with results along the VEC. What is left are instances. Where nothing is reduced, c is the axis along which
 * most elements are stored, or else loaded, with stride 1. From such a list others follow: tiles of c, a reduced axis cut into pieces, a VEC over a
 * long axis instead of a short one, loads that go through a turned tile. Which of them are worth a look depends on the recorded sizes;
 * each is right for all sizes. */
#include <string.h>

#include "jit/kernel/lower.h"
#include "jit/kernel/sched_impl.h"

/* What holds for compiled kernels and for those that the block VM runs. */
#define CPU_MACHINE                                                                                                    \
  .launch_ns = 60, .phase_ns = 60, .pool_ns = 2000, .pool_points = 32768, .processors = 4, .saturated = 2,             \
  .op_ns = 0.02, .fma_ns = 0.014, .apart = 1, .guard = 1, .chain = 40, .costs = COST_AVX512, .step_ns = 1,             \
  .byte_ns = 0.08, .cache = 1 << 20, .near = 1 << 15
#define CPU_SHAPES                                                                                                     \
  .plain_least = 8192, .plain_most = 8192, .instances = 1, .split_row = 65536, .split_rows = 8,                        \
  .split_block = 16 * ORDER_BLOCK, .pieces = 64, .slab_work = 65536, .slab_instances = 1, .slabs = 64,                 \
  .merge_tile = 1024, .keep_row = 65536, .keep_weight = 6, .dot_rows = 128, .dot_cols = 64, .dot_most_rows = 512,      \
  .dot_tiles = 8, .dot_packs = true, .dot_slab = 8 * ORDER_DOT_CHUNK, .dot_spread = 4

const schedule_numbers schedule_numbers_of[] = {
    [TARGET_CPU] = {.trust = 0.99,
                    .price = {CPU_MACHINE, .scalar = 12, .scalar_more = 2, .vector_bytes = 64, .left_over = 10,
                              .turn = 16, .gather = 16, .scatter = 48, .scan = 115, .many = 2.5, .running = 10,
                              .vec_ns = 2, .pass_ns = 2, .par_ns = 1, .place_ns = 0.8, .finish_ns = 22,
                              .near_ns = 0.025},
                    CPU_SHAPES},
    [NUMBERS_VM] = {.trust = 0.95,
                    .price = {CPU_MACHINE, .scalar = 16, .scalar_more = 4, .turn = 20, .gather = 24, .scatter = 24,
                              .scan = 80, .many = 4, .running = 4, .vec_ns = 3, .par_ns = 10, .finish_ns = 12,
                              .near_ns = 0.015},
                    CPU_SHAPES},
    [TARGET_GPU] = {.trust = 0.6,
                    .price = {.launch_ns = 1500,
                              .phase_ns = 1500,
                              .processors = 132 * 16,
                              .saturated = 132 * 16,
                              .op_ns = 0.073,
                              .fma_ns = 0.1,
                              .scalar = 64,
                              .scalar_more = 4,
                              .turn = 6,
                              .gather = 100,
                              .scatter = 100,
                              .apart = 128,
                              .guard = 7,
                              .scan = 20,
                              .chain = 64,
                              .many = 4,
                              .running = 4,
                              .costs = COST_GPU,
                              .vec_ns = 40,
                              .par_ns = 200,
                              .finish_ns = 100,
                              .step_ns = 60,
                              .byte_ns = 0.5,
                              .near_ns = 0.1,
                              .cache = 1 << 20,
                              .near = 1 << 14},
                    .plain_least = 256,
                    .plain_most = 2048,
                    .instances = 2048,
                    .split_row = 16384,
                    .split_rows = 128,
                    .split_block = 4 * ORDER_BLOCK,
                    .pieces = 4096,
                    .merges = 64,
                    .grown = 16384,
                    .slab_work = 16384,
                    .slab_instances = 8192,
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
                    .layouts = true,
                    .dot_room = true},
};

enum { CANDIDATES = 32 };

typedef struct chooser {
  nest *s;
  const k_kernel *k;
  sched_nest found[CANDIDATES];
  int n;
  k_mask inner, outer; /* axes that are reduced, by order */
} chooser;

static void refuse(nest *s, const char *why) {
  if (!s->why) s->why = why;
}

/* ---- lists of loops -------------------------------------------------------------------------------------------------------------- */

static void loop(loop_list *l, loop_role role, int axis, int64_t size) {
  if (axis >= 0 && l->n < SCHED_LOOPS) l->at[l->n++] = (sched_loop){(uint8_t)role, (int8_t)axis, size};
}

static void pars(loop_list *l, k_mask axes) {
  for (int a = 0; axes >> a; a++)
    if (axis_in(axes, a)) loop(l, LOOP_PAR, a, 1);
}

/* Cuts an axis into tiles, unless it is known to be no longer than one. */
static void tiles(const k_kernel *k, loop_list *l, int axis, int64_t size) {
  if (axis >= 0 && !const_at_most(k, axis, size)) loop(l, LOOP_PAR, axis, size);
}

/* Adds a candidate if it fits and is new. */
static bool add(chooser *x, const sched_nest *c) {
  if (x->n == CANDIDATES) return false;
  nest s = *x->s;
  uint32_t effects = x->s->s.effects;
  s.s = *c;
  s.s.effects = effects;
  s.why = NULL;
  for (int i = 0; i < x->n; i++)
    if (memcmp(&x->found[i], &s.s, sizeof s.s) == 0) return true;
  if (!nest_fits(&s)) {
    refuse(x->s, s.why);
    return false;
  }
  x->found[x->n++] = s.s;
  return true;
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

/* Adds FORs for axes, those outside that are reduced last. */
static void fors(const nest *s, loop_list *l, k_mask axes) {
  for (k_val v = s->k->n; v-- > 1 && axes;) {
    const k_node *n = &s->k->nodes[v];
    if (!s->needed[v] || !k_folds(n) || !axis_in(axes, n->axis)) continue;
    loop(l, LOOP_FOR, n->axis, 0);
    axes &= ~axis_bit(n->axis);
  }
}

static bool any_scan(const nest *s) {
  for (uint32_t v = 1; v < s->k->n; v++)
    if (s->needed[v] && s->k->nodes[v].code == K_SCAN) return true;
  return false;
}

static bool all_along(const nest *s, k_mask axes) {
  for (uint32_t i = 0; i < s->s.effects; i++)
    if (axes & ~s->k->nodes[s->effects[i]].axes) return false;
  return true;
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

/* ---- nothing is reduced ---------------------------------------------------------------------------------------------------------- */

/* How many elements of the VEC's axis an instance has. */
static int64_t plain_tile(const nest *s) {
  int64_t size = s->by->plain_most, all = k_points(s->k, s->axes);
  while (size > s->by->plain_least && all / size < s->by->instances) size /= 2;
  return size;
}

/* An axis along which some loads have stride 1 that have another stride along c; -1 if there is none. */
static int turned_axis(const nest *s, int c) {
  const k_kernel *k = s->k;
  if (c < 0 || axis_hint(k, c) < SHORT_AXIS) return -1;
  for (uint32_t v = 1; v < k->n; v++) {
    const k_node *n = &k->nodes[v];
    qn_dim along, across;
    if (!s->needed[v] || n->code != K_LOAD || !axis_in(n->axes, c)) continue;
    if (!k_coef(k, n->at, (uint32_t)c, &along) || along == 1 || along == 0) continue;
    for (int a = 0; a < (int)k->naxes; a++)
      if (a != c && axis_hint(k, a) >= SHORT_AXIS && k_coef(k, n->at, (uint32_t)a, &across) && across == 1 &&
          all_along(s, axis_bit(a) | axis_bit(c)))
        return a;
  }
  return -1;
}

/* The axis for a VEC instead of a short c: the longest, the innermost of equally long ones; -1: c is well. */
static int longer_axis(const nest *s, int c) {
  const k_kernel *k = s->k;
  int longest = -1;
  if (c < 0 || axis_hint(k, c) >= SHORT_AXIS) return -1;
  for (int a = 0; a < (int)k->naxes; a++)
    if (a != c && axis_in(s->axes, a) && (longest < 0 || axis_hint(k, a) >= axis_hint(k, longest))) longest = a;
  if (longest < 0 || axis_hint(k, longest) < 4 * axis_hint(k, c)) return -1;
  return all_along(s, axis_bit(longest) | axis_bit(c)) ? longest : -1;
}

/* Instances of all axes but c, of which they have tiles. */
static void add_plain(chooser *x, int c, int64_t tile) {
  sched_nest n = {0};
  pars(&n.main, x->s->axes & ~axis_bit(c));
  tiles(x->k, &n.main, c, tile);
  loop(&n.main, LOOP_VEC, c, 0);
  add(x, &n);
}

/* A VEC over a long axis, in a FOR over a short one. */
static void add_longer(chooser *x, int c, int longer, int64_t tile) {
  sched_nest n = {0};
  pars(&n.main, x->s->axes & ~axis_bit(c) & ~axis_bit(longer));
  tiles(x->k, &n.main, longer, tile);
  loop(&n.main, LOOP_FOR, c, 0);
  loop(&n.main, LOOP_VEC, longer, 0);
  add(x, &n);
}

static void choose_plain(chooser *x) {
  nest *s = x->s;
  int c = best_axis(s, s->axes), turned = turned_axis(s, c), longer = turned < 0 ? longer_axis(s, c) : -1;
  if (turned >= 0) {
    sched_nest n = {.turn = true};
    pars(&n.main, s->axes & ~axis_bit(c) & ~axis_bit(turned));
    loop(&n.main, LOOP_PAR, turned, TURN_TILE);
    loop(&n.main, LOOP_PAR, c, TURN_TILE);
    loop(&n.main, LOOP_FOR, turned, 0);
    loop(&n.main, LOOP_VEC, c, 0);
    add(x, &n);
  }
  if (longer >= 0) add_longer(x, c, longer, s->by->merge_tile);
  add_plain(x, c, plain_tile(s));
  for (int a = 0; a < (int)x->k->naxes; a++) {
    if (a == c || !axis_in(s->axes, a) || axis_hint(x->k, a) < SHORT_AXIS) continue;
    add_plain(x, a, plain_tile(s));
    if (c >= 0 && a != longer && axis_hint(x->k, c) < SHORT_AXIS && all_along(s, axis_bit(a) | axis_bit(c)))
      add_longer(x, c, a, s->by->merge_tile);
  }
}

/* ---- reductions ---------------------------------------------------------------------------------------------------------------------- */

/* The least length of a piece of an axis that FORs go through: a multiple of the chains of all reductions over it. */
static int64_t least_piece(const nest *s, int axis) {
  for (uint32_t v = 1; v < s->k->n; v++) {
    const k_node *n = &s->k->nodes[v];
    if (s->needed[v] && n->code == K_DOT && n->axis == axis) return ORDER_DOT_CHUNK;
  }
  return ORDER_OUTER_CHAIN;
}

/* Rows: everything is reduced along c. Rows that are few and long are cut into pieces. */
static void choose_rows(chooser *x, int c) {
  nest *s = x->s;
  const k_kernel *k = x->k;
  sched_nest n = {0}, whole = {0};
  k_mask p = s->axes & ~axis_bit(c);
  int64_t most = all_const(k, p) ? grown(s, c) : axis_hint(k, c), block = s->by->split_block;
  pars(&whole.main, p);
  loop(&whole.main, LOOP_VEC, c, 0);
  bool split = s->processors > 1 && k_points(k, p) < s->by->split_rows && most >= s->by->split_row && !any_scan(s);
  bool grows = most > axis_hint(k, c); /* the price at the recorded sizes says too little */
  s->alone = !s->first && split && grows;
  while (axis_hint(k, c) / block > s->by->pieces) block *= 2;
  if (s->first && (split || axis_hint(k, c) >= 4 * block)) {
    pars(&n.main, p);
    loop(&n.main, LOOP_PAR, c, block);
    loop(&n.main, LOOP_VEC, c, 0);
    pars(&n.after, p);
    n.group = s->by->merges && axis_hint(k, c) / block > s->by->merges ? s->by->merges : 0;
    if (split) add(x, &n);
  }
  if (!split || !grows || !x->n) add(x, &whole);
  if (n.main.n && !split) add(x, &n);
}

/* Is nothing reduced or scanned along c, and nothing done that is not along c? Then instances can have tiles of c. `rows`: in rows along r, else behind. */
static bool separable(const nest *s, int c) {
  for (uint32_t v = 1; v < s->k->n; v++) {
    const k_node *n = &s->k->nodes[v];
    if (!s->needed[v]) continue;
    if (k_folds(n) ? n->axis == c || !axis_in(operand_axes(s->k, n), c) : k_is_effect(n) && !axis_in(n->axes, c))
      return false;
  }
  return true;
}

/* Instances of all axes but those of r and c, which go through all of r. `width`: of tiles of c; 0: none. */
static bool add_whole(chooser *x, k_mask r, int c, int64_t width) {
  sched_nest n = {0};
  pars(&n.main, x->s->axes & ~r & ~axis_bit(c));
  if (width) tiles(x->k, &n.main, c, width);
  fors(x->s, &n.main, r);
  loop(&n.main, LOOP_VEC, c, 0);
  return add(x, &n);
}

/* The same in pieces of the outermost FOR, in `pieces` or fewer; what follows has tiles of c if it can. */
static void add_pieces(chooser *x, k_mask r, int c, int cut, int64_t width, int64_t pieces) {
  nest *s = x->s;
  const k_kernel *k = x->k;
  k_mask p = s->axes & ~r & ~axis_bit(c);
  int64_t piece = least_piece(s, cut);
  while (axis_hint(k, cut) / piece * k_points(k, p) > pieces) piece *= 2;
  sched_nest n = {0};
  pars(&n.main, p);
  loop(&n.main, LOOP_PAR, cut, piece);
  if (width) tiles(k, &n.main, c, width);
  fors(s, &n.main, r);
  loop(&n.main, LOOP_VEC, c, 0);
  sched_nest plain = n;
  pars(&n.after, p);
  tiles(k, &n.after, c, s->by->merge_tile);
  loop(&n.after, LOOP_VEC, c, 0);
  pars(&plain.after, p);
  loop(&plain.after, LOOP_VEC, c, 0);
  if (!add(x, &n)) add(x, &plain);
}

/* Rows along the axes `r` are reduced to results along c. A long r is cut into pieces where there are few instances otherwise. */
static void choose_slabs(chooser *x, k_mask r, int c) {
  nest *s = x->s;
  const k_kernel *k = x->k;
  const int64_t width = s->by->merge_tile, least = s->by->slab_tiles ? 16 * s->by->slabs : s->by->slabs;
  loop_list order = {0};
  fors(s, &order, r);
  int cut = order.n ? order.at[0].axis : -1;
  bool tiled = c >= 0 && separable(s, c) && !const_at_most(k, c, width), scanned = false;
  for (k_val v = 1; v < k->n; v++)
    scanned |= s->needed[v] && k->nodes[v].code == K_SCAN && axis_in(r, k->nodes[v].axis);
  int64_t rows = k_points(k, s->axes & ~r & ~axis_bit(c)), most = grown(s, cut), work, pieces = s->by->slabs;
  if (__builtin_mul_overflow(k_points(k, s->axes & ~axis_bit(cut)), most, &work)) work = INT64_MAX;
  bool small = work < s->by->slab_work || most <= least_piece(s, cut), few = rows < s->by->slabs;
  bool grows = most > axis_hint(k, cut), may_cut = s->first && !scanned && most > least_piece(s, cut);
  s->alone = !s->first && !small && few && grows;
  int64_t about = tiled && s->by->slab_tiles ? tiles_hint(k, c, width) : 1;
  while (pieces < least && pieces * about < s->by->slab_instances) pieces *= 2;
  bool cuts = may_cut && !small && few && s->processors > 1;
  if (cuts) add_pieces(x, r, c, cut, tiled && s->by->slab_tiles ? width : 0, pieces);
  if (cuts && grows && x->n) return; /* the price at the recorded sizes says too little */
  if (!tiled || !add_whole(x, r, c, width)) add_whole(x, r, c, 0);
  if (tiled) add_whole(x, r, c, width / 4);
  if (tiled) add_whole(x, r, c, 0);
  if (may_cut && !cuts) add_pieces(x, r, c, cut, 0, pieces);
  if (may_cut && tiled) add_pieces(x, r, c, cut, width, pieces);
  if (may_cut) add_pieces(x, r, c, cut, 0, 16);
}

/* Is the nest one reduction of many short rows? Then the VEC runs over the rows: the axis for it, or -1. The length must be a plain number, since
 * an accumulator of inner order with many results takes at most 64 pushes. */
static int many_rows(const chooser *x) {
  const nest *s = x->s;
  const k_kernel *k = x->k;
  int folds = 0, r = -1;
  for (uint32_t v = 1; v < k->n; v++) {
    const k_node *n = &k->nodes[v];
    if (!s->needed[v] || !k_folds(n)) continue;
    if (folds++ || n->code != K_REDUCE) return -1;
    r = n->axis;
  }
  if (r < 0 || x->inner != axis_bit(r) || !const_at_most(k, r, SHORT_AXIS)) return -1;
  for (uint32_t i = 0; i < s->s.effects; i++)
    if (axis_in(k->nodes[s->effects[i]].axes, r)) return -1;
  int c = best_axis(s, s->axes & ~axis_bit(r));
  return c >= 0 && axis_hint(k, c) >= ROWS_FOR_VEC && all_along(s, axis_bit(c)) ? c : -1;
}

static void choose_reduced(chooser *x) {
  nest *s = x->s;
  int rows = x->outer ? -1 : many_rows(x);
  if (rows >= 0) choose_slabs(x, x->inner, rows);
  /* candidates for c, those first along which lanes of inner order lie; the other reduced axes are FORs */
  k_mask tried = axis_bit(rows), reduced = x->inner | x->outer;
  for (int pass = 0; pass < 2; pass++) {
    k_mask among = pass ? s->axes : x->inner ? x->inner : s->axes & ~x->outer;
    for (int c; (c = best_axis(s, among & ~tried)) >= 0;) {
      tried |= axis_bit(c);
      k_mask r = reduced & ~axis_bit(c);
      bool product = false;
      for (k_val v = 1; v < x->k->n; v++)
        product |= s->needed[v] && x->k->nodes[v].code == K_DOT && x->k->nodes[v].axis == c;
      if (product || (pass && axis_hint(x->k, c) < SHORT_AXIS)) continue;
      if (r)
        choose_slabs(x, r, c);
      else
        choose_rows(x, c);
    }
  }
  /* there may be no long axis besides: one sum of outer order, a scan that varies along no other axis, or a product of vectors */
  int c = best_axis(s, x->outer);
  if (!x->n && c >= 0 && reduced == axis_bit(c)) choose_rows(x, c);
  if (!x->n) choose_slabs(x, reduced, -1);
}

/* ---- products ------------------------------------------------------------------------------------------------------------ */

/* Is an atom a digit of the number of one axis (l_tile)? Sets *axis, *by and *most (0: none). */
static bool is_digit(const k_kernel *k, const k_atom *a, int *axis, qn_dim *by, qn_dim *most) {
  *by = 1;
  *most = 0;
  if (a->kind != ATOM_DIV && a->kind != ATOM_MOD) return false;
  for (int turn = 0;; turn++) {
    const k_linear *of = &k->forms[a->of];
    if (a->kind == ATOM_MOD && !turn)
      *most = a->by;
    else if (a->kind == ATOM_DIV && *by == 1)
      *by = a->by;
    else
      return false;
    if (of->constant != 0 || of->n != 1 || of->terms[0].coef != 1) return false;
    a = &k->atoms[of->terms[0].atom];
    if (a->kind == ATOM_VALUE) return false;
    if (a->kind != ATOM_AXIS) continue;
    *axis = (int)a->ref;
    return true;
  }
}

int nest_digits(const k_kernel *k, k_form f, int axis, nest_digit to[L_TILE_DIGITS]) {
  const k_linear *l = &k->forms[f];
  int n = 0;
  for (uint32_t i = 0; i < l->n; i++) {
    const k_atom *a = &k->atoms[l->terms[i].atom];
    nest_digit d = {.step = l->terms[i].coef};
    int of;
    if (a->kind == ATOM_AXIS || !(a->axes & (axis < 0 ? ~(k_mask)0 : axis_bit(axis)))) continue;
    if (!is_digit(k, a, &of, &d.by, &d.most) || n == L_TILE_DIGITS) return -1;
    to[n++] = d;
  }
  return n;
}

k_val nest_factor(const k_kernel *k, k_val v) {
  const k_node *n = &k->nodes[v];
  nest_digit digits[L_TILE_DIGITS];
  if (n->code == K_OP && n->sub == KOP_cast) {
    const k_node *x = &k->nodes[n->a];
    if (x->code == K_LOAD && dtype_is_narrow(x->dtype)) {
      v = n->a;
      n = x;
    }
  }
  return n->code == K_LOAD && !n->guard && nest_digits(k, n->at, -1, digits) >= 0 ? v : 0;
}

k_val nest_product(const nest *s) {
  const k_kernel *k = s->k;
  k_val dot = 0;
  for (uint32_t v = 1; v < k->n; v++) {
    if (!s->needed[v] || !k_folds(&k->nodes[v])) continue;
    if (dot || k->nodes[v].code != K_DOT) return 0;
    dot = v;
  }
  if (!dot) return 0;
  const k_node *d = &k->nodes[dot];
  k_val x = nest_factor(k, d->a), y = nest_factor(k, d->b);
  if (!x || !y || k->nodes[x].dtype != k->nodes[y].dtype) return 0;
  /* the second may be windows, which have digits along its own axes */
  nest_digit digits[L_TILE_DIGITS];
  if (nest_digits(k, k->nodes[x].at, -1, digits)) return 0;
  if (nest_digits(k, k->nodes[y].at, -1, digits) && (s->by->dot_room || !dtype_is_float((qn_dtype)d->dtype))) return 0;
  for (uint32_t i = 0; i < s->s.effects; i++)
    if (k->nodes[s->effects[i]].axes != d->axes) return 0;
  return dot;
}

static void choose_product(chooser *x, k_val dot) {
  nest *s = x->s;
  const k_kernel *k = x->k;
  const k_node *d = &k->nodes[dot];
  k_mask left = k->nodes[nest_factor(k, d->a)].axes, right = k->nodes[nest_factor(k, d->b)].axes,
         own = axis_bit(d->axis);
  int m = -1, n = -1;
  for (int a = 0; a < (int)k->naxes; a++) {
    if (axis_in(left & ~right & ~own, a) && (m < 0 || axis_hint(k, a) >= axis_hint(k, m))) m = a;
    if (axis_in(right & ~left & ~own, a) && (n < 0 || axis_score(s, a, true) > 0 || axis_hint(k, a) > axis_hint(k, n)))
      n = a;
  }
  k_mask p = d->axes & ~axis_bit(m) & ~axis_bit(n);
  int64_t tm = m < 0 ? 1 : s->by->dot_rows, tn = n < 0 ? 1 : s->by->dot_cols, points = k_points(k, p);
  while (tm > 1 && tn > 1 && tm < s->by->dot_most_rows &&
         axis_hint(k, m) * axis_hint(k, n) * points / (tm * tn * 4) >= s->by->dot_tiles) {
    tm *= 2;
    tn *= 2;
  }
  while (s->by->dot_packs && tm > 1 && tn > 1 && tm < s->by->dot_most_rows && tm < axis_hint(k, m) &&
         axis_hint(k, m) * axis_hint(k, n) * points / (tm * tn * 2) >= s->by->dot_tiles)
    tm *= 2;
  /* no larger than the product: the columns are the pitch of the local array */
  while (tm > 1 && const_at_most(k, m, tm / 2)) tm /= 2;
  while (tn > 1 && const_at_most(k, n, tn / 2)) tn /= 2;
  while (tm * tn < s->by->dot_least && n >= 0 && !const_at_most(k, n, tn)) tn *= 2;
  while (tm * tn < s->by->dot_least && m >= 0 && !const_at_most(k, m, tm)) tm *= 2;
  double all = (double)points * (double)tiles_hint(k, m, tm) * (double)tiles_hint(k, n, tn);
  int64_t depth = axis_hint(k, d->axis), slab = s->by->dot_slab;
  bool cut = s->first && all < (double)s->by->dot_spread && depth >= 2 * slab;
  while (cut && all * (double)(depth / slab) > 8 * (double)s->by->dot_spread) slab *= 2;
  /* What follows runs along n, or along m where n is short and m longer. */
  bool down = n < 0 || (m >= 0 && axis_hint(k, n) < SHORT_AXIS && axis_hint(k, m) > axis_hint(k, n));
  sched_nest c = {0};
  pars(&c.main, p);
  loop(&c.main, LOOP_PAR, m, tm);
  loop(&c.main, LOOP_PAR, n, tn);
  loop_list after = c.main;
  if (cut) loop(&c.main, LOOP_PAR, d->axis, slab);
  loop(&c.main, LOOP_TILE, d->axis, 0);
  for (int i = 0; i < 2; i++) {
    loop_list *l = i ? &after : &c.main;
    loop(l, LOOP_FOR, down ? n : m, 0);
    loop(l, LOOP_VEC, down ? m : n, 0);
  }
  if (cut) c.after = after;
  add(x, &c);
}

/* ---- updates in place ------------------------------------------------------------------------------------------------------------------ */

k_mask nest_apart(const k_kernel *k, k_val update) {
  const k_linear *l = &k->forms[k->nodes[update].at];
  k_mask apart = 0;
  for (uint32_t i = 0; i < l->n; i++)
    if (k->atoms[l->terms[i].atom].kind == ATOM_AXIS) apart |= axis_bit((int)k->atoms[l->terms[i].atom].ref);
  return apart & k->nodes[update].axes;
}

/* Independent axes are instances, or the VEC; the others run in row-major order. */
static void choose_update(chooser *x) {
  const k_kernel *k = x->k;
  const k_node *n = &k->nodes[x->s->effects[0]]; /* the only effect */
  k_mask apart = nest_apart(k, x->s->effects[0]), ordered = n->axes & ~apart;
  int along = -1;
  qn_dim coef;
  for (int a = 0; a < (int)k->naxes; a++)
    if (axis_in(apart, a) && axis_hint(k, a) >= SHORT_AXIS && k_coef(k, n->at, (uint32_t)a, &coef) && coef == 1)
      along = a;
  bool in_order = along < 0;
  for (int a = 0; a < (int)k->naxes && in_order; a++)
    if (axis_in(ordered, a)) along = a; /* the innermost one, since a VEC over it keeps the order */
  sched_nest c = {0};
  pars(&c.main, apart & ~axis_bit(along));
  if (!in_order) tiles(k, &c.main, along, plain_tile(x->s));
  for (int a = 0; a < (int)k->naxes; a++)
    if (axis_in(ordered, a) && a != along) loop(&c.main, LOOP_FOR, a, 0);
  loop(&c.main, LOOP_VEC, along, 0);
  add(x, &c);
}

/* ---- the choice ------------------------------------------------------------------------------------------------------------------------- */

void nest_settle(nest *s) {
  int cut = nest_cut(s);
  s->grows = cut >= 0 && cut != vec_axis(&s->s.main) && may_grow(s, cut);
  s->price = nest_price(s);
}

bool nest_choose(nest *s, int64_t pick) {
  const k_kernel *k = s->k;
  chooser x; /* of `found`, 41 kB, only the first n count */
  x.s = s;
  x.k = k;
  x.n = 0;
  x.inner = x.outer = 0;
  s->alone = false;
  if (k->nodes[s->effects[0]].code == K_STOREF) {
    choose_update(&x);
  } else {
    for (uint32_t v = 1; v < k->n; v++) {
      const k_node *n = &k->nodes[v];
      if (!s->needed[v] || !k_folds(n)) continue;
      *(n->code != K_DOT && n->order == ORDER_INNER ? &x.inner : &x.outer) |= axis_bit(n->axis);
    }
    k_val dot = nest_product(s);
    if (dot) choose_product(&x, dot);
    if (!x.n && !(x.inner | x.outer)) choose_plain(&x);
    if (!x.n && (x.inner | x.outer)) choose_reduced(&x);
  }
  if (!x.n) {
    refuse(s, "no loops fit");
    return false;
  }
  s->why = NULL;
  s->candidates = (uint32_t)x.n;
  nest best = *s;
  for (int i = 0; i < x.n; i++) {
    if (pick && i != (int)((pick - 1) % x.n)) continue;
    s->s = x.found[i];
    nest_settle(s);
    if (i == 0 || pick || s->price < s->by->trust * best.price) best = *s;
  }
  *s = best;
  return true;
}
