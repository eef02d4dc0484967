/* The block VM's interpreter (block_vm.h): blocks of instructions by recursion, instructions by a switch; in a VEC each works on one block of
 * elements. Reductions are in block_vm_acc.c. */
#include "jit/cpu/block_vm_exec.h"

#include <string.h>

/* ---- frames ---- */

static size_t round64(size_t n) { return (n + 63) & ~(size_t)63; }

size_t bvm_tables_bytes(const l_program *p, uint32_t naccs) {
  return round64(p->n * sizeof(void *)) + 2 * round64(p->n * 8) + round64((naccs + 1) * sizeof(bvm_acc));
}
size_t bvm_regs_bytes(const vmcode *code, int64_t block) {
  return (code->nregs + TEMP_MASKS + code->nmasks + code->nswaps) * (size_t)block * 8;
}

/* Takes `bytes` from *at on. */
static char *bump(char **at, size_t bytes) {
  char *p = *at;
  *at += round64(bytes);
  return p;
}

void bvm_frame_again(bvm_frame *f, const vmcode *code, const qk_args *args, void *tables, void *regs, int64_t block) {
  const l_program *p = code->p;
  char *at = tables;
  f->code = code;
  f->args = args;
  f->val = (void **)(void *)bump(&at, p->n * sizeof(void *));
  f->idx = (int64_t *)(void *)bump(&at, p->n * 8);
  f->uni = (uint64_t *)(void *)bump(&at, p->n * 8);
  f->accs = (bvm_acc *)(void *)bump(&at, (code->naccs + 1) * sizeof(bvm_acc));
  f->regs = regs;
  f->temps = f->regs + (size_t)code->nregs * (size_t)block * 8;
  f->dynamic = f->regs + bvm_regs_bytes(code, block);
  f->block = block;
  f->n = 1;
  f->o = f->i0 = 0;
  f->active = NULL;
  f->depth = 0;
  f->failure.error = ~(uint64_t)0;
}

void bvm_frame_init(bvm_frame *f, const vmcode *code, const qk_args *args, void *tables, void *regs, int64_t block) {
  const l_program *p = code->p;
  bvm_frame_again(f, code, args, tables, regs, block);
  f->val[0] = NULL;
  for (uint32_t v = 1; v < p->n; v++) {
    const l_instr *i = &p->code[v];
    f->val[v] = code->reg[v] ? f->regs + (code->reg[v] - 1) * (size_t)block * 8 : (char *)&f->uni[v];
    if (i->code == L_CONST || i->code == L_SET) f->uni[v] = (uint64_t)i->imm; /* SET: 1 once it has run */
    if (i->code == L_INT) f->idx[v] = i->imm;
  }
}

int64_t bvm_phase_begin(bvm_frame *f, const bvm_phase *ph) {
  /* Only launch-time values: nothing here can fail or be interrupted. */
  bool ok = frame_run(f, 0, f->code->prelude_end) && frame_run(f, ph->before, ph->par);
  (void)ok;
  return f->idx[f->code->ops[ph->par].in->a];
}

/* Gives locals and accumulators their places, one behind the other in the frame's dynamic part. Returns where that ends. */
static char *place(bvm_frame *f, const bvm_phase *ph) {
  char *at = f->dynamic;
  for (uint32_t k = 0; k < ph->nplaces; k++) {
    const bvm_op *o = &f->code->ops[f->code->places[ph->places + k]];
    int64_t n = o->code == L_LOCAL ? f->idx[o->in->a] : 0;
    if (o->code == L_TILE)
      f->val[o->at] = bump(&at, QK_TILE_WORK);
    else if (o->code == L_LOCAL)
      f->val[o->at] = bump(&at, (size_t)(n > 0 ? n : 0) * dtype_size((qn_dtype)o->in->dtype));
    else
      at = bvm_acc_place(f, &f->code->accs[f->code->acc_of[o->at]], at);
  }
  return at;
}

size_t bvm_phase_bytes(bvm_frame *f, const bvm_phase *ph) {
  return (size_t)((uintptr_t)place(f, ph) - (uintptr_t)f->dynamic);
}

/* The value of an index instruction if it follows from constants and ints, else `unknown`. For estimates of work. */
static int64_t trips(const bvm_frame *f, l_val v, int64_t unknown) {
  const l_instr *i = &f->code->p->code[v];
  if (i->code == L_INT || i->code == L_PARAM) return f->idx[v];
  if (!l_is_index_op(i->code)) return unknown;
  int64_t a = trips(f, i->a, -1), b = trips(f, i->b, -1);
  if (i->code == L_IMIN && (a < 0 || b < 0)) return a < 0 ? b : a;
  if (a < 0 || b < 0) return unknown;
  return l_index_value((l_code)i->code, a, b);
}

/* About how many elements ops[from..to) work on; at most 8 loops deep. */
static int64_t range_work(const bvm_frame *f, const bvm_phase *ph, uint32_t from, uint32_t to, int depth) {
  int64_t work = 1;
  for (uint32_t k = from; k < to; k++) {
    const bvm_op *o = &f->code->ops[k];
    switch (o->code) {
    case L_FOR:
    case L_VEC: {
      int64_t a = trips(f, o->in->a, 0), b = trips(f, o->in->b, a + 64), step = o->in->c ? trips(f, o->in->c, 1) : 1;
      const uint64_t most = (uint64_t)1 << 40; /* bounds may be as far apart as numbers can be */
      uint64_t turns = b > a ? ((uint64_t)b - (uint64_t)a) / (uint64_t)(step > 0 ? step : 1) : 0;
      int64_t n = b > a ? (int64_t)(turns < most ? turns : most) + 1 : 0;
      int64_t inner = o->code == L_VEC ? 1 + (int64_t)(o->end - k) / 4
                      : depth < 8      ? range_work(f, ph, k + 1, o->end, depth + 1)
                                       : 1;
      if (__builtin_mul_overflow(n, inner, &n) || n > (int64_t)1 << 40) n = (int64_t)1 << 40;
      work += n;
      k = o->end;
      break;
    }
    case L_TILE: {
      const l_tile *t = &f->code->p->tiles[o->in->imm];
      int64_t depth_k = trips(f, t->depth, 64);
      work += (int64_t)t->tile_rows * t->tile_cols * (depth_k / 8 + 1);
      break;
    }
    default: work++;
    }
  }
  return work;
}

int64_t bvm_phase_work(const bvm_frame *f, const bvm_phase *ph) { return range_work(f, ph, ph->par + 1, ph->end, 0); }

/* ---- values ---- */

const void *bvm_vector(bvm_frame *f, l_val v, int slot) {
  if (!f->code->scalar[v] || f->n == 1) return f->val[v];
  char *t = f->temps + (size_t)slot * (size_t)f->block * 8;
  size_t size = dtype_size((qn_dtype)f->code->p->code[v].dtype);
  f->code->loops->fill[bvm_size_class(size)](t, f->val[v], NULL, NULL, 0, f->n);
  return t;
}

/* Where the memory of buffer b begins, or (b < 0) that of local -b. */
static char *buffer_base(const bvm_frame *f, int64_t b) {
  return b >= 0 ? (char *)f->args->buf[b] : (char *)f->val[-b];
}

/* For which elements of the block an access is made: from .. to - 1, and of these where `where` is 1 (NULL: all). */
typedef struct guard {
  int64_t from, to;
  const uint8_t *where;
} guard;

static guard guard_of(bvm_frame *f, const l_instr *i) {
  guard g = {0, f->n, NULL};
  if (i->e && f->idx[i->e] > f->i0) g.from = f->idx[i->e] - f->i0;
  if (i->f && f->idx[i->f] < f->i0 + g.to) g.to = f->idx[i->f] - f->i0;
  if (g.from > f->n) g.from = f->n;
  if (g.to < g.from) g.to = g.from;
  if (i->g) g.where = bvm_vector(f, i->g, 0);
  return g;
}

/* In a WHILE of a VEC: leaves out the elements that have left the loop. */
static void guard_active(bvm_frame *f, guard *g) {
  if (!f->active) return;
  if (!g->where) {
    g->where = f->active;
    return;
  }
  uint8_t *both = (uint8_t *)f->temps + 1 * (size_t)f->block * 8;
  for (int64_t j = 0; j < f->n; j++) both[j] = g->where[j] & f->active[j];
  g->where = both;
}

static void copy_one(char *to, const char *from, int size) {
  switch (size) {
  case 0: *to = *from; break;
  case 1: memcpy(to, from, 2); break;
  case 2: memcpy(to, from, 4); break;
  default: memcpy(to, from, 8); break;
  }
}

/* Offsets of the block's elements in an access with vindex: stride * j + vindex[j] * vstride, in temporary 2. Where the guard is false the
 * index may be anything, so the product wraps. */
static const int64_t *offsets_of(bvm_frame *f, const l_instr *i, int64_t stride) {
  const int64_t *v = bvm_vector(f, i->c, 2);
  int64_t *t = (int64_t *)(void *)(f->temps + 2 * (size_t)f->block * 8), vstride = f->idx[i->d];
  for (int64_t j = 0; j < f->n; j++) t[j] = (int64_t)((uint64_t)(stride * j) + (uint64_t)v[j] * (uint64_t)vstride);
  return t;
}

/* The address of the block's first element. Where the guard is false it may be any number, so the sums wrap. */
static char *address_of(const bvm_frame *f, const l_instr *i, int64_t stride, int64_t bytes) {
  uint64_t at = (uint64_t)f->idx[i->a] + (uint64_t)stride * (uint64_t)f->o;
  return (char *)((uintptr_t)buffer_base(f, i->imm) + (uintptr_t)(at * (uint64_t)bytes));
}

/* The address of the one element of an access outside VECs; NULL where its guard is false. */
static char *address_of_one(const bvm_frame *f, const bvm_op *o) {
  const l_instr *i = o->in;
  if (i->g && !*(const uint8_t *)f->val[i->g]) return NULL;
  int64_t bytes = (int64_t)1 << o->size, stride = i->b ? f->idx[i->b] : 0;
  return address_of(f, i, stride, bytes) + (i->c ? *(const int64_t *)f->val[i->c] * f->idx[i->d] * bytes : 0);
}

static void load(bvm_frame *f, const bvm_op *o) {
  const l_instr *i = o->in;
  const bvm_loops *l = f->code->loops;
  const int64_t bytes = (int64_t)1 << o->size, stride = i->b ? f->idx[i->b] : 0, n = f->n;
  char *out = f->val[o->at];
  if (!(o->flags & OP_VECTOR) || o->flags & OP_ONCE) { /* one element */
    const char *from = address_of_one(f, o);
    copy_one(out, from ? from : f->val[i->h], o->size);
    return;
  }
  char *base = address_of(f, i, stride, bytes);
  bool guarded = i->h != 0;
  if (!guarded && !i->c) {
    if (stride == 1 && (o->flags & OP_ALIAS))
      f->val[o->at] = base;
    else {
      f->val[o->at] = out = f->regs + (f->code->reg[o->at] - 1) * (size_t)f->block * 8;
      if (stride == 1)
        memcpy(out, base, (size_t)(n * bytes));
      else if (stride == 0)
        l->fill[o->size](out, base, NULL, NULL, 0, n);
      else
        l->load[o->size](out, base, stride, n);
    }
    return;
  }
  guard g = guard_of(f, i);
  if (i->c) guard_active(f, &g);
  if (!g.where && g.from == 0 && g.to == n && i->c) {
    if (stride == 0)
      l->gather[o->size](out, base, bvm_vector(f, i->c, 2), f->idx[i->d], n);
    else
      l->gather[o->size](out, base, offsets_of(f, i, stride), 1, n);
    return;
  }
  if (i->h) {
    const char *other = f->val[i->h];
    if (f->code->scalar[i->h])
      l->fill[o->size](out, other, NULL, NULL, 0, n);
    else if (other != out)
      memcpy(out, other, (size_t)(n * bytes));
  } else { /* elements that have left a WHILE, whose value nobody uses */
    memset(out, 0, (size_t)(n * bytes));
  }
  if (g.from >= g.to) return;
  if (!g.where && !i->c) {
    if (stride == 1)
      memcpy(out + g.from * bytes, base + g.from * bytes, (size_t)((g.to - g.from) * bytes));
    else
      l->load[o->size](out + g.from * bytes, base + g.from * stride * bytes, stride, g.to - g.from);
    return;
  }
  const int64_t *at = i->c ? offsets_of(f, i, stride) : NULL;
  for (int64_t j = g.from; j < g.to; j++)
    if (!g.where || g.where[j]) copy_one(out + j * bytes, base + (at ? at[j] : stride * j) * bytes, o->size);
}

static void store(bvm_frame *f, const bvm_op *o) {
  const l_instr *i = o->in;
  const bvm_loops *l = f->code->loops;
  const int64_t bytes = (int64_t)1 << o->size, stride = i->b ? f->idx[i->b] : 0;
  if (!(o->flags & OP_VECTOR)) {
    char *to = address_of_one(f, o);
    if (to) copy_one(to, f->val[i->h], o->size);
    return;
  }
  char *base = address_of(f, i, stride, bytes);
  guard g = guard_of(f, i);
  guard_active(f, &g);
  if (g.from >= g.to) return;
  if (!g.where && !i->c) {
    char *to = base + g.from * stride * bytes;
    if (f->code->scalar[i->h] && stride == 1) {
      l->fill[o->size](to, f->val[i->h], NULL, NULL, 0, g.to - g.from);
      return;
    }
    const char *from = (const char *)bvm_vector(f, i->h, 3) + g.from * bytes;
    if (stride == 1) {
      if (to != from) memmove(to, from, (size_t)((g.to - g.from) * bytes));
    } else if (stride == 0) {
      copy_one(to, from + (g.to - g.from - 1) * bytes, o->size);
    } else {
      l->store[o->size](to, from, stride, g.to - g.from);
    }
    return;
  }
  const char *from = bvm_vector(f, i->h, 3);
  const int64_t *at = i->c ? offsets_of(f, i, stride) : NULL;
  for (int64_t j = g.from; j < g.to; j++)
    if (!g.where || g.where[j]) copy_one(base + (at ? at[j] : stride * j) * bytes, from + j * bytes, o->size);
}

/* element = f(element, value), for one element of any dtype: f16 and bf16 are computed in f32. */
static void update_one(const bvm_loops *l, uint8_t op, uint8_t dtype, void *element, const void *value) {
  uint8_t compute = dtype_rows[dtype].compute;
  if (compute == dtype) {
    l->kop[op][dtype](element, element, value, NULL, 0, 1);
    return;
  }
  float a, b;
  l->cast[dtype][compute](&a, element, NULL, NULL, 0, 1);
  l->cast[dtype][compute](&b, value, NULL, NULL, 0, 1);
  l->kop[op][compute](&a, &a, &b, NULL, 0, 1);
  l->cast[compute][dtype](element, &a, NULL, NULL, 0, 1);
}

static void update(bvm_frame *f, const bvm_op *o) {
  const l_instr *i = o->in;
  const bvm_loops *l = f->code->loops;
  uint8_t dtype = f->code->p->code[i->h].dtype;
  const int64_t bytes = (int64_t)1 << o->size, stride = i->b ? f->idx[i->b] : 0;
  if (!(o->flags & OP_VECTOR)) {
    char *element = address_of_one(f, o);
    if (element) update_one(l, i->sub, dtype, element, f->val[i->h]);
    return;
  }
  char *base = address_of(f, i, stride, bytes);
  guard g = guard_of(f, i);
  guard_active(f, &g);
  const char *from = bvm_vector(f, i->h, 3);
  if (!g.where && !i->c && stride == 1 && dtype_rows[dtype].compute == dtype) {
    char *to = base + g.from * bytes;
    if (g.to > g.from) l->kop[i->sub][dtype](to, to, from + g.from * bytes, NULL, VM_A | VM_B, g.to - g.from);
    return;
  }
  /* lists of the offsets and values of the elements that are updated */
  int64_t *at = (int64_t *)(void *)(f->temps + 2 * (size_t)f->block * 8), n = g.to - g.from;
  if (i->c)
    (void)offsets_of(f, i, stride);
  else
    for (int64_t j = g.from; j < g.to; j++) at[j] = stride * j;
  if (g.where) {
    char *values = f->temps + 3 * (size_t)f->block * 8;
    n = 0;
    for (int64_t j = g.from; j < g.to; j++) {
      if (!g.where[j]) continue;
      at[n] = at[j];
      copy_one(values + n++ * bytes, from + j * bytes, o->size);
    }
    from = values;
  } else {
    at += g.from;
    from += g.from * bytes;
  }
  if (l->update[i->sub][dtype])
    l->update[i->sub][dtype](base, at, from, 1, n);
  else
    for (int64_t j = 0; j < n; j++) update_one(l, i->sub, dtype, base + at[j] * bytes, from + j * bytes);
}

/* ---- checks ---- */

static void fail(bvm_frame *f, const l_instr *i, int64_t element, int64_t j) {
  uint64_t now = (uint64_t)i->imm << 48 | ((uint64_t)element & 0xffffffffffffu);
  if (now >= f->failure.error) return;
  f->failure.error = now;
  f->failure.shown = i->d != 0;
  if (i->d) {
    uint8_t d = f->code->p->code[i->d].dtype;
    size_t size = dtype_size((qn_dtype)d);
    f->failure.dtype = d;
    f->failure.bits = 0;
    memcpy(&f->failure.bits, (const char *)f->val[i->d] + (f->code->scalar[i->d] ? 0 : (size_t)j * size), size);
  }
}

static void check(bvm_frame *f, const bvm_op *o) {
  const l_instr *i = o->in;
  if (!(o->flags & OP_VECTOR)) {
    if (!*(const uint8_t *)f->val[i->a]) fail(f, i, f->idx[i->b], 0);
    return;
  }
  const uint8_t *ok = bvm_vector(f, i->a, 0);
  const uint8_t *bad = memchr(ok, 0, (size_t)f->n);
  if (!bad) return;
  for (int64_t j = bad - ok; j < f->n; j++)
    if (!ok[j] && (!f->active || f->active[j])) fail(f, i, f->idx[i->b] + (i->c ? f->idx[i->c] : 0) * (f->o + j), j);
}

/* ---- typed values ---- */

static void compute(bvm_frame *f, const bvm_op *o) {
  const l_instr *i = o->in;
  if (o->dest && !f->active) {
    const l_instr *s = &f->code->p->code[o->dest];
    if (f->idx[s->b] == 1)
      f->val[o->at] =
          buffer_base(f, s->imm) + ((f->idx[s->a] + f->o) << bvm_size_class(dtype_size((qn_dtype)i->dtype)));
    else
      f->val[o->at] = f->regs + (f->code->reg[o->at] - 1) * (size_t)f->block * 8;
  }
  o->fn(f->val[o->at], f->val[i->a], f->val[i->b], f->val[i->c], o->mode, o->flags & OP_ONCE ? 1 : f->n);
}

/* Value v, of an integer dtype or bool, as an index. */
static int64_t as_index(const bvm_frame *f, l_val v) {
  int64_t x = 0;
  uint8_t d = f->code->p->code[v].dtype;
  if (dtype_size(d) == 8 && !dtype_is_float(d)) return *(const int64_t *)f->val[v];
  f->code->loops->cast[d][DTYPE_INDEX](&x, f->val[v], NULL, NULL, 0, 1);
  return x;
}

static void tile(bvm_frame *f, const bvm_op *o) {
  const l_program *p = f->code->p;
  const l_tile *t = &p->tiles[o->in->imm];
  const int64_t *idx = f->idx;
  uint8_t xd = t->x < 0 ? p->code[-t->x].dtype : p->buffers[t->x].dtype,
          yd = t->y < 0 ? p->code[-t->y].dtype : p->buffers[t->y].dtype;
  char *out = t->out ? f->val[t->out]
                     : buffer_base(f, t->to) + idx[t->to_base] * (int64_t)dtype_size((qn_dtype)l_tile_dtype(p, t));
  qk_digit digits[L_TILE_DIGITS];
  for (uint32_t i = 0; i < t->ndigits; i++) {
    const l_digit *d = &t->digits[i];
    digits[i] = (qk_digit){idx[d->by], d->most ? idx[d->most] : 0, idx[d->step], d->deep};
  }
  f->code->loops->tile(&(qk_tile){.x = buffer_base(f, t->x) + idx[t->x_base] * (int64_t)dtype_size((qn_dtype)xd),
                                  .y = buffer_base(f, t->y) + idx[t->y_base] * (int64_t)dtype_size((qn_dtype)yd),
                                  .out = out,
                                  .work = f->val[o->at],
                                  .x_m = idx[t->x_m],
                                  .x_k = idx[t->x_k],
                                  .y_k = idx[t->y_k],
                                  .y_n = idx[t->y_n],
                                  .rows = idx[t->rows],
                                  .cols = idx[t->cols],
                                  .depth = idx[t->depth],
                                  .ld = t->out ? t->tile_cols : idx[t->to_m],
                                  .xd = xd,
                                  .yd = yd,
                                  .od = l_tile_dtype(p, t),
                                  .ndigits = (int32_t)t->ndigits,
                                  .n_first = t->ndigits ? idx[t->n_first] : 0,
                                  .k_first = t->ndigits ? idx[t->k_first] : 0,
                                  .digits = digits});
}

static void carry(bvm_frame *f, const bvm_op *o) {
  const l_instr *i = o->in;
  size_t size = (size_t)1 << o->size;
  if (f->code->scalar[o->at])
    copy_one(f->val[o->at], f->val[i->a], o->size);
  else
    memcpy(f->val[o->at], bvm_vector(f, i->a, 3), (size_t)f->n * size);
}

/* The end of a turn of the loop ops[begin..end): carries get the values of the SETs that have run. All values are read before any carry
 * changes, so one that is itself a carry goes through a temporary. `active`: the elements that are still in the loop; NULL: all. */
static void set_carries(bvm_frame *f, uint32_t begin, uint32_t end, const uint8_t *active) {
  const bvm_op *ops = f->code->ops;
  const bvm_loops *l = f->code->loops;
  char *swap = f->temps + (TEMP_MASKS + f->code->nmasks) * (size_t)f->block * 8;
  for (int pass = 0; pass < 2; pass++) {
    uint32_t swaps = 0;
    for (uint32_t k = begin + 1; k < end; k++) {
      if (ops[k].code == L_FOR || ops[k].code == L_WHILE || ops[k].code == L_VEC) { /* its SETs are its own */
        k = ops[k].end;
        continue;
      }
      if (ops[k].code != L_SET || !f->uni[ops[k].at]) continue;
      if (pass) f->uni[ops[k].at] = 0;
      const l_instr *s = ops[k].in;
      size_t size = dtype_size((qn_dtype)f->code->p->code[s->a].dtype);
      int64_t n = f->code->scalar[s->a] ? 1 : f->n;
      const l_instr *from = &f->code->p->code[s->b];
      bool is_carry = from->code == L_CARRY && s->b != s->a;
      if (pass == 0) {
        if (is_carry) {
          memcpy(swap + (size_t)swaps * (size_t)f->block * 8, bvm_vector(f, s->b, 3), (size_t)n * size);
          swaps++;
        }
        continue;
      }
      const char *value = f->val[s->b];
      int mode = VM_A | VM_C | (f->code->scalar[s->b] ? 0 : VM_B);
      if (is_carry) {
        value = swap + (size_t)swaps++ * (size_t)f->block * 8;
        mode |= n == 1 ? 0 : VM_B;
      }
      if (active && !f->code->scalar[s->a])
        l->select[bvm_size_class(size)](f->val[s->a], active, value, f->val[s->a], mode, n);
      else if (mode & VM_B)
        memcpy(f->val[s->a], value, (size_t)n * size);
      else
        l->fill[bvm_size_class(size)](f->val[s->a], value, NULL, NULL, 0, n);
    }
  }
}

static bool interrupted(const bvm_frame *f) {
  return atomic_load_explicit(f->args->interrupt, memory_order_relaxed) != 0;
}

/* ---- structures ---- */

static bool run_for(bvm_frame *f, const bvm_op *o, uint32_t pc) {
  const l_instr *i = o->in;
  int64_t to = f->idx[i->b], step = i->c ? f->idx[i->c] : 1;
  if (step <= 0) step = 1;
  for (int64_t k = f->idx[i->a]; k < to; k += step) {
    f->idx[o->at] = k;
    if (!frame_run(f, pc + 1, o->end)) return false;
    set_carries(f, pc, o->end, f->active);
  }
  return true;
}

static bool run_while(bvm_frame *f, const bvm_op *o, uint32_t pc) {
  const l_instr *i = o->in;
  if (!(o->flags & OP_VECTOR)) {
    while (*(const uint8_t *)f->val[i->a]) {
      if (interrupted(f) || !frame_run(f, pc + 1, o->end)) return false;
      set_carries(f, pc, o->end, NULL);
    }
    return true;
  }
  /* the condition is a carry: the mask is a copy, since it must stay while carries are set */
  const uint8_t *outer = f->active;
  uint8_t *mask = (uint8_t *)f->temps + (TEMP_MASKS + (size_t)f->depth) * (size_t)f->block * 8;
  bool ok = true;
  f->depth++;
  while (ok) {
    const uint8_t *c = bvm_vector(f, i->a, 0);
    for (int64_t j = 0; j < f->n; j++) mask[j] = outer ? c[j] & outer[j] : c[j];
    if (!memchr(mask, 1, (size_t)f->n)) break;
    if (interrupted(f)) ok = false;
    f->active = mask;
    ok = ok && frame_run(f, pc + 1, o->end);
    if (ok) set_carries(f, pc, o->end, mask);
  }
  f->depth--;
  f->active = outer;
  return ok;
}

static bool run_vec(bvm_frame *f, const bvm_op *o, uint32_t pc) {
  int64_t from = f->idx[o->in->a], to = f->idx[o->in->b], count = to - from;
  bool ok = true, many = (o->flags & OP_MANY) != 0;
  for (int64_t k = 0; k < count && ok; k += f->block) {
    f->o = k;
    f->i0 = from + k;
    f->n = count - k < f->block ? count - k : f->block;
    if (many) bvm_acc_vec_block(f, pc, o->end, k == 0);
    ok = frame_run(f, pc + 1, o->end);
    if ((k & 0xfffff) == 0 && k && interrupted(f)) ok = false;
  }
  f->n = 1;
  f->o = 0;
  return ok;
}

bool frame_run(bvm_frame *f, uint32_t pc, uint32_t end) {
  const bvm_op *ops = f->code->ops;
  for (; pc < end; pc++) {
    const bvm_op *o = &ops[pc];
    const l_instr *i = o->in;
    int64_t *idx = f->idx;
    switch ((l_code)o->code) {
    case L_PARAM: idx[o->at] = f->args->ints[i->imm]; break;
    case L_VAR: idx[o->at] = idx[i->a]; break;
    case L_IADD: idx[o->at] = (int64_t)((uint64_t)idx[i->a] + (uint64_t)idx[i->b]); break;
    case L_ISUB: idx[o->at] = (int64_t)((uint64_t)idx[i->a] - (uint64_t)idx[i->b]); break;
    case L_IMUL: idx[o->at] = (int64_t)((uint64_t)idx[i->a] * (uint64_t)idx[i->b]); break;
    case L_IDIV: /* these are rare */
    case L_IMOD:
    case L_IMIN:
    case L_IMAX: idx[o->at] = l_index_value((l_code)o->code, idx[i->a], idx[i->b]); break;
    case L_IVALUE: idx[o->at] = as_index(f, i->a); break;
    case L_SCALAR:
      if (dtype_is_bool(i->dtype))
        *(uint8_t *)f->val[o->at] = f->args->scalars[i->imm].i != 0;
      else
        memcpy(f->val[o->at], &f->args->scalars[i->imm], 8);
      break;
    case L_FAILED: *(uint8_t *)f->val[o->at] = f->failure.error != ~(uint64_t)0; break;
    case L_IOTA: {
      int64_t step = i->b && (o->flags & OP_VECTOR) ? idx[i->b] : 0;
      int64_t first = (int64_t)((uint64_t)idx[i->a] + (uint64_t)step * (uint64_t)f->o);
      o->fn(f->val[o->at], &first, &step, NULL, 0, o->flags & OP_ONCE ? 1 : f->n);
      break;
    }
    case L_KOP:
    case L_MATH: compute(f, o); break;
    case L_LOAD: load(f, o); break;
    case L_STORE: store(f, o); break;
    case L_RMW: update(f, o); break;
    case L_ACC: bvm_acc_reset(f, o); break;
    case L_PUSH: bvm_acc_push(f, o); break;
    case L_SCAN: bvm_acc_scan(f, o); break;
    case L_PARTIAL: bvm_acc_partial(f, o); break;
    case L_MERGE: bvm_acc_merge(f, o); break;
    case L_FINISH: bvm_acc_finish(f, o); break;
    case L_TILE: tile(f, o); break;
    case L_FOR:
      if (!run_for(f, o, pc)) return false;
      pc = o->end;
      break;
    case L_VEC:
      if (!run_vec(f, o, pc)) return false;
      pc = o->end;
      break;
    case L_WHILE:
      if (!run_while(f, o, pc)) return false;
      pc = o->end;
      break;
    case L_IF: {
      bool yes =
          l_rows[f->code->p->code[i->a].code].result == 'I' ? idx[i->a] != 0 : *(const uint8_t *)f->val[i->a] != 0;
      /* the first arm follows; `end` is the ELSE, behind which the other arm stands, or the END */
      if (!yes) pc = o->end;
      break;
    }
    case L_ELSE: pc = o->end; break;
    case L_CARRY: carry(f, o); break;
    case L_SET: f->uni[o->at] = 1; break;
    case L_CHECK: check(f, o); break;
    case L_POLL:
      if (interrupted(f)) return false;
      break;
    default: break; /* LOCAL, END: nothing to do here */
    }
  }
  return true;
}

bool bvm_phase_run(bvm_frame *f, const bvm_phase *ph, int64_t lo, int64_t hi) {
  const bvm_op *par = &f->code->ops[ph->par];
  if (ph->nplaces) (void)place(f, ph);
  for (int64_t i = lo; i < hi; i++) {
    f->idx[par->at] = i;
    if (!frame_run(f, ph->par + 1, ph->end)) return false;
  }
  return true;
}
