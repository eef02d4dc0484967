/* Memory: accounting, free lists, buffers and the pool, limits, failure on demand, arenas, VMs in two threads. */
#include <pthread.h>

#include "tests/unit/lang.h"

#if defined(__SANITIZE_ADDRESS__)
#define DIRECT 1 /* nothing is pooled there */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DIRECT 1
#endif
#endif
#ifndef DIRECT
#define DIRECT 0
#endif

static bool all_bytes(const void *p, size_t n, int value) {
  for (size_t i = 0; i < n; i++)
    if (((const unsigned char *)p)[i] != (value & 255)) return false;
  return true;
}

START_TEST(sizes_come_back) {
  qn_vm *vm = vm_make();
  size_t start = live(vm);
  enum { N = 3000 };
  void *p[N];
  for (size_t i = 0; i < N; i++) {
    p[i] = mem_alloc(vm, i);
    ck_assert_ptr_nonnull(p[i]);
    ck_assert_uint_eq((uintptr_t)p[i] % 16, 0);
    memset(p[i], (int)i, i);
  }
  ck_assert_uint_ge(live(vm), start + N * (N - 1) / 2);
  for (size_t i = 0; i < N; i++) ck_assert(all_bytes(p[i], i, (int)i));
  for (size_t i = 0; i < N; i++) mem_free(vm, p[i], i);
  ck_assert_uint_eq(live(vm), start);
  mem_free(vm, NULL, 100);
  vm_close(vm);
}
END_TEST

START_TEST(realloc_keeps_contents) {
  qn_vm *vm = vm_make();
  size_t start = live(vm), size = 1;
  char *p = mem_alloc(vm, size);
  p[0] = 0;
  for (size_t next = 2; next < 5000; next += 1 + next / 7) {
    p = mem_realloc(vm, p, size, next);
    ck_assert_ptr_nonnull(p);
    bool same = true;
    for (size_t i = 0; i < size; i++) same &= p[i] == (char)i;
    ck_assert(same);
    for (size_t i = size; i < next; i++) p[i] = (char)i;
    size = next;
  }
  p = mem_realloc(vm, p, size, 40);
  for (size_t i = 0; i < 40; i++) ck_assert_int_eq(p[i], (char)i);
  mem_free(vm, p, 40);
  ck_assert_uint_eq(live(vm), start);
  char *z = mem_zalloc(vm, 700);
  ck_assert(all_bytes(z, 700, 0));
  mem_free(vm, z, 700);
  vm_close(vm);
}
END_TEST

START_TEST(buffers_are_aligned_padded_and_reused) {
  qn_vm *vm = vm_make();
  size_t sizes[] = {0, 1, 32, 64, 500, 512, 513, 4096, 65536, 300000, (2 << 20) - 64, (2 << 20) - 63, 2 << 20, 5 << 20};
  size_t start = live(vm);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    char *p = mem_buffer(vm, sizes[i]);
    ck_assert_ptr_nonnull(p);
    ck_assert_uint_eq((uintptr_t)p % 64, 0);
    memset(p, 7, sizes[i]);
    volatile char sum = 0;
    for (int k = 0; k < 64; k++) sum = (char)(sum + p[sizes[i] + (size_t)k]);
    ck_assert_uint_ge(mem_stats_of(vm)->buffers, sizes[i]);
    mem_buffer_free(vm, p, sizes[i]);
    ck_assert_uint_eq(mem_stats_of(vm)->buffers, 0);
    char *q = mem_buffer(vm, sizes[i]);
    if (!DIRECT) ck_assert_ptr_eq(p, q);
    mem_buffer_free(vm, q, sizes[i]);
  }
  ck_assert_uint_eq(live(vm), start);
  if (!DIRECT) ck_assert_uint_ge(mem_stats_of(vm)->pooled, 7 << 20);
  mem_trim(vm);
  ck_assert_uint_eq(mem_stats_of(vm)->pooled, 0);
  vm_close(vm);
}
END_TEST

START_TEST(pool_keeps_no_more_than_the_tunable) {
  qn_vm *vm = vm_make();
  ck_assert(tunable_set(vm, "pool.bytes", "9000000"));
  void *p[4];
  for (int i = 0; i < 4; i++) p[i] = mem_buffer(vm, 4 << 20);
  for (int i = 0; i < 4; i++) mem_buffer_free(vm, p[i], 4 << 20);
  ck_assert_uint_le(mem_stats_of(vm)->pooled, 9000000);
  vm_close(vm);
}
END_TEST

START_TEST(pool_passes_between_vms_of_an_engine) {
  qn_config c;
  qn_config_init(&c);
  c.engine = qn_engine_open();
  qn_vm *a = vm_open(&c), *b = vm_open(&c);
  void *p = mem_buffer(a, 3 << 20);
  mem_buffer_free(a, p, 3 << 20);
  void *q = mem_buffer(b, 3 << 20);
  if (!DIRECT) ck_assert_ptr_eq(p, q);
  mem_buffer_free(b, q, 3 << 20);
  vm_close(a);
  vm_close(b);
  qn_engine_close(c.engine);
}
END_TEST

START_TEST(limit_is_an_error_and_holds) {
  qn_config c;
  qn_config_init(&c);
  c.memory_limit = 8 << 20;
  qn_vm *vm = vm_open(&c);
  ck_assert_ptr_nonnull(vm);
  ck_assert_ptr_null(mem_buffer(vm, 9 << 20));
  ck_assert_int_eq(taken_error(vm), E_memory);
  ck_assert_ptr_null(mem_alloc(vm, (size_t)1 << 60));
  ck_assert_int_eq(taken_error(vm), E_memory);
  /* Small objects fill it, too. */
  qn_list *l = list_new(vm, 0);
  for (;;) {
    qn_range *r = range_new(vm, 0, 1, 1);
    if (!r || !list_push(vm, l, value_obj(TAG_RANGE, r))) break;
  }
  ck_assert_int_eq(taken_error(vm), E_memory);
  ck_assert_uint_gt(live(vm), 2 << 20);
  ck_assert_uint_le(live(vm), 8 << 20);
  value_release(vm, value_obj(TAG_LIST, l));
  /* What small objects had is given back for a buffer. */
  void *p = mem_buffer(vm, 6 << 20);
  ck_assert_ptr_nonnull(p);
  mem_buffer_free(vm, p, 6 << 20);
  vm_close(vm);
  c.memory_limit = 100;
  ck_assert_ptr_null(vm_open(&c));
}
END_TEST

START_TEST(reclaiming_keeps_what_lives) {
  qn_vm *vm = vm_make();
  enum { N = 40000 };
  static qn_value kept[N / 100];
  qn_list *l = list_new(vm, N);
  for (int i = 0; i < N; i++) {
    qn_range *r = range_new(vm, i, i + 1, 1);
    l->items[i] = value_obj(TAG_RANGE, r);
    if (i % 100 == 0 && i < N / 2) kept[i / 100] = value_retain(l->items[i]);
  }
  value_release(vm, value_obj(TAG_LIST, l));
  mem_trim(vm);
  l = list_new(vm, N); /* whatever was given back may be taken again */
  bool made = true;
  for (int i = 0; i < N; i++) {
    qn_range *r = range_new(vm, -1, -1, 1);
    made &= r != NULL;
    if (r) l->items[i] = value_obj(TAG_RANGE, r);
  }
  ck_assert(made);
  for (int i = 0; i < N / 2; i += 100) {
    ck_assert_int_eq(value_range(kept[i / 100])->start, i);
    value_release(vm, kept[i / 100]);
  }
  value_release(vm, value_obj(TAG_LIST, l));
  vm_close(vm);
}
END_TEST

START_TEST(the_chosen_allocation_fails_once) {
  qn_vm *vm = vm_make();
  mem_fail_at(vm, 2);
  void *a = mem_alloc(vm, 32), *b = mem_alloc(vm, 32), *c = mem_alloc(vm, 32);
  ck_assert_ptr_nonnull(a);
  ck_assert_ptr_null(b);
  ck_assert_ptr_nonnull(c);
  ck_assert_int_eq(taken_error(vm), E_memory);
  mem_fail_at(vm, 1);
  mem_fail_at(vm, 0);
  void *d = mem_alloc(vm, 32);
  ck_assert_ptr_nonnull(d);
  mem_free(vm, a, 32);
  mem_free(vm, c, 32);
  mem_free(vm, d, 32);
  vm_close(vm);
}
END_TEST

static void fill_arena(arena *a) {
  unsigned char *p[400];
  for (size_t i = 0; i < 400; i++) {
    p[i] = arena_alloc(a, i * 7);
    ck_assert_ptr_nonnull(p[i]);
    ck_assert_uint_eq((uintptr_t)p[i] % 16, 0);
    ck_assert(all_bytes(p[i], i * 7, 0));
    memset(p[i], (int)i, i * 7);
  }
  for (size_t i = 0; i < 400; i++) ck_assert(all_bytes(p[i], i * 7, (int)i));
  ck_assert(!a->failed);
}

START_TEST(arenas_with_and_without_a_vm) {
  qn_vm *vm = vm_make();
  size_t start = live(vm);
  arena a;
  arena_init(&a, vm);
  fill_arena(&a);
  arena_free(&a);
  ck_assert_uint_eq(live(vm), start);
  ck_assert(arena_reserve(&a, 3 * 40, 3));
  size_t reserved = live(vm);
  for (int i = 0; i < 3; i++) ck_assert_ptr_nonnull(arena_alloc(&a, 40));
  ck_assert_uint_eq(live(vm), reserved);
  mem_fail_at(vm, 1);
  ck_assert(!arena_reserve(&a, 1000, 1));
  ck_assert(!a.failed);
  ck_assert_int_eq(taken_error(vm), E_memory);
  mem_fail_at(vm, 1);
  ck_assert_ptr_null(arena_alloc(&a, 100));
  ck_assert(a.failed);
  ck_assert_int_eq(taken_error(vm), E_memory);
  arena_free(&a);
  vm_close(vm);
  arena_init(&a, NULL);
  fill_arena(&a);
  ck_assert_ptr_null(arena_alloc(&a, SIZE_MAX - 5));
  ck_assert(a.failed);
  arena_free(&a);
}
END_TEST

/* One VM's life in a thread of its own: arrays of all sizes, each holding a pattern until it is freed. */
static void *vm_in_thread(void *arg) {
  qn_config c;
  qn_config_init(&c);
  c.engine = arg;
  qn_vm *vm = vm_open(&c);
  if (!vm) return NULL;
  size_t start = live(vm);
  enum { SLOTS = 16 };
  qn_array *a[SLOTS] = {0};
  uint32_t random = (uint32_t)(uintptr_t)&vm;
  bool good = true;
  for (int i = 0; i < 4000; i++) {
    random = random * 1664525 + 1013904223;
    int k = (int)(random >> 28);
    if (a[k]) {
      const int32_t *d = (const int32_t *)array_data(a[k]);
      for (int64_t j = 0; j < a[k]->size; j += 997) good &= d[j] == (int32_t)(a[k]->size + j);
      value_release(vm, value_obj(TAG_ARRAY, a[k]));
    }
    int64_t n = (int64_t)1 << (random >> 20 & 15);
    n += random >> 8 & 255;
    a[k] = array_new(vm, QN_i32, 1, &n);
    int32_t *d = (int32_t *)array_data(a[k]);
    for (int64_t j = 0; j < n; j += 997) d[j] = (int32_t)(n + j);
  }
  for (int k = 0; k < SLOTS; k++)
    if (a[k]) value_release(vm, value_obj(TAG_ARRAY, a[k]));
  good &= live(vm) == start;
  vm_close(vm);
  return !good ? NULL : arg ? arg : (void *)&vm_in_thread;
}

static void run_two(void *engine) {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_create(&t[i], NULL, vm_in_thread, engine), 0);
  for (int i = 0; i < 2; i++) {
    void *result;
    pthread_join(t[i], &result);
    ck_assert_ptr_nonnull(result);
  }
}

START_TEST(two_vms_in_two_threads) {
  qn_engine *engine = qn_engine_open();
  ck_assert_ptr_nonnull(engine);
  run_two(engine);
  qn_engine_close(engine);
  run_two(NULL); /* the default engine */
  run_two(NULL); /* and again, after its last VM closed */
}
END_TEST

int main(void) {
  Suite *s = suite_create("lang_mem");
  CASE(tcase_create("objects"), sizes_come_back, realloc_keeps_contents);
  CASE(tcase_create("buffers"), buffers_are_aligned_padded_and_reused, pool_keeps_no_more_than_the_tunable,
       pool_passes_between_vms_of_an_engine);
  CASE(tcase_create("limits"), limit_is_an_error_and_holds, reclaiming_keeps_what_lives);
  CASE(tcase_create("failure"), the_chosen_allocation_fails_once);
  CASE(tcase_create("arenas"), arenas_with_and_without_a_vm);
  CASE(tcase_create("threads"), two_vms_in_two_threads);
  return run_suite(s);
}
