/* Layouts of threads (layout.h). What follows was measured on an H200 (kernels of f32 that move 0.5 GB; GB/s, a copy 4,030):
 *
 *   pointwise, a block for each instance       64 x 1 lane 3,730   128 x 4 3,980   256 x 2 4,030   256 x 4 4,020
 *   the same, as many blocks as fit, in turns  64 x 1 lane 3,320   128 x 4 3,700   256 x 2 3,680   256 x 4 3,670
 *   softmax of rows of 64, kept                64 x 1 one a block 300, four 970   16 x 4, eight a block 4,000
 *   rows of 256                                64 x 1, four 2,600   32 x 2, eight 3,940   16 x 4, eight 3,970
 *   rows of 1,024                              64 x 1, four 3,960   32 x 2, four or eight 3,970   16 x 4, eight 3,830
 *   rows of 4,096                              64 x 4, two 3,860   128 x 2, one 3,910   256 x 1 3,870
 *   layer norm of 1,024                        64 x 1, one 1,780, four 3,760   32 x 2 3,840   16 x 4 3,740
 *
 * A step of Jacobi on 2048^2 (a kernel of 1 step and of 2): 4 lanes, words where they fit 13 and 38 us: four loads of one element that lie 16 bytes apart
 * take four times the time of the first cache; 1 lane 13 and 34 (12 and 25 where the sizes are known).
 *
 * Rows in registers instead of shared memory, or read again: layer norm of 1,024 by 32 x 2 3,840 instead of 3,830 or 3,600; softmax of 4,096 by 128 x 2
 * 3,910 instead of 2,980 read again.
 *
 * So: blocks of 128 to 256 threads, one block for each tile or group of rows, and no more elements of a row in a thread than 32. */
#include "jit/kernel/layout.h"

#include <stdlib.h>

#include "jit/kernel/emit_text.h"

/* ---- what fits -------------------------------------------------------------------------------------------------------------- */

static bool is_int(const emitter *e, l_val v, int64_t value) {
  return v && emit_at(e, v)->code == L_INT && emit_at(e, v)->imm == value;
}

/* Is an access to a local one of a thread to its own elements? */
static bool is_own(const emitter *e, const l_instr *i) { return is_int(e, i->a, 0) && is_int(e, i->b, 1) && !i->c; }

/* What a phase has, which decides what its layout must be like. */
typedef struct phase_needs {
  bool rows;  /* accumulators with lanes */
  bool polls; /* threads of a block go through loops together */
  bool own;   /* locals, or accumulators of many results, whose elements belong to threads */
} phase_needs;

/* Accumulators of rows: the lanes of one result. */
static const char *lanes_misfit(const emitter *e, l_val par, l_val acc) {
  uint8_t uses = e->acc[acc];
  l_val push = 0, vec = 0;
  int depth = 0;
  bool partial = false, finish = false;
  if (uses & (ACC_SINGLE | ACC_NESTED | ACC_MERGED | ACC_SCANNED)) return "an accumulator that is not of a row";
  for (l_val v = par + 1; v < e->end[par]; v++) {
    const l_instr *i = emit_at(e, v);
    if (i->code == L_PUSH && i->a == acc && push++) return "several pushes to an accumulator";
    partial |= i->code == L_PARTIAL && i->a == acc;
    finish |= i->code == L_FINISH && i->a == acc;
  }
  if (!push) return "an accumulator without pushes";
  if (partial && finish) return "a partial that is finished";
  /* the VEC stands in the block of the accumulator */
  for (l_val v = acc + 1; v < e->end[par] && depth >= 0 && !vec; v++) {
    const l_instr *i = emit_at(e, v);
    if (i->code == L_ELSE && depth == 0) break;
    if (i->code == L_END) depth--;
    if (i->code == L_VEC && depth == 0)
      for (l_val k = v + 1; k < e->end[v]; k++)
        if (emit_at(e, k)->code == L_PUSH && emit_at(e, k)->a == acc) vec = v;
    if (l_opens(i->code)) depth++;
  }
  return vec ? NULL : "an accumulator that several turns push to";
}

static const char *acc_misfit(const emitter *e, l_val par, l_val acc, phase_needs *n) {
  const l_instr *a = emit_at(e, acc);
  uint8_t uses = e->acc[acc];
  if (acc_arg(a)) return "indices of elements";
  if (uses & (ACC_NESTED | ACC_MERGED | ACC_SCANNED)) return "an accumulator of scans, merges or loops inside a VEC";
  if (acc_many(a)) {
    n->own = true;
    return acc_rows(a)           ? "short rows side by side"
           : (uses & ACC_SINGLE) ? "a push of many results outside a VEC"
                                 : NULL;
  }
  if (!(uses & ACC_VEC) && !acc_lanes(e, acc)) return NULL; /* which every thread has, alike */
  n->rows = true;
  return acc_lanes(e, acc) ? lanes_misfit(e, par, acc) : "a chain over elements";
}

/* Does every thread compute it by itself, whatever the layout? */
static bool is_value(l_code code) {
  return l_rows[code].result == 'I' || code == L_CONST || code == L_SCALAR || code == L_IOTA || code == L_KOP ||
         code == L_MATH;
}

static const char *instr_misfit(const emitter *e, l_val par, l_val v, l_val vec, phase_needs *n) {
  const l_instr *i = emit_at(e, v);
  if (is_value(i->code)) return NULL;
  switch ((l_code)i->code) {
  case L_CHECK:
  case L_IF:
  case L_ELSE:
  case L_END: return NULL;
  case L_FOR: return vec ? "a loop inside a VEC" : NULL;
  case L_POLL: n->polls = true; return NULL;
  case L_VEC: return is_int(e, i->a, 0) ? NULL : "a VEC that does not begin at 0";
  case L_LOAD:
    if (i->imm < 0) return vec && is_own(e, i) ? NULL : "an element of a local that another thread may have";
    return emit_is_stored(e, v, i->imm) ? "a load of what is stored" : NULL;
  case L_STORE:
    if (i->imm < 0) return vec && is_own(e, i) ? NULL : "an element of a local that another thread may have";
    return vec && emit_is_ordered(e, i) ? "stores that may meet" : NULL;
  case L_LOCAL: n->own = true; return i->flags & L_SHARED ? "a shared local" : NULL;
  case L_ACC: return acc_misfit(e, par, v, n);
  case L_PUSH: return vec || !acc_lanes(e, i->a) ? NULL : "a push outside a VEC";
  case L_PARTIAL: return NULL;
  case L_FINISH: return !vec == !acc_many(emit_at(e, i->a)) ? NULL : "a result that is not where it is used";
  default: return "an instruction that 64 threads do together";
  }
}

/* Why a phase can have no layout but the plain one. */
static const char *phase_misfit(const emitter *e, l_val par, phase_needs *n) {
  const char *why = NULL;
  l_val vec = 0, length = 0;
  bool several = false; /* VECs of different lengths */
  *n = (phase_needs){0};
  for (l_val v = par + 1; v < e->end[par] && !why; v++) {
    const l_instr *i = emit_at(e, v);
    if (vec && v == e->end[vec]) vec = 0;
    why = instr_misfit(e, par, v, vec, n);
    if (i->code != L_VEC) continue;
    vec = v;
    several |= length && length != i->b;
    length = i->b;
  }
  for (l_val v = par + 1; v < e->end[par] && !why; v++)
    if (emit_at(e, v)->code == L_ACC && acc_many(emit_at(e, v)) && n->rows && emit_at(e, v)->a != length)
      several = true;
  /* how a row's elements are dealt out depends on its length */
  return why ? why : several && n->rows && n->own ? "rows of several lengths" : NULL;
}

/* Why a phase that merges cannot have more than 64 threads: it is to merge into results of which each thread has one, and compute with these. */
static const char *merges_misfit(const emitter *e, l_val par) {
  l_val vec = 0, loop = 0;
  for (l_val v = par + 1; v < e->end[par]; v++) {
    const l_instr *i = emit_at(e, v);
    if (vec && v == e->end[vec]) vec = 0;
    if (loop && v == e->end[loop]) loop = 0;
    if (is_value(i->code)) continue;
    switch ((l_code)i->code) {
    case L_END: break;
    case L_POLL:
      if (!loop) return "a loop that does more than merge";
      break;
    case L_FOR:
      if (vec || loop) return "loops in loops";
      loop = v;
      break;
    case L_MERGE:
      if (!loop) return "a merge outside loops";
      for (l_val m = 1; m < e->p->n; m++)
        if (m != v && emit_at(e, m)->code == L_MERGE && emit_at(e, m)->a == i->a) return "several merges";
      break;
    case L_ACC:
      if (loop || vec || acc_arg(i) || !acc_tree(i) || !acc_own(e, v) || e->acc[v] & (ACC_VEC | ACC_SINGLE))
        return "results that are no thread's own";
      break;
    case L_VEC:
      if (loop || !is_int(e, i->a, 0) || !emit_is_short(e, v)) return "a VEC of more than 64 elements";
      vec = v;
      break;
    case L_LOAD:
      if (i->imm < 0 || emit_is_stored(e, v, i->imm)) return "a load of what is stored";
      break;
    case L_STORE:
      if (i->imm < 0 || !vec || emit_is_ordered(e, i)) return "a store that is not one of each thread";
      break;
    case L_FINISH:
      if (!vec) return "a result outside VECs";
      break;
    default: return "an instruction that 64 threads do together";
    }
    if (loop && v != loop && i->code != L_MERGE && i->code != L_POLL) return "a loop that does more than merge";
  }
  return NULL;
}

static bool is_power(int n, int least, int most) { return n >= least && n <= most && !(n & (n - 1)); }

static const char *numbers_misfit(l_layout l, const phase_needs *n) {
  if (!is_power(l.threads, 16, LAYOUT_THREADS) || !is_power(l.lanes, 1, LAYOUT_LANES) ||
      !is_power(l.groups, 1, LAYOUT_THREADS))
    return "no power of two in range";
  int block = l.threads * l.groups;
  if (block < 32 || block > LAYOUT_THREADS) return "a block of too few or too many threads";
  if (n->polls && l.groups > 1) return "a loop that is left by all threads of a block";
  if (n->rows && (l.threads * l.lanes < ORDER_LANES || l.threads * l.lanes > ORDER_BLOCK))
    return "a row's lanes do not fit the threads";
  return NULL;
}

const char *layout_misfit(const l_program *p, l_val par, l_layout l) {
  emitter e = {.cuda = true};
  phase_needs n = {0};
  bool ok = emit_facts(&e, p), merges = ok && emit_has_merges(&e, par);
  if (merges) {
    const char *no = merges_misfit(&e, par);
    if (!no && (!is_power(l.threads, 2 * ORDER_LANES, LAYOUT_MERGES) || l.lanes != 1 || l.groups != 1))
      no = "no multiple of 64 threads in range";
    emit_facts_free(&e);
    return no;
  }
  const char *why = ok ? phase_misfit(&e, par, &n) : "memory is short";
  if (!why) why = numbers_misfit(l, &n);
  emit_facts_free(&e);
  return why;
}

/* ---- what is good ------------------------------------------------------------------------------------------------------------ */

typedef struct phase_facts {
  int64_t instances, longest; /* elements of the longest VEC */
  int bytes;                  /* of the largest element that a VEC loads or stores along its axis */
  phase_needs needs;
  bool fixed;   /* all VECs have a length that is known: rows can be in registers (emit_cuda_kept) */
  bool columns; /* accumulators of so few results that threads of the plain layout keep them in registers */
  bool stencil; /* a VEC loads what lies side by side in memory */
} phase_facts;

static int64_t value_of(const int64_t *values, l_val v) { return v ? values[v] : 0; }

/* The values of all indices for the first instance and turn. */
static void find_values(const l_program *p, const int64_t *ints, int64_t *values) {
  for (l_val v = 1; v < p->n; v++) {
    const l_instr *i = &p->code[v];
    values[v] = i->code == L_INT         ? i->imm
                : i->code == L_PARAM     ? ints[i->imm]
                : l_is_index_op(i->code) ? l_index_value((l_code)i->code, values[i->a], values[i->b])
                : i->code == L_IVALUE    ? 1
                                         : 0;
  }
}

/* Has the VEC several loads from one buffer with ranges? Then they lie side by side. */
static bool is_stencil(const emitter *e, l_val vec) {
  for (l_val k = vec + 1; k < e->end[vec]; k++)
    for (l_val m = vec + 1; m < k; m++) {
      const l_instr *a = emit_at(e, k), *b = emit_at(e, m);
      if (a->code == L_LOAD && b->code == L_LOAD && a->imm == b->imm && (a->e || a->f) && (b->e || b->f)) return true;
    }
  return false;
}

static void find_facts(const emitter *e, l_val par, const int64_t *values, phase_facts *f) {
  *f = (phase_facts){.instances = values[emit_at(e, par)->a], .bytes = 1, .needs = f->needs, .fixed = true};
  for (l_val v = par + 1; v < e->end[par]; v++) {
    const l_instr *i = emit_at(e, v);
    f->columns |= i->code == L_ACC && acc_many(i) && values[i->a] <= ORDER_LANES;
    if (i->code != L_VEC) continue;
    int64_t n = value_of(values, i->b);
    f->stencil |= is_stencil(e, v);
    if (n > f->longest) f->longest = n;
    f->fixed &= emit_at(e, i->b)->code == L_INT;
    for (l_val k = v + 1; k < e->end[v]; k++) {
      const l_instr *m = emit_at(e, k);
      if ((m->code != L_LOAD && m->code != L_STORE) || m->imm < 0 || !is_int(e, m->b, 1) || m->c) continue;
      int size = (int)dtype_size((qn_dtype)emit_buffer_type(e, m->imm));
      if (size > f->bytes) f->bytes = size;
    }
  }
}

enum { PROCESSORS = 132, BLOCK = 256 };

/* Are rows of some whole blocks of lanes to lie in registers? */
static bool in_registers(const phase_facts *f) { return f->fixed && f->bytes <= 4 && layout_in_registers(f->longest); }

static l_layout rows_layout(const phase_facts *f) {
  int wide = 16 / f->bytes;
  if (in_registers(f) && f->needs.polls && f->longest <= 4096) /* 16 elements of a row in a thread, besides others */
    return (l_layout){(int)(f->longest / (ORDER_BLOCK / ORDER_LANES)), 1, 1};
  if (f->fixed && f->bytes <= 4 && f->longest > 512 && f->longest <= 8192) { /* 32 */
    int threads = 32;
    while (threads * 32 < f->longest) threads *= 2;
    if (threads * 32 == f->longest) return (l_layout){threads, 2, f->needs.polls || threads >= 128 ? 1 : 128 / threads};
  }
  if (f->needs.polls) { /* rows one after the other */
    int threads = 64, lanes = 1;
    while (threads < BLOCK && threads * ORDER_BLOCK / ORDER_LANES < f->longest) threads *= 2;
    while (lanes < 4 && lanes < wide && (int64_t)threads * lanes * ORDER_BLOCK / ORDER_LANES < f->longest) lanes *= 2;
    return (l_layout){threads, lanes, 1};
  }
  if (f->instances < 2 * PROCESSORS && f->longest > ORDER_BLOCK)
    return (l_layout){256, f->longest > 16384 && wide >= 4 ? 4 : 1, 1};
  if (f->longest <= 256) return (l_layout){16, 4, BLOCK / 16};
  if (f->longest <= 2048) return (l_layout){32, 2, BLOCK / 32};
  if (f->longest <= 8192) return (l_layout){128, 2, 2};
  return (l_layout){256, wide < 4 ? 2 : 4, 1};
}

/* Calls with larger sizes come, so this looks at the elements of an instance, and at how many instances there are only where these are
 * whole rows. */
static l_layout plain_layout(const phase_facts *f) {
  int lanes = f->stencil ? 1 : 16 / f->bytes < 4 ? 16 / f->bytes : 4, threads = 16;
  while (threads < BLOCK && (int64_t)threads * lanes < f->longest) threads *= 2;
  return (l_layout){threads < 32 && f->needs.polls ? 32 : threads, lanes, f->needs.polls ? 1 : BLOCK / threads};
}

/* So many times 64 threads that each reads a subtree of 16 leaves at a time, and all together hardly more than there are. */
static int64_t merges_layout(const emitter *e, l_val par, const int64_t *values) {
  enum { SUBTREE = 16 };
  int64_t leaves = 0;
  int threads = ORDER_LANES;
  for (l_val v = par + 1; v < e->end[par]; v++)
    if (emit_at(e, v)->code == L_FOR && values[emit_at(e, v)->b] > leaves) leaves = values[emit_at(e, v)->b];
  while (threads < LAYOUT_MERGES && (int64_t)threads / ORDER_LANES * 2 * SUBTREE <= leaves) threads *= 2;
  return threads == ORDER_LANES ? 0 : l_layout_word((l_layout){threads, 1, 1});
}

void layout_choose(l_program *p, const int64_t *ints) {
  emitter e = {.cuda = true};
  int64_t *values = calloc(p->n, sizeof *values);
  bool ok = emit_facts(&e, p) && values;
  if (ok) find_values(p, ints, values);
  for (l_val v = 1; v < p->n && ok; v++) {
    phase_facts f;
    if (p->code[v].code == L_PAR && emit_has_merges(&e, v)) {
      if (!merges_misfit(&e, v)) p->code[v].imm2 = merges_layout(&e, v, values);
      continue;
    }
    if (p->code[v].code != L_PAR || phase_misfit(&e, v, &f.needs)) continue;
    find_facts(&e, v, values, &f);
    l_layout l = f.needs.rows ? rows_layout(&f) : plain_layout(&f);
    bool plain = l.threads == ORDER_LANES && l.lanes == 1 && l.groups == 1;
    if (plain && !(f.needs.rows && in_registers(&f))) continue;
    if (!f.columns && !numbers_misfit(l, &f.needs)) p->code[v].imm2 = l_layout_word(l);
  }
  free(values);
  emit_facts_free(&e);
}
