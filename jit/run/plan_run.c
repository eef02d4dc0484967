/* Running plans (plan_run.h): buffers, then steps in order.
 *
 *   symbols    sizes of the inputs, values of scalar inputs, and, as steps find them, sizes that depend on data
 *   buffers    inputs as they are, constants in the plan, new arrays for the outputs, the rest in one arena (the VM's slab)
 *   steps      kernels (compiled code when it is there), library ops on array headers over the buffers, host scalars
 *
 * On a device the arena is a block of the device's memory, and constants are kept there. Kernels that follow each other run there as one
 * (jit/run/device.h), with the products between them where the device can. Library steps are the device's as far as it has them; for others
 * operands are taken to the CPU. Checks of kernels are waited for at the end, and before another step's error may be told. Where the device refuses, the whole
 * plan runs on the CPU with copies. That gives other bits where there are products: then it is only asked for its error, and the
 * call is left to the interpreter.
 *
 * A failed check raises what eager execution raises, at the place of the node that is checked: its site, then the calls it was
 * reached through. Its message needs the offending value, which the block VM keeps; compiled code does not, so then the kernel
 * runs once more on the block VM.
 */
#include <string.h>

#include "jit/run/dispatch.h"
#include "jit/run/gemm.h"
#include "jit/run/host.h"
#include "jit/run/library.h"
#include "jit/run/plan_run.h"
#include "lang/trace_events.h"

typedef struct plan_frame {
  qn_vm *vm;
  plan *p;
  qn_array *const *inputs;
  qn_value *outputs;
  int64_t *symbols; /* per dim expression */
  qk_scalar *slots;
  void **buffers;    /* per plan buffer */
  qn_array **arrays; /* per output: its new array */
  size_t *late;      /* per plan buffer that is WHERE_LATE: its bytes, 0 while it has none */
  int64_t *ints;
  void **step_buffers;
  qk_scalar *step_scalars;
  int device;
  bool refused; /* by the device: nothing is raised */
  char *slab;   /* of a device */
  size_t slab_bytes;
  device_plan *there;
} plan_frame;

static int64_t size_of(const plan_frame *f, qn_dim d) {
  return d >= 0 ? d : dim_eval(&f->p->graph->dims, d, f->symbols);
}

/* ---- errors -------------------------------------------------------------------------------------------------------------------- */

static void raise_site(plan_frame *f, uint32_t site) {
  const graph *g = f->p->graph;
  if (!site || site >= g->nsites) return;
  raise_at(f->vm, g->sites[site].at);
  for (uint32_t up; (up = g->sites[site].parent) != 0; site = up)
    raise_through(f->vm, g->sites[up].at, g->sites[site].function);
  raise_through(f->vm, SPAN_NONE, g->sites[site].function);
}

static void raise_node_site(plan_frame *f, uint32_t node) {
  if (node < f->p->graph->n) raise_site(f, f->p->graph->nodes[node].site);
}

/* The value that a check showed, as a host scalar. */
static qn_value shown_value(const kernel_failure *failure) {
  return failure->shown ? dtype_load((qn_dtype)failure->dtype, &failure->bits) : value_unset();
}

static void raise_check(plan_frame *f, const l_program *p, const kernel_failure *failure) {
  uint64_t number = failure->error >> 48;
  const l_check *c = number < p->nchecks ? &p->checks[number] : NULL;
  const graph *g = f->p->graph;
  if (!c || c->node >= g->n || g->nodes[c->node].kind != NODE_OP) {
    raise_error(f->vm, c ? (error_id)c->id : E_internal, SPAN_NONE, "a check of the kernel %s failed",
                p->name ? p->name : "");
  } else {
    const graph_node *n = &g->nodes[c->node];
    const graph_type *x = n->nin ? &g->nodes[n->in[0]].type : &n->type;
    bool axis = c->id == E_index && c->detail >= 0 && c->detail < x->rank;
    eager_raise_check(f->vm, (op_id)n->op, (qn_dtype)n->type.dtype, (int64_t)(failure->error & 0xffffffffffffu),
                      shown_value(failure), axis ? (int)c->detail : 0, axis ? size_of(f, x->shape[c->detail]) : 0);
  }
  if (c) raise_site(f, c->site ? c->site : c->node < g->n ? g->nodes[c->node].site : 0);
}

/* ---- steps ----------------------------------------------------------------------------------------------------------------------- */

static bool late_make_all(plan_frame *f, const plan_step *s);

static bool run_kernel_step(plan_frame *f, const plan_step *s) {
  if (f->p->late && !late_make_all(f, s)) return false;
  plan_kernel *k = &f->p->kernels[s->what];
  const int64_t *ints = f->ints;
  if (f->p->fixed)
    ints = s->ints;
  else
    for (uint32_t i = 0; i < s->nints; i++) f->ints[i] = size_of(f, s->ints[i]);
  for (uint32_t i = 0; i < s->nbuffers; i++) f->step_buffers[i] = f->buffers[s->buffers[i]];
  for (uint32_t i = 0; i < s->nscalars; i++) f->step_scalars[i] = f->slots[s->scalars[i]];
  const qk_phase *code = atomic_load_explicit(&k->code, memory_order_acquire);
  kernel_failure failure;
  if (host()->launch(f->vm, k->program, &k->host_code, code, f->step_buffers, ints, f->step_scalars, &failure))
    return true;
  if (failure.error == ~(uint64_t)0) return false;
  if (code) { /* for the value; what is stored again is the same, or about to be thrown away */
    kernel_failure again;
    if (!host()->launch(f->vm, k->program, &k->host_code, NULL, f->step_buffers, ints, f->step_scalars, &again)) {
      if (again.error == ~(uint64_t)0) return false;
      if (again.error == failure.error) failure = again;
    }
  }
  raise_check(f, k->program, &failure);
  return false;
}

/* A header over a plan buffer, on the caller's stack: never freed. */
typedef struct buffer_array {
  qn_array a;
  qn_storage s;
} buffer_array;

static void array_over(plan_frame *f, buffer_array *b, uint32_t buffer, const graph_type *t) {
  *b = (buffer_array){.a = {.head = {.refs = 1, .tag = TAG_ARRAY},
                            .dtype = t->dtype,
                            .rank = t->rank,
                            .device = (uint8_t)f->device,
                            .contiguous = 1,
                            .storage = &b->s},
                      .s = {.refs = 2, .foreign = 1, .device = (uint8_t)f->device, .data = f->buffers[buffer]}};
  for (int i = 0; i < t->rank; i++) b->a.shape[i] = size_of(f, t->shape[i]);
  b->a.size = shape_strides(t->rank, b->a.shape, b->a.strides);
  b->s.bytes = (size_t)(b->a.size > 0 ? b->a.size : 0) * dtype_size((qn_dtype)t->dtype);
}

enum { LIBRARY_OPERANDS = 4 };

/* Sizes that this node's result tells. */
static void set_symbols(plan_frame *f, uint32_t node, const qn_array *out) {
  const dim_table *t = &f->p->graph->dims;
  for (uint32_t i = 0; i < t->n; i++) {
    const dim_expr *e = &t->exprs[i];
    if (e->op == DIM_SYMBOL && e->source == DIM_FROM_NODE && e->ref == node && e->axis < out->rank)
      f->symbols[i] = out->shape[e->axis];
  }
}

/* What a library step does, by whoever can: *out is a new array, where the operands are or on the CPU, or NULL if the device has stored
 * the result to `to`. False with the error raised. */
static bool library_call(plan_frame *f, const graph_node *n, qn_array *const *in, qn_array *to, qn_array **out) {
  static const op_attr none;
  const op_attr *attr = n->attr ? n->attr : &none;
  op_id op = (op_id)n->op;
  bool refused = true;
  *out = NULL;
  if (f->device && op == OP_gemm) {
    if (gemm_stored(f->vm, in[0], in[1], attr->flags, to, &refused)) return true;
  } else if (f->device) {
    if (library_there(f->vm, op, in, attr, to, &refused)) return true;
  }
  if (!refused) return false;
  if (op == OP_gemm) return (*out = eager_gemm(f->vm, in, attr)) != NULL;
  qn_array *here[LIBRARY_OPERANDS];
  int taken = 0;
  while (taken < n->nin && (here[taken] = array_to_cpu(f->vm, in[taken]))) taken++;
  if (taken == n->nin) *out = library_apply(f->vm, op, here, attr);
  while (taken-- > 0) array_drop(f->vm, here[taken]);
  return *out != NULL;
}

static bool run_library_step(plan_frame *f, const plan_step *s) {
  if (f->p->late && !late_make_all(f, s)) return false;
  const graph *g = f->p->graph;
  const graph_node *n = &g->nodes[s->node];
  buffer_array buffers[LIBRARY_OPERANDS], result;
  qn_array *in[LIBRARY_OPERANDS], *out;
  if (n->nin > LIBRARY_OPERANDS || s->nbuffers != n->nin + 1u) {
    raise_error(f->vm, E_internal, SPAN_NONE, "a plan gives %s %u buffers", op_rows[n->op].name, s->nbuffers);
    return false;
  }
  for (int i = 0; i < n->nin; i++) {
    array_over(f, &buffers[i], s->buffers[i], &g->nodes[n->in[i]].type);
    in[i] = &buffers[i].a;
  }
  array_over(f, &result, s->buffers[n->nin], &n->type);
  int64_t begin = trace_events_begin(f->vm->engine);
  bool ok = library_call(f, n, in, &result.a, &out);
  trace_events_end(f->vm->engine, TRACE_EVENTS_kernel, op_rows[n->op].name, begin, "library", 1);
  if (!ok) {
    raise_node_site(f, s->node);
    return false;
  }
  set_symbols(f, s->node, out ? out : &result.a);
  if (!out) return true;
  array_over(f, &result, s->buffers[n->nin], &n->type); /* now its size is known */
  if (out->size && out->device == f->device)
    ok = array_copy_on(f->vm, &result.a, out);
  else if (out->size)
    ok = device_memory_of(f->vm, f->device)->write(f->vm, &result.a, array_data(out));
  array_drop(f->vm, out);
  return ok;
}

static qn_value slot_value(const plan_frame *f, uint32_t slot) {
  return dtype_scalar(f->p->scalar_types[slot].dtype, f->slots[slot].f, f->slots[slot].i);
}

static void set_slot(plan_frame *f, uint32_t slot, qn_value v) {
  if (f->p->scalar_types[slot].dtype == WEAK_FLOAT)
    f->slots[slot].f = value_is(v, TAG_FLOAT) ? v.u.f : (double)v.u.i;
  else
    f->slots[slot].i = value_is(v, TAG_FLOAT) ? (int64_t)v.u.f : v.u.i;
}

static bool run_scalar_step(plan_frame *f, const plan_step *s) {
  graph *g = f->p->graph;
  qn_value in[3], out;
  uint32_t n = s->nscalars < 3 ? s->nscalars : 3;
  for (uint32_t i = 0; i < n; i++) in[i] = slot_value(f, s->scalars[i]);
  if (s->op == OP_cast && s->nbuffers == 1) {
    const graph_node *x = &g->nodes[g->nodes[s->node].in[0]];
    buffer_array b;
    array_over(f, &b, s->buffers[0], &x->type);
    if (!array_item(f->vm, &b.a, 0, &in[0])) return false;
    n = 1;
  }
  if (s->op == OP_fit)
    out = eager_check_fit(f->vm, in[0], (qn_dtype)s->attr->dtype) ? in[0] : value_error();
  else if (s->op == OP_cast)
    out = eager_weak_cast(f->vm, in[0], (qn_dtype)s->attr->dtype);
  else
    out = scalar_apply(f->vm, (op_id)s->op, in, (int)n);
  if (value_is_error(out)) {
    raise_node_site(f, s->node);
    return false;
  }
  set_slot(f, s->out, out);
  return true;
}

/* Puts an error back that was taken, if all that comes before it has gone `well`; else frees it. NULL is ignored. */
static void error_settle(plan_frame *f, qn_error_object *error, bool well) {
  if (error && well)
    error_put_back(f->vm, error);
  else if (error)
    error_free(f->vm, error);
}

/* Waits for the checks so far. When another step has failed (`ok` is false), one that failed before it is the error. */
static bool checks_there(plan_frame *f, bool ok) {
  bool done = ok || f->refused;
  qn_error_object *error = !done && error_catchable(f->vm) ? error_take(f->vm) : NULL;
  device_answer answer = device_kernels_of(f->device)->plan_checks(f->vm, f->there);
  if (answer == DEVICE_FAILS)
    f->refused = false; /* interrupted while waiting: that is the error */
  else if (done || error)
    f->refused |= answer == DEVICE_REFUSES;
  error_settle(f, error, answer == DEVICE_DONE);
  return ok && answer == DEVICE_DONE;
}

/* Memory for a buffer that is WHERE_LATE, whose size is known by now. */
static bool late_make(plan_frame *f, uint32_t b) {
  const plan_buffer *buf = &f->p->buffers[b];
  size_t bytes = (size_t)size_of(f, buf->elements) * dtype_size((qn_dtype)buf->dtype) + ARRAY_TAIL;
  if (!(f->buffers[b] = mem_alloc(f->vm, bytes))) return false;
  f->late[b] = bytes;
  return true;
}

static bool late_make_all(plan_frame *f, const plan_step *s) {
  for (uint32_t i = 0; i < s->nbuffers; i++) {
    uint32_t b = s->buffers[i];
    if (f->p->buffers[b].where == WHERE_LATE && !f->late[b] && !late_make(f, b)) return false;
  }
  return true;
}

static void late_free(plan_frame *f) {
  for (uint32_t b = 0; b < f->p->nbuffers && f->p->late; b++) {
    if (f->late[b]) mem_free(f->vm, f->buffers[b], f->late[b]);
    f->late[b] = 0;
  }
}

static bool run_region_step(plan_frame *f, const plan_step *s);

static bool run_step(plan_frame *f, const plan_step *s) {
  switch ((plan_step_kind)s->kind) {
  case STEP_KERNEL: return run_kernel_step(f, s);
  case STEP_LIBRARY: return run_library_step(f, s);
  case STEP_REGIONS: return run_region_step(f, s);
  default: return run_scalar_step(f, s);
  }
}

/* Can a step run before kernels that precede it? */
static bool goes_ahead(const plan_step *s) { return s->kind == STEP_SCALAR && !s->nbuffers; }

static bool is_product(const plan_step *s) { return s->kind == STEP_LIBRARY && s->op == OP_gemm; }

/* device_call.product */
static bool call_gemm(const device_call *call, uint32_t step, device_gemm *p) {
  plan_frame *f = (plan_frame *)(uintptr_t)call->caller;
  const plan_step *s = &f->p->steps[step];
  const graph *g = f->p->graph;
  const graph_node *n = &g->nodes[s->node];
  buffer_array in[2];
  for (int i = 0; i < 2; i++) array_over(f, &in[i], s->buffers[i], &g->nodes[n->in[i]].type);
  return gemm_signature(&in[0].a, &in[1].a, n->attr->flags, p);
}

/* Runs steps from `first` on, up to the next that is no kernel, no host scalar's and (where these `join`) no product: all as one,
 * behind the scalars. Their number; 0: one refuses or fails, and those before it have run, or *apart: the device does not take
 * products along, and nothing but scalars has run. */
static uint32_t run_stretch(plan_frame *f, uint32_t first, bool join, bool *apart) {
  const plan *p = f->p;
  uint32_t n = 0, kernels = 0, products = 0;
  qn_error_object *error = NULL;
  for (; first + n < p->nsteps && !error; n++) {
    const plan_step *s = &p->steps[first + n];
    if (s->kind == STEP_KERNEL)
      kernels++;
    else if (join && is_product(s))
      products++;
    else if (!goes_ahead(s))
      break;
    else if (!run_scalar_step(f, s))
      error = error_take(f->vm);
  }
  if (!n) return run_step(f, &p->steps[first]);
  device_call call = {
      .symbols = f->symbols, .buffers = f->buffers, .slots = f->slots, .product = call_gemm, .caller = f};
  device_answer answer = DEVICE_DONE;
  int64_t begin = trace_events_begin(f->vm->engine);
  if (kernels || products) answer = device_kernels_of(f->device)->plan_kernels(f->vm, f->there, &call, first, n);
  trace_events_end(f->vm->engine, TRACE_EVENTS_kernel, "steps on the device", begin, "steps", n);
  *apart = answer == DEVICE_REFUSES && products;
  f->refused = answer == DEVICE_REFUSES && !products;
  error_settle(f, error, answer == DEVICE_DONE);
  return answer == DEVICE_DONE && !error ? n : 0;
}

static uint32_t run_there(plan_frame *f, uint32_t first) {
  const device_kernels *d = device_kernels_of(f->device);
  bool apart = false, join = f->p->nproducts && d->plan_joins && d->plan_joins(f->vm, f->there);
  uint32_t n = run_stretch(f, first, join, &apart);
  return apart ? run_stretch(f, first, false, &apart) : n;
}

/* ---- inputs, outputs, memory -------------------------------------------------------------------------------------------------------- */

/* Does a size depend on data that a step finds? */
static bool from_node(const dim_table *t, qn_dim d) {
  if (d >= 0) return false;
  const dim_expr *e = &t->exprs[~d];
  return e->op == DIM_SYMBOL ? e->source == DIM_FROM_NODE : from_node(t, e->a) || from_node(t, e->b);
}

static bool read_symbols(plan_frame *f, const qk_scalar *scalars) {
  const graph *g = f->p->graph;
  for (uint32_t i = 0; i < g->dims.n; i++) {
    const dim_expr *e = &g->dims.exprs[i];
    f->symbols[i] = e->hint;
    if (e->op != DIM_SYMBOL || e->source == DIM_FROM_NODE || e->ref >= g->ninputs) continue;
    const qn_array *a = f->inputs[e->ref];
    if (e->source == DIM_FROM_INPUT) {
      if (a && e->axis < a->rank) f->symbols[i] = a->shape[e->axis];
    } else if (a) {
      qn_value v;
      if (!array_item(f->vm, f->inputs[e->ref], 0, &v)) return false;
      f->symbols[i] = v.u.i;
    } else {
      uint32_t slot = 0;
      for (uint32_t k = 0; k < e->ref; k++) slot += f->inputs[k] == NULL;
      f->symbols[i] = scalars[slot].i;
    }
  }
  return true;
}

/* New arrays for the outputs; those whose size is found later are as large as the upper bound. */
static bool make_outputs(plan_frame *f) {
  const plan *p = f->p;
  for (uint32_t o = 0; o < p->noutputs; o++) {
    const plan_output *out = &p->outputs[o];
    if (out->kind != OUT_BUFFER || p->buffers[out->index].where != WHERE_OUTPUT || p->buffers[out->index].index != o)
      continue;
    if (p->fixed) {
      f->arrays[o] = array_new_on(f->vm, f->device, (qn_dtype)out->type.dtype, out->type.rank, out->type.shape);
      if (!f->arrays[o]) return false;
      continue;
    }
    int64_t shape[ARRAY_MAX_RANK], elements = size_of(f, p->buffers[out->index].elements);
    bool later = false;
    int rank = out->type.rank;
    for (int i = 0; i < rank; i++) {
      later |= from_node(&p->graph->dims, out->type.shape[i]);
      shape[i] = size_of(f, out->type.shape[i]);
    }
    if (later) {
      rank = 1;
      shape[0] = elements;
    }
    if (!(f->arrays[o] = array_new_on(f->vm, f->device, (qn_dtype)out->type.dtype, rank, shape))) return false;
  }
  return true;
}

/* Where the plan's buffers are, its arena at `slab`. */
static void place_buffers(plan_frame *f, char *slab) {
  const plan *p = f->p;
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    const plan_buffer *buf = &p->buffers[b];
    switch ((plan_where)buf->where) {
    case WHERE_INPUT: f->buffers[b] = array_data(f->inputs[buf->index]); break;
    case WHERE_CONST: f->buffers[b] = f->device ? f->there->constants[b] : (void *)(uintptr_t)buf->data; break;
    case WHERE_OUTPUT:
      f->buffers[b] = f->arrays[buf->index] ? array_data(f->arrays[buf->index]) + size_of(f, buf->offset) : NULL;
      break;
    case WHERE_LATE: f->buffers[b] = NULL; break;
    default: f->buffers[b] = slab + size_of(f, buf->offset); break;
    }
  }
}

static bool take_arena(plan_frame *f) {
  size_t arena = (size_t)size_of(f, f->p->arena_bytes);
  char *slab = NULL;
  if (arena && f->device) {
    slab = f->slab = device_memory_of(f->vm, f->device)->alloc(f->vm, f->device, arena);
    f->slab_bytes = arena;
  } else if (arena) {
    slab = host()->slab(f->vm, arena);
  }
  if (arena && !slab) return false;
  place_buffers(f, slab);
  return true;
}

/* The array of an output that only a loop tells the size of. */
static bool late_output(plan_frame *f, const plan_output *out) {
  int64_t shape[ARRAY_MAX_RANK];
  const plan_buffer *b = &f->p->buffers[out->index];
  for (int i = 0; i < out->type.rank; i++) shape[i] = size_of(f, out->type.shape[i]);
  qn_array *a = f->arrays[b->index] = array_new(f->vm, (qn_dtype)out->type.dtype, out->type.rank, shape);
  if (a && a->size) memcpy(array_data(a), f->buffers[out->index], (size_t)a->size * dtype_size((qn_dtype)a->dtype));
  return a != NULL;
}

/* The values of the outputs; owned. */
static bool give_outputs(plan_frame *f) {
  const plan *p = f->p;
  for (uint32_t o = 0; o < p->noutputs; o++) {
    const plan_output *out = &p->outputs[o];
    if (out->kind == OUT_INPUT) {
      f->outputs[o] = value_retain(value_obj(TAG_ARRAY, f->inputs[out->index]));
    } else if (out->kind == OUT_SCALAR) {
      f->outputs[o] = slot_value(f, out->index);
    } else {
      uint32_t made = p->buffers[out->index].index;
      if (p->buffers[out->index].where == WHERE_LATE && !f->arrays[made] && !late_output(f, out)) {
        while (o-- > 0) value_release(f->vm, f->outputs[o]);
        return false;
      }
      qn_array *a = f->arrays[made];
      bool own = p->fixed && made == o, same = own || a->rank == out->type.rank;
      int64_t shape[ARRAY_MAX_RANK], strides[ARRAY_MAX_RANK];
      for (int i = 0; i < out->type.rank && !own; i++) {
        shape[i] = size_of(f, out->type.shape[i]);
        same = same && a->shape[i] == shape[i];
      }
      qn_array *v = a;
      if (same) {
        a->head.refs++;
      } else {
        shape_strides(out->type.rank, shape, strides);
        v = array_view(f->vm, a, (qn_dtype)a->dtype, out->type.rank, shape, strides, a->offset);
      }
      if (!v) {
        while (o-- > 0) value_release(f->vm, f->outputs[o]);
        return false;
      }
      f->outputs[o] = value_obj(TAG_ARRAY, v);
    }
  }
  return true;
}

static size_t part(size_t *at, size_t n, size_t size) {
  size_t from = *at;
  *at += (n * size + 15) & ~(size_t)15;
  return from;
}

/* ---- the door -------------------------------------------------------------------------------------------------------------------- */

bool plan_ready(qn_vm *vm, plan *p, device_plan **there, int device, bool wait) {
  if (p->nproducts && p->here_only) return false;
  if (*there && (*there)->device != device) plan_forget(vm, there);
  return device_kernels_of(device)->plan_ready(vm, device, p, there, wait);
}

void plan_forget(qn_vm *vm, device_plan **there) {
  if (*there) device_kernels_of((*there)->device)->plan_close(vm, *there);
  *there = NULL;
}

static bool run_on(qn_vm *vm, plan *p, device_plan *there, qn_array *const *inputs, const qk_scalar *scalars,
                   qn_value *outputs, bool *refused);

/* On the CPU, from and to a device. */
static bool run_through_host(qn_vm *vm, plan *p, int device, qn_array *const *inputs, const qk_scalar *scalars,
                             qn_value *outputs) {
  uint32_t n = p->graph->ninputs, taken = 0;
  bool refused;
  qn_array **here = mem_alloc(vm, (n + 1) * sizeof *here);
  if (!here) return false;
  for (; taken < n; taken++) {
    here[taken] = NULL;
    if (inputs[taken] && !(here[taken] = array_to_cpu(vm, inputs[taken]))) break;
  }
  bool made = taken == n && run_on(vm, p, NULL, here, scalars, outputs, &refused), ok = made;
  for (uint32_t o = 0; o < p->noutputs && ok; o++) {
    if (!value_is(outputs[o], TAG_ARRAY)) continue;
    qn_array *there = p->outputs[o].kind == OUT_INPUT ? inputs[p->outputs[o].index] : NULL;
    if (there)
      there->head.refs++;
    else
      there = array_to_device(vm, value_array(outputs[o]), device);
    ok = there != NULL;
    if (!ok) break;
    value_release(vm, outputs[o]);
    outputs[o] = value_obj(TAG_ARRAY, there);
  }
  for (uint32_t o = 0; o < p->noutputs && made && !ok; o++) value_release(vm, outputs[o]);
  for (uint32_t i = 0; i < taken; i++) array_drop(vm, here[i]);
  mem_free(vm, here, (n + 1) * sizeof *here);
  return ok;
}

/* A plan with products was refused: raises the error of a check that fails on the CPU, too, or one that says no more than that. */
static bool refuse(qn_vm *vm, plan *p, int device, qn_array *const *inputs, const qk_scalar *scalars,
                   qn_value *outputs) {
  if (!run_through_host(vm, p, device, inputs, scalars, outputs)) return false;
  for (uint32_t o = 0; o < p->noutputs; o++) value_release(vm, outputs[o]);
  raise_error(vm, E_internal, SPAN_NONE, "a compiled check failed on the device");
  return false;
}

bool plan_run(qn_vm *vm, plan *p, device_plan **there, qn_array *const *inputs, const qk_scalar *scalars,
              qn_value *outputs) {
  bool wait = vm->config.jit == QN_JIT_SYNC || vm->config.jit == QN_JIT_VERIFY, refused = false, arrays = false;
  int device = vm->device;
  for (uint32_t i = 0; i < p->graph->ninputs && !arrays; i++)
    if (inputs[i]) device = inputs[i]->device, arrays = true;
  if (!device) return run_on(vm, p, NULL, inputs, scalars, outputs, &refused);
  if (plan_ready(vm, p, there, device, wait)) {
    if (run_on(vm, p, *there, inputs, scalars, outputs, &refused)) return true;
    if (!refused) return false;
    if (p->nproducts) return refuse(vm, p, device, inputs, scalars, outputs);
  } else if (p->nproducts) {
    raise_error(vm, E_internal, SPAN_NONE, "a plan with products of the device's library is not ready");
    return false;
  }
  return run_through_host(vm, p, device, inputs, scalars, outputs);
}

/* The tables of a plan of any size, in one piece of memory. */
static size_t place_tables(plan_frame *f, char *memory) {
  const plan *p = f->p;
  size_t bytes = 0, at[8];
  at[0] = part(&bytes, p->graph->dims.n, sizeof *f->symbols);
  at[1] = part(&bytes, p->nscalars, sizeof *f->slots);
  at[2] = part(&bytes, p->nbuffers, sizeof *f->buffers);
  at[3] = part(&bytes, p->noutputs, sizeof *f->arrays);
  at[4] = part(&bytes, p->most_ints, sizeof *f->ints);
  at[5] = part(&bytes, p->most_buffers, sizeof *f->step_buffers);
  at[6] = part(&bytes, p->most_scalars, sizeof *f->step_scalars);
  at[7] = part(&bytes, p->late ? p->nbuffers : 0, sizeof *f->late);
  if (!memory) return bytes;
  f->symbols = (int64_t *)(void *)(memory + at[0]);
  f->slots = (qk_scalar *)(void *)(memory + at[1]);
  f->buffers = (void **)(void *)(memory + at[2]);
  f->arrays = (qn_array **)(void *)(memory + at[3]);
  f->ints = (int64_t *)(void *)(memory + at[4]);
  f->step_buffers = (void **)(void *)(memory + at[5]);
  f->step_scalars = (qk_scalar *)(void *)(memory + at[6]);
  f->late = (size_t *)(void *)(memory + at[7]);
  for (uint32_t b = 0; b < p->nbuffers && p->late; b++) f->late[b] = 0;
  return bytes;
}

/* ---- regions -------------------------------------------------------------------------------------------------------------------- */

/* An operand or result of a region's plan: memory, or the number of a host scalar. */
typedef struct region_value {
  char *at;
  qk_scalar number;
} region_value;

/* The plan of an arm, a header or a body, which may run many times. */
typedef struct region_part {
  plan_frame f;
  uint32_t nin, nout;
  buffer_array *in, *out; /* headers over what it reads and writes */
  qn_array **inputs;
  char *tables, *slab;
  size_t tables_bytes, slab_bytes;
} region_part;

static size_t type_bytes(const plan_frame *f, const graph_type *t) {
  int64_t n = 1;
  for (int i = 0; i < t->rank; i++) n *= size_of(f, t->shape[i]);
  return (size_t)n * dtype_size((qn_dtype)t->dtype);
}

static bool part_open(region_part *x, qn_vm *vm, plan *p) {
  size_t bytes = 0, at[4];
  *x = (region_part){.f = {.vm = vm, .p = p}, .nin = p->graph->ninputs, .nout = p->noutputs};
  at[0] = part(&bytes, place_tables(&x->f, NULL), 1);
  at[1] = part(&bytes, x->nin, sizeof *x->in);
  at[2] = part(&bytes, x->nout, sizeof *x->out);
  at[3] = part(&bytes, x->nin, sizeof *x->inputs);
  x->tables_bytes = bytes + 1;
  if (!(x->tables = mem_alloc(vm, x->tables_bytes))) return false;
  (void)place_tables(&x->f, x->tables + at[0]);
  x->in = (buffer_array *)(void *)(x->tables + at[1]);
  x->out = (buffer_array *)(void *)(x->tables + at[2]);
  x->f.inputs = x->inputs = (qn_array **)(void *)(x->tables + at[3]);
  return true;
}

static void part_close(region_part *x) {
  qn_vm *vm = x->f.vm;
  if (x->slab) mem_free(vm, x->slab, x->slab_bytes);
  if (x->tables) mem_free(vm, x->tables, x->tables_bytes);
}

/* A header over memory. The type's sizes are those of plan frame f. */
static void header_over(const plan_frame *f, buffer_array *b, char *at, const graph_type *t) {
  *b = (buffer_array){.a = {.head = {.refs = 1, .tag = TAG_ARRAY},
                            .dtype = t->dtype,
                            .rank = t->rank,
                            .contiguous = 1,
                            .storage = &b->s},
                      .s = {.refs = 2, .foreign = 1, .data = at}};
  for (int i = 0; i < t->rank; i++) b->a.shape[i] = size_of(f, t->shape[i]);
  b->a.size = shape_strides(t->rank, b->a.shape, b->a.strides);
  b->s.bytes = (size_t)(b->a.size > 0 ? b->a.size : 0) * dtype_size((qn_dtype)t->dtype);
}

/* Gives it its operands, of the outer plan's types: then its sizes are known. */
static bool part_bind(region_part *x, const plan_frame *outer, const graph_type *const *types, const region_value *in) {
  plan_frame *f = &x->f;
  const plan *p = f->p;
  qk_scalar *weak = f->slots; /* those of inputs come first */
  uint32_t nweak = 0;
  for (uint32_t i = 0; i < p->nscalars; i++) f->slots[i] = p->scalar_init ? p->scalar_init[i] : (qk_scalar){0};
  for (uint32_t i = 0; i < x->nin; i++) {
    x->inputs[i] = NULL;
    if (types[i]->weak) {
      weak[nweak++] = in[i].number;
    } else {
      header_over(outer, &x->in[i], in[i].at, types[i]);
      x->inputs[i] = &x->in[i].a;
    }
  }
  return read_symbols(f, weak);
}

/* Runs it, and writes results where `out` says. */
static bool part_run(region_part *x, const plan_frame *outer, const graph_type *const *types, const region_value *in,
                     region_value *out) {
  plan_frame *f = &x->f;
  plan *p = f->p;
  if (!part_bind(x, outer, types, in)) return false;
  for (uint32_t o = 0; o < x->nout; o++) {
    f->arrays[o] = NULL;
    if (p->outputs[o].kind == OUT_SCALAR) continue;
    header_over(f, &x->out[o], out[o].at, &p->outputs[o].type);
    f->arrays[o] = &x->out[o].a;
  }
  size_t arena = (size_t)size_of(f, p->arena_bytes);
  if (arena > x->slab_bytes) {
    if (x->slab) mem_free(f->vm, x->slab, x->slab_bytes);
    x->slab_bytes = 0;
    if (!(x->slab = mem_alloc(f->vm, arena))) return false;
    x->slab_bytes = arena;
  }
  place_buffers(f, x->slab);
  bool ok = true;
  for (uint32_t i = 0; i < p->nsteps && ok; i++) ok = run_step(f, &p->steps[i]);
  if (!ok) {
    late_free(f);
    return false;
  }
  for (uint32_t o = 0; o < x->nout; o++) {
    const plan_output *from = &p->outputs[o];
    if (from->kind == OUT_SCALAR) {
      out[o].number = f->slots[from->index];
      continue;
    }
    const char *made = from->kind == OUT_INPUT ? in[from->index].at : out[p->buffers[from->index].index].at;
    if (made != out[o].at) memcpy(out[o].at, made, x->out[o].s.bytes);
  }
  late_free(f);
  return true;
}

static size_t rounded(size_t bytes) { return (bytes + ARRAY_TAIL + 63) & ~(size_t)63; }
static size_t rounded_bytes(const plan_frame *f, const graph_type *t) {
  return t->weak ? 0 : rounded(type_bytes(f, t));
}

/* Is the condition that a region looks at true? */
static bool holds(const graph_type *t, const region_value *v) {
  return t->weak ? v->number.i != 0 : *(const uint8_t *)v->at != 0;
}

/* Rows that a loop keeps. */
typedef struct kept_rows {
  const graph_type *type; /* of a row, in the words of the body */
  char *at;
  size_t row, bytes; /* of a row, of all that is there */
  bool apart;        /* a row is made aside and copied: it would not lie as kernels want it */
} kept_rows;

/* What a region step has in hand. */
typedef struct region_run {
  plan_frame *f;
  const plan_region *r;
  const graph_node *node;
  const graph_type **types; /* of operands */
  region_value *in, *out;   /* operands; where results go */
  char *room;               /* of a loop: two places for each carry, a row of each that is kept */
  size_t room_bytes;
  kept_rows *rows; /* of a loop, by results behind the carries */
  int64_t turns, stride, kept;
  bool keeps; /* the rows of this turn */
} region_run;

/* Room for one more row of each; when all slots are taken, every second goes first. */
static bool rows_room(region_run *x) {
  const plan_region *r = x->r;
  uint32_t n = r->nmade - r->ncarries;
  if (r->slots && x->kept == r->slots) {
    for (uint32_t k = 0; k < n; k++)
      for (int64_t i = 1; i < x->kept / 2; i++)
        memcpy(x->rows[k].at + (size_t)i * x->rows[k].row, x->rows[k].at + 2 * (size_t)i * x->rows[k].row,
               x->rows[k].row);
    x->kept /= 2;
    x->stride *= 2;
  }
  for (uint32_t k = 0; k < n; k++) {
    kept_rows *rows = &x->rows[k];
    size_t need = ((size_t)x->kept + 1) * rows->row + ARRAY_TAIL;
    if (need <= rows->bytes) continue;
    size_t more = 2 * need;
    char *at = mem_alloc(x->f->vm, more);
    if (!at) return false;
    if (rows->at) {
      memcpy(at, rows->at, (size_t)x->kept * rows->row);
      mem_free(x->f->vm, rows->at, rows->bytes);
    }
    rows->at = at;
    rows->bytes = more;
  }
  return true;
}

/* Where a turn puts what it makes: each carry where the last turn did not, rows behind those that are kept, or aside. */
static bool place_results(region_run *x, int odd) {
  const plan_region *r = x->r;
  bool keeps = r->nmade > r->ncarries && x->turns % x->stride == 0;
  if (keeps && !rows_room(x)) return false;
  keeps = keeps && x->turns % x->stride == 0; /* the distance may have doubled */
  char *at = x->room;
  for (uint32_t k = 0; k < r->ncarries; k++) {
    size_t bytes = rounded_bytes(x->f, x->types[k]);
    x->out[k].at = at + (odd ? bytes : 0);
    at += 2 * bytes;
  }
  for (uint32_t k = r->ncarries; k < r->nmade; k++) {
    kept_rows *rows = &x->rows[k - r->ncarries];
    x->out[k].at = keeps && !rows->apart ? rows->at + (size_t)x->kept * rows->row : at;
    at += rounded(rows->row);
  }
  x->keeps = keeps;
  return true;
}

/* What the turn has made becomes the rows' next, where it is kept and does not lie there. */
static void keep_rows(region_run *x) {
  if (!x->keeps) return;
  for (uint32_t k = x->r->ncarries; k < x->r->nmade; k++) {
    const kept_rows *rows = &x->rows[k - x->r->ncarries];
    char *to = rows->at + (size_t)x->kept * rows->row;
    if (rows->type->weak && rows->type->dtype == QN_bool)
      *(uint8_t *)to = x->out[k].number.i != 0;
    else if (rows->type->weak)
      memcpy(to, &x->out[k].number, rows->row);
    else if (rows->apart)
      memcpy(to, x->out[k].at, rows->row);
  }
  x->kept++;
}

/* Places for carries and rows, as large as the operands say. */
static bool loop_begin(region_run *x, region_part *body) {
  const plan_region *r = x->r;
  const graph *g = body->f.p->graph;
  if (!part_bind(body, x->f, x->types, x->in)) return false;
  for (uint32_t k = 0; k < r->nmade; k++) {
    const graph_type *t = &g->nodes[g->outputs[k]].type;
    if (k < r->ncarries) {
      x->room_bytes += 2 * rounded_bytes(x->f, x->types[k]);
      continue;
    }
    kept_rows *rows = &x->rows[k - r->ncarries];
    *rows = (kept_rows){.type = t, .row = type_bytes(&body->f, t)};
    rows->apart = t->weak || rows->row % 64;
    x->room_bytes += rounded(rows->row);
  }
  return !x->room_bytes || (x->room = mem_alloc(x->f->vm, x->room_bytes)) != NULL;
}

/* `while header(in) { in = body(in) }`. */
static bool run_loop(region_run *x) {
  qn_vm *vm = x->f->vm;
  region_part header, body = {.tables = NULL};
  char condition[64 + ARRAY_TAIL];
  region_value go = {.at = condition};
  const plan *first = x->r->parts[0];
  bool ok = part_open(&header, vm, x->r->parts[0]) && part_open(&body, vm, x->r->parts[1]) && loop_begin(x, &body);
  for (x->stride = 1; ok; x->turns++) {
    if (!(ok = !vm_poll(vm) && part_run(&header, x->f, x->types, x->in, &go))) break;
    if (!holds(&first->outputs[0].type, &go)) break;
    ok = place_results(x, x->turns & 1) && part_run(&body, x->f, x->types, x->in, x->out);
    if (!ok) break;
    keep_rows(x);
    for (uint32_t k = 0; k < x->r->ncarries; k++) x->in[k] = x->out[k];
  }
  part_close(&header);
  part_close(&body);
  return ok;
}

static bool run_if(region_run *x) {
  plan *p = x->r->parts[holds(x->types[0], &x->in[0]) ? 0 : 1];
  region_part arm;
  bool ok = part_open(&arm, x->f->vm, p) && part_run(&arm, x->f, x->types + 1, x->in + 1, x->out);
  part_close(&arm);
  return ok;
}

/* A size that a loop's number of turns tells. */
static void set_rows(plan_frame *f, uint32_t node, int64_t rows) {
  const dim_table *t = &f->p->graph->dims;
  for (uint32_t i = 0; i < t->n; i++) {
    const dim_expr *e = &t->exprs[i];
    if (e->op == DIM_SYMBOL && e->source == DIM_FROM_NODE && e->ref == node && e->axis == 0) f->symbols[i] = rows;
  }
}

/* Gives result k to who takes it. False with an error raised. */
static bool give_result(region_run *x, uint32_t k) {
  plan_frame *f = x->f;
  const plan_region *r = x->r;
  uint32_t node = r->proj[k];
  const graph_type *t = &f->p->graph->nodes[node].type;
  if (k >= r->nmade) {
    f->slots[r->out[k]].i = k == r->nmade ? x->turns : x->stride;
    return true;
  }
  const region_value *made = r->kind == NODE_LOOP && k < r->ncarries ? &x->in[k] : &x->out[k];
  if (t->weak) {
    f->slots[r->out[k]] = made->number;
    return true;
  }
  const char *from = made->at;
  if (r->kind == NODE_LOOP && k >= r->ncarries) {
    kept_rows *rows = &x->rows[k - r->ncarries];
    set_rows(f, node, x->kept);
    if (f->p->buffers[r->out[k]].where == WHERE_LATE && rows->at) { /* the memory itself */
      f->buffers[r->out[k]] = rows->at;
      f->late[r->out[k]] = rows->bytes;
      rows->at = NULL;
      return true;
    }
    if (size_of(f, t->shape[0]) != x->kept)
      return raise_error(f->vm, E_internal, SPAN_NONE, "a loop took %lld turns", (long long)x->turns), false;
    from = rows->at;
  }
  if (f->p->buffers[r->out[k]].where == WHERE_LATE && !f->late[r->out[k]] && !late_make(f, r->out[k])) return false;
  size_t bytes = type_bytes(f, t);
  if (bytes && from != (char *)f->buffers[r->out[k]]) memcpy(f->buffers[r->out[k]], from, bytes);
  return true;
}

static bool run_region_step(plan_frame *f, const plan_step *s) {
  qn_vm *vm = f->vm;
  const graph *g = f->p->graph;
  const plan_region *r = &f->p->regions[s->what];
  bool loop = r->kind == NODE_LOOP;
  uint32_t nrows = loop ? r->nmade - r->ncarries : 0;
  region_run x = {.f = f, .r = r, .node = &g->nodes[s->node]};
  size_t bytes = 0, at[4];
  at[0] = part(&bytes, r->nin, sizeof *x.types);
  at[1] = part(&bytes, r->nin, sizeof *x.in);
  at[2] = part(&bytes, r->nmade, sizeof *x.out);
  at[3] = part(&bytes, nrows, sizeof *x.rows);
  char *tables = mem_alloc(vm, bytes + 1);
  if (!tables) return false;
  x.types = (const graph_type **)(void *)(tables + at[0]);
  x.in = (region_value *)(void *)(tables + at[1]);
  x.out = (region_value *)(void *)(tables + at[2]);
  x.rows = (kept_rows *)(void *)(tables + at[3]);
  for (uint32_t i = 0; i < r->nin; i++) {
    x.types[i] = &g->nodes[x.node->in[i]].type;
    x.in[i] =
        x.types[i]->weak ? (region_value){.number = f->slots[r->in[i]]} : (region_value){.at = f->buffers[r->in[i]]};
  }
  bool ok = true;
  for (uint32_t k = 0; k < r->nmade && ok && !loop; k++) {
    uint32_t b = r->out[k];
    if (g->nodes[r->proj[k]].type.weak) continue;
    ok = f->p->buffers[b].where != WHERE_LATE || f->late[b] || late_make(f, b);
    x.out[k].at = f->buffers[b];
  }
  ok = ok && (loop ? run_loop(&x) : run_if(&x));
  for (uint32_t k = 0; k < r->nout && ok; k++)
    if (r->proj[k]) ok = give_result(&x, k);
  for (uint32_t k = 0; k < nrows; k++)
    if (x.rows[k].at) mem_free(vm, x.rows[k].at, x.rows[k].bytes);
  if (x.room) mem_free(vm, x.room, x.room_bytes);
  mem_free(vm, tables, bytes + 1);
  return ok;
}

static bool run_on(qn_vm *vm, plan *p, device_plan *there, qn_array *const *inputs, const qk_scalar *scalars,
                   qn_value *outputs, bool *refused) {
  int device = there ? there->device : 0;
  plan_frame f = {.vm = vm, .p = p, .inputs = inputs, .outputs = outputs, .device = device, .there = there};
  struct {
    void *buffers[PLAN_FEW], *step_buffers[PLAN_FEW];
    qk_scalar slots[PLAN_FEW], step_scalars[PLAN_FEW];
    qn_array *arrays[PLAN_FEW];
    int64_t ints[PLAN_FEW];
  } few;
  char *memory = NULL;
  size_t bytes = 0;
  if (p->fixed) {
    f.buffers = few.buffers;
    f.step_buffers = few.step_buffers;
    f.slots = few.slots;
    f.step_scalars = few.step_scalars;
    f.arrays = few.arrays;
    f.ints = few.ints;
  } else {
    bytes = place_tables(&f, NULL);
    if (!(memory = mem_alloc(vm, bytes + 1))) return false;
    (void)place_tables(&f, memory);
  }
  for (uint32_t o = 0; o < p->noutputs; o++) f.arrays[o] = NULL;
  uint32_t weak = 0;
  for (uint32_t i = 0; i < p->graph->ninputs && p->nscalars; i++) weak += inputs[i] == NULL;
  for (uint32_t i = 0; i < p->nscalars; i++)
    f.slots[i] = i < weak ? scalars[i] : p->scalar_init ? p->scalar_init[i] : (qk_scalar){0};
  bool ok = (!device || device_kernels_of(device)->plan_begin(vm, there)) && read_symbols(&f, scalars) &&
            make_outputs(&f) && take_arena(&f);
  for (uint32_t i = 0; i < p->nsteps && ok;) {
    const plan_step *s = &p->steps[i];
    uint32_t n = device ? run_there(&f, i) : s->kind == STEP_KERNEL ? run_kernel_step(&f, s) : run_step(&f, s);
    ok = n != 0;
    i += n;
  }
  if (device) ok = checks_there(&f, ok);
  ok = ok && give_outputs(&f);
  late_free(&f);
  for (uint32_t o = 0; o < p->noutputs; o++) array_drop(vm, f.arrays[o]);
  if (!device)
    host()->slab_leave(vm);
  else if (f.slab)
    device_memory_of(vm, device)->free(vm, device, f.slab, f.slab_bytes);
  *refused = f.refused;
  if (memory) mem_free(vm, memory, bytes + 1);
  return ok;
}
