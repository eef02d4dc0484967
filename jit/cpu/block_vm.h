/* The block VM: an interpreter of L programs. In the body of a VEC each instruction works on a block of vm.block elements (a tunable), so
 * that interpreting it costs little beside the work. It runs any program on any machine without a compiler. Private to jit/cpu: others
 * call kernel_launch (cpu.h). */
#ifndef JIT_CPU_BLOCK_VM_H
#define JIT_CPU_BLOCK_VM_H

#include "jit/cpu/block_vm_loops.h"
#include "jit/run/host.h"
#include "lang/vm.h"

/* One decoded instruction. Its value is entry `at` of the frame's tables. */
typedef struct bvm_op {
  uint8_t code;  /* l_code */
  uint8_t mode;  /* which operands of fn are vectors */
  uint8_t size;  /* size class of the element that moves */
  uint8_t flags; /* OP_ bits */
  l_val at;      /* its number in the program */
  uint32_t end;  /* of an opener: position of its END, of an IF that of its ELSE, if it has one */
  l_val dest;    /* the STORE at whose destination the result is computed, or 0 */
  bvm_fn fn;
  const l_instr *in;
} bvm_op;
enum {
  OP_VECTOR = 1, /* stands inside a VEC */
  OP_ONCE = 2,   /* in a VEC, but the same for all elements: computed once a block */
  OP_ALIAS = 4,  /* a LOAD whose memory does not change while its value lives: the value may stay there */
  OP_MANY = 8    /* a VEC with pushes to accumulators of many results */
};

/* What is known of an accumulator (an ACC) before the program runs. */
typedef struct bvm_acc_plan {
  l_val at;
  uint8_t op, dtype, order, size; /* size: bytes of an element */
  bool many, arg;                 /* many results; argmax or argmin */
  bool scanned, finished, merged; /* is there a SCAN, a FINISH or PARTIAL, a MERGE of it? */
  bvm_fn fold;                    /* combines two values; NULL for argmax and argmin */
} bvm_acc_plan;

typedef struct bvm_phase {
  uint32_t before, par, end; /* positions in ops: its first instruction, its PAR, behind its END */
  uint32_t places, nplaces;  /* its LOCALs and ACCs: a range of vmcode.places */
  /* For the sizes of the last launch (vmcode.launched): bvm_phase_work, bvm_phase_bytes, instances of the PAR. */
  int64_t work;
  size_t bytes;
  int64_t instances;
} bvm_phase;

/* A translated program. */
typedef struct vmcode {
  arena memory; /* of itself and all tables below */
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
  uint32_t nmasks,
      nswaps; /* temporaries that are needed: a mask for each WHILE in a VEC, a copy for each SET from one carry to another */
  bvm_acc_plan *accs;
  uint32_t naccs;
  uint16_t *acc_of; /* per instruction: number of an L_ACC */
  uint32_t *places; /* positions of LOCALs and ACCs */
  uint32_t nplaces;
  /* Kept from launch to launch: the tables of the launching thread's frame, set up for registers at `regs` and blocks of regs_block
   * elements, and the ints of the last launch. `launched`: all that follows from sizes is that of these ints, and a launch with the same
   * ints need not compute it again; only of programs without scalars. */
  void *tables;
  const void *regs;
  int64_t regs_block;
  int64_t *ints;
  bool launched;
  /* With these ints, whatever the scalars, each compiled phase was one call on one thread that needed `scratch` bytes. */
  bool quick;
  bool steered; /* l_scalars_steer */
  size_t scratch;
} vmcode;

/* The loop that computes a KOP or MATH instruction; NULL: there is none for its types. */
bvm_fn bvm_loop_of(const bvm_loops *loops, const l_program *p, const l_instr *i);

/* Translates a program; bvm_code_free frees the result, which `p` must outlive. NULL when memory is short. */
QN_MUST_CHECK vmcode *bvm_code_make(const l_program *p, const bvm_loops *loops);
void bvm_code_free(void *code);

/* An accumulator while it runs (the head of block_vm_acc.c explains its parts). */
typedef struct bvm_acc {
  char *chain, *tree, *scan; /* memory of the running chain, of subtrees, of a scan's state */
  int64_t *index;            /* of argmax and argmin: per result */
  int64_t results, k;        /* number of results; pushes so far */
  uint64_t leaves;           /* of the tree so far */
  int levels;                /* that the tree has room for */
  bool done;                 /* the one result stands in `chain` */
  int64_t folded;            /* results whose lanes or rows are folded to one value */
  int64_t scanned;           /* elements that have been scanned */
  int64_t k0, scanned0;      /* the counts at the beginning of the running VEC */
  uint64_t leaves0;
} bvm_acc;

/* What a thread needs to run a program. Its arrays lie in the memory that bvm_frame_init is given. */
typedef struct bvm_frame {
  const vmcode *code;
  const qk_args *args;
  void **val;    /* per instruction: where a typed value is */
  int64_t *idx;  /* per instruction: index values, loop variables */
  uint64_t *uni; /* per instruction: storage of values outside VECs */
  bvm_acc *accs;
  char *regs, *temps; /* blocks: registers, and temporaries behind them */
  char *dynamic;      /* locals and accumulators of a phase */
  int64_t block;
  int64_t n, o, i0;      /* the running block: elements, offset from the VEC's beginning, i of its first element */
  const uint8_t *active; /* lanes of the innermost WHILE in a VEC; NULL: all */
  int depth;             /* WHILEs in a VEC that are running */
  kernel_failure failure;
} bvm_frame;

/* Bytes of a frame's tables, which have entries by instruction, and of its registers. Behind these lies the memory of a phase's locals and
 * accumulators (bvm_phase_bytes). */
size_t bvm_tables_bytes(const l_program *p, uint32_t naccs);
size_t bvm_regs_bytes(const vmcode *code, int64_t block);
/* Sets up a frame in such memory, which stays the caller's. */
void bvm_frame_init(bvm_frame *f, const vmcode *code, const qk_args *args, void *tables, void *regs, int64_t block);
/* Sets up a frame over tables that bvm_frame_init has filled for the same registers and block. */
void bvm_frame_again(bvm_frame *f, const vmcode *code, const qk_args *args, void *tables, void *regs, int64_t block);
/* Evaluates what stands before the phase's PAR. Returns the number of instances. */
int64_t bvm_phase_begin(bvm_frame *f, const bvm_phase *ph);
/* Bytes of the phase's locals and accumulators; bvm_phase_begin has run. Changes the frame's places of them: bvm_phase_run sets them again. */
size_t bvm_phase_bytes(bvm_frame *f, const bvm_phase *ph);
/* About how many elements one instance works on: what run.c decides by about threads. */
int64_t bvm_phase_work(const bvm_frame *f, const bvm_phase *ph);
/* Runs instances lo..hi-1; f->dynamic is set. False: interrupted. */
QN_MUST_CHECK bool bvm_phase_run(bvm_frame *f, const bvm_phase *ph, int64_t lo, int64_t hi);

#endif
