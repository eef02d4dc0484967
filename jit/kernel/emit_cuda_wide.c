/* The CUDA printer for phases with a layout of their own (layout.h): any number of threads an instance, several elements a thread, several
 * instances a block.
 *
 * A VEC goes in batches. Without accumulators a batch is `threads * lanes` neighbouring elements, or a small multiple of that: thread t has
 * `lanes` of them, side by side. With accumulators the phase's elements lie as order INNER has them: 64 / lanes threads, a team, have
 * the 64 lanes, and go through whole blocks of 1,024 elements, a chain of 16 each; where there are more teams, each has a range
 * of blocks that is a whole subtree of the balanced tree, so that only the roots of teams meet in the end. Every VEC of a phase deals
 * its elements out in the same way, so a thread finds in a local what it has put there, without a barrier.
 *
 * Where the phase's rows have a length that is known and each thread has at most 32 elements of them, whole blocks in all, these stay in registers from
 * one VEC to the next (emit_cuda_kept): locals, what is loaded again, and results along the row that get one chain of pushes at most, as they do
 * in slabs of rows. Such a VEC is printed once, all of its elements in a line; only loads and stores ask whether words fit.
 *
 * Of a batch that exists as a whole and whose addresses are multiples of the words, the loads are made first, as words of up to 16 bytes, for
 * all of the thread's elements; then everything is computed; stores are such words, too. Threads for some of whose elements a guard's
 * range does not hold (edges, as a rule) go through theirs one by one. (Whether words fit is asked at run time, for all threads of an instance
 * alike.) Where only the words do not fit, elements are dealt out one by one, so that neighbouring threads still have neighbours. What
 * is left, ends of rows as a rule, goes element by element. */
#include "jit/kernel/emit_text.h"

/* Tried on an H200 (softmax of 16384 x 4096 f32, one of 1M x 64, a product and sum of 8192^2; us; a block of 64 threads an instance: 192, 1091, 198):
 *   batches larger than an instance's tile: never whole, so all went element by element; a product of 8192^2 took 376, now 130
 *   40 registers a thread: fine for light bodies (187), but softmax spilt (253); with 64 it takes 165
 *   words stored as structs of C: nvcc took some apart into four stores; by asm they stay whole
 *   a barrier whose number is no constant: reserves all 16 of them, and 4 blocks share a multiprocessor, however small
 *   as many blocks as fit, in turns: 8 % slower than eight times as many */
#include <stdio.h>
#include <string.h>

#define line emit_line
#define at emit_at

enum { WORD = 16, HEAVY = 80 };

/* How a load or store of a batch is made. */
enum { IN_PLACE, AS_WORDS, AHEAD };

/* ---- layouts ------------------------------------------------------------------------------------------------------------------ */

static bool has_rows(const emitter *e, l_val par) {
  for (l_val v = par + 1; v < e->end[par]; v++)
    if (at(e, v)->code == L_ACC && acc_lanes(e, v)) return true;
  return false;
}

/* Teams of threads, each of which has the 64 lanes of rows. */
static int teams(const emitter *e) {
  l_layout l = e->layout;
  return l.threads * l.lanes / ORDER_LANES;
}

/* A bound of an index that is known now. */
static int64_t bound_of(const emitter *e, l_val v) {
  const l_instr *i = at(e, v);
  if (i->code == L_INT) return i->imm;
  if (i->code != L_IMIN) return INT64_MAX;
  int64_t a = bound_of(e, i->a), b = bound_of(e, i->b);
  return a < b ? a : b;
}

/* From one of a thread's words to its next one, in elements. */
static int step_of(const emitter *e) { return e->rows ? ORDER_LANES : e->layout.threads * e->layout.lanes; }

/* ---- vectors ------------------------------------------------------------------------------------------------------------------ */

static bool is_unit(const emitter *e, const l_instr *i) {
  return i->b && at(e, i->b)->code == L_INT && at(e, i->b)->imm == 1 && !i->c;
}

/* Is it a load or store of neighbouring elements of a buffer, which exist all? */
static bool is_word(const emitter *e, const l_instr *i) {
  return i->imm >= 0 && is_unit(e, i) && !i->g && !i->e && !i->f;
}

/* Does the VEC both load and store there? */
static bool is_mixed(const emitter *e, l_val vec, int64_t memory) {
  bool loads = false, stores = false;
  for (l_val k = vec + 1; k < e->end[vec]; k++) {
    const l_instr *i = at(e, k);
    loads |= i->code == L_LOAD && i->imm == memory;
    stores |= i->code == L_STORE && i->imm == memory;
  }
  return loads && stores;
}

/* Holds the guard's bool, if there is one, for all elements or for none? */
static bool is_even(l_val vec, const l_instr *i) { return !i->g || (i->g < vec && (i->code == L_STORE || i->h < vec)); }

/* How instruction k of the VEC goes in a batch; `words`: with addresses that fit. */
static int way_of(const emitter *e, l_val vec, l_val k, bool words) {
  const l_instr *i = at(e, k);
  if (i->code == L_STORE)
    return words && is_unit(e, i) && is_even(vec, i) && !is_mixed(e, vec, i->imm) ? AS_WORDS : IN_PLACE;
  if (i->code != L_LOAD || !(e->ahead[k] & AHEAD_LOAD)) return IN_PLACE;
  if (words && is_unit(e, i) && is_even(vec, i)) return AS_WORDS;
  return i->b && at(e, i->b)->code == L_INT && at(e, i->b)->imm == 0 && !i->c ? IN_PLACE : AHEAD;
}

static int size_of(const emitter *e, const l_instr *i) {
  return (int)dtype_size((qn_dtype)emit_buffer_type(e, i->imm));
}

/* The name of the word of `lanes` elements of a dtype, which the unit's preamble declares. */
static void word_type(const emitter *e, const l_instr *i, char out[24]) {
  snprintf(out, 24, "%sx%d", emit_type(emit_buffer_type(e, i->imm)), e->layout.lanes);
}

/* Prints the condition that all addresses of words fit: `fits`. */
static void print_fits(emitter *e, l_val vec) {
  char buffer[24];
  line(e, "const b8 fits = !(0ull");
  e->depth++;
  for (l_val k = vec + 1; k < e->end[vec] && e->layout.lanes > 1; k++) {
    const l_instr *i = at(e, k);
    if (e->kept ? (i->code != L_LOAD && i->code != L_STORE) || !is_word(e, i) : way_of(e, vec, k, true) != AS_WORDS)
      continue;
    int bytes = size_of(e, i) * e->layout.lanes;
    emit_buffer(i->imm, buffer);
    line(e, "| ((u64)(%s + v%u) & %d)", buffer, i->a, (bytes < WORD ? bytes : WORD) - 1);
  }
  e->depth--;
  line(e, "); (void)fits;");
}

/* ---- rows in registers --------------------------------------------------------------------------------------------------------- */

/* Does an accumulator of many results get at most one chain of pushes, so that it needs no tree? */
static bool is_one_chain(const emitter *e, l_val par, l_val acc) {
  int loops = 0;
  int64_t most = 1;
  if (!acc_tree(at(e, acc))) return true;
  for (l_val v = acc + 1; v < e->end[par]; v++) {
    const l_instr *i = at(e, v);
    if (i->code != L_PUSH || i->a != acc) continue;
    for (l_val f = acc + 1; f < v; f++) {
      if (e->end[f] <= v || (at(e, f)->code != L_FOR && at(e, f)->code != L_WHILE)) continue;
      const l_instr *l = at(e, f);
      loops++;
      if (l->code != L_FOR || at(e, l->a)->code != L_INT || at(e, l->a)->imm < 0) return false;
      most = bound_of(e, l->b);
    }
  }
  return loops <= 1 && most <= acc_chain(at(e, acc));
}

int emit_cuda_kept(const emitter *e, l_val par) {
  enum { MOST = 32 }; /* words of a row in a thread */
  l_layout l = l_layout_of(at(e, par));
  l_val length = 0;
  int bytes = 1;
  if (!at(e, par)->imm2 || !has_rows(e, par)) return 0;
  for (l_val v = par + 1; v < e->end[par]; v++) {
    const l_instr *i = at(e, v);
    if (i->code == L_VEC) {
      if (length && length != i->b) return 0;
      length = i->b;
    }
    if (i->code == L_ACC && acc_many(i) && !is_one_chain(e, par, v)) return 0;
    bool holds = i->code == L_ACC || i->code == L_LOCAL || i->code == L_LOAD;
    if (holds && (int)dtype_size((qn_dtype)i->dtype) > bytes) bytes = (int)dtype_size((qn_dtype)i->dtype);
  }
  if (!length || at(e, length)->code != L_INT) return 0;
  for (l_val v = par + 1; v < e->end[par]; v++)
    if (at(e, v)->code == L_ACC && acc_many(at(e, v)) && at(e, v)->a != length) return 0;
  int64_t n = at(e, length)->imm, teams = l.threads * l.lanes / ORDER_LANES;
  if (n < ORDER_LANES || n % ORDER_LANES || (n > ORDER_BLOCK && n % ORDER_BLOCK) ||
      (n + ORDER_BLOCK - 1) / ORDER_BLOCK != teams)
    return 0;
  int kept = (int)(n < ORDER_BLOCK ? n : ORDER_BLOCK) / ORDER_LANES * l.lanes;
  return kept * (bytes > 4 ? 2 : 1) <= MOST ? kept : 0;
}

/* The innermost block that an instruction of a phase stands in. */
static l_val block_of(const emitter *e, l_val v) {
  l_val b = v - 1;
  while (b > e->par && (!l_opens(at(e, b)->code) || e->end[b] < v)) b--;
  return b;
}

/* The first load of what load k of a VEC loads, whose registers serve both: k itself, or one in an earlier VEC that has run before. What all instances
 * load alike is near, and is loaded again. */
static l_val first_load(const emitter *e, l_val k) {
  enum { ROWS = 2 }; /* so many loads' rows stay in registers */
  const l_instr *i = at(e, k);
  l_val vec = block_of(e, k), around = block_of(e, vec);
  int rows = 0;
  if (i->a < e->par || at(e, around)->code == L_IF) return k;
  for (l_val m = around + 1; m < k && rows < ROWS; m++) {
    const l_instr *x = at(e, m);
    if (x->code != L_LOAD || !is_word(e, x) || x->a < e->par) continue;
    if (block_of(e, block_of(e, m)) != around) continue;
    if (x->imm == i->imm && x->a == i->a) return m;
    rows++;
  }
  return k;
}

/* ---- bodies ------------------------------------------------------------------------------------------------------------------- */

typedef struct batch {
  l_val vec;
  bool words; /* loads and stores of words, else all elements one by one */
  int steps;  /* of `lanes` elements each; without words: elements */
  int lanes;
  int step;  /* from step to step, in elements */
  bool kept; /* all that the thread has of a row in registers */
} batch;

/* Prints a push of element j. Results of many are cells of the thread's own; with `words` they are in a word. */
static void print_push(emitter *e, l_val push, const char *lane, bool words) {
  const l_instr *i = at(e, push), *a = at(e, i->a);
  char cell[48], text[EMIT_TEXT];
  if (acc_many(a)) {
    if (e->kept)
      snprintf(cell, sizeof cell, "v%u[k_]", i->a);
    else
      snprintf(cell, sizeof cell, words ? "c%u.v[w]" : "v%u[j]", words ? push : i->a);
    acc_step(e, i, cell, text);
    line(e, "%s = %s;", cell, text);
    return;
  }
  if (acc_tree(a)) {
    snprintf(cell, sizeof cell, "a%u[%s]", i->a, lane);
    acc_step(e, i, cell, text);
    line(e, "%s = %s;", cell, text);
  } else {
    emit_acc_step(e, i, lane, "0");
  }
}

static void print_plain_store(emitter *e, const l_instr *i) {
  char where[EMIT_TEXT], cond[EMIT_TEXT], buffer[24];
  emit_address(e, i, where);
  emit_guard(e, i, cond);
  emit_buffer(i->imm, buffer);
  line(e, "%s%s%s%s[%s] = v%u;", cond[0] ? "if (" : "", cond, cond[0] ? ") " : "", buffer, where, i->h);
}

/* Does instruction k of the VEC compare the index along it with what is the same for all elements? In a batch that takes one comparison with a
 * number that the compiler knows. */
static bool is_range_test(const emitter *e, l_val vec, l_val k) {
  const l_instr *i = at(e, k);
  if (i->code != L_KOP || i->sub < KOP_eq || i->sub > KOP_ge || i->a <= vec || i->b >= vec) return false;
  const l_instr *a = at(e, i->a), *b = at(e, i->b);
  return a->code == L_IOTA && a->dtype == DTYPE_INDEX && a->b && at(e, a->b)->code == L_INT && at(e, a->b)->imm == 1 &&
         (b->code == L_CONST || (b->code == L_IOTA && !b->b));
}

/* Prints for each of these where in the batch, from jb on, its index would meet the other one. */
static void print_limits(emitter *e, l_val vec) {
  for (l_val k = vec + 1; k < e->end[vec]; k++)
    if (is_range_test(e, vec, k))
      line(e, "const int r%u = limit_(v%u, v%u + jb);", k, at(e, k)->b, at(e, at(e, k)->a)->a);
}

static void print_range_test(emitter *e, const batch *b, l_val k) {
  static const char *const signs[] = {
      [KOP_eq] = "==", [KOP_ne] = "!=", [KOP_lt] = "<", [KOP_le] = "<=", [KOP_gt] = ">", [KOP_ge] = ">="};
  line(e, "const b8 v%u = u * %d + w %s r%u;", k, b->step, signs[at(e, k)->sub], k);
}

/* Divides instruction k of the VEC by what is the same for all elements? */
static bool is_shared_division(const emitter *e, l_val vec, l_val k) {
  const l_instr *i = at(e, k);
  return i->code == L_KOP && i->sub == KOP_div && i->dtype == QN_f32 && i->a > vec && i->b < vec;
}

/* Prints what is done with element j. With a batch b: loads have been made, and stores are made later, as its ways say. */
static void print_element(emitter *e, l_val vec, const batch *b, const char *lane) {
  for (l_val k = vec + 1; k < e->end[vec]; k++) {
    const l_instr *i = at(e, k);
    bool own = e->kept && i->imm < 0, word = e->kept && !own && is_word(e, i);
    int way = e->kept ? word ? AS_WORDS : IN_PLACE : b ? way_of(e, vec, k, b->words) : IN_PLACE;
    switch ((l_code)i->code) {
    case L_LOAD:
      if (own)
        line(e, "const %s v%u = v%u[k_];", emit_type(i->dtype), k, (l_val)-i->imm);
      else if (way == AS_WORDS)
        line(e, "const %s v%u = q%u[u].v[w];", emit_type(i->dtype), k, e->kept ? first_load(e, k) : k);
      else if (way == AHEAD)
        line(e, "const %s v%u = q%u[u * %d + w];", emit_type(i->dtype), k, k, b->lanes);
      else
        emit_instr(e, k);
      break;
    case L_STORE:
      if (own)
        line(e, "v%u[k_] = v%u;", (l_val)-i->imm, i->h);
      else if (way == AS_WORDS)
        line(e, "s%u.v[w] = v%u;", k, i->h);
      else
        print_plain_store(e, i);
      break;
    case L_PUSH: print_push(e, k, lane, b && b->words); break;
    case L_FINISH: line(e, "const %s v%u = v%u[%s];", emit_type(i->dtype), k, i->a, e->kept ? "k_" : "j"); break;
    case L_CHECK: emit_cuda_check(e, i); break;
    default:
      if (b && !b->kept && is_range_test(e, vec, k))
        print_range_test(e, b, k);
      else if (is_shared_division(e, vec, k))
        line(e, "const f32 v%u = over(v%u, d%u);", k, i->a, k);
      else
        emit_instr(e, k);
      break;
    }
  }
}

/* Prints the loads of a batch, whose first element of this thread is jb. */
static void print_loads(emitter *e, const batch *b) {
  l_val from = b->vec + 1, to = e->end[b->vec];
  char type[24], buffer[24];
  bool ahead = false, any = false;
  for (l_val k = from; k < to; k++) {
    const l_instr *i = at(e, k);
    int way = i->code == L_LOAD ? way_of(e, b->vec, k, b->words) : IN_PLACE;
    if (way == AS_WORDS) {
      word_type(e, i, type);
      line(e, "%s q%u[%d];", type, k, b->steps);
    } else if (way == AHEAD) {
      line(e, "%s q%u[%d];", emit_type(i->dtype), k, b->steps * b->lanes);
    }
    ahead |= way == AHEAD;
    any |= way != IN_PLACE;
  }
  if (!any) return;
  line(e, "_Pragma(\"unroll\") for (int u = 0; u < %d; u++) {", b->steps);
  for (l_val k = from; k < to; k++) {
    const l_instr *i = at(e, k);
    if (i->code != L_LOAD || way_of(e, b->vec, k, b->words) != AS_WORDS) continue;
    word_type(e, i, type);
    emit_buffer(i->imm, buffer);
    if (i->g) line(e, "if (!v%u) FILL(q%u[u].v, %d, v%u) else", i->g, k, b->lanes, i->h);
    line(e, "q%u[u] = *(const %s *)(%s + v%u + jb + u * %d);", k, type, buffer, i->a, b->step);
  }
  if (ahead) {
    line(e, "_Pragma(\"unroll\") for (int w = 0; w < %d; w++) {", b->lanes);
    line(e, "const i64 j = jb + u * %d + w;", b->step);
    for (l_val k = from; k < to; k++) {
      if (!(e->ahead[k] & AHEAD_WANTED)) continue;
      const l_instr *i = at(e, k);
      int way = i->code == L_LOAD ? way_of(e, b->vec, k, b->words) : IN_PLACE;
      if (way == AS_WORDS) {
        line(e, "const %s v%u = q%u[u].v[w];", emit_type(i->dtype), k, k);
        continue;
      }
      emit_instr(e, k);
      if (way == AHEAD) line(e, "q%u[u * %d + w] = v%u;", k, b->lanes, k);
    }
    line(e, "}");
  }
  line(e, "}");
}

/* Prints a batch that exists as a whole. */
static void print_batch(emitter *e, const batch *b) {
  char type[24], buffer[24];
  print_limits(e, b->vec);
  print_loads(e, b);
  line(e, "_Pragma(\"unroll\") for (int u = 0; u < %d; u++) {", b->steps);
  for (l_val k = b->vec + 1; k < e->end[b->vec]; k++)
    if (at(e, k)->code == L_STORE && way_of(e, b->vec, k, b->words) == AS_WORDS) {
      word_type(e, at(e, k), type);
      line(e, "%s s%u;", type, k);
    } else if (at(e, k)->code == L_PUSH && acc_many(at(e, at(e, k)->a)) && b->words) {
      const l_instr *i = at(e, k);
      snprintf(type, sizeof type, "%sx%d", emit_type(at(e, i->a)->dtype), b->lanes);
      line(e, "%s c%u = *(const %s *)(v%u + jb + u * %d);", type, k, type, i->a, b->step);
    }
  line(e, "_Pragma(\"unroll\") for (int w = 0; w < %d; w++) {", b->lanes);
  line(e, "const i64 j = jb + u * %d + w;", b->step);
  print_element(e, b->vec, b, "w");
  line(e, "}");
  for (l_val k = b->vec + 1; k < e->end[b->vec]; k++) {
    const l_instr *i = at(e, k);
    if (i->code == L_PUSH && acc_many(at(e, i->a)) && b->words) {
      int bytes = (int)dtype_size((qn_dtype)at(e, i->a)->dtype) * b->lanes;
      snprintf(type, sizeof type, "%sx%d", emit_type(at(e, i->a)->dtype), b->lanes);
      if (bytes > 4)
        line(e, "PUT_LOCAL_%d(v%u + jb + u * %d, c%u)", bytes, i->a, b->step, k);
      else
        line(e, "*(%s *)(v%u + jb + u * %d) = c%u;", type, i->a, b->step, k);
    }
    if (i->code != L_STORE || way_of(e, b->vec, k, b->words) != AS_WORDS) continue;
    word_type(e, i, type);
    emit_buffer(i->imm, buffer);
    int bytes = size_of(e, i) * b->lanes;
    if (i->g) line(e, "if (v%u)", i->g);
    if (bytes > 4) /* compilers take such an assignment apart */
      line(e, "PUT%s_%d(%s + v%u + jb + u * %d, s%u)", i->imm < 0 ? "_LOCAL" : "", bytes, buffer, i->a, b->step, k);
    else
      line(e, "*(%s *)(%s + v%u + jb + u * %d) = s%u;", type, buffer, i->a, b->step, k);
  }
  line(e, "}");
}

/* ---- VEC ------------------------------------------------------------------------------------------------------------------------ */

/* Prints the range [lo, hi) of elements for which all guards' ranges hold. */
static bool print_inside(emitter *e, l_val vec) {
  bool any = false;
  line(e, "i64 lo = 0, hi = n;");
  for (l_val k = vec + 1; k < e->end[vec]; k++) {
    const l_instr *i = at(e, k);
    if (i->code != L_LOAD && i->code != L_STORE) continue;
    if (i->e) line(e, "lo = lo < v%u ? v%u : lo;", i->e, i->e);
    if (i->f) line(e, "hi = hi > v%u ? v%u : hi;", i->f, i->f);
    any |= i->e || i->f;
  }
  return any;
}

static bool uses_locals(const emitter *e, l_val vec) {
  for (l_val k = vec + 1; k < e->end[vec]; k++) {
    const l_instr *i = at(e, k);
    if ((i->code == L_LOAD || i->code == L_STORE) && i->imm < 0) return true;
    if ((i->code == L_PUSH || i->code == L_FINISH) && acc_many(at(e, i->a))) return true;
  }
  return false;
}

/* Prints a batch of `words` words of each thread from element `from` (a text) on; `first`: of the thread's first element in it. `apart`: threads for whose
 * elements not all ranges hold go through theirs one by one; else all threads leave such a batch to the lines that follow. */
static void print_words(emitter *e, l_val vec, int words, const char *from, const char *first, bool apart) {
  batch b = {.vec = vec, .words = true, .steps = words, .lanes = e->layout.lanes, .step = step_of(e)};
  if (apart)
    line(e, "if (%s + %d <= n && fits) {", from, words * step_of(e));
  else
    line(e, "if (%s >= lo && %s + %d <= hi && fits) {", from, from, words * step_of(e));
  line(e, "const i64 jb = %s + %s;", from, first);
  if (apart) line(e, "if (jb >= lo && jb + %d <= hi) {", (words - 1) * b.step + b.lanes);
  e->inside = true;
  print_batch(e, &b);
  e->inside = false;
  if (!apart) return;
  line(e, "} else {");
  line(e, "_Pragma(\"unroll 1\") for (int u = 0; u < %d; u++)", words);
  line(e, "_Pragma(\"unroll\") for (int w = 0; w < %d; w++) {", b.lanes);
  line(e, "const i64 j = jb + u * %d + w;", b.step);
  print_element(e, vec, NULL, "w");
  line(e, "}");
  line(e, "}");
}

/* Prints the batch of `words` words from b_ on: as a whole if it is whole, else word after word, and those that are not whole are left to the lines
 * that follow, up to close_ways: these do what is there of the elements from c_ on. `some`: a batch of single elements is printed, too. */
static void open_ways(emitter *e, l_val vec, int words, const char *first, const char *end, int some, bool guarded) {
  print_words(e, vec, words, "b_", first, guarded);
  for (int at = 0; some && at < words * e->layout.lanes; at = words * e->layout.lanes) {
    int lanes = words * e->layout.lanes < some ? words * e->layout.lanes : some;
    batch b = {.vec = vec, .steps = lanes, .lanes = 1, .step = e->layout.threads};
    line(e, "} else if (b_ >= lo && b_ + %d <= hi) {", words * step_of(e));
    line(e, "_Pragma(\"unroll 1\")");
    line(e, "for (i64 jb = b_ + t; jb < b_ + %d; jb += %d) {", words * step_of(e), lanes * e->layout.threads);
    e->inside = true;
    print_batch(e, &b);
    e->inside = false;
    line(e, "}");
  }
  line(e, "} else {");
  line(e, "_Pragma(\"unroll 1\")");
  line(e, "for (i64 c_ = b_; c_ < %s && c_ < b_ + %d; c_ += %d) {", end, words * step_of(e), step_of(e));
  if (words == 1) return;
  print_words(e, vec, 1, "c_", first, false);
  line(e, "continue;");
  line(e, "}");
}

static void close_ways(emitter *e) {
  line(e, "}");
  line(e, "}");
}

static bool is_lane_push(const emitter *e, l_val k) {
  return at(e, k)->code == L_PUSH && !acc_many(at(e, at(e, k)->a));
}

static void print_rows_vec(emitter *e, l_val vec, int words, bool guarded) {
  l_layout l = e->layout;
  int team = ORDER_LANES / l.lanes;
  char id[80], first[48];
  snprintf(first, sizeof first, "t %% %d * %d", team, l.lanes);
  if (words > ORDER_BLOCK / ORDER_LANES) words = ORDER_BLOCK / ORDER_LANES;
  line(e, "const i64 blocks = (n + %d) / %d;", ORDER_BLOCK - 1, ORDER_BLOCK);
  if (teams(e) > 1) {
    line(e, "int half = 0; while (blocks > (i64)%d << half) half++;", teams(e));
    line(
        e,
        "const i64 block0 = (i64)(t / %d) << half, block1 = block0 + (1ll << half) < blocks ? block0 + (1ll << half) : "
        "blocks;",
        team);
  } else {
    line(e, "const i64 block0 = 0, block1 = blocks;");
  }
  for (l_val k = vec + 1; k < e->end[vec]; k++)
    if (is_lane_push(e, k) && acc_tree(at(e, at(e, k)->a)))
      line(e, "%s a%u[%d];", emit_type(at(e, at(e, k)->a)->dtype), at(e, k)->a, l.lanes);
  line(e, "for (i64 block = block0; block < block1; block++) {");
  line(e, "const i64 b0 = block * %d, b1 = b0 + %d < n ? b0 + %d : n;", ORDER_BLOCK, ORDER_BLOCK, ORDER_BLOCK);
  for (l_val k = vec + 1; k < e->end[vec]; k++) {
    const l_instr *a = at(e, at(e, k)->a);
    if (!is_lane_push(e, k) || !acc_tree(a)) continue;
    acc_identity(a, id);
    line(e, "FILL(a%u, %d, %s)", at(e, k)->a, l.lanes, id);
  }
  line(e, "_Pragma(\"unroll 1\")");
  line(e, "for (i64 b_ = b0; b_ < b1; b_ += %d) {", words * ORDER_LANES);
  open_ways(e, vec, words, first, "b1", 0, guarded);
  line(e, "_Pragma(\"unroll\") for (int w = 0; w < %d; w++) {", l.lanes);
  line(e, "const i64 j = c_ + %s + w; if (j < n) {", first);
  print_element(e, vec, NULL, "w");
  line(e, "}");
  line(e, "}");
  close_ways(e);
  line(e, "}");
  for (l_val k = vec + 1; k < e->end[vec]; k++) {
    l_val acc = at(e, k)->a;
    char f[48];
    if (!is_lane_push(e, k) || !acc_tree(at(e, acc))) continue;
    line(e, "if (block1 - block0 == 1) { FILL(v%u, %d, a%u[r_]) } else {", acc, l.lanes, acc);
    line(e, "TREE_ADD(%s, %s, v%u_t, %d, v%u_n, a%u, %d) v%u_n++;", emit_type(at(e, acc)->dtype),
         acc_prim(e, at(e, acc), f), acc, l.lanes, acc, acc, l.lanes, acc);
    line(e, "}");
  }
  line(e, "}");
  for (l_val k = vec + 1; k < e->end[vec]; k++) {
    l_val acc = at(e, k)->a;
    char f[48];
    const l_instr *a = at(e, acc);
    if (!is_lane_push(e, k) || !acc_tree(a)) continue;
    acc_identity(a, id);
    line(e, "if (block1 - block0 > 1) TREE_END(%s, %s, v%u_t, %d, v%u_n, v%u, %d, %s)", emit_type(a->dtype),
         acc_prim(e, a, f), acc, l.lanes, acc, acc, l.lanes, id);
  }
}

/* Opens the loops over the elements of a VEC that a thread keeps: step u, element w of it, number k_ of the thread's. */
static void open_kept(emitter *e) {
  line(e, "_Pragma(\"unroll\") for (int u = 0; u < %d; u++) {", e->kept / e->layout.lanes);
}

static void open_kept_lanes(emitter *e) {
  line(e, "_Pragma(\"unroll\") for (int w = 0; w < %d; w++) {", e->layout.lanes);
  line(e, "const i64 j = jb + u * %d + w; const int k_ = u * %d + w; (void)j; (void)k_;", ORDER_LANES, e->layout.lanes);
}

/* Prints where the thread's elements of a row begin. */
static void print_kept_begin(emitter *e) {
  int team = ORDER_LANES / e->layout.lanes;
  line(e, "const i64 jb = t / %d * %d + t %% %d * %d;", team, ORDER_BLOCK, team, e->layout.lanes);
}

/* Prints step u of the loads of words that have not been made before: of rows, or of what is the same for all instances and so is near. */
static void print_kept_loads(emitter *e, l_val vec, bool rows) {
  char type[24], buffer[24];
  for (int words = 1; words >= 0; words--) {
    bool any = false;
    for (l_val k = vec + 1; k < e->end[vec]; k++) {
      const l_instr *i = at(e, k);
      if (i->code != L_LOAD || !is_word(e, i) || first_load(e, k) != k || (i->a > e->par) != rows) continue;
      if (!any) line(e, words ? "if (fits) {" : "} else {");
      any = true;
      word_type(e, i, type);
      emit_buffer(i->imm, buffer);
      if (words)
        line(e, "q%u[u] = *(const %s *)(%s + v%u + jb + u * %d);", k, type, buffer, i->a, ORDER_LANES);
      else
        line(e, "_Pragma(\"unroll\") for (int w = 0; w < %d; w++) q%u[u].v[w] = %s[v%u + jb + u * %d + w];",
             e->layout.lanes, k, buffer, i->a, ORDER_LANES);
    }
    if (any && !words) line(e, "}");
  }
}

/* Prints a VEC over a row whose elements are kept in registers: all loads first, then for each step what is computed, then stored. */
static void print_kept_vec(emitter *e, l_val vec) {
  l_layout l = e->layout;
  char id[80], type[24], buffer[24];
  bool loads = false, stores = false;
  batch b = {
      .vec = vec, .words = true, .steps = e->kept / l.lanes, .lanes = l.lanes, .step = ORDER_LANES, .kept = true};
  line(e, "const i64 blocks = (n + %d) / %d; const int half = 0; (void)blocks; (void)half;", ORDER_BLOCK - 1,
       ORDER_BLOCK);
  print_kept_begin(e);
  for (l_val k = vec + 1; k < e->end[vec]; k++) {
    const l_instr *i = at(e, k);
    loads |= i->code == L_LOAD && is_word(e, i) && i->a > e->par;
    stores |= i->code == L_STORE && is_word(e, i);
    if (!is_lane_push(e, k) || !acc_tree(at(e, i->a))) continue;
    acc_identity(at(e, i->a), id);
    line(e, "%s a%u[%d]; FILL(a%u, %d, %s)", emit_type(at(e, i->a)->dtype), i->a, l.lanes, i->a, l.lanes, id);
  }
  if (loads) {
    open_kept(e);
    print_kept_loads(e, vec, true);
    line(e, "}");
  }
  open_kept(e);
  for (l_val k = vec + 1; k < e->end[vec] && stores; k++) {
    if (at(e, k)->code != L_STORE || !is_word(e, at(e, k))) continue;
    word_type(e, at(e, k), type);
    line(e, "%s s%u;", type, k);
  }
  print_kept_loads(e, vec, false);
  open_kept_lanes(e);
  print_element(e, vec, &b, "w");
  line(e, "}");
  for (int words = 1; words >= 0 && stores; words--) {
    line(e, words ? "if (fits) {" : "} else {");
    for (l_val k = vec + 1; k < e->end[vec]; k++) {
      const l_instr *i = at(e, k);
      if (i->code != L_STORE || !is_word(e, i)) continue;
      word_type(e, i, type);
      emit_buffer(i->imm, buffer);
      int bytes = size_of(e, i) * l.lanes;
      if (!words)
        line(e, "_Pragma(\"unroll\") for (int w = 0; w < %d; w++) %s[v%u + jb + u * %d + w] = s%u.v[w];", l.lanes,
             buffer, i->a, ORDER_LANES, k);
      else if (bytes > 4)
        line(e, "PUT_%d(%s + v%u + jb + u * %d, s%u)", bytes, buffer, i->a, ORDER_LANES, k);
      else
        line(e, "*(%s *)(%s + v%u + jb + u * %d) = s%u;", type, buffer, i->a, ORDER_LANES, k);
    }
  }
  if (stores) line(e, "}");
  line(e, "}");
  for (l_val k = vec + 1; k < e->end[vec]; k++)
    if (is_lane_push(e, k) && acc_tree(at(e, at(e, k)->a)))
      line(e, "FILL(v%u, %d, a%u[r_])", at(e, k)->a, l.lanes, at(e, k)->a);
}

static void print_plain_vec(emitter *e, l_val vec, int words, bool guarded, int weight) {
  l_layout l = e->layout;
  char first[32];
  bool own = uses_locals(e, vec);
  snprintf(first, sizeof first, "t * %d", l.lanes);
  line(e, "_Pragma(\"unroll 1\")");
  line(e, "for (i64 b_ = 0; b_ < n; b_ += %d) {", words * step_of(e));
  open_ways(e, vec, words, first, "n",
            !own && l.lanes > 1 && (guarded || weight <= HEAVY) && weight <= 2 * HEAVY ? 4 : 0, guarded);
  line(e, "_Pragma(\"unroll 1\")");
  if (own) /* the elements that the thread has had before */
    line(e, "for (i64 j = c_ + %s; j < n && j < c_ + %s + %d; j++) {", first, first, l.lanes);
  else
    line(e, "for (i64 j = c_ + t; j < n && j < c_ + %d; j += %d) {", step_of(e), l.threads);
  print_element(e, vec, NULL, "0");
  line(e, "}");
  close_ways(e);
  line(e, "}");
}

/* Prints the combination of all values of an accumulator for which every order gives the same bits: a thread's, a warp's, those of all warps. */
static void print_combine_any(emitter *e, l_val acc, const char *f) {
  const l_instr *a = at(e, acc);
  l_layout l = e->layout;
  int width = l.threads < 32 ? l.threads : 32, warps = l.threads / width;
  const char *T = emit_type(a->dtype);
  line(e, "_Pragma(\"unroll\") for (int w = 1; w < %d; w++) v%u[0] = %s(v%u[0], v%u[w]);", l.lanes, acc, f, acc, acc);
  line(e,
       "_Pragma(\"unroll\") for (int h = %d; h > 0; h >>= 1) { const %s z = DOWN(%s, v%u[0], h, %d); v%u[0] = "
       "%s(v%u[0], z); }",
       width / 2, T, T, acc, width, acc, f, acc);
  if (warps == 1) {
    line(e, "v%u[0] = FIRST(%s, v%u[0], %d);", acc, T, acc, width);
    return;
  }
  line(e, "{");
  line(e, "%s *const s_ = (%s *)(lanes_ + g_ * %d);", T, T, l.threads * l.lanes);
  line(e, "TOGETHER(%d, %d) if (t %% 32 == 0) s_[t / 32] = v%u[0]; TOGETHER(%d, %d)", l.threads, l.groups, acc,
       l.threads, l.groups);
  line(e, "v%u[0] = s_[0];", acc);
  line(e, "_Pragma(\"unroll\") for (int w = 1; w < %d; w++) v%u[0] = %s(v%u[0], s_[w]);", warps, acc, f, acc);
  line(e, "}");
}

/* Prints the combination of an accumulator's lanes: of all teams in the first one, and with `fold` of all lanes, for all threads. There are `blocks`
 * blocks, 1 << half for each team. */
static void print_combine(emitter *e, l_val acc, bool fold) {
  const l_instr *a = at(e, acc);
  l_layout l = e->layout;
  int team = ORDER_LANES / l.lanes, n = teams(e), tree = acc_tree(a);
  const char *T = emit_type(a->dtype);
  char f[48], together[40];
  acc_prim(e, a, f);
  snprintf(together, sizeof together, "TOGETHER(%d, %d)", l.threads, l.groups);
  if (fold && !tree) {
    print_combine_any(e, acc, f);
    return;
  }
  if (l.threads <= 32) {
    for (int h = 1; h < n; h *= 2)
      line(e,
           "_Pragma(\"unroll\") for (int w = 0; w < %d; w++) { const %s z = DOWN(%s, v%u[w], %d, %d); if (%s(i64)(t / "
           "%d "
           "+ %d) << half < blocks) v%u[w] = %s(v%u[w], z); }",
           l.lanes, T, T, acc, h * team, l.threads, tree ? "" : "1 || ", team, h, acc, f, acc);
    if (!fold) return;
    for (int h = ORDER_LANES / 2; h > 0; h /= 2) {
      if (h >= l.lanes)
        line(e,
             "_Pragma(\"unroll\") for (int w = 0; w < %d; w++) { const %s z = DOWN(%s, v%u[w], %d, %d); v%u[w] = "
             "%s(v%u[w], "
             "z); }",
             l.lanes, T, T, acc, h / l.lanes, l.threads, acc, f, acc);
      else
        line(e, "_Pragma(\"unroll\") for (int w = 0; w < %d; w++) v%u[w] = %s(v%u[w], v%u[w + %d]);", h, acc, f, acc,
             acc, h);
    }
    line(e, "v%u[0] = FIRST(%s, v%u[0], %d);", acc, T, acc, l.threads);
    return;
  }
  line(e, "{");
  line(e, "%s *const s_ = (%s *)(lanes_ + g_ * %d);", T, T, n * ORDER_LANES);
  line(e, "%s FILL(s_ + t / %d * %d + t %% %d * %d, %d, v%u[r_]) %s", together, team, ORDER_LANES, team, l.lanes,
       l.lanes, acc, together);
  /* lane l of the root of all teams */
  line(e, "%s z[%d], y[2];", T, n);
  line(e, "_Pragma(\"unroll\") for (int c = 0; c < 2; c++) {");
  line(e, "_Pragma(\"unroll\") for (int m = 0; m < %d; m++) z[m] = s_[m * %d + c * 32 + (t & 31)];", n, ORDER_LANES);
  for (int h = 1; h < n; h *= 2)
    line(e,
         "_Pragma(\"unroll\") for (int m = 0; m < %d; m += %d) if (%s(i64)(m + %d) << half < blocks) z[m] = %s(z[m], "
         "z[m + "
         "%d]);",
         n, 2 * h, tree ? "" : "1 || ", h, f, h);
  line(e, "y[c] = z[0];");
  line(e, "}");
  if (fold) {
    line(e, "%s x = %s(y[0], y[1]);", T, f);
    line(e, "_Pragma(\"unroll\") for (int h = 16; h > 0; h >>= 1) { const %s o = DOWN(%s, x, h, 32); x = %s(x, o); }",
         T, T, f);
    line(e, "v%u[0] = FIRST(%s, x, 32);", acc, T);
  } else {
    line(e, "if (t < 32) { s_[t] = y[0]; s_[t + 32] = y[1]; }");
    line(e, "%s if (t < %d) FILL(v%u, %d, s_[t * %d + r_])", together, team, acc, l.lanes, l.lanes);
  }
  line(e, "}");
}

static bool is_partial(const emitter *e, l_val acc) {
  for (l_val k = acc; k < e->end[e->par]; k++)
    if (at(e, k)->code == L_PARTIAL && at(e, k)->a == acc && at(e, acc)->imm == ORDER_INNER) return true;
  return false;
}

/* ---- many results ------------------------------------------------------------------------------------------------------------------ */

/* Opens loops over the cells r of an accumulator that are the thread's, in four blocks. */
static void open_own(emitter *e, l_val acc) {
  l_layout l = e->layout;
  int team = ORDER_LANES / l.lanes;
  line(e, "{ const i64 n_ = v%u;", at(e, acc)->a);
  if (e->rows) {
    line(e, "const i64 all_ = (n_ + %d) / %d; int h_ = 0; while (all_ > (i64)%d << h_) h_++;", ORDER_BLOCK - 1,
         ORDER_BLOCK, teams(e));
    line(e, "for (i64 g0_ = (i64)(t / %d) << h_, b_ = g0_; b_ < all_ && b_ < g0_ + (1ll << h_); b_++)", team);
    line(e, "for (i64 j_ = b_ * %d + t %% %d * %d; j_ < n_ && j_ < b_ * %d + %d; j_ += %d) {", ORDER_BLOCK, team,
         l.lanes, ORDER_BLOCK, ORDER_BLOCK, ORDER_LANES);
  } else {
    line(e, "for (i64 j_ = t * %d; j_ < n_; j_ += %d) {", l.lanes, l.threads * l.lanes);
  }
  line(e, "for (int w_ = 0; w_ < %d; w_++) { const i64 r = j_ + w_; if (r < n_) {", l.lanes);
}

static void close_own(emitter *e) {
  line(e, "} }");
  line(e, "}");
  line(e, "}");
}

static void print_cell_leaf(emitter *e, l_val acc, const char *when) {
  const l_instr *a = at(e, acc);
  char f[48];
  line(e, "%sTREE_ADD(%s, %s, v%u_t + r, v%u, v%u_n, (v%u + r), 1)", when, emit_type(a->dtype), acc_prim(e, a, f), acc,
       a->a, acc, acc);
}

/* Prints the counting of a push to all results: full chains become leaves. */
static void print_counted(emitter *e, l_val acc) {
  char id[80];
  line(e, "v%u_k++;", acc);
  if (!acc_tree(at(e, acc)) || e->kept) return;
  acc_identity(at(e, acc), id);
  line(e, "if (v%u_k %% %d == 0) {", acc, acc_chain(at(e, acc)));
  open_own(e, acc);
  print_cell_leaf(e, acc, "");
  line(e, "v%u[r] = %s;", acc, id);
  close_own(e);
  line(e, "v%u_n++;", acc);
  line(e, "}");
}

/* Prints the computation of all results, once. */
static void print_roots(emitter *e, l_val acc) {
  const l_instr *a = at(e, acc);
  char f[48], id[80];
  if (!acc_tree(a)) return;
  acc_nothing(a, id);
  if (e->kept) {
    line(e, "if (v%u_k == 0) FILL(v%u, %d, %s)", acc, acc, e->kept, id);
    return;
  }
  line(e, "if (!v%u_done) {", acc);
  line(e, "const int rest = v%u_k %% %d != 0;", acc, acc_chain(a));
  open_own(e, acc);
  print_cell_leaf(e, acc, "if (rest) ");
  line(e, "TREE_END(%s, %s, v%u_t + r, v%u, v%u_n + rest, (v%u + r), 1, %s)", emit_type(a->dtype), acc_prim(e, a, f),
       acc, a->a, acc, acc, id);
  close_own(e);
  line(e, "v%u_done = 1;", acc);
  line(e, "}");
}

/* Prints how the block of a VEC begins. */
static void print_begin(emitter *e, l_val v) {
  for (l_val k = v + 1; k < e->end[v]; k++)
    if (at(e, k)->code == L_FINISH && emit_is_first(e, v, k)) print_roots(e, at(e, k)->a);
  line(e, "{");
  line(e, "const i64 n = v%u > 0 ? v%u : 0;", at(e, v)->b, at(e, v)->b);
  for (l_val k = v + 1; k < e->end[v]; k++)
    if (is_shared_division(e, v, k)) line(e, "const over_f32 d%u = over_of(v%u);", k, at(e, k)->b);
}

static void print_vec(emitter *e, l_val v) {
  int weight, many = emit_ahead_marks(e, v, e->ahead, &weight);
  int64_t words = many > 1 ? many / e->layout.lanes : 1, most = bound_of(e, at(e, v)->b) / step_of(e);
  if (words > most) words = most;
  if (words < 1) words = 1;
  print_begin(e, v);
  e->vec = v;
  print_fits(e, v);
  bool guarded = !e->kept && print_inside(e, v);
  if (e->kept)
    print_kept_vec(e, v);
  else if (e->rows)
    print_rows_vec(e, v, (int)words, guarded);
  else
    print_plain_vec(e, v, (int)words, guarded, weight);
  e->vec = 0;
  memset(e->ahead, 0, e->p->n);
  for (l_val k = v + 1; k < e->end[v]; k++)
    if (is_lane_push(e, k) && e->acc[at(e, k)->a] & ACC_FINISHED)
      print_combine(e, at(e, k)->a, !is_partial(e, at(e, k)->a));
  line(e, "}");
  for (l_val k = v + 1; k < e->end[v]; k++)
    if (at(e, k)->code == L_PUSH && acc_many(at(e, at(e, k)->a))) print_counted(e, at(e, k)->a);
}

/* ---- phases ------------------------------------------------------------------------------------------------------------------------ */

static void print_acc(emitter *e, l_val v) {
  const l_instr *a = at(e, v);
  char id[80];
  acc_identity(a, id);
  if (acc_many(a)) {
    if (e->kept) {
      line(e, "%s v%u[%d]; i64 v%u_k = 0; FILL(v%u, %d, %s)", emit_type(a->dtype), v, e->kept, v, v, e->kept, id);
      return;
    }
    line(e, "i64 v%u_k = 0; u64 v%u_n = 0; int v%u_done = 0;", v, v, v);
    open_own(e, v);
    line(e, "v%u[r] = %s;", v, id);
    close_own(e);
    return;
  }
  if (!acc_lanes(e, v)) {
    emit_acc_begin(e, v);
    return;
  }
  line(e, "%s v%u[%d]; FILL(v%u, %d, %s)", emit_type(a->dtype), v, e->layout.lanes, v, e->layout.lanes, id);
  if (acc_tree(a)) line(e, "%s v%u_t[%d]; u64 v%u_n = 0;", emit_type(a->dtype), v, 48 * e->layout.lanes, v);
}

static void print_partial(emitter *e, const l_instr *i) {
  char buffer[24];
  int lanes = e->layout.lanes, team = ORDER_LANES / lanes;
  const l_instr *a = at(e, i->a);
  emit_buffer(i->imm, buffer);
  if (acc_many(a)) {
    print_roots(e, i->a);
    if (e->kept) {
      line(e, "{");
      print_kept_begin(e);
      open_kept(e);
      open_kept_lanes(e);
      line(e, "%s[v%u + j] = v%u[k_];", buffer, i->b, i->a);
      line(e, "}");
      line(e, "}");
      line(e, "}");
      return;
    }
    open_own(e, i->a);
    line(e, "%s[v%u + r] = v%u[r];", buffer, i->b, i->a);
    close_own(e);
    return;
  }
  if (!acc_lanes(e, i->a)) emit_acc_result(e, i->a, true);
  if (acc_lanes(e, i->a) && a->imm == ORDER_INNER)
    line(e, "if (t < %d) for (int w = 0; w < %d; w++) %s[v%u + t * %d + w] = v%u[w];", team, lanes, buffer, i->b, lanes,
         i->a);
  else
    line(e, "if (t == 0) %s[v%u] = v%u[0];", buffer, i->b, i->a);
}

/* May the first thread store over what others have still to load? An output may lie in the memory of an input that the instance has loaded. */
static bool may_overwrite(const emitter *e, l_val store) {
  for (l_val k = store; k-- > 1 && at(e, k)->code != L_PAR;)
    if (at(e, k)->code == L_LOAD && at(e, k)->imm >= 0) return true;
  return false;
}

static void print_block(emitter *e, l_val from, l_val to) {
  for (l_val v = from; v < to; v++) {
    const l_instr *i = at(e, v);
    switch ((l_code)i->code) {
    case L_LOCAL:
      if (e->kept) line(e, "%s v%u[%d];", emit_type(i->dtype), v, e->kept);
      break;
    case L_ACC: print_acc(e, v); break;
    case L_PARTIAL: print_partial(e, i); break;
    case L_FINISH:
      if (!acc_lanes(e, i->a)) emit_acc_result(e, i->a, true);
      line(e, "const %s v%u = v%u[0];", emit_type(i->dtype), v, i->a);
      break;
    case L_POLL: line(e, "if (POLLED(polls) && __syncthreads_or(STOPPED)) return;"); break;
    case L_STORE:
    case L_CHECK:
      if (i->code == L_STORE && may_overwrite(e, v)) line(e, "TOGETHER(%d, %d)", e->layout.threads, e->layout.groups);
      line(e, "if (t == 0) {");
      if (i->code == L_STORE)
        print_plain_store(e, i);
      else
        emit_cuda_check(e, i);
      line(e, "}");
      break;
    case L_VEC:
      print_vec(e, v);
      v = e->end[v];
      break;
    default: v = emit_structure(e, v, print_block); break;
    }
  }
}

/* What a thread holds of a batch of a VEC, in registers of 32 bits. */
static int held(emitter *e, l_val vec) {
  int weight, many = emit_ahead_marks(e, vec, e->ahead, &weight), words = 0;
  for (l_val k = vec + 1; k < e->end[vec]; k++)
    if (e->ahead[k] & AHEAD_LOAD) words += (size_of(e, at(e, k)) + 3) / 4;
  memset(e->ahead, 0, e->p->n);
  return words * (many > e->layout.lanes ? many : e->layout.lanes) + (weight > HEAVY ? 24 : 0);
}

/* How many threads share a multiprocessor where rows are kept in registers. */
static int kept_threads(emitter *e, l_val par, int kept) {
  enum { OTHERS = 48, REGISTERS = 65536 };
  int rows = 0, most = 0;
  e->par = par;
  for (l_val v = par + 1; v < e->end[par]; v++) {
    const l_instr *i = at(e, v);
    int words = dtype_size((qn_dtype)i->dtype) > 4 ? 2 : 1;
    if (i->code == L_ACC && acc_many(i)) rows += words;
    if (i->code == L_LOCAL) most += words;
    if (i->code == L_LOAD && i->imm >= 0 && at(e, block_of(e, v))->code == L_VEC && is_word(e, i) && i->a > par &&
        first_load(e, v) == v)
      most += words;
  }
  rows += most > 2 ? 2 : most;
  int threads = REGISTERS / (OTHERS + rows * kept) / 128 * 128;
  return threads > 1024 ? 1024 : threads < 256 ? 256 : threads;
}

int emit_cuda_wide_blocks(emitter *e, l_val par) {
  enum { OTHERS = 30, REGISTERS = 65536 }; /* for addresses, counts and what is computed with */
  int most = 0;
  bool rows = has_rows(e, par);
  e->layout = l_layout_of(at(e, par));
  for (l_val v = par + 1; v < e->end[par]; v++) {
    int n = at(e, v)->code == L_VEC ? held(e, v) : 0;
    if (n > most) most = n;
  }
  int kept = emit_cuda_kept(e, par);
  if (kept) return kept_threads(e, par, kept) / (e->layout.threads * e->layout.groups);
  most += rows ? OTHERS + 8 : OTHERS;
  int threads = most <= 40 && !rows ? 1536 : most <= 64 ? 1024 : 768;
  return threads / (e->layout.threads * e->layout.groups);
}

void emit_cuda_wide(emitter *e, l_val phase) {
  l_val par = phase;
  while (at(e, par)->code != L_PAR) par++;
  e->layout = l_layout_of(at(e, par));
  l_layout l = e->layout;
  line(e, "const int t = threadIdx.x %% %d, g_ = threadIdx.x / %d; u64 o = 0; unsigned polls = 0;", l.threads,
       l.threads);
  if (l.threads < 32)
    line(e, "const unsigned mask_ = %uu << (threadIdx.x & %d);", (1u << l.threads) - 1, 32 - l.threads);
  else
    line(e, "const unsigned mask_ = ~0u;");
  line(e, "BEGIN");
  emit_ranges(e);
  emit_buffers(e);
  for (uint32_t b = 0; b < e->p->nbuffers; b++) line(e, "GLOBAL(p%u)", b);
  (void)emit_prelude(e, phase);
  e->rows = has_rows(e, par);
  e->kept = emit_cuda_kept(e, par);
  if (e->rows && l.threads > 32) line(e, "__shared__ u64 lanes_[%d];", l.threads * l.lanes * l.groups);
  emit_places(e, par);
  line(e, "(void)g_; (void)mask_; (void)polls;");
  line(e, "for (i64 x%u = (i64)blockIdx.x * %d + g_; x%u < instances; x%u += (i64)gridDim.x * %d) {", par, l.groups,
       par, par, l.groups);
  for (l_val v = par + 1; v < e->end[par] && e->kept; v++) {
    const l_instr *i = at(e, v);
    char type[24];
    if (i->code != L_LOAD || at(e, block_of(e, v))->code != L_VEC || !is_word(e, i) || first_load(e, v) != v) continue;
    word_type(e, i, type);
    line(e, "%s q%u[%d];", type, v, e->kept / l.lanes);
  }
  print_block(e, par + 1, e->end[par]);
  line(e, "}");
  e->least = e->most = NULL; /* what follows is printed by lines that rely on 64 bits */
}
