/* Loops, captured: a loop becomes one node of the graph that holds its test and its body.
 *
 * The interpreter runs the test and the body once each, each in a recording of its own (an arm; it is hollow: nothing in it is computed).
 * What the variables hold that the body may rebind is carried from turn to turn: in the arms, arrays and numbers among it are inputs. If
 * the body gives them back with the same structure, dtypes and shapes, a `loop` node with both graphs replaces the turns that are left.
 * Values from around the loop are further inputs of both graphs.
 *
 * The bounds of a loop that counts may be data, numbers of loops around it, or arguments of the call: nothing is asked about how many turns
 * there are.
 *
 * A first turn may change what a variable is, from an int to an array, say; so a loop is asked about again before its second and third one.
 * The turns before are made as usual; that they are there becomes a guard if it depends on numbers of the call, and if it depends on data
 * a check (rec_turn_goes). Within the body of another loop there is a check only when that one is asked about for the last time, since its first
 * turns may be those in which the inner loop has none (for j in 0..i).
 * A branch on data in the body may leave by break, continue or return (ways.c). If one breaks, the arms are recorded once more with a flag
 * behind what is carried: has the loop been left? The test asks it first. If one returns there is another flag, and then what it returns
 * (zeros until then); behind the loop, the way around it is left if the flag is set.
 *
 * A condition that prints, or that rebinds variables, must not be evaluated once more than the program does. Then the loop begins with what the
 * interpreter has found it to be, which is carried as well, and each turn ends with the condition of the next one.
 *
 * A list to which the turns only append is longer after each, so buffers with a row for each item are carried in its place (grown.c). What these
 * must hold is known when the body has been recorded, so it is recorded again with them; turns must be known in number then.
 *
 * Where that does not do, lists become counted ones (counting): those to which the variables' own turns add items, empty ones in what the variables hold,
 * and those that are longer behind the turn of a try that failed.
 *
 * An array to which the turns add rows by concat (`k = concat((k, row[new]))`) is longer after each, too: a buffer with room for all of them is carried, a
 * turn begins with the part of it that is there, and stores its rows behind that. So the number of turns must be known, or be a size.
 *
 * A body that needs data, has an effect or fails is no region, and one whose turns make few nodes together
 * (jit.unroll) is better unrolled: what has been recorded of it is forgotten, and the interpreter goes on.
 */
#include <string.h>

#include "jit/graph/grad.h"
#include "jit/graph/region_builder.h"
#include "jit/run/index.h"
#include "jit/trace/counts.h"
#include "jit/trace/draws.h"
#include "jit/trace/grown.h"
#include "jit/trace/rec.h"
#include "jit/trace/recording.h"
#include "jit/trace/sizes.h"
#include "jit/trace/states.h"
#include "jit/trace/ways.h"

enum {
  ASKED = 3 /* times that a loop is asked about */,
  WITHIN = 8 /* jit.unroll is so much less in arms */,
  COUNTED_MAX = 8,     /* lists that grow in other ways */
  COUNTED_FEW = 16,    /* items that these have before the loop, */
  COUNTED_MANY = 4096, /* or if items are stored in them; */
  COUNTED_LEAST = 4,   /* with so many it is tried at once */
  GROWN_MAX = 64,      /* of the variables only so many first ones may be lists that grow */
  LONGER_MAX = 8,      /* arrays that get rows */
  LONGER_ROWS = 16     /* rows that a turn adds to one of them */
};

/* Lists that become counted ones (grown.h), as an earlier try has found. */
typedef struct counting {
  bool on;
  const void *grew[COUNTED_MAX]; /* lists of the program that were longer behind a turn */
  uint32_t n;
  bool lengthens; /* likewise of arrays: */
  struct {
    const void *array;
    int64_t rows; /* that it has more behind a turn */
  } longer[LONGER_MAX];
  uint32_t nlonger;
} counting;

/* An array that gets rows, while the arms are recorded. */
typedef struct longer_array {
  uint32_t carry;  /* which of what is carried is its buffer */
  int64_t rows;    /* that a turn adds */
  qn_value before; /* a host int: how many it has before the loop, */
  qn_value now;    /* and before the turn */
  uint32_t part;   /* in the body: these */
} longer_array;

/* One of them. */
typedef struct counted_list {
  uint32_t number; /* its grown_items */
  qn_value held;   /* borrowed: the list before the loop, which may be a stacked one */
  qn_dim len;      /* how many items it has */
  bool made;       /* it has buffers */
  bool plain;      /* nothing is added to it: it stays as it is */
  int64_t adds;    /* how many items each turn adds; -1: that differs */
  uint32_t carry;  /* which of what is carried counts them */
  bool host;       /* how many there are follows from numbers of the host: those of l->asks among others */
} counted_list;

typedef struct loop {
  qn_vm *vm;
  counting *counting;
  counted_list lists[COUNTED_MAX]; /* in the order of the variables and of what these hold */
  uint32_t nlists, list;           /* the next one while trees are walked */
  longer_array longer[LONGER_MAX];
  uint32_t nlonger;
  bool lengthens;        /* behind a turn arrays have more rows than before it */
  int64_t turns_of_test; /* of a loop that does not count: how many turns its test allows; 0: that is not known */
  uint32_t asks[COUNTED_MAX], nasks; /* nodes around the loop */
  struct recording *r;
  rec_turns turns;
  rec_slots assigned;
  qn_value *before; /* owned: what the variables held before; in place of lists that grow what stands for them */
  qn_value *held;   /* owned: what they really held */
  uint64_t grown;   /* a bit for each variable that is a list which grows */
  qn_dim size;      /* how many turns there are, if lists grow and that is a symbolic size; else 0 */
  uint32_t adds[GROWN_MAX];        /* how many items a turn adds to it */
  bool looks;                      /* the arms are recorded to find this out, without buffers */
  struct recording *header, *body; /* owned */
  struct recording *in;            /* the arm whose carries the variables get */
  rec_way *around;                 /* the way that the loop stands in, or NULL */
  way_choices closed;              /* tells whether a turn has several ways that do not agree */
  bool tested;                     /* a turn evaluates the condition of the next one */
  bool rebinds;                    /* the condition rebinds variables */
  qn_value *untested;              /* owned: what these hold before it is evaluated */
  qn_value goes;                   /* owned: if it is `tested`: is there a first turn? A host bool */
  bool leaves, returns, parts;     /* an arm of the body leaves the loop; one returns; one leaves the turn */
  bool raises;                     /* one leaves the try around it */
  rec_way *raising;                /* the way, perhaps of a caller, that errors leave; or NULL */
  bool ends;                       /* the condition may be false */
  bool recounts;                   /* loops in it make turns that must be counted before (turns_counted) */
  bool changes;                    /* behind a turn the variables are not what they are before it */
  bool down, miscounts,
      uncounted; /* of a carry that the test bounds: turns make it less; they do not what was expected; it is left aside */
  qn_value returned; /* owned: zeros in the structure of what is returned; unset: nothing is */
  qn_value words;    /* owned: the same of what the words of errors are made of */
  /* Nodes of what is carried, in this order: the variables; the number of a loop that counts; `goes`, if it is `tested`; if it may be left, a
   * flag; if it may return, a flag and what is returned; if it may leave a try, the number of the error and what its words are made of. */
  uint32_t *outer, n, cap;
  uint32_t count, asked, flag;     /* where the number, `goes` and the first flag are among these, */
  uint32_t raised;                 /* and the number of the error */
  uint32_t *outs, nouts, outs_cap; /* what the body makes of it */
  uint32_t leaf, node;             /* the next ones while trees are walked; the loop's node */
} loop;

/* ---- what is carried ----------------------------------------------------------------------------------------------------------- */

static bool add_carried(loop *l, uint32_t node) {
  if (l->n >= (uint64_t)l->vm->tune[TUNE_jit_leaves]) return rec_give_up(l->r, BREAK_too_many_leaves);
  if (!node || sizes_late(l->r, node)) return false;
  if (!mem_grow(l->vm, (void **)&l->outer, &l->cap, l->n + (size_t)1, sizeof *l->outer)) return false;
  l->outer[l->n++] = node;
  return true;
}

static int64_t turns_known(const loop *l);

/* Carries a buffer in place of an array that gets so many rows in each turn. False if it cannot be, or with an error raised. */
static bool carry_longer(loop *l, qn_value v, int64_t rows) {
  qn_vm *vm = l->vm;
  dim_table *dims = &l->r->g->dims;
  uint32_t node = rec_node(l->r, v);
  qn_dim turns = l->size ? l->size : turns_known(l);
  if (!node || !turns || l->tested || l->nlonger == LONGER_MAX) return false;
  graph_type t = l->r->g->nodes[node].type;
  longer_array *x = &l->longer[l->nlonger++];
  *x = (longer_array){.carry = l->n, .rows = rows, .before = rec_size_number(vm, t.shape[0])};
  bool some = t.shape[0] != 0;
  t.shape[0] = dim_make(dims, DIM_MUL, turns, dim_const(dims, rows));
  if (t.shape[0] > INT32_MAX || value_is_error(x->before)) return false;
  uint32_t zeros = graph_full(l->r->g, &t, 0, rec_site(l->r));
  qn_value in[2] = {v, zeros ? rec_value_of(l->r, zeros) : value_error()};
  if (value_is_error(in[1])) return false;
  qn_value whole = some ? op_concat(vm, in, 2, 0) : value_retain(in[1]);
  value_release(vm, in[1]);
  bool ok = !value_is_error(whole) && add_carried(l, rec_node(l->r, whole));
  if (!value_is_error(whole)) value_release(vm, whole);
  return ok;
}

static bool carry_leaf(void *ctx, qn_value v) {
  loop *l = ctx;
  const counting *c = l->counting;
  for (uint32_t i = 0; i < c->nlonger && c->lengthens && value_is(v, TAG_ARRAY); i++)
    if (c->longer[i].array == v.u.p) return carry_longer(l, v, c->longer[i].rows);
  return !value_is_operand(v) || add_carried(l, rec_node(l->r, v));
}

/* Notes what is carried, but for flags. */
static bool carry_all(loop *l) {
  l->n = l->nlonger = 0;
  for (int i = 0; i < l->assigned.n; i++)
    if (!tree_each(l->vm, l->before[i], carry_leaf, l)) return false;
  l->count = l->n;
  bool ok = !l->turns.counts || add_carried(l, rec_node(l->r, l->turns.first));
  l->asked = l->n;
  ok = ok && (!l->tested || add_carried(l, rec_node(l->r, l->goes)));
  l->flag = l->n;
  return ok;
}

static bool is_grown(const loop *l, int i) { return i < GROWN_MAX && (l->grown >> i & 1); }

/* Puts `v` (taken over) in place of what a variable held before. False if it is the error value. */
static bool set_before(loop *l, int i, qn_value v) {
  if (value_is_error(v)) return false;
  value_release(l->vm, l->before[i]);
  l->before[i] = v;
  return true;
}

/* How many turns there are, if that is known and a list may have so many items; else 0. */
static int64_t turns_known(const loop *l) {
  const rec_turns *t = &l->turns;
  if (!t->counts || t->first.head != TAG_INT || t->end.head != TAG_INT || t->end.u.i <= t->first.u.i) return 0;
  uint64_t n = (uint64_t)t->end.u.i - (uint64_t)t->first.u.i;
  return n <= INT32_MAX ? (int64_t)n : 0;
}

/* May it end before all turns are made that its numbers allow? */
static bool ends_early(const loop *l) { return l->leaves || l->tested; }

/* A bound of a loop in which lists may grow becomes a guard, if it is no data: it decides how long they are. False with an error raised. */
static bool bound_known(loop *l, qn_value *bound) {
  if (!value_is(*bound, TAG_INT) || !value_node(*bound)) return true;
  int guards = may_guard(l->r, *bound);
  if (guards > 0) *bound = rec_guard(l->vm, *bound);
  return guards >= 0 && !value_is_error(*bound);
}

/* Is it a list of a few items, which may stand in front of those that a loop of a symbolic number of turns adds? Then the variable holds a stacked
 * list behind that. */
static bool may_stack(const loop *l, int i) {
  enum { FEW = 4 };
  qn_value v = l->held[i];
  return (l->turns.stacks >> i & 1) && !rec_grows(l->vm, v) && !value_is_stacked(v) && value_list(v)->len <= FEW;
}

/* The size that the number of turns is, if it may stay one: all lists that may grow can be stacked ones behind the loop. 0: it must be known; with
 * or without an error raised. */
static qn_dim turns_size(loop *l, uint64_t may) {
  const rec_turns *t = &l->turns;
  struct recording *r = l->r;
  uint32_t node = !r->arm && t->first.head == TAG_INT && value_node(t->end) ? rec_traced(r, t->end) : 0;
  qn_dim end;
  for (int i = 0; i < l->assigned.n && i < GROWN_MAX && node; i++)
    if ((may >> i & 1) && value_is(l->held[i], TAG_LIST) && !may_stack(l, i)) node = 0;
  if (!node) return 0;
  if (!sizes_of_number(r, node, &end)) return sizes_asked(r, node), 0;
  if (end >= 0) return 0;
  qn_dim size = dim_make(&r->g->dims, DIM_SUB, end, dim_const(&r->g->dims, t->first.u.i));
  return size < 0 && dim_hint(&r->g->dims, size) > 1 ? size : 0;
}

/* Does it hold a stacked list that is a counted one or may become one? */
static bool stays_stacked(const loop *l, int i) {
  const qn_value v = l->held[i];
  return value_is_stacked(v) && (!stacked_mark(v) || value_is_counted(v)) && counted_may(l->r);
}

/* A variable that holds a stacked list gets the list itself. False with an error raised. */
static bool unstack(loop *l, int i) {
  if (!value_is_stacked(l->held[i])) return true;
  qn_value list = rec_unstacked(l->vm, l->held[i]);
  if (value_is_error(list) || !set_before(l, i, value_retain(list))) return false;
  value_release(l->vm, l->held[i]);
  l->held[i] = list;
  return true;
}

/* Lists that may grow are replaced by what stands for them while their items are not known. False with an error raised. */
static bool grown_begin(loop *l) {
  bool on = l->counting->on;
  uint64_t may = l->turns.counts && !on ? l->turns.grown : 0;
  bool bounds = may || ((on || l->counting->lengthens) && l->turns.counts);
  for (int i = 0; i < l->assigned.n && i < GROWN_MAX; i++)
    if ((may >> i & 1) && (stays_stacked(l, i) || !unstack(l, i))) return false;
  if (bounds && !bound_known(l, &l->turns.first)) return false;
  l->size = bounds ? turns_size(l, may) : 0;
  if (bounds && !l->size && !bound_known(l, &l->turns.end)) return false;
  if (!l->size && !turns_known(l)) may = 0;
  for (int i = 0; i < l->assigned.n && i < GROWN_MAX; i++) {
    qn_value v = l->held[i];
    if (rec_grows(l->vm, v) && grown_is_added(v)) return false;
    if (!(may >> i & 1) || !value_is(v, TAG_LIST)) continue;
    uint32_t number = rec_grows(l->vm, v) ? grown_number(v) : grown_new(l->r);
    if (!number || !set_before(l, i, grown_value(l->vm, number, 0, value_nil(), value_nil()))) return false;
    l->grown |= (uint64_t)1 << i;
  }
  l->looks = l->grown != 0;
  return true;
}

/* How many items the loop adds to a list: a size. */
static qn_dim rows_added(const loop *l, int i) {
  if (!l->size || !l->adds[i]) return turns_known(l) * l->adds[i];
  return dim_make(&l->r->g->dims, DIM_MUL, l->size, dim_const(&l->r->g->dims, l->adds[i]));
}

/* The arms have been recorded, and it is known what is added to lists: makes their buffers. *again: the arms must be recorded once more. False if
 * it cannot be captured. */
static bool grown_make(loop *l, bool *again) {
  qn_vm *vm = l->vm;
  *again = false;
  if (ends_early(l)) return false;
  for (int i = 0; i < l->assigned.n; i++) {
    if (!is_grown(l, i)) continue;
    qn_value held = l->held[i], parts = value_nil();
    bool within = rec_grows(vm, held);
    int64_t n = rows_added(l, i);
    if (l->adds[i] == 0) {
      l->grown &= ~((uint64_t)1 << i);
      *again |= set_before(l, i, value_retain(held));
      continue;
    }
    uint32_t number = grown_number(l->before[i]);
    if (n > INT32_MAX || !grown_of(l->r, number)->data || (n < 0 && !grown_fits(l->r, number, held))) return false;
    if (within)
      parts = value_retain(value_list(held)->items[GROWN_PARTS]);
    else
      parts = grown_buffers(l->r, number, n);
    if (!set_before(l, i, grown_value(vm, number, 0, value_nil(), parts))) return false;
    *again |= value_is(value_list(l->before[i])->items[GROWN_PARTS], TAG_LIST);
  }
  l->looks = false;
  return true;
}

/* The body begins: the rows of this turn follow from its number. False if memory is short. */
static bool grown_turn(loop *l) {
  qn_vm *vm = l->vm;
  graph *g = l->in->g;
  for (int i = 0; i < l->assigned.n; i++) {
    if (!is_grown(l, i) || value_is(value_list(l->before[i])->items[GROWN_PARTS], TAG_NIL)) continue;
    qn_value held = l->held[i];
    uint32_t row = l->in->g->inputs[l->count];
    int64_t first = l->turns.first.u.i;
    if (first) row = graph_count(g, OP_sub, row, graph_weak_int(g, first));
    if (row && l->adds[i] != 1) row = graph_count(g, OP_mul, row, graph_weak_int(g, l->adds[i]));
    if (row && rec_grows(vm, held)) {
      uint32_t base = rec_node(l->in, value_list(held)->items[GROWN_BASE]);
      row = base ? graph_count(g, OP_add, row, base) : 0;
      if (row && grown_count(held)) row = graph_count(g, OP_add, row, graph_weak_int(g, grown_count(held)));
    }
    qn_value base = row ? rec_value_of(l->in, row) : value_error(), *slot = l->assigned.slots[i], now = *slot;
    if (value_is_error(base)) return false;
    *slot = grown_value(vm, grown_number(now), 0, base, value_retain(value_list(now)->items[GROWN_PARTS]));
    if (value_is_error(*slot)) {
      *slot = now;
      return false;
    }
    value_release(vm, now);
  }
  return true;
}

/* The loop is a node: lists become what they are behind it. False with an error raised. */
static bool grown_end(loop *l) {
  qn_vm *vm = l->vm;
  for (int i = 0; i < l->assigned.n; i++) {
    if (!is_grown(l, i)) continue;
    qn_value held = l->held[i], *slot = l->assigned.slots[i], parts = value_list(*slot)->items[GROWN_PARTS], v;
    uint32_t number = grown_number(*slot);
    int64_t n = rows_added(l, i);
    if (n < 0) {
      v = grown_stacked(l->r, number, parts, held);
    } else if (rec_grows(vm, held)) {
      const qn_value *around = value_list(held)->items;
      if (n > INT32_MAX - (int64_t)grown_count(held)) return raise_false(vm, E_too_large, "a list has too many items");
      v = grown_value(vm, number, grown_count(held) + (uint32_t)n, value_retain(around[GROWN_BASE]),
                      value_retain(parts));
    } else {
      v = value_retain(held);
      if (!list_own(vm, &v) || !grown_list(l->r, number, n, parts, &v)) v = value_fail(vm, v);
    }
    if (value_is_error(v)) return false;
    value_release(vm, *slot);
    *slot = v;
  }
  return true;
}

/* ---- counted lists --------------------------------------------------------------------------------------------------------------- */

/* How many turns there are, if that is known and no size. */
static int64_t counted_turns(const loop *l) { return l->turns.counts ? turns_known(l) : l->turns_of_test; }

/* Is a list to become a counted one? `variable`: it is what that variable holds; -1: a part of it. */
static bool is_counting(const loop *l, qn_value v, int variable) {
  const qn_list *x = value_list(v);
  if (value_is_stacked(v))
    return variable >= 0 && variable < GROWN_MAX && !stacked_mark(v) && (l->turns.stacks >> variable & 1);
  bool may = variable >= 0 && variable < GROWN_MAX, stores = may && (l->turns.stores >> variable & 1);
  if (x->len > (stores ? COUNTED_MANY : COUNTED_FEW) || x->head.aux == OBJ_PROGRESS) return false;
  if (variable >= 0) return may && (l->turns.stacks >> variable & 1);
  bool wanted = !x->len;
  for (uint32_t k = 0; k < l->counting->n && !wanted; k++) wanted = l->counting->grew[k] == x;
  return wanted;
}

static qn_dim length_of(const loop *l, qn_value list) {
  if (!value_is_stacked(list)) return value_list(list)->len;
  int64_t sizes[ARRAY_MAX_RANK];
  rec_sizes(l->vm, stacked_lead(list), sizes);
  return sizes[0];
}

/* What stands for the next list. Owned, or the error value. */
static qn_value counted_for(loop *l, qn_value v) {
  if (l->list == COUNTED_MAX) return value_retain(v);
  counted_list *x = &l->lists[l->list++];
  if (l->list > l->nlists) {
    l->nlists = l->list;
    *x = (counted_list){.number = grown_new(l->r), .held = v, .len = length_of(l, v)};
    x->plain = x->number && !counted_begin(l->r, x->number, v);
    if (!x->number || error_pending(l->vm)) return value_error();
  }
  if (x->plain) return value_retain(v);
  if (!x->made) return counted_looks(l->r, x->number, v);
  int64_t n = counted_turns(l), len = x->len;
  const grown_items *g = grown_of(l->r, x->number);
  dim_table *dims = &l->r->g->dims;
  if (!g->adds) /* where items are taken away others may be added behind the loop */
    return counted_new(l->r, x->number, v, g->removes && len >= 0 ? len + counted_room(l->r, x->number) : len, true);
  bool known = (n || l->size) && !g->within, exact = known && x->adds >= 0 && !ends_early(l);
  int64_t adds = exact ? x->adds : g->adds;
  if (!known)
    n = counted_room(l->r, x->number);
  else if (l->size)
    n = dim_make(dims, DIM_MUL, l->size, dim_const(dims, adds));
  else
    n *= adds;
  if (known && !exact && dim_hint(dims, n) > counted_room_most(l->r, x->number, ends_early(l))) {
    n = counted_room_most(l->r, x->number, ends_early(l));
    known = false;
  }
  bool size = n < 0 || len < 0;
  if (!size && n > INT32_MAX - len) return value_error();
  n = size ? dim_make(dims, DIM_ADD, n < 0 ? n : dim_const(dims, n), len < 0 ? len : dim_const(dims, len)) : n + len;
  return counted_new(l->r, x->number, v, n, known);
}

/* A list or record with what `part` gives of each of its parts. Owned, or the error value. */
static qn_value with_parts(loop *l, qn_value v, qn_value (*part)(loop *l, qn_value v)) {
  qn_value copy = parts_like(l->vm, v);
  if (value_is_error(copy)) return copy;
  uint32_t n;
  const qn_value *from = value_parts(v.u.p, &n);
  qn_value *to = value_parts(copy.u.p, &n);
  for (uint32_t i = 0; i < n; i++) {
    qn_value made = part(l, from[i]);
    if (value_is_error(made)) return value_fail(l->vm, copy);
    to[i] = made;
  }
  return copy;
}

static qn_value with_counted_part(loop *l, qn_value v);

/* v with what stands for lists in it. Owned, or the error value. */
static qn_value with_counted(loop *l, qn_value v, int variable) {
  bool list = value_is(v, TAG_LIST);
  if ((!list && !value_is(v, TAG_RECORD)) || rec_grows(l->vm, v)) return value_retain(v);
  if (list && is_counting(l, v, variable)) return counted_for(l, v);
  if (value_is_stacked(v)) return value_retain(v);
  if (!vm_enter(l->vm, 0)) return value_error();
  return with_parts(l, v, with_counted_part);
}

static qn_value with_counted_part(loop *l, qn_value v) { return with_counted(l, v, -1); }

/* The variables hold counted lists in place of those that may grow. False if there is none, or it cannot be; with or without an error raised. */
static bool counted_lists(loop *l) {
  if (rec_base(l->r)->lanes) return false;
  l->list = 0;
  for (int i = 0; i < l->assigned.n; i++)
    if (!set_before(l, i, with_counted(l, l->held[i], i))) return false;
  return l->nlists > 0;
}

/* What the body adds to a carried number, if that is always the same; else -1. */
static int64_t always_added(const loop *l, uint32_t k) {
  const graph *g = l->body->g;
  int64_t all = 0;
  for (uint32_t node = l->outs[k]; node != g->inputs[k];) {
    const graph_node *n = &g->nodes[node];
    qn_value by;
    if (n->kind != NODE_OP || n->op != OP_add || !graph_const_value(g, n->in[1], &by) || by.u.i < 0) return -1;
    all += by.u.i;
    node = n->in[0];
  }
  return all;
}

/* Goes over what is carried of a variable, and notes what is added to its counted lists; *k: how many numbers and arrays there were. */
static void note_added(loop *l, qn_value v, uint32_t *k) {
  if (value_is_operand(v)) {
    ++*k;
    return;
  }
  if (!value_is(v, TAG_LIST) && !value_is(v, TAG_RECORD)) return;
  uint32_t n;
  const qn_value *parts = value_parts(v.u.p, &n);
  for (uint32_t i = 0; i < n; i++) note_added(l, parts[i], k);
  if (!value_is_counted(v)) return;
  for (uint32_t i = 0; i < l->nlists; i++)
    if (l->lists[i].number == counted_number(v)) l->lists[i].carry = *k - 1, l->lists[i].adds = always_added(l, *k - 1);
}

/* The branch that a graph is an arm of. */
typedef struct arm_of {
  const struct arm_of *outer;
  const graph *g;
  const graph_node *branch;
} arm_of;

/* Does a number of the body follow from the number of the turn and numbers of the host around the loop? Looks at *left nodes at most. */
static bool of_host(loop *l, const arm_of *arm, const graph *g, uint32_t node, int *left) {
  const graph_node *n = &g->nodes[node];
  if (--*left < 0) return false;
  if (n->kind == NODE_PROJ && g->nodes[n->in[0]].kind == NODE_IF) {
    const graph_node *branch = &g->nodes[n->in[0]];
    const arm_of within = {arm, g, branch};
    bool ok = of_host(l, arm, g, branch->in[0], left);
    for (int k = 0; k < 2 && ok; k++) {
      const graph *way = branch->payload.regions[k];
      ok = of_host(l, &within, way, way->outputs[n->payload.index], left);
    }
    return ok;
  }
  if (!n->type.weak || n->type.dtype == QN_f64) return false;
  if (n->kind == NODE_CONST) return true;
  if (n->kind == NODE_OP) {
    for (int k = 0; k < n->nin; k++)
      if (!of_host(l, arm, g, n->in[k], left)) return false;
    return true;
  }
  if (n->kind != NODE_INPUT) return false;
  uint32_t at = n->payload.input;
  if (arm) return of_host(l, arm->outer, arm->g, arm->branch->in[1 + at], left);
  if (at < l->n) {
    bool known = l->turns.counts && at == l->count;
    for (uint32_t i = 0; i < l->nlists; i++) known |= l->lists[i].made && l->lists[i].carry == at;
    return known;
  }
  uint32_t outer = l->body->captures[at];
  for (uint32_t i = 0; i < l->nasks; i++)
    if (l->asks[i] == outer) return true;
  if (!outer || l->nasks == COUNTED_MAX || rec_is_data(l->r, rec_value_of(l->r, outer))) return false;
  l->asks[l->nasks++] = outer;
  return true;
}

/* The arms have been recorded with buffers. Of lists whose length may be known, finds out whether it is: it is what unrolled turns would give. */
static void note_host(loop *l) {
  enum { LOOKED_AT = 200 };
  const struct recording *r = l->r;
  if (r->arm || r->hollow || !r->capturing || ends_early(l) || l->size || !turns_known(l)) return;
  uint32_t k = 0;
  for (int i = 0; i < l->assigned.n; i++) note_added(l, l->before[i], &k);
  bool all = true;
  for (uint32_t i = 0; i < l->nlists && all; i++)
    all = !l->lists[i].made || of_host(l, NULL, l->body->g, l->outs[l->lists[i].carry], &(int){LOOKED_AT});
  for (uint32_t i = 0; i < l->nlists; i++) all &= !l->lists[i].made || !grown_of(l->r, l->lists[i].number)->fronts;
  for (uint32_t i = 0; i < l->nlists; i++) l->lists[i].host = all && l->lists[i].adds < 0 && l->lists[i].len >= 0;
}

/* A list behind the loop whose length follows from numbers of the host, which are guarded. Owned, or the error value. */
static qn_value host_counted(loop *l, const counted_list *x, qn_value v) {
  for (uint32_t i = 0; i < l->nasks; i++) {
    qn_value asked = rec_value_of(l->r, l->asks[i]);
    if (value_is_error(asked) || value_is_error(asked = rec_guard(l->vm, asked))) return asked;
  }
  qn_value n = rec_stacked_length(l->vm, v);
  if (n.u.i) return counted_end(l->r, v, n.u.i);
  return x->len ? value_new(TAG_LIST, list_new(l->vm, 0)) : value_retain(x->held);
}

/* A loop that does not count, as `while len(h) < n`, and adds an item in each turn: finds out how many turns there are. */
static void note_turns(loop *l) {
  const struct recording *r = l->r;
  const graph *g = l->header->g;
  const graph_node *test = &g->nodes[g->outputs[0]];
  if (l->turns.counts || ends_early(l) || r->arm || test->kind != NODE_OP || test->op != OP_lt) return;
  const counted_list *x = NULL;
  for (uint32_t i = 0; i < l->nlists && !x; i++)
    if (l->lists[i].adds == 1 && test->in[0] == g->inputs[l->lists[i].carry]) x = &l->lists[i];
  const graph_node *bound = &g->nodes[test->in[1]];
  int64_t len = x ? x->len : 0, end = 0;
  qn_value known;
  if (!x || len < 0 || !bound->type.weak || !dtype_is_int((qn_dtype)bound->type.dtype)) return;
  if (bound->kind == NODE_INPUT && bound->payload.input >= l->n) {
    uint32_t outer = l->header->captures[bound->payload.input];
    qn_dim size;
    if (!outer) return;
    known = rec_value_of(l->r, outer);
    if (value_is_error(known) || rec_is_data(r, known)) return;
    if (sizes_of_number(l->r, outer, &size) && size < 0) {
      if (len > 1 || dim_hint(&r->g->dims, size) <= 2) return;
      l->size = dim_make(&l->r->g->dims, DIM_SUB, size, dim_const(&l->r->g->dims, len));
      return;
    }
    sizes_asked(l->r, outer);
    known = rec_guard(l->vm, known);
    if (value_is_error(known)) return;
    end = known.u.i;
  } else if (graph_const_value(g, test->in[1], &known)) {
    end = known.u.i;
  }
  if (end > len && end <= INT32_MAX) l->turns_of_test = end - len;
}

/* Is it recorded for all lanes of a vmap? The interpreter refuses lists to them whose lengths differ. */
static bool of_lanes(const struct recording *r) {
  while (!r->aside && !r->lanes && r->arm) r = r->outer;
  return r->aside || r->lanes;
}

/* Does it not depend on data how many items are taken from a list to which nothing is added? Then the interpreter makes the turns. */
static bool taken_known(const loop *l, const counted_list *x) {
  const graph *g = l->body->g;
  return x->len >= 0 && !states_may_be_over(l->r, &l->turns) && g->nodes[l->outs[x->carry]].kind != NODE_PROJ;
}

/* The arms have been recorded, and it is known what is added: makes the buffers. False if it cannot be captured. */
static bool counted_make(loop *l) {
  uint32_t k = 0;
  for (int i = 0; i < l->assigned.n; i++) note_added(l, l->before[i], &k);
  note_turns(l);
  if (error_pending(l->vm)) return false;
  for (uint32_t i = 0; i < l->nlists; i++) {
    counted_list *x = &l->lists[i];
    const grown_items *g = grown_of(l->r, x->number);
    x->plain |= !g->adds && !(g->stores && x->len > 0) && !(g->removes && x->len);
    x->made = !x->plain;                                                   /* (a stacked list takes stores as it is) */
    if (x->made && !g->data && (x->adds >= 0 || g->removes)) return false; /* numbers that the host knows */
    if (x->made && g->removes && !g->adds && taken_known(l, x)) return false;
    bool differs = x->adds < 0 || ends_early(l) || g->within || !(l->size || counted_turns(l));
    if (x->made && g->adds && differs && of_lanes(l->r)) return false;
  }
  return counted_lists(l);
}

/* Behind the loop: the lists as what follows knows them. Owned, or the error value. */
static qn_value after_counted(loop *l, qn_value v) {
  if (!value_is(v, TAG_LIST) && !value_is(v, TAG_RECORD)) return value_retain(v);
  for (uint32_t i = 0; value_is_counted(v) && i < l->nlists; i++) {
    const counted_list *x = &l->lists[i];
    if (x->number != counted_number(v)) continue;
    int64_t turns = counted_turns(l), len = x->len;
    if (x->host) return host_counted(l, x, v);
    const grown_items *g = grown_of(l->r, x->number);
    if (!g->adds && !g->removes) return counted_end(l->r, v, len);
    bool exact = (turns || l->size) && x->adds >= 0 && !ends_early(l) && !g->within;
    dim_table *dims = &l->r->g->dims;
    if (!exact) return counted_end(l->r, v, 0);
    if (!l->size && len >= 0) return counted_end(l->r, v, len + turns * x->adds);
    qn_dim all =
        l->size ? dim_make(dims, DIM_MUL, l->size, dim_const(dims, x->adds)) : dim_const(dims, turns * x->adds);
    return counted_end(l->r, v, dim_make(dims, DIM_ADD, all, len < 0 ? len : dim_const(dims, len)));
  }
  if (value_is_stacked(v) || rec_grows(l->vm, v)) return value_retain(v);
  return with_parts(l, v, after_counted);
}

static bool counted_behind(loop *l) {
  for (int i = 0; i < l->assigned.n; i++) {
    qn_value v = after_counted(l, *l->assigned.slots[i]);
    if (value_is_error(v)) return false;
    value_release(l->vm, *l->assigned.slots[i]);
    *l->assigned.slots[i] = v;
  }
  return true;
}

/* Notes what the variables hold, and what is carried. */
static bool loop_begin(loop *l) {
  size_t bytes = ((size_t)l->assigned.n + 1) * sizeof *l->before;
  if (!(l->before = mem_zalloc(l->vm, bytes)) || !(l->held = mem_zalloc(l->vm, bytes))) return false;
  for (int i = 0; i < l->assigned.n; i++) {
    l->held[i] = value_retain(*l->assigned.slots[i]);
    l->before[i] = value_retain(l->held[i]);
  }
  return grown_begin(l) && (!l->counting->on || counted_lists(l)) && carry_all(l) && !l->r->ended;
}

/* Adds what says that the loop has been left, as is now known. */
static bool carry_flags(loop *l) {
  l->n = l->flag;
  if (l->leaves && !add_carried(l, rec_node(l->r, value_bool(false)))) return false;
  if (l->returns &&
      !(add_carried(l, rec_node(l->r, value_bool(false))) && tree_each(l->vm, l->returned, carry_leaf, l)))
    return false;
  l->raised = l->n;
  return !l->raises || (add_carried(l, rec_node(l->r, value_int(0))) && tree_each(l->vm, l->words, carry_leaf, l));
}

static longer_array *longer_at(loop *l, uint32_t carry) {
  for (uint32_t i = 0; i < l->nlonger; i++)
    if (l->longer[i].carry == carry) return &l->longer[i];
  return NULL;
}

/* What is there of an array that gets rows when a turn begins. Owned, or the error value. */
static qn_value longer_now(loop *l, longer_array *x) {
  graph *g = l->in->g;
  uint32_t row = g->inputs[l->count], base = rec_node(l->in, x->before);
  if (row && l->turns.first.u.i) row = graph_count(g, OP_sub, row, graph_weak_int(g, l->turns.first.u.i));
  if (row && x->rows != 1) row = graph_count(g, OP_mul, row, graph_weak_int(g, x->rows));
  if (row) row = base ? graph_count(g, OP_add, row, base) : 0;
  x->now = row ? rec_value_of(l->in, row) : value_error();
  index_item cut = {.kind = INDEX_SLICE, .has_stop = true, .step = 1};
  if (value_is_error(x->now) || !rec_bound(l->vm, x->now, &cut.size_stop, &cut.stop)) return value_error();
  qn_value whole = rec_value_of(l->in, g->inputs[x->carry]);
  if (value_is_error(whole)) return whole;
  qn_value part = op_index(l->vm, whole, &cut, 1);
  value_release(l->vm, whole);
  if (!value_is_error(part)) x->part = rec_node(l->in, part);
  return part;
}

static qn_value leaf_of_arm(void *ctx, qn_value v) {
  loop *l = ctx;
  if (!value_is_operand(v)) return value_retain(v);
  uint32_t k = l->leaf++;
  longer_array *x = l->in == l->body ? longer_at(l, k) : NULL;
  return x ? longer_now(l, x) : rec_value_of(l->in, l->in->g->inputs[k]);
}

static qn_value leaf_of_result(void *ctx, qn_value v) {
  loop *l = ctx;
  if (!value_is_operand(v)) return value_retain(v);
  uint32_t k = l->leaf++;
  uint32_t proj = graph_proj(l->r->g, l->node, k, l->r->g->nodes[l->outer[k]].type, rec_site(l->r));
  return rec_value_of(l->r, proj);
}

/* What is returned, with each array and number replaced by what `leaf` gives. Owned, or the error value. */
static qn_value returned_with(loop *l, qn_value (*leaf)(void *ctx, qn_value v)) {
  l->leaf = l->flag + 2;
  return l->returns ? tree_rebuild(l->vm, l->returned, leaf, l) : value_unset();
}

/* What the words of an error are made of, likewise; unset where none have been seen. */
static qn_value words_with(loop *l, qn_value (*leaf)(void *ctx, qn_value v)) {
  l->leaf = l->raised + 1;
  return value_is(l->words, TAG_UNSET) ? value_unset() : tree_rebuild(l->vm, l->words, leaf, l);
}

/* Sets the variables to what they held before, with each array and number replaced by what `leaf` gives. False with an error raised. */
static bool set_variables(loop *l, qn_value (*leaf)(void *ctx, qn_value v)) {
  l->leaf = 0;
  for (int i = 0; i < l->assigned.n; i++) {
    qn_value v = tree_rebuild(l->vm, l->before[i], leaf, l), old = *l->assigned.slots[i];
    if (value_is_error(v)) return false;
    *l->assigned.slots[i] = v;
    value_release(l->vm, old);
  }
  return true;
}

/* ---- the arms ---------------------------------------------------------------------------------------------------------------------- */

/* Begins an arm. Its first inputs are what is carried, which the variables hold from then on. False with an error raised. */
static bool arm_open(loop *l, struct recording **arm) {
  const struct recording *first = l->header;
  if (!(*arm = l->in = rec_arm_begin(l->r, first))) return false;
  for (uint32_t k = 0; k < l->n && !first; k++)
    if (!arm_operand(l->in, l->outer[k])) return false;
  if (!first) l->in->carries = l->n;
  if (first && l->turns.counts && !sizes_of_turns(l->in, l->r, l->count, l->turns.first, l->turns.end)) return false;
  if (first && !l->turns.counts && !l->tested && !l->uncounted)
    (void)count_find(&(count_test){l->r, l->header, l->body, l->outer, l->n}, &l->down);
  return set_variables(l, leaf_of_arm);
}

/* The number of a loop that counts; the flag that the loop has been left. */
static uint32_t count_input(const loop *l) { return l->in->g->inputs[l->count]; }
static uint32_t flag_input(const loop *l) { return l->in->g->inputs[l->flag]; }

/* The test, as an arm: a host bool, if it is a condition at all. */
static qn_value run_test(void *ctx, rec_exit *how) {
  loop *l = ctx;
  qn_value v = way_test(l->vm, &l->turns, how);
  l->ends |= *how != REC_VALUE || !is_bool(v, true);
  return v;
}

/* Evaluates the condition in an arm. Its node; 0: it is none, or an error is raised. */
static uint32_t node_of_test(loop *l) {
  rec_exit how = REC_VALUE;
  qn_value v = run_test(l, &how);
  uint32_t node = how == REC_VALUE && value_is(v, TAG_BOOL) && l->vm->rec == l->in ? rec_node(l->in, v) : 0;
  if (how != REC_ERROR) value_release(l->vm, v);
  return node;
}

/* As node_of_test, where a flag is not set; false where it is. */
static uint32_t test_unless(loop *l, qn_value flag) {
  const rec_branch asked = {.at = l->in->at,
                            .then = {way_false, l},
                            .otherwise = {run_test, l},
                            .assigned = l->tested ? l->assigned : (rec_slots){NULL, 0},
                            .used = true};
  qn_value v = value_nil();
  if (rec_if(l->vm, &asked, flag, &v) != REC_DONE) return 0;
  uint32_t node = value_is(v, TAG_BOOL) && l->vm->rec == l->in ? rec_node(l->in, v) : 0;
  value_release(l->vm, v);
  return node;
}

/* The condition as it is known before the first turn, as a host bool. False if it is none. */
static bool test_known(loop *l) {
  qn_value v = l->turns.first, flat = value_unset();
  if (value_is(v, TAG_ARRAY) && value_array(v)->dtype == QN_bool && value_array(v)->size == 1) {
    flat = op_reshape(l->vm, v, 0, NULL);
    v = value_is_error(flat) ? flat : rec_host_number(l->vm, flat, WEAK_BOOL);
    value_release(l->vm, flat);
  }
  if (value_is(v, TAG_BOOL)) l->goes = v;
  return l->tested = value_is(v, TAG_BOOL);
}

/* The test's node, a bool. 0: it is none, or an error is raised. */
static uint32_t test_node(loop *l) {
  struct recording *r = l->in;
  uint32_t goes = l->tested ? r->g->inputs[l->asked] : 0; /* false, too, if the loop has been left */
  if (goes && !l->turns.counts) return goes;
  if (l->turns.counts) {
    uint32_t end = rec_node(r, l->turns.end), node = end ? graph_op2(r->g, OP_lt, count_input(l), end) : 0;
    if (goes) return node ? graph_op2(r->g, OP_bitand, node, goes) : 0;
    if (!l->leaves || !node) return node;
    uint32_t flag = flag_input(l);
    return graph_op2(r->g, OP_bitand, node, graph_op(r->g, OP_invert, &flag, 1, NULL, 0));
  }
  return l->leaves ? test_unless(l, rec_value_of(r, flag_input(l))) : node_of_test(l);
}

/* Ends an arm. False if it cannot be captured. */
static bool arm_close(loop *l, bool ok) {
  ok = ok && l->vm->rec == l->in && !l->in->regions.n && !l->in->g->failed;
  rec_arm_end(l->in);
  slots_set(l->vm, l->assigned, l->before);
  return ok;
}

static bool same_value(qn_value a, qn_value b) { return a.head == b.head && a.u.i == b.u.i; }

static bool run_header(loop *l) {
  qn_value *mark = l->vm->sp;
  bool ok = arm_open(l, &l->header);
  if (!l->header) return false;
  ok = ok && (l->untested = slots_keep(l->vm, l->assigned));
  uint32_t node = ok ? test_node(l) : 0;
  for (int i = 0; i < l->assigned.n && node; i++) l->rebinds |= !same_value(l->untested[i], *l->assigned.slots[i]);
  slots_free(l->vm, l->assigned, l->untested);
  l->untested = NULL;
  if (l->rebinds) node = 0;
  if (!node) vm_pop_to(l->vm, mark);
  return arm_close(l, node && graph_output(l->header->g, node));
}

/* A node is what becomes of the next of what is carried. */
static bool push_out(loop *l, uint32_t node) {
  if (!mem_grow(l->vm, (void **)&l->outs, &l->outs_cap, l->nouts + (size_t)1, sizeof *l->outs)) return false;
  l->outs[l->nouts++] = node;
  return true;
}

static bool add_out(loop *l, uint32_t node) {
  const graph *g = l->body->g;
  if (!node || l->nouts == l->n || !sizes_agree(l->body, &g->nodes[node].type, &g->nodes[g->inputs[l->nouts]].type))
    return false;
  return push_out(l, node);
}

/* Notes an array that has more rows behind a turn than before it, if it may be lengthened in a buffer. */
static bool note_longer(loop *l, qn_value was, uint32_t node) {
  counting *c = l->counting;
  graph *g = l->body->g;
  if (!node || l->nouts == l->n || c->lengthens || !l->turns.counts || !value_is(was, TAG_ARRAY)) return false;
  const graph_type *from = &g->nodes[g->inputs[l->nouts]].type, *to = &g->nodes[node].type;
  int64_t rows = 0;
  if (from->dtype != to->dtype || from->weak || to->weak || from->rank != to->rank || !from->rank) return false;
  if (memcmp(from->shape + 1, to->shape + 1, (size_t)(from->rank - 1) * sizeof *from->shape)) return false;
  if (!dim_is_const(&g->dims, dim_make(&g->dims, DIM_SUB, to->shape[0], from->shape[0]), &rows)) return false;
  if (rows < 1 || rows > LONGER_ROWS || !counted_may(l->r)) return false;
  uint32_t i = 0;
  while (i < c->nlonger && c->longer[i].array != was.u.p) i++;
  if (i == LONGER_MAX) return false;
  if (i == c->nlonger) c->nlonger++;
  c->longer[i].array = was.u.p;
  c->longer[i].rows = rows;
  return l->lengthens = push_out(l, node);
}

/* Stores row i of an array in a buffer (owned, replaced), `add` rows behind the one with the number of node `row`. False: the arm cannot be captured. */
static bool store_row(loop *l, qn_value *whole, uint32_t row, uint32_t add, qn_value part, int64_t i) {
  qn_vm *vm = l->vm;
  graph *g = l->body->g;
  uint32_t at = add ? graph_count(g, OP_add, row, graph_weak_int(g, add)) : row;
  qn_value in[3] = {*whole, at ? rec_value_of(l->body, at) : value_error(), op_index_row(vm, part, i)};
  const op_attr attr = {.n = 1, .mode = SCATTER_SET, .flags = ATTR_PROVEN, .d = {1}};
  bool ok = !value_is_error(in[1]) && !value_is_error(in[2]);
  qn_value made = ok ? op_apply(vm, OP_scatter, in, 3, &attr) : value_error();
  if (!value_is_error(in[2])) value_release(vm, in[2]);
  if (value_is_error(made)) return false;
  value_release(vm, *whole);
  *whole = made;
  return true;
}

/* The node of the buffer with the rows that a turn has added to what was there. 0: it has done something else, or an error is raised. */
static uint32_t longer_stored(loop *l, const longer_array *x, uint32_t node) {
  qn_vm *vm = l->vm;
  graph *g = l->body->g;
  uint32_t parts[LONGER_ROWS], n = 0, stored = 0;
  while (node && node != x->part) { /* from the last one on */
    const graph_node *c = &g->nodes[node];
    if (c->kind != NODE_OP || c->op != OP_concat || graph_attr(c).axes != 1) return 0;
    for (uint32_t k = c->nin; k-- > 1;) {
      if (n == LONGER_ROWS) return 0;
      parts[n++] = c->in[k];
    }
    node = c->in[0];
  }
  qn_value whole = node ? rec_value_of(l->body, g->inputs[x->carry]) : value_error();
  uint32_t row = rec_node(l->body, x->now);
  bool ok = !value_is_error(whole) && row;
  while (n-- > 0 && ok) {
    const int64_t rows = g->nodes[parts[n]].type.shape[0];
    qn_value part = rec_value_of(l->body, parts[n]);
    ok = rows > 0 && !value_is_error(part);
    for (int64_t i = 0; i < rows && ok; i++, stored++) ok = store_row(l, &whole, row, stored, part, i);
    if (!value_is_error(part)) value_release(vm, part);
  }
  node = ok && stored == x->rows ? rec_node(l->body, whole) : 0;
  if (!value_is_error(whole)) value_release(vm, whole);
  return node;
}

/* Compares what a variable, or a part of it, was before a turn and is after it, and notes what is carried on. False if its structure has
 * changed. */
static bool match(loop *l, qn_value was, qn_value is) {
  if (value_is_operand(was) || value_is_operand(is)) {
    uint32_t node = value_is_operand(was) && value_is_operand(is) ? rec_node(l->body, is) : 0;
    const longer_array *x = longer_at(l, l->nouts);
    if (x && node) node = longer_stored(l, x, node);
    return add_out(l, node) || note_longer(l, was, node);
  }
  if (value_tag_of(was) != value_tag_of(is)) return false;
  if (value_is(was, TAG_STR) && was.u.p != is.u.p && (rec_text_of(l->r, was) || rec_text_of(l->r, is))) return false;
  if (value_is(was, TAG_STR)) return str_equal(value_str(was), value_str(is));
  bool list = value_is(was, TAG_LIST);
  if (!list && !value_is(was, TAG_RECORD)) return was.head == is.head && was.u.i == is.u.i;
  uint32_t n = list ? value_list(was)->len : value_record(was)->len;
  if (list && n < value_list(is)->len && !l->counting->on && l->counting->n < COUNTED_MAX)
    l->counting->grew[l->counting->n++] = was.u.p;
  if (n != (list ? value_list(is)->len : value_record(is)->len) || !vm_enter(l->vm, 0)) return false;
  for (uint32_t i = 0; i < n && !list; i++)
    if (!str_equal(record_name(value_record(was), i), record_name(value_record(is), i))) return false;
  const qn_value *p = list ? value_list(was)->items : value_record(was)->items;
  const qn_value *q = list ? value_list(is)->items : value_record(is)->items;
  for (uint32_t i = 0; i < n; i++)
    if (!match(l, p[i], q[i])) return false;
  return true;
}

static qn_value zeros_leaf(void *ctx, qn_value v) {
  loop *l = ctx;
  uint32_t node = value_is_operand(v) ? rec_node(l->body, v) : 0;
  if (!node) return value_is_operand(v) ? value_error() : value_retain(v);
  graph_type t = l->body->g->nodes[node].type;
  uint32_t zeros =
      sizes_type_outside(l->body, &t) && sizes_can_be(l->r, &t) ? graph_full(l->r->g, &t, 0, rec_site(l->r)) : 0;
  return zeros ? rec_value_of(l->r, zeros) : value_error();
}

/* As match, of variable i, a list that grows. */
static bool match_grown(loop *l, int i) {
  qn_value was = l->before[i], is = *l->assigned.slots[i];
  if (!rec_grows(l->vm, is) || grown_number(is) != grown_number(was)) return false;
  if (l->looks) l->adds[i] = grown_count(is);
  if (grown_count(is) != l->adds[i]) return false;
  qn_value parts = grown_stored(l->body, value_list(is)->items[GROWN_PARTS], l->adds[i]);
  bool ok = !value_is_error(parts) && match(l, value_list(was)->items[GROWN_PARTS], parts);
  value_release(l->vm, parts);
  return ok;
}

/* Runs the body, as a turn that branches in it may leave. parts: those of its end, owned. */
static bool run_turn(loop *l, qn_value *parts) {
  qn_vm *vm = l->vm;
  rec_way turn;
  rec_exit how = REC_ERROR;
  qn_value number = l->turns.counts ? rec_value_of(l->in, count_input(l)) : value_unset();
  qn_value returned = returned_with(l, leaf_of_arm);
  vm_owned held;
  vm_own(vm, &held, vm_drop_value, &returned);
  way_begin(&turn, WAY_TURN, l->in, l->around, l->assigned);
  turn.returned = returned;
  turn.choices = &l->closed;
  turn.may_return |= l->turns.ends != NULL;
  turn.throws = l->turns.ends ? NULL : way_thrower(l->raising);
  qn_value v = l->turns.body(l->turns.ctx, number, &how);
  bool ok = way_close(vm, &turn, how, v, parts) && vm->rec == l->in;
  vm_disown(vm, &held);
  l->leaves |= ok && !is_bool(parts[END_LEAVES], false);
  l->parts |= turn.parts;
  if (ok && !l->returns && !is_bool(parts[END_RETURNS], false)) {
    value_release(vm, l->returned);
    l->returned = tree_rebuild(vm, parts[END_RETURNED], zeros_leaf, l);
    l->returns = !value_is_error(l->returned);
    if (!l->returns) l->returned = value_unset();
    ok = false; /* it is recorded once more */
  }
  bool worded = ok && value_is(l->words, TAG_UNSET) && !value_is(parts[END_WORDS], TAG_UNSET);
  if (worded) {
    l->words = tree_rebuild(vm, parts[END_WORDS], zeros_leaf, l);
    if (value_is_error(l->words)) l->words = value_unset();
  }
  if (ok && !raises_never(parts[END_RAISES]) && (worded || !l->raises)) {
    l->raises = true;
    ok = false;
  }
  value_release(vm, returned);
  return ok;
}

/* At the end of a turn, which may have left the loop: the node of the condition. 0: it is none, or an error is raised. */
static uint32_t test_behind(loop *l, qn_value leaves) {
  if (is_bool(leaves, false)) return node_of_test(l);
  return is_bool(leaves, true) ? rec_node(l->in, value_bool(false)) : test_unless(l, leaves);
}

static bool run_body(loop *l) {
  qn_vm *vm = l->vm;
  qn_value *mark = vm->sp, parts[END_PARTS];
  for (int i = 0; i < END_PARTS; i++) parts[i] = value_nil();
  bool left = l->leaves, ok = arm_open(l, &l->body);
  if (!l->body) return false;
  rec_base(l->r)->turns++;
  for (uint32_t i = 0; i < l->nlists; i++) grown_of(l->r, l->lists[i].number)->turns = rec_base(l->r)->turns;
  ok = ok && (!l->grown || grown_turn(l)) && run_turn(l, parts) && l->leaves == left;
  rec_base(l->r)->turns--;
  uint32_t goes = ok && l->tested ? test_behind(l, parts[END_LEAVES]) : 0;
  ok = ok && (!l->tested || goes);
  if (!ok) vm_pop_to(vm, mark);
  ok = ok && parted_rest(l->body, l->assigned);
  l->nouts = 0;
  for (int i = 0; i < l->assigned.n && ok; i++) {
    ok = is_grown(l, i) ? match_grown(l, i) : match(l, l->before[i], *l->assigned.slots[i]);
    l->changes |= !ok && !error_pending(vm);
  }
  ok = ok && !l->lengthens && !(l->nlonger && (l->leaves || l->returns || l->raises));
  graph *g = l->body->g;
  if (ok && l->turns.counts) ok = add_out(l, graph_count(g, OP_add, count_input(l), graph_weak_int(g, 1)));
  if (ok && l->tested) ok = add_out(l, goes);
  if (ok && l->leaves) ok = add_out(l, rec_node(l->body, parts[END_LEAVES]));
  if (ok && l->returns)
    ok = add_out(l, rec_node(l->body, parts[END_RETURNS])) && match(l, l->returned, parts[END_RETURNED]);
  if (ok && l->raises) ok = add_out(l, rec_node(l->body, parts[END_RAISES]));
  if (ok && !value_is(l->words, TAG_UNSET)) ok = match(l, l->words, parts[END_WORDS]);
  end_parts_free(vm, parts);
  bool apart = parted_turns(l->r);
  for (uint32_t k = 0; k < l->nouts && ok; k++)
    ok = graph_output(g, apart && dtype_is_float((qn_dtype)g->nodes[l->outs[k]].type.dtype)
                             ? graph_alias(g, l->outs[k], g->nodes[l->outs[k]].site)
                             : l->outs[k]);
  ok = ok && l->nouts == l->n;
  if (ok && l->body->count_tested && !count_keeps(g, l->outs[l->body->count - 1], l->body->count - 1, l->down)) {
    l->miscounts = true;
    ok = false;
  }
  return arm_close(l, ok);
}

static void arms_free(loop *l) {
  if (l->header) rec_free(l->header);
  if (l->body) rec_free(l->body);
  l->header = l->body = NULL;
  if (!l->r->ended) l->vm->rec = l->r;
}

/* Can arms be begun? (What makes what is carried may come to a limit, which ends the recording.) */
static bool goes_on(const loop *l) { return l->vm->rec == l->r && !l->r->ended; }

/* Runs both arms; once more if the condition rebinds variables, and with flags if the body leaves the loop. */
static bool run_arms_once(loop *l) {
  if (run_header(l) && run_body(l)) return true;
  if (l->rebinds && !error_pending(l->vm)) {
    l->rebinds = false;
    arms_free(l);
    if (!test_known(l) || !carry_all(l) || !goes_on(l)) return false;
    if (run_header(l) && run_body(l)) return true;
  }
  for (int k = 0; k < 4; k++) { /* which flags there are, each run may find one more */
    bool returns = l->returns, raises = l->raises, worded = !value_is(l->words, TAG_UNSET);
    if (!l->leaves || l->grown || error_pending(l->vm)) return false;
    arms_free(l);
    if (!carry_flags(l) || !goes_on(l)) return false;
    if (run_header(l) && run_body(l)) return true;
    if (l->returns == returns && l->raises == raises && worded == !value_is(l->words, TAG_UNSET)) return false;
  }
  return false;
}

/* Begins with the arms anew. */
static bool arms_anew(loop *l) {
  arms_free(l);
  l->leaves = l->returns = l->raises = l->parts = l->ends = false;
  value_release(l->vm, l->returned);
  l->returned = value_unset();
  return carry_all(l) && goes_on(l);
}

/* As run_arms_once; once more if turns do not count as the test makes one expect. */
static bool run_arms(loop *l) {
  if (run_arms_once(l)) return true;
  if (!l->miscounts || error_pending(l->vm)) return false;
  l->miscounts = false;
  l->uncounted = true;
  return arms_anew(l) && run_arms_once(l);
}

/* Likewise of counted lists. */
static bool run_counted(loop *l) {
  if (!counted_make(l) || !arms_anew(l) || !run_arms(l)) return false;
  note_host(l);
  return true;
}

/* The arms have been recorded to see what is added to lists: now with buffers. */
static bool run_grown(loop *l) {
  bool again;
  if (!grown_make(l, &again)) return false;
  if (!again) return true;
  arms_free(l);
  return carry_all(l) && goes_on(l) && run_arms(l);
}

/* ---- the node ------------------------------------------------------------------------------------------------------------------------ */

/* How many nodes all turns would make, unrolled; a loop whose number of turns is unknown counts as MANY. Functions as exp count FUNCTION times: so
 * much code they are in a kernel, which compilers take long for when a hundred of them stand in a row (tanh: 4 s). */
static double unrolled(const loop *l) {
  enum {
    MANY = 1 << 16,
    STACKING = 3 /* what stacking takes for each item: a node, and its part in another one */,
    FUNCTION = 8
  };
  const rec_turns *t = &l->turns;
  bool known = t->counts && !value_node(t->first) && !value_node(t->end);
  double turns = known ? (double)t->end.u.i - (double)t->first.u.i : MANY;
  const graph *g = l->body->g;
  double nodes = g->n - g->ninputs + l->body->unrolled;
  for (uint32_t i = 1; i < g->n; i++)
    if (g->nodes[i].kind == NODE_OP && op_is_function((op_id)g->nodes[i].op)) nodes += FUNCTION - 1;
  for (int i = 0; i < l->assigned.n; i++)
    if (is_grown(l, i)) nodes += STACKING * l->adds[i];
  return turns * nodes;
}

/* Should the loop be unrolled? Yes if all its turns together make at most jit.unroll nodes, and the recording has room for them. Inside another
 * arm the limit is WITHIN times smaller, since those nodes run again in each turn. Never if an arm breaks or continues: only a captured loop
 * can express that. */
static bool is_short(loop *l) {
  const int64_t *tune = l->vm->tune;
  double most = (double)tune[TUNE_jit_unroll] / (l->r->arm ? WITHIN : 1),
         room = (double)tune[TUNE_jit_nodes] - l->r->g->n;
  uint32_t k = 0;
  for (int i = 0; i < l->assigned.n && l->nlists; i++) note_added(l, l->before[i], &k);
  for (uint32_t i = 0; i < l->nlists; i++)
    if (l->lists[i].adds < 0) return false;
  return !l->parts && !l->turns.whole && unrolled(l) <= (most < room ? most : room);
}

static void loop_free(loop *l) {
  qn_vm *vm = l->vm;
  arms_free(l);
  qn_value *lists[] = {l->before, l->held};
  for (int k = 0; k < 2; k++) {
    for (int i = 0; i < l->assigned.n && lists[k]; i++) value_release(vm, lists[k][i]);
    if (lists[k]) mem_free(vm, lists[k], ((size_t)l->assigned.n + 1) * sizeof *lists[k]);
  }
  value_release(vm, l->returned);
  value_release(vm, l->words);
  slots_free(vm, l->assigned, l->untested);
  mem_free(vm, l->outer, l->cap * sizeof *l->outer);
  mem_free(vm, l->outs, l->outs_cap * sizeof *l->outs);
}

/* For vm_own: the host has left from an effect of the loop. */
static void loop_drop(qn_vm *vm, void *what) {
  (void)vm;
  loop_free(what);
}

rec_tries rec_loop_tries(const qn_vm *vm) {
  rec_way *way = rec_base(vm->rec)->way;
  if (way) way->inner++;
  return (rec_tries){.left = loops_possible(vm->rec) ? ASKED : 0,
                     .way = way,
                     .parts = parted_wanted(vm->rec) ? vm->rec : NULL,
                     .rest = vm->rec->rest};
}

void rec_note_taps(const qn_vm *vm, rec_tries *tries) { tries->taps = vm->rec ? rec_base(vm->rec)->taps.n : 0; }

void rec_loop_over(const qn_vm *vm, const rec_tries *tries) {
  if (tries->way && vm->rec && rec_base(vm->rec)->way == tries->way) tries->way->inner--;
  if (tries->parts && vm->rec == tries->parts) {
    if (tries->from) vm->rec->parted.n = tries->parted;
    vm->rec->rest = tries->rest;
  }
}

qn_value rec_row(qn_vm *vm, qn_value x, qn_value i) {
  return op_apply(vm, OP_index, (qn_value[]){x, i}, 2, &(op_attr){.n = 1, .flags = ATTR_PROVEN, .d = {1}});
}

/* What is carried in place k, as it is behind the loop. The error value if memory is short. */
static qn_value carried_behind(loop *l, uint32_t k) {
  uint32_t proj = graph_proj(l->r->g, l->node, k, l->r->g->nodes[l->outer[k]].type, rec_site(l->r));
  return rec_value_of(l->r, proj);
}

/* Tells how the loop has ended. False with an error raised. */
static bool tell_ends(loop *l) {
  rec_ends e = {value_bool(false), value_bool(false), value_bool(true), value_nil()};
  if (l->leaves) e.left = carried_behind(l, l->flag);
  if (l->tested) e.goes = carried_behind(l, l->asked);
  if (l->returns) e.returns = carried_behind(l, l->flag + 1), e.returned = returned_with(l, leaf_of_result);
  bool ok = !value_is_error(e.left) && !value_is_error(e.goes) && !value_is_error(e.returns);
  if (ok && !value_is_error(e.returned)) *l->turns.ends = e;
  if (!ok && !value_is_error(e.returned)) value_release(l->vm, e.returned);
  return ok && !value_is_error(e.returned) && rec_appended(l->r);
}

/* What a loop has returned, as what is behind it knows lists. Owned, or the error value. */
static qn_value returned_behind(loop *l) {
  qn_value v = returned_with(l, leaf_of_result);
  if (value_is_error(v) || !l->nlists) return v;
  qn_value out = after_counted(l, v);
  value_release(l->vm, v);
  return out;
}

/* Behind a loop that may have returned: leaves the way around it if it has. REC_DONE: what follows is recorded where it has not; REC_LEFT: nothing
 * follows, since only a return ends the loop; REC_FAILED with an error raised. */
static rec_answer leave(loop *l, uint32_t site) {
  qn_vm *vm = l->vm;
  rec_way *w = l->around;
  if (!l->turns.counts && !l->tested && !l->ends && !l->turns.breaks) {
    qn_value returned = returned_behind(l);
    if (value_is_error(returned)) return REC_FAILED;
    const qn_value gone[END_PARTS] = {
        [END_VALUE] = value_unset(),     [END_RETURNED] = returned,         [END_LEFT] = value_bool(true),
        [END_LEAVES] = value_bool(true), [END_RETURNS] = value_bool(true),  [END_RAISES] = value_int(0),
        [END_WORDS] = value_unset(),     [END_HANDLED] = value_bool(false), [END_MISSED] = value_bool(false)};
    way_all_left(w, gone);
    value_release(vm, returned);
    return rec_appended(l->r) ? REC_LEFT : REC_FAILED;
  }
  uint32_t flag = graph_proj(l->r->g, l->node, l->flag + 1, l->r->g->nodes[l->outer[l->flag + 1]].type, site);
  qn_value parts[END_PARTS] = {
      [END_VALUE] = value_unset(),     [END_RETURNED] = returned_behind(l), [END_LEFT] = rec_value_of(l->r, flag),
      [END_LEAVES] = value_bool(true), [END_RETURNS] = value_bool(true),    [END_RAISES] = value_int(0),
      [END_WORDS] = value_unset(),     [END_HANDLED] = value_bool(false),   [END_MISSED] = value_bool(false)};
  bool ok = !value_is_error(parts[END_RETURNED]) && !value_is_error(parts[END_LEFT]) && way_split(vm, w, parts);
  value_release(vm, parts[END_RETURNED]);
  return ok ? REC_DONE : REC_FAILED;
}

/* Behind a loop that may have left a try with an error: leaves the way around it if it has. False with an error raised. */
static bool leave_raised(loop *l) {
  qn_value words = words_with(l, leaf_of_result);
  if (value_is_error(words)) return false;
  vm_owned held;
  vm_own(l->vm, &held, vm_drop_value, &words); /* (the handler may leave through the host) */
  bool ok = way_split_raised(l->vm, l->raising, carried_behind(l, l->raised), words);
  vm_disown(l->vm, &held);
  value_release(l->vm, words);
  return ok;
}

void forget_operands(struct recording *r, rec_marked before) {
  for (uint32_t i = before.n; i < r->g->n && i < r->vals_cap; i++)
    if (r->g->nodes[i].kind == NODE_CONST && value_is_scalar(r->vals[i])) r->vals[i] = value_unset();
  rec_forget(r, before);
}

/* ---- the whole ------------------------------------------------------------------------------------------------------------------- */

/* May the loop be differentiated as often as it will be? Twice: then rows are kept of all floats of a turn that its gradient reads (grad_control.c). */
static bool rows_possible(loop *l) {
  l->recounts = false;
  const int derivatives = rec_derivatives(l->r);
  if (derivatives < 2) return !derivatives || graph_sizes_count(l->body->g, l->n);
  if (!turns_note_most(l->body)) return false;
  if (turns_may_be_kept(l->body) || (!turns_settle(l->r) && turns_are_counted_around(l->body))) return true;
  return l->recounts = turns_may_be_counted(l->body);
}

bool rec_uses_result(const qn_vm *vm) {
  if (vm->asked.whole) return true;
  for (const struct recording *r = vm->rec; r; r = r->outer)
    if (r->ncalls || r->cut) return true;
  return false;
}

bool rec_loop_refused(qn_vm *vm) {
  struct recording *r = vm->rec;
  return !r || !r->capturing || rec_break(r, r->why ? r->why : BREAK_branch, NULL);
}

/* Is there a list in v that may become a counted one? */
static bool may_grow_in(const counting *c, qn_value v, int depth) {
  bool list = value_is(v, TAG_LIST);
  if ((!list && !value_is(v, TAG_RECORD)) || value_is_stacked(v) || depth == PATTERN_DEPTH) return false;
  uint32_t n;
  const qn_value *parts = value_parts(v.u.p, &n);
  bool grew = list && !n;
  for (uint32_t k = 0; k < c->n && !grew; k++) grew = c->grew[k] == v.u.p;
  for (uint32_t i = 0; i < n && !grew; i++) grew = may_grow_in(c, parts[i], depth + 1);
  return grew;
}

/* May lists that the variables hold have kept a loop from being captured, since they grow? */
static bool lists_may_grow(struct recording *r, const rec_turns *turns, rec_slots assigned, counting *c) {
  if (!counted_may(r)) return false;
  for (int i = 0; i < assigned.n; i++) {
    qn_value v = *assigned.slots[i];
    if (rec_grows(r->vm, v)) continue;
    if (i < GROWN_MAX && value_is(v, TAG_LIST) && (turns->stacks >> i & 1)) return true;
    if (may_grow_in(c, v, 0)) return true;
  }
  return false;
}

static rec_answer loop_once(struct recording *r, span at, const rec_turns *turns, rec_slots assigned, rec_tries *tries,
                            counting *counting) {
  qn_vm *vm = r->vm;
  bool told = !turns->counts && rec_base(r)->taps.n != tries->taps; /* they have been made: not twice */
  bool known = turns->counts && !value_node(turns->first) && !value_node(turns->end);
  bool ended = known && (turns->end.u.i <= turns->first.u.i || turns->end.u.i - !turns->whole <= turns->first.u.i);
  if (!tries->left || ended) return REC_NOT_YET;
  bool last = !--tries->left;
  struct recording *base = rec_base(r);
  loop l = {.vm = vm,
            .r = r,
            .counting = counting,
            .turns = *turns,
            .assigned = assigned,
            .around = way_of(r),
            .returned = value_unset(),
            .words = value_unset()};
  l.raising = l.around ? l.around : way_catcher(r);
  l.closed.closed = true;
  l.tested = turns->tests;
  l.goes = value_bool(true);
  rec_at(vm, at);
  uint32_t site = rec_site(r);
  rec_answer answer = REC_NOT_YET;
  vm_owned held;
  vm_own(vm, &held, loop_drop, &l);
  bool split = !turns->whole && !told && (!l.tested || turns->tests);
  if (!last) base->timid++;
  if (told) base->whole_turns++;
  rec_marked before = rec_mark(r);
  bool ok = (!told || test_known(&l)) && loop_begin(&l) && vm->rec == r && run_arms(&l) && rows_possible(&l),
       few = ok && is_short(&l);
  if (!last) base->timid--;
  if (told) base->whole_turns--;
  if (few) tries->left = 0, tries->apart = false;
  if (ok && !few && l.looks) ok = run_grown(&l) && rows_possible(&l);
  if (ok && !few && l.nlists) ok = run_counted(&l) && rows_possible(&l);
  if (ok && !few) {
    if (!l.recounts || r->arm || r->vmap_held.on ||
        rec_run_pending(r)) /* errors of what the count would run are raised */
      l.node = arms_close(r, NODE_LOOP, 0, (struct recording *const[]){l.header, l.body}, NULL, site);
    const bool counts = l.node && l.recounts;
    if (counts) l.node = turns_counted(r, l.node);
    ok =
        l.node && set_variables(&l, leaf_of_result) && (!l.grown || grown_end(&l)) && (!l.nlists || counted_behind(&l));
    ok = ok && (!l.raises || leave_raised(&l));
    if (ok && l.returns && !turns->ends)
      answer = leave(&l, site);
    else
      answer = ok && (turns->ends ? tell_ends(&l) : rec_appended(vm->rec)) ? REC_DONE : REC_FAILED;
    if (counts && !l.node)
      answer = arms_refused(r);
    else if (answer == REC_FAILED && !error_pending(vm))
      raise_memory(vm);
    r->unrolled += unrolled(&l);
  } else if (!few) { /* few: nothing is wrong, and no error is raised */
    answer = arms_refused(r);
  }
  struct recording *now = vm->rec; /* where the capture has ended, there may be none */
  bool done = answer == REC_DONE || answer == REC_LEFT;
  if (!done && l.held && (l.looks || l.grown || l.nlists)) slots_set(vm, assigned, l.held);
  vm_disown(vm, &held);
  loop_free(&l);
  if (done) vm->rec = now;
  if (answer == REC_NOT_YET && !r->ended) forget_operands(r, before);
  if (answer == REC_NOT_YET && l.lengthens && !few && vm->rec == r && !r->ended) {
    counting->lengthens = true;
    tries->left++;
    answer = loop_once(r, at, turns, assigned, tries, counting);
    counting->lengthens = false;
    if (answer != REC_NOT_YET) return answer;
    l.changes = true;
  }
  if (answer == REC_NOT_YET && !counting->on && !few && vm->rec == r && !r->ended &&
      lists_may_grow(r, turns, assigned, counting)) {
    counting->on = true;
    tries->left++;
    answer = loop_once(r, at, turns, assigned, tries, counting);
    counting->on = false;
    if (answer != REC_NOT_YET) return answer;
  }
  const bool rebinds = l.tested && !turns->tests; /* (or it tells something: then it is not split) */
  split &= !l.rebinds;
  const bool states = l.closed.wanted || (l.changes && !of_lanes(r) && states_may_be_over(r, turns));
  if (answer == REC_NOT_YET && states && split && vm->rec == r)
    answer = states_loop(r, at, turns, rebinds, assigned, tries, l.closed.tried);
  if (answer == REC_NOT_YET && !l.closed.wanted && l.changes && of_lanes(r) && split && !rebinds && vm->rec == r &&
      states_may_be_over(r, turns))
    answer = states_of_lanes(r, at, turns, assigned, tries);
  if (answer == REC_NOT_YET && l.closed.tried && split && vm->rec == r && !r->ended) {
    base->whole_turns++; /* tries in it leave the graph where their handlers run */
    tries->left++;
    answer = loop_once(r, at, turns, assigned, tries, counting);
    base->whole_turns--;
  }
  return answer;
}

/* Are items stored in lists that could only be carried item by item? */
static bool stores_in_lists(const qn_vm *vm, const rec_turns *turns, rec_slots assigned) {
  if (!counted_may(vm->rec)) return false;
  for (int i = 0; i < assigned.n && i < GROWN_MAX; i++) {
    qn_value v = *assigned.slots[i];
    bool list = (turns->stores >> i & 1) && value_is(v, TAG_LIST) && !value_is_stacked(v) && !rec_grows(vm, v);
    if (list && value_list(v)->len >= COUNTED_LEAST) return true;
  }
  return false;
}

rec_answer rec_loop(qn_vm *vm, span at, const rec_turns *turns, rec_slots assigned, rec_tries *tries) {
  struct recording *r = vm->rec;
  if (!r || !loops_possible(r)) tries->left = 0;
  if (!tries->left) return REC_NOT_YET;
  const rec_tries before = *tries;
  drawn_slots s;
  rec_answer answer = REC_FAILED;
  bool stores = stores_in_lists(vm, turns, assigned);
  do {
    *tries = before;
    if (!draws_begin(r, assigned, &s)) continue;
    if (stores) answer = loop_once(r, at, turns, s.all, tries, &(counting){.on = true});
    if (stores && answer == REC_NOT_YET && tries->left && vm->rec == r && !r->ended) stores = false, *tries = before;
    if (!stores) answer = loop_once(r, at, turns, s.all, tries, &(counting){.on = false});
  } while (draws_again(r, answer));
  return answer;
}
