/* Taps: effects that only write out become steps of a recorded call, in place of ending its recording.
 *
 * While a call is captured, a tap (a builtin whose column says BUILTIN_TAP) is made at once, after the pending work that can fail, and noted:
 * a NODE_TAP in the graph, whose operands are the arrays and numbers among the arguments, and a template of the arguments around these. In an
 * arm, which has no data, it is only noted. A plan makes each tap as a step of its own, from the template and the operands' values, after all
 * checks before it have passed and in the order of the program.
 *
 * Why not at the end of the plan, when nothing can fail any more? A call may take minutes, such as a training loop that prints its loss: its
 * output has to come as the program gets there, and what was printed before Ctrl-C has to be there. So a plan that fails may have made some
 * of its taps. They are the first ones that the interpreter makes, with the same arguments, since both compute the same bits. So whoever
 * makes the call again passes over that many taps (tap_frame), and goes on to the error, or to its end if only memory was short. A recorded
 * call whose pending work fails at its end is made again in the same way.
 *
 * A reading (a builtin whose work is WORK_READING: a clock) is such a step, too, and gives a float, with which the plan goes on. Its operands are what
 * the program has when it reads, so that this is computed by then. Whoever makes the call again, or in both ways, reads what has been read.
 *
 * Inside such a call other calls are made in any way, by plans of their own, too: all taps that are made go through rec_tap_due, so that each
 * is counted once. With --jit verify the taps of the plan are not made, but their arguments are kept, and compared with those of the taps that
 * the interpreter makes.
 */
#include "jit/trace/taps.h"

#include "jit/trace/rec.h"

bool taps_add(qn_vm *vm, tap_list *l, const builtin_def *def, span at, tpl_list *args) {
  if (!mem_grow(vm, (void **)&l->list, &l->cap, l->n + (size_t)1, sizeof *l->list)) {
    template_free(vm, args);
    return false;
  }
  l->list[l->n++] = (tap){def, *args, at};
  return true;
}

void taps_free(qn_vm *vm, tap_list *l) {
  for (uint32_t i = 0; i < l->n; i++) template_free(vm, &l->list[i].args);
  mem_free(vm, l->list, l->cap * sizeof *l->list);
  *l = (tap_list){0};
}

/* Gives the taps of a graph their new numbers, of which *n have been given; to[i]: that of tap i + 1, or 0. */
static void renumber(graph *g, uint32_t *to, uint32_t *n) {
  for (uint32_t i = 1; i < g->n; i++) {
    graph_node *x = &g->nodes[i];
    for (int k = 0; k < 2 && graph_kind_has_regions(x->kind); k++) renumber(x->payload.regions[k], to, n);
    if (x->kind != NODE_TAP || x->payload.tap == GRAPH_TAP_MADE) continue;
    uint32_t *number = &to[x->payload.tap];
    if (!*number) *number = ++*n;
    x->payload.tap = *number - 1;
  }
}

bool taps_settle(qn_vm *vm, tap_list *l, graph *g) {
  if (!l->n) return true;
  tap_list settled = {0};
  size_t bytes = l->n * sizeof(uint32_t);
  uint32_t *to = mem_zalloc(vm, bytes);
  if (!to || !mem_grow(vm, (void **)&settled.list, &settled.cap, l->n, sizeof *settled.list)) {
    if (to) mem_free(vm, to, bytes);
    return false;
  }
  renumber(g, to, &settled.n);
  for (uint32_t i = 0; i < l->n; i++)
    if (to[i])
      settled.list[to[i] - 1] = l->list[i];
    else
      template_free(vm, &l->list[i].args);
  mem_free(vm, to, bytes);
  mem_free(vm, l->list, l->cap * sizeof *l->list);
  *l = settled;
  return true;
}

/* ---- comparing ----------------------------------------------------------------------------------------------------------------------- */

bool same_leaf(qn_vm *vm, qn_value a, qn_value b) {
  if ((a.head & 0xff) != (b.head & 0xff)) return false;
  if (value_is(a, TAG_FLOAT)) return a.u.i == b.u.i || (a.u.f != a.u.f && b.u.f != b.u.f);
  if (value_is(a, TAG_STR)) return str_equal(value_str(a), value_str(b));
  if (value_is(a, TAG_ARRAY)) {
    qn_array *x = value_array(a), *y = value_array(b);
    if (x->dtype != y->dtype || !shape_equal(x, y) || !(x = array_to_device(vm, x, 0))) return false;
    bool same = (y = array_to_device(vm, y, 0)) != NULL;
    for (int64_t i = 0; i < x->size && same; i++) {
      qn_value p = array_get_flat(x, i), q = array_get_flat(y, i);
      same = p.u.i == q.u.i || (value_is(p, TAG_FLOAT) && p.u.f != p.u.f && q.u.f != q.u.f);
    }
    value_release(vm, value_obj(TAG_ARRAY, x));
    if (y) value_release(vm, value_obj(TAG_ARRAY, y));
    return same;
  }
  return value_is_heap(a) || a.u.i == b.u.i;
}

/* The leaves of a tree, borrowed. */
typedef struct leaves {
  qn_vm *vm;
  qn_value *items;
  uint32_t n, cap;
} leaves;

static bool leaves_add(void *ctx, qn_value v) {
  leaves *l = ctx;
  if (!mem_grow(l->vm, (void **)&l->items, &l->cap, l->n + (size_t)1, sizeof *l->items)) return false;
  l->items[l->n++] = v;
  return true;
}

bool same_tree(qn_vm *vm, qn_value a, qn_value b, uint32_t *leaf) {
  leaves x = {.vm = vm}, y = {.vm = vm};
  bool ok = tree_each(vm, a, leaves_add, &x) && tree_each(vm, b, leaves_add, &y) && x.n == y.n;
  for (uint32_t i = 0; i < x.n && ok; i++)
    if (!same_leaf(vm, x.items[i], y.items[i])) {
      if (leaf) *leaf = i + 1;
      ok = false;
    }
  mem_free(vm, x.items, x.cap * sizeof *x.items);
  mem_free(vm, y.items, y.cap * sizeof *y.items);
  return ok;
}

/* ---- making them ----------------------------------------------------------------------------------------------------------------- */

/* For tree_rebuild: arrays over memory of a plan are copied. */
static qn_value own_leaf(void *ctx, qn_value v) {
  qn_vm *vm = ctx;
  if (!value_is(v, TAG_ARRAY)) return value_retain(v);
  qn_array *copy = array_copy(vm, value_array(v));
  return copy ? value_obj(TAG_ARRAY, copy) : value_error();
}

/* plan_taps.make */
static bool make(plan_taps *taps, uint32_t number, const qn_value *values, uint32_t n, qn_value *read) {
  tap_run *t = (tap_run *)taps;
  qn_vm *vm = t->vm;
  (void)n;
  const tap *x = &t->taps->list[number];
  qn_value args = template_build(vm, &x->args, values, NULL), result = value_error();
  if (value_is_error(args)) return false;
  vm_owned held;
  vm_own(vm, &held, vm_drop_value, &args);
  if (x->def->work == WORK_READING) {
    result = x->def->call(vm, value_list(args)->items);
    if (!value_is_error(result) && !tap_run_read(t, result.u.f)) result = value_error();
    if (value_is_error(result))
      raise_at(vm, x->at);
    else
      *read = result;
  } else if (t->kept) {
    qn_value own = tree_rebuild(vm, args, own_leaf, vm);
    if (!value_is_error(own) && list_push(vm, t->kept, own)) result = value_nil();
  } else {
    result = x->def->call(vm, value_list(args)->items);
    if (value_is_error(result)) raise_at(vm, x->at);
  }
  vm_disown(vm, &held);
  value_release(vm, args);
  if (value_is_error(result)) return false;
  value_release(vm, result);
  return true;
}

void tap_run_begin(qn_vm *vm, tap_run *t, const tap_list *taps, qn_list *kept) {
  *t = (tap_run){.plan = {.make = make}, .vm = vm, .taps = taps, .kept = kept};
}

void tap_run_end(tap_run *t) {
  struct readings *r = &t->plan.read;
  mem_free(t->vm, r->list, r->cap * sizeof *r->list);
  *r = (struct readings){.n = 0};
}

bool tap_run_read(tap_run *t, double number) {
  enum { MOST = 1 << 16 }; /* a call that reads so much and is made again reads later ones anew */
  struct readings *r = &t->plan.read;
  if (r->n == MOST) return true;
  if (!mem_grow(t->vm, (void **)&r->list, &r->cap, r->n + (size_t)1, sizeof *r->list)) return false;
  r->list[r->n++] = number;
  return true;
}

bool taps_reading(qn_vm *vm, double *number) {
  for (tap_frame *f = vm->asked.taps; f; f = f->outer)
    if (f->read && f->nread < f->read->n) {
      *number = f->read->list[f->nread++];
      return true;
    }
  return false;
}

/* ---- calls that are made again ------------------------------------------------------------------------------------------------------ */

/* Are these the arguments of the next tap that is to be compared? */
static bool same_args(qn_vm *vm, tap_frame *f, const qn_value *args) {
  if (f->at >= f->kept->len) return true; /* whoever compares looks at the number of taps, too */
  const qn_list *other = value_list(f->kept->items[f->at]);
  for (uint32_t i = 0; i < other->len; i++)
    if (!same_tree(vm, args[i], other->items[i], NULL)) return false;
  return true;
}

bool taps_due(qn_vm *vm, const qn_value *args) {
  for (tap_frame *f = vm->asked.taps; f; f = f->outer) {
    if (f->made) {
      f->made--;
      return false;
    }
    if (f->kept) {
      f->differs |= !same_args(vm, f, args);
      f->at++;
    }
  }
  return true;
}

void taps_failed(qn_vm *vm) {
  for (tap_frame *f = vm->asked.taps; f; f = f->outer) f->failed = true;
}
