/* Loops whose turns change what variables are behind conditions on data: an int until some item passes a bound, an f32 from then on.
 *
 * The types of all that is carried from turn to turn are a state of the loop. A turn that begins in a state has several ways, since some of its
 * branches do not agree: each way takes one of their arms, and leads to one state, perhaps the same. The program takes another way: then the turn
 * is missed (ways.h). So the loop is captured in pieces, each of which has fixed types:
 *
 *   - of each state a loop of its own, with the ways that stay in it. It ends with the turn that is missed, and with the values before that turn;
 *   - the missed turn, once for each of the other ways, behind a branch on whether the one before is missed;
 *   - the loops of the states that these lead to; and so on, up to one state, the goal, which no turn leaves. Its loop is a plain one, from a turn on
 *     whose number is data.
 *
 * So it is with a loop whose turns agree, but change what variables are, if data decides whether it has one: then none stays in the first state.
 *
 * What follows the loop needs the types of one state. So the call is captured as one that comes to the goal; where it does not, the interpreter makes
 * it again (way_expect). Once a call has been seen that does not (anchor_specializations.ends_apart), a part of the program around the loop is
 * captured in several ways instead (forks.c). In these, and inside the turn of another loop of this kind, every state may be the last one: which
 * it is, is a choice like those between arms, and a way that ends in another one is missed.
 *
 * Lists that grow would have a type for each length. So where there are too many states it is tried with counted lists (grown.h) in their place: the ways of the
 * turn are recorded once more to find out what is added, and then with buffers.
 *
 * First the states are found: the turn is recorded in each way from each of them, in arms that are dropped. Loops with more than jit.states of them
 * are not captured.
 *
 * Where a way leads back to a state that was left, there is one loop of all states. It carries the number of the state that a turn begins in, and for
 * each variable a slot for each type that it has in any of them; a turn is that of one state, a branch on the number, by one of its ways. Behind the
 * loop the number tells in which state it has ended, which again is a choice; the loop itself is made once, by the first way. Where there can be none, such ways are left out: where
 * the program takes one, the interpreter makes the call again.
 *
 * Turns that are captured by themselves (rec_turns.ends) begin in one state, and most of them end in it: they are captured as the turns that stay
 * in it.
 *
 * A recorded call that does not come to the goal fails, and is recorded anew (calls.c). If that fails in spite of the ways, the next one captures no
 * loop in this manner (it is cut).
 */
#include "jit/trace/states.h"

#include <string.h>

#include "jit/trace/breaks.h"
#include "jit/trace/forks.h"
#include "jit/trace/grown.h"
#include "jit/trace/rec.h"
#include "jit/trace/sizes.h"
#include "jit/trace/vmap.h"
#include "jit/trace/ways.h"

enum {
  WAYS_MAX = 8,   /* ways of a turn in one state */
  TRIED_MAX = 64, /* how often it is recorded to find them */
  OWN = 3,        /* variables of the captured loop itself */
  LISTS_MAX = 8,  /* lists that become counted ones, */
  LISTS_FEW = 16  /* and the items that they have before the loop */
};

/* A list that becomes a counted one: what a variable holds, or a part of it. */
typedef struct state_list {
  int variable;
  uint32_t number, adds; /* its grown_items; how many items a turn adds at most */
  bool within, plain;    /* a loop in it adds some; it stays as it is, */
  bool unlike;           /* since its items are unlike: lists in it were looked at instead */
  int64_t each; /* how many each turn adds; MORE_MISSED: no turn has been seen; MORE_DIFFERS: or the loop may be left */
  uint32_t count; /* in the arm: the node of how many there are when the turn begins */
  qn_dim all;     /* how many it has behind the loop; 0: that is data */
} state_list;

typedef struct state_lists {
  state_list of[LISTS_MAX];
  uint32_t n;
  rec_slots slots;
  qn_value *plain; /* owned: what the variables hold before the loop */
  qn_dim made;     /* as turns_made has it */
} state_lists;

typedef struct state_way {
  way_choices choices;
  int to;
  bool back; /* it leads back to a state that was left */
} state_way;

typedef struct loop_state {
  qn_value *values; /* owned: values of the recording around the loop, of the types that the variables have */
  state_way ways[WAYS_MAX];
  int nways, stays;  /* the first way that stays in it; -1: none */
  bool open;         /* there may be a turn in it */
  bool known;        /* its ways are known */
  bool seen, within; /* while its ways are followed: it has been come to; it is being left */
  /* Owned: for each variable the first state in which it is of this type. One loop of all states has a slot for a variable in each such state. */
  uint32_t *of;
} loop_state;

/* What the variables held somewhere. */
typedef struct snapshot {
  struct snapshot *outer;
  rec_slots slots;
  qn_value *values; /* owned */
} snapshot;

typedef struct states {
  qn_vm *vm;
  struct recording *r;
  span at;
  const rec_turns *turns;
  rec_tries *tries;
  rec_slots assigned;
  rec_slots all;                 /* owned: these, then the loop's own: */
  qn_value left, missed, number; /* is the loop left; is the last turn missed; the next one's number, if it counts */
  qn_value end;                  /* where the number ends */
  bool cyclic;                   /* some way leads back: all states are in one loop, which has */
  qn_value *slots, tag; /* owned: what the variables hold in the states, and the number of the state that they are in */
  rec_slots every;      /* owned: the variables, which hold nil between turns; these slots, `tag` and `left` */
  rec_slots joined;     /* `all` or `every`: what branches between turns may set */
  bool guarded;         /* the test of a loop that does not count asks `left` first */
  bool rebinds;         /* it rebinds variables, as the first one has done when the loop begins */
  loop_state *list;     /* owned */
  uint32_t n, cap;
  bool many; /* more than jit.states are needed */
  int goal;
  uint32_t choice;       /* how many choices have been made when it was chosen */
  int state;             /* whose turns are made in the loop that is being recorded */
  struct recording *arm; /* owned: in which ways are looked for; or NULL */
  snapshot *kept;
  bool counted;       /* in recording.ways_in */
  state_lists *lists; /* while it is found out what is added to them; else NULL */
} states;

/* ---- variables ------------------------------------------------------------------------------------------------------------------ */

static void values_free(states *s, qn_value *values) {
  for (int i = 0; i < s->all.n && values; i++) value_release(s->vm, values[i]);
  if (values) mem_free(s->vm, values, ((size_t)s->all.n + 1) * sizeof *values);
}

/* What `joined` holds, to be dropped in reverse order. NULL with an error raised. */
static const qn_value *keep(states *s) {
  snapshot *x = mem_zalloc(s->vm, sizeof *x);
  if (!x) return NULL;
  if (!(x->values = slots_keep(s->vm, s->joined))) {
    mem_free(s->vm, x, sizeof *x);
    return NULL;
  }
  x->slots = s->joined;
  x->outer = s->kept;
  s->kept = x;
  return x->values;
}

static void drop_kept(states *s) {
  snapshot *x = s->kept;
  s->kept = x->outer;
  slots_free(s->vm, x->slots, x->values);
  mem_free(s->vm, x, sizeof *x);
}

static void set(qn_value *to, qn_value v) { *to = v; } /* (of numbers, which nobody owns) */

static size_t nslots(const states *s) { return (size_t)s->n * (size_t)s->assigned.n; }

static void every_free(states *s) {
  for (size_t i = 0; i < nslots(s) && s->slots; i++) value_release(s->vm, s->slots[i]);
  if (s->slots) mem_free(s->vm, s->slots, (nslots(s) + 1) * sizeof *s->slots);
  if (s->every.slots)
    mem_free(s->vm, s->every.slots, (nslots(s) + (size_t)s->assigned.n + OWN) * sizeof *s->every.slots);
  s->slots = NULL;
  s->every = (rec_slots){NULL, 0};
}

static void states_free(states *s) {
  while (s->kept) drop_kept(s);
  if (s->arm) rec_free(s->arm);
  if (s->counted) ways_end(s->r);
  every_free(s);
  for (uint32_t k = 0; k < s->n; k++) {
    values_free(s, s->list[k].values);
    if (s->list[k].of) mem_free(s->vm, s->list[k].of, ((size_t)s->assigned.n + 1) * sizeof *s->list[k].of);
  }
  mem_free(s->vm, s->list, s->cap * sizeof *s->list);
  if (s->all.slots) mem_free(s->vm, s->all.slots, ((size_t)s->assigned.n + OWN) * sizeof *s->all.slots);
}

/* For vm_own. */
static void states_drop(qn_vm *vm, void *what) {
  (void)vm;
  states_free(what);
}

/* ---- states --------------------------------------------------------------------------------------------------------------------- */

/* For tree_rebuild: in place of a leaf of the arm, zeros of the recording around it. */
static qn_value zeros_leaf(void *ctx, qn_value v) {
  states *s = ctx;
  uint32_t node = value_is_operand(v) ? rec_node(s->arm, v) : 0;
  if (!node) return value_is_operand(v) || rec_text_of(s->arm, v) ? value_error() : value_retain(v);
  graph_type t = s->arm->g->nodes[node].type;
  uint32_t zeros =
      sizes_type_outside(s->arm, &t) && sizes_can_be(s->r, &t) ? graph_full(s->r->g, &t, 0, rec_site(s->r)) : 0;
  return zeros ? rec_value_of(s->r, zeros) : value_error();
}

/* Adds a state: what the variables hold, with each leaf as `leaf` (NULL: as it is) gives it. Its number; -1: it cannot be one, or an error is
 * raised. */
static int add_state(states *s, qn_value (*leaf)(void *ctx, qn_value v)) {
  qn_vm *vm = s->vm;
  if (s->n >= (uint32_t)vm->tune[TUNE_jit_states]) {
    s->many = true;
    return -1;
  }
  if (!mem_grow(vm, (void **)&s->list, &s->cap, s->n + (size_t)1, sizeof *s->list)) return -1;
  qn_value *values = mem_zalloc(vm, ((size_t)s->all.n + 1) * sizeof *values);
  if (!values) return -1;
  s->list[s->n] = (loop_state){.values = values, .stays = -1};
  s->n++;
  for (int i = 0; i < s->all.n; i++) values[i] = value_nil();
  for (int i = 0; i < s->assigned.n; i++) {
    qn_value v = *s->assigned.slots[i];
    v = leaf ? tree_rebuild(vm, v, leaf, s) : value_retain(v);
    if (value_is_error(v)) return -1;
    values[i] = v;
  }
  uint32_t k = s->n - 1, *of = s->list[k].of = mem_zalloc(vm, ((size_t)s->assigned.n + 1) * sizeof *of);
  for (int i = 0; i < s->assigned.n && of; i++)
    while (of[i] < k && !way_alike(s->r, s->list[of[i]].values[i], s->arm, *s->assigned.slots[i])) of[i]++;
  return of && !error_pending(vm) ? (int)k : -1;
}

/* The state that the variables are in, in the arm. -1: it cannot be one, or an error is raised. */
static int find_state(states *s) {
  for (uint32_t k = 0; k < s->n; k++) {
    bool same = true;
    for (int i = 0; i < s->assigned.n && same; i++)
      same = way_alike(s->r, s->list[k].values[i], s->arm, *s->assigned.slots[i]);
    if (same) return (int)k;
    if (error_pending(s->vm)) return -1;
  }
  return add_state(s, zeros_leaf);
}

/* Makes a turn in the recording in progress, in one way; `around`: the way that the loop stands in. parts: those of its end, owned. False: it cannot be captured, or an error is raised. */
static bool run_turn(states *s, way_choices *c, const rec_way *around, qn_value number, qn_value *parts) {
  qn_vm *vm = s->vm;
  struct recording *r = vm->rec;
  rec_way turn;
  rec_exit how = REC_ERROR;
  c->r = r;
  c->from = r->g->n;
  c->at = 0;
  way_begin(&turn, WAY_TURN, r, around, s->assigned);
  turn.choices = c;
  turn.throws = NULL; /* with the end of a turn no number of an error is handed on: it leaves the graph */
  turn.may_return |= s->turns->ends != NULL;
  qn_value v = s->turns->body(s->turns->ctx, number, &how);
  bool ok = way_close(vm, &turn, how, v, parts);
  ways_worked(r, r->g->n);
  if (ok && vm->rec == r && !ways_enough(r)) return true;
  end_parts_free(vm, parts);
  return false;
}

/* For tree_rebuild: in place of a leaf, an input of the arm. */
static qn_value input_leaf(void *ctx, qn_value v) {
  states *s = ctx;
  if (!value_is_operand(v)) return value_retain(v);
  uint32_t node = rec_node(s->r, v), input = 0;
  if (node && !sizes_late(s->r, node)) input = arm_operand(s->arm, node);
  return input ? rec_value_of(s->arm, input) : value_error();
}

/* The counted list with this number in a value, borrowed; unset: there is none. */
static qn_value counted_in(qn_value v, uint32_t number) {
  if (!value_is(v, TAG_LIST) && !value_is(v, TAG_RECORD)) return value_unset();
  if (value_is_stacked(v)) return value_is_counted(v) && counted_number(v) == number ? v : value_unset();
  uint32_t n;
  const qn_value *parts = value_parts(v.u.p, &n);
  for (uint32_t i = 0; i < n; i++) {
    qn_value found = counted_in(parts[i], number);
    if (!value_is(found, TAG_UNSET)) return found;
  }
  return value_unset();
}

/* A turn is recorded to find out what it adds to lists. */
static void look_begins(states *s) {
  for (uint32_t i = 0; s->lists && i < s->lists->n; i++) {
    state_list *x = &s->lists->of[i];
    grown_items *g = grown_of(s->r, x->number);
    const qn_value v = counted_in(*s->assigned.slots[x->variable], x->number);
    g->adds = 0;
    g->turns = rec_base(s->r)->turns;
    x->count = !value_is(v, TAG_UNSET) ? rec_node(s->arm, rec_stacked_length(s->vm, v)) : 0;
  }
}

/* A graph, and the branch in `outer` that it is an arm of, or NULL. */
typedef struct arm_in {
  const struct arm_in *outer;
  const graph *g;
  const graph_node *branch;
} arm_in;

enum { MORE_DIFFERS = -2, MORE_MISSED = -1 };

/* How many more node is than node `from` of the outermost graph, if that is always the same but where `missed`, a node or 0, is true. */
static int64_t always_more(const arm_in *in, uint32_t node, uint32_t missed, uint32_t from, int depth) {
  int64_t all = 0;
  qn_value v;
  while (in->outer || node != from) {
    const graph_node *n = &in->g->nodes[node];
    if (n->kind == NODE_INPUT && in->outer) {
      node = in->branch->in[1 + n->payload.input];
      in = in->outer;
      missed = 0;
    } else if (n->kind == NODE_OP && n->op == OP_add && graph_const_value(in->g, n->in[1], &v) && v.u.i >= 0) {
      all += v.u.i;
      node = n->in[0];
    } else if (n->kind == NODE_PROJ && in->g->nodes[n->in[0]].kind == NODE_IF && depth < WAYS_MAX) {
      const graph_node *branch = &in->g->nodes[n->in[0]], *gone = &in->g->nodes[missed];
      const bool same = missed && gone->kind == NODE_PROJ && gone->in[0] == n->in[0];
      int64_t more = MORE_MISSED;
      for (int k = 0; k < 2; k++) {
        const arm_in arm = {in, branch->payload.regions[k], branch};
        const uint32_t m = same ? arm.g->outputs[gone->payload.index] : 0;
        if (m && graph_const_value(arm.g, m, &v) && is_bool(v, true)) continue;
        const int64_t here = always_more(&arm, arm.g->outputs[n->payload.index], m, from, depth + 1);
        if (here != MORE_MISSED && more != MORE_MISSED && here != more) return MORE_DIFFERS;
        if (here != MORE_MISSED) more = here;
      }
      return more < 0 ? more : all + more;
    } else {
      return MORE_DIFFERS;
    }
  }
  return all;
}

/* It has been, to its end (parts), or not (NULL). */
static void look_ended(states *s, const qn_value *parts) {
  for (uint32_t i = 0; s->lists && i < s->lists->n; i++) {
    state_list *x = &s->lists->of[i];
    const grown_items *g = grown_of(s->r, x->number);
    if (g->adds > x->adds) x->adds = g->adds;
    x->within |= g->within;
    if (!parts || is_bool(parts[END_MISSED], true)) continue;
    const qn_value v = counted_in(*s->assigned.slots[x->variable], x->number);
    const bool stays = is_bool(parts[END_LEAVES], false) && is_bool(parts[END_RETURNS], false);
    const uint32_t node =
        stays && x->count && !value_is(v, TAG_UNSET) ? rec_node(s->arm, rec_stacked_length(s->vm, v)) : 0;
    const uint32_t missed = value_node(parts[END_MISSED]) ? rec_node(s->arm, parts[END_MISSED]) : 0;
    const arm_in all = {.g = s->arm->g};
    const int64_t more = node ? always_more(&all, node, missed, x->count, 0) : MORE_DIFFERS;
    if (more != MORE_MISSED) x->each = x->each == MORE_MISSED || x->each == more ? more : MORE_DIFFERS;
  }
}

/* Looks where a turn leads from state k in one way, and adds the way. False: it cannot be captured, or an error is raised. */
static bool look(states *s, int k, way_choices *c) {
  qn_vm *vm = s->vm;
  qn_value parts[END_PARTS], number = s->number, *mark = vm->sp;
  const rec_way *around = way_of(s->r);
  if (!(s->arm = rec_arm_begin(s->r, NULL))) return false;
  bool ok = true;
  for (int i = 0; i < s->assigned.n && ok; i++) {
    qn_value v = tree_rebuild(vm, s->list[k].values[i], input_leaf, s);
    if (!(ok = !value_is_error(v))) break;
    value_release(vm, *s->assigned.slots[i]);
    *s->assigned.slots[i] = v;
  }
  if (ok && s->turns->counts) {
    ok = sizes_of_turns(s->arm, s->r, s->arm->g->ninputs, s->turns->first, s->turns->end);
    number = ok ? input_leaf(s, s->number) : value_error();
    ok = !value_is_error(number);
  }
  s->arm->carries = s->arm->g->ninputs;
  look_begins(s);
  ok = ok && run_turn(s, c, around, number, parts);
  look_ended(s, ok && !c->again ? parts : NULL);
  if (ok) {
    bool gone = is_bool(parts[END_MISSED], true) || c->again, left = is_bool(parts[END_LEAVES], true);
    int to = gone ? 0 : find_state(s);
    ok = to >= 0 && !s->arm->g->failed && !s->arm->regions.n && s->list[k].nways < WAYS_MAX - 1;
    loop_state *x = &s->list[k];
    if (ok && !gone) {
      if (to == k && x->stays < 0) x->stays = x->nways;
      x->ways[x->nways++] = (state_way){.choices = *c, .to = to};
      x->ways[x->nways - 1].choices.n = c->at;
      if (!left) s->list[to].open = true;
    }
    end_parts_free(vm, parts);
  }
  if (!ok) vm_pop_to(vm, mark);
  rec_arm_end(s->arm);
  slots_set(vm, s->assigned, s->kept->values);
  rec_free(s->arm);
  s->arm = NULL;
  vm->rec = s->r;
  return ok;
}

/* Finds the ways of state k. */
static bool find_ways(states *s, int k) {
  way_choices c = {.n = 0};
  int tried = 0;
  s->list[k].known = true;
  do
    if (++tried > TRIED_MAX || !look(s, k, &c)) return false;
  while (way_next(&c));
  return true;
}

static bool find_all(states *s) {
  if (s->turns->ends) return find_ways(s, 0); /* of which only those that stay are made */
  for (uint32_t k = 0; k < s->n; k++) {
    if (!s->list[k].open || s->list[k].known) continue;
    if (!find_ways(s, (int)k)) return false;
    k = UINT32_MAX; /* states before it may be open now */
  }
  return true;
}

/* Marks the ways that lead back, from state k on. */
static void find_back(states *s, int k) {
  loop_state *x = &s->list[k];
  x->seen = x->within = true;
  for (int w = 0; w < x->nways; w++) {
    int to = x->ways[w].to;
    x->ways[w].back = to != k && s->list[to].within;
    s->cyclic |= x->ways[w].back;
    if (!s->list[to].seen) find_back(s, to);
  }
  x->within = false;
}

/* Does a way lead from state k to state `to`? */
static bool reaches(const states *s, int k, int to) {
  bool found = k == to;
  for (int w = 0; w < s->list[k].nways && !found; w++) {
    const state_way *way = &s->list[k].ways[w];
    found = way->to != k && !way->back && reaches(s, way->to, to);
  }
  return found;
}

/* The first way of state k behind way w that stays in it, or that does not. -1: there is none. */
static int next_of(const states *s, int k, int w, bool stays) {
  const loop_state *x = &s->list[k];
  for (w++; w < x->nways; w++)
    if ((x->ways[w].to == k) == stays) return w;
  return -1;
}

/* May the loop end in state k? */
static bool may_end(const states *s, int k) {
  const rec_turns *t = s->turns;
  bool turns = t->counts && !value_node(t->first) && !value_node(t->end) && t->first.u.i < t->end.u.i;
  bool again = false;
  for (uint32_t from = 0; from < s->n && s->cyclic; from++)
    for (int w = 0; w < s->list[from].nways; w++) again |= s->list[from].ways[w].to == k;
  return k > 0 || s->list[k].stays >= 0 || again || !turns;
}

/* Decides in which state the loop is to end. */
static bool find_goal(states *s) {
  if (s->turns->ends) return s->list[0].stays >= 0;
  int candidates[UINT8_MAX], n = 0, ends = 0;
  const rec_way *way = way_chooser_here(s->r);
  bool chooses = way != NULL;
  find_back(s, 0);
  if (s->cyclic && !chooses) {
    fork_unlike(s->r, NULL);
    if (fork_wanted(s->r)) return false;
    s->cyclic = false;
  }
  if (s->rebinds && !s->cyclic) return false; /* each piece would evaluate the test once more before its first turn */
  for (uint32_t k = 0; k < s->n && n < UINT8_MAX; k++) {
    bool leads_on = false;
    ends += may_end(s, (int)k);
    for (int w = next_of(s, (int)k, -1, false); w >= 0; w = next_of(s, (int)k, w, false))
      leads_on |= !s->list[k].ways[w].back;
    if (chooses ? may_end(s, (int)k) : !leads_on) candidates[n++] = (int)k;
  }
  if (!n) return false;
  if (!chooses && ends > 1) {
    struct recording *base = rec_base(s->r);
    if (base->of && base->of->ends_apart) {
      fork_unlike(s->r, NULL);
      if (fork_wanted(s->r)) return false;
    }
    *(vmap_aside(s->r) ? &base->expects_apart : &base->expects_end) = true;
  }
  int first = 0;
  for (int i = n - 1; i >= 0; i--)
    if (s->list[candidates[i]].open) first = i;
  if (chooses && n > 1) first = way_choose(way, n);
  s->choice = chooses && n > 1 ? way->choices->at : 0;
  if (first < 0 || first >= n) return false;
  s->goal = candidates[first];
  return true;
}

/* ---- pieces --------------------------------------------------------------------------------------------------------------------- */

/* From here on a condition, a bool, must have this truth. False: it cannot be captured, or an error is raised. */
static bool demand(states *s, qn_value condition, bool truth) {
  qn_vm *vm = s->vm;
  struct recording *r = vm->rec;
  if (is_bool(condition, truth) && !value_node(condition)) return true;
  if (!value_node(condition) || !r) return false; /* (!r: the capture has ended) */
  rec_way *way = way_chooser_here(r);
  rec_at(vm, s->at);
  if (way) return way_require(vm, way, condition, truth);
  if (!way_may_exit(r) || rec_base(r)->timid) return false;
  return way_expect(r, condition, truth);
}

static qn_value nothing(void *ctx, rec_exit *how) {
  (void)ctx, (void)how;
  return value_nil();
}

/* A branch on a bool that is data; it may set all variables. False as above. */
static bool branch_on(states *s, qn_value condition, qn_value (*then)(void *ctx, rec_exit *how),
                      qn_value (*otherwise)(void *ctx, rec_exit *how), void *ctx, bool leaves) {
  const rec_branch b = {
      .at = s->at, .then = {then, ctx}, .otherwise = {otherwise, ctx}, .assigned = s->joined, .leaves = leaves};
  qn_value v = value_nil();
  rec_answer answer = rec_if(s->vm, &b, condition, &v);
  if (answer == REC_DONE) value_release(s->vm, v);
  return answer == REC_DONE;
}

static qn_value arm_ended(bool ok, rec_exit *how) {
  if (!ok) *how = REC_ERROR;
  return ok ? value_nil() : value_error();
}

typedef struct turn_end {
  states *s;
  const qn_value *before, *parts; /* borrowed */
} turn_end;

static qn_value returns_arm(void *ctx, rec_exit *how) {
  const turn_end *e = ctx;
  *how = REC_RETURN;
  return value_retain(e->parts[END_RETURNED]);
}
static qn_value leaves_arm(void *ctx, rec_exit *how) {
  const turn_end *e = ctx;
  set(&e->s->left, value_bool(true));
  *how = REC_BREAK;
  return value_nil();
}
static qn_value missed_arm(void *ctx, rec_exit *how) {
  const turn_end *e = ctx;
  slots_set(e->s->vm, e->s->all, e->before);
  set(&e->s->missed, value_bool(true));
  *how = REC_BREAK;
  return value_nil();
}

/* A turn has ended that may have returned. */
static bool may_return(turn_end *e) {
  qn_value returns = e->parts[END_RETURNS];
  if (!value_node(returns)) return is_bool(returns, false);
  return branch_on(e->s, returns, returns_arm, nothing, e, true);
}

static bool count(states *s, qn_value number) {
  if (!s->turns->counts) return true;
  s->number = op_binary(s->vm, OP_add, number, value_int(1));
  return !value_is_error(s->number);
}

/* The ways that stay in a state, while a turn of its loop is made. */
typedef struct staying {
  states *s;
  const qn_value *before; /* borrowed */
  qn_value number;
  int w; /* the next one; -1: there is none */
} staying;

static bool stay(staying *x);

static qn_value next_stay(void *ctx, rec_exit *how) {
  staying next = *(const staying *)ctx;
  slots_set(next.s->vm, next.s->all, next.before);
  return arm_ended(stay(&next), how);
}

/* Makes a turn in the recording in progress by a way that was found, to whose choices *c is set. As run_turn; false, too, if it is another way now. */
static bool run_known(states *s, const state_way *way, way_choices *c, qn_value number, qn_value *parts) {
  *c = way->choices;
  if (!run_turn(s, c, way_of(s->vm->rec), number, parts)) return false;
  if (c->at == c->n) return true;
  end_parts_free(s->vm, parts);
  return false;
}

/* Makes a turn by a way that stays in the state, or by one behind it. */
static bool stay(staying *x) {
  states *s = x->s;
  qn_value parts[END_PARTS];
  way_choices c;
  if (!run_known(s, &s->list[s->state].ways[x->w], &c, x->number, parts)) return false;
  turn_end e = {.s = s, .before = x->before, .parts = parts};
  s->missed = parts[END_MISSED];
  s->left = parts[END_LEAVES];
  bool ok = may_return(&e);
  end_parts_free(s->vm, parts);
  x->w = next_of(s, s->state, x->w, true);
  return ok && (x->w < 0 || !value_node(s->missed) || branch_on(s, s->missed, next_stay, nothing, x, true));
}

/* The end of a turn, which may leave the loop. `ok`: has it been recorded until there? */
static qn_value turn_ended(turn_end *e, bool ok, rec_exit *how) {
  states *s = e->s;
  if (ok && value_node(s->left))
    ok = branch_on(s, s->left, leaves_arm, nothing, e, true);
  else if (ok && is_bool(s->left, true))
    (void)leaves_arm(e, how);
  s->left = value_bool(*how == REC_BREAK);
  drop_kept(s);
  return arm_ended(ok, how);
}

/* The body of a state's loop: ends it if the turn is missed, or left. */
static qn_value state_turn(void *ctx, qn_value number, rec_exit *how) {
  states *s = ctx;
  *how = REC_VALUE;
  if (s->turns->counts) s->number = number;
  turn_end e = {.s = s, .before = keep(s)};
  if (!e.before) return arm_ended(false, how);
  staying x = {.s = s, .before = e.before, .number = number, .w = s->list[s->state].stays};
  bool ok = stay(&x);
  if (next_of(s, s->state, -1, false) < 0) {
    /* (loops in the turn whose values change back are missed by all of its ways) */
    ok = ok && (!parted_wanted(s->vm->rec) || !value_node(s->missed) || demand(s, s->missed, false));
    s->missed = value_bool(false);
  }
  if (ok && value_node(s->missed)) ok = branch_on(s, s->missed, missed_arm, nothing, &e, true);
  s->missed = value_bool(false);
  ok = ok && count(s, number);
  return turn_ended(&e, ok, how);
}

/* The test of a loop that does not count. */
static qn_value test_turn(void *ctx, rec_exit *how) {
  const states *s = ctx;
  return way_test(s->vm, s->turns, how);
}
static qn_value guarded_test(void *ctx, rec_exit *how) {
  states *s = ctx;
  if (!s->guarded) return test_turn(s, how);
  const rec_branch b = {.at = s->at, .then = {way_false, s}, .otherwise = {test_turn, s}, .used = true};
  qn_value v = value_nil();
  if (rec_if(s->vm, &b, s->left, &v) == REC_DONE) return v;
  *how = REC_ERROR;
  return value_error();
}
static qn_value plain_turn(void *ctx, qn_value number, rec_exit *how) {
  states *s = ctx;
  return s->turns->body(s->turns->ctx, number, how);
}

static qn_value ended_arm(void *ctx, rec_exit *how) {
  states *s = ctx;
  (void)how;
  s->end = s->number;
  return value_nil();
}

/* Appends the loop of state k, in which the variables are. `plain`: no turn in it is missed. */
static bool run_state(states *s, int k, bool plain) {
  qn_vm *vm = s->vm;
  int outer = s->state;
  s->guarded = value_node(s->left) != 0;
  s->end = s->turns->end;
  if (s->guarded && s->turns->counts) {
    qn_value *slot = &s->end, v = value_nil();
    const rec_branch b = {.at = s->at, .then = {ended_arm, s}, .otherwise = {nothing, s}, .assigned = {&slot, 1}};
    if (rec_if(vm, &b, s->left, &v) != REC_DONE) return false;
  }
  bool counted = s->turns->counts && !value_node(s->number) && !value_node(s->end);
  if (plain && counted && s->number.u.i >= s->end.u.i) return true;
  rec_tries once = {.left = 1, .taps = rec_base(vm->rec)->taps.n};
  const rec_turns turns = {.test = guarded_test,
                           .body = plain ? plain_turn : state_turn,
                           .ctx = s,
                           .counts = s->turns->counts,
                           .tests = s->turns->tests,
                           .ends = s->turns->ends,
                           .whole = true,
                           .first = s->number,
                           .end = s->end};
  s->state = k;
  rec_answer answer = rec_loop(vm, s->at, &turns, plain ? s->assigned : s->all, &once);
  s->state = outer;
  return answer == REC_DONE;
}

static bool advance(states *s, int k);

/* The next way from state k, behind way w, that leaves it; if `goal`, only one that leads to the goal. -1: there is none. */
static int next_way(const states *s, int k, int w, bool goal) {
  const loop_state *x = &s->list[k];
  for (w++; w < x->nways; w++)
    if (x->ways[w].to != k && (!goal || (!x->ways[w].back && reaches(s, x->ways[w].to, s->goal)))) return w;
  return -1;
}

typedef struct change {
  states *s;
  const qn_value *before;
  int k, w, next;
  bool sure; /* the ways before were all that do not lead on, and are excluded */
} change;

static bool change_state(states *s, int k, int w, bool sure);

static qn_value other_way(void *ctx, rec_exit *how) {
  const change *c = ctx;
  slots_set(c->s->vm, c->s->all, c->before);
  return arm_ended(change_state(c->s, c->k, c->next, c->sure), how);
}
static qn_value this_way(void *ctx, rec_exit *how) {
  const change *c = ctx;
  return arm_ended(advance(c->s, c->s->list[c->k].ways[c->w].to), how);
}

/* Makes a turn from state k by way w, or by one behind it, and goes on to the goal. `sure`: no other way that leaves the state is possible. */
static bool change_state(states *s, int k, int w, bool sure) {
  if (w < 0) return false;
  const state_way *way = &s->list[k].ways[w];
  int to = way->to;
  way_choices choices;
  qn_value parts[END_PARTS];
  change c = {.s = s, .k = k, .w = w, .next = next_way(s, k, w, true), .before = keep(s), .sure = sure};
  if (!c.before) return false;
  bool ok = run_known(s, way, &choices, s->number, parts);
  c.sure &= !choices.required;
  if (ok) {
    turn_end e = {.s = s, .before = c.before, .parts = parts};
    s->left = parts[END_LEAVES];
    ok = count(s, s->number) && may_return(&e);
    if (ok && s->tries->parts == s->vm->rec) ok = rec_part_turn(s->vm, s->assigned, s->turns->grown, s->tries);
    qn_value missed = parts[END_MISSED];
    if (ok && c.next >= 0 && value_node(missed))
      ok = branch_on(s, missed, other_way, this_way, &c, false);
    else
      ok = ok && (c.sure || demand(s, missed, false)) && advance(s, to);
    end_parts_free(s->vm, parts);
  }
  drop_kept(s);
  return ok;
}

/* From here on there is a next turn, or there is none. False as in demand. */
static bool demand_turn(states *s, bool truth) {
  if (s->turns->counts) {
    qn_value goes = op_binary(s->vm, OP_lt, s->number, s->turns->end);
    if (!value_is_error(goes) && value_node(s->left)) {
      qn_value on = op_unary(s->vm, OP_invert, s->left);
      goes = value_is_error(on) ? on : op_binary(s->vm, OP_bitand, goes, on);
    }
    return !value_is_error(goes) && demand(s, goes, truth);
  }
  rec_exit how = REC_VALUE;
  s->guarded = value_node(s->left) != 0;
  qn_value goes = guarded_test(s, &how);
  bool ok = how == REC_VALUE && value_is(goes, TAG_BOOL) && demand(s, goes, truth);
  if (how != REC_ERROR && !value_is(goes, TAG_BOOL)) value_release(s->vm, goes);
  return ok;
}

/* Goes on from state k, in which the variables are, until they are in the goal. */
static bool advance(states *s, int k) {
  if (k == s->goal) return true;
  if (!demand(s, s->left, false)) return false;
  s->left = value_bool(false);
  const loop_state *x = &s->list[k];
  if (x->stays >= 0) {
    if (!run_state(s, k, false) || !demand(s, s->missed, true)) return false;
    s->left = s->missed = value_bool(false);
  } else if (!demand_turn(s, true)) {
    return false;
  }
  bool sure = true;
  for (int w = next_way(s, k, -1, false); w >= 0; w = next_way(s, k, w, false))
    sure &= !s->list[k].ways[w].back && reaches(s, s->list[k].ways[w].to, s->goal);
  return change_state(s, k, next_way(s, k, -1, true), sure);
}

/* The turns in the goal. */
static bool finish(states *s) {
  const loop_state *x = &s->list[s->goal];
  if (is_bool(s->left, true) && !value_node(s->left)) return true;
  if (x->stays < 0) return demand_turn(s, false);
  if (x->nways == 1) return run_state(s, s->goal, true);
  return run_state(s, s->goal, false) && demand(s, s->missed, false);
}

/* ---- all states in one loop -------------------------------------------------------------------------------------------------------- */

/* The next state behind k that may have turns. -1: there is none. */
static int next_open(const states *s, int k) {
  for (uint32_t next = (uint32_t)k + 1; next < s->n; next++)
    if (s->list[next].open) return (int)next;
  return -1;
}

/* Where a variable lies in state k. */
static qn_value *slot_of(const states *s, int k, int i) {
  return &s->slots[(size_t)s->list[k].of[i] * (size_t)s->assigned.n + (size_t)i];
}

/* The variables get what they hold in state k. */
static void take_state(states *s, int k) {
  for (int i = 0; i < s->assigned.n; i++) {
    qn_value old = *s->assigned.slots[i];
    *s->assigned.slots[i] = value_retain(*slot_of(s, k, i));
    value_release(s->vm, old);
  }
}

/* The slots of state k get what the variables hold. */
static void put_variables(states *s, int k) {
  for (int i = 0; i < s->assigned.n; i++) {
    qn_value *to = slot_of(s, k, i), old = *to;
    *to = *s->assigned.slots[i];
    *s->assigned.slots[i] = value_nil();
    value_release(s->vm, old);
  }
}

/* The variables are in state k now. */
static void put_state(states *s, int k) {
  put_variables(s, k);
  set(&s->tag, value_int(k));
}

static bool begin_every(states *s) {
  qn_vm *vm = s->vm;
  const size_t n = nslots(s), room = n + (size_t)s->assigned.n + OWN;
  rec_slots *all = &s->every;
  if (!(s->slots = mem_zalloc(vm, (n + 1) * sizeof *s->slots))) return false;
  for (size_t i = 0; i < n; i++) s->slots[i] = value_nil();
  if (!(all->slots = mem_alloc(vm, room * sizeof *all->slots))) return false;
  for (int i = 0; i < s->assigned.n; i++) all->slots[all->n++] = s->assigned.slots[i];
  for (uint32_t k = 0; k < s->n; k++)
    for (int i = 0; i < s->assigned.n; i++) {
      if (s->list[k].of[i] != k) continue;
      all->slots[all->n++] = slot_of(s, (int)k, i);
      *slot_of(s, (int)k, i) = value_retain(s->list[k].values[i]);
    }
  all->slots[all->n++] = &s->tag;
  all->slots[all->n++] = &s->left;
  s->joined = *all;
  s->left = value_bool(false);
  put_state(s, 0);
  return true;
}

/* A turn that begins in state k, by its way w or those behind it. */
typedef struct every_turn {
  states *s;
  const qn_value *before; /* borrowed */
  qn_value number;
  int k, w;
  bool required; /* one of the ways before may be missed although its choices are those of the program */
} every_turn;

static bool every_way(every_turn *x);

static qn_value way_behind(void *ctx, rec_exit *how) {
  every_turn next = *(const every_turn *)ctx;
  slots_set(next.s->vm, next.s->joined, next.before);
  next.w++;
  return arm_ended(every_way(&next), how);
}
static qn_value way_ends(void *ctx, rec_exit *how) {
  const every_turn *x = ctx;
  (void)how;
  put_state(x->s, x->s->list[x->k].ways[x->w].to);
  return value_nil();
}

static bool every_way(every_turn *x) {
  states *s = x->s;
  const loop_state *from = &s->list[x->k];
  qn_value parts[END_PARTS];
  way_choices c;
  take_state(s, x->k);
  if (!run_known(s, &from->ways[x->w], &c, x->number, parts)) return false;
  turn_end e = {.s = s, .before = x->before, .parts = parts};
  const qn_value missed = parts[END_MISSED];
  s->left = parts[END_LEAVES];
  x->required |= c.required;
  bool ok = may_return(&e), last = x->w + 1 == from->nways;
  if (ok && !last && value_node(missed)) {
    ok = branch_on(s, missed, way_behind, way_ends, x, true);
  } else if ((ok = ok && ((last && !x->required) || demand(s, missed, false)))) {
    put_state(s, from->ways[x->w].to);
  }
  end_parts_free(s->vm, parts);
  return ok;
}

static bool every_state(every_turn *x);

static qn_value in_this(void *ctx, rec_exit *how) {
  every_turn x = *(const every_turn *)ctx;
  return arm_ended(every_way(&x), how);
}
static qn_value in_others(void *ctx, rec_exit *how) {
  every_turn x = *(const every_turn *)ctx;
  x.k = next_open(x.s, x.k);
  return arm_ended(every_state(&x), how);
}

/* The turn, if it begins in state k or one behind it. */
static bool every_state(every_turn *x) {
  states *s = x->s;
  if (next_open(s, x->k) < 0) return every_way(x);
  qn_value here = op_binary(s->vm, OP_eq, s->tag, value_int(x->k));
  return !value_is_error(here) && branch_on(s, here, in_this, in_others, x, true);
}

static qn_value every_body(void *ctx, qn_value number, rec_exit *how) {
  states *s = ctx;
  *how = REC_VALUE;
  every_turn x = {.s = s, .number = number, .before = keep(s)};
  if (!x.before) return arm_ended(false, how);
  turn_end e = {.s = s, .before = x.before};
  bool ok = every_state(&x);
  return turn_ended(&e, ok, how);
}

/* The test of a loop that does not count, which reads the variables. */
static qn_value test_in(void *ctx, rec_exit *how) {
  const every_turn *x = ctx;
  states *s = x->s;
  take_state(s, x->k);
  qn_value v = test_turn(s, how);
  put_variables(s, x->k);
  return v;
}
static qn_value test_behind(void *ctx, rec_exit *how);

static qn_value test_from(every_turn *x, rec_exit *how) {
  states *s = x->s;
  if (next_open(s, x->k) < 0) return test_in(x, how);
  qn_value here = op_binary(s->vm, OP_eq, s->tag, value_int(x->k)), v = value_nil();
  const rec_branch b = {
      .at = s->at, .then = {test_in, x}, .otherwise = {test_behind, x}, .assigned = s->joined, .used = true};
  if (!value_is_error(here) && rec_if(s->vm, &b, here, &v) == REC_DONE) return v;
  *how = REC_ERROR;
  return value_error();
}
static qn_value test_behind(void *ctx, rec_exit *how) {
  every_turn x = *(const every_turn *)ctx;
  x.k = next_open(x.s, x.k);
  return test_from(&x, how);
}
static qn_value every_test(void *ctx, rec_exit *how) {
  every_turn x = {.s = ctx};
  return test_from(&x, how);
}

/* Appends the loop; `slots` have what they hold behind it. */
static bool append_loop(states *s) {
  qn_vm *vm = s->vm;
  if (!begin_every(s)) return false;
  rec_tries once = {.left = 1, .taps = rec_base(vm->rec)->taps.n};
  const rec_turns turns = {.test = every_test,
                           .body = every_body,
                           .ctx = s,
                           .counts = s->turns->counts,
                           .tests = s->turns->tests,
                           .whole = true,
                           .first = s->turns->first,
                           .end = s->turns->end};
  rec_answer answer = rec_loop(vm, s->at, &turns, s->every, &once);
  s->left = s->missed = value_bool(false);
  return answer == REC_DONE;
}

/* Of the part whose way is recorded in r: the loop that its first way has made at this place, or has just made if it is that; or NULL. */
static way_loop *loop_of(const states *s, const struct recording *r) {
  const rec_way *way = s->choice ? way_chooser_here(s->r) : NULL;
  const way_choices *c = way ? way->choices : NULL;
  const bool here = c && c->grads == rec_derivatives(r); /* (a gradient of each way has arguments of its own) */
  way_loop *l = here && s->choice <= c->at ? c->loop : NULL;
  for (uint32_t i = 0; i + 1 < s->choice && l; i++)
    if (c->made[i]) l = NULL;
  if (l && !l->r) return r == c->r && !c->made[s->choice - 1] ? l : NULL;
  /* (each way computes again what stands before the loop, and cotangents of what is used behind it, too, would not meet) */
  if (l && parted_wanted(r) && !l->alone) return NULL;
  while (l && r != l->r && r->arm) r = r->outer;
  return l && r == l->r && l->choice == s->choice && span_same_start(l->at, s->at) ? l : NULL;
}

/* Are all floats that r has computed from node `from` on constants, or copies of what is older? */
static bool computes_none(const struct recording *r, uint32_t from) {
  const graph *g = r->g;
  for (uint32_t i = from; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    if (n->kind == NODE_INPUT || n->kind == NODE_CONST || !dtype_is_float((qn_dtype)n->type.dtype)) continue;
    if (n->kind != NODE_OP) return false;
    bool copies = n->op == OP_reshape && graph_type_same(&n->type, &g->nodes[n->in[0]].type), constant = true;
    for (uint32_t k = 0; k < n->nin; k++) constant &= n->in[k] >= from && g->nodes[n->in[k]].kind != NODE_INPUT;
    if (!copies && !constant) return false;
  }
  return true;
}

/* As append_loop; but a loop that is there already is not made again. */
static bool loop_or_known(states *s) {
  way_loop *l = loop_of(s, s->vm->rec);
  if (!l || !l->r) {
    const way_choices *c = l ? way_chooser_here(s->r)->choices : NULL;
    const bool alone = c && c->r == s->r && computes_none(s->r, c->from);
    if (!append_loop(s)) return false;
    if (!l || s->vm->rec != s->r || !(l->values = slots_keep(s->vm, s->every))) return !error_pending(s->vm);
    l->r = s->r, l->at = s->at, l->choice = s->choice, l->slots.n = s->every.n;
    l->alone = alone;
    return true;
  }
  if (!begin_every(s) || l->slots.n != s->every.n) return false;
  slots_set(s->vm, s->every, l->values);
  return true;
}

/* One loop, behind which the variables are in the goal. */
static bool append_every(states *s) {
  if (!loop_or_known(s)) return false;
  qn_value ends = op_binary(s->vm, OP_eq, s->tag, value_int(s->goal));
  if (value_is_error(ends) || !demand(s, ends, true)) return false;
  take_state(s, s->goal);
  s->joined = s->all;
  every_free(s);
  return true;
}

/* ---- the whole ------------------------------------------------------------------------------------------------------------------ */

static bool begin(states *s) {
  rec_slots *all = &s->all;
  if (!(all->slots = mem_alloc(s->vm, ((size_t)s->assigned.n + OWN) * sizeof *all->slots))) return false;
  for (int i = 0; i < s->assigned.n; i++) all->slots[all->n++] = s->assigned.slots[i];
  all->slots[all->n++] = &s->left;
  all->slots[all->n++] = &s->missed;
  if (s->turns->counts) all->slots[all->n++] = &s->number;
  s->joined = *all;
  if (!keep(s) || add_state(s, NULL) < 0) return false;
  s->list[0].open = true;
  return true;
}

/* Appends all pieces to the recording in progress. */
static bool append(states *s) {
  if (s->cyclic) return append_every(s);
  s->left = s->missed = value_bool(false);
  s->number = s->turns->counts ? s->turns->first : value_int(0);
  return advance(s, 0) && finish(s);
}

static void restore(states *s) {
  while (s->kept->outer) drop_kept(s);
  s->joined = s->all;
  every_free(s);
  slots_set(s->vm, s->assigned, s->kept->values);
}

/* Can they be appended? Tries it in an arm, since from a recording that is none nothing can be taken back that writes something out. */
static bool may_append(states *s) {
  qn_vm *vm = s->vm;
  struct recording *r = s->r;
  if (r->arm) return true;
  qn_value *mark = vm->sp;
  if (!(s->arm = rec_arm_begin(r, NULL))) return false;
  bool ok = append(s) && vm->rec == s->arm && !s->arm->g->failed;
  if (!ok) vm_pop_to(vm, mark);
  rec_arm_end(s->arm);
  restore(s);
  rec_free(s->arm);
  s->arm = NULL;
  vm->rec = r;
  return ok;
}

/* Is the next turn captured as it is, from what the variables hold? Then the interpreter makes it, and asks about the loop once more. */
static bool next_is_plain(states *s) {
  qn_vm *vm = s->vm;
  qn_value parts[END_PARTS], *mark = vm->sp;
  way_choices c = {.closed = true};
  const rec_way *around = way_of(s->r);
  if (!(s->arm = rec_arm_begin(s->r, NULL))) return false;
  bool ok = run_turn(s, &c, around, s->number, parts);
  if (ok) {
    ok = is_bool(parts[END_LEFT], false) && is_bool(parts[END_LEAVES], false) && !s->arm->g->failed;
    end_parts_free(vm, parts);
  } else {
    vm_pop_to(vm, mark);
    if (way_raises(vm) || (vm->error && vm->error->id == E_internal)) error_clear(vm);
  }
  rec_arm_end(s->arm);
  restore(s);
  rec_free(s->arm);
  s->arm = NULL;
  vm->rec = s->r;
  return ok && !c.wanted;
}

bool states_may_be_over(const struct recording *r, const rec_turns *turns) {
  if (!turns->counts) return rec_is_data(r, turns->first);
  return rec_is_data(r, turns->first) || rec_is_data(r, turns->end);
}

/* Tries it with what the variables hold. *many: there were more states than jit.states. */
static rec_answer states_once(struct recording *r, span at, const rec_turns *turns, bool rebinds, rec_slots assigned,
                              rec_tries *tries, bool *many) {
  qn_vm *vm = r->vm;
  rec_way *way = way_of(r);
  if (way && way->choices && way->choices->closed) { /* first the turn that it is a part of must be split */
    way->choices->wanted = true;
    (void)rec_give_up(r, BREAK_branch);
    return REC_FAILED;
  }
  const anchor_specializations *of = rec_base(r)->of;
  if (!way_chooser_here(r) && (!way_may_exit(r) || rec_base(r)->timid || (of && of->failed))) return REC_NOT_YET;
  if (ways_enough(r)) return REC_NOT_YET;
  states s = {.vm = vm, .r = r, .at = at, .turns = turns, .rebinds = rebinds, .tries = tries, .assigned = assigned};
  s.number = turns->counts ? turns->first : value_int(0);
  s.left = s.missed = value_bool(false);
  vm_owned held;
  vm_own(vm, &held, states_drop, &s);
  const uint64_t work = ways_begin(r);
  s.counted = true;
  rec_marked before = rec_mark(r);
  bool found = begin(&s) && !(tries->left && !states_may_be_over(r, turns) && next_is_plain(&s)) &&
               !error_pending(vm) && find_all(&s) && find_goal(&s) && may_append(&s),
       whole = r->whole;
  const uint32_t taps = rec_base(r)->taps.n;
  r->whole = true;
  bool ok = found && append(&s);
  r->whole = whole;
  rec_answer answer = REC_DONE;
  bool captures = !r->arm && vm->rec == r && r->capturing, told = captures && r->taps.n != taps;
  if (!ok && found && (r->arm || vm->rec != r || told || error_pending(vm))) { /* what has been appended stays */
    if (!error_pending(vm) && (r->arm || told) && vm->rec)
      (void)rec_give_up(vm->rec, BREAK_branch);
    else if (!error_pending(vm))
      raise_memory(vm); /* which has ended the capture meanwhile: a loop inside was made by the interpreter */
    r->again |= captures && vm->error->id == E_internal; /* by the interpreter, which passes over what was told */
    answer = REC_FAILED;
  } else if (!ok) {
    if (s.kept) restore(&s);
    answer = arms_refused(r);
  }
  vm_disown(vm, &held);
  states_free(&s);
  if (answer == REC_DONE) ways_used(r, work);
  if (answer == REC_NOT_YET && !r->ended) forget_operands(r, before);
  *many = s.many;
  return answer;
}

/* ---- lists that grow ------------------------------------------------------------------------------------------------------------ */

/* For vm_own. */
static void lists_drop(qn_vm *vm, void *what) {
  state_lists *x = what;
  slots_free(vm, x->slots, x->plain);
  x->plain = NULL;
}

/* Puts other lists in place of some in what variables hold. */
typedef struct lists_put {
  struct recording *r;
  const rec_turns *turns;
  state_lists *lists;
  int variable;
  uint32_t at; /* the next one of `lists` */
  uint32_t n;  /* how many have been replaced */
  /* What stands for a list. Owned, or the error value; unset: it is not replaced. */
  qn_value (*put)(struct lists_put *p, qn_value v, bool part);
} lists_put;

/* Of what a variable holds, or a part of it. Owned, or the error value. */
static qn_value put_in(lists_put *p, qn_value v, bool part) {
  qn_vm *vm = p->r->vm;
  const bool list = value_is(v, TAG_LIST);
  uint32_t n = 0;
  if ((!list && !value_is(v, TAG_RECORD)) || rec_grows(vm, v)) return value_retain(v);
  qn_value other = list ? p->put(p, v, part) : value_unset();
  if (!value_is(other, TAG_UNSET)) return p->n += other.u.p != v.u.p, other;
  const qn_value *from = value_parts(v.u.p, &n);
  if (!n || value_is_stacked(v)) return value_retain(v);
  qn_value copy = vm_enter(vm, 0) ? parts_like(vm, v) : value_error();
  if (value_is_error(copy)) return copy;
  const uint32_t before = p->n;
  qn_value *to = value_parts(copy.u.p, &n);
  for (uint32_t i = 0; i < n; i++) {
    qn_value made = put_in(p, from[i], true);
    if (value_is_error(made)) return value_fail(vm, copy);
    to[i] = made;
  }
  if (p->n == before) value_release(vm, copy);
  return p->n == before ? value_retain(v) : copy;
}

/* The variables get what they hold in `from` (NULL: now), with other lists. False if that cannot be, perhaps with an error raised. */
static bool lists_put_all(lists_put p, const qn_value *from) {
  for (p.variable = 0; p.variable < p.lists->slots.n; p.variable++) {
    qn_value *slot = p.lists->slots.slots[p.variable], v = put_in(&p, from ? from[p.variable] : *slot, false);
    if (value_is_error(v)) return false;
    value_release(p.r->vm, *slot);
    *slot = v;
  }
  return true;
}

/* Is a list to become a counted one, as far as is known before the turns are looked at? A part of what a variable holds only while it is empty, since
 * lists with items may be tuples. */
static bool may_count(const lists_put *p, qn_value v, bool part) {
  enum { BITS = 64 };
  const qn_list *l = value_list(v);
  if (value_is_stacked(v) || l->head.aux == OBJ_PROGRESS) return false;
  if (part) return !l->len;
  return p->variable < BITS && (p->turns->stacks >> p->variable & 1) && l->len <= LISTS_FEW;
}

static qn_value list_looks(lists_put *p, qn_value v, bool part) {
  state_lists *lists = p->lists;
  if (!may_count(p, v, part) || lists->n == LISTS_MAX) return value_unset();
  const uint32_t number = grown_new(p->r);
  if (!number) return value_error();
  state_list *x = &lists->of[lists->n++];
  *x = (state_list){.variable = p->variable, .number = number, .each = MORE_MISSED};
  if (counted_begin(p->r, number, v)) return counted_looks(p->r, number, v);
  x->plain = x->unlike = true;
  return error_pending(p->r->vm) ? value_error() : value_unset();
}

/* How many turns there are: a size; 0: that is data, or not known. False with an error raised. */
static bool turns_made(struct recording *r, const rec_turns *turns, qn_dim *n) {
  qn_value end = turns->end;
  qn_dim size;
  *n = 0;
  if (!turns->counts || turns->first.head != TAG_INT || value_node(turns->first) || end.head != TAG_INT) return true;
  const int64_t first = turns->first.u.i;
  uint32_t node = value_node(end) && !r->arm ? rec_traced(r, end) : 0;
  if (node && !rec_is_data(r, end) && sizes_of_number(r, node, &size) && size < 0) {
    size = dim_make(&r->g->dims, DIM_SUB, size, dim_const(&r->g->dims, first));
    if (size < 0 && dim_hint(&r->g->dims, size) > 1) *n = size;
    return true;
  }
  const int guards = value_node(end) ? may_guard(r, end) : 0;
  if (guards > 0) end = rec_guard(r->vm, end);
  if (guards < 0 || value_is_error(end)) return false;
  if (!value_node(end) && end.u.i > first && (uint64_t)end.u.i - (uint64_t)first <= INT32_MAX) *n = end.u.i - first;
  return true;
}

/* Room for the items that so many turns (0: that is not known) add to a list of `len` items: a size. */
static qn_dim room_for(struct recording *r, state_list *x, qn_dim turns, uint32_t len) {
  dim_table *dims = &r->g->dims;
  const bool exact = turns && x->each >= 0 && !x->within;
  const int64_t adds = exact ? x->each : x->adds;
  qn_dim n = turns && !x->within ? dim_make(dims, DIM_MUL, turns, dim_const(dims, adds)) : 0;
  if (!n) n = adds ? counted_room(r, x->number) : 0;
  const bool all = dim_hint(dims, n) <= (exact ? INT32_MAX / 2 : counted_room_most(r, x->number, false));
  if (!all) n = counted_room_most(r, x->number, false);
  const qn_dim room = dim_make(dims, DIM_ADD, n, dim_const(dims, len));
  x->all = exact && all ? room : 0;
  return room;
}

/* Finds out what turns add to lists. False if they cannot be counted ones, perhaps with an error raised. */
static bool lists_look(struct recording *r, span at, const rec_turns *turns, state_lists *lists) {
  states s = {.vm = r->vm, .r = r, .at = at, .turns = turns, .assigned = lists->slots, .lists = lists};
  s.number = turns->counts ? turns->first : value_int(0);
  s.left = s.missed = value_bool(false);
  vm_owned held;
  vm_own(r->vm, &held, states_drop, &s);
  bool ok = begin(&s) && find_all(&s), some = false;
  vm_disown(r->vm, &held);
  states_free(&s);
  for (uint32_t i = 0; i < lists->n; i++) {
    grown_items *g = grown_of(r, lists->of[i].number);
    g->looks = false;
    lists->of[i].plain |= !g->known || (!lists->of[i].adds && !g->stores && !g->removes);
    some |= !lists->of[i].plain;
  }
  return ok && some;
}

static qn_value list_made(lists_put *p, qn_value v, bool part) {
  if (!may_count(p, v, part) || p->at == p->lists->n) return value_unset();
  state_list *x = &p->lists->of[p->at++];
  if (x->plain) return x->unlike ? value_unset() : value_retain(v);
  return counted_new(p->r, x->number, v, room_for(p->r, x, p->lists->made, value_list(v)->len), false);
}

static qn_value list_ended(lists_put *p, qn_value v, bool part) {
  (void)part;
  for (uint32_t i = 0; i < p->lists->n && value_is_counted(v); i++) {
    const state_list *x = &p->lists->of[i];
    if (!x->plain && x->number == counted_number(v)) return counted_end(p->r, v, x->all);
  }
  return value_unset();
}

/* As states_once, with counted lists in place of those that grow. */
static rec_answer states_with_lists(struct recording *r, span at, const rec_turns *turns, bool rebinds,
                                    rec_slots assigned, rec_tries *tries) {
  qn_vm *vm = r->vm;
  bool many = false;
  state_lists lists = {.slots = assigned, .plain = slots_keep(vm, assigned)};
  if (!lists.plain) return arms_refused(r);
  vm_owned held;
  vm_own(vm, &held, lists_drop, &lists);
  rec_marked before = rec_mark(r);
  rec_answer answer = REC_NOT_YET;
  const lists_put looks = {.r = r, .turns = turns, .lists = &lists, .put = list_looks};
  lists_put make = looks;
  make.put = list_made;
  bool ok = lists_put_all(looks, lists.plain) && lists.n && lists_look(r, at, turns, &lists);
  slots_set(vm, assigned, lists.plain);
  if (ok && vm->rec == r && !r->ended && turns_made(r, turns, &lists.made) && lists_put_all(make, lists.plain))
    answer = states_once(r, at, turns, rebinds, assigned, tries, &many);
  else
    answer = arms_refused(r);
  lists_put end = {.r = vm->rec ? vm->rec : r, .lists = &lists, .put = list_ended};
  if (answer == REC_DONE && !lists_put_all(end, NULL)) answer = REC_FAILED;
  if (answer == REC_NOT_YET) slots_set(vm, assigned, lists.plain);
  if (answer == REC_NOT_YET && !r->ended) forget_operands(r, before);
  vm_disown(vm, &held);
  slots_free(vm, assigned, lists.plain);
  return answer;
}

rec_answer states_loop(struct recording *r, span at, const rec_turns *turns, bool rebinds, rec_slots assigned,
                       rec_tries *tries, bool again) {
  bool many = false;
  rec_answer answer = states_once(r, at, turns, rebinds, assigned, tries, &many);
  if (answer == REC_NOT_YET && many && r->vm->rec == r && !r->ended && counted_may(r))
    answer = states_with_lists(r, at, turns, rebinds, assigned, tries);
  if (answer == REC_NOT_YET && many && !again && !r->arm && !r->ended && !rec_break(r, BREAK_states, NULL))
    answer = REC_FAILED;
  return answer;
}

/* ---- lanes ---------------------------------------------------------------------------------------------------------------------- */

/* A loop of lanes: those that have a first turn come out with an array of rank 0 where others have the number that the variable began with, which the
 * interpreter makes an array of the same dtype when it selects. So the first turn and the others behind it stand in one arm of a branch, and in the
 * other one the numbers become arrays. If no lane has a turn nothing is selected: then the call leaves the graph. */
typedef struct lane_turns {
  qn_vm *vm;
  span at;
  const rec_turns *turns;
  rec_slots assigned;
  const qn_dtype *become; /* for each variable, which is a number; QN_DTYPE_COUNT: it stays what it is */
} lane_turns;

/* Makes a turn that leaves nothing in the recording in progress. False: it cannot be captured, or an error is raised. */
static bool lane_turn(const lane_turns *l) {
  qn_vm *vm = l->vm;
  struct recording *r = vm->rec;
  rec_way turn;
  rec_exit how = REC_ERROR;
  way_choices closed = {.closed = true};
  qn_value parts[END_PARTS];
  way_begin(&turn, WAY_TURN, r, NULL, l->assigned);
  turn.choices = &closed;
  turn.throws = NULL;
  qn_value v = l->turns->body(l->turns->ctx, l->turns->counts ? l->turns->first : value_int(0), &how);
  bool ok = way_close(vm, &turn, how, v, parts) && vm->rec == r;
  ok = ok && is_bool(parts[END_LEFT], false) && is_bool(parts[END_LEAVES], false) && !closed.wanted;
  end_parts_free(vm, parts);
  return ok;
}

static qn_value lanes_with_turns(void *ctx, rec_exit *how) {
  const lane_turns *l = ctx;
  qn_vm *vm = l->vm;
  rec_turns behind = *l->turns;
  behind.whole = true;
  bool ok = lane_turn(l);
  if (ok && behind.counts) {
    behind.first = op_binary(vm, OP_add, behind.first, value_int(1));
    ok = !value_is_error(behind.first);
  }
  rec_tries once = {.left = 1, .taps = rec_base(vm->rec)->taps.n};
  return arm_ended(ok && rec_loop(vm, l->at, &behind, l->assigned, &once) == REC_DONE, how);
}

static qn_value lanes_without(void *ctx, rec_exit *how) {
  const lane_turns *l = ctx;
  for (int i = 0; i < l->assigned.n; i++) {
    qn_value *slot = l->assigned.slots[i];
    if (l->become[i] == QN_DTYPE_COUNT) continue;
    qn_value made = op_apply(l->vm, OP_fit, slot, 1, &(op_attr){.dtype = (uint8_t)l->become[i]});
    if (value_is_error(made)) return arm_ended(false, how);
    *slot = made;
  }
  return value_nil();
}

/* What the first turn makes of numbers: sets `become`, which has room for all variables. False: of something it makes what lanes cannot have. */
static bool lane_kinds(const lane_turns *l, const qn_value *before, qn_dtype *become) {
  struct recording *arm = l->vm->rec, *r = arm->outer;
  for (int i = 0; i < l->assigned.n; i++) {
    qn_value x = before[i], y = *l->assigned.slots[i];
    become[i] = QN_DTYPE_COUNT;
    if (way_alike(r, x, arm, y)) continue;
    if (error_pending(l->vm) || !value_is(y, TAG_ARRAY) || value_array(y)->rank) return false;
    const qn_dtype dtype = (qn_dtype)value_array(y)->dtype;
    const bool fits = dtype_is_float(dtype) ? value_is(x, TAG_INT) || value_is(x, TAG_FLOAT)
                                            : dtype_is_int(dtype) && value_is(x, TAG_INT);
    if (!fits) return false;
    become[i] = dtype;
  }
  return true;
}

/* Tries the first turn in an arm that is dropped. As lane_kinds. */
static bool lane_try(struct recording *r, const lane_turns *l, qn_dtype *become) {
  qn_vm *vm = r->vm;
  qn_value *mark = vm->sp, *before = slots_keep(vm, l->assigned);
  struct recording *arm = before ? rec_arm_begin(r, NULL) : NULL;
  bool ok = arm && lane_turn(l) && lane_kinds(l, before, become) && !arm->g->failed && !arm->regions.n;
  if (!ok) vm_pop_to(vm, mark);
  if (arm) rec_arm_end(arm);
  if (before) slots_set(vm, l->assigned, before);
  slots_free(vm, l->assigned, before);
  if (arm) rec_free(arm);
  vm->rec = r;
  return ok;
}

rec_answer states_of_lanes(struct recording *r, span at, const rec_turns *turns, rec_slots assigned,
                           const rec_tries *tries) {
  enum { MOST = 64 };
  qn_vm *vm = r->vm;
  qn_dtype become[MOST];
  lane_turns l = {.vm = vm, .at = at, .turns = turns, .assigned = assigned, .become = become};
  const bool alone = r->arm && r->outer->aside && rec_base(r)->taps.n == tries->taps;
  if (!alone || assigned.n > MOST || turns->ends || turns->tests || !way_may_exit(r)) return REC_NOT_YET;
  rec_marked before = rec_mark(r);
  bool ok = lane_try(r, &l, become);
  rec_at(vm, at);
  rec_exit how = REC_VALUE;
  qn_value goes = !ok             ? value_nil()
                  : turns->counts ? op_binary(vm, OP_lt, turns->first, turns->end)
                                  : way_test(vm, turns, &how);
  ok = ok && how == REC_VALUE && value_is(goes, TAG_BOOL) && value_node(goes) && vm->rec == r;
  if (ok) {
    const rec_branch b = {
        .at = at, .then = {lanes_with_turns, &l}, .otherwise = {lanes_without, &l}, .assigned = assigned};
    qn_value v = value_nil();
    uint32_t node = rec_node(r, goes);
    rec_answer answer = node ? rec_if(vm, &b, goes, &v) : REC_FAILED;
    if (answer == REC_DONE) {
      value_release(vm, v);
      rec_base(r)->expects_apart = true;
      return nodes_add(vm, &r->some, node) ? REC_DONE : REC_FAILED;
    }
    if (answer == REC_FAILED) return REC_FAILED;
  }
  rec_answer answer = arms_refused(r);
  if (answer == REC_NOT_YET && !r->ended) forget_operands(r, before);
  return answer;
}
