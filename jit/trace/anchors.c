/* Anchors: what the VM knows of the calls of a function. Each call is counted once, by what became of it: as a call, as a part of a
 * recording (which counts it for each replay), or, where memory for this is short, on the anchor itself.
 */
#include "jit/trace/anchors.h"
#include "jit/trace/breaks.h"
#include "jit/trace/rec.h"

const char *const break_reasons[BREAK_COUNT] = {
#define BREAK(symbol, reason, hint) reason,
#include "jit/trace/breaks.def"
#undef BREAK
};
const char *const break_hints[BREAK_COUNT] = {
#define BREAK(symbol, reason, hint) hint,
#include "jit/trace/breaks.def"
#undef BREAK
};
const char *const call_fates[CALL_FATES] = {
#define CALL_FATE(symbol, text) text,
#include "jit/trace/fates.def"
#undef CALL_FATE
};

anchor_specializations *anchor_specializations_of(qn_vm *vm, jit_anchor *a) {
  if (a->entries) return a->entries;
  anchor_specializations *e = mem_zalloc(vm, sizeof *e);
  if (!e) return NULL;
  e->anchor = a;
  e->id = ++jit_of(vm)->last_id;
  e->next = jit_of(vm)->anchors;
  jit_of(vm)->anchors = e;
  a->entries = e;
  return e;
}

/* ---- counting calls ---------------------------------------------------------------------------------------------------------- */

bool parts_add(qn_vm *vm, part_list *l, uint32_t id, uint64_t calls) {
  uint32_t i = 0;
  while (i < l->n && l->list[i].id != id) i++;
  if (i == l->n) {
    qn_error_object *pending = error_take(vm); /* this may be done while a call that has failed is left */
    if (!mem_grow(vm, (void **)&l->list, &l->cap, l->n + 1, sizeof *l->list)) {
      error_clear(vm);
      error_put_back(vm, pending);
      return false;
    }
    error_put_back(vm, pending);
    l->list[l->n++] = (struct part){.id = id};
  }
  l->list[i].calls += calls;
  return true;
}

void parts_count(qn_vm *vm, part_list *l, uint32_t id, uint64_t calls) {
  if (parts_add(vm, l, id, calls)) return;
  for (anchor_specializations *a = jit_of(vm)->anchors; a; a = a->next)
    if (a->id == id) a->calls[CALL_part] += calls;
}

void parts_forget(part_list *l, uint32_t id) {
  uint32_t i = 0;
  while (i < l->n && l->list[i].id != id) i++;
  if (i < l->n) l->list[i] = l->list[--l->n];
}

void parts_free(qn_vm *vm, part_list *l) {
  mem_free(vm, l->list, l->cap * sizeof *l->list);
  *l = (part_list){0};
}

void anchor_passed_idle(qn_vm *vm, jit_anchor *a) {
  anchor_specializations *list = vm->jit ? anchor_specializations_of(vm, a) : NULL;
  if (list) {
    list->calls[CALL_idle]++;
  } else {
    error_clear(vm);
    anchor_passed(a);
  }
}
