/* L: the loop program of a kernel. Executors (block VM, C, CUDA, x86) read only this.
 *
 * A program is a flat list of instructions with structure markers (PAR .. END and so on nest). An instruction that yields a
 * value is referred to by its index: SSA, defined before use, visible to the end of its block. There are three kinds of value:
 *   index    uniform i64 arithmetic on loop variables and parameters (addresses, bounds); never inside a VEC, except in a
 *            FOR or WHILE nested in it
 *   uniform  a typed scalar defined outside any VEC: constants, host scalars, finished reductions, scalar loads
 *   vector   a typed value defined inside a VEC: one element per iteration. A uniform used in a VEC broadcasts.
 *   block    a typed value of rows x columns elements, both plain numbers, defined in a PAR outside any VEC (l_block)
 * Values leave a VEC only through stores, locals and accumulators.
 *
 * Blocks. An instruction that works on blocks works on all their elements: a row of data that stays in registers from one pass to the next,
 * a tile of results, a panel on its way into a local, the fragments of a tensor core. An operand with one row or one column, or a uniform,
 * broadcasts. How a block is spread over the threads of an instance or over vector registers is written in its type, and has no meaning:
 *   f32[1x4096 t128.4]   128 threads, of which each has four neighbouring columns at a time
 *   f32[64x64 t16x16.4]  16 x 16 threads: thread (i, j) has rows i, i + 16, .. and of columns the fours j, j + 16, ..
 *   f32[14x32]           one thread: its vector registers
 *   f32[16x8 mma]        as a tensor core has it
 * Executors know nothing of blocks: they get l_without_blocks of a program, where blocks are values of VECs or locals. The reference
 * evaluator (jit/ref/eval.h) runs them as they are.
 * LOAD and STORE of VECs have their like in BLOAD and BSTORE, reductions in BREDUCE, products in BDOT; arithmetic, constants, carries and the
 * accumulators' PUSH and FINISH are the same instructions.
 *
 * Phases. A program is a list of phases with a barrier between them. A phase has exactly one PAR at its top: instances
 * [0, n) are independent, threads take ranges of them. Its body may use FOR, VEC, IF, WHILE. A phase becomes one function
 *     void k(const qk_args *a, int64_t lo, int64_t hi)
 * that runs instances lo..hi-1. Instructions before the first PHASE (the prelude) are visible in every phase, those between a
 * PHASE and its PAR in that phase; both are made from parameters, scalars and constants only and are evaluated by the launcher
 * and by the function alike: the number of instances, sizes of scratch buffers, locals and accumulators.
 *
 * Memory. Buffers are arguments: pointers to element 0 as the program sees it (offsets are already added). An address is
 * element-wise: base + stride * (i - start of the VEC) + vindex * vstride where base and strides are index values (may be
 * negative or 0; no stride: 0) and vindex is an optional vector of i64; outside a VEC it is base + vindex * vstride with a
 * uniform vindex. Where a guard is false the address may be anything. Locals are per-instance scratch arrays ("shared" on a
 * GPU), made directly inside the PAR. BUF_IN buffers do not alias what the program writes, unless a load and a store of the
 * same element stand in the same instance, the load first.
 *
 * Types. f16 and bf16 are storage types: such values are only loaded, stored, copied, selected, reinterpreted and cast: to f32
 * only, and from f32 or f64 only.
 *
 * Reductions are objects (ACC), see below; the order of combination is part of their meaning and the same in every executor.
 */
#ifndef JIT_KERNEL_L_H
#define JIT_KERNEL_L_H

#include <stdatomic.h>

#include "jit/graph/dim.h"
#include "jit/kernel/mathfns.h"
#include "lang/op.h"

typedef enum kop_id {
#define KOP(name, arity, types, meaning) KOP_##name,
#include "jit/kernel/kops.def"
#undef KOP
  KOP_COUNT
} kop_id;
typedef struct kop_row {
  const char *name;
  uint8_t arity;
  const char *types;
} kop_row;
extern const kop_row kop_rows[KOP_COUNT];

/* Does a reduction by this primitive give the index of an element? */
static inline bool kop_is_arg(uint8_t op) { return op == KOP_argmax || op == KOP_argmin; }
/* May an element in memory be updated by this primitive (RMW, STOREF)? */
static inline bool kop_updates(uint8_t op) { return op == KOP_add || op == KOP_mul || op == KOP_min || op == KOP_max; }
/* May reductions and scans combine values by this primitive? */
static inline bool kop_combines(uint8_t op) {
  return kop_updates(op) || op == KOP_and || op == KOP_or || op == KOP_xor;
}
/* Functions of mathfns.h (exp, log, ...): MATH_<name>; one row per name, bodies per dtype. */
#define MATH_ID(name, arity, types, kind, t, meaning) MATH_##name,
typedef enum math_id { MATHS(MATH_ID, ) MATH_COUNT } math_id;
#undef MATH_ID
typedef enum math_kind { MATH_IS_PLAIN, MATH_IS_RARE, MATH_IS_POW, MATH_IS_TEST, MATH_IS_WORD } math_kind;
typedef struct math_row {
  const char *name;
  uint8_t arity, kind;
} math_row;
extern const math_row math_rows[MATH_COUNT];
/* NULL if the primitive takes n operands of dtypes `in` and gives `result`, else a text that says what is wrong. */
const char *kop_misuse(uint8_t op, uint8_t result, const uint8_t *in, int n);
const char *math_misuse(uint8_t fn, uint8_t result, const uint8_t *in, int n);

/* Reduction orders. k is the logical index along the reduced axis, N its length.
 *   INNER  64 lanes k mod 64; in blocks of 1,024 a lane is a chain of 16; blocks combine lane-wise by the balanced tree on
 *          the block number; then lanes 64 -> 1 by halving: l[i] = f(l[i], l[i + h]) for h = 32, 16, .., 1
 *   OUTER  chains of 64 consecutive k; chains combine by the balanced tree on the chain number
 *   DOT    one fma chain upward over k in chunks of 4,096; chunks by the balanced tree
 *   TREE   each push is a leaf of the balanced tree (partials of a former phase)
 *   FREE   any order gives the same bits (integers, and, or, min, max, arg*)
 * INNER with many results in one accumulator has at most 64 pushes (short rows, a VEC over the rows).
 * The balanced tree over leaves 0..m-1: level by level, node i of a level is f(node 2i, node 2i+1) of the level below, or
 * node 2i alone. A chain starts from its first element. Nothing pushed at all: the identity (sum -0.0, prod 1, max -inf,
 * min +inf, the type's bounds for integers; DOT, also as a TILE: 0; arg*: index -1). FINISH may be repeated.
 * SCAN: running values in
 *   INNER  groups of 64 consecutive k, by steps l[i] = f(l[i - h], l[i]) for h = 1, 2, .., 32; before group g of a block of
 *          4,096 stands G = chain of the totals of groups 0..g-1 of that block, before block b stands B = chain of the blocks'
 *          totals (a block's total: the running value of its last element without B); the result is f(B, f(G, l)), where
 *          G or B exists
 *   OUTER  chains of 64 consecutive k; before chain s stands C = chain of the totals of chains 0..s-1; the result is f(C, chain)
 *   FREE   as in reductions
 */
typedef enum l_order { ORDER_INNER, ORDER_OUTER, ORDER_DOT, ORDER_TREE, ORDER_FREE } l_order;
enum { ORDER_NAMES = 5, ORDER_LANES = 64, ORDER_BLOCK = 1024, ORDER_OUTER_CHAIN = 64, ORDER_DOT_CHUNK = 4096 };

typedef uint32_t l_val; /* index of an instruction; 0: none (instruction 0 is unused) */

#undef L_SET /* a macro of unistd.h */
/* The instructions, with their operands and meaning, are the rows of lcodes.def: L_<name>. */
typedef enum l_code {
  L_NONE,
#define LCODE(name, text, result, imm, ...) L_##name,
#include "jit/kernel/lcodes.def"
#undef LCODE
  L_CODE_COUNT
} l_code;
typedef struct l_operand {
  uint8_t at;       /* offset of the operand's field in l_instr */
  char role;        /* as in lcodes.def; 0 ends the list */
  const char *name; /* in texts; "" if it has none */
} l_operand;
typedef struct l_row {
  const char *text;
  char result, imm; /* as in lcodes.def */
  l_operand operands[9];
} l_row;
extern const l_row l_rows[L_CODE_COUNT];

enum { L_SHARED = 1, L_EXCLUSIVE = 2, L_DOWN = 4, L_MMA = 8, L_FLAGS = 4 };
typedef struct l_flag {
  uint8_t bit;
  const char *name;
} l_flag;
/* Does an instruction open a block, which an END closes? */
static inline bool l_opens(uint8_t code) {
  return code == L_PAR || code == L_FOR || code == L_VEC || code == L_IF || code == L_WHILE;
}
/* Is `sub` a part of the instruction's name in texts? */
static inline bool l_has_sub(uint8_t code) { return code == L_RMW || code == L_ACC || code == L_BREDUCE; }
/* Is the instruction's dtype printed in texts? */
static inline bool l_is_typed(uint8_t code) {
  return l_rows[code].result == 'V' || l_rows[code].result == 'A' || l_rows[code].result == 'M';
}

/* How the threads of a GPU share the instances of a PAR: schedule, never meaning. `threads` threads have an instance, each `lanes` neighbouring
 * elements of a VEC at a time, and a block of threads has `groups` instances side by side. A PAR holds it in imm2; 0 there stands for
 * 64 threads with one lane each, which every phase can have. layout.h says which others a phase can have. */
typedef struct l_layout {
  int threads, lanes, groups;
} l_layout;
enum {
  LAYOUT_THREADS = 256 /* of a block at most */,
  LAYOUT_LANES = 8,
  LAYOUT_MERGES = 1024 /* threads of a phase that merges */
};

typedef struct l_instr {
  uint8_t code;         /* l_code */
  uint8_t sub;          /* kop_id or math_id */
  uint8_t dtype, type2; /* qn_dtype */
  uint8_t flags;
  uint8_t block; /* 1 + the index of its type in program->blocks, if its value is a block */
  l_val a, b, c, d, e, f, g, h;
  int64_t imm, imm2;
} l_instr;

/* The type of a block besides its dtype. Threads: `across` in the direction of columns and `down` in that of rows; 1 and 1: one thread has it all. */
typedef struct l_block {
  uint16_t rows, cols;
  uint16_t across, down;
  uint16_t each;  /* neighbouring columns of a thread */
  bool fragments; /* as a tensor core has it, whatever that is */
} l_block;
enum { L_BLOCK_MOST = 1 << 16, L_BLOCKS_MOST = 255 };

/* Operands of L_TILE, in program->tiles[imm]. result[m][n] for m < rows, n < cols (both at most tile_rows, tile_cols):
 * sum over k of X[x_base + m * x_m + k * x_k] * Y[y_base + k * y_k + n * y_n], stored to local `out` at m * tile_cols + n or, where there is
 * none, to TO[to_base + m * to_m + n]: what follows the product is then nothing but a store (on CPUs).
 * f16 and bf16 operands are read as f32. Integer dtypes multiply and add, wrapping.
 *
 * Y may be windows of an array (on CPUs, of floats): then digits of the numbers of its columns (n_first + n) and along the depth (k_first + k) have
 * steps of their own, and its address has another digit(first + i) * step - digit(first) * step for each of them, where
 * digit(i) = i / by mod most. y_base stays the address of the first element. */
enum { L_TILE_DIGITS = 8, L_TILE_VALUES = 14 + 3 * L_TILE_DIGITS };
typedef struct l_digit {
  l_val by, most /* 0: there is no larger digit */, step;
  bool deep; /* of k, else of n */
} l_digit;
typedef struct l_tile {
  int32_t x, y; /* buffers */
  l_val x_base, x_m, x_k, y_base, y_k, y_n;
  l_val rows, cols, depth;
  int32_t tile_rows, tile_cols; /* constants chosen by the schedule */
  l_val out;                    /* L_LOCAL, or 0 */
  int32_t to;                   /* a buffer, or below 0 a local: as the imm of a STORE */
  l_val to_base, to_m;
  l_val n_first, k_first; /* where there are digits */
  uint32_t ndigits;
  l_digit digits[L_TILE_DIGITS];
} l_tile;

typedef enum l_buffer_mode { BUF_IN, BUF_OUT, BUF_INOUT, BUF_SCRATCH } l_buffer_mode;
enum { BUFFER_MODE_NAMES = 4 };
typedef struct l_buffer {
  uint8_t dtype;
  /* l_buffer_mode; SCRATCH: partials, `size` elements (an index expression evaluated by the launcher) */
  uint8_t mode;
  l_val size; /* of SCRATCH; otherwise 0 */
} l_buffer;

/* What L_CHECK number i raises, and where. */
typedef struct l_check {
  int id; /* error_id */
  uint32_t site;
  uint32_t node;  /* graph node that is checked; 0 in one-op kernels */
  int64_t detail; /* op-specific: the axis of an index, the target dtype of a conversion ... */
} l_check;

typedef struct l_program {
  arena arena; /* owns everything below; without a VM */
  l_instr *code;
  uint32_t n, cap;
  l_buffer *buffers;
  uint32_t nbuffers, buffers_cap;
  l_tile *tiles;
  uint32_t ntiles, tiles_cap;
  l_block *blocks;
  uint32_t nblocks, blocks_cap;
  l_check *checks;
  uint32_t nchecks, checks_cap;
  uint32_t nints, nscalars;
  const char *name;     /* for people: "softmax_f32" */
  const char *schedule; /* for people: its text (schedule.h), or NULL */
  bool failed;
} l_program;

/* ---- what kernels receive --------------------------------------------------------------------------------------------------- */

typedef union qk_scalar {
  int64_t i;
  double f;
} qk_scalar;

/* The arguments of a TILE in compiled code: x, y and out point to the first elements, strides count elements, `ld` is the row stride of
 * out, and xd, yd, od are qn_dtypes. `work` is QK_TILE_WORK bytes of the calling thread, for packed operands. */
enum { QK_TILE_WORK = 3 << 19 };
typedef struct qk_digit {
  int64_t by, most, step, deep; /* as in l_digit */
} qk_digit;
typedef struct qk_tile {
  const void *x, *y;
  void *out, *work;
  int64_t x_m, x_k, y_k, y_n, rows, cols, depth, ld;
  int32_t xd, yd, od;
  int32_t ndigits; /* of y, if it is windows */
  int64_t n_first, k_first;
  const qk_digit *digits;
} qk_tile;
/* digit number i of a number */
static inline int64_t qk_digit_of(const qk_digit *d, int64_t i) { return d->most ? i / d->by % d->most : i / d->by; }

/* What a phase receives. The error cell is the atomic minimum of check number << 48 | element over all failed checks, ~0 if none failed,
 * so the error is the same for any number of threads. Masked, padded and inactive elements never fail. */
typedef struct qk_args {
  void *const *buf;
  const int64_t *ints;
  const qk_scalar *scalars;
  /* memory of the calling thread for locals and accumulators, aligned to 64; the function behind a program's phases says how many bytes (emit.h) */
  void *scratch;
  _Atomic uint64_t *error;
  const atomic_int *interrupt;
  void (*tile)(const qk_tile *t); /* computes a TILE, compiled for this processor */
} qk_args;
typedef void (*qk_phase)(const qk_args *args, int64_t lo, int64_t hi);

/* ---- building, checking, printing ----------------------------------------------------------------------------------------------- */

/* A copy of a name in which everything but letters and digits has become '_'. NULL when memory is short. */
QN_MUST_CHECK const char *l_take_name(arena *a, const char *name);
QN_MUST_CHECK l_program *l_new(const char *name);
void l_free(l_program *p);
/* Moves a program that is finished into memory of just its size, with room for `parts` more allocations of `bytes` in all: plans keep
 * thousands of them. Where memory is short it stays where it is. */
void l_tighten(l_program *p, size_t bytes, size_t parts);
l_val l_emit(l_program *p, l_instr i); /* 0 when memory is short (p->failed); fills in type2 */
/* Shorthands for l_emit. Index arithmetic folds constants and neutral elements, and returns an equal instruction if one is visible. */
l_val l_int(l_program *p, int64_t value);
l_val l_param(l_program *p, uint32_t number);               /* raises p->nints */
l_val l_index(l_program *p, l_code code, l_val a, l_val b); /* IADD .. IMAX */
/* What operation e of a table of sizes makes of a and b, its operands as indices; a divisor may be negative. */
l_val l_of_dim(l_program *p, const dim_table *t, const dim_expr *e, l_val a, l_val b);
static inline bool l_is_index_op(int code) { return code >= L_IADD && code <= L_IMAX; }
/* of IADD .. IMAX on numbers; wraps like the executors do */
int64_t l_index_value(l_code code, int64_t a, int64_t b);
/* The bits of the identity of a reduction by `op`: the result of reducing nothing (see orders), which changes no other value. */
uint64_t l_identity(uint8_t op, uint8_t dtype);
l_val l_const(l_program *p, qn_dtype dtype, uint64_t bits);
l_val l_kop(l_program *p, kop_id op, qn_dtype dtype, l_val a, l_val b, l_val c);
l_val l_math(l_program *p, math_id fn, qn_dtype dtype, l_val a, l_val b, l_val c);
void l_end(l_program *p);
/* The memory that a TILE's results are stored to, as the imm of a STORE, and their dtype. */
static inline int64_t l_tile_to(const l_tile *t) { return t->out ? -(int64_t)t->out : t->to; }
static inline uint8_t l_tile_dtype(const l_program *p, const l_tile *t) {
  int64_t to = l_tile_to(t);
  return to < 0 ? p->code[-to].dtype : p->buffers[to].dtype;
}
int l_tile_add(l_program *p, l_tile t); /* -1 when memory is short */
/* Lists the operands of a TILE that are instructions, and returns how many there are; of these some may be 0. */
int l_tile_values(l_tile *t, l_val *to[L_TILE_VALUES]);
/* What l_instr.block is for a type of blocks; 0 when memory is short, or there are too many. */
uint8_t l_block_add(l_program *p, l_block b);
/* The type of v's value, or NULL if that is no block. */
static inline const l_block *l_block_of(const l_program *p, l_val v) {
  return p->code[v].block ? &p->blocks[p->code[v].block - 1] : NULL;
}
int l_check_add(l_program *p, l_check c);                                       /* -1 when memory is short */
int l_buffer_add(l_program *p, qn_dtype dtype, l_buffer_mode mode, l_val size); /* -1 when memory is short */
static inline l_layout l_layout_of(const l_instr *par) {
  if (!par->imm2) return (l_layout){ORDER_LANES, 1, 1};
  return (l_layout){(int)(par->imm2 & 0xffff), (int)(par->imm2 >> 16 & 0xffff), (int)(par->imm2 >> 32)};
}
static inline int64_t l_layout_word(l_layout l) {
  return (int64_t)l.threads | (int64_t)l.lanes << 16 | (int64_t)l.groups << 32;
}
/* The operand of an instruction that a row of lcodes.def describes. */
static inline l_val l_operand_of(const l_instr *in, const l_operand *o) {
  return *(const l_val *)((const char *)in + o->at);
}
/* Checks every rule above. False: `why` says which is broken. Checked builds verify every program, and parsed ones are always verified. */
QN_MUST_CHECK bool l_verify(const l_program *p, char *why, size_t size);
/* The text form (l_text.c): one instruction a line, numbered as in the program. */
void l_print(const l_program *p, text_buf *out);
/* Words of the text form. Tests also read it back, and print K with the same words (tests/unit/kernel_text.h). */
extern const char *const l_order_names[ORDER_NAMES];             /* by l_order */
extern const char *const l_buffer_mode_names[BUFFER_MODE_NAMES]; /* by l_buffer_mode */
extern const l_flag l_flags[L_FLAGS];
void l_print_constant(text_buf *out, qn_dtype dtype, uint64_t bits);  /* "0x3fc00000 (1.5)" */
void l_print_check(text_buf *out, uint32_t number, const l_check *c); /* a line of its own */
/* The verified program without blocks, of which executors know nothing: VECs over locals, with the same bits (l_blocks.c). NULL when memory is short. */
QN_MUST_CHECK l_program *l_without_blocks(const l_program *p);
/* A hash of everything but the name, so that kernels which differ only in names are compiled once. */
uint64_t l_hash(const l_program *p);

#endif
