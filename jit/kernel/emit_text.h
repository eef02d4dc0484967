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
  ACC_VEC = 1,    /* a PUSH or SCAN inside a VEC */
  ACC_SINGLE = 2, /* a PUSH or SCAN outside VECs */
  ACC_NESTED = 4, /* many results, and a PUSH or SCAN in a FOR or WHILE of a VEC */
  ACC_MERGED = 8,
  ACC_SCANNED = 16,
  ACC_FINISHED = 32, /* a FINISH or PARTIAL */
  ACC_EXCLUSIVE = 64
};

typedef struct emitter {
  bool cuda;
  const l_program *p;
  text_buf *out;
  math_uses *uses;
  int depth;       /* indentation */
  l_val vec;       /* the VEC being printed, or 0 */
  bool pieces;     /* in C: is the VEC cut where the ranges of its guards begin and end? */
  bool arrays;     /* for emit_c: do pushes to lanes leave their values in arrays? */
  bool streaming;  /* for emit_c: do stores leave their values in arrays, which go to memory past the caches? */
  bool streams;    /* for emit_c: has the phase such stores? */
  l_val par;       /* the PAR being printed: divisions by values from before it use dividers */
  l_layout layout; /* for CUDA: of the phase being printed */
  bool rows;   /* for CUDA, in a layout of its own: has the phase accumulators, so that VECs are dealt out by lanes? */
  bool inside; /* the ranges of all guards hold; in C, so do bools that are the same for all elements of a piece */
  const char *active; /* the bool that must hold for memory accesses and checks to be made, or "" */
  int kept;           /* for CUDA: elements of a VEC that a thread keeps in registers (emit_cuda_kept) */
  bool failed;        /* out of memory */
  uint32_t trees;     /* ACCs whose chains are combined in a tree */
  /* facts, by instruction, in `memory` */
  arena memory;
  uint32_t *end;         /* by instruction that opens a block: the block's END */
  uint8_t *acc;          /* by ACC: ACC_ bits */
  uint8_t *ahead;        /* for CUDA: AHEAD_ bits in the block being printed, see emit_ahead */
  uint32_t *seg;         /* for emit_c: the segment of an instruction in a VEC */
  uint32_t *seen;        /* for emit_c: the last segment that has read the value from its array */
  uint8_t *spill;        /* for emit_c: is the value made in one segment and used in another? */
  int64_t *least, *most; /* NULL, or what is known of index values: those between -2^30 and 2^30 are printed as ints */
  uint8_t *even;         /* for emit_c: is the bool the same for all elements of a piece, so that it is the int w7? */
} emitter;

/* Computes the facts about a program. False when memory is short; emit_facts_free in any case. */
bool emit_facts(emitter *e, const l_program *p);
void emit_facts_free(emitter *e);
/* Finds out between which numbers index values lie, in programs that know their sizes, so that the text computes with 32 bits. */
void emit_ranges(emitter *e);

static inline const l_instr *emit_at(const emitter *e, l_val v) { return &e->p->code[v]; }
static inline const char *emit_type(uint8_t dtype) { return math_type((qn_dtype)dtype); }

/* Prints a line, indented by the blocks that the lines before have left open. */
void emit_line(emitter *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The name of a primitive, which is noted as used. `from` is the operand's dtype, which names compares, casts and bitcasts. */
const char *emit_prim(emitter *e, char name[48], kop_id op, uint8_t dtype, uint8_t from);

/* ---- values ---- */

enum { EMIT_TEXT = 256 };
void emit_address(emitter *e, const l_instr *i, char out[EMIT_TEXT]);
/* In C: is the element's place in an access made of a truth value? As an offset of a vector's loads gcc 12 takes a comparison for the word
 * of its vector, which is -1 where it is true. So such a place is printed as `v & bits`, where `bits` are all 64, unknown to gcc. */
bool emit_is_masked(const emitter *e, const l_instr *i);
void emit_buffer(int64_t b, char out[24]); /* p0, or v12 of a local */
uint8_t emit_buffer_type(const emitter *e, int64_t b);
/* The condition of a memory access: its guard and e->active, or "". */
void emit_guard(emitter *e, const l_instr *i, char out[EMIT_TEXT]);
/* In C, in a VEC that runs in pieces: the instruction number in the name w7 of the int that tells whether this access' range holds in the
 * piece. 0: it has no range. */
l_val emit_piece_guard(const emitter *e, const l_instr *i);
/* Does bool v of the VEC decide of a choice or an access in it? */
bool emit_decides(const emitter *e, l_val vec, l_val v);
/* In C: is this a memory access in a VEC whose guard's bool comes from outside the VEC? It is then written as all7, an int that compilers
 * know nothing about, since gcc does not vectorise a loop with a mask that it knows to be a bool from outside. */
bool emit_is_switch(const emitter *e, const l_instr *i);
/* In C: is it a choice by a bool %5 that comes from outside the VEC? It is written with the mask m5_32, where 32 are the bits of the choice,
 * which compilers know nothing about either. (prims.def has blend for numbers that are not narrow.) */
bool emit_is_blend(const emitter *e, const l_instr *i);
/* In C: is it a power in a VEC, of floats, one of which comes from outside? pow chooses by each, so that one is written as vary_f32(v7, j & none),
 * where `none` is an i64 of 0 that compilers know nothing about. */
bool emit_is_varied(const emitter *e, const l_instr *i);
/* Prints `const f32 v7 = ...;` for an instruction from INT to LOAD but FINISH and SCAN, and nothing for others. */
void emit_instr(emitter *e, l_val v);
/* Prints the update of an RMW, `*q = add_f32(*q, v7);`, where q is the element's address. */
void emit_rmw(emitter *e, const l_instr *i);
/* The names of the functions of L_MATH v: is an argument rare, and the slow and fast form. False if the function has only one form. */
typedef struct emit_rare {
  char rare[48], fast[48], slow[48];
} emit_rare;
bool emit_rare_names(const emitter *e, l_val v, emit_rare *names);
/* Writes operands a, b and c as "v4", "v4, v5" ... */
void emit_arguments(const l_instr *i, char out[64]);
/* Prints the SETs of a loop's body, which take effect at its end, all at once; with a `cond` only where that holds. */
void emit_sets(emitter *e, l_val loop, const char *cond);
/* Prints `for (...) {` of a FOR. */
void emit_loop(emitter *e, l_val v);
/* Prints an instruction outside VECs that is the same text in both targets: values, structure (with `block` for the instructions inside)
 * and ACC, PUSH and FINISH. Returns the last instruction that was printed. */
l_val emit_structure(emitter *e, l_val v, void (*block)(emitter *e, l_val from, l_val to));
/* Prints how the block of a VEC begins: the results of accumulators that it reads, and n, the number of its elements. */
void emit_vec_begin(emitter *e, l_val v);
/* May the value be computed again wherever it is used, so that it needs no array? */
bool emit_again(const l_instr *i);

/* ---- kinds of instructions in a VEC ---- */

/* Must a VEC run this instruction element after element? (Stores that may meet, updates, chains.) */
bool emit_is_ordered(const emitter *e, const l_instr *i);
/* Is it a SCAN with one result, which works on a strip of 64 elements? */
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
/* Does every thread read only memory that it wrote itself, so that no barrier is needed around the VEC? */
bool emit_is_private(const emitter *e, l_val vec);
/* Does no thread read what others write in the VEC? Then a loop around the VEC needs barriers only before and after it. */
bool emit_is_parted(const emitter *e, l_val vec);
/* Has the VEC at most 64 elements, one for each thread? */
bool emit_is_short(const emitter *e, l_val vec);
enum {
  AHEAD_MAY = 1,    /* it could be computed ahead: light, and so are the instructions that it depends on */
  AHEAD_LOAD = 2,   /* a load that is made ahead */
  AHEAD_WANTED = 4, /* it is such a load, or is needed for the address or guard of one */
};
/* For how many elements (or rows) at a time the loads in block `from` are made ahead; `from` is the VEC, or a FOR around nothing but the VEC.
 * ahead[v] is set to the AHEAD_ bits of instruction v. 0: no loads are made ahead, and `ahead` is all 0. */
int emit_ahead(const emitter *e, l_val from, l_val vec, uint8_t *ahead);
/* The same for a VEC whose loads are made ahead in any case: `ahead` is set where nothing is advised, too. *weight: of its instructions. */
int emit_ahead_marks(const emitter *e, l_val vec, uint8_t *ahead, int *weight);

/* ---- phases with a layout of their own (emit_cuda_wide.c) ---- */

/* Does the phase of PAR `par` merge partial results? Its layout is then that of emit_cuda.c, with 64 threads for each piece of a merge. */
bool emit_has_merges(const emitter *e, l_val par);
/* How many blocks of the phase of PAR `par` share a multiprocessor's registers. */
int emit_cuda_wide_blocks(emitter *e, l_val par);
/* How many elements of each of its VECs a thread of such a phase keeps in registers: these are then rows of a length that is known. 0: none,
 * and what is kept lies in scratch or shared memory. */
int emit_cuda_kept(const emitter *e, l_val par);
/* Prints the body of such a phase. */
void emit_cuda_wide(emitter *e, l_val phase);
/* Prints a CHECK. */
void emit_cuda_check(emitter *e, const l_instr *i);

/* ---- products for CUDA (emit_cuda_tile.c) ---- */

/* Prints a TILE. */
void emit_cuda_tile(emitter *e, const l_tile *t);
/* How many blocks share a multiprocessor's registers, at most `most`: fewer where threads keep results of a TILE. */
int emit_cuda_blocks(const emitter *e, int most);

/* ---- accumulators: facts ---- */

/* Has the ACC many results? */
static inline bool acc_many(const l_instr *a) { return a->a != 0; }
/* Does it give indices? */
static inline bool acc_arg(const l_instr *a) { return kop_is_arg(a->sub); }
/* Does every order of combination give the same bits? */
bool acc_exact(const l_instr *a);
/* Is its one result kept in 64 lanes? */
bool acc_lanes(const emitter *e, l_val v);
/* In CUDA: has it at most 64 results, of which thread t keeps number t in its registers? */
bool acc_own(const emitter *e, l_val v);
/* Has it many results of order INNER, so that every push is kept as a row? */
bool acc_rows(const l_instr *a);
/* Are full chains combined in a tree? */
bool acc_tree(const l_instr *a);
int acc_chain(const l_instr *a); /* how many pushes make a chain */
/* The order of its scans: FREE where every order gives the same bits. */
l_order acc_scan_order(const l_instr *a);
/* What the name of an accumulator is followed by in the name of its result. */
static inline const char *acc_field(const l_instr *a) { return acc_arg(a) ? "_i" : ""; }
/* The operator by which an arg reduction compares values. */
static inline const char *acc_than(const l_instr *a) { return a->sub == KOP_argmax ? ">" : "<"; }
/* The number of elements that its arrays have for one subtree, as text: results, or lanes (of which a thread in CUDA has one). */
void acc_width(const emitter *e, l_val v, char out[24]);
void acc_identity(const l_instr *a, char out[80]); /* the value that changes nothing: -0.0 for sums of floats */
void acc_nothing(const l_instr *a, char out[80]);  /* the result where nothing was pushed */
void acc_zero(const l_instr *a, char out[80]);     /* what an exclusive scan gives first */
/* The name of the primitive that combines, which is noted as used ("" for arg reductions). */
const char *acc_prim(emitter *e, const l_instr *a, char name[48]);
/* The value of cell `cell` after a push, as an expression: f(cell, value), or fma(value, times, cell) of order DOT. */
void acc_step(emitter *e, const l_instr *push, const char *cell, char out[EMIT_TEXT]);
/* How many subtrees can be open at a time, as an expression. */
void acc_levels(const emitter *e, l_val v, char out[64]);

/* ---- accumulators: text (emit_acc.c) ----
 *
 * Accumulator %7 has an array v7 of chains (one element, 64 lanes, or one element for each result), the number of pushes v7_k, and
 * subtrees v7_t with v7_n leaves. These form a binary counter: adding leaf n combines it with the subtrees of the set low bits of n,
 * which builds the balanced tree of l.h from left to right. v7_i are the indices of arg reductions. Chains begin with the identity,
 * which changes no bit of their first element. Scans keep v7_s (elements so far), v7_c (the chain), v7_g and v7_b (the value before the
 * group or chain, and before the block), v7_p (the value before), v7_h (the six steps of the last 64 k).
 *
 * In CUDA a thread that has one of many results (acc_own) calls it v7[0].
 *
 * A range of results is given by texts for its first result and their number; NULL means all (which the threads share in CUDA). */

/* Prints the places of an accumulator's arrays in scratch: PLACE(type, name, elements) and, in CUDA, in a second pass PLACED(...). */
void emit_acc_places(emitter *e, l_val v, const char *macro);
/* In C, before the program's functions: those that they call for the trees and scans of its accumulators, each once a unit. */
void emit_acc_functions(emitter *e);
/* Prints an ACC: an accumulator without pushes. */
void emit_acc_begin(emitter *e, l_val v);
/* Prints the addition of leaf[0 .. width), the chains of a range, to the tree. */
void emit_acc_leaf(emitter *e, l_val v, const char *leaf, const char *from, const char *width);
/* Prints the counting of one push to the chains of a range, which become leaves where they are full. */
void emit_acc_counted(emitter *e, l_val v, const char *from, const char *width);
/* Prints what follows when all results of a range have got their push of one k. */
void emit_acc_pushed(emitter *e, const l_instr *push, const char *from, const char *width);
/* A VEC in strips pushes many results inside a loop once for every strip, but counts these pushes once. For instruction k of `vec`, if
 * it is the first such push to its accumulator: saves the counts before the strips or, with `restore`, puts them back in each. */
void emit_acc_counters(emitter *e, l_val vec, l_val k, bool restore);
/* Prints the computation of a range's results, which end up in v7 (lanes are not combined). `whole`: it is done only once. */
void emit_acc_root(emitter *e, l_val v, const char *from, const char *width, bool whole);
/* emit_acc_root for all results; with `fold` the lanes of a single result are combined into v7[0]. */
void emit_acc_result(emitter *e, l_val v, bool fold);
/* Prints the push of one element of a VEC: to its lane, to its result, or as the next element of the only chain. */
void emit_acc_push(emitter *e, const l_instr *push);
/* A SCAN whose accumulator is finished pushes its value as well: prints this push. */
void emit_acc_scan_push(emitter *e, const l_instr *scan);
/* Prints a PUSH outside VECs, to an accumulator with one result. */
void emit_acc_push_one(emitter *e, const l_instr *push);
/* Prints the push of an instruction's operand b, whose index along the axis is `k`, to cell `cell` of v7. */
void emit_acc_step(emitter *e, const l_instr *push, const char *cell, const char *k);
/* In C, before the loop with emit_acc_scan: the conditions of the scan's steps, as ints that compilers know nothing about
 * (emit_is_switch). */
void emit_scan_switches(emitter *e, l_val v);
/* The running values of a SCAN with one result, in place of the values of a strip: `strip` names these, in C with their number. */
void emit_acc_strip_scan(emitter *e, const l_instr *scan, const char *strip);
/* Prints a SCAN with many results for element j of its VEC. */
void emit_acc_scan(emitter *e, l_val v);

/* ---- phases ---- */

/* Prints the instructions before all phases and those before the PAR of `phase`. Returns the PAR. */
l_val emit_prelude(emitter *e, l_val phase);
/* In CUDA: does the local lie in shared memory, being of a small constant size while there is room? */
bool emit_is_shared(const emitter *e, l_val local);
/* Prints the places of a phase's locals and accumulators in scratch; the printed variable `o` counts the bytes. */
void emit_places(emitter *e, l_val par);
/* Prints the pointers to the program's buffers. */
void emit_buffers(emitter *e);

/* ---- units ---- */

typedef struct emit_target {
  math_target words;
  /* text after the types: HELP (how functions begin), SIMD, FILLS, PLACE and the target's macros */
  const char *preamble;
  /* Prints how a function begins: that of a phase or, with `phase` false, the last one, which tells the bytes of scratch. */
  void (*head)(emitter *e, const char *name, uint32_t number, bool phase);
  void (*phase)(emitter *e, l_val phase); /* prints the body of a phase */
} emit_target;
/* Prints how a unit begins: types, macros, and the primitives and functions that are used. */
void emit_words(const emit_target *t, const math_uses *uses, text_buf *out);
void emit_cuda_begin(const math_uses *uses, text_buf *out);
void emit_unit(const emit_target *t, const l_program *const *programs, const char *const *names, uint32_t n,
               cancel_flag cancel, text_buf *out);

#endif
