/* Short rows as numbers (jit/kernel/small_rows.h): a loop that keeps a pair in memory carries two numbers, reductions become chains, and random
 * programs of short rows, constant places, loops, branches and small products give the bits that they gave before.
 *
 * QN_TEST_COUNT=10000 runs more of them, QN_TEST_FIRST says where to begin. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "jit/kernel/small_rows.h"
#include "tests/unit/kernel_text.h"
#include "tests/unit/l_case.h"

static char why[256];

static char *text_of(const l_program *p) {
  text_buf out = {0};
  l_print(p, &out);
  text_add(&out, "", 1);
  ck_assert(!out.failed);
  return out.text;
}

static void becomes(const char *from, const char *to) {
  l_program *p = l_parse(from, why, sizeof why);
  ck_assert_msg(p != NULL, "%s", why);
  small_rows(&p);
  ck_assert_msg(l_verify(p, why, sizeof why), "%s", why);
  char *text = text_of(p);
  ck_assert_str_eq(text, to);
  free(text);
  l_free(p);
}

START_TEST(pairs_are_carried) {
  becomes("program pair ints=0 scalars=0 {\n"
          "  buffer b0 f32 inout\n"
          "  %1 = int 0\n"
          "  %2 = int 1\n"
          "  %3 = int 2\n"
          "  %4 = int 100\n"
          "  phase\n"
          "  %6 = par %2 grain=1 {\n"
          "    %7 = f32 local size=%3\n"
          "    %8 = for %1 %4 {\n"
          "      %9 = f32 acc.add inner\n"
          "      %10 = vec %1 %3 {\n"
          "        %11 = f32 load b0 base=%1 stride=%2\n"
          "        %12 = f32 exp %11\n"
          "        store %7 %12 base=%1 stride=%2\n"
          "        push %9 %12\n"
          "      }\n"
          "      %16 = f32 finish %9\n"
          "      %17 = vec %1 %3 {\n"
          "        %18 = f32 load %7 base=%1 stride=%2\n"
          "        %19 = f32 div %18 %16\n"
          "        store b0 %19 base=%1 stride=%2\n"
          "      }\n"
          "    }\n"
          "  }\n"
          "}\n",
          "program pair ints=0 scalars=0 {\n"
          "  buffer b0 f32 inout\n"
          "  %1 = int 0\n"
          "  %2 = int 1\n"
          "  %3 = int 100\n"
          "  phase\n"
          "  %5 = par %2 grain=1 {\n"
          "    %6 = f32 load b0 base=%1\n"
          "    %7 = f32 carry %6\n"
          "    %8 = f32 load b0 base=%2\n"
          "    %9 = f32 carry %8\n"
          "    %10 = for %1 %3 {\n"
          "      %11 = f32 exp %7\n"
          "      %12 = f32 exp %9\n"
          "      %13 = f32 add %11 %12\n"
          "      %14 = f32 div %11 %13\n"
          "      %15 = f32 div %12 %13\n"
          "      set %7 %14\n"
          "      set %9 %15\n"
          "    }\n"
          "    store b0 %7 base=%1\n"
          "    store b0 %9 base=%2\n"
          "  }\n"
          "}\n");
}
END_TEST

/* ---- random programs ---------------------------------------------------------------------------------------------------------------- */

enum { PLACES_OF = 4 };

typedef struct small {
  rnd g;
  int64_t memory[3]; /* f32, f64, i64: local or buffer */
  l_val tile;        /* a local for products */
  int depth;
} small;

static const uint8_t small_types[3] = {QN_f32, QN_f64, QN_i64};

static l_val place(small *s) { return l_int(s->g.p, rnd_below(&s->g, PLACES_OF)); }

static void load_place(small *s) {
  int k = (int)rnd_below(&s->g, 3);
  l_instr i = {.code = L_LOAD, .dtype = small_types[k], .imm = s->memory[k], .a = place(s)};
  if (rnd_below(&s->g, 6) == 0) {
    i.g = rnd_value(&s->g, QN_bool);
    i.h = rnd_const(&s->g, i.dtype);
  }
  rnd_note(&s->g, l_emit(s->g.p, i));
}

static void store_place(small *s) {
  int k = (int)rnd_below(&s->g, 3);
  l_instr i = {.code = L_STORE, .imm = s->memory[k], .h = rnd_value(&s->g, small_types[k]), .a = place(s)};
  if (rnd_below(&s->g, 6) == 0) i.g = rnd_value(&s->g, QN_bool);
  (void)l_emit(s->g.p, i);
}

/* A place that is known only when the program runs. */
static void store_somewhere(small *s) {
  rnd *g = &s->g;
  int k = (int)rnd_below(g, 3);
  l_val n = l_const(g->p, QN_i64, PLACES_OF), x = l_kop(g->p, KOP_imod, QN_i64, rnd_value(g, QN_i64), n, 0);
  l_instr i = {
      .code = L_STORE, .imm = s->memory[k], .h = rnd_value(g, small_types[k]), .a = g->zero, .c = x, .d = g->one};
  (void)l_emit(g->p, i);
}

/* One row is read, another one is written. */
static void move_row(small *s) {
  rnd *g = &s->g;
  int k = (int)rnd_below(g, 3), m = rnd_below(g, 3) ? k : (int)rnd_below(g, 3);
  l_val n = l_int(g->p, 1 + rnd_below(g, PLACES_OF));
  g->from = l_index(g->p, L_ISUB, n, g->one);
  l_emit(g->p, (l_instr){.code = L_INT, .imm = -1}); /* numbers stand outside */
  l_emit(g->p, (l_instr){.code = L_VEC, .a = g->zero, .b = n});
  g->vec = true;
  g->outer = g->npool;
  rnd_note(
      g,
      l_emit(g->p, (l_instr){.code = L_LOAD, .dtype = small_types[k], .imm = s->memory[k], .a = g->zero, .b = g->one}));
  rnd_note(g, l_emit(g->p, (l_instr){.code = L_IOTA, .dtype = QN_i64, .a = g->zero, .b = g->one}));
  l_val less = l_kop(g->p, KOP_lt, QN_bool, rnd_value(g, QN_i64), l_const(g->p, QN_i64, 1), 0);
  rnd_note(g, less);
  rnd_pures(g, (int)rnd_below(g, 4));
  l_val v = rnd_value(g, small_types[m]);
  l_emit(
      g->p,
      (l_instr){
          .code = L_STORE, .imm = s->memory[m], .h = v, .a = g->zero, .b = g->one, .e = rnd_below(g, 4) ? 0 : g->one});
  rnd_vec_end(g);
}

static void product(small *s) {
  rnd *g = &s->g;
  l_program *p = g->p;
  l_val one = g->one, two = l_int(p, 2);
  l_tile t = {.x = 0, .y = 1, .x_base = g->zero, .y_base = one, .x_m = two, .x_k = one, .y_k = one, .y_n = two};
  t.rows = l_int(p, 1 + rnd_below(g, 4));
  t.cols = l_int(p, 1 + rnd_below(g, 4));
  t.depth = l_int(p, rnd_below(g, 6));
  t.tile_rows = t.tile_cols = 4;
  t.out = s->tile;
  l_emit(p, (l_instr){.code = L_TILE, .imm = l_tile_add(p, t)});
  l_val v = l_emit(p, (l_instr){.code = L_LOAD, .dtype = QN_f32, .imm = -(int64_t)s->tile, .a = g->zero});
  rnd_note(g, v);
}

static void steps(small *s);

static void branch(small *s) {
  rnd *g = &s->g;
  int pool = g->npool;
  l_emit(g->p, (l_instr){.code = L_IF, .a = rnd_value(g, QN_bool)});
  steps(s);
  g->npool = pool;
  if (rnd_below(g, 2)) {
    l_emit(g->p, (l_instr){.code = L_ELSE});
    steps(s);
    g->npool = pool;
  }
  l_end(g->p);
}

static void loop(small *s) {
  rnd *g = &s->g;
  int pool = g->npool;
  uint8_t type = rnd_type(g);
  l_val carry = rnd_below(g, 2) ? l_emit(g->p, (l_instr){.code = L_CARRY, .dtype = type, .a = rnd_value(g, type)}) : 0;
  l_emit(g->p, (l_instr){.code = L_FOR, .a = g->zero, .b = l_int(g->p, rnd_below(g, 4))});
  if (carry) rnd_note(g, carry);
  steps(s);
  if (carry) l_emit(g->p, (l_instr){.code = L_SET, .a = carry, .b = rnd_value(g, type)});
  l_end(g->p);
  g->npool = pool;
  if (carry) rnd_note(g, carry);
}

static void steps(small *s) {
  rnd *g = &s->g;
  s->depth++;
  for (int i = 0, n = 1 + (int)rnd_below(g, 5); i < n; i++) {
    rnd_pures(g, (int)rnd_below(g, 3));
    switch (rnd_below(g, s->depth < 3 ? 13 : 9)) {
    case 0:
    case 1: load_place(s); break;
    case 2:
    case 3: store_place(s); break;
    case 4: store_somewhere(s); break;
    case 5: product(s); break;
    case 6: rnd_vec(g, 0, QN_f32); break;
    case 9:
    case 10: branch(s); break;
    case 11:
    case 12: loop(s); break;
    default: move_row(s); break;
    }
  }
  s->depth--;
}

static l_program *small_program(uint64_t seed, rnd_info *info) {
  static const uint8_t types[RND_INPUTS] = {QN_f32, QN_f32, QN_f64, QN_i64, QN_i32, QN_bool,
                                            QN_u8,  QN_i8,  QN_i16, QN_f32, QN_f16, QN_bf16};
  small s = {.g = {.s = seed * 0x9e3779b97f4a7c15u + 777, .p = l_new("small")}};
  rnd *g = &s.g;
  l_program *p = g->p;
  for (int i = 0; i < 5; i++) rnd_below(g, 2);
  g->rows = 1;
  g->cols = 1 + rnd_below(g, 5);
  *info = (rnd_info){.ints = {1, g->cols, 3, 3}, .elements = 64};
  for (int i = 0; i < RND_INPUTS; i++) l_buffer_add(p, (qn_dtype)types[i], BUF_IN, 0);
  bool locals = rnd_below(g, 2);
  for (int k = 0; k < 3 && !locals; k++) s.memory[k] = l_buffer_add(p, (qn_dtype)small_types[k], BUF_INOUT, 0);
  g->r = g->one = l_int(p, 1);
  g->c = l_int(p, g->cols);
  g->zero = g->row = g->base = l_int(p, 0);
  l_param(p, 3);
  l_val room = l_int(p, 16);
  l_emit(p, (l_instr){.code = L_PHASE});
  l_emit(p, (l_instr){.code = L_PAR, .a = g->one, .imm = 1});
  s.tile = l_emit(p, (l_instr){.code = L_LOCAL, .dtype = QN_f32, .a = room});
  for (int k = 0; k < 3 && locals; k++) {
    s.memory[k] = -(int64_t)l_emit(p, (l_instr){.code = L_LOCAL, .dtype = small_types[k], .a = room});
  }
  for (int k = 0; k < 3 && locals; k++) { /* what is read must have been written */
    l_val x = rnd_const(g, small_types[k]);
    l_emit(p, (l_instr){.code = L_VEC, .a = g->zero, .b = room});
    l_emit(p, (l_instr){.code = L_STORE, .imm = s.memory[k], .h = x, .a = g->zero, .b = g->one});
    l_end(p);
  }
  rnd_note(g, l_const(p, QN_f32, 0x3f800000u));
  for (int i = 0; i < 3; i++)
    rnd_note(g, l_emit(p, (l_instr){.code = L_LOAD, .dtype = types[i], .imm = i, .a = g->one}));
  steps(&s);
  loop(&s);
  steps(&s);
  for (int k = 0; k < 3; k++) { /* what they hold in the end */
    l_val v = l_emit(p, (l_instr){.code = L_LOAD, .dtype = small_types[k], .imm = s.memory[k], .a = g->one});
    l_emit(p, (l_instr){.code = L_STORE, .imm = rnd_out(g, small_types[k], BUF_OUT), .h = v, .a = g->zero});
  }
  l_end(p);
  return p;
}

static uint32_t count(const l_program *p, uint8_t code) {
  uint32_t n = 0;
  for (l_val v = 1; v < p->n; v++) n += p->code[v].code == code;
  return n;
}

START_TEST(random_programs_keep_their_bits) {
  const char *first = getenv("QN_TEST_FIRST"), *more = getenv("QN_TEST_COUNT");
  uint64_t from = first ? strtoull(first, NULL, 10) : 1, n = more ? strtoull(more, NULL, 10) : 400;
  uint32_t vecs[2] = {0}, carries[2] = {0}, loads[2] = {0}, tiles[2] = {0};
  for (uint64_t seed = from; seed < from + n; seed++) {
    rnd_info info, ignored;
    l_case c;
    l_program *p = small_program(seed, &info), *q = small_program(seed, &ignored);
    ck_assert(!p->failed && !q->failed);
    case_of(&c, p, info, seed);
    small_rows(&q);
    ck_assert_msg(l_verify(q, why, sizeof why), "program %llu: %s", (unsigned long long)seed, why);
    void *ours[CASE_BUFFERS];
    case_begin(&c, ours);
    int64_t sizes[CASE_BUFFERS];
    for (uint32_t b = 0; b < c.n; b++) sizes[b] = info.elements;
    uint64_t error;
    const l_eval_options o = {.why = why, .why_size = sizeof why};
    case_need(l_eval(q, ours, sizes, info.ints, info.scalars, &o, &error) == L_EVAL_DONE, seed, why);
    case_end(&c, ours, error, why, sizeof why);
    if (why[0]) {
      case_show(&c);
      char *text = text_of(q);
      fprintf(stderr, "%s", text);
      free(text);
    }
    ck_assert_msg(!why[0], "program %llu: %s", (unsigned long long)seed, why);
    const l_program *both[] = {p, q};
    for (int k = 0; k < 2; k++) {
      vecs[k] += count(both[k], L_VEC);
      carries[k] += count(both[k], L_CARRY);
      loads[k] += count(both[k], L_LOAD);
      tiles[k] += count(both[k], L_TILE);
    }
    l_free(q);
    case_close(&c);
  }
  /* and the rewriting has something to do in them */
  ck_assert_msg(vecs[1] < vecs[0] / 2 && carries[1] > carries[0] && tiles[1] < tiles[0], "%u %u, %u %u, %u %u, %u %u",
                vecs[0], vecs[1], carries[0], carries[1], loads[0], loads[1], tiles[0], tiles[1]);
}
END_TEST

int main(void) {
  Suite *s = suite_create("kernel_small_rows");
  TCase *c = tcase_create("all");
  tcase_set_timeout(c, 600);
  tcase_add_test(c, pairs_are_carried);
  tcase_add_test(c, random_programs_keep_their_bits);
  suite_add_tcase(s, c);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed != 0;
}
