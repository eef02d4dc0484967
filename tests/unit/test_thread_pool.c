/* The threads of an engine: every piece of a region is done once, whoever comes; one holder at a time; a forked child works alone. */
#include <check.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jit/cpu/thread_pool.h"
#include "jit/run/device.h"

enum { PIECES = 64, HELPERS = 3 };

typedef struct region {
  atomic_int next;
  int done[PIECES];
  atomic_int threads[HELPERS + 1]; /* times that each number came */
} region;

static void work(void *ctx, int thread) {
  region *r = ctx;
  atomic_fetch_add(&r->threads[thread], 1);
  for (int k; (k = atomic_fetch_add(&r->next, 1)) < PIECES;) r->done[k]++;
}

static void run(qn_engine *engine, int64_t spin) {
  region r = {0};
  thread_pool_run(engine, HELPERS, spin, work, &r);
  for (int k = 0; k < PIECES; k++) ck_assert_int_eq(r.done[k], 1);
  ck_assert_int_eq(r.threads[0], 1);
  for (int t = 1; t <= HELPERS; t++) ck_assert_int_le(r.threads[t], 1);
}

START_TEST(every_piece_is_done_once) {
  qn_engine engine = {0};
  ck_assert(thread_pool_take(&engine));
  for (int i = 0; i < 20000; i++) run(&engine, i % 3 ? 50 : 0);
  for (int i = 0; i < 20; i++) { /* helpers have gone to sleep */
    usleep(2000);
    run(&engine, 0);
  }
  thread_pool_leave(&engine);
  devices_engine_close(&engine);
  ck_assert_ptr_null(engine.devices[FAMILY_cpu]);
}
END_TEST

START_TEST(one_holder_at_a_time) {
  qn_engine engine = {0};
  ck_assert(thread_pool_take(&engine));
  ck_assert(!thread_pool_take(&engine));
  thread_pool_leave(&engine);
  ck_assert(thread_pool_take(&engine));
  thread_pool_leave(&engine);
  devices_engine_close(&engine);
  devices_engine_close(&engine);
}
END_TEST

START_TEST(a_forked_child_works_alone) {
  qn_engine engine = {0};
  ck_assert(thread_pool_take(&engine));
  run(&engine, 10);
  pid_t child = fork();
  ck_assert_int_ge(child, 0);
  if (child == 0) {
    region r = {0};
    thread_pool_run(&engine, HELPERS, 10, work, &r);
    bool good = true;
    for (int k = 0; k < PIECES; k++) good = good && r.done[k] == 1;
    thread_pool_leave(&engine);
    devices_engine_close(&engine);
    _exit(good ? 0 : 1);
  }
  int status = -1;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
  thread_pool_leave(&engine);
  devices_engine_close(&engine);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("pool");
  TCase *c = tcase_create("regions");
  tcase_set_timeout(c, 60);
  tcase_add_test(c, every_piece_is_done_once);
  tcase_add_test(c, one_holder_at_a_time);
  tcase_add_test(c, a_forked_child_works_alone);
  suite_add_tcase(suite, c);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
