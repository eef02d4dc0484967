/* Reading builtins' arguments, ops on owned values, and iteration: what builtins.h declares. */
#define _GNU_SOURCE /* memmem */
#include "stdlib/builtins.h"

#include <string.h>

#include "jit/run/index.h"
#include "interp/interp.h"

/* ---- arguments ------------------------------------------------------------------------------------------------ */

qn_value arg_refuse(qn_vm *vm, const char *fn, const char *what, qn_value v) {
  text_buf t = {.vm = vm};
  text_addf(&t, "%s: expected %s, not ", fn, what);
  text_kind(&t, v);
  if (value_is(v, TAG_LIST) && !strncmp(what, "an array", 8) && !strstr(what, "list"))
    text_adds(&t, "; array(xs) makes one of a list of numbers");
  else if (value_is(v, TAG_ARRAY) && strcmp(what, "a list of arrays") == 0)
    text_addf(&t, ": %s((x, y))", fn);
  else if (value_is(v, TAG_ARRAY) && strstr(what, "list of ints"))
    text_adds(&t, "; lists are written ( )");
  else if (value_is(v, TAG_FLOAT) && strstr(what, " ints"))
    text_adds(&t, "; int(x) and a // b give ints");
  else if (value_is_number(v) && strstr(what, "a list, record, text"))
    text_adds(&t, "; a list of one item is written (1,)");
  else if (strstr(what, "keepdims"))
    text_adds(&t, "; several axes are a list: axis: (0, 1)");
  else if (value_is(v, TAG_FN) && strstr(what, "dtype"))
    text_adds(&t, "; dtypes are f32, f64, i64, bool ...");
  return raise_text(vm, E_type, SPAN_NONE, &t);
}

bool arg_str(qn_vm *vm, const char *fn, const char *what, qn_value v, qn_str **out) {
  if (!value_is(v, TAG_STR)) return arg_wrong(vm, fn, what, v);
  *out = value_str(v);
  return true;
}

bool arg_bool(qn_vm *vm, const char *fn, const char *what, qn_value v, bool *out) {
  if (!value_is(v, TAG_BOOL)) return arg_wrong(vm, fn, what, v);
  *out = v.u.i != 0;
  return true;
}

bool arg_dtype(qn_vm *vm, const char *fn, qn_value v, qn_dtype otherwise, qn_dtype *out) {
  if (value_is(v, TAG_NIL)) {
    *out = otherwise;
    return true;
  }
  if (value_is(v, TAG_STR) && dtype_public((int)dtype_find(value_str(v)->text, value_str(v)->len)))
    return raise_false(vm, E_type, "%s: a dtype has no quotes: write %s", fn, value_str(v)->text);
  if (!value_is(v, TAG_DTYPE)) return arg_wrong(vm, fn, "a dtype like f32 or i64", v);
  *out = (qn_dtype)v.u.i;
  if (!dtype_public(*out))
    return raise_false(vm, E_dtype, "%s: arrays of %s are not supported", fn, dtype_rows[*out].name);
  return true;
}

static bool axis_of(qn_vm *vm, const char *fn, int64_t axis, int rank, int *out) {
  if (rank == 0)
    return raise_false(vm, E_axis, "%s: axis %lld of an array of rank 0, which has no axes", fn, (long long)axis);
  if (axis < -rank || axis >= rank)
    return raise_false(vm, E_axis, "%s: axis %lld is out of range; an array of rank %d has the axes %d to %d", fn,
                       (long long)axis, rank, -rank, rank - 1);
  *out = (int)(axis < 0 ? axis + rank : axis);
  return true;
}

bool arg_axis(qn_vm *vm, const char *fn, qn_value v, int rank, int *out) {
  int64_t axis = v.u.i < 0 ? v.u.i + rank : v.u.i;
  if (v.head == TAG_INT && (uint64_t)axis < (uint64_t)rank) {
    *out = (int)axis;
    return true;
  }
  return arg_int(vm, fn, "an int as axis", v, &axis) && axis_of(vm, fn, axis, rank, out);
}

bool arg_axes(qn_vm *vm, const char *fn, qn_value v, int rank, uint8_t *mask) {
  if (axes_at_once(v, rank, mask)) return true;
  uint32_t n;
  const qn_value *items = one_or_many(&v, &n);
  *mask = 0;
  for (uint32_t i = 0; i < n; i++) {
    int64_t axis = items[i].u.i;
    uint8_t one;
    if (items[i].head != TAG_INT || !axes_at_once(items[i], rank, &one)) {
      int at;
      if (!arg_int(vm, fn, "an int or a list of ints as axis", items[i], &axis)) return false;
      if (!axis_of(vm, fn, axis, rank, &at)) return false;
      one = (uint8_t)(1u << at);
    }
    if (*mask & one) return raise_false(vm, E_axis, "%s: axis %lld is named twice", fn, (long long)axis);
    *mask |= one;
  }
  return true;
}

bool arg_operands(qn_vm *vm, const char *fn, const qn_value *args, int n) {
  for (int i = 0; i < n; i++)
    if (!is_array(args[i]) && !value_is_scalar(args[i])) return arg_wrong(vm, fn, "arrays and numbers", args[i]);
  return true;
}

/* Does what arg_ints does for an int or a list of at most eight ints, which most calls give. False, without an error: `rest` is something
 * else, and arg_ints has to look at it. */
static inline bool plain_ints(qn_value rest, int64_t *out, int *n) {
  const qn_list *l = value_list(rest);
  if (rest.head == TAG_INT) {
    out[0] = rest.u.i;
    *n = 1;
    return true;
  }
  if (!value_is(rest, TAG_LIST) || l->len - 1 >= ARRAY_MAX_RANK) return false;
  uint32_t count = l->len;
  for (uint32_t i = 0; i < count; i++) {
    if (l->items[i].head != TAG_INT) return false;
    out[i] = l->items[i].u.i;
  }
  *n = (int)count;
  return true;
}

bool arg_sizes(qn_vm *vm, const char *fn, const char *what, qn_value rest, int64_t *out, int *n, uint32_t *symbolic) {
  *symbolic = 0;
  if (plain_ints(rest, out, n)) return true;
  if (value_is(rest, TAG_LIST) && value_list(rest)->len == 1 && value_is(value_list(rest)->items[0], TAG_LIST))
    rest = value_list(rest)->items[0];
  if (value_is(rest, TAG_LIST) && value_list(rest)->len == 2 && value_is(value_list(rest)->items[0], TAG_LIST) &&
      value_is(value_list(rest)->items[1], TAG_DTYPE))
    return raise_false(vm, E_type, "%s: the dtype is given by name: dtype: %s", fn,
                       dtype_rows[value_list(rest)->items[1].u.i].name);
  uint32_t count;
  const qn_value *items = one_or_many(&rest, &count);
  for (uint32_t i = 0; i < count; i++) {
    int64_t k;
    if (value_is(items[i], TAG_DTYPE)) {
      const char *name = dtype_rows[items[i].u.i].name;
      return raise_false(vm, E_type, "%s: expected %s, not the dtype %s; write dtype: %s", fn, what, name, name);
    }
    if (!arg_int(vm, fn, what, items[i], &k)) return false;
    if (i == ARRAY_MAX_RANK)
      return raise_false(vm, E_rank, "%s: %u sizes or axes; an array has at most %d axes", fn, count, ARRAY_MAX_RANK);
    out[i] = k;
    if (!value_node(items[i])) continue;
    if (!rec_size(vm, items[i], &out[i])) return false;
    if (out[i] != k) *symbolic |= 1u << i;
  }
  *n = (int)count;
  return true;
}

bool arg_ints(qn_vm *vm, const char *fn, const char *what, qn_value rest, int64_t *out, int *n) {
  uint32_t symbolic;
  return arg_sizes(vm, fn, what, rest, out, n, &symbolic);
}

static __attribute__((noinline)) bool odd_shape(qn_vm *vm, const char *fn, qn_value rest, int64_t *shape, int *rank) {
  uint32_t symbolic;
  if (!arg_sizes(vm, fn, "sizes as ints or one list of ints", rest, shape, rank, &symbolic)) return false;
  int64_t strides[ARRAY_MAX_RANK], now[ARRAY_MAX_RANK];
  for (int i = 0; i < *rank; i++) now[i] = symbolic >> i & 1 ? rec_size_hint(vm, shape[i]) : shape[i];
  for (int i = 0; i < *rank; i++)
    if (now[i] < 0) return raise_false(vm, E_shape, "%s: size %lld is negative", fn, (long long)now[i]);
  if (shape_strides(*rank, now, strides) < 0) return raise_false(vm, E_too_large, "%s: more than 2**48 elements", fn);
  return true;
}

bool arg_shape(qn_vm *vm, const char *fn, qn_value rest, int64_t *shape, int *rank) {
  const qn_list *l = value_list(rest);
  if (rest.head == TAG_LIST && l->len <= 4) { /* four sizes below 2**12 cannot exceed 2**48 elements */
    const qn_value *item = l->items;
    int n = (int)l->len, i = 0;
    for (; i < n && item[i].head == TAG_INT && (uint64_t)item[i].u.i < 1 << 12; i++) shape[i] = item[i].u.i;
    *rank = n;
    if (i == n) return true;
  }
  return odd_shape(vm, fn, rest, shape, rank);
}

/* ---- ops ------------------------------------------------------------------------------------------------------- */

qn_value use1(qn_vm *vm, op_id op, qn_value x, const op_attr *attr) {
  return value_is_error(x) ? x : used(vm, x, op_apply(vm, op, &x, 1, attr));
}

qn_value use2(qn_vm *vm, op_id op, qn_value x, qn_value y, const op_attr *attr) {
  qn_value in[2] = {x, y}, out = value_error();
  if (!value_is_error(x) && !value_is_error(y)) out = op_apply(vm, op, in, 2, attr);
  value_release(vm, x);
  value_release(vm, y);
  return out;
}

qn_value use3(qn_vm *vm, op_id op, qn_value x, qn_value y, qn_value z, const op_attr *attr) {
  qn_value in[3] = {x, y, z}, out = value_error();
  if (!value_is_error(x) && !value_is_error(y) && !value_is_error(z)) out = op_apply(vm, op, in, 3, attr);
  for (int i = 0; i < 3; i++) value_release(vm, in[i]);
  return out;
}

qn_value to_dtype(qn_vm *vm, qn_value x, qn_dtype dtype) {
  return value_is_scalar(x) ? interp_convert_number(vm, dtype, x) : op_cast(vm, x, dtype);
}

qn_value use_dtype(qn_vm *vm, qn_value x, qn_dtype dtype) {
  return value_is_error(x) ? x : used(vm, x, to_dtype(vm, x, dtype));
}

qn_value use_shape(qn_vm *vm, qn_value x, int rank, const int64_t *shape) {
  return value_is_error(x) ? x : used(vm, x, op_reshape(vm, x, rank, shape));
}

qn_value use_broadcast(qn_vm *vm, qn_value x, int rank, const int64_t *shape) {
  return value_is_error(x) ? x : used(vm, x, op_broadcast(vm, x, rank, shape));
}

qn_value use_permute(qn_vm *vm, qn_value x, const int *order) {
  return value_is_error(x) ? x : used(vm, x, op_permute(vm, x, order));
}

qn_value use_move_axis(qn_vm *vm, qn_value x, int from, int to) {
  if (value_is_error(x)) return x;
  int order[ARRAY_MAX_RANK], rank = value_array(x)->rank;
  for (int i = 0, k = 0; i < rank; i++) {
    if (i == to) {
      order[i] = from;
    } else {
      if (k == from) k++;
      order[i] = k++;
    }
  }
  return use_permute(vm, x, order);
}

qn_value use_concat(qn_vm *vm, qn_value *parts, int n, int axis) {
  qn_value out = op_concat(vm, parts, n, axis);
  for (int i = 0; i < n; i++) value_release(vm, parts[i]);
  return out;
}

/* The dtype of an array that holds all these values: what they promote to or, if all are host numbers, bool, i64 or f32. */
static qn_dtype common_dtype(const qn_value *items, uint32_t n) {
  operand_type t = value_operand_type(items[0]);
  for (uint32_t i = 1; i < n; i++) {
    operand_type o = value_operand_type(items[i]);
    if (o.dtype != t.dtype || o.weak != t.weak) t = dtype_promote(t, o);
  }
  return t.weak ? dtype_of_weak(t.dtype) : t.dtype;
}

/* Are all items arrays that have one dtype and one shape? */
static bool all_alike(const qn_value *items, uint32_t n) {
  const qn_array *first = value_array(items[0]);
  if (!is_array(items[0])) return false;
  for (uint32_t i = 1; i < n; i++) {
    const qn_array *a = value_array(items[i]);
    if (!is_array(items[i]) || a->dtype != first->dtype || a->rank != first->rank) return false;
    for (int k = 0; k < first->rank; k++)
      if (a->shape[k] != first->shape[k]) return false;
  }
  return true;
}

static bool shapes_agree(qn_vm *vm, const char *fn, const qn_value *items, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    if (!is_array(items[i]) && !value_is_scalar(items[i])) return arg_wrong(vm, fn, "arrays and numbers", items[i]);
    const qn_array *a = is_array(items[i]) ? value_array(items[i]) : NULL;
    const qn_array *first = is_array(items[0]) ? value_array(items[0]) : NULL;
    if (a && first ? shape_equal(a, first) : !(a && a->rank) && !(first && first->rank)) continue;
    return raise_false(vm, E_ragged, "%s: items 0 and %u differ in shape: %s and %s", fn, i, phrase_kind(items[0]).text,
                       phrase_kind(items[i]).text);
  }
  return true;
}

qn_value stack_values(qn_vm *vm, const char *fn, const qn_value *items, uint32_t n, int64_t axis, qn_dtype dtype) {
  if (n == 0) return raise_error(vm, E_argument, SPAN_NONE, "%s: nothing to stack", fn);
  bool alike = all_alike(items, n);
  if (!alike && !shapes_agree(vm, fn, items, n)) return value_error();
  const qn_array *first = is_array(items[0]) ? value_array(items[0]) : NULL;
  int rank = first ? first->rank : 0, at;
  if (rank == ARRAY_MAX_RANK)
    return raise_error(vm, E_rank, SPAN_NONE, "%s: an array has at most %d axes", fn, ARRAY_MAX_RANK);
  if (!axis_of(vm, fn, axis, rank + 1, &at)) return value_error();
  if (dtype == QN_DTYPE_COUNT) dtype = alike ? (qn_dtype)first->dtype : common_dtype(items, n);
  if (n > INT32_MAX) return raise_error(vm, E_too_large, SPAN_NONE, "%s: too many items", fn);
  if (alike || rank) return op_stack(vm, items, (int)n, at, dtype);
  /* Each number is converted by itself, because one that the dtype does not hold is an error that names it. */
  qn_value *parts = mem_alloc(vm, n * sizeof *parts), out = value_error();
  if (!parts) return out;
  uint32_t made = 0;
  for (; made < n; made++) {
    parts[made] = to_dtype(vm, items[made], dtype);
    if (value_is_error(parts[made])) break;
  }
  if (made == n) out = op_stack(vm, parts, (int)n, at, dtype);
  while (made) value_release(vm, parts[--made]);
  mem_free(vm, parts, n * sizeof *parts);
  return out;
}

/* A new array of host numbers, stored one after the other. Unset, without an error, if an item is something else or is traced, or if a
 * conversion may fail or has to round to an integer: then each item is converted by itself. */
static qn_value array_of_numbers(qn_vm *vm, const qn_value *items, uint32_t n, qn_dtype dtype) {
  for (uint32_t i = 0; i < n; i++)
    if (!value_is_scalar(items[i]) || value_node(items[i])) return value_unset();
  if (dtype == QN_DTYPE_COUNT) dtype = common_dtype(items, n);
  for (uint32_t i = 0; i < n; i++)
    if ((value_is(items[i], TAG_FLOAT) && !dtype_is_float(dtype)) || !dtype_holds(dtype, items[i]))
      return value_unset();
  int64_t shape = n;
  qn_array *a = array_new(vm, dtype, 1, &shape);
  if (!a) return value_error();
  char *p = array_data(a);
  for (uint32_t i = 0; i < n; i++) dtype_store(dtype, p + i * dtype_size(dtype), items[i]);
  qn_value out = value_new(TAG_ARRAY, array_settle(vm, a));
  return value_is_error(out) || rec_const(vm, value_array(out)) ? out : value_fail(vm, out);
}

static qn_value array_nested(qn_vm *vm, const char *fn, qn_value v, qn_dtype dtype, int depth) {
  if (is_array(v) || value_is_scalar(v)) return value_retain(v);
  if (value_is(v, TAG_RANGE)) {
    const qn_range *r = value_range(v);
    return op_steps(vm, range_length(r), r->start, r->step);
  }
  if (!value_is(v, TAG_LIST)) return arg_refuse(vm, fn, "an array, a number or a list of these", v);
  if (depth == ARRAY_MAX_RANK)
    return raise_error(vm, E_rank, SPAN_NONE, "%s: lists nest deeper than the %d axes of an array", fn, ARRAY_MAX_RANK);
  const qn_list *l = value_list(v);
  if (l->len == 0) {
    int64_t none = 0;
    return op_full(vm, value_float(0), DTYPE_FLOAT, 1, &none);
  }
  qn_value out = array_of_numbers(vm, l->items, l->len, dtype);
  if (!value_is(out, TAG_UNSET)) return out;
  qn_value *parts = mem_alloc(vm, l->len * sizeof *parts);
  if (!parts) return value_error();
  uint32_t made = 0;
  for (; made < l->len; made++) {
    parts[made] = array_nested(vm, fn, l->items[made], dtype, depth + 1);
    if (value_is_error(parts[made])) break;
  }
  out = made == l->len ? stack_values(vm, fn, parts, made, 0, dtype) : value_error();
  while (made) value_release(vm, parts[--made]);
  mem_free(vm, parts, l->len * sizeof *parts);
  return out;
}

qn_value arg_array(qn_vm *vm, const char *fn, qn_value v, qn_dtype dtype) {
  bool given = dtype != QN_DTYPE_COUNT;
  if (is_array(v)) return given ? to_dtype(vm, v, dtype) : value_retain(v);
  if (value_is_scalar(v)) return to_dtype(vm, v, given ? dtype : dtype_of_number(v));
  qn_value out = array_nested(vm, fn, v, dtype, 0);
  return given ? use_dtype(vm, out, dtype) : out;
}

qn_value array_of_ints(qn_vm *vm, const int64_t *items, int n) {
  qn_value values[ARRAY_MAX_RANK];
  for (int i = 0; i < n; i++) values[i] = value_int(items[i]);
  return array_of_numbers(vm, values, (uint32_t)n, DTYPE_INDEX);
}

/* ---- iteration ---------------------------------------------------------------------------------------------------- */

bool sequence_of(qn_vm *vm, const char *fn, qn_value v, sequence *s) {
  *s = (sequence){.v = v};
  if (value_is_stacked(v)) {
    if (!rec_length_seen(vm, stacked_lead(v))) return false;
    s->n = value_array(stacked_lead(v))->shape[0];
    return true;
  }
  switch ((int)value_tag_of(v)) {
  case TAG_LIST: s->n = value_list(v)->len; return true;
  case TAG_RANGE: s->n = range_length(value_range(v)); return true;
  case TAG_STR: s->n = str_length(value_str(v)); return true;
  case TAG_ARRAY:
    if (value_array(v)->rank > 0) {
      if (!rec_length_seen(vm, v)) return false;
      s->n = value_array(v)->shape[0];
      return true;
    }
  }
  if (value_is(v, TAG_RECORD))
    return raise_false(vm, E_not_iterable, "%s: a record has no order of its own; use items(r), keys(r) or values(r)",
                       fn);
  return raise_false(vm, E_not_iterable, "%s: expected a list, range, text or array of rank 1 or more, not %s", fn,
                     is_array(v) ? "an array of rank 0" : value_kind_name(v));
}

qn_value sequence_item(qn_vm *vm, sequence *s, int64_t i) {
  if (vm_poll_item(vm, i)) return value_error();
  switch ((int)value_tag_of(s->v)) {
  case TAG_LIST:
    if (value_is_stacked(s->v)) return rec_stacked_item(vm, s->v, value_int(i));
    return value_retain(value_list(s->v)->items[i]);
  case TAG_RANGE: return value_int(range_item(value_range(s->v), i));
  case TAG_ARRAY: return op_index_row(vm, s->v, i);
  default: {
    uint32_t code;
    const char *p = value_str(s->v)->text + s->at;
    int n = utf8_decode(p, &code);
    s->at += n;
    return new_str(vm, p, (size_t)n);
  }
  }
}

/* ---- values ---------------------------------------------------------------------------------------------------------- */

qn_value use_pair(qn_vm *vm, qn_value a, qn_value b) {
  qn_list *l = value_is_error(a) || value_is_error(b) ? NULL : list_new(vm, 2);
  if (!l) {
    value_release(vm, a);
    return value_fail(vm, b);
  }
  l->items[0] = a;
  l->items[1] = b;
  return value_obj(TAG_LIST, l);
}

enum {
  PART_SHORT = 32,       /* longest part that is looked for by its first byte */
  SEARCH_BYTES = 1 << 20 /* bytes searched between two polls; of a long part four times its length */
};

bool text_search(qn_vm *vm, const char *text, size_t len, const char *part, size_t part_len, const char **found) {
  *found = part_len ? NULL : text;
  if (part_len == 0) return true;
  const char *end = text + len;
  if (part_len > PART_SHORT) {
    size_t most = part_len - 1 + (part_len > SEARCH_BYTES / 4 ? 4 * part_len : SEARCH_BYTES);
    while (!*found && (size_t)(end - text) >= part_len) {
      size_t n = (size_t)(end - text) < most ? (size_t)(end - text) : most;
      if (vm_poll(vm)) return false;
      *found = memmem(text, n, part, part_len);
      text += n - part_len + 1;
    }
    return true;
  }
  for (int64_t i = 0; (size_t)(end - text) >= part_len; i++) {
    if (!(text = memchr(text, part[0], (size_t)(end - text) - part_len + 1))) return true;
    if (memcmp(text, part, part_len) == 0) {
      *found = text;
      return true;
    }
    text++;
    if (vm_poll_item(vm, i)) return false;
  }
  return true;
}
