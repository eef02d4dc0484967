/* L: the loop program of a kernel. Executors (block VM, C, CUDA, x86) read only this.
 *
 * A program is a flat list of instructions with structure markers (PAR .. END and so on nest). An instruction that yields a
 * value is referred to by its index: SSA, defined before use, visible to the end of its block. There are three kinds of value:
 *   index    uniform i64 arithmetic on loop variables and parameters (addresses, bounds)
 *   uniform  a typed scalar defined outside any VEC: constants, host scalars, finished reductions, scalar loads
 *   vector   a typed value defined inside a VEC: one element per iteration. A uniform used in a VEC broadcasts.
 * Values leave a VEC only through stores, locals and accumulators.
 *
 * Phases. A program is a list of phases with a barrier between them. A phase has exactly one PAR at its top: instances
 * [0, n) are independent, threads take ranges of them. Its body may use FOR, VEC, IF, WHILE. A phase becomes one function
 *     void k(const qk_args *a, int64_t lo, int64_t hi)
 * that runs instances lo..hi-1. n is an index value made from parameters before the PAR (instructions at top level, before
 * the PAR of a phase, are evaluated by the launcher and by the function alike).
 *
 * Memory. Buffers are arguments: pointers to element 0 as the program sees it (offsets are already added). An address is
 * element-wise: base + stride * (i - start of the VEC) + vindex * vstride where base and strides are index values (may be
 * negative or 0) and vindex is an optional vector of i64. Locals are per-instance scratch arrays ("shared" on a GPU).
 *
 * Reductions are objects (ACC), see below; the order of combination is part of their meaning and the same in every executor.
 */
#ifndef JIT_KERNEL_L_H
#define JIT_KERNEL_L_H

#include <stdatomic.h>

#include "lang/op.h"

typedef enum kop_id {
#define KOP(name, arity, types, meaning) KOP_##name,
#include "jit/kernel/kops.def"
#undef KOP
  KOP_COUNT
} kop_id;
typedef struct kop_row { const char *name; uint8_t arity; const char *types; } kop_row;
extern const kop_row kop_rows[KOP_COUNT];

/* Functions of math.def (exp, log, ...): MATH_<name>; one row per name, bodies per dtype. */
typedef enum math_id {
#define MATH(name, arity, meaning) MATH_##name,
#include "jit/kernel/mathfns.def"
#undef MATH
  MATH_COUNT
} math_id;
typedef struct math_row { const char *name; uint8_t arity; } math_row;
extern const math_row math_rows[MATH_COUNT];

/* Reduction orders (kernel-ir.md). k is the logical index along the reduced axis, N its length.
 *   INNER  64 lanes k mod 64; in blocks of 1,024 a lane is a chain of 16; blocks combine lane-wise by the balanced tree on
 *          the block number; then lanes 64 -> 1 by halving: l[i] = f(l[i], l[i + h]) for h = 32, 16, .., 1
 *   OUTER  chains of 64 consecutive k; chains combine by the balanced tree on the chain number
 *   DOT    one fma chain upward over k in chunks of 4,096; chunks by the balanced tree
 *   TREE   each push is a leaf of the balanced tree (partials of a former phase)
 *   FREE   any order gives the same bits (integers, and, or, min, max, arg*)
 * The balanced tree over leaves 0..m-1: level by level, node i of a level is f(node 2i, node 2i+1) of the level below, or
 * node 2i alone. A chain starts from its first element. Nothing pushed at all: the identity (sum -0.0, prod 1, max -inf,
 * min +inf, the type's bounds for integers).
 */
typedef enum l_order { ORDER_INNER, ORDER_OUTER, ORDER_DOT, ORDER_TREE, ORDER_FREE } l_order;
enum { ORDER_LANES = 64, ORDER_CHAIN = 16, ORDER_BLOCK = 1024, ORDER_OUTER_CHAIN = 64, ORDER_DOT_CHUNK = 4096 };

typedef uint32_t l_val; /* index of an instruction; 0: none (instruction 0 is unused) */

typedef enum l_code {
  L_NONE,
  /* ---- index values (i64, uniform) ---- */
  L_INT,    /* imm */
  L_PARAM,  /* args->ints[imm] */
  L_VAR,    /* the variable of loop a (PAR, FOR, VEC; of a VEC usable only as a value by L_IOTA or in addresses' strides) */
  L_IADD, L_ISUB, L_IMUL, L_IDIV, L_IMOD, L_IMIN, L_IMAX, /* a, b; DIV and MOD floor, b > 0 */
  L_IVALUE, /* the uniform integer value a (of any int dtype) as an index */
  /* ---- values ---- */
  L_CONST,  /* dtype, bits in imm (as the dtype, zero-extended) */
  L_SCALAR, /* args->scalars[imm], dtype bool i64 f64 */
  L_IOTA,   /* index value a (+ b * (i - start) inside a VEC: b is the stride) as a value of dtype */
  L_KOP,    /* sub = kop_id, dtype = result type (for compares the operands' type is type2), operands a b c */
  L_MATH,   /* sub = math_id, dtype, operands a b c */
  L_LOAD,   /* buffer imm; a base, b stride (0: none), c vindex, d vstride; guard: e <= i < f (index values, of the enclosing
               VEC's variable), g predicate value; h value where the guard is false (required when guarded) */
  L_STORE,  /* buffer imm; value h; a b c d e f g as in L_LOAD */
  L_RMW,    /* sub = kop_id: buffer element = f(element, h); in iteration order, one element after the other */
  L_LOCAL,  /* a scratch array of a elements of dtype, 64-byte aligned; flag L_SHARED is a hint for GPUs. A buffer operand of
               LOAD/STORE/TILE is an argument (imm >= 0) or a local (imm = -index of its L_LOCAL) */
  /* ---- reductions ---- */
  L_ACC,    /* sub = kop_id, order in imm, dtype; a: 0 for one result, else an index value: that many independent results,
               one per element of the VECs that push to it */
  L_PUSH,   /* accumulator a, value b. One result: inside a VEC over k (or a FOR with a uniform value). Many results: inside a
               VEC over the results, under a FOR over k. c: index value of the first k (default 0); for INNER a multiple
               of 1,024. DOT: push b and d (multiplied by fma). Pushes come with k ascending. */
  L_PARTIAL,/* writes a's state as a subtree root to buffer imm at element b: 64 lanes (INNER) or one per result; with arg*: the
               indices follow in buffer d. The pushes so far must be a whole power-of-two number of leaves, or the last. */
  L_MERGE,  /* accumulator a (order TREE semantic on top of its own): adds a partial from buffer imm at element b (indices: d) */
  L_FINISH, /* the result of accumulator a: uniform, or a vector inside a VEC over the results. i64 for arg*. */
  /* ---- contraction ---- */
  L_TILE,   /* local h (row-major a x b results) = sum over c of X . Y by order DOT. X, Y are buffers (x = imm, y = imm2)
               with base and strides as index values: see l_tile. */
  /* ---- structure ---- */
  L_PHASE,  /* begins a phase */
  L_PAR,    /* a: number of instances; imm: grain hint (instances per thread at least) */
  L_FOR,    /* a from, b to (exclusive), c step (0: 1) ; flag L_UNROLL */
  L_VEC,    /* a from, b to: innermost, straight line (FOR/WHILE inside a VEC only with carries) */
  L_IF,     /* a: uniform bool value or index value != 0 */
  L_ELSE,
  L_WHILE,  /* repeats while a carry b (bool; in a VEC: while any lane) is true; frozen lanes keep their carries */
  L_CARRY,  /* a loop-carried value: a initial value */
  L_SET,    /* carry a becomes b at the end of the iteration */
  L_END,    /* ends the innermost PAR, FOR, VEC, IF, WHILE */
  L_CHECK,  /* value a (bool; vector or uniform) false is failure imm (check number) at element b (index of the first element
               of the VEC or the element) + c * (i - start); d: the offending value (i64), kept for the message by rerun */
  L_SYNC,   /* all threads of an instance (GPU); nothing on the CPU */
  L_POLL,   /* interrupt flag */
  L_CODE_COUNT
} l_code;

enum { L_SHARED = 1, L_UNROLL = 2 };

typedef struct l_instr {
  uint8_t code; /* l_code */
  uint8_t sub;  /* kop_id or math_id */
  uint8_t dtype, type2; /* qn_dtype */
  uint8_t flags;
  l_val a, b, c, d, e, f, g, h;
  int64_t imm, imm2;
} l_instr;

/* Operands of L_TILE, in program->tiles[imm]. result[m][n] for m < rows, n < cols (both at most tile_rows, tile_cols):
 * sum over k of X[x_base + m * x_m + k * x_k] * Y[y_base + k * y_k + n * y_n], stored to local `out` at m * tile_cols + n.
 * f16 and bf16 operands are read as f32. Integer dtypes multiply and add, wrapping. */
typedef struct l_tile {
  int32_t x, y; /* buffers */
  l_val x_base, x_m, x_k, y_base, y_k, y_n;
  l_val rows, cols, depth;
  int32_t tile_rows, tile_cols; /* constants chosen by the schedule */
  l_val out; /* L_LOCAL */
} l_tile;

typedef enum l_buffer_mode { BUF_IN, BUF_OUT, BUF_INOUT, BUF_SCRATCH } l_buffer_mode;
typedef struct l_buffer {
  uint8_t dtype;
  uint8_t mode;  /* l_buffer_mode; SCRATCH: partials, `size` elements (an index expression evaluated by the launcher) */
  l_val size;
} l_buffer;

/* A check's error, for L_CHECK number i: what to raise and where (a site of the graph). */
typedef struct l_check {
  int id;        /* error_id */
  uint32_t site;
  int64_t detail; /* op-specific: the axis of an index, the target dtype of a conversion ... */
} l_check;

typedef struct l_program {
  arena arena;   /* owns everything below; no VM inside */
  l_instr *code;
  uint32_t n, cap;
  l_buffer *buffers;
  uint32_t nbuffers, buffers_cap;
  l_tile *tiles;
  uint32_t ntiles, tiles_cap;
  l_check *checks;
  uint32_t nchecks, checks_cap;
  uint32_t nints, nscalars;
  const char *name; /* for people: "softmax_f32" */
  bool failed;
} l_program;

/* ---- what kernels receive --------------------------------------------------------------------------------------------------- */

typedef union qk_scalar { int64_t i; double f; } qk_scalar;

/* The error cell: atomic minimum of check number << 48 | element; ~0 means no failure. Masked, padded and inactive lanes never
 * fail. The same error for any number of threads. */
typedef struct qk_args {
  void *const *buf;
  const int64_t *ints;
  const qk_scalar *scalars;
  void *scratch;                /* of the calling thread: l_scratch_bytes, 64-byte aligned: locals and accumulators */
  _Atomic uint64_t *error;
  const atomic_int *interrupt;
} qk_args;
typedef void (*qk_phase)(const qk_args *args, int64_t lo, int64_t hi);

/* ---- building, checking, printing ----------------------------------------------------------------------------------------------- */

QN_MUST_CHECK l_program *l_new(const char *name);
void l_free(l_program *p);
l_val l_emit(l_program *p, l_instr i); /* 0 when memory is short (p->failed) */
int l_buffer_add(l_program *p, qn_dtype dtype, l_buffer_mode mode, l_val size);
/* Every rule above; false fills in `why`. Run on every program in checked builds and on every parsed one. */
QN_MUST_CHECK bool l_verify(const l_program *p, char *why, size_t size);
void l_print(const l_program *p, text_buf *out);
QN_MUST_CHECK l_program *l_parse(const char *text, char *why, size_t size);
/* Hash of everything but the name: kernels that differ only in names are compiled once. */
uint64_t l_hash(const l_program *p);

#endif
