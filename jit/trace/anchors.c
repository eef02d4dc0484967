/* Anchors: what the VM knows about the calls of each function.
 *
 * A call is counted once, by what became of it: in the record of its anchor (anchor_specializations); or, when it is made inside a call
 * that is recorded, in the recording's list of parts, which counts it again for each replay; or, when there is no memory for either, in the
 * anchor itself.
 *
 * The anchor of a function inside transforms, as grad(f), belongs to the code of f and the chain of transforms, not to the function value:
 * so a grad(f) that is made anew in each turn of a loop is one function. For a graph inside transforms it belongs to the graph's hash,
 * because equal graphs are made and freed again and again.
 */
#include <string.h>

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
    /* the caller may be leaving a call that has failed, whose error must survive */
    qn_error_object *pending = error_take(vm);
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

/* ---- anchors of functions within transforms ---------------------------------------------------------------------------------- */

/* When the last graph with some hash is freed, its anchors inside transforms are kept, since an equal graph may be made soon. Once so many
 * of them are left, all are freed. */
enum { CHAINS_LEFT = 8 };

/* Moves the chain at *at from the VM's list to the front of `gone`. */
static void chain_take(vm_jit *j, chain_anchor **at, chain_anchor **gone) {
  chain_anchor *c = *at;
  *at = c->next;
  if (c->graph && !c->live) j->chains_left--;
  c->next = *gone;
  *gone = c;
}

/* Frees chains that have been taken out of the list. All of them must be out of it first: a specialization of one may hold the last
 * function or graph of another one, which then takes itself out of the list. */
static void chains_free(qn_vm *vm, chain_anchor *gone) {
  if (gone) memset(jit_of(vm)->found, 0, sizeof jit_of(vm)->found);
  for (chain_anchor *c; (c = gone);) {
    gone = c->next;
    anchor_close(vm, &c->anchor);
    mem_free(vm, c, sizeof *c);
  }
}

static void chains_sweep(qn_vm *vm) {
  vm_jit *j = jit_of(vm);
  if (j->chains_left < CHAINS_LEFT) return;
  chain_anchor *gone = NULL;
  for (chain_anchor **at = &j->chains; *at;)
    if ((*at)->graph && !(*at)->live)
      chain_take(j, at, &gone);
    else
      at = &(*at)->next;
  chains_free(vm, gone);
}

/* Adds `more` (1, 0 or -1) to the number of living function values whose graph has this hash, in each chain of that hash. Returns the
 * number as it is then; 0 if there is no such chain. */
static uint32_t chains_count(qn_vm *vm, uint64_t hash, int more) {
  vm_jit *j = jit_of(vm);
  uint32_t live = 0;
  for (chain_anchor *c = j->chains; c; c = c->next) {
    if (!c->graph || (uint64_t)(uintptr_t)c->code != hash) continue;
    if (more > 0 && !c->live) j->chains_left--;
    c->live += (uint32_t)more;
    if (more < 0 && !c->live) j->chains_left++;
    live = c->live;
  }
  return live;
}

/* A transform of this graph is looked up: from now on the graph counts among the living ones. Returns how many of its hash count. */
static uint32_t chains_join(qn_vm *vm, graph_code *b) {
  uint32_t live = chains_count(vm, b->shared.id, !b->chained);
  b->chained = true;
  return live ? live : 1;
}

void chains_leave(qn_vm *vm, const graph_code *b) {
  if (b->chained && vm->jit) chains_count(vm, b->shared.id, -1);
}

/* The arguments of a function within these transforms that stacked lists may be in, given its own parameters. *trees: as in jit_anchor. */
static uint32_t chain_stackable(const jit_anchor *inner, const void *const *chain, uint32_t depth, bool *trees) {
  int gradients = 0;
  *trees = false;
  for (uint32_t i = 0; i < depth; i++) {
    transform_kind kind = ((const transform_def *)chain[i])->kind;
    bool gradient = kind == TRANSFORM_GRAD || kind == TRANSFORM_VALUE_AND_GRAD;
    if (!gradient && kind != TRANSFORM_JIT) return 0;
    gradients += gradient;
  }
  if (!inner || gradients > 1) return 0;
  *trees = inner->trees;
  return inner->rest ? inner->stackable & ~((uint32_t)1 << (inner->rest - 1)) : inner->stackable;
}

/* The named sizes of a function within these transforms, if its arguments are theirs. (Behind these a call has its keywords, where the names of a
 * parameter that it leaves out may be looked for in vain.) */
static const named_sizes *chain_sizes(const jit_anchor *inner, const void *const *chain, uint32_t depth) {
  for (uint32_t i = 0; i < depth; i++) {
    transform_kind kind = ((const transform_def *)chain[i])->kind;
    if (kind != TRANSFORM_GRAD && kind != TRANSFORM_VALUE_AND_GRAD && kind != TRANSFORM_JIT &&
        kind != TRANSFORM_CHECKPOINT)
      return NULL;
  }
  return inner ? inner->sizes : NULL;
}

/* As anchor_of_value, by all that makes the function. */
static jit_anchor *find_chain(qn_vm *vm, qn_value fn) {
  const void *chain[8];
  uint32_t depth = 0;
  uint64_t hash = 14695981039346656037u;
  while (value_fn(fn)->head.flags == FN_TRANSFORM) {
    if (depth == 8) return NULL;
    chain[depth++] = value_fn(fn)->code;
    hash = (hash ^ (uint64_t)(uintptr_t)value_fn(fn)->code) * 1099511628211u;
    fn = value_fn(fn)->captures[0];
  }
  const qn_fn *f = value_fn(fn);
  bool graph = f->head.flags == FN_GRAPH;
  jit_anchor *inner = graph ? &((graph_code *)f->code)->anchor : f->head.flags == FN_USER ? vm->hooks.anchor(fn) : NULL;
  bool builtin = f->head.flags == FN_BUILTIN; /* a builtin has no anchor of its own */
  if (!builtin && (!depth || !inner)) return inner;
  /* not the address: graphs and units are freed, and others may get the same one */
  void *code = graph                      ? (void *)(uintptr_t)((graph_code *)f->code)->shared.id
               : f->head.flags == FN_USER ? (void *)(uintptr_t)((const fn_shared *)f->code)->id
                                          : f->code;
  hash ^= (uint64_t)(uintptr_t)code;
  vm_jit *j = jit_of(vm);
  graph_code *body = graph ? f->code : NULL;
  for (chain_anchor *c = j->chains; c; c = c->next)
    if (c->hash == hash && c->code == code && c->graph == graph && c->depth == depth &&
        memcmp(c->chain, chain, depth * sizeof *chain) == 0) {
      if (graph) chains_join(vm, body);
      return &c->anchor;
    }
  chains_sweep(vm);
  chain_anchor *c = mem_zalloc(vm, sizeof *c);
  if (!c) return NULL;
  if (graph) c->live = chains_join(vm, body);
  c->graph = graph;
  c->hash = hash;
  c->code = code;
  c->depth = depth;
  memcpy(c->chain, chain, depth * sizeof *chain);
  c->anchor.name = builtin ? ((const builtin_def *)code)->name : inner->name;
  if (inner) c->anchor.at = inner->at;
  if (!graph) c->anchor.stackable = chain_stackable(inner, chain, depth, &c->anchor.trees);
  if (!graph) c->anchor.sizes = chain_sizes(inner, chain, depth);
  c->next = j->chains;
  j->chains = c;
  return &c->anchor;
}

jit_anchor *anchor_of_value(qn_vm *vm, qn_value fn) {
  const qn_fn *f = value_fn(fn);
  if (f->head.flags != FN_TRANSFORM) return find_chain(vm, fn);
  struct chain_found *x = &jit_of(vm)->found[f->id % CHAINS_FOUND];
  if (x->id == f->id && x->anchor) return x->anchor;
  jit_anchor *a = find_chain(vm, fn);
  *x = (struct chain_found){f->id, a};
  return a;
}

void anchors_forget(qn_vm *vm, uint64_t code) {
  if (!vm->jit) return;
  chain_anchor *gone = NULL;
  for (chain_anchor **at = &jit_of(vm)->chains, *c; (c = *at);) {
    if (c->graph || (uint64_t)(uintptr_t)c->code != code)
      at = &c->next;
    else
      chain_take(jit_of(vm), at, &gone);
  }
  chains_free(vm, gone);
}
