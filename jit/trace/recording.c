/* A recording: deferred execution. While one is on, ops append nodes to its graph and give pending arrays (recorder.c). Here is how a
 * recording begins and ends, what values its nodes have, and how pending nodes are executed.
 *
 * A recording keeps one reference to every array it made (vals). When something needs data, when an effect comes, and when the recording
 * ends, rec_run_pending executes pending nodes in program order by eager ops: those whose arrays somebody else holds (their reference count
 * is above one), what these depend on, and every node that can fail. So recording needs no second evaluator, errors keep their order, and
 * dead results cost nothing.
 *
 * A recording begun by rec_call also captures: it becomes a specialization, unless rec_break gives a reason why not. After such a break the
 * call goes on in plain eager execution; except while a gradient is in progress, which needs its graph to the end.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "jit/run/eager.h"
#include "jit/run/device.h"
#include "jit/run/gemm.h"
#include "jit/trace/anchors.h"
#include "jit/trace/breaks.h"
#include "jit/trace/nodes.h"
#include "jit/trace/pattern.h"
#include "jit/trace/products.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/vmap.h"

/* ---- life ------------------------------------------------------------------------------------------------------------------ */

/* The distance of node ids between two recordings that exist at the same time; no graph grows by so many nodes meanwhile. */
enum { NODES_APART = 1 << 16 };
static const uint32_t NODES_END = UINT32_MAX - ((uint32_t)1 << 28);

struct recording *rec_base(struct recording *r) {
  while (r->arm) r = r->outer;
  return r;
}

/* Gives a second arm the inputs that the first one has, for what that has captured. False with an error raised. */
static bool share_captures(struct recording *r, const struct recording *first) {
  r->carries = first->carries;
  for (uint32_t i = 0; i < first->g->ninputs; i++)
    if (!arm_operand(r, first->captures[i])) return false;
  return true;
}

struct recording *rec_arm_begin(struct recording *outer, const struct recording *first) {
  qn_vm *vm = outer->vm;
  struct recording *r = rec_begin(vm, false);
  if (!r) {
    vm->rec = outer;
    return NULL;
  }
  jit_of(vm)->recordings--;
  r->arm = r->hollow = true;
  /* the ids of both arms must differ, since both are compared in the end */
  if (first) r->base = first->base + first->g->n + NODES_APART;
  r->counts_turns = turns_count_in_arms(outer);
  r->device = outer->device;
  r->placed = outer->placed;
  r->last_fn = outer->last_fn;
  r->at = outer->at;
  /* Its nodes get their places under the calls that are in progress. */
  uint32_t up[32], n = 0;
  for (uint32_t s = outer->parent; s && n < 32; s = outer->g->sites[s].parent) up[n++] = s;
  while (n-- > 0) {
    const graph_site *s = &outer->g->sites[up[n]];
    r->parent = graph_site_add(r->g, s->at, r->parent, s->function, false);
  }
  if (!first || share_captures(r, first)) return r;
  rec_free(r);
  vm->rec = outer;
  return NULL;
}

/* Gives arrays that belong to the outer recording their nodes there back. */
static void give_back(struct recording *r) {
  while (r->nborrowed) {
    const struct borrowed *b = &r->borrowed[--r->nborrowed];
    b->array->node = b->node;
  }
}

void rec_arm_end(struct recording *r) {
  give_back(r);
  r->vm->rec = r->outer;
}

/* Notes why an arm is no region, unless that is known. */
static void note_refusal(struct recording *r, break_reason why, const char *text) {
  rec_reason *refused = &rec_base(r)->refused;
  if (why == BREAK_branch || refused->number) return;
  *refused = (rec_reason){.number = (int)why, .at = r->at};
  rec_base(r)->refused_asking = rec_base(r)->asking;
  snprintf(refused->text, sizeof refused->text, "%s", text ? text : "");
}

bool rec_give_up(struct recording *r, break_reason why) {
  note_refusal(r, why, NULL);
  if (!r->why) r->why = why;
  if (!error_pending(r->vm)) raise_error(r->vm, E_internal, SPAN_NONE, "an arm is no region: %s", break_reasons[why]);
  return false;
}

struct recording *rec_begin(qn_vm *vm, bool capture) {
  if (jit_of(vm)->left_over) left_over_free(vm);
  struct recording *r = mem_zalloc(vm, sizeof *r);
  if (!r) return NULL;
  r->g = graph_new(vm);
  if (!r->g) {
    if (!error_pending(vm)) raise_memory(vm);
    mem_free(vm, r, sizeof *r);
    return NULL;
  }
  r->g->grad_bytes = vm->tune[TUNE_grad_bytes];
  r->vm = vm;
  if (vm->next_node > NODES_END) vm->next_node = 1;
  r->base = vm->next_node;
  r->outer = vm->rec;
  if (r->outer) r->base = r->outer->base + r->outer->g->n + NODES_APART;
  /* Recordings that wait for a callback of the host keep their ids, and may need some more. */
  for (const vm_host *h = vm->host; h; h = h->outer)
    if (h->rec && r->base < h->rec->base + h->rec->g->n + NODES_APART)
      r->base = h->rec->base + h->rec->g->n + NODES_APART;
  r->device = vm->device;
  r->done = 1;
  r->capturing = capture;
  r->last_fn = vm->last_fn;
  r->active = value_nil();
  tap_run_begin(vm, &r->tap_run, &r->taps, NULL);
  r->text_parts = value_nil();
  for (int i = 0; i < RANDOM_INPUTS; i++) r->drawn[i] = value_unset();
  vm->rec = r;
  jit_of(vm)->recordings++;
  return r;
}

/* Gives a pending array the storage of `result`. It has the same shape, but for sizes that only the run has told. */
static void adopt(qn_vm *vm, qn_array *a, qn_array *result) {
  if (a == result || a->storage) return;
  memcpy(a->shape, result->shape, result->rank * sizeof *a->shape);
  a->size = result->size;
  a->storage = storage_retain(result->storage);
  a->offset = result->offset;
  a->contiguous = result->contiguous;
  a->device = result->device;
  memcpy(a->strides, result->strides, sizeof a->strides);
  (void)vm;
}

/* While a capture goes on, the arrays that the program holds have no data, so that it cannot look at them unnoticed. When it ends, this
 * gives them the data that there is. */
static void show_values(struct recording *r) {
  for (uint32_t i = 0; i < r->vals_cap; i++)
    if (r->tracers[i] && value_is(r->vals[i], TAG_ARRAY)) adopt(r->vm, r->tracers[i], value_array(r->vals[i]));
}

/* Must the program get a tracer instead of the data of this node, since a capture is on? */
static bool hides(const struct recording *r, uint32_t node) {
  return r->capturing && !r->ending && graph_is_run(&r->g->nodes[node]);
}

void draws_settle(struct recording *r) {
  qn_vm *vm = r->vm;
  const qn_value *v = r->drawn;
  if (!r->drawn_slots || (value_node(v[RANDOM_DRAW]) && !rec_traced(r, v[RANDOM_DRAW]))) return; /* (it is an arm's) */
  if (!value_is(v[RANDOM_DRAW], TAG_UNSET)) vm->draw = (uint64_t)v[RANDOM_DRAW].u.i + r->ahead;
  if (r->drawn_slots > RANDOM_KEY) vm->seed = (uint64_t)v[RANDOM_KEY].u.i | (uint64_t)v[RANDOM_KEY + 1].u.i << 32;
  if (!r->capturing && !r->drawn_open) r->drawn_slots = 0; /* from here on the VM has it */
}

bool rec_stop_capture(struct recording *r, break_reason why, const char *text) {
  if (!r->capturing) return true;
  /* (a gradient that then cannot be made of loops would be an error: what the program has seen by then cannot be made again) */
  if ((r->grads || r->sized_maps) && r->of && !r->of->turns_apart && turns_end(r)) return false;
  r->capturing = false;
  r->unseen = true;
  draws_settle(r);
  r->tries += r->trying;
  bool within = why == BREAK_branch && r->refused.number; /* what is in its arms is why the branch is no region */
  if (why == BREAK_branch && r->of && r->of->many_ways) why = BREAK_ways;
  r->why = within ? (break_reason)r->refused.number : why;
  r->why_at = within ? r->refused.at : r->at;
  r->why_asking = within ? r->refused_asking : r->asking;
  snprintf(r->why_text, sizeof r->why_text, "%s", within ? r->refused.text : text ? text : "");
  rec_reason *last = &jit_of(r->vm)->last_reason;
  *last = (rec_reason){.number = (int)r->why, .at = r->why_at};
  memcpy(last->text, r->why_text, sizeof last->text);
  show_values(r);
  return true;
}

const struct recording *rec_captures(const qn_vm *vm) {
  if (!vm->rec || !vm->tune[TUNE_jit_segments]) return NULL;
  const struct recording *base = rec_base(vm->rec);
  return base->capturing ? base : NULL;
}

rec_reason rec_last_reason(qn_vm *vm) { return jit_of(vm)->last_reason; }

qn_array *rec_input(struct recording *r, uint32_t node, qn_array *data) {
  qn_vm *vm = r->vm;
  r->vals[node] = value_obj(TAG_ARRAY, data);
  data->node = r->base + node;
  qn_array *a = array_new_header(vm, (qn_dtype)data->dtype, data->rank, data->shape);
  if (!a) return NULL;
  a->node = data->node;
  a->device = data->device;
  if (!r->capturing) adopt(vm, a, data);
  r->tracers[node] = a;
  a->head.refs++;
  return a;
}

/* Makes the ids of a recording that ends free again, unless others beyond them were used while it waited for a callback of the host. */
static void free_ids(struct recording *r) {
  if (r->vm->next_node < r->base + r->g->n) r->vm->next_node = r->base + r->g->n;
}

void rec_abandon(qn_vm *vm) {
  while (vm->rec) rec_free(vm->rec);
  value_release(vm, vm->asked.watched_fn);
  value_release(vm, vm->asked.watched_args);
  vm->asked = (rec_asked){.nojit = 0};
}

void rec_drop(qn_vm *vm, void *recording) {
  (void)vm;
  frames_drop(recording);
  rec_free(recording);
}

bool rec_end(struct recording *r) {
  if (r->ended) return true;
  r->ending = true;
  draws_settle(r);
  show_values(r);
  bool ok = rec_run_pending(r);
  r->ended = true;
  free_ids(r);
  if (r->vm->rec == r) r->vm->rec = r->outer;
  return ok;
}

void rec_end_failed(struct recording *r) {
  qn_vm *vm = r->vm;
  qn_error_object *later = error_take(vm);
  /* An arm that is no region is no error of the program, which the interpreter goes on with (rec_give_up). */
  if (later && later->id == E_internal) r->again |= r->capturing || r->unseen;
  /* What was interrupted must not begin again: pending work stops where it next looks. */
  bool interrupted = later && later->id == E_interrupted;
  if (interrupted) atomic_store(&vm->interrupt, 1);
  if (rec_end(r))
    error_put_back(vm, later);
  else
    error_free(vm, later);
  if (interrupted) atomic_store(&vm->interrupt, 0);
}

/* What a long recording that was interrupted has kept: freeing it takes as long as a few million values do, and who presses Ctrl-C does not
 * wait for that. It is freed when the next recording begins, or the VM is closed. */
struct left_over {
  struct left_over *next;
  qn_value *vals;
  qn_array **tracers;
  uint32_t vals_cap, tracers_cap;
  graph *g;
};

static void free_values(qn_vm *vm, qn_value *vals, uint32_t nvals, qn_array **tracers, uint32_t ntracers) {
  for (uint32_t i = 0; i < ntracers; i++)
    if (tracers[i]) value_release(vm, value_obj(TAG_ARRAY, tracers[i]));
  mem_free(vm, tracers, ntracers * sizeof *tracers);
  for (uint32_t i = 0; i < nvals; i++) value_release(vm, vals[i]);
  mem_free(vm, vals, nvals * sizeof *vals);
}

/* Keeps the values and the graph of a recording for later, if that is worth it. With a limit of memory they are freed at once. */
static void leave_over(struct recording *r) {
  enum { MANY = 1 << 14 };
  qn_vm *vm = r->vm;
  if (r->vals_cap < MANY || vm->closing || vm->config.memory_limit || !vm->error || vm->error->id != E_interrupted)
    return;
  struct left_over *x = mem_try_alloc(vm, sizeof *x);
  if (!x) return;
  *x = (struct left_over){jit_of(vm)->left_over, r->vals, r->tracers, r->vals_cap, r->tracers_cap, r->g};
  jit_of(vm)->left_over = x;
  r->vals = NULL, r->tracers = NULL, r->g = NULL;
  r->vals_cap = r->tracers_cap = 0;
}

void left_over_free(qn_vm *vm) {
  for (struct left_over *x; (x = jit_of(vm)->left_over);) {
    jit_of(vm)->left_over = x->next;
    free_values(vm, x->vals, x->vals_cap, x->tracers, x->tracers_cap);
    graph_free(x->g);
    mem_free(vm, x, sizeof *x);
  }
}

void rec_note_stacked(qn_vm *vm) {
  struct recording *r = vm->rec ? rec_base(vm->rec) : NULL;
  if (!r) return;
  vm->asked.stacked += !r->stacks;
  r->stacks = true;
}

struct anchor_specializations *rec_call_of(const qn_vm *vm) {
  return vm->rec ? rec_base(vm->rec)->of : NULL;
}

bool rec_no_gradient(const qn_vm *vm) { return vm->rec && !rec_base(vm->rec)->grads; }

void rec_free(struct recording *r) {
  r->vm->asked.stacked -= r->stacks;
  qn_vm *vm = r->vm;
  if (!r->ended) {
    r->ended = true;
    free_ids(r);
    if (vm->rec == r) vm->rec = r->outer;
  }
  for (uint32_t i = 0; i < r->nfns; i++) value_release(vm, r->fns[i].tracer);
  mem_free(vm, r->fns, r->fns_cap * sizeof *r->fns);
  mem_free(vm, r->fn_paths, r->fn_paths_cap * sizeof *r->fn_paths);
  give_back(r);
  leave_over(r);
  mem_free(vm, r->captures, r->captures_cap * sizeof *r->captures);
  nodes_free(vm, &r->parted);
  nodes_free(vm, &r->some);
  mem_free(vm, r->borrowed, r->borrowed_cap * sizeof *r->borrowed);
  free_values(vm, r->vals, r->vals_cap, r->tracers, r->tracers_cap);
  mem_free(vm, r->calls, r->calls_cap * sizeof *r->calls);
  mem_free(vm, r->callees, r->callees_cap * sizeof *r->callees);
  mem_free(vm, r->observed, r->observed_cap * sizeof *r->observed);
  mem_free(vm, r->exit_places, r->exit_places_cap * sizeof *r->exit_places);
  mem_free(vm, r->size_places, r->size_places_cap * sizeof *r->size_places);
  mem_free(vm, r->size_inputs, r->size_inputs_cap * sizeof *r->size_inputs);
  mem_free(vm, r->made, r->made_cap * sizeof *r->made);
  nodes_free(vm, &r->size_ints);
  nodes_free(vm, &r->counted);
  if (r->sizes) mem_free(vm, r->name_symbols, r->sizes->nnames * sizeof *r->name_symbols);
  rewrite_notes_free(vm, &r->rewritten);
  regions_cut(vm, &r->regions, 0);
  mem_free(vm, r->regions.list, r->regions.cap * sizeof *r->regions.list);
  vmap_free(r);
  for (uint32_t i = 0; i < r->ntexts; i++) {
    value_release(vm, r->texts[i].text);
    value_release(vm, r->texts[i].parts);
  }
  mem_free(vm, r->texts, r->texts_cap * sizeof *r->texts);
  grown_free(r);
  struct recording *base = rec_base(r);
  for (uint32_t i = base->ntexts; r->arm && i-- > 0;)
    if (base->texts[i].in == r) base->texts[i].in = NULL;
  value_release(vm, r->text_parts);
  if (jit_of(vm)->tapping == r) jit_of(vm)->tapping = r->tapping;
  taps_free(vm, &r->taps);
  tap_run_end(&r->tap_run);
  key_index *const indices[] = {&r->globals, &r->output_numbers, &r->observed_nodes, &r->text_numbers};
  for (int i = 0; i < 4; i++) mem_free(vm, indices[i]->slots, indices[i]->cap * sizeof *indices[i]->slots);
  pattern_free(vm, &r->pattern);
  if (r->g) graph_free(r->g);
  for (uint32_t i = 0; r->of && i < r->parts.n; i++)
    parts_count(vm, &r->of->parts, r->parts.list[i].id, r->parts.list[i].calls);
  parts_free(vm, &r->parts);
  mem_free(vm, r, sizeof *r);
}

static bool room_for(struct recording *r, uint32_t nodes) {
  if (r->g->failed) {
    raise_memory(r->vm);
    return false;
  }
  if (nodes <= r->vals_cap) return true;
  uint32_t old = r->tracers_cap;
  if (!mem_grow(r->vm, (void **)&r->tracers, &r->tracers_cap, nodes, sizeof *r->tracers)) return false;
  for (uint32_t i = old; i < r->tracers_cap; i++) r->tracers[i] = NULL;
  old = r->vals_cap;
  if (!mem_grow(r->vm, (void **)&r->vals, &r->vals_cap, nodes, sizeof *r->vals)) return false;
  for (uint32_t i = old; i < r->vals_cap; i++) r->vals[i] = value_unset();
  return true;
}

bool rec_room(struct recording *r) { return room_for(r, r->g->n); }

/* ---- numbers by keys ---------------------------------------------------------------------------------------------------------- */

static struct key_number *key_slot(const key_index *x, uint64_t key) {
  uint32_t at = (uint32_t)(key * 0x9e3779b97f4a7c15u >> 32) & (x->cap - 1);
  while (x->slots[at].key && x->slots[at].key != key) at = (at + 1) & (x->cap - 1);
  return &x->slots[at];
}

uint32_t key_number(const key_index *x, uint64_t key) { return x->cap ? key_slot(x, key)->number : 0; }

bool key_add(qn_vm *vm, key_index *x, uint64_t key, uint32_t number) {
  if (2 * (x->n + 1) > x->cap) {
    key_index wide = {.cap = x->cap ? 2 * x->cap : 16};
    wide.slots = mem_zalloc(vm, wide.cap * sizeof *wide.slots);
    if (!wide.slots) return false;
    for (uint32_t i = 0; i < x->cap; i++)
      if (x->slots[i].key) *key_slot(&wide, x->slots[i].key) = x->slots[i];
    mem_free(vm, x->slots, x->cap * sizeof *x->slots);
    wide.n = x->n;
    *x = wide;
  }
  *key_slot(x, key) = (struct key_number){key, number};
  x->n++;
  return true;
}

/* ---- places ----------------------------------------------------------------------------------------------------------------- */

void rec_set_place(qn_vm *vm, span at) { vm->rec->at = at; }
span rec_here(const qn_vm *vm) { return vm->rec ? vm->rec->at : SPAN_NONE; }

/* Counts a call of this function as a part of the recording. */
static void rec_part(struct recording *r, jit_anchor *callee) {
  anchor_specializations *x = anchor_specializations_of(r->vm, callee);
  if (!x) {
    error_clear(r->vm);
    anchor_passed(callee);
  } else if (r->of) {
    x->part = true;
    parts_count(r->vm, &r->parts, x->id, 1);
  } else {
    x->calls[CALL_part]++;
  }
}

bool rec_callee(qn_vm *vm, jit_anchor *callee) {
  if (!callee) return false;
  if (vm->rec)
    rec_part(rec_base(vm->rec), callee);
  else if (anchor_wants(vm, callee))
    return true;
  else
    anchor_passed(callee);
  return false;
}

bool rec_once(qn_vm *vm, const char *what) {
  struct recording *r = vm->rec;
  if (!r) return true;
  if (r->arm) return rec_break(r, BREAK_effect, what);
  /* A cotangent without a value yet lets no work run; what is written does not depend on it. */
  return r->vmap_held.on || rec_run_pending(r);
}

bool rec_effect(qn_vm *vm, const char *what) { return !vm->rec || rec_break(vm->rec, BREAK_effect, what); }

static void parts_forget_in(struct recording *r, uint32_t id) {
  for (; r; r = r->outer) parts_forget(&r->parts, id);
}

void recs_forget_part(qn_vm *vm, uint32_t id) {
  parts_forget_in(vm->rec, id);
  for (const vm_host *h = vm->host; h; h = h->outer) parts_forget_in(h->rec, id);
}

const char *rec_function(const struct recording *r) {
  for (;; r = r->outer) {
    if (r->ncalls < r->handling) return r->handler;
    if (r->ncalls || !r->arm) break;
  }
  return r->ncalls ? r->callees[r->ncalls - 1]->name : NULL;
}

/* A site of the present place, which nothing else has. */
static uint32_t site_new(struct recording *r) {
  if (!r->at.source) return r->parent;
  /* In an arm within a function the nodes are only a part of what its call makes. */
  bool whole = r->ncalls && r->callees[r->ncalls - 1]->composite;
  return graph_site_add(r->g, r->at, r->parent, rec_function(r), whole);
}

void rec_push_call(qn_vm *vm, span call, jit_anchor *callee) {
  struct recording *r = vm->rec;
  rec_part(rec_base(r), callee);
  /* Without memory only places are lost: those of deeper calls. But a graph that somebody asks for, perhaps for a file, has all calls or is none. */
  if (!r->cut && mem_grow(vm, (void **)&r->calls, &r->calls_cap, r->ncalls + 1, sizeof *r->calls) &&
      mem_grow(vm, (void **)&r->callees, &r->callees_cap, r->ncalls + 1, sizeof *r->callees)) {
    r->calls[r->ncalls] = r->parent;
    r->callees[r->ncalls] = callee;
    if (call.source) r->at = call; /* else a builtin or transform makes the call, whose place was the last one */
    r->parent = site_new(r);       /* each call has a site of its own */
    r->at = call;
    r->ncalls++;
  } else {
    error_clear(vm);
    r->cut++;
    r->g->failed |= value_is(vm->asked.watched_fn, TAG_FN);
  }
}

void rec_pop_call(qn_vm *vm) {
  struct recording *r = vm->rec;
  if (r->cut) {
    r->cut--;
    return;
  }
  if (r->ncalls == 0) return; /* the recording began inside the call that ends now */
  r->parent = r->calls[--r->ncalls];
}

/* What a recording costs (an unrolled RNN, seven ops a step: 34,000 instructions a step before, 26,000 now; an eager step takes 3,000 for 4
 * units and 14,000 for 64): types are inferred once an op, graphs are copied for planning in four blocks, and lists of nodes touch only what
 * they hold, since a page that is touched first costs as much as the ops in it. Tried: freeing the old copies of such lists, which code that
 * reads a node while it appends others does not survive. */

/* Ops of one place in one call share a site, so that a loop that is unrolled has no more sites than its body has places. Looked up among the
 * places that came last; those of calls are not here, as each call has a site of its own. */
_Static_assert(SITES_FOUND == 1 << (32 - 26), "rec_site takes the upper bits of a hash");
uint32_t rec_site(struct recording *r) {
  if (!r->at.source) return r->parent;
  uint32_t h = (r->at.start * 0x9e3779b1u ^ r->at.end * 0x85ebca6bu ^ r->parent * 0xc2b2ae35u) >> 26;
  uint32_t *found = &r->sites_found[h];
  if (*found) {
    const graph_site *x = &r->g->sites[*found];
    if (x->parent == r->parent && x->at.source == r->at.source && x->at.start == r->at.start && x->at.end == r->at.end)
      return *found;
  }
  return *found = site_new(r);
}

/* ---- symbolic sizes ------------------------------------------------------------------------------------------------------------- */

void rec_pin(struct recording *r, qn_dim d) { dim_pin(&r->g->dims, d); }

void rec_pin_type(struct recording *r, graph_type *t) {
  for (int k = 0; k < t->rank; k++) {
    if (t->shape[k] >= 0 || dim_is_late(&r->g->dims, t->shape[k])) continue;
    dim_pin(&r->g->dims, t->shape[k]);
    t->shape[k] = dim_hint(&r->g->dims, t->shape[k]);
  }
}

/* ---- nodes of values ------------------------------------------------------------------------------------------------------------ */

/* Ids are 32 bits and start again from the beginning, while old values keep theirs: so the value must also be the node's own. */
uint32_t rec_traced(const struct recording *r, qn_value v) {
  bool array = value_is(v, TAG_ARRAY);
  uint32_t id = array ? value_array(v)->node : value_node(v);
  if (id <= r->base || id - r->base >= r->g->n) return 0;
  uint32_t node = id - r->base;
  if (node >= r->vals_cap) return 0;
  qn_value own = r->vals[node];
  if ((own.head & 0xff) == (v.head & 0xff) && own.u.i == v.u.i) return node;
  return array && r->tracers[node] == v.u.p ? node : 0;
}

uint32_t rec_keep(struct recording *r, uint32_t node, qn_value owned) {
  if (!node || !rec_room(r)) {
    value_release(r->vm, owned);
    return 0;
  }
  r->vals[node] = owned;
  return node;
}

/* Is the value traced in a recording that waits until this one has ended? */
static bool waits_for(const struct recording *r, qn_value v) {
  if (r->outer && rec_traced(r->outer, v)) return true;
  for (const vm_host *h = r->vm->host; h; h = h->outer)
    if (h->rec && h->rec != r && rec_traced(h->rec, v)) return true;
  return false;
}

bool rec_traced_around(const struct recording *r, qn_value v) {
  while (r->arm) {
    r = r->outer;
    if (rec_traced(r, v)) return true;
  }
  return false;
}

/* Stores `v` as the value of input `node`. If it is an array, the node becomes the array's node until the arm ends. Gives the node; 0 with
 * an error raised. */
static uint32_t keep_capture(struct recording *r, uint32_t node, qn_value v) {
  if (!mem_grow(r->vm, (void **)&r->borrowed, &r->borrowed_cap, r->nborrowed + (size_t)1, sizeof *r->borrowed))
    return 0;
  if (!rec_keep(r, node, value_retain(v)) || !value_is(v, TAG_ARRAY)) return r->g->failed ? 0 : node;
  qn_array *a = value_array(v);
  r->borrowed[r->nborrowed++] = (struct borrowed){a, a->node};
  a->node = r->base + node;
  return node;
}

uint32_t arm_operand(struct recording *r, uint32_t outer) {
  qn_vm *vm = r->vm;
  graph_type t = r->outer->g->nodes[outer].type;
  if (!sizes_into_arm(r, r->outer, &t))
    return 0; /* an arm has a table of sizes of its own; it may get inputs for them */
  if (!mem_grow(vm, (void **)&r->captures, &r->captures_cap, r->g->ninputs + (size_t)1, sizeof *r->captures) ||
      !room_for(r, r->g->n + 1)) {
    r->g->failed = true; /* not to be asked again: who reads sizes leaves the error to the op (rec_read_sizes) */
    return 0;
  }
  r->captures[r->g->ninputs] = outer;
  uint32_t node = graph_input(r->g, t, rec_site(r));
  if (!node) return error_pending(vm) ? 0 : (raise_memory(vm), 0);
  return node;
}

/* A value of the recording around an arm becomes an input of the arm. Its node; 0 with an error raised. */
static uint32_t capture(struct recording *r, qn_value v) {
  uint32_t outer = rec_node(r->outer, v), known = r->carries;
  if (!outer) return 0;
  while (known < r->g->ninputs && r->captures[known] != outer) known++;
  uint32_t node = known < r->g->ninputs ? r->g->inputs[known] : arm_operand(r, outer);
  return node && value_is(r->vals[node], TAG_UNSET) ? keep_capture(r, node, v) : node;
}

/* Is an array an item of a list to which the turns add items whose calls are recorded? Turns are given no such items. */
static bool is_grown_item(struct recording *r, const qn_array *a) {
  const key_index *known = &rec_base(r)->globals;
  for (uint32_t i = 0; i < known->cap; i++) {
    if (!known->slots[i].key || known->slots[i].number != GLOBAL_GROWN) continue;
    const qn_value grown = *(const qn_value *)(uintptr_t)known->slots[i].key;
    for (uint32_t k = 0; value_is(grown, TAG_LIST) && k < value_list(grown)->len; k++)
      if (value_is(value_list(grown)->items[k], TAG_ARRAY) && value_array(value_list(grown)->items[k]) == a)
        return true;
  }
  return false;
}

uint32_t rec_node(struct recording *r, qn_value v) {
  uint32_t node = rec_traced(r, v);
  if (node) return node;
  if (r->arm && (value_is(v, TAG_ARRAY) || rec_traced_around(r, v))) return capture(r, v);
  if (value_is(v, TAG_ARRAY)) {
    qn_array *a = value_array(v);
    /* Nobody has said where it comes from. Deferred execution can go on, but no specialization could find it again. */
    if (!rec_stop_capture(r, is_grown_item(r, a) ? BREAK_grows : BREAK_untracked, NULL)) return 0;
    bool waits = waits_for(r, v);
    if (waits && !mem_grow(r->vm, (void **)&r->borrowed, &r->borrowed_cap, r->nborrowed + 1, sizeof *r->borrowed))
      return 0;
    node = rec_keep(r, graph_input(r->g, type_of_value(v), rec_site(r)), value_retain(v));
    if (!node) return 0;
    if (waits) r->borrowed[r->nborrowed++] = (struct borrowed){a, a->node}; /* the outer node is kept */
    a->node = r->base + node;
    return node;
  }
  if (r->outer && rec_traced(r->outer, v)) /* a number of the outer recording stays one */
    return rec_keep(r, graph_input(r->g, type_of_value(v), rec_site(r)), v);
  qn_dtype d = (qn_dtype)type_of_value(v).dtype;
  node = graph_const_scalar(r->g, d, true, d == WEAK_FLOAT ? v.u.f : 0, d == WEAK_FLOAT ? 0 : v.u.i, rec_site(r));
  return rec_keep(r, node, value_plain(v));
}

bool rec_constant(qn_vm *vm, qn_array *a) {
  struct recording *r = vm->rec;
  if (!r || array_pending(a)) return true;
  qn_array *c = array_to_cpu(vm, a);
  if (!c) return false;
  uint32_t node = graph_const(r->g, type_of_value(value_obj(TAG_ARRAY, c)), array_data(c), rec_site(r));
  value_release(vm, value_obj(TAG_ARRAY, c));
  a->head.refs++;
  if (!rec_keep(r, node, value_obj(TAG_ARRAY, a))) {
    if (!error_pending(vm)) raise_memory(vm);
    return false;
  }
  a->node = r->base + node;
  return true;
}

const struct waiting_text *rec_text_of(const struct recording *r, qn_value v) {
  if (!value_is(v, TAG_STR) || !(value_str(v)->head.flags & STR_WAITS)) return NULL;
  const struct recording *base = rec_base((struct recording *)(uintptr_t)r);
  uint32_t number = base->capturing ? key_number(&base->text_numbers, (uintptr_t)v.u.p) : 0;
  return number ? &base->texts[number - 1] : NULL;
}

bool rec_no_text_waits(void *r, qn_value v) { return !rec_text_of(r, v); }

/* ---- running what is pending --------------------------------------------------------------------------------------------------------- */

said kind_said(qn_value v) {
  said s;
  text_buf t = {0};
  text_kind(&t, v);
  if (t.failed)
    snprintf(s.text, sizeof s.text, "%s", value_kind_name(v));
  else
    snprintf(s.text, sizeof s.text, "%.*s", (int)t.len, t.text);
  text_free(&t);
  return s;
}

/* Makes the value of a constant node, when it is first needed. False with an error raised. */
static bool load_const(struct recording *r, uint32_t i) {
  qn_value v = const_value(r->vm, &r->g->nodes[i], r->device);
  if (value_is_error(v)) return false;
  if (value_is(v, TAG_ARRAY)) value_array(v)->node = r->base + i;
  r->vals[i] = v;
  return true;
}

bool rec_name(struct recording *r, qn_value *v, uint32_t i) {
  if (!value_is(*v, TAG_ARRAY)) return true;
  qn_array *a = value_array(*v);
  if (a->head.refs > 1) {
    qn_array *own = array_view(r->vm, a, (qn_dtype)a->dtype, a->rank, a->shape, a->strides, a->offset);
    value_release(r->vm, *v);
    *v = own ? value_obj(TAG_ARRAY, own) : value_error();
    if (!(a = own)) return false;
  }
  a->node = r->base + i;
  return true;
}

/* Executes node i, whose operands have values. False with an error raised. */
/* A pending node has failed, and its error has frames for all calls that it was recorded in. Some of these are still in progress, and add
 * their frames when the error leaves them; other calls in progress were begun later, and are no part of the trace. */
static void share_frames(const struct recording *r) {
  const qn_error_object *e = r->vm->error;
  if (!e || e->frames_dropped || r->cut) return;
  uint32_t n = (uint32_t)e->nframes, shared = 0;
  span place = n ? e->outer : e->at;
  while (shared < n && shared < r->ncalls) {
    span call = r->g->sites[shared + 1 < r->ncalls ? r->calls[shared + 1] : r->parent].at;
    const qn_str *function = e->frames[n - 1 - shared].function;
    const char *name = r->callees[shared]->name;
    if (call.source != place.source || call.start != place.start || call.end != place.end || !function != !name ||
        (name && strcmp(function->text, name) != 0))
      break;
    place = e->frames[n - 1 - shared++].at;
  }
  raise_from(r->vm, shared, place, r->ncalls - shared);
}

/* By sizes a device's library decides how it makes a product, or whether. Where it would not for all sizes as for these, those of operands are guarded.
 * False with an error raised. */
static bool fix_product(struct recording *r, uint32_t i, const qn_value *in, uint8_t flags) {
  products_answer fixed = products_hold(r->vm, r->g, i, in, r->vals, flags);
  for (int k = 0; k < 2 && fixed == PRODUCTS_SIZED; k++) {
    graph_type t = r->g->nodes[r->g->nodes[i].in[k]].type;
    rec_pin_type(r, &t);
  }
  return fixed != PRODUCTS_FAIL;
}

/* The same for products in regions. */
static bool fix_products(struct recording *r, uint32_t i, const qn_value *in) {
  const graph_node *n = &r->g->nodes[i];
  products_answer fixed = products_fix(r->vm, r->g, i, in, r->vals, !r->nsize_places);
  if (fixed == PRODUCTS_SIZED) {
    for (int k = 0; k < n->nin; k++) {
      graph_type t = r->g->nodes[n->in[k]].type;
      if (!t.weak) rec_pin_type(r, &t);
    }
    fixed = products_fix(r->vm, r->g, i, in, r->vals, true);
  }
  return fixed != PRODUCTS_FAIL && (fixed != PRODUCTS_VARY || rec_stop_capture(r, BREAK_products, NULL));
}

static bool run_node(struct recording *r, uint32_t i) {
  qn_vm *vm = r->vm;
  const graph_node *n = &r->g->nodes[i];
  qn_value few[4], *in = few;
  if (n->nin > 4 && !(in = mem_alloc(vm, n->nin * sizeof *in))) return false;
  bool ok = true;
  for (int k = 0; k < n->nin && ok; k++) {
    uint32_t j = n->in[k];
    if (value_is(r->vals[j], TAG_UNSET)) ok = r->g->nodes[j].kind == NODE_CONST && load_const(r, j);
    in[k] = value_plain(r->vals[j]);
  }
  qn_value out = value_error();
  if (ok && n->kind == NODE_OP && n->op == OP_dot &&
      !graph_attr(n).flags) { /* notes how this product was computed, so that the plan computes it in the same way */
    uint8_t flags = gemm_flags(vm, value_array(in[0]), value_array(in[1]));
    if (flags) ok = graph_fix_gemm(r->g, i, flags) || (raise_memory(vm), false);
    if (ok && r->device && device_kernels_of(r->device)->has_gemm && dtype_is_float((qn_dtype)n->type.dtype))
      ok = fix_product(r, i, in, flags);
  }
  if (ok && r->device && graph_kind_has_regions(n->kind)) ok = fix_products(r, i, in);
  vm_memory more = {in != few ? in : NULL, n->nin * sizeof *in};
  vm_owned held;
  vm_own(vm, &held, vm_drop_memory, &more);
  /* A region that runs once more, for results that its gradient has added, has made its taps. */
  bool ran = graph_kind_has_regions(n->kind) && value_is(r->vals[i], TAG_LIST);
  if (ok) out = nodes_apply(vm, r->g, i, in, r->vals, r->device, ran ? NULL : &r->tap_run.plan);
  vm_disown(vm, &held);
  if (in != few) mem_free(vm, in, n->nin * sizeof *in);
  if (value_is_error(out)) {
    share_frames(r);
    return false;
  }
  if (value_is(out, TAG_ARRAY) && value_is(r->vals[i], TAG_ARRAY) && hides(r, i)) {
    if (!rec_name(r, &out, i)) return false;
    r->tracers[i] = value_array(r->vals[i]);
    r->vals[i] = out;
    return true;
  }
  if (value_is(out, TAG_ARRAY) && value_is(r->vals[i], TAG_ARRAY)) {
    adopt(vm, value_array(r->vals[i]), value_array(out));
    value_release(vm, out);
    return true;
  }
  if (!rec_name(r, &out, i)) return false;
  value_release(vm, r->vals[i]);
  r->vals[i] = out;
  return true;
}

/* Does anything besides the recording hold the array of node i? */
static bool held(const struct recording *r, uint32_t i) {
  if (!value_is(r->vals[i], TAG_ARRAY)) return false;
  if (r->tracers[i] && graph_is_run(&r->g->nodes[i])) return r->tracers[i]->head.refs > 1;
  return ((obj_head *)r->vals[i].u.p)->refs > 1;
}

bool rec_held(const struct recording *r, uint32_t node) { return held(r, node); }

/* Frees the value of node i, which nobody needs now. If it is needed again, it is computed again. */
static void let_go(struct recording *r, uint32_t i) {
  value_release(r->vm, r->vals[i]);
  r->vals[i] = value_unset();
  if (r->tracers[i]) value_release(r->vm, value_obj(TAG_ARRAY, r->tracers[i]));
  r->tracers[i] = NULL;
}

/* Has a region that has been run given all results that are taken? A loop's may be needed later than now, and rows that nobody took are not there. */
static bool has_results(const struct recording *r, uint32_t i, const qn_list *results) {
  const graph *g = r->g;
  if (results->len != graph_nresults(&g->nodes[i])) return false;
  for (uint32_t x = i + 1; x < g->n && g->nodes[i].kind == NODE_LOOP && g->nodes[i].attr; x++)
    if (g->nodes[x].kind == NODE_PROJ && g->nodes[x].in[0] == i &&
        value_is(results->items[g->nodes[x].payload.index], TAG_NIL))
      return false;
  return true;
}

static bool node_has_value(const struct recording *r, uint32_t i) {
  qn_value v = r->vals[i];
  if (value_is(v, TAG_LIST)) return has_results(r, i, value_list(v));
  return value_is(v, TAG_ARRAY) ? !array_pending(value_array(v)) : !value_is(v, TAG_UNSET);
}

/* Node j is needed. If it was passed over or freed, the walk must go down to it (*from). */
static void need(const struct recording *r, uint32_t j, uint8_t *needed, uint32_t *from) {
  needed[j] = 1;
  if (j < *from && graph_is_run(&r->g->nodes[j]) && !node_has_value(r, j)) *from = j;
}

/* Finds the nodes of single lanes that the program holds (vmap_kept): those of last time that it still holds, and new ones. Lanes that it
 * no longer holds can only come back by rec_value_of, which says so (`reopened`). False with an error raised. */
static bool keep_lanes(struct recording *r) {
  uint32_t kept = 0, before = r->nvmap_kept, n = r->g->n;
  if (!r->lanes) {
    r->nvmap_kept = r->vmap_looked = 0;
    return true;
  }
  if (r->reopened || !r->vmap_looked) before = 0, r->vmap_looked = 1;
  for (uint32_t k = 0; k < before; k++) {
    uint32_t i = r->vmap_kept[k];
    if (held(r, i) && vmap_whole(r, i)) r->vmap_kept[kept++] = i;
  }
  for (uint32_t i = r->vmap_looked; i < n; i++) {
    if (!held(r, i) || !vmap_whole(r, i)) continue;
    if (!mem_grow(r->vm, (void **)&r->vmap_kept, &r->vmap_kept_cap, kept + 1, sizeof *r->vmap_kept)) return false;
    r->vmap_kept[kept++] = i;
  }
  r->nvmap_kept = kept;
  r->vmap_looked = n;
  return true;
}

/* What a walk over pending nodes knows: which nodes are needed, by how many needed ones each is read, and how far down the walk goes. */
typedef struct pending_walk {
  const struct recording *r;
  uint32_t *uses;
  uint8_t *needed;
  uint32_t from, node; /* the lowest node that is needed; the node that is looked at */
} pending_walk;

/* A needed node reads node j. */
static void need_operand(pending_walk *w, uint32_t j) {
  w->uses[j]++;
  need(w->r, j, w->needed, &w->from);
}

/* One of the sizes of a needed node is read from the value of node j, which therefore stays. */
static void need_size(void *ctx, uint32_t j) {
  if (j != ((pending_walk *)ctx)->node) need_operand(ctx, j);
}

/* Does a node with regions hold taps? */
static bool region_tells(const graph_node *n) {
  if (!graph_kind_has_regions(n->kind)) return false;
  return graph_has_taps(n->payload.regions[0], 1) || graph_has_taps(n->payload.regions[1], 1);
}

/* As rec_run_pending; computes a result of a region, too, and keeps it and all others of the region (0: none). */
static bool run_pending_and(struct recording *r, uint32_t also) {
  qn_vm *vm = r->vm;
  if (r->hollow) return true;
  const graph *g = r->g;
  if (r->vmap_held.on) {
    raise_error(
        vm, E_not_diff, SPAN_NONE,
        "custom_grad: vjp, jvp and jacobian run backward before the cotangent has a value, so it can neither read "
        "the data of an array nor print it or try; where(mask, a, b) selects without reading");
    return false;
  }
  if (!vmap_advance(r) || !rec_room(r) || !keep_lanes(r)) return false;
  uint32_t n = g->n, from = r->reopened ? 1 : r->done;
  if (from >= n) return true;
  size_t bytes = n * sizeof(uint32_t);
  pending_walk w = {.r = r, .uses = mem_zalloc(vm, bytes), .needed = mem_zalloc(vm, n), .from = from};
  uint32_t *uses = w.uses;
  if (!uses || !w.needed) {
    if (uses) mem_free(vm, uses, bytes);
    if (w.needed) mem_free(vm, w.needed, n);
    return false;
  }
  struct recording *active = vm->rec;
  vm_memory own_uses = {uses, bytes}, own_needed = {w.needed, n};
  vm_owned held_uses, held_needed;
  vm_own(vm, &held_uses, vm_drop_memory, &own_uses); /* taps may call the host */
  vm_own(vm, &held_needed, vm_drop_memory, &own_needed);
  vm->rec = NULL; /* ops must run now instead of being recorded */
  /* Nodes of single lanes are not executed: instead the counterparts of those that the program holds are needed, and kept. */
  for (uint32_t k = 0; k < r->nvmap_kept; k++) {
    need_operand(&w, vmap_outermost(r, r->vmap_kept[k]));
  }
  if (also) need_operand(&w, also), need_operand(&w, g->nodes[also].in[0]);
  for (uint32_t i = n - 1; i >= w.from; i--) {
    const graph_node *node = &g->nodes[i];
    if (!graph_is_run(node) || node_has_value(r, i) || (r->lanes && vmap_whole(r, i))) continue;
    if (!w.needed[i] && (i < from || !held(r, i)) && (i < r->done || !graph_fallible(g, i))) continue;
    w.needed[i] = 1;
    w.node = i;
    for (int k = 0; k < node->nin; k++) need_operand(&w, node->in[k]);
    if (g->dims.n) graph_each_size_node(g, i, need_size, &w);
  }
  bool ok = true;
  for (uint32_t i = w.from; i < n && ok; i++) {
    const graph_node *node = &g->nodes[i];
    if (!graph_is_run(node) || !w.needed[i] || node_has_value(r, i)) continue;
    ok = run_node(r, i);
    if (!ok) {
      vmap_blame(r, i);
      break;
    }
    for (int k = 0; k < node->nin; k++) {
      uint32_t j = node->in[k];
      bool whole = value_is(r->vals[j], TAG_ARRAY) || graph_kind_has_regions(g->nodes[j].kind);
      if (--uses[j] || r->grads || !graph_is_run(&g->nodes[j]) || !whole || held(r, j)) continue;
      if (!region_tells(&g->nodes[j])) let_go(r, j); /* what is let go may be made once more */
    }
  }
  vm->rec = active;
  vm_disown(vm, &held_uses);
  mem_free(vm, uses, bytes);
  mem_free(vm, w.needed, n);
  r->done = n;
  r->reopened = false;
  r->pending_bytes = 0;
  r->again |= !ok && (r->capturing || r->unseen);
  return ok;
}

bool rec_run_pending(struct recording *r) { return run_pending_and(r, 0); }

/* The size of the pending results that something holds. */
static size_t held_bytes(const struct recording *r) {
  size_t bytes = 0;
  for (uint32_t i = r->reopened ? 1 : r->done; i < r->g->n && i < r->vals_cap; i++) {
    if (!graph_is_run(&r->g->nodes[i]) || !held(r, i) || node_has_value(r, i)) continue;
    const qn_array *a = value_array(r->vals[i]);
    bytes += (size_t)a->size * dtype_size((qn_dtype)a->dtype);
  }
  return bytes;
}

/* Called when the pending results that are held take more than jit.pending_bytes: computes them now. A capture goes on, and the program
 * sees no more than before. False with an error raised. */
static bool run_early(struct recording *r) {
  if (!rec_run_pending(r)) return false;
  for (uint32_t i = 1; i < r->g->n && !r->grads && !r->lanes; i++)
    if (graph_is_run(&r->g->nodes[i]) && value_is(r->vals[i], TAG_ARRAY) && !held(r, i)) let_go(r, i);
  return true;
}

bool rec_break(struct recording *r, break_reason why, const char *text) {
  if (r->arm && !r->lenient) return note_refusal(r, why, text), rec_give_up(r, why);
  bool captured = r->capturing, unseen = captured || r->unseen;
  if (!rec_stop_capture(r, why, text)) return false;
  if (r->whole && captured) { /* at once: what the interpreter made from here on, it would make twice */
    r->again = true;
    return rec_give_up(r, why);
  }
  bool ok = r->grads || r->lanes || r->bodies ? rec_run_pending(r) : rec_end(r);
  r->again |= unseen && !ok;
  r->unseen = false;
  return ok;
}

qn_value rec_computed(struct recording *r, uint32_t node) {
  qn_vm *vm = r->vm;
  size_t bytes = node + 1;
  uint8_t *needed = mem_zalloc(vm, bytes);
  if (!needed) return value_error();
  bool ok = true;
  needed[node] = 1;
  for (uint32_t i = node; i > 0; i--) {
    const graph_node *n = &r->g->nodes[i];
    for (int k = 0; needed[i] && graph_is_run(n) && !node_has_value(r, i) && k < n->nin; k++) needed[n->in[k]] = 1;
  }
  for (uint32_t i = 1; i <= node && ok; i++) {
    if (!needed[i] || node_has_value(r, i)) continue;
    const graph_node *n = &r->g->nodes[i];
    ok = n->kind == NODE_CONST ? load_const(r, i) : graph_is_run(n) && run_node(r, i);
  }
  mem_free(vm, needed, bytes);
  return ok ? value_plain(value_retain(r->vals[node])) : value_error();
}

/* Something needs the data of an array of the recording in progress: ends the capture and computes what is pending. False with an error
 * raised. */
static bool force_traced(qn_vm *vm, struct recording *r, qn_array *a) {
  if (r->arm && !r->lenient) return rec_give_up(r, BREAK_host_read);
  if (r->hollow) {
    raise_error(vm, E_no_graph, SPAN_NONE, "a graph is being rewritten: its arrays have no elements to look at");
    return false;
  }
  if (!vmap_advance(r)) return false; /* (a copy may have been made for a gradient only) */
  if (rec_is_lane(vm, value_obj(TAG_ARRAY, a))) {
    vmap_raise_read(r, value_obj(TAG_ARRAY, a));
    return false;
  }
  return rec_break(r, BREAK_host_read, NULL);
}

bool rec_force(qn_vm *vm, qn_array *a) {
  struct recording *r = vm->rec;
  if (r && r->arm && !r->lenient) return rec_give_up(r, BREAK_host_read);
  if (r && rec_traced(r, value_obj(TAG_ARRAY, a))) {
    if (!force_traced(vm, r, a)) return false;
    if (!array_pending(a)) return true;
  }
  /* A callback of the host may look at arrays of a recording that waits for it. */
  for (vm_host *h = vm->host; h; h = h->outer) {
    if (!h->rec || !rec_traced(h->rec, value_obj(TAG_ARRAY, a))) continue;
    struct recording *active = vm->rec;
    vm->rec = h->rec;
    bool ok = force_traced(vm, h->rec, a);
    h->rec = vm->rec; /* NULL if this has ended it */
    vm->rec = active;
    if (!ok) return false;
    if (!array_pending(a)) return true;
  }
  raise_error(vm, E_internal, SPAN_NONE, "an array has lost its data");
  return false;
}

/* ---- values ----------------------------------------------------------------------------------------------------------------- */

qn_value rec_raise_refusal(struct recording *r, uint32_t node, const op_refusal *why) {
  raise_error(r->vm, (error_id)why->id, SPAN_NONE, "%s", why->text);
  if (node && node < r->g->n) nodes_raise_site(r->vm, r->g, r->g->nodes[node].site);
  return value_error();
}

/* Computes a number that a region gives, or that is read by an arm which has become a part of the graph, behind all pending work that can fail or
 * has effects. False with an error raised. */
static bool result_number(struct recording *r, uint32_t node) {
  bool region = r->g->nodes[node].kind == NODE_PROJ; /* (pending readings are made in any case) */
  if (!r->vmap_held.on && !run_pending_and(r, region ? node : 0)) return false;
  if (node_has_value(r, node)) return true;
  qn_vm *vm = r->vm;
  struct recording *active = vm->rec;
  vm->rec = NULL;
  qn_value v = rec_computed(r, node);
  vm->rec = active;
  if (!value_is_error(v)) return true;
  if (region && !graph_node_prove(r->g, r->g->nodes[node].in[0]))
    raise_memory(vm); /* it has told its error, and is not to run again */
  return false;
}

/* Is a host number the element of an array that differs from lane to lane? (What hands numbers on does not look at them.) */
static bool reads_lane(const struct recording *r, uint32_t node) {
  const graph_node *n = &r->g->nodes[node];
  bool read = n->kind == NODE_OP && n->op == OP_cast && !r->g->nodes[n->in[0]].type.weak && !r->handing_out;
  return read && vmap_whole(r, node);
}

/* Computes a host number, and the host numbers that it depends on, each after its operands. If one is made from a rank-0 array, that is a
 * host read. The exception is a gradient by a host number: it is computed now, but the graph goes on, and it only counts as read when the
 * program uses the number. */
static bool eval_weak(struct recording *r, uint32_t node) {
  qn_vm *vm = r->vm;
  if (r->lanes) {
    if (!vmap_advance(r) || !rec_room(r)) return false;
    const graph_node *n = &r->g->nodes[node];
    if (vmap_whole(r, node)) {
      if (!reads_lane(r, node)) { /* the number itself is not looked at */
        r->vals[node] = dtype_scalar(n->type.dtype, NAN, 0);
        return true;
      }
      qn_value lane = rec_value_of(r, n->in[0]);
      if (!value_is_error(lane)) vmap_raise_read(r, lane);
      value_release(vm, lane);
      return false;
    }
    const uint32_t shared = vmap_shared(r, node);
    if (shared != node) { /* the lane's own is not run */
      qn_value number = rec_value_of(r, shared);
      if (value_is_error(number)) return false;
      r->vals[node] = value_plain(number);
      return true;
    }
  }
  /* Takes time for nodes without a value only, however many others there are. */
  uint32_t few[32], *stack = few, n = 0, cap = 0;
  stack[n++] = node;
  bool ok = true;
  while (ok && n) {
    uint32_t i = stack[n - 1], before = n;
    const graph_node *x = &r->g->nodes[i];
    if (!node_has_value(r, i) && x->type.weak && x->kind == NODE_OP) {
      for (int k = x->nin; k-- > 0 && ok;) {
        if (node_has_value(r, x->in[k])) continue;
        if (n == (cap ? cap : sizeof few / sizeof *few)) {
          uint32_t *more = cap ? stack : NULL;
          ok = mem_grow(vm, (void **)&more, &cap, (size_t)n + 1, sizeof *more);
          if (!ok) break;
          if (stack == few) memcpy(more, few, sizeof few);
          stack = more;
        }
        stack[n++] = x->in[k];
      }
      if (n > before) continue;
    }
    n--;
    if (!ok || node_has_value(r, i)) continue;
    if (x->kind == NODE_CONST) {
      ok = load_const(r, i);
    } else if ((x->kind == NODE_PROJ || x->kind == NODE_TAP) && x->type.weak) {
      ok = result_number(r, i);
    } else if (x->type.weak) {
      ok = run_node(r, i);
    } else {
      qn_value v = rec_value_of(r, i);
      ok = !value_is_error(v) && (r->handing_out ? rec_run_pending(r) : array_force(vm, value_array(v)));
      value_release(vm, v);
    }
  }
  if (stack != few) mem_free(vm, stack, cap * sizeof *stack);
  r->again |= !ok && (r->capturing || r->unseen);
  return ok;
}

qn_value rec_value_of(struct recording *r, uint32_t node) {
  qn_vm *vm = r->vm;
  if (!node || !rec_room(r)) {
    if (!error_pending(vm)) raise_memory(vm);
    return value_error();
  }
  const graph_node *n = &r->g->nodes[node];
  if (n->type.weak) {
    if (r->hollow && value_is(r->vals[node], TAG_UNSET)) {
      if (r->arm && r->lanes && !r->lenient) { /* an arm in which vmap refuses is none */
        if (!vmap_advance(r) || !rec_room(r)) return value_error();
        if (reads_lane(r, node)) {
          (void)rec_give_up(r, BREAK_host_read);
          return value_error();
        }
        n = &r->g->nodes[node];
      }
      if (n->kind == NODE_OP && n->op == OP_cast && !r->handing_out && vmap_reads(r, n->in[0])) {
        (void)rec_give_up(r, BREAK_host_read);
        return value_error();
      }
      r->vals[node] = dtype_scalar(n->type.dtype, 1, 1); /* any number will do, since nobody may look at it */
    }
    if (value_is(r->vals[node], TAG_UNSET) && !eval_weak(r, node)) return value_error();
    return value_traced(value_plain(r->vals[node]), r->base + node);
  }
  if (r->tracers[node]) return value_retain(value_obj(TAG_ARRAY, r->tracers[node]));
  bool tracer = node_has_value(r, node) && hides(r, node);
  if (!value_is(r->vals[node], TAG_UNSET) && !tracer) return value_retain(r->vals[node]);
  if (n->kind == NODE_CONST) return load_const(r, node) ? value_retain(r->vals[node]) : value_error();
  int64_t shape[ARRAY_MAX_RANK];
  for (int k = 0; k < n->type.rank; k++) shape[k] = dim_hint(&r->g->dims, n->type.shape[k]);
  qn_array *a = array_new_header(vm, (qn_dtype)n->type.dtype, n->type.rank, shape);
  if (!a) return value_error();
  a->node = r->base + node;
  a->device = r->device;
  a->head.refs++;
  if (tracer) {
    r->tracers[node] = a;
    return value_obj(TAG_ARRAY, a);
  }
  r->vals[node] = value_obj(TAG_ARRAY, a);
  r->pending_bytes += (size_t)a->size * dtype_size((qn_dtype)a->dtype);
  r->reopened |= node < r->done;
  return value_obj(TAG_ARRAY, a);
}

bool rec_hand_numbers(struct recording *r, const uint32_t *nodes, uint32_t n) {
  qn_vm *vm = r->vm;
  uint32_t last = 0;
  if (r->hollow || r->lanes) return true;
  if (!rec_room(r)) return false;
  for (uint32_t k = 0; k < n; k++)
    if (nodes[k] > last && r->g->nodes[nodes[k]].type.weak && !node_has_value(r, nodes[k])) last = nodes[k];
  if (!last) return true;
  uint8_t *needed = mem_zalloc(vm, last + (size_t)1);
  if (!needed) return false;
  for (uint32_t k = 0; k < n; k++)
    if (nodes[k] <= last) needed[nodes[k]] = r->g->nodes[nodes[k]].type.weak;
  qn_value *arrays = NULL; /* held, so that they count as needed */
  uint32_t narrays = 0, cap = 0;
  bool ok = true;
  for (uint32_t i = last; i > 0 && ok; i--) {
    const graph_node *x = &r->g->nodes[i];
    if (!needed[i] || x->kind != NODE_OP || node_has_value(r, i)) continue;
    if (x->type.weak) {
      for (int k = 0; k < x->nin; k++) needed[x->in[k]] = 1;
      continue;
    }
    ok = mem_grow(vm, (void **)&arrays, &cap, narrays + (size_t)1, sizeof *arrays);
    if (!ok) break;
    arrays[narrays] = rec_value_of(r, i);
    ok = !value_is_error(arrays[narrays]);
    narrays += ok;
  }
  ok = ok && (!narrays || rec_run_pending(r));
  while (narrays > 0) value_release(vm, arrays[--narrays]);
  mem_free(vm, arrays, cap * sizeof *arrays);
  mem_free(vm, needed, last + (size_t)1);
  return ok;
}

/* A recording that has more nodes than jit.nodes ends behind the statement in progress, where nothing but variables holds traced values. One
 * that is this many times as long ends at once. */
enum { WITHIN_STATEMENT = 4 };

static bool too_many_nodes(const struct recording *r, int64_t times) {
  return (int64_t)r->g->n - r->row_nodes - (r->capturing ? 0 : r->done) > times * r->vm->tune[TUNE_jit_nodes];
}

bool rec_end_long(qn_vm *vm) {
  struct recording *r = vm->rec;
  if (r->tries || r->held || r->vmap_held.on || (r->arm && !r->lenient) || !too_many_nodes(r, 1)) return true;
  return rec_break(r, BREAK_too_many_nodes, NULL);
}

bool rec_appended(struct recording *r) {
  qn_vm *vm = r->vm;
  if (r->tries) return rec_run_pending(r);
  if (r->unsure) {
    r->unsure = false;
    if (vmap_catches(r)) return rec_break(r, BREAK_try_body, NULL);
  }
  if (r->held) return true;
  if (r->vmap_held.on) return true; /* a backward pass of tracers that have no values, of any length: nothing runs */
  if (too_many_nodes(r, r->arm && !r->lenient ? 1 : WITHIN_STATEMENT)) return rec_break(r, BREAK_too_many_nodes, NULL);
  size_t most = (size_t)vm->tune[TUNE_jit_pending_bytes];
  if (r->pending_bytes <= most || r->hollow) return true;
  r->pending_bytes = held_bytes(r);
  /* some room is left, so that the sizes are not summed up again after every node */
  return r->pending_bytes <= most - most / 8 || run_early(r);
}

struct recording *rec_begin_hold(qn_vm *vm) {
  vm->rec->held++;
  return vm->rec;
}

bool rec_let_go(qn_vm *vm, struct recording *held, bool ok) {
  if (!held) return ok;
  held->held--;
  return ok && (vm->rec != held || rec_appended(held));
}

rec_marked rec_mark(const struct recording *r) {
  return (rec_marked){r->g->n, r->g->ninputs, r->nobserved, r->regions.n};
}

void rec_forget(struct recording *r, rec_marked before) {
  graph *g = r->g;
  bool known = g->ninputs != before.ninputs || r->nobserved != before.nobserved || r->regions.n != before.nregions ||
               vmap_know(r, before.n);
  for (uint32_t i = before.n; i < g->n && i < r->vals_cap && !known; i++)
    known = !value_is(r->vals[i], TAG_UNSET) || g->nodes[i].kind == NODE_TAP;
  if (!known) {
    graph_cut(g, before.n);
    if (r->done > g->n) r->done = g->n;
    return;
  }
  for (uint32_t i = before.n; i < g->n; i++) /* (if memory is short, the graph is marked as failed) */
    if (g->nodes[i].kind != NODE_TAP && !graph_node_prove(g, i)) return;
}

bool rec_place(struct recording *r, int device) {
  if (!r->placed) r->device = (uint8_t)device;
  r->placed = true;
  return r->device == device;
}

qn_value rec_host_number(qn_vm *vm, qn_value x, qn_dtype dtype) {
  struct recording *r = vm->rec;
  bool before = r->handing_out;
  r->handing_out = true;
  qn_value number = op_apply(vm, OP_cast, &x, 1, &(op_attr){.dtype = (uint8_t)dtype, .flags = ATTR_WEAK});
  r->handing_out = before;
  return number;
}

/* ---- a recording for one call --------------------------------------------------------------------------------------------------------- */

/* For tree_each: stores the device of the first array in *ctx and stops. */
static bool device_of_leaf(void *ctx, qn_value v) {
  if (!value_is(v, TAG_ARRAY)) return true;
  *(int *)ctx = value_array(v)->device;
  return false;
}

/* The device of the first array in a value; -1 if it holds none, or an error is pending. */
static int device_of(qn_vm *vm, qn_value v) {
  int device = -1;
  bool all = tree_each_part(vm, v, device_of_leaf, &device);
  return all ? -1 : device;
}

qn_value rec_within(qn_vm *vm, const rec_call_site *site,
                    qn_value (*work)(struct recording *r, const rec_call_site *site)) {
  int device = -1;
  for (int i = 0; i < site->nargs && device < 0; i++) device = device_of(vm, site->args[i]);
  if (error_pending(vm)) return value_error();
  if (vm->rec && device >= 0 && !rec_place(vm->rec, device) && !rec_break(vm->rec, BREAK_devices, NULL))
    return value_error();
  if (vm->rec) return work(vm->rec, site);
  struct recording *own = rec_begin(vm, false);
  if (!own) return value_error();
  own->at = site->at;
  if (site->anchor) own->of = anchor_specializations_of(vm, site->anchor);
  error_clear(vm);
  vm_owned held;
  vm_own(vm, &held, rec_drop, own);
  qn_value result = work(own, site);
  if (value_is_error(result)) {
    rec_end_failed(own);
  } else if (!rec_end(own)) {
    value_release(vm, result);
    result = value_error();
  }
  vm_disown(vm, &held);
  rec_free(own);
  if (value_is_scalar(result)) result.head &= 0xff;
  return result;
}
