/* Builtins over sequences (lists, ranges, texts, rows of arrays), and those reductions that also take lists. */
#include <string.h>

#include "lang/format.h"
#include "stdlib/builtins.h"

/* ---- functions over items ------------------------------------------------------------------------------------------ */

/* Calls f(x). x is released, also on failure; the result is owned. */
static qn_value call1(qn_vm *vm, qn_value f, qn_value x) {
  vm_owned held;
  vm_own(vm, &held, vm_drop_value, &x);
  qn_value r = vm->hooks.call(vm, f, &x, 1, value_nil());
  vm_disown(vm, &held);
  return r;
}

/* Reads the sequence that a function is applied to, item by item: turns_offer sees to how many rows an array or a stacked list has. If `v` is a
 * function the error says that the sequence comes first. */
static bool sequence_arg(qn_vm *vm, const char *fn, qn_value v, sequence *s) {
  *s = (sequence){.v = v};
  qn_value rows = value_is_stacked(v) ? stacked_lead(v) : v;
  if (value_is(rows, TAG_ARRAY) && value_array(rows)->rank) return s->n = value_array(rows)->shape[0], true;
  if (!value_is(v, TAG_FN)) return sequence_of(vm, fn, v, s);
  return raise_false(vm, E_type, "%s: the list comes first: %s(list, f)", fn, fn);
}

bool collect_item(qn_vm *vm, qn_value *list, qn_value item) {
  if (rec_grows(vm, *list)) return rec_append(vm, list, item);
  if (list_own(vm, list)) return list_push(vm, value_list(*list), item);
  value_release(vm, item);
  return false;
}

/* A function over the items of a sequence, as a loop that is offered to a recording. */
typedef struct turns_over {
  qn_vm *vm;
  sequence *s;
  qn_value f;
  qn_value *
      state; /* what a turn changes: the list of map; of fold the arguments of f, of which the first one is the state */
  span at;
  const char *fn; /* of a reduction: its name, and what takes two items */
  op_id combine;
} turns_over;

/* Begins the loop. It may be captured if it goes over the rows of an array, or over numbers. */
static rec_tries turns_begin(turns_over *t) {
  qn_value v = t->s->v;
  rec_tries tries = rec_loop_begins(t->vm);
  bool numbers = value_is(v, TAG_RANGE) && value_range(v)->step == 1, stacked = value_is_stacked(v);
  if (!value_is(v, TAG_ARRAY) && !numbers && !stacked) {
    tries.left = 0;
    if (!(tries.parts && rec_stacks(t->vm, v))) tries.parts = NULL; /* as where it is stacked */
  }
  t->at = rec_here(t->vm);
  return tries;
}

/* Offers the items from number i on, up to `end`. */
static rec_answer offer_up_to(turns_over *t, int64_t i, qn_value end, rec_turns turns, rec_tries *tries) {
  int64_t start = value_is(t->s->v, TAG_RANGE) ? value_range(t->s->v)->start : 0;
  turns.ctx = t;
  turns.counts = true;
  turns.first = value_int(start + i);
  turns.end = end;
  return rec_loop(t->vm, t->at, &turns, (rec_slots){&t->state, 1}, tries);
}

/* Offers the items from number i on. How many rows an array has need not be known. `grown`: as rec_turns has it. */
static rec_answer turns_offer(turns_over *t, int64_t i, qn_value (*turn)(void *ctx, qn_value number, rec_exit *how),
                              uint64_t grown, rec_tries *tries) {
  qn_vm *vm = t->vm;
  qn_value v = t->s->v, rows = value_is_stacked(v) ? stacked_lead(v) : value_is(v, TAG_ARRAY) ? v : value_nil();
  bool over_rows = !value_is(rows, TAG_NIL), stacked = value_is_stacked(v);
  if (__builtin_expect(tries->left == 0, 1)) return !over_rows || rec_length_seen(vm, rows) ? REC_NOT_YET : REC_FAILED;
  rec_turns turns = {.body = turn, .grown = grown};
  if (over_rows) {
    qn_value end = rec_length(vm, rows);
    if (value_is_error(end)) return REC_FAILED;
    if (stacked || value_node(end)) {
      turns.stacks = grown;
      rec_answer answer = offer_up_to(t, i, end, turns, tries);
      if (answer != REC_NOT_YET || stacked) return answer;
      if (!rec_length_seen(vm, rows)) return REC_FAILED;
      turns.stacks = 0;
    }
  }
  int64_t start = value_is(v, TAG_RANGE) ? value_range(v)->start : 0;
  return tries->left ? offer_up_to(t, i, value_int(start + t->s->n), turns, tries) : REC_NOT_YET;
}

/* Offers all numbers of a range whose end is traced. REC_NOT_YET: it is known from now on, and so is how many items there are. */
static rec_answer range_offer(turns_over *t, qn_value (*turn)(void *ctx, qn_value number, rec_exit *how),
                              uint64_t grown, rec_tries *tries) {
  qn_vm *vm = t->vm;
  qn_value v = t->s->v;
  if (!value_is(v, TAG_RANGE) || !value_node(v)) return REC_NOT_YET;
  qn_value end = value_traced(value_int(value_range(v)->stop), value_node(v));
  const rec_turns turns = {.body = turn, .grown = grown, .stacks = grown};
  rec_answer answer = tries->left ? offer_up_to(t, 0, end, turns, tries) : REC_NOT_YET;
  if (answer != REC_NOT_YET) return answer;
  end = rec_observe(vm, end);
  if (value_is_error(end)) return REC_FAILED;
  t->s->n = range_length(&(qn_range){.start = value_range(v)->start, .stop = end.u.i, .step = value_range(v)->step});
  return REC_NOT_YET;
}

/* Ends the loop. Where no turn was offered, or none taken, how many rows there are is known from now on, if there are none, too. False with an error
 * raised. */
static bool turns_end(turns_over *t, rec_tries *tries, bool ok, rec_answer answer) {
  qn_value v = t->s->v;
  if (ok && answer == REC_NOT_YET) ok = rec_length_seen(t->vm, value_is_stacked(v) ? stacked_lead(v) : v);
  rec_loop_ends(t->vm, tries);
  return ok && answer != REC_FAILED;
}

/* The item with this number, which may be traced. */
static qn_value turns_item(const turns_over *t, qn_value number) {
  if (value_is_stacked(t->s->v)) return rec_stacked_item(t->vm, t->s->v, number);
  return value_is(t->s->v, TAG_ARRAY) ? rec_row(t->vm, t->s->v, number) : number;
}

/* Adds f(item) to a list. Takes over the item. */
static bool map_item(turns_over *t, qn_value item) {
  qn_value made = value_is_error(item) ? item : call1(t->vm, t->f, item);
  value_release(t->vm, item);
  return !value_is_error(made) && collect_item(t->vm, t->state, made);
}

static qn_value map_turn(void *ctx, qn_value number, rec_exit *how) {
  *how = map_item(ctx, turns_item(ctx, number)) ? REC_VALUE : REC_ERROR;
  return *how == REC_VALUE ? value_nil() : value_error();
}

static bool map_into(qn_vm *vm, sequence *s, qn_value f, qn_value *out) {
  turns_over t = {.vm = vm, .s = s, .f = f, .state = out};
  rec_tries tries = turns_begin(&t);
  tries.parts = NULL;
  bool ok = true;
  rec_answer answer = range_offer(&t, map_turn, 1, &tries);
  for (int64_t i = 0; i < s->n && ok && answer == REC_NOT_YET; i++) {
    answer = turns_offer(&t, i, map_turn, 1, &tries);
    if (answer != REC_NOT_YET) break;
    ok = map_item(&t, sequence_item(vm, s, i));
  }
  return turns_end(&t, &tries, ok, answer);
}

static bool filter_into(qn_vm *vm, sequence *s, qn_value f, qn_value *out) {
  if (value_is(s->v, TAG_ARRAY) && !rec_length_seen(vm, s->v)) return false;
  for (int64_t i = 0; i < s->n; i++) {
    qn_value item = sequence_item(vm, s, i);
    qn_value answer = value_is_error(item) ? item : call1(vm, f, item);
    bool test = value_is(answer, TAG_BOOL) || (is_array(answer) && dtype_is_bool(value_array(answer)->dtype));
    if (!test && !value_is_error(answer))
      raise_error(vm, E_condition, SPAN_NONE,
                  "filter: the function says whether an item stays, true or false; for item %lld it gave %s",
                  (long long)i, phrase_kind(answer).text);
    int keep = value_is_error(answer) || !test ? -1 : rec_truth(vm, answer, SPAN_NONE);
    value_release(vm, answer);
    if (keep > 0 ? !list_push(vm, value_list(*out), item) : keep < 0) {
      if (keep < 0) value_release(vm, item);
      return false;
    }
    if (keep == 0) value_release(vm, item);
  }
  return true;
}

/* Makes a new list of a sequence: `into` appends what comes of the items to it. */
static qn_value new_list(qn_vm *vm, const char *fn, const qn_value *args,
                         bool (*into)(qn_vm *vm, sequence *s, qn_value f, qn_value *out)) {
  sequence s;
  if (!sequence_arg(vm, fn, args[0], &s)) return value_error();
  qn_value out = list_value(list_new(vm, 0));
  if (value_is_error(out)) return out;
  vm_owned held;
  vm_own(vm, &held, vm_drop_value, &out);
  bool good = into(vm, &s, args[1], &out);
  vm_disown(vm, &held);
  return good ? out : value_fail(vm, out);
}

qn_value builtin_map(qn_vm *vm, const qn_value *args) { return new_list(vm, "map", args, map_into); }
qn_value builtin_filter(qn_vm *vm, const qn_value *args) { return new_list(vm, "filter", args, filter_into); }

/* The state becomes f(state, item). Takes over the item. */
static bool fold_item(turns_over *t, qn_value item) {
  qn_value *in = t->state;
  in[1] = item;
  qn_value made = value_is_error(item) ? item : t->vm->hooks.call(t->vm, t->f, in, 2, value_nil());
  value_release(t->vm, in[1]);
  in[1] = value_nil();
  if (value_is_error(made)) return false;
  value_release(t->vm, in[0]);
  in[0] = made;
  return true;
}

static qn_value fold_turn(void *ctx, qn_value number, rec_exit *how) {
  *how = fold_item(ctx, turns_item(ctx, number)) ? REC_VALUE : REC_ERROR;
  return *how == REC_VALUE ? value_nil() : value_error();
}

qn_value builtin_fold(qn_vm *vm, const qn_value *args) {
  sequence s;
  if (!sequence_arg(vm, "fold", args[0], &s)) return value_error();
  if (!value_is(args[1], TAG_FN) && value_is(args[2], TAG_FN))
    return raise_error(vm, E_type, SPAN_NONE, "fold: the function stands before the start: fold(list, f, start)");
  qn_value in[2] = {value_retain(args[2]), value_nil()};
  vm_owned held[2];
  for (int k = 0; k < 2; k++) vm_own(vm, &held[k], vm_drop_value, &in[k]);
  turns_over t = {.vm = vm, .s = &s, .f = args[1], .state = in};
  rec_tries tries = turns_begin(&t);
  const rec_slots slots = {&t.state, 1};
  rec_answer answer = REC_NOT_YET;
  bool ok = !tries.parts || rec_part_turn(vm, slots, 0, &tries);
  if (ok) answer = range_offer(&t, fold_turn, 0, &tries);
  for (int64_t i = 0; i < s.n && ok && answer == REC_NOT_YET; i++) {
    answer = turns_offer(&t, i, fold_turn, 0, &tries);
    if (answer != REC_NOT_YET) break;
    ok = fold_item(&t, sequence_item(vm, &s, i)) && (!tries.parts || rec_part_turn(vm, slots, 0, &tries));
  }
  ok = turns_end(&t, &tries, ok, answer);
  vm_disown(vm, &held[0]);
  return ok ? in[0] : value_fail(vm, in[0]);
}

qn_value builtin_zip(qn_vm *vm, const qn_value *args) {
  const qn_list *lists = value_list(args[0]);
  uint32_t k = lists->len;
  if (k == 0) return list_value(list_new(vm, 0));
  qn_value side = rec_stacked_zip(vm, lists->items, k);
  if (!value_is(side, TAG_UNSET)) return side;
  sequence *s = mem_alloc(vm, k * sizeof *s);
  if (!s) return value_error();
  int64_t n = INT64_MAX;
  qn_value out = value_nil();
  for (uint32_t j = 0; j < k && !value_is_error(out); j++) {
    if (!sequence_of(vm, "zip", lists->items[j], &s[j]))
      out = value_error();
    else if (s[j].n < n)
      n = s[j].n;
  }
  if (!value_is_error(out)) out = list_value(list_new(vm, 0));
  for (int64_t i = 0; i < n && !value_is_error(out); i++) {
    qn_list *row = list_new(vm, k);
    bool good = row != NULL;
    for (uint32_t j = 0; j < k && good; j++) {
      qn_value item = sequence_item(vm, &s[j], i);
      good = !value_is_error(item);
      if (good) row->items[j] = item;
    }
    if (row && !good) value_release(vm, value_obj(TAG_LIST, row));
    if (!good || !list_push(vm, value_list(out), value_obj(TAG_LIST, row))) out = value_fail(vm, out);
  }
  mem_free(vm, s, k * sizeof *s);
  return out;
}

static qn_value reversed_list(qn_vm *vm, const qn_list *l) {
  qn_value out = list_value(list_new(vm, l->len));
  for (uint32_t i = 0; i < l->len && !value_is_error(out); i++) {
    if (vm_poll_item(vm, i)) return value_fail(vm, out);
    value_list(out)->items[i] = value_retain(l->items[l->len - 1 - i]);
  }
  return out;
}

qn_value builtin_reverse(qn_vm *vm, const qn_value *args) {
  qn_value x = args[0];
  if (value_is_stacked(x)) {
    qn_value out = rec_stacked_reversed(vm, x);
    if (!value_is(out, TAG_UNSET)) return out;
    if (value_is_error(x = rec_unstacked(vm, x))) return x;
    out = reversed_list(vm, value_list(x));
    value_release(vm, x);
    return out;
  }
  if (value_is(x, TAG_LIST)) return reversed_list(vm, value_list(x));
  if (value_is(x, TAG_STR)) {
    const qn_str *s = value_str(x);
    text_buf t = {.vm = vm};
    int64_t n = 0;
    for (uint32_t end = s->len; end > 0 && !t.failed;) {
      uint32_t start = end - 1;
      if (vm_poll_item(vm, n++)) return text_fail(&t);
      while (start > 0 && (s->text[start] & 0xc0) == 0x80) start--;
      text_add(&t, s->text + start, end - start);
      end = start;
    }
    return text_take(&t);
  }
  if (value_is(x, TAG_RANGE)) {
    const qn_range *r = value_range(x);
    int64_t n = range_length(r);
    return value_new(TAG_RANGE, n ? range_slice(vm, r, n - 1, n, -1) : range_new(vm, 0, 0, 1));
  }
  if (is_array(x)) return raise_error(vm, E_type, SPAN_NONE, "reverse: arrays are reversed by flip(x, axis)");
  return arg_refuse(vm, "reverse", "a list, range or text", x);
}

/* ---- looking for things --------------------------------------------------------------------------------------------- */

/* The byte offset of the first `part` in `s` that begins at byte `from` or later. -1 if there is none, -2 with an error raised. */
static int64_t text_position(qn_vm *vm, const qn_str *s, const qn_str *part, size_t from) {
  const char *p = NULL;
  if (from <= s->len && !text_search(vm, s->text + from, s->len - from, part->text, part->len, &p)) return -2;
  return p ? p - s->text : -1;
}

/* The index of the first item, from `start` on, that is equal to `item`. -1 if there is none, -2 with an error raised. */
static int64_t list_position(qn_vm *vm, const qn_list *l, qn_value item, int64_t start) {
  for (int64_t i = start; i < l->len; i++) {
    if (vm_poll_item(vm, i)) return -2;
    int same = value_equal(vm, l->items[i], item);
    if (same < 0) return -2;
    if (same) return i;
  }
  return -1;
}

qn_value builtin_contains(qn_vm *vm, const qn_value *args) {
  qn_value x = args[0];
  if (value_is(x, TAG_STR)) {
    qn_str *part;
    if (!arg_str(vm, "contains", "a text to look for", args[1], &part)) return value_error();
    int64_t at = text_position(vm, value_str(x), part, 0);
    return at == -2 ? value_error() : value_bool(at >= 0);
  }
  if (value_is(x, TAG_RANGE)) {
    const qn_range *r = value_range(x);
    int64_t i;
    if (!arg_int(vm, "contains", "an int to look for", args[1], &i)) return value_error();
    bool inside = r->step > 0 ? i >= r->start && i < r->stop : i <= r->start && i > r->stop;
    uint64_t distance = r->step > 0 ? (uint64_t)i - (uint64_t)r->start : (uint64_t)r->start - (uint64_t)i;
    uint64_t step = r->step > 0 ? (uint64_t)r->step : -(uint64_t)r->step;
    return value_bool(inside && distance % step == 0);
  }
  if (value_is(x, TAG_RECORD)) return raise_error(vm, E_type, SPAN_NONE, "contains: use has(record, name) for fields");
  if (is_array(x)) return raise_error(vm, E_type, SPAN_NONE, "contains: use any(x == value) for arrays");
  if (!value_is(x, TAG_LIST)) return arg_refuse(vm, "contains", "a list, range or text", x);
  int64_t at = list_position(vm, value_list(x), args[1], 0);
  return at == -2 ? value_error() : value_bool(at >= 0);
}

qn_value builtin_find(qn_vm *vm, const qn_value *args) {
  qn_value x = args[0];
  int64_t start;
  if (!arg_int(vm, "find", "an int as start", args[2], &start)) return value_error();
  if (value_is(x, TAG_STR)) {
    const qn_str *s = value_str(x);
    qn_str *part;
    if (!arg_str(vm, "find", "a text to look for", args[1], &part)) return value_error();
    if (start < 0) start += str_length(s);
    if (start > str_length(s)) return value_nil();
    size_t from = str_offset(s, start < 0 ? 0 : start);
    int64_t at = text_position(vm, s, part, from);
    return at == -2 ? value_error() : at < 0 ? value_nil() : value_int(utf8_count(s->text, (size_t)at));
  }
  if (!value_is(x, TAG_LIST)) return arg_refuse(vm, "find", "a list or a text", x);
  if (start < 0) start += value_list(x)->len;
  int64_t at = list_position(vm, value_list(x), args[1], start < 0 ? 0 : start);
  return at == -2 ? value_error() : at < 0 ? value_nil() : value_int(at);
}

/* ---- sorting ---------------------------------------------------------------------------------------------------------- */

enum { COMPARE_DEPTH = 64, COMPARE_FAILED = 2 };

/* What is known while two keys are compared. After PLACES_LOOK pairs of lists those found equal are remembered, because keys may hold the
 * same parts so many times over that comparing each occurrence would never end. */
typedef struct order_walk {
  uint32_t seen;
  shared_parts equal;
} order_walk;

static inline int compare_numbers(qn_value a, qn_value b) {
  if (!value_is(a, TAG_FLOAT) && !value_is(b, TAG_FLOAT)) return (a.u.i > b.u.i) - (a.u.i < b.u.i);
  bool nan_a = value_is(a, TAG_FLOAT) && a.u.f != a.u.f, nan_b = value_is(b, TAG_FLOAT) && b.u.f != b.u.f;
  if (nan_a || nan_b) return nan_a - nan_b;
  if (value_is(a, TAG_FLOAT) && value_is(b, TAG_FLOAT)) return (a.u.f > b.u.f) - (a.u.f < b.u.f);
  return value_is(a, TAG_FLOAT) ? -number_order(b.u.i, a.u.f) : number_order(a.u.i, b.u.f);
}

/* The order of two keys: -1, 0 or 1, or COMPARE_FAILED with an error raised. nan comes after every number; lists compare item by item. */
static int compare(qn_vm *vm, order_walk *w, qn_value a, qn_value b, int depth) {
  if (value_is_scalar(a) && value_is_scalar(b)) return compare_numbers(a, b);
  if (value_is(a, TAG_STR) && value_is(b, TAG_STR)) return str_compare(value_str(a), value_str(b));
  if (value_is(a, TAG_LIST) && value_is(b, TAG_LIST) && depth < COMPARE_DEPTH) {
    const qn_list *x = value_list(a), *y = value_list(b);
    bool remember = w->seen == PLACES_LOOK;
    if (!remember)
      w->seen++;
    else if (vm_poll(vm))
      return COMPARE_FAILED;
    else if (shared_equal(&w->equal, a, b))
      return 0;
    for (uint32_t i = 0; i < x->len && i < y->len; i++) {
      if (vm_poll_item(vm, i)) return COMPARE_FAILED;
      bool numbers = value_is_scalar(x->items[i]) && value_is_scalar(y->items[i]);
      int order =
          numbers ? compare_numbers(x->items[i], y->items[i]) : compare(vm, w, x->items[i], y->items[i], depth + 1);
      if (order) return order;
    }
    if (x->len != y->len) return x->len > y->len ? 1 : -1;
    return remember && !shared_join(vm, &w->equal, a, b) ? COMPARE_FAILED : 0;
  }
  raise_error(vm, E_type, SPAN_NONE, "sort: %s and %s have no order; by: may give numbers, texts or lists of these",
              value_kind_name(a), value_kind_name(b));
  return COMPARE_FAILED;
}

/* Sorts `order`, the indices of n keys, by merging runs from the bottom up, which is stable. `spare` is room for n more indices. False with
 * an error raised. */
static bool merge_sort(qn_vm *vm, const qn_value *keys, uint32_t *order, uint32_t *spare, uint32_t n, bool descending) {
  order_walk w = {0};
  for (uint32_t width = 1; width < n; width *= 2) {
    for (uint32_t low = 0; low < n; low += 2 * width) {
      uint32_t i = low, mid = n - low > width ? low + width : n, j = mid, high = n - mid > width ? mid + width : n;
      for (uint32_t k = low; k < high; k++) {
        bool second = i >= mid;
        if (!second && j < high) {
          qn_value a = keys[order[i]], b = keys[order[j]];
          int c = value_is_scalar(a) && value_is_scalar(b) ? compare_numbers(a, b) : compare(vm, &w, a, b, 0);
          if (w.seen == PLACES_LOOK) {
            shared_free(vm, &w.equal);
            w = (order_walk){0};
          }
          w.seen = 0;
          if (c == COMPARE_FAILED) return false;
          second = descending ? c < 0 : c > 0;
        }
        spare[k] = order[second ? j++ : i++];
        if (vm_poll_item(vm, k)) return false;
      }
    }
    memcpy(order, spare, n * sizeof *order);
    if (vm_poll(vm)) return false;
    if (width > n / 2) break;
  }
  return true;
}

/* The key that an item is sorted by, owned: `by` of the item, or the item itself if `by` is nil. It can be compared without the recorder:
 * one-element arrays are read, and traced numbers are observed. */
static qn_value sort_key(qn_vm *vm, qn_value item, qn_value by) {
  qn_value key = value_is(by, TAG_NIL) ? value_retain(item) : vm->hooks.call(vm, by, &item, 1, value_nil());
  if (is_array(key) && value_array(key)->size == 1) {
    qn_value plain;
    if (!array_item(vm, value_array(key), 0, &plain)) plain = value_error();
    return used(vm, key, plain);
  }
  return value_is_error(key) ? key : used(vm, key, rec_observe_tree(vm, key));
}

static qn_value sort_list(qn_vm *vm, qn_value x, bool descending, qn_value by) {
  const qn_list *l = value_list(x);
  uint32_t n = l->len;
  qn_value keys = list_value(list_new(vm, n));
  if (value_is_error(keys)) return keys;
  qn_value out = value_error();
  vm_owned held;
  vm_own(vm, &held, vm_drop_value, &keys);
  for (uint32_t i = 0; i < n && !value_is_error(keys); i++) list_fill(vm, &keys, i, sort_key(vm, l->items[i], by));
  vm_disown(vm, &held);
  uint32_t *order = value_is_error(keys) ? NULL : mem_alloc(vm, 2 * (size_t)n * sizeof *order);
  for (uint32_t i = 0; i < n && order; i++) order[i] = i;
  if (order && merge_sort(vm, value_list(keys)->items, order, order + n, n, descending)) {
    out = list_value(list_new(vm, n));
    for (uint32_t i = 0; i < n && !value_is_error(out); i++) {
      value_list(out)->items[i] = value_retain(l->items[order[i]]);
      if (vm_poll_item(vm, i)) out = value_fail(vm, out);
    }
  }
  if (order) mem_free(vm, order, 2 * (size_t)n * sizeof *order);
  value_release(vm, keys);
  return out;
}

/* Raises the error for a name of a field as `by`, and shows the function that takes the field. */
static qn_value fail_by_text(qn_vm *vm, const qn_str *name) {
  text_buf t = {.vm = vm};
  text_adds(&t, "sort: by is a function of an item, not a text; write by: fn(r) r");
  if (name->len >= 40) {
    text_adds(&t, ".name");
  } else if (name_is_plain(name)) {
    text_addf(&t, ".%s", name->text);
  } else {
    text_adds(&t, "[");
    text_quoted(&t, name->text, name->len);
    text_adds(&t, "]");
  }
  return raise_text(vm, E_type, SPAN_NONE, &t);
}

qn_value builtin_sort(qn_vm *vm, const qn_value *args) {
  qn_value x = args[0];
  bool descending;
  if (!arg_bool(vm, "sort", "true or false as descending", args[2], &descending)) return value_error();
  if (value_is(args[1], TAG_FN))
    return raise_error(vm, E_type, SPAN_NONE,
                       "sort: the second argument is the axis of an array; write by: fn(item) ...");
  if (value_is(x, TAG_LIST) && value_is(args[3], TAG_STR)) return fail_by_text(vm, value_str(args[3]));
  if (value_is(x, TAG_LIST)) return sort_list(vm, x, descending, args[3]);
  if (!is_array(x)) return arg_refuse(vm, "sort", "a list or an array", x);
  if (!value_is(args[3], TAG_NIL))
    return raise_error(vm, E_type, SPAN_NONE, "sort: by is for lists; x[argsort(key)] sorts an array");
  int axis;
  if (!arg_axis(vm, "sort", args[1], value_array(x)->rank, &axis)) return value_error();
  return op_sort(vm, OP_sort, x, axis, descending);
}

/* ---- reductions of arrays and sequences ------------------------------------------------------------------------------------ */

static qn_value number_item(qn_vm *vm, const char *fn, sequence *s, int64_t i) {
  qn_value item = sequence_item(vm, s, i);
  if (is_array(item) || value_is_scalar(item) || value_is_error(item)) return item;
  bool most = strcmp(fn, "max") == 0, extreme = most || strcmp(fn, "min") == 0;
  if (value_is(item, TAG_STR) && extreme && i == 0) {
    raise_error(vm, E_type, SPAN_NONE,
                "%s: expected numbers and arrays in the list, not %s; the %s of texts is sort(xs)[%d]", fn,
                phrase_kind(item).text, most ? "last" : "first", most ? -1 : 0);
  } else {
    (void)arg_refuse(vm, fn, "numbers and arrays in the list", item);
  }
  return value_fail(vm, item);
}

/* The state becomes what it gives with the item. */
static qn_value combine_turn(void *ctx, qn_value number, rec_exit *how) {
  turns_over *t = ctx;
  qn_value made = use2(t->vm, t->combine, value_retain(t->state[0]), turns_item(t, number), NULL);
  *how = value_is_error(made) ? REC_ERROR : REC_VALUE;
  if (value_is_error(made)) return made;
  value_release(t->vm, t->state[0]);
  t->state[0] = made;
  return value_nil();
}

/* What a reduction makes of a stacked list of `n` items, one or more, the first of which it begins with (`sum`, taken over). */
static qn_value reduce_turns(turns_over *t, qn_value sum) {
  qn_vm *vm = t->vm;
  vm_owned held;
  vm_own(vm, &held, vm_drop_value, &sum);
  t->state = &sum;
  rec_tries tries = turns_begin(t);
  const rec_slots slots = {&t->state, 1};
  rec_answer answer = REC_NOT_YET;
  bool ok = !tries.parts || rec_part_turn(vm, slots, 0, &tries);
  for (int64_t i = 1; i < t->s->n && ok && answer == REC_NOT_YET; i++) {
    answer = turns_offer(t, i, combine_turn, 0, &tries);
    if (answer != REC_NOT_YET) break;
    rec_exit how;
    (void)combine_turn(t, value_int(i), &how);
    ok = how == REC_VALUE && !vm_poll_item(vm, i) && (!tries.parts || rec_part_turn(vm, slots, 0, &tries));
  }
  ok = turns_end(t, &tries, ok, answer);
  vm_disown(vm, &held);
  return ok ? sum : value_fail(vm, sum);
}

/* As reduce, of the items of a stacked list that are arrays or numbers. */
static qn_value reduce_stacked(qn_vm *vm, const char *fn, op_id combine, qn_value empty, qn_value x) {
  sequence s = {.v = x, .n = value_array(stacked_lead(x))->shape[0]};
  qn_value sum = number_item(vm, fn, &s, 0);
  if (value_is(sum, TAG_BOOL) && !value_is(empty, TAG_UNSET)) sum = use2(vm, combine, empty, sum, NULL);
  turns_over t = {.vm = vm, .s = &s, .fn = fn, .combine = combine};
  return value_is_error(sum) ? sum : reduce_turns(&t, sum);
}

/* A reduction of an array, by `op`, or of the items of a sequence, which `combine` takes two at a time. `args` are x, axis and keepdims.
 * `empty` is the result for a sequence without items; if it is unset such a sequence is an error. */
static qn_value reduce(qn_vm *vm, const char *fn, op_id op, op_id combine, qn_value empty, const qn_value *args) {
  qn_value x = args[0];
  bool keepdims, several = value_is_scalar(x) && !value_is(args[1], TAG_NIL);
  if (several && (combine == OP_maximum || combine == OP_minimum))
    return raise_error(vm, E_type, SPAN_NONE, "%s reduces one array or list, %s((a, b)); %s(a, b) is for two values",
                       fn, fn, op_rows[combine].name);
  if (several && value_is_scalar(args[1]) && value_is_scalar(args[2]) && !value_is(args[2], TAG_BOOL))
    return raise_error(vm, E_type, SPAN_NONE, "%s reduces one array or list: %s((a, b, c))", fn, fn);
  if (!arg_bool(vm, fn, "true or false as keepdims", args[2], &keepdims)) return value_error();
  if (is_array(x)) {
    uint8_t axes;
    if (!arg_axes(vm, fn, args[1], value_array(x)->rank, &axes)) return value_error();
    return op_reduce(vm, op, x, axes, keepdims);
  }
  if (value_is(x, TAG_STR)) return arg_refuse(vm, fn, "an array or a list of numbers", x);
  if (!value_is(args[1], TAG_NIL))
    return raise_error(vm, E_axis, SPAN_NONE, "%s: axis is for arrays, not for %s", fn, value_kind_name(x));
  if (value_is_scalar(x)) {
    if (value_is(x, TAG_BOOL) && combine != OP_maximum && combine != OP_minimum)
      return op2(vm, combine, empty, x, NULL);
    return value_retain(x);
  }
  if (value_is_stacked(x) && value_array(stacked_lead(x))->shape[0] > 0)
    return reduce_stacked(vm, fn, combine, empty, x);
  sequence s;
  if (!sequence_of(vm, fn, x, &s)) return value_error();
  if (s.n == 0) {
    if (value_is(empty, TAG_UNSET))
      return raise_error(vm, E_empty_reduce, SPAN_NONE, "%s of an empty %s", fn, value_kind_name(x));
    return empty;
  }
  qn_value sum = number_item(vm, fn, &s, 0);
  if (value_is(sum, TAG_BOOL) && !value_is(empty, TAG_UNSET)) sum = use2(vm, combine, empty, sum, NULL);
  for (int64_t i = 1; i < s.n && !value_is_error(sum); i++)
    sum = use2(vm, combine, sum, number_item(vm, fn, &s, i), NULL);
  return sum;
}

static inline qn_value reduce_any(qn_vm *vm, const char *fn, op_id op, op_id combine, qn_value empty,
                                  const qn_value *args) {
  uint8_t axes;
  return reduces_at_once(args, &axes) ? op_reduce(vm, op, args[0], axes, args[2].u.i != 0)
                                      : reduce(vm, fn, op, combine, empty, args);
}

qn_value builtin_sum(qn_vm *vm, const qn_value *args) {
  return reduce_any(vm, "sum", OP_sum, OP_add, value_int(0), args);
}
qn_value builtin_prod(qn_vm *vm, const qn_value *args) {
  return reduce_any(vm, "prod", OP_prod, OP_mul, value_int(1), args);
}
qn_value builtin_max(qn_vm *vm, const qn_value *args) {
  return reduce_any(vm, "max", OP_max, OP_maximum, value_unset(), args);
}
qn_value builtin_min(qn_vm *vm, const qn_value *args) {
  return reduce_any(vm, "min", OP_min, OP_minimum, value_unset(), args);
}

/* Are the items of a stacked list arrays or numbers, and nothing else? */
static bool stacked_is_plain(qn_value x) {
  qn_value shape = value_list(x)->items[STACKED_SHAPE];
  return value_is(shape, TAG_UNSET) || (value_is(shape, TAG_SIGNAL) && !stacked_is_count(shape));
}

/* A rank-0 bool array (taken over) as a host bool. */
static qn_value truth_of_all(qn_vm *vm, qn_value all) {
  return value_is_error(all) ? all : used(vm, all, rec_host_number(vm, all, WEAK_BOOL));
}

/* any and all: of an array by `op`; of a list by asking the items until one answers `stop`, which is then the result. */
static qn_value truth(qn_vm *vm, const char *fn, op_id op, bool stop, const qn_value *args) {
  qn_value x = args[0];
  if (is_array(x)) return reduce_any(vm, fn, op, op, value_bool(!stop), args);
  if (value_is(x, TAG_BOOL)) return value_retain(x);
  if (!value_is(x, TAG_LIST)) return arg_refuse(vm, fn, "a bool array or a list of conditions", x);
  if (value_is_stacked(x)) {
    qn_value lead = stacked_lead(x);
    bool conditions = is_array(lead) && value_array(lead)->rank == 1 && dtype_is_bool(value_array(lead)->dtype) &&
                      stacked_is_plain(x);
    if (conditions) return truth_of_all(vm, op_reduce(vm, op, lead, 1, false));
    if (value_is_error(x = rec_unstacked(vm, x))) return x;
    qn_value plain[1] = {x};
    return used(vm, x, truth(vm, fn, op, stop, plain));
  }
  const qn_list *l = value_list(x);
  for (uint32_t i = 0; i < l->len; i++) {
    int answer = rec_truth(vm, l->items[i], SPAN_NONE);
    if (answer < 0) return value_error();
    if ((answer > 0) == stop) return value_bool(stop);
  }
  return value_bool(!stop);
}

qn_value builtin_any(qn_vm *vm, const qn_value *args) { return truth(vm, "any", OP_any, true, args); }
qn_value builtin_all(qn_vm *vm, const qn_value *args) { return truth(vm, "all", OP_all, false, args); }
