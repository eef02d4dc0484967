/* Op programs (op_program.h): kernels of one op taken apart into the calls of loops that they make, and the table of these.
 *
 * The kernel of a conversion or an op on contiguous operands of rank 1 is a VEC of loads, primitives, functions, checks and a store. Each
 * of its instructions that computes becomes a step; a value takes a slot from its step to its last use. What only a failed check would show
 * is left out: op_programs do not tell what has failed, they only say that something has. */
#include "jit/cpu/op_program.h"

#include <string.h>

#include "jit/cpu/opbody.h"
#include "jit/run/eager.h"

/* The `body` column of the op table. */
#define GRAD(fn) 0
#define NO_GRAD(why) 0
#define K(op)                                                                                                          \
  { BODY_KOP, KOP_##op }
#define M(fn)                                                                                                          \
  { BODY_MATH, MATH_##fn }
const op_body op_bodies[OP_COUNT] = {
#define OP_POINTWISE(name, arity, dtype, grad, raises, body, doc) [OP_##name] = body,
#define OP_REDUCE(name, dtype, grad, raises, body, doc) [OP_##name] = body,
#define OP_SCAN(name, dtype, grad, body, doc) [OP_##name] = body,
#include "lang/ops.def"
};
#undef K
#undef M
#undef GRAD
#undef NO_GRAD

enum { STEPS_MAX = 32, CODE_MAX = 128, SAMPLE = 1000 };

typedef struct maker {
  qn_vm *vm;
  const bvm_loops *loops;
  op_program_step steps[STEPS_MAX];
  uint64_t bits[PROGRAM_CONSTS];
  int nsteps, nconsts;
  uint32_t temps; /* bits of slots in use */
} maker;

static int take_temp(maker *m) {
  for (int i = 0; i < PROGRAM_TEMPS; i++)
    if (!(m->temps >> i & 1)) {
      m->temps |= 1u << i;
      return PROGRAM_TEMP + i;
    }
  return -1;
}

static bool plain_access(const l_program *p, const l_instr *i) {
  const l_instr *stride = &p->code[i->b];
  return i->imm >= 0 && stride->code == L_INT && stride->imm == 1 && !i->c && !i->e && !i->f && !i->g;
}

/* Marks what is needed, from the end: last[v] is the last instruction that uses v. */
static bool find_uses(const l_program *p, l_val *last, l_val *store) {
  *store = 0;
  for (l_val v = p->n - 1; v > 0; v--) {
    const l_instr *i = &p->code[v];
    l_val uses[3] = {0, 0, 0};
    switch (i->code) {
    case L_STORE:
      if (*store || !plain_access(p, i)) return false;
      *store = v;
      uses[0] = i->h;
      break;
    case L_CHECK: uses[0] = i->a; break;
    case L_KOP:
    case L_MATH:
      if (last[v]) uses[0] = i->a, uses[1] = i->b, uses[2] = i->c;
      break;
    default: break;
    }
    for (int k = 0; k < 3; k++)
      if (uses[k] && !last[uses[k]]) last[uses[k]] = v;
  }
  return *store != 0;
}

/* Appends the steps of a program whose operands are in these slots and whose result is to be in slot `out`. */
static bool add_program(maker *m, const l_program *p, const uint8_t *operands, uint8_t out) {
  l_val last[CODE_MAX] = {0}, store;
  uint8_t slot[CODE_MAX] = {0};
  int vecs = 0;
  if (p->n > CODE_MAX || !find_uses(p, last, &store)) return false;
  l_val stored = p->code[store].h;
  for (l_val v = 1; v < p->n; v++) {
    const l_instr *i = &p->code[v];
    if (m->nsteps == STEPS_MAX) return false;
    op_program_step *s = &m->steps[m->nsteps];
    *s = (op_program_step){.fn = NULL};
    if (l_rows[i->code].result == 'I' && i->code != L_IVALUE) continue; /* where the elements are, the walk knows */
    switch (i->code) {
    case L_PHASE:
    case L_PAR:
    case L_POLL:
    case L_END: continue;
    case L_VEC:
      if (vecs++) return false;
      continue;
    case L_CONST:
      if (m->nconsts == PROGRAM_CONSTS) return false;
      m->bits[m->nconsts] = (uint64_t)i->imm;
      slot[v] = (uint8_t)(PROGRAM_CONST + m->nconsts++);
      continue;
    case L_LOAD:
      if (!plain_access(p, i) || i->h) return false;
      slot[v] = operands[i->imm];
      continue;
    case L_STORE: /* of a value that is not computed: a copy */
      if (p->code[stored].code == L_KOP || p->code[stored].code == L_MATH) continue;
      s->fn = m->loops->copy[bvm_size_class(dtype_size((qn_dtype)p->code[stored].dtype))];
      s->in[0] = slot[stored];
      s->nin = 1;
      s->out = out;
      break;
    case L_CHECK: s->in[0] = slot[i->a]; break;
    case L_KOP:
    case L_MATH: {
      if (!last[v]) continue;
      if (!(s->fn = bvm_loop_of(m->loops, p, i))) return false;
      const l_val in[3] = {i->a, i->b, i->c};
      for (int k = 0; k < 3; k++) s->in[k] = slot[in[k]];
      s->nin = i->c ? 3 : i->b ? 2 : 1;
      int to = v == stored ? out : take_temp(m);
      if (to < 0) return false;
      s->out = slot[v] = (uint8_t)to;
      break;
    }
    default: return false;
    }
    m->nsteps++;
    for (l_val u = 1; u < v; u++)
      if (last[u] == v && slot[u] >= PROGRAM_TEMP && slot[u] < PROGRAM_CONST && slot[u] != out &&
          (p->code[u].code == L_KOP || p->code[u].code == L_MATH))
        m->temps &= ~(1u << (slot[u] - PROGRAM_TEMP));
  }
  return true;
}

/* The kernel of an op on contiguous strict operands of rank 1; NULL with an error raised. */
static const l_program *program_of(qn_vm *vm, op_id op, const qn_dtype *in, int nin, qn_dtype result,
                                   const op_attr *attr) {
  op_operand operands[PROGRAM_OPERANDS];
  op_call call = {.op = op, .nin = nin, .attr = attr, .in = operands};
  call.out = (op_operand){.dtype = (uint8_t)result, .rank = 1, .shape = {SAMPLE}, .strides = {1}};
  for (int i = 0; i < nin; i++) {
    operands[i] = call.out;
    operands[i].dtype = (uint8_t)in[i];
  }
  if (op_rows[op].klass == CLASS_REDUCE) call.out.rank = 0;
  return eager_program(vm, &call);
}

/* What the kernel of a reduction or scan does to an element on its way to the accumulator and from it: conversions, and of sums a
 * select that asks whether there are elements at all, which there are. False: somewhat else. */
static bool find_fold(const bvm_loops *loops, const l_program *p, op_fold *f) {
  bool of_size[CODE_MAX] = {false}, found = false, scan = false;
  uint8_t combine = 0;
  bvm_fn *cast = &f->widen;
  if (p->n > CODE_MAX) return false;
  for (l_val v = 1; v < p->n; v++) {
    const l_instr *i = &p->code[v];
    switch (i->code) {
    case L_ACC:
      if (found) return false;
      found = true;
      combine = i->sub;
      f->dtype = i->dtype;
      break;
    case L_SCAN: scan = true; /* fall through */
    case L_PUSH: cast = &f->narrow; break;
    case L_IOTA: of_size[v] = true; break;
    case L_KOP:
      if (of_size[i->a]) {
        of_size[v] = i->sub != KOP_select;
        break;
      }
      if (i->sub != KOP_cast || *cast || !(*cast = bvm_loop_of(loops, p, i))) return false;
      break;
    case L_MATH:
    case L_CHECK: return false;
    default: break;
    }
  }
  f->size = (uint8_t)dtype_size((qn_dtype)f->dtype);
  f->step = loops->kop[combine][f->dtype];
  if (kop_is_arg(combine)) return (f->arg = loops->arg[combine == KOP_argmin][f->dtype]) != NULL;
  if (scan) return (f->scan = loops->scan64[combine][f->dtype]) && f->step;
  f->tree = loops->tree[combine][f->dtype];
  f->chains = loops->chains[combine][f->dtype];
  return found && f->tree && f->chains && f->step;
}

/* False: there is no op_program, or an error is raised. */
static bool build(maker *m, op_id op, const graph_type *types, int nin, const op_attr *attr, op_program *s) {
  op_types t;
  op_refusal why;
  if (op == OP_fit || !op_infer(NULL, op, types, nin, attr, &t, &why) || t.weak) return false;
  uint8_t operands[PROGRAM_OPERANDS] = {0, 1, 2};
  qn_dtype strict[PROGRAM_OPERANDS];
  const l_program *p;
  s->result = t.result.dtype;
  if (op_rows[op].klass != CLASS_POINTWISE) { /* its kernel converts by itself */
    strict[0] = (qn_dtype)types[0].dtype;
    p = program_of(m->vm, op, strict, 1, (qn_dtype)s->result, attr);
    return p && find_fold(m->loops, p, &s->fold);
  }
  for (int i = 0; i < nin; i++) {
    op_role role = op_operand_role(op, i, nin);
    strict[i] = role == ROLE_CONDITION ? QN_bool : role == ROLE_AS_IS ? (qn_dtype)types[i].dtype : t.compute;
    s->scalar[i] = (uint8_t)strict[i];
    s->size[i] = (uint8_t)dtype_size(types[i].weak ? strict[i] : (qn_dtype)types[i].dtype);
    if (types[i].weak || types[i].dtype == strict[i]) continue;
    op_attr to = {.dtype = (uint8_t)strict[i]};
    qn_dtype from = (qn_dtype)types[i].dtype;
    int slot = take_temp(m);
    if (!(p = program_of(m->vm, OP_cast, &from, 1, strict[i], &to)) || slot < 0 ||
        !add_program(m, p, &operands[i], (uint8_t)slot))
      return false;
    operands[i] = (uint8_t)slot;
  }
  p = program_of(m->vm, op, strict, nin, (qn_dtype)s->result, attr);
  return p && add_program(m, p, operands, PROGRAM_RESULT);
}

static size_t strip_bytes(const op_program *s) { return sizeof *s + (s->nsteps + 1u) * sizeof *s->steps; }
static size_t row_length(op_id op) {
  int digits = op_rows[op].arity > 2 ? op_rows[op].arity : 2;
  return (size_t)1 << digits * PROGRAM_KIND_BITS;
}

/* `numbers`: which operands are host numbers. What is made of these and of constants alone is made once; what is made of other repeated
 * operands has as many elements as the result. */
static void find_modes(op_program *s, uint32_t numbers) {
  for (uint32_t operands = 0; operands < 1 << PROGRAM_OPERANDS; operands++) {
    uint32_t vectors = operands, single = numbers | ~(((uint32_t)1 << PROGRAM_CONST) - 1);
    for (int i = 0; i < s->nsteps; i++) {
      op_program_step *step = &s->steps[i];
      bvm_fn fn = step->fn ? step->fn : step->once;
      uint32_t mode = 0;
      bool once = fn && step->out != PROGRAM_RESULT;
      for (int k = 0; k < (fn ? step->nin : 1); k++) {
        mode |= (vectors >> step->in[k] & 1) << k;
        once = once && single >> step->in[k] & 1;
      }
      step->mode[operands] = (uint8_t)mode;
      if (!fn) continue;
      step->fn = once ? NULL : fn;
      step->once = once ? fn : NULL;
      uint32_t bit = 1u << step->out;
      single = once ? single | bit : single & ~bit;
      vectors = once ? vectors & ~bit : vectors | bit;
      if (step->out >= PROGRAM_TEMP && step->out - PROGRAM_TEMP >= s->ntemps)
        s->ntemps = (uint8_t)(step->out - PROGRAM_TEMP + 1);
    }
  }
}

__attribute__((noinline, cold)) const op_program *op_program_make(qn_vm *vm, op_id op, uint32_t number) {
  enum { DIGIT = (1 << PROGRAM_KIND_BITS) - 1 };
  maker m = {.vm = vm, .loops = cpu_loops(vm)};
  cpu_kept *t = cpu_kept_of(vm);
  if (!t ||
      (!t->op_programs[op] && !(t->op_programs[op] = mem_zalloc(vm, row_length(op) * sizeof *t->op_programs[op]))))
    return NULL;
  int nin = op_rows[op].arity;
  graph_type types[PROGRAM_OPERANDS];
  for (int i = 0; i < nin; i++) {
    uint32_t kind = number >> ((nin > 2 ? nin : 2) - 1 - i) * PROGRAM_KIND_BITS & DIGIT;
    types[i] = (graph_type){.dtype = (uint8_t)kind, .rank = 1, .shape = {SAMPLE}};
    if (kind < DTYPE_PUBLIC) continue;
    uint32_t tag = kind - PROGRAM_WEAK;
    types[i] = (graph_type){.dtype = tag == TAG_BOOL ? QN_bool : tag == TAG_INT ? QN_i64 : QN_f64, .weak = true};
  }
  op_attr attr = {.axes = op_rows[op].klass != CLASS_POINTWISE, .dtype = nin == 1 ? number & DIGIT : 0};
  op_program made = {.fn = NULL};
  made.usable = build(&m, op, types, nin, &attr, &made);
  if (vm->error) return NULL;
  made.nsteps = made.usable ? (uint8_t)m.nsteps : 0;
  made.nconsts = (uint8_t)m.nconsts;
  op_program *s = mem_alloc(vm, strip_bytes(&made));
  if (!s) return NULL;
  *s = made;
  memcpy(s->steps, m.steps, s->nsteps * sizeof *s->steps);
  memcpy(s->bits, m.bits, sizeof m.bits);
  s->steps[s->nsteps] = (op_program_step){.out = PROGRAM_SLOTS};
  uint32_t numbers = 0;
  for (int i = 0; i < nin; i++) numbers |= (uint32_t)types[i].weak << i;
  find_modes(s, numbers);
  bool in_order = s->nsteps == 1 && s->steps[0].fn;
  for (int i = 0; i < nin && in_order; i++) in_order = s->steps[0].in[i] == i;
  /* a conversion, or what is a copy by its row of the op table, of which the kernel leaves nothing to do */
  bool moves = op_bodies[op].kind == BODY_KOP && (op_bodies[op].which == KOP_copy || op_bodies[op].which == KOP_cast);
  s->same = in_order && moves && s->result == types[0].dtype;
  if (in_order && !s->same) s->fn = s->steps[0].fn;
  if (!vm->engine->trace_events) t->quick[op] = t->op_programs[op];
  return t->op_programs[op][number] = s;
}

void op_programs_free(qn_vm *vm, cpu_kept *t) {
  for (int op = 0; op < OP_COUNT; op++) {
    for (size_t i = 0; t->op_programs[op] && i < row_length((op_id)op); i++)
      if (t->op_programs[op][i])
        mem_free(vm, (op_program *)(uintptr_t)t->op_programs[op][i], strip_bytes(t->op_programs[op][i]));
    mem_free(vm, t->op_programs[op], row_length((op_id)op) * sizeof *t->op_programs[op]);
  }
}
