/* vmap: a function called once for all lanes.
 *
 * The inner function runs while a recording is on (one is begun if there is none), with every mapped array replaced by a tracer that has
 * the shape of one lane. Whatever depends on a tracer is a value of a single lane, and only carries a type. graph_batch (batch.h) appends
 * the counterpart that holds all lanes, right after each op: so it is always known which values differ between lanes, and what cannot be
 * done in all lanes at once is refused at its line. Levels of vmap nest, and gradients and vmap nest in each other.
 *
 * Nodes of single lanes are never executed. When pending work runs (rec_run_pending), counterparts are executed: those of arrays that the
 * program still holds, and all that can fail. Reading the data of a single lane is an error; branches are handled by selecting
 * (vmap_control.c).
 *
 * If a counterpart fails, the op is repeated lane by lane on its operands (vmap_blame). This finds the first lane that fails, and gives the
 * message that this lane alone would have got.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "jit/run/eager.h"
#include "jit/graph/batch.h"
#include "jit/trace/anchors.h"
#include "jit/trace/body.h"
#include "jit/trace/gradients.h"
#include "jit/trace/pattern.h"
#include "jit/trace/products.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/vmap.h"
#include "jit/trace/ways.h"

/* ---- what differs from lane to lane -------------------------------------------------------------------------------------- */

uint32_t vmap_whole(const struct recording *r, uint32_t node) {
  for (const struct vmap_level *l = r->lanes; l; l = l->outer) {
    uint32_t w = batch_whole(&l->batch, node);
    if (w) return w;
  }
  return 0;
}

/* The counterpart of a node that holds the lanes of the levels inside of `level` (NULL: of all levels); the node itself if it has none. */
static uint32_t lifted(const struct recording *r, uint32_t node, const struct vmap_level *level) {
  for (const struct vmap_level *l = r->lanes; l != level; l = l->outer) {
    uint32_t w = batch_whole(&l->batch, node);
    if (w) node = w;
  }
  return node;
}

uint32_t vmap_shared(const struct recording *r, uint32_t node) {
  for (const struct vmap_level *l = r->lanes; l; l = l->outer) node = batch_shared_node(&l->batch, node);
  return node;
}

uint32_t vmap_outermost(const struct recording *r, uint32_t node) { return lifted(r, node, NULL); }

/* As vmap_outermost. *bits says for which levels it has an axis (bit 0: the innermost). */
static uint32_t lifted_by(const struct recording *r, uint32_t node, uint32_t *bits) {
  uint32_t bit = 1;
  *bits = 0;
  for (const struct vmap_level *l = r->lanes; l; l = l->outer, bit <<= 1) {
    uint32_t w = batch_whole(&l->batch, node);
    if (!w) continue;
    node = w;
    *bits |= bit;
  }
  return node;
}

bool rec_has_lanes(const qn_vm *vm) { return vm->rec->lanes != NULL; }

bool rec_is_lane(const qn_vm *vm, qn_value v) {
  const struct recording *r = vm->rec;
  if (!r || !r->lanes || !value_is_operand(v)) return false;
  uint32_t node = rec_traced(r, v);
  return node && vmap_whole(r, node);
}

qn_value vmap_raise_read(struct recording *r, qn_value v) {
  bool array = value_is(v, TAG_ARRAY);
  return raise_error(r->vm, E_not_batched, SPAN_NONE,
                     "vmap computes all lanes at once, and this needs the number of one lane: %s%s differs from lane "
                     "to lane",
                     array ? "" : "a host ", array ? kind_said(v).text : value_kind_name(v));
}

/* ---- counterparts ---------------------------------------------------------------------------------------------------------- */

/* An op of single lanes that can fail, and what the message of its error is made from. */
struct lane_check {
  uint32_t first, last; /* the nodes of its counterpart are among these */
  uint32_t node;        /* the node of the op itself */
  uint8_t nlevels;
  /* for each operand: its outermost counterpart, or itself; then for which levels that has an axis (bits, the innermost first). In the
   * arena of the graph */
  uint32_t *wholes;
  int64_t sizes[ARRAY_MAX_RANK]; /* how many lanes each level has, the innermost first */
};

void vmap_free(struct recording *r) {
  mem_free(r->vm, r->checks, r->checks_cap * sizeof *r->checks);
  mem_free(r->vm, r->vmap_kept, r->vmap_kept_cap * sizeof *r->vmap_kept);
  value_release(r->vm, r->active);
}

/* Adds checks for the nodes from..end that can fail and differ between lanes. They have just got their counterparts. False with an error
 * raised. */
static bool note_checks(struct recording *r, const uint8_t *fallible, uint32_t from, uint32_t end) {
  const graph *g = r->g;
  for (uint32_t i = from; i < end; i++) {
    if (!fallible[i - from] || !vmap_whole(r, i)) continue;
    const graph_node *n = &g->nodes[i];
    if (n->kind != NODE_OP) continue; /* errors in a branch or loop name no lane */
    if (!mem_grow(r->vm, (void **)&r->checks, &r->checks_cap, r->nchecks + 1, sizeof *r->checks)) return false;
    struct lane_check *c = &r->checks[r->nchecks];
    *c = (struct lane_check){.first = end, .last = vmap_outermost(r, i), .node = i};
    if (!(c->wholes = arena_alloc(&r->g->arena, 2 * n->nin * sizeof *c->wholes + 1))) {
      r->g->failed = true;
      return false;
    }
    for (const struct vmap_level *l = r->lanes; l && c->nlevels < ARRAY_MAX_RANK; l = l->outer)
      c->sizes[c->nlevels++] = dim_hint(&r->g->dims, l->batch.lanes);
    for (int k = 0; k < n->nin; k++) c->wholes[2 * k] = lifted_by(r, n->in[k], &c->wholes[2 * k + 1]);
    r->nchecks++;
  }
  return true;
}

/* The innermost level that vmap_hold has stopped; NULL if there is none. */
static struct vmap_level *held_level(const struct recording *r) { return r->vmap_held.on ? r->vmap_held.at : NULL; }

bool vmap_advance(struct recording *r) {
  uint32_t from = r->vmap_seen, n = r->g->n;
  if (!r->lanes || r->lanes == held_level(r) || from >= n) return true;
  qn_vm *vm = r->vm;
  struct vmap_level *outermost = r->lanes;
  while (outermost->outer != held_level(r)) outermost = outermost->outer;
  uint8_t few[64], *fallible = few;
  bool any = false, ok = true;
  if (n - from > sizeof few && !(fallible = mem_alloc(vm, n - from))) return false;
  for (uint32_t i = from; i < n; i++) any |= fallible[i - from] = graph_fallible(r->g, i);
  r->unsure |= any;
  uint32_t culprit = 0;
  op_refusal why = {0};
  if (!batch_advance(&outermost->batch, &culprit, &why)) {
    if (r->g->arena.failed || why.id == E_not_batched || !turns_end(r)) {
      if (r->g->failed)
        raise_memory(vm);
      else
        rec_raise_refusal(r, culprit, &why);
    }
    /* If the refusal turns out not to count, because no lane was there, the program goes on without what was refused. */
    if (!batch_skip(&outermost->batch, from)) r->g->failed = true;
    ok = false;
  }
  r->vmap_seen = r->g->n;
  ok = ok && (!any || note_checks(r, fallible, from, n)) && rec_room(r);
  if (fallible != few) mem_free(vm, fallible, n - from);
  return ok || fail_memory(vm);
}

bool vmap_hold(struct recording *r, vmap_pause *before) {
  if (!vmap_advance(r)) return false;
  *before = r->vmap_held;
  r->vmap_held = (vmap_pause){true, r->lanes, r->vmap_seen};
  return true;
}

void vmap_go_on(struct recording *r, const vmap_pause *before) {
  r->vmap_seen = r->vmap_held.seen; /* for the levels that were held; those inside of them have ended */
  r->vmap_held = *before;
}

bool vmap_know(const struct recording *r, uint32_t from) {
  for (const struct vmap_level *l = r->lanes; l; l = l->outer)
    for (uint32_t i = from; i < r->g->n && i < l->batch.cap; i++)
      if (l->batch.whole[i]) return true;
  return r->nchecks && r->checks[r->nchecks - 1].last >= from;
}

/* ---- the first lane that fails -------------------------------------------------------------------------------------------------- */

/* One lane of an operand, on the CPU. `at`: the number of the lane for each level, the innermost first. Owned, or the error value. */
static qn_value lane_of(qn_vm *vm, qn_value v, uint32_t bits, int nlevels, const int64_t *at) {
  if (!value_is(v, TAG_ARRAY) || !bits) return value_retain(v);
  const qn_array *a = value_array(v);
  int64_t offset = a->offset;
  int axis = 0;
  for (int level = nlevels - 1; level >= 0; level--)
    if (bits >> level & 1) offset += at[level] * a->strides[axis++];
  qn_array *part = array_view(vm, a, (qn_dtype)a->dtype, a->rank - axis, a->shape + axis, a->strides + axis, offset);
  return part ? value_obj(TAG_ARRAY, part) : value_error();
}

/* Adds ", in lane 3" to the pending error, whose message becomes `message` (borrowed; NULL: stays as it is). An error that the program
 * raised itself keeps its text and gets a note. */
static void name_lane(qn_vm *vm, const qn_str *message, int nlevels, const int64_t *at) {
  qn_error_object *e = vm->error;
  if (!e || e->refs > 1 || !error_catchable(vm)) return;
  text_buf t = {.vm = vm};
  for (int i = nlevels - 1; i >= 0; i--) text_addf(&t, "%s%lld", i == nlevels - 1 ? "" : ", ", (long long)at[i]);
  text_add(&t, "", 1);
  if (!t.failed && (e->id == E_user || e->id == E_assertion)) {
    raise_note(vm, SPAN_NONE, nlevels == 1 ? "in lane %s" : "in lane (%s)", t.text);
  } else if (!t.failed) {
    if (!message) message = e->message;
    text_buf whole = {.vm = vm};
    text_add(&whole, message->text, message->len);
    text_addf(&whole, nlevels == 1 ? ", in lane %s" : ", in lane (%s)", t.text);
    if (!whole.failed) raise_retell(vm, whole.text);
    text_free(&whole);
  }
  text_free(&t);
}

/* Moves `at` to the next lane, as nested loops would. False after the last one. */
static bool next_lane(int nlevels, const int64_t *sizes, int64_t *at) {
  for (int i = 0; i < nlevels; i++) {
    if (++at[i] < sizes[i]) return true;
    at[i] = 0;
  }
  return false;
}

void vmap_blame(struct recording *r, uint32_t node) {
  qn_vm *vm = r->vm;
  const struct lane_check *c = NULL;
  for (uint32_t i = 0; i < r->nchecks; i++)
    if (node >= r->checks[i].first && node <= r->checks[i].last && (!c || r->checks[i].last < c->last))
      c = &r->checks[i];
  if (!error_catchable(vm)) return;
  /* Of work that came before the arm, so it counts whether or not a lane takes the arm. (What lanes share is guarded as well: vmap_guard.) */
  if (r->lanes && node < r->arm_from) r->vmap_failed = true;
  if (!c) return;
  r->vmap_failed = true;
  qn_error_object *e = error_take(vm);
  const graph_node *n = &r->g->nodes[c->node];
  qn_value in[ARRAY_MAX_RANK + 3], one[ARRAY_MAX_RANK + 3];
  int made = 0;
  uint32_t levels = 0;
  for (; made < n->nin && made < (int)(sizeof in / sizeof *in); made++) {
    qn_value v = rec_computed(r, c->wholes[2 * made]);
    if (value_is_error(v)) break;
    if (value_is(v, TAG_ARRAY)) {
      qn_array *there = array_to_cpu(vm, value_array(v));
      value_release(vm, v);
      if (!there) break;
      v = value_obj(TAG_ARRAY, there);
    }
    in[made] = v;
    levels |= c->wholes[2 * made + 1];
  }
  /* Levels for which no operand has an axis are left out. */
  int64_t at[ARRAY_MAX_RANK] = {0}, sizes[ARRAY_MAX_RANK];
  for (int i = 0; i < c->nlevels; i++) sizes[i] = levels >> i & 1 ? c->sizes[i] : 1;
  op_attr attr = graph_attr(n);
  attr.flags &= (uint8_t)~ATTR_PROVEN;
  qn_str *found = NULL;
  bool go_on = made == n->nin;
  while (go_on && !found) {
    int k = 0;
    for (; k < made; k++)
      if (value_is_error(one[k] = lane_of(vm, in[k], c->wholes[2 * k + 1], c->nlevels, at))) break;
    qn_value out = k == made ? eager_apply(vm, (op_id)n->op, one, made, &attr) : value_error();
    go_on = k == made && !vm_poll(vm);
    while (k > 0) value_release(vm, one[--k]);
    if (!value_is_error(out))
      value_release(vm, out);
    else if (go_on && error_catchable(vm))
      found = (qn_str *)value_retain(value_obj(TAG_STR, vm->error->message)).u.p;
    else
      go_on = false;
    error_clear(vm);
    if (!found) go_on = go_on && next_lane(c->nlevels, sizes, at);
  }
  while (made > 0) value_release(vm, in[--made]);
  error_clear(vm);
  error_put_back(vm, e);
  if (!found) return;
  name_lane(vm, found, c->nlevels, at);
  value_release(vm, value_obj(TAG_STR, found));
}

int vmap_name_first(struct recording *r, qn_value mask) {
  qn_vm *vm = r->vm;
  if (!value_is(mask, TAG_ARRAY)) return value_is(mask, TAG_NIL);
  uint32_t bits, node = lifted_by(r, rec_traced(r, mask), &bits);
  int64_t sizes[ARRAY_MAX_RANK], at[ARRAY_MAX_RANK] = {0};
  int nlevels = 0;
  for (const struct vmap_level *l = r->lanes; l && nlevels < ARRAY_MAX_RANK; l = l->outer, nlevels++)
    sizes[nlevels] = bits >> nlevels & 1 ? dim_hint(&r->g->dims, l->batch.lanes) : 1;
  qn_error_object *e = error_take(vm);
  qn_value v = node ? rec_value_of(r, node) : value_error();
  bool ok = !value_is_error(v) && rec_run_pending(r);
  qn_array *a = ok ? array_to_cpu(vm, value_array(v)) : NULL;
  value_release(vm, v);
  if (!a) { /* work that came before has failed, whose error is the first one */
    if (error_pending(vm))
      error_free(vm, e);
    else
      error_put_back(vm, e);
    return -1;
  }
  bool found = false;
  for (bool more = a->size > 0; more && !found; more = !found && next_lane(nlevels, sizes, at)) {
    qn_value one = lane_of(vm, value_obj(TAG_ARRAY, a), bits, nlevels, at);
    if (value_is_error(one)) break;
    found = array_get_flat(value_array(one), 0).u.i != 0;
    value_release(vm, one);
    if (found) break;
  }
  value_release(vm, value_obj(TAG_ARRAY, a));
  if (!found) {
    error_free(vm, e);
    return error_pending(vm) ? -1 : 0;
  }
  error_put_back(vm, e);
  name_lane(vm, NULL, nlevels, at);
  return 1;
}

/* ---- trees of lanes --------------------------------------------------------------------------------------------------------------- */

/* A walk over an argument or result, along with the axes that in_axes or out_axes give for its parts. */
typedef struct lane_walk {
  struct recording *r;
  struct vmap_level *level; /* NULL while the lanes are only counted */
  bool counted;             /* a mapped array was found */
  qn_dim lanes;             /* how many lanes there are then */
  qn_value whole;           /* the whole value that is walked; `seen`: how many of its places were walked */
  uint64_t seen;
  char path[128]; /* the place of the present part, for messages: "argument p.w" */
  size_t len;
  char first[256];        /* the place and shape of the first mapped array, for messages */
  qn_dtype floats;        /* the dtype of arrays that host floats in the result become */
  shared_parts functions; /* functions in the result that were looked through */
} lane_walk;

static size_t path_push(lane_walk *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
static size_t path_push(lane_walk *m, const char *format, ...) {
  size_t before = m->len, room = sizeof m->path - m->len;
  va_list args;
  va_start(args, format);
  int n = vsnprintf(m->path + m->len, room, format, args);
  va_end(args);
  m->len += n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1;
  return before;
}

static void path_pop(lane_walk *m, size_t to) {
  m->len = to;
  m->path[to] = 0;
}

static qn_value raise_axes(lane_walk *m, const char *what, qn_value axes, qn_value v) {
  return raise_error(m->r->vm, E_argument, SPAN_NONE, "vmap: %s for %s is %s, which does not fit %s", what, m->path,
                     kind_said(axes).text, kind_said(v).text);
}

/* The axes of part i of a list or record v, whose axes `axes` has the same structure; `what` names them in messages. Borrowed from `axes`;
 * the error value if there are none. */
static qn_value part_axes(lane_walk *m, const char *what, qn_value axes, qn_value v, uint32_t i) {
  if (value_is(v, TAG_LIST)) return value_list(axes)->items[i];
  int at = record_find(value_record(axes), record_name(value_record(v), i));
  if (at >= 0) return value_record(axes)->items[at];
  return raise_error(m->r->vm, E_argument, SPAN_NONE, "vmap: %s has no field for %s", what, m->path);
}

/* A list or record like v, owned, of what `leaf` makes of its parts; nil if `build` is false, since `leaf` then only looks. `one`: `axes`
 * is for every part, else it must have the structure of v. */
static qn_value walk_parts(lane_walk *m, const char *what, qn_value v, qn_value axes, bool one, bool build,
                           qn_value (*leaf)(lane_walk *m, qn_value v, qn_value axes)) {
  qn_vm *vm = m->r->vm;
  uint32_t n, naxes = 0;
  const qn_value *from = value_parts(v.u.p, &n);
  if (!one && value_tag_of(axes) == value_tag_of(v)) (void)value_parts(axes.u.p, &naxes);
  if (!one && (value_tag_of(axes) != value_tag_of(v) || naxes != n)) return raise_axes(m, what, axes, v);
  qn_value out = build ? parts_like(vm, v) : value_nil();
  if (value_is_error(out)) return out;
  qn_value *to = build ? value_parts(out.u.p, &n) : NULL;
  for (uint32_t i = 0; i < n; i++) {
    size_t before =
        value_is(v, TAG_LIST) ? path_push(m, "[%u]", i) : path_push(m, ".%s", record_name(value_record(v), i)->text);
    qn_value made = one ? axes : part_axes(m, what, axes, v, i);
    if (!value_is_error(made)) made = leaf(m, from[i], made);
    path_pop(m, before);
    if (value_is_error(made)) return value_fail(vm, out);
    if (to) to[i] = made;
  }
  return out;
}

/* ---- what goes in --------------------------------------------------------------------------------------------------------------- */

/* The axis that an int, which may be negative, means for an array of this rank; -1 with an error raised. */
static int axis_in(lane_walk *m, const char *what, qn_value axes, qn_value v, int rank) {
  int64_t axis = axes.u.i < 0 ? axes.u.i + rank : axes.u.i;
  if (axis >= 0 && axis < rank) return (int)axis;
  raise_error(m->r->vm, E_axis, SPAN_NONE, "vmap: %s is %s and has no axis %lld for the lanes%s", m->path,
              kind_said(v).text, (long long)axes.u.i,
              what[0] == 'i' ? "; in_axes: nil passes it to every lane as it is" : "");
  return -1;
}

static bool same_lanes(lane_walk *m, qn_value v, int axis) {
  int64_t shape[ARRAY_MAX_RANK], n = value_array(v)->shape[axis];
  rec_sizes(m->r->vm, v, shape);
  if (m->counted && rec_sizes_equal(m->r->vm, m->lanes, shape[axis])) return true;
  char found[sizeof m->first];
  snprintf(found, sizeof found, "%s is %s with %lld lane%s along axis %d", m->path, kind_said(v).text, (long long)n,
           n == 1 ? "" : "s", axis);
  if (m->counted)
    return raise_false(m->r->vm, E_lanes, "vmap: %s, and %s; nil in in_axes passes an argument to every lane as it is",
                       m->first, found);
  memcpy(m->first, found, sizeof found);
  m->counted = true;
  m->lanes = shape[axis];
  return true;
}

/* An array (taken over) with axis `from` moved to the place `to`. Owned, or the error value. */
static qn_value move_axis(qn_vm *vm, qn_value v, int from, int to) {
  if (value_is_error(v) || from == to) return v;
  int order[ARRAY_MAX_RANK];
  for (int i = 0, k = 0; i < value_array(v)->rank; i++) {
    if (k == from) k++;
    order[i] = i == to ? from : k++;
  }
  qn_value out = op_permute(vm, v, order);
  value_release(vm, v);
  return out;
}

/* The tracer of one lane of an array whose lanes lie along `axis`. Owned, or the error value. */
static qn_value tracer(lane_walk *m, qn_value v, int axis) {
  struct recording *r = m->r;
  qn_vm *vm = r->vm;
  if (!rec_place(r, value_array(v)->device)) return op_raise_devices(vm, "vmap", r->device, value_array(v)->device);
  qn_value all = move_axis(vm, value_retain(v), axis, 0);
  if (value_is_error(all)) return all;
  uint32_t whole = rec_node(r, all);
  value_release(vm, all);
  uint32_t lane = whole ? batch_lane(&m->level->batch, whole, rec_site(r)) : 0;
  if (lane) return vmap_advance(r) ? rec_value_of(r, lane) : value_error();
  return error_pending(vm) ? value_error() : raise_memory(vm);
}

/* What stands for an argument in one lane (owned); while lanes are only counted, nil. */
static qn_value lane_in(lane_walk *m, qn_value v, qn_value axes) {
  qn_vm *vm = m->r->vm;
  if (!vm_enter(vm, 0) || !tree_place(vm, m->whole, &m->seen)) return value_error();
  if (value_is(axes, TAG_NIL)) return m->level ? value_retain(v) : value_nil();
  bool one = value_is(axes, TAG_INT), list = value_is(v, TAG_LIST), record = value_is(v, TAG_RECORD);
  if (one && value_is(v, TAG_ARRAY)) {
    int axis = axis_in(m, "in_axes", axes, v, value_array(v)->rank);
    if (axis < 0) return value_error();
    if (m->level) return tracer(m, v, axis);
    return same_lanes(m, v, axis) ? value_nil() : value_error();
  }
  if (one && !list && !record) return m->level ? value_retain(v) : value_nil();
  if (!list && !record) return raise_axes(m, "in_axes", axes, v);
  return walk_parts(m, "in_axes", v, axes, one, m->level != NULL, lane_in);
}

/* Walks all arguments of a call of `fn`: positional ones, then the keywords (a record or nil). If there is a level, mapped arrays are replaced by
 * tracers. False with an error raised. */
static bool vmap_in(lane_walk *m, qn_value fn, qn_value in_axes, qn_value *args, int nargs) {
  qn_vm *vm = m->r->vm;
  bool each = value_is(in_axes, TAG_LIST);
  if (each && value_list(in_axes)->len != (uint32_t)nargs)
    return raise_false(vm, E_argument, "vmap: in_axes has %u entr%s for %d positional argument%s",
                       value_list(in_axes)->len, value_list(in_axes)->len == 1 ? "y" : "ies", nargs,
                       nargs == 1 ? "" : "s");
  for (int i = 0; i <= nargs; i++) {
    if (i == nargs && !value_is(args[i], TAG_RECORD)) break;
    qn_value axes = !each ? in_axes : i < nargs ? value_list(in_axes)->items[i] : value_int(0);
    path_pop(m, 0);
    if (i < nargs)
      path_push(m, "%s", argument_said(vm, fn, i, 0).text);
    else
      path_push(m, "keywords");
    m->whole = args[i];
    m->seen = 0;
    qn_value v = lane_in(m, args[i], axes);
    if (value_is_error(v)) return false;
    if (!m->level) continue;
    value_release(vm, args[i]);
    args[i] = v;
  }
  if (!m->level && !m->counted)
    raise_error(vm, E_lanes, SPAN_NONE, "vmap: no argument is an array with lanes%s",
                value_is(in_axes, TAG_INT) ? "" : "; in_axes names no array");
  return m->level || m->counted;
}

/* ---- what comes out ----------------------------------------------------------------------------------------------------------------- */

/* The lanes of a host number as an array; floats get the dtype for results. Owned, or the error value. */
static qn_value stacked_number(lane_walk *m, qn_value v, uint32_t node) {
  struct recording *r = m->r;
  qn_vm *vm = r->vm;
  op_attr to = {.dtype = value_is(v, TAG_FLOAT) ? m->floats : value_operand_type(v).dtype};
  uint32_t whole = node ? batch_whole(&m->level->batch, node) : 0;
  qn_value x = whole ? rec_value_of(r, whole) : value_nil();
  if (value_is_error(x)) return x;
  if (whole) {
    if (value_array(x)->dtype == to.dtype) return x;
    qn_value out = op_apply(vm, OP_cast, &x, 1, &to);
    value_release(vm, x);
    return out;
  }
  return op_full(vm, v, (qn_dtype)to.dtype, 1, &m->level->batch.lanes);
}

static bool fn_has_lanes(lane_walk *m, qn_value fn) {
  qn_vm *vm = m->r->vm;
  bool before;
  if (!vm_enter(vm, 0) || !shared_made(vm, &m->functions, fn, &before)) return true;
  if (before) return false;
  const qn_fn *f = value_fn(fn);
  for (uint32_t i = 0; i < f->ncaptures; i++) {
    qn_value v = f->captures[i];
    uint32_t node = value_is_operand(v) ? rec_traced(m->r, v) : 0;
    if (node && batch_whole(&m->level->batch, node)) return true;
    if (value_is(v, TAG_FN) && v.u.p != fn.u.p && fn_has_lanes(m, v)) return true;
    if (value_is(v, TAG_LIST) || value_is(v, TAG_RECORD)) return true;
  }
  return false;
}

static qn_value raise_stack(lane_walk *m, qn_value v) {
  return raise_error(m->r->vm, E_type, SPAN_NONE,
                     "vmap: the results of the lanes are stacked, and %s is %s; return arrays, numbers, or lists and "
                     "records of these",
                     m->path, kind_said(v).text);
}

/* A result with all its lanes. Owned, or the error value. */
static qn_value lane_out(lane_walk *m, qn_value v, qn_value axes) {
  struct recording *r = m->r;
  qn_vm *vm = r->vm;
  if (!vm_enter(vm, 0) || !tree_place(vm, m->whole, &m->seen)) return value_error();
  bool list = value_is(v, TAG_LIST), record = value_is(v, TAG_RECORD), array = value_is(v, TAG_ARRAY);
  if (array || value_is_scalar(v)) {
    uint32_t node = array ? rec_node(r, v) : rec_traced(r, v);
    if (array && !node) return error_pending(vm) ? value_error() : raise_memory(vm);
    if (value_is(axes, TAG_NIL)) {
      if (!node || !batch_whole(&m->level->batch, node)) {
        uint32_t shared = node ? batch_shared_node(&m->level->batch, node) : 0;
        return !array || shared == node ? value_retain(v) : rec_value_of(r, shared);
      }
      return raise_error(vm, E_argument, SPAN_NONE, "vmap: out_axes is nil for %s, which differs from lane to lane",
                         m->path);
    }
    if (!value_is(axes, TAG_INT)) return raise_axes(m, "out_axes", axes, v);
    int rank = array ? value_array(v)->rank + 1 : 1, axis = axis_in(m, "out_axes", axes, v, rank);
    if (axis < 0) return value_error();
    if (!array) return stacked_number(m, v, node);
    if (rank > ARRAY_MAX_RANK)
      return raise_error(vm, E_rank, SPAN_NONE, "vmap: with its lanes %s would have more than %d axes", m->path,
                         ARRAY_MAX_RANK);
    uint32_t whole = batch_whole_always(&m->level->batch, node);
    if (!whole) return raise_memory(vm);
    return move_axis(vm, rec_value_of(r, whole), 0, axis);
  }
  if (!list && !record) {
    bool inside = value_is(m->whole, TAG_LIST) || value_is(m->whole, TAG_RECORD);
    if (value_is(v, TAG_NIL) || (inside && !(value_is(v, TAG_FN) && fn_has_lanes(m, v)))) return value_retain(v);
    return error_pending(vm) ? value_error() : raise_stack(m, v);
  }
  bool one = !value_is(axes, TAG_LIST) && !value_is(axes, TAG_RECORD);
  return walk_parts(m, "out_axes", v, axes, one, true, lane_out);
}

/* ---- the call ------------------------------------------------------------------------------------------------------------------------- */

static bool open_lanes(struct recording *r, struct vmap_level *l, qn_dim n) {
  if (!vmap_advance(r)) return false;
  l->outer = r->lanes;
  l->depth = l->outer ? l->outer->depth + 1 : 1;
  l->nregions = r->regions.n;
  batch_begin(&l->batch, r->g, l->outer ? &l->outer->batch : NULL, n, r->g->n);
  r->lanes = l;
  r->had_lanes = true;
  r->vmap_seen = r->g->n;
  return true;
}

typedef struct lane_search {
  const struct recording *r;
  const struct vmap_level *level;
} lane_search;

/* For tree_each: stops at the first value that differs between the lanes of the level. */
static bool not_of_lane(void *ctx, qn_value v) {
  const lane_search *s = ctx;
  uint32_t node = value_is_operand(v) ? rec_traced(s->r, v) : 0;
  return !node || !batch_whole(&s->level->batch, lifted(s->r, node, s->level));
}

bool vmap_spread(struct recording *r, const uint32_t *nodes, uint32_t n, qn_value args) {
  qn_vm *vm = r->vm;
  for (struct vmap_level *level = r->lanes; level != held_level(r); level = level->outer) {
    if (!vmap_advance(r)) return false;
    lane_search s = {r, level};
    if (tree_each_part(vm, args, not_of_lane, &s)) continue;
    if (error_pending(vm)) return false;
    for (uint32_t i = 0; i < n; i++) {
      uint32_t node = lifted(r, nodes[i], level);
      if (batch_whole(&level->batch, node) || r->g->nodes[node].type.weak) continue;
      uint32_t whole = batch_whole_always(&level->batch, node);
      /* what is appended here belongs to the levels around, not to this one */
      if (whole && !vmap_advance(r)) return false;
      if (whole && batch_bind(&level->batch, node, whole)) continue;
      if (r->g->failed || r->g->nodes[node].type.rank < ARRAY_MAX_RANK) {
        raise_memory(vm);
      } else {
        raise_error(vm, E_rank, SPAN_NONE,
                    "vmap: with its lanes an argument of custom_grad would have more than %d axes", ARRAY_MAX_RANK);
      }
      return false;
    }
  }
  return rec_room(r);
}

/* For tree_rebuild: in_axes for the arguments of a rule: 0 for those that have lanes, nil for the others. */
static qn_value keep_axes(void *ctx, qn_value v) {
  (void)ctx;
  return value_is(v, TAG_INT) && v.u.i == 0 ? v : value_nil();
}

static qn_value rule_axes(qn_vm *vm, const region_rule *rule, const struct vmap_level *l, const uint32_t *args,
                          uint32_t nargs) {
  qn_value *axes = mem_alloc(vm, (nargs + (size_t)1) * sizeof *axes), result = value_error();
  if (!axes) return result;
  for (uint32_t i = 0; i < nargs; i++) axes[i] = batch_whole(&l->batch, args[i]) ? value_int(0) : value_nil();
  qn_value tree = template_build(vm, &rule->args, axes, NULL);
  mem_free(vm, axes, (nargs + (size_t)1) * sizeof *axes);
  if (value_is_error(tree)) return tree;
  qn_value of_args = tree_rebuild_parts(vm, tree, keep_axes, NULL);
  value_release(vm, tree);
  if (value_is_error(of_args)) return of_args;
  qn_list *all = list_new(vm, value_list(of_args)->len + 1);
  if (all) {
    all->items[0] = value_int(0);
    for (uint32_t i = 0; i < value_list(of_args)->len; i++)
      all->items[i + 1] = value_retain(value_list(of_args)->items[i]);
    result = value_obj(TAG_LIST, all);
  }
  value_release(vm, of_args);
  return result;
}

/* When a level ends, a region becomes one of the counterparts of its nodes, since only these can be differentiated from outside; the rule
 * of a custom_grad is done in all lanes. If the rule's arguments have no lanes but its results do, that is not possible: the region then
 * has no arguments, so that differentiating by them is refused. False with an error raised. */
static bool lift_region(struct recording *r, const struct vmap_level *l, graph_region *x) {
  /* they lie in one block, which the recording owns */
  uint32_t *args = (uint32_t *)x->args, *outs = (uint32_t *)x->outs;
  bool any = false, lanes = false;
  for (uint32_t i = 0; i < x->nouts; i++) any |= outs[i] && batch_whole(&l->batch, outs[i]);
  for (uint32_t i = 0; i < x->nargs; i++) lanes |= batch_whole(&l->batch, args[i]) != 0;
  if (!any) return true;
  for (uint32_t i = 0; i < x->nouts; i++) {
    uint32_t whole = outs[i] ? batch_whole(&l->batch, outs[i]) : 0;
    if (whole) outs[i] = whole;
  }
  region_rule *rule = x->rule;
  qn_value captures[3] = {value_nil(), value_nil(), value_int(0)};
  bool anew = rule && lanes && rule->lanes != l->depth;
  if (anew && value_is_error(captures[1] = rule_axes(r->vm, rule, l, args, x->nargs))) return false;
  for (uint32_t i = 0; i < x->nargs; i++) {
    uint32_t whole = batch_whole(&l->batch, args[i]);
    if (whole || !lanes) args[i] = whole;
  }
  if (!anew) return true;
  if (!region_own_rule(r->vm, x)) {
    value_release(r->vm, captures[1]);
    return false;
  }
  rule = x->rule;
  captures[0] = rule->backward;
  qn_value all_lanes = transform_new(r->vm, TRANSFORM_VMAP, captures, 3);
  value_release(r->vm, captures[1]);
  if (value_is_error(all_lanes)) return false;
  value_release(r->vm, rule->backward);
  rule->backward = all_lanes;
  rule->number = ++jit_of(r->vm)->last_rule;
  rule->lanes = l->depth;
  rule->levels++;
  return true;
}

/* Ends a level: regions become those of the counterparts, and values of single lanes, which nobody can use any more, are freed. False with
 * an error raised. */
static bool close_lanes(struct recording *r, struct vmap_level *l) {
  bool ok = true;
  for (uint32_t i = l->nregions; i < r->regions.n && ok; i++) ok = lift_region(r, l, &r->regions.list[i]);
  for (uint32_t i = l->batch.from; i < r->g->n && i < r->vals_cap; i++) {
    if (!batch_whole(&l->batch, i)) continue;
    value_release(r->vm, r->vals[i]);
    r->vals[i] = value_unset();
  }
  r->lanes = l->outer;
  batch_end(&l->batch); /* the lanes around still have to see what the results have appended */
  if (!r->lanes) r->vmap_failed = false;
  return ok;
}

/* For vm_own, if an exception of a host passes. (The recording is dropped then, too.) */
static void level_drop(qn_vm *vm, void *level) {
  (void)vm;
  arena_free(&((struct vmap_level *)level)->batch.memory);
}

bool vmap_aside(const struct recording *r) {
  for (; r; r = r->arm ? r->outer : NULL)
    if (r->aside) return true;
  return false;
}

bool vmap_around(const struct recording *r) {
  for (; r; r = r->outer)
    if (r->lanes || r->aside) return true;
  return false;
}

/* May the value of a node differ between lanes whose function is recorded in an arm? Looks at *left nodes at most. */
static bool of_a_lane(const struct recording *r, uint32_t node, int *left) {
  const graph_node *n = &r->g->nodes[node];
  if (--*left < 0 || n->kind == NODE_PROJ || (r->aside && batch_whole(&r->aside->batch, node))) return true;
  if (n->kind == NODE_INPUT && r->arm) {
    uint32_t number = n->payload.input, outer = number < r->carries ? 0 : r->captures[number];
    return outer ? of_a_lane(r->outer, outer, left) : r->count != number + 1 || r->count_tested;
  }
  for (int k = 0; n->kind == NODE_OP && k < n->nin; k++)
    if (of_a_lane(r, n->in[k], left)) return true;
  return false;
}

enum { LOOKED_AT = 256, SHARED_MOST = 64 /* inputs that are looked at for floats which all lanes share */ };

bool vmap_reads(const struct recording *r, uint32_t node) {
  return vmap_aside(r) && !r->g->nodes[node].type.weak && of_a_lane(r, node, &(int){LOOKED_AT});
}

bool vmap_reads_value(const struct recording *r, qn_value v) {
  if (!vmap_aside(r)) return false;
  uint32_t node = 0;
  while (!(node = rec_traced(r, v)) && r->arm) r = r->outer;
  return node && of_a_lane(r, node, &(int){LOOKED_AT});
}

/* Does a graph, or a region in it, draw random numbers? Each lane has numbers of its own, which the graph of one lane cannot tell. */
static bool draws(const graph *g) {
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    if (n->kind == NODE_OP && op_rows[n->op].klass == CLASS_RANDOM) return true;
    for (int k = 0; k < 2 && graph_kind_has_regions(n->kind); k++)
      if (draws(n->payload.regions[k])) return true;
  }
  return false;
}

/* The one input of a graph that a node is made of, with constants at most beside it; -1: it is made of none, or of several. */
static int64_t input_behind(const graph *g, uint32_t node) {
  while (g->nodes[node].kind == NODE_OP) {
    const graph_node *n = &g->nodes[node];
    node = 0;
    for (int k = 0; k < n->nin; k++) {
      if (g->nodes[n->in[k]].kind == NODE_CONST) continue;
      if (node) return -1;
      node = n->in[k];
    }
    if (!node) return -1;
  }
  return g->nodes[node].kind == NODE_INPUT ? (int64_t)g->nodes[node].payload.input : -1;
}

/* Does a branch of the graph give, or a loop in it begin with, a float that is made of one that is the same for all lanes (`shared`, by input)?
 * The interpreter adds what lanes give to the cotangent of such a value where they have handed it on, a batch where they have got it: sums come in another order. */
static bool hands_on_shared(const graph *g, const bool *shared) {
  bool found = false;
  for (uint32_t i = 1; i < g->n && !found; i++) {
    const graph_node *n = &g->nodes[i];
    if (!graph_kind_has_regions(n->kind)) continue;
    const bool branch = n->kind == NODE_IF;
    bool inner[SHARED_MOST] = {false};
    found = n->nin > SHARED_MOST;
    for (int k = branch; k < n->nin && !found; k++) {
      int64_t input = input_behind(g, n->in[k]);
      inner[k - branch] = input >= 0 && shared[input];
      found = !branch && (uint32_t)k < graph_loop_carries(n) && inner[k];
    }
    for (int k = 0; k < 2 && !found; k++) {
      const graph *region = n->payload.regions[k];
      for (uint32_t o = 0; o < region->noutputs && !found; o++) {
        int64_t input = input_behind(region, region->outputs[o]);
        found = input >= 0 && inner[input];
      }
      found = found || hands_on_shared(region, inner);
    }
  }
  return found;
}

/* As hands_on_shared, of an arm in which the function of a vmap was recorded. */
static bool lanes_hand_on(const struct recording *arm, const graph_batch *batch) {
  bool shared[SHARED_MOST] = {false};
  if (arm->g->ninputs > SHARED_MOST) return true;
  for (uint32_t k = 0; k < arm->g->ninputs; k++)
    shared[k] =
        dtype_is_float((qn_dtype)arm->g->nodes[arm->g->inputs[k]].type.dtype) && !batch_whole(batch, arm->captures[k]);
  return hands_on_shared(arm->g, shared);
}

/* Inside a gradient, must a graph be called as eager lanes call it, whose nodes join those that the forward pass has made? (In an arm such as 1 - t * t
 * would be made anew, behind others, and the gradient would add up in another order. Regions have no other way.) */
static bool joins_forward(qn_value fn, const struct recording *arm) {
  if (value_fn(fn)->head.flags != FN_GRAPH || !rec_derivatives(arm)) return false;
  for (uint32_t i = 1; i < arm->g->n; i++)
    if (graph_kind_has_regions(arm->g->nodes[i].kind)) return false;
  return true;
}

/* The function of a vmap has been recorded in an arm: its value (taken over), and behind it the bools of recording.some, in a list. Owned, or the error
 * value. */
static qn_value with_some(struct recording *arm, qn_value value) {
  enum { SOME_MOST = 16 };
  qn_value all[1 + SOME_MOST] = {value}, list = value_error();
  const uint32_t n = arm->some.n;
  bool ok = n <= SOME_MOST;
  for (uint32_t k = 0; k < n && ok; k++) {
    all[1 + k] = rec_value_of(arm, arm->some.nodes[k]);
    ok = !value_is_error(all[1 + k]);
  }
  if (ok && !arm_values(arm, (rec_slots){NULL, 0}, all, 1 + (int)n, &list)) list = value_error();
  value_release(arm->vm, value);
  return list;
}

/* The arm's nodes have joined the recording, and all lanes of them: *value (owned), a list of with_some, becomes the first item, and each bool must be true
 * in some lane. False with an error raised. */
static bool expect_some(struct recording *r, const struct vmap_level *l, qn_value *value) {
  qn_vm *vm = r->vm;
  const qn_list *list = value_list(*value);
  bool ok = true;
  for (uint32_t k = 1; k < list->len && ok; k++) {
    const uint32_t node = rec_node(r, list->items[k]), whole = node ? batch_whole(&l->batch, node) : 0;
    qn_value any = whole ? rec_value_of(r, whole) : value_retain(list->items[k]);
    if (whole && !value_is_error(any)) {
      qn_value all = any;
      any = op_apply(vm, OP_any, &all, 1, &(op_attr){.axes = 1});
      value_release(vm, all);
    }
    ok = !value_is_error(any) && way_expect(r, any, true);
    if (!value_is_error(any)) value_release(vm, any);
  }
  qn_value first = value_retain(list->items[0]);
  value_release(vm, *value);
  *value = first;
  return ok;
}

/* Is a function the graph of a gradient, as those that jacobians call? Eager calls append all of its nodes before they are batched. */
static bool is_linear_map(qn_value fn) {
  return value_is(fn, TAG_FN) && value_fn(fn)->head.flags == FN_GRAPH && !body_of(fn)->call.regions.n;
}

static bool has_loops(const graph *g) {
  bool has = false;
  for (uint32_t i = 1; i < g->n && !has; i++) {
    const graph_node *n = &g->nodes[i];
    has = n->kind == NODE_LOOP ||
          (n->kind == NODE_IF && (has_loops(n->payload.regions[0]) || has_loops(n->payload.regions[1])));
  }
  return has;
}

/* In a call that is captured, the function is first recorded as it would be without vmap, in an arm whose inputs are tracers of the lane: there
 * loops and branches on data become regions. The nodes of the arm then join the recording, and batches of regions are regions. `l`: the level,
 * which is open. (Not where lanes hand on floats that they share, inside a gradient; nor where a device's library
 * computes products in regions: for some of the lanes it may give other bits than for all.) Owned; unset if the function cannot be captured so (then lanes are recorded as they are eagerly); or the error value. */
static qn_value lane_as_arm(struct recording *r, struct vmap_level *l, qn_value fn, qn_value *args, int nargs) {
  qn_vm *vm = r->vm;
  struct recording *base = rec_base(r);
  qn_value *mark = vm->sp, value = value_unset();
  const uint64_t draw = vm->draw;
  const uint32_t unlike = base->unlike;
  r->lanes = NULL;
  struct recording *arm = base->capturing && branches_possible(r) ? rec_arm_begin(r, NULL) : NULL;
  if (!arm) {
    r->lanes = l;
    return error_pending(vm) && arms_refused(r) == REC_FAILED ? value_error() : value_unset();
  }
  r->aside = l;
  vm_owned held;
  vm_own(vm, &held, rec_drop, arm);
  value = vm->hooks.call(vm, fn, args, nargs, args[nargs]);
  r->aside = NULL;
  bool ok = !value_is_error(value) && vm->rec == arm && !arm->regions.n && !arm->g->failed && !arm->g->dims.strict &&
            vm->draw == draw && !draws(arm->g) && !products_in_regions(arm->g, base->device) &&
            tree_each_part(vm, value, rec_no_text_waits, arm) && !joins_forward(fn, arm) &&
            !(rec_derivatives(r) && lanes_hand_on(arm, &l->batch));
  vm_pop_to(vm, mark);
  vm->draw = draw;
  const bool some = ok && arm->some.n;
  if (some) value = with_some(arm, value);
  ok = ok && !value_is_error(value);
  rec_arm_end(arm);
  r->lanes = l;
  base->unlike = unlike; /* (what does not agree is refused to all lanes) */
  bool failed = false;
  if (!ok) {
    value_release(vm, value);
    failed = arms_refused(r) == REC_FAILED;
  } else {
    const rec_marked before = rec_mark(r);
    l->batch.region = true;
    l->batch.together =
        rec_derivatives(r) > 0 || vmap_aside(r); /* (the vmap around has no rule for lanes that are gathered) */
    l->batch.bounds = rec_derivatives(r) > 1;
    l->batch.shared_first = rec_derivatives(r) > 0 && !vmap_aside(r) && is_linear_map(fn) && !has_loops(arm->g);
    if (!arm_splice(r, arm, &value)) {
      failed = true;
    } else if (!vmap_advance(r)) { /* it cannot be batched */
      value_release(vm, value);
      ok = false;
      failed = arms_refused(r) == REC_FAILED;
      rec_forget(r, before);
    } else if (some && !expect_some(r, l, &value)) {
      value_release(vm, value);
      failed = true;
    }
    l->batch.region = l->batch.together = l->batch.bounds = l->batch.shared_first = false;
  }
  vm_disown(vm, &held);
  rec_free(arm);
  if (!r->ended) vm->rec = r;
  return failed ? value_error() : ok ? value : value_unset();
}

qn_value vmap_call(struct recording *r, const rec_call_site *site) {
  qn_vm *vm = r->vm;
  const qn_fn *f = value_fn(site->fn);
  int nargs = site->nargs - 1;
  qn_value result = value_error(), *mark = vm->sp;
  qn_value active = value_retain(r->active), in_axes = rec_observe_tree(vm, f->captures[1]);
  qn_value out_axes = value_is_error(in_axes) ? in_axes : rec_observe_tree(vm, f->captures[2]);
  struct vmap_level l = {.outer = NULL};
  lane_walk m = {.r = r};
  bool open = false;
  if (value_is_error(out_axes) || !vm_enter(vm, (size_t)nargs + 1)) goto done;
  for (int i = 0; i <= nargs; i++) *vm->sp++ = value_retain(site->args[i]);
  if (!vmap_in(&m, f->captures[0], in_axes, mark, nargs)) goto done;
  if (!(open = open_lanes(r, &l, m.lanes))) goto done;
  m.level = &l;
  l.batch.linear = is_linear_map(f->captures[0]);
  if (!vmap_in(&m, f->captures[0], in_axes, mark, nargs)) goto done;
  vm_owned held[4];
  vm_own(vm, &held[0], level_drop, &l);
  vm_own(vm, &held[1], vm_drop_value, &active);
  vm_own(vm, &held[2], vm_drop_value, &in_axes);
  vm_own(vm, &held[3], vm_drop_value, &out_axes);
  qn_value value = l.outer ? value_unset() : lane_as_arm(r, &l, f->captures[0], mark, nargs);
  if (value_is(value, TAG_UNSET)) value = vm->hooks.call(vm, f->captures[0], mark, nargs, mark[nargs]);
  vm_disown(vm, &held[0]);
  if (value_is_error(value)) goto done;
  lane_walk results = {.r = r, .level = &l, .floats = DTYPE_FLOAT, .whole = value};
  if (f->ncaptures > 3) results.floats = (qn_dtype)f->captures[3].u.i;
  path_push(&results, "the result");
  if (vmap_advance(r)) result = lane_out(&results, value, out_axes);
  shared_free(vm, &results.functions);
  value_release(vm, value);
done:
  value_release(vm, r->active); /* after an error in an arm, the lanes of the arm are still at work */
  r->active = active;
  if (open && !close_lanes(r, &l) && !value_is_error(result)) result = value_fail(vm, result);
  vm_pop_to(vm, mark);
  value_release(vm, in_axes);
  value_release(vm, out_axes);
  if (!value_is_error(result) && !rec_room(r)) result = value_fail(vm, result);
  return result;
}
