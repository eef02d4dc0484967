/* Walks over trees of lists and records, with a stack of their own and a path that grows and shrinks with it. */
#include <string.h>

#include "lang/internal.h"

/* A container on the way down: item i is next. */
typedef struct tree_level {
  qn_value from; /* borrowed */
  qn_value to;   /* what is being built from it; borrowed from the level above or the root; unset in tree_each */
  uint32_t i, n;
  size_t path; /* length of the path to this container */
} tree_level;

struct tree_walk {
  qn_vm *vm;
  tree_level *levels;
  uint32_t n, cap;
  uint64_t seen; /* places */
  shared_parts parts;
  text_buf path;
};

static bool is_container(qn_value v) { return value_is(v, TAG_LIST) || value_is(v, TAG_RECORD); }

static qn_value *container_items(qn_value v) {
  return value_is(v, TAG_LIST) ? value_list(v)->items : value_record(v)->items;
}

static uint32_t container_len(qn_value v) { return value_is(v, TAG_LIST) ? value_list(v)->len : value_record(v)->len; }

static void walk_init(tree_walk *w, qn_vm *vm) {
  *w = (tree_walk){.vm = vm};
  text_init(&w->path, vm);
}

static void walk_free(tree_walk *w) {
  mem_free(w->vm, w->levels, w->cap * sizeof *w->levels);
  text_free(&w->path);
  shared_free(w->vm, &w->parts);
}

static bool walk_push(tree_walk *w, qn_value from, qn_value to) {
  if (!mem_grow(w->vm, (void **)&w->levels, &w->cap, (size_t)w->n + 1, sizeof *w->levels)) return false;
  w->levels[w->n++] = (tree_level){from, to, 0, container_len(from), w->path.len};
  return true;
}

static bool is_identifier(const qn_str *s) {
  if (!s->len || (s->text[0] >= '0' && s->text[0] <= '9')) return false;
  for (uint32_t i = 0; i < s->len; i++) {
    unsigned char c = (unsigned char)s->text[i];
    if (!((c | 32) >= 'a' && (c | 32) <= 'z') && !(c >= '0' && c <= '9') && c != '_' && c < 0x80) return false;
  }
  return true;
}

static void path_cut(text_buf *path, size_t len) {
  path->len = len;
  if (path->text) path->text[len] = 0;
}

/* Sets the path to that of item i of a level. False when memory ran out. */
static bool path_item(tree_walk *w, const tree_level *l, uint32_t i) {
  text_buf *t = &w->path;
  path_cut(t, l->path);
  if (value_is(l->from, TAG_LIST)) {
    text_add(t, "[", 1);
    text_int(t, i);
    text_add(t, "]", 1);
  } else {
    const qn_str *name = record_name(value_record(l->from), i);
    if (is_identifier(name)) {
      if (l->path) text_add(t, ".", 1);
      text_add(t, name->text, name->len);
    } else {
      text_add(t, "[", 1);
      text_quoted(t, name->text, name->len);
      text_add(t, "]", 1);
    }
  }
  if (t->failed) raise_memory(w->vm);
  return !t->failed;
}

/* The next place. In a walk over parts, a container that has been entered before at this length of the walk is not `anew`, and
 * *made the place of what was made of it; else *made is NULL unless the container is remembered from now on. */
static bool walk_step(tree_walk *w, qn_value tree, qn_value v, bool parts, bool *anew, qn_value **made) {
  *anew = true;
  *made = NULL;
  if (!parts) return tree_place(w->vm, tree, &w->seen);
  if (vm_poll(w->vm)) return false;
  if (w->seen < PLACES_LOOK) {
    w->seen++;
  } else if (is_container(v) && !value_unique(v)) {
    bool before;
    *made = shared_made(w->vm, &w->parts, v, &before);
    *anew = !before;
    return *made != NULL;
  }
  return true;
}

static bool each(qn_vm *vm, qn_value tree, bool parts, bool (*leaf)(void *ctx, const char *path, qn_value v),
                 void *ctx) {
  if (!is_container(tree)) return leaf(ctx, "", tree);
  tree_walk w;
  walk_init(&w, vm);
  bool ok = walk_push(&w, tree, value_unset());
  while (ok && w.n) {
    tree_level *l = &w.levels[w.n - 1];
    if (l->i == l->n) {
      w.n--;
      continue;
    }
    uint32_t i = l->i++;
    qn_value v = container_items(l->from)[i], *made;
    bool anew;
    ok = walk_step(&w, tree, v, parts, &anew, &made) && path_item(&w, l, i);
    if (ok && anew) ok = is_container(v) ? walk_push(&w, v, value_unset()) : leaf(ctx, w.path.text, v);
  }
  walk_free(&w);
  return ok;
}

bool tree_each(qn_vm *vm, qn_value tree, bool (*leaf)(void *ctx, const char *path, qn_value v), void *ctx) {
  return each(vm, tree, false, leaf, ctx);
}

bool tree_each_part(qn_vm *vm, qn_value tree, bool (*leaf)(void *ctx, const char *path, qn_value v), void *ctx) {
  return each(vm, tree, true, leaf, ctx);
}

/* An empty copy of a container: the same length or names, nil items. */
static qn_value container_like(qn_vm *vm, qn_value v) {
  if (value_is(v, TAG_LIST)) {
    qn_list *l = list_new(vm, value_list(v)->len);
    return l ? value_obj(TAG_LIST, l) : value_error();
  }
  qn_record *r = record_like(vm, value_record(v));
  return r ? value_obj(TAG_RECORD, r) : value_error();
}

static qn_value rebuild(qn_vm *vm, qn_value tree, bool parts, qn_value (*leaf)(void *ctx, const char *path, qn_value v),
                        void *ctx) {
  if (!is_container(tree)) return leaf(ctx, "", tree);
  qn_value root = container_like(vm, tree);
  if (value_is_error(root)) return root;
  tree_walk w;
  walk_init(&w, vm);
  bool ok = walk_push(&w, tree, root);
  while (ok && w.n) {
    tree_level *l = &w.levels[w.n - 1];
    if (l->i == l->n) {
      w.n--;
      continue;
    }
    uint32_t i = l->i++;
    qn_value v = container_items(l->from)[i], *known;
    qn_value *slot = &container_items(l->to)[i];
    bool anew;
    ok = walk_step(&w, tree, v, parts, &anew, &known) && path_item(&w, l, i);
    if (!ok) break;
    if (!anew) {
      *slot = value_retain(*known);
      continue;
    }
    qn_value made = is_container(v) ? container_like(vm, v) : leaf(ctx, w.path.text, v);
    ok = !value_is_error(made);
    if (!ok) break;
    *slot = made;
    if (known) *known = made;
    if (is_container(v)) ok = walk_push(&w, v, made);
  }
  walk_free(&w);
  if (ok) return root;
  return value_fail(vm, root);
}

qn_value tree_rebuild(qn_vm *vm, qn_value tree, qn_value (*leaf)(void *ctx, const char *path, qn_value v), void *ctx) {
  return rebuild(vm, tree, false, leaf, ctx);
}

qn_value tree_rebuild_parts(qn_vm *vm, qn_value tree, qn_value (*leaf)(void *ctx, const char *path, qn_value v),
                            void *ctx) {
  return rebuild(vm, tree, true, leaf, ctx);
}
