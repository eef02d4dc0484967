/* Walks over trees of lists and records, with a stack of their own. */
#include "lang/internal.h"

/* A container that the walk is in, and its next item. */
typedef struct tree_level {
  const qn_value *from;
  qn_value *to; /* what is being built from them; NULL in a walk that only looks */
  uint32_t i, n;
} tree_level;

/* The state of a walk. `look` is set if it only visits leaves, `make` if it also builds a tree. */
typedef struct tree_walk {
  qn_vm *vm;
  qn_value tree;
  bool parts;
  bool (*look)(void *ctx, qn_value v);
  qn_value (*make)(void *ctx, qn_value v);
  void *ctx;
  tree_level *levels;
  uint32_t n, cap;
  uint64_t seen; /* places visited */
  shared_parts shared;
} tree_walk;

qn_value parts_like(qn_vm *vm, qn_value v) {
  void *made = value_is(v, TAG_LIST)     ? (void *)list_new(vm, value_list(v)->len)
               : value_is(v, TAG_RECORD) ? (void *)record_like(vm, value_record(v))
                                         : (void *)fn_like(vm, value_fn(v));
  return value_new(value_tag_of(v), made);
}

/* Visits a leaf, or begins a container, whose items are then the next places. A walk that builds stores what it makes in *to; *to stays unset
 * if that fails. */
static bool walk_value(tree_walk *w, qn_value v, qn_value *to) {
  if (!value_is_container(v) && w->look) return w->look(w->ctx, v);
  if (w->make) {
    qn_value made = value_is_container(v) ? parts_like(w->vm, v) : w->make(w->ctx, v);
    if (value_is_error(made)) return false;
    *to = made;
  }
  if (!value_is_container(v)) return true;
  if (!mem_grow(w->vm, (void **)&w->levels, &w->cap, (size_t)w->n + 1, sizeof *w->levels)) return false;
  tree_level *l = &w->levels[w->n++];
  *l = (tree_level){.to = w->make ? value_parts(to->u.p, &l->n) : NULL};
  l->from = value_parts(v.u.p, &l->n);
  return true;
}

/* The next place. In a walk over parts, a container that has been entered before at this length of the walk is not `anew`, and
 * *made the place of what was made of it; else *made is NULL unless the container is remembered from now on. */
static bool walk_step(tree_walk *w, qn_value v, bool *anew, qn_value **made) {
  *anew = true;
  *made = NULL;
  if (!w->parts) return tree_place(w->vm, w->tree, &w->seen);
  if (vm_poll(w->vm)) return false;
  if (w->seen < PLACES_LOOK) {
    w->seen++;
  } else if (value_is_container(v) && !value_unique(v)) {
    bool before;
    *made = shared_made(w->vm, &w->shared, v, &before);
    *anew = !before;
    return *made != NULL;
  }
  return true;
}

/* The whole walk; *root is what is made of the tree. */
static bool walk(tree_walk *w, qn_value *root) {
  bool ok = walk_value(w, w->tree, root);
  while (ok && w->n) {
    tree_level *l = &w->levels[w->n - 1];
    if (l->i == l->n) {
      w->n--;
      continue;
    }
    qn_value v = l->from[l->i], *to = l->to ? &l->to[l->i] : NULL, *known;
    l->i++;
    bool anew;
    ok = walk_step(w, v, &anew, &known);
    if (ok && anew) {
      ok = walk_value(w, v, to);
      if (ok && known && to) *known = *to;
    } else if (ok && to) {
      *to = value_retain(*known);
    }
  }
  mem_free(w->vm, w->levels, w->cap * sizeof *w->levels);
  shared_free(w->vm, &w->shared);
  return ok;
}

bool tree_each(qn_vm *vm, qn_value tree, bool (*leaf)(void *ctx, qn_value v), void *ctx) {
  if (!value_is_container(tree)) return leaf(ctx, tree);
  return walk(&(tree_walk){.vm = vm, .tree = tree, .look = leaf, .ctx = ctx}, NULL);
}

bool tree_each_part(qn_vm *vm, qn_value tree, bool (*leaf)(void *ctx, qn_value v), void *ctx) {
  return walk(&(tree_walk){.vm = vm, .tree = tree, .parts = true, .look = leaf, .ctx = ctx}, NULL);
}

static qn_value rebuilt(tree_walk *w) {
  qn_value root = value_error();
  return walk(w, &root) ? root : value_fail(w->vm, root);
}

qn_value tree_rebuild(qn_vm *vm, qn_value tree, qn_value (*leaf)(void *ctx, qn_value v), void *ctx) {
  return rebuilt(&(tree_walk){.vm = vm, .tree = tree, .make = leaf, .ctx = ctx});
}

qn_value tree_rebuild_parts(qn_vm *vm, qn_value tree, qn_value (*leaf)(void *ctx, qn_value v), void *ctx) {
  return rebuilt(&(tree_walk){.vm = vm, .tree = tree, .parts = true, .make = leaf, .ctx = ctx});
}
