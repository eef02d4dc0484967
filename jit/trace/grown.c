/* Lists that grow in captured loops: each leaf of the items becomes a buffer with a row for each item.
 *
 * A list that is longer after each turn is no carried value, whose structure must stay. So where the turns of a loop only append to a list
 * (the interpreter finds this out from the text: n_grow), its variable holds something else while the body is recorded (grown.h), and each
 * item is stored in the next row of the buffers, which are carried in its place. How many items a turn adds must not depend on data; so
 * the row is known from the number of the turn, and lies inside.
 *
 * When the body is recorded for the first time there are no buffers: it tells how many items a turn adds, and what they are like (loops.c).
 * Behind the loop the list is one of rows of the buffers. Stacking these gives the buffer itself (rec_rows).
 *
 * Lists that grow in other ways (they are read while they grow, lie in records, get items behind conditions) are counted ones: stacked lists (stacked.c)
 * whose last part is the number of items, a number of the graph like others, and whose arrays have room for more. So such a list is carried through loops and
 * arms as what it is made of. An item is stored in the row that the count names; room for it is certain, or its check leaves the graph. What
 * reads the list and knows nothing of counts gets a stacked list of as many rows as there are, if the count can be a size (rec_counted_cut), or the ordinary list
 * (rec_make_plain): in an arm the capture of that is given up, at the top of a call it ends
 * there. A loop is tried in this way when it could not be captured as it is; as with other lists that grow, it is recorded first to see what is added. A stacked list
 * becomes a counted one likewise; items are stored in it as it is. Behind the loop the list is an ordinary one, or a stacked one, if its length is known or a size; else it stays counted, also as the result of the call.
 */
#include "jit/trace/grown.h"

#include <string.h>

#include "jit/graph/region_builder.h"
#include "jit/run/index.h"
#include "jit/trace/breaks.h"
#include "jit/trace/rec.h"
#include "jit/trace/sizes.h"
#include "jit/trace/ways.h"

enum {
  LOOKED_AT = 256,      /* nodes, for whether a number is data */
  COUNTED_KB = 1024,    /* memory for the items of a counted list, if nothing is known of the number of turns, */
  COUNTED_ROWS = 1024,  /* and for how many items; */
  COUNTED_SMALL = 256,  /* or for more of them in so many KB, */
  COUNTED_MOST = 8192,  /* but not for more than that; */
  COUNTED_MB = 64,      /* memory for items that turns may add, or not, where the number of turns is known, */
  COUNTED_EARLY = 16,   /* and where that is what they are at most, */
  COUNTED_FEW_ROWS = 64 /* but for so many items in any case */
};

/* ---- items ----------------------------------------------------------------------------------------------------------------------- */

uint32_t grown_new(struct recording *r) {
  struct recording *b = rec_base(r);
  if (!mem_grow(r->vm, (void **)&b->grown, &b->grown_cap, b->ngrown + (size_t)1, sizeof *b->grown)) return 0;
  b->grown[b->ngrown++] = (grown_items){.shape = value_unset()};
  return b->ngrown;
}

grown_items *grown_of(const struct recording *r, uint32_t number) {
  return &rec_base((struct recording *)(uintptr_t)r)->grown[number - 1];
}

void grown_free(struct recording *r) {
  for (uint32_t i = 0; i < r->ngrown; i++) {
    value_release(r->vm, r->grown[i].shape);
    mem_free(r->vm, r->grown[i].types, r->grown[i].cap * sizeof *r->grown[i].types);
  }
  mem_free(r->vm, r->grown, r->grown_cap * sizeof *r->grown);
}

/* Would a number be one of the host's if the loop were unrolled? It is, unless it is made of an array or in a loop or branch. Looks at *left
 * nodes at most; of numbers with a longer history it says no. */
static bool of_host(const struct recording *r, uint32_t node, int *left) {
  const graph_node *n = &r->g->nodes[node];
  if (!n->type.weak || --*left < 0) return false;
  if (n->kind == NODE_CONST) return true;
  if (n->kind == NODE_INPUT) {
    uint32_t at = n->payload.input;
    return !r->arm || at >= r->captures_cap || !r->captures[at] || of_host(r->outer, r->captures[at], left);
  }
  for (int k = 0; n->kind == NODE_OP && k < n->nin; k++)
    if (!of_host(r, n->in[k], left)) return false;
  return n->kind == NODE_OP;
}

/* The types of items while one is walked. */
typedef struct item_walk {
  struct recording *r;
  grown_items *of;
} item_walk;

/* A leaf of the first item: unset in place of an array or number, whose type is noted. */
static qn_value note_leaf(void *ctx, qn_value v) {
  item_walk *w = ctx;
  if (rec_text_of(w->r, v)) return value_error();
  if (!value_is_operand(v)) return value_retain(v);
  grown_items *g = w->of;
  uint32_t node = rec_node(w->r, v);
  if (!node || !mem_grow(w->r->vm, (void **)&g->types, &g->cap, g->n + (size_t)1, sizeof *g->types))
    return value_error();
  graph_type t = w->r->g->nodes[node].type;
  rec_pin_type(w->r, &t); /* buffers lie around the loop */
  if (!type_is_fixed(&t) || t.rank == ARRAY_MAX_RANK) return value_error();
  g->types[g->n++] = t;
  g->data |= !of_host(w->r, node, &(int){LOOKED_AT});
  return value_unset();
}

/* Compares an item with the shape, and collects its arrays and numbers (borrowed). False if they differ. */
static bool same_shape(item_walk *w, qn_value shape, qn_value v, qn_value *leaves, uint32_t *n) {
  if (value_is(shape, TAG_UNSET)) {
    uint32_t node = value_is_operand(v) ? rec_node(w->r, v) : 0;
    if (!node) return false;
    graph_type t = w->r->g->nodes[node].type;
    rec_pin_type(w->r, &t);
    if (!graph_type_same(&t, &w->of->types[*n])) return false;
    leaves[(*n)++] = v;
    return true;
  }
  if (value_tag_of(shape) != value_tag_of(v) || value_is_operand(v)) return false;
  if (value_is(v, TAG_STR)) return !rec_text_of(w->r, v) && str_equal(value_str(shape), value_str(v));
  bool list = value_is(v, TAG_LIST);
  if (!list && !value_is(v, TAG_RECORD)) return shape.head == v.head && shape.u.i == v.u.i;
  uint32_t count = list ? value_list(v)->len : value_record(v)->len;
  if (count != (list ? value_list(shape)->len : value_record(shape)->len) || !vm_enter(w->r->vm, 0)) return false;
  for (uint32_t i = 0; i < count && !list; i++)
    if (!str_equal(record_name(value_record(shape), i), record_name(value_record(v), i))) return false;
  const qn_value *p = list ? value_list(shape)->items : value_record(shape)->items;
  const qn_value *q = list ? value_list(v)->items : value_record(v)->items;
  for (uint32_t i = 0; i < count; i++)
    if (!same_shape(w, p[i], q[i], leaves, n)) return false;
  return true;
}

/* ---- the list while it grows --------------------------------------------------------------------------------------------------------- */

uint32_t grown_number(qn_value v) { return (uint32_t)(value_list(v)->items[GROWN_MARK].u.i >> 32); }
uint32_t grown_count(qn_value v) { return (uint32_t)value_list(v)->items[GROWN_MARK].u.i; }

qn_value grown_value(qn_vm *vm, uint32_t number, uint32_t count, qn_value base, qn_value parts) {
  qn_list *l = value_is_error(base) || value_is_error(parts) ? NULL : list_new(vm, GROWN_N);
  if (!l) {
    value_release(vm, base);
    value_release(vm, parts);
    return value_error();
  }
  l->items[GROWN_MARK] = (qn_value){.head = TAG_SIGNAL, .u.i = (int64_t)((uint64_t)number << 32 | count)};
  l->items[GROWN_BASE] = base;
  l->items[GROWN_PARTS] = parts;
  return value_obj(TAG_LIST, l);
}

/* Where the next item goes: a host int. The error value if memory is short. */
static qn_value next_row(struct recording *r, qn_value base, uint32_t count) {
  uint32_t node = rec_node(r, base);
  if (node && count) node = graph_count(r->g, OP_add, node, graph_weak_int(r->g, count));
  return node ? rec_value_of(r, node) : value_error();
}

/* Stores the leaves of an item in rows of the buffers. A new list of buffers, owned, or the error value. */
static qn_value store(struct recording *r, const grown_items *g, qn_value parts, qn_value row, const qn_value *leaves) {
  qn_vm *vm = r->vm;
  qn_list *out = list_new(vm, g->n);
  if (!out) return value_error();
  bool ok = true;
  for (uint32_t k = 0; k < g->n && ok; k++) {
    qn_value in[3] = {value_list(parts)->items[k], row, op_cast(vm, leaves[k], (qn_dtype)g->types[k].dtype)};
    ok = !value_is_error(in[2]);
    const op_attr attr = {.n = 1, .mode = SCATTER_SET, .flags = ATTR_PROVEN, .d = {1}};
    qn_value made = ok ? op_apply(vm, OP_scatter, in, 3, &attr) : value_error();
    value_release(vm, in[2]);
    if (value_is_error(made))
      ok = false;
    else
      out->items[k] = made;
  }
  qn_value v = value_obj(TAG_LIST, out);
  return ok ? v : value_fail(vm, v);
}

/* The node that stores the item which the buffer has got last; 0: there is none. Branches that pass the buffer on, as one that may leave the turn, have
 * not changed it. */
static uint32_t last_store(const graph *g, uint32_t node) {
  const graph_node *n = &g->nodes[node];
  while (n->kind == NODE_PROJ && g->nodes[n->in[0]].kind == NODE_IF) {
    const graph_node *of = &g->nodes[n->in[0]];
    uint32_t from[2];
    for (int a = 0; a < 2; a++) {
      const graph *arm = of->payload.regions[a];
      const graph_node *made = &arm->nodes[arm->outputs[n->payload.index]];
      if (made->kind != NODE_INPUT) return 0;
      from[a] = of->in[1 + made->payload.input];
    }
    if (from[0] != from[1]) return 0;
    n = &g->nodes[node = from[0]];
  }
  return n->kind == NODE_OP && n->op == OP_scatter ? node : 0;
}

/* The buffer before the last `count` items were stored in it. 0: something else has been done with it. */
static uint32_t before_stores(const graph *g, uint32_t node, uint32_t count) {
  for (; node && count > 0; count--) {
    node = last_store(g, node);
    if (node) node = g->nodes[node].in[0];
  }
  return node;
}

/* Stores item `i` of `count` once more, in a buffer that has those before it, as `node` and what it is made of have done. Owned, or the error value. */
static qn_value stored_again(struct recording *r, qn_value made, uint32_t node, uint32_t i, uint32_t count) {
  node = last_store(r->g, before_stores(r->g, node, count - 1 - i));
  const op_attr attr = graph_attr(&r->g->nodes[node]);
  const uint32_t row = r->g->nodes[node].in[1], item = r->g->nodes[node].in[2];
  qn_value in[3] = {made, rec_value_of(r, row), value_error()};
  if (!value_is_error(in[1])) in[2] = rec_value_of(r, item);
  qn_value out = value_is_error(in[2]) ? value_error() : op_apply(r->vm, OP_scatter, in, 3, &attr);
  for (int k = 1; k < 3; k++)
    if (!value_is_error(in[k])) value_release(r->vm, in[k]);
  return out;
}

qn_value grown_stored(struct recording *r, qn_value parts, uint32_t count) {
  if (!value_is(parts, TAG_LIST)) return value_retain(parts);
  const qn_list *l = value_list(parts);
  qn_list *out = list_new(r->vm, l->len);
  if (!out) return value_error();
  qn_value v = value_obj(TAG_LIST, out);
  for (uint32_t k = 0; k < l->len; k++) {
    uint32_t node = rec_node(r, l->items[k]), first = node ? before_stores(r->g, node, count) : 0;
    qn_value before = first ? rec_value_of(r, first) : node ? value_retain(l->items[k]) : value_error();
    if (value_is_error(before)) return value_fail(r->vm, v);
    out->items[k] = before;
  }
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t k = 0; k < l->len; k++) {
      uint32_t node = rec_node(r, l->items[k]);
      if (!node) return value_fail(r->vm, v);
      if (!before_stores(r->g, node, count)) continue;
      qn_value made = stored_again(r, out->items[k], node, i, count);
      if (value_is_error(made)) return value_fail(r->vm, v);
      value_release(r->vm, out->items[k]);
      out->items[k] = made;
    }
  return v;
}

/* ---- what one turn adds (rec_turn) ------------------------------------------------------------------------------------------------- */

enum { GROWN_ADDED = 1u << 30 }; /* the numbers of these lists, from here on */

bool grown_is_added(qn_value v) { return grown_number(v) >= GROWN_ADDED; }

bool grown_added(struct recording *r, rec_added *added, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    qn_value v = grown_value(r->vm, GROWN_ADDED + i, 0, value_nil(), value_nil());
    if (value_is_error(v)) return false;
    value_release(r->vm, *added[i].list);
    *added[i].list = v;
  }
  r->added = added;
  r->nadded = n;
  return true;
}

/* Does every part of the turn that is being captured in r, up to the turn, have this variable? */
static bool is_joined(const struct recording *r, const qn_value *variable) {
  const rec_way *whole = NULL; /* of an inner loop whose turn is w->outer's */
  for (const rec_way *w = way_of(r); w; w = w->outer) {
    bool has = false;
    for (int i = w->slots.n; i-- > 0 && !has;) has = w->slots.slots[i] == variable;
    if (!has || (w->kind == WAY_TURN && !w->whole && w != whole)) return false;
    if (w->whole && !w->whole->outer) return true;
    whole = w->whole;
  }
  return false;
}

/* May a part of an item be what an arm adds? Texts that wait, and what functions capture, belong to the arm. */
static bool leaves_arm(void *r, qn_value v) {
  return rec_no_text_waits(r, v) && !(value_is(v, TAG_FN) && value_fn(v)->ncaptures);
}

/* The item is the next one that this way through the turn adds, or that any way which has come here does. */
static bool add_to_turn(struct recording *r, rec_added *a, qn_value item) {
  int k = 0;
  while (k < ADDED_MOST && (!value_is(a->items[k], TAG_UNSET) || !is_bool(a->flags[k], false))) k++;
  bool ok = k < ADDED_MOST && !value_is(item, TAG_UNSET) && is_joined(r, &a->flags[k]);
  if (!ok || !tree_each_part(r->vm, item, leaves_arm, r)) {
    value_release(r->vm, item);
    return rec_give_up(r, BREAK_branch);
  }
  a->items[k] = item;
  a->flags[k] = value_bool(true);
  return rec_appended(r);
}

bool rec_append(qn_vm *vm, qn_value *list, qn_value item) {
  struct recording *r = vm->rec;
  if (grown_is_added(*list)) return add_to_turn(r, &rec_base(r)->added[grown_number(*list) - GROWN_ADDED], item);
  uint32_t number = grown_number(*list), count = grown_count(*list);
  item_walk w = {.r = r, .of = grown_of(r, number)};
  qn_value *old = value_list(*list)->items, base = value_retain(old[GROWN_BASE]),
           parts = value_retain(old[GROWN_PARTS]);
  bool ok = !value_is(item, TAG_UNSET) && count < UINT32_MAX;
  if (ok && !w.of->known) {
    w.of->n = 0;
    w.of->shape = tree_rebuild(vm, item, note_leaf, &w);
    w.of->known = ok = !value_is_error(w.of->shape);
    if (!ok) w.of->shape = value_unset();
  }
  size_t bytes = (w.of->n + (size_t)1) * sizeof(qn_value);
  qn_value *leaves = ok ? mem_alloc(vm, bytes) : NULL;
  uint32_t n = 0;
  ok = leaves && same_shape(&w, w.of->shape, item, leaves, &n);
  if (ok && value_is(parts, TAG_LIST)) {
    qn_value row = next_row(r, base, count), made = value_is_error(row) ? row : store(r, w.of, parts, row, leaves);
    value_release(vm, parts);
    parts = made;
    ok = !value_is_error(made);
  }
  if (leaves) mem_free(vm, leaves, bytes);
  value_release(vm, item);
  qn_value grown = ok ? grown_value(vm, number, count + 1, base, parts) : value_error();
  if (!value_is_error(grown)) {
    value_release(vm, *list);
    *list = grown;
    return rec_appended(r);
  }
  if (!ok) {
    value_release(vm, base);
    value_release(vm, parts);
  }
  return error_pending(vm) ? false : rec_give_up(r, BREAK_branch);
}

/* Row `row` of the buffers as an item. */
typedef struct row_walk {
  struct recording *r;
  const grown_items *of;
  uint32_t number; /* of these */
  qn_value parts;
  int64_t row;
  uint32_t next;
} row_walk;

/* ---- counted lists ----------------------------------------------------------------------------------------------------------------- */

/* Is it a stacked list that may become a counted one, or have items stored in it? */
static bool is_rows(qn_value v) { return value_is_stacked(v) && !stacked_mark(v); }

static qn_list *counted_parts(qn_value v) { return value_list(value_list(v)->items[STACKED_PARTS]); }
static qn_value counted_count(qn_value v) {
  const qn_list *l = counted_parts(v);
  return l->items[l->len - 1];
}

/* How many of its parts are buffers. */
static uint32_t counted_buffers(qn_value v) {
  return counted_parts(v)->len - 1 - ((stacked_mark(v) & COUNTED_FRONT) != 0);
}
/* A row from which items are counted, as one of the buffers: a host int. The error value, perhaps without an error raised. */
static qn_value row_behind_front(struct recording *r, qn_value v, qn_value row) {
  if (!value_is_counted(v) || !(stacked_mark(v) & COUNTED_FRONT)) return row;
  uint32_t a = rec_node(r, counted_parts(v)->items[counted_buffers(v)]), b = a ? rec_node(r, row) : 0,
           node = b ? graph_count(r->g, OP_add, a, b) : 0;
  return node ? rec_value_of(r, node) : value_error();
}

/* The counted list with these parts: n buffers (taken over) and a count. Owned, or the error value. */
static qn_value counted_with(qn_vm *vm, qn_value shape, qn_list *parts, qn_value count, int mark) {
  if (!parts) {
    value_release(vm, shape);
    return value_error();
  }
  parts->items[parts->len - 1] = count;
  rec_note_stacked(vm);
  return rec_stacked_marked(vm, shape, value_obj(TAG_LIST, parts), mark);
}

qn_value counted_looks(struct recording *r, uint32_t number, qn_value list) {
  grown_items *g = grown_of(r, number);
  g->looks = true;
  g->adds = 0;
  g->within = g->stores = g->removes = g->fronts = false;
  qn_value count = is_rows(list) ? rec_stacked_length(r->vm, list) : value_int(value_list(list)->len);
  if (value_is_error(count)) return count;
  return counted_with(r->vm, value_nil(), list_new(r->vm, 1), count,
                      STACKED_COUNTED | COUNTED_LOOKS | (int)(number << COUNTED_NUMBER));
}

/* The types of a list's items become known by this one. False if it can be none, perhaps with an error raised. */
static bool note_item(item_walk *w, qn_value item) {
  w->of->n = 0;
  w->of->shape = tree_rebuild(w->r->vm, item, note_leaf, w);
  w->of->known = !value_is_error(w->of->shape) && w->of->n > 0;
  if (value_is_error(w->of->shape)) w->of->shape = value_unset();
  return w->of->known;
}

/* count + by, as a host int. */
static qn_value count_plus(struct recording *r, qn_value count, int64_t by) {
  uint32_t node = rec_node(r, count);
  if (node && by) node = graph_count(r->g, OP_add, node, graph_weak_int(r->g, by));
  return node ? rec_value_of(r, node) : value_error();
}

/* Is it like the items of the list, while it is found out what is done? False, perhaps with an error raised. */
static bool looks_like(item_walk *w, qn_value item) {
  if (!w->of->known && !note_item(w, item)) return false;
  size_t bytes = (w->of->n + (size_t)1) * sizeof(qn_value);
  qn_value *leaves = mem_alloc(w->r->vm, bytes);
  uint32_t n = 0;
  bool ok = leaves && same_shape(w, w->of->shape, item, leaves, &n);
  for (uint32_t k = 0; k < n && ok; k++) /* the list may have begun with numbers that the host knows */
    if (!w->of->data) w->of->data = !of_host(w->r, rec_node(w->r, leaves[k]), &(int){LOOKED_AT});
  if (leaves) mem_free(w->r->vm, leaves, bytes);
  return ok;
}

/* Adds an item while it is found out what is added. */
static qn_value look_at(struct recording *r, uint32_t number, qn_value list, qn_value item) {
  qn_vm *vm = r->vm;
  item_walk w = {.r = r, .of = grown_of(r, number)};
  qn_value count = looks_like(&w, item) ? count_plus(r, counted_count(list), 1) : value_error();
  if (value_is_error(count)) return count;
  w.of->adds++;
  w.of->within |= w.of->turns != rec_base(r)->turns;
  return counted_with(vm, value_nil(), list_new(vm, 1), count, stacked_mark(list));
}

/* What a leaf of an item is as a row of a buffer. */
static bool fits_part(struct recording *r, qn_value shape, qn_value v, qn_value part) {
  uint32_t node = value_is_operand(v) ? rec_node(r, v) : 0, of = rec_node(r, part);
  if (!node || !of) return false;
  graph_type t = r->g->nodes[node].type;
  const graph_type *row = &r->g->nodes[of].type;
  rec_pin_type(r, &t);
  bool weak = value_is(shape, TAG_SIGNAL);
  if ((weak ? !t.weak || shape.u.i != t.dtype : t.weak) || t.dtype != row->dtype || t.rank + 1 != row->rank)
    return false;
  return !memcmp(t.shape, row->shape + 1, t.rank * sizeof *t.shape);
}

/* The leaves of an item, stored in row `count` of the buffers. */
typedef struct counted_walk {
  struct recording *r;
  const qn_list *parts;
  qn_list *out;
  qn_value row;
  uint32_t next;
  bool inside;
} counted_walk;

static bool store_leaf(counted_walk *w, qn_value shape, qn_value v) {
  qn_vm *vm = w->r->vm;
  qn_value part = w->parts->items[w->next];
  if (!fits_part(w->r, shape, v, part)) return false;
  qn_value in[3] = {part, w->row, op_cast(vm, v, (qn_dtype)value_array(part)->dtype)};
  if (value_is_error(in[2])) return false;
  const op_attr attr = {.n = 1, .mode = SCATTER_SET, .flags = w->inside ? ATTR_PROVEN : 0, .d = {1}};
  qn_value made = op_apply(vm, OP_scatter, in, 3, &attr);
  value_release(vm, in[2]);
  if (value_is_error(made)) return false;
  w->out->items[w->next++] = made;
  return true;
}

static bool store_item(counted_walk *w, qn_value shape, qn_value v) {
  if (value_is(shape, TAG_UNSET) || value_is(shape, TAG_SIGNAL)) return store_leaf(w, shape, v);
  if (value_tag_of(shape) != value_tag_of(v) || value_is_operand(v)) return false;
  if (value_is(v, TAG_STR)) return !rec_text_of(w->r, v) && str_equal(value_str(shape), value_str(v));
  bool list = value_is(v, TAG_LIST);
  if (!list && !value_is(v, TAG_RECORD)) return shape.head == v.head && shape.u.i == v.u.i;
  if (list ? value_is_stacked(v) : !record_same_layout(value_record(v), value_record(shape))) return false;
  uint32_t n, m;
  const qn_value *p = value_parts(shape.u.p, &n), *q = value_parts(v.u.p, &m);
  if (n != m || !vm_enter(w->r->vm, 0)) return false;
  for (uint32_t i = 0; i < n; i++)
    if (!store_item(w, p[i], q[i])) return false;
  return true;
}

/* Adds an item to the buffers; in the place of the one in `row` (unset: behind the last one of a counted list). Owned, or the error value, perhaps without
 * an error raised. */
static qn_value put_item(struct recording *r, qn_value list, qn_value row, qn_value item) {
  qn_vm *vm = r->vm;
  bool adds = value_is(row, TAG_UNSET);
  const qn_list *parts = counted_parts(list);
  counted_walk w = {.r = r,
                    .parts = parts,
                    .out = list_new(vm, parts->len),
                    .row = row_behind_front(r, list, adds ? counted_count(list) : row),
                    .inside = !adds || (stacked_mark(list) & COUNTED_INSIDE)};
  qn_value shape = value_list(list)->items[STACKED_SHAPE];
  if (!w.out) return value_error();
  if (!w.inside) rec_base(r)->rooms = true;
  if (value_is_error(w.row)) return value_fail(vm, value_obj(TAG_LIST, w.out));
  for (uint32_t k = 0; value_is_counted(list) && k < parts->len - 1; k++) /* the row of the first item stays */
    if (k >= counted_buffers(list)) w.out->items[k] = parts->items[k];
  if (!store_item(&w, shape, item)) return value_fail(vm, value_obj(TAG_LIST, w.out));
  if (is_rows(list)) return rec_stacked(vm, value_retain(shape), value_obj(TAG_LIST, w.out));
  qn_value count = adds ? count_plus(r, counted_count(list), 1) : counted_count(list);
  if (value_is_error(count)) return value_fail(vm, value_obj(TAG_LIST, w.out));
  return counted_with(vm, value_retain(shape), w.out, count, stacked_mark(list));
}

qn_value rec_counted_append(qn_vm *vm, qn_value list, qn_value item) {
  struct recording *r = op_deferred(vm) ? vm->rec : NULL;
  if (r && (r->arm || r->capturing)) {
    uint32_t number = counted_number(list);
    bool looks = stacked_mark(list) & COUNTED_LOOKS,
         known = looks && number <= rec_base(r)->ngrown && grown_of(r, number)->looks;
    qn_value out = !looks  ? put_item(r, list, value_unset(), item)
                   : known ? look_at(r, number, list, item)
                           : value_error();
    if (!value_is_error(out) || error_pending(vm)) return out;
    if (r->arm) return rec_give_up(r, BREAK_branch), value_error();
  }
  qn_value out = rec_unstacked(vm, list);
  if (value_is_error(out) || list_push(vm, value_list(out), value_retain(item))) return out;
  return value_fail(vm, out);
}

/* Notes that a number, of the recording in progress or of one around it, counts items. False with an error raised. */
static bool note_count(qn_vm *vm, qn_value count) {
  struct recording *r = rec_now(vm);
  while (r && r->arm && !rec_traced(r, count)) r = r->outer;
  const uint32_t node = r ? rec_traced(r, count) : 0;
  for (uint32_t i = 0; node && i < r->counted.n; i++)
    if (r->counted.nodes[i] == node) return true;
  return !node || nodes_add(vm, &r->counted, node);
}

bool rec_counted_cut(qn_vm *vm, qn_value *list) {
  qn_dim n;
  if (!value_is_counted(*list) || (stacked_mark(*list) & (COUNTED_LOOKS | COUNTED_FRONT))) return true;
  if (!note_count(vm, counted_count(*list))) return false;
  if (!data_size_of(vm, counted_count(*list), &n)) return !error_pending(vm);
  const qn_list *parts = counted_parts(*list);
  qn_list *out = list_new(vm, parts->len - 1);
  if (!out) return false;
  qn_value all = value_obj(TAG_LIST, out);
  bool ok = rec_size_ordered(vm, 0, n);
  for (uint32_t k = 0; k < out->len && ok; k++) {
    int64_t sizes[ARRAY_MAX_RANK];
    rec_sizes(vm, parts->items[k], sizes);
    qn_dim rows = n; /* (no more than there are, which in an arm need not be known) */
    if (vm->rec->arm && !rec_size_certain(vm, n, sizes[0])) rows = dim_make(rec_dims(vm), DIM_MIN, n, sizes[0]);
    const bool fits = vm->rec->arm || rec_size_ordered(vm, n, sizes[0]);
    qn_value part = fits ? op_slice(vm, parts->items[k], 0, 0, rows, 1) : value_error();
    ok = !value_is_error(part);
    if (ok) out->items[k] = part;
  }
  qn_value cut = ok ? rec_stacked(vm, value_retain(value_list(*list)->items[STACKED_SHAPE]), all) : value_fail(vm, all);
  if (value_is_error(cut)) return !error_pending(vm) && (vm->rec->arm || data_sizes_end(rec_now(vm)));
  value_release(vm, *list);
  *list = cut;
  return true;
}

/* How many of `count` items a slice up to `stop`, a host int, keeps. The error value, perhaps without an error raised. */
static qn_value count_kept(struct recording *r, qn_value count, qn_value stop) {
  qn_vm *vm = r->vm;
  if (rec_traced(r, stop) || rec_traced_around(r, stop)) {
    if (!way_may_exit(r)) return value_error();
    qn_value inside = op_binary(vm, OP_ge, stop, value_int(0));
    if (value_is_error(inside) || !way_expect(r, inside, true)) return value_error();
  } else if (stop.u.i < 0) {
    if (stop.u.i < -INT32_MAX) return value_int(0);
    qn_value rest = count_plus(r, count, stop.u.i);
    return value_is_error(rest) ? rest : op_binary(vm, OP_maximum, rest, value_int(0));
  }
  return op_binary(vm, OP_minimum, count, stop);
}

/* A counted list without its first `by` items, or what there are. As rec_counted_slice. */
static qn_value without_front(struct recording *r, qn_value list, int64_t by) {
  qn_vm *vm = r->vm;
  const qn_list *parts = counted_parts(list);
  const uint32_t at = counted_buffers(list);
  qn_value count = counted_count(list), taken = op_binary(vm, OP_minimum, count, value_int(by)), first;
  uint32_t a = value_is_error(taken) ? 0 : rec_node(r, count), b = a ? rec_node(r, taken) : 0,
           node = b ? graph_count(r->g, OP_sub, a, b) : 0;
  if (!node || value_is_error(count = rec_value_of(r, node))) return value_error();
  if (stacked_mark(list) & COUNTED_LOOKS)
    return counted_with(vm, value_nil(), list_new(vm, 1), count, stacked_mark(list));
  first = row_behind_front(r, list, taken);
  qn_list *out = value_is_error(first) ? NULL : list_from(vm, parts->items, parts->len);
  if (out) out->items[at] = first;
  return out ? counted_with(vm, value_retain(value_list(list)->items[STACKED_SHAPE]), out, count, stacked_mark(list))
             : value_error();
}

qn_value rec_counted_slice(qn_vm *vm, qn_value list, const qn_value *slice) {
  struct recording *r = op_deferred(vm) ? vm->rec : NULL;
  const qn_value start = slice[0], stop = slice[1], step = slice[2];
  if (!r || !(r->arm || r->capturing)) return value_unset();
  if (!value_is(start, TAG_NIL) && (!value_is(start, TAG_INT) || value_node(start) || start.u.i < 0))
    return value_unset();
  const bool front = value_is(start, TAG_INT) && start.u.i;
  if (front ? !value_is(stop, TAG_NIL) : !value_is(stop, TAG_INT)) return value_unset();
  if (front && !(stacked_mark(list) & (COUNTED_LOOKS | COUNTED_FRONT))) return value_unset();
  if (!value_is(step, TAG_NIL) && (!value_is(step, TAG_INT) || value_node(step) || step.u.i != 1)) return value_unset();
  const bool looks = stacked_mark(list) & COUNTED_LOOKS;
  grown_items *g = NULL;
  if (looks) {
    const uint32_t number = counted_number(list);
    if (number <= rec_base(r)->ngrown) g = grown_of(r, number);
    if (!g || !g->looks) return value_unset();
  }
  if (looks) g->fronts |= front;
  if (front) {
    if (looks) g->stores = g->removes = true;
    qn_value rest = without_front(r, list, start.u.i);
    return value_is_error(rest) && !error_pending(vm) ? value_unset() : rest;
  }
  qn_value count = count_kept(r, counted_count(list), stop);
  if (value_is_error(count)) return error_pending(vm) ? count : value_unset();
  if (looks) {
    g->stores = g->removes = true;
    return counted_with(vm, value_nil(), list_new(vm, 1), count, stacked_mark(list));
  }
  const qn_list *parts = counted_parts(list);
  return counted_with(vm, value_retain(value_list(list)->items[STACKED_SHAPE]), list_from(vm, parts->items, parts->len),
                      count, stacked_mark(list));
}

int64_t counted_first(qn_vm *vm, qn_value v) {
  if (!(stacked_mark(v) & COUNTED_FRONT)) return 0;
  qn_value n = rec_observe(vm, counted_parts(v)->items[counted_buffers(v)]);
  return value_is_error(n) ? -1 : n.u.i;
}

int64_t counted_length(qn_vm *vm, qn_value v) {
  if (stacked_mark(v) & COUNTED_LOOKS) return rec_give_up(vm->rec, BREAK_branch), -1;
  qn_value n = rec_observe(vm, counted_count(v));
  return value_is_error(n) ? -1 : n.u.i;
}

qn_value rec_stacked_length(qn_vm *vm, qn_value list) {
  return value_is_counted(list) ? counted_count(list) : rec_length(vm, stacked_lead(list));
}

/* Zeros in place of a leaf of an item that is not there yet. */
static qn_value zero_leaf(void *ctx, qn_value v) {
  row_walk *w = ctx;
  if (!value_is(v, TAG_UNSET)) return value_retain(v);
  const graph_type *t = &w->of->types[w->next++];
  uint32_t zeros = graph_full(w->r->g, t, 0, rec_site(w->r));
  return zeros ? rec_value_of(w->r, zeros) : value_error();
}

/* The row of list[i], of which it is known from here on that it is there. Unset: it is not, or it is not known; the error value. */
static qn_value row_inside(struct recording *r, qn_value list, qn_value i) {
  qn_vm *vm = r->vm;
  qn_value count = rec_stacked_length(vm, list);
  if (value_is_error(count)) return count;
  bool traced = rec_traced(r, i) || rec_traced_around(r, i), behind = !traced && i.u.i < 0;
  if (traced && !r->arm && (i.u.i < 0 || i.u.i >= count.u.i)) return value_unset();
  if (!traced && !r->arm && (behind ? -i.u.i > count.u.i : i.u.i >= count.u.i)) return value_unset();
  if (behind && i.u.i < -INT32_MAX) return value_unset();
  qn_value row = behind ? count_plus(r, count, i.u.i) : i;
  for (int k = 0; k < 2; k++) { /* 0 <= row < count; the last item is there if any is */
    if (behind ? k == 1 : k == 0 && !traced) continue;
    qn_value inside = value_is_error(row) ? row
                      : k                 ? op_binary(vm, OP_lt, row, count)
                                          : op_binary(vm, OP_ge, row, value_int(0));
    if (value_is_error(inside) || !way_expect(r, inside, true)) return value_error();
  }
  return row;
}

qn_value rec_counted_get(qn_vm *vm, qn_value list, qn_value i) {
  struct recording *r = op_deferred(vm) ? vm->rec : NULL;
  if (!r || !value_is(i, TAG_INT) || !(r->arm || r->capturing) || !way_may_exit(r)) return value_unset();
  if (stacked_mark(list) & COUNTED_LOOKS) {
    uint32_t number = counted_number(list);
    row_walk w = {.r = r};
    if (number > rec_base(r)->ngrown) return value_unset();
    w.of = grown_of(r, number);
    return w.of->looks && w.of->known ? tree_rebuild(vm, w.of->shape, zero_leaf, &w) : value_unset();
  }
  qn_value row = row_inside(r, list, i);
  if (!value_is_error(row) && !value_is(row, TAG_UNSET)) row = row_behind_front(r, list, row);
  return value_is_error(row) || value_is(row, TAG_UNSET) ? row : rec_stacked_item(vm, list, row);
}

int rec_counted_set(qn_vm *vm, qn_value *list, qn_value i, qn_value item) {
  struct recording *r = op_deferred(vm) ? vm->rec : NULL;
  if (!r || !value_is(i, TAG_INT) || !(r->arm || r->capturing) || !way_may_exit(r)) return 0;
  if (!value_is_counted(*list) && (!is_rows(*list) || rec_base(r)->lanes || rec_derivatives(r))) return 0;
  if (stacked_mark(*list) & COUNTED_LOOKS) {
    uint32_t number = counted_number(*list);
    if (number > rec_base(r)->ngrown || !grown_of(r, number)->looks) return 0;
    item_walk w = {.r = r, .of = grown_of(r, number)};
    w.of->stores = true;
    return looks_like(&w, item) ? 1 : error_pending(vm) ? -1 : 0;
  }
  qn_value row = row_inside(r, *list, i);
  if (value_is(row, TAG_UNSET)) return 0;
  qn_value made = value_is_error(row) ? row : put_item(r, *list, row, item);
  if (value_is_error(made)) return error_pending(vm) ? -1 : 0;
  value_release(vm, *list);
  *list = made;
  return 1;
}

/* ---- buffers ------------------------------------------------------------------------------------------------------------------------- */

qn_value grown_buffers(struct recording *r, uint32_t number, int64_t n) {
  qn_vm *vm = r->vm;
  const grown_items *g = grown_of(r, number);
  qn_list *out = list_new(vm, g->n);
  if (!out) return value_error();
  qn_value v = value_obj(TAG_LIST, out);
  for (uint32_t k = 0; k < g->n; k++) {
    graph_type t = g->types[k];
    memmove(t.shape + 1, t.shape, t.rank * sizeof *t.shape);
    t.shape[0] = n;
    t.rank++;
    t.weak = false;
    uint32_t zeros = graph_full(r->g, &t, 0, rec_site(r));
    qn_value made = zeros ? rec_value_of(r, zeros) : value_error();
    if (value_is_error(made)) return value_fail(vm, v);
    out->items[k] = made;
  }
  return v;
}

static qn_value row_leaf(void *ctx, qn_value v) {
  row_walk *w = ctx;
  if (!value_is(v, TAG_UNSET)) return value_retain(v);
  qn_vm *vm = w->r->vm;
  const graph_type *t = &w->of->types[w->next];
  qn_value row = op_index_row(vm, value_list(w->parts)->items[w->next++], w->row);
  if (value_is_error(row) || !t->weak) return row;
  qn_value number = rec_host_number(vm, row, (qn_dtype)t->dtype);
  value_release(vm, row);
  return number;
}

bool grown_list(struct recording *r, uint32_t number, int64_t n, qn_value parts, qn_value *list) {
  row_walk w = {.r = r, .of = grown_of(r, number), .parts = parts};
  bool ok = true;
  uint32_t before = r->g->n;
  r->held++; /* no limit ends the recording before all rows are there */
  for (; w.row < n && ok; w.row++) {
    w.next = 0;
    qn_value item = tree_rebuild(r->vm, w.of->shape, row_leaf, &w);
    ok = !value_is_error(item) && list_push(r->vm, value_list(*list), item);
  }
  r->held--;
  r->row_nodes += r->g->n - before;
  return ok;
}

/* An item's shape as stacked lists have it. */
static qn_value stacked_leaf(void *ctx, qn_value v) {
  row_walk *w = ctx;
  if (!value_is(v, TAG_UNSET)) return value_retain(v);
  const graph_type *t = &w->of->types[w->next++];
  return t->weak ? (qn_value){.head = TAG_SIGNAL, .u.i = t->dtype} : v;
}

/* Do these items look like those in the buffers? Then their leaves are put into `leaves`, one item behind the other. */
static bool items_alike(struct recording *r, grown_items *g, const qn_list *l, qn_value *leaves) {
  item_walk w = {.r = r, .of = g};
  for (uint32_t i = 0; i < l->len; i++) {
    uint32_t n = 0;
    if (!same_shape(&w, g->shape, l->items[i], leaves + (size_t)i * g->n, &n)) return false;
  }
  return true;
}

/* The leaves of a list's items, in *bytes bytes of mem_alloc. NULL, with or without an error raised: they do not look like those in the
 * buffers. */
static qn_value *leaves_of(struct recording *r, grown_items *g, qn_value list, size_t *bytes) {
  const qn_list *l = value_list(list);
  *bytes = ((size_t)l->len * g->n + 1) * sizeof(qn_value);
  qn_value *leaves = mem_alloc(r->vm, *bytes);
  if (!leaves || items_alike(r, g, l, leaves)) return leaves;
  mem_free(r->vm, leaves, *bytes);
  return NULL;
}

bool grown_fits(struct recording *r, uint32_t number, qn_value list) {
  size_t bytes;
  qn_value *leaves = leaves_of(r, grown_of(r, number), list, &bytes);
  if (leaves) mem_free(r->vm, leaves, bytes);
  return leaves != NULL;
}

/* Buffer k (unset: there is none) behind the leaves with this number of n items in front of it. */
static qn_value with_front(qn_vm *vm, const grown_items *g, uint32_t k, qn_value part, const qn_value *leaves,
                           uint32_t n) {
  qn_value *in = mem_alloc(vm, n * sizeof *in), both[2] = {value_error(), part};
  if (!in) return value_error();
  bool same = true; /* as those of repeat((x,), n) */
  for (uint32_t i = 0; i < n; i++) {
    in[i] = leaves[(size_t)i * g->n + k];
    same &= in[i].head == in[0].head && in[i].u.i == in[0].u.i;
  }
  both[0] = op_stack(vm, in, same ? 1 : (int)n, 0, (qn_dtype)g->types[k].dtype);
  if (same && n > 1 && !value_is_error(both[0])) {
    int64_t shape[ARRAY_MAX_RANK] = {n};
    memcpy(shape + 1, g->types[k].shape, g->types[k].rank * sizeof *shape);
    qn_value wide = op_broadcast(vm, both[0], g->types[k].rank + 1, shape);
    value_release(vm, both[0]);
    both[0] = wide;
  }
  mem_free(vm, in, n * sizeof *in);
  if (value_is_error(both[0]) || value_is(part, TAG_UNSET)) return both[0];
  qn_value made = op_concat(vm, both, 2, 0);
  value_release(vm, both[0]);
  return made;
}

qn_value grown_stacked(struct recording *r, uint32_t number, qn_value parts, qn_value list) {
  qn_vm *vm = r->vm;
  const qn_list *l = value_list(list);
  row_walk w = {.r = r, .of = grown_of(r, number)};
  size_t bytes;
  qn_value *leaves = leaves_of(r, grown_of(r, number), list, &bytes);
  qn_list *all = leaves ? list_new(vm, w.of->n) : NULL;
  bool ok = all != NULL;
  for (uint32_t k = 0; k < w.of->n && ok; k++) {
    qn_value part = value_list(parts)->items[k];
    part = l->len ? with_front(vm, w.of, k, part, leaves, l->len) : value_retain(part);
    ok = !value_is_error(part);
    if (ok) all->items[k] = part;
  }
  if (leaves) mem_free(vm, leaves, bytes);
  qn_value whole = all ? value_obj(TAG_LIST, all) : value_error();
  if (!ok) return value_fail(vm, whole);
  return rec_stacked(vm, tree_rebuild(vm, w.of->shape, stacked_leaf, &w), whole);
}

/* ---- counted lists, made and behind their loops ---------------------------------------------------------------------------------------- */

/* A leaf of a stacked list's shape, whose type is noted, as grown_items.shape has it. */
static qn_value note_part(void *ctx, qn_value v) {
  row_walk *w = ctx;
  bool number = value_is(v, TAG_SIGNAL);
  if (!number && !value_is(v, TAG_UNSET)) return value_retain(v);
  grown_items *g = grown_of(w->r, w->number);
  uint32_t node = rec_node(w->r, value_list(w->parts)->items[w->next++]);
  if (!node || !mem_grow(w->r->vm, (void **)&g->types, &g->cap, g->n + (size_t)1, sizeof *g->types))
    return value_error();
  graph_type t = w->r->g->nodes[node].type;
  memmove(t.shape, t.shape + 1, --t.rank * sizeof *t.shape);
  t.weak = number;
  rec_pin_type(w->r, &t);
  if (!type_is_fixed(&t)) return value_error();
  g->types[g->n++] = t;
  g->data = true;
  return value_unset();
}

static bool begin_rows(struct recording *r, uint32_t number, qn_value list) {
  grown_items *g = grown_of(r, number);
  row_walk w = {.r = r, .number = number, .parts = value_list(list)->items[STACKED_PARTS]};
  g->n = 0;
  g->shape = tree_rebuild(r->vm, value_list(list)->items[STACKED_SHAPE], note_part, &w);
  g->known = !value_is_error(g->shape);
  if (!g->known) g->shape = value_unset();
  return g->known;
}

bool counted_begin(struct recording *r, uint32_t number, qn_value list) {
  const qn_list *l = value_list(list);
  item_walk w = {.r = r, .of = grown_of(r, number)};
  if (value_is_stacked(list)) return is_rows(list) && begin_rows(r, number, list);
  return !l->len || (note_item(&w, l->items[0]) && grown_fits(r, number, list));
}

int64_t counted_bytes(const struct recording *r, uint32_t number) {
  const grown_items *g = grown_of(r, number);
  int64_t bytes = 0;
  for (uint32_t k = 0; k < g->n; k++) {
    int64_t size = dtype_size((qn_dtype)g->types[k].dtype);
    for (int i = 0; i < g->types[k].rank; i++) size *= g->types[k].shape[i];
    bytes += size;
  }
  return bytes;
}

bool counted_may(struct recording *r) { return !rec_base(r)->lanes && way_may_exit(r) && !rec_derivatives(r); }

int64_t counted_room(const struct recording *r, uint32_t number) {
  const int64_t bytes = counted_bytes(r, number) + 1, few = ((int64_t)COUNTED_KB << 10) / bytes,
                many = ((int64_t)COUNTED_SMALL << 10) / bytes;
  const int64_t a = few < COUNTED_ROWS ? few : COUNTED_ROWS, b = many < COUNTED_MOST ? many : COUNTED_MOST;
  return a > b ? a : b;
}

int64_t counted_room_most(const struct recording *r, uint32_t number, bool early) {
  const int64_t bytes = (int64_t)(early ? COUNTED_EARLY : COUNTED_MB) << 20,
                most = bytes / (counted_bytes(r, number) + 1);
  return most > COUNTED_FEW_ROWS ? most : COUNTED_FEW_ROWS;
}

/* The counted list of the items of a stacked one, with room for n, some of them more. */
static qn_value counted_of_rows(struct recording *r, uint32_t number, qn_value list, int64_t n, int mark) {
  qn_vm *vm = r->vm;
  const qn_list *own = value_list(value_list(list)->items[STACKED_PARTS]);
  int64_t sizes[ARRAY_MAX_RANK];
  rec_sizes(vm, stacked_lead(list), sizes);
  qn_value count = rec_stacked_length(vm, list),
           bufs = value_is_error(count) ? count : grown_buffers(r, number, dim_make(&r->g->dims, DIM_SUB, n, sizes[0]));
  const bool front = mark & COUNTED_FRONT;
  qn_list *parts = value_is_error(bufs) ? NULL : list_new(vm, own->len + (size_t)1 + front);
  bool ok = parts != NULL;
  for (uint32_t k = 0; k < own->len && ok; k++) {
    qn_value in[2] = {own->items[k], value_list(bufs)->items[k]}, part = op_concat(vm, in, 2, 0);
    ok = !value_is_error(part);
    if (ok) parts->items[k] = part;
  }
  if (!value_is_error(bufs)) value_release(vm, bufs);
  if (!ok) return parts ? value_fail(vm, value_obj(TAG_LIST, parts)) : value_error();
  if (mark & COUNTED_FRONT) parts->items[own->len] = value_int(0);
  return counted_with(vm, value_retain(value_list(list)->items[STACKED_SHAPE]), parts, count, mark);
}

qn_value counted_new(struct recording *r, uint32_t number, qn_value list, int64_t n, bool inside) {
  qn_vm *vm = r->vm;
  grown_items *g = grown_of(r, number);
  const int mark = STACKED_COUNTED | (inside ? COUNTED_INSIDE : 0) | (g->fronts ? COUNTED_FRONT : 0) |
                   (int)(number << COUNTED_NUMBER);
  const qn_list *l = value_list(list);
  g->looks = false;
  if (value_is_stacked(list)) return counted_of_rows(r, number, list, n, mark);
  row_walk w = {.r = r, .of = g};
  int64_t room = l->len ? dim_make(&r->g->dims, DIM_SUB, n, dim_const(&r->g->dims, l->len)) : n;
  qn_value bufs = room ? grown_buffers(r, number, room) : value_nil(); /* 0: the items are all that it will have */
  size_t bytes = 0;
  qn_value *leaves = value_is_error(bufs) ? NULL : leaves_of(r, g, list, &bytes);
  qn_list *parts = leaves ? list_new(vm, g->n + (size_t)1 + g->fronts) : NULL;
  bool ok = parts != NULL;
  if (ok && g->fronts) parts->items[g->n] = value_int(0);
  for (uint32_t k = 0; k < g->n && ok; k++) {
    qn_value part = room ? value_list(bufs)->items[k] : value_unset();
    part = l->len ? with_front(vm, g, k, part, leaves, l->len) : value_retain(part);
    ok = !value_is_error(part);
    if (ok) parts->items[k] = part;
  }
  if (leaves) mem_free(vm, leaves, bytes);
  value_release(vm, bufs);
  if (!ok) return parts ? value_fail(vm, value_obj(TAG_LIST, parts)) : value_error();
  return counted_with(vm, tree_rebuild(vm, g->shape, stacked_leaf, &w), parts, value_int(l->len), mark);
}

qn_value counted_end(struct recording *r, qn_value v, int64_t n) {
  qn_vm *vm = r->vm;
  const qn_list *parts = counted_parts(v);
  qn_value shape = value_retain(value_list(v)->items[STACKED_SHAPE]);
  if (!n)
    return counted_with(vm, shape, list_from(vm, parts->items, parts->len), counted_count(v),
                        STACKED_COUNTED | (stacked_mark(v) & COUNTED_FRONT));
  qn_list *bufs = list_from(vm, parts->items, counted_buffers(v)); /* (the first item is in row 0) */
  qn_value all = bufs ? value_obj(TAG_LIST, bufs) : value_error();
  if (n < 0) return rec_stacked(vm, shape, all);
  value_release(vm, shape);
  qn_value list = value_is_error(all) ? all : value_new(TAG_LIST, list_new(vm, 0));
  if (!value_is_error(list) && !grown_list(r, counted_number(v), n, all, &list)) list = value_fail(vm, list);
  value_release(vm, all);
  return list;
}

/* ---- rows ---------------------------------------------------------------------------------------------------------------------------- */

/* Is it row *at of array *of, along its first axis? As op_index_row records one. */
static bool is_row(const graph *g, uint32_t node, uint32_t *of, int64_t *at) {
  const graph_node *n = &g->nodes[node];
  if (n->type.weak && n->kind == NODE_OP && n->op == OP_cast) n = &g->nodes[n->in[0]];
  if (n->kind != NODE_OP || n->op != OP_reshape || g->nodes[n->in[0]].kind != NODE_OP) return false;
  const graph_type row = n->type;
  n = &g->nodes[n->in[0]];
  if (n->op != OP_slice || n->type.rank != row.rank + 1) return false;
  const graph_type *whole = &g->nodes[n->in[0]].type;
  const op_attr attr = graph_attr(n);
  if (attr.d[1] != 1 || attr.d[0] < 0) return false;
  for (int k = 1; k < whole->rank; k++)
    if (attr.d[3 * k] != 0 || attr.d[3 * k + 1] != whole->shape[k] || attr.d[3 * k + 2] != 1 ||
        row.shape[k - 1] != whole->shape[k])
      return false;
  *of = n->in[0];
  *at = attr.d[0];
  return true;
}

qn_value rec_rows(qn_vm *vm, const qn_value *in, int n, int least, int *rows) {
  const struct recording *r = vm->rec;
  uint32_t whole = 0;
  int64_t first = 0;
  int i = 0;
  for (; i < n; i++) {
    if (value_tag_of(in[i]) != value_tag_of(in[0])) break; /* an array, and a number that is cast from a row */
    uint32_t node = value_is_operand(in[i]) ? rec_traced(r, in[i]) : 0, of;
    int64_t at;
    if (!node || !is_row(r->g, node, &of, &at)) break;
    if (i == 0) whole = of, first = at;
    if (of != whole || at != first + i) break;
  }
  if (i < least) return value_unset();
  *rows = i;
  qn_value v = rec_value_of(vm->rec, whole);
  if (value_is_error(v)) return v;
  int64_t sizes[ARRAY_MAX_RANK];
  rec_sizes(vm, v, sizes);
  if (first == 0 && sizes[0] == i) return v;
  qn_value part = op_slice(vm, v, 0, first, i, 1);
  value_release(vm, v);
  return part;
}

bool rec_list_as_array(qn_vm *vm, qn_value *v) {
  enum { MANY = 4 };
  const qn_list *l = value_list(*v);
  if (l->len < MANY || l->len > INT32_MAX || l->head.aux == OBJ_PROGRESS || !value_is(l->items[0], TAG_ARRAY))
    return true;
  int rows = 0;
  qn_value whole = rec_rows(vm, l->items, (int)l->len, (int)l->len, &rows);
  if (value_is_error(whole)) return false;
  if (!value_is(whole, TAG_ARRAY)) return true;
  value_release(vm, *v);
  *v = whole;
  return true;
}
