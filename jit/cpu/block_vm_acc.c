/* Reductions and scans of the block VM, in exactly the orders of l.h.
 *
 * An accumulator is a chain and a tree. The chain is where pushes go: 64 lanes (INNER, one result), one element (other
 * orders), one element a result (many), or one row of results a push (INNER with many). A full chain is a leaf of the balanced
 * tree, which is kept as a binary counter of subtrees: adding leaf number n combines it with the subtrees of n's low set bits.
 * At the end an unfinished chain is the last leaf, and the subtrees are combined from the smallest to the largest.
 *
 * With many results, a VEC over the results works on one block of them after the other. All blocks see the same counts: those
 * at the beginning of the VEC are restored for each block.
 */
#include <string.h>

#include "jit/cpu/cpu.h"
#include "jit/cpu/block_vm_exec.h"

static size_t round64(size_t n) { return (n + 63) & ~(size_t)63; }

/* Kinds of accumulators: one result in 64 lanes; a row of results for each push; with a tree over full chains. */
static bool has_lanes(const bvm_acc_plan *a) { return !a->many && !a->arg && a->order == ORDER_INNER; }
static bool has_rows(const bvm_acc_plan *a) { return a->many && !a->arg && a->order == ORDER_INNER; }
static bool has_tree(const bvm_acc_plan *a) { return a->order != ORDER_FREE && !has_rows(a); }
/* How many pushes fill a chain. */
static int64_t chain_length(const bvm_acc_plan *a) {
  switch ((l_order)a->order) {
  case ORDER_INNER: return ORDER_BLOCK;
  case ORDER_OUTER: return ORDER_OUTER_CHAIN;
  case ORDER_DOT: return ORDER_DOT_CHUNK;
  default: return 1;
  }
}

static void identity(uint8_t op, uint8_t dtype, void *out) {
  uint64_t bits = l_identity(op, dtype);
  memcpy(out, &bits, dtype_size((qn_dtype)dtype));
}
/* The first value of an exclusive scan: 0 for sums, else the identity. */
static void scan_zero(uint8_t op, uint8_t dtype, void *out) {
  if (op == KOP_add)
    memset(out, 0, dtype_size((qn_dtype)dtype));
  else
    identity(op, dtype, out);
}

/* to[0..n) = *value */
static void fill(const bvm_frame *f, const bvm_acc_plan *a, void *to, const void *value, int64_t n) {
  f->code->loops->fill[bvm_size_class(a->size)](to, value, NULL, NULL, 0, n);
}
/* to[0..n) = the result where nothing was pushed: the identity, or 0 of no products. */
static void fill_nothing(const bvm_frame *f, const bvm_acc_plan *a, void *to, int64_t n) {
  uint64_t value = 0;
  if (a->order != ORDER_DOT) identity(a->op, a->dtype, &value);
  fill(f, a, to, &value, n);
}

/* ---- memory ---- */

static int64_t results_of(const bvm_frame *f, const bvm_acc_plan *a) {
  const l_instr *i = &f->code->p->code[a->at];
  return !a->many ? 1 : f->idx[i->a] > 0 ? f->idx[i->a] : 0;
}
static int levels_of(const bvm_frame *f, const bvm_acc_plan *a) {
  const l_instr *i = &f->code->p->code[a->at];
  if (!has_tree(a)) return 0;
  if (!i->b) return 48;
  int levels = 2;
  /* ACC's `atmost` counts merged leaves, or pushes */
  for (int64_t n = f->idx[i->b] / (a->merged ? 1 : chain_length(a)) + 1; n > 1; n >>= 1) levels++;
  return levels;
}
static int64_t width_of(const bvm_frame *f, const bvm_acc_plan *a) {
  return has_lanes(a) ? ORDER_LANES : results_of(f, a);
}
/* Rows of a scan's state, each with one element a result: SCAN_G and so on below; INNER with many results also has the last 64 values of each
 * of its 6 steps. */
static int64_t scan_rows(const bvm_acc_plan *a) { return !a->scanned ? 0 : has_rows(a) ? 4 + 6 * ORDER_LANES : 4; }

char *bvm_acc_place(bvm_frame *f, const bvm_acc_plan *a, char *at) {
  bvm_acc *s = &f->accs[f->code->acc_of[a->at]];
  size_t r = (size_t)results_of(f, a), w = (size_t)width_of(f, a), size = a->size;
  *s = (bvm_acc){.results = (int64_t)r, .levels = levels_of(f, a)};
  s->chain = at;
  at += round64((has_rows(a) ? ORDER_LANES : 1) * w * size);
  s->tree = at;
  at += round64((size_t)s->levels * w * size);
  s->scan = at;
  at += round64((size_t)scan_rows(a) * r * size);
  if (a->arg) {
    s->index = (int64_t *)(void *)at;
    at += round64(r * 8);
  }
  return at;
}

static const bvm_acc_plan *plan_of(const bvm_frame *f, l_val v) { return &f->code->accs[f->code->acc_of[v]]; }
static bvm_acc *state_of(bvm_frame *f, l_val v) { return &f->accs[f->code->acc_of[v]]; }

void bvm_acc_reset(bvm_frame *f, const bvm_op *o) {
  const bvm_acc_plan *a = plan_of(f, o->at);
  bvm_acc *s = state_of(f, o->at);
  s->k = s->k0 = s->scanned = s->folded = 0;
  s->leaves = s->leaves0 = 0;
  s->done = false;
  if (a->arg)
    for (int64_t r = 0; r < s->results; r++) s->index[r] = -1;
  if (a->scanned) {
    uint64_t zero = 0;
    scan_zero(a->op, a->dtype, &zero);
    fill(f, a, s->scan + 3 * s->results * a->size, &zero, s->results);
  }
}

/* ---- trees ---- */

/* Adds leaf number s->leaves to the tree: elements from .. from + n - 1 of its `width`. Overwrites the leaf; the caller counts it. */
static void add_leaf(const bvm_acc_plan *a, bvm_acc *s, char *leaf, int64_t width, int64_t from, int64_t n) {
  size_t size = a->size;
  int l = 0;
  for (; s->leaves >> l & 1 && l < s->levels - 1; l++)
    a->fold(leaf, s->tree + (size_t)(l * width + from) * size, leaf, NULL, VM_A | VM_B, n);
  memcpy(s->tree + (size_t)(l * width + from) * size, leaf, (size_t)n * size);
}

/* Combines all subtrees to `out`: elements from .. from + n - 1 of their `width`. `any`: `out` holds the smallest subtree already. False: there
 * is no subtree at all, and `out` is as it was. */
static bool tree_root(const bvm_acc_plan *a, const bvm_acc *s, char *out, int64_t width, int64_t from, int64_t n,
                      bool any) {
  for (int l = 0; l < s->levels && s->leaves >> l; l++) {
    if (!(s->leaves >> l & 1)) continue;
    const char *t = s->tree + (size_t)(l * width + from) * a->size;
    if (any)
      a->fold(out, t, out, NULL, VM_A | VM_B, n);
    else
      memcpy(out, t, (size_t)n * a->size);
    any = true;
  }
  return any;
}

/* ---- pushes ---- */

/* Pushes n elements to the one result of order INNER. */
static void push_lanes(bvm_frame *f, const bvm_acc_plan *a, bvm_acc *s, const char *x, int64_t n) {
  const bvm_loops *l = f->code->loops;
  size_t size = a->size;
  while (n > 0) {
    int64_t pos = s->k % ORDER_BLOCK, lane = pos % ORDER_LANES, m;
    if (lane || n < ORDER_LANES) {
      m = ORDER_LANES - lane < n ? ORDER_LANES - lane : n;
      if (pos == 0) fill_nothing(f, a, s->chain, ORDER_LANES);
      char *to = s->chain + (size_t)lane * size;
      if (pos < ORDER_LANES)
        memcpy(to, x, (size_t)m * size);
      else
        a->fold(to, to, x, NULL, VM_A | VM_B, m);
    } else {
      int64_t rows = (ORDER_BLOCK - pos) / ORDER_LANES;
      if (rows > n / ORDER_LANES) rows = n / ORDER_LANES;
      l->rows[a->op][a->dtype](s->chain, x, rows, pos == 0);
      m = rows * ORDER_LANES;
    }
    s->k += m;
    x += (size_t)m * size;
    n -= m;
    if (s->k % ORDER_BLOCK == 0) {
      add_leaf(a, s, s->chain, ORDER_LANES, 0, ORDER_LANES);
      s->leaves++;
    }
  }
}

void bvm_fold_lanes(bvm_fn fold, size_t size, void *out, char *lanes, const char *x, int64_t n) {
  if (n == 1) {
    memmove(out, x, size);
    return;
  }
  int64_t h =
      (int64_t)1 << (63 - __builtin_clzll((uint64_t)n - 1)); /* h < n <= 2 h: all lanes from n on are the identity */
  if (h + h != n && lanes != x)
    memcpy(lanes + (size_t)(n - h) * size, x + (size_t)(n - h) * size, (size_t)(h + h - n) * size);
  for (; h > 1; n = h, h /= 2, x = lanes) fold(lanes, x, x + (size_t)h * size, NULL, VM_A | VM_B, n - h);
  fold(out, x, x + size, NULL, VM_A | VM_B, 1);
}

static void fold_lanes(const bvm_acc_plan *a, char *lanes) {
  bvm_fold_lanes(a->fold, a->size, lanes, lanes, lanes, ORDER_LANES);
}

/* Pushes n elements to the one result of order FREE: in 64 lanes if there are enough elements for that to be faster. */
static void push_free(bvm_frame *f, const bvm_acc_plan *a, bvm_acc *s, const char *x, int64_t n) {
  const bvm_loops *l = f->code->loops;
  char lanes[ORDER_LANES * 8] __attribute__((aligned(64)));
  if (n >= 2 * ORDER_LANES) {
    int64_t rows = n / ORDER_LANES;
    l->rows[a->op][a->dtype](lanes, x, rows, true);
    fold_lanes(a, lanes);
    if (s->k)
      a->fold(s->chain, s->chain, lanes, NULL, VM_A | VM_B, 1);
    else
      memcpy(s->chain, lanes, a->size);
    s->k += rows * ORDER_LANES;
    x += (size_t)(rows * ORDER_LANES) * a->size;
    n -= rows * ORDER_LANES;
  }
  if (n) l->chain[a->op][a->dtype](s->chain, x, n, s->k == 0);
  s->k += n;
}

/* Pushes n elements, or (y not NULL) n products, to the one result of order OUTER, TREE or DOT. */
static void push_chain(bvm_frame *f, const bvm_acc_plan *a, bvm_acc *s, const char *x, const char *y, int mode,
                       int64_t n) {
  const bvm_loops *l = f->code->loops;
  int64_t length = chain_length(a);
  while (n > 0) {
    int64_t pos = s->k % length, m = length - pos < n ? length - pos : n;
    if (y)
      l->dot[a->dtype](s->chain, x, y, mode, m, pos == 0);
    else
      l->chain[a->op][a->dtype](s->chain, x, m, pos == 0);
    s->k += m;
    n -= m;
    if (!y || mode & VM_A) x += (size_t)m * a->size;
    if (y && mode & VM_B) y += (size_t)m * a->size;
    if (s->k % length == 0) {
      add_leaf(a, s, s->chain, 1, 0, 1);
      s->leaves++;
    }
  }
}

/* Pushes one element (or the product of x and y) to each of n results: those that the running block numbers. k: the index that argmax and argmin keep. */
static void push_many(bvm_frame *f, const bvm_acc_plan *a, bvm_acc *s, const char *x, const char *y, int mode,
                      int64_t k, int64_t n) {
  const bvm_loops *l = f->code->loops;
  size_t size = a->size;
  int64_t from = f->i0, length = chain_length(a), pos = s->k % length;
  char *c = s->chain + (size_t)from * size;
  if (a->arg) {
    l->args[a->op == KOP_argmin][a->dtype](c, s->index + from, x, NULL, k, n);
  } else if (has_rows(a)) {
    if (s->k < ORDER_LANES) memcpy(s->chain + (size_t)(s->k * s->results + from) * size, x, (size_t)n * size);
  } else if (y) {
    l->dots[a->dtype](c, x, y, mode, n, pos == 0);
  } else if (a->order == ORDER_FREE ? s->k == 0 : pos == 0) {
    memcpy(c, x, (size_t)n * size);
  } else {
    a->fold(c, c, x, NULL, VM_A | VM_B, n);
  }
  s->k++;
  if (has_tree(a) && s->k % length == 0) {
    add_leaf(a, s, c, s->results, from, n);
    s->leaves++;
  }
}

/* Pushes the value of a PUSH or SCAN to its accumulator, by the function for its kind. */
static void push_value(bvm_frame *f, const bvm_op *o, const bvm_acc_plan *a, bvm_acc *s) {
  const l_instr *i = o->in;
  bool vector = (o->flags & OP_VECTOR) != 0;
  int64_t n = vector ? f->n : 1;
  const char *x, *y = NULL;
  int mode = VM_A | VM_B;
  if (i->code == L_PUSH && i->d) { /* two factors, of which one may be a scalar */
    x = f->val[i->b];
    y = f->val[i->d];
    mode = (f->code->scalar[i->b] ? 0 : VM_A) | (f->code->scalar[i->d] ? 0 : VM_B);
  } else {
    x = bvm_vector(f, i->b, 3);
  }
  int64_t k = i->code == L_PUSH && i->c ? f->idx[i->c] + (a->many || !vector ? 0 : f->o) : s->k;
  if (a->many)
    push_many(f, a, s, x, y, mode, k, n);
  else if (a->arg) {
    f->code->loops->arg[a->op == KOP_argmin][a->dtype](s->chain, s->index, x, k, n);
    s->k += n;
  } else if (has_lanes(a))
    push_lanes(f, a, s, x, n);
  else if (a->order == ORDER_FREE && !y)
    push_free(f, a, s, x, n);
  else
    push_chain(f, a, s, x, y, mode, n);
}

void bvm_acc_push(bvm_frame *f, const bvm_op *o) { push_value(f, o, plan_of(f, o->in->a), state_of(f, o->in->a)); }

void bvm_acc_vec_block(bvm_frame *f, uint32_t pc, uint32_t end, bool first) {
  for (uint32_t k = pc + 1; k < end; k++) {
    const bvm_op *o = &f->code->ops[k];
    if ((o->code != L_PUSH && o->code != L_SCAN) || !plan_of(f, o->in->a)->many) continue;
    bvm_acc *s = state_of(f, o->in->a);
    if (first) s->k0 = s->k, s->leaves0 = s->leaves, s->scanned0 = s->scanned;
    s->k = s->k0, s->leaves = s->leaves0, s->scanned = s->scanned0;
  }
}

/* ---- results ---- */

/* Makes an unfinished chain the last leaf of the tree. The chain is overwritten. */
static void close_chain(const bvm_acc_plan *a, bvm_acc *s, char *chain, int64_t width, int64_t from, int64_t n) {
  if (has_tree(a) && s->k % chain_length(a) != 0) {
    add_leaf(a, s, chain, width, from, n);
    s->leaves++;
  }
}

/* Leaves the one result in s->chain; of order INNER it is still 64 lanes. A second call does nothing. */
static void finish_one(bvm_frame *f, const bvm_acc_plan *a, bvm_acc *s) {
  if (s->done) return;
  s->done = true;
  int64_t width = has_lanes(a) ? ORDER_LANES : 1;
  bool any = s->k > 0;
  if (has_tree(a)) {
    close_chain(a, s, s->chain, width, 0, width);
    any = tree_root(a, s, s->chain, width, 0, width, false);
  }
  if (!any && !a->arg) fill_nothing(f, a, s->chain, width);
}

/* Writes n of many results, from number `from` on, to `out`. The state stays as it is, so that this may be repeated, but for the rows of
 * order INNER: they are folded once. */
static void finish_many(bvm_frame *f, const bvm_acc_plan *a, bvm_acc *s, char *out, int64_t from, int64_t n) {
  size_t size = a->size;
  if (a->arg) {
    memcpy(out, s->chain + (size_t)from * size, (size_t)n * size);
    return;
  }
  bool any = s->k > 0;
  if (has_rows(a)) {
    if (any && from >= s->folded) {
      for (int64_t h = ORDER_LANES / 2; h; h /= 2)
        for (int64_t r = 0; r < h && r + h < s->k; r++) {
          char *to = s->chain + (size_t)(r * s->results + from) * size;
          a->fold(to, to, s->chain + (size_t)((r + h) * s->results + from) * size, NULL, VM_A | VM_B, n);
        }
      s->folded = from + n;
    }
    if (any) memcpy(out, s->chain + (size_t)from * size, (size_t)n * size);
  } else if (has_tree(a)) {
    /* the unfinished chain is the smallest subtree: combine upward without changing the counter */
    bool open = s->k % chain_length(a) != 0;
    if (open) memcpy(out, s->chain + (size_t)from * size, (size_t)n * size);
    any = tree_root(a, s, out, s->results, from, n, open);
  } else if (any) {
    memcpy(out, s->chain + (size_t)from * size, (size_t)n * size);
  }
  if (!any) fill_nothing(f, a, out, n);
}

void bvm_acc_finish(bvm_frame *f, const bvm_op *o) {
  const bvm_acc_plan *a = plan_of(f, o->in->a);
  bvm_acc *s = state_of(f, o->in->a);
  if (a->many) {
    if (a->arg) {
      memcpy(f->val[o->at], s->index + f->i0, (size_t)f->n * 8);
    } else {
      finish_many(f, a, s, f->val[o->at], f->i0, f->n);
    }
    return;
  }
  finish_one(f, a, s);
  if (a->arg) {
    memcpy(f->val[o->at], s->index, 8);
    return;
  }
  if (has_lanes(a) && !s->folded) {
    fold_lanes(a, s->chain);
    s->folded = 1;
  }
  memcpy(f->val[o->at], s->chain, a->size);
}

static char *buffer_at(const bvm_frame *f, int64_t b, int64_t element, size_t size) {
  return (b >= 0 ? (char *)f->args->buf[b] : (char *)f->val[-b]) + element * (int64_t)size;
}

void bvm_acc_partial(bvm_frame *f, const bvm_op *o) {
  const l_instr *i = o->in;
  const bvm_acc_plan *a = plan_of(f, i->a);
  bvm_acc *s = state_of(f, i->a);
  char *to = buffer_at(f, i->imm, f->idx[i->b], a->size);
  if (a->many)
    finish_many(f, a, s, to, 0, s->results);
  else {
    finish_one(f, a, s);
    memcpy(to, s->chain, (size_t)(has_lanes(a) ? ORDER_LANES : 1) * a->size);
  }
  if (a->arg) memcpy(buffer_at(f, i->imm2, f->idx[i->d], 8), s->index, (size_t)s->results * 8);
}

void bvm_acc_merge(bvm_frame *f, const bvm_op *o) {
  const l_instr *i = o->in;
  const bvm_loops *l = f->code->loops;
  const bvm_acc_plan *a = plan_of(f, i->a);
  bvm_acc *s = state_of(f, i->a);
  int64_t width = has_lanes(a) ? ORDER_LANES : s->results;
  const char *from = buffer_at(f, i->imm, f->idx[i->b], a->size);
  if (a->arg) {
    const int64_t *index = (const int64_t *)(void *)buffer_at(f, i->imm2, f->idx[i->d], 8);
    for (int64_t r = 0; r < width; r++) /* partials of nothing have no index */
      if (index[r] >= 0)
        l->args[a->op == KOP_argmin][a->dtype](s->chain + (size_t)r * a->size, s->index + r, from + (size_t)r * a->size,
                                               index + r, 0, 1);
    return;
  }
  if (!has_tree(a)) {
    if (s->k == 0)
      memcpy(s->chain, from, (size_t)width * a->size);
    else
      a->fold(s->chain, s->chain, from, NULL, VM_A | VM_B, width);
    s->k++;
    return;
  }
  memcpy(s->chain, from, (size_t)width * a->size);
  add_leaf(a, s, s->chain, width, 0, width);
  s->leaves++;
}

/* ---- scans ---- */

/* Rows of a scan's state: G and B of l.h, the running chain, the last result. */
enum { SCAN_G, SCAN_B, SCAN_C, SCAN_LAST };

/* Replaces x[0..n), the next elements of a scan with one result, by its running values. */
static void scan_one(bvm_frame *f, const bvm_acc_plan *a, bvm_acc *s, char *x, int64_t n) {
  const bvm_loops *l = f->code->loops;
  size_t size = a->size;
  char *g = s->scan + SCAN_G * size, *b = s->scan + SCAN_B * size;
  const int64_t block = 64 * ORDER_LANES;
  while (n > 0) {
    int64_t lane = s->scanned % ORDER_LANES, m = ORDER_LANES - lane < n ? ORDER_LANES - lane : n;
    char *last = x + (size_t)(m - 1) * size;
    if (a->order == ORDER_FREE) { /* groups of 64 and a chain over them */
      l->scan64[a->op][a->dtype](x, m);
      if (s->scanned) a->fold(x, g, x, NULL, VM_B, m);
      memcpy(g, last, size);
      s->scanned += m;
    } else if (a->order == ORDER_INNER) {
      l->scan64[a->op][a->dtype](x, m);
      if (s->scanned % block >= ORDER_LANES) a->fold(x, g, x, NULL, VM_B, m);
      memcpy(g, last, size);
      if (s->scanned >= block) a->fold(x, b, x, NULL, VM_B, m);
      s->scanned += m;
      if (s->scanned % block == 0) memcpy(b, last, size);
    } else {
      char *c = s->scan + SCAN_C * size; /* the chain of 64 */
      for (int64_t j = 0; j < m; j++) {
        char *e = x + (size_t)j * size;
        if (lane + j) a->fold(e, c, e, NULL, VM_A | VM_B, 1);
        memcpy(c, e, size);
      }
      if (s->scanned >= ORDER_LANES) a->fold(x, g, x, NULL, VM_B, m);
      s->scanned += m;
      if (s->scanned % ORDER_LANES == 0) memcpy(g, last, size);
    }
    x += (size_t)m * size;
    n -= m;
  }
}

/* Replaces x[0..n), the next element of each of n results from number `from` on, by their running values. */
static void scan_many(const bvm_acc_plan *a, bvm_acc *s, char *x, int64_t from, int64_t n) {
  size_t size = a->size, bytes = (size_t)n * size;
#define SCAN_ROW(r) (s->scan + ((size_t)(r) * (size_t)s->results + (size_t)from) * size)
  char *g = SCAN_ROW(SCAN_G), *b = SCAN_ROW(SCAN_B), *c = SCAN_ROW(SCAN_C);
  int64_t pos = s->scanned % ORDER_LANES, block = s->scanned % (64 * ORDER_LANES);
  if (a->order == ORDER_INNER) {
    for (int t = 0; t < 6; t++) {
      int64_t h = (int64_t)1 << t;
      memcpy(SCAN_ROW(4 + t * ORDER_LANES + pos), x, bytes);
      if (pos >= h) a->fold(x, SCAN_ROW(4 + t * ORDER_LANES + pos - h), x, NULL, VM_A | VM_B, n);
    }
    if (block >= ORDER_LANES) a->fold(x, g, x, NULL, VM_A | VM_B, n);
    if (pos == ORDER_LANES - 1) memcpy(g, x, bytes);
    if (s->scanned >= 64 * ORDER_LANES) a->fold(x, b, x, NULL, VM_A | VM_B, n);
    if (block == 64 * ORDER_LANES - 1) memcpy(b, x, bytes);
  } else {
    bool first = a->order == ORDER_OUTER ? pos == 0 : s->scanned == 0;
    if (!first) a->fold(x, c, x, NULL, VM_A | VM_B, n);
    memcpy(c, x, bytes);
    if (a->order == ORDER_OUTER && s->scanned >= ORDER_LANES) a->fold(x, g, x, NULL, VM_A | VM_B, n);
    if (a->order == ORDER_OUTER && pos == ORDER_LANES - 1) memcpy(g, x, bytes);
  }
  s->scanned++;
#undef SCAN_ROW
}

void bvm_acc_scan(bvm_frame *f, const bvm_op *o) {
  const l_instr *i = o->in;
  const bvm_acc_plan *a = plan_of(f, i->a);
  bvm_acc *s = state_of(f, i->a);
  size_t size = a->size;
  char *out = f->val[o->at];
  const void *x = bvm_vector(f, i->b, 3);
  if (x != out) memcpy(out, x, (size_t)f->n * size);
  if (a->finished)
    push_value(f, o, a, s);
  else if (a->many)
    s->k++;
  char *last = s->scan + (size_t)SCAN_LAST * (size_t)s->results * size;
  if (a->many) {
    last += (size_t)f->i0 * size;
    scan_many(a, s, out, f->i0, f->n);
    if (!(i->flags & L_EXCLUSIVE)) return;
    char *t = f->temps + 3 * (size_t)f->block * 8;
    memcpy(t, out, (size_t)f->n * size);
    memcpy(out, last, (size_t)f->n * size);
    memcpy(last, t, (size_t)f->n * size);
    return;
  }
  scan_one(f, a, s, out, f->n);
  if (!(i->flags & L_EXCLUSIVE)) return;
  uint64_t before = 0;
  memcpy(&before, last, size);
  memcpy(last, out + (size_t)(f->n - 1) * size, size);
  memmove(out + size, out, (size_t)(f->n - 1) * size);
  memcpy(out, &before, size);
}
