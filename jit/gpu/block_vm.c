/* Translation of L programs for the block VM, and its launches (block_vm.h).
 *
 * A program is translated once for a VM's stream, a phase at a time. A launch hands over words: the first values of the phase's cells
 * (constants, ints, host scalars, index values that are known at launch, addresses), then its instructions. A cell whose value the
 * device computes has no first value.
 *
 *   cells      0 is the instance; one for every index value and uniform value of the phase; constants are shared
 *   places     memory of accumulators and locals; their addresses are cells. What is small and of constant size lies in shared
 *              memory, the rest in the block's piece of scratch
 *   registers  of vector values, by linear scan over the VEC. A register keeps its element size for good: its elements are one
 *              thread's each, whatever values it holds, so that no barrier is needed between them
 *
 * Where a loop goes back there are barriers around the cells that change (block_vm.cu). Of a loop in a VEC that is only its variable: its
 * carries are registers. Pushes to many results become loads, functions and stores.
 *
 * Programs that are not translated: those with more registers or cells than shared memory has room for. */
#include <stdlib.h>
#include <string.h>

#include "jit/gpu/block_vm.h"
#include "jit/kernel/emit.h"
#include "jit/kernel/emit_text.h"
#include "jit/kernel/launch.h"

enum {
  VM_SHARED_MOST = 44 << 10, /* bytes of shared memory that a phase may need, */
  VM_SHARED_GOOD = 12 << 10, /* and with which enough blocks run on a multiprocessor at a time */
  VM_SMALL = 1024,           /* bytes of a place that may lie in shared memory, */
  VM_SMALL_ALL = 4096,       /* and of all these */
};

/* Where a cell's first value comes from; CELL_RUNS: the device computes it. */
typedef enum cell_kind { CELL_RUNS, CELL_NUMBER, CELL_INT, CELL_SCALAR, CELL_LAUNCH, CELL_BUFFER } cell_kind;
typedef struct block_cell {
  uint8_t kind, dtype;
  int64_t
      value; /* by kind: the number itself; which int, scalar or buffer; the instruction whose launch-time value it is */
} block_cell;

/* Memory for count * each elements, whose address is a cell. `count` is a launch-time value; 0: one. With `levels` it is for so many elements
 * on each level of a tree over at most `atmost` pushes (0: unknown), `chain` of which make a leaf. */
typedef struct block_place {
  uint16_t cell;
  uint8_t size;
  bool levels;
  l_val count, atmost;
  int64_t each, chain;
} block_place;

typedef struct block_phase {
  l_val instances;
  uint64_t *code; /* two words an instruction, then descriptions */
  uint32_t ncode, cap, descriptions;
  block_cell *cells;
  uint32_t ncells, cells_cap;
  block_place
      *places; /* their cells: first .. shared - 1 of those in scratch, shared .. last - 1 of those in shared memory */
  uint32_t nplaces, places_cap;
  uint32_t words; /* of instructions and descriptions */
  uint32_t regs;  /* bytes of registers */
  uint16_t first, shared, last;
} block_phase;

typedef struct block_program {
  bool able; /* there is room for it in shared memory */
  block_vm_class class;
  int strips;
  size_t shared; /* bytes of shared memory that a phase needs at most */
  uint32_t nphases;
  block_phase *phases;
} block_program;

/* ---- translation: cells, instructions ---------------------------------------------------------------------------------------- */

typedef struct translator {
  const l_program *p;
  emitter facts;
  block_phase *ph;
  uint16_t *where;  /* per instruction: the cell or register of its value */
  uint16_t *acc;    /* per ACC: the number of its description */
  l_val *last;      /* per instruction: the last that uses it, in the open VEC */
  uint8_t *uniform; /* per instruction: its value is a cell, not a register */
  uint16_t *descriptions;
  uint32_t ndescriptions, descriptions_cap;
  uint16_t idle[4][256]; /* registers that can be taken, by size class */
  uint32_t nidle[4];
  int strips;
  bool failed, large; /* out of memory; more than there is room for */
  l_val vec;
  int loops;          /* that are open in the VEC */
  block_vm_acc *accs; /* per ACC */
  uint32_t small;     /* bytes of small places so far */
  bool shared_pass;   /* see `place` */
} translator;

static bool grow(translator *t, void **array, uint32_t n, uint32_t *cap, size_t size) {
  if (n < *cap) return true;
  uint32_t more = *cap ? 2 * *cap : 64;
  void *larger = realloc(*array, more * size);
  if (!larger) {
    t->failed = true;
    return false;
  }
  *array = larger;
  *cap = more;
  return true;
}

static uint16_t new_cell(translator *t, block_cell c) {
  block_phase *ph = t->ph;
  if (ph->ncells >= 4000) t->large = true;
  if (t->large || !grow(t, (void **)&ph->cells, ph->ncells, &ph->cells_cap, sizeof *ph->cells)) return 0;
  ph->cells[ph->ncells] = c;
  return (uint16_t)ph->ncells++;
}

/* The cell of a value that is known at launch. */
static uint16_t known(translator *t, cell_kind kind, uint8_t dtype, int64_t value) {
  for (uint32_t i = 0; i < t->ph->ncells; i++) {
    const block_cell *c = &t->ph->cells[i];
    if (c->kind == kind && c->value == value && (kind != CELL_SCALAR || c->dtype == dtype)) return (uint16_t)i;
  }
  return new_cell(t, (block_cell){(uint8_t)kind, dtype, value});
}
static uint16_t number(translator *t, int64_t value) { return known(t, CELL_NUMBER, 0, value); }
static uint16_t changing(translator *t) { return new_cell(t, (block_cell){CELL_RUNS, 0, 0}); }

/* The seven operands of an instruction, in the order in which they are given to ADD. */
enum { D, A, B, C, E, F, G, OPERANDS };

/* Adds an instruction. Returns its position. */
static uint32_t add(translator *t, uint32_t op, const uint16_t o[OPERANDS]) {
  block_phase *ph = t->ph;
  if (ph->ncode >= 30000) t->large = true;
  if (t->large || !grow(t, (void **)&ph->code, 2 * ph->ncode + 1, &ph->cap, sizeof *ph->code)) return 0;
  ph->code[2 * ph->ncode] = op | (uint64_t)o[D] << 16 | (uint64_t)o[A] << 32 | (uint64_t)o[B] << 48;
  ph->code[2 * ph->ncode + 1] = o[C] | (uint64_t)o[E] << 16 | (uint64_t)o[F] << 32 | (uint64_t)o[G] << 48;
  return ph->ncode++;
}
#define ADD(op, ...) add(t, op, (const uint16_t[OPERANDS]){__VA_ARGS__})

/* Makes instruction `at`, whose operand a, b or c is the target of a jump, jump to what is added next. */
static void aim(translator *t, uint32_t at, char operand) {
  if (t->large || t->failed) return;
  uint64_t to = t->ph->ncode, *w = t->ph->code + 2 * (size_t)at;
  if (operand == 'a')
    w[0] = (w[0] & ~(0xffffull << 32)) | to << 32;
  else if (operand == 'b')
    w[0] = (w[0] & ~(0xffffull << 48)) | to << 48;
  else
    w[1] = (w[1] & ~0xffffull) | to;
}

/* Adds n fields to the descriptions (of accumulators and tiles) behind the phase's code. Returns the number of the first. */
static uint16_t describe(translator *t, const uint16_t *fields, size_t n) {
  while (t->ndescriptions + n + 1 > t->descriptions_cap)
    if (!grow(t, (void **)&t->descriptions, t->descriptions_cap, &t->descriptions_cap, sizeof *t->descriptions))
      return 0;
  uint16_t at = (uint16_t)t->ndescriptions;
  memcpy(t->descriptions + at, fields, n * sizeof *fields);
  t->ndescriptions += (uint32_t)n;
  if (t->ndescriptions > 30000) t->large = true;
  return at;
}

static const l_instr *instr(const translator *t, l_val v) { return &t->p->code[v]; }
static uint8_t size_of(uint8_t dtype) { return (uint8_t)dtype_rows[dtype].size; }
static int size_class(uint8_t dtype) { return __builtin_ctz(size_of(dtype)); }

/* Bytes of a place that is small and of constant size, so that it may lie in shared memory; else 0. */
static uint32_t small_place(const block_place *pl) {
  uint64_t bytes = pl->count || pl->levels ? 0 : (uint64_t)pl->each * pl->size;
  return bytes <= VM_SMALL ? (uint32_t)((bytes + 63) & ~63ull) : 0;
}

/* Gives a place its cell. Each place is declared twice: the first pass takes those in scratch, the second (shared_pass) those in shared
 * memory. */
static void place(translator *t, uint16_t *cell, block_place pl) {
  block_phase *ph = t->ph;
  uint32_t small = small_place(&pl);
  if (t->small + small > VM_SMALL_ALL) small = 0;
  t->small += small;
  if ((small != 0) != t->shared_pass ||
      !grow(t, (void **)&ph->places, ph->nplaces, &ph->places_cap, sizeof *ph->places))
    return;
  pl.cell = *cell = changing(t);
  ph->places[ph->nplaces++] = pl;
}

/* ---- registers ----------------------------------------------------------------------------------------------------------------- */

static uint16_t take_register(translator *t, int size) {
  if (t->nidle[size]) return t->idle[size][--t->nidle[size]];
  uint32_t at = t->ph->regs, bytes = (uint32_t)(GPU_THREADS * t->strips) << size;
  if (at + bytes > VM_SHARED_MOST) {
    t->large = true;
    return VM_VECTOR;
  }
  t->ph->regs += bytes;
  return (uint16_t)(VM_VECTOR | at >> 6);
}

static void give_register(translator *t, uint16_t r, int size) {
  if (t->nidle[size] < 256) t->idle[size][t->nidle[size]++] = r;
}

/* Gives back the registers of values that nobody uses after instruction v. */
static void give_registers(translator *t, l_val v) {
  for (l_val k = t->vec + 1; k <= v; k++)
    if (t->last[k] == v && t->where[k] & VM_VECTOR && l_rows[instr(t, k)->code].result == 'V') {
      give_register(t, t->where[k], size_class(instr(t, k)->dtype));
      t->last[k] = 0;
    }
}

/* ---- values -------------------------------------------------------------------------------------------------------------------- */

/* Where instruction v's value goes. */
static uint16_t result(translator *t, l_val v, bool uniform) {
  return t->where[v] = uniform ? changing(t) : take_register(t, size_class(instr(t, v)->dtype));
}

static uint16_t at(const translator *t, l_val v) { return t->where[v]; }
/* The operand of value v, or of 0 if there is none. */
static uint16_t or_zero(translator *t, l_val v) { return v ? t->where[v] : number(t, 0); }

static uint16_t buffer(translator *t, int64_t b) { return b < 0 ? t->where[-b] : known(t, CELL_BUFFER, 0, b); }

static void kop(translator *t, l_val v) {
  const l_instr *i = instr(t, v);
  uint16_t d = result(t, v, t->uniform[v]), a = at(t, i->a), b = at(t, i->b), c = at(t, i->c);
  uint8_t from = instr(t, i->a)->dtype;
  uint32_t size = (uint32_t)size_class(i->dtype);
  if (i->code == L_MATH)
    ADD(vm_number(VM_MATHS, i->sub, math_rows[i->sub].kind == MATH_IS_WORD ? i->dtype : i->type2), d, a, b);
  else if (i->sub == KOP_select)
    ADD(VM_SELECT1 + size, d, a, b, c);
  else if (i->sub == KOP_copy || i->sub == KOP_bitcast || (i->sub == KOP_cast && from == i->dtype))
    ADD(VM_MOVE1 + size, d, a);
  else if (i->sub == KOP_cast)
    ADD(vm_number(VM_CASTS, i->dtype, from), d, a);
  else
    ADD(vm_number(VM_PRIMS, i->sub, i->type2), d, a, b, c);
}

/* The guard of the memory access that follows, if it has one. */
static void guard(translator *t, const l_instr *i) {
  if (!i->e && !i->f && !i->g) return;
  ADD(VM_GUARD, [A] = i->e ? at(t, i->e) : number(t, INT64_MIN), [B] = i->f ? at(t, i->f) : number(t, INT64_MAX),
      [C] = i->g ? at(t, i->g) : number(t, 1));
}

static void load(translator *t, l_val v) {
  const l_instr *i = instr(t, v);
  guard(t, i);
  uint16_t d = result(t, v, t->uniform[v]);
  ADD((i->c ? VM_GATHER1 : VM_LOAD1) + (uint32_t)size_class(i->dtype), d, buffer(t, i->imm), at(t, i->a),
      or_zero(t, i->b), or_zero(t, i->h), or_zero(t, i->c), or_zero(t, i->d));
}

static void store(translator *t, const l_instr *i) {
  uint32_t size = (uint32_t)size_class(instr(t, i->h)->dtype);
  uint16_t o[OPERANDS] = {at(t, i->h), buffer(t, i->imm), at(t, i->a),     or_zero(t, i->b),
                          0,           or_zero(t, i->c),  or_zero(t, i->d)};
  guard(t, i);
  if (i->code == L_RMW) {
    o[E] = vm_number(VM_PRIMS, i->sub, instr(t, i->h)->dtype);
    add(t, !t->vec || emit_is_ordered(&t->facts, i) ? VM_UPDATE : VM_UPDATES, o);
  } else {
    add(t, (!t->vec || emit_is_ordered(&t->facts, i) ? VM_SCATTER1 : VM_STORE1) + size, o);
  }
}

/* ---- accumulators ---------------------------------------------------------------------------------------------------------------- */

/* Declares the memory of a LOCAL or an ACC. */
static void declare_places(translator *t, l_val v) {
  const l_instr *a = instr(t, v);
  block_vm_acc *q = &t->accs[v];
  uint8_t size = size_of(a->dtype);
  if (a->code == L_LOCAL) {
    const l_instr *n = instr(t, a->a);
    block_place pl = {.size = size, .count = a->a, .each = 1};
    if (n->code == L_INT) pl = (block_place){.size = size, .each = n->imm};
    place(t, &t->where[v], pl);
    return;
  }
  bool many = acc_many(a), lanes = acc_lanes(&t->facts, v);
  int64_t width = lanes ? ORDER_LANES : 1;
  place(t, &q->cells, (block_place){.size = size, .count = a->a, .each = acc_rows(a) ? ORDER_LANES : width});
  if (acc_arg(a)) place(t, &q->index, (block_place){.size = 8, .count = a->a, .each = width});
  if (acc_tree(a))
    place(t, &q->tree,
          (block_place){.size = size,
                        .levels = true,
                        .count = a->a,
                        .atmost = a->b,
                        .each = width,
                        .chain = t->facts.acc[v] & ACC_MERGED ? 1 : acc_chain(a)});
  if (!(t->facts.acc[v] & ACC_SCANNED)) return;
  uint16_t *const states[] = {&q->c, &q->g, &q->b, &q->p};
  for (int k = 0; k < 4; k++) place(t, states[k], (block_place){.size = size, .count = a->a, .each = 1});
  if (many && acc_scan_order(a) == ORDER_INNER)
    place(t, &q->h, (block_place){.size = size, .count = a->a, .each = 6 * ORDER_LANES});
}

static void describe_acc(translator *t, l_val v) {
  const l_instr *a = instr(t, v);
  block_vm_acc *q = &t->accs[v];
  bool many = acc_many(a);
  q->fold = vm_number(VM_PRIMS, a->sub, a->dtype);
  q->size = size_of(a->dtype);
  q->chain = (uint16_t)(t->facts.acc[v] & ACC_MERGED ? 1 : acc_chain(a));
  q->order = (uint16_t)acc_scan_order(a);
  q->k = changing(t);
  q->done = changing(t);
  q->results = many ? at(t, a->a) : number(t, 1);
  q->flags = (uint16_t)((many ? VMF_MANY : 0) | (acc_arg(a) ? VMF_ARG : 0) | (acc_lanes(&t->facts, v) ? VMF_LANES : 0) |
                        (acc_tree(a) ? VMF_TREE : 0) | (acc_rows(a) ? VMF_OWN : 0) |
                        (t->facts.acc[v] & ACC_SCANNED ? VMF_SCANNED : 0) | (a->imm == ORDER_DOT ? VMF_DOT : 0) |
                        (a->imm == ORDER_INNER && !many ? VMF_INNER : 0));
  t->acc[v] = describe(t, (const uint16_t *)q, sizeof *q / sizeof(uint16_t));
}

static block_vm_acc acc_of(const translator *t, l_val v) { return t->accs[v]; }

/* Pushes one value to each of many results, by plain instructions where there are such: load, function, store. */
static void push_many(translator *t, const l_instr *push) {
  const l_instr *a = instr(t, push->a);
  block_vm_acc q = acc_of(t, push->a);
  uint16_t from = at(t, instr(t, t->vec)->a), one = number(t, 1);
  uint32_t size = (uint32_t)size_class(a->dtype);
  if (acc_arg(a)) {
    ADD(VM_ARGS, t->acc[push->a], at(t, push->b), push->c ? at(t, push->c) : q.k);
  } else if (acc_rows(a)) {
    ADD(VM_ROWS, t->acc[push->a], at(t, push->b));
  } else {
    uint16_t r = take_register(t, (int)size), x = push->d ? take_register(t, (int)size) : 0;
    ADD(VM_LOAD1 + size, r, q.cells, from, one, number(t, 0));
    if (!push->d) {
      ADD(vm_number(VM_PRIMS, a->sub, a->dtype), r, r, at(t, push->b));
    } else if (dtype_is_float((qn_dtype)a->dtype)) {
      ADD(vm_number(VM_PRIMS, KOP_fma, a->dtype), r, at(t, push->b), at(t, push->d), r);
    } else {
      ADD(vm_number(VM_PRIMS, KOP_mul, a->dtype), x, at(t, push->b), at(t, push->d));
      ADD(vm_number(VM_PRIMS, a->sub, a->dtype), r, r, x);
    }
    ADD(VM_STORE1 + size, r, q.cells, from, one);
    give_register(t, r, (int)size);
    if (x) give_register(t, x, (int)size);
  }
}

/* A push in a VEC. It is counted later: by `pushed`, or at the end of the VEC. */
static void push_elements(translator *t, const l_instr *push) {
  const l_instr *a = instr(t, push->a);
  block_vm_acc q = acc_of(t, push->a);
  uint16_t d = t->acc[push->a], x = at(t, push->b);
  if (t->loops && !acc_many(a)) t->large = true; /* nothing makes such pushes */
  if (acc_many(a))
    push_many(t, push);
  else if (acc_arg(a))
    ADD(VM_ARG, d, x, push->c ? at(t, push->c) : q.k);
  else if (push->d)
    ADD(vm_number(VM_DOTTED, 0, a->dtype), d, x, at(t, push->d));
  else
    ADD(vm_number(acc_lanes(&t->facts, push->a) ? VM_LANED : VM_CHAINED, a->sub, a->dtype), d, x);
}

/* What follows the push of one k to the results of a pass: full chains become leaves; a push in a loop is counted. */
static void pushed(translator *t, const l_instr *push) {
  const l_instr *a = instr(t, push->a);
  bool counts = push->code == L_PUSH || (t->facts.acc[push->a] & ACC_FINISHED);
  if (!acc_many(a)) return;
  if (counts && acc_tree(a)) ADD(VM_LEAF, t->acc[push->a]);
  if (emit_is_nested_push(&t->facts, push)) ADD(VM_COUNT, acc_of(t, push->a).k, number(t, 1));
}

static void scan(translator *t, l_val v) {
  const l_instr *i = instr(t, v);
  uint16_t d = result(t, v, false);
  if (t->facts.acc[i->a] & ACC_FINISHED) push_elements(t, &(l_instr){.code = L_PUSH, .a = i->a, .b = i->b});
  ADD(acc_many(instr(t, i->a)) ? VM_SCANS : VM_SCAN, d, t->acc[i->a], at(t, i->b), (i->flags & L_EXCLUSIVE) != 0);
  pushed(t, i);
}

/* ---- structures -------------------------------------------------------------------------------------------------------------------- */

static void block(translator *t, l_val from, l_val to);

/* The SETs of a loop, at the end of its turn. All new values are read before any carry changes, since one may be another carry. */
static void sets(translator *t, l_val loop) {
  const l_instr *list[64];
  uint16_t kept[64];
  uint32_t n = 0;
  bool swaps = false;
  for (l_val v = loop + 1; v < t->facts.end[loop]; v++) {
    const l_instr *i = instr(t, v);
    if (l_opens(i->code)) v = t->facts.end[v];
    if (i->code != L_SET) continue;
    swaps |= instr(t, i->b)->code == L_CARRY;
    if (n == 64) {
      t->large = true;
      return;
    }
    list[n++] = i;
  }
  for (uint32_t k = 0; k < n; k++) {
    uint32_t size = (uint32_t)size_class(instr(t, list[k]->a)->dtype);
    kept[k] = at(t, list[k]->b);
    if (!swaps) continue;
    kept[k] = t->vec ? take_register(t, (int)size) : changing(t);
    ADD(t->vec ? VM_MOVE1 + size : VM_COPY, kept[k], at(t, list[k]->b));
  }
  for (uint32_t k = 0; k < n; k++) {
    uint32_t size = (uint32_t)size_class(instr(t, list[k]->a)->dtype);
    ADD(t->vec ? VM_KEEP1 + size : VM_COPY, at(t, list[k]->a), kept[k]);
    if (swaps && t->vec) give_register(t, kept[k], (int)size);
  }
}

static void structure(translator *t, l_val v) {
  const l_instr *i = instr(t, v);
  l_val end = t->facts.end[v];
  t->loops += t->vec != 0;
  if (i->code == L_FOR) {
    uint16_t var = changing(t);
    t->where[v] = var;
    uint32_t head = ADD(VM_FOR, var, at(t, i->a), at(t, i->b));
    uint16_t top = (uint16_t)t->ph->ncode;
    block(t, v + 1, end);
    sets(t, v);
    ADD(VM_NEXT, var, i->c ? at(t, i->c) : number(t, 1), at(t, i->b), top);
    aim(t, head, 'c');
  } else if (i->code == L_WHILE && t->vec) {
    ADD(VM_ENTER, 0);
    uint32_t top = ADD(VM_TEST, [A] = at(t, i->a));
    ADD(VM_POLL, 0);
    block(t, v + 1, end);
    sets(t, v);
    ADD(VM_JUMP, [A] = (uint16_t)top);
    aim(t, top, 'b');
  } else if (i->code == L_WHILE) {
    uint32_t top = ADD(VM_IF1, [A] = at(t, i->a));
    ADD(VM_POLL, 0);
    block(t, v + 1, end);
    ADD(VM_SYNC, 0);
    sets(t, v);
    ADD(VM_JUMP, [A] = (uint16_t)top);
    aim(t, top, 'b');
  } else { /* IF */
    l_val other = 0;
    for (l_val k = v + 1; k < end; k++) {
      if (l_opens(instr(t, k)->code)) k = t->facts.end[k];
      if (instr(t, k)->code == L_ELSE) other = k;
    }
    uint32_t head = ADD(l_rows[instr(t, i->a)->code].result == 'I' ? VM_IF8 : VM_IF1, [A] = at(t, i->a));
    block(t, v + 1, other ? other : end);
    if (other) {
      uint32_t over = ADD(VM_JUMP, 0);
      aim(t, head, 'b');
      block(t, other + 1, end);
      aim(t, over, 'a');
    } else {
      aim(t, head, 'b');
    }
  }
  t->loops -= t->vec != 0;
}

static void vec(translator *t, l_val v) {
  const l_instr *i = instr(t, v);
  l_val end = t->facts.end[v];
  uint16_t kept[16];
  uint32_t nkept = 0;
  (void)vec_last_uses(t->p, v, t->last);
  for (l_val k = v + 1; k < end; k++) {
    const l_instr *b = instr(t, k);
    if (b->code == L_FINISH && !emit_is_inner_finish(&t->facts, v, b) && emit_is_first(&t->facts, v, k))
      ADD(VM_ROOT, t->acc[b->a]);
    if (!emit_is_nested_push(&t->facts, b) || !emit_is_first(&t->facts, v, k)) continue;
    if (nkept == 16) {
      t->large = true;
      return;
    }
    kept[nkept] = changing(t); /* every pass begins with the counts with which the VEC began */
    ADD(VM_COPY, kept[nkept++], acc_of(t, b->a).k);
  }
  uint32_t head = ADD(VM_VEC, [A] = at(t, i->a), [B] = at(t, i->b));
  uint16_t top = (uint16_t)t->ph->ncode;
  t->vec = v;
  memset(t->nidle, 0, sizeof t->nidle);
  uint32_t before = t->ph->regs;
  t->ph->regs = 0; /* each VEC has registers of its own, all at the same place */
  nkept = 0;
  for (l_val k = v + 1; k < end; k++)
    if (emit_is_nested_push(&t->facts, instr(t, k)) && emit_is_first(&t->facts, v, k))
      ADD(VM_COPY, acc_of(t, instr(t, k)->a).k, kept[nkept++]);
  block(t, v + 1, end);
  ADD(VM_PASS, [A] = top);
  t->vec = 0;
  if (t->ph->regs < before) t->ph->regs = before;
  for (l_val k = v + 1; k < end; k++) {
    const l_instr *b = instr(t, k);
    if (b->code != L_PUSH && b->code != L_SCAN) continue;
    if (!acc_many(instr(t, b->a)) && emit_is_first(&t->facts, v, k))
      ADD(VM_COUNTN, acc_of(t, b->a).k);
    else if (acc_many(instr(t, b->a)) && !emit_is_nested_push(&t->facts, b))
      ADD(VM_COUNT, acc_of(t, b->a).k, number(t, 1));
  }
  aim(t, head, 'c');
}

static void tile(translator *t, const l_tile *l) {
  block_vm_tile q = {.x = buffer(t, l->x),
                     .x_base = at(t, l->x_base),
                     .x_m = at(t, l->x_m),
                     .x_k = at(t, l->x_k),
                     .y = buffer(t, l->y),
                     .y_base = at(t, l->y_base),
                     .y_k = at(t, l->y_k),
                     .y_n = at(t, l->y_n),
                     .rows = at(t, l->rows),
                     .cols = at(t, l->cols),
                     .depth = at(t, l->depth),
                     .out = at(t, l->out),
                     .width = number(t, l->tile_cols)};
  uint8_t dtype = l->x < 0 ? instr(t, (l_val)-l->x)->dtype : t->p->buffers[l->x].dtype;
  ADD(vm_number(VM_TILED, 0, dtype), describe(t, (const uint16_t *)&q, sizeof q / sizeof(uint16_t)));
}

/* PARTIAL and MERGE: an accumulator's state to or from a buffer. The interpreter puts barriers around it. */
static void partial(translator *t, const l_instr *i) {
  bool arg = i->d != 0;
  ADD(i->code == L_MERGE ? VM_MERGE : VM_PARTIAL, t->acc[i->a], buffer(t, i->imm), at(t, i->b),
      arg ? buffer(t, i->imm2) : number(t, 0), arg ? at(t, i->d) : number(t, 0));
}

static void one(translator *t, l_val v) {
  const l_instr *i = instr(t, v);
  t->uniform[v] = !t->vec || vec_is_uniform(i, t->uniform);
  switch ((l_code)i->code) {
  case L_INT: t->where[v] = number(t, i->imm); break;
  case L_PARAM: t->where[v] = known(t, CELL_INT, 0, i->imm); break;
  case L_CONST: t->where[v] = number(t, i->imm); break;
  case L_SCALAR: t->where[v] = known(t, CELL_SCALAR, i->dtype, i->imm); break;
  case L_VAR: t->where[v] = t->where[i->a]; break;
  case L_IADD:
  case L_ISUB:
  case L_IMUL:
  case L_IDIV:
  case L_IMOD:
  case L_IMIN:
  case L_IMAX: {
    uint16_t a = at(t, i->a), b = at(t, i->b);
    t->where[v] = changing(t);
    ADD(VM_IADD + (uint32_t)(i->code - L_IADD), t->where[v], a, b);
    break;
  }
  case L_IVALUE: {
    uint8_t from = instr(t, i->a)->dtype;
    t->where[v] = changing(t);
    ADD(dtype_size(from) == 8 && !dtype_is_float(from) ? VM_MOVE8 : vm_number(VM_CASTS, DTYPE_INDEX, from), t->where[v],
        at(t, i->a));
    break;
  }
  case L_IOTA: {
    uint16_t d = result(t, v, t->uniform[v]);
    ADD(dtype_is_bool(i->dtype) ? VM_IOTAB : VM_IOTA1 + (uint32_t)size_class(i->dtype), d, at(t, i->a),
        t->vec ? or_zero(t, i->b) : number(t, 0));
    break;
  }
  case L_KOP:
  case L_MATH: kop(t, v); break;
  case L_LOAD: load(t, v); break;
  case L_STORE:
  case L_RMW: store(t, i); break;
  case L_ACC: ADD(VM_ACC, t->acc[v]); break;
  case L_PUSH:
    if (t->vec) {
      push_elements(t, i);
      pushed(t, i);
    } else {
      block_vm_acc q = acc_of(t, i->a);
      ADD(VM_PUSH, t->acc[i->a], at(t, i->b), i->c ? at(t, i->c) : q.k, i->d ? at(t, i->d) : number(t, 0));
      ADD(VM_COUNT, q.k, number(t, 1));
    }
    break;
  case L_SCAN: scan(t, v); break;
  case L_FINISH:
    if (t->vec) {
      block_vm_acc q = acc_of(t, i->a);
      if (emit_is_inner_finish(&t->facts, t->vec, i) && emit_is_first(&t->facts, t->vec, v))
        ADD(VM_ROOTS, t->acc[i->a]);
      uint16_t d = result(t, v, false);
      ADD(VM_LOAD1 + (uint32_t)size_class(i->dtype), d, acc_arg(instr(t, i->a)) ? q.index : q.cells,
          at(t, instr(t, t->vec)->a), number(t, 1), number(t, 0));
    } else {
      t->where[v] = changing(t);
      ADD(VM_FINISH, t->where[v], t->acc[i->a]);
    }
    break;
  case L_PARTIAL:
  case L_MERGE: partial(t, i); break;
  case L_TILE: tile(t, &t->p->tiles[i->imm]); break;
  case L_CARRY: {
    uint16_t a = at(t, i->a), d = result(t, v, !t->vec);
    ADD(VM_MOVE1 + (uint32_t)size_class(i->dtype), d, a);
    break;
  }
  case L_CHECK: ADD(VM_CHECK, (uint16_t)i->imm, at(t, i->a), at(t, i->b), or_zero(t, i->c)); break;
  case L_FAILED:
    t->where[v] = changing(t);
    ADD(VM_FAILED, t->where[v]);
    break;
  case L_SYNC: ADD(VM_SYNC, 0); break;
  case L_POLL: ADD(VM_POLL, 0); break;
  default: break; /* LOCAL: declared; SET: at the loop's end */
  }
}

static void block(translator *t, l_val from, l_val to) {
  for (l_val v = from; v < to && !t->large && !t->failed; v++) {
    uint8_t code = instr(t, v)->code;
    l_val made = v;
    if (code == L_VEC)
      vec(t, v), made = t->facts.end[v];
    else if (l_opens(code))
      structure(t, v), made = t->facts.end[v];
    else
      one(t, v);
    v = made;
    if (t->vec) give_registers(t, v);
  }
}

/* ---- phases ---------------------------------------------------------------------------------------------------------------------- */

static bool is_index(uint8_t code) { return code >= L_INT && code <= L_IVALUE; }

/* What stands before the PAR. Index values are known at launch; every instance computes the others. */
static void prelude(translator *t, l_val from, l_val to) {
  for (l_val v = from; v < to; v++) {
    uint8_t code = instr(t, v)->code;
    if (is_index(code) && code != L_INT && code != L_PARAM)
      t->where[v] = known(t, CELL_LAUNCH, 0, v);
    else
      one(t, v);
  }
}

static void phase(translator *t, l_val start) {
  const l_program *p = t->p;
  l_val par = start, first = 1;
  while (instr(t, par)->code != L_PAR) par++;
  while (instr(t, first)->code != L_PHASE) first++;
  l_val end = t->facts.end[par];
  t->ph->instances = instr(t, par)->a;
  t->ndescriptions = 0;
  memset(t->where, 0, p->n * sizeof *t->where);
  memset(t->accs, 0, p->n * sizeof *t->accs);
  changing(t); /* cell 0: the instance */
  t->ph->first = (uint16_t)t->ph->ncells;
  for (int pass = 0; pass < 2; pass++) {
    t->shared_pass = pass == 1;
    t->small = 0;
    if (pass) t->ph->shared = (uint16_t)t->ph->ncells;
    for (l_val v = par + 1; v < end; v++)
      if (instr(t, v)->code == L_LOCAL || instr(t, v)->code == L_ACC) declare_places(t, v);
  }
  t->ph->last = (uint16_t)t->ph->ncells;
  prelude(t, 1, first);
  prelude(t, start + 1, par);
  for (l_val v = par + 1; v < end; v++)
    if (instr(t, v)->code == L_ACC) describe_acc(t, v);
  block(t, par + 1, end);
  ADD(VM_HALT, 0);
  block_phase *ph = t->ph;
  uint32_t words = (t->ndescriptions + 3) / 4;
  while (!t->failed && !t->large && 2 * ph->ncode + words >= ph->cap)
    grow(t, (void **)&ph->code, ph->cap, &ph->cap, sizeof *ph->code);
  if (t->failed || t->large) return;
  ph->descriptions = 8 * ph->ncode;
  if (words) memset(ph->code + 2 * (size_t)ph->ncode, 0, words * sizeof *ph->code);
  if (words) memcpy(ph->code + 2 * (size_t)ph->ncode, t->descriptions, t->ndescriptions * sizeof *t->descriptions);
  ph->words = 2 * ph->ncode + words;
}

static void free_phases(block_program *v) {
  for (uint32_t i = 0; v->phases && i < v->nphases; i++) {
    free(v->phases[i].code);
    free(v->phases[i].cells);
    free(v->phases[i].places);
  }
  free(v->phases);
  v->phases = NULL;
}

/* Bytes of cells and code, the first part of shared memory. Small places follow, then registers. */
static size_t code_bytes(const block_phase *ph) { return (((size_t)ph->ncells + ph->words) * 8 + 63) & ~(size_t)63; }

static size_t shared_bytes(const block_phase *ph) {
  size_t bytes = code_bytes(ph);
  for (uint32_t k = 0; k < ph->nplaces; k++)
    if (ph->places[k].cell >= ph->shared) bytes += small_place(&ph->places[k]);
  return bytes + ph->regs;
}

/* Translates all phases with registers of so many strips of 64 elements. out->able says whether shared memory has room for that. False when
 * the host's memory is short. */
static bool translate(block_program *out, const l_program *p, int strips) {
  translator t = {.p = p, .strips = strips};
  out->strips = strips;
  out->nphases = emit_phases(p);
  out->phases = calloc(out->nphases, sizeof *out->phases);
  bool ok = emit_facts(&t.facts, p) && out->phases;
  arena *memory = &t.facts.memory;
  t.where = arena_alloc(memory, p->n * sizeof *t.where);
  t.acc = arena_alloc(memory, p->n * sizeof *t.acc);
  t.last = arena_alloc(memory, p->n * sizeof *t.last);
  t.accs = arena_alloc(memory, p->n * sizeof *t.accs);
  t.uniform = arena_alloc(memory, p->n);
  ok = ok && !memory->failed;
  if (t.uniform) t.uniform[0] = true;
  size_t most = 0;
  for (l_val v = 1, n = 0; v < p->n && ok; v++) {
    if (p->code[v].code != L_PHASE) continue;
    t.ph = &out->phases[n++];
    phase(&t, v);
    ok = !t.failed && !t.large;
    if (ok && shared_bytes(t.ph) > most) most = shared_bytes(t.ph);
  }
  emit_facts_free(&t.facts);
  free(t.descriptions);
  out->shared = most;
  out->able = ok && most <= VM_SHARED_MOST;
  return ok || t.large;
}

static void program_free(block_program *v) {
  if (v) free_phases(v);
  free(v);
}

static block_program *program_new(const l_program *p) {
  block_program *v = calloc(1, sizeof *v);
  if (!v) return NULL;
  uint32_t dtypes = 0;
  for (l_val k = 1; k < p->n; k++)
    if (l_rows[p->code[k].code].result == 'V' || p->code[k].code == L_ACC || p->code[k].code == L_LOCAL) {
      dtypes |= 1u << p->code[k].dtype;
      if (p->code[k].code == L_KOP || p->code[k].code == L_MATH) dtypes |= 1u << p->code[k].type2;
    }
  for (uint32_t b = 0; b < p->nbuffers; b++) dtypes |= 1u << p->buffers[b].dtype;
  v->class = block_vm_class_of(dtypes);
  bool ok = translate(v, p, 8);
  if (ok && (!v->able || v->shared > VM_SHARED_GOOD)) { /* smaller registers leave room for more blocks at a time */
    free_phases(v);
    ok = translate(v, p, 4);
  }
  if (!v->able) free_phases(v);
  if (ok) return v;
  free(v);
  return NULL;
}

/* ---- a stream's programs --------------------------------------------------------------------------------------------------------- */

/* The program's translation, made when it is first wanted; NULL when memory is short. */
static block_program *program_of(gpu_stream *s, const device_program *p) {
  block_program *v = hash_find(&s->programs, p->hash);
  if (v || !(v = program_new(p->program))) return v;
  if (hash_add(&s->programs, p->hash, v)) return v;
  program_free(v);
  return NULL;
}

void block_vm_close(gpu_stream *s) {
  for (uint32_t i = 0; i < s->programs.cap; i++) program_free(s->programs.slots[i].what);
  hash_free(&s->programs);
}

/* The interpreter's code, which is asked for if nobody has done so. It may still be compiling or have failed. NULL when memory is short. */
static gpu_code *interpreter(qn_vm *vm, gpu_stream *s, block_vm_class class, bool wait) {
  gpu_code *c = gpu_code_find(s->engine, s->number, block_vm_hash(class));
  if (c) return c;
  const uint64_t hash = block_vm_hash(class);
  static const uint32_t functions = 1;
  text_buf text = {0};
  block_vm_text(class, &text);
  gpu_unit u = {.text = text.text,
                .len = text.len,
                .n = 1,
                .hashes = &hash,
                .nfunctions = &functions,
                .cache_bytes = vm->tune[TUNE_cache_bytes],
                .quick = true,
                .here = wait};
  bool ok = !text.failed && gpu_compile(s->engine, s->number, &u);
  text_free(&text);
  return ok ? gpu_code_find(s->engine, s->number, hash) : NULL;
}

bool block_vm_ready(qn_vm *vm, gpu_stream *s, const device_program *p, bool wait) {
  const block_program *v = program_of(s, p);
  gpu_code *c = v && v->able ? interpreter(vm, s, v->class, wait) : NULL;
  if (c && wait) gpu_code_wait(s->engine, c);
  return c && atomic_load_explicit(&c->state, memory_order_acquire) == CODE_READY;
}

/* ---- launching ------------------------------------------------------------------------------------------------------------------- */

static int64_t levels(int64_t n, int64_t chain) {
  int64_t k = 1;
  for (n = (n + chain - 1) / chain; n > 1; n >>= 1) k++;
  return k;
}

static size_t place_bytes(const block_place *pl, const int64_t *values) {
  int64_t n = pl->count ? values[pl->count] : 1;
  if (pl->levels) n *= pl->atmost ? levels(values[pl->atmost], pl->chain) : 48;
  return ((size_t)(n > 0 ? n : 0) * (size_t)pl->each * pl->size + 63) & ~(size_t)63;
}

/* Bytes of scratch that a block needs for a phase. */
static size_t scratch_of_block(const block_phase *ph, const int64_t *values) {
  size_t bytes = 0;
  for (uint32_t k = 0; k < ph->nplaces; k++)
    if (ph->places[k].cell < ph->shared) bytes += place_bytes(&ph->places[k], values);
  return bytes;
}

/* A call of a program: what its cells are made from. */
typedef struct block_call {
  const l_program *p;
  const int64_t *ints, *values; /* the latter at launch time, by instruction */
  const qk_scalar *scalars;
  const uint64_t *buffers;
} block_call;

/* Writes the first values of the phase's cells. */
static void first_cells(const block_call *c, const block_phase *ph, uint64_t *cells) {
  for (uint32_t i = 0; i < ph->ncells; i++) {
    const block_cell *from = &ph->cells[i];
    switch ((cell_kind)from->kind) {
    case CELL_NUMBER: cells[i] = (uint64_t)from->value; break;
    case CELL_INT: cells[i] = (uint64_t)c->ints[from->value]; break;
    case CELL_SCALAR:
      memcpy(&cells[i], &c->scalars[from->value], sizeof cells[i]);
      if (dtype_is_bool(from->dtype)) cells[i] = cells[i] != 0;
      break;
    case CELL_LAUNCH: cells[i] = (uint64_t)c->values[from->value]; break;
    case CELL_BUFFER: cells[i] = c->buffers[from->value]; break;
    default: cells[i] = 0; break;
    }
  }
  size_t scratch = 0, shared = code_bytes(ph);
  for (uint32_t k = 0; k < ph->nplaces; k++) {
    const block_place *pl = &ph->places[k];
    size_t *at = pl->cell >= ph->shared ? &shared : &scratch;
    cells[pl->cell] = *at;
    *at += place_bytes(pl, c->values);
  }
}

enum { HEAD_WORDS = EMIT_WORDS_HEAD + sizeof(block_vm_head) / sizeof(uint64_t) };

/* Launches a phase. Its words are the kernel's parameters if these have room for them, else they are sent. */
static bool run_phase(qn_vm *vm, gpu_stream *s, const block_program *v, const block_phase *ph, const block_call *c,
                      const uint64_t head[EMIT_WORDS_HEAD], unsigned blocks, size_t scratch, gpu_code *code) {
  gpu_words w;
  if (!gpu_words_open(vm, &w, HEAD_WORDS + ph->ncells + ph->words)) return false;
  uint64_t *words = w.all;
  block_vm_head *h = (block_vm_head *)(void *)(words + EMIT_WORDS_HEAD);
  memcpy(words, head, EMIT_WORDS_HEAD * sizeof *words);
  *h = (block_vm_head){.cells = ph->ncells,
                       .words = ph->ncells + ph->words,
                       .strips = v->strips,
                       .regs = (int64_t)(shared_bytes(ph) - ph->regs),
                       .descriptions = ph->descriptions,
                       .first = ph->first,
                       .shared = ph->shared,
                       .last = ph->last,
                       .scratch = (int64_t)scratch};
  first_cells(c, ph, words + HEAD_WORDS);
  memcpy(words + HEAD_WORDS + ph->ncells, ph->code, ph->words * sizeof *words);
  bool ok =
      gpu_words_send(vm, s, &w) && gpu_launch(vm, s, code->functions[0], blocks, GPU_THREADS,
                                              (unsigned)shared_bytes(ph), w.block, c->values[ph->instances], words);
  gpu_words_close(vm, s, &w);
  return ok;
}

/* Launches all phases. The program's scratch buffers lie in the stream's scratch, and behind them the blocks' pieces, which phases share. */
static bool run_phases(qn_vm *vm, gpu_stream *s, const block_program *v, block_call *c, uint64_t *buffers,
                       uint64_t head[EMIT_WORDS_HEAD], gpu_code *code) {
  const l_program *p = c->p;
  size_t pieces = gpu_scratch_buffers(p, c->values, 0, NULL), all = 0;
  for (int pass = 0; pass < 2; pass++) {
    for (uint32_t k = 0; k < v->nphases; k++) {
      const block_phase *ph = &v->phases[k];
      int64_t instances = c->values[ph->instances];
      if (instances <= 0) continue;
      size_t scratch = scratch_of_block(ph, c->values);
      unsigned blocks = gpu_few_blocks(s, scratch, instances);
      if (pieces + scratch * blocks > all) all = pieces + scratch * blocks;
      if (pass && !run_phase(vm, s, v, ph, c, head, blocks, scratch, code)) return false;
    }
    if (pass || !all) continue;
    if (!gpu_scratch(vm, s, all)) return false;
    head[0] = s->scratch + pieces;
    (void)gpu_scratch_buffers(p, c->values, s->scratch, buffers);
  }
  return true;
}

device_answer block_vm_run(qn_vm *vm, gpu_stream *s, const device_program *program, void *const *buffers,
                           const int64_t *ints, const qk_scalar *scalars, int64_t *values, bool checks,
                           uint64_t first_check) {
  const l_program *p = program->program;
  const block_program *v = program_of(s, program);
  gpu_code *code = v ? gpu_code_find(s->engine, s->number, block_vm_hash(v->class)) : NULL;
  if (!v) {
    raise_memory(vm);
    return DEVICE_FAILS;
  }
  if (!v->able || !code) return DEVICE_REFUSES;
  uint64_t *addresses = (uint64_t *)(values + p->n), head[EMIT_WORDS_HEAD] = {0};
  block_call c = {p, ints, values, scalars, addresses};
  head[1] = checks ? s->cell : 0;
  head[2] = checks ? s->mapped_there + offsetof(gpu_mapped, stop) : 0;
  head[3] = first_check;
  for (uint32_t b = 0; b < p->nbuffers; b++)
    addresses[b] = p->buffers[b].mode != BUF_SCRATCH ? (uint64_t)(uintptr_t)*buffers++ : 0;
  bool ok = run_phases(vm, s, v, &c, addresses, head, code);
  gpu_scratch_leave(s);
  return ok ? DEVICE_DONE : DEVICE_FAILS;
}
