/* Places of buffers: nothing lies over what lives, but for what may; outputs' memory is used only before it is written; lives that
 * lie in one another take no more than what lives at a time; and the work is about linear. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "jit/kernel/place.h"

static uint64_t state;

static uint32_t any(uint32_t n) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33) % n;
}

static bool paired(const placing *p, uint32_t over, uint32_t by) {
  for (uint32_t i = 0; i < p->npairs; i++)
    if (p->pairs[i].over == over && p->pairs[i].by == by) return true;
  return false;
}

static bool in_use(const place_life *v) { return v->bytes > 0; }

static void check_places(const placing *p, int64_t top, const char *what, uint64_t seed) {
  for (uint32_t i = 0; i < p->n; i++) {
    const place_life *x = &p->lives[i];
    if (!in_use(x)) continue;
    ck_assert_msg(x->region != PLACE_NOWHERE && x->offset >= 0 && x->offset % 64 == 0, "%s %llu: life %u has no place",
                  what, (unsigned long long)seed, i);
    if (x->region == PLACE_ARENA)
      ck_assert_msg(x->offset + x->bytes <= top, "%s %llu: life %u ends behind the arena", what,
                    (unsigned long long)seed, i);
    for (uint32_t k = 0; k < p->n; k++) {
      const place_life *y = &p->lives[k];
      if (k == i || !in_use(y) || x->region != y->region) continue;
      if (y->output && !x->output)
        ck_assert_msg(x->offset + x->exact <= y->exact, "%s %llu: life %u ends behind output %u", what,
                      (unsigned long long)seed, i, k);
      if (x->first > y->last || y->first > x->last || x->offset + x->bytes <= y->offset ||
          y->offset + y->bytes <= x->offset)
        continue;
      bool may = x->offset == y->offset &&
                 ((x->last == y->first && paired(p, i, k)) || (y->last == x->first && paired(p, k, i)));
      ck_assert_msg(may, "%s %llu: lives %u and %u lie over each other", what, (unsigned long long)seed, i, k);
    }
  }
}

static placing lives_new(arena *a, uint32_t most, uint32_t steps) {
  arena_init(a, NULL);
  placing p = {.steps = steps, .arena = a};
  p.lives = arena_alloc(a, most * sizeof *p.lives);
  p.pairs = arena_alloc(a, most * sizeof *p.pairs);
  ck_assert(p.lives && p.pairs);
  return p;
}

static place_life *add(placing *p, uint32_t first, uint32_t last, int64_t exact) {
  p->lives[p->n] = (place_life){.first = first, .last = last, .bytes = (exact + 63) / 64 * 64, .exact = exact};
  return &p->lives[p->n++];
}

/* The arena where each gets the lowest place that is free, by decreasing size. */
static int64_t lowest_places(const placing *p) {
  bool *done = calloc(p->n, 1);
  int64_t *at = calloc(p->n, sizeof *at), top = 0;
  ck_assert(done && at);
  for (;;) {
    uint32_t x = UINT32_MAX;
    for (uint32_t i = 0; i < p->n; i++)
      if (!done[i] && !p->lives[i].output && (x == UINT32_MAX || p->lives[i].bytes > p->lives[x].bytes)) x = i;
    if (x == UINT32_MAX) break;
    const place_life *v = &p->lives[x];
    for (uint32_t i = 0; i < p->n; i++) {
      const place_life *y = &p->lives[i];
      if (!done[i] || v->first > y->last || y->first > v->last || at[x] + v->bytes <= at[i] ||
          at[i] + y->bytes <= at[x])
        continue;
      at[x] = at[i] + y->bytes;
      i = UINT32_MAX; /* from the start again */
    }
    done[x] = true;
    if (at[x] + v->bytes > top) top = at[x] + v->bytes;
  }
  free(done);
  free(at);
  return top;
}

START_TEST(nothing_lies_over_what_lives) {
  int64_t sum = 0, lowest = 0;
  for (uint64_t seed = 0; seed < 600; seed++) {
    state = seed;
    arena a;
    enum { MOST = 200 };
    uint32_t steps = 1 + any(60), n = 1 + any(seed % 3 ? 40 : MOST - 20), outputs = any(5);
    placing p = lives_new(&a, MOST, steps);
    for (uint32_t i = 0; i < outputs; i++) {
      place_life *o = add(&p, any(steps), steps, 1 + any(2000));
      o->output = true;
      o->region = PLACE_OUTPUTS + 2 * i;
    }
    for (uint32_t i = 0; i < n; i++) {
      uint32_t first = any(steps), length = any(3) ? any(4) : any(steps);
      add(&p, first, first + length < steps ? first + length : steps - 1, any(8) ? 1 + any(2000) : 100 * any(9));
    }
    for (uint32_t tries = 0; tries < 2000 && p.npairs < MOST; tries++) {
      uint32_t x = any(p.n), y = any(p.n);
      place_life *over = &p.lives[x], *by = &p.lives[y];
      if (x == y || over->output || over->last != by->first || over->first == over->last || !over->bytes ||
          paired(&p, x, y))
        continue;
      if (any(2) && !by->output) { /* as an operand and a result of one size */
        by->exact = over->exact;
        by->bytes = over->bytes;
      }
      if (over->exact == by->exact) p.pairs[p.npairs++] = (place_pair){.over = x, .by = y};
    }
    for (uint32_t i = 0; i < p.npairs; i++) /* sizes may have changed meanwhile */
      if (p.lives[p.pairs[i].over].exact != p.lives[p.pairs[i].by].exact) p.pairs[i--] = p.pairs[--p.npairs];
    int64_t top;
    ck_assert(place(&p, &top));
    check_places(&p, top, "seed", seed);
    sum += top;
    lowest += lowest_places(&p);
    arena_free(&a);
  }
  ck_assert_int_lt(sum, lowest);
}
END_TEST

/* As in a step of training: what layer i makes lives to its turn backward, where something is needed for a moment. Every
 * other output is written there. */
static double work_for(uint32_t layers, bool outputs) {
  static const int64_t widths[] = {4000, 640, 12800, 64, 2000};
  enum { WIDTHS = sizeof widths / sizeof *widths };
  arena a;
  placing p = lives_new(&a, 3 * layers, 2 * layers + 2);
  int64_t live = 0, top;
  for (uint32_t i = 0; i < layers; i++) {
    uint32_t back = 2 * layers - i;
    int64_t bytes = add(&p, i, back, widths[i % WIDTHS])->bytes;
    if (!outputs) live += bytes;
    add(&p, back, back + 1, widths[(i + 2) % WIDTHS]);
    if (!outputs) continue;
    place_life *o = add(&p, back + 1, p.steps, widths[i % WIDTHS]);
    o->output = true;
    o->region = PLACE_OUTPUTS + i;
  }
  ck_assert(place(&p, &top));
  if (layers <= 500) check_places(&p, top, "layers", layers);
  ck_assert_int_le(top, live + 4 * 12800);
  double work = (double)p.work / p.n;
  arena_free(&a);
  return work;
}

START_TEST(lives_in_one_another_leave_no_gaps) {
  for (int outputs = 0; outputs < 2; outputs++) {
    double few = work_for(500, outputs);
    work_for(5, outputs);
    work_for(50, outputs);
    double many = work_for(50000, outputs);
    ck_assert_msg(many <= 4 * few, "%.0f steps a buffer of 500 layers, %.0f of 50,000", few, many);
  }
}
END_TEST

START_TEST(it_can_be_cancelled) {
  arena a;
  placing p = lives_new(&a, 10, 10);
  add(&p, 0, 3, 100);
  atomic_bool flag = true;
  int64_t top;
  p.cancel = &flag;
  ck_assert(!place(&p, &top));
  arena_free(&a);
}
END_TEST

int main(void) {
  Suite *s = suite_create("place");
  struct {
    TCase *t;
    const TTest *f;
  } cases[] = {{tcase_create("nothing_lies_over_what_lives"), nothing_lies_over_what_lives},
               {tcase_create("lives_in_one_another_leave_no_gaps"), lives_in_one_another_leave_no_gaps},
               {tcase_create("it_can_be_cancelled"), it_can_be_cancelled}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tcase_set_timeout(cases[i].t, 120);
    tcase_add_test(cases[i].t, cases[i].f);
    suite_add_tcase(s, cases[i].t);
  }
  SRunner *runner = srunner_create(s);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
