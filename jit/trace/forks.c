/* Branches on data whose arms do not agree: an int or an f32, an array or one of its rows, nil or a list.
 *
 * What follows such a branch needs values of one kind. So a part of the program around it is captured in several ways (ways.h): each takes one arm of
 * every branch that does not agree, and is missed where the program takes another one. The first way comes first; each of the others stands in a
 * branch on whether all before it are missed; and behind the last one the values are those of the way that was not missed. Then nobody may read
 * variables that still differ. So a part is one of these, the first that can be captured:
 *
 *   - one statement of a block, or that and what follows up to the last statement that reads what it assigns, or all that follows (the interpreter
 *     knows who reads what);
 *   - the whole call that is recorded. Then its result may differ, too: the graph has outputs for each kind of result, and one that tells which
 *     of them the call has (TPL_CHOICE). So may that of a part with which the recorded function ends; what it has written out before stands in no way,
 *     each of which would write it.
 *
 * A part in which several steps (statements of a block) choose arms would have as many ways as the product of their arms. So where a few ways show that it
 * is one, it is made in stages instead, each of which begins with a step that chooses. At the end of a stage the ways are sorted by what variables are:
 * those of one kind (structure, dtypes, shapes, and what is no data) meet in variables of that kind, and a number tells which kind the call has come to. The
 * next stage is captured once for each kind, behind a branch on that number. So a chain of n branches with k kinds costs n * k such stages. The part ends
 * where one kind is left; at its end there may be several in a whole call, which are its results, and within a way around the part, which takes one of
 * them and is missed with the others (way_choose).
 *
 * Inside a gradient a part may be one of the function that is differentiated. The cotangents of a value are summed in the order of its uses, so where ways
 * meet variables that share a value go on sharing it (way_end.plain), and ways that share otherwise do not meet (sign_shared). If the function gives
 * results that differ, the part is one around the gradient, whose ways each differentiate anew (differentiate.c).
 *
 * Which parts there are is found while calls are recorded: where ways do not agree, the innermost statement around is marked (fork_wanted), and the call
 * is recorded once more. If the part is no help, its mark says so, and the statement around it is the next.
 */
#include "jit/trace/forks.h"

#include <string.h>

#include "jit/trace/breaks.h"
#include "jit/trace/draws.h"
#include "jit/trace/rec.h"
#include "jit/trace/vmap.h"
#include "jit/trace/ways.h"

/* ---- where parts begin ------------------------------------------------------------------------------------------------------------- */

/* For vm_own, too: the host has left. */
static void block_drop(qn_vm *vm, void *what) {
  (void)vm;
  const rec_block *b = what;
  b->base->block = b->outer;
}

void rec_block_begin(qn_vm *vm, rec_block *b) {
  b->base = rec_base(vm->rec);
  b->outer = b->base->block;
  b->base->block = b;
  vm_own(vm, &b->held, block_drop, b);
}

void rec_block_end(qn_vm *vm, rec_block *b) {
  vm_disown(vm, &b->held);
  block_drop(vm, b);
}

bool fork_wanted(struct recording *r) {
  qn_vm *vm = r->vm;
  struct recording *base = rec_base(r);
  const qn_value *in = base->unlike_in;
  anchor_specializations *of = base->of;
  if (!of || !base->capturing || base->restart || base->retry || error_pending(vm) || vm->tune[TUNE_jit_ways] < 2)
    return false;
  if (of->restarts >= RESTARTS_MAX || ways_enough(r) || vmap_aside(r) || !arms_possible(r)) return false;
  const rec_way *w =
      base->way; /* in a turn of a loop, or a part that is captured in several ways: only statements in it */
  while (w && !w->choices && w->kind != WAY_TURN) w = w->outer;
  /* A turn is recorded in ways of its own (states.c), which do not choose in the functions that it calls. */
  if (w && w->choices && !w->choices->fork && !way_calls(w, r)) return false;
  const rec_block *b = base->block, *end = w ? w->block : NULL;
  while (b != end && (!b->fork || *b->fork != FORK_UNKNOWN || (in && b->keeps(b, in)))) b = b->outer;
  if (b != end)
    *b->fork = FORK_TRY;
  else if (!w && !of->forked)
    of->forked = true;
  else
    return false;
  bool told = base->taps.n || base->tap_run.plan.made; /* what has been written out is not written twice */
  base->restart = !told;
  base->retry = told;
  if (told) return false;
  (void)rec_give_up(r, BREAK_branch);
  return true;
}

/* ---- ways -------------------------------------------------------------------------------------------------------------------------- */

enum {
  RESULTS_MAX = 16, /* kinds of results */
  OWN = 3,          /* variables of a fork besides these */
  KINDS_MAX = 64,   /* kinds of values that variables may have at the end of a stage */
  STEPS_MAX = 512,  /* steps of a part that may begin stages */
  FEW = 2           /* so many ways are recorded before a part is made in stages */
};

/* Several kinds of values: what the variables hold in each, and behind them the part's value, as lists; and what tells the kinds apart, as texts. */
typedef struct kinds {
  uint32_t n;
  qn_value values[KINDS_MAX]; /* owned; unset: those of another kind */
  text_buf signs[KINDS_MAX];  /* owned */
} kinds;

/* A part that is made in stages (see above). */
typedef struct stages {
  kinds now, next;    /* at the beginning and at the end of the stage in progress */
  qn_value which;     /* owned: which of `now` the variables have */
  way_end ends[2];    /* owned: of the branch on this */
  qn_value *kept;     /* owned: what all variables of the fork hold around it, or NULL */
  const qn_value *at; /* of the kind whose ways are being recorded */
  bool last;          /* the stage is the last one: what it gives is what the part gives */
  bool again;         /* it turns out that one more step chooses arms: the stages are to be others */
  int chosen;         /* of several kinds with which the part ends, the one that the way around it takes */
} stages;

typedef struct fork {
  qn_vm *vm;
  struct recording *r, *arm; /* owned: in which all ways are recorded */
  const rec_section *part;
  rec_slots assigned;                    /* the variables that matter behind it */
  rec_slots rebound;                     /* all that it may rebind */
  rec_slots all;                         /* owned: these and the following ones */
  qn_value missed, value;                /* owned: is no way taken so far; the part's value */
  qn_value number, results[RESULTS_MAX]; /* owned: of a whole call: which of the results it has */
  uint32_t nresults;
  bool whole, required;
  uint64_t last_fn; /* functions with higher numbers are made in it */
  /* Of a part in steps: how many; those of the ways that are being recorded; and those in which arms were chosen. */
  uint32_t nsteps, from, to;
  bool chose[STEPS_MAX];
  stages *stages;   /* owned; NULL: it is made in one */
  rec_way *around;  /* a way in which it may be chosen of what kind the variables are behind the part; or NULL */
  qn_value *before; /* owned: what `rebound` held */
  qn_value *kept;   /* owned: what all variables hold while a way is recorded, or NULL */
  way_end ends[2];
  way_loop loop;   /* owned */
  text_buf shared; /* owned, of a part inside a gradient: what the values of the first way share (sign_shared) */
  bool counted;    /* in recording.ways_in */
} fork;

static void kept_free(fork *f) {
  slots_free(f->vm, f->all, f->kept);
  f->kept = NULL;
}

static void kinds_free(qn_vm *vm, kinds *k) {
  for (int i = 0; i < KINDS_MAX; i++) {
    value_release(vm, k->values[i]);
    k->values[i] = value_unset();
    text_free(&k->signs[i]);
  }
  k->n = 0;
}

static void stages_free(fork *f) {
  stages *s = f->stages;
  if (!s) return;
  slots_free(f->vm, f->all, s->kept);
  for (int k = 0; k < 2; k++) end_free(f->vm, &s->ends[k]);
  kinds_free(f->vm, &s->now);
  kinds_free(f->vm, &s->next);
  value_release(f->vm, s->which);
  mem_free(f->vm, s, sizeof *s);
  f->stages = NULL;
}

static size_t all_bytes(const fork *f) { return ((size_t)f->rebound.n + OWN + KINDS_MAX) * sizeof *f->all.slots; }

static void fork_free(fork *f) {
  qn_vm *vm = f->vm;
  kept_free(f);
  slots_free(vm, f->loop.slots, f->loop.values);
  for (int k = 0; k < 2; k++) end_free(vm, &f->ends[k]);
  stages_free(f);
  if (f->arm) rec_free(f->arm);
  if (f->counted) ways_end(f->r);
  slots_free(vm, f->rebound, f->before);
  value_release(vm, f->missed);
  value_release(vm, f->value);
  value_release(vm, f->number);
  text_free(&f->shared);
  for (int k = 0; k < RESULTS_MAX; k++) value_release(vm, f->results[k]);
  if (f->all.slots) mem_free(vm, f->all.slots, all_bytes(f));
}

/* For vm_own: the host has left. */
static void fork_drop(qn_vm *vm, void *what) {
  (void)vm;
  fork_free(what);
}

static bool begin(fork *f) {
  rec_slots *all = &f->all;
  if (!(all->slots = mem_alloc(f->vm, all_bytes(f)))) return false;
  for (int i = 0; i < f->assigned.n; i++) all->slots[all->n++] = f->assigned.slots[i];
  all->slots[all->n++] = &f->missed;
  all->slots[all->n++] = &f->value;
  all->slots[all->n++] = &f->number;
  for (int k = 0; k < RESULTS_MAX && f->whole; k++) all->slots[all->n++] = &f->results[k];
  return (f->before = slots_keep(f->vm, f->rebound)) != NULL;
}

static void take(qn_vm *vm, qn_value *to, qn_value v) {
  value_release(vm, *to);
  *to = v;
}

/* For tree_each_part: is it no function that a way has made with values of its own? These would be lost with the arm. */
static bool is_no_closure(void *ctx, qn_value v) {
  const fork *f = ctx;
  return !value_is(v, TAG_FN) || !value_fn(v)->ncaptures || value_fn(v)->id <= f->last_fn;
}

/* Can all that a way has made be handed on? False, perhaps with an error raised. */
static bool may_hand_on(fork *f) {
  bool ok = tree_each_part(f->vm, f->value, is_no_closure, f);
  const rec_slots all = f->stages ? f->rebound : f->assigned;
  for (int i = 0; i < all.n && ok; i++) ok = tree_each_part(f->vm, *all.slots[i], is_no_closure, f);
  return ok;
}

/* Makes the steps of a way, one by one. */
static qn_value run_steps(fork *f, way_choices *c, rec_exit *how) {
  qn_vm *vm = f->vm;
  const rec_section *part = f->part;
  if (!part->step) return part->run.run(part->run.ctx, how);
  for (uint32_t i = f->from;; i++) {
    const struct recording *captures = rec_captures(vm);
    const uint32_t choices = c->at;
    c->wanted = false;
    bool last = part->step(part->run.ctx, i) || i + 1 == f->to;
    qn_value v = part->run.run(part->run.ctx, how);
    if ((c->at > choices || c->wanted) && i < STEPS_MAX) {
      if (f->stages && i > f->from) f->stages->again |= !f->chose[i];
      f->chose[i] = true;
    }
    if (last || *how != REC_VALUE || rec_captures(vm) != captures) return v;
    value_release(vm, v);
  }
}

/* Is the step in which a way ends the last one of the part? */
static bool at_end(const fork *f) { return !f->stages || f->stages->last; }

/* Records one way in the recording in progress: sets the variables. False: it cannot be captured, or an error is raised. */
static bool run_way(fork *f, way_choices *c) {
  qn_vm *vm = f->vm;
  struct recording *r = vm->rec;
  rec_way way;
  rec_exit how = REC_VALUE;
  qn_value parts[END_PARTS], *mark = vm->sp;
  c->r = r;
  c->from = r->g->n;
  c->at = 0;
  c->fork = true;
  c->grads = rec_derivatives(r);
  c->closed = false;
  way_begin(&way, WAY_TAIL, r, NULL, f->stages ? f->rebound : f->assigned);
  way.choices = c;
  way.may_return = f->part->last && at_end(f);
  rec_at(vm, f->part->at);
  qn_value v = run_steps(f, c, &how);
  if (how == REC_VALUE && (!f->part->used || !at_end(f))) take(vm, &v, value_nil());
  bool ok = way_close(vm, &way, how, v, parts);
  ways_worked(r, r->g->n);
  if (!ok || vm->rec != r) vm_pop_to(vm, mark);
  if (!ok) return false;
  take(vm, &f->value, value_retain(parts[END_VALUE]));
  take(vm, &f->missed, parts[END_MISSED]);
  parts[END_MISSED] = value_nil();
  end_parts_free(vm, parts);
  f->required |= c->required;
  return vm->rec == r && may_hand_on(f) && !r->g->failed && !r->regions.n && !ways_enough(r);
}

/* The way that is being recorded in `arm` (or the first one, in f->arm) has a result: it becomes one of the call's. False: these are too many. */
static bool note_result(fork *f, struct recording *arm) {
  if (!f->whole) return true;
  uint32_t k = 0;
  while (k < f->nresults && (!arm || !way_alike(f->arm, f->kept[f->assigned.n + OWN + (int)k], arm, f->value))) k++;
  if (k == RESULTS_MAX || error_pending(f->vm)) return false;
  if (k == f->nresults) f->nresults++;
  for (int i = 0; i < RESULTS_MAX; i++) take(f->vm, &f->results[i], value_unset());
  f->results[k] = f->value;
  f->value = value_nil();
  take(f->vm, &f->number, value_int((int64_t)k));
  return true;
}

/* Appends what tells the kind of a value apart from others: its structure, the dtypes and shapes of its leaves, and whatever is no data. `r`: the arm that
 * has made it. False: it cannot be handed on, or an error is raised. */
static bool sign(const fork *f, struct recording *r, qn_value v, text_buf *to) {
  if (value_is_operand(v)) {
    graph_type t = type_of_value(v);
    struct recording *x = r;
    uint32_t node;
    while (!(node = rec_traced(x, v)) && x->arm) x = x->outer;
    if (node) t = x->g->nodes[node].type;
    bool around = false; /* is it older than the part? */
    for (const struct recording *y = f->r; y && !around; y = y->arm ? y->outer : NULL) around = x == y;
    for (; node && !around && x != f->r; x = x->outer)
      if (!sizes_type_outside(x, &t)) return false;
    text_addf(to, "a%d,%d", t.dtype, t.weak);
    for (int k = 0; k < t.rank; k++) text_addf(to, ",%lld", (long long)t.shape[k]);
    text_adds(to, ";");
    return true;
  }
  if (value_is(v, TAG_STR)) {
    if (rec_text_of(r, v)) return false;
    text_addf(to, "s%lu:", (unsigned long)value_str(v)->len);
    text_add(to, value_str(v)->text, value_str(v)->len);
    return true;
  }
  bool list = value_is(v, TAG_LIST);
  if (!list && !value_is(v, TAG_RECORD)) {
    text_addf(to, "v%llx,%llx;", (unsigned long long)v.head, (unsigned long long)v.u.i);
    return true;
  }
  uint32_t n = list ? value_list(v)->len : value_record(v)->len;
  if (!vm_enter(f->vm, 0)) return false;
  text_addf(to, "%c%u(", list ? 'l' : 'r', n);
  for (uint32_t i = 0; i < n; i++) {
    if (!list) {
      const qn_str *name = record_name(value_record(v), i);
      text_addf(to, "%lu:", (unsigned long)name->len);
      text_add(to, name->text, name->len);
    }
    if (!sign(f, r, list ? value_list(v)->items[i] : value_record(v)->items[i], to)) return false;
  }
  text_adds(to, ")");
  return true;
}

/* Values that are floats inside a gradient, while it is told which of them are one. */
typedef struct sharing {
  const fork *f;
  struct recording *r; /* the arm that has made them */
  node_list seen;
  text_buf *to;
} sharing;

static bool sign_leaf(void *ctx, qn_value v) {
  sharing *s = ctx;
  struct recording *r = s->r;
  if (!parted_leaf(r, v)) return true;
  uint32_t node, k = 0;
  while (!(node = rec_traced(r, v)) && r->arm) r = r->outer;
  while (r->arm && r != s->f->r && r->g->nodes[node].kind == NODE_INPUT) {
    const uint32_t number = r->g->nodes[node].payload.input;
    if (number < r->carries) break;
    node = r->captures[number];
    r = r->outer;
  }
  bool around = false;
  for (const struct recording *x = s->f->r; x && !around; x = x->arm ? x->outer : NULL) around = x == r;
  node += r->base;
  if (around) {
    text_addf(s->to, "o%u;", node);
    return true;
  }
  while (k < s->seen.n && s->seen.nodes[k] != node) k++;
  if (k == s->seen.n && !nodes_add(s->f->vm, &s->seen, node)) return false;
  text_addf(s->to, "n%u;", k);
  return true;
}

/* Inside a gradient: appends which floats of some values, and of one more, are one, and which are older than the part. The cotangents of a value are
 * summed in the order of its uses (parted.c), so ways may only meet where this is the same in all of them. False with an error raised. */
static bool sign_shared(const fork *f, struct recording *r, const qn_value *values, int n, qn_value more,
                        text_buf *to) {
  if (!parted_wanted(f->r)) return true;
  sharing s = {.f = f, .r = r, .to = to};
  bool ok = true;
  for (int i = 0; i < n && ok; i++) ok = tree_each(f->vm, values[i], sign_leaf, &s);
  ok = ok && tree_each(f->vm, more, sign_leaf, &s);
  nodes_free(f->vm, &s.seen);
  return ok;
}

/* The way that is being recorded, the first one or not, has come to the end of a part that is made in one: do its values share what those of the others
 * do? False, too, with an error raised. */
static bool shares_alike(fork *f, bool first) {
  qn_vm *vm = f->vm;
  text_buf signs = {.vm = vm};
  qn_value *held = parted_wanted(f->r) ? slots_keep(vm, f->assigned) : NULL;
  if (!held) return !error_pending(vm);
  bool ok = sign_shared(f, vm->rec, held, f->assigned.n, f->value, &signs) && !signs.failed;
  slots_free(vm, f->assigned, held);
  if (ok && !first) ok = signs.len == f->shared.len && (!signs.len || !memcmp(signs.text, f->shared.text, signs.len));
  if (!ok || !first) {
    text_free(&signs);
    return ok;
  }
  text_free(&f->shared);
  f->shared = signs;
  return true;
}

/* Do the results of a part that is made in stages differ, as those of a whole call may? Then its variables are joined by themselves. */
static bool apart(const fork *f) { return f->whole && f->stages->last; }

/* The way that is being recorded has come to the end of a stage: what the variables hold becomes one of the kinds there. False: it cannot be handed on,
 * or these are too many. */
static bool note_kind(fork *f) {
  qn_vm *vm = f->vm;
  stages *s = f->stages;
  kinds *next = &s->next;
  const int n = apart(f) ? 0 : f->rebound.n;
  text_buf signs = {.vm = vm};
  qn_list *l = list_new(vm, (size_t)n + 1);
  if (!l) return false;
  const int unread = s->last ? f->rebound.n - f->assigned.n : 0; /* of variables, the first ones */
  for (int i = unread; i < n; i++) l->items[i] = value_retain(*f->rebound.slots[i]);
  l->items[n] = value_retain(f->value);
  const qn_value v = value_obj(TAG_LIST, l);
  bool ok = sign(f, vm->rec, v, &signs) && sign_shared(f, vm->rec, NULL, 0, v, &signs) && !signs.failed;
  if (!ok && signs.failed) raise_memory(vm);
  uint32_t k = 0;
  while (ok && k < next->n && (signs.len != next->signs[k].len || memcmp(signs.text, next->signs[k].text, signs.len)))
    k++;
  const bool many =
      ok && (k == KINDS_MAX || (int64_t)k == vm->tune[TUNE_jit_ways] || (f->whole && s->last && k == RESULTS_MAX));
  if (many && rec_base(f->r)->of) rec_base(f->r)->of->many_ways = true;
  if (!ok || many) {
    text_free(&signs);
    value_release(vm, v);
    return false;
  }
  if (k == next->n)
    next->signs[next->n++] = signs;
  else
    text_free(&signs);
  for (int i = 0; i < KINDS_MAX; i++) take(vm, &next->values[i], value_unset());
  next->values[k] = v;
  take(vm, &f->value, value_nil());
  take(vm, &f->number, value_int((int64_t)k));
  for (int i = 0; i < n; i++) take(vm, f->rebound.slots[i], value_nil());
  return true;
}

static bool note_end(fork *f, way_end *end) {
  qn_value parts[END_PARTS] = {
      [END_VALUE] = value_nil(),        [END_RETURNED] = value_unset(),    [END_LEFT] = value_bool(false),
      [END_LEAVES] = value_bool(false), [END_RETURNS] = value_bool(false), [END_RAISES] = value_int(0),
      [END_WORDS] = value_unset(),      [END_HANDLED] = value_bool(false), [END_MISSED] = value_bool(false)};
  end->plain = true;
  return end_note(end, f->all, parts, NULL);
}

/* Joins the ends of a branch in r; their recordings are freed by the caller. False as in run_way. */
static bool join_ends(fork *f, struct recording *r, way_end *first, way_end *second, uint32_t predicate,
                      uint32_t site) {
  qn_vm *vm = f->vm;
  const uint32_t n = first->nheld;
  qn_value *joined = mem_zalloc(vm, (n + (size_t)1) * sizeof *joined);
  if (!joined) return false;
  way_end *const ends[2] = {first, second};
  first->r->g->tail = true;
  bool ok = ends_join(r, ends, f->all.n, false, predicate, site, joined, NULL) == REC_DONE;
  if (ok) slots_set(vm, f->all, joined);
  for (uint32_t i = 0; i < n; i++) value_release(vm, joined[i]);
  mem_free(vm, joined, (n + (size_t)1) * sizeof *joined);
  return ok;
}

/* Records one more way in r, behind a branch on whether the ones before are missed. False as in run_way. */
static bool add_way(fork *f, struct recording *r, way_choices *c, uint32_t site) {
  qn_vm *vm = f->vm;
  uint32_t predicate = rec_node(r, f->missed);
  if (!predicate || !(f->kept = slots_keep(vm, f->all)) || !(f->ends[0].r = rec_arm_begin(r, NULL))) return false;
  struct recording *arm = f->ends[0].r;
  slots_set(vm, f->rebound, f->stages ? f->stages->at : f->before);
  bool ok = run_way(f, c), counts = ok && !c->again && !is_bool(f->missed, true);
  ok = ok && (!counts ||
              ((f->stages ? note_kind(f) : shares_alike(f, false) && note_result(f, arm)) && note_end(f, &f->ends[0])));
  rec_arm_end(arm);
  slots_set(vm, f->all, f->kept);
  if (ok && counts) {
    ok = (f->ends[1].r = rec_arm_begin(r, arm)) != NULL;
    take(vm, &f->missed, value_bool(false)); /* as it is there */
    ok = ok && note_end(f, &f->ends[1]);
    if (f->ends[1].r) rec_arm_end(f->ends[1].r);
    ok = ok && join_ends(f, r, &f->ends[0], &f->ends[1], predicate, site);
  }
  kept_free(f);
  end_free(vm, &f->ends[0]);
  end_free(vm, &f->ends[1]);
  return ok && !r->g->failed;
}

/* Is a part of which some ways have been recorded, all in one, to be made in stages, since several steps choose arms? */
static bool wants_stages(const fork *f) {
  uint32_t choosers = 0;
  for (uint32_t i = 0; i < f->nsteps && i < STEPS_MAX; i++) choosers += f->chose[i];
  return !f->stages && choosers > 1 && !error_pending(f->vm);
}

/* Records the ways behind the first one, which has (`ok`) come to its end, in r. False as in run_way; *split: the part is to be made in stages. */
static bool run_others(fork *f, struct recording *r, way_choices *c, uint32_t site, bool ok, bool *split);

/* Records all ways of the part in one. False as in run_way; *split as in run_others. */
static bool run_ways(fork *f, bool *split) {
  qn_vm *vm = f->vm;
  way_choices c = {.loop = &f->loop};
  uint32_t site = rec_site(f->arm);
  bool ok = run_way(f, &c) && !is_bool(f->missed, true) && shares_alike(f, true) && note_result(f, NULL);
  return run_others(f, f->arm, &c, site, ok && !error_pending(vm), split);
}

static bool run_others(fork *f, struct recording *r, way_choices *c, uint32_t site, bool ok, bool *split) {
  qn_vm *vm = f->vm;
  if (!ok && !f->stages && rec_base(r)->capturing && arms_refused(r) == REC_NOT_YET)
    *split = wants_stages(f); /* (too many choices, or some behind output) */
  for (int64_t n = 1; ok && !is_bool(f->missed, false) && way_next(c); n++) {
    if (f->stages && f->stages->again) return false;
    if ((*split = n >= FEW && wants_stages(f))) return false;
    const bool more = n >= vm->tune[TUNE_jit_ways];
    if (more && rec_base(f->r)->of) rec_base(f->r)->of->many_ways = true;
    ok = !more && !c->many && add_way(f, r, c, site);
    *split = !ok && f->around && wants_stages(f);
  }
  if (!ok || is_bool(f->missed, false) || !f->required) return ok;
  return way_may_exit(r) && way_expect(r, f->missed, false);
}

/* ---- stages ------------------------------------------------------------------------------------------------------------------------- */

/* The variables in which ways meet at the end of a stage. */
static void stage_slots(fork *f) {
  f->all.n = 0;
  if (apart(f))
    for (int i = 0; i < f->assigned.n; i++) f->all.slots[f->all.n++] = f->assigned.slots[i];
  f->all.slots[f->all.n++] = &f->missed;
  f->all.slots[f->all.n++] = &f->number;
  for (int k = 0; k < KINDS_MAX; k++) f->all.slots[f->all.n++] = &f->stages->next.values[k];
}

/* Records the ways of a stage that begins with kind k, in the recording in progress. */
static bool run_kind(fork *f, uint32_t k) {
  stages *s = f->stages;
  struct recording *r = f->vm->rec;
  way_choices c = {.n = 0};
  bool split = false;
  s->at = value_list(s->now.values[k])->items;
  slots_set(f->vm, f->rebound, s->at);
  take(f->vm, &f->missed, value_bool(true));
  f->required = false;
  bool ok = run_way(f, &c) && !is_bool(f->missed, true) && note_kind(f);
  return run_others(f, r, &c, rec_site(r), ok, &split);
}

/* Records a stage that begins with kind k, behind a branch on which kind it is; of two kinds both, one in each arm. */
static bool add_kind(fork *f, uint32_t k, uint32_t site) {
  qn_vm *vm = f->vm;
  stages *s = f->stages;
  struct recording *r = f->arm;
  qn_value is = op_binary(vm, OP_eq, s->which, value_int((int64_t)k));
  uint32_t predicate = value_is_error(is) ? 0 : rec_node(r, is);
  value_release(vm, is);
  if (!predicate || !(s->kept = slots_keep(vm, f->all))) return false;
  const bool both = s->now.n == 2;
  bool ok = true;
  for (int i = 0; i < 2 && ok; i++) {
    if (!(s->ends[i].r = rec_arm_begin(r, i ? s->ends[0].r : NULL))) return false;
    const bool runs = !i || both;
    ok = !runs || run_kind(f, k + (uint32_t)i);
    if (ok && !runs) take(vm, &f->missed, value_bool(false));
    ok = ok && vm->rec == s->ends[i].r && note_end(f, &s->ends[i]) && !s->ends[i].r->regions.n;
    rec_arm_end(s->ends[i].r);
    slots_set(vm, f->all, s->kept);
  }
  ok = ok && join_ends(f, r, &s->ends[0], &s->ends[1], predicate, site);
  slots_free(vm, f->all, s->kept);
  s->kept = NULL;
  for (int i = 0; i < 2; i++) end_free(vm, &s->ends[i]);
  return ok && !r->g->failed;
}

/* Records a stage. False as in run_way. */
static bool run_stage(fork *f) {
  stages *s = f->stages;
  uint32_t site = rec_site(f->arm);
  kinds_free(f->vm, &s->next);
  take(f->vm, &f->number, value_int(0));
  stage_slots(f);
  if (s->now.n == 1) return run_kind(f, 0);
  for (uint32_t k = 0; k < (s->now.n == 2 ? 1 : s->now.n); k++)
    if (!add_kind(f, k, site)) return false;
  return true;
}

/* Makes the part in stages: each ends before the next step in which arms are chosen, or where the part ends. False as in run_way. */
static bool run_stages(fork *f) {
  qn_vm *vm = f->vm;
  stages *s = f->stages = mem_zalloc(vm, sizeof *s);
  if (!s) return false;
  s->which = value_int(0);
  for (int k = 0; k < KINDS_MAX; k++) s->now.values[k] = s->next.values[k] = value_unset();
  qn_list *l = list_from(vm, f->before, (size_t)f->rebound.n);
  if (!l) return false;
  s->now.values[0] = value_obj(TAG_LIST, l);
  s->now.n = 1;
  for (f->from = 0;; f->from = f->to) {
    f->to = f->from + 1;
    while (f->to < f->nsteps && f->to < STEPS_MAX && !f->chose[f->to]) f->to++;
    if (f->to >= STEPS_MAX) f->to = f->nsteps;
    s->last = f->to == f->nsteps;
    if (!run_stage(f)) return false;
    if (s->next.n == 1 || (s->last && apart(f))) return true;
    if (s->last) { /* a way around it takes one of them */
      rec_at(vm, f->part->at);
      s->chosen = f->around ? way_choose(f->around, (int)s->next.n) : -1;
      return s->chosen >= 0;
    }
    take(vm, &s->which, value_retain(f->number));
    const kinds was = s->now;
    s->now = s->next;
    s->next = was;
  }
}

/* Begins the arm in which all is recorded. False with an error raised. */
static bool begin_arm(fork *f) {
  if (f->arm) { /* it was begun in vain */
    rec_arm_end(f->arm);
    slots_set(f->vm, f->rebound, f->before);
    rec_free(f->arm);
    take(f->vm, &f->missed, value_nil());
    take(f->vm, &f->value, value_nil());
    take(f->vm, &f->number, value_nil());
    for (int k = 0; k < RESULTS_MAX; k++) take(f->vm, &f->results[k], value_unset());
  }
  return (f->arm = rec_arm_begin(f->r, NULL)) != NULL;
}

/* Records the part. False as in run_way. */
static bool run_part(fork *f) {
  const rec_section *part = f->part;
  bool split = false;
  for (f->nsteps = 1; part->step && !part->step(part->run.ctx, f->nsteps - 1);) f->nsteps++;
  f->to = f->nsteps;
  if (!begin(f) || !begin_arm(f)) return false;
  if (run_ways(f, &split)) return true;
  while (split) {
    stages_free(f);
    if (!begin_arm(f)) return false;
    if (run_stages(f)) return true;
    split = f->stages && f->stages->again && rec_base(f->r)->capturing && arms_refused(f->r) == REC_NOT_YET;
  }
  return false;
}

/* The ways have joined the graph, and `made` are their values there. */
static bool go_on(fork *f, qn_value made, qn_value *result) {
  qn_vm *vm = f->vm;
  const qn_value *items = value_list(made)->items;
  int n = f->assigned.n;
  if (f->stages && !apart(f)) { /* one list of all variables, and the value; and which kind it is */
    const qn_value number = items[1];
    items = value_list(items[0])->items;
    const rec_slots set = f->stages->last ? f->assigned : f->rebound;
    slots_set(vm, set, items + (f->rebound.n - set.n)); /* (these are the last ones) */
    *result = value_retain(items[f->rebound.n]);
    if (!rec_appended(f->r)) return false;
    if (f->stages->next.n == 1) return true;
    qn_value is = op_binary(vm, OP_eq, number, value_int(f->stages->chosen));
    bool ok = !value_is_error(is) && way_require(vm, f->around, is, true);
    value_release(vm, is);
    return ok;
  }
  slots_set(vm, f->assigned, items);
  f->r->choice = f->nresults > 1;
  *result = value_retain(items[f->whole ? n + 1 : n]);
  if (f->r->choice) { /* their number, and all of them */
    qn_list *all = list_from(vm, items + n, 1 + (size_t)f->nresults);
    take(vm, result, all ? value_obj(TAG_LIST, all) : value_nil());
    if (!all) return false;
  }
  return rec_appended(f->r);
}

static rec_answer fork_once(struct recording *r, const rec_section *part, bool whole, const drawn_slots *slots,
                            qn_value *result) {
  qn_vm *vm = r->vm;
  fork f = {.vm = vm, .r = r, .part = part, .whole = whole, .rebound = slots->all, .last_fn = vm->last_fn};
  f.assigned = part->last || whole ? slots->own : slots->all;
  f.around = way_chooser_here(r);
  f.missed = f.value = f.number = value_nil();
  for (int k = 0; k < RESULTS_MAX; k++) f.results[k] = value_unset();
  qn_value values = value_nil();
  const uint64_t before = ways_begin(r);
  f.counted = true;
  vm_owned held, held_values;
  vm_own(vm, &held, fork_drop, &f);
  vm_own(vm, &held_values, vm_drop_value, &values);
  bool ok = run_part(&f) && !f.arm->regions.n && !f.arm->g->failed && arm_may_join(f.arm);
  if (ok && f.stages) {
    qn_value more[1 + RESULTS_MAX] = {f.number};
    const kinds *k = &f.stages->next;
    uint32_t n = 0;
    if (!apart(&f)) {
      const qn_value one[2] = {k->values[f.stages->chosen], f.number};
      ok = arm_values(f.arm, (rec_slots){NULL, 0}, one, 2, &values);
    } else {
      while (n < k->n) more[1 + n] = value_list(k->values[n])->items[0], n++;
      ok = arm_values(f.arm, f.assigned, more, 1 + (int)n, &values);
      f.nresults = n;
    }
  } else if (ok && whole) {
    qn_value more[1 + RESULTS_MAX] = {f.number};
    memcpy(more + 1, f.results, f.nresults * sizeof *more);
    ok = arm_values(f.arm, f.assigned, more, 1 + (int)f.nresults, &values);
  } else if (ok) {
    ok = arm_values(f.arm, f.assigned, &f.value, 1, &values);
  }
  if (f.arm) rec_arm_end(f.arm);
  if (f.before) slots_set(vm, f.rebound, f.before);
  rec_answer answer = REC_FAILED;
  if (!ok)
    answer = arms_refused(r);
  else if (!arm_splice(r, f.arm, &values))
    values = value_nil();
  else if (go_on(&f, values, result))
    answer = REC_DONE;
  else
    take(vm, result, value_error());
  vm_disown(vm, &held);
  value_release(vm, values);
  fork_free(&f);
  if (answer != REC_DONE) return answer;
  ways_used(r, before);
  if (part->step) (void)part->step(part->run.ctx, f.to - 1); /* (a way may have ended before, with an error) */
  return answer;
}

rec_answer fork_capture(struct recording *r, const rec_section *part, bool whole, qn_value *result) {
  if (!arms_possible(r) || vmap_aside(r) || r->vm->tune[TUNE_jit_ways] < 2 || ways_enough(r)) return REC_NOT_YET;
  drawn_slots s;
  rec_answer answer = REC_FAILED;
  do
    if (draws_begin(r, part->assigned, &s)) answer = fork_once(r, part, whole, &s, result);
  while (draws_again(r, answer));
  return answer;
}

/* Does the call that is recorded end with the function in progress, and do what follows and who made it see its result only? */
static bool ends_call(const struct recording *r) {
  return !r->arm && r->of && !r->home && !r->ncalls && !r->cut && !r->tries && !r->trying && !rec_derivatives(r);
}

int rec_fork_place(const qn_vm *vm) { return vm->rec && rec_derivatives(vm->rec); }

bool rec_forks_enough(const qn_vm *vm) { return vm->rec && ways_enough(vm->rec); }

bool rec_chooses(const qn_vm *vm) {
  const struct recording *r = vm->rec;
  return r && r->g && (way_chooser_here(r) || ends_call(r));
}

rec_answer rec_fork(qn_vm *vm, const rec_section *part, qn_value *result) {
  struct recording *r = vm->rec;
  if (!r || !r->g) return REC_NOT_YET;
  rec_at(vm, part->at);
  return fork_capture(r, part, part->last && ends_call(r), result);
}
