/* K to L: the nests of a kernel, and what surrounds them. See schedule.h for what a schedule is, sched_choose.c for where it comes from, and
 * sched_emit.c for what becomes of it. */
#include "jit/kernel/schedule.h"

#include "jit/kernel/layout.h"

#include <stdlib.h>
#include <string.h>

#include "jit/kernel/lower.h"
#include "jit/kernel/sched_impl.h"
#include "lang/vm.h"

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

/* ---- do the loops of a nest fit? ---------------------------------------------------------------------------------------------- */

enum { UNROLL_MOST = 256, SIZE_MOST = 1 << 30 }; /* nodes of a kernel that is unrolled; elements of a tile */
static const char differing[] = "effects over different axes";

static bool refuse(nest *s, const char *why) {
  if (!s->why) s->why = why;
  return false;
}

int nest_cut(const nest *s) {
  const loop_list *l = &s->s.main;
  for (int i = 0; i < l->n && l->at[i].role == LOOP_PAR; i++)
    for (k_val v = 1; l->at[i].size > 1 && v < s->k->n; v++)
      if (s->needed[v] && k_reduces(&s->k->nodes[v], l->at[i].axis)) return l->at[i].axis;
  return -1;
}

/* PARs, a TILE, FORs, a VEC, in this order, and no role twice for an axis. */
static bool list_fits(nest *s, const loop_list *l) {
  k_mask par = 0, in = 0;
  int before = LOOP_PAR;
  static const int order[] = {[LOOP_PAR] = 0, [LOOP_TILE] = 1, [LOOP_FOR] = 2, [LOOP_VEC] = 3};
  for (int i = 0; i < l->n; i++) {
    const sched_loop *x = &l->at[i];
    if (x->axis < 0 || x->axis >= (int)s->k->naxes || order[x->role] < before)
      return refuse(s, "loops in a wrong order");
    if (order[x->role] == before && x->role != LOOP_PAR && x->role != LOOP_FOR) return refuse(s, "two vectors");
    before = order[x->role];
    k_mask *of = x->role == LOOP_PAR ? &par : &in;
    if (axis_in(*of, x->axis)) return refuse(s, "an axis with two loops");
    if (x->role == LOOP_PAR && (x->size < 1 || x->size > SIZE_MOST)) return refuse(s, "a tile of no such size");
    *of |= axis_bit(x->axis);
  }
  for (int i = 0; i < l->n && l->at[i].role == LOOP_PAR; i++)
    if (l->at[i].size > 1 && !axis_in(in, l->at[i].axis)) return refuse(s, "a tile that nothing goes through");
  return true;
}

static const sched_loop *inner_loop(const loop_list *l, int axis) {
  for (int i = 0; i < l->n; i++)
    if (l->at[i].role != LOOP_PAR && l->at[i].axis == axis) return &l->at[i];
  return NULL;
}

/* Can the pieces of a cut reduction be merged? They must be whole subtrees of its tree. */
static bool piece_fits(const nest *s, const k_node *n, const sched_loop *par, bool along, bool many) {
  l_order order = nest_order(n);
  if (!s->first || n->code == K_SCAN) return false;
  int64_t chain = order == ORDER_INNER   ? ORDER_BLOCK
                  : order == ORDER_OUTER ? ORDER_OUTER_CHAIN
                  : order == ORDER_DOT   ? ORDER_DOT_CHUNK
                                         : 1;
  if (order == ORDER_INNER && !along) return !many; /* the results of rows are stored */
  int64_t chains = par->size / chain;
  return par->size % chain == 0 && (chains & (chains - 1)) == 0;
}

static bool fold_fits(nest *s, const loop_list *l, k_val v, int cut) {
  const k_kernel *k = s->k;
  const k_node *n = &k->nodes[v];
  const sched_loop *in = inner_loop(l, n->axis), *par = loop_of(l, LOOP_PAR, n->axis);
  int c = vec_axis(l);
  bool many = c != n->axis && axis_in(operand_axes(k, n), c);
  if (!in) return refuse(s, "a reduction without a loop");
  if (par && (n->axis != cut || !piece_fits(s, n, par, in->role == LOOP_VEC, many)))
    return refuse(s, "pieces of a reduction");
  if (in->role == LOOP_TILE) return true;
  if (in->role == LOOP_VEC) return n->code != K_DOT || refuse(s, "a product along a vector");
  for (const sched_loop *x = in + 1; x < l->at + l->n; x++)
    if (x->role == LOOP_FOR && (n->code == K_SCAN || axis_in(operand_axes(k, n), x->axis)))
      return refuse(s, "results over several axes");
  if (n->code == K_SCAN && !many) return refuse(s, "a running value without an axis to run beside");
  return !many || nest_order(n) != ORDER_INNER || const_at_most(k, n->axis, ORDER_LANES) ||
         refuse(s, "long rows beside each other");
}

/* Has an axis elements whatever the sizes, so that there are instances along it? */
static bool filled(const nest *s, int axis) {
  int64_t n;
  return dim_is_const(s->k->dims, s->k->axes[axis].extent, &n) && n > 0;
}

static bool effect_fits(nest *s, const loop_list *l, k_val e, int apart) {
  k_mask axes = s->k->nodes[e].axes;
  for (int i = 0; i < l->n; i++) {
    int a = l->at[i].axis;
    if (l->at[i].role != LOOP_PAR || axis_in(axes, a) || a == apart) continue;
    if (!filled(s, a) || axis_in(axes, vec_axis(l))) return refuse(s, differing);
  }
  for (int a = 0; a < (int)s->k->naxes; a++)
    if (axis_in(axes, a) && !inner_loop(l, a) && !loop_of(l, LOOP_PAR, a)) return refuse(s, "an axis without a loop");
  return true;
}

/* An update runs over what is not apart in its address in row-major order. */
static bool update_fits(nest *s) {
  k_mask apart = nest_apart(s->k, s->effects[0]);
  const loop_list *l = &s->s.main;
  int last = -1;
  for (int i = 0; i < l->n; i++) {
    if (l->at[i].role == LOOP_TILE) return refuse(s, "a tile of no product");
    if (axis_in(apart, l->at[i].axis)) continue;
    if (l->at[i].role == LOOP_PAR || l->at[i].axis < last) return refuse(s, "an update out of order");
    last = l->at[i].axis;
  }
  for (k_val v = 1; v < s->k->n; v++)
    if (s->needed[v] && k_folds(&s->k->nodes[v])) return refuse(s, "reductions in an update");
  return s->s.effects == 1 && effect_fits(s, l, s->effects[0], -1);
}

/* Marks v and what it is computed from, but not what reductions over the cut axis are computed from. */
typedef struct reacher {
  const nest *s;
  int cut;
  bool *seen;
} reacher;

static void reach(void *ctx, k_val v) {
  reacher *x = ctx;
  if (x->seen[v]) return;
  x->seen[v] = true;
  if (x->cut < 0 || !k_reduces(&x->s->k->nodes[v], x->cut)) k_each_operand(x->s->k, v, reach, x);
}

void nest_reach(const nest *s, int cut, k_val v, bool *seen) {
  k_each_operand(s->k, v, reach, &(reacher){s, cut, seen});
}

/* Has an instance one element of the axis? */
static bool one_each(const loop_list *l, int axis) {
  const sched_loop *par = loop_of(l, LOOP_PAR, axis);
  return par && par->size == 1;
}

typedef struct ranks {
  const uint8_t *of;
  uint8_t most;
} ranks;

static void take_rank(void *ctx, k_val v) {
  ranks *r = ctx;
  if (r->of[v] > r->most) r->most = r->of[v];
}

void nest_ranks(const nest *s, int cut, uint8_t *rank) {
  for (k_val v = 1; v < s->k->n; v++) {
    ranks r = {rank, 0};
    if (!s->needed[v]) continue;
    k_each_operand(s->k, v, take_rank, &r);
    rank[v] = (uint8_t)(r.most + (cut >= 0 && k_reduces(&s->k->nodes[v], cut) && r.most < UINT8_MAX));
  }
}

/* A failed check ends a launch behind its phase. So that the first one fails in any schedule, checks must be made in the order of their numbers, and
 * those of one number in one phase. */
static bool checks_fit(nest *s, int cut) {
  const k_kernel *k = s->k;
  const int along = vec_axis(&s->s.after);
  const bool tiled = along >= 0 && loop_of(&s->s.after, LOOP_PAR, along) && !loop_of(&s->s.main, LOOP_TILE, cut);
  uint8_t *rank = calloc(k->n, 1);
  if (!rank) return refuse(s, lower_no_memory);
  int last = -1;
  uint64_t number = 0;
  bool ok = true;
  nest_ranks(s, cut, rank);
  for (k_val v = 1; v < k->n && ok; v++) {
    const k_node *n = &k->nodes[v];
    if (!s->needed[v] || n->code != K_CHECK) continue;
    bool after = !axis_in(n->axes, cut);
    int at = 4 * rank[v] + (after ? (rank[v] ? -2 : 2) + (tiled && !axis_in(n->axes, along)) : 0);
    ok = last < 0 || (number == n->imm ? at == last : number < n->imm && at >= last);
    last = at;
    number = n->imm;
  }
  free(rank);
  return ok || refuse(s, "checks out of order");
}

/* Do what follows the pieces and its loops fit? */
static bool after_fits(nest *s, int cut) {
  const k_kernel *k = s->k;
  const loop_list *l = &s->s.after;
  int c = vec_axis(&s->s.main), along = vec_axis(l);
  const sched_loop *tile = along < 0 ? NULL : loop_of(l, LOOP_PAR, along);
  bool product = s->s.main.n && loop_of(&s->s.main, LOOP_TILE, cut), *seen = calloc(k->n, sizeof *seen);
  if (!seen) return refuse(s, lower_no_memory);
  bool ok = list_fits(s, l);
  for (int i = 0; i < l->n && ok; i++) ok = l->at[i].role != LOOP_TILE || refuse(s, "a tile of no product");
  for (uint32_t i = 0; i < s->s.effects && ok; i++) {
    k_val e = s->effects[i];
    if (axis_in(k->nodes[e].axes, cut)) continue;
    nest_reach(s, cut, e, seen);
    ok = effect_fits(s, l, e, tile && !product && !axis_in(k->nodes[e].axes, along) ? along : -1);
  }
  for (k_val v = 1; v < k->n && ok; v++) {
    const k_node *n = &k->nodes[v];
    if (!s->needed[v] || !k_folds(n)) continue;
    if (!k_reduces(n, cut)) {
      ok = !seen[v] || (!(tile && n->axis == along) && fold_fits(s, l, v, -1)) || refuse(s, "a reduction along tiles");
      continue;
    }
    for (int i = 0; i < s->s.main.n && ok; i++) { /* some instance must have the result, and those that read it, too */
      int a = s->s.main.at[i].axis;
      if (s->s.main.at[i].role != LOOP_PAR || a == cut || axis_in(n->axes, a)) continue;
      ok = filled(s, a) || (a != c && one_each(l, a)) || refuse(s, differing);
    }
    for (int a = 0; a < (int)k->naxes && ok; a++)
      if (axis_in(n->axes, a) && !product)
        ok = a == c ? along == c || refuse(s, "results along no vector")
                    : (one_each(l, a) && one_each(&s->s.main, a)) || refuse(s, "results of no instance");
  }
  free(seen);
  return ok;
}

static bool turn_fits(nest *s, int cut) {
  const loop_list *l = &s->s.main;
  if (cut >= 0 || l->n < 2 || l->at[l->n - 1].role != LOOP_VEC || l->at[l->n - 2].role != LOOP_FOR)
    return refuse(s, "nothing to turn");
  if (l->n > 2 && l->at[l->n - 3].role != LOOP_PAR) return refuse(s, "a turned tile in a loop");
  for (int i = l->n - 2; i < l->n; i++) {
    const sched_loop *par = loop_of(l, LOOP_PAR, l->at[i].axis);
    if (!par || par->size > TURN_TILE) return refuse(s, "a turned tile that is too large");
    for (uint32_t e = 0; e < s->s.effects; e++)
      if (!axis_in(s->k->nodes[s->effects[e]].axes, l->at[i].axis)) return refuse(s, differing);
  }
  return true;
}

/* Have the loops behind the pieces of a product the same tiles? */
static bool same_tiles(const loop_list *l, const loop_list *after, int cut) {
  int n = 0;
  for (int i = 0; i < l->n; i++) {
    const sched_loop *x = &l->at[i], *par = loop_of(after, LOOP_PAR, x->axis);
    if (x->axis == cut) continue;
    if (x->role == LOOP_PAR ? !par || par->size != x->size : !inner_loop(after, x->axis)) return false;
    n++;
  }
  return n == after->n;
}

/* A TILE is of the only product, and has rows and columns, each along an axis of one factor. */
static bool tile_fits(nest *s, const sched_loop *tile, k_val dot) {
  enum { MOST = 1 << 18 }; /* elements */
  const k_kernel *k = s->k;
  const loop_list *l = &s->s.main;
  bool cut = loop_of(l, LOOP_PAR, tile->axis) != NULL;
  if (!dot || k->nodes[dot].axis != tile->axis || (s->s.after.n != 0) != cut) return refuse(s, "a tile of no product");
  k_mask left = k->nodes[nest_factor(k, k->nodes[dot].a)].axes, right = k->nodes[nest_factor(k, k->nodes[dot].b)].axes;
  bool rows = false, columns = false;
  int64_t elements = 1;
  for (int i = 0; i < l->n; i++) {
    int a = l->at[i].axis;
    if (l->at[i].role != LOOP_FOR && l->at[i].role != LOOP_VEC) continue;
    const sched_loop *par = loop_of(l, LOOP_PAR, a);
    bool *of = axis_in(left, a) ? &rows : &columns;
    if (!par || *of || axis_in(left, a) == axis_in(right, a)) return refuse(s, "a product without tiles");
    *of = true;
    if (__builtin_mul_overflow(elements, par->size, &elements) || elements > MOST)
      return refuse(s, "a tile that is too large");
  }
  for (int i = 0; i < l->n; i++)
    if (l->at[i].role == LOOP_PAR && !axis_in(k->nodes[dot].axes, l->at[i].axis) && l->at[i].axis != tile->axis)
      return refuse(s, "a product without tiles");
  return !cut || same_tiles(l, &s->s.after, tile->axis) || refuse(s, "pieces of other tiles");
}

bool nest_fits(nest *s) {
  const k_kernel *k = s->k;
  const loop_list *l = &s->s.main;
  if (!list_fits(s, l)) return false;
  int cut = nest_cut(s), c = vec_axis(l);
  if (s->s.after.n && cut < 0) return refuse(s, "nothing is cut");
  if (k->nodes[s->effects[0]].code == K_STOREF) return update_fits(s);
  for (int i = 0; i < l->n; i++)
    if (l->at[i].role == LOOP_TILE && !tile_fits(s, &l->at[i], nest_product(s))) return false;
  bool *seen = calloc(k->n, sizeof *seen);
  if (!seen) return refuse(s, lower_no_memory);
  bool ok = true;
  for (uint32_t i = 0; i < s->s.effects && ok; i++) {
    k_val e = s->effects[i];
    if (cut >= 0 && !axis_in(k->nodes[e].axes, cut)) continue;
    nest_reach(s, -1, e, seen);
    ok = effect_fits(s, l, e, -1);
  }
  for (k_val v = 1; v < k->n && ok; v++)
    if (s->needed[v] && cut >= 0 && k_reduces(&k->nodes[v], cut)) {
      seen[v] = true;
      nest_reach(s, -1, v, seen);
    }
  for (k_val v = 1; v < k->n && ok; v++) {
    const k_node *n = &k->nodes[v];
    if (!s->needed[v] || !seen[v] || !k_folds(n)) continue;
    ok = fold_fits(s, l, v, cut);
    if (ok && n->code == K_SCAN && n->axis == c && loop_of(l, LOOP_PAR, c))
      ok = refuse(s, "a running value along tiles");
  }
  free(seen);
  if (ok && s->s.turn) ok = turn_fits(s, cut);
  return ok && (cut < 0 || (after_fits(s, cut) && checks_fit(s, cut)));
}

/* ---- nests -------------------------------------------------------------------------------------------------------------------- */

/* Where in a kernel's effects and in a schedule's text the next nest begins. */
typedef struct cursor {
  const k_kernel *k;
  schedule_target target;
  k_val *effects;
  uint32_t from, n;
  schedule_how how; /* of its text what is left */
} cursor;

static void mark_needed(void *ctx, k_val v) { ((nest *)ctx)->needed[v] = true; }

/* Sets up the nest of the next n effects. It is the kernel's first one if x->from is 0. False when memory is short. */
static bool nest_init(nest *s, const cursor *x, uint32_t n) {
  const k_kernel *k = x->k;
  const k_val *effects = x->effects + x->from;
  const bool vm = x->target == TARGET_CPU && (x->how.interpreted || k->classed);
  const schedule_numbers *by = &schedule_numbers_of[vm ? NUMBERS_VM : (int)x->target];
  *s = (nest){.k = k, .by = by, .effects = effects, .first = x->from == 0, .s.effects = n};
  s->processors = x->how.processors && x->target == TARGET_CPU ? (double)x->how.processors : by->price.processors;
  s->needed = calloc(k->n, sizeof *s->needed);
  if (!s->needed) return refuse(s, lower_no_memory);
  for (uint32_t i = 0; i < n; i++) {
    s->needed[effects[i]] = true;
    s->axes |= k->nodes[effects[i]].axes;
  }
  for (uint32_t v = k->n; v-- > 1;)
    if (s->needed[v]) k_each_operand(k, v, mark_needed, s);
  for (uint32_t v = 1; v < k->n; v++)
    if (s->needed[v] && k_folds(&k->nodes[v])) s->axes |= axis_bit(k->nodes[v].axis);
  return true;
}

static void nest_free(nest *s) { free(s->needed); }

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

/* Sets up the nest of the next n effects and gives it loops. */
static bool nest_of(nest *s, const cursor *x, uint32_t n) {
  if (!nest_init(s, x, n)) return false;
  return nest_choose(s, x->how.pick);
}

/* Are all checks of a number in the next n effects, or none? */
static bool checks_together(const cursor *x, uint32_t n) {
  for (uint32_t i = x->from; i < x->from + n; i++)
    for (uint32_t j = x->from + n; j < x->n; j++) {
      const k_node *a = &x->k->nodes[x->effects[i]], *b = &x->k->nodes[x->effects[j]];
      if (a->code == K_CHECK && b->code == K_CHECK && a->imm == b->imm) return false;
    }
  return true;
}

/* Reads a nest from the text: the number of its effects, if they are not all that can be one nest, and its loops. */
static bool nest_from_text(nest *s, cursor *x) {
  char *end;
  *s = (nest){0};
  if (x->from == x->n) return refuse(s, "a schedule of other effects");
  uint32_t n = effects_end(x->k, x->effects, x->from, x->n) - x->from;
  unsigned long some = strtoul(x->how.text, &end, 10);
  if (end != x->how.text) {
    if (*end != ':' || some < 1 || some > n) return refuse(s, "a schedule of other effects");
    n = (uint32_t)some;
    x->how.text = end + 1;
  }
  if (!checks_together(x, n)) return refuse(s, "a check in two nests");
  if (!nest_init(s, x, n)) return false;
  if (!nest_parse(x->k, &x->how.text, &s->s)) return refuse(s, "no schedule");
  if (!nest_fits(s)) return false;
  nest_settle(s);
  bool more = x->from + n < x->n;
  if (more != (strncmp(x->how.text, "||", 2) == 0) || (!more && *x->how.text))
    return refuse(s, "a schedule of other effects");
  x->how.text += more ? 2 : 0;
  x->how.text += strspn(x->how.text, " ");
  return true;
}

/* Sets up the next nest. Where effects cannot share loops each is a nest of its own. */
static bool nest_next(nest *s, cursor *x) {
  if (x->how.text) {
    bool ok = nest_from_text(s, x);
    x->from += s->s.effects;
    return ok;
  }
  const k_node *nodes = x->k->nodes;
  uint32_t from = x->from, to = effects_end(x->k, x->effects, from, x->n);
  x->from = to;
  cursor here = *x;
  here.from = from;
  if (nest_of(s, &here, to - from)) return true;
  if (s->why != differing || to - from == 1) return false;
  uint32_t same = from + 1;
  while (same < to && nodes[x->effects[same]].axes == nodes[x->effects[from]].axes) same++;
  if (same == to) return false;
  nest_free(s);
  x->from = same;
  return nest_of(s, &here, same - from);
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
  int cut = nest_cut(s);
  for (uint32_t i = 0; i < s->s.effects; i++) {
    const k_node *n = &nb->k->nodes[s->effects[i]];
    const loop_list *l = cut >= 0 && !axis_in(n->axes, cut) ? &s->s.after : &s->s.main;
    for (int a = 0; a < l->n; a++)
      if (n->code == K_STORE && l->at[a].role == LOOP_PAR && !axis_in(n->axes, l->at[a].axis))
        nb->lone_store[n->buffer] = true;
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

/* Begins a schedule's text with the axes that a kernel lacks, since they are unrolled. */
static void print_unrolled(const k_kernel *whole, const k_kernel *k, text_buf *text) {
  for (uint32_t a = 0; a < whole->naxes && whole != k; a++) {
    uint32_t b = 0;
    while (b < k->naxes && strcmp(whole->axes[a].name, k->axes[b].name) != 0) b++;
    if (b == k->naxes && k_can_unroll(whole, a))
      text_addf(text, "%s%s", text->len ? ", " : "rep ", whole->axes[a].name);
  }
  if (text->len) text_adds(text, "; ");
}

/* Adds to a schedule's text the loops of a nest. */
static void print_nest(const cursor *x, const nest *s, text_buf *text) {
  if (x->from > s->s.effects) text_adds(text, " || ");
  uint32_t all = effects_end(x->k, x->effects, x->from - s->s.effects, x->n) - (x->from - s->s.effects);
  if (all != s->s.effects) text_addf(text, "%u: ", s->s.effects);
  nest_print(x->k, &s->s, text);
}

static bool build_kernel(nest_builder *nb, cursor *x, int64_t grain, schedule_result *out, text_buf *text) {
  while (!nb->why && x->from < x->n) {
    nest s;
    if (!nest_next(&s, x))
      nest_refuse(nb, s.why);
    else if (nest_emit(nb, &s, grain))
      note_lone_stores(nb, &s);
    else
      nest_refuse(nb, lower_no_memory);
    if (!nb->why) print_nest(x, &s, text);
    out->price += s.price;
    if (s.candidates > out->candidates) out->candidates = s.candidates;
    nest_free(&s);
  }
  return !nb->why;
}

static bool price_of(const k_kernel *k, schedule_target target, const schedule_how *how, double *nanoseconds,
                     const char **why) {
  cursor x = {.k = k, .target = target, .how = {.processors = how->processors, .interpreted = how->interpreted}};
  x.effects = list_effects(k, &x.n, why);
  *nanoseconds = schedule_numbers_of[target].price.launch_ns;
  while (!*why && x.from < x.n) {
    nest s;
    if (nest_next(&s, &x))
      *nanoseconds += s.price;
    else
      *why = s.why;
    nest_free(&s);
  }
  free(x.effects);
  return !*why;
}

/* The kernel with its short axes unrolled where that has a lower price, for the caller to free; NULL if it is best as it is. Sets the price, or the
 * reason why there is none. */
static k_kernel *unroll_cheaply(const k_kernel *k, schedule_target target, const schedule_how *how, double *nanoseconds,
                                const char **why) {
  k_kernel *best = NULL;
  bool ok = price_of(k, target, how, nanoseconds, why);
  for (uint32_t a = 0; a < k->naxes && (best ? best : k)->n <= UNROLL_MOST; a++) {
    uint32_t now = 0; /* the axis' number in the best form, in which others have gone */
    const k_kernel *from = best ? best : k;
    while (now < from->naxes && strcmp(from->axes[now].name, k->axes[a].name) != 0) now++;
    if (now == from->naxes || !k_can_unroll(from, now)) continue;
    k_kernel *made = k_unroll(from, now);
    const char *other = NULL;
    double ns;
    if (!made || !price_of(made, target, how, &ns, &other) || (ok && ns >= *nanoseconds)) {
      k_free(made);
      continue;
    }
    k_free(best);
    best = made;
    *nanoseconds = ns;
    ok = true;
    *why = NULL;
  }
  return best;
}

/* The kernel with the axes unrolled that a text begins with ("rep a, b; "), and the text behind that. NULL: none are, or memory is
 * short, which *why says then. */
static k_kernel *unroll_text(const k_kernel *k, const char **text, const char **why) {
  k_kernel *made = NULL;
  uint32_t least = 0; /* the number of the next axis, at least: they are in order */
  if (strncmp(*text, "rep ", 4) != 0) return NULL;
  for (const char *at = *text + 4;;) {
    const k_kernel *from = made ? made : k;
    size_t n = strcspn(at, ",; ");
    uint32_t a = least;
    while (a < from->naxes && (strlen(from->axes[a].name) != n || strncmp(from->axes[a].name, at, n) != 0)) a++;
    least = a;
    bool can = a < from->naxes && k_can_unroll(from, a);
    k_kernel *next = can ? k_unroll(from, a) : NULL;
    if (can && !next) *why = lower_no_memory;
    k_free(made);
    if (!next) return NULL;
    made = next;
    at += n;
    at += strspn(at, " ");
    *text = at + (*at == ';') + strspn(at + (*at == ';'), " ");
    if (*at != ',') return made;
    at += 1 + strspn(at + 1, " ");
  }
}

schedule_how schedule_how_of(const int64_t *tune) {
  return (schedule_how){.grain = tune[TUNE_par_grain],
                        .pick = tune[TUNE_schedule_pick],
                        .processors = tune[TUNE_schedule_processors],
                        .interpreted = !tune[TUNE_jit_cc]};
}

bool schedule_estimate(const k_kernel *k, schedule_target target, const schedule_how *how, double *nanoseconds,
                       const char **why) {
  *why = NULL;
  k_free(unroll_cheaply(k, target, how, nanoseconds, why));
  return !*why;
}

static bool make_program(const k_kernel *k, schedule_target target, const schedule_how *how, const k_kernel *whole,
                         schedule_result *out, const char **why) {
  *out = (schedule_result){0};
  *why = lower_no_memory;
  l_program *p = l_new(k->name);
  if (!p) return false;
  nest_builder nb;
  cursor x = {.k = k, .target = target, .how = *how};
  text_buf text = {0};
  print_unrolled(whole, k, &text);
  bool loops = nest_has_loops(k), ok = nest_begin(&nb, k, p);
  out->price = schedule_numbers_of[target].price.launch_ns;
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
    const char *none = NULL;
    if (!loops) x.effects = list_effects(k, &x.n, &none);
    if (none) nest_refuse(&nb, none);
    ok = loops ? nest_loops(&nb, target) : build_kernel(&nb, &x, how->grain, out, &text);
  }
  free(x.effects);
  if (ok && !p->failed) {
    size_t ints = (nb.nints + 1) * sizeof *out->ints, pairs = (size_t)k->nbuffers * k->nbuffers + 1;
    size_t length = text.len + 1;
    l_tighten(p, ints + pairs + length, 3);
    out->ints = arena_alloc(&p->arena, ints);
    out->alias = arena_alloc(&p->arena, pairs);
    char *words = arena_alloc(&p->arena, length);
    ok = out->ints && out->alias && words && !text.failed;
    if (ok) p->schedule = text.len ? memcpy(words, text.text, text.len) : NULL;
  }
  if (ok && !p->failed) {
    if (nb.nints) memcpy(out->ints, nb.ints, nb.nints * sizeof *out->ints);
    out->nints = p->nints = nb.nints;
    ok = find_aliases(&nb, out->alias);
  }
  if (ok && !p->failed && target == TARGET_GPU) {
    int64_t *hints = calloc(nb.nints + (size_t)1, sizeof *hints);
    for (uint32_t i = 0; hints && i < nb.nints; i++) hints[i] = dim_hint(k->dims, nb.ints[i]);
    if (hints) layout_choose(p, hints);
    free(hints);
  }
  if (ok && !p->failed) {
    out->program = p;
  } else {
    *why = nb.why && !p->failed ? nb.why : lower_no_memory;
    l_free(p);
    ok = false;
  }
  nest_builder_free(&nb);
  text_free(&text);
  return ok;
}

bool schedule(const k_kernel *k, schedule_target target, const schedule_how *how, schedule_result *out,
              const char **why) {
  schedule_how then = *how;
  double ns;
  k_kernel *unrolled = NULL;
  bool any = false;
  for (uint32_t a = 0; a < k->naxes; a++) any |= k_can_unroll(k, a);
  *why = NULL;
  if (any && then.text) {
    unrolled = unroll_text(k, &then.text, why);
    if (*why) return false;
  } else if (any) {
    const char *other = NULL;
    unrolled = unroll_cheaply(k, target, how, &ns, &other);
  }
  bool ok = make_program(unrolled ? unrolled : k, target, &then, k, out, why);
  k_free(unrolled);
  return ok;
}
