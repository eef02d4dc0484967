/* The device `ref`: runs every kernel by the reference evaluator of L (eval.h), one step after the other, slowly. It is for tests, which try
 * what serves all devices on the simplest one, and compare whole programs with the definition of L.
 *
 * There is one, ref(0). Its memory is the host's, but nobody except this file may rely on that. It keeps nothing for a VM but what plans
 * need, and leaves products, sorting and masks to the host. */
#include <string.h>

#include "jit/kernel/plan.h"
#include "jit/ref/eval.h"
#include "jit/run/device.h"

/* ---- memory ------------------------------------------------------------------------------------------------------------ */

static bool ref_open(qn_vm *vm, int device) {
  if (device_number(device) == 0) return true;
  raise_error(vm, E_device, SPAN_NONE, "ref(%d) is not there: there is one", device_number(device));
  return false;
}

static void *ref_alloc(qn_vm *vm, int device, size_t bytes) {
  (void)device;
  void *data = mem_buffer(vm, bytes ? bytes : 1);
  if (!data && !error_pending(vm)) raise_memory(vm);
  return data;
}

static void ref_free(qn_vm *vm, int device, void *data, size_t bytes) {
  (void)device;
  mem_buffer_free(vm, data, bytes ? bytes : 1);
}

static size_t bytes_of(const qn_array *a) { return (size_t)a->size * dtype_size((qn_dtype)a->dtype); }

static bool ref_read(qn_vm *vm, const qn_array *from, void *to) {
  (void)vm;
  if (from->size) memcpy(to, array_data(from), bytes_of(from));
  return true;
}

static bool ref_write(qn_vm *vm, qn_array *to, const void *from) {
  (void)vm;
  if (to->size) memcpy(array_data(to), from, bytes_of(to));
  return true;
}

static bool ref_wait(qn_vm *vm) {
  (void)vm;
  return true;
}

/* ---- programs ---------------------------------------------------------------------------------------------------------- */

static bool stop(void *ctx) {
  qn_vm *vm = ctx;
  bool asked = atomic_load_explicit(&vm->interrupt, memory_order_relaxed) != 0 || vm->config.time_limit > 0;
  return asked && vm_poll_slow(vm);
}

static device_answer evaluate(qn_vm *vm, const l_program *p, void *const *buffers, const int64_t *ints,
                              const qk_scalar *scalars) {
  char why[200];
  uint64_t error;
  const l_eval_options o = {.stop = stop, .ctx = vm, .why = why, .why_size = sizeof why};
  switch (l_eval(p, buffers, NULL, ints, scalars, &o, &error)) {
  case L_EVAL_DONE: return error == ~(uint64_t)0 ? DEVICE_DONE : DEVICE_REFUSES;
  case L_EVAL_WRONG: raise_error(vm, E_internal, SPAN_NONE, "%s: %s", p->name ? p->name : "a kernel", why); break;
  case L_EVAL_LACKS_MEMORY: raise_memory(vm); break;
  case L_EVAL_STOPPED: break;
  }
  return DEVICE_FAILS;
}

static bool ready(qn_vm *vm, int device, device_program *const *programs, uint32_t n, bool wait) {
  (void)vm, (void)device, (void)programs, (void)n, (void)wait;
  return true;
}

static device_answer launch(qn_vm *vm, int device, const device_program *p, void *const *buffers, const int64_t *ints,
                            const qk_scalar *scalars) {
  (void)device;
  return evaluate(vm, p->program, buffers, ints, scalars);
}

/* ---- plans ------------------------------------------------------------------------------------------------------------- */

typedef struct ref_plan {
  device_plan shown;
  size_t bytes; /* of the piece of memory that it lies in, with the tables of a step behind it */
  bool failed;  /* a check of this call */
  void **buffers;
  int64_t *ints;
  qk_scalar *scalars;
} ref_plan;

static void plan_close(qn_vm *vm, device_plan *there) {
  if (there) mem_free(vm, there, ((ref_plan *)there)->bytes);
}

static bool plan_ready(qn_vm *vm, int device, const plan *p, device_plan **there, bool wait) {
  (void)wait;
  if (*there) return true;
  size_t words = (size_t)p->nbuffers + p->most_buffers + p->most_ints + p->most_scalars;
  size_t bytes = sizeof(ref_plan) + words * sizeof(uint64_t);
  ref_plan *r = mem_zalloc(vm, bytes);
  if (!r) {
    error_clear(vm);
    return false;
  }
  *r = (ref_plan){.shown = {.plan = p, .device = device, .compiled = true, .constants = (void **)(void *)(r + 1)},
                  .bytes = bytes};
  r->buffers = r->shown.constants + p->nbuffers;
  r->ints = (int64_t *)(void *)(r->buffers + p->most_buffers);
  r->scalars = (qk_scalar *)(r->ints + p->most_ints);
  for (uint32_t b = 0; b < p->nbuffers; b++)
    if (p->buffers[b].where == WHERE_CONST) r->shown.constants[b] = (void *)(uintptr_t)p->buffers[b].data;
  *there = &r->shown;
  return true;
}

static bool plan_begin(qn_vm *vm, device_plan *there) {
  (void)vm;
  ((ref_plan *)there)->failed = false;
  return true;
}

static device_answer plan_kernels(qn_vm *vm, device_plan *there, const device_call *call, uint32_t first, uint32_t n) {
  ref_plan *r = (ref_plan *)there;
  const plan *p = there->plan;
  for (uint32_t k = first; k < first + n && !r->failed; k++) {
    const plan_step *s = &p->steps[k];
    if (s->kind != STEP_KERNEL) continue;
    for (uint32_t i = 0; i < s->nbuffers; i++) r->buffers[i] = call->buffers[s->buffers[i]];
    for (uint32_t i = 0; i < s->nints; i++)
      r->ints[i] = s->ints[i] >= 0 ? s->ints[i] : dim_eval(&p->graph->dims, s->ints[i], call->symbols);
    for (uint32_t i = 0; i < s->nscalars; i++) r->scalars[i] = call->slots[s->scalars[i]];
    device_answer answer = evaluate(vm, p->kernels[s->what].program, r->buffers, r->ints, r->scalars);
    if (answer == DEVICE_FAILS) return DEVICE_FAILS;
    r->failed = answer == DEVICE_REFUSES;
  }
  return DEVICE_DONE;
}

static device_answer plan_checks(qn_vm *vm, device_plan *there) {
  (void)vm;
  return ((ref_plan *)there)->failed ? DEVICE_REFUSES : DEVICE_DONE;
}

static const device_kernels kernels = {.ready = ready,
                                       .launch = launch,
                                       .plan_ready = plan_ready,
                                       .plan_begin = plan_begin,
                                       .plan_kernels = plan_kernels,
                                       .plan_checks = plan_checks,
                                       .plan_close = plan_close};

const device_family device_ref = {.name = "ref",
                                  .devices = 1,
                                  .memory = {.name = "ref",
                                             .open = ref_open,
                                             .alloc = ref_alloc,
                                             .free = ref_free,
                                             .copy_elements = array_copy_watched,
                                             .read = ref_read,
                                             .write = ref_write,
                                             .wait = ref_wait},
                                  .kernels = &kernels};
