/* Control flow inside vmap, which may go different ways in different lanes.
 *
 * Where a condition is true in some lanes and false in others, both arms of an `if` run, each for its lanes, and what they assign and give
 * is selected by the condition. A `while` goes on until its condition is false in all lanes. recording.active says which lanes are at work:
 * nil means all of them, unset none, else it is a bool for each lane (a mask).
 *
 * Leaving early. Lanes that return, break or continue inside an arm wait in the frame (rec_frame) of the call or loop that they leave,
 * together with the values that they leave with, while the others go on. At the end of the call or loop, the values are selected. If no
 * lane goes on, the rest of the statements is skipped by the interpreter's own signal.
 *
 * Errors only count for lanes that are at work. Ops that can fail on data get operands with which they cannot fail in the other lanes
 * (vmap_guard). When the interpreter itself raises an error in an arm, or an effect comes, it is checked whether any lane is there at all;
 * if not, the error did not happen. This reads data, which ends the capture, but not the call. If arms are nested deeply (recursion), it is
 * checked before an arm is run.
 *
 * Inside a try nothing has to be checked: the lanes that raise an error wait in the frame of the try, in groups of one error each, with what the
 * variables hold there, while the others go on. At the end of the body the handler runs for each group, and the values are selected. Only
 * ops that can fail on data are run at once, and what fails there in some lanes is raised out of the vmap.
 *
 * Selected numbers. A host float that differs between lanes stays a host float: it has a node that stands for the f64 numbers of all lanes,
 * and its own value means nothing. Ints and bools become arrays, as where(...) makes them.
 */
#include <string.h>

#include "jit/graph/batch.h"
#include "jit/trace/breaks.h"
#include "jit/trace/pattern.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/vmap.h"
#include "jit/trace/ways.h"

enum { ARMS_BLIND = 6 }; /* how deep arms may be nested before it is checked whether any lane takes them */

/* ---- masks --------------------------------------------------------------------------------------------------------------- */

static bool is_none(qn_value mask) { return value_is(mask, TAG_UNSET); }
static bool is_all(qn_value mask) { return value_is(mask, TAG_NIL); }
static bool same_mask(qn_value a, qn_value b) { return a.head == b.head && a.u.p == b.u.p; }

/* Replaces a mask, or the value of a variable, by another one, which is taken over. */
static void set_value(qn_vm *vm, qn_value *to, qn_value mask) {
  qn_value old = *to;
  *to = mask;
  value_release(vm, old);
}

/* The lanes in both masks; the lanes in either of them. Masks are borrowed. Owned, or the error value. */
static qn_value mask_and(qn_vm *vm, qn_value a, qn_value b) {
  if (is_none(a) || is_all(b)) return value_retain(a);
  if (is_none(b) || is_all(a)) return value_retain(b);
  return op_binary(vm, OP_bitand, a, b);
}

static qn_value mask_or(qn_vm *vm, qn_value a, qn_value b) {
  if (is_none(b) || is_all(a) || same_mask(a, b)) return value_retain(a);
  if (is_none(a) || is_all(b)) return value_retain(b);
  return op_binary(vm, OP_bitor, a, b);
}

/* A condition as a bool array of rank 0 (owned); unset if the value is no condition. */
static qn_value predicate_of(qn_vm *vm, qn_value v) {
  if (value_is(v, TAG_BOOL)) return op_apply(vm, OP_fit, &v, 1, &(op_attr){.dtype = DTYPE_TEST});
  if (!value_is(v, TAG_ARRAY) || !dtype_is_bool(value_array(v)->dtype) || value_array(v)->size != 1)
    return value_unset();
  return value_array(v)->rank ? op_apply(vm, OP_reshape, &v, 1, &(op_attr){.n = 0}) : value_retain(v);
}

/* The mask (taken over) as the levels around the innermost one have it: those lanes of which any inner lane is at work. Owned, or the error
 * value. */
static qn_value any_inner(qn_vm *vm, const struct vmap_level *l, qn_value mask) {
  struct recording *r = vm->rec;
  uint32_t node = value_is(mask, TAG_ARRAY) ? rec_traced(r, mask) : 0;
  uint32_t whole = node ? batch_whole(&l->batch, node) : 0;
  if (!whole) return mask;
  value_release(vm, mask);
  qn_value all = rec_value_of(r, whole);
  if (value_is_error(all)) return all;
  qn_value out = op_apply(vm, OP_any, &all, 1, &(op_attr){.axes = 1});
  value_release(vm, all);
  return out;
}

/* Is any lane in the mask, an array? A bool array, owned, which no lane has for itself; or the error value. */
static qn_value any_at_all(qn_vm *vm, qn_value mask) {
  qn_value any = value_retain(mask);
  for (const struct vmap_level *l = vm->rec->lanes; l && !value_is_error(any); l = l->outer)
    any = vmap_advance(vm->rec) ? any_inner(vm, l, any) : value_fail(vm, any);
  return any;
}

/* Is any lane in the mask? Reads data. 1, 0, or -1 with an error raised. */
static int any_lane(qn_vm *vm, qn_value mask) {
  struct recording *r = vm->rec;
  if (!value_is(mask, TAG_ARRAY)) return is_all(mask);
  qn_value any = any_at_all(vm, mask), number;
  if (value_is_error(any)) return -1;
  bool ok = rec_break(r, BREAK_branch, NULL) && array_item(vm, value_array(any), 0, &number);
  value_release(vm, any);
  return ok ? number.u.i != 0 : -1;
}

/* ---- selecting ------------------------------------------------------------------------------------------------------------- */

/* Raises that lanes come out of a branch or loop with values of which none can be selected by lane. */
static qn_value raise_select(qn_vm *vm, qn_value a, qn_value b) {
  return raise_error(
      vm, E_not_batched, SPAN_NONE,
      "vmap: lanes take different ways here and come out with %s and %s; a value must have one shape and "
      "dtype in all lanes",
      kind_said(a).text, kind_said(b).text);
}

static bool same_value(qn_value a, qn_value b) {
  if ((a.head & 0xff) != (b.head & 0xff)) return false;
  if (value_is_scalar(a)) return a.head == b.head && a.u.i == b.u.i;
  if (value_is(a, TAG_STR)) return str_equal(value_str(a), value_str(b));
  return value_is(a, TAG_NIL) || value_is(a, TAG_UNSET) || a.u.i == b.u.i;
}

/* Are two ints that a capture has computed the same in this call? Then they are one int for the interpreter, as they are for the capture from then on,
 * behind a guard. 1, 0, or -1 with an error raised. */
static int same_int(qn_vm *vm, qn_value a, qn_value b) {
  struct recording *r = vm->rec;
  if (!r || a.u.i != b.u.i || rec_is_lane(vm, a) || rec_is_lane(vm, b)) return 0;
  if ((value_node(a) && rec_is_data(r, a)) || (value_node(b) && rec_is_data(r, b))) return 0;
  qn_value same = op_binary(vm, OP_eq, a, b);
  const int guards = value_is_error(same) ? -1 : may_guard(r, same);
  if (guards > 0) same = rec_observe(vm, same);
  if (guards < 0 || value_is_error(same)) return -1;
  return guards && same.u.i;
}

/* Are two values the same, so that nothing has to be selected? 1, 0, or -1 with an error raised. (Of functions only a recording may tell.) */
static int same_part(qn_vm *vm, qn_value a, qn_value b) {
  if (value_is(a, TAG_FN) && value_is(b, TAG_FN)) return rec_same_fn(vm, a, b);
  if (same_value(a, b)) return 1;
  return value_is(a, TAG_INT) && value_is(b, TAG_INT) ? same_int(vm, a, b) : 0;
}

/* Of the ops that select. */
static const op_attr joins = {.flags = ATTR_JOINS};

/* where(mask, a, b) of two host numbers of a kind, as a host number. Owned, or the error value. */
static qn_value select_numbers(qn_vm *vm, qn_value mask, qn_value a, qn_value b, qn_dtype kind) {
  op_attr as = {.dtype = (uint8_t)kind};
  qn_value in[3] = {mask, op_apply(vm, OP_cast, &a, 1, &as), value_error()}, out = value_error();
  if (!value_is_error(in[1])) in[2] = op_apply(vm, OP_cast, &b, 1, &as);
  if (!value_is_error(in[2])) out = op_apply(vm, OP_where, in, 3, &joins);
  value_release(vm, in[1]);
  value_release(vm, in[2]);
  if (value_is_error(out)) return out;
  qn_value number = rec_host_number(vm, out, kind);
  value_release(vm, out);
  return number;
}

static qn_value select_leaf(qn_vm *vm, qn_value mask, qn_value a, qn_value b) {
  bool array_a = value_is(a, TAG_ARRAY), array_b = value_is(b, TAG_ARRAY);
  if (!(array_a || value_is_scalar(a)) || !(array_b || value_is_scalar(b))) return raise_select(vm, a, b);
  if (value_is(a, TAG_FLOAT) && value_is(b, TAG_FLOAT)) return select_numbers(vm, mask, a, b, WEAK_FLOAT);
  if (value_is(a, TAG_INT) && value_is(b, TAG_INT)) return select_numbers(vm, mask, a, b, WEAK_INT);
  if (array_a && array_b) {
    const qn_array *x = value_array(a), *y = value_array(b);
    if (x->dtype != y->dtype || !shape_equal(x, y)) return raise_select(vm, a, b);
  } else if ((array_a && value_array(a)->rank) || (array_b && value_array(b)->rank) ||
             (!array_a && !array_b && value_tag_of(a) != value_tag_of(b))) {
    return raise_select(vm, a, b);
  }
  qn_value in[3] = {mask, a, b}, out = op_apply(vm, OP_where, in, 3, &joins);
  if (value_is_error(out) || array_a == array_b) return out;
  if (value_array(out)->dtype == value_array(array_a ? a : b)->dtype) return out;
  value_release(vm, out);
  return raise_select(vm, a, b);
}

static qn_value select_part(qn_vm *vm, qn_value mask, qn_value a, qn_value b, qn_value whole, uint64_t *seen) {
  if (!vm_enter(vm, 0) || !tree_place(vm, whole, seen)) return value_error();
  if (is_all(mask)) return value_retain(a);
  if (is_none(mask)) return value_retain(b);
  int same = same_part(vm, a, b);
  if (same < 0) return value_error();
  if (same) return value_retain(a);
  bool list = value_is(a, TAG_LIST) && value_is(b, TAG_LIST),
       record = value_is(a, TAG_RECORD) && value_is(b, TAG_RECORD);
  if (!list && !record) return select_leaf(vm, mask, a, b);
  uint32_t n, others;
  const qn_value *x = value_parts(a.u.p, &n), *y = value_parts(b.u.p, &others);
  if (n != others) return raise_select(vm, a, b);
  qn_value out = parts_like(vm, a);
  if (value_is_error(out)) return out;
  qn_value *to = value_parts(out.u.p, &n);
  for (uint32_t i = 0; i < n; i++) {
    int at = list ? (int)i : record_find(value_record(b), record_name(value_record(a), i));
    qn_value v = at < 0 ? raise_select(vm, a, b) : select_part(vm, mask, x[i], y[at], whole, seen);
    if (value_is_error(v)) return value_fail(vm, out);
    to[i] = v;
  }
  return out;
}

/* `a` in the lanes of the mask, `b` in the others. Borrows both. Owned, or the error value. */
static qn_value select_value(qn_vm *vm, qn_value mask, qn_value a, qn_value b) {
  uint64_t seen = 0;
  return select_part(vm, mask, a, b, a, &seen);
}

/* ---- operands that cannot fail ------------------------------------------------------------------------------------------------ */

/* Can operand k make the op fail on data? *harmless gets a number with which it never does. */
static bool may_fail(struct recording *r, op_id op, const qn_value *in, int nin, int k, int64_t *harmless) {
  bool ints = true;
  for (int i = 0; i < nin; i++)
    ints &= !value_is(in[i], TAG_FLOAT) &&
            !(value_is(in[i], TAG_ARRAY) && dtype_is_float((qn_dtype)value_array(in[i])->dtype));
  bool known = k == 1 && value_is(in[1], TAG_INT) && !rec_is_lane(r->vm, in[1]);
  *harmless = 0;
  switch ((op_raises)op_rows[op].raises) {
  case RAISES_int_div: *harmless = 1; return ints && k == 1 && !(known && in[1].u.i);
  case RAISES_int_pow: return ints && k == 1 && !(known && in[1].u.i >= 0);
  case RAISES_shift: return k == 1;
  case RAISES_bounds: return op_operand_role(op, k, nin) == ROLE_INDEX;
  case RAISES_to_int: return op == OP_cast && !ints;
  default: return false;
  }
}

int vmap_guard(struct recording *r, op_id op, const qn_value *in, int nin, const op_attr *attr, qn_value *safe) {
  qn_vm *vm = r->vm;
  int guarded = 0;
  int64_t harmless;
  if (!r->lanes || !value_is(r->active, TAG_ARRAY) || op_rows[op].raises == RAISES_never || nin > LANES_GUARDED)
    return 0;
  if (op == OP_cast && !dtype_is_int((qn_dtype)attr->dtype)) return 0;
  bool any = false, numbers = true;
  for (int k = 0; k < nin && !any; k++) any = may_fail(r, op, in, nin, k, &harmless);
  for (int k = 0; k < nin; k++) numbers &= value_is_scalar(in[k]);
  if (!any) return 0;
  /* An op on operands that all lanes share stays shared: they are made safe if no lane at all is at work. */
  qn_value mask = value_retain(r->active);
  for (const struct vmap_level *l = r->lanes; l && !value_is_error(mask); l = l->outer) {
    bool lane = false;
    for (int k = 0; k < nin && !lane; k++) {
      uint32_t node = value_is_operand(in[k]) ? rec_traced(r, in[k]) : 0;
      lane = node && batch_whole(&l->batch, node);
    }
    if (lane) break;
    mask = any_inner(vm, l, mask);
  }
  for (int k = 0; k < nin; k++) safe[k] = value_nil();
  bool ok = !value_is_error(mask);
  for (int k = 0; k < nin && ok; k++) {
    safe[k] = value_retain(in[k]);
    if (!may_fail(r, op, in, nin, k, &harmless)) continue;
    bool real = value_is(in[k], TAG_FLOAT); /* a number of another kind could not be selected */
    qn_value three[3] = {mask, in[k], real ? value_float((double)harmless) : value_int(harmless)};
    qn_value v = numbers ? select_value(vm, mask, in[k], three[2]) : op_apply(vm, OP_where, three, 3, NULL);
    /* A number beside an array has the dtype of the array. */
    const qn_array *first = value_is(in[0], TAG_ARRAY) ? value_array(in[0]) : NULL;
    if (!value_is_error(v) && value_is_scalar(in[k]) && first && k == 1 && op_rows[op].klass == CLASS_POINTWISE &&
        dtype_is_int((qn_dtype)first->dtype)) {
      qn_value cast = op_apply(vm, OP_cast, &v, 1, &(op_attr){.dtype = first->dtype});
      value_release(vm, v);
      v = cast;
    }
    ok = !value_is_error(v);
    value_release(vm, safe[k]);
    safe[k] = v;
    guarded++;
  }
  value_release(vm, mask);
  if (ok) return guarded;
  for (int k = 0; k < nin; k++) value_release(vm, safe[k]);
  return -1;
}

bool vmap_expect(struct recording *r, op_id op, const qn_value *in) {
  qn_vm *vm = r->vm;
  const op_raises raises = (op_raises)op_rows[op].raises;
  if (!r->lanes || !value_is(r->active, TAG_ARRAY) || !way_may_exit(r)) return true;
  if ((raises != RAISES_int_div && raises != RAISES_int_pow) || !value_is(in[1], TAG_INT) || !rec_traced(r, in[1]))
    return true;
  qn_value active = r->active; /* the check counts whether a lane is there or not */
  vm_owned held;
  vm_own(vm, &held, vm_drop_value, &active);
  r->active = value_nil();
  qn_value fits = op_binary(vm, raises == RAISES_int_div ? OP_ne : OP_ge, in[1], value_int(0));
  bool ok = value_is(fits, TAG_BOOL) && (!fits.u.i || !rec_traced(r, fits) || way_expect(r, fits, true));
  vm_disown(vm, &held);
  r->active = active;
  return ok;
}

/* ---- errors and effects in arms ---------------------------------------------------------------------------------------------------- */

/* Is the pending error none of the program: an arm that lanes are in cannot be captured (rec_give_up)? It goes to whoever runs the arm. */
static bool gives_up(const qn_vm *vm) { return vm->error->id == E_internal; }

/* An error has come out of code that only the lanes at work run. 1: it counts; 0: no lane was there, and it has been cleared. */
static int error_counts(qn_vm *vm) {
  struct recording *r = vm->rec;
  if (r->vmap_failed || !error_catchable(vm) || is_all(r->active) || vm->error->id == E_memory) return 1;
  if (gives_up(vm)) return 1;
  if (is_none(r->active)) {
    error_clear(vm);
    return 0;
  }
  qn_error_object *error = error_take(vm);
  if (!rec_stop_capture(r, BREAK_branch, NULL)) return error_free(vm, error), 1;
  error_put_back(vm, error);
  int any = vmap_name_first(r, r->active);
  if (any > 0) r->vmap_failed = true;
  return any != 0;
}

/* Raises an error to leave code in which no lane is at work. Only error_counts and the end of a try see it. */
static void raise_no_lane(qn_vm *vm) { raise_error(vm, E_not_batched, SPAN_NONE, "no lane comes here"); }

/* Lanes that wait for the handler of a try: what they have raised, and what the variables of the frame held. All owned. */
struct lanes_raised {
  struct lanes_raised *next;
  qn_error_object *error;
  qn_value lanes, *values;
};

/* The frame of the innermost try, if lanes can leave to it: it stands in the same vmap. */
static rec_frame *catching(const struct recording *r) {
  rec_frame *f = r->frames;
  while (f && f->kind != FRAME_TRY) f = f->outer;
  return f && f->level == r->lanes ? f : NULL;
}

bool vmap_catches(const struct recording *r) { return r->lanes && catching(r); }

/* May a handler of the lanes see the pending error? */
static bool lanes_catch(const struct recording *r) {
  const qn_vm *vm = r->vm;
  return error_catchable(vm) && !r->vmap_failed && !gives_up(vm) && vm->error->id != E_not_batched &&
         vm->error->id != E_memory;
}

static bool same_error(const qn_error_object *a, const qn_error_object *b) {
  bool same = a->id == b->id && a->at.source == b->at.source && a->at.start == b->at.start && a->at.end == b->at.end &&
              a->nframes == b->nframes && !value_is(a->payload, TAG_RECORD) && !value_is(b->payload, TAG_RECORD) &&
              str_equal(a->message, b->message);
  for (int i = 0; i < a->nframes && same; i++)
    same = a->frames[i].at.source == b->frames[i].at.source && a->frames[i].at.start == b->frames[i].at.start;
  return same;
}

static void values_free(qn_vm *vm, qn_value *values, int n) {
  for (int i = 0; values && i < n; i++) value_release(vm, values[i]);
  if (values) mem_free(vm, values, (size_t)n * sizeof *values + 1);
}

static void raised_free(qn_vm *vm, struct lanes_raised *list, int nslots) {
  while (list) {
    struct lanes_raised *g = list;
    list = g->next;
    values_free(vm, g->values, nslots);
    value_release(vm, g->lanes);
    if (g->error) error_free(vm, g->error);
    mem_free(vm, g, sizeof *g);
  }
}

/* Adds the lanes at work, with what the variables hold now, to lanes that wait with the same error. 1; 0: these values cannot be selected by
 * lane; -1 with an error raised. */
static int join_raised(struct recording *r, const rec_frame *f, struct lanes_raised *g) {
  qn_vm *vm = r->vm;
  int n = f->slots.n, made = 0;
  qn_value *values = mem_alloc(vm, (size_t)n * sizeof *values + 1);
  if (!values) return -1;
  for (; made < n; made++)
    if (value_is_error(values[made] = select_value(vm, r->active, *f->slots.slots[made], g->values[made]))) break;
  qn_value both = made == n ? mask_or(vm, g->lanes, r->active) : value_error();
  if (value_is_error(both)) {
    for (int i = 0; i < made; i++) value_release(vm, values[i]);
    mem_free(vm, values, (size_t)n * sizeof *values + 1);
    if (!error_catchable(vm) || vm->error->id != E_not_batched) return -1;
    error_clear(vm);
    return 0;
  }
  values_free(vm, g->values, n);
  g->values = values;
  set_value(vm, &g->lanes, both);
  return 1;
}

/* The pending error is one of the lanes at work. If they stand in a try, they leave to its handler, and none is at work any more: 1. 0: the error
 * is not for a handler, and stays; -1 with another error raised. */
static int catch_lanes(qn_vm *vm) {
  struct recording *r = vm->rec;
  rec_frame *f = catching(r);
  if (!f || !lanes_catch(r)) return 0;
  for (rec_frame *x = r->frames; x != f; x = x->outer) {
    x->parted = true;
    if (x->failed) x->failed(x->ctx);
  }
  qn_error_object *e = error_take(vm);
  int joined = 0;
  for (struct lanes_raised *g = f->raised; g && !joined; g = g->next)
    if (same_error(g->error, e)) joined = join_raised(r, f, g);
  struct lanes_raised *g = joined ? NULL : mem_zalloc(vm, sizeof *g);
  if (g && (g->values = mem_alloc(vm, (size_t)f->slots.n * sizeof *g->values + 1))) {
    for (int i = 0; i < f->slots.n; i++) g->values[i] = value_retain(*f->slots.slots[i]);
    g->error = e;
    g->lanes = value_retain(r->active);
    struct lanes_raised **last = &f->raised;
    while (*last) last = &(*last)->next;
    *last = g;
    joined = 1;
  } else {
    if (g) mem_free(vm, g, sizeof *g);
    error_free(vm, e);
    if (!joined) joined = -1;
  }
  if (joined > 0) set_value(vm, &r->active, value_unset());
  return joined;
}

/* As error_counts, where lanes may leave to a handler. */
static int error_stays(qn_vm *vm) {
  int caught = catch_lanes(vm);
  return caught ? caught < 0 : error_counts(vm);
}

/* For tree_rebuild_parts: a value that differs between lanes becomes the array of all lanes; others stay. */
static qn_value all_lanes(void *ctx, qn_value v) {
  qn_vm *vm = ctx;
  if (!rec_is_lane(vm, v)) return value_retain(v);
  return rec_value_of(vm->rec, vmap_outermost(vm->rec, rec_traced(vm->rec, v)));
}

/* Arguments that differ between lanes become arrays of all lanes. False with an error raised. */
static bool take_all_lanes(struct recording *r, qn_value *args, int nargs) {
  qn_vm *vm = r->vm;
  if (!vmap_advance(r)) return false;
  for (int i = 0; i < nargs; i++) {
    qn_value all = tree_rebuild_parts(vm, args[i], all_lanes, vm);
    if (value_is_error(all)) return false;
    set_value(vm, &args[i], all);
  }
  return true;
}

rec_answer vmap_where_any(struct recording *r, rec_branch *of, qn_value *args, int nargs, qn_value *result) {
  if (!take_all_lanes(r, args, nargs)) return REC_FAILED;
  qn_value any = any_at_all(r->vm, r->active), active = r->active;
  if (value_is_error(any)) return REC_FAILED;
  if (!vmap_advance(r)) return value_release(r->vm, any), REC_FAILED;
  struct vmap_level *lanes = r->lanes;
  vm_owned held_any, held_active;
  vm_own(r->vm, &held_any, vm_drop_value, &any);
  vm_own(r->vm, &held_active, vm_drop_value, &active);
  r->lanes = NULL; /* nothing in the arm is one lane's */
  r->active = value_nil();
  rec_answer answer = branch_capture(r, of, any, result);
  vm_disown(r->vm, &held_active);
  vm_disown(r->vm, &held_any);
  r->lanes = lanes;
  r->active = active;
  value_release(r->vm, any);
  return answer;
}

int vmap_any(struct recording *r) {
  return !r->lanes || !value_is(r->active, TAG_ARRAY) ? 1 : any_lane(r->vm, r->active);
}

bool vmap_effect(struct recording *r, const builtin_def *def, qn_value *args, int nargs) {
  qn_vm *vm = r->vm;
  if (!r->lanes || (def->effect == BUILTIN_RAISES && catching(r))) return true;
  if (value_is(r->active, TAG_ARRAY)) {
    int any = any_lane(vm, r->active);
    if (any == 0) raise_no_lane(vm);
    if (any <= 0) return false;
  }
  if (def->effect != BUILTIN_TAP && def->effect != BUILTIN_DRAWS && def->effect != BUILTIN_STATE &&
      def->effect != BUILTIN_RAISES)
    return true;
  return take_all_lanes(r, args, nargs);
}

int rec_all_lanes(qn_vm *vm, qn_value condition) {
  struct recording *r = vm->rec;
  qn_value p = predicate_of(vm, condition), bad = value_error();
  if (value_is(p, TAG_UNSET)) return rec_truth(vm, condition, SPAN_NONE);
  if (!value_is_error(p)) bad = op_apply(vm, OP_invert, &p, 1, NULL);
  value_release(vm, p);
  if (!value_is_error(bad)) {
    qn_value here = mask_and(vm, r->active, bad);
    value_release(vm, bad);
    bad = here;
  }
  rec_frame *f = value_is_error(bad) ? NULL : catching(r);
  if (f) {
    qn_value good = predicate_of(vm, condition), rest = value_error();
    if (!value_is_error(good)) rest = mask_and(vm, r->active, good);
    value_release(vm, good);
    if (value_is_error(rest)) return value_release(vm, bad), -1;
    set_value(vm, &f->rest, rest);
    set_value(vm, &r->active, bad);
    return 0;
  }
  int any = value_is_error(bad) ? -1 : any_lane(vm, bad);
  if (any > 0) {
    set_value(vm, &r->active, bad);
    return 0;
  }
  value_release(vm, bad);
  return any < 0 ? -1 : 1;
}

rec_answer rec_lanes_raise(qn_vm *vm) {
  rec_frame *f = rec_in_vmap(vm) && error_pending(vm) ? catching(vm->rec) : NULL;
  if (!f || value_is(f->rest, TAG_UNSET)) return REC_NOT_YET;
  qn_value rest = f->rest;
  f->rest = value_unset();
  int caught = catch_lanes(vm);
  if (caught > 0)
    set_value(vm, &vm->rec->active, rest);
  else
    value_release(vm, rest);
  return caught > 0 ? REC_DONE : REC_FAILED;
}

void rec_blame_lanes(qn_vm *vm) {
  struct recording *r = vm->rec;
  if (!rec_in_vmap(vm) || !value_is(r->active, TAG_ARRAY) || catching(r)) return;
  if (vmap_name_first(r, r->active))
    r->vmap_failed = true;
  else
    raise_no_lane(vm);
}

/* ---- frames ---------------------------------------------------------------------------------------------------------------------------- */

void rec_frame_enter(qn_vm *vm, rec_frame *f, rec_frame_kind kind, rec_slots slots) {
  struct recording *r = vm->rec;
  *f = (rec_frame){.rec = r,
                   .outer = r->frames,
                   .level = r->lanes,
                   .kind = kind,
                   .slots = slots,
                   .entry = value_retain(r->active),
                   .gone = value_unset(),
                   .again = value_unset(),
                   .rest = value_unset()};
  r->frames = f;
}

static uint32_t frame_values(const rec_frame *f) { return f->kind == FRAME_LOOP ? (uint32_t)f->slots.n : 1; }

static void free_values(qn_vm *vm, qn_value **values, uint32_t n) {
  for (uint32_t i = 0; *values && i < n; i++) value_release(vm, (*values)[i]);
  if (*values) mem_free(vm, *values, n * sizeof **values + 1);
  *values = NULL;
}

static void frame_free(struct recording *r, rec_frame *f) {
  qn_vm *vm = r->vm;
  r->frames = f->outer;
  free_values(vm, &f->left, frame_values(f));
  free_values(vm, &f->kept, frame_values(f));
  value_release(vm, f->entry);
  value_release(vm, f->gone);
  value_release(vm, f->again);
  value_release(vm, f->rest);
  raised_free(vm, f->raised, f->slots.n);
}

void frames_drop(struct recording *r) {
  while (r->frames) frame_free(r, r->frames);
}

void rec_frame_drop(rec_frame *f) {
  struct recording *r = f->rec;
  for (rec_frame *last = NULL; last != f;) frame_free(r, last = r->frames);
}

/* The lanes of `mask` leave a frame and wait in it with their values: `result` if it is a call; for a loop what its variables hold. */
static bool leave_with(qn_vm *vm, rec_frame *f, qn_value *who, qn_value **values, qn_value mask, qn_value result) {
  uint32_t n = frame_values(f);
  if (!*values) {
    if (!(*values = mem_alloc(vm, n * sizeof **values + 1))) return false;
    for (uint32_t i = 0; i < n; i++) (*values)[i] = value_retain(f->kind == FRAME_LOOP ? *f->slots.slots[i] : result);
    set_value(vm, who, value_retain(mask));
    return true;
  }
  for (uint32_t i = 0; i < n; i++) {
    qn_value v = select_value(vm, mask, f->kind == FRAME_LOOP ? *f->slots.slots[i] : result, (*values)[i]);
    if (value_is_error(v)) return false;
    set_value(vm, &(*values)[i], v);
  }
  qn_value both = mask_or(vm, *who, mask);
  if (value_is_error(both)) return false;
  set_value(vm, who, both);
  return true;
}

/* The lanes at work leave in the way that an arm or body has ended; `v` (taken over) is what they return. False with an error raised. */
static bool depart(qn_vm *vm, rec_exit how, qn_value v) {
  struct recording *r = vm->rec;
  rec_frame *f = r->frames;
  bool ok = true;
  if (!is_none(r->active)) {
    for (; f && (f->kind == FRAME_TRY || (how == REC_RETURN && f->kind == FRAME_LOOP)); f = f->outer) f->parted = true;
    if (f && how == REC_CONTINUE)
      ok = leave_with(vm, f, &f->again, &f->kept, r->active, value_nil());
    else if (f)
      ok = leave_with(vm, f, &f->gone, &f->left, r->active, v);
    set_value(vm, &r->active, value_unset());
  }
  value_release(vm, v);
  return ok;
}

qn_value rec_call_leave(qn_vm *vm, rec_frame *f, qn_value v) {
  struct recording *r = vm->rec;
  if (value_is_error(v) && f->left && !error_stays(vm)) {
    set_value(vm, &r->active, value_unset());
    v = value_nil();
  }
  if (!value_is_error(v) && f->left) {
    qn_value all = is_none(r->active) ? value_retain(f->left[0]) : select_value(vm, f->gone, f->left[0], v);
    value_release(vm, v);
    v = all;
  }
  if (!f->parted) {
    set_value(vm, &r->active, value_retain(f->entry));
  } else if (!value_is_error(v)) {
    qn_value rest = mask_or(vm, r->active, f->gone);
    bool none = is_none(rest);
    if (value_is_error(rest) || none) v = value_fail(vm, v);
    if (none) raise_no_lane(vm);
    if (!value_is_error(rest)) set_value(vm, &r->active, rest);
  }
  frame_free(r, f);
  return v;
}

int rec_loop_test(qn_vm *vm, rec_frame *f, qn_value condition, int truth) {
  struct recording *r = vm->rec;
  if (rec_is_lane(vm, condition)) {
    qn_value p = predicate_of(vm, condition), not_p = value_error(), stop = value_error();
    if (value_is(p, TAG_UNSET)) return -2;
    if (!value_is_error(p)) not_p = op_apply(vm, OP_invert, &p, 1, NULL);
    if (!value_is_error(not_p)) stop = mask_and(vm, r->active, not_p);
    bool ok = !value_is_error(stop) && leave_with(vm, f, &f->gone, &f->left, stop, value_nil());
    qn_value go = ok ? mask_and(vm, r->active, p) : value_error();
    value_release(vm, p);
    value_release(vm, not_p);
    value_release(vm, stop);
    if (value_is_error(go)) return -1;
    set_value(vm, &r->active, go);
  } else if (!truth || (!f->left && !f->parted)) {
    return truth;
  }
  int any = any_lane(vm, r->active);
  if (any == 0) set_value(vm, &r->active, value_unset());
  return any;
}

int rec_loop_next(qn_vm *vm, rec_frame *f, rec_exit how, qn_value v) {
  struct recording *r = vm->rec;
  if (how == REC_ERROR) {
    if (is_all(r->active) || same_mask(r->active, f->entry) || error_stays(vm)) return -1;
    set_value(vm, &r->active, value_unset());
  } else if (how == REC_VALUE) {
    value_release(vm, v);
  } else if (!depart(vm, how, v)) {
    return -1;
  }
  if (f->kept) {
    for (int i = 0; i < f->slots.n; i++) {
      qn_value all =
          is_none(r->active) ? value_retain(f->kept[i]) : select_value(vm, f->again, f->kept[i], *f->slots.slots[i]);
      if (value_is_error(all)) return -1;
      set_value(vm, f->slots.slots[i], all);
    }
    qn_value both = mask_or(vm, r->active, f->again);
    if (value_is_error(both)) return -1;
    /* If no lane has left for good, these are the lanes that the loop began with. */
    if (!f->left && !f->parted) {
      value_release(vm, both);
      both = value_retain(f->entry);
    }
    set_value(vm, &r->active, both);
    free_values(vm, &f->kept, frame_values(f));
    set_value(vm, &f->again, value_unset());
  }
  return !is_none(r->active);
}

rec_answer rec_loop_leave(qn_vm *vm, rec_frame *f, bool ok) {
  struct recording *r = vm->rec;
  if (!ok && (f->left || f->parted) && catch_lanes(vm) > 0) ok = true;
  for (int i = 0; ok && f->left && i < f->slots.n; i++) {
    qn_value all =
        is_none(r->active) ? value_retain(f->left[i]) : select_value(vm, f->gone, f->left[i], *f->slots.slots[i]);
    ok = !value_is_error(all);
    if (ok) set_value(vm, f->slots.slots[i], all);
  }
  if (!f->parted) {
    set_value(vm, &r->active, value_retain(f->entry));
  } else if (ok) {
    qn_value rest = mask_or(vm, r->active, f->gone);
    ok = !value_is_error(rest);
    set_value(vm, &r->active, ok ? rest : value_retain(f->entry));
  }
  frame_free(r, f);
  return !ok ? REC_FAILED : is_none(r->active) ? REC_LEFT : REC_DONE;
}

/* ---- if ---------------------------------------------------------------------------------------------------------------------------------- */

typedef struct arm_end {
  qn_value value, active; /* owned */
  qn_value *slots;        /* what the variables hold at its end; owned */
  bool run;               /* some lane has come to the end of the arm, or left it early */
} arm_end;

static bool save_slots(qn_vm *vm, rec_slots s, qn_value **out) {
  if (!(*out = mem_alloc(vm, (size_t)s.n * sizeof **out + 1))) return false;
  for (int i = 0; i < s.n; i++) (*out)[i] = value_retain(*s.slots[i]);
  return true;
}

/* Runs one arm for the lanes of `mask` (taken over) and puts the variables back. False with an error raised. */
static bool run_arm(qn_vm *vm, rec_arm arm, qn_value mask, rec_slots s, const qn_value *before, arm_end *end) {
  struct recording *r = vm->rec;
  *end = (arm_end){.value = value_nil(), .active = value_unset()};
  if (value_is_error(mask)) return false;
  set_value(vm, &r->active, mask);
  int taken = r->arms >= ARMS_BLIND ? any_lane(vm, mask) : 1;
  if (taken <= 0) {
    set_value(vm, &r->active, value_unset());
    return taken == 0;
  }
  rec_exit how = REC_VALUE;
  const uint32_t around = r->arm_from;
  qn_value entry = value_retain(r->active);
  vm_owned held;
  vm_own(vm, &held, vm_drop_value, &entry); /* an effect in it may leave through the host */
  r->arms++;
  r->arm_from = r->g->n;
  qn_value v = arm.run(arm.ctx, &how);
  r->arms--;
  vm_disown(vm, &held);
  const bool parted = !same_mask(r->active, entry); /* some have left it before no lane came any further */
  value_release(vm, entry);
  int caught = how == REC_ERROR && !is_none(r->active) ? catch_lanes(vm) : 0;
  bool counts = how == REC_ERROR && (caught ? caught < 0 : error_counts(vm));
  r->arm_from = around;
  if (counts) return false;
  if (how == REC_ERROR) {
    v = value_nil();
    set_value(vm, &r->active, value_unset());
    end->run = caught > 0 || parted;
  } else {
    end->run = true;
    if (how != REC_VALUE) {
      if (!depart(vm, how, v)) return false;
      v = value_nil();
    }
  }
  end->value = v;
  end->active = value_retain(r->active);
  if (!save_slots(vm, s, &end->slots)) return false;
  for (int i = 0; i < s.n; i++) set_value(vm, s.slots[i], value_retain(before[i]));
  return true;
}

static void arm_free(qn_vm *vm, arm_end *end, uint32_t n) {
  value_release(vm, end->value);
  value_release(vm, end->active);
  free_values(vm, &end->slots, n);
}

/* What an `if` owns while its arms run. */
typedef struct if_owned {
  qn_value p, not_p, masks[2], active; /* active: the lanes at work before the branch */
  qn_value *before;                    /* what the variables held before the branch */
  arm_end ends[2];
  uint32_t nslots;
} if_owned;

static void if_drop(qn_vm *vm, void *what) {
  if_owned *o = what;
  for (int i = 0; i < 2; i++) {
    arm_free(vm, &o->ends[i], o->nslots);
    value_release(vm, o->masks[i]);
  }
  free_values(vm, &o->before, o->nslots);
  value_release(vm, o->p);
  value_release(vm, o->not_p);
  value_release(vm, o->active);
}

rec_answer rec_if(qn_vm *vm, const rec_branch *branch, qn_value predicate, qn_value *result) {
  struct recording *r = vm->rec;
  if (!rec_is_lane(vm, predicate)) return branch_capture(r, branch, predicate, result);
  const rec_arm then = branch->then, otherwise = branch->otherwise;
  const rec_slots assigned = branch->assigned;
  const bool used = branch->used;
  const span at = branch->at;
  rec_at(vm, at);
  qn_value p = predicate_of(vm, predicate);
  if (value_is(p, TAG_UNSET)) return REC_NOT_YET;
  if (value_is_error(p)) return REC_FAILED;
  if_owned o = {
      .p = p,
      .masks = {value_error(), value_error()},
      .active = value_retain(r->active),
      .ends = {{.value = value_nil(), .active = value_unset()}, {.value = value_nil(), .active = value_unset()}},
      .nslots = (uint32_t)assigned.n};
  const qn_value before_active = o.active;
  qn_value *masks = o.masks;
  arm_end *ends = o.ends;
  o.not_p = op_apply(vm, OP_invert, &p, 1, NULL);
  bool ok = !value_is_error(o.not_p) && save_slots(vm, assigned, &o.before);
  const qn_value *before = o.before;
  const uint32_t from = rec_next_id(r);
  vm_owned held;
  vm_own(vm, &held, if_drop, &o);
  if (ok) masks[0] = mask_and(vm, r->active, p);
  if (ok && !value_is_error(masks[0])) masks[1] = mask_and(vm, r->active, o.not_p);
  ok = ok && !value_is_error(masks[1]);
  ok = ok && run_arm(vm, then, value_retain(masks[0]), assigned, before, &ends[0]);
  ok = ok && run_arm(vm, otherwise, value_retain(masks[1]), assigned, before, &ends[1]);
  /* no lane is at work in the arm around, either */
  if (ok && !ends[0].run && !ends[1].run && value_is(before_active, TAG_ARRAY)) {
    raise_no_lane(vm);
    ok = false;
  }
  if (ok) {
    rec_at(vm, at);
    const arm_end *a = &ends[0], *b = &ends[1];
    bool only_a = is_none(b->active), only_b = is_none(a->active);
    for (int i = 0; ok && i < assigned.n; i++) {
      qn_value v = only_a && a->slots   ? value_retain(a->slots[i])
                   : only_b && b->slots ? value_retain(b->slots[i])
                   : only_a || only_b   ? value_retain(before[i])
                                        : select_value(vm, p, a->slots[i], b->slots[i]);
      ok = !value_is_error(v);
      if (ok) set_value(vm, assigned.slots[i], v);
    }
    if (ok && used)
      *result = only_a   ? value_retain(a->value)
                : only_b ? value_retain(b->value)
                         : select_value(vm, p, a->value, b->value);
    ok = ok && !(used && value_is_error(*result));
    qn_value unused = value_nil();
    ok = ok && parted_arm(r, from, assigned, used ? result : &unused) && vmap_advance(r);
    if (ok && same_mask(a->active, masks[0]) && same_mask(b->active, masks[1])) {
      set_value(vm, &r->active, value_retain(before_active));
    } else if (ok) {
      /* If no lane was in the arm, all others are still at work. */
      qn_value rest = !a->run && same_mask(b->active, masks[1])   ? value_retain(before_active)
                      : !b->run && same_mask(a->active, masks[0]) ? value_retain(before_active)
                                                                  : mask_or(vm, a->active, b->active);
      ok = !value_is_error(rest);
      if (ok) set_value(vm, &r->active, rest);
    }
  }
  /* an error here is one of all the lanes that came to the branch */
  if (!ok) set_value(vm, &r->active, value_retain(before_active));
  bool left = ok && is_none(r->active);
  vm_disown(vm, &held);
  if_drop(vm, &o);
  if (!ok) raise_at(vm, at);
  return !ok ? REC_FAILED : left ? REC_LEFT : REC_DONE;
}

/* ---- try --------------------------------------------------------------------------------------------------------------------------------- */

/* What a try owns while its body and handler run. */
typedef struct try_owned {
  rec_frame frame;
  bool inside; /* the frame is one of those in progress */
  struct lanes_raised *raised;
  arm_end all, one; /* what the lanes so far have come to; what those of one group have */
  qn_value entry;
  int nslots;
} try_owned;

static void try_drop(qn_vm *vm, void *what) {
  try_owned *o = what;
  if (o->inside) rec_frame_drop(&o->frame);
  raised_free(vm, o->raised, o->nslots);
  arm_free(vm, &o->all, (uint32_t)o->nslots);
  arm_free(vm, &o->one, (uint32_t)o->nslots);
  value_release(vm, o->entry);
}

/* The handler of one group, as an arm. */
typedef struct handling {
  const rec_handler *of;
  struct lanes_raised *group;
} handling;

static qn_value run_handler(void *ctx, rec_exit *how) {
  const handling *h = ctx;
  qn_error_object *e = h->group->error;
  h->group->error = NULL;
  return h->of->handle(h->of->ctx, e, how);
}

/* The handler runs for a group, and what its lanes come to is added to what the others have. *lost: some of them have not come to its end. False
 * with an error raised. */
static bool handle_group(qn_vm *vm, const rec_handler *h, try_owned *o, struct lanes_raised *g, bool *lost) {
  const rec_slots s = h->assigned;
  arm_end *all = &o->all, *one = &o->one;
  handling of = {h, g};
  slots_set(vm, s, g->values);
  if (!run_arm(vm, (rec_arm){run_handler, &of}, value_retain(g->lanes), s, g->values, one)) return false;
  *lost |= !one->run || !same_mask(one->active, g->lanes);
  bool ok = true, first = is_none(all->active);
  if (one->slots && !is_none(one->active)) {
    for (int i = 0; i < s.n && ok; i++) {
      qn_value v = first ? value_retain(one->slots[i]) : select_value(vm, g->lanes, one->slots[i], all->slots[i]);
      ok = !value_is_error(v);
      if (ok) set_value(vm, &all->slots[i], v);
    }
    qn_value v = !ok                 ? value_error()
                 : first || !h->used ? value_retain(one->value)
                                     : select_value(vm, g->lanes, one->value, all->value);
    qn_value both = value_is_error(v) ? v : mask_or(vm, all->active, one->active);
    if (!value_is_error(v)) set_value(vm, &all->value, v);
    if (!value_is_error(both)) set_value(vm, &all->active, both);
    ok = !value_is_error(both);
  }
  arm_free(vm, one, (uint32_t)o->nslots);
  *one = (arm_end){.value = value_nil(), .active = value_unset()};
  return ok;
}

/* The body has ended: no error is pending. The handler runs for all groups. As rec_try_lanes. */
static rec_answer handle_all(qn_vm *vm, const rec_handler *h, try_owned *o, rec_exit how, bool lost, qn_value v) {
  struct recording *r = vm->rec;
  const rec_slots s = h->assigned;
  o->all.value = v;
  if (how != REC_VALUE) {
    o->all.value = value_nil();
    lost = true;
    if (!depart(vm, how, v)) return REC_FAILED;
  }
  o->all.active = value_retain(r->active);
  bool ok = save_slots(vm, s, &o->all.slots);
  for (struct lanes_raised *g = o->raised; g && ok; g = g->next) ok = handle_group(vm, h, o, g, &lost);
  if (!ok) return REC_FAILED;
  slots_set(vm, s, o->all.slots);
  set_value(vm, &r->active, value_retain(lost ? o->all.active : o->entry));
  return is_none(r->active) ? REC_LEFT : REC_DONE;
}

rec_answer rec_try_lanes(qn_vm *vm, const rec_handler *h, rec_exit *how, qn_value *result) {
  struct recording *r = vm->rec;
  qn_value *mark = vm->sp;
  const uint32_t around = r->arm_from;
  try_owned o = {.all = {.value = value_nil(), .active = value_unset()},
                 .one = {.value = value_nil(), .active = value_unset()},
                 .entry = value_retain(r->active),
                 .nslots = h->assigned.n};
  rec_frame_enter(vm, &o.frame, FRAME_TRY, h->assigned);
  o.inside = true;
  vm_owned held;
  vm_own(vm, &held, try_drop, &o);
  r->arm_from = r->g->n; /* what stands before fails outside */
  qn_value v = h->body.run(h->body.ctx, how);
  r->arm_from = around;
  bool raises = *how == REC_ERROR, caught = false;
  if (raises && is_none(r->active) && error_catchable(vm) && !gives_up(vm)) {
    error_clear(vm);
    caught = true;
  } else if (raises) {
    caught = catch_lanes(vm) > 0;
  }
  bool lost = o.frame.parted;
  o.raised = o.frame.raised;
  o.frame.raised = NULL;
  frame_free(r, &o.frame); /* errors of the handler are for others */
  o.inside = false;
  rec_answer answer = REC_NOT_YET;
  *result = v;
  if (caught) {
    vm_pop_to(vm, mark);
    *how = REC_VALUE;
    *result = value_nil();
    if (!o.raised) answer = REC_LEFT; /* no lane was at work, and those that were have left something further out */
  }
  if (o.raised && *how != REC_ERROR) {
    answer = handle_all(vm, h, &o, *how, lost, *result);
    *how = REC_VALUE;
    *result = answer == REC_DONE ? value_retain(o.all.value) : value_nil();
  }
  vm_disown(vm, &held);
  try_drop(vm, &o);
  return answer;
}
