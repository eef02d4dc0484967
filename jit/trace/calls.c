/* rec_call: how a function is called whose anchor asks for it.
 *
 * While a function is cold its calls are counted and simply run; a function whose calls neither make nor change arrays stays cold. Once it is hot, a call
 * looks for a specialization whose pattern and guards it fits: first the one used last, then those with the hash of the call's static facts. The plan of the
 * specialization runs if it is faster than the interpreter (see the race below); while the plan is still being made, the interpreter runs the body. If no
 * specialization fits, the call is recorded, which costs about as much as running it, and the graph goes to the compiler threads (worker.c). After
 * jit.entries specializations or jit.misses recordings the function stays eager for all other calls, and the log says so. A specialization of symbolic sizes
 * has code that knows none of them; sizes that come to it often get one of their own. When a function's calls are short and stay eager, its anchor rests:
 * most calls are then not looked at at all. */
#include <stdio.h>
#include <string.h>

#include "jit/run/device.h"
#include "jit/run/plan_run.h"
#include "jit/trace/anchors.h"
#include "jit/trace/breaks.h"
#include "jit/trace/calls.h"
#include "jit/trace/forks.h"
#include "jit/trace/fullgraph.h"
#include "jit/trace/jobs.h"
#include "jit/trace/pattern.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/report.h"
#include "jit/trace/rewrites.h"
#include "jit/trace/sizes.h"
#include "jit/trace/specialization.h"
#include "jit/trace/stacked.h"
#include "jit/trace/tracers.h"
#include "jit/trace/trials.h"
#include "lang/trace_events.h"

/* ---- inputs ------------------------------------------------------------------------------------------------------------------ */

enum { INPUT_BYTES = sizeof(qn_value) + 2 * sizeof(qn_array *) + sizeof(qk_scalar) };

bool call_inputs_grow(qn_vm *vm, call_inputs *c, uint32_t n) {
  if (n <= CALL_INPUTS_FEW) {
    c->arrays = c->few_arrays;
    c->scalars = c->few_scalars;
    c->copies = c->few_copies;
    c->weak = c->few_weak;
    c->cap = CALL_INPUTS_FEW;
    return true;
  }
  call_inputs_free(vm, c);
  c->cap = 0;
  char *block = mem_alloc(vm, n * INPUT_BYTES);
  if (!block) return false;
  c->scalars = (qn_value *)block;
  c->arrays = (qn_array **)(c->scalars + n);
  c->copies = c->arrays + n;
  c->weak = (qk_scalar *)(c->copies + n);
  c->cap = n;
  return true;
}

void call_inputs_free(qn_vm *vm, call_inputs *c) {
  if (c->cap <= CALL_INPUTS_FEW) return;
  mem_free(vm, c->scalars, c->cap * INPUT_BYTES);
  c->cap = 0;
}

const qk_scalar *call_weak(call_inputs *c, uint32_t n) {
  uint32_t nweak = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (c->arrays[i]) continue;
    if (value_is(c->scalars[i], TAG_FLOAT))
      c->weak[nweak++].f = c->scalars[i].u.f;
    else
      c->weak[nweak++].i = c->scalars[i].u.i;
  }
  return c->weak;
}

int call_fits(qn_vm *vm, const specialization *e, const qn_value *args, int nargs) {
  call_inputs c;
  c.cap = 0;
  if (!call_inputs_room(vm, &c, e->pattern.ninputs)) return -1;
  int fit = pattern_match(&e->pattern, true, value_nil(), args, nargs, c.arrays, c.scalars, NULL);
  call_inputs_free(vm, &c);
  return fit;
}

/* Does the call fit the specialization? Then c holds its inputs. `why` (may be NULL) gets the first difference. */
static bool specialization_fits(qn_vm *vm, specialization *e, const rec_call_site *site, call_inputs *c,
                                text_buf *why) {
  uint64_t epoch = jit_of(vm)->epoch;
  if (e->epoch != epoch && e->outdated) {
    if (why) text_adds(why, "patterns have changed");
    return false;
  }
  c->flat = false;
  bool quick = e->pattern.checks && !why &&
               pattern_match_quick(&e->pattern, e->epoch != epoch, site->fn, site->args, site->nargs, c->arrays,
                                   c->scalars, &c->flat);
  if (!quick &&
      !pattern_match(&e->pattern, e->epoch != epoch, site->fn, site->args, site->nargs, c->arrays, c->scalars, why))
    return false;
  if (e->pattern.sizes && e->nguards && !specialization_sizes_made(vm, e, c->arrays, c->scalars)) return false;
  if (e->pattern.sizes && !pattern_sizes_hold(vm, &e->pattern, c->arrays, c->scalars, why)) return false;
  uint32_t random = e->random[RANDOM_DRAW] | e->random[RANDOM_KEY] | e->random[RANDOM_KEY + 1];
  for (int i = 0; random && i < RANDOM_INPUTS; i++)
    if (e->random[i]) {
      c->arrays[e->random[i] - 1] = NULL;
      c->scalars[e->random[i] - 1] = value_int((int64_t)(i == RANDOM_DRAW  ? vm->draw
                                                         : i == RANDOM_KEY ? vm->seed & 0xffffffffu
                                                                           : vm->seed >> 32));
    }
  if (e->nguards && !specialization_guards_hold(vm, e, c->scalars, why)) return false;
  e->epoch = epoch;
  return true;
}

/* ---- replay ------------------------------------------------------------------------------------------------------------------ */

/* What a replay owns while its plan runs, besides the inputs. */
typedef struct replay_owned {
  call_inputs *c;
  tap_run *taps;
  uint32_t ncopies; /* how many inputs have been copied */
  qn_value *out;    /* room for outputs that were allocated, or NULL */
  size_t bytes;
} replay_owned;

static void replay_drop(qn_vm *vm, void *what) {
  const replay_owned *own = what;
  for (uint32_t i = own->ncopies; i-- > 0;) value_release(vm, value_obj(TAG_ARRAY, own->c->copies[i]));
  if (own->out) mem_free(vm, own->out, own->bytes);
}

/* For vm_own: a tap may call the host. */
static void replay_left(qn_vm *vm, void *what) {
  replay_drop(vm, what);
  tap_run_end(((replay_owned *)what)->taps);
  call_inputs_free(vm, ((replay_owned *)what)->c);
}

/* The result of a call whose plan has given these outputs, which it takes over. */
static qn_value result_of(qn_vm *vm, const specialization *e, const rec_call_site *site, const qn_value *out,
                          uint32_t n) {
  if (n == 1 && template_is_output(&e->result)) return out[0];
  call_values call = {&e->pattern, site->fn, site->args};
  qn_value result = template_build(vm, &e->result, out, &call);
  for (uint32_t i = 0; i < n; i++) value_release(vm, out[i]);
  return e->result.stacks ? stacked_captures(vm, stacked_results(vm, result)) : result;
}

/* The random numbers behind a call whose plan has given these outputs. */
static random_state random_behind(const qn_vm *vm, const specialization *e, const qn_value *out) {
  random_state s = {vm->seed, vm->draw + e->ndraws};
  const uint32_t *at = e->drawn, *key = &e->drawn[RANDOM_KEY];
  if (at[RANDOM_DRAW]) s.draw = (uint64_t)out[at[RANDOM_DRAW] - 1].u.i;
  if (key[0]) s.seed = (s.seed & ~UINT64_C(0xffffffff)) | (uint64_t)out[key[0] - 1].u.i;
  if (key[1]) s.seed = (s.seed & 0xffffffffu) | (uint64_t)out[key[1] - 1].u.i << 32;
  return s;
}

qn_value call_replay(qn_vm *vm, specialization *e, const rec_call_site *site, call_inputs *c, tap_run *taps) {
  enum { FEW_OUTPUTS = 16 };
  plan *p = e->plan->plan;
  uint32_t n = e->pattern.ninputs, nout = p->noutputs;
  qn_value few[FEW_OUTPUTS], *out = few, result = value_error();
  replay_owned own = {.c = c, .taps = taps, .bytes = nout * sizeof *out};
  if (nout > FEW_OUTPUTS && !(out = own.out = mem_alloc(vm, own.bytes))) return result;
  const qk_scalar *weak = c->flat ? NULL : call_weak(c, n);
  bool ok = true;
  for (uint32_t i = 0; i < n && !c->flat && ok; i++) {
    if (!c->arrays[i] || c->arrays[i]->contiguous) continue;
    qn_array *flat = array_contiguous(vm, c->arrays[i]);
    if (!(ok = flat != NULL)) break;
    c->arrays[i] = c->copies[own.ncopies++] = flat;
    if (vm_logs(vm, LOG_copies) && !e->reported_copies) log_copy(vm, site->anchor->name, e, i);
  }
  e->reported_copies |= own.ncopies != 0;
  vm_owned held;
  if (p->taps) vm_own(vm, &held, replay_left, &own);
  ok = ok && plan_run(vm, p, &e->there, c->arrays, weak, &taps->plan, out);
  if (p->taps) vm_disown(vm, &held);
  if (ok) {
    random_state now = random_behind(vm, e, out);
    result = result_of(vm, e, site, out, nout);
    /* if building failed, the interpreter makes the call again, with the same random numbers */
    if (!value_is_error(result)) random_restore(vm, now);
  }
  replay_drop(vm, &own);
  return result;
}

/* For vm_own: the host has left. */
static void taps_left(qn_vm *vm, void *taps) {
  (void)vm;
  tap_run_end(taps);
}

/* Makes a call in the interpreter, of which the first taps have been made already. Ends their run. */
static qn_value run_from_tap(qn_vm *vm, const rec_call_site *site, tap_run *taps) {
  tap_frame frame;
  vm_owned held;
  tap_frame_enter(vm, &frame, taps->plan.made, &taps->plan.read, NULL);
  vm_own(vm, &held, taps_left, taps);
  qn_value result = site_run(site);
  vm_disown(vm, &held);
  tap_frame_leave(vm, &frame);
  tap_run_end(taps);
  return result;
}

/* ---- calls in the interpreter -------------------------------------------------------------------------------------------------- */

/* Counts a call that the interpreter makes. `why`: why it stays eager; BREAK_none: the function is not hot yet, or the call is only made around a compiled one. */
static void count_plain(qn_vm *vm, jit_anchor *a, break_reason why) {
  anchor_specializations *list = anchor_specializations_of(vm, a);
  if (!list) {
    error_clear(vm);
    anchor_passed(a);
  } else if (why != BREAK_none) {
    list->refused[why]++;
  } else {
    list->calls[a->state == ANCHOR_NEVER ? CALL_within : vm->asked.alone ? CALL_around : CALL_early]++;
  }
}

/* May the interpreter make the call again? Then the error is cleared: it comes again, with operands and trace, unless only memory was short. */
static bool error_repeats(qn_vm *vm) {
  if (!error_catchable(vm)) return false;
  error_clear(vm);
  return true;
}

/* Leaves word for explain, which may have asked for this call: the specialization that served it, or NULL and the reason why none did. */
static void answer(qn_vm *vm, specialization *served, break_reason refused) {
  vm->asked.served = served;
  vm->asked.refused = refused;
}

/* Makes a call in the interpreter. */
static qn_value run_call(qn_vm *vm, const rec_call_site *site) {
  int64_t begin = trace_events_begin(vm->engine);
  qn_value result = site_run(site);
  trace_events_end(vm->engine, TRACE_EVENTS_call, site->anchor->name, begin, NULL, 0);
  return result;
}

/* Makes a call that no specialization serves in the interpreter. */
static qn_value run_plain(qn_vm *vm, const rec_call_site *site, break_reason why) {
  count_plain(vm, site->anchor, why);
  qn_value result = run_call(vm, site);
  answer(vm, NULL, why);
  return result;
}

static bool keep_call(qn_vm *vm, const rec_call_site *site) {
  qn_list *l = list_from(vm, site->args, (size_t)site->nargs);
  if (!l) return false;
  vm->asked.watched = NULL; /* calls inside this one are not what was asked for */
  vm->asked.watched_fn = value_retain(site->fn);
  vm->asked.watched_args = value_obj(TAG_LIST, l);
  return true;
}

/* Makes a call of a function that has not been recorded yet, and notes whether it made or changed arrays. */
static qn_value run_watched(qn_vm *vm, const rec_call_site *site, anchor_specializations *list) {
  uint64_t before = vm->arrays_made;
  list->calls[CALL_early]++;
  qn_value result = run_call(vm, site);
  list->watched = true;
  list->computes |= vm->arrays_made != before;
  return result;
}

/* Makes a call of a hot function none of whose watched calls made or changed arrays. The next watched call comes after twice as many others as last time. */
static qn_value run_quiet(qn_vm *vm, const rec_call_site *site, anchor_specializations *list) {
  enum { QUIET_DOUBLED = 6 };
  site->anchor->countdown = 1 << list->quiet;
  qn_value result = run_watched(vm, site, list);
  if (list->computes)
    site->anchor->countdown = 0;
  else if (list->quiet < QUIET_DOUBLED)
    list->quiet++;
  answer(vm, NULL, BREAK_no_arrays);
  return result;
}

/* ---- which way a call takes ---------------------------------------------------------------------------------------------
 *
 * The JIT may not make a program slower, so a plan has to earn its place: calls are done in both ways in turn, and timed; the way whose fastest call took
 * less stays. A round of this begins when the plan is there (the block VM runs it), again when its kernels are compiled, and from time to time after that,
 * the more seldom the clearer and the older the outcome: what rounds after the first take more than the faster way alone is a hundredth of the calls
 * between them.
 *
 * jit(f, mode: "reduce-overhead") asks for no race once the kernels are compiled: calls look at no clock, and the quickest way stays open.
 *
 * Where calls are frequent, other plans are tried against the one in use, too (trials.h).
 *
 * --jit sync and --jit verify run every plan that there is and never look at a clock. On a device launches return before the work is done, so time tells
 * nothing: its plans run as soon as their kernels are compiled, and not before. */

enum {
  RACE_CALLS = 8,     /* calls of one round, at most */
  RACE_CLEAR = 50000, /* ns: when calls take longer than this, fewer of them show which way is faster */
  /* hits of the specialization between two rounds: after the first round, and if both ways took as long */
  RACE_REST = 128
};

static void race_over(const qn_vm *vm, specialization *e, int64_t fast, int64_t slow) {
  race *r = &e->race;
  r->calls = RACE_CALLS;
  r->eager = (double)r->least[0] * 100 > (double)r->least[1] * (double)vm->tune[TUNE_jit_earn];
  double wait = (double)((uint64_t)RACE_REST << r->rounds) * ((double)slow / (double)(fast > 0 ? fast : 1));
  r->again = wait < 1e15 ? e->hits + (uint64_t)wait : UINT64_MAX;
  if (r->rounds < 20) r->rounds++;
}

/* Notes how many nanoseconds a call of the round took. The last one ends the round. */
static void race_note(const qn_vm *vm, specialization *e, int64_t took) {
  race *r = &e->race;
  int64_t *least = &r->least[r->calls % 2];
  if (r->calls < 2 || took < *least) *least = took;
  if (++r->calls % 2) return;
  bool eager = r->least[1] < r->least[0];
  int64_t fast = r->least[eager], slow = r->least[!eager];
  /* the first run of a plan makes things (buffers, say) that later ones find */
  bool clear = slow > RACE_CLEAR && slow > 2 * fast && (!eager || r->calls >= 4);
  if (clear || r->calls >= RACE_CALLS) race_over(vm, e, fast, slow);
}

static bool race_on(const qn_vm *vm, const specialization *e) {
  return vm->config.jit == QN_JIT_ON && e->state == SPEC_READY && !e->device && e->race.calls < RACE_CALLS &&
         !specialization_rewritten(e) && !(e->mode == REC_AT_HAND && e->race.code);
}

/* Is the plan to run (true), or the interpreter (false)? *timed: the call is part of a round, and must be timed. */
static bool runs_now(qn_vm *vm, const anchor_specializations *list, specialization *e, bool *timed) {
  bool wait = vm->config.jit == QN_JIT_SYNC || vm->config.jit == QN_JIT_VERIFY;
  *timed = false;
  if (e->device) return plan_ready(vm, e->plan->plan, &e->there, e->device, wait);
  if (wait || specialization_rewritten(e)) return true;
  race *r = &e->race;
  if (!r->code && plan_has_best_code(vm, e->plan)) *r = (race){.code = true};
  if (r->code && e->mode == REC_AT_HAND) return true;
  /* calls so short that they would not earn back what the block VM prepares for a plan */
  if (!r->code && list->streak) return false;
  *timed = r->calls < RACE_CALLS;
  return *timed ? r->calls % 2 == 0 : !r->eager;
}

bool specialization_stays_eager(const specialization *e) { return e->race.code && e->race.eager; }

/* Looking up a specialization may take longer than a short call (jit.short), and a notable part of a longer one whose arguments hold much, as
 * trees do. So after a streak of short calls that stayed eager the anchor rests: it lets so many calls pass without looking at them, unless one
 * with larger arrays comes. It also rests if looking was in vain so often, and plans have gained little beside that. */
enum {
  REST_STREAK = 16,
  REST_CALLS = 64, /* calls of the first rest; each further rest of short ones is twice as long */
  REST_DOUBLED = 4,
  LOOKED_PART = 32, /* looking may take this part of a call that stays eager */
  GAINED_LEAST = 4  /* times what looking in vain takes: races compare calls of several sizes, so they are not sharp */
};

typedef struct short_call {
  int64_t begin, looked; /* when it began, and how long looking took (ns) */
  int64_t elements;      /* how many the arrays among its arguments have */
} short_call;

/* Called before a call that stays eager, which began at `came` (ns; 0: nobody has looked at a clock): may its anchor rest if the call is short? */
static bool rest_begin(const qn_vm *vm, const rec_call_site *site, int64_t came, short_call *c) {
  if (vm->config.jit != QN_JIT_ON || !site->rests) return false;
  c->elements = 0;
  for (int i = 0; i < site->nargs; i++) {
    if (!value_is(site->args[i], TAG_ARRAY)) continue;
    /* as in races, the clock tells nothing about work on a device */
    if (value_array(site->args[i])->device) return false;
    c->elements += value_array(site->args[i])->size;
  }
  if (!c->elements && vm->device) return false;
  c->begin = trace_events_now();
  c->looked = came ? c->begin - came : 0;
  return true;
}

static void rest(jit_anchor *a, const anchor_specializations *list, uint32_t doubled) {
  a->state = ANCHOR_RESTING;
  a->most = list->most;
  a->countdown = REST_CALLS << doubled;
}

static void rest_end(const qn_vm *vm, jit_anchor *a, anchor_specializations *list, const short_call *c) {
  if (a->state != ANCHOR_ACTIVE) return;
  int64_t took = trace_events_now() - c->begin;
  bool is_short = took < vm->tune[TUNE_jit_short] * 1000, vain = took < c->looked * LOOKED_PART;
  if (!is_short) list->streak = list->rests = 0;
  if (!is_short && !vain) return;
  if (c->elements > list->most) list->most = c->elements;
  if (is_short && ++list->streak >= REST_STREAK) {
    rest(a, list, list->rests);
    if (list->rests < REST_DOUBLED) list->rests++;
    return;
  }
  if (!vain) return;
  list->looked += c->looked;
  if (++list->vain < REST_STREAK) return;
  if (list->looked * GAINED_LEAST > anchor_plans_gained(list)) rest(a, list, 0);
  list->vain = 0;
  list->looked = 0;
}

/* ---- recording a call -------------------------------------------------------------------------------------------------------- */

/* Replaces the arguments by tracers; *fn gets the tracer of the function, owned. False with an error raised. */
static bool trace_call(struct recording *r, const rec_call_site *site, qn_value *fn) {
  *fn = value_error();
  for (int i = 0; i < site->nargs; i++) {
    qn_str *name = site->name ? site->name(site->ctx, i) : argument_name(r->vm, site->fn, i, site->nargs);
    if (!pattern_add_name(r->vm, &r->pattern, name)) return false;
  }
  *fn = pattern_root(r, ROOT_FN, site->fn, NULL, NULL, NULL);
  for (int i = 0; i < site->nargs && !value_is_error(*fn); i++) {
    qn_value s = pattern_root(r, ROOT_ARG, site->args[i], NULL, NULL, r->pattern.names[i]);
    if (value_is_error(s)) {
      value_release(r->vm, *fn);
      return false;
    }
    if (value_is(s, TAG_ARRAY))
      value_release(r->vm, site->args[i]);
    else
      r->pattern.roots[r->pattern.nroots - 1].given = site->args[i];
    site->args[i] = s;
  }
  for (int i = 0; i < site->cells.n + site->ngrown && !value_is_error(*fn); i++) {
    uint32_t is = i < site->cells.n ? GLOBAL_CARRIED : GLOBAL_GROWN;
    if (key_add(r->vm, &r->globals, (uintptr_t)site->cells.slots[i], is)) continue;
    value_release(r->vm, *fn);
    return false;
  }
  return !value_is_error(*fn);
}

/* May sizes of the call be symbolic in a recording of it? */
static bool may_vary(const qn_vm *vm, const rec_call_site *site) {
  return vm->tune[TUNE_jit_symbolic] && site->symbolic != REC_NEVER && !value_is(vm->asked.watched_fn, TAG_FN);
}

/* Sizes that the function's signature names are to be symbols, unless the call is recorded for just its sizes. False with an error raised. */
static bool name_sizes(struct recording *r, const rec_call_site *site, uint64_t exact) {
  const named_sizes *sizes = site->anchor->sizes;
  if (!sizes || exact || !may_vary(r->vm, site)) return true;
  if (sizes->nnames && !(r->name_symbols = mem_zalloc(r->vm, sizes->nnames * sizeof *r->name_symbols))) return false;
  r->sizes = sizes;
  return true;
}

/* The arguments of a recorded call become what they were before: the body may have changed its parameters. */
static void restore_args(qn_vm *vm, const rec_call_site *site, const struct recording *r) {
  for (uint32_t i = 0; i < r->pattern.nroots; i++) {
    const root *x = &r->pattern.roots[i];
    if (x->kind != ROOT_ARG) continue;
    uint32_t node = value_is(x->tracer, TAG_ARRAY) ? rec_traced(r, x->tracer) : 0;
    qn_value v = node ? r->vals[node] : value_is(x->tracer, TAG_ARRAY) ? x->tracer : x->given;
    value_retain(v);
    value_release(vm, site->args[x->arg]);
    site->args[x->arg] = v;
  }
}

/* Ends a recorded call whose pending work has failed. If the program has seen nothing of it yet but taps, the interpreter makes the call again,
 * with the same random numbers: it fails in the same way, with a better error, unless only memory was short. Frees the recording. */
static qn_value call_again(qn_vm *vm, const rec_call_site *site, struct recording *r, random_state random) {
  bool memory = vm->error && vm->error->id == E_memory;
  bool again = (r->capturing || r->again) && error_repeats(vm);
  if (again) restore_args(vm, site, r);
  tap_run taps = r->tap_run;
  r->tap_run.plan.read = (struct readings){.n = 0};
  rec_free(r);
  if (!again) return tap_run_end(&taps), value_error();
  random_restore(vm, random);
  qn_value result = run_from_tap(vm, site, &taps);
  answer(vm, NULL, memory ? BREAK_memory : BREAK_errors);
  return result;
}

/* Hands the graph of a specialization to the compiler threads, which share it. What was recorded lies in memory of the VM, much of which its growth
 * has left unused: a copy takes its place, and the next recording that memory. False: it stays eager, since memory is short. */
static bool begin_plan(qn_vm *vm, const jit_anchor *a, specialization *e, bool sync) {
  if (e->graph->arena.vm) {
    graph *kept = graph_copy(e->graph);
    if (kept) graph_free(e->graph), e->graph = kept;
  }
  if (!e->graph->arena.vm && job_submit(vm, e, graph_share(e->graph), a->name, sync, NULL, 0)) return true;
  e->state = SPEC_BROKEN;
  e->why = BREAK_memory;
  error_clear(vm);
  return false;
}

static bool plans_at_once(const qn_vm *vm) {
  return vm->config.jit == QN_JIT_SYNC || vm->config.jit == QN_JIT_VERIFY || vm->asked.sync_once;
}

/* Begins to make the plan of a new specialization, and logs it. A graph that was only asked for gets its plan when a call fits it. */
static void compile_new(qn_vm *vm, const jit_anchor *a, specialization *e) {
  text_buf log TEXT_OWNED = {0};
  bool sync = plans_at_once(vm), broken = e->state == SPEC_BROKEN;
  bool later = !broken && value_is(vm->asked.watched_fn, TAG_FN);
  if (broken || later || begin_plan(vm, a, e, sync)) log_specialization(vm, a, e, &log);
  log_write(vm, &log);
  if (sync && !broken && !later) jit_drain(vm);
}

/* The recording broke off for a reason that every call of the function has: it stays eager from now on. */
static void give_up(qn_vm *vm, anchor_specializations *list, break_reason why) {
  list->anchor->state = ANCHOR_EAGER;
  list->gave_up = (uint8_t)why;
  list->anchor->countdown = INT32_MAX;
  if (vm_logs(vm, LOG_breaks))
    vm_logf(vm, LOG_breaks, "%s stays eager: %s", list->anchor->name ? list->anchor->name : "fn", break_reasons[why]);
}

/* A recorded call has failed with the pending error. If all of a function's do, it is recorded without bodies of try, and then no more. */
static void count_failure(qn_vm *vm, anchor_specializations *list, const struct recording *r) {
  enum { FAILURES = 8 };
  if (!error_catchable(vm) || vm->error->id == E_memory) return;
  const bool again = vm->error->id == E_no_graph && r->why_asking; /* calls like it are to fail, too (fullgraph.c) */
  list->misses -= again && list->misses > 0;
  if (again || ++list->failed < FAILURES) return;
  if (r->tried && !list->tries_apart)
    list->tries_apart = true, list->failed = 0;
  else
    give_up(vm, list, BREAK_errors);
}

/* As call_again, and counts the failure; not if the call was recorded although there is code that serves it (`exact`). */
static qn_value call_failed(qn_vm *vm, const rec_call_site *site, anchor_specializations *list, struct recording *r,
                            random_state random, bool exact) {
  enum { MISSED_MOST = 8 };
  const bool missed = (r->expects_end || r->expects_apart) && error_catchable(vm) && list->missed < MISSED_MOST;
  list->missed += missed;
  if (!exact && !missed) count_failure(vm, list, r);
  return call_again(vm, site, r, random);
}

/* A call that is left since loops inside two gradients made more turns than were counted is recorded for so many times as many, up to so many. */
enum { TURNS_MORE = 4, TURNS_COUNTED = 1 << 14 };

/* The recorded call has failed with the pending error. Has it only ended a loop with other kinds of values than was expected (states.c), or made more turns in lanes
 * than was guessed (kept_turns.c), and has nobody seen anything of it? Then it is recorded once more, in several ways, and if that does not help without such
 * loops; or for more turns: what it had is restored, and the recording freed. */
static bool ends_apart(qn_vm *vm, const rec_call_site *site, anchor_specializations *list, struct recording *r,
                       random_state random) {
  const bool before = list->ends_apart;
  if (!error_catchable(vm) || vm->error->id == E_memory) return false;
  const bool turns = r->guesses_turns && vm->error->id == E_div_zero && list->turns_counted < TURNS_COUNTED;
  if (!turns && (!r->expects_end || r->expects_apart || list->failed)) return false;
  if (turns)
    list->turns_counted *= TURNS_MORE;
  else
    list->ends_apart = true;
  if (!(r->capturing || r->again) || r->taps.n || r->tap_run.plan.made || list->restarts >= RESTARTS_MAX) return false;
  error_clear(vm);
  restore_args(vm, site, r);
  rec_free(r);
  random_restore(vm, random);
  if (!turns) list->failed = before;
  list->calls[CALL_recorded]--;
  list->restarts++;
  return true;
}

static void drop_specialization(qn_vm *vm, void *e) { specialization_free(vm, e); }
static void drop_wish(qn_vm *vm, void *wish) { size_wish_free(vm, wish); }

/* Applies the patterns to what was just recorded of a call with this result. Without memory for that such calls stay eager. False with an error
 * raised that nothing catches: then the specialization and the result are freed. */
static bool apply_patterns(qn_vm *vm, specialization *e, qn_value *result) {
  vm_owned held[2];
  vm_own(vm, &held[0], drop_specialization, e);
  vm_own(vm, &held[1], vm_drop_value, result);
  bool ok = rewrites_apply(vm, &e->graph, &e->regions, &e->rewritten);
  vm_disown(vm, &held[0]);
  if (ok) return true;
  if (error_catchable(vm)) {
    error_clear(vm);
    e->state = SPEC_BROKEN;
    e->why = BREAK_memory;
    return true;
  }
  specialization_free(vm, e);
  value_release(vm, *result);
  return false;
}

/* The result of a call without stacked lists. Owned; takes over `v`, which may be the error value. */
static qn_value plain_result(qn_vm *vm, qn_value v) {
  return value_is_error(v) || rec_plain(vm, &v) ? v : value_fail(vm, v);
}

/* A call that is recorded in several ways. */
typedef struct forked_call {
  qn_vm *vm;
  const rec_call_site *site;
} forked_call;

static qn_value run_site(void *ctx, rec_exit *how) {
  const forked_call *c = ctx;
  qn_value v = plain_result(c->vm, c->site->run(c->site->ctx));
  if (value_is_error(v)) *how = REC_ERROR;
  return v;
}

/* Runs the call that is being recorded; in several ways, if its results may differ (forks.c). */
static qn_value run_recorded(struct recording *r, rec_call_site *site) {
  enum { ARGS_MOST = 64 };
  if (!r->of->forked || site->nargs > ARGS_MOST) {
    qn_value v = site->run(site->ctx);
    return value_is(r->vm->asked.watched_fn, TAG_FN) ? plain_result(r->vm, v) : v; /* graphs give no such lists */
  }
  forked_call call = {r->vm, site};
  qn_value *args[ARGS_MOST], result = value_nil();
  for (int i = 0; i < site->nargs; i++) args[i] = &site->args[i];
  const rec_section part = {
      .at = r->at, .run = {run_site, &call}, .assigned = {args, site->nargs}, .used = true, .last = !site->home};
  switch (fork_capture(r, &part, true, &result)) {
  case REC_DONE: return result;
  case REC_NOT_YET: return plain_result(r->vm, site->run(site->ctx));
  default: return value_error();
  }
}

/* Of the results of a call that has several (recording.choice; taken over): the one that it has. */
static qn_value chosen_result(qn_vm *vm, qn_value results) {
  const qn_list *l = value_list(results);
  qn_value one = value_retain(l->items[1 + l->items[0].u.i]);
  value_release(vm, results);
  return one;
}

/* Makes a call with a recording on, in which the sizes that `wish` (may be NULL) names are symbolic. If the recording was good, a
 * specialization is made of it. `exact`: the hash of the call's sizes if it is recorded for just these, else 0. *again: it is to be recorded once
 * more, and nothing has happened. *stacks: functions in the result, or in its error, may have captured stacked lists. */
static qn_value record_once(qn_vm *vm, rec_call_site *site, anchor_specializations *list, size_wish *wish,
                            uint64_t exact, bool *again, bool *stacks) {
  *again = *stacks = false;
  if (!stack_fill(site)) {
    if (!error_repeats(vm)) return value_error();
    return run_plain(vm, site, BREAK_memory);
  }
  uint64_t hash = pattern_hash(site->fn, site->args, site->nargs);
  struct recording *r = rec_begin(vm, true);
  if (!r) { /* without memory for a recording the interpreter may still manage the call */
    error_clear(vm);
    return run_plain(vm, site, BREAK_memory);
  }
  list->calls[CALL_recorded]++;
  jit_of(vm)->kept_now = jit_of(vm)->kept_most = 0;
  if (site->stacked && site->stacked->n) rec_note_stacked(vm);
  r->of = list;
  r->at = site->at;
  r->home = site->home;
  r->wish = wish;
  if (wish) memset(wish->symbols, 0, (wish->most + (size_t)1) * sizeof *wish->symbols); /* (of an earlier recording) */
  r->all_sizes = site->symbolic == REC_AT_ONCE && may_vary(vm, site);
  if (!name_sizes(r, site, exact)) {
    rec_free(r);
    error_clear(vm);
    return run_plain(vm, site, BREAK_memory);
  }
  qn_value fn = site->fn, tracer;
  if (!trace_call(r, site, &tracer)) {
    rec_free(r);
    return value_error();
  }
  bool complete = r->capturing; /* the capture went on to the end, so that the pattern describes the whole call */
  random_state random = random_kept(vm);
  vm_owned held, held_tracer;
  vm_own(vm, &held, rec_drop, r);
  vm_own(vm, &held_tracer, vm_drop_value, &tracer);
  site->fn = tracer;
  qn_value result = run_recorded(r, site);
  site->fn = fn;
  if (!value_is_error(result) && rec_now(vm) == r && r->capturing && !data_sizes_stay(r, result))
    result = value_fail(vm, result);
  vm_disown(vm, &held);
  value_release(vm, tracer);
  if (value_is_error(result) && r->restart && r->capturing && error_repeats(vm)) {
    restore_args(vm, site, r);
    rec_drop(vm, r);
    random_restore(vm, random);
    list->calls[CALL_recorded]--;
    list->restarts++;
    *again = true;
    return value_nil();
  }
  vm_own(vm, &held, rec_drop, r); /* what is pending may have effects, which the host may leave */
  vm_own(vm, &held_tracer, vm_drop_value, &result);
  bool failed = value_is_error(result);
  /* (the interpreter sees which ways lanes take, and may find that all take one) */
  if (failed && error_catchable(vm) && vm->error->id == E_not_batched) r->again |= r->capturing;
  if (failed) rec_end_failed(r);
  bool ended = failed || rec_end(r);
  *stacks = r->stacks;
  vm_disown(vm, &held);
  if ((failed ? r->again : !ended) && ends_apart(vm, site, list, r, random)) {
    if (!failed) value_release(vm, result);
    *again = true;
    return value_nil();
  }
  if (failed) {
    if (r->again) return call_failed(vm, site, list, r, random, exact);
    if (!exact) count_failure(vm, list, r);
    rec_free(r);
    return result;
  }
  if (!ended) {
    value_release(vm, result);
    return call_failed(vm, site, list, r, random, exact);
  }
  specialization *e = complete ? specialization_make(r, fn, result) : NULL;
  if (value_is_scalar(result)) result.head &= 0xff;
  if (r->choice) result = chosen_result(vm, result);
  break_reason why = complete ? BREAK_memory : r->why;
  if (e && (r->restart || r->retry) && (e->state == SPEC_BROKEN || r->expects_end) && list->restarts < RESTARTS_MAX)
    e->retry = true, list->restarts++;
  if (e && e->state == SPEC_BROKEN && r->why_asking) e->retry = true; /* (explain has asked: then it is no error) */
  if (e) e->kept_bytes = jit_of(vm)->kept_most;
  if (e && vm->asked.whole) fullgraph_note(vm, r, e);
  if (e) e->expects_end = r->expects_end, e->expects_turns = r->expects_turns, e->limits_turns = r->limits_turns;
  rec_free(r);
  if (!e) {
    if (complete)
      error_clear(vm); /* there was no memory for the specialization; the call itself went well */
    else if (!exact)
      give_up(vm, list, why);
    answer(vm, NULL, why);
    return result;
  }
  if (e->state != SPEC_BROKEN && rewrites_any(vm) && !apply_patterns(vm, e, &result)) return value_error();
  e->hash = (e->why == BREAK_no_arrays && pattern_any_text(&e->pattern)) || e->pattern.sizes ? 0 : hash;
  e->exact = exact;
  e->mode = site->mode;
  list->failed = 0;
  e = anchor_add(vm, list, e);
  answer(vm, e, BREAK_none);
  compile_new(vm, list->anchor, e);
  return result;
}

/* As record_once, until that is no more to be done. */
static qn_value record(qn_vm *vm, rec_call_site *site, anchor_specializations *list, size_wish *wish, uint64_t exact) {
  for (;;) {
    bool again, stacks;
    qn_value result = record_once(vm, site, list, wish, exact, &again, &stacks);
    if (!again) return stacks ? stacked_captures(vm, result) : result;
  }
}

/* Notes, for the log and for explain, that a call is going to be recorded although earlier ones that asked for the same were, and `why`. */
static void note_recording(qn_vm *vm, const rec_call_site *site, anchor_specializations *list, const char *why) {
  jit_anchor *a = site->anchor;
  int line;
  span at = site->at.source ? site->at : a->at;
  const char *name = place_line(vm, at, &line);
  if (mem_grow(vm, (void **)&list->recompiles, &list->recompiles_cap, list->nrecompiles + 1,
               sizeof *list->recompiles)) {
    struct miss *m = &list->recompiles[list->nrecompiles++];
    m->at = at;
    m->asked = jit_asked(site->fn);
    snprintf(m->text, sizeof m->text, "%s", why);
  } else {
    error_clear(vm);
  }
  if (vm_logs(vm, LOG_recompiles))
    vm_logf(vm, LOG_recompiles, "%s is recorded again: %s (%s:%d)", a->name ? a->name : "fn", why, name, line);
}

/* As note_recording, where no specialization fits. `why` may be NULL. False: there were too many; calls that nothing serves stay eager now. */
static bool note_miss(qn_vm *vm, const rec_call_site *site, anchor_specializations *list, const char *why) {
  const jit_anchor *a = site->anchor;
  if (why) note_recording(vm, site, list, why);
  if (list->count < (uint64_t)vm->tune[TUNE_jit_entries] && ++list->misses <= (uint64_t)vm->tune[TUNE_jit_misses])
    return true;
  list->full = true;
  if (vm_logs(vm, LOG_recompiles))
    vm_logf(vm, LOG_recompiles, "%s has too many call shapes (jit.entries, jit.misses): others stay eager",
            a->name ? a->name : "fn");
  return false;
}

/* Does the specialization have rules of derivatives (custom_grad)? These hold what their functions had captured when the call was recorded,
 * so they are not right for every call that the specialization serves; code does not need them. Who asks for a graph gets one that is
 * recorded anew. */
static bool specialization_has_rules(const specialization *e) {
  bool any = false;
  for (uint32_t i = 0; i < e->regions.n; i++) any |= e->regions.list[i].rule != NULL;
  return any;
}

/* Makes a call with a recording on, as record does. Takes over `wish`. */
static qn_value record_call(qn_vm *vm, rec_call_site *site, anchor_specializations *list, size_wish *wish,
                            uint64_t exact) {
  list->streak = list->rests = 0;
  int64_t begin = trace_events_begin(vm->engine);
  vm_owned held;
  if (wish) vm_own(vm, &held, drop_wish, wish);
  qn_value result = record(vm, site, list, wish, exact);
  result = stacked_results(vm, result);
  if (wish) {
    vm_disown(vm, &held);
    size_wish_free(vm, wish);
  }
  trace_events_end(vm->engine, TRACE_EVENTS_recording, site->anchor->name, begin, NULL, 0);
  return result;
}

/* ---- look-up ------------------------------------------------------------------------------------------------------------------ */

/* Why no specialization serves a call. */
typedef enum lookup_miss {
  MISS_new,   /* none fits the call */
  MISS_turns, /* one fitted, but calls have left it, since loops made more turns than it is for; it was dropped */
  MISS_ways,  /* one fitted, but it is known now where ways do not agree (specialization.retry); it was dropped */
  MISS_again, /* one fitted that had no graph; it was dropped, so that recording is tried again */
  /* likewise, but a graph is asked for, and needs the rules of this very call; or its recording ended at a call that must be one graph (BREAK_apart) */
  MISS_rules,
  MISS_memory /* memory for looking was short (no error is raised) */
} lookup_miss;

/* Is the code of a specialization for just some sizes there, and good? Until then one for any sizes serves its calls. */
static bool exact_serves(qn_vm *vm, specialization *e) {
  if (e->state != SPEC_READY) return false;
  if (e->device) return plan_ready(vm, e->plan->plan, &e->there, e->device, false);
  return plan_has_best_code(vm, e->plan) && !specialization_stays_eager(e);
}

/* Puts the specialization at *at in front of the list. */
static void put_first(anchor_specializations *list, specialization **at) {
  specialization *e = *at;
  *at = e->next;
  e->next = list->first;
  list->first = e;
}

/* The specialization that serves the call, with its inputs in c; NULL with the reason in *miss. It becomes the list's first unless it stays eager. */
static specialization *look_up(qn_vm *vm, const rec_call_site *site, anchor_specializations *list, call_inputs *c,
                               lookup_miss *miss) {
  uint64_t hash = 0;
  specialization **at = &list->first;
  *miss = MISS_new;
  for (specialization *e = list->first; e; at = &e->next, e = e->next) {
    if (!call_inputs_room(vm, c, e->pattern.ninputs)) {
      error_clear(vm);
      *miss = MISS_memory;
      return NULL;
    }
    if (e != list->first) {
      if (!hash) hash = pattern_hash(site->fn, site->args, site->nargs);
      if (e->hash && e->hash != hash) continue;
    }
    bool asked = value_is(vm->asked.watched_fn, TAG_FN);
    if (e->exact && !exact_serves(vm, e)) continue;
    if (asked && (e->tried || e->limits_turns)) continue;          /* and what may fail does */
    if (asked && (e->pattern.sizes || e->result.stacks)) continue; /* graphs of calls have plain sizes */
    if (!specialization_fits(vm, e, site, c, NULL)) continue;
    /* Recording is tried again where memory was short, or where somebody asks for a graph and nothing was computed on arrays. */
    bool retry =
        !list->full &&
        (e->retry || (e->state == SPEC_BROKEN && (e->why == BREAK_memory || (e->why == BREAK_no_arrays && asked))));
    bool own_rules = asked && specialization_has_rules(e);
    if ((retry || own_rules) && !e->running) {
      bool ways = e->retry, turns = ways && e->expects_turns, apart = ways && e->why == BREAK_apart;
      anchor_drop(vm, list, at);
      *miss = own_rules || apart ? MISS_rules : turns ? MISS_turns : ways ? MISS_ways : MISS_again;
      return NULL;
    }
    if (e != list->first && e->state != SPEC_BROKEN) put_first(list, at);
    return e;
  }
  return NULL;
}

/* ---- sizes that come often ----------------------------------------------------------------------------------------------------
 *
 * Code that knows its sizes is faster where these are small: rows that lie in registers, no rests of vectors to ask for. So sizes that come
 * often to a specialization for which they are symbols are recorded as they are, in a specialization of their own, and the other one serves
 * them until the new code is there. Which sizes come often is found as Misra and Gries do it ("Finding repeated elements", 1982): whatever comes
 * more often than each fifth time stays among four candidates. */

/* Does a specialization whose sizes are numbers serve calls like this one, of sizes that come often (`hash`)? Then it is the one for them. */
static bool exact_known(qn_vm *vm, const rec_call_site *site, anchor_specializations *list, uint64_t hash) {
  call_inputs c;
  c.cap = 0;
  bool found = false;
  for (specialization *e = list->first; e && !found; e = e->next) {
    bool may = e->state == SPEC_READY && !e->pattern.sizes && !e->exact && call_inputs_room(vm, &c, e->pattern.ninputs);
    found = may && specialization_fits(vm, e, site, &c, NULL);
    if (found) e->exact = hash, list->exact++;
  }
  call_inputs_free(vm, &c);
  error_clear(vm);
  return found;
}

/* The specialization that was made for just the sizes of a call which e fits, for which they are symbols; e itself if none serves yet. Either
 * way c has its inputs. *often: the hash of these sizes, if it is time to record the call for them; else 0. NULL: memory was short. */
static specialization *exact_for(qn_vm *vm, const rec_call_site *site, anchor_specializations *list, specialization *e,
                                 call_inputs *c, uint64_t *often) {
  *often = 0;
  int64_t limit = vm->tune[TUNE_jit_hot_sizes];
  if (!limit || site->symbolic == REC_AT_ONCE || list->stacked || list->nplaces) return e;
  uint64_t hash = pattern_sizes_hash(&e->pattern, c->arrays, c->scalars);
  bool made = false, looked = false;
  for (specialization **at = &list->first; *at && list->exact; at = &(*at)->next) {
    specialization *s = *at;
    if (s->exact != hash) continue;
    made = true;
    if (!exact_serves(vm, s)) continue;
    looked = true;
    if (!call_inputs_room(vm, c, s->pattern.ninputs) || !specialization_fits(vm, s, site, c, NULL)) continue;
    if (s != list->first) put_first(list, at);
    return s;
  }
  error_clear(vm);
  if (looked && (!call_inputs_room(vm, c, e->pattern.ninputs) || !specialization_fits(vm, e, site, c, NULL))) {
    error_clear(vm);
    return NULL;
  }
  bool may = !made && !vm->asked.sync_once && e->state == SPEC_READY && (e->device || plan_has_best_code(vm, e->plan));
  if (!may || !specialization_comes_often(e, hash, limit) || !trial_place(vm, list)) return e;
  bool known = exact_known(vm, site, list, hash) || list->full;
  if (!known && list->count < (uint64_t)vm->tune[TUNE_jit_entries]) *often = hash;
  return e;
}

/* Records a call for just its sizes, which e, whose inputs c has, serves. */
static qn_value record_exact(qn_vm *vm, rec_call_site *site, anchor_specializations *list, specialization *e,
                             call_inputs *c, uint64_t hash) {
  text_buf why TEXT_OWNED = {.vm = vm};
  pattern_print_size(&e->pattern, c->arrays, c->scalars, &why);
  text_adds(&why, " so often that it is plain now");
  text_add(&why, "", 1);
  error_clear(vm);
  note_recording(vm, site, list, why.failed ? "sizes that come often" : why.text);
  call_inputs_free(vm, c);
  return record_call(vm, site, list, NULL, hash);
}

/* May lists among the arguments of a call be stacked? (Not if it must be one graph: whether a stacked list will do is found out by recording it.) */
static bool may_stack(const qn_vm *vm, const rec_call_site *site) {
  return !op_deferred(vm) && !vm->asked.whole && may_vary(vm, site);
}

/* Would the call fit a specialization but for host numbers, of which there are some that it has guarded as sizes? */
static bool ints_apart(qn_vm *vm, const rec_call_site *site, const specialization *e, call_inputs *c) {
  const pattern *p = &e->pattern;
  if (!p->asked.n || !call_inputs_room(vm, c, p->ninputs)) return false;
  for (uint32_t i = 0; i < p->ninputs; i++) c->scalars[i] = value_nil(); /* of arrays, and what no argument is */
  return pattern_match(p, e->epoch != jit_of(vm)->epoch, site->fn, site->args, site->nargs, c->arrays, c->scalars,
                       NULL) &&
         (!p->sizes || (specialization_sizes_made(vm, e, c->arrays, c->scalars) &&
                        pattern_sizes_fill(vm, p, c->arrays, c->scalars))) &&
         !specialization_guards_hold(vm, e, c->scalars, NULL);
}

/* Would a call fit a specialization if some of its sizes were others? Then these become symbolic: the wish for its recording, owned, with the
 * reason in `why`. NULL: there is no such specialization. */
static size_wish *wish_for(qn_vm *vm, const rec_call_site *site, const anchor_specializations *list, call_inputs *c,
                           text_buf *why) {
  if (!may_vary(vm, site)) return NULL;
  for (specialization *e = list->first; e; e = e->next) {
    if (e->exact) continue; /* of its sizes more are plain than need be */
    if (e->asked != jit_asked(site->fn)) continue;
    size_wish *w = size_wish_of(vm, &e->pattern, e->epoch != jit_of(vm)->epoch, site->fn, site->args, site->nargs,
                                ints_apart(vm, site, e, c) ? c->scalars : NULL, why);
    if (!w) continue;
    if (!why->len && call_inputs_room(vm, c, e->pattern.ninputs)) specialization_fits(vm, e, site, c, why);
    error_clear(vm);
    return w;
  }
  error_clear(vm);
  why->len = 0;
  return NULL;
}

/* The wish for the recording of a call that differs from all before in more than sizes: what was symbolic the last time. Owned, or NULL. */
static size_wish *wish_like(qn_vm *vm, const rec_call_site *site, const anchor_specializations *list) {
  size_wish *w = NULL;
  if (!may_vary(vm, site)) return NULL;
  for (specialization *e = list->first; e && !w; e = e->next)
    if (!e->exact) w = size_wish_like(vm, &e->pattern);
  return w;
}

/* The length of the list in this place in an earlier call, if that was another one than now; else -1. */
static int64_t length_before(const anchor_specializations *list, uint32_t arg, qn_str *const *names, uint32_t depth,
                             int64_t now) {
  for (const specialization *e = list->first; e; e = e->next) {
    int64_t before = pattern_list_length(&e->pattern, arg, names, depth);
    if (before >= 0 && before != now) return before;
  }
  return -1;
}

/* How many bytes of arrays a value holds, up to `most`. */
static int64_t bytes_held(qn_value v, int depth, int64_t most) {
  if (value_is(v, TAG_ARRAY)) return value_array(v)->size * (int64_t)dtype_size((qn_dtype)value_array(v)->dtype);
  if (!value_is(v, TAG_LIST) && !value_is(v, TAG_RECORD)) return 0;
  if (!depth) return most;
  uint32_t n;
  const qn_value *parts = value_parts(v.u.p, &n);
  int64_t bytes = 0;
  for (uint32_t i = 0; i < n && bytes < most; i++) bytes += bytes_held(parts[i], depth - 1, most);
  return bytes < most ? bytes : most;
}

/* Would a list be a large part of what the pattern of a call may hold, or too much for it? Or has it many small items, whose copies cost less than
 * kernels with an operand for each? Such lists are stacked at the first recording. */
static bool is_long(const qn_vm *vm, qn_value list) {
  enum { PART = 8, MANY = 64, DEPTH = 3, SMALL = 1024 /* bytes */ };
  const qn_list *l = value_list(list);
  if (l->len > (uint64_t)vm->tune[TUNE_jit_leaves] / PART) return true;
  return l->len > MANY && !value_is_stacked(list) && bytes_held(l->items[0], DEPTH, SMALL) < SMALL;
}

static bool place_known(const anchor_specializations *list, uint32_t arg, qn_str *const *names, uint32_t depth) {
  for (uint32_t i = 0; i < list->nplaces; i++) {
    const stack_place *p = &list->places[i];
    bool same = p->arg == arg && p->depth == depth;
    for (uint32_t k = 0; k < depth && same; k++) same = str_equal(p->names[k], names[k]);
    if (same) return true;
  }
  return false;
}

/* Notes the places in a record (argument `arg`, below names[0] to names[depth - 1]) whose lists have other lengths than before (before[]; -1: that is
 * not known), or are long. */
static void find_places(qn_vm *vm, anchor_specializations *list, uint32_t arg, qn_value v, qn_str **names,
                        uint32_t depth, int64_t *before) {
  const qn_record *r = value_record(v);
  for (uint32_t i = 0; i < r->len && list->nplaces < PLACES_MAX; i++) {
    names[depth] = record_name(r, i);
    if (value_is(r->items[i], TAG_RECORD) && depth + 1 < PLACE_DEPTH)
      find_places(vm, list, arg, r->items[i], names, depth + 1, before);
    if (!value_is(r->items[i], TAG_LIST) || list->nplaces == PLACES_MAX || place_known(list, arg, names, depth + 1))
      continue;
    int64_t was = length_before(list, arg, names, depth + 1, value_list(r->items[i])->len);
    if (was < 0 && !is_long(vm, r->items[i])) continue;
    if (!list->places && !(list->places = mem_zalloc(vm, PLACES_MAX * sizeof *list->places))) return;
    stack_place *p = &list->places[list->nplaces];
    before[list->nplaces++] = was;
    list->stacks = true;
    *p = (stack_place){.arg = arg, .depth = depth + 1};
    for (uint32_t k = 0; k <= depth; k++) {
      p->names[k] = names[k];
      value_retain(value_obj(TAG_STR, names[k]));
    }
  }
}

/* Appends that a list in argument `arg`, or in place p of it, of now `now` items is stacked from now on; -1: not since it had `before` others. */
static void say_stacked(const anchor_specializations *list, uint32_t arg, const stack_place *p, int64_t before,
                        int64_t now, text_buf *why) {
  text_adds(why, "length of ");
  pattern_print_arg_name(&list->first->pattern, arg, why);
  for (uint32_t k = 0; p && k < p->depth; k++) text_addf(why, ".%s", p->names[k]->text);
  if (before >= 0)
    text_addf(why, " was %lld, now %lld; now symbolic", (long long)before, (long long)now);
  else
    text_addf(why, " is %lld; now symbolic", (long long)now);
}

/* Nothing serves a call. Lists among its arguments, and in records among these, whose lengths are others than in earlier calls, or that are long,
 * are stacked (stacked.c) from now on. If there were earlier recordings the reason for another one is that; appends it. */
static void stack_more(qn_vm *vm, rec_call_site *site, anchor_specializations *list, text_buf *why) {
  uint32_t wanted = 0, stackable = site->anchor->stackable & ~(list->stacked | list->apart);
  int64_t before[STACKABLE_MAX], before_in[PLACES_MAX];
  for (int i = 0; i < site->nargs && i < STACKABLE_MAX; i++) {
    if (!(stackable >> i & 1) || !value_is(site->args[i], TAG_LIST)) continue;
    before[i] = length_before(list, (uint32_t)i, NULL, 0, value_list(site->args[i])->len);
    if (before[i] >= 0 || is_long(vm, site->args[i])) wanted |= (uint32_t)1 << i;
  }
  uint32_t got = wanted ? stack_args(vm, site, wanted) : 0, places = list->nplaces;
  error_clear(vm);
  list->stacked |= got;
  list->stacks |= got != 0;
  for (int i = 0; i < STACKABLE_MAX && got && list->first; i++) {
    if (!(got >> i & 1)) continue;
    say_stacked(list, (uint32_t)i, NULL, before[i], value_array(stacked_lead(site->args[i]))->shape[0], why);
    break; /* one is enough */
  }
  qn_str *names[PLACE_DEPTH];
  for (int i = 0; i < site->nargs && site->anchor->trees; i++)
    if (value_is(site->args[i], TAG_RECORD)) find_places(vm, list, (uint32_t)i, site->args[i], names, 0, before_in);
  for (uint32_t i = places; i < list->nplaces; i++) {
    stack_place *p = &list->places[i];
    bool ok = stack_place_of(vm, site, p);
    p->apart = !ok;
    error_clear(vm);
    if (!ok || why->len || !list->first) continue;
    const stacked_args *s = site->stacked;
    say_stacked(list, p->arg, p, before_in[i], value_list(s->of[s->n - 1].list)->len, why);
  }
}

/* The least size in a call, where those of a specialization, which it fits but for sizes, are others; SIZES_MANY if there are none below 2. */
enum { SIZES_MANY = 2 };
static int64_t least_apart(const pattern *p, const int64_t *sizes) {
  int64_t least = SIZES_MANY;
  for (uint32_t i = 0; i < p->ndims; i++)
    if (sizes[i] != p->dims[i] && sizes[i] < least) least = sizes[i];
  return least;
}

/* How many specializations there may be for a call that nothing serves to be recorded. Sizes of 0 and 1 are never symbolic, and if they come on
 * several axes there are many calls that differ in which of them are so. These do not use up what other calls need: with an empty array a quarter of
 * jit.entries, with sizes of 1 three quarters. */
static uint64_t entries_for(qn_vm *vm, const rec_call_site *site, const anchor_specializations *list) {
  uint64_t all = (uint64_t)vm->tune[TUNE_jit_entries];
  int64_t least = -1; /* no specialization differs in sizes alone */
  for (const specialization *e = list->first; e && least < SIZES_MANY; e = e->next) {
    const pattern *p = &e->pattern;
    size_t bytes = (p->ndims + (size_t)1) * sizeof(int64_t);
    int64_t *sizes = mem_alloc(vm, bytes);
    if (!sizes) break;
    if (p->ndims) memcpy(sizes, p->dims, p->ndims * sizeof *sizes);
    if (pattern_match_but_sizes(p, true, site->fn, site->args, site->nargs, sizes)) {
      int64_t own = least_apart(p, sizes);
      if (own > least) least = own;
    }
    mem_free(vm, sizes, bytes);
  }
  error_clear(vm);
  return least == 0 ? all / 4 : least == 1 ? all - all / 4 : all;
}

/* Is a call that nothing serves to be recorded? If so, the reason (`why`, unless it has words already) is noted for the log and for explain,
 * and *wish (owned; may be NULL) says which sizes are to be symbolic. */
static bool is_recorded(qn_vm *vm, rec_call_site *site, anchor_specializations *list, call_inputs *c, lookup_miss miss,
                        size_wish **wish) {
  if (miss == MISS_rules) return true;
  if (list->full || miss == MISS_memory) return false;
  if (miss == MISS_again) return note_miss(vm, site, list, break_reasons[BREAK_memory]);
  if (miss == MISS_turns) return note_miss(vm, site, list, "a loop inside two gradients makes more turns");
  if (miss == MISS_ways) return note_miss(vm, site, list, "branches do not agree, which is known now");
  text_buf why TEXT_OWNED = {.vm = vm}; /* only now: finding the words of the reason takes longer than looking */
  if (site->stacked && may_stack(vm, site)) stack_more(vm, site, list, &why);
  if (!list->first) return true;
  specialization *like = list->first; /* of calls of the same jit(f, ...) */
  while (like && like->asked != jit_asked(site->fn)) like = like->next;
  if (!like) return note_miss(vm, site, list, NULL);
  bool asked = vm->asked.sync_once || value_is(vm->asked.watched_fn, TAG_FN); /* for the code of this very call */
  if (!asked && list->count < (uint64_t)vm->tune[TUNE_jit_entries] && list->count >= entries_for(vm, site, list))
    return false;
  if (!why.len) *wish = wish_for(vm, site, list, c, &why);
  if (!why.len && !*wish && call_inputs_room(vm, c, like->pattern.ninputs))
    specialization_fits(vm, like, site, c, &why);
  if (!*wish && !asked) *wish = wish_like(vm, site, list);
  if (!why.len) text_adds(&why, "a graph of this very call was asked for");
  text_add(&why, "", 1);
  error_clear(vm);
  return note_miss(vm, site, list, why.failed ? "another call shape" : why.text);
}

/* ---- the call ----------------------------------------------------------------------------------------------------------------- */

/* Makes a call in the interpreter that a specialization serves. `ready`: it has a plan; `timed`: the call is part of a race; `came`: as serve_call. */
static __attribute__((noinline)) qn_value serve_eager(qn_vm *vm, const rec_call_site *site,
                                                      anchor_specializations *list, specialization *e, bool ready,
                                                      bool timed, int64_t came) {
  /* the functions that it calls are parts of its own graph */
  bool alone = ready && !e->device && !specialization_stays_eager(e);
  bool late = ready && (e->device || !e->race.code);
  bool waits = late || e->state == SPEC_COMPILING;
  e->timed += timed;
  e->waited += !timed && waits;
  e->reentries += !timed && !waits;
  short_call c;
  bool rests = !timed && rest_begin(vm, site, waits ? 0 : came, &c);
  vm->asked.alone += alone;
  qn_value result = run_call(vm, site);
  vm->asked.alone -= alone;
  if (rests) rest_end(vm, site->anchor, list, &c);
  return result;
}

/* Counts that a call has left the plan. */
static void count_exit(specialization *e, exit_count x) {
  for (uint32_t i = 0; i < e->nleft; i++)
    if (e->left[i].at.source == x.at.source && e->left[i].at.start == x.at.start) {
      e->left[i].hits++;
      return;
    }
  if (e->left && e->nleft < EXITS_KEPT) e->left[e->nleft++] = x;
}

/* The plan has failed, with an error raised, behind these taps, whose run ends. If it is vague the error has not the place where the call has left, but if that is
 * one that the program raises, the interpreter comes to it. */
static qn_value leave_plan(qn_vm *vm, const rec_call_site *site, anchor_specializations *list, specialization *e,
                           tap_run *taps) {
  bool vague = taps->plan.vague;
  e->hits--, e->replays--;
  list->calls[CALL_again]++;
  if (!error_catchable(vm)) return tap_run_end(taps), value_error();
  exit_count left = {vm->error->at, (int)vm->error->id, 1};
  e->reentries++;
  if (!e->left) e->left = mem_alloc(vm, EXITS_KEPT * sizeof *e->left);
  error_clear(vm);
  const uint8_t state = list->anchor->state;
  list->anchor->state = ANCHOR_NEVER; /* (plans within plans for calls of itself would fill the C stack) */
  qn_value result = run_from_tap(vm, site, taps);
  if (list->anchor->state == ANCHOR_NEVER) list->anchor->state = state;
  if (vague && value_is_error(result) && error_catchable(vm) && vm->error->at.source) {
    left.at = vm->error->at;
    if (vm->error->id != (error_id)left.id) left.id = 0; /* a way that the graph has not ended with it */
  }
  if (e->expects_end && left.id == E_div_zero && !list->ends_apart) /* (likely the check of that) */
    list->ends_apart = e->retry = true;
  if (e->expects_turns && left.id == E_div_zero && !e->retry && list->turns_counted < TURNS_COUNTED) {
    list->turns_counted *= TURNS_MORE;
    e->retry = true;
  }
  count_exit(e, left);
  return result;
}

/* Until how many hits may serve_quick serve the calls of a specialization that has just been served by its plan? */
static uint64_t quick_until(const qn_vm *vm, const specialization *e, const call_inputs *c) {
  const plan *p = e->plan->plan;
  bool quick = c->flat && p->straight && !e->device && !e->pattern.sizes && !e->nguards && !e->ndraws &&
               !e->drawn[RANDOM_DRAW] && p->graph->ninputs <= PLAN_FEW;
  bool stays = vm->config.jit == QN_JIT_SYNC || specialization_rewritten(e) || (e->mode == REC_AT_HAND && e->race.code);
  bool won = e->race.code && e->race.calls >= RACE_CALLS && !e->race.eager;
  if (!quick || !(stays || won)) return 0;
  return stays || e->trial_at < e->race.again ? e->trial_at : e->race.again;
}

/* Serves the most common calls: a function of arrays, by kernels alone. It does what serve_call and serve_compiled do for
 * them. False: it cannot, and nothing has been done. */
static inline __attribute__((always_inline)) bool
serve_quick(qn_vm *vm, const rec_call_site *site, anchor_specializations *list, specialization *e, qn_value *result) {
  qn_array *inputs[PLAN_FEW];
  const plan *p = e->plan->plan;
  qn_value outputs[PLAN_FEW], *out = p->noutputs == 1 && template_is_output(&e->result) ? result : outputs;
  bool flat;
  if (e->epoch != jit_of(vm)->epoch || vm->config.jit == QN_JIT_VERIFY || vm->engine->trace_events ||
      value_is(vm->asked.watched_fn, TAG_FN) ||
      !pattern_match_quick(&e->pattern, false, site->fn, site->args, site->nargs, inputs, NULL, &flat) ||
      inputs[0]->device)
    return false;
  device_answer answered = plan_run_straight(vm, p, inputs, NULL, out);
  if (answered == DEVICE_REFUSES) return false;
  e->hits++, e->replays++;
  list->streak = list->rests = 0;
  if (answered == DEVICE_FAILS)
    *result = value_error();
  else if (out != result)
    *result = result_of(vm, e, site, out, p->noutputs);
  if (value_is_error(*result)) {
    e->running++;
    tap_run none;
    tap_run_begin(vm, &none, &e->taps, NULL);
    *result = leave_plan(vm, site, list, e, &none);
    e->running--;
  }
  answer(vm, e, BREAK_none);
  return true;
}

/* Makes a call by its plan. If that fails, nothing has happened yet but some taps, and the interpreter makes the whole call again without
 * these, so that an error comes with its operands and its trace. */
static qn_value serve_compiled(qn_vm *vm, const rec_call_site *site, anchor_specializations *list, specialization *e,
                               call_inputs *inputs) {
  e->replays++;
  list->streak = list->rests = 0;
  int64_t begin = trace_events_begin(vm->engine);
  tap_run taps;
  tap_run_begin(vm, &taps, &e->taps, NULL);
  taps.plan.brief = true;
  qn_value result = call_replay(vm, e, site, inputs, &taps);
  trace_events_end(vm->engine, TRACE_EVENTS_run, site->anchor->name, begin, "kernels", e->plan->plan->nkernels);
  if (!value_is_error(result)) return tap_run_end(&taps), result;
  call_inputs_free(vm, inputs);
  return leave_plan(vm, site, list, e, &taps);
}

/* Makes a call that a specialization serves. `came`: when the call began (ns), 0 if nobody has looked at the clock. */
static qn_value serve_call(qn_vm *vm, rec_call_site *site, anchor_specializations *list, specialization *e,
                           call_inputs *inputs, int64_t came) {
  e->hits++;
  e->running++;
  qn_value result;
  if (e->state == SPEC_COMPILING && !e->job && !value_is(vm->asked.watched_fn, TAG_FN) &&
      begin_plan(vm, list->anchor, e, plans_at_once(vm)) && plans_at_once(vm))
    jit_drain(vm);
  bool ready = e->state == SPEC_READY && vm->config.jit != QN_JIT_OFF, timed = false;
  bool now = ready && runs_now(vm, list, e, &timed);
  trial_turn trial = ready && !timed && e->hits >= e->trial_at ? trial_takes(vm, list, e) : TRIAL_NONE;
  now |= trial != TRIAL_NONE;
  /* an eager call needs no look-up, so the time of that counts for the plan */
  int64_t start = !timed && !trial ? 0 : timed && now && came ? came : trace_events_now();
  bool failed = now && !stack_fill(site);
  if (failed && error_repeats(vm)) now = failed = false;
  if (failed) {
    result = value_error();
  } else if (!now) {
    call_inputs_free(vm, inputs);
    result = serve_eager(vm, site, list, e, ready, timed, came);
  } else if (vm->config.jit == QN_JIT_VERIFY) {
    e->verified++;
    result = call_verified(vm, site, e, inputs);
  } else {
    if (trial == TRIAL_OTHER) trial_swap(e);
    result = serve_compiled(vm, site, list, e, inputs);
    int64_t took = trial ? trace_events_now() - start : 0;
    if (trial == TRIAL_OTHER) trial_swap(e);
    if (trial) trial_note(vm, e, took);
  }
  if (timed)
    race_note(vm, e, trace_events_now() - start);
  else if (ready && e->hits >= e->race.again)
    e->race.calls = 0;
  if (now && !value_is_error(result) && vm->config.jit != QN_JIT_VERIFY) e->quick_until = quick_until(vm, e, inputs);
  e->running--;
  answer(vm, e, BREAK_none);
  return result;
}

static bool has_code(const anchor_specializations *list) {
  for (const specialization *e = list->first; e; e = e->next)
    if (e->state != SPEC_BROKEN) return true;
  return false;
}

/* Makes a call in the interpreter, since the function has too many specializations to get another one. */
static qn_value run_beyond(qn_vm *vm, const rec_call_site *site, anchor_specializations *list) {
  short_call c;
  bool rests = rest_begin(vm, site, list->came, &c);
  qn_value result = run_plain(vm, site, BREAK_too_many_shapes);
  if (rests && !has_code(list)) c.begin = trace_events_now(); /* however long it took: looking is in vain */
  if (rests) rest_end(vm, site->anchor, list, &c);
  return result;
}

/* Makes a call of a function that is not hot. False if it has just become hot: then the call has not been made. */
static bool run_cold(qn_vm *vm, const rec_call_site *site, anchor_specializations *list, qn_value *result) {
  jit_anchor *a = site->anchor;
  if (!list->begun) { /* this is the first call */
    list->begun = true;
    a->countdown = (int32_t)vm->tune[TUNE_jit_hot] - 1;
  }
  bool cold = a->countdown > 0, quiet = list->watched && !list->computes && !vm->asked.sync_once;
  if (cold)
    *result = run_watched(vm, site, list);
  else if (quiet)
    *result = run_quiet(vm, site, list);
  else
    a->state = ANCHOR_ACTIVE;
  return cold || quiet;
}

/* May a list among the arguments of a call, or in records among these, be stacked? */
static bool has_list(const rec_call_site *site) {
  const jit_anchor *a = site->anchor;
  for (int i = 0; i < site->nargs; i++)
    if (value_is(site->args[i], TAG_LIST) ? i < STACKABLE_MAX && (a->stackable >> i & 1)
                                          : a->trees && value_is(site->args[i], TAG_RECORD))
      return true;
  return false;
}

/* Makes a call that nothing serves. Frees its inputs. */
static __attribute__((noinline)) qn_value miss_call(qn_vm *vm, rec_call_site *site, anchor_specializations *list,
                                                    call_inputs *inputs, lookup_miss miss) {
  size_wish *wish = NULL;
  bool recorded = is_recorded(vm, site, list, inputs, miss, &wish);
  call_inputs_free(vm, inputs);
  if (!recorded) {
    size_wish_free(vm, wish);
    return miss == MISS_memory ? run_plain(vm, site, BREAK_memory) : run_beyond(vm, site, list);
  }
  return record_call(vm, site, list, wish, 0);
}

static qn_value make_call(qn_vm *vm, rec_call_site *site, anchor_specializations *list);

/* Makes a call whose lists may be stacked; `inputs`: as miss_call, or NULL: it is looked up. */
static __attribute__((noinline, cold)) qn_value stacking(qn_vm *vm, rec_call_site *site, anchor_specializations *list,
                                                         call_inputs *inputs, lookup_miss miss) {
  stacked_args stacked = {.vm = vm};
  vm_owned held;
  vm_own(vm, &held, stacked_drop, &stacked);
  site->stacked = &stacked;
  if (!inputs && may_stack(vm, site)) {
    if (list->stacked) stack_args(vm, site, list->stacked);
    for (uint32_t i = 0; i < list->nplaces; i++) (void)stack_place_of(vm, site, &list->places[i]);
    error_clear(vm);
  }
  qn_value result = inputs ? miss_call(vm, site, list, inputs, miss) : make_call(vm, site, list);
  vm_disown(vm, &held);
  stack_undo(site);
  site->stacked = NULL;
  return result;
}

/* Is it to be known how long looking takes? Yes where calls may be eager. (Where there are more specializations, any of them may be in a race.) */
static bool clock_wanted(const qn_vm *vm, const specialization *first) {
  if (vm->config.jit != QN_JIT_ON || !first) return false;
  return first->next || first->state == SPEC_BROKEN || first->race.eager || race_on(vm, first);
}

/* Makes a call of a function that is hot. */
static qn_value make_call(qn_vm *vm, rec_call_site *site, anchor_specializations *list) {
  int64_t came = clock_wanted(vm, list->first) ? trace_events_now() : 0;
  call_inputs inputs;
  inputs.cap = 0;
  lookup_miss miss;
  uint64_t often = 0;
  specialization *e = look_up(vm, site, list, &inputs, &miss);
  if (e && e->pattern.sizes && !(e = exact_for(vm, site, list, e, &inputs, &often))) miss = MISS_memory;
  if (often) return record_exact(vm, site, list, e, &inputs, often);
  if (e) {
    qn_value result = serve_call(vm, site, list, e, &inputs, came);
    call_inputs_free(vm, &inputs);
    return result;
  }
  list->came = came;
  return site->stacked || !has_list(site) ? miss_call(vm, site, list, &inputs, miss)
                                          : stacking(vm, site, list, &inputs, miss);
}

qn_value rec_call(qn_vm *vm, rec_call_site *site) {
  jit_anchor *a = site->anchor;
  if (vm->asked.watched == a && !keep_call(vm, site)) {
    ((anchor_specializations *)a->entries)->refused[BREAK_memory]++; /* whoever asked has made the record */
    return value_error();
  }
  if (!vm->asked.sync_once && (vm->config.jit == QN_JIT_OFF || a->state == ANCHOR_NEVER)) {
    a->countdown = INT32_MAX;
    /* nothing is compiled, or this is inside a call that --jit verify makes in the interpreter */
    return run_plain(vm, site, BREAK_none);
  }
  if (vm->asked.nojit || vm->asked.alone) return run_plain(vm, site, vm->asked.nojit ? BREAK_nojit : BREAK_none);
  anchor_specializations *list = anchor_specializations_of(vm, a);
  if (!list) {
    error_clear(vm);
    return run_plain(vm, site, BREAK_memory);
  }
  qn_value result;
  if (a->state != ANCHOR_ACTIVE) {
    if (a->state == ANCHOR_COLD && run_cold(vm, site, list, &result)) return result;
    if (a->state == ANCHOR_RESTING) a->state = ANCHOR_ACTIVE;
  }
  if (atomic_load_explicit(&jit_of(vm)->box->mail, memory_order_relaxed)) jit_drain(vm);
  if (list->first && list->first->hits < list->first->quick_until && serve_quick(vm, site, list, list->first, &result))
    return result;
  return __builtin_expect(list->stacks, 0) ? stacking(vm, site, list, NULL, MISS_new) : make_call(vm, site, list);
}

/* ---- calls of jit/trace itself --------------------------------------------------------------------------------------------------- */

bool own_site_begin(own_site *c, qn_vm *vm, qn_value fn, const qn_value *args, int nargs, qn_value kwargs, span at,
                    qn_value **mark) {
  *mark = vm->sp;
  if (!vm_enter(vm, (size_t)nargs + 2)) return false;
  *vm->sp++ = value_retain(fn); /* keeps it alive: the anchor of a graph is freed with it */
  *c = (own_site){.vm = vm, .site = {.fn = fn, .args = vm->sp, .nargs = nargs + 1, .at = at, .ctx = c}};
  for (int i = 0; i < nargs; i++) *vm->sp++ = value_retain(args[i]);
  *vm->sp++ = value_retain(kwargs);
  return true;
}

/* ---- cancelling ---- */

void jit_cancel(qn_vm *vm) {
  for (anchor_specializations *a = jit_of(vm)->anchors; a; a = a->next)
    for (specialization **p = &a->first; *p;) {
      specialization *e = *p;
      bool compiling = e->plan && !e->device && !plan_has_best_code(vm, e->plan);
      if (e->state != SPEC_COMPILING && !compiling) {
        trial_cancel(vm, e);
        p = &e->next;
        continue;
      }
      a->misses = 0; /* what is dropped may be recorded again */
      a->full = false;
      anchor_drop(vm, a, p);
    }
  jobs_drop(vm);
}
