/* What values look like as text: print, repr, format specs. */
#include "tests/unit/lang.h"

#include "lang/error.h"
#include "lang/format.h"

/* Takes over `v`. The text is to be freed with free(). */
static char *taken(qn_vm *vm, text_buf *t, bool good, qn_value v) {
  value_release(vm, v);
  ck_assert(good);
  ck_assert(!t->failed);
  char *copy = strndup(t->text ? t->text : "", t->len);
  text_free(t);
  return copy;
}

static char *printed(qn_vm *vm, qn_value v, int width, int64_t items) {
  text_buf t = {.vm = vm};
  format_options o = {width, items};
  bool good = format_print(vm, v, &o, &t);
  return taken(vm, &t, good, v);
}

static char *repr_of(qn_vm *vm, qn_value v) {
  text_buf t = {.vm = vm};
  bool good = format_repr(vm, v, &t);
  return taken(vm, &t, good, v);
}

#define IS(made, expected)                                                                                             \
  do {                                                                                                                 \
    char *is_made = made;                                                                                              \
    ck_assert_str_eq(is_made, expected);                                                                               \
    free(is_made);                                                                                                     \
  } while (0)
#define PRINTS(v, expected) IS(printed(vm, v, 0, 0), expected)
#define REPR(v, expected) IS(repr_of(vm, v), expected)

static qn_value f32s(qn_vm *vm, int n, const float *x) { return array_value(vm, QN_f32, 1, (int64_t[]){n}, x); }
#define F32(...) f32s(vm, (int)(sizeof((float[]){__VA_ARGS__}) / sizeof(float)), (float[]){__VA_ARGS__})

static qn_value counted(qn_vm *vm, qn_dtype d, int rank, const int64_t *shape) {
  qn_array *a = array_new(vm, d, rank, shape);
  ck_assert_ptr_nonnull(a);
  for (int64_t i = 0; i < a->size; i++)
    dtype_store(d, array_data(a) + i * (int64_t)dtype_size(d),
                dtype_is_float(d) ? value_float((double)i) : value_int(i));
  return value_obj(TAG_ARRAY, a);
}

START_TEST(scalars) {
  qn_vm *vm = vm_make();
  PRINTS(value_nil(), "nil");
  PRINTS(value_bool(true), "true");
  PRINTS(value_int(-42), "-42");
  PRINTS(value_float(2), "2.0");
  PRINTS(value_float(0.1), "0.1");
  PRINTS(value_float(1e300), "1e300");
  PRINTS(value_dtype(QN_bf16), "bf16");
  PRINTS(value_device(0), "cpu");
  static const device_memory other = {.name = "gpu"};
  vm->hooks.devices[3] = &other;
  PRINTS(value_device(device_code(3, 2)), "gpu(2)");
  PRINTS(str_value(vm, "a \"b\""), "a \"b\"");
  PRINTS(value_obj(TAG_RANGE, range_new(vm, 2, 5, 1)), "2..5");
  PRINTS(value_obj(TAG_RANGE, range_new(vm, 9, 0, -3)), "range(9, 0, -3)");
  PRINTS(array_value(vm, QN_f32, 0, NULL, &(float){0.1f}), "0.1");
  PRINTS(array_value(vm, QN_f64, 0, NULL, &(double){0.1f}), "0.10000000149011612");
  PRINTS(array_value(vm, QN_bool, 0, NULL, &(char){1}), "true");
  PRINTS(array_value(vm, QN_f16, 0, NULL, &(uint16_t){0x3555}), "0.3333");
  vm_close(vm);
}
END_TEST

START_TEST(array_bodies) {
  qn_vm *vm = vm_make();
  PRINTS(F32(1, 2.5f, -3), "f32[3] cpu\n[ 1.0,  2.5, -3.0]");
  PRINTS(F32(0.1f, 0.25f), "f32[2] cpu\n[0.10, 0.25]");
  PRINTS(F32(1.0f / 3, 100), "f32[2] cpu\n[  0.33, 100.00]");
  PRINTS(F32(0, 0), "f32[2] cpu\n[0.0, 0.0]");
  PRINTS(F32(1, INFINITY, NAN), "f32[3] cpu\n[1.0, inf, nan]");
  PRINTS(F32(NAN), "f32[1] cpu\n[nan]");
  PRINTS(F32(1e-10f, 1), "f32[2] cpu\n[1e-10, 1e+00]");
  PRINTS(F32(1.25e10f, 3), "f32[2] cpu\n[1.25e+10, 3.00e+00]");
  PRINTS(F32(12345678, 1), "f32[2] cpu\n[12345678.0,        1.0]");
  PRINTS(counted(vm, QN_i64, 2, (int64_t[]){2, 3}), "i64[2, 3] cpu\n[[0, 1, 2],\n [3, 4, 5]]");
  PRINTS(counted(vm, QN_u8, 2, (int64_t[]){3, 4}),
         "u8[3, 4] cpu\n[[ 0,  1,  2,  3],\n [ 4,  5,  6,  7],\n [ 8,  9, 10, 11]]");
  PRINTS(counted(vm, QN_i32, 3, (int64_t[]){2, 1, 2}), "i32[2, 1, 2] cpu\n[[[0, 1]],\n\n [[2, 3]]]");
  PRINTS(array_value(vm, QN_bool, 1, (int64_t[]){2}, (char[]){1, 0}), "bool[2] cpu\n[ true, false]");
  PRINTS(counted(vm, QN_f32, 2, (int64_t[]){0, 3}), "f32[0, 3] cpu\n[]");
  IS(printed(vm, counted(vm, QN_i64, 1, (int64_t[]){12}), 20, 0),
     "i64[12] cpu\n[ 0,  1,  2,  3,  4,\n  5,  6,  7,  8,  9,\n 10, 11]");
  vm_close(vm);
}
END_TEST

START_TEST(large_arrays_are_shortened) {
  qn_vm *vm = vm_make();
  IS(printed(vm, counted(vm, QN_i64, 1, (int64_t[]){1000}), 0, 100),
     "i64[1000] cpu\n[  0,   1,   2, ..., 997, 998, 999]\nmin 0  max 999  mean 499.5");
  IS(printed(vm, counted(vm, QN_f32, 2, (int64_t[]){8, 2}), 0, 12),
     "f32[8, 2] cpu\n[[ 0.0,  1.0],\n [ 2.0,  3.0],\n [ 4.0,  5.0],\n ...,\n [10.0, 11.0],\n [12.0, 13.0],\n [14.0, "
     "15.0]]\n"
     "min 0  max 15  mean 7.5");
  float x[20] = {1, NAN, INFINITY, NAN, -2};
  IS(printed(vm, f32s(vm, 20, x), 0, 10), "f32[20] cpu\n[1.0, nan, inf, ..., 0.0, 0.0, 0.0]\n"
                                          "min -2  max 1  mean -0.058824  nan 2  inf 1");
  float nothing[20];
  for (int i = 0; i < 20; i++) nothing[i] = NAN;
  IS(printed(vm, f32s(vm, 20, nothing), 0, 10), "f32[20] cpu\n[nan, nan, nan, ..., nan, nan, nan]\nnan 20");
  char bits[20] = {1, 1};
  IS(printed(vm, array_value(vm, QN_bool, 1, (int64_t[]){20}, bits), 0, 2),
     "bool[20] cpu\n[ true, ..., false]\n2 of 20 true");
  /* Views: every second element, backwards. */
  qn_value base = counted(vm, QN_i64, 1, (int64_t[]){30});
  qn_array *view = array_view(vm, value_array(base), QN_i64, 1, (int64_t[]){15}, (int64_t[]){-2}, 28);
  IS(printed(vm, value_obj(TAG_ARRAY, view), 0, 10),
     "i64[15] cpu\n[28, 26, 24, ...,  4,  2,  0]\nmin 0  max 28  mean 14");
  value_release(vm, base);
  /* A number repeated 2^40 times is looked at once. */
  base = array_value(vm, QN_f32, 0, NULL, &(float){2});
  int64_t shape[] = {1 << 20, 1 << 20};
  view = array_view(vm, value_array(base), QN_f32, 2, shape, (int64_t[]){0, 0}, 0);
  ck_assert_ptr_nonnull(view);
  char *text = printed(vm, value_obj(TAG_ARRAY, view), 0, 0);
  ck_assert_ptr_nonnull(strstr(text, "min 2  max 2  mean 2"));
  free(text);
  value_release(vm, base);
  vm_close(vm);
}
END_TEST

START_TEST(lists_and_records) {
  qn_vm *vm = vm_make();
  PRINTS(LIST(vm, value_int(1), value_float(2), str_value(vm, "x")), "(1, 2.0, \"x\")");
  PRINTS(LIST(vm, value_int(1)), "(1,)");
  PRINTS(list_value(vm, 0, NULL), "()");
  PRINTS(record_value(vm), "{}");
  qn_value r = record_value(vm);
  set(vm, r, "a", value_int(1));
  set(vm, r, "if", F32(1, 2));
  set(vm, r, "two words", value_nil());
  PRINTS(value_retain(r), "{a: 1, \"if\": f32[2] cpu [1.0, 2.0], \"two words\": nil}");
  IS(printed(vm, value_retain(r), 28, 0), "{\n  a: 1\n  \"if\": f32[2] cpu\n    [1.0, 2.0]\n  \"two words\": nil\n}");
  set(vm, r, "large", counted(vm, QN_f32, 2, (int64_t[]){20, 20}));
  qn_value outer = record_value(vm);
  set(vm, outer, "n", value_int(1));
  set(vm, outer, "nested", LIST(vm, r));
  PRINTS(outer, "{\n  n: 1\n  nested: (\n    {\n      a: 1\n      \"if\": f32[2] cpu [1.0, 2.0]\n"
                "      \"two words\": nil\n      large: f32[20, 20] cpu  min 0  max 399  mean 199.5\n    }\n  )\n}");
  qn_value many[30];
  for (int i = 0; i < 30; i++) many[i] = value_int(i);
  IS(printed(vm, list_value(vm, 30, many), 40, 0), "(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,\n 12, 13, 14, 15, 16, 17, "
                                                   "18, 19, 20, 21,\n 22, 23, 24, 25, 26, 27, 28, 29)");
  IS(printed(vm, list_value(vm, 30, many), 40, 10), "(0, 1, 2, ‹24 more›, 27, 28, 29)");
  qn_value narrow = record_value(vm); /* where not even these have room on the line */
  set(vm, narrow, "none", list_value(vm, 0, NULL));
  set(vm, narrow, "nothing", record_value(vm));
  set(vm, narrow, "one", LIST(vm, value_int(1)));
  IS(printed(vm, narrow, 6, 0), "{\n  none: ()\n  nothing: {}\n  one: (1,)\n}");
  vm_close(vm);
}
END_TEST

START_TEST(deep_values_end_in_dots) {
  qn_vm *vm = vm_make();
  qn_value v = value_int(1);
  for (int i = 0; i < 1000000; i++) v = LIST(vm, v);
  char *text = printed(vm, value_retain(v), 0, 0);
  ck_assert_ptr_nonnull(strstr(text, "‹...›"));
  free(text);
  text = repr_of(vm, v);
  ck_assert_ptr_nonnull(strstr(text, "‹...›"));
  free(text);
  vm_close(vm);
}
END_TEST

START_TEST(repr_reads_back) {
  qn_vm *vm = vm_make();
  REPR(str_value(vm, "a\n\"{x}\" \xc3\xa9"), "\"a\\n\\\"\\{x\\}\\\" \xc3\xa9\"");
  REPR(value_int(INT64_MIN), "(-9223372036854775807 - 1)");
  REPR(F32(0.1f, -2, INFINITY), "f32([0.1, -2.0, inf])");
  REPR(counted(vm, QN_i64, 2, (int64_t[]){2, 2}), "i64([[0, 1], [2, 3]])");
  REPR(array_value(vm, QN_f16, 0, NULL, &(uint16_t){0x3c00}), "f16(1.0)");
  REPR(counted(vm, QN_f64, 2, (int64_t[]){0, 3}), "zeros(0, 3, dtype: f64)");
  REPR(LIST(vm, LIST(vm, value_nil()), str_value(vm, "s"), value_dtype(QN_i8)), "((nil,), \"s\", i8)");
  qn_value r = record_value(vm);
  set(vm, r, "x", value_bool(false));
  set(vm, r, "1", value_float(1e100));
  REPR(r, "{x: false, \"1\": 1e100}");
  static const builtin_def def = {.name = "exp"};
  REPR(value_obj(TAG_FN, fn_new(vm, FN_BUILTIN, (void *)&def, 0)), "‹fn exp›");
  vm_close(vm);
}
END_TEST

static char *with_spec(qn_vm *vm, const char *spec, qn_value v) {
  text_buf t = {.vm = vm};
  bool good = format_spec(vm, v, spec, strlen(spec), &t);
  if (!good) {
    value_release(vm, v);
    text_free(&t);
    ck_assert_int_eq(taken_error(vm), E_argument);
    return strdup("E317");
  }
  return taken(vm, &t, good, v);
}
#define SPEC(spec, v, expected) IS(with_spec(vm, spec, v), expected)

START_TEST(specs) {
  qn_vm *vm = vm_make();
  SPEC(".2f", value_float(3.14159), "3.14");
  SPEC(".0f", value_float(2.5), "2");
  SPEC("8.3f", value_float(-1.5), "  -1.500");
  SPEC("08.3f", value_float(-1.5), "-001.500");
  SPEC("+.1e", value_float(12345), "+1.2e+04");
  SPEC(".3g", value_float(0.00012345), "0.000123");
  SPEC(",", value_int(-1234567), "-1,234,567");
  SPEC(",.2f", value_float(1234.5), "1,234.50");
  SPEC(".1%", value_float(0.125), "12.5%");
  SPEC("d", value_int(7), "7");
  SPEC("3d", value_int(7), "  7");
  SPEC("<5", value_int(7), "7    ");
  SPEC("^5", value_int(7), "  7  ");
  SPEC("*>5", value_int(7), "****7");
  SPEC("·<4", value_int(7), "7···");
  SPEC("x", value_int(255), "ff");
  SPEC("b", value_int(-5), "-101");
  SPEC("x", value_int(INT64_MIN), "-8000000000000000");
  SPEC("", value_float(0.1), "0.1");
  SPEC("6", value_bool(true), "  true");
  SPEC("d", value_bool(true), "1");
  SPEC("6", str_value(vm, "ab"), "ab    ");
  SPEC(">6.1s",
       str_value(vm, "\xc3\xa9"
                     "b"),
       "     \xc3\xa9");
  SPEC(".1f", value_float(NAN), "nan");
  SPEC("05", value_float(-INFINITY), "-0inf");
  SPEC(".2f", F32(1, 2.345f), "[1.00, 2.35]");
  SPEC(".1f", counted(vm, QN_i64, 2, (int64_t[]){2, 2}), "[[0.0, 1.0], [2.0, 3.0]]");
  SPEC(".3f", array_value(vm, QN_f32, 0, NULL, &(float){0.5f}), "0.500");
  SPEC("6", LIST(vm, value_int(1)), "(1,)  ");
  SPEC("d", value_float(1.5), "E317");
  SPEC("s", value_int(1), "E317");
  SPEC(".2d", value_int(1), "E317");
  SPEC("z", value_int(1), "E317");
  SPEC(".f", value_float(1), "E317");
  SPEC("99999999999", value_int(1), "E317");
  SPEC("d", value_nil(), "E317");
  SPEC(".2f", str_value(vm, "x"), "E317");
  vm_close(vm);
}
END_TEST

START_TEST(memory_may_fail_anywhere) {
  qn_vm *vm = vm_make();
  qn_value r = record_value(vm);
  set(vm, r, "a", F32(1, 2, 3));
  set(vm, r, "b", LIST(vm, counted(vm, QN_f32, 2, (int64_t[]){20, 20}), str_value(vm, "text")));
  for (uint64_t n = 1; n < 60; n++)
    for (int what = 0; what < 3; what++) {
      text_buf t = {.vm = vm};
      mem_fail_at(vm, n);
      bool good = what == 0   ? format_print(vm, r, NULL, &t)
                  : what == 1 ? format_repr(vm, r, &t)
                              : format_spec(vm, r, "300", 3, &t);
      (void)good;
      text_free(&t);
      mem_fail_at(vm, 0);
      error_clear(vm);
    }
  value_release(vm, r);
  vm_close(vm);
}
END_TEST

int main(void) {
  Suite *s = suite_create("format");
  CASE(tcase_create("scalars"), scalars);
  CASE(tcase_create("arrays"), array_bodies, large_arrays_are_shortened);
  CASE(tcase_create("trees"), lists_and_records, deep_values_end_in_dots);
  CASE(tcase_create("repr"), repr_reads_back);
  CASE(tcase_create("specs"), specs);
  CASE(tcase_create("memory"), memory_may_fail_anywhere);
  return run_suite(s);
}
