/* Errors: reports as golden text, records and rethrowing, traces, phrases of messages, source texts. */
#include "tests/unit/lang.h"

/* Byte offset of a piece of a text; the text must contain it. */
static span find(qn_vm *vm, uint32_t source, const char *piece) {
  const source_text *s = source_get(vm, source);
  const char *at = strstr(s->text, piece);
  ck_assert_ptr_nonnull(at);
  uint32_t start = (uint32_t)(at - s->text);
  return (span){source, start, start + (uint32_t)strlen(piece)};
}

static uint32_t add(qn_vm *vm, const char *name, const char *text) {
  uint32_t s = source_add(vm, name, text, strlen(text));
  ck_assert_uint_ne(s, 0);
  return s;
}

static void expect_report(qn_vm *vm, const char *want) {
  text_buf t = {0};
  error_render(vm, vm->error, &t, false, 0);
  ck_assert_str_eq(t.text, want);
  text_free(&t);
  error_clear(vm);
}

START_TEST(narrow_terminals_break_between_words) {
  qn_vm *vm = vm_make();
  uint32_t s = add(vm, "a.qn", "let result_of_this = first_operand_of_it + second_operand_of_it * 3\n");
  (void)raise_error(vm, E_type, (span){s, 41, 65}, "one two three four five six seven eight nine");
  text_buf t = {0};
  error_render(vm, vm->error, &t, false, 40);
  ck_assert_str_eq(t.text, "error[E301]: one two three four five six\n"
                           "  seven eight nine\n"
                           "  --> a.qn:1:42\n"
                           "    1 | d_of_it + second_operand_of_it *\n"
                           "      |         ~~~~~~~~~~~~~~~~~~~~~~~~\n");
  for (const char *line = t.text; *line; line = strchr(line, '\n') + 1) ck_assert_int_le(strcspn(line, "\n"), 40);
  text_free(&t);
  vm_close(vm);
}
END_TEST

START_TEST(operands_are_labelled) {
  qn_vm *vm = vm_make();
  uint32_t s = add(vm, "train.qn", "\n\n\n\n\n\n\n\n\n\n\n  let h = x @ w + b\n");
  raise_error(vm, E_broadcast, find(vm, s, "+"), "shapes do not broadcast: axis %d is %d and %d", -1, 3, 5);
  raise_note(vm, find(vm, s, "x @ w"), "f32[4, 3]  x @ w");
  raise_note(vm, find(vm, s, "b\n"), "f32[5]  b, from train.qn:8");
  vm->error->notes[1].at.end--;
  expect_report(vm, "error[E203]: shapes do not broadcast: axis -1 is 3 and 5\n"
                    "  --> train.qn:12:17\n"
                    "   12 |   let h = x @ w + b\n"
                    "      |           ~~~~~   ~\n"
                    "      |           |       f32[5]      b, from train.qn:8\n"
                    "      |           f32[4, 3]           x @ w\n");
  vm_close(vm);
}
END_TEST

START_TEST(the_place_is_underlined_without_notes) {
  qn_vm *vm = vm_make();
  uint32_t s = add(vm, "a.qn", "let x = 1 // 0");
  raise_error(vm, E_div_zero, find(vm, s, "1 // 0"), "integer division by zero");
  expect_report(vm, "error[E306]: integer division by zero\n"
                    "  --> a.qn:1:9\n"
                    "    1 | let x = 1 // 0\n"
                    "      |         ~~~~~~\n");
  raise_error(vm, E_syntax, (span){s, 14, 14}, "an operand is missing");
  expect_report(vm, "error[E102]: an operand is missing\n"
                    "  --> a.qn:1:15\n"
                    "    1 | let x = 1 // 0\n"
                    "      |               ~\n");
  raise_error(vm, E_file, SPAN_NONE, "no place");
  raise_note(vm, SPAN_NONE, "try another name");
  expect_report(vm, "error[E501]: no place\n"
                    "      = try another name\n");
  vm_close(vm);
}
END_TEST

START_TEST(tabs_and_wide_characters_are_measured) {
  qn_vm *vm = vm_make();
  uint32_t s = add(vm, "wide.qn", "\tlet \xe5\x90\x8d\xe5\x89\x8d = e\xcc\x81 + b\r\nnext");
  raise_error(vm, E_type, find(vm, s, "b"), "no");
  expect_report(vm, "error[E301]: no\n"
                    "  --> wide.qn:1:16\n"
                    "    1 |     let \xe5\x90\x8d\xe5\x89\x8d = e\xcc\x81 + b\n"
                    "      |                    ~\n");
  s = add(vm, "control.qn",
          "a\x01"
          "b c");
  raise_error(vm, E_type, find(vm, s, "c"), "no");
  expect_report(vm, "error[E301]: no\n"
                    "  --> control.qn:1:5\n"
                    "    1 | a\xef\xbf\xbd"
                    "b c\n"
                    "      |     ~\n");
  vm_close(vm);
}
END_TEST

START_TEST(spans_of_several_lines) {
  qn_vm *vm = vm_make();
  uint32_t s = add(vm, "m.qn", "let y = f(a,\n          b)\nlet z = g(1,\n\n\n  2)\n");
  raise_error(vm, E_arity, find(vm, s, "f(a,\n          b)"), "two");
  expect_report(vm, "error[E403]: two\n"
                    "  --> m.qn:1:9\n"
                    "    1 | let y = f(a,\n"
                    "      |         ~~~~\n"
                    "    2 |           b)\n"
                    "      |           ~~\n");
  raise_error(vm, E_arity, find(vm, s, "g(1,\n\n\n  2)"), "four");
  raise_note(vm, find(vm, s, "1"), "int 1");
  expect_report(vm, "error[E403]: four\n"
                    "  --> m.qn:3:9\n"
                    "    3 | let z = g(1,\n"
                    "      |           ~\n"
                    "      |           int 1\n"
                    "  ... |\n"
                    "    6 |   2)\n"
                    "      |   ~~\n");
  vm_close(vm);
}
END_TEST

START_TEST(notes_in_other_places) {
  qn_vm *vm = vm_make();
  uint32_t s = add(vm, "a.qn", "let w = zeros(3)\nlet u = 1\nlet y = x + w\n"), o = add(vm, "lib.qn", "fn f(x) = x");
  raise_error(vm, E_broadcast, find(vm, s, "x + w"), "no");
  raise_note(vm, find(vm, s, "zeros(3)"), "made here");
  raise_note(vm, find(vm, o, "= x"), "and there");
  expect_report(vm, "error[E203]: no\n"
                    "  --> a.qn:3:9\n"
                    "    1 | let w = zeros(3)\n"
                    "      |         ~~~~~~~~\n"
                    "      |         made here\n"
                    "    2 | let u = 1\n"
                    "    3 | let y = x + w\n"
                    "      |         ~~~~~\n"
                    "  --> lib.qn:1:9\n"
                    "    1 | fn f(x) = x\n"
                    "      |         ~~~\n"
                    "      |         and there\n");
  vm_close(vm);
}
END_TEST

START_TEST(long_lines_are_cut) {
  qn_vm *vm = vm_make();
  char text[1001];
  memset(text, 'a', 1000);
  text[1000] = 0;
  memcpy(text + 500, " bad ", 5);
  uint32_t s = add(vm, "long.qn", text);
  raise_error(vm, E_type, find(vm, s, "bad"), "no");
  text_buf t = {0};
  error_render(vm, vm->error, &t, false, 0);
  ck_assert_uint_lt(t.len, 300);
  const char *line = strstr(t.text, "    1 | "), *under = strstr(line, "~~~");
  const char *second = strstr(line, "      | ");
  ck_assert_int_eq(strstr(line, "bad") - line, under - second);
  text_free(&t);
  error_clear(vm);
  vm_close(vm);
}
END_TEST

START_TEST(traces_show_functions_and_repetition) {
  qn_vm *vm = vm_make();
  uint32_t s = add(vm, "t.qn", "fn f(n) = f(n - 1)\nf(10)\n");
  qn_str *f = str_intern(vm, "f", 1);
  size_t start = live(vm);
  raise_error(vm, E_recursion, find(vm, s, "n - 1"), "recursion too deep");
  raise_frame(vm, find(vm, s, "n - 1"), f);
  for (int i = 0; i < 1000; i++) raise_frame(vm, find(vm, s, "f(n - 1)"), f);
  raise_frame(vm, find(vm, s, "f(10)"), NULL);
  ck_assert_int_eq(vm->error->nframes, ERROR_FRAMES);
  ck_assert_int_eq(vm->error->frames_dropped, 1002 - ERROR_FRAMES);
  expect_report(vm, "error[E602]: recursion too deep\n"
                    "  --> t.qn:1:13\n"
                    "    1 | fn f(n) = f(n - 1)\n"
                    "      |             ~~~~~\n"
                    "  in f at t.qn:1:13\n"
                    "  in f at t.qn:1:11 (15 times)\n"
                    "  ... 970 more\n"
                    "  in f at t.qn:1:11 (15 times)\n"
                    "  at t.qn:2:1\n");
  ck_assert_uint_eq(live(vm), start);
  ck_assert_uint_eq(f->head.refs, 1);
  value_release(vm, value_obj(TAG_STR, f));
  vm_close(vm);
}
END_TEST

START_TEST(colours_are_optional) {
  qn_vm *vm = vm_make();
  uint32_t s = add(vm, "a.qn", "x");
  raise_error(vm, E_undefined, find(vm, s, "x"), "x is not defined");
  text_buf t = {0};
  error_render(vm, vm->error, &t, true, 0);
  ck_assert_ptr_nonnull(strstr(t.text, "\033[1;31merror[E401]\033[0m"));
  text_free(&t);
  error_clear(vm);
  vm_close(vm);
}
END_TEST

/* ---- records ------------------------------------------------------------------------------------------------- */

static qn_value field(qn_value record, const char *name) {
  int i = record_find_text(value_record(record), name, strlen(name));
  ck_assert_int_ge(i, 0);
  return value_record(record)->items[i];
}

START_TEST(caught_errors_are_records_and_go_back) {
  qn_vm *vm = vm_make();
  uint32_t s = add(vm, "a.qn", "\nlet \xc3\xa4 = g(1)\n");
  qn_str *g = str_intern(vm, "g", 1);
  raise_error(vm, E_index, find(vm, s, "g(1)"), "index 5 is out of bounds");
  raise_frame(vm, find(vm, s, "g(1)"), g);
  raise_frame(vm, find(vm, s, "let"), NULL);
  value_release(vm, value_obj(TAG_STR, g));
  ck_assert(error_catchable(vm));
  qn_error_object *e = error_take(vm);
  ck_assert(!error_pending(vm));
  qn_value r = error_to_record(vm, e);
  ck_assert_str_eq(value_str(field(r, "id"))->text, "E303");
  ck_assert_str_eq(value_str(field(r, "message"))->text, "index 5 is out of bounds");
  ck_assert_int_eq(field(r, "line").u.i, 2);
  qn_value trace = field(r, "trace");
  ck_assert_uint_eq(value_list(trace)->len, 2);
  qn_value first = value_list(trace)->items[0];
  ck_assert_str_eq(value_str(field(first, "function"))->text, "g");
  ck_assert_str_eq(value_str(field(first, "source"))->text, "a.qn");
  ck_assert_int_eq(field(first, "column").u.i, 9);
  ck_assert_int_eq(field(first, "length").u.i, 4);
  ck_assert(value_is(field(value_list(trace)->items[1], "function"), TAG_NIL));
  ck_assert(value_is_error(raise_record(vm, SPAN_NONE, r)));
  ck_assert_int_eq(vm->error->id, E_index);
  ck_assert_int_eq(memcmp(&vm->error->at, &e->at, sizeof e->at), 0);
  ck_assert_int_eq(vm->error->nframes, 2);
  ck_assert_int_eq(memcmp(&vm->error->frames[1].at, &e->frames[1].at, sizeof e->at), 0);
  qn_value again = error_to_record(vm, vm->error);
  ck_assert_int_eq(value_equal(vm, r, again), 1);
  value_release(vm, again);
  value_release(vm, r);
  error_free(vm, e);
  error_clear(vm);
  vm_close(vm);
}
END_TEST

START_TEST(records_of_the_program_keep_their_fields) {
  qn_vm *vm = vm_make();
  uint32_t s = add(vm, "a.qn", "error({code: 3})");
  qn_value r = record_value(vm);
  ck_assert(set(vm, r, "code", value_int(3)) && set(vm, r, "message", str_value(vm, "mine")));
  raise_record(vm, find(vm, s, "error"), r);
  ck_assert_int_eq(vm->error->id, E_user);
  ck_assert_uint_eq(vm->error->at.end, 5);
  qn_value caught = error_to_record(vm, vm->error);
  ck_assert_str_eq(value_str(field(caught, "id"))->text, "E701");
  ck_assert_str_eq(value_str(field(caught, "message"))->text, "mine");
  ck_assert_int_eq(field(caught, "code").u.i, 3);
  ck_assert_int_eq(field(caught, "line").u.i, 1);
  value_release(vm, caught);
  error_clear(vm);
  /* What cannot be is not believed: limits cannot be forged, odd traces are passed over. */
  ck_assert(set(vm, r, "id", str_value(vm, "E603")) && set(vm, r, "message", value_int(1)));
  qn_value entry = record_value(vm);
  ck_assert(set(vm, entry, "source", str_value(vm, "a.qn")) && set(vm, entry, "line", value_int(99)));
  ck_assert(set(vm, r, "trace", LIST(vm, value_int(1), entry)));
  raise_record(vm, SPAN_NONE, r);
  ck_assert_int_eq(vm->error->id, E_user);
  ck_assert_str_eq(vm->error->message->text, "error");
  error_clear(vm);
  value_release(vm, r);
  vm_close(vm);
}
END_TEST

START_TEST(the_first_error_stays) {
  qn_vm *vm = vm_make();
  size_t start = live(vm);
  ck_assert(value_is_error(raise_error(vm, E_index, SPAN_NONE, "first")));
  raise_error(vm, E_key, SPAN_NONE, "second");
  raise_memory(vm);
  ck_assert_int_eq(vm->error->id, E_index);
  raise_at(vm, (span){1, 2, 3});
  raise_at(vm, (span){4, 5, 6});
  ck_assert_uint_eq(vm->error->at.source, 1);
  qn_error_object *e = error_take(vm);
  raise_error(vm, E_key, SPAN_NONE, "third");
  error_put_back(vm, e); /* another one is pending: that one stays */
  ck_assert_int_eq(taken_error(vm), E_key);
  raise_error(vm, E_interrupted, SPAN_NONE, "stop");
  ck_assert(!error_catchable(vm));
  error_clear(vm);
  /* The error for want of memory needs none, also when it is held while it happens again. */
  mem_fail_at(vm, 1);
  ck_assert_ptr_null(mem_alloc(vm, 10));
  raise_at(vm, (span){1, 2, 3});
  e = error_take(vm);
  raise_memory(vm);
  raise_at(vm, (span){9, 9, 9});
  ck_assert_ptr_eq(vm->error, e);
  error_clear(vm);
  ck_assert_uint_eq(e->at.source, 1);
  error_free(vm, e);
  raise_memory(vm);
  ck_assert_uint_eq(vm->error->at.source, 0);
  ck_assert_str_eq(qn_error_message(vm), "out of memory");
  error_clear(vm);
  ck_assert_uint_eq(live(vm), start);
  vm_close(vm);
}
END_TEST

START_TEST(hosts_see_errors) {
  qn_vm *vm = vm_make();
  ck_assert_str_eq(qn_error_id(vm), "");
  ck_assert_str_eq(qn_error_report(vm), "");
  ck_assert_int_eq(qn_error_line(vm), 0);
  uint32_t s = add(vm, "a.qn", "\n\nx");
  raise_error(vm, E_undefined, find(vm, s, "x"), "x is not defined");
  ck_assert_str_eq(qn_error_id(vm), "E401");
  ck_assert_str_eq(qn_error_source(vm), "a.qn");
  ck_assert_int_eq(qn_error_line(vm), 3);
  ck_assert_str_eq(qn_error_report(vm), "error[E401]: x is not defined\n"
                                        "  --> a.qn:3:1\n"
                                        "    3 | x\n"
                                        "      | ~\n");
  qn_value v;
  ck_assert_int_eq(qn_string(vm, "ok", 2, &v), QN_OK); /* clears it */
  ck_assert_str_eq(qn_error_id(vm), "");
  qn_release(vm, v);
  ck_assert_int_eq(qn_string(vm, "a\xff", 2, &v), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), "E101");
  const char *names[] = {"a", "b", "a"};
  qn_value items[] = {qn_int(1), qn_float(2), qn_bool(true)};
  ck_assert_int_eq(qn_record_from(vm, names, items, 3, &v), QN_OK);
  ck_assert_uint_eq(qn_length(v), 2);
  qn_value f;
  ck_assert_int_eq(qn_field(vm, v, "a", &f), QN_OK);
  ck_assert(qn_as_bool(f));
  ck_assert_int_eq(qn_field(vm, v, "c", &f), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), "E310");
  ck_assert_int_eq(qn_item(vm, v, 1, &f), QN_OK);
  ck_assert(qn_as_float(f) == 2.0);
  ck_assert_int_eq(qn_item(vm, v, 2, &f), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), "E303");
  ck_assert_int_eq(qn_item(vm, qn_nil(), 0, &f), QN_ERROR);
  qn_release(vm, v);
  ck_assert_int_eq(qn_list_from(vm, items, 3, &v), QN_OK);
  ck_assert_uint_eq(qn_length(v), 3);
  ck_assert_int_eq(qn_as_int(value_list(v)->items[0]), 1);
  size_t len;
  ck_assert_ptr_null(qn_as_string(v, &len));
  qn_release(vm, v);
  vm_close(vm);
}
END_TEST

/* ---- phrases ------------------------------------------------------------------------------------------------- */

static const char *kind(text_buf *t, qn_value v) {
  text_free(t);
  text_kind(t, v);
  return t->text;
}

START_TEST(values_are_described) {
  qn_vm *vm = vm_make();
  text_buf t = {0};
  ck_assert_str_eq(kind(&t, value_nil()), "nil");
  ck_assert_str_eq(kind(&t, value_bool(true)), "bool true");
  ck_assert_str_eq(kind(&t, value_int(-3)), "int -3");
  ck_assert_str_eq(kind(&t, value_float(0.5)), "float 0.5");
  ck_assert_str_eq(kind(&t, value_dtype(QN_bf16)), "dtype bf16");
  ck_assert_str_eq(kind(&t, value_device(0)), "device cpu");
  ck_assert_str_eq(kind(&t, value_device(2)), "device gpu(1)");
  qn_value v = str_value(vm, "a \"b\"");
  ck_assert_str_eq(kind(&t, v), "str \"a \\\"b\\\"\"");
  value_release(vm, v);
  v = str_value(vm, "0123456789012345678901234567890123456789more");
  ck_assert_str_eq(kind(&t, v), "str \"0123456789012345678901234567890123456789\"...");
  value_release(vm, v);
  v = LIST(vm, value_nil(), value_nil());
  ck_assert_str_eq(kind(&t, v), "list of 2");
  value_release(vm, v);
  v = record_value(vm);
  ck_assert(set(vm, v, "w", value_nil()) && set(vm, v, "b", value_nil()));
  ck_assert_str_eq(kind(&t, v), "record {w, b}");
  value_release(vm, v);
  v = value_obj(TAG_RANGE, range_new(vm, 0, 9, 2));
  ck_assert_str_eq(kind(&t, v), "range 0..9 by 2");
  value_release(vm, v);
  v = value_obj(TAG_ARRAY, array_new_header(vm, QN_f32, 2, (int64_t[]){4, 3}));
  ck_assert_str_eq(kind(&t, v), "f32[4, 3]");
  value_release(vm, v);
  static const builtin_def sum = {.name = "sum"};
  v = value_obj(TAG_FN, fn_new(vm, FN_BUILTIN, (void *)&sum, 0));
  ck_assert_str_eq(kind(&t, v), "fn sum");
  value_release(vm, v);
  text_free(&t);
  vm_close(vm);
}
END_TEST

START_TEST(near_names_are_found) {
  static const char *const names[] = {"append", "arange", "argmax", "reshape", "softmax", "sum", "mean", "max"};
  int n = sizeof names / sizeof *names;
  text_buf t = {0};
  ck_assert(text_nearest(&t, "", "apend", names, n));
  ck_assert_str_eq(t.text, "append");
  text_free(&t);
  ck_assert(text_nearest(&t, "", "resahpe", names, n)); /* swapped */
  ck_assert_str_eq(t.text, "reshape");
  text_free(&t);
  ck_assert(text_nearest(&t, "", "Softmax", names, n));
  ck_assert_str_eq(t.text, "softmax");
  text_free(&t);
  ck_assert(text_nearest(&t, "", "maxx", names, n));
  ck_assert_str_eq(t.text, "max");
  text_free(&t);
  ck_assert(!text_nearest(&t, "", "convolve", names, n));
  ck_assert(!text_nearest(&t, "", "", names, n));
  ck_assert(!text_nearest(&t, "", "x", names, n));
  text_free(&t);
}
END_TEST

START_TEST(every_error_has_a_row) {
  for (int i = 0; i < error_row_count; i++) {
    ck_assert_ptr_eq(error_find(error_rows[i].id), &error_rows[i]);
    if (i) ck_assert_int_gt(error_rows[i].id, error_rows[i - 1].id);
  }
  ck_assert_ptr_null(error_find(100));
  ck_assert_ptr_null(error_find(999));
}
END_TEST

START_TEST(texts_know_lines_and_columns) {
  qn_vm *vm = vm_make();
  uint32_t s = add(vm, "a.qn",
                   "ab\n\xc3\xa4\xe4\xb8\xad"
                   "c\n");
  const source_text *t = source_get(vm, s);
  ck_assert_uint_eq(t->nlines, 3);
  struct {
    uint32_t offset;
    int line, column;
  } rows[] = {{0, 1, 1}, {2, 1, 3}, {3, 2, 1}, {5, 2, 2}, {6, 2, 2}, {8, 2, 3}, {9, 2, 4}, {10, 3, 1}, {99, 3, 1}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    int line, column;
    source_position(t, rows[i].offset, &line, &column);
    ck_assert_int_eq(line, rows[i].line);
    ck_assert_int_eq(column, rows[i].column);
  }
  ck_assert_ptr_null(source_get(vm, 0));
  ck_assert_ptr_null(source_get(vm, 99));
  ck_assert_uint_eq(source_add(vm, "bad.qn", "a\n\nb\xff", 5), 0);
  ck_assert_str_eq(qn_error_message(vm), "bad.qn, line 3: the byte 0xff is not UTF-8");
  ck_assert_int_eq(taken_error(vm), E_text);
  ck_assert_uint_eq(source_add(vm, "bad.qn", "a\n\0b", 4), 0);
  ck_assert_str_eq(qn_error_message(vm), "bad.qn, line 2: the text has a NUL byte");
  error_clear(vm);
  uint32_t later = add(vm, "a.qn", "");
  ck_assert_uint_eq(source_find(vm, "a.qn"), later);
  ck_assert_uint_eq(source_find(vm, "b.qn"), 0);
  uint32_t odd = add(vm, "\xff\xc3\xa9\xc3.qn", "");
  ck_assert_str_eq(source_get(vm, odd)->name, "?\xc3\xa9?.qn");
  raise_error(vm, E_file, SPAN_NONE, "\xe2\x82: no file\xc3");
  ck_assert_str_eq(qn_error_message(vm), "??: no file?");
  error_clear(vm);
  vm_close(vm);
}
END_TEST

int main(void) {
  Suite *s = suite_create("lang_error");
  CASE(tcase_create("reports"), narrow_terminals_break_between_words, operands_are_labelled,
       the_place_is_underlined_without_notes, tabs_and_wide_characters_are_measured, spans_of_several_lines,
       notes_in_other_places, long_lines_are_cut, colours_are_optional);
  CASE(tcase_create("traces"), traces_show_functions_and_repetition);
  CASE(tcase_create("records"), caught_errors_are_records_and_go_back, records_of_the_program_keep_their_fields);
  CASE(tcase_create("raising"), the_first_error_stays, hosts_see_errors);
  CASE(tcase_create("phrases"), values_are_described, near_names_are_found, every_error_has_a_row);
  CASE(tcase_create("sources"), texts_know_lines_and_columns);
  return run_suite(s);
}
