/* Eager dispatch: one op, now (eager.h).
 *
 *   fast path   a POINTWISE op on small arrays (eager_pointwise.c), a REDUCE or SCAN op of few elements (eager_reduce.c): the loops
 *               of the block VM are called directly; which they are was taken once from the op's kernel (op_program.c)
 *   views       slices, transposes, broadcasts and most reshapes are new headers on the same storage (view.c, which also
 *               joins small arrays)
 *   library     sort, argsort, compress, nonzero (library.c)
 *   devices     arrays that live elsewhere than on the CPU take the slow way: their one-op kernels run there once there is code
 *               for them; until then, and for what a device cannot do, operands are taken to the CPU and the result back
 *   the rest    the rules give types and shape, operands are made strict (cast, fitted), and the one-op kernel of that structure
 *               runs: made once by the same lowering and scheduling as fused kernels (kernel_for_op), kept in a table by key
 *
 * A failed check of a kernel names an element; the message is composed here from the operands at that element.
 */
#include "jit/run/eager.h"

#include <stdio.h>
#include <string.h>

#include "jit/kernel/lower.h"
#include "jit/run/device.h"
#include "jit/run/eager_index.h"
#include "jit/run/gemm.h"
#include "jit/run/host.h"
#include "jit/run/library.h"
#include "lang/trace_events.h"

/* ---- the table of one-op kernels ------------------------------------------------------------------------------------------- */

typedef struct op_kernel {
  uint64_t hash; /* 0: free */
  op_key key;
  l_program *program;
  void *here;           /* what the host keeps of it */
  device_program there; /* scheduled for devices; its program is made when it is first wanted */
} op_kernel;

/* A host number that was an operand on a device: it is there already when it comes again. */
enum { SENT_BITS = 6 };
typedef struct sent_scalar {
  qn_value v;
  uint8_t dtype, device;
  qn_array *a; /* owned; NULL: free */
} sent_scalar;

typedef struct eager_state {
  op_kernel **table; /* open addressing; cap is a power of two */
  uint32_t n, cap;
  sent_scalar sent[1 << SENT_BITS];
} eager_state;

static eager_state *state_of(qn_vm *vm) {
  if (vm->dispatch) return vm->dispatch;
  eager_state *s = mem_zalloc(vm, sizeof *s);
  if (!s) return NULL;
  vm->dispatch = s;
  return s;
}

void eager_close(qn_vm *vm) {
  eager_state *s = vm->dispatch;
  if (!s) return;
  for (uint32_t i = 0; i < s->cap; i++)
    if (s->table[i]) {
      if (s->table[i]->here) host()->forget(s->table[i]->here);
      l_free(s->table[i]->program);
      l_free((l_program *)(uintptr_t)s->table[i]->there.program);
      mem_free(vm, s->table[i], sizeof *s->table[i]);
    }
  mem_free(vm, s->table, s->cap * sizeof *s->table);
  for (uint32_t i = 0; i < 1 << SENT_BITS; i++)
    if (s->sent[i].a) value_release(vm, value_obj(TAG_ARRAY, s->sent[i].a));
  mem_free(vm, s, sizeof *s);
  vm->dispatch = NULL;
}

static uint64_t hash_key(const op_key *k) {
  uint64_t h = k->n;
  uint16_t i = 0;
  for (; i + 8 <= k->n; i += 8) {
    uint64_t x;
    memcpy(&x, k->bytes + i, 8);
    h = (h ^ x) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
  }
  for (; i < k->n; i++) h = (h ^ k->bytes[i]) * 0x100000001b3u;
  return (h ^ h >> 31) | 1;
}

static op_kernel *find_kernel(qn_vm *vm, eager_state *s, const op_key *key) {
  uint64_t hash = hash_key(key);
  if (s->n * 2 >= s->cap) {
    uint32_t cap = s->cap ? s->cap * 2 : 64;
    op_kernel **table = mem_zalloc(vm, cap * sizeof *table);
    if (!table) return NULL;
    for (uint32_t i = 0; i < s->cap; i++) {
      if (!s->table[i]) continue;
      uint32_t at = (uint32_t)s->table[i]->hash & (cap - 1);
      while (table[at]) at = (at + 1) & (cap - 1);
      table[at] = s->table[i];
    }
    mem_free(vm, s->table, s->cap * sizeof *table);
    s->table = table;
    s->cap = cap;
  }
  uint32_t at = (uint32_t)hash & (s->cap - 1);
  for (; s->table[at]; at = (at + 1) & (s->cap - 1)) {
    op_kernel *k = s->table[at];
    if (k->hash == hash && k->key.n == key->n && memcmp(k->key.bytes, key->bytes, key->n) == 0) return k;
  }
  op_kernel *k = mem_zalloc(vm, sizeof *k);
  if (!k) return NULL;
  k->hash = hash;
  k->key = *key;
  const char *why;
  k->program = kernel_for_op(key, TARGET_CPU, &why);
  if (!k->program) {
    mem_free(vm, k, sizeof *k);
    if (why == lower_no_memory)
      raise_memory(vm);
    else
      raise_error(vm, E_internal, SPAN_NONE, "no kernel for %s of this layout: %s", op_rows[key->bytes[0]].name, why);
    return NULL;
  }
  s->table[at] = k;
  s->n++;
  return k;
}

const l_program *eager_program(qn_vm *vm, const op_call *call) {
  op_key key;
  int64_t ints[OP_CALL_INTS];
  eager_state *s = state_of(vm);
  if (!s) return NULL;
  if (!op_call_key(call, &key, ints)) {
    raise_error(vm, E_internal, SPAN_NONE, "no kernel for %s of contiguous operands", op_rows[call->op].name);
    return NULL;
  }
  op_kernel *k = find_kernel(vm, s, &key);
  return k ? k->program : NULL;
}

/* The same as a device has it, scheduled for one; NULL where there is no memory for it. */
static device_program *program_there(op_kernel *k) {
  const char *why;
  if (!k->there.program) {
    const l_program *p = kernel_for_op(&k->key, TARGET_GPU, &why);
    if (p) k->there = (device_program){.program = p, .hash = l_hash(p)};
  }
  return k->there.program ? &k->there : NULL;
}

/* ---- types and errors -------------------------------------------------------------------------------------------------------- */

bool value_graph_type(qn_value v, graph_type *out) {
  switch (value_tag_of(v)) {
  case TAG_BOOL:
  case TAG_INT:
  case TAG_FLOAT:
    out->dtype = value_is(v, TAG_BOOL) ? WEAK_BOOL : value_is(v, TAG_INT) ? WEAK_INT : WEAK_FLOAT;
    out->rank = 0;
    out->weak = true;
    return true;
  case TAG_ARRAY: {
    const qn_array *a = value_array(v);
    out->dtype = a->dtype;
    out->rank = a->rank;
    out->weak = false;
    memcpy(out->shape, a->shape, a->rank * sizeof *a->shape);
    return true;
  }
  default: return false;
  }
}

qn_value op_refuse(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_refusal *why) {
  if (why)
    raise_error(vm, (error_id)why->id, SPAN_NONE, "%s", why->text);
  else {
    const char *kind = "that";
    for (int i = nin; i-- > 0;)
      if (!value_is(in[i], TAG_ARRAY) && !value_is_scalar(in[i])) kind = value_kind_name(in[i]);
    raise_error(vm, E_type, SPAN_NONE, "%s takes arrays and numbers, not %s", op_rows[op].name, kind);
  }
  return value_error();
}

qn_value op_raise_devices(qn_vm *vm, const char *what, int one, int other) {
  char first[DEVICE_NAME], second[DEVICE_NAME];
  return raise_error(vm, E_device, SPAN_NONE, "%s of arrays on %s and on %s", what, device_name(vm, one, first),
                     device_name(vm, other, second));
}

/* The element of an operand that meets flat element `flat` of a result of this shape, as a host scalar. */
static qn_value element_of(const qn_array *a, int rank, const int64_t *shape, int64_t flat) {
  int64_t offset = 0;
  for (int k = rank - 1; k >= 0; k--) {
    int64_t i = shape[k] ? flat % shape[k] : 0;
    flat = shape[k] ? flat / shape[k] : 0;
    int own = k - (rank - a->rank);
    if (own >= 0 && a->shape[own] != 1) offset += i * a->strides[own];
  }
  return dtype_load((qn_dtype)a->dtype, array_data(a) + offset * (int64_t)dtype_size((qn_dtype)a->dtype));
}

static void number_text(qn_value v, char out[40]) {
  text_buf t = {0};
  if (value_is(v, TAG_FLOAT))
    text_float(&t, v.u.f, WEAK_FLOAT);
  else
    text_addf(&t, "%lld", (long long)v.u.i);
  text_add(&t, "", 1);
  snprintf(out, 40, "%s", t.failed ? "?" : t.text);
  text_free(&t);
}

qn_value eager_raise_check(qn_vm *vm, op_id op, qn_dtype dtype, int64_t element, qn_value shown, int axis,
                           int64_t size) {
  char number[40] = "this";
  if (!value_is(shown, TAG_UNSET)) number_text(shown, number);
  switch ((op_raises)op_rows[op].raises) {
  case RAISES_int_div:
    return raise_error(vm, E_div_zero, SPAN_NONE, "element %lld: integer %s by 0", (long long)element,
                       op == OP_mod ? "remainder" : "division");
  case RAISES_int_pow:
    return raise_error(vm, E_neg_exponent, SPAN_NONE, "element %lld: an integer to the power %s", (long long)element,
                       number);
  case RAISES_shift:
    return raise_error(vm, E_shift, SPAN_NONE, "element %lld: a shift by %s; %s shifts by 0 to %d", (long long)element,
                       number, dtype_rows[dtype].name, (int)dtype_size(dtype) * 8 - 1);
  case RAISES_to_int:
    return raise_error(vm, E_to_int, SPAN_NONE, "%s is not representable as %s (element %lld)", number,
                       dtype_rows[dtype].name, (long long)element);
  case RAISES_bounds:
    return raise_error(vm, E_index, SPAN_NONE, "index %s is out of bounds for axis %d of size %lld", number, axis,
                       (long long)size);
  default:
    return raise_error(vm, E_internal, SPAN_NONE, "%s failed at element %lld", op_rows[op].name, (long long)element);
  }
}

/* The same for a one-op kernel with these strict operands. */
static qn_value check_failed(qn_vm *vm, op_id op, qn_array *const *in, const qn_array *out, const l_program *p,
                             const kernel_failure *failure) {
  uint64_t number = failure->error >> 48;
  int64_t element = (int64_t)(failure->error & 0xffffffffffffu);
  int axis = number < p->nchecks ? (int)p->checks[number].detail : 0;
  qn_value shown = failure->shown ? dtype_load((qn_dtype)failure->dtype, &failure->bits) : value_unset();
  if (op_rows[op].raises == RAISES_to_int) shown = element_of(in[0], out->rank, out->shape, element);
  bool bounds = op_rows[op].raises == RAISES_bounds && axis >= 0 && axis < in[0]->rank;
  return eager_raise_check(vm, op, (qn_dtype)out->dtype, element, shown, axis, bounds ? in[0]->shape[axis] : 0);
}

static qn_value as_value(qn_array *a) { return a ? value_obj(TAG_ARRAY, a) : value_error(); }

/* ---- kernels ------------------------------------------------------------------------------------------------------------------------ */

static void operand_of(const qn_array *a, op_operand *o) {
  o->dtype = a->dtype;
  o->rank = a->rank;
  memcpy(o->shape, a->shape, a->rank * sizeof *a->shape);
  memcpy(o->strides, a->strides, a->rank * sizeof *a->strides);
}

/* The operation on the CPU, whose operands and result live on a device. */
typedef qn_array *(*run_fn)(qn_vm *vm, op_id op, qn_array *const *in, int nin, const op_attr *attr, const graph_type *t,
                            const qk_scalar *keys, int device);
static qn_array *through_host(qn_vm *vm, run_fn run, op_id op, qn_array *const *in, int nin, const op_attr *attr,
                              const graph_type *t, const qk_scalar *keys, int device) {
  qn_array *here[OP_CALL_OPERANDS] = {NULL}, *out = NULL;
  int n = keys ? 0 : nin, made = 0;
  if (n > OP_CALL_OPERANDS) {
    raise_error(vm, E_too_large, SPAN_NONE, "%s of %d operands", op_rows[op].name, n);
    return NULL;
  }
  while (made < n && (here[made] = array_to_device(vm, in[made], 0))) made++;
  if (made == n) out = run(vm, op, here, nin, attr, t, keys, 0);
  if (out) {
    qn_array *there = array_to_device(vm, out, device);
    value_release(vm, value_obj(TAG_ARRAY, out));
    out = there;
  }
  while (made-- > 0) value_release(vm, value_obj(TAG_ARRAY, here[made]));
  return out;
}

static bool waits(const qn_vm *vm) { return vm->config.jit == QN_JIT_SYNC || vm->config.jit == QN_JIT_VERIFY; }

static qn_array *run_kernel(qn_vm *vm, op_id op, qn_array *const *in, int nin, const op_attr *attr, const graph_type *t,
                            const qk_scalar *keys, int device) {
  eager_state *s = state_of(vm);
  qn_array *out = s ? array_new_on(vm, device, (qn_dtype)t->dtype, t->rank, t->shape) : NULL;
  if (!out) return NULL;
  op_operand operands[OP_CALL_OPERANDS];
  op_call call = {.op = op, .nin = keys ? 0 : nin, .attr = attr, .in = operands};
  if (nin > OP_CALL_OPERANDS) {
    raise_error(vm, E_too_large, SPAN_NONE, "%s of %d operands", op_rows[op].name, nin);
    goto fail;
  }
  if (keys) call.nin = nin;
  for (int i = 0; i < nin && !keys; i++) operand_of(in[i], &operands[i]);
  for (int i = 0; i < nin && keys; i++) operands[i] = (op_operand){.dtype = DTYPE_INDEX};
  operand_of(out, &call.out);
  op_key key;
  int64_t ints[OP_CALL_INTS];
  if (!op_call_key(&call, &key, ints)) {
    raise_error(vm, E_rank, SPAN_NONE, "%s: too many axes at once", op_rows[op].name);
    goto fail;
  }
  op_kernel *k = find_kernel(vm, s, &key);
  if (!k) goto fail;
  void *buffers[OP_CALL_OPERANDS + 1];
  int n = 0;
  for (int i = 0; i < nin && !keys; i++) buffers[n++] = array_data(in[i]);
  buffers[n] = array_data(out);
  if (device) {
    device_program *there = out->size > 0 ? program_there(k) : NULL;
    const device_kernels *d = device_kernels_of(device);
    bool able = there && d->ready(vm, device, &there, 1, waits(vm));
    int64_t begin = trace_events_begin(vm->engine);
    device_answer answer = out->size == 0 ? DEVICE_DONE
                           : able         ? d->launch(vm, device, there, buffers, ints, keys)
                                          : DEVICE_REFUSES;
    trace_events_end(vm->engine, TRACE_EVENTS_kernel, op_rows[op].name, begin,
                     device_families[device_family_of(device)]->name, device_number(device));
    if (answer == DEVICE_DONE) return out;
    value_release(vm, value_obj(TAG_ARRAY, out));
    return answer == DEVICE_FAILS ? NULL : through_host(vm, run_kernel, op, in, nin, attr, t, keys, device);
  }
  kernel_failure failure;
  if (host()->launch(vm, k->program, &k->here, NULL, buffers, ints, keys, &failure)) return out;
  if (failure.error != ~(uint64_t)0) check_failed(vm, op, in, out, k->program, &failure);
fail:
  value_release(vm, value_obj(TAG_ARRAY, out));
  return NULL;
}

/* ---- strict operands -------------------------------------------------------------------------------------------------------------------- */

static qn_value cast_array(qn_vm *vm, qn_array *a, qn_dtype to, op_id op) {
  if (a->dtype == to) return value_retain(value_obj(TAG_ARRAY, a));
  graph_type t = {.dtype = (uint8_t)to, .rank = a->rank};
  memcpy(t.shape, a->shape, a->rank * sizeof *a->shape);
  op_attr attr = {.dtype = (uint8_t)to};
  return as_value(run_kernel(vm, op, &a, 1, &attr, &t, NULL, a->device));
}

bool eager_check_fit(qn_vm *vm, qn_value v, qn_dtype to) {
  if (dtype_holds(to, v)) return true;
  char number[40];
  number_text(v, number);
  raise_error(vm, E_weak_range, SPAN_NONE, "%s does not fit %s, the dtype of the array beside it", number,
              dtype_rows[to].name);
  return false;
}

/* A host number as an array of rank 0 on a device; NULL with an error raised. */
static qn_array *array_of_scalar(qn_vm *vm, qn_value v, qn_dtype to, int device) {
  qn_array *a = array_from_scalar(vm, to, v);
  if (!a || !device) return a;
  qn_array *there = array_to_device(vm, a, device);
  value_release(vm, value_obj(TAG_ARRAY, a));
  return there;
}

/* The same on a device as an operand, which nobody writes to: kept for the next time. */
static qn_array *scalar_there(qn_vm *vm, qn_value v, qn_dtype to, int device) {
  eager_state *s = state_of(vm);
  if (!s) return NULL;
  uint64_t hash = ((uint64_t)v.u.i ^ (uint64_t)to) * 0x9e3779b97f4a7c15u;
  sent_scalar *k = &s->sent[hash >> (64 - SENT_BITS)];
  if (!k->a || k->dtype != to || k->device != device || k->v.u.i != v.u.i || value_tag_of(k->v) != value_tag_of(v)) {
    qn_array *a = array_of_scalar(vm, v, to, device);
    if (!a) return NULL;
    if (k->a) value_release(vm, value_obj(TAG_ARRAY, k->a));
    *k = (sent_scalar){.v = v, .dtype = (uint8_t)to, .device = (uint8_t)device, .a = a};
  }
  k->a->head.refs++;
  return k->a;
}

static qn_value fit_scalar(qn_vm *vm, qn_value v, qn_dtype to, int device) {
  return eager_check_fit(vm, v, to) ? as_value(array_of_scalar(vm, v, to, device)) : value_error();
}

/* Large operands whose memory runs along another axis than the result's rows are copied first: the copy goes in tiles, a kernel
 * would touch a line of memory for every element. */
static bool runs_across(const qn_array *a) {
  if (a->device || a->contiguous || a->size < 1 << 15) return false;
  bool dense = false;
  for (int i = 0; i < a->rank; i++) dense |= (a->strides[i] == 1 || a->strides[i] == -1) && a->shape[i] > 8;
  int last = a->rank - 1;
  while (last >= 0 && a->shape[last] == 1) last--;
  return dense && last >= 0 && (a->strides[last] > 8 || a->strides[last] < -8);
}

/* A matrix one of whose axes repeats what it has is written out for a product on the CPU, which steps through both. A device's
 * library is told how operands lie, and that is part of what it computes. */
static bool repeats(const qn_array *a) {
  for (int i = a->rank < 2 ? 0 : a->rank - 2; i < a->rank; i++)
    if (a->strides[i] == 0 && a->shape[i] > 1) return true;
  return false;
}

/* An operand as a strict array; owned. */
static qn_array *strict(qn_vm *vm, qn_value v, op_role role, qn_dtype compute, int device) {
  qn_dtype to = role == ROLE_CONDITION ? DTYPE_TEST : role == ROLE_INDEX ? DTYPE_INDEX : compute;
  qn_value s;
  if (!value_is(v, TAG_ARRAY) && device)
    s = eager_check_fit(vm, v, to) ? as_value(scalar_there(vm, v, to, device)) : value_error();
  else if (!value_is(v, TAG_ARRAY))
    s = fit_scalar(vm, v, to, device);
  else if (!array_force(vm, value_array(v)))
    return NULL;
  else if (role == ROLE_INDEX || role == ROLE_AS_IS)
    s = value_retain(v);
  else
    s = cast_array(vm, value_array(v), to, OP_cast);
  return value_is_error(s) ? NULL : value_array(s);
}

/* ---- cast and fit ------------------------------------------------------------------------------------------------------------------------- */

qn_value eager_weak_cast(qn_vm *vm, qn_value v, qn_dtype to) {
  switch (to) {
  case WEAK_BOOL: return value_bool(value_is(v, TAG_FLOAT) ? v.u.f != 0 : v.u.i != 0);
  case WEAK_FLOAT: return value_float(value_is(v, TAG_FLOAT) ? v.u.f : (double)v.u.i);
  default:
    if (!value_is(v, TAG_FLOAT)) return value_int(v.u.i);
    if (v.u.f > -0x1.0000000000001p63 && v.u.f < 0x1p63) return value_int((int64_t)v.u.f);
    char number[40];
    number_text(v, number);
    return raise_error(vm, E_to_int, SPAN_NONE, WORDS_NOT_INT, number);
  }
}

static qn_value apply_cast(qn_vm *vm, op_id op, qn_value v, const op_attr *attr, int device) {
  qn_dtype to = (qn_dtype)attr->dtype;
  if (attr->flags & ATTR_WEAK) {
    if (value_is(v, TAG_ARRAY) && !array_item(vm, value_array(v), 0, &v)) return value_error();
    return eager_weak_cast(vm, v, to);
  }
  if (value_is(v, TAG_ARRAY)) {
    if (!array_force(vm, value_array(v))) return value_error();
    return cast_array(vm, value_array(v), to, OP_cast);
  }
  if (op == OP_fit) return fit_scalar(vm, v, to, device);
  /* an explicit conversion of a number: through an array of its own type, with the checks of cast */
  qn_dtype own = value_is(v, TAG_BOOL) ? WEAK_BOOL : value_is(v, TAG_INT) ? WEAK_INT : WEAK_FLOAT;
  qn_array *a = array_of_scalar(vm, v, own, device);
  if (!a) return value_error();
  qn_value out = cast_array(vm, a, to, OP_cast);
  value_release(vm, value_obj(TAG_ARRAY, a));
  return out;
}

/* ---- the whole way ---------------------------------------------------------------------------------------------------------------------------- */

/* Where an op runs: where its arrays are, which must be one place, or where the VM makes new ones. -1 with E210 raised. */
static int device_of(qn_vm *vm, op_id op, const qn_value *in, int nin) {
  int device = -1;
  for (int i = 0; i < nin; i++) {
    if (!value_is(in[i], TAG_ARRAY)) continue;
    int own = value_array(in[i])->device;
    if (device >= 0 && own != device) {
      op_raise_devices(vm, op_rows[op].name, device, own);
      return -1;
    }
    device = own;
  }
  return device < 0 ? vm->device : device;
}

static qn_array *run_library(qn_vm *vm, op_id op, qn_array *const *in, int nin, const op_attr *attr,
                             const graph_type *t, const qk_scalar *keys, int device) {
  if (!device) return library_apply(vm, op, in, attr);
  bool refused;
  qn_array *out = library_there(vm, op, in, attr, NULL, &refused);
  return refused ? through_host(vm, run_library, op, in, nin, attr, t, keys, device) : out;
}

/* OP_dot: by the device's library where that makes such a product (the attribute's flags say so already of a recorded one). */
static qn_array *run_dot(qn_vm *vm, qn_array *const *in, const op_attr *attr, const graph_type *t, int device) {
  uint8_t flags = attr->flags & ATTR_LIBRARY ? attr->flags : gemm_flags(vm, in[0], in[1]);
  bool refused = true;
  qn_array *out = device && flags ? gemm_apply(vm, in[0], in[1], flags, &refused) : NULL;
  static const op_attr none;
  return out || !refused ? out : run_kernel(vm, OP_dot, in, 2, &none, t, NULL, device);
}

qn_array *eager_gemm(qn_vm *vm, qn_array *const in[2], const op_attr *attr) {
  graph_type types[2];
  op_types t;
  op_refusal why;
  for (int i = 0; i < 2; i++)
    if (!value_graph_type(value_obj(TAG_ARRAY, in[i]), &types[i])) return NULL;
  if (!op_infer(NULL, OP_gemm, types, 2, attr, &t, &why)) {
    raise_error(vm, (error_id)why.id, SPAN_NONE, "%s", why.text);
    return NULL;
  }
  int device = in[0]->device;
  bool refused = true;
  qn_array *out = NULL, *as_dot[2] = {NULL, NULL};
  if (device) {
    out = array_new_on(vm, device, (qn_dtype)t.result.dtype, t.result.rank, t.result.shape);
    if (!out || gemm_stored(vm, in[0], in[1], attr->flags, out, &refused)) return out;
    value_release(vm, value_obj(TAG_ARRAY, out));
    if (!refused) return NULL;
  }
  static const op_attr none;
  bool ok = true;
  for (int i = 0; i < 2 && ok; i++)
    ok = (as_dot[i] = gemm_operand(vm, in[i], (attr->flags & (i ? ATTR_Y_ACROSS : ATTR_X_ACROSS)) != 0)) != NULL;
  out = ok ? run_kernel(vm, OP_dot, as_dot, 2, &none, &t.result, NULL, device) : NULL;
  for (int i = 0; i < 2; i++)
    if (as_dot[i]) value_release(vm, value_obj(TAG_ARRAY, as_dot[i]));
  return out;
}

static qn_value apply(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr, graph_type *types,
                      qn_array **operands) {
  for (int i = 0; i < nin; i++)
    if (!value_graph_type(in[i], &types[i])) return op_refuse(vm, op, in, nin, NULL);
  op_types t;
  op_refusal why;
  if (!op_infer(NULL, op, types, nin, attr, &t, &why)) return op_refuse(vm, op, in, nin, &why);
  int device = device_of(vm, op, in, nin);
  if (device < 0) return value_error();
  if (op == OP_cast || op == OP_fit) return apply_cast(vm, op, in[0], attr, device);
  if (t.weak) return scalar_apply(vm, op, in, nin);
  if (op_rows[op].klass == CLASS_RANDOM) {
    qk_scalar keys[3];
    bool arrays = false;
    for (int i = 0; i < 3; i++) arrays |= types[i].rank > 0;
    for (int i = 0; i < 3 && !arrays; i++) {
      qn_value v = in[i];
      if (value_is(v, TAG_ARRAY) && !array_item(vm, value_array(v), 0, &v)) return value_error();
      keys[i].i = v.u.i;
    }
    if (!arrays) return as_value(run_kernel(vm, op, operands, 3, attr, &t.result, keys, device));
    t.compute = DTYPE_INDEX; /* of the keys */
  }
  int made = 0;
  for (; made < nin; made++) {
    if (!(operands[made] = strict(vm, in[made], op_operand_role(op, made, nin), t.compute, device))) break;
    bool copied = op == OP_dot ? !device && repeats(operands[made])
                               : op_rows[op].klass == CLASS_POINTWISE && runs_across(operands[made]);
    if (!copied) continue;
    qn_array *dense = array_contiguous(vm, operands[made]);
    value_release(vm, value_obj(TAG_ARRAY, operands[made]));
    if (!(operands[made] = dense)) break;
  }
  qn_value out = value_error();
  if (made == nin) {
    if (op_rows[op].klass == CLASS_VIEW || op == OP_slice_put)
      out = as_value(eager_run_view(vm, op, operands, nin, attr, &t.result));
    else if (op == OP_gemm)
      out = as_value(eager_gemm(vm, operands, attr));
    else if (op == OP_dot)
      out = as_value(run_dot(vm, operands, attr, &t.result, device));
    else if (library_has(op))
      out = as_value(run_library(vm, op, operands, nin, attr, &t.result, NULL, device));
    else if (op == OP_stop_gradient)
      out = value_retain(value_obj(TAG_ARRAY, operands[0]));
    else
      out = as_value(run_kernel(vm, op, operands, nin, attr, &t.result, NULL, device));
  }
  while (made-- > 0) value_release(vm, value_obj(TAG_ARRAY, operands[made]));
  return out;
}

__attribute__((noinline)) qn_value eager_slow(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr) {
  graph_type few_types[8];
  qn_array *few[8];
  if (nin <= 8) return apply(vm, op, in, nin, attr, few_types, few);
  size_t bytes = (size_t)nin * (sizeof *few_types + sizeof *few);
  graph_type *types = mem_alloc(vm, bytes);
  if (!types) return value_error();
  qn_value out = apply(vm, op, in, nin, attr, types, (qn_array **)(void *)(types + nin));
  mem_free(vm, types, bytes);
  return out;
}

qn_value eager_apply(qn_vm *vm, op_id op, const qn_value *in, int nin, const op_attr *attr) {
  static const op_attr none;
  if (!attr) attr = &none;
  /* Kernels look for themselves; what only copies does not. */
  if (__builtin_expect(atomic_load_explicit(&vm->interrupt, memory_order_relaxed), 0))
    return vm_poll_slow(vm) ? value_error() : eager_slow(vm, op, in, nin, attr);
  if ((unsigned)nin - 1 < 3) {
    if (op_rows[op].klass == CLASS_POINTWISE) return eager_fast(vm, op, in, nin, attr);
    if (op_rows[op].klass == CLASS_REDUCE || op_rows[op].klass == CLASS_SCAN) return eager_along(vm, op, in, attr);
  }
  qn_value out = value_unset();
  switch ((op_class)op_rows[op].klass) {
  case CLASS_VIEW: return eager_view(vm, op, in, nin, attr);
  case CLASS_INDEX: out = eager_fast_index(vm, op, in, nin, attr); break;
  case CLASS_RANDOM: out = eager_fast_draw(vm, op, in, attr); break;
  case CLASS_LIBRARY: out = eager_fast_sort(vm, op, in[0], attr); break;
  case CLASS_DOT: out = eager_fast_dot(vm, in[0], in[1]); break;
  default: break;
  }
  return value_is(out, TAG_UNSET) ? eager_slow(vm, op, in, nin, attr) : out;
}
