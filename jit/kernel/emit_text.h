/* What the printers of C and CUDA C share: names, constants, primitives, index arithmetic, addresses, guards, and the facts about
 * a program that decide how its accumulators are realised. For emit_*.c and, of the facts, a device's block VM.
 *
 * In both targets value %7 is the variable v7 and loop %3 runs x3; inside a VEC j is i - from. The texts use the types and
 * words of math.h: b8 i32 f32 ..., INF32, add_f32 ...
 */
#ifndef JIT_KERNEL_EMIT_TEXT_H
#define JIT_KERNEL_EMIT_TEXT_H

#include "jit/kernel/emit.h"
#include "jit/kernel/math.h"

/* How an accumulator is used: bits of emitter.acc[v]. */
enum {
  ACC_VEC = 1,    /* pushed inside a VEC */
  ACC_SINGLE = 2, /* pushed outside VECs */
  ACC_NESTED = 4, /* many results, pushed in a FOR or WHILE of a VEC */
  ACC_MERGED = 8,
  ACC_SCANNED = 16,
  ACC_FINISHED = 32, /* by FINISH or PARTIAL */
  ACC_EXCLUSIVE = 64
};

typedef struct emitter {
  bool cuda;
  const l_program *p;
  text_buf *out;
  math_uses *uses;
  int depth;          /* indentation */
  l_val vec;          /* VEC being printed, or 0 */
  bool pieces;        /* in C: the VEC is cut where the ranges of its guards begin and end */
  l_val par;          /* PAR being printed: divisors before it have a divider */
  const char *active; /* name of the bool that must hold for memory access and checks, or "" */
  bool failed;        /* out of memory */
  /* facts, by instruction, in `memory` */
  arena memory;
  uint32_t *end;  /* of a block's opener: its END */
  uint8_t *acc;   /* of an ACC: ACC_ bits */
  uint8_t *ahead; /* for CUDA: of the block being printed, see emit_ahead */
  uint32_t *seg;  /* for emit_c: the segment of a VEC's instruction */
  uint32_t *seen; /* for emit_c: the last segment that has read the value */
  uint8_t *spill; /* for emit_c: the value crosses segments */
  uint8_t *even;  /* for emit_c: the bool is the same for all elements of a piece, and stands in the int w7 */
} emitter;

/* Fills in the facts. False when memory is short; emit_facts_free in any case. */
bool emit_facts(emitter *e, const l_program *p);
void emit_facts_free(emitter *e);

static inline const l_instr *emit_at(const emitter *e, l_val v) { return &e->p->code[v]; }
static inline const char *emit_type(uint8_t dtype) { return math_type((qn_dtype)dtype); }

/* A line, indented by the blocks that the lines before have left open. */
void emit_line(emitter *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The name of a primitive, noted as used: of a compare, cast or bitcast by the operand's type `from`. */
const char *emit_prim(emitter *e, char name[48], kop_id op, uint8_t dtype, uint8_t from);

/* ---- values ---- */

enum { EMIT_TEXT = 256 };
void emit_address(emitter *e, const l_instr *i, char out[EMIT_TEXT]);
void emit_buffer(int64_t b, char out[24]); /* p0, or v12 of a local */
uint8_t emit_buffer_type(const emitter *e, int64_t b);
/* The guard of a memory access and the active predicate as a condition, or "". */
void emit_guard(emitter *e, const l_instr *i, char out[EMIT_TEXT]);
/* In C, in a VEC that runs in pieces: the instruction whose w7 tells whether this one's range holds in the piece; 0: it has none. */
l_val emit_piece_guard(const emitter *e, const l_instr *i);
/* In C: is this a memory access in a VEC whose bool is the same for all elements? Then it is written all7, an int of which compilers know
 * nothing: gcc vectorises no loop with a mask that it knows to be a bool from outside. */
bool emit_is_switch(const emitter *e, const l_instr *i);
/* `const f32 v7 = ...;` for INT .. LOAD (no FINISH or SCAN); nothing for other instructions. */
void emit_instr(emitter *e, l_val v);
/* The part of an RMW after its guard: `*q = add_f32(*q, v7);` with q the element's address. */
void emit_rmw(emitter *e, const l_instr *i);
/* The primitives of L_MATH %v when it has a fast and a slow form: names; false if it has not. */
typedef struct emit_rare {
  char rare[48], fast[48], slow[48];
} emit_rare;
bool emit_rare_names(const emitter *e, l_val v, emit_rare *names);
/* "v4", "v4, v5" ...: operands a, b, c */
void emit_arguments(const l_instr *i, char out[64]);
/* Makes what the SETs of a loop's body do at its end, all at once; if `cond` is not empty, only where it holds. */
void emit_sets(emitter *e, l_val loop, const char *cond);
/* `for (...) {` of a FOR. */
void emit_loop(emitter *e, l_val v);
/* Prints an instruction outside VECs that is the same text in both targets: values, structure (with `block` for the instructions inside)
 * and ACC, PUSH and FINISH. Returns the last instruction that was printed. */
l_val emit_structure(emitter *e, l_val v, void (*block)(emitter *e, l_val from, l_val to));
/* Prints how the block of a VEC begins: the results of accumulators that it reads, and n, the number of its elements. */
void emit_vec_begin(emitter *e, l_val v);
/* Does a value need no memory of its own, so that it may be computed again wherever it is used? */
bool emit_again(const l_instr *i);

/* ---- kinds of instructions in a VEC ---- */

/* Must a VEC run this instruction element after element? (Stores that may meet, updates, chains.) */
bool emit_is_ordered(const emitter *e, const l_instr *i);
/* Is it a SCAN with one result? Such works on a strip of 64 elements. */
bool emit_is_strip_scan(const emitter *e, const l_instr *i);
/* Is it the FINISH of many results that the same VEC pushes, in a loop inside it? */
bool emit_is_inner_finish(const emitter *e, l_val vec, const l_instr *i);
/* Is it a push of many results inside a loop of the VEC? */
bool emit_is_nested_push(const emitter *e, const l_instr *i);
/* Is instruction k the first of the VEC with this code and operand a? */
bool emit_is_first(const emitter *e, l_val vec, l_val k);
/* Is instruction k the VEC's first PUSH, or SCAN that pushes, to an accumulator of 64 lanes? */
bool emit_is_lane_push(const emitter *e, l_val vec, l_val k);

/* ---- facts about VECs for CUDA (emit_ahead.c) ---- */

/* Does something in the phase of instruction v store to buffer b? */
bool emit_is_stored(const emitter *e, l_val v, int64_t b);
/* Does every thread read only what it wrote itself, so that no barrier is needed around the VEC? */
bool emit_is_private(const emitter *e, l_val vec);
/* Does no thread read what others write in the VEC? Then a loop around it needs barriers only before and behind. */
bool emit_is_parted(const emitter *e, l_val vec);
/* Has the VEC at most 64 elements, one a thread? (With accumulators of which each thread has its own result it has.) */
bool emit_is_short(const emitter *e, l_val vec);
enum {
  AHEAD_MAY = 1,    /* light, and made of what is so, too */
  AHEAD_LOAD = 2,   /* a load that is made ahead */
  AHEAD_WANTED = 4, /* it, or one of its addresses or guards, needs the value */
};
/* How many elements (or rows) ahead the loads in block `from` are made: `from` is the VEC, or a FOR around nothing but the VEC;
 * 0: none, and ahead is all 0; otherwise ahead[v] says what becomes of instruction v. */
int emit_ahead(const emitter *e, l_val from, l_val vec, uint8_t *ahead);

/* ---- products for CUDA (emit_cuda_tile.c) ---- */

/* Prints a TILE: with results in registers where it has a shape for that, else a thread computes one result after another. */
void emit_cuda_tile(emitter *e, const l_tile *t);
/* How many blocks share a multiprocessor's registers, at most `most`: fewer where threads keep results of a TILE. */
int emit_cuda_blocks(const emitter *e, int most);

/* ---- accumulators: facts ---- */

/* Has the ACC many results? */
static inline bool acc_many(const l_instr *a) { return a->a != 0; }
/* Does it give indices? */
static inline bool acc_arg(const l_instr *a) { return kop_is_arg(a->sub); }
/* Do all orders of combination give the same bits? */
bool acc_exact(const l_instr *a);
/* Has it one result that is kept in 64 lanes? */
bool acc_lanes(const emitter *e, l_val v);
/* In CUDA: has it at most 64 results, of which thread t keeps number t in its registers? */
bool acc_own(const emitter *e, l_val v);
/* Has it many results of order INNER? These are kept as a row for each push. */
bool acc_rows(const l_instr *a);
/* Are full chains collected in a tree? */
bool acc_tree(const l_instr *a);
int acc_chain(const l_instr *a); /* pushes to a chain */
/* The order that scans run in: FREE where all give the same bits. */
l_order acc_scan_order(const l_instr *a);
/* What the name of an accumulator is followed by in the name of its result. */
static inline const char *acc_field(const l_instr *a) { return acc_arg(a) ? "_i" : ""; }
/* The comparison that makes an arg* better, as an operator. */
static inline const char *acc_than(const l_instr *a) { return a->sub == KOP_argmax ? ">" : "<"; }
/* How many elements one subtree has, as text; in CUDA a thread has one lane. */
void acc_width(const emitter *e, l_val v, char out[24]);
void acc_identity(const l_instr *a, char out[80]); /* the value that changes nothing: -0.0 for sums of floats */
void acc_nothing(const l_instr *a, char out[80]);  /* the result where nothing was pushed */
void acc_zero(const l_instr *a, char out[80]);     /* what an exclusive scan gives first */
/* The combining primitive, noted as used (empty for arg*). */
const char *acc_prim(emitter *e, const l_instr *a, char name[48]);
/* The next element of a chain: f(cell, value), for DOT fma(value, times, cell). */
void acc_step(emitter *e, const l_instr *push, const char *cell, char out[EMIT_TEXT]);
/* How many subtrees can be open at a time, as an expression. */
void acc_levels(const emitter *e, l_val v, char out[64]);

/* ---- accumulators: text (emit_acc.c) ----
 *
 * Accumulator %7 is the array v7 of its chains (one element, lanes, or one element a result), the number of pushes v7_k, and a
 * binary counter of subtrees v7_t with v7_n leaves: adding leaf n combines it with the subtrees of the set low bits of n, which
 * is the balanced tree of l.h built from left to right. v7_i are the indices of arg*. Chains begin with the identity, which
 * changes no bit of their first element. Scans keep v7_s (elements so far), v7_c (the chain), v7_g and v7_b (what stands before
 * the group or chain, and before the block), v7_p (the value before), v7_h (the steps of the last 64 k).
 *
 * In CUDA a thread's own result of many (acc_own) is written as the only one, v7[0].
 *
 * A range of results is given by its first and its number, as texts; NULL is all of them (in CUDA shared out to the threads). */

/* The places of arrays in scratch: PLACE(type, name, elements), once more as PLACED(...) in CUDA. */
void emit_acc_places(emitter *e, l_val v, const char *macro);
/* An ACC where it stands: everything empty. */
void emit_acc_begin(emitter *e, l_val v);
/* Adds leaf[0 .. width), the chains of a range, to the tree, and counts it. */
void emit_acc_leaf(emitter *e, l_val v, const char *leaf, const char *from, const char *width);
/* Counts one push to the chains of a range, and adds these as leaves where they are full. */
void emit_acc_counted(emitter *e, l_val v, const char *from, const char *width);
/* What follows the pushes of one k to a range. */
void emit_acc_pushed(emitter *e, const l_instr *push, const char *from, const char *width);
/* A VEC in strips pushes many results inside a loop once for every strip, but counts these pushes once. For instruction k of `vec`, if
 * it is the first such push to its accumulator: saves the counts before the strips or, with `restore`, puts them back in each. */
void emit_acc_counters(emitter *e, l_val vec, l_val k, bool restore);
/* Leaves the result of a range in v (lanes unfolded). `whole`: remembers that it has been done. */
void emit_acc_root(emitter *e, l_val v, const char *from, const char *width, bool whole);
/* emit_acc_root of all results; one result in lanes is folded to v[0] if `fold`. */
void emit_acc_result(emitter *e, l_val v, bool fold);
/* The push of one element of the VEC: to its lane, its result, or as the next of a chain. */
void emit_acc_push(emitter *e, const l_instr *push);
/* The push that a SCAN stands for, too, if its accumulator is finished. */
void emit_acc_scan_push(emitter *e, const l_instr *scan);
/* A push outside VECs: one k of one result. */
void emit_acc_push_one(emitter *e, const l_instr *push);
/* The push of value b to cell `cell` (an index into v) whose k is `k`. */
void emit_acc_step(emitter *e, const l_instr *push, const char *cell, const char *k);
/* In C, before the loop of emit_acc_scan: where the step stands in its chain, as ints of which compilers know nothing
 * (emit_is_switch). */
void emit_scan_switches(emitter *e, l_val v);
/* The running values of a SCAN with one result, in place of the values of a strip: `strip` names these, in C with their number. */
void emit_acc_strip_scan(emitter *e, const l_instr *scan, const char *strip);
/* A SCAN with many results for element j of its VEC. */
void emit_acc_scan(emitter *e, l_val v);

/* ---- phases ---- */

/* What stands before all phases and what stands before the phase's PAR, which is returned. */
l_val emit_prelude(emitter *e, l_val phase);
/* In CUDA: does the local lie in shared memory, being of a small constant size while there is room? */
bool emit_is_shared(const emitter *e, l_val local);
/* Gives what a phase keeps in scratch its places; the printed variable `o` counts the bytes. */
void emit_places(emitter *e, l_val par);
/* The pointers to the program's buffers. */
void emit_buffers(emitter *e);

/* ---- units ---- */

typedef struct emit_target {
  math_target words;
  const char *preamble; /* behind the types: HELP (how functions begin), SIMD, FILLS, PLACE and the target's macros */
  /* What a function begins with, up to its first lines: of a phase, or of the last one, which tells the bytes of scratch. */
  void (*head)(emitter *e, const char *name, uint32_t number, bool phase);
  void (*phase)(emitter *e, l_val phase); /* the body of a phase */
} emit_target;
/* What a unit begins with: types, macros, and the primitives and functions that are used. */
void emit_words(const emit_target *t, const math_uses *uses, text_buf *out);
void emit_cuda_begin(const math_uses *uses, text_buf *out);
void emit_unit(const emit_target *t, const l_program *const *programs, const char *const *names, uint32_t n,
               cancel_flag cancel, text_buf *out);

#endif
