/* Schedules of kernels (jit/kernel/schedule.h): whatever list of loops fits gives the bits, and the failed check, of the kernel's own schedule. Random
 * schedules of kernels of random graphs, also of kernels that fusion would not make; the text of schedules; short memory.
 *
 * QN_TEST_COUNT=1000 tries more graphs, QN_TEST_FIRST says where to begin; QN_TEST_TRIES: schedules for each kernel; QN_TEST_C=n: every n-th program is
 * also compiled, instead of half of those of every 64th graph. What fails is printed as the kernel's text and the shortest schedule that was found to fail.
 * labels: slow */
#include "tests/unit/c_unit.h"
#include "tests/unit/kernel_random.h"
#include "tests/unit/seeds.h"

enum { GRAIN = RANDOM_GRAIN, UNIT_PROGRAMS = 24, REASONS = 64 };

/* ---- what a run of the tests has done -------------------------------------------------------------------------------------- */

typedef struct compiled_case {
  kernel_case *c; /* shared by several; the last one frees it */
  bool last;
  schedule_result s;
  uint64_t seed;
} compiled_case;

typedef struct compiled_cases {
  compiled_case at[UNIT_PROGRAMS];
  uint32_t n;
} compiled_cases;

typedef struct fuzzer {
  qn_vm *vm[2]; /* of one thread, and of several */
  rng r;
  uint64_t seed, kernels, tried, fit, checks, aliased, with_c, failed;
  uint64_t tiles, cuts, turned, groups; /* of those that fit */
  int every_c, tries;
  compiled_cases all; /* of the graph at hand */
  struct {
    const char *why;
    uint64_t n;
  } reasons[REASONS];
} fuzzer;

static void note_reason(fuzzer *f, const char *why) {
  int i = 0;
  while (i < REASONS - 1 && f->reasons[i].why && strcmp(f->reasons[i].why, why) != 0) i++;
  f->reasons[i].why = why;
  f->reasons[i].n++;
}

static qn_vm *vm_of(int threads) {
  qn_config config;
  qn_config_init(&config);
  config.threads = threads;
  qn_vm *vm = vm_open(&config);
  ck_assert(vm && cpu_open(vm));
  if (threads > 1) vm->tune[TUNE_par_grain] = 1;
  return vm;
}

static void fuzzer_open(fuzzer *f) {
  const char *every = getenv("QN_TEST_C"), *tries = getenv("QN_TEST_TRIES");
  *f = (fuzzer){.every_c = every ? atoi(every) : -1, .tries = tries ? atoi(tries) : 12};
  for (int i = 0; i < 2; i++) f->vm[i] = vm_of(i ? 3 : 1);
}

static void fuzzer_close(fuzzer *f) {
  for (int i = 0; i < 2; i++) {
    cpu_close(f->vm[i]);
    vm_close(f->vm[i]);
  }
  if (!getenv("QN_TEST_SHOW")) return;
  fprintf(stderr,
          "%llu kernels, %llu schedules tried, %llu fit, %llu with failed checks, %llu in place, %llu compiled\n",
          (unsigned long long)f->kernels, (unsigned long long)f->tried, (unsigned long long)f->fit,
          (unsigned long long)f->checks, (unsigned long long)f->aliased, (unsigned long long)f->with_c);
  fprintf(stderr, "with tiles %llu, cuts %llu, turned tiles %llu, groups %llu\n", (unsigned long long)f->tiles,
          (unsigned long long)f->cuts, (unsigned long long)f->turned, (unsigned long long)f->groups);
  for (int i = 0; i < REASONS && f->reasons[i].why; i++)
    fprintf(stderr, "%10llu %s\n", (unsigned long long)f->reasons[i].n, f->reasons[i].why);
}

/* Some table of the block VM's loops that this processor can run. */
static const bvm_loops *some_loops(rng *r) {
  const bvm_loops *best = bvm_loops_pick();
#if defined(__x86_64__)
  const bvm_loops *all[] = {&bvm_loops_base, &bvm_loops_v3, &bvm_loops_v4};
  int n = best == &bvm_loops_v4 ? 3 : best == &bvm_loops_v3 ? 2 : 1;
  return rng_below(r, 2) ? best : all[rng_below(r, n)];
#else
  (void)r;
  return best;
#endif
}

/* ---- one schedule ------------------------------------------------------------------------------------------------------------- */

/* A buffer in whose memory an output may lie: sets *in and *out, by number among those that are not scratch. */
static bool in_place(const kernel_case *c, const schedule_result *s, rng *r, int *in, int *out) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < c->n; i++)
    for (uint32_t o = 0; o < c->n; o++) {
      if (!s->alias[c->buffer[i] * c->k->nbuffers + c->buffer[o]] || c->elements[i] != c->elements[o]) continue;
      if (rng_below(r, (int)++n)) continue;
      *in = (int)i;
      *out = (int)o;
    }
  return n > 0;
}

/* Makes and runs the program of a schedule. False: `why` says what is wrong. *fits: is it one that fits? `taken`: NULL, or gets the program. */
static bool try_schedule(fuzzer *f, const kernel_case *c, schedule_target target, const char *text, int64_t pick,
                         uint64_t seed, bool *fits, schedule_result *taken, char *why, size_t size) {
  rng r = {seed};
  schedule_result s, again;
  const char *reason = NULL;
  schedule_how how = {.grain = rng_below(&r, 2) ? GRAIN : 1, .pick = pick, .text = text};
  why[0] = 0;
  *fits = schedule(c->k, target, &how, &s, &reason);
  if (!*fits) {
    if (!reason || reason == lower_no_memory) snprintf(why, size, "refused for %s", reason ? reason : "no reason");
    if (reason) note_reason(f, reason);
    return !why[0];
  }
  if (!l_verify(s.program, why, size)) {
    l_free(s.program);
    return false;
  }
  how.text = s.program->schedule;
  if (how.text) {
    f->tiles += strstr(how.text, "tile ") != NULL;
    f->cuts += strstr(how.text, " | ") != NULL;
    f->turned += strstr(how.text, "turn") != NULL;
    f->groups += strstr(how.text, "group ") != NULL;
  }
  bool ok = how.text != NULL;
  if (!ok) {
    snprintf(why, size, "no text");
  } else if (!schedule(c->k, target, &how, &again, &reason)) {
    snprintf(why, size, "its text \"%s\" is refused: %s", how.text, reason);
    ok = false;
  } else {
    ok = l_hash(again.program) == l_hash(s.program) && strcmp(again.program->schedule, how.text) == 0;
    if (!ok) snprintf(why, size, "its text \"%s\" gives another program (\"%s\")", how.text, again.program->schedule);
    l_free(again.program);
  }
  int64_t points = k_points(c->k, c->k->naxes >= 32 ? UINT32_MAX : ((k_mask)1 << c->k->naxes) - 1);
  if (ok && (points < 3000 || rng_below(&r, 8) == 0)) ok = kernel_case_eval(c, &s, why, size);
  qn_vm *vm = f->vm[rng_below(&r, 2)];
  static const int64_t blocks[] = {512, 64, 256, 1024};
  vm->tune[TUNE_vm_block] = blocks[rng_below(&r, 4)];
  int in = -1, out = -1;
  if (ok) ok = kernel_case_run(c, vm, &s, NULL, -1, -1, why, size);
  if (ok && c->error == ~0ull && in_place(c, &s, &r, &in, &out)) {
    f->aliased++;
    ok = kernel_case_run(c, vm, &s, NULL, in, out, why, size);
    size_t n = strlen(why);
    if (!ok) snprintf(why + n, size - n, " (b%u in the memory of b%u)", c->buffer[out], c->buffer[in]);
  }
  if (ok && taken)
    *taken = s;
  else
    l_free(s.program);
  return ok;
}

/* ---- failures --------------------------------------------------------------------------------------------------------------------- */

/* Changes a schedule that fails as long as it becomes shorter and fails. Returns its text, for the caller to free. */
static char *shortest(fuzzer *f, const kernel_case *c, schedule_target target, const char *text, uint64_t seed) {
  char *best = strdup(text), why[300];
  rng r = {seed};
  for (int tries = 0; tries < 400; tries++) {
    random_schedule s;
    bool fits, read = random_schedule_read(&s, c->k, best);
    for (int i = 0; read && i <= rng_below(&r, 2); i++) random_change(&s, &r);
    text_buf t = {0};
    if (read) random_schedule_text(&s, &t);
    random_schedule_free(&s);
    bool less = read && t.len - 1 <= strlen(best) && strcmp(t.text, best) != 0;
    if (less && !try_schedule(f, c, target, t.text, 0, seed, &fits, NULL, why, sizeof why)) {
      free(best);
      best = strdup(t.text);
    }
    text_free(&t);
  }
  return best;
}

static void show_failure(fuzzer *f, const kernel_case *c, schedule_target target, const char *text, uint64_t seed,
                         const char *why) {
  static int shown;
  f->failed++;
  if (shown++ >= 12) return;
  text_buf t = {0};
  k_print(c->k, &t);
  schedule_result own;
  const char *refused;
  if (schedule(c->k, TARGET_CPU, &(schedule_how){.grain = GRAIN}, &own, &refused)) {
    text_addf(&t, "by default: %s\n", own.program->schedule);
    if (getenv("QN_TEST_SHOW")) l_print(own.program, &t);
    l_free(own.program);
  }
  text_add(&t, "", 1);
  char *least = text ? shortest(f, c, target, text, seed) : NULL, again[300] = "";
  bool fits;
  if (least) (void)try_schedule(f, c, target, least, 0, seed, &fits, NULL, again, sizeof again);
  fprintf(stderr, "graph %llu, %s: %s\n  %s\n  %s  (%s)\n%s", (unsigned long long)f->seed,
          target == TARGET_GPU ? "gpu" : "cpu", why, text ? text : "(a candidate)", least ? least : "", again, t.text);
  fprintf(stderr, "sizes:");
  for (uint32_t a = 0; a < c->k->naxes; a++)
    fprintf(stderr, " %s=%lld", c->k->axes[a].name, (long long)kernel_case_dim(c, c->k->axes[a].extent));
  fprintf(stderr, "\n");
  if (getenv("QN_TEST_SHOW") && least) {
    schedule_result s;
    const char *reason;
    text_buf l = {0};
    if (schedule(c->k, target, &(schedule_how){.grain = GRAIN, .text = least}, &s, &reason)) {
      l_print(s.program, &l);
      fwrite(l.text, 1, l.len, stderr);
      l_free(s.program);
    }
    text_free(&l);
  }
  free(least);
  text_free(&t);
}

/* ---- as C ------------------------------------------------------------------------------------------------------------------------- */

static void run_compiled(fuzzer *f, compiled_cases *all) {
  const l_program *programs[UNIT_PROGRAMS];
  const char *names[UNIT_PROGRAMS];
  char texts[UNIT_PROGRAMS][16], why[300];
  unit u;
  if (!all->n) return;
  for (uint32_t i = 0; i < all->n; i++) {
    programs[i] = all->at[i].s.program;
    snprintf(texts[i], sizeof texts[i], "k%u", i);
    names[i] = texts[i];
  }
  unit_open(&u, programs, names, all->n);
  for (uint32_t i = 0; i < all->n; i++) {
    compiled_case *x = &all->at[i];
    qk_phase *code = unit_phases(&u, programs[i], names[i]);
    f->with_c++;
    f->seed = x->seed;
    for (int threads = 0; threads < 2; threads++)
      if (!kernel_case_run(x->c, f->vm[threads], &x->s, code, -1, -1, why, sizeof why)) {
        fprintf(stderr, "compiled (%s, %s), %s\n", u.folder, names[i], x->s.program->schedule);
        show_failure(f, x->c, TARGET_CPU, NULL, 0, why);
        break;
      }
    free(code);
    l_free(x->s.program);
    if (!x->last) continue;
    kernel_case_free(x->c);
    free(x->c);
  }
  unit_close(&u, f->failed > 0);
  all->n = 0;
}

/* ---- kernels ------------------------------------------------------------------------------------------------------------------------- */

/* Tries schedules of a kernel (kernel_random.h). */
static void try_kernel(void *ctx, k_kernel *k, const int64_t *symbols, const kernel_case_options *o) {
  fuzzer *f = ctx;
  compiled_cases *all = &f->all;
  if (!k || all->n == UNIT_PROGRAMS) run_compiled(f, all);
  if (!k) return;
  kernel_case *c = calloc(1, sizeof *c);
  char why[400];
  bool used = false, fits;
  if (!kernel_case_of(c, k, symbols, f->seed, o, why, sizeof why)) {
    if (why[0]) show_failure(f, c, TARGET_CPU, NULL, 0, why);
    kernel_case_free(c);
    free(c);
    return;
  }
  f->kernels++;
  f->checks += c->error != ~0ull;
  c->loops = some_loops(&f->r);
  for (int i = 0; i < f->tries; i++) {
    rng *r = &f->r;
    schedule_target target = rng_below(r, 3) ? TARGET_CPU : TARGET_GPU;
    uint64_t seed = rng_next(r);
    text_buf t = {0};
    int64_t pick = 0;
    schedule_result s;
    if (!random_how(k, target, r, &t, &pick, why, sizeof why)) {
      if (why[0]) show_failure(f, c, target, NULL, 0, why);
      continue;
    }
    f->tried++;
    int every = f->every_c >= 0 ? f->every_c : f->seed % 64 == 0 ? 2 : 0;
    bool compile = every && target == TARGET_CPU && all->n < UNIT_PROGRAMS && rng_below(r, every) == 0;
    bool ok = try_schedule(f, c, target, t.text, pick, seed, &fits, compile ? &s : NULL, why, sizeof why);
    f->fit += ok && fits;
    if (!ok) show_failure(f, c, target, t.text, seed, why);
    if (ok && fits && compile) {
      all->at[all->n++] = (compiled_case){c, false, s, f->seed};
      used = true;
    }
    text_free(&t);
  }
  if (used) {
    all->at[all->n - 1].last = true;
    return;
  }
  kernel_case_free(c);
  free(c);
}

START_TEST(random_schedules_keep_bits) {
  seeds which = seeds_of(1, 250);
  fuzzer f;
  fuzzer_open(&f);
  for (uint64_t seed = which.first; seed < which.end; seed++) {
    f.seed = seed;
    random_kernels(seed, &f.r, try_kernel, &f);
  }
  if (which.own)
    ck_assert_msg(f.fit > 2000, "only %llu of %llu fit", (unsigned long long)f.fit, (unsigned long long)f.tried);
  fuzzer_close(&f);
  ck_assert_uint_eq(f.failed, 0);
}
END_TEST

/* ---- texts -------------------------------------------------------------------------------------------------------------------- */

/* Softmax and a sum of its columns. */
static const char softmax[] = "kernel softmax {\n"
                              "  dim s0 = 40 input 0 axis 0\n"
                              "  axis row {s0}\n  axis c 2048\n  axis k 3\n"
                              "  buffer b0 f32 in node=1 elements={(s0*2048)}\n"
                              "  buffer b1 f32 out node=2 elements={(s0*2048)}\n"
                              "  buffer b2 f32 out node=3 elements=2048\n"
                              "  %1 = f32 load b0[2048*row + c]\n  %2 = f32 reduce.max inner c %1\n"
                              "  %3 = f32 sub %1 %2\n  %4 = f32 exp %3\n  %5 = f32 reduce.add inner c %4\n"
                              "  %6 = f32 div %4 %5\n  store b1[2048*row + c] %6 over row c\n"
                              "  %8 = f32 load b0[c + 2048*k]\n  %9 = f32 reduce.add outer k %8\n"
                              "  store b2[c] %9 over c\n}\n";

static k_kernel *parsed(const char *text) {
  char why[300] = "";
  k_kernel *k = k_parse(text, why, sizeof why);
  ck_assert_msg(k != NULL, "%s", why);
  return k;
}

/* Tiles of products are as tall as leaves enough of them: each packs its columns of the second factor again. */
START_TEST(tiles_are_as_tall_as_there_are_enough) {
  static const struct {
    int m, n;
    const char *cpu;
  } cases[] = {
      {64, 64, "par m/64, n/64; tile k; for m; vec n"},      {256, 256, "par m/128, n/64; tile k; for m; vec n"},
      {256, 512, "par m/256, n/64; tile k; for m; vec n"},   {192, 1024, "par m/256, n/64; tile k; for m; vec n"},
      {128, 4096, "par m/128, n/128; tile k; for m; vec n"}, {2048, 512, "par m/512, n/256; tile k; for m; vec n"},
      {4096, 1, "par m/128, n; tile k; for n; vec m"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[600];
    const int m = cases[i].m, n = cases[i].n;
    snprintf(text, sizeof text,
             "kernel product {\n  axis m %d\n  axis n %d\n  axis k 512\n"
             "  buffer b0 f32 in node=1 elements=%d\n  buffer b1 f32 in node=2 elements=%d\n"
             "  buffer b2 f32 out node=3 elements=%d\n  %%1 = f32 load b0[512*m + k]\n"
             "  %%2 = f32 load b1[n + %d*k]\n  %%3 = f32 dot k %%1 %%2\n  store b2[%d*m + n] %%3 over m n\n}\n",
             m, n, m * 512, n * 512, m * n, n, n);
    k_kernel *k = parsed(text);
    schedule_result s;
    const char *why = NULL;
    ck_assert_msg(schedule(k, TARGET_CPU, &(schedule_how){.grain = GRAIN}, &s, &why), "%d x %d: %s", m, n, why);
    ck_assert_str_eq(s.program->schedule, cases[i].cpu);
    l_free(s.program);
    k_free(k);
  }
}
END_TEST

/* What is chosen depends on the threads that a VM has, on whether the block VM runs the kernel, and on what is left over behind whole vectors. */
START_TEST(machines_have_their_own_choice) {
  static const char columns[] =
      "kernel sums {\n  axis a 1000\n  axis b 1000\n  buffer b0 f32 in node=1 elements=1000000\n"
      "  buffer b1 f32 out node=2 elements=1000\n  %1 = f32 load b0[a + 1000*b]\n"
      "  %2 = f32 reduce.add outer b %1\n  store b1[a] %2 over a\n}\n";
  static const char fours[] = "kernel fours {\n  axis b 25600\n  axis c 4\n  buffer b0 i64 in node=1 elements=102400\n"
                              "  buffer b1 i64 in node=2 elements=4\n  buffer b2 i64 out node=3 elements=102400\n"
                              "  %1 = i64 load b0[4*b + c]\n  %2 = i64 load b1[c]\n  %3 = i64 add %1 %2\n"
                              "  store b2[4*b + c] %3 over b c\n}\n";
  static const char odd_rows[] =
      "kernel odd_rows {\n  axis a 64\n  axis b 47\n  buffer b0 f32 in node=1 elements=3008\n"
      "  buffer b1 f32 out node=2 elements=3008\n  %1 = f32 load b0[47*a + b]\n"
      "  %2 = f32 arcsin %1\n  %3 = f32 gelu %2\n  %4 = f32 reduce.max inner b %3\n"
      "  %5 = f32 sub %3 %4\n  store b1[47*a + b] %5 over a b\n}\n";
  static const char whole_rows[] =
      "kernel whole_rows {\n  axis a 64\n  axis b 48\n  buffer b0 f32 in node=1 elements=3072\n"
      "  buffer b1 f32 out node=2 elements=3072\n  %1 = f32 load b0[48*a + b]\n"
      "  %2 = f32 arcsin %1\n  %3 = f32 gelu %2\n  %4 = f32 reduce.max inner b %3\n"
      "  %5 = f32 sub %3 %4\n  store b1[48*a + b] %5 over a b\n}\n";
  static const struct {
    const char *text;
    schedule_how how;
    const char *chosen;
  } cases[] = {
      {columns, {.processors = 1}, "for b; vec a"},
      {columns, {.processors = 4}, "par b/64; for b; vec a | vec a"},
      {fours, {0}, "par b; vec c"},
      {fours, {.interpreted = true}, "par b/1024; for c; vec b"},
      {odd_rows, {0}, "for b; vec a"},
      {whole_rows, {0}, "par a; vec b"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    k_kernel *k = parsed(cases[i].text);
    schedule_result s;
    const char *why = NULL;
    schedule_how how = cases[i].how;
    how.grain = GRAIN;
    ck_assert_msg(schedule(k, TARGET_CPU, &how, &s, &why), "%s: %s", k->name, why);
    ck_assert_msg(strcmp(s.program->schedule, cases[i].chosen) == 0, "case %zu of %s: %s", i, k->name,
                  s.program->schedule);
    l_free(s.program);
    k_free(k);
  }
}
END_TEST

START_TEST(texts_are_read) {
  static const struct {
    const char *text, *printed; /* NULL: as it is */
  } fit[] = {
      {"1: par row; vec c || par c/1024; for k; vec c", NULL},
      {"1: par row; vec c || rep", ""},
      {"1:par row;vec c||par c/1024;for k;vec c", "1: par row; vec c || par c/1024; for k; vec c"},
      {"1:  par\trow ; vec  c  || par c / 1024 ; for k; vec c", "1: par row; vec c || par c/1024; for k; vec c"},
      {"1: par row; par c/1; for c || for k; vec c", ""},
      {"1: for row; vec c || 1: for c, k", "1: for row; vec c || for c, k"},
      {"1: par row, c/1024; vec c | par row; group 2 || for k; vec c", NULL},
      {"rep k; 1: par row; vec c || vec c", NULL},
  };
  k_kernel *k = parsed(softmax);
  for (size_t i = 0; i < sizeof fit / sizeof *fit; i++) {
    schedule_result s;
    const char *why = NULL;
    bool fits = schedule(k, TARGET_CPU, &(schedule_how){.grain = GRAIN, .text = fit[i].text}, &s, &why);
    if (fit[i].printed && !fit[i].printed[0]) {
      ck_assert_msg(!fits && why != NULL, "\"%s\"", fit[i].text);
      continue;
    }
    ck_assert_msg(fits, "\"%s\": %s", fit[i].text, why);
    ck_assert_str_eq(s.program->schedule, fit[i].printed ? fit[i].printed : fit[i].text);
    l_free(s.program);
  }
  k_free(k);
}
END_TEST

START_TEST(texts_that_do_not_fit_have_a_reason) {
  static const struct {
    const char *text, *why;
  } wrong[] = {
      {"", "no schedule"},
      {"1", "a schedule of other effects"},
      {"1:", "no schedule"},
      {"3: par row; vec c", "a schedule of other effects"},
      {"0: par row; vec c", "a schedule of other effects"},
      {"99999999999999999999: par row; vec c", "a schedule of other effects"},
      {"1: par row; vec c", "a schedule of other effects"},
      {"1: par row; vec c || vec c, k", "two vectors"},
      {"1: par row; vec c || vec c; for k", "loops in a wrong order"},
      {"1: par row; vec c || par c/1024; for k; vec c || once", "a schedule of other effects"},
      {"1: par row; vec c || par c/1024; for k; vec c nonsense", "a schedule of other effects"},
      {"1: par row; vec d || once", "no schedule"},
      {"1: par rows; vec c || once", "no schedule"},
      {"1: par ro; vec c || once", "no schedule"},
      {"1: par row; vec || once", "no schedule"},
      {"1: pars row; vec c || once", "no schedule"},
      {"1: par row/; vec c || once", "no schedule"},
      {"1: par row/x; vec c || once", "no schedule"},
      {"1: par row; vec c/8 || once", "no schedule"},
      {"1: par row, row; vec c || once", "an axis with two loops"},
      {"1: par row/0; vec c || once", "a tile of no such size"},
      {"1: par row; par c/8; vec c, c || once", "two vectors"},
      {"1: par row; vec c || vec c", "a reduction without a loop"},
      {"1: par row, k/2; vec c || vec c", "a tile that nothing goes through"},
      {"1: par row, c/1000; vec c | par row || for k; vec c", "pieces of a reduction"},
      {"1: par row, c/1024; vec c || for k; vec c", "results of no instance"},
      {"1: par row, c/1024; vec c | once || for k; vec c", "results of no instance"},
      {"1: par row; vec c | par row || for k; vec c", "nothing is cut"},
      {"1: vec c || for k; vec c", "an axis without a loop"},
      {"1: tile c; for row || for k; vec c", "a tile of no product"},
      {"1: par row; vec c; turn || for k; vec c", "nothing to turn"},
      {"1: group || once", "no schedule"},
      {"1: par row/9223372036854775807; for row; vec c || for k; vec c", "a tile of no such size"},
      {"1: par row/99999999999999999999999; for row; vec c || for k; vec c", "a tile of no such size"},
      {"rep row; par row; vec c || for k; vec c", "no schedule"},
      {"rep ", "no schedule"},
      {"rep", "no schedule"},
      {"rep k", "no schedule"},
      {"rep k, k; 1: par row; vec c || vec c", "no schedule"},
      {"|", "no schedule"},
  };
  k_kernel *k = parsed(softmax);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    for (int target = 0; target < 2; target++) {
      schedule_result s;
      const char *why = NULL;
      bool fits =
          schedule(k, (schedule_target)target, &(schedule_how){.grain = GRAIN, .text = wrong[i].text}, &s, &why);
      ck_assert_msg(!fits, "\"%s\" fits", wrong[i].text);
      ck_assert_msg(why != NULL && strcmp(why, wrong[i].why) == 0, "\"%s\": %s", wrong[i].text,
                    why ? why : "no reason");
    }
  k_free(k);
}
END_TEST

/* Whatever a text is, it is a schedule or has a reason. */
START_TEST(garbage_is_refused) {
  static const char *const words[] = {
      "par ", "for ", "vec ", "tile ", "turn",  "group ", "once", "rep ", "row", "c",    "k",
      "/",    ", ",   "; ",   " | ",   " || ",  "1: ",    "2: ",  "64",   "0",   "1024", "9223372036854775808",
      "-1",   "x",    "\n",   "\xff",  "c/1024"};
  static const char good[] = "1: par row, c/1024; vec c | par row; group 2 || par c/1024; for k; vec c";
  seeds which = seeds_of(1, 20000);
  k_kernel *k = parsed(softmax);
  int fit = 0;
  for (uint64_t seed = which.first; seed < which.end; seed++) {
    rng r = {seed};
    char text[300] = "";
    schedule_result s;
    const char *why = NULL;
    if (rng_below(&r, 2)) {
      for (int n = rng_below(&r, 14); n > 0; n--)
        strcat(text, words[rng_below(&r, (int)(sizeof words / sizeof *words))]);
    } else {
      strcpy(text, good);
      for (int n = rng_below(&r, 3); n >= 0; n--)
        text[rng_below(&r, (int)sizeof good - 1)] =
            (char)(rng_below(&r, 3) ? good[rng_below(&r, (int)sizeof good)] : rng_below(&r, 256));
    }
    bool fits = schedule(k, TARGET_CPU, &(schedule_how){.grain = GRAIN, .text = text}, &s, &why);
    ck_assert_msg(fits || why, "\"%s\" has no reason", text);
    if (!fits) continue;
    char wrong[300];
    fit++;
    ck_assert_msg(l_verify(s.program, wrong, sizeof wrong), "\"%s\": %s", text, wrong);
    l_free(s.program);
  }
  if (which.own) ck_assert_int_gt(fit, 20);
  k_free(k);
}
END_TEST

/* ---- short memory ------------------------------------------------------------------------------------------------------------- */

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__clang_analyzer__)
#define CAN_FAIL 1
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
static int64_t until_failure; /* allocations; 0: none fails */
static bool fails(void) { return until_failure > 0 && --until_failure == 0; }
void *malloc(size_t n) { return fails() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return fails() ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return fails() ? NULL : __libc_realloc(p, n); }

START_TEST(every_allocation_can_fail) {
  static const char *const texts[] = {NULL, "1: par row, c/1024; vec c | par row; group 2 || par c/1024; for k; vec c",
                                      "rep k; 1: par row; vec c || vec c", "1: par row; vec d || once"};
  k_kernel *k = parsed(softmax);
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    for (int target = 0; target < 2; target++) {
      bool right = i != 3;
      for (int64_t n = 1;; n++) {
        schedule_result s;
        const char *why = NULL;
        until_failure = n;
        bool fits = schedule(k, (schedule_target)target, &(schedule_how){.grain = GRAIN, .text = texts[i]}, &s, &why);
        bool failed = until_failure == 0;
        until_failure = 0;
        if (!failed) ck_assert_int_eq(fits, right);
        if (fits) {
          char wrong[300];
          ck_assert_msg(l_verify(s.program, wrong, sizeof wrong), "allocation %lld: %s", (long long)n, wrong);
          l_free(s.program);
        } else if (failed) {
          ck_assert_msg(why == lower_no_memory || !right, "allocation %lld: %s", (long long)n, why ? why : "no reason");
        }
        double ns;
        if (failed && !texts[i]) {
          until_failure = n;
          bool ok = schedule_estimate(k, (schedule_target)target, &(schedule_how){0}, &ns, &why);
          until_failure = 0;
          ck_assert(ok || why == lower_no_memory);
        }
        if (!failed) break;
        ck_assert_int_lt(n, 100000);
      }
    }
  k_free(k);
}
END_TEST
#endif

int main(void) {
  Suite *s = suite_create("kernel_schedules");
  CASE(tcase_create("choice"), tiles_are_as_tall_as_there_are_enough, machines_have_their_own_choice);
  CASE(tcase_create("texts"), texts_are_read, texts_that_do_not_fit_have_a_reason, garbage_is_refused);
#ifdef CAN_FAIL
  CASE(tcase_create("memory"), every_allocation_can_fail);
#endif
  TCase *t = tcase_create("random_schedules_keep_bits");
  tcase_set_timeout(t, 600);
  tcase_add_test(t, random_schedules_keep_bits);
  suite_add_tcase(s, t);
  return run_suite(s);
}
