/* Records and their layouts.
 *
 * Shared layouts (up to LAYOUT_SHARED_MAX names) stand in the VM's layout table, found by the hash of their sequence of
 * names; the table is a hash_set: a layout leaves it when it is freed. The hash of a sequence is made from the hash
 * of the one before, so adding a field to a record is one look-up. A name is looked up by its pointer among few names,
 * through the layout's hash index among many.
 */
#include <string.h>

#include "lang/internal.h"

enum { SCAN_MAX = 8 }; /* names that are looked through without an index */

struct layout_table {
  hash_set set;
  record_layout *empty; /* the layout without names, kept as long as the VM */
};

/* ---- layouts ------------------------------------------------------------------------------------------------- */

static uint32_t sequence_hash(uint32_t before, const qn_str *name) {
  uint64_t h = ((uint64_t)before << 32 | name->hash) * 0x9e3779b97f4a7c15u;
  return (uint32_t)(h >> 32) ^ (uint32_t)h;
}

record_layout *layout_retain(record_layout *l) {
  l->refs++;
  return l;
}

static void layout_free(qn_vm *vm, record_layout *l) {
  for (uint32_t i = 0; i < l->len; i++) value_release(vm, value_obj(TAG_STR, l->names[i]));
  mem_free(vm, l->names, l->cap * sizeof *l->names);
  mem_free(vm, l->slots, l->nslots * sizeof *l->slots);
  mem_free(vm, l, sizeof *l);
}

void layout_release(qn_vm *vm, record_layout *l) {
  if (!l || --l->refs) return;
  if (l->shared) hash_set_remove(&vm->layouts->set, l);
  layout_free(vm, l);
}

static void index_put(record_layout *l, uint32_t at) {
  uint32_t mask = l->nslots - 1, i = l->names[at]->hash & mask;
  while (l->slots[i]) i = (i + 1) & mask;
  l->slots[i] = at + 1;
}

/* Makes the hash index large enough for n names and enters the present ones. False with an error raised. */
static bool index_fit(qn_vm *vm, record_layout *l, uint32_t n) {
  if (n <= SCAN_MAX || (uint64_t)n * 2 <= l->nslots) return true;
  uint32_t nslots = 32;
  while (nslots < (uint64_t)n * 2) {
    if (nslots > UINT32_MAX / 2) return raise_memory_false(vm);
    nslots *= 2;
  }
  uint32_t *slots = mem_zalloc(vm, nslots * sizeof *slots);
  if (!slots) return false;
  mem_free(vm, l->slots, l->nslots * sizeof *l->slots);
  l->slots = slots;
  l->nslots = nslots;
  for (uint32_t i = 0; i < l->len; i++) index_put(l, i);
  return true;
}

/* Appends a name, which must be new. On failure the layout is as before. */
static bool layout_add(qn_vm *vm, record_layout *l, qn_str *name) {
  if (!mem_grow(vm, (void **)&l->names, &l->cap, (size_t)l->len + 1, sizeof *l->names) || !index_fit(vm, l, l->len + 1))
    return false;
  name->head.refs++;
  l->names[l->len++] = name;
  if (l->nslots) index_put(l, l->len - 1);
  return true;
}

/* A new layout of names followed by `last` (may be NULL). It is not in the table of shared layouts. */
static record_layout *layout_make(qn_vm *vm, qn_str *const *names, uint32_t n, qn_str *last) {
  record_layout *l = mem_alloc(vm, sizeof *l);
  if (!l) return NULL;
  uint32_t cap = n + (last != NULL);
  *l = (record_layout){.refs = 1};
  if (cap) {
    l->names = mem_alloc(vm, cap * sizeof *l->names);
    if (!l->names) {
      mem_free(vm, l, sizeof *l);
      return NULL;
    }
    l->cap = cap;
  }
  for (uint32_t i = 0; i < n; i++) {
    l->names[i] = names[i];
    names[i]->head.refs++;
  }
  l->len = n;
  if (index_fit(vm, l, cap) && (!last || layout_add(vm, l, last))) return l;
  layout_free(vm, l);
  return NULL;
}

/* The shared layout of names followed by `last` (may be NULL); `hash` is that of the whole sequence. Owned. */
static record_layout *layout_share(qn_vm *vm, qn_str *const *names, uint32_t n, qn_str *last, uint32_t hash) {
  hash_set *t = &vm->layouts->set;
  uint32_t len = n + (last != NULL);
  if (t->size)
    for (uint32_t i = hash & (t->size - 1); t->slots[i]; i = (i + 1) & (t->size - 1)) {
      record_layout *l = t->slots[i];
      if (l->hash == hash && l->len == len && (!last || l->names[n] == last) &&
          (n == 0 || memcmp(l->names, names, n * sizeof *names) == 0))
        return layout_retain(l);
    }
  if (!hash_set_room(vm, t, 64)) return NULL;
  record_layout *l = layout_make(vm, names, n, last);
  if (!l) return NULL;
  l->hash = hash;
  l->shared = true;
  hash_set_put(t, l);
  return l;
}

record_layout *layout_of(qn_vm *vm, qn_str *const *names, uint32_t n) {
  if (n > LAYOUT_SHARED_MAX) return layout_make(vm, names, n, NULL);
  uint32_t hash = 0;
  for (uint32_t i = 0; i < n; i++) hash = sequence_hash(hash, names[i]);
  return layout_share(vm, names, n, NULL, hash);
}

bool layouts_open(qn_vm *vm) {
  vm->layouts = mem_zalloc(vm, sizeof *vm->layouts);
  if (!vm->layouts) return false;
  vm->layouts->set.hash_at = offsetof(record_layout, hash);
  vm->layouts->empty = layout_of(vm, NULL, 0);
  return vm->layouts->empty != NULL;
}

void layouts_close(qn_vm *vm) {
  struct layout_table *t = vm->layouts;
  if (!t) return;
  layout_release(vm, t->empty);
  mem_free(vm, t->set.slots, t->set.size * sizeof *t->set.slots);
  mem_free(vm, t, sizeof *t);
  vm->layouts = NULL;
}

static int find_text(const record_layout *l, const char *name, size_t len, uint32_t hash) {
  if (!l->nslots) {
    for (uint32_t i = 0; i < l->len; i++)
      if (l->names[i]->hash == hash && l->names[i]->len == len && memcmp(l->names[i]->text, name, len) == 0)
        return (int)i;
    return -1;
  }
  uint32_t mask = l->nslots - 1;
  for (uint32_t i = hash & mask; l->slots[i]; i = (i + 1) & mask) {
    const qn_str *s = l->names[l->slots[i] - 1];
    if (s->hash == hash && s->len == len && memcmp(s->text, name, len) == 0) return (int)l->slots[i] - 1;
  }
  return -1;
}

int layout_find(const record_layout *l, const qn_str *name) {
  if (!(name->head.flags & STR_INTERNED)) return find_text(l, name->text, name->len, str_hash_of(name));
  if (!l->nslots) {
    for (uint32_t i = 0; i < l->len; i++)
      if (l->names[i] == name) return (int)i;
    return -1;
  }
  uint32_t mask = l->nslots - 1;
  for (uint32_t i = name->hash & mask; l->slots[i]; i = (i + 1) & mask)
    if (l->names[l->slots[i] - 1] == name) return (int)l->slots[i] - 1;
  return -1;
}

/* ---- records ------------------------------------------------------------------------------------------------- */

qn_record *record_of(qn_vm *vm, record_layout *layout) {
  qn_record *r = mem_alloc(vm, sizeof *r);
  if (!r) return NULL;
  *r = (qn_record){.head = {.refs = 1, .tag = TAG_RECORD}, .len = layout->len, .cap = layout->len};
  if (r->cap) {
    r->items = mem_alloc(vm, r->cap * sizeof(qn_value));
    if (!r->items) {
      mem_free(vm, r, sizeof *r);
      return NULL;
    }
    for (uint32_t i = 0; i < r->len; i++) r->items[i] = value_nil();
  }
  r->layout = layout_retain(layout);
  return r;
}

qn_record *record_new(qn_vm *vm) { return record_of(vm, vm->layouts->empty); }

qn_record *record_like(qn_vm *vm, const qn_record *r) { return record_of(vm, r->layout); }

int record_find(const qn_record *r, const qn_str *name) { return layout_find(r->layout, name); }

int record_find_text(const qn_record *r, const char *name, size_t len) {
  return find_text(r->layout, name, len, str_hash(name, len));
}

qn_str *record_name(const qn_record *r, uint32_t index) { return r->layout->names[index]; }

/* The layout of a record with one more field; owned. It is the record's own layout, which has grown, if no other record uses that. */
static record_layout *layout_with(qn_vm *vm, record_layout *l, qn_str *name) {
  if (l->len < LAYOUT_SHARED_MAX) return layout_share(vm, l->names, l->len, name, sequence_hash(l->hash, name));
  if (l->shared || l->refs > 1) return layout_make(vm, l->names, l->len, name);
  return layout_add(vm, l, name) ? layout_retain(l) : NULL;
}

bool record_set(qn_vm *vm, qn_record *r, qn_str *name, qn_value item) {
  int i = record_find(r, name);
  if (i >= 0) {
    qn_value old = r->items[i];
    parts_note_item(&r->head, item);
    r->items[i] = item;
    value_release(vm, old);
    return true;
  }
  qn_str *interned = name;
  if (name->head.flags & STR_INTERNED)
    name->head.refs++;
  else
    interned = str_intern(vm, name->text, name->len);
  record_layout *l = NULL;
  if (interned && r->len < INT32_MAX && mem_grow(vm, (void **)&r->items, &r->cap, (size_t)r->len + 1, sizeof(qn_value)))
    l = layout_with(vm, r->layout, interned);
  if (interned) value_release(vm, value_obj(TAG_STR, interned));
  if (!l) {
    value_release(vm, item);
    return false;
  }
  layout_release(vm, r->layout);
  r->layout = l;
  parts_note_item(&r->head, item);
  r->items[r->len++] = item;
  return true;
}

bool record_set_named(qn_vm *vm, qn_record *r, const char *name, qn_value item) {
  if (value_is_error(item)) return false;
  qn_str *s = str_intern(vm, name, strlen(name));
  if (!s) {
    value_release(vm, item);
    return false;
  }
  bool good = record_set(vm, r, s, item);
  value_release(vm, value_obj(TAG_STR, s));
  return good;
}

/* A few bits of what the items are. */
static uint16_t items_mark(const qn_record *r) {
  uint64_t h = r->len;
  for (uint32_t i = 0; i < r->len; i++) h = (h ^ r->items[i].head ^ (uint64_t)r->items[i].u.i) * 0x9e3779b97f4a7c15u;
  return (uint16_t)(h >> 48);
}

void record_make_report(qn_record *r) {
  r->head.flags |= RECORD_REPORT;
  r->head.aux = items_mark(r);
}

const qn_str *record_report(const qn_record *r) {
  static const char name[] = "report";
  int at =
      (r->head.flags & RECORD_REPORT) && r->head.aux == items_mark(r) ? record_find_text(r, name, sizeof name - 1) : -1;
  return at >= 0 && value_is(r->items[at], TAG_STR) ? value_str(r->items[at]) : NULL;
}

qn_record *record_copy(qn_vm *vm, const qn_record *r) {
  qn_record *copy = record_like(vm, r);
  if (!copy) return NULL;
  for (uint32_t i = 0; i < r->len; i++) copy->items[i] = value_retain(r->items[i]);
  return copy;
}

bool record_own(qn_vm *vm, qn_value *v) {
  if (value_unique(*v)) return true;
  const qn_record *r = value_record(*v);
  qn_record *copy = record_copy(vm, r);
  if (!copy) return false;
  mem_count_copy(vm, r->len * sizeof(qn_value));
  value_release(vm, *v);
  *v = value_obj(TAG_RECORD, copy);
  return true;
}

qn_record *record_without(qn_vm *vm, const qn_record *r, int index) {
  uint32_t n = r->len - 1;
  qn_str **names = mem_alloc(vm, (n + 1) * sizeof *names);
  if (!names) return NULL;
  for (uint32_t i = 0, k = 0; i < r->len; i++)
    if ((int)i != index) names[k++] = record_name(r, i);
  record_layout *l = layout_of(vm, names, n);
  mem_free(vm, names, (n + 1) * sizeof *names);
  if (!l) return NULL;
  qn_record *out = record_of(vm, l);
  layout_release(vm, l);
  if (!out) return NULL;
  for (uint32_t i = 0, k = 0; i < r->len; i++)
    if ((int)i != index) out->items[k++] = value_retain(r->items[i]);
  return out;
}

bool record_same_layout(const qn_record *a, const qn_record *b) {
  if (a->layout == b->layout) return true;
  if (a->layout->shared || b->layout->shared || a->len != b->len) return false;
  return memcmp(a->layout->names, b->layout->names, a->len * sizeof(qn_str *)) == 0;
}
