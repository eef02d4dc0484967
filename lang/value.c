/* What holds for all kinds of values: freeing, equality, names of kinds; ranges and functions.
 *
 * Freeing walks containers without a stack of its own. A container whose count fell to 0 counts its remaining items down
 * in that same word. Descending into an item leaves the item's slot unused, so it keeps the way back (the container above),
 * and depth costs no memory.
 */
#include <string.h>

#include "lang/internal.h"

const char *value_kind_name(qn_value v) {
  static const char *const names[] = {
      [TAG_NIL] = "nil",     [TAG_BOOL] = "bool",     [TAG_INT] = "int",       [TAG_FLOAT] = "float",
      [TAG_DTYPE] = "dtype", [TAG_DEVICE] = "device", [TAG_ERROR] = "error",   [TAG_UNSET] = "unset",
      [TAG_STR] = "str",     [TAG_LIST] = "list",     [TAG_RECORD] = "record", [TAG_ARRAY] = "array",
      [TAG_FN] = "fn",       [TAG_RANGE] = "range",   [TAG_MODULE] = "module", [TAG_SIGNAL] = "signal"};
  value_tag t = value_tag_of(v);
  if (t == TAG_FN && value_fn(v)->head.flags == FN_GRAPH) return "graph";
  return t < sizeof names / sizeof *names && names[t] ? names[t] : "value";
}

/* ---- freeing ------------------------------------------------------------------------------------------------- */

qn_value *value_parts(obj_head *o, uint32_t *n) {
  switch (o->tag) {
  case TAG_LIST: *n = ((qn_list *)o)->len; return ((qn_list *)o)->items;
  case TAG_RECORD: *n = ((qn_record *)o)->len; return ((qn_record *)o)->items;
  case TAG_FN: *n = ((qn_fn *)o)->ncaptures; return ((qn_fn *)o)->captures;
  default: *n = 0; return NULL;
  }
}

/* Frees an object whose items have been released. */
static void object_free(qn_vm *vm, obj_head *o) {
  switch (o->tag) {
  case TAG_STR: str_free(vm, (qn_str *)o); break;
  case TAG_ARRAY: array_free(vm, (qn_array *)o); break;
  case TAG_LIST: {
    qn_list *l = (qn_list *)o;
    mem_free(vm, l->items, l->cap * sizeof(qn_value));
    mem_free(vm, l, sizeof *l);
    break;
  }
  case TAG_RECORD: {
    qn_record *r = (qn_record *)o;
    mem_free(vm, r->items, r->cap * sizeof(qn_value));
    layout_release(vm, r->layout);
    mem_free(vm, r, sizeof *r);
    break;
  }
  case TAG_FN: {
    qn_fn *f = (qn_fn *)o;
    bool shares = f->head.flags == FN_GRAPH || (f->head.flags == FN_USER && !vm->closing && f->stand != FN_BARE);
    if (shares && --((fn_shared *)f->code)->refs == 0 && f->head.flags == FN_GRAPH) vm->hooks.free_graph(vm, f->code);
    mem_free(vm, f, sizeof *f + f->ncaptures * sizeof(qn_value));
    break;
  }
  case TAG_RANGE: mem_free(vm, o, sizeof(qn_range)); break;
  case TAG_MODULE: {
    qn_module *m = (qn_module *)o;
    if (m->name) value_release(vm, value_obj(TAG_STR, m->name));
    mem_free(vm, m, sizeof *m);
    break;
  }
  }
}

static __attribute__((noinline)) void container_free(qn_vm *vm, obj_head *o) {
  obj_head *parent = NULL;
  uint32_t n;
  qn_value *items = value_parts(o, &n);
  o->refs = n;
  for (;;) {
    while (o->refs) {
      qn_value *slot = &items[--o->refs];
      if (!value_is_heap(*slot)) continue;
      obj_head *item = slot->u.p;
      if (--item->refs) continue;
      qn_value *below = value_parts(item, &n);
      if (!n) {
        object_free(vm, item);
        continue;
      }
      slot->u.p = parent;
      parent = o;
      o = item;
      items = below;
      o->refs = n;
    }
    object_free(vm, o);
    if (!parent) return;
    o = parent;
    items = value_parts(o, &n);
    parent = items[o->refs].u.p;
  }
}

void value_free(qn_vm *vm, qn_value v) {
  obj_head *o = v.u.p;
  if (o->tag == TAG_ARRAY)
    array_free(vm, (qn_array *)o);
  else
    container_free(vm, o);
}

/* ---- equality ------------------------------------------------------------------------------------------------ */

int number_order(int64_t i, double f) {
  if (f != f) return ORDER_NONE;
  if (f >= 0x1p63) return -1;
  if (f < -0x1p63) return 1;
  int64_t whole = (int64_t)f; /* cut towards zero; the lost fraction decides if the integers are equal */
  if (i != whole) return i < whole ? -1 : 1;
  return ((double)whole > f) - ((double)whole < f);
}

static bool range_equal(const qn_range *a, const qn_range *b) {
  int64_t n = range_length(a);
  if (n != range_length(b)) return false;
  return n == 0 || (a->start == b->start && (n == 1 || a->step == b->step));
}

/* Elements of two contiguous arrays of one dtype and size. Floats compare as IEEE says: NaN is unequal to all. */
static bool elements_equal(qn_dtype d, const void *a, const void *b, int64_t n) {
  if (!dtype_is_float(d)) return n == 0 || memcmp(a, b, (size_t)n * dtype_size(d)) == 0;
  size_t size = dtype_size(d);
  bool equal = true;
  for (int64_t i = 0; i < n && equal; i++)
    equal = size == 4   ? ((const float *)a)[i] == ((const float *)b)[i]
            : size == 8 ? ((const double *)a)[i] == ((const double *)b)[i]
                        : dtype_load(d, (const char *)a + (size_t)i * size).u.f ==
                              dtype_load(d, (const char *)b + (size_t)i * size).u.f;
  return equal;
}

static int array_equal(qn_vm *vm, qn_array *a, qn_array *b) {
  if (a->dtype != b->dtype || !shape_equal(a, b)) return 0;
  qn_array *x = array_to_cpu(vm, a);
  if (!x) return -1;
  qn_array *y = array_to_cpu(vm, b);
  int equal = y ? elements_equal(x->dtype, array_data(x), array_data(y), x->size) : -1;
  array_drop(vm, x);
  array_drop(vm, y);
  return equal;
}

/* A pair of containers being compared: item i of `a` is next. */
typedef struct equal_pair {
  qn_value a, b; /* borrowed */
  uint32_t i, n;
} equal_pair;

typedef struct equal_walk {
  equal_pair *pairs;
  uint32_t n, cap;
  uint32_t seen; /* pairs so far; after PLACES_LOOK of them, those that have been compared are remembered */
  shared_parts parts;
} equal_walk;

static bool equal_push(qn_vm *vm, equal_walk *w, qn_value a, qn_value b, uint32_t n) {
  if (w->seen < PLACES_LOOK) {
    w->seen++;
  } else {
    if (shared_equal(&w->parts, a, b)) return true;
    if (!shared_join(vm, &w->parts, a, b)) return false;
  }
  if (!mem_grow(vm, (void **)&w->pairs, &w->cap, (size_t)w->n + 1, sizeof *w->pairs)) return false;
  w->pairs[w->n++] = (equal_pair){a, b, 0, n};
  return true;
}

/* Compares two values, except for their items: if these must be compared the pair is pushed on the walk. 1, 0, or -1 with an error raised. */
static int equal_step(qn_vm *vm, equal_walk *w, qn_value a, qn_value b) {
  value_tag s = value_tag_of(a), t = value_tag_of(b);
  if (s != t) {
    if (s == TAG_INT && t == TAG_FLOAT) return number_order(a.u.i, b.u.f) == 0;
    if (s == TAG_FLOAT && t == TAG_INT) return number_order(b.u.i, a.u.f) == 0;
    return 0;
  }
  switch (s) {
  case TAG_NIL: return 1;
  case TAG_BOOL:
  case TAG_INT:
  case TAG_DTYPE:
  case TAG_DEVICE: return a.u.i == b.u.i;
  case TAG_FLOAT: return a.u.f == b.u.f;
  case TAG_STR: return str_equal(value_str(a), value_str(b));
  case TAG_RANGE: return range_equal(value_range(a), value_range(b));
  case TAG_ARRAY: return array_equal(vm, value_array(a), value_array(b));
  case TAG_LIST:
  case TAG_RECORD: {
    uint32_t n, others;
    (void)value_parts(a.u.p, &n);
    (void)value_parts(b.u.p, &others);
    if (n != others) return 0;
    if (n && !equal_push(vm, w, a, b, n)) return -1;
    return 1;
  }
  case TAG_FN: return vm->rec && vm->hooks.same_fn ? vm->hooks.same_fn(vm, a, b) : fn_same(a, b);
  default: return a.u.p == b.u.p;
  }
}

int value_equal(qn_vm *vm, qn_value a, qn_value b) {
  equal_walk w = {0};
  int equal = equal_step(vm, &w, a, b);
  while (equal == 1 && w.n) {
    equal_pair *p = &w.pairs[w.n - 1];
    if (p->i == p->n) {
      w.n--;
      continue;
    }
    uint32_t i = p->i++;
    if (vm_poll(vm)) {
      equal = -1;
    } else if (value_is(p->a, TAG_LIST)) {
      equal = equal_step(vm, &w, value_list(p->a)->items[i], value_list(p->b)->items[i]);
    } else {
      const qn_record *x = value_record(p->a), *y = value_record(p->b);
      int j = x->layout == y->layout ? (int)i : record_find(y, record_name(x, i));
      equal = j < 0 ? 0 : equal_step(vm, &w, x->items[i], y->items[j]);
    }
  }
  mem_free(vm, w.pairs, w.cap * sizeof *w.pairs);
  if (w.parts.nslots) shared_free(vm, &w.parts);
  return equal;
}

/* ---- ranges and functions ------------------------------------------------------------------------------------ */

qn_range *range_new(qn_vm *vm, int64_t start, int64_t stop, int64_t step) {
  if (step == 0) return raise_nothing(vm, E_argument, SPAN_NONE, "a range's step cannot be 0");
  qn_range *r = mem_alloc(vm, sizeof *r);
  if (r) *r = (qn_range){{.refs = 1, .tag = TAG_RANGE}, start, stop, step};
  return r;
}

qn_range *range_slice(qn_vm *vm, const qn_range *r, int64_t first, int64_t n, int64_t step) {
  if (n == 0) return range_new(vm, r->start, r->start, r->step);
  int64_t by = r->step, stop, last = range_item(r, first + (n - 1) * step);
  bool fits = n == 1 || !__builtin_mul_overflow(r->step, step, &by);
  /* The end may be anything between the last item and the one that would follow. */
  if (fits && __builtin_add_overflow(last, by, &stop)) {
    stop = by > 0 ? INT64_MAX : INT64_MIN;
    fits = stop != last;
  }
  if (fits) return range_new(vm, range_item(r, first), stop, by);
  return raise_nothing(vm, E_overflow, SPAN_NONE, "the end or step of this part of a range does not fit 64 bits");
}

/* Clamped to INT64_MAX: the whole range of integers in steps of 1 has one item more. */
int64_t range_length(const qn_range *r) {
  if (r->step > 0 ? r->start >= r->stop : r->start <= r->stop) return 0;
  uint64_t span = r->step > 0 ? (uint64_t)r->stop - (uint64_t)r->start : (uint64_t)r->start - (uint64_t)r->stop;
  uint64_t step = r->step > 0 ? (uint64_t)r->step : -(uint64_t)r->step;
  uint64_t n = (span - 1) / step + 1;
  return n > INT64_MAX ? INT64_MAX : (int64_t)n;
}

void fn_renew(qn_vm *vm, qn_fn *f) { f->id = ++vm->last_fn; }

void fn_make_bare(qn_fn *f) {
  f->stand = FN_BARE;
  ((fn_shared *)f->code)->refs--;
}

qn_fn *fn_like(qn_vm *vm, const qn_fn *from) {
  qn_fn *f = fn_new(vm, (fn_kind)from->head.flags, from->code, from->ncaptures);
  if (!f) return NULL;
  f->head.aux = from->head.aux;
  f->id = from->id;
  return f;
}

qn_fn *fn_new(qn_vm *vm, fn_kind kind, void *code, uint32_t ncaptures) {
  qn_fn *f = mem_alloc(vm, sizeof *f + ncaptures * sizeof(qn_value));
  if (!f) return NULL;
  f->head = (obj_head){.refs = 1, .tag = TAG_FN, .flags = (uint8_t)kind};
  f->ncaptures = ncaptures;
  f->stand = 0;
  fn_renew(vm, f);
  f->code = code;
  if (kind == FN_GRAPH || kind == FN_USER) ((fn_shared *)code)->refs++;
  for (uint32_t i = 0; i < ncaptures; i++) f->captures[i] = value_nil();
  return f;
}
