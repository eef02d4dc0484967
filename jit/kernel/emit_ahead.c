/* Facts about VECs for the CUDA printer (emit_text.h): which need no barrier, and which loads can be made ahead.
 *
 * A thread has elements t, t + 64, ... of every VEC. A VEC is private if what it reads was written by the same thread, so that
 * it needs no barrier around it. A load can be made ahead, for several elements at once and before anything is computed from
 * them, if its address and guard come from indices, constants and other such loads through light arithmetic alone.
 */
#include "jit/kernel/emit_text.h"

#include <string.h>

static bool is_int(const emitter *e, l_val v, int64_t value) {
  const l_instr *i = emit_at(e, v);
  return v && i->code == L_INT && i->imm == value;
}

bool emit_is_stored(const emitter *e, l_val v, int64_t b) {
  l_val from = v, to = v;
  while (from > 1 && emit_at(e, from)->code != L_PHASE) from--;
  while (to < e->p->n && emit_at(e, to)->code != L_PHASE) to++;
  for (l_val k = from; k < to; k++) {
    const l_instr *i = emit_at(e, k);
    if ((i->code == L_STORE || i->code == L_RMW || i->code == L_PARTIAL) && i->imm == b) return true;
    if (i->code == L_PARTIAL && acc_arg(emit_at(e, i->a)) && i->imm2 == b) return true;
    if (i->code == L_TILE && l_tile_to(&e->p->tiles[i->imm]) == b) return true;
  }
  return false;
}

/* Does an instruction of the phase besides `v` read or write the buffer of v? */
static bool is_shared(const emitter *e, l_val v) {
  int64_t b = emit_at(e, v)->imm;
  l_val k = v;
  while (k > 1 && emit_at(e, k)->code != L_PHASE) k--;
  for (k++; k < e->p->n && emit_at(e, k)->code != L_PHASE; k++) {
    const l_instr *i = emit_at(e, k);
    bool second = (i->code == L_PARTIAL || i->code == L_MERGE) && acc_arg(emit_at(e, i->a)) && i->imm2 == b;
    if (k != v && ((l_rows[i->code].imm == 'b' && i->imm == b) || second)) return true;
    if (i->code != L_TILE) continue;
    const l_tile *t = &e->p->tiles[i->imm];
    if (t->x == b || t->y == b || l_tile_to(t) == b) return true;
  }
  return false;
}

/* Is it an update of whole rows, the VEC's elements, so that element j is a thread's in every row? */
static bool updates_rows(const emitter *e, l_val vec, l_val u) {
  const l_instr *i = emit_at(e, u), *v = emit_at(e, vec);
  if (i->code != L_RMW || i->imm < 0 || !is_int(e, i->b, 1) || i->c || !is_int(e, v->a, 0)) return false;
  const l_instr *base = emit_at(e, i->a);
  return base->code == L_IMUL && (base->a == v->b || base->b == v->b) && !is_shared(e, u);
}

bool emit_is_private(const emitter *e, l_val vec) {
  if (!is_int(e, emit_at(e, vec)->a, 0)) return false;
  for (l_val k = vec + 1; k < e->end[vec]; k++) {
    const l_instr *i = emit_at(e, k);
    if (updates_rows(e, vec, k)) continue;
    if (emit_is_ordered(e, i) || emit_is_strip_scan(e, i) || emit_is_nested_push(e, i)) return false;
    if (i->code == L_RMW || i->code == L_SCAN || (i->code == L_FINISH && emit_is_inner_finish(e, vec, i))) return false;
    if (i->code == L_LOAD && i->imm >= 0 && emit_is_stored(e, vec, i->imm)) return false;
    /* An element of a local belongs to the thread with its number. */
    if ((i->code == L_LOAD || i->code == L_STORE) && i->imm < 0 &&
        (i->c || !is_int(e, i->a, 0) || !is_int(e, i->b, 1) || emit_at(e, (l_val)-i->imm)->flags & L_SHARED))
      return false;
    if (i->code == L_LOAD && i->imm < 0)
      for (l_val v = 1; v < e->p->n; v++)
        if (emit_at(e, v)->code == L_TILE && l_tile_to(&e->p->tiles[emit_at(e, v)->imm]) == i->imm) return false;
  }
  return true;
}

/* Is an index value at most 64, the number of threads, in every call? */
static bool at_most_lanes(const emitter *e, l_val v) {
  const l_instr *i = emit_at(e, v);
  if (i->code == L_IMIN) return at_most_lanes(e, i->a) || at_most_lanes(e, i->b);
  return i->code == L_INT && i->imm <= ORDER_LANES;
}

bool emit_is_parted(const emitter *e, l_val vec) {
  for (l_val k = vec + 1; k < e->end[vec]; k++) {
    const l_instr *i = emit_at(e, k);
    if (emit_is_ordered(e, i) || emit_is_strip_scan(e, i) || emit_is_nested_push(e, i)) return false;
    if (i->code == L_RMW || i->code == L_SCAN || (i->code == L_FINISH && emit_is_inner_finish(e, vec, i))) return false;
    if (i->code == L_PUSH && !acc_own(e, i->a)) return false;
    if (i->code == L_LOAD && i->imm >= 0 && emit_is_stored(e, vec, i->imm)) return false;
    if (i->code != L_LOAD || i->imm >= 0) continue;
    for (l_val s = vec + 1; s < e->end[vec]; s++)
      if (emit_at(e, s)->code == L_STORE && emit_at(e, s)->imm == i->imm) return false;
  }
  return is_int(e, emit_at(e, vec)->a, 0);
}

bool emit_is_short(const emitter *e, l_val vec) {
  if (is_int(e, emit_at(e, vec)->a, 0) && at_most_lanes(e, emit_at(e, vec)->b)) return true;
  for (l_val k = vec + 1; k < e->end[vec]; k++) {
    const l_instr *i = emit_at(e, k);
    if ((i->code == L_PUSH || i->code == L_FINISH) && acc_own(e, i->a)) return true;
  }
  return false;
}

/* ---- loads made ahead --------------------------------------------------------------------------------------------------------- */

/* Are all operands of instruction v, which are defined after `from`, marked in `early` as values that can be computed ahead? */
static bool operands_hold(const emitter *e, l_val v, l_val from, const uint8_t *early) {
  const l_instr *i = emit_at(e, v);
  for (const l_operand *o = l_rows[i->code].operands; o->role; o++) {
    l_val x;
    memcpy(&x, (const char *)i + o->at, sizeof x);
    if (x > from && !early[x]) return false;
  }
  return true;
}

static void want_operands(const emitter *e, l_val v, l_val from, uint8_t *ahead) {
  const l_instr *i = emit_at(e, v);
  for (const l_operand *o = l_rows[i->code].operands; o->role; o++) {
    l_val x;
    memcpy(&x, (const char *)i + o->at, sizeof x);
    if (x > from) ahead[x] |= AHEAD_WANTED;
  }
}

static int weight_of(const l_instr *i) {
  switch ((l_code)i->code) {
  case L_MATH: return 12;
  case L_KOP: return i->sub == KOP_div || i->sub == KOP_sqrt ? 6 : 1;
  default: return 1;
  }
}

/* May this instruction be computed ahead, if its operands are? Loads that nothing in the phase stores to, and light arithmetic. */
static bool may_lead(const emitter *e, const l_instr *i, l_val vec) {
  if (l_rows[i->code].result == 'I') return true;
  switch ((l_code)i->code) {
  case L_CONST:
  case L_SCALAR:
  case L_IOTA: return true;
  case L_KOP:
    return i->sub != KOP_div && i->sub != KOP_sqrt && i->sub != KOP_idiv && i->sub != KOP_imod && i->sub != KOP_ipow;
  case L_LOAD:
    if (i->imm >= 0) return !emit_is_stored(e, vec, i->imm);
    for (l_val k = vec + 1; k < e->end[vec]; k++)
      if (emit_at(e, k)->code == L_STORE && emit_at(e, k)->imm == i->imm) return false;
    return true;
  default: return false;
  }
}

static int find_ahead(const emitter *e, l_val from, l_val vec, uint8_t *ahead, int *weighs) {
  int loads = 0, weight = 0;
  l_val to = e->end[from];
  memset(ahead, 0, e->p->n);
  for (l_val k = from + 1; k < to; k++) {
    const l_instr *i = emit_at(e, k);
    if (l_opens(i->code) && k != vec) return 0;
    weight += weight_of(i);
    if (!may_lead(e, i, vec) || !operands_hold(e, k, from, ahead)) continue;
    ahead[k] = AHEAD_MAY;
    if (i->code == L_LOAD) {
      ahead[k] |= AHEAD_LOAD | AHEAD_WANTED;
      loads++;
    }
  }
  for (l_val k = to; k-- > from + 1;)
    if (ahead[k] & AHEAD_WANTED) want_operands(e, k, from, ahead);
  *weighs = weight;
  if (!loads || weight > 160) return 0;
  if (weight <= 12 && loads == 1) return 16;
  return weight <= 32 && loads <= 4 ? 8 : weight <= 80 && loads <= 8 ? 4 : 2;
}

int emit_ahead(const emitter *e, l_val from, l_val vec, uint8_t *ahead) {
  int weight, many = find_ahead(e, from, vec, ahead, &weight);
  if (!many) memset(ahead, 0, e->p->n); /* nothing is made ahead, so every load is printed in its place */
  return many;
}

int emit_ahead_marks(const emitter *e, l_val vec, uint8_t *ahead, int *weight) {
  return find_ahead(e, vec, vec, ahead, weight);
}
