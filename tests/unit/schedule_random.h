/* Random schedules of K kernels (jit/kernel/schedule.h): lists of loops made from nothing, and changes of those that are chosen. Most fit. */
#ifndef TESTS_UNIT_SCHEDULE_RANDOM_H
#define TESTS_UNIT_SCHEDULE_RANDOM_H

#include "jit/kernel/sched_impl.h"
#include "tests/unit/graph_random.h"

enum { SCHEDULE_NESTS = 64, SCHEDULE_UNROLLED = 4 };

/* A schedule taken apart. `k` is the kernel without the axes that are unrolled. */
typedef struct random_schedule {
  k_kernel *owned; /* NULL: k is the caller's */
  const k_kernel *k;
  char rep[256]; /* what the text begins with */
  sched_nest nests[SCHEDULE_NESTS];
  int n;
} random_schedule;

static inline void random_schedule_free(random_schedule *s) { k_free(s->owned); }

static inline void random_schedule_text(const random_schedule *s, text_buf *t) {
  text_adds(t, s->rep);
  for (int i = 0; i < s->n; i++) {
    text_addf(t, "%s%u: ", i ? " || " : "", s->nests[i].effects);
    nest_print(s->k, &s->nests[i], t);
  }
  text_add(t, "", 1);
}

static inline uint32_t random_effects(const k_kernel *k, k_val *effects) {
  uint32_t n = 0;
  for (k_val v = 1; v < k->n; v++)
    if (k_is_effect(&k->nodes[v])) effects[n++] = v;
  return n;
}

/* The most effects that the nest which begins with effect `from` may have (schedule.c). */
static inline uint32_t random_nest_most(const k_kernel *k, const k_val *effects, uint32_t from, uint32_t n) {
  for (uint32_t i = from; i < n; i++) {
    const k_node *x = &k->nodes[effects[i]];
    if (x->code == K_STORE && k->buffers[x->buffer].mode == BUF_SCRATCH) return i + 1 - from;
  }
  if (k->nodes[effects[from]].code == K_STOREF) return 1;
  bool updates = false;
  for (uint32_t i = from; i < n; i++) updates |= k->nodes[effects[i]].code == K_STOREF;
  if (!updates) return n - from;
  uint32_t i = from + 1;
  while (k->nodes[effects[i]].code == k->nodes[effects[from]].code && k->nodes[effects[i]].code != K_STOREF) i++;
  return i - from;
}

/* Takes a text apart, that of a program of kernel k. False: it is none. */
static inline bool random_schedule_read(random_schedule *s, const k_kernel *k, const char *text) {
  *s = (random_schedule){.k = k};
  const char *at = text;
  if (strncmp(at, "rep ", 4) == 0) {
    for (at += 4; *at != ';'; at += strspn(at, ", ")) {
      size_t n = strcspn(at, ",; ");
      uint32_t a = 0;
      while (a < s->k->naxes && (strlen(s->k->axes[a].name) != n || strncmp(s->k->axes[a].name, at, n) != 0)) a++;
      k_kernel *next = a < s->k->naxes && k_can_unroll(s->k, a) ? k_unroll(s->k, a) : NULL;
      if (!next) return false;
      k_free(s->owned);
      s->k = s->owned = next;
      at += n;
    }
    at += 1 + strspn(at + 1, " ");
    snprintf(s->rep, sizeof s->rep, "%.*s", (int)(at - text), text);
  }
  k_val *effects = calloc(s->k->n, sizeof *effects);
  uint32_t n = random_effects(s->k, effects), from = 0;
  bool ok = true;
  while (ok && from < n && s->n < SCHEDULE_NESTS) {
    sched_nest *x = &s->nests[s->n];
    char *end;
    x->effects = random_nest_most(s->k, effects, from, n);
    unsigned long some = strtoul(at, &end, 10);
    if (end != at) {
      x->effects = (uint32_t)some;
      at = end + 1;
    }
    ok = nest_parse(s->k, &at, x);
    from += x->effects;
    if (strncmp(at, "||", 2) == 0) at += 2 + strspn(at + 2, " ");
    s->n++;
  }
  free(effects);
  return ok && from == n && !*at;
}

/* ---- from nothing ------------------------------------------------------------------------------------------------------------ */

typedef struct nest_draw {
  rng *r;
  const k_kernel *k;
  bool *needed;
} nest_draw;

static inline void draw_operand(void *ctx, k_val v) {
  nest_draw *d = ctx;
  if (d->needed[v]) return;
  d->needed[v] = true;
  k_each_operand(d->k, v, draw_operand, d);
}

static inline int draw_axis(rng *r, k_mask among) {
  int n = __builtin_popcount(among), skip = n ? rng_below(r, n) : 0;
  for (int a = 0; among >> a; a++)
    if (axis_in(among, a) && skip-- == 0) return a;
  return -1;
}

static inline int64_t draw_size(rng *r, const k_kernel *k, int axis) {
  static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 16, 32, 33, 64, 64, 100, 128, 256, 1000, 1024, 4096};
  int64_t size = sizes[rng_below(r, 18)];
  if (rng_below(r, 2) && axis_hint(k, axis) > 1) size = 1 + (int64_t)(rng_next(r) % (uint64_t)axis_hint(k, axis));
  return size;
}

/* A size of pieces of a reduced axis: a multiple of its chains, or not. */
static inline int64_t draw_piece(rng *r, bool *const needed, const k_kernel *k, int axis) {
  int64_t chain = 1;
  for (k_val v = 1; v < k->n; v++) {
    const k_node *n = &k->nodes[v];
    if (!needed[v] || !k_reduces(n, axis)) continue;
    l_order order = nest_order(n);
    int64_t own = order == ORDER_INNER   ? ORDER_BLOCK
                  : order == ORDER_OUTER ? ORDER_OUTER_CHAIN
                  : order == ORDER_DOT   ? ORDER_DOT_CHUNK
                                         : 1;
    if (own > chain) chain = own;
  }
  if (chain > 64 && rng_below(r, 4) == 0) chain = 64; /* fits where rows are stored */
  if (rng_below(r, 20) == 0) return draw_size(r, k, axis);
  return chain == 1 && rng_below(r, 3) == 0 ? 2 : chain << rng_below(r, 4);
}

static inline void draw_loop(loop_list *l, loop_role role, int axis, int64_t size) {
  if (l->n < SCHED_LOOPS) l->at[l->n++] = (sched_loop){(uint8_t)role, (int8_t)axis, size};
}

/* Puts a list in order by roles, and loops of one role in any. Of updates' FORs that by axis is kept, for the most part. */
static inline void draw_order(rng *r, loop_list *l, bool keep) {
  static const int order[] = {[LOOP_PAR] = 0, [LOOP_TILE] = 1, [LOOP_FOR] = 2, [LOOP_VEC] = 3};
  for (int i = 0; i < l->n; i++)
    for (int j = i; j > 0; j--) {
      sched_loop *a = &l->at[j - 1], *b = &l->at[j], t = *a;
      int x = order[a->role], y = order[b->role];
      bool swap = x != y ? y < x : keep ? b->axis < a->axis : rng_below(r, 2);
      if (!swap) break;
      *a = *b;
      *b = t;
    }
}

static inline void draw_main(nest_draw *d, sched_nest *s, const k_val *effects, bool first) {
  const k_kernel *k = d->k;
  rng *r = d->r;
  k_mask axes = 0, folded = 0, inner = 0, scanned = 0, along = 0, apart = 0;
  k_val dot = 0;
  for (uint32_t i = 0; i < s->effects; i++) axes |= k->nodes[effects[i]].axes;
  k_mask stored = axes;
  for (k_val v = 1; v < k->n; v++) {
    const k_node *n = &k->nodes[v];
    if (!d->needed[v] || !k_folds(n)) continue;
    axes |= axis_bit(n->axis);
    folded |= axis_bit(n->axis);
    if (n->code == K_SCAN) scanned |= axis_bit(n->axis);
    if (n->code == K_DOT && n->axes == stored) dot = v;
    if (n->code != K_DOT && n->order == ORDER_INNER) inner |= axis_bit(n->axis);
    along |= operand_axes(k, n) & ~axis_bit(n->axis);
  }
  bool update = k->nodes[effects[0]].code == K_STOREF;
  if (update) apart = nest_apart(k, effects[0]);
  int c = draw_axis(r, inner && rng_below(r, 4)            ? inner
                       : axes & ~folded && rng_below(r, 3) ? axes & ~folded
                                                           : axes),
      tile = -1, cut = -1;
  if (rng_below(r, 12) == 0) c = -1;
  if (update && c >= 0 && !axis_in(apart, c) && rng_below(r, 4)) /* the innermost that is not apart */
    for (int a = c + 1; a < (int)k->naxes; a++)
      if (axis_in(axes & ~apart, a)) c = a;
  if (dot && rng_below(r, 2)) {
    tile = k->nodes[dot].axis;
    if (c == tile) c = draw_axis(r, axes & ~axis_bit(tile));
  }
  k_mask cuttable = folded & ~scanned;
  if (first && cuttable && rng_below(r, 2)) cut = rng_below(r, 3) && axis_in(cuttable, c) ? c : draw_axis(r, cuttable);
  k_mask left = dot ? k->nodes[k->nodes[dot].a].axes : 0, right = dot ? k->nodes[k->nodes[dot].b].axes : 0;
  int m = draw_axis(r, left & ~right), n = draw_axis(r, right & ~left);
  loop_list *l = &s->main;
  for (int a = 0; a < (int)k->naxes; a++) {
    if (!axis_in(axes, a)) continue;
    bool is_tile = tile >= 0 && (a == m || a == n || a == c);
    if (a == cut) draw_loop(l, LOOP_PAR, a, draw_piece(r, d->needed, k, a));
    int64_t size = is_tile && rng_below(r, 8) ? 1 + rng_below(r, 40) : draw_size(r, k, a);
    if (a == tile) {
      draw_loop(l, LOOP_TILE, a, 0);
    } else if (a == c) {
      if (a != cut && (is_tile || (!axis_in(folded, a) && rng_below(r, 3) == 0))) draw_loop(l, LOOP_PAR, a, size);
      draw_loop(l, LOOP_VEC, a, 0);
    } else if (is_tile) {
      draw_loop(l, LOOP_PAR, a, size);
      draw_loop(l, LOOP_FOR, a, 0);
    } else if (axis_in(folded, a) || (update && !axis_in(apart, a))) {
      draw_loop(l, LOOP_FOR, a, 0);
    } else {
      int how = rng_below(r, 10);
      if (how < 7 || tile >= 0) draw_loop(l, LOOP_PAR, a, how < 5 || tile >= 0 ? 1 : draw_size(r, k, a));
      if (how >= 5 && tile < 0) draw_loop(l, LOOP_FOR, a, 0);
    }
  }
  draw_order(r, l, update && rng_below(r, 8));
  if (cut < 0) return;
  /* what follows: the axes of effects that are not along the cut one, and of results */
  k_mask rest = 0, results = 0;
  for (uint32_t i = 0; i < s->effects; i++)
    if (!axis_in(k->nodes[effects[i]].axes, cut)) rest |= k->nodes[effects[i]].axes;
  for (k_val v = 1; v < k->n; v++)
    if (d->needed[v] && k_reduces(&k->nodes[v], cut)) results |= k->nodes[v].axes;
  int v = axis_in(results, c) || tile >= 0 ? c : rng_below(r, 2) ? draw_axis(r, rest & ~results) : -1;
  for (int a = 0; a < (int)k->naxes; a++) {
    if (!axis_in(rest | results, a)) continue;
    const sched_loop *in = loop_of(l, LOOP_PAR, a);
    if (tile >= 0 && (a == m || a == n || a == c)) {
      draw_loop(&s->after, LOOP_PAR, a, in ? in->size : 1);
      draw_loop(&s->after, a == v ? LOOP_VEC : LOOP_FOR, a, 0);
    } else if (a == v) {
      if (rng_below(r, 3) == 0) draw_loop(&s->after, LOOP_PAR, a, draw_size(r, k, a));
      draw_loop(&s->after, LOOP_VEC, a, 0);
    } else if (axis_in(results, a) || rng_below(r, 2)) {
      draw_loop(&s->after, LOOP_PAR, a, 1);
    } else {
      draw_loop(&s->after, LOOP_FOR, a, 0);
    }
  }
  draw_order(r, &s->after, false);
  if (tile >= 0 && rng_below(r, 4)) /* the same tiles in the same order */
    for (int i = 0, j = 0; i < l->n && l->at[i].role == LOOP_PAR; i++) {
      if (l->at[i].axis == cut) continue;
      s->after.at[j++] = l->at[i];
    }
  if (s->after.n && rng_below(r, 3) == 0) s->group = 1 + rng_below(r, rng_below(r, 2) ? 4 : 100);
  if (s->after.n && rng_below(r, 3) == 0) s->group = (int64_t)1 << rng_below(r, 8);
}

static inline void draw_turn(rng *r, sched_nest *s) {
  loop_list *l = &s->main;
  if (l->n < 2 || l->at[l->n - 1].role != LOOP_VEC || l->at[l->n - 2].role != LOOP_FOR || rng_below(r, 3)) return;
  s->turn = true;
  for (int i = 0; i < 2; i++) {
    int axis = l->at[l->n - 1 - i].axis;
    bool has = false;
    for (int j = 0; j < l->n; j++) {
      if (l->at[j].role != LOOP_PAR || l->at[j].axis != axis) continue;
      has = true;
      if (l->at[j].size > TURN_TILE || l->at[j].size < 1 || rng_below(r, 2))
        l->at[j].size = 1 + rng_below(r, TURN_TILE);
    }
    if (has || l->n == SCHED_LOOPS) continue;
    memmove(l->at + 1, l->at, (size_t)l->n++ * sizeof *l->at);
    l->at[0] = (sched_loop){LOOP_PAR, (int8_t)axis, rng_below(r, 2) ? TURN_TILE : 1 + rng_below(r, TURN_TILE)};
  }
}

static inline bool random_schedule_make(random_schedule *s, const k_kernel *k, rng *r) {
  *s = (random_schedule){.k = k};
  for (uint32_t a = 0; a < s->k->naxes; a++) {
    if (!k_can_unroll(s->k, a) || rng_below(r, 2) || s->k->n > 256) continue;
    const char *name = s->k->axes[a].name;
    size_t at = strlen(s->rep);
    if (at + strlen(name) + 8 > sizeof s->rep) break;
    k_kernel *next = k_unroll(s->k, a);
    if (!next) return false;
    snprintf(s->rep + at, sizeof s->rep - at, "%s%s", at ? ", " : "rep ", name);
    k_free(s->owned);
    s->k = s->owned = next;
    a--; /* what followed it has its number now */
  }
  if (s->rep[0]) strcat(s->rep, "; ");
  k_val *effects = calloc(s->k->n, sizeof *effects);
  uint32_t n = random_effects(s->k, effects);
  for (uint32_t from = 0; from < n && s->n < SCHEDULE_NESTS;) {
    sched_nest *x = &s->nests[s->n++];
    uint32_t most = random_nest_most(s->k, effects, from, n);
    x->effects = rng_below(r, 3) ? most : 1 + (uint32_t)rng_below(r, (int)most);
    nest_draw d = {r, s->k, calloc(s->k->n, 1)};
    for (uint32_t i = 0; i < x->effects; i++) draw_operand(&d, effects[from + i]);
    draw_main(&d, x, effects + from, from == 0);
    draw_turn(r, x);
    free(d.needed);
    from += x->effects;
  }
  free(effects);
  return true;
}

/* ---- changes ------------------------------------------------------------------------------------------------------------------------- */

static inline void random_change(random_schedule *s, rng *r) {
  sched_nest *x = &s->nests[rng_below(r, s->n)];
  loop_list *l = x->after.n && rng_below(r, 3) == 0 ? &x->after : &x->main;
  if (!l->n) return;
  int i = rng_below(r, l->n), j = rng_below(r, l->n);
  sched_loop a = l->at[i];
  switch (rng_below(r, 9)) {
  case 0: /* another order */
    l->at[i] = l->at[j];
    l->at[j] = a;
    break;
  case 1:
  case 2: /* another size */
    if (a.role == LOOP_PAR)
      l->at[i].size = a.size > 1 && rng_below(r, 2) ? (rng_below(r, 2) || a.size < 2 ? a.size * 2 : a.size / 2)
                                                    : draw_size(r, s->k, a.axis);
    break;
  case 3: /* another role */
    l->at[i] = (sched_loop){(uint8_t)rng_below(r, LOOP_ROLES), a.axis, 0};
    if (l->at[i].role == LOOP_PAR) l->at[i].size = draw_size(r, s->k, a.axis);
    draw_order(r, l, true);
    break;
  case 4: /* tiles of an axis */
    if (a.role != LOOP_PAR && !loop_of(l, LOOP_PAR, a.axis)) draw_loop(l, LOOP_PAR, a.axis, draw_size(r, s->k, a.axis));
    if (a.role == LOOP_PAR && a.size == 1) {
      l->at[i].size = draw_size(r, s->k, a.axis);
      draw_loop(l, LOOP_FOR, a.axis, 0);
    }
    draw_order(r, l, true);
    break;
  case 5: /* none any more */ memmove(l->at + i, l->at + i + 1, (size_t)(--l->n - i) * sizeof *l->at); break;
  case 6: draw_turn(r, x); break;
  case 7: x->group = x->after.n && rng_below(r, 2) ? 1 + rng_below(r, 64) : 0; break;
  default: /* apart, or with what follows */
    if (x->effects > 1 && s->n < SCHEDULE_NESTS) {
      int at = (int)(x - s->nests);
      memmove(x + 1, x, (size_t)(s->n++ - at) * sizeof *x);
      x[1].effects = 1 + (uint32_t)rng_below(r, (int)x[0].effects - 1);
      x[0].effects -= x[1].effects;
    }
    break;
  }
}

#endif
