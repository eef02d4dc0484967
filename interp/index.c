/* Indices as they are written: their items, from values or from the nodes that are to be evaluated, and what they read from lists, strings
 * and ranges. Of arrays the items go through the door (jit/run/index.h).
 */
#include <string.h>

#include "interp/node.h"

/* ---- items ---------------------------------------------------------------------------------------------------------- */

static bool is_int_array(qn_value v) { return value_is(v, TAG_ARRAY) && dtype_is_int((qn_dtype)value_array(v)->dtype); }

/* A value that differs between lanes of a vmap may have its kind from an arm that no lane takes (of 1.5 and 0 it is made of floats). So that it
 * is no index is not known: what is known is that it would have to be read in one lane. False with that error raised. */
static bool kind_is_known(qn_vm *vm, qn_value v) {
  if (!rec_is_lane(vm, v)) return true;
  qn_value number = value_nil();
  return value_is(v, TAG_ARRAY) ? array_item(vm, value_array(v), 0, &number) : !value_is_error(rec_observe(vm, v));
}

bool index_int(qn_vm *vm, qn_value v, const char *what, int64_t *out) {
  if (value_is(v, TAG_INT)) {
    v = rec_observe(vm, v);
    if (value_is_error(v)) return false;
    *out = v.u.i;
    return true;
  }
  if (is_int_array(v) && value_array(v)->rank == 0) {
    qn_value number;
    if (!array_item(vm, value_array(v), 0, &number)) return false;
    *out = number.u.i;
    return true;
  }
  if (!kind_is_known(vm, v)) return false;
  text_buf t = {.vm = vm};
  text_addf(&t, "%s is ", what);
  text_kind(&t, v);
  text_adds(&t, ", not an int");
  bool range = strstr(what, "range") != NULL;
  if (value_is(v, TAG_FLOAT))
    text_adds(&t, "; int(x) and a // b give ints");
  else if (value_is(v, TAG_NIL) && !range)
    text_adds(&t, "; find gives nil where nothing is found; a new axis is written new: x[:, new], a whole one x[:]");
  else if (value_is(v, TAG_LIST) && !range)
    text_adds(&t, "; several items are taken by an array, x[[0, 2]], one item along several axes by x[0, 2]");
  else if (is_int_array(v) && !range)
    text_adds(&t, "; index arrays pick from arrays: of a list map((0, 2), fn(i) xs[i])");
  else if (value_is(v, TAG_STR) && range)
    text_adds(&t, "; strings are joined by +");
  raise_text(vm, E_index_kind, SPAN_NONE, &t);
  return false;
}

bool index_item_of(qn_vm *vm, qn_value v, bool host, index_item *out) {
  *out = (index_item){.kind = INDEX_INT, .start = v.u.i};
  if (v.head == TAG_INT) return true;
  if (value_is(v, TAG_RANGE)) {
    const qn_range *r = value_range(v);
    *out = (index_item){.kind = INDEX_SLICE, .has_start = true, .has_stop = true};
    out->start = r->start, out->stop = r->stop, out->step = r->step;
    return true;
  }
  bool array = value_is(v, TAG_ARRAY), mask = array && dtype_is_bool(value_array(v)->dtype);
  if (!host && (array ? mask || is_int_array(v) : value_is(v, TAG_INT) && rec_index_stays(vm, v))) {
    *out = (index_item){.kind = INDEX_ARRAY, .array = v};
    return true;
  }
  if (!array || is_int_array(v)) return index_int(vm, v, "the index", &out->start);
  if (!kind_is_known(vm, v)) return false;
  text_buf t = {.vm = vm};
  text_kind(&t, v);
  text_adds(
      &t,
      !host  ? " is not an index; indices are integers or bools"
      : mask ? " is no index of a list or text: a mask picks from arrays; of a list filter(xs, fn(v) v > 0) keeps items"
             : " is no index of a list or text, which is an int or a slice");
  raise_text(vm, E_index_kind, SPAN_NONE, &t);
  return false;
}

/* The int that one part of a slice is; *has: false if the part is nil, which stands for an absent one. Where an array is sliced (`size` is not
 * NULL) it may be a size, then *size is true. False with an error raised. */
static inline bool slice_int(qn_vm *vm, qn_value v, const char *what, bool *has, bool *size, int64_t *out) {
  *has = v.head != TAG_NIL;
  *out = v.u.i;
  if (size) *size = false;
  if (v.head == TAG_NIL || v.head == TAG_INT) return true;
  if (size && rec_bound_waits(vm, v)) { /* an array that is an int, of which a plan may read what it is */
    v = rec_host_number(vm, v, WEAK_INT);
    if (value_is_error(v)) return false;
  }
  return size && value_is(v, TAG_INT) ? rec_bound(vm, v, size, out) : index_int(vm, v, what, out);
}

static bool slice_of(qn_vm *vm, const qn_value parts[3], bool host, index_item *out) {
  bool stepped;
  out->kind = INDEX_SLICE;
  out->size_start = out->size_stop = false;
  if (!slice_int(vm, parts[0], "a slice's start", &out->has_start, host ? NULL : &out->size_start, &out->start) ||
      !slice_int(vm, parts[1], "a slice's stop", &out->has_stop, host ? NULL : &out->size_stop, &out->stop) ||
      !slice_int(vm, parts[2], "a slice's step", &stepped, NULL, &out->step))
    return false;
  if (!stepped) out->step = 1;
  if (out->step) return true;
  raise_error(vm, E_index_kind, SPAN_NONE, "a slice's step cannot be 0");
  return false;
}

bool index_items_of(qn_vm *vm, node *const *items, uint32_t n, const qn_value *values, bool host, index_item *out) {
  for (uint32_t i = 0; i < n; i++, out++) {
    uint8_t kind = items[i]->kind;
    if (kind == N_SLICE) {
      if (!slice_of(vm, values, host, out)) return false;
      values += 3;
    } else if (kind == N_ELLIPSIS || kind == N_NEW) {
      out->kind = kind == N_NEW ? INDEX_NEW : INDEX_ELLIPSIS;
    } else if (!index_item_of(vm, *values++, host, out)) {
      return false;
    }
  }
  return true;
}

bool index_items_tried(qn_vm *vm, qn_value x, node *const *items, uint32_t n, const qn_value *values, index_item *out) {
  if (!index_items_of(vm, items, n, values, false, out)) return false;
  const struct recording *made_in = rec_now(vm);
  if (!rec_try_index(vm, x, out, (int)n)) return false;
  return rec_now(vm) == made_in || index_items_of(vm, items, n, values, false, out);
}

/* ---- from nodes ------------------------------------------------------------------------------------------------------------ */

/* The value of a constant or a variable in an index, borrowed; unset for all other nodes, which must be evaluated. */
static inline qn_value value_here(const node *a, const qn_value *fp) {
  if (a->kind == N_CONST) return ((const n_const *)a)->v;
  if (a->kind == N_LOCAL) return fp[a->slot];
  return a->kind == N_GLOBAL ? ((const n_global *)a)->cell->value : value_unset();
}

/* The int that one part of a slice is without being evaluated; *has: false if there is no such part. False: it must be evaluated, or is no int. */
static inline bool int_here(const node *a, const qn_value *fp, bool *has, int64_t *out) {
  *has = a != NULL;
  if (!a) return true;
  qn_value v = value_here(a, fp);
  *out = v.u.i;
  return v.head == TAG_INT;
}

bool index_items_here(const qn_vm *vm, node *const *items, uint32_t n, const qn_value *fp, index_item *out) {
  if (rec_hears_globals(vm) || n > INDEX_READ) return false;
  for (node *const *end = items + n; items < end; items++, out++) {
    const node *item = *items;
    if (item->kind == N_SLICE) {
      const n_slice *s = (const n_slice *)item;
      bool stepped;
      out->kind = INDEX_SLICE;
      out->size_start = out->size_stop = false;
      out->step = 1;
      if (!int_here(s->start, fp, &out->has_start, &out->start) || !int_here(s->stop, fp, &out->has_stop, &out->stop) ||
          !int_here(s->step, fp, &stepped, &out->step) || out->step == 0)
        return false;
    } else if (item->kind == N_ELLIPSIS || item->kind == N_NEW) {
      out->kind = item->kind == N_NEW ? INDEX_NEW : INDEX_ELLIPSIS;
    } else {
      qn_value v = value_here(item, fp);
      if (v.head == TAG_INT) {
        out->kind = INDEX_INT;
        out->start = v.u.i;
      } else if (v.head == TAG_ARRAY && (dtype_is_bool(value_array(v)->dtype) || is_int_array(v))) {
        out->kind = INDEX_ARRAY;
        out->array = v;
      } else {
        return false;
      }
    }
  }
  return true;
}

bool index_values_push(qn_vm *vm, node *const *items, uint32_t n, qn_value *fp, qn_value *stopped) {
  qn_value *mark = vm->sp;
  if (!vm_enter(vm, 3 * (size_t)n)) {
    *stopped = value_error();
    return false;
  }
  for (uint32_t i = 0; i < n; i++) {
    node *item = items[i];
    if (item->kind == N_ELLIPSIS || item->kind == N_NEW) continue;
    const n_slice *s = item->kind == N_SLICE ? (const n_slice *)item : NULL;
    node *parts[3] = {s ? s->start : item, s ? s->stop : NULL, s ? s->step : NULL};
    for (int k = 0; k < (s ? 3 : 1); k++) {
      qn_value v = parts[k] ? eval(vm, parts[k], fp) : value_nil();
      if (value_stops(v)) {
        vm_pop_to(vm, mark);
        *stopped = v;
        return false;
      }
      *vm->sp++ = v;
    }
  }
  return true;
}

/* ---- positions ----------------------------------------------------------------------------------------------------------- */

bool index_position(qn_vm *vm, int64_t i, int64_t n, const char *what, int64_t *out) {
  *out = i < 0 ? i + n : i;
  if (*out >= 0 && *out < n) return true;
  if (strcmp(what, "list") != 0)
    raise_error(vm, E_index, SPAN_NONE, "index %lld is out of bounds for a %s of %lld", (long long)i, what,
                (long long)n);
  else if (i == n)
    raise_error(vm, E_index, SPAN_NONE, WORDS_LIST_NEXT, (long long)i, (long long)n);
  else
    raise_error(vm, E_index, SPAN_NONE, WORDS_LIST, (long long)i, (long long)n);
  return false;
}

/* ---- what they read -------------------------------------------------------------------------------------------------------------- */

static qn_value list_get(qn_vm *vm, const qn_list *l, const index_item *item) {
  int64_t at, count;
  if (item->kind == INDEX_INT) {
    if (!index_position(vm, item->start, l->len, "list", &at)) return value_error();
    return value_retain(l->items[at]);
  }
  index_clip(item, l->len, &at, &count);
  qn_list *r = list_new(vm, (size_t)count);
  if (!r) return value_error();
  for (int64_t i = 0; i < count; i++) {
    r->items[i] = value_retain(l->items[at + i * item->step]);
    if (!vm_poll_item(vm, i)) continue;
    value_release(vm, value_obj(TAG_LIST, r));
    return value_error();
  }
  return value_obj(TAG_LIST, r);
}

static qn_value str_get(qn_vm *vm, const qn_str *s, const index_item *item) {
  int64_t n = str_length(s), at, count;
  if (item->kind == INDEX_INT) {
    if (!index_position(vm, item->start, n, "string", &at)) return value_error();
    uint32_t from = (uint32_t)str_offset(s, at), to = from + 1;
    while (to < s->len && ((unsigned char)s->text[to] & 0xc0) == 0x80) to++;
    qn_str *r = str_new(vm, s->text + from, to - from);
    return r ? value_obj(TAG_STR, r) : value_error();
  }
  index_clip(item, n, &at, &count);
  if (item->step == 1 || count == 0) {
    size_t from = str_offset(s, count ? at : 0), to = str_offset(s, count ? at + count : 0);
    qn_str *r = str_new(vm, s->text + from, to - from);
    return r ? value_obj(TAG_STR, r) : value_error();
  }
  /* Steps other than 1 look up each code point in a table of all offsets, so that long texts take linear time. */
  uint32_t *offsets = mem_alloc(vm, (size_t)(n + 1) * sizeof *offsets);
  if (!offsets) return value_error();
  uint32_t byte = 0;
  for (int64_t i = 0; i < n; i++) {
    if (vm_poll_item(vm, i)) {
      mem_free(vm, offsets, (size_t)(n + 1) * sizeof *offsets);
      return value_error();
    }
    offsets[i] = byte++;
    while (byte < s->len && ((unsigned char)s->text[byte] & 0xc0) == 0x80) byte++;
  }
  offsets[n] = s->len;
  text_buf t = {.vm = vm};
  bool stop = false;
  for (int64_t i = 0; i < count && !stop && !t.failed; i++) {
    int64_t k = at + i * item->step;
    text_add(&t, s->text + offsets[k], offsets[k + 1] - offsets[k]);
    stop = vm_poll_item(vm, i);
  }
  mem_free(vm, offsets, (size_t)(n + 1) * sizeof *offsets);
  if (!stop) return text_take(&t);
  text_free(&t);
  return value_error();
}

static qn_value range_get(qn_vm *vm, const qn_range *r, const index_item *item) {
  int64_t n = range_length(r), at, count;
  if (item->kind == INDEX_INT) {
    if (!index_position(vm, item->start, n, "range", &at)) return value_error();
    return value_int(range_item(r, at));
  }
  index_clip(item, n, &at, &count);
  qn_range *out = range_slice(vm, r, at, count, item->step);
  return out ? value_obj(TAG_RANGE, out) : value_error();
}

static qn_value fail_index(qn_vm *vm, qn_value x, int n) {
  text_buf t = {.vm = vm};
  text_kind(&t, x);
  bool indexed = value_is(x, TAG_LIST) || value_is(x, TAG_STR) || value_is(x, TAG_RANGE);
  text_adds(&t, !indexed ? " cannot be indexed" : n == 1 ? " cannot be indexed like this" : " takes one index");
  return raise_text(vm, E_index_kind, SPAN_NONE, &t);
}

qn_value index_get(qn_vm *vm, qn_value x, const index_item *items, int n) {
  if (value_is(x, TAG_ARRAY)) return op_index(vm, x, items, n);
  bool one = n == 1 && (items->kind == INDEX_INT || items->kind == INDEX_SLICE);
  if (one && value_is(x, TAG_LIST)) return list_get(vm, value_list(x), items);
  if (one && value_is(x, TAG_STR)) return rec_look(vm, x) ? str_get(vm, value_str(x), items) : value_error();
  if (one && value_is(x, TAG_RANGE)) return range_get(vm, value_range(x), items);
  return fail_index(vm, x, n);
}
