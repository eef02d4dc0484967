/* Lists: a header and a separate block of items that grows by halves. */
#include <string.h>

#include "lang/internal.h"

enum { PIECE = 1 << 16 }; /* items that are copied between two polls */

/* Fills n items with those of `from`, which are retained, or with nil if it is NULL. False, with nothing retained and an error raised, if the
 * evaluation is to stop. */
static bool items_fill(qn_vm *vm, qn_value *to, const qn_value *from, size_t n) {
  for (size_t i = 0; i < n;) {
    size_t end = n - i > PIECE ? i + PIECE : n;
    if (from)
      for (; i < end; i++) to[i] = value_retain(from[i]);
    else
      for (; i < end; i++) to[i] = value_nil();
    if (i == n || !vm_poll(vm)) continue;
    while (from && i > 0) value_release(vm, to[--i]);
    return false;
  }
  return true;
}

qn_list *list_new(qn_vm *vm, size_t n) {
  if (n > UINT32_MAX) return raise_nothing(vm, E_too_large, SPAN_NONE, "a list of %zu items is too large", n);
  qn_list *l = mem_alloc(vm, sizeof *l);
  if (!l) return NULL;
  *l = (qn_list){.head = {.refs = 1, .tag = TAG_LIST}};
  if (n) {
    l->items = mem_alloc(vm, n * sizeof(qn_value));
    if (!l->items || !items_fill(vm, l->items, NULL, n)) {
      if (l->items) mem_free(vm, l->items, n * sizeof(qn_value));
      mem_free(vm, l, sizeof *l);
      return NULL;
    }
    l->len = l->cap = (uint32_t)n;
  }
  return l;
}

qn_list *list_from(qn_vm *vm, const qn_value *items, size_t n) {
  qn_list *l = list_new(vm, n);
  if (!l || items_fill(vm, l->items, items, n)) return l;
  l->len = 0;
  value_release(vm, value_obj(TAG_LIST, l));
  return NULL;
}

bool list_own(qn_vm *vm, qn_value *v) {
  if (value_unique(*v)) return true;
  qn_list *l = value_list(*v), *copy = list_from(vm, l->items, l->len);
  if (!copy) return false;
  mem_count_copy(vm, l->len * sizeof(qn_value));
  copy->head.flags = l->head.flags;
  value_release(vm, *v);
  *v = value_obj(TAG_LIST, copy);
  return true;
}

bool list_push(qn_vm *vm, qn_list *l, qn_value item) {
  if (l->len == l->cap && !mem_grow(vm, (void **)&l->items, &l->cap, (size_t)l->len + 1, sizeof(qn_value))) {
    value_release(vm, item);
    return false;
  }
  parts_note_item(&l->head, item);
  l->items[l->len++] = item;
  return true;
}

bool list_extend(qn_vm *vm, qn_value *v, const qn_list *tail) {
  qn_list *l = value_list(*v);
  size_t len = (size_t)l->len + tail->len;
  if (len > UINT32_MAX) return raise_false(vm, E_too_large, "the joined list is too long");
  if (l->head.refs != 1 || l == tail) {
    qn_list *both = list_new(vm, len);
    if (!both) return false;
    both->len = 0;
    bool ok = items_fill(vm, both->items, l->items, l->len);
    if (ok) both->len = l->len;
    ok = ok && items_fill(vm, both->items + l->len, tail->items, tail->len);
    if (ok) both->len = (uint32_t)len;
    if (!ok) {
      value_release(vm, value_obj(TAG_LIST, both));
      return false;
    }
    value_release(vm, *v);
    *v = value_obj(TAG_LIST, both);
    return true;
  }
  if (!mem_grow(vm, (void **)&l->items, &l->cap, len, sizeof(qn_value))) return false;
  if (!items_fill(vm, l->items + l->len, tail->items, tail->len)) return false;
  if (!(tail->head.flags & PARTS_PLAIN))
    for (uint32_t i = 0; i < tail->len && (l->head.flags & PARTS_PLAIN); i++) parts_note_item(&l->head, tail->items[i]);
  l->len = (uint32_t)len;
  return true;
}
