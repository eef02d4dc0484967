/* Random numbers in recorded calls.
 *
 * A number that is drawn is a function of a key, which is the VM's seed, of the number of the draw, which counts up, and of its place in what is
 * drawn. So a draw is a node like others, with the key and its number as operands, and the state of the random numbers is three host numbers.
 * These are inputs of the graph where it reads them. In the recording around all arms the number of a draw is the first one plus a constant; then
 * all calls draw alike, and a call ends with adding to the VM's counter (specialization.ndraws).
 *
 * How many numbers an arm or a loop draws may depend on data. So in regions the state is a variable like those of the program, only that
 * it has no name: it is among the variables that a branch or loop may rebind, is carried from turn to turn, joined where arms meet, and where the
 * call ends it is an output, with which the VM goes on (specialization.drawn). Most calls draw nothing in regions, and for them this would only
 * be work; so it is begun when an arm first wants to draw: that arm is given up, with all around it, and the outermost region is captured
 * once more, with the counter among its variables, or, if an arm has called `seed`, with the whole state.
 *
 * Variables of this kind are also the items that a turn adds to lists (rec_turn): a region in it has those of the lists that it may add to.
 */
#include "jit/trace/draws.h"

#include <string.h>

#include "jit/trace/breaks.h"
#include "jit/trace/rec.h"

static uint32_t weak_int_input(struct recording *r, int64_t concrete) {
  graph_type t = {.dtype = WEAK_INT, .weak = true};
  uint32_t node = graph_input(r->g, t, rec_site(r));
  r->pattern.ninputs = r->g->ninputs;
  return rec_keep(r, node, value_int(concrete));
}

static int64_t state_of(const qn_vm *vm, int i) {
  uint64_t v = i == RANDOM_DRAW ? vm->draw : i == RANDOM_KEY ? vm->seed & 0xffffffffu : vm->seed >> 32;
  return (int64_t)v;
}

/* Part i of the state as `base`, the recording around all arms, has it when nothing in it has changed it: an input. False if memory is short, which
 * the next op reports. */
static bool has_state(struct recording *base, int i) {
  if (!value_is(base->drawn[i], TAG_UNSET)) return true;
  int64_t now = state_of(base->vm, i);
  if (!(base->random[i] = weak_int_input(base, now))) return false;
  base->drawn[i] = value_traced(value_int(now), base->base + base->random[i]);
  return true;
}

/* A draw number that is n draws further on: no call comes so far that it overflows. */
static qn_value further(qn_vm *vm, qn_value number, uint64_t n) {
  const qn_value in[2] = {number, value_int((int64_t)n)};
  return op_apply(vm, OP_add, in, 2, &(op_attr){.flags = ATTR_PROVEN});
}

/* The number of the next draw, where so many have been drawn since the state was set. */
static qn_value counter(struct recording *base) {
  qn_value now = base->drawn[RANDOM_DRAW];
  return base->ahead ? further(base->vm, now, base->ahead) : now;
}

/* Is r recorded for the lanes of a vmap? There the state is no variable: an arm that draws is given up. */
static bool for_lanes(const struct recording *r) {
  bool lanes = vmap_aside(r);
  for (const struct recording *x = r; x; x = x->arm ? x->outer : NULL) lanes |= x->lanes != NULL;
  return lanes;
}

/* May arm r read and change so many parts of the state? Else it is given up. */
static bool arm_may(struct recording *r, struct recording *base, int parts) {
  const bool lanes = for_lanes(r);
  if (!lanes && base->capturing && !base->ahead && base->drawn_slots >= parts) return true;
  if (!lanes && base->capturing && base->drawn_wanted < parts) base->drawn_wanted = (uint8_t)parts;
  return rec_give_up(r, BREAK_effect);
}

/* What is pending and can fail does so before the state changes, which the program sees behind the error; in a capture the call is made again then.
 * False with an error raised. */
static bool failures_first(struct recording *r) {
  if (!r || r->arm || r->capturing || r->lanes || r->hollow) return true;
  for (uint32_t i = r->done; i < r->g->n; i++)
    if (i && graph_fallible(r->g, i)) return rec_run_pending(r);
  return true;
}

qn_value rec_draws(qn_vm *vm, uint64_t n) {
  struct recording *r = vm->rec, *base = r ? rec_base(r) : NULL;
  if (!r || (!base->capturing && (!r->arm || r->lenient))) {
    if (!failures_first(r)) return value_error();
    uint64_t draw = vm->draw;
    vm->draw += n;
    return value_int((int64_t)draw);
  }
  if (r->arm && !arm_may(r, base, RANDOM_DRAW + 1)) return value_error();
  if (!has_state(base, RANDOM_DRAW)) return value_int((int64_t)vm->draw);
  if (r->arm) {
    qn_value now = base->drawn[RANDOM_DRAW], next = further(vm, now, n);
    if (value_is_error(next)) return next;
    base->drawn[RANDOM_DRAW] = next;
    return now;
  }
  draws_settle(r);
  qn_value now = counter(r);
  r->ahead += n;
  vm->draw += n;
  return now;
}

void rec_key(qn_vm *vm, qn_value *k0, qn_value *k1) {
  struct recording *base = vm->rec ? rec_base(vm->rec) : NULL;
  qn_value *words[2] = {k0, k1};
  for (int i = 0; i < 2; i++) {
    int part = RANDOM_KEY + i;
    bool recorded = base && base->capturing && (!vm->rec->arm || base->drawn_slots), /* else no number is drawn */
        has = recorded && has_state(base, part);
    *words[i] = has ? base->drawn[part] : value_int(state_of(vm, part));
  }
}

bool rec_seed(qn_vm *vm, qn_value n) {
  struct recording *r = vm->rec, *base = r ? rec_base(r) : NULL;
  bool recorded = r && base->capturing;
  if (r && r->arm && !(recorded && arm_may(r, base, RANDOM_INPUTS))) return rec_give_up(r, BREAK_effect);
  if (!failures_first(r)) return false;
  if (recorded) {
    qn_value mask = value_int(0xffffffff), low = op_binary(vm, OP_bitand, n, mask),
             high = value_is_error(low) ? low : op_binary(vm, OP_shr, n, value_int(32));
    if (!value_is_error(high)) high = op_binary(vm, OP_bitand, high, mask);
    if (value_is_error(high)) return false;
    base->drawn[RANDOM_KEY] = low;
    base->drawn[RANDOM_KEY + 1] = high;
    base->drawn[RANDOM_DRAW] = value_int(0);
    base->ahead = 0;
  }
  if (!r || !r->arm) {
    vm->seed = (uint64_t)n.u.i;
    vm->draw = 0;
  }
  return true;
}

bool draws_set(qn_vm *vm, int i, qn_value v) {
  struct recording *r = vm->rec, *base = r ? rec_base(r) : NULL;
  bool recorded = r && base->capturing;
  if (r && r->arm && !(recorded && arm_may(r, base, i == RANDOM_DRAW ? RANDOM_DRAW + 1 : RANDOM_INPUTS)))
    return rec_give_up(r, BREAK_effect);
  if (recorded) base->drawn[i] = v;
  if (recorded && i == RANDOM_DRAW) base->ahead = 0;
  if (r && r->arm) return true;
  uint64_t now = (uint64_t)v.u.i;
  if (i == RANDOM_DRAW) vm->draw = now;
  if (i == RANDOM_KEY) vm->seed = (vm->seed & ~UINT64_C(0xffffffff)) | now;
  if (i == RANDOM_KEY + 1) vm->seed = (vm->seed & 0xffffffffu) | now << 32;
  return true;
}

/* ---- regions ---------------------------------------------------------------------------------------------------------------------- */

bool draws_is_slot(const struct recording *r, const qn_value *slot) {
  const struct recording *base = rec_base((struct recording *)(uintptr_t)r);
  const uintptr_t at = (uintptr_t)slot, added = (uintptr_t)base->added;
  return (slot >= base->drawn && slot < base->drawn + RANDOM_INPUTS) ||
         (at >= added && at < added + base->nadded * sizeof *base->added);
}

drawn_kept draws_keep(struct recording *r) {
  const struct recording *base = rec_base(r);
  drawn_kept k = {.ahead = base->ahead};
  memcpy(k.drawn, base->drawn, sizeof k.drawn);
  return k;
}

bool draws_put_back(struct recording *r, const drawn_kept *k) {
  struct recording *base = rec_base(r);
  bool changed = base->ahead != k->ahead;
  for (int i = 0; i < RANDOM_INPUTS; i++) {
    if (value_is(k->drawn[i], TAG_UNSET)) continue; /* if it is an input now, that stays */
    changed |= base->drawn[i].head != k->drawn[i].head || base->drawn[i].u.i != k->drawn[i].u.i;
    base->drawn[i] = k->drawn[i];
  }
  base->ahead = k->ahead;
  return changed;
}

static bool holds(rec_slots s, const qn_value *slot) {
  for (int i = s.n; i-- > 0;)
    if (s.slots[i] == slot) return true;
  return false;
}

bool draws_gather(struct recording *r) {
  qn_vm *vm = r->vm;
  for (int i = 0; i < RANDOM_INPUTS && r->drawn_slots; i++) /* (arms read all of it) */
    if (!has_state(r, i)) return error_pending(vm) ? false : (raise_memory(vm), false);
  if (!r->drawn_slots || !r->ahead) return true;
  qn_value now = counter(r);
  if (value_is_error(now)) return false;
  r->drawn[RANDOM_DRAW] = now;
  r->ahead = 0;
  return true;
}

/* How many variables more a region has that may rebind these, for the items that are added to lists. */
static int count_added(const struct recording *base, rec_slots assigned) {
  int n = 0;
  for (uint32_t i = 0; i < base->nadded; i++) n += holds(assigned, base->added[i].list) ? 2 * ADDED_MOST : 0;
  return n;
}

static void hold_added(struct recording *base, rec_slots assigned, drawn_slots *s) {
  for (uint32_t i = 0; i < base->nadded; i++) {
    rec_added *a = &base->added[i];
    bool grows = holds(assigned, a->list);
    for (int k = 0; k < ADDED_MOST && grows; k++) {
      if (holds(assigned, &a->flags[k])) break;
      s->room[s->all.n++] = &a->flags[k];
      s->room[s->all.n++] = &a->items[k];
    }
  }
}

bool draws_begin(struct recording *r, rec_slots assigned, drawn_slots *s) {
  struct recording *base = rec_base(r);
  const int added = count_added(base, assigned), more = assigned.n + added + RANDOM_INPUTS;
  s->all = assigned;
  s->own = (rec_slots){NULL, 0};
  if (r == base && !r->drawn_open++) r->refused.number = 0;
  if (r == base && base->drawn_wanted > base->drawn_slots && more <= DRAWN_ROOM) base->drawn_slots = base->drawn_wanted;
  if (!base->capturing || (!base->drawn_slots && !added) || for_lanes(r)) return true;
  if (r == base && !draws_gather(r)) return false;
  if (more > DRAWN_ROOM) return r == base || rec_give_up(r, BREAK_branch);
  if (assigned.n) memcpy(s->room, assigned.slots, (size_t)assigned.n * sizeof *s->room);
  s->all.slots = s->room;
  for (int i = 0; i < base->drawn_slots; i++)
    if (!holds(assigned, &base->drawn[i])) s->room[s->all.n++] = &base->drawn[i];
  hold_added(base, assigned, s);
  s->own = (rec_slots){s->room + assigned.n, s->all.n - assigned.n};
  return true;
}

bool draws_again(struct recording *r, rec_answer answer) {
  if (r->arm) return false;
  r->drawn_open--;
  bool missed = r->capturing && !r->ended && r->drawn_wanted > r->drawn_slots;
  if (answer == REC_NOT_YET && missed && r->vm->rec == r) return true;
  draws_settle(r);
  return false;
}
