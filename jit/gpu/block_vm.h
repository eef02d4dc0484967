/* The block VM of a device: an interpreter of L programs, which runs them while their own code is being compiled. Private to jit/gpu.
 *
 *   block_vm_text.c   the interpreter's text, for a class of dtypes: definitions made from the tables, then block_vm.cu
 *   block_vm.c        translation of an L program to the interpreter's instructions; launches
 *
 * Instructions are two u64: op d a b, c e f g, 16 bits each. An op is a VMOP of block_vm_ops.def or one of the numbered ones below. */
#ifndef JIT_GPU_BLOCK_VM_H
#define JIT_GPU_BLOCK_VM_H

#include "jit/gpu/state.h"

enum {
#define VMOP(name, operands, meaning) VM_##name,
#include "jit/gpu/block_vm_ops.def"
#undef VMOP
  VMOP_COUNT,
#define VMFLAG(name, bit, meaning) VMF_##name = bit,
#include "jit/gpu/block_vm_ops.def"
#undef VMFLAG
  VM_VECTOR = 0x8000
};

/* Numbers of instructions that are functions: a base, and the function's row and dtype. The dtype of a comparison, cast or DOT is its
 * operands'. */
enum {
  VM_PRIMS = 128,                       /* + 16 kop + dtype */
  VM_CASTS = VM_PRIMS + 16 * KOP_COUNT, /* + 16 to + from */
  VM_MATHS = VM_CASTS + 16 * QN_DTYPE_COUNT,
  VM_LANED = VM_MATHS + 16 * MATH_COUNT,   /* pushes to 64 lanes, + 16 kop + dtype */
  VM_CHAINED = VM_LANED + 16 * KOP_COUNT,  /* pushes to one chain */
  VM_DOTTED = VM_CHAINED + 16 * KOP_COUNT, /* pushes of products to one chain, + dtype */
  VM_TILED = VM_DOTTED + 16,               /* + dtype of the factors */
  VM_NUMBERS = VM_TILED + 16
};
_Static_assert((int)VMOP_COUNT <= (int)VM_PRIMS && VM_PRIMS % 16 == 0 && VM_NUMBERS < 0x10000 && QN_DTYPE_COUNT <= 16,
               "numbers of instructions are apart");
static inline uint16_t vm_number(int base, int row, int dtype) { return (uint16_t)(base + 16 * row + dtype); }

typedef struct block_vm_head {
#define VMHEAD(name, meaning) int64_t name;
#include "jit/gpu/block_vm_ops.def"
#undef VMHEAD
} block_vm_head;
typedef struct block_vm_acc {
#define VMACC(name, meaning) uint16_t name;
#include "jit/gpu/block_vm_ops.def"
#undef VMACC
} block_vm_acc;
typedef struct block_vm_tile {
#define VMTILE(name) uint16_t name;
#include "jit/gpu/block_vm_ops.def"
#undef VMTILE
} block_vm_tile;

/* There are two interpreters: one for the dtypes that most programs need, which is compiled much sooner, and one for all. */
typedef enum block_vm_class { BLOCK_VM_F32, BLOCK_VM_ALL, BLOCK_VM_CLASSES } block_vm_class;
/* The smallest class that has all these dtypes; bit d stands for dtype d. */
block_vm_class block_vm_class_of(uint32_t dtypes);
/* The hash by which an interpreter's code is known, and its text: CUDA C with a kernel k<hash>_0. */
uint64_t block_vm_hash(block_vm_class c);
void block_vm_text(block_vm_class c, text_buf *out);

/* ---- programs (block_vm.c) ---- */

/* Can the block VM run the program, and is the interpreter compiled? If not it is asked for. `wait`: returns when it is compiled. */
bool block_vm_ready(qn_vm *vm, gpu_stream *s, const device_program *p, bool wait);
/* Launches the program's phases, inside gpu_enter, and waits for nothing. block_vm_ready has said yes. `values`: the program's
 * launch-time values (l_launch_values), with room for an address a buffer behind them. `checks`: its checks go to the error cell (gpu_cells has run),
 * numbered from first_check. */
device_answer block_vm_run(qn_vm *vm, gpu_stream *s, const device_program *p, void *const *buffers, const int64_t *ints,
                           const qk_scalar *scalars, int64_t *values, bool checks, uint64_t first_check);
void block_vm_close(gpu_stream *s);

#endif
