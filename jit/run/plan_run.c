/* Running plans (plan_run.h): buffers, then steps in order.
 *
 *   symbols    sizes of the inputs, values of scalar inputs, and, as steps find them, sizes that depend on data
 *   buffers    inputs as they are, constants in the plan, new arrays for the outputs, the rest in one arena (the VM's slab)
 *   steps      kernels (compiled code when it is there), library ops on array headers over the buffers, host scalars
 *
 * On a device the arena is a block of the device's memory, and constants are kept there. Kernels that follow each other run together
 * (jit/run/device.h), and so do the products between them if the device can do that. Library steps that the device does not have are done on
 * the CPU, with copies. Checks of kernels are waited for at the end, and before the error of another step is raised. If the device refuses,
 * the whole plan runs on the CPU with copies. Of plans with products that would give other bits: they run there only to find the error,
 * and the call is left to the interpreter.
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
#include "jit/run/plan_frame.h"
#include "jit/run/plan_run.h"
#include "lang/trace_events.h"

/* ---- errors -------------------------------------------------------------------------------------------------------------------- */

static void raise_site(plan_frame *f, uint32_t site) {
  const graph *g = f->p->graph;
  if (!site || site >= g->nsites) return;
  raise_at(f->vm, g->sites[site].at);
  for (uint32_t up; (up = g->sites[site].parent) != 0; site = up)
    raise_through(f->vm, g->sites[up].at, g->sites[site].function);
  raise_through(f->vm, SPAN_NONE, g->sites[site].function);
}

void frame_raise_site(plan_frame *f, uint32_t node) {
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
                      shown_value(failure), axis ? (int)c->detail : 0, axis ? frame_size(f, x->shape[c->detail]) : 0);
  }
  if (c) raise_site(f, c->site ? c->site : c->node < g->n ? g->nodes[c->node].site : 0);
}

/* ---- steps ----------------------------------------------------------------------------------------------------------------------- */

static bool late_make_all(plan_frame *f, const plan_step *s);

/* Makes memory for the rows that a loop which is a kernel may keep. */
static bool rows_make(plan_frame *f, const kernel_rows *rows) {
  int64_t room = rows->room;
  if (rows->slot && __builtin_add_overflow(room, f->slots[rows->slot - 1].i, &room)) room = INT64_MAX;
  if (room < 1) room = 1;
  for (uint32_t k = 0; k < rows->n; k++) {
    uint32_t b = rows->buffers[k];
    const graph_type *t = &f->p->graph->nodes[rows->nodes[k]].type;
    size_t bytes = dtype_size((qn_dtype)t->dtype);
    bool fits = true;
    for (int a = 1; a < t->rank; a++)
      fits &= !__builtin_mul_overflow(bytes, (size_t)frame_size(f, t->shape[a]), &bytes);
    fits = fits && !__builtin_mul_overflow(bytes, (size_t)room, &bytes) &&
           !__builtin_add_overflow(bytes, (size_t)ARRAY_TAIL, &bytes);
    if (f->late[b]) frame_give(f, f->buffers[b], f->late[b]);
    f->late[b] = 0;
    if (!fits) return raise_memory(f->vm), false;
    if (!(f->buffers[b] = frame_take(f, bytes))) return false;
    f->late[b] = bytes;
  }
  return true;
}

/* Tells how many rows there are, on a device once its kernels are through. */
static bool rows_tell(plan_frame *f, const kernel_rows *rows) {
  int64_t turns;
  if (!f->device) {
    memcpy(&turns, f->buffers[rows->turns], sizeof turns);
  } else {
    frame_view from;
    qn_value v;
    frame_array(f, &from, f->device, f->buffers[rows->turns], &(graph_type){.dtype = QN_i64});
    if (!frame_checks(f, true) || !array_item(f->vm, &from.a, 0, &v)) return false;
    turns = v.u.i;
  }
  for (uint32_t k = 0; k < rows->n; k++) frame_tell(f, rows->nodes[k], 1, &turns);
  return true;
}

static bool run_kernel_step(plan_frame *f, const plan_step *s) {
  plan_kernel *k = &f->p->kernels[s->what];
  if (k->rows && !rows_make(f, k->rows)) return false;
  if (f->p->late && !late_make_all(f, s)) return false;
  const int64_t *ints = f->ints;
  if (f->p->fixed)
    ints = s->ints;
  else if (f->step_ints)
    ints = f->step_ints[s - f->p->steps];
  else
    for (uint32_t i = 0; i < s->nints; i++) f->ints[i] = frame_size(f, s->ints[i]);
  for (uint32_t i = 0; i < s->nbuffers; i++) f->step_buffers[i] = f->buffers[s->buffers[i]];
  for (uint32_t i = 0; i < s->nscalars; i++) f->step_scalars[i] = f->slots[s->scalars[i]];
  const qk_phase *code = atomic_load_explicit(&k->code, memory_order_acquire);
  kernel_failure failure;
  if (host()->launch(f->vm, k->program, &k->host_code, code, f->step_buffers, ints, f->step_scalars, &failure)) {
    return !k->rows || rows_tell(f, k->rows);
  }
  if (failure.error == ~(uint64_t)0) {
    if (k->region && !f->vm->error->at.source) frame_raise_site(f, s->node); /* an interrupt */
    return false;
  }
  if (k->region && !f->brief) {
    region_raise(f, k->region - 1, s->node);
    return false;
  }
  if (k->region) f->brief->vague = true;
  if (code &&
      !f->brief) { /* again, for the offending value: what is stored is the same as before, or dropped with the error */
    kernel_failure again;
    if (!host()->launch(f->vm, k->program, &k->host_code, NULL, f->step_buffers, ints, f->step_scalars, &again)) {
      if (again.error == ~(uint64_t)0) return false;
      if (again.error == failure.error) failure = again;
    }
  }
  raise_check(f, k->program, &failure);
  return false;
}

void frame_array(const plan_frame *f, frame_view *v, int device, void *at, const graph_type *t) {
  *v = (frame_view){.a = {.head = {.refs = 1, .tag = TAG_ARRAY},
                          .dtype = t->dtype,
                          .rank = t->rank,
                          .device = (uint8_t)device,
                          .contiguous = 1,
                          .storage = &v->s},
                    .s = {.refs = 2, .foreign = 1, .device = (uint8_t)device, .data = at}};
  for (int i = 0; i < t->rank; i++) v->a.shape[i] = frame_size(f, t->shape[i]);
  v->a.size = shape_strides(t->rank, v->a.shape, v->a.strides);
  v->s.bytes = (size_t)(v->a.size > 0 ? v->a.size : 0) * dtype_size((qn_dtype)t->dtype);
}

static void array_over(const plan_frame *f, frame_view *v, uint32_t buffer, const graph_type *t) {
  frame_array(f, v, f->device, f->buffers[buffer], t);
}

enum { LIBRARY_OPERANDS = 4 };

void frame_tell(plan_frame *f, uint32_t node, int rank, const int64_t *shape) {
  const dim_table *t = &f->p->graph->dims;
  for (uint32_t i = 0; i < t->n; i++) {
    const dim_expr *e = &t->exprs[i];
    if (e->op != DIM_SYMBOL || e->source != DIM_FROM_NODE || e->ref != node || e->axis >= rank) continue;
    f->sizes += f->symbols[i] != shape[e->axis];
    f->symbols[i] = shape[e->axis];
  }
}

/* A node, a host number, has the value in this slot: sets the symbols that stand for it. */
static void tell_number(plan_frame *f, uint32_t node, uint32_t slot) {
  const dim_table *t = &f->p->graph->dims;
  for (uint32_t i = 0; i < t->n; i++) {
    const dim_expr *e = &t->exprs[i];
    if (e->op != DIM_SYMBOL || e->source != DIM_FROM_NUMBER || e->ref != node) continue;
    f->sizes += f->symbols[i] != f->slots[slot].i;
    f->symbols[i] = f->slots[slot].i;
  }
}

/* As tell_number, for all that the step has made. */
static void tell_numbers(plan_frame *f, const plan_step *s) {
  if (s->kind == STEP_SCALAR) tell_number(f, s->node, s->out);
  const plan_region *r = s->kind == STEP_REGIONS ? &f->p->regions[s->what] : NULL;
  for (uint32_t k = 0; r && k < r->nout; k++)
    if (r->proj[k] && f->p->graph->nodes[r->proj[k]].type.weak) tell_number(f, r->proj[k], r->out[k]);
}

/* Does the op of a library step, on the device or else on the CPU. *out is a new array (the caller's, on the operands' device or the CPU), or NULL
 * if the device has stored the result to `to`. False with an error raised. */
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
  frame_view buffers[LIBRARY_OPERANDS], result;
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
    frame_raise_site(f, s->node);
    return false;
  }
  const qn_array *made = out ? out : &result.a;
  frame_tell(f, s->node, made->rank, made->shape);
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

/* A step without operands in memory whose numbers are all of one type. False: it is not so simple. */
static bool quick_scalar_step(plan_frame *f, const plan_step *s) {
  if (s->nbuffers || !s->nscalars || s->nscalars > 2) return false;
  uint32_t a = s->scalars[0], b = s->scalars[s->nscalars - 1];
  const graph_type *types = f->p->scalar_types;
  if (s->op == OP_fit && s->nscalars == 1 && types[s->out].dtype == types[a].dtype) {
    bool any = types[a].dtype == WEAK_BOOL || s->attr->dtype == QN_f64 ||
               (types[a].dtype == WEAK_INT && (s->attr->dtype == QN_i64 || s->attr->dtype == QN_f32));
    if (any) f->slots[s->out] = f->slots[a]; /* the dtype holds every such number */
    return any;
  }
  return types[a].dtype == types[b].dtype &&
         scalar_quick((op_id)s->op, (qn_dtype)types[a].dtype, f->slots[a], f->slots[b], &f->slots[s->out]);
}

/* A step has failed on numbers that its op cannot take. If it is proven that it does not, a check elsewhere is to fail, or it is of an arm that is computed
 * where no lane takes it: clears the error, and gives some number, as kernels do. Else the error value. */
static __attribute__((noinline, cold)) qn_value any_proven(plan_frame *f, const plan_step *s) {
  const op_raises raises = (op_raises)op_rows[s->op].raises;
  const bool takes_any = raises != RAISES_int_div && raises != RAISES_int_pow && raises != RAISES_shift;
  if (takes_any || !(graph_attr(&f->p->graph->nodes[s->node]).flags & ATTR_PROVEN) || !error_catchable(f->vm))
    return value_error();
  error_clear(f->vm);
  return value_int(1);
}

static bool run_scalar_step(plan_frame *f, const plan_step *s) {
  if (quick_scalar_step(f, s)) return true;
  graph *g = f->p->graph;
  qn_value in[3], out;
  uint32_t n = s->nscalars < 3 ? s->nscalars : 3;
  for (uint32_t i = 0; i < n; i++) in[i] = slot_value(f, s->scalars[i]);
  if (s->op == OP_cast && s->nbuffers == 1) {
    const graph_node *of = &g->nodes[s->node]; /* the read of an array, or a number that a kernel has made */
    const graph_type number = {.dtype = of->type.dtype};
    const graph_type *x = of->kind == NODE_PROJ ? &number : &g->nodes[of->in[0]].type;
    if (f->device) {
      frame_view b;
      array_over(f, &b, s->buffers[0], x);
      if (!array_item(f->vm, &b.a, 0, &in[0])) return false;
    } else {
      in[0] = dtype_load((qn_dtype)x->dtype, f->buffers[s->buffers[0]]);
    }
    n = 1;
  }
  if (s->op == OP_fit)
    out = eager_check_fit(f->vm, in[0], (qn_dtype)s->attr->dtype) ? in[0] : value_error();
  else if (s->op == OP_cast)
    out = eager_weak_cast(f->vm, in[0], (qn_dtype)s->attr->dtype);
  else
    out = scalar_apply(f->vm, (op_id)s->op, in, (int)n);
  if (value_is_error(out)) out = any_proven(f, s);
  if (value_is_error(out)) {
    frame_raise_site(f, s->node);
    return false;
  }
  set_slot(f, s->out, out);
  return true;
}

/* Of an error that was taken aside while earlier work was waited for: raises it again if that went `well`, else frees it. NULL is ignored. */
static void error_settle(plan_frame *f, qn_error_object *error, bool well) {
  if (error && well)
    error_put_back(f->vm, error);
  else if (error)
    error_free(f->vm, error);
}

bool frame_checks(plan_frame *f, bool ok) {
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

bool frame_late_make(plan_frame *f, uint32_t b) {
  const plan_buffer *buf = &f->p->buffers[b];
  if (buf->where != WHERE_LATE || f->late[b]) return true;
  int64_t elements = frame_size(f, buf->elements);
  if (elements > ARRAY_MAX_ELEMENTS) return raise_memory(f->vm), false;
  size_t bytes = (size_t)elements * dtype_size((qn_dtype)buf->dtype) + ARRAY_TAIL;
  if (!(f->buffers[b] = frame_take(f, bytes))) return false;
  f->late[b] = bytes;
  return true;
}

static bool late_make_all(plan_frame *f, const plan_step *s) {
  for (uint32_t i = 0; i < s->nbuffers; i++)
    if (!frame_late_make(f, s->buffers[i])) return false;
  return true;
}

void frame_late_free(plan_frame *f) {
  for (uint32_t b = 0; b < f->p->nbuffers && f->p->late; b++) {
    if (f->late[b]) frame_give(f, f->buffers[b], f->late[b]);
    f->late[b] = 0;
  }
}

static bool run_tap_step(plan_frame *f, const plan_step *s) {
  enum { FEW_VALUES = 4 };
  qn_vm *vm = f->vm;
  bool reads = f->p->graph->nodes[s->node].type.weak;
  bool known = reads && (!f->taps || f->taps->came < f->taps->read.n);
  if (known) set_slot(f, s->out, value_float(f->taps ? f->taps->read.list[f->taps->came++] : 0));
  if (known || !f->taps || (!reads && f->taps->seen++ < f->taps->made)) return true;
  if (f->device && !frame_checks(f, true)) return false;
  const graph *g = f->p->graph;
  uint32_t n = g->nodes[s->node].nin;
  frame_view few[FEW_VALUES], *views = few;
  qn_value few_values[FEW_VALUES], *values = few_values;
  vm_memory more = {NULL, n * (sizeof *views + sizeof *values)};
  if (n > FEW_VALUES) {
    if (!(more.p = mem_alloc(vm, more.bytes))) return false;
    views = more.p;
    values = (qn_value *)(void *)(views + n);
  }
  for (uint32_t i = 0; i < n; i++) {
    const graph_type *t = &g->nodes[g->nodes[s->node].in[i]].type;
    if (t->weak) {
      values[i] = slot_value(f, s->in[i]);
    } else {
      array_over(f, &views[i], s->in[i], t);
      values[i] = value_obj(TAG_ARRAY, &views[i].a);
    }
  }
  vm_owned held;
  vm_own(vm, &held, vm_drop_memory, &more);
  qn_value result = value_nil();
  bool ok = f->taps->make(f->taps, s->what, values, n, &result);
  vm_disown(vm, &held);
  if (more.p) mem_free(vm, more.p, more.bytes);
  if (!reads)
    f->taps->made += ok;
  else if (ok)
    set_slot(f, s->out, result), f->taps->came++;
  return ok;
}

/* Runs one step on the CPU, or with a device's memory. */
static bool run_step(plan_frame *f, const plan_step *s) {
  switch ((plan_step_kind)s->kind) {
  case STEP_KERNEL: return run_kernel_step(f, s);
  case STEP_LIBRARY: return run_library_step(f, s);
  case STEP_REGIONS: /* kernels do nothing behind a check that fails, but the plans of a region count their checks anew */
    return (!f->device || frame_checks(f, true)) && region_step(f, s);
  case STEP_TAP: return run_tap_step(f, s);
  default: return run_scalar_step(f, s);
  }
}

/* Can a step run before the kernels that precede it? */
static bool goes_ahead(const plan_step *s) { return s->kind == STEP_SCALAR && !s->nbuffers; }

static bool is_product(const plan_step *s) { return s->kind == STEP_LIBRARY && s->op == OP_gemm; }

/* device_call.product */
static bool call_gemm(const device_call *call, uint32_t step, device_gemm *p) {
  plan_frame *f = (plan_frame *)(uintptr_t)call->caller;
  const plan_step *s = &f->p->steps[step];
  const graph *g = f->p->graph;
  const graph_node *n = &g->nodes[s->node];
  frame_view in[2];
  for (int i = 0; i < 2; i++) array_over(f, &in[i], s->buffers[i], &g->nodes[n->in[i]].type);
  return gemm_signature(&in[0].a, &in[1].a, n->attr->flags, p);
}

/* Runs the longest stretch of steps from `first` on that are kernels, host scalars or (if these `join`) products: the scalars at once, then the
 * others together on the device. It ends behind a loop that keeps rows, whose number the next step may need. Returns the number of steps. 0: a step failed or was refused, after those before it; or *apart: the
 * device refuses products together with kernels, and nothing but scalars has run. */
static uint32_t run_stretch(plan_frame *f, uint32_t first, bool join, bool *apart) {
  const plan *p = f->p;
  uint32_t n = 0, kernels = 0, products = 0;
  qn_error_object *error = NULL;
  const kernel_rows *rows = NULL;
  for (; first + n < p->nsteps && !error && !rows; n++) {
    const plan_step *s = &p->steps[first + n];
    if (s->kind == STEP_KERNEL && (rows = p->kernels[s->what].rows) && !rows_make(f, rows)) return 0;
    if ((s->kind == STEP_KERNEL || (join && is_product(s))) && p->late && !late_make_all(f, s)) return 0;
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
  return answer == DEVICE_DONE && !error && (!rows || rows_tell(f, rows)) ? n : 0;
}

/* run_stretch with products joined, if the device takes that, else without. */
static uint32_t run_there(plan_frame *f, uint32_t first) {
  const device_kernels *d = device_kernels_of(f->device);
  bool apart = false, join = f->p->nproducts && d->plan_joins && d->plan_joins(f->vm, f->there);
  uint32_t n = run_stretch(f, first, join, &apart);
  return apart ? run_stretch(f, first, false, &apart) : n;
}

bool frame_steps(plan_frame *f) {
  const bool numbers = f->p->graph->dims.numbers_of_data;
  for (uint32_t i = 0, n; i < f->p->nsteps; i += n) {
    const plan_step *s = &f->p->steps[i];
    n = f->device ? run_there(f, i) : s->kind == STEP_KERNEL ? run_kernel_step(f, s) : run_step(f, s);
    if (!n) return false;
    for (uint32_t k = i; numbers && k < i + n; k++) tell_numbers(f, &f->p->steps[k]);
  }
  return true;
}

/* ---- inputs, outputs, memory -------------------------------------------------------------------------------------------------------- */

/* Does a size depend on data, so that only a step finds it? */
static bool from_node(const dim_table *t, qn_dim d) {
  if (d >= 0) return false;
  const dim_expr *e = &t->exprs[~d];
  return e->op == DIM_SYMBOL ? dim_of_node(e->source) : from_node(t, e->a) || from_node(t, e->b);
}

bool frame_symbols(plan_frame *f, const qk_scalar *scalars) {
  const graph *g = f->p->graph;
  for (uint32_t i = 0; i < g->dims.n; i++) {
    const dim_expr *e = &g->dims.exprs[i];
    const bool number = e->op == DIM_SYMBOL && e->source == DIM_FROM_NUMBER && e->ref,
               given = number && g->nodes[e->ref].kind == NODE_INPUT; /* (others are told when they are computed) */
    const uint32_t input = given ? g->nodes[e->ref].payload.input : e->ref;
    qn_value known;
    f->symbols[i] = number && graph_const_value(g, e->ref, &known) ? known.u.i : e->hint;
    if (e->op != DIM_SYMBOL || (dim_of_node(e->source) && !given) || input >= g->ninputs) continue;
    const qn_array *a = f->inputs[input];
    if (e->source == DIM_FROM_INPUT) {
      if (a && e->axis < a->rank) f->symbols[i] = a->shape[e->axis];
    } else if (a) {
      qn_value v;
      if (!array_item(f->vm, f->inputs[input], 0, &v)) return false;
      f->symbols[i] = v.u.i;
    } else {
      uint32_t slot = 0;
      for (uint32_t k = 0; k < input; k++) slot += f->inputs[k] == NULL;
      f->symbols[i] = scalars[slot].i;
    }
  }
  if (f->p->known) dim_eval_all(&g->dims, f->symbols);
  return true;
}

/* Makes new arrays for the outputs; where the size is not known yet, as large as it can be. */
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
    int64_t shape[ARRAY_MAX_RANK], elements = frame_size(f, p->buffers[out->index].elements);
    bool later = false;
    int rank = out->type.rank;
    for (int i = 0; i < rank; i++) {
      later |= from_node(&p->graph->dims, out->type.shape[i]);
      shape[i] = frame_size(f, out->type.shape[i]);
    }
    if (later) {
      rank = 1;
      shape[0] = elements;
    }
    if (!(f->arrays[o] = array_new_on(f->vm, f->device, (qn_dtype)out->type.dtype, rank, shape))) return false;
  }
  return true;
}

void frame_buffers(plan_frame *f, char *slab) {
  const plan *p = f->p;
  for (uint32_t b = 0; b < p->nbuffers; b++) {
    const plan_buffer *buf = &p->buffers[b];
    switch ((plan_where)buf->where) {
    case WHERE_INPUT: f->buffers[b] = array_data(f->inputs[buf->index]); break;
    case WHERE_CONST: f->buffers[b] = f->device ? f->there->constants[b] : (void *)(uintptr_t)buf->data; break;
    case WHERE_OUTPUT:
      f->buffers[b] = f->arrays[buf->index] ? array_data(f->arrays[buf->index]) + frame_size(f, buf->offset) : NULL;
      break;
    case WHERE_LATE: f->buffers[b] = NULL; break;
    default: f->buffers[b] = slab + frame_size(f, buf->offset); break;
    }
  }
}

static bool take_arena(plan_frame *f) {
  size_t arena = (size_t)frame_size(f, f->p->arena_bytes);
  char *slab = NULL;
  if (arena && f->device) {
    slab = f->slab = device_memory_of(f->vm, f->device)->alloc(f->vm, f->device, arena);
    f->slab_bytes = arena;
  } else if (arena && f->p->taps) { /* an effect may run code of the host, and that another plan */
    slab = f->slab = mem_buffer(f->vm, arena);
    f->slab_bytes = arena;
  } else if (arena) {
    slab = host()->slab(f->vm, arena);
  }
  if (arena && !slab) return false;
  frame_buffers(f, slab);
  return true;
}

/* Makes the array of an output whose size only a loop finds, by a copy. False with an error raised. */
static bool late_output(plan_frame *f, const plan_output *out) {
  int64_t shape[ARRAY_MAX_RANK];
  const plan_buffer *b = &f->p->buffers[out->index];
  for (int i = 0; i < out->type.rank; i++) shape[i] = frame_size(f, out->type.shape[i]);
  qn_array *a = f->arrays[b->index] = array_new_on(f->vm, f->device, (qn_dtype)out->type.dtype, out->type.rank, shape);
  return a && (!a->size ||
               frame_copy(f, array_data(a), f->buffers[out->index], (size_t)a->size * dtype_size((qn_dtype)a->dtype)));
}

/* Gives the outputs' values to the caller. */
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
        shape[i] = frame_size(f, out->type.shape[i]);
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

size_t frame_part(size_t *at, size_t n, size_t size) {
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
  device_plan *d = *there;
  if (!d) return;
  uint32_t n = 2 * d->plan->nregions;
  for (uint32_t k = 0; k < n && d->parts; k++) plan_forget(vm, &d->parts[k]);
  if (d->parts) mem_free(vm, (void *)d->parts, n * sizeof *d->parts);
  device_kernels_of(d->device)->plan_close(vm, d);
  *there = NULL;
}

device_plan **plan_region_part(qn_vm *vm, device_plan *there, uint32_t region, int part) {
  if (!there->parts && !(there->parts = mem_zalloc(vm, 2 * there->plan->nregions * sizeof *there->parts))) return NULL;
  return &there->parts[2 * region + (uint32_t)part];
}

static bool run_on(qn_vm *vm, plan *p, device_plan *there, qn_array *const *inputs, const qk_scalar *scalars,
                   plan_taps *taps, qn_value *outputs, bool *refused);

/* Copies of a plan's inputs in the CPU's memory. */
typedef struct input_copies {
  qn_array **list;
  uint32_t n;
  size_t bytes;
} input_copies;

static void copies_drop(qn_vm *vm, void *what) {
  input_copies *c = what;
  for (uint32_t i = 0; i < c->n; i++) array_drop(vm, c->list[i]);
  mem_free(vm, c->list, c->bytes);
}

/* Runs the plan on the CPU, with copies of the inputs from the device and of the outputs to it. */
static bool run_through_host(qn_vm *vm, plan *p, int device, qn_array *const *inputs, const qk_scalar *scalars,
                             plan_taps *taps, qn_value *outputs) {
  uint32_t n = p->graph->ninputs;
  bool refused;
  input_copies c = {.bytes = (n + 1) * sizeof *c.list};
  if (!(c.list = mem_alloc(vm, c.bytes))) return false;
  for (; c.n < n; c.n++) {
    c.list[c.n] = NULL;
    if (inputs[c.n] && !(c.list[c.n] = array_to_cpu(vm, inputs[c.n]))) break;
  }
  vm_owned held;
  vm_own(vm, &held, copies_drop, &c);
  bool made = c.n == n && run_on(vm, p, NULL, c.list, scalars, taps, outputs, &refused), ok = made;
  vm_disown(vm, &held);
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
  copies_drop(vm, &c);
  return ok;
}

/* After a plan with products was refused: raises the error of the check that failed, which running it on the CPU finds, or an internal error.
 * Returns false. */
static bool refuse(qn_vm *vm, plan *p, int device, qn_array *const *inputs, const qk_scalar *scalars, plan_taps *taps,
                   qn_value *outputs) {
  if (!run_through_host(vm, p, device, inputs, scalars, taps, outputs)) return false;
  for (uint32_t o = 0; o < p->noutputs; o++) value_release(vm, outputs[o]);
  raise_error(vm, E_internal, SPAN_NONE, "a compiled check failed on the device");
  return false;
}

/* Sets the scalar slots to what they are before the first step. */
static inline void take_numbers(const plan *p, qn_array *const *inputs, const qk_scalar *scalars, qk_scalar *slots) {
  uint32_t weak = 0;
  for (uint32_t i = 0; i < p->graph->ninputs; i++) weak += inputs[i] == NULL;
  for (uint32_t i = 0; i < p->nscalars; i++)
    slots[i] = i < weak ? scalars[i] : p->scalar_init ? p->scalar_init[i] : (qk_scalar){0};
}

/* Where a buffer of a straight plan lies. */
static inline void *straight_buffer(const plan_buffer *b, qn_array *const *inputs, const qn_value *outputs,
                                    char *slab) {
  if (b->where == WHERE_INPUT) return array_data(inputs[b->index]);
  if (b->where == WHERE_OUTPUT) return array_data(value_array(outputs[b->index])) + b->offset;
  return b->where == WHERE_CONST ? (void *)(uintptr_t)b->data : slab + b->offset;
}

device_answer plan_run_straight(qn_vm *vm, const plan *p, qn_array *const *inputs, const qk_scalar *scalars,
                                qn_value *outputs) {
  void *buffers[PLAN_FEW];
  qk_scalar slots[PLAN_FEW], numbers[PLAN_FEW];
  device_answer answer = DEVICE_DONE;
  char *slab = p->arena_bytes ? host()->slab(vm, (size_t)p->arena_bytes) : NULL;
  if (p->arena_bytes && !slab) return DEVICE_FAILS;
  uint32_t made = 0;
  for (; made < p->noutputs; made++) {
    const plan_output *out = &p->outputs[made];
    qn_array *a = out->kind == OUT_INPUT ? inputs[out->index]
                                         : array_new(vm, (qn_dtype)out->type.dtype, out->type.rank, out->type.shape);
    if (!a) break;
    outputs[made] = value_obj(TAG_ARRAY, a);
    if (out->kind == OUT_INPUT) a->head.refs++;
  }
  if (made < p->noutputs) answer = DEVICE_FAILS;
  if (p->nscalars) take_numbers(p, inputs, scalars, slots);
  for (uint32_t i = 0; i < p->nsteps && answer == DEVICE_DONE; i++) {
    const plan_step *s = &p->steps[i];
    plan_kernel *k = &p->kernels[s->what];
    const plan_buffer *all = p->buffers;
    void **to = buffers;
    for (const uint32_t *b = s->buffers, *end = b + s->nbuffers; b < end; b++)
      *to++ = straight_buffer(&all[*b], inputs, outputs, slab);
    for (uint32_t n = 0; n < s->nscalars; n++) numbers[n] = slots[s->scalars[n]];
    const qk_phase *code = atomic_load_explicit(&k->code, memory_order_acquire);
    kernel_failure failure;
    if (!host()->launch(vm, k->program, &k->host_code, code, buffers, s->ints, numbers, &failure))
      answer = failure.error == ~(uint64_t)0 ? DEVICE_FAILS : DEVICE_REFUSES;
  }
  if (slab) host()->slab_leave(vm);
  while (answer != DEVICE_DONE && made-- > 0) value_release(vm, outputs[made]);
  return answer;
}

bool plan_run(qn_vm *vm, plan *p, device_plan **there, qn_array *const *inputs, const qk_scalar *scalars,
              plan_taps *taps, qn_value *outputs) {
  bool refused = false, arrays = false;
  int device = vm->device;
  for (uint32_t i = 0; i < p->graph->ninputs && !arrays; i++)
    if (inputs[i]) device = inputs[i]->device, arrays = true;
  if (!device) {
    device_answer answer = p->straight ? plan_run_straight(vm, p, inputs, scalars, outputs) : DEVICE_REFUSES;
    return answer == DEVICE_DONE ||
           (answer == DEVICE_REFUSES && run_on(vm, p, NULL, inputs, scalars, taps, outputs, &refused));
  }
  bool wait = vm->config.jit == QN_JIT_SYNC || vm->config.jit == QN_JIT_VERIFY;
  if (plan_ready(vm, p, there, device, wait)) {
    if (run_on(vm, p, *there, inputs, scalars, taps, outputs, &refused)) return true;
    if (!refused) return false;
    if (p->nproducts) return refuse(vm, p, device, inputs, scalars, taps, outputs);
  } else if (p->nproducts) {
    raise_error(vm, E_internal, SPAN_NONE, "a plan with products of the device's library is not ready");
    return false;
  }
  return run_through_host(vm, p, device, inputs, scalars, taps, outputs);
}

size_t frame_tables(plan_frame *f, char *memory) {
  const plan *p = f->p;
  size_t bytes = 0, at[8];
  at[0] = frame_part(&bytes, p->graph->dims.n, sizeof *f->symbols);
  at[1] = frame_part(&bytes, p->nscalars, sizeof *f->slots);
  at[2] = frame_part(&bytes, p->nbuffers, sizeof *f->buffers);
  at[3] = frame_part(&bytes, p->noutputs, sizeof *f->arrays);
  at[4] = frame_part(&bytes, p->most_ints, sizeof *f->ints);
  at[5] = frame_part(&bytes, p->most_buffers, sizeof *f->step_buffers);
  at[6] = frame_part(&bytes, p->most_scalars, sizeof *f->step_scalars);
  at[7] = frame_part(&bytes, p->late ? p->nbuffers : 0, sizeof *f->late);
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

/* A frame and what it owns. */
typedef struct open_frame {
  plan_frame f;
  frame_held held;
  char *memory; /* of its tables */
  size_t bytes;
} open_frame;

static void frame_drop(qn_vm *vm, void *what) {
  open_frame *o = what;
  plan_frame *f = &o->f;
  frame_regions_free(f);
  frame_late_free(f);
  for (uint32_t i = 0; i < f->p->noutputs; i++) array_drop(vm, f->arrays[i]);
  if (!f->device && f->slab)
    mem_buffer_free(vm, f->slab, f->slab_bytes);
  else if (!f->device)
    host()->slab_leave(vm);
  else if (f->slab)
    device_memory_of(vm, f->device)->free(vm, f->device, f->slab, f->slab_bytes);
  if (o->memory) mem_free(vm, o->memory, o->bytes + 1);
}

static bool run_on(qn_vm *vm, plan *p, device_plan *there, qn_array *const *inputs, const qk_scalar *scalars,
                   plan_taps *taps, qn_value *outputs, bool *refused) {
  int device = there ? there->device : 0;
  open_frame open = {.f = {.vm = vm,
                           .p = p,
                           .inputs = inputs,
                           .outputs = outputs,
                           .device = device,
                           .there = there,
                           .taps = p->taps ? taps : NULL,
                           .brief = taps && taps->brief ? taps : NULL,
                           .sizes = 1}};
  plan_frame *f = &open.f;
  f->held = &open.held;
  struct {
    void *buffers[PLAN_FEW], *step_buffers[PLAN_FEW];
    qk_scalar slots[PLAN_FEW], step_scalars[PLAN_FEW];
    qn_array *arrays[PLAN_FEW];
    int64_t ints[PLAN_FEW], symbols[PLAN_SIZES];
  } few;
  if (p->few) {
    f->symbols = few.symbols;
    f->buffers = few.buffers;
    f->step_buffers = few.step_buffers;
    f->slots = few.slots;
    f->step_scalars = few.step_scalars;
    f->arrays = few.arrays;
    f->ints = few.ints;
  } else {
    open.bytes = frame_tables(f, NULL);
    if (!(open.memory = mem_alloc(vm, open.bytes + 1))) return false;
    (void)frame_tables(f, open.memory);
  }
  for (uint32_t o = 0; o < p->noutputs; o++) f->arrays[o] = NULL;
  if (p->nscalars) take_numbers(p, inputs, scalars, f->slots);
  bool ok = (!device || device_kernels_of(device)->plan_begin(vm, there)) && frame_symbols(f, scalars) &&
            make_outputs(f) && take_arena(f);
  vm_owned held;
  if (f->taps) {
    f->taps->seen = 0;
    f->taps->came = 0;
    vm_own(vm, &held, frame_drop, &open);
  }
  ok = ok && frame_steps(f);
  if (f->taps) vm_disown(vm, &held);
  if (device) ok = frame_checks(f, ok);
  ok = ok && give_outputs(f);
  *refused = f->refused;
  p->held_bytes = 1 + open.held.most;
  frame_drop(vm, &open);
  return ok;
}
