/* What the interpreter and the builtins tell a recording: ops, constants, guarded numbers, globals, effects. rec.h says when each of
 * these functions is called.
 *
 * An op on values of the recording is checked, gets a node and gives a pending array. A traced host number has its value beside its node:
 * ops among such numbers are computed at once and also appended. When such a number decides what the program does, rec_observe makes its
 * value a guard. How pending nodes are executed, and what values nodes have, is in recording.c.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "jit/graph/folds.h"
#include "jit/run/eager.h"
#include "jit/run/device.h"
#include "jit/trace/anchors.h"
#include "jit/trace/body.h"
#include "jit/trace/breaks.h"
#include "jit/trace/fullgraph.h"
#include "jit/trace/gradients.h"
#include "jit/trace/graphs.h"
#include "jit/trace/jobs.h"
#include "jit/trace/pattern.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/report.h"
#include "jit/trace/rewrites.h"
#include "jit/trace/sizes.h"
#include "jit/trace/specialization.h"
#include "jit/trace/tracers.h"
#include "jit/trace/transform.h"
#include "jit/trace/vmap.h"
#include "jit/trace/ways.h"
#include "lang/format.h"

/* ---- ops ------------------------------------------------------------------------------------------------------------------- */

/* x[mask] in a vmap with a mask that all lanes share: takes the elements by their indices. Owned, or the error value. */
static qn_value compress_lanes(qn_vm *vm, const qn_value *in) {
  qn_value at[ARRAY_MAX_RANK + 1] = {in[0]}, out = value_error(), where = op_nonzero(vm, in[1]);
  if (value_is_error(where)) return where;
  int64_t n = value_array(where)->shape[0];
  int rank = value_array(in[1])->rank, made = 0;
  for (; made < rank; made++) {
    qn_value part = op_slice(vm, where, 1, made, 1, 1);
    if (value_is_error(part)) break;
    at[1 + made] = op_reshape(vm, part, 1, &n);
    value_release(vm, part);
    if (value_is_error(at[1 + made])) break;
  }
  if (made == rank) out = op_apply(vm, OP_index, at, 1 + rank, &(op_attr){.n = 1, .d = {rank}});
  while (made > 0) value_release(vm, at[made--]);
  value_release(vm, where);
  return out;
}

/* An op whose result has a shape that depends on data: everything is executed now, and the result joins the graph with the shape that it
 * has. Owned, or the error value. */
static qn_value apply_data_shaped(struct recording *r, op_id op, const qn_value *in, int nin, const op_attr *attr,
                                  const uint32_t *nodes) {
  qn_vm *vm = r->vm;
  uint32_t site = rec_site(r);
  if (op == OP_compress && vmap_whole(r, nodes[0]) && !vmap_whole(r, nodes[1]) && value_is(in[1], TAG_ARRAY) &&
      value_array(in[1])->rank > 0)
    return compress_lanes(vm, in);
  for (int k = 0; k < nin; k++)
    if (vmap_whole(r, nodes[k]))
      return raise_error(
          vm, E_not_batched, SPAN_NONE,
          op == OP_compress
              ? "vmap: x[mask] would have another size in each lane; use where(mask, x, 0), which keeps the size"
              : "vmap: %s would give another number of elements in each lane",
          op_rows[op].name);
  fullgraph_ends(r, BREAK_shape_of_data, op_rows[op].name);
  if (!rec_break(r, BREAK_shape_of_data, op_rows[op].name)) return value_error();
  struct recording *active = vm->rec;
  vm->rec = NULL;
  qn_value out = eager_apply(vm, op, in, nin, attr);
  vm->rec = active;
  if (!active || value_is_error(out)) return out;
  uint32_t node = graph_node_raw(r->g, op, nodes, nin, attr, type_of_value(out), site);
  if (!rec_name(r, &out, node)) return value_error();
  if (!rec_keep(r, node, value_retain(out))) return value_fail(vm, out);
  r->done = r->g->n;
  return out;
}

static qn_value rec_apply(struct recording *r, op_id op, const qn_value *in, int nin, const op_attr *attr);

/* The recording around this arm in which a value is traced; NULL if there is none. */
static struct recording *rec_around(const struct recording *r, qn_value v) {
  while (r->arm) {
    r = r->outer;
    if (rec_traced(r, v)) return (struct recording *)(uintptr_t)r;
  }
  return NULL;
}

/* Host ints are divided as floats, but dividing by 0 is an error for ints: makes it a guard that b is not 0. False with an error raised. */
static bool divisor_stays(struct recording *r, qn_value a, qn_value b) {
  uint32_t node = rec_traced(r, b);
  if (value_is(a, TAG_FLOAT) || value_is(b, TAG_FLOAT) || !node || vmap_whole(r, node)) return true;
  qn_value test = rec_apply(r, OP_ne, (qn_value[]){b, value_int(0)}, 2, NULL);
  return !value_is_error(test) && !value_is_error(rec_observe(r->vm, test));
}

/* An op on host numbers failed that are an arm's or of lanes. These are placeholders, so the op may succeed in the program: clears the
 * error and gives some number of the result's type. The error value if that is not possible. */
static qn_value any_number(struct recording *r, op_id op, const qn_value *in, int nin) {
  graph_type types[3];
  op_types t;
  op_refusal why;
  if (!error_catchable(r->vm)) return value_error();
  for (int k = 0; k < nin; k++) types[k] = type_of_value(in[k]);
  if (!op_infer(NULL, op, types, nin, &(op_attr){0}, &t, &why)) return value_error();
  error_clear(r->vm);
  return t.result.dtype == WEAK_BOOL ? value_bool(false) : t.result.dtype == WEAK_FLOAT ? value_float(1) : value_int(1);
}

/* An op on host numbers only: computed at once, and appended if one of them is traced. The result, or the error value. */
static qn_value apply_to_numbers(struct recording *r, op_id op, const qn_value *in, int nin, const op_attr *attr) {
  qn_vm *vm = r->vm;
  bool traced = false, lanes = false;
  for (int k = 0; k < nin; k++) {
    traced |= rec_traced(r, in[k]) || rec_around(r, in[k]);
    lanes |= r->lanes && rec_is_lane(vm, in[k]);
  }
  qn_value safe[3];
  int guarded = lanes ? vmap_guard(r, op, in, nin, attr, safe) : 0;
  if (guarded < 0) return value_error();
  if (guarded) in = safe; /* numbers, which nobody owns */
  qn_value out = scalar_apply(vm, op, in, nin);
  if (value_is_error(out) && traced && (r->arm || lanes)) out = any_number(r, op, in, nin);
  if (!traced || value_is_error(out)) return out;
  if (op == OP_div && !divisor_stays(r, in[0], in[1])) return value_error();
  if (nin == 2 && !lanes && !vmap_expect(r, op, in)) return value_error();
  uint32_t nodes[3];
  for (int k = 0; k < nin; k++)
    if (!(nodes[k] = rec_node(r, in[k]))) return value_error();
  uint32_t node = graph_op(r->g, op, nodes, nin, attr, rec_site(r));
  if (!rec_keep(r, node, value_plain(out))) return error_pending(vm) ? value_error() : raise_memory(vm);
  return vmap_advance(r) ? value_traced(out, r->base + node) : value_error();
}

/* Makes sure that all arrays of an op are on the recording's device. False with an error raised. Else the recording may have ended, if they
 * are on another one (then vm->rec is another recording, or NULL). */
static bool place_operands(struct recording *r, op_id op, const qn_value *in, int nin) {
  int device = -1;
  for (int k = 0; k < nin; k++) {
    if (!value_is(in[k], TAG_ARRAY)) continue;
    int own = value_array(in[k])->device;
    if (device >= 0 && own != device) {
      op_raise_devices(r->vm, op_rows[op].name, device, own);
      return false;
    }
    device = own;
  }
  if (device < 0 || rec_place(r, device)) return true;
  if (!rec_break(r, BREAK_devices, NULL)) return false;
  r->device = (uint8_t)device;
  return true;
}

/* Checks that operands which are plain numbers fit the op's dtype, in which they become constants, so that this cannot fail later. False
 * with an error raised. */
static bool check_constants(struct recording *r, op_id op, const qn_value *in, int nin, const op_types *types) {
  qn_vm *vm = r->vm;
  for (int k = 0; k < nin; k++) {
    if (!value_is_scalar(in[k]) || rec_traced(r, in[k]) || types->weak || op_rows[op].klass != CLASS_POINTWISE ||
        dtype_holds(types->compute, in[k]))
      continue;
    struct recording *active = vm->rec;
    vm->rec = NULL;
    qn_value fitted = eager_apply(vm, OP_fit, &in[k], 1, &(op_attr){.dtype = (uint8_t)types->compute});
    vm->rec = active;
    if (value_is_error(fitted)) return false;
    value_release(vm, fitted);
  }
  return true;
}

/* The order of a reduction depends on how long some axes are, which are joined if they are short. In an arm: is that known? What it takes is
 * noted as facts. */
static void note_order(struct recording *r, op_id op, const graph_type *x, const op_attr *attr) {
  reduce_fold folds[ARRAY_MAX_RANK];
  if (op_rows[op].klass == CLASS_REDUCE && !type_is_fixed(x))
    (void)reduce_folds(&r->g->dims, x, attr->axes, op == OP_argmax || op == OP_argmin, NULL, folds);
}

/* Appends an op whose operands are nodes. Its result: a pending array or a traced number, owned, or the error value. */
static qn_value append_op(struct recording *r, op_id op, const qn_value *in, const uint32_t *nodes,
                          const graph_type *types, int nin, const op_attr *attr) {
  qn_vm *vm = r->vm;
  op_types inferred;
  op_refusal why;
  if (op_rows[op].shape_rule == SH_data) return apply_data_shaped(r, op, in, nin, attr, nodes);
  if (!op_infer(&r->g->dims, op, types, nin, attr, &inferred, &why)) {
    bool numbers = false; /* what does not fit may do so in the program, whose sizes are others */
    for (int k = 0; k < nin; k++) numbers |= sizes_are_numbers(r, &types[k]);
    for (int k = 0; k < attr->n; k++) numbers |= op_attr_is_dim(op, k) && dim_is_number(&r->g->dims, attr->d[k]);
    if (numbers) return rec_unknown_size(vm), value_error();
    return op_refuse(vm, op, in, nin, &why);
  }
  if (r->g->dims.numbers_of_data || r->g->dims.strict) { /* checks come before what relies on them */
    if (nin && sizes_are_numbers(r, &types[0])) note_order(r, op, &types[0], attr);
    if (!sizes_hold(r, true)) return value_error();
  }
  if (!check_constants(r, op, in, nin, &inferred)) return value_error();
  uint32_t node = graph_op_typed(r->g, op, nodes, nin, attr, &inferred, rec_site(r));
  if (!node) return raise_memory(vm);
  if (nin && (r->g->dims.strict || r->arm_sizes)) note_order(r, op, &types[0], attr);
  if (r->g->dims.strict && !sizes_hold(r, false)) return value_error();
  if (!vmap_advance(r)) return value_error();
  qn_value out = rec_value_of(r, node);
  if (value_is_error(out) && r->tries) (void)!graph_node_prove(r->g, node); /* it has failed, and does not fail again */
  if (value_is_error(out) || rec_appended(r)) return out;
  return value_fail(vm, out);
}

static qn_value rec_apply(struct recording *r, op_id op, const qn_value *in, int nin, const op_attr *attr) {
  enum { FEW = 8 };
  qn_vm *vm = r->vm;
  /* A conversion names its result's dtype, so it gives an array even if all operands are host numbers. */
  bool arrays = op_rows[op].klass != CLASS_POINTWISE || op == OP_cast || op == OP_fit;
  for (int k = 0; k < nin; k++) arrays |= value_is(in[k], TAG_ARRAY);
  if (!arrays) return apply_to_numbers(r, op, in, nin, attr);
  if (!place_operands(r, op, in, nin)) return value_error();
  if (vm->rec != r) return eager_apply(vm, op, in, nin, attr);
  graph_type few_types[FEW], *types = few_types;
  few_types[0] = (graph_type){0}; /* for ops without operands */
  uint32_t few_nodes[FEW], *nodes = few_nodes;
  size_t bytes = (size_t)nin * (sizeof *types + sizeof *nodes);
  if (nin > FEW) {
    if (!(types = mem_alloc(vm, bytes))) return value_error();
    nodes = (uint32_t *)(types + nin);
  }
  qn_value out = value_error();
  bool ok = true;
  for (int k = 0; k < nin && ok; k++) {
    if (value_is_operand(in[k])) continue;
    op_refusal no = {.id = E_type};
    snprintf(no.text, sizeof no.text, "%s takes arrays and numbers, not %s", op_rows[op].name, value_kind_name(in[k]));
    op_refuse(vm, op, in, nin, &no);
    ok = false;
  }
  for (int k = 0; k < nin && ok; k++) {
    ok = (nodes[k] = rec_node(r, in[k])) != 0;
    if (ok) types[k] = r->g->nodes[nodes[k]].type;
  }
  if (ok)
    out = append_op(r, op, in, nodes, types, nin, attr);
  else
    fail_memory(vm);
  if (types != few_types) mem_free(vm, types, bytes);
  return out;
}

qn_value op_apply(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr) {
  static const op_attr none;
  if (!attr) attr = &none;
  if (__builtin_expect(vm->rec == NULL, 1)) return eager_apply(vm, op, in, nin, attr);
  qn_value safe[LANES_GUARDED];
  int guarded = vmap_guard(vm->rec, op, in, nin, attr, safe);
  if (guarded == 0) return rec_apply(vm->rec, op, in, nin, attr);
  if (guarded < 0) return value_error();
  qn_value out = rec_apply(vm->rec, op, safe, nin, attr);
  for (int k = 0; k < nin; k++) value_release(vm, safe[k]);
  return out;
}

/* ---- observations ------------------------------------------------------------------------------------------------------------------------ */

/* The value, in the recording around all arms, of a number that an arm has computed from numbers outside of arms alone. The error value,
 * without an error raised, if it is not made of such. Looks at *left nodes at most. */
static qn_value number_outside(struct recording *r, uint32_t node, int *left) {
  const graph_node *n = &r->g->nodes[node];
  qn_value in[3], v;
  if (!n->type.weak || --*left < 0) return value_error();
  if (graph_const_value(r->g, node, &v)) return v;
  if (n->kind == NODE_INPUT) {
    uint32_t number = n->payload.input, outer = number < r->carries ? 0 : r->captures[number];
    if (!outer) return value_error();
    return r->outer->arm ? number_outside(r->outer, outer, left) : rec_value_of(r->outer, outer);
  }
  if (n->kind != NODE_OP || n->nin > 3) return value_error();
  for (int k = 0; k < n->nin; k++) {
    in[k] = number_outside(r, n->in[k], left);
    if (value_is_error(in[k])) return in[k];
  }
  op_attr attr = graph_attr(n);
  struct recording *active = r->vm->rec, *base = rec_base(r);
  r->vm->rec = base;
  base->held++; /* it must not end beneath its arms */
  v = rec_apply(base, (op_id)n->op, in, n->nin, &attr);
  base->held--;
  r->vm->rec = active;
  if (value_is_error(v) && error_catchable(r->vm)) error_clear(r->vm);
  return v;
}

bool rec_index_stays(const qn_vm *vm, qn_value v) {
  const struct recording *r = vm->rec;
  return rec_number(vm, v) && (r->arm || r->capturing || r->grads || rec_is_data(r, v) || rec_is_lane(vm, v));
}

bool rec_index_known(const qn_vm *vm, qn_value v) {
  const struct recording *r = vm->rec;
  return value_is(v, TAG_INT) && !(r->arm || r->capturing || rec_is_data(r, v) || rec_is_lane(vm, v));
}

bool rec_numbers_wait(const struct recording *r) {
  return arms_possible(r) || (!r->arm && r->capturing && !r->lanes && !r->tries && !r->vmap_held.on);
}

qn_value rec_guard(qn_vm *vm, qn_value v) {
  struct recording *r = vm->rec;
  if (!value_is_scalar(v)) return v;
  if (r && r->arm) { /* inside an arm a number from outside may be guarded, but one of the arm has no value yet */
    enum { LIFTED = 32 };
    struct recording *around = rec_around(r, v);
    uint32_t own = around ? 0 : rec_traced(r, v);
    if (own && rec_base(r)->capturing) {
      qn_value outside = number_outside(r, own, &(int){LIFTED});
      if (value_is_error(outside) && error_pending(vm)) return outside;
      if (value_is_scalar(outside) && !value_is_error(outside)) {
        v = outside;
        around = rec_base(r);
      }
    }
    bool data =
        around && !around->arm && around->capturing && rec_is_data(around, v); /* no guard can be asked for it */
    if (data || (!around && own)) return rec_give_up(r, data ? BREAK_host_read : BREAK_branch), value_error();
    vm->rec = around;
    if (around) around->held++; /* it must not end beneath its arms */
    v = around ? rec_guard(vm, v) : value_plain(v);
    if (around) around->held--;
    vm->rec = r;
    return v;
  }
  uint32_t node = r ? rec_traced(r, v) : 0;
  if (!node) return value_plain(v);
  if (vmap_whole(r, node)) return vmap_raise_read(r, v);
  if (r->hollow)
    return raise_error(vm, E_no_graph, SPAN_NONE, "a graph is being rewritten: its numbers have no values to look at");
  qn_dim d;
  if (r->capturing && r->g->nodes[node].kind == NODE_INPUT && sizes_of_number(r, node, &d)) {
    dim_assume(&r->g->dims, d, DIM_EQ, v.u.i); /* a fact about sizes, which the plan sees, too */
    return value_plain(v);
  }
  if (r->capturing) {
    if (key_number(&r->observed_nodes, node)) return value_plain(v);
    if (rec_is_data(r, v)) return rec_break(r, BREAK_host_read, NULL) ? value_plain(v) : value_error();
    if (!mem_grow(vm, (void **)&r->observed, &r->observed_cap, r->nobserved + 1, sizeof *r->observed) ||
        !key_add(vm, &r->observed_nodes, node, 1))
      return value_error();
    r->observed[r->nobserved++] = (struct observed){node, value_plain(v)};
  }
  return value_plain(v);
}

bool rec_count_traced(const qn_vm *vm, qn_value v) {
  if (vmap_reads_value(vm->rec, v)) return false;
  const struct recording *r = vm->rec;
  if (!arms_possible(r)) return false;
  if (value_is(v, TAG_INT)) return rec_traced(r, v) || rec_traced_around(r, v);
  if (!value_is(v, TAG_ARRAY) || value_array(v)->rank || !array_pending(value_array(v))) return false;
  qn_dtype d = (qn_dtype)value_array(v)->dtype;
  return dtype_is_int(d) && d != QN_u64;
}

int may_guard(struct recording *r, qn_value v) {
  enum { LIFTED = 32 };
  if (!r->arm) return !rec_is_data(r, v);
  struct recording *around = rec_around(r, v);
  if (around) return around->arm ? may_guard(around, v) : !rec_is_data(around, v);
  qn_value outside = number_outside(r, rec_traced(r, v), &(int){LIFTED});
  if (value_is_error(outside)) return error_pending(r->vm) ? -1 : 0;
  return !rec_is_data(rec_base(r), outside);
}

int rec_turn_goes(qn_vm *vm, qn_value first, qn_value end) {
  struct recording *r = vm->rec;
  qn_value c = op_binary(vm, OP_lt, first, end);
  if (value_is_error(c)) return -1;
  if (r && r->vm->rec == r && value_node(c) && arms_possible(r)) {
    int guard = may_guard(r, c);
    if (guard < 0) return -1;
    if (!guard && !rec_base(r)->timid && rec_expect(vm, c)) return error_pending(vm) ? -1 : 1;
  }
  c = rec_observe(vm, c);
  return value_is_error(c) ? -1 : c.u.i != 0;
}

int rec_same_fn(qn_vm *vm, qn_value a, qn_value b) {
  struct recording *r = vm->rec;
  bool same = fn_same(a, b);
  /* Functions made during the call are the same in each call like it: equal to themselves, and to none that was there before. So nothing
   * depends on the call. */
  if (a.u.p == b.u.p || value_fn(a)->id > r->last_fn || value_fn(b)->id > r->last_fn) return same;
  return !rec_base(r)->capturing || rec_break(r, BREAK_kind, NULL) ? same : -1;
}

static qn_value observe_leaf(void *ctx, qn_value v) {
  if (!rec_look(ctx, v)) return value_error();
  return value_is_scalar(v) ? rec_observe(ctx, v) : value_retain(v);
}

qn_value rec_guard_tree(qn_vm *vm, qn_value v) {
  if (value_is_scalar(v)) return rec_observe(vm, v);
  if (!rec_look(vm, v)) return value_error();
  if (!vm->rec || (!value_is(v, TAG_LIST) && !value_is(v, TAG_RECORD))) return value_retain(v);
  return tree_rebuild_parts(vm, v, observe_leaf, vm);
}

int rec_truth(qn_vm *vm, qn_value v, span at) {
  if (value_is(v, TAG_BOOL)) {
    v = rec_observe(vm, v);
    return value_is_error(v) ? -1 : v.u.i != 0;
  }
  if (value_is(v, TAG_ARRAY) && dtype_is_bool(value_array(v)->dtype) && value_array(v)->size == 1) {
    qn_array *a = value_array(v);
    if (vm->rec && rec_is_lane(vm, v)) {
      vmap_raise_read(vm->rec, v);
      raise_at(vm, at);
      return -1;
    }
    if (vm->rec && rec_traced(vm->rec, v)) {
      vm->rec->at = at;
      if (!rec_break(vm->rec, BREAK_branch, NULL)) return -1;
    }
    if (!array_item(vm, a, 0, &v)) return -1;
    return v.u.i != 0;
  }
  said kind = kind_said(v);
  if (value_is(v, TAG_ARRAY) && dtype_is_bool(value_array(v)->dtype))
    raise_error(vm, E_condition, at,
                "a condition needs one bool, not %s; reduce it with any(...) or all(...), or use & | ~ elementwise",
                kind.text);
  else if (value_is(v, TAG_ARRAY) || value_is_number(v))
    raise_error(vm, E_condition, at, "a condition needs a bool, not %s; write the comparison, like x != 0", kind.text);
  else if (value_is(v, TAG_NIL))
    raise_error(vm, E_condition, at, "a condition needs a bool, not nil; write x != nil");
  else
    raise_error(vm, E_condition, at, "a condition needs a bool, not %s; write the test, like len(x) > 0", kind.text);
  return -1;
}

/* ---- derivatives that a read would lose ---- */

typedef struct float_search {
  struct recording *r;
  uint8_t *marks; /* by node: 1: a float that was looked at depends on it, 2: a gradient differentiates by it */
  uint32_t last;
} float_search;

static bool mark_float(void *ctx, qn_value v) {
  float_search *s = ctx;
  uint32_t node = is_float_leaf(v) ? rec_traced(s->r, v) : 0;
  s->marks[node] |= 1;
  if (node > s->last) s->last = node;
  return true;
}

/* Does a float in `v` depend on what a gradient in progress differentiates by? 1, 0, or -1 with an error raised. */
static int differentiated(qn_vm *vm, qn_value v) {
  struct recording *r = vm->rec;
  if (!r || !r->wrt || (value_is_scalar(v) && !value_node(v))) return 0;
  const graph *g = r->g;
  float_search s = {.r = r, .marks = mem_zalloc(vm, g->n)};
  if (!s.marks) return -1;
  int found = tree_each(vm, v, mark_float, &s) ? 0 : -1;
  for (const derived_by *w = r->wrt; w; w = w->outer)
    for (uint32_t i = 0; i < w->n; i++) s.marks[w->nodes[i]] |= 2;
  for (uint32_t i = s.last; i > 0 && !found; i--) {
    const graph_node *n = &g->nodes[i];
    if (!(s.marks[i] & 1) || !dtype_is_float((qn_dtype)n->type.dtype)) continue;
    if (s.marks[i] & 2) found = 1;
    for (int k = 0; k < n->nin && n->kind == NODE_OP && n->op != OP_stop_gradient; k++) s.marks[n->in[k]] |= 1;
  }
  mem_free(vm, s.marks, g->n);
  return found;
}

static bool carries_leaf(void *ctx, qn_value v) {
  const struct recording *r = ctx;
  return !is_float_leaf(v) || (r && rec_traced(r, v));
}

/* False with an error raised if `result` holds floats that do not carry the derivative. `reads`: the builtin is declared to read data; then
 * arrays that the recording has made do carry it. */
static bool carries(qn_vm *vm, const char *name, qn_value result, bool reads) {
  if (tree_each(vm, result, carries_leaf, reads ? vm->rec : NULL)) return true;
  if (!error_pending(vm))
    raise_error(vm, E_not_diff, SPAN_NONE,
                "%s reads numbers that a gradient differentiates by, and what it gives has no derivative; "
                "stop_gradient(x) takes them as constants, custom_grad tells a derivative",
                name);
  return false;
}

/* ---- control flow and effects --------------------------------------------------------------------------------------------------------------- */

/* (Not if the graph is for somebody who has no interpreter that makes calls again, nor if the function's calls
 * mostly ended in handlers.) */
bool try_possible(const struct recording *r) {
  const struct recording *base = rec_base((struct recording *)(uintptr_t)r);
  bool asked = value_is(r->vm->asked.watched_fn, TAG_FN), refused = base->of && base->of->tries_apart;
  return base->capturing && r->vm->tune[TUNE_jit_regions] && !asked && !refused && !r->lanes && !base->lanes &&
         !vmap_aside(r) && !r->tries && !base->tries && !base->vmap_held.on;
}

bool rec_try_push(qn_vm *vm, struct recording **in) {
  struct recording *r = vm->rec;
  if (parted_wanted(r)) rec_base(r)->controls++; /* a handler that was not run may be an arm (differentiate.c) */
  if (try_possible(r)) {
    *in = rec_base(r);
    (*in)->trying++;
    (*in)->tried = true;
    return true;
  }
  if (!rec_break(r, BREAK_try_body, NULL)) return false;
  r->tries++;
  return true;
}

void rec_try_end(qn_vm *vm, struct recording *in) {
  struct recording *r = in ? in : vm->rec;
  if (in) in->trying--;
  if (r && r->tries) r->tries--;
}

/* Does a text hold a word? */
static bool has_word(const char *text, const char *word) {
  size_t n = strlen(word);
  for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
    if ((at == text || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[n])) return true;
  return false;
}

/* As messages show a host number. */
static phrase number_words(qn_value v) {
  if (value_is(v, TAG_FLOAT)) return phrase_float(v.u.f);
  phrase p;
  if (value_is(v, TAG_INT))
    snprintf(p.text, sizeof p.text, "%lld", (long long)v.u.i);
  else
    snprintf(p.text, sizeof p.text, "%s", v.u.i ? "true" : "false");
  return p;
}

/* The words of an error show this number as it is here: then they are the same in all calls that have it, which becomes a guard. In an arm it may
 * stand for another one, and the arm cannot be captured. False with an error raised. */
static bool number_stays(qn_vm *vm, qn_value v) {
  const struct recording *in = vm->rec;
  qn_value known = rec_guard(vm, v);
  if (value_is_error(known)) return false;
  if (!in || !in->arm || vm->rec != in || !strcmp(number_words(v).text, number_words(known).text)) return true;
  return rec_give_up(vm->rec, BREAK_branch);
}

/* The same of a text that waits. */
static bool text_stays(qn_vm *vm, const struct waiting_text *t) {
  return t->in && t->in->arm ? rec_give_up(vm->rec, BREAK_host_read) : rec_text_look(vm, t->text);
}

/* The message of an error may be made of host numbers of the recording, or show texts that wait, and is the same only in calls that have the same
 * ones: those whose words it has become guards. What a program raises in its own words needs none. False with an error raised. */
static bool guard_words(qn_vm *vm, const qn_error_object *e) {
  const char *text = e->message->text;
  if (e->id == E_user || e->id == E_assertion) return true;
  struct recording *in = vm->rec;
  for (struct recording *r = in; r; r = r->arm ? r->outer : NULL)
    for (uint32_t i = 1; i < r->g->n && i < r->vals_cap; i++) {
      const graph_node *n = &r->g->nodes[i];
      if (!n->type.weak || n->kind == NODE_CONST || !value_is_scalar(r->vals[i])) continue;
      qn_value v = value_plain(r->vals[i]);
      if (!has_word(text, number_words(v).text)) continue;
      if (!number_stays(vm, value_traced(v, r->base + i))) return false;
      if (vm->rec != in || !rec_base(in)->capturing) return true; /* the capture has ended */
    }
  struct recording *base = in ? rec_base(in) : NULL;
  for (uint32_t i = 0; base && i < base->ntexts; i++) {
    const struct waiting_text *t = &base->texts[i];
    if (!rec_text_of(in, t->text) || !strstr(text, kind_said(t->text).text)) continue;
    if (!text_stays(vm, t)) return false;
    if (vm->rec != in || !base->capturing) return true;
  }
  return true;
}

/* Guards the numbers among some values, and in lists of them. False with an error raised. */
static bool guard_numbers(qn_vm *vm, const qn_value *values, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const qn_list *l = value_is(values[i], TAG_LIST) ? value_list(values[i]) : NULL;
    if (l && !guard_numbers(vm, l->items, l->len)) return false;
    if (value_is_scalar(values[i]) && value_node(values[i]) && !number_stays(vm, values[i])) return false;
  }
  return true;
}

void rec_builtin_failed(qn_vm *vm, const qn_value *args, int nargs) {
  const struct recording *base = vm->rec ? rec_base(vm->rec) : NULL;
  if (!base || !base->capturing || (!base->tries && !base->trying) || !error_catchable(vm)) return;
  qn_error_object *e = error_take(vm);
  if (guard_numbers(vm, args, (size_t)nargs))
    error_put_back(vm, e);
  else
    error_free(vm, e);
}

bool rec_try_caught(qn_vm *vm, const struct recording *in, const qn_error_object *e, bool seen) {
  if (!in || !in->capturing) return true;
  if (seen && !guard_words(vm, e)) return false;
  if (!vm->rec) return true;
  /* (what sizes make a shape wrong is no guard; and there may be memory next time) */
  if (!rec_symbolic(vm) && e->id != E_memory && e->id != E_too_large) return true;
  return rec_break(vm->rec, BREAK_try_body, NULL);
}

/* What *told says of a builtin that is about to run (rec_builtin). */
enum {
  TOLD_LOSSY = 1, /* it reads floats that a gradient differentiates by */
  TOLD_TAP = 2,   /* it is a tap of vm_jit.tapping, and vm->rec is NULL meanwhile */
  TOLD_TEXT =
      4 /* as TOLD_TAP for what makes a text that will wait; vm_jit.tapping->text_parts is what it makes it of */
};

/* Can a tap become a step of the recording in progress, perhaps one that all lanes of a vmap make together? */
static bool steps_possible(const struct recording *r) {
  const struct recording *base = rec_base((struct recording *)(uintptr_t)r);
  return base->capturing && !vmap_aside(r) && !base->vmap_held.on && !(r->arm ? r->lenient : r->hollow);
}

/* Can it be one outside of vmaps? */
static bool taps_possible(const struct recording *r) {
  const struct recording *base = rec_base((struct recording *)(uintptr_t)r);
  return steps_possible(r) && !base->lanes && !r->lanes;
}

/* Can it be one that all lanes make together? `some`: only some of them may be at work. */
static bool taps_of_lanes(const struct recording *r, bool some) {
  if (!r->lanes || !value_is(r->active, some ? TAG_ARRAY : TAG_NIL) || !steps_possible(r)) return false;
  while (r->arm && !r->outer->lanes) r = r->outer;
  return !r->arm;
}

/* For tree_rebuild_parts: an array gets the data that it has in the recording, a number becomes plain. */
static qn_value data_leaf(void *ctx, qn_value v) {
  struct recording *r = ctx;
  if (value_is_scalar(v)) return value_plain(v);
  uint32_t node = value_is(v, TAG_ARRAY) ? rec_traced(r, v) : 0;
  return value_retain(node ? r->vals[node] : v);
}

/* The interpreter is going to call a builtin on arguments with data, outside of the recording. */
static void step_aside(struct recording *r) {
  qn_vm *vm = r->vm;
  r->tapping = jit_of(vm)->tapping;
  jit_of(vm)->tapping = r;
  /* A host that it calls may record calls of its own: their nodes get other ids. */
  if (vm->next_node < r->base + r->g->n) vm->next_node = r->base + r->g->n;
  draws_settle(r);
  vm->rec = NULL;
}

/* It has been called: the recording goes on. */
static struct recording *step_back(qn_vm *vm) {
  struct recording *r = jit_of(vm)->tapping;
  jit_of(vm)->tapping = r->tapping;
  r->tapping = NULL;
  vm->rec = r;
  return r;
}

/* A tap of an arm: is only noted. Of another recording: the interpreter makes it now, on arguments with data. As rec_builtin_call;
 * REC_NOT_YET with *told 0: the recording has ended. */
static rec_answer make_tap(struct recording *r, const builtin_def *def, qn_value *args, int nargs, span at, int *told,
                           qn_value *result) {
  qn_vm *vm = r->vm;
  struct recording *base = rec_base(r);
  qn_list *all = list_from(vm, args, (size_t)nargs);
  tpl_list t = {0};
  node_list nodes = {0};
  break_reason broken = BREAK_none;
  bool ok = all && template_of_tap(r, value_obj(TAG_LIST, all), &t, &nodes, &broken);
  if (all) value_release(vm, value_obj(TAG_LIST, all));
  ok = ok && base->capturing && (r->arm || rec_run_pending(r)) && nodes.n <= UINT16_MAX;
  uint32_t node = 0;
  if (ok && taps_add(vm, &base->taps, def, at, &t)) {
    t = (tpl_list){0};
    node = graph_tap(r->g, base->taps.n - 1, nodes.nodes, (int)nodes.n, false, rec_site(r));
    if (!rec_keep(r, node, value_nil())) node = 0;
    if (!node) fail_memory(vm);
  }
  nodes_free(vm, &nodes);
  template_free(vm, &t);
  if (error_pending(vm)) return REC_FAILED;
  if (!node) return rec_break(r, BREAK_effect, def->name) ? REC_NOT_YET : REC_FAILED;
  if (r->arm) {
    *result = value_nil();
    return rec_appended(r) ? REC_DONE : REC_FAILED;
  }
  for (int i = 0; i < nargs; i++) {
    qn_value data = tree_rebuild_parts(vm, args[i], data_leaf, r);
    if (value_is_error(data)) return REC_FAILED;
    value_release(vm, args[i]);
    args[i] = data;
  }
  *told = TOLD_TAP;
  step_aside(r);
  return REC_NOT_YET;
}

/* What the program has now, of what the recording has made since the last tap: at most so many nodes, the last ones. */
static uint32_t nodes_held(const struct recording *r, uint32_t *out, uint32_t most) {
  uint32_t n = 0;
  for (uint32_t i = r->g->n; i-- > 1 && n < most && r->g->nodes[i].kind != NODE_TAP;)
    if (i < r->vals_cap && graph_is_run(&r->g->nodes[i]) && rec_held(r, i) && !(r->lanes && vmap_whole(r, i)))
      out[n++] = i;
  return n;
}

/* A number is read from outside. As make_tap, but the interpreter reads it here, or nobody does in an arm. */
static rec_answer make_reading(struct recording *r, const builtin_def *def, span at, qn_value *result) {
  enum { HELD = 64 };
  qn_vm *vm = r->vm;
  struct recording *base = rec_base(r);
  if (!vmap_advance(r)) return REC_FAILED;
  uint32_t held[HELD], n = nodes_held(r, held, HELD);
  qn_value number = value_float(1); /* in an arm any one will do */
  if (!r->arm) {
    if (!rec_run_pending(r)) return REC_FAILED;
    if (vm->rec != r || !base->capturing) return REC_NOT_YET;
    step_aside(r);
    number = def->call(vm, NULL);
    step_back(vm);
    if (value_is_error(number) || !tap_run_read(&r->tap_run, number.u.f)) return REC_FAILED;
  }
  qn_list *none = list_new(vm, 0);
  tpl_list t = {0};
  node_list nodes = {0};
  break_reason broken = BREAK_none;
  bool ok = none && template_of_tap(r, value_obj(TAG_LIST, none), &t, &nodes, &broken);
  if (none) value_release(vm, value_obj(TAG_LIST, none));
  nodes_free(vm, &nodes);
  if (!ok) {
    template_free(vm, &t);
    return error_pending(vm) || !fail_memory(vm) ? REC_FAILED : REC_NOT_YET;
  }
  if (!taps_add(vm, &base->taps, def, at, &t)) return REC_FAILED;
  uint32_t node = graph_tap(r->g, base->taps.n - 1, held, (int)n, true, rec_site(r));
  if (!rec_keep(r, node, number)) return fail_memory(vm), REC_FAILED;
  *result = value_traced(number, r->base + node);
  return rec_appended(r) ? REC_DONE : REC_FAILED;
}

/* May what a builtin reads become a step of the recording in progress? Not within a try, which may be left behind the step, nor in arms and turns
 * of which a gradient is taken, which may be computed once more. */
static bool reading_possible(const struct recording *r) {
  return (taps_possible(r) || taps_of_lanes(r, false) || taps_of_lanes(r, true)) &&
         !rec_base((struct recording *)(uintptr_t)r)->trying && !(r->arm && rec_derivatives(r)) &&
         !value_is(r->vm->asked.watched_fn, TAG_FN);
}

/* A step that all lanes make together, if any lane is at work. */
typedef struct lanes_step {
  qn_vm *vm;
  const builtin_def *def;
  qn_value *args;
  int nargs;
  span at;
} lanes_step;

static qn_value run_step(void *ctx, rec_exit *how) {
  const lanes_step *s = ctx;
  int told = 0;
  qn_value result = value_nil();
  rec_answer answer = s->def->work == WORK_READING
                          ? make_reading(s->vm->rec, s->def, s->at, &result)
                          : make_tap(s->vm->rec, s->def, s->args, s->nargs, s->at, &told, &result);
  *how = answer == REC_DONE ? REC_VALUE : REC_ERROR;
  if (answer == REC_NOT_YET && !error_pending(s->vm)) (void)(rec_give_up(s->vm->rec, BREAK_effect) || true);
  return answer == REC_DONE ? result : value_error();
}

/* What such a step gives where no lane is. */
static qn_value no_step(const builtin_def *def) { return def->work == WORK_READING ? value_float(1) : value_nil(); }

static qn_value run_no_step(void *ctx, rec_exit *how) {
  (void)how;
  return no_step(((const lanes_step *)ctx)->def);
}

/* As rec_builtin_call, for a tap or a reading where only some lanes may be at work. */
static rec_answer make_lanes_step(struct recording *r, const builtin_def *def, qn_value *args, int nargs, span at,
                                  qn_value *result) {
  lanes_step s = {r->vm, def, args, nargs, at};
  rec_branch of = {.at = at, .then = {run_step, &s}, .otherwise = {run_no_step, &s}, .used = true};
  return vmap_where_any(r, &of, args, nargs, result);
}

/* ---- texts that wait ---- */

static bool waits_for_nothing(void *ctx, qn_value v) {
  const struct recording *r = ctx;
  if (rec_text_of(r, v)) return false;
  if (!value_is_operand(v)) return true;
  return !rec_traced(r, v) && !rec_traced_around(r, v) && !(value_is(v, TAG_ARRAY) && array_pending(value_array(v)));
}

/* Is there something in v that a text would wait for (or a text that waits)? 1, 0, or -1 with an error raised. */
static int holds_waiting(struct recording *r, qn_value v) {
  if (tree_each_part(r->vm, v, waits_for_nothing, r)) return 0;
  return error_pending(r->vm) ? -1 : 1;
}

bool rec_try_catches(const qn_vm *vm, const struct recording *in) {
  if (vm->rec && rec_base(vm->rec)->restart && vm->error->id == E_internal) return false; /* (fork_wanted) */
  if (in && in->again) return false;
  if (!in || !vm->rec || !vm->rec->arm) return true;
  if (!way_raises(vm) || vm->error->unseen) return false;
  /* (a handler may look at its words, which an arm does not have) */
  vm->error->unseen = vm->error->message->head.flags & STR_WAITS || holds_waiting(vm->rec, vm->error->payload) != 0;
  return !vm->error->unseen;
}

int rec_text_waits(qn_vm *vm, qn_value v) { return vm->rec && taps_possible(vm->rec) ? holds_waiting(vm->rec, v) : 0; }

qn_value rec_text_data(qn_vm *vm, qn_value v) {
  struct recording *r = vm->rec;
  if (r->arm) return value_unset();
  return rec_run_pending(r) ? tree_rebuild_parts(vm, v, data_leaf, r) : value_error();
}

/* For tree_rebuild_parts: what stands in an arm for a value without data where only its kind matters. */
static qn_value kind_leaf(void *ctx, qn_value v) {
  struct recording *r = ctx;
  if (value_is_scalar(v)) return value_plain(v);
  if (rec_text_of(r, v)) {
    qn_str *some = str_new(r->vm, "-", 1);
    return some ? value_obj(TAG_STR, some) : value_error();
  }
  if (!value_is(v, TAG_ARRAY) || waits_for_nothing(r, v)) return value_retain(v);
  qn_dtype dtype = (qn_dtype)value_array(v)->dtype;
  qn_array *one = array_from_scalar(r->vm, dtype, dtype_is_bool(dtype) ? value_bool(false) : value_int(0));
  return one ? value_obj(TAG_ARRAY, one) : value_error();
}

/* A text cannot be made of such kinds of values: then the arm, in which the words of the error would be those of other values, is not captured. False
 * with an error raised. */
static bool kinds_fit(struct recording *r, bool fit) {
  if (fit || !error_catchable(r->vm)) return fit;
  error_clear(r->vm);
  return rec_give_up(r, BREAK_branch);
}

void rec_text_failed(qn_vm *vm) {
  struct recording *r = vm->rec;
  if (!r || r->arm || !r->capturing || !error_catchable(vm)) return;
  qn_error_object *e = error_take(vm);
  if (rec_break(r, BREAK_host_read, NULL))
    error_put_back(vm, e);
  else
    error_free(vm, e);
}

bool rec_text_fits(qn_vm *vm, qn_value v, qn_value how) {
  struct recording *r = vm->rec;
  if (!r->arm || value_is(how, TAG_NIL)) return true;
  qn_value some = tree_rebuild_parts(vm, v, kind_leaf, r);
  if (value_is_error(some)) return false;
  text_buf t = {.vm = vm};
  vm->rec = NULL;
  bool fit = format_part(vm, some, how, &t, &(bool){false});
  vm->rec = r;
  text_free(&t);
  value_release(vm, some);
  return kinds_fit(r, fit);
}

/* Can `def` make a text of such kinds of arguments? False with an error raised. */
static bool arguments_fit(struct recording *r, const builtin_def *def, qn_value all) {
  qn_vm *vm = r->vm;
  qn_value some = tree_rebuild_parts(vm, all, kind_leaf, r);
  if (value_is_error(some)) return false;
  vm->rec = NULL;
  qn_value made = def->call(vm, value_list(some)->items);
  vm->rec = r;
  value_release(vm, some);
  if (!value_is_error(made)) value_release(vm, made);
  return kinds_fit(r, !value_is_error(made));
}

bool rec_text_made(qn_vm *vm, qn_value *text, const builtin_def *def, qn_value parts) {
  enum { TEXTS_MOST = 1 << 20 }; /* bytes of all texts that wait; a text that grows is there in each of its lengths */
  struct recording *r = vm->rec;
  if (!r || !taps_possible(r) || rec_text_of(r, *text)) return true;
  struct recording *base = rec_base(r);
  qn_str *s = value_str(*text);
  base->text_bytes += (size_t)s->len;
  if (base->text_bytes > TEXTS_MOST) return rec_break(r, BREAK_host_read, NULL);
  if (s->head.refs > 1 || (s->head.flags & STR_INTERNED)) { /* others have it, too, who do not wait */
    qn_str *own = str_new(vm, s->text, s->len);
    if (!own) return false;
    value_release(vm, *text);
    *text = value_obj(TAG_STR, own);
    s = own;
  }
  if (!mem_grow(vm, (void **)&base->texts, &base->texts_cap, base->ntexts + (size_t)1, sizeof *base->texts) ||
      !key_add(vm, &base->text_numbers, (uintptr_t)s, base->ntexts + 1))
    return false;
  s->head.flags |= STR_WAITS;
  base->texts[base->ntexts++] = (struct waiting_text){value_retain(*text), value_retain(parts), def, r};
  return true;
}

bool rec_text_is(const qn_vm *vm, qn_value v) { return rec_text_of(vm->rec, v) != NULL; }

/* Of the parts of a text that waits: is each one plain, a number that a guard can be asked for, or a text of such parts? With `guard` they are
 * guarded; then false means that an error was raised. */
typedef struct text_parts {
  qn_vm *vm;
  const struct recording *base;
  bool guard;
  int depth;
} text_parts;

static bool part_is_guarded(void *ctx, qn_value v) {
  enum { TEXTS_DEEP = 32 };
  const text_parts *s = ctx;
  const struct waiting_text *text = rec_text_of(s->base, v);
  if (text) {
    text_parts inner = {s->vm, s->base, s->guard, s->depth + 1};
    return inner.depth < TEXTS_DEEP && text->in == s->base &&
           tree_each_part(s->vm, text->parts, part_is_guarded, &inner);
  }
  if (!value_is_operand(v)) return true;
  if (!value_is_scalar(v)) return !rec_traced(s->base, v) && !array_pending(value_array(v));
  if (!s->guard) return !rec_is_data(s->base, v) && (rec_traced(s->base, v) || !value_node(v));
  return !value_is_error(rec_guard(s->vm, v));
}

bool rec_text_look(qn_vm *vm, qn_value v) {
  const struct recording *base = rec_base(vm->rec);
  text_parts s = {vm, base, false, 0};
  bool ok = base->capturing && !base->hollow && part_is_guarded(&s, v);
  if (!ok) return !error_pending(vm) && rec_break(vm->rec, BREAK_host_read, NULL);
  s.guard = true;
  if (!part_is_guarded(&s, v)) return error_pending(vm) ? false : rec_break(vm->rec, BREAK_host_read, NULL);
  value_str(v)->head.flags &= (uint8_t)~STR_WAITS;
  return true;
}

/* A builtin may look at all texts in v. */
static bool look_at_texts(void *ctx, qn_value v) { return rec_look(ctx, v); }

/* May it look at texts in an argument? */
static bool looks_at_texts(const builtin_def *def, const signature *sig, int i, qn_value v) {
  return def->work != WORK_HOLDS || !sig->params[i].sized || (i == 0 && value_is(v, TAG_STR));
}

/* A builtin that makes a text of what waits. In an arm the text has no bytes yet; else the interpreter calls the builtin, on arguments with
 * data. As rec_builtin_call; REC_NOT_YET with *told 0: nothing among the arguments waits. */
static rec_answer make_text(struct recording *r, const builtin_def *def, qn_value *args, int nargs, int *told,
                            qn_value *result) {
  qn_vm *vm = r->vm;
  int waits = 0;
  for (int i = 0; i < nargs && !waits; i++) waits = holds_waiting(r, args[i]);
  if (waits <= 0) return waits ? REC_FAILED : REC_NOT_YET;
  qn_list *parts = list_from(vm, args, (size_t)nargs);
  if (!parts) return REC_FAILED;
  qn_value all = value_obj(TAG_LIST, parts);
  rec_answer answer = REC_FAILED;
  if (r->arm) {
    qn_str *none = arguments_fit(r, def, all) ? str_new(vm, "", 0) : NULL;
    *result = none ? value_obj(TAG_STR, none) : value_error();
    if (none && rec_text_made(vm, result, def, all))
      answer = REC_DONE;
    else if (none)
      value_release(vm, *result);
  } else if (rec_run_pending(r)) {
    answer = REC_NOT_YET;
    for (int i = 0; i < nargs && answer != REC_FAILED; i++) {
      qn_value data = tree_rebuild_parts(vm, args[i], data_leaf, r);
      if (value_is_error(data)) {
        answer = REC_FAILED;
      } else {
        value_release(vm, args[i]);
        args[i] = data;
      }
    }
    if (answer == REC_NOT_YET) {
      r->text_parts = value_retain(all);
      *told = TOLD_TEXT;
      step_aside(r);
    }
  }
  value_release(vm, all);
  return answer;
}

qn_value rec_told(qn_vm *vm, const builtin_def *def, int told, qn_value result) {
  if (told & TOLD_TAP) step_back(vm)->tap_run.plan.made += !value_is_error(result);
  if (told & TOLD_TEXT) {
    struct recording *r = step_back(vm);
    qn_value parts = r->text_parts;
    r->text_parts = value_nil();
    if (value_is_error(result))
      rec_text_failed(vm);
    else if (!rec_text_made(vm, &result, def, parts))
      result = value_fail(vm, result);
    value_release(vm, parts);
    return result;
  }
  if (!(told & TOLD_LOSSY) || value_is_error(result) || carries(vm, def->name, result, def->effect == BUILTIN_READ))
    return result;
  return value_fail(vm, result);
}

/* An error in an arm, in words that wait (a text, or a record that holds what waits). A handler that is captured in the arm may see it. */
typedef struct unworded {
  qn_vm *vm;
  error_id id;
  qn_value words; /* borrowed */
} unworded;

static qn_value run_unworded(void *ctx, rec_exit *how) {
  const unworded *u = ctx;
  qn_vm *vm = u->vm;
  *how = REC_ERROR;
  qn_value text = u->words;
  if (value_is(text, TAG_RECORD)) {
    const qn_record *fields = value_record(text);
    int id = record_find_text(fields, "id", 2), message = record_find_text(fields, "message", 7);
    if (id >= 0 && rec_text_of(vm->rec, fields->items[id])) return rec_give_up(vm->rec, BREAK_host_read), value_error();
    raise_record(vm, SPAN_NONE, text);
    raise_outside(vm, vm->rec->at); /* (as a builtin that has failed) */
    raise_through(vm, vm->rec->at, NULL);
    text = message >= 0 ? fields->items[message] : value_nil();
  } else {
    raise_error(vm, u->id, SPAN_NONE, "in words that wait");
  }
  qn_error_object *e = vm->error;
  if (!way_raises(vm) || e->refs > 1 || !rec_text_of(vm->rec, text)) return value_error();
  value_release(vm, value_obj(TAG_STR, e->message));
  e->message = value_str(value_retain(text));
  return value_error();
}

static rec_answer raise_unworded(struct recording *r, qn_value words) {
  if (!r->arm || !way_may_exit(r)) return REC_NOT_YET;
  unworded u = {r->vm, E_user, words};
  rec_exit how;
  (void)run_unworded(&u, &how);
  return REC_FAILED;
}

/* A builtin that fails, or fails unless a condition holds, in words that wait (WORK_CHECK). As rec_builtin_call. */
static rec_answer fail_unworded(qn_vm *vm, const builtin_def *def, const qn_value *args, qn_value *result) {
  struct recording *r = vm->rec;
  if (def->effect == BUILTIN_RAISES) {
    bool words = r->arm && (value_is(args[0], TAG_STR) || value_is(args[0], TAG_RECORD));
    int waits = words ? holds_waiting(r, args[0]) : 0;
    return waits < 0 ? REC_FAILED : waits ? raise_unworded(r, args[0]) : REC_NOT_YET;
  }
  if (def->work != WORK_CHECK || !rec_waits(vm, args[1]) || rec_in_vmap(vm)) return REC_NOT_YET;
  *result = value_nil();
  unworded u = {vm, E_assertion, args[1]};
  rec_answer answer = rec_assert(vm, args[0], (rec_arm){run_unworded, &u});
  if (answer != REC_NOT_YET) return answer;
  if (rec_expected(vm, args[0])) return error_pending(vm) ? REC_FAILED : REC_DONE;
  if (!value_is(args[0], TAG_BOOL) || rec_is_data(r, args[0])) return REC_NOT_YET;
  int truth = rec_truth(vm, args[0], SPAN_NONE);
  return truth < 0 ? REC_FAILED : truth ? REC_DONE : vm->rec == r ? raise_unworded(r, args[1]) : REC_NOT_YET;
}

rec_answer rec_builtin_call(qn_vm *vm, const builtin_def *def, const signature *sig, qn_value *args, span at,
                            bool unused, int *told, qn_value *result) {
  rec_at(vm, at);
  builtin_effect effect = def->effect;
  bool tap = effect == BUILTIN_TAP || (effect == BUILTIN_DRAWS && unused),
       of_lanes = tap && taps_of_lanes(vm->rec, false);
  bool outward = effect == BUILTIN_READ || effect == BUILTIN_DRAWS || effect == BUILTIN_STATE;
  if (tap || outward || def->work == WORK_RANDOM) rec_base(vm->rec)->effects++;
  bool reads = def->work == WORK_READING && reading_possible(vm->rec);
  if ((tap || reads) && taps_of_lanes(vm->rec, true)) {
    rec_answer answer = make_lanes_step(vm->rec, def, args, sig->nparams, at, result);
    if (answer != REC_NOT_YET) return answer;
    reads = false;
  }
  if (vm->rec &&
      (tap || def->work == WORK_READING)) { /* where no lane is, it is passed over, and what follows concerns none */
    int any = vmap_any(vm->rec);
    if (any <= 0) return *result = no_step(def), any < 0 ? REC_FAILED : REC_DONE;
  }
  if (of_lanes && !vmap_effect(vm->rec, def, args, sig->nparams)) return REC_FAILED;
  if (of_lanes || (tap && taps_possible(vm->rec))) {
    rec_answer answer = make_tap(vm->rec, def, args, sig->nparams, at, told, result);
    if (answer != REC_NOT_YET || *told) return answer;
  }
  if (reads) {
    rec_answer answer = make_reading(vm->rec, def, at, result);
    if (answer != REC_NOT_YET) return answer;
  }
  if (vm->rec && def->work == WORK_TEXT && taps_possible(vm->rec)) {
    rec_answer answer = make_text(vm->rec, def, args, sig->nparams, told, result);
    if (answer != REC_NOT_YET || *told) return answer;
  }
  if (vm->rec) {
    rec_answer answer = fail_unworded(vm, def, args, result);
    if (answer != REC_NOT_YET) return answer;
  }
  for (int i = 0; i < sig->nparams && vm->rec && rec_base(vm->rec)->ntexts;
       i++) /* who knows whether it looks at them? */
    if (looks_at_texts(def, sig, i, args[i]) && !tree_each_part(vm, args[i], look_at_texts, vm)) return REC_FAILED;
  bool followed = def->work == WORK_RANDOM && vm->rec && taps_possible(vm->rec);
  bool effects = !followed && effect != BUILTIN_PURE && effect != BUILTIN_HIGHER && effect != BUILTIN_CHOICE &&
                 !(effect == BUILTIN_RAISES && vm->rec && (vm->rec->arm || vmap_catches(vm->rec)));
  /* their results only give back what they were given */
  bool outputs =
      effect == BUILTIN_TAP || effect == BUILTIN_DRAWS || effect == BUILTIN_STATE || effect == BUILTIN_RAISES;
  if (effect == BUILTIN_READ && def->work != WORK_READING && vm->rec) fullgraph_ends(vm->rec, BREAK_effect, def->name);
  if (effects && vm->rec &&
      !(vmap_effect(vm->rec, def, args, sig->nparams) && rec_break(vm->rec, BREAK_effect, def->name)))
    return REC_FAILED;
  for (int i = 0; vm->rec && i < sig->nparams; i++) {
    if (!sig->params[i].sized && !rec_sizes_seen(vm, args[i])) return REC_FAILED;
    if (sig->params[i].data || !(value_node(args[i]) || value_is_data(args[i]))) continue;
    bool array = value_is(args[i], TAG_ARRAY);
    if (!outputs && !(*told & TOLD_LOSSY) && (!array || effect == BUILTIN_READ)) {
      int reads = differentiated(vm, args[i]);
      if (reads < 0) return REC_FAILED;
      if (reads) *told |= TOLD_LOSSY;
    }
    if (array) continue;
    qn_value plain = rec_observe_tree(vm, args[i]);
    if (value_is_error(plain)) return REC_FAILED;
    value_release(vm, args[i]);
    args[i] = plain;
  }
  return REC_NOT_YET;
}

/* ---- globals ---------------------------------------------------------------------------------------------------------------------------------- */

qn_value rec_root(qn_vm *vm, rec_cell *cell, qn_value *slot, qn_str *name) {
  struct recording *r = rec_base(vm->rec);
  if (!r->capturing) return value_retain(*slot);
  uint32_t known = key_number(&r->globals, (uintptr_t)slot);
  if (rec_grows(vm, *slot)) return rec_give_up(vm->rec, BREAK_grows), value_error();
  if (known == GLOBAL_GROWN && !rec_break(vm->rec, BREAK_grows, name->text)) return value_error();
  if (known == GLOBAL_CARRIED || known == GLOBAL_GROWN) return value_retain(*slot);
  if (known) return value_retain(r->pattern.roots[known - 1].tracer);
  known = r->pattern.nroots + 1;
  qn_value v = pattern_root(r, ROOT_GLOBAL, *slot, slot, cell, name);
  const jit_anchor *reader = r->ncalls ? r->callees[r->ncalls - 1] : r->of ? r->of->anchor : NULL;
  if (!value_is_error(v)) r->pattern.roots[known - 1].library = reader && place_in_library(vm, reader->at);
  if (value_is_error(v) || key_add(vm, &r->globals, (uintptr_t)slot, known)) return v;
  return value_fail(vm, v);
}

bool rec_grows_unseen(const qn_vm *vm, const qn_value *slot) {
  const struct recording *r = vm->rec ? rec_base(vm->rec) : NULL;
  return r && r->capturing && key_number(&r->globals, (uintptr_t)slot) == GLOBAL_GROWN;
}

void rec_global_changed(qn_vm *vm, rec_cell *cell, qn_value old, qn_value now) {
  (void)old, (void)now;
  if (cell->watched && vm->jit) jit_of(vm)->epoch++;
}

/* ---- life of the VM's part ------------------------------------------------------------------------------------------------------------------------ */

static void jit_close(qn_vm *vm) {
  vm_jit *j = jit_of(vm);
  if (!j) return;
  if (vm->rec) rec_free(vm->rec);
  left_over_free(vm);
  engine_jit_forget(vm);
  /* What a specialization's template holds may be a graph, and freeing that closes its anchor: so the list may change here. */
  for (anchor_specializations *e; (e = j->anchors);) {
    j->anchors = e->next;
    if (e->anchor) e->anchor->entries = NULL;
    anchor_specializations_free(vm, e);
  }
  for (chain_anchor *c = j->chains, *next; c; c = next) {
    next = c->next;
    mem_free(vm, c, sizeof *c);
  }
  j->chains = NULL;
  backends_close(vm);
  rewrites_close(vm);
  if (j->keywords) value_release(vm, value_obj(TAG_STR, j->keywords));
  mem_free(vm, j->met.all, j->met.capacity * sizeof *j->met.all);
  mem_free(vm, j, sizeof *j);
  vm->jit = NULL;
  devices_close(vm);
}

bool jit_open(qn_vm *vm) {
  if (vm->next_node == 0) vm->next_node = 1;
  vm->hooks.force = rec_force;
  vm->hooks.same_fn = rec_same_fn;
  vm->hooks.close_jit = jit_close;
  body_open(vm);
  graphs_open(vm);
  if (!devices_open(vm)) return false;
  vm->jit = mem_zalloc(vm, sizeof(vm_jit));
  if (!vm->jit) return false;
  jit_of(vm)->keywords = str_intern(vm, "keywords", strlen("keywords"));
  return jit_of(vm)->keywords && engine_jit_open(vm);
}
