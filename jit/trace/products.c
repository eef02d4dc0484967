/* Products on a device (products.h).
 *
 * By which signature a device's library makes a product depends on how its operands lie in memory (jit/run/gemm.h). Outside regions that is
 * seen when the product is executed; regions are recorded without being executed, and one that is executed may have another arm that is
 * not. So it is worked out, from how the region's operands lie: what an op computes has no gaps, and views follow what they are views of.
 * Turns of a loop are gone through until what it carries lies as it did before: that is the second one, unless carries are exchanged. A product
 * that would be made in two ways cannot be fixed.
 *
 * Where sizes are symbols, or numbers of turns, the answer must be the same for all of them: of strides is known whether they are 1 (the kinds of a
 * layout); that a product has few multiplications, or many, becomes a fact, and so a guard. Where that does not do the sizes are fixed. */
#include "jit/trace/products.h"

#include <string.h>

#include "jit/run/gemm.h"

/* A product, and what is to be written to it. */
typedef struct product {
  graph *g;
  uint32_t node;
  uint8_t flags;
} product;

/* What is known of a stride in all calls: it is 1, -1, or neither. */
typedef enum stride_kind { STRIDE_ANY, STRIDE_ONE, STRIDE_BACK, STRIDE_OTHER } stride_kind;

enum { STEP_UNKNOWN = INT32_MIN };

/* How an array lies. Where sizes are symbols, strides are known by their kinds, which are those of all calls, and where they are one number in all of
 * them by that. */
typedef struct layout {
  bool known; /* false: nothing is known */
  bool exact; /* `a` is a header of its sizes and strides */
  bool flat;  /* it has no gaps, in all calls */
  uint8_t rank, kinds[ARRAY_MAX_RANK];
  int64_t steps[ARRAY_MAX_RANK]; /* strides, or STEP_UNKNOWN */
  qn_array a;
} layout;

/* A graph that is gone through, and the node of the graph around it that owns it. */
typedef struct place {
  graph *g;
  const graph_node *node;
  const struct place *outer; /* NULL: g is the recording's */
} place;

/* A size of a turn that is at most another size of its graph. */
typedef struct part_size {
  const graph *g;
  qn_dim part, of;
} part_size;

typedef struct layouts {
  qn_vm *vm;
  dim_table *t; /* sizes of the recording */
  int device;
  bool fixed;          /* symbolic sizes stay what they are in this call */
  bool aside;          /* products are not noted */
  bool varies, symbol; /* a product is made in several ways; because of symbols that may be fixed */
  product *products;
  uint32_t n, cap;
  part_size *parts;
  uint32_t nparts, parts_cap;
  dim_fact *facts; /* that products rely on */
  uint32_t nfacts, facts_cap;
} layouts;

enum { TURNS = 16 /* that are gone through at most */, SOME = 2 /* sizes that are symbols are 2 or more */ };

/* A size as it is in all calls, or SOME if it is that or more in all of them; -1: turns or data tell. */
static int64_t size_in(const layouts *l, const dim_table *t, qn_dim d) {
  if (d >= 0) return d;
  if (dim_is_late(t, d)) return -1;
  int64_t hint = dim_hint(t, d);
  return l->fixed || hint < SOME ? hint : SOME;
}

static bool is_fixed(const layouts *l, const dim_table *t, qn_dim d) {
  return d >= 0 || (!dim_is_late(t, d) && (l->fixed || dim_hint(t, d) < SOME));
}

static void unknown(layout *x) { *x = (layout){.known = false}; }

/* Notes what follows from an exact header. */
static void note_kinds(layout *x) {
  int64_t shape[ARRAY_MAX_RANK], strides[ARRAY_MAX_RANK];
  qn_array *a = &x->a;
  memcpy(shape, a->shape, sizeof shape);
  shape_strides(a->rank, shape, strides);
  x->known = x->exact = true;
  a->contiguous = 1;
  x->rank = a->rank;
  for (int i = 0; i < a->rank; i++) {
    a->contiguous &= a->shape[i] == 1 || a->strides[i] == strides[i];
    x->kinds[i] = a->strides[i] == 1 ? STRIDE_ONE : a->strides[i] == -1 ? STRIDE_BACK : STRIDE_OTHER;
    x->steps[i] = a->strides[i];
  }
  x->flat = a->contiguous;
}

static int64_t step_times(int64_t step, int64_t by) {
  int64_t product;
  return step == STEP_UNKNOWN || __builtin_mul_overflow(step, by, &product) ? STEP_UNKNOWN : product;
}

/* Sets *to to an array of this type without gaps. */
static void fresh(const layouts *l, const dim_table *t, const graph_type *type, layout *to) {
  *to = (layout){.known = true, .exact = true, .flat = true, .rank = type->rank};
  to->a = (qn_array){.dtype = type->dtype, .rank = type->rank, .device = (uint8_t)l->device, .contiguous = 1};
  for (int i = 0; i < type->rank; i++) {
    to->exact = to->exact && is_fixed(l, t, type->shape[i]);
    to->a.shape[i] = to->exact ? size_in(l, t, type->shape[i]) : 0;
  }
  if (to->exact) {
    to->a.size = shape_strides(type->rank, to->a.shape, to->a.strides);
    note_kinds(to);
    return;
  }
  stride_kind kind = STRIDE_ONE;
  int64_t step = 1;
  for (int i = type->rank; i-- > 0;) {
    int64_t size = size_in(l, t, type->shape[i]);
    to->kinds[i] = (uint8_t)kind;
    to->steps[i] = step;
    step = size > 0 && is_fixed(l, t, type->shape[i]) ? step_times(step, size) : STEP_UNKNOWN;
    if (size < 0)
      kind = kind == STRIDE_ONE ? STRIDE_ANY : kind;
    else if (size != 1)
      kind = STRIDE_OTHER;
  }
}

/* Do two arrays of a type lie in one way, as far as products ask? */
static bool same_layout(const layout *a, const layout *b) {
  if (!a->known || !b->known) return a->known == b->known;
  if (a->rank != b->rank || a->flat != b->flat || a->exact != b->exact) return false;
  for (int i = 0; i < a->rank; i++) {
    if (a->exact && (a->a.shape[i] != b->a.shape[i] || (a->a.shape[i] != 1 && a->a.strides[i] != b->a.strides[i])))
      return false;
    if (!a->exact && a->kinds[i] != b->kinds[i]) return false;
  }
  return true;
}

/* Forgets the strides of *x that are other numbers in *y, which lies in the same way. Is one of them another in *x than it was in *y? */
static bool forget_steps(layout *x, const layout *y) {
  bool news = false;
  for (int i = 0; x->known && i < x->rank; i++) {
    if (x->steps[i] == y->steps[i]) continue;
    x->steps[i] = STEP_UNKNOWN;
    news |= y->steps[i] != STEP_UNKNOWN;
  }
  return news;
}

/* The layout of a view whose sizes and strides are numbers. */
static void exact_view(const graph_node *n, const qn_array *x, layout *to) {
  op_attr attr = graph_attr(n);
  qn_array *a = &to->a;
  switch (n->op) {
  case OP_reshape:
    if (x->contiguous || !shape_reshape_strides(x, a->rank, a->shape, a->strides))
      shape_strides(a->rank, a->shape, a->strides);
    break;
  case OP_broadcast:
    for (int i = 0; i < a->rank; i++) {
      int own = i - (a->rank - x->rank);
      a->strides[i] = own >= 0 && x->shape[own] != 1 ? x->strides[own] : 0;
    }
    break;
  case OP_permute:
    for (int i = 0; i < a->rank; i++) a->strides[i] = x->strides[attr.d[i]];
    break;
  case OP_slice:
    for (int i = 0; i < a->rank; i++)
      a->strides[i] = a->shape[i] > 1 ? x->strides[i] * attr.d[3 * i + 2] : x->strides[i];
    break;
  case OP_window: {
    int axis = __builtin_ctz(attr.axes);
    memcpy(a->strides, x->strides, sizeof a->strides);
    a->strides[x->rank] = attr.d[2] * x->strides[axis];
    a->strides[axis] *= attr.d[1];
    break;
  }
  default: memcpy(a->strides, x->strides, sizeof a->strides);
  }
  note_kinds(to);
}

/* The kind of a stride of this kind times a number other than 0. */
static stride_kind kind_times(stride_kind kind, int64_t by) {
  if (by == 1 || kind == STRIDE_ANY) return kind;
  if (by != -1 || kind == STRIDE_OTHER) return STRIDE_OTHER;
  return kind == STRIDE_ONE ? STRIDE_BACK : STRIDE_ONE;
}

static bool is_not_one(uint8_t kind) { return kind == STRIDE_BACK || kind == STRIDE_OTHER; }

/* Is a size larger than another one, of which it is a multiple, in all calls? */
static bool is_multiple(const layouts *l, dim_table *t, qn_dim d, qn_dim of) {
  qn_dim q;
  if (!dim_quotient(t, d, of, &q)) return false;
  return q >= 0 ? q > 1 : t->exprs[~q].op == DIM_SYMBOL && size_in(l, t, q) == SOME;
}

/* As shape_reshape_strides for an array of type `from` that lies like *x and has gaps: 1 and *to if it is a view in all calls, 0 if it is in none,
 * -1 if that is not known. */
static int view_of_groups(const layouts *l, dim_table *t, const graph_type *from, const graph_type *type,
                          const layout *x, layout *to) {
  int axes[ARRAY_MAX_RANK], n = 0, i = 0, j = 0;
  bool sure = true;
  for (int k = 0; k < from->rank; k++) {
    int64_t size = size_in(l, t, from->shape[k]);
    if (size < 1) return -1;
    if (size > 1) axes[n++] = k;
  }
  while (i < n && j < type->rank) {
    int first = i, begin = j;
    qn_dim old = from->shape[axes[i++]], new = type->shape[j++];
    while (old != new)
      if (i < n && is_multiple(l, t, new, old))
        old = dim_mul(t, old, from->shape[axes[i++]]);
      else if (j < type->rank && is_multiple(l, t, old, new))
        new = dim_mul(t, new, type->shape[j++]);
      else
        return -1;
    for (int k = first; k + 1 < i; k++) {
      int64_t step = x->steps[axes[k]], inner = x->steps[axes[k + 1]], size = from->shape[axes[k + 1]];
      if (x->kinds[axes[k]] == STRIDE_ONE || x->kinds[axes[k]] == STRIDE_BACK)
        return 0; /* which no multiple of 2 or more is */
      inner = size < 0 ? STEP_UNKNOWN : step_times(inner, size);
      if (step == STEP_UNKNOWN || inner == STEP_UNKNOWN)
        sure = false;
      else if (step != inner)
        return 0;
    }
    stride_kind kind = (stride_kind)x->kinds[axes[i - 1]];
    int64_t step = x->steps[axes[i - 1]];
    for (int k = j; k-- > begin;) {
      to->kinds[k] = (uint8_t)kind;
      to->steps[k] = step;
      int64_t size = size_in(l, t, type->shape[k]);
      if (size < 1) return -1;
      kind = kind_times(kind, size);
      step = type->shape[k] < 0 && size != 1 ? STEP_UNKNOWN : step_times(step, size);
    }
  }
  for (; j < type->rank; j++) to->kinds[j] = STRIDE_ANY, to->steps[j] = STEP_UNKNOWN; /* axes of size 1 */
  return sure && i == n ? 1 : -1;
}

/* A reshape of an array with gaps: a view if that can be, else a copy, as which *to lies. False: kinds are not the same in both. */
static bool reshaped(const layouts *l, dim_table *t, const graph_type *from, const graph_type *type, const layout *x,
                     layout *to) {
  const layout copy = *to;
  int i = 0, k = 0, last = -1;
  bool same = true, rows = true;
  to->flat = false;
  for (; same && (i < from->rank || k < type->rank); k++) { /* axes of size 1 alone come and go */
    while (i < from->rank && size_in(l, t, from->shape[i]) == 1) i++;
    if (k == type->rank) {
      same = i == from->rank;
      break;
    }
    to->steps[k] = STEP_UNKNOWN;
    if (size_in(l, t, type->shape[k]) == 1) {
      to->kinds[k] = STRIDE_ANY;
      continue;
    }
    same = i < from->rank && from->shape[i] == type->shape[k];
    if (same) to->steps[k] = x->steps[i], to->kinds[k] = x->kinds[i++];
  }
  if (same) return true;
  int view = view_of_groups(l, t, from, type, x, to);
  if (view == 0) *to = copy;
  if (view >= 0) return true;
  for (i = 0; i < from->rank; i++)
    if (size_in(l, t, from->shape[i]) != 1) last = i;
  for (i = 0; i < from->rank; i++) {
    int64_t size = size_in(l, t, from->shape[i]);
    if (size != 1) rows = rows && size >= SOME && x->kinds[i] == (i == last ? STRIDE_ONE : STRIDE_OTHER);
  }
  for (last = -1, k = 0; k < type->rank; k++) {
    int64_t size = size_in(l, t, type->shape[k]);
    rows = rows && size >= 1;
    if (size != 1) last = k;
  }
  for (k = 0; k < type->rank; k++) {
    to->kinds[k] = k == last ? STRIDE_ONE : STRIDE_OTHER;
    to->steps[k] = STEP_UNKNOWN;
  }
  return rows;
}

/* The layout of a view of an array of type `from` some of whose sizes are symbols. */
static void symbolic_view(const layouts *l, dim_table *t, const graph_node *n, const graph_type *from, const layout *x,
                          layout *to) {
  op_attr attr = graph_attr(n);
  const graph_type *type = &n->type;
  int next = 0;
  bool whole = true;
  to->exact = false;
  switch (n->op) {
  case OP_reshape:
    if (x->flat) return;
    if (!reshaped(l, t, from, type, x, to)) unknown(to);
    return;
  case OP_broadcast:
    for (int i = 0; i < type->rank; i++) {
      int own = i - (type->rank - from->rank);
      int64_t size = own < 0 ? 1 : size_in(l, t, from->shape[own]);
      to->kinds[i] = size == 1 ? STRIDE_OTHER : size < 0 ? STRIDE_ANY : x->kinds[own];
      to->steps[i] = size == 1 ? 0 : size < 0 ? STEP_UNKNOWN : x->steps[own];
      whole = whole && own == i && from->shape[own] == type->shape[i];
    }
    break;
  case OP_permute:
    for (int i = 0; i < type->rank; i++) {
      to->kinds[i] = x->kinds[attr.d[i]];
      to->steps[i] = x->steps[attr.d[i]];
      if (size_in(l, t, type->shape[i]) == 1) continue;
      whole = whole && attr.d[i] >= next;
      next = (int)attr.d[i];
    }
    break;
  case OP_slice:
    for (int i = 0; i < type->rank; i++) {
      int64_t step = attr.d[3 * i + 2];
      to->kinds[i] = (uint8_t)kind_times((stride_kind)x->kinds[i], step);
      to->steps[i] = step_times(x->steps[i], step);
      if (step != 1 && size_in(l, t, type->shape[i]) < SOME) to->kinds[i] = STRIDE_ANY, to->steps[i] = STEP_UNKNOWN;
      whole = whole && step == 1 && (i == 0 || from->shape[i] == type->shape[i]);
    }
    break;
  case OP_window: {
    int axis = __builtin_ctz(attr.axes);
    stride_kind kind = (stride_kind)x->kinds[axis];
    for (int i = 0; i < from->rank; i++) to->kinds[i] = x->kinds[i], to->steps[i] = x->steps[i];
    to->steps[from->rank] = to->steps[axis] = STEP_UNKNOWN;
    to->kinds[from->rank] = attr.d[2] < 1 ? STRIDE_ANY : (uint8_t)kind_times(kind, attr.d[2]);
    to->kinds[axis] = attr.d[1] < 1 ? STRIDE_ANY : (uint8_t)kind_times(kind, attr.d[1]);
    whole = false;
    break;
  }
  default: memcpy(to->kinds, x->kinds, sizeof to->kinds), memcpy(to->steps, x->steps, sizeof to->steps);
  }
  to->flat = x->flat && whole;
}

/* Sets *to to how the result of an op of graph g lies whose first operand lies like *x. */
static void result_layout(const layouts *l, graph *g, const graph_node *n, const layout *x, layout *to) {
  const graph_type *from = n->nin ? &g->nodes[n->in[0]].type : NULL;
  fresh(l, &g->dims, &n->type, to);
  bool view = true;
  switch (n->op) {
  case OP_stop_gradient:
  case OP_reshape:
  case OP_broadcast:
  case OP_permute:
  case OP_slice:
  case OP_window: break;
  case OP_cast: view = from->dtype == n->type.dtype; break;
  case OP_index:
  case OP_slice_put: /* an item of an array is a view for the interpreter; an update leaves an array where it lies */
    if (!x->flat) unknown(to);
    return;
  default: view = false;
  }
  if (!view) return;
  if (!x->known)
    unknown(to);
  else if (to->exact && x->exact)
    exact_view(n, &x->a, to);
  else
    symbolic_view(l, &g->dims, n, from, x, to);
}

/* ---- sizes, in terms of the recording ------------------------------------------------------------------------------------------- */

/* A size of a graph that is gone through as one of the recording: the same, or one that it never exceeds (*less). False: there is none. */
static bool size_around(const layouts *l, const place *at, qn_dim d, qn_dim *to, bool *less) {
  const dim_table *t = &at->g->dims;
  *to = d;
  if (d >= 0) return true;
  for (uint32_t i = 0; at->outer && i < l->nparts; i++)
    if (l->parts[i].g == at->g && l->parts[i].part == d) {
      *less = true;
      return size_around(l, at, l->parts[i].of, to, less);
    }
  if (!at->outer) return !dim_is_late(t, d);
  const dim_expr e = t->exprs[~d];
  if (e.op == DIM_SYMBOL) {
    if (e.source != DIM_FROM_INPUT) return false;
    uint32_t outer = at->node->in[e.ref + (at->node->kind == NODE_IF)];
    return size_around(l, at->outer, at->outer->g->nodes[outer].type.shape[e.axis], to, less);
  }
  qn_dim a, b;
  bool part = false;
  if (!size_around(l, at, e.a, &a, &part) || !size_around(l, at, e.b, &b, &part) || part) return false;
  *to = dim_make(l->t, (dim_op)e.op, a, b);
  return true;
}

/* Notes that a part of an array, whose sizes are numbers of turns, is no larger than that. False when memory is short. */
static bool note_part(layouts *l, const graph *g, const graph_node *n) {
  for (int i = 0; i < n->type.rank && n->op == OP_slice; i++) {
    qn_dim d = n->type.shape[i], of = g->nodes[n->in[0]].type.shape[i];
    bool noted = false;
    if (d >= 0 || !dim_is_late(&g->dims, d)) continue;
    for (uint32_t k = 0; k < l->nparts; k++) {
      noted |= l->parts[k].g == g && l->parts[k].part == d;
      if (l->parts[k].g == g && l->parts[k].part == of) of = l->parts[k].of;
    }
    if (noted || dim_is_late(&g->dims, of)) continue;
    if (!mem_grow(l->vm, (void **)&l->parts, &l->parts_cap, l->nparts + (size_t)1, sizeof *l->parts)) return false;
    l->parts[l->nparts++] = (part_size){g, d, of};
  }
  return true;
}

/* Notes a fact that products rely on, unless it always holds. False when memory is short. */
static bool rely(layouts *l, qn_dim a, qn_dim b) {
  if (a >= 0 && b >= 0) return true;
  if (!mem_grow(l->vm, (void **)&l->facts, &l->facts_cap, l->nfacts + (size_t)1, sizeof *l->facts)) return false;
  l->facts[l->nfacts++] = (dim_fact){.a = a, .b = b, .relation = DIM_LE};
  return true;
}

/* ---- which products are the library's ---------------------------------------------------------------------------------------------- */

/* Are the elements of an operand's columns neighbours in memory, as gemm_flags asks? -1: that differs from call to call, or from turn to turn. */
static int across_in(const layouts *l, const place *at, const layout *x, const graph_type *t) {
  int r = t->rank;
  if (r < 2) return 0;
  int64_t rows = size_in(l, &at->g->dims, t->shape[r - 2]), columns = size_in(l, &at->g->dims, t->shape[r - 1]);
  if (rows == 1 || columns == 1) return 0;
  if (!x->known) return -1;
  if (x->kinds[r - 1] == STRIDE_ONE || is_not_one(x->kinds[r - 2])) return 0;
  return rows >= SOME && columns >= SOME && x->kinds[r - 2] == STRIDE_ONE && is_not_one(x->kinds[r - 1]) ? 1 : -1;
}

/* How many multiplications a product has, and how many in each chain, at most (*less) or exactly. False: that is not known. */
static bool work_of(const layouts *l, const place *at, const graph_node *n, qn_dim *count, qn_dim *chain, bool *less) {
  const graph_type *x = &at->g->nodes[n->in[0]].type;
  qn_dim d;
  *less = false;
  if (!size_around(l, at, x->shape[x->rank - 1], chain, less)) return false;
  *count = *chain;
  for (int i = 0; i < n->type.rank; i++) {
    if (!size_around(l, at, n->type.shape[i], &d, less)) return false;
    *count = dim_mul(l->t, *count, d);
  }
  return true;
}

/* A header of this type as it is in this call, without gaps or with its matrices stored across. */
static void header_now(const layouts *l, const graph *g, const graph_type *t, bool across, qn_array *a) {
  *a = (qn_array){.dtype = t->dtype, .rank = t->rank, .device = (uint8_t)l->device, .contiguous = !across};
  for (int i = 0; i < t->rank; i++) a->shape[i] = dim_hint(&g->dims, t->shape[i]);
  if (across) {
    int64_t last = a->shape[t->rank - 1];
    a->shape[t->rank - 1] = a->shape[t->rank - 2];
    a->shape[t->rank - 2] = last;
  }
  a->size = shape_strides(t->rank, a->shape, a->strides);
  if (!across) return;
  for (int i = 0; i < 2; i++) {
    int64_t *const of = i ? a->strides : a->shape, last = of[t->rank - 1];
    of[t->rank - 1] = of[t->rank - 2];
    of[t->rank - 2] = last;
  }
}

/* The flags of a product of sizes that are symbols, or numbers of turns. False: they are not the same for all of them, or memory is short. */
static bool flags_of(layouts *l, const place *at, const graph_node *n, const layout *const in[2], uint8_t *flags) {
  graph *g = at->g;
  const graph_type *const t[2] = {&g->nodes[n->in[0]].type, &g->nodes[n->in[1]].type};
  int64_t sizes[2];
  qn_dim work[2]; /* multiplications; those of a chain */
  bool less, fits = (n->type.dtype == QN_f32 || n->type.dtype == QN_f64);
  *flags = 0;
  bool sized = work_of(l, at, n, &work[0], &work[1], &less);
  l->symbol |= sized && !less;
  if (!sized) return false;
  const int64_t most[2] = {l->vm->tune[TUNE_gpu_small], GEMM_CHAIN};
  for (int i = 0; i < 2; i++) sizes[i] = dim_hint(l->t, work[i]);
  if (fits && sizes[0] <= most[0] && sizes[1] <= most[1]) /* our own kernel makes it */
    return (l->fixed || (rely(l, work[0], most[0]) && rely(l, work[1], most[1])));
  if (less) return false;
  if (fits && !l->fixed) {
    int i = sizes[0] <= most[0] || (work[1] >= 0 && sizes[1] > most[1]); /* what makes it the library's */
    if (!rely(l, most[i] + 1, work[i])) return false;
  }
  qn_array now[2];
  *flags = ATTR_LIBRARY;
  for (int i = 0; i < 2; i++) {
    int across = across_in(l, at, in[i], t[i]);
    if (across < 0) return false;
    if (across) *flags |= i ? ATTR_Y_ACROSS : ATTR_X_ACROSS;
    header_now(l, g, t[i], across, &now[i]);
  }
  return gemm_flags(l->vm, &now[0], &now[1]) == *flags;
}

/* Notes how the product, a node of the graph, is made. False when memory is short. */
static bool note(layouts *l, const place *at, uint32_t node, const layout *layouts_of) {
  graph *g = at->g;
  const graph_node *n = &g->nodes[node];
  const layout *const in[2] = {&layouts_of[n->in[0]], &layouts_of[n->in[1]]};
  if (l->aside || graph_attr(n).flags || !dtype_is_float((qn_dtype)n->type.dtype)) return true;
  uint8_t flags = 0;
  layout plain[2];
  for (int k = 0; k < 2; k++) fresh(l, &g->dims, &g->nodes[n->in[k]].type, &plain[k]);
  if (plain[0].exact && plain[1].exact) {
    if (gemm_is_small(l->vm, &plain[0].a, &plain[1].a)) return true;
    for (int k = 0; k < 2; k++) { /* (what is fixed is no matter of symbols, unless the strides are) */
      bool symbol = in[k]->known && !in[k]->exact;
      int across = symbol ? across_in(l, at, in[k], &g->nodes[n->in[k]].type) : 0;
      l->symbol |= symbol && across < 0;
      l->varies |= !in[k]->known || across < 0;
      if (symbol)
        header_now(l, g, &g->nodes[n->in[k]].type, across > 0, &plain[k].a);
      else
        plain[k].a = in[k]->a;
    }
    if (l->varies) return true;
    flags = gemm_flags(l->vm, &plain[0].a, &plain[1].a);
  } else if (!flags_of(l, at, n, in, &flags)) {
    l->varies = true;
    return !error_pending(l->vm);
  }
  uint32_t k = 0;
  while (k < l->n && (l->products[k].g != g || l->products[k].node != node)) k++;
  l->varies |= k < l->n && l->products[k].flags != flags;
  if (k < l->n) return true;
  if (!mem_grow(l->vm, (void **)&l->products, &l->cap, l->n + (size_t)1, sizeof *l->products)) return false;
  l->products[l->n++] = (product){g, node, flags};
  return true;
}

/* ---- going through regions ----------------------------------------------------------------------------------------------------------- */

static bool walk(layouts *l, const place *at, const layout *in, layout *out);

/* Goes through a loop: `in` are its operands, and out[k] becomes how result k of the body lies. A carry of two axes or more that lies in another
 * way before a turn than after the last one is unknown: nobody knows how many turns there are. */
static bool walk_loop(layouts *l, const place *around, const graph_node *n, const layout *in, layout *out) {
  uint32_t carries = graph_loop_carries(n);
  const place header = {n->payload.regions[0], n, around}, body = {n->payload.regions[1], n, around};
  layout *now = mem_alloc(l->vm, (n->nin + 1u) * sizeof *now), test;
  bool ok = now != NULL, moves = true;
  if (!ok) return false;
  memcpy((void *)now, (const void *)in, n->nin * sizeof *now);
  for (int turn = 0; ok && moves; turn++) {
    moves = false;
    ok = walk(l, &header, now, &test) && walk(l, &body, now, out);
    for (uint32_t k = 0; k < carries && ok; k++) {
      layout next = out[k];
      moves |= !same_layout(&now[k], &next) || forget_steps(&next, &now[k]);
      now[k] = next;
    }
    l->varies |= turn == TURNS;
    moves = moves && !l->varies;
  }
  for (uint32_t k = 0; k < carries && ok; k++)
    if (in[k].rank > 1 && !same_layout(&in[k], &out[k]))
      unknown(&out[k]);
    else if (out[k].known && now[k].known && now[k].rank == out[k].rank && in[k].rank == out[k].rank)
      forget_steps(&out[k], &now[k]), forget_steps(&out[k], &in[k]);
  mem_free(l->vm, (void *)now, (n->nin + 1u) * sizeof *now);
  return ok;
}

/* Goes through both arms; results that lie differently are unknown. */
static bool walk_branch(layouts *l, const place *around, const graph_node *n, const layout *in, layout *out) {
  uint32_t results = n->payload.regions[0]->noutputs;
  const place yes = {n->payload.regions[0], n, around}, no = {n->payload.regions[1], n, around};
  layout *other = mem_alloc(l->vm, (results + 1u) * sizeof *other);
  bool ok = other && walk(l, &yes, in + 1, out) && walk(l, &no, in + 1, other);
  for (uint32_t k = 0; k < results && ok; k++)
    if (!same_layout(&out[k], &other[k]))
      unknown(&out[k]);
    else
      forget_steps(&out[k], &other[k]);
  if (other) mem_free(l->vm, (void *)other, (results + 1u) * sizeof *other);
  return ok;
}

/* How many results the arms or the body of a node make. */
static uint32_t made(const graph_node *n) { return n->payload.regions[n->kind == NODE_LOOP]->noutputs; }

/* Goes through a node with regions whose operands lie like `in`. *results: how those of its arms or body lie. False when memory is short. */
static bool walk_region(layouts *l, const place *around, const graph_node *n, const layout *in, layout **results) {
  *results = mem_alloc(l->vm, (made(n) + 1u) * sizeof **results);
  return *results && (n->kind == NODE_LOOP ? walk_loop : walk_branch)(l, around, n, in, *results);
}

/* How result n of a node with regions lies, of whose arms or body the results lie like `results`. */
static void taken(const layouts *l, const graph *g, const graph_node *n, const layout *results, layout *to) {
  const graph_node *of = &g->nodes[n->in[0]];
  bool carried = n->payload.index < (of->kind == NODE_LOOP ? graph_loop_carries(of) : made(of));
  if (carried)
    *to = results[n->payload.index];
  else
    fresh(l, &g->dims, &n->type, to);
}

/* Goes through a region whose inputs lie like `in`; out[k] becomes how its result k lies. False when memory is short. */
static bool walk(layouts *l, const place *where, const layout *in, layout *out) {
  graph *g = where->g;
  layout *at = mem_zalloc(l->vm, g->n * sizeof *at);
  layout **results = at ? mem_zalloc(l->vm, g->n * sizeof *results) : NULL;
  bool ok = results != NULL;
  for (uint32_t k = 0; k < g->ninputs && ok; k++) at[g->inputs[k]] = in[k];
  for (uint32_t i = 1; i < g->n && ok; i++) {
    const graph_node *n = &g->nodes[i];
    if (graph_kind_has_regions(n->kind)) {
      layout *operands = mem_alloc(l->vm, (n->nin + 1u) * sizeof *operands);
      for (int k = 0; operands && k < n->nin; k++) operands[k] = at[n->in[k]];
      ok = operands && walk_region(l, where, n, operands, &results[i]);
      if (operands) mem_free(l->vm, (void *)operands, (n->nin + 1u) * sizeof *operands);
    } else if (n->kind == NODE_PROJ) {
      taken(l, g, n, results[n->in[0]], &at[i]);
    } else if (n->kind == NODE_OP) {
      result_layout(l, g, n, &at[n->nin ? n->in[0] : 0], &at[i]);
      ok = note_part(l, g, n);
      if (ok && n->op == OP_dot) ok = note(l, where, i, at);
    } else if (n->kind != NODE_INPUT) {
      fresh(l, &g->dims, &n->type, &at[i]);
    }
  }
  for (uint32_t k = 0; k < g->noutputs && ok; k++) out[k] = at[g->outputs[k]];
  for (uint32_t i = 1; i < g->n && results; i++)
    if (results[i]) mem_free(l->vm, (void *)results[i], (made(&g->nodes[i]) + 1u) * sizeof **results);
  if (results) mem_free(l->vm, (void *)results, g->n * sizeof *results);
  if (at) mem_free(l->vm, (void *)at, g->n * sizeof *at);
  return ok;
}

/* How a node of the recording lies, in all calls; `depth` views away from what was asked for. False when memory is short. */
static bool lies_as(layouts *l, graph *g, const qn_value *vals, uint32_t node, int depth, layout *to) {
  enum { DEEPEST = 64 };
  const graph_node *n = &g->nodes[node];
  const place all = {g, NULL, NULL};
  unknown(to);
  if (depth > DEEPEST || n->type.weak) return true;
  if (l->fixed || n->kind == NODE_INPUT) { /* (strides of those that have gaps are guarded) */
    if (!value_is(vals[node], TAG_ARRAY)) return true;
    const qn_array *a = value_array(vals[node]);
    fresh(l, &g->dims, &n->type, to);
    bool exact = to->exact;
    if (a->contiguous) return true;
    to->a = *a;
    note_kinds(to);
    to->exact = exact;
    for (int i = 0; i < to->rank && !exact; i++) to->steps[i] = STEP_UNKNOWN;
    if (!exact && n->kind != NODE_INPUT) unknown(to);
    return true;
  }
  if (n->kind == NODE_PROJ) {
    const graph_node *of = &g->nodes[n->in[0]];
    layout *in = mem_alloc(l->vm, (of->nin + 1u) * sizeof *in), *results = NULL;
    bool ok = in != NULL, aside = l->aside;
    for (int k = 0; k < of->nin && ok; k++) ok = lies_as(l, g, vals, of->in[k], depth + 16, &in[k]);
    l->aside = true;
    if (ok) ok = walk_region(l, &all, of, in, &results);
    l->aside = aside;
    if (ok) taken(l, g, n, results, to);
    if (results) mem_free(l->vm, (void *)results, (made(of) + 1u) * sizeof *results);
    if (in) mem_free(l->vm, (void *)in, (of->nin + 1u) * sizeof *in);
    return ok;
  }
  layout x;
  unknown(&x);
  if (n->kind == NODE_OP && n->nin && !lies_as(l, g, vals, n->in[0], depth + 1, &x)) return false;
  if (n->kind == NODE_OP)
    result_layout(l, g, n, &x, to);
  else
    fresh(l, &g->dims, &n->type, to);
  return true;
}

/* Is there a product of floats of which it is written (`fixed`) or not yet written how the library makes it? */
static bool has_product(const graph *g, bool fixed) {
  for (uint32_t i = 1; i < g->n; i++) {
    const graph_node *n = &g->nodes[i];
    if (n->kind == NODE_OP && n->op == OP_dot && dtype_is_float((qn_dtype)n->type.dtype) &&
        fixed == (graph_attr(n).flags != 0))
      return true;
    if (graph_kind_has_regions(n->kind) &&
        (has_product(n->payload.regions[0], fixed) || has_product(n->payload.regions[1], fixed)))
      return true;
  }
  return false;
}

bool products_any(const graph *g) { return has_product(g, true); }

bool products_in_regions(const graph *g, int device) {
  bool any = false;
  for (uint32_t i = 1; device && device_kernels_of(device)->has_gemm && i < g->n; i++)
    for (int k = 0; k < 2 && graph_kind_has_regions(g->nodes[i].kind); k++)
      any |= has_product(g->nodes[i].payload.regions[k], false);
  return any;
}

static void layouts_free(layouts *l) {
  mem_free(l->vm, l->products, l->cap * sizeof *l->products);
  mem_free(l->vm, l->parts, l->parts_cap * sizeof *l->parts);
  mem_free(l->vm, l->facts, l->facts_cap * sizeof *l->facts);
}

static void facts_hold(layouts *l) {
  for (uint32_t i = 0; i < l->nfacts; i++) dim_assume(l->t, l->facts[i].a, DIM_LE, l->facts[i].b);
}

static products_answer answer_of(const layouts *l, bool ok) {
  if (!ok) return PRODUCTS_FAIL;
  return !l->varies ? PRODUCTS_FIXED : l->symbol && !l->fixed ? PRODUCTS_SIZED : PRODUCTS_VARY;
}

products_answer products_fix(qn_vm *vm, graph *g, uint32_t node, const qn_value *in, const qn_value *vals, bool fixed) {
  const graph_node *n = &g->nodes[node];
  const place all = {g, NULL, NULL};
  layouts l = {.vm = vm, .t = &g->dims, .fixed = fixed};
  for (int k = 0; k < n->nin && !l.device; k++)
    if (value_is(in[k], TAG_ARRAY)) l.device = value_array(in[k])->device;
  if (!l.device || !device_kernels_of(l.device)->has_gemm ||
      (!has_product(n->payload.regions[0], false) && !has_product(n->payload.regions[1], false)))
    return PRODUCTS_FIXED;
  layout *at = mem_zalloc(vm, (n->nin + 1u) * sizeof *at), *out = mem_zalloc(vm, (made(n) + 1u) * sizeof *out);
  bool ok = at && out;
  for (int k = 0; k < n->nin && ok; k++) ok = lies_as(&l, g, vals, n->in[k], 0, &at[k]);
  ok = ok && (n->kind == NODE_LOOP ? walk_loop : walk_branch)(&l, &all, n, at, out);
  for (uint32_t k = 0; k < l.n && ok && !l.varies; k++)
    if (l.products[k].flags && !graph_fix_gemm(l.products[k].g, l.products[k].node, l.products[k].flags))
      ok = (raise_memory(vm), false);
  if (ok && !l.varies) facts_hold(&l);
  layouts_free(&l);
  if (at) mem_free(vm, (void *)at, (n->nin + 1u) * sizeof *at);
  if (out) mem_free(vm, (void *)out, (made(n) + 1u) * sizeof *out);
  return answer_of(&l, ok);
}

products_answer products_hold(qn_vm *vm, graph *g, uint32_t node, const qn_value *in, const qn_value *vals,
                              uint8_t flags) {
  const graph_node *n = &g->nodes[node];
  const place all = {g, NULL, NULL};
  layouts l = {.vm = vm, .t = &g->dims, .device = value_array(in[0])->device};
  bool ok = true, symbolic = false;
  for (int k = 0; k < 2; k++)
    for (int i = 0; i < g->nodes[n->in[k]].type.rank; i++) symbolic |= g->nodes[n->in[k]].type.shape[i] < 0;
  if (!symbolic) return PRODUCTS_FIXED;
  layout at[2];
  uint8_t found = 0;
  for (int k = 0; k < 2 && ok; k++) ok = lies_as(&l, g, vals, n->in[k], 0, &at[k]);
  const layout *const of[2] = {&at[0], &at[1]};
  if (ok) l.varies = !flags_of(&l, &all, n, of, &found) || found != flags;
  l.symbol = true;
  ok = ok && !error_pending(vm);
  if (ok && !l.varies) facts_hold(&l);
  layouts_free(&l);
  return answer_of(&l, ok);
}
