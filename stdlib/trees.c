/* Builtins on trees: lists and records whose leaves are arrays and numbers. Several trees are walked in step, without
 * recursion: a stack of frames, each with the containers of one level, so any depth is safe. */
#include "stdlib/builtins.h"

static bool is_leaf(qn_value v) { return is_array(v) || value_is_number(v); }
static uint32_t container_len(qn_value v) { return value_is(v, TAG_LIST) ? value_list(v)->len : value_record(v)->len; }
static qn_value *container_items(qn_value v) {
  uint32_t n;
  return value_parts(v.u.p, &n);
}

typedef struct frame {
  qn_value out; /* owned: the result at this level; items before `at` are done */
  uint32_t at;
} frame;

struct trees_walk {
  qn_vm *vm;
  const char *fn;
  uint32_t k; /* trees */
  bool all;   /* visit every value that is no container, not only arrays and numbers */
  frame *frames;
  uint32_t depth, frames_cap;
  qn_value *levels; /* borrowed: k containers a frame */
  uint32_t levels_cap;
  qn_value *values; /* borrowed: the value of each tree at the place in progress */
  uint64_t seen;    /* places visited */
};
typedef trees_walk walk;

void text_path(const walk *w, bool dotted, text_buf *t) {
  for (uint32_t i = 0; i < w->depth; i++) {
    qn_value c = w->levels[i * w->k];
    if (!dotted && w->depth > 40 && i == 20) {
      text_adds(t, "...");
      i = w->depth - 20;
    }
    bool list = value_is(c, TAG_LIST);
    if (i && (dotted || !list)) text_adds(t, ".");
    if (list)
      text_addf(t, dotted ? "%u" : "[%u]", w->frames[i].at);
    else
      text_adds(t, record_name(value_record(c), w->frames[i].at)->text);
  }
}

/* Raises the error for trees that differ: tree number j has `other` at the place where the first tree has `first`. */
static qn_value differ(walk *w, qn_value first, qn_value other, uint32_t j) {
  text_buf t = {.vm = w->vm};
  text_addf(&t, "%s: the trees differ in structure", w->fn);
  if (w->depth) text_adds(&t, " at ");
  text_path(w, false, &t);
  text_addf(&t, ": %s in the first, %s in tree %u", phrase_kind(first).text, phrase_kind(other).text, j + 1);
  return raise_text(w->vm, E_type, SPAN_NONE, &t);
}

/* Are both lists of one length, or records with the same names, in whatever order? */
static bool same_structure(qn_value a, qn_value b) {
  if (value_tag_of(a) != value_tag_of(b) || container_len(a) != container_len(b)) return false;
  if (value_is(a, TAG_LIST) || record_same_layout(value_record(a), value_record(b))) return true;
  for (uint32_t i = 0; i < value_record(a)->len; i++)
    if (record_find(value_record(b), record_name(value_record(a), i)) < 0) return false;
  return true;
}

/* ---- stacked lists --------------------------------------------------------------------------------------------------------
 *
 * While a call is recorded whose lists may have any length (jit/trace/stacked.c), what is made of the items of one is a loop. */

typedef struct stacked_turns {
  walk *w;
  const qn_value *values; /* k stacked lists */
  trees_visit visit;
  void *ctx;
  qn_value *out; /* what a turn changes: the list of the results */
} stacked_turns;

static qn_value stacked_turn(void *ctx, qn_value number, rec_exit *how) {
  const stacked_turns *t = ctx;
  qn_vm *vm = t->w->vm;
  qn_value *mark = vm->sp, made = value_error();
  bool ok = vm_enter(vm, t->w->k);
  for (uint32_t j = 0; j < t->w->k && ok; j++) {
    qn_value item = rec_stacked_item(vm, t->values[j], number);
    ok = !value_is_error(item);
    if (ok) *vm->sp++ = item;
  }
  if (ok) made = trees_map(vm, t->w->fn, mark, t->w->k, t->w->all, t->visit, t->ctx);
  vm_pop_to(vm, mark);
  *how = !value_is_error(made) && collect_item(vm, t->out, made) ? REC_VALUE : REC_ERROR;
  return *how == REC_VALUE ? value_nil() : value_error();
}

/* Have k stacked lists as many items? 1, 0, or -1 with an error raised. */
static int same_lengths(qn_vm *vm, const qn_value *values, uint32_t k) {
  int64_t first[ARRAY_MAX_RANK], sizes[ARRAY_MAX_RANK];
  int same = 1;
  rec_sizes(vm, stacked_lead(values[0]), first);
  for (uint32_t j = 1; j < k && same > 0; j++) {
    if (!value_is_stacked(values[j])) return 0;
    rec_sizes(vm, stacked_lead(values[j]), sizes);
    same = rec_sizes_equal(vm, first[0], sizes[0]);
  }
  return same;
}

/* What the walk makes of k lists of which the first one is stacked: a stacked list, owned. Unset: it is to be made of the ordinary ones. */
static qn_value map_stacked(walk *w, const qn_value *values, trees_visit visit, void *ctx) {
  qn_vm *vm = w->vm;
  int same = same_lengths(vm, values, w->k);
  if (same <= 0) return same ? value_error() : value_unset();
  rec_tries tries = rec_loop_begins(vm);
  tries.left = tries.left ? 1 : 0;
  qn_value out = list_value(list_new(vm, 0)), end = rec_length(vm, stacked_lead(values[0])), *place = &out;
  if (value_is_error(out) || value_is_error(end)) return value_fail(vm, out);
  vm_owned held;
  vm_own(vm, &held, vm_drop_value, &out);
  stacked_turns t = {w, values, visit, ctx, &out};
  const rec_turns turns = {
      .body = stacked_turn, .ctx = &t, .counts = true, .grown = 1, .stacks = 1, .first = value_int(0), .end = end};
  rec_answer answer = tries.left ? rec_loop(vm, rec_here(vm), &turns, (rec_slots){&place, 1}, &tries) : REC_NOT_YET;
  rec_loop_ends(vm, &tries);
  vm_disown(vm, &held);
  if (answer == REC_DONE) return out;
  value_release(vm, out);
  return answer == REC_NOT_YET ? value_unset() : value_error();
}

/* k values as ordinary trees, on the value stack, which owns them. NULL with an error raised. */
static const qn_value *plain_values(qn_vm *vm, const qn_value *values, uint32_t k) {
  if (!vm_enter(vm, k)) return NULL;
  qn_value *out = vm->sp;
  for (uint32_t j = 0; j < k; j++) {
    *vm->sp++ = value_retain(values[j]);
    if (!rec_plain(vm, &out[j])) return NULL;
  }
  return out;
}

/* Handles one place of the trees. Returns the value of the result there, owned, or unset if the place is a container that has been
 * entered. */
static qn_value enter(walk *w, const qn_value *values, trees_visit visit, void *ctx) {
  if (__builtin_expect(w->vm->asked.stacked, 0)) {
    bool any = false;
    for (uint32_t j = 0; j < w->k; j++) any |= value_is_stacked(values[j]);
    qn_value made = any && value_is_stacked(values[0]) ? map_stacked(w, values, visit, ctx) : value_unset();
    if (!value_is(made, TAG_UNSET)) return made;
    if (any && !(values = plain_values(w->vm, values, w->k))) return value_error();
  }
  qn_value first = values[0];
  if (!is_leaf(first) && !value_is_container(first)) return w->all ? visit(ctx, w, values) : value_retain(first);
  for (uint32_t j = 1; j < w->k; j++)
    if (value_is(values[j], TAG_NIL)) return value_retain(first);
  if (is_leaf(first)) {
    for (uint32_t j = 1; j < w->k; j++)
      if (!is_leaf(values[j])) return differ(w, first, values[j], j);
    return visit(ctx, w, values);
  }
  for (uint32_t j = 1; j < w->k; j++)
    if (!same_structure(first, values[j])) return differ(w, first, values[j], j);
  if (container_len(first) == 0) return value_retain(first);
  if (!mem_grow(w->vm, (void **)&w->frames, &w->frames_cap, w->depth + 1, sizeof *w->frames) ||
      !mem_grow(w->vm, (void **)&w->levels, &w->levels_cap, (size_t)(w->depth + 1) * w->k, sizeof *w->levels))
    return value_error();
  qn_value out = parts_like(w->vm, first);
  if (value_is_error(out)) return out;
  for (uint32_t j = 0; j < w->k; j++) w->levels[w->depth * w->k + j] = values[j];
  w->frames[w->depth++] = (frame){out, 0};
  return value_unset();
}

/* Frees what a walk owns; called as the walk ends, or if a host's exception leaves it. */
static void walk_drop(qn_vm *vm, void *what) {
  walk *w = what;
  while (w->depth) value_release(vm, w->frames[--w->depth].out);
  mem_free(vm, w->frames, w->frames_cap * sizeof *w->frames);
  mem_free(vm, w->levels, w->levels_cap * sizeof *w->levels);
  mem_free(vm, w->values, w->k * sizeof *w->values);
}

qn_value trees_map(qn_vm *vm, const char *fn, const qn_value *trees, uint32_t k, bool all, trees_visit visit,
                   void *ctx) {
  walk w = {.vm = vm, .fn = fn, .k = k, .all = all};
  qn_value *values = w.values = mem_alloc(vm, k * sizeof *values);
  if (!values) return value_error();
  vm_owned held;
  vm_own(vm, &held, walk_drop, &w);
  qn_value done = enter(&w, trees, visit, ctx);
  while (w.depth && !value_is_error(done)) {
    frame *f = &w.frames[w.depth - 1];
    const qn_value *level = &w.levels[(w.depth - 1) * k];
    if (!value_is(done, TAG_UNSET)) { /* an item of this level is ready */
      container_items(f->out)[f->at++] = done;
      done = value_unset();
    }
    if (f->at == container_len(f->out)) {
      done = f->out;
      w.depth--;
      continue;
    }
    values[0] = container_items(level[0])[f->at];
    for (uint32_t j = 1; j < k; j++) {
      uint32_t at = f->at;
      if (value_is(level[j], TAG_RECORD))
        at = (uint32_t)record_find(value_record(level[j]), record_name(value_record(level[0]), f->at));
      values[j] = container_items(level[j])[at];
    }
    done = tree_place(vm, trees[0], &w.seen) ? enter(&w, values, visit, ctx) : value_error();
  }
  vm_disown(vm, &held);
  walk_drop(vm, &w);
  return done;
}

/* ---- the builtins ---------------------------------------------------------------------------------------------------- */

typedef struct call_ctx {
  qn_vm *vm;
  qn_value f;
  uint32_t k;
} call_ctx;

/* Adds a note to the pending error of f that says at which leaves f was called. Only to errors about shapes and kinds: errors that depend on
 * data may come later, when the recorded call runs, and could not have the note then. */
static void note_path(qn_vm *vm, const walk *w) {
  if (!vm->error || w->depth == 0 || vm->error->id > E_type) return;
  text_buf t = {.vm = vm};
  text_path(w, false, &t);
  if (t.text && !t.failed) raise_note(vm, SPAN_NONE, "tree_map calls the function for %s", t.text);
  text_free(&t);
}

static qn_value visit_call(void *ctx, const walk *w, const qn_value *values) {
  call_ctx *c = ctx;
  qn_value out = c->vm->hooks.call(c->vm, c->f, values, (int)c->k, value_nil());
  if (value_is_error(out)) note_path(c->vm, w);
  return out;
}

/* Pushes the first tree and those of a list of others on the value stack, where they lie one after the other. Returns where they begin; the
 * caller pops down to there. NULL with an error raised. */
static qn_value *with_others(qn_vm *vm, qn_value first, const qn_list *others) {
  if (!vm_enter(vm, others->len + (size_t)1)) return NULL;
  qn_value *trees = vm->sp;
  *vm->sp++ = value_retain(first);
  for (uint32_t i = 0; i < others->len; i++) *vm->sp++ = value_retain(others->items[i]);
  return trees;
}

qn_value builtin_tree_map(qn_vm *vm, const qn_value *args) {
  if (!value_is(args[0], TAG_FN) && !value_is(args[0], TAG_DTYPE))
    return arg_refuse(vm, "tree_map", "a function first, then the trees", args[0]);
  const qn_list *others = value_list(args[2]);
  call_ctx c = {vm, args[0], others->len + 1};
  qn_value *trees = with_others(vm, args[1], others);
  if (!trees) return value_error();
  qn_value out = trees_map(vm, "tree_map", trees, c.k, false, visit_call, &c);
  vm_pop_to(vm, trees);
  return out;
}

typedef struct collect_ctx {
  qn_vm *vm;
  qn_value list; /* owned */
  uint32_t k;
  bool rows; /* each place of the result is a list of the leaves, also if there is only one */
} collect_ctx;

static qn_value visit_collect(void *ctx, const walk *w, const qn_value *values) {
  (void)w;
  collect_ctx *c = ctx;
  qn_value item = c->rows ? list_value(list_from(c->vm, values, c->k)) : value_retain(values[0]);
  if (value_is_error(item) || !list_push(c->vm, value_list(c->list), item)) return value_error();
  return value_nil();
}

static qn_value collect(qn_vm *vm, const char *fn, const qn_value *trees, uint32_t k, bool rows) {
  collect_ctx c = {vm, list_value(list_new(vm, 0)), k, rows};
  if (value_is_error(c.list)) return c.list;
  qn_value walked = trees_map(vm, fn, trees, k, false, visit_collect, &c);
  return value_is_error(walked) ? value_fail(vm, c.list) : used(vm, walked, c.list);
}

qn_value builtin_tree_leaves(qn_vm *vm, const qn_value *args) { return collect(vm, "tree_leaves", args, 1, false); }

qn_value builtin_tree_zip(qn_vm *vm, const qn_value *args) {
  const qn_list *trees = value_list(args[0]);
  if (trees->len == 0) return raise_error(vm, E_argument, SPAN_NONE, "tree_zip: no trees");
  return collect(vm, "tree_zip", trees->items, trees->len, true);
}

/* 1, 0, or -1 with an error raised. */
static int same_shape(qn_vm *vm, qn_value a, qn_value b) {
  int rank = is_array(a) ? value_array(a)->rank : 0, same = 1;
  if (rank != (is_array(b) ? value_array(b)->rank : 0)) return 0;
  if (rank == 0) return 1;
  int64_t x[ARRAY_MAX_RANK], y[ARRAY_MAX_RANK];
  if (!rec_sizes_of_call(vm, a, x) || !rec_sizes_of_call(vm, b, y)) return -1;
  for (int i = 0; i < rank && same > 0; i++) same = rec_sizes_equal(vm, x[i], y[i]);
  return same;
}

typedef struct shapes_ctx {
  qn_vm *vm;
  uint32_t k;
  bool same;
} shapes_ctx;

static qn_value visit_shapes(void *ctx, const walk *w, const qn_value *values) {
  (void)w;
  shapes_ctx *c = ctx;
  for (uint32_t j = 1; j < c->k && c->same; j++) {
    int same = same_shape(c->vm, values[0], values[j]);
    if (same < 0) return value_error();
    c->same = same;
  }
  return value_nil();
}

qn_value builtin_same_shapes(qn_vm *vm, const qn_value *args) {
  const qn_list *others = value_list(args[1]);
  shapes_ctx c = {vm, others->len + 1, true};
  qn_value *trees = with_others(vm, args[0], others);
  if (!trees) return value_error();
  qn_value walked = trees_map(vm, "same_shapes", trees, c.k, false, visit_shapes, &c);
  vm_pop_to(vm, trees);
  return value_is_error(walked) ? walked : used(vm, walked, value_bool(c.same));
}
