/* einsum: sums of products by named axes, lowered to permute, reshape, sum and the dot or mul op.
 *
 * Every operand carries the labels of its axes. An axis of size 1 whose label is longer elsewhere is dropped (it broadcasts);
 * a label that an operand has twice is its diagonal. Then operands are contracted from left to right. For a pair, labels
 * that nothing later needs and that only one of them has are summed away; of the rest
 *
 *   batch       in both, still needed       contracted   in both, not needed any more
 *   left        in the first only           right        in the second only
 *
 * the pair becomes [batch, left, contracted] x [batch, contracted, right], one matrix product (a plain product when nothing
 * is contracted, one of two vectors when nothing else is left), and the result has the labels batch, left, right.
 */
#include <string.h>

#include "stdlib/builtins.h"

enum { LETTERS = 52, LABELS = LETTERS + ARRAY_MAX_RANK, MAX_OPERANDS = 16 };
/* Labels are numbers: 0..25 are a..z, 26..51 are A..Z, and LETTERS + i is the axis under "..." that is the i-th from the right. */

typedef struct term {
  qn_value v; /* owned, or unset */
  int rank;
  uint8_t labels[ARRAY_MAX_RANK];
} term;

typedef struct einsum {
  qn_vm *vm;
  int n;
  term terms[MAX_OPERANDS];
  int64_t sizes[LABELS]; /* of the axes with this label, once it has been seen */
  int seen[LABELS];      /* occurrences in operands */
  int dots;              /* the most axes that "..." stands for in an operand */
  int out_rank;
  uint8_t out[ARRAY_MAX_RANK];
} einsum;

static bool refuse(qn_vm *vm, const qn_str *spec, const char *why) {
  return raise_false(vm, E_argument, "einsum: \"%s\": %s", spec->text, why);
}

static int label_of(char c) { return c >= 'a' && c <= 'z' ? c - 'a' : c >= 'A' && c <= 'Z' ? c - 'A' + 26 : -1; }

/* Reads labels up to a comma, an arrow or the end. "..." stands for `dots` axes or, if that is -1, for as many as the letters leave over of
 * `rank`. */
static bool read_labels(qn_vm *vm, const qn_str *spec, const char **at, int rank, int dots, uint8_t *labels, int *n) {
  const char *p = *at;
  int letters = 0;
  bool ellipsis = false;
  for (const char *q = p; *q && *q != ',' && *q != '-'; q++) {
    letters += label_of(*q) >= 0;
    ellipsis |= *q == '.';
  }
  if (dots < 0) dots = ellipsis ? rank - letters : 0;
  if (dots < 0 || (rank >= 0 && letters + dots != rank))
    return raise_false(vm, E_argument, "einsum: \"%s\": an operand of rank %d has %d labels", spec->text, rank,
                       letters);
  *n = 0;
  for (; *p && *p != ',' && *p != '-'; p++) {
    if (*p == ' ') continue;
    if (letters + dots > ARRAY_MAX_RANK) return refuse(vm, spec, "an array has at most 8 axes");
    if (*p == '.') {
      if (!ellipsis || p[1] != '.' || p[2] != '.') return refuse(vm, spec, "... stands once for the other axes");
      ellipsis = false;
      p += 2;
      for (int i = dots - 1; i >= 0; i--) labels[(*n)++] = (uint8_t)(LETTERS + i);
      continue;
    }
    int label = label_of(*p);
    if (label < 0) return refuse(vm, spec, "axes are named by letters");
    labels[(*n)++] = (uint8_t)label;
  }
  *at = p;
  return true;
}

/* A size as broadcasting sees it: 1 where it is that in this call, which becomes a guard. */
static int64_t broadcast_size(const einsum *e, int64_t size) { return rec_sizes_equal(e->vm, size, 1) ? 1 : size; }

/* Reads the specification and the sizes of the operands. False with an error raised. */
static bool parse(einsum *e, const qn_str *spec) {
  const char *p = spec->text;
  for (int i = 0; i < e->n; i++) {
    const qn_array *a = value_array(e->terms[i].v);
    int64_t sizes[ARRAY_MAX_RANK];
    term *t = &e->terms[i];
    if (!read_labels(e->vm, spec, &p, a->rank, -1, t->labels, &t->rank)) return false;
    if (!rec_sizes_of_call(e->vm, t->v, sizes)) return false;
    int dots = 0;
    for (int k = 0; k < t->rank; k++) {
      int label = t->labels[k];
      dots += label >= LETTERS;
      int64_t *size = &e->sizes[label];
      sizes[k] = broadcast_size(e, sizes[k]);
      if (!e->seen[label]++ || *size == 1) *size = sizes[k];
      int fits = sizes[k] == 1 ? 1 : rec_sizes_equal(e->vm, *size, sizes[k]);
      if (fits < 0) return false;
      if (!fits) {
        long long was = (long long)rec_size_hint(e->vm, *size);
        if (label < LETTERS)
          raise_error(e->vm, E_broadcast, SPAN_NONE, "einsum: \"%s\": axis %c has the sizes %lld and %lld", spec->text,
                      label < 26 ? 'a' + label : 'A' + label - 26, was, (long long)a->shape[k]);
        else
          raise_error(e->vm, E_broadcast, SPAN_NONE, "einsum: \"%s\": sizes %lld and %lld under ... do not broadcast",
                      spec->text, was, (long long)a->shape[k]);
        return false;
      }
    }
    if (dots > e->dots) e->dots = dots;
    bool last = i == e->n - 1;
    if (last ? *p == ',' : *p != ',')
      return refuse(e->vm, spec, "one group of labels for each operand, separated by commas");
    if (!last) p++;
  }
  if (*p == '-') {
    if (p[1] != '>') return refuse(e->vm, spec, "the result stands behind ->");
    p += 2;
    if (!read_labels(e->vm, spec, &p, -1, strstr(p, "...") ? e->dots : 0, e->out, &e->out_rank)) return false;
    if (*p) return refuse(e->vm, spec, "one group of labels behind ->");
  } else {
    /* Without an arrow the result has the axes under ..., then the labels that occur once, in alphabetical order. */
    for (int i = e->dots - 1; i >= 0; i--) e->out[e->out_rank++] = (uint8_t)(LETTERS + i);
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    for (int i = 0; i < LETTERS; i++) {
      int label = label_of(alphabet[i]);
      if (e->seen[label] != 1) continue;
      if (e->out_rank == ARRAY_MAX_RANK) return refuse(e->vm, spec, "an array has at most 8 axes");
      e->out[e->out_rank++] = (uint8_t)label;
    }
  }
  for (int i = 0; i < e->out_rank; i++) {
    if (!e->seen[e->out[i]]) return refuse(e->vm, spec, "the result names an axis that no operand has");
    if (memchr(e->out, e->out[i], (size_t)i)) return refuse(e->vm, spec, "the result names an axis twice");
  }
  return true;
}

static int64_t size_of(const einsum *e, int label) { return e->sizes[label]; }

static int place_of(const term *t, int label) {
  for (int i = 0; i < t->rank; i++)
    if (t->labels[i] == label) return i;
  return -1;
}

static void remove_label(term *t, int at) {
  memmove(t->labels + at, t->labels + at + 1, (size_t)(t->rank - at - 1));
  t->rank--;
}

/* Reshapes a term to the sizes of its labels. */
static void set_shape(einsum *e, term *t) {
  int64_t shape[ARRAY_MAX_RANK];
  for (int i = 0; i < t->rank; i++) shape[i] = size_of(e, t->labels[i]);
  t->v = use_shape(e->vm, t->v, t->rank, shape);
}

/* Drops broadcast axes and takes diagonals: afterwards each label occurs once and has its full size. */
static bool normalise(einsum *e, term *t) {
  qn_vm *vm = e->vm;
  const qn_array *a = value_array(t->v);
  int64_t shape[ARRAY_MAX_RANK], sizes[ARRAY_MAX_RANK];
  int rank = 0;
  rec_sizes(vm, t->v, sizes);
  for (int i = 0, k = 0; i < a->rank; i++) {
    sizes[i] = broadcast_size(e, sizes[i]);
    if (sizes[i] == 1 && size_of(e, t->labels[k]) != 1) {
      remove_label(t, k);
      continue;
    }
    shape[rank++] = sizes[i];
    k++;
  }
  t->v = use_shape(vm, t->v, rank, shape);
  for (int i = 0; i < t->rank && !value_is_error(t->v); i++) {
    int j = i + 1;
    while (j < t->rank && t->labels[j] != t->labels[i]) j++;
    if (j == t->rank) continue;
    /* The two axes go last and become one of n*n elements, of which the diagonal is every (n+1)-th. Where n is a symbol, which no step of a
     * slice can be, n more make them rows of n+1, of which it is the first column. */
    int64_t n = size_of(e, t->labels[i]);
    dim_table *dims = rec_dims(vm);
    int label = t->labels[i];
    t->v = use_move_axis(vm, use_move_axis(vm, t->v, j, t->rank - 1), i, t->rank - 2);
    remove_label(t, j);
    remove_label(t, i);
    for (int k = 0; k < t->rank; k++) shape[k] = size_of(e, t->labels[k]);
    shape[t->rank] = dim_mul(dims, n, n);
    t->v = use_shape(vm, t->v, t->rank + 1, shape);
    if (n < 0) {
      if (value_is_error(t->v)) return false;
      qn_dim widths[OP_ATTR_DIMS] = {0};
      widths[3 * t->rank + 1] = n;
      bool bools = dtype_is_bool(value_array(t->v)->dtype);
      t->v = used(vm, t->v, op_pad(vm, t->v, bools ? value_bool(false) : value_int(0), widths));
      shape[t->rank] = n;
      shape[t->rank + 1] = dim_add(dims, n, 1);
      t->v = use_shape(vm, t->v, t->rank + 2, shape);
      if (value_is_error(t->v)) return false;
      t->v = use_shape(vm, used(vm, t->v, op_slice(vm, t->v, t->rank + 1, 0, 1, 1)), t->rank + 1, shape);
    } else if (n && !value_is_error(t->v)) {
      t->v = used(vm, t->v, op_slice(vm, t->v, t->rank, 0, n, n + 1));
    }
    if (value_is_error(t->v)) return false;
    t->labels[t->rank++] = (uint8_t)label;
    i = -1;
  }
  return !value_is_error(t->v);
}

/* Sums over the axes whose labels are not in `keep`. */
static bool sum_away(einsum *e, term *t, const bool *keep) {
  op_attr attr = {0};
  int n = 0;
  uint8_t labels[ARRAY_MAX_RANK];
  for (int i = 0; i < t->rank; i++) {
    if (keep[t->labels[i]])
      labels[n++] = t->labels[i];
    else
      attr.axes |= (uint8_t)(1u << i);
  }
  if (!attr.axes) return true;
  memcpy(t->labels, labels, (size_t)n);
  t->rank = n;
  t->v = use1(e->vm, OP_sum, t->v, &attr);
  return !value_is_error(t->v);
}

/* Permutes the term so that its axes have the given labels in order. */
static void order_as(einsum *e, term *t, const uint8_t *labels) {
  int order[ARRAY_MAX_RANK];
  for (int i = 0; i < t->rank; i++) order[i] = place_of(t, labels[i]);
  memcpy(t->labels, labels, (size_t)t->rank);
  t->v = use_permute(e->vm, t->v, order);
}

/* Replaces x by the contraction of x and y. `needed` marks the labels that the result or a later operand has. Takes the value of y over. */
static bool contract(einsum *e, term *x, term *y, const bool *needed) {
  qn_vm *vm = e->vm;
  dim_table *dims = rec_dims(vm);
  bool keep[LABELS];
  for (int i = 0; i < LABELS; i++) keep[i] = needed[i] || place_of(y, i) >= 0;
  if (!sum_away(e, x, keep)) return false;
  for (int i = 0; i < LABELS; i++) keep[i] = needed[i] || place_of(x, i) >= 0;
  if (!sum_away(e, y, keep)) return false;

  uint8_t batch[ARRAY_MAX_RANK], left[ARRAY_MAX_RANK], inner[ARRAY_MAX_RANK], right[ARRAY_MAX_RANK];
  int nbatch = 0, nleft = 0, ninner = 0, nright = 0;
  int64_t sizes[4] = {1, 1, 1, 1}; /* of batch, left, inner, right */
  for (int i = 0; i < x->rank; i++) {
    int label = x->labels[i], both = place_of(y, label) >= 0;
    if (both && needed[label])
      batch[nbatch++] = (uint8_t)label, sizes[0] = dim_mul(dims, sizes[0], size_of(e, label));
    else if (both)
      inner[ninner++] = (uint8_t)label, sizes[2] = dim_mul(dims, sizes[2], size_of(e, label));
    else
      left[nleft++] = (uint8_t)label, sizes[1] = dim_mul(dims, sizes[1], size_of(e, label));
  }
  for (int i = 0; i < y->rank; i++)
    if (place_of(x, y->labels[i]) < 0)
      right[nright++] = y->labels[i], sizes[3] = dim_mul(dims, sizes[3], size_of(e, y->labels[i]));
  if (nbatch + nleft + nright > ARRAY_MAX_RANK)
    return raise_false(vm, E_rank, "einsum: an intermediate result would have %d axes; an array has at most %d",
                       nbatch + nleft + nright, ARRAY_MAX_RANK);
  uint8_t labels[2 * ARRAY_MAX_RANK];
#define COPY(at, from, n) memcpy(labels + (at), from, (size_t)(n))
  COPY(0, batch, nbatch), COPY(nbatch, left, nleft), COPY(nbatch + nleft, inner, ninner);
  order_as(e, x, labels);
  COPY(nbatch, inner, ninner), COPY(nbatch + ninner, right, nright);
  order_as(e, y, labels);
  COPY(nbatch, left, nleft), COPY(nbatch + nleft, right, nright);
#undef COPY
  if (ninner && !nbatch && !nleft && !nright) { /* of two vectors */
    x->v = use_shape(vm, x->v, 1, &sizes[2]);
    y->v = use_shape(vm, y->v, 1, &sizes[2]);
  } else {
    int64_t xs[3] = {sizes[0], sizes[1], sizes[2]}, ys[3] = {sizes[0], sizes[2], sizes[3]};
    x->v = use_shape(vm, x->v, 3, xs);
    y->v = use_shape(vm, y->v, 3, ys);
  }
  x->v = use2(vm, ninner ? OP_dot : OP_mul, x->v, y->v, NULL);
  y->v = value_unset();
  x->rank = nbatch + nleft + nright;
  memcpy(x->labels, labels, (size_t)x->rank);
  set_shape(e, x);
  return !value_is_error(x->v);
}

static bool run(einsum *e) {
  for (int i = 0; i < e->n; i++)
    if (!normalise(e, &e->terms[i])) return false;
  term *acc = &e->terms[0];
  bool needed[LABELS];
  for (int i = 1; i <= e->n; i++) {
    memset(needed, 0, sizeof needed);
    for (int k = 0; k < e->out_rank; k++) needed[e->out[k]] = true;
    for (int j = i + 1; j < e->n; j++)
      for (int k = 0; k < e->terms[j].rank; k++) needed[e->terms[j].labels[k]] = true;
    if (i < e->n ? !contract(e, acc, &e->terms[i], needed) : !sum_away(e, acc, needed)) return false;
  }
  order_as(e, acc, e->out);
  return !value_is_error(acc->v);
}

qn_value builtin_einsum(qn_vm *vm, const qn_value *args) {
  qn_str *spec;
  if (!arg_str(vm, "einsum", "a specification like \"ij,jk->ik\"", args[0], &spec)) return value_error();
  const qn_list *l = value_list(args[1]);
  if (l->len == 0 || l->len > MAX_OPERANDS)
    return raise_error(vm, E_argument, SPAN_NONE, "einsum: %u operands; 1 to %d are possible", l->len, MAX_OPERANDS);
  einsum e = {.vm = vm, .n = (int)l->len};
  bool good = true;
  for (int i = 0; i < e.n; i++) e.terms[i].v = value_unset();
  for (int i = 0; i < e.n && good; i++) {
    qn_value v = arg_array(vm, "einsum", l->items[i], QN_DTYPE_COUNT);
    good = !value_is_error(v);
    if (good) e.terms[i].v = v;
  }
  good = good && parse(&e, spec) && run(&e);
  for (int i = good; i < e.n; i++) value_release(vm, e.terms[i].v);
  return good ? e.terms[0].v : value_error();
}
