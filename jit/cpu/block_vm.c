/* Translation for the block VM (block_vm.h): an L program becomes a list of decoded instructions, once.
 *
 * A value is known by the number of the instruction that makes it. Outside VECs it lives in the frame's table `uni`. In a VEC it lives
 * in a register, memory for vm.block elements, which is shared by values that are not needed at the same time (linear scan). Copies
 * are avoided in three ways:
 *   - a load with stride 1 gives a pointer into the buffer, unless that memory may be written while the value is needed
 *   - a value that is stored with stride 1 is computed at its destination, if nothing in between could see the difference
 *   - a value that is the same for all elements of a VEC is one element, computed once a block
 */
#include "jit/cpu/block_vm.h"

#include "jit/kernel/launch.h"
#include "jit/run/code.h"

typedef struct translator {
  vmcode *c;
  const l_program *p;
  l_val *last;   /* of a VEC, per instruction: the last that needs its value (vec_last_uses) */
  uint32_t *pos; /* per instruction: its position in ops */
  uint32_t *free_regs;
  uint32_t nfree;
  uint8_t *reg_size; /* per register: bytes of the elements that it holds at the moment */
} translator;

void bvm_code_free(void *code) {
  if (!code) return;
  arena memory = ((vmcode *)code)->memory;
  arena_free(&memory);
}

bvm_fn bvm_loop_of(const bvm_loops *l, const l_program *p, const l_instr *i) {
  if (i->code == L_MATH) return l->math[i->sub][math_rows[i->sub].kind == MATH_IS_WORD ? i->dtype : i->type2];
  uint8_t from = p->code[i->a].dtype;
  if (i->sub == KOP_cast) return from != i->dtype ? l->cast[from][i->dtype] : l->kop[KOP_copy][from];
  return l->kop[i->sub][i->type2];
}

/* ---- loads and stores without a copy ---- */

static bool writes(uint8_t code) { return code == L_STORE || code == L_RMW; }

/* May the LOAD at position `at` give a pointer into the buffer? Only if nothing is stored between it and the last use of its value; the
 * last use itself may be a store. */
static bool may_alias(const translator *t, uint32_t at) {
  const l_instr *load = t->c->ops[at].in;
  if (load->c || load->e || load->f || load->g) return false;
  l_val last = t->last[t->c->ops[at].at];
  for (uint32_t k = at + 1; t->c->ops[k].at < last; k++)
    if (writes(t->c->ops[k].code) || t->c->ops[k].dest) return false;
  /* in a loop of the VEC the store at its end comes before the next use */
  return t->p->code[last].code != L_END;
}

/* Tells the instruction that makes the value of the STORE at position `at` to write it to the destination itself (bvm_op.dest), if nothing
 * in between could see the difference. `vec`: the position of the VEC. */
static void find_destination(translator *t, uint32_t vec, uint32_t at) {
  vmcode *c = t->c;
  const l_instr *store = c->ops[at].in;
  l_val v = store->h;
  if (!store->b || store->c || store->e || store->f || store->g || c->scalar[v]) return;
  uint32_t made = t->pos[v];
  if (made <= vec || made >= at) return;
  bvm_op *o = &c->ops[made];
  if ((o->code != L_KOP && o->code != L_MATH) || o->dest || !o->fn) return;
  for (uint32_t k = made + 1; c->ops[k].at <= t->last[v]; k++) {
    if (k == at) continue;
    if (writes(c->ops[k].code)) return;
    if (k < at && c->ops[k].code == L_LOAD) return;
    if (l_opens(c->ops[k].code) || c->ops[k].code == L_END) return;
  }
  o->dest = c->ops[at].at;
}

/* ---- registers ---- */

/* Gives value v a register: number reuse - 1 or, if `reuse` is 0, an idle or a new one. False: there are too many. */
static bool take_register(translator *t, l_val v, uint8_t size, uint32_t reuse) {
  uint32_t r;
  if (reuse)
    r = reuse - 1;
  else if (t->nfree)
    r = t->free_regs[--t->nfree];
  else
    r = t->c->nregs++;
  if (r >= UINT16_MAX - 1) return false;
  t->c->reg[v] = (uint16_t)(r + 1);
  t->reg_size[r] = size;
  return true;
}

/* Gives the vector values of the VEC ops[begin..end) their registers. False: there are too many. */
static bool assign_registers(translator *t, uint32_t begin, uint32_t end) {
  vmcode *c = t->c;
  t->nfree = 0;
  uint32_t base = c->nregs;
  c->nregs = 0;
  for (uint32_t at = begin; at < end; at++) {
    bvm_op *o = &c->ops[at];
    uint32_t reuse = 0;
    uint8_t size = (uint8_t)dtype_size((qn_dtype)o->in->dtype);
    bool makes = at > begin && l_rows[o->code].result == 'V' && !c->scalar[o->at];
    /* an elementwise result may take the place of an operand of its size that dies here */
    if (makes && (o->code == L_KOP || o->code == L_MATH)) {
      const l_val in[3] = {o->in->a, o->in->b, o->in->c};
      for (int k = 0; k < 3 && !reuse; k++)
        if (in[k] > c->ops[begin].at && c->reg[in[k]] && t->last[in[k]] == o->at &&
            t->reg_size[c->reg[in[k]] - 1] == size && t->p->code[in[k]].code != L_CARRY)
          reuse = c->reg[in[k]];
    }
    if (makes && !take_register(t, o->at, size, reuse)) return false;
    /* registers whose values die here are free for what follows */
    for (uint32_t k = begin + 1; k <= at; k++) {
      l_val v = c->ops[k].at;
      if (!c->reg[v] || l_rows[c->ops[k].code].result != 'V' || c->scalar[v]) continue;
      if (t->last[v] == o->at && c->reg[v] != reuse) t->free_regs[t->nfree++] = c->reg[v] - 1u;
    }
  }
  if (c->nregs < base) c->nregs = base;
  return true;
}

/* ---- decoding ---- */

/* Fills in what executing an instruction needs beside its operands: the loop, which operands are vectors, the element size. */
static void decode(translator *t, bvm_op *o, bool in_vec) {
  const l_instr *i = o->in;
  vmcode *c = t->c;
  if (in_vec) o->flags |= OP_VECTOR;
  o->size = (uint8_t)bvm_size_class(dtype_size((qn_dtype)i->dtype));
  switch (i->code) {
  case L_KOP:
  case L_MATH:
    o->fn = bvm_loop_of(c->loops, t->p, i);
    if (in_vec && !c->scalar[o->at])
      o->mode = (uint8_t)((c->scalar[i->a] ? 0 : VM_A) | (c->scalar[i->b] ? 0 : VM_B) | (c->scalar[i->c] ? 0 : VM_C));
    break;
  case L_IOTA: o->fn = c->loops->iota[i->dtype]; break;
  case L_STORE:
  case L_RMW: o->size = (uint8_t)bvm_size_class(dtype_size((qn_dtype)t->p->code[i->h].dtype)); break;
  default: break;
  }
  if (in_vec && c->scalar[o->at]) o->flags |= OP_ONCE;
}

static void note_acc(translator *t, l_val at) {
  vmcode *c = t->c;
  const l_instr *i = &t->p->code[at];
  bvm_acc_plan *a = &c->accs[c->naccs];
  *a = (bvm_acc_plan){.at = at,
                      .op = i->sub,
                      .dtype = i->dtype,
                      .order = (uint8_t)i->imm,
                      .size = (uint8_t)dtype_size((qn_dtype)i->dtype),
                      .many = i->a != 0,
                      .arg = i->sub == KOP_argmax || i->sub == KOP_argmin};
  a->fold = a->arg ? NULL : c->loops->kop[i->sub][i->dtype];
  c->acc_of[at] = (uint16_t)c->naccs++;
}

static bool translate(translator *t) {
  vmcode *c = t->c;
  const l_program *p = t->p;
  c->scalar[0] = true; /* an operand that is not there */
  /* positions of open structures, to find their ends */
  uint32_t stack[64], depth = 0, vec = 0;
  bool prelude = true;
  for (l_val v = 1; v < p->n; v++) {
    const l_instr *i = &p->code[v];
    t->pos[v] = c->nops;
    c->scalar[v] = !vec || vec_is_uniform(i, c->scalar);
    if (i->code == L_PHASE) {
      if (prelude) c->prelude_end = c->nops;
      prelude = false;
      c->phases[c->nphases++] = (bvm_phase){.before = c->nops, .places = c->nplaces};
      continue;
    }
    if (i->code == L_CONST || i->code == L_INT || i->code == L_SYNC) continue; /* bvm_frame_init sets their values */
    if (i->code == L_ACC) note_acc(t, v);
    if (i->code == L_ACC || i->code == L_LOCAL || i->code == L_TILE) {
      c->places[c->nplaces++] = c->nops;
      c->phases[c->nphases - 1].nplaces++;
    }
    bvm_op *o = &c->ops[c->nops];
    *o = (bvm_op){.code = i->code, .at = v, .in = i};
    decode(t, o, vec != 0);
    c->nmasks += i->code == L_WHILE && vec;
    c->nswaps += i->code == L_SET && p->code[i->b].code == L_CARRY;
    if (i->code == L_PUSH || i->code == L_MERGE || i->code == L_FINISH || i->code == L_PARTIAL || i->code == L_SCAN) {
      bvm_acc_plan *a = &c->accs[c->acc_of[i->a]];
      if (i->code == L_SCAN) a->scanned = true;
      if (i->code == L_MERGE) a->merged = true;
      if (vec && a->many) c->ops[vec - 1].flags |= OP_MANY;
      if (i->code == L_FINISH || i->code == L_PARTIAL) a->finished = true;
    }
    uint32_t at = c->nops++;
    if (l_opens(i->code)) {
      if (i->code == L_PAR) c->phases[c->nphases - 1].par = at;
      if (i->code == L_VEC) vec = at + 1;
      stack[depth++] = at;
    } else if (i->code == L_ELSE) {
      c->ops[stack[depth - 1]].end = at;
      stack[depth - 1] = at;
    } else if (i->code == L_END) {
      uint32_t begin = stack[--depth];
      c->ops[begin].end = at;
      if (c->ops[begin].code == L_PAR) c->phases[c->nphases - 1].end = at + 1;
      if (c->ops[begin].code == L_VEC) {
        vec = 0;
        (void)vec_last_uses(p, c->ops[begin].at, t->last);
        for (uint32_t k = begin + 1; k < at; k++)
          if (c->ops[k].code == L_STORE) find_destination(t, begin, k);
        for (uint32_t k = begin + 1; k < at; k++)
          if (c->ops[k].code == L_LOAD && may_alias(t, k)) c->ops[k].flags |= OP_ALIAS;
        if (!assign_registers(t, begin, at)) return false;
      }
    }
  }
  return true;
}

vmcode *bvm_code_make(const l_program *p, const bvm_loops *loops) {
  uint32_t n = p->n + 1, naccs = 0, nphases = 0;
  for (l_val v = 1; v < p->n; v++) {
    naccs += p->code[v].code == L_ACC;
    nphases += p->code[v].code == L_PHASE;
  }
  arena kept, ours; /* the code's memory; the translator's */
  arena_init(&kept, NULL);
  arena_init(&ours, NULL);
  vmcode *c = arena_alloc(&kept, sizeof *c);
  translator t = {.c = c, .p = p};
  if (c) {
    *c = (vmcode){.p = p, .loops = loops};
    c->ops = arena_alloc(&kept, n * sizeof *c->ops);
    c->phases = arena_alloc(&kept, (nphases + 1u) * sizeof *c->phases);
    c->reg = arena_alloc(&kept, n * sizeof *c->reg);
    c->scalar = arena_alloc(&kept, n);
    c->accs = arena_alloc(&kept, (naccs + 1u) * sizeof *c->accs);
    c->acc_of = arena_alloc(&kept, n * sizeof *c->acc_of);
    c->places = arena_alloc(&kept, n * sizeof *c->places);
    c->ints = arena_alloc(&kept, (p->nints + 1u) * sizeof *c->ints);
    c->tables = arena_alloc(&kept, bvm_tables_bytes(p, naccs));
    t.last = arena_alloc(&ours, n * sizeof *t.last);
    t.pos = arena_alloc(&ours, n * sizeof *t.pos);
    t.free_regs = arena_alloc(&ours, n * sizeof *t.free_regs);
    t.reg_size = arena_alloc(&ours, n);
  }
  uint8_t *from_values = arena_alloc(&ours, n);
  bool ok = !kept.failed && !ours.failed && translate(&t);
  if (ok) c->steered = l_scalars_steer(p, from_values);
  arena_free(&ours);
  if (!ok) {
    arena_free(&kept);
    return NULL;
  }
  c->memory = kept;
  return c;
}
