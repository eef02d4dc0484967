/* Numbering things by content: equal things get the same number (hash-consing). The things lie in an array of the owner's; a table holds
 * 1 + their index by hash, with open addressing, at most half full. */
#ifndef JIT_GRAPH_INTERN_H
#define JIT_GRAPH_INTERN_H

#include "lang/mem.h"

typedef struct intern_table {
  struct intern_slot {
    uint32_t hash, number; /* number 0: free */
  } * slots;
  uint32_t n, cap; /* cap is 0 or a power of two */
} intern_table;

/* Does element `index` of the owner's array equal `x`? */
typedef bool intern_same(const void *owner, uint32_t index, const void *x);

static inline uint32_t intern_next(const intern_table *t, uint32_t at) { return (at + 1) & (t->cap - 1); }

/* Makes room for one more number. False when memory is short. */
QN_MUST_CHECK static inline bool intern_room(arena *a, intern_table *t) {
  if (2 * (t->n + 1) <= t->cap) return true;
  intern_table more = {.n = t->n, .cap = t->cap ? 2 * t->cap : 64};
  more.slots = arena_alloc(a, more.cap * sizeof *more.slots);
  if (!more.slots) return false;
  for (uint32_t i = 0; i < t->cap; i++) {
    if (!t->slots[i].number) continue;
    uint32_t at = t->slots[i].hash & (more.cap - 1);
    while (more.slots[at].number) at = intern_next(&more, at);
    more.slots[at] = t->slots[i];
  }
  *t = more;
  return true;
}

/* The number of what equals `x`. Where that is 0 there is none: the caller appends x to its array and stores 1 + its index here, before
 * the table is used again. NULL when memory is short. */
static inline uint32_t *intern_find(arena *a, intern_table *t, uint64_t hash, intern_same *same, const void *owner,
                                    const void *x) {
  if (!intern_room(a, t)) return NULL;
  uint32_t h = (uint32_t)(hash ^ hash >> 32), at = h & (t->cap - 1);
  for (; t->slots[at].number; at = intern_next(t, at))
    if (t->slots[at].hash == h && same(owner, t->slots[at].number - 1, x)) return &t->slots[at].number;
  t->slots[at].hash = h;
  t->n++;
  return &t->slots[at].number;
}

#endif
