/* Values that share their parts. A tree in which containers occur many times over has far more places than parts: sixty lists
 * of which each holds the one before twice have 2**60. What walks over places (trees, repr) counts them, and once there are many
 * the tree's places are counted exactly, each shared part once; what compares two trees remembers which parts it has compared.
 *
 * Only a container with more than one reference can be met twice before one that it lies in is, so only these are remembered.
 *
 * Pairs are remembered as classes of parts (union by links that are halved on the way), not one by one: if a was found equal to b
 * and b to c, then so is a to c. With n parts no more than 2 n pairs are ever compared. A part may differ from itself (nan), so
 * a class counts as equal only once two of its members, or one with itself, have been compared.
 */
#include <stdio.h>

#include "lang/internal.h"

struct shared_part {
  const void *container;
  uint32_t link; /* another part of its class, nearer to the one that stands for the class, which links to itself */
  bool compared; /* of the part that stands for a class: its members are equal to each other and to themselves */
  union {
    uint64_t places; /* of the tree below it, itself included */
    qn_value made;   /* what a walk has made of the part */
  } u;
};

static uint32_t slot_of(const shared_parts *s, const void *container) {
  uint64_t h = (uint64_t)(uintptr_t)container * 0x9e3779b97f4a7c15u;
  return (uint32_t)(h >> 32) & (s->nslots - 1);
}

/* The number of a container among the parts; UINT32_MAX if it is not among them. */
static uint32_t part_find(const shared_parts *s, const void *container) {
  for (uint32_t at = s->nslots ? slot_of(s, container) : 0; s->nslots && s->slots[at]; at = (at + 1) & (s->nslots - 1))
    if (s->parts[s->slots[at] - 1].container == container) return s->slots[at] - 1;
  return UINT32_MAX;
}

static void slot_fill(shared_parts *s, uint32_t i) {
  uint32_t at = slot_of(s, s->parts[i].container);
  while (s->slots[at]) at = (at + 1) & (s->nslots - 1);
  s->slots[at] = i + 1;
}

/* The number of a container among the parts, to which it is added if need be. UINT32_MAX with E601 raised. */
static uint32_t part_of(qn_vm *vm, shared_parts *s, const void *container) {
  uint32_t i = part_find(s, container);
  if (i != UINT32_MAX) return i;
  if (s->n >= s->nslots / 2) {
    uint32_t more = s->nslots ? s->nslots * 2 : 64, *slots = more ? mem_zalloc(vm, more * sizeof *slots) : NULL;
    if (!slots) {
      if (!error_pending(vm)) raise_memory(vm);
      return UINT32_MAX;
    }
    mem_free(vm, s->slots, s->nslots * sizeof *s->slots);
    s->slots = slots;
    s->nslots = more;
    for (uint32_t k = 0; k < s->n; k++) slot_fill(s, k);
  }
  if (!mem_grow(vm, (void **)&s->parts, &s->cap, (size_t)s->n + 1, sizeof *s->parts)) return UINT32_MAX;
  s->parts[s->n] = (struct shared_part){.container = container, .link = s->n};
  slot_fill(s, s->n);
  return s->n++;
}

void shared_free(qn_vm *vm, shared_parts *s) {
  mem_free(vm, s->parts, s->cap * sizeof *s->parts);
  mem_free(vm, s->slots, s->nslots * sizeof *s->slots);
}

/* ---- pairs ----------------------------------------------------------------------------------------------------- */

static uint32_t class_of(shared_parts *s, uint32_t i) {
  while (s->parts[i].link != i) i = s->parts[i].link = s->parts[s->parts[i].link].link;
  return i;
}

static bool met_before(qn_value a, qn_value b) { return !value_unique(a) || !value_unique(b); }

bool shared_equal(shared_parts *s, qn_value a, qn_value b) {
  if (s->n == 0 || !met_before(a, b)) return false;
  uint32_t i = part_find(s, a.u.p), j = part_find(s, b.u.p);
  if (i == UINT32_MAX || j == UINT32_MAX) return false;
  i = class_of(s, i);
  return s->parts[i].compared && i == class_of(s, j);
}

bool shared_join(qn_vm *vm, shared_parts *s, qn_value a, qn_value b) {
  if (!met_before(a, b)) return true;
  uint32_t i = part_of(vm, s, a.u.p), j = i == UINT32_MAX ? i : part_of(vm, s, b.u.p);
  if (j == UINT32_MAX) return false;
  i = class_of(s, i);
  s->parts[class_of(s, j)].link = i;
  s->parts[i].compared = true;
  return true;
}

/* ---- parts --------------------------------------------------------------------------------------------------- */

qn_value *shared_made(qn_vm *vm, shared_parts *s, qn_value v, bool *before) {
  uint32_t i = part_find(s, v.u.p);
  *before = i != UINT32_MAX;
  if (!*before && (i = part_of(vm, s, v.u.p)) != UINT32_MAX) s->parts[i].u.made = value_nil();
  return i == UINT32_MAX ? NULL : &s->parts[i].u.made;
}

/* ---- places ---------------------------------------------------------------------------------------------------- */

typedef struct count_level {
  qn_value v; /* a container, borrowed */
  uint32_t i; /* its next item */
  uint64_t places;
} count_level;

static uint64_t add_places(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

static const qn_value *items_of(qn_value v, bool captures, uint32_t *n) {
  *n = 0;
  return value_is_container(v) || (captures && value_is(v, TAG_FN)) ? value_parts(v.u.p, n) : NULL;
}

/* Counts the places of a tree, and those that it would have if it held each part once. False with an error raised. */
static bool count_places(qn_vm *vm, qn_value root, bool captures, uint64_t *places, uint64_t *parts) {
  shared_parts s = {0};
  count_level *levels = NULL;
  uint32_t n = 0, cap = 0;
  bool ok = mem_grow(vm, (void **)&levels, &cap, 1, sizeof *levels);
  if (ok) levels[n++] = (count_level){root, 0, 1};
  *places = *parts = 1;
  while (ok && n) {
    count_level *l = &levels[n - 1];
    uint32_t len;
    const qn_value *items = items_of(l->v, captures, &len);
    if (l->i == len) {
      uint64_t below = l->places;
      qn_value v = l->v;
      n--;
      if (n) {
        levels[n - 1].places = add_places(levels[n - 1].places, below);
        if (!value_unique(v)) {
          uint32_t part = part_of(vm, &s, v.u.p);
          ok = part != UINT32_MAX;
          if (ok) s.parts[part].u.places = below;
        }
      } else {
        *places = below;
      }
      continue;
    }
    qn_value item = items[l->i++];
    ok = !vm_poll_item(vm, (int64_t)++ * parts);
    if (!items_of(item, captures, &len)) {
      l->places = add_places(l->places, 1);
      continue;
    }
    uint32_t known = value_unique(item) ? UINT32_MAX : part_find(&s, item.u.p);
    if (known != UINT32_MAX) {
      l->places = add_places(l->places, s.parts[known].u.places);
    } else {
      ok = ok && mem_grow(vm, (void **)&levels, &cap, (size_t)n + 1, sizeof *levels);
      if (ok) levels[n++] = (count_level){item, 0, 1};
    }
  }
  mem_free(vm, levels, cap * sizeof *levels);
  shared_free(vm, &s);
  return ok;
}

bool tree_is_endless(qn_vm *vm, qn_value root, bool captures) {
  uint64_t places, parts, most = (uint64_t)vm->tune[TUNE_tree_places];
  if (!count_places(vm, root, captures, &places, &parts)) return true;
  if (places <= most || places / PLACES_PER_PART <= parts) return false;
  char sum[32];
  if (places >> 62)
    snprintf(sum, sizeof sum, "more than 2**62");
  else
    snprintf(sum, sizeof sum, "%llu", (unsigned long long)places);
  raise_error(
      vm, E_too_large, SPAN_NONE,
      "this value holds the same parts many times over: it has %s values in all, too many to go through them one by "
      "one "
      "(tree.places allows %llu)",
      sum, (unsigned long long)most);
  return true;
}
