/* Places of buffers in memory. A buffer goes over an operand that the same step reads for the last time, where the schedule
 * allows that; else into the gap it fits best: in the memory of an output that is not written yet, or in the arena; else on top
 * of the arena.
 *
 * The order in which buffers get their places decides how much is wasted between them, and no order is best for all graphs.
 *   Sweeps go through the steps, from the last to the first or the other way round. What is free then is a set ordered by size
 * (a treap), so a place costs the logarithm of their number. Lives that lie in one another, as those of what a forward pass
 * makes for the backward pass, pack without gaps.
 *   The search goes by decreasing size and looks at all that is placed and lives at the same time, which is quadratic where lives
 * overlap massively. It is made where that is little (SEARCH_MOST).
 * The way that needs the least arena is taken. No other is tried once nothing could be saved: what lives at one time has to lie
 * somewhere.
 *
 * Tried: searches alone (planning 10,000 nodes of a training step took 1,890 ms, now 250, and they needed 0.2 % more memory; 0.02 %
 * less for those of a transformer, 300 ms, now 70); sweeps alone (the arenas of attention and convnet among the examples are up to
 * 12 and 8 % larger); more searches, by length and by birth (0.2 % less for random graphs, nothing for the examples); the first piece
 * that is large enough instead of the one that fits best (never less arena). */
#include "jit/kernel/place.h"

#include <stdlib.h>
#include <string.h>

enum {
  SEARCH_MOST = 256, /* what a search may look at, per life */
  SWEEPS = 3
};

static bool together(const place_life *x, const place_life *y) { return x->first <= y->last && y->first <= x->last; }

static bool may_overlap(const placing *p, const place_life *over, const place_life *by) {
  for (uint32_t i = by->pairs[0]; i; i = p->pairs[i - 1].next[0])
    if (&p->lives[p->pairs[i - 1].over] == over) return true;
  return false;
}

/* May one of two lives be placed over the other, because they are a pair (place_pair)? */
static bool in_place(const placing *p, const place_life *x, const place_life *y) {
  return may_overlap(p, x, y) || may_overlap(p, y, x);
}

static void chain_pairs(placing *p) {
  for (uint32_t i = 0; i < p->n; i++) p->lives[i].pairs[0] = p->lives[i].pairs[1] = 0;
  for (uint32_t i = p->npairs; i-- > 0;) {
    place_pair *x = &p->pairs[i];
    uint32_t *ends[2] = {&p->lives[x->by].pairs[0], &p->lives[x->over].pairs[1]};
    for (int k = 0; k < 2; k++) {
      x->next[k] = *ends[k];
      *ends[k] = i + 1;
    }
  }
}

/* ---- sweeps -------------------------------------------------------------------------------------------------------------- */

/* A piece of a region: it is free, or one buffer lies in it. */
typedef struct block {
  int64_t offset, size;
  uint32_t region;
  uint32_t until;         /* what is placed here must have ended before this step of the sweep */
  uint32_t before, after; /* the blocks beside it in its region; 0: none */
  bool free;
  /* of a free block: its place in the treap of free blocks, which is ordered by size, region and offset */
  uint32_t left, right;
  uint32_t most; /* the largest `until` in its subtree */
} block;

typedef struct sweep {
  placing *p;
  bool back;     /* does the sweep go from the last step to the first? */
  block *blocks; /* numbered from 1 */
  uint32_t n;
  uint32_t root;
  uint32_t last; /* the last block of the arena */
  int64_t top;
} sweep;

static uint32_t born(const sweep *s, const place_life *v) { return s->back ? s->p->steps - v->last : v->first; }
static uint32_t dies(const sweep *s, const place_life *v) { return s->back ? s->p->steps - v->first : v->last; }

/* A block's priority in the treap, where parents have higher priorities than their children. */
static uint32_t rank_of(uint32_t block) {
  block = (block ^ block >> 16) * 0x85ebca6bu;
  block = (block ^ block >> 13) * 0xc2b2ae35u;
  return block ^ block >> 16;
}

/* The order of the treap: by size; among blocks of one size, those in the memory of outputs come before those of the arena. */
static bool before(const block *x, const block *y) {
  if (x->size != y->size) return x->size < y->size;
  if (x->region != y->region) return y->region == PLACE_ARENA || (x->region != PLACE_ARENA && x->region < y->region);
  return x->offset < y->offset;
}

static void renew(sweep *s, uint32_t i) {
  block *x = &s->blocks[i];
  uint32_t l = s->blocks[x->left].most, r = s->blocks[x->right].most;
  x->most = x->until;
  if (l > x->most) x->most = l;
  if (r > x->most) x->most = r;
  s->p->work++;
}

/* Splits a tree into the blocks that come before `at` and the others. */
static void split(sweep *s, uint32_t tree, const block *at, uint32_t *low, uint32_t *high) {
  if (!tree) {
    *low = *high = 0;
    return;
  }
  block *x = &s->blocks[tree];
  if (before(x, at)) {
    split(s, x->right, at, &x->right, high);
    *low = tree;
  } else {
    split(s, x->left, at, low, &x->left);
    *high = tree;
  }
  renew(s, tree);
}

static uint32_t join(sweep *s, uint32_t low, uint32_t high) {
  if (!low || !high) return low ? low : high;
  bool above = rank_of(low) > rank_of(high);
  uint32_t top = above ? low : high;
  block *x = &s->blocks[top];
  if (above)
    x->right = join(s, x->right, high);
  else
    x->left = join(s, low, x->left);
  renew(s, top);
  return top;
}

static uint32_t insert(sweep *s, uint32_t tree, uint32_t i) {
  block *x = &s->blocks[i], *t = &s->blocks[tree];
  if (tree && rank_of(tree) > rank_of(i)) {
    if (before(t, x))
      t->right = insert(s, t->right, i);
    else
      t->left = insert(s, t->left, i);
    renew(s, tree);
    return tree;
  }
  split(s, tree, x, &x->left, &x->right);
  renew(s, i);
  return i;
}

static uint32_t erase(sweep *s, uint32_t tree, uint32_t i) {
  block *t = &s->blocks[tree];
  if (tree == i) return join(s, t->left, t->right);
  if (before(t, &s->blocks[i]))
    t->right = erase(s, t->right, i);
  else
    t->left = erase(s, t->left, i);
  renew(s, tree);
  return tree;
}

/* The smallest free block of at least `bytes` that may be used until step `last`; 0 if there is none. */
static uint32_t find(sweep *s, uint32_t tree, int64_t bytes, uint32_t last) {
  const block *t = &s->blocks[tree];
  if (!tree || t->most <= last) return 0;
  s->p->work++;
  uint32_t x = t->size < bytes ? 0 : find(s, t->left, bytes, last);
  if (x) return x;
  return t->size >= bytes && t->until > last ? tree : find(s, t->right, bytes, last);
}

static void take_out(sweep *s, uint32_t i) {
  s->root = erase(s, s->root, i);
  s->blocks[i].free = false;
}

static uint32_t new_block(sweep *s, uint32_t region, int64_t offset, int64_t size, uint32_t until) {
  s->blocks[++s->n] = (block){.offset = offset, .size = size, .region = region, .until = until};
  return s->n;
}

/* Makes block k, which follows block i, a part of block i. */
static void append(sweep *s, uint32_t i, uint32_t k) {
  block *x = &s->blocks[i], *y = &s->blocks[k];
  x->size += y->size;
  x->after = y->after;
  if (x->after) s->blocks[x->after].before = i;
  if (s->last == k) s->last = i;
}

/* Frees a block and unites it with free neighbours. The first block of a region always keeps its number. */
static void give_back(sweep *s, uint32_t i) {
  uint32_t low = s->blocks[i].before, high = s->blocks[i].after;
  if (high && s->blocks[high].free) {
    take_out(s, high);
    append(s, i, high);
  }
  if (low && s->blocks[low].free) {
    take_out(s, low);
    append(s, low, i);
    i = low;
  }
  s->blocks[i].free = true;
  s->root = insert(s, s->root, i);
}

/* Cuts a block, which is not in the treap, after `bytes`; the rest becomes a free block. */
static void cut(sweep *s, uint32_t i, int64_t bytes) {
  block *x = &s->blocks[i];
  if (x->size <= bytes) return;
  uint32_t k = new_block(s, x->region, x->offset + bytes, x->size - bytes, x->until);
  block *rest = &s->blocks[k];
  rest->before = i;
  rest->after = x->after;
  if (rest->after) s->blocks[rest->after].before = k;
  x->after = k;
  x->size = bytes;
  rest->free = true;
  s->root = insert(s, s->root, k);
  if (s->last == i) s->last = k;
}

/* Makes a block of `bytes` at the end of the arena, by enlarging a free block that lies there or by adding one. */
static uint32_t extend(sweep *s, int64_t bytes) {
  uint32_t i = s->last;
  if (i && s->blocks[i].free) {
    take_out(s, i);
  } else {
    i = new_block(s, PLACE_ARENA, s->top, 0, UINT32_MAX);
    s->blocks[i].before = s->last;
    if (s->last) s->blocks[s->last].after = i;
    s->last = i;
  }
  block *x = &s->blocks[i];
  x->size = bytes;
  if (__builtin_add_overflow(x->offset, bytes, &s->top)) s->top = INT64_MAX / 2;
  return i;
}

/* The block of a life over which v may be placed: an operand of the step that makes v (going back: a result of the step that reads v last),
 * or an output that will be written over v. 0: there is none. */
static uint32_t same_place(sweep *s, const place_life *v) {
  placing *p = s->p;
  for (uint32_t i = v->pairs[s->back]; i; i = p->pairs[i - 1].next[s->back]) {
    place_life *x = &p->lives[s->back ? p->pairs[i - 1].by : p->pairs[i - 1].over];
    uint32_t b = x->block;
    p->work++;
    if (!b || s->blocks[b].until <= dies(s, v)) continue;
    x->block = 0; /* the block is v's now */
    return b;
  }
  for (uint32_t i = s->back ? 0 : v->pairs[1]; i; i = p->pairs[i - 1].next[1]) {
    const place_life *x = &p->lives[p->pairs[i - 1].by];
    const block *b = &s->blocks[x->block];
    p->work++;
    if (!x->output || !b->free || b->after || b->before) continue;
    take_out(s, x->block);
    return x->block;
  }
  return 0;
}

static void sweep_put(sweep *s, place_life *v) {
  uint32_t b = same_place(s, v);
  if (!b && (b = find(s, s->root, v->exact, dies(s, v)))) {
    take_out(s, b);
    cut(s, b, v->bytes);
  }
  if (!b) b = extend(s, v->bytes);
  v->block = b;
  v->region = s->blocks[b].region;
  v->offset = s->blocks[b].offset;
}

static int by_size(const place_life *x, const place_life *y) {
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
  if (x->first != y->first) return x->first < y->first ? -1 : 1;
  return x < y ? -1 : x > y;
}

static int by_length(const place_life *x, const place_life *y) {
  uint32_t length_x = x->last - x->first, length_y = y->last - y->first;
  return length_x != length_y ? (length_x < length_y ? 1 : -1) : by_size(x, y);
}

static int by_birth(const place_life *x, const place_life *y) {
  return x->first != y->first ? (x->first < y->first ? -1 : 1) : by_size(x, y);
}

static int by_death(const place_life *x, const place_life *y) {
  return x->last != y->last ? (x->last < y->last ? 1 : -1) : by_size(x, y);
}

static int by_death_and_length(const place_life *x, const place_life *y) {
  return x->last != y->last ? (x->last < y->last ? 1 : -1) : by_length(x, y);
}

#define FOR_QSORT(order)                                                                                               \
  static int order##_of(const void *a, const void *b) {                                                                \
    return order(*(place_life *const *)a, *(place_life *const *)b);                                                    \
  }
FOR_QSORT(by_size)
FOR_QSORT(by_birth)
FOR_QSORT(by_death)
FOR_QSORT(by_death_and_length)

/* What sweeps and the search share. */
typedef struct room {
  placing *p;
  place_life **order, **outputs; /* the lives that are to be placed; the outputs, by region */
  uint32_t n, noutputs;
  uint32_t *head; /* by step: 1 + the first life in a list that life.next links */
  sweep sweep;
  const place_life **near; /* for the search: placed lives that overlap in time with the one at hand */
  uint32_t nnear;
} room;

/* Places all lives in one sweep over the steps; lives that begin at one step are placed in the given order. Returns the size of the arena. */
static int64_t sweep_all(room *r, bool back, int (*order)(const void *, const void *)) {
  placing *p = r->p;
  sweep *s = &r->sweep;
  *s = (sweep){.p = p, .back = back, .blocks = s->blocks};
  memset(r->head, 0, (p->steps + 1) * sizeof *r->head);
  qsort(r->order, r->n, sizeof *r->order, order);
  for (uint32_t k = 0; k < r->noutputs + r->n; k++) {
    place_life *v = k < r->noutputs ? r->outputs[k] : r->order[k - r->noutputs];
    v->block = 0;
    if (v->output) {
      v->block = new_block(s, v->region, 0, v->exact, back ? UINT32_MAX : v->first);
      if (!back) {
        s->blocks[v->block].free = true;
        s->root = insert(s, s->root, v->block);
        continue;
      }
    }
    v->next = r->head[dies(s, v)];
    r->head[dies(s, v)] = (uint32_t)(v - p->lives) + 1;
  }
  uint32_t i = 0;
  for (uint32_t t = 0; t <= p->steps && !cancelled(p->cancel); t++) {
    for (; i < r->n && born(s, r->order[i]) == t; i++) sweep_put(s, r->order[i]);
    for (uint32_t k = r->head[t]; k; k = p->lives[k - 1].next) {
      place_life *v = &p->lives[k - 1];
      p->work++;
      if (v->block) give_back(s, v->block);
      v->block = 0;
    }
  }
  return s->top;
}

/* ---- the search ------------------------------------------------------------------------------------------------------------ */

/* Lists a placed life by time, so that room_find visits few lists: at the one of its steps whose number has the most trailing zeros. */
static void room_add(room *r, place_life *v) {
  uint32_t at = v->last;
  if (v->first != v->last)
    at = at >> (31 - __builtin_clz(v->first ^ v->last)) << (31 - __builtin_clz(v->first ^ v->last));
  v->next = r->head[at];
  r->head[at] = (uint32_t)(v - r->p->lives) + 1;
}

static void room_collect(room *r, uint32_t at, const place_life *v) {
  r->p->work++;
  for (uint32_t b = r->head[at]; b; b = r->p->lives[b - 1].next) {
    r->p->work++;
    const place_life *x = &r->p->lives[b - 1];
    if (together(x, v) && x->bytes) r->near[r->nnear++] = x;
  }
}

static int by_place(const void *a, const void *b) {
  const place_life *x = *(const place_life *const *)a, *y = *(const place_life *const *)b;
  if (x->region != y->region) return x->region < y->region ? -1 : 1;
  if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
  return x->number < y->number ? -1 : 1;
}

/* Collects the placed lives that overlap in time with v, sorted by region and offset. */
static void room_find(room *r, const place_life *v) {
  r->nnear = 0;
  for (uint32_t at = v->first; at <= v->last; at++) room_collect(r, at, v);
  /* steps outside v's life whose lists may have lives that reach into it */
  for (int h = 0; h < 31 && (r->p->steps >> h); h++) {
    uint64_t below = (uint64_t)(v->first >> h) << h, above = ((uint64_t)(v->last >> h) + 1) << h;
    if (below && below < v->first && __builtin_ctzll(below) == h) room_collect(r, (uint32_t)below, v);
    if (above <= r->p->steps && __builtin_ctzll(above) == h) room_collect(r, (uint32_t)above, v);
  }
  qsort(r->near, r->nnear, sizeof *r->near, by_place);
}

/* Are v's bytes at this place free while v lives, not counting lives over which v may be placed? */
static bool is_free(const room *r, const place_life *v, uint32_t region, int64_t offset) {
  for (uint32_t i = 0; i < r->nnear; i++) {
    const place_life *x = r->near[i];
    if (x->region != region || x->offset + x->bytes <= offset || offset + v->bytes <= x->offset) continue;
    if (x->offset != offset || !in_place(r->p, x, v)) return false;
  }
  return true;
}

/* The offset of the smallest gap of a region that holds v, and its size in *size; -1 if there is none below `end`, the region's size.
 * near[0..n) are the lives in the region that overlap in time with v, by offset. */
static int64_t best_gap(const place_life *const *near, uint32_t n, const place_life *v, int64_t end, int64_t *size) {
  int64_t at = 0, best = -1;
  for (uint32_t i = 0; i <= n; i++) {
    int64_t to = i < n ? near[i]->offset : end;
    if (to - at >= (i < n ? v->bytes : v->exact) && (best < 0 || to - at < *size)) {
      best = at;
      *size = to - at;
    }
    if (i < n && near[i]->offset + near[i]->bytes > at) at = near[i]->offset + near[i]->bytes;
  }
  return best;
}

/* Places all lives by search. Returns the size of the arena. */
static int64_t search(room *r) {
  int64_t top = 0;
  qsort(r->order, r->n, sizeof *r->order, by_size_of);
  memset(r->head, 0, (r->p->steps + 1) * sizeof *r->head);
  for (uint32_t k = 0; k < r->noutputs; k++) {
    r->outputs[k]->number = k;
    room_add(r, r->outputs[k]);
  }
  for (uint32_t i = 0; i < r->n && !cancelled(r->p->cancel); i++) {
    place_life *v = r->order[i];
    const place_life *under = NULL;
    v->region = PLACE_NOWHERE;
    v->offset = 0;
    room_find(r, v);
    for (uint32_t k = 0; k < r->nnear; k++) {
      const place_life *x = r->near[k];
      if ((!under || x->number < under->number) && in_place(r->p, x, v) && is_free(r, v, x->region, x->offset))
        under = x;
    }
    if (under) {
      v->region = under->region;
      v->offset = under->offset;
    }
    int64_t smallest = INT64_MAX;
    uint32_t from = 0, to = 0;
    while (to < r->nnear && r->near[to]->region == PLACE_ARENA) to++;
    uint32_t in_arena = to;
    for (uint32_t k = 0; k <= r->noutputs && !under; k++) { /* in the outputs' memory by number, then in the arena */
      uint32_t region = k < r->noutputs ? r->outputs[k]->region : PLACE_ARENA;
      int64_t size = 0, end = k < r->noutputs ? r->outputs[k]->exact : top;
      if (k < r->noutputs) {
        for (from = to; from < r->nnear && r->near[from]->region < region;) from++;
        for (to = from; to < r->nnear && r->near[to]->region == region;) to++;
        if (r->outputs[k]->first <= v->last || end < v->exact) continue;
      } else {
        from = 0;
        to = in_arena;
      }
      int64_t at = best_gap(r->near + from, to - from, v, end, &size);
      if (at < 0 || size >= smallest) continue;
      smallest = size;
      v->region = region;
      v->offset = at;
    }
    if (!v->region) { /* no gap: after everything that is in use while it lives */
      v->region = PLACE_ARENA;
      for (uint32_t k = 0; k < in_arena; k++)
        if (r->near[k]->offset + r->near[k]->bytes > v->offset) v->offset = r->near[k]->offset + r->near[k]->bytes;
      if (__builtin_add_overflow(v->offset, v->bytes, &top)) top = INT64_MAX / 2;
    }
    v->number = r->noutputs + i;
    room_add(r, v);
  }
  return top;
}

/* ---- all of them --------------------------------------------------------------------------------------------------------- */

/* A lower bound of the arena's size: the most that lives at a step, less the memory of outputs that are not written yet. */
static int64_t least_bytes(room *r, int64_t *change) {
  int64_t least = 0, live = 0;
  memset(change, 0, (r->p->steps + 1) * sizeof *change);
  for (uint32_t i = 0; i < r->n; i++) {
    change[r->order[i]->first] += r->order[i]->bytes;
    change[r->order[i]->last] -= r->order[i]->bytes;
  }
  for (uint32_t k = 0; k < r->noutputs; k++) {
    live -= r->outputs[k]->bytes;
    change[r->outputs[k]->first] += r->outputs[k]->bytes;
  }
  for (uint32_t t = 0; t < r->p->steps; t++) {
    live += change[t];
    if (live > least) least = live;
  }
  return least;
}

/* Would a search look at no more than SEARCH_MOST things for each life? It looks at overlapping lives, steps and outputs. */
static bool search_is_short(room *r, int64_t *living) {
  int64_t left = (int64_t)SEARCH_MOST * r->n, live = 0;
  memset(living, 0, (r->p->steps + 2) * sizeof *living);
  for (uint32_t i = 0; i < r->n; i++) {
    living[r->order[i]->first]++;
    living[r->order[i]->last + 1]--;
  }
  for (uint32_t t = 0; t < r->p->steps; t++) living[t] = live += living[t];
  for (uint32_t i = 0; i < r->n && left >= 0; i++)
    left -= living[r->order[i]->first] + (r->order[i]->last - r->order[i]->first) + r->noutputs;
  return left >= 0;
}

/* Places all lives in way number `w`, the last of which is the search. Returns the size of the arena. */
static int64_t place_by(room *r, int w) {
  static const struct {
    bool back;
    int (*order)(const void *, const void *);
  } sweeps[] = {{true, by_death_of}, {true, by_death_and_length_of}, {false, by_birth_of}};
  return w < SWEEPS ? sweep_all(r, sweeps[w].back, sweeps[w].order) : search(r);
}

bool place(placing *p, int64_t *arena_bytes) {
  room r = {.p = p};
  r.order = arena_alloc(p->arena, (p->n + 1) * sizeof *r.order);
  r.outputs = arena_alloc(p->arena, (p->n + 1) * sizeof *r.outputs);
  r.near = arena_alloc(p->arena, (p->n + 1) * sizeof *r.near);
  r.head = arena_alloc(p->arena, (p->steps + 1) * sizeof *r.head);
  r.sweep.blocks = arena_alloc(p->arena, (2 * (size_t)p->n + 2) * sizeof *r.sweep.blocks);
  int64_t *by_step = arena_alloc(p->arena, (p->steps + 2) * sizeof *by_step);
  if (!r.order || !r.outputs || !r.near || !r.head || !r.sweep.blocks || !by_step) return false;
  for (uint32_t i = 0; i < p->n; i++) {
    place_life *v = &p->lives[i];
    if (v->output) {
      r.outputs[r.noutputs++] = v;
    } else if (v->bytes) {
      r.order[r.n++] = v;
    } else {
      v->region = PLACE_ARENA;
    }
  }
  chain_pairs(p);
  int64_t top = INT64_MAX, least = least_bytes(&r, by_step);
  int ways = search_is_short(&r, by_step) ? SWEEPS + 1 : SWEEPS, best = 0, last = 0;
  for (int w = 0; w < ways && top > least; w++) {
    if (cancelled(p->cancel)) return false;
    int64_t end = place_by(&r, w);
    if (end < top) {
      top = end;
      best = w;
    }
    last = w;
  }
  if (best != last) top = place_by(&r, best);
  *arena_bytes = top;
  return !cancelled(p->cancel);
}
