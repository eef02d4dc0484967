/* Array indexing (jit/run/index.h). Items are first turned into an op_part, whether they are read, stored to or combined; it is then carried
 * out in one of three ways. Short ways for one element, and for few that one index array names, make no op_part.
 *
 *   by strides   a part without index arrays of an array that has its data is one strided view: it is read as that view, or as a copy
 *                where it is small, and stored to by a copy into it
 *   by offsets   index arrays and masks that name few places in the CPU's memory: lists of offsets (jit/run/eager_index.h)
 *   by ops       all else, and whatever is recorded: slice and reshape for the part without its index arrays, then the axes that these
 *                govern in front (permute), and index, or compress for a single mask; a mask beside other index arrays is its
 *                coordinates (nonzero). Stores run the same way backwards: scatter, or where for a mask that takes a single value, then
 *                slice_put.
 */
#include "jit/run/index.h"

#include <string.h>

#include "jit/run/eager.h"
#include "jit/run/eager_index.h"
#include "jit/graph/dim.h"
#include "jit/trace/rec.h"

/* ---- items ---------------------------------------------------------------------------------------------------------------- */

static inline int64_t bound(int64_t v, int64_t size, int64_t lo, int64_t hi) {
  if (v < 0) v += size;
  return v < lo ? lo : v > hi ? hi : v;
}

static inline void clip(const index_item *s, int64_t size, int64_t *start, int64_t *count) {
  int64_t from = 0, to = size;
  if (__builtin_expect(s->step == 1, 1)) {
    if (s->has_start) from = bound(s->start, size, 0, size);
    if (s->has_stop) to = bound(s->stop, size, 0, size);
    *start = from;
    *count = to > from ? to - from : 0;
    return;
  }
  bool up = s->step > 0;
  int64_t lo = up ? 0 : -1, hi = up ? size : size - 1;
  if (!up) from = size - 1, to = -1;
  if (s->has_start) from = bound(s->start, size, lo, hi);
  if (s->has_stop) to = bound(s->stop, size, lo, hi);
  uint64_t way = up ? (uint64_t)to - (uint64_t)from : (uint64_t)from - (uint64_t)to;
  uint64_t each = up ? (uint64_t)s->step : 0 - (uint64_t)s->step;
  *start = from;
  *count = (up ? to <= from : from <= to) ? 0 : (int64_t)((way - 1) / each + 1);
}

void index_clip(const index_item *slice, int64_t size, int64_t *start, int64_t *count) {
  clip(slice, size, start, count);
}

static bool is_mask(qn_value v) { return value_is(v, TAG_ARRAY) && value_array(v)->dtype == DTYPE_TEST; }

/* How many axes of the array an item stands for; ... is not counted. */
static int axes_of(const index_item *item) {
  if (item->kind == INDEX_ARRAY && is_mask(item->array)) return value_array(item->array)->rank;
  return item->kind != INDEX_ELLIPSIS && item->kind != INDEX_NEW;
}

/* ---- the part that they name ---------------------------------------------------------------------------------------------- */

/* Does x have enough axes for the items, and is there one ... at most? Called when anything else is wrong with an index, since this error comes
 * before all others. False with the error raised. */
static __attribute__((cold, noinline)) bool fits_count(qn_vm *vm, const qn_array *x, const index_item *items, int n) {
  int used = 0, ellipses = 0;
  for (int i = 0; i < n; i++) {
    used += axes_of(&items[i]);
    ellipses += items[i].kind == INDEX_ELLIPSIS;
  }
  if (used > x->rank)
    raise_error(vm, E_index_kind, SPAN_NONE, "an array of rank %d takes at most %d ind%s, not %d", x->rank, x->rank,
                x->rank == 1 ? "ex" : "ices", used);
  else if (ellipses > 1)
    raise_error(vm, E_index_kind, SPAN_NONE, "an index has at most one ...");
  return used <= x->rank && ellipses <= 1;
}

static __attribute__((cold, noinline)) bool fail_rank(qn_vm *vm) {
  raise_error(vm, E_rank, SPAN_NONE, "the result would have more than %d axes", ARRAY_MAX_RANK);
  return false;
}

static __attribute__((cold, noinline)) bool fail_element(qn_vm *vm, const qn_array *x, int axis, int64_t i) {
  raise_error(vm, E_index, SPAN_NONE, WORDS_BOUNDS, (long long)i, axis, (long long)x->shape[axis]);
  return false;
}

/* Does a mask fit the array's axes from `axis` on? */
static bool mask_fits(const qn_array *x, int axis, const qn_array *mask) {
  bool fits = mask->rank > 0;
  for (int k = 0; k < mask->rank; k++) fits &= mask->shape[k] == x->shape[axis + k];
  return fits;
}

static __attribute__((cold, noinline)) bool fail_mask(qn_vm *vm, const qn_array *x, int axis, const qn_array *mask) {
  int k = 0;
  while (k < mask->rank && mask->shape[k] == x->shape[axis + k]) k++;
  if (mask->rank == 0)
    raise_error(vm, E_index_kind, SPAN_NONE, "a bool without axes is not an index; where(c, a, b) chooses");
  else
    raise_error(vm, E_index, SPAN_NONE, "the mask has size %lld along axis %d, where the array has %lld",
                (long long)mask->shape[k], axis + k, (long long)x->shape[axis + k]);
  return false;
}

/* The position that a bound, a plain number or (`symbolic`) a size, stands for on an axis of size d, clipped to it: *to, a size. False: that it
 * depends on more than the order of sizes is possible. */
static bool clip_bound(qn_vm *vm, int64_t v, bool symbolic, int64_t d, int64_t *to) {
  dim_table *t = rec_dims(vm);
  bool positive = symbolic ? rec_size_certain(vm, 0, v) : v >= 0;
  if (symbolic && !positive && !rec_size_certain(vm, dim_add(t, v, 1), 0)) {
    positive = rec_size_hint(vm, v) >= 0;
    if (!(positive ? rec_size_ordered(vm, 0, v) : rec_size_ordered(vm, dim_add(t, v, 1), 0))) return false;
  }
  if (positive) {
    *to = rec_size_certain(vm, v, d) ? v : dim_make(t, DIM_MIN, v, d);
    return true;
  }
  qn_dim at = symbolic ? dim_add(t, d, v) : dim_sub(t, d, v < -INT64_MAX ? INT64_MAX : -v);
  *to = rec_size_certain(vm, 0, at) ? at : dim_make(t, DIM_MAX, at, 0);
  return true;
}

/* What clip gives, as sizes, where a bound or the array's size is one, in particular where it is made of numbers of a turn. False with an error
 * raised: it cannot be said. */
static __attribute__((noinline)) bool clip_numbers(qn_vm *vm, const index_item *s, int64_t d, int64_t *start,
                                                   int64_t *count) {
  dim_table *t = rec_dims(vm);
  const int64_t most = (int64_t)1 << 62; /* longer than any axis: larger steps give the same count */
  int64_t from = 0, to = d, each = s->step >= most || s->step <= -most ? most : s->step > 0 ? s->step : -s->step;
  bool known = s->step > 0 || (!s->has_start && !s->has_stop); /* of slices that go down only whole axes */
  if (known && s->has_start) known = clip_bound(vm, s->start, s->size_start, d, &from);
  if (known && s->has_stop) known = clip_bound(vm, s->stop, s->size_stop, d, &to);
  if (!known) return rec_unknown_size(vm);
  int64_t way = dim_sub(t, to, from);
  if (from < 0 && to == d && (s->size_start || s->start >= 0) && from == dim_make(t, DIM_MIN, s->start, d))
    way = dim_sub(t, d, s->start); /* so that it is as long without the first as without the last elements */
  if (way < 0 && !rec_size_certain(vm, 0, way)) way = dim_make(t, DIM_MAX, way, 0);
  if (s->step < 0) from = dim_sub(t, d, 1);
  if (from < 0 && !rec_size_certain(vm, 0, from)) from = dim_make(t, DIM_MAX, from, 0);
  *start = from;
  *count = each == 1 ? way : dim_make(t, DIM_FLOORDIV, dim_add(t, way, each - 1), each);
  return true;
}

/* As clip_numbers, of a slice of no element or of one in this call, where no size is a number of a turn: that there are so many becomes a fact, not
 * what the bounds are. False: it cannot be said so. */
static bool clip_few(qn_vm *vm, const index_item *s, int64_t d, int64_t *start, int64_t count) {
  dim_table *t = rec_dims(vm);
  int64_t from = 0, to = d, known;
  if (s->has_start && !clip_bound(vm, s->start, s->size_start, d, &from)) return false;
  if (s->has_stop && !clip_bound(vm, s->stop, s->size_stop, d, &to)) return false;
  int64_t way = dim_sub(t, to, from);
  if (!count && !rec_size_ordered(vm, to, from)) return false;
  if (count && !dim_is_const(t, way, &known)) dim_assume(t, way, DIM_EQ, count);
  *start = count ? from : 0;
  return true;
}

/* What clip gives, where the array's size is symbolic: as sizes, if facts about the size can say which elements these are (`size`: what it is
 * in this call), else as numbers, and the size is guarded. */
static __attribute__((noinline)) void clip_symbolic(qn_vm *vm, const index_item *s, int64_t d, int64_t *start,
                                                    int64_t *count) {
  dim_table *t = rec_dims(vm);
  int64_t size = rec_size_hint(vm, d), ends[2] = {s->start, s->stop}, from = s->step > 0 ? 0 : dim_sub(t, d, 1), to = d;
  clip(s, size, start, count);
  bool known = *count >= 2 && !(s->step < 0 && s->has_stop);
  for (int i = 0; i < 2 && known; i++) {
    if (!(i ? s->has_stop : s->has_start)) continue;
    int64_t v = ends[i];
    known = v < 0 ? -v <= size : v <= size - (s->step < 0);
    if (!known) break;
    /* 0 <= d + v, or v <= d: what the bound means does not depend on the size then */
    if (v < 0)
      dim_assume(t, -v, DIM_LE, d);
    else
      dim_assume(t, v, s->step < 0 ? DIM_LT : DIM_LE, d);
    v = v < 0 ? dim_sub(t, d, -v) : v;
    if (i)
      to = v;
    else
      from = v;
  }
  if (!known) {
    bool sized = !dim_is_late(t, d) && (*count < 2 ? s->step == 1 && clip_few(vm, s, d, start, *count)
                                                   : s->step > 0 && clip_numbers(vm, s, d, start, count));
    if (!sized) (void)rec_size_now(vm, d);
    return;
  }
  *start = from;
  int64_t way = s->step > 0 ? dim_sub(t, to, from) : dim_add(t, from, 1), each = s->step > 0 ? s->step : -s->step;
  *count = each == 1 ? way : dim_add(t, dim_make(t, DIM_FLOORDIV, dim_sub(t, way, 1), each), 1);
}

/* What clip gives where a bound is made of sizes of arrays, and neither is a number of a turn: as sizes, or as numbers, and then they are guarded.
 * False with an error raised. */
static __attribute__((noinline)) bool clip_sizes(qn_vm *vm, const index_item *s, int64_t d, int64_t *start,
                                                 int64_t *count) {
  const dim_table *t = rec_dims(vm);
  index_item now = *s;
  if (s->size_start) now.start = rec_size_hint(vm, s->start);
  if (s->size_stop) now.stop = rec_size_hint(vm, s->stop);
  clip(&now, rec_size_hint(vm, d), start, count);
  if (*count >= 2 && s->step > 0 && !dim_is_late(t, d)) return clip_numbers(vm, s, d, start, count);
  if (s->step == 1 && !dim_is_late(t, d) && clip_few(vm, s, d, start, *count)) return true;
  if (s->size_start) (void)rec_size_now(vm, s->start);
  if (s->size_stop) (void)rec_size_now(vm, s->stop);
  now.size_start = now.size_stop = false;
  if (d < 0) clip_symbolic(vm, &now, d, start, count);
  return true;
}

/* How far the walk over the items has come: the next axis of the array, and of the pick. */
typedef struct walk {
  int axis, rank;
  const int64_t *sizes; /* of the array, as ops take them */
  bool deferred;
} walk;

/* The next axis of the array gives `count` elements, `step` apart, as the pick's next axis. */
static inline void keep_axis(const qn_array *x, walk *w, int64_t start, int64_t count, int64_t step, op_part *p) {
  int axis = w->axis++, k = w->rank++;
  int64_t stride = x->strides[axis];
  p->start[axis] = start, p->size[axis] = count, p->step[axis] = step;
  p->from[k] = (int8_t)axis;
  p->pick.shape[k] = count;
  p->pick.strides[k] = stride * step;
  if (!w->deferred || start > 0) p->pick.offset += start * stride; /* a symbolic start has no place yet */
}

/* The next axis of the array is governed by an index array. */
static inline void govern_axis(const qn_array *x, walk *w, op_part *p) {
  int axis = w->axis++, k = p->governed++;
  int64_t size = w->sizes[axis];
  p->start[axis] = 0, p->size[axis] = size, p->step[axis] = 1;
  p->pick.size[k] = size;
  p->pick.stride[k] = x->strides[axis];
  p->axis[k] = (int8_t)axis;
  p->before[k] = (int8_t)w->rank;
}

/* Something is wrong with a part, whose items have been gone through so far as p says, or with what is stored there. Traced numbers among these are
 * only looked at when a graph runs, but are reported before it: appends an op that does so. False with an error raised. */
static __attribute__((cold, noinline)) bool check_numbers(qn_vm *vm, qn_value array, const op_part *p) {
  index_item items[ARRAY_MAX_RANK];
  int rank = value_array(array)->rank;
  bool any = false;
  for (int i = 0; i < rank; i++) items[i] = (index_item){.kind = INDEX_SLICE, .step = 1};
  for (int k = 0, axis = 0; k < p->pick.n; axis += axes_of(p->by[k++])) {
    if (value_is(p->by[k]->array, TAG_ARRAY) && value_array(p->by[k]->array)->rank) continue;
    index_item *number = &items[p->axis[axis]];
    *number = *p->by[k];
    if (!op_deferred(vm) && !value_is(number->array, TAG_ARRAY)) /* the recording has ended */
      *number = (index_item){.kind = INDEX_INT, .start = number->array.u.i};
    any = true;
  }
  qn_value checked = any ? op_index(vm, array, items, rank) : value_nil();
  value_release(vm, checked);
  return !value_is_error(checked);
}

/* An error is pending that a part, which was made in a recording, does not fit. If it is none of a kind that is reported before a traced number
 * out of bounds, appends a check of such numbers. */
static __attribute__((cold, noinline)) void numbers_first(qn_vm *vm, qn_value array, const op_part *p) {
  if (!vm->error || (vm->error->id != E_broadcast && vm->error->id != E_rank)) return;
  qn_error_object *e = error_take(vm);
  if (check_numbers(vm, array, p))
    error_put_back(vm, e);
  else
    error_free(vm, e);
}

/* How many axes ... stands for, where `axes` of the array are left and `n` other items follow. -1: there are too few axes for those, or
 * another one is among them. */
static __attribute__((noinline)) int axes_between(int axes, const index_item *items, int n) {
  for (int i = 0; i < n; i++) {
    if (items[i].kind == INDEX_ELLIPSIS) return -1;
    axes -= axes_of(&items[i]);
  }
  return axes < 0 ? -1 : axes;
}

/* op_part_of; `deferred`: deferred, known where this is inlined, since outside of recordings no size is symbolic. */
static inline __attribute__((always_inline)) bool part_of(qn_vm *vm, qn_value array, const index_item *items, int n,
                                                          op_part *p, bool deferred) {
  qn_array *x = value_array(array);
  if (__builtin_expect(!x->storage, 0) && !deferred && !array_force(vm, x)) return false;
  uint32_t apart = 0; /* bits of the items that are integers, index arrays and masks */
  walk w = {.axis = 0, .rank = 0, .sizes = x->shape, .deferred = deferred};
  int64_t sizes[ARRAY_MAX_RANK];
  p->pick.n = p->governed = 0;
  p->pick.offset = x->offset;
  p->here = true;
  p->deferred = p->by_ops = deferred;
  if (deferred) {
    rec_read_sizes(vm, array, sizes);
    w.sizes = sizes;
    p->symbolic = p->apart = false;
  }
  for (int i = 0; i < n; i++) {
    const index_item *item = &items[i];
    int64_t at = item->start, count;
    if (item->kind == INDEX_ARRAY) {
      qn_array *by = value_is(item->array, TAG_ARRAY) ? value_array(item->array) : NULL;
      bool mask = by && dtype_is_bool(by->dtype);
      int axes = mask ? by->rank : 1;
      if (w.axis + axes > x->rank) return fits_count(vm, x, items, n);
      if (mask && !mask_fits(x, w.axis, by))
        return fits_count(vm, x, items, n) && (!deferred || check_numbers(vm, array, p)) &&
               fail_mask(vm, x, w.axis, by);
      if (deferred && !by && w.sizes[w.axis] >= 0 && rec_index_known(vm, item->array)) {
        int64_t known = item->array.u.i; /* a node that ran would name an axis of what has been permuted for it */
        if ((uint64_t)(known < 0 ? known + x->shape[w.axis] : known) >= (uint64_t)x->shape[w.axis])
          return fits_count(vm, x, items, n) && check_numbers(vm, array, p) && fail_element(vm, x, w.axis, known);
      }
      if (mask || !by || by->rank || deferred) {
        int k = p->pick.n++;
        if (k == 0) p->pick.lead = w.rank;
        p->pick.index[k] = by;
        p->by[k] = item;
        if (by && !eager_here(by)) p->here = false;
        for (govern_axis(x, &w, p); axes > 1; axes--) govern_axis(x, &w, p);
        apart |= 1u << i;
        continue;
      }
      qn_value number;
      if (!array_item(vm, by, 0, &number)) return false;
      at = number.u.i;
    }
    if (item->kind == INDEX_SLICE) {
      if (w.axis == x->rank) return fits_count(vm, x, items, n);
      if (deferred && (item->has_start || item->has_stop || item->step != 1)) p->apart |= rec_is_derived(vm);
      if (deferred && (item->size_start || item->size_stop || rec_is_number(vm, w.sizes[w.axis]))) {
        bool numbers = rec_is_number(vm, w.sizes[w.axis]) || (item->size_start && rec_is_number(vm, item->start)) ||
                       (item->size_stop && rec_is_number(vm, item->stop));
        if (!(numbers ? clip_numbers : clip_sizes)(vm, item, w.sizes[w.axis], &at, &count)) return false;
      } else if (!deferred || w.sizes[w.axis] >= 0)
        clip(item, x->shape[w.axis], &at, &count);
      else
        clip_symbolic(vm, item, w.sizes[w.axis], &at, &count);
      keep_axis(x, &w, count ? at : 0, count, count > 1 || (deferred && count < 0) ? item->step : 1, p);
    } else if (item->kind == INDEX_NEW) {
      p->from[w.rank] = -1;
      p->pick.strides[w.rank] = 0;
      p->pick.shape[w.rank++] = 1;
      if (w.rank + p->governed > ARRAY_MAX_RANK) return fits_count(vm, x, items, n) && fail_rank(vm);
    } else if (item->kind == INDEX_ELLIPSIS) {
      count = axes_between(x->rank - w.axis, &items[i + 1], n - i - 1);
      if (count < 0) return fits_count(vm, x, items, n);
      for (; count > 0; count--) keep_axis(x, &w, 0, w.sizes[w.axis], 1, p);
    } else {
      if (w.axis == x->rank) return fits_count(vm, x, items, n);
      count = at < 0 ? at + x->shape[w.axis] : at;
      if (deferred && rec_is_number(vm, w.sizes[w.axis])) {
        if (at < -INT64_MAX || at == INT64_MAX || !rec_size_ordered(vm, at < 0 ? -at : at + 1, w.sizes[w.axis]))
          return rec_unknown_size(vm);
      } else if (__builtin_expect((uint64_t)count >= (uint64_t)x->shape[w.axis], 0))
        return fits_count(vm, x, items, n) && (!deferred || check_numbers(vm, array, p)) &&
               fail_element(vm, x, w.axis, at);
      if (deferred && w.sizes[w.axis] < 0) {
        dim_table *t = rec_dims(vm);
        dim_assume(t, at < 0 ? -at : at + 1, DIM_LE, w.sizes[w.axis]); /* it is in bounds */
        if (at < 0) count = dim_sub(t, w.sizes[w.axis], -at);
      }
      p->start[w.axis] = count, p->size[w.axis] = p->step[w.axis] = 1;
      if (!deferred || count > 0) p->pick.offset += count * x->strides[w.axis];
      w.axis++;
      apart |= 1u << i;
    }
  }
  while (w.axis < x->rank) keep_axis(x, &w, 0, w.sizes[w.axis], 1, p);
  if (w.rank + p->governed > ARRAY_MAX_RANK) return fail_rank(vm);
  p->pick.rank = w.rank;
  for (int i = 0; deferred && i < x->rank; i++) {
    p->symbolic |= p->start[i] < 0 || p->size[i] < 0;
    p->start_now[i] = rec_size_hint(vm, p->start[i]);
    p->size_now[i] = rec_size_hint(vm, p->size[i]);
  }
  /* Joint axes stay in place if the index arrays are neighbours, integers among them; else they lead. */
  if (p->pick.n && (apart & (apart + (apart & -apart)))) p->pick.lead = 0;
  return true;
}

static __attribute__((noinline)) bool part_of_deferred(qn_vm *vm, qn_value array, const index_item *items, int n,
                                                       op_part *p) {
  return part_of(vm, array, items, n, p, true);
}

bool op_part_of(qn_vm *vm, qn_value array, const index_item *items, int n, op_part *p) {
  if (__builtin_expect(op_deferred(vm), 0)) return part_of_deferred(vm, array, items, n, p);
  return part_of(vm, array, items, n, p, false);
}

/* Brings the part's layout in line with x, a copy of the array that it was made for, with other strides perhaps. */
static void part_moved(const qn_array *x, op_part *p) {
  p->pick.offset = x->offset;
  for (int i = 0; i < x->rank; i++) p->pick.offset += p->start[i] * x->strides[i];
  for (int i = 0; i < p->pick.rank; i++)
    if (p->from[i] >= 0) p->pick.strides[i] = x->strides[p->from[i]] * p->step[p->from[i]];
  for (int k = 0; k < p->governed; k++) p->pick.stride[k] = x->strides[p->axis[k]];
}

/* part_follow for a part that was made in a recording which has ended. */
static __attribute__((noinline, cold)) void part_no_longer_deferred(const qn_array *x, op_part *p) {
  for (int i = 0; i < x->rank && p->symbolic; i++) p->start[i] = p->start_now[i], p->size[i] = p->size_now[i];
  for (int i = 0; i < p->pick.rank && p->symbolic; i++)
    if (p->from[i] >= 0) p->pick.shape[i] = p->size[p->from[i]];
  for (int k = 0; k < p->governed && p->symbolic; k++) p->pick.size[k] = p->size[p->axis[k]];
  p->symbolic = false;
  part_moved(x, p);
  p->deferred = false;
}
/* To be called before the pick is used to read or store where the elements lie. */
static inline void part_follow(const qn_vm *vm, const qn_array *x, op_part *p) {
  if (__builtin_expect(p->deferred, 0) && !op_deferred(vm)) part_no_longer_deferred(x, p);
}

/* Is the part the whole array, with its axes in their order? The array has its data. */
static bool part_is_all(const qn_array *x, const op_part *p) {
  if (p->pick.rank != x->rank || p->pick.offset != x->offset) return false;
  for (int i = 0; i < p->pick.rank; i++)
    if (p->pick.shape[i] != x->shape[i] || (p->pick.strides[i] != x->strides[i] && x->shape[i] > 1)) return false;
  return true;
}

bool op_part_repeats(const op_part *p) {
  for (int i = 0; i < p->pick.n; i++)
    if (!is_mask(p->by[i]->array) && value_is(p->by[i]->array, TAG_ARRAY) && value_array(p->by[i]->array)->rank > 0)
      return true;
  return false;
}

/* Are the array and its index arrays in the CPU's memory? */
static inline bool all_here(const qn_array *x, const op_part *p) { return p->here && eager_here(x); }

/* ---- orders of axes --------------------------------------------------------------------------------------------------------- */

/* Below, the governed axes come first. Sets `order` so that permuting the part, as the array has it, by `order` gives that layout. */
static void governed_first(const op_part *p, int order[ARRAY_MAX_RANK]) {
  for (int k = 0; k < p->governed; k++) order[k] = p->before[k] + k;
  for (int i = 0, k = 0; i < p->pick.rank; i++) {
    while (k < p->governed && p->before[k] <= i) k++;
    order[p->governed + i] = i + k;
  }
}

/* How what OP_index gives ([joint..., rest...]) becomes the result: axis order[i] becomes axis i. */
static void joint_in_place(const op_part *p, int joint, int rank, int order[ARRAY_MAX_RANK]) {
  for (int i = 0; i < rank; i++)
    order[i] = i < p->pick.lead ? joint + i : i < p->pick.lead + joint ? i - p->pick.lead : i;
}

static void invert_order(const int *order, int rank, int inverse[ARRAY_MAX_RANK]) {
  for (int i = 0; i < rank; i++) inverse[order[i]] = i;
}

/* Ops of the door that take their array over; an error value is handed on. */
static qn_value reshape_take(qn_vm *vm, qn_value x, int rank, const int64_t *shape) {
  qn_value out = value_is_error(x) ? x : op_reshape(vm, x, rank, shape);
  value_release(vm, x);
  return out;
}

static qn_value permute_take(qn_vm *vm, qn_value x, const int *order) {
  qn_value out = value_is_error(x) ? x : op_permute(vm, x, order);
  value_release(vm, x);
  return out;
}

/* ---- the part without its index arrays ---------------------------------------------------------------------------------------- */

/* The part without its index arrays is the array, then a slice of it if is_sliced, then reshaped if is_reshaped (axes come or go), and last
 * permuted. */
static bool is_sliced(qn_vm *vm, qn_value array, const op_part *p) {
  int64_t sizes[ARRAY_MAX_RANK];
  if (p->by_ops && p->apart) return true;
  rec_sizes(vm, array, sizes);
  for (int i = 0; i < value_array(array)->rank; i++)
    if (p->start[i] || p->step[i] != 1 || p->size[i] != sizes[i]) return true;
  return false;
}
static bool is_reshaped(const qn_array *x, const op_part *p) {
  bool changed = p->pick.rank + p->governed != x->rank;
  for (int i = 0; i < p->pick.rank; i++) changed |= p->from[i] < 0;
  return changed;
}

static void slice_attr(const op_part *p, int rank, op_attr *attr) {
  memset(attr, 0, sizeof *attr);
  attr->n = (uint8_t)(3 * rank);
  for (int i = 0; i < rank; i++) {
    attr->d[3 * i] = p->start[i];
    attr->d[3 * i + 1] = p->size[i];
    attr->d[3 * i + 2] = p->step[i];
  }
}

/* The shape and the strides of that part in an array that has its data, governed axes in front. Returns its rank. */
static int base_layout(const qn_array *x, const op_part *p, int64_t shape[ARRAY_MAX_RANK],
                       int64_t strides[ARRAY_MAX_RANK]) {
  for (int k = 0; k < p->governed; k++) {
    shape[k] = p->size[p->axis[k]];
    strides[k] = x->strides[p->axis[k]];
  }
  memcpy(shape + p->governed, p->pick.shape, (size_t)p->pick.rank * sizeof *shape);
  memcpy(strides + p->governed, p->pick.strides, (size_t)p->pick.rank * sizeof *strides);
  return p->governed + p->pick.rank;
}

static __attribute__((noinline)) qn_value base_get(qn_vm *vm, qn_value x, op_part *p) {
  int order[ARRAY_MAX_RANK];
  int64_t shape[ARRAY_MAX_RANK], strides[ARRAY_MAX_RANK], written[ARRAY_MAX_RANK];
  qn_array *a = value_array(x);
  part_follow(vm, a, p);
  int rank = base_layout(a, p, shape, strides);
  if (!op_deferred(vm)) {
    qn_array *part = array_part(vm, a, rank, shape, strides, p->pick.offset);
    return part ? value_obj(TAG_ARRAY, part) : value_error();
  }
  qn_value out;
  if (is_sliced(vm, x, p)) {
    op_attr attr;
    slice_attr(p, a->rank, &attr);
    out = op_apply(vm, OP_slice, &x, 1, &attr);
  } else {
    out = value_retain(x);
  }
  governed_first(p, order);
  for (int i = 0; i < rank; i++) written[order[i]] = shape[i];
  if (is_reshaped(a, p)) out = reshape_take(vm, out, rank, written);
  return permute_take(vm, out, order);
}

/* Stores `v` (taken over), an array of x's dtype and of the shape that base_layout gives, in that part of *x. False with an error raised. */
static bool base_put(qn_vm *vm, qn_value *x, op_part *p, qn_value v) {
  if (value_is_error(v)) return false;
  int order[ARRAY_MAX_RANK], inverse[ARRAY_MAX_RANK], rank = p->governed + p->pick.rank;
  if (!op_deferred(vm)) {
    bool ok = array_force(vm, value_array(v)) && array_own(vm, x);
    if (ok) {
      const qn_array *a = value_array(*x);
      int64_t strides[ARRAY_MAX_RANK], shape[ARRAY_MAX_RANK];
      part_follow(vm, a, p);
      part_moved(a, p);
      base_layout(a, p, shape, strides);
      qn_array *to = array_view(vm, a, (qn_dtype)a->dtype, rank, shape, strides, p->pick.offset);
      ok = to && array_copy_on(vm, to, value_array(v));
      if (to) value_release(vm, value_obj(TAG_ARRAY, to));
    }
    value_release(vm, v);
    return ok;
  }
  const qn_array *a = value_array(*x);
  governed_first(p, order);
  invert_order(order, rank, inverse);
  v = permute_take(vm, v, inverse);
  if (is_sliced(vm, *x, p) || is_reshaped(a, p)) {
    v = reshape_take(vm, v, a->rank, p->size);
    if (value_is_error(v)) return false;
    op_attr attr;
    slice_attr(p, a->rank, &attr);
    qn_value in[2] = {*x, v}, out = op_apply(vm, OP_slice_put, in, 2, &attr);
    value_release(vm, v);
    v = out;
  }
  if (value_is_error(v)) return false;
  value_release(vm, *x);
  *x = v;
  return true;
}

/* ---- index arrays and masks ---------------------------------------------------------------------------------------------------- */

typedef struct operands {
  qn_value v[1 + 2 * ARRAY_MAX_RANK + 1];
  int n;
} operands;

static void operands_release(qn_vm *vm, operands *o) {
  for (int i = 0; i < o->n; i++) value_release(vm, o->v[i]);
  o->n = 0;
}

/* Appends the part's index arrays to the operands; a mask becomes one array of coordinates for each of its axes. False with an error raised. */
static bool add_index_arrays(qn_vm *vm, const op_part *p, operands *o) {
  for (int i = 0; i < p->pick.n; i++) {
    if (!is_mask(p->by[i]->array)) {
      o->v[o->n++] = value_retain(p->by[i]->array);
      continue;
    }
    qn_value where = op_apply(vm, OP_nonzero, &p->by[i]->array, 1, NULL);
    if (value_is_error(where)) return false;
    int64_t count = value_array(where)->shape[0];
    bool ok = true;
    for (int k = 0; ok && k < value_array(p->by[i]->array)->rank; k++) {
      qn_value column = reshape_take(vm, op_slice(vm, where, 1, k, 1, 1), 1, &count);
      ok = !value_is_error(column);
      if (ok) o->v[o->n++] = column;
    }
    value_release(vm, where);
    if (!ok) return false;
  }
  return true;
}

/* How many axes the index arrays from operand `first` on have together. */
static int joint_rank(const operands *o, int first) {
  int rank = 0;
  for (int i = first; i < o->n; i++) {
    int r = value_is(o->v[i], TAG_ARRAY) ? value_array(o->v[i])->rank : 0;
    if (r > rank) rank = r;
  }
  return rank;
}

/* The shape of what OP_index would give: what the index arrays from operand `first` on broadcast to, of `joint` axes, and the axes that
 * none governs. */
static bool joint_shape(qn_vm *vm, const op_part *p, const operands *o, int first, int joint, int64_t *shape) {
  if (joint + p->pick.rank > ARRAY_MAX_RANK) return fail_rank(vm);
  for (int i = 0; i < joint; i++) shape[i] = 1;
  for (int k = first; k < o->n; k++) {
    if (!value_is(o->v[k], TAG_ARRAY)) continue;
    const qn_array *a = value_array(o->v[k]);
    int64_t sizes[ARRAY_MAX_RANK];
    rec_sizes(vm, o->v[k], sizes);
    for (int i = 0; i < a->rank; i++) {
      int64_t *at = &shape[joint - a->rank + i];
      if (*at == 1) {
        *at = sizes[i];
      } else if (sizes[i] != 1 && !rec_sizes_equal(vm, sizes[i], *at)) {
        raise_error(vm, E_broadcast, SPAN_NONE, "the index arrays do not broadcast together");
        return false;
      }
    }
  }
  for (int i = 0; i < p->pick.rank; i++) shape[joint + i] = p->pick.shape[i];
  return true;
}

static __attribute__((noinline)) qn_value get_by_ops(qn_vm *vm, qn_value x, op_part *p) {
  operands o = {.v = {base_get(vm, x, p)}, .n = 1};
  if (value_is_error(o.v[0])) return o.v[0];
  qn_value out = value_error();
  int joint = 1, order[ARRAY_MAX_RANK];
  if (p->pick.n == 1 && is_mask(p->by[0]->array)) {
    qn_value in[2] = {o.v[0], p->by[0]->array};
    out = op_apply(vm, OP_compress, in, 2, NULL);
  } else if (add_index_arrays(vm, p, &o)) {
    joint = joint_rank(&o, 1);
    op_attr attr = {.n = 1, .d = {o.n - 1}};
    if (joint + p->pick.rank <= ARRAY_MAX_RANK)
      out = op_apply(vm, OP_index, o.v, o.n, &attr);
    else
      (void)fail_rank(vm);
  }
  operands_release(vm, &o);
  if (value_is_error(out)) return out;
  joint_in_place(p, joint, value_array(out)->rank, order);
  return permute_take(vm, out, order);
}

/* ---- reading -------------------------------------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) qn_value get(qn_vm *vm, qn_value x, op_part *p) {
  const qn_array *a = value_array(x);
  part_follow(vm, a, p);
  if (p->pick.n) {
    qn_value few = p->by_ops || !all_here(a, p) ? value_unset() : eager_pick_apply(vm, a, &p->pick);
    return few.head != TAG_UNSET ? few : get_by_ops(vm, x, p);
  }
  if (op_deferred(vm)) return base_get(vm, x, p);
  if (part_is_all(a, p)) return value_retain(x);
  qn_array *part = array_part(vm, a, p->pick.rank, p->pick.shape, p->pick.strides, p->pick.offset);
  return part ? value_obj(TAG_ARRAY, part) : value_error();
}

/* get, for a part that was made in a recording. */
static __attribute__((noinline)) qn_value get_held(qn_vm *vm, qn_value x, op_part *p) {
  struct recording *held = rec_hold(vm);
  qn_value out = get(vm, x, p);
  if (value_is_error(out)) numbers_first(vm, x, p);
  if (rec_let_go(vm, held, !value_is_error(out))) return out;
  return value_is_error(out) ? out : value_fail(vm, out);
}

qn_value op_part_get(qn_vm *vm, qn_value x, op_part *p) {
  return __builtin_expect(p->by_ops, 0) ? get_held(vm, x, p) : get(vm, x, p);
}

/* Finds the element that one integer for each axis names, as an offset in the storage. False: the items are not that, or out of bounds. */
static inline bool element_of(const qn_array *x, const index_item *items, int n, int64_t *at) {
  if (n != x->rank) return false;
  *at = x->offset;
  for (int i = 0; i < n; i++) {
    int64_t k = items[i].start;
    if (items[i].kind != INDEX_INT) return false;
    if (k < 0) k += x->shape[i];
    if ((uint64_t)k >= (uint64_t)x->shape[i]) return false;
    *at += k * x->strides[i];
  }
  return true;
}

static __attribute__((noinline)) qn_value index_part(qn_vm *vm, qn_value x, const index_item *items, int n) {
  op_part part;
  if (!op_part_of(vm, x, items, n, &part)) return value_error();
  return __builtin_expect(part.by_ops, 0) ? get_held(vm, x, &part) : get(vm, x, &part);
}

/* op_index outside of recordings where the first item is an integer. If all are, the element is read without making a part. */
static __attribute__((noinline)) qn_value index_ints(qn_vm *vm, qn_value x, const index_item *items, int n) {
  const qn_array *a = value_array(x);
  int64_t at;
  if (!a->storage || !element_of(a, items, n, &at)) return index_part(vm, x, items, n);
  qn_array *element = array_part(vm, a, 0, NULL, NULL, at);
  return element ? value_obj(TAG_ARRAY, element) : value_error();
}

/* op_index outside of recordings by one index array or mask, without making a part if it names few elements. */
static __attribute__((noinline)) qn_value index_named(qn_vm *vm, qn_value x, const index_item *item) {
  qn_value few = eager_take(vm, value_array(x), value_array(item->array), 0);
  return few.head == TAG_UNSET ? index_part(vm, x, item, 1) : few;
}

qn_value op_index(qn_vm *vm, qn_value x, const index_item *items, int n) {
  if (op_deferred(vm)) return index_part(vm, x, items, n);
  if (items->kind == INDEX_INT) return index_ints(vm, x, items, n);
  if (items->kind == INDEX_ARRAY && n == 1) return index_named(vm, x, items);
  return index_part(vm, x, items, n);
}

qn_value op_index_row(qn_vm *vm, qn_value x, int64_t i) {
  const qn_array *a = value_array(x);
  if (!op_deferred(vm) && a->storage) {
    qn_array *row = array_part(vm, a, a->rank - 1, a->shape + 1, a->strides + 1, a->offset + i * a->strides[0]);
    return row ? value_obj(TAG_ARRAY, row) : value_error();
  }
  const index_item item = {.kind = INDEX_INT, .start = i};
  return op_index(vm, x, &item, 1);
}

/* ---- what is stored --------------------------------------------------------------------------------------------------------------- */

static qn_dtype dtype_of(qn_value v) {
  return value_is(v, TAG_ARRAY)  ? (qn_dtype)value_array(v)->dtype
         : value_is(v, TAG_BOOL) ? DTYPE_TEST
         : value_is(v, TAG_INT)  ? QN_i64
                                 : QN_f64;
}

/* Raises the error of storing v, any value for which eager_may_store does not hold, in x. Returns false. */
static __attribute__((noinline)) bool fail_store(qn_vm *vm, const qn_array *x, qn_value v) {
  bool array = value_is(v, TAG_ARRAY);
  error_id id = E_type;
  if (array && value_array(v)->device != x->device) {
    op_raise_devices(vm, op_rows[OP_slice_put].name, x->device, value_array(v)->device);
    return false;
  }
  text_buf t = {.vm = vm};
  text_kind(&t, v);
  if (!array && !value_is_scalar(v)) {
    text_adds(&t, " cannot be stored in an array");
    if (value_is(v, TAG_LIST)) text_adds(&t, "; array(xs) makes one of a list of numbers");
  } else if (eager_kind(dtype_of(v)) > eager_kind((qn_dtype)x->dtype)) {
    qn_dtype holds = array || !value_is(v, TAG_FLOAT) ? dtype_of(v) : QN_f32;
    text_addf(&t, " cannot be stored in an array of %s, which keeps its dtype; x = %s(x) makes one that can hold it",
              dtype_rows[x->dtype].name, dtype_rows[holds].name);
    id = E_dtype;
  } else {
    text_addf(&t, " does not fit %s", dtype_rows[x->dtype].name);
    id = E_weak_range;
  }
  raise_text(vm, id, SPAN_NONE, &t);
  return false;
}

/* v, for which eager_may_store holds, as an array of x's dtype on its device; owned. */
static qn_value as_dtype(qn_vm *vm, const qn_array *x, qn_value v) {
  const op_attr attr = {.dtype = x->dtype};
  if (value_is(v, TAG_ARRAY)) return op_cast(vm, v, (qn_dtype)x->dtype);
  if (rec_number(vm, v)) return op_apply(vm, OP_fit, &v, 1, &attr);
  qn_array *a = array_from_scalar(vm, (qn_dtype)x->dtype, (qn_value){.head = v.head & 0xff, .u = v.u});
  if (a && x->device) {
    qn_array *there = array_to_device(vm, a, x->device);
    value_release(vm, value_obj(TAG_ARRAY, a));
    a = there;
  }
  return a ? rec_literal(vm, a) : value_error();
}

/* Does v broadcast to a shape, leading axes of size 1 beyond its rank left out? False with an error raised. */
static bool check_broadcast(qn_vm *vm, const qn_array *v, int rank, const int64_t *symbolic) {
  bool fits = true;
  int64_t shape[ARRAY_MAX_RANK]; /* (op_broadcast sees to it that sizes which are equal now are so in each call) */
  for (int i = 0; i < rank; i++) shape[i] = rec_size_hint(vm, symbolic[i]);
  for (int i = 0; i < v->rank && fits; i++) {
    int at = rank - v->rank + i;
    fits = v->shape[i] == 1 || (at >= 0 && v->shape[i] == shape[at]);
  }
  if (fits) return true;
  text_buf t = {.vm = vm};
  text_shape(&t, (qn_dtype)v->dtype, v->rank, v->shape);
  text_adds(&t, " does not fit the place, which is ");
  text_shape(&t, (qn_dtype)v->dtype, rank, shape);
  raise_text(vm, E_broadcast, SPAN_NONE, &t);
  return false;
}

/* `v` (taken over) broadcast to a shape; the error value if it does not. */
static qn_value broadcast_take(qn_vm *vm, qn_value v, int rank, const int64_t *shape) {
  if (value_is_error(v)) return v;
  qn_value out = value_error();
  if (check_broadcast(vm, value_array(v), rank, shape)) {
    const qn_array *a = value_array(v);
    int64_t sizes[ARRAY_MAX_RANK];
    rec_sizes(vm, v, sizes);
    if (a->rank > rank) v = reshape_take(vm, v, rank, sizes + (a->rank - rank));
    if (!value_is_error(v)) out = op_broadcast(vm, v, rank, shape);
  }
  value_release(vm, v);
  return out;
}

/* `v` (taken over), which broadcasts to the part, as OP_index would give it: [joint..., rest...] of this shape. */
static qn_value joint_take(qn_vm *vm, qn_value v, const op_part *p, int joint, const int64_t *shape) {
  int order[ARRAY_MAX_RANK], inverse[ARRAY_MAX_RANK], rank = joint + p->pick.rank;
  int64_t placed[ARRAY_MAX_RANK];
  joint_in_place(p, joint, rank, order);
  for (int i = 0; i < rank; i++) placed[i] = shape[order[i]];
  invert_order(order, rank, inverse);
  return permute_take(vm, broadcast_take(vm, v, rank, placed), inverse);
}

bool op_detach(qn_vm *vm, const qn_array *x, qn_value *v) {
  if (!value_is(*v, TAG_ARRAY)) return true;
  qn_array *a = value_array(*v);
  if (op_deferred(vm) || !a->storage || a->head.refs != 1 || a->storage != x->storage) return true;
  qn_array *copy = array_duplicate(vm, a);
  if (!copy) return false;
  value_release(vm, *v);
  *v = value_obj(TAG_ARRAY, copy);
  return true;
}

/* ---- storing by strides and by offsets ----------------------------------------------------------------------------------------------- */

enum { FEW = 64 }; /* elements at most that are stored one by one */

/* Makes *x the only owner of its elements, by a copy if it is not, and keeps the part's layout right. False with an error raised. */
static inline bool own_part(qn_vm *vm, qn_value *x, op_part *p) {
  const qn_array *a = value_array(*x);
  if (!array_own(vm, x)) return false;
  if (value_array(*x) != a) part_moved(value_array(*x), p);
  return true;
}

/* Stores v, a number or an array of x's dtype, in a part without index arrays of at most FEW elements in the CPU's memory. False: it is not such a
 * case, and nothing is done; else *ok says whether it is stored or an error is raised. */
static bool put_few(qn_vm *vm, qn_value *x, op_part *p, qn_value v, bool *ok) {
  const qn_array *a = value_array(*x), *b = value_is(v, TAG_ARRAY) ? value_array(v) : NULL;
  int64_t from[ARRAY_MAX_RANK], elements = 1;
  if (!eager_here(a)) return false;
  part_follow(vm, a, p);
  if (b && (!eager_here(b) || b->dtype != a->dtype || b->rank > p->pick.rank)) return false;
  for (int i = p->pick.rank - 1, k = b ? b->rank - 1 : -1; i >= 0; i--, k--) {
    elements *= p->pick.shape[i];
    from[i] = k < 0 || b->shape[k] == 1 ? 0 : b->strides[k];
    if (k >= 0 && b->shape[k] != 1 && b->shape[k] != p->pick.shape[i]) return false;
  }
  if (elements > FEW) return false;
  *ok = own_part(vm, x, p);
  if (!*ok || elements == 0) return true;
  a = value_array(*x);
  size_t each = dtype_size((qn_dtype)a->dtype);
  char cell[8], *at = a->storage->data + p->pick.offset * (int64_t)each;
  v.head &= 0xff;
  if (!b) dtype_store((qn_dtype)a->dtype, cell, v);
  eager_copy_few(at, p->pick.strides, b ? array_data(b) : cell, from, p->pick.shape, p->pick.rank, (int64_t)each);
  return true;
}

/* Stores v in a part with index arrays or masks that name few places in the CPU's memory. False: it is not such a case, and nothing is stored
 * (*x may be a copy of its own now); else *ok says whether it is stored or an error is raised. */
static bool put_places(qn_vm *vm, qn_value *x, op_part *p, qn_value v, scatter_mode mode, bool *ok) {
  eager_places places;
  if (!all_here(value_array(*x), p)) return false;
  part_follow(vm, value_array(*x), p);
  *ok = own_part(vm, x, p) && eager_find(vm, &p->pick, &places) && eager_store(vm, value_array(*x), &places, v, mode);
  return *ok || vm->error;
}

/* ---- storing by ops -------------------------------------------------------------------------------------------------------------------- */

/* base with v, of rank 0, wherever a mask over its leading axes is true: one `where` instead of a scatter. */
static qn_value select_masked(qn_vm *vm, qn_value base, qn_value mask, qn_value v) {
  const qn_array *m = value_array(mask), *b = value_array(base);
  int64_t shape[ARRAY_MAX_RANK];
  rec_sizes(vm, mask, shape);
  for (int i = m->rank; i < b->rank; i++) shape[i] = 1;
  qn_value in[3] = {op_reshape(vm, mask, b->rank, shape), v, base};
  qn_value out = value_is_error(in[0]) ? in[0] : op_ternary(vm, OP_where, in);
  value_release(vm, in[0]);
  return out;
}

/* Stores v, for which eager_may_store holds, in a part with index arrays or masks; the mode says how it combines with what is there. */
static bool put_by(qn_vm *vm, qn_value *x, op_part *p, qn_value v, scatter_mode mode) {
  bool ok;
  if (!p->by_ops && put_places(vm, x, p, v, mode, &ok)) return ok;
  v = as_dtype(vm, value_array(*x), v);
  if (value_is_error(v)) return false;
  operands o = {.v = {base_get(vm, *x, p)}, .n = 1};
  qn_value out = value_error();
  if (value_is_error(o.v[0])) {
    o.n = 0;
  } else if (p->pick.n == 1 && is_mask(p->by[0]->array) && mode == SCATTER_SET && value_array(v)->rank == 0) {
    out = select_masked(vm, o.v[0], p->by[0]->array, v);
  } else if (add_index_arrays(vm, p, &o)) {
    part_follow(vm, value_array(*x), p); /* the places of a mask are known: that has ended a recording */
    int joint = joint_rank(&o, 1);
    int64_t shape[ARRAY_MAX_RANK];
    op_attr attr = {.n = 1, .mode = (uint8_t)mode, .d = {o.n - 1}};
    if (joint_shape(vm, p, &o, 1, joint, shape)) {
      v = joint_take(vm, v, p, joint, shape);
      if (!value_is_error(v)) {
        o.v[o.n++] = value_retain(v);
        out = op_apply(vm, OP_scatter, o.v, o.n, &attr);
      }
    }
  }
  operands_release(vm, &o);
  value_release(vm, v);
  return base_put(vm, x, p, out);
}

static bool put(qn_vm *vm, qn_value *x, op_part *p, qn_value v) {
  const qn_array *a = value_array(*x);
  bool ok;
  if (!eager_may_store(a, v)) return fail_store(vm, a, v);
  if (p->pick.n) return put_by(vm, x, p, v, SCATTER_SET);
  if (!op_deferred(vm) && put_few(vm, x, p, v, &ok)) return ok;
  return base_put(vm, x, p, broadcast_take(vm, as_dtype(vm, a, v), p->pick.rank, p->pick.shape));
}

bool op_part_put(qn_vm *vm, qn_value *x, op_part *p, qn_value v) {
  if (__builtin_expect(!p->by_ops, 1)) return put(vm, x, p, v);
  part_follow(vm, value_array(*x), p);
  struct recording *held = rec_hold(vm);
  bool ok = put(vm, x, p, v);
  if (!ok) numbers_first(vm, *x, p);
  return rec_let_go(vm, held, ok);
}

bool op_part_apply(qn_vm *vm, qn_value *x, op_part *p, op_id op, qn_value v) {
  const qn_array *a = value_array(*x);
  /* (No recording is on that was not when the part was made.) */
  if (p->deferred || !eager_here(a) || p->pick.n || (!value_is(v, TAG_ARRAY) && !value_is_scalar(v))) return false;
  /* The part as a view whose header is on the stack: only the op sees it. */
  qn_array old;
  old.head = (obj_head){.refs = 1, .tag = TAG_ARRAY};
  old.dtype = a->dtype;
  old.rank = (uint8_t)p->pick.rank;
  old.device = 0;
  old.node = 0;
  old.offset = p->pick.offset;
  old.storage = a->storage;
  old.contiguous = true;
  int64_t size = 1;
  for (int i = p->pick.rank - 1; i >= 0; i--) {
    old.shape[i] = p->pick.shape[i];
    old.strides[i] = p->pick.strides[i];
    if (p->pick.strides[i] != size) old.contiguous = false;
    size *= p->pick.shape[i];
  }
  old.size = size;
  qn_value r = eager_two(vm, op, value_obj(TAG_ARRAY, &old), v);
  bool ok = false;
  if (!value_is(r, TAG_ARRAY)) {
    if (value_is_error(r)) error_clear(vm);
    return false;
  }
  if (value_array(r) == &old) return false;
  const qn_array *new = value_array(r);
  bool own = a->head.refs == 1 && a->storage->refs == 1 && !a->storage->foreign && a->contiguous, done = true;
  if (own && new->dtype == a->dtype &&new->contiguous &&new->rank == p->pick.rank &&new->size == size &&
      (uint64_t)size - 1 < FEW) { /* as large as the part, so of its shape */
    int64_t each = (int64_t)dtype_size((qn_dtype)a->dtype);
    eager_copy_few(a->storage->data + p->pick.offset * each, p->pick.strides, array_data(new), new->strides,
                   p->pick.shape, p->pick.rank, each);
    vm->arrays_made++;
    ok = true;
  } else {
    done = eager_may_store(a, r) && put_few(vm, x, p, r, &ok);
  }
  value_release(vm, r);
  if (done && !ok) error_clear(vm);
  return done && ok;
}

/* Can an element be stored without further steps: does it lie in the CPU's memory, without gaps, and belong to no other array? */
static inline bool is_own(const qn_vm *vm, const qn_array *a) {
  const qn_storage *s = a->storage;
  return !op_deferred(vm) && s && !a->device && a->head.refs == 1 && s->refs == 1 && !s->foreign && a->contiguous;
}

/* Stores v, a plain number or an array of rank 0 and of a's dtype, at an offset of an array for which is_own holds. False: v is neither, or does
 * not fit, and nothing is done. */
static inline bool put_one(qn_vm *vm, const qn_array *a, int64_t at, qn_value v) {
  char *data = a->storage->data;
  bool f = v.head == TAG_FLOAT;
  if (f || v.head == TAG_INT) {
    if (a->dtype == QN_f64) {
      double x64 = f ? v.u.f : (double)v.u.i;
      memcpy(data + at * (int64_t)sizeof x64, &x64, sizeof x64);
    } else if (a->dtype == QN_f32 && (!f || (v.u.f <= 0x1.fffffep127 && v.u.f >= -0x1.fffffep127))) {
      float x32 = f ? (float)v.u.f : (float)v.u.i;
      memcpy(data + at * (int64_t)sizeof x32, &x32, sizeof x32);
    } else if (eager_may_store(a, v)) {
      dtype_store((qn_dtype)a->dtype, data + at * (int64_t)dtype_size((qn_dtype)a->dtype), v);
    } else {
      return false;
    }
  } else {
    if (!value_is(v, TAG_ARRAY)) return false;
    const qn_array *b = value_array(v);
    int64_t size = (int64_t)dtype_size((qn_dtype)a->dtype);
    if (b->rank || b->dtype != a->dtype || !eager_here(b)) return false;
    eager_copy_few(data + at * size, NULL, array_data(b), NULL, NULL, 0, size);
  }
  vm->arrays_made++;
  return true;
}

bool op_put_item(qn_vm *vm, qn_value x, int64_t i, qn_value v) {
  const qn_array *a = value_array(x);
  if (!is_own(vm, a) || a->rank != 1) return false;
  if (i < 0) i += a->shape[0];
  return (uint64_t)i < (uint64_t)a->shape[0] && put_one(vm, a, a->offset + i, v); /* it has no gaps */
}

bool op_put_element(qn_vm *vm, qn_value x, const index_item *items, int n, qn_value v) {
  const qn_array *a = value_array(x);
  int64_t at;
  return is_own(vm, a) && element_of(a, items, n, &at) && put_one(vm, a, at, v);
}

void op_put_refused(qn_vm *vm, qn_value x, qn_value v) {
  const qn_array *a = value_array(x);
  if (!vm->error || vm->error->id != E_index || eager_may_store(a, v)) return;
  error_clear(vm);
  (void)fail_store(vm, a, v);
}

bool op_put_at(qn_vm *vm, qn_value *x, qn_value by, op_id op, qn_value v, bool *ok) {
  const qn_array *a = value_array(*x);
  if (op_deferred(vm) || (op != OP_COUNT && ((op != OP_add && op != OP_mul) || dtype_is_bool(a->dtype)))) return false;
  const qn_array *at = value_array(by);
  eager_places places;
  bool refused = at->rank == 0 || (dtype_is_bool(at->dtype) && op != OP_COUNT) || !eager_here(a) || !eager_here(at);
  if (refused || !eager_may_store(a, v)) return false;
  if (!value_is(v, TAG_ARRAY)) v.head &= 0xff;
  *ok = array_own(vm, x) && eager_find_by(vm, value_array(*x), at, &places) &&
        eager_store(vm, value_array(*x), &places, v,
                    op == OP_COUNT ? SCATTER_SET
                    : op == OP_add ? SCATTER_ADD
                                   : SCATTER_MUL);
  return *ok || vm->error;
}

/* ---- combining at index arrays ----------------------------------------------------------------------------------------------------------- */

/* Broadcasts the index arrays to the joint shape, and computes those that are pending. False with an error raised. */
static bool read_positions(qn_vm *vm, operands *o, int joint, const int64_t *shape) {
  for (int k = 0; k < o->n; k++) {
    if (!value_is(o->v[k], TAG_ARRAY)) {
      o->v[k].head &= 0xff;
      continue;
    }
    o->v[k] = broadcast_take(vm, o->v[k], joint, shape);
    if (value_is_error(o->v[k]) || !array_force(vm, value_array(o->v[k]))) return false;
  }
  return true;
}

/* base[position] = base[position] op row, for row `i` of positions and of `rows`, which may be a number. */
static bool combine_row(qn_vm *vm, qn_value *base, const operands *positions, int64_t i, op_id op, qn_value rows) {
  index_item at[ARRAY_MAX_RANK];
  for (int k = 0; k < positions->n; k++) {
    qn_value number = positions->v[k];
    if (value_is(number, TAG_ARRAY) && !array_item(vm, value_array(number), i, &number)) return false;
    at[k] = (index_item){.kind = INDEX_INT, .start = number.u.i};
  }
  op_part part;
  if (!op_part_of(vm, *base, at, positions->n, &part)) return false;
  bool many = value_is(rows, TAG_ARRAY);
  qn_value in[2] = {op_part_get(vm, *base, &part), many ? op_index_row(vm, rows, i) : rows}, out = value_error();
  if (!value_is_error(in[0]) && !value_is_error(in[1])) out = op_apply(vm, op, in, 2, NULL);
  value_release(vm, in[0]);
  if (many) value_release(vm, in[1]);
  bool ok = !value_is_error(out) && op_part_put(vm, base, &part, out);
  value_release(vm, out);
  return ok && !vm_poll(vm);
}

/* op_part_combine by an operator that scatter has no mode for: position by position. */
static bool combine_one_by_one(qn_vm *vm, qn_value *x, op_part *p, op_id op, qn_value v) {
  operands o = {.n = 0};
  int64_t shape[ARRAY_MAX_RANK], total = 1;
  qn_value base = value_nil(), rows = value_is(v, TAG_ARRAY) ? value_retain(v) : v;
  bool ok = add_index_arrays(vm, p, &o);
  int joint = joint_rank(&o, 0);
  ok = ok && joint_shape(vm, p, &o, 0, joint, shape) && read_positions(vm, &o, joint, shape);
  for (int i = 0; ok && i < joint; i++) total *= shape[i];
  if (ok) ok = !value_is_error(base = base_get(vm, *x, p));
  if (ok && value_is(rows, TAG_ARRAY)) { /* a row for each position */
    int64_t flat[ARRAY_MAX_RANK + 1] = {total};
    memcpy(flat + 1, p->pick.shape, (size_t)p->pick.rank * sizeof *flat);
    rows = reshape_take(vm, joint_take(vm, rows, p, joint, shape), 1 + p->pick.rank, flat);
    ok = !value_is_error(rows);
  }
  for (int64_t i = 0; ok && i < total; i++) ok = combine_row(vm, &base, &o, i, op, rows);
  operands_release(vm, &o);
  if (value_is(rows, TAG_ARRAY)) value_release(vm, rows);
  if (ok) return base_put(vm, x, p, base);
  value_release(vm, base);
  return false;
}

static bool combine(qn_vm *vm, qn_value *x, op_part *p, op_id op, qn_value v) {
  const qn_array *a = value_array(*x);
  /* The sum of two bools is an integer: combining them one by one reports that it cannot be stored. */
  if ((op != OP_add && op != OP_mul && op != OP_sub) || dtype_is_bool(a->dtype))
    return combine_one_by_one(vm, x, p, op, v);
  if (!eager_may_store(a, v)) return fail_store(vm, a, v);
  if (op != OP_sub) return put_by(vm, x, p, v, op == OP_add ? SCATTER_ADD : SCATTER_MUL);
  qn_value w = as_dtype(vm, a, v);
  if (value_is_error(w)) return false;
  qn_value minus = op_unary(vm, OP_neg, w);
  value_release(vm, w);
  bool ok = !value_is_error(minus) && put_by(vm, x, p, minus, SCATTER_ADD);
  value_release(vm, minus);
  return ok;
}

bool op_part_combine(qn_vm *vm, qn_value *x, op_part *p, op_id op, qn_value v) {
  part_follow(vm, value_array(*x), p);
  struct recording *held = rec_hold(vm);
  bool ok = combine(vm, x, p, op, v);
  if (!ok) numbers_first(vm, *x, p);
  return rec_let_go(vm, held, ok);
}
