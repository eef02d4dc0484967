/* What the prompt asks about the session: names and their values, fields, parameters of functions, memory. Nothing here runs
 * code of the program.
 */
#include <stdlib.h>
#include <string.h>

#include "interp/node.h"

const char *const array_fields[ARRAY_FIELDS] = {"shape", "dtype", "rank", "size", "device", "T"};

bool is_array_field(const qn_str *name) {
  for (int i = 0; i < ARRAY_FIELDS; i++)
    if (strcmp(array_fields[i], name->text) == 0) return true;
  return false;
}

/* Finds the value that a name has in a scope (NULL: one that is freed); `declared`: if the module itself defines it. */
static bool scope_value(const scope *s, const char *name, size_t len, bool declared, qn_value *out) {
  for (uint32_t i = 0; s && i < s->n; i++) {
    const global_cell *c = s->cells[i];
    if (c->value.head == TAG_UNSET || (declared && !c->declared)) continue;
    if (c->name->len != len || memcmp(c->name->text, name, len) != 0) continue;
    *out = c->value;
    return true;
  }
  return false;
}

bool interp_lookup(qn_vm *vm, const char *name, size_t len, qn_value *out) {
  const interp *ip = interp_of(vm);
  return scope_value(ip->main, name, len, false, out) || scope_value(ip->builtin, name, len, false, out);
}

void interp_globals(qn_vm *vm, void (*each)(void *ctx, const char *name, qn_value v), void *ctx) {
  const scope *s = interp_of(vm)->main;
  for (uint32_t i = 0; i < s->n; i++)
    if (s->cells[i]->value.head != TAG_UNSET) each(ctx, s->cells[i]->name->text, s->cells[i]->value);
}

span interp_unread_function(qn_vm *vm, const char *name) {
  const scope *s = interp_of(vm)->main;
  for (uint32_t i = 0; i < s->n; i++) {
    const global_cell *c = s->cells[i];
    if (strcmp(c->name->text, name) == 0 && c->declared && !c->read && value_is(c->value, TAG_FN)) return c->decl;
  }
  return SPAN_NONE;
}

bool interp_reset(qn_vm *vm) {
  const scope *s = interp_of(vm)->main;
  for (uint32_t i = 0; i < s->n; i++) {
    if (s->cells[i]->value.head == TAG_UNSET) continue;
    cell_set(vm, s->cells[i], value_unset());
    cell_defined(vm, s->cells[i], SPAN_NONE);
    s->cells[i]->declared = false;
  }
  jit_cancel(vm); /* functions of modules live on; they are recorded again */
  mem_trim(vm);
  return !error_pending(vm);
}

bool interp_field(qn_value v, const char *name, size_t len, qn_value *out) {
  if (value_is(v, TAG_RECORD)) {
    int i = record_find_text(value_record(v), name, len);
    if (i >= 0) *out = value_record(v)->items[i];
    return i >= 0;
  }
  return value_is(v, TAG_MODULE) && scope_value(((const qn_module *)v.u.p)->scope, name, len, true, out);
}

void interp_fields(qn_value v, void (*each)(void *ctx, const char *name), void *ctx) {
  if (value_is(v, TAG_RECORD)) {
    for (uint32_t i = 0; i < value_record(v)->len; i++) each(ctx, record_name(value_record(v), i)->text);
  } else if (value_is(v, TAG_MODULE)) {
    const scope *s = ((const qn_module *)v.u.p)->scope;
    for (uint32_t i = 0; s && i < s->n; i++)
      if (s->cells[i]->declared && s->cells[i]->value.head != TAG_UNSET) each(ctx, s->cells[i]->name->text);
  } else if (value_is(v, TAG_ARRAY)) {
    for (int i = 0; i < ARRAY_FIELDS; i++) each(ctx, array_fields[i]);
  } else if (value_is_graph(v)) {
    for (int i = 0; i < GRAPH_FIELDS; i++) each(ctx, jit_graph_fields[i]);
  }
}

void interp_parameters(qn_vm *vm, qn_value f, void (*each)(void *ctx, const char *name, int position), void *ctx) {
  if (!value_is(f, TAG_FN)) return;
  const qn_fn *fn = transform_within(f);
  if (fn->head.flags == FN_GRAPH) {
    jit_graph_parameters(fn, each, ctx);
  } else if (fn->head.flags == FN_USER) {
    const fn_code *code = fn->code;
    for (uint32_t i = 0; i < code->nparams; i++)
      if (!(code->rest && i + 1 == code->nparams)) each(ctx, code->params[i].name->text, (int)i);
  } else if (fn->head.flags == FN_BUILTIN) {
    const builtin_info *info = builtin_of(vm, fn);
    if (!info) error_clear(vm);
    /* Parameters behind a rest parameter or a bare `*` have no positions. */
    bool positions = true;
    for (int i = 0; info && i < info->sig.nparams; i++) {
      const param_def *p = &info->sig.params[i];
      positions &= !p->rest && !p->keyword_only;
      if (!p->rest) each(ctx, p->name->text, positions ? i : INT32_MAX);
    }
  }
}

qn_str *interp_name_of(qn_vm *vm, qn_value f, bool captured, uint32_t i) {
  const qn_fn *fn = value_fn(f);
  if (fn->head.flags == FN_USER) {
    const fn_code *code = fn->code;
    if (!captured) return i < code->nparams ? code->params[i].name : NULL;
    if (i < code->ncaptures) return code->capture_names[i];
    for (uint32_t k = 0; k < code->nparams; k++)
      if (code->params[k].initial == (int32_t)(i - code->ncaptures)) return code->params[k].name;
  } else if (fn->head.flags == FN_BUILTIN && !captured) {
    const builtin_info *info = builtin_of(vm, fn);
    if (!info) error_clear(vm);
    if (info && i < (uint32_t)info->sig.nparams) return info->sig.params[i].name;
  }
  return NULL;
}

/* ---- memory ---------------------------------------------------------------------------------------------------------------- */

/* The objects that have been counted; values can share them. */
typedef struct seen {
  const void **slots;
  size_t n, cap;
} seen;

/* Adds an object. False if it was there already, or memory is short. */
static bool see(seen *s, const void *p) {
  if ((s->n + 1) * 2 > s->cap) {
    size_t cap = s->cap ? s->cap * 2 : 256;
    const void **slots = calloc(cap, sizeof *slots);
    if (!slots) return false;
    for (size_t i = 0; i < s->cap; i++) {
      if (!s->slots[i]) continue;
      size_t k = ((uintptr_t)s->slots[i] >> 4) * 0x9e3779b97f4a7c15u & (cap - 1);
      while (slots[k]) k = (k + 1) & (cap - 1);
      slots[k] = s->slots[i];
    }
    free(s->slots);
    s->slots = slots;
    s->cap = cap;
  }
  size_t k = ((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15u & (s->cap - 1);
  for (; s->slots[k]; k = (k + 1) & (s->cap - 1))
    if (s->slots[k] == p) return false;
  s->slots[k] = p;
  s->n++;
  return true;
}

/* The size of an object in bytes, without its parts. */
static size_t own_bytes(seen *s, qn_value v) {
  switch (value_tag_of(v)) {
  case TAG_STR: return sizeof(qn_str) + value_str(v)->len + 1;
  case TAG_LIST: return sizeof(qn_list) + value_list(v)->cap * sizeof(qn_value);
  case TAG_RECORD: return sizeof(qn_record) + value_record(v)->cap * sizeof(qn_value);
  case TAG_FN: return sizeof(qn_fn) + value_fn(v)->ncaptures * sizeof(qn_value);
  case TAG_ARRAY: {
    const qn_array *a = value_array(v);
    if (array_pending(a)) return sizeof *a + (size_t)a->size * dtype_size((qn_dtype)a->dtype);
    return sizeof *a + (see(s, a->storage) ? a->storage->bytes : 0);
  }
  default: return 32;
  }
}

size_t interp_bytes(qn_value v) {
  typedef struct part {
    const qn_value *items;
    uint32_t n;
  } part;
  seen s = {0};
  part *stack = NULL, now = {&v, 1};
  size_t depth = 0, cap = 0, bytes = 0;
  for (;;) {
    for (uint32_t i = 0; i < now.n; i++) {
      if (!value_is_heap(now.items[i]) || !see(&s, now.items[i].u.p)) continue;
      part inner;
      bytes += own_bytes(&s, now.items[i]);
      inner.items = value_parts(now.items[i].u.p, &inner.n);
      if (!inner.n) continue;
      if (depth == cap) {
        size_t more = cap ? cap * 2 : 64;
        part *larger = realloc(stack, more * sizeof *stack);
        if (!larger) continue;
        stack = larger;
        cap = more;
      }
      stack[depth++] = inner;
    }
    if (!depth) break;
    now = stack[--depth];
  }
  free(stack);
  free(s.slots);
  return bytes;
}
