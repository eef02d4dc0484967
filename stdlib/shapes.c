/* Builtins that rearrange, join and pick elements: all are maps of coordinates or the index ops. */
#include <string.h>

#include "stdlib/builtins.h"

/* An argument as an array, owned: arrays are themselves, host numbers become arrays of rank 0, all else is an error. */
static qn_value array_arg(qn_vm *vm, const char *fn, qn_value v) {
  if (is_array(v)) return value_retain(v);
  if (!value_is_scalar(v)) return arg_refuse(vm, fn, "an array", v);
  return arg_array(vm, fn, v, QN_DTYPE_COUNT);
}

static void text_sizes(text_buf *t, const int64_t *shape, int rank) {
  text_adds(t, "(");
  for (int i = 0; i < rank; i++) text_addf(t, "%s%lld", i ? ", " : "", (long long)shape[i]);
  text_adds(t, ")");
}

/* ---- one array in another shape ---------------------------------------------------------------------------------------- */

static qn_value shaped(qn_vm *vm, qn_value x, int rank, const int64_t *shape) {
  return is_array(x) ? op_reshape(vm, x, rank, shape) : use_shape(vm, array_arg(vm, "reshape", x), rank, shape);
}

/* reshape where a size is symbolic. What has no answer for all sizes, and errors, are left to the plain way (unset), after a look at the
 * sizes. */
static qn_value reshape_symbolic(qn_vm *vm, qn_value x, int rank, int64_t *shape, uint32_t symbolic) {
  int64_t sizes[ARRAY_MAX_RANK];
  dim_table *t = rec_dims(vm);
  qn_dim size = 1, known = 1;
  int open = -1, nopen = 0;
  if (is_array(x)) rec_sizes(vm, x, sizes);
  for (int i = 0; is_array(x) && i < value_array(x)->rank; i++) size = dim_mul(t, size, sizes[i]);
  for (int i = 0; i < rank; i++) {
    if (shape[i] < 0 && !(symbolic >> i & 1))
      open = i, nopen++;
    else
      known = dim_mul(t, known, shape[i]);
  }
  if (nopen > 1) return value_unset();
  if (open >= 0 && shape[open] != -1) return value_unset();
  if (open >= 0 && !dim_quotient(t, size, known, &shape[open])) { /* that it divides is a fact, which the op notes */
    if (rec_is_number(vm, size) || rec_is_number(vm, known) || dim_hint(t, known) == 0) return value_unset();
    shape[open] = dim_make(t, DIM_FLOORDIV, size, known);
  }
  return dim_hint(t, size) == dim_hint(t, open < 0 ? known : dim_mul(t, known, shape[open]))
             ? shaped(vm, x, rank, shape)
             : value_unset();
}

qn_value builtin_reshape(qn_vm *vm, const qn_value *args) {
  int64_t shape[ARRAY_MAX_RANK], known = 1;
  int rank, open = -1;
  uint32_t symbolic;
  if (!arg_sizes(vm, "reshape", "sizes as ints or one list of ints", args[1], shape, &rank, &symbolic))
    return value_error();
  if (rec_symbolic(vm)) {
    int64_t made[ARRAY_MAX_RANK];
    memcpy(made, shape, sizeof made);
    qn_value out = rec_dims(vm) ? reshape_symbolic(vm, args[0], rank, made, symbolic) : value_unset();
    if (!value_is(out, TAG_UNSET)) return out;
    if (!rec_sizes_seen(vm, args[0])) return value_error();
    for (int i = 0; i < rank; i++)
      if (symbolic >> i & 1) shape[i] = rec_size_now(vm, shape[i]);
  }
  int64_t size = is_array(args[0]) ? value_array(args[0])->size : 1;
  bool fits = true;
  for (int i = 0; i < rank; i++) {
    int64_t n = shape[i];
    if (__builtin_expect(n < 0, 0)) {
      if ((fits = n == -1) && open >= 0) return raise_error(vm, E_shape, SPAN_NONE, "reshape: only one size may be -1");
      open = i;
      n = 1;
    }
    if (!fits || __builtin_mul_overflow(known, n, &known)) {
      fits = false;
      break;
    }
  }
  if (fits && open >= 0) {
    fits = known > 0 && size % known == 0;
    if (fits) {
      shape[open] = size / known;
      return shaped(vm, args[0], rank, shape);
    }
  }
  if (!fits || known != size) {
    text_buf t = {.vm = vm};
    text_addf(&t, "reshape: %s has %lld element%s fit ", phrase_kind(args[0]).text, (long long)size,
              size == 1 ? ", which does not" : "s, which do not");
    text_sizes(&t, shape, rank);
    return raise_text(vm, E_shape, SPAN_NONE, &t);
  }
  return shaped(vm, args[0], rank, shape);
}

qn_value builtin_transpose(qn_vm *vm, const qn_value *args) {
  qn_value x = array_arg(vm, "transpose", args[0]);
  if (value_is_error(x)) return x;
  int rank = value_array(x)->rank, a = 0, b = 1;
  if (value_is(args[1], TAG_NIL) && value_is(args[2], TAG_NIL)) {
    if (rank < 2) return x;
    if (rank > 2) {
      value_release(vm, x);
      return raise_error(
          vm, E_rank, SPAN_NONE,
          "transpose: an array of rank %d; name the two axes, as in transpose(x, -2, -1), or use permute", rank);
    }
  } else if (!arg_axis(vm, "transpose", args[1], rank, &a) || !arg_axis(vm, "transpose", args[2], rank, &b)) {
    return value_fail(vm, x);
  }
  int order[ARRAY_MAX_RANK];
  for (int i = 0; i < rank; i++) order[i] = i == a ? b : i == b ? a : i;
  return use_permute(vm, x, order);
}

/* Reads the axes that permute gets, if they are a list of ints that names each axis once, as in most calls. False, without an error: they
 * are something else, or wrong. */
static inline bool plain_order(qn_value axes, int rank, int *order) {
  const qn_list *l = value_list(axes);
  if (!value_is(axes, TAG_LIST)) return false;
  if (l->len == 1 && value_is(l->items[0], TAG_LIST)) l = value_list(l->items[0]);
  if (l->len != (uint32_t)rank) return false;
  unsigned seen = 0;
  for (int i = 0; i < rank; i++) {
    int64_t axis = l->items[i].u.i;
    axis += axis < 0 ? rank : 0;
    if (l->items[i].head != TAG_INT || (uint64_t)axis >= (uint64_t)rank) return false;
    order[i] = (int)axis;
    seen |= 1u << axis;
  }
  return seen == (1u << rank) - 1;
}

qn_value builtin_permute(qn_vm *vm, const qn_value *args) {
  int few[ARRAY_MAX_RANK];
  if (is_array(args[0]) && plain_order(args[1], value_array(args[0])->rank, few)) return op_permute(vm, args[0], few);
  qn_value x = array_arg(vm, "permute", args[0]);
  if (value_is_error(x)) return x;
  int64_t axes[ARRAY_MAX_RANK];
  int n, order[ARRAY_MAX_RANK], rank = value_array(x)->rank;
  bool good = arg_ints(vm, "permute", "axes as ints or one list of ints", args[1], axes, &n);
  if (good && n != rank)
    good = raise_false(vm, E_axis, "permute: %d axes given for an array of rank %d; name each once", n, rank);
  unsigned seen = 0;
  for (int i = 0; i < n && good; i++) {
    order[i] = (int)axes[i];
    good = (uint64_t)axes[i] < (uint64_t)rank || arg_axis(vm, "permute", value_int(axes[i]), rank, &order[i]);
    if (good && (seen & 1u << order[i]))
      good = raise_false(vm, E_axis, "permute: axis %lld is named twice", (long long)axes[i]);
    if (good) seen |= 1u << order[i];
  }
  return good ? use_permute(vm, x, order) : value_fail(vm, x);
}

qn_value builtin_broadcast_to(qn_vm *vm, const qn_value *args) {
  int64_t shape[ARRAY_MAX_RANK];
  int rank;
  if (!arg_shape(vm, "broadcast_to", args[1], shape, &rank)) return value_error();
  if (is_array(args[0])) return op_broadcast(vm, args[0], rank, shape);
  return use_broadcast(vm, array_arg(vm, "broadcast_to", args[0]), rank, shape);
}

/* Is a size of x 1? 1, 0, -1 with an error raised: that cannot be known of a size that data decide. */
static int is_one(qn_vm *vm, int64_t size) {
  if (!rec_is_number(vm, size)) return rec_size_hint(vm, size) == 1; /* (symbols are 2 or more) */
  if (!rec_is_data_size(vm, size)) return -(int)!rec_unknown_size(vm);
  const int64_t now = rec_size_hint(vm, size);
  if (now > 1 ? rec_size_ordered(vm, 2, size) : rec_size_ordered(vm, now, size) && rec_size_ordered(vm, size, now))
    return now == 1;
  return -(int)!rec_unknown_size(vm);
}

qn_value builtin_squeeze(qn_vm *vm, const qn_value *args) {
  qn_value x = array_arg(vm, "squeeze", args[0]);
  if (value_is_error(x)) return x;
  const qn_array *a = value_array(x);
  uint8_t mask;
  if (!arg_axes(vm, "squeeze", args[1], a->rank, &mask)) return value_fail(vm, x);
  int64_t shape[ARRAY_MAX_RANK], sizes[ARRAY_MAX_RANK];
  int rank = 0;
  rec_sizes(vm, x, sizes);
  for (int i = 0; i < a->rank; i++) {
    bool drop = mask >> i & 1;
    const int one = drop ? is_one(vm, sizes[i]) : 0;
    if (one < 0) return value_fail(vm, x);
    if (drop && !one && !value_is(args[1], TAG_NIL)) {
      raise_error(vm, E_shape, SPAN_NONE, "squeeze: axis %d has the size %lld, not 1", i, (long long)a->shape[i]);
      return value_fail(vm, x);
    }
    if (!one) shape[rank++] = sizes[i];
  }
  return use_shape(vm, x, rank, shape);
}

qn_value builtin_expand_dims(qn_vm *vm, const qn_value *args) {
  qn_value x = array_arg(vm, "expand_dims", args[0]);
  if (value_is_error(x)) return x;
  const qn_array *a = value_array(x);
  int rank = a->rank + (value_is(args[1], TAG_LIST) ? (int)value_list(args[1])->len : 1);
  uint8_t mask = 0;
  bool good = !value_is(args[1], TAG_NIL);
  if (!good) arg_refuse(vm, "expand_dims", "an int or a list of ints as axis", args[1]);
  if (good && rank > ARRAY_MAX_RANK)
    good = raise_false(vm, E_rank, "expand_dims: an array has at most %d axes", ARRAY_MAX_RANK);
  if (!good || !arg_axes(vm, "expand_dims", args[1], rank, &mask)) return value_fail(vm, x);
  int64_t shape[ARRAY_MAX_RANK], sizes[ARRAY_MAX_RANK];
  rec_sizes(vm, x, sizes);
  for (int i = 0, k = 0; i < rank; i++) shape[i] = mask >> i & 1 ? 1 : sizes[k++];
  return use_shape(vm, x, rank, shape);
}

qn_value builtin_flip(qn_vm *vm, const qn_value *args) {
  qn_value x = array_arg(vm, "flip", args[0]);
  if (value_is_error(x)) return x;
  const qn_array *a = value_array(x);
  uint8_t mask;
  if (!arg_axes(vm, "flip", args[1], a->rank, &mask)) return value_fail(vm, x);
  op_attr attr = {.n = (uint8_t)(3 * a->rank)};
  int64_t sizes[ARRAY_MAX_RANK];
  rec_sizes(vm, x, sizes);
  for (int i = 0; i < a->rank; i++) {
    bool back = (mask >> i & 1) && sizes[i] != 0;
    int64_t from = back ? dim_sub(rec_dims(vm), sizes[i], 1) : 0;
    if (from < 0 && !rec_size_certain(vm, 0, from)) from = dim_make(rec_dims(vm), DIM_MAX, from, 0);
    attr.d[3 * i] = from;
    attr.d[3 * i + 1] = sizes[i];
    attr.d[3 * i + 2] = back ? -1 : 1;
  }
  return use1(vm, OP_slice, x, &attr);
}

/* How many elements of an axis of size n do not pass its end when it is rolled. */
static int64_t roll_kept(qn_vm *vm, int64_t *n, int64_t shift, bool symbolic) {
  dim_table *t = rec_dims(vm);
  if (*n < 0 && shift == 0) return *n;
  if (*n < 0 || symbolic) { /* shifts by less than the size are the same for all sizes */
    qn_dim by = symbolic ? shift : dim_const(t, shift), most = dim_sub(t, *n, 1), back = dim_sub(t, 0, by);
    if (rec_size_ordered(vm, 1, by) && rec_size_ordered(vm, by, most)) return dim_sub(t, *n, by);
    if (rec_size_ordered(vm, 1, back) && rec_size_ordered(vm, back, most)) return back;
  }
  *n = rec_size_now(vm, *n);
  if (symbolic) shift = rec_size_now(vm, shift);
  return *n ? *n - (shift % *n + *n) % *n : 0;
}

/* roll by a number that is made of data: takes the elements by their indices. */
static qn_value roll_by_data(qn_vm *vm, qn_value x, qn_value shift, int axis, int64_t n) {
  qn_value size = rec_size_number(vm, n), by = value_is_error(size) ? size : op_binary(vm, OP_mod, shift, size);
  qn_value at = value_is_error(by) ? by : op_iota(vm, QN_i64, 1, &n, 0);
  for (int k = 0; k < 2 && !value_is_error(at); k++) {
    qn_value next = k ? op_binary(vm, OP_mod, at, size) : op_binary(vm, OP_sub, at, by);
    value_release(vm, at);
    at = next;
  }
  qn_value out = value_is_error(at) ? at : op_take(vm, x, at, axis);
  value_release(vm, at);
  return out;
}

qn_value builtin_roll(qn_vm *vm, const qn_value *args) {
  qn_value x = array_arg(vm, "roll", args[0]);
  if (value_is_error(x)) return x;
  int64_t shift, sizes[ARRAY_MAX_RANK];
  int axis;
  if (value_is(args[1], TAG_LIST) || value_is(args[2], TAG_LIST)) {
    value_release(vm, x);
    return raise_error(
        vm, E_type, SPAN_NONE,
        "roll: one axis takes one shift; several are rolled one after the other: x.roll(1, axis: 0).roll(1, "
        "axis: 1)");
  }
  bool by_data = value_is(args[1], TAG_INT) && rec_chosen_by_data(vm, args[1]), symbolic = false;
  if (!by_data && !arg_int(vm, "roll", "an int as shift", args[1], &shift)) return value_fail(vm, x);
  /* The shift is asked for before the sizes are: it may end a capture, whose symbols these are. */
  if (!by_data && value_node(args[1]) && !rec_bound(vm, args[1], &symbolic, &shift)) return value_fail(vm, x);
  if (!arg_axis(vm, "roll", args[2], value_array(x)->rank, &axis) || !rec_sizes_of_call(vm, x, sizes))
    return value_fail(vm, x);
  if (by_data) {
    qn_value out = sizes[axis] ? roll_by_data(vm, x, args[1], axis, sizes[axis]) : value_retain(x);
    value_release(vm, x);
    return out;
  }
  int64_t n = sizes[axis], kept = roll_kept(vm, &n, shift, symbolic);
  if (n == 0 || kept == n) return x;
  int64_t moved = dim_sub(rec_dims(vm), n, kept);
  qn_value parts[2] = {op_slice(vm, x, axis, kept, moved, 1), value_nil()};
  parts[1] = value_is_error(parts[0]) ? value_error() : op_slice(vm, x, axis, 0, kept, 1);
  value_release(vm, x);
  if (value_is_error(parts[1])) return value_fail(vm, parts[0]);
  return use_concat(vm, parts, 2, axis);
}

/* Reads the widths that pad gets: an int, a list with an int or (before, after) for each axis, or (before, after) for an array of rank 1.
 * Writes three numbers for each axis to `d`, how much is added before it, behind it and between its elements (0). */
static bool pad_widths(qn_vm *vm, qn_value widths, int rank, qn_dim *d) {
  bool list = value_is(widths, TAG_LIST);
  bool pair = list && rank == 1 && value_list(widths)->len == 2;
  if (list && !pair && value_list(widths)->len != (uint32_t)rank)
    return raise_false(vm, E_argument, "pad: %u widths for an array of rank %d", value_list(widths)->len, rank);
  for (int i = 0; i < rank; i++) {
    qn_value w = list && !pair ? value_list(widths)->items[i] : widths;
    int64_t sides[2];
    bool two = value_is(w, TAG_LIST) && value_list(w)->len == 2;
    for (int k = 0; k < 2; k++) {
      qn_value side = two ? value_list(w)->items[k] : w;
      if (!arg_int(vm, "pad", two ? "ints as widths" : "an int or (before, after) as width", side, &sides[k]))
        return false;
      if (sides[k] < 0)
        return raise_false(vm, E_shape, "pad: width %lld is negative; a slice cuts elements off", (long long)sides[k]);
      if (sides[k] > ARRAY_MAX_ELEMENTS) return raise_false(vm, E_too_large, "pad: more than 2**48 elements");
      if (!rec_size(vm, side, &d[3 * i + k])) return false;
    }
    d[3 * i + 2] = 0;
  }
  return true;
}

qn_value builtin_pad(qn_vm *vm, const qn_value *args) {
  qn_dim d[OP_ATTR_DIMS];
  qn_value with = args[2];
  bool bools = is_array(args[0]) && dtype_is_bool(value_array(args[0])->dtype);
  if (bools && value_is(with, TAG_INT)) {
    qn_value seen = rec_observe(vm, with);
    if (value_is_error(seen)) return seen;
    if (seen.u.i == 0) with = value_bool(false); /* the default */
  }
  qn_value x = array_arg(vm, "pad", args[0]);
  if (value_is_error(x)) return x;
  return pad_widths(vm, args[1], value_array(x)->rank, d) ? used(vm, x, op_pad(vm, x, with, d)) : value_fail(vm, x);
}

static qn_value repeat_items(qn_vm *vm, qn_value x, int64_t n) {
  if (n < 0) return raise_error(vm, E_argument, SPAN_NONE, "repeat: a negative number of times");
  if (value_is(x, TAG_STR)) {
    const qn_str *s = value_str(x);
    if (s->len && n > TEXT_MAX / s->len)
      return raise_error(vm, E_too_large, SPAN_NONE, "repeat: a text has at most 2**31 bytes");
    text_buf t = {.vm = vm};
    for (int64_t i = 0; i < n && s->len && !t.failed; i++) {
      if (vm_poll_item(vm, i)) return text_fail(&t);
      text_add(&t, s->text, s->len);
    }
    return text_take(&t);
  }
  const qn_list *l = value_list(x);
  if (l->len && n > INT32_MAX / l->len)
    return raise_error(vm, E_too_large, SPAN_NONE, "repeat: too many items for a list");
  qn_value out = list_value(list_new(vm, (size_t)n * l->len));
  if (value_is_error(out)) return out;
  for (size_t i = 0; i < value_list(out)->len; i++) {
    if (vm_poll_item(vm, (int64_t)i)) return value_fail(vm, out);
    value_list(out)->items[i] = value_retain(l->items[i % l->len]);
  }
  return out;
}

qn_value builtin_repeat(qn_vm *vm, const qn_value *args) {
  int64_t n;
  if (!arg_int(vm, "repeat", "an int as number of times", args[1], &n)) return value_error();
  if (value_is(args[0], TAG_STR) || value_is(args[0], TAG_LIST)) {
    qn_value times = rec_observe(vm, args[1]);
    return value_is_error(times) ? times : repeat_items(vm, args[0], times.u.i);
  }
  qn_value x = array_arg(vm, "repeat", args[0]);
  if (value_is_error(x)) return x;
  const qn_array *a = value_array(x);
  int axis = 0, rank = a->rank;
  int64_t shape[ARRAY_MAX_RANK], now[ARRAY_MAX_RANK], strides[ARRAY_MAX_RANK], outer = 1, inner = 1;
  bool flat = value_is(args[2], TAG_NIL);
  bool good = n >= 0 || raise_false(vm, E_argument, "repeat: a negative number of times");
  if (good && !flat) good = arg_axis(vm, "repeat", args[2], rank, &axis);
  if (!good || !rec_sizes_of_call(vm, x, shape)) return value_fail(vm, x);
  memcpy(now, a->shape, sizeof now);
  if (flat) {
    shape[0] = op_count(vm, x, UINT8_MAX);
    now[0] = a->size;
    rank = 1;
  }
  if (__builtin_mul_overflow(now[axis], n, &now[axis])) now[axis] = INT64_MAX;
  if (shape_strides(rank, now, strides) < 0) good = raise_false(vm, E_too_large, "repeat: more than 2**48 elements");
  if (!good || !rec_size(vm, args[1], &n)) return value_fail(vm, x);
  dim_table *t = rec_dims(vm);
  for (int i = 0; i < rank; i++) {
    if (i < axis) outer = dim_mul(t, outer, shape[i]);
    if (i > axis) inner = dim_mul(t, inner, shape[i]);
  }
  int64_t split[4] = {outer, shape[axis], 1, inner};
  shape[axis] = dim_mul(t, shape[axis], n);
  x = use_shape(vm, x, 4, split);
  split[2] = n;
  return use_shape(vm, use_broadcast(vm, x, 4, split), rank, shape);
}

/* ---- joining and cutting ---------------------------------------------------------------------------------------------------- */

/* stack of a list of any length. */
static __attribute__((noinline)) qn_value stack_stacked(qn_vm *vm, qn_value list, int64_t axis) {
  qn_value out = rec_stacked_whole(vm, list);
  int rank = value_is(out, TAG_ARRAY) ? value_array(out)->rank : 0;
  if (axis < 0) axis += rank;
  if (rank && axis > 0 && axis < rank) { /* the items lie side by side, in place of one behind the other */
    int order[ARRAY_MAX_RANK];
    for (int k = 0; k < rank; k++) order[k] = k < axis ? k + 1 : k == axis ? 0 : k;
    return used(vm, out, op_permute(vm, out, order));
  }
  if (value_is_error(out) || (rank && axis == 0)) return out;
  if (rank) value_release(vm, out);
  list = rec_unstacked(vm, list);
  if (value_is_error(list)) return list;
  const qn_list *l = value_list(list);
  out = stack_values(vm, "stack", l->items, l->len, axis, QN_DTYPE_COUNT);
  value_release(vm, list);
  return out;
}

qn_value builtin_stack(qn_vm *vm, const qn_value *args) {
  int64_t axis;
  if (is_array(args[1]))
    return raise_error(vm, E_type, SPAN_NONE, "stack: arrays are given as one list: stack((x, y))");
  if (!arg_int(vm, "stack", "an int as axis", args[1], &axis)) return value_error();
  if (!value_is(args[0], TAG_LIST)) return arg_refuse(vm, "stack", "a list of arrays", args[0]);
  if (value_is_stacked(args[0])) return stack_stacked(vm, args[0], axis);
  const qn_list *l = value_list(args[0]);
  return stack_values(vm, "stack", l->items, l->len, axis, QN_DTYPE_COUNT);
}

/* concat of a list of any length (rec_stacked_concat). */
static qn_value concat_stacked(qn_vm *vm, const qn_value *args) {
  qn_value out = value_is(args[1], TAG_INT) && !value_node(args[1]) && args[1].u.i == 0
                     ? rec_stacked_concat(vm, args[0])
                     : value_unset();
  if (!value_is(out, TAG_UNSET)) return out;
  qn_value in[2] = {rec_unstacked(vm, args[0]), args[1]};
  if (value_is_error(in[0])) return in[0];
  out = builtin_concat(vm, in);
  value_release(vm, in[0]);
  return out;
}

qn_value builtin_concat(qn_vm *vm, const qn_value *args) {
  if (!value_is(args[0], TAG_LIST)) return arg_refuse(vm, "concat", "a list of arrays", args[0]);
  if (value_is_stacked(args[0])) return concat_stacked(vm, args);
  const qn_list *l = value_list(args[0]);
  if (l->len == 0) return raise_error(vm, E_argument, SPAN_NONE, "concat: nothing to join");
  for (uint32_t i = 0; i < l->len; i++)
    if (!is_array(l->items[i]) || value_array(l->items[i])->rank == 0)
      return arg_refuse(vm, "concat", "arrays of rank 1 or more (stack joins numbers)", l->items[i]);
  int axis;
  if (!arg_axis(vm, "concat", args[1], value_array(l->items[0])->rank, &axis)) return value_error();
  return op_concat(vm, l->items, (int)l->len, axis);
}

qn_value builtin_chunk(qn_vm *vm, const qn_value *args) {
  qn_value x = args[0];
  int64_t n;
  int axis;
  if (!is_array(x)) return arg_refuse(vm, "chunk", "an array", x);
  if (!arg_int(vm, "chunk", "an int as number of pieces", args[1], &n) ||
      !arg_axis(vm, "chunk", args[2], value_array(x)->rank, &axis))
    return value_error();
  if (n < 1 || n > INT32_MAX) return raise_error(vm, E_argument, SPAN_NONE, "chunk: %lld pieces", (long long)n);
  int64_t sizes[ARRAY_MAX_RANK], start = 0;
  if (!rec_sizes_of_call(vm, x, sizes)) return value_error();
  dim_table *t = rec_dims(vm);
  const int64_t size = sizes[axis];
  qn_value out = list_value(list_new(vm, (size_t)n));
  for (int64_t i = 0; i < n && !value_is_error(out); i++) {
    int64_t len = size >= 0   ? size / n + (i < size % n)
                  : i + 1 < n ? dim_make(t, DIM_FLOORDIV, dim_add(t, size, n - 1 - i), n)
                              : dim_sub(t, size, start);
    list_fill(vm, &out, i, op_slice(vm, x, axis, start, len, 1));
    start = dim_add(t, start, len);
  }
  return out;
}

/* ---- picking ---------------------------------------------------------------------------------------------------------------- */

/* An index argument as an array of integers, owned. It may also be a list of ints. */
static qn_value index_arg(qn_vm *vm, const char *fn, qn_value v) {
  qn_value index =
      value_is(v, TAG_LIST) || value_is(v, TAG_RANGE) ? arg_array(vm, fn, v, QN_DTYPE_COUNT) : value_retain(v);
  if (value_is_error(index)) return index;
  if (is_array(index) && dtype_is_int((qn_dtype)value_array(index)->dtype)) return index;
  if (is_array(index) && value_array(index)->size == 0) return use_dtype(vm, index, DTYPE_INDEX);
  return used(vm, index, arg_refuse(vm, fn, "an integer array as index", index));
}

qn_value builtin_take(qn_vm *vm, const qn_value *args) {
  qn_value x = args[0];
  int axis;
  if (!is_array(x)) return arg_refuse(vm, "take", "an array", x);
  const qn_array *a = value_array(x);
  if (!arg_axis(vm, "take", args[2], a->rank, &axis)) return value_error();
  if (value_is(args[1], TAG_INT)) {
    int64_t i = args[1].u.i, sizes[ARRAY_MAX_RANK], shape[ARRAY_MAX_RANK];
    if (!rec_sizes_of_call(vm, x, sizes)) return value_error();
    const int64_t n = sizes[axis];
    if (i < -a->shape[axis] || i >= a->shape[axis] || !rec_size_ordered(vm, i < 0 ? -i : i + 1, n))
      return raise_error(vm, E_index, SPAN_NONE, "take: index %lld is out of bounds for axis %d of size %lld",
                         (long long)i, axis, (long long)a->shape[axis]);
    for (int k = 0, j = 0; k < a->rank; k++)
      if (k != axis) shape[j++] = sizes[k];
    if (i < 0) i = dim_sub(rec_dims(vm), n, -i);
    return use_shape(vm, op_slice(vm, x, axis, i, 1, 1), a->rank - 1, shape);
  }
  qn_value index = index_arg(vm, "take", args[1]);
  if (value_is_error(index)) return index;
  int rank = a->rank - 1 + value_array(index)->rank;
  if (rank <= ARRAY_MAX_RANK) return used(vm, index, op_take(vm, x, index, axis));
  raise_error(vm, E_rank, SPAN_NONE, "take: the result would have %d axes; an array has at most %d", rank,
              ARRAY_MAX_RANK);
  return value_fail(vm, index);
}

qn_value builtin_gather(qn_vm *vm, const qn_value *args) {
  int axis;
  if (!is_array(args[0])) return arg_refuse(vm, "gather", "an array", args[0]);
  if (!arg_axis(vm, "gather", args[2], value_array(args[0])->rank, &axis)) return value_error();
  qn_value index = index_arg(vm, "gather", args[1]);
  return value_is_error(index) ? index : used(vm, index, op_gather(vm, args[0], index, axis));
}

qn_value builtin_scatter_add(qn_vm *vm, const qn_value *args) {
  if (!is_array(args[0])) return arg_refuse(vm, "scatter_add", "an array", args[0]);
  if (!is_array(args[2]) && !value_is_scalar(args[2]))
    return arg_refuse(vm, "scatter_add", "an array or a number as v", args[2]);
  qn_value index =
      value_is(args[1], TAG_INT) ? to_dtype(vm, args[1], DTYPE_INDEX) : index_arg(vm, "scatter_add", args[1]);
  return value_is_error(index) ? index : used(vm, index, op_add_at(vm, args[0], index, args[2]));
}

qn_value builtin_nonzero(qn_vm *vm, const qn_value *args) {
  if (!is_array(args[0])) return arg_refuse(vm, "nonzero", "an array", args[0]);
  if (dtype_is_bool(value_array(args[0])->dtype)) return op_nonzero(vm, args[0]);
  return use1(vm, OP_nonzero, op2(vm, OP_ne, args[0], value_int(0), NULL), NULL);
}

/* Is a size `value`? In a recording that is relied on from then on. */
static bool size_is(qn_vm *vm, int64_t size, int64_t value) {
  dim_table *t = rec_dims(vm);
  return t ? dim_hint(t, size) == value && dim_is(t, size, value) : size == value;
}

qn_value builtin_unique(qn_vm *vm, const qn_value *args) {
  qn_value x = array_arg(vm, "unique", args[0]);
  if (value_is_error(x)) return x;
  int64_t sizes[ARRAY_MAX_RANK], one = 1;
  if (!rec_sizes_of_call(vm, x, sizes)) return value_fail(vm, x);
  int64_t n = op_count(vm, x, UINT8_MAX);
  bool floats = dtype_is_float((qn_dtype)value_array(x)->dtype);
  x = use_shape(vm, x, 1, &n);
  if (value_is_error(x) || size_is(vm, n, 0) || size_is(vm, n, 1)) return x;
  op_attr along = {.axes = 1};
  qn_value sorted = use1(vm, OP_sort, x, &along);
  if (value_is_error(sorted)) return sorted;
  /* An element is kept if it differs from the one before it. A NaN differs from every NaN; all but the first are dropped. */
  const int64_t fewer = dim_sub(rec_dims(vm), n, 1);
  qn_value before = op_slice(vm, sorted, 0, 0, fewer, 1);
  qn_value after = value_is_error(before) ? before : op_slice(vm, sorted, 0, 1, fewer, 1);
  qn_value differ = value_is_error(after) ? after : op2(vm, OP_ne, after, before, NULL);
  if (floats && !value_is_error(differ)) {
    qn_value nans = use2(vm, OP_bitand, op1(vm, OP_isnan, after, NULL), op1(vm, OP_isnan, before, NULL), NULL);
    differ = use2(vm, OP_bitand, differ, use1(vm, OP_invert, nans, NULL), NULL);
  }
  value_release(vm, before);
  value_release(vm, after);
  qn_value parts[2] = {
      value_is_error(differ) ? differ : use_broadcast(vm, to_dtype(vm, value_bool(true), DTYPE_TEST), 1, &one), differ};
  if (value_is_error(parts[0])) {
    value_release(vm, differ);
    return value_fail(vm, sorted);
  }
  return use2(vm, OP_compress, sorted, use_concat(vm, parts, 2, 0), NULL);
}
