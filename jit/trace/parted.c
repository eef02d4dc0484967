/* Variables that hold the same value, told apart for the sake of gradients.
 *
 * Cotangents of a value are added in the order of its uses. A captured loop has a carry for each variable, and a captured branch a result, so
 * there the uses through one variable are summed before they meet those through another. An unrolled loop, or a branch of which only the arm
 * that was taken is recorded, would sum them as they come, and get other bits. So while a gradient is in progress, variables that such a loop
 * or branch may rebind get copies (views) of the values that they share: of what is older than the turn or arm, unless the variable has held
 * it all along, and of what another variable holds already. What a function returns from an arm or turn, or behind one that may have returned, is
 * told apart likewise (rec_part_tail): where these are captured, it is a result of theirs. Lanes of a vmap get the same copies, behind what selects
 * by lane.
 * jit/graph/grad_control.c adds the cotangents of regions in the same order.
 *
 * A captured loop stores what it adds to a list in buffers, behind all else that the turn makes (grown.h), and its carries are met before that on the way
 * back. So the copies of items that a turn adds to a list which only grows are made before those of variables, which keep what they share with items.
 *
 * Inside two gradients and more, each turn of a loop begins with copies of all of its variables, and so does what follows the loop: then no value is
 * used in two turns, and the gradients of a turn are all that adds to the cotangents of its values. What follows a branch that may leave the turn is a
 * part of its other arm where it is captured, so before that the variables are told apart as behind an arm (rec_part_rest). (Lists that grow are not carried item by
 * item, so items that were there before stay.)
 *
 * For the same reason a slice with bounds or a step has a node of its own there, also where it is the whole array, as `x[i:]` is in the turn in which i is 0
 * (index.c); and where a turn makes an array of another shape, it must be certain that this is another one (rec_shape_differs).
 *
 * Gradients by programs with such loops and branches have no negative zeros (differentiate.c): a sum that begins with a zero, as that of a
 * captured value does, has none, either.
 */
#include "jit/trace/gradients.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/vmap.h"
#include "lang/source.h"

/* A walk over the leaves of some variables. */
typedef struct parting {
  struct recording *r;
  uint32_t from;       /* nodes with smaller ids (rec_next_id) are older than the turn or arm */
  const uint32_t *own; /* by leaf, nown of them: the node that it had before; NULL: none counts */
  uint32_t nown;
  node_list held; /* by leaf: the node that it has now; 0: none */
  /* nodes that leaves of other variables hold, or NULL; a leaf needs a copy if its node is there `times` times */
  const node_list *shared;
  uint32_t times;
  bool all, none; /* every leaf gets a copy, or no one does */
  bool any;       /* a leaf needs a copy */
} parting;

/* The node of a float that may be derived; 0: it has none. Inside an arm it becomes an input if it comes from around the arm. */
static uint32_t derived_node(struct recording *r, qn_value v) {
  if (!is_float_leaf(v)) return 0;
  uint32_t node = rec_traced(r, v);
  for (const struct recording *x = r; !node && x->arm; x = x->outer)
    if (rec_traced(x->outer, v)) return rec_node(r, v);
  return node;
}

/* Is a node of r older than this id? What an arm has captured is as old as where it is from. */
static bool is_older(const struct recording *r, uint32_t node, uint32_t from) {
  while (r->arm && r->g->nodes[node].kind == NODE_INPUT) {
    uint32_t number = r->g->nodes[node].payload.input;
    if (number < r->carries) return true;
    node = r->captures[number];
    r = r->outer;
  }
  return r->base + node < from;
}

/* Does the next leaf need a copy? Notes its node. -1 with an error raised. */
static int needs_copy(parting *p, qn_value v) {
  uint32_t node = derived_node(p->r, v), at = p->held.n;
  if (!node && (error_pending(p->r->vm) || (is_float_leaf(v) && !nodes_add(p->r->vm, &p->held, 0)))) return -1;
  if (!node) return 0;
  /* The variable had it before the turn. Another variable that has got it since holds something older than the turn, and needs a copy. */
  bool own = at < p->nown && p->own[at] == node;
  bool copy = p->all || (!p->none && !own && is_older(p->r, node, p->from)), looks = !copy && !p->none && !own;
  for (uint32_t i = 0; i < at && looks && !copy; i++) copy = p->held.nodes[i] == node;
  for (uint32_t i = 0, n = 0; p->shared && i < p->shared->n && looks && !copy; i++)
    copy = p->shared->nodes[i] == node && ++n == p->times;
  return nodes_add(p->r->vm, &p->held, node) ? copy : -1;
}

static bool look(void *ctx, qn_value v) {
  parting *p = ctx;
  int copy = needs_copy(p, v);
  p->any |= copy > 0;
  return copy >= 0;
}

static qn_value copied(void *ctx, qn_value v) {
  parting *p = ctx;
  int copy = needs_copy(p, v);
  if (copy <= 0) return copy ? value_error() : value_retain(v);
  uint32_t node = alias_of_node(p->r, p->held.nodes[p->held.n - 1]);
  if (!node) return value_error();
  p->held.nodes[p->held.n - 1] = node;
  return rec_value_of(p->r, node);
}

/* Gives copies to the leaves of a value that need them. False with an error raised. */
static bool part_value(parting *p, qn_value *v) {
  if (!value_is_heap(*v) && !value_node(*v)) return true;
  uint32_t before = p->held.n;
  p->any = false;
  if (!tree_each(p->r->vm, *v, look, p)) return false;
  if (!p->any) return true;
  p->held.n = before;
  qn_value parted = tree_rebuild(p->r->vm, *v, copied, p);
  if (value_is_error(parted)) return false;
  value_release(p->r->vm, *v);
  *v = parted;
  return true;
}

static bool count_leaf(void *ctx, qn_value v) {
  *(uint32_t *)ctx += is_float_leaf(v);
  return true;
}

/* Tells the leaves of a variable apart from those of others. A list that grows in the turn, which one with more or fewer leaves than before is if `adds`
 * or all leaves get copies each turn, gives copies to items that were not there: before other variables, so `lists` says which are looked at. (Where such a
 * list is an array that a turn stores in, what carries give is met before that on the way back.) In the list of nodes their number comes before those of
 * a variable. False with an error raised. */
static bool part_variable(parting *p, qn_value *v, bool adds, bool lists) {
  uint32_t n = 0, before = p->nown ? p->own[0] : 0;
  if (!tree_each(p->r->vm, *v, count_leaf, &n)) return false;
  bool grows = p->nown && n != before && (p->all || (adds && value_is(*v, TAG_LIST)));
  parting one = {.r = p->r,
                 .from = p->from,
                 .own = p->own + 1,
                 .nown = before,
                 .shared = p->shared,
                 .times = p->times,
                 .all = p->all && !grows,
                 .none = grows && !lists};
  if (p->all && grows && lists) one.from = rec_next_id(p->r);
  bool ok = (lists && !grows) || part_value(&one, v);
  while (one.held.n < n && ok && !lists) ok = nodes_add(p->r->vm, &one.held, 0);
  if (!lists) ok = ok && nodes_add(p->r->vm, &p->held, n);
  for (uint32_t i = 0; i < one.held.n && ok && !lists; i++) ok = nodes_add(p->r->vm, &p->held, one.held.nodes[i]);
  nodes_free(p->r->vm, &one.held);
  uint32_t read = p->nown ? before + 1 : 0;
  p->own += read;
  p->nown -= read;
  return ok;
}

static bool note_leaf(void *ctx, qn_value v) {
  parting *p = ctx;
  return needs_copy(p, v) >= 0;
}

/* part_variable for all variables, of which `grown` has a bit for each of the first ones that turns only add items to. False with an error raised. */
static bool part_variables(parting *p, rec_slots slots, uint64_t grown) {
  enum { BITS = 64 };
  bool ok = true;
  parting now = {.r = p->r, .none = true}, lists = *p;
  for (int i = 0; i < slots.n && ok && !p->all && grown && p->nown; i++)
    ok = tree_each(p->r->vm, *slots.slots[i], note_leaf, &now);
  if (!p->all) lists.shared = &now.held, lists.times = 2;
  for (int i = 0; i < slots.n && ok && p->nown && (p->all || grown); i++)
    ok = part_variable(&lists, slots.slots[i], i < BITS && (grown >> i & 1), true);
  now.held.n = 0;
  if (!p->all) p->shared = &now.held, p->times = 1;
  for (int i = 0; i < slots.n && ok; i++) {
    uint32_t from = p->held.n + 1;
    ok = part_variable(p, slots.slots[i], i < BITS && (grown >> i & 1), false);
    for (uint32_t k = from; k < p->held.n && ok && !p->all; k++) ok = nodes_add(p->r->vm, &now.held, p->held.nodes[k]);
  }
  nodes_free(p->r->vm, &now.held);
  return ok;
}

int rec_derivatives(const struct recording *r) {
  int n = 0;
  bool pushes = false; /* the one that was counted last */
  for (const struct recording *x = r; x; x = x->arm ? x->outer : NULL)
    for (const derived_by *by = x->wrt; by; by = by->outer) {
      n += 1 + pushes;
      pushes = by->pushes;
    }
  return n;
}

bool parted_wanted(const struct recording *r) { return rec_derivatives(r) > 0; }

bool rec_is_derived(const qn_vm *vm) { return vm->rec && parted_wanted(vm->rec); }

bool rec_shape_differs(qn_vm *vm, int rank, const int64_t *a, const int64_t *b) {
  if (!vm->rec->arm || !vm->rec->g->dims.strict || !rec_is_derived(vm)) return true;
  dim_table *t = rec_dims(vm);
  int64_t apart;
  for (int k = 0; k < rank; k++)
    if (a[k] != b[k] && dim_is_const(t, dim_make(t, DIM_SUB, a[k], b[k]), &apart)) return true;
  return rec_unknown_size(vm);
}

bool parted_turns(const struct recording *r) { return rec_derivatives(r) > 1; }

bool parted_leaf(const struct recording *r, qn_value v) {
  if (!parted_wanted(r) || !is_float_leaf(v)) return false;
  for (; r; r = r->arm ? r->outer : NULL)
    if (rec_traced(r, v)) return true;
  return false;
}

/* (What `and`, `or`, a read or an arm on data gives may be a plain number, and an array may have its elements, which is data only where the branch
 * is captured. So branches on plain values count, too; but not those of the library, which ask for types and settings.) */
uint32_t rec_part_from(qn_vm *vm, qn_value predicate, span at) {
  struct recording *r = vm->rec;
  if (!r || !parted_wanted(r)) return 0;
  const source_text *text = source_get(vm, at.source);
  if (rec_is_data(r, predicate) || !text || !text->library) rec_base(r)->controls++;
  return rec_next_id(r);
}

uint32_t rec_part_tail(const qn_vm *vm) {
  const struct recording *r = vm->rec;
  return r && parted_wanted(r) ? rec_next_id(r) : 0;
}

static bool part_arm(struct recording *r, uint32_t from, rec_slots slots, qn_value *value) {
  parting p = {.r = r, .from = from};
  bool ok = true;
  for (int i = 0; i < slots.n && ok; i++) ok = part_value(&p, slots.slots[i]);
  ok = ok && part_value(&p, value);
  nodes_free(r->vm, &p.held);
  return ok;
}

bool parted_arm(struct recording *r, uint32_t from, rec_slots slots, qn_value *value) {
  if (!parted_wanted(r)) return true;
  rec_base(r)->controls++;
  return part_arm(r, from, slots, value);
}

bool rec_part_arm(qn_vm *vm, uint32_t from, rec_slots slots, qn_value *value) {
  struct recording *r = vm->rec;
  return !r || !parted_wanted(r) || (part_arm(r, from, slots, value) && vmap_advance(r) && rec_appended(r));
}

void rec_part_rest(qn_vm *vm, uint32_t from) { vm->rec->rest = from; }

bool parted_rest(struct recording *r, rec_slots slots) {
  qn_value none = value_nil();
  uint32_t from = r->rest;
  r->rest = 0;
  return !from || !parted_turns(r) || part_arm(r, from, slots, &none);
}

bool rec_part_returned(qn_vm *vm, uint32_t from, qn_value *value) {
  return !from || rec_part_arm(vm, from, (rec_slots){NULL, 0}, value);
}

bool rec_part_turn(qn_vm *vm, rec_slots slots, uint64_t grown, rec_tries *tries) {
  struct recording *r = vm->rec;
  if (!r || !parted_wanted(r)) return true;
  if (r != tries->parts) { /* a turn goes on in an arm, where its other ways have left what is around the loop */
    tries->parts = r;
    tries->from = 0;
    tries->parted = r->parted.n;
    tries->rest = r->rest;
  }
  if (r->parted.n < tries->parted) return true;
  bool first = !tries->from;
  if (first) r->rest = 0;
  if (!parted_rest(r, slots)) return false;
  parting p = {.r = r,
               .from = first ? rec_next_id(r) : tries->from,
               .own = r->parted.nodes + tries->parted,
               .all = parted_turns(r)};
  p.nown = first ? 0 : r->parted.n - tries->parted;
  if (first) {
    rec_base(r)->controls++;
    tries->parted = r->parted.n;
  }
  bool ok = part_variables(&p, slots, grown);
  r->parted.n = tries->parted; /* those of loops inside were removed when these ended */
  for (uint32_t i = 0; i < p.held.n && ok; i++) ok = nodes_add(vm, &r->parted, p.held.nodes[i]);
  nodes_free(vm, &p.held);
  ok = ok && vmap_advance(r) && rec_appended(r);
  tries->from = rec_next_id(r);
  return ok;
}

bool rec_part_raised(qn_vm *vm, rec_slots slots, uint64_t grown, rec_tries *tries) {
  if (!error_catchable(vm) || vm->error->id == E_memory) return true;
  qn_error_object *e = error_take(vm);
  if (!rec_part_turn(vm, slots, grown, tries)) return error_free(vm, e), false;
  error_put_back(vm, e);
  return true;
}
