/* Which specialization serves a call (jit/trace/calls.c): the one used last first, the others by hash, those that stay eager last; hashes that are
 * the same for different calls; and where recording ends: too many entries, misses, nodes, bytes, leaves, guards. */
#include "tests/unit/trace_case.h"

static double sum_of(qn_vm *vm, qn_value array) {
  qn_value f, r;
  ck_assert_int_eq(qn_get_global(vm, "sum_up", &f), QN_OK);
  ck_assert_msg(qn_call(vm, f, &array, 1, &r) == QN_OK, "%s", qn_error_report(vm));
  double x = qn_as_float(r);
  qn_release(vm, f);
  qn_release(vm, r);
  return x;
}

static qn_vm *lookup_vm(const char *program) {
  qn_vm *vm = trace_vm(QN_JIT_SYNC);
  good(vm, "let sum_up = nojit(fn(x) float(sum(x)))");
  good(vm, program);
  return vm;
}

/* f(..args), whose elements' sum must be `want`. */
static void calls(qn_vm *vm, const char *name, const char *text, double want) {
  qn_value args = value_of(vm, text), r = call_with(vm, name, args);
  double got = sum_of(vm, r);
  ck_assert_msg(got == want, "%s%s is %g instead of %g", name, text, got, want);
  qn_release(vm, r);
  qn_release(vm, args);
}

/* The sizes of the first arguments of the entries of f, in order: "3 2 1". */
static void order(qn_vm *vm, const char *want) {
  char text[200] = "";
  size_t len = 0;
  for (const specialization *e = entry_at(vm, "f", 0); e; e = e->next) {
    const pattern *p = &e->pattern;
    for (uint32_t i = 0; i < p->nroots; i++)
      if (p->roots[i].kind == ROOT_ARG && p->roots[i].arg == 0)
        len += (size_t)snprintf(text + len, sizeof text - len, "%s%d", len ? " " : "",
                                (int)p->dims[p->pats[p->roots[i].first].dims]);
  }
  ck_assert_str_eq(text, want);
}

START_TEST(most_recently_used_first) {
  qn_vm *vm = lookup_vm("fn f(x) = x * 2");
  tune(vm, "jit.symbolic", "0"); /* sizes tell the entries apart */
  for (int i = 1; i <= 4; i++) {
    char text[40];
    snprintf(text, sizeof text, "(ones(%d),)", i);
    calls(vm, "f", text, 2 * i);
  }
  order(vm, "4 3 2 1");
  specialization *two = entry_at(vm, "f", 2), *one = entry_at(vm, "f", 3);
  calls(vm, "f", "(ones(2),)", 4);
  order(vm, "2 4 3 1");
  ck_assert_ptr_eq(entry_at(vm, "f", 0), two);
  calls(vm, "f", "(ones(2),)", 4);
  order(vm, "2 4 3 1");
  calls(vm, "f", "(ones(1),)", 2);
  order(vm, "1 2 4 3");
  ck_assert_uint_eq(two->hits, 2);
  ck_assert_uint_eq(two->replays, 2);
  ck_assert_uint_eq(one->hits, 1);
  ck_assert_uint_eq(entries_of(vm, "f")->calls[CALL_recorded], 4);
  ck_assert_uint_eq(entries_of(vm, "f")->nrecompiles, 3); /* the first is no miss */
  ck_assert_str_eq(entries_of(vm, "f")->recompiles[2].text, "x is f32[4] instead of f32[3]");
  qn_vm_close(vm);
}
END_TEST

/* Calls that broke off are looked at when no plan serves. */
START_TEST(what_stays_eager_is_last) {
  qn_vm *vm = lookup_vm("fn f(x) = if len(x) == 3 and len(\"{x[0]}\") > 0 { x * 3 } else { x * 2 }");
  tune(vm, "jit.symbolic", "0"); /* sizes tell the entries apart */
  calls(vm, "f", "(ones(1),)", 2);
  calls(vm, "f", "(ones(3),)", 9); /* writes an element as text */
  calls(vm, "f", "(ones(2),)", 4);
  order(vm, "2 1 3");
  ck_assert_int_eq(entry_at(vm, "f", 2)->state, SPEC_BROKEN);
  calls(vm, "f", "(ones(3),)", 9);
  calls(vm, "f", "(ones(3),)", 9);
  order(vm, "2 1 3");
  ck_assert_uint_eq(entry_at(vm, "f", 2)->hits, 2);
  ck_assert_uint_eq(entry_at(vm, "f", 2)->replays, 0);
  calls(vm, "f", "(ones(1),)", 2);
  order(vm, "1 2 3");
  ck_assert_uint_eq(entries_of(vm, "f")->calls[CALL_recorded], 3);
  qn_vm_close(vm);
}
END_TEST

/* Recordings that break off at one place for many numbers: the fourth makes the first serve all. */
START_TEST(breaks_alike_share_an_entry) {
  qn_vm *vm = lookup_vm("fn f(x, n) = if n > 0 and x[0] * n > 0 { x * n } else { x * 1 }");
  calls(vm, "f", "(ones(2), -1)", 2);
  for (int n = 1; n <= 3; n++) {
    char text[40];
    snprintf(text, sizeof text, "(ones(2), %d)", n);
    calls(vm, "f", text, 2 * n);
  }
  uint64_t recorded = entries_of(vm, "f")->calls[CALL_recorded];
  for (int n = 10; n <= 30; n++) {
    char text[40];
    snprintf(text, sizeof text, "(ones(2), %d)", n);
    calls(vm, "f", text, 2 * n);
  }
  ck_assert_uint_le(entries_of(vm, "f")->calls[CALL_recorded], recorded + 3);
  ck_assert_uint_le(entries_in(vm, "f"), 5);
  calls(vm, "f", "(ones(2), -5)", 2); /* the plan is still the first to be asked */
  ck_assert_int_eq(entry_at(vm, "f", 0)->state, SPEC_READY);
  ck_assert_uint_eq(entry_at(vm, "f", 0)->replays, 1);
  qn_vm_close(vm);
}
END_TEST

/* The hash of a call does not tell ranges nor what comes behind its first 4096 parts; guards do. */
START_TEST(calls_with_one_hash) {
  qn_vm *vm = lookup_vm("fn f(x, r) { let s = x * 1; for i in r { s = s + i }; s }\nfn g(x, l) = x * l[-1]");
  tune(vm, "jit.leaves", "100000");
  static const char *const ranges[] = {"(ones(2), 0..3)", "(ones(2), 0..4)", "(ones(2), 1..4)", "(ones(2), 5..0)"};
  static const double sums[] = {8, 14, 14, 2};
  qn_value f, sample[4];
  ck_assert_int_eq(qn_get_global(vm, "f", &f), QN_OK);
  for (int i = 0; i < 4; i++) {
    sample[i] = value_of(vm, ranges[i]);
    ck_assert_uint_eq(pattern_hash(f, value_list(sample[i])->items, 2),
                      pattern_hash(f, value_list(sample[0])->items, 2));
  }
  for (int turn = 0; turn < 3; turn++)
    for (int i = 0; i < 4; i++) calls(vm, "f", ranges[i], sums[i]);
  ck_assert_uint_eq(entries_in(vm, "f"), 4);
  ck_assert_uint_eq(entries_of(vm, "f")->calls[CALL_recorded], 4);
  for (uint32_t i = 0; i < 4; i++) {
    ck_assert_uint_eq(entry_at(vm, "f", i)->replays, 2);
    ck_assert_uint_eq(entry_at(vm, "f", i)->hash, entry_at(vm, "f", 0)->hash);
  }
  for (int i = 0; i < 4; i++) qn_release(vm, sample[i]);
  qn_release(vm, f);
  good(vm, "let many = list(0..5000)");
  calls(vm, "g", "(ones(2), many)", 2 * 4999.0);
  calls(vm, "g", "(ones(2), many[:-1] + (2.5,))", 5);
  calls(vm, "g", "(ones(2), many[:-1] + (ones(2),))", 2);
  ck_assert_uint_eq(entries_in(vm, "g"), 3);
  for (uint32_t i = 0; i < 3; i++) ck_assert_uint_eq(entry_at(vm, "g", i)->hash, entry_at(vm, "g", 0)->hash);
  calls(vm, "g", "(ones(2), many)", 2 * 4999.0);
  calls(vm, "g", "(ones(2), many[:-1] + (4.5,))", 9);
  calls(vm, "g", "(zeros(2), many[:-1] + (ones(2),))", 0);
  ck_assert_uint_eq(entries_in(vm, "g"), 3);
  for (uint32_t i = 0; i < 3; i++) ck_assert_uint_eq(entry_at(vm, "g", i)->replays, 1);
  qn_vm_close(vm);
}
END_TEST

/* If all hashes were one, only time would be lost; if an entry's hash says "any", its guards alone decide. */
START_TEST(all_hashes_collide) {
  qn_vm *vm = lookup_vm("fn f(x, y) = x * y");
  tune(vm, "jit.symbolic", "0"); /* sizes tell the entries apart */
  static const char *const args[] = {"(ones(2), 3)",    "(ones(2), 3.5)",    "(ones(2), ones(2))", "(ones(3), 3)",
                                     "(ones(2, 3), 3)", "(f64(ones(2)), 3)", "(u8(ones(2)), 3)"};
  static const double sums[] = {6, 7, 2, 9, 18, 6, 6};
  enum { N = sizeof args / sizeof *args };
  for (int turn = 0; turn < 4; turn++)
    for (int i = 0; i < N; i++) {
      uint64_t one = 0;
      if (turn == 1) { /* that of the call */
        qn_value f, a = value_of(vm, args[i]);
        ck_assert_int_eq(qn_get_global(vm, "f", &f), QN_OK);
        one = pattern_hash(f, value_list(a)->items, 2);
        qn_release(vm, a);
        qn_release(vm, f);
      }
      if (turn == 1 || turn == 2)
        for (specialization *e = entry_at(vm, "f", 0); e; e = e->next) e->hash = one;
      calls(vm, "f", args[i], sums[i]);
      ck_assert_uint_eq(entries_in(vm, "f"), turn == 0 ? (uint32_t)i + 1 : N);
      ck_assert_uint_eq(entry_at(vm, "f", 0)->replays, (uint64_t)turn);
    }
  ck_assert_uint_eq(entries_of(vm, "f")->calls[CALL_recorded], N);
  qn_vm_close(vm);
}
END_TEST

/* Functions of texts alone are not recorded for each text. */
START_TEST(any_text) {
  qn_vm *vm = lookup_vm("fn f(l) = len(l[0]) + l[1]");
  for (int i = 0; i < 20; i++) {
    char text[80];
    snprintf(text, sizeof text, "f((\"text %d\", %d))", 100 + i, i);
    ck_assert_double_eq(number(vm, text), 8 + i);
  }
  ck_assert_uint_eq(entries_in(vm, "f"), 1);
  const specialization *e = entry_at(vm, "f", 0);
  ck_assert_int_eq(e->why, BREAK_no_arrays);
  ck_assert_uint_eq(e->hash, 0);
  ck_assert_uint_eq(e->hits, 19);
  qn_vm_close(vm);
}
END_TEST

/* ---- limits ----------------------------------------------------------------------------------------------------------------- */

START_TEST(too_many_entries) {
  qn_vm *vm = lookup_vm("fn f(x) = x * 2");
  tune(vm, "jit.symbolic", "0"); /* sizes tell the entries apart */
  tune(vm, "jit.entries", "3");
  for (int turn = 0; turn < 3; turn++)
    for (int i = 1; i <= 5; i++) {
      char text[40];
      snprintf(text, sizeof text, "(ones(%d),)", i);
      calls(vm, "f", text, 2 * i);
    }
  anchor_specializations *list = entries_of(vm, "f");
  order(vm, "3 2 1");
  ck_assert_uint_eq(list->count, 3);
  ck_assert(list->full);
  ck_assert_uint_eq(list->calls[CALL_recorded], 3);
  ck_assert_uint_eq(list->refused[BREAK_too_many_shapes], 6); /* 4 and 5 */
  for (uint32_t i = 0; i < 3; i++) ck_assert_uint_eq(entry_at(vm, "f", i)->replays, 2);
  jit_cancel(vm); /* nothing is being made: they stay */
  ck_assert_uint_eq(entries_in(vm, "f"), 3);
  qn_vm_close(vm);
}
END_TEST

/* However many entries there may be. */
START_TEST(too_many_misses) {
  qn_vm *vm = lookup_vm("fn f(x) = x * 2");
  tune(vm, "jit.symbolic", "0"); /* sizes tell the entries apart */
  tune(vm, "jit.misses", "2");
  for (int i = 1; i <= 6; i++) {
    char text[40];
    snprintf(text, sizeof text, "(ones(%d),)", i);
    calls(vm, "f", text, 2 * i);
  }
  anchor_specializations *list = entries_of(vm, "f");
  order(vm, "3 2 1"); /* the first was no miss */
  ck_assert(list->full);
  ck_assert_uint_eq(list->refused[BREAK_too_many_shapes], 3);
  ck_assert_str_eq(list->recompiles[list->nrecompiles - 1].text, "x is f32[4] instead of f32[3]");
  calls(vm, "f", "(ones(1),)", 2);
  order(vm, "1 3 2");
  qn_vm_close(vm);
}
END_TEST

START_TEST(too_many_nodes) {
  qn_vm *vm = lookup_vm("fn f(x, n) { let y = x; for i in list(0..n) { y = y + 1 }; y }");
  tune(vm, "jit.nodes", "40");
  calls(vm, "f", "(ones(2), 10)", 22);
  ck_assert_int_eq(entry_at(vm, "f", 0)->state, SPEC_READY);
  ck_assert_uint_le(entry_at(vm, "f", 0)->graph->n, 40);
  calls(vm, "f", "(ones(2), 100)", 202); /* run early, given up */
  specialization *last = entry_at(vm, "f", 1);
  ck_assert_int_eq(last->state, SPEC_BROKEN);
  ck_assert_int_eq(last->why, BREAK_too_many_nodes);
  ck_assert_ptr_null(last->graph);
  calls(vm, "f", "(ones(2), 100)", 202);
  ck_assert_uint_eq(last->hits, 1);
  ck_assert_uint_eq(entries_of(vm, "f")->calls[CALL_recorded], 2);
  tune(vm, "jit.nodes", "400"); /* another number of turns finds room */
  calls(vm, "f", "(ones(2), 99)", 200);
  ck_assert_int_eq(entry_at(vm, "f", 0)->state, SPEC_READY);
  calls(vm, "f", "(zeros(2), 99)", 198);
  ck_assert_uint_eq(entry_at(vm, "f", 0)->replays, 1);
  qn_vm_close(vm);
}
END_TEST

/* More bytes in use than may be pending: the graph so far is run, and the capture goes on. */
START_TEST(too_many_bytes_pending) {
  qn_vm *vm = lookup_vm("fn f(x, n) {\n"
                        "  let all = ()\n"
                        "  for i in 0..n { all = all + (x * i,) }\n"
                        "  let s = x * 0\n"
                        "  for a in all { s = s + a }\n"
                        "  s\n"
                        "}");
  tune(vm, "jit.pending_bytes", "65536"); /* 16 results of 4 kB each */
  calls(vm, "f", "(ones(1024), 8)", 1024 * 28);
  calls(vm, "f", "(ones(1024), 60)", 1024 * 1770);
  specialization *e = entry_at(vm, "f", 0);
  ck_assert_int_eq(e->state, SPEC_READY);
  ck_assert_int_eq(e->why, BREAK_none);
  calls(vm, "f", "(ones(1024), 60)", 1024 * 1770);
  ck_assert_uint_eq(e->replays, 1);
  qn_vm_close(vm);
}
END_TEST

START_TEST(too_many_leaves) {
  qn_vm *vm = lookup_vm("fn f(l) = l[0] * 2\nfn many(n) = (ones(2),) + list(0..n)");
  tune(vm, "jit.leaves", "10");
  calls(vm, "f", "(many(9),)", 4); /* as many as there may be */
  ck_assert_int_eq(entry_at(vm, "f", 0)->state, SPEC_READY);
  calls(vm, "f", "(many(10),)", 4);
  anchor_specializations *list = entries_of(vm, "f");
  ck_assert_int_eq(list->anchor->state, ANCHOR_EAGER); /* its pattern is not whole: nothing can be looked up */
  ck_assert_int_eq(list->gave_up, BREAK_too_many_leaves);
  calls(vm, "f", "(many(10),)", 4);
  calls(vm, "f", "(many(2),)", 4);
  qn_vm_close(vm);
}
END_TEST

START_TEST(too_deep) {
  qn_vm *vm = lookup_vm("fn nest(n) { let v = (ones(2),); for _ in 0..n { v = (v,) }; v }\n"
                        "fn f(l, n) { let v = l; for _ in 0..n { v = v[0] }; v * 2 }");
  char text[60];
  snprintf(text, sizeof text, "(nest(%d), %d)", PATTERN_DEPTH - 1, PATTERN_DEPTH);
  calls(vm, "f", text, 4);
  ck_assert_int_eq(entry_at(vm, "f", 0)->state, SPEC_READY);
  snprintf(text, sizeof text, "(nest(%d), %d)", PATTERN_DEPTH, PATTERN_DEPTH + 1);
  calls(vm, "f", text, 4);
  ck_assert_int_eq(entries_of(vm, "f")->anchor->state, ANCHOR_EAGER);
  ck_assert_int_eq(entries_of(vm, "f")->gave_up, BREAK_too_deep);
  qn_vm_close(vm);
}
END_TEST

/* Guards are input, constant, comparison; where these are more than GUARDS_MAX the inputs alone, as many as fit. */
START_TEST(too_many_guards) {
  qn_vm *vm = lookup_vm("fn f(x, l) { let y = x; for n in l { if n > -1 { y = y + 1 } }; y }");
  tune(vm, "jit.entries", "100");
  int fit = 0;
  for (int n = 60; n <= 300; n += 24) {
    char text[60];
    snprintf(text, sizeof text, "(ones(2), list(0..%d))", n);
    calls(vm, "f", text, 2 + 2 * n);
    const specialization *e = NULL;
    for (const specialization *x = entry_at(vm, "f", 0); x; x = x->next)
      if (!e || x->pattern.leaves > e->pattern.leaves) e = x;
    if (e->state == SPEC_READY) {
      fit++;
      ck_assert_uint_le(e->nguards, GUARDS_MAX);
      ck_assert_uint_ge(e->nguards, (uint32_t)n);
    } else {
      ck_assert_int_eq(e->why, BREAK_too_many_guards);
    }
    calls(vm, "f", text, 2 + 2 * n);
  }
  ck_assert_int_gt(fit, 0);
  ck_assert_int_lt(fit, 11);
  ck_assert_int_eq(entry_at(vm, "f", 0)->why, BREAK_none);
  qn_vm_close(vm);
}
END_TEST

int main(void) {
  Suite *s = suite_create("trace_lookup");
  CASE(tcase_create("most_recently_used_first"), most_recently_used_first);
  CASE(tcase_create("what_stays_eager_is_last"), what_stays_eager_is_last);
  CASE(tcase_create("breaks_alike_share_an_entry"), breaks_alike_share_an_entry);
  CASE(tcase_create("calls_with_one_hash"), calls_with_one_hash);
  CASE(tcase_create("all_hashes_collide"), all_hashes_collide);
  CASE(tcase_create("any_text"), any_text);
  CASE(tcase_create("too_many_entries"), too_many_entries);
  CASE(tcase_create("too_many_misses"), too_many_misses);
  CASE(tcase_create("too_many_nodes"), too_many_nodes);
  CASE(tcase_create("too_many_bytes_pending"), too_many_bytes_pending);
  CASE(tcase_create("too_many_leaves"), too_many_leaves);
  CASE(tcase_create("too_deep"), too_deep);
  CASE(tcase_create("too_many_guards"), too_many_guards);
  return run_suite(s);
}
