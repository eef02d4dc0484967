/* The VM: stacks and their limits, interrupts, step and time limits, floating-point mode, output, tunables, capabilities;
 * and what every failed allocation leaves behind. */
#include <fenv.h>
#include <pthread.h>

#include "tests/unit/lang.h"

static qn_vm *open_with(void (*change)(qn_config *c)) {
  qn_config c;
  qn_config_init(&c);
  change(&c);
  qn_vm *vm = vm_open(&c);
  ck_assert_ptr_nonnull(vm);
  return vm;
}

/* ---- stacks -------------------------------------------------------------------------------------------------- */

static int __attribute__((noinline)) descend(qn_vm *vm, int depth) {
  volatile char room[200];
  room[0] = (char)depth;
  if (!vm_enter(vm, 1)) return depth;
  int deepest = descend(vm, depth + 1);
  return room[0] == (char)depth ? deepest : -1;
}

static void *small_thread(void *arg) {
  qn_vm *vm = arg;
  vm_run run;
  vm_run_begin(vm, &run);
  int deepest = descend(vm, 0);
  int id = vm->error ? (int)vm->error->id : 0;
  vm_run_end(vm, &run);
  return id == E_recursion ? (void *)(intptr_t)deepest : NULL;
}

START_TEST(recursion_ends_before_the_stack_does) {
  qn_vm *vm = vm_make();
  int here = descend(vm, 0);
  ck_assert_int_eq(taken_error(vm), E_recursion);
  ck_assert_int_gt(here, 4000);
  /* In a thread with a small stack the limit is that thread's. */
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, 256 << 10);
  pthread_t t;
  ck_assert_int_eq(pthread_create(&t, &attr, small_thread, vm), 0);
  void *deepest;
  pthread_join(t, &deepest);
  ck_assert_int_gt((int)(intptr_t)deepest, 50);
  ck_assert_int_lt((int)(intptr_t)deepest, here);
  vm_close(vm);
}
END_TEST

static void little_stack(qn_config *c) { c->stack_bytes = 20000; }

START_TEST(hosts_bound_recursion) {
  qn_vm *vm = open_with(little_stack);
  int deepest = descend(vm, 0);
  ck_assert_int_eq(taken_error(vm), E_recursion);
  ck_assert_int_lt(deepest, 2000);
  vm_close(vm);
}
END_TEST

START_TEST(the_value_stack_ends_and_pops) {
  qn_vm *vm = vm_make();
  size_t start = live(vm);
  qn_value *mark = vm->sp;
  while (vm_enter(vm, 1)) *vm->sp++ = value_int(1);
  ck_assert_int_eq(taken_error(vm), E_too_large);
  ck_assert_int_eq(vm->sp - mark, 1 << 20);
  vm_pop_to(vm, mark);
  for (int i = 0; i < 10; i++) *vm->sp++ = str_value(vm, "temporary");
  vm_pop_to(vm, mark);
  ck_assert_uint_eq(live(vm), start);
  *vm->sp++ = str_value(vm, "left over"); /* closing releases it */
  vm_close(vm);
}
END_TEST

/* ---- limits -------------------------------------------------------------------------------------------------- */

static void *interrupter(void *vm) {
  qn_interrupt(vm);
  return NULL;
}

START_TEST(interrupts_stop_the_running_evaluation) {
  qn_vm *vm = vm_make();
  vm_run run;
  qn_interrupt(vm); /* nothing runs: the next evaluation is meant */
  vm_run_begin(vm, &run);
  ck_assert(vm_poll(vm));
  vm_run_end(vm, &run);
  ck_assert_int_eq(taken_error(vm), E_interrupted);
  qn_interrupt(vm);
  qn_interrupt_clear(vm);
  vm_run_begin(vm, &run);
  for (int i = 0; i < 100; i++) ck_assert(!vm_poll(vm));
  pthread_t t;
  pthread_create(&t, NULL, interrupter, vm);
  while (!vm_poll(vm)) {}
  pthread_join(t, NULL);
  ck_assert_int_eq(vm_status(vm), QN_INTERRUPTED);
  vm_run_end(vm, &run);
  ck_assert_int_eq(taken_error(vm), E_interrupted);
  ck_assert_int_eq(vm_status(vm), QN_OK);
  vm_close(vm);
}
END_TEST

static void ten_thousand_steps(qn_config *c) { c->step_limit = 10000; }
static void a_moment(qn_config *c) { c->time_limit = 0.02; }

START_TEST(steps_are_limited_per_evaluation) {
  qn_vm *vm = open_with(ten_thousand_steps);
  for (int round = 0; round < 3; round++) {
    vm_run run, inner;
    vm_run_begin(vm, &run);
    int n = 0;
    while (!vm_poll(vm)) {
      n++;
      if (n == 5000) { /* a host function that calls back shares the limit */
        vm_run_begin(vm, &inner);
        ck_assert(!vm_poll(vm));
        vm_run_end(vm, &inner);
      }
    }
    ck_assert_int_eq(n, 9998);
    ck_assert_int_eq(vm->error->id, E_limit);
    ck_assert(!error_catchable(vm));
    vm_run_end(vm, &run);
  }
  vm_close(vm);
}
END_TEST

START_TEST(time_is_limited) {
  qn_vm *vm = open_with(a_moment);
  vm_run run;
  vm_run_begin(vm, &run);
  uint64_t n = 0;
  while (!vm_poll(vm)) n++;
  ck_assert_int_eq(vm->error->id, E_limit);
  ck_assert_str_eq(qn_error_message(vm), "the time limit of 0.02 seconds is reached");
  ck_assert_uint_gt(n, 10000);
  vm_run_end(vm, &run);
  vm_close(vm);
}
END_TEST

START_TEST(the_hosts_float_mode_comes_back) {
  qn_vm *vm = vm_make();
  fesetround(FE_UPWARD);
  vm_run run;
  vm_run_begin(vm, &run);
  volatile double one = 1, little = 1e-30, tiny = 0x1p-1030;
  ck_assert(one + little == 1.0);
  ck_assert(tiny * 0.5 == 0x1p-1031); /* not flushed to zero */
  vm_run_end(vm, &run);
  ck_assert(one + little > 1.0);
  fesetround(FE_TONEAREST);
  vm_close(vm);
}
END_TEST

/* ---- settings ------------------------------------------------------------------------------------------------ */

static text_buf written[3];
static void sink(void *user, int stream, const char *text, size_t len) {
  ck_assert_ptr_eq(user, written);
  text_add(&written[stream], text, len);
}
static void with_sink(qn_config *c) {
  c->write = sink;
  c->user = written;
}

START_TEST(output_and_logs_go_to_the_host) {
  qn_vm *vm = open_with(with_sink);
  vm_write(vm, 1, "out", 3);
  ck_assert(log_parse("copies,breaks", &vm->log));
  ck_assert(vm_logs(vm, LOG_copies) && vm_logs(vm, LOG_breaks) && !vm_logs(vm, LOG_code));
  vm_logf(vm, LOG_breaks, "reason %d", 4);
  ck_assert_uint_eq(written[2].len, 0); /* it waits until a host may leave */
  vm_write(vm, 1, "put", 3);
  ck_assert_str_eq(written[1].text, "output");
  ck_assert_str_eq(written[2].text, "[breaks] reason 4\n");
  uint32_t bits = 77;
  ck_assert(!log_parse("copies,brakes", &bits));
  ck_assert_uint_eq(bits, 77);
  ck_assert(log_parse("all", &bits) && (bits & LOG_cache) && (bits & LOG_breaks));
  ck_assert(log_parse("", &bits) && bits == 0);
  text_free(&written[1]);
  text_free(&written[2]);
  vm_close(vm);
}
END_TEST

static void with_sink_and_limits(qn_config *c) {
  with_sink(c);
  c->time_limit = 1000;
  c->step_limit = 1 << 20;
}

static void written_is(const char *text) { ck_assert_str_eq(written[2].text ? written[2].text : "", text); }

/* What must wait comes at the next step, always, once and in order. */
START_TEST(what_waits_to_be_written_comes) {
  vm_run run;
  for (int limits = 0; limits < 2; limits++) {
    qn_vm *vm = open_with(limits ? with_sink_and_limits : with_sink);
    ck_assert(log_parse("breaks", &vm->log));
    vm_run_begin(vm, &run);
    for (int i = 0; i < 10000; i++) ck_assert(!vm_poll_between(vm)); /* the clock is looked at seldom now */
    for (uint64_t n = 1; n < 4; n++) {                               /* the VM's memory may be short */
      mem_fail_at(vm, n);
      vm_logf(vm, LOG_breaks, "%d", (int)n);
      vm_write_later(vm, "later\n", 6);
      mem_fail_at(vm, 0);
    }
    ck_assert(!vm_poll(vm)); /* not where a host may not leave */
    written_is("");
    ck_assert(!vm_poll_between(vm));
    written_is("[breaks] 1\nlater\n[breaks] 2\nlater\n[breaks] 3\nlater\n");
    text_free(&written[2]);
    vm_write_later(vm, "held\n", 5);
    qn_value result = str_value(vm, "result");
    vm_write_last(vm, &result);
    vm_run_end(vm, &run);
    written_is("held\n");
    ck_assert_ptr_null(vm->owned);
    value_release(vm, result);
    vm_run_begin(vm, &run);
    vm_write_later(vm, "left\n", 5);
    vm_run_unwound(&run);
    vm_write_later(vm, "outside\n", 8);
    vm_run_begin(vm, &run);
    ck_assert(!vm_poll_between(vm));
    written_is("held\nleft\noutside\n");
    ck_assert(!vm_poll_between(vm));
    vm_run_end(vm, &run);
    vm_write_later(vm, "closed\n", 7);
    vm_close(vm);
    written_is("held\nleft\noutside\nclosed\n");
    text_free(&written[2]);
  }
}
END_TEST

START_TEST(tunables_are_set_by_name) {
  qn_vm *vm = vm_make();
  ck_assert_int_eq(vm->tune[TUNE_jit_hot], tunable_rows[TUNE_jit_hot].def);
  ck_assert_int_eq(qn_set_tunable(vm, "jit.hot", "2"), QN_OK);
  ck_assert_int_eq(vm->tune[TUNE_jit_hot], 2);
  ck_assert_int_eq(qn_set_tunable(vm, "jit.hot", "0"), QN_ERROR);
  ck_assert_int_eq(vm->tune[TUNE_jit_hot], 2);
  ck_assert_int_eq(qn_set_tunable(vm, "jit.hot", "x"), QN_ERROR);
  ck_assert_int_eq(qn_set_tunable(vm, "jit.hott", "3"), QN_ERROR);
  ck_assert_str_eq(qn_error_id(vm), "E317");
  ck_assert_ptr_nonnull(strstr(qn_error_message(vm), "jit.hot"));
  ck_assert(tunable_set_list(vm, ""));
  ck_assert(tunable_set_list(vm, "jit.hot=5,par.grain=1_000"));
  ck_assert_int_eq(vm->tune[TUNE_jit_hot], 5);
  ck_assert_int_eq(vm->tune[TUNE_par_grain], 1000);
  error_clear(vm);
  ck_assert(!tunable_set_list(vm, "jit.hot"));
  ck_assert_int_eq(taken_error(vm), E_argument);
  vm_close(vm);
}
END_TEST

static void without_files(qn_config *c) { c->capabilities &= ~(uint32_t)QN_CAP_WRITE; }

START_TEST(capabilities_are_asked) {
  qn_vm *vm = open_with(without_files);
  ck_assert(vm_may(vm, QN_CAP_READ, "reading files"));
  ck_assert(!vm_may(vm, QN_CAP_WRITE, "writing files"));
  ck_assert_str_eq(qn_error_message(vm), "writing files is not permitted here");
  ck_assert_int_eq(taken_error(vm), E_capability);
  vm_close(vm);
}
END_TEST

START_TEST(short_configs_of_older_hosts) {
  qn_config c;
  memset(&c, 0xff, sizeof c);
  c.size = offsetof(qn_config, step_limit);
  c.engine = NULL;
  c.memory_limit = 0;
  qn_vm *vm = vm_open(&c);
  ck_assert_ptr_nonnull(vm);
  ck_assert_uint_eq(vm->config.step_limit, 0);
  ck_assert_uint_eq(vm->config.capabilities, QN_CAP_ALL);
  vm_close(vm);
}
END_TEST

/* ---- failing allocations ------------------------------------------------------------------------------------------ */

/* Each does something representative, cleans up, and says whether it succeeded. */
typedef bool (*operation)(qn_vm *vm);

static bool drop(qn_vm *vm, qn_value v) {
  if (value_is_error(v)) return false;
  value_release(vm, v);
  return true;
}
static qn_value own(value_tag tag, void *p) { return p ? value_obj(tag, p) : value_error(); }

static bool make_string(qn_vm *vm) { return drop(vm, own(TAG_STR, str_new(vm, "some text", 9))); }
static bool make_name(qn_vm *vm) { return drop(vm, own(TAG_STR, str_intern(vm, "a_new_name", 10))); }
static bool make_small_array(qn_vm *vm) { return drop(vm, own(TAG_ARRAY, array_new(vm, QN_f32, 1, (int64_t[]){8}))); }
static bool make_large_array(qn_vm *vm) {
  return drop(vm, own(TAG_ARRAY, array_new(vm, QN_f32, 1, (int64_t[]){1 << 20})));
}
static bool make_range(qn_vm *vm) { return drop(vm, own(TAG_RANGE, range_new(vm, 0, 1, 1))); }

static bool make_list(qn_vm *vm) {
  qn_list *l = list_new(vm, 2);
  if (!l) return false;
  bool ok = true;
  for (int i = 0; ok && i < 50; i++) {
    qn_str *s = str_new(vm, "item", 4);
    ok = s && list_push(vm, l, value_obj(TAG_STR, s));
  }
  qn_value v = value_obj(TAG_LIST, l), other = value_retain(v);
  ok = ok && list_own(vm, &v);
  value_release(vm, v);
  value_release(vm, other);
  return ok;
}

static bool make_record(qn_vm *vm) {
  qn_record *r = record_new(vm);
  if (!r) return false;
  qn_value v = value_obj(TAG_RECORD, r), other = value_nil();
  bool ok = true;
  char name[32];
  for (int i = 0; ok && i < 80; i++) { /* past the largest shared layout */
    snprintf(name, sizeof name, "field%d", i);
    qn_str *s = str_new(vm, "item", 4);
    ok = s && set(vm, v, name, value_obj(TAG_STR, s));
    if (i == 20 || i == 70) {
      value_release(vm, other);
      other = value_retain(v);
      ok = ok && record_own(vm, &v);
    }
  }
  if (ok) {
    qn_record *less = record_without(vm, value_record(v), 3);
    ok = less != NULL;
    if (less) value_release(vm, value_obj(TAG_RECORD, less));
  }
  value_release(vm, v);
  value_release(vm, other);
  return ok;
}

static bool work_on_arrays(qn_vm *vm) {
  qn_array *a = array_new(vm, QN_i32, 2, (int64_t[]){30, 40});
  if (!a) return false;
  memset(array_data(a), 0, 4800);
  qn_array *t = array_view(vm, a, QN_i32, 2, (int64_t[]){40, 30}, (int64_t[]){1, 40}, 0);
  qn_array *c = t ? array_contiguous(vm, t) : NULL;
  qn_value v = value_obj(TAG_ARRAY, a);
  value_retain(v);
  bool ok = c && array_own(vm, &v);
  if (ok) ok = value_equal(vm, value_obj(TAG_ARRAY, t), value_obj(TAG_ARRAY, c)) == 1;
  value_release(vm, v);
  value_release(vm, value_obj(TAG_ARRAY, a));
  if (t) value_release(vm, value_obj(TAG_ARRAY, t));
  if (c) value_release(vm, value_obj(TAG_ARRAY, c));
  return ok;
}

static qn_value keep(void *ctx, qn_value v) {
  (void)ctx;
  return value_retain(v);
}
static bool look(void *ctx, qn_value v) {
  (void)ctx, (void)v;
  return true;
}

static bool walk_trees(qn_vm *vm) {
  qn_list *l = list_new(vm, 40);
  if (!l) return false;
  qn_value v = value_obj(TAG_LIST, l), w = value_error();
  bool ok = true;
  for (int i = 0; ok && i < 40; i++) {
    qn_list *inner = list_new(vm, 1);
    ok = inner != NULL;
    if (inner) l->items[i] = value_obj(TAG_LIST, inner);
  }
  ok = ok && tree_each(vm, v, look, NULL);
  if (ok) w = tree_rebuild(vm, v, keep, NULL);
  ok = ok && !value_is_error(w) && value_equal(vm, v, w) == 1;
  if (!value_is_error(w)) value_release(vm, w);
  value_release(vm, v);
  return ok;
}

static bool write_texts(qn_vm *vm) {
  text_buf t = {.vm = vm};
  for (int i = 0; i < 300; i++) text_addf(&t, "%d ", i);
  text_float(&t, 0.1, WEAK_FLOAT);
  text_decimal(&t, 1e300, 'f', 3);
  return drop(vm, text_take(&t));
}

static bool read_signature(qn_vm *vm) {
  signature s;
  if (!signature_parse(vm, "f(x, @y, ..rest, a = \"text\", b = (), c = 3)", &s)) return false;
  signature_free(vm, &s);
  return true;
}

static bool fill_arena(qn_vm *vm) {
  arena a;
  arena_init(&a, vm);
  bool ok = true;
  for (int i = 0; i < 100; i++) ok &= arena_alloc(&a, 500) != NULL;
  ck_assert(ok == !a.failed);
  arena_free(&a);
  return ok;
}

/* Raising, noting, catching and rethrowing; whatever fails, some error must be pending. */
static bool catch_errors(qn_vm *vm) {
  raise_error(vm, E_index, (span){1, 0, 1}, "index %d", 5);
  ck_assert(error_pending(vm));
  raise_note(vm, SPAN_NONE, "a note that is long enough to need more than the smallest block there is, and then more");
  raise_frame(vm, (span){1, 0, 1}, NULL);
  qn_error_object *e = error_take(vm);
  bool ok = e->id == E_index;
  qn_value r = error_to_record(vm, e);
  error_free(vm, e);
  if (value_is_error(r)) return false;
  raise_record(vm, SPAN_NONE, r);
  ck_assert(error_pending(vm));
  value_release(vm, r);
  ok &= vm->error->id == E_index;
  if (!ok) {
    error_clear(vm);
    raise_memory(vm);
    return false;
  }
  (void)qn_error_report(vm);
  text_free(&vm->report);
  error_clear(vm);
  return true;
}

START_TEST(no_failed_allocation_leaks) {
  static const operation all[] = {make_string,    make_name,   make_small_array, make_large_array, make_range,
                                  make_list,      make_record, work_on_arrays,   walk_trees,       write_texts,
                                  read_signature, fill_arena,  catch_errors};
  operation op = all[_i];
  qn_vm *vm = vm_make();
  ck_assert_uint_eq(source_add(vm, "a.qn", "x", 1), 1);
  ck_assert(op(vm)); /* tables have their size now */
  ck_assert(!error_pending(vm));
  size_t start = live(vm);
  uint64_t before = mem_stats_of(vm)->allocations;
  ck_assert(op(vm));
  uint64_t n = mem_stats_of(vm)->allocations - before;
  ck_assert_uint_gt(n, 0);
  ck_assert_uint_eq(live(vm), start);
  for (uint64_t i = 1; i <= n; i++) {
    mem_fail_at(vm, i);
    bool ok = op(vm);
    mem_fail_at(vm, 0);
    ck_assert_msg(ok != error_pending(vm), "allocation %lu", (unsigned long)i);
    if (!ok) ck_assert_int_eq(taken_error(vm), E_memory);
    ck_assert_msg(live(vm) == start, "allocation %lu leaks %ld bytes", (unsigned long)i, (long)(live(vm) - start));
  }
  ck_assert(op(vm));
  vm_close(vm);
}
END_TEST

START_TEST(source_texts_that_find_no_memory) {
  qn_vm *vm = vm_make();
  size_t start = live(vm);
  static const uint64_t nth[] = {1, 2, 1, 2, 3, 4}; /* the table grows first, and stays so */
  for (size_t i = 0; i < sizeof nth / sizeof *nth; i++) {
    mem_fail_at(vm, nth[i]);
    ck_assert_uint_eq(source_add(vm, "a.qn", "x\ny", 3), 0);
    ck_assert_int_eq(taken_error(vm), E_memory);
  }
  ck_assert_uint_le(live(vm), start + 64); /* the table itself */
  ck_assert_uint_eq(source_add(vm, "a.qn", "x\ny", 3), 1);
  vm_close(vm);
}
END_TEST

START_TEST(vms_that_find_no_memory) {
  int opened = 0;
  for (size_t limit = 1; limit < 300000; limit += limit / 4 + 100) {
    qn_config c;
    qn_config_init(&c);
    c.memory_limit = limit;
    qn_vm *vm = vm_open(&c);
    if (vm) opened++;
    vm_close(vm);
  }
  ck_assert_int_gt(opened, 0);
  vm_close(NULL);
}
END_TEST

int main(void) {
  Suite *s = suite_create("lang_vm");
  CASE(tcase_create("stacks"), recursion_ends_before_the_stack_does, hosts_bound_recursion,
       the_value_stack_ends_and_pops);
  CASE(tcase_create("limits"), interrupts_stop_the_running_evaluation, steps_are_limited_per_evaluation,
       time_is_limited, the_hosts_float_mode_comes_back);
  CASE(tcase_create("settings"), output_and_logs_go_to_the_host, what_waits_to_be_written_comes,
       tunables_are_set_by_name, capabilities_are_asked, short_configs_of_older_hosts);
  CASE(tcase_create("memory"), source_texts_that_find_no_memory, vms_that_find_no_memory);
  TCase *t = tcase_create("failing_allocations");
  tcase_add_loop_test(t, no_failed_allocation_leaks, 0, 13);
  suite_add_tcase(s, t);
  return run_suite(s);
}
