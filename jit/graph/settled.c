/* Parts of carries that no later write changes (settle_* of grad.h).
 *
 * A loop whose turns store into an array, as a factorisation or a table that is filled in, carries the whole array, and its gradient reads parts of
 * what the array was in each turn. Where a part that is read is written no more, neither by what is left of the turn nor by a later one, it is in the
 * array that the loop ends with, and the gradient reads it there: nothing is kept of the turns.
 *
 * A carry's line is the chain of slice_put and scatter from the body's input to its result. Each node of it, and each view of one, is known by the
 * part of the array that it stands for: a range of each axis, whose ends are sums of numbers of the turn. A part is settled if a proof (dim_bounds.h)
 * says for every write behind it, of the same turn and of all later ones, that the two lie apart in some axis. A write of a later turn is that of
 * this one with the numbers that count `by * s` further, for any s from 1 on.
 *
 * Values that are stored and then settled are read from the array as well. All that the gradient reads of a carry must be settled, since its input
 * for the carry becomes the array at the end. */
#include <string.h>

#include "jit/graph/dim_bounds.h"
#include "jit/graph/grad.h"

enum {
  MOST_NODES = 1 << 12, /* of a turn that is looked at */
  MOST_WRITES = 32,     /* of a carry in a turn */
  DEEPEST = 16          /* of numbers made of numbers */
};

/* A part of an array: of each axis, a range. In sizes of the proof. */
typedef struct part {
  qn_dim start[ARRAY_MAX_RANK], size[ARRAY_MAX_RANK];
} part;

typedef enum place_kind {
  PLACE_NONE,
  PLACE_LINE,   /* a node of the line */
  PLACE_VIEW,   /* a part of one */
  PLACE_CHANGED /* likewise, into which something was stored */
} place_kind;

/* What a node of the turn stands for. */
typedef struct place {
  uint8_t kind, rank;
  uint8_t axis[ARRAY_MAX_RANK]; /* by axis of the node: that of the array */
  uint32_t carry, version;      /* how many writes lie before it */
  part of;
  part written;       /* of PLACE_CHANGED, within `of` */
  uint32_t value, by; /* of PLACE_CHANGED: what was stored, and the node that did it; 0: several */
} place;

/* A value that a turn stores. */
typedef struct stored {
  uint32_t by; /* the node that stores it; 0: none does */
  uint32_t carry, version;
  part at;
  uint32_t read; /* the node that reads it from the array at the end; 0: it is not settled */
} stored;

struct settling {
  graph *g;
  uint32_t n, first; /* nodes below n are of the turn; from `first` on, of its gradient */
  uint32_t ncarries;
  const int64_t *counts;
  place *places;
  stored *stored;
  uint32_t *clones;            /* by node: what it is in the array at the end; 0: not made */
  part (*writes)[MOST_WRITES]; /* by carry: writes[v - 1] makes version v */
  uint32_t *nwrites;           /* by carry; 0: it is not looked at */
  bool *read;                  /* room by node of the gradient; in settle_end */
  dim_proof p;
  qn_dim later; /* how many turns later */
};

/* ---- sizes and numbers of the turn in the table of the proof --------------------------------------------------------------------- */

static bool size_in(settling *s, qn_dim d, qn_dim *to) {
  const dim_table *t = &s->g->dims;
  int64_t c;
  qn_dim a, b;
  if (dim_is_const(t, d, &c)) return *to = dim_const(&s->p.t, c), true;
  const dim_expr *e = &t->exprs[~d];
  if (e->op != DIM_SYMBOL) {
    if (!size_in(s, e->a, &a) || !size_in(s, e->b, &b)) return false;
    return *to = dim_make(&s->p.t, (dim_op)e->op, a, b), true;
  }
  if (dim_of_node(e->source)) return false;
  const bool number = e->source == DIM_FROM_SCALAR;
  if (number && e->ref < s->ncarries && !s->counts[e->ref]) return false;
  *to = dim_symbol(&s->p.t, (dim_source)e->source, e->ref, e->axis, e->hint, NULL);
  if (!number) dim_proof_bound(&s->p, *to, (dim_bound){.kind = BOUND_SIZE});
  return true;
}

/* A host int, or the array without axes that is made of one. */
static bool number_in(settling *s, uint32_t node, int depth, qn_dim *to) {
  const graph_node *n = &s->g->nodes[node];
  qn_value v;
  qn_dim a, b;
  if (n->type.rank || !dtype_is_int((qn_dtype)n->type.dtype) || depth > DEEPEST) return false;
  if (graph_const_value(s->g, node, &v)) return *to = dim_const(&s->p.t, v.u.i), true;
  if (n->kind == NODE_INPUT) {
    const uint32_t k = n->payload.input;
    if (!n->type.weak || (k < s->ncarries && !s->counts[k])) return false;
    *to = dim_symbol(&s->p.t, DIM_FROM_SCALAR, k, 0, 0, NULL);
    return true;
  }
  if (n->kind != NODE_OP) return false;
  if (n->op == OP_fit) return number_in(s, n->in[0], depth + 1, to);
  if (!n->type.weak || (n->op != OP_add && n->op != OP_sub)) return false;
  if (!number_in(s, n->in[0], depth + 1, &a) || !number_in(s, n->in[1], depth + 1, &b)) return false;
  return *to = dim_make(&s->p.t, n->op == OP_add ? DIM_ADD : DIM_SUB, a, b), true;
}

/* What d is `later` turns later. */
static qn_dim in_later_turn(settling *s, qn_dim d) {
  if (d >= 0) return d;
  const dim_expr e = s->p.t.exprs[~d];
  if (e.op != DIM_SYMBOL) return dim_make(&s->p.t, (dim_op)e.op, in_later_turn(s, e.a), in_later_turn(s, e.b));
  if (e.source != DIM_FROM_SCALAR || e.ref >= s->ncarries) return d;
  return dim_make(&s->p.t, DIM_ADD, d, dim_make(&s->p.t, DIM_MUL, s->later, dim_const(&s->p.t, s->counts[e.ref])));
}

static bool at_least(settling *s, qn_dim a, qn_dim b) { return dim_proves(&s->p, dim_make(&s->p.t, DIM_SUB, a, b)); }

/* Do a part and one that is written, in the same turn or in any later one, share no element? */
static bool lie_apart(settling *s, int rank, const part *a, const part *written, bool later) {
  for (int i = 0; i < rank; i++) {
    qn_dim from = written->start[i], size = written->size[i];
    if (later) from = in_later_turn(s, from), size = in_later_turn(s, size);
    if (at_least(s, from, dim_make(&s->p.t, DIM_ADD, a->start[i], a->size[i]))) return true;
    if (at_least(s, a->start[i], dim_make(&s->p.t, DIM_ADD, from, size))) return true;
  }
  return false;
}

/* Is a part of version v of a carry the same at the end of the loop? */
static bool is_settled(settling *s, uint32_t carry, uint32_t version, const part *a) {
  const int rank = s->g->nodes[s->g->inputs[carry]].type.rank;
  for (uint32_t w = 0; w < s->nwrites[carry]; w++) {
    const part *written = &s->writes[carry][w];
    if (w >= version && !lie_apart(s, rank, a, written, false)) return false;
    if (!lie_apart(s, rank, a, written, true)) return false;
  }
  return true;
}

/* ---- what the nodes of the turn stand for ------------------------------------------------------------------------------------------ */

/* *to becomes the slice of a place that `attr` says. False: it is none of ranges. */
static bool sliced(settling *s, const place *x, const op_attr *attr, part *to) {
  *to = x->of;
  for (int a = 0; a < x->rank; a++) {
    const int i = x->axis[a];
    qn_dim start;
    if (attr->d[3 * a + 2] != 1 || !size_in(s, attr->d[3 * a], &start) || !size_in(s, attr->d[3 * a + 1], &to->size[i]))
      return false;
    to->start[i] = dim_make(&s->p.t, DIM_ADD, x->of.start[i], start);
  }
  return true;
}

/* *to becomes the part of a place that k numbers `in` name. False: they are no numbers of the turn, or may be negative. */
static bool indexed(settling *s, const place *x, const uint32_t *in, int k, part *to) {
  *to = x->of;
  for (int a = 0; a < k; a++) {
    const int i = x->axis[a];
    qn_dim at;
    if (!number_in(s, in[a], 0, &at) || !dim_proves(&s->p, at)) return false;
    to->start[i] = dim_make(&s->p.t, DIM_ADD, x->of.start[i], at);
    to->size[i] = 1;
  }
  return true;
}

static bool same_part(int rank, const part *a, const part *b) {
  return !memcmp(a->start, b->start, (size_t)rank * sizeof *a->start) &&
         !memcmp(a->size, b->size, (size_t)rank * sizeof *a->size);
}

/* The part of the array into which node v, a slice_put or a scatter into place x, stores; *whole: exactly all of it becomes the value. */
static bool stores_at(settling *s, uint32_t v, const place *x, part *to, bool *whole) {
  const graph_node *n = &s->g->nodes[v];
  const graph_type *value = &s->g->nodes[n->in[n->nin - 1]].type;
  *whole = value->dtype == n->type.dtype && !value->weak;
  if (n->op == OP_slice_put) {
    *whole &= value->rank == n->type.rank;
    for (int a = 0; a < n->type.rank && *whole; a++) *whole = value->shape[a] == n->attr->d[3 * a + 1];
    return sliced(s, x, n->attr, to);
  }
  const int k = n->nin - 2;
  *whole &= value->rank == n->type.rank - k;
  for (int a = 0; a < value->rank && *whole; a++) *whole = value->shape[a] == n->type.shape[k + a];
  return n->attr->mode == SCATTER_SET && indexed(s, x, n->in + 1, k, to);
}

static bool is_write(const graph_node *n) {
  return n->kind == NODE_OP && (n->op == OP_slice_put || n->op == OP_scatter);
}

/* Node v stores into place x. False: it is not known where. */
static bool note_write(settling *s, uint32_t v, const place *x, bool line) {
  const uint32_t value = s->g->nodes[v].in[s->g->nodes[v].nin - 1];
  place *to = &s->places[v];
  part at;
  bool whole;
  if (!stores_at(s, v, x, &at, &whole)) return false;
  const place *c = &s->places[value];
  const int rank = s->g->nodes[s->g->inputs[x->carry]].type.rank;
  bool plain = c->kind == PLACE_CHANGED && c->carry == x->carry && c->version == x->version && whole &&
               c->rank == rank && x->rank == rank && same_part(rank, &c->of, &at);
  for (int a = 0; a < rank && plain; a++) plain = c->axis[a] == a && x->axis[a] == a;
  *to = *x;
  to->written = plain ? c->written : at;
  to->value = plain ? c->value : whole ? value : 0;
  to->by = plain ? c->by : v;
  if (!line) { /* (of several writes nothing but the part around them is known) */
    to->kind = PLACE_CHANGED;
    if (x->kind == PLACE_CHANGED) to->written = x->of, to->value = 0;
    return true;
  }
  s->writes[x->carry][x->version] = to->written;
  to->version = x->version + 1;
  if (to->value && to->value < s->n)
    s->stored[to->value] = (stored){.by = to->by, .carry = x->carry, .version = to->version, .at = to->written};
  return true;
}

/* Node v becomes a view of the place that its operand is, if it is one. */
static void note_view(settling *s, uint32_t v) {
  const graph_node *n = &s->g->nodes[v];
  const place *x = &s->places[n->in[0]];
  place *to = &s->places[v];
  *to = *x;
  if (x->kind == PLACE_LINE) to->kind = PLACE_VIEW;
  bool is = false;
  if (n->op == OP_permute) {
    is = true;
    for (int a = 0; a < n->type.rank; a++) to->axis[a] = x->axis[n->attr->d[a]];
  } else if (n->op == OP_slice && x->kind != PLACE_CHANGED) {
    is = sliced(s, x, n->attr, &to->of);
  } else if (n->op == OP_index && x->kind != PLACE_CHANGED) {
    const int k = n->nin - 1;
    is = indexed(s, x, n->in + 1, k, &to->of);
    to->rank = (uint8_t)(x->rank - k);
    if (is) memmove(to->axis, to->axis + k, to->rank);
  }
  if (!is) to->kind = PLACE_NONE;
}

/* Marks the line of a carry; how many writes it has. 0: it has none, or is none. */
static uint32_t note_line(settling *s, uint32_t carry) {
  const graph *g = s->g;
  const uint32_t from = g->inputs[carry];
  uint32_t writes = 0, line[MOST_WRITES];
  for (uint32_t v = g->outputs[carry]; v != from; v = g->nodes[v].in[0]) {
    if (!is_write(&g->nodes[v]) || s->places[v].kind != PLACE_NONE || writes == MOST_WRITES) return 0;
    line[writes++] = v;
  }
  if (!writes) return 0;
  place whole = {.kind = PLACE_LINE, .rank = g->nodes[from].type.rank, .carry = carry};
  for (int a = 0; a < whole.rank; a++) {
    whole.axis[a] = (uint8_t)a;
    if (!size_in(s, g->nodes[from].type.shape[a], &whole.of.size[a])) return 0;
  }
  s->places[from] = whole;
  for (uint32_t i = 0; i < writes; i++) s->places[line[i]] = whole;
  return writes;
}

static void note_places(settling *s) {
  for (uint32_t v = 1; v < s->n; v++) {
    const graph_node *n = &s->g->nodes[v];
    if (n->kind != NODE_OP || !n->nin) continue;
    const place *x = &s->places[n->in[0]];
    if (x->kind == PLACE_NONE || !s->nwrites[x->carry]) continue;
    const bool line = s->places[v].kind == PLACE_LINE;
    if (is_write(n)) {
      const uint32_t carry = x->carry;
      if (!note_write(s, v, x, line)) {
        s->places[v].kind = PLACE_NONE;
        if (line) s->nwrites[carry] = 0;
      }
    } else {
      note_view(s, v);
    }
  }
}

/* ---- reading what was stored ---------------------------------------------------------------------------------------------------------- */

/* What place v is in the array at the end, unless something else was stored there. 0: memory is short. */
static uint32_t clone_of(settling *s, uint32_t v) {
  graph *g = s->g;
  if (s->places[v].kind == PLACE_LINE) return g->inputs[s->places[v].carry];
  if (s->clones[v]) return s->clones[v];
  const graph_node n = g->nodes[v];
  uint32_t in[1 + ARRAY_MAX_RANK];
  if (!(in[0] = clone_of(s, n.in[0]))) return 0;
  if (is_write(&n)) return s->clones[v] = in[0];
  for (int k = 1; k < n.nin; k++) in[k] = n.in[k];
  return s->clones[v] = graph_node_like(g, &n, in);
}

/* Appends what reads value v from the array at the end. */
static bool read_stored(settling *s, uint32_t v) {
  graph *g = s->g;
  stored *w = &s->stored[v];
  const graph_node by = g->nodes[w->by];
  uint32_t in[1 + ARRAY_MAX_RANK] = {clone_of(s, by.in[0])};
  if (by.op == OP_slice_put) {
    w->read = graph_op(g, OP_slice, in, 1, by.attr, by.site);
    return w->read != 0;
  }
  const int k = by.nin - 2;
  const op_attr attr = {.n = 1, .flags = ATTR_PROVEN, .d = {k}};
  for (int i = 1; i <= k; i++) in[i] = by.in[i];
  w->read = graph_op(g, OP_index, in, 1 + k, &attr, by.site);
  return w->read != 0;
}

bool settle_begin(graph *g, uint32_t ncarries, const int64_t *counts, const settle_ends *ends, arena *memory,
                  settling **made) {
  *made = NULL;
  if (g->n > MOST_NODES || !g->dims.strict) return true;
  settling *s = arena_alloc(memory, sizeof *s);
  if (!s) return false;
  *s = (settling){.g = g, .n = g->n, .ncarries = ncarries, .counts = counts};
  s->places = arena_alloc(memory, g->n * sizeof *s->places);
  s->stored = arena_alloc(memory, g->n * sizeof *s->stored);
  s->clones = arena_alloc(memory, g->n * sizeof *s->clones);
  s->writes = arena_alloc(memory, ncarries * sizeof *s->writes);
  s->nwrites = arena_alloc(memory, (ncarries + (size_t)1) * sizeof *s->nwrites);
  if (memory->failed) return false;
  dim_proof_init(&s->p, memory);
  s->later = dim_symbol(&s->p.t, DIM_FROM_NUMBER, 0, 0, 1, NULL);
  dim_proof_bound(&s->p, s->later, (dim_bound){.has_first = true, .first = 1});
  bool any = false;
  for (uint32_t k = 0; k < ncarries; k++) {
    if (counts[k]) {
      const qn_dim number = dim_symbol(&s->p.t, DIM_FROM_SCALAR, k, 0, 0, NULL);
      const qn_dim first = dim_const(&s->p.t, ends[k].first), last = dim_const(&s->p.t, ends[k].last);
      if (ends[k].has_first)
        dim_proof_bound(&s->p, number, (dim_bound){ends[k].has_last ? BOUND_ENDS : BOUND_UNKNOWN, true, first, last});
    } else if (dtype_is_float((qn_dtype)g->nodes[g->inputs[k]].type.dtype) && g->nodes[g->inputs[k]].type.rank) {
      any |= (s->nwrites[k] = note_line(s, k)) != 0;
    }
  }
  if (!any) return true;
  note_places(s);
  for (uint32_t v = 1; v < s->n; v++) {
    const stored *w = &s->stored[v];
    if (w->by && s->nwrites[w->carry] && is_settled(s, w->carry, w->version, &w->at) && !read_stored(s, v))
      return false;
  }
  s->first = g->n;
  *made = s;
  return !memory->failed && !g->failed;
}

/* ---- what the gradient reads ------------------------------------------------------------------------------------------------------------ */

static void read_size_node(void *ctx, uint32_t node) {
  settling *s = ctx;
  s->read[node] = true;
}

/* What operand o of node v will be. */
static uint32_t operand_of(const settling *s, uint32_t v, uint32_t o) {
  if (v < s->first || o >= s->n) return o;
  const stored *w = &s->stored[o];
  return w->read && s->nwrites[w->carry] ? w->read : o;
}

/* Node v, or a result of the gradient (0), reads node o. False: o is a part of a carry that is not settled; the carry is looked at no more. */
static bool may_read(settling *s, uint32_t v, uint32_t o) {
  if (o >= s->n || (v >= s->n && v < s->first)) return true;
  const place *x = &s->places[o];
  if (x->kind == PLACE_NONE || !s->nwrites[x->carry]) return true;
  if (v && v < s->n && s->places[v].kind == PLACE_VIEW && s->g->nodes[v].in[0] == o) return true;
  if (x->kind == PLACE_VIEW && is_settled(s, x->carry, x->version, &x->of)) return true;
  s->nwrites[x->carry] = 0;
  return false;
}

/* Follows what the gradient reads. False: a carry is looked at no more. */
static bool follow_reads(settling *s) {
  const graph *g = s->g;
  memset(s->read, 0, g->n * sizeof *s->read);
  for (uint32_t k = 0; k < g->noutputs; k++) {
    if (!may_read(s, 0, g->outputs[k])) return false;
    s->read[g->outputs[k]] = true;
  }
  for (uint32_t v = g->n - 1; v > 0; v--) {
    if (!s->read[v]) continue;
    const place *x = v < s->n ? &s->places[v] : NULL;
    /* (views of it will be views of the array at the end) */
    if (x && (x->kind == PLACE_LINE || x->kind == PLACE_CHANGED) && s->nwrites[x->carry]) continue;
    for (int k = 0; k < g->nodes[v].nin; k++) {
      const uint32_t o = operand_of(s, v, g->nodes[v].in[k]);
      if (!may_read(s, v, o)) return false;
      s->read[o] = true;
    }
    graph_each_size_node(g, v, read_size_node, s);
  }
  return true;
}

bool settle_end(settling *s, arena *memory, bool *settled) {
  graph *g = s->g;
  if (!(s->read = arena_alloc(memory, g->n * sizeof *s->read))) return false;
  while (!follow_reads(s)) {}
  for (uint32_t v = 1; v < g->n; v++) {
    const place *x = v < s->n ? &s->places[v] : NULL;
    if (x && x->kind == PLACE_VIEW && s->nwrites[x->carry]) {
      const uint32_t o = g->nodes[v].in[0], from = g->inputs[x->carry];
      if (s->places[o].kind == PLACE_LINE && o != from && !graph_fix_operand(g, v, 0, from)) return false;
    }
    for (int k = 0; k < g->nodes[v].nin && v >= s->first; k++) {
      const uint32_t o = g->nodes[v].in[k], with = operand_of(s, v, o);
      if (o != with && !graph_fix_operand(g, v, k, with)) return false;
    }
  }
  for (uint32_t k = 0; k < s->ncarries; k++) settled[k] = s->nwrites[k] != 0;
  return !memory->failed;
}
