/* Blocks that are cut into parts, so that a call is compiled as far as it can be captured.
 *
 * A capture ends where it meets what it cannot record: a read that steers a size, x[mask], a clock, a file, try. Each block in progress then
 * notes the statement in which that has happened as a cut (jit.segments: how many a block may have). From then on, whenever the interpreter
 * runs such a block outside recordings, it runs the statements that are cuts itself, in place, and counts them; each run of statements between
 * them is a part: a call of its own, as turns of loops are (turns.c), with an anchor, patterns, guards and a plan. A part whose capture ends,
 * too, is cut further. So a call that cannot be captured as a whole becomes compiled parts and single statements between them; a cut in a
 * callee, an arm or a body cuts the blocks around it as well, at the statement that holds it.
 *
 * The arguments of a part are the variables that it reads or rebinds; its result is how it has ended, its value if the block ends with it, and
 * those variables that something behind it may read: what is let and used in one part only is no result, so that it need never be stored. What
 * statements read, assign and declare is kept from when the text was resolved (fn_uses).
 *
 * Inside a recording (a transform must see the whole function) and inside nojit there are no parts. Blocks without cuts know nothing of this.
 */
#include <string.h>

#include "interp/node.h"

typedef struct cut {
  uint32_t item;
  rec_reason why;
  uint64_t runs; /* how often the interpreter has run the statement between parts */
} cut;

typedef struct part {
  struct part *next;
  uint32_t from, to;
  turn_code *code; /* NULL: it has too many variables, so the interpreter runs it */
} part;

struct block_parts {
  cut *cuts; /* in the order of the statements */
  uint32_t n;
  bool full; /* there was one more than jit.segments allows */
  part *parts;
};

/* ---- what a part reads and rebinds --------------------------------------------------------------------------------------- */

typedef struct found {
  turn_variable all[TURN_VARIABLES];
  uint32_t n;
  bool full;
} found;

/* The variable among those found so far, to which it is added. NULL: there are too many. */
static turn_variable *found_variable(found *f, global_cell *cell, uint32_t slot) {
  for (uint32_t i = 0; i < f->n; i++)
    if (f->all[i].cell == cell && f->all[i].slot == slot) return &f->all[i];
  if (f->n == TURN_VARIABLES) {
    f->full = true;
    return NULL;
  }
  f->all[f->n] = (turn_variable){.cell = cell, .slot = slot};
  return &f->all[f->n++];
}

/* Is a variable of the block, or one around it, used by statements from number `from` on, before `to`? `slot` is not one that such a
 * statement declares. */
static bool is_used(const block_code *c, uint32_t slot, uint32_t from, uint32_t to) {
  const struct block_mark *a = &c->marks[from], *z = &c->marks[to];
  for (uint32_t k = a->reads; k < z->reads; k++)
    if (c->uses->reads[k] == slot) return true;
  for (uint32_t k = a->events; k < z->events; k++)
    if (!c->uses->events[k].cell && c->uses->events[k].slot == slot) return true;
  return false;
}

/* Is something that the part makes of a local visible behind it? */
static bool is_kept(const block_code *c, uint32_t slot, uint32_t to) {
  bool outer = slot < c->marks[0].top;
  return (outer && !c->tail) || is_used(c, slot, to, c->block->n);
}

static void find_variables(const block_code *c, uint32_t from, uint32_t to, found *f) {
  for (uint32_t i = from; i < to; i++) {
    const struct block_mark *a = &c->marks[i], *z = &c->marks[i + 1];
    /* Slots beyond those in use before a statement are those of blocks inside it, and, up to those in use behind it, what it lets. */
    for (uint32_t k = a->reads; k < z->reads; k++)
      if (c->uses->reads[k] < a->top && !found_variable(f, NULL, c->uses->reads[k])) return;
    for (uint32_t k = a->events; k < z->events; k++) {
      const struct event *e = &c->uses->events[k];
      if (!e->cell && e->slot >= a->top) continue;
      turn_variable *x = found_variable(f, e->cell, e->cell ? 0 : e->slot);
      if (!x) return;
      x->rebound = true;
    }
    for (uint32_t slot = a->top; slot < z->top; slot++) {
      turn_variable *x = found_variable(f, NULL, slot);
      if (!x) return;
      x->rebound = x->made = true;
    }
  }
  for (uint32_t i = 0; i < f->n; i++) {
    turn_variable *x = &f->all[i];
    x->kept = x->rebound && (x->cell || is_kept(c, x->slot, to));
    x->name = x->cell ? x->cell->name : NULL;
    for (uint32_t k = c->marks[to].names; k > 0 && !x->name; k--)
      if (c->uses->names[k - 1].slot == x->slot) x->name = c->uses->names[k - 1].name;
  }
}

/* What calling a part takes; *out is NULL if it has too many variables. False with an error raised. */
static bool make_code(block_code *c, uint32_t from, uint32_t to, turn_code **out) {
  static const char name[] = "part";
  found f = {.n = 0};
  *out = NULL;
  find_variables(c, from, to, &f);
  if (f.full) return true;
  turn_code *code = arena_alloc(&c->unit->nodes, sizeof *code);
  turn_variable *all = arena_alloc(&c->unit->nodes, (f.n + (size_t)1) * sizeof *all);
  if (!code || !all) return false;
  uint32_t n = 0;
  for (int order = 0; order < 3; order++) /* those that are kept, others that are rebound, the rest */
    for (uint32_t i = 0; i < f.n; i++)
      if ((f.all[i].kept ? 0 : f.all[i].rebound ? 1 : 2) == order) all[n++] = f.all[i];
  span at = c->block->items[from]->at;
  at.end = c->block->items[to - 1]->at.end;
  *code = (turn_code){
      .anchor = {.name = name, .at = at}, .variables = all, .n = n, .next = c->unit->loops, .unit = c->unit};
  c->unit->loops = code;
  *out = code;
  return true;
}

/* The part of these statements, which is made if need be. NULL: the interpreter runs them. */
static turn_code *part_of(qn_vm *vm, block_code *c, uint32_t from, uint32_t to) {
  block_parts *p = c->parts;
  for (const part *x = p->parts; x; x = x->next)
    if (x->from == from && x->to == to) return x->code;
  part *x = arena_alloc(&c->unit->nodes, sizeof *x);
  if (!x || !make_code(c, from, to, &x->code)) {
    error_clear(vm);
    return NULL;
  }
  x->from = from;
  x->to = to;
  x->next = p->parts;
  p->parts = x;
  return x->code;
}

/* ---- cutting --------------------------------------------------------------------------------------------------------------- */

/* The block is one that is cut, if only at its ends. False if memory is short; no error is raised then. */
static bool part_block(qn_vm *vm, block_code *c) {
  if (c->parts) return true;
  c->parts = arena_alloc(&c->unit->nodes, sizeof *c->parts);
  if (!c->parts) {
    error_clear(vm);
    return false;
  }
  *c->parts = (block_parts){.n = 0};
  c->block->h.eval = eval_block_parts;
  return true;
}

/* The capture has ended in statement number i of the block. Are the statements behind it to be run as parts? */
static bool cut_block(qn_vm *vm, n_block *n, uint32_t i) {
  block_code *c = n->code;
  if (!c || c->whole || n->n == 1 || !part_block(vm, c)) return false;
  block_parts *p = c->parts;
  uint32_t at = 0;
  while (at < p->n && p->cuts[at].item < i) at++;
  if (at < p->n && p->cuts[at].item == i) return true;
  if (p->n >= (uint64_t)vm->tune[TUNE_jit_segments]) {
    if (!p->full && vm_logs(vm, LOG_breaks))
      vm_logf(vm, LOG_breaks,
              "a block has more than %u statements that cannot be captured (jit.segments): others stay eager", p->n);
    p->full = true;
    return true;
  }
  cut *cuts = arena_alloc(&c->unit->nodes, (p->n + (size_t)1) * sizeof *cuts);
  if (!cuts) {
    error_clear(vm);
    return false;
  }
  if (at) memcpy(cuts, p->cuts, at * sizeof *cuts);
  cuts[at] = (cut){.item = i, .why = rec_last_reason(vm)};
  if (at < p->n) memcpy(cuts + at + 1, p->cuts + at, (p->n - at) * sizeof *cuts);
  p->cuts = cuts;
  p->n++;
  /* What the statement holds is outside of all parts from now on. (Bodies of loops have turns.) */
  for (block_code *inner = c->unit->blocks; inner; inner = inner->next)
    if (inner->outer == c && inner->outer_item == i && !inner->loop && !part_block(vm, inner)) break;
  return true;
}

/* ---- running ----------------------------------------------------------------------------------------------------------------- */

static qn_value run_parts(qn_vm *vm, n_block *n, qn_value *fp, uint32_t from, uint32_t to);

/* Evaluates a statement of those before number `to`. */
static qn_value run_statement(qn_vm *vm, n_block *n, qn_value *fp, uint32_t i, uint32_t to) {
  node *item = n->items[i];
  /* what follows a part is no part of it */
  if (item->eval == eval_tail && to < n->n) item = ((n_tail *)item)->first;
  qn_value v = eval(vm, item, fp);
  return op_deferred(vm) && !value_stops(v) && !rec_end_long(vm) ? value_fail(vm, v) : v;
}

/* ---- statements that are captured in several ways (rec_fork) ---------------------------------------------------------------------- */

/* As rec_block.keeps: the block may be run again, or its variables outlive it. */
static bool keeps(const rec_block *b, const qn_value *variable) {
  const block_code *c = b->code;
  ptrdiff_t slot = variable - b->variables;
  return slot >= 0 && slot < (ptrdiff_t)c->marks[0].top && !c->tail;
}

/* The statements `from` .. `to` of a block while they are captured in several ways. */
typedef struct forked {
  qn_vm *vm;
  n_block *n;
  qn_value *fp;
  uint32_t from, to;         /* of the step in progress */
  uint32_t first, end;       /* of all */
  qn_value *slots[SITE_MAX]; /* the variables that they rebind; */
  uint32_t locals[SITE_MAX]; /* of each its slot, or GLOBAL; */
  qn_value *dead[SITE_MAX];  /* and those that nothing behind the step reads */
  int nslots, ndead;
} forked;
enum { GLOBAL = INT32_MAX };

static bool add_slot(forked *f, global_cell *cell, uint32_t slot) {
  qn_value *at = cell ? &cell->value : &f->fp[slot];
  for (int i = 0; i < f->nslots; i++)
    if (f->slots[i] == at) return true;
  if (f->nslots == SITE_MAX) return false;
  f->locals[f->nslots] = cell ? GLOBAL : slot;
  f->slots[f->nslots++] = at;
  return true;
}

/* Finds the variables. False: these are too many. */
static bool find_slots(forked *f) {
  const block_code *c = f->n->code;
  for (uint32_t i = f->first; i < f->end; i++) {
    const struct block_mark *a = &c->marks[i], *z = &c->marks[i + 1];
    for (uint32_t k = a->events; k < z->events; k++) {
      const struct event *e = &c->uses->events[k];
      if ((e->cell || e->slot < a->top) && !add_slot(f, e->cell, e->slot)) return false;
    }
    for (uint32_t slot = a->top; slot < z->top; slot++)
      if (!add_slot(f, NULL, slot)) return false;
  }
  return true;
}

static qn_value run_recorded(qn_vm *vm, n_block *n, qn_value *fp, uint32_t from, uint32_t to, bool forks);

static qn_value run_forked(void *ctx, rec_exit *how) {
  const forked *f = ctx;
  qn_value v = run_recorded(f->vm, f->n, f->fp, f->from, f->to, false);
  *how = exit_of(f->vm, &v);
  for (int i = 0; i < f->ndead && *how == REC_VALUE; i++) slot_set(f->vm, f->dead[i], value_nil());
  return v;
}

/* As rec_section.step. A statement that may return is one step with what follows. */
static bool fork_step(void *ctx, uint32_t number) {
  forked *f = ctx;
  const block_code *c = f->n->code;
  f->from = f->first + number;
  f->to = f->n->items[f->from]->eval == eval_tail ? f->end : f->from + 1;
  f->ndead = 0;
  for (int i = 0; i < f->nslots; i++) { /* (slots that are not in use behind it are used again) */
    const uint32_t slot = f->locals[i];
    if (slot != GLOBAL && (slot >= c->marks[f->to].top || !is_kept(c, slot, f->to))) f->dead[f->ndead++] = f->slots[i];
  }
  return f->to == f->end;
}

/* The end of the statements from number i on, before `to`, that read what statement i assigns. */
static uint32_t last_reader(const block_code *c, uint32_t i, uint32_t to) {
  const struct block_mark *a = &c->marks[i], *z = &c->marks[i + 1];
  uint32_t end = i + 1;
  for (uint32_t k = i + 1; k < to; k++) {
    bool reads = false;
    for (uint32_t e = a->events; e < z->events && !reads; e++)
      reads = !c->uses->events[e].cell && is_used(c, c->uses->events[e].slot, k, k + 1);
    for (uint32_t slot = a->top; slot < z->top && !reads; slot++) reads = is_used(c, slot, k, k + 1);
    if (reads) end = k + 1;
  }
  return end;
}

/* Where it stands whether statement i is captured in several ways. */
static uint8_t *fork_of(const qn_vm *vm, const block_code *c, uint32_t i) {
  return &c->forks[(uint32_t)rec_fork_place(vm) * c->block->n + i];
}

/* Offers statements from number i on, before `to`, to be captured in several ways. *end: behind those that have been made, *v: how they have ended. False: none
 * have been made. */
static bool offer_fork(qn_vm *vm, n_block *n, qn_value *fp, uint32_t i, uint32_t to, uint32_t *end, qn_value *v) {
  block_code *c = n->code;
  const bool chooses = rec_chooses(vm);
  const uint32_t ends[] = {i + 1, last_reader(c, i, to), to};
  for (size_t k = 0; k < sizeof ends / sizeof *ends; k++) {
    if (k && ends[k] == ends[k - 1]) continue;
    forked f = {.vm = vm, .n = n, .fp = fp, .first = i, .end = ends[k]};
    if (!find_slots(&f)) continue;
    const rec_section part = {.at = n->items[i]->at,
                              .run = {run_forked, &f},
                              .step = fork_step,
                              .assigned = {f.slots, f.nslots},
                              .used = f.end == to,
                              .last = c->tail && f.end == n->n};
    *v = value_nil();
    rec_answer answer = rec_fork(vm, &part, v);
    *end = answer == REC_DONE ? f.to : f.end;
    if (answer == REC_FAILED) *v = value_error();
    if (answer == REC_DONE && c->tail && f.to == n->n) {
      slot_set(vm, &interp_of(vm)->returned, *v);
      *v = value_signal(SIGNAL_RETURN);
    }
    if (answer != REC_NOT_YET) return true;
  }
  if (!rec_forks_enough(vm)) *fork_of(vm, c, i) = chooses ? FORK_NOT : FORK_WITHIN;
  *end = i + 1;
  return false;
}

/* Is a statement to be offered? */
static bool may_fork(const qn_vm *vm, uint8_t fork) {
  return op_deferred(vm) && (fork == FORK_TRY || (fork == FORK_WITHIN && rec_chooses(vm)));
}

/* As block_run, in a recording. `forks`: the first statement may be one that is captured in several ways. */
static qn_value run_recorded(qn_vm *vm, n_block *n, qn_value *fp, uint32_t from, uint32_t to, bool forks) {
  block_code *c = n->code;
  rec_block b = {.keeps = keeps, .code = c, .variables = fp};
  rec_block_begin(vm, &b);
  qn_value v = value_nil();
  bool cut = false;
  uint32_t i = from;
  while (i < to && !cut) {
    const struct recording *captures = rec_captures(vm);
    uint32_t at = i, end = i + 1;
    b.fork = forks ? fork_of(vm, c, i) : NULL;
    if (!(forks && may_fork(vm, *b.fork) && offer_fork(vm, n, fp, i, to, &end, &v)))
      v = run_statement(vm, n, fp, i, to);
    forks = true;
    i = end;
    cut = captures && rec_captures(vm) != captures && cut_block(vm, n, at);
    if (__builtin_expect(value_stops(v), 0)) {
      if (value_is_error(v) && end < n->n) raise_at(vm, n->items[at]->at);
      break;
    }
    if (i < to) value_release(vm, v);
  }
  rec_block_end(vm, &b);
  return cut && i < to && !value_stops(v) ? run_parts(vm, n, fp, i, to) : v;
}

qn_value block_run(qn_vm *vm, n_block *n, qn_value *fp, uint32_t from, uint32_t to) {
  if (n->code && op_deferred(vm)) return run_recorded(vm, n, fp, from, to, true);
  for (uint32_t i = from; i < to; i++) {
    qn_value v = run_statement(vm, n, fp, i, to);
    if (__builtin_expect(value_stops(v), 0)) {
      if (value_is_error(v) && i + 1 < n->n) raise_at(vm, n->items[i]->at);
      return v;
    }
    if (i + 1 == to) return v;
    value_release(vm, v);
  }
  return value_nil();
}

/* Statements from number `from` on, before `to`: all those between two cuts. */
static qn_value run_part(qn_vm *vm, n_block *n, qn_value *fp, uint32_t from, uint32_t to) {
  turn_code *code = part_of(vm, n->code, from, to);
  if (!code || !part_asks(vm, code)) return block_run(vm, n, fp, from, to);
  turn_parts parts = {.block = n, .from = from, .to = to, .at = n->items[from]->at};
  return part_called(vm, code, &parts, fp);
}

static qn_value run_parts(qn_vm *vm, n_block *n, qn_value *fp, uint32_t from, uint32_t to) {
  for (;;) {
    block_parts *p = n->code->parts; /* new cuts may have been made meanwhile */
    if (!p || op_deferred(vm)) return block_run(vm, n, fp, from, to);
    cut *next = p->cuts;
    while (next < p->cuts + p->n && next->item < from) next++;
    uint32_t end = next < p->cuts + p->n && next->item < to ? next->item : to;
    qn_value v;
    if (end > from) {
      v = run_part(vm, n, fp, from, end);
    } else {
      next->runs++;
      v = eval(vm, n->items[from], fp);
      end = from + 1;
      if (value_is_error(v) && end < n->n) raise_at(vm, n->items[from]->at);
    }
    if (end == to || value_stops(v)) return v;
    value_release(vm, v);
    from = end;
  }
}

qn_value eval_block_parts(qn_vm *vm, node *h, qn_value *fp) {
  n_block *n = (n_block *)h;
  qn_value r = run_parts(vm, n, fp, 0, n->n);
  for (uint32_t i = n->first; i < n->last; i++) slot_set(vm, &fp[i], value_nil());
  return r;
}

/* ---- what explain is told -------------------------------------------------------------------------------------------------------- */

typedef struct steps_walk {
  qn_vm *vm;
  const fn_code *code;
  bool (*each)(void *ctx, const void *step);
  void *ctx;
} steps_walk;

static bool walk_blocks(const steps_walk *w, const block_code *outer, uint32_t item, int depth);

/* The block's parts and cuts, and what its statements hold. */
static bool walk_block(const steps_walk *w, block_code *c, int depth) {
  const block_parts *p = c->parts;
  const cut *next = p ? p->cuts : NULL, *end = p ? p->cuts + p->n : NULL;
  uint32_t begun = 0; /* where the part begins that statement i belongs to */
  for (uint32_t i = 0; i < c->block->n; i++) {
    bool cuts = next < end && next->item == i;
    if (cuts) {
      block_step s = {.at = c->block->items[i]->at, .why = next->why, .runs = next->runs, .depth = depth};
      if (!w->each(w->ctx, &s)) return false;
      next++;
      begun = i + 1;
    } else if (p && begun == i) {
      turn_code *code = part_of(w->vm, c, i, next < end ? next->item : c->block->n);
      block_step s = {.depth = depth};
      if (code) s.at = code->anchor.at, s.anchor = &code->anchor;
      if (code && !w->each(w->ctx, &s)) return false;
    }
    if (!walk_blocks(w, c, i, depth + cuts)) return false;
  }
  return true;
}

/* The blocks that statement number `item` of `outer` holds, or, if that is NULL, those of the function that lie in no other. */
static bool walk_blocks(const steps_walk *w, const block_code *outer, uint32_t item, int depth) {
  uint32_t after = 0;
  for (;;) {
    block_code *first = NULL; /* the first one that begins behind `after` */
    for (block_code *c = w->code->unit->blocks; c; c = c->next) {
      uint32_t start = c->block->items[0]->at.start + 1;
      bool in = c->uses == w->code->uses && c->outer == outer && (!outer || c->outer_item == item) && start > after;
      if (in && (!first || start < first->block->items[0]->at.start + 1)) first = c;
    }
    if (!first) return true;
    if (!walk_block(w, first, depth)) return false;
    after = first->block->items[0]->at.start + 1;
  }
}

bool block_steps(qn_vm *vm, qn_value fn, bool (*each)(void *ctx, const void *step), void *ctx) {
  steps_walk w = {vm, value_fn(fn)->code, each, ctx};
  return !w.code->uses || walk_blocks(&w, NULL, 0, 0);
}
