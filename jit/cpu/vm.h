/* The block VM: runs L programs by interpretation, a vec body one instruction at a time on blocks of vm.block elements. The
 * reference executor and the fallback, on any machine, at once. Inside jit/cpu only; run.h is the door. */
#ifndef JIT_CPU_VM_H
#define JIT_CPU_VM_H

#include "jit/cpu/vmloops.h"
#include "lang/vm.h"

/* One decoded instruction. `at` is its number in the program: what it yields lives in slot `at` of the frame. */
typedef struct vm_op {
  uint8_t code;  /* l_code */
  uint8_t mode;  /* which operands of fn are vectors */
  uint8_t size;  /* size class of the element that moves */
  uint8_t flags; /* OP_ bits */
  l_val at;
  uint32_t end; /* of structures: position of the END; of IF: of ELSE or END */
  l_val dest;   /* STORE that the result can be computed into, or 0 */
  vm_fn fn;
  const l_instr *in;
} vm_op;
enum {
  OP_VECTOR = 1, /* stands inside a VEC */
  OP_ONCE = 2,   /* in a VEC, but the same for all elements: computed once a block */
  OP_ALIAS = 4,  /* a LOAD whose memory does not change while its value lives: the value may stay there */
  OP_MANY = 8    /* a VEC with pushes to accumulators of many results */
};

typedef struct vm_acc_plan {
  l_val at;
  uint8_t op, dtype, order, size; /* size: bytes of an element */
  bool many, arg, scanned, finished, merged;
  vm_fn fold;
} vm_acc_plan;

typedef struct vm_phase {
  uint32_t before, par, end; /* positions of: its first own instruction, PAR, and past its END */
  uint32_t places, nplaces;  /* its LOCALs and ACCs: positions in vmcode.places */
  /* For the sizes of the last launch (vmcode.launched): */
  int64_t work;
  size_t bytes;
  int64_t instances;
} vm_phase;

typedef struct vmcode {
  const l_program *p;
  const vm_loops *loops;
  vm_op *ops;
  uint32_t nops;
  uint32_t prelude_end; /* ops[0..prelude_end) run before every phase */
  vm_phase *phases;
  uint32_t nphases;
  uint16_t *reg;   /* per instruction: register + 1 of a vector value */
  uint8_t *scalar; /* per instruction: one value although inside a VEC, or outside VECs */
  uint32_t nregs;
  uint32_t nmasks, nswaps; /* WHILEs in VECs, SETs of carries to carries: at most so many temporaries */
  vm_acc_plan *accs;
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

/* The loop of a KOP or MATH instruction. */
vm_fn vm_loop_of(const vm_loops *loops, const l_program *p, const l_instr *i);

/* NULL when memory is short. `p` must outlive the result. */
QN_MUST_CHECK vmcode *vmcode_make(const l_program *p, const vm_loops *loops);

/* What a failed check showed: the smallest error so far and the offending value. */
typedef struct vm_failure {
  uint64_t error; /* ~0: none */
  bool shown;
  uint8_t dtype; /* of the value shown */
  uint64_t bits;
} vm_failure;

typedef struct vm_acc {
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
} vm_acc;

/* Everything a thread needs: one piece of memory, laid out by frame_init. */
typedef struct vm_frame {
  const vmcode *code;
  const qk_args *args;
  void **val;    /* per instruction: where a typed value is */
  int64_t *idx;  /* per instruction: index values, loop variables */
  uint64_t *uni; /* per instruction: storage of values outside VECs */
  vm_acc *accs;
  char *regs, *temps;
  char *dynamic; /* locals and accumulators of a phase */
  int64_t block;
  int64_t n, o, i0;      /* the running block: elements, offset from the VEC's beginning, i of its first element */
  const uint8_t *active; /* lanes of the innermost WHILE in a VEC; NULL: all */
  int depth;             /* WHILEs in a VEC that are running */
  vm_failure failure;
} vm_frame;

/* A frame is tables (per instruction) and registers, and behind these the dynamic part. */
size_t vm_tables_bytes(const l_program *p, uint32_t naccs);
size_t vm_regs_bytes(const vmcode *code, int64_t block);
void vm_frame_init(vm_frame *f, const vmcode *code, const qk_args *args, void *tables, void *regs, int64_t block);
/* The same with tables that were initialised for these registers before. */
void vm_frame_again(vm_frame *f, const vmcode *code, const qk_args *args, void *tables, void *regs, int64_t block);
/* Evaluates what stands before the phase's PAR. Returns the number of instances. */
int64_t vm_phase_begin(vm_frame *f, const vm_phase *ph);
/* Bytes of locals and accumulators of the phase; vm_phase_begin has run. */
size_t vm_phase_bytes(const vm_frame *f, const vm_phase *ph);
/* Elements of work of one instance, roughly. */
int64_t vm_phase_work(const vm_frame *f, const vm_phase *ph);
/* Runs instances lo..hi-1; f->dynamic is set. False: interrupted. */
QN_MUST_CHECK bool vm_phase_run(vm_frame *f, const vm_phase *ph, int64_t lo, int64_t hi);
/* Size of scratch buffer `b`, in elements; the prelude has run in `f`. */
int64_t vm_scratch_elements(const vm_frame *f, uint32_t b);

#endif
