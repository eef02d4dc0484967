/* Jobs that nobody wants any more (jit/trace/worker.c): jit_cancel and the end of a VM while its plans wait, are being made, lie in the
 * mailbox, or are being compiled. Nothing is left behind, calls go on, and what was dropped comes again when it is asked for. How long
 * it takes for many jobs is told in test_embed.c (cancelling_is_linear); functions that are replaced meanwhile in test_trace.c. */
#include <pthread.h>

#include "jit/trace/jobs.h"
#include "tests/unit/trace_case.h"

/* As a compiler thread does that has lost its processor. */
static pthread_mutex_t *queues_lock(qn_vm *vm) { return vm->engine->jit; }

typedef enum place {
  UNSENT,    /* the queues could not be had */
  QUEUED,    /* behind another job, or not taken yet */
  PLANNING,  /* by a planner, who has just been given it */
  DELIVERED, /* in the mailbox */
  COMPILING, /* the plan runs, and a compiler is at its kernels */
  PLACES
} place;

static slow_cc cc;

/* A graph that takes a planner some time: many kernels that depend on each other. */
static const char program[] = "let f = fn(x) {\n"
                              "  let y = x\n"
                              "  for i in 0..400 { y = tanh(cumsum(y * 0.5 + i) - sum(y)) }\n"
                              "  y\n"
                              "}\n"
                              "fn g(x) = sum(tanh(x) * 2)\n"
                              "let x = ones(7)\n"
                              "let eager_f = nojit(f)\n";

static void wait_for(qn_vm *vm, bool (*done)(qn_vm *vm)) {
  for (double end = now() + 120; !done(vm); usleep(500)) ck_assert_msg(now() < end, "it does not come");
}
static bool
is_sent(qn_vm *vm) { /* somebody has taken it: the planner's own thread, which holds no lock while it works */
  job *j = entry_at(vm, "f", 0)->job;
  pthread_mutex_lock(queues_lock(vm));
  bool taken = j->line.link == NULL;
  pthread_mutex_unlock(queues_lock(vm));
  return taken;
}
static bool is_delivered(qn_vm *vm) { return atomic_load(&jit_of(vm)->box->jobs) != NULL; }

/* A VM whose function f has its job at that place; `lock` is held where the queues must stand still. */
static qn_vm *vm_with_job(place at, bool *locked) {
  qn_vm *vm = trace_vm(QN_JIT_ON);
  if (at == COMPILING) tune(vm, "jit.cc", "1");
  good(vm, program);
  good(vm, "g(x)"); /* the threads are there */
  for (double end = now() + 120; entry_at(vm, "g", 0)->state == SPEC_COMPILING; jit_drain(vm), usleep(500))
    ck_assert_msg(now() < end, "no planner works");
  *locked = at == UNSENT || at == QUEUED;
  if (at == UNSENT) ck_assert_int_eq(pthread_mutex_lock(queues_lock(vm)), 0);
  good(vm, "f(x)");
  while (at != UNSENT && jit_of(vm)->unsent) { /* a planner was at the queues */
    jit_cancel(vm);
    good(vm, "f(x)");
  }
  specialization *e = entry_at(vm, "f", 0);
  ck_assert_int_eq(e->state, SPEC_COMPILING);
  ck_assert_ptr_nonnull(e->job);
  if (at == UNSENT) ck_assert_ptr_eq(jit_of(vm)->unsent, &e->job->line);
  if (at == QUEUED) ck_assert_int_eq(pthread_mutex_lock(queues_lock(vm)), 0); /* perhaps a planner has it by now */
  if (at == PLANNING) wait_for(vm, is_sent);
  if (at == DELIVERED || at == COMPILING) wait_for(vm, is_delivered);
  if (at == COMPILING) {
    jit_drain(vm);
    ck_assert_int_eq(e->state, SPEC_READY);
    slow_cc_runs(&cc);
  }
  return vm;
}

static void unlock(qn_vm *vm, bool *locked) {
  if (*locked) ck_assert_int_eq(pthread_mutex_unlock(queues_lock(vm)), 0);
  *locked = false;
}

START_TEST(cancelled_at_each_place) {
  slow_cc_begin(&cc);
  for (place at = UNSENT; at < PLACES; at++)
    for (int turn = 0; turn < 2; turn++) {
      bool locked;
      qn_vm *vm = vm_with_job(at, &locked);
      uint64_t recorded = entries_of(vm, "f")->calls[CALL_recorded];
      double begin = now();
      jit_cancel(vm);
      ck_assert_msg(now() - begin < 20, "place %d: cancelling took %g s", (int)at, now() - begin);
      ck_assert_uint_eq(entries_in(vm, "f"), 0);
      ck_assert_uint_eq(entries_of(vm, "f")->count, 0);
      ck_assert(!entries_of(vm, "f")->full);
      ck_assert_ptr_null(jit_of(vm)->unsent);
      jit_cancel(vm); /* there is nothing left */
      unlock(vm, &locked);
      /* What was dropped is recorded again, and a plan comes. */
      tune(vm, "jit.cc", "0");
      good(vm, "let again = f(x)");
      ck_assert_uint_eq(entries_of(vm, "f")->calls[CALL_recorded], recorded + 1);
      for (double end = now() + 120; entry_at(vm, "f", 0)->state == SPEC_COMPILING; jit_drain(vm), usleep(500))
        ck_assert_msg(now() < end, "place %d: no plan comes", (int)at);
      ck_assert_int_eq(entry_at(vm, "f", 0)->state, SPEC_READY);
      ck_assert_double_eq(number(vm, "if all(f(x) == eager_f(x)) and all(again == eager_f(x)) { 1 } else { 0 }"), 1);
      qn_vm_close(vm);
    }
  slow_cc_end(&cc);
}
END_TEST

/* Jobs of one VM alone are dropped: another one of the same engine gets its plan. */
START_TEST(other_vms_go_on) {
  qn_vm *vm = trace_vm(QN_JIT_ON);
  qn_config config;
  qn_config_init(&config);
  config.engine = vm->engine;
  config.jit = QN_JIT_ON;
  qn_vm *other = qn_vm_open(&config);
  ck_assert_ptr_nonnull(other);
  tune(other, "jit.hot", "1");
  tune(other, "jit.cc", "0");
  good(vm, program);
  good(other, program);
  good(vm, "f(x)");
  good(other, "f(x)\ng(x)");
  jit_cancel(vm);
  good(vm, "f(x)");
  qn_vm_close(vm);
  for (double end = now() + 120; entry_at(other, "f", 0)->state == SPEC_COMPILING; jit_drain(other), usleep(500))
    ck_assert_msg(now() < end, "no plan comes");
  ck_assert_int_eq(entry_at(other, "f", 0)->state, SPEC_READY);
  ck_assert_double_eq(number(other, "if all(f(x) == eager_f(x)) { 1 } else { 0 }"), 1);
  qn_vm_close(other);
}
END_TEST

/* A planner sees that nobody wants its plan: long before it would be done it takes the next job. */
START_TEST(planning_ends_early) {
  qn_vm *vm = trace_vm(QN_JIT_ON);
  tune(vm, "jit.nodes", "10000000");
  good(vm, "fn f(x, n) { let y = x; for i in 0..n { y = tanh(cumsum(y * 0.5 + i) - sum(y)) }; y }\nfn g(x) = sum(x) * "
           "x\nlet x = ones(7)");
  good(vm, "g(x)");
  for (double end = now() + 120; entry_at(vm, "g", 0)->state == SPEC_COMPILING; jit_drain(vm), usleep(500))
    ck_assert_msg(now() < end, "no plan comes");
  good(vm, "f(x, 60000)"); /* seconds of planning */
  wait_for(vm, is_sent);
  jit_cancel(vm);
  good(vm, "g(ones(3))");
  double begin = now();
  for (double end = now() + 120; entry_at(vm, "g", 0)->state == SPEC_COMPILING; jit_drain(vm), usleep(500))
    ck_assert_msg(now() < end, "the planner is still at what nobody wants");
  ck_assert_msg(now() - begin < 60, "the next plan took %g s", now() - begin);
  qn_vm_close(vm);
}
END_TEST

START_TEST(vms_close_at_each_place) {
  slow_cc_begin(&cc);
  for (place at = UNSENT; at < PLACES; at++)
    for (int own = 0; own < 2; own++) { /* its engine closes, too, or goes on for another VM */
      qn_vm *stays = NULL;
      bool locked;
      qn_vm *vm = vm_with_job(at, &locked);
      pthread_mutex_t *lock = queues_lock(vm);
      if (!own) {
        qn_config config;
        qn_config_init(&config); /* the default engine, which is vm's */
        config.jit = QN_JIT_ON;
        stays = qn_vm_open(&config);
        ck_assert_ptr_nonnull(stays);
        tune(stays, "jit.hot", "1");
        tune(stays, "jit.cc", "0");
      } else {
        unlock(vm, &locked); /* who closes an engine waits for its lock */
      }
      double begin = now();
      qn_vm_close(vm);
      ck_assert_msg(now() - begin < 20, "place %d: closing took %g s", (int)at, now() - begin);
      if (locked) ck_assert_int_eq(pthread_mutex_unlock(lock), 0);
      if (!stays) continue;
      good(stays, "fn h(x) = x * 3 + 1\nh(ones(3))");
      for (double end = now() + 120; entry_at(stays, "h", 0)->state == SPEC_COMPILING; jit_drain(stays), usleep(500))
        ck_assert_msg(now() < end, "place %d: no plan comes", (int)at);
      ck_assert_int_eq(entry_at(stays, "h", 0)->state, SPEC_READY);
      qn_vm_close(stays);
    }
  slow_cc_end(&cc);
}
END_TEST

int main(void) {
  Suite *s = suite_create("trace_cancel");
  CASE(tcase_create("cancelled_at_each_place"), cancelled_at_each_place);
  CASE(tcase_create("other_vms_go_on"), other_vms_go_on);
  CASE(tcase_create("planning_ends_early"), planning_ends_early);
  CASE(tcase_create("vms_close_at_each_place"), vms_close_at_each_place);
  return run_suite(s);
}
