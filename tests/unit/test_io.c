/* Files: .npy and .npz both ways, against NumPy where it is installed, and against damage: truncated at every length, every
 * byte changed. */
#include "tests/unit/lang.h"

#include <sys/stat.h>
#include <unistd.h>

#include "lang/error.h"
#include "stdlib/io.h"

/* stdlib/builtins.h has more than these tests need. */
qn_value builtin_load(qn_vm *vm, const qn_value *args);
qn_value builtin_save(qn_vm *vm, const qn_value *args);
qn_value builtin_read_text(qn_vm *vm, const qn_value *args);
qn_value builtin_write_text(qn_vm *vm, const qn_value *args);

static char folder[64];

static void make_folder(void) {
  strcpy(folder, "/tmp/quern-io-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void remove_folder(void) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  ck_assert_int_eq(system(command), 0);
}

static qn_value path_value(qn_vm *vm, const char *name) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return str_value(vm, path);
}

/* Both take over their values. */
static bool save(qn_vm *vm, const char *name, qn_value v) {
  qn_value args[2] = {path_value(vm, name), v};
  qn_value done = builtin_save(vm, args);
  value_release(vm, args[0]);
  value_release(vm, v);
  return !value_is_error(done);
}

static qn_value load_like(qn_vm *vm, const char *name, qn_value like) {
  qn_value args[2] = {path_value(vm, name), like};
  qn_value v = builtin_load(vm, args);
  value_release(vm, args[0]);
  value_release(vm, like);
  return v;
}
static qn_value load(qn_vm *vm, const char *name) { return load_like(vm, name, value_nil()); }

/* Runs a Python program with NumPy in the folder; false where there is none. */
static bool python(const char *program) {
  if (system("/usr/bin/python3 -c 'import numpy' 2>/dev/null") != 0) return false;
  char path[128], command[300];
  snprintf(path, sizeof path, "%s/program.py", folder);
  FILE *f = fopen(path, "w");
  ck_assert_ptr_nonnull(f);
  fputs("import numpy as np\n", f);
  fputs(program, f);
  fclose(f);
  snprintf(command, sizeof command, "cd %s && /usr/bin/python3 program.py", folder);
  ck_assert_int_eq(system(command), 0);
  return true;
}

static qn_value ramp(qn_vm *vm, qn_dtype d, int rank, const int64_t *shape) {
  qn_array *a = array_new(vm, d, rank, shape);
  ck_assert_ptr_nonnull(a);
  for (int64_t i = 0; i < a->size; i++) {
    qn_value v = d == QN_bool        ? value_bool(i % 3 == 1)
                 : dtype_is_float(d) ? value_float((double)i / 4 - 1)
                                     : value_int(i * 5);
    dtype_store(d, array_data(a) + i * (int64_t)dtype_size(d), v);
  }
  return value_obj(TAG_ARRAY, a);
}

static void expect_equal(qn_vm *vm, qn_value got, qn_value want) {
  if (value_is_error(got)) ck_abort_msg("%s", vm->error->message->text);
  ck_assert_int_eq(value_equal(vm, got, want), 1);
  value_release(vm, got);
  value_release(vm, want);
}

/* ---- round trips ------------------------------------------------------------------------------------------------- */

static const qn_dtype saved[] = {QN_bool, QN_u8, QN_i8, QN_i16, QN_i32, QN_i64, QN_f16, QN_f32, QN_f64};
enum { SAVED = sizeof saved / sizeof *saved };

START_TEST(arrays_come_back) {
  qn_vm *vm = vm_make();
  static const int64_t shapes[][3] = {{0}, {7}, {3, 4}, {0, 5}, {2, 3, 4}};
  static const int ranks[] = {0, 1, 2, 2, 3};
  for (int d = 0; d < SAVED; d++)
    for (int s = 0; s < 5; s++) {
      qn_value a = ramp(vm, saved[d], ranks[s], shapes[s]);
      ck_assert(save(vm, "a.npy", value_retain(a)));
      expect_equal(vm, load(vm, "a.npy"), a);
    }
  /* A view is saved as its elements. */
  qn_value base = ramp(vm, QN_f32, 1, (int64_t[]){10});
  qn_array *view = array_view(vm, value_array(base), QN_f32, 1, (int64_t[]){5}, (int64_t[]){-2}, 9);
  ck_assert(save(vm, "v.npy", value_obj(TAG_ARRAY, view)));
  float want[] = {1.25f, 0.75f, 0.25f, -0.25f, -0.75f};
  expect_equal(vm, load(vm, "v.npy"), array_value(vm, QN_f32, 1, (int64_t[]){5}, want));
  value_release(vm, base);
  vm_close(vm);
}
END_TEST

START_TEST(trees_come_back) {
  qn_vm *vm = vm_make();
  qn_value layer = record_value(vm), tree = record_value(vm);
  set(vm, layer, "w", ramp(vm, QN_f32, 2, (int64_t[]){2, 3}));
  set(vm, layer, "b", ramp(vm, QN_i64, 1, (int64_t[]){3}));
  set(vm, tree, "layers", LIST(vm, layer, ramp(vm, QN_f64, 0, NULL)));
  set(vm, tree, "step", value_int(12));
  set(vm, tree, "rate", value_float(0.25));
  ck_assert(save(vm, "t.npz", value_retain(tree)));
  qn_value flat = load(vm, "t.npz");
  ck_assert(value_is(flat, TAG_RECORD));
  static const char *const names[] = {"layers.0.w", "layers.0.b", "layers.1", "step", "rate"};
  ck_assert_int_eq(value_record(flat)->len, 5);
  for (uint32_t i = 0; i < 5; i++) ck_assert_str_eq(record_name(value_record(flat), i)->text, names[i]);
  ck_assert(value_is(value_record(flat)->items[3], TAG_ARRAY));
  value_release(vm, flat);
  expect_equal(vm, load_like(vm, "t.npz", value_retain(tree)), value_retain(tree));
  set(vm, tree, "more", value_int(1));
  ck_assert(value_is_error(load_like(vm, "t.npz", value_retain(tree))));
  ck_assert_int_eq(taken_error(vm), E_key);
  set(vm, tree, "more", str_value(vm, "text"));
  ck_assert(!save(vm, "t.npz", tree));
  ck_assert_int_eq(taken_error(vm), E_type);
  qn_value twice = record_value(vm), inner = record_value(vm);
  set(vm, inner, "b", value_int(1));
  set(vm, twice, "a", inner);
  set(vm, twice, "a.b", value_int(2));
  ck_assert(!save(vm, "twice.npz", twice));
  ck_assert_int_eq(taken_error(vm), E_argument);
  vm_close(vm);
}
END_TEST

START_TEST(numpy_reads_and_writes) {
  qn_vm *vm = vm_make();
  if (python("a = np.arange(12, dtype='f4').reshape(3, 4)\n"
             "np.save('c.npy', a); np.save('fortran.npy', np.asfortranarray(a)); np.save('big.npy', a.astype('>f4'))\n"
             "np.save('u2.npy', np.array([1, 65535], dtype='u2')); np.save('u4.npy', np.array([4294967295], "
             "dtype='>u4'))\n"
             "np.save('u8.npy', np.array([5], dtype='u8')); np.save('huge.npy', np.array([2**63], dtype='u8'))\n"
             "np.save('text.npy', np.array(['a'])); np.save('pair.npy', np.zeros(2, dtype=[('x', 'i4')]))\n"
             "np.save('scalar.npy', np.float64(2.5)); np.save('complex.npy', np.array([1j]))\n"
             "np.savez('plain.npz', a=a, b=np.array([True, False])); np.savez_compressed('packed.npz', a=a, "
             "z=np.zeros(5000))\n")) {
    float want[12];
    for (int i = 0; i < 12; i++) want[i] = (float)i;
    static const char *const same[] = {"c.npy", "fortran.npy", "big.npy"};
    for (int i = 0; i < 3; i++)
      expect_equal(vm, load(vm, same[i]), array_value(vm, QN_f32, 2, (int64_t[]){3, 4}, want));
    expect_equal(vm, load(vm, "u2.npy"), array_value(vm, QN_i32, 1, (int64_t[]){2}, (int32_t[]){1, 65535}));
    expect_equal(vm, load(vm, "u4.npy"), array_value(vm, QN_i64, 1, (int64_t[]){1}, (int64_t[]){4294967295}));
    expect_equal(vm, load(vm, "u8.npy"), array_value(vm, QN_i64, 1, (int64_t[]){1}, (int64_t[]){5}));
    expect_equal(vm, load(vm, "scalar.npy"), array_value(vm, QN_f64, 0, NULL, (double[]){2.5}));
    static const char *const bad[] = {"huge.npy", "text.npy", "pair.npy", "complex.npy"};
    for (int i = 0; i < 4; i++) {
      ck_assert(value_is_error(load(vm, bad[i])));
      ck_assert_int_eq(taken_error(vm), E_format);
    }
    qn_value r = record_value(vm);
    set(vm, r, "a", array_value(vm, QN_f32, 2, (int64_t[]){3, 4}, want));
    set(vm, r, "b", array_value(vm, QN_bool, 1, (int64_t[]){2}, (char[]){1, 0}));
    expect_equal(vm, load(vm, "plain.npz"), r);
    r = record_value(vm);
    double zeros[5000] = {0};
    set(vm, r, "a", array_value(vm, QN_f32, 2, (int64_t[]){3, 4}, want));
    set(vm, r, "z", array_value(vm, QN_f64, 1, (int64_t[]){5000}, zeros));
    expect_equal(vm, load(vm, "packed.npz"), r);

    r = record_value(vm);
    set(vm, r, "m", ramp(vm, QN_f32, 2, (int64_t[]){2, 3}));
    set(vm, r, "gr\xc3\xbc\xc3\x9f", ramp(vm, QN_f16, 1, (int64_t[]){3}));
    set(vm, r, "n", value_int(7));
    ck_assert(save(vm, "ours.npz", r));
    ck_assert(save(vm, "ours.npy", ramp(vm, QN_bool, 1, (int64_t[]){4})));
    ck_assert(python(
        "z = np.load('ours.npz')\n"
        "assert (z['m'] == np.arange(6, dtype='f4').reshape(2, 3) / 4 - 1).all() and z['m'].dtype == np.float32\n"
        "assert (z['gr\\u00fc\\u00df'] == np.array([-1, -.75, -.5], dtype='f2')).all()\n"
        "assert z['n'] == 7 and z['n'].shape == () and z['n'].dtype == np.int64\n"
        "assert (np.load('ours.npy') == [False, True, False, False]).all()\n"
        "import zipfile; assert zipfile.ZipFile('ours.npz').testzip() is None\n"));
  }
  vm_close(vm);
}
END_TEST

START_TEST(texts_come_back) {
  qn_vm *vm = vm_make();
  ck_assert(save(vm, "a.txt", str_value(vm, "gr\xc3\xbc\xc3\x9f\n")));
  expect_equal(vm, load(vm, "a.txt"), str_value(vm, "gr\xc3\xbc\xc3\x9f\n"));
  qn_value args[2] = {path_value(vm, "b.dat"), str_value(vm, "x")};
  ck_assert(!value_is_error(builtin_write_text(vm, args)));
  expect_equal(vm, builtin_read_text(vm, args), value_retain(args[1]));
  FILE *f = fopen(value_str(args[0])->text, "w");
  fputs("ab\xff", f);
  fclose(f);
  ck_assert(value_is_error(builtin_read_text(vm, args)));
  ck_assert_int_eq(taken_error(vm), E_format);
  value_release(vm, args[0]);
  value_release(vm, args[1]);
  vm_close(vm);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------------------------------- */

START_TEST(files_that_cannot_be) {
  qn_vm *vm = vm_make();
  ck_assert(value_is_error(load(vm, "none.npy")));
  ck_assert_ptr_nonnull(strstr(vm->error->message->text, "there is no such file"));
  ck_assert_int_eq(taken_error(vm), E_file);
  ck_assert(value_is_error(load(vm, "a.csv")));
  ck_assert_int_eq(taken_error(vm), E_format);
  ck_assert(!save(vm, "none/a.npy", ramp(vm, QN_f32, 0, NULL)));
  ck_assert_int_eq(taken_error(vm), E_file);
  ck_assert(!save(vm, "a.npy", ramp(vm, QN_bf16, 0, NULL)));
  ck_assert_int_eq(taken_error(vm), E_dtype);
  ck_assert(!save(vm, "a.npy", value_nil()));
  ck_assert_int_eq(taken_error(vm), E_type);
  char path[128];
  snprintf(path, sizeof path, "%s/folder.npy", folder);
  ck_assert_int_eq(mkdir(path, 0777), 0);
  ck_assert(value_is_error(load(vm, "folder.npy")));
  ck_assert_int_eq(taken_error(vm), E_file);
  ck_assert(!save(vm, "folder.npy", ramp(vm, QN_f32, 0, NULL)));
  ck_assert_int_eq(taken_error(vm), E_file);
  /* A failed save leaves the old file. */
  ck_assert(save(vm, "kept.npy", ramp(vm, QN_f32, 1, (int64_t[]){2})));
  ck_assert(!save(vm, "kept.npy", ramp(vm, QN_bf16, 1, (int64_t[]){2})));
  taken_error(vm);
  expect_equal(vm, load(vm, "kept.npy"), ramp(vm, QN_f32, 1, (int64_t[]){2}));
  vm->config.capabilities = 0;
  ck_assert(value_is_error(load(vm, "kept.npy")));
  ck_assert_int_eq(taken_error(vm), E_capability);
  ck_assert(!save(vm, "kept.npy", ramp(vm, QN_f32, 0, NULL)));
  ck_assert_int_eq(taken_error(vm), E_capability);
  vm_close(vm);
}
END_TEST

static const char *const headers[] = {
    "",
    "{}",
    "{'descr': '<f4'}",
    "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (1,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}",
    "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
    "{'descr': '<f4, 'fortran_order': False, 'shape': (1,)}",
    "{'descr': '<O8', 'fortran_order': False, 'shape': (1,)}",
    "{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1,)}",
    "['descr']",
    "{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}",
};

START_TEST(hostile_headers) {
  qn_vm *vm = vm_make();
  size_t before = live(vm);
  for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
    uint8_t file[256] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0};
    size_t n = strlen(headers[i]);
    file[8] = (uint8_t)n;
    memcpy(file + 10, headers[i], n);
    ck_assert_msg(value_is_error(npy_read(vm, "f.npy", file, 10 + n + 4)), "accepted: %s", headers[i]);
    ck_assert_ptr_nonnull(strstr(vm->error->message->text, "f.npy"));
    ck_assert_int_eq(taken_error(vm), E_format);
  }
  ck_assert_uint_eq(live(vm), before);
  vm_close(vm);
}
END_TEST

static void sample_archive(qn_vm *vm, bytes *b) {
  qn_value r = record_value(vm);
  set(vm, r, "a", ramp(vm, QN_f32, 2, (int64_t[]){2, 2}));
  set(vm, r, "b", ramp(vm, QN_i64, 1, (int64_t[]){3}));
  ck_assert(npz_write(vm, r, b));
  value_release(vm, r);
}

/* Reads a copy of exactly `len` bytes, so that a sanitizer sees a step too far. */
static void read_copy(qn_vm *vm, const uint8_t *data, size_t len, bool npz, bool must_fail) {
  uint8_t *copy = malloc(len ? len : 1);
  memcpy(copy, data, len);
  qn_value v = npz ? npz_read(vm, "f", copy, len) : npy_read(vm, "f", copy, len);
  free(copy);
  if (must_fail) ck_assert(value_is_error(v));
  if (value_is_error(v)) ck_assert_int_ne(taken_error(vm), 0);
  value_release(vm, v);
}

START_TEST(truncated_anywhere) {
  qn_vm *vm = vm_make();
  bytes npy = {0}, npz = {0};
  qn_value a = ramp(vm, QN_f32, 2, (int64_t[]){2, 3});
  ck_assert(npy_write(vm, a, &npy));
  sample_archive(vm, &npz);
  size_t before = live(vm);
  for (size_t n = 0; n < npy.len; n++) read_copy(vm, npy.data, n, false, true);
  for (size_t n = 0; n < npz.len; n++) read_copy(vm, npz.data, n, true, true);
  ck_assert_uint_eq(live(vm), before);
  bytes_free(vm, &npy);
  bytes_free(vm, &npz);
  value_release(vm, a);
  vm_close(vm);
}
END_TEST

START_TEST(damaged_anywhere) {
  qn_vm *vm = vm_make();
  bytes files[3] = {{0}, {0}, {0}};
  qn_value a = ramp(vm, QN_i16, 2, (int64_t[]){2, 3});
  ck_assert(npy_write(vm, a, &files[0]));
  sample_archive(vm, &files[1]);
  if (python("np.savez_compressed('p.npz', a=np.arange(40.0), b=np.zeros(300))\n")) {
    char path[128];
    snprintf(path, sizeof path, "%s/p.npz", folder);
    ck_assert(file_read(vm, path, &files[2]));
  }
  static const uint8_t changes[] = {0x01, 0x80, 0xff, 0x20};
  for (int f = 0; f < 3; f++)
    for (size_t i = 0; i < files[f].len; i++)
      for (size_t c = 0; c < sizeof changes; c++) {
        files[f].data[i] ^= changes[c];
        read_copy(vm, files[f].data, files[f].len, f > 0, false);
        files[f].data[i] ^= changes[c];
      }
  for (int f = 0; f < 3; f++) bytes_free(vm, &files[f]);
  value_release(vm, a);
  vm_close(vm);
}
END_TEST

START_TEST(memory_may_fail_anywhere) {
  qn_vm *vm = vm_make();
  bytes npz = {0};
  sample_archive(vm, &npz);
  qn_value tree = npz_read(vm, "f", npz.data, npz.len);
  ck_assert(!value_is_error(tree));
  size_t before = live(vm);
  for (uint64_t n = 1; n < 60; n++) {
    mem_fail_at(vm, n);
    qn_value v = npz_read(vm, "f", npz.data, npz.len);
    mem_fail_at(vm, n);
    bytes out = {0};
    bool good = npz_write(vm, tree, &out);
    mem_fail_at(vm, 0);
    ck_assert(good || vm->error);
    value_release(vm, v);
    bytes_free(vm, &out);
    error_clear(vm);
  }
  (void)before;
  bytes_free(vm, &npz);
  value_release(vm, tree);
  vm_close(vm);
}
END_TEST

static TCase *with_folder(TCase *t) {
  tcase_add_checked_fixture(t, make_folder, remove_folder);
  return t;
}

int main(void) {
  Suite *s = suite_create("io");
  CASE(with_folder(tcase_create("round_trips")), arrays_come_back, trees_come_back, texts_come_back);
  CASE(with_folder(tcase_create("numpy")), numpy_reads_and_writes);
  CASE(with_folder(tcase_create("refusals")), files_that_cannot_be, hostile_headers);
  CASE(with_folder(tcase_create("damage")), truncated_anywhere, damaged_anywhere);
  CASE(tcase_create("memory"), memory_may_fail_anywhere);
  return run_suite(s);
}
