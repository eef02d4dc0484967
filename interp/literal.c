/* Array literals, and conversions of numbers by dtype.
 *
 * The items of a literal wait on the value stack. A literal is flat if it consists of plain host numbers, or of flat literals of equal
 * shape: then all its numbers lie on the stack in a row and become one array. The first item that is an array or a traced number makes it
 * general: nested literals before it become arrays of their own, and the items are stacked by OP_concat, in the dtype that promotion gives.
 * A literal that only reads variables and constants is made without the stack (literal_here).
 */
#include <math.h>
#include <string.h>

#include "interp/interp.h"
#include "interp/node.h"

typedef enum form { FORM_NONE, FORM_NUMBERS, FORM_NESTED, FORM_GENERAL, FORM_STOPPED } form;

typedef struct literal {
  const n_items *whole; /* the literal that it is a part of, or itself: the place of errors */
  int rank;
  int64_t shape[ARRAY_MAX_RANK + 1];
  qn_value stopped;
} literal;

static qn_value fail_fit(qn_vm *vm, qn_dtype dtype, qn_value v, error_id id) {
  return raise_error(vm, id, SPAN_NONE, "%s does not fit %s", phrase_kind(v).text, dtype_rows[dtype].name);
}

/* A host number as an array of the dtype stores it: floats are cut to integers, bools count as 0 and 1. E309 or E207 is raised if it does
 * not fit. */
static qn_value scalar_as(qn_vm *vm, qn_dtype dtype, qn_value v) {
  v.head &= 0xff;
  if (dtype_is_bool(dtype)) {
    if (value_is(v, TAG_FLOAT)) return value_bool(v.u.f != 0);
    return value_bool(v.u.i != 0);
  }
  if (dtype_is_int(dtype) && value_is(v, TAG_FLOAT)) {
    double f = trunc(v.u.f);
    if (!(f >= -9223372036854775808.0 && f < 9223372036854775808.0)) return fail_fit(vm, dtype, v, E_to_int);
    qn_value i = value_int((int64_t)f);
    return dtype_holds(dtype, i) ? i : fail_fit(vm, dtype, v, E_to_int);
  }
  return dtype_holds(dtype, v) ? v : fail_fit(vm, dtype, v, E_weak_range);
}

static qn_dtype numbers_dtype(const qn_value *v, size_t n) {
  qn_dtype d = n ? WEAK_BOOL : DTYPE_FLOAT;
  for (size_t i = 0; i < n; i++) {
    if (value_is(v[i], TAG_FLOAT)) return DTYPE_FLOAT;
    if (value_is(v[i], TAG_INT)) d = DTYPE_INT;
  }
  return d;
}

/* A contiguous array of plain numbers. `dtype` -1: the one that the numbers need. Owned, or the error value. */
static qn_value array_of_numbers(qn_vm *vm, const qn_value *v, int dtype, int rank, const int64_t *shape) {
  size_t n = 1;
  for (int i = 0; i < rank; i++) n *= (size_t)shape[i];
  qn_dtype d = dtype < 0 ? numbers_dtype(v, n) : (qn_dtype)dtype;
  qn_array *a = array_new(vm, d, rank, shape);
  if (!a) return value_error();
  char *to = array_data(a);
  for (size_t i = 0; i < n; i++, to += dtype_size(d)) {
    qn_value x = scalar_as(vm, d, v[i]);
    if (value_is_error(x)) return value_fail(vm, value_obj(TAG_ARRAY, a));
    dtype_store(d, to, x);
  }
  if (!(a = array_settle(vm, a))) return value_error();
  return rec_literal(vm, a);
}

qn_value interp_convert_number(qn_vm *vm, qn_dtype dtype, qn_value v) {
  return value_is_error(scalar_as(vm, dtype, v)) ? value_error() : op_cast(vm, v, dtype);
}

qn_value convert_dtype(qn_vm *vm, qn_dtype dtype, qn_value v) {
  if (!dtype_public((int)dtype))
    return raise_error(vm, E_dtype, SPAN_NONE, "%s is reserved: no array has it yet", dtype_rows[dtype].name);
  if (value_is(v, TAG_ARRAY)) return op_cast(vm, v, dtype);
  if (!value_is_scalar(v))
    return raise_error(vm, E_type, SPAN_NONE, "%s converts numbers and arrays, not %s", dtype_rows[dtype].name,
                       phrase_kind(v).text);
  return rec_number(vm, v) ? interp_convert_number(vm, dtype, v) : array_of_numbers(vm, &v, (int)dtype, 0, NULL);
}

/* ---- general literals ---------------------------------------------------------------------------------------------------- */

static void shape_of_item(qn_value v, int *rank, int64_t *shape) {
  *rank = 0;
  if (!value_is(v, TAG_ARRAY)) return;
  *rank = value_array(v)->rank;
  memcpy(shape, value_array(v)->shape, (size_t)*rank * sizeof *shape);
}

static qn_value fail_ragged(qn_vm *vm, int rank, const int64_t *shape, int rank2, const int64_t *shape2) {
  text_buf t = {.vm = vm};
  text_adds(&t, "items of an array literal have the shapes [");
  for (int i = 0; i < rank; i++) text_addf(&t, "%s%lld", i ? ", " : "", (long long)shape[i]);
  text_adds(&t, "] and [");
  for (int i = 0; i < rank2; i++) text_addf(&t, "%s%lld", i ? ", " : "", (long long)shape2[i]);
  text_adds(&t, "]");
  return raise_text(vm, E_ragged, SPAN_NONE, &t);
}

/* An item (borrowed) as an array of the dtype with a new first axis of size 1. Owned, or the error value. */
static qn_value stacked_item(qn_vm *vm, qn_value v, qn_dtype dtype) {
  qn_value a = convert_dtype(vm, dtype, v);
  if (value_is_error(a)) return a;
  const qn_array *x = value_array(a);
  int64_t shape[ARRAY_MAX_RANK + 1] = {1};
  rec_sizes(vm, a, shape + 1);
  qn_value r = op_reshape(vm, a, x->rank + 1, shape);
  value_release(vm, a);
  return r;
}

/* The dtype of an array of these items: `dtype`, or if that is -1, the one that promotion gives. */
static qn_dtype stack_dtype(const qn_value *items, size_t n, int dtype) {
  if (dtype >= 0) return (qn_dtype)dtype;
  operand_type type = value_operand_type(items[0]);
  for (size_t i = 1; i < n; i++) {
    if (value_is(items[i], TAG_ARRAY) && value_array(items[i])->dtype == type.dtype && !type.weak) continue;
    operand_type o = value_operand_type(items[i]);
    if (o.dtype != type.dtype || o.weak != type.weak) type = dtype_promote(type, o);
  }
  return type.weak ? dtype_of_weak(type.dtype) : type.dtype;
}

/* Stacks n > 0 items (arrays and host numbers, on the stack, where they are replaced) along a new first axis. Owned, or the error value. */
static qn_value stack_items(qn_vm *vm, qn_value *items, size_t n, int dtype) {
  int rank, rank2;
  int64_t shape[ARRAY_MAX_RANK], shape2[ARRAY_MAX_RANK];
  shape_of_item(items[0], &rank, shape);
  for (size_t i = 1; i < n; i++) {
    shape_of_item(items[i], &rank2, shape2);
    bool same = rank == rank2;
    for (int k = 0; k < rank && same; k++) same = shape[k] == shape2[k];
    if (!same) return fail_ragged(vm, rank, shape, rank2, shape2);
  }
  if (rank == ARRAY_MAX_RANK) return raise_error(vm, E_rank, SPAN_NONE, "arrays have at most %d axes", ARRAY_MAX_RANK);
  qn_dtype d = stack_dtype(items, n, dtype);
  if (n <= INT32_MAX) {
    qn_value now = op_stack_few(vm, items, (int)n, 0, d);
    if (!value_is(now, TAG_UNSET)) return now;
  }
  for (size_t i = 0; i < n; i++) {
    qn_value a = stacked_item(vm, items[i], d);
    if (value_is_error(a)) return a;
    slot_set(vm, &items[i], a);
  }
  if (n == 1) return value_retain(items[0]);
  if (n > INT32_MAX) return raise_error(vm, E_too_large, SPAN_NONE, "too many items");
  op_attr attr = {.axes = 1};
  return op_apply(vm, OP_concat, items, (int)n, &attr);
}

/* Makes arrays of `blocks` flat literals of equal shape, whose numbers lie on the stack from `mark` on. The arrays replace the numbers,
 * which own nothing. (Block k begins at or above mark[k], unless blocks are empty.) False with an error raised. */
static bool blocks_to_arrays(qn_vm *vm, qn_value *mark, size_t blocks, int rank, const int64_t *shape, int dtype) {
  size_t size = 1;
  for (int i = 0; i < rank; i++) size *= (size_t)shape[i];
  if (size == 0 && !vm_enter(vm, blocks)) return false;
  for (size_t k = 0; k < blocks; k++) {
    qn_value a = array_of_numbers(vm, mark + k * size, dtype, rank, shape);
    if (value_is_error(a)) {
      vm->sp = mark + k;
      return false;
    }
    mark[k] = a;
  }
  vm->sp = mark + blocks;
  return true;
}

static form collect(qn_vm *vm, const n_items *n, qn_value *fp, int dtype, literal *out);

static form stop(literal *out, qn_value v) {
  out->stopped = v;
  return FORM_STOPPED;
}

static __attribute__((noinline, cold)) bool fail_item(qn_vm *vm, qn_value v) {
  const char *more = value_is(v, TAG_RANGE)  ? "; arange(1, 4) counts"
                     : value_is(v, TAG_LIST) ? "; rows of an array are written [[1, 2], [3, 4]], lists ( )"
                     : value_is(v, TAG_NIL)  ? "; a missing number is nan, lists are written ( )"
                                             : "; lists are written ( )";
  return raise_false(vm, E_type, "arrays hold numbers, not %s%s", phrase_kind(v).text, more);
}

/* Adds an item to the literal in progress. Takes over `v`. False with an error raised. */
static bool add_value(qn_vm *vm, qn_value *mark, form *state, size_t *count, literal *l, qn_value v, int dtype) {
  bool number = value_is_scalar(v) && !rec_number(vm, v);
  if (!number && !value_is(v, TAG_ARRAY) && !value_is_scalar(v)) {
    fail_item(vm, v);
    value_release(vm, v);
    return false;
  }
  if (number) {
    v.head &= 0xff;
    if (*state == FORM_NESTED) {
      fail_ragged(vm, l->rank, l->shape, 0, NULL);
      return false;
    }
    if (*state == FORM_NONE) *state = FORM_NUMBERS;
  } else {
    if (*state == FORM_NESTED && !blocks_to_arrays(vm, mark, *count, l->rank, l->shape, dtype)) {
      value_release(vm, v);
      return false;
    }
    *state = FORM_GENERAL;
  }
  if (!vm_enter(vm, 1)) {
    value_release(vm, v);
    return false;
  }
  *vm->sp++ = v;
  ++*count;
  return true;
}

/* Adds an item that is a literal itself. The new state, or FORM_STOPPED. */
static form add_nested(qn_vm *vm, qn_value *mark, form *state, size_t *count, literal *l, const n_items *inner,
                       qn_value *fp, int dtype) {
  literal sub;
  sub.whole = l->whole;
  qn_value *at = vm->sp;
  form f = collect(vm, inner, fp, dtype, &sub);
  if (f == FORM_STOPPED) return stop(l, sub.stopped);
  bool flat = f == FORM_NUMBERS;
  if (flat && *state == FORM_NONE) {
    *state = FORM_NESTED;
    l->rank = sub.rank;
    memcpy(l->shape, sub.shape, sizeof sub.shape);
  } else if (flat && *state == FORM_NESTED) {
    if (l->rank != sub.rank || memcmp(l->shape, sub.shape, (size_t)sub.rank * sizeof *sub.shape) != 0)
      return stop(l, fail_ragged(vm, l->rank, l->shape, sub.rank, sub.shape));
  } else {
    if (flat && !blocks_to_arrays(vm, at, 1, sub.rank, sub.shape, dtype)) return stop(l, value_error());
    /* One array lies above `at`. Blocks below it may have to become arrays first. */
    qn_value a = *--vm->sp;
    return add_value(vm, mark, state, count, l, a, dtype) ? *state : stop(l, value_error());
  }
  ++*count;
  return *state;
}

/* Evaluates a literal. FORM_NUMBERS: its numbers lie on the stack, and `out` has the shape. FORM_GENERAL: one array lies on the stack.
 * FORM_STOPPED: out->stopped says by what, and the stack is as before. */
static form collect(qn_vm *vm, const n_items *n, qn_value *fp, int dtype, literal *out) {
  qn_value *mark = vm->sp;
  literal l = {.whole = out->whole};
  form state = FORM_NONE;
  size_t count = 0;
  for (uint32_t i = 0; i < n->n; i++) {
    node *item = n->items[i];
    if (item->kind == N_ARRAY) {
      if (add_nested(vm, mark, &state, &count, &l, (const n_items *)item, fp, dtype) == FORM_STOPPED) goto stopped;
      continue;
    }
    bool spread = item->kind == N_SPREAD;
    qn_value v = eval(vm, spread ? ((n_one *)item)->a : item, fp);
    if (value_stops(v)) {
      stop(&l, v);
      goto stopped;
    }
    bool ok = true;
    if (!spread) {
      ok = add_value(vm, mark, &state, &count, &l, v, dtype);
    } else {
      int64_t len = spread_length(vm, v);
      if (len < 0)
        ok = raise_nothing(vm, E_not_iterable, item->at, "only lists, ranges and arrays spread into an array");
      for (int64_t k = 0; ok && k < len; k++) {
        qn_value x = spread_item(vm, v, k);
        ok = !value_is_error(x) && add_value(vm, mark, &state, &count, &l, x, dtype);
      }
      value_release(vm, v);
    }
    if (!ok) {
      raise_at(vm, item->at);
      stop(&l, value_error());
      goto stopped;
    }
  }
  if (state == FORM_GENERAL) {
    rec_at(vm, l.whole->h.at);
    qn_value a = stack_items(vm, mark, count, dtype);
    vm_pop_to(vm, mark);
    if (value_is_error(a)) return stop(out, a);
    *vm->sp++ = a;
    return FORM_GENERAL;
  }
  if (l.rank == ARRAY_MAX_RANK) {
    vm_pop_to(vm, mark);
    return stop(out, raise_error(vm, E_rank, SPAN_NONE, "arrays have at most %d axes", ARRAY_MAX_RANK));
  }
  out->rank = l.rank + 1;
  out->shape[0] = (int64_t)count;
  memcpy(out->shape + 1, l.shape, (size_t)l.rank * sizeof *l.shape);
  return FORM_NUMBERS;
stopped:
  vm_pop_to(vm, mark);
  return stop(out, l.stopped);
}

/* ---- literals of variables and constants ------------------------------------------------------------------------------------ */

enum { FEW_ITEMS = 32 };

/* Reads the items of a literal of variables and constants (borrowed) into `to`; those of nested literals of equal shape one behind the
 * other. False if it is no such literal, or has more than `room` items. */
static bool read_items(const n_items *n, const qn_value *fp, qn_value *to, int room, int *count, literal *l) {
  if (n->n == 0 || n->n > (uint32_t)room) return false;
  l->rank = 1;
  l->shape[0] = n->n;
  if (n->items[0]->kind == N_ARRAY) {
    *count = 0;
    for (uint32_t i = 0; i < n->n; i++) {
      literal row;
      int of_row;
      if (n->items[i]->kind != N_ARRAY) return false;
      if (!read_items((const n_items *)n->items[i], fp, to + *count, room - *count, &of_row, &row)) return false;
      if (i == 0) {
        if (row.rank == ARRAY_MAX_RANK) return false;
        l->rank = row.rank + 1;
        memcpy(l->shape + 1, row.shape, (size_t)row.rank * sizeof *row.shape);
      } else if (l->rank != row.rank + 1 ||
                 memcmp(l->shape + 1, row.shape, (size_t)row.rank * sizeof *row.shape) != 0) {
        return false;
      }
      *count += of_row;
    }
    return true;
  }
  for (uint32_t i = 0; i < n->n; i++) {
    const node *a = n->items[i];
    if (a->kind == N_CONST)
      to[i] = ((const n_const *)a)->v;
    else if (a->kind == N_LOCAL)
      to[i] = fp[a->slot];
    else if (a->kind == N_GLOBAL)
      to[i] = ((const n_global *)a)->cell->value;
    else
      return false;
    uint64_t tag = to[i].head;
    if (tag != TAG_ARRAY && tag - TAG_BOOL > TAG_FLOAT - TAG_BOOL) return false;
  }
  *count = (int)n->n;
  return true;
}

/* As array_of_numbers, for numbers that the dtype stores unchanged. (For small literals the general way was measured to take 100 to 200
 * instructions more.) Unset if some number must be converted or may not fit. */
static qn_value numbers_here(qn_vm *vm, const qn_value *v, int n, int dtype, const literal *l) {
  uint32_t tags = 0;
  for (int i = 0; i < n; i++) tags |= 1u << v[i].head;
  qn_dtype d = dtype >= 0               ? (qn_dtype)dtype
               : tags & 1u << TAG_FLOAT ? DTYPE_FLOAT
               : tags & 1u << TAG_INT   ? DTYPE_INT
                                        : WEAK_BOOL;
  if (dtype_is_bool(d) ? tags != 1u << TAG_BOOL : dtype_is_int(d) && tags & 1u << TAG_FLOAT) return value_unset();
  bool any = dtype_is_weak(d); /* such a dtype holds every host number of its kind */
  for (int i = 0; i < n && !any; i++)
    if (!(d == DTYPE_FLOAT && v[i].head == TAG_FLOAT ? v[i].u.f < 0x1p127 && v[i].u.f > -0x1p127
                                                     : dtype_holds(d, v[i])))
      return value_unset();
  qn_array *a = array_new(vm, d, l->rank, l->shape);
  if (!a) return value_error();
  char *to = array_data(a);
  size_t size = dtype_size(d);
  for (int i = 0; i < n; i++, to += size) {
    if (d == DTYPE_FLOAT && v[i].head == TAG_FLOAT) {
      float x = (float)v[i].u.f;
      memcpy(to, &x, sizeof x);
    } else if (d == DTYPE_INT) {
      memcpy(to, &v[i].u.i, sizeof v[i].u.i);
    } else {
      dtype_store(d, to, v[i]);
    }
  }
  return value_obj(TAG_ARRAY, a);
}

/* The array of a literal that only reads variables and constants, outside of recordings. Owned, or the error value; unset if it must be
 * evaluated. */
static qn_value literal_here(qn_vm *vm, const n_items *n, const qn_value *fp, int dtype) {
  qn_value v[FEW_ITEMS];
  literal l;
  int count;
  if (rec_hears_globals(vm) || vm->device || !read_items(n, fp, v, FEW_ITEMS, &count, &l)) return value_unset();
  uint64_t heads = 0;
  for (int i = 0; i < count; i++) heads |= v[i].head;
  if (!(heads & TAG_HEAP)) return numbers_here(vm, v, count, dtype, &l);
  if (l.rank > 1) return value_unset();
  return op_stack_few(vm, v, count, 0, stack_dtype(v, (size_t)count, dtype));
}

qn_value array_literal(qn_vm *vm, const n_items *n, qn_value *fp, int dtype) {
  qn_value here = literal_here(vm, n, fp, dtype);
  if (!value_is(here, TAG_UNSET)) {
    if (value_is_error(here)) raise_at(vm, n->h.at);
    return here;
  }
  qn_value *mark = vm->sp;
  literal l;
  l.whole = n;
  form f = collect(vm, n, fp, dtype, &l);
  if (f == FORM_STOPPED) {
    if (value_is_error(l.stopped)) raise_at(vm, n->h.at);
    return l.stopped;
  }
  qn_value r;
  if (f == FORM_GENERAL) {
    r = *--vm->sp;
  } else {
    r = array_of_numbers(vm, mark, dtype, l.rank, l.shape);
    vm->sp = mark;
  }
  if (value_is_error(r)) raise_at(vm, n->h.at);
  return r;
}

qn_value eval_array(qn_vm *vm, node *h, qn_value *fp) { return array_literal(vm, (const n_items *)h, fp, -1); }
