/* The block VM: runs L programs by interpretation, a vec body one instruction at a time on blocks of vm.block elements. The
 * reference executor and the fallback, on any machine, at once. Inside jit/cpu only; kernel_launch (cpu.h) is the door. */
#ifndef JIT_CPU_VM_H
#define JIT_CPU_VM_H

#include "jit/cpu/block_vm_loops.h"
#include "jit/run/host.h"
#include "lang/vm.h"

/* One decoded instruction. `at` is its number in the program: what it yields lives in slot `at` of the frame. */
typedef struct bvm_op {
  uint8_t code;  /* l_code */
  uint8_t mode;  /* which operands of fn are vectors */
  uint8_t size;  /* size class of the element that moves */
  uint8_t flags; /* OP_ bits */
  l_val at;
  uint32_t end; /* of structures: position of the END; of IF: of ELSE or END */
  l_val dest;   /* STORE that the result can be computed into, or 0 */
  bvm_fn fn;
  const l_instr *in;
} bvm_op;
enum {
  OP_VECTOR = 1, /* stands inside a VEC */
  OP_ONCE = 2,   /* in a VEC, but the same for all elements: computed once a block */
  OP_ALIAS = 4,  /* a LOAD whose memory does not change while its value lives: the value may stay there */
  OP_MANY = 8    /* a VEC with pushes to accumulators of many results */
};

typedef struct bvm_acc_plan {
  l_val at;
  uint8_t op, dtype, order, size; /* size: bytes of an element */
  bool many, arg, scanned, finished, merged;
  bvm_fn fold;
} bvm_acc_plan;

typedef struct bvm_phase {
  uint32_t before, par, end; /* positions of: its first own instruction, PAR, and past its END */
  uint32_t places, nplaces;  /* its LOCALs and ACCs: positions in vmcode.places */
  /* For the sizes of the last launch (vmcode.launched): */
  int64_t work;
  size_t bytes;
  int64_t instances;
} bvm_phase;

typedef struct vmcode {
  const l_program *p;
  const bvm_loops *loops;
  bvm_op *ops;
  uint32_t nops;
  uint32_t prelude_end; /* ops[0..prelude_end) run before every phase */
  bvm_phase *phases;
  uint32_t nphases;
  uint16_t *reg;   /* per instruction: register + 1 of a vector value */
  uint8_t *scalar; /* per instruction: one value although inside a VEC, or outside VECs */
  uint32_t nregs;
  uint32_t nmasks, nswaps; /* WHILEs in VECs, SETs of carries to carries: at most so many temporaries */
  bvm_acc_plan *accs;
  uint32_t naccs;
  uint16_t *acc_of; /* per instruction: number of an L_ACC */
  uint32_t *places; /* positions of LOCALs and ACCs */
  uint32_t nplaces;
  /* What the launcher's thread keeps from launch to launch: the tables of its frame, initialised for registers at `regs`, and
   * the ints that launch-time values were computed for (only if the program has no scalars). */
  void *tables;
  const void *regs;
  int64_t regs_block;
  int64_t *ints;
  bool launched;
  /* For the same ints (and whatever scalars) compiled phases run on one thread, each in one piece, with so much scratch. */
  bool quick;
  size_t scratch;
} vmcode;

/* The loop that computes a KOP or MATH instruction; NULL: there is none for its types. */
bvm_fn bvm_loop_of(const bvm_loops *loops, const l_program *p, const l_instr *i);

/* Translates a program; bvm_code_free frees the result, which `p` must outlive. NULL when memory is short. */
QN_MUST_CHECK vmcode *bvm_code_make(const l_program *p, const bvm_loops *loops);
void bvm_code_free(void *code);

typedef struct bvm_acc {
  char *chain, *tree, *scan;
  int64_t *index; /* of arg*: per result */
  int64_t results, k;
  uint64_t leaves;
  int levels;
  bool done;
  int64_t folded; /* results whose rows are folded already */
  int64_t scanned;
  int64_t k0; /* at the beginning of the running VEC */
  uint64_t leaves0;
  int64_t scanned0;
} bvm_acc;

/* Everything a thread needs: one piece of memory, laid out by frame_init. */
typedef struct bvm_frame {
  const vmcode *code;
  const qk_args *args;
  void **val;    /* per instruction: where a typed value is */
  int64_t *idx;  /* per instruction: index values, loop variables */
  uint64_t *uni; /* per instruction: storage of values outside VECs */
  bvm_acc *accs;
  char *regs, *temps;
  char *dynamic; /* locals and accumulators of a phase */
  int64_t block;
  int64_t n, o, i0;      /* the running block: elements, offset from the VEC's beginning, i of its first element */
  const uint8_t *active; /* lanes of the innermost WHILE in a VEC; NULL: all */
  int depth;             /* WHILEs in a VEC that are running */
  kernel_failure failure;
} bvm_frame;

/* A frame is tables (per instruction) and registers, and behind these the dynamic part. */
size_t bvm_tables_bytes(const l_program *p, uint32_t naccs);
size_t bvm_regs_bytes(const vmcode *code, int64_t block);
void bvm_frame_init(bvm_frame *f, const vmcode *code, const qk_args *args, void *tables, void *regs, int64_t block);
/* Sets up a frame over tables that bvm_frame_init has filled for the same registers and block. */
void bvm_frame_again(bvm_frame *f, const vmcode *code, const qk_args *args, void *tables, void *regs, int64_t block);
/* Evaluates what stands before the phase's PAR. Returns the number of instances. */
int64_t bvm_phase_begin(bvm_frame *f, const bvm_phase *ph);
/* Bytes of locals and accumulators of the phase; bvm_phase_begin has run. What the frame knows of their places is lost. */
size_t bvm_phase_bytes(bvm_frame *f, const bvm_phase *ph);
/* About how many elements one instance works on, as share_out (run.c) weighs them. */
int64_t bvm_phase_work(const bvm_frame *f, const bvm_phase *ph);
/* Runs instances lo..hi-1; f->dynamic is set. False: interrupted. */
QN_MUST_CHECK bool bvm_phase_run(bvm_frame *f, const bvm_phase *ph, int64_t lo, int64_t hi);
/* Size of scratch buffer `b`, in elements; the prelude has run in `f`. */
int64_t bvm_scratch_elements(const bvm_frame *f, uint32_t b);

#endif
