/* Graphs run node by node (nodes.h).
 *
 * Regions are run as their nodes mean it: an arm by its condition, a body as long as the loop goes on. The rows that a loop keeps of its
 * results are collected by the same rule of slots as in plans (jit/run/plan_run.c).
 *
 * A region owns what it is handed and nobody uses after it: a loop's body its carried values, and within regions an arm or an inner loop what
 * the nodes behind it do not need. So an update of an element stores it in place, and a loop of n updates of n elements costs n, not n squared.
 */
#include "jit/trace/nodes.h"

#include <string.h>

#include "jit/run/eager.h"
#include "jit/run/eager_index.h"
#include "jit/trace/anchors.h"

void nodes_raise_site(qn_vm *vm, const graph *g, uint32_t site) {
  if (!site || site >= g->nsites) return;
  bool placed = vm->error && vm->error->at.source; /* by a graph within */
  raise_at(vm, g->sites[site].at);
  for (uint32_t up; (up = g->sites[site].parent) != 0; site = up) {
    const char *function = g->sites[site].function;
    if (!placed) {
      qn_error_object *e = error_take(vm); /* a name that finds no memory is left out */
      qn_str *name = function ? str_intern(vm, function, strlen(function)) : NULL;
      error_clear(vm);
      error_put_back(vm, e);
      raise_frame(vm, g->sites[site].at, name);
      if (name) value_release(vm, value_obj(TAG_STR, name));
      raise_outside(vm, g->sites[up].at);
    }
    raise_through(vm, g->sites[up].at, function);
  }
  raise_through(vm, SPAN_NONE, g->sites[site].function);
}

qn_value const_value(qn_vm *vm, const graph_node *n, int device) {
  if (n->type.weak) return dtype_load((qn_dtype)n->type.dtype, n->payload.data);
  qn_array *a = array_new(vm, (qn_dtype)n->type.dtype, n->type.rank, n->type.shape);
  if (!a) return value_error();
  memcpy(array_data(a), n->payload.data, (size_t)a->size * dtype_size((qn_dtype)n->type.dtype));
  if (!device) return value_obj(TAG_ARRAY, a);
  qn_array *there = array_to_device(vm, a, device);
  value_release(vm, value_obj(TAG_ARRAY, a));
  return there ? value_obj(TAG_ARRAY, there) : value_error();
}

/* ---- regions ----------------------------------------------------------------------------------------------------------------- */

static void release_all(qn_vm *vm, qn_value *v, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) value_release(vm, v[i]);
}

/* For each node of a graph the last node that needs its value; past the end: it is needed for longer, as an output or for a size. */
typedef struct last_uses {
  uint32_t *of, few[64];
  size_t bytes; /* of memory that `of` is in; 0: in few */
} last_uses;

static bool uses_find(qn_vm *vm, const graph *g, last_uses *u) {
  u->of = u->few;
  u->bytes = g->n > sizeof u->few / sizeof *u->few ? g->n * sizeof *u->of : 0;
  if (u->bytes && !(u->of = mem_alloc(vm, u->bytes))) return false;
  for (uint32_t i = 0; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    u->of[i] = i;
    for (int k = 0; k < n->nin; k++) u->of[n->in[k]] = i;
  }
  for (uint32_t k = 0; k < g->noutputs; k++) u->of[g->outputs[k]] = g->n;
  for (uint32_t e = 0; e < g->dims.n; e++) {
    const dim_expr *d = &g->dims.exprs[e];
    if (d->op == DIM_SYMBOL) u->of[dim_of_node(d->source) ? d->ref : g->inputs[d->ref]] = g->n;
  }
  return true;
}

static void uses_drop(qn_vm *vm, last_uses *u) {
  if (u->bytes) mem_free(vm, u->of, u->bytes);
}

/* The values that a graph computes with: those of its inputs, borrowed, unless they are given: given[i] is owned then, and may be taken, and
 * unset if it is not given. */
typedef struct handed {
  const qn_value *in;
  qn_value *given; /* or NULL */
  uint32_t ngiven;
} handed;

static uint32_t run_nodes(qn_vm *vm, const graph *g, const handed *h, int device, plan_taps *taps, qn_value *vals,
                          const uint32_t *last);

/* The values of a region's nodes, owned. */
typedef struct part_values {
  qn_value *vals, *more; /* more: the memory, or NULL */
  uint32_t n;
  last_uses uses;
} part_values;

static void part_drop(qn_vm *vm, void *part) {
  part_values *p = part;
  release_all(vm, p->vals, p->n);
  if (p->more) mem_free(vm, p->more, p->n * sizeof *p->more);
  uses_drop(vm, &p->uses);
}

/* Runs a region. last: as in last_uses, or NULL: it is found here. outs[i] gets its output i, owned. False with an error raised. */
static bool run_part(qn_vm *vm, const graph *g, const handed *h, int device, plan_taps *taps, const uint32_t *last,
                     qn_value *outs) {
  qn_value few[32];
  part_values p = {.vals = few, .n = g->n};
  if (p.n > 32 && !(p.vals = p.more = mem_alloc(vm, p.n * sizeof *p.vals))) return false;
  for (uint32_t i = 0; i < p.n; i++) p.vals[i] = value_unset();
  if (!last && !uses_find(vm, g, &p.uses)) {
    part_drop(vm, &p);
    return false;
  }
  vm_owned held;
  vm_own(vm, &held, part_drop, &p);
  uint32_t done = run_nodes(vm, g, h, device, taps, p.vals, last ? last : p.uses.of);
  vm_disown(vm, &held);
  for (uint32_t k = 0; k < g->noutputs && done == g->n; k++) outs[k] = value_retain(p.vals[g->outputs[k]]);
  part_drop(vm, &p);
  return done == g->n;
}

/* Is the value of a condition true? 1, 0, or -1 with an error raised. */
static int holds(qn_vm *vm, qn_value v) {
  if (value_is(v, TAG_ARRAY) && !array_item(vm, value_array(v), 0, &v)) return -1;
  return v.u.i != 0;
}

/* Runs a branch whose operands have these values. */
static qn_value run_branch(qn_vm *vm, const graph_node *n, const handed *h, int device, plan_taps *taps) {
  handed rest = {h->in + 1, h->given ? h->given + 1 : NULL, h->given ? h->ngiven - 1 : 0};
  int truth = holds(vm, h->in[0]);
  if (truth < 0) return value_error();
  const graph *arm = n->payload.regions[truth ? 0 : 1];
  qn_list *l = list_new(vm, arm->noutputs);
  if (!l) return value_error();
  for (uint32_t k = 0; k < l->len; k++) l->items[k] = value_nil();
  qn_value out = value_obj(TAG_LIST, l);
  vm_owned held;
  vm_own(vm, &held, vm_drop_value, &out);
  bool ok = run_part(vm, arm, &rest, device, taps, NULL, l->items);
  vm_disown(vm, &held);
  if (ok) return out;
  value_release(vm, out);
  return value_error();
}

/* The rows that a loop keeps of one of its results. */
typedef struct kept {
  qn_value *rows; /* owned: arrays or host numbers */
  uint32_t cap;
  bool taken; /* does a node take them? Others are not kept: nil stands for their array */
} kept;

/* For dims, in a region whose inputs have the values `ctx`: the size that an input has. */
static int64_t size_of_input(const void *ctx, const dim_expr *e) {
  qn_value v = dim_of_node(e->source) ? value_unset() : ((const qn_value *)ctx)[e->ref];
  if (e->source == DIM_FROM_SCALAR) return value_is(v, TAG_INT) ? v.u.i : e->hint;
  return value_is(v, TAG_ARRAY) && e->axis < value_array(v)->rank ? value_array(v)->shape[e->axis] : e->hint;
}

/* Stores row i of `a`, which is on a device. False with an error raised. */
static bool store_row(qn_vm *vm, qn_array *a, int64_t i, qn_value v) {
  if (!value_is(v, TAG_ARRAY)) return array_store(vm, a, i, v);
  qn_array *to = array_view(vm, a, (qn_dtype)a->dtype, a->rank - 1, a->shape + 1, a->strides + 1, i * a->strides[0]);
  bool ok = to && array_copy_on(vm, to, value_array(v));
  array_drop(vm, to);
  return ok;
}

/* One array of n rows on a device, owned. `type`: the type of a row, in the words of the body `g`, whose inputs had the values `in`. */
static qn_value stack_rows(qn_vm *vm, const kept *k, int64_t n, const graph *g, const graph_type *type,
                           const qn_value *in, int device) {
  int64_t shape[ARRAY_MAX_RANK];
  shape[0] = n;
  for (int i = 0; i < type->rank; i++) shape[i + 1] = dim_ask(&g->dims, type->shape[i], size_of_input, in);
  qn_array *a = array_new_on(vm, device, (qn_dtype)type->dtype, type->rank + 1, shape);
  bool ok = true;
  for (int64_t i = 0; device && a && i < n && ok; i++) ok = store_row(vm, a, i, k->rows[i]);
  if (device && a && ok) return value_obj(TAG_ARRAY, a);
  if (device) {
    array_drop(vm, a);
    return value_error();
  }
  size_t each = dtype_size((qn_dtype)type->dtype), row = a && n ? (size_t)(a->size / n) * each : 0;
  for (int64_t i = 0; a && i < n; i++) {
    qn_value v = k->rows[i];
    if (value_is(v, TAG_ARRAY))
      eager_write_out(array_data(a) + (size_t)i * row, value_array(v));
    else
      dtype_store((qn_dtype)type->dtype, array_data(a) + (size_t)i * row, v);
  }
  return a ? value_obj(TAG_ARRAY, a) : value_error();
}

/* Counts rows (vm_jit.kept_now) that are kept from now on, or are no more (a negative number). */
static void count_kept(qn_vm *vm, int64_t bytes) {
  vm_jit *j = jit_of(vm);
  j->kept_now += bytes;
  if (j->kept_now > j->kept_most) j->kept_most = j->kept_now;
}

static int64_t bytes_of(qn_value v) {
  if (!value_is(v, TAG_ARRAY)) return value_is(v, TAG_UNSET) ? 0 : (int64_t)sizeof(int64_t);
  return value_array(v)->size * (int64_t)dtype_size((qn_dtype)value_array(v)->dtype);
}

/* What a loop owns while it runs. */
typedef struct loop_values {
  qn_value *now; /* the values of its operands */
  kept *rows;
  int64_t count, kept; /* how many rows there are; their bytes, which are counted */
  uint32_t nin, nrows;
  size_t bytes;
  last_uses header, body;
} loop_values;

static void loop_drop(qn_vm *vm, void *loop) {
  loop_values *l = loop;
  count_kept(vm, -l->kept);
  uses_drop(vm, &l->header);
  uses_drop(vm, &l->body);
  for (uint32_t k = 0; k < l->nrows; k++) {
    if (l->rows[k].taken) release_all(vm, l->rows[k].rows, (uint32_t)l->count);
    mem_free(vm, l->rows[k].rows, l->rows[k].cap * sizeof(qn_value));
  }
  release_all(vm, l->now, l->nin);
  mem_free(vm, l->now, l->bytes);
}

static qn_value run_loop(qn_vm *vm, const graph *g, uint32_t node, const handed *h, int device, plan_taps *taps) {
  const graph_node *n = &g->nodes[node];
  const graph *header = n->payload.regions[0], *body = n->payload.regions[1];
  uint32_t carries = graph_loop_carries(n), made = body->noutputs, nrows = made - carries, nin = n->nin;
  int64_t slots = graph_loop_slots(n), turns = 0, stride = 1;
  size_t bytes = (nin + (size_t)made) * sizeof(qn_value) + nrows * sizeof(kept) + 1;
  qn_value *now = mem_zalloc(vm, bytes), result = value_error();
  if (!now) return result;
  qn_value *outs = now + nin;
  kept *rows = (kept *)(void *)(outs + made);
  for (uint32_t i = node + 1; i < g->n && nrows; i++) {
    const graph_node *x = &g->nodes[i];
    if (x->kind == NODE_PROJ && x->in[0] == node && x->payload.index - carries < nrows)
      rows[x->payload.index - carries].taken = true;
  }
  loop_values own = {.now = now, .rows = rows, .nin = nin, .nrows = nrows, .bytes = bytes};
  const handed tested = {now, NULL, 0}, turned = {now, now, carries};
  vm_owned held;
  vm_own(vm, &held, loop_drop, &own);
  for (uint32_t i = 0; i < nin; i++) {
    bool given = h->given && !value_is(h->given[i], TAG_UNSET);
    now[i] = given ? h->given[i] : value_retain(h->in[i]);
    if (given) h->given[i] = value_unset();
  }
  int go = uses_find(vm, header, &own.header) && uses_find(vm, body, &own.body) ? 1 : -1;
  while (go > 0) {
    qn_value condition;
    go = !vm_poll(vm) && run_part(vm, header, &tested, device, taps, own.header.of, &condition) ? holds(vm, condition)
                                                                                                : -1;
    if (go >= 0) value_release(vm, condition);
    if (go <= 0) break;
    if (!run_part(vm, body, &turned, device, taps, own.body.of, outs)) {
      go = -1;
      break;
    }
    if (slots && own.count == slots && turns % stride == 0 && nrows) {
      for (uint32_t k = 0; k < nrows; k++)
        for (int64_t i = 0; i < own.count && rows[k].taken; i++) {
          if (i % 2)
            value_release(vm, rows[k].rows[i]);
          else
            rows[k].rows[i / 2] = rows[k].rows[i];
        }
      own.count /= 2;
      count_kept(vm, own.kept / 2 - own.kept);
      own.kept /= 2;
      stride *= 2;
    }
    bool keeps = nrows && turns % stride == 0;
    for (uint32_t k = 0; k < nrows && keeps && go > 0; k++)
      if (rows[k].taken && !mem_grow(vm, (void **)&rows[k].rows, &rows[k].cap, (size_t)own.count + 1, sizeof(qn_value)))
        go = -1;
    keeps = keeps && go > 0;
    int64_t more = 0;
    for (uint32_t k = 0; k < nrows; k++)
      if (keeps && rows[k].taken)
        more += bytes_of(rows[k].rows[own.count] = outs[carries + k]);
      else
        value_release(vm, outs[carries + k]);
    own.count += keeps;
    own.kept += more;
    count_kept(vm, more);
    turns++;
    for (uint32_t k = 0; k < carries; k++) {
      value_release(vm, now[k]); /* unset if the body has taken it */
      now[k] = outs[k];
    }
  }
  qn_list *l = go == 0 ? list_new(vm, made + (size_t)2) : NULL;
  if (l) {
    for (uint32_t k = 0; k < l->len; k++) l->items[k] = value_nil();
    for (uint32_t k = 0; k < carries; k++) l->items[k] = value_retain(now[k]);
    l->items[made] = value_int(turns);
    l->items[made + 1] = value_int(stride);
    result = value_obj(TAG_LIST, l);
    for (uint32_t k = 0; k < nrows && !value_is_error(result); k++) {
      if (!rows[k].taken) continue;
      l->items[carries + k] =
          stack_rows(vm, &rows[k], own.count, body, &body->nodes[body->outputs[carries + k]].type, now, device);
      if (!value_is_error(l->items[carries + k])) continue;
      l->items[carries + k] = value_nil();
      value_release(vm, result);
      result = value_error();
    }
  }
  vm_disown(vm, &held);
  loop_drop(vm, &own);
  return result;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------------------- */

/* A graph and the values that its nodes have so far. */
typedef struct known_values {
  const graph *g;
  const qn_value *vals;
} known_values;

/* For dims: the size that a node's value has; if there is no value, the size in the recorded call. */
static int64_t size_of(const void *ctx, const dim_expr *e) {
  const known_values *k = ctx;
  uint32_t node = dim_of_node(e->source) ? e->ref : k->g->inputs[e->ref];
  qn_value v = node ? k->vals[node] : value_unset(); /* 0: the node was removed */
  if (e->source == DIM_FROM_SCALAR || e->source == DIM_FROM_NUMBER) return value_is(v, TAG_INT) ? v.u.i : e->hint;
  return value_is(v, TAG_ARRAY) && e->axis < value_array(v)->rank ? value_array(v)->shape[e->axis] : e->hint;
}

static qn_value apply(qn_vm *vm, const graph *g, uint32_t node, const handed *h, const qn_value *vals, int device,
                      plan_taps *taps) {
  const graph_node *n = &g->nodes[node];
  const qn_value *in = h->in;
  qn_value out;
  switch ((graph_kind)n->kind) {
  case NODE_IF: return run_branch(vm, n, h, device, taps);
  case NODE_LOOP: return run_loop(vm, g, node, h, device, taps);
  case NODE_PROJ: return value_retain(value_list(in[0])->items[n->payload.index]);
  case NODE_TAP:
    out = n->type.weak ? value_float(0) : value_nil();
    if (taps && n->payload.tap != GRAPH_TAP_MADE) {
      if (!taps->make(taps, n->payload.tap, in, n->nin, &out)) return value_error();
      taps->made += !n->type.weak;
    }
    return out;
  default: break;
  }
  if (n->type.weak && value_is(in[0], TAG_ARRAY)) { /* the node makes a host scalar of a rank-0 array */
    if (!array_item(vm, value_array(in[0]), 0, &out)) return value_error();
    return eager_weak_cast(vm, out, (qn_dtype)n->type.dtype);
  }
  op_attr attr = graph_attr(n);
  for (int k = 0; k < attr.n; k++)
    if (op_attr_is_dim((op_id)n->op, k)) attr.d[k] = dim_ask(&g->dims, attr.d[k], size_of, &(known_values){g, vals});
  if (h->given && !value_is(h->given[0], TAG_UNSET)) {
    if (eager_update(vm, (op_id)n->op, in, n->nin, &attr)) {
      out = h->given[0];
      h->given[0] = value_unset();
      return out;
    }
    if (vm->error) return value_error();
  }
  return eager_apply(vm, (op_id)n->op, in, n->nin, &attr);
}

qn_value nodes_apply(qn_vm *vm, const graph *g, uint32_t node, const qn_value *in, const qn_value *vals, int device,
                     plan_taps *taps) {
  qn_value out = apply(vm, g, node, &(handed){in, NULL, 0}, vals, device, taps);
  const graph_node *n = &g->nodes[node];
  if (value_is_error(out))
    nodes_raise_site(vm, g, n->site);
  else if (n->kind == NODE_LOOP) /* the rows of a loop within another one are a part of that one's */
    for (uint32_t k = graph_loop_carries(n); k < n->payload.regions[1]->noutputs; k++)
      if (value_is(value_list(out)->items[k], TAG_ARRAY)) count_kept(vm, bytes_of(value_list(out)->items[k]));
  return out;
}

/* Does an op, or a branch or loop, make use of values that are given to it? */
static bool takes(const graph_node *n) {
  if (n->kind == NODE_IF || n->kind == NODE_LOOP) return true;
  return n->kind == NODE_OP && (n->op == OP_scatter || n->op == OP_slice_put || n->op == OP_gather_add);
}

/* Has an array one owner, and its storage, too? */
static bool is_sole(qn_value v) {
  if (!value_is(v, TAG_ARRAY)) return false;
  const qn_array *a = value_array(v);
  return a->storage && !a->device && a->head.refs == 1 && a->storage->refs == 1 && !a->storage->foreign &&
         a->contiguous;
}

/* The values of a node's operands while it is computed. */
typedef struct operand_values {
  qn_value *in, *given; /* borrowed; owned, or NULL */
  uint32_t n;
  vm_memory more;
} operand_values;

static void operands_drop(qn_vm *vm, void *operands) {
  operand_values *o = operands;
  if (o->given) release_all(vm, o->given, o->n);
  vm_drop_memory(vm, &o->more);
}

/* Computes a node that has operands, as nodes_run does. */
static qn_value run_node(qn_vm *vm, const graph *g, uint32_t i, int device, plan_taps *taps, qn_value *vals,
                         const uint32_t *last) {
  const graph_node *n = &g->nodes[i];
  qn_value few[16];
  operand_values o = {.in = few, .n = n->nin};
  if (n->nin > 8 && !(o.in = o.more.p = mem_alloc(vm, o.more.bytes = 2 * n->nin * sizeof *o.in))) return value_error();
  for (int k = 0; k < n->nin; k++) o.in[k] = vals[n->in[k]];
  if (last && takes(n)) {
    int most = n->kind == NODE_OP ? 1 : n->nin;
    o.given = o.in + n->nin;
    for (int k = 0; k < n->nin; k++) {
      bool once = k < most && last[n->in[k]] == i && is_sole(o.in[k]);
      for (int j = 0; j < n->nin && once; j++) once = j == k || n->in[j] != n->in[k];
      o.given[k] = once ? o.in[k] : value_unset();
      if (once) vals[n->in[k]] = value_unset();
    }
  }
  vm_owned held;
  vm_own(vm, &held, operands_drop, &o);
  qn_value out = apply(vm, g, i, &(handed){o.in, o.given, o.n}, vals, device, taps);
  if (value_is_error(out)) nodes_raise_site(vm, g, n->site);
  vm_disown(vm, &held);
  operands_drop(vm, &o);
  return out;
}

/* As nodes_run; last: as in last_uses, or NULL: all values stay. */
static uint32_t run_nodes(qn_vm *vm, const graph *g, const handed *h, int device, plan_taps *taps, qn_value *vals,
                          const uint32_t *last) {
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    if (n->kind == NODE_INPUT) {
      uint32_t k = n->payload.input;
      bool given = k < h->ngiven && !value_is(h->given[k], TAG_UNSET);
      vals[i] = given ? h->given[k] : value_retain(h->in[k]);
      if (given) h->given[k] = value_unset();
    } else if (n->kind == NODE_CONST) {
      vals[i] = const_value(vm, n, device);
    } else {
      vals[i] = run_node(vm, g, i, device, taps, vals, last);
    }
    if (value_is_error(vals[i])) return i;
  }
  return g->n;
}

uint32_t nodes_run(qn_vm *vm, const graph *g, const qn_value *inputs, int device, plan_taps *taps, qn_value *vals) {
  return run_nodes(vm, g, &(handed){inputs, NULL, 0}, device, taps, vals, NULL);
}
