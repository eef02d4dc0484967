/* The text of the block VM's interpreter (block_vm.h). The texts of primitives and functions come from the kernels' tables, as in printed
 * kernels; here they are listed with their numbers, for the dtypes of a class. */
#include <stdio.h>
#include <string.h>

#include "jit/gpu/block_vm.h"
#include "jit/kernel/emit_text.h"

extern const char block_vm_source[]; /* made of block_vm.cu */

#define BIT(dtype) (1u << (dtype))
static const struct class_row {
  uint32_t dtypes;
  uint64_t hash;
} classes[BLOCK_VM_CLASSES] = {
    [BLOCK_VM_F32] = {BIT(QN_bool) | BIT(QN_i64) | BIT(QN_f16) | BIT(QN_bf16) | BIT(QN_f32), 0x626c6f636b206633u},
    [BLOCK_VM_ALL] = {(BIT(DTYPE_PUBLIC) - 1) | BIT(QN_u32) | BIT(QN_u64), 0x626c6f636b20766du},
};

block_vm_class block_vm_class_of(uint32_t dtypes) {
  return dtypes & ~classes[BLOCK_VM_F32].dtypes ? BLOCK_VM_ALL : BLOCK_VM_F32;
}
uint64_t block_vm_hash(block_vm_class c) { return classes[c].hash; }

typedef struct writer {
  uint32_t dtypes;
  math_uses uses;
  text_buf *out;
  bool function[VM_NUMBERS]; /* there is a function vm_<number> */
} writer;

static bool has(const writer *w, int dtype) { return (w->dtypes >> dtype & 1) != 0; }

/* Is there a primitive of this name? It is noted as used, so that its text is printed. */
static bool use(writer *w, char name[48]) {
  if (!math_known(name)) return false;
  math_use(&w->uses, name);
  return true;
}

static const char *type_of(int dtype) { return math_type((qn_dtype)dtype); }

/* Writes the name of a primitive for a dtype, and notes it as used. False: there is none. */
static bool prim(writer *w, char name[48], int op, int dtype) {
  snprintf(name, 48, "%s_%s", kop_rows[op].name, type_of(dtype));
  return use(w, name);
}

static bool computes(const writer *w, int dtype) { return has(w, dtype) && !dtype_is_narrow(dtype); }

/* ---- lists: #define NAME(X) X(...) X(...) ---------------------------------------------------------------------------------- */

/* Notes that the function of this number is defined, and returns the number. */
static int listed(writer *w, int number) {
  w->function[number] = true;
  return number;
}

static void begin(writer *w, const char *name) { text_addf(w->out, "#define %s(X)", name); }
static void end(writer *w) { text_adds(w->out, "\n"); }

/* Elementwise functions with `arity` operands. `slow`: those whose code is long, the others otherwise. */
static void list_ops(writer *w, const char *list, int arity, bool slow) {
  char name[48];
  begin(w, list);
  for (int op = 0; op < KOP_COUNT; op++) {
    bool long_one = op == KOP_idiv || op == KOP_imod || op == KOP_ipow;
    bool own =
        op == KOP_copy || op == KOP_cast || op == KOP_bitcast || op == KOP_select; /* see below, and block_vm.cu */
    if (kop_rows[op].arity != arity || long_one != slow || own) continue;
    for (int d = 0; d < QN_DTYPE_COUNT; d++)
      if (computes(w, d) && prim(w, name, op, d))
        text_addf(w->out, " X(%d, %s, %s, %s)", listed(w, vm_number(VM_PRIMS, op, d)), type_of(d),
                  op >= KOP_eq && op <= KOP_ge ? "b8" : type_of(d), name);
  }
  for (int from = 0; from < QN_DTYPE_COUNT && arity == 1 && !slow; from++)
    for (int to = 0; to < QN_DTYPE_COUNT; to++) {
      uint8_t in = (uint8_t)from;
      if (from == to || !has(w, from) || !has(w, to) || kop_misuse(KOP_cast, (uint8_t)to, &in, 1)) continue;
      snprintf(name, sizeof name, "cast_%s_%s", type_of(from), type_of(to));
      if (use(w, name))
        text_addf(w->out, " X(%d, %s, %s, %s)", listed(w, vm_number(VM_CASTS, to, from)), type_of(from), type_of(to),
                  name);
    }
  for (int fn = 0; fn < MATH_COUNT && slow; fn++)
    for (int d = 0; d < QN_DTYPE_COUNT && math_rows[fn].arity == arity; d++) {
      uint8_t in[2] = {(uint8_t)d, (uint8_t)d}, to = (uint8_t)d;
      if (math_rows[fn].kind == MATH_IS_WORD) in[0] = QN_u64;
      if (math_rows[fn].kind == MATH_IS_TEST) to = DTYPE_TEST;
      if (!has(w, in[0]) || !has(w, d) || math_misuse((uint8_t)fn, to, in, arity)) continue;
      math_name(name, sizeof name, (math_id)fn, (qn_dtype)to, (qn_dtype)in[0]);
      if (use(w, name))
        text_addf(w->out, " X(%d, %s, %s, %s)", listed(w, vm_number(VM_MATHS, fn, d)), type_of(in[0]), type_of(to),
                  name);
    }
  end(w);
}

/* Functions that combine values in reductions. `ordered`: only those whose result depends on the order. */
static void list_reductions(writer *w, const char *list, int base, bool ordered) {
  char name[48];
  begin(w, list);
  for (int op = 0; op < KOP_COUNT; op++)
    for (int d = 0; d < QN_DTYPE_COUNT; d++) {
      l_instr a = {.sub = (uint8_t)op, .dtype = (uint8_t)d};
      if (computes(w, d) && kop_combines((uint8_t)op) && !(ordered && acc_exact(&a)) && prim(w, name, op, d))
        text_addf(w->out, " X(%d, %s, %s)",
                  base == VM_PRIMS ? vm_number(base, op, d) : listed(w, vm_number(base, op, d)), type_of(d), name);
    }
  end(w);
}

/* Functions that update elements of f16 and bf16 in memory: they are computed in f32. */
static void list_halves(writer *w) {
  static const uint8_t ops[] = {KOP_add, KOP_mul, KOP_min, KOP_max};
  char name[48], in[48], out[48];
  begin(w, "VM_HALVES");
  for (size_t k = 0; k < sizeof ops; k++)
    for (int d = QN_f16; d <= QN_bf16; d++) {
      if (!has(w, d) || !prim(w, name, ops[k], QN_f32)) continue;
      snprintf(in, sizeof in, "cast_%s_f32", type_of(d));
      snprintf(out, sizeof out, "cast_f32_%s", type_of(d));
      if (use(w, in) && use(w, out))
        text_addf(w->out, " X(%d, %s, %s, %s)", vm_number(VM_PRIMS, ops[k], d), in, out, name);
    }
  end(w);
}

static void list_orders(writer *w) {
  begin(w, "VM_ORDERS");
  for (int op = KOP_argmax; op <= KOP_argmin; op++)
    for (int d = 0; d < QN_DTYPE_COUNT; d++) {
      l_instr a = {.sub = (uint8_t)op, .dtype = (uint8_t)d};
      if (computes(w, d)) text_addf(w->out, " X(%d, %s, %s)", vm_number(VM_PRIMS, op, d), type_of(d), acc_than(&a));
    }
  end(w);
}

static void list_identities(writer *w) {
  begin(w, "VM_IDENTITIES");
  for (int op = 0; op < KOP_COUNT; op++)
    for (int d = 0; d < QN_DTYPE_COUNT; d++) {
      l_instr a = {.sub = (uint8_t)op, .dtype = (uint8_t)d};
      char name[48], id[80], zero[80];
      if (!computes(w, d) || !(acc_arg(&a) || (kop_combines((uint8_t)op) && prim(w, name, op, d)))) continue;
      acc_identity(&a, id);
      acc_zero(&a, zero);
      text_addf(w->out, " X(%d, %s, %s, %s)", vm_number(VM_PRIMS, op, d), type_of(d), id, zero);
    }
  end(w);
}

/* For each type, e.g. f32: BITS_f32 and FROM_f32, which make a u64 of a value and a value of that, and DOT_f32(x, y, s), s + x y. */
static void define_types(writer *w) {
  char name[48], add[48];
  for (int d = 0; d < QN_DTYPE_COUNT; d++) {
    const char *T = type_of(d);
    if (!computes(w, d)) continue;
    if (dtype_is_float((qn_dtype)d)) {
      const char *U = dtype_size(d) == 4 ? "u32" : "u64";
      snprintf(name, sizeof name, "bitcast_%s_%s", T, U);
      snprintf(add, sizeof add, "bitcast_%s_%s", U, T);
      if (use(w, name) && use(w, add))
        text_addf(w->out, "#define BITS_%s(x) ((u64)%s(x))\n#define FROM_%s(w) %s((%s)(w))\n", T, name, T, add, U);
      if (prim(w, name, KOP_fma, d)) text_addf(w->out, "#define DOT_%s(x, y, s) %s(x, y, s)\n", T, name);
    } else {
      text_addf(w->out, "#define BITS_%s(x) ((u64)(%s)(x))\n#define FROM_%s(w) ((%s)(w))\n", T, T, T, T);
      if (!dtype_is_bool(d) && prim(w, name, KOP_mul, d) && prim(w, add, KOP_add, d))
        text_addf(w->out, "#define DOT_%s(x, y, s) %s(s, %s(x, y))\n", T, add, name);
    }
  }
}

static void list_dots(writer *w) {
  char name[48];
  static const struct {
    const char *list;
    int base;
  } lists[] = {{"VM_DOTS", 0}, {"VM_CHAINDOTS", VM_DOTTED}};
  for (int k = 0; k < 2; k++) {
    begin(w, lists[k].list);
    for (int d = 0; d < QN_DTYPE_COUNT; d++)
      if (computes(w, d) && !dtype_is_bool(d))
        text_addf(w->out, " X(%d, %s)", k ? listed(w, lists[k].base + d) : d, type_of(d));
    end(w);
  }
  begin(w, "VM_TILES");
  for (int d = 0; d < QN_DTYPE_COUNT; d++) {
    bool half = dtype_is_narrow(d);
    int to = dtype_compute(d);
    char add[48];
    if (!has(w, d) || dtype_is_bool(d) || !prim(w, add, KOP_add, to)) continue;
    snprintf(name, sizeof name, "cast_%s_f32", type_of(d));
    if (half && !use(w, name)) continue;
    text_addf(w->out, " X(%d, %s, %s, %s, %s)", listed(w, VM_TILED + d), type_of(d), type_of(to),
              half ? name : "VM_SAME", add);
  }
  end(w);
}

void block_vm_text(block_vm_class c, text_buf *out) {
  text_buf lists = {0};
  writer w = {.dtypes = classes[c].dtypes, .out = &lists};
#define VMOP(name, operands, meaning) text_addf(&lists, "#define VM_%s %d\n", #name, VM_##name);
#define VMFLAG(name, bit, meaning) text_addf(&lists, "#define VMF_%s %d\n", #name, bit);
#include "jit/gpu/block_vm_ops.def"
#undef VMOP
#undef VMFLAG
  static const char head[] = "typedef struct vm_head {"
#define VMHEAD(name, meaning) " i64 " #name ";"
#include "jit/gpu/block_vm_ops.def"
#undef VMHEAD
                             " } vm_head;\n";
  static const char acc[] = "typedef struct bvm_acc {"
#define VMACC(name, meaning) " u16 " #name ";"
#include "jit/gpu/block_vm_ops.def"
#undef VMACC
                            " } bvm_acc;\n";
  static const char tile[] = "typedef struct vm_tile {"
#define VMTILE(name) " u16 " #name ";"
#include "jit/gpu/block_vm_ops.def"
#undef VMTILE
                             " } vm_tile;\n";
  text_adds(&lists, head);
  text_adds(&lists, acc);
  text_adds(&lists, tile);
  text_addf(&lists, "#define VM_VECTOR %du\n#define VM_WORDS %d\n", VM_VECTOR, EMIT_WORDS_BY_VALUE);
  text_adds(&lists,
            "#define VM_SAME(x) (x)\n#define VM_CHOICE(c, a, b) ((c) ? (a) : (b))\n#define VM_SIZE(d) ((int)(0x");
  for (int d = 15; d >= 0; d--) text_addf(&lists, "%x", d < QN_DTYPE_COUNT ? (unsigned)dtype_rows[d].size & 15u : 0u);
  text_adds(&lists, "ull >> 4 * (d) & 15))\n");
  define_types(&w);
  list_ops(&w, "VM_OPS1", 1, false);
  list_ops(&w, "VM_OPS2", 2, false);
  list_ops(&w, "VM_SLOW1", 1, true);
  list_ops(&w, "VM_SLOW2", 2, true);
  list_ops(&w, "VM_OPS3", 3, false);
  list_reductions(&w, "VM_FOLDS", VM_PRIMS, false);
  list_reductions(&w, "VM_LANE_PUSHES", VM_LANED, false);
  list_reductions(&w, "VM_CHAINS", VM_CHAINED, true);
  list_halves(&w);
  list_orders(&w);
  list_identities(&w);
  list_dots(&w);
  text_addf(&lists, "#define VM_FUNCTIONS %d\n#define VM_DESCRIBED %d\n#define VM_TABLE ", VM_PRIMS, VM_LANED);
  for (int k = VM_PRIMS; k < VM_NUMBERS; k++)
    if (w.function[k])
      text_addf(&lists, "vm_%d,", k);
    else
      text_adds(&lists, "0,");
  text_adds(&lists, "\n");
  emit_cuda_begin(&w.uses, out);
  text_add(out, lists.text ? lists.text : "", lists.len);
  const char *name =
      strstr(block_vm_source, "KERNEL("); /* a kernel's name cannot be a macro: it is put into the text here */
  text_add(out, block_vm_source, (size_t)(name - block_vm_source));
  text_addf(out, "k%016llx_0%s", (unsigned long long)classes[c].hash, name + strlen("KERNEL"));
  out->failed |= lists.failed || w.uses.failed;
  text_free(&lists);
}
