/* Transforms: functions made from functions. A transform value is an FN_TRANSFORM whose captures are the inner function and the
 * options; calling it comes here.
 *
 * grad and value_and_grad. The inner function runs while a recording is on (one is begun if there is none), with every float
 * leaf of the differentiated arguments replaced by an alias node, so that only uses through the argument count. Then
 * graph_grad appends the backward pass to the same graph, and the gradients are pending arrays like any other. Nothing is
 * executed for the sake of differentiation, and a gradient of a gradient needs no further code.
 *
 * Compiled entries of a transformed function hang on an anchor of its own: the inner code plus the chain of transforms.
 */
#include <stdio.h>
#include <string.h>

#include "jit/trace/trace.h"

const transform_def transform_defs[] = {
    [TRANSFORM_GRAD] = {TRANSFORM_GRAD, "grad"},
    [TRANSFORM_VALUE_AND_GRAD] = {TRANSFORM_VALUE_AND_GRAD, "value_and_grad"},
    [TRANSFORM_JIT] = {TRANSFORM_JIT, "jit"},
    [TRANSFORM_NOJIT] = {TRANSFORM_NOJIT, "nojit"},
    [TRANSFORM_CHECKPOINT] = {TRANSFORM_CHECKPOINT, "checkpoint"},
};

qn_value transform_new(qn_vm *vm, transform_kind kind, const qn_value *captures, int n) {
  if (!value_is(captures[0], TAG_FN))
    return raise(vm, E_type, SPAN_NONE, "%s takes a function, not %s", transform_defs[kind].name,
                 value_kind_name(captures[0]));
  qn_fn *f = fn_new(vm, FN_TRANSFORM, (void *)(uintptr_t)&transform_defs[kind], (uint32_t)n);
  if (!f) return value_error();
  for (int i = 0; i < n; i++) f->captures[i] = value_retain(captures[i]);
  return value_obj(TAG_FN, f);
}

jit_anchor *anchor_of_value(qn_vm *vm, qn_value fn) {
  const void *chain[8];
  uint32_t depth = 0;
  uint64_t hash = 14695981039346656037u;
  while (value_fn(fn)->head.flags == FN_TRANSFORM && depth < 8) {
    chain[depth++] = value_fn(fn)->code;
    hash = (hash ^ (uint64_t)(uintptr_t)value_fn(fn)->code) * 1099511628211u;
    fn = value_fn(fn)->captures[0];
  }
  if (value_fn(fn)->head.flags != FN_USER || !vm->hooks.anchor) return NULL;
  jit_anchor *inner = vm->hooks.anchor(fn);
  if (!depth || !inner) return inner;
  void *code = value_fn(fn)->code;
  hash ^= (uint64_t)(uintptr_t)code;
  vm_jit *j = jit_of(vm);
  for (chain_anchor *c = j->chains; c; c = c->next)
    if (c->hash == hash && c->code == code && c->depth == depth && memcmp(c->chain, chain, depth * sizeof *chain) == 0)
      return &c->anchor;
  chain_anchor *c = mem_zalloc(vm, sizeof *c);
  if (!c) return NULL;
  c->hash = hash;
  c->code = code;
  c->depth = depth;
  memcpy(c->chain, chain, depth * sizeof *chain);
  c->anchor.name = inner->name;
  c->anchor.at = inner->at;
  c->next = j->chains;
  j->chains = c;
  return &c->anchor;
}

/* The same for a call that can go without: what has no memory for its anchor is simply not compiled. */
static jit_anchor *anchor_if_any(qn_vm *vm, qn_value fn) {
  jit_anchor *a = anchor_of_value(vm, fn);
  if (!a) error_clear(vm);
  return a;
}

/* ---- gradients --------------------------------------------------------------------------------------------------------------- */

/* The differentiated leaves of a call, in tree order. */
typedef struct grad_leaves {
  struct recording *r;
  uint32_t *nodes, *grads; /* alias nodes; their gradients */
  uint32_t n, cap, grads_cap, at;
} grad_leaves;

static bool is_float_leaf(qn_value v) {
  return value_is(v, TAG_FLOAT) || (value_is(v, TAG_ARRAY) && dtype_is_float((qn_dtype)value_array(v)->dtype));
}

static uint32_t alias(struct recording *r, qn_value v) {
  uint32_t node = rec_node(r, v);
  if (!node) return 0;
  graph_type t = r->g->nodes[node].type;
  if (t.weak) {
    uint32_t in[2] = {node, graph_const_scalar(r->g, QN_f64, true, 1.0, 0, 0)};
    return in[1] ? graph_op(r->g, OP_mul, in, 2, NULL, rec_site(r)) : 0;
  }
  op_attr a = {.n = t.rank};
  memcpy(a.d, t.shape, t.rank * sizeof *a.d);
  return graph_node_raw(r->g, OP_reshape, &node, 1, &a, t, rec_site(r));
}

/* Finds the first array: its device goes to *ctx, and the walk stops. */
static bool device_of_leaf(void *ctx, const char *path, qn_value v) {
  (void)path;
  if (!value_is(v, TAG_ARRAY)) return true;
  *(int *)ctx = value_array(v)->device;
  return false;
}

/* The device of the first array in a value; -1: there is none, or an error is pending. */
static int device_of(qn_vm *vm, qn_value v) {
  int device = -1;
  bool all = tree_each(vm, v, device_of_leaf, &device);
  return all ? -1 : device;
}

static qn_value alias_leaf(void *ctx, const char *path, qn_value v) {
  (void)path;
  grad_leaves *l = ctx;
  qn_vm *vm = l->r->vm;
  if (!is_float_leaf(v)) return value_retain(v);
  if (value_is(v, TAG_ARRAY) && !rec_place(l->r, value_array(v)->device))
    return op_raise_devices(vm, "gradients", l->r->device, value_array(v)->device);
  if (!mem_grow(vm, (void **)&l->nodes, &l->cap, l->n + 1, sizeof *l->nodes)) return value_error();
  uint32_t node = alias(l->r, v);
  if (!node) return error_pending(vm) ? value_error() : raise_memory(vm);
  l->nodes[l->n++] = node;
  return rec_value_of(l->r, node);
}

static qn_value grad_leaf(void *ctx, const char *path, qn_value v) {
  (void)path;
  grad_leaves *l = ctx;
  if (!is_float_leaf(v)) return value_nil();
  uint32_t i = l->at++, node = l->grads[i];
  if (node) return rec_value_of(l->r, node);
  if (value_is(v, TAG_FLOAT)) return value_float(0);
  const qn_array *a = value_array(v); /* the result does not depend on it */
  qn_value zero = value_float(0);
  qn_value fitted = op_apply(l->r->vm, OP_fit, &zero, 1, &(op_attr){.dtype = a->dtype});
  if (value_is_error(fitted)) return fitted;
  op_attr shape = {.n = a->rank};
  for (int k = 0; k < a->rank; k++) shape.d[k] = a->shape[k];
  qn_value zeros = op_apply(l->r->vm, OP_broadcast, &fitted, 1, &shape);
  value_release(l->r->vm, fitted);
  return zeros;
}

typedef struct grad_call {
  qn_vm *vm;
  rec_call_site site; /* args: positional ones, then the keywords (a record or nil) */
} grad_call;

static qn_value list_of(qn_vm *vm, qn_value *items, size_t n) {
  qn_list *l = list_from(vm, items, n);
  for (size_t i = 0; i < n; i++) value_release(vm, items[i]);
  return l ? value_obj(TAG_LIST, l) : value_error();
}

/* The node of a scalar float result: 0 for a constant, UINT32_MAX with an error raised if it is none. */
static uint32_t root_node(struct recording *r, qn_value v, const char *name) {
  if (value_is(v, TAG_FLOAT)) return rec_traced(r, v);
  if (value_is(v, TAG_ARRAY) && value_array(v)->rank == 0 && dtype_is_float((qn_dtype)value_array(v)->dtype))
    return rec_traced(r, v);
  text_buf t;
  text_init(&t, r->vm);
  text_kind(&t, v);
  text_add(&t, "", 1);
  raise(r->vm, E_not_diff, SPAN_NONE, "%s needs a function with a scalar float result, not %s%s", name,
        t.failed ? "this" : t.text, value_is(v, TAG_ARRAY) ? "; reduce it with sum or mean" : "");
  text_free(&t);
  return UINT32_MAX;
}

static qn_value grad_inline(struct recording *r, const rec_call_site *site) {
  qn_vm *vm = r->vm;
  const qn_fn *f = value_fn(site->fn);
  const transform_def *def = f->code;
  int nargs = site->nargs - 1;
  qn_value wrt = rec_observe_tree(vm, f->captures[1]);
  bool aux = f->ncaptures > 2 && value_is(f->captures[2], TAG_BOOL) && f->captures[2].u.i;
  grad_leaves l = {.r = r};
  qn_value *mark = vm->sp, result = value_error(), value = value_unset();
  bool one = value_is(wrt, TAG_INT);
  uint32_t nwrt = one ? 1 : value_is(wrt, TAG_LIST) ? value_list(wrt)->len : 0;
  r->grads++;
  if (!nwrt || nwrt > 64) {
    raise(vm, E_argument, SPAN_NONE, "%s: wrt is the position of an argument or a list of positions", def->name);
    goto done;
  }
  if (!vm_enter(vm, (size_t)nargs + 1)) goto done;
  for (int i = 0; i < nargs; i++) *vm->sp++ = value_retain(site->args[i]);
  uint32_t from = r->g->n;
  int which[64];
  uint32_t first[64]; /* where each argument's leaves begin */
  for (uint32_t i = 0; i < nwrt; i++) {
    qn_value w = one ? wrt : value_list(wrt)->items[i];
    if (!value_is(w, TAG_INT) || w.u.i < -nargs || w.u.i >= nargs) {
      raise(vm, E_argument, SPAN_NONE, "%s: wrt names an argument that the call does not have (%d given)", def->name,
            nargs);
      goto done;
    }
    which[i] = (int)(w.u.i < 0 ? w.u.i + nargs : w.u.i);
    qn_value x = mark[which[i]];
    if (!is_float_leaf(x) && !value_is(x, TAG_LIST) && !value_is(x, TAG_RECORD)) {
      text_buf t;
      text_init(&t, vm);
      text_kind(&t, x);
      text_add(&t, "", 1);
      raise(vm, E_not_diff, SPAN_NONE,
            "%s differentiates by floats, and argument %d is %s; pass a float or convert it with f32(...)", def->name,
            which[i] + 1, t.failed ? "none" : t.text);
      text_free(&t);
      goto done;
    }
    first[i] = l.n;
    qn_value aliased = tree_rebuild(vm, x, alias_leaf, &l);
    if (value_is_error(aliased)) goto done;
    value_release(vm, x);
    mark[which[i]] = aliased;
  }
  value = vm->hooks.call(vm, f->captures[0], mark, nargs, site->args[nargs]);
  if (value_is_error(value)) goto done;
  qn_value root_value = value;
  if (aux) {
    if (!value_is(value, TAG_LIST) || value_list(value)->len != 2) {
      raise(vm, E_not_diff, SPAN_NONE, "with aux: true the function returns (value, aux)");
      goto done;
    }
    root_value = value_list(value)->items[0];
  }
  uint32_t root = root_node(r, root_value, def->name);
  if (root == UINT32_MAX) goto done;
  if (!mem_grow(vm, (void **)&l.grads, &l.grads_cap, l.n + 1, sizeof *l.grads)) goto done;
  memset(l.grads, 0, l.grads_cap * sizeof *l.grads);
  if (root) {
    uint32_t culprit = 0;
    op_refusal why = {0};
    if (!graph_grad(r->g, from, root, 0, l.nodes, (int)l.n, l.grads, &culprit, &why)) {
      if (r->g->failed)
        raise_memory(vm);
      else
        rec_raise_refusal(r, culprit, &why);
      goto done;
    }
    if (!rec_room(r)) goto done;
  }
  qn_value grads[64];
  uint32_t made = 0;
  r->handing_grads = true;
  for (; made < nwrt; made++) {
    l.at = first[made];
    grads[made] = tree_rebuild(vm, mark[which[made]], grad_leaf, &l);
    if (value_is_error(grads[made])) break;
  }
  r->handing_grads = false;
  if (made < nwrt) {
    while (made-- > 0) value_release(vm, grads[made]);
    goto done;
  }
  qn_value g = one ? grads[0] : list_of(vm, grads, nwrt);
  if (value_is_error(g)) goto done;
  if (def->kind == TRANSFORM_GRAD) {
    result = g;
  } else {
    qn_value pair[2] = {value, g};
    value = value_unset();
    result = list_of(vm, pair, 2);
  }
done:
  vm_pop_to(vm, mark);
  value_release(vm, wrt);
  value_release(vm, value);
  mem_free(vm, l.nodes, l.cap * sizeof *l.nodes);
  mem_free(vm, l.grads, l.grads_cap * sizeof *l.grads);
  r->grads--;
  return result;
}

/* The call of a gradient: inside the recording that is on, or in one of its own. */
static qn_value grad_run(void *ctx) {
  grad_call *c = ctx;
  qn_vm *vm = c->vm;
  int device = -1;
  for (int i = 0; i < c->site.nargs && device < 0; i++) device = device_of(vm, c->site.args[i]);
  if (error_pending(vm)) return value_error();
  if (vm->rec && device >= 0 && !rec_place(vm->rec, device) && !rec_break(vm->rec, BREAK_devices, NULL))
    return value_error();
  if (vm->rec) return grad_inline(vm->rec, &c->site);
  struct recording *own = rec_begin(vm, false);
  if (!own) return value_error();
  own->at = c->site.at;
  qn_value result = grad_inline(own, &c->site);
  if (value_is_error(result)) {
    qn_error_object *later = error_take(vm);
    if (rec_end(own))
      error_put_back(vm, later);
    else
      error_free(vm, later);
  } else if (!rec_end(own)) {
    value_release(vm, result);
    result = value_error();
  }
  rec_free(own);
  if (value_is_scalar(result)) result.head &= 0xff;
  return result;
}

/* ---- jit, nojit, checkpoint ------------------------------------------------------------------------------------------------------ */

static qn_value inner_run(void *ctx) {
  grad_call *c = ctx;
  int n = c->site.nargs - 1;
  return c->vm->hooks.call(c->vm, value_fn(c->site.fn)->captures[0], c->site.args, n, c->site.args[n]);
}

static bool option_is(qn_vm *vm, qn_value options, const char *name, qn_value *out) {
  (void)vm;
  if (!value_is(options, TAG_RECORD)) return false;
  const qn_record *r = value_record(options);
  for (uint32_t i = 0; i < r->len; i++)
    if (strcmp(record_name(r, i)->text, name) == 0) {
      *out = r->items[i];
      return true;
    }
  return false;
}

/* jit(f, fullgraph: true): the entry of the call must not be broken. */
static qn_value check_fullgraph(qn_vm *vm, const jit_anchor *a, qn_value result) {
  const entry *e = jit_of(vm)->served;
  break_reason why = !e ? jit_of(vm)->refused : e->state == ENTRY_BROKEN ? e->why : BREAK_none;
  if (why == BREAK_none || why == BREAK_memory) return result; /* memory may be there next time */
  value_release(vm, result);
  return raise(vm, E_no_graph, e ? e->why_at : SPAN_NONE, "%s cannot be captured as one graph: %s%s%s",
               a->name ? a->name : "the function", break_reasons[why], e && e->why_text[0] ? ": " : "",
               e ? e->why_text : "");
}

qn_value transform_call(qn_vm *vm, qn_value fn, const qn_value *args, int nargs, qn_value kwargs, span at) {
  const qn_fn *f = value_fn(fn);
  const transform_def *def = f->code;
  vm_jit *j = jit_of(vm);
  if (!vm_enter(vm, (size_t)nargs + 1)) return value_error();
  grad_call c = {.vm = vm};
  qn_value *mark = vm->sp;
  for (int i = 0; i < nargs; i++) *vm->sp++ = value_retain(args[i]);
  *vm->sp++ = value_retain(kwargs);
  c.site.fn = fn;
  c.site.args = mark;
  c.site.nargs = nargs + 1;
  c.site.ctx = &c;
  qn_value (*run)(void *) = def->kind == TRANSFORM_GRAD || def->kind == TRANSFORM_VALUE_AND_GRAD ? grad_run : inner_run;
  c.site.run = run;
  c.site.at = at;
  qn_value result;
  jit_anchor *a = NULL;
  qn_value option;
  switch (def->kind) {
  case TRANSFORM_NOJIT:
    if (vm->rec && !rec_break(vm->rec, BREAK_effect, "nojit")) {
      result = value_error();
      break;
    }
    j->nojit++;
    result = inner_run(&c);
    j->nojit--;
    j->served = NULL;
    j->refused = BREAK_nojit;
    break;
  case TRANSFORM_JIT: {
    qn_value options = f->ncaptures > 1 ? f->captures[1] : value_nil();
    bool eager = option_is(vm, options, "backend", &option) && value_is(option, TAG_STR) &&
                 strcmp(value_str(option)->text, "eager") == 0;
    a = vm->rec || eager ? NULL : anchor_if_any(vm, fn);
    if (!a) {
      result = inner_run(&c);
      if (eager) {
        j->served = NULL;
        j->refused = BREAK_backend;
      }
      break;
    }
    c.site.anchor = a;
    if (a->state == ANCHOR_COLD) { /* asked for: no need to get hot */
      if (anchor_entries_of(vm, a))
        a->state = ANCHOR_ACTIVE;
      else
        error_clear(vm);
    }
    result = rec_call(vm, &c.site);
    if (!value_is_error(result) && option_is(vm, options, "fullgraph", &option) && value_is(option, TAG_BOOL) &&
        option.u.i)
      result = check_fullgraph(vm, a, result);
    break;
  }
  default:
    a = vm->rec ? NULL : anchor_if_any(vm, fn);
    c.site.anchor = a;
    result = a && anchor_wants(vm, a) ? rec_call(vm, &c.site) : run(&c);
    break;
  }
  vm_pop_to(vm, mark);
  return result;
}
