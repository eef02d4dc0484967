/* Values: strings and UTF-8, lists, records, equality, trees, ranges, signatures. */
#include "tests/unit/lang.h"

static fn_shared code; /* of the functions here */

/* ---- strings ------------------------------------------------------------------------------------------------- */

START_TEST(utf8_is_checked) {
  const char *good[] = {"",
                        "abc",
                        "gr\xc3\xbc\xc3\x9f",
                        "\xe2\x82\xac",
                        "\xf0\x9f\x98\x80",
                        "\xf4\x8f\xbf\xbf",
                        "\xed\x9f\xbf",
                        "\xee\x80\x80",
                        "abcdefgh\xc3\xa4xyzabcdefg"};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) ck_assert(utf8_valid(good[i], strlen(good[i])));
  const char *bad[] = {"\x80",         "\xc3",     "\xc0\x80",         "\xc1\xbf",         "\xe0\x9f\xbf",
                       "\xed\xa0\x80", "\xe2\x82", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
                       "\xff",         "\xc3\x28", "\xe2\x28\xa1",     "12345678\xfe"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    ck_assert(!utf8_valid(bad[i], strlen(bad[i])));
    ck_assert_uint_eq(utf8_valid_prefix(bad[i], strlen(bad[i])), i == 13 ? 8 : 0);
  }
  for (uint32_t c = 0; c < 0x110000; c++) {
    if (c == 0xd800) c = 0xe000;
    char s[4];
    int n = utf8_encode(c, s);
    uint32_t back;
    if (!utf8_valid(s, (size_t)n) || utf8_decode(s, &back) != n || back != c) ck_abort_msg("code point %x", c);
  }
}
END_TEST

START_TEST(widths_of_code_points) {
  ck_assert_int_eq(utf8_width('a'), 1);
  ck_assert_int_eq(utf8_width('\n'), 0);
  ck_assert_int_eq(utf8_width(0xe4), 1);
  ck_assert_int_eq(utf8_width(0x301), 0);   /* combining acute */
  ck_assert_int_eq(utf8_width(0x200b), 0);  /* zero width space */
  ck_assert_int_eq(utf8_width(0x4e2d), 2);  /* a han character */
  ck_assert_int_eq(utf8_width(0xac00), 2);  /* a hangul syllable */
  ck_assert_int_eq(utf8_width(0xff21), 2);  /* fullwidth A */
  ck_assert_int_eq(utf8_width(0x1f600), 2); /* a face */
  ck_assert_int_eq(utf8_width(0x20ac), 1);  /* euro */
  ck_assert_int_eq(utf8_width(0x10ffff), 1);
}
END_TEST

START_TEST(strings_count_and_compare_code_points) {
  qn_vm *vm = vm_make();
  qn_value a = str_value(vm, "gr\xc3\xbc\xc3\x9f"), b = str_value(vm, "gr\xc3\xbc\xc3\x9f"), c = str_value(vm, "gra");
  ck_assert_int_eq(str_length(value_str(a)), 4);
  ck_assert_int_eq(str_length(value_str(c)), 3);
  ck_assert(value_str(c)->head.flags & STR_ASCII);
  ck_assert(!(value_str(a)->head.flags & STR_ASCII));
  ck_assert(str_equal(value_str(a), value_str(b)));
  ck_assert(!str_equal(value_str(a), value_str(c)));
  ck_assert_int_eq(str_compare(value_str(a), value_str(c)), 1);
  ck_assert_int_eq(str_compare(value_str(c), value_str(a)), -1);
  ck_assert_int_eq(str_compare(value_str(a), value_str(b)), 0);
  qn_value prefix = str_value(vm, "gr");
  ck_assert_int_lt(str_compare(value_str(prefix), value_str(c)), 0);
  ck_assert_int_eq(value_str(c)->text[3], 0);
  value_release(vm, a);
  value_release(vm, b);
  value_release(vm, c);
  value_release(vm, prefix);
  vm_close(vm);
}
END_TEST

START_TEST(interned_strings_are_unique_and_go) {
  qn_vm *vm = vm_make();
  enum { N = 5000 };
  static qn_str *s[N];
  char text[32];
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < N; i++) {
      int n = snprintf(text, sizeof text, "name%d", i);
      s[i] = str_intern(vm, text, (size_t)n);
      qn_str *again = str_intern(vm, text, (size_t)n);
      ck_assert_ptr_eq(s[i], again);
      value_release(vm, value_obj(TAG_STR, again));
    }
    for (int i = 0; i < N; i += 2) value_release(vm, value_obj(TAG_STR, s[i]));
    for (int i = 1; i < N; i += 2) {
      int n = snprintf(text, sizeof text, "name%d", i);
      qn_str *again = str_intern(vm, text, (size_t)n);
      ck_assert_ptr_eq(s[i], again);
      value_release(vm, value_obj(TAG_STR, again));
    }
    for (int i = 1; i < N; i += 2) value_release(vm, value_obj(TAG_STR, s[i]));
  }
  size_t start = live(vm);
  qn_str *e = str_intern(vm, "", 0);
  value_release(vm, value_obj(TAG_STR, e));
  ck_assert_uint_eq(live(vm), start);
  vm_close(vm);
}
END_TEST

START_TEST(literals_are_quoted) {
  text_buf t = {0};
  text_quoted(&t, "a\"b\\c\n\t{x}\x01\xc3\xbc", 13);
  ck_assert_str_eq(t.text, "\"a\\\"b\\\\c\\n\\t\\{x\\}\\u{1}\xc3\xbc\"");
  text_free(&t);
}
END_TEST

/* ---- lists --------------------------------------------------------------------------------------------------- */

START_TEST(deep_values_are_freed_and_compared) {
  qn_vm *vm = vm_make();
  size_t start = live(vm);
  qn_value deep[2];
  for (int k = 0; k < 2; k++) {
    qn_value v = value_int(1);
    for (int i = 0; i < 1000000; i++) {
      if (i % 3 == 0) {
        qn_value r = record_value(vm);
        if (!set(vm, r, "x", v)) ck_abort();
        v = r;
      } else if (i % 3 == 1) {
        v = LIST(vm, value_float(0.5), v, value_nil());
      } else {
        qn_fn *f = fn_new(vm, FN_USER, &code, 1);
        f->captures[0] = v;
        v = k == 0 ? value_obj(TAG_FN, f) : LIST(vm, v);
        if (k == 1) {
          f->captures[0] = value_nil();
          value_release(vm, value_obj(TAG_FN, f));
        }
      }
    }
    deep[k] = v;
  }
  value_release(vm, deep[0]);
  qn_value other = value_int(2);
  for (int i = 0; i < 1000000; i++) other = LIST(vm, other);
  qn_value same = value_int(2);
  for (int i = 0; i < 1000000; i++) same = LIST(vm, same);
  ck_assert_int_eq(value_equal(vm, other, same), 1);
  ck_assert_int_eq(value_equal(vm, other, deep[1]), 0);
  ck_assert_int_eq(value_equal(vm, deep[1], deep[1]), 1);
  value_release(vm, deep[1]);
  value_release(vm, other);
  value_release(vm, same);
  ck_assert_uint_le(live(vm), start + 8192); /* the tables of names and layouts may have grown */
  vm_close(vm);
}
END_TEST

START_TEST(a_tree_with_shared_parts_is_freed_once) {
  qn_vm *vm = vm_make();
  size_t start = live(vm);
  qn_value v = LIST(vm, value_int(1));
  for (int i = 0; i < 200; i++) v = LIST(vm, value_retain(v), value_int(i), v);
  value_release(vm, v);
  ck_assert_uint_eq(live(vm), start);
  vm_close(vm);
}
END_TEST

START_TEST(lists_grow_and_copy_on_write) {
  qn_vm *vm = vm_make();
  size_t start = live(vm);
  qn_value v = value_obj(TAG_LIST, list_new(vm, 0));
  for (int i = 0; i < 10000; i++) ck_assert(list_push(vm, value_list(v), value_int(i)));
  ck_assert_uint_eq(value_list(v)->len, 10000);
  qn_list *before = value_list(v);
  ck_assert(list_own(vm, &v));
  ck_assert_ptr_eq(before, value_list(v));
  qn_value other = value_retain(v);
  ck_assert(list_own(vm, &v));
  ck_assert_ptr_ne(value_list(v), value_list(other));
  value_list(v)->items[5] = value_int(-1);
  ck_assert_int_eq(value_list(other)->items[5].u.i, 5);
  ck_assert_uint_eq(vm->copies.count, 1);
  value_release(vm, v);
  value_release(vm, other);
  ck_assert_uint_eq(live(vm), start);
  vm_close(vm);
}
END_TEST

/* ---- records ------------------------------------------------------------------------------------------------- */

START_TEST(records_built_alike_share_a_layout) {
  qn_vm *vm = vm_make();
  qn_value a = record_value(vm), b = record_value(vm), c = record_value(vm);
  ck_assert(set(vm, a, "w", value_int(1)) && set(vm, a, "b", value_int(2)));
  ck_assert(set(vm, b, "w", value_int(3)) && set(vm, b, "b", value_int(4)));
  ck_assert(set(vm, c, "b", value_int(2)) && set(vm, c, "w", value_int(1)));
  ck_assert_ptr_eq(value_record(a)->layout, value_record(b)->layout);
  ck_assert(record_same_layout(value_record(a), value_record(b)));
  ck_assert_ptr_ne(value_record(a)->layout, value_record(c)->layout);
  ck_assert(!record_same_layout(value_record(a), value_record(c)));
  ck_assert_int_eq(value_equal(vm, a, c), 1); /* by name */
  ck_assert_int_eq(value_equal(vm, a, b), 0);
  qn_value w = str_value(vm, "w"); /* not interned */
  ck_assert_int_eq(record_find(value_record(c), value_str(w)), 1);
  ck_assert_int_eq(record_find_text(value_record(c), "b", 1), 0);
  ck_assert_int_eq(record_find_text(value_record(c), "x", 1), -1);
  /* A site's cache: the layout stays the same object while it is held. */
  record_layout *cached = layout_retain(value_record(a)->layout);
  value_release(vm, a);
  value_release(vm, b);
  a = record_value(vm);
  ck_assert(set(vm, a, "w", value_int(1)) && set(vm, a, "b", value_int(2)));
  ck_assert_ptr_eq(value_record(a)->layout, cached);
  layout_release(vm, cached);
  value_release(vm, w);
  value_release(vm, a);
  value_release(vm, c);
  vm_close(vm);
}
END_TEST

START_TEST(records_of_any_size_are_found_and_reduced) {
  qn_vm *vm = vm_make();
  int sizes[] = {1, 8, 9, 63, 64, 65, 66, 200, 100000};
  char name[32];
  for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
    int n = sizes[k];
    qn_value r = record_value(vm);
    for (int i = 0; i < n; i++) {
      snprintf(name, sizeof name, "field_%d", i);
      if (!set(vm, r, name, value_int(i))) ck_abort();
    }
    ck_assert_uint_eq(value_record(r)->len, n);
    bool found = true;
    for (int i = 0; i < n; i++) {
      snprintf(name, sizeof name, "field_%d", i);
      found &= record_find_text(value_record(r), name, strlen(name)) == i;
    }
    ck_assert(found);
    ck_assert_int_eq(record_find_text(value_record(r), "field_", 6), -1);
    /* A second owner's change leaves the first alone, names included. */
    qn_value other = value_retain(r);
    ck_assert(record_own(vm, &other));
    ck_assert(set(vm, other, "more", value_int(1)));
    ck_assert(set(vm, other, "field_0", value_int(77)));
    ck_assert_int_eq(record_find_text(value_record(r), "more", 4), -1);
    ck_assert_int_eq(value_record(r)->items[0].u.i, 0);
    ck_assert_int_eq(value_record(other)->items[0].u.i, 77);
    qn_record *less = record_without(vm, value_record(other), 0);
    ck_assert_ptr_nonnull(less);
    ck_assert_int_eq(less->len, n);
    ck_assert_int_eq(record_find_text(less, "field_0", 7), -1);
    ck_assert_int_eq(record_find_text(less, "more", 4), n - 1);
    qn_record *like = record_like(vm, less);
    ck_assert(record_same_layout(like, less));
    ck_assert(value_is(like->items[n - 1], TAG_NIL));
    value_release(vm, value_obj(TAG_RECORD, like));
    value_release(vm, value_obj(TAG_RECORD, less));
    value_release(vm, other);
    value_release(vm, r);
  }
  vm_close(vm);
}
END_TEST

START_TEST(records_with_changing_names_leave_nothing) {
  qn_vm *vm = vm_make();
  char name[32];
  size_t after = 0;
  for (int i = 0; i < 3000; i++) {
    qn_value r = record_value(vm);
    for (int k = 0; k < 20; k++) {
      snprintf(name, sizeof name, "n%d_%d", i, k);
      ck_assert(set(vm, r, name, value_int(k)));
    }
    value_release(vm, r);
    if (i == 1000) after = live(vm);
  }
  ck_assert_uint_eq(live(vm), after);
  vm_close(vm);
}
END_TEST

/* ---- equality ------------------------------------------------------------------------------------------------ */

START_TEST(numbers_compare_exactly) {
  qn_vm *vm = vm_make();
  struct {
    qn_value a, b;
    int equal;
  } rows[] = {{value_int(1), value_float(1.0), 1},
              {value_int(((int64_t)1 << 53) + 1), value_float(0x1p53), 0},
              {value_int((int64_t)1 << 53), value_float(0x1p53), 1},
              {value_int(INT64_MAX), value_float(0x1p63), 0},
              {value_int(INT64_MIN), value_float(-0x1p63), 1},
              {value_int(0), value_float(-0.0), 1},
              {value_float(0.0), value_float(-0.0), 1},
              {value_int(1), value_float(1.5), 0},
              {value_int(0), value_float(__builtin_nan("")), 0},
              {value_int(1), value_float(__builtin_inf()), 0},
              {value_float(__builtin_nan("")), value_float(__builtin_nan("")), 0},
              {value_int(1), value_bool(true), 0},
              {value_nil(), value_bool(false), 0},
              {value_nil(), value_nil(), 1},
              {value_dtype(QN_f32), value_dtype(QN_f32), 1},
              {value_dtype(QN_f32), value_dtype(QN_f64), 0},
              {value_device(0), value_device(1), 0},
              {value_traced(value_int(3), 7), value_int(3), 1}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    ck_assert_int_eq(value_equal(vm, rows[i].a, rows[i].b), rows[i].equal);
    ck_assert_int_eq(value_equal(vm, rows[i].b, rows[i].a), rows[i].equal);
  }
  vm_close(vm);
}
END_TEST

START_TEST(structures_compare_by_content) {
  qn_vm *vm = vm_make();
  size_t start = live(vm);
  int64_t two = 2;
  float x[] = {1, 2}, nan[] = {1, __builtin_nanf("")};
  double y[] = {1, 2};
  qn_value ax = array_value(vm, QN_f32, 1, &two, x), bx = array_value(vm, QN_f32, 1, &two, x);
  qn_value an = array_value(vm, QN_f32, 1, &two, nan), ay = array_value(vm, QN_f64, 1, &two, y);
  ck_assert_int_eq(value_equal(vm, ax, bx), 1);
  ck_assert_int_eq(value_equal(vm, an, an), 0);
  ck_assert_int_eq(value_equal(vm, ax, ay), 0); /* another dtype */
  ck_assert_int_eq(value_equal(vm, ax, value_nil()), 0);
  qn_value l = LIST(vm, ax, value_int(1), str_value(vm, "s")), m = LIST(vm, bx, value_float(1), str_value(vm, "s"));
  ck_assert_int_eq(value_equal(vm, l, m), 1);
  value_list(m)->items[1] = value_int(2);
  ck_assert_int_eq(value_equal(vm, l, m), 0);
  qn_value shorter = LIST(vm, value_int(1));
  ck_assert_int_eq(value_equal(vm, l, shorter), 0);
  qn_value r = value_obj(TAG_RANGE, range_new(vm, 0, 10, 3)), q = value_obj(TAG_RANGE, range_new(vm, 0, 12, 3));
  qn_value e = value_obj(TAG_RANGE, range_new(vm, 5, 5, 1)), f = value_obj(TAG_RANGE, range_new(vm, 9, 0, 2));
  ck_assert_int_eq(value_equal(vm, r, q), 1); /* 0 3 6 9 both */
  ck_assert_int_eq(value_equal(vm, e, f), 1);
  ck_assert_int_eq(value_equal(vm, r, e), 0);
  qn_value fn = value_obj(TAG_FN, fn_new(vm, FN_USER, &code, 0)), gn = value_obj(TAG_FN, fn_new(vm, FN_USER, &code, 0));
  ck_assert_int_eq(value_equal(vm, fn, fn), 1);
  ck_assert_int_eq(value_equal(vm, fn, gn), 0);
  qn_value all[] = {an, ay, l, m, shorter, r, q, e, f, fn, gn};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) value_release(vm, all[i]);
  ck_assert_uint_eq(live(vm), start);
  vm_close(vm);
}
END_TEST

/* Equality by its definition, without regard to what is shared. */
static bool plainly_equal(qn_vm *vm, qn_value a, qn_value b) {
  if (!value_is(a, TAG_LIST) || !value_is(b, TAG_LIST)) return value_equal(vm, a, b) == 1;
  if (value_list(a)->len != value_list(b)->len) return false;
  for (uint32_t i = 0; i < value_list(a)->len; i++)
    if (!plainly_equal(vm, value_list(a)->items[i], value_list(b)->items[i])) return false;
  return true;
}

static uint32_t draw(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 33);
}

/* Lists of two or three lists of the level below, in two sets that share their parts differently and differ in few leaves. */
START_TEST(shared_parts_compare_like_unshared_ones) {
  qn_vm *vm = vm_make();
  size_t start = live(vm);
  enum { WIDE = 4, HIGH = 11 };
  int equal[2] = {0};
  for (uint64_t seed = 1; seed <= 60; seed++) {
    uint64_t state = seed;
    qn_value level[2][WIDE], next[2][WIDE];
    for (int k = 0; k < WIDE; k++) {
      double leaf = draw(&state) % 2;
      for (int s = 0; s < 2; s++) {
        bool other = draw(&state) % 20 == 0;
        level[s][k] = LIST(vm, other ? value_float(draw(&state) % 2 ? __builtin_nan("") : 7) : value_float(leaf));
      }
    }
    for (int h = 0; h < HIGH; h++) {
      for (int k = 0; k < WIDE; k++) {
        int n = 2 + (int)(draw(&state) % 2);
        qn_value items[2][3];
        for (int i = 0; i < n; i++) {
          uint32_t from = draw(&state) % WIDE;
          for (int s = 0; s < 2; s++) {
            qn_value v = level[s][from];
            items[s][i] = draw(&state) % 3
                              ? value_retain(v)
                              : value_obj(TAG_LIST, list_from(vm, value_list(v)->items, value_list(v)->len));
          }
        }
        for (int s = 0; s < 2; s++) next[s][k] = list_value(vm, n, items[s]);
      }
      for (int s = 0; s < 2; s++)
        for (int k = 0; k < WIDE; k++) {
          value_release(vm, level[s][k]);
          level[s][k] = next[s][k];
        }
    }
    for (int k = 0; k < WIDE; k++) {
      int same = value_equal(vm, level[0][k], level[1][k]), self = value_equal(vm, level[0][k], level[0][k]);
      if (same != plainly_equal(vm, level[0][k], level[1][k]) || self != plainly_equal(vm, level[0][k], level[0][k]))
        ck_abort_msg("seed %d", (int)seed);
      equal[same]++;
      value_release(vm, level[0][k]);
      value_release(vm, level[1][k]);
    }
  }
  ck_assert(equal[0] > 10 && equal[1] > 10);
  ck_assert_uint_eq(live(vm), start);
  vm_close(vm);
}
END_TEST

static bool any_leaf(void *ctx, qn_value v) { return (void)ctx, value_is(v, TAG_INT); }

static qn_value same_leaf(void *ctx, qn_value v) { return (void)ctx, value_retain(v); }

START_TEST(shared_parts_without_end_take_no_time) {
  qn_vm *vm = vm_make();
  qn_value a = LIST(vm, value_int(1)), b = LIST(vm, value_int(1)), c = LIST(vm, value_int(1), value_int(2)),
           n = LIST(vm, value_float(__builtin_nan("")));
  for (int i = 0; i < 300; i++) {
    a = LIST(vm, value_retain(a), a);
    b = LIST(vm, value_retain(b), b);
    c = LIST(vm, value_retain(i ? c : a), c);
    n = LIST(vm, value_retain(n), n);
  }
  ck_assert_int_eq(value_equal(vm, a, b), 1);
  ck_assert_int_eq(value_equal(vm, a, a), 1);
  ck_assert_int_eq(value_equal(vm, a, c), 0);
  ck_assert_int_eq(value_equal(vm, n, n), 0);
  ck_assert(!tree_each(vm, a, any_leaf, NULL));
  ck_assert_int_eq(taken_error(vm), E_too_large);
  ck_assert(value_is_error(tree_rebuild(vm, a, same_leaf, NULL)));
  ck_assert_int_eq(taken_error(vm), E_too_large);
  /* Many values, but each its own; and a part that is there a few times. */
  qn_list *l = list_new(vm, 0);
  for (int i = 0; i < 20000; i++) ck_assert(list_push(vm, l, LIST(vm, value_int(i))));
  qn_value many = value_obj(TAG_LIST, l), thrice = LIST(vm, value_retain(many), value_retain(many), many);
  ck_assert(tunable_set(vm, "tree.places", "5000"));
  ck_assert(tree_each(vm, thrice, any_leaf, NULL));
  qn_value all[] = {a, b, c, n, thrice};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) value_release(vm, all[i]);
  vm_close(vm);
}
END_TEST

START_TEST(comparing_can_be_interrupted) {
  qn_vm *vm = vm_make();
  qn_value a = LIST(vm, value_int(1)), b = LIST(vm, value_int(1));
  for (int i = 0; i < 100; i++) {
    a = LIST(vm, value_retain(a), a);
    b = LIST(vm, value_retain(b), b);
  }
  qn_interrupt(vm);
  ck_assert_int_eq(value_equal(vm, a, b), -1);
  ck_assert_int_eq(taken_error(vm), E_interrupted);
  value_release(vm, a);
  value_release(vm, b);
  vm_close(vm);
}
END_TEST

START_TEST(kinds_have_names) {
  ck_assert_str_eq(value_kind_name(value_nil()), "nil");
  ck_assert_str_eq(value_kind_name(value_traced(value_int(3), 9)), "int");
  ck_assert_str_eq(value_kind_name(value_dtype(QN_f32)), "dtype");
}
END_TEST

START_TEST(ranges_count) {
  qn_vm *vm = vm_make();
  struct {
    int64_t start, stop, step, n;
  } rows[] = {{0, 10, 1, 10},
              {0, 10, 3, 4},
              {10, 0, -3, 4},
              {0, 0, 1, 0},
              {5, 0, 1, 0},
              {0, 5, -1, 0},
              {0, 9, 3, 3},
              {INT64_MIN, INT64_MAX, 1, INT64_MAX},
              {INT64_MAX, INT64_MIN, INT64_MIN, 2},
              {0, 1, INT64_MAX, 1}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    qn_range *r = range_new(vm, rows[i].start, rows[i].stop, rows[i].step);
    ck_assert_int_eq(range_length(r), rows[i].n);
    value_release(vm, value_obj(TAG_RANGE, r));
  }
  ck_assert_ptr_null(range_new(vm, 0, 1, 0));
  ck_assert_int_eq(taken_error(vm), E_argument);
  vm_close(vm);
}
END_TEST

/* ---- trees --------------------------------------------------------------------------------------------------- */

typedef struct collected {
  text_buf text;
  int left; /* leaves until the walk is stopped; -1: never */
} collected;

static bool collect(void *ctx, qn_value v) {
  collected *c = ctx;
  text_kind(&c->text, v);
  text_adds(&c->text, ";");
  return c->left < 0 || --c->left > 0;
}

static qn_value sample_tree(qn_vm *vm) {
  qn_value layer = record_value(vm), tree = record_value(vm);
  ck_assert(set(vm, layer, "w", value_float(0.5)) && set(vm, layer, "a b", value_nil()));
  ck_assert(set(vm, tree, "layers", LIST(vm, layer, value_int(2), LIST(vm, value_int(3)))));
  ck_assert(set(vm, tree, "empty", value_obj(TAG_LIST, list_new(vm, 0))));
  ck_assert(set(vm, tree, "name", str_value(vm, "x")));
  return tree;
}

START_TEST(leaves_come_in_order) {
  qn_vm *vm = vm_make();
  qn_value tree = sample_tree(vm);
  collected c = {.left = -1};
  ck_assert(tree_each(vm, tree, collect, &c));
  ck_assert_str_eq(c.text.text, "float 0.5;nil;int 2;int 3;str \"x\";");
  text_free(&c.text);
  c.left = 2;
  ck_assert(!tree_each(vm, tree, collect, &c));
  text_free(&c.text);
  c.left = -1;
  ck_assert(tree_each(vm, value_int(1), collect, &c));
  ck_assert_str_eq(c.text.text, "int 1;");
  text_free(&c.text);
  value_release(vm, tree);
  vm_close(vm);
}
END_TEST

static qn_value doubled(void *ctx, qn_value v) {
  if (value_is(v, TAG_INT)) return value_int(v.u.i * 2);
  if (value_is(v, TAG_STR) && ctx) return raise_error(ctx, E_user, SPAN_NONE, "no strings");
  return value_retain(v);
}

START_TEST(trees_are_rebuilt) {
  qn_vm *vm = vm_make();
  qn_value tree = sample_tree(vm);
  size_t start = live(vm);
  qn_value out = tree_rebuild(vm, tree, doubled, NULL);
  ck_assert(!value_is_error(out));
  collected c = {.left = -1};
  ck_assert(tree_each(vm, out, collect, &c));
  ck_assert_str_eq(c.text.text, "float 0.5;nil;int 4;int 6;str \"x\";");
  text_free(&c.text);
  ck_assert_uint_eq(value_record(out)->len, 3);
  value_release(vm, out);
  out = tree_rebuild(vm, tree, doubled, vm);
  ck_assert(value_is_error(out));
  ck_assert_int_eq(taken_error(vm), E_user);
  ck_assert_uint_eq(live(vm), start);
  value_release(vm, tree);
  qn_value deep = value_int(1);
  for (int i = 0; i < 3000; i++) deep = LIST(vm, deep);
  out = tree_rebuild(vm, deep, doubled, NULL);
  for (qn_value v = out;; v = value_list(v)->items[0])
    if (!value_is(v, TAG_LIST)) {
      ck_assert_int_eq(v.u.i, 2);
      break;
    }
  value_release(vm, out);
  value_release(vm, deep);
  vm_close(vm);
}
END_TEST

/* ---- signatures ---------------------------------------------------------------------------------------------- */

START_TEST(signatures_are_read) {
  qn_vm *vm = vm_make();
  signature s;
  ck_assert(signature_parse(vm, "reshape(x, ..shape)", &s));
  ck_assert_int_eq(s.nparams, 2);
  ck_assert_str_eq(s.params[0].name->text, "x");
  ck_assert(value_is(s.params[0].def, TAG_UNSET) && !s.params[0].rest);
  ck_assert(s.params[1].rest && !s.params[1].keyword_only);
  signature_free(vm, &s);
  ck_assert(
      signature_parse(vm, "f(@xs, ~y, a = nil, b = -1, *, c = 1e-3, d = \"none\", e = f32, g = false, h = ())", &s));
  ck_assert_int_eq(s.nparams, 9);
  ck_assert(s.params[0].move && !s.params[0].data && s.params[1].data);
  ck_assert(value_is(s.params[2].def, TAG_NIL));
  ck_assert_int_eq(s.params[3].def.u.i, -1);
  ck_assert(!s.params[3].keyword_only && s.params[4].keyword_only && s.params[8].keyword_only);
  ck_assert_double_eq(s.params[4].def.u.f, 1e-3);
  ck_assert_str_eq(value_str(s.params[5].def)->text, "none");
  ck_assert(value_is(s.params[6].def, TAG_DTYPE) && s.params[6].def.u.i == QN_f32);
  ck_assert(value_is(s.params[7].def, TAG_BOOL) && !s.params[7].def.u.i);
  ck_assert(value_is(s.params[8].def, TAG_LIST));
  signature_free(vm, &s);
  ck_assert(signature_parse(vm, "print(..values, to = \"stdout\")", &s));
  ck_assert(s.params[1].keyword_only);
  signature_free(vm, &s);
  ck_assert(signature_parse(vm, "time()", &s));
  ck_assert_int_eq(s.nparams, 0);
  signature_free(vm, &s);
  const char *bad[] = {"",          "f",       "f(",   "f(x",         "f(x,)",      "f(x = )",   "f(x = y)",
                       "f(x) more", "f(x, x)", "f(1)", "f(..a, ..b)", "f(*, *, a)", "f(x = \"a)"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    ck_assert_msg(!signature_parse(vm, bad[i], &s), "%s", bad[i]);
    ck_assert_int_eq(taken_error(vm), E_internal);
  }
  vm_close(vm);
}
END_TEST

int main(void) {
  Suite *s = suite_create("lang_value");
  CASE(tcase_create("utf8"), utf8_is_checked, widths_of_code_points);
  CASE(tcase_create("strings"), strings_count_and_compare_code_points, interned_strings_are_unique_and_go,
       literals_are_quoted);
  CASE(tcase_create("lists"), deep_values_are_freed_and_compared, a_tree_with_shared_parts_is_freed_once,
       lists_grow_and_copy_on_write);
  CASE(tcase_create("records"), records_built_alike_share_a_layout, records_of_any_size_are_found_and_reduced,
       records_with_changing_names_leave_nothing);
  CASE(tcase_create("equality"), numbers_compare_exactly, structures_compare_by_content,
       shared_parts_compare_like_unshared_ones, shared_parts_without_end_take_no_time, comparing_can_be_interrupted);
  CASE(tcase_create("kinds"), kinds_have_names, ranges_count);
  CASE(tcase_create("trees"), leaves_come_in_order, trees_are_rebuilt);
  CASE(tcase_create("signatures"), signatures_are_read);
  return run_suite(s);
}
