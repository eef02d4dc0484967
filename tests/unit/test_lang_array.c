/* Arrays: making, views, reshaping strides, copies between layouts, copy on write, elements. */
#include "lang/internal.h"
#include "tests/unit/lang.h"

static qn_value iota(qn_vm *vm, qn_dtype d, int rank, const int64_t *shape) {
  qn_array *a = array_new(vm, d, rank, shape);
  ck_assert_ptr_nonnull(a);
  for (int64_t i = 0; i < a->size; i++)
    dtype_store(d, array_data(a) + i * (int64_t)dtype_size(d), value_int(i % (d == QN_bool ? 2 : 100)));
  return value_obj(TAG_ARRAY, a);
}

static void drop(qn_vm *vm, qn_array *a) { value_release(vm, value_obj(TAG_ARRAY, a)); }

START_TEST(arrays_have_shape_and_strides) {
  qn_vm *vm = vm_make();
  size_t start = live(vm);
  int64_t shape[] = {2, 3, 4};
  qn_array *a = array_new(vm, QN_f32, 3, shape);
  ck_assert_int_eq(a->size, 24);
  ck_assert_int_eq(a->strides[0], 12);
  ck_assert_int_eq(a->strides[2], 1);
  ck_assert(a->contiguous && !array_pending(a));
  ck_assert_uint_eq((uintptr_t)array_data(a) % 64, 0);
  drop(vm, a);
  for (int64_t n = 0; n < 5000; n += 1 + n / 3) {
    a = array_new(vm, QN_f64, 1, &n);
    ck_assert_uint_eq((uintptr_t)array_data(a) % 64, 0);
    memset(array_data(a), 1, (size_t)n * 8);
    drop(vm, a);
  }
  a = array_new(vm, QN_i64, 0, NULL);
  ck_assert_int_eq(a->size, 1);
  drop(vm, a);
  int64_t empty[] = {3, 0, 5};
  a = array_new(vm, QN_i64, 3, empty);
  ck_assert_int_eq(a->size, 0);
  ck_assert_int_eq(a->strides[0], 5);
  ck_assert_int_eq(a->shape[2], 5);
  drop(vm, a);
  a = array_from_scalar(vm, QN_bf16, value_float(1.5));
  ck_assert(array_get_flat(a, 0).u.f == 1.5);
  drop(vm, a);
  ck_assert_uint_eq(live(vm), start);
  vm_close(vm);
}
END_TEST

START_TEST(impossible_shapes_are_errors) {
  qn_vm *vm = vm_make();
  int64_t many[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, negative[] = {2, -1}, large[] = {1 << 20, 1 << 20, 1 << 9},
          overflow[] = {INT64_MAX, INT64_MAX}, beside[] = {0, -3};
  ck_assert_ptr_null(array_new(vm, QN_f32, 9, many));
  ck_assert_int_eq(taken_error(vm), E_rank);
  ck_assert_ptr_null(array_new(vm, QN_f32, -1, many));
  ck_assert_int_eq(taken_error(vm), E_rank);
  ck_assert_ptr_null(array_new(vm, QN_f32, 2, negative));
  ck_assert_str_eq(qn_error_message(vm), "f32[2, -1]: a size is negative");
  ck_assert_int_eq(taken_error(vm), E_shape);
  ck_assert_ptr_null(array_new(vm, QN_f32, 2, beside));
  ck_assert_int_eq(taken_error(vm), E_shape);
  ck_assert_ptr_null(array_new(vm, QN_f32, 3, large));
  ck_assert_int_eq(taken_error(vm), E_too_large);
  ck_assert_ptr_null(array_new_header(vm, QN_f32, 2, overflow));
  ck_assert_int_eq(taken_error(vm), E_too_large);
  int64_t strides[2];
  ck_assert_int_eq(shape_strides(2, overflow, strides), -1);
  vm_close(vm);
}
END_TEST

START_TEST(views_share_and_know_contiguity) {
  qn_vm *vm = vm_make();
  size_t start = live(vm);
  int64_t shape[] = {3, 4};
  qn_value v = iota(vm, QN_i32, 2, shape);
  qn_array *a = value_array(v);
  qn_array *t = array_view(vm, a, QN_i32, 2, (int64_t[]){4, 3}, (int64_t[]){1, 4}, 0);
  ck_assert(!t->contiguous);
  ck_assert_ptr_eq(t->storage, a->storage);
  ck_assert_int_eq(a->storage->refs, 2);
  for (int i = 0; i < 12; i++) ck_assert_int_eq(array_get_flat(t, i).u.i, i % 3 * 4 + i / 3);
  qn_array *row = array_view(vm, a, QN_i32, 2, (int64_t[]){1, 4}, (int64_t[]){99, 1}, 4);
  ck_assert(row->contiguous);
  ck_assert_int_eq(row->strides[0], 4); /* of its shape */
  ck_assert_int_eq(array_get_flat(row, 2).u.i, 6);
  qn_array *back = array_view(vm, a, QN_i32, 1, (int64_t[]){4}, (int64_t[]){-1}, 11);
  ck_assert_int_eq(array_get_flat(back, 1).u.i, 10);
  qn_array *wide = array_view(vm, a, QN_i32, 2, (int64_t[]){5, 4}, (int64_t[]){0, 1}, 8);
  ck_assert_int_eq(array_get_flat(wide, 17).u.i, 9);
  qn_array *none = array_view(vm, a, QN_i32, 2, (int64_t[]){0, 4}, (int64_t[]){7, 7}, 0);
  ck_assert(none->contiguous);
  value_release(vm, v); /* the views keep the storage */
  ck_assert_int_eq(array_get_flat(back, 0).u.i, 11);
  qn_array *c = array_contiguous(vm, t);
  ck_assert(c->contiguous && c != t);
  for (int i = 0; i < 12; i++) ck_assert_int_eq(array_get_flat(c, i).u.i, array_get_flat(t, i).u.i);
  qn_array *same = array_contiguous(vm, c);
  ck_assert_ptr_eq(same, c);
  qn_array *all[] = {t, row, back, wide, none, c, same};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(vm, all[i]);
  ck_assert_uint_eq(live(vm), start);
  vm_close(vm);
}
END_TEST

START_TEST(writing_needs_one_owner) {
  qn_vm *vm = vm_make();
  size_t start = live(vm);
  int64_t shape[] = {4};
  qn_value v = iota(vm, QN_f32, 1, shape);
  qn_array *a = value_array(v);
  ck_assert(array_own(vm, &v));
  ck_assert_ptr_eq(value_array(v), a);
  qn_value other = value_retain(v);
  ck_assert(array_own(vm, &v));
  ck_assert_ptr_ne(value_array(v), a);
  ck_assert_uint_eq(vm->copies.count, 1);
  ck_assert_uint_eq(vm->copies.bytes, 16);
  ((float *)array_data(value_array(v)))[0] = 9;
  ck_assert(array_get_flat(a, 0).u.f == 0.0);
  value_release(vm, other);
  /* One owner of the header, two of the storage. */
  qn_array *view = array_view(vm, value_array(v), QN_f32, 1, shape, (int64_t[]){1}, 0);
  qn_value w = value_obj(TAG_ARRAY, view);
  ck_assert(array_own(vm, &w));
  ck_assert_ptr_ne(value_array(w)->storage, value_array(v)->storage);
  value_release(vm, w);
  /* A strided view that is alone with its storage is written in place; a broadcast is not; foreign memory is not. */
  view = array_view(vm, value_array(v), QN_f32, 1, (int64_t[]){2}, (int64_t[]){2}, 0);
  value_release(vm, v);
  w = value_obj(TAG_ARRAY, view);
  ck_assert(array_own(vm, &w));
  ck_assert_ptr_eq(value_array(w), view);
  view->storage->foreign = 1;
  ck_assert(array_own(vm, &w));
  ck_assert_ptr_ne(value_array(w), view);
  view = array_view(vm, value_array(w), QN_f32, 1, (int64_t[]){3}, (int64_t[]){0}, 1);
  value_release(vm, w);
  w = value_obj(TAG_ARRAY, view);
  ck_assert(array_own(vm, &w));
  ck_assert_ptr_ne(value_array(w), view);
  ck_assert_int_eq(value_array(w)->strides[0], 1);
  value_release(vm, w);
  ck_assert_uint_eq(live(vm), start);
  vm_close(vm);
}
END_TEST

START_TEST(copies_between_any_layouts) {
  qn_vm *vm = vm_make();
  qn_dtype dtypes[] = {QN_u8, QN_i16, QN_f32, QN_i64};
  uint32_t random = 1;
  for (int round = 0; round < 400; round++) {
    qn_dtype d = dtypes[round % 4];
    int rank = 1 + round % 4;
    int64_t base_shape[4], shape[4], strides[4], order[4];
    for (int i = 0; i < rank; i++) {
      random = random * 1664525 + 1013904223;
      base_shape[i] = 1 + (random >> 24) % (rank == 2 ? 70 : 9);
      order[i] = i;
    }
    for (int i = rank - 1; i > 0; i--) { /* a random permutation */
      random = random * 1664525 + 1013904223;
      int k = (int)((random >> 24) % (unsigned)(i + 1));
      int64_t o = order[i];
      order[i] = order[k];
      order[k] = o;
    }
    qn_value v = iota(vm, d, rank, base_shape);
    qn_array *a = value_array(v);
    int64_t offset = 0;
    for (int i = 0; i < rank; i++) { /* flip, step or broadcast some axes */
      random = random * 1664525 + 1013904223;
      int64_t n = base_shape[order[i]], s = a->strides[order[i]];
      switch (random >> 28) {
      case 0:
        offset += (n - 1) * s;
        s = -s;
        break;
      case 1:
        n = (n + 1) / 2;
        s *= 2;
        break;
      case 2:
        n = 5;
        s = 0;
        break;
      }
      shape[i] = n;
      strides[i] = s;
    }
    qn_array *view = array_view(vm, a, d, rank, shape, strides, offset);
    qn_array *c = array_contiguous(vm, view);
    ck_assert(c->contiguous);
    for (int64_t i = 0; i < view->size; i++)
      if (array_get_flat(c, i).u.i != array_get_flat(view, i).u.i)
        ck_abort_msg("round %d, element %ld", round, (long)i);
    /* And into a strided destination. */
    qn_array *to = array_new(vm, d, rank, base_shape);
    qn_array *into = array_view(vm, to, d, rank, base_shape, to->strides, 0);
    into->contiguous = false;
    array_copy_elements(into, a);
    ck_assert_int_eq(memcmp(array_data(to), array_data(a), (size_t)a->size * dtype_size(d)), 0);
    drop(vm, into);
    drop(vm, to);
    drop(vm, c);
    drop(vm, view);
    value_release(vm, v);
  }
  vm_close(vm);
}
END_TEST

START_TEST(transposes_of_planes_in_both_directions) {
  qn_vm *vm = vm_make();
  int64_t shape[] = {130, 77};
  qn_value v = iota(vm, QN_i64, 2, shape);
  int64_t *data = (int64_t *)array_data(value_array(v));
  for (int64_t i = 0; i < 130 * 77; i++) data[i] = i;
  qn_array *to = array_new(vm, QN_i64, 2, (int64_t[]){77, 130});
  qn_array *t = array_view(vm, to, QN_i64, 2, shape, (int64_t[]){1, 130}, 0);
  array_copy_elements(t, value_array(v));
  const int64_t *out = (const int64_t *)array_data(to);
  for (int64_t i = 0; i < 77; i++)
    for (int64_t k = 0; k < 130; k++) ck_assert_int_eq(out[i * 130 + k], k * 77 + i);
  drop(vm, t);
  drop(vm, to);
  value_release(vm, v);
  vm_close(vm);
}
END_TEST

START_TEST(reshapes_that_are_views) {
  qn_vm *vm = vm_make();
  int64_t shape[] = {4, 6, 5};
  qn_value v = iota(vm, QN_i32, 3, shape);
  qn_array *a = value_array(v);
  int64_t strides[ARRAY_MAX_RANK];
  ck_assert(shape_reshape_strides(a, 2, (int64_t[]){24, 5}, strides));
  ck_assert(!shape_reshape_strides(a, 2, (int64_t[]){24, 4}, strides));
  /* Every second row of the middle axis: the outer two axes still join, the inner two do not. */
  qn_array *s = array_view(vm, a, QN_i32, 3, (int64_t[]){4, 3, 5}, (int64_t[]){30, 10, 1}, 0);
  ck_assert(shape_reshape_strides(s, 2, (int64_t[]){12, 5}, strides));
  ck_assert_int_eq(strides[0], 10);
  ck_assert_int_eq(strides[1], 1);
  ck_assert(!shape_reshape_strides(s, 2, (int64_t[]){4, 15}, strides));
  ck_assert(shape_reshape_strides(s, 5, (int64_t[]){2, 2, 1, 3, 5}, strides));
  ck_assert_int_eq(strides[0], 60);
  ck_assert_int_eq(strides[1], 30);
  ck_assert_int_eq(strides[3], 10);
  ck_assert(shape_reshape_strides(s, 4, (int64_t[]){12, 5, 1, 1}, strides));
  qn_array *t = array_view(vm, a, QN_i32, 2, (int64_t[]){5, 24}, (int64_t[]){1, 5}, 0);
  ck_assert(shape_reshape_strides(t, 3, (int64_t[]){5, 4, 6}, strides));
  ck_assert_int_eq(strides[1], 30);
  ck_assert(!shape_reshape_strides(t, 1, (int64_t[]){120}, strides));
  ck_assert(!shape_reshape_strides(t, 2, (int64_t[]){24, 5}, strides));
  drop(vm, s);
  drop(vm, t);
  value_release(vm, v);
  vm_close(vm);
}
END_TEST

static int deleted;
static void foreign_deleter(void *ctx) { *(int *)ctx += 1; }

START_TEST(foreign_storage_goes_to_its_deleter) {
  qn_vm *vm = vm_make();
  static float data[4] = {1, 2, 3, 4};
  deleted = 0;
  qn_array *a = array_new_header(vm, QN_f32, 1, (int64_t[]){4});
  qn_storage *s = mem_alloc(vm, sizeof *s);
  *s = (qn_storage){
      .refs = 1, .foreign = 1, .bytes = 16, .data = (char *)data, .deleter = foreign_deleter, .ctx = &deleted};
  a->storage = s;
  qn_array *view = array_view(vm, a, QN_f32, 1, (int64_t[]){2}, (int64_t[]){1}, 2);
  drop(vm, a);
  ck_assert_int_eq(deleted, 0);
  ck_assert(array_get_flat(view, 0).u.f == 3.0);
  drop(vm, view);
  ck_assert_int_eq(deleted, 1);
  vm_close(vm);
}
END_TEST

static bool run_pending(qn_vm *vm, qn_array *a) {
  if (!array_allocate(vm, a)) return false;
  memset(array_data(a), 0, (size_t)a->size * dtype_size((qn_dtype)a->dtype));
  return true;
}

START_TEST(pending_arrays_are_forced) {
  qn_vm *vm = vm_make();
  qn_array *a = array_new_header(vm, QN_f32, 1, (int64_t[]){4});
  ck_assert(array_pending(a));
  ck_assert(!array_force(vm, a)); /* nobody can */
  ck_assert_int_eq(taken_error(vm), E_internal);
  ck_assert_ptr_null(array_contiguous(vm, a));
  ck_assert_int_eq(taken_error(vm), E_internal);
  vm->hooks.force = run_pending;
  qn_value v = value_obj(TAG_ARRAY, a);
  ck_assert_int_eq(value_equal(vm, v, v), 1);
  ck_assert(!array_pending(a));
  value_release(vm, v);
  vm_close(vm);
}
END_TEST

START_TEST(arrays_go_through_the_api) {
  qn_vm *vm = vm_make();
  size_t start = live(vm);
  int64_t shape[] = {2, 2};
  double data[] = {1, 2, 3, 4}, out[4];
  qn_value v;
  ck_assert_int_eq(qn_array_from(vm, QN_f64, 2, shape, data, &v), QN_OK);
  ck_assert_int_eq(qn_kind_of(v), QN_ARRAY);
  ck_assert_int_eq(qn_array_rank(v), 2);
  ck_assert_int_eq(qn_array_dtype(v), QN_f64);
  ck_assert_int_eq(qn_array_shape(v)[1], 2);
  ck_assert_int_eq(qn_array_read(vm, v, out, sizeof out), QN_OK);
  ck_assert_int_eq(memcmp(data, out, sizeof out), 0);
  ck_assert_int_eq(qn_array_read(vm, v, out, 8), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), "E317");
  ck_assert_int_eq(qn_array_read(vm, qn_int(1), out, 8), QN_ERROR);
  ck_assert_str_eq(qn_error_message(vm), "an array is needed, not int 1");
  qn_release(vm, v);
  unsigned char flags[] = {0, 7}, back[2];
  ck_assert_int_eq(qn_array_from(vm, QN_bool, 1, (int64_t[]){2}, flags, &v), QN_OK);
  ck_assert_int_eq(qn_array_read(vm, v, back, 2), QN_OK);
  ck_assert_int_eq(back[1], 1);
  qn_release(vm, v);
  ck_assert_int_eq(qn_array_from(vm, QN_u64, 1, (int64_t[]){1}, data, &v), QN_ERROR);
  ck_assert_int_eq(qn_kind_of(v), QN_NIL);
  ck_assert_str_eq(qn_error_id(vm), "E206");
  ck_assert_int_eq(qn_array_from(vm, QN_f64, 1, (int64_t[]){-1}, data, &v), QN_ERROR);
  ck_assert_uint_eq(qn_dtype_size(QN_bf16), 2);
  error_clear(vm);
  text_free(&vm->report);
  ck_assert_uint_eq(live(vm), start);
  vm_close(vm);
}
END_TEST

/* What was made of two blocks and freed as one array serves for blocks again: memory does not grow. Under AddressSanitizer every
 * block is a malloc of its own, and those wait for long before they come back. */
START_TEST(blocks_come_back) {
  qn_vm *vm = vm_make();
  int64_t shape[1] = {4};
  const char *low = NULL, *high = NULL;
  for (int i = 0; i < 100000; i++) {
    qn_array *a = array_new_header(vm, QN_f32, 1, shape);
    if (!a || !array_allocate(vm, a)) ck_abort_msg("no memory");
    const char *at = (const char *)a->storage;
    if (!low || at < low) low = at;
    if (!high || at > high) high = at;
    value_release(vm, value_obj(TAG_ARRAY, a));
  }
  if (!MEM_DIRECT) ck_assert_int_lt(high - low, 8 << 20);
  vm_close(vm);
}
END_TEST

/* Ctrl-C ends a copy of many bytes in any layout; small ones do not look at it. */
START_TEST(long_copies_stop) {
  enum { N = 2048 };
  const struct {
    int64_t n, strides[2];
  } maps[] = {{N, {N, 1}}, {N, {1, N}}, {N, {0, 1}}, {N, {1, 0}}, {N, {-N, -1}}, {N / 2, {2 * N, 2}}, {4, {1, N}}};
  qn_vm *vm = vm_make();
  size_t start = live(vm);
  qn_array *base = array_new(vm, QN_f64, 2, (int64_t[]){N, N});
  if (!base) ck_abort_msg("no memory");
  memset(array_data(base), 0, sizeof(double) * N * N);
  for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
    int64_t offset = maps[i].strides[1] < 0 ? (int64_t)N * N - 1 : 0, n = maps[i].n;
    qn_array *a = array_view(vm, base, QN_f64, 2, (int64_t[]){n, n}, maps[i].strides, offset);
    if (!a) ck_abort_msg("no memory");
    qn_interrupt(vm);
    qn_array *copy = array_duplicate(vm, a);
    if (n == 4) {
      ck_assert_ptr_nonnull(copy);
      ck_assert(vm_poll(vm)); /* it still is to be noticed */
    } else {
      ck_assert_ptr_null(copy);
    }
    ck_assert_str_eq(qn_error_id(vm), "E603");
    error_clear(vm);
    if (copy) drop(vm, copy);
    copy = array_duplicate(vm, a); /* once only */
    ck_assert_ptr_nonnull(copy);
    drop(vm, copy);
    drop(vm, a);
  }
  drop(vm, base);
  text_free(&vm->report);
  ck_assert_uint_eq(live(vm), start);
  vm_close(vm);
}
END_TEST

int main(void) {
  Suite *s = suite_create("lang_array");
  CASE(tcase_create("shapes"), blocks_come_back, arrays_have_shape_and_strides, impossible_shapes_are_errors);
  CASE(tcase_create("views"), views_share_and_know_contiguity, reshapes_that_are_views);
  CASE(tcase_create("owners"), writing_needs_one_owner);
  CASE(tcase_create("copies"), long_copies_stop, copies_between_any_layouts, transposes_of_planes_in_both_directions);
  CASE(tcase_create("storage"), foreign_storage_goes_to_its_deleter, pending_arrays_are_forced);
  CASE(tcase_create("api"), arrays_go_through_the_api);
  return run_suite(s);
}
